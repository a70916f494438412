"""The named arguments of functions: who has which, what they mean and what their defaults are."""

import re
from functools import lru_cache

from . import header, text
from .names import short
from .. import floats, table

WINDOWS = ("WINDOW", "PADDING", "SIZES", "FACTORS")  # kinds with a field for all axes and another for each
NUMBER = r"-?\d[\w. /()*+-]{0,13}"


def number(value):
    """A number or a word of the tables as C writes it."""
    if isinstance(value, str):
        return value
    if abs(value) == float("inf"):
        return "INFINITY" if value > 0 else "-INFINITY"
    return re.sub(r"e-0(?=\d)", "e-", str(floats.short(floats.f32(value))))


@lru_cache(maxsize=None)
def functions():
    """All functions by name, the optimizers that a table declares among them."""
    declared = [header.function(one) for one in header.declared().values() if one.kind == "function"]
    return {one.name: one for one in declared + [optimizer(name) for name in table.optimizers()]}


def optimizer(name):
    model = header.Parameter("model", "gpunn_model *model")
    return header.Function(
        f"gpunn_{name}", "gpunn_optimizer *", [model], f"gpunn_{name}_args", f"gpunn_{name}_"
    )


def settings(function):
    """(name, kind, default) of an optimizer's settings; nothing of other functions."""
    row = table.optimizers().get(short(function.name))
    return row.settings if row else ()


def row_arguments(function):
    """What the table of builders tells of a function's arguments."""
    row = table.rows().get(short(function.name))
    return row.arguments if row else ()


@lru_cache(maxsize=None)
def fields(struct):
    """The fields of a struct of named arguments, but args_."""
    for function in map(optimizer, table.optimizers()):
        if struct == function.struct:
            own = [
                header.Field(name, "bool" if kind == "FLAG" else "float", [], name)
                for name, kind, _ in settings(function)
            ]
            return own + header.read_fields(header.expanded("GPUNN__SELECTION"))
    return [one for one in header.fields(header.declared()[struct]) if one.name != "args_"]


def users(struct):
    return [one for one in functions().values() if one.struct == struct]


def applies(function, field):
    """Whether a function has an argument. Parts of its comment may begin with the names of those that do."""
    words = [word for words, _ in parts(field) for word in words]
    named = [one for word in words for one in called(word, users(function.struct))]
    return not named or function in named


def called(word, functions):
    """The functions that a word means: that of this name, else those that have it in theirs."""
    return [one for one in functions if short(one.name) == word] or [
        one for one in functions if word in one.name
    ]


def parts(field):
    """(names, text) of a comment's parts, where names are the words before a colon: functions or fields."""
    for part in text.plain(field.comment).split("; "):
        begins = re.match(r"([a-z][a-z0-9_]*(?:, [a-z][a-z0-9_]*)*)(?: only$|:|$)", part)
        yield (begins[1].split(", ") if begins else []), part


def taken(function):
    """The named arguments of a function."""
    return [one for one in fields(function.struct) if applies(function, one)] if function.struct else []


def default(function, field):
    """The default of an argument as C writes it; "" where it must be given."""
    listed = [value for name, _, value in settings(function) if name == field.name]
    listed += [one.default for one in row_arguments(function) if is_about(one, field)]
    said = [part for part in parts_about(function, field) if re.search(r"\brequired\b", part)]
    if said or listed[:1] == ["NEEDED"]:
        return ""
    if field.type == "bool":
        return "false"
    if "*" in field.type:
        return "NULL"
    declared = header.declared().get(field.type)
    if declared and declared.kind == "enum":
        return header.values(declared)[0].name
    return number(listed[0]) if listed and listed[0] not in ("NONE", "EMPTY") else told(function, field)


def is_about(argument, field):
    """Whether an argument of the table is this field, for all axes where it has one for each too."""
    return field.name == (argument.name if argument.kind in WINDOWS else argument.field)


def together(function, field):
    """The names of the arguments that share a comment."""
    return [one.name for one in fields(function.struct) if one.place == field.place]


def parts_about(function, field):
    """The parts of a comment that are about this argument, and not about one that shares the comment."""
    others = set(together(function, field))
    return [part for names, part in parts(field) if not others.intersection(names) or field.name in names]


def told(function, field):
    """A default that the comment tells; of several arguments, each its own."""
    comment = "; ".join(parts_about(function, field))
    said = re.search(r"\b[Dd]efaults?:? (.*?)(?:[;:]|\.(?!\d)|$)", comment)
    values = (said[1] if said else re.match(r"[\d.e, -]*", comment)[0].rstrip(". ")).split(", ")
    names = together(function, field)
    value = re.sub(r" \(.*", "", values[names.index(field.name) if len(values) == len(names) else 0])
    return value if re.fullmatch(NUMBER, value) and not field.type.endswith("]") else "0"


def defaults(shown, field):
    """The defaults that several functions give an argument."""
    return sorted({default(one, field) for one in shown if field in taken(one)})


def meaning(shown, field):
    """What an argument or a field means: its comment or, without one, what its name tells."""
    return text.comment(field.comment) or usual_meaning(shown, field.name)


def usual_meaning(shown, name):
    known = [one for function in shown for one in row_arguments(function) if name in (one.field, one.name)]
    if known and known[0].kind in ("UNLESS", "NO_BIAS"):
        return f"<p>PyTorch's <code>{known[0].name}=False</code>.</p>"
    if known and known[0].about:
        return f"<p>{text.inline(known[0].about)}</p>"
    if known or name in [key for function in shown for key, _, _ in settings(function)]:
        return "<p>As PyTorch's argument of this name.</p>"
    return f"<p>Number of {name.removesuffix('_count')}s.</p>" if name.endswith("_count") else ""
