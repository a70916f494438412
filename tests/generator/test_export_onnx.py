"""The exporter to ONNX: PyTorch's models are exported and imported again. If the package onnx is installed,
its checker and reference evaluator are used."""
import glob
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest
import warnings

from generator import export_onnx, import_onnx, table
from generator.exchange import onnx_file, protobuf, tensor_files
from generator.exchange.arrays import Array
from generator.exchange.spec_writer import Refused, save_safetensors
from tests import tensor_file
from tests.generator.test_run_model import difference

HERE = os.path.dirname(os.path.abspath(__file__))
RUN_MODEL = os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "run_model")
EXPECTED = os.path.join(HERE, "expected", "pytorch")
NAMES = sorted(os.path.basename(path)[:-5] for path in glob.glob(os.path.join(EXPECTED, "*.json")))
REFUSED = {"losses_classes": "label_smoothing", "mlp_residual": "label_smoothing",
           "pools": "windows are of one size", "resizes": "windows are of one size",
           "sized_image": "sizes that vary", "sized_masks": "sizes that vary",
           "sized_cuts": "sizes that vary", "sized_rotations": "sizes that vary",
           "sized_text": "sizes that vary", "decomposed": "cross 'cross': ONNX has no counterpart",
           "scans": "logcumsumexp 'logcumsumexp': ONNX has no counterpart"}
# What onnx's reference evaluator cannot compute: ONNX Runtime does, with the same result.
BEYOND_REFERENCE = ("generator_dcgan", "inception", "recurrent", "resampled")
TOLERANCE = 1e-4


class Export(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def golden(self, name, part):
        """The tensors of a part of a golden file."""
        tensors = tensor_files.read_safetensors(os.path.join(EXPECTED, name + ".safetensors"))
        return {key[len(part):]: x for key, x in tensors.items() if key.startswith(part)}

    def export(self, name):
        save_safetensors(self.path("w"),
                         {key: tensor_files.for_gpunn(x) for key, x in self.golden(name, "weight/").items()})
        export_onnx.export(os.path.join(EXPECTED, name + ".json"), self.path("w"), self.path("m.onnx"))

    def run_model(self, name):
        """The outputs of a model of this test's folder."""
        done = subprocess.run([RUN_MODEL, self.path(name + ".json"), "--weights",
                               self.path(name + ".safetensors"), "--input",
                               self.path("in"), "--output", self.path("out")], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        return tensor_files.read_safetensors(self.path("out"))

    def export_integers(self):
        """All ops of integers, on tensors and with numbers; the inputs, and gpunn's results."""
        entries = [{"op": "input", "name": name, "dtype": dtype, "shape": ["N", 6]}
                   for name, dtype in (("a", "i64"), ("b", "i64"), ("c", "i32"), ("d", "u8"))]
        for op, (count, _) in table.integers().items():
            for operands in (["a", "b", "c"], ["d", "c", "c"], ["c", "a", "d"]):
                entries.append({"op": "integer", "name": "%s_%s" % (op, operands[0]),
                                "inputs": operands[:count], "operation": op})
            if count > 1:
                entries.append({"op": "integer", "name": op + "_number", "inputs": ["b"] * (count - 1),
                                "operation": op, "value": -3})
        names = [entry["name"] for entry in entries[4:]]
        with open(self.path("m.json"), "w") as file:
            json.dump({"gpunn_spec": 1, "name": "m", "tensors": entries, "outputs": names}, file)
        inputs = {"a": Array("int64", (1, 6), [7, -7, 2 ** 53 + 1, -1, 0, -2 ** 40]),
                  "b": Array("int64", (1, 6), [-2, 3, 7, -2 ** 53 - 1, 5, 2 ** 40]),
                  "c": Array("int32", (1, 6), [3, -3, 2 ** 30, -1, 1, 2]),
                  "d": Array("uint8", (1, 6), [1, 2, 255, 200, 3, 9])}
        inputs["a"].values[4] = 1  # nothing is divided by 0
        save_safetensors(self.path("in"), {key: tensor_files.for_gpunn(x) for key, x in inputs.items()})
        save_safetensors(self.path("m.safetensors"), {})
        export_onnx.export(self.path("m.json"), self.path("m.safetensors"), self.path("m.onnx"))
        return inputs, {name: list(x.values) for name, x in self.run_model("m").items()}

    def check_results(self, name, results):
        """results: (dtype, shape, values) by name."""
        for key, x in self.golden(name, "eval/").items():
            if key in results:
                error = difference(results[key], tensor_files.for_gpunn(x))
                self.assertTrue(error <= TOLERANCE, "%s differs by %.2g" % (key, error))


class Golden(Export):
    def test_sizes_that_vary_are_refused(self):
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected", "vectors",
                            "sized_sequences.json")
        with self.assertRaisesRegex(Refused, "sizes that vary besides the batch"):
            export_onnx.export(path, os.devnull, self.path("m.onnx"))

    def test_what_onnx_lacks_is_named(self):
        for name, part in REFUSED.items():
            with self.subTest(model=name), self.assertRaisesRegex(Refused, part):
                self.export(name)
            self.assertFalse(os.path.exists(self.path("m.onnx")))

    def test_resets_are_refused(self):
        entries = [{"op": "input", "name": "x", "shape": [5, 2, 3]},
                   {"op": "input", "name": "m", "shape": [5, 2]},
                   {"op": "parameter", "name": "a", "shape": [24, 3]},
                   {"op": "parameter", "name": "b", "shape": [24, 8]}]
        entries.append({"op": "gru", "id": "y", "inputs": ["x"], "weights": ["a", "b"], "reset": "m"})
        with open(self.path("m.json"), "w") as file:
            json.dump({"gpunn_spec": 1, "tensors": entries, "outputs": ["y"]}, file)
        save_safetensors(self.path("w"), {})
        with self.assertRaisesRegex(Refused, "gru 'y': ONNX has no resets within a sequence"):
            export_onnx.export(self.path("m.json"), self.path("w"), self.path("m.onnx"))

    def test_bounds_are_clips(self):
        """In other forms, runtimes compute them apart from the convolution before them."""
        bounds = {"relu6": {}, "hardtanh": {"min_val": -2.0, "max_val": 3.0}, "clamp": {"max": 1.5}}
        entries = [{"op": "input", "name": "x", "dtype": "f32", "shape": ["N", 3]}]
        entries += [dict(given, op=op, name=op + "_of_x", inputs=["x"]) for op, given in bounds.items()]
        with open(self.path("m.json"), "w") as file:
            json.dump({"gpunn_spec": 1, "name": "m", "tensors": entries,
                       "outputs": [entry["name"] for entry in entries[1:]]}, file)
        save_safetensors(self.path("w"), {})
        export_onnx.export(self.path("m.json"), self.path("w"), self.path("m.onnx"))
        with open(self.path("m.onnx"), "rb") as file:
            graph = protobuf.read(file.read(), onnx_file.MODEL).graph
        values = {x.name: x.raw_data for x in graph.initializer}
        found = [[struct.unpack("<f", values[name])[0] if name else None for name in node.input[1:]]
                 for node in graph.node if node.op_type == "Clip"]
        self.assertEqual(found, [[0, 6], [-2, 3], [None, 1.5]])
        self.assertEqual({node.op_type for node in graph.node}, {"Clip", "Identity"})

    @unittest.skipUnless(os.path.exists(RUN_MODEL), "build/run_model is not there: ninja build/run_model")
    def test_there_and_back(self):
        for name in NAMES:
            if name in REFUSED:
                continue
            with self.subTest(model=name):
                self.export(name)
                import_onnx.import_model(self.path("m.onnx"), self.path("back"))
                save_safetensors(self.path("in"), {key: tensor_files.for_gpunn(x)
                                                   for key, x in self.golden(name, "in/").items()})
                self.check_results(name, {key: tensor_files.for_gpunn(x)
                                          for key, x in self.run_model("back").items()})

    @unittest.skipUnless(os.path.exists(RUN_MODEL), "build/run_model is not there: ninja build/run_model")
    def test_integers_there_and_back(self):
        _, expected = self.export_integers()
        import_onnx.import_model(self.path("m.onnx"), self.path("back"))
        for name, x in self.run_model("back").items():
            self.assertEqual(list(x.values), expected[name], name)


@unittest.skipUnless(importlib.util.find_spec("onnx") and importlib.util.find_spec("numpy"),
                     "the package onnx is not here")
class Reference(Export):
    def evaluated(self, inputs):
        """The results by name, from ONNX Runtime if it is installed, else from the reference evaluator."""
        import numpy
        import onnx
        model = onnx.load(self.path("m.onnx"))
        onnx.checker.check_model(model, full_check=True)
        kinds = {"float32": "f4", "int64": "i8", "int32": "i4", "uint8": "u1", "bool": "?"}
        given = {x.name: numpy.frombuffer(inputs[x.name].encoded(),
                                          kinds[inputs[x.name].kind]).reshape(inputs[x.name].shape)
                 for x in model.graph.input}
        for values in self.runs(model, given):
            dtypes = {"float32": "F32", "int64": "I64", "int32": "I32", "bool": "BOOL", "uint8": "U8"}
            yield {x.name: (dtypes[value.dtype.name], value.shape, value.tobytes())
                   for x, value in zip(model.graph.output, values)}

    def runs(self, model, given):
        from onnx.reference import ReferenceEvaluator
        if importlib.util.find_spec("onnxruntime"):
            import onnxruntime
            yield onnxruntime.InferenceSession(self.path("m.onnx")).run(None, given)
        if self.name not in BEYOND_REFERENCE:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield ReferenceEvaluator(model).run(None, given)

    @unittest.skipUnless(os.path.exists(RUN_MODEL), "build/run_model is not there: ninja build/run_model")
    def test_integers(self):
        self.name = "integers"
        inputs, expected = self.export_integers()
        for results in self.evaluated(inputs):
            for name, x in results.items():
                self.assertEqual([int(value) for value in tensor_file.values(x)],
                                 [int(value) for value in expected[name]], name)

    def test_each(self):
        for self.name in NAMES:
            if self.name in REFUSED:
                continue
            with self.subTest(model=self.name):
                self.export(self.name)
                for results in self.evaluated(self.golden(self.name, "in/")):
                    self.check_results(self.name, results)


if __name__ == "__main__":
    unittest.main()
