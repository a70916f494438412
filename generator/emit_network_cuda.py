"""The GPU kernel of a small network (network.py). Each block takes tiles of samples through all steps in
shared memory."""
import math
import re

from . import scalar, template
from .emit_inference import STORED, Emitter, joined, loops, spread, strides
from .network import POOLS
from .scalar import number
from .tiling import (AT_ONCE, CAPABILITY, CHANNELS, THREADS, apart, cycles, each_apart, forms, refusal,
                     staging, tile_plan)

TYPES = {"f32": "float", "tf32": "tf32", "bf16": "bf16", "f16": "f16"}
MEMORY = dict(STORED, **TYPES)
# functions that end in a barrier
ENDS = ("linear", "layer_norm", "rms_norm", "softmax", "log_softmax", "conv1d", "conv2d") + POOLS


def at(base, offset):
    return "%s + %d" % (base, offset) if offset else base


class TileEmitter(Emitter):
    """Steps for a tile. A sample's values are PITCH floats apart from the next one's. Operands are read from
    the call's memory."""

    def __init__(self, plan, name, operands):
        """operands: names by id."""
        super().__init__(plan, name)
        self.operands = operands
        self.staged = []  # for each product: its weight's rows, their length, and the line that stages it

    # ---- where values lie ----
    def named(self, block):
        """A variable name for a step's own use. For values see pointer() and element()."""
        return at("values", block.place)

    def offset(self, i):
        block, offset = self.plan.at[i]
        return block.root().place + offset

    def is_shared(self, i):
        return self.plan.at[i][0].root().kind == "scratch"

    def pointer(self, i):
        if i is None:
            return "(const float *)NULL"
        return (at("values", self.offset(i)) if self.is_shared(i) else
                at("o." + self.operands[i], self.plan.at[i][1]))

    def element(self, i, index):
        if not self.is_shared(i):
            return "o.%s[%s]" % (self.operands[i], self.place(index, self.plan.at[i][1]))
        return "own[%s]" % self.place(index, self.offset(i))

    @staticmethod
    def place(index, offset):
        return index if not offset else str(offset) if index == "0" else "%s + %d" % (index, offset)

    # ---- loops ----
    @staticmethod
    def each(count, lines, samples="SAMPLES"):
        """A loop over element e of each sample, distributed over the threads."""
        element = (["const unsigned e = i %% %d;" % count] if any(re.search(r"\be\b", line) for line in lines)
                   else [])
        own = "float *const own = values + i%s * PITCH;" % (" / %d" % count if count > 1 else "")
        return (["#pragma unroll 1",
                 "for (unsigned i = threadIdx.x; i < %s * %d; i += %d) {" % (samples, count, THREADS)] + [
                     "    " + line for line in element + [own] + lines] + ["}"])

    @staticmethod
    def index(sizes, steps):
        """The index of element e, which counts along axes of these sizes, in memory with these strides."""
        terms = []
        for size, inner, step, outermost in zip(sizes, strides(sizes), steps, [True] + [False] * len(sizes)):
            text = "e" if inner == 1 else "e / %d" % inner
            text = text if outermost else "%s %% %d" % (text, size)
            if step:
                terms.append(text if step == 1 else
                             "%s * %d" % (text if text == "e" else "(%s)" % text, step))
        return " + ".join(terms) or "0"

    def copied(self, i, source, sizes, to, frm, to_offset=0, from_offset=0, form="%s"):
        count = math.prod(sizes)
        sizes, (to, frm) = joined(sizes, [to, frm])
        own, other = self.index(sizes, to), self.index(sizes, frm)
        value = self.element(source, self.place(other, from_offset))
        return self.each(count, ["%s = %s;" % (self.element(i, self.place(own, to_offset)), value)])

    # ---- steps ----
    def stored(self, i):
        """The C type of a value in a GPU's memory."""
        return TYPES[self.plan.storage[i]]

    def rounded(self, i, value):
        return value if self.stored(i) == "float" else "stored_as(%s(), %s)" % (self.stored(i), value)

    def step(self, step):
        if step in self.plan.ends().values():
            return []
        lines = super().step(step)
        return lines if step.tensor.op in ENDS else lines + ["__syncthreads();"]

    def elementwise(self, step):
        t, function, used = self.element_function(step)
        own = self.shape(t.id)
        sizes, steps = joined(own, [strides(own)] + [spread(self.shape(i), own) for i in used])
        arguments = [self.element(i, self.index(sizes, one)) for i, one in zip(used, steps[1:])]
        result = self.element(t.id, self.index(sizes, steps[0]))
        call = scalar.wrapped(function + "(", arguments + ["&" + result], ");", 12)
        rounded = self.rounded(t.id, result)
        return self.each(self.plan.count(t.id), call + ["%s = %s;" % (result, rounded)] * (rounded != result))

    def op_linear(self, t):
        x, w, b = t.inputs
        out, width = self.shape(w)
        if self.plan.is_long(width):
            parts = [self.pointer(t.id), self.pointer(x), self.room, self.pointer(w), self.pointer(b)]
            return scalar.wrapped("long_linear<SAMPLES, PITCH, %d, %d, %d>(" %
                                  (width, out, self.plan.count(t.id) // out), parts, ");", 8)
        rows, at_once = self.plan.count(t.id) // out, "AT%d" % len(self.staged)
        aligned = self.offset(x) % 4 == 0 and (rows == 1 or width % 4 == 0)
        start = "weights + %s" % at_once if self.staged else "weights"
        staged = "weights + (WHOLE ? %s : 0)" % at_once if self.staged else "weights"
        self.staged.append((out, width, "stage<T, %d>(%s, %s, %s, %d);" %
                            (width, start, self.pointer(w), self.pointer(b), out)))
        form = "linear<T, SAMPLES, PITCH, %d, %d, %d, %s, WHOLE, FLOATS>(" % (
            width, out, rows, self.flag(aligned))
        return scalar.wrapped(form, [self.pointer(t.id), self.pointer(x), staged, self.pointer(w),
                                     self.pointer(b)], ");", 8)

    def places(self):
        """Lines that define where the weights of products are, except the first one's."""
        return ["const int AT%d = %sstep_of<T>(%d) * %d;" % (i + 1, "AT%d + " % i if i else "", width, out)
                for i, (out, width, _) in enumerate(self.staged[:-1])]

    def op_layer_norm(self, t):
        x, w, b = (t.inputs + (None,))[:3]
        n = math.prod(self.shape(t.id)[len(t.shape) - t.attrs["dims"]:])
        form = "norm<%s, PITCH, %d, %d, %s>(" % (self.stored(t.id), self.plan.count(t.id) // n, n,
                                                 self.flag(t.op == "rms_norm"))
        return scalar.wrapped(form, ["SAMPLES"] + list(map(self.pointer, (t.id, x, w, b))) +
                              [number(t.attrs["eps"])], ");", 8)

    op_rms_norm = op_layer_norm

    def op_softmax(self, t):
        outer, n, inner = self.line(t.id, t.attrs["dim"])
        form = "softmax<%s, PITCH, %d, %d, %d, %s>(" % (
            self.stored(t.id), outer * inner, n, inner, self.flag(t.op == "log_softmax"))
        return scalar.wrapped(form, ["SAMPLES", self.pointer(t.id), self.pointer(t.inputs[0])], ");", 8)

    op_log_softmax = op_softmax

    def op_cast(self, t):
        """Also casts of integers, which are floats here."""
        count = self.plan.count(t.id)
        own = "e" if count > 1 else "0"
        return self.each(count, ["%s = %s;" % (self.element(t.id, own),
                                               self.rounded(t.id, self.element(t.inputs[0], own)))])

    def op_embedding(self, t):
        """An index out of range gives NaN, as in the op's own kernel."""
        tokens, w = t.inputs
        (rows, width), count = self.shape(w), self.plan.count(t.id)
        own, row = "e" if count > 1 else "0", "e / %d" % width if self.plan.count(tokens) > 1 else "0"
        column = ("(int)token" if width == 1 else
                  "(int)token * %d + e" % width + " %% %d" % width * (row != "0"))
        picked = "token >= 0 && token < %d ? %s : NAN" % (rows, self.element(w, column))
        return self.each(count, ["const float token = %s;" % self.element(tokens, row)] + scalar.wrapped(
            self.element(t.id, own) + " =", [self.rounded(t.id, picked)], ";", 12))

    def op_hash_grid_encoding(self, t):
        """A thread computes one level of a point."""
        x, table = t.inputs
        axes, features = self.shape(x)[-1], self.shape(table)[1]
        lines, levels = self.hash_levels(t)
        points = self.plan.count(x) // axes
        y, own, level = at("own", self.offset(t.id)) + " + e * %d" % features, at("own", self.offset(x)), "e"
        if points > 1:
            own, level = own + " + e / %d * %d" % (levels, axes), "e %% %d" % levels
        call = self.call("hash_features", y, own, self.pointer(table), "&levels[%s]" % level, axes, features)
        return self.block_of(lines + self.each(points * levels, call))

    # ---- images ----
    def window(self, t, kernel, stride, padding, dilation):
        """The C type that describes how windows slide over x. A row is an image of height 1."""
        sizes = [self.shape(t.inputs[0])[2:], self.shape(t.id)[2:], kernel, stride, padding, dilation]
        sizes = [one if isinstance(one, tuple) else (one,) for one in sizes]
        pairs = [(fill,) * (2 - len(one)) + one for one, fill in zip(sizes, (1, 1, 1, 1, 0, 1))]
        return "window<%s>" % ", ".join(str(size) for pair in pairs for size in pair)

    def op_conv(self, t):
        (x, w, b), a = t.inputs, t.attrs
        window = self.window(t, self.shape(w)[2:], a["stride"], a["padding"], a["dilation"])
        form = "convolve<%s, SAMPLES, PITCH, %d, %d, %d>(" % (
            window, a["groups"], self.shape(w)[1], self.shape(w)[0] // a["groups"])
        return scalar.wrapped(form, list(map(self.pointer, (t.id, x, w, b))) + [self.end(t)], ");", 8)

    def end(self, t):
        """What is done to each result of a convolution before it is stored."""
        step = self.plan.ends().get(t.id)
        if step is None:
            return "[](float x) { return x; }"
        _, function, used = self.element_function(step)
        return "[](float x) { %s(%s&x); return x; }" % (function, "x, " * len(used))

    def pool(self, t, kernel, stride, padding, padded):
        form = "pool<%s, PITCH, %d, %s, %s>(" % (
            self.window(t, kernel, stride, padding, (1, 1)), self.shape(t.id)[1],
            self.flag("avg" in t.op), self.flag(padded))
        return scalar.wrapped(form, ["SAMPLES", self.pointer(t.id), self.pointer(t.inputs[0])], ");", 8)

    def op_batch_norm(self, t):
        inner = math.prod(self.shape(t.id)[2:])
        channel = "e" if inner == 1 else "e / %d" % inner
        numbers = [self.element(i, channel) if i is not None else text
                   for i, text in zip(t.inputs[1:], ("1", "0", "0", "1"))]
        own = scalar.wrapped("normalized(",
                             [self.element(t.inputs[0], "e")] + numbers + [number(t.attrs["eps"])], ");", 12)
        return self.each(self.plan.count(t.id), ["%s = %s" % (self.element(t.id, "e"), own[0])] + own[1:])

    def op_sum(self, t):
        x, dims = t.inputs[0], t.attrs["dims"]
        shape, steps = self.shape(x), strides(self.shape(x))
        kept = [axis for axis in range(len(shape)) if axis not in dims]
        sizes, (frm,) = joined([shape[axis] for axis in kept], [[steps[axis] for axis in kept]])
        inner, (within,) = joined([shape[axis] for axis in dims], [[steps[axis] for axis in dims]])
        names = ["j", "k", "l", "m"][:len(inner)]
        terms = [self.index(sizes, frm)] + ["%s * %d" % pair for pair in zip(names, within)]
        place = " + ".join(term for term in terms if term != "0") or "0"
        body = loops(inner, ["total += %s;" % self.element(x, place)], 1)
        divided = " / %d" % math.prod(inner) if t.attrs.get("mean") else ""
        own = "e" if self.plan.count(t.id) > 1 else "0"
        body = ["float total = 0;"] + body + ["%s = total%s;" % (self.element(t.id, own), divided)]
        return self.each(self.plan.count(t.id), body)

    # ---- the kernel ----
    def given(self):
        """Lines that load the inputs, with zeros for missing samples."""
        lines = []
        for t in self.plan.inputs:
            count = self.plan.count(t.id)
            element = self.element(t.id, "e" if count > 1 else "0")
            source = "%so.%s[first * %d + i]" % ("" if t.dtype == "f32" else "(float)", self.operands[t.id],
                                                 count)
            lines += self.each(count, ["%s = i < samples * %d ? %s : 0;" % (element, count, source)])
        return lines + ["__syncthreads();"]

    def taken(self):
        return self.brought(self.plan.outputs)

    def brought(self, values):
        """Lines that store values to the call's memory."""
        lines = []
        for i in values:
            count = self.plan.count(i)
            to, value = "first * %d + i" % count, self.element(i, "e" if count > 1 else "0")
            lines += self.each(count, ["store<1>(o.%s, %s, same<1>(%s));" % (self.operands[i], to, value)],
                               "samples")
        return lines + ["__syncthreads();"]


def emitter_of(kernel_set, plan):
    """The emitter, and the lines of all steps."""
    kernel, ids = kernel_set.network
    tensors = [ids[-1 - one.index if one.index < 0 else len(kernel.nodes) + one.index]
               for one in kernel.evaluation.operands]
    emitter = TileEmitter(plan, kernel_set.name,
                          {i: one.name + "_" for i, one in zip(tensors, kernel.evaluation.operands)})
    return (emitter,
            emitter.given() + [line for step in plan.steps for line in emitter.step(step)] + emitter.taken())


def functions(kernel_set):
    """The functions of elements. If a C kernel calls them too, the header holds them instead."""
    emitter, _ = emitter_of(kernel_set, tile_plan(kernel_set.network[0].evaluation.network))
    return emitter.element_functions().splitlines()


def emit_cuda(kernel_set):
    """The text of the kernel and of the two functions that the runtime calls. None if no GPU runs it."""
    kernel = kernel_set.network[0]
    program, name = kernel.evaluation, kernel_set.name
    plan = tile_plan(program.network)
    if refusal(plan):
        return None
    emitter, steps = emitter_of(kernel_set, plan)
    names = list(emitter.operands.values())
    kinds = [("" if one.written else "const ") + MEMORY[one.dtype] for one in program.operands]
    members = ["%s *%s;" % (kind, one) for one, kind in zip(names, kinds)]
    filled = ["o.%s = (%s *)call->data[%d];" % (one, kind, k)
              for k, (one, kind) in enumerate(zip(names, kinds))]
    return template.load(
        "network.cu", function="%s_%s_evaluation" % (name, kernel.name), comment=kernel.name,
        threads=str(THREADS), pitch=str(plan.pitch()), steps=steps, members=members, filled=filled,
        count=str(len(forms(plan))), places=emitter.places(), staged=bool(emitter.staged),
        resident=[line for _, _, line in emitter.staged] + ["__syncthreads();"], apart="%.0f" % apart(plan),
        forms=["{%d, %d, %d, %s, %.0f, %.0f, %.6g}," % (
            one.samples, one.bytes, CAPABILITY[one.factors], Emitter.flag(one.fills), staging(one),
            cycles(plan, one), each_apart(plan, one.factors)) for one in forms(plan)],
        first=instance(forms(plan)[0]), cases=cases(forms(plan)))


def instance(form):
    """The template arguments of the kernel of a form."""
    return "%s, %d, %d, %s" % (TYPES[form.factors], form.samples, form.floats, Emitter.flag(form.whole))


def cases(choices):
    """Lines that launch form i."""
    return ["case %d: LAUNCH(%s); break;" % (i, instance(one)) for i, one in enumerate(choices)]


def library(kernel_set):
    """The library functions that such kernels call."""
    return of_tiles(any(whole and whole[0].precision != "f32"
                        for whole in (kernel_set.network, kernel_set.step)))


def of_tiles(tiles):
    """tiles: whether to include what tensor cores need."""
    return template.load("network_device.h", threads=str(THREADS), channels=str(CHANNELS), unroll="2",
                         tiles=tiles, columns=str(AT_ONCE[0]), rows=str(AT_ONCE[1]))
