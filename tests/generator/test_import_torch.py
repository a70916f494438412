"""The importer of PyTorch's weights: files in torch.save's formats, made here, and hostile ones; real ones if
PyTorch is installed."""
import base64
import collections
import contextlib
import importlib.util
import io
import json
import math
import os
import pickle
import shutil
import struct
import sys
import tempfile
import types
import unittest
import zipfile
import zlib
from fractions import Fraction
from unittest import mock

from generator import import_torch
from generator.exchange import pickles, tensor_files
from generator.exchange.gguf import BLOCKS
from generator.exchange.tensor_files import FileError
from tests import tensor_file

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected", "pickles.json"),
          encoding="ascii") as made:  # by make_pickles.py
    PICKLES = json.load(made)

Storage = collections.namedtuple("Storage", "kind key data")


def fake_torch():
    """Modules for the names in torch.save's pickles."""
    modules = {name: types.ModuleType(name) for name in ("torch", "torch._utils")}
    for module, name in (("torch._utils", "_rebuild_tensor_v2"), ("torch", "FloatStorage"),
                         ("torch", "HalfStorage")):
        function = types.FunctionType((lambda *_: None).__code__, {}, name)
        function.__module__, function.__qualname__ = module, name
        setattr(modules[module], name, function)
    return modules


class Tensor:
    def __init__(self, storage, offset, size, stride):
        self.arguments = storage, offset, size, stride, False, collections.OrderedDict()

    def __reduce__(self):
        return sys.modules["torch._utils"]._rebuild_tensor_v2, self.arguments


class Pickler(pickle.Pickler):
    def persistent_id(self, item):
        if isinstance(item, Storage):
            return "storage", getattr(sys.modules["torch"], item.kind), item.key, "cpu", len(item.data) // 2
        return None


def pickled(item):
    buffer = io.BytesIO()
    with mock.patch.dict(sys.modules, fake_torch()):
        Pickler(buffer, 2).dump(item)
    return buffer.getvalue()


STORE = Storage("FloatStorage", "0", struct.pack("<6f", *range(6)))
STATE = collections.OrderedDict(w=Tensor(STORE, 0, (2, 3), (3, 1)), t=Tensor(STORE, 1, (2, 2), (1, 3)))


def zipped(item, data=STORE.data, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("net/data.pkl", item if isinstance(item, bytes) else pickled(item))
        archive.writestr("net/byteorder", b"little")
        archive.writestr("net/data/0", data)
    return buffer.getvalue()


def legacy(item):
    head = [pickles.MAGIC, 1001, {"little_endian": True}]
    return b"".join(map(pickled, head)) + pickled(item) + pickled(["0"]) + struct.pack("<q", 6) + STORE.data


class Import(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def converted(self, data, name="net.pt", **options):
        with open(self.path(name), "wb") as file:
            file.write(data)
        import_torch.convert(self.path(name), self.path("out"), **options)
        return {key: (x.kind, x.shape, x.values)
                for key, x in tensor_files.read_safetensors(self.path("out")).items()}

    def refused(self, data, part, **options):
        with self.assertRaisesRegex(FileError, part):
            self.converted(data, **options)
        self.assertFalse(os.path.exists(self.path("out")))


class Weights(Import):
    def test_both_forms(self):
        expected = {"w": ("float32", (2, 3), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
                    "t": ("float32", (2, 2), [1.0, 4.0, 2.0, 5.0])}
        self.assertEqual(self.converted(zipped(STATE)), expected)
        self.assertEqual(self.converted(legacy(STATE)), expected)

    def test_halves_become_floats(self):
        half = Storage("HalfStorage", "0", struct.pack("<2e", 0.5, -2))
        found = self.converted(zipped({"h": Tensor(half, 0, (2,), (1,))}, half.data))
        self.assertEqual(found, {"h": ("float32", (2,), [0.5, -2.0])})

    def test_checkpoints(self):
        checkpoint = {"model": dict(STATE), "other": {"state": [{"a": STATE["w"]}]}, "step": 3}
        self.refused(zipped(checkpoint), "it holds the groups model, other.state.0; choose one with --key")
        self.assertEqual(set(self.converted(zipped(checkpoint), key="model")), {"w", "t"})

    def test_what_is_no_number_is_kept_and_said(self):
        store = Storage("FloatStorage", "0", struct.pack("<2f", math.nan, 1))
        with open(self.path("w.pt"), "wb") as file:
            file.write(zipped({"w": Tensor(store, 0, (2,), (1,))}, store.data))
        self.assertEqual(import_torch.convert(self.path("w.pt"), self.path("out")),
                         ["weights hold NaN, which is kept: w"])
        self.assertTrue(math.isnan(tensor_files.read_safetensors(self.path("out"))["w"].values[0]))

    def test_npz(self):
        head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
        npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + struct.pack("<2f", 1, 2)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("fc.weight.npy", npy)
        self.assertEqual(self.converted(buffer.getvalue(), "w.npz"),
                         {"fc.weight": ("float32", (2,), [1.0, 2.0])})

    def test_integers_of_2_to_the_63_stay(self):
        head, body = (b"{'descr': '<u8', 'fortran_order': False, 'shape': (2,), }\n",
                      struct.pack("<2Q", 3, (1 << 64) - 1))
        with zipfile.ZipFile(self.path("w.npz"), "w") as archive:
            archive.writestr("large.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body)
            archive.writestr("small.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head +
                             struct.pack("<2Q", 3, 4))
        notes = import_torch.convert(self.path("w.npz"), self.path("w"))
        self.assertEqual(tensor_file.load(self.path("w")),
                         {"large": ("U64", [2], body), "small": ("I64", [2], struct.pack("<2q", 3, 4))})
        self.assertEqual(notes, ["'large' holds integers of 2^63 and more and stays U64, which gpunn reads "
                                 "as floats only"])

    def test_floats_of_8_bits(self):
        """All bit patterns, by the formula of each type. The note names the first."""
        tensors = {name: (kind, [2, 128], bytes(range(256)))
                   for name, kind in (("a", "F8_E4M3"), ("b", "F8_E5M2"))}
        tensor_file.save(self.path("w"), tensors)
        found = tensor_files.read_safetensors(self.path("w"))
        self.assertEqual(tensor_files.conversion_notes(found),
                         ["2 tensors became floats without a scale; the first is 'a' of type F8_E4M3"])
        for x, bits, bias in (found["a"], 3, 7), (found["b"], 2, 15):
            for byte, value in enumerate(x.values):
                field, rest, top = (byte & 127) >> bits, byte & (1 << bits) - 1, (1 << 7 - bits) - 1
                if field == top and (bits == 2 or rest == 7):
                    self.assertTrue(math.isinf(value) if bits == 2 and rest == 0 else math.isnan(value), byte)
                else:
                    expected = math.ldexp((field > 0) + rest / (1 << bits), max(field, 1) - bias)
                    self.assertEqual(struct.pack("<d", value),
                                     struct.pack("<d", -expected if byte & 128 else expected), byte)
            self.assertEqual(bytes(memoryview(x.f32_bytes())[4:8]), struct.pack("<f", x.values[1]))
            self.assertEqual(x.encoded(), bytes(range(256)))

    def test_integers_become_the_nearest_floats(self):
        def nearest(x):  # with fractions: of the two floats beside x the nearer one, or the even one
            step = 1 << max(abs(x).bit_length() - 24, 0)
            return round(Fraction(x, step)) * step

        for kind, code, numbers in (
                ("I64", "q",
                 [-(1 << 63), (1 << 63) - 1, (1 << 24) + 1, -(1 << 24) - 3, (1 << 62) + (1 << 38) + 1]),
                ("U64", "Q", [(1 << 64) - 1, (1 << 63) + (1 << 39), (1 << 63) + (1 << 39) + 1, 3 << 62, 0]),
                ("U32", "I", [(1 << 32) - 1, (1 << 24) + 1, (1 << 31) + 129, 5, 0]),
                ("BOOL", "?", [1, 0, 1, 1, 0])):
            tensor_file.save(self.path("w"), {"w": (kind, [5], struct.pack("<5" + code, *numbers))})
            found = tensor_files.read_safetensors(self.path("w"))
            self.assertEqual(list(struct.unpack("<5f", found["w"].f32_bytes())),
                             [float(nearest(int(x))) for x in numbers], kind)
            self.assertIn("1 tensor became floats", tensor_files.conversion_notes(found)[0])


class Modules(Import):
    """What PyTorch writes beside tensors."""

    def test_modules_and_numbers_of_numpy(self):
        for name, case in PICKLES.items():
            key = "model" if name in ("checkpoint", "late") else None
            found = self.converted(zlib.decompress(base64.b64decode(case["file"])), key=key)
            self.assertEqual({one: [list(shape), values] for one, (_, shape, values) in found.items()},
                             case["tensors"], name)
        mean = self.converted(zlib.decompress(base64.b64decode(PICKLES["checkpoint"]["file"])), key=".")
        self.assertEqual(mean, {"mean": ("float32", (3, 2), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0])})

    def test_big_endian_arrays(self):
        for descr, code, numbers in ((">f4", ">2f", (1.5, -2)), (">f8", ">2d", (1.5, -2)),
                                     (">i2", ">2h", (258, -3)), (">i8", ">2q", (1 << 40, -1))):
            head = b"{'descr': '%s', 'fortran_order': False, 'shape': (2,), }\n" % descr.encode()
            npy = b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head + struct.pack(code, *numbers)
            found = self.converted(members({"a.npy": npy}), "net.npz")
            self.assertEqual(found["a"][2], list(numbers))

    def test_an_object_with_tensors_is_named(self):
        item = Plain()
        self.refused(zipped({"x": item}), "holds no tensors")
        item.rows = [STATE["w"]]
        self.refused(zipped({"x": item}), "an object of .*Plain with tensors, which is no module")

    def test_hostile_modules(self):
        deep = b"\x80\x02}q\0U\x01ah\0s."  # a dictionary that holds itself
        self.refused(zipped(deep), "nested too deep")
        self.refused(zipped(b"\x80\x02cos\nsystem\n(X\x02\0\0\0lstR."), "it wants to call os.system")


def text(x):
    return struct.pack("<Q", len(x)) + x.encode()


def gguf_file(tensors, facts=(), alignment=32):
    """tensors: (name, shape, type, bytes)."""
    facts = [text("general.alignment") + struct.pack("<II", 4, alignment)] + list(facts)
    head, body = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts)) + b"".join(facts), b""
    for name, shape, kind, data in tensors:
        head += text(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *shape[::-1], kind, len(body))
        body += data + bytes(-len(data) % alignment)
    return head + bytes(-len(head) % alignment) + body


# By hand, from llama.cpp's description of its blocks: part i of Q4_K has these scales and minima, part i of
# Q6_K the scale i - 8.
SCALES, MINIMA = (1, 2, 3, 4, 5 + 16, 6 + 32, 7, 8 + 48), (0, 1, 2, 3, 4, 5 + 16, 6, 7)
Q8 = struct.pack("<e32b", 0.5, *range(-16, 16))
Q4 = (struct.pack("<ee", 2, 0.5) + bytes([1 | 64, 2 | 128, 3, 4 | 192, 0, 1 | 64, 2, 3]) +
      bytes([5 | 4 << 4, 6 | 5 << 4, 7 | 6 << 4, 8 | 7 << 4]) +
      bytes(i % 16 | (15 - i % 16) << 4 for i in range(128)))
Q4_NUMBERS = [2.0 * SCALES[part] * (15 - i % 16 if part % 2 else i % 16) - 0.5 * MINIMA[part]
              for part in range(8) for i in range(32)]
Q6 = bytes([7 | 9 << 4] * 128) + bytes([0 | 1 << 2 | 2 << 4 | 3 << 6] * 64) + struct.pack(
    "<16be", *range(-8, 8), 0.25)
Q6_NUMBERS = [0.25 * (2 * part + i // 16 - 8) * ((9 if part % 4 > 1 else 7) + 16 * (part % 4) - 32)
              for part in range(8) for i in range(32)]


class Gguf(Import):
    def test_the_command_prints_what_it_wrote(self):
        with open(self.path("net.gguf"), "wb") as file:
            file.write(gguf_file([("w", (1, 32), 8, Q8)]))
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            import_torch.main([self.path("net.gguf"), "-o", self.path("w")])
        self.assertEqual(text.getvalue(), 'Wrote %s. Next, in C: gpunn_load(model, "%s")\n' %
                         (self.path("w"), self.path("w")))

    def test_all_kinds(self):
        facts = [text("words") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bcd"),
                 text("numbers") + struct.pack("<IIQ3h", 9, 3, 3, 1, 2, 3),
                 text("name") + struct.pack("<I", 8) + text("net")]
        found = self.converted(gguf_file([
            ("f32", (2, 3), 0, struct.pack("<6f", *range(6))), ("f16", (2,), 1, struct.pack("<2e", 0.5, -2)),
            ("bf16", (2,), 30, b"\x80\x3f\x00\xc0"), ("i32", (1,), 26, struct.pack("<i", -7)),
            ("q8", (1, 32), 8, Q8), ("q4", (2, 256), 12, Q4 * 2), ("q6", (256,), 14, Q6)], facts, 64),
                               "net.gguf")
        self.assertEqual(found, {
            "f32": ("float32", (2, 3), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), "f16": ("float32", (2,), [0.5, -2.0]),
            "bf16": ("float32", (2,), [1.0, -2.0]), "i32": ("int32", (1,), [-7]),
            "q8": ("float32", (1, 32), [i / 2 for i in range(-16, 16)]),
            "q4": ("float32", (2, 256), Q4_NUMBERS * 2), "q6": ("float32", (256,), Q6_NUMBERS)})

    def test_bad_files(self):
        whole = gguf_file([("w", (1, 32), 8, Q8)])
        for data, part in ((b"", "the file is empty"), (b"GGUF", "no GGUF file"),
                           (whole[:-40], "lies outside the file"),
                           (gguf_file([("w", (1, 32), 10, Q8)]), "is of Q2_K; F32, F16"),
                           (gguf_file([("w", (1, 31), 8, Q8)]), "no whole number of blocks"),
                           (gguf_file([("w", (1 << 62, 1 << 62), 0, Q8)]), "lies outside"),
                           (gguf_file([("w", (1,) * 9, 0, Q8)]), "has 9 axes"),
                           (gguf_file([]).replace(struct.pack("<I", 32), bytes(4)), "its alignment is 0"),
                           (gguf_file([], [text("x") + struct.pack("<IIQ", 9, 3, 1 << 60)]), "cut off")):
            self.refused(data, part, name="net.gguf")


@unittest.skipUnless(importlib.util.find_spec("gguf"), "the package gguf is not here")
class RealGguf(Import):
    def test_what_the_package_decodes(self):
        import gguf
        import numpy
        chance = numpy.random.default_rng(1)
        for kind, block in BLOCKS.items():
            blocks = chance.integers(0, 256, (6, block.bytes), dtype="uint8")
            for at in (0, 2) if kind != 14 else (208,):
                blocks[:, at:at + 2] = numpy.frombuffer(struct.pack("<e", 0.01), "uint8")
            found = self.converted(
                gguf_file([("w", (3, 2 * block.length), kind, blocks.tobytes())]), "net.gguf")
            wanted = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(kind))
            self.assertEqual(found["w"][2], wanted.flatten().tolist())


class Plain:
    """An object of a class that no tensor needs, as a module is."""


def members(chunks):
    """A zip archive of these files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, chunk in chunks.items():
            archive.writestr(name, chunk)
    return out.getvalue()


class BadFiles(Import):
    def test_code_is_named_and_does_not_run(self):
        class Evil:
            def __reduce__(self):
                return os.system, ("touch " + self.mark,)
        Evil.mark = self.path("mark")
        for data in (zipped(pickle.dumps({"w": Evil()}, 2)), zipped(pickle.dumps(Evil(), 4)),
                     b"".join(map(pickled, [pickles.MAGIC, 1001])) + pickle.dumps(Evil())):
            self.refused(data, "it wants to call (posix|nt).system, which is no part of a tensor")
        self.refused(zipped(b"cbuiltins\neval\nX\x01\x00\x00\x001\x85R."), "it wants to call builtins.eval")
        self.refused(zipped(b"(S'1'\nios\nsystem\n."), "its pickle has the instruction STRING")
        self.refused(zipped(b"Nr\xff\xff\xff\xff."), "its pickle remembers more than")
        self.assertFalse(os.path.exists(self.path("mark")))

    def test_no_file_changes_what_others_may_call(self):
        inner = pickle.dumps({"x": 1}, 2)[2:-1]
        self.refused(zipped(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN" + inner + b"\x86b."),
                     "its pickle cannot be read")

    def test_each(self):
        for part, data in (
                ("neither a zip", b"not a file of torch"), ("the file is empty", b""),
                ("pointer of Git LFS", b"version https://git-lfs.github.com/spec/v1\n"),
                ("a web page", b"\n<!DOCTYPE html>"),
                ("holds no tensors", zipped(pickle.dumps({"x": Plain()}, 2))),
                ("its pickle cannot be read", members({"x/data.pkl": b"", "x/constants.pkl": b""})),
                ("NumPy's archive", members({"a.npy": b""})), ("no file of torch.save", b"PK\x03\x04"),
                ("holds no tensors", zipped({"a": 1})), ("storages are cut off", legacy(STATE)[:-3]),
                ("outside its storage", zipped({"w": Tensor(STORE, 1, (2, 3), (3, 1))})),
                ("outside its storage", zipped({"w": Tensor(STORE, 0, (2, 3), (-3, 1))})),
                ("times as large as the file", zipped({"w": Tensor(STORE, 0, (1 << 40, 3), (0, 1))})),
                ("its pickle cannot be read", zipped({"w": Tensor(3, 0, (2,), (1,))})),
                ("described in an unknown way", zipped({"w": Tensor(STORE, "x", (2,), (1,))})),
                ("compressed", zipped(STATE, bytes(5000), zipfile.ZIP_DEFLATED)),
                ("it lacks the data",
                 zipped({"w": Tensor(Storage("FloatStorage", "7", b""), 0, (2,), (1,))}))):
            with self.subTest(part=part):
                self.refused(data, part)

    def test_arrays(self):
        for part, descr in (("Python objects", "'|O'"), ("texts", "'<U3'"), ("of dtype <c8", "'<c8'"),
                            ("of dtype .*'a'", "[('a', '<f4')]"), ("cut off", "'<f4'")):
            head = ("{'descr': %s, 'fortran_order': False, 'shape': (2,)}" % descr).encode()
            array = b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head
            with self.subTest(part=part), self.assertRaisesRegex(FileError, part):
                self.converted(members({"a.npy": array}), "net.npz")
        with self.assertRaisesRegex(FileError, "holds no .npy files"):
            self.converted(members({"a": b""}), "net.npz")


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not here")
class Real(Import):
    def test_floats_of_8_bits(self):
        import torch
        if not hasattr(torch, "float8_e5m2"):
            self.skipTest("this PyTorch has no floats of 8 bits")
        every = torch.arange(256, dtype=torch.uint8).reshape(2, 128)
        state = {"a": every.view(torch.float8_e4m3fn).t(), "b": every.view(torch.float8_e5m2)[:, 1:]}
        torch.save(state, self.path("real.pt"))
        notes = import_torch.convert(self.path("real.pt"), self.path("out"))
        self.assertEqual(notes, ["2 tensors became floats without a scale; the first is 'a' of type F8_E4M3",
                                 "weights hold NaN, which is kept: a, b"])
        for name, x in tensor_files.read_safetensors(self.path("out")).items():
            torch.testing.assert_close(torch.tensor(x.values), state[name].float().flatten(), rtol=0, atol=0,
                                       equal_nan=True)

    def test_what_torch_saves(self):
        import torch
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4),
                                  torch.nn.Linear(5, 6).bfloat16())
        for new in (True, False):
            torch.save(net.state_dict(), self.path("real.pt"), _use_new_zipfile_serialization=new)
            import_torch.convert(self.path("real.pt"), self.path("out"))
            found = tensor_files.read_safetensors(self.path("out"))
            self.assertEqual({name: x.double().flatten().tolist() for name, x in net.state_dict().items()},
                             {name: x.values for name, x in found.items()})


if __name__ == "__main__":
    unittest.main()
