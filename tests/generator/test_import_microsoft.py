"""The ops of ONNX Runtime's domain com.microsoft, against its own results, which make_microsoft.py writes."""
import json
import math
import os
import unittest
import unittest.mock

from generator.exchange import onnx_microsoft
from generator.exchange.arrays import Array, is_float
from generator.exchange.onnx_file import VALUE
from generator.exchange.protobuf import Message
from tests.generator.test_import_onnx import Import, model, node, tensor, value

EXPECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected", "microsoft.json")
SCALES = {"uint8": (127, 128), "int8": (127, 0), "int32": (500, 0)}


def numbers(name, shape, kind="float32"):
    """Fixed numbers for a name, between -1 and 1 or over the range of bytes."""
    unit = [math.sin(12.9898 * (i + 1) + sum(name.encode())) for i in range(math.prod(shape))]
    scale, shift = SCALES.get(kind, (1, 0))
    return [x if is_float(kind) else round(scale * x) + shift for x in unit]


def drawn(name, shape, kind="float32", values=None):
    return name, Array(kind, shape, values or numbers(name, shape, kind))


class Case:
    """One node. name: its op, then words; operands: arguments of drawn, or None for one that is left out."""

    def __init__(self, name, inputs, weights=(), outputs="y",
                 tolerance=2e-6, domain="com.microsoft.", **attributes):
        self.name, self.op, self.outputs = name, domain + name.split()[0], outputs.split()
        self.tolerance, self.attributes = tolerance, attributes
        self.inputs, self.weights = dict(drawn(*x)
                                         for x in inputs), [drawn(*x) if x else None for x in weights]

    def model(self):
        call = node(self.op, "", "y", **self.attributes)
        names = list(self.inputs) + [x[0] if x else "" for x in self.weights]
        call._values.update(input=names, output=["" if name == "-" else name for name in self.outputs])
        return model([call], [value(name, x.shape, x.kind) for name, x in self.inputs.items()],
                     [Message(VALUE, name=name) for name in self.outputs if name != "-"],
                     [tensor(x[0], x[1].shape, x[1].values, x[1].kind) for x in self.weights if x],
                     domains=["com.microsoft"])


def scaled(name, shape, scale, zero, kind="uint8"):
    """A tensor of bytes with its scale and zero point."""
    return [(name, shape, kind)] + result_scale(name, scale, zero, kind)


def result_scale(name, scale, zero, kind="uint8"):
    return [(name + "_scale", (), "float32", [scale]), (name + "_zero", (), kind, [zero])]


SKIP, ADDED = ("skip", (2, 3, 8)), ("added", (8,))
X, IDS = ("x", (2, 3, 8)), ("ids", (2, 3), "int32", [1, 4, 2, 0, 3, 4])
IMAGE, CONV = ("x", (1, 2, 4, 4)), [("conv.weight", (3, 2, 3, 3)), ("conv.bias", (3,))]
NORM, FC = [("ln.weight", (8,)), ("ln.bias", (8,))], [("fc.weight", (3, 5)), ("fc.bias", (5,))]
BYTES, RESULT = scaled("x", (2, 4), 0.02, 120), result_scale("y", 0.015, 100)
BYTE_IMAGE, LAST = scaled("x", (1, 2, 4, 4), 0.02, 120), scaled("x", (1, 4, 4, 2), 0.02, 120)
QKV, HEADS = [("fc.weight", (8, 24)), ("fc.bias", (24,))], [
               ("q", (2, 3, 8)), ("k", (2, 5, 8)), ("v", (2, 5, 8))]
TABLES = [("words", (5, 8)), ("positions", (4, 8))]
MASK, ROWS = ("mask", (2, 3), "int32", [1, 1, 0, 1, 1, 1]), ("mask", (2,), "int32", [2, 3])
W = scaled("w", (3, 5), 0.01, 3, "int8")
COLUMNS = [W[0], ("ws", (5,), "float32", [0.01, 0.02, 0.03, 0.04, 0.05]),
           ("wz", (5,), "int8", [1, 2, 3, 4, 5])]
CELL = [("w", (1, 3, 16), "int8"), ("r", (1, 4, 16), "int8"), ("b", (1, 32)), None, None, None, None,
        ("ws", (1,), "float32", [0.01]), ("wz", (1,), "int8", [3]),
        ("rs", (1, 16), "float32", [0.005 + 0.0002 * i for i in range(16)]),
        ("rz", (1, 16), "int8", [0] * 16)]
BITS = {"K": 40, "N": 3, "bits": 4, "block_size": 16}
WIDE, PACKED = ("x", (2, 40)), [("w", (3, 3, 8), "uint8"), ("s", (9,))]  # their last block is not full
ROW, ZEROS = ("x", (2, 3), "uint8"), ("z", (6,), "uint8")
CASES = [
    Case("Gelu", [X]), Case("BiasGelu", [X], NORM[1:]),
    Case("FastGelu", [X]), Case("FastGelu of a sum", [X], NORM[1:]),
    Case("QuickGelu", [X]), Case("QuickGelu of 1.5", [X], alpha=1.5),
    Case("SkipLayerNormalization", [X, SKIP], NORM, epsilon=1e-5),
    Case("SkipLayerNormalization with its sum", [X, SKIP], NORM + [ADDED], "y - - sum", epsilon=1e-5),
    Case("SkipSimplifiedLayerNormalization", [X, SKIP], NORM[:1], epsilon=1e-5),
    Case("SkipSimplifiedLayerNormalization with its sum", [X, SKIP], NORM[:1] + [ADDED], "y - - sum"),
    Case("SimplifiedLayerNormalization", [X], NORM[:1], domain="", axis=-1),
    Case("EmbedLayerNormalization", [IDS], [None] + TABLES + [None] + NORM, "y counts", epsilon=1e-5),
    Case("EmbedLayerNormalization of segments", [IDS, ("kinds", (2, 3), "int32", [0, 0, 1, 1, 1, 0])],
         TABLES + [("segments", (2, 8))] + NORM + [MASK], "y counts sum"),
    Case("FusedConv", [IMAGE], CONV, activation="Relu", pads=[1, 1, 1, 1]),
    Case("FusedConv of a sum", [IMAGE], CONV + [("z", (1, 3, 2, 2))], activation="Tanh"),
    Case("FusedConv with slope", [IMAGE], CONV, activation="LeakyRelu", activation_params=[0.3]),
    Case("FusedConv with bounds", [IMAGE], CONV, activation="Clip", activation_params=[-0.5, 0.75]),
    Case("FusedConv with line", [IMAGE], CONV, activation="HardSigmoid", activation_params=[0.3, 0.4]),
    Case("FusedGemm", [("x", (2, 3))], FC, activation="Relu"),
    Case("FusedGemm with slope", [("x", (2, 3))], FC,
         activation="LeakyRelu", activation_alpha=0.25, alpha=0.5, beta=2.0),
    Case("FusedMatMul", [("a", (2, 3, 4)), ("b", (2, 5, 4))], transB=1, alpha=0.25),
    Case("FusedMatMul both turned", [("a", (2, 4, 3)), ("b", (2, 5, 4))], transA=1, transB=1),
    Case("FusedMatMul by a weight", [("x", (2, 4, 3))], [("fc.weight", (5, 3))], transB=1, alpha=2.0),
    Case("FusedMatMul of turned batches", [("a", (3, 2, 4)), ("b", (4, 2, 5))], transBatchA=1, transBatchB=1),
    Case("FusedMatMul all turned", [("a", (4, 2, 3)), ("b", (5, 2, 4))],
         transBatchA=1, transBatchB=1, transA=1, transB=1),
    Case("TransposeMatMul", [("a", (4, 3)), ("b", (4, 5))], transA=1),
    Case("QLinearAdd", BYTES[:1], BYTES[1:] + scaled("b", (4,), 0.01, 128) + RESULT),
    Case("QLinearMul", BYTES[:1], BYTES[1:] + scaled("b", (2, 4), 0.01, 128) + RESULT),
    Case("QLinearSigmoid", BYTES[:1], BYTES[1:] + result_scale("y", 1 / 256, 0)),
    Case("QLinearLeakyRelu", BYTES[:1], BYTES[1:] + RESULT, alpha=0.2),
    Case("QLinearLeakyRelu without zero points", [("x", (2, 4), "int8")], [BYTES[1], None, RESULT[0], None]),
    Case("QLinearConcat", [], RESULT + BYTES + scaled("b", (2, 3), 0.01, 128), axis=1),
    Case("QLinearSoftmax", BYTES[:1], BYTES[1:] + result_scale("y", 1 / 256, 0), opset=13),
    Case("QLinearSoftmax of many axes", [("x", (2, 3, 4), "uint8")],
         BYTES[1:] + result_scale("y", 1 / 256, 0), axis=1, opset=11),
    Case("QLinearAveragePool", BYTE_IMAGE[:1], BYTE_IMAGE[1:] + RESULT, kernel_shape=[2, 2], strides=[2, 2]),
    Case("QLinearAveragePool with channels last", LAST[:1], LAST[1:] + RESULT,
         kernel_shape=[3, 3], channels_last=1),
    Case("QLinearGlobalAveragePool", BYTE_IMAGE[:1], BYTE_IMAGE[1:] + RESULT),
    Case("QLinearGlobalAveragePool with channels last", LAST[:1], LAST[1:] + RESULT, channels_last=1),
    Case("QLinearConv with channels last", LAST[:1],
         LAST[1:] + scaled("w", (3, 2, 3, 3), 0.01, 128) + result_scale("y", 0.05, 90),
         channels_last=1, pads=[1, 1, 1, 1]),
    Case("NhwcMaxPool", LAST[:1], kernel_shape=[2, 2], strides=[2, 2]),
    Case("QuantizeLinear", [("x", (2, 4))], RESULT), Case("DequantizeLinear", BYTES[:1], BYTES[1:]),
    Case("QGemm", [ROW], BYTES[1:] + W + [("c", (5,), "int32")] + result_scale("y", 0.07, 90)),
    Case("QGemm to floats", [ROW], BYTES[1:] + COLUMNS + [("c", (5,), "int32")]),
    Case("QGemm by a turned weight", [ROW], BYTES[1:] + [("w", (5, 3), "int8")] + COLUMNS[1:], transB=1),
    Case("MatMulIntegerToFloat", [("x", (2, 2, 3), "uint8")], [W[0], BYTES[1], W[1], BYTES[2], W[2], FC[1]]),
    Case("MatMulIntegerToFloat by columns", [ROW], [W[0], BYTES[1], COLUMNS[1], BYTES[2], COLUMNS[2]]),
    Case("DynamicQuantizeMatMul", [("x", (2, 2, 3))], W + [FC[1]]),
    Case("DynamicQuantizeMatMul by columns", [("x", (2, 3))], COLUMNS),
    Case("MatMulNBits", [WIDE], PACKED, **BITS),
    Case("MatMulNBits with zero points", [WIDE], PACKED + [ZEROS, None, ("fc.bias", (3,))], **BITS),
    Case("MatMulNBits of bytes", [("x", (2, 2, 32))], [("w", (3, 2, 16), "uint8"), ("s", (6,)), ZEROS],
         K=32, N=3, bits=8, block_size=16),
    Case("DynamicQuantizeLSTM", [("x", (5, 2, 3))], CELL, "y h c", tolerance=0.02, hidden_size=4),
    Case("Attention", [X], QKV, num_heads=2),
    Case("Attention of the past", [X], QKV, num_heads=2, unidirectional=1),
    Case("Attention with a mask", [X], QKV + [MASK], num_heads=2),
    Case("Attention of lengths", [X], QKV + [ROWS], num_heads=2),
    Case("Attention with all", [X],
         QKV + [("mask", (2, 3, 3), "int32", [1, 1, 0] * 6), None, ("scores", (2, 2, 3, 3))],
         num_heads=2, scale=0.3, mask_filter_value=-3.0),
    Case("Attention of sizes", [X], [("w", (8, 20)), ("b", (20,))], num_heads=2, qkv_hidden_sizes=[8, 8, 4]),
    Case("QAttention", [("x", (2, 3, 8), "uint8")],
         [("w", (8, 24), "int8"), QKV[1], BYTES[1], W[1], MASK, BYTES[2], W[2]], num_heads=2),
    Case("MultiHeadAttention", HEADS, num_heads=2),
    Case("MultiHeadAttention with a bias", HEADS,
         [("bias", (24,)), ("mask", (2, 5), "int32", [1, 1, 1, 0, 0] + [1] * 5), ("scores", (1, 2, 3, 5))],
         num_heads=2, scale=0.4),
    Case("MultiHeadAttention of heads", [HEADS[0], ("k", (2, 2, 5, 4)), ("v", (2, 2, 5, 4))], num_heads=2)]


class Microsoft(Import):
    def golden(self):
        with open(EXPECTED, encoding="ascii") as file:
            return json.load(file)

    def check(self, cases):
        golden = self.golden()
        for case in cases:
            with self.subTest(case.name):
                self.imported(case.model(), batch="none")
                self.compare(self.run_model(**case.inputs), golden[case.name], case.tolerance)

    def test_each(self):
        self.assertEqual(sorted(self.golden()), sorted(case.name for case in CASES))
        self.check(CASES)

    def test_large_weights_become_floats_in_each_run(self):
        with unittest.mock.patch.object(onnx_microsoft, "MAX_ELEMENTS", 4):
            self.check([case for case in CASES if case.name.startswith(("QGemm", "Dynamic", "QAttention"))])

    def test_what_is_refused(self):
        for part, case in (
                ("past or present keys", Case("Attention", [X], QKV, "y present", num_heads=2)),
                ("packed queries", Case("MultiHeadAttention", [("q", (2, 3, 2, 3, 4))], num_heads=2)),
                ("a mask of [2, 4]", Case("Attention", [X], QKV + [("mask", (2, 4), "int32")], num_heads=2)),
                ("mean and inverse deviation", Case("SkipLayerNormalization", [X, SKIP], NORM, "y mean")),
                ("the activation Gone", Case("FusedConv", [IMAGE], CONV, activation="Gone")),
                ("of 3 bits", Case("MatMulNBits", [WIDE], PACKED, **dict(BITS, bits=3))),
                ("24 bytes a row hold no 49", Case("MatMulNBits", [WIDE], PACKED, **dict(BITS, K=49))),
                ("g_idx is not possible", Case("MatMulNBits", [WIDE], PACKED + [ZEROS, X], **BITS)),
                ("its weight must be known", Case("MatMulNBits", [WIDE] + PACKED, **BITS)),
                ("ORT_ENABLE_EXTENDED", Case("Conv", [IMAGE], CONV, domain="com.microsoft.nchwc.")),
                ("no counterpart", Case("GroupQueryAttention", [X]))):
            with self.subTest(part):
                self.refused(case.model(), part, batch="none")

    def attention(self, shapes, last, **attributes):
        """softmax(q k + mask) v. The weights have the given name in the last product."""
        nodes = [node("com.microsoft.FusedMatMul", "q k", "s", alpha=0.5, **attributes),
                 node("Add", "s mask", "m"), node("Softmax", "m", "p", axis=-1), node("Identity", "p", "z"),
                 node("MatMul", last + " v", "y")]
        inputs = [value(*pair) for pair in zip("qkv", shapes)]
        given = dict(drawn(*pair) for pair in zip("qkv", shapes))
        mask = tensor("mask", shapes[2][2:3], numbers("mask", shapes[2][2:3]))
        outputs = [Message(VALUE, name="y")] + [Message(VALUE, name="z")] * (last == "z")
        written = self.imported(model(nodes, inputs, outputs, [mask]), batch="none")
        y = self.run_model(**given)["y"]
        return self.ops(written), {"y": (y.shape, y.values)}

    def test_attention_of_fused_products(self):
        """As ONNX Runtime writes it for PyTorch's files. An Identity before the last product hides it."""
        rows, columns = (1, 2, 4, 4), (1, 2, 4, 5)
        for shapes, given in (([rows, rows, rows], {"transB": 1}), ([rows, columns, (1, 2, 5, 4)], {}),
                              ([rows, (1, 2, 3, 4), (1, 2, 3, 6)], {"transB": 1})):
            ops, y = self.attention(shapes, "p", **given)
            self.assertEqual(ops[-1], "scaled_dot_product_attention")
            plain, wanted = self.attention(shapes, "z", **given)
            self.assertNotIn(ops[-1], plain)
            self.compare({"y": Array("float32", *y["y"])}, wanted, 1e-6)
        ops, _ = self.attention([rows, rows, rows], "p", transA=1)
        self.assertNotIn("scaled_dot_product_attention", ops)

    def compare(self, results, wanted, tolerance):
        for name, (shape, values) in wanted.items():
            self.assertEqual(list(results[name].shape), list(shape))
            limit = tolerance * max(1.0, max(map(abs, values)))
            for got, expected in zip(results[name].values, values):
                self.assertTrue(abs(got - expected) <= limit, "%s: %r is not %r" % (name, got, expected))


if __name__ == "__main__":
    unittest.main()
