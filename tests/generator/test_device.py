"""NAME_device.cuh, compiled as C++ with the emulator's words of CUDA, against run_model: values, and gradients of the input."""
import array
import json
import math
import os
import random
import shutil
import subprocess
import tempfile
import unittest

from generator import emit_device, inference, spec, stamp
from generator.emit_inference import STORED
from tests import tensor_file

from .test_run_model import call, difference

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SAMPLES, TOLERANCE = 5, {"y": 1e-5, "grad.x": 1e-4}
BODIES = {  # of models from x [N, 6] to y
    "perceptron": [
        {"op": "linear", "name": "fc1", "inputs": ["x"], "out_features": 9}, {"op": "silu", "id": "a", "inputs": ["fc1"]},
        {"op": "linear", "name": "fc2", "inputs": ["a"], "out_features": 3, "bias": False}],
    "residuals": [
        {"op": "linear", "name": "up", "inputs": ["x"], "out_features": 6}, {"op": "gelu", "id": "a", "inputs": ["up"]},
        {"op": "add", "id": "b", "inputs": ["a", "x"]}, {"op": "mul", "id": "c", "inputs": ["b", "a"]},
        {"op": "expr", "id": "d", "inputs": ["c", "x"], "expression": "x * sigmoid(y) + maximum(x, y)"}],
    "norms": [
        {"op": "layer_norm", "name": "ln", "inputs": ["x"]}, {"op": "linear", "name": "fc", "inputs": ["ln"], "out_features": 7},
        {"op": "rms_norm", "name": "rms", "inputs": ["fc"]}, {"op": "tanh", "id": "t", "inputs": ["rms"]},
        {"op": "linear", "name": "out", "inputs": ["t"], "out_features": 4}, {"op": "softmax", "id": "p", "inputs": ["out"], "dim": 1}],
    "parts": [
        {"op": "slice", "id": "a", "inputs": ["x"], "dim": 1, "start": 0, "end": 4}, {"op": "sin", "id": "s", "inputs": ["a"]},
        {"op": "slice", "id": "b", "inputs": ["x"], "dim": 1, "start": 1, "end": 6, "step": 2},
        {"op": "concat", "id": "c", "inputs": ["s", "x", "b"], "dim": 1}, {"op": "linear", "name": "fc", "inputs": ["c"], "out_features": 6},
        {"op": "reshape", "id": "r", "inputs": ["fc"], "shape": ["N", 2, 3]}, {"op": "permute", "id": "t", "inputs": ["r"], "dims": [0, 2, 1]},
        {"op": "linear", "name": "rows", "inputs": ["t"], "out_features": 2}, {"op": "mean", "id": "m", "inputs": ["rows"], "dims": [2]},
        {"op": "log_softmax", "id": "l", "inputs": ["m"], "dim": 1}],
    "wide": [
        {"op": "linear", "name": "fc1", "inputs": ["x"], "out_features": 90}, {"op": "relu", "id": "a", "inputs": ["fc1"]},
        {"op": "linear", "name": "fc2", "inputs": ["a"], "out_features": 90}, {"op": "relu", "id": "b", "inputs": ["fc2"]},
        {"op": "linear", "name": "fc3", "inputs": ["b"], "out_features": 2}],
    "fields": [
        {"op": "slice", "id": "points", "inputs": ["x"], "dim": 1, "start": 1, "end": 4},
        {"op": "slice", "id": "rest", "inputs": ["x"], "dim": 1, "start": 0, "end": 2},
        {"op": "hash_grid_encoding", "name": "hashed", "inputs": ["points"], "n_levels": 5, "log2_hashmap_size": 6, "base_resolution": 3,
         "per_level_scale": 1.5},
        {"op": "reshape", "id": "pairs", "inputs": ["x"], "shape": ["N", 3, 2]},
        {"op": "hash_grid_encoding", "name": "flat", "inputs": ["pairs"], "n_levels": 2, "n_features_per_level": 3, "log2_hashmap_size": 5,
         "base_resolution": 4}, {"op": "flatten", "id": "pairs2", "inputs": ["flat"]},
        {"op": "frequency_encoding", "id": "waves", "inputs": ["rest"], "num_frequencies": 2},
        {"op": "one_blob_encoding", "id": "blobs", "inputs": ["rest"], "num_bins": 3},
        {"op": "spherical_harmonics_encoding", "id": "harmonics", "inputs": ["points"], "degree": 4},
        {"op": "embedding", "name": "codes", "inputs": ["words"], "num_embeddings": 7, "embedding_dim": 3},
        {"op": "flatten", "id": "code", "inputs": ["codes"]},
        {"op": "concat", "id": "all", "inputs": ["hashed", "pairs2", "waves", "blobs", "harmonics", "code"], "dim": 1},
        {"op": "linear", "name": "fc1", "inputs": ["all"], "out_features": 9}, {"op": "tanh", "id": "h", "inputs": ["fc1"]},
        {"op": "linear", "name": "fc2", "inputs": ["h"], "out_features": 3}],
    "words": [
        {"op": "reshape", "id": "turned", "inputs": ["words"], "shape": ["N", 2, 1]},
        {"op": "embedding", "name": "codes", "inputs": ["turned"], "num_embeddings": 7, "embedding_dim": 5},
        {"op": "sum", "id": "bag", "inputs": ["codes"], "dims": [1, 2]}, {"op": "linear", "name": "fc", "inputs": ["bag"], "out_features": 3}]}
WORDS = {"op": "input", "name": "words", "dtype": "i64", "shape": ["N", 2]}
INPUTS = {"fields": [WORDS], "words": [dict(WORDS, dtype="i32")]}  # beside x, or, of words, in its place
MAIN = """#include <stdio.h>
#include <cuda_runtime.h>
#include "m_device.cuh"
int main()
{
    static m_weights w;
    static float     y[%(out)d], dy[%(out)d], dx[%(in)d];
    %(inputs)s
    if (fread(&w, sizeof w, 1, stdin) != 1 || fread(dy, sizeof dy, 1, stdin) != 1) return 2;
    while (%(read)s) {
        m_forward(&w, %(names)s, y);
        %(gradient)s
        fwrite(y, sizeof y, 1, stdout);
        fwrite(dx, sizeof dx, 1, stdout);
    }
}
"""


class Device(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.run_model = os.environ.get("GPUNN_RUN_MODEL", os.path.join(ROOT, "build", "run_model"))
        if not os.path.exists(cls.run_model):
            cls.run_model = os.path.join(cls.folder, "run_model")
            call("gcc", "-O1", "-I" + ROOT, os.path.join(ROOT, "examples", "run_model.c"), "-o", cls.run_model, "-lm")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="ascii") as file:
            file.write(text)
        return self.path(name)

    @staticmethod
    def made(name, loss=()):
        """A model whose result is y, and perhaps more entries."""
        body = [dict(entry) for entry in BODIES[name]]
        last = body[-1]
        last["name"] = "y"
        last.pop("id", None)
        entries = [{"op": "input", "name": "x", "shape": ["N", 6]}] * (name != "words") + INPUTS.get(name, []) + body + list(loss)
        return {"gpunn_spec": 1, "tensors": entries, "outputs": ["y"]}

    def check(self, name):
        numbers = random.Random(name)

        def tensor(*shape):
            count = math.prod(shape)
            return "F32", list(shape), array.array("f", [numbers.uniform(-1, 1) for _ in range(count)]).tobytes()

        def integers(t):
            shape = (SAMPLES,) + t.shape[1:]
            code = tensor_file.CODES[t.dtype.upper()]
            return t.dtype.upper(), list(shape), array.array(code, [numbers.randrange(7) for _ in range(math.prod(shape))]).tobytes()
        plan = emit_device.plan_of(spec.parse(json.dumps(self.made(name))))
        out = plan.shape(plan.outputs[0])[1:]
        inputs = {t.name: tensor(SAMPLES, 6) if t.dtype == "f32" else integers(t) for t in plan.inputs}
        dy, made = tensor(*out), {t.name: tensor(*t.shape) for t in plan.weights}
        loss = [{"op": "constant", "id": "dy", "shape": list(out), "values": list(tensor_file.values(dy))},
                {"op": "mul", "id": "product", "inputs": ["y", "dy"]}, {"op": "sum", "name": "loss", "inputs": ["product"]}]
        tensor_file.save(self.path("weights"), made)
        tensor_file.save(self.path("inputs"), inputs)
        spec_path = self.write("m.json", json.dumps(self.made(name, loss)))
        call(self.run_model, spec_path, "--weights", self.path("weights"), "--input", self.path("inputs"), "--output", self.path("outputs"),
             "--grad", "loss")
        expected = tensor_file.load(self.path("outputs"))
        got = self.results(plan, self.data(made, dy, inputs), SAMPLES)
        for key, own in zip(("y", "grad.x") if "x" in inputs else ("y",), got):
            tensor = ("F32", expected[key][1], array.array("f", own).tobytes())
            error = difference(tensor, expected[key])
            self.assertTrue(error <= TOLERANCE[key], "%s of %s differs by %.2g" % (key, name, error))

    @staticmethod
    def data(made, dy, inputs):
        """What the program reads: weights, dy, and sample by sample the inputs."""
        sizes = {name: len(data) // SAMPLES for name, (_, _, data) in inputs.items()}
        samples = [data[k * sizes[name]:(k + 1) * sizes[name]] for k in range(SAMPLES) for name, (_, _, data) in inputs.items()]
        return b"".join([data for _, _, data in made.values()] + [dy[2]] + samples)

    def results(self, plan, data, samples):
        """The values and the gradients of x; these are 0 without one."""
        self.write("m_device.cuh", emit_device.emit_device(plan, stamp.Source("0" * 64, "command"), "m"))
        gradient = any(t.name == "x" for t in plan.inputs)
        sizes = {"in": 6, "out": plan.count(plan.outputs[0])}
        names = ", ".join(t.name for t in plan.inputs)
        text = MAIN % dict(sizes, names=names, gradient="m_input_gradient(&w, %s, dy, dx);" % names if gradient else "",
                           inputs=" ".join("static %s %s[%d];" % (STORED[t.dtype], t.name, plan.count(t.id)) for t in plan.inputs),
                           read=" && ".join("fread(%s, sizeof %s, 1, stdin) == 1" % (t.name, t.name) for t in plan.inputs))
        main = self.write("main.cpp", text)
        call("g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wno-unknown-pragmas", "-Werror", "-fsanitize=address,undefined",
             "-fno-sanitize-recover=all", "-isystem", os.path.join(ROOT, "tests", "emulator"), main, "-o", self.path("m"))
        done = subprocess.run([self.path("m")], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stderr.decode()[:3000])
        found, each = array.array("f", done.stdout), sizes["in"] + sizes["out"]
        self.assertEqual(len(found), samples * each)
        rows = [found[k * each:(k + 1) * each] for k in range(samples)]
        return [v for row in rows for v in row[:sizes["out"]]], [v for row in rows for v in row[sizes["out"]:]]

    def test_indices_outside(self):
        """Make NaN of their samples alone, and read nothing."""
        plan = emit_device.plan_of(spec.parse(json.dumps(self.made("words"))))
        made = {t.name: ("F32", list(t.shape), array.array("f", [1] * plan.count(t.id)).tobytes()) for t in plan.weights}
        dy = "F32", [3], bytes(12)
        for wrong in (-1, 7, -2 ** 31, 2 ** 31 - 1):
            words = array.array("i", [0] * 2 * SAMPLES)
            words[2 * 3 + 1] = wrong
            y, _ = self.results(plan, self.data(made, dy, {"words": ("I32", [SAMPLES, 2], words.tobytes())}), SAMPLES)
            self.assertEqual([math.isnan(v) for v in y], [k // 3 == 3 for k in range(len(y))])

    def test_refusals(self):
        for op, reason in (({"op": "softmax", "inputs": ["x"], "dim": 0}, "one row of its last axis"),
                           ({"op": "argmax", "inputs": ["x"], "dim": 1}, "i64, but"), ({"op": "cumsum", "inputs": ["x"], "dim": 1}, "not written"),
                           ({"op": "linear", "name": "l", "inputs": ["x"], "out_features": 1025}, "1025 elements")):
            text = {"gpunn_spec": 1, "tensors": [{"op": "input", "name": "x", "shape": ["N", 6]}, op]}
            with self.assertRaisesRegex(inference.Refused, reason):
                emit_device.plan_of(spec.parse(json.dumps(text)))
        text["tensors"][1] = {"op": "input", "name": "z", "shape": ["N", 6]}
        text["tensors"].append({"op": "add", "inputs": ["x", "z"]})
        with self.assertRaisesRegex(inference.Refused, "2 inputs of floats and 1 outputs"):
            emit_device.plan_of(spec.parse(json.dumps(text)))


for one in BODIES:
    setattr(Device, "test_" + one, lambda self, name=one: self.check(name))


if __name__ == "__main__":
    unittest.main()
