"""examples/register3d.c: its losses are PyTorch's (expected_output/register3d.json, make_register3d.py), it
finds a known deformation, reads and writes its files, and names what is wrong with them."""
import gzip
import json
import math
import os
import re
import struct
import subprocess
import tempfile
import unittest

from tests.examples import EXPECTED, program
from tests.examples.register3d_pair import SIZE, pair

PROGRAM = program("register3d")
EXPECTED = os.path.join(EXPECTED, "register3d.json")
TYPES = {"u8": (2, "B"), "i8": (256, "b"), "i16": (4, "h"), "u16": (512, "H"), "i32": (8, "i"),
         "u32": (768, "I"), "f32": (16, "f"), "f64": (64, "d")}


def nifti(values, size=SIZE, kind="u8", order="<", slope=0.0, intercept=0.0, offset=352, dim=None,
          magic=b"n+1\0"):
    code, letter = TYPES.get(kind, (kind, "B"))
    dim = dim or (3, size[2], size[1], size[0], 1, 1, 1, 1)
    header = bytearray(352)
    struct.pack_into(order + "i", header, 0, 348)
    struct.pack_into(order + "8h", header, 40, *dim)
    struct.pack_into(order + "hh", header, 70, code, 8 * struct.calcsize(letter))
    struct.pack_into(order + "8f", header, 76, 1, 1.5, 2, 2.5, 1, 1, 1, 1)
    struct.pack_into(order + "3f", header, 108, offset, slope, intercept)
    struct.pack_into(order + "h", header, 254, 2)
    struct.pack_into(order + "12f", header, 280, *range(12))
    header[344:348] = magic
    padding = bytes(int(offset) - 352) if 352 < offset < 1 << 20 else b""
    return bytes(header) + padding + struct.pack(order + str(len(values)) + letter, *values)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name, data=None):
        path = os.path.join(self.folder, name)
        if data is not None:
            with open(path, "wb") as file:
                file.write(data)
        return path

    def run_program(self, *arguments):
        return subprocess.run([PROGRAM, "--out", self.path("out"), *map(str, arguments)],
                              stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, timeout=120)

    def losses(self, *arguments):
        done = self.run_program("--losses", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return [float(x) for x in re.findall(r"^step \d+: loss (\S+)$", done.stdout, re.M)]

    def pair(self, **options):
        return [self.path(name, nifti(values, **options))
                for name, values in zip(("moving.nii", "fixed.nii"), pair())]


class Values(Case):
    def test_losses_are_pytorchs(self):
        with open(EXPECTED, encoding="ascii") as file:
            golden = json.load(file)
        for name, case in golden.items():
            with self.subTest(name):
                options = [word for key, value in case["options"].items() for word in ("--" + key, value)]
                got = self.losses(*self.pair(), *options)
                self.assertEqual(len(got), len(case["losses"]))
                scale = max(map(abs, case["losses"]))
                for step, (a, b) in enumerate(zip(got, case["losses"])):
                    self.assertLess(abs(a - b), 1e-4 * scale,
                                    "step %d: %.9g, PyTorch's %.9g" % (step + 1, a, b))
                self.assertLess(got[-1], got[0])

    def test_all_threads_give_the_same_bits(self):
        runs = [self.losses(*self.pair(), "--steps", 5, "--levels", 1, "--threads", threads)
                for threads in (1, 3)]
        self.assertEqual(*runs)

    def test_finds_the_known_deformation(self):
        done = self.run_program("--synthetic", 24, "--steps", 60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        before, after = [float(x) for x in re.findall(r"mean ([0-9.]+)", done.stdout)]
        self.assertLess(after, before / 3)


class Files(Case):
    def test_types_and_byte_orders(self):
        expected = self.losses(*self.pair(), "--steps", 2, "--levels", 1)
        for kind in TYPES:
            for order in "<>":
                with self.subTest(kind=kind, order=order):
                    if kind == "i8":
                        moving, fixed = pair()
                        files = [self.path(n, nifti([x - 100 for x in v], kind=kind, order=order, slope=1.0,
                                                    intercept=100.0, offset=400))
                                 for n, v in (("a.nii", moving), ("b.nii", fixed))]
                    else:
                        files = self.pair(kind=kind, order=order, slope=0.5, offset=368)
                    got = self.losses(*files, "--steps", 2, "--levels", 1)
                    self.assertLess(max(abs(a - b) for a, b in zip(got, expected)), 1e-5)

    def test_raw_voxels(self):
        files = [self.path(name, struct.pack("<%dH" % len(v), *v))
                 for name, v in zip(("a.raw", "b.raw"), pair())]
        got = self.losses(*files, "--size", "x".join(map(str, SIZE)), "--type", "u16", "--steps", 2,
                          "--levels", 1)
        self.assertEqual(got, self.losses(*self.pair(), "--steps", 2, "--levels", 1))

    def test_compressed(self):
        files = [self.path(name + ".gz", gzip.compress(nifti(v)))
                 for name, v in zip(("a.nii", "b.nii"), pair())]
        got = self.losses(*files, "--steps", 2, "--levels", 1)
        self.assertEqual(got, self.losses(*self.pair(), "--steps", 2, "--levels", 1))

    def test_results(self):
        self.losses(*self.pair(order=">"), "--steps", 3, "--levels", 1)
        count = math.prod(SIZE)
        with open(self.path("out/register3d_warped.nii"), "rb") as file:
            data = file.read()
        self.assertEqual(struct.unpack_from("<8h", data, 40), (3, SIZE[2], SIZE[1], SIZE[0], 1, 1, 1, 1))
        self.assertEqual(struct.unpack_from("<8f", data, 76)[:4], (1, 1.5, 2, 2.5))
        self.assertEqual(struct.unpack_from("<h12f", data, 254)[:1] + struct.unpack_from("<12f", data, 280),
                         (2, *range(12)))
        warped = struct.unpack("<%df" % count, data[352:])
        self.assertTrue(0 <= min(warped) < max(warped) <= 1)
        with open(self.path("out/register3d_field.nii"), "rb") as file:
            data = file.read()
        self.assertEqual(struct.unpack_from("<8h", data, 40), (5, SIZE[2], SIZE[1], SIZE[0], 1, 3, 1, 1))
        self.assertEqual(struct.unpack_from("<h", data, 68), (1007,))
        field = struct.unpack("<%df" % (3 * count), data[352:])
        self.assertTrue(0 < max(map(abs, field)) < 0.4)  # three steps of 0.1 voxels
        for name in ("out/register3d_before.png", "out/register3d_after.png"):
            with open(self.path(name), "rb") as file:
                self.assertEqual(struct.unpack(">8x8xII", file.read(24)),
                                 (3 * max(SIZE[1:]), SIZE[1] + 2 * SIZE[0]))


class BadInput(Case):
    def refused(self, sentence, *arguments, status=1):
        done = self.run_program(*arguments)
        self.assertEqual(done.returncode, status)
        self.assertIn(sentence, done.stderr)
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("out")], [])

    def test_sizes_differ(self):
        moving = self.pair()[0]
        other = self.path("other.nii", nifti(pair()[1][:12 * 15 * 17], (12, 15, 17)))
        self.refused("moving.nii is 12 x 15 x 18 and %s 12 x 15 x 17: resample one of them, sizes must be "
                     "equal" % other, moving, other)

    def test_headers(self):
        fixed = self.pair()[1]
        values = pair()[0]
        many = [4, SIZE[2], SIZE[1], SIZE[0], 2, 1, 1, 1]
        cases = {
            "shorter than a NIfTI-1 header": nifti(values)[:200],
            "not a NIfTI-1 file in one piece": nifti(values, magic=b"ni1\0"),
            "dim[0] is not 3 to 7": nifti(values, dim=(2, 18, 180, 1, 1, 1, 1, 1)),
            "several volumes": nifti(values, dim=many),
            "a size is below 1": nifti(values, dim=(3, 18, -15, 12, 1, 1, 1, 1)),
            "more than 2^30 voxels": nifti(values, dim=(3, 32767, 32767, 32767, 1, 1, 1, 1)),
            "its datatype is not": nifti(values, kind=128),
            "vox_offset is not a whole number": nifti(values, offset=1e30),
            "the file ends before its voxels": nifti(values, offset=1 << 22),
            "the file ends before its last voxel": nifti(values)[:-1],
            "all voxels are equal": nifti([7] * len(values)),
        }
        for sentence, data in cases.items():
            with self.subTest(sentence):
                self.refused(sentence, self.path("bad.nii", data), fixed)
        for offset in (float("nan"), 351.0, 352.5):
            self.refused("vox_offset is not a whole number",
                         self.path("bad.nii", nifti(values, offset=352)[:108] +
                                   struct.pack("<f", offset) + nifti(values)[112:]), fixed)

    def test_cut_at_every_size(self):
        fixed = self.pair()[1]
        data = nifti(pair()[0])
        for size in (0, 1, 3, 40, 347, 348, 351, 352, 353, len(data) // 2):
            with self.subTest(size=size):
                self.refused("bad.nii: ", self.path("bad.nii", data[:size]), fixed)

    def test_options(self):
        moving, fixed = self.pair()
        self.refused("two volumes are needed", moving, status=2)
        self.refused("cannot be opened", moving, self.path("nothing.nii"))
        for sentence, *words in (("takes depth x height x width", "--size", "12x15"),
                                 ("takes depth", "--size", "0x1x1"), ("takes depth", "--size", "1x1x1x"),
                                 ("must be odd", "--window", "4"), ("from 3 to 99", "--window", "1"),
                                 ("takes three numbers", "--shift", "1,2"),
                                 ("takes three numbers", "--shift", "1,2,inf")):
            with self.subTest(words):
                self.refused(sentence, moving, fixed, *words, status=2)
        self.refused("the file ends before its last voxel", moving, fixed, "--size", "1000x1000x1000",
                     "--type", "u8")
        self.refused("more than 2^30 voxels", moving, fixed, "--size", "2000x1000x1000", "--type", "u8")


if __name__ == "__main__":
    unittest.main()
