#!/usr/bin/env python3
"""The archive of programs that a machine with a GPU runs without compiling anything. tests/gpu/run.sh calls
this.

    python3 tests/gpu/bundle.py pack FOLDER ARCHIVE      the programs of FOLDER, and a stamp of their sources
    python3 tests/gpu/bundle.py unpack ARCHIVE FOLDER --arch sm_90
    python3 tests/gpu/bundle.py newest                   the source that was changed last

unpack rejects an archive for another GPU or from other sources, with a sentence and status 1. Then it starts
each program with --help. A program that does not load is named and removed from FOLDER, so that run.sh builds
it. An archive of which none loads, as with an older glibc, is rejected. Standard library only."""
import argparse
import concurrent.futures
import hashlib
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
ARCH = "sm_90"  # what toolkit.py compiles for
MOST_BYTES = 24 << 20
STAMP = "stamp.json"
# The sources of the programs; the build generates the rest from these.
SOURCES = ["*.h", "*.c", "*.cu", "*.cpp", "generator", "templates", "examples/kernels",
           "tests/generator/specs", "tests/generator/build_sets.py", "tests/bench/gpu_kernels.py",
           "tests/bench/fused_gpu.py", ":!examples/kernels/*_kernels.*", ":!*.md", ":!*.svg"]
BUILDERS = ["tests/gpu/programs.sh", "tests/gpu/toolkit.py"]  # they determine how


class Unfit(Exception):
    pass


def said_by(*command):
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def sha256(path):
    try:
        with open(os.path.join(ROOT, path), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return "missing"


def source_paths():
    return said_by("git", "ls-files", "--", *SOURCES).splitlines()


def make_stamp(nvcc):
    sources = {path: sha256(path) for path in source_paths()}
    return {"commit": said_by("git", "describe", "--always", "--dirty", "--exclude=*"), "arch": ARCH,
            "nvcc": nvcc, "sources": sources,
            "hash": hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:16]}


def programs(folder):
    paths = {name: os.path.join(folder, name) for name in sorted(os.listdir(folder))}
    return [name for name, path in paths.items() if os.path.isfile(path) and os.access(path, os.X_OK) and
            not name.endswith(".o")]


def pack(folder, archive, stamp, most=MOST_BYTES):
    """Returns the archive's bytes. An archive that is too large is deleted."""
    with open(os.path.join(folder, STAMP), "w", encoding="utf-8") as file:
        json.dump(stamp, file, indent=1)
    names = programs(folder)
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for name in [STAMP] + names:
            tar.add(os.path.join(folder, name), name)
    size = os.path.getsize(archive)
    if size > most:
        os.remove(archive)
        largest = sorted(names, key=lambda name: -os.path.getsize(os.path.join(folder, name)))[:5]
        raise Unfit(f"{archive} would have {size} bytes, {most} is the limit; the largest programs are "
                    f"{', '.join(largest)}")
    return size


def check(stamp, arch):
    """Raises Unfit if the programs have other sources, or are for another GPU."""
    if stamp["arch"] != arch:
        raise Unfit(f"it is for {stamp['arch']}, the GPU is {arch}")
    changed = [path for path, digest in stamp["sources"].items() if sha256(path) != digest]
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise Unfit(f"it was built at {stamp['commit']} from other sources: {', '.join(changed[:3])}{more}")


def why_not_loaded(path):
    """The loader's message for a program that does not load. None for one that starts, whatever it does
    then."""
    # A program of test.h runs no test, and programs without --help find no GPU.
    settings = {**os.environ, "GPUNN_TEST_FROM": "1000000", "GPUNN_TEST_DEVICE": "cpu",
                "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run([os.path.abspath(path), "--help"], env=settings, cwd=ROOT, timeout=10,
                              stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        return str(error)
    if done.returncode == 127 or done.returncode < 0 or "not found (required by" in done.stdout:
        return (done.stdout.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return None


def unpack(archive, folder, arch):
    """(stamp, programs, {program: why it does not load}). What an earlier call unpacked from the same archive
    is reused."""
    if not os.path.exists(archive):
        raise Unfit("it is not there; tests/gpu/run.sh --bundle makes it on a machine with nvcc")
    try:
        with tarfile.open(archive) as tar:
            text = tar.extractfile(STAMP).read()
            stamp = json.loads(text)
            check(stamp, arch)
            if not unpacked(folder, text):
                extract(tar, folder, text)
    except (OSError, EOFError, KeyError, ValueError, lzma.LZMAError, tarfile.TarError) as error:
        raise Unfit(f"it is damaged: {error}") from error
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        names = [name for name in programs(folder) if ".so" not in name]
        reasons = dict(zip(names, pool.map(lambda name: why_not_loaded(os.path.join(folder, name)), names)))
    refused = {name: why for name, why in reasons.items() if why}
    if names and len(refused) == len(names):
        raise Unfit(f"none of its programs loads: {reasons[names[0]]}")
    for name in refused:
        os.remove(os.path.join(folder, name))
    return stamp, len(names), refused


def extract(tar, folder, text):
    """The stamp comes last, so that an interrupted extraction is not taken as complete."""
    for one in tar:
        path = os.path.join(folder, os.path.basename(one.name))
        if one.name != STAMP:
            with open(path, "wb") as file:
                shutil.copyfileobj(tar.extractfile(one), file)
            os.chmod(path, 0o755)
    with open(os.path.join(folder, STAMP), "wb") as file:
        file.write(text)


def unpacked(folder, text):
    try:
        with open(os.path.join(folder, STAMP), "rb") as file:
            return file.read() == text
    except OSError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("pack", "unpack", "newest"))
    parser.add_argument("source", nargs="?")
    parser.add_argument("target", nargs="?")
    parser.add_argument("--arch", default=ARCH)
    options = parser.parse_args()
    if options.what == "newest":
        print(max(source_paths() + BUILDERS, key=lambda path: os.path.getmtime(os.path.join(ROOT, path))))
        return 0
    try:
        if options.what == "pack":
            stamp = make_stamp(said_by(os.environ.get("NVCC", "nvcc"), "--version").splitlines()[-1])
            size, count = pack(options.source, options.target, stamp), len(programs(options.source))
        else:
            stamp, count, refused = unpack(options.source, options.target, options.arch)
            for name, why in refused.items():
                print(f"{name} of the archive does not load: {why}")
            size = os.path.getsize(options.source)
    except Unfit as why:
        print(f"{options.source}: {why}")
        return 1
    print(f"{count} files for {stamp['arch']}, {size / 2**20:.1f} MiB, {stamp['nvcc']}, sources "
          f"{stamp['hash']}, commit {stamp['commit']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
