"""The ops of a model and the arguments of their builders, read from gpunn.h. Its tables are the only place
that lists them."""
import json
import os
import re
from collections import namedtuple
from functools import lru_cache, reduce
from operator import or_

from . import floats

HEADER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gpunn.h")

# arity: 0 for ops that are not elementwise; those have no attributes, forward and derivatives here. attrs:
# (name, default), ... gradients: bit k for operand k; -1: all. term: of a loss, which has no builder in C.
# traits: bits of read_traits. operands: names.
# signature: what signature.py reads; "": the rule is a function.
Op = namedtuple("Op", "name enum arity attrs forward derivatives gradients term traits operands signature",
                defaults=(False, 0, (), ""))

# A builder outside the elementwise tables. kind: SOURCE OP LAYER STACK. operands: a number, MANY or OWN.
# struct, call: what the call of its builder reads. default: a number, True, False, NEEDED, NONE or EMPTY.
# attributes: for a row of GPUNN_SIGNATURE_OPS, the arguments that the text of its node has.
Row = namedtuple("Row", "name kind op operands axes arguments struct call about attributes",
                 defaults=(None,))
# field: its name in C
Argument = namedtuple("Argument", "name kind default about field", defaults=("",))
# The formula of a row's builder: the operands' names, and the check (Graph.fits_*) that they must pass.
Formula = namedtuple("Formula", "operands fits text")

# settings: (key, kind, default), ...; kind: SIZE SHARE ANY COUNT CHOICE FLAG. states: settings that need
# them, or ALWAYS. once, step: (name, text), ... whole: an update needs a whole parameter, so no kernel is
# generated.
Optimizer = namedtuple("Optimizer", "name enum settings states once step whole")

# Settings that a spec writes as one list.
LISTS = {"betas": ("beta1", "beta2"), "ns_coefficients": ("ns_a", "ns_b", "ns_c")}

OPERANDS = ("", "x", "ab", "abc")  # by arity: the operands' names in the texts


class TableError(Exception):
    """gpunn.h does not have the tables in the form that this generator reads."""


def split(text):
    """Splits a text at the commas outside of parentheses and strings, with single spaces in each part."""
    parts, depth, start, string = [], 0, 0, False
    for i, character in enumerate(text):
        string ^= character == '"' and text[i - 1] != "\\"
        depth += 0 if string else (character == "(") - (character == ")")
        if character == "," and depth == 0 and not string:
            parts.append(text[start:i])
            start = i + 1
    return [" ".join(part.split()) for part in parts + [text[start:]]]


def entries(body, macro="X"):
    """The arguments of each macro of that name in a macro's body."""
    for name, fields in calls(body):
        if not re.fullmatch(macro, name):
            raise TableError("unexpected text in a table of ops: '%s'" % name)
        yield fields


def calls(body):
    """The name and the arguments of each macro in a macro's body."""
    at = 0
    while True:
        start = re.compile(r"\s*(\w+)\s*\(").match(body, at)
        if not start:
            if body[at:].strip():
                raise TableError("unexpected text in a table of ops: '%s'" % body[at:].strip()[:40])
            return
        depth, at, string = 1, start.end(), False
        while depth:
            if at == len(body):
                raise TableError("a table of ops ends within an entry")
            string ^= body[at] == '"' and body[at - 1] != "\\"
            depth += 0 if string else (body[at] == "(") - (body[at] == ")")
            at += 1
        yield start.group(1), split(body[start.end():at - 1])


def elementwise(kind, fields):
    arity = {"UNARY": 1, "BINARY": 2, "LOSS": 2, "TERNARY": 3}[kind.rstrip("12")]
    count = int(kind[-1]) if kind[-1].isdigit() else 0
    if len(fields) != 2 + 2 * count + 1 + arity:
        raise TableError("the op '%s' has %d columns" % (fields[1] if len(fields) > 1 else "?", len(fields)))
    attrs = tuple((fields[2 + 2 * i], number(fields[3 + 2 * i])) for i in range(count))
    forward, derivatives = fields[2 + 2 * count], tuple(fields[3 + 2 * count:])
    gradients = sum((text != "0") << k for k, text in enumerate(derivatives))
    return Op(fields[1], fields[0], arity, attrs, forward, derivatives, gradients, kind.startswith("LOSS"),
              operands=tuple(OPERANDS[arity]))


def other(fields, traits):
    if len(fields) != 8:
        raise TableError("the op '%s' has %d columns" % (fields[1] if len(fields) > 1 else "?", len(fields)))
    return Op(fields[1], fields[0], 0, (), None, (), int(fields[5]), traits=bits(fields[6], traits),
              operands=tuple(re.findall(r"\w+", fields[2])), signature=string(fields[7]))


def of_signature(fields):
    """The columns of GPUNN_OTHER_OPS of a row of GPUNN_SIGNATURE_OPS."""
    return fields[1:3] + fields[4:10]


def bits(text, traits):
    """The value of names and numbers joined by |."""
    parts = [part.strip() for part in text.split("|")]
    return reduce(or_, (int(part) if part.isdigit() else traits[part[len("GPUNN__"):]] for part in parts))


def read_traits(text):
    """{name: bits}, each after those that it is made of."""
    own, _ = lines(text, "traits")
    result = {}
    for name, value in re.findall(r"GPUNN__(\w+) = ([^,}]*)", own):
        result[name] = bits(value, result)
    return result


def number(text):
    """A default: digits, perhaps in K(), or INFINITY, perhaps with a sign."""
    match = re.fullmatch(r"(-?)\s*(?:K\(([0-9.e+-]+)\)|([0-9.]+|INFINITY))", text)
    if not match:
        raise TableError("'%s' is no number" % text)
    value = floats.f32(float(match.group(2) or match.group(3)))
    return -value if match.group(1) else value


@lru_cache(maxsize=1)
def plain(text):
    """A header without its comments, except those that bound tables, and with each macro on one line."""
    text = re.sub(r"/\*.*?\*/", lambda comment: comment.group() if ">>" in comment.group() else " ", text,
                  flags=re.S)
    return re.sub(r"\\[ \t]*\r?\n", " ", text)


def spread(given):
    """A spec's optimizer, with the settings of its lists by their own names."""
    own = {key: x for name, keys in LISTS.items() for key, x in zip(keys, given.get(name, ()))}
    return dict(given, **own)


def optimizer(family, fields):
    if len(fields) != (8 if family == "TRUST_" else 6):
        raise TableError("the optimizer '%s' has %d columns" %
                         (fields[1] if len(fields) > 1 else "?", len(fields)))
    settings = tuple((one[0], "FLAG", False) if len(one) == 1 else (one[1], one[0], number(one[2]))
                     for one in entries(fields[2], "(?:NUMBER|FLAG)"))
    states = tuple(one for one, in entries(fields[3], "STATE"))
    steps = [part.partition("=") for part in fields[5].split(";") if part.strip()]
    return Optimizer(fields[1], fields[0], settings, states, tuple(map(tuple, entries(fields[4], "ONCE"))),
                     tuple((name.split()[-1], text.strip()) for name, _, text in steps), bool(family))


def lines(text, word):
    """The text between the comments '>>word begin' and '>>word end' and that after them, in its plain
    form."""
    text = plain(text)
    begin, end = text.find("/* >>%s begin */" % word), text.find("/* >>%s end */" % word)
    if not 0 <= begin < end:
        raise TableError("there is no table between '>>%s begin' and '>>%s end'" % (word, word))
    return text[begin:end], text[end:]


def read(text):
    """All ops of a gpunn.h, by name in the order of its enum."""
    own, rest = lines(text, "ops")
    traits = read_traits(text)
    defines = re.findall(r"^[ \t]*#[ \t]*define[ \t]+GPUNN_(UNARY[12]?|BINARY|LOSS1?|TERNARY)_OPS\(X\)(.*)$",
                         own, re.M)
    defines += re.findall(r"^[ \t]*#[ \t]*define[ \t]+GPUNN_(SIGNATURE|OTHER|ALIAS)_OPS\([SX, ]+\)(.*)$",
                          rest, re.M)
    result = {}
    for kind, body in defines:
        for macro, fields in calls(body):
            if macro == "GPUNN_SIGNATURE_OPS":  # whose rows stand before
                continue
            if macro != ("S" if kind == "SIGNATURE" else "X"):
                raise TableError("unexpected text in a table of ops: '%s'" % macro)
            fields = of_signature(fields) if kind == "SIGNATURE" else fields
            op = (other(fields, traits) if kind in ("SIGNATURE", "OTHER", "ALIAS") else
                  elementwise(kind, fields))
            if op.name in result:
                raise TableError("the op '%s' is listed twice" % op.name)
            result[op.name] = op
    return result


def read_optimizers(text):
    """All optimizers of a gpunn.h, by name in the order of its enum."""
    own, _ = lines(text, "optimizers")
    defines = re.findall(r"^[ \t]*#[ \t]*define[ \t]+GPUNN_(TRUST_|MATRIX_)?OPTIMIZERS\([A-Z, ]*\)(.*)$",
                         own, re.M)
    rows = [optimizer(family, fields) for family, body in defines for fields in entries(body)]
    return {row.name: row for row in rows}


def mentions(text, name):
    """Whether a forward or derivative text of the table reads this operand, result or gradient."""
    return re.search(r"\b%s\b" % name, text) is not None


def named(text):
    """(name, C string) of each macro of a plain header that is a text."""
    return re.findall(r'^#define GPUNN__(\w+) +("[^\n]*)$', text, re.M)


def read_rows(text):
    """The builders of a gpunn.h outside the elementwise tables (>>graph/arguments), by name in order; and the
    Formulas of those that have one."""
    text = plain(text)
    lists = {name: (parameters, body) for name, parameters, body in re.findall(
        r"^#define GPUNN__(\w+)\(K, A, S((?:, \w+)*)\)(.*)$", text, re.M)}
    table, made, signed = (re.search(r"^#define GPUNN_%s\)(.*)$" % name, text, re.M) for name in (
        r"_ROWS\(X", r"_FORMULAS\(F, X", r"SIGNATURE_OPS\(S, X"))
    if not table or not made or not signed:
        raise TableError("there are no tables GPUNN__ROWS, GPUNN__FORMULAS and GPUNN_SIGNATURE_OPS")

    def listed(name, kind, *given):
        """The columns of the entries of a kind, K A or S, of a list."""
        parameters, body = lists[name]
        for parameter, value in zip(re.findall(r"\w+", parameters), given):
            body = re.sub(r", %s," % parameter, ", %s," % value, body)
        for call, fields in calls(body):
            if call == kind:
                yield fields
            elif call not in ("K", "A", "S"):
                yield from listed(call[len("GPUNN__"):], kind, *fields[3:])

    def arguments(name):
        for _, key, kind, usual, field, about in listed(name, "K"):
            yield Argument(key, kind, default(usual), string(about), field)

    result, formulas, rows = {}, {}, made.group(1)
    for name, part in named(text):  # what several formulas have in common
        rows = re.sub(r"\bGPUNN__%s\b" % name, lambda _, part=part: part, rows)
    for macro, fields in calls(table.group(1)):
        if macro == "GPUNN__FORMULAS":
            for _, name, count, operands, fits, keys, struct, form, formula, about in entries(rows, "F"):
                taken = tuple(arguments(keys + "_ARGS"))
                result[name] = Row(name, "OP", "NONE", int(count), 0, taken, struct,
                                   builder_of(name, int(count), form, taken), string(about))
                formulas[name] = Formula(tuple(re.findall(r"\w+", operands)), fits.lower(), string(formula))
            continue
        if macro == "GPUNN_SIGNATURE_OPS":
            for _, enum, name, count, *_, keys, struct, form, about in entries(signed.group(1), "S"):
                taken = tuple(arguments(keys + "_ARGS"))
                result[name] = Row(name, "OP", enum, int(count), 0, taken, struct,
                                   builder_of(name, int(count), form, taken), string(about),
                                   tuple(fields[0] for fields in listed(keys + "_ARGS", "A")))
            continue
        kind, name, op, operands, axes, keys, struct, call, about = fields
        operands = int(operands) if operands.isdigit() else operands[len("GPUNN__"):]
        result[name] = Row(name, kind, op, operands, int(axes), tuple(arguments(keys + "_ARGS")), struct,
                           call, string(about))
    return result, formulas


def builder_of(name, count, form, arguments):
    """The call of the builder that a row of GPUNN__FORMULAS or GPUNN_SIGNATURE_OPS has."""
    taken = ["in[%d]" % i for i in range(count)]
    taken += ["*a"] if form == "ARGS" else ["a->" + one.field for one in arguments]
    return "gpunn_%s%s(%s)" % (name, "_" if form == "ARGS" else "", ", ".join(taken))


def read_structs(text):
    """The members of each struct of arguments, in order, by the word between gpunn_ and _args."""
    return {name: re.findall(r"(\w+)(?:\[\w+\])?[,;]", body)
            for name, body in re.findall(r"struct gpunn_(\w+)_args \{([^{}]*)\} gpunn_\1_args;", plain(text))}


def string(text):
    """The value of a C string literal, perhaps in several parts."""
    return "".join(map(json.loads, re.findall(r'"(?:[^"\\]|\\.)*"', text)))


def default(text):
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("GPUNN__OPERAND("):
        return "NONE"
    if text.startswith("GPUNN__"):
        return text[len("GPUNN__"):]
    return float(text) if "." in text or "e" in text else int(text)


def read_integers(text):
    """The elementwise ops of integers: by name, their number of operands and whether they give bool."""
    table = re.search(r"^[ \t]*#define GPUNN_INTEGER_OPS\(X\)(.*)$", plain(text), re.M)
    if not table:
        raise TableError("there is no table GPUNN_INTEGER_OPS")
    return {name: (int(operands), is_bool == "1")
            for _, name, operands, is_bool, _ in entries(table.group(1))}


@lru_cache(maxsize=None)
def header():
    with open(HEADER, encoding="utf-8") as file:
        return file.read()


@lru_cache(maxsize=None)
def ops():
    return read(header())


@lru_cache(maxsize=None)
def traits():
    return read_traits(header())


@lru_cache(maxsize=None)
def integers():
    return read_integers(header())


def having(trait):
    """The ops with a trait of gpunn.h's enum, by name."""
    return tuple(op.name for op in ops().values() if op.traits & traits()[trait] == traits()[trait])


@lru_cache(maxsize=None)
def rows():
    return read_rows(header())[0]


def follows(op):
    """Whether an op's row alone tells its builder."""
    return op in formulas() or rows()[op].attributes is not None


@lru_cache(maxsize=None)
def structs():
    return read_structs(header())


@lru_cache(maxsize=None)
def formulas():
    return read_rows(header())[1]


@lru_cache(maxsize=None)
def words(name):
    """The words of a choice, in the order of its enum."""
    listed = re.search(r"\bgpunn__%s_names\[\] = \{(.*?)\}" % name, plain(header()), re.S).group(1)
    return tuple(map(string, split(listed)))


@lru_cache(maxsize=None)
def texts():
    """The named formulas, or named parts of formulas."""
    return {name: string(part) for name, part in named(plain(header()))}


@lru_cache(maxsize=None)
def harmonics():
    """For each spherical harmonic the forms (c[0], c[1], c[2], c[3]) whose product it is."""
    body = re.search(r"\bgpunn__harmonic\[.*?= (\{.*?\});", plain(header()), re.S).group(1)
    return json.loads(re.sub(r"(?<=\d)f\b", "", body).translate({ord("{"): "[", ord("}"): "]"}))


@lru_cache(maxsize=None)
def optimizers():
    return read_optimizers(header())
