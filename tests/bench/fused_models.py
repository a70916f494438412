#!/usr/bin/env python3
"""Times training steps with and without generated kernels: python3 tests/bench/fused_models.py [NAME:BATCH
...] [--threads 1,2] [--rounds 5]

The models are those of tests/generator/specs. One run_model is built for each, with its kernels. It runs
alternately with and without GPUNN_KERNELS=off. A row has the median over rounds of the best step, and of the
ratio within a round."""
import argparse
import array
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from generator import spec
from tests import tensor_file

BUILD = "cc -O3 -march=native -I. examples/run_model.c -lm".split()
STEPS = {"mlp": 60, "lenet": 60, "resnet_block": 6, "transformer_block": 2}


def inputs(model, batch, path):
    draw, tensors = random.Random(1), {}
    for t in model.tensors:
        if t.kind != "input":
            continue
        shape = [-d * batch if d < 0 else d for d in t.shape]
        count = 1
        for d in shape:
            count *= d
        code, values = ("f", (draw.uniform(-1, 1) for _ in range(count))) if t.dtype == "f32" else (
            {"i64": "q", "i32": "i", "u8": "B"}[t.dtype], (draw.randrange(10) for _ in range(count)))
        tensors[t.name] = (t.dtype.upper(), shape, array.array(code, values).tobytes())
    tensor_file.save(path, tensors)


def step(program, spec_path, folder, count, threads, kernels):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), GPUNN_KERNELS="" if kernels else "off")
    text = subprocess.run([program, spec_path, "--input", folder + "/x", "--output", folder + "/y",
                           "--device", "cpu", "--steps", "1", "--bench", str(count)], cwd=ROOT,
                          env=environment, check=True, capture_output=True, text=True).stdout
    return float(re.search(r"([\d.]+) ms", text).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["mlp:128", "mlp:4", "lenet:128", "lenet:4",
                                                     "resnet_block:32", "transformer_block:2"])
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| model, batch | threads | without ms | with kernels ms | ratio |\n|---|---|---|---|---|",
          flush=True)
    for name in options.names:
        model, batch = name.split(":")
        spec_path = os.path.join("tests", "generator", "models", model + ".json")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "generator", spec_path, "-o", os.path.join(folder, model)],
                           cwd=ROOT, check=True)
            subprocess.run(BUILD + ["-I" + folder, '-DKERNELS="%s_kernels.h"' % model,
                                    "-DKERNEL_SET=%s_kernels" % model,
                                    "-D%s_KERNELS_IMPLEMENTATION" % model.upper(), "-o", folder + "/run"],
                           cwd=ROOT, check=True)
            inputs(spec.load(os.path.join(ROOT, spec_path)), int(batch), folder + "/x")
            for threads in map(int, options.threads.split(",")):
                rounds = []
                for number in range(options.rounds):
                    order = (False, True) if number % 2 == 0 else (True, False)
                    rounds.append({k: step(folder + "/run", spec_path, folder, STEPS[model], threads, k)
                                   for k in order})
                ratio = statistics.median(r[False] / r[True] for r in rounds)
                print("| %s, %s | %d | %.4g | %.4g | %.2f |" % (
                    model, batch, threads, *(statistics.median(r[k] for r in rounds) for k in (False, True)),
                    ratio), flush=True)


if __name__ == "__main__":
    sys.exit(main())
