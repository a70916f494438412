#!/usr/bin/env python3
"""Checks of gpunn_cuda.cu that need nvcc and no GPU: python3 tests/compile/nvcc.py

One example is built as the README says, under strict warnings, for one architecture (ninja cuda builds them
all). No kernel may spill or have local memory, and the streaming ones move no byte too many. Then the example
runs without a driver. It trains on the CPU, says so in one line, and gives the results of the program that cc
built. It starts with as little work. The host's part is compiled at -O1, which does not change the kernels
and takes a third of the time. TAP lines, for tests/run.py; without nvcc all checks are skipped."""
import glob
import os
import re
import subprocess
import sys
import tempfile

import kernels

EXAMPLE = "examples/simple_nn.c"
ARCHITECTURE = 90
SLOWER = 0.3  # additional CPU seconds that the program with the CUDA backend may take


class Failure(Exception):
    pass


def run(*command):
    # A driver, if there is one, is told to show no GPU.
    done = subprocess.run(command, cwd=kernels.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))
    if done.returncode != 0:
        raise Failure(f"$ {' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout, done.stderr


class Build:
    """Both programs, with nvcc's output and files for the first."""

    def __init__(self, nvcc, folder):
        self.nvcc, self.app, self.plain, self.folder = (nvcc, os.path.join(folder, "app"),
                                                        os.path.join(folder, "plain"), folder)
        begin = kernels.cpu_seconds()
        with open(os.path.join(kernels.ROOT, "README.md")) as file:
            line = re.search(r"^nvcc (.* app\.c gpunn_cuda\.cu -o) app$", file.read(), re.M)
        if not line:
            raise Failure("README.md does not say how a program is built with gpunn_cuda.cu")
        arguments = line[1].replace("-arch=native", f"-arch=sm_{ARCHITECTURE}").replace(
            "app.c", EXAMPLE).replace("-O3", "-O1").split()
        out, err = run(nvcc.nvcc, *arguments, self.app, "-I.", *nvcc.flags, *kernels.WARNINGS, "-Xptxas",
                       "-v", "-keep", "-keep-dir", folder)
        self.seconds, self.said = kernels.cpu_seconds() - begin, out + err
        run("cc", "-O1", "-march=native", "-I.", EXAMPLE, "-o", self.plain, "-lm")


def resources(build):
    table = kernels.resources(build.said)
    bad = kernels.faults(table)
    if bad or not table:
        raise Failure("\n".join(bad or ["nvcc named no kernel"]))
    most = max(table, key=lambda name: table[name][ARCHITECTURE].registers)
    return (f"{len(table)} kernels, at most {table[most][ARCHITECTURE].registers} registers ({most}); "
            f"{build.seconds:.1f} s of CPU for both files")


def bytes_moved(build):
    text = ""
    for path in glob.glob(os.path.join(build.folder, "gpunn_cuda*.ptx")):
        with open(path) as file:
            text += file.read()
    bad = list(kernels.narrow(kernels.accesses(text)))
    if bad:
        raise Failure("\n".join(bad))


def waits_first(build):
    """A kernel may be set up before its predecessors end. It must not touch memory until they have ended."""
    kernels_seen = 0
    for path in glob.glob(os.path.join(build.folder, "gpunn_cuda*.ptx")):
        with open(path) as file:
            for found in re.finditer(r"^\.(?:visible |weak )*\.?entry (\w+)\(.*?^\}", file.read(),
                                     re.M | re.S):
                kernels_seen += 1
                wait = found[0].find("griddepcontrol.wait")
                first = re.sub(r".*\b[ls][dt]\.(param|shared|local|const).*", lambda line: " " * len(line[0]),
                               found[0])
                touched = re.search(r"\b(ld|st|atom|red)\.", first)
                if wait < 0 or touched and touched.start() < wait:
                    raise Failure(f"{found[1]} does not begin by GPUNN__FOLLOW()")
    if kernels_seen == 0:
        raise Failure("there is no kernel")


def without_cudnn(build):
    """As where cudnn.h is not found. The front end is enough."""
    run(build.nvcc.nvcc, "-ptx", f"-arch=compute_{ARCHITECTURE}", "-Xcicc", "-O0", "-DGPUNN_NO_CUDNN", "-I.",
        *build.nvcc.flags, *kernels.WARNINGS,
        "gpunn_cuda.cu", "-o", os.path.join(build.folder, "without.ptx"))


def header_as_cuda(build):
    """Generated C kernels in a CUDA file that does not contain gpunn.h's own."""
    run(build.nvcc.nvcc, "-cuda", "-std=c++17", f"-arch=sm_{ARCHITECTURE}", "-x", "cu",
        "-DSIMPLE_NN_KERNELS_IMPLEMENTATION", "-DGPUNN_NO_IMPLEMENTATION", "-I.", *build.nvcc.flags,
        *kernels.WARNINGS, "examples/kernels/simple_nn_kernels.h", "-o",
        os.path.join(build.folder, "header.ii"))


def trains_on_the_cpu(build):
    (out, err), (expected, nothing) = run(build.app), run(build.plain)
    lines = err.splitlines()
    if len(lines) != 1 or "CPU" not in lines[0]:
        raise Failure(f"it says on stderr, where one line about the CPU should be: {err!r}")
    if nothing:
        raise Failure(f"the program without gpunn_cuda.cu says on stderr: {nothing!r}")
    if not re.search(r"accuracy 9\d\.\d %", out):
        raise Failure("it does not learn: " + out)
    if out != expected:
        raise Failure(f"built by cc it prints other numbers:\n{out}\n{expected}")
    return lines[0]


def starts_fast(build):
    """CPU time, which excludes other work on the machine; the least of several starts."""
    taken = {build.app: [], build.plain: []}
    for _ in range(5):
        for program, seconds in taken.items():
            begin = kernels.cpu_seconds()
            run(program)
            seconds.append(kernels.cpu_seconds() - begin)
    more = min(taken[build.app]) - min(taken[build.plain])
    if more >= SLOWER:
        raise Failure(f"it takes {more:.3f} s of CPU more than the program that cc built")
    return f"it takes {1e3 * more:.1f} ms of CPU more than the program that cc built"


def main():
    tests = [("kernels", resources), ("bytes per element", bytes_moved), ("waits first", waits_first),
             ("without cuDNN", without_cudnn), ("generated header as CUDA", header_as_cuda),
             ("on a machine without a GPU", trains_on_the_cpu), ("start", starts_fast)]
    print(f"1..{len(tests)}")
    nvcc, failed = kernels.toolkit.Toolkit(), 0
    with tempfile.TemporaryDirectory() as folder:
        build, reason = None, "the example was not built"
        try:
            build = Build(nvcc, folder) if nvcc.nvcc else None
        except Failure as failure:
            reason = str(failure)
        for number, (name, test) in enumerate(tests, 1):
            if nvcc.nvcc is None:
                print(f"ok {number} - {name} # SKIP nvcc is not installed")
                continue
            try:
                if build is None:
                    raise Failure(reason)
                said = test(build)
                if said:
                    print(f"# {said}")
                print(f"ok {number} - {name}", flush=True)
            except Failure as failure:
                failed, reason = failed + 1, "the example was not built"
                print(f"{failure}\nnot ok {number} - {name}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
