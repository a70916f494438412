"""examples/online.c: the network learns the solver's heat flux. On the emulated GPU, also: only what is
printed comes back to the host."""
import os
import re
import subprocess
import unittest

from tests.examples import program

EMULATED = "GPUNN_EXAMPLES" not in os.environ


def run(name, *options):
    """What the network misses, in percent, whenever the program tells it, and the emulated GPU's counts."""
    done = subprocess.run([program(name), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=True)
    return ([float(missed) for missed in re.findall(r"misses ([\d.]+) %", done.stdout)],
            [int(count) for count in re.findall(r"\d+", done.stderr)])


class Online(unittest.TestCase):
    def test_learns_beside_the_solver(self):
        missed, _ = run("online", "--threads", "2")
        self.assertGreater(missed[0], 80)
        self.assertLess(max(missed[1:]), 20)

    @unittest.skipUnless(EMULATED, "counts what the emulated GPU does")
    def test_leaves_the_device_to_print(self):
        few, counts = run("emulator/online", "--steps", "16")
        many, counts_of_many = run("emulator/online", "--steps", "32")
        self.assertEqual(len(few), len(many))
        self.assertLess(many[-1], few[0] / 4)
        self.assertEqual(counts[0], counts_of_many[0])  # copies by the host
        self.assertEqual(counts_of_many[2] - counts[2], 16 * 4 * 2)  # a batch is gathered, and learned from


if __name__ == "__main__":
    unittest.main()
