"""examples/tiny_imagenet.c beside PyTorch (expected_output/tiny_imagenet.safetensors, make_tiny_imagenet.py):
the losses of 20 steps over the same PNG files. And its folders: their layouts, broken files, empty
classes."""
import os
import re
import shutil
import struct
import subprocess
import tempfile
import unittest
import xml.dom.minidom
import zlib

from tests import tensor_file
from tests.examples import EXPECTED, program

PROGRAM = program("tiny_imagenet")
CLASSES = ("ant", "bee", "cat")
SMALL = ("--device", "cpu", "--size", "16", "--width", "2", "--batch", "8")


def png(size, pixels):
    """An RGB picture of three planes."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    plane = size * size
    rows = b"".join(b"\0" + bytes(pixels[c * plane + y * size + x] for x in range(size) for c in range(3))
                    for y in range(size))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write(data, *path):
    path = os.path.join(*path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


class TinyImageNet(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.golden = tensor_file.load(os.path.join(EXPECTED, "tiny_imagenet.safetensors"))
        pixels, (count, _, cls.size, _) = cls.golden["pictures"][2], cls.golden["pictures"][1]
        each = len(pixels) // count
        cls.files = [png(cls.size, pixels[i * each:(i + 1) * each]) for i in range(count)]
        cls.labels = tensor_file.values(cls.golden["labels"])

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        for i, (label, data) in enumerate(zip(self.labels, self.files)):
            write(data, self.folder, "data", "train", CLASSES[label], f"{i:03}.png")
            if i % 8 < 2:
                write(data, self.folder, "data", "val", CLASSES[label], f"{i:03}.PNG")

    def run_program(self, *options):
        done = subprocess.run([PROGRAM, "--data", os.path.join(self.folder, "data"), "--out", self.folder,
                               *SMALL, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True, timeout=300)
        return done.returncode, done.stdout, done.stderr

    def refuse(self, sentence, *options):
        status, _, text = self.run_program(*options)
        self.assertEqual(status, 1, text)
        self.assertIn(sentence, text)

    def losses(self, *options):
        weights = os.path.join(self.folder, "weights.safetensors")
        tensor_file.save(weights,
                         {key[7:]: value for key, value in self.golden.items() if key.startswith("weight/")})
        status, text, fault = self.run_program("--weights", weights, "--steps", "20", "--lr", "0.01",
                                               *options)
        self.assertEqual((status, fault), (0, ""))
        return [float(loss) for loss in re.findall(r"step \d+: loss (\S+)", text)]

    def test_losses(self):
        expected = tensor_file.values(self.golden["losses"])
        for workers in ("1", "3"):
            got = self.losses("--workers", workers)
            self.assertEqual(len(got), len(expected))
            for one, other in zip(got, expected):
                self.assertLess(abs(one - other), 2e-4 * abs(other))

    def test_layouts(self):
        """Tiny ImageNet's own layout, and one without parts, in which every tenth picture is for
        validation."""
        first, data = self.losses(), os.path.join(self.folder, "data")
        for name in CLASSES:
            train = os.path.join(data, "train", name)
            os.rename(train, train + "_")
            os.makedirs(train)
            os.rename(train + "_", os.path.join(train, "images"))
        shutil.rmtree(os.path.join(data, "val"))
        write(self.files[0], data, "val", "images", "val_0.png")
        write(b"val_0.png\tbee\t0\t0\t16\t16\n", data, "val", "val_annotations.txt")
        self.assertEqual(self.losses(), first)
        write(b"val_0.png\twasp\t0\t0\t16\t16\n", data, "val", "val_annotations.txt")
        self.refuse("'val_0.png' is of class 'wasp', which has no folder in train")
        shutil.rmtree(data)
        for i in range(40):
            write(self.files[i % 24], data, CLASSES[i // 20], f"{i:03}.png")
        self.assertIn("2 classes, 36 training and 4 validation pictures", self.run_program("--steps", "1")[1])

    def test_training(self):
        status, text, fault = self.run_program("--epochs", "2", "--workers", "2")
        self.assertEqual((status, fault), (0, ""))
        self.assertEqual(len(re.findall(r"^cpu epoch ", text, re.M)), 2)
        self.assertRegex(text, r"(?m)^cpu +[\d.]+ +\d+ +[\d.]+ +[\d.]+ %")
        xml.dom.minidom.parse(os.path.join(self.folder, "tiny_imagenet_curves.svg"))
        saved = tensor_file.load(os.path.join(self.folder, "tiny_imagenet_cpu.safetensors"))
        self.assertEqual({key: value[1] for key, value in saved.items() if "num_batches" not in key},
                         {key[7:]: value[1]
                          for key, value in self.golden.items() if key.startswith("weight/")})

    def test_synthetic(self):
        shutil.rmtree(os.path.join(self.folder, "data"))
        status, text, fault = self.run_program("--synthetic", "--steps", "1")
        self.assertEqual((status, fault), (0, ""))
        self.assertIn("8 classes, 640 training and 160 validation pictures", text)

    def test_broken(self):
        data = os.path.join(self.folder, "data", "train", "bee")
        write(self.files[0][:200], data, "cut.png")
        write(b"not a picture", data, "text.jpg")
        write(b"", data, "empty\x1b]0;x\x07\x9b.jpeg")
        self.refuse("3 broken pictures found; repair or remove them, or skip them with --skip-broken")
        self.refuse(os.path.join(data, "cut.png") + " is broken: ")
        # no escape sequence for a terminal
        self.refuse(os.path.join(data, "empty?]0;x???.jpeg") + " is broken: ")
        status, text, fault = self.run_program("--skip-broken", "--steps", "1")
        self.assertEqual(status, 0)
        self.assertIn("24 training and 6 validation pictures", text)
        self.assertIn("3 broken pictures left out", fault)

    def test_many_broken(self):
        for i in range(30):
            write(b"", self.folder, "data", "val", "ant", f"broken{i}.png")
        status, _, fault = self.run_program()
        self.assertEqual((status, fault.count("is broken: ")), (1, 20))
        self.assertIn("... and 10 more\n30 broken pictures", fault)

    def test_empty_class(self):
        os.makedirs(os.path.join(self.folder, "data", "train", "dog"))
        self.refuse("class 'dog' has no pictures for training; add some or remove its folder")
        write(b"", self.folder, "data", "train", "dog", "broken.png")
        self.refuse("class 'dog' has no pictures for training", "--skip-broken")

    def test_folders(self):
        data = os.path.join(self.folder, "data")
        os.makedirs(os.path.join(data, "val", "dog"))
        self.refuse("there is no class 'dog' in train")
        shutil.rmtree(os.path.join(data, "val"))
        self.refuse("put pictures for validation there")
        os.makedirs(os.path.join(data, "val"))
        self.refuse("there are no pictures for validation")
        shutil.rmtree(os.path.join(data, "train", "ant"))
        shutil.rmtree(os.path.join(data, "train", "bee"))
        self.refuse("holds 1 folder; at least two classes are needed")
        shutil.rmtree(data)
        self.refuse("name one with --data, or try --synthetic")

    def test_weights_and_results(self):
        path = os.path.join(self.folder, "weights.safetensors")
        self.refuse("cpu: ", "--weights", path)
        tensor_file.save(path, {"fc.weight": ("F32", [2, 2], bytes(16))})
        self.refuse("does not fit the model", "--weights", path)
        self.refuse("no/such", "--epochs", "1", "--out", os.path.join(self.folder, "no", "such"))


if __name__ == "__main__":
    unittest.main()
