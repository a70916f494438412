"""examples/csv.h reads the columns that a header names like Python's csv module, and reports errors in a
table."""
import csv
import io
import math
import os
import random
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

from tests.examples import ROOT, comma_locale, program


HINT = "; for a column of text use csv_classes"


def read(text, *names, env=None):
    with tempfile.NamedTemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        return subprocess.run([program("table"), file.name, *names], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60, env=env)


def single(text):
    return struct.unpack("f", struct.pack("f", float(text)))[0] if text.strip() else math.nan


class Classify(unittest.TestCase):
    """examples/classify_csv.c, the way from a table to a model."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def learn(self, table, *options, status=0):
        """What it prints about a table, or without one about its own."""
        words = [program("classify_csv"), "--out", self.folder, *options]
        if table is not None:
            words.append(os.path.join(self.folder, "table.csv"))
            with open(words[-1], "w", encoding="utf-8") as file:
                file.write(table)
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout if status == 0 else done.stderr

    def accuracy(self, said):
        return float(re.search(r"^accuracy on \d+ rows .*: ([\d.]+) %$", said, re.M)[1])

    def test_its_own_table(self):
        said = self.learn(None)
        self.assertTrue(said.startswith("300 rows, 3 classes, columns: length width\n"), said)
        self.assertGreater(self.accuracy(said), 90)
        self.assertEqual(len(re.findall(r"^(?:clover|daisy|poppy) +taken for ", said, re.M)), 5)
        self.assertEqual(sorted(os.listdir(self.folder)), ["classify_csv.json", "classify_csv.safetensors"])

    def test_a_table(self):
        """The class in the middle, a column of text, rows in order, and one row too many for full batches."""
        rows = ["%d;plot %d;%s;%d,5" % (i, i, "dry" if i < 81 else "wet", 1000 * (i < 81) + i % 7)
                for i in range(161)]
        said = self.learn("\n".join(["row;plot;soil;depth"] + rows), "--class", "soil", "--without", "row")
        self.assertTrue(said.startswith("161 rows, 2 classes, columns: depth\n"), said)
        self.assertEqual(self.accuracy(said), 100)

    def test_tables_that_do_not_fit(self):
        rows = "".join("%d,%s\n" % (i, "ab"[i % 2]) for i in range(20))
        for table, options, part in (
            ("x,c\n1,a\n", (), "1 rows of 1 classes are too few"), ("x,c\n,a\n" + rows, (), "row 1 after"),
            ("x,c\n" + rows, ("--class", "kind"), "names no column 'kind'; its columns are 'x', 'c'"),
            ("c\na\n", (), "must name 2 to"), ("x,c\nu,a\nv,b\n", (), "no column has numbers besides 'c'")):
            self.assertIn(part, self.learn(table, *options, status=1))


class Values(unittest.TestCase):
    def compare(self, text, *names, separator=","):
        done = read(text, *names)
        self.assertEqual((done.returncode, done.stderr), (0, b""), text)
        rows = csv.DictReader(io.StringIO(text.lstrip("\ufeff\r\n"), newline=""), delimiter=separator)
        want = [[single(row[name].replace(",", ".")) for name in names] for row in rows]
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

    def test_separators(self):
        for separator in ",;\t":
            for line in "%sa;x%s%sb,y%s%sc\tz%s", "%sb,y%s%sa;x%s%sc\tz%s", "%sc\tz%s%sa;x%s%sb,y%s":
                header = line % ('"', '"', separator + '"', '"', separator + '"', '"')
                self.compare("\ufeff\r\n%s\r\n1.5%s\"-2\"%s3\n" % (header, separator, separator), "b,y",
                             "a;x", "c\tz", separator=separator)

        self.compare("a, b\tc\n1.5\t2\n", "a, b", separator="\t")
        self.compare("a, b;c\n1,5;2\n", "a, b", separator=";")
        self.compare("a;b,c,d\n1,2,3\n", "a;b", "d")

    def test_decimal_commas(self):
        self.compare('"height";"weight"\n1,75;"-70,25"\n2.5; 3e2\n;,5\n', "weight", "height", separator=";")

    def test_random(self):
        rng = random.Random(1)
        fields = [lambda: "%.9g" % rng.uniform(-1e6, 1e6), lambda: str(rng.randrange(-99, 99)), lambda: "",
                  lambda: " 1e-30 "]
        for _ in range(100):
            names = rng.sample(["a", "b b", "c,c", 'd"d', "e\ne", "\u00e9", "x\U0001f600"], rng.randint(2, 7))
            out = io.StringIO()
            separator = rng.choice(",;\t")
            writer = csv.writer(out, lineterminator=rng.choice(["\n", "\r\n"]), delimiter=separator,
                                quoting=rng.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
            writer.writerows([names] + [[rng.choice(fields)() for _ in names]
                                        for _ in range(rng.choice([1, 7, 64, 65, 200]))])
            self.compare(out.getvalue(), *rng.sample(names, rng.randint(1, len(names))), separator=separator)


class Classes(unittest.TestCase):
    def test_labels(self):
        """In the order of their bytes, as Python sorts texts, beside numbers from the same text."""
        rng = random.Random(2)
        kinds = ["oak", "fir", 'the "old" elm', "oaks", "Oak", "b, c", "line\nend", "10", "9", "\u00e9lan"]
        for count in 1, 2, 63, 64, 65, 300:
            labels = [rng.choice(kinds) for _ in range(count)]
            out = io.StringIO()
            writer = csv.writer(out, lineterminator=rng.choice(["\n", "\r\n", "\r", "\n\n"]),
                                delimiter=rng.choice(",;\t"), quoting=csv.QUOTE_NONNUMERIC)
            writer.writerows([["the class", 'x "x"']] + [[label, i] for i, label in enumerate(labels)])
            done = read(out.getvalue(), 'x "x"', "@the class")
            self.assertEqual((done.returncode, done.stderr), (0, b""), out.getvalue())
            order = sorted(set(labels))
            want = ["%d %d" % (i, order.index(label)) for i, label in enumerate(labels)]
            self.assertEqual(done.stdout.decode(), "\n".join(want + order) + "\n")

    def test_blanks(self):
        done = read("class,x\n oak\t,1\noak,2\n\" fir\",3\n", "x", "@class")
        self.assertEqual((done.stdout, done.stderr), (b"1 1\n2 1\n3 0\nfir\noak\n", b""))

    def test_sentences(self):
        for text, sentence in (
                ("", "the text is empty and has no header"),
                ("a,b\n", "there is no row below the header"),
                ("a,c\n1,x\n", "the header names no column 'b'; its columns are 'a', 'c'"),
                ("a,b\n1,x\n2\n", "line 3 has 1 field, but the header has 2"),
                ("a,b\n1,x\n2, \n", "line 3: column 'b' is empty, but each row needs a class")):
            done = read(text, "@b")
            self.assertEqual((done.returncode, done.stdout, done.stderr.decode()), (1, b"", sentence + "\n"))


class Compilers(unittest.TestCase):
    def test_languages(self):
        strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror", "-fsyntax-only"]
        for compiler, language, standard in (("gcc", "c", "c99"), ("clang", "c", "c99"),
                                             ("g++", "c++", "c++17"), ("clang++", "c++", "c++17")):
            with self.subTest(compiler=compiler):
                if shutil.which(compiler) is None:
                    self.skipTest("no " + compiler)
                command = [compiler, "-std=" + standard, *strict, "-I" + ROOT, "-x", language, "-"]
                subprocess.run(command, check=True, timeout=60,
                               input=b'#define GPUNN_NO_IMPLEMENTATION\n#include "examples/csv.h"\n')


class BadInput(unittest.TestCase):
    def test_sentences(self):
        for text, sentence in (
                ("", "the text is empty and has no header"),
                ("\n\r\n", "the text is empty and has no header"),
                ('"a,b\n1,2\n', "line 1, the header: a quote is not closed, or text follows it"),
                ('\n"a"x;"b"\n1,2\n', "line 2, the header: a quote is not closed, or text follows it"),
                (",".join(["a"] * 1025), "the header has 1025 columns, but at most 1024 can be read"),
                ("a,c\n1,2\n", "the header names no column 'b'; its columns are 'a', 'c'"),
                ("%s\n" % ",".join(["x" * 31] + ["c%d" % i for i in range(1, 9)]),
                 "the header names no column 'a'; its columns are '%s', %s, ..." % (
                     "x" * 30, ", ".join("'c%d'" % i for i in range(1, 8)))),
                ("a,b\n1,2\n3\t4\n", "line 3 has no ',' but 1 '\\t'; separate its fields by ','"),
                ("a,b\n1;2;3\n", "line 2 has no ',' but 2 ';'; separate its fields by ','"),
                ("a;b\n1;2\n3,4\n", "line 3 has no ';' but 1 ','; separate its fields by ';'"),
                ("a\tb\n1;2\n", "line 2 has no '\\t' but 1 ';'; separate its fields by '\\t'"),
                ("a;b\n1;2,3,4\n", "line 2: '2,3,4' in column 'b' is not a finite number" + HINT),
                ("a;b\n1;1.234,5\n", "line 2: '1.234,5' in column 'b' is not a finite number" + HINT),
                ("a\tb\n1\t2,3\n", "line 2: '2,3' in column 'b' is not a finite number" + HINT),
                ("a, b \n1,2\n", "the header names no column 'b' but ' b '; blanks and case count"),
                ("bb,B,A\n1,2,3\n", "the header names no column 'a' but 'A'; blanks and case count"),
                ("a,b,a\n1,2,3\n", "the header names two columns 'a'"),
                ("a,b\n", "there is no row below the header"),
                ("a,b\n1,2\n3\n", "line 3 has 1 field, but the header has 2"),
                ("a,b\n1,2,3\n", "line 2 has 3 fields, but the header has 2"),
                ('a,b\n1,"2"x\n', "line 2: a quote is not closed, or text follows it"),
                ("a,b\n1,2\n3,x4\n", "line 3: 'x4' in column 'b' is not a finite number" + HINT),
                ("a,b\n1,4x\n", "line 2: '4x' in column 'b' is not a finite number" + HINT),
                ("a,b\ninf,1\n", "line 2: 'inf' in column 'a' is not a finite number" + HINT),
                ("a,b\n1e99,1\n", "line 2: '1e99' in column 'a' is not a finite number" + HINT),
                ("a,b\n%s,1\n" % ("1" * 64),
                 "line 2: '%s' in column 'a' is not a finite number" % ("1" * 30) + HINT)):
            done = read(text, "a", "b")
            self.assertEqual((done.returncode, done.stdout, done.stderr.decode()), (1, b"", sentence + "\n"),
                             text)

    def test_columns(self):
        done = read("a,b\n1,2\n", *["a"] * 1025)
        self.assertEqual((done.returncode, done.stderr),
                         (1, b"1025 columns are asked for, but a call reads 1 to 1024\n"))


if __name__ == "__main__":
    unittest.main()
