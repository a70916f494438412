#!/usr/bin/env python3
"""Tests builds that choose their kernels at run time: python3 tests/compile/levels.py NATIVE CHOOSING PROGRAM
...

Runs each test program at every level that the processor has. NATIVE and CHOOSING are levels.c, built for this
processor and for any. At NATIVE's level both must compute the same, to the last bit."""
import os
import re
import subprocess
import sys

# the values of GPUNN_VECTORS, of gpunn_device_name, and the flags that /proc/cpuinfo must have
LEVELS = (("sse2", "4 lanes", {"sse2"}), ("avx2", "AVX2", {"avx2", "fma", "bmi2"}),
          ("avx512", "AVX-512", {"avx2", "fma", "bmi2", "avx512vl", "avx512bw", "avx512dq"}),
          ("bf16", "AVX-512 BF16",
           {"avx2", "fma", "bmi2", "avx512vl", "avx512bw", "avx512dq", "avx512_bf16"}),
          ("amx", "AMX BF16", {"avx2", "fma", "bmi2", "avx512vl", "avx512bw", "avx512dq", "avx512_bf16",
                               "amx_tile", "amx_bf16"}))


def flags():
    """The processor's flags."""
    with open("/proc/cpuinfo") as file:
        return set((re.search(r"^flags\s*: (.*)$", file.read(), re.M) or [0, ""])[1].split())


def run(program, level):
    return subprocess.run([program], env=dict(os.environ, GPUNN_VECTORS=level, CMOCKA_MESSAGE_OUTPUT="TAP"),
                          stdout=subprocess.PIPE, text=True)


def line(good, text, skip=""):
    print(f"{'ok' if good else 'not ok'} - {text}{skip and ' # SKIP ' + skip}", flush=True)
    return 1


def sums(native, choosing, level, name):
    """Checks that the level is used, and compares its results with the native build's at the same level."""
    wanted, found = (run(program, level).stdout.splitlines() for program in (native, choosing))
    count = line(found[:1] and found[0].endswith(name), f"{level}: the device is {found[:1]}")
    if not wanted[0].endswith(name):
        return count + line(True, f"{level}: equal to -march=native", f"that is {wanted[0]}")
    return count + line(wanted == found and len(wanted) > 5, f"{level}: equal to -march=native")


def suite(program, level):
    done = run(program, level)
    print(re.sub(r"^1\.\.\d+\n", "",
                 re.sub(r"^((?:not )?ok \d+ - )", rf"\1{level}: ", done.stdout, flags=re.M), flags=re.M),
          end="", flush=True)
    if done.returncode < 0:
        print(f"not ok - {program} died of signal {-done.returncode}")
    return int((re.search(r"^1\.\.(\d+)$", done.stdout, re.M) or [0, 1])[1])


# what gcc 12 leaves to single numbers at -O2 unless told otherwise
KERNELS = ("rnn_cell", "gru_cell", "gru_cell_backward", "lstm_cell", "lstm_cell_backward",
           "loss_backward_task", "reduce_block", "spread_task", "cumsum_task", "pool_last")


def vectors(program):
    """Checks that an -O2 build computes these kernels by vectors of 8 floats."""
    for kernel in KERNELS:
        code = subprocess.run(["objdump", "-d", f"--disassemble=gpunn__{kernel}_avx2", program],
                              stdout=subprocess.PIPE, text=True, check=True).stdout
        found = re.findall(r"\bv(?:add|sub|mul|max|cmp|fn?m)\w*p[sd]\s.*%ymm", code)
        line(found, f"{kernel}: {len(found)} operations of AVX2")
    return len(KERNELS)


def main():
    native, choosing, *programs = sys.argv[1:]
    count, has = vectors(choosing), flags()
    for level, name, needs in LEVELS:
        if needs - has:
            count += line(True, level, "the processor lacks " + " ".join(sorted(needs - has)))
        else:
            count += sums(native, choosing, level, name)
            if level not in ("bf16", "amx"):  # the programs' models have no use for these
                count += sum(suite(program, level) for program in programs)
    print(f"1..{count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
