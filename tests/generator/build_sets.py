#!/usr/bin/env python3
"""The kernels of fused.c's models: python3 tests/generator/build_sets.py generate LIST
                                    python3 tests/generator/build_sets.py specs
                                    python3 tests/generator/build_sets.py OUT.o h|cu COMPILER FLAG...

fused.c lists the sets: NAME_PRECISION is specs/small/NAME.json in that precision. generate writes each spec,
from which fused.c reads it, and its kernels into build/generated, and their names into LIST. Then they are
compiled into one object. h stands for the C kernels. cu stands for the GPU's, compiled by nvcc or, for the
emulated GPU, by a C++ compiler. LIST.d and OUT.o.d list the dependencies for ninja. specs writes the specs
alone, where the program was built elsewhere."""
import concurrent.futures
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
GENERATED = os.path.join(ROOT, "build", "generated")


def sets():
    with open(os.path.join(HERE, "fused.c"), encoding="utf-8") as file:
        return ["%s_%s" % found
                for found in re.findall(r"^ *X\((\w+)_(f32|tf32|bf16|f16),", file.read(), re.M)]


def write_spec(name):
    """Returns its path, without .json."""
    model, precision = name.rsplit("_", 1)
    with open(os.path.join(HERE, "specs", "small", model + ".json"), encoding="utf-8") as file:
        spec = dict(json.load(file), precision=precision)
    stem = os.path.join(GENERATED, name)
    with open(stem + ".json", "w", encoding="utf-8") as file:
        json.dump(spec, file)
    return stem


def generate(name):
    stem = write_spec(name)
    subprocess.run([sys.executable, "-m", "generator", stem + ".json", "-o", stem], cwd=ROOT, check=True)


def build(folder, name, part, compiler):
    """Only F32's C kernels are compiled as the command says, the others at -O0. They differ in conversions,
    and all of them take gcc two minutes at -O3."""
    language = ["-x", "c", "-D%s_KERNELS_IMPLEMENTATION" % name.upper()]
    if part == "h" and not name.endswith("_f32"):
        language.append("-O0")
    if part == "cu":
        language = ["-x", "cu" if "nvcc" in os.path.basename(compiler[0]) else "c++"]
    source, target = os.path.join(GENERATED, name + "_kernels." + part), os.path.join(folder, name + ".o")
    subprocess.run(compiler + language + ["-I.", "-c", source, "-o", target], cwd=ROOT, check=True)


def depends(target, patterns):
    inputs = [path for pattern in patterns for path in sorted(glob.glob(os.path.join(ROOT, pattern)))]
    with open(target + ".d", "w", encoding="utf-8") as file:
        file.write("%s: %s\n" % (os.path.relpath(target, ROOT), " ".join(inputs)))


def main():
    target, names = os.path.abspath(sys.argv[-1] if sys.argv[1] == "generate" else sys.argv[1]), sets()
    os.makedirs(GENERATED, exist_ok=True)
    if sys.argv[1] == "specs":
        for name in names:
            write_spec(name)
        return
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(
            os.cpu_count()) as pool:
        if sys.argv[1] == "generate":
            list(pool.map(generate, names))
            with open(target, "w", encoding="utf-8") as file:
                file.write("\n".join(names) + "\n")
            depends(target, ["generator/*.py", "generator/*.json", "templates/kernels/*",
                             "tests/generator/specs/small/*.json"])
        else:
            part, *compiler = sys.argv[2:]
            list(pool.map(lambda name: build(folder, name, part, compiler), names))
            subprocess.run(["ld", "-r", "-o", target] + sorted(glob.glob(os.path.join(folder, "*.o"))),
                           check=True)
            depends(target, ["tests/emulator/*.h", "gpunn.h"])


if __name__ == "__main__":
    sys.exit(main())
