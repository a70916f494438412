"""examples/cuda_interop.cu on the emulated GPU: the network learns the solver's stencil, and no step copies to or from the host."""
import re
import subprocess
import unittest

from tests.examples import program


def run(steps):
    done = subprocess.run([program("emulator/cuda_interop"), str(steps)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    counts = re.fullmatch(r"host copies (\d+), captures (\d+), graph launches (\d+), left 0\n", done.stderr)
    return done.returncode, [float(number) for number in done.stdout.split()], [int(number) for number in counts.groups()]


class CudaInterop(unittest.TestCase):
    def test_learns_on_the_device(self):
        status, few, (copies, captures, launches) = run(20)
        self.assertEqual((status, len(few), captures), (0, 9, 2))  # one for each of the two buffers' turns
        self.assertEqual(launches, 20 - 2)  # the first step of each turn is launched kernel by kernel
        status, stencil, (many_copies, captures, launches) = run(400)
        self.assertEqual((status, many_copies, captures, launches), (0, copies, 2, 400 - 2))
        for number, expected in zip(stencil, [0, 0.2, 0, 0.2, 0.2, 0.2, 0, 0.2, 0]):
            self.assertAlmostEqual(number, expected, delta=0.05)


if __name__ == "__main__":
    unittest.main()
