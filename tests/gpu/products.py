#!/usr/bin/env python3
"""Compares cuBLASLt's answers on this GPU with earlier ones: python3 tests/gpu/products.py PROGRAM [--out
FILE] [--tables FOLDER]

PROGRAM is built from products.cu. Its table is written to FILE line by line. An algorithm that is offered and
then rejected is a failure. The tables in FOLDER (tests/gpu/products) were made on real GPUs, one for each
card and release of cuBLASLt. If one exists, each line that differs before its bar is a failure. If none
exists, the new table should be committed under the reported name."""
import argparse
import difflib
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def file_name(head):
    """The name of the table that begins with the line "# NVIDIA H200, 132 multiprocessors, ..., compute
    capability 9.0, cuBLASLt 130100"."""
    card, release = head.lstrip("# ").partition(",")[0], head.rpartition(" ")[2]
    return re.sub(r"\W+", "_", f"{card} cuBLASLt {release}") + ".txt"


def answers(lines):
    """Without the times, which vary."""
    return [line.partition(" |")[0] for line in lines if not line.startswith("#")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--out", default=os.devnull)
    parser.add_argument("--tables", default=os.path.join(HERE, "products"))
    options = parser.parse_args()
    lines = []
    with open(options.out, "w") as out, subprocess.Popen([options.program], stdout=subprocess.PIPE,
                                                         text=True) as process:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            out.write(line)
            out.flush()
    if process.returncode or not lines:
        print("\n".join(lines[-3:]))
        print(f"{options.program} ended with {process.returncode} after {len(lines)} lines")
        return 1
    table = os.path.join(options.tables, file_name(lines[0]))
    none = sum(" 64 0/" in line for line in lines)
    refused = [line for line in lines if "| refused" in line]
    print("\n".join([f"{len(lines) - 1} products, {none} of them without an algorithm for well placed "
                     f"operands, {len(refused)} refused"] + refused[:50]))
    if not os.path.exists(table):
        print(f"There is no table for this card and release yet: commit {options.out} as "
              f"{os.path.relpath(table)}")
        return 1 if refused else 0
    with open(table) as file:
        before = file.read().splitlines()
    changes = [line for line in difflib.unified_diff(answers(before), answers(lines), lineterm="", n=0)
               if line[0] in "+-" and not line.startswith(("+++", "---"))]
    print("\n".join(changes[:200]))
    print(f"{len(changes)} lines differ from {os.path.relpath(table)}")
    return 1 if changes or refused else 0


if __name__ == "__main__":
    sys.exit(main())
