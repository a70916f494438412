"""The origin of a generated file: its opening comment, by which stale files are recognized."""
import glob
import hashlib
import os
import re
import shlex
from collections import namedtuple
from functools import lru_cache

from . import table

ROOT = os.path.dirname(table.HEADER)


def _version():
    with open(table.HEADER, encoding="utf-8") as file:
        return re.search(r'#define GPUNN_VERSION "([^"]*)"', file.read()).group(1)


VERSION = _version()  # that of gpunn.h, to which the generator belongs


@lru_cache(maxsize=None)
def template_hash():
    """Changes with every file of the generator that influences what it writes."""
    paths = [path for pattern in ("generator/*.py", "generator/*.json", "templates/kernels/*")
             for path in glob.glob(os.path.join(ROOT, *pattern.split("/")))
             if not os.path.basename(path).startswith(("amalgamate", "parts_picture", "export_", "import_"))]
    digest = hashlib.sha256()
    for name, path in sorted((os.path.relpath(path, ROOT).replace(os.sep, "/"), path) for path in paths):
        # line ends as Python sees them, since a checkout may change them
        with open(path, encoding="utf-8") as file:
            digest.update((name + "\0" + file.read() + "\0").encode("utf-8"))
    return digest.hexdigest()[:12]


def command(spec_path, output, options=(), weights=None):
    """The command that renews an output, independent of the current folder. It is for gpunn's root folder,
    where `python3 -m generator` works, if all files are below that. Otherwise it is for the output's folder,
    and files outside of that are given by name only."""
    files = [os.path.realpath(path) for path in (spec_path, output, weights) if path is not None]
    for start in (os.path.realpath(ROOT), os.path.dirname(files[1])):
        within = os.path.join(start, "")
        if all(path.startswith(within) for path in files):
            paths = [path[len(within):].replace(os.sep, "/") for path in files]
            break
    else:
        paths = [os.path.basename(path) for path in files]
    words = ["python3", "-m", "generator", paths[0], "-o", paths[1]] + list(options)
    words += ["--weights", paths[2]] if weights is not None else []
    return safe(" ".join(shlex.quote(word) for word in words))


def safe(text):
    """A text that may be in a C comment and in a C string. Other characters become _."""
    text = re.sub(r'[^ !#-\[\]-~]', "_", text)
    return text.replace("*/", "*_").replace("/*", "/_").replace("??", "?_")


# The origin of a file that is no kernel set.
Source = namedtuple("Source", "spec_sha256 command")


def lines(kernel_set, file_name):
    """The opening comment of a generated file, as lines. kernel_set: a KernelSet, or a Source."""
    return ["/* %s - written by the generator of gpunn: do not edit." % file_name,
            " *",
            " * gpunn %s, templates %s" % (VERSION, template_hash()),
            " * spec sha256 %s" % kernel_set.spec_sha256,
            " * renew it with: %s" % kernel_set.command,
            " */"]
