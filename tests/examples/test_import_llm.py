"""The importer of llama2.c's and llm.c's models: logits of examples/llama.c against those of llama2.c's run.c
(make_import_llm.py), GPT-2's weights there and back, all versions of the formats, and bad files."""
import array
import json
import os
import random
import struct
import subprocess
import tempfile
import unittest

from generator import import_llm
from generator.exchange.tensor_files import FileError
from tests import tensor_file
from tests.examples import EXPECTED, program
from tests.examples.test_gpt2 import LAYERS, mixed, weights

SIZES = (16, 24, 2, 4, 2, 30, 8)  # width, inner width, layers, heads, key heads, words, positions
PROMPT = [3, 17, 29, 4, 4, 11]


def drawn(seed, count, middle=0.0, width=1.0):
    return [middle + width * ((mixed(seed * 1000003 + i) >> 40) / (1 << 24) - 0.5) for i in range(count)]


def parts(tied):
    """(name, numbers of one layer, layers), in the order of version 0."""
    width, inner, layers, heads, groups, words, _ = SIZES
    narrow = groups * width // heads
    table = [("embed", words * width, 1), ("norm1", width, layers), ("q", width * width, layers),
             ("k", narrow * width, layers), ("v", narrow * width, layers), ("o", width * width, layers),
             ("norm2", width, layers), ("w1", inner * width, layers), ("w2", width * inner, layers),
             ("w3", inner * width, layers), ("norm", width, 1)] + [("head", words * width, 1)] * (not tied)
    return {name: drawn(i, count * times, 1.0 if "norm" in name else 0.0, 0.5 if "norm" in name else 1.2)
            for i, (name, count, times) in enumerate(table)}


def quantized(values, group):
    """Bytes and factors, as llama2.c's export.py makes them."""
    bytes_, factors = array.array("b"), array.array("f")
    for i in range(0, len(values), group):
        factors.append(max(abs(x) for x in values[i:i + group]) / 127)
        bytes_.extend([round(x / factors[-1]) for x in values[i:i + group]])
    return bytes_, factors


def llama_file(version, tied, group=8):
    numbers, sizes = parts(tied), list(SIZES)
    if version == 0:
        sizes[5] *= 1 if tied else -1
        places = [0.0] * (SIZES[6] * SIZES[0] // SIZES[3])
        order = list(numbers)[:11] + ["places"] + list(numbers)[11:]
        numbers["places"] = places
        return struct.pack("<7i", *sizes) + b"".join(array.array("f", numbers[name]).tobytes()
                                                     for name in order)
    head = struct.pack("<Ii7iB", 0x616b3432, version, *sizes, tied)
    head += struct.pack("<i", group) if version == 2 else b""
    order = ["norm1", "norm2", "norm", "embed", "q", "k", "v", "o", "w1", "w2", "w3"] + ["head"] * (not tied)
    body = b""
    for name in order:
        count = SIZES[2] if name in ("q", "k", "v", "o", "w1", "w2", "w3") else 1
        for i in range(count):
            own = numbers[name][i * len(numbers[name]) // count:(i + 1) * len(numbers[name]) // count]
            body += (array.array("f", own).tobytes() if version == 1 or "norm" in name else
                     b"".join(x.tobytes() for x in quantized(own, group)))
    return head + bytes(256 - len(head)) + body


def llmc_file(known, version):
    """A checkpoint of llm.c with the words padded to a multiple of 128, and one row more."""
    (words, width), context = known["wte.weight"][1], known["wpe.weight"][1][0]
    layers = len([name for name in known if name.endswith("ln_1.bias")])
    padded = (words + 127) // 128 * 128 + 128
    head = struct.pack("<8i", 20240326, version, context, words, layers, 4, width, padded)
    order = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
             "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
             "mlp.c_proj.weight", "mlp.c_proj.bias"]
    numbers = list(tensor_file.values(known["wte.weight"])) + [0.0] * (padded - words) * width
    numbers += tensor_file.values(known["wpe.weight"])
    for part in order:
        for i in range(layers):
            tensor = known["h.%d.%s" % (i, part)]
            values, shape = tensor_file.values(tensor), tensor[1]
            numbers += values if len(shape) == 1 else [values[row * shape[1] + column]
                                                       for column in range(shape[1])
                                                       for row in range(shape[0])]
    numbers += list(tensor_file.values(known["ln_f.weight"])) + list(tensor_file.values(known["ln_f.bias"]))
    body = array.array("f", numbers).tobytes()
    if version == 5:  # the upper halves
        body = b"".join(body[i + 2:i + 4] for i in range(0, len(body), 4))
    return head + bytes(1024 - len(head)) + body


class ImportLlm(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def tensors(self, data):
        with open(self.path("net.bin"), "wb") as file:
            file.write(data)
        import_llm.main([self.path("net.bin"), "-o", self.path("net")])
        return tensor_file.load(self.path("net/model.safetensors"))

    def refused(self, data, part):
        with self.assertRaises(SystemExit) as caught:
            self.tensors(data)
        self.assertIn(part, str(caught.exception))
        self.assertEqual(os.listdir(self.folder.name), ["net.bin"])

    def test_logits_are_those_of_llama2c(self):
        with open(os.path.join(EXPECTED, "llama2c.json"), encoding="ascii") as file:
            expected = json.load(file)
        for name, wanted in expected.items():
            tied = name == "tied"
            tensors = self.tensors(llama_file(0, tied))
            self.assertEqual("lm_head.weight" in tensors, not tied)
            subprocess.run([program("llama"), "--model", self.path("net"), "--threads", "1", "--ids",
                            " ".join(map(str, PROMPT)), "--logits", self.path("logits")], check=True,
                           stdout=subprocess.DEVNULL)
            found = tensor_file.values(tensor_file.load(self.path("logits"))["logits"])
            self.assertEqual(len(found), len(wanted))
            for value, other in zip(found, wanted):
                self.assertTrue(abs(value - other) <= 3e-5 + 3e-5 * abs(other), name)

    def test_versions_hold_the_same(self):
        for tied in (False, True):
            first = self.tensors(llama_file(0, tied))
            self.assertEqual(self.tensors(llama_file(1, tied)), first)
            rounded = self.tensors(llama_file(2, tied))
            self.assertEqual(list(sorted(rounded)), list(sorted(first)))
            for name, x in rounded.items():
                for value, other in zip(tensor_file.values(x), tensor_file.values(first[name])):
                    self.assertTrue(abs(value - other) <= (0 if "norm" in name else 0.6 / 254 + 1e-7), name)

    def test_gpt2_of_llmc(self):
        """A checkpoint made of known weights as llm.c's train_gpt2.py writes them."""
        known = {name: tensor for name, tensor in weights().items() if name != "lm_head.weight"}
        for version in (3, 5):
            found = self.tensors(llmc_file(known, version))
            self.assertEqual(set(found), set(known))
            for name, (kind, shape, _) in found.items():
                self.assertEqual((kind, shape), ("F32", known[name][1]), name)
                for value, other in zip(tensor_file.values(found[name]), tensor_file.values(known[name])):
                    self.assertTrue(abs(value - other) <= (0 if version == 3 else abs(other) / 128), name)
        data = llmc_file(known, 3)
        with open(self.path("net/config.json"), encoding="ascii") as file:
            self.assertEqual(json.load(file)["n_layer"], LAYERS)
        os.remove(self.path("net/config.json"))
        os.remove(self.path("net/model.safetensors"))
        os.rmdir(self.path("net"))
        self.refused(data[:-1], "it is cut off")
        self.refused(data + b"..", "2 bytes follow its weights")
        self.refused(data[:4] + struct.pack("<i", 1) + data[8:], "llm.c of version 1")
        self.refused(data[:8] + struct.pack("<i", -1) + data[12:], "its header has the sizes [-1")

    def test_bad_files(self):
        data = llama_file(0, False)
        self.refused(data[:-4], "it is cut off")
        self.refused(data + bytes(4), "4 bytes follow its weights")
        self.refused(data[:10], "it is cut off")
        self.refused(struct.pack("<7i", 16, 24, 2, 3, 2, 30, 8), "its header is none of llama2.c's")
        self.refused(llama_file(2, False, 8)[:37] + struct.pack("<i", 7) + llama_file(2, False)[41:],
                     "its groups of 7 do not divide")
        self.refused(struct.pack("<Ii", 0x616b3432, 9) + bytes(300), "version 9")
        draw = random.Random(7)
        for version in (0, 1, 2):
            data = llama_file(version, True)
            for _ in range(60):
                changed = bytearray(data)
                changed[draw.randrange(64)] = draw.choice((0, 1, 255, draw.randrange(256)))
                with open(self.path("net.bin"), "wb") as file:
                    file.write(changed)
                try:
                    import_llm.convert(self.path("net.bin"), self.path("net"))
                except FileError as why:
                    self.assertTrue(str(why))
