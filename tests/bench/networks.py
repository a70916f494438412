#!/usr/bin/env python3
"""Times evaluations of small networks as one kernel and layer by layer: python3 tests/bench/networks.py [WIDTHxLAYERS ...] [--threads 1]

Each network is that many linear layers of the width with --activation between them. One program runs both in turns; a row has the
best times of nine rounds, and the median of the ratio in one round.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def spec(width, layers, activation):
    tensors, last = [{"op": "input", "name": "x", "shape": ["N", width]}], "x"
    for i in range(layers):
        tensors.append({"op": "linear", "name": "fc%d" % i, "inputs": [last], "out_features": width})
        if i + 1 < layers:
            tensors.append({"op": activation, "name": "h%d" % i, "inputs": ["fc%d" % i]})
        last = tensors[-1]["name"]
    return {"gpunn_spec": 1, "name": "net", "tensors": tensors, "outputs": [last]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nets", nargs="*", default=["16x2", "16x4", "32x2", "32x8", "64x2", "64x4", "128x2", "128x4", "256x4"])
    parser.add_argument("--threads", default="1")
    parser.add_argument("--activation", default="relu")
    parser.add_argument("--flags", default="-O3 -march=native")
    parser.add_argument("--batches", default="1,4,16,256,4096")
    options = parser.parse_args()
    build = ["cc", "-std=c11", "-I."] + options.flags.split()
    print("| width, layers | batch | layer by layer, us | one kernel, us | ratio |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "gpunn.o")
        subprocess.run(build + ["-DGPUNN_IMPLEMENTATION", "-x", "c", "gpunn.h", "-c", "-o", library], cwd=ROOT, check=True)
        for net in options.nets:
            width, layers = map(int, net.split("x"))
            path, program = os.path.join(folder, "net"), os.path.join(folder, "networks")
            with open(path + ".json", "w", encoding="ascii") as file:
                json.dump(spec(width, layers, options.activation), file)
            subprocess.run([sys.executable, "-m", "generator", path + ".json", "-o", path], cwd=ROOT, check=True)
            kernels = ["-DKERNELS=\"%s_kernels.h\"" % path, "-DKERNEL_SET=net_kernels", "-DNET_KERNELS_IMPLEMENTATION"]
            subprocess.run(build + kernels + ["tests/bench/networks.c", library, "-o", program, "-lm", "-lpthread"], cwd=ROOT, check=True)
            rows = subprocess.run([program, path + ".json", options.threads] + options.batches.split(","), check=True,
                                  capture_output=True, text=True).stdout.split("\n")
            for batch, plain, whole, ratio in (row.split() for row in rows if row):
                print("| %d, %d | %s | %s | %s | %s |" % (width, layers, batch, plain, whole, ratio), flush=True)


if __name__ == "__main__":
    sys.exit(main())
