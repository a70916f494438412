#!/usr/bin/env python3
"""Times one sample through NAME_inference.h, beside gpunn's forward pass and PyTorch's, and prints a table.

    ninja build/gpunn.o && python3 tests/bench/inference.py build/gpunn.o [--python PYTHON] [--rounds 5]

PYTHON is an interpreter with torch; without it that column stays empty. Each peer has one thread. us: the
median over rounds, in which the peers alternate, of each process's best of 400 repeats. Ratios are within a
round. gpunn's time is gpunn_forward alone, PyTorch's a call of the module under inference_mode. Standard
library only."""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from generator import emit_inference, inference, spec, stamp


def perceptron(*sizes):
    """Its entries, without the input, and its text for torch."""
    entries, words = [], []
    for k, (size, out) in enumerate(zip(sizes, sizes[1:])):
        entries.append({"op": "linear", "name": "fc%d" % k, "inputs": ["h%d" % k if k else "x"],
                        "out_features": out})
        words.append("nn.Linear(%d, %d)" % (size, out))
        if k + 2 < len(sizes):
            entries.append({"op": "relu", "id": "h%d" % (k + 1), "inputs": ["fc%d" % k]})
            words.append("nn.ReLU()")
    return [sizes[0]], entries, words


def lenet():
    def entry(op, label, source, **more):
        return dict({"op": op, "name" if op in ("conv2d", "linear") else "id": label, "inputs": [source]},
                    **more)
    return ([1, 32, 32], [
        entry("conv2d", "c1", "x", out_channels=6, kernel_size=5), entry("relu", "r1", "c1"),
        entry("max_pool2d", "p1", "r1", kernel_size=2),
        entry("conv2d", "c2", "p1", out_channels=16, kernel_size=5), entry("relu", "r2", "c2"),
        entry("max_pool2d", "p2", "r2", kernel_size=2),
        entry("flatten", "f", "p2"), entry("linear", "l1", "f", out_features=120), entry("relu", "r3", "l1"),
        entry("linear", "l2", "r3", out_features=84), entry("relu", "r4", "l2"),
        entry("linear", "l3", "r4", out_features=10)], [
            "nn.Conv2d(1, 6, 5)", "nn.ReLU()", "nn.MaxPool2d(2)", "nn.Conv2d(6, 16, 5)", "nn.ReLU()",
            "nn.MaxPool2d(2)", "nn.Flatten()",
            "nn.Linear(400, 120)", "nn.ReLU()", "nn.Linear(120, 84)", "nn.ReLU()", "nn.Linear(84, 10)"])


NETWORKS = {"mlp_20_50_1": perceptron(20, 50, 1), "mlp_64x4": perceptron(64, 64, 64, 64, 64),
            "lenet": lenet()}

PROGRAM = r"""#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "gpunn.h"
#define M_INFERENCE_IMPLEMENTATION
#include "m_inference.h"

static m_weights weights;
static m_scratch scratch;
static float     x[%(in)d], y[%(out)d], right[%(out)d];

static double now(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

int main(int argc, char **argv)
{
    enum { CALLS = %(calls)d };
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 1, .seed = 1);
    gpunn_model  *model = gpunn_spec_load(dev, argv[1]);
    if (model == NULL) return 2;
    gpunn_tensor *result = gpunn_spec_output(model, 0);
    if (%(reads)s) return 3;
    for (int i = 0; i < %(in)d; ++i) x[i] = sinf((float)i);
    if (gpunn_write(gpunn_input_at(model, 0), x, sizeof x) || gpunn_forward(&result, 1) ||
        gpunn_read(result, right, sizeof right)) return 4;
    m_forward(&weights, x, y, &scratch);
    for (int i = 0; i < %(out)d; ++i)
        if (!(fabsf(y[i] - right[i]) <= 1e-5f)) return 5;
    double best = 1e30;
    for (int repeat = 0; repeat < 400; ++repeat) {
        const double begin = now();
        for (int i = 0; i < CALLS; ++i) {
            if (argc > 2)
                (void)gpunn_forward(&result, 1);
            else
                m_forward(&weights, x, y, &scratch);
            x[0] = 0.5f * y[0]; /* so that each call is needed */
        }
        best = fmin(best, (now() - begin) / CALLS);
    }
    printf("%%g\n", best);
    return 0;
}
"""
TWIN = """
import time, torch
from torch import nn
torch.set_num_threads(1)
net, x = nn.Sequential(%(layers)s).eval(), torch.randn(%(shape)s)
best = 1e30
with torch.inference_mode():
    for repeat in range(400):
        begin = time.perf_counter()
        for i in range(%(calls)d): net(x)
        best = min(best, (time.perf_counter() - begin) / %(calls)d)
print(1e6 * best)
"""


def prepared(name, folder, library, calls):
    """The commands of the peers without torch, and torch's text."""
    shape, entries, layers = NETWORKS[name]
    text = json.dumps({"gpunn_spec": 1,
                       "tensors": [{"op": "input", "name": "x", "shape": ["N"] + shape}] + entries})
    plan, path = inference.Plan(spec.parse(text)), os.path.join(folder, name)
    sizes = {"in": plan.count(plan.inputs[0].id), "out": plan.count(plan.outputs[0]), "calls": calls}
    emitter = emit_inference.Emitter(plan, "m")
    sizes["reads"] = " || ".join('gpunn_read(gpunn_find(model, "%s"), weights.%s, sizeof weights.%s)' % (
        t.name, emitter.field[t.id], emitter.field[t.id]) for t in plan.weights)
    os.mkdir(path)
    for file_name, content in (("model.json", text), ("bench.c", PROGRAM % sizes), (
            "m_inference.h", emit_inference.emit_inference(plan, stamp.Source("", ""), "m"))):
        with open(os.path.join(path, file_name), "w", encoding="ascii") as file:
            file.write(content)
    program = os.path.join(path, "bench")
    subprocess.run(["gcc", "-std=c99", "-O3", "-march=native", "-I" + ROOT, os.path.join(path, "bench.c"),
                    library, "-o", program, "-lz", "-lm"], check=True)
    own = [program, os.path.join(path, "model.json")]
    return own, own + ["gpunn"], TWIN % {"layers": ", ".join(layers),
                                         "shape": ", ".join(map(str, [1] + shape)), "calls": calls // 10}


def timed(command):
    return float(subprocess.run(command, stdout=subprocess.PIPE, check=True,
                                universal_newlines=True).stdout.split()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="build/gpunn.o")
    parser.add_argument("--python", help="an interpreter with torch, and its arguments")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| network | plain C us | gpunn us | ratio | PyTorch us | ratio |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in NETWORKS:
            own, gpunn, twin = prepared(name, folder, os.path.abspath(options.library), 200)
            commands = [own, gpunn] + ([shlex.split(options.python) + ["-c", twin]] if options.python else [])
            rounds = [[timed(command) for command in commands] for _ in range(options.rounds)]
            medians = [statistics.median(column) for column in zip(*rounds)]
            ratios = [statistics.median(row[k] / row[0] for row in rounds) for k in range(1, len(commands))]
            cells = ["%.3g" % medians[0]] + [text for k, ratio in enumerate(ratios, 1)
                                             for text in ("%.3g" % medians[k], "%.3g" % ratio)]
            print("| %s |" % " | ".join([name] + (cells + ["", ""])[:5]), flush=True)


if __name__ == "__main__":
    main()
