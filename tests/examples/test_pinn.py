"""examples/pinn.c finds the known solution from the equation's residual."""
import re
import subprocess
import unittest

from tests.examples import program


class Pinn(unittest.TestCase):
    def test_error(self):
        done = subprocess.run([program("pinn"), "--steps", "1500", "--threads", "1"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        error = float(re.search(rb"largest error ([0-9.]+)$", done.stdout.strip()).group(1))
        self.assertLess(error, 0.05)  # of a solution that goes from 0 to 1

    def test_options(self):
        done = subprocess.run([program("pinn"), "--steps", "0"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(b"--steps", done.stderr)
