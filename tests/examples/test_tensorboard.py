"""examples/tensorboard.h writes the bytes that TensorBoard writes (expected_output/tensorboard.tfevents,
make_tensorboard.py), and its reader takes them."""
import json
import os
import subprocess
import tempfile
import unittest

from tests.examples import EXPECTED, ROOT, program

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    EventAccumulator = None


def run(folder, *spec):
    return subprocess.run([program("board"), folder, *spec], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=60)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self):
        done = run(self.folder)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""))

    def test_bytes(self):
        with open(os.path.join(EXPECTED, "tensorboard.tfevents"), "rb") as file:
            want = file.read()
        for count in range(1, 4):  # even within one second, no file replaces another
            self.write()
            names = os.listdir(self.folder)
            self.assertEqual(len(names), count)
            for name in names:
                self.assertIn("tfevents", name)
                with open(os.path.join(self.folder, name), "rb") as file:
                    self.assertEqual(file.read(), want)

    @unittest.skipUnless(EventAccumulator, "tensorboard is not installed")
    def test_reader(self):
        self.write()
        events = EventAccumulator(self.folder, size_guidance={"histograms": 0})
        events.Reload()
        self.assertEqual([(e.step, round(e.value, 6)) for e in events.Scalars("loss/train")], [(3, 0.5)] * 2)
        self.assertEqual([e.value for e in events.Scalars("accuracy/validation")], [0.5])
        histogram = events.Histograms("weights")[0]
        self.assertEqual((histogram.step, histogram.histogram_value.num,
                          sum(histogram.histogram_value.bucket)), (7, 255, 255))

    def graph(self, spec):
        path = os.path.join(self.folder, "net.json")
        with open(path, "w") as file:
            file.write(spec if isinstance(spec, str) else json.dumps(spec))
        done = run(self.folder, path)
        os.remove(path)
        self.assertEqual(done.stdout, b"")
        return done

    @unittest.skipUnless(EventAccumulator, "tensorboard is not installed")
    def test_graph(self):
        """TensorBoard's reader has the spec's tensors, what each reads, and its settings."""
        folder = os.path.join(ROOT, "tests", "generator", "expected", "vectors")
        specs = []
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                specs.append(json.load(file))
        specs.append({"tensors": [{"op": "input", "name": "a.b", "shape": ["N", 3]},
                                  {"op": "relu", "id": "t\u00e9:1", "inputs": ["a.b"]},
                                  {"op": "gru", "name": "g", "inputs": ["t\u00e9:1"], "weights": ["a.b"],
                                   "h_0": "a.b", "mode": "x\"\\"}]})
        for spec in specs:
            done = self.graph(spec)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            events = EventAccumulator(self.folder)
            events.Reload()
            clean = lambda name: name.replace(".", "/").replace(":", "_").replace("^", "_")
            nodes = events.Graph().node
            self.assertEqual([node.name for node in nodes],
                             [clean(tensor.get("name") or tensor.get("id") or f"({i})")
                              for i, tensor in enumerate(spec["tensors"])])
            for node, tensor in zip(nodes, spec["tensors"]):
                self.assertEqual(node.op, tensor["op"])
                settings = {key: json.loads(value.s) for key, value in node.attr.items()}
                rest = {key: value for key, value in tensor.items() if key in settings}
                self.assertEqual(settings, rest)
                named = [name for key, value in tensor.items() if key not in ("op", "name", "id") and
                         key not in settings
                         for name in (value.values() if isinstance(value, dict) else
                                      value if isinstance(value, list) else [value])]
                self.assertEqual(list(node.input), [clean(name) for name in named])
                self.assertFalse(settings.get("inputs"))
            for name in os.listdir(self.folder):
                os.remove(os.path.join(self.folder, name))

    def test_bad_graph(self):
        for spec, sentence in (
                ("{", "a string is expected here"), ("[]", "an object, {...}, is expected here"),
                ('{"tensors": [3]}', "an object, {...}, is expected here"),
                ('{"tensors": [{"op": 3}]}', "a string is expected here"),
                ('{"tensors": [{"op": "relu", "inputs": ["x", []]}]}', "a string is expected here"),
                ('{"tensors": [{"op": "relu", "x": tru', "is expected here")):
            done = self.graph(spec)
            self.assertEqual(done.returncode, 1)
            self.assertIn(sentence, done.stderr.decode())
        done = run(self.folder, os.path.join(self.folder, "none.json"))
        self.assertIn("cannot open", done.stderr.decode())

    def test_no_folder(self):
        done = run(os.path.join(self.folder, "none"))
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertRegex(done.stderr.decode(), r"^cannot write '.*none/events\.out\.tfevents\.\d+\.000': No "
                         r"such file or directory\n$")


if __name__ == "__main__":
    unittest.main()
