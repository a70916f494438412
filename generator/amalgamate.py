"""Writes gpunn.h and gpunn_cuda.cu from their parts.

    python3 -m generator.amalgamate                       writes both files, and what follows from their parts
    python3 -m generator.amalgamate --check               writes nothing, and fails where a file is stale
    python3 -m generator.amalgamate --declarations FILE   writes gpunn.h without its implementation

The ninja rules that compile parts, and the picture of the parts, follow from them too.
templates/gpunn/gpunn.h and templates/gpunn_cuda/gpunn_cuda.cu include all parts, in order. Each include is
replaced by the part's text, without its include guard and its own includes of parts. An include of
*.inc, which a part may have several times, becomes the text of that file.
"""
import argparse
import os
import re
import sys

from . import amalgamate_index, parts_picture

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# the rule that compiles parts, and what they need
FILES = {"gpunn.h": ("part", ""), "gpunn_cuda.cu": ("cuda_part", " $\n  | build/include/gpunn.h")}
RULES, PICTURE, INDEX = "templates/parts.ninja", "templates/parts.svg", "templates/ops.md"
INCLUDE = re.compile(r'#include "(\w+/\w+\.\w+)"\n')
GUARD = re.compile(r"#ifndef (GPUNN__\w+_H)\n#define \1\n(.*)#endif /\* \1 \*/\n", re.DOTALL)


def read(*names):
    with open(os.path.join(ROOT, *names), encoding="utf-8", newline="") as file:
        return file.read()


def part(folder, name):
    """The text of a part, without its include guard and its includes of parts."""
    text = read("templates", folder, name)
    guarded = GUARD.fullmatch(text)
    own = guarded[2] if guarded else text
    return INCLUDE.sub(lambda include: part(folder, include[1]) if include[1].endswith(".inc") else "",
                       own).strip("\n") + "\n"


def amalgamate(name):
    """The expected text of gpunn.h or gpunn_cuda.cu."""
    folder = name.partition(".")[0]
    return (re.sub(INCLUDE.pattern + "+", lambda include: part(folder, include[1]) + "\n",
                   read("templates", folder, name)).rstrip("\n") + "\n")


def rules():
    """The ninja rules that compile each part, and link them to build/$parts/gpunn.o and
    build/$parts/gpunn_cuda.o."""
    lines = ["# Written by generator/amalgamate.py: each part compiled by itself, and what they come to.",
             "parts = $parts", "optimize = $optimize"]
    for name, (rule, needs) in FILES.items():
        folder = name.partition(".")[0]
        sources = re.findall(r'#include "(\w+/\w+\.cu?)"', read("templates", folder, name))
        objects = [f"build/$parts/{folder}/{source.partition('.')[0]}.o" for source in sources]
        lines += [f"build {path}: {rule} templates/{folder}/{source}{needs}"
                  for source, path in zip(sources, objects)]
        lines.append(f"build build/$parts/{folder}.o: join " + " $\n  ".join(objects))
    return "\n".join(lines) + "\n"


def parts(name):
    """The texts of a file's parts by their paths, in order."""
    folder = name.partition(".")[0]
    paths = re.findall(INCLUDE.pattern.strip("\n"), read("templates", folder, name))
    return {path: read("templates", folder, path) for path in paths}


def defined_twice(texts):
    """A sentence for each private function or type that two parts define: they compile apart, but not in one
    file."""
    homes = {}
    for path, text in texts.items():
        functions = re.findall(r"^\w[^;{}()]*\b(gpunn__\w+)\([^;{}]*\)\n\{", text, re.M)
        for name in functions + re.findall(r"^\} (gpunn__\w+);", text, re.M):
            homes.setdefault(name, {})[path.partition(".")[0]] = None
    return [f"{name} is defined in {' and '.join(paths)}: rename one"
            for name, paths in homes.items() if len(paths) > 1]


def written():
    """What is written from the parts: name and text."""
    files, cpu, cuda = {name: amalgamate(name) for name in FILES}, parts("gpunn.h"), parts("gpunn_cuda.cu")
    return {**files, RULES: rules(), PICTURE: parts_picture.draw(cpu),
            INDEX: amalgamate_index.write(files["gpunn.h"], cpu, cuda)}


def declarations():
    """gpunn.h without the implementation, but with common/, which gpunn_cuda.cu needs too."""
    return re.sub(r"^#ifdef GPUNN__IMPLEMENTATION\n.*^#endif /\* GPUNN__IMPLEMENTATION \*/\n", "",
                  read("gpunn.h"), flags=re.DOTALL | re.MULTILINE)


def write(path, text):
    """Writes the file only if its text changes. What was built from it stays fresh otherwise."""
    if not os.path.exists(path) or read(path) != text:
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python3 -m generator.amalgamate",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true",
                        help="write nothing; fail if a file differs from its parts")
    parser.add_argument("--declarations", metavar="FILE",
                        help="only write gpunn.h without its implementation to FILE")
    options = parser.parse_args(arguments)
    if options.declarations:
        write(options.declarations, declarations())
        return 0
    twice = [sentence for name in FILES for sentence in defined_twice(parts(name))]
    if twice:
        print("\n".join(twice), file=sys.stderr)
        return 1
    stale = {name: text for name, text in written().items() if not os.path.exists(os.path.join(ROOT, name)) or
             read(name) != text}
    for name, text in stale.items():
        if options.check:
            print(f"{name} differs from its parts in templates: edit these, and run "
                  "python3 -m generator.amalgamate", file=sys.stderr)
        else:
            write(os.path.join(ROOT, name), text)
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
