"""What nvcc makes of the kernels: registers of a thread, and bytes spilled to local memory."""
import os
import re
import shlex
import subprocess
import tempfile
from collections import namedtuple

from . import table, tiling

Use = namedtuple("Use", "registers stack")  # registers: the most among a kernel's forms; stack: bytes


class NoCompiler(Exception):
    """nvcc is missing, or rejects the kernels."""


def kernel_of(mangled):
    """The last name in a mangled one, which is the kernel's: _ZN<size><space><size><kernel>..."""
    at, name = re.match("_ZN?", mangled).end(), mangled
    while True:
        size = re.match("[0-9]+", mangled[at:])
        if not size:
            return name
        at += size.end()
        name, at = mangled[at:at + int(size.group())], at + int(size.group())


def uses(text):
    """{kernel: Use}, from the output of ptxas -v."""
    result = {}
    for part in re.split(r"Compiling entry function '", text)[1:]:
        name = kernel_of(part.partition("'")[0])
        registers, stack = (int(re.search(pattern, part).group(1))
                            for pattern in (r"Used (\d+) registers", r"(\d+) bytes stack frame"))
        before = result.get(name, Use(0, 0))
        result[name] = Use(max(registers, before.registers), max(stack, before.stack))
    return result


def measure(files, kernels):
    """{card: {kernel: Use}} of a kernel set, whose files these are by path."""
    compiler = shlex.split(os.environ.get("NVCC", "nvcc"))
    with tempfile.TemporaryDirectory() as folder:
        for path, data in files.items():
            with open(os.path.join(folder, kernels.name + re.search(r"_[a-z]+\.[a-z]+$", path).group()),
                      "wb") as file:
                file.write(data)
        running = {}
        try:
            for name, card in tiling.CARDS.items():
                running[name] = subprocess.Popen(
                    compiler + ["-O3", "-cubin", "-arch=sm_%d" % card.capability, "-Xptxas", "-v", "-I",
                                os.path.dirname(table.HEADER), kernels.name + "_kernels.cu", "-o", name],
                    cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        except OSError as fault:
            raise NoCompiler(
                "--registers needs nvcc: '%s' cannot be run (%s); put it into PATH, or its path into NVCC" % (
                    compiler[0], fault.strerror)) from None
        texts = {name: process.communicate()[0] for name, process in running.items()}
    for name, process in running.items():
        if process.returncode:
            raise NoCompiler("--registers: %s says: %s" % (compiler[0], " ".join(texts[name].split())[:200]))
    return {name: uses(text) for name, text in texts.items()}


def lines(found):
    """The lines in the report."""
    names = sorted({name for of_card in found.values() for name in of_card})
    width = max(map(len, names), default=0)
    yield "registers per thread (nvcc), the most among a kernel's forms" + (
        "" if any(use.stack for of_card in found.values() for use in of_card.values()) else
        "; nothing is spilled")
    yield "    %-*s %s" % (width, "", "".join("%10s" % card for card in found))
    for name in names:
        cells = [of_card.get(name) for of_card in found.values()]
        yield "    %-*s %s" % (width, name, "".join("%10s" % (
            "" if use is None else "%d + %d B" % use if use.stack else use.registers) for use in cells))
