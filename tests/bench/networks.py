#!/usr/bin/env python3
"""Times evaluations of small networks as one kernel and layer by layer: python3 tests/bench/networks.py
[WIDTHxLAYERS ...] [--threads 1]

Each network has that many linear layers of the width, with --activation between them. One program runs both
alternately. A row has the best times of nine rounds, and the median of the ratio within a round. With
--python PYTHON, an interpreter with torch, it also has PyTorch's best time under inference_mode, and its
ratio to the one kernel's."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def spec(width, layers, activation):
    tensors, last = [{"op": "input", "name": "x", "shape": ["N", width]}], "x"
    for i in range(layers):
        tensors.append({"op": "linear", "name": "fc%d" % i, "inputs": [last], "out_features": width})
        if i + 1 < layers:
            tensors.append({"op": activation, "name": "h%d" % i, "inputs": ["fc%d" % i]})
        last = tensors[-1]["name"]
    return {"gpunn_spec": 1, "name": "net", "tensors": tensors, "outputs": [last]}


def best_of_torch(width, layers, activation, threads, batches):
    """Prints a line of us for each batch."""
    import torch

    torch.set_num_threads(threads)
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width),
                  {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "gelu": torch.nn.GELU}[activation]()]
    net = torch.nn.Sequential(*parts[:-1]).eval()
    with torch.inference_mode():
        for batch in batches:
            x, best = torch.randn(batch, width), float("inf")
            calls = max(1, 20000000 // (batch * layers * width * width + 100000))
            for _ in range(10):  # the first one to warm up
                begin = time.perf_counter()
                for _ in range(calls):
                    net(x)
                best = min(best, (time.perf_counter() - begin) / calls)
            print("%.4g" % (best * 1e6), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nets", nargs="*",
                        default=["16x2", "16x4", "32x2", "32x8", "64x2", "64x4", "128x2", "128x4", "256x4"])
    parser.add_argument("--threads", default="1")
    parser.add_argument("--activation", default="relu")
    parser.add_argument("--flags", default="-O3 -march=native")
    parser.add_argument("--batches", default="1,4,16,256,4096")
    parser.add_argument("--python")
    parser.add_argument("--torch", action="store_true", help="what --python runs")
    options = parser.parse_args()
    if options.torch:
        for net in options.nets:
            best_of_torch(*map(int, net.split("x")), options.activation, int(options.threads),
                          list(map(int, options.batches.split(","))))
        return
    build = ["cc", "-std=c11", "-I."] + options.flags.split()
    peer = " PyTorch, us | ratio |" if options.python else ""
    print("| width, layers | batch | layer by layer, us | one kernel, us | ratio "
          "|%s\n|---|---|---|---|---|%s" % (
              peer, "---|---|" if peer else ""), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "gpunn.o")
        subprocess.run(build + ["-DGPUNN_IMPLEMENTATION", "-x", "c", "gpunn.h", "-c", "-o", library],
                       cwd=ROOT, check=True)
        for net in options.nets:
            width, layers = map(int, net.split("x"))
            path, program = os.path.join(folder, "net"), os.path.join(folder, "networks")
            with open(path + ".json", "w", encoding="ascii") as file:
                json.dump(spec(width, layers, options.activation), file)
            subprocess.run([sys.executable, "-m", "generator", path + ".json", "-o", path], cwd=ROOT,
                           check=True)
            kernels = ["-DKERNELS=\"%s_kernels.h\"" % path, "-DKERNEL_SET=net_kernels",
                       "-DNET_KERNELS_IMPLEMENTATION"]
            subprocess.run(build + kernels + ["tests/bench/networks.c", library, "-o", program, "-lm",
                                              "-lpthread"], cwd=ROOT, check=True)
            rows = lines_of([program, path + ".json", options.threads] + options.batches.split(","))
            torch = (lines_of([options.python, __file__, net, "--torch", "--threads", options.threads,
                               "--batches", options.batches, "--activation", options.activation]) if peer else
                     [None] * len(rows))
            for row, other in zip(rows, torch):
                batch, plain, whole, ratio = row.split()
                ending = " %s | %.3g |" % (other, float(other) / float(whole)) if peer else ""
                print("| %d, %d | %s | %s | %s | %s |%s" %
                      (width, layers, batch, plain, whole, ratio, ending), flush=True)


def lines_of(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")[:-1]


if __name__ == "__main__":
    sys.exit(main())
