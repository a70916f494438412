#!/usr/bin/env python3
"""Runs the unittest files of a folder and prints TAP lines, for tests/run.py: python3 tests/tap.py
tests/generator [test_ir ...]"""
import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Result(unittest.TestResult):
    number = 0

    def line(self, test, good, text="", skip=None):
        self.number += 1
        for part in text.splitlines():
            print("# " + part)
        print(f"{'ok' if good else 'not ok'} {self.number} - {test.id()}" +
              (f" # SKIP {skip}" if skip else ""), flush=True)

    def addSuccess(self, test):
        self.line(test, True)

    def addSkip(self, test, reason):
        self.line(test, True, skip=reason.replace("\n", " "))

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.line(test, False, self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        self.line(test, False, self.errors[-1][1])

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error:
            self.line(subtest, False, (self.failures + self.errors)[-1][1])


def main():
    os.chdir(ROOT)
    sys.path.insert(0, ROOT)
    result = Result()
    for name in sys.argv[2:] or ["test_*"]:
        unittest.defaultTestLoader.discover(sys.argv[1], name + ".py", ROOT).run(result)
    print(f"1..{result.number}")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
