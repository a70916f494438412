#!/usr/bin/env python3
"""Changes gpunn.h or, with --cuda, gpunn_cuda.cu in small ways, and asks whether a test sees it:

    python3 tests/mutants.py [--cuda] [--sample N] [--seed S] [--parts PATTERN] [--jobs N] PROGRAM...

A mutant is one change of a part, templates/gpunn/*/*.c or templates/gpunn_cuda/*/*.cu: an operator, a
condition, a constant, two operands or a statement. N of them are drawn at random, and no two of them overlap.
All are compiled at once: the variable GPUNN_MUTANT chooses the one that acts. A first run without it finds
which programs reach which mutant. Then each mutant runs in those programs. It is killed if one of them fails,
crashes or runs too long.

PROGRAM is the object of a test program, or a source that includes gpunn.h's implementation. The parts are
parsed by tree_sitter. tests/equivalent_mutants*.txt name mutants that change nothing; they are not drawn.
Survivors are printed, then sums by folder. The exit status is 1 if a program fails without a mutant."""
import argparse
import collections
import concurrent.futures
import fnmatch
import glob
import importlib
import mmap
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = "build/mutants/"
SWITCHED = ["-include", BUILD + "switch.h", f"-I{BUILD}parts"]
COMPILE = ["gcc", "-march=native", "-Werror=incompatible-pointer-types", "-Werror=int-conversion",
           "-DGPUNN_ZLIB", "-DGPUNN__MANY_GRADIENTS=0"] + SWITCHED
# equivalent: the list of mutants that change nothing. object: has all parts; those with mutants stand before
# it.
Library = collections.namedtuple("Library", "parts pattern language equivalent compile object")
C = Library("templates/gpunn/", "*/*.c", "c", "tests/equivalent_mutants.txt",
            COMPILE + ["-std=c99", "-O1", "-DGPUNN__PARTS"], "build/parts/gpunn.o")
# as build.ninja's rule cuda_part
CUDA = Library("templates/gpunn_cuda/", "*/*.cu", "cpp", "tests/equivalent_mutants_cuda.txt",
               ["g++", "-x", "c++", "-std=c++17", "-Itests/emulator", "-Ibuild/include",
                "-Wno-unknown-pragmas", "-ffp-contract=off", "-DGPUNN__EMULATOR",
                "-DGPUNN__BACKEND_NAME=gpunn_emulator_backend", "-DGPUNN__CHANNELS_LAST_FROM=0",
                "-DGPUNN__SHORT=emulator_short()", "-O1", "-DGPUNN__PARTS"] + SWITCHED,
               "build/parts/library.o")
LEAST_SECONDS, TIMES_USUAL = 20, 10
SWITCH = "extern int gpunn__mutant;\nextern char *gpunn__reached;\n"
# Reached mutants are counted in a shared file, which a crash and a child process leave intact.
SWITCHBOARD = """
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static char unread[%d];
int gpunn__mutant;
char *gpunn__reached = unread;
__attribute__((constructor)) static void begin(void)
{
    const char *mutant = getenv("GPUNN_MUTANT"), *path = getenv("GPUNN_MUTANTS_REACHED");
    if (mutant) gpunn__mutant = atoi(mutant);
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) return;
    gpunn__reached = mmap(NULL, sizeof unread, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
}
"""
SWAPS = {"+": "-", "-": "+", "*": "/", "/": "*", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=",
         "!=": "==", "&&": "||", "||": "&&", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="}
INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)[uUlL]*")
# no expression of these is evaluated when the function runs
CONSTANT = {"array_declarator", "bitfield_clause", "enumerator", "preproc_def", "preproc_function_def",
            "sizeof_expression", "type_descriptor"}
CALLS_OF_CONSTANTS = re.compile(r"_mm|__builtin|_tile")

Mutant = collections.namedtuple("Mutant", "part line last start end function original mutated code")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def write(path, text):
    path = os.path.join(ROOT, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


class Part:
    """The mutants of a part. Its text is bytes, as the parser counts them."""

    def __init__(self, path, name, parser):
        self.name, self.text, self.mutants = name, read(path).encode(), []
        for node in parser.parse(self.text).root_node.children:
            self.visit(node, "", False)

    def of(self, node):
        return self.text[node.start_byte:node.end_byte].decode()

    def visit(self, node, function, inside):
        """Adds the mutants of a node and of those below it. inside: in a function's body."""
        if node.type in CONSTANT or node.type == "ERROR" or self.is_static(node):
            return
        if node.type == "compound_statement" and not inside:
            inside, function = True, self.name_before(node)
        if inside:
            for one, original, mutated, code in self.changes(node):
                self.mutants.append(Mutant(
                    self.name, one.start_point[0] + 1, one.end_point[0] + 1, one.start_byte, one.end_byte,
                    function, " ".join(original.split()), " ".join(mutated.split()), code))
        skipped = node.child_by_field_name("condition") if node.type.startswith("preproc") else (
            node.child_by_field_name("value") if node.type == "case_statement" else None)
        for child in node.children:
            if child != skipped:
                self.visit(child, function, inside)

    def with_mutants(self, own):
        text = self.text
        for number, one in sorted(own.items(), key=lambda item: -item[1].start):
            switch = f"(gpunn__reached[{number}] = 1, gpunn__mutant == {number})"
            # what follows stays in its lines, which the compiler's errors name
            code = one.code.replace("\n", " ").replace("@", switch) + "\n" * (one.last - one.line)
            text = text[:one.start] + code.encode() + text[one.end:]
        return text.decode()

    def is_static(self, node):
        return node.type == "declaration" and any(
            child.type == "storage_class_specifier" and self.of(child) == "static" for child in node.children)

    def name_before(self, body):
        """The name of the function of a body, or the macro and the word that make it."""
        before = self.text[:body.start_byte].decode()
        head = before[max(before.rfind("\n}"), before.rfind("\n\n"), before.rfind(";\n")) + 1:]
        names = re.findall(r"\bgpunn_\w+(?=[,(])", head) or re.findall(r"\bGPUNN__\w+\(\w+\)", head)
        return names[0] if names else "?"

    def changes(self, node):
        """(node, text, text of the mutant, replacement with @ for the switch) of each mutant of a node."""
        text = self.of(node)
        operator = node.child_by_field_name("operator")
        if node.type in ("binary_expression", "assignment_expression") and self.of(operator) in SWAPS:
            yield from self.operators(node, text, operator)
        elif node.type == "number_literal" and INTEGER.fullmatch(text) and not self.must_be_constant(node):
            around, first = self.of(node.parent), node.start_byte - node.parent.start_byte
            for mutated in f"({text} + 1)", f"({text} - 1)":
                seen = around.encode()
                seen = seen[:first] + mutated.encode() + seen[first + len(text):]
                yield node, around, seen.decode(), f"(@ ? {mutated} : {text})"
        elif node.type == "expression_statement" and node.children[0].type in (
                "call_expression", "assignment_expression", "update_expression"):
            yield node, text, ";", f"{{ if (!@) {text} }}"
        elif node.type == "call_expression":
            yield from self.arguments(node, text)
        condition = node.child_by_field_name("condition")
        if condition and node.type in ("if_statement", "while_statement", "conditional_expression"):
            text = self.of(condition)
            yield condition, text, f"!{text}", f"(@ ? !({text}) : ({text}))"

    def operators(self, node, text, operator):
        left, right = (self.of(node.child_by_field_name(side)) for side in ("left", "right"))
        swapped = f"{left} {SWAPS[self.of(operator)]} {right}"
        yield node, text, swapped, f"(@ ? ({swapped}) : ({text}))"
        if self.of(operator) == "-":
            swapped = f"({right}) - ({left})"
            yield node, text, swapped, f"(@ ? {swapped} : {text})"

    def arguments(self, node, text):
        """Two neighbours change places."""
        name = self.of(node.child_by_field_name("function"))
        words = node.child_by_field_name("arguments").named_children
        for one, two in zip(words, words[1:]):
            kinds = {"identifier", "field_expression", "subscript_expression"}
            if one.type in kinds and two.type in kinds and not CALLS_OF_CONSTANTS.match(name):
                first, last = one.start_byte - node.start_byte, two.end_byte - node.start_byte
                whole = text.encode()
                swapped = f"{whole[:first].decode()}{self.of(two)}, {self.of(one)}{whole[last:].decode()}"
                yield node, text, swapped, f"(@ ? {swapped} : {text})"

    def must_be_constant(self, node):
        """Whether a number is an argument of an instruction."""
        while node and node.type != "call_expression":
            node = node.parent
        return node is not None and CALLS_OF_CONSTANTS.match(self.of(node.child_by_field_name("function")))


def equivalents(path):
    """{(function, original, mutated)} of a list of mutants that change nothing."""
    lines = [line for line in read(path).splitlines() if line and not line.startswith("#")]
    return {re.fullmatch(r"([\w().]+): `(.+)` becomes `(.+)`: .+", line).groups() for line in lines}


def parts_of(library):
    grammar = f"tree_sitter_{library.language}"
    try:
        parser = importlib.import_module("tree_sitter")
        language = importlib.import_module(grammar).language()
    except ImportError:
        sys.exit(f"ninja mutants needs two packages of PyPI: pip install tree_sitter {grammar}")
    parser = parser.Parser(parser.Language(language))
    names = sorted(glob.glob(library.pattern, root_dir=os.path.join(ROOT, library.parts)))
    return {name: Part(library.parts + name, name, parser) for name in names}


def text_of(mutant):
    return mutant.function, mutant.original, mutant.mutated


def draw(equivalent, parts, options):
    """Mutants at random, which do not overlap and are not equivalent."""
    known = equivalents(equivalent)
    all_texts = {text_of(mutant) for part in parts.values() for mutant in part.mutants}
    for function, original, mutated in known - all_texts:
        sys.exit(f"{equivalent}: {function} has no mutant `{original}` becomes `{mutated}`; "
                 "delete the line")
    every = [mutant for name, part in parts.items() if fnmatch.fnmatch(name, options.parts)
             for mutant in part.mutants if text_of(mutant) not in known]
    random.Random(options.seed).shuffle(every)
    drawn, taken = [], collections.defaultdict(list)
    for one in every:
        if len(drawn) < options.sample and all(
                one.end <= start or end <= one.start for start, end in taken[one.part]):
            taken[one.part].append((one.start, one.end))
            drawn.append(one)
    print(f"{len(drawn)} of {len(every)} mutants, seed {options.seed}", flush=True)
    return dict(enumerate(drawn, 1))


def compile_part(library, part, own):
    """Compiles a part with its own mutants. Deletes those that are no C, and those in branches of #if that
    this processor leaves out."""
    source, target = f"{BUILD}parts/{part.name}", f"{BUILD}objects/{part.name}.o"
    os.makedirs(os.path.join(ROOT, os.path.dirname(target)), exist_ok=True)
    command = library.compile + [source]
    while True:
        write(source, part.with_mutants(own))
        result = subprocess.run(command + ["-c", "-o", target], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        if result.returncode == 0:
            break
        errors = re.findall(rf"{re.escape(source)}:(\d+):\d+: error", result.stderr)
        wrong = {int(line) for line in errors}
        refused = [number for number, one in own.items() if wrong & set(range(one.line, one.last + 1))]
        if not refused:
            sys.exit(result.stderr)
        for number in refused:
            del own[number]
    if own:
        command.append("-E")
        text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        for number in [number for number in own if f"gpunn__mutant == {number})" not in text]:
            del own[number]
        write(source, part.with_mutants(own))  # sources of programs include it
    return target


def build(library, programs, parts, mutants, jobs):
    """{name: path} of the programs, linked with all mutants. Deletes mutants that cannot be compiled."""
    shutil.rmtree(os.path.join(ROOT, BUILD), ignore_errors=True)
    shutil.copytree(os.path.join(ROOT, library.parts), os.path.join(ROOT, BUILD, "parts"))
    write(BUILD + "switch.h", SWITCH)
    write(BUILD + "switch.c", SWITCHBOARD % (len(mutants) + 1))
    own = collections.defaultdict(dict)
    for number, one in mutants.items():
        own[one.part][number] = one
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(lambda name: compile_part(library, parts[name], own[name]), own))
        mutants.clear()
        mutants.update(item for each in own.values() for item in each.items())

        def link(program):
            path = BUILD + os.path.basename(program)[:-2]
            rest = [*objects, library.object] if program.endswith(".o") else ["-w", "-std=gnu99"]
            command = COMPILE + [program, *rest, BUILD + "switch.c", "-Wl,--allow-multiple-definition",
                                 "-o", path, "-lcmocka", "-lz", "-lstdc++", "-lm"]
            if subprocess.run(command, cwd=ROOT).returncode:
                sys.exit(f"{program} cannot be linked")
            return path

        return {os.path.basename(path): path for path in pool.map(link, programs)}


def run(path, limit=None, **variables):
    """Whether a program ends well in time."""
    with tempfile.TemporaryDirectory(prefix="gpunn-", ignore_cleanup_errors=True,
                                     dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        process = subprocess.Popen([path], cwd=ROOT, env=dict(os.environ, TMPDIR=folder, **variables),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


class Program:
    """A run without a mutant: how long it takes, and the mutants that it reaches."""

    def __init__(self, name, path, numbers):
        self.name, self.path = name, path
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(numbers + 1)
            start = time.monotonic()
            self.passed = run(path, GPUNN_MUTANTS_REACHED=file.name)
            self.seconds = time.monotonic() - start
            with mmap.mmap(file.fileno(), 0) as reached:
                self.reached = {number for number in range(1, numbers + 1) if reached[number]}
        print(f"{name}: reaches {len(self.reached)} in {self.seconds:.1f} s", flush=True)

    def kills(self, number):
        limit = max(LEAST_SECONDS, TIMES_USUAL * self.seconds)
        return not run(self.path, limit, GPUNN_MUTANT=str(number))


def verdict(number, programs):
    """(number, "killed", "survived" or "not reached"). The quickest programs run first."""
    reaching = [one for one in programs if number in one.reached]
    if not reaching:
        return number, "not reached"
    return number, "killed" if any(one.kills(number) for one in reaching) else "survived"


def print_table(sums):
    kinds = "killed", "survived", "not reached"
    print(f"\n{'folder':12}" + "".join(f"{kind:>14}" for kind in kinds))
    for room in sorted({room for room, _ in sums}) + ["all"]:
        counts = [sum(n for (where, what), n in sums.items() if room in (where, "all") and what == kind)
                  for kind in kinds]
        print(f"{room:12}" + "".join(f"{count:14}" for count in counts) +
              f"{100 * counts[0] / max(1, sum(counts)):8.1f} % killed")


def report(folder, mutants, verdicts):
    """Prints what is not killed, and the sums. verdicts: futures of (number, verdict), as they end."""
    sums = collections.Counter()
    for done in verdicts:
        number, what = done.result()
        one = mutants[number]
        sums[os.path.dirname(one.part) or ".", what] += 1
        if what != "killed":
            print(f"{folder}{one.part}:{one.line}: {what}: {one.function}: "
                  f"`{one.original}` becomes `{one.mutated}`", flush=True)
    print_table(sums)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cuda", action="store_true", help="of gpunn_cuda.cu, on the emulated GPU")
    options.add_argument("--sample", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--parts", default="*", help="such as cpu/* or cpu/norm.c")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options.add_argument("programs", nargs="+")
    options = options.parse_args()
    library = CUDA if options.cuda else C
    parts = parts_of(library)
    mutants = draw(library.equivalent, parts, options)
    size = len(mutants)
    paths = build(library, options.programs, parts, mutants, options.jobs)
    print(f"{size - len(mutants)} are no C, or not for this processor", flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        programs = list(pool.map(lambda item: Program(*item, size), paths.items()))
        programs.sort(key=lambda one: one.seconds)
        failed = [one.name for one in programs if not one.passed]
        if failed:
            sys.exit(f"without a mutant these programs fail: {', '.join(failed)}")
        verdicts = [pool.submit(verdict, number, programs) for number in mutants]
        report(library.parts, mutants, concurrent.futures.as_completed(verdicts))


if __name__ == "__main__":
    main()
