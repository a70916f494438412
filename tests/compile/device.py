#!/usr/bin/env python3
"""Compiles NAME_device.cuh of small networks within kernels and prints their registers: python3 tests/compile/device.py [--arch 75,90]

An error is: a warning, a register spilled, and local memory for the values of a call whose loops are unrolled.
"""
import argparse
import json
import os
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [ROOT, os.path.join(ROOT, "tests", "gpu"), os.path.join(ROOT, "tests", "compile")]
import kernels
import toolkit
from generator import emit_device, spec, stamp

FIELD = [  # points in a hash grid, directions and a code, before a network of 3 + 8 + 9 + 4 numbers
    {"op": "input", "name": "words", "dtype": "i32", "shape": ["N"]},
    {"op": "hash_grid_encoding", "name": "grid", "inputs": ["x"], "n_levels": 4, "log2_hashmap_size": 10},
    {"op": "spherical_harmonics_encoding", "id": "harmonics", "inputs": ["x"], "degree": 3},
    {"op": "embedding", "name": "code", "inputs": ["words"], "num_embeddings": 9, "embedding_dim": 4},
    {"op": "concat", "id": "h0", "inputs": ["x", "grid", "harmonics", "code"], "dim": 1}]
NETWORKS = {"relu_20_50_1": ("relu", (20, 50, 1)), "field_3_32_4": ("relu", (3, 32, 4)), "silu_3_32_32_32_1": ("silu", (3, 32, 32, 32, 1)),
            "relu_3_64_64_64_4": ("relu", (3, 64, 64, 64, 4)), "tanh_16_128_128_4": ("tanh", (16, 128, 128, 4))}
CALLER = """#include "%(name)s_device.cuh"
__global__ void %(name)s_values(const %(name)s_weights *w, const float *x, const int *words, float *y, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) %(name)s_forward(w, %(given)s, y + i * %(out)d);
}
__global__ void %(name)s_gradients(const %(name)s_weights *w, const float *x, const int *words, const float *dy, float *dx, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) %(name)s_input_gradient(w, %(given)s, dy + i * %(out)d, dx + i * %(in)d);
}
"""


def network(name):
    """A graph.Model."""
    activation, sizes = NETWORKS[name]
    field = FIELD if name.startswith("field") else []
    entries = [{"op": "input", "name": "x", "shape": ["N", sizes[0]]}] + field
    for k, size in enumerate(sizes[1:]):
        entries.append({"op": "linear", "name": "fc%d" % k, "inputs": ["h%d" % k if k or field else "x"], "out_features": size})
        if k + 2 < len(sizes):
            entries.append({"op": activation, "id": "h%d" % (k + 1), "inputs": ["fc%d" % k]})
    return spec.parse(json.dumps({"gpunn_spec": 1, "tensors": entries}))


def check(name, folder, nvcc, architectures):
    """(lines of a table, faults)."""
    plan = emit_device.plan_of(network(name))
    given = ["x + i * %d" % plan.count(t.id) if t.dtype == "f32" else "words + i" for t in plan.inputs]
    sizes = {"in": plan.count(plan.inputs[0].id), "out": plan.count(plan.outputs[0])}
    header, source = (os.path.join(folder, name + end) for end in ("_device.cuh", ".cu"))
    for path, text in ((header, emit_device.emit_device(plan, stamp.Source("0" * 64, "command"), name)),
                       (source, CALLER % dict(sizes, name=name, given=", ".join(given)))):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    said, _ = kernels.compile_to(nvcc, source, source + ".o", architectures, "-c", "-Xptxas", "-v")
    lines, bad = [], []
    for kernel, row in kernels.resources(said).items():
        lines.append("%-40s" % kernel + "".join("%5d" % row[a].registers for a in architectures) +
                     "  registers, %d bytes of local memory" % max(one.stack for one in row.values()))
        held = kernel.endswith("_values") and plan.products() <= emit_device.MOST_UNROLLED
        bad += ["%s on sm_%d: %d bytes of local memory, %d of them spilled" % (kernel, a, one.stack, one.spilled)
                for a, one in row.items() if one.spilled or (held and one.stack)]
    return lines, bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", help="such as 80,90")
    options = parser.parse_args()
    nvcc = toolkit.Toolkit()
    if nvcc.nvcc is None:
        sys.exit("nvcc was not found: README.md says how to get it; NVCC names one")
    has = nvcc.architectures()
    architectures = [int(a) for a in options.arch.split(",")] if options.arch else [a for a in (75, 80, 90, 120) if a in has]
    print("%-40s" % "on sm_" + "".join("%5d" % a for a in architectures))
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        for name in NETWORKS:
            lines, faults = check(name, folder, nvcc, architectures)
            print("\n".join(lines))
            bad += faults
    sys.exit("\n".join(bad) if bad else 0)


if __name__ == "__main__":
    main()
