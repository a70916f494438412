"""examples/char_lstm.c trains and samples as PyTorch does from the same weights (expected_output/char_lstm_*,
make_char_lstm.py), resumes exactly, and names what is wrong with its arguments and files."""
import os
import subprocess
import tempfile
import unittest

from tests import tensor_file
from tests.examples import EXPECTED, program

PROGRAM = program("char_lstm")
SIZES = ["--hidden", "16", "--embed", "8", "--layers", "2", "--batch", "4", "--length", "8"]


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def files(self, cell):
        """The golden tensors; the text and the first weights become files."""
        golden = tensor_file.load(os.path.join(EXPECTED, "char_lstm_%s.safetensors" % cell))
        with open(self.path("text"), "wb") as file:
            file.write(golden["text"][2])
        tensor_file.save(self.path("before"),
                         {name[7:]: t for name, t in golden.items() if name.startswith("before.")})
        return golden

    def run_it(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=120)

    def train(self, cell, *arguments):
        done = self.run_it("--text", self.path("text"), "--cell", cell, *SIZES, "--lr", "0.02", "--clip", "1",
                           *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return done.stdout

    def refused(self, sentence, *arguments):
        done = self.run_it(*arguments)
        self.assertEqual(done.returncode, 1)
        self.assertIn(sentence, done.stderr.decode())


class Values(Case):
    def test_as_pytorch(self):
        for cell in ("lstm", "gru"):
            golden = self.files(cell)
            out = self.train(cell, "--load", self.path("before"), "--save", self.path("after"), "--steps",
                             "20", "--losses", "--temperature", "0", "--sample", "40")
            losses = [float(line.split()[1]) for line in out.splitlines() if line.startswith(b"loss ")]
            wanted = tensor_file.values(golden["losses"])
            self.assertEqual(len(losses), 20)
            for got, expected in zip(losses, wanted):
                self.assertLess(abs(got - expected), 2e-5 * expected)
            self.assertEqual(out[-41:], golden["said"][2] + b"\n")
            after = tensor_file.load(self.path("after"))
            names = {name[6:] for name in golden if name.startswith("after.")}
            self.assertEqual(set(after), names)
            for name in names:
                self.assertEqual(after[name][:2], golden["after." + name][:2])
                for got, expected in zip(tensor_file.values(after[name]),
                                         tensor_file.values(golden["after." + name])):
                    self.assertLess(abs(got - expected), 2e-4)

    def test_resume(self):
        self.files("gru")
        at_once = self.train("gru", "--steps", "14", "--losses", "--save", self.path("a"), "--dropout", "0.5")
        first = self.train("gru", "--steps", "6", "--losses", "--checkpoint", self.path("c"), "--dropout",
                           "0.5", "--sample", "0")
        second = self.train("gru", "--steps", "14", "--losses", "--checkpoint", self.path("c"), "--save",
                            self.path("b"), "--dropout", "0.5")
        self.assertIn(b"resumed after step 6\n", second)
        losses = [[line for line in out.splitlines() if line.startswith(b"loss ")]
                  for out in (at_once, first, second)]
        self.assertEqual(losses[0], losses[1] + losses[2])
        self.assertEqual(tensor_file.load(self.path("a")), tensor_file.load(self.path("b")))

    def test_temperature_and_prompt(self):
        self.files("lstm")
        texts = [self.train("lstm", "--steps", "0", "--sample", "60", "--prompt", "4 times", "--seed",
                            seed).splitlines()[-1] for seed in ("1", "1", "2")]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        self.assertTrue(texts[0].startswith(b"4 times") and len(texts[0]) == 67)

    def test_built_in_text(self):
        done = self.run_it("--steps", "100", "--sample", "20", "--hidden", "32")
        self.assertEqual(done.returncode, 0)
        self.assertLess(float(done.stdout.splitlines()[1].split()[-1]), 2.5)


class Refusals(Case):
    def test_files(self):
        self.files("lstm")
        self.refused("the text 'nowhere' cannot be read", "--text", "nowhere")
        self.refused("--batch 16 sequences of --length 32 need 528; use less", "--text", self.path("text"))
        self.refused("the prompt's 'X' is not in the text", "--text", self.path("text"), *SIZES, "--prompt",
                     "X")
        self.refused("nowhere", "--text", self.path("text"), *SIZES, "--load", "nowhere")
        self.refused("rnn.weight_ih_l0: file [64, 8], model [32, 8]", "--text", self.path("text"), *SIZES,
                     "--hidden", "8", "--load", self.path("before"))
        self.refused("rnn.", "--text", self.path("text"), *SIZES, "--layers", "1", "--load",
                     self.path("before"))
        with open(self.path("before"), "r+b") as file:
            file.truncate(1000)
        self.refused("before", "--text", self.path("text"), *SIZES, "--load", self.path("before"))


if __name__ == "__main__":
    unittest.main()
