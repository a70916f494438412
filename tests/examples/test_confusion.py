"""examples/confusion.h, as fashion_mnist.c and cifar10.c use it: the table counts every test image, and the
picture shows the worst mistakes under their names."""
import base64
import os
import random
import re
import struct
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as xml
import zlib

from tests.examples import ROOT, program

FASHION = ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
           "Ankle boot"]
CIFAR = ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
TESTED = 150


def chunks(png):
    at = 8
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        yield kind, png[at + 8:at + 8 + size]
        at += 12 + size


def nearest(a, b, c):
    """PNG's fourth filter."""
    return min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]


def pixels(png):
    """Rows of bytes, the channels of a pixel beside each other."""
    parts = list(chunks(png))
    width, height, depth, colour = struct.unpack(">IIBB", parts[0][1][:10])
    channels = {0: 1, 2: 3}[colour]
    assert depth == 8
    data, rows = (zlib.decompress(b"".join(data for kind, data in parts if kind == b"IDAT")),
                  [bytes(width * channels)])
    for y in range(height):
        line = data[y * (width * channels + 1):][:width * channels + 1]
        row = bytearray()
        for x, byte in enumerate(line[1:]):
            a, b, c = (row[x - channels] if x >= channels else 0, rows[-1][x],
                       rows[-1][x - channels] if x >= channels else 0)
            row.append((byte + (0, a, b, (a + b) // 2, nearest(a, b, c))[line[0]]) & 255)
        rows.append(bytes(row))
    return rows[1:]


def form(*path):
    """A picture without its images and its words."""
    with open(os.path.join(*path), encoding="utf-8") as file:
        return re.sub(r'base64,[^"]*|>[^<]*</text>', "", file.read())


class Confusion(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.random = random.Random(3)

    def write(self, name, data):
        with open(os.path.join(self.folder, name), "wb") as file:
            file.write(data)

    def samples(self, count, size):
        """Noise, each class a little brighter than the one before it."""
        return [(i % 10, bytes(self.random.randrange(150) + 10 * (i % 10) for _ in range(size)))
                for i in range(count)]

    def check(self, name, names, tested, height, channels, *options):
        """Runs an example. Returns its accuracy in percent and what it prints."""
        done = subprocess.run([program(name), "--data", self.folder, "--out", self.folder, "--epochs", "1",
                               *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual(max(map(len,
                                     re.search(r"\n  class .*?\n\n", done.stdout, re.S)[0].splitlines())), 80)
        table = [[int(word) for word in row.split()]
                 for row in re.findall(r"^\d .{11} [ \d.]{6} %((?: +\d+){10})$", done.stdout, re.M)]
        self.assertEqual([sum(row) for row in table], [TESTED // 10] * 10)
        right = sum(table[i][i] for i in range(10))
        said = float(re.search(r"^test accuracy ([\d.]+) %|^accuracy on \d+ test images: ([\d.]+) %",
                               done.stdout, re.M)[0].split()[-2])
        self.assertAlmostEqual(said, 100 * right / TESTED, delta=0.051)
        self.picture(os.path.join(self.folder, name + "_mistakes.svg"), names, tested, height, channels,
                     TESTED - right)
        return said, done.stdout

    def picture(self, path, names, tested, height, channels, wrong):
        root = xml.parse(path).getroot()
        images = [node for node in root if node.tag.endswith("image")]
        captions = [node.text for node in root if node.tag.endswith("text")][1:]
        self.assertEqual((len(images), len(captions)), (min(wrong, 20), 2 * min(wrong, 20)))
        sure = []
        for image, label, guess in zip(images, captions[::2], captions[1::2]):
            rows = pixels(base64.b64decode(image.get("href").partition("base64,")[2], validate=True))
            shown = bytes(row[x] for k in range(channels) for row in rows
                          for x in range(k, len(row), channels))
            self.assertEqual((len(rows), [names[i] for i, data in tested if data == shown]),
                             (height, [label]))
            taken, _, share = guess.rstrip(" %").rpartition(" ")
            self.assertIn(taken, set(names) - {label})
            sure.append(float(share))
        self.assertEqual(sure, sorted(sure, reverse=True))

    def test_fashion_mnist(self):
        for part, samples in (("train", self.samples(200, 784)), ("t10k", self.samples(TESTED, 784))):
            self.write(part + "-images-idx3-ubyte", struct.pack(">4I", 0x803, len(samples), 28, 28) +
                       b"".join(data for _, data in samples))
            self.write(part + "-labels-idx1-ubyte",
                       struct.pack(">2I", 0x801, len(samples)) + bytes(label for label, _ in samples))
        accuracy, printed = self.check("fashion_mnist", FASHION, samples, 28, 1, "--quantize")
        self.assertEqual(re.findall(r"^(\w+) +(\w+) +8 bits ", printed, re.M),
                         [("conv2d", "conv1"), ("linear", "fc")])
        rounded = re.search(r"^test accuracy in 8 bits ([\d.]+) %; wrote (.*)$", printed, re.M)
        self.assertAlmostEqual(float(rounded[1]), accuracy, delta=3)
        with open(rounded[2], "rb") as file:
            self.assertIn(b"quantized_conv2d", file.read())
        name = "fashion_mnist_mistakes.svg"  # that of the guides is as fresh
        self.assertEqual(form(ROOT, "examples", "guides", name), form(self.folder, name))

    def test_cifar10(self):
        for name in *(f"data_batch_{i}" for i in range(1, 6)), "test_batch":
            samples = self.samples(TESTED if name == "test_batch" else 20, 3072)
            self.write(name + ".bin", b"".join(bytes([label]) + data for label, data in samples))
        self.check("cifar10", CIFAR, samples, 32, 3)


if __name__ == "__main__":
    unittest.main()
