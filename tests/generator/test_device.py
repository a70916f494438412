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
        {"op": "linear", "name": "fc3", "inputs": ["b"], "out_features": 2}]}
MAIN = """#include <stdio.h>
#include <cuda_runtime.h>
#include "m_device.cuh"
int main()
{
    static m_weights w;
    static float     x[%(in)d], y[%(out)d], dy[%(out)d], dx[%(in)d];
    if (fread(&w, sizeof w, 1, stdin) != 1 || fread(dy, sizeof dy, 1, stdin) != 1) return 2;
    while (fread(x, sizeof x, 1, stdin) == 1) {
        m_forward(&w, x, y);
        m_input_gradient(&w, x, dy, dx);
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
        entries = [{"op": "input", "name": "x", "shape": ["N", 6]}] + body + list(loss)
        return {"gpunn_spec": 1, "tensors": entries, "outputs": ["y"]}

    def check(self, name):
        numbers = random.Random(name)

        def tensor(*shape):
            count = math.prod(shape)
            return "F32", list(shape), array.array("f", [numbers.uniform(-1, 1) for _ in range(count)]).tobytes()
        plan = emit_device.plan_of(spec.parse(json.dumps(self.made(name))))
        out = plan.shape(plan.outputs[0])[1:]
        x, dy, made = tensor(SAMPLES, 6), tensor(*out), {t.name: tensor(*t.shape) for t in plan.weights}
        loss = [{"op": "constant", "id": "dy", "shape": list(out), "values": list(tensor_file.values(dy))},
                {"op": "mul", "id": "product", "inputs": ["y", "dy"]}, {"op": "sum", "name": "loss", "inputs": ["product"]}]
        tensor_file.save(self.path("weights"), made)
        tensor_file.save(self.path("inputs"), {"x": x})
        spec_path = self.write("m.json", json.dumps(self.made(name, loss)))
        call(self.run_model, spec_path, "--weights", self.path("weights"), "--input", self.path("inputs"), "--output", self.path("outputs"),
             "--grad", "loss")
        expected = tensor_file.load(self.path("outputs"))
        got = self.results(plan, b"".join([made[t.name][2] for t in plan.weights] + [dy[2], x[2]]), SAMPLES)
        for key, own in zip(("y", "grad.x"), got):
            tensor = ("F32", expected[key][1], array.array("f", own).tobytes())
            error = difference(tensor, expected[key])
            self.assertTrue(error <= TOLERANCE[key], "%s of %s differs by %.2g" % (key, name, error))

    def results(self, plan, data, samples):
        """The values and the gradients of x."""
        self.write("m_device.cuh", emit_device.emit_device(plan, stamp.Source("0" * 64, "command"), "m"))
        sizes = {"in": plan.count(plan.inputs[0].id), "out": plan.count(plan.outputs[0])}
        main = self.write("main.cpp", MAIN % sizes)
        call("g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wno-unknown-pragmas", "-Werror", "-fsanitize=address,undefined",
             "-fno-sanitize-recover=all", "-isystem", os.path.join(ROOT, "tests", "emulator"), main, "-o", self.path("m"))
        done = subprocess.run([self.path("m")], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stderr.decode()[:3000])
        found, each = array.array("f", done.stdout), sizes["in"] + sizes["out"]
        self.assertEqual(len(found), samples * each)
        rows = [found[k * each:(k + 1) * each] for k in range(samples)]
        return [v for row in rows for v in row[:sizes["out"]]], [v for row in rows for v in row[sizes["out"]:]]

    def test_refusals(self):
        for op, reason in (({"op": "softmax", "inputs": ["x"], "dim": 0}, "one row of its last axis"),
                           ({"op": "argmax", "inputs": ["x"], "dim": 1}, "i64, but"), ({"op": "cumsum", "inputs": ["x"], "dim": 1}, "not written"),
                           ({"op": "linear", "name": "l", "inputs": ["x"], "out_features": 1025}, "1025 elements")):
            text = {"gpunn_spec": 1, "tensors": [{"op": "input", "name": "x", "shape": ["N", 6]}, op]}
            with self.assertRaisesRegex(inference.Refused, reason):
                emit_device.plan_of(spec.parse(json.dumps(text)))
        text["tensors"][1] = {"op": "input", "name": "z", "shape": ["N", 6]}
        text["tensors"].append({"op": "add", "inputs": ["x", "z"]})
        with self.assertRaisesRegex(inference.Refused, "2 inputs and 1 outputs"):
            emit_device.plan_of(spec.parse(json.dumps(text)))


for one in BODIES:
    setattr(Device, "test_" + one, lambda self, name=one: self.check(name))


if __name__ == "__main__":
    unittest.main()
