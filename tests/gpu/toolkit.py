#!/usr/bin/env python3
"""Finds CUDA: nvcc, the headers and the libraries of cuBLASLt and cuDNN, in the system's places or in Python's wheels.

    python3 tests/gpu/toolkit.py          says what is where
    eval "$(python3 tests/gpu/toolkit.py --shell)"      sets NVCC, NVCC_FLAGS, GPUNN_CUDA_PATH, GPUNN_CUDNN_PATH, GPU_ARCH (empty: none)
    python3 tests/gpu/toolkit.py --nvcc   the beginning of a compile line

Standard library only; the wheels are looked for beside the Python that runs this.
"""
import ctypes
import glob
import os
import shlex
import shutil
import site
import subprocess
import sys


def wheels():
    """The folders nvidia/* of every place in which this Python looks for packages."""
    places = list(dict.fromkeys(sys.path + site.getsitepackages() + [site.getusersitepackages()]))
    return [folder for place in places for folder in sorted(glob.glob(os.path.join(place or ".", "nvidia", "*"))) if os.path.isdir(folder)]


def toolkits():
    """Folders that hold bin/nvcc, the preferred one first."""
    found = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME")]
    on_path = shutil.which("nvcc")
    if on_path:
        found.append(os.path.dirname(os.path.dirname(os.path.realpath(on_path))))
    found += ["/usr/local/cuda"] + sorted(glob.glob("/usr/local/cuda-*"), reverse=True) + ["/usr", "/usr/lib/nvidia-cuda-toolkit"] + wheels()
    return [folder for folder in dict.fromkeys(filter(None, found)) if os.access(os.path.join(folder, "bin", "nvcc"), os.X_OK)]


def first(patterns):
    return next((hit for pattern in patterns for hit in sorted(glob.glob(pattern), reverse=True)), None)


class Toolkit:
    """nvcc is None where there is no compiler; flags are what it needs beside the files."""

    def __init__(self):
        folders = toolkits()
        self.nvcc = os.environ.get("NVCC") or (os.path.join(folders[0], "bin", "nvcc") if folders else None)
        self.folder = folders[0] if folders else None
        own = folders[:1] + ["/usr"]
        everywhere = own + folders[1:] + wheels()
        self.headers = {name: first(os.path.join(folder, sub, name) for folder in everywhere for sub in
                                    ("include", "targets/*/include", "include/x86_64-linux-gnu")) for name in
                        ("cuda_runtime.h", "cublasLt.h", "cudnn.h")}
        self.libraries = {name: first(os.path.join(folder, sub, name + ".so.[0-9]*") for folder in everywhere for sub in
                                      ("lib64", "lib", "targets/*/lib", "lib/x86_64-linux-gnu")) for name in ("libcublasLt", "libcudnn")}
        standard = {os.path.join(folder, "include") for folder in own}
        added = dict.fromkeys(os.path.dirname(path) for path in self.headers.values() if path)
        self.flags = ["-I" + folder for folder in added if folder not in standard]
        if self.folder and not os.path.isdir(os.path.join(self.folder, "lib64")) and os.path.isdir(os.path.join(self.folder, "lib")):
            self.flags.append("-L" + os.path.join(self.folder, "lib"))  # the wheels' layout, where nvcc does not look

    def run(self, *arguments):
        return subprocess.run([self.nvcc, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout

    def version(self):
        """(13, 0), or None."""
        words = self.run("--version").split("release ")
        return tuple(map(int, words[1].split(",")[0].split("."))) if len(words) > 1 else None

    def architectures(self):
        return [int(word.split("_")[1]) for word in self.run("--list-gpu-arch").split()]


def gpu():
    """(the sentence, the compute capability such as 90 or None) of the first GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no driver (libcuda.so.1)", None
    count, major, minor, name = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0), ctypes.create_string_buffer(100)
    status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return f"a driver, but no GPU (code {status})", None
    cuda.cuDeviceGetName(name, 100, 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, 0)
    return f"{count.value} x {name.value.decode()}, sm_{major.value}{minor.value}", 10 * major.value + minor.value


def main():
    found = Toolkit()
    if "--nvcc" in sys.argv:
        print(shlex.join([found.nvcc or "nvcc", *found.flags]))
        return
    if "--shell" in sys.argv:
        values = {"NVCC": found.nvcc or "", "NVCC_FLAGS": " ".join(found.flags), "GPU_ARCH": str(gpu()[1] or "")}
        for name, library in ("GPUNN_CUDA_PATH", "libcublasLt"), ("GPUNN_CUDNN_PATH", "libcudnn"):
            values[name] = os.path.dirname(found.libraries[library]) if found.libraries[library] else ""
        for name, value in values.items():
            print(f"{name}={shlex.quote(value)}")
        return
    release = found.version() if found.nvcc else None
    print(f"nvcc           {found.nvcc or 'not found'}" + (f", CUDA {release[0]}.{release[1]}" if release else ""))
    for name, path in list(found.headers.items()) + list(found.libraries.items()):
        print(f"{name:15}{path or 'not found'}")
    print(f"flags          {' '.join(found.flags)}")
    print(f"GPU            {gpu()[0]}")


if __name__ == "__main__":
    main()
