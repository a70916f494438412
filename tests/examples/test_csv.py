"""examples/csv.h reads the columns that a header names like Python's csv module, and reports errors in a
table."""
import csv
import io
import math
import random
import struct
import subprocess
import tempfile
import unittest

from tests.examples import comma_locale, program


def read(text, *names, env=None):
    with tempfile.NamedTemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        return subprocess.run([program("table"), file.name, *names], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60, env=env)


def single(text):
    return struct.unpack("f", struct.pack("f", float(text)))[0] if text.strip() else math.nan


class Values(unittest.TestCase):
    def compare(self, text, *names):
        done = read(text, *names)
        self.assertEqual((done.returncode, done.stderr), (0, b""), text)
        want = [[single(row[name]) for name in names]
                for row in csv.DictReader(io.StringIO(text.lstrip("\ufeff"), newline=""))]
        got = [[float(number) for number in line.split()] for line in done.stdout.decode().splitlines()]
        self.assertEqual(repr(got), repr([[float("%.9g" % number) for number in row] for row in want]), text)

    def test_forms(self):
        self.compare('\ufeffa,"b, c","say ""d"""\r\n1,"2",-3.5e-3\r\n\r\n" 4 ",,+.5\r\n,"",6', 'say "d"', "a",
                     "b, c")
        self.compare("a\n1\n", "a")

    def test_locale(self):
        with tempfile.TemporaryDirectory() as folder:
            env = comma_locale(folder)
            if env is None:
                self.skipTest("no locale with a decimal comma")
            done = read("a,b\n1.5,-2.5e-1\n.5,nan\n", "a", "b", env=env)
        self.assertEqual((done.stdout.decode(), done.stderr), ("1.5 -0.25\n0.5 nan\n", b""))

    def test_random(self):
        rng = random.Random(1)
        fields = [lambda: "%.9g" % rng.uniform(-1e6, 1e6), lambda: str(rng.randrange(-99, 99)), lambda: "",
                  lambda: " 1e-30 "]
        for _ in range(100):
            names = rng.sample(["a", "b b", "c,c", 'd"d', "e\ne", "\u00e9", "x\U0001f600"], rng.randint(2, 7))
            out = io.StringIO()
            writer = csv.writer(out, lineterminator=rng.choice(["\n", "\r\n"]),
                                quoting=rng.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
            writer.writerows([names] + [[rng.choice(fields)() for _ in names]
                                        for _ in range(rng.choice([1, 7, 64, 65, 200]))])
            self.compare(out.getvalue(), *rng.sample(names, rng.randint(1, len(names))))


class BadInput(unittest.TestCase):
    def test_sentences(self):
        for text, sentence in (
                ("", "the header is missing or broken, or the number of columns is not 1 to 1024"),
                ('"a,b\n1,2\n', "the header is missing or broken, or the number of columns is not 1 to 1024"),
                (",".join(["a"] * 1025),
                 "the header is missing or broken, or the number of columns is not 1 to 1024"),
                ("a,c\n1,2\n", "the header names no column 'b'; its columns are 'a', 'c'"),
                ("%s\n" % ",".join(["x" * 31] + ["c%d" % i for i in range(1, 9)]),
                 "the header names no column 'a'; its columns are '%s', %s, ..." % (
                     "x" * 30, ", ".join("'c%d'" % i for i in range(1, 8)))),
                ("a;b\n1;2\n", "line 1 has no ',' but 1 ';'; separate its fields by ','"),
                ("\n1;2;3;4;5\n", "line 2 has no ',' but 4 ';'; separate its fields by ','"),
                ("a,b\n1,2\n3\t4\n", "line 3 has no ',' but 1 tab; separate its fields by ','"),
                ("a,b\n1;2;3\n", "line 2 has no ',' but 2 ';'; separate its fields by ','"),
                ("a\tb\n1\t2\n", "line 1 has no ',' but 1 tab; separate its fields by ','"),
                ("a\tb\tc\n", "line 1 has no ',' but 2 tabs; separate its fields by ','"),
                ("a, b \n1,2\n",
                 "the header names no column 'b'; it has blanks around that name, remove them"),
                ("a,b,a\n1,2,3\n", "the header names two columns 'a'"),
                ("a,b\n", "there is no row below the header"),
                ("a,b\n1,2\n3\n", "line 3 has 1 field, but the header has 2"),
                ("a,b\n1,2,3\n", "line 2 has 3 fields, but the header has 2"),
                ('a,b\n1,"2"x\n', "line 2: a quote is not closed, or text follows it"),
                ("a,b\n1,2\n3,x4\n", "line 3: 'x4' in column 'b' is not a finite number"),
                ("a,b\n1,4x\n", "line 2: '4x' in column 'b' is not a finite number"),
                ("a,b\ninf,1\n", "line 2: 'inf' in column 'a' is not a finite number"),
                ("a,b\n1e99,1\n", "line 2: '1e99' in column 'a' is not a finite number"),
                ("a,b\n%s,1\n" % ("1" * 64),
                 "line 2: '%s' in column 'a' is not a finite number" % ("1" * 30))):
            done = read(text, "a", "b")
            self.assertEqual((done.returncode, done.stdout, done.stderr.decode()), (1, b"", sentence + "\n"),
                             text)


if __name__ == "__main__":
    unittest.main()
