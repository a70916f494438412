"""A model as one file, NAME.gpunn: the generator, run_model and the converters read and write it as they do
the two files, whose bytes it gives."""
import array
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from generator import export_onnx, floats, import_onnx, spec
from generator.exchange import header, spec_writer
from generator.json_text import SpecError
from tests import tensor_file

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


class OneFile(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        golden = tensor_file.load(os.path.join(HERE, "expected", "pytorch", "mlp.safetensors"))
        weights = {name[len("weight/"):]: t for name, t in golden.items() if name.startswith("weight/")}
        tensor_file.save(self.path("in.safetensors"),
                         {name[len("in/"):]: t for name, t in golden.items() if name.startswith("in/")})
        with open(os.path.join(HERE, "expected", "pytorch", "mlp.json"), encoding="ascii") as file:
            self.text = file.read()
        for name in "net", "net.gpunn":
            spec_writer.save_model(self.path(name), self.text, weights)

    def path(self, name):
        return os.path.join(self.folder, name)

    def bytes_of(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def generator(self, *words):
        done = subprocess.run([sys.executable, "-m", "generator", *words], cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True)
        return done.returncode, done.stdout

    def test_the_spec_is_the_same(self):
        one, two = (spec.load(self.path(name)) for name in ("net.gpunn", "net.json"))
        self.assertEqual(one.sha256(), two.sha256())

    def test_embedded(self):
        two = self.generator("--embed", self.path("net.json"), self.path("net.safetensors"), "-o",
                             self.path("net"))
        first = self.bytes_of("net_embedded.h")
        one = self.generator("--embed", self.path("net.gpunn"), "-o", self.path("net"))
        self.assertEqual((two[0], one[0]), (0, 0), one[1])

        def without_command(data):
            return [line for line in data.splitlines() if b"-m generator" not in line and b"net." not in line]
        self.assertEqual(without_command(first), without_command(self.bytes_of("net_embedded.h")))

    def test_to_onnx_and_back(self):
        export_onnx.main([self.path("net.json"), self.path("net.safetensors"), "-o", self.path("two.onnx")])
        export_onnx.main([self.path("net.gpunn"), "-o", self.path("one.onnx")])
        self.assertEqual(self.bytes_of("two.onnx"), self.bytes_of("one.onnx"))
        import_onnx.main([self.path("one.onnx"), "-o", self.path("again")])
        import_onnx.main([self.path("one.onnx"), "-o", self.path("again.gpunn")])
        self.assertEqual(header.spec_in(self.path("again.gpunn")), self.bytes_of("again.json"))
        self.assertEqual(tensor_file.load(self.path("again.gpunn")),
                         tensor_file.load(self.path("again.safetensors")))

    def test_run_model(self):
        program = os.path.join(ROOT, "build", "run_model")
        for words in ([self.path("net.gpunn")],
                      [self.path("net.json"), "--weights", self.path("net.safetensors")]):
            out = self.path("out%d.safetensors" % len(words))
            done = subprocess.run([program, *words, "--input", self.path("in.safetensors"), "--output", out],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
            self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.bytes_of("out1.safetensors"), self.bytes_of("out3.safetensors"))

    def test_python_opens_it(self):
        try:
            from safetensors import safe_open
        except ImportError:
            raise unittest.SkipTest("safetensors is not installed") from None
        with safe_open(self.path("net.gpunn"), "numpy") as file:
            self.assertEqual(file.metadata()["gpunn_spec"], self.text)
            self.assertEqual(set(file.keys()), set(tensor_file.load(self.path("net.safetensors"))))

    def test_pytorch_writes_it(self):
        try:
            import torch
        except ImportError:
            raise unittest.SkipTest("PyTorch is not installed") from None
        from generator.export_torch import export
        net, x = torch.nn.Linear(3, 2), torch.zeros(4, 3)
        export(net, (x,), self.path("t.json"), self.path("t.safetensors"))
        export(net, (x,), self.path("t.gpunn"), None)
        self.assertEqual(header.spec_in(self.path("t.gpunn")), self.bytes_of("t.json"))
        self.assertEqual(tensor_file.load(self.path("t.gpunn")), tensor_file.load(self.path("t.safetensors")))

    def test_of_8_bits(self):
        """A file of gpunn_quantize, which tests/unit/quantized.c writes: integers -127 .. 127, and the scale
        of each row."""
        path = os.path.join(ROOT, "tests", "golden", "quantized.gpunn")
        model, tensors = spec.load(path), tensor_file.load(path)
        named = {t.name: t for t in model.tensors}
        self.assertEqual([t.op for t in model.tensors if t.op.startswith("quant") or t.op == "dequantize"],
                         ["quantize_per_tensor", "quantized_conv2d", "quantized_conv2d", "quantized_conv2d",
                          "quantized_add", "quantized_linear", "dequantize"])
        self.assertEqual({t.dtype for t in model.tensors if t.op in ("max_pool2d", "concat", "permute")},
                         {"u8"})
        for k, layer in enumerate(("stem", "left", "right", "head")):
            dtype, shape, rows = tensors["int8:%s.weight" % layer]
            scales = array.array("f", tensors[layer + ".weight_scale"][2])
            self.assertEqual((dtype, tuple(shape)), ("I8", named[layer + ".weight"].shape))
            width = len(rows) // len(scales)
            for i, byte in enumerate(array.array("b", rows)):
                row = [j * (5 + k) % 17 - 8 for j in range(i // width * width, (i // width + 1) * width)]
                scale = floats.f32(max(map(abs, row)) / 127)
                self.assertEqual((byte, scales[i // width]),
                                 (round(floats.f32(row[i % width] / scale)), scale))

    def test_hostile(self):
        data = self.bytes_of("net.gpunn")
        for bad, sentence in ((data[:200], "cut off"),
                              (data.replace(b"gpunn_spec", b"gpunn_sp\xff\xff", 1), "header")):
            with open(self.path("bad.gpunn"), "wb") as file:
                file.write(bad)
            with self.assertRaisesRegex(SpecError, sentence):
                spec.load(self.path("bad.gpunn"))
        with self.assertRaisesRegex(SpecError, "no model"):
            spec.load(self.path("net.safetensors"))
        status, text = self.generator("--embed", self.path("net.safetensors"), "-o", self.path("net"))
        self.assertEqual(status, 1)
        self.assertIn("no model", text)


if __name__ == "__main__":
    unittest.main()
