"""examples/vector_add.c and custom_op.c: a user's own op equals the formula and the generated kernels."""
import json
import os
import re
import subprocess
import tempfile
import unittest

from tests.examples import program


def run(name, *arguments):
    return subprocess.run([program(name), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


class VectorAdd(unittest.TestCase):
    def test_alike(self):
        for count in ("1", "1000", "65537"):
            done = run("vector_add", "--count", count, "--runs", "2")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("greatest difference: sums 0, gradients 0", done.stdout)
            self.assertEqual(len(re.findall(r"^  (?:gpunn_expr|own kernel)(?: +\d+\.\d{3}){4}$", done.stdout,
                                            re.M)) % 2, 0)


class CustomOp(unittest.TestCase):
    def test_three_ways(self):
        done = run("custom_op")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = re.findall(r"^  (own op|gpunn_expr|generated) +(\S+) +(\S+) +(\S+) +(\S+)$", done.stdout, re.M)
        self.assertEqual([row[0] for row in rows[:3]], ["own op", "gpunn_expr", "generated"])
        for row in rows[:3]:
            first, second, last = map(float, row[1:4])
            self.assertAlmostEqual(first, float(rows[0][1]), delta=2e-6)
            self.assertTrue(first > 0.1 > 0.001 > second > last, row)

    def test_spec(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m.json")
            self.assertEqual(run("custom_op", "--spec", path).returncode, 0)
            with open(path, encoding="utf-8") as file:
                self.assertIn("sin", [entry["op"] for entry in json.load(file)["tensors"]])
            done = run("custom_op", "--spec", os.path.join(folder, "none", "m.json"))
            self.assertEqual(done.returncode, 1)
            self.assertIn("m.json", done.stderr)


if __name__ == "__main__":
    unittest.main()
