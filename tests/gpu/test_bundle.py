"""tests/gpu/bundle.py: archives that fit and that do not, sizes, programs that do not load; and
tests/gpu/run.sh --prebuilt with programs that fail."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "gpu"))
import bundle
import test_run
import test_toolkit

STAMP = {"commit": "abc1234", "arch": "sm_90", "nvcc": "none",
         "sources": {"gpunn.h": bundle.sha256("gpunn.h")}, "hash": "0"}


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.built, self.unpacked, self.archive = self.path("built"), self.path("unpacked"), self.path(
            "archive.tar.xz")
        os.mkdir(self.built)
        os.mkdir(self.unpacked)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, path, text):
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def program(self, name, text="echo $0"):
        self.write(os.path.join(self.built, name), "#!/bin/sh\n" + text + "\n")

    def program_without_its_library(self, name):
        for target, source, flags in (
                ("libabsent.so", "int absent(void) { return 0; }", ["-shared", "-fPIC"]),
                ("built/" + name, "int absent(void); int main(void) { return absent(); }",
                 [self.path("libabsent.so")])):
            subprocess.run(["cc", "-x", "c", "-", "-x", "none", *flags, "-o", self.path(target)],
                           input=source, text=True, check=True)
        os.remove(self.path("libabsent.so"))


class Bundle(Folder):
    def refused(self, stamp=None, arch="sm_90"):
        bundle.pack(self.built, self.archive, stamp or STAMP)
        with self.assertRaises(bundle.Unfit) as caught:
            bundle.unpack(self.archive, self.unpacked, arch)
        self.assertEqual(os.listdir(self.unpacked), [])
        return str(caught.exception)

    def test_there_and_back(self):
        self.program("one")
        self.program("two", "exit 3")  # this is no fault of the loader's
        self.write(self.path("built", "log"), "")
        os.chmod(self.path("built", "log"), 0o644)
        self.assertEqual(bundle.pack(self.built, self.archive, STAMP), os.path.getsize(self.archive))
        self.assertEqual(bundle.unpack(self.archive, os.path.relpath(self.unpacked), "sm_90"), (STAMP, 2, {}))
        self.assertEqual(sorted(os.listdir(self.unpacked)), ["one", bundle.STAMP, "two"])

    def test_an_earlier_calls_programs_are_kept(self):
        self.program("one")
        bundle.pack(self.built, self.archive, STAMP)
        bundle.unpack(self.archive, self.unpacked, "sm_90")
        self.write(self.path("unpacked", "one"), "#!/bin/sh\n# built here\n")
        bundle.unpack(self.archive, self.unpacked, "sm_90")
        with open(self.path("unpacked", "one")) as file:
            self.assertIn("built here", file.read())

    def test_an_interrupted_call_is_made_good(self):
        self.program("one")
        self.program("two")
        bundle.pack(self.built, self.archive, STAMP)
        copy = bundle.shutil.copyfileobj
        self.addCleanup(setattr, bundle.shutil, "copyfileobj", copy)
        bundle.shutil.copyfileobj = lambda source, target: os.close(-1)
        with self.assertRaises(bundle.Unfit):
            bundle.unpack(self.archive, self.unpacked, "sm_90")
        bundle.shutil.copyfileobj = copy
        self.assertEqual(bundle.unpack(self.archive, self.unpacked, "sm_90"), (STAMP, 2, {}))

    def test_another_gpu(self):
        self.assertEqual(self.refused(arch="sm_80"), "it is for sm_90, the GPU is sm_80")

    def test_other_sources(self):
        sources = {"gpunn.h": "0" * 64, "no_such_file.c": "0" * 64,
                   "gpunn_cuda.cu": bundle.sha256("gpunn_cuda.cu")}
        self.assertEqual(self.refused({**STAMP, "sources": sources}),
                         "it was built at abc1234 from other sources: gpunn.h, no_such_file.c")

    def test_no_archive_and_a_damaged_one(self):
        with self.assertRaisesRegex(bundle.Unfit, "not there; tests/gpu/run.sh --bundle makes it"):
            bundle.unpack(self.archive, self.unpacked, "sm_90")
        self.program("one", "# " + os.urandom(9000).hex())
        size = bundle.pack(self.built, self.archive, STAMP)
        with open(self.archive, "rb") as file:
            whole = file.read()
        for damaged in whole[:100], whole[:size // 2], whole[:size // 2] + bytes(9) + whole[size // 2 + 9:]:
            with open(self.archive, "wb") as file:
                file.write(damaged)
            with self.assertRaisesRegex(bundle.Unfit, "it is damaged: "):
                bundle.unpack(self.archive, self.unpacked, "sm_90")

    def test_its_size_is_limited(self):
        self.program("small")
        self.program("large", "# " + os.urandom(9000).hex())
        with self.assertRaisesRegex(bundle.Unfit, "6000 is the limit; the largest programs are large, small"):
            bundle.pack(self.built, self.archive, STAMP, 6000)
        self.assertFalse(os.path.exists(self.archive))

    def test_a_program_that_does_not_load(self):
        self.program("one")
        self.program_without_its_library("two")
        bundle.pack(self.built, self.archive, STAMP)
        _, count, refused = bundle.unpack(self.archive, self.unpacked, "sm_90")
        self.assertEqual((count, list(refused)), (2, ["two"]))
        self.assertIn("libabsent.so: cannot open shared object file", refused["two"])
        self.assertEqual(sorted(os.listdir(self.unpacked)), ["one", bundle.STAMP])

    def test_no_program_loads(self):
        """As on a machine with an older glibc: one sentence."""
        self.program_without_its_library("one")
        self.program_without_its_library("two")
        bundle.pack(self.built, self.archive, STAMP)
        with self.assertRaisesRegex(bundle.Unfit, "none of its programs loads: .*libabsent.so: cannot open "
                                    "shared object file"):
            bundle.unpack(self.archive, self.unpacked, "sm_90")

    def test_the_stamp_is_of_what_programs_are_made_from(self):
        if subprocess.run(["git", "rev-parse"], cwd=ROOT, stderr=subprocess.DEVNULL).returncode:
            self.skipTest("there is no git")
        stamp = bundle.make_stamp("none")
        wanted = {"gpunn.h", "gpunn_cuda.cu", "generator/emit_cuda.py", "templates/kernels/set.c",
                  "tests/test.h", "tests/gpu/products.cu", "examples/kernels/custom_op.json",
                  "tests/bench/gpu_workloads.h", "tests/emulator/custom.cpp"}
        self.assertEqual(wanted - stamp["sources"].keys(), set())
        self.assertEqual({"README.md", "templates/README.md",
                          "examples/kernels/simple_nn_kernels.cu"} & stamp["sources"].keys(), set())
        bundle.check(stamp, bundle.ARCH)


# A watched program of test.h's, with an alarm as it has.
PROGRAM = ("#!/usr/bin/env python3\nimport signal, os\nsignal.alarm(int(os.environ.get('GPUNN_TEST_SECONDS', "
           "0)))\n" + test_run.PROGRAM)
NVCC = test_toolkit.NVCC.replace("esac", "*) echo no compiler here; exit 1 ;;\nesac")


class Prebuilt(Folder):
    """A first call on a machine whose driver has an H100 and whose compilers compile nothing."""

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("bin"))
        os.mkdir(self.path("venv"))
        self.write(self.path("bin", "nvcc"), NVCC.format(top=self.folder))
        self.write(self.path("bin", "cc"), "#!/bin/sh\nexit 1\n")
        # it has no torch
        self.write(self.path("venv", "python"), f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        subprocess.run(["cc", "-shared", "-fPIC", "-DCOUNT=1", "-DMAJOR=9", "-x", "c", "-", "-o",
                        self.path("libcuda.so.1")], input=test_toolkit.DRIVER, text=True, check=True)
        self.program("doctor", "echo gpunn takes NVIDIA H100, 132 multiprocessors")
        self.program("simple_nn")
        self.program("products", "[ $# -gt 0 ] || echo '# NVIDIA H100, cuBLASLt 130100'")

    def write_tests(self, **faults):
        """A program for each, whose tests do what FAULTS says unless they run alone."""
        for name, fault in faults.items():
            self.write(self.path("built", name),
                       PROGRAM.replace("sys.argv[1:]",
                                       f"(() if 'GPUNN_PLAIN' in os.environ else {fault.split()})"))

    def call(self, *names, arch="sm_90", **more):
        bundle.pack(self.built, self.archive, {**STAMP, "arch": arch})
        places = {"PATH": self.path("bin") + ":" + os.environ["PATH"], "NVCC": self.path("bin", "nvcc"),
                  "PYTHON": self.path("venv", "python"), "LD_LIBRARY_PATH": self.folder,
                  "GPUNN_BUNDLE": self.archive, "GPUNN_GPU_WORK": self.unpacked, "OUT": self.path("out")}
        done = subprocess.run(["tests/gpu/run.sh", "--prebuilt", *names], cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, "GPUNN_TEST_SECONDS": "1", **places, **more})
        with open(self.path("out", "summary")) as file:
            return done.returncode, done.stdout, file.read()

    def test_each_fault_has_its_line(self):
        self.program("doctor", "echo 'cuDNN         cuDNN 9 is missing: ...'; echo gpunn takes NVIDIA H100, "
                     "132 multiprocessors")
        self.program("products", "[ $# -gt 0 ] || kill -9 $$")
        self.write_tests(golden="2=lose", gradients="1=die", reference="4=hang", precision="")
        self.program_without_its_library("device")
        code, said, summary = self.call("ops/golden", "ops/gradients", "ops/reference", "ops/precision",
                                        "unit/device")
        self.assertEqual(code, 1)
        self.assertRegex(summary, "skipped  device of the archive does not load: .*libabsent.so: cannot open "
                         "shared object file")
        self.assertRegex(summary, r"FAILED   library \(1\)")
        self.assertRegex(summary, r"FAILED   doctor \(it says: cuDNN +cuDNN 9 is missing: ...\)\npassed   "
                         r"simple_nn \(\d+ s\)\nFAILED   products \(1\)\nFAILED   tests \(1\)")
        self.assertRegex(said, "ended with -9 after 0 lines")
        failed = said.partition("failed tests:")[2]
        for program, number in ("golden", 2), ("gradients", 1), ("reference", 4):
            self.assertRegex(failed, rf"/{program}\t{number}\tname {number}\n")
        self.assertEqual(len(re.findall(r"\tname \d", failed)), 3)
        self.assertRegex(failed, r"/device\t\t")
        with open(self.path("out", "tests.log")) as file:
            log = file.read()
        self.assertIn("golden| ok 1 - name 3", log)  # after the test that lost the device
        self.assertIn("precision| ok 6 - name 5", log)
        self.assertRegex(summary, r"\n\d stages passed, 4 failed, 0 cut off, \d skipped, \d+ s\n$")

    def test_all_good(self):
        self.write_tests(golden="")
        # the wheels are beside the Python that is named; programs look for them along PATH
        self.program("doctor", f"case :$PATH: in *:{self.path('venv')}:*) echo gpunn takes NVIDIA H100, 132 "
                     f"multiprocessors ;; esac")
        self.program("group", "exit 1")  # it is not requested
        code, said, summary = self.call("ops/golden")
        self.assertEqual(code, 0, said)
        self.assertIn("5 stages passed, 0 failed, 0 cut off, 0 skipped", summary)
        self.assertIn(", commit abc1234\n", said)

    def test_an_archive_for_another_gpu(self):
        self.write_tests(golden="")
        code, said, summary = self.call("ops/golden", arch="sm_80")
        self.assertEqual(code, 1)
        self.assertRegex(summary, "skipped  .*archive.tar.xz: it is for sm_80, the GPU is sm_90\n")
        self.assertRegex(summary, r"FAILED   library \(1\)")
        self.assertTrue(os.path.exists(self.archive))

    def test_no_gpu(self):
        code, said, _ = self.call("ops/golden", LD_LIBRARY_PATH="/nowhere")
        self.assertEqual(code, 1)
        self.assertIn("There is no GPU here: nothing was run.", said)


if __name__ == "__main__":
    unittest.main()
