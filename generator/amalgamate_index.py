"""templates/ops.md: which part builds each op, and which functions compute it, with names that macros
paste."""
import re

from . import table

HEAD = """# Where each op is

Written by generator/amalgamate.py, so that a search finds the names that macros paste. \
Paths are those below `gpunn` and `gpunn_cuda`.

| built | on a CPU | on a GPU |
|---|---|---|
"""


def found(parts, name, end):
    """The parts with that name before the pattern `end`."""
    return [path for path, text in parts.items() if name in text and re.search(rf"\b{name}{end}", text)]


def cells(op, cpu, cuda):
    """Names and the parts that hold them: where it is built, its function on a CPU, and on a GPU."""
    name = op.name
    if op.arity:
        yield f"gpunn__operation_{name}", ["graph/nodes.c"]
        yield f"gpunn__cpu_{name}", ["cpu/elementwise.c"]
        yield "gpunn__cuda_map", ["cuda/elementwise.cu"]
    else:
        built = found(cpu, f"gpunn__operation_{name}", r"\b(?! =)")
        yield f"gpunn__operation_{name}", built or ["layers/formulas.c"] * bool(op.signature)
        yield f"gpunn__cpu_{name}", found(cpu, f"gpunn__cpu_{name}", r"(\)|\(gpunn__cpu )")
        yield f"gpunn__cuda_{name}", found(cuda, f"gpunn__cuda_{name}", r"(\)|\(gpunn__cuda )")


def row(op, cpu, cuda):
    return ("| " + " | ".join(f"`{name}` {', '.join(paths)}" if paths else "-"
                              for name, paths in cells(op, cpu, cuda)) + " |\n")


def write(header, cpu, cuda):
    """The text of the file. header: gpunn.h; cpu, cuda: the texts of the parts of each file, by path."""
    return HEAD + "".join(row(op, cpu, cuda) for op in table.read(header).values())
