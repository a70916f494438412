"""tests/gpu/products.py: a new table is written and reported; a known one is compared, except for times."""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = """# NVIDIA H200, 132 multiprocessors, 139 GiB, compute capability 9.0, cuBLASLt 130100
32x50x20 f32 y: 64 8/21 16 8/21 1 3/6 | 0.0100 ms
32x50x20 f32 dx*gelu': 64 0/-1 16 0/-1 1 0/-1 | 0.0000 ms
"""


class Products(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_on(self, table, end=""):
        with open(self.path("program"), "w") as file:
            file.write("#!/bin/sh\ncat <<'E'\n" + table + "E\n" + end)
        os.chmod(file.name, 0o755)
        done = subprocess.run([sys.executable, "tests/gpu/products.py", file.name, "--out", self.path("out"),
                               "--tables", self.folder], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        with open(self.path("out")) as file:
            self.assertEqual(file.read(), table)
        return done.returncode, done.stdout

    def commit(self):
        os.rename(self.path("out"), self.path("NVIDIA_H200_cuBLASLt_130100.txt"))

    def test_a_new_table(self):
        code, said = self.run_on(TABLE)
        self.assertEqual(code, 0)
        self.assertIn("2 products, 1 of them without", said)
        self.assertIn("There is no table for this card and release yet", said)
        self.assertIn("NVIDIA_H200_cuBLASLt_130100.txt", said)

    def test_a_known_table(self):
        self.run_on(TABLE)
        self.commit()
        self.assertEqual(self.run_on(TABLE.replace("0.0100", "0.0200"))[0], 0)
        code, said = self.run_on(TABLE.replace("1 3/6", "1 0/-1"))
        self.assertEqual(code, 1)
        self.assertIn("-32x50x20 f32 y: 64 8/21 16 8/21 1 3/6\n+32x50x20 f32 y: 64 8/21 16 8/21 1 0/-1\n2 "
                      "lines differ", said)
        code, said = self.run_on("".join(TABLE.splitlines(True)[:2]))
        self.assertEqual(code, 1)
        self.assertIn("1 lines differ", said)

    def test_an_algorithm_that_is_refused(self):
        code, said = self.run_on(TABLE.replace("0.0100 ms", "refused: cublasLtMatmul: not supported"))
        self.assertEqual(code, 1)
        self.assertIn("1 refused\n32x50x20 f32 y: 64 8/21", said)

    def test_a_program_that_fails(self):
        code, said = self.run_on(TABLE, "exit 3\n")
        self.assertEqual(code, 1)
        self.assertIn("ended with 3 after 3 lines", said)
        self.assertEqual(self.run_on("")[0], 1)


if __name__ == "__main__":
    unittest.main()
