"""tests/bench/run.py: its output and its order, with programs that only pretend to compute."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

from tests.bench import run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in run.programs(run.PEERS):
            self.program(name, 'echo $1 $2 2.0 1.0 3.0')

    def program(self, name, text):
        """Shell text; its arguments are those of bench.c's programs, which print NAME THREADS median minimum
        MiB."""
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + text + "\n")
        os.chmod(path, 0o755)
        return path

    def command(self, *arguments):
        return [sys.executable, "tests/bench/run.py", os.path.join(self.folder, "bench"), "--built",
                *arguments]

    def run_it(self, *arguments):
        return subprocess.run(self.command(*arguments), cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)

    def rows(self, text):
        """Cells of each row."""
        return [[cell.strip() for cell in line.strip("|").split("|")]
                for line in text.splitlines() if line.startswith("| ")][1:]

    def test_without_torch(self):
        """gpunn is timed alone, and one line says so."""
        python = self.program("python", "exit 1")
        done = self.run_it("--python", python, "--rounds", "2", "mlp20", "adam")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout,
                         r"\A.*torch not found: gpunn alone \(apt-get install python3-torch.*\n\n")
        self.assertEqual([row[:4] for row in self.rows(done.stdout)],
                         [["mlp20", "1", "2", "-"], ["mlp20", "2", "2", "-"],
                          ["adam", "1", "2", "adam_loop"], ["adam", "2", "2", "adam_loop"]])

    def test_with_torch(self):
        python = self.program("python", 'if [ "$1" = -c ]; then echo 9.9; else echo $2 $3 8.0 1.0 700; fi')
        done = self.run_it("--python", python, "--rounds", "2", "--threads", "1", "mlp20")
        self.assertIn("torch 9.9", done.stdout)
        self.assertEqual(self.rows(done.stdout),
                         [["mlp20", "1", "2", "torch mlp20", "8", "4.00", "3", "700", "2"]])

    def test_settings(self):
        """Without AVX-512 no peer is told to use it: it would be an illegal instruction."""
        self.assertEqual(run.settings(2, "flags : fma avx2"),
                         {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"})
        self.assertEqual(run.settings(1, "flags : avx2 avx512f")["ATEN_CPU_CAPABILITY"], "avx512")
        python = self.program("python",
                              '[ "$1" = -c ] && echo 9.9 || echo $2 $3 ${#ATEN_CPU_CAPABILITY} 1.0 700')
        done = self.run_it("--python", python, "--rounds", "1", "--threads", "1", "mlp20")
        self.assertEqual(self.rows(done.stdout)[0][4], "6" if "avx512f" in run.cpu_info() else "0")

    def test_faults(self):
        """A sentence each."""
        for arguments, sentence in ((["--python", "/no/python"], "there is no /no/python; name an "
                                     "interpreter with torch by --python, or leave that out"),
                                    (["mlp"], "there is no workload mlp, but sgemm1024")):
            done = self.run_it(*arguments)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, rf"\A{sentence}.*\n\Z")
        self.program("fused", "echo it broke >&2; exit 3")
        done = self.run_it("--python", self.program("python", "exit 1"), "--threads", "1", "--rounds", "1",
                           "fused", "mlp20")
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertIn("/fused generated: it broke\n", done.stdout)
        self.assertEqual([row[0] for row in self.rows(done.stdout)], ["mlp20"])

    def test_peer_that_cannot_run(self):
        """Its row says why."""
        self.program("fused", '[ $1 != hand ] || { echo fused: hand needs AVX-512 >&2; exit 2; }; '
                     'echo $1 $2 2.0 1.0 3.0')
        done = self.run_it("--python", self.program("python", "exit 1"), "--threads", "1", "--rounds", "1",
                           "fused")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual([row[3:6] for row in self.rows(done.stdout)],
                         [["fused hand", "fused: hand needs AVX-512", "-"], ["fused plain", "2", "1.00"]])

    def test_rows_come_at_once(self):
        self.program("bench", f'[ $1 = mlp20 ] || while [ ! -e {self.folder}/go ]; do sleep 0.05; done; echo '
                     f'$1 $2 2.0 1.0 3.0')
        process = subprocess.Popen(self.command("--python", self.program("python", "exit 1"), "--threads",
                                                "1", "mlp20", "lenet4"), cwd=ROOT,
                                   stdout=subprocess.PIPE, text=True)
        lines = [process.stdout.readline() for _ in range(5)]
        self.assertRegex(lines[-1], r"^\| mlp20 ")
        self.program("go", "")
        self.assertRegex(process.communicate()[0], r"\A\| lenet4 ")

    def test_time_is_bounded(self):
        """At least one round; more only while the minutes last."""
        self.program("bench", 'sleep 0.1; echo $1 $2 2.0 1.0 3.0')
        for minutes, most in ("0", 1), ("0.02", 24):
            done = self.run_it("--python", self.program("python", "exit 1"), "--rounds", "100", "--minutes",
                               minutes, "mlp20", "lenet4")
            for row in self.rows(done.stdout):
                self.assertLessEqual(int(row[-1]), most, done.stdout)

    def test_ninja_builds_what_is_timed(self):
        with open(os.path.join(ROOT, "build.ninja")) as file:
            line = re.search(r"^build bench: run \| (.*)$", file.read(), re.M)[1]
        self.assertEqual(sorted(line.split()), ["build/" + name for name in run.programs(run.PEERS)])


class Programs(unittest.TestCase):
    """The programs themselves run, for a moment each. tests/compile/check.py compiles and runs fused."""

    def run_it(self, *command):
        """A program of build/."""
        program = os.path.join("build", command[0])
        if not os.path.exists(os.path.join(ROOT, program)):
            self.skipTest(f"ninja {program} builds it")
        done = subprocess.run([program, *command[1:]], cwd=ROOT, env=dict(os.environ, BENCH_BRIEF="1"),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}")
        return done.stdout

    def test_rows_of_the_table(self):
        rows = [run.OWN.get(name, ["bench", name]) for name in run.PEERS]
        rows += [peer[1:].split() for peers in run.PEERS.values() for peer in peers if peer[0] == "="]
        for program, *name in [row for row in rows if row[0] != "fused"]:
            self.assertRegex(self.run_it(program, *(name or [program]), "2"),
                             rf"\A{(name or [program])[0]} 2 [\d.]+ [\d.]+ [\d.]+\n\Z")

    def test_rows_of_its_own(self):
        for name in [net + way for net in ("resnet18", "gpt2") for way in ("", "_recompute", "_within70")]:
            self.assertIn(name, self.run_it("bench", name, "2"))

    def test_plans(self):
        self.assertIn("one of 63 sizes", self.run_it("plans"))

    def test_load(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn("gpunn_load as BF16", self.run_it("load", os.path.join(folder, "file"), "1"))

    def test_initial(self):
        self.assertRegex(self.run_it("initial", "1"), r"(?s)\Anormal .* ratio .*\nuniform .* ratio ")


if __name__ == "__main__":
    unittest.main()
