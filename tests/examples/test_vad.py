"""examples/vad.c: its probabilities are those of the formulas of Silero VAD's network. Weights are random, or
the real ones of the wheel silero-vad if pip can fetch it. Files that are no sounds are reported."""
import array
import glob
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

from tests import tensor_file
from tests.examples import program

CHUNK, CONTEXT, WINDOW, BANDS, HIDDEN = 512, 64, 256, 129, 128
LAYERS = (("conv1", 1), ("conv2", 2), ("conv3", 2), ("conv4", 1))
SHAPES = {"stft_conv.weight": [2 * BANDS, 1, WINDOW], "conv1.weight": [128, BANDS, 3], "conv1.bias": [128],
          "conv2.weight": [64, 128, 3], "conv2.bias": [64], "conv3.weight": [64, 64, 3], "conv3.bias": [64],
          "conv4.weight": [128, 64, 3], "conv4.bias": [128],
          "lstm_cell.weight_ih": [512, 128], "lstm_cell.weight_hh": [512, 128], "lstm_cell.bias_ih": [512],
          "lstm_cell.bias_hh": [512], "final_conv.weight": [1, 128, 1], "final_conv.bias": [1]}


def dot(a, b):
    return sum(map(float.__mul__, a, b))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def convolved(x, weight, bias, stride):
    """relu of a convolution with a kernel of 3, padded by 1. x: rows of channels; returns rows of the output
    channels."""
    length, cells = len(x[0]), 3
    padded = [[0.0] + row + [0.0] for row in x]
    places = range(0, length, stride)
    return [[max(0.0, b + dot(w, [row[at + k] for row in padded for k in range(cells)])) for at in places]
            for w, b in zip(weight, bias)]


class Detector:
    """The network in Python's floats. w: by name, a list of numbers, or rows of them for a weight."""

    def __init__(self, tensors):
        self.w, self.context, self.h, self.c = {}, [0.0] * CONTEXT, [0.0] * HIDDEN, [0.0] * HIDDEN
        for name, tensor in tensors.items():
            values, width = list(tensor_file.values(tensor)), math.prod(tensor[1][1:])
            self.w[name] = (values if len(tensor[1]) == 1 else
                            [values[i:i + width] for i in range(0, len(values), width)])

    def listen(self, chunk):
        sound = self.context + chunk
        self.context = sound[-CONTEXT:]
        sound = sound + sound[-2:-CONTEXT - 2:-1]
        frames = [[dot(row, sound[at:at + WINDOW]) for at in range(0, len(sound) - WINDOW + 1, WINDOW // 2)]
                  for row in self.w["stft_conv.weight"]]
        x = [[math.hypot(a, b) for a, b in zip(*pair)] for pair in zip(frames[:BANDS], frames[BANDS:])]
        for name, stride in LAYERS:
            x = convolved(x, self.w[name + ".weight"], self.w[name + ".bias"], stride)
        x = [row[0] for row in x]
        gates = [dot(a, x) + dot(b, self.h) + p + q for a, b, p, q in zip(
            *[self.w["lstm_cell." + part] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")])]
        i, f, g, o = [gates[k * HIDDEN:(k + 1) * HIDDEN] for k in range(4)]
        self.c = [sigmoid(f[k]) * self.c[k] + sigmoid(i[k]) * math.tanh(g[k]) for k in range(HIDDEN)]
        self.h = [sigmoid(o[k]) * math.tanh(self.c[k]) for k in range(HIDDEN)]
        return sigmoid(self.w["final_conv.bias"][0] +
                       dot(self.w["final_conv.weight"][0], [max(0.0, y) for y in self.h]))


class Vad(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def wav(self, samples, kind=(1, 1, 16000, 16)):
        form, channels, rate, bits = kind
        data = struct.pack("<%dh" % len(samples), *samples)
        head = struct.pack("<HHIIHH", form, channels, rate, rate * 2, 2, bits)
        chunks = (b"fmt " + struct.pack("<I", len(head)) + head + b"LIST" + struct.pack("<I", 3) + b"odd\0" +
                  b"data")
        with open(self.path("sound.wav"), "wb") as file:
            file.write(b"RIFF" + struct.pack("<I", 8 + len(chunks) + len(data)) + b"WAVE" + chunks +
                       struct.pack("<I", len(data)))
            file.write(data)
        return self.path("sound.wav")

    def run_vad(self, *options):
        return subprocess.run([program("vad"), "--device", "cpu", *options], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)

    def compare(self, weights):
        """Runs two and a half chunks. Each changes the results of the next ones."""
        tones = random.Random(3)
        samples = [int(6000 * math.sin(0.1 * i) * math.sin(0.003 * i) + tones.uniform(-900, 900))
                   for i in range(CHUNK * 5 // 2)]
        done = self.run_vad("--weights", weights, "--wav", self.wav(samples), "--chunks")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        got = [float(p) for p in re.findall(r"^\d+\.\d{3} (0\.\d+|1\.0+)$", done.stdout, re.M)]
        detector, floats = (Detector(tensor_file.load(weights)),
                            [x / 32768 for x in samples] + [0.0] * (CHUNK // 2))
        wanted = [detector.listen(floats[at:at + CHUNK]) for at in range(0, len(floats), CHUNK)]
        self.assertEqual(len(got), 3, done.stdout)
        self.assertGreater(max(wanted) - min(wanted), 1e-3)
        for a, b in zip(got, wanted):
            self.assertTrue(abs(a - b) <= 2e-5 * max(b, 0.01), "%g, not %g" % (a, b))

    def test_random_weights(self):
        draw, tensors = random.Random(1), {}
        for name, shape in SHAPES.items():
            spread = 1.5 / math.sqrt(math.prod(shape[1:]))
            values = array.array("f", [draw.gauss(0, spread) for _ in range(math.prod(shape))])
            tensors[name] = ("F32", shape, values.tobytes())
        tensor_file.save(self.path("weights.safetensors"), tensors)
        self.compare(self.path("weights.safetensors"))

    def test_real_weights(self):
        done = subprocess.run([sys.executable, "-m", "pip", "download", "silero-vad==6.2.3", "--no-deps",
                               "-q", "-d", self.folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        wheels = glob.glob(self.path("silero_vad*.whl"))
        if done.returncode or not wheels:
            self.skipTest("pip cannot fetch the wheel silero-vad, which has the weights")
        with zipfile.ZipFile(wheels[0]) as wheel, open(self.path("weights.safetensors"), "wb") as file:
            file.write(wheel.read("silero_vad/data/silero_vad_16k.safetensors"))
        self.compare(self.path("weights.safetensors"))

    def test_stretches_of_speech(self):
        done = self.run_vad("--threshold", "0")
        self.assertIn("speech from 0.00 to 2.02 s\n2.00 s of sound in 63 chunks", done.stdout)
        self.assertIn("the weights are random", done.stderr)

    def test_what_is_no_sound(self):
        for kind in ((3, 1, 16000, 16), (1, 2, 16000, 16), (1, 1, 44100, 16), (1, 1, 16000, 8)):
            done = self.run_vad("--wav", self.wav([1, 2, 3], kind))
            wanted = ("vad: '%s' is not a WAV file with one channel, 16 bits and 16000 samples a second\n" %
                      self.path("sound.wav"))
            self.assertEqual((done.returncode, done.stderr), (1, wanted))
        with open(self.path("sound.wav"), "wb") as file:
            file.write(b"RIFF")
        self.assertEqual(self.run_vad("--wav", self.path("sound.wav")).returncode, 1)

    def test_weights_of_another_model(self):
        tensor_file.save(self.path("few.safetensors"), {"conv1.bias": ("F32", [128], bytes(512))})
        done = self.run_vad("--weights", self.path("few.safetensors"))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr,
                         "^vad: gpunn_load: .* does not fit the model: stft_conv.weight: in the model only")


if __name__ == "__main__":
    unittest.main()
