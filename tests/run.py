#!/usr/bin/env python3
"""Runs test programs and sums them up: python3 tests/run.py [--jobs N] [--limit SECONDS] PROGRAM...

Each program's line is printed when it ends. A program prints TAP lines ("ok 1 - name", "not ok 2 - name", "ok
3 - name # SKIP reason"), as cmocka does on request. A .py file is run by Python. `name:program` sets the
program's name, and arguments may follow in the same word: "tests/x.py one two". Failures are printed in full,
skips at the end with one line per reason. The last line is `N passed, N failed, N skipped`. The exit status
is 1 if anything failed.

--seconds bounds all programs together; what has no time left is a failure. --log FILE gets every line as it
is printed, after its program's name. --resume restarts a program of test.h that ends before its last test,
after the test in which it ended, so that every test has a verdict. --failures FILE gets a line `program, tab,
number, tab, name` for each test that failed. The number is missing if it is no program of test.h, or ended
before its first test."""
import argparse
import concurrent.futures
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULT = re.compile(r"^(not ok|ok)\b(?: \d+)?(?: -)? ?(.*)$")  # the number may be left out


CUT_OFF = 124  # the status of a program that ran too long
ROOM = 1 << 30  # bytes for all programs' files
BEGINS = re.compile(r"^# test (\d+) (.*)$")  # test.h's line before a test, if requested


class Verdicts:
    """A program's verdicts. failures: texts. skips: (test, reason). failed: (number or None, name) of failed
    tests. next: where to resume if the program ended before its last test."""

    def __init__(self, text, code):
        self.passed, self.failures, self.skips, self.failed, self.next = 0, [], [], [], None
        planned, seen, before, behind, begun, running, bailed = None, 0, [], False, None, None, False
        for line in text.splitlines():
            plan, result, begins = re.match(r"^1\.\.(\d+)", line), RESULT.match(line), BEGINS.match(line)
            if plan:
                planned = int(plan[1])
            elif begins:
                begun, running = int(begins[1]), (int(begins[1]), begins[2])
                before, behind = [], False
            elif result:
                seen, behind = seen + 1, False
                name, skip, reason = result[2].partition("# SKIP")
                if skip:
                    said = [b[len("# skip: "):] for b in before if b.startswith("# skip: ")]
                    self.skips.append((name.strip(" -"),
                                       said[-1] if said else reason.strip() or "it did not say why"))
                elif result[1] == "ok":
                    self.passed += 1
                else:
                    self.fail(name + "".join("\n    " + b for b in before[-60:]),
                              (begun if running else None, name))
                    behind = True
                before, running = [], None
            elif line.startswith("# ") and behind and not line.startswith(("# ok", "# not ok", "# skip")):
                self.failures[-1] += "\n    " + line  # cmocka prints the place after the verdict
            elif line:
                bailed = bailed or begun is not None and line.startswith("Bail out!")
                before.append(line)
                behind = False
        tail = "".join("\n    " + b for b in before[-60:])
        end = (f"it died of {signal.Signals(-code).name}" if code < 0 else
               f"it exited with {code}" if code else None)
        if code == CUT_OFF:
            end = "it was cut off"
        if running:  # the program ended, or was killed, in this test
            self.fail(f"{running[1]}: {end or 'it ended'} in this test" + tail, running)
            self.next = running[0] + 1
        elif bailed:  # for its message; the test that caused it has its verdict
            self.next = begun + 1
        else:
            if planned is None:
                self.fail("it printed no plan" + tail)
            elif seen != planned:
                self.fail(f"{planned} tests planned, {seen} reported" + tail)
            if end and (code < 0 or not self.failures):
                self.fail(end + tail)

    def fail(self, text, test=None):
        self.failures.append(text)
        if test:
            self.failed.append(test)

    def add(self, other):
        self.passed += other.passed
        self.failures += other.failures
        self.skips += other.skips
        self.failed += other.failed


class Programs:
    """The running programs. They have sessions of their own, so their children end with them."""

    def __init__(self, log):
        self.running, self.lock, self.log, self.ended = set(), threading.Lock(), log, False

    def stop(self, process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def stop_all(self, number, frame):
        """Stops all programs on a signal."""
        self.ended = True
        for process in list(self.running):
            self.stop(process)
        sys.exit(128 + number)

    def run(self, name, arguments, environment, limit):
        """(output, exit status or CUT_OFF). It does not wait for a process that cannot be killed."""
        lines = []
        if self.ended:
            return "it was not begun", 1

        def read(pipe):
            for line in pipe:
                lines.append(line)
                if self.log:
                    with self.lock:
                        self.log.write(f"{name}| {line}" if line.endswith("\n") else f"{name}| {line}\n")
                        self.log.flush()

        try:
            process = subprocess.Popen(arguments, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       errors="replace", start_new_session=True)
        except OSError as error:
            return f"cannot run {arguments[0]}: {error.strerror}", 1
        self.running.add(process)
        reader = threading.Thread(target=read, args=(process.stdout,), daemon=True)
        reader.start()
        late = ""
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            late, code = f"\nit ran longer than {limit:.0f} s", CUT_OFF
        self.stop(process)  # and its children
        reader.join(5)
        if late:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                late += " and cannot be killed"
        self.running.discard(process)
        return "".join(list(lines)) + late, code


def reasons(skips):
    """A line for each reason, of (program, test, reason)."""
    tests = {}
    for program, test, reason in skips:
        tests.setdefault(reason, []).append(f"{program}: {test}" if test else program)
    for reason, named in tests.items():
        more = f" and {len(named) - 3} more" if len(named) > 4 else ""
        yield f"skipped {len(named)}, {reason}: {'; '.join(named[:3] if more else named)}{more}"


def run(word, folder, programs, end, options):
    """Name, command and verdicts of a program, and its time in seconds."""
    name, colon, command = word.partition(":")
    if not colon:
        name, command = word, word
    arguments = shlex.split(command)
    if arguments[0].endswith(".py"):
        arguments.insert(0, sys.executable)
    own = os.path.join(folder, re.sub(r"\W", "_", name))
    os.makedirs(own)
    environment = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", TMPDIR=own,
                       ASAN_OPTIONS="detect_leaks=1:abort_on_error=0", UBSAN_OPTIONS="print_stacktrace=1",
                       TSAN_OPTIONS="halt_on_error=1")
    start = time.monotonic()
    last = min(start + options.limit, end)
    verdicts, first = Verdicts("1..0", 0), 0
    while first is not None:
        left = last - time.monotonic()
        if left < 1:
            verdicts.fail(f"no time was left for test {first} and those after it" if first else
                          "no time was left for it")
            break
        if options.resume:
            environment["GPUNN_TEST_FROM"] = str(first)
        one = Verdicts(*programs.run(name, arguments, environment, left))
        verdicts.add(one)
        first = one.next
    left = os.listdir(own)
    if left and not verdicts.failures:
        verdicts.fail(f"it left {', '.join(left[:5])} in its temporary folder")
    return name, command, verdicts, time.monotonic() - start


def temporary_folder():
    """A new folder for the programs' files. It is in memory, where syncs cost nothing, if that has room."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage("/dev/shm").free >= ROOM:
            return tempfile.mkdtemp(prefix="gpunn-", dir="/dev/shm")
    return tempfile.mkdtemp(prefix="gpunn-")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1,
                        help="at once; one more than processors: some wait")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for one program: it hangs")
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--seconds", type=float, default=86400, help="for all programs together")
    parser.add_argument("--log", type=argparse.FileType("a"), help="receives every line as it is printed")
    parser.add_argument("--failures", type=argparse.FileType("a"),
                        help="receives the failed tests' programs, numbers and names")
    parser.add_argument("--resume", action="store_true",
                        help="restarts a program that ended in a test, after that test")
    options = parser.parse_args()
    passed = failed = 0
    skipped = []
    start = time.monotonic()
    end = start + options.seconds
    programs = Programs(options.log)
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, programs.stop_all)
    folder = temporary_folder()
    try:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            begun = [pool.submit(run, word, folder, programs, end, options) for word in options.programs]
            for count, one in enumerate(concurrent.futures.as_completed(begun), 1):
                name, command, verdicts, seconds = one.result()
                failures, skips = verdicts.failures, verdicts.skips
                left = (time.monotonic() - start) / count * (len(begun) - count) / 60
                print(f"{name}: {verdicts.passed} passed, {len(failures)} failed, {len(skips)} skipped, "
                      f"{seconds:.1f} s ({count} of {len(begun)}, about {left:.0f} min left)")
                for text in failures:
                    print(f"  FAILED {text}")
                sys.stdout.flush()
                # none: it ended before its first test
                failed_tests = verdicts.failed or [(None, name)] * bool(failures)
                for test, title in failed_tests if options.failures else ():
                    print(command, "" if test is None else test, title, sep="\t", file=options.failures,
                          flush=True)
                passed, failed = passed + verdicts.passed, failed + len(failures)
                skipped += [(name, *skip) for skip in skips]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not options.programs:
        failed = 1
        print("no test program was named")
    for line in reasons(skipped):
        print(line)
    print(f"{passed} passed, {failed} failed, {len(skipped)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
