#!/usr/bin/env python3
"""Compiles the library and test programs for aarch64, and runs them under qemu: python3
tests/compile/aarch64.py ops/golden ops/precision=*products* ...

Behind = stands the pattern of the tests to run; without it all of them run.

cmocka for it: dpkg --add-architecture arm64 && apt-get update && apt-get install libcmocka-dev:arm64"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMPILER, EMULATOR, LIBRARIES = "aarch64-linux-gnu-gcc", "qemu-aarch64", "/usr/lib/aarch64-linux-gnu"
STRICT = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror".split()


def missing():
    """What the machine lacks, or None."""
    for tool, package in (COMPILER, "gcc-aarch64-linux-gnu"), (EMULATOR, "qemu-user"):
        if not shutil.which(tool):
            return f"{tool} is not installed ({package})"
    if not os.path.exists(LIBRARIES + "/libcmocka.so"):
        return "cmocka for aarch64 is not installed (libcmocka-dev:arm64)"
    return None


def run(folder, wanted):
    """Prints the TAP lines of a program but the plan, and returns the number of tests in that."""
    program, _, tests = wanted.partition("=")
    out = os.path.join(folder, os.path.basename(program))
    subprocess.run([COMPILER, "-std=gnu99", "-O1", "-DGPUNN_NO_IMPLEMENTATION", "-I" + ROOT,
                    f"{ROOT}/tests/{program}.c", f"{folder}/gpunn.o",
                    "-o", out, "-L" + LIBRARIES, "-lcmocka", "-lpthread", "-lm"], check=True)
    settings = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP")
    if tests:
        settings["GPUNN_TEST_FILTER"] = tests
    done = subprocess.run([EMULATOR, out], cwd=ROOT, env=settings, stdout=subprocess.PIPE, text=True)
    print(re.sub(r"^1\.\.\d+\n", "", done.stdout, flags=re.M), end="", flush=True)
    if done.returncode < 0:
        print(f"not ok - {program} died of signal {-done.returncode}")
    return int((re.search(r"^1\.\.(\d+)$", done.stdout, re.M) or [0, 1])[1])


def main():
    lacks = missing()
    if lacks:
        print(f"1..1\nok 1 - aarch64 # SKIP {lacks}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([COMPILER, "-std=c99", "-O1", *STRICT, "-DGPUNN_IMPLEMENTATION", "-x", "c", "-c",
                        f"{ROOT}/gpunn.h", "-o", f"{folder}/gpunn.o"], check=True)
        print(f"1..{sum(run(folder, program) for program in sys.argv[1:])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
