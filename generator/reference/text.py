"""Comments, code and prototypes as HTML, with a link behind each name that the reference knows."""

import re
from html import escape
from textwrap import dedent

# name: address, of what the pages and the manual show; filled before the first page is written.
LINKS = {}
HEADINGS = {}
FILLED = 104  # columns of the comments' lines

# Quoted code, a name, a section, a shape, a field, a name of PyTorch, a chapter of the manual.
_INLINE = re.compile(
    r"(`[^`\n]+`)|\b(gpunn_\w+(?:\.cu)?|GPUNN_\w+)|(>>\w+(?:/\w+)?)"
    r"|((?<![\w\]])\[[a-z0-9_.,*/+(): -]+\])|((?<![\w.)\]])\.[a-z]\w*)"
    r"|\b(torch(?:vision)?\.[\w.]*\w)|(?:(?<=section )|(?<=[Ss]ee )|(?<=\())([A-Z][A-Z ]+[A-Z])\b"
)
_CODE = re.compile(r"(//[^\n]*|/\*.*?\*/)|(\"(?:[^\"\\\n]|\\.)*\")|\b(gpunn_\w+|GPUNN_\w+)", re.S)


def name(word, text=None):
    """A name of the header, with a link where it has a place."""
    shown = escape(text or word)
    return f'<a href="{LINKS[word]}">{shown}</a>' if word in LINKS else shown


def inline(text):
    """A sentence with its names, shapes and fields as code."""

    def token(found):
        quoted, word, section, shape, member, torch, heading = found.groups()
        if word:
            return f"<code>{name(word)}</code>"
        if section:
            return name(section, section[2:]) if section in LINKS else f"<code>{escape(section[2:])}</code>"
        if heading:
            return f'<a href="{HEADINGS[heading]}">{heading}</a>' if heading in HEADINGS else heading
        return f"<code>{code(quoted.strip('`')) if quoted else escape(shape or member or torch)}</code>"

    parts, last = [], 0
    for found in _INLINE.finditer(text):
        parts += [escape(text[last : found.start()], quote=False), token(found)]
        last = found.end()
    return "".join(parts) + escape(text[last:], quote=False)


def code(text):
    """C code with coloured comments and strings."""
    parts, last = [], 0
    for found in _CODE.finditer(text):
        comment, string, word = found.groups()
        parts.append(escape(text[last : found.start()], quote=False))
        kind = "c" if comment else "s"
        parts.append(name(word) if word else f"<i class={kind}>{escape(comment or string, quote=False)}</i>")
        last = found.end()
    return "".join(parts) + escape(text[last:], quote=False)


def paragraphs(lines):
    """(kind, text) of a comment's lines: p, li or pre. A line that is not full ends a paragraph."""
    found, ended = [], True
    for text, full in lines:
        if text.startswith("    "):
            if not found or found[-1][0] != "pre":
                found.append(["pre", text])
            else:
                found[-1][1] += "\n" + text
            ended = True
        elif text.startswith("- ") and (ended or found[-1][0] == "li"):
            found.append(["li", text[2:]])
            ended = False
        elif not text:
            ended = True
        elif ended and not (found and found[-1][0] == "li" and text.startswith("  ")):
            found.append(["p", text])
        else:
            found[-1][1] += " " + text.strip()
        if text and not text.startswith("    "):
            ended = not full
    return found


def comment(lines):
    """A comment's paragraphs as HTML."""
    parts = []
    for kind, text in paragraphs(lines):
        if kind == "li":
            opened = parts and parts[-1].endswith("</ul>")
            parts.append(("" if opened else "<ul>") + f"<li>{inline(text)}</li></ul>")
            if opened:
                parts[-2] = parts[-2].removesuffix("</ul>")
        else:
            parts.append(f"<{kind}>{inline(dedent(text))}</{kind}>")
    return "\n".join(parts)


def is_full(line, following):
    """Whether a line of a comment ends because the next word does not fit on it, rather than a paragraph."""
    word = (following.split() or [""])[0]
    return not line.endswith((".", ":", ")")) or len(line) + 1 + len(word) > FILLED


def titled(heading):
    """A heading of the manual as a title."""
    words = heading.capitalize() if heading.isupper() else heading
    return re.sub(r"\b(?:gpu|cuda|json)\b", lambda word: word[0].upper(), words, flags=re.I)


def chapter(heading):
    """A link to a chapter of the manual."""
    return f'<a href="{HEADINGS[heading]}">{titled(heading)}</a>'


def plain(lines):
    return " ".join(text.strip() for text, _ in lines)


def first_sentence(lines):
    return re.split(r"(?<=[.:]) (?=[A-Z(]|\w+:)", plain(lines), maxsplit=1)[0]
