"""tests/bench/gpu.py with scripts as peers: each opens a workload once, one after another, and one that fails
or hangs costs little."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))
import gpu

# Answers like gpu_bench.c and records the requests. FAULT=COMMAND makes it fail at that one.
PEER = r'''
import os, signal, sys, time
name, log, ms, mib, *faults = sys.argv[1:]
faults = dict(fault.split("=") for fault in faults)
for line in sys.stdin:
    command = line.split()[0]
    with open(log, "a") as file:
        file.write(f"{name} {line}")
    if command == faults.get("end"):
        print(faults.get("says", "it broke").replace("_", " ").replace("/", "\n"), file=sys.stderr,
              flush=True)
        sys.exit(1)
    if command == faults.get("hang"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    if command == faults.get("linger"):  # says no more, but lives on
        os.close(1)
        time.sleep(60)
    if command == "open":
        time.sleep(0.1)
        with open(log, "a") as file:
            file.write(f"{name} opened\n")
        print("ok", flush=True)
    elif command == "time":
        print("ok", ms, flush=True)
    else:
        print("ok", int(float(mib) * 2**20), 2**22, faults.get("result", "0.5"), flush=True)
'''


class Gpu(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.log = folder.name, os.path.join(folder.name, "log")
        self.program = os.path.join(folder.name, "peer.py")
        with open(self.program, "w") as file:
            file.write(PEER)
        self.peers = {}

    def peer(self, name, ms, mib, *faults):
        self.peers[name] = gpu.Peer([sys.executable, self.program, name, self.log, str(ms), str(mib),
                                     *faults])
        self.addCleanup(self.peers[name].stop)

    def executable(self, name, command):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(f"#!/bin/sh\n{command}\n")
        os.chmod(path, 0o755)
        return path

    def asked(self):
        with open(self.log) as file:
            return file.read().splitlines()

    def test_each_peer_opens_once_and_alone(self):
        for name, ms in ("gpunn", 1), ("eager", 3), ("compile", 2):
            self.peer(name, ms, 10)
        results, failures = gpu.measure("lenet4", self.peers, 3, 20)
        self.assertEqual(failures, {})
        self.assertEqual([line for line in self.asked() if "open" in line], [
            f"{name} {what}" for name in self.peers for what in ("open lenet4", "opened")])
        self.assertEqual([line for line in self.asked() if "time" in line][:6], [
            name + " time" for name in ("gpunn", "eager", "compile", "compile", "eager", "gpunn")])
        self.assertEqual({name: result["ratio"] for name, result in results.items()},
                         {"gpunn": None, "eager": 3, "compile": 2})
        self.assertEqual(len(results["eager"]["ms"]), 3)

    def test_failing_peers_are_left_out(self):
        self.peer("gpunn", 1, 10)
        self.peer("eager", 3, 20, "end=open")
        self.peer("compile", 3, 20, "end=time")
        self.peer("graph", 3, 20, "result=0.7")
        results, failures = gpu.measure("lenet4", self.peers, 3, 20)
        self.assertEqual(list(results), ["gpunn", "graph"])
        self.assertEqual(failures, {"eager": "it broke", "compile": "it broke",
                                    "graph": "its result is 0.7, gpunn's 0.5"})

    def test_peers_that_do_not_end_are_not_waited_for(self):
        self.peer("gpunn", 1, 10)
        self.peer("compile", 1, 10, "linger=time")
        self.peer("graph", 1, 10, "hang=time")
        self.peer("eager", 1, 10, "hang=open")
        begin = time.monotonic()
        results, failures = gpu.measure("lenet4", self.peers, 3, 8, spare=12)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(list(results), ["gpunn"])
        self.assertIn("cut off: no answer to open lenet4 within ", failures["eager"])
        self.assertIn("it ended without a word", failures["compile"])
        self.assertEqual(failures["graph"], "cut off: no answer to time within 3 s")

    def test_the_error_is_told_not_the_advice_behind_it(self):
        self.peer("compile", 1, 10, "end=open",
                  "says=torch.Fault/torch.SomeError:_no_triton/Set_this_for_more")
        self.assertEqual(gpu.measure("lenet4", self.peers, 1, 20)[1],
                         {"compile": "torch.SomeError: no triton"})

    def test_who_has_no_time_left_is_not_asked(self):
        self.peer("gpunn", 1, 10, "hang=open")
        self.peer("eager", 1, 10)
        results, failures = gpu.measure("lenet4", self.peers, 1, 1, spare=0)
        self.assertEqual((results, failures["eager"]), ({}, "cut off: no time was left to open lenet4"))
        self.assertIsNone(self.peers["eager"].process)

    def test_a_peer_starts_anew_after_a_failure(self):
        self.peer("gpunn", 1, 10, "end=time")
        for _ in range(2):
            self.assertEqual(gpu.measure("lenet4", self.peers, 1, 20), ({}, {"gpunn": "it broke"}))

    def test_rows_that_are_cut_off_say_so(self):
        program = self.executable("gpu_bench", f"exec {sys.executable} {self.program} gpunn {self.log} 2 30")
        done = subprocess.run([sys.executable, gpu.__file__, program, "--alone", "--seconds", "0", "mlp20",
                               "lenet4"], stdout=subprocess.PIPE, text=True)
        self.assertIn("# mlp20: cut off, no time was left\n# lenet4: cut off, no time was left\n",
                      done.stdout)

    def test_what_is_not_ready_in_time_is_no_success(self):
        ready = os.path.join(self.folder, "ready")

        def compiled(seconds, *faults):
            peer = gpu.Peer([sys.executable, self.program, "compile", self.log, "1", "1", *faults])
            return gpu.compile_ahead("compile", peer, ["mlp20", "lenet4"], seconds, ready)

        self.assertEqual(compiled(2, "hang=open"), gpu.CUT_OFF)
        self.assertEqual(compiled(20, "end=open"), 1)
        self.assertEqual(gpu.read_ready(ready), [])
        self.assertEqual(compiled(20), 0)

    def test_what_is_ready_is_not_compiled_again(self):
        ready = os.path.join(self.folder, "ready")
        gpu.compile_ahead("compile", gpu.Peer([sys.executable, self.program, "compile", self.log, "1", "1"]),
                          ["mlp20"], 20, ready)
        gpu.compile_ahead("compile", gpu.Peer([sys.executable, self.program, "compile", self.log, "1", "1"]),
                          ["mlp20", "lenet4"], 20, ready)
        self.assertEqual([line for line in self.asked() if " open " in line],
                         ["compile open mlp20", "compile open lenet4"])
        self.assertEqual(gpu.read_ready(ready), ["compile mlp20", "compile lenet4"])

    def test_no_git_and_no_nvidia_smi(self):
        path, commit = os.environ.get("PATH"), os.environ.pop("GPUNN_COMMIT", None)
        try:
            os.environ["PATH"] = self.folder
            self.assertEqual(gpu.machine({})["commit"], "unknown")
            os.environ["GPUNN_COMMIT"] = "abc1234"
            self.assertEqual(gpu.machine({})["commit"], "abc1234")
            self.assertEqual(gpu.process_mib(), {})
        finally:
            os.environ["PATH"] = path
            os.environ.pop("GPUNN_COMMIT")
            if commit:
                os.environ["GPUNN_COMMIT"] = commit

    def test_what_nvidia_smi_says_of_processes(self):
        self.executable("nvidia-smi", "printf '12, 550\\n13, [N/A]\\n\\n'")
        path = os.environ["PATH"]
        try:
            os.environ["PATH"] = self.folder + ":" + path
            self.assertEqual(gpu.process_mib(), {12: 550})
        finally:
            os.environ["PATH"] = path

    def test_the_whole_of_it(self):
        program = self.executable("gpu_bench", f"exec {sys.executable} {self.program} gpunn {self.log} 2 30")
        json_path = os.path.join(self.folder, "json")
        done = subprocess.run([sys.executable, os.path.join(ROOT, "tests", "bench", "gpu.py"), program,
                               "--alone", "--rounds", "2", "--json", json_path, "mlp20", "lenet4"],
                              stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0)
        self.assertIn("| mlp20 | gpunn | 2 | 2 to 2 | - | - | 30.0 | 4 | - | 0.5 |", done.stdout)
        with open(json_path) as file:
            self.assertEqual(list(json.load(file)["workloads"]), ["mlp20", "lenet4"])


if __name__ == "__main__":
    unittest.main()
