#!/usr/bin/env python3
"""Compiles the CUDA companion and checks its kernels: python3 tests/compile/kernels.py [FILE.cu] [-o OBJECT]
[--arch 90] [--ptx]

It compiles for all of nvcc's architectures from sm_75 to sm_120, or for those named. Every warning is an
error. So is a kernel that spills registers or has local memory. -o keeps the object file, and writes a table
of each kernel's registers to OBJECT.txt; without -o the table is printed. --ptx instead prints the width of
the kernels' global memory accesses and their tensor core instructions. It compares the bytes per element of
the streaming kernels with STREAMS."""
import argparse
import collections
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "gpu"))
import toolkit

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
WARNINGS = "-Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror".split()
# Bytes of F32 that a kernel reads and writes by 128 bits for each element, including optional work: a
# gradient that is added to (4 read), and the 16-bit copy of a parameter (4 written, counted as F32).
# PyTorch's 28 bytes of AdamW are among the others.
STREAMS = {
    "gpunn__map_forward_kernel<gpunn__op_relu>": (4, 4),
    "gpunn__map_forward_kernel<gpunn__op_gelu>": (4, 4),
    "gpunn__map_forward_kernel<gpunn__op_add>": (8, 4),
    "gpunn__map_forward_kernel<gpunn__op_where>": (12, 4),
    "gpunn__map_backward_kernel<gpunn__op_relu>": (4 + 4 + 4, 4),
    "gpunn__map_backward_kernel<gpunn__op_mul>": (12 + 8, 8),
    "gpunn__copy_kernel": (4 + 4, 4),
    "gpunn__dropout_kernel": (4 + 4, 4),
    "gpunn__scale_kernel": (4, 4),
    "gpunn__squares_kernel": (4, 0),
    "gpunn__update_kernel<0>": (12, 8 + 4),
    "gpunn__update_kernel<1>": (16, 12 + 4),
}
# registers of those, for three blocks: more would leave a multiprocessor fewer threads that hide the memory's
# latency
MOST_REGISTERS = 80

Kernel = collections.namedtuple("Kernel", "registers shared stack spilled")
ACCESS = re.compile(
    r"\b(ld|st)(?:\.(?:volatile|relaxed|weak))*\.global"
    r"(?:\.(?:nc|L\w+|c[agsv]|wb|wt))*(?:\.v([248]))?\.([a-z])(8|16|32|64)\b")


class CompileError(Exception):
    pass


def cpu_seconds():
    """CPU seconds of the compilers, which exclude other work on the machine."""
    times = os.times()
    return times.children_user + times.children_system


def compile_to(nvcc, source, output, architectures, *more):
    """(nvcc's output, seconds of CPU)."""
    targets = ([f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures] if "-ptx" not in more else
               [f"-arch=compute_{architectures[0]}"])
    command = [nvcc.nvcc, "-std=c++17", "-O3", *targets, *WARNINGS, *nvcc.flags, "-I" + ROOT, "-t", "2",
               *more, source, "-o", output]
    begin = cpu_seconds()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        said = [line for line in done.stdout.splitlines()
                if not re.match(r"ptxas info|    \d+ bytes stack", line)]
        raise CompileError("$ " + " ".join(command) + "\n" + "\n".join(said)[:4000] +
                           "".join("\n" + line for line in faults(resources(done.stdout))))
    return done.stdout, cpu_seconds() - begin


def readable(names):
    """Without arguments and return types."""
    names = list(names)
    text = subprocess.run(["c++filt"], input="\n".join(names), stdout=subprocess.PIPE,
                          text=True).stdout.splitlines()
    return {name: re.sub(r"\(.*", "", re.sub(r"\([a-z_]+\)(?=\d)", "", line)).replace("void ", "")
            for name, line in zip(names, text)}


def resources(said):
    """{kernel: {architecture: Kernel}} from ptxas -v."""
    table = collections.defaultdict(dict)
    for part in said.split("Compiling entry function ")[1:]:
        name, architecture = re.match(r"'(\w+)' for 'sm_(\d+)", part).groups()
        stack, stores, loads = map(int, re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part).groups())
        local, shared = re.search(r"(\d+) bytes lmem", part), re.search(r"(\d+) bytes smem", part)
        registers = int(re.search(r"Used (\d+) registers", part)[1])
        table[name][int(architecture)] = Kernel(registers, int(shared[1]) if shared else 0,
                                                stack + int(local[1] if local else 0), stores + loads)
    names = readable(table)
    return {names[name]: row for name, row in sorted(table.items(), key=lambda item: names[item[0]])}


def faults(table):
    bad = [f"{name} on sm_{a}: {k.stack} bytes of local memory, {k.spilled} of them spilled"
           for name, row in table.items() for a, k in row.items() if k.stack or k.spilled]
    return bad + [f"{name} on sm_{a}: {k.registers} registers, more than {MOST_REGISTERS}" for name in STREAMS
                  if name in table for a, k in table[name].items() if k.registers > MOST_REGISTERS]


def entries(ptx):
    """{kernel: its text} of a PTX file."""
    table = {found[1]: found[0]
             for found in re.finditer(r"^\.(?:visible |weak )*\.?entry (\w+)\(.*?^\}", ptx, re.M | re.S)}
    names = readable(table)
    return {names[name]: text for name, text in sorted(table.items(), key=lambda item: names[item[0]])}


def accesses(ptx):
    """{kernel: {("ld" or "st", bits, letter of the type): count}} of the global accesses in a PTX file's
    text."""
    return {name: collections.Counter((kind, int(count or 1) * int(bits), letter)
                                      for kind, count, letter, bits in ACCESS.findall(text))
            for name, text in entries(ptx).items()}


def products(ptx):
    """{kernel: {shape and types: count}} of the tensor core instructions in a PTX file's text."""
    return {name: collections.Counter(re.findall(r"\bmma\.sync\.aligned\.([\w.]+)", text))
            for name, text in entries(ptx).items()}


def moved(row, side):
    """Bytes of F32 for each of the 8 elements that a thread processes at once."""
    return (sum(count * bits for (kind, bits, letter), count in row.items() if kind == side and
                bits >= 128 and letter == "f") / 8 / 8)


def narrow(table):
    """Kernels in STREAMS that are missing, or that do not move their bytes by 128 bits."""
    for name, (read, written) in STREAMS.items():
        if name not in table:
            yield f"there is no kernel {name}"
            continue
        own = moved(table[name], "ld"), moved(table[name], "st")
        # in contiguous packs, or in quads; operands have one more path if broadcast
        if not (read <= own[0] <= 3 * read and written <= own[1] <= 2 * written):
            yield (f"{name} reads {own[0]:g} and writes {own[1]:g} bytes for each element by 128 bits, not "
                   f"{read} and {written}")


def texts(row, side):
    widths = collections.Counter()
    for (kind, bits, _), count in row.items():
        if kind == side:
            widths[bits] += count
    return " ".join(f"{count}x{bits}" for bits, count in sorted(widths.items(), reverse=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", default=os.path.join(ROOT, "gpunn_cuda.cu"))
    parser.add_argument("-o", dest="output")
    parser.add_argument("--arch", help="such as 80,90")
    parser.add_argument("--ptx", action="store_true")
    options = parser.parse_args()
    nvcc = toolkit.Toolkit()
    if nvcc.nvcc is None:
        sys.exit("nvcc was not found: examples/guides/gpu.md says how to get it; NVCC names one")
    has = nvcc.architectures()
    architectures = ([int(a) for a in options.arch.split(",")] if options.arch else
                     [a for a in ARCHITECTURES if a in has])
    with tempfile.TemporaryDirectory() as folder:
        output = options.output or os.path.join(folder, "out")
        try:
            said, seconds = compile_to(nvcc, options.source, output, architectures,
                                       *(["-ptx"] if options.ptx else ["-c", "-Xptxas", "-v"]))
        except CompileError as error:
            sys.exit(str(error))
        if options.ptx:
            with open(output) as file:
                ptx = file.read()
            table, tiles = accesses(ptx), products(ptx)
            lines = [f"{'count x bits of global accesses':72} bytes per element, F32 by 128 bits"]
            lines += [f"{name:72} {moved(row, 'ld'):g} + {moved(row, 'st'):g}: {texts(row, 'ld')} | "
                      f"{texts(row, 'st')}"
                      + "".join(f" | {count} mma.sync {what}" for what, count in tiles[name].items())
                      for name, row in table.items()]
            bad = list(narrow(table))
        else:
            table = resources(said)
            lines = [f"{'registers on':72}" + "".join(f"{'sm_' + str(a):>7}" for a in architectures) +
                     f"{'shared':>8}"]
            lines += [f"{name:72}" + "".join(f"{row[a].registers:7}" for a in architectures) +
                      f"{max(k.shared for k in row.values()):8}" for name, row in table.items()]
            bad = faults(table)
        if options.output and not options.ptx:
            with open(output + ".txt", "w") as file:
                print(*lines, sep="\n", file=file)
        else:
            print(*lines, sep="\n")
        print(f"{len(table)} kernels for {', '.join(f'sm_{a}' for a in architectures)}: {seconds:.1f} s of "
              f"CPU, {os.path.getsize(output) / 1e6:.1f} MB")
    for line in bad:
        print("error: " + line)
    if bad and options.output:
        os.remove(options.output)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
