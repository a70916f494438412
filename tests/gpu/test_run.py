"""tests/run.py with programs that die, hang, lose the device, or leave something behind; and --resume with
test.h itself."""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# A program of test.h with tests 0 to 5. FAULT says what some of them do.
PROGRAM = r'''
import os, signal, sys, time
first, faults = int(os.environ.get("GPUNN_TEST_FROM", 0)), dict(word.split("=") for word in sys.argv[1:])
watched = "GPUNN_TEST_FROM" in os.environ
print(f"1..{6 - first}")
for number in range(first, 6):
    if watched:
        print(f"# test {number} name {number}", flush=True)
    fault = faults.get(str(number))
    if fault == "die":
        os.kill(os.getpid(), signal.SIGABRT)
    if fault == "leave":
        sys.exit(7)
    if fault == "hang":
        time.sleep(60)
    print("not ok" if fault in ("fail", "lose") else "ok", number - first + 1, "- name", number, flush=True)
    if fault == "lose":
        print("Bail out! no device works", flush=True)
        sys.exit(3)
sys.exit(any(fault == "fail" and int(number) >= first for number, fault in faults.items()))
'''


class Run(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.program = self.path("program.py")
        with open(self.program, "w") as file:
            file.write(PROGRAM)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_py(self, *arguments, **environment):
        done = subprocess.run([sys.executable, "tests/run.py", *arguments], cwd=ROOT,
                              env={**os.environ, **environment},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def resumed(self, *faults, limit=20):
        code, said = self.run_py("--resume", "--limit", str(limit), "--failures", self.path("failures"),
                                 "--log", self.path("log"), "p:" + " ".join([self.program, *faults]))
        with open(self.path("failures")) as file:
            failed = [line.split("\t")[1:] for line in file.read().splitlines()]
        os.remove(self.path("failures"))
        return code, said, failed

    def test_skips(self):
        """One line per reason, whichever program skipped."""
        lines = ["1..6", "ok 1 - a # SKIP nvcc is not installed", "# skip: no cuda device",
                 "ok 2 - cuda # SKIP", "ok 3 - b # SKIP nvcc is not installed",
                 *(f"ok {i} - c{i} # SKIP nvcc is not installed" for i in (4, 5, 6))]
        with open(self.program, "w") as file:
            file.write("print(%r)" % "\n".join(lines))
        code, said = self.run_py("--jobs", "1", "p:" + self.program, "q:" + self.program)
        self.assertEqual(code, 0)
        self.assertEqual(said.splitlines()[2:],
                         ["skipped 10, nvcc is not installed: p: a; p: b; p: c4 and 7 more",
                          "skipped 2, no cuda device: p: cuda; q: cuda", "0 passed, 0 failed, 12 skipped"])

    def test_all_good(self):
        self.assertEqual(self.run_py("p:" + self.program)[0], 0)
        code, said, failed = self.resumed()
        self.assertEqual((code, failed), (0, []))
        self.assertIn("6 passed, 0 failed, 0 skipped", said)

    def test_every_test_has_a_verdict(self):
        code, said, failed = self.resumed("1=die", "2=fail", "3=lose", "5=leave")
        self.assertEqual((code, failed),
                         (1, [["1", "name 1"], ["2", "name 2"], ["3", "name 3"], ["5", "name 5"]]))
        self.assertIn("2 passed, 4 failed, 0 skipped", said)
        self.assertIn("FAILED name 1: it died of SIGABRT in this test", said)
        self.assertIn("FAILED name 5: it exited with 7 in this test", said)

    def test_a_program_that_ends_before_its_first_test_is_named(self):
        with open(self.program, "w") as file:
            file.write("import os; os.abort()")
        code, said, failed = self.resumed()
        self.assertEqual((code, failed), (1, [["", "p"]]))
        self.assertIn("FAILED it died of SIGABRT", said)

    def test_without_resume_it_ends_there(self):
        code, said = self.run_py("p:" + self.program + " 1=die")
        self.assertEqual(code, 1)
        self.assertIn("1 passed, 2 failed, 0 skipped", said)
        self.assertIn("6 tests planned, 1 reported", said)

    def test_a_hanging_test_costs_no_more_than_the_limit(self):
        begin = time.monotonic()
        code, said, failed = self.resumed("2=hang", limit=6)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual((code, failed), (1, [["2", "name 2"]]))
        self.assertIn("FAILED name 2: it was cut off in this test", said)
        self.assertIn("it ran longer than", said)
        self.assertIn("no time was left for test 3 and those after it", said)
        with open(self.path("log")) as file:
            self.assertIn("p| ok 2 - name 1\n", file.read())

    def test_seconds_bound_all_programs(self):
        begin = time.monotonic()
        code, said = self.run_py("--jobs", "1", "--seconds", "3", "a:" + self.program + " 2=hang",
                                 "b:" + self.program)
        self.assertLess(time.monotonic() - begin, 15)
        self.assertIn("FAILED no time was left for it", said)
        self.assertEqual(code, 1)

    def test_what_a_program_started_ends_with_it(self):
        with open(self.program, "w") as file:
            file.write("import subprocess, time\n"
                       "child = subprocess.Popen(['sleep', '77'])\n"
                       f"open({self.path('pid')!r}, 'w').write(str(child.pid))\n"
                       "time.sleep(60)\n")
        begin = time.monotonic()
        self.assertEqual(self.run_py("--limit", "2", self.program)[0], 1)
        self.assertLess(time.monotonic() - begin, 12)
        self.assert_ended()

    def assert_ended(self):
        with open(self.path("pid")) as file:
            pid = int(file.read())
        for _ in range(50):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    if file.read().rpartition(")")[2].split()[0] == "Z":
                        return
            except FileNotFoundError:
                return
            time.sleep(0.1)
        self.fail("a child runs on")

    def test_a_signal_ends_the_programs_and_keeps_what_they_said(self):
        with open(self.program, "w") as file:
            file.write("import os, time\n"
                       f"open({self.path('pid')!r}, 'w').write(str(os.getpid()))\n"
                       "print('so far', flush=True)\n"
                       "time.sleep(60)\n")
        process = subprocess.Popen([sys.executable, "tests/run.py", "--jobs", "1", "--log", self.path("log"),
                                    "p:" + self.program, "q:" + self.program], cwd=ROOT,
                                   stdout=subprocess.DEVNULL)
        while not (os.path.exists(self.path("log")) and os.path.getsize(self.path("log"))):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20), 143)
        self.assert_ended()
        with open(self.path("log")) as file:
            self.assertEqual(file.read(), "p| so far\n")


SOURCE = r'''
#include "tests/test.h"
static void good(void **state) { (void)state; }
static void bad(void **state) { (void)state; fail(); }
static void slow(void **state) { (void)state; sleep(60); }
static void dies(void **state) { (void)state; _exit(9); }
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(good), cmocka_unit_test(bad), cmocka_unit_test(slow),
                                       cmocka_unit_test(dies),
                                       test_with_device(good)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
'''


class Header(unittest.TestCase):
    """test.h's side of it, with cmocka if it is installed, and with its substitute."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        with open(os.path.join(cls.folder.name, "program.c"), "w") as file:
            file.write(SOURCE)
        cls.compile("gpunn.o", "-DGPUNN_IMPLEMENTATION", "-c", "gpunn.h")

    @classmethod
    def compile(cls, target, *arguments):
        subprocess.run(["cc", "-std=gnu99", "-O0", "-Wall", "-Wextra", "-Werror", "-DGPUNN_NO_SIMD", "-I.",
                        "-x", "c", *arguments, "-o", os.path.join(cls.folder.name, target)], cwd=ROOT,
                       check=True)

    def check(self, name, *flags):
        folder = self.folder.name
        self.compile(name, os.path.join(folder, "program.c"), "-x", "none", os.path.join(folder, "gpunn.o"),
                     *flags, "-lm", "-lpthread")
        program, failures = os.path.join(folder, name), os.path.join(folder, "failures")
        done = subprocess.run([sys.executable, "tests/run.py", "--resume", "--failures", failures,
                               "p:" + program], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env={**os.environ, "GPUNN_TEST_SECONDS": "1"})
        self.assertIn("2 passed, 3 failed, 0 skipped", done.stdout)
        self.assertIn("FAILED slow: it died of SIGALRM in this test", done.stdout)
        with open(failures) as file:
            failed = [line.split("\t")[1:] for line in file.read().splitlines()]
        os.remove(failures)
        self.assertEqual(failed, [["1", "bad"], ["2", "slow"], ["3", "dies"]])
        one = subprocess.run([program], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "CMOCKA_MESSAGE_OUTPUT": "TAP", "GPUNN_TEST_FROM": "1",
                                  "GPUNN_TEST_COUNT": "1"})
        self.assertEqual((one.returncode, one.stdout.count("# test ")), (1, 1))
        absent = subprocess.run([program], stdout=subprocess.PIPE, text=True,
                                env={**os.environ, "GPUNN_TEST_DEVICE": "cuda"})
        self.assertEqual(absent.returncode, 1)
        self.assertIn("not ok 1 - there is no cuda device", absent.stdout)

    def test_a_device_that_is_lost(self):
        program = os.path.join(ROOT, "build", "emulator", "lost")
        if not os.path.exists(program):
            self.skipTest("ninja build/emulator/lost was not called")
        plain, resumed = (subprocess.run([sys.executable, "tests/run.py", *way, program], cwd=ROOT,
                                         stdout=subprocess.PIPE, text=True,
                                         env={**os.environ, "GPUNN_TEST_DEVICE": "emulator"}).stdout
                          for way in ((), ("--resume",)))
        self.assertIn("1 passed, 4 failed, 0 skipped", plain)
        self.assertIn("2 passed, 3 failed, 0 skipped", resumed)
        watched = subprocess.run([program], stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, "GPUNN_TEST_DEVICE": "emulator",
                                      "GPUNN_TEST_FROM": "0"}).stdout
        self.assertRegex(watched, "Bail out! after a failed test no device works in this process: "
                         ".*cudaErrorIllegalAddress")

    def test_stand_in(self):
        self.check("stand_in", "-Itests/gpu")

    def test_cmocka(self):
        if subprocess.run(["cc", "-x", "c", "-fsyntax-only", "-"], input="".join(
                f"#include <{name}.h>\n" for name in ("stdarg", "stddef", "stdint", "setjmp", "cmocka")),
                          text=True, stderr=subprocess.DEVNULL).returncode:
            self.skipTest("cmocka is not installed")
        self.check("cmocka", "-lcmocka")


if __name__ == "__main__":
    unittest.main()
