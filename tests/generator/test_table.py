"""table.py: it reads the contents of gpunn.h, however that is formatted."""
import os
import re
import unittest

from generator import ir, prototypes, signature, table


class Table(unittest.TestCase):
    def setUp(self):
        with open(table.HEADER, encoding="utf-8") as file:
            self.header = file.read()

    def test_every_op_of_the_header(self):
        """Counted by a simpler search: entries are X(NAME, name, ... or S(X, NAME, name, ..."""
        begin = self.header.index("/* >>ops begin */")
        text = self.header[begin:self.header.index("typedef enum gpunn_op")]
        found = re.findall(r"\b(?:S\(X, |X\()(?!ENUM)([A-Z][A-Z0-9_]*), (\w+),",
                           re.sub(r"/\*.*?\*/", "", text, flags=re.S))
        self.assertEqual([(op.enum, op.name) for op in table.ops().values()], found)
        self.assertGreater(len(found), 75)

    def test_formulas_of_numbers_are_swept(self):
        """tests/ops/sweep.c has a reference for each formula of one or two numbers. Without one for an op it
        does not compile."""
        with open(os.path.join(os.path.dirname(table.HEADER), "tests", "ops", "sweep.c"),
                  encoding="utf-8") as file:
            truths = set(re.findall(r"^ +X\((\w+),", file.read(), re.M))
        own = [name for name, formula in table.formulas().items()
               if formula.fits == "any" and table.rows()[name].struct == "_plain"]
        self.assertEqual([name for name in own if name not in truths], [])
        self.assertGreater(len(own), 15)

    def test_columns(self):
        ops = table.ops()
        self.assertEqual(ops["relu"], table.Op("relu", "RELU", 1, (), "where(x <= 0, 0, x)",
                                               ("where(y <= 0, 0, g)",), 1, operands=("x",)))
        self.assertEqual(ops["hardtanh"].attrs, (("min_val", -1.0), ("max_val", 1.0)))
        self.assertEqual(ops["clamp"].attrs[0], ("min", float("-inf")))
        self.assertEqual(ops["leaky_relu"].attrs, (("negative_slope", 0.009999999776482582),))
        self.assertEqual(ops["mul"].derivatives, ("g * b", "g * a"))
        self.assertEqual(ops["where"].arity, 3)
        self.assertEqual((ops["floor"].gradients, ops["detach"].gradients), (1, 0))
        self.assertEqual((ops["batch_norm"].arity, ops["batch_norm"].gradients), (0, 7))
        self.assertEqual((ops["argmax"].gradients, ops["concat"].gradients, ops["where"].gradients),
                         (0, -1, 6))
        self.assertIn("reshape", ops)
        self.assertEqual((ops["add"].operands, ops["linear"].operands), (("a", "b"), ("x", "weight", "bias")))
        for row in table.rows().values():
            for op in ops.values():
                if op.enum == row.op and row.kind == "OP" and isinstance(row.operands, int):
                    self.assertGreaterEqual(len(op.operands), row.operands, row.name)
        self.assertEqual(table.having("RECURRENT"), ("rnn", "lstm", "gru"))
        self.assertEqual(table.having("CONVOLUTION"), table.having("PRODUCT")[2:-1])
        self.assertTrue(set(table.having("RECURRENT")) < set(table.having("KEEPS_F32")))

    def test_layout_of_the_header_does_not_matter(self):
        begin, end = self.header.index("/* >>ops begin */"), self.header.index("typedef enum gpunn_op")
        traits = "/* >>traits %s */"
        text = (self.header[begin:end] +
                self.header[self.header.index(traits % "begin"):self.header.index(traits % "end")] +
                traits % "end")
        for changed in (text.replace("\n", "\r\n"), re.sub(r" *\\\n", "   \\\\\n", text),
                        re.sub(r"\\\n *", " ", text),
                        text.replace(", ", " ,  /* note */ "), text.replace("(x", "( x")):
            found = table.read(changed)
            self.assertEqual(list(found), list(table.ops()))
            self.assertEqual([op.traits for op in found.values()], [op.traits for op in table.ops().values()])
            graph = ir.Graph()  # spaces may differ: compare what the texts mean
            names = {name: graph.count(i, 1) for i, name in enumerate("xabcyg")}
            for name, op in table.ops().items():
                names.update({attr: graph.const(2) for attr, _ in op.attrs})
                for text_a, text_b in zip((op.forward,) + op.derivatives,
                                          (found[name].forward,) + found[name].derivatives):
                    if text_a is not None:
                        self.assertIs(graph.text(text_a, names), graph.text(text_b, names), name)

    def test_builders_are_declared_as_the_tables_have_them(self):
        self.assertTrue(table.ops()["huber"].term)
        self.assertEqual(prototypes.fresh(self.header), self.header, "run python3 -m generator.prototypes")
        for line in ("GPUNN_API gpunn_tensor *gpunn_clamp(gpunn_tensor *x, float min, float max);",
                     "GPUNN_API gpunn_tensor *gpunn_l1_loss_(gpunn_tensor *input, gpunn_tensor *target, "
                     "gpunn_loss_args args);", "#define gpunn_l1_loss(input, ...) gpunn_l1_loss_((input), "
                     "GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))"):
            self.assertEqual(self.header.count("\n" + line + "\n"), 1, line)
            self.assertEqual(prototypes.fresh(self.header.replace(line + "\n", "")), self.header)

    def test_formulas_are_declared_as_the_table_has_them(self):
        text = " ".join(self.header.split())
        for name, formula in table.formulas().items():
            wanted = r"GPUNN_API gpunn_tensor \*gpunn_%s_?\(%s[,)][^;{]*;" % (
                name, ", ".join("gpunn_tensor \\*" + operand for operand in formula.operands))
            self.assertEqual(len(re.findall(wanted, text)), 1, wanted)
        self.assertEqual(table.formulas()["accuracy"], table.Formula(
            ("logits", "labels"), "classes", "mean(float(argmax(logits, 1)) == float(labels))"))
        self.assertIn("far = norm(anchor - negative + eps, p, -1);far = min(",
                      table.formulas()["triplet_margin_loss"].text)
        self.assertEqual(table.rows()["huber_loss"],
                         table.Row("huber_loss", "OP", "NONE", 2, 0, (
                             table.Argument("reduction", "REDUCTION", 0, "", "reduction"),
                             table.Argument("delta", "POSITIVE", 1, "", "delta")),
                                   "loss", "gpunn_huber_loss_(in[0], in[1], *a)", "torch.nn.HuberLoss."))
        self.assertEqual(table.rows()["threshold"].call, "gpunn_threshold(in[0], a->number, a->other)")
        self.assertEqual(table.structs()["conv"][:3], ["args_", "out_channels", "kernel_size"])
        weight = table.Argument("weight", "REFERENCE", "NONE", "One number for each class.", "weight")
        self.assertIn(weight, table.rows()["cross_entropy"].arguments)

    def test_a_table_of_another_form_is_refused(self):
        table_text = ("/* >>traits begin */ /* >>traits end */ /* >>ops begin */\n#define GPUNN_UNARY_OPS(X) "
                      "%s\n/* >>ops end */")
        self.assertEqual(list(table.read(table_text % "X(RELU, relu, x, g)")), ["relu"])
        for body in ("X(RELU, relu, x)", "X(RELU, relu, x, g) Y(A)", "X(RELU, relu, x, g",
                     "X(A, a, x, g) X(A, a, x, g)"):
            with self.assertRaises(table.TableError, msg=body):
                table.read(table_text % body)
        with self.assertRaises(table.TableError):
            table.read("nothing")
        with self.assertRaises(table.TableError):
            table.read((table_text % "X(A, a, p, one, x, g)").replace("UNARY", "UNARY1"))


class Signatures(unittest.TestCase):
    def test_sizes(self):
        for text, operands, axis, wanted in (
                ("f32 [n, m], f32 [n] -> i64 [n]", ((3, 4), (3,)), None, (3,)),
                ("f32 [n, m], f32 [n] -> i64 [n]", ((3, 4), (4,)), None, None),
                ("f32 [...] -> f32 []", ((2, 5),), None, ()),
                ("any [..., 5], any [..., m] -> i64 [..., m, 2]", ((7, 5), (7, 1)), None, (7, 1, 2)),
                ("any [..., 5] -> any [...]", ((7, 4),), None, None),
                ("any [..., 5] -> any [...]", ((),), None, None),
                ("f32 [..., n, ...], f32 [..., m, ...] -> f32 [..., m, n, ...]", ((-1, 3, 4), (-1, 8, 4)), 1,
                 (-1, 8, 3, 4)),
                ("f32 [..., n, ...], f32 [..., m, ...] -> f32 [..., m, ...]", ((2, 3, 4), (2, 8, 5)), 1,
                 None),
                ("f32 [..., n, ...], f32 [..., m, ...] -> f32 [..., m, ...]", ((2, 3, 4), (2, 3)), 2, None)):
            bound = signature.bind(text, operands, axis)
            self.assertEqual(None if bound is None else signature.result(text, bound), wanted, text)

    def test_every_one_names_the_operands(self):
        texts = {op.name: op.signature for op in table.ops().values() if op.signature}
        self.assertGreater(len(texts), 10)
        for name, text in texts.items():
            operands, result = signature.parse(text)
            self.assertEqual(len(operands), len(table.ops()[name].operands), name)
            known = {key for shape in operands for key in signature.keys(shape)}
            self.assertEqual([key for key in signature.keys(result)
                              if key not in known and not key.isdigit()], [], name)
            self.assertLessEqual({shape.dtype for shape in operands}, {"f32", "any", "index", "u8"},
                                 name)
            self.assertIn(result.dtype, ("f32", "i64", "u8", "any"), name)
            self.assertLessEqual(len(known), 8, name)


if __name__ == "__main__":
    unittest.main()
