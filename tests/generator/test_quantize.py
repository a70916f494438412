"""generator.quantize: blocks against those of GGUF's own package (tests/golden/blocks.safetensors, and, where
it is installed, the package), which tensors stay as they are, and wrong arguments."""
import array
import contextlib
import importlib.util
import io
import math
import os
import random
import struct
import tempfile
import unittest

from generator import quantize
from generator.exchange import gguf as files
from generator.exchange.blocks import FORMATS
from generator.floats import bf16
from tests import tensor_file

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden",
                      "blocks.safetensors")
SHORT = [name for name in FORMATS if name[-1] in "01"]  # their bits are known


def random_floats(count, seed=1):
    chance = random.Random(seed)
    return array.array("f", [chance.gauss(0, 10 ** chance.randrange(-4, 2)) for _ in range(count)])


class Blocks(unittest.TestCase):
    def test_expected_blocks(self):
        golden = tensor_file.load(GOLDEN)
        values = tensor_file.values(golden["values"])
        self.assertEqual(SHORT, ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
        for name, one in FORMATS.items():
            blocks = golden[name + "/blocks"][2]
            self.assertEqual(one.decode(blocks).tobytes(), golden[name + "/values"][2], name)
            whole = len(values) // one.length * one.length
            self.assertEqual(one.encode(values[:whole]), golden[name + "/rounded"][2], name)

    @unittest.skipUnless(importlib.util.find_spec("gguf"), "the package gguf is not here")
    def test_blocks_of_the_package(self):
        import gguf
        import numpy
        values = random_floats(320 * 32)
        rows = numpy.frombuffer(values, dtype=numpy.float32).reshape(-1, 64)
        for name in SHORT:
            wanted = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[name])
            self.assertEqual(FORMATS[name].encode(values), wanted.tobytes(), name)

    def test_numbers_that_are_not_finite(self):
        for name, one in FORMATS.items():
            for bad, scale in ((math.nan, math.isnan), (math.inf, math.isinf), (-math.inf, math.isinf),
                               (3e38, math.isinf)):
                block = one.encode(array.array("f", [1.0] * (one.length - 1) + [bad]))
                self.assertEqual(len(block), one.bytes)
                at = one.bytes - 2 if name == "Q6_K" else 0
                self.assertTrue(scale(struct.unpack_from("<e", block, at)[0]), (name, bad))

    def test_searched_scales(self):
        """Errors of normal numbers, by their size, are those of ggml, which are below those of blocks of 32
        with as many bits. Equal numbers and those on the grid of a format come back."""
        chance = random.Random(5)
        values = array.array("f", [chance.gauss(0, 0.02) for _ in range(8 * 256)])
        for name, most in (("Q4_K", 0.0725), ("Q5_K", 0.0362), ("Q6_K", 0.0181), ("IQ4_NL", 0.0755)):
            one = FORMATS[name]
            found = one.decode(one.encode(values))
            error = math.sqrt(sum((a - b) ** 2 for a, b in zip(found, values)) / sum(a * a for a in values))
            self.assertLess(error, most, name)
            self.assertGreater(error, 0.9 * most, name)
            for number in 0.0, 0.5, -0.5, 1e-20:
                most = 2e-3 * abs(number) if abs(number) > 1e-7 else 1e-19
                for got in one.decode(one.encode(array.array("f", [number] * 256))):
                    self.assertLessEqual(abs(got - number), most)
        grid = array.array("f", [0.25 * (i % 16) - 1 for i in range(256)])
        for one in FORMATS["Q4_K"], FORMATS["Q5_K"]:
            for got, wanted in zip(one.decode(one.encode(grid)), grid):
                self.assertLessEqual(abs(got - wanted), 2e-3)

    def test_16_bits(self):
        values = array.array("f", [0.1, -1e30, 65519, 65520, math.nan, math.inf, 1e-40, 3.4e38])
        halves = struct.unpack("<8e", quantize.to_f16(values))
        self.assertEqual(halves[1:4], (-math.inf, 65504, math.inf))
        self.assertTrue(math.isnan(halves[4]) and halves[0] == struct.unpack("<e", struct.pack("<e", 0.1))[0])
        wide = array.array("f", array.array("I", [
            bits << 16 for bits in array.array("H", quantize.to_bf16(values))]).tobytes())
        for value, found in zip(values, wide):
            self.assertTrue(found == bf16(value) or math.isnan(value) and math.isnan(found), value)


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = lambda name: os.path.join(folder.name, name)

    def run_command(self, *arguments):
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            quantize.main([self.path("w.safetensors"), "-o", self.path("w.gguf"), *arguments])
        return told.getvalue()

    def test_which_tensors_are_rounded(self):
        values = random_floats(6 * 64)
        tensors = {"w": ("F32", [6, 64], values.tobytes()), "conv": ("F32", [2, 3, 64], values.tobytes()),
                   "odd": ("F32", [12, 32 - 1], values[:12 * 31].tobytes()),
                   "bias": ("F32", [64], values[:64].tobytes()),
                   "embed": ("F32", [2, 64], values[:128].tobytes()),
                   "count": ("I64", [2, 1], struct.pack("<2q", 1, -2)),
                   "half": ("BF16", [1, 32], bytes(range(64)))}
        tensor_file.save(self.path("w.safetensors"), tensors)
        self.assertEqual(self.run_command("--to", "q4_0", "--keep", "emb*"),
                         "3 of 7 tensors are q4_0; 0.0 MB were 0.0 MB\n")
        found = files.read(self.path("w.gguf"))
        block = FORMATS["Q4_0"]
        self.assertEqual(found["w"].shape, (6, 64))
        for name in "w", "conv":
            self.assertEqual(found[name].values, block.decode(block.encode(values)).tolist())
        for name in "odd", "bias", "embed", "count":
            self.assertEqual(found[name].encoded(), tensors[name][2])
        for to in "f16", "bf16", "q8_0":
            self.run_command("--to", to)
            self.assertEqual(files.read(self.path("w.gguf"))["bias"].encoded(), tensors["bias"][2])

    def test_wrong_arguments(self):
        with self.assertRaisesRegex(SystemExit, "No such file"):
            self.run_command()
        with open(self.path("w.safetensors"), "wb") as file:
            file.write(b"\x00" * 20)
        with self.assertRaisesRegex(SystemExit, "w.safetensors"):
            self.run_command()
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            self.run_command("--to", "q2_k")


if __name__ == "__main__":
    unittest.main()
