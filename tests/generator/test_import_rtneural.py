"""The importer of RTNeural's JSON files, against what RTNeural computes (make_rtneural.py), and bad files."""
import contextlib
import copy
import io
import json
import os

from generator import import_rtneural, import_torch
from generator.exchange import tensor_files
from generator.exchange.arrays import Array
from generator.exchange.tensor_files import FileError
from tests.generator.test_import_onnx import HERE, Import

with open(os.path.join(HERE, "expected", "rtneural.json"), encoding="ascii") as made:
    CASES = json.load(made)


class RTNeural(Import):
    def written(self, model):
        return self.write(json.dumps(model).encode(), "model.json")

    def run_importer(self, model, *arguments):
        notes = io.StringIO()
        with contextlib.redirect_stderr(notes):
            import_rtneural.main([self.written(model), "-o", self.path("net"), *arguments])
        return notes.getvalue()

    def refused_with(self, model, *words):
        with self.assertRaises(SystemExit) as caught:
            import_rtneural.main([self.written(model), "-o", self.path("net")])
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertEqual(os.listdir(self.folder), ["model.json"])

    def test_values_are_those_of_rtneural(self):
        """In one call of any length, and two samples at once."""
        for name, case in CASES.items():
            shape = case["model"]["in_shape"][2:]
            steps = len(case["input"]) // (shape[0] * (shape + [1])[1])
            for arguments in ((), ("--length", str(steps))):
                self.assertEqual(self.run_importer(case["model"], *arguments), "")
                x = Array("float32", [2, steps] + shape, case["input"] * 2)
                found = self.run_model(input=x)["output"]
                self.assertEqual(found.shape[:2], (2, steps))
                self.assertEqual(len(found.values), 2 * len(case["output"]))
                for value, wanted in zip(found.values, case["output"] * 2):
                    self.assertTrue(abs(value - wanted) <= 2e-6 * max(1, abs(wanted)), name)

    def test_slopes_of_several_steps(self):
        model = copy.deepcopy(CASES["dense"]["model"])
        model["layers"][1]["weights"] = [model["layers"][1]["weights"][0] + [[1.0] * 4]]
        self.assertIn("layers.1: the slopes of the first step are taken for all", self.run_importer(model))
        case = CASES["dense"]
        x = Array("float32", [1, len(case["input"]) // 3, 3], case["input"])
        found = self.run_model(input=x)["output"]
        self.assertTrue(all(abs(x - y) <= 2e-6 for x, y in zip(found.values, case["output"])))

    def test_a_state_dict(self):
        path = self.write(b'{"fc.weight": [[1.5, -2], [3, 4]], "fc.bias": [0.25]}', "state.json")
        self.assertEqual(import_torch.convert(path, self.path("out")), [])
        found = tensor_files.read_safetensors(self.path("out"))
        self.assertEqual({name: (x.shape, x.values) for name, x in found.items()},
                         {"fc.weight": ((2, 2), [1.5, -2.0, 3.0, 4.0]), "fc.bias": ((1,), [0.25])})
        for text, part in ((b'{"w": [[1], [1, 2]]}', "lists are of the lengths [1, 2]"),
                           (b'{"w": ["1"]}', "more than numbers"), (b"[1]", "holds no model"),
                           (b"{", "this is no JSON"), (b"[" * 100000, "this is no JSON")):
            with self.assertRaises(FileError) as caught:
                import_torch.convert(self.write(text, "state.json"), self.path("other"))
            self.assertIn(part, str(caught.exception))
            self.assertFalse(os.path.exists(self.path("other")))

    def test_what_does_not_fit_is_refused(self):
        for change, words in (
                ({"type": "unknown"}, ["layer 0, unknown", "no counterpart"]),
                ({"activation": "swish"}, ["layer 0, time-distributed-dense", "no activation 'swish'"]),
                ({"weights": [[[1.0, 2.0]] * 9]}, ["its weights are [9, 2] for [3] features"]),
                ({"weights": []}, ["layer 0, time-distributed-dense"])):
            model = copy.deepcopy(CASES["dense"]["model"])
            model["layers"][0].update(change)
            self.refused_with(model, *words)
        self.refused_with({"layers": []}, "an in_shape of 2 to 4 sizes")
        self.refused_with({"in_shape": [None, None, "x"], "layers": []}, "its in_shape is")
