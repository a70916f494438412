#!/usr/bin/env python3
"""Times one sample through NAME_inference.h, beside gpunn's forward pass, PyTorch's and RTNeural's, and
prints a table.

    ninja build/gpunn.o && python3 tests/bench/inference.py build/gpunn.o [--python PYTHON]
        [--rtneural FOLDER --xsimd FOLDER] [--cc "gcc -O2 -mavx2 -mfma"] [--only lstm] [--rounds 5]

PYTHON is an interpreter with torch. The folders are checkouts of RTNeural and of its xsimd; RTNeural has the
layers alone, compiled by g++ -O3 with the -m options of --cc. Columns of absent peers stay empty. Each peer
has one thread. us: the median over rounds, in which the peers alternate, of each process's best of 400
repeats. Ratios are within a round. gpunn's time is gpunn_forward alone, PyTorch's a call of the module under
inference_mode. Layers have states. Standard library only."""
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


def state(name, shape, value):
    """The entries of a state and of its assignment."""
    return ({"op": "state", "name": name, "shape": shape},
            {"op": "assign", "inputs": [name, value], "in_training": True})


def dense(n):
    return [1, n], [{"op": "linear", "name": "y", "inputs": ["x"], "out_features": n}]


def conv1d(n):
    past, keep = state("past", [1, n, 2], "last")
    return [1, n, 1], [
        past, {"op": "concat", "id": "seen", "inputs": ["past", "x"], "dim": 2},
        {"op": "conv1d", "name": "y", "inputs": ["seen"], "out_channels": n, "kernel_size": 3},
        {"op": "slice", "id": "last", "inputs": ["seen"], "dim": 2, "start": 1}, keep]


def recurrent(op, gates):
    names = ["h", "c"][:gates - 2]

    def layer(n):
        states = [state(name, [1, 1, n], name + "_n") for name in names]
        weights = [{"op": "parameter", "name": "w%d" % k, "shape": [gates * n] + [n] * (k < 2),
                    "init": {"kind": "uniform", "a": -0.4, "b": 0.4}} for k in range(4)]
        node = dict({"op": op, "id": "all", "inputs": ["x"], "layer": "layer", "states": True,
                     "weights": [w["name"] for w in weights]}, **{name + "_0": name for name in names})
        rows = [{"op": "slice", "id": "row%d" % k, "inputs": ["all"], "dim": 0, "start": k, "end": k + 1}
                for k in range(len(names) + 1)]
        ends = [{"op": "reshape", "id": name + "_n", "inputs": ["row%d" % (k + 1)], "shape": [1, 1, n]}
                for k, name in enumerate(names)]
        return [1, 1, n], ([first for first, _ in states] + weights + [node] + rows + ends +
                           [last for _, last in states] +
                           [{"op": "reshape", "id": "y", "inputs": ["row0"], "shape": [n]}])
    return layer


CALLS = 200  # of a repeat
NETWORKS = {"mlp_20_50_1": perceptron(20, 50, 1), "mlp_64x4": perceptron(64, 64, 64, 64, 64),
            "lenet": lenet()}
LAYERS = {"dense": (dense, "DenseT<float, %d, %d>", "randomise_dense<float>(layer)"),
          "conv1d": (conv1d, "Conv1DT<float, %d, %d, 3, 1>", "randomise_conv1d<float>(layer, 3)"),
          "gru": (recurrent("gru", 3), "GRULayerT<float, %d, %d>", "randomise_gru<float>(layer)"),
          "lstm": (recurrent("lstm", 4), "LSTMLayerT<float, %d, %d>", "randomise_lstm<float>(layer)")}
SIZES = (8, 16, 24, 32, 40, 64)

PROGRAM = r"""#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "gpunn.h"
#define M_INFERENCE_IMPLEMENTATION
#include "m_inference.h"

static m_weights weights;
%(memory)s
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
    %(reset)s
    m_forward(%(arguments)s);
    for (int i = 0; i < %(out)d; ++i)
        if (!(fabsf(y[i] - right[i]) <= 1e-5f)) return 5;
    double best = 1e30;
    for (int repeat = 0; repeat < 400; ++repeat) {
        const double begin = now();
        for (int i = 0; i < CALLS; ++i) {
            if (argc > 2)
                (void)gpunn_forward(&result, 1);
            else
                m_forward(%(arguments)s);
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


def entries_of(name):
    """The entries of a network or of a layer of some size."""
    if name in NETWORKS:
        shape, entries, _ = NETWORKS[name]
        return ["N"] + shape, entries
    layer, size = name.split()
    return LAYERS[layer][0](int(size))


def prepared(name, folder, library, options):
    """The commands of NAME_inference.h and of gpunn."""
    shape, entries = entries_of(name)
    text = json.dumps({"gpunn_spec": 1, "tensors": [{"op": "input", "name": "x", "shape": shape}] + entries,
                       "outputs": [entries[-1]["id" if "id" in entries[-1] else "name"]
                                   if name in NETWORKS else "y"]})
    plan, path = inference.Plan(spec.parse(text)), os.path.join(folder, name.replace(" ", "_"))
    kept = [one for one, used in (("states", plan.states), ("scratch", plan.sizes())) if used]
    emitter = emit_inference.Emitter(plan, "m")
    words = {"in": plan.count(plan.inputs[0].id), "out": plan.count(plan.outputs[0]), "calls": CALLS,
             "memory": "\n".join("static m_%s %s;" % (one, one) for one in kept),
             "arguments": ", ".join(["&weights", "x", "y"] + ["&" + one for one in kept]),
             "reset": "m_reset(&states);" if plan.states else ""}
    words["reads"] = " || ".join('gpunn_read(gpunn_find(model, "%s"), weights.%s, sizeof weights.%s)' % (
        t.name, emitter.field[t.id], emitter.field[t.id]) for t in plan.weights)
    os.mkdir(path)
    for file_name, content in (("model.json", text), ("bench.c", PROGRAM % words), (
            "m_inference.h", emit_inference.emit_inference(plan, stamp.Source("", ""), "m"))):
        with open(os.path.join(path, file_name), "w", encoding="ascii") as file:
            file.write(content)
    program = os.path.join(path, "bench")
    subprocess.run(shlex.split(options.cc) + ["-std=gnu99", "-I" + ROOT, os.path.join(path, "bench.c"),
                                              library, "-o", program, "-lz", "-lm"], check=True)
    own = [program, os.path.join(path, "model.json")]
    return own, own + ["gpunn"]


def twin(name, options):
    """The command of PyTorch, or None."""
    if not options.python or name not in NETWORKS:
        return None
    shape, _, layers = NETWORKS[name]
    text = TWIN % {"layers": ", ".join(layers), "shape": ", ".join(map(str, [1] + shape)),
                   "calls": CALLS // 10}
    return shlex.split(options.python) + ["-c", text]


def rtneural(name, folder, options):
    """The command of RTNeural, or None."""
    if not options.rtneural or name in NETWORKS:
        return None
    layer, size = name.split()
    _, kind, initial = LAYERS[layer]
    machine = [word for word in shlex.split(options.cc) if word.startswith("-m")]
    program = os.path.join(folder, name.replace(" ", "_") + "_rtneural")
    places = [os.path.join(options.rtneural, part) for part in ("", "RTNeural", "modules/json", "bench")]
    defined = {"LAYER": kind % (int(size), int(size)), "INITIAL": initial, "SIZE": size,
               "RTNEURAL_USE_XSIMD": 1, "RTNEURAL_DEFAULT_ALIGNMENT": 64}
    subprocess.run(["g++", "-std=c++17", "-O3"] + machine + ["-D%s=%s" % one for one in defined.items()] + [
        "-I" + place for place in places + [os.path.join(options.xsimd, "include")]] + [
            os.path.join(ROOT, "tests", "bench", "rtneural.cpp"), "-o", program], check=True)
    return [program]


def timed(command):
    return float(subprocess.run(command, stdout=subprocess.PIPE, check=True,
                                universal_newlines=True).stdout.split()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="build/gpunn.o")
    parser.add_argument("--python", help="an interpreter with torch, and its arguments")
    parser.add_argument("--rtneural", help="a checkout of RTNeural")
    parser.add_argument("--xsimd", help="a checkout of xsimd")
    parser.add_argument("--cc", default="gcc -O3 -march=native", help="the C compiler and its options")
    parser.add_argument("--only", default="", help="the networks whose names contain this")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    names = list(NETWORKS) + ["%s %d" % (layer, size) for layer in LAYERS for size in SIZES]
    print("| network | plain C us | gpunn us | ratio | PyTorch us | ratio | RTNeural us | ratio |\n"
          "|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if options.only not in name:
                continue
            commands = [*prepared(name, folder, os.path.abspath(options.library), options),
                        twin(name, options), rtneural(name, folder, options)]
            rounds = [[command and timed(command) for command in commands] for _ in range(options.rounds)]
            cells = ["%.3g" % statistics.median(row[0] for row in rounds)]
            for k in range(1, len(commands)):
                cells += ["%.3g" % statistics.median(row[k] for row in rounds),
                          "%.3g" % statistics.median(row[k] / row[0] for row in rounds)
                          ] if commands[k] else ["", ""]
            print("| %s |" % " | ".join([name] + cells), flush=True)


if __name__ == "__main__":
    main()
