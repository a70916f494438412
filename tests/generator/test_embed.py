"""NAME_embedded.h: a program without files computes the same as with the weights' file, for any type of
numbers."""
import array
import contextlib
import io
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from generator import emit_embedded, spec
from generator.exchange import gguf, tensor_files
from generator.exchange.arrays import Array
from generator.exchange.blocks import FORMATS
from tests import tensor_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPEC = """{"gpunn_spec": 1, "name": "tiny", "tensors": [
  {"op": "input", "name": "x", "shape": ["N", 2]},
  {"op": "linear", "name": "fc", "inputs": ["x"], "out_features": 3},
  {"op": "batch_norm1d", "name": "bn", "inputs": ["fc"]}],
  "outputs": ["bn"], "optimizer": {"type": "sgd", "lr": 0.1}}"""
WEIGHTS = {"fc.weight": ((3, 2), [1.0, 2.0, -3.0, 0.5, 1 / 3, 1 / 7]),
           "fc.bias": ((3,), [0.25, -1.0, 1 / 11]),
           "bn.weight": ((3,), [1.0, 1.0, 2.0]), "bn.bias": ((3,), [0.0, 1.0, 0.0]),
           "bn.running_mean": ((3,), [0.0, 0.0, 0.0]), "bn.running_var": ((3,), [1.0, 1.0, 1.0])}
PROGRAM = """
#include "%(name)s_embedded.h"
#include <stdio.h>
int main(void)
{
    const float x[2] = {1, 2};
    float y[3];
    %(name)s_tensors t;
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 1);
    gpunn_model *model = %(name)s_load(dev, &t);
    if (model == NULL || gpunn_write(t.x, x, sizeof x) || gpunn_forward(&t.bn, 1) ||
        gpunn_read(t.bn, y, sizeof y))
        puts(gpunn_error(dev));
    else printf("%%.9g %%.9g %%.9g\\n", (double)y[0], (double)y[1], (double)y[2]);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return 0;
}
"""


class Embedded(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        with open(self.path("net.json"), "w") as file:
            file.write(SPEC)
        self.save(WEIGHTS)

    def path(self, name):
        return os.path.join(self.folder, name)

    def save(self, weights):
        tensors = {name: ("F32", list(shape), struct.pack("<%df" % len(values), *values))
                   for name, (shape, values) in weights.items()}
        tensors["bn.num_batches_tracked"] = ("I64", [], bytes(8))
        tensor_file.save(self.path("w.safetensors"), tensors)

    def call(self, command, **more):
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True, **more)

    def embed(self, *words):
        return self.call([sys.executable, "-m", "generator", "--embed", self.path("net.json"),
                          self.path("w.safetensors"), *words], cwd=ROOT)

    def refused(self, *sentence):
        done = self.embed("-o", self.path("tiny"))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(done.stdout.count("\n"), 1)
        for part in sentence:
            self.assertIn(part, done.stdout)

    def expected(self, round_to):
        w = {name: [round_to(value) for value in values] for name, (_, values) in WEIGHTS.items()}
        rows = [w["fc.weight"][2 * i] + 2 * w["fc.weight"][2 * i + 1] + w["fc.bias"][i] for i in range(3)]
        return [row / (1 + 1e-5) ** 0.5 * w["bn.weight"][i] + w["bn.bias"][i] for i, row in enumerate(rows)]

    def test_programs(self):
        def through(dtype):
            def rounded(value):
                data = emit_embedded.converted(Array("float32", (1,), [value]), dtype, "")
                return struct.unpack("<f", emit_embedded.converted(
                    Array({"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype], (1,), raw=data),
                    "F32", ""))[0]
            return rounded

        build = self.call(["cc", "-O0", "-std=c99", "-DGPUNN_IMPLEMENTATION", "-x", "c", "-c",
                           os.path.join(ROOT, "gpunn.h"), "-o", "gpunn.o"], cwd=self.folder)
        self.assertEqual(build.returncode, 0, build.stdout)
        for store, dtype in (None, "F32"), ("f16", "F16"), ("bf16", "BF16"):
            name = "tiny_%s" % (store or "same")
            done = self.embed("-o", self.path(name), *(["--store", store] if store else []))
            self.assertEqual((done.returncode, done.stdout), (0, ""))
            with open(self.path(name + ".c"), "w") as file:
                file.write(PROGRAM % {"name": name})
            for compiler in ["cc", "-std=c99"], ["c++", "-std=c++17", "-x", "c++"]:
                done = self.call([*compiler, "-Wall", "-Wextra", "-Werror", "-I" + ROOT, "-fsyntax-only",
                                  name + ".c"], cwd=self.folder)
                self.assertEqual((done.returncode, done.stdout), (0, ""))
            done = self.call(["cc", "-std=c99", "-I" + ROOT, name + ".c", "gpunn.o", "-o", name, "-lm",
                              "-lpthread"], cwd=self.folder)
            self.assertEqual(done.returncode, 0, done.stdout)
            os.rename(self.path("w.safetensors"), self.path("away"))
            done = self.call([self.path(name)], cwd=self.folder)
            os.rename(self.path("away"), self.path("w.safetensors"))
            for got, wanted in zip(map(float, done.stdout.split()), self.expected(through(dtype))):
                self.assertLess(abs(got - wanted), 2e-6 * max(1, abs(wanted)), (store, done.stdout))
            check = self.embed("-o", self.path(name), "--check", *(["--store", store] if store else []))
            self.assertEqual((check.returncode, check.stdout), (0, ""))

    def test_rounding(self):
        pairs = {0x3F808000: 0x3F80, 0x3F818000: 0x3F82, 0x3F808001: 0x3F81, 0x7F7FFFFF: 0x7F80,
                 0x7F800001: 0x7FC0, 0x80000000: 0x8000, 0xFF800000: 0xFF80}
        for bits, half in pairs.items():
            data = emit_embedded.converted(Array("float32", (1,), raw=struct.pack("<I", bits)), "BF16", "")
            self.assertEqual(struct.unpack("<H", data)[0], half, hex(bits))

    def test_other_types(self):
        """Integers are kept, or rounded to the type of --store."""
        tensors = {name: ("F32", list(shape), struct.pack("<%df" % len(values), *values))
                   for name, (shape, values) in WEIGHTS.items()}
        tensors["fc.bias"] = ("I8", [3], struct.pack("<3b", -1, 0, 127))
        tensor_file.save(self.path("w.safetensors"), tensors)
        done = self.embed("-o", self.path("tiny"))
        self.assertEqual(done.returncode, 0)
        self.assertIn("w.safetensors: 1 tensor became floats without a scale; the first is 'fc.bias' of type "
                      "I8", done.stdout)
        for store, kind in (None, "int8"), ("BF16", "bfloat16"):
            with contextlib.redirect_stderr(io.StringIO()), open(self.path("kept"), "wb") as file:
                file.write(emit_embedded.archive(spec.load(self.path("net.json")), self.path("w.safetensors"),
                                                 store))
            kept = tensor_files.read_safetensors(self.path("kept"))["fc.bias"]
            self.assertEqual((kept.kind, kept.values), (kind, [-1, 0, 127]))

    def test_blocks(self):
        """Blocks of a .gguf, and of a model's file, are embedded as they are."""
        with open(self.path("net.json"), "w") as file:
            file.write(SPEC.replace('"N", 2', '"N", 32'))
        values = array.array("f", [math.sin(i) for i in range(96)])
        tensors = {name: (0, shape, struct.pack("<%df" % len(numbers), *numbers))
                   for name, (shape, numbers) in WEIGHTS.items()}
        blocks = FORMATS["Q4_0"].encode(values)
        tensors["fc.weight"] = FORMATS["Q4_0"].number, (3, 32), blocks
        gguf.write(self.path("w.gguf"), tensors, {})
        source = spec.load(self.path("net.json"))
        for path in self.path("w.gguf"), self.path("w.gpunn"):
            data = emit_embedded.archive(source, path, None)
            with open(self.path("w.gpunn"), "wb") as file:
                file.write(data)
            self.assertIn(blocks, data)
            self.assertIn(b'"dtype":"U8","shape":[3,18]', data)
            found = tensor_files.read_safetensors(self.path("w.gpunn"))["fc.weight"]
            self.assertEqual((found.shape, found.data), ((3, 32), blocks))
            self.assertEqual(found.values, FORMATS["Q4_0"].decode(blocks).tolist())
            floats = emit_embedded.archive(source, path, "F32")
            self.assertIn(FORMATS["Q4_0"].decode(blocks).tobytes(), floats)
        for old, new in (b'"Q4_0"', b'"Q9_0"'), (b'"Q4_0"', b'"Q8_0"'):
            with open(self.path("bad.gpunn"), "wb") as file:
                file.write(data.replace(old, new))
            with self.assertRaisesRegex(tensor_files.FileError, "bad.gpunn"):
                tensor_files.read_safetensors(self.path("bad.gpunn"))

    def test_refusals(self):
        self.save({name: value for name, value in WEIGHTS.items() if name != "fc.bias"})
        self.refused("w.safetensors lacks 'fc.bias'")
        self.save(dict(WEIGHTS, **{"fc.bias": ((1, 3), [0, 0, 0])}))
        self.refused("'fc.bias' in", "is F32 [1, 3], but must be [3]")
        self.save(dict(WEIGHTS, **{"fc.bias": ((3,), [1e6, 0, 0])}))
        self.assertIn("'fc.bias' has a value that F16 cannot hold",
                      self.embed("-o", self.path("tiny"), "--store", "f16").stdout)
        with open(self.path("w.safetensors"), "wb") as file:
            file.write(b"PK\3\4 no such file")
        self.refused("w.safetensors: this is no safetensors file")
        self.assertEqual(sorted(os.listdir(self.folder)), ["net.json", "w.safetensors"])
        for words, part in ((["--report"], "leave out"),
                            (["-o", self.path("tiny"), "--math", "fast"], "leave out"), ([], "-o NAME")):
            done = self.embed(*words)
            self.assertEqual(done.returncode, 2)
            self.assertIn(part, done.stdout)
        done = self.call([sys.executable, "-m", "generator", self.path("net.json"), "-o", "x", "--store",
                          "f16"], cwd=ROOT)
        self.assertEqual(done.returncode, 2)

    def test_the_command_in_the_file_renews_it(self):
        self.assertEqual(self.embed("-o", self.path("tiny"), "--store", "bf16").returncode, 0)
        with open(self.path("tiny_embedded.h")) as file:
            self.assertIn("python3 -m generator net.json -o tiny --embed --store bf16 --weights "
                          "w.safetensors\n", file.read())


if __name__ == "__main__":
    unittest.main()
