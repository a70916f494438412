#!/usr/bin/env python3
"""Compiles NAME_device.cuh of small networks within kernels and prints their registers.

    python3 tests/compile/device.py [--arch 75,90] [--only NAME]

Errors are: a warning, a spilled register, local memory for the values of a call whose loops are unrolled or
of a warp's call, and instructions of tensor cores other than those of a warp's call."""
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

FIELD = [  # points for a hash grid, directions and a code, before a network of 3 + 8 + 9 + 4 numbers
    {"op": "input", "name": "x", "shape": ["N", 3]},
    {"op": "input", "name": "words", "dtype": "i32", "shape": ["N"]},
    {"op": "hash_grid_encoding", "name": "grid", "inputs": ["x"], "n_levels": 4, "log2_hashmap_size": 10},
    {"op": "spherical_harmonics_encoding", "id": "harmonics", "inputs": ["x"], "degree": 3},
    {"op": "embedding", "name": "code", "inputs": ["words"], "num_embeddings": 9, "embedding_dim": 4},
    {"op": "concat", "id": "h0", "inputs": ["x", "grid", "harmonics", "code"], "dim": 1}]
# For each network its activations and sizes, and how its weights are stored.
NETWORKS = {"relu_20_50_1": ("relu", (20, 50, 1), "f32 f16"),
            "silu_3_32_32_32_1": ("silu", (3, 32, 32, 32, 1), "f32 f16 bf16"),
            "relu_3_64_64_64_4": ("relu", (3, 64, 64, 64, 4), "f32 f16"),
            "tanh_16_128_128_4": ("tanh", (16, 128, 128, 4), "f32 f16"),
            "relu_64_192_192_3": ("relu", (64, 192, 192, 3), "f16"),
            "field_24_32_4": ("relu", (24, 32, 4), "f32"),
            "layers_6_20_20_3": ("mul sin layer_norm softmax", (6, 20, 20, 3), "f32 bf16")}
CALLER = """#include "%(name)s_device.cuh"
__global__ void %(name)s_values(const %(kind)s *w, const float *x, const int *words, float *y, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) %(name)s_forward(w, %(given)s, y + i * %(out)d);
}
__global__ void %(name)s_gradients(const %(kind)s *w, const float *x, const int *words,
                                     const float *dy, float *dx, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) %(name)s_input_gradient(w, %(given)s, dy + i * %(out)d, dx + i * %(in)d);
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= %(capability)d0
__global__ void %(name)s_warps(const %(name)s_weights_warp *w, const float *x, const int *words,
                                 float *y, int n)
{
    const int thread = (int)(blockIdx.x * blockDim.x + threadIdx.x), lane = thread %% 32;
    const int i = thread / 32 * %(NAME)s_WARP_SAMPLES + lane;
    %(name)s_forward_warp(w, %(given)s, y + i * %(out)d, lane < %(NAME)s_WARP_SAMPLES && i < n);
}
#endif
__global__ void %(name)s_fill(const %(name)s_weights *w, %(name)s_weights_warp *to)
{
    %(name)s_weights_to_warp(w, to, (int)threadIdx.x, (int)blockDim.x);
}
"""


def network(name):
    """A graph.Model: linear layers of these sizes with the activations between them."""
    activations, sizes, _ = NETWORKS[name]
    entries = (FIELD[:] if name.startswith("field") else
               [{"op": "input", "name": "x", "shape": ["N", sizes[0]]}])
    first = entries[-1].get("id", "x")
    for k, size in enumerate(sizes[1:]):
        entries.append({"op": "linear", "name": "fc%d" % k, "inputs": ["h%d" % k if k else first],
                        "out_features": size})
        names = ["fc%d" % k] + ["h%d_%d" % (k, i) for i in range(len(activations.split()) - 1)] + ["h%d" % (
            k + 1)]
        for op, source, name in zip(activations.split() if k + 2 < len(sizes) else (), names, names[1:]):
            entries.append({"op": op, "name" if op == "layer_norm" else "id": name, "inputs": [source]})
            if op == "softmax":
                entries[-1]["dim"] = 1
            if op == "mul":
                entries.insert(-1, {"op": "constant", "id": "c%d" % k, "shape": [size],
                                    "values": list(range(size))})
                entries[-1]["inputs"].append("c%d" % k)
    return spec.parse(json.dumps({"gpunn_spec": 1, "tensors": entries}))


def products(sizes, stored, groups):
    """Instructions of tensor cores for a call by a warp on compute capability 8.0."""
    chunk = emit_device.STORAGES[stored].chunk
    return sum(-(-k // chunk) * -(-n // 8) * groups for k, n in zip(sizes, sizes[1:]))


def check(network_name, stored, folder, nvcc, architectures):
    """(lines of a table, faults)."""
    sizes = NETWORKS[network_name][1]
    name, capability = "%s_%s" % (network_name, stored), emit_device.STORAGES[stored].capability
    plan = emit_device.plan_of(network(network_name), stored)
    counts = {t.name: plan.count(t.id) for t in plan.inputs}
    header, source = (os.path.join(folder, name + end) for end in ("_device.cuh", ".cu"))
    caller = CALLER % {"name": name, "NAME": name.upper(), "in": counts["x"], "out": sizes[-1],
                       "capability": capability,
                       "given": ", ".join("%s + i * %d" % one for one in counts.items()),
                       "kind": name + "_weights" + ("" if stored == "f32" else "_" + stored)}
    for path, text in ((header,
                        emit_device.emit_device(plan, stamp.Source("0" * 64, "command"), name, stored, True)),
                       (source, caller)):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    said, _ = kernels.compile_to(nvcc, source, source + ".o", architectures, "-c", "-Xptxas", "-v")
    kernels.compile_to(nvcc, source, source + ".ptx", (max(80, min(architectures)),), "-ptx")
    with open(source + ".ptx", encoding="utf-8") as file:
        found = kernels.products(file.read())
    lines, bad = [], []
    for kernel, row in kernels.resources(said).items():
        numbers = "".join("%5s" % (row[a].registers if a in row else "") for a in architectures)
        lines.append("%-40s%s  registers, %d bytes of local memory" %
                     (kernel, numbers, max(one.stack for one in row.values())))
        held = (kernel.endswith("_warps") or kernel.endswith("_values") and
                plan.products() <= emit_device.MOST_UNROLLED)
        bad += ["%s on sm_%d: %d bytes of local memory, %d of them spilled" %
                (kernel, a, one.stack, one.spilled)
                for a, one in row.items() if one.spilled or (held and one.stack)]
        wanted = (products(sizes, stored, emit_device.groups_of(plan, stored)) if kernel.endswith("_warps")
                  else 0)
        if sum(found[kernel].values()) != wanted:
            bad.append("%s has %s of tensor cores, not %d" % (kernel, dict(found[kernel]), wanted))
    return lines, bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", help="such as 80,90")
    parser.add_argument("--only", choices=NETWORKS, help="one network")
    options = parser.parse_args()
    nvcc = toolkit.Toolkit()
    if nvcc.nvcc is None:
        sys.exit("nvcc was not found: examples/guides/gpu.md says how to get it; NVCC names one")
    has = nvcc.architectures()
    architectures = ([int(a) for a in options.arch.split(",")] if options.arch else
                     [a for a in (75, 80, 90, 120) if a in has])
    print("%-40s" % "on sm_" + "".join("%5d" % a for a in architectures))
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        for name in [options.only] if options.only else NETWORKS:
            for stored in NETWORKS[name][2].split():
                lines, faults = check(name, stored, folder, nvcc, architectures)
                print("\n".join(lines), flush=True)
                bad += faults
    sys.exit("\n".join(bad) if bad else 0)


if __name__ == "__main__":
    main()
