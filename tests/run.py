#!/usr/bin/env python3
"""Runs test programs and sums them up: python3 tests/run.py [--jobs N] [--limit SECONDS] PROGRAM...

A program prints TAP lines ("ok 1 - name", "not ok 2 - name", "ok 3 - name # SKIP reason"), as cmocka does when asked; a .py file is run by
Python, `name:program` says what to call it, and arguments may follow in the same word: "tests/x.py one two". Failures are printed in full,
skips with their reasons. The last line is `N passed, N failed, N skipped`; the exit status is 1 when anything failed.
"""
import argparse
import concurrent.futures
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULT = re.compile(r"^(not ok|ok) (\d+)(?: -)? ?(.*)$")


def parse(text, code):
    """(passed, failures, skips) of a program's output; failures and skips as texts."""
    passed, failures, skips, planned, seen = 0, [], [], None, 0
    before, open_failure = [], None
    for line in text.splitlines():
        plan, result = re.match(r"^1\.\.(\d+)", line), RESULT.match(line)
        if plan:
            planned = int(plan[1])
        elif result:
            seen, open_failure = seen + 1, None
            name, skip, reason = result[3].partition("# SKIP")
            if skip:
                said = [b[len("# skip: "):] for b in before if b.startswith("# skip: ")]
                skips.append(f"{name.strip(' -')}{reason}".strip() + (f": {said[-1]}" if said else ""))
            elif result[1] == "ok":
                passed += 1
            else:
                failures.append(name + "".join("\n    " + b for b in before[-60:]))
                open_failure = len(failures) - 1
            before = []
        elif line.startswith("# ") and open_failure is not None and not line.startswith(("# ok", "# not ok", "# skip")):
            failures[open_failure] += "\n    " + line  # cmocka puts the place after the verdict
        elif line:
            before.append(line)
            open_failure = None
    tail = "".join("\n    " + b for b in before[-60:])
    if planned is None:
        failures.append("it printed no plan" + tail)
    elif seen != planned:
        failures.append(f"{planned} tests planned, {seen} reported" + tail)
    if code < 0:
        failures.append(f"it died of {signal.Signals(-code).name}" + tail)
    elif code != 0 and not failures:
        failures.append(f"it exited with {code}" + tail)
    return passed, failures, skips


def run(word, folder, limit):
    name, colon, command = word.partition(":")
    if not colon:
        name, command = word, word
    arguments = shlex.split(command)
    if arguments[0].endswith(".py"):
        arguments.insert(0, sys.executable)
    own = os.path.join(folder, re.sub(r"\W", "_", name))
    os.makedirs(own)
    environment = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", TMPDIR=own, OMP_WAIT_POLICY="passive",
                       ASAN_OPTIONS="detect_leaks=1:abort_on_error=0", UBSAN_OPTIONS="print_stacktrace=1", TSAN_OPTIONS="halt_on_error=1")
    start = time.monotonic()
    try:
        done = subprocess.run(arguments, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=limit)
        text, code = done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as late:
        text, code = (late.stdout or b"").decode(errors="replace") + f"\nit ran longer than {limit:g} s", 1
    except OSError as error:
        text, code = f"cannot run {arguments[0]}: {error.strerror}", 1
    passed, failures, skips = parse(text, code)
    left = os.listdir(own)
    if left and not failures:
        failures.append(f"it left {', '.join(left[:5])} in its temporary folder")
    return name, passed, failures, skips, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=900, help="seconds for one program")
    parser.add_argument("programs", nargs="*")
    options = parser.parse_args()
    passed = failed = skipped = 0
    # Files are synced when saved: in memory that costs nothing.
    folder = tempfile.mkdtemp(prefix="gpunn-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    try:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for name, good, failures, skips, seconds in pool.map(lambda word: run(word, folder, options.limit), options.programs):
                print(f"{name}: {good} passed, {len(failures)} failed, {len(skips)} skipped, {seconds:.1f} s")
                for text in failures:
                    print(f"  FAILED {text}")
                for text in skips:
                    print(f"  skipped {text}")
                sys.stdout.flush()
                passed, failed, skipped = passed + good, failed + len(failures), skipped + len(skips)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not options.programs:
        failed = 1
        print("no test program was named")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
