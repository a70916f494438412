"""examples/ocr.c learns to read. Its ctc.h finds the same as a search in Python and, if all texts are kept,
the most likely text."""
import itertools
import math
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest

from tests.examples import ROOT, program

sys.path.insert(0, os.path.join(ROOT, "tests"))
import tensor_file

LETTERS = "abcdefgh"


def total(*parts):
    most = max(parts)
    return most if most == -math.inf else most + math.log(sum(math.exp(part - most) for part in parts))


def collapse(path):
    return tuple(c for i, c in enumerate(path) if c and (i == 0 or c != path[i - 1]))


def every_text(steps):
    """Each text with the logarithm of its probability, over all paths to it."""
    texts = {}
    for path in itertools.product(range(len(steps[0])), repeat=len(steps)):
        text = collapse(path)
        texts[text] = total(texts.get(text, -math.inf), sum(step[c] for step, c in zip(steps, path)))
    return texts


def search(steps, width):
    """Prefix beam search: text -> logarithms of the probabilities of the paths that end with a blank, and
    with its last label."""
    beams = {(): (0.0, -math.inf)}
    for step in steps:
        found = {}

        def add(text, blank, last):
            before = found.get(text, (-math.inf, -math.inf))
            found[text] = total(before[0], blank), total(before[1], last)

        for text, (blank, last) in beams.items():
            add(text, total(blank, last) + step[0], last + step[text[-1]] if text else -math.inf)
            for c in range(1, len(step)):
                add(text + (c,), -math.inf,
                    (blank if text and text[-1] == c else total(blank, last)) + step[c])
        beams = dict(sorted(found.items(), key=lambda item: -total(*item[1]))[:width])
    text = max(beams, key=lambda text: total(*beams[text]))
    return text, total(*beams[text])


def drawn(rng, steps, classes, sharp):
    """Random logarithms of probabilities, in F32. Labels stay for some steps."""
    rows, at = [], 0
    for _ in range(steps):
        at = rng.randrange(classes) if rng.random() < 0.5 else at
        row = [rng.gauss(0, 1) + sharp * (c == at) for c in range(classes)]
        norm = total(*row)
        rows.append(struct.unpack("<%df" % classes, struct.pack("<%df" % classes, *(x - norm for x in row))))
    return rows


class Ocr(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("letters"), "w") as file:
            file.write("\n".join(LETTERS) + "\n")

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_program(self, *options):
        return subprocess.run([program("ocr"), "--threads", "2", *map(str, options)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)

    def decode(self, lines, width, plain=False):
        numbers = [math.exp(x) if plain else x for line in lines for step in line for x in step]
        shape = [len(lines), len(lines[0]), len(lines[0][0])]
        tensor_file.save(self.path("said"),
                         {"said": ("F32", shape, struct.pack("<%df" % len(numbers), *numbers))})
        done = self.run_program("--probabilities", self.path("said"), "--alphabet", self.path("letters"),
                                "--width", width)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = [line.split("\t") for line in done.stdout.split("\n")[:-1]]
        self.assertEqual(len(rows), len(lines))
        return [(tuple(LETTERS.index(c) + 1 for c in text), float(score),
                 tuple(LETTERS.index(c) + 1 for c in best)) for text, score, best in rows]

    def test_all_texts(self):
        rng = random.Random(1)
        lines = [drawn(rng, 5, 3, sharp) for sharp in (0, 0, 1, 1, 2, 3)]
        for line, (text, score, best) in zip(lines, self.decode(lines, 1000)):
            texts = every_text(line)
            self.assertEqual(text, max(texts, key=texts.get))
            self.assertAlmostEqual(score, texts[text], delta=2e-6)
            self.assertEqual(best, collapse([step.index(max(step)) for step in line]))

    def test_search(self):
        rng = random.Random(2)
        differ = 0
        for width, plain in ((1, False), (2, False), (3, True), (8, False), (30, True)):
            lines = [drawn(rng, 20, 6, sharp) for sharp in (0, 0.5, 1, 2, 3)]
            for line, (text, score, best) in zip(lines, self.decode(lines, width, plain)):
                want, probability = search(line, width)
                self.assertEqual(text, want)
                self.assertAlmostEqual(score, probability, delta=1e-4 if plain else 2e-6)
                differ += text != best
        self.assertGreater(differ, 5)  # else the best classes would be enough

    def test_learns(self):
        done = self.run_program("--epochs", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        for share in re.search(r"512 lines: ([0-9.]+) % right by the best class of each step, ([0-9.]+) % by "
                               r"the search", done.stdout).groups():
            self.assertGreater(float(share), 70)

    def test_bad_input(self):
        done = self.run_program("--probabilities", self.path("none"), "--alphabet", self.path("letters"))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("cannot read", done.stderr)
        tensor_file.save(self.path("said"), {"said": ("F32", [3], bytes(12))})
        done = self.run_program("--probabilities", self.path("said"), "--alphabet", self.path("letters"))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("does not hold probabilities [lines, steps, classes]", done.stderr)
        lines = [[[math.nan] * 3] * 4]
        self.assertEqual(self.decode(lines, 4), [((), -math.inf, ())])


if __name__ == "__main__":
    unittest.main()
