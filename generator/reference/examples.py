"""Code that calls a function, from what the tests compile: manual, guides, examples, tests/docs/calls.c."""

import glob
import os
import re
import textwrap
from collections import namedtuple
from functools import lru_cache

from . import manual
from .. import table

ROOT = os.path.dirname(table.HEADER)
FILES = ("README.md", "examples/**/*.md", "examples/*.[ch]", "tests/docs/calls.c")
MOST, SHORT = 10, 5  # lines: of a statement, and of a piece of the manual that is shown whole
# What a statement begins after, and a line that is a comment.
_BEFORE = re.compile(r"[;{}:][ \t]*(?://.*|/\*.*\*/[ \t]*)?\n\Z|\n\n\Z|\*/\n\Z|^[ \t]*//.*\n\Z", re.M)
_DEFINITION = re.compile(r"\s*(?:#|\*)|(?:static |GPUNN_API |void |int )\w.*\)$")
_REMARK = re.compile(r"^[ \t]*(?://.*|/\*.*\*/)\n\Z", re.M)
_CALL = re.compile(r"\b(gpunn_\w+) ?\((?!\w+ \*)|(?<== )(gpunn_\w+)[,)]")  # or a function that is an argument

# place: which file, or which chapter of the manual, and where the reference shows that.
Example = namedtuple("Example", "code place address")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def sources():
    """(rank, place, address, code): examples of a lower rank are preferred."""
    for title, chapter in manual.chapters():
        for piece in manual.pieces(chapter):
            yield 0, title, "manual.html#" + manual.anchor(title), piece
    for rank, pattern in enumerate(FILES, 1):
        for path in sorted(glob.glob(pattern, root_dir=ROOT, recursive=True)):
            texts = blocks(read(path)) if path.endswith(".md") else [read(path)]
            yield from ((rank, path, "", code) for code in texts)


def blocks(text):
    """The C code of a guide: its blocks, and the calls within its tables."""
    yield from re.findall(r"^```c\n(.*?)^```$", text, re.M | re.S)
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for code in re.findall(r"`([^`\n]*gpunn_\w+\([^`\n]*)`", rest):
        if "..." not in code:
            yield code.rstrip(";") + ";"


@lru_cache(maxsize=None)
def every():
    """The best example of each function, by its name."""
    best = {}
    for rank, place, address, code in sources():
        for call in _CALL.finditer(code):
            name = call[call.lastindex]
            if name in best and best[name][0] < (rank,):
                continue
            shown = (
                code.strip("\n") if address and code.count("\n") < SHORT else statement(code, call.start())
            )
            score = (rank, len(shown) if place.startswith("examples/") and not place.endswith(".md") else 0)
            if shown and (name not in best or score < best[name][0]):
                best[name] = score, Example(shown, place, address)
    return {name: found for name, (_, found) in best.items()}


def call(function):
    """A call of a builder that takes only tensors and numbers; tests/docs/reference.py compiles it."""
    given = []
    for one in function.parameters:
        kind = one.text[: -len(one.name)].strip()
        given.append({"gpunn_tensor *": one.name, "float": "0.5f"}.get(kind, ""))
    if function.struct or function.result != "gpunn_tensor *" or not all(given):
        return ""
    return f"gpunn_tensor *{'z' if 'y' in given else 'y'} = {function.name}({', '.join(given)});"


def statement(code, place):
    """The statement in which a call stands; nothing where that is no plain statement of few lines."""
    start = code.rfind("\n", 0, place) + 1
    while start and not _BEFORE.search(code, max(0, start - 200), start):
        start = code.rfind("\n", 0, start - 1) + 1
        if code.count("\n", start, place) > MOST:
            return ""
    while _REMARK.search(code, max(0, start - 200), start):
        start = code.rfind("\n", 0, start - 1) + 1
    end, depth = place, 0
    while end < len(code) and (depth > 0 or code[end] != ";"):
        depth += (code[end] in "({") - (code[end] in ")}")
        end += 1
    end = code.find("\n", end) % (len(code) + 1)
    lines = textwrap.dedent(code[start:end]).strip("\n")
    if _DEFINITION.match(lines) or lines.count("\n") >= MOST or unclosed(lines):
        return ""
    return re.sub(r" {2,}(?=/[/*])" if "\n" in lines else r"(?<=\S) {2,}", " ", lines)


def unclosed(code):
    """How many brackets are open at the end."""
    plain = re.sub(r'"(?:[^"\\]|\\.)*"|\'.\'', "", code)
    return sum((character in "({[") - (character in ")}]") for character in plain)
