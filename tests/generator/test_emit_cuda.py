"""emit_cuda.py: its kernels on the emulated GPU, under the address sanitizer, against the interpreter; and
nvcc's output for them."""
import importlib.util
import itertools
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from collections import namedtuple
from dataclasses import replace

from generator import emit_c, emit_cuda, grad, ir, template
from generator.floats import ROUND
from generator.program import SCALAR, WHOLE, Domain, Kernel, KernelSet, Launch, Operand, Program, Store, Sum
from tests.generator import interpret, sets
from tests.generator.test_emit_c import _decay, _once, _reference_update

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "gpu"))
import toolkit  # noqa: E402

EMULATOR = os.path.join(ROOT, "tests", "emulator")
FLAGS = ["-std=c++17", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-I" + EMULATOR,
         "-I" + ROOT, "-DGPUNN__EMULATOR"]
SANITIZE = ["-fsanitize=address,alignment", "-fno-sanitize-recover=all"]
FORMATS = {"f32": "f", "f16": "e", "i64": "q", "i32": "i", "u8": "B", "bool": "B"}
SEED, STEP, SITES = 0x1234567890ABCDEF, 5 << 31, (3, 70000)

Case = namedtuple("Case", "name kernel direction program batch nulls accumulate offset")


# ---- programs ----------------------------------------------------------------------------------------------
NUMBERS = itertools.count()


def operand(name, dtype="f32", place=WHOLE, count=(0, 1), **more):
    return Operand(name, more.pop("role", "value"), next(NUMBERS), dtype, place, count,
                   **dict(dict(read=True), **more))


def output(name, dtype="f32", place=WHOLE, count=(0, 1), **more):
    return operand(name, dtype, place, count, read=False, written=True, **more)


def elements(dtype):
    """Two streams, a scalar, an optional operand, dropout, an accumulated result and an optional one."""
    g = ir.Graph()
    x, y, k = operand("x", dtype), operand("y"), operand("k", place=SCALAR, count=(1, 0))
    maybe = operand("double", dtype, optional=True, absent=2.0)
    half = "f16" if dtype == "f32" else None
    to, other = (output("to", dtype, accumulate=True, optional=True, half=half),
                 output("other", dtype, optional=True))
    value = g.add(g.mul(g.load(x), g.keep(1, 0.3)), g.mul(g.load(y), g.load(k)))
    stores = (Store(to, g.round(dtype, g.mul(value, g.load(maybe)))), Store(other, g.op("tanh", value)))
    return Program((x, y, k, maybe, to, other), (Launch("map", Domain(0, 1, 1), stores),))


def narrow():
    """Operands of many smaller shapes."""
    g, n = ir.Graph(), 7 * 48
    places = {"a": (1, 7), "b": (1, 48), "c": (16, 3), "d": (48, 7), "e": (3, 16), "h": (48, 0), "k": (16, 3)}
    operands = [operand("x", "bf16", count=(0, n))]
    value = g.load(operands[0])
    for name, place in sorted(places.items()):
        count = (0, n // 48) if place[1] == 0 else (place[1] * (5 if name == "k" else 1), 0)
        operands.append(operand(name, "bf16" if name in "bd" else "f32", place, count,
                                stride=5 if name == "k" else 1))
        value = g.add(g.mul(value, g.const(0.5)), g.load(operands[-1]))
    operands.append(output("y", count=(0, n)))
    return Program(tuple(operands), (Launch("map", Domain(0, n, 1), (Store(operands[-1], value),)),))


def total(fixed):
    """Two sums of everything, one result for each element, and what follows from the sums."""
    g, count = ir.Graph(), (1003, 0) if fixed else (0, 1)
    x, y, loss = (operand("x", count=count), output("y", count=count),
                  output("loss", place=SCALAR, count=(1, 0)))
    mean, twice = (operand("mean", role="stat", place=SCALAR, count=(1, 0), written=True),
                   g.mul(g.load(x), g.const(2)))
    number = g.count(*count)
    first = Launch("map", Domain(*count, 1), (), (Sum(0, g.load(x), SCALAR, 1),),
                   (Store(mean, g.div(g.total(0), number)),))
    off = g.sub(g.load(x), g.load(mean))
    last = Launch("map", Domain(*count, 1), (Store(y, twice),),
                  (Sum(0, g.mul(off, off), SCALAR, 1), Sum(1, twice, SCALAR, 1)),
                  (Store(loss, g.add(g.div(g.total(0), number), g.total(1))),))
    return Program((x, y, loss, mean), (first, last))


def columns(width, dtype):
    """The gradients of y = relu(x + bias) * scale[row], with a sum of everything beside it."""
    g = ir.Graph()
    dy, y = operand("dy", dtype, count=(0, width)), operand("y", dtype, count=(0, width))
    scale, weight = operand("scale", place=(width, 0)), operand("weight", dtype, (1, width), (width, 0))
    dx = output("dx", dtype, count=(0, width), optional=True)
    db = output("db", place=(1, width), count=(width, 0), accumulate=True, optional=True)
    dw, all_of_it = (output("dw", place=(1, width), count=(width, 0)),
                     output("all", place=SCALAR, count=(1, 0)))
    value = g.mul(g.where(g.op("le", g.load(y), g.const(0)), g.const(0), g.load(dy)), g.load(scale))
    sums = (Sum(0, value, (1, width), width), Sum(1, value, SCALAR, 1),
            Sum(2, g.mul(value, g.load(y)), (1, width), width))
    finals = (Store(db, g.total(0)), Store(dw, g.mul(g.total(2), g.load(weight))),
              Store(all_of_it, g.total(1)))
    return Program((dy, y, scale, weight, dx, db, dw, all_of_it),
                   (Launch("map", Domain(0, width, 1), (Store(dx, g.mul(value, g.load(weight))),), sums,
                           finals),))


def channels(area, count, dtype):
    """Batch normalisation in training."""
    g, n, place = ir.Graph(), area * count, (area, count)
    x, y = operand("x", dtype, count=(0, n)), output("y", dtype, count=(0, n))
    shift = operand("shift", dtype, place, (0, n), stride=area)
    running = operand("running", place=place, count=(count, 0), written=True)
    stats = [operand("stat%d" % i, role="stat", place=place, count=(count, 0), written=True)
             for i in range(2)]
    kept = output("kept0", role="kept", place=place, count=(count, 0))
    per = g.count(0, area)
    mean, variance = grad.batch_norm_moments(g, [g.total(0), g.total(1)], g.load(shift), per)
    terms = grad.batch_norm_terms(g, g.load(x), g.load(shift))
    finals = (Store(stats[0], mean), Store(stats[1], grad.inverse_root(g, variance, 1e-5)),
              Store(running, g.add(g.mul(g.load(running), g.const(0.9)), g.mul(mean, g.const(0.1)))),
              Store(kept, mean))
    first = Launch("map", Domain(0, n, 1), (),
                   tuple(Sum(i, term, place, count) for i, term in enumerate(terms)), finals)
    apply = grad.batch_norm_apply(g, g.load(x), None, None, g.load(stats[0]), g.load(stats[1]))
    return Program((x, shift, running, y, kept) + tuple(stats),
                   (first, Launch("map", Domain(0, n, 1), (Store(y, apply),))))


def class_loss(width, dtype):
    """Cross entropy with its gradient, in one."""
    g, attrs = ir.Graph(), {"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.1}
    x, dx = (operand("x", dtype, count=(0, width)),
             output("dx", dtype, count=(0, width), accumulate=True, optional=True))
    label, label_too = operand("label", "i64"), operand("label_too", "i64", (width, 0))
    loss, each = output("loss", place=SCALAR, count=(1, 0)), output("each", place=(width, 0), optional=True)
    counted = operand("counted", role="stat", place=SCALAR, count=(1, 0), written=True)
    weight = grad.loss_weight(g, "cross_entropy", attrs, [g.load(x), g.load(label), None], width)
    first = Launch("map", Domain(0, 1, 1), (), (Sum(0, weight, SCALAR, 1),), (Store(counted, g.total(0)),))
    inputs = [g.load(x), g.load(label_too), None]
    cost = grad.forward(g, "cross_entropy", dict(attrs, reduction="none"), inputs, width)
    gradient = grad.backward(g, "cross_entropy", dict(attrs, reduction="none"), inputs, cost,
                             g.div(g.const(1), g.load(counted)), width)[0]
    main = Launch("row", Domain(0, width, width), (Store(dx, gradient), Store(each, cost)),
                  (Sum(0, cost, SCALAR, 1, True),), (Store(loss, g.div(g.total(0), g.load(counted))),))
    return Program((x, dx, label, label_too, loss, each, counted), (first, main))


def norm(width, dtype, dropout=False):
    """Forward of layer_norm(x + dropout(r)), and its backward."""
    g, attrs = ir.Graph(), {"dims": 1, "eps": 1e-5}
    half = "bf16" if dtype == "f32" else None
    x, r, y = (operand("x", dtype, count=(0, width)), operand("r", dtype, count=(0, width)),
               output("y", dtype, count=(0, width), half=half))
    weight, bias = (operand("w", place=(1, width), count=(width, 0)),
                    operand("b", place=(1, width), count=(width, 0)))
    summed = g.add(g.load(x), g.mul(g.load(r), g.keep(0, 0.5))) if dropout else g.add(g.load(x), g.load(r))
    operands = [summed, g.load(weight), g.load(bias)]
    value = grad.forward(g, "layer_norm", attrs, operands, width)
    forward = Program((x, r, weight, bias, y), (Launch("row", Domain(0, width, width), (Store(y, value),)),))
    dy, dx = (operand("dy", dtype, count=(0, width)),
              output("dx", dtype, count=(0, width), accumulate=True, optional=True, half=half))
    dw = output("dw", place=(1, width), count=(width, 0), accumulate=True)
    db = output("db", place=(1, width), count=(width, 0), optional=True)
    parts = grad.backward(g, "layer_norm", attrs, operands, value, g.load(dy), width)
    backward = Program((x, r, weight, dy, dx, dw, db), (Launch(
        "row", Domain(0, width, width), (Store(dx, parts[0]),),
        (Sum(0, parts[1], (1, width), width), Sum(1, parts[2], (1, width), width)),
        (Store(dw, g.total(0)), Store(db, g.total(1)))),))
    return forward, backward


def in_place():
    """A gradient that is read and written in place. The operand that shares its memory may be NULL."""
    g = ir.Graph()
    y, dy = operand("y", "bf16"), operand("dy", "bf16", role="gradient", written=True)
    dx = output("dx", "bf16", role="gradient", shares="dy", optional=True)
    value = g.where(g.op("le", g.load(y), g.const(0)), g.const(0), g.load(dy))
    return Program((y, dy, dx), (Launch("map", Domain(0, 1, 1), (Store(dy, value), Store(dx, value))),))


def groups(**settings):
    """Forward of group_norm, and its backward."""
    kernel = sets.group_norm(**settings)
    return kernel.forward, kernel.backward


UPDATES = sets.SETS["updates"]().updates + (sets.update("adamw", half_dtype="bf16"),
                                            sets.update("sgd", half_dtype="f16"))


def kernel_set(*programs, updates=()):
    """programs: (forward, backward or None, and perhaps a schedule)."""
    kernels = tuple(Kernel("g%d" % i, "y = f(x)", (("relu f32 [N]", (0,)),), ("f32 [N]",), (), len(SITES),
                           "any", False, None, *pair) for i, pair in enumerate(programs))
    return KernelSet("t", "0" * 64, "python3 -m generator t.json -o t", "auto", 0, kernels, (), (), updates)


# ---- running them ------------------------------------------------------------------------------------------
def philox(key, c):
    """Philox4x32-10."""
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p2 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = (p2 >> 32 ^ c[1] ^ k0, p2 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ k1, p0 & 0xFFFFFFFF)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


class Reference(interpret.Run):
    """The interpreter with gpunn.h's own dropout, and optional operands."""

    def keep(self, random_stream, p, i):
        drawn = (philox(SEED, (i // 8, self.random_streams[random_stream], STEP & 0xFFFFFFFF,
                               STEP >> 32))[i % 8 // 2] >> 16 * (i % 2) & 0xFFFF)
        kept = int((1 - p) * 65536 + 0.5)
        return 65536 / kept if drawn < kept else 0.0

    def load(self, one, i):
        return one.absent if self.data[one.role, one.index] is None else super().load(one, i)


def encoded(dtype, values):
    if dtype == "bf16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack("<%d%s" % (len(values), FORMATS[dtype]), *values)


def decoded(dtype, data):
    if dtype == "bf16":
        return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
    return list(struct.unpack("<%d%s" % (len(data) // struct.calcsize(FORMATS[dtype]), FORMATS[dtype]), data))


def memory_of(case):
    rng = random.Random(case.name + str(case.batch))
    memory = {}
    for one in case.program.operands:
        count = one.count[0] + one.count[1] * case.batch
        if one.role == "stat":
            continue
        if one.name in case.nulls:
            memory[one.name] = None
        elif one.name.startswith("label"):
            classes = min(one.count[1] and max(other.count[1] for other in case.program.operands), 50000)
            label_rng = random.Random(case.batch)
            memory[one.name] = [label_rng.choice((-100, 0, classes - 1, label_rng.randrange(classes)))
                                for _ in range(count)]
        else:
            memory[one.name] = [ROUND[one.dtype](rng.gauss(0, 1)) for _ in range(count)]
    if "shift" in memory:
        memory["shift"] = memory["x"]
    return memory


def wants_half(case, one):
    """Whether the case asks for an operand's 16-bit copy: if it asks for all optional operands."""
    return one.half is not None and not case.nulls


def question(case, memory):
    numbers = [case.kernel, emit_cuda.DIRECTIONS.index(case.direction), case.batch, SEED, STEP, len(SITES),
               *SITES]
    operands = [one for one in case.program.operands if one.role != "stat"]
    parts = [struct.pack("<%dQ" % (len(numbers) + 1), *numbers, len(operands))]
    for one in operands:
        values = memory[one.name]
        data = b"" if values is None else encoded(one.dtype, values)
        offset = len(encoded(one.dtype, [0])) * case.offset
        half = len(values) * 2 if wants_half(case, one) else -1
        parts.append(struct.pack("<qqqq", one.name in case.accumulate, -1 if values is None else len(data),
                                 half, offset) + data)
    return b"".join(parts)


def close(one, got, wanted):
    if wanted != wanted:
        return got != got
    coarse = {"f32": 3e-5, "f16": 1e-3, "bf16": 8e-3}[one.dtype]
    return got == wanted or abs(got - wanted) <= coarse * abs(wanted) + 5 * coarse


def write(folder, kernels):
    """The name of a set's .cu file."""
    for file, text in (("t_kernels.h", emit_c.emit_header(kernels)),
                       ("t_kernels.cu", emit_cuda.emit_cuda(kernels))):
        with open(os.path.join(folder, file), "w", encoding="ascii") as out:
            out.write(text)
    return os.path.join(folder, file)


def build(folder, kernels):
    """The program that runs a set's kernels."""
    kernels_file = write(folder, kernels)
    machine = os.path.join(ROOT, "build", "emulator", "machine.o")
    commands, objects = [], []
    if not os.path.exists(machine) or os.path.getmtime(machine) < max(
            os.path.getmtime(os.path.join(EMULATOR, file)) for file in os.listdir(EMULATOR)):
        machine = os.path.join(folder, "machine.o")
        commands.append(["g++", *FLAGS, "-O1", "-DEMULATOR_ASAN", "-c",
                         os.path.join(EMULATOR, "emulator.cpp"), "-o", machine])
    for source, *more in ((kernels_file, "-x", "c++"),
                          (os.path.join(ROOT, "tests", "generator", "run_kernels.cpp"),
                           "-DKERNELS=t_kernels_cuda")):
        objects.append(os.path.join(folder, os.path.basename(source) + ".o"))
        commands.append(["g++", *more, *FLAGS, *SANITIZE, "-I" + folder, "-c", source, "-o", objects[-1]])
    for command in commands + [["g++", *SANITIZE, *objects, machine, "-o", os.path.join(folder, "run")]]:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise AssertionError(" ".join(command) + "\n" + done.stdout[:4000])
    return os.path.join(folder, "run")


LOOPED = {"looped": True, "threads": 64}
# Pairs of forward and backward programs, with schedules and batches. The last batch also runs without
# optional operands, with accumulation, and with unaligned memory.
MAPS = ((elements("f32"), elements("bf16"), {}, (1, 7, 257, 1003)),
        (elements("f16"), narrow(), {"threads": 64}, (1, 3)),
        (total(False), total(True), {"packs": 3}, (1, 1003, 5000)),
        (columns(7, "f32"), columns(24, "bf16"), {}, (1, 257)),
        (columns(264, "bf16"), columns(300, "f32"), {}, (1, 37)),
        (channels(5, 3, "f32"), channels(16, 3, "bf16"), {}, (1, 150)), (in_place(), None, {}, (1, 257)))
ROWS = ((class_loss(10, "f32"), class_loss(1003, "bf16"), {}, (1, 9)),
        (class_loss(2056, "bf16"), norm(5, "f16", True)[1], {}, (1, 7)),
        norm(24, "f32", True) + ({}, (1, 21)), norm(257, "bf16") + ({}, (3,)),
        norm(1000, "bf16") + ({}, (5,)), norm(4099, "f32") + ({}, (2,)),
        norm(1000, "f32", True) + (LOOPED, (9,)), (class_loss(257, "bf16"), None, LOOPED, (40,)),
        groups() + ({}, (1, 9)), groups(plane=1, dtype="bf16") + ({}, (1, 70)),
        groups(groups=6, plane=64) + ({}, (1, 9)),
        groups(plane=112, dtype="f16") + (LOOPED, (5,)), (class_loss(3, "f32"), None, {}, (4100,)),
        norm(5, "f32") + ({"threads": 32}, (1, 203)), norm(768, "f32") + ({}, (1, 12)))


def cases_of(pairs, first):
    for number, (*programs, _, batches) in enumerate(pairs, first):
        for direction, program in zip(("forward", "backward"), programs):
            if program is None:
                continue
            optional = tuple(one.name for one in program.operands if one.optional)
            added = tuple(one.name for one in program.operands if one.accumulate)
            for batch in batches:
                yield Case("g%d" % number, number, direction, program, batch, (), (), 0)
            yield Case("g%d" % number, number, direction, program, batches[-1], optional, added, 0)
            yield Case("g%d" % number, number, direction, program, batches[-1], (), added, 1)


class Emulated(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.program = build(cls.folder.name, kernel_set(*(pair[:3] for pair in MAPS + ROWS), updates=UPDATES))

    def ask(self, questions, environment=()):
        """The program's answer, and its output."""
        done = subprocess.run([self.program], input=b"".join(questions), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=dict(os.environ, **dict(environment)))
        said = done.stderr.decode()[:3000]
        self.assertEqual(done.returncode, 0, said)
        return done.stdout, said

    def check(self, cases, **environment):
        """Every case equals the interpreter."""
        cases = list(cases)
        memories = [memory_of(case) for case in cases]
        (answer, printed), at = self.ask(map(question, cases, memories), environment), 0
        for case, memory in zip(cases, memories):
            said = "%s of %s, batch %d, without %s, adding to %s, offset %d" % (
                case.direction, case.name, case.batch, case.nulls, case.accumulate, case.offset)
            self.assertEqual(struct.unpack_from("<q", answer, at)[0], 0, said + "\n" + printed)
            at += 8
            keys = {one.name: (one.role, one.index) for one in case.program.operands}
            data = {keys[name]: values and list(values) for name, values in memory.items()}
            wanted = Reference(case.program, data, case.batch, SITES,
                               [keys[name] for name in case.accumulate]).data
            for one in case.program.operands:
                if one.role == "stat" or memory[one.name] is None:
                    continue
                size = len(encoded(one.dtype, memory[one.name]))
                got = decoded(one.dtype, answer[at:at + size])
                at += size
                if not one.written:
                    self.assertEqual(encoded(one.dtype, got), encoded(one.dtype, memory[one.name]),
                                     said + ": " + one.name)
                    continue
                wrong = [i for i, pair in enumerate(zip(got, wanted[keys[one.name]]))
                         if not close(one, *pair)]
                self.assertFalse(wrong, "%s: %d of %s, first %s" % (said, len(wrong), one.name, [
                    (i, got[i], wanted[keys[one.name]][i]) for i in wrong[:3]]))
                if wants_half(case, one):
                    rounded = encoded(one.half, [ROUND[one.half](value) for value in got])
                    self.assertEqual(answer[at:at + len(rounded)], rounded, said + ": 16 bits of " + one.name)
                    at += len(rounded)

    def test_elements_and_sums(self):
        self.check(cases_of(MAPS, 0))

    def test_rows(self):
        self.check(cases_of(ROWS, len(MAPS)), EMULATOR_ORDER="descending", CAPTURE="yes")

    def test_blocks_that_finish(self):
        """Sums of all slices, in one group or in several, in any order of the blocks."""
        summing = [case for case in cases_of(MAPS + ROWS, 0)
                   if any(launch.finals for launch in case.program.launches) and not case.offset]
        self.check(summing, EMULATOR_MULTIPROCESSORS="1")
        self.check(summing, EMULATOR_MULTIPROCESSORS="132", EMULATOR_ORDER="descending")

    def test_updates(self):
        """torch.optim's formulas. Nothing is written if the numbers say so. The 16-bit copy is the new
        parameter, rounded."""
        rng, given, questions, memories = random.Random(3), (0.5, 0.3, 0.01, 0.2, 0.999, 1.5, 0.07), [], []
        scale, limit, decay, rate, *_ = given
        kinds = list(itertools.product(range(len(UPDATES)), ((True, False, 1003, 0), (True, True, 3, 0),
                                                             (True, False, 257, 4), (False, False, 9, 0))))
        for which, (go, first, count, offset) in kinds:
            arrays = [[ROUND["f32"](rng.uniform(0.01, 1)) * sign for _ in range(count)]
                      for sign in (1, -1, 1, 0.1, 0.1)]
            own_scale = -scale if UPDATES[which]["maximize"] else scale
            once = _once(UPDATES[which], given, first)
            half = UPDATES[which]["half_dtype"]
            memory = [struct.pack("<?xxx10f", go, own_scale, rate, *once, *[0] * (8 - len(once))),
                      struct.pack("<fif", limit, _decay(UPDATES[which]), decay)]
            memory += [encoded("f32", array) for array in arrays] + [
                None if half == "f32" else bytes(2 * count)]
            memories.append((arrays, own_scale, memory))
            questions.append(struct.pack("<7q", which, 3, count, 0, 0, 0, len(memory)) + b"".join(
                struct.pack("<qqqq", 0, -1 if one is None else len(one), -1, offset) + (one or b"")
                for one in memory))
        (answer, printed), at = self.ask(questions), 0
        for (which, (go, first, count, _)), (arrays, own_scale, memory) in zip(kinds, memories):
            update = UPDATES[which]
            self.assertEqual(struct.unpack_from("<q", answer, at)[0], 0, printed)
            at += 8 + len(memory[0]) + len(memory[1])
            wanted = _reference_update(update, arrays, (own_scale, *given[1:]), first) if go else arrays
            for k in range(5):
                got = decoded("f32", answer[at:at + 4 * count])
                at += 4 * count
                for a, b in zip(wanted[k], got):
                    self.assertLessEqual(abs(a - b), 3e-6 * max(1, abs(a)), (update["kind"], which, k))
                if k == 0:
                    parameter = got
            if memory[7] is not None:
                self.assertEqual(answer[at:at + 2 * count],
                                 encoded(update["half_dtype"],
                                         [ROUND[update["half_dtype"]](p) for p in parameter]) if go else
                                 memory[7])
                at += 2 * count
        self.assertEqual(at, len(answer))


class Text(unittest.TestCase):
    def test_nvcc(self):
        """No warning, spill or local memory. tests/compile/fused.py checks all architectures and the bytes
        that kernels move."""
        found = toolkit.Toolkit()
        if found.nvcc is None or 90 not in found.architectures():
            self.skipTest("there is no nvcc")
        kernels = kernel_set(*(pair[:3] for pair in MAPS[:1] + ROWS[1:3] + ROWS[6:7]), updates=UPDATES[:1])
        kernels = replace(kernels, network=sets.SETS["network"]().network, step=sets.SETS["step"]().step)
        with tempfile.TemporaryDirectory() as folder:
            source = write(folder, kernels)
            strict = ("-Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror -Xptxas "
                      "-warn-spills,-warn-lmem-usage,-Werror".split())
            done = subprocess.run([found.nvcc, "-std=c++17", "-O3", "-arch=sm_90", *strict, *found.flags,
                                   "-I" + ROOT, "-I" + folder, "-cubin", source, "-o", source + ".cubin"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout[:3000])

    def test_instructions_that_an_architecture_has(self):
        """CUDA 12 still builds for GPUs before sm_75, which lack tanh, and before sm_80, which lack rounding
        to BF16."""
        functions = template.load("math_cuda.h", name="m", fn="FN")
        for architecture in 60, 70, 75, 80, 90:
            left = subprocess.run(["cc", "-E", "-P", "-x", "c", "-D__CUDA_ARCH__=%d0" % architecture, "-"],
                                  input=functions, stdout=subprocess.PIPE, text=True, check=True).stdout
            self.assertEqual("tanh.approx" in left, architecture >= 75)
            self.assertEqual("cvt.rn.bf16x2" in left, architecture >= 80)
            self.assertIn("ex2.approx", left)

    def test_only_what_is_needed(self):
        """Every helper is called by some kernel."""
        text = emit_cuda.emit_cuda(kernel_set((in_place(), None)))
        for word in ("reduce", "narrow", "kept", "final_threads", "struct sum"):
            self.assertNotIn(word, text)

    def test_what_fits_no_template_is_refused(self):
        launch = Launch("row", Domain(0, 60, 20), (), (Sum(0, ir.Graph().load(operand("x")), (1, 60), 60),))
        self.assertRaises(emit_cuda.EmitError, emit_cuda.shape_of, launch)

    def test_sets_that_are_made_elsewhere(self):
        """The kernels for tests/compile/fused.py and tests/bench/fused_gpu.py, which need nvcc themselves."""
        def load(folder, name):
            spec = importlib.util.spec_from_file_location(name,
                                                          os.path.join(ROOT, "tests", folder, name + ".py"))
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        looked_at, timed = load("compile", "fused"), load("bench", "fused_gpu")
        for made in looked_at.chains(), looked_at.kinds(), timed.kernel_set(list(timed.CASES))[0]:
            self.assertIn("__global__", emit_cuda.emit_cuda(made))
            self.assertIn(made.name, emit_c.emit_header(made))


if __name__ == "__main__":
    unittest.main()
