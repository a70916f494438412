#!/usr/bin/env python3
"""Runs test programs that are linked with build/coverage/parts/gpunn.o, and prints what of gpunn.h they ran:

    python3 tests/coverage.py [ARGUMENTS OF tests/run.py]     without programs: of those that ran before

A table has lines, branches, ordinary branches and functions by part. Ordinary are branches outside of
templates (*.inc) and of functions that macros make. Lists follow: functions that no test calls, and sentences
of errors that no test sees. build/coverage/branches.txt lists the ordinary branches that no test takes.

The exit status is 1 if a test fails, or if tests/uncovered.txt is not the list of the functions that no test
calls. Functions that this processor's instruction set leaves out are not compared.
"""
import collections
import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD, PARTS, REASONS = "build/coverage", "templates/gpunn/", "tests/uncovered.txt"
# a call that sets an error; a definition begins its line
CALL = re.compile(r"""(?<=[ (])(?:gpunn__\w*fail\w*|GPUNN__FAIL_NULL)\((?:"(?:\\.|[^"\\])*"|[^";{])*;""")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class Coverage:
    """Sums of gcov's counts over all objects. A line or a branch of a template counts once for each function
    that it is part of.

    functions: {(part, name): [calls, first line]}. lines: {(part, line, function): [runs, all of it ran]}.
    branches: {(part, line, function): [count of each]}."""

    def __init__(self):
        self.functions, self.lines, self.branches = {}, {}, collections.defaultdict(list)
        self.source = {}

    def add(self, part, file):
        for one in file["functions"]:
            known = self.functions.setdefault((part, one["name"]), [0, one["start_line"]])
            known[0] += one["execution_count"]
        for one in file["lines"]:
            place = part, one["line_number"], one.get("function_name", "")
            known = self.lines.setdefault(place, [0, False])
            known[0] += one["count"]
            known[1] |= not one["unexecuted_block"]
            counts = [branch["count"] for branch in one["branches"]]
            before = self.branches[place]
            before += [0] * (len(counts) - len(before))
            for i, count in enumerate(counts):
                before[i] += count

    def text(self, part, line):
        """A line of a part's source."""
        if part not in self.source:
            self.source[part] = read(PARTS + part).split("\n")
        return self.source[part][line - 1]

    def is_ordinary(self, part, function):
        """Whether a function is written out, and neither of a template nor made by a macro."""
        first = self.functions.get((part, function), [0, 0])[1]
        return first > 0 and not part.endswith(".inc") and any(
            re.search(rf"\b{function}\b", self.text(part, line)) for line in (first, first + 1))


def measure():
    objects = sorted(glob.glob(BUILD + "/**/*.gcno", root_dir=ROOT, recursive=True))
    command = ["gcov", "--json-format", "--branch-probabilities", "--stdout"] + objects
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    coverage = Coverage()
    for line in output.splitlines():
        for file in json.loads(line)["files"]:
            path = os.path.relpath(os.path.join(ROOT, file["file"]), ROOT)
            if path.startswith(PARTS):
                coverage.add(path[len(PARTS):], file)
    return coverage


def share(ran, all_of_them):
    return f"{100 * ran / all_of_them:6.1f} %  {ran:6} of {all_of_them:6}" if all_of_them else ""


def table(coverage):
    """Rows of (part, 4 pairs: those that ran, all) and the total."""
    rows = collections.defaultdict(lambda: [[0, 0] for _ in range(4)])

    def count(part, column, ran, number):
        for name in part, "all":
            rows[name][column][0] += ran
            rows[name][column][1] += number

    for (part, _, _), (runs, _) in coverage.lines.items():
        count(part, 0, runs > 0, 1)
    for (part, _, function), counts in coverage.branches.items():
        taken = sum(1 for one in counts if one)
        count(part, 1, taken, len(counts))
        if coverage.is_ordinary(part, function):
            count(part, 2, taken, len(counts))
    for (part, _), (calls, _) in coverage.functions.items():
        count(part, 3, calls > 0, 1)
    return sorted((name, columns) for name, columns in rows.items() if name != "all") + [("all", rows["all"])]


def print_table(coverage):
    titles = "lines", "branches", "ordinary branches", "functions"
    print(f"{'part':30}" + "".join(f"{title:>26}" for title in titles))
    for name, columns in table(coverage):
        print(f"{name:30}" + "".join(f"{share(*one):>26}" for one in columns))


def uncalled(coverage):
    """{name: part} of the functions that no test calls."""
    return {name: part for (part, name), (calls, _) in sorted(coverage.functions.items()) if calls == 0}


def listed():
    """The names in tests/uncovered.txt, from lines of `name, name?: reason`."""
    lines = [line for line in read(REASONS).splitlines() if line and not line.startswith("#")]
    return [name for line in lines
            for name in re.fullmatch(r"(\w+\??(?:, \w+\??)*): .+", line)[1].split(", ")]


def differences(coverage):
    """What is wrong with tests/uncovered.txt."""
    names, true = listed(), uncalled(coverage)
    known = {name.rstrip("?") for name in names}
    compiled = {name for _, name in coverage.functions}
    for name, part in true.items():
        if name not in known:
            yield f"{PARTS}{part}: no test calls {name}, and {REASONS} gives no reason"
    for name in names:
        if name in compiled and name not in true:
            yield f"{REASONS}: a test calls {name}"


def sentences(coverage):
    """(place, text, whether tests ran all of it) of each call that sets an error. A call with a choice of
    words, as in `x ? "a" : "b"`, has run if all of the choice has."""
    ran = {}
    for (part, line, _), (_, whole) in coverage.lines.items():
        ran[part, line] = ran.get((part, line), False) or whole
    for part in sorted({part for part, _ in ran}):
        text = read(PARTS + part)
        for call in CALL.finditer(text):
            first = text.count("\n", 0, call.start()) + 1
            lines = [(part, first + i) for i in range(call[0].count("\n") + 1)]
            compiled = [line for line in lines if line in ran]
            if compiled:
                yield (f"{PARTS}{part}:{first}", " ".join(call[0].split()),
                       all(ran[line] for line in compiled))


def untaken(coverage):
    """Places and texts of the ordinary branches that no test takes."""
    for (part, line, function), counts in sorted(coverage.branches.items()):
        missing = counts.count(0)
        if missing and coverage.is_ordinary(part, function):
            yield f"{PARTS}{part}:{line}: {missing} of {len(counts)}: {coverage.text(part, line).strip()}"


def main():
    failed = 0
    if sys.argv[1:]:
        for path in glob.glob(os.path.join(ROOT, BUILD, "**/*.gcda"), recursive=True):
            os.remove(path)
        failed = subprocess.run([sys.executable, "tests/run.py"] + sys.argv[1:], cwd=ROOT).returncode
    coverage = measure()
    print_table(coverage)
    print("\nFunctions that no test calls:")
    print("\n".join(f"{PARTS}{part}: {name}" for name, part in uncalled(coverage).items()))
    calls = list(sentences(coverage))
    unseen = [f"{place}: {text}" for place, text, ran in calls if not ran]
    print(f"\nSentences of errors that no test sees, {len(unseen)} of {len(calls)}:", *unseen, sep="\n")
    with open(os.path.join(ROOT, BUILD, "branches.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(untaken(coverage)) + "\n")
    print(f"\n{BUILD}/branches.txt lists the ordinary branches that no test takes.")
    wrong = list(differences(coverage))
    print("\n".join(wrong))
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
