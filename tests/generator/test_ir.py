"""ir.py: equal expressions are one node; rewrites keep every result; places, rounding and the reference are
right."""
import math
import random
import struct
import unittest

from generator import floats, ir
from generator.program import Operand

INF, NAN = math.inf, math.nan
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 3.0, -3.25, 1e-30, -1e30, 3e38, -3e38,
           2.0 ** -126, 100.0)


def operand(name, place=ir.WHOLE, dtype="f32"):
    return Operand(name, "value", 0, dtype, place, (0, 1))


def bits(value):
    return "nan" if value != value else struct.pack("<d", value)


class Naive:
    """Builds closures instead of nodes: the meaning of an expression before any rewrite."""

    def const(self, value):
        return lambda point: floats.f32(value)

    def op(self, name, *args):
        def result(point):
            value = ir.compute(name, [arg(point) for arg in args])
            return value if isinstance(value, bool) else floats.f32(value)
        return result

    def where(self, condition, yes, no):
        return lambda point: yes(point) if condition(point) else no(point)


class Nodes(unittest.TestCase):
    def test_equal_expressions_are_one_node(self):
        g = ir.Graph()
        x, y = g.load(operand("x")), g.load(operand("y"))
        self.assertIs(g.load(operand("x")), x)
        self.assertIs(g.add(x, y), g.add(y, x))
        self.assertIs(g.op("eq", x, y), g.op("eq", y, x))
        self.assertIsNot(g.sub(x, y), g.sub(y, x))
        self.assertIsNot(g.op("max", x, y), g.op("max", y, x))  # zeros of two signs
        self.assertIsNot(g.const(0.0), g.const(-0.0))
        self.assertIs(g.const(NAN), g.const(NAN))
        self.assertIs(g.const(0.1), g.const(floats.f32(0.1)))
        self.assertIsNot(g.keep(0, 0.5), g.keep(1, 0.5))
        self.assertIsNot(g.rowred("sum", x), g.rowred("max", x))

    def test_rewrites(self):
        g = ir.Graph()
        x, y, c = g.load(operand("x")), g.load(operand("y")), g.op("lt", g.load(operand("c")), g.const(0))
        zero = g.const(0)
        for text, expected in (("x * 1", "x"), ("x * -1", "-x"), ("x / 4", "x * K(0.25)"),
                               ("x - -y", "x + y"), ("x + -y", "x - y"), ("-x + y", "y - x"),
                               ("2 * (3 * x)", "6 * x"), ("-(2 * x)", "-2 * x"), ("-x * y", "-(x * y)"),
                               ("x / -y", "-(x / y)"), ("x - 0", "x"), ("pow(x, 2)", "x * x"),
                               ("pow(x, 0)", "1"), ("pow(x, -1)", "1 / x"), ("abs(-x)", "abs(x)"),
                               ("K(0.5) + 1", "K(1.5)"), ("exp(0)", "1"),
                               ("where(1 < 2, x, y)", "x"), ("where(x < y, x, x)", "x"),
                               ("where(where(x < y, 1, 0), x, y)", "where(x < y, x, y)"),
                               ("where(where(x < y, 0, 1), x, y)", "where(x < y, y, x)"),
                               ("where(x < y, where(x < y, x, 1), y)", "where(x < y, x, y)"),
                               ("where(x < y, x, where(x < y, 1, y))", "where(x < y, x, y)")):
            self.assertIs(g.text(text, {"x": x, "y": y}), g.text(expected, {"x": x, "y": y}), text)
        for text in ("x * 0", "x - x", "x / x", "0 * x", "x + 0", "x / 3", "x - y + y"):
            self.assertNotEqual(g.text(text, {"x": x, "y": y}).op, "const", text)
            self.assertIsNot(g.text(text, {"x": x, "y": y}), x, text)
        self.assertIs(g.add(g.where(c, x, zero), g.where(c, y, zero)), g.where(c, g.add(x, y), zero))
        # a mask times infinity stays NaN, but not in gradients:
        self.assertEqual(g.mul(x, g.where(c, y, zero)).op, "mul")
        self.assertIs(g.linear(g.where(c, y, zero), lambda live: g.mul(x, live)),
                      g.where(c, g.mul(x, y), zero))
        d = g.op("lt", x, y)
        self.assertIs(g.linear(g.where(c, zero, g.where(d, y, zero)), lambda live: g.div(live, x)),
                      g.where(c, zero, g.where(d, g.div(y, x), zero)))

    def test_rewrites_keep_every_result(self):
        """Random expressions over awkward values, each built with and without rewrites, give the same bits,
        including signed zeros and NaN. Constants are powers of two, since other products may round
        differently."""
        rng = random.Random(1)
        names = ("add", "sub", "mul", "div", "neg", "min", "max", "abs", "sign", "floor", "sqrt", "exp")
        for _ in range(4000):
            g, naive = ir.Graph(), Naive()
            pool = [(g.load(operand(name)), lambda point, name=name: point[name]) for name in "xy"]
            for value in rng.sample((0.0, -0.0, 1, -1, 2, 0.5, -4, -0.25, 1024, INF), 4):
                pool.append((g.const(value), naive.const(value)))
            for _ in range(rng.randint(1, 8)):
                if rng.random() < 0.25:
                    a, b, p, q = (rng.choice(pool) for _ in range(4))
                    name = rng.choice(ir.COMPARISONS)
                    pool.append((g.where(g.op(name, a[0], b[0]), p[0], q[0]),
                                 naive.where(naive.op(name, a[1], b[1]), p[1], q[1])))
                else:
                    name = rng.choice(names)
                    args = [rng.choice(pool) for _ in range(ir.ARITY[name])]
                    pool.append((g.op(name, *(arg[0] for arg in args)),
                                 naive.op(name, *(arg[1] for arg in args))))
            points = [{"x": floats.f32(rng.choice(SPECIAL)), "y": floats.f32(rng.choice(SPECIAL))}
                      for _ in range(8)]
            node, meaning = pool[-1]
            values, = ir.evaluate([node], len(points), lambda o, i: points[i][o.name], single=True)
            for point, value in zip(points, values):
                self.assertEqual(bits(value), bits(meaning(point)), (node, point))

    def test_constants_that_would_overflow_are_not_joined(self):
        g = ir.Graph()
        x = g.load(operand("x"))
        big, small = 2.0 ** 100, 2.0 ** -100
        for first, second, joined in ((big, big, False), (small, big, False), (big, 2, True),
                                      (small, small, False),
                                      (0.5, 2, False), (0.5, small, True), (big, 0.5, True), (0.0, 2, False)):
            node = g.mul(g.const(first), g.mul(g.const(second), x))
            self.assertEqual(node.args[1] is x, joined, (first, second))
        for divisor, exact in ((2.0 ** 126, True), (2.0 ** 127, False), (2.0 ** -126, True),
                               (2.0 ** -130, False), (INF, False), (0.0, False), (-8, True), (3, False)):
            self.assertEqual(g.div(x, g.const(divisor)).op == "mul", exact, divisor)

    def test_wrong_use_is_refused(self):
        g = ir.Graph()
        x = g.load(operand("x"))
        less = g.op("lt", x, g.const(0))
        for build in (lambda: g.op("add", x), lambda: g.add(x, less), lambda: g.where(x, less, x),
                      lambda: g.rowred("min", x), lambda: g.op("neg", less)):
            with self.assertRaises(ValueError):
                build()
        with self.assertRaises(KeyError):
            g.op("gamma", x)

    def test_order_and_substitution(self):
        g = ir.Graph()
        x, y = g.load(operand("x")), g.load(operand("y"))
        t = g.op("exp", x)
        root = g.add(g.mul(t, y), t)
        order = ir.topological([root, t])
        self.assertEqual(len(order), len(set(order)))
        for node in order:
            for arg in node.args:
                self.assertLess(order.index(arg), order.index(node))
        self.assertEqual([o.name for o in ir.loads([root])], ["x", "y"])
        kept = g.load(operand("kept"))
        replaced, = g.substitute([root], {t: kept})
        self.assertIs(replaced, g.add(g.mul(kept, y), kept))
        self.assertIs(g.substitute([root], {})[0], root)
        reduced, = g.substitute([g.rowred("max", g.round("bf16", t))], {t: kept})
        self.assertIs(reduced, g.rowred("max", g.round("bf16", kept)))

    def test_deep_expressions_need_no_recursion(self):
        g = ir.Graph()
        node = g.load(operand("x"))
        for _ in range(5000):
            node = g.op("sin", node)
        self.assertEqual(len(ir.topological([node])), 5001)
        self.assertIs(g.substitute([node], {})[0], node)


class Rounding(unittest.TestCase):
    def test_16_bits(self):
        self.assertEqual(floats.bf16(1 + 2 ** -8), 1.0)  # a tie, to even
        self.assertEqual(floats.bf16(1 + 3 * 2 ** -8), 1 + 2 ** -6)
        self.assertEqual(floats.bf16(1 + 2 ** -8 + 2 ** -20), 1 + 2 ** -7)
        self.assertEqual(floats.bf16(3.4e38), INF)
        self.assertEqual(floats.bf16(-INF), -INF)
        self.assertTrue(math.isnan(floats.bf16(NAN)))
        self.assertEqual(math.copysign(1, floats.bf16(-0.0)), -1)
        self.assertEqual(floats.f16(65519.0), 65504.0)
        self.assertEqual(floats.f16(65520.0), INF)
        self.assertEqual(floats.f16(2 ** -25), 0.0)
        self.assertEqual(floats.f32(1e39), INF)
        self.assertEqual(floats.f32(-1e39), -INF)

    def test_round_nodes(self):
        g = ir.Graph()
        x, half = g.load(operand("x")), g.load(operand("h", dtype="bf16"))
        self.assertIs(g.round("f32", x), x)
        self.assertIs(g.round("bf16", half), half)
        rounded = g.round("bf16", x)
        self.assertIs(g.round("bf16", rounded), rounded)
        self.assertIsNot(g.round("f16", rounded), rounded)
        self.assertEqual(g.round("bf16", g.const(1.001)).attr, 1.0)
        self.assertEqual(ir.evaluate([rounded], 1, lambda o, i: 3.14159), [[3.140625]])


class Places(unittest.TestCase):
    def test_join_is_the_narrowest_place_for_both(self):
        for one in ((1, 0), (1, 1), (1, 12), (12, 0), (4, 3), (2, 6), (24, 0), (4, 0)):
            for other in ((1, 0), (1, 1), (1, 12), (12, 0), (4, 3), (2, 6), (24, 0), (3, 4)):
                joined = ir.join(one, other)
                self.assertEqual(joined, ir.join(other, one))

                def at(place, i):
                    return i // place[0] % place[1] if place[1] else i // place[0]
                seen = {}
                for i in range(48):  # elements of one place have one of each
                    pair = at(one, i), at(other, i)
                    self.assertEqual(seen.setdefault(at(joined, i), pair), pair, (one, other))

    def test_places(self):
        g = ir.Graph()
        x, row = g.load(operand("x")), g.load(operand("row", (8, 0)))
        column, scalar = g.load(operand("column", (1, 8))), g.load(operand("scalar", ir.SCALAR))
        mean = g.div(g.rowred("sum", x), g.const(8))
        nodes = [x, g.mul(row, scalar), g.add(column, g.const(1)), g.mul(row, column), mean, g.mul(mean, row),
                 g.sub(x, mean), g.op("exp", scalar), g.keep(0, 0.5),
                 g.where(g.is_column(row), g.const(1), g.const(0)), g.total(0), g.count(0, 4)]
        found = ir.places(nodes, inner=8, totals=((1, 8),))
        self.assertEqual([found[node] for node in nodes],
                         [(1, 0), (8, 0), (1, 8), (1, 0), (8, 0), (8, 0), (1, 0), (1, 1), (1, 0),
                          (1, 0), (1, 8), (1, 1)])


class Reference(unittest.TestCase):
    def test_functions_at_their_edges(self):
        for name, args, expected in (
                ("div", (1, 0.0), INF), ("div", (1, -0.0), -INF), ("div", (0, 0), NAN),
                ("div", (NAN, 0), NAN), ("log", (0,), -INF), ("log", (-1,), NAN), ("log1p", (-1,), -INF),
                ("sqrt", (-1,), NAN), ("exp", (1e4,), INF), ("expm1", (1e4,), INF), ("pow", (0, -1), INF),
                ("pow", (-0.0, -1), -INF), ("pow", (-8, 0.5), NAN), ("pow", (NAN, 0), 1),
                ("pow", (-1e200, 3), -INF), ("sin", (INF,), NAN), ("min", (NAN, 1), NAN),
                ("min", (1, NAN), NAN), ("max", (1, NAN), NAN), ("max", (NAN, 1), NAN), ("sign", (NAN,), 0),
                ("sign", (-2,), -1), ("floor", (-0.5,), -1), ("floor", (INF,), INF), ("sigmoid", (-1e4,), 0),
                ("sigmoid", (1e4,), 1), ("tanh", (-INF,), -1), ("erf", (INF,), 1)):
            value = ir.compute(name, args)
            self.assertTrue(value == expected or (value != value and expected != expected),
                            (name, args, value))

    def test_rows(self):
        g = ir.Graph()
        x, label = g.load(operand("x")), g.load(operand("label", (4, 0), "i64"))
        picked = g.rowred("sum", g.where(g.is_column(label), x, g.const(0)))
        roots = [g.rowred("max", x), picked, g.count(2, 3), g.keep(1, 0.25), g.total(0)]
        values = ir.evaluate(roots, 4, lambda o, i: 2 if o.name == "label" else [1.0, 5.0, -3.0, NAN][i],
                             keep=lambda random_stream, p, i: random_stream + p + i, totals=[7.0], batch=5)
        self.assertTrue(all(math.isnan(value) for value in values[0]))
        self.assertEqual(values[1:], [[-3.0] * 4, [17.0] * 4, [1.25, 2.25, 3.25, 4.25], [7.0] * 4])
        self.assertEqual(g.keep(0, 0.0).attr, 1)
        self.assertEqual(g.keep(0, 1.0).attr, 0)
        self.assertEqual(g.count(3, 0).attr, 3)


if __name__ == "__main__":
    unittest.main()
