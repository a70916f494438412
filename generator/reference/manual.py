"""The manual: the comment at the top of gpunn.h, as headings, paragraphs, lists and code."""

import re
from functools import lru_cache

from . import text
from .. import table

_TITLE = re.compile(r"((?:gpunn )?[A-Z][A-Z ]+[A-Z])(?:  (.*))?$")
_ITEM = re.compile(r"( +)(?:-|(\d+)\.) (.*)$")
_OPTION = re.compile(r"    (GPUNN_\w+) +(\S.*)$")
_STEP = re.compile(r"^(gpunn_\w+(?:, [\w.]+)*|[a-z, ]+)   +(.*)$")


@lru_cache(maxsize=None)
def lines():
    """Of the whole comment, without what frames it."""
    comment = table.header().split("#ifndef GPUNN_H\n")[0].split("*/")[0]
    return [line[3:].rstrip() for line in comment.splitlines()[1:]]


@lru_cache(maxsize=None)
def chapters():
    """(title, lines) of the manual, without the list of the header's sections."""
    found = []
    for line in lines()[lines().index(">>doc") + 1 :]:
        title = _TITLE.match(line)
        if title:
            found.append((title[1], ["    " + title[2]] if title[2] else []))
        elif found:
            found[-1][1].append(line)
    return found


def start():
    """What to write and how to compile it: the code of the lines before the list of sections."""
    begin = lines().index("Do this:") + 1
    end = next(number for number, line in enumerate(lines()) if line.startswith(">>toc"))
    code = [re.split(r" {4,}", line.strip()) for line in lines()[begin:end] if line.startswith("    ")]
    return "\n".join(first + "".join(f"  // {said.strip('()')}" for said in rest) for first, *rest in code)


def sections():
    """The header's sections and what its list says of them."""
    listed = "\n".join(lines()[: lines().index(">>doc")]).split("Under GPUNN_IMPLEMENTATION")[0]
    return dict(re.findall(r"^    (\w+) +(\S.*)$", listed, re.M))


def anchor(title):
    return title.lower().replace(" ", "-")


def pieces(chapter):
    """The pieces of code of a chapter."""
    return [content for kind, content in blocks(chapter) if kind == "pre"]


def blocks(chapter):
    """(kind, text) of a chapter's lines. Lists have one entry a line; a tab is behind a term."""
    found, full = [["", ""]], False
    for line, following in zip(chapter, chapter[1:] + [""]):
        add_line(found, line, full)
        full = text.is_full(3 * " " + line, following)
    return [(kind, content) for kind, content in found if kind]


def add_line(found, line, full):
    """Adds a line to the last block, or begins another. full: no paragraph ends before it."""
    item, option = _ITEM.match(line), _OPTION.match(line)
    kind, deep = found[-1][0], len(line) - len(line.lstrip())
    if option and (kind == "dl" or not full):
        add(found, "dl", f"{option[1]}\t{option[2]}")
    elif item and deep < 8 and (kind == "ol" or item[2] in (None, "1")):
        add(found, "ol" if item[2] else "ul", _STEP.sub(r"\1\t\2", item[3]))
    elif (
        kind == "dl"
        and deep > 20
        or kind == "ol"
        and deep > 4
        or kind == "ul"
        and 4 < deep < 8
        or kind == "p"
        and full
        and 0 < deep < 8
    ):
        found[-1][1] += " " + line.strip()
    elif deep >= 8:
        add(found, "pre", line[8:])
    else:
        found.append(["p" if line else "", line.strip()])


def add(found, kind, line):
    if found and found[-1][0] == kind:
        found[-1][1] += "\n" + line
    else:
        found.append([kind, line])


def html(kind, content):
    if kind == "p":
        return f"<p>{text.inline(content)}</p>"
    if kind == "pre":
        return f"<pre>{text.code(content)}</pre>"
    entries = content.split("\n")
    if "\t" in content:
        pairs = [map(text.inline, entry.split("\t", 1)) for entry in entries]
        return "<dl class=steps>" + "".join(f"<dt>{term}<dd>{said}" for term, said in pairs) + "</dl>"
    return f"<{kind}>" + "".join(f"<li>{text.inline(entry)}</li>" for entry in entries) + f"</{kind}>"


def page():
    """The manual's HTML below its title."""
    parts = []
    for title, chapter in chapters():
        parts.append(
            f'<section><h2 id="{anchor(title)}">{text.titled(title)}'
            f'<a class=here href="#{anchor(title)}">#</a></h2>'
        )
        parts += [html(kind, content) for kind, content in blocks(chapter)] + ["</section>"]
    return "\n".join(parts)
