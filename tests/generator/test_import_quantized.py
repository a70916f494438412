"""Quantised ONNX graphs become ops of 8-bit numbers. If the packages onnx and numpy are installed, the
results are compared with those of ONNX's reference evaluator, bit for bit. The scales of QDQ graphs are
powers of two here, so that the evaluator's sums of floats are exact."""
import importlib.util
import math
import random
import unittest

from generator.exchange.arrays import Array, CODES
from generator.exchange.onnx_file import VALUE
from generator.exchange.protobuf import Message
from tests.generator.test_import_onnx import Import, model, node, tensor, value

HAS_ONNX = importlib.util.find_spec("onnx") and importlib.util.find_spec("numpy")
RANGES = {"uint8": (0, 255), "int8": (-128, 127)}


class Net:
    """A quantised network. kind: of activations. exact: scales are powers of two."""

    def __init__(self, kind="uint8", exact=True, seed=1):
        self.kind, self.exact, self.random = kind, exact, random.Random(seed)
        self.nodes, self.tensors, self.count = [], [], 0

    def name(self, word):
        self.count += 1
        return "%s%d" % (word, self.count)

    def known(self, word, shape, values, kind="float32"):
        name = self.name(word)
        self.tensors.append(tensor(name, shape, values, kind))
        return name

    def add(self, op, inputs, **attributes):
        name = self.name(op.rpartition(".")[2].lower())
        self.nodes.append(node(op, inputs, name, **attributes))
        return name

    def scale(self):
        return 2.0 ** self.random.randint(-7, -4) if self.exact else self.random.uniform(0.01, 0.07)

    def zero(self):
        return self.random.randint(0, 90) + (0 if self.kind == "uint8" else -60)

    def scales(self, scale=None, zero=None):
        """The names of a scale and a zero point of activations."""
        return "%s %s" % (self.known("scale", (), [scale or self.scale()]),
                          self.known("zero", (), [self.zero() if zero is None else zero], self.kind))

    def rounded(self, x, scales=None):
        """x through a QuantizeLinear and a DequantizeLinear."""
        scales = scales or self.scales()
        y = self.add("QuantizeLinear", "%s %s" % (x, scales))
        return self.add("DequantizeLinear", "%s %s" % (y, scales))

    def integers(self, shape, per_row=True, kind="int8", zero=0):
        """A weight of integers, with its scales and zero points."""
        values = [self.random.randint(-90, 90) + zero for _ in range(math.prod(shape))]
        rows = shape[:1] if per_row else ()
        scales = [self.scale() * (0.25 if self.exact else 0.1) for _ in range(math.prod(rows))]
        return [self.known("weight", shape, values, kind), self.known("scale", rows, scales),
                self.known("zero", rows, [zero] * len(scales), kind)], scales

    def weight(self, shape, **given):
        parts, scales = self.integers(shape, **given)
        return self.add("DequantizeLinear", " ".join(parts), axis=0), scales

    def bias(self, scales, x_scale):
        """A bias that is rounded to the scale of the sums."""
        scales = [x_scale * scale for scale in scales]
        parts = self.integer_bias(len(scales)) + " " + self.known("scale", (len(scales),), scales)
        return self.add("DequantizeLinear", parts, axis=0)

    def integer_bias(self, count):
        return self.known("bias", (count,), [self.random.randint(-900, 900) for _ in range(count)], "int32")

    def conv(self, x, x_scale, shape, **given):
        weight, scales = self.weight(shape)
        return self.add("Conv", "%s %s %s" % (x, weight, self.bias(scales, x_scale)), **given)

    def file(self, y, shape=("N", 3, 12, 12), kind="float32"):
        return model(self.nodes, [value("x", shape, kind)], [Message(VALUE, name=y)], self.tensors, opset=19,
                     domains=["com.microsoft"])


class Quantized(Import):
    def ops_of(self, data, **options):
        return [op for op in self.ops(self.imported(data, **options))
                if op not in ("input", "parameter", "constant")]

    def compare(self, data, x, most=0):
        """Runs a model in both ways. most: the largest difference of a result."""
        if not HAS_ONNX:
            self.skipTest("the packages onnx and numpy are not installed")
        import numpy
        from onnx.reference import ReferenceEvaluator
        evaluator = ReferenceEvaluator(self.write(data))
        array = numpy.frombuffer(x.encoded(), CODES[x.kind]).reshape(x.shape)
        wanted = evaluator.run(None, {"x": array})[0]
        got = self.run_model(x=x)[evaluator.output_names[0]]
        self.assertEqual(tuple(got.shape), wanted.shape)
        worst = max(abs(float(a) - float(b)) for a, b in zip(got.values, wanted.ravel()))
        self.assertTrue(worst <= most, "the largest difference is %g" % worst)
        self.assertTrue(len(set(got.values)) > 8, "too few different results")  # not all saturated

    def image(self, shape=(2, 3, 12, 12), seed=3):
        draw = random.Random(seed)
        return Array("float32", shape, [draw.randint(-160, 160) / 64 for _ in range(math.prod(shape))])

    # ---- QDQ ----
    def resnet(self, net):
        """Convolutions with relus, a pool, a residual block, and a classifier."""
        x = net.rounded("x", net.scales(1 / 32))
        y = net.rounded(net.add("Relu", net.conv(x, 1 / 32, (8, 3, 7, 7), pads=[3] * 4, strides=[2, 2])),
                        net.scales(0.25))
        y = start = net.rounded(net.add("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
                                net.scales(0.25))
        y = net.rounded(net.add("Relu", net.conv(y, 0.25, (8, 8, 3, 3), pads=[1] * 4)), net.scales(2.0))
        y = net.rounded(net.conv(y, 2.0, (8, 8, 1, 1)), net.scales(8.0))
        y = net.rounded(net.add("Relu", net.add("Add", "%s %s" % (y, start))), net.scales(8.0))
        y = net.add("Flatten", net.add("GlobalAveragePool", y))
        y = net.rounded(y, net.scales(4.0))
        weight, scales = net.weight((10, 8))
        y = net.add("Gemm", "%s %s %s" % (y, weight, net.bias(scales, 4.0)), transB=1)
        return net.file(net.rounded(y, net.scales(4.0)))

    # The sum behind the pool is a change of the scale.
    RESNET = ["quantize_per_tensor", "quantized_conv2d", "max_pool2d", "quantized_add", "quantized_conv2d",
              "quantized_conv2d", "quantized_add", "dequantize", "mean", "quantize_per_tensor",
              "quantized_linear", "dequantize"]

    def test_resnet(self):
        for kind in RANGES:
            with self.subTest(kind):
                data = self.resnet(Net(kind))
                self.assertEqual([op for op in self.ops_of(data) if op not in ("reshape", "flatten")],
                                 self.RESNET)
                self.compare(data, self.image())

    def mobilenet(self, net):
        """Convolutions with clips, of groups and of single channels, and a sum."""
        low, high = net.known("low", (), [0.0]), net.known("high", (), [6.0])
        clip = lambda x: net.add("Clip", "%s %s %s" % (x, low, high))  # noqa: E731
        x = net.rounded("x", net.scales(1 / 32))
        y = start = net.rounded(clip(net.conv(x, 1 / 32, (16, 3, 3, 3), pads=[1] * 4, strides=[2, 2])),
                                net.scales(1 / 32))
        y = net.rounded(clip(net.conv(y, 1 / 32, (16, 1, 3, 3), pads=[1] * 4, group=16)), net.scales(1 / 32))
        y = net.rounded(net.conv(y, 1 / 32, (16, 4, 1, 1), group=4), net.scales(0.125))
        y = net.rounded(net.add("Add", "%s %s" % (y, start)), net.scales(0.125))
        y = net.rounded(clip(net.conv(y, 0.125, (32, 16, 1, 1))), net.scales(1 / 32))
        y = net.rounded(net.conv(y, 1 / 32, (32, 1, 3, 3), pads=[2] * 4, dilations=[2, 2], group=32,
                                 strides=[2, 2]), net.scales(0.25))
        return net.file(y)

    def test_mobilenet(self):
        for kind in RANGES:
            with self.subTest(kind):
                data = self.mobilenet(Net(kind, seed=5))
                self.assertEqual(self.ops_of(data), ["quantize_per_tensor"] + ["quantized_conv2d"] * 3 + [
                    "quantized_add"] + ["quantized_conv2d"] * 2 + ["dequantize"])
                self.compare(data, self.image())

    def test_matmul(self):
        net = Net(seed=7)
        x = net.rounded("x", net.scales(1 / 32))
        parts, _ = net.integers((6, 5), per_row=False, kind="uint8", zero=128)
        weight = net.add("DequantizeLinear", " ".join(parts))
        y = net.rounded(net.add("MatMul", "%s %s" % (x, weight)), net.scales(1 / 8))
        data = net.file(y, ("N", 4, 6))
        self.assertEqual(self.ops_of(data), ["quantize_per_tensor", "quantized_linear", "dequantize"])
        self.compare(data, self.image((3, 4, 6)))

    def of_weight(self, shape, values, scale=0.25, zero=0, kind="int8", **given):
        """The ops of a product of rounded numbers with such a weight."""
        net = Net(seed=7)
        x = net.rounded("x", net.scales(1 / 32))
        weight = net.add("DequantizeLinear", "%s %s %s" % (
            net.known("weight", shape, values, kind), net.known("scale", (), [scale]),
            net.known("zero", (), [zero], kind)))
        y = net.rounded(net.add("Gemm", "%s %s" % (x, weight), **given), net.scales(1 / 8))
        return self.ops_of(net.file(y, ("N", shape[1 if given else 0])))

    def test_limits_of_weights(self):
        """Weights of 8 bits without a zero point, and sums that are exact."""
        for possible, shape, values, given in (
                (True, (2, 1), [127, -128], {}), (True, (1, 2), [127, -128], {"transB": 1}),
                (True, (2, 1), [255, 0], {"kind": "uint8", "zero": 128}),
                (False, (2, 1), [255, 0], {"kind": "uint8", "zero": 127}),
                (False, (2, 1), [255, 0], {"kind": "uint8", "zero": 129}),
                (True, (2, 1), [1, 2], {"scale": 0.0}), (False, (2, 1), [1, 2], {"scale": -0.5}),
                (False, (2, 1), [1, 2], {"scale": math.inf}),
                (True, (32768, 1), [1] * 32768, {}), (False, (32769, 1), [1] * 32769, {})):
            with self.subTest("%s %s %s" % (shape, values[:2], given)):
                self.assertEqual("quantized_linear" in self.of_weight(shape, values, **given), possible)

    def test_biases(self):
        """Of QLinearConv, in units of its sums: up to 2^22."""
        for bias, possible in ((1 << 22, True), (-1 << 22, True), ((1 << 22) + 1, False)):
            net = Net()
            y = net.add("QLinearConv", " ".join(
                ["x", net.scales()] + net.integers((1, 3, 1, 1))[0] +
                [net.scales(), net.known("bias", (1,), [bias], "int32")]))
            ops = self.ops_of(net.file(y, ("N", 3, 4, 4), "uint8"))
            self.assertEqual("quantized_conv2d" in ops, possible)

    def test_scales_that_stay(self):
        """Numbers that are rounded twice in the same way, and a kind without a zero point."""
        net = Net()
        scales = net.scales(1 / 32)
        self.assertEqual(self.ops_of(net.file(net.rounded(net.rounded("x", scales), scales))),
                         ["quantize_per_tensor", "dequantize"])
        for given in {}, {"output_dtype": 2}:
            net = Net()
            scale = net.known("scale", (), [0.5])
            y = net.add("QuantizeLinear", "x " + scale, **given)
            data = net.file(net.add("DequantizeLinear", y + " " + scale))
            self.assertEqual(self.ops_of(data), ["quantize_per_tensor", "dequantize"])

    def test_moves(self):
        """Ops that only move numbers, of which one joins parts of two scales."""
        for kind in RANGES:
            with self.subTest(kind):
                net = Net(kind, seed=11)
                scales = net.scales(1 / 32)
                x = net.rounded("x", scales)
                net.nodes.append(node("Split", x, "low high", axis=3))
                low = net.rounded(net.add("Transpose", "low", perm=[0, 1, 3, 2]), scales)
                high = net.rounded(net.add("Transpose", "high", perm=[0, 1, 3, 2]), net.scales(1 / 16))
                y = net.rounded(net.add("Concat", low + " " + high, axis=1), net.scales(1 / 16))
                y = net.add("Slice", "%s %s" % (y, " ".join(net.known("at", (1,), [i], "int64")
                                                            for i in (1, 6, 1, 2))))
                y = net.add("Reshape", "%s %s" % (y, net.known("shape", (2,), [0, -1], "int64")))
                data = net.file(net.rounded(y, scales))
                self.assertEqual(set(self.ops_of(data)), {
                    "quantize_per_tensor", "slice", "permute", "concat", "quantized_add", "reshape",
                    "dequantize"})
                self.compare(data, self.image())

    def test_limits(self):
        """A Relu and a Clip that follow no layer."""
        net = Net(seed=4)
        x = net.rounded(net.add("Relu", net.rounded("x", net.scales(1 / 32))), net.scales(1 / 64))
        bounds = net.known("low", (), [0.25]), net.known("high", (), [2.25])
        y = net.rounded(net.add("Clip", "%s %s %s" % ((x,) + bounds)), net.scales(1 / 64))
        data = net.file(y)
        self.assertEqual(self.ops_of(data), ["quantize_per_tensor", "quantized_add", "quantized_add",
                                             "dequantize"])
        self.compare(data, self.image())

    def test_means(self):
        for op, given in (("GlobalAveragePool", {}),
                          ("AveragePool", {"kernel_shape": [4, 2], "strides": [2, 2]})):
            with self.subTest(op):
                net = Net(seed=6)
                x = net.rounded("x", net.scales(1 / 32))
                y = net.rounded(net.add(op, x, **given), net.scales(1 / 64))
                data = net.file(y, ("N", 12, 4, 8))
                self.assertEqual(self.ops_of(data), ["quantize_per_tensor", "quantized_conv2d", "dequantize"])
                self.compare(data, self.image((2, 12, 4, 8)))

    def test_what_stays_floats(self):
        """A result that is not rounded, or twice read, uneven padding, several scales of x."""
        for name, ending, given in (("not rounded", lambda net, y: y, {}),
                                    ("read twice", lambda net, y: net.add("Add", "%s %s" % (
                                        net.rounded(y), y)), {}),
                                    ("uneven", lambda net, y: net.rounded(y), {"pads": [0, 0, 1, 1]})):
            with self.subTest(name):
                net = Net(seed=9)
                y = net.conv(net.rounded("x", net.scales(1 / 32)), 1 / 32, (4, 3, 3, 3), **given)
                data = net.file(ending(net, y))
                ops = self.ops_of(data)
                self.assertIn("conv2d", ops)
                self.assertNotIn("quantized_conv2d", ops)
                self.compare(data, self.image())

    def test_floats_on_demand(self):
        data = self.resnet(Net())
        ops = self.ops_of(data, int8=False)
        self.assertFalse([op for op in ops if "quantize" in op])
        self.compare(data, self.image())

    # ---- QOperator ----
    def test_qlinear_conv(self):
        for kind in RANGES:
            for group, shape, given in ((1, (12, 3, 3, 3), {"pads": [1] * 4}),
                                        (3, (6, 1, 3, 3), {"group": 3}),
                                        (1, (5, 3, 1, 1), {"strides": [2, 2]})):
                with self.subTest("%s in %d groups" % (kind, group)):
                    net = Net(kind, exact=False, seed=group)
                    scales, parts = net.scales(0.02), net.integers(shape)[0]
                    y = net.add("QLinearConv", " ".join(
                        ["x", scales] + parts + [net.scales(0.2), net.integer_bias(shape[0])]), **given)
                    data = net.file(y, ("N", 3, 12, 12), kind)
                    self.assertNotIn("quantized_conv2d", self.ops_of(data, int8=False))
                    self.assertIn("quantized_conv2d", self.ops_of(data))
                    self.compare(data, self.bytes_of((2, 3, 12, 12), kind))

    def test_qlinear_matmul(self):
        for kind in RANGES:
            with self.subTest(kind):
                net = Net(kind, exact=False)
                scales, parts = net.scales(0.02), net.integers((9, 7), per_row=False)[0]
                y = net.add("QLinearMatMul", " ".join(["x", scales] + parts + [net.scales(0.1)]))
                data = net.file(y, ("N", 9), kind)
                self.assertNotIn("quantized_linear", self.ops_of(data, int8=False))
                self.assertIn("quantized_linear", self.ops_of(data))
                self.compare(data, self.bytes_of((40, 9), kind))

    def test_bytes_that_move(self):
        """Pools and moves of tensors of bytes."""
        for kind in RANGES:
            with self.subTest(kind):
                net = Net(kind)
                y = net.add("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
                y = net.add("Concat", y + " " + y, axis=1)
                y = net.add("Flatten", net.add("Transpose", y, perm=[0, 2, 3, 1]))
                y = net.add("DequantizeLinear", "%s %s" % (y, net.scales(0.5)))
                data = net.file(y, ("N", 3, 12, 12), kind)
                ops = [op for op in self.ops_of(data) if op not in ("integer", "cast")]
                self.assertEqual([op for op in ops if op not in ("flatten", "reshape")],
                                 ["max_pool2d", "concat", "permute", "dequantize"])
                self.compare(data, self.bytes_of((2, 3, 12, 12), kind))

    def same_as_floats(self, data, x, most=0):
        """ONNX's evaluator has no ops of com.microsoft, so their other form is the reference."""
        self.imported(data)
        found = self.run_model(x=x)[self.written_output()].values
        self.imported(data, int8=False)
        wanted = self.run_model(x=x)[self.written_output()].values
        self.assertEqual(len(found), len(wanted))
        self.assertTrue(max(abs(a - b) for a, b in zip(found, wanted)) <= most)
        self.assertTrue(len(set(found)) > 8)

    def test_microsoft(self):
        """QGemm, QLinearConcat and pools of means."""
        for kind in RANGES:
            with self.subTest(kind):
                net = Net(kind, seed=8)
                scales = [net.scales(1 / 32), net.scales(1 / 16), net.scales(1 / 16)]
                parts = [net.add("com.microsoft.QLinearAveragePool", "x %s %s" % (scales[0], own),
                                 kernel_shape=[2, 1], strides=[2, 1]) + " " + own for own in scales[:2]]
                y = net.add("com.microsoft.QLinearConcat", " ".join([scales[2]] + parts), axis=2)
                y = net.add("com.microsoft.QLinearGlobalAveragePool", "%s %s %s" % (y, scales[2], scales[0]))
                y = net.add("Flatten", y)
                (weight, scale, zero), _ = net.integers((7, 16))
                y = net.add("com.microsoft.QGemm", " ".join([y, scales[0], weight, scale, zero,
                                                             net.integer_bias(7), scales[1]]), transB=1)
                data = net.file(net.add("DequantizeLinear", y + " " + scales[1]), ("N", 16, 4, 4), kind)
                self.assertEqual([op for op in self.ops_of(data) if op not in ("integer", "cast")], [
                    "quantized_conv2d", "quantized_conv2d", "quantized_add", "quantized_add", "concat",
                    "quantized_conv2d", "reshape", "quantized_linear", "dequantize"])
                self.same_as_floats(data, self.bytes_of((4, 16, 4, 4), kind))

    def test_matmul_integer_to_float(self):
        net = Net(exact=False)
        net.nodes.append(node("DynamicQuantizeLinear", "x", "q s z"))
        (weight, scale, zero), _ = net.integers((6, 5), per_row=False)
        y = net.add("com.microsoft.MatMulIntegerToFloat", "q %s s %s z %s %s" % (
            weight, scale, zero, net.known("b", (5,), [0.5, -1.0, 0.25, 3.0, 2.0])))
        data = net.file(y, ("N", 4, 6))
        self.assertEqual(self.ops_of(data), ["quantized_linear_dynamic"])
        self.same_as_floats(data, self.image((3, 4, 6)), most=2e-6)

    def test_sum(self):
        net = Net(seed=3)
        added = net.add("com.microsoft.QLinearAdd", " ".join(
            ["x", net.scales(0.5), "x", net.scales(0.25), net.scales(0.5)]))
        own = net.add("DequantizeLinear", "%s %s" % (added, net.scales(1.0)))
        data = net.file(own, ("N", 4), "uint8")
        self.assertNotIn("quantized_add", self.ops_of(data, int8=False))
        self.assertEqual(self.ops_of(data), ["quantized_add", "dequantize"])
        self.same_as_floats(data, self.bytes_of((40, 4), "uint8"))

    def bytes_of(self, shape, kind):
        draw, (low, high) = random.Random(len(shape)), RANGES[kind]
        return Array(kind, shape, [draw.randint(low, high) for _ in range(math.prod(shape))])

    # ---- dynamic ----
    def dynamic(self, bias, shape=(6, 5)):
        net = Net(exact=False)
        net.nodes.append(node("DynamicQuantizeLinear", "x", "q s z"))
        (weight, scale, zero), _ = net.integers(shape, per_row=False, zero=3)
        y = net.add("MatMulInteger", "q %s z %s" % (weight, zero))
        y = net.add("Mul", "%s %s" % (net.add("Cast", y, to=1), net.add("Mul", "s " + scale)))
        return net.file(net.add("Add", "%s %s" % (y, net.known("b", (5,), [0.5, -1.0, 0.25, 3.0, 2.0])))
                        if bias else y, ("N", 4, shape[0]))

    def test_dynamic(self):
        for rows, possible in (32768, True), (32769, False):
            ops = self.ops_of(self.dynamic(False, (rows, 1)))
            self.assertEqual("quantized_linear_dynamic" in ops, possible)
        for bias in (False, True):
            data = self.dynamic(bias)
            self.assertEqual(self.ops_of(data), ["quantized_linear_dynamic"])
            self.same_as_floats(data, self.image((3, 4, 6)), most=2e-6)
            self.imported(data)
            self.compare(data, self.image((3, 4, 6)), most=2e-6)

    def test_zeros_have_a_scale(self):
        """DynamicQuantizeLinear of zeros, in both forms."""
        zeros = Array("float32", (1, 4, 6), [0.0] * 24)
        for int8 in (False, True):
            self.imported(self.dynamic(True), int8=int8)
            found = self.run_model(x=zeros)[self.written_output()].values[:5]
            self.assertEqual(found, [0.5, -1.0, 0.25, 3.0, 2.0])

    def written_output(self):
        import json
        with open(self.path("net.json"), encoding="utf-8") as file:
            return json.load(file)["outputs"][0]


if __name__ == "__main__":
    unittest.main()
