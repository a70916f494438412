"""The pages of the reference: the sections of gpunn.h, the manual, and a first page with all names."""

import json
import re
from html import escape

from . import header, manual, text
from .arguments import fields, functions
from .entries import entries, html, summary
from .names import full, read, short, torch

# The sections in the order of the lists, those that programs need first, and their titles.
TITLES = {
    "device": "Device",
    "model": "Model",
    "builders": "Layers, ops and losses",
    "train": "Training and optimizers",
    "fit": "Fit and evaluate",
    "data": "Loaders",
    "files": "Files",
    "lora": "Low-rank adapters",
    "quantization": "Quantisation",
    "spec": "Models as JSON",
    "group": "Several ranks",
    "profile": "Profile",
    "ops": "Elementwise ops",
    "status": "Status",
    "config": "Config",
    "kernels": "Fused kernels",
    "backend": "Backend",
}
INTRODUCTION = """<h1>gpunn {version}</h1>
<p class=lead>Neural networks for C: train and run them from one header, with PyTorch's names and defaults.
Search by gpunn's name or by PyTorch's.</p>
<pre>{code}</pre>
<section class=card><h2><a href="manual.html">Manual</a></h2><p class=names>{chapters}</p></section>
"""


def lead(section):
    """What the manual's list says of a section."""
    said = manual.sections()[section]
    return text.inline(said[0].upper() + said[1:] + ".")


def family(heading):
    """A heading of the header: its title, and what it says of the whole family."""
    name, _, rest = heading.partition(":")
    return name.strip().capitalize(), rest.strip()


def place_of(name):
    return (
        f'<h2 id="{manual.anchor(name)}">{escape(name)}<a class=here href="#{manual.anchor(name)}">#</a></h2>'
    )


def section_page(section):
    """The contents of a section's page, and of its list of names."""
    parts, names, placed, last = [intro(section)], [], set(), ("", None)
    for heading, one in entries(section):
        name, rest = family(heading)
        if heading and heading != last[0]:
            parts.append(place_of(name) + (f"<p>{text.inline(rest)}</p>" if rest else ""))
            names.append(f'<li class=family><a href="#{manual.anchor(name)}">{escape(name)}</a>')
        if one.functions and not one.comment and one.one.group != last[1]:
            parts.append(f"<div class=shared>{text.comment(one.one.comment)}</div>")
        last = heading, one.one.group
        names += [item(one, anchor) for anchor in one.anchors]
        parts.append(html(one, placed))
    return "\n".join(parts), names


def intro(section):
    said = text.comment(header.sections()[section].comment)
    return f"<h1>{escape(TITLES[section])}</h1><p class=lead>{lead(section)}</p>{said}"


def item(one, anchor):
    """An anchor in a page's list of names."""
    if one.functions:
        return f'<li><a href="#{anchor}">{escape(short(anchor))}</a>'
    return f'<li class=type><a href="#{anchor}">{escape(anchor)}</a>'


def index_page():
    chapters = " ".join(
        f'<a href="{address}">{escape(text.titled(name))}</a>' for name, address in text.HEADINGS.items()
    )
    start = INTRODUCTION.format(version=escape(version()), code=text.code(manual.start()), chapters=chapters)
    return start + "\n".join(map(card, TITLES)), []


def card(section):
    """A section on the first page: all its functions."""
    links, last = [], ""
    for heading, one in entries(section):
        if one.functions and heading != last:
            links.append(f"<b>{escape(family(heading)[0])}</b>")
            last = heading
        links += [
            f'<a id="{anchor}" href="{text.LINKS[anchor]}">{escape(short(anchor))}</a>'
            for anchor in one.anchors
            if one.functions
        ]
    title = f'<h2><a href="{section}.html">{escape(TITLES[section])}</a></h2>'
    return f"<section class=card>{title}<p>{lead(section)}</p><p class=names>{' '.join(links)}</p></section>"


def manual_page():
    names = [
        f'<li><a href="#{manual.anchor(name)}">{escape(text.titled(name))}</a>'
        for name, _ in manual.chapters()
    ]
    said = "The comment at the top of gpunn.h. The tests compile and run its code."
    return f"<h1>Manual</h1><p class=lead>{said}</p>{manual.page()}", names


def fill_links():
    """Learns the places of all names."""
    for section in header.sections():
        text.LINKS[">>" + section] = f"{section}.html"
        for _, one in entries(section):
            names = one.anchors + [value.name for value in one.values]
            names += [function.struct for function in one.functions if function.struct]
            text.LINKS.update({name: f"{section}.html#{name}" for name in names})
            text.LINKS.update(
                {function.plain: f"{section}.html#{function.name}" for function in one.functions}
            )
    text.HEADINGS.update({name: f"manual.html#{manual.anchor(name)}" for name, _ in manual.chapters()})


def search_index():
    """[name, address, kind, its names, its summary, further words] of all that the search knows."""
    found = [
        indexed(one, anchor)
        for section in header.sections()
        for _, one in entries(section)
        for anchor in one.anchors
    ]
    for name, chapter in manual.chapters():
        first = next((said for kind, said in manual.blocks(chapter) if kind == "p"), "")
        found.append(
            [name, text.HEADINGS[name], "manual", name.lower(), text.first_sentence([(first, False)]), ""]
        )
    return found


def indexed(one, anchor):
    function = functions().get(anchor)
    names = torch(anchor) if function else []
    listed = fields(function.struct) if function and function.struct else one.fields
    more = (
        [field.name for field in listed]
        + [value.name for value in one.values]
        + text.plain(one.comment).split()
    )
    return [
        anchor,
        text.LINKS[anchor],
        "" if function else one.one.kind,
        words([anchor, short(anchor), *names, *map(full, names)]),
        summary(one),
        words(more),
    ]


def words(listed):
    return " ".join(dict.fromkeys(listed)).lower()


def version():
    return re.search(r'#define GPUNN_VERSION "([^"]*)"', header.public())[1]


def frame(name, content, names):
    """A whole page."""
    title = {"manual": "Manual", **TITLES}.get(name, "")
    others = "".join(
        f'<li{" class=now" if other == name else ""}><a href="{other}.html">{escape(shown)}</a>'
        for other, shown in {"manual": "Manual", **TITLES}.items()
    )
    listed = f"<h2>On this page</h2><ul>{''.join(names)}</ul>" if names else ""
    return read("page.html").format(
        title=escape(title and f"{title} - "),
        version=escape(version()),
        content=content,
        others=others,
        names=listed,
    )


def pages():
    """All files of the reference: name and text."""
    fill_links()
    contents = {"index": index_page(), "manual": manual_page()}
    contents.update({section: section_page(section) for section in header.sections()})
    files = {f"{name}.html": frame(name, *content) for name, content in contents.items()}
    index = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in search_index())
    return {
        **files,
        "style.css": read("style.css"),
        "search.js": f"const INDEX = [\n{index}\n];\n{read('search.js')}",
    }
