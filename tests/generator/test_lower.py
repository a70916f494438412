"""Programs against the nodes that they replace: values, and gradients by central differences."""
import json
import math
import random
import unittest

from generator import ir, lower, partition, spec
from generator.program import WHOLE, Operand
from tests.generator import interpret


def model_of(tensors, loss="loss", precision="f32", **rest):
    text = json.dumps(dict({"gpunn_spec": 1, "name": "t", "precision": precision, "tensors": tensors,
                            "loss": loss}, **rest))
    return spec.parse(text, "test.json")


def feeds_of(model, batch, seed=1):
    """Values for everything that is not computed."""
    draw = random.Random(seed)
    values = {}
    for t in model.tensors:
        size = interpret.count(interpret.dims(t.shape, batch))
        if t.kind == "constant":
            values[t.id] = list(t.values)
        elif t.dtype != "f32":
            values[t.id] = [draw.choice([0, 1] if t.dtype == "bool" else [0, 1, 2, 2, 1, 0, -100])
                            for _ in range(size)]
        elif t.kind != "value":
            low, high = (0.5, 1.5) if t.kind == "buffer" else (-1.2, 1.2)
            values[t.id] = [draw.uniform(low, high) for _ in range(size)]
    return values


def random_streams_of(model):
    return {t.id: number for number, t in enumerate(t for t in model.tensors if t.op == "dropout")}


def values_of(model, feeds, batch, training):
    """Of all tensors, node by node."""
    values = dict(feeds)
    for t in model.tensors:
        if t.kind == "value":
            values[t.id] = interpret.compute(model, t, values, batch, training, random_streams_of(model))
    return values


class Checker:
    """Runs the kernels of one model instead of its nodes."""

    def __init__(self, case, model, batch=3, seed=1, tolerance=3e-7, name=""):
        self.case, self.model, self.batch, self.tolerance, self.name = case, model, batch, tolerance, name
        self.kernels = partition.partition(model)
        self.feeds = feeds_of(model, batch, seed)
        self.draw = random.Random(seed + 100)

    def near(self, got, wanted, what, slack=1.0):
        self.case.assertEqual(len(got), len(wanted), what)
        for number, (a, b) in enumerate(zip(got, wanted)):
            if not abs(a - b) <= slack * self.tolerance * (1 + abs(b)):
                self.case.fail("%s%s, element %d: %.12g instead of %.12g" % (self.name, what, number, a, b))

    def split(self, instance):
        kernel = self.kernels.kernels[instance.kernel]
        count = len(kernel.nodes)
        return kernel, instance.tensors[:count], instance.tensors[count:]

    def memory(self, kernel, nodes, externals, values):
        data = {("value", k): list(values[number]) for k, number in enumerate(externals)}
        random_streams = [random_streams_of(self.model)[number] for number in nodes
                 if self.model.tensors[number].op == "dropout" and self.model.tensors[number].attrs["p"] > 0]
        return data, random_streams

    def written(self, kernel, program, nodes):
        return {nodes[-1 - operand.index]: operand for operand in program.operands
                if operand.role == "value" and operand.index < 0 and operand.written}

    def values(self, training):
        """All values, with the kernels in place of their nodes."""
        values, group_of = dict(self.feeds), {}
        for instance in self.kernels.training if training else self.kernels.evaluation:
            kernel, nodes, externals = self.split(instance)
            if kernel.layout != "last":
                for number in nodes:
                    group_of[number] = instance
        needed = partition.View(self.model, training).needed
        open_nodes = [t for t in self.model.tensors if t.kind == "value" and needed[t.id]]
        while open_nodes:
            before = len(open_nodes)
            for t in list(open_nodes):
                instance = group_of.get(t.id)
                if instance is None:
                    if all(number is None or number in values for number in t.inputs):
                        values[t.id] = interpret.compute(self.model, t, values, self.batch, training,
                                                         random_streams_of(self.model))
                        open_nodes.remove(t)
                    continue
                kernel, nodes, externals = self.split(instance)
                if t.id != nodes[-1] or not all(number in values for number in externals):
                    continue
                data, random_streams = self.memory(kernel, nodes, externals, values)
                program = kernel.forward if training else kernel.evaluation
                if kernel.loss and training:
                    data["gradient", -len(nodes)] = [1.0]
                interpret.Run(program, data, self.batch, random_streams)
                written = self.written(kernel, program, nodes)
                for k, number in enumerate(nodes):
                    node = self.model.tensors[number]
                    if number in written:
                        values[number] = data["value", -1 - k]
                    elif node.inputs[0] in values and (node.op == "reshape" or (
                            node.op == "dropout" and (not training or node.attrs["p"] == 0))):
                        values[number] = values[node.inputs[0]]
                open_nodes = [node for node in open_nodes if node.id not in nodes]
                self.data, self.random_streams = data, random_streams
            if len(open_nodes) == before:
                self.case.fail("%sthe kernels wait for each other" % self.name)
        return values

    def check_values(self, training):
        wanted = values_of(self.model, self.feeds, self.batch, training)
        got = self.values(training)
        for t in self.model.tensors:
            if t.id in got:
                self.near(got[t.id], wanted[t.id], "%s %d" % (t.op, t.id))

    def objective(self, nodes, values, incoming):
        values = dict(values)
        for number in nodes:
            values[number] = interpret.compute(self.model, self.model.tensors[number], values, self.batch,
                                               True, random_streams_of(self.model))
        return sum(g * y for number, part in incoming.items() for g, y in zip(part, values[number]))

    def check_gradients(self, samples=3):
        """Checks each backward program alone: its gradients against differences of sum(incoming gradient *
        value)."""
        values = values_of(self.model, self.feeds, self.batch, True)
        checked = 0
        for instance in self.kernels.training:
            kernel, nodes, externals = self.split(instance)
            program = kernel.forward if kernel.loss else kernel.backward
            if program is None or kernel.layout == "last":
                continue
            data, random_streams = self.memory(kernel, nodes, externals, values)
            graded = [nodes[-1 - operand.index] for operand in program.operands
                      if operand.role == "gradient" and operand.index < 0]
            incoming = {number: [self.draw.uniform(-1, 1) for _ in values[number]] for number in graded}
            if kernel.loss:
                data["gradient", -len(nodes)] = list(incoming[nodes[-1]])
            interpret.Run(kernel.forward, data, self.batch, random_streams)
            if not kernel.loss:
                for number in graded:
                    data["gradient", -1 - nodes.index(number)] = list(incoming[number])
                data = {key: part for key, part in data.items() if key[0] != "stat"}
                interpret.Run(program, data, self.batch, random_streams)
            for operand in program.operands:
                if operand.role != "gradient" or operand.index < 0:
                    continue
                number = externals[operand.index]
                for i in self.draw.sample(range(len(values[number])), min(samples, len(values[number]))):
                    sides = []
                    for step in (1e-5, -1e-5):
                        moved = dict(values)
                        moved[number] = list(values[number])
                        moved[number][i] += step
                        for other in externals:  # the same memory under another name
                            if other != number and self.root(other) == self.root(number):
                                moved[other] = moved[number]
                        sides.append(self.objective(nodes, moved, incoming))
                    slope = (sides[0] - sides[1]) / 2e-5
                    got = data["gradient", operand.index][i]
                    if not abs(got - slope) <= 1e-5 * (1 + abs(slope)):
                        self.case.fail("%s%s: gradient of %s, element %d: %.9g instead of %.9g" %
                                       (self.name, kernel.formula, operand.name, i, got, slope))
                    checked += 1
        return checked

    def root(self, number):
        t = self.model.tensors[number]
        return self.root(t.inputs[0]) if t.op == "reshape" else number


def par(name, *shape):
    return {"op": "parameter", "name": name, "shape": list(shape)}


def data(name, *shape):
    return {"op": "input", "name": name, "shape": ["N"] + list(shape)}


def linear(name, x, out_features, **rest):
    return dict({"op": "linear", "name": name, "inputs": [x], "out_features": out_features}, **rest)


def op(name, key, *inputs, **attrs):
    return dict({"op": name, "id": key, "inputs": list(inputs)}, **attrs)


X, END = data("x", 6), [linear("end", "y", 2), op("mean", "loss", "end")]


def layer(x="x"):
    return linear("fc", x, 6, **{"as": "h"})


class Programs(unittest.TestCase):
    def check(self, tensors, kernels=1, end=True, batch=3, **rest):
        checker = Checker(self, model_of(tensors + (END if end else []), **rest), batch)
        self.assertEqual(len(checker.kernels.training), kernels,
                         [kernel.formula for kernel in checker.kernels.kernels])
        checker.check_values(True)
        checker.check_values(False)
        self.assertGreater(checker.check_gradients(), 0)
        self.kernel = checker.kernels.kernels[checker.kernels.training[0].kernel]
        return checker

    def launches(self, program):
        return [(launch.family, len(launch.stores), len(launch.sums), len(launch.finals))
                for launch in program.launches]

    def reads(self, program):
        return [operand.name for operand in program.operands if operand.read]

    # ---- elementwise ----
    def test_columns(self):
        self.check([X, layer(), par("s", 6), par("b", 6), op("mul", "m", "h", "s"), op("add", "a", "m", "b"),
                    op("gelu", "g", "a"), op("add", "y", "g", "x")])
        self.assertEqual(self.kernel.formula, "y = gelu(h * s + b) + x")
        self.assertEqual(self.launches(self.kernel.backward), [("map", 2, 2, 2)])
        shared = [operand.shares for operand in self.kernel.backward.operands if operand.shares]
        self.assertEqual(shared, ["grad_y"])  # x's gradient is y's

    def test_channels_and_one_number(self):
        self.check([data("x", 3, 2, 2), par("k", 3, 2, 2), op("add", "h", "x", "k"),
                    par("s", 3, 1, 1), par("t", 1), op("mul", "m", "h", "s"), op("tanh", "n", "m"),
                    op("mul", "o", "n", "t"), op("flatten", "y", "o")], 1)
        self.check([data("x", 3, 2, 2), par("s", 3, 1, 1), par("t", 1), op("mul", "m", "x", "s"),
                    op("tanh", "n", "m"), op("mul", "o", "n", "t"), op("flatten", "y", "o")])
        self.assertEqual([one.place for one in self.kernel.backward.launches[0].sums], [(1, 1), (4, 3)])

    def test_one_number_a_row(self):
        self.check([X, layer(), linear("gate", "x", 1),
                    op("mul", "m", "h", "gate"), op("sigmoid", "y", "m")])
        self.assertEqual(self.launches(self.kernel.backward), [("row", 2, 0, 0)])

    def test_the_same_operand_twice(self):
        self.check([X, layer(), op("mul", "m", "h", "h"), op("sub", "n", "m", "h"), op("tanh", "y", "n")])

    def test_through_reshapes(self):
        self.check([X, layer(), op("tanh", "t", "h"), op("reshape", "r", "t", shape=["N", 2, 3]),
                    par("s", 2, 1), op("mul", "m", "r", "s"), op("reshape", "y", "m", shape=["N", 6])])
        self.assertEqual([text.split()[0] for text, _ in self.kernel.nodes], ["tanh", "reshape", "mul"])
        self.check([X, layer(), op("tanh", "t", "h"), op("reshape", "r", "t", shape=["N", 2, 3]),
                    op("silu", "m", "r"), op("reshape", "s", "m", shape=["N", 6]), linear("aside", "t", 6),
                    op("add", "u", "aside", "s"), op("exp", "y", "u")])

    def test_values_that_others_read(self):
        self.check([X, layer(), op("tanh", "t", "h"), op("exp", "e", "t"),
                    linear("aside", "t", 6), op("mul", "y", "e", "aside")], 1)

    def test_dropout(self):
        self.check([X, layer(), op("dropout", "d", "h", p=0.25), op("add", "a", "d", "x"),
                    op("dropout", "e", "a", p=0.5), op("silu", "y", "e")])
        self.assertEqual(self.kernel.random_streams, 2)
        self.check([X, layer(), op("dropout", "d", "h", p=0.0), op("add", "a", "d", "x"),
                    op("silu", "y", "a")])
        self.assertEqual(self.kernel.random_streams, 0)

    def test_one_gradient_for_two(self):
        """It is written to the memory of the node's own gradient, which both may share."""
        shuffle = [op("reshape", "s", "x", shape=["N", 2, 3]), par("w", 2, 1), op("mul", "t", "s", "w")]
        for name in "ab":
            shuffle += [op("permute", "p" + name, "t", dims=[0, 2, 1]),
                        op("reshape", name, "p" + name, shape=["N", 6])]
        self.check([X] + shuffle + [op("add", "h", "a", "b"), op("softmax", "y", "h", dim=-1)])
        gradients = [(operand.name, operand.read, operand.shares) for operand in self.kernel.backward.operands
                     if operand.role == "gradient" and operand.written]
        self.assertEqual(gradients,
                         [("grad_a", False, "grad_y"), ("grad_b", False, "grad_y"), ("grad_y", True, None)])

    def test_memory_handed_on_is_not_written(self):
        """c's gradient is y's. What a and b share must be elsewhere."""
        shuffle = [op("reshape", "s", "x", shape=["N", 2, 3]), par("w", 2, 1), op("mul", "t", "s", "w")]
        for name in "abc":
            shuffle += [op("permute", "p" + name, "t", dims=[0, 2, 1]),
                        op("reshape", name, "p" + name, shape=["N", 6])]
        for first, second in (("c", "r"), ("r", "c")):
            self.check([X] + shuffle + [op("add", "h", "a", "b"), op("relu", "r", "h"),
                                        op("add", "y", first, second)])
            homes = {operand.name: operand.shares
                     for operand in self.kernel.backward.operands if operand.role == "gradient"}
            written = [operand.name
                       for operand in self.kernel.backward.operands if operand.read and operand.written]
            self.assertEqual(homes["grad_c"] is not None, not written)
            self.assertEqual(homes["grad_a"] is not None, bool(written))

    def test_gradients_of_inputs(self):
        """Only if they cost no further reading of something large."""
        other = data("r", 6)
        self.check([X, other, par("w", 6), op("mul", "m", "x", "w"), op("tanh", "t", "m"),
                    op("mul", "y", "t", "r")])
        written = [operand.name for operand in self.kernel.backward.operands if operand.written]
        self.assertEqual(written, ["grad_x", "grad_w", "grad_r"])
        self.check([X, other, layer(), op("tanh", "t", "h"), op("mul", "y", "t", "r")])
        self.assertEqual(self.reads(self.kernel.backward), ["h", "r", "grad_y"])
        self.check([X, other, layer(), op("mul_scalar", "t", "h", value=2.0), op("mul", "y", "t", "r")])
        self.assertEqual([operand.name for operand in self.kernel.backward.operands if operand.written],
                         ["grad_h"])

    def test_what_is_read_again(self):
        self.check([X, layer(), op("mul_scalar", "m", "h", value=0.5), op("tanh", "y", "m")])
        self.assertEqual(self.reads(self.kernel.backward), ["y", "grad_y"])
        self.check([X, layer(), op("mul", "m", "h", "h"), op("exp", "y", "m")])
        self.assertEqual(self.reads(self.kernel.backward), ["h", "grad_y"])
        self.check([X, layer(), op("mul_scalar", "m", "h", value=0.5), op("gelu", "y", "m")])
        self.assertEqual(self.reads(self.kernel.backward), ["h", "grad_y"])

    def test_a_sum_of_many_is_kept(self):
        inputs = [dict(X, name="x%d" % k) for k in range(3)]
        self.check([X] + inputs + [layer(), op("sub", "a", "h", "x0"), op("sub", "b", "a", "x1"),
                                   op("sub", "c", "b", "x2"), op("gelu", "y", "c")])
        self.assertEqual([(kept.dtype, kept.per_batch) for kept in self.kernel.kept], [("f32", 6)])
        self.assertEqual(self.reads(self.kernel.backward), ["grad_y", "kept0"])
        self.check([X] + inputs + [layer(), op("sub", "a", "h", "x0"), op("gelu", "y", "a")])
        self.assertEqual(self.reads(self.kernel.backward), ["h", "x0", "grad_y"])

    # ---- rows ----
    def test_softmax(self):
        self.check([X, layer(), op("mul_scalar", "m", "h", value=0.5), op("softmax", "y", "m", dim=-1)])
        self.assertEqual(self.reads(self.kernel.backward), ["y", "grad_y"])
        self.check([X, layer(), par("mask", 6), op("add", "m", "h", "mask"), op("softmax", "s", "m", dim=-1),
                    op("dropout", "y", "s", p=0.3)])
        self.assertEqual(self.launches(self.kernel.backward), [("row", 1, 1, 1)])
        self.check([X, layer(), op("mul_scalar", "m", "h", value=2.0), op("log_softmax", "s", "m", dim=-1),
                    op("exp", "y", "s")])

    def test_sums_and_maxima(self):
        self.check([X, layer(), op("mean", "m", "h", dims=[-1], keepdim=True), op("sub", "c", "h", "m"),
                    op("square", "q", "c"), op("mean", "v", "q", dims=[-1], keepdim=True),
                    op("add_scalar", "w", "v", value=0.1), op("rsqrt", "r", "w"), op("mul", "y", "c", "r")])
        self.check([X, layer(), op("tanh", "t", "h"), op("max", "m", "t", dims=[-1], keepdim=True),
                    op("sub", "y", "t", "m")])
        self.check([X, layer(), par("w", 1), op("mean", "m", "h", dims=[-1], keepdim=True),
                    op("mul", "n", "m", "w"), op("tanh", "t", "n"), op("sub", "y", "h", "t")])
        self.assertEqual([(one.place, one.over_rows) for one in self.kernel.backward.launches[0].sums],
                         [((1, 1), True)])
        self.check([X, layer(), op("square", "q", "h"), op("sum", "s", "q", dims=[-1], keepdim=True),
                    op("sqrt", "t", "s"), op("div", "y", "h", "t")])

    def test_layer_norm(self):
        self.check([X, layer(), op("dropout", "d", "h", p=0.2), op("add", "r", "d", "x"),
                    {"op": "layer_norm", "name": "ln", "inputs": ["r"], "dims": 1, "as": "n"},
                    linear("fc2", "n", 6, **{"as": "m"}),
                    op("dropout", "e", "m", p=0.2), op("add", "y", "r", "e")], 2)
        self.assertEqual(self.launches(self.kernel.backward), [("row", 2, 2, 2)])
        self.assertEqual([kept.per_batch for kept in self.kernel.kept], [1, 1])
        self.check([X, layer(), op("mul", "p", "h", "x"), op("add", "r", "h", "p"),
                    {"op": "rms_norm", "name": "ln", "inputs": ["r"], "dims": 1, "as": "n"},
                    op("silu", "y", "n")])

    def test_group_norm(self):
        """Groups of channels are rows. weight and bias have a value per channel; their gradients are a launch
        of their own."""
        for shape, groups, place in (((4, 2, 3), 2, (6, 4)), ((4, 2, 3), 4, (6, 4)), ((4, 2, 3), 1, (6, 4)),
                                     ((1, 5), 1, (1, 1)),
                                     ((6,), 2, (1, 6)), ((6,), 1, (1, 6)), ((3, 1, 1, 2), 3, (2, 3))):
            with self.subTest(shape=shape, groups=groups):
                image = [data("x", *shape), par("k", *shape), op("add", "u", "x", "k"),
                         {"op": "group_norm", "name": "gn", "inputs": ["u"], "num_groups": groups, "as": "n"},
                         op("silu", "s", "n"), op("add", "r", "s", "x")]
                self.check(image + [op("flatten", "y", "r")] if len(shape) > 1 else
                           image[:-1] + [op("add", "y", "s", "x")])
                inner = math.prod(shape) // groups
                launches = self.kernel.forward.launches
                self.assertEqual([(launch.family, launch.domain.inner) for launch in launches],
                                 [("row", inner)])
                alone = place in ((1, 1), (1, inner))
                self.assertEqual(self.launches(self.kernel.backward),
                                 [("row", 1, 3, 3)] if alone else [("map", 0, 2, 2), ("row", 2, 0, 0)])

    # ---- batch_norm ----
    def test_batch_norm(self):
        image = data("x", 3, 2, 2)
        behind = [op("permute", "u", "x", dims=[0, 1, 3, 2]), par("k", 3, 1, 1), op("add", "v", "u", "k"),
                  op("permute", "r", "v", dims=[0, 1, 3, 2]), op("permute", "h", "v", dims=[0, 1, 3, 2])]
        for rest, sums, shares in (
                ([op("relu", "o", "b")], ("map", 0, 2, 4), None),
                ([op("add", "a", "b", "r"), op("relu", "o", "a")], ("map", 2, 2, 4), "grad_o"),
                ([op("mul", "a", "b", "r"), op("silu", "o", "a")], ("map", 1, 2, 4), None)):
            self.check([image] + behind + [{"op": "batch_norm2d", "name": "bn", "inputs": ["h"], "as": "b"}] +
                       rest + [op("flatten", "y", "o")])
            self.assertEqual(self.launches(self.kernel.forward), [("map", 0, 2, 4), ("map", 1, 0, 0)])
            self.assertEqual(self.launches(self.kernel.backward), [sums, ("map", 1, 0, 0)])
            samples = [(operand.place, operand.stride)
                       for operand in self.kernel.forward.operands if operand.stride > 1]
            self.assertEqual(samples, [((4, 3), 4)])  # the first element of each channel
            shared = [operand.shares for operand in self.kernel.backward.operands if operand.shares]
            self.assertEqual(shared, [shares] if shares else [])

    def test_batch_norm_before_the_loss(self):
        """Its gradient needs passes of its own."""
        tensors = [X, data("t", 6), layer(), {"op": "batch_norm1d", "name": "bn", "inputs": ["h"], "as": "b"},
                   op("add", "a", "b", "x"), op("mse_loss", "loss", "a", "t")]
        self.check(tensors, 2, end=False)

    def test_running_statistics(self):
        checker = self.check([X, layer(), {"op": "batch_norm1d", "name": "bn", "inputs": ["h"], "as": "b"},
                              op("relu", "y", "b")])
        checker.values(True)
        values = values_of(checker.model, checker.feeds, 3, True)
        ids = {t.name: t.id for t in checker.model.tensors if t.name}
        externals = checker.split(checker.kernels.training[0])[2]
        for c in range(6):
            row = values[ids["h"]][c::6]
            mean = sum(row) / 3
            unbiased = sum((value - mean) ** 2 for value in row) / 2
            for name, new in (("bn.running_mean", mean), ("bn.running_var", unbiased)):
                got = checker.data["value", externals.index(ids[name])][c]
                self.assertAlmostEqual(got, 0.9 * checker.feeds[ids[name]][c] + 0.1 * new, 6)

    # ---- losses ----
    def test_cross_entropy(self):
        labels = {"op": "input", "name": "labels", "dtype": "i64", "shape": ["N"]}
        weight = {"op": "constant", "name": "w", "shape": [6], "values": [0.5, 1.5, 1.0, 0.7, 2.0, 1.0]}
        for attrs, launches in (({}, 2), ({"reduction": "sum"}, 1), ({"label_smoothing": 0.1}, 2),
                                ({"label_smoothing": 0.1, "weight": "w"}, 2), ({"weight": "w"}, 2),
                                ({"ignore_index": 1}, 2)):
            with self.subTest(attrs):
                self.check([X, labels, weight, layer(), op("mul_scalar", "m", "h", value=3.0),
                            op("cross_entropy", "loss", "m", "labels", **attrs)], end=False, batch=5)
                self.assertTrue(self.kernel.loss)
                self.assertIsNone(self.kernel.backward)
                self.assertEqual(len(self.kernel.forward.launches), launches)
                self.assertEqual([(one.classes, one.ignore) for one in self.kernel.forward.labels],
                                 [(6, attrs.get("ignore_index", -100))])
        self.check([X, labels, layer(), op("log_softmax", "m", "h", dim=1),
                    op("nll_loss", "loss", "m", "labels")], end=False, batch=5)

    def test_elementwise_losses(self):
        target = data("t", 6)
        for name, attrs in (("mse_loss", {}), ("l1_loss", {"reduction": "sum"}),
                            ("huber_loss", {"delta": 0.3}),
                            ("bce_with_logits", {}), ("bce_with_logits", {"pos_weight": "p"})):
            with self.subTest(name):
                self.check([X, target, par("p", 6), layer(), op("tanh", "m", "h"),
                            op(name, "loss", "m", "t", **attrs)], end=False)
                self.assertTrue(self.kernel.loss)
                self.assertEqual(len(self.kernel.forward.launches), 1)
                self.assertIn("grad_h", [operand.name for operand in self.kernel.forward.operands])

    def test_casts(self):
        """Masks and class indices are read in their own dtypes."""
        mask = {"op": "input", "name": "mask", "dtype": "bool", "shape": ["N", 6]}
        self.check([X, mask, layer(), op("where", "w", "mask", "h", "x"), op("tanh", "y", "w")])
        self.assertEqual([t.split()[0] for t, _ in self.kernel.nodes], ["cast", "where", "tanh"])
        self.assertEqual(self.kernel.externals[0], "bool [N,6]")
        self.check([X, mask, layer(), op("cast", "c", "mask", dtype="f32"), op("mul", "m", "c", "h"),
                    op("tanh", "y", "m")])

    def test_losses_of_ordinary_nodes(self):
        target, row, labels = data("t", 6), data("r"), {"op": "input", "name": "labels", "dtype": "i64",
                                                        "shape": ["N"]}
        weight = {"op": "constant", "name": "w", "shape": [6], "values": [0.5, 1.5, 1.0, 0.7, 2.0, 1.0]}
        given = [X, target, row, labels, weight, layer(), linear("g", "x", 6), linear("k", "x", 6)]
        image = [op("reshape", "hi", "h", shape=["N", 2, 3]), op("reshape", "ti", "t", shape=["N", 2, 3])]
        for name, inputs, attrs in (
                ("hinge_embedding_loss", "ht", {}), ("margin_ranking_loss", "hgt", {"margin": 0.3}),
                ("dice_loss", ("hi", "ti"), {}),
                ("dice_loss", ("hi", "ti"), {"squared": True, "reduction": "sum"}),
                ("triplet_margin_loss", "hgk", {}), ("triplet_margin_loss", "hgk", {"swap": True, "p": 3.0}),
                ("triplet_margin_loss", "hgk", {"p": 1.0}),
                ("cosine_embedding_loss", "hgr", {"margin": 0.2}), ("multi_margin_loss", ("h", "labels"), {}),
                ("multi_margin_loss", ("h", "labels"), {"p": 2, "weight": "w"})):
            with self.subTest(name, **attrs):
                more = image if name == "dice_loss" else []
                self.check(given + more + [op(name, "loss", *inputs, **attrs)], end=False)
                self.assertTrue(self.kernel.loss)
                claimed = sum(text.split()[0] != "reshape" for text, _ in self.kernel.nodes)
                self.assertGreater(claimed, 3)
        self.check([X, target, layer(), linear("g", "x", 6), op("cosine_similarity", "c", "h", "g", dim=1),
                    op("mean", "loss", "c")], end=False)

    def test_class_losses_of_rows(self):
        """Without reduction: each row's loss is then weighted."""
        labels, row = {"op": "input", "name": "labels", "dtype": "i64", "shape": ["N"]}, data("r")
        column = op("reshape", "f", "m", shape=["N", 1])
        for rest in ([op("mean", "loss", "m")], [column, op("mul", "y", "f", "x")] + END,
                     [column, linear("y", "f", 3)] + END):
            for name in ("cross_entropy", "nll_loss"):
                self.check([X, labels, row, layer(), op("mul_scalar", "s", "h", value=2.0),
                            op(name, "c", "s", "labels", reduction="none"), op("mul", "m", "c", "r")] + rest,
                           end=False, batch=5)

    def test_a_loss_of_rows(self):
        target = data("t", 6)
        self.check([X, target, layer(), op("log_softmax", "m", "h", dim=-1), op("exp", "e", "t"),
                    op("kl_div", "loss", "m", "e", reduction="batchmean")], end=False)

    def test_16_bits_beside_f32(self):
        """In a 16-bit model, what a kernel stores in F32 is also available in 16 bits: results, and gradients
        that are passed on."""
        tensors = [X, linear("h", "x", 6), op("add", "a", "x", "h"),
                   {"op": "layer_norm", "name": "ln", "inputs": ["a"], "dims": 1, "as": "n"},
                   linear("y", "n", 6), op("add", "s", "n", "y")]
        for precision, half in (("f32", None), ("bf16", "bf16"), ("f16", "f16")):
            kernels = partition.partition(model_of(tensors + [op("mean", "loss", "s")],
                                                   precision=precision)).kernels
            kernel, = [one for one in kernels if any(text.startswith("layer_norm") for text, _ in one.nodes)]
            for program, role in ((kernel.forward, "value"), (kernel.backward, "gradient")):
                given = [one for one in program.operands if one.role == role and one.written and
                         one.place == WHOLE]
                self.assertTrue(given)
                for one in program.operands:
                    self.assertEqual(one.half, half if one in given and one.dtype == "f32" else None, one)


class Limits(unittest.TestCase):
    """The largest launch fits, and one that is larger by one does not."""

    def check(self, write, limit, reason):
        """write(graph, size): an expression."""
        for size in limit, limit + 1:
            root = write(ir.Graph(), size)
            if size == limit:
                lower.check([root], [root], [], 6)
            else:
                self.assertRaisesRegex(lower.Infeasible, reason, lower.check, [root], [root], [], 6)

    @staticmethod
    def load(graph, number, place=WHOLE):
        return graph.load(Operand("x%d" % number, "value", number, "f32", place, (0, 6)))

    @staticmethod
    def repeated(step, node, count):
        for _ in range(count):
            node = step(node)
        return node

    def test_operations(self):
        self.check(lambda graph, size: self.repeated(
            lambda node: graph.op("exp", node), self.load(graph, 0), size - 1), lower.MOST_NODES, "200 op")

    def test_tensors(self):
        def write(graph, size):
            first, *rest = [self.load(graph, i) for i in range(size)]
            for node in rest:
                first = graph.op("add", first, node)
            return first
        self.check(write, lower.MOST_STREAMS, "8 tensors")

    def test_reductions(self):
        self.check(lambda graph, size: self.repeated(
            lambda node: graph.rowred("sum", graph.op("exp", node)), self.load(graph, 0), size),
            lower.MOST_DEPTH, "reductions of rows")

    def test_registers(self):
        """All columns are read before the first two of them are added."""
        def write(graph, size):
            *rest, last = [self.load(graph, i, (1, 6)) for i in range(size)]
            for node in reversed(rest):
                last = graph.op("add", node, last)
            return last
        self.check(write, lower.MOST_REGISTERS, "registers")


if __name__ == "__main__":
    unittest.main()
