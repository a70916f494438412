"""The importer of KANN's models, against what KANN computes of them (make_kann.py), and bad files."""
import base64
import contextlib
import io
import json
import math
import os
import struct

from generator import import_kann, spec
from generator.exchange.arrays import Array
from tests.generator.test_import_onnx import HERE, Import

with open(os.path.join(HERE, "expected", "kann.json"), encoding="ascii") as made:
    CASES = json.load(made)


class Kann(Import):
    def written(self, data):
        return self.write(data, "net.kann")

    def file_of(self, name):
        return base64.b64decode(CASES[name]["file"])

    def run_importer(self, data, steps=0):
        """What the importer says, besides the files that it writes."""
        notes = io.StringIO()
        with contextlib.redirect_stderr(notes):
            import_kann.main([self.written(data), "-o", self.path("net")] +
                             (["--steps", str(steps)] if steps else []))
        return notes.getvalue()

    def refused_with(self, data, *words, steps=0):
        with self.assertRaises(SystemExit) as caught:
            self.run_importer(data, steps)
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertEqual(os.listdir(self.folder), ["net.kann"])

    def test_values_are_those_of_kann(self):
        for name, case in CASES.items():
            notes = self.run_importer(self.file_of(name), case["steps"])
            self.assertEqual("dropout" in notes, name == "mlp")
            with open(self.path("net.json"), encoding="ascii") as file:
                written = json.load(file)
            self.assertEqual(written["loss"], "cost")
            with open(self.path("net.json"), "w", encoding="ascii") as file:
                json.dump(dict(written, outputs=["output", "cost"]), file)
            shapes = {one["name"]: [case["samples"] if size == "N" else size for size in one["shape"]]
                      for one in written["tensors"] if one["op"] == "input"}
            found = self.run_model(**{key: Array("float32", shape, case[key][:math.prod(shape)])
                                      for key, shape in shapes.items()})
            for key in ("output", "cost"):
                self.assertEqual(len(found[key].values), len(case[key]))
                for value, wanted in zip(found[key].values, case[key]):
                    self.assertTrue(abs(value - wanted) <= 1e-6 * max(1, abs(wanted)), (name, key))

    def test_variables_train_and_constants_do_not(self):
        for name, case in CASES.items():
            self.run_importer(self.file_of(name), case["steps"])
            trained = [t for t in spec.load(self.path("net.json")).tensors if t.kind == "parameter" and
                       t.trainable]
            self.assertEqual(sum(math.prod(t.shape) for t in trained), case["variables"], name)

    def test_layers_have_names(self):
        self.run_importer(self.file_of("conv2d"))
        names = [t.name for t in spec.load(self.path("net.json")).tensors if t.kind == "parameter"]
        self.assertEqual(names, ["conv1.weight", "conv2.weight", "linear1.weight", "linear1.bias"])

    def test_what_does_not_fit_is_refused(self):
        self.refused_with(self.file_of("mlp"), "no pivot", "--steps", steps=3)
        self.refused_with(b"KAN\2" + bytes(20), "this is no model of KANN")
        self.refused_with(self.file_of("mlp") + b"\0", "1 bytes follow its numbers")
        for size in range(0, len(self.file_of("mlp")), 13):
            self.refused_with(self.file_of("mlp")[:size], "net.kann: ")
        padded = bytearray(self.file_of("conv2d"))
        place = padded.find(struct.pack("<4i", 2, 2, 0, 0))  # of the pool: kernel, stride, padding
        padded[place + 8] = 1
        self.refused_with(bytes(padded), "max2d", "padding before the first cell")
