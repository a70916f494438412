#!/usr/bin/env python3
"""Generates kernels for workloads of the benchmarks, compiled for the emulated GPU: bench_sets.py SPECS OUT.o
"NAME..." COMPILER FLAG...

SPECS, tests/bench/gpu_bench.c built without a GPU, writes the workloads' specs. OUT.o holds their kernels,
and OUT.h declares them for gpu_workloads.h. OUT.o.d lists the dependencies for ninja. Standard library
only."""
import glob
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    program, target, names, *compiler = sys.argv[1:]
    names, stem = names.split(), os.path.splitext(os.path.abspath(target))[0]
    files = {name: stem + "_" + name for name in names}
    asked = "".join(f"spec {name} {file}.json\n" for name, file in files.items())
    subprocess.run([os.path.abspath(program), "--cpu"], input=asked, text=True, check=True,
                   stdout=subprocess.DEVNULL)
    with open(stem + ".h", "w", encoding="ascii") as out:
        for name, file in files.items():
            subprocess.run([sys.executable, "-m", "generator", file + ".json", "-o", file], cwd=ROOT,
                           check=True)
            subprocess.run(compiler + ["-x", "c++", "-I" + ROOT, "-c", file + "_kernels.cu", "-o",
                                       file + ".o"], cwd=ROOT, check=True)
            set_name = os.path.basename(file)
            out.write(f'#define {set_name.upper()}_KERNELS_IMPLEMENTATION\n#include "{set_name}_kernels.h"\n')
        out.write("#define BENCH_SETS(X) " + " ".join(f"X({name}, {os.path.basename(file)}_kernels)"
                                                      for name, file in files.items()) + "\n")
    subprocess.run(["ld", "-r", "-o", target] + [file + ".o" for file in files.values()], check=True)
    inputs = [path for pattern in ("generator/*.py", "generator/*.json", "templates/kernels/*",
                                   "tests/emulator/*.h", "gpunn.h", "tests/bench/*.h")
              for path in sorted(glob.glob(os.path.join(ROOT, pattern)))]
    with open(target + ".d", "w", encoding="utf-8") as file:
        file.write("%s: %s\n" % (os.path.relpath(target, ROOT), " ".join(inputs)))


if __name__ == "__main__":
    sys.exit(main())
