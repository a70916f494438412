"""examples/cpu_vs_gpu.c: every workload runs and is timed, and errors in its arguments are reported."""
import subprocess
import unittest

from tests.examples import program

PROGRAM = program("cpu_vs_gpu")
WORKS = ["vector_add", "matmul", "mlp", "cnn", "resnet18", "resnet18_train", "bert_layer", "registration"]


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class CpuVsGpu(unittest.TestCase):
    def test_every_work(self):
        done = run("--quick", "--seconds", "0.01")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = [line.split() for line in done.stdout.splitlines()]
        rows = {row[0]: row[1:4] for row in rows if row and row[0] in WORKS}
        self.assertEqual(list(rows), WORKS)
        for name, times in rows.items():
            self.assertGreater(float(times[1]), 0, name)
            self.assertGreaterEqual(min(float(t) for t in times), 0, name)

    def test_one_work(self):
        done = run("--quick", "--seconds", "0.01", "--only", "cnn", "--threads", "1", "--precision", "bf16")
        self.assertEqual(done.returncode, 0)
        self.assertEqual([w for w in WORKS if f"\n{w} " in done.stdout], ["cnn"])

    def test_unknown_work(self):
        done = run("--only", "chess")
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no work 'chess'", done.stderr)


if __name__ == "__main__":
    unittest.main()
