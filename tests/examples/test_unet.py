"""examples/unet.c against PyTorch (expected_output/unet.safetensors, make_unet.py): logits of images of ten
sizes and the losses of five steps, from weights that a counter makes; what it learns, and its picture."""
import os
import re
import subprocess
import tempfile
import unittest

from tests import tensor_file
from tests.examples import EXPECTED, drawn_weights, program

PROGRAM = program("unet")
WIDTH, DEPTH, CLASSES, STEPS = 4, 3, 4, 5
SIZES = (8, 8), (9, 8), (8, 15), (17, 23), (33, 20), (47, 50), (64, 64), (31, 9), (12, 40), (65, 19)
EACH = 7  # the golden file has one of so many logits


def shapes(width=WIDTH):
    """make_unet.py's names, without num_batches_tracked."""
    result, channels, skips = {}, 1, []

    def double_conv(name, wide):
        for i, inputs in (0, channels), (3, wide):
            layer = name + ".double_conv.%d"
            result[layer % i + ".weight"] = [wide, inputs, 3, 3]
            result.update((layer % (i + 1) + part, [wide])
                          for part in (".weight", ".bias", ".running_mean", ".running_var"))
        return wide

    for i in range(DEPTH + 1):
        channels = double_conv("down%d" % i if i else "inc", width << i)
        skips.append(channels)
    for i in range(DEPTH):
        channels += skips[DEPTH - 1 - i]
        channels = double_conv("up%d" % (i + 1), width << (DEPTH - 1 - i))
    result.update({"outc.weight": [CLASSES, channels, 1, 1], "outc.bias": [CLASSES]})
    return result


class Unet(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_program(self, *options, status=0):
        done = subprocess.run([PROGRAM, "--threads", "1", "--width", str(WIDTH), "--out", self.folder,
                               *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout if status == 0 else done.stderr

    def compare(self, got, expected, tolerance):
        self.assertEqual(len(got), len(expected))
        for i, (a, b) in enumerate(zip(got, expected)):
            self.assertLessEqual(abs(a - b), tolerance * (1 + abs(b)), "number %d" % i)

    def test_pytorch(self):
        golden = tensor_file.load(os.path.join(EXPECTED, "unet.safetensors"))
        tensor_file.save(self.path("weights"), drawn_weights(shapes()))
        text = self.run_program("--weights", self.path("weights"), "--logits", self.path("logits"), "--steps",
                                str(STEPS), "--save", self.path("saved"))
        logits = tensor_file.load(self.path("logits"))
        for i, size in enumerate(SIZES):
            self.assertEqual(logits[str(i)][1], [CLASSES, *size])
            self.compare(tensor_file.values(logits[str(i)])[::EACH], tensor_file.values(golden[str(i)]), 1e-5)
        self.compare([float(x) for x in re.findall(r"step \d: loss (\S+),", text)],
                     tensor_file.values(golden["losses"]), 2e-5)
        self.assertEqual(
            {name: shape for name, (_, shape, _) in tensor_file.load(self.path("saved")).items()}, shapes())

    def test_learns(self):
        text = self.run_program("--steps", "200", "--width", "8")
        means = [float(x) for x in re.findall(r"\d+ x \d+ .*mean ([\d.]+)\n", text)]
        self.assertEqual(len(means), 4)
        self.assertGreater(min(means), 0.3)  # a quarter if all is background
        with open(self.path("unet.ppm"), "rb") as file:
            head, pixels = file.readline(), file.read()
        self.assertEqual((head, len(pixels)), (b"P6 512 192 255\n", 512 * 192 * 3))
        self.assertGreater(len({pixels[i:i + 3] for i in range(512 * 128 * 3, len(pixels), 3)}), 1)

    def test_bad_options(self):
        self.assertIn("takes a whole number", self.run_program("--width", "0", status=2))
        self.assertIn("check the path", self.run_program("--weights", self.path("none"), status=1))


if __name__ == "__main__":
    unittest.main()
