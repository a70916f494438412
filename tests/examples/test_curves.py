"""examples/curves.h draws each number where it belongs, within 80 columns; a training shows curves on a
terminal and nowhere else."""
import fcntl
import math
import os
import pty
import re
import struct
import subprocess
import termios
import unittest

from tests.examples import program

WIDE, HIGH = 2 * 66, 4 * 12  # dots
# of U+2800: row and column of each
BITS = {0: (0, 0), 1: (1, 0), 2: (2, 0), 3: (0, 1), 4: (1, 1), 5: (2, 1), 6: (3, 0), 7: (3, 1)}


def draw(rows, locale="C.UTF-8", each=()):
    text = "".join(f"{a!r} {b!r}\n" for a, b in rows)
    return subprocess.run([program("curves"), *each], input=text.encode(), stdout=subprocess.PIPE, check=True,
                          env=dict(os.environ, LC_ALL=locale)).stdout.decode().splitlines()


def dots(lines):
    """(row, column) of each dot."""
    found = set()
    for i, line in enumerate(lines[2:14]):
        for j, character in enumerate(line[12:]):
            bits = 0 if character == " " else ord(character) - 0x2800
            found |= {(4 * i + row, 2 * j + column) for bit, (row, column) in BITS.items() if bits >> bit & 1}
    return found


def expected(values, low, high):
    """The row of dots at each column; None: no number."""
    for x in range(WIDE):
        place = x * (len(values) - 1) / (WIDE - 1)
        i = min(int(place), len(values) - 2)
        value = values[i] + (place - i) * (values[i + 1] - values[i])
        yield None if math.isnan(value) else (high - value) / (high - low) * (HIGH - 1)


class Curves(unittest.TestCase):
    def check(self, values):
        lines = draw([(value, math.nan) for value in values])
        finite = [value for value in values if not math.isnan(value)]
        low, high = min(finite), max(finite)
        found = dots(lines)
        for x, row in enumerate(expected(values, low, high)):
            rows = [y for y, column in found if column == x]
            if row is None:
                self.assertEqual(rows, [], x)
            else:
                self.assertTrue(any(abs(y - row) < 0.51 for y in rows), (x, row, rows))
        self.assertLessEqual(max(map(len, lines)), 80)
        self.assertEqual((float(lines[2][:10]), float(lines[13][:10])),
                         (float(f"{high:.4g}"), float(f"{low:.4g}")))
        self.assertRegex(lines[14], rf"^ +1 +{len(values)}$")

    def test_dots(self):
        self.check([2.3 * math.exp(-i / 8) + 0.1 * math.sin(i) for i in range(40)])
        self.check([0.0, 1.0])
        self.check([1e-30, -1e30, 5.0])
        self.check([1.0, 2.0, math.nan, 3.0, 1.0])
        self.check([float(i % 7) for i in range(512)])

    def test_gaps(self):
        """The curve of the validation is dashed, and stands under the same axis."""
        both = dots(draw([(1.0, 0.0), (1.0, 0.0)]))
        self.assertEqual({x for y, x in both if y == 0}, set(range(WIDE)))
        self.assertEqual({x for y, x in both if y == HIGH - 1}, {x for x in range(WIDE) if x % 6 < 3})
        self.assertEqual({y for y, x in both}, {0, HIGH - 1})

    def test_many_steps(self):
        lines = draw([(float(i), math.nan) for i in range(5000)])
        self.assertIn("training 4999", lines[1])
        rows = [min(y for y, column in dots(lines) if column == x) for x in range(WIDE)]
        self.assertEqual(rows, sorted(rows, reverse=True))
        self.assertRegex(lines[14], "^ +1 +5000$")

    def test_axis(self):
        self.assertRegex(draw([(1.0, 2.0)] * 20, each=["50"])[14], "^ +50 +1000$")

    def test_plain(self):
        lines = draw([(2.0, 1.5), (1.0, 1.25), (0.5, 1.0)], "C")
        self.assertTrue(all(line.isascii() and len(line) <= 80 for line in lines), lines)
        self.assertEqual((lines[2][12], lines[6][12]), ("*", "o"))

    def test_nothing_to_draw(self):
        for rows in [], [(1.0, 1.0)], [(math.nan, math.nan)] * 3, [(math.inf, math.nan)] * 3:
            self.assertEqual(draw(rows), [])

    def test_terminal(self):
        """A training shows one line an epoch, which changes, and its curves at the end; where there is no
        terminal, no curves."""
        command = [program("forecast"), "--epochs", "2"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=dict(os.environ, LC_ALL="C.UTF-8"), check=True)
        self.assertEqual(len(done.stderr.splitlines()), 2)
        main, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal,
                              env=dict(os.environ, LC_ALL="C.UTF-8")) as training:
            os.close(terminal)
            text = b""
            try:
                while piece := os.read(main, 4096):
                    text += piece
            except OSError:  # the other end is closed
                pass
        os.close(main)
        self.assertEqual(training.returncode, 0)
        text = text.decode()
        lines = re.split(r"[\r\n]+", text)
        self.assertLessEqual(max(map(len, lines)), 80)
        self.assertGreater(text.count("\rEpoch 1/2 "), 1)
        self.assertRegex(text, "Epoch 2/2 [^\\n]*\\n\r?\nloss  ⠒⠒ training [\\d.e-]+\r?\n")
        self.assertGreater(sum("\u2800" < character <= "\u28ff" for character in text), 50)


if __name__ == "__main__":
    unittest.main()
