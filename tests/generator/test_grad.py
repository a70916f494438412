"""grad.py: gradients against central differences and, at kinks, NaN and infinities, against PyTorch's
values."""
import math
import random
import unittest

from generator import grad, ir, table
from generator.program import Operand

from . import kinks

STEP = 1e-5


def operand(name, place=ir.WHOLE, dtype="f32"):
    return Operand(name, "value", 0, dtype, place, (0, 1))


# whose gradient differs from the derivative
OPS = [op for op in table.ops().values() if op.arity and op.name != "detach"]

class Tape:
    """Nodes of a model in order: values, and gradients by walking back."""

    def __init__(self, inner=1):
        self.graph, self.inner, self.entries, self.row = ir.Graph(), inner, [], {}

    def apply(self, op, attrs, operands):
        y = grad.forward(self.graph, op, attrs, operands, self.inner)
        self.entries.append((op, attrs, operands, y))
        return y

    def gradients(self, y, g):
        """{node: its gradient}. A node with one number a row gets the sum of the row's gradients."""
        place = ir.places([y] + [node for entry in self.entries for node in entry[2] if node], self.inner)
        adjoints = {y: g}
        for op, attrs, operands, value in reversed(self.entries):
            adjoint = adjoints.pop(value, None)  # from here on for the nodes before: equal ones are one node
            if adjoint is None:
                continue
            for node, part in zip(operands,
                                  grad.backward(self.graph, op, attrs, operands, value, adjoint, self.inner)):
                if part is not None and node is not None:
                    gathered = place[node] == (self.inner, 0) and place[value] == ir.WHOLE != (self.inner, 0)
                    part = self.graph.rowred("sum", part) if gathered else part
                    adjoints[node] = grad.accumulate(self.graph, adjoints.get(node), part)
        return adjoints


class Differences(unittest.TestCase):
    def check(self, tape, y, names, points):
        """Derivatives of y for the loads of these names, at all points at once. Returns how many were
        compared, and how many were not because a factor of the derivative is infinite."""
        graph = tape.graph
        adjoints = tape.gradients(y, graph.const(1))
        loads = {node.attr.name: node for node in graph.nodes if node.op == "load"}
        wanted = [adjoints.get(loads[name]) or graph.const(0) for name in names]
        exact = ir.evaluate(wanted, len(points), lambda o, i: points[i][o.name])

        def at(moved, by):
            return ir.evaluate([y], len(points),
                               lambda o, i: points[i][o.name] + (by if o.name == moved else 0))[0]
        middle, count, lost = at(None, 0), 0, 0
        for name, slopes in zip(names, exact):
            above, below = at(name, STEP), at(name, -STEP)
            for i, slope in enumerate(slopes):
                right, left = (above[i] - middle[i]) / STEP, (middle[i] - below[i]) / STEP
                if (not max(abs(right), abs(left), abs(middle[i])) < 1e3 or
                    abs(right - left) > 1e-3 * (1 + abs(right))):
                    continue  # NaN, too steep, or a kink
                if not math.isfinite(slope):
                    lost += 1
                    continue
                count += 1
                self.assertLess(abs(slope - (right + left) / 2), 1e-3 * (1 + abs(slope)),
                                (y, name, points[i]))
        return count, lost

    def test_every_op(self):
        rng = random.Random(2)
        for op in OPS:
            count = 0
            for attempt in range(4):
                tape = Tape()
                names = table.OPERANDS[op.arity]
                attrs = {name: rng.choice((default, 0.5, 2.0)) for name, default in op.attrs}
                y = tape.apply(op.name, attrs, [tape.graph.load(operand(name)) for name in names])
                low, high = (0.02, 0.98) if attempt % 2 else (-4, 4)
                points = [{name: rng.uniform(low, high) for name in names} for _ in range(50)]
                count += self.check(tape, y, names, points)[0]
            self.assertGreater(count, {"pow": 60, "floor": 60, "sign": 60, "acosh": 25}.get(op.name, 90),
                               op.name)

    def test_random_graphs(self):
        rng = random.Random(3)
        ops, count, graphs = OPS, 0, 6000
        lost = 0
        for _ in range(graphs):
            tape = Tape()
            pool = [tape.graph.load(operand(name)) for name in "xyz"]
            for _ in range(rng.randint(2, 7)):
                op = rng.choice(ops)
                attrs = {name: rng.choice((default, 0.5, 2.0)) for name, default in op.attrs}
                recent = pool[-3:] if rng.random() < 0.7 else pool
                pool.append(tape.apply(op.name, attrs, [rng.choice(recent) for _ in range(op.arity)]))
            points = [{name: rng.uniform(-2, 2) for name in "xyz"} for _ in range(6)]
            compared, missed = self.check(tape, pool[-1], "xyz", points)
            count, lost = count + compared, lost + missed
        self.assertGreater(count, 6 * graphs)
        self.assertLess(lost, count / 200)

    def rows(self, build, names="x", wanted=None, label=0, tries=6, inner=5):
        """build(tape, loads) -> y. Compares d(sum over the row of r * y) for every element of each wanted
        operand."""
        rng = random.Random(4)
        for _ in range(tries):
            tape = Tape(inner)
            graph = tape.graph
            loads = {name: graph.load(operand(name, ir.WHOLE if name == "x" else (1, inner)))
                     for name in names}
            r = graph.load(operand("r"))
            loads["label"] = graph.load(operand("label", (inner, 0), "i64"))
            y = build(tape, loads)
            row = ir.places([y], inner)[y] == (inner, 0)
            goal = y if row else graph.rowred("sum", graph.mul(r, y))
            adjoints = tape.gradients(y, graph.const(1) if row else r)
            values = {name: [rng.uniform(-2, 2) for _ in range(inner)] for name in list(names) + ["r"]}
            values["label"] = [label] * inner

            def at(moved, k, by):
                return ir.evaluate([goal], inner, lambda o, i: values[o.name][i] +
                                   (by if (o.name, i) == (moved, k) else 0))[0][0]
            for name in wanted or names:
                exact, = ir.evaluate([adjoints[loads[name]]], inner, lambda o, i: values[o.name][i])
                for k in range(inner):
                    slope = (at(name, k, STEP) - at(name, k, -STEP)) / (2 * STEP)
                    self.assertAlmostEqual(exact[k], slope, delta=1e-5 * (1 + abs(slope)), msg=(name, k))

    def test_row_ops(self):
        for op in ("softmax", "log_softmax", "max"):
            self.rows(lambda tape, n, op=op: tape.apply(op, {}, (n["x"],)))
        for mean in (False, True):
            self.rows(lambda tape, n, mean=mean: tape.apply("sum", {"mean": mean}, (n["x"],)))
        self.rows(lambda tape, n: tape.apply("layer_norm", {"eps": 1e-3}, (n["x"], n["w"], n["b"])),
                  ("x", "w", "b"))
        self.rows(lambda tape, n: tape.apply("layer_norm", {"eps": 1e-3}, (n["x"], None, None)))
        self.rows(lambda tape, n: tape.apply("rms_norm", {"eps": 1e-3}, (n["x"], n["w"])), ("x", "w"))
        self.rows(lambda tape, n: tape.apply("rms_norm", {"eps": 1e-3}, (n["x"], None, None)))
        self.rows(lambda tape, n: tape.apply("group_norm", {"eps": 1e-3}, (n["x"], n["w"], n["b"])),
                  ("x", "w", "b"))

    def test_chains_of_row_ops(self):
        """Values of a row that all of it uses get gradients from all of it."""
        def chain(tape, n):
            h = tape.apply("layer_norm", {"eps": 1e-3}, (n["x"], n["w"], None))
            h = tape.apply("gelu", {}, (tape.apply("add", {}, (h, n["x"])),))
            top = tape.apply("exp", {}, (tape.apply("max", {}, (h,)),))
            h = tape.apply("div", {},
                           (h, tape.apply("add", {}, (top, tape.apply("sum", {"mean": True}, (n["x"],)))),))
            return tape.apply("softmax", {}, (tape.apply("mul", {}, (h, n["w"])),))
        self.rows(chain, "xw")

    def test_class_losses(self):
        for op, smoothing in (("cross_entropy", 0), ("cross_entropy", 0.1), ("nll", 0)):
            attrs = {"label_smoothing": smoothing, "ignore_index": 3}
            for label in (0, 2, 3, 4):
                with self.subTest(op=op, smoothing=smoothing, label=label):
                    self.rows(lambda tape, n: tape.apply(op, attrs, (n["x"], n["label"], n["w"])), "xw", "x",
                              label)
                    self.rows(lambda tape, n: tape.apply(op, attrs, (n["x"], n["label"], None)), "x", "x",
                              label)

    def test_batch_norm(self):
        """All of its steps, with weight and bias, against differences of the whole."""
        rng = random.Random(5)
        m, offset = 7, 300.0
        graph = ir.Graph()
        x, w, b, shift, mean, rstd, r = (graph.load(operand(name))
                                         for name in ("x", "w", "b", "shift", "mean", "rstd", "r"))
        values = {"x": [offset + rng.uniform(-1, 1) for _ in range(m)],
                  "r": [rng.uniform(-1, 1) for _ in range(m)], "w": [1.5] * m, "b": [0.25] * m}
        count, totals = graph.count(0, 1), (graph.total(0), graph.total(1))

        def run(roots, sums=()):
            return ir.evaluate(roots, m, lambda o, i: values[o.name][i], totals=sums, batch=m)

        def forward():
            values["shift"] = values["x"][:1] * m
            sums = [math.fsum(row) for row in run(grad.batch_norm_terms(graph, x, shift))]
            average, variance = grad.batch_norm_moments(graph, totals, shift, count)
            values["mean"], values["rstd"], spread = run(
                [average, grad.inverse_root(graph, variance, 1e-3), variance], sums)
            result, = run([grad.batch_norm_apply(graph, x, w, b, mean, rstd)])
            return math.fsum(a * c for a, c in zip(result, values["r"])), spread[0]
        _, spread = forward()
        exact_mean = math.fsum(values["x"]) / m
        exact = math.fsum((value - exact_mean) ** 2 for value in values["x"]) / m
        self.assertAlmostEqual(values["mean"][0], exact_mean, delta=1e-10)
        self.assertAlmostEqual(spread, exact, delta=1e-10)
        sums = [math.fsum(row) for row in run(grad.batch_norm_gradient_terms(graph, x, mean, r))]
        dx, = run([grad.batch_norm_gradient(graph, x, w, mean, rstd, r, totals, count)], sums)
        running = grad.batch_norm_running(graph, graph.const(10), graph.const(2), graph.const(1),
                                          graph.const(4), count, 0.25)
        new_mean, new_var = run(running)
        self.assertAlmostEqual(new_mean[0], 0.75 * 1 + 0.25 * 10)
        self.assertAlmostEqual(new_var[0], 0.75 * 4 + 0.25 * 2 * m / (m - 1))

        def slope(name, indices):
            ends = []
            for by in (STEP, -STEP):
                for i in indices:
                    values[name][i] += by
                ends.append(forward()[0])
                for i in indices:
                    values[name][i] -= by
            return (ends[0] - ends[1]) / (2 * STEP)
        for i in range(m):
            self.assertAlmostEqual(dx[i], slope("x", [i]), delta=1e-5)
        self.assertAlmostEqual(sums[0], slope("b", range(m)), delta=1e-6)
        self.assertAlmostEqual(sums[1] * values["rstd"][0], slope("w", range(m)), delta=1e-6)
        evaluation = grad.forward(graph, "batch_norm", {"eps": 1e-3},
                                  (x, w, b, graph.const(1), graph.const(4)))
        self.assertAlmostEqual(run([evaluation])[0][0],
                               (values["x"][0] - 1) / math.sqrt(4 + 1e-3) * 1.5 + 0.25, places=4)


class Edges(unittest.TestCase):
    # Points at which PyTorch disagrees with itself (vector code, scalar code and versions differ), or at
    # which gpunn's table takes C's value.
    UNLIKE = (("relu6", "nan"), ("hardtanh", "nan"), ("hardtanh(-2, 3)", "nan"), ("hardswish", "nan"),
              ("gelu", "inf"), ("softsign", "inf"), ("softsign", "-inf"), ("pow_scalar(0.5)", "-inf"),
              ("pow_scalar(0.5)", "-0.0"))

    @staticmethod
    def close(a, b):
        if a != a or b != b:
            return a != a and b != b
        return a == b or abs(a - b) <= 1e-6 + 4e-6 * abs(b)

    def run_points(self, name, points):
        """Values and gradients in float32 of "op(attributes)" at the points."""
        name, _, given = name.partition("(")
        op = table.ops()[name]
        attrs = dict(zip((attr for attr, _ in op.attrs),
                         map(float, filter(None, given.rstrip(")").split(",")))))
        graph = ir.Graph()
        names = table.OPERANDS[op.arity]
        loads = [graph.load(operand(name)) for name in names]
        y = grad.forward(graph, op.name, attrs, loads)
        slopes = grad.backward(graph, op.name, attrs, loads, y, graph.load(operand("g")))
        roots = [y] + [slope or graph.const(0) for slope in slopes]
        return ir.evaluate(roots, len(points),
                           lambda o, i: 1.0 if o.name == "g" else points[i][names.index(o.name)], single=True)

    def compare(self, name, points, expected):
        for k, (found, wanted) in enumerate(zip(self.run_points(name, points), expected)):
            for point, a, b in zip(points, found, wanted):
                if (name, "%s" % point[0]) not in self.UNLIKE and (name, "%g" % point[0]) not in self.UNLIKE:
                    what = ("value", "da", "db", "dc")[k]
                    self.assertTrue(self.close(a, b),
                                    "%s at %s: %s %r, PyTorch %r" % (name, point, what, a, b))

    def test_against_pytorch(self):
        for name, expected in kinks.VALUES.items():
            arity = table.ops()[name.partition("(")[0]].arity
            points = [(x,) for x in kinks.POINTS] if arity == 1 else \
                kinks.PROBABILITIES if name == "binary_cross_entropy" else kinks.PAIRS
            if name.startswith("kl_") or name == "binary_cross_entropy_with_logits":
                known = [i for i, (a, b) in enumerate(points) if math.isfinite(b) and
                         (b != 0 or name != "kl_divergence")]
                points, expected = [points[i] for i in known], [[row[i] for i in known] for row in expected]
            if name == "where":  # where(a != 0, b, a)
                points, expected = ([(a, b, a) for a, b in points],
                                    (expected[0], [0] * len(points), expected[2], expected[1]))
            self.compare(name, points, expected)

    def test_ops_of_the_table_are_all_there(self):
        compared = {name.partition("(")[0] for name in kinks.VALUES}
        self.assertEqual([op.name for op in table.ops().values() if op.gradients and op.arity and
                          op.name not in compared], ["add_scalar", "mul_scalar", "parametric_relu"])

    def test_row_ops_against_pytorch(self):
        """Value and gradient of sum(r * value), in float64; losses of label 2."""
        row = {"x": (0.5, -1.25, 2.0, 0.0, 3.5), "w": (1.0, 0.5, 2.0, 1.5, 0.25),
               "b": (0.1, 0.2, 0.3, 0.4, 0.5), "r": (1.0, -2.0, 0.5, 3.0, -1.0), "label": (2,) * 5}
        smooth, sharp = ({"label_smoothing": 0.1, "ignore_index": -100},
                         {"label_smoothing": 0.0, "ignore_index": -100})
        for op, attrs, names, value, slope in (
                ("softmax", {}, "x", (0.037954221, 0.0065954547, 0.17009902, 0.023020399, 0.76233091),
                 (0.060098873, -0.0093427458, 0.18429495, 0.082492606, -0.31754369)),
                ("log_softmax", {}, "x", (-3.2713746, -5.0213746, -1.7713746, -3.7713746, -0.27137456),
                 (0.94306867, -2.0098932, 0.24485147, 2.9654694, -2.1434964)),
                ("layer_norm", {"eps": 1e-5}, "xwb",
                 (-0.17335503, -0.46820118, 1.5756568, -0.46562426, 0.88725296),
                 (-0.072989782, -1.4536338, 0.069066889, 2.0057527, -0.54819596)),
                ("rms_norm", {"eps": 1e-5}, "xw", (0.26306646, -0.32883307, 2.1045317, 0, 0.4603663),
                 (0.48426086, -0.42145278, 0.3586447, 2.3675981, -0.4246376)),
                ("sum", {"mean": False}, "x", (4.75,), (1, 1, 1, 1, 1)),
                ("sum", {"mean": True}, "x", (0.95,), (0.2, 0.2, 0.2, 0.2, 0.2)),
                ("max", {}, "x", (3.5,), (0, 0, 0, 0, 1)),
                ("cross_entropy", sharp, "xl", (1.7713746,),
                 (0.037954221, 0.0065954547, -0.82990098, 0.023020399, 0.76233091)),
                ("cross_entropy", sharp, "xlw", (3.5427491,),
                 (0.075908442, 0.013190909, -1.659802, 0.046040797, 1.5246618)),
                ("cross_entropy", smooth, "xl", (1.8763746,),
                 (0.017954221, -0.013404545, -0.74990098, 0.0030203987, 0.74233091)),
                ("cross_entropy", smooth, "xlw", (3.4894685,),
                 (0.052302791, 0.0025643411, -1.5159614, 0.01385386, 1.4472404)),
                ("nll", sharp, "xlw", (-4,), (0, 0, -2, 0, 0))):
            graph = ir.Graph()
            loads = {name[0]: graph.load(operand(name)) for name in row}
            operands = [loads[name] for name in names]
            operands += [None] * (3 - len(operands)) if "_" in op else []
            y = grad.forward(graph, op, attrs, operands, 5)
            g = graph.const(1) if len(value) == 1 else loads["r"]
            dx = grad.backward(graph, op, attrs, operands, y, g, 5)[0]
            for found, wanted in zip(ir.evaluate([y, dx], 5, lambda o, i: row[o.name][i]), (value, slope)):
                for a, b in zip(found, wanted):
                    self.assertAlmostEqual(a, b, delta=3e-7 * (1 + abs(b)), msg=(op, names, found, wanted))

    def test_dead_branches_are_not_multiplied(self):
        """d/dx where(x > 0, sqrt(x), 0) at 0 is 0, not 0 * inf, also through a chain."""
        for ops in (("sqrt",), ("neg", "abs", "sqrt"), ("sqrt", "sqrt", "mul_scalar"), ("log",),
                    ("reciprocal", "square")):
            tape = Tape()
            x = h = tape.graph.load(operand("x"))
            for op in ops:
                h = tape.apply(op, {}, (h,))
            zero = tape.graph.const(0)
            y = tape.apply("where", {}, (tape.apply("gt", {}, (x, zero)), h, zero))
            slope, = ir.evaluate([tape.gradients(y, tape.graph.const(1))[x]], 1, lambda o, i: 0.0)
            self.assertEqual(slope, [0.0], ops)

    def test_ties_share_the_gradient_of_a_row_s_maximum(self):
        graph = ir.Graph()
        x = graph.load(operand("x"))
        y = grad.forward(graph, "max", {}, (x,), 4)
        slope, = grad.backward(graph, "max", {}, (x,), y, graph.const(3), 4)
        self.assertEqual(ir.evaluate([slope], 4, lambda o, i: (1, 2, 2, 2)[i]), [[0, 1, 1, 1]])

    def test_labels(self):
        """Ignored rows cost 0, labels out of range give NaN. Neither has a gradient."""
        for op in ("cross_entropy", "nll"):
            for ignore in (-100, 2, 7):
                for label in (-100, -1, 0, 2, 3, 7):
                    graph = ir.Graph()
                    x, at = graph.load(operand("x")), graph.load(operand("label", (3, 0), "i64"))
                    attrs = {"ignore_index": ignore, "label_smoothing": 0.0}
                    y = grad.forward(graph, op, attrs, (x, at, None), 3)
                    roots = [y, grad.backward(graph, op, attrs, (x, at, None), y, graph.const(1), 3)[0],
                             grad.loss_weight(graph, op, attrs, (x, at, None), 3)]
                    cost, slope, weight = ir.evaluate(roots, 3,
                                                      lambda o, i: label if o.name == "label" else 0.5 * i)
                    if label == ignore:
                        self.assertEqual((cost, slope, weight), ([0] * 3,) * 3)
                    elif 0 <= label < 3:
                        self.assertTrue(all(map(math.isfinite, cost)) and slope[label] < 0 and
                                        weight == [1] * 3)
                    else:
                        self.assertTrue(math.isnan(cost[0]) and slope == [0] * 3, (op, ignore, label))

    def test_softmax_of_large_and_masked_rows(self):
        graph = ir.Graph()
        x = graph.load(operand("x"))
        roots = [grad.forward(graph, op, {}, (x,), 3) for op in ("softmax", "log_softmax")]
        soft, log_soft = ir.evaluate(roots, 3, lambda o, i: (1e4, 1e4, -math.inf)[i])
        self.assertEqual(soft, [0.5, 0.5, 0.0])
        self.assertEqual(log_soft, [-math.log(2), -math.log(2), -math.inf])


if __name__ == "__main__":
    unittest.main()
