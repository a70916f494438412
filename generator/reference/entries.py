"""The entries of a page: what gpunn.h declares under one comment, as data and as HTML."""

import re
from collections import namedtuple
from html import escape

from . import examples, header, text
from .arguments import default, defaults, fields, functions, meaning, number, taken
from .names import short, torch
from .. import table

# anchors: names of its places. fields: of a struct. values: of an enum. one: its first declaration.
Entry = namedtuple("Entry", "anchors functions comment fields values one", defaults=([], [], None))

RETURNS = {
    "gpunn_tensor *": "the result, or NULL on failure and where an operand is NULL",
    "gpunn_status": '<code>GPUNN_OK</code>, or <a href="status.html#gpunn_status">why it failed</a>',
    **{
        f"gpunn_{kind} *": f"the {kind}, or NULL on failure"
        for kind in ("device", "model", "optimizer", "loader", "group", "session")
    },
}
OBJECTS = re.compile(r"\bgpunn_(?:device|model|tensor|optimizer|loader|group|session)\b")
# Values of an enum that are shown at once, examples of an entry, characters of a type that stay on a line.
MOST_VALUES, MOST_EXAMPLES, MOST_TYPE = 30, 2, 24


# ---- what belongs together ----


def entries(section):
    """(heading, entry) of a section. Functions of one comment and one struct of arguments share an entry."""
    found, last = [], None
    for one in header.sections()[section].declarations:
        if header.declared().get(one.name) is not one or one.name.endswith("_args"):
            continue
        function = functions().get(one.name.rstrip("_"))
        key = (one.group, function.struct) if function and not has_own_entry(one) else None
        if key and key == last:
            found[-1][1].functions.append(function)
            found[-1][1].anchors.append(function.name)
        else:
            found.append((one.heading, entry(one, function)))
        last = key
    return found


def entry(one, function):
    said = one.own or ([] if shares(one) and not function and not is_first(one) else one.comment)
    if function:
        return Entry([function.name], [function], [] if is_in_table(one) and shares(one) else said, one=one)
    if one.kind == "struct":
        return Entry([one.name], [], said, header.fields(one), one=one)
    return Entry([one.name], [], said, [], header.values(one) if one.kind == "enum" else [], one)


def is_elementwise(name):
    """Whether a table has a function's value as an expression."""
    return name in table.ops() and table.ops()[name].arity > 0


def is_formula(name):
    return name in table.formulas() and table.rows()[name].struct == "_plain"


def is_in_table(one):
    name = short(one.name)
    return is_elementwise(name) or is_formula(name) or name in table.optimizers()


def shares(one):
    """Whether a declaration has its comment together with others."""
    groups = [other.group for other in header.sections()[one.section].declarations]
    return not one.own and groups.count(one.group) > 1


def is_first(one):
    """Whether a declaration follows its comment at once."""
    return (
        next(other for other in header.sections()[one.section].declarations if other.group == one.group)
        is one
    )


def has_own_entry(one):
    return one.kind != "function" or bool(one.own) or is_in_table(one)


def summary(one):
    """A sentence about an entry."""
    name = short(one.anchors[0])
    if is_elementwise(name) and one.functions:
        return table.ops()[name].forward
    return text.first_sentence(one.comment) or (table.rows()[name].about if name in table.rows() else "")


# ---- HTML ----


def html(one, placed):
    """An entry as HTML; placed: the structs of arguments that the page has shown already."""
    kind = "entry" if one.functions else "entry other"
    parts = function_parts(one, placed) if one.functions else other_parts(one)
    return f'<section class="{kind}">' + "\n".join(filter(None, parts)) + "</section>"


def function_parts(one, placed):
    shown = one.functions
    yield from calls(shown)
    yield text.comment(one.comment)
    if shown[0].struct:
        anchor = "" if shown[0].struct in placed else f' id="{shown[0].struct}"'
        placed.add(shown[0].struct)
        listed = [one for one in fields(shown[0].struct) if any(one in taken(function) for function in shown)]
        yield f"<div{anchor}>{fields_table(shown, listed)}</div>"
    yield "<dl class=facts>" + "".join(f"<dt>{term}<dd>{said}" for term, said in facts(shown)) + "</dl>"
    different = list(dict.fromkeys(filter(None, map(example, shown))))
    yield from (f"<div class=example>{one}</div>" for one in different[:MOST_EXAMPLES])


def heading(name, kind=""):
    names = "".join(f"<span class=torch>{escape(one)}</span>" for one in torch(name))
    beside = f"<small>{kind}</small>" if kind else names
    return f'<h3 id="{name}"><a href="#{name}">{escape(name)}</a>{beside}</h3>'


def calls(shown):
    """Headings and prototypes; functions that differ in nothing but the name share a prototype."""
    alike = {}
    for function in shown:
        alike.setdefault(prototype(function).replace(function.name, ""), []).append(function)
    for first, *others in alike.values():
        yield from (heading(function.name) for function in (first, *others))
        yield prototype(first)
        if others:
            names = " and ".join(f"<code>{one.name}</code>" for one in others)
            yield f"<p class=alike>The same for {names}.</p>"


def prototype(function):
    """A function's call with its named arguments and their defaults."""
    given = [text.code(one.text) for one in function.parameters]
    given += [named(function, field) for field in taken(function)]
    spans = [f"<span>{one},</span>" for one in given[:-1]] + [f"<span>{one})</span>" for one in given[-1:]]
    result = text.code(function.result) + ("" if function.result.endswith("*") else " ")
    call = f"<strong>{function.name}</strong>({' '.join(spans) or 'void)'}"
    return f"<code class=prototype>{result}{call}</code>"


def named(function, field):
    usual = default(function, field)
    shown = "" if usual in ("", "0", "NULL", "false") else f" = {text.code(usual)}"
    return f"<b>.{field.name}</b>{shown}"


def fields_table(shown, listed):
    """Arguments of functions, or fields of a struct; those that are declared together share their meaning."""
    places = {}
    for field in listed:
        places.setdefault(field.place, []).append(field)
    bodies = [
        "<tbody>" + "".join(field_row(shown, field, together) for field in together)
        for together in places.values()
    ]
    names = "Argument Type Default Meaning" if shown else "Field Type Meaning"
    head = "".join(f"<th>{name}" for name in names.split())
    return f"<table class={'arguments' if shown else 'fields'}><thead><tr>{head}{''.join(bodies)}</table>"


def field_row(shown, field, together):
    cells = [f"<code>{'.' if shown else ''}{field.name}</code>", type_of(field)]
    if shown:
        cells.append(
            " or ".join(
                f"<code>{text.code(one)}</code>" if one else "<em>required</em>"
                for one in defaults(shown, field)
            )
        )
    row = "<tr>" + "".join(f"<td>{cell}" for cell in cells)
    if field is not together[0]:
        return row
    return f"{row}<td class=meaning rowspan={len(together)}>{meaning(shown, field)}"


def type_of(field):
    """A type; a long one may be broken between words."""
    return f"<code{' class=long' if len(field.type) > MOST_TYPE else ''}>{text.code(field.type)}</code>"


def facts(shown):
    """(term, HTML) of what the header's tables and types tell of functions."""
    name = short(shown[0].name)
    yield from takes(shown)
    if is_elementwise(name):
        yield from op_facts(table.ops()[name])
    if is_formula(name):
        formula = f"<br><code>{escape(table.formulas()[name].text)}</code>"
        yield "Computes", text.inline(table.rows()[name].about) + formula
        yield from usual_values((one.name, one.default) for one in table.rows()[name].arguments)
    if name in table.integers():
        yield "Dtypes", "F32, and integers: " + text.inline("GPUNN_INTEGER_OPS")
    if name in table.optimizers():
        steps = table.optimizers()[name].once + table.optimizers()[name].step
        yield "Update", "<pre>" + escape("\n".join(f"{key} = {value}" for key, value in steps)) + "</pre>"
    if shown[0].result in RETURNS:
        yield "Returns", f'{RETURNS[shown[0].result]} ({text.chapter("ERRORS")})'
    if any(OBJECTS.search(one.text) for one in shown[0].parameters):
        yield "Threads", f'one at a time for each device ({text.chapter("THREADS")})'
    if shown[0].struct:
        struct = f"<code>{text.name(shown[0].struct)}</code>"
        yield "Without macros", ", ".join(map(plain_call, shown)) + f" with {struct}"


def takes(shown):
    """What the table of builders says of operands, of each function where there are several."""
    for function in shown:
        name = short(function.name)
        about = table.rows()[name].about if name in table.rows() and not is_formula(name) else ""
        about = re.sub(r"[;,]? *torch[\w.]*\.?$|^torch[\w.]*\.$", "", about)
        if about and len(shown) == 1:
            yield "Takes", text.inline(about)
        elif "[" in about:
            yield name, text.inline(about)


def op_facts(op):
    yield "Computes", f"<code>{escape(op.forward)}</code>"
    slopes = [
        f"<code>{escape(slope)}</code>" + (f" for {operand}" if op.arity > 1 else "")
        for operand, slope in zip(op.operands, op.derivatives)
    ]
    where = ", where <code>g</code> is that of the result <code>y</code>"
    yield "Gradient", "none" if set(op.derivatives) == {"0"} else ", ".join(slopes) + where
    yield from usual_values(op.attrs)


def usual_values(pairs):
    """PyTorch's defaults of arguments that have none in C."""
    said = ", ".join(f"<code>{name} = {number(value)}</code>" for name, value in pairs)
    if said:
        yield "PyTorch's defaults", said


def plain_call(function):
    return f"<code>{function.plain}({', '.join([one.name for one in function.parameters] + ['args'])})</code>"


def example(function):
    """Code that calls a function, and where it stands."""
    found, plain = examples.every().get(function.name), examples.call(function)
    if plain and (not found or "\n" in found.code):
        return f"<pre>{text.code(plain)}</pre>"
    if not found:
        return ""
    place = f"manual: {text.chapter(found.place)}" if found.place in text.HEADINGS else found.place
    return f"<pre>{text.code(found.code)}</pre><p class=place>{place}</p>"


def other_parts(one):
    """Of types and macros."""
    yield heading(one.one.name, one.one.kind)
    if one.one.kind in ("macro", "typedef"):
        yield f"<pre>{text.code(first_line(one.one.code))}</pre>"
    yield text.comment(one.comment)
    if one.one.kind == "macro" and one.one.section == "ops":
        yield ops_table(one.one.name)
    yield fields_table([], one.fields) if one.fields else ""
    yield values_list(one) if one.values else ""


def first_line(code):
    """A declaration without its comment; of a table the beginning."""
    code = re.sub(r"\s+/\*.*?\*/$", "", code, flags=re.S)
    return code.split("\n")[0].rstrip("\\ ") + " ..." if "\\\n" in code else code


def ops_table(name):
    """The elementwise ops of a table, with their values and derivatives."""
    ops = [table.ops()[row[1]] for row in header.table_rows(name) if is_elementwise(row[1])]
    cells = [
        (text.name("gpunn_" + op.name, op.name), escape(op.forward), "<br>".join(map(escape, op.derivatives)))
        for op in ops
    ]
    rows = ["<tbody><tr>" + "".join(f"<td><code>{cell}</code>" for cell in row) for row in cells]
    head = "<thead><tr><th>Op<th>Value<th>Derivative for each operand"
    return f"<table class=ops>{head}{''.join(rows)}</table>" if rows else ""


def values_list(one):
    rows = []
    for value in one.values:
        place = "" if value.name in one.anchors else f' id="{value.name}"'
        rows.append(f"<dt{place}><code>{value.name}</code><dd>{text.inline(text.plain(value.comment))}")
    listed = f"<dl class=values>{''.join(rows)}</dl>"
    return (
        listed
        if len(rows) < MOST_VALUES
        else f"<details><summary>{len(rows)} values</summary>{listed}</details>"
    )
