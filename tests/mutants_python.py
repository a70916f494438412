#!/usr/bin/env python3
"""Changes the generator in small ways, and asks whether a test of tests/generator sees it:

    python3 tests/mutants_python.py [--sample N] [--seed S] [--parts PATTERN] [--tests PATTERN] [--jobs N]

As tests/mutants.py does for C. The modules are changed as they are imported, and no file is written. The
function gpunn__mutant chooses the mutant that acts. Only code within functions is changed.

The fast subset of the tests is found by a run without a mutant, each test in a process of its own. Tests
longer than SLOWEST seconds are left out. The others run for the mutants that they reach. A test ends where it
would start a program that is not in build/, such as a compiler. A mutant that only such tests reach is killed
or counts as not reached. tests/equivalent_mutants_generator.txt names mutants that change nothing."""
import argparse
import ast
import builtins
import concurrent.futures
import contextlib
import glob
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import unittest

import mutants
from mutants import ROOT, Mutant

FOLDER, EQUIVALENT = "generator/", "tests/equivalent_mutants_generator.txt"
SLOWEST, LEAST_SECONDS, TIMES_USUAL = 2, 5, 5  # of the processor
MEMORY = 4 << 30
BUILT = os.path.join(ROOT, "build", "")
SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
         ast.Div: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
         ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn,
         ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And}
NAMED = ast.Name, ast.Attribute, ast.Subscript
PLACED = ast.Attribute, ast.Subscript


def children(node):
    """(child, its place) of the nodes below. A place is (owner, field, index in the field's list)."""
    for field, value in ast.iter_fields(node):
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield child, (node, field, index)


def put(place, node):
    owner, field, index = place
    if index is None:
        setattr(owner, field, node)
    else:
        getattr(owner, field)[index] = node


def is_text(node):
    return isinstance(node, ast.JoinedStr) or isinstance(node, ast.Constant) and isinstance(node.value, str)


def changes(node, place):
    """The nodes that may stand in a node's place."""
    swapped = SWAPS.get(type(getattr(node, "op", None)))
    if isinstance(node, ast.BinOp) and swapped and not is_text(node.left) and not is_text(node.right):
        yield ast.BinOp(node.left, swapped(), node.right)
        if isinstance(node.op, ast.Sub):
            yield ast.BinOp(node.right, node.op, node.left)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(swapped(), node.values)
    elif isinstance(node, ast.AugAssign) and swapped:
        yield ast.AugAssign(node.target, swapped(), node.value)
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield ast.Compare(node.left, node.ops[:i] + [SWAPS[type(op)]()] + node.ops[i + 1:],
                              node.comparators)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))
    elif isinstance(node, ast.Call):
        for i, (one, two) in enumerate(zip(node.args, node.args[1:])):
            if isinstance(one, NAMED) and isinstance(two, NAMED) and ast.dump(one) != ast.dump(two):
                yield ast.Call(node.func, node.args[:i] + [two, one] + node.args[i + 2:], node.keywords)
    if place[1] in ("test", "ifs"):
        yield ast.UnaryOp(ast.Not(), node)
    if isinstance(node, ast.AugAssign) or isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) or (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], PLACED)):
        yield ast.Pass()


class Part:
    """The mutants of a module. Their start and end count nodes; their code is (place, node, new node)."""

    def __init__(self, name):
        self.name, self.mutants, self.nodes = name, [], 0
        self.tree = ast.parse(mutants.read(FOLDER + name))
        for child, place in children(self.tree):
            self.visit(child, place, None)

    def visit(self, node, place, function):
        """Adds the mutants of a node and of those below it. function: its name, None outside of one."""
        if isinstance(node, (ast.arguments, ast.pattern)) or place[1] in ("annotation", "decorator_list",
                                                                         "returns"):
            return
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            module = os.path.basename(self.name)[:-3]
            function = f"{module}.{getattr(node, 'name', 'lambda')}"
        start = self.nodes
        self.nodes += 1
        for child, below in children(node):
            self.visit(child, below, function)
        for new in changes(node, place) if function else ():
            self.mutants.append(Mutant(self.name, getattr(node, "lineno", 0), 0, start, self.nodes, function,
                                       *self.texts(node, place, new), (place, node, new)))

    @staticmethod
    def texts(node, place, new):
        """The code before and after. A number is shown with what is around it."""
        whole = place[0] if isinstance(node, ast.Constant) else node
        original = ast.unparse(whole)
        put(place, new)
        mutated = ast.unparse(new if whole is node else whole)
        put(place, node)
        return " ".join(original.split()), " ".join(mutated.split()) or "pass"

    def with_mutants(self, own):
        for number, one in own.items():
            place, node, new = one.code
            switch = ast.Call(ast.Name("gpunn__mutant", ast.Load()), [ast.Constant(number)], [])
            put(place, ast.If(switch, [new], [node]) if isinstance(node, ast.stmt)
                else ast.IfExp(switch, new, node))
        return ast.fix_missing_locations(self.tree)


class Importer(importlib.machinery.SourceFileLoader):
    """Finds and loads the modules that have mutants."""
    trees = {}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        file = name.replace(".", "/") + ".py"
        if file in cls.trees:
            path = os.path.join(ROOT, file)
            return importlib.util.spec_from_file_location(name, path, loader=cls(name, path))

    def get_code(self, name):
        return compile(self.trees[name.replace(".", "/") + ".py"], self.path, "exec")


class Switch:
    """The mutant that acts, and those that were reached. ended: whether a test ended at a program."""
    number, reached, ended = 0, set(), False

    def __call__(self, number):
        self.reached.add(number)
        return number == self.number


def end_at_programs(event, arguments):
    starts = event in ("subprocess.Popen", "os.posix_spawn", "os.system")
    if starts and not str(arguments[0]).startswith(BUILT):
        switch.ended = True
        raise unittest.SkipTest("a program")


def run(tests, number, seconds):
    """{passed, whole, reached, seconds} of tests with a mutant; None if they crash or run too long."""
    source, target = os.pipe()
    child = os.fork()
    if child == 0:
        run_here(tests, number, seconds, target)
    os.close(target)
    with open(source, encoding="ascii") as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def run_here(tests, number, seconds, target):
    """Ends the process."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    with open(os.devnull, "w", encoding="ascii") as nowhere:
        for stream in 1, 2:
            os.dup2(nowhere.fileno(), stream)
    sys.addaudithook(end_at_programs)
    switch.number = number
    switch.reached.clear()
    result = unittest.TestResult()
    result.failfast = True
    with contextlib.suppress(BaseException):
        unittest.TestSuite(tests).run(result)
        os.write(target, json.dumps(
            {"passed": result.wasSuccessful(), "whole": not switch.ended and not result.skipped,
             "seconds": time.process_time(), "reached": sorted(switch.reached)}).encode())
    os._exit(0)


switch = Switch()
tests = []  # all, as worker processes inherit them


def flat(suite):
    for one in suite:
        yield from flat(one) if isinstance(one, unittest.TestSuite) else [one]


def usual(index):
    return index, run([tests[index]], 0, SLOWEST + 1)


def verdict(number, indices, seconds, whole):
    """(number, "killed", "survived" or "not reached"). whole: whether a whole test reaches it."""
    if not indices:
        return number, "not reached"
    limit = int(max(LEAST_SECONDS, TIMES_USUAL * seconds))
    result = run([tests[index] for index in indices], number, limit)
    left = "survived" if whole else "not reached"
    return number, left if result and result["passed"] else "killed"


def fast_tests(pool):
    """{index: result} of the tests that run for mutants, the quickest first."""
    results = {index: result for index, result in pool.map(usual, range(len(tests)))
               if result and result["seconds"] < SLOWEST}
    failed = [tests[index].id() for index, result in results.items() if not result["passed"]]
    if failed:
        sys.exit(f"without a mutant these tests fail: {', '.join(failed)}")
    ended = sum(not result["whole"] for result in results.values())
    print(f"{len(results)} of {len(tests)} tests are fast, and {ended} of them end at a program", flush=True)
    return dict(sorted(results.items(), key=lambda item: item[1]["seconds"]))


def judge(drawn, jobs):
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        fast = fast_tests(pool)
        verdicts = []
        for number in drawn:
            reaching = [index for index, result in fast.items() if number in result["reached"]]
            seconds = sum(fast[index]["seconds"] for index in reaching)
            whole = any(fast[index]["whole"] for index in reaching)
            verdicts.append(pool.submit(verdict, number, reaching, seconds, whole))
        mutants.report(FOLDER, drawn, concurrent.futures.as_completed(verdicts))


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sample", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--parts", default="*", help="such as exchange/* or emit_c.py")
    options.add_argument("--tests", default="test_*.py", help="such as test_emit*.py")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = options.parse_args()
    os.chdir(ROOT)
    parts = {name: Part(name) for name in sorted(glob.glob("**/*.py", root_dir=FOLDER, recursive=True))}
    drawn = mutants.draw(EQUIVALENT, parts, options)
    for name in {one.part for one in drawn.values()}:
        own = {number: one for number, one in drawn.items() if one.part == name}
        Importer.trees[FOLDER + name] = parts[name].with_mutants(own)
    sys.path.insert(0, ROOT)
    sys.meta_path.insert(0, Importer)
    builtins.gpunn__mutant = switch
    with tempfile.TemporaryDirectory(prefix="gpunn-") as folder:
        tempfile.tempdir = folder
        tests.extend(flat(unittest.defaultTestLoader.discover("tests/generator", options.tests, ROOT)))
        judge(drawn, options.jobs)


if __name__ == "__main__":
    main()
