"""run_model against PyTorch: the models of expected/pytorch/ (made by make_zoo.py), their values, gradients
and weights after training; some of them with generated kernels too."""
import glob
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from tests import tensor_file

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
FUSED = ("llama_mlp", "mlp", "norms", "norms_of_channels", "reductions", "resnet", "sized_image",
         "sized_text", "transformer_encoder_layer")
# Tolerances for float32, relative to a tensor's largest value: one pass, its gradients, many steps.
TOLERANCE = {"eval": 1e-5, "train": 1e-5, "grad": 1e-4, "step": 1e-3}


def difference(got, expected):
    """The largest difference, relative to the largest expected value (at least 1e-3); infinite for NaN."""
    if got is None or got[:2] != expected[:2]:
        return math.inf
    got, expected = tensor_file.values(got), tensor_file.values(expected)
    if not all(map(math.isfinite, got)):
        return math.inf
    scale = max([1e-3] + [abs(x) for x in expected])
    return max([abs(a - b) for a, b in zip(got, expected)] + [0]) / scale


def call(*words):
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    if done.returncode:
        raise AssertionError(" ".join(words) + "\n" + done.stdout[-4000:])


class Models:
    """Compares what self.program writes."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def run_model(self, name, *options):
        """The tensors that the program writes."""
        paths = [os.path.join(self.folder, part + ".safetensors") for part in ("weights", "inputs", "output")]
        call(self.program, os.path.join(HERE, "expected", "pytorch", name + ".json"), "--weights", paths[0],
             "--input", paths[1], "--output", paths[2], *options)
        return tensor_file.load(paths[2])

    def compare(self, golden, part, got, prefix=""):
        for name, expected in golden[part].items():
            with self.subTest(part=part, tensor=name):
                error = difference(got.get(prefix + name), expected)
                self.assertTrue(error <= TOLERANCE[part], f"{part} of {name} differs by {error:.2g}")

    def check(self, name):
        golden = {}
        tensors = tensor_file.load(os.path.join(HERE, "expected", "pytorch", name + ".safetensors"))
        steps = tensor_file.values(tensors.pop("steps", ("I64", [], bytes(8))))[0]
        for key, tensor in tensors.items():
            part, _, own = key.partition("/")
            golden.setdefault(part, {})[own] = tensor
        tensor_file.save(os.path.join(self.folder, "weights.safetensors"), golden["weight"])
        self.check_passes(name, golden)
        if steps:
            self.compare(golden, "step", self.run_model(name, "--steps", str(steps)))
        for prefix in sorted({part[:-2] for part in golden if part.endswith(":in")}):  # further sizes
            with self.subTest(sizes=prefix):
                self.check_passes(name, {part[len(prefix):]: own
                                         for part, own in golden.items() if part.startswith(prefix)})

    def check_passes(self, name, golden):
        tensor_file.save(os.path.join(self.folder, "inputs.safetensors"), golden["in"])
        self.assertTrue(golden["eval"])
        self.compare(golden, "eval", self.run_model(name))
        if "train" in golden:
            got = self.run_model(name, "--train", "--grad", "loss")
            self.compare(golden, "train", got)
            self.compare(golden, "grad", got, "grad.")


class RunModel(Models, unittest.TestCase):
    """Every model, by GPUNN_RUN_MODEL or the build's program."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = os.environ.get("GPUNN_RUN_MODEL", os.path.join(ROOT, "build", "run_model"))
        if not os.path.exists(cls.program):
            cls.program = os.path.join(cls.folder, "run_model")
            call("gcc", "-O1", "-I" + ROOT, os.path.join(ROOT, "examples", "run_model.c"), "-o", cls.program,
                 "-lm")


    def results(self, text, length):
        """Its output for two samples of that length."""
        spec, inputs, output = (os.path.join(self.folder, "sized" + ending)
                                for ending in (".json", "_in", "_out"))
        with open(spec, "w", encoding="ascii") as file:
            file.write(text)
        count = 2 * length
        numbers = tensor_file.array.array("f", [math.sin(i) for i in range(count * 24)])
        labels = tensor_file.array.array("q", [i % 7 for i in range(count)])
        tensor_file.save(inputs, {"x": ("F32", [2, length, 24], numbers.tobytes()),
                                  "labels": ("I64", [count], labels.tobytes())})
        call(self.program, spec, "--input", inputs, "--output", output, "--grad", "loss", "--device", "cpu")
        return tensor_file.load(output)

    def refusal(self, given, *options):
        """What it says about these inputs of a layer."""
        spec, inputs = os.path.join(self.folder, "layer.json"), os.path.join(self.folder, "given")
        with open(spec, "w", encoding="ascii") as file:
            file.write('{"gpunn_spec": 1, "tensors": [{"op": "input", "name": "x", "shape": ["N", 20]}, '
                       '{"op": "linear", "name": "y", "inputs": ["x"], "out_features": 2}], '
                       '"outputs": ["y"]}')
        tensor_file.save(inputs, given)
        done = subprocess.run([self.program, spec, "--input", inputs, "--output",
                               os.path.join(self.folder, "output"), "--device", "cpu", *options],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return done.stderr

    def test_inputs_that_do_not_fit(self):
        x = "F32", [2, 20], bytes(160)
        self.assertEqual(self.refusal({"x": x}), "")
        self.assertEqual(self.refusal({"x": x}, "--threads", "1"), "")
        said = self.refusal({"images": x})
        self.assertRegex(said, r"--input lacks the model's input 'x': .* the names in it: 'images'\n")
        said = self.refusal({"x": ("F32", [20], bytes(80))})
        self.assertRegex(said, r"--input: 'x' in .* is f32 \[20\]; the model needs f32 \[N, 20\]\n")
        self.assertIn("run_model: --input: cannot read '1x20'", self.refusal({"x": x}, "--input", "1x20"))
        self.assertIn("run_model: --weights: cannot read 'none'", self.refusal({"x": x}, "--weights", "none"))

    def test_inference_rounds_weights(self):
        """To the 16 bits of the spec's precision."""
        spec, weights, inputs, output = (os.path.join(self.folder, "short" + ending)
                                         for ending in (".json", "_weights", "_in", "_out"))
        with open(spec, "w", encoding="ascii") as file:
            file.write('{"gpunn_spec": 1, "precision": "bf16", "tensors": [{"op": "input", "name": "x", '
                       '"shape": ["N", 1]}, {"op": "linear", "name": "y", "inputs": ["x"], '
                       '"out_features": 1, "bias": false}], "outputs": ["y"]}')
        tensor_file.save(weights, {"y.weight": ("F32", [1, 1], struct.pack("<f", 1 + 2 ** -9))})
        tensor_file.save(inputs, {"x": ("F32", [1, 1], struct.pack("<f", 1))})
        for options, wanted in ((), 1 + 2 ** -9), (["--inference"], 1):
            call(self.program, spec, "--weights", weights, "--input", inputs, "--output", output, "--device",
                 "cpu", *options)
            self.assertEqual(list(tensor_file.values(tensor_file.load(output)["y"])), [wanted])

    def test_sizes_that_vary(self):
        """Equal to the same model with fixed sizes."""
        with open(os.path.join(HERE, "specs", "small", "sized_text.json"), encoding="ascii") as file:
            text = file.read()
        for length in (3, 8, 40):
            fixed = text
            for varying, number in (('"T * batch"', 2 * length), ('"N"', 2), ('"T",', "%d," % length),
                                    ('"T"}', "%d}" % length)):
                fixed = fixed.replace(varying, str(number))
            wanted, got = self.results(fixed, length), self.results(text, length)
            self.assertEqual(sorted(got), sorted(wanted))
            for name, expected in wanted.items():
                self.assertLess(difference(got[name], expected), 1e-5, name)


class Fused(Models, unittest.TestCase):
    """Some models with generated kernels. They are compiled, and linked with ninja's build of the library or,
    if it is missing, with one compiled once."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with open(os.path.join(ROOT, "examples", "run_model.c"), encoding="ascii") as file:
            text = file.read()
        with open(os.path.join(cls.folder, "run_model.c"), "w", encoding="ascii") as file:
            file.write(re.sub(r"#define GPUNN_IMPLEMENTATION\n", "", text))
        cls.library = os.path.join(ROOT, "build", "gpunn.o")
        if not os.path.exists(cls.library):
            cls.library = os.path.join(cls.folder, "gpunn.o")
            call("gcc", "-O1", "-DGPUNN_IMPLEMENTATION", "-x", "c", "-c", os.path.join(ROOT, "gpunn.h"), "-o",
                 cls.library)

    def check(self, name):
        self.program = os.path.join(self.folder, name)
        call(sys.executable, "-m", "generator", os.path.join(HERE, "expected", "pytorch", name + ".json"),
             "-o", self.program)
        call("gcc", "-O1", "-I" + ROOT, "-I" + os.path.join(ROOT, "examples"), "-I" + self.folder,
             f'-DKERNELS="{name}_kernels.h"', f"-DKERNEL_SET={name}_kernels",
             f"-D{name.upper()}_KERNELS_IMPLEMENTATION", os.path.join(self.folder, "run_model.c"),
             self.library, "-o", self.program, "-lz", "-lm")
        super().check(name)


def add(suite, name):
    setattr(suite, "test_" + name, lambda self: self.check(name))


for path in sorted(glob.glob(os.path.join(HERE, "expected", "pytorch", "*.json"))):
    add(RunModel, os.path.splitext(os.path.basename(path))[0])
for model in FUSED:
    add(Fused, model)


class Comparison(unittest.TestCase):
    def test_what_is_no_number_is_no_match(self):
        def tensor(*values):
            return ("F32", [len(values)], tensor_file.array.array("f", values).tobytes())
        self.assertEqual(difference(tensor(1, 2), tensor(1, 2)), 0)
        self.assertAlmostEqual(difference(tensor(1, 2.5), tensor(1, 2)), 0.25)
        for bad in (tensor(1, math.nan), tensor(1, math.inf), tensor(1), None):
            self.assertEqual(difference(bad, tensor(1, 2)), math.inf)


if __name__ == "__main__":
    unittest.main()
