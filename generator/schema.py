"""Writes the ops and optimizers of gpunn.h's tables, with their arguments, into model.schema.json. The kinds
of values, and the frame of a spec, are written there by hand.

    python3 -m generator.schema
"""
import argparse
import json
import os

from . import table
from .floats import short

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "model.schema.json")
WIDTH = 110

_WORDS = {1: "one", 2: "two", 3: "three", 4: "four", "MANY": "many"}
_OPERANDS = {"scaled_dot_product_attention": "three_or_one", "expr": "arguments"}
# Definitions of the schema by kind, if the names differ. Their first word is the meaning of a default of 0.
_KINDS = {"CELLS": "odd_window", "AXIS": "integer", "END": "index", "SIZES": "sizes", "FACTORS": "factors",
          "UNLESS": "flag", "NO_BIAS": "flag_or_reference", "RESULT": "shape", "SHARE": "fraction"}
_EMPTY = {"INIT": {"kind": "zeros", "a": 0, "b": 0}, "CONSTS": {}}
_NAMES = {"LAYER": "layer_name", "STACK": "stack_name"}
_SETTINGS = {
    "trainable": {"$ref": "#/$defs/flag", "default": True},
    "decay": {"$ref": "#/$defs/flag", "description": "false: no weight decay.", "default": True},
    "lr_scale": {"$ref": "#/$defs/scale", "description": "Its learning rate, times this.", "default": 1},
    "frozen": {"$ref": "#/$defs/frozen"}, "storage": {"$ref": "#/$defs/storage"}}


def entry(ops, kind, operands, arguments, required, about, names=()):
    """The schema of one entry of "tensors". names: names of its operands, if it has several."""
    layer = kind in _NAMES
    properties = {"op": ops, "id": {"$ref": "#/$defs/id"},
                  "name": {"$ref": "#/$defs/" + _NAMES.get(kind, "tensor_name")}}
    if layer:
        properties["as"] = {"$ref": "#/$defs/result_name"}
    if operands:
        properties["inputs"] = dict({"$ref": "#/$defs/" + operands},
                                    **({"description": ", ".join(names)} if names else {}))
    properties.update(arguments)
    if layer:
        properties["trainable"] = {"$ref": "#/$defs/layer_trainable"}
        properties["frozen"] = {"$ref": "#/$defs/frozen"}
    if kind == "LAYER":
        properties["parameters"] = {"$ref": "#/$defs/parameters"}
    named = ["name"] if layer or kind == "SOURCE" else []
    return {"description": about, "type": "object",
            "required": ["op"] + named + ["inputs"] * bool(operands) + required,
            "additionalProperties": False, "properties": properties}


def argument(row, one, definitions):
    """The schema of one argument of a row."""
    name = _KINDS.get(one.kind, one.kind.lower())
    if one.kind in ("WINDOW", "PADDING"):
        name += "%dd" % row.axes
    part = {"$ref": "#/$defs/" + name}
    if one.about:
        part["description"] = one.about
    if one.default == "EMPTY":
        part["default"] = _EMPTY.get(one.kind, [])
    elif one.default not in ("NEEDED", "NONE"):
        part["default"] = (definitions[name]["enum"][one.default] if "enum" in definitions[name] else
                           one.default)
    return part


def names(row):
    """The names of a row's operands, from the tables."""
    if row.name in table.formulas():
        every = table.formulas()[row.name].operands
    else:
        every = next((op.operands for op in table.ops().values() if op.enum == row.op), ())
    return every[:row.operands] if isinstance(row.operands, int) and row.operands > 1 else ()


def of_row(row, definitions):
    arguments = {one.name: argument(row, one, definitions) for one in row.arguments if one.kind != "BIAS"}
    if row.name == "parameter":
        arguments.update(_SETTINGS)
    operands = _OPERANDS[row.name] if row.operands == "OWN" else _WORDS.get(row.operands)
    return entry({"const": row.name}, row.kind, operands, arguments,
                 [one.name for one in row.arguments if one.default == "NEEDED"], row.about, names(row))


def elementwise(op):
    """The schema of an op of the elementwise tables."""
    # A term's defaults are in formulas, which have no infinity.
    kind = "#/$defs/" + ("number" if op.term else "extended")
    arguments = {name: {"$ref": kind, "default": str(default) if abs(default) == float("inf") else
                        short(default)} for name, default in op.attrs}
    return entry({"const": op.name}, "OP", _WORDS[op.arity], arguments, [], "Elementwise.")


def optimizer(row):
    """The schema of "optimizer" of one type."""
    properties, lists = {"type": {"const": row.name}}, {name: [] for name in table.LISTS}
    for key, kind, default in row.settings:
        default = default if kind == "FLAG" else short(default)
        part = {"SIZE": "scale", "SHARE": "share", "ANY": "number", "COUNT": "few", "CHOICE": "choice",
                "FLAG": "flag"}[kind]
        for name in (name for name, keys in table.LISTS.items() if key in keys):
            lists[name].append(default)
            key, part, default = name, name, lists[name]
        properties[key] = {"$ref": "#/$defs/" + part, "default": default}
    return {"type": "object", "required": ["type"], "additionalProperties": False, "properties": properties}


def ops(definitions):
    result = {row.name: of_row(row, definitions) for row in table.rows().values()}
    plain = [op for op in table.ops().values() if op.arity and not op.attrs]
    for arity, name in (1, "unary"), (2, "binary"), (3, "ternary"):
        result[name] = entry({"enum": [op.name for op in plain if op.arity == arity]}, "OP", _WORDS[arity],
                             {}, [], "Elementwise, without attributes; torch's of these names.")
    result.update((op.name, elementwise(op)) for op in table.ops().values() if op.attrs)
    return result


def complete(root):
    """A schema, with its ops and optimizers replaced by those of the tables."""
    definitions = dict(root["$defs"])
    definitions["ops"] = ops(definitions)
    definitions["tensor"] = {"oneOf": [{"$ref": "#/$defs/ops/" + name} for name in definitions["ops"]]}
    definitions["optimizers"] = {row.name: optimizer(row) for row in table.optimizers().values()}
    definitions["optimizer"] = {"oneOf": [{"$ref": "#/$defs/optimizers/" + name}
                                          for name in definitions["optimizers"]]}
    return dict(root, **{"$defs": definitions})


def text(value, indent=0, used=0):
    """JSON, with as much on a line as fits. used: characters before it on its first line."""
    line = json.dumps(value)
    if used + len(line) + 1 <= WIDTH or not isinstance(value, (dict, list)):
        return line
    inner = " " * (indent + 2)
    keys = ['"%s": ' % key for key in value] if isinstance(value, dict) else [""] * len(value)
    lines, row = [], inner
    for i, item in enumerate(value.values() if isinstance(value, dict) else value):
        on_one_line = keys[i] + json.dumps(item)
        if row.strip() and len(row) + len(on_one_line) + 1 > WIDTH:
            lines.append(row.rstrip())
            row = inner
        row += keys[i] + text(item, indent + 2, len(row + keys[i])) + (", " if i + 1 < len(value) else "")
        if "\n" in row:
            lines.append(row.rstrip())
            row = inner
    lines += [row.rstrip()] if row.strip() else []
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "%s\n%s\n%s%s" % (opening, "\n".join(lines), " " * indent, closing)


def fresh():
    with open(PATH, encoding="ascii") as file:
        return text(complete(json.load(file))) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python3 -m generator.schema",
                            description=__doc__.partition("\n\n")[0]).parse_args()
    CONTENT = fresh()
    with open(PATH, "w", encoding="ascii") as out:
        out.write(CONTENT)
