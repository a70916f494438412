#!/usr/bin/env python3
"""Checks that the documents are true. Every C block of README.md and of the guides compiles. If it has a
main, it runs, with the command that follows it if there is one. So does the program in gpunn.h's comment.
Every name, link, file, option and ninja target that they mention exists, and the pictures are fresh.
reference.py has the checks of the reference. TAP lines, for tests/run.py.

    python3 tests/docs/check.py OBJECT      gpunn.h as ninja compiles it; all but the first program link it"""
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import pictures
import reference

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STRICT = "-std=c99 -Wall -Wextra -Wpedantic -Werror"
OBJECT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build", "gpunn.o"))
DOCUMENTS = ["README.md"] + sorted(path for pattern in ("examples/**/*.md", "generator/**/*.md",
                                                        "templates/**/*.md", "tests/*.md", "tests/gpu/*.md")
                                   for path in glob.glob(pattern, root_dir=ROOT, recursive=True))
LINKED = f"-DGPUNN_NO_IMPLEMENTATION {OBJECT} -lz -lm -lpthread"


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def call(command, folder):
    done = subprocess.run(command, shell=True, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=300)
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise AssertionError(f"$ {command}\n{text[:4000]}")
    return text


def blocks(name):
    """(language, text, first line's number) of a document's fenced blocks."""
    text = read(name)
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        yield found[1], found[2], text.count("\n", 0, found.start()) + 2


def program(text, command):
    """Compiles and runs a C program by the document's own command, or under strict warnings if it has none.
    Its gpunn calls must not fail."""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.join(ROOT, "gpunn.h"), os.path.join(folder, "gpunn.h"))
        words = shlex.split(command) if command else []
        name = next((word for word in words if word.endswith(".c")), "block.c")
        if "int main(" not in text:
            text = ("#include \"gpunn.h\"\n#include <stdio.h>\nvoid block(void);\nvoid block(void)\n{\n" +
                    text + "}\n")
            command = f"cc {STRICT} -Wno-unused-variable -c {name}"
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
        call(command.replace("-O3", "-O1") if command else f"cc {STRICT} {name} -o block {LINKED}", folder)
        call(f"cc {STRICT} -Wno-unused-variable -fsyntax-only {name}", folder)  # and not a warning
        if "int main(" in text:
            output = call("./" + (words[words.index("-o") + 1] if "-o" in words else "a.out" if words else
                                  "block"), folder)
            assert "GPUNN_ERR" not in output, output
            return output
    return ""


def c_blocks(name):
    every = list(blocks(name))
    for i, (language, text, line) in enumerate(every):
        if language != "c":
            continue
        following = every[i + 1][1].strip() if i + 1 < len(every) and every[i + 1][0] == "sh" else ""
        command = following if re.match(r"(cc|gcc|clang) [^\n]*\.c\b[^\n]*$", following) else None
        yield f"{name}:{line}", lambda text=text, command=command: program(text, command)


def kernel_commands():
    """The commands to fused kernels work as documented, in an empty folder beside the sources."""
    text = next(text for language, text, line in blocks("generator/README.md") if language == "sh" and
                "--report" in text)
    with tempfile.TemporaryDirectory() as folder:
        for name in "gpunn.h", "generator", "templates":
            os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
        shutil.copytree(os.path.join(ROOT, "examples"), os.path.join(folder, "examples"))
        kernels = os.path.join(folder, "examples/kernels/simple_nn_kernels.h")
        before = read("examples/kernels/simple_nn_kernels.h")
        for command in text.strip().splitlines():
            output = call(re.sub(r"^cc -O3 -march=native (.*?) -lm", rf"cc \1 {LINKED}", command), folder)
        output = call("./simple_nn", folder)
        assert "accuracy" in output and "renew" not in output, output


def python_compiles():
    pieces = [(name, text, line) for name in DOCUMENTS for language, text, line in blocks(name)
              if language == "python"]
    assert pieces
    for name, text, line in pieces:
        compile(text, f"{name}:{line}", "exec")


def manual_code():
    """The pieces of code in gpunn.h's comment, by their headings."""
    comment = read("gpunn.h").split("#ifndef GPUNN_H")[0]
    comment = comment[comment.index(" * >>doc"):]
    heading, piece = "", []
    for line in comment.splitlines() + [" *"]:
        title = re.match(r" \* ([A-Z][A-Z ]+[A-Z])(?:  |$)", line)
        if line.startswith(" *         "):
            piece.append(line[len(" *         "):])
        elif piece:
            yield heading, "\n".join(piece) + "\n"
            piece = []
        heading = title[1] if title else heading


def manual_runs():
    """Compiles each piece by itself, after the declarations of A PROGRAM. BUILDING and LIBRARY are left out:
    they are commands."""
    pieces = [(heading, text) for heading, text in manual_code() if heading not in ("BUILDING", "LIBRARY")]
    assert pieces[0][0] == "A PROGRAM" and pieces[1][1].startswith("gpunn_optimizer_destroy(o)"), pieces[:2]
    start, end = pieces[0][1], pieces[1][1]
    before = start[:start.index("if (gpunn_train_step")]
    lines = ["#pragma GCC diagnostic ignored \"-Wunused-variable\"", "#include \"gpunn.h\"",
             "#include <stdio.h>", "#include <string.h>", "static float samples[8][20], targets[8];",
             "static int swish(const gpunn_custom_call *call) { return memcpy(call->out->data, "
             "call->in->data, 4) == NULL; }"]
    for number, (heading, text) in enumerate(pieces[:1] + pieces[2:]):
        lines += ["static void piece%d(void)\n{" % number, before if number else "", text,
                  "if (gpunn_last_status(dev) != GPUNN_OK) printf(\"GPUNN_ERR in %s: %%s\\n\", "
                  "gpunn_error(dev));" % heading, end, "}"]
    lines += ["int main(void)\n{"] + ["piece%d();" % number for number in range(len(pieces) - 1)] + [
        "return 0;\n}\n"]
    assert len(pieces) > 15, len(pieces)
    output = program("\n".join(lines), None)
    assert "do not broadcast" in output, output


def xor_learns():
    """The first block's claim: the outputs are those of exclusive or."""
    text, line = next((text, line) for language, text, line in blocks("README.md") if language == "c" and
                      "int main(" in text)
    values = re.findall(r"(\d) xor (\d) = ([\d.]+)", program(text, None))
    assert len(values) == 4, f"README.md:{line} prints {values}"
    shown = re.findall(r"(\d) xor (\d) = ([\d.]+)",
                       next(block for language, block, _ in blocks("README.md") if not language))
    assert [(a, b, round(float(p)))
            for a, b, p in shown] == [(a, b, round(float(p))) for a, b, p in values], shown
    for a, b, p in values:
        assert abs(float(p) - (a != b)) < 0.2, f"{a} xor {b} = {p}"


def sections(name, start):
    """(tag, text without comments, strings and macros' bodies) of a file's tagged sections, from `start`
    on."""
    text = read(name)
    text = text[text.index(start):]
    found = list(re.finditer(r"^/\* ==== >>([\w/]+)", text, re.M))
    for one, end in zip(found, [other.start() for other in found[1:]] + [len(text)]):
        body = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', " ", text[one.start():end], flags=re.S)
        yield one[1], re.sub(r"^[ \t]*#[ \t]*define (?:[^\n]*\\\n)*[^\n]*", "", body, flags=re.M)


def rooms_agree():
    """An op's two functions are in sections with one name. Their dispatchers are in >>cpu/cpu and
    >>run/run."""
    tables = re.findall(r"#define GPUNN_(?:OTHER_OPS\(X|SIGNATURE_OPS\(S, X)\)(.*?)\n\n", read("gpunn.h"),
                        re.S)
    rooms = []
    for name, start, prefix in (("gpunn.h", "/* ==== >>common", "cpu"),
                                ("gpunn_cuda.cu", "/* ==== >>base/config", "cuda")):
        rooms.append({op: "run" if tag == "cpu/cpu" else tag.rpartition("/")[2]
                      for tag, body in sections(name, start)
                      for op in re.findall(rf"\bgpunn__{prefix}_(\w+)\([^;{{}}]*\)\s*\{{", body)})
    ops = [op for op in re.findall(r"X[,(] ?[A-Z0-9_]+, (\w+)", "".join(tables))
           if op in rooms[0] and op in rooms[1]]
    assert len(ops) > 30, ops
    faults = [f"{op} is in >>{rooms[0][op]} of gpunn.h and in >>{rooms[1][op]} of gpunn_cuda.cu" for op in ops
              if rooms[0][op] != rooms[1][op]]
    assert not faults, "; ".join(faults)


def functions(name):
    """(name, body) of a file's functions, without comments, white space, and differences between C and C++ or
    between 32 and 64 bits."""
    text = re.sub(r"/\*.*?\*/", "", read(name), flags=re.S)
    for found in re.finditer(r"^(?!typedef|#)\w[^;{}()=#]*?\b(gpunn__\w+)\([^;{}]*\)\n\{\n(.*?)^\}", text,
                             re.M | re.S):
        body = found[2].replace("->", ".")
        yield found[1], re.sub(
            r"\b(?:const|u?int\d*(?:_t)?|unsigned|size_t|float|double)\b|^#pragma.*$|[\s*&()]", "", body,
            flags=re.M)


def nothing_stands_twice():
    """Functions that both files would need are in gpunn.h's >>common."""
    own, companions = list(functions("gpunn.h")), list(functions("gpunn_cuda.cu"))
    assert len(own) > 900 and len(companions) > 400, (len(own), len(companions))
    names = {body: name for name, body in own if len(body) > 40}
    twice = [f"{name} is {names[body]}" for name, body in companions if body in names]
    assert not twice, "gpunn_cuda.cu has what gpunn.h's >>common could give it: " + "; ".join(twice)


LITERALS = re.compile(r"""/\*.*?\*/|//[^\n]*|'(?:\\.|[^'\\\n])+'|((?:"(?:\\.|[^"\\\n])*"(?:\s|\\\n)*)+)""",
                      re.S)
# words of the project's own, in whose place the field has others: fail, report, after and so on
PRIVATE = r"\b(?:refuse[sd]?|tells?|told|lent|seldom|settle[sd]?|nobody|anew|theirs|behind|lies?|is none)\b"


def messages(name):
    """The texts that a part of the library holds, each joined from its literals."""
    code = re.sub(r"^\s*#\s*include.*$", "", read(name), flags=re.M)
    return ["".join(re.findall(r'"((?:\\.|[^"\\])*)"', found[1]))
            for found in LITERALS.finditer(code) if found[1]]


def parts_messages():
    """(name, texts) of the parts whose texts are messages; those of >>graph/arguments are formulas and the
    schema's descriptions."""
    names = [name for room in ("gpunn", "gpunn_cuda")
             for name in sorted(glob.glob(f"templates/{room}/*/*", root_dir=ROOT))]
    return [(name, messages(name)) for name in names if "graph/arguments" not in name]


def messages_are_plain():
    texts = [(name, text) for name, found in parts_messages() for text in found if len(text.split()) > 2]
    assert len(texts) > 900, len(texts)
    for name, text in texts:
        longest = max(len(sentence.split()) for sentence in re.split(r"[.;:]\s", text))
        assert longest <= 35, f'{name}: {longest} words are too many for one sentence: "{text}"'
        assert not re.search(PRIVATE, text), f'{name}: "{text}" has "{re.search(PRIVATE, text)[0]}"'


def names_exist():
    header = read("gpunn.h")
    public, implementation = header.split("#if defined(GPUNN_IMPLEMENTATION)")
    declared = set(re.findall(r"\bgpunn_\w+", re.sub(r"/\*.*?\*/", "", public, flags=re.S)))
    for table in re.findall(r"#define GPUNN_\w+_OPS\(X\)(.*?)\n(?!.*\\\n)", header, re.S):
        declared |= {"gpunn_" + name for name in re.findall(r"X\([A-Z0-9_]+, (\w+)", table)}
    private = set(re.findall(r"\bgpunn__\w+", implementation + read("gpunn_cuda.cu")))
    private |= {start + name[len("gpunn_"):] for start in re.findall(r"\b(gpunn__\w+_)##", implementation)
                for name in declared}
    upper = set(re.findall(r"\bGPUNN_\w+",
                           header + read("gpunn_cuda.cu") + read("tests/test.h") + read("build.ninja") +
                           read("tests/gpu/run.sh")))
    comment = header[:header.index("#ifndef GPUNN_H")]
    messages = [(f"a message of {name}", "\n".join(texts)) for name, texts in parts_messages()]
    for where, text in ([(name, read(name))
                         for name in DOCUMENTS] + [("gpunn.h's comment", comment)] + messages):
        for name in sorted(set(re.findall(r"\bgpunn_\w+", text.replace("NAME", ""))) -
                           {"gpunn_cuda", "gpunn_cuda_backend", "gpunn_spec", "gpunn_blocks"}):
            known = private if name.startswith("gpunn__") else declared
            found = name in known or name.endswith("_") and any(other.startswith(name) for other in known)
            assert found, f"{where} speaks of {name}, which is not there"
        for name in sorted(set(re.findall(r"\bGPUNN_[A-Z0-9_]+\b", text))):
            assert name in upper, f"{where} speaks of {name}, which is not there"


def is_there(name, path):
    """Whether a document's path is that of a file, relative to the root or to the document."""
    return any(os.path.exists(os.path.join(ROOT, start, path)) for start in ("", os.path.dirname(name)))


def anchors(text):
    """The anchors of a page's headings."""
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", text, re.M)]


def links_exist():
    linked = set()
    for name in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", read(name)):
            path = os.path.normpath(os.path.join(os.path.dirname(name), target)) if target else name
            assert os.path.exists(os.path.join(ROOT, path)), f"{name} links {target}, which is not there"
            assert not anchor or anchor in anchors(
                read(path)), f"{name} links {target}#{anchor}, which is no heading there"
            linked.add(path)
        folders = "examples|tests|generator|templates" + "|gpunn|gpunn_cuda|kernels" * (
            name == "templates/README.md")
        for path in re.findall(rf"`((?:{folders})/[a-z0-9_./]*\w)`", read(name)):
            assert is_there(name, path), f"{name} speaks of {path}, which is not there"
    lost = set(DOCUMENTS) - linked - {"README.md"}
    assert not lost, f"no page links {lost}"
    for name in os.listdir(os.path.join(ROOT, "examples")):
        assert not name.endswith((".c", ".cu")) or f"[{name}]({name})" in read(
            "examples/README.md"), f"examples/README.md lacks {name}"


def examples_tell():
    """The first comment of each example says what one sees, how long it takes and what to try next."""
    names = [name for pattern in ("*.c", "*.cu", "plain_c/*.c", "embedding/*.f90", "embedding/*.py")
             for name in glob.glob("examples/" + pattern, root_dir=ROOT)]
    assert len(names) > 25, names
    for name in names:
        comment = re.split(r"\*/|^module|^import", read(name), maxsplit=1, flags=re.M)[0]
        for word, told in (("Expect", r"\S"), ("Time", r"(about|less than) .* cores?\b|not known"),
                           ("Next", r"\S")):
            assert re.search(rf"^\W*{word}: +{told}", comment,
                             re.M), f"{name} does not say under {word}: what is to be said there"


def targets_exist():
    ninja = read("build.ninja") + read("examples/programs.ninja").replace("$folder", "build") + read(
        "templates/parts.ninja")
    for name in DOCUMENTS + ["build.ninja"]:
        for target in set(re.findall(r"\bninja ([a-z_]+)\b", read(name))) - {"build"}:
            assert re.search(rf"^build (?:\S+ )*{target}\b", ninja,
                             re.M), f"{name}: there is no `ninja {target}`"
    for name in DOCUMENTS:
        for program in re.findall(r"\bbuild/([a-z]\w*)(?!\w*\.)", read(name)):
            assert re.search(rf"\bbuild/{program}\b",
                             ninja + read("tests/gpu/run.sh")), f"{name}: build/{program} is not built"


def help_names_targets():
    """`ninja help` has a line for each target that the documents name."""
    command = re.search(r"^build help: .*\n  do = (.*)$", read("build.ninja"), re.M)[1]
    told = set(re.findall(r"^ninja ([a-z_]+) +\S", call(command, ROOT), re.M))
    named = {target for name in DOCUMENTS for target in re.findall(r"\bninja ([a-z_]+)\b", read(name))} - {
        "build"}
    assert "demo" in named and named <= told, f"`ninja help` lacks {named - told}"


def commands(name):
    """A document's commands, from its blocks and its lines, each without comment."""
    text = read(name)
    lines = [line for language, block, _ in blocks(name) if language == "sh"
             for line in block.replace("\\\n", "").splitlines()]
    for line in lines + re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)):
        yield from (part.strip() for part in re.split(r"&&|;|\bdo\b", re.sub(r"\s#.*", "", line)))


def source_of(command):
    """The source of what a command runs, which contains its options. None for other programs."""
    module = re.match(r"python3 -m (generator(?:\.\w+)?)\b", command)
    script = re.match(r"(?:\w+=\S* )*(?:python3 )?((?:tests|examples)/[\w/]+\.(?:py|sh))\b", command)
    example = re.match(r"(?:build/|(?:mpirun -n 2 )?\./)(\w+)\b", command)
    if module:
        path = module[1].replace(".", "/")
        return read(path + ("/__main__.py" if os.path.isdir(os.path.join(ROOT, path)) else ".py"))
    if script:
        return read(script[1])
    if example and os.path.exists(os.path.join(ROOT, "examples", example[1] + ".c")):
        return read(f"examples/{example[1]}.c") + read("examples/options.h")
    return None


def commands_exist():
    """The commands' programs, the files that they read, and their options exist."""
    seen = 0
    for name in DOCUMENTS:
        for command in commands(name):
            source = source_of(command)
            options = re.findall(r"\s--([a-z][\w-]*)", command) if source else []
            for option in options:
                assert re.search(rf"\b{option}\b", source), f"{name}: --{option} is no option: {command}"
            made = re.findall(r"-o (\S+)", command)
            for path in re.findall(r"(?<![\w$/.])(?:examples|tests|generator)/[a-z0-9_./-]+\.\w+\b", command):
                assert path.startswith(tuple(made)) or is_there(
                    name, path), f"{name}: {path} is not there: {command}"
            seen += len(options)
    assert seen > 25, seen


# Names that code within the documents' sentences and tables uses without declaring them.
DECLARED = """#include "gpunn.h"
#include <math.h>
static gpunn_tensor *x, *y, *z, *a, *b, *c, *d, *h, *i, *j, *k, *m, *n, *p;
static gpunn_tensor *q, *v, *x1, *x2, *w, *loss, *logits, *labels, *grid, *grids[2];
static gpunn_tensor *boxes, *cache, *draw, *index, *indices, *lengths, *logp, *mask;
static gpunn_tensor *places, *positions, *src, *targets, *tokens;
static gpunn_tensor *operands[1];
static gpunn_device *dev, *cpu;
static gpunn_model *model;
static gpunn_optimizer *opt, *optimizer;
static gpunn_group *group;
static gpunn_session *session;
static gpunn_custom_op op;
static gpunn_kernel_set simple_nn_kernels;
static bool (*f)(void *, const gpunn_layer_statistics *);
void print(void *user, const char *text);
gpunn_tensor *block(gpunn_tensor *x);
static size_t bytes;
static int64_t T, batch;
static float norm;
"""


def calls_compile():
    """The calls within sentences and tables compile, each as a statement of its own."""
    statements = []
    for name in DOCUMENTS:
        text = re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), read(name),
                      flags=re.M | re.S)
        for number, line in enumerate(text.splitlines(), 1):
            for code in re.findall(r"`([^`]*\bgpunn_\w+\([^`]*)`", line):
                code = code.replace("...", "{{.input = x}}")
                statements.append(f'#line {number} "{name}"\nstatic void piece{len(statements)}(void) '
                                  f'{{ {code}; }}\n')
    assert len(statements) > 120, len(statements)
    with tempfile.NamedTemporaryFile("w", suffix=".c") as file:
        file.write(DECLARED + "".join(statements))
        file.flush()
        call(f"cc {STRICT} -Wno-unused -I. -fsyntax-only {file.name}", ROOT)


def own_text(path):
    """The preprocessed text of a test program, without that of gpunn.h."""
    source, own = path, []
    for line in call(f"cc -E -w -I. {path}", ROOT).splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            source = marker[1]
        elif not source.endswith("gpunn.h"):
            own.append(line)
    return "\n".join(own)


def functions_are_tested():
    """Each public function is used by a C program of tests/ that `ninja test` runs."""
    paths = [path for folder in ("ops", "robustness", "unit")
             for path in glob.glob(f"tests/{folder}/*.c", root_dir=ROOT)]
    assert len(paths) > 30, paths
    code = re.sub(r'"(?:\\.|[^"\\\n])*"', "", "\n".join(map(own_text, paths)))
    used = set(re.findall(r"\bgpunn_\w+", code))
    untested = set(reference.arguments.functions()) - {name.rstrip("_") for name in used}
    assert not untested, f"no test calls {', '.join(sorted(untested))}"


def reference_runs():
    """The calls that the reference shows besides those of the documents and the examples."""
    program(read("tests/docs/calls.c"), None)


def pictures_are_fresh():
    for path, draw in pictures.PICTURES.items():
        assert read(path) == draw(), f"python3 tests/docs/pictures.py renews {path}"


def pictures_fit_a_phone():
    """A page of a phone is 328 pixels wide. Texts in pictures are at least 9 pixels high there."""
    shown = {os.path.normpath(os.path.join(os.path.dirname(name), path)) for name in DOCUMENTS
             for path in re.findall(r"!\[[^]]*\]\(([^)]*\.svg)\)", read(name))}
    assert len(shown) > 5, shown
    for path in sorted(shown):
        text = read(path)
        width = float(re.search(r'viewBox="0 0 (\d+) ', text)[1])
        least = min(map(float, re.findall(r"font(?:-size)?: ?(\d+)px", text)))
        assert least * 328 / width >= 9, f"{path}: its texts are {least * 328 / width:.1f} pixels high"


def prose(text):
    """Its sentences, without headings, blocks, tables and link targets."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"^(?:#|\||!\[).*$|\]\([^)]*\)", "", text, flags=re.M)
    return [sentence for part in re.split(r"\n\s*\n|^- ", text, flags=re.M)
            for sentence in re.split(r"[.?!:]\s", part) if sentence.strip()]


def short_enough():
    """README.md has 1,500 words at most, other pages fewer than 1,000 besides code. Sentences are short."""
    words = len(read("README.md").split())
    assert words <= 1500, f"README.md has {words} words, of which a reader should need 1500 at most"
    for name in DOCUMENTS:
        words = len(re.sub(r"^```.*?^```$|`[^`\n]*`|\|", " ", read(name), flags=re.M | re.S).split())
        assert words < 1000 or name == "README.md", f"{name} has {words} words"
        lengths = [len(sentence.split()) for sentence in prose(read(name))]
        assert sum(lengths) < 18 * len(
            lengths), f"{name} has {sum(lengths) / len(lengths):.1f} words a sentence"
        assert max(lengths) <= 35, f"{name} has a sentence of {max(lengths)} words"


def compile_lines_name_the_gpu():
    """Without -arch a program contains code for nvcc's oldest GPU. The driver then recompiles it for seconds
    at the first start."""
    names = DOCUMENTS + ["gpunn.h", "gpunn_cuda.cu"] + [
        "examples/" + name
        for name in os.listdir(os.path.join(ROOT, "examples")) if not name.endswith((".ninja", ".md"))]
    lines = [(name, line) for name in sorted(names) if os.path.isfile(os.path.join(ROOT, name))
             for line in read(name).splitlines() if re.search(r"\bnvcc -\w", line)]
    assert len(lines) > 15, lines
    for name, line in lines:
        assert "-arch=" in line, f"{name} says how to compile, but not for which GPU: {line.strip()}"


def main():
    tests = ([("the code in gpunn.h's comment", manual_runs), ("names", names_exist), ("links", links_exist),
              ("examples", examples_tell), ("targets", targets_exist), ("help", help_names_targets),
              ("commands", commands_exist), ("calls", calls_compile), ("pictures", pictures_are_fresh),
              ("pictures on a phone", pictures_fit_a_phone),
              ("length", short_enough), ("Python", python_compiles), ("messages", messages_are_plain),
              ("exclusive or", xor_learns), ("commands to kernels", kernel_commands),
              ("compile lines", compile_lines_name_the_gpu),
              ("the reference's calls", reference_runs), ("functions are tested", functions_are_tested),
              ("sections of ops", rooms_agree),
              ("functions that both files have", nothing_stands_twice)] + reference.tests(OBJECT) + [
                  test for name in DOCUMENTS for test in c_blocks(name)])
    print(f"1..{len(tests)}")
    failed = 0
    for number, (name, test) in enumerate(tests, 1):
        try:
            test()
            print(f"ok {number} - {name}", flush=True)
        except unittest.SkipTest as reason:
            print(f"ok {number} - {name} # SKIP {reason}", flush=True)
        except (AssertionError, subprocess.TimeoutExpired, OSError, StopIteration) as error:
            failed += 1
            print(f"{error or type(error).__name__}\nnot ok {number} - {name}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
