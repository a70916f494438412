"""The small template language, which keeps templates readable as C and CUDA.

${name} stands for a text. A line with only ${name} takes a list of lines and indents each of them (an empty
list: no line). //@if flag or //@if !flag ... //@end keep or drop the lines between. Names that a template
does not know, and unused names, are errors."""
import os
import re

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "templates", "kernels")
_NAME = re.compile(r"\$\{(\w+)\}")
_LINES = re.compile(r"^( *)\$\{(\w+)\}$")
_IF = re.compile(r"^ *//@if (!?)(\w+)$")


class TemplateError(Exception):
    """A template and its values do not fit each other."""


def fill(text, place, /, **values):
    """The template's text with values: texts, lists of lines, and booleans for //@if. place: its name in
    errors."""
    used, out, keep = set(), [], None

    def value(name, kind, number):
        used.add(name)
        if not isinstance(values.get(name), kind):
            wrong = "of the wrong kind" if name in values else "not known"
            raise TemplateError("%s:%d: '%s' is %s" % (place, number, name, wrong))
        return values[name]

    for number, line in enumerate(text.splitlines(), 1):
        condition, lines = _IF.match(line), _LINES.match(line)
        if condition:
            if keep is not None:
                raise TemplateError("%s:%d: //@if inside //@if" % (place, number))
            keep = value(condition.group(2), bool, number) != (condition.group(1) == "!")
        elif line.strip() == "//@end":
            if keep is None:
                raise TemplateError("%s:%d: //@end without //@if" % (place, number))
            keep = None
        elif lines and not isinstance(values.get(lines.group(2)), str):
            block = value(lines.group(2), (list, tuple), number)
            if keep is not False:
                out += [lines.group(1) + one if one else "" for one in block]
        else:
            if "${" in _NAME.sub("", line) or "//@" in line:
                raise TemplateError("%s:%d: cannot read '%s'" % (place, number, line.strip()))
            line = _NAME.sub(lambda match: value(match.group(1), str, number), line)
            if keep is not False:
                out.append(line)
    if keep is not None:
        raise TemplateError("%s: //@if without //@end" % place)
    for name in values:
        if name not in used:
            raise TemplateError("%s: '%s' is not used" % (place, name))
    return "\n".join(out) + "\n"


def load(file_name, /, **values):
    """fill() of the file of that name in the folder of templates."""
    with open(os.path.join(FOLDER, file_name), encoding="ascii") as file:
        return fill(file.read(), file_name, **values)


def functions(file_name):
    """What the functions of a template are called behind ${name}_."""
    with open(os.path.join(FOLDER, file_name), encoding="ascii") as file:
        return re.findall(r"^\S.*?\$\{name\}_(\w+)\(", file.read(), re.M)


_DEFINED = re.compile(
    r"^(?:#define |(?:typedef |template <.*> *)?struct |typedef \w+ |const \w+ )(\w+)|^(?!#).*?(\w+)\(", re.M)

_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_SAID = re.compile(_COMMENT.pattern + r'|"[^"\n]*"', re.S)  # and strings, such as instructions


def without(library, other):
    """The parts of a library, between blank lines, except those that define a name that the other library
    also defines."""
    known = set().union(*map(_defined, _parts(other)))
    return "\n\n".join(part for part in _parts(library) if not _defined(part) & known)


def needed(library, text, titles=True):
    """The lines of a library's parts, between blank lines, that define what the text, or another needed part,
    mentions. titles: keep parts that define nothing, such as comments."""
    parts = _parts(library)
    names = [_defined(part) for part in parts]
    wanted, pending = {i for i, defined in enumerate(names) if titles and not defined}, [text]
    while pending:
        words = set(re.findall(r"\w+", _SAID.sub("", pending.pop())))
        for i, part in enumerate(parts):
            if i not in wanted and names[i] & words:
                wanted.add(i)
                pending.append(part)
    return "\n\n".join(parts[i] for i in sorted(wanted)).splitlines()


def _parts(library):
    return re.split(r"\n\n+", library.strip("\n"))


def _defined(part):
    """The names that a part defines at its outermost level."""
    code = _COMMENT.sub("", part)
    lines = [line for line in code.splitlines() if line and line[0] not in " {}#"] + re.findall(
        r"^#define .*", code, re.M)
    return {one or other for line in lines for one, other in _DEFINED.findall(line)[:1]}
