#!/usr/bin/env python3
"""Finds CUDA in the system's folders or in Python's wheels: nvcc, compute-sanitizer, the headers and the
libraries of cuBLASLt, cuDNN and NCCL, and the driver.

    python3 tests/gpu/toolkit.py          lists what it found
    eval "$(python3 tests/gpu/toolkit.py --shell)"    sets main()'s variables; GPU_ARCH is empty without a GPU
    GPUNN_GPU_BUNDLE=1         in the environment: compile for bundle.py's archive, not for this machine
    python3 tests/gpu/toolkit.py --nvcc   the beginning of a compile line

Standard library only. The wheels are searched beside the Python that runs this."""
import ctypes
import functools
import glob
import os
import shlex
import shutil
import site
import subprocess
import sys


def wheels():
    """The folders nvidia/* on this Python's search path."""
    places = list(dict.fromkeys(sys.path + site.getsitepackages() + [site.getusersitepackages()]))
    return [folder for place in places
            for folder in sorted(glob.glob(os.path.join(place or ".", "nvidia", "*")))
            if os.path.isdir(folder)]


def compilers():
    """Every nvcc, the preferred one first."""
    folders = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME")]
    behind = (["/usr/local/cuda"] + sorted(glob.glob("/usr/local/cuda-*"), reverse=True) +
              ["/usr", "/usr/lib/nvidia-cuda-toolkit"] + wheels())
    found = [os.environ.get("NVCC")] + [os.path.join(folder, "bin", "nvcc") for folder in folders if folder]
    found += [shutil.which("nvcc")] + [os.path.join(folder, "bin", "nvcc") for folder in behind]
    return [path for path in dict.fromkeys(filter(None, found)) if os.access(path, os.X_OK)]


def root(nvcc):
    """The toolkit's folder, as nvcc reports it: the program may be a script that calls another. None: it does
    not run."""
    try:
        done = subprocess.run([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    top = [line[len("#$ TOP="):] for line in done.stdout.splitlines() if line.startswith("#$ TOP=")]
    return os.path.realpath(top[0]) if top else None


def first(patterns):
    return next((hit for pattern in patterns for hit in sorted(glob.glob(pattern), reverse=True)), None)


class Toolkit:
    """nvcc is None if there is no compiler. flags: what it needs beside the files."""

    def __init__(self):
        found = compilers()
        self.nvcc, self.folder = next(((nvcc, folder)
                                       for nvcc, folder in ((nvcc, root(nvcc)) for nvcc in found) if folder),
                                      (None, None))
        own = ([self.folder] if self.folder else []) + ["/usr"]
        others = [os.path.dirname(os.path.dirname(os.path.realpath(nvcc))) for nvcc in found]
        beside = wheels() if self.folder in wheels() else []  # of the same release
        everywhere = list(dict.fromkeys(own + beside + others + wheels()))
        self.headers = {name: first(os.path.join(folder, sub, name) for folder in everywhere for sub in
                                    ("include", "targets/*/include", "include/x86_64-linux-gnu")) for name in
                        ("cuda_runtime.h", "cublasLt.h", "cudnn.h", "nccl.h")}
        self.libraries = {name: first(os.path.join(folder, sub, name + ".so.[0-9]*") for folder in everywhere
                                      for sub in ("lib64", "lib", "targets/*/lib", "lib/x86_64-linux-gnu"))
                          for name in ("libcublasLt", "libcudnn", "libnccl")}
        self.sanitizer = shutil.which("compute-sanitizer") or first(
            os.path.join(folder, "bin", "compute-sanitizer") for folder in everywhere + ["/usr/local/cuda*"])
        standard = {os.path.join(folder, "include") for folder in own}
        added = dict.fromkeys(os.path.dirname(path) for path in self.headers.values() if path)
        self.flags = ["-I" + folder for folder in added if folder not in standard]
        if (self.folder and not os.path.isdir(os.path.join(self.folder, "lib64")) and
            os.path.isdir(os.path.join(self.folder, "lib"))):
            # the wheels' layout, where nvcc does not look
            self.flags.append("-L" + os.path.join(self.folder, "lib"))

    def run(self, *arguments):
        return subprocess.run([self.nvcc, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True).stdout

    def version(self):
        """(13, 0), or None."""
        words = self.run("--version").split("release ")
        return tuple(map(int, words[1].split(",")[0].split("."))) if len(words) > 1 else None

    def architectures(self):
        return [int(word.split("_")[1]) for word in self.run("--list-gpu-arch").split()]

    def arch(self):
        """The value of -arch for the first GPU; without one, for a server's. If the GPU is newer than nvcc,
        it is PTX for the driver."""
        capability = gpu()[1] or 90
        known = self.architectures() if self.nvcc else []
        return f"sm_{capability}" if capability in known or not known else f"compute_{max(known)}"

    def target(self):
        """(nvcc's flags, the C compiler's) for the machine on which the programs run: this one, or one with
        an H100 or H200."""
        if "GPUNN_GPU_BUNDLE" in os.environ:
            # and GCC's libraries of that machine: static ones need this machine's glibc
            host = "-march=x86-64-v3"
            return ["-gencode=arch=compute_90,code=sm_90", "--compress-mode=size", "-Xcompiler", host], [host]
        return ["-lineinfo", "-arch=" + self.arch(), "-Xcompiler", "-march=native"], ["-march=native"]


# Where containers mount the driver without telling the loader.
MOUNTS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu",
          "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/usr/local/cuda/compat")


@functools.lru_cache(maxsize=None)  # a library that is open is found everywhere
def driver():
    """(the driver's library or None, its folder for the loader or "")."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for folder in [""] + [one for one in folders if one] + list(MOUNTS):
        try:
            return ctypes.CDLL(os.path.join(folder, "libcuda.so.1")), folder
        except OSError:
            continue
    return None, ""


def gpu():
    """(a sentence, the compute capability such as 90 or None) of the first GPU."""
    cuda = driver()[0]
    if cuda is None:
        return "no driver (libcuda.so.1)", None
    count, major, minor, name = (ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0),
                                 ctypes.create_string_buffer(100))
    status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return f"a driver, but no GPU (code {status})", None
    cuda.cuDeviceGetName(name, 100, 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, 0)
    return (f"{count.value} x {name.value.decode()}, sm_{major.value}{minor.value}",
            10 * major.value + minor.value)


def main():
    found = Toolkit()
    if "--nvcc" in sys.argv:
        print(shlex.join([found.nvcc or "nvcc", *found.flags]))
        return
    if "--shell" in sys.argv:
        for_nvcc, for_cc = found.target()
        values = {"NVCC": found.nvcc or "", "NVCC_FLAGS": " ".join(found.flags + for_nvcc),
                  "CC_FLAGS": " ".join(for_cc), "SANITIZER": found.sanitizer or "",
                  "DRIVER_PATH": driver()[1], "GPU_ARCH": found.arch() if gpu()[1] else "",
                  "GPU_FOUND": gpu()[0] if gpu()[1] else ""}
        for name, library in (("GPUNN_CUDA_PATH", "libcublasLt"), ("GPUNN_CUDNN_PATH", "libcudnn"),
                              ("GPUNN_NCCL_PATH", "libnccl")):
            values[name] = os.path.dirname(found.libraries[library]) if found.libraries[library] else ""
        for name, value in values.items():
            print(f"{name}={shlex.quote(value)}")
        return
    release = found.version() if found.nvcc else None
    print(f"nvcc           {found.nvcc or 'not found'}" +
          (f", CUDA {release[0]}.{release[1]}" if release else ""))
    for name, path in [*found.headers.items(), *found.libraries.items(), ("sanitizer", found.sanitizer)]:
        print(f"{name:15}{path or 'not found'}")
    print(f"flags          {' '.join(found.flags)}")
    print(f"driver         {driver()[1] or 'where the loader looks'}" if driver()[0] else
          "driver         not found")
    print(f"GPU            {gpu()[0]}")


if __name__ == "__main__":
    main()
