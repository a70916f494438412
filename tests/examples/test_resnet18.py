"""examples/resnet18.c against PyTorch (expected_output/resnet18.safetensors, make_resnet18.py): scores,
losses of 20 steps of the head and of all layers, from weights that a counter makes; saliency maps; the
replaced head, what is saved, and files that do not fit."""
import os
import re
import subprocess
import tempfile
import unittest

from tests import tensor_file
from tests.examples import EXPECTED, drawn_weights, program

PROGRAM = program("resnet18")
WIDTH = 8
SIZES = (64, 64), (33, 64), (64, 33), (47, 50), (32, 32), (51, 37), (17, 60), (8, 9), (3, 64), (1, 1)


def shapes(width, classes):
    """torchvision's names, without num_batches_tracked."""
    result = {}

    def conv_bn(conv, bn, wide, channels, kernel):
        result[conv + ".weight"] = [wide, channels, kernel, kernel]
        result.update((bn + part, [wide]) for part in (".weight", ".bias", ".running_mean", ".running_var"))

    conv_bn("conv1", "bn1", width, 3, 7)
    channels = width
    for stage in range(4):
        wide = width << stage
        for index in range(2):
            block = "layer%d.%d." % (stage + 1, index)
            conv_bn(block + "conv1", block + "bn1", wide, channels, 3)
            conv_bn(block + "conv2", block + "bn2", wide, wide, 3)
            if wide != channels:
                conv_bn(block + "downsample.0", block + "downsample.1", wide, channels, 1)
            channels = wide
    result.update({"fc.weight": [classes, channels], "fc.bias": [classes]})
    return result


def weights(width=WIDTH, classes=5):
    return drawn_weights(shapes(width, classes))


class Resnet18(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.golden = {name: tensor_file.values(t) for name, t in tensor_file.load(
            os.path.join(EXPECTED, "resnet18.safetensors")).items()}
        cls.weights = weights()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "weights.safetensors")
        self.saved = os.path.join(folder.name, "saved.safetensors")

    def run_program(self, *options, status=0):
        done = subprocess.run([PROGRAM, "--no-times", "--width", str(WIDTH), *options],
                              stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, timeout=300)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout if status == 0 else done.stderr

    def run_with(self, tensors, *options, status=0):
        tensor_file.save(self.path, tensors)
        return self.run_program("--weights", self.path, *options, status=status)

    @staticmethod
    def scores(text):
        return [float(x) for line in re.findall(r"image \d+:(.*)", text) for x in line.split()]

    @staticmethod
    def losses(text):
        return [float(x) for x in re.findall(r"step +\d+: loss (\S+)", text)]

    def compare(self, got, expected, tolerance):
        self.assertEqual(len(got), len(expected))
        for i, (a, b) in enumerate(zip(got, expected)):
            self.assertLessEqual(abs(a - b), tolerance * (1 + abs(b)), "number %d" % i)

    def test_head(self):
        text = self.run_with(self.weights, "--train", "20", "--save", self.saved)
        self.compare(self.scores(text), self.golden["scores"], 2e-5)
        self.compare(self.losses(text), self.golden["head"], 2e-5)
        saved = tensor_file.load(self.saved)
        for name, (_, shape, data) in self.weights.items():
            self.assertEqual(saved[name][1], shape)
            self.assertEqual(saved[name][2] == data, not name.startswith("fc.") and ".running_" not in name,
                             name)

    def test_any_size(self):
        text = self.run_with(self.weights, "--size", "any", "--train", "1")
        self.compare(self.scores(text), self.golden["scores"], 2e-5)
        found = re.findall(r"image 0, (\d+) x (\d+):(.*)", text)
        self.assertEqual([(int(height), int(width)) for height, width, _ in found], list(SIZES))
        self.compare([float(x) for _, _, line in found for x in line.split()], self.golden["sizes"], 2e-5)
        self.compare(self.losses(text), self.golden["head"][:1], 2e-5)

    def test_all_layers(self):
        text = self.run_with(self.weights, "--train", "20", "--all", "--save", self.saved)
        losses = self.losses(text)
        self.compare(losses[:2], self.golden["all"][:2], 2e-5)
        # rounding soon moves a maximum: PyTorch in float32 differs as much
        self.compare(losses, self.golden["all"], 0.02)
        self.assertNotEqual(tensor_file.load(self.saved)["conv1.weight"][2], self.weights["conv1.weight"][2])
        last = self.run_program("--weights", self.saved, "--train", "0")
        self.assertNotEqual(self.scores(last), self.scores(text))
        self.assertEqual(self.losses(last), [])

    def test_saliency(self):
        path = self.path + ".pgm"
        text = self.run_with(self.weights, "--train", "0", "--saliency", path)
        self.compare(self.scores(text), self.golden["scores"], 2e-5)
        with open(path, "rb") as file:
            head, pixels = file.readline(), file.read()
        self.assertEqual((head, len(pixels)), (b"P5 128 640 255\n", 128 * 640))
        maps = [level for row in range(2 * 64) for level in pixels[128 * row + 64:128 * row + 128]]
        off = [abs(level - exact) for level, exact in zip(maps, self.golden["saliency"])]
        self.assertGreater(max(maps), 250)
        self.assertLess(sum(x > 1 for x in off), len(off) // 200)  # a relu or a maximum on the other side

    def test_replaced_head(self):
        of_another_task = dict(weights(classes=1000), **{"bn1.num_batches_tracked": ("I64", [], bytes(8))})
        text = self.run_with(of_another_task, "--train", "1", "--save", self.saved)
        self.assertIn("its head of 1000 classes is replaced by a new one of 5", text)
        self.assertEqual(tensor_file.load(self.saved)["fc.weight"][1], [5, 8 * WIDTH])
        self.assertEqual(tensor_file.load(self.saved)["conv1.weight"], self.weights["conv1.weight"])

    def test_random_weights(self):
        text = self.run_program("--train", "3")
        self.assertEqual((len(self.scores(text)), len(self.losses(text))), (50, 3))
        self.assertEqual(text, self.run_program("--train", "3"))

    def test_times(self):
        done = subprocess.run([PROGRAM, "--width", "2", "--train", "0"], stdout=subprocess.PIPE,
                              universal_newlines=True, timeout=300)
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"\nCPU: .+\nGPU: .+\n(.*\n)*training step +32 +\d+\.\d\d")

    def test_files_that_do_not_fit(self):
        self.assertIn("check the path",
                      self.run_program("--weights", os.path.join(self.path, "none"), status=1))
        foreign = {"embeddings.weight": ("F32", [2], bytes(8))}
        self.assertIn("no tensor 'fc.weight'", self.run_with(foreign, status=1))
        self.assertRegex(self.run_with(weights(4), status=1),
                         r"conv1\.weight.*file \[4, 3, 7, 7\], model \[8, 3, 7, 7\]")
        lacking = {name: t for name, t in self.weights.items() if name != "layer2.0.downsample.0.weight"}
        self.assertIn("layer2.0.downsample.0.weight", self.run_with(lacking, status=1))
        with open(self.path, "wb") as file:
            file.write(b"no safetensors")
        self.run_program("--weights", self.path, status=1)


if __name__ == "__main__":
    unittest.main()
