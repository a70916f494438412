"""tests/gpu/stages.sh with stages that fail, hang, cannot be ended or print the wrong thing; and the plans of
run.sh's calls."""
import os
import re
import shlex
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STUBBORN = "trap '' TERM; echo before; for i in $(seq 300); do sleep 0.1; done"


class Stages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = folder.name

    def run_stages(self, seconds, plan, *lines):
        text = "\n".join(["set -u", f"seconds={seconds} out={self.out} log={self.out}/gpu.log", ': >"$log"',
                          ': >"$out/summary"', ". tests/gpu/stages.sh", f"plan=({plan})", *lines, "finish"])
        begin = time.monotonic()
        done = subprocess.run(["bash", "-c", text], cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        with open(os.path.join(self.out, "gpu.log")) as file:
            return done.returncode, done.stdout, file.read(), time.monotonic() - begin

    def test_the_sum_of_it(self):
        code, said, log, _ = self.run_stages(60, "one 10 two 10 three 10", "stage one echo first",
                                             "stage two sh -c 'echo second; exit 3'",
                                             "stage three echo third", "skip 'four: no time'")
        self.assertEqual(code, 1)
        self.assertIn("passed   one", said)
        self.assertIn("FAILED   two (3)", said)
        self.assertIn("2 stages passed, 1 failed, 0 cut off, 1 skipped", said)
        for word in "first", "second", "third", "skipped  four: no time":
            self.assertIn(word, said)
            self.assertIn(word, log)
        self.assertEqual(self.run_stages(60, "one 10", "stage one true")[0], 0)

    def test_a_hanging_stage_leaves_the_others_their_share(self):
        code, said, log, took = self.run_stages(
            60, "one 8 two 8 three 44", "stage one sh -c 'echo begun; sleep 100'",
            "stage two bash -c " + shlex.quote(STUBBORN), "stage three echo third")
        self.assertEqual(code, 1)
        self.assertLess(took, 60)
        self.assertIn("begun", log)
        self.assertIn("before", log)
        self.assertIn("CUT OFF  one (its limit of", said)
        self.assertIn("CUT OFF  two (its limit of", said)
        self.assertIn("passed   three", said)
        self.assertIn("1 stages passed, 0 failed, 2 cut off, 0 skipped", said)

    def test_the_summary_is_written_as_it_comes(self):
        _, said, _, _ = self.run_stages(60, "one 10 two 10", "stage one true",
                                        "cat $out/summary; echo so far", "stage two false")
        self.assertRegex(said, r"passed   one \(\d s\)\nso far\n")
        with open(self.out + "/summary") as file:
            self.assertIn("FAILED   two (1)\n1 stages passed, 1 failed, 0 cut off, 0 skipped", file.read())

    def test_less_time_than_planned(self):
        code, said, _, took = self.run_stages(30, "one 60 two 60", "stage one sleep 60", "stage two true")
        self.assertLess(took, 25)
        self.assertIn("CUT OFF  one (its limit of", said)
        self.assertIn("passed   two", said)

    def test_with_less_time_than_planned_each_stage_has_some(self):
        code, said, _, _ = self.run_stages(100, "first 5 two 200", "stage first true", "stage two true")
        self.assertEqual(code, 0, said)

    def test_what_cannot_be_ended_is_left_behind(self):
        # A process that no signal reaches, simulated by a timeout that waits for ever.
        tool = os.path.join(self.out, "timeout")
        with open(tool, "w") as file:
            file.write("#!/bin/sh\nexec sleep 30\n")
        os.chmod(tool, 0o755)
        code, said, _, took = self.run_stages(10, "one 10", f"PATH={self.out}:$PATH", "stage one true")
        self.assertLess(took, 15)
        self.assertIn("CUT OFF  one (its limit of", said)
        self.assertEqual(code, 1)

    def test_output_is_in_the_log_while_it_is_made(self):
        text = (f"seconds=60 out={self.out} log={self.out}/gpu.log; . tests/gpu/stages.sh; plan=(one 60); "
                f"stage one sh -c 'echo begun; sleep 60'")
        process = subprocess.Popen(["bash", "-c", text], cwd=ROOT, stdout=subprocess.DEVNULL,
                                   start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(os.killpg, process.pid, 9)
        for _ in range(100):
            time.sleep(0.1)
            if os.path.exists(self.out + "/gpu.log") and "\nbegun\n" in open(self.out + "/gpu.log").read():
                return
        self.fail("nothing is in the log")

    def test_no_false_green(self):
        code, said, _, _ = self.run_stages(
            60, "one 10 two 10 three 10", "stage one --needs '^on the GPU' echo on the CPU",
            "stage two --never 'on the CPU' echo on the CPU",
            "stage three --needs '^on the GPU' --never 'CPU' echo on the GPU")
        self.assertEqual(code, 1)
        self.assertIn("FAILED   one (it does not say: ^on the GPU)", said)
        self.assertIn("FAILED   two (it says: on the CPU)", said)
        self.assertIn("passed   three", said)

    def test_seconds_are_handed_on(self):
        code, said, log, _ = self.run_stages(60, "one 20 two 20", "stage one echo for @seconds")
        limit = int(log.partition("for at most ")[2].split()[0])
        self.assertIn(f"for {limit - 4}\n", log)
        self.assertLessEqual(limit, 34)

    def test_a_large_log_loses_its_middle(self):
        self.run_stages(60, "one 50",
                        "stage one sh -c 'echo first; head -c 20000000 /dev/zero; echo; echo last'")
        self.assertLess(os.path.getsize(self.out + "/gpu.log"), 16 << 20)
        with open(self.out + "/gpu.log", errors="replace") as file:
            text = file.read()
        self.assertIn("first", text)
        self.assertIn("last", text)


class Plans(unittest.TestCase):
    def setUp(self):
        done = subprocess.run(["tests/gpu/run.sh", "--plan"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                              check=True)
        self.shares = [line.split(" ", 2) for line in done.stdout.splitlines()]

    def test_the_shares_add_up(self):
        """Three calls of 780 s, and their ends, leave more than a minute of fifteen."""
        sums = {}
        for call, share, _ in self.shares:
            sums[call] = sums.get(call, 0) + int(share)
        most = {"truth": 240, "bench": 420, "check": 120, "building": 240}
        self.assertEqual({call: sums[call] for call in sums if sums[call] > most[call]}, {})

    def test_every_stage_is_planned(self):
        with open(os.path.join(ROOT, "tests", "gpu", "run.sh")) as file:
            script = file.read()
        names = {name for _, _, name in self.shares}
        stages = ({quoted or word
                   for quoted, word in re.findall(r'^ *(?:stage|rows) (?:"([^"$]+)"|(\w+))', script, re.M)} -
                  {"archive"})
        self.assertEqual(stages ^ {name for name in names
                                   if not name.startswith(("memcheck golden", "racecheck "))}, set())


if __name__ == "__main__":
    unittest.main()
