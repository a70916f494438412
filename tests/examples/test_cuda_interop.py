"""examples/cuda_interop.cu: the network learns the solver's stencil. On the emulated GPU, also: no step
copies to or from the host."""
import os
import re
import subprocess
import unittest

from tests.examples import program

EMULATED = "GPUNN_EXAMPLES" not in os.environ


def run(steps):
    """Status, the stencil, and the emulated GPU's counts: copies by the host, captures, launches of
    graphs."""
    done = subprocess.run([program("emulator/cuda_interop" if EMULATED else "cuda_interop"), str(steps)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    counts = re.fullmatch(r"host copies (\d+), captures (\d+), graph launches (\d+), left 0\n" if EMULATED
                          else "", done.stderr)
    if counts is None:
        raise AssertionError(done.stderr)
    return (done.returncode, [float(number) for number in done.stdout.split()],
            [int(number) for number in counts.groups()])


class CudaInterop(unittest.TestCase):
    def test_learns_on_the_device(self):
        status, stencil, counts = run(400)
        self.assertEqual((status, len(stencil)), (0, 9))
        for number, expected in zip(stencil, [0, 0.2, 0, 0.2, 0.2, 0.2, 0, 0.2, 0]):
            self.assertAlmostEqual(number, expected, delta=0.05)
        if EMULATED:
            copies, captures, launches = run(20)[2]
            self.assertEqual(captures, 2)  # one for each of the two buffers' turns
            self.assertEqual(launches, 20 - 2)  # the first step of each turn is launched kernel by kernel
            self.assertEqual(counts, [copies, 2, 400 - 2])


if __name__ == "__main__":
    unittest.main()
