#!/usr/bin/env python3
"""Generates and compiles the kernels of fused.c's models into one object: python3 tests/generator/build_sets.py OUT.o h|cu COMPILER FLAG...

fused.c lists the sets: NAME_PRECISION is specs/small/NAME.json in that precision, which fused.c reads in build/generated. h: the C
kernels, cu: those for a GPU, by nvcc or, for the emulated one, by a C++ compiler. OUT.o.d tells ninja what they depend on.
"""
import concurrent.futures
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def sets():
    with open(os.path.join(HERE, "fused.c"), encoding="utf-8") as file:
        return re.findall(r"^ *X\((\w+)_(f32|bf16|f16),", file.read(), re.M)


def build(folder, specs, model, precision, part, compiler):
    name = os.path.join(folder, model + "_" + precision)
    with open(os.path.join(HERE, "specs", "small", model + ".json"), encoding="utf-8") as file:
        spec = dict(json.load(file), precision=precision)
    with open(name + ".json", "w", encoding="utf-8") as file:
        json.dump(spec, file)
    waiting = os.path.join(specs, "%d.%s.part" % (os.getpid(), os.path.basename(name)))
    shutil.copy(name + ".json", waiting)
    os.replace(waiting, os.path.join(specs, os.path.basename(name) + ".json"))
    subprocess.run([sys.executable, "-m", "generator", name + ".json", "-o", name], cwd=ROOT, check=True)
    language = ["-x", "c", "-D%s_KERNELS_IMPLEMENTATION" % os.path.basename(name).upper()]
    if part == "cu":
        language = ["-x", "cu" if "nvcc" in os.path.basename(compiler[0]) else "c++"]
    subprocess.run(compiler + language + ["-I.", "-c", name + "_kernels." + part, "-o", name + ".o"], cwd=ROOT, check=True)


def main():
    target, part, *compiler = sys.argv[1:]
    target, specs = os.path.abspath(target), os.path.join(ROOT, "build", "generated")
    os.makedirs(specs, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for one in [pool.submit(build, folder, specs, model, precision, part, compiler) for model, precision in sets()]:
            one.result()
        subprocess.run(["ld", "-r", "-o", target] + sorted(glob.glob(os.path.join(folder, "*.o"))), check=True)
    inputs = [path for pattern in ("generator/*.py", "generator/*.json", "templates/*", "tests/generator/specs/small/*.json",
                                   "tests/emulator/*.h", "gpunn.h") for path in sorted(glob.glob(os.path.join(ROOT, pattern)))]
    with open(target + ".d", "w", encoding="utf-8") as file:
        file.write("%s: %s\n" % (os.path.relpath(target, ROOT), " ".join(inputs)))


if __name__ == "__main__":
    sys.exit(main())
