#!/usr/bin/env python3
"""Runs failed tests once more, each alone: python3 tests/gpu/again.py FAILURES --seconds N [--count 10]
[--sanitizer PATH] [--out FILE]

FAILURES is the file that tests/run.py --failures wrote. Each test runs with a synchronisation after every
step. The libraries write logs or, if a path to it is given, the sanitizer's memcheck runs the test. Output
goes to FILE, cut at the front if it is long. One line for each test says how it ended. This only helps the
reader: the tests have failed already, and the status is 0."""
import argparse
import os
import shlex
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import run

LOGS = {"CUDA_LAUNCH_BLOCKING": "1", "GPUNN_PLAIN": "1", "CUBLASLT_LOG_LEVEL": "5", "CUDNN_LOGLEVEL_DBG": "3",
        "CUDNN_LOGDEST_DBG": "stdout"}
KEPT = 100000  # characters of one test's output


def call(command, number, name):
    """The arguments and settings that run one test."""
    if number:
        return shlex.split(command), {"GPUNN_TEST_FROM": number, "GPUNN_TEST_COUNT": "1",
                                      "CMOCKA_MESSAGE_OUTPUT": "TAP"}
    if "tap.py" in command and "." in name:
        return [sys.executable, "-m", "unittest", name], {}
    words = shlex.split(command)
    return [sys.executable] * words[0].endswith(".py") + words, {}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("failures")
    parser.add_argument("--seconds", type=float, required=True, help="for all of it")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--sanitizer", default="")
    parser.add_argument("--out", default=os.devnull)
    options = parser.parse_args()
    end, programs = time.monotonic() + options.seconds, run.Programs(None)
    with open(options.failures) as file:
        tests = [line.split("\t") for line in file.read().splitlines()]
    tests = list(dict.fromkeys((command, number, name if number else name.split(" [")[0].strip())
                               for command, number, name in tests))
    chosen = tests[:options.count]  # a test with failed parts is one test
    way, before, settings, most = "alone", [], LOGS, 20
    if options.sanitizer:
        before = [options.sanitizer, "--tool", "memcheck", "--error-exitcode", "9"]
        way, settings, most = "memcheck", {"GPUNN_PLAIN": "1"}, 40
    with open(options.out, "w") as out:
        for command, number, name in chosen:
            arguments, own = call(command, number, name)
            left = min(most, end - time.monotonic())
            if left < 1 or before and arguments[0] == sys.executable:
                print(f"{way}: {name}: "
                      f"{'cut off, no time is left' if left < 1 else 'not run, it is a test of Python'}",
                      flush=True)
                continue
            environment = {**os.environ, **settings, **own}
            environment.pop("GPUNN_TEST_SECONDS", None)  # it is slower now
            text, code = programs.run(name, before + arguments, environment, left)
            out.write(f"==== {way}: {command} {number} {name}: {code}\n{text[-KEPT:]}\n")
            out.flush()
            verdict = ("passes" if code == 0 else f"cut off at {left:.0f} s" if code == run.CUT_OFF else
                       f"fails with {code}")
            print(f"{way}: {name}: {verdict}", flush=True)
    print(f"{len(chosen)} of {len(tests)} failed tests were run again")


if __name__ == "__main__":
    main()
