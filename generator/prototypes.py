"""Writes the prototypes of elementwise ops, and of losses that are formulas, into gpunn.h from its own
tables. They are written out so that a search in the header finds them. No other text is changed.

    python3 -m generator.prototypes
"""
import argparse
import re

from . import scalar, table

WIDTH = scalar.WIDTH
# The line before a block, which ends with an empty line.
_ELEMENTWISE = r"/\* Elementwise, from the tables of >>ops.*?\*/\n"
_LOSSES = r"\} gpunn_loss_args;\n/\*.*?\*/\n"


def prototype(name, parameters):
    text = "GPUNN_API gpunn_tensor *gpunn_%s(" % name
    return "\n".join(scalar.wrapped(text, parameters, ");"))


def macro(name, operands, struct):
    """The macro of a builder with named arguments. It passes the last operand with them, so that it always
    has an argument."""
    shown = operands[:-1] or operands
    head = "#define gpunn_%s(%s, ...)" % (name, ", ".join(shown))
    call = "gpunn_%s_(%s, GPUNN_NAMED(gpunn_%s_args, __VA_ARGS__))" % (
        name, ", ".join("(%s)" % one for one in shown), struct)
    return head + (" " if len(head) + 1 + len(call) <= WIDTH else " \\\n    ") + call


def elementwise():
    return [prototype(op.name, ["gpunn_tensor *" + operand
                                for operand in op.operands] + ["float " + name for name, _ in op.attrs])
            for op in table.ops().values() if op.arity and not op.term]


def losses():
    rows = [table.rows()[name] for name in table.formulas() if table.rows()[name].struct == "loss"]
    operands = {row.name: table.formulas()[row.name].operands for row in rows}
    return ([prototype(row.name + "_",
                       ["gpunn_tensor *" + one for one in operands[row.name]] + ["gpunn_loss_args args"])
             for row in rows] + [macro(row.name, operands[row.name], "loss") for row in rows])


def fresh(text):
    """The text of gpunn.h with the prototypes of its tables."""
    for before, lines in ((_ELEMENTWISE, elementwise()), (_LOSSES, losses())):
        found = re.search(before, text, re.S)
        if not found:
            raise table.TableError("gpunn.h has no place for prototypes: '%s'" % before)
        end = text.index("\n\n", found.end())
        text = text[:found.end()] + "\n".join(lines) + text[end:]
    return text


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python3 -m generator.prototypes",
                            description=__doc__.partition("\n\n")[0]).parse_args()
    CONTENT = fresh(table.header())
    with open(table.HEADER, "w", encoding="utf-8") as out:
        out.write(CONTENT)
