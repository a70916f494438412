"""parse.py: the same nodes as gpunn_expr, user-chosen names, and only SpecError for invalid expressions."""
import os
import random
import unittest

from generator import graph, parse, table
from generator.json_text import SpecError

EXPRESSIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected", "expressions.txt")


def build(text, names="xyz", consts=None):
    """A model of three inputs and the expression; (tensors after the inputs, the value)."""
    model = graph.Graph()
    inputs = [model.input("input%d" % i, "f32", (-1, 4)) for i in range(3)]
    operands = dict(zip(names, inputs))
    if names == "xyz":
        operands.update({"x%d" % i: t for i, t in enumerate(inputs)})
    value = parse.expand(text, model, operands, consts or {}, lambda at: "1:%d" % (at + 1))
    return model.tensors[3:], value


def describe(text, *rest):
    """As tests/unit/graph.c writes it."""
    try:
        tensors, value = build(text, *rest)
    except (SpecError, graph.GraphError):
        return "error"
    parts = []
    for t in tensors:
        elementwise = t.kind != "constant" and table.ops()[t.op].arity
        words = ["%.9g" % t.values] if t.kind == "constant" else [t.text()]
        words = [t.op] + ["%.9g" % v for v in t.attrs.values()] if elementwise else words
        parts.append(" ".join(words + ["#%d" % i for i in t.inputs]) + "; ")
    return "".join(parts) + "= #%d" % value.id


class Expressions(unittest.TestCase):
    def test_as_gpunn_expr(self):
        """The file has the nodes of C's gpunn_expr for each. tests/unit/graph.c checks that side."""
        with open(EXPRESSIONS, encoding="ascii", newline="") as file:
            lines = file.read().split("\n")[:-1]
        self.assertGreater(len(lines), 500)
        for text, expected in zip(lines[::2], lines[1::2]):
            self.assertEqual(describe(text), expected.strip(), text)

    def test_white_space(self):
        self.assertEqual(describe("x\n+\r\n\t y"), describe("x+y"))

    def test_names(self):
        def made(text):
            return describe(text, ("gate", "x", "value_2"), {"alpha": 0.1, "big": 3, "gate": 7.0})
        self.assertEqual(made("gate * alpha + x * (2 * alpha)"),
                         "mul_scalar 0.100000001 #0; mul_scalar 0.200000003 #1; add #3 #4; = #5")
        self.assertEqual(made("value_2 / big"), "3; div #2 #3; = #4")
        for text in ("y", "x0", "alpha * gat", "big(x)"):
            self.assertEqual(made(text), "error", text)
        self.assertEqual(describe("pi * x", "xyz", {"pi": 3.0}), "mul_scalar 3 #0; = #3")
        self.assertEqual(describe("x * a", "xyz", {"a": float("inf")}), "error")
        self.assertEqual(describe("where(x > a, 1 / a, x)", "xyz", {"a": float("inf")}), "error")

    def test_places_of_errors(self):
        for text, at, word in (("x +", 4, "missing"), ("x * foo", 5, "'foo'"), ("relu(x, 2)", 9, "too many"),
                               ("(x", 3, "')'"), ("x = y", 6, "';'"), ("x if y", 7, "'else'"),
                               ("x * 1e39", 5, "'1e39'"), ("a b", 1, "'a'"), ("x; y", 2, "';'"),
                               ("leaky_relu(x, y)", 15, "a number"), ("x.real", 2, "'.'"),
                               ("x" * 4097, 1, "longer than 4096"),
                               ("x * " + "n" * 61, 5, "'%s'" % ("n" * 60))):
            with self.assertRaises(SpecError) as caught:
                build(text)
            self.assertTrue(str(caught.exception).startswith("1:%d: " % at), str(caught.exception))
            self.assertIn(word, str(caught.exception))

    def test_a_branch_left_out_of_one_tensor(self):
        model = graph.Graph()
        x = model.input("a", "f32", (-1, 4))
        for text in "x if 1 else relu(x)", "sum(x) if 0 else x":
            self.assertIs(parse.expand(text, model, {"x": x}, {}, str), x)
        self.assertEqual(len(model.tensors), 1)

    def test_shapes_that_do_not_fit(self):
        model = graph.Graph()
        x, y = model.input("a", "f32", (-1, 4)), model.input("b", "f32", (3,))
        with self.assertRaises(graph.GraphError):
            parse.expand("x + y", model, {"x": x, "y": y}, {}, str)


class Hostile(unittest.TestCase):
    TEXTS = (
        "", " ", "\0", "x\0", "__import__('os').system('true')", "(lambda: 1)()", "x.__class__", "x[0]",
        "[x]", "{x}", "{x: y}", "(x, y)", "*x", "f'{x}'", "b'x'", "'x'", "x := 2", "(x := 2)", "x, y",
        "exec('x')", "eval(x)", "open(x)", "print(x)", "9**9**9**9**9 * x", "1e999", "1e-999 ** -1e300 * x",
        "0/0", "x * (0 / 0)", "x * (1 / 0)", "-" * 5000 + "x", "(" * 5000, "(" * 200 + "x" + ")" * 200,
        "x" + "+x" * 3000, "x **" * 900 + "x", "not " * 1000 + "x", "x if " * 900, "x<" * 2000,
        "max(" * 100, "max(x, max(" * 40, "t=x;" * 1000 + "t", "=", ";", "x;", "t=", "t==", "\\", "\n", "#",
        "x # y", "x\\\ny", "x\u00b2", "\u03c0", "\uff58", "x\u2028+ y", "\ud800", "1_000", "0x1", "1j", "1L",
        "0b1", "true", "None", "nan", "inf", "await x", "yield x", "x @ y", "x // y", "x % y", "x << 1", "~x",
        "x & y", "x | y", "x is y", "x in y", "!x", "x <> y", "x ? y : z", "max(x=1)", "max(*x)", "max(x y)",
        "relu x", "import os", "x; import os", "while 1: x", "\x7f", "x\x1b[0m")

    def test_refused(self):
        for text in self.TEXTS:
            with self.assertRaises(SpecError, msg=repr(text[:80])) as caught:
                build(text)
            message = str(caught.exception)
            self.assertTrue(message.isprintable() and message.isascii() and len(message) < 300, repr(message))

    def test_mutations(self):
        """Any change of a text gives an expression or a SpecError, and every node's op is in the tables."""
        rng = random.Random(8)
        with open(EXPRESSIONS, encoding="ascii", newline="") as file:
            seeds = [line for line in file.read().split("\n")[::2] if len(line) < 200] + list(
                self.TEXTS[4:30])
        symbols = list("()+-*/<>=!,.;eE0 xyzt_K\t\n^%&[]{}'\"\\#@~\0\x7f\u00e9")
        words = ["**", " and ", " or ", "not ", " if ", " else ", "1e38", "pi", "t = ", "; ", "x", "2", "+",
                 "*"]
        words += [op.name + "(" for op in table.ops().values() if op.arity][::9]
        words += ["sum(", "mean(", "norm(", "float(", "argmax(", ", 2:", ", keepdim=True", " if 1 else ",
                  "given("]
        along = ("sum", "max", "argmax", "softmax", "log_softmax", "cumsum", "cast", "reshape", "avg_pool2d")
        good = 0
        for _ in range(20000):
            text = rng.choice(seeds)
            for _ in range(rng.randint(1, 3)):
                at = rng.randint(0, len(text))
                piece = rng.choice((rng.choice(symbols), rng.choice(words), "", rng.choice(seeds)[:20]))
                text = text[:at] + piece + text[at + rng.choice((0, 0, 1, 3)):]
            try:
                tensors, _ = build(text)
            except (SpecError, graph.GraphError):
                continue
            good += 1
            self.assertTrue(all(t.kind == "constant" or table.ops()[t.op].arity or t.op in along
                                for t in tensors))
        self.assertTrue(1000 < good < 19000, good)


if __name__ == "__main__":
    unittest.main()
