"""What gpunn.h declares, with the comments beside it: functions, structs, enums and macros."""

import re
from collections import namedtuple
from functools import lru_cache

from .. import table
from .text import is_full

# heading: of the family within a section. comment: of several declarations in a row; own: behind this one.
# group: a number that declarations under one comment share.
Declaration = namedtuple("Declaration", "kind name code comment own section heading group")
Section = namedtuple("Section", "name comment declarations")
# place: of its declaration, which several fields may share with its comment.
Field = namedtuple("Field", "name type comment place")
Parameter = namedtuple("Parameter", "name text")
# struct: of the named arguments, None without. plain: the name in C without macros.
Function = namedtuple("Function", "name result parameters struct plain")
Value = namedtuple("Value", "name comment")

_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_SECTION = re.compile(r"/\* ==== >>(\w+) =+\s*\*(/?)")
_VALUE = re.compile(r"#.*|(/\*(?:.|\n)*?\*/)|(GPUNN_?_[A-Z0-9_]+)\(GPUNN__X[^)]*\)|\b(GPUNN_[A-Z0-9_]+)")
_BEHIND = re.compile(r"[ \t]*(/\*.*?\*/)", re.S)
_LINE_END = re.compile(r"[ \t]*\n?[ \t]*")
_MACRO = re.compile(r"(?:[^\n]*\\\n)*[^\n]*")
_CALL = re.compile(r"[A-Z_]+\([^;{}\n]*\)(?=\n)")
_HEADING = re.compile(r"/\* -- (.*?) -- \*/", re.S)


def without_comments(text):
    """The text with spaces for comments, so that places stay."""
    return _COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment[0]), text)


def c_only(text):
    """The text as C reads it: lines for C++ alone are empty."""
    kept, branches = [], []  # whether each open #if is in a branch for C++ alone
    for line in text.splitlines():
        directive = re.match(r"#\s*(if|el|endif)", line)
        if directive and directive[1] == "if":
            branches.append(line.startswith("#ifdef __cplusplus"))
        elif directive and directive[1] == "el":
            branches[-1] = False
        kept.append("" if any(branches) or directive else line)
        if directive and directive[1] == "endif":
            branches.pop()
    return "\n".join(kept) + "\n"


@lru_cache(maxsize=None)
def public():
    """The declarations of gpunn.h, on the lines that they have there."""
    text = table.header()
    start, end = text.index("#ifndef GPUNN_H\n"), text.index("#endif /* GPUNN_H */")
    return c_only("\n" * text.count("\n", 0, start) + text[start:end] + "#endif\n")


def comment_lines(comment):
    """What a comment says, as (text, whether the line is full)."""
    lines = comment.splitlines()
    texts = [re.sub(r"^\s*(?:/\*|\*(?!/)) ?|\s*\*/$", "", line).rstrip() for line in lines]
    return [(text, is_full(line, following)) for text, line, following in zip(texts, lines, texts[1:] + [""])]


def pieces(text):
    """(kind, text, comment behind it) of what stands at the outermost level, empty lines too."""
    code, at = without_comments(text), 0
    while at < len(text):
        kind, end = piece(text, code, at)
        behind = _BEHIND.match(text, end) if kind == "declaration" else None
        yield kind, text[at:end], behind[1] if behind else ""
        at = _LINE_END.match(text, behind.end() if behind else end).end()


def piece(text, code, at):
    """The kind of what begins at a place, and where it ends; code is the text without comments."""
    if text[at] == "\n":
        return "blank", at
    if text.startswith("/*", at):
        return "comment", text.index("*/", at) + 2
    if text[at] == "#":
        return "macro", _MACRO.match(text, at).end()
    call = _CALL.match(text, at)
    return ("call", call.end()) if call else ("declaration", declaration_end(code, at))


def declaration_end(code, at):
    depth = 0
    while depth or code[at] != ";":
        depth += (code[at] in "{(") - (code[at] in "})")
        at += 1
    return at + 1


def name_of(code):
    """(kind, name) of a declaration without comments."""
    found = re.match(r"(?:typedef )?(struct|enum) ?(\w*) ?\{", code)
    if found:
        return found[1], found[2] or " ".join(re.findall(r"[A-Z]\w+", code)[:1])
    if code.startswith("GPUNN_API"):
        return "function", re.search(r"\b(gpunn_\w+) ?\(", code)[1]
    found = re.match(r"typedef .*?(?:\(\*(\w+)\)|\b(\w+);)", code)
    return ("typedef", found[1] or found[2]) if found else ("", "")


class Reader:
    """Reads pieces one after another: a declaration belongs to the section, heading and comment before it."""

    def __init__(self):
        self.sections, self.section, self.heading, self.comment, self.group = {}, None, "", "", 0

    def read_blank(self, *_):
        """Ends what a comment is about."""
        self.comment, self.group = "", self.group + 1

    def read_comment(self, code, _):
        start, title = _SECTION.match(code), _HEADING.match(code)
        self.group += 1
        if start:
            self.section = Section(start[1], [] if start[2] else comment_lines(code)[1:], [])
            self.sections[start[1]] = self.section
        if start or title:
            self.heading, self.comment = title[1].replace("\n *", "") if title else "", ""
        elif "clang-format" not in code and ">>" not in code[:6]:
            self.comment = code

    def read_macro(self, code, _):
        found = re.match(r"#define (\w+)", code)
        behind = re.search(r"/\*.*?\*/$", code) if "\\\n" not in code else None
        if found:
            self.add("macro", found[1], code, behind[0] if behind else "")

    def read_declaration(self, code, own):
        kind, name = name_of(" ".join(_COMMENT.sub(" ", code).split()))
        if name:
            self.add(kind, name, code, own)

    def read_call(self, *_):
        """Of a table, by which it declares something."""

    def add(self, kind, name, code, own):
        if self.section:
            comments = comment_lines(self.comment), comment_lines(own)
            place = self.section.name, self.heading, self.group
            self.section.declarations.append(Declaration(kind, name, code, *comments, *place))


@lru_cache(maxsize=None)
def sections():
    """The sections of the public header, by name in their order."""
    reader = Reader()
    for kind, code, own in pieces(public()):
        getattr(reader, "read_" + kind)(code, own)
    return reader.sections


@lru_cache(maxsize=None)
def declared():
    """All public declarations, by name; a struct's definition comes before its name alone."""
    result = {}
    for section in sections().values():
        for one in section.declarations:
            if "__" not in one.name and (one.name not in result or one.kind not in ("typedef", "macro")):
                result[one.name] = one
    return {name: one for name, one in result.items() if not (one.kind == "macro" and name + "_" in result)}


def function(one):
    """A declaration's function, with its named arguments where a macro has those."""
    code = " ".join(_COMMENT.sub(" ", one.code).split())
    result, name, inner = re.fullmatch(r"GPUNN_API (.*?)(gpunn_\w+) ?\((.*)\);", code).groups()
    parameters = [] if inner == "void" else [parameter(text) for text in table.split(inner)]
    struct = re.match(r"(gpunn_\w+_args) args$", parameters[-1].text) if parameters else None
    positional = parameters[:-1] if struct else parameters
    return Function(name.rstrip("_"), result.strip(), positional, struct[1] if struct else None, name)


def parameter(text):
    found = re.search(r"\(\*(\w+)\)|(\w+)(?:\[[^]]*\])*$", text)
    return Parameter(found[1] or found[2], text)


def body(one):
    """What stands between the braces of a struct or an enum."""
    return expanded(one.code[one.code.index("{") + 1 : one.code.rindex("}")])


def expanded(text):
    """Fields with those of GPUNN__CHOSEN and GPUNN__SELECTION, which several structs share."""
    for _ in range(2):
        text = re.sub(r"\bGPUNN__(?:CHOSEN|SELECTION)\b", lambda macro: shared_fields(macro[0]), text)
    return text


@lru_cache(maxsize=None)
def shared_fields(name):
    text = re.search(rf"#define {name}\b(?:[^\n]*\\\n)*[^\n]*", public())[0]
    return re.sub(r"[ \t]*\\\n", "\n", text.partition(name)[2])


def fields(one):
    """The fields of a struct, those that one declaration has in common with its comment."""
    return read_fields(body(one))


def read_fields(text):
    """The fields that a text declares."""
    code = without_comments(text)
    found, at, comment = [], 0, ""
    while code[at:].strip() or text[at:].strip().startswith("/*"):
        start = at + len(text[at:]) - len(text[at:].lstrip())
        if text.startswith("/*", start):
            at = text.index("*/", start) + 2
            comment = text[start:at]
            continue
        at = declaration_end(code, start)
        behind = _BEHIND.match(text, at)
        words = " ".join(code[start : at - 1].split())
        said = comment_lines(behind[1] if behind else comment or inside(text[start:at]))
        found += [Field(name, kind, said, start) for name, kind in named(words)]
        comment = ""
        at = behind.end() if behind else at
    return found


def inside(text):
    """A comment within a declaration."""
    found = _COMMENT.search(text)
    return found[0] if found else ""


def named(code):
    """(name, type) of what a field's declaration without comments declares."""
    if code.startswith("struct {"):
        inner, name = code[len("struct {") :].rsplit("}", 1)
        return [(f"{name.strip()}.{one.name}", one.type) for one in read_fields(inner)]
    pointer = re.fullmatch(r"(.*?\(\*)(\w+)(\).*)", code)
    if pointer:
        return [(pointer[2], pointer[1] + pointer[3])]
    first, *others = table.split(code)
    base, *declarator = re.fullmatch(r"(.*?)((?:\*(?:const )?)*) ?(\w+)((?:\[[^]]*\])*)", first).groups()
    declarators = [declarator] + [
        re.fullmatch(r"(\**)(\w+)((?:\[[^]]*\])*)", other).groups() for other in others
    ]
    return [(name, " ".join((base + stars).split()) + rest) for stars, name, rest in declarators]


def values(one):
    """The values of an enum that programs use."""
    return [each for each in all_values(one) if not re.match("GPUNN__|.*_COUNT$", each.name)]


def all_values(one):
    """The values of an enum, also those that a table gives it, in the order of their numbers."""
    text = body(one)
    prefix = re.search(r"#define GPUNN__X\(ENUM, \.\.\.\) (\w+?)##ENUM", text)
    found, pending, last = [], "", 0
    for token in _VALUE.finditer(text):
        comment, rows, name = token.groups()
        if comment and found and "\n" not in text[last : token.start()]:
            found[-1] = Value(found[-1].name, comment_lines(comment))
        elif comment:
            pending = comment
        elif rows:
            found += table_values(rows, prefix[1] if prefix else "")
        elif name:
            found.append(Value(name, comment_lines(pending)))
            pending = ""
        last = token.end()
    return found


def table_values(name, prefix):
    """The values that a table X(id, ...) or X(ID, "text", ...) gives an enum."""
    texts = {row[0]: row[1].strip('"') for row in table_rows(name) if row[1].startswith('"')}
    return [Value(prefix + row[0], [(texts.get(row[0], ""), False)]) for row in table_rows(name)]


@lru_cache(maxsize=None)
def table_rows(name):
    """The entries of a table X(...) or S(X, ...), also of tables of tables."""
    text = re.search(rf"#define {name}\((.*?)\) ((?:[^\n]*\\\n)*[^\n]*)", public())[2]
    text = _COMMENT.sub(" ", re.sub(r"\\\n", " ", text))
    rows = []
    for macro, entry in table.calls(text):
        rows += [entry] if macro in ("X", "TRUST") else [entry[1:]] if macro == "S" else table_rows(macro)
    return rows
