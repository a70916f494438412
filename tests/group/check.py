#!/usr/bin/env python3
"""Ranks as processes over MPI. tests/group/mpi.c is compiled by mpicc and run by mpirun on 1, 2, 3 and 4
ranks, and on 3 by MPICH's (mpicc.mpich, mpirun.mpich, as in Debian). Ranks also run on two machines, which
are network namespaces, and in examples, as README.md says. Without these programs or permissions it is a
skip. TAP lines, for tests/run.py."""
import glob
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(ROOT, "build", "group_mpi")
TOOLS = "mpicc", "mpirun"


def compiled(program, suffix, *sources, flags=()):
    """The program of the first source, rebuilt if one of them or the header is newer."""
    if os.path.exists(program) and os.path.getmtime(program) > max(
            os.path.getmtime(s) for s in (*sources, os.path.join(ROOT, "gpunn.h"))):
        return
    os.makedirs(os.path.dirname(program), exist_ok=True)
    compiler = shutil.which("clang") or "cc"  # it takes a quarter of gcc's time
    subprocess.run(["mpicc" + suffix, "-Wall", "-Wextra", "-Werror", "-O0", "-DGPUNN_MPI", "-I.", *flags,
                    sources[0], "-o", program, "-lm", "-lz"], check=True, cwd=ROOT,
                   env={**os.environ, "OMPI_CC": compiler, "MPICH_CC": compiler})


def build(suffix=""):
    sources = (os.path.join(ROOT, "tests", "group", name) for name in ("mpi.c", "checks.h"))
    # so that even these models have several buckets
    compiled(PROGRAM + suffix, suffix, *sources, flags=["-std=gnu99", "-DGPUNN__MPI_PIECE=8"])


def launch(ranks, program, *arguments, suffix="", options=(), **environment):
    """The program's output on so many ranks, and its exit status."""
    more = ["--oversubscribe", "--allow-run-as-root"] if "Open MPI" in subprocess.run(
        ["mpirun" + suffix, "--version"], capture_output=True, text=True).stdout else []
    done = subprocess.run(["mpirun" + suffix, *more, *options, "-n", str(ranks), program, *arguments],
                          capture_output=True, text=True, timeout=600, env={**os.environ, **environment})
    return done.stdout, done.returncode, done.stderr


def mpirun(ranks, *arguments, folder=None, suffix="", **how):
    """The same for the checks' program. The ranks share a folder."""
    with tempfile.TemporaryDirectory() as own:
        return launch(ranks, PROGRAM + suffix, folder or own, *arguments, suffix=suffix, **how)


def check_count():
    return len(re.findall(
        r"\{\"", open(os.path.join(ROOT, "tests", "group", "checks.h")).read().split("checks[] =")[1]))


def whole(ranks, *arguments, suffix=""):
    """Every check on so many ranks."""
    build(suffix)
    out, code, error = mpirun(ranks, *arguments, suffix=suffix)
    assert code == 0 and len(re.findall(r"^ok ", out, re.M)) == check_count(), f"{out}{error[-2000:]}"


def hang(ranks, hanging, missing):
    """Other ranks name the missing ones within their waiting time, and their processes end."""
    out, _, error = mpirun(ranks, "hang", str(hanging))
    for rank in range(ranks - hanging):
        sentence = rf"^rank {rank}: \d+ the group has failed: all_gather: {missing} not arrived within 2 sec"
        assert re.search(sentence, out, re.M), f"{out}{error[-2000:]}"


def kill():
    """A rank that is killed ends the job. Other numbers of ranks continue from its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        out, code, error = mpirun(3, "kill", folder=folder)
        assert code != 0 and "is killed" in out, f"{out}{error[-2000:]}"
        for ranks, updates in ((2, 8), (1, 12)):
            out, code, error = mpirun(ranks, "resume", folder=folder)
            assert code == 0 and f"after {updates} updates" in out, f"{out}{error[-2000:]}"


def threads():
    """Ranks share the processors that mpirun leaves them, unless the user sets the number of threads."""
    build()
    here = os.environ.pop("OMP_NUM_THREADS", None), len(os.sched_getaffinity(0))
    cases = [(n, "none", {}, max(1, here[1] // n)) for n in (1, 2, 4)] + [
        (2, "none", {"OMP_NUM_THREADS": "3"}, 3)]
    if here[1] > 1:
        cases.append((2, "core", {}, None))  # a core may be several processors
    for ranks, binding, environment, expected in cases:
        out, code, error = mpirun(ranks, "threads", options=["--bind-to", binding], **environment)
        told = [int(n) for n in re.findall(r"^rank \d: (\d+) threads$", out, re.M)]
        assert code == 0 and len(told) == ranks, f"{out}{error[-2000:]}"
        assert told == [expected] * ranks if expected else max(
            told) <= here[1] // 2, f"{ranks} ranks bound to {binding}: {told}"
    if here[0] is not None:
        os.environ["OMP_NUM_THREADS"] = here[0]


def example(name, *arguments, flags=()):
    """An example's output for each number of ranks, with these arguments."""
    program = os.path.join(ROOT, "build", "group_" + name)
    sources = [os.path.join(ROOT, "examples", name + ".c"), *glob.glob(os.path.join(ROOT, "examples", "*.h"))]
    compiled(program, "", *sources, flags=flags)
    said = []
    for ranks, *own in arguments:
        out, code, error = launch(ranks, program, *own)
        assert code == 0 and (ranks == 1 or f"{ranks} ranks\n" in out), f"{out}{error[-2000:]}"
        said.append(out)
    return said


def losses(out):
    """The loss of each step, from its line."""
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+):? loss ([\d.]+)", out, re.M)}


def equal(outs, count):
    """Whether all have the same losses for as many steps, within rounding."""
    first = losses(outs[0])
    for out in outs[1:]:
        own = losses(out)
        assert len(first) == count and own.keys() == first.keys() and all(
            abs(own[s] - first[s]) <= 1e-5 for s in own), "".join(outs)


def gpt2():
    """Four batches a step: of one rank or four, or of four and then, from the checkpoint, of two."""
    with tempfile.TemporaryDirectory() as folder:
        usual = ["--every", "1", "--generate", "0", "--batch", "2", "--context", "16", "--threads", "1",
                 "--peak", "1"]
        kept = [*usual, "--checkpoint", os.path.join(folder, "gpt2.ckpt")]
        alone, four, begun, resumed = example(
            "gpt2", (1, *usual, "--steps", "4", "--accumulate", "4"), (4, *usual, "--steps", "4"),
            (4, *kept, "--steps", "2"), (2, *kept, "--steps", "4", "--accumulate", "2", "--resume"))
    equal([alone, four, begun + resumed], 4)


def tiny_imagenet():
    with tempfile.TemporaryDirectory() as folder:
        usual = ["--synthetic", "--out", folder, "--size", "16", "--width", "4", "--batch", "8", "--steps",
                 "3", "--device", "cpu"]
        equal(example("tiny_imagenet", (1, *usual), (2, *usual), (4, *usual)), 3)


def fashion_mnist():
    """On as few images as possible; kernels are generated first."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "kernels"))
        for model in ("fashion_mnist_simple", "fashion_mnist_deep"):
            subprocess.run([sys.executable, "-m", "generator", f"examples/kernels/{model}.json", "-o",
                            os.path.join(folder, "kernels", model)],
                           check=True, cwd=ROOT, capture_output=True)
        for part, count in (("train", 256), ("t10k", 1000)):
            with open(os.path.join(folder, part + "-images-idx3-ubyte"), "wb") as file:
                file.write(struct.pack(">4i", 0x803, count, 28, 28) +
                           bytes(25 * (i % 10) for i in range(count) for _ in range(28 * 28)))
            with open(os.path.join(folder, part + "-labels-idx1-ubyte"), "wb") as file:
                file.write(struct.pack(">2i", 0x801, count) + bytes(i % 10 for i in range(count)))
        usual = ["--data", folder, "--out", folder, "--epochs", "1"]
        for out in example("fashion_mnist", (2, *usual), (4, *usual), flags=["-DGPUNN_ZLIB", "-I" + folder]):
            assert re.search(r"^test accuracy ([\d.]+) %.* reloaded: \1 %$", out, re.M), out


class Machine:
    """A machine with its own network and host name. It ends with its last process."""

    def __init__(self, name):
        self.process = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c",
                                         f"hostname {name} && echo && exec sleep 600"],
                                        stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()
        self.enter = ["nsenter", "--target", str(self.process.pid), "--net", "--uts"]
        self.run("ip", "link", "set", "lo", "up")

    def run(self, *words):
        done = subprocess.run(self.enter + list(words), capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr[-2000:]}"
        return done.stdout

    def close(self):
        self.process.kill()
        self.process.communicate()


def machines():
    """A rank on each of two machines, connected only by a virtual cable."""
    build()
    both = [Machine("one"), Machine("two")]
    try:
        both[0].run("ip", "link", "add", "cable0", "type", "veth", "peer", "name", "cable1", "netns",
                    str(both[1].process.pid))
        for i, machine in enumerate(both):
            machine.run("ip", "addr", "add", f"10.77.0.{i + 1}/24", "dev", f"cable{i}")
            machine.run("ip", "link", "set", f"cable{i}", "up")
        with tempfile.TemporaryDirectory() as folder:
            agent = os.path.join(folder, "agent")
            with open(agent, "w", encoding="ascii") as file:
                file.write(f"#!/bin/sh\nshift\nexec {' '.join(both[1].enter)} sh -c \"$*\"\n")
            os.chmod(agent, 0o700)
            out = both[0].run("mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", agent, "-H",
                              "10.77.0.1:1,10.77.0.2:1", "-n", "2", PROGRAM, folder)
        assert len(re.findall(r"^ok .*, 2 ranks$", out, re.M)) == check_count(), out
    finally:
        for machine in both:
            machine.close()


def lacks_machines():
    tools = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if tools:
        return f"{' and '.join(tools)} not installed"
    allowed = (subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True,
                              check=False).returncode == 0)
    return "" if allowed else "this user makes no networks"


def main():
    cases = ([(f"{n} ranks", lambda n=n: whole(n), "") for n in (1, 2, 3, 4)] + [
        ("a rank that hangs", lambda: hang(3, 1, "rank 2 has"), ""),
        ("two that hang", lambda: hang(3, 2, "rank 1 and 1 more have"), ""),
        ("a rank that is killed", kill, ""), ] + [
            (f"{n} ranks with shares", lambda n=n: whole(n, "shard"), "") for n in (2, 3, 4)] + [
                (f"{n} ranks with BF16", lambda n=n: whole(n, "bf16"), "") for n in (2, 3)] + [
                    ("threads of a rank", threads, ""), ("gpt2.c", gpt2, ""),
                    ("tiny_imagenet.c", tiny_imagenet, ""),
                    ("fashion_mnist.c", fashion_mnist, ""), ("2 machines", machines, ""),
                    ("3 ranks of MPICH", lambda: whole(3, suffix=".mpich"), ".mpich")])
    failed = 0
    print(f"1..{len(cases)}")
    for number, (name, case, suffix) in enumerate(cases, 1):
        missing = [tool + suffix for tool in TOOLS if shutil.which(tool + suffix) is None]
        lacks = (f"{' and '.join(missing)} not installed" if missing else
                 lacks_machines() if case is machines else "")
        if lacks:
            print(f"ok {number} - {name} # SKIP {lacks}")
            continue
        try:
            case()
            print(f"ok {number} - {name}", flush=True)
        except (AssertionError, subprocess.SubprocessError) as problem:
            failed += 1
            print("\n".join("# " + line for line in str(problem).splitlines()))
            print(f"not ok {number} - {name}", flush=True)
    return failed > 0


sys.exit(main())
