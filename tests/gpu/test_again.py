"""tests/gpu/again.py: runs each failed test alone, with the libraries' logs and under a checker, within its
time."""
import os
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = """#!/bin/sh
echo "$GPUNN_TEST_FROM $GPUNN_TEST_COUNT blocking=$CUDA_LAUNCH_BLOCKING plain=$GPUNN_PLAIN"
case $GPUNN_TEST_FROM in
3) exit 1 ;;
4) sleep 60 ;;
esac
"""


class Again(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.program, self.checker = (self.write("program", PROGRAM),
                                      self.write("checker", '#!/bin/sh\nshift 4; "$@"; exit 9\n'))

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path

    def again(self, failures, *arguments):
        done = subprocess.run([sys.executable, "tests/gpu/again.py", self.write("failures", failures),
                               "--out", self.folder + "/out", *arguments],
                              cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        with open(self.folder + "/out") as file:
            return done.stdout, file.read()

    def test_alone_and_under_the_checker(self):
        failures = f"{self.program}\t2\tcuda: good\n{self.program}\t3\tcuda: bad\n"
        said, log = self.again(failures, "--seconds", "20")
        self.assertEqual(said.splitlines(), ["alone: cuda: good: passes", "alone: cuda: bad: fails with 1",
                                             "2 of 2 failed tests were run again"])
        self.assertIn("3 1 blocking=1 plain=1", log)
        said, log = self.again(failures, "--seconds", "20", "--sanitizer", self.checker)
        self.assertEqual(said.splitlines(),
                         ["memcheck: cuda: good: fails with 9", "memcheck: cuda: bad: fails with 9",
                          "2 of 2 failed tests were run again"])
        self.assertIn("3 1 blocking= plain=1", log)

    def test_no_more_than_asked_for(self):
        said, _ = self.again("".join(f"{self.program}\t{i}\tcuda: {i}\n" for i in (1, 2, 5)), "--seconds",
                             "20", "--count", "2")
        self.assertIn("2 of 3 failed tests were run again", said)

    def test_within_the_time(self):
        begin = time.monotonic()
        said, log = self.again(f"{self.program}\t4\thangs\n{self.program}\t2\tgood\n", "--seconds", "2")
        self.assertLess(time.monotonic() - begin, 12)
        self.assertRegex(said, r"alone: hangs: cut off at \d s\nalone: good: cut off, no time is left")
        self.assertIn("4 1 blocking=1", log)

    def test_a_test_of_python(self):
        said, log = self.again("tests/tap.py tests/gpu test_again\t\ttests.gpu.no_such.Test.test [part 1]\n"
                               "tests/tap.py tests/gpu test_again\t\ttests.gpu.no_such.Test.test [part 2]\n",
                               "--seconds", "20")
        self.assertIn("1 of 1 failed tests", said)
        self.assertIn("alone: tests.gpu.no_such.Test.test: fails with 1", said)
        self.assertIn("no_such", log)


if __name__ == "__main__":
    unittest.main()
