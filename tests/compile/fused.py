#!/usr/bin/env python3
"""Compiles generated CUDA kernels and checks them: python3 tests/compile/fused.py [MODEL.json ...] [--arch
75,90] [--table]

If none are named, the models are those of tests/generator/specs, in F32 and BF16, and small networks and
training steps, one of each in all precisions. Elementwise chains with a known cost in instructions are added,
and the sets of the emitters' tests. An error is: a warning; a spilled register; local memory; a kernel that
does not access all values of elements by 128 bits, or moves other bytes than its launch declares; a BF16
chain, or an optimizer's step, with more instructions per element than an H200 has time for at 90 % of its
bandwidth; a network's or training step's kernel without its precision's tensor core instructions on an
architecture that has them, or with more shared memory than a card has."""
import argparse
import dataclasses
import glob
import json
import os
import struct
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [ROOT, os.path.join(ROOT, "tests", "gpu"), os.path.join(ROOT, "tests", "compile")]
import kernels
import toolkit
from generator import (emit_c, emit_cuda, emit_network_cuda, ir, lower, partition, scalar, schedule, spec,
                       tiling, training)
from generator.program import WHOLE, Domain, Kernel, KernelSet, Launch, Operand, Program, Store
from tests.generator import sets

ROOM = max(card.room for card in tiling.CARDS.values())  # bytes of shared memory that a block may have
# instructions of an H200 per byte: from its lanes, its clock, and the bandwidth of a copy
BUDGET = 132 * 128 * 1.755e9 / 4.3e12
WIDTH = 768


def chain(name, function):
    """y = function(x + b), or its gradient for dy, in BF16. b has a value for each column."""
    half = dict(role="value", dtype="bf16", place=WHOLE, count=(0, WIDTH))
    x, dy = Operand(name="x", index=0, read=True, **half), Operand(name="dy", index=1, read=True, **half)
    b = Operand("b", "value", 2, "f32", (1, WIDTH), (WIDTH, 0), read=True)
    to = Operand(name="to", index=-1, written=True, **half)

    def program(backward):
        g = ir.Graph()
        z = g.add(g.load(x), g.load(b))
        value = function(g, z, g.load(dy) if backward else None)
        return Program((x, dy, b, to) if backward else (x, b, to),
                       (Launch("map", Domain(0, WIDTH, 1), (Store(to, value),)),))
    return Kernel("g", name, (("relu bf16 [N]", (0,)),), ("bf16 [N]",), (), 1, "any", False, None,
                  program(False), program(True))


def elementwise(op):
    def function(g, z, dy):
        y = g.apply(op, {}, [z])
        return y if dy is None else g.derivative(op, 0, {}, [z], y, dy)
    return function


def dropout(g, z, dy):
    return g.mul(z if dy is None else g.add(z, dy), g.keep(0, 0.1))


ADAMW = {"kind": "adamw", "momentum": 0.0, "dampening": 0.0, "beta1": 0.9, "beta2": 0.999, "alpha": 0.0,
         "eps": 1e-8, "nesterov": False,
         "centered": False, "maximize": False, "decoupled": False, "half_dtype": "bf16"}


def chains():
    made = [chain(op, elementwise(op)) for op in ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")] + [
        chain("dropout", dropout)]
    named = tuple(dataclasses.replace(one, name="g%d" % i) for i, one in enumerate(made))
    return KernelSet("chains", "0" * 64, "", "auto", 0, named, (), (), (ADAMW,))


def kinds():
    """One of each kind of launch and operand: the sets of the emitters' tests that partition could make."""
    made = [kernel for function in sets.SETS.values() for kernel in function().kernels
            if all(len(program.operands) <= lower.MOST_POINTERS
                   for program in (kernel.evaluation, kernel.forward, kernel.backward) if program)]
    named = tuple(dataclasses.replace(one, name="g%d" % i) for i, one in enumerate(made))
    return KernelSet("kinds", "0" * 64, "", "auto", 0, named, (), (), sets.SETS["updates"]().updates)


def model(path, precision):
    with open(path, encoding="utf-8") as file:
        text = json.load(file)
    text["precision"] = precision
    name = "%s_%s" % (os.path.splitext(os.path.basename(path))[0], precision)
    return partition.partition(spec.parse(json.dumps(text), path), name=partition.identifier(name))


# ---- what a kernel should move -----------------------------------------------------------------------------
def launches(kernel_set):
    for kernel in kernel_set.kernels:
        for direction in emit_cuda.DIRECTIONS:
            program = getattr(kernel, direction)
            for i, launch in enumerate(program.launches if program else ()):
                prefix = "%s_%s_%s_%d" % (kernel_set.name, kernel.name, direction, i)
                yield emit_cuda.LaunchEmitter(prefix, launch, scalar.is_fast(kernel_set, launch),
                                              kernel.schedule, kernel.formula)


def wide(operands, pack):
    """128-bit accesses to packs of these."""
    return sum(schedule.BYTES[one.dtype] * pack // 16 for one in operands)


def expected(one):
    """128-bit loads and stores in the kernel for packs."""
    pack, stored = one.shape.pack, wide(one.stored(), one.shape.pack)
    stored += sum(schedule.BYTES[operand.half] * pack // 16 for operand in one.stored() if operand.half)
    sums = len(one.placed) * pack // 4  # a pack of a slice's sums

    def reads(functions, *ways):
        functions = [function for function in functions if function]
        found = [operand for function in functions for operand in one.of_function(function, *ways)]
        return wide([operand for operand in schedule.unique(found) if one.by_packs(operand)], pack)
    if one.shape.template == "row_loop":  # the loops of the stages are unrolled twice
        loads = sum(2 * reads([step], "stream", "column", "narrow")
                    for step in one.steps if step.scope == "element")
        return loads + reads([one.element], "stream", "column", "narrow") + wide(one.olds(), pack), stored
    loads = reads(one.steps + [one.element], "stream", "column", "narrow") + wide(one.olds(), pack)
    if one.shape.template == "row":
        times = -(-one.inner // pack // one.shape.team)
        return times * loads, times * (stored + sums)
    times = one.shape.unroll
    return (times * loads + reads([one.element], "fixed"),
            times * stored + (sums if one.shape.template == "columns" else 0))


def moved(row, side):
    """The 128-bit accesses of a kernel. One of 256 bits counts as two."""
    return sum(count * bits // 128 for (kind, bits, _), count in row.items() if kind == side and bits >= 128)


def traffic_faults(kernel_set, table):
    for one in launches(kernel_set):
        name = "%s_cuda::%s<%d>" % (kernel_set.name, one.kernel, one.shape.pack)
        own, right = (moved(table[name], "ld"), moved(table[name], "st")), expected(one)
        if own != right:
            yield "%s (%s): %d loads and %d stores of 128 bits, not %d and %d" % (
                (name, one.formula) + own + right)
        read, written = schedule.streams(one.launch)
        bytes_moved = [schedule.BYTES[operand.dtype]
                       for operand in read + [two for two in written if two.shares is None]]
        declared = declared_streams(one.launch)
        if sorted(bytes_moved) != sorted(declared):
            yield "%s (%s): streams of %s bytes, but %s are declared" % (
                name, one.formula, bytes_moved, declared)
        if one.shape.template == "map" and any(schedule.BYTES[operand.dtype] * one.shape.pack < 16
                                               for operand in read + written if
                                               operand.dtype not in ("u8", "bool")):
            yield "%s (%s): packs of less than 128 bits" % (name, one.formula)


def declared_streams(launch):
    """The bytes per element in lower.traffic, without narrower operands."""
    found = {}
    for operand in ir.loads([store.value for store in launch.stores] + [one.value for one in launch.sums]):
        found[operand.name, "read"] = operand
    for store in launch.stores:
        if store.operand.shares is None:
            found[store.operand.name, "write"] = store.operand
    return [lower.BYTES[operand.dtype] for operand in found.values() if operand.place == WHOLE]


# ---- instructions ------------------------------------------------------------------------------------------
def code_sizes(path):
    """{kernel: bytes of instructions} of a cubin, an ELF file."""
    with open(path, "rb") as file:
        data = file.read()
    start, = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    sections = [struct.unpack_from("<IIQQQQ", data, start + i * size) for i in range(count)]
    base = sections[names][4]
    found = {}
    for name, _, _, _, _, length in sections:
        text = data[base + name:data.index(b"\0", base + name)].decode()
        if text.startswith(".text."):
            found[text[6:]] = length
    readable = kernels.readable(found)
    return {readable[name]: length for name, length in found.items()}


def instruction_table(kernel_set, cubin):
    """(name, instructions per element, budget). The last elements, less than a pack, do not count: they take
    about as much as the kernel for single elements."""
    sizes = code_sizes(cubin)
    for one in launches(kernel_set):
        name = "%s_cuda::%s<%d>" % (kernel_set.name, one.kernel, one.shape.pack)
        read, written = schedule.streams(one.launch)
        budget = BUDGET * sum(schedule.BYTES[operand.dtype] for operand in read + written)
        own = sizes[name] - sizes["%s_cuda::%s<1>" % (kernel_set.name, one.kernel)] / one.shape.unroll
        yield ("%s of %s" % (one.prefix.split("_")[2], one.formula),
               own / 16 / (one.shape.pack * one.shape.unroll), budget)
    for i, update in enumerate(kernel_set.updates):
        pack = 8 if update["half_dtype"] != "f32" else 4
        name = "%s_cuda::%s_update%d_kernel<%%d>" % (kernel_set.name, kernel_set.name, i)
        yield update["kind"], (sizes[name % pack] - sizes[name % 1]) / 16 / pack, BUDGET * 28


def harmless(kernel, row):
    """A division's slow path may spill two registers in a kernel that only runs where memory is not
    aligned."""
    return kernel.endswith("<1>") and all(one.stack <= 8 for one in row.values())


def tile_forms(kernel_set):
    """(kernel, tiling.Tiling) of a network's and a training step's forms."""
    found = []
    if kernel_set.network:
        found += [("network_evaluation", form)
                  for form in tiling.forms(tiling.tile_plan(kernel_set.network[0].evaluation.network))]
    if kernel_set.step:
        found += [("step_forward", form) for form in training.forms(kernel_set.step[0].forward.step)]
    for which, form in found:
        kind, where = emit_network_cuda.TYPES[form.factors], kernel_set.name + "_cuda::"
        yield ("%s%s_%s_kernel<%s, %d, %d, %s>" % (
            where, kernel_set.name, which, kind if kind == "float" else where + kind, form.samples,
            form.floats, str(form.whole).lower()), form)


def tile_faults(kernel_set, source, nvcc, architectures, folder):
    """Each form's tensor core instructions."""
    for architecture in [one for one in (75, 80, 90) if one in architectures]:
        kernels.compile_to(nvcc, source, source + ".tiles", [architecture], "-I" + folder, "-ptx")
        with open(source + ".tiles") as file:
            table = kernels.products(file.read())
        for name, form in tile_forms(kernel_set):
            right = []
            if 0 < tiling.CAPABILITY[form.factors] <= architecture:
                half = architecture < 80 or form.factors == "tf32"
                right = ["m16n8k%d.row.col.f32.%s.%s.f32" % (8 if half else 16, form.factors, form.factors)]
            if list(table[name]) != right:
                yield "%s on sm_%d: its instructions are %s, not %s" % (
                    name, architecture, list(table[name]), right)


def memory_faults(kernel_set, table):
    """The shared memory of each form, and what the compiler has added to it."""
    for name, form in tile_forms(kernel_set):
        beside, most = (max(one.shared for one in table[name].values()),
                        training.STATIC if "step_forward" in name else 0)
        if beside > most or form.bytes + beside > ROOM:
            yield "%s: %d bytes of shared memory and %d beside them, more than %d, or than %d beside them" % (
                name, form.bytes, beside, ROOM, most)


def check(kernel_set, folder, nvcc, architectures):
    """(lines of a table, faults)."""
    name, lines, bad = kernel_set.name, [], []
    source = os.path.join(folder, name + "_kernels.cu")
    for path, text in ((source, emit_cuda.emit_cuda(kernel_set)),
                       (source[:-2] + "h", emit_c.emit_header(kernel_set))):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    said, seconds = kernels.compile_to(nvcc, source, source + ".o", architectures, "-I" + folder, "-c",
                                       "-Xptxas", "-v")
    table = kernels.resources(said)
    bad += kernels.faults({kernel: row for kernel, row in table.items() if not harmless(kernel, row)})
    kernels.compile_to(nvcc, source, source + ".ptx", [90 if 90 in architectures else architectures[0]],
                       "-I" + folder, "-ptx")
    with open(source + ".ptx") as file:
        accesses = kernels.accesses(file.read())
    bad += traffic_faults(kernel_set, accesses)
    if kernel_set.network or kernel_set.step:
        bad += [*tile_faults(kernel_set, source, nvcc, architectures, folder),
                *memory_faults(kernel_set, table)]
    for kernel, row in table.items():
        lines.append(f"{kernel:72}" + "".join(f"{row[a].registers:5}" for a in architectures) +
                     f"  {kernels.texts(accesses[kernel], 'ld')} | {kernels.texts(accesses[kernel], 'st')}")
    if name == "chains":
        kernels.compile_to(nvcc, source, source + ".cubin", [90], "-I" + folder, "-cubin")
        for what, own, budget in instruction_table(kernel_set, source + ".cubin"):
            lines.append(f"{what:40} {own:6.1f} instructions for an element, of {budget:.1f}")
            if own > budget:
                bad.append(f"{what}: {own:.1f} instructions for an element, more than {budget:.1f}")
    lines.append(f"{name}: {len(table)} kernels, {seconds:.1f} s of CPU")
    return lines, bad


ALL = ("f32", "bf16", "f16", "tf32")
PRECISIONS = {"network": ALL, "step": ALL, "step_deep": ("bf16", "tf32"), **dict.fromkeys((
    "images", "images_long", "network_fields", "step_bytes", "step_classes", "step_fields", "step_layers",
    "step_rows", "step_words"), ("f32",))}  # of small models


def precisions_of(path):
    return PRECISIONS.get(os.path.basename(path)[:-5], ALL[:2])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--arch", help="such as 80,90")
    parser.add_argument("--table", action="store_true", help="print registers and accesses of all kernels")
    options = parser.parse_args()
    nvcc = toolkit.Toolkit()
    if nvcc.nvcc is None:
        sys.exit("nvcc was not found: examples/guides/gpu.md says how to get it; NVCC names one")
    has = nvcc.architectures()
    architectures = ([int(a) for a in options.arch.split(",")] if options.arch else
                     [a for a in kernels.ARCHITECTURES if a in has])
    paths = (
        options.models or sorted(glob.glob(os.path.join(ROOT, "tests", "generator", "specs", "*.json"))) + [
            os.path.join(ROOT, "tests", "generator", "specs", "small", name + ".json") for name in (
                "images", "images_long", "network", "network_fields", "step", "step_bytes", "step_classes",
                "step_fields", "step_layers", "step_rows", "step_wide", "step_deep", "step_words")])
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        for kernel_set in [chains(), kinds()] + [model(path, precision) for path in paths
                                                 for precision in precisions_of(path)]:
            try:
                lines, faults = check(kernel_set, folder, nvcc, architectures)
            except kernels.CompileError as error:
                lines, faults = [], [str(error)]
            print(*(lines if options.table else lines[-1:]), sep="\n", flush=True)
            bad += faults
    for line in bad:
        print("error: " + line)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
