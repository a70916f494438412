"""The importer of ONNX models: files made by hand, hostile ones and, if the package onnx is installed, its
backend suite."""
import contextlib
import importlib.util
import io
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from generator import import_onnx, spec
from generator.exchange import onnx_file, onnx_import, protobuf, tensor_files
from generator.exchange.arrays import Array
from generator.exchange.onnx_file import (ATTRIBUTE, DIMENSION, ENTRY, GRAPH, MODEL, NODE, NUMBERS, OPSET,
                                          SHAPE, TENSOR, TYPE, VALUE)
from generator.exchange.onnx_import import Unsupported
from generator.exchange.protobuf import Message
from generator.exchange.spec_writer import Refused, save_safetensors

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
RUN_MODEL = os.path.join(ROOT, "build", "run_model")


# ---- models by hand ----------------------------------------------------------------------------------------
def attribute(name, value):
    if isinstance(value, Message):
        return Message(ATTRIBUTE, name=name,
                       **({"t": value, "type": 4} if value._fields is TENSOR else {"g": value, "type": 5}))
    if isinstance(value, float):
        return Message(ATTRIBUTE, name=name, f=value, type=1)
    if isinstance(value, int):
        return Message(ATTRIBUTE, name=name, i=value, type=2)
    if isinstance(value, str):
        return Message(ATTRIBUTE, name=name, s=value.encode(), type=3)
    kinds = {float: {"floats": list(value), "type": 6}, bytes: {"strings": list(value), "type": 8}}
    return Message(ATTRIBUTE, name=name,
                   **kinds.get(type(value[0]) if value else int, {"ints": list(value), "type": 7}))


def node(op, inputs, outputs, **attributes):
    domain, _, op = op.rpartition(".")
    return Message(NODE, op_type=op, domain=domain, input=inputs.split(), output=outputs.split(),
                   name="the_" + outputs.split()[0],
                   attribute=[attribute(*pair) for pair in attributes.items()])


def value(name, shape, kind="float32"):
    dims = [Message(DIMENSION, **({} if d == "" else {"dim_param": d} if isinstance(d, str) else
                                  {"dim_value": d})) for d in shape]
    tensor = Message(TYPE[1][1], elem_type=NUMBERS[kind], shape=Message(SHAPE, dim=dims))
    return Message(VALUE, name=name, type=Message(TYPE, tensor_type=tensor))


def tensor(name, shape, values, kind="float32"):
    return Message(TENSOR, name=name, dims=list(shape), data_type=NUMBERS[kind],
                   raw_data=Array(kind, shape, values).encoded())


def graph(nodes, inputs, outputs, initializers=()):
    return Message(GRAPH, node=nodes, input=inputs, output=outputs, initializer=list(initializers))


def model(*parts, opset=17, domains=()):
    versions = [Message(OPSET, domain="", version=opset)] + [Message(OPSET, domain=name, version=1)
                                                             for name in domains]
    return protobuf.write(Message(MODEL, ir_version=8, graph=graph(*parts), opset_import=versions))


def small():
    """y = relu(x fc + bias) of a batch, with weights as PyTorch's exporter writes them."""
    return model([node("MatMul", "x onnx::MatMul_3", "m"), node("Add", "fc.bias m", "a"),
                  node("Relu", "a", "y")], [value("x", ["N", 3])], [value("y", ["N", 2])],
                 [tensor("onnx::MatMul_3", (3, 2), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
                  tensor("fc.bias", (2,), [-1.0, 0.5])])


class Import(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, data, name="model.onnx"):
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)

    def imported(self, data, **options):
        """The written spec. spec.py must accept it, and the weights' names must match."""
        written, _ = import_onnx.import_model(self.write(data), self.path("net"), **options)
        loaded = spec.load(self.path("net.json"))
        weights = tensor_files.read_safetensors(self.path("net.safetensors"))
        self.assertEqual({t.name for t in loaded.tensors if t.kind in ("parameter", "buffer")}, set(weights))
        return written

    def refused(self, data, *parts, **options):
        with self.assertRaises((Unsupported, onnx_file.OnnxError)) as caught:
            import_onnx.import_model(self.write(data), self.path("net"), **options)
        for part in parts:
            self.assertIn(part, str(caught.exception))
        self.assertEqual(os.listdir(self.folder), ["model.onnx"])
        return caught.exception

    def run_model(self, **inputs):
        """run_model's results. inputs: Arrays."""
        if not os.path.exists(RUN_MODEL):
            self.skipTest("build/run_model is not there: ninja build/run_model")
        save_safetensors(self.path("in"), {name: tensor_files.for_gpunn(x) for name, x in inputs.items()})
        subprocess.run([RUN_MODEL, self.path("net.json"), "--weights", self.path("net.safetensors"),
                        "--input", self.path("in"), "--output", self.path("out")], check=True)
        return tensor_files.read_safetensors(self.path("out"))

    def ops(self, written):
        return [t["op"] for t in written["tensors"]]


class ByHand(Import):
    def test_a_product_becomes_a_layer_with_pytorchs_names(self):
        written = self.imported(small())
        self.assertEqual(written["tensors"][1:], [
            {"op": "linear", "name": "fc", "inputs": ["x"], "out_features": 2},
            {"op": "relu", "name": "y", "inputs": ["fc"]}])
        self.assertEqual(written["tensors"][0]["shape"], ["N", 3])
        weights = tensor_files.read_safetensors(self.path("net.safetensors"))
        self.assertEqual(weights["fc.weight"].values, [1.0, 3.0, 5.0, 2.0, 4.0, 6.0])
        y = self.run_model(x=Array("float32", (2, 3), [1.0, 0.0, -1.0, 0.0, 1.0, 0.0]))["y"]
        self.assertEqual((y.shape, y.values), ((2, 2), [0.0, 0.0, 2.0, 4.5]))

    def test_run_model_imports_by_itself(self):
        if not os.path.exists(RUN_MODEL):
            self.skipTest("build/run_model is not there: ninja build/run_model")
        save_safetensors(self.path("in"),
                         {"x": tensor_files.for_gpunn(Array("float32", (1, 3), [0.0, 1.0, 0.0]))})
        words = ["--input", self.path("in"), "--output", self.path("out")]
        subprocess.run([RUN_MODEL, self.write(small())] + words, cwd=ROOT, check=True,
                       stdout=subprocess.DEVNULL)
        self.assertEqual(tensor_files.read_safetensors(self.path("out"))["y"].values, [2.0, 4.5])
        for name in ("none.onnx", "$(touch said).onnx"):
            done = subprocess.run([RUN_MODEL, self.path(name)] + words, cwd=ROOT, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            self.assertGreater(done.returncode, 0)
            self.assertIn(name.encode(), done.stdout)

    def test_quantised_weights_become_floats(self):
        """QuantizeLinear, DequantizeLinear: a layer with 8-bit weights, and a scale and a zero point for each
        output."""
        data = model([node("QuantizeLinear", "x xs xz", "xq"), node("DequantizeLinear", "xq xs xz", "xf"),
                      node("DequantizeLinear", "W ws wz", "wf", axis=0),
                      node("Gemm", "xf wf B", "y", transB=1)],
                     [value("x", ["N", 3])], [value("y", ["N", 2])],
                     [tensor("xs", (), [0.5]), tensor("xz", (), [128], "uint8"),
                      tensor("W", (2, 3), [2, 0, -2, 5, 4, 3], "int8"), tensor("ws", (2,), [0.25, 2.0]),
                      tensor("wz", (2,), [0, 4], "int8"), tensor("B", (2,), [1.0, -1.0])])
        self.assertIn("linear", self.ops(self.imported(data)))
        kept = [x.values for x in tensor_files.read_safetensors(self.path("net.safetensors")).values()
                if x.shape == (2, 3)]
        self.assertEqual(kept, [[0.5, 0.0, -0.5, 2.0, 0.0, -2.0]])
        # read as 1, 7, -1; 0, 0, 63.5
        y = self.run_model(x=Array("float32", (2, 3), [1.1, 7.0, -1.0, 0.2, 0.0, 1e9]))["y"]
        self.assertEqual((y.shape, y.values), ((2, 2), [2.0, 3.0, -30.75, -128.0]))

    def test_names_that_are_no_layers_are_kept(self):
        data = model([node("Gemm", "x W B", "y", transB=1)], [value("x", [4, 3])], [value("y", [4, 2])],
                     [tensor("W", (2, 3), [1.0] * 6), tensor("B", (2,), [0.0, 1.0])])
        self.assertEqual([t.get("name") for t in self.imported(data)["tensors"]], ["x", "W", "B", "the_y"])

    def test_what_exporters_leave_of_shapes_is_folded(self):
        data = model([node("Shape", "x", "s"),
                      node("Constant", "", "zero", value=tensor("", (), [0], "int64")),
                      node("Gather", "s zero", "n", axis=0), node("Unsqueeze", "n axes", "n1"),
                      node("Concat", "n1 rest", "shape", axis=0), node("Reshape", "x shape", "r"),
                      node("Neg", "r", "y")],
                     [value("x", ["batch", 2, 3])], [value("y", ["batch", 6])],
                     [tensor("axes", (1,), [0], "int64"), tensor("rest", (1,), [-1], "int64")])
        self.assertEqual(self.ops(self.imported(data)), ["input", "reshape", "neg"])

    def test_a_condition_that_is_known_leaves_one_branch(self):
        branches = [graph([node(op, "x", out)], [], [value(out, ["N", 3])])
                    for op, out in (("Neg", "a"), ("Abs", "b"))]
        data = model([node("If", "c", "y", then_branch=branches[0], else_branch=branches[1])],
                     [value("x", ["N", 3])], [value("y", ["N", 3])], [tensor("c", (), [False], "bool")])
        self.assertEqual(self.ops(self.imported(data)), ["input", "abs"])

    def test_kinds_of_weights(self):
        for kind in ("float32", "float16", "bfloat16", "float64"):
            with self.subTest(kind=kind):
                weight = tensor("w", (2,), [0.5, -3.0], kind)
                self.imported(model([node("Add", "x w", "y")], [value("x", [2])], [value("y", [2])],
                                    [weight]))
                self.assertEqual(tensor_files.read_safetensors(self.path("net.safetensors"))["w"].values,
                                 [0.5, -3.0])

    def test_weights_that_are_no_numbers(self):
        inf, nan = math.inf, math.nan
        names = "abcde"
        nodes = [node("Add", ("x " if i == 0 else "t%d " % i) + c, "y" if c == "e" else "t%d" % (i + 1))
                 for i, c in enumerate(names)]
        values = {"a": [nan, 1], "b": [1, nan], "c": [nan, inf], "d": [inf, -inf], "e": [nan, nan]}
        data = model(nodes, [value("x", [2])], [value("y", [2])], [tensor(c, (2,), values[c]) for c in names])
        self.assertEqual(import_onnx.import_model(self.write(data), self.path("net"))[1],
                         ["weights hold NaN, which is kept: a, b, c and 1 others"])
        self.assertTrue(
            math.isnan(tensor_files.read_safetensors(self.path("net.safetensors"))["b"].values[1]))

    def test_layers_that_were_taken_apart(self):
        def constant(name, number):
            return tensor(name, (), [number])
        data = model([node("ReduceMean", "x", "m", axes=[-1]), node("Sub", "x m", "d"),
                      node("Pow", "d two", "p"), node("ReduceMean", "p", "v", axes=[-1]),
                      node("Add", "v eps", "e"), node("Sqrt", "e", "r"),
                      node("Div", "d r", "n"), node("Mul", "n ln.weight", "s"), node("Add", "s ln.bias", "l"),
                      node("Div", "l root", "z"), node("Erf", "z", "f"), node("Add", "f one", "g"),
                      node("Mul", "l g", "h"), node("Mul", "h half", "y")], [value("x", ["N", 5])],
                     [value("y", ["N", 5])],
                     [constant("two", 2.0), constant("eps", 1e-5), constant("root", math.sqrt(2)),
                      constant("one", 1.0), constant("half", 0.5), tensor("ln.weight", (5,), [1.0] * 5),
                      tensor("ln.bias", (5,), [0.0] * 5)], opset=13)
        self.assertEqual(self.ops(self.imported(data)), ["input", "layer_norm", "gelu"])

    def test_gelu_of_jax(self):
        """x is first multiplied by the cube's factor, and constants are the first operands."""
        data = model([node("Mul", "cube x", "a"), node("Mul", "x a", "b"), node("Mul", "x b", "c"),
                      node("Add", "x c", "d"), node("Mul", "root d", "e"), node("Tanh", "e", "t"),
                      node("Add", "one t", "f"), node("Mul", "half f", "g"), node("Mul", "x g", "y")],
                     [value("x", ["N", 3])], [value("y", ["N", 3])],
                     [tensor("cube", (), [0.044715]), tensor("root", (), [math.sqrt(2 / math.pi)]),
                      tensor("one", (1, 1), [1.0]), tensor("half", (), [0.5])])
        self.assertEqual(self.ops(self.imported(data)), ["input", "gelu_tanh"])

    def test_attention_that_was_taken_apart(self):
        behind = [j > i for i in range(3) for j in range(3)]
        data = model([node("Transpose", "k", "t", perm=[0, 1, 3, 2]), node("MatMul", "q t", "s"),
                      node("Div", "s root", "d"), node("Where", "hidden least d", "m"),
                      node("Softmax", "m", "p", axis=-1), node("MatMul", "p v", "y")],
                     [value(name, ["N", 2, 3, 4]) for name in "qkv"], [value("y", ["N", 2, 3, 4])],
                     [tensor("root", (), [2.0]), tensor("least", (), [-math.inf]),
                      tensor("hidden", (3, 3), behind, "bool")])
        written = self.imported(data)
        self.assertEqual(written["tensors"][3:],
                         [{"op": "scaled_dot_product_attention", "name": "y", "inputs": ["q", "k", "v"],
                           "is_causal": True, "scale": 0.5}])

    def test_a_weight_that_two_layers_share_is_stored_once(self):
        data = model([node("MatMul", "x W", "a"), node("Add", "a fc.bias", "b"), node("MatMul", "b W", "c"),
                      node("Add", "c fc.bias", "y")], [value("x", ["N", 2])], [value("y", ["N", 2])],
                     [tensor("W", (2, 2), [1.0, 2.0, 3.0, 4.0]), tensor("fc.bias", (2,), [1.0, 0.0])])
        self.imported(data)
        self.assertEqual(sorted(tensor_files.read_safetensors(self.path("net.safetensors"))),
                         ["fc.bias", "fc.weight"])
        self.assertEqual(self.run_model(x=Array("float32", (1, 2), [1.0, 0.0]))["y"].values, [9.0, 12.0])

    def test_cubic_grid_samples(self):
        """By the sum over the 16 cells around each point. Cells outside are 0."""
        def keys(d):
            d = abs(d)
            return (1.25 * d - 2.25) * d * d + 1 if d <= 1 else ((-0.75 * d + 3.75) * d - 6) * d + 3

        x, points = [math.sin(i * i) for i in range(20)], [(-0.9, 0.4), (0.13, -0.2), (1.1, 0.95)]
        for mode in ("cubic", "bicubic"):
            inputs = [value("x", [1, 1, 4, 5]), value("grid", [1, 1, 3, 2])]
            self.imported(model([node("GridSample", "x grid", "y", mode=mode)], inputs,
                                [value("y", [1, 1, 1, 3])], opset=20 if mode == "cubic" else 16))
            given = {"x": Array("float32", (1, 1, 4, 5), x),
                     "grid": Array("float32", (1, 1, 3, 2), sum(points, ()))}
            for (h, v), y in zip(points, self.run_model(**given)["y"].values):
                column, row = ((h + 1) * 5 - 1) / 2, ((v + 1) * 4 - 1) / 2
                near = [(i, j) for i in range(4)
                        for j in range(5) if abs(i - row) < 2 and abs(j - column) < 2]
                self.assertAlmostEqual(y,
                                       sum(x[i * 5 + j] * keys(i - row) * keys(j - column) for i, j in near),
                                       5)

    def test_external_data(self):
        with open(self.path("w.bin"), "wb") as file:
            file.write(bytes(4) + struct.pack("<2f", 2.0, 3.0))
        entries = [Message(ENTRY, key=key, value=text)
                   for key, text in (("location", "w.bin"), ("offset", "4"), ("length", "8"))]
        stored = Message(TENSOR, name="w", dims=[2], data_type=1, data_location=1, external_data=entries)
        self.imported(model([node("Mul", "x w", "y")], [value("x", [2])], [value("y", [2])], [stored]))
        self.assertEqual(tensor_files.read_safetensors(self.path("net.safetensors"))["w"].values, [2.0, 3.0])

    def test_sizes(self):
        data = model([node("Relu", "x", "y")], [value("x", ["batch", "seq"])], [value("y", ["batch", "seq"])])
        self.refused(data, "its axis 'seq' has no size: give it one with --size seq=SIZE")
        self.assertEqual(self.imported(data, sizes=[("seq", 7)])["tensors"][0]["shape"], ["N", 7])
        self.assertEqual(self.imported(data, sizes=[("seq", 7)], batch="2")["tensors"][0]["shape"], [2, 7])
        self.assertEqual(self.imported(data, sizes=[("batch", 7)], batch="seq")["tensors"][0]["shape"],
                         [7, "N"])

    def test_sizes_that_vary(self):
        """Shapes are computed from named axes, which are sizes of the spec with --dynamic."""
        def known(name, *values):
            return tensor(name, (len(values),), values, "int64")
        data = model(
            [node("MatMul", "x fc.weight", "m"), node("Shape", "m", "s"), node("Gather", "s one", "t"),
             node("Mul", "t two", "tt"), node("Shape", "x", "of_x"), node("Gather", "of_x zero", "n"),
             node("Div", "tt two", "half"), node("Concat", "n half minus", "shape", axis=0),
             node("Reshape", "m shape", "r"), node("Slice", "r one_ tail t_axis", "a"),
             node("Squeeze", "t zero", "t_"), node("Range", "zero_ t_ one__", "steps"),
             node("Cast", "steps", "f", to=1), node("Unsqueeze", "f one", "all"),
             node("Slice", "all one_ tail zero", "column"), node("Mul", "a column", "b"),
             node("ReduceMean", "b", "y", axes=[1], keepdims=0), node("Gather", "r last", "z", axis=1)],
            [value("x", ["batch", "time steps", 3])], [value("y", ["batch", 2]), value("z", ["batch", 2])],
            [tensor("fc.weight", (3, 2), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), known("one", 1), known("zero", 0),
             known("two", 2), known("minus", -1), known("one_", 1), known("tail", (1 << 63) - 1),
             known("t_axis", 1), tensor("zero_", (), [0], "int64"), tensor("one__", (), [1], "int64"),
             tensor("last", (), [-1], "int64")])
        written = self.imported(data, dynamic=True, bounds={"time_steps": {"min": 2}})
        self.assertEqual((written["sizes"], written["tensors"][0]["shape"]),
                         ({"time_steps": {"min": 2}}, ["N", "time_steps", 3]))
        for n, length in ((1, 2), (2, 5)):
            x = [math.sin(i) for i in range(n * length * 3)]
            got = self.run_model(x=Array("float32", (n, length, 3), x))
            rows = [[sum(x[(i * length + t) * 3 + k] * (2 * k + 1 + j) for k in range(3)) for j in range(2)]
                    for i in range(n) for t in range(length)]
            means = [sum(t * rows[i * length + t][j] for t in range(1, length)) / (length - 1)
                     for i in range(n) for j in range(2)]
            last = [rows[(i + 1) * length - 1][j] for i in range(n) for j in range(2)]
            for name, wanted in (("y", means), ("z", last)):
                for a, b in zip(got[name].values, wanted):
                    self.assertAlmostEqual(a, b, places=4)

    def test_what_sizes_that_vary_cannot_do(self):
        def one(op, shape, *weights, **attributes):
            names = " ".join(["x"] + [w.name for w in weights])
            return model([node(op, names, "y", **attributes)], [value("x", shape)], [value("y", shape)],
                         list(weights))
        for data, part in (
                (one("Split", ["N", "T", 3], axis=1), "it cuts the size T"),
                (one("Reshape", ["N", "T", 3], tensor("s", (2,), [-1, 4], "int64")), "3 * T * batch / 4"),
                (one("Conv", ["N", 1, "T"], tensor("w", (1, 1, 3), [1.0] * 3), auto_pad="SAME_UPPER",
                     strides=[2]), "its padding depends on the size T"),
                (one("Resize", ["N", 1, "H", "W"], tensor("r", (0,), []),
                     tensor("s", (4,), [1.0, 1.0, 2.0, 2.0]), mode="nearest"), "of the size "),
                (one("Add", ["N", "T"], tensor("w", (5,), [1.0] * 5)), "do not broadcast"),
                (one("Neg", ["N", "a b", "a.b"]), "would both be the size a_b")):
            with self.subTest(part):
                self.refused(data, part, dynamic=True)
        with self.assertRaisesRegex(Refused, "no axis has the name X, but T"):
            import_onnx.import_model(self.write(one("Neg", ["N", "T"])), self.path("net"), dynamic=True,
                                     bounds={"X": {"max": 3}})

    def test_cubic_of_sizes_that_vary(self):
        """Equal to those of fixed sizes, which the importer computes by products with constants."""
        weights = [tensor("r", (0,), []), tensor("s", (4,), [1.0, 1.0, 1.5, 2.0])]
        for mode in ("half_pixel", "align_corners"):
            resize = node("Resize", "x r s", "y", mode="cubic", coordinate_transformation_mode=mode)
            x, results = Array("float32", (1, 1, 4, 5), [math.sin(3 * i) for i in range(20)]), []
            for shape, options in (([1, 1, 4, 5], {"batch": "none"}),
                                   (["N", 1, "H", "W"], {"dynamic": True})):
                self.imported(model([resize], [value("x", shape)], [value("y", ["N", 1, "h", "w"])], weights),
                              **options)
                results.append(list(self.run_model(x=x)["y"].values))
            self.assertEqual(len(results[0]), 60)
            for fixed, varying in zip(*results):
                self.assertAlmostEqual(fixed, varying, places=5)

    def test_axes_that_have_neither_a_size_nor_a_name(self):
        given = [value("x", ["?", 3, "?"]), value("h", [2, "", 4])]  # "" means unknown in a file
        data = model([node("Relu", "x", "y"), node("Relu", "h", "z")], given,
                     [value("y", []), value("z", [])])
        self.refused(data, "give it one with --size x:2=SIZE", "give it one with --size h:1=SIZE")
        written = self.imported(data, sizes=[("x:2", 5), ("h:1", 1)], batch="1")
        self.assertEqual([t["shape"] for t in written["tensors"] if t["op"] == "input"],
                         [[1, 3, 5], [2, 1, 4]])

    def test_layers_and_outputs_of_one_name(self):
        weights = [tensor("fc.weight", (2, 2), range(4)), tensor("fc.bias", (2,), [1.0, 0.5])]
        for nodes, x, y in (([node("Gemm", "x fc.weight fc.bias", "fc", transB=1)], "x", "fc"),
                            ([node("Gemm", "x fc.weight fc.bias", "h", transB=1), node("Neg", "h", "fc")],
                             "x", "fc"),
                            ([node("Gemm", "fc fc.weight fc.bias", "y", transB=1)], "fc", "y")):
            self.imported(model(nodes, [value(x, ["N", 2])], [value(y, ["N", 2])], weights))
            sign = -1 if len(nodes) == 2 else 1
            got = self.run_model(**{x: Array("float32", (1, 2), [2.0, 1.0])})[y]
            self.assertEqual(list(got.values), [sign * 2.0, sign * 7.5])

    def test_of_long_names_the_end_is_kept(self):
        name = "block;" * 60 + "fc.weight"
        data = model([node("MatMul", "x " + name, "m"), node("MatMul", "m other" + name, "y")],
                     [value("x", ["N", 2])], [value("y", ["N", 2])],
                     [tensor(name, (2, 2), range(4)), tensor("other" + name, (2, 2), range(4))])
        layers = [t for t in self.imported(data)["tensors"] if t["op"] == "linear"]
        self.assertTrue(layers[0]["name"].endswith("block;fc") and len(layers[0]["name"]) < 200)

    def loop(self, steps):
        """x is doubled and incremented in so many steps. Each step's value is kept."""
        body = graph([node("Add", "v v", "d"), node("Add", "d one", "w"), node("Identity", "w", "s"),
                      node("Identity", "c", "c2")],
                     [value("i", [], "int64"), value("c", [], "bool"), value("v", ["N", 2])],
                     [value("c2", [], "bool"), value("w", ["N", 2]), value("s", ["N", 2])])
        return model([node("Loop", "steps true x", "y all", body=body)], [value("x", ["N", 2])],
                     [value("y", ["N", 2]), value("all", [steps, "N", 2])],
                     [tensor("one", (), [1.0]), tensor("steps", (), [steps], "int64"),
                      tensor("true", (), [1], "bool")])

    def test_a_loop_is_run_step_by_step(self):
        self.assertEqual(self.ops(self.imported(self.loop(3))).count("add"), 3)
        y = self.run_model(x=Array("float32", (1, 2), [1.0, -2.0]))
        self.assertEqual(list(y["y"].values), [15.0, -9.0])
        self.assertEqual(list(y["all"].values), [3.0, -3.0, 7.0, -5.0, 15.0, -9.0])

    def test_scatter_into_what_is_infinite(self):
        data = model([node("ScatterElements", "x i u", "y", axis=1), node("ScatterND", "x j v", "z")],
                     [value("x", ["N", 4]), value("i", ["N", 2], "int64"), value("u", ["N", 2])],
                     [value("y", ["N", 4]), value("z", ["N", 4])],
                     [tensor("j", (1, 1), [0], "int64"), tensor("v", (1, 4), range(4))])
        self.refused(data, "it picks samples of the batch")
        self.imported(data, batch="2")
        y = self.run_model(x=Array("float32", (2, 4), [-math.inf] * 4 + [math.inf, math.nan, 1.0, math.nan]),
                           i=Array("int64", (2, 2), [3, 0, 1, -1]),
                           u=Array("float32", (2, 2), [1.0, 2.0, 3.0, math.inf]))
        self.assertEqual(list(y["y"].values), [2.0, -math.inf, -math.inf, 1.0, math.inf, 3.0, 1.0, math.inf])
        self.assertEqual(list(y["z"].values)[:5] + list(y["z"].values)[6:7],
                         [0.0, 1.0, 2.0, 3.0, math.inf, 1.0])

    def test_a_shape_that_is_scattered(self):
        """PyTorch's older exporter computes the shape of an index with it."""
        data = model([node("Shape", "x", "s"), node("ScatterElements", "s one three", "t"),
                      node("Expand", "i t", "e"), node("GatherElements", "x e", "y", axis=1)],
                     [value("x", [2, 4])], [value("y", [2, 3])],
                     [tensor("one", (1,), [-1], "int64"), tensor("three", (1,), [3], "int64"),
                      tensor("i", (1, 3), [2, 0, 1], "int64")])
        self.imported(data, batch="none")
        y = self.run_model(x=Array("float32", (2, 4), [float(i) for i in range(8)]))
        self.assertEqual(list(y["y"].values), [2.0, 0.0, 1.0, 6.0, 4.0, 5.0])

    def test_large_integers(self):
        """They stay exact if gpunn has the op for integers. Ops that compute with floats add a note, or are
        refused."""
        x, y = [value("x", ["N", 4], "int64")], [value("y", ["N", 4], "int64")]
        i, known = [value("i", ["N", 4], "int64")], [tensor("k", (1,), [3], "int64"),
                                                     tensor("m", (1,), [7.0])]
        known += [tensor("r", (2,), [1, 2], "int64"), tensor("one", (1,), [1], "int64")]
        big = [2 ** 40 + 1, 3, -2 ** 53 - 1, 2 ** 25 + 1]
        for nodes, result in (
                ([node("Concat", "x x", "y", axis=1)], big * 2),
                ([node("Concat", "x k2", "y", axis=1)], big + [5]),
                ([node("Concat", "x k3", "y", axis=1)], big + [2 ** 40 + 5]),
                ([node("Slice", "x one k one", "y")], big[1:3]), ([node("Tile", "x r", "y")], big * 2),
                ([node("ReduceMax", "x", "y", keepdims=1)], big[:1]),
                ([node("ReduceSum", "x", "y")], [sum(big)]),
                ([node("Greater", "x k", "c"), node("Where", "c x k", "y")], [big[0], 3, 3, big[3]]),
                ([node("Gather", "x k", "y", axis=1)], big[3:]),
                ([node("Max", "x k", "y")], [big[0], 3, 3, big[3]]),
                ([node("Mul", "x k", "y")], [3 * n for n in big])):
            with self.subTest(nodes[-1].op_type):
                self.write(model(nodes, x, y, known + [tensor("k2", (1, 1), [5], "int64"),
                                                       tensor("k3", (1, 1), [2 ** 40 + 5], "int64")]))
                _, notes = import_onnx.import_model(self.path("model.onnx"), self.path("net"), batch="1")
                self.assertEqual(notes, [])
                self.assertEqual(list(self.run_model(x=Array("int64", (1, 4), big))["y"].values), result)
        for op, result in (("Equal", [1, 0, 0, 0]), ("Less", [0, 0, 0, 1]), ("GreaterOrEqual", [1, 1, 1, 0])):
            with self.subTest(op):
                self.imported(model([node(op, "x i", "y")], x + i, [value("y", ["N", 4], "bool")]))
                got = self.run_model(x=Array("int64", (1, 4), big),
                                     i=Array("int64", (1, 4), [big[0], 2, big[2] - 1, big[3] + 1]))
                self.assertEqual([int(n) for n in got["y"].values], result)
        self.write(model([node("ReduceMean", "x", "y")], x, y, known))
        self.assertEqual(import_onnx.import_model(self.path("model.onnx"), self.path("net"))[1],
                         ["the_y computes with integers, in 32-bit floats: exact up to 2^24"])
        for one, kind in ((node("Cast", "x", "y", to=1), "float32"), (node("Equal", "x k", "y"), "bool"),
                          (node("Gather", "m x", "y"), "float32"), (node("Identity", "x", "y"), "int64")):
            with self.subTest(one.op_type):
                self.write(model([one], x, [value("y", ["N", 4], kind)], known))
                self.assertEqual(import_onnx.import_model(self.path("model.onnx"), self.path("net"))[1], [])
        for name in os.listdir(self.folder):
            os.remove(self.path(name))
        for op in ("Equal", "Less", "GreaterOrEqual"):
            wide = [node("Cast", name, name + "_", to=NUMBERS["uint32"]) for name in ("x", "i")]
            self.refused(model(wide + [node(op, "x_ i_", "y")], x + i, [value("y", ["N", 4], "bool")]),
                         "may be above 2^24")
        narrow = node("Cast", "x", "a", to=NUMBERS["int16"])
        self.imported(model([narrow, node("Equal", "a a", "y")], x, [value("y", ["N", 4], "bool")]))

    def test_numbers_that_are_drawn(self):
        """Only their range can be tested."""
        data = model([node("RandomUniform", "", "u", low=2.0, high=5.0, shape=[2, 300]),
                      node("RandomNormal", "", "n", shape=[2, 300]), node("Bernoulli", "x", "b"),
                      node("Multinomial", "x", "m", sample_size=9), node("Add", "u n", "un")],
                     [value("x", [2, 300])],
                     [value("u", [2, 300]), value("n", [2, 300]), value("b", [2, 300]),
                      value("m", [2, 9], "int32"), value("un", [2, 300])])
        self.imported(data, batch="none")
        y = self.run_model(x=Array("float32", (2, 300), [0.25] * 300 + [1.0] * 300))
        self.assertTrue(2 <= min(y["u"].values) < 2.2 and 4.8 < max(y["u"].values) <= 5)
        self.assertTrue(-6 < min(y["n"].values) < -1.5 and 1.5 < max(y["n"].values) < 6)
        self.assertTrue(30 < sum(y["b"].values[:300]) < 120 and sum(y["b"].values[300:]) == 300)
        self.assertTrue(0 <= min(y["m"].values) and max(y["m"].values) < 300 and len(set(y["m"].values)) > 9)

    def test_what_a_loop_computes_of_its_weights_is_one(self):
        """As in tf2onnx's GRU of Keras."""
        body = graph([node("Squeeze", "k axis", "own"), node("Add", "v own", "w"),
                      node("Identity", "c", "c2")],
                     [value("i", [], "int64"), value("c", [], "bool"), value("v", ["N", 2])],
                     [value("c2", [], "bool"), value("w", ["N", 2])], [tensor("k", (1, 2), [1.0, 2.0])])
        data = model([node("Loop", "steps true x", "y", body=body)], [value("x", ["N", 2])],
                     [value("y", ["N", 2])],
                     [tensor("steps", (), [4], "int64"), tensor("true", (), [1], "bool"),
                      tensor("axis", (1,), [0], "int64")])
        self.assertEqual(self.ops(self.imported(data)).count("parameter"), 1)
        self.assertEqual(list(self.run_model(x=Array("float32", (1, 2), [0.5, 0.5]))["y"].values), [4.5, 8.5])

    def test_loops_without_end_are_refused(self):
        self.refused(self.loop(1 << 40), "run more than 1000 steps")

    def test_loops_of_many_operations_are_refused(self):
        """The 4th step would begin with 7 entries: the input, and two of each step."""
        with unittest.mock.patch.object(onnx_import, "MAX_UNROLLED", 6):
            self.refused(self.loop(4), "its body, repeated for each step, makes more than 6 operations")
            self.imported(self.loop(3))

    def test_flatten_of_one_row(self):
        """skl2onnx makes a row [1, n] from a column, and flattens it again."""
        data = model([node("Flatten", "x", "a", axis=0), node("Flatten", "a", "b", axis=1),
                      node("Reshape", "b column", "y")], [value("x", ["N", 1])], [value("y", ["N", 1])],
                     [tensor("column", (2,), [-1, 1], "int64")])
        self.imported(data)
        y = self.run_model(x=Array("float32", (3, 1), [1.0, 2.0, 3.0]))["y"]
        self.assertEqual((y.shape, list(y.values)), ((3, 1), [1.0, 2.0, 3.0]))

    def test_what_depends_on_values_names_the_remedy(self):
        data = model([node("Relu", "x", "best"), node("NonMaxSuppression", "boxes best", "y")],
                     [value("boxes", [1, 6, 4]), value("x", [1, 1, 6])], [value("y", ["K", 3], "int64")])
        self.refused(data, "NonMaxSuppression 'the_y': how many boxes it keeps depends on values",
                     "end the model at 'boxes' and 'best' with onnx.utils.extract_model", "examples/nms.h")

    def test_inputs_may_be_fixed(self):
        data = model([node("Reshape", "x s", "y")], [value("x", [2, 3]), value("s", [2], "int64")],
                     [value("y", [3, 2])])
        self.refused(
            data, "Reshape 'the_y': its shape must be known when it is imported; give s a value with --fix")
        written = self.imported(data, fixed={"s": Array("int64", (2,), [3, 2])})
        self.assertEqual(self.ops(written), ["input", "reshape"])


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def gru_states(x, w, r, reverse):
    """The states of one unit after each step, with weights z, r, h. The reset gate acts before the
    product."""
    h, states = 0.0, []
    for step in reversed(x) if reverse else x:
        z, reset = sigmoid(w[0] * step + r[0] * h), sigmoid(w[1] * step + r[1] * h)
        h = (1 - z) * math.tanh(w[2] * step + r[2] * reset * h) + z * h
        states.append(h)
    return states[::-1] if reverse else states


class Numbers(Import):
    """Results that ops' formulas leave open, as ONNX Runtime has them."""

    def compute(self, op, x, initializers=(), opset=13, **attributes):
        """y of one node. The initializers are its further operands."""
        kind = x.kind
        names = " ".join(["x"] + [one.name for one in initializers])
        self.imported(model([node(op, names, "y", **attributes)], [value("x", x.shape, kind)],
                            [value("y", [], kind)], list(initializers), opset=opset))
        return self.run_model(x=x)["y"]

    def close(self, y, shape, values):
        self.assertEqual(y.shape, shape)
        for got, wanted in zip(y.values, values):
            self.assertAlmostEqual(got, wanted, places=5)

    def test_resize_by_scales_that_do_not_divide(self):
        x, scales = Array("float32", (1, 1, 1, 3), [1.0, 2.0, 3.0]), tensor("s", (4,), [1.0, 1.0, 1.0, 1.5])
        roi = tensor("r", (8,), [0.0] * 4 + [1.0] * 4)
        for mode in "align_corners", "tf_crop_and_resize":
            y = self.compute("Resize", x, [roi, scales], mode="linear", coordinate_transformation_mode=mode)
            self.close(y, (1, 1, 1, 4), [1, 5 / 3, 7 / 3, 3])

    def test_output_shapes_of_transposed_convolutions(self):
        x, w = Array("float32", (1, 1, 2), [1.0, 2.0]), tensor("w", (1, 1, 3), [1.0, 2.0, 3.0])
        for auto, wanted in (("NOTSET", [2, 5, 4, 6]), ("SAME_LOWER", [2, 5, 4, 6]),
                             ("SAME_UPPER", [1, 2, 5, 4])):
            y = self.compute("ConvTranspose", x, [w], kernel_shape=[3], strides=[2], output_shape=[4],
                             auto_pad=auto)
            self.close(y, (1, 1, 4), wanted)
        with self.assertRaisesRegex(Unsupported, "output_shape has 3 sizes for 1 spatial"):
            self.compute("ConvTranspose", x, [w], kernel_shape=[3], strides=[2], output_shape=[1, 1, 4])

    def test_a_pool_with_dilation_that_ends_outside(self):
        x = Array("float32", (1, 1, 5), [1.0, 2.0, 3.0, 4.0, 5.0])
        given = dict(kernel_shape=[2], strides=[3], pads=[1, 1], ceil_mode=1, dilations=[2])
        self.close(self.compute("AveragePool", x, opset=19, count_include_pad=1, **given), (1, 1, 2), [1, 4])
        self.close(self.compute("AveragePool", x, opset=19, **given), (1, 1, 2), [2, 4])
        given = dict(kernel_shape=[2], strides=[2], pads=[0, 1], ceil_mode=1, count_include_pad=1)
        self.close(self.compute("AveragePool", x, opset=19, **given), (1, 1, 3), [1.5, 3.5, 2.5])

    def test_powers_of_integers_are_cut(self):
        x = Array("int64", (6,), [1, 2, 3, 7, 99, -5])
        for kind, power, wanted in (("float32", 0.5, [1, 1, 1, 2, 9]), ("float32", 1.5, [1, 2, 5, 18, 985]),
                                    ("int64", -1, [1, 0, 0, 0, 0, 0]),
                                    ("float32", 3.0, [1, 8, 27, 343, 970299, -125]),
                                    ("int64", 2, [1, 4, 9, 49, 9801, 25])):
            y = self.compute("Pow", x, [tensor("p", (1,), [power], kind)])
            self.assertEqual(y.values[:len(wanted)], wanted, power)

    def test_states_of_both_directions(self):
        w, r = [0.5, -1.0, 0.7, 0.3, 0.9, -0.4], [0.2, 0.6, -0.8, 1.1, -0.5, 0.4]
        x = [[0.3, -1.2, 0.8], [1.5, 0.1, -0.6]]  # samples of three steps
        data = model([node("GRU", "x w r", "y h", hidden_size=1, direction="bidirectional")],
                     [value("x", [3, 2, 1])], [value("y", [3, 2, 2, 1]), value("h", [2, 2, 1])],
                     [tensor("w", (2, 3, 1), w), tensor("r", (2, 3, 1), r)])
        self.imported(data)
        found = self.run_model(x=Array("float32", (3, 2, 1), [sample[t] for t in range(3) for sample in x]))
        sides = [[gru_states(sample, w[3 * d:3 * d + 3], r[3 * d:3 * d + 3], d) for sample in x]
                 for d in range(2)]
        self.close(found["y"], (3, 2, 2, 1),
                   [sides[d][n][t] for t in range(3) for d in range(2) for n in range(2)])
        self.close(found["h"], (2, 2, 1),
                   [sides[d][n][-1 if d == 0 else 0] for d in range(2) for n in range(2)])

    def test_batch_norm_with_the_outputs_of_training(self):
        ones = [tensor(name, (1,), [1.0]) for name in "sbmv"]
        for opset in 7, 9, 13:
            data = model([node("BatchNormalization", "x s b m v", "y o1 o2 o3 o4")], [value("x", [2, 1, 2])],
                         [value("y", [2, 1, 2])], ones, opset=opset)
            with self.assertRaisesRegex(Unsupported, "training mode"):
                self.imported(data)

    def test_outputs_of_all_kinds(self):
        """Inputs, weights, and one tensor under several names."""
        x = Array("float32", (2, 2), [-1.0, 2.0, 3.0, -4.0])
        relu, same = [0.0, 2.0, 3.0, 0.0], list(x.values)
        copies = [node("Identity", "y", "z"), node("Identity", "x", "c"), node("Identity", "w", "v"),
                  node("Reshape", "y s", "f")]
        wanted = {"y": relu, "z": relu, "x": same, "c": same, "w": [5.0, 6.0], "v": [5.0, 6.0], "f": relu}
        for names in (("y", "x"), ("x", "y"), ("y", "w"), ("y", "z"), ("z", "y"), ("z", "f", "y"),
                      ("c", "x", "z"), ("v", "w", "y"), tuple(wanted)):
            with self.subTest(names=names):
                self.imported(model([node("Relu", "x", "y")] + copies, [value("x", [2, 2])],
                                    [value(name, []) for name in names],
                                    [tensor("w", (2,), [5.0, 6.0]), tensor("s", (1,), [-1], "int64")]))
                found = self.run_model(x=x)
                self.assertEqual({name: one.values for name, one in found.items()},
                                 {name: wanted[name] for name in names})


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


KERNELS = {"LINEAR": dot, "POLY": lambda a, b: (0.5 * dot(a, b) + 0.25) ** 3,
           "SIGMOID": lambda a, b: math.tanh(0.5 * dot(a, b) + 0.25),
           "RBF": lambda a, b: math.exp(-0.5 * sum((x - y) ** 2 for x, y in zip(a, b)))}


def coupled(chances, pairs, count):
    """libsvm's multiclass_probability. chances: of the first class of each pair."""
    r = {pair: min(max(c, 1e-7), 1 - 1e-7) for pair, c in zip(pairs, chances)}
    r.update({(j, i): 1 - c for (i, j), c in list(r.items())})
    r.update({(i, i): 0.0 for i in range(count)})
    q = [[sum(r[j, t] ** 2 for j in range(count)) if t == k else -r[k, t] * r[t, k] for k in range(count)]
         for t in range(count)]
    p = [1 / count] * count
    while True:
        qp = [dot(line, p) for line in q]
        least = dot(p, qp)
        if max(abs(x - least) for x in qp) < 0.005 / count:
            return p
        for t in range(count):
            step = (least - qp[t]) / q[t][t]
            p = [(x + step * (i == t)) / (1 + step) for i, x in enumerate(p)]
            least = (least + step * (step * q[t][t] + 2 * qp[t])) / (1 + step) ** 2
            qp = [(x + step * y) / (1 + step) for x, y in zip(qp, q[t])]


def matrix(rows):
    return Array("float32", (len(rows), len(rows[0])), [x for row in rows for x in row])


class MachineLearning(Import):
    """The ops of the domain ai.onnx.ml."""

    def test_a_classifier(self):
        """Scaled, with two sums that softmax turns into probabilities, and labels that are no indices."""
        data = model([node("ai.onnx.ml.Scaler", "x", "s", offset=[1.0, -1.0], scale=[2.0, 0.5]),
                      node("ai.onnx.ml.LinearClassifier", "s", "label p",
                           coefficients=[1.0, 0.5, -1.0, 0.25, 0.0, 0.0],
                           intercepts=[0.5, 0.0, 0.1], classlabels_ints=[7, 3, 5], post_transform="SOFTMAX"),
                      node("ai.onnx.ml.Normalizer", "p", "q", norm="L1"),
                      node("ai.onnx.ml.ZipMap", "q", "z", classlabels_int64s=[7, 3, 5])],
                     [value("x", ["N", 2])], [value("label", ["N"], "int64"), value("z", ["N", 3])])
        self.imported(data)
        rows = [(1.0, 3.0), (2.0, -4.0), (-3.0, 0.5)]
        y = self.run_model(x=Array("float32", (3, 2), [v for row in rows for v in row]))
        for i, (a, b) in enumerate(rows):
            a, b = 2 * (a - 1), 0.5 * (b + 1)
            sums = [a + 0.5 * b + 0.5, -a + 0.25 * b, 0.1]
            parts = [math.exp(s) for s in sums]
            self.assertEqual(y["label"].values[i], (7, 3, 5)[sums.index(max(sums))])
            for got, part in zip(y["z"].values[3 * i:], parts):
                self.assertAlmostEqual(got, part / sum(parts), places=5)

    def test_two_classes_of_one_sum(self):
        data = model([node("ai.onnx.ml.LinearClassifier", "x", "label p", coefficients=[1.0, -2.0],
                           intercepts=[0.5], classlabels_strings=[b"no", b"yes"], post_transform="LOGISTIC")],
                     [value("x", ["N", 2])], [value("label", ["N"], "string"), value("p", ["N", 2])])
        self.write(data)
        _, notes = import_onnx.import_model(self.path("model.onnx"), self.path("net"))
        self.assertEqual(notes, ["the_label gives classes and their values by number: 0 no, 1 yes"])
        y = self.run_model(x=Array("float32", (2, 2), [1.0, 0.0, 0.0, 1.0]))
        self.assertEqual(list(y["label"].values), [1, 0])
        for got, s in zip(y["p"].values, (-1.5, 1.5, 1.5, -1.5)):
            self.assertAlmostEqual(got, 1 / (1 + math.exp(-s)), places=5)

    def trees(self, op, **given):
        """x0 <= 1 ? (x1 <= 2 ? a : b) : c, and a tree of one leaf."""
        trees = dict(nodes_treeids=[0, 0, 0, 0, 0, 3], nodes_nodeids=[0, 1, 2, 3, 4, 0],
                     nodes_featureids=[0, 1, 0, 0, 0, 0],
                     nodes_values=[1.0, 2.0, 0.0, 0.0, 0.0, 0.0], nodes_truenodeids=[1, 3, 0, 0, 0, 0],
                     nodes_falsenodeids=[2, 4, 0, 0, 0, 0], nodes_modes=[b"BRANCH_LEQ"] * 2 + [b"LEAF"] * 4)
        trees.update(given)
        outputs = "label p" if "Classifier" in op else "y"
        return model([node("ai.onnx.ml." + op, "x", outputs, **trees)], [value("x", ["N", 2])],
                     [value(name, ["N"], "int64") if name == "label" else value(name, ["N", 2])
                      for name in outputs.split()])

    def test_trees(self):
        x = Array("float32", (4, 2), [1.0, 2.0, 0.0, 2.5, 1.5, 0.0, math.inf, 2.0])
        target = dict(target_treeids=[0, 0, 0, 0, 3], target_nodeids=[3, 4, 2, 2, 0],
                      target_ids=[0, 0, 0, 1, 1], target_weights=[10.0, 20.0, 30.0, 40.0, 0.5])
        self.imported(self.trees("TreeEnsembleRegressor", n_targets=2, base_values=[1.0, 0.0], **target))
        self.assertEqual(list(self.run_model(x=x)["y"].values), [11, 0.5, 21, 0.5, 31, 40.5, 31, 40.5])
        classes = {"class" + key[6:]: given for key, given in target.items()}
        self.imported(self.trees("TreeEnsembleClassifier", classlabels_int64s=[8, 4], **classes))
        y = self.run_model(x=x)
        self.assertEqual((list(y["label"].values), list(y["p"].values)),
                         ([8, 8, 4, 4], [10, 0.5, 20, 0.5, 30, 40.5, 30, 40.5]))
        one = dict(classes, class_ids=[1] * 5, class_weights=[0.75, 0.0, 0.25, 0.0, 0.125])
        self.imported(self.trees("TreeEnsembleClassifier", classlabels_int64s=[8, 4], **one))
        y = self.run_model(x=x)
        self.assertEqual((list(y["label"].values), list(y["p"].values)[:4]),
                         ([4, 8, 8, 8], [0.125, 0.875, 0.875, 0.125]))

    def test_trees_that_are_refused(self):
        for part, given in (("no tree of up to 256 levels", dict(nodes_truenodeids=[1, 0, 0, 0, 0, 0])),
                            ("no tree of up to 256 levels", dict(nodes_falsenodeids=[2, 3, 0, 0, 0, 0])),
                            ("no tree of up to 256 levels", dict(nodes_truenodeids=[1, 77, 0, 0, 0, 0])),
                            ("not possible with these operands", dict(target_nodeids=[77])),
                            ("all compare alike",
                             dict(nodes_modes=[b"BRANCH_LEQ", b"BRANCH_LT"] + [b"LEAF"] * 4)),
                            ("all compare alike", dict(nodes_modes=[b"BRANCH_EQ"] * 2 + [b"LEAF"] * 4)),
                            ("all compare alike", dict(nodes_missing_value_tracks_true=[1, 0, 0, 0, 0, 0])),
                            ("aggregate_function MIN", dict(aggregate_function="MIN")),
                            ("trees of 70000 nodes", dict(nodes_treeids=[0] * 70000))):
            with self.subTest(part):
                given = dict(dict(target_treeids=[0], target_nodeids=[3], target_ids=[0],
                                  target_weights=[1.0]), **given)
                self.refused(self.trees("TreeEnsembleRegressor", **given), part)

    def test_rows(self):
        nodes = [node("ai.onnx.ml.Normalizer", "x", "n_" + norm, norm=norm) for norm in ("MAX", "L1", "L2")]
        nodes += [node("ai.onnx.ml.Binarizer", "x", "b", threshold=0.5),
                  node("ai.onnx.ml.LinearRegressor", "x", "r", coefficients=[1.0, 2.0, 3.0, 4.0],
                       intercepts=[0.0, -1.0], targets=2), node("ArgMax", "x", "a", axis=1),
                  node("ai.onnx.ml.ArrayFeatureExtractor", "labels a", "l")]
        outputs = [value(name, ["N", 2]) for name in ("n_MAX", "n_L1", "n_L2", "b", "r")] + [
            value("l", [1, "N"], "int64")]
        self.imported(model(nodes, [value("x", ["N", 2])], outputs,
                            [tensor("labels", (2,), [4, 9], "int64")]))
        y = self.run_model(x=Array("float32", (3, 2), [3.0, -4.0, 0.0, 0.0, 0.25, 0.75]))
        for name, wanted in (("n_MAX", [0.75, -1, 0, 0, 1 / 3, 1]),
                             ("n_L1", [3 / 7, -4 / 7, 0, 0, 0.25, 0.75]),
                             ("n_L2", [0.6, -0.8, 0, 0, 10 ** -0.5, 3 * 10 ** -0.5]),
                             ("b", [1, 0, 0, 0, 0, 1]), ("r", [-5, -8, 0, -1, 1.75, 2.75]), ("l", [4, 4, 9])):
            for got, expected in zip(y[name].values, wanted):
                self.assertAlmostEqual(got, expected, places=5)

    def compute(self, op, outputs, x, **attributes):
        """The result of an op of ai.onnx.ml for x."""
        self.imported(model([node("ai.onnx.ml." + op, "x", outputs, **attributes)],
                            [value("x", ["N"] + list(x.shape[1:]), x.kind)],
                            [Message(VALUE, name=name) for name in outputs.split()]))
        return self.run_model(x=x)

    def close(self, got, wanted):
        self.assertEqual(len(got), len(wanted))
        for a, b in zip(got, wanted):
            self.assertAlmostEqual(a, b, places=5)

    def test_regressors_of_support_vectors(self):
        vectors, weights, x = [(0.5, -1.0), (2.0, 0.25)], [1.5, -0.75], [(0.1, 0.2), (-0.6, 1.5), (1.0, -2.0)]
        given = dict(kernel_params=[0.5, 0.25, 3.0], n_supports=2, coefficients=weights, rho=[0.125],
                     support_vectors=[a for v in vectors for a in v])
        for kind, kernel in KERNELS.items():
            sums = [dot(weights, [kernel(row, v) for v in vectors]) + 0.125 for row in x]
            for one, wanted in ((0, sums), (1, [math.copysign(1, s) for s in sums])):
                with self.subTest(kernel=kind, one_class=one):
                    y = self.compute("SVMRegressor", "y", matrix(x), kernel_type=kind, one_class=one, **given)
                    self.close(y["y"].values, wanted)

    def classifier(self, owners):
        """The attributes of support vectors on a circle, which belong to these classes."""
        count, angles = owners[-1] + 1, [2.1 * owner + 0.2 * k for k, owner in enumerate(owners)]
        weights = [(1 + 0.1 * k + 0.3 * row) * (1 if row >= owner else -1)
                   for row in range(count - 1) for k, owner in enumerate(owners)]
        return dict(kernel_type="RBF", kernel_params=[0.5, 0.0, 0.0], coefficients=weights,
                    support_vectors=[f(angle) for angle in angles for f in (math.cos, math.sin)],
                    rho=[0.1, -0.2, 0.05][:count * (count - 1) // 2], classlabels_ints=[7, 3, 5][:count],
                    vectors_per_class=[owners.count(i) for i in range(count)])

    def pair_sums(self, given, owners, pairs, row):
        """Of the kernels of both classes' vectors, with their weights for the other class."""
        vectors, weights = given["support_vectors"], given["coefficients"]
        near = [KERNELS["RBF"](row, vectors[2 * k:2 * k + 2]) for k in range(len(owners))]
        return [b + sum(weights[(j - 1 if owner == i else i) * len(owners) + k] * near[k]
                        for k, owner in enumerate(owners) if owner in (i, j))
                for (i, j), b in zip(pairs, given["rho"])]

    def test_classifiers_of_support_vectors(self):
        """Each pair's sum is a vote. Far away each of 3 classes has one. For 2 classes the scores are -sum
        and sum."""
        x = [(1.5 * math.sin(5.0 * i), math.cos(7.0 * i)) for i in range(40)] + [(50.0, 50.0)]
        for owners in ([0, 0, 1, 2, 2], [0, 0, 1, 1]):
            given, count = self.classifier(owners), owners[-1] + 1
            pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
            sums = [self.pair_sums(given, owners, pairs, row) for row in x]
            won = [[pair[y <= 0] for pair, y in zip(pairs, s)] for s in sums]
            labels = [given["classlabels_ints"][max(range(count), key=own.count)] for own in won]
            self.assertEqual(len(set(labels)), count)
            y = self.compute("SVMClassifier", "label s", matrix(x), **given)
            self.assertEqual(list(y["label"].values), labels)
            self.close(y["s"].values, [z for s in sums for z in (s if count > 2 else (-s[0], s[0]))])
            given.update(prob_a=[-2.0] * len(pairs), prob_b=[0.3] * len(pairs))
            y = self.compute("SVMClassifier", "label p", matrix(x), **given)
            self.assertEqual(list(y["label"].values), labels)
            chances = [coupled([1 / (1 + math.exp(0.3 - 2.0 * z)) for z in s], pairs, count) for s in sums]
            self.close(y["p"].values, [z for p in chances for z in p])

    def test_gaps_are_filled(self):
        nan, inf = math.nan, math.inf
        holes = [(1.0, nan), (nan, 2.0), (inf, 4.0)]
        for x, gap, fill, wanted in (
                (holes, nan, [7.0], [1, 7, 7, 2, inf, 4]), (holes, nan, [7.0, 8.0], [1, 8, 7, 2, inf, 4]),
                ([(1.0, 4.0)], 4.0, [0.5], [1, 0.5]), ([(1.0, inf)], inf, [0.5], [1, 0.5])):
            given = dict(imputed_value_floats=fill, replaced_value_float=gap)
            self.assertEqual(list(self.compute("Imputer", "y", matrix(x), **given)["y"].values), wanted)
        x = Array("int64", (2, 2), [2 ** 40, -1, 5, 2 ** 40 + 1])
        y = self.compute("Imputer", "y", x, imputed_value_int64s=[3], replaced_value_int64=2 ** 40)["y"]
        self.assertEqual(list(y.values), [3, -1, 5, 2 ** 40 + 1])

    def test_classes_become_columns(self):
        x = Array("int64", (2, 2), [2 ** 40, -1, 5, 2 ** 40 + 1])
        y = self.compute("OneHotEncoder", "y", x, cats_int64s=[5, 2 ** 40])["y"]
        self.assertEqual((y.shape, list(y.values)), ((2, 2, 2), [0, 1, 0, 0, 1, 0, 0, 0]))
        y = self.compute("OneHotEncoder", "y", matrix([(5.0, 4.5)]), cats_int64s=[4, 5])["y"]
        self.assertEqual(list(y.values), [0, 1, 0, 0])

    def test_what_is_refused(self):
        for part, one in (
                ("ai.onnx.ml.CategoryMapper 'the_y': gpunn has no counterpart of this op",
                 node("ai.onnx.ml.CategoryMapper", "x", "y")),
                ("only 2 or more labels", node("ai.onnx.ml.SVMClassifier", "x", "y p")),
                ("classes that are texts", node("ai.onnx.ml.OneHotEncoder", "x", "y", cats_strings=[b"a"])),
                ("2 coefficients and 0 numbers rho",
                 node("ai.onnx.ml.SVMRegressor", "x", "y", n_supports=1, coefficients=[1.0, 2.0])),
                ("3 numbers are no 1 support vectors of 2 features", node(
                    "ai.onnx.ml.SVMRegressor", "x", "y", n_supports=1, coefficients=[1.0], rho=[0.0],
                    support_vectors=[1.0, 2.0, 3.0])),
                ("4 coefficients and 0 intercepts are no regressor of 2 features",
                 node("ai.onnx.ml.LinearRegressor", "x", "y", coefficients=[1.0, 2.0, 3.0, 4.0])),
                ("post_transform PROBIT is not possible",
                 node("ai.onnx.ml.LinearRegressor", "x", "y", coefficients=[1.0, 2.0],
                      post_transform="PROBIT")),
                ("0 class labels are given",
                 node("ai.onnx.ml.LinearClassifier", "x", "y p", coefficients=[1.0, 2.0])),
                ("no ops of the domain com.x", node("com.x.Scaler", "x", "y"))):
            with self.subTest(part):
                self.refused(model([one], [value("x", ["N", 2])], [value("y", ["N", 1])]), part)


class BadFiles(Import):
    def test_everything_is_listed(self):
        data = model([node("Det", "x", "a"), node("NonMaxSuppression", "a", "b"), node("Unique", "x", "y"),
                      node("BitCast", "x", "z"), node("Add", "b y", "w")], [value("x", ["N", 3])],
                     [value("w", [1]), value("z", [1])])
        found = self.refused(data, "3 operations of net cannot be imported")
        self.assertEqual(found.problems, ["Det 'the_a': gpunn has no counterpart of this op",
                                          "Unique 'the_y': gpunn has no counterpart of this op",
                                          "BitCast 'the_z': gpunn has no counterpart of this op"])

    def test_each(self):
        x, y = [value("x", [2])], [value("y", [2])]

        def stored(**fields):
            return model([node("Add", "x w", "y")], x, y,
                         [Message(TENSOR, name="w", dims=[2], data_type=1, **fields)])

        def entries(**given):
            return [Message(ENTRY, key=key, value=text) for key, text in given.items()]

        for part, data in (
                ("it reads 'b', which nothing before it computes",
                 model([node("Relu", "b", "y"), node("Relu", "y", "b")], x, y)),
                ("it is of opset 99; opsets 6 to", model([node("Relu", "x", "y")], x, y, opset=99)),
                ("it is of opset 3; opsets 6 to", model([node("Relu", "x", "y")], x, y, opset=3)),
                ("it holds no ONNX model", b""), ("unknown wire type", b"not a model at all"),
                ("outside what holds it", small()[:-3]),
                ("has 4 bytes", stored(raw_data=bytes(4))), ("has 0 values", stored()),
                ("lies outside the model's folder",
                 stored(data_location=1, external_data=entries(location="../w.bin"))),
                ("lies outside the model's folder",
                 stored(data_location=1, external_data=entries(location="/etc/passwd"))),
                ("cannot be read", stored(data_location=1, external_data=entries(location="none.bin"))),
                ("no number as offset",
                 stored(data_location=1, external_data=entries(location="w", offset="4x"))),
                ("are wanted, which has",
                 stored(data_location=1, external_data=entries(location="model.onnx", offset="99999"))),
                ("its operand 'x' is of string",
                 model([node("Relu", "x", "y")], [value("x", [2], "string")], y)),
                ("no ops of the domain",
                 model([Message(NODE, op_type="Add", domain="com.x", input=["x"], output=["y"])], x, y)),
                ("2^24", model([node("BitShift", "x w", "y", direction="LEFT")], [value("x", [1], "int64")],
                               [value("y", [1], "int64")], [tensor("w", (1,), [1 << 25], "int64")])),
                ("the output 'y': another output has its name", model([node("Relu", "x", "y")], x, y + y)),
                ("the output '': it has no name", model([node("Relu", "x", "y")], x, y + [value("", [2])])),
                ("the input 'x'", model([node("Relu", "x", "y")], [value("x", [0])], y))):
            with self.subTest(part=part):
                self.refused(data, part)

    def test_sizes_that_vary_as_numbers(self):
        for kind in "int64", "float32":
            data = model([node("Shape", "x", "s"), node("Cast", "s", "y", to=NUMBERS[kind])],
                         [value("x", ["N", "T"])], [value("y", [2], kind)])
            self.refused(data, "a size that varies is used as a number", dynamic=True)

    def test_operands_of_several_kinds(self):
        """ONNX has no such models. They are computed in floats."""
        mixed = [value("x", [2], "uint8"), value("w", [2], "int8")]
        for op, reads in (("Min", "x w"), ("Max", "x w"), ("Clip", "x w"), ("Clip", "x x w")):
            with self.subTest(op=op, reads=reads):
                self.imported(model([node(op, reads, "y")], mixed, [value("y", [2], "uint8")]))

    def test_what_no_protocol_buffer_can_be(self):
        path = self.write(b"")
        os.truncate(path, (1 << 31) + 1)  # sparse, so it takes no space on the disk
        with self.assertRaises(onnx_file.OnnxError) as caught:
            import_onnx.import_model(path, self.path("net"))
        self.assertIn("larger than 2 GiB", str(caught.exception))
        self.assertEqual(os.listdir(self.folder), ["model.onnx"])

    def test_depth_is_bounded(self):
        part = protobuf.write(graph([node("Relu", "x", "y")], [], []))
        for _ in range(100):  # an attribute with a graph within a node within a graph ...
            part = protobuf.write(Message({1: ("node", "bytes")}, node=protobuf.write(
                Message({5: ("attribute", "bytes")},
                        attribute=protobuf.write(Message({6: ("g", "bytes")}, g=part))))))
        data = protobuf.write(Message({7: ("graph", "bytes")}, graph=part))
        self.refused(data, "nested deeper than")

    def test_the_command_prints_what_it_wrote(self):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            import_onnx.main([self.write(small()), "-o", self.path("net")])
        wrote, after = text.getvalue().splitlines()
        self.assertEqual(wrote, f'Wrote {self.path("net.json")} and {self.path("net.safetensors")}. '
                         'Inputs: "x" f32 [N, 3]')
        self.assertTrue(after.startswith(f'Next: build/run_model {self.path("net.json")} --weights '), after)

    def test_the_command_ends_with_one_sentence(self):
        text = io.StringIO()
        with contextlib.redirect_stderr(text), self.assertRaises(SystemExit) as caught:
            import_onnx.main([self.path("none.onnx"), "-o", self.path("net")])
        self.assertIn("No such file", str(caught.exception))


class Files(Import):
    def test_safetensors_and_npz(self):
        head = b"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n"
        npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + struct.pack("<6f", *range(6))
        self.assertEqual(tensor_files.read_npy(npy, "x").values, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0])
        for bad in (npy[:-1], npy[:9], b"\x93NUMPY" + bytes(20), npy.replace(b"<f4", b"|O4"),
                    npy.replace(b"(2, 3), }", b"(9e999,)}"), npy.replace(b"(2, 3)", b"(6.0,)")):
            with self.assertRaises(tensor_files.FileError):
                tensor_files.read_npy(bad, "x")
        sizes = [b'{"a": {"dtype": "U8", "shape": [%s], "data_offsets": [0, 1]}}' % size
                 for size in (b"1e999", b"1.0", b"-1", b"true")]
        for bad in (b"", struct.pack("<Q", 1 << 60), struct.pack("<Q", 2) + b"[]",
                    struct.pack("<Q", 8) + b'{"a": 1}',
                    *(struct.pack("<Q", len(one)) + one + b"\0" for one in sizes)):
            with self.assertRaises(tensor_files.FileError):
                tensor_files.read_safetensors(self.write(bad, "bad"))


@unittest.skipUnless(importlib.util.find_spec("onnx") and importlib.util.find_spec("numpy"),
                     "the package onnx is not here")
class Suite(Import):
    """The cases of ONNX's own backend suite. onnx_suite.py prints the whole table."""

    def run_suite(self, *words):
        if not os.path.exists(RUN_MODEL):
            self.skipTest("build/run_model is not there: ninja build/run_model")
        done = subprocess.run([sys.executable, os.path.join(HERE, "onnx_suite.py")] + list(words),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        row = re.search(r"^\| \S+, (\d+) \| (\d+) \| \d+ \| \d+ \| (\d+) \| (\d+) \| (\d+) \|$", done.stdout,
                        re.M)
        self.assertTrue(row, done.stdout[-2000:])
        total, passed, refused, wrong, crashed = map(int, row.groups())
        self.assertEqual((wrong, crashed, passed + refused), (0, 0, total), done.stdout[-4000:])
        return passed

    def test_nodes(self):
        self.assertGreaterEqual(self.run_suite("--kind", "node"), 1470)

    def test_pytorch(self):
        self.assertGreaterEqual(self.run_suite("--kind", "pytorch-operator"), 31)
        self.assertGreaterEqual(self.run_suite("--kind", "pytorch-converted"), 82)

    def test_simple_and_light(self):
        self.assertGreaterEqual(self.run_suite("--kind", "simple"), 7)
        self.assertGreaterEqual(self.run_suite("--kind", "light"), 9)

    def test_check(self):
        import numpy
        numpy.savez(self.path("x.npz"), x=numpy.random.rand(4, 3).astype(numpy.float32))
        words = [self.write(small()), "-o", self.path("net"), "--check", self.path("x.npz")]
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            import_onnx.main(words)
        self.assertRegex(text.getvalue(), "\ny: largest difference .* of its largest value\n$")
        with contextlib.redirect_stdout(text), self.assertRaisesRegex(SystemExit, "differ by more than"):
            import_onnx.main(words + ["--tolerance", "-1"])


class Peers(Import):
    """Models that other programs have written, with their results."""

    def compare(self, wanted, **inputs):
        """wanted: arrays in the order of the outputs."""
        import numpy
        given = {name: Array(x.dtype.name, x.shape, raw=numpy.ascontiguousarray(x).tobytes())
                 for name, x in inputs.items()}
        for (name, got), expected in zip(self.run_model(**given).items(), wanted):
            got, scale = (numpy.array(got.values).reshape(got.shape),
                          max(1e-3, float(numpy.abs(expected).max())))
            self.assertLess(float(numpy.abs(got - expected.reshape(got.shape)).max()) / scale, 1e-5, name)

    @unittest.skipUnless(importlib.util.find_spec("onnxscript") and importlib.util.find_spec("torch"),
                         "PyTorch or its exporter's package onnxscript is not here")
    def test_pytorchs_exporters(self):
        import logging
        import warnings

        import torch
        from tests.generator import zoo
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        warnings.simplefilter("ignore")
        for name in ("mlp_highway", "lenet", "resnet", "gpt", "vit", "transformer_encoder_layer", "masked"):
            # the older one rejects it
            for dynamo in (True, False) if name != "transformer_encoder_layer" else (True,):
                with self.subTest(model=name, dynamo=dynamo):
                    module, inputs, loss, _ = zoo.make(name)
                    inputs = inputs[:-1] if loss else inputs
                    names = ["in%d" % i for i in range(len(inputs))]
                    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                        torch.onnx.export(module.eval(), inputs, self.path("model.onnx"), input_names=names,
                                          dynamo=dynamo)
                    import_onnx.import_model(self.path("model.onnx"), self.path("net"), batch="none")
                    with torch.no_grad():
                        result = module(*inputs)
                    wanted = [x.numpy() for x in (result if isinstance(result, (list, tuple)) else [result])]
                    self.compare(wanted, **{key: x.numpy() for key, x in zip(names, inputs)})

    @unittest.skipUnless(importlib.util.find_spec("skl2onnx"), "the package skl2onnx is not here")
    def test_scikit_learn(self):
        import numpy
        from sklearn import ensemble, impute, linear_model, neural_network, pipeline, preprocessing, svm, tree
        from skl2onnx import to_onnx
        numbers = numpy.random.RandomState(1)
        x = numbers.rand(60, 5).astype(numpy.float32)
        y, classes = x @ numpy.arange(5) - x[:, 0] * x[:, 1], (x[:, 1] * 3).astype(int) + 2
        scaled = pipeline.make_pipeline
        for kind in (linear_model.LinearRegression(),
                     scaled(preprocessing.StandardScaler(), linear_model.Ridge()),
                     scaled(preprocessing.Normalizer(), linear_model.Lasso(0.01)),
                     scaled(preprocessing.MinMaxScaler(), linear_model.LogisticRegression()),
                     scaled(impute.SimpleImputer(), svm.SVR()),
                     scaled(preprocessing.QuantileTransformer(n_quantiles=9), linear_model.Ridge()),
                     svm.SVC(probability=True), svm.NuSVR(kernel="sigmoid"),
                     tree.DecisionTreeRegressor(), ensemble.RandomForestClassifier(9),
                     ensemble.GradientBoostingClassifier(n_estimators=5),
                     neural_network.MLPRegressor(hidden_layer_sizes=(8, 5), activation="tanh", max_iter=30),
                     scaled(preprocessing.RobustScaler(),
                            neural_network.MLPClassifier(hidden_layer_sizes=(7,), max_iter=200))):
            with self.subTest(str(kind)):
                probable = hasattr(kind, "predict_proba")
                kind.fit(x, classes if probable else y)
                self.write(to_onnx(kind, x[:1]).SerializeToString())
                import_onnx.import_model(self.path("model.onnx"), self.path("net"))
                wanted = [kind.predict(x)] + ([kind.predict_proba(x)] if probable else [])
                self.compare(wanted, X=x)


if __name__ == "__main__":
    unittest.main()
