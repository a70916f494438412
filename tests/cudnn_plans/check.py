#!/usr/bin/env python3
"""Has cuDNN plan every graph that gpunn_cuda.cu can hand to it: python3 tests/cudnn_plans/check.py [CARD...]

cuDNN plans for a card from its description (the .json files, values of the data sheets), through the same code as a run, without
a GPU or a driver. Needs nvcc and cuDNN 9.8 or later; without them it is a skip. TAP lines, for tests/run.py.
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, "build", "cudnn_plans")
PROGRAM = os.path.join(BUILD, "plans")
CARDS = ["t4", "a100", "rtx4090", "h200", "b200", "rtx5090"]
LIMIT = 600  # seconds for one card


def build(nvcc):
    """The program, and the driver library that it is shown; a failure's text."""
    plans, driver = os.path.join(HERE, "plans.cu"), os.path.join(HERE, "libcuda.c")
    companion, header = os.path.join(ROOT, "gpunn_cuda.cu"), os.path.join(ROOT, "gpunn.h")
    library, core = os.path.join(BUILD, "libcuda.so.1"), os.path.join(BUILD, "gpunn.o")
    compiler = os.environ.get("CC", "cc")
    steps = [
        (library, [driver], [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", driver, "-o", library]),
        (core, [header], [compiler, "-O0", "-DGPUNN_IMPLEMENTATION", "-x", "c", "-c", header, "-o", core]),
        (PROGRAM, [plans, companion, header],
         [nvcc, "-std=c++17", "-arch=sm_75", "-O0", "-Xptxas", "-O0", "-diag-suppress", "177", plans, core, "-o", PROGRAM]),
    ]
    os.makedirs(BUILD, exist_ok=True)
    for made, sources, command in steps:
        if os.path.exists(made) and os.path.getmtime(made) > max(os.path.getmtime(source) for source in sources):
            continue
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            return f"$ {' '.join(command)}\n{done.stdout.decode(errors='replace')}"
    return ""


def plan(card):
    """What the program prints for a card, and how it ended."""
    folders = [BUILD] + os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    environment = dict(os.environ, LD_LIBRARY_PATH=os.pathsep.join(f for f in folders if f))
    try:
        done = subprocess.run([PROGRAM, os.path.join(HERE, card + ".json")], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=LIMIT)
        return done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace"), f"no end within {LIMIT} s"


def main():
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        print("ok 1 - cuDNN plans # SKIP nvcc is not installed\n1..1")
        return 0
    failure = build(nvcc)
    if failure:
        print("".join(f"# {line}\n" for line in failure.splitlines()) + "not ok 1 - plans.cu compiles\n1..1")
        return 1
    tests, bad = 0, 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        cards = sys.argv[1:] or CARDS
        for card, (text, code) in zip(cards, pool.map(plan, cards)):
            skip = re.match(r"skip: (.*)", text)
            if skip:
                print(f"ok {tests + 1} - cuDNN plans # SKIP {skip[1]}\n1..{tests + 1}")
                return bad > 0
            planned, seen = re.search(r"^1\.\.(\d+)$", text, re.MULTILINE), 0
            for line in text.splitlines():
                result = re.match(r"(not ok|ok) \d+ (.*)", line)
                if result:
                    tests, seen, bad = tests + 1, seen + 1, bad + (result[1] != "ok")
                    line = f"{result[1]} {tests} {result[2]}"
                if not line.startswith("1.."):
                    print(line, flush=True)
            if planned is None or int(planned[1]) != seen or seen == 0:
                tests, bad = tests + 1, bad + 1
                print(f"not ok {tests} - {card}: ended early after {seen} tests ({code})")
    print(f"1..{tests}")
    return bad > 0


sys.exit(main())
