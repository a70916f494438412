"""Shared by the tests of builds. Each tries a build as a stranger would, in an empty folder."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FILES = os.path.join(ROOT, "examples", "embedding")
COMPILER = {"CC": "clang"} if shutil.which("clang") else {}  # it takes a quarter of gcc's time

# Replaces gpunn_cuda.cu, in C and C++: it has no GPU, and says so.
COMPANION = """
#include "gpunn.h"
#include <stdio.h>
#ifdef __CUDACC__ /* needs the runtime's library */
static int count(void) { int found; return cudaGetDeviceCount(&found) == cudaErrorInvalidValue ? found : 7; }
#else
static int count(void) { return 7; }
#endif
static void *open_none(const gpunn_device_args *args, char *message, size_t size)
{
    (void)args, (void)snprintf(message, size, "the companion sees no GPU");
    return NULL;
}
extern const gpunn_backend gpunn_cuda_backend;
const gpunn_backend gpunn_cuda_backend = {.abi = GPUNN_BACKEND_ABI, .device_count = count, .open = open_none};
"""


def need(*tools):
    for tool in tools:
        if shutil.which(tool) is None:
            raise unittest.SkipTest(f"{tool} is not installed")


def program():
    """README.md's first program, for a library that is compiled already."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        return re.search(r"^```c\n#define GPUNN_IMPLEMENTATION\n(.*?)^```", file.read(), re.M | re.S)[1]


class Case(unittest.TestCase):
    """A test in a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def call(self, command, **environment):
        """The output of a shell command, with stderr. It must not fail."""
        done = subprocess.run(command, shell=True, cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True,
                              env={**COMPILER, **os.environ, **environment})
        self.assertEqual(done.returncode, 0, f"$ {command}\n{done.stdout[-4000:]}")
        return done.stdout

    def learns(self, command):
        """The program prints exclusive or."""
        values = re.findall(r"(\d) xor (\d) = ([\d.]+)", self.call(command))
        self.assertEqual(len(values), 4)
        for a, b, p in values:
            self.assertLess(abs(float(p) - (a != b)), 0.2)
