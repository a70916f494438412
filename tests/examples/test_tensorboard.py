"""examples/tensorboard.h writes the bytes that TensorBoard writes (golden/tensorboard.tfevents, make_tensorboard.py), and its reader takes
them."""
import os
import subprocess
import tempfile
import unittest

from tests.examples import GOLDEN, program

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    EventAccumulator = None


def run(folder):
    return subprocess.run([program("board"), folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self):
        done = run(self.folder)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""))

    def test_bytes(self):
        with open(os.path.join(GOLDEN, "tensorboard.tfevents"), "rb") as file:
            want = file.read()
        for count in range(1, 4):  # in one second, too, no file takes the place of another
            self.write()
            names = os.listdir(self.folder)
            self.assertEqual(len(names), count)
            for name in names:
                self.assertIn("tfevents", name)
                with open(os.path.join(self.folder, name), "rb") as file:
                    self.assertEqual(file.read(), want)

    @unittest.skipUnless(EventAccumulator, "tensorboard is not installed")
    def test_reader(self):
        self.write()
        events = EventAccumulator(self.folder, size_guidance={"histograms": 0})
        events.Reload()
        self.assertEqual([(e.step, round(e.value, 6)) for e in events.Scalars("loss/train")], [(3, 0.5)] * 2)
        self.assertEqual([e.value for e in events.Scalars("accuracy/validation")], [0.5])
        histogram = events.Histograms("weights")[0]
        self.assertEqual((histogram.step, histogram.histogram_value.num, sum(histogram.histogram_value.bucket)), (7, 255, 255))

    def test_no_folder(self):
        done = run(os.path.join(self.folder, "none"))
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertRegex(done.stderr.decode(), r"^cannot write '.*none/events\.out\.tfevents\.\d+\.000': No such file or directory\n$")


if __name__ == "__main__":
    unittest.main()
