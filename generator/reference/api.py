"""gpunn.h's declarations as other languages need them: types taken apart, the values of constants, and the
first sentence of each comment."""

import re
from collections import namedtuple
from functools import lru_cache

from . import arguments, entries, header, text
from .. import table

# kind: VOID NUMBER BOOL ENUM STRUCT TEXT POINTER FUNCTION. name: in C; of a POINTER what it points to, of a
# FUNCTION its type. sizes: of an array. constant: whether a POINTER is to what C does not change.
Type = namedtuple("Type", "kind name sizes constant", defaults=((), False))
Variable = namedtuple("Variable", "name type about")
# symbol: its name in the library. struct: of the named arguments, which are no parameters here; None without.
# said: the whole comment.
Function = namedtuple("Function", "name symbol result parameters struct about said")
Struct = namedtuple("Struct", "name section fields about")
Constant = namedtuple("Constant", "name value about")
Callback = namedtuple("Callback", "result parameters")

_SIZED = [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)]
NUMBERS = ("char", "signed char", "unsigned char", "int", "unsigned", "float", "double", "size_t", *_SIZED)
INNER = ("backend", "kernels")  # sections of which programs need next to nothing
C_ONLY = ("gpunn_strtod",)  # what other languages have themselves
_LIMITS = {"INT32_MAX": 2**31 - 1, "INT64_MAX": 2**63 - 1}


def type_of(code):
    """The type of a field or a parameter, from C's text without the name."""
    if re.search(r"\(\*\w*\)\(", code):
        return Type("FUNCTION", code)
    if "(*" in code:  # a pointer to an array
        return Type("POINTER", "void")
    plain = re.sub(r"\bconst\b ?|\bstruct ", "", code)
    name, star, sizes = re.fullmatch(r"(.*?) ?(\*?)((?:\[[^]]*\])*)", plain).groups()
    sizes = tuple(map(number, re.findall(r"\[([^]]*)\]", sizes)))
    if code == "const char *":
        return Type("TEXT", name)
    return Type("POINTER" if star else kind_of(name), name, sizes, bool(star) and "const" in code)


def kind_of(name):
    if name in NUMBERS:
        return "NUMBER"
    if name in ("void", "bool"):
        return name.upper()
    one = header.declared()[name]
    return {"enum": "ENUM", "struct": "STRUCT", "typedef": "FUNCTION"}[one.kind]


def callback(code):
    """A type that is a function: what it returns and takes. It may be the name of one."""
    if "(*" not in code:
        code = " ".join(re.match(r"typedef (.*);", header.declared()[code].code, re.S)[1].split())
    result, inner = re.fullmatch(r"(.*?)\(\*\w*\)\((.*)\)", code).groups()
    listed = [] if inner == "void" else [header.parameter(one) for one in table.split(inner)]
    return Callback(type_of(result.strip()), [parameter(one) for one in listed])


def parameter(one):
    """A parameter, which is a pointer where C writes an array."""
    code = re.sub(rf"\b{one.name}\b", "", one.text, count=1).strip()
    kind = type_of(re.sub(r"\[.*\]$", "*", code))
    return Variable(one.name, kind, "")


def may_be_null(function, name):
    """Whether the comment of a function says what NULL means for a parameter."""
    return re.search(rf"\b{name} (?:\(may be )?NULL", function.said) is not None


@lru_cache(maxsize=None)
def functions():
    """All functions but those of C_ONLY, in the header's order."""
    found = {}
    for section in header.sections():
        for _, entry in entries.entries(section):
            for one in entry.functions:
                said = entries.summary(entry), text.plain(entry.comment)
                listed = [parameter(given) for given in one.parameters]
                result = type_of(one.result)
                found[one.name] = Function(one.name, one.plain, result, listed, one.struct, *said)
    return [one for one in found.values() if one.name not in C_ONLY]


@lru_cache(maxsize=None)
def structs():
    """All structs that the header defines, by name, each after those that it holds."""
    found = {}
    for section in header.sections().values():
        for one in section.declarations:
            if one.kind == "struct" and header.declared().get(one.name) is one:
                listed = list(map(field, header.fields(one)))
                found[one.name] = Struct(one.name, section.name, listed, text.first_sentence(one.comment))
    for name in (f"gpunn_{one}_args" for one in table.optimizers()):
        listed = [Variable("args_", Type("NUMBER", "int"), "")] + list(map(field, arguments.fields(name)))
        found[name] = Struct(name, "train", listed, "")
    return found


def field(one):
    return Variable(one.name, type_of(one.type), text.first_sentence(one.comment))


@lru_cache(maxsize=None)
def constants():
    """All constants with a value, by name: macros that are a number or a text, and the values of enums."""
    found = {}
    for one in header.declared().values():
        if one.kind == "macro":
            add_macro(found, one)
        elif one.kind == "enum":
            add_values(found, one)
    return found


def add_macro(found, one):
    code = re.sub(r"/\*.*?\*/", "", one.code, flags=re.S)
    value = re.fullmatch(r"#define \w+ (.*?)\s*", code)
    said = text.first_sentence(one.own or one.comment)
    if value and re.fullmatch(r'"[^"]*"', value[1]):
        found[one.name] = Constant(one.name, value[1].strip('"'), said)
    elif value and is_number(value[1], found):
        found[one.name] = Constant(one.name, calculated(value[1], found), said)


def add_values(found, one):
    code, following = header.without_comments(header.body(one)), 0
    public = {each.name for each in header.values(one)}
    for each in header.all_values(one):
        given = re.search(rf"\b{each.name}\s*=\s*([^,\n]*)", code)
        following = calculated(given[1], found) if given else following
        if each.name in public:
            found[each.name] = Constant(each.name, following, text.first_sentence(each.comment))
        following += 1


def is_number(code, known):
    return re.fullmatch(r"[\d\s()+*-]*\d[\d\s()+*-]*", digits(code, known)) is not None


def digits(code, known):
    """An expression with numbers for the names of constants."""
    values = {**_LIMITS, **{name: one.value for name, one in known.items()}}
    return re.sub(r"\b[A-Z]\w+\b", lambda name: str(values.get(name[0], name[0])), code)


def calculated(code, known):
    if not is_number(code, known):
        raise table.TableError(f"gpunn.h has a constant that is no number: '{code}'")
    return eval(digits(code, known), {"__builtins__": {}})


def number(code):
    """The value of an array's size."""
    return calculated(code, constants())
