"""examples/cifar10.c, fashion_mnist.c, gan.c and vae.c report missing or broken data once, with a remedy, and
write nothing."""
import gzip
import os
import struct
import subprocess
import tempfile
import unittest

from tests.examples import program


class Data(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, data):
        with open(os.path.join(self.folder, name), "wb") as file:
            file.write(data)

    def refuse(self, name, *sentences):
        before = sorted(os.listdir(self.folder))
        done = subprocess.run([program(name), "--data", self.folder], cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        for sentence in sentences:
            self.assertEqual(done.stderr.count(sentence), 1, done.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_cifar10(self):
        self.refuse("cifar10", "data_batch_1.bin': No such file", "get the data (163 MB): wget",
                    "or try --synthetic")
        for i in range(1, 6):
            self.write("data_batch_%d.bin" % i, bytes(3073))
        self.refuse("cifar10", "test_batch.bin': No such file")
        self.write("data_batch_3.bin", bytes(3072))
        self.refuse("cifar10", "data_batch_3.bin")

    def test_fashion_mnist(self):
        def idx(*dims, size=None):
            count = 1
            for dim in dims:
                count *= dim
            return struct.pack(">BBBB%dI" % len(dims), 0, 0, 8, len(dims), *dims) + bytes(
                count if size is None else size)

        for name in "fashion_mnist", "gan", "vae":
            self.refuse(name, "train-images-idx3-ubyte': No such file",
                        "get the data with: apt-get install dataset-fashion-mnist")
        self.write("train-images-idx3-ubyte.gz", gzip.compress(idx(4, 28, 28)))
        self.refuse("fashion_mnist", "train-labels-idx1-ubyte': No such file")
        self.write("train-labels-idx1-ubyte", idx(3))
        self.write("t10k-images-idx3-ubyte", idx(2, 28, 28))
        self.write("t10k-labels-idx1-ubyte", idx(2))
        self.refuse("fashion_mnist", "do not have the same number of items")
        self.write("t10k-images-idx3-ubyte", idx(2, 28, 28, size=99))
        self.refuse("fashion_mnist", "t10k-images-idx3-ubyte'")


if __name__ == "__main__":
    unittest.main()
