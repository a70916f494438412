#!/usr/bin/env python3
"""Builds gpu_bench with generated kernels: python3 tests/bench/gpu_kernels.py GPU_BENCH TARGET OBJECT...
[--small] [-lz]

GPU_BENCH, the program without them, writes the workloads' specs. The generator writes their kernels. nvcc
compiles these, and links TARGET with the OBJECTs of gpunn.h and gpunn_cuda.cu. --small: in the sizes of
gpu.py --cpu. Standard library only."""
import argparse
import concurrent.futures
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "gpu"))
import toolkit

NAMES = ("resnet18_bf16", "gpt2_bf16", "bert8_f16", "bert32_f16", "mlp784_bf16", "mlp20", "lenet4")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("target")
    parser.add_argument("objects", nargs="+")
    parser.add_argument("--small", action="store_true")
    options, libraries = parser.parse_known_args()
    found, folder = toolkit.Toolkit(), os.path.abspath(options.target) + "_kernels"
    if found.nvcc is None:
        sys.exit("nvcc was not found: NVCC names one")
    os.makedirs(folder, exist_ok=True)
    nvcc = [found.nvcc, *found.target()[0], *found.flags, "-I" + ROOT, "-I" + folder]
    files = {name: os.path.join(folder, name) for name in NAMES}
    asked = "".join(f"spec {name} {os.path.join(folder, name)}.json\n" for name in NAMES)
    subprocess.run([options.program, "--cpu"] + ["--small"] * options.small, input=asked, text=True,
                   check=True, stdout=subprocess.DEVNULL)

    def compile_set(file):
        subprocess.run([sys.executable, "-m", "generator", file + ".json", "-o", file], cwd=ROOT, check=True)
        subprocess.run(nvcc + ["-std=c++17", "-O3", "--split-compile=0", "-c", file + "_kernels.cu", "-o",
                               file + ".o"], check=True)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_set, files.values()))
    with open(os.path.join(folder, "sets.h"), "w", encoding="ascii") as out:
        for name in NAMES:
            out.write(f'#define {name.upper()}_KERNELS_IMPLEMENTATION\n#include "{name}_kernels.h"\n')
        out.write("#define BENCH_SETS(X) " + " ".join(f"X({name})" for name in NAMES) + "\n")
    subprocess.run(nvcc + ["-O1", "-DGPUNN_NO_IMPLEMENTATION", '-DBENCH_KERNELS="sets.h"',
                           os.path.join(HERE, "gpu_bench.c"), *(file + ".o" for file in files.values()),
                           *options.objects, *libraries, "-o", options.target], check=True)


if __name__ == "__main__":
    main()
