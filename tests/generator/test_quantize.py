"""generator.quantize: blocks against those of GGUF's own package and of bitsandbytes, which
tests/golden/blocks.py has written, and, where it is installed, GGUF's package. Which tensors stay as they
are, and wrong arguments."""
import array
import contextlib
import importlib.util
import io
import json
import math
import os
import random
import struct
import tempfile
import unittest

from generator import quantize
from generator.exchange import gguf as files, tensor_files
from generator.exchange.blocks import FORMATS
from generator.floats import bf16
from tests import tensor_file

BITSANDBYTES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden",
                            "bitsandbytes.safetensors")
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
                if name == "NF4":  # its scale is F32
                    self.assertEqual(scale(struct.unpack_from("<f", block)[0]), bad != 3e38)
                    continue
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
        # ties to even, and the NaN of the smallest number
        bits = array.array("I", [0x3f808000, 0x3f818000, 0x3f828000, 0xbf838000, 0x3f808001, 0x7f800001])
        self.assertEqual(array.array("H", quantize.to_bf16(array.array("f", bits.tobytes()))).tolist(),
                         [0x3f80, 0x3f82, 0x3f82, 0xbf84, 0x3f81, 0x7fc0])


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
                   "bytes": ("U8", [2, 2], bytes((0, 1, 128, 255))),
                   "half": ("BF16", [1, 32], bytes(range(64)))}
        tensor_file.save(self.path("w.safetensors"), tensors)
        self.assertEqual(self.run_command("--to", "q4_0", "--keep", "emb*"),
                         "3 q4_0 of 8 tensors; 0.0 MB were 0.0 MB\n")
        found = files.read(self.path("w.gguf"))
        block = FORMATS["Q4_0"]
        self.assertEqual(found["w"].shape, (6, 64))
        for name in "w", "conv":
            self.assertEqual(found[name].values, block.decode(block.encode(values)).tolist())
        for name in "odd", "bias", "embed", "count":
            self.assertEqual(found[name].encoded(), tensors[name][2])
        self.assertEqual((found["bytes"].kind, found["bytes"].values), ("float32", [0, 1, 128, 255]))
        for to in "f16", "bf16", "q8_0":
            self.run_command("--to", to)
            self.assertEqual(files.read(self.path("w.gguf"))["bias"].encoded(), tensors["bias"][2])

    def saved(self, name):
        """The tensors that bitsandbytes saved for one weight, whose numbers come with them."""
        found = {key: x for key, x in tensor_file.load(BITSANDBYTES).items() if key.split(".")[0] == name}
        return found, tensor_file.values(tensor_file.load(BITSANDBYTES)["values/" + name])

    def test_weights_of_bitsandbytes(self):
        """All its numbers come back from a .safetensors; its own blocks of 64 stay as they are."""
        tensors = tensor_file.load(BITSANDBYTES)
        values = {name: tensor_file.values(tensors.pop("values/" + name))
                  for name in ("plain", "double", "wide", "odd")}
        names = list(tensors)
        for part, keys in ("a", names[:7]), ("b", names[7:]):
            tensor_file.save(self.path(part + ".safetensors"), {key: tensors[key] for key in keys})
        with open(self.path("w.index.json"), "w", encoding="utf-8") as file:
            json.dump({"weight_map": {key: "ab"[key in names[7:]] + ".safetensors" for key in names}}, file)
        with contextlib.redirect_stderr(io.StringIO()):
            quantize.main([self.path("w.index.json"), "--to", "nf4", "-o", self.path("out.safetensors")])
        found = tensor_files.read(self.path("out.safetensors"))
        self.assertEqual(sorted(found), ["bias", "double", "odd", "plain", "wide"])
        for name, wanted in values.items():
            self.assertEqual(found[name].f32_bytes(), wanted.tobytes(), name)
            self.assertEqual(getattr(found[name], "format", None), None if name == "odd" else "NF4")
        packed = tensors["plain"][2]
        self.assertEqual(b"".join([found["plain"].data[i + 4:i + 36] for i in range(0, 12 * 36, 36)]), packed)

    def test_damaged_weights_of_bitsandbytes(self):
        def state(**changes):
            key = "double.quant_state.bitsandbytes__nf4"
            text = json.dumps({**json.loads(tensors[key][2]), **changes}).encode()
            return key, ("U8", [len(text)], text)
        tensors, _ = self.saved("double")
        half = "U8", [150], bytes(150)
        for key, one in (state(shape=[5, 64]), state(shape=5), state(blocksize=0), state(blocksize=32),
                         state(nested_blocksize=0), state(nested_offset=[]), ("double.absmax", half),
                         ("double.quant_map", tensors["double.nested_quant_map"]),
                         ("double.nested_absmax", ("F32", [1], bytes(4))), ("double.nested_quant_map", None),
                         ("double.quant_state.bitsandbytes__nf4", half)):
            changed = {**tensors, key: one}
            tensor_file.save(self.path("w.safetensors"), {name: x for name, x in changed.items() if x})
            with self.assertRaisesRegex(SystemExit, "w.safetensors: its 4-bit weights are not"):
                self.run_command("--to", "q8_0")
        tensors["double.quant_state.bitsandbytes__fp4"] = half
        tensor_file.save(self.path("w.safetensors"), tensors)
        with self.assertRaisesRegex(SystemExit, "'double' is FP4; quantise the model again"):
            self.run_command("--to", "q8_0")
        for text in "{}", "[]", '{"weight_map": {"a": "/etc/passwd"}}', '{"weight_map": {"a": 3}}':
            with open(self.path("w.index.json"), "w", encoding="utf-8") as file:
                file.write(text)
            with self.assertRaisesRegex(SystemExit, "w.index.json: this is no index of safetensors"):
                quantize.main([self.path("w.index.json"), "-o", self.path("w.gguf")])

    def test_blocks_in_safetensors(self):
        values = random_floats(6 * 64)
        tensor_file.save(self.path("w.safetensors"), {
            "w": ("F32", [6, 64], values.tobytes()), "bias": ("BF16", [3], bytes(range(6)))})
        with self.assertRaisesRegex(SystemExit, "GGUF has no NF4; write a .safetensors"):
            self.run_command("--to", "nf4")
        for to in "bf16", "nf4", "q4_0":
            quantize.convert(self.path("w.safetensors"), self.path("out.safetensors"), to)
            found = tensor_files.read(self.path("out.safetensors"))
            self.assertEqual(found["bias"].encoded(), bytes(range(6)))
            if to == "bf16":
                self.assertEqual(found["w"].encoded(), quantize.to_bf16(values))
            else:
                self.assertEqual(found["w"].data, FORMATS[to.upper()].encode(values))
                self.assertEqual(list(found), ["bias", "w"])  # blocks last
        # blocks that are given are kept, or rounded to another format
        for to, wanted in ("q4_0", found["w"].data), ("q8_0", FORMATS["Q8_0"].encode(found["w"].values)):
            quantize.convert(self.path("out.safetensors"), self.path("w.safetensors"), to)
            self.assertEqual(tensor_files.read(self.path("w.safetensors"))["w"].data, wanted)

    def test_rows_that_are_no_blocks_of_256(self):
        values = random_floats(256)
        tensors = {"whole": ("F32", [1, 256], values.tobytes()), "rest": ("F32", [4, 64], values.tobytes()),
                   "odd": ("F32", [16, 16], values.tobytes())}
        tensor_file.save(self.path("w.safetensors"), tensors)
        for to, other in ("q4_k", "q5_0"), ("q5_k", "q5_1"), ("q6_k", "q8_0"):
            self.assertEqual(self.run_command("--to", to).split(";")[0], f"1 {to}, 1 {other} of 3 tensors")
            found = files.read(self.path("w.gguf"))
            for name, kind in ("whole", to), ("rest", other):
                block = FORMATS[kind.upper()]
                self.assertEqual(found[name].values, block.decode(block.encode(values)).tolist())
            self.assertEqual(found["odd"].encoded(), tensors["odd"][2])

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
