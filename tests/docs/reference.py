"""Checks of what `ninja docs` writes (generator/reference), for check.py: no dead link, all functions,
each with an example and a comment in gpunn.h, and a search that finds them by gpunn's names and PyTorch's."""
import collections
import functools
import glob
import json
import operator
import os
import re
import subprocess
import sys
import tempfile
import unittest
from functools import lru_cache

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from generator import table  # noqa: E402
from generator.reference import api, arguments, entries, examples, header, names, text  # noqa: E402

INNER = api.INNER
SEARCHES = {
    "gpunn_conv2d": ("conv2d", "Conv2d", "nn.Conv2d", "gpunn_conv2d", "torch.nn.Conv2d", "F.conv2d"),
    "gpunn_cross_entropy": ("F.cross_entropy", "nn.CrossEntropyLoss", "cross_entropy"),
    "gpunn_concat": ("torch.cat",), "gpunn_pad": ("torch.nn.functional.pad",), "gpunn_adam": ("optim.Adam",),
    "gpunn_lstm": ("nn.LSTM",), "gpunn_load": ("nn.Module.load_state_dict",)}
DEFAULTS = {
    ("conv2d", "stride"): "1", ("conv2d", "kernel_size"): "", ("conv2d", "no_bias"): "false",
    ("layer_norm", "eps"): "1e-5", ("rms_norm", "eps"): "1.1920929e-7", ("lstm", "hidden_size"): "",
    ("lstm", "num_layers"): "1", ("multi_margin_loss", "p"): "1", ("triplet_margin_loss", "p"): "2",
    ("cross_entropy", "ignore_index"): "-100", ("scaled_dot_product_attention", "scale"): "1 / sqrt(e)",
    ("adam", "beta2"): "0.999", ("device_open", "type"): "GPUNN_DEVICE_AUTO",
    ("group_open", "timeout"): "600",
    ("set_schedule", "final_div_factor"): "1e4", ("fit", "loss"): "", ("loader_create", "batch_size"): "32"}
LACKING = {"huber_loss": "beta", "gru": "relu", "unfold": "output_size", "mse_loss": "weight"}
COMPILE = "cc -std=c99 -Wall -Wextra -Wno-unused-parameter -Werror -fsyntax-only -I. -x c -"


@lru_cache(maxsize=None)
def written():
    """The files that the command writes, by name."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "generator.reference", "-o", folder]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=300)
        return {os.path.basename(path): read(path) for path in glob.glob(os.path.join(folder, "*"))}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


@lru_cache(maxsize=None)
def places(page):
    """The places of a page to which links lead, with their number."""
    return collections.Counter(re.findall(r'\bid="([^"]*)"', written()[page]))


def leads(address, page):
    """Whether a link on a page leads to a file of the reference, and to a place that this has."""
    path, _, place = address.partition("#")
    return (path or page) in written() and (not place or place in places(path or page))


def links_lead_somewhere():
    pages = [name for name in written() if name.endswith(".html")]
    links = [(page, address) for page in pages
             for address in re.findall(r'\b(?:href|src)="([^"]*)"', written()[page])]
    assert len(links) > 3000, len(links)
    for page in pages:
        twice = [place for place, count in places(page).items() if count > 1]
        assert not twice, f"{page} has two places of the name {twice}"
    for page, address in links:
        assert leads(address, page), f"{page} links {address}, which is not there"


def functions_are_there(library):
    """Every function that the compiled library exports has a place on its page and on the first one."""
    command = ["nm", "--defined-only", "--extern-only", library]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    exported = [name.rstrip("_") for name in re.findall(r" [TW] (gpunn_(?!_)\w+)$", symbols, re.M)]
    assert len(exported) > 350, len(exported)
    first = dict(re.findall(r'<a id="(gpunn_\w+)" href="([^"]*)"', written()["index.html"]))
    for name in exported:
        assert name in first, f"the reference's first page lacks {name}"
        page, _, place = first[name].partition("#")
        assert place == name and f'<h3 id="{name}">' in written()[page], f"{page} has no entry of {name}"


@lru_cache(maxsize=None)
def index():
    """The entries of the search."""
    return json.loads(re.match(r"const INDEX = (\[\n.*?\n\]);\n", written()["search.js"], re.S)[1])


def found_first(query):
    """What search.js ranks first: the entries that have the query as a whole word."""
    return [entry[0] for entry in index() if query.lower() in entry[3].split(" ")]


def search_finds():
    for name, queries in SEARCHES.items():
        for query in queries:
            assert name in found_first(query), f"a search for {query} finds {found_first(query)}"
    for name, address, *_ in index():
        assert leads(address, ""), f"a search for {name} leads to {address}, which is not there"


def defaults_are_told():
    """Defaults from the tables and from comments; arguments that only other functions of a struct have."""
    for (name, field), expected in DEFAULTS.items():
        function = arguments.functions()["gpunn_" + name]
        told = {one.name: arguments.default(function, one) for one in arguments.taken(function)}
        assert told[field] == expected, f"{name}: .{field} is {told[field]}, not {expected}"
    for name, field in LACKING.items():
        taken = [one.name for one in arguments.taken(arguments.functions()["gpunn_" + name])]
        assert field not in taken, f"{name} has .{field}"


def torch_has_its_names():
    """PyTorch itself knows each name that the reference gives as its own."""
    try:
        import torch
        import torch.distributed, torch.export, torch.optim.swa_utils, torch.profiler  # noqa: E401
        import torch.utils.checkpoint, torch.utils.data  # noqa: E401
    except ImportError:
        raise unittest.SkipTest("PyTorch is not installed") from None
    for name, listed in names.known_to_torch().items():
        for one in map(names.full, listed):
            if one.startswith("torch."):
                try:
                    operator.attrgetter(one[len("torch."):])(torch)
                except AttributeError:
                    raise AssertionError(f"torch_names.txt: {name}: PyTorch has no {one}") from None


def names_agree_with_the_tables():
    """The names are of functions, and those that the header's tables call PyTorch's are among them."""
    for name in names.known_to_torch():
        assert "gpunn_" + name in arguments.functions(), f"torch_names.txt has {name}, which is no function"
    for name, row in table.rows().items():
        for one in re.findall(r"\btorch\.nn\.[A-Z]\w+", row.about):
            assert one in map(names.full, names.torch(name)), f"torch_names.txt: {name} lacks {one}"


def examples_compile():
    """Each function has an example. Those that the reference makes itself compile."""
    lacking = [name for name, function in arguments.functions().items() if not entries.example(function)]
    assert not lacking, f"the reference has no example of {lacking}: add one to tests/docs/calls.c"
    calls = [call for call in map(examples.call, arguments.functions().values()) if call]
    assert len(calls) > 60, len(calls)
    operands = sorted(set(re.findall(r"[(,] ?([a-z]\w*)", " ".join(calls))))
    parameters = ", ".join("gpunn_tensor *" + name for name in operands)
    body = "\n".join("{ %s (void)%s; }" % (call, call.split()[1].strip("*")) for call in calls)
    source = f'#include "gpunn.h"\nvoid calls({parameters});\nvoid calls({parameters})\n{{\n{body}\n}}\n'
    command = COMPILE.split()
    done = subprocess.run(command, cwd=ROOT, input=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:2000]


def parts_of(name):
    """The words of a function's name; "2d" and the like are none."""
    words = re.split(r"_|(?<=\D)(?=\d)", names.short(name))
    return {word for word in words if not re.fullmatch(r"\d*d?", word)}


def functions_have_comments():
    """Each function has a comment, or a formula in a table. A comment of several has a word of each name."""
    for section in header.sections():
        for _, entry in entries.entries(section):
            if not entry.functions or entries.is_in_table(entry.one) and entries.shares(entry.one):
                continue
            first, *others = entry.anchors
            said = text.plain(entry.comment).lower()
            assert len(said) > 15, f"gpunn.h says nothing of {first}"
            for name in others:
                own = parts_of(name) - parts_of(first)
                assert not own or any(word[:5] in said for word in own), f"gpunn.h says nothing of {name}"


def fields_have_comments():
    """So has each field that programs read and write, unless it is named as in PyTorch or as a count."""
    for one in header.declared().values():
        if one.kind == "struct" and one.section not in INNER:
            users = arguments.users(one.name)
            for field in arguments.fields(one.name) if users else header.fields(one):
                assert arguments.meaning(users, field), f"gpunn.h says nothing of {one.name}.{field.name}"


def errors_are_told():
    """The general rule is there. Each comment says what a call does, then shapes, then how it fails."""
    rule = text.plain(header.declared()["gpunn_status"].comment)
    for status in "ARGUMENT", "SHAPE", "STATE", "MEMORY", "DEVICE":
        assert f"GPUNN_ERR_{status}:" in rule, f"gpunn_status does not explain GPUNN_ERR_{status}"
    for section in header.sections():
        for _, entry in entries.entries(section):
            said = text.plain(entry.comment)
            failing = re.search("GPUNN_ERR_", said)
            if entry.functions and failing:
                name, after = entry.anchors[0], said[failing.start():]
                assert said != after, f"{name}: the comment says how it fails before what it does"
                assert not re.search(r"\[[a-z.]|->", after), f"{name}: the comment tells errors before shapes"


def tests(library):
    """(name, check) of all; library: the compiled gpunn.h."""
    functions = functools.partial(functions_are_there, library)
    return [("the reference: links", links_lead_somewhere), ("the reference: functions", functions),
            ("the reference: search", search_finds), ("the reference: defaults", defaults_are_told),
            ("the reference: PyTorch's names", torch_has_its_names),
            ("the reference: names in the tables", names_agree_with_the_tables),
            ("the reference: examples", examples_compile), ("comments of functions", functions_have_comments),
            ("comments of fields", fields_have_comments), ("comments tell errors", errors_are_told)]
