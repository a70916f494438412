"""Writes NAME_inference.h: a model's evaluation in plain C99, without any library but the C library's
math."""
import math
import re
import textwrap
from collections import namedtuple

from . import ir, scalar, signature, stamp, table, template
from .floats import f32
from .graph import hash_levels, shape_text
from .inference import GATES, Plan
from .scalar import number

STORED = {"f32": "float", "i64": "int64_t", "i32": "int32_t", "u8": "uint8_t", "bool": "uint8_t"}
CASTS = {"f32": "(float)%s", "i64": "(int64_t)%s", "i32": "(int32_t)%s", "u8": "(uint8_t)%s",
         "bool": "%s != 0"}
INDICES = "ijklmnop"
LOCALS = tuple(INDICES) + tuple("from_" + index for index in INDICES) + (
    "weights", "states", "scratch", "window", "heads", "r", "in", "out", "ratio", "total", "index", "levels")
WIDTH = 110
# What math.h takes from the C library, and its replacement here.
HOSTED = {"fabsf": "%s_abs", "floorf": "%s_floor", "copysignf": "%s_copysign", "fmodf": "%s_fmod",
          "INFINITY": "%S_INFINITY", "NAN": "%S_NAN"}

Given = namedtuple("Given", "name")  # a number that is passed to a function as an argument


def freestanding(text, name):
    """Removes the use of the C library from a text."""
    return re.sub(r"\b(%s)\b" % "|".join(HOSTED),
                  lambda found: HOSTED[found.group()].replace("%s", name).replace("%S", name.upper()), text)


def strides(shape):
    result, step = [], 1
    for size in reversed(shape):
        result.insert(0, step)
        step *= size
    return result


def spread(narrow, wide):
    """The strides of an operand that is broadcast to a shape."""
    missing = len(wide) - len(narrow)
    return [0] * missing + [0 if size == 1 else step for size, step in zip(narrow, strides(narrow))]


def joined(sizes, steps):
    """Merges loops over axes into as few as visit the same places in the same order. Each operand has its own
    list of strides."""
    axes = [(size, [own[k] for own in steps]) for k, size in enumerate(sizes) if size != 1]
    result = []
    for size, own in axes:
        if result and all(before == step * size for before, step in zip(result[-1][1], own)):
            result[-1] = result[-1][0] * size, own
        else:
            result.append((size, own))
    return [size for size, _ in result], [[own[k] for _, own in result] for k in range(len(steps))]


def place(steps, names, offset=0):
    """The C expression of an element's index, from loop counters and strides."""
    terms = [name if step == 1 else "%s * %d" % (name, step) for name, step in zip(names, steps) if step]
    return " + ".join(terms + ([str(offset)] if offset else [])) or "0"


def loops(sizes, body, first=0):
    """Nested loops around lines."""
    names = INDICES[first:]
    lines = ["    " * k + "for (int %s = 0; %s < %d; ++%s)" % (name, name, size, name)
             for k, (name, size) in enumerate(zip(names, sizes))]
    if len(body) > 1 and sizes:
        lines[-1] += " {"
    lines += ["    " * len(sizes) + line for line in body]
    return lines + ["    " * (len(sizes) - 1) + "}"] if len(body) > 1 and sizes else lines


def three(values, fill):
    """Settings of a window's axes, padded to three."""
    return (fill,) * (3 - len(values)) + tuple(values)


def braces(values):
    return "{%s}" % ", ".join(map(str, values))


def values_of(plan, step):
    """An ir.Graph, and by id its values for an elementwise step and its operands."""
    graph, values = ir.Graph(), {}
    letters = dict(zip(step.operands, ("x", "y", "z")))
    for k, i in enumerate(step.operands):
        values[i] = graph.load(Given(letters[i] if len(step.operands) <= 3 else "x%d" % k))
    for m in step.members:
        node = plan.tensors[m]
        for i in node.inputs:
            if i not in values:
                values[i] = graph.const(plan.tensors[i].values[0])
        values[m] = graph.apply(node.op, node.attrs, [values[i] for i in node.inputs])
    return graph, values


class Emitter:
    CONSTANT = "static const"

    def __init__(self, plan, name, quantized=None, length=0, first=None):
        """quantized: for each weight stored in 8 bits, (rows, scales, values). length: of the block that the
        function's name ends in; 0: none. first: the emitter of another block, whose functions it shares."""
        self.plan, self.name, self.NAME, self.length = plan, name, name.upper(), length
        self.quantized = quantized or {}
        self.names, self.fields, self.function_names = scalar.Names(), scalar.Names(), scalar.Names()
        self.names.taken.update(self.locals())
        self.field = {t.id: self.fields.new(self.word(t)) for t in plan.weights + plan.states}
        self.next = {state: self.fields.new(self.field[state] + "_next") for state, _ in plan.rings.values()}
        outputs = [plan.tensors[i] for i in plan.outputs]
        self.arguments = {("input", t.id): self.names.new(self.word(t)) for t in plan.inputs}
        self.arguments.update({("output", t.id): self.names.new(self.word(t)) for t in outputs})
        self.blocks = {}      # the C expression of each block's address
        self.constants = []   # blocks, in the order in which the steps read them
        self.functions = {}   # functions of elementwise values: their names by their texts
        if first:
            self.functions, self.function_names = first.functions, first.function_names
        self.scratch_sizes = plan.sizes()
        self.can_fail = False

    # ---- names ----
    def locals(self):
        """Names of the lines' own variables, which no tensor may have."""
        return LOCALS + ("length",) * bool(self.length)

    @staticmethod
    def word(t):
        label = re.sub(r"[^A-Za-z0-9_]", "_", t.label or t.name or "") or "t%d" % t.id
        return label if label[0].isalpha() else "t_" + label

    def base(self, block):
        block = block.root()
        if block not in self.blocks:
            self.blocks[block] = self.named(block)
        return self.blocks[block]

    def named(self, block):
        if block.kind in ("weight", "state"):
            return "%ss->%s" % (block.kind, self.field[block.tensor.id])
        if block.kind == "input" or block.output:
            return self.arguments[("output", block.output.id) if block.output else ("input", block.tensor.id)]
        if block.kind == "constant":
            self.constants.append(block)
            return "%s_constant%d" % (self.name, block.tensor.id)
        return self.names.new(self.word(block.tensor) if block.tensor else "room")

    def pointer(self, i):
        """The C expression of a value's address; NULL if it is left out."""
        if i is None:
            return "NULL"
        block, offset = self.plan.at[i]
        text = self.base(block)
        return "%s + %d" % (text, offset) if offset else text

    def element(self, i, index):
        block, offset = self.plan.at[i]
        text = self.base(block)
        return "%s[%s]" % (text, index if not offset else str(offset) if index == "0" else
                           "%s + %d" % (index, offset))

    def shape(self, i):
        return self.plan.shape(i)

    def weight(self, i):
        """How a product takes its weight: the suffix of the function, and its arguments."""
        if i in self.quantized:
            return "_int8", [self.pointer(i), "weights->%s_scale" % self.field[i]]
        return "", [self.pointer(i)]

    # ---- statements ----
    def call(self, function, *arguments):
        return scalar.wrapped("%s_%s(" % (self.name, function), [str(one) for one in arguments], ");", 4)

    @staticmethod
    def flag(value):
        return "true" if value else "false"

    def copied(self, i, source, sizes, to, frm, to_offset=0, from_offset=0, form="%s"):
        """Loops that copy elements of `source` to value i. to, frm: the strides of both along axes of these
        sizes."""
        sizes, (to, frm) = joined(sizes, [to, frm])
        names = INDICES[:len(sizes)]
        value = form % self.element(source, place(frm, names, from_offset))
        return loops(sizes, ["%s = %s;" % (self.element(i, place(to, names, to_offset)), value)])

    def moves(self, t):
        """What a value copies from its operands, each element once, as (source, sizes, strides in it, strides
        in the source, offsets)."""
        own, dim = strides(self.shape(t.id)), t.attrs.get("dim")
        if t.op == "concat":
            at = 0
            for i in t.inputs:
                yield i, self.shape(i), own, strides(self.shape(i)), at * own[dim], 0
                at += self.shape(i)[dim]
            return
        x, offset = t.inputs[0], 0
        steps = strides(self.shape(x))
        if t.op == "permute":
            steps = [steps[axis] for axis in t.attrs["dims"]]
        elif t.op == "expand":
            steps = spread(self.shape(x), self.shape(t.id))
        else:
            offset = t.attrs["start"] * steps[dim]
            steps[dim] *= t.attrs["step"]
        yield x, self.shape(t.id), own, steps, 0, offset

    def step(self, step):
        t = step.tensor
        if step.members:
            return self.elementwise(step)
        self.room = self.base(step.room) if step.room else "NULL"
        name = "op_" + (t.op if not t.op.startswith("conv") else "conv")
        return getattr(self, name, self.op_of_signature)(t)

    def values(self, step):
        return values_of(self.plan, step)

    def element_function(self, step):
        """The tensor of an elementwise step, the function that computes it, and the operands of that
        function."""
        t, (_, values) = step.tensor, self.values(step)
        function, parameters = self.function(t.op, [("result", "store", Given("result"), values[t.id])])
        used = [i for i in step.operands if values[i].attr.name in parameters]
        return t, function, sorted(used, key=lambda i: parameters.index(values[i].attr.name))

    def elementwise(self, step):
        t, function, used = self.element_function(step)
        own = self.shape(t.id)
        sizes, steps = joined(own, [strides(own)] + [spread(self.shape(i), own) for i in used])
        names = INDICES[:len(sizes)]
        arguments = [self.element(i, place(one, names)) for i, one in zip(used, steps[1:])]
        result = "&" + self.element(t.id, place(steps[0], names))
        return loops(sizes, scalar.wrapped(function + "(", arguments + [result], ");", 4 * len(sizes) + 4))

    def function(self, op, results):
        """The name of the function that computes the results, and its parameters' names. Equal functions are
        shared."""
        _, slots, _, text = scalar.function(self.name, "@", results)
        if text not in self.functions:
            self.functions[text] = self.function_names.new("%s_apply_%s" % (self.name, op))
        return self.functions[text], [slot.key.name for slot in slots]

    def element_functions(self):
        """The texts of the functions that the steps call."""
        return "\n".join(text.replace("@", own) for text, own in self.functions.items())

    def fails(self, condition):
        self.can_fail = True
        return "if (%s) return false;" % condition

    # ---- ops ----
    def op_linear(self, t):
        x, w, b = t.inputs
        suffix, weight = self.weight(w)
        out, width = self.shape(w)
        return self.call("linear" + suffix, self.pointer(t.id), self.pointer(x), *weight, self.pointer(b),
                         self.plan.count(t.id) // out, width, out)

    def op_matmul(self, t):
        a, b = t.inputs
        m, n = self.shape(t.id)[-2:]
        turn_a, turn_b = t.attrs["transpose_a"], t.attrs["transpose_b"]
        k = self.shape(a)[-2 if turn_a else -1]
        outer = self.shape(t.id)[:-2]
        own = [[step * size for step in spread(self.shape(i)[:-2], outer)]
               for i, size in ((t.id, m * n), (a, m * k), (b, k * n))]
        sizes, own = joined(outer, own)
        names = INDICES[:len(sizes)]
        to, left, right = ["%s + %s" % (self.pointer(i), place(one, names)) if sizes and any(one) else
                           self.pointer(i) for i, one in zip((t.id, a, b), own)]
        if turn_b and not turn_a:
            body = self.call("linear", to, left, right, "NULL", m, k, n)
        else:
            a_steps = (1, m) if turn_a else (k, 1)
            b_steps = (1, k) if turn_b else (n, 1)
            body = self.call("matmul", to, left, *a_steps, right, *b_steps, m, k, n)
        return loops(sizes, body)

    def window(self, kernel, stride, padding, dilation, small, big):
        """Lines that define `window`."""
        parts = [three(big, 1), three(small, 1), three(kernel, 1), three(stride, 1), three(padding, 0),
                 three(dilation, 1)]
        return self.struct("window", "window", [braces(part) for part in parts])

    def struct(self, kind, name, parts):
        """Lines that define a variable of the library's struct of that kind."""
        return (["const %s_%s %s = {" % (self.name, kind, name)] + ["    " + line for line in filled(parts)] +
                ["};"])

    def block_of(self, lines):
        return ["{"] + ["    " + line for line in lines] + ["}"]

    def conv_product(self, t):
        """A convolution with one output position: a product with the cells under its window."""
        x, w, b = t.inputs
        suffix, weight = self.weight(w)
        if t.id in self.plan.rings:
            state, new = self.plan.rings[t.id]
            seen = self.room
            lines = self.call("stream", seen, self.pointer(state), "&states->" + self.next[state],
                              self.pointer(new), math.prod(self.shape(new)), self.shape(w)[2],
                              *t.attrs["dilation"])
        elif self.plan.takes_all(t):
            lines, seen = [], self.pointer(x)
        else:
            cells, steps = math.prod(self.shape(x)[:2]), strides(self.shape(x))
            sizes = (cells,) + self.shape(w)[2:]
            sizes, (to, frm) = joined(sizes, [strides(sizes), [steps[1]] + [
                step * dilation for step, dilation in zip(steps[2:], t.attrs["dilation"])]])
            seen, names = self.room, INDICES[:len(sizes)]
            lines = loops(sizes, ["%s[%s] = %s;" % (seen, place(to, names), self.element(
                x, place(frm, names)))])
        return lines + self.call("linear" + suffix, self.pointer(t.id), seen, *weight, self.pointer(b),
                                 self.shape(x)[0], math.prod(self.shape(w)[1:]), self.shape(w)[0])

    def op_conv(self, t):
        if self.plan.is_product(t):
            return self.conv_product(t)
        x, w, b = t.inputs
        a, groups, turned = t.attrs, t.attrs["groups"], t.op.startswith("conv_transpose")
        window = [value if isinstance(value, tuple) else (value,)
                  for value in (a["stride"], a["padding"], a["dilation"])]
        kernel, small, big = self.shape(w)[2:], self.shape(t.id)[2:], self.shape(x)[2:]
        # a pointwise convolution is a product with one long row
        if all(one == (1,) * len(kernel) for one in (kernel, window[0])) and not any(window[1]):
            kernel, small, big, window = (1,), (math.prod(small),), (math.prod(big),), [(1,), (0,), (1,)]
        if turned:
            small, big = big, small
        suffix, weight = self.weight(w)
        lines = self.window(kernel, *window, small, big)
        function = ("conv_transpose" if turned else "conv") + suffix
        return self.block_of(lines + self.call(
            function, self.pointer(t.id), self.pointer(x), *weight, self.pointer(b),
            self.shape(x)[0], groups, self.shape(x)[1] // groups, self.shape(t.id)[1] // groups, "&window"))

    def pool(self, t, kernel, stride, padding, padded):
        x = t.inputs[0]
        lines = self.window(kernel, stride, padding, (1,) * len(kernel), self.shape(t.id)[2:],
                            self.shape(x)[2:])
        volumes = math.prod(self.shape(x)[:2])
        return self.block_of(lines + self.call("pool", self.pointer(t.id), self.pointer(x), volumes,
                                               "&window", self.flag("avg" in t.op), self.flag(padded)))

    def op_max_pool2d(self, t):
        a = t.attrs
        return self.pool(t, a["kernel_size"], a["stride"], a["padding"], a.get("count_include_pad", False))

    op_max_pool3d = op_avg_pool2d = op_avg_pool3d = op_max_pool2d

    def op_adaptive_max_pool2d(self, t):
        axes = len(t.shape) - 2
        return self.pool(t, (0,) * axes, (1,) * axes, (0,) * axes, False)

    op_adaptive_max_pool3d = op_adaptive_avg_pool2d = op_adaptive_avg_pool3d = op_adaptive_max_pool2d

    def op_interpolate(self, t):
        x, mode = t.inputs[0], t.attrs["mode"]
        sizes = [braces(three(self.shape(i)[2:], 1)) for i in (x, t.id)]
        lines = ["const int in[3] = %s, out[3] = %s;" % tuple(sizes),
                 "const float ratio[3] = %s;" % braces(map(number, three(t.attrs["ratio"], 0.0)))]
        return self.block_of(lines + self.call(
            "interpolate", self.pointer(t.id), self.pointer(x), math.prod(self.shape(x)[:2]), "in", "out",
            "ratio", {"linear": 2, "cubic": 4}.get(mode, 1),
            self.flag(mode != "nearest" and not t.attrs["align_corners"])))

    def op_layer_norm(self, t):
        x, w, b = (t.inputs + (None,))[:3]
        n = math.prod(self.shape(t.id)[len(t.shape) - t.attrs["dims"]:])
        return self.call("layer_norm", self.pointer(t.id), self.pointer(x), self.pointer(w), self.pointer(b),
                         self.plan.count(t.id) // n, n, number(t.attrs["eps"]), self.flag(t.op == "rms_norm"))

    op_rms_norm = op_layer_norm

    def op_group_norm(self, t):
        shape = self.shape(t.id)
        return self.call("group_norm", *map(self.pointer, (t.id,) + t.inputs), shape[0],
                         t.attrs["num_groups"], shape[1], math.prod(shape[2:]), number(t.attrs["eps"]))

    def op_batch_norm(self, t):
        shape = self.shape(t.id)
        return self.call("batch_norm", *map(self.pointer, (t.id,) + t.inputs), shape[0], shape[1],
                         math.prod(shape[2:]), number(t.attrs["eps"]))

    op_instance_norm = op_batch_norm

    def line(self, i, dim):
        shape = self.shape(i)
        return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1:])

    def op_of_signature(self, t):
        """A call of the function with the op's name. It takes the sizes that the op's signature names, those
        of "..." multiplied, and the attributes except the axis."""
        shapes = list(map(self.shape, t.inputs))
        sizes = signature.bind(table.ops()[t.op].signature, shapes, t.attrs.get("dim"))
        attrs = [self.flag(value) if isinstance(value, bool) else number(value)
                 for key, value in t.attrs.items() if key != "dim"]
        return self.call(t.op, *map(self.pointer, (t.id,) + t.inputs), *map(math.prod, sizes.values()),
                         *attrs)

    def op_topk_indices(self, t):
        dim = t.attrs["dim"]
        return self.call("topk", self.pointer(t.id), self.pointer(t.inputs[0]), *self.line(t.inputs[0], dim),
                         self.shape(t.id)[dim], self.flag(t.attrs["largest"]))

    def op_sample(self, t):
        logits, draw = t.inputs
        return self.call("sample", *map(self.pointer, (t.id, logits, draw)), *self.shape(logits),
                         number(f32(1.44269504088896340736 / t.attrs["temperature"])),
                         number(t.attrs["top_p"]))

    def op_argmax(self, t):
        return self.call("topk", self.pointer(t.id), self.pointer(t.inputs[0]),
                         *self.line(t.inputs[0], t.attrs["dim"]), 1, "true")

    def op_sum(self, t):
        x, dims = t.inputs[0], t.attrs["dims"]
        shape, steps = self.shape(x), strides(self.shape(x))
        kept = [axis for axis in range(len(shape)) if axis not in dims]
        outer = [shape[axis] for axis in kept]
        sizes, (to, frm) = joined(outer, [strides(outer), [steps[axis] for axis in kept]])
        inner, (within,) = joined([shape[axis] for axis in dims], [[steps[axis] for axis in dims]])
        names = INDICES[:len(sizes) + len(inner)]
        result, one = self.element(t.id, place(to, names)), self.element(x, place(frm + within, names))
        divided = " / %d" % math.prod(shape[axis] for axis in dims) if t.attrs.get("mean") else ""
        if t.op == "sum" and within == [1]:
            at = self.element(x, place(frm, names))
            return loops(sizes, ["%s = %s_sum(&%s, %d)%s;" % (result, self.name, at, inner[0], divided)])
        start = "-%s_INFINITY" % self.NAME if t.op == "max" else "0"
        more = "total = %s_max(total, %s);" % (self.name, one) if t.op == "max" else "total += %s;" % one
        return loops(sizes, self.block_of(["float total = %s;" % start] + loops(inner, [more], len(sizes)) +
                                          ["%s = total%s;" % (result, divided)]))

    op_max = op_sum

    def op_permute(self, t):
        return [line for move in self.moves(t) for line in self.copied(t.id, *move)]

    op_expand = op_slice = op_concat = op_permute

    def op_pad(self, t):
        x, before, mode = t.inputs[0], t.attrs["before"], t.attrs["mode"]
        steps, own, shape = strides(self.shape(t.id)), strides(self.shape(x)), self.shape(x)
        if mode == "constant":
            fill = self.call("fill", self.pointer(t.id), number(t.attrs["value"]), self.plan.count(t.id))
            return fill + self.copied(t.id, x, shape, steps, own, sum(a * b for a, b in zip(before, steps)))
        body, terms = [], []
        for axis, (name, size) in enumerate(zip(INDICES, shape)):
            if size == self.shape(t.id)[axis]:
                terms.append("%s * %d" % (name, own[axis]))
                continue
            inside = "%s - %d" % (name, before[axis]) if before[axis] else name
            low, high = {"replicate": ("0", "%d" % (size - 1)),
                         "circular": ("%s + %d" % (inside, size), "%s - %d" % (inside, size)),
                         "reflect": ("%d - %s" % (before[axis], name),
                                     "%d - %s" % (2 * (size - 1) + before[axis], name))}[mode]
            body.append("const int from_%s = %s < %d ? %s : %s >= %d ? %s : %s;" % (
                name, name, before[axis], low, name, before[axis] + size, high, inside))
            terms.append("from_%s * %d" % (name, own[axis]))
        names = INDICES[:len(shape)]
        body.append("%s = %s;" % (self.element(t.id, place(steps, names)),
                                  self.element(x, " + ".join(terms) or "0")))
        return loops(self.shape(t.id), body)

    def op_cast(self, t):
        x = t.inputs[0]
        form = CASTS[t.dtype]
        if self.plan.tensors[x].dtype == "f32" and t.dtype != "bool":
            form = form % "(int64_t)%s" if t.dtype != "i64" else form
        return self.copied(t.id, x, (self.plan.count(t.id),), [1], [1], form=form)

    def op_embedding(self, t):
        tokens, w = t.inputs
        (rows, width), count = self.shape(w), self.plan.count(tokens)
        token, scale = self.element(tokens, "i"), ""
        if w in self.quantized:
            scale = "(float)%s * weights->%s_scale[index]" % (
                self.element(w, "index * %d + j" % width), self.field[w])
        value = scale or self.element(w, "index * %d + j" % width)
        return loops((count,), [
            "const int index = (int)%s;" % token, self.fails("%s < 0 || %s >= %d" % (token, token, rows)),
            "for (int j = 0; j < %d; ++j) %s = %s;" %
            (width, self.element(t.id, "i * %d + j" % width), value)])

    def op_hash_grid_encoding(self, t):
        x, table = t.inputs
        return self.hashing(t, "features",
                            lambda y, at: [self.pointer(t.id) + y, self.pointer(x) + at, self.pointer(table)])

    def hash_levels(self, t):
        """Lines that define `levels`, and the number of levels."""
        levels = hash_levels(t.attrs, self.shape(t.inputs[0])[-1])
        rows = ["    {%s, %du, %du, %du}," % (number(scale), *rest) for scale, *rest in levels]
        return (["static const %s_hash_level levels[%d] = {" % (self.name, len(levels))] + rows + ["};"],
                len(levels))

    def hashing(self, t, function, pointers):
        """Lines that call a function of hash_grid.h for each level of each point. pointers(y, x) gives the
        arguments for the offsets y and x of the values."""
        axes, features = self.shape(t.inputs[0])[-1], self.shape(t.inputs[1])[1]
        lines, levels = self.hash_levels(t)
        points = self.plan.count(t.inputs[0]) // axes
        names = "ij" if points > 1 else " i"
        y = " + " + place((levels * features, features) if points > 1 else (0, features), names)
        x = " + " + place((axes,), names) if points > 1 else ""
        call = self.call("hash_" + function, *pointers(y, x), "&levels[%s]" % names[1], axes, features)
        return self.block_of(lines + loops((points, levels) if points > 1 else (levels,), call))

    def op_gather(self, t):
        x, index = t.inputs
        outer, n, inner = self.line(x, t.attrs["dim"])
        count = self.shape(index)[t.attrs["dim"]]
        own = place((count * inner, inner, 1), "ijk")
        given = self.element(index, own)
        return loops((outer, count, inner), [
            self.fails("%s < 0 || %s >= %d" % (given, given, n)),
            "%s = %s;" % (self.element(t.id, own),
                          self.element(x, "i * %d + (int)%s * %d + k" % (n * inner, given, inner)))])

    def op_scatter_add(self, t):
        x, index, src = t.inputs
        outer, n, inner = self.line(x, t.attrs["dim"])
        count = self.shape(index)[t.attrs["dim"]]
        own = place((count * inner, inner, 1), "ijk")
        given = self.element(index, own)
        copy = loops((self.plan.count(x),), ["%s = %s;" % (self.element(t.id, "i"), self.element(x, "i"))])
        to = self.element(t.id, "i * %d + (int)%s * %d + k" % (n * inner, given, inner))
        return copy + loops((outer, count, inner), [
            self.fails("%s < 0 || %s >= %d" % (given, given, n)),
            "%s %s %s;" % (to, "=" if t.op == "scatter" else "+=", self.element(src, own))])

    op_scatter = op_scatter_add

    def op_scaled_dot_product_attention(self, t):
        q, k, v, mask = t.inputs
        whole = k is None
        last = whole or t.attrs["heads_last"]
        head, row = (2, 1) if last else (1, 2)

        def steps(i):
            """The strides to the next sample, head and row."""
            own = strides(self.shape(i))
            if whole and i == q:
                own = own[:2] + own[3:]
            return [own[0], own[head], own[row]]

        shape = self.shape(t.id)
        of_k = shape if whole else self.shape(k)
        width = self.shape(q)[-1]
        masked = (spread(self.shape(mask), (shape[0], shape[head], shape[row], of_k[row])) if mask is not None
                  else [0] * 4)
        parts = [shape[0], shape[head], of_k[head], shape[row], of_k[row], width, shape[3]] + [
            braces(steps(i)) for i in (q, q if whole else k, q if whole else v, t.id)] + [
                braces(masked), self.flag(t.attrs["is_causal"]), number(t.attrs["scale"])]
        third = shape[2] * shape[3] if whole else 0
        pointers = [self.pointer(q)] + (["%s + %d" % (self.pointer(q), m * third) for m in (1, 2)] if whole
                                        else [
                                            self.pointer(k), self.pointer(v)])
        choice = mask is not None and self.plan.tensors[mask].dtype == "bool"
        masks = [self.pointer(mask) if choice else "NULL", "NULL" if choice else self.pointer(mask)]
        return self.block_of(self.struct("heads", "heads", map(str, parts)) +
                             self.call("attention", self.pointer(t.id), *pointers, *masks, self.room,
                                       "&heads"))

    def op_rnn(self, t):
        x, lengths, h_0, c_0 = t.inputs[:4]
        steps, n, width = self.shape(x)
        directions = (len(t.inputs) - 5) // 4
        w_hh = t.inputs[6]
        hidden = self.shape(w_hh)[1]
        cell = "rnn_relu" if t.attrs.get("relu") else t.op
        suffix = self.weight(w_hh)[0]
        lines = []
        for d in range(directions):
            w_ih, w_hh, b_ih, b_hh = t.inputs[5 + 4 * d:9 + 4 * d]
            starts = ["NULL" if i is None else "%s + %d + i * %d" % (self.pointer(i), d * n * hidden, hidden)
                      for i in (h_0, c_0)]
            states = (2 if t.op == "lstm" else 1) if t.attrs["states"] else 0
            ends = ["%s + %d + i * %d" % (self.pointer(t.id), ((steps + k) * directions + d) * n * hidden,
                                          hidden) if k < states else "NULL" for k in range(2)]
            scales = ["weights->%s_scale" % self.field[i] for i in (w_ih, w_hh)] if suffix else []
            length = "(int)" + self.element(lengths, "i") if lengths is not None else str(steps)
            parts = [self.pointer(w_ih), self.pointer(w_hh)] + scales + [
                self.pointer(b_ih), self.pointer(b_hh), *starts, self.room, *ends, length,
                str(steps), str(width), str(hidden), str(n * width), str(n * directions * hidden),
                self.flag(d)]
            body = self.struct("recurrent" + suffix, "r", parts)
            if lengths is not None:
                body.insert(0, self.fails("%s < 1 || %s > %d" %
                                          (self.element(lengths, "i"), self.element(lengths, "i"), steps)))
            body += self.call("run" + suffix,
                              "%s + i * %d + %d" % (self.pointer(t.id), directions * hidden, d * hidden),
                              "%s + i * %d" % (self.pointer(x), width), "&r", GATES[t.op],
                              "%s_%s_cell" % (self.name, cell))
            lines += loops((n,), body)
        return lines

    op_lstm = op_gru = op_rnn

    def op_assign(self, t):
        _, value, position = t.inputs
        if position is None:
            return self.call("copy", self.pointer(t.id), self.pointer(value), self.plan.count(t.id))
        outer, size, inner = self.line(t.id, t.attrs["axis"])
        count = self.shape(value)[t.attrs["axis"]]
        each = outer // self.plan.count(position)  # lines for each number of the position
        at = self.element(position, "0" if each == outer else "i" if each == 1 else "i / %d" % each)
        lines = self.call("copy", "%s + (i * %d + (int)%s) * %d" % (self.pointer(t.id), size, at, inner),
                          "%s + i * %d" % (self.pointer(value), count * inner), count * inner)
        return loops((outer,), [self.fails("%s < 0 || %s > %d" % (at, at, size - count))] + lines)

    # ---- the file ----
    def copies(self):
        """Lines that copy outputs that have no block of their own."""
        lines = []
        for i in self.plan.outputs:
            block, offset = self.plan.at[i]
            root = block.root()
            if root.output is self.plan.tensors[i]:
                continue
            to = self.arguments["output", i]
            frm = self.element(i, "i")
            lines += loops((self.plan.count(i),), ["%s[i] = %s;" % (to, frm)])
        return lines

    def of_type(self, i):
        """A comment with a value's type."""
        t = self.plan.tensors[i]
        return "%s %s" % (t.label or t.name or t.op, shape_text(self.plan.shape(i)).replace(" ", ""))

    def weights_struct(self):
        """The struct of the weights. If all are floats, NAME_inference.h and NAME_device.cuh have the same
        struct, under a guard, and either may be included first."""
        if not self.plan.weights:
            return []
        lines = ["%s %s[%d]; /* %s */" % (kind, name, count, about)
                 for kind, name, count, about, _ in self.members()]
        lines = ["typedef struct %s_weights {" % self.name] + ["    " + line for line in lines] + [
            "} %s_weights;" % self.name]
        guard = self.NAME + "_WEIGHTS"
        return lines if self.quantized else ["#ifndef " + guard, "#define " + guard] + lines + ["#endif"]

    def members(self):
        """The members of the struct of weights, as (C type, name, count, comment, (id, part)). The 8-bit ones
        come last, so there is no padding between members."""
        wide, small = [], []
        for t in self.plan.weights:
            field, about = self.field[t.id], "%s %s" % (
                stamp.safe(t.name), shape_text(t.shape).replace(" ", ""))
            if t.id in self.quantized:
                wide.append(("float", field + "_scale", t.shape[0],
                             "scales of the rows of " + stamp.safe(t.name), (t.id, 0)))
                small.append(("int8_t", field, self.plan.count(t.id), about, (t.id, 1)))
            else:
                wide.append(("float", field, self.plan.count(t.id), about, (t.id, None)))
        return wide + small

    def trained(self, numbers):
        """Lines with the weights' numbers: {id: floats}."""
        lines = ["const %s_weights %s_trained = {" % (self.name, self.name)]
        for kind, field, _, _, (i, part) in self.members():
            own = numbers[i] if part is None else self.quantized[i][part]
            texts = map(str, own) if kind == "int8_t" else map(number, own)
            lines += ["    { /* %s */" % field] + ["        " + line for line in filled(texts)] + ["    },"]
        return lines + ["};"]

    def scratch_struct(self):
        sizes = self.scratch_sizes
        if not sizes:
            return []
        size = {"i64": 8, "f32": 4, "i32": 4, "u8": 1}
        total = sum(count * size[dtype] for dtype, count in sizes.items())
        widest = max(size[dtype] for dtype in sizes)
        lines = ["/* Scratch memory for the values between steps. Each thread that calls needs its own. */",
                 "#define %s_SCRATCH_BYTES %d" % (self.NAME, -(-total // widest) * widest),
                 "typedef struct %s_scratch {" % self.name]
        lines += ["    %s %s[%d];" % (STORED[dtype], dtype, count) for dtype, count in sizes.items()]
        return lines + ["} %s_scratch;" % self.name]

    def states_struct(self):
        if not self.plan.states:
            return []
        lines = ["/* What the model keeps from call to call. Each stream needs its own. %s_reset sets its "
                 "beginning. */" % self.name, "typedef struct %s_states {" % self.name]
        lines += ["    float %s[%d]; /* %s %s */" % (
            self.field[t.id], self.plan.count(t.id), stamp.safe(t.name),
            shape_text(t.shape).replace(" ", "")) for t in self.plan.states]
        lines += ["    int32_t %s; /* the place of the oldest elements of %s, a ring */" % (
            name, self.field[state]) for state, name in self.next.items()]
        return lines + ["} %s_states;" % self.name, self.reset_prototype() + ";"]

    def reset_prototype(self):
        return "void %s_reset(%s_states *states)" % (self.name, self.name)

    def reset(self):
        """The function that sets the initial values of the states."""
        if not self.plan.states:
            return []
        lines = [self.reset_prototype(), "{"]
        for t in self.plan.states:
            lines += ["    " + line for line in self.call(
                "fill", "states->" + self.field[t.id], number(t.init[1]), self.plan.count(t.id))]
        lines += ["    states->%s = 0;" % name for name in self.next.values()]
        return lines + ["}", ""]

    def facts(self, weights):
        """The facts in the file's comment."""
        plan = self.plan
        samples = ("a block of %d" % self.length if self.length else "one sample" if plan.batch == 1 else
                   "%d samples" % plan.batch)
        lines = ["A call takes %d multiplications for %s." % (plan.products(), samples)]
        if plan.weights and weights is None:
            lines.append("The program fills %s_weights: each array as PyTorch stores the tensor named in its "
                         "comment." % self.name)
        elif plan.weights:
            lines.append("Pass &%s_trained as the weights." % self.name)
        if plan.states:
            lines.append("%s_reset begins a stream, and each call continues it." % self.name)
        if self.can_fail:
            lines.append("It returns false if an index or a length in its inputs is out of range.")
        return [" * " + line for line in lines]

    def prototype(self):
        function = "_forward_%d" % self.length if self.length else "_forward"
        kind = ("static " if self.length else "") + ("bool" if self.can_fail else "void")
        return scalar.wrapped("%s %s%s(" % (kind, self.name, function), self.parameters(), ")")

    def parameters(self):
        plan = self.plan
        parts = ["const %s_weights *weights" % self.name] if plan.weights else []
        parts += ["const %s *%s" % (STORED[t.dtype], self.arguments["input", t.id]) for t in plan.inputs]
        parts += ["%s *%s" % (STORED[plan.tensors[i].dtype], self.arguments["output", i])
                  for i in plan.outputs]
        parts += ["%s_states *states" % self.name] if plan.states else []
        return parts + (["%s_scratch *scratch" % self.name] if self.scratch_sizes else [])

    def definition(self, body):
        return self.prototype() + ["{"] + body + ["}"]

    def body(self):
        lines = []
        for block in self.plan.scratch():
            about = self.of_type(block.tensor.id) if block.tensor else "scratch of a step"
            dtype = Plan.array(block)
            lines.append("%s *const %s = scratch->%s + %d; /* %s */" % (
                STORED[dtype], self.base(block), dtype, block.place, stamp.safe(about)))
        for step in self.plan.steps:
            lines += self.step(step)
        lines += self.copies()
        return lines + (["return true;"] if self.can_fail else [])

    def constant_lines(self, written=()):
        """The constants that the steps read, but for those with these ids."""
        lines = []
        for block in self.constants:
            if block.tensor.id in written:
                continue
            lines += ["%s float %s[%d] = {" % (self.CONSTANT, self.blocks[block], block.count)]
            lines += ["    " + line for line in filled(map(number, block.tensor.values))] + ["};"]
        return lines


def filled(texts):
    """Texts with commas between, filled into lines."""
    return textwrap.wrap(", ".join(texts), WIDTH - 8, break_on_hyphens=False)


def hash_grid(name, fn):
    """The text of hash_grid.h."""
    return template.load("hash_grid.h", name=name, fn=fn, space=" " * (len(name) + len(fn) - len("static")))


def hash_functions(plans, name):
    """Its functions that kernels call, on CPUs and on GPUs."""
    called = " ".join("%s_hash_%s" % (name, one) for plan in plans for one in plan.hash_calls())
    return template.needed(hash_grid(name, name.upper() + "_FN"), called) if called else []


def library(name, called, int8):
    """The library functions that a text calls."""
    values = {"name": name, "NAME": name.upper(), "fn": name.upper() + "_FN"}
    space = " " * (len(name) + len(values["fn"]) - len("static"))
    own = template.load("inference_math.h", **values)
    math_h = template.without(template.load("math.h", name=name, fn=values["fn"]), own)

    def products(**kind):
        return template.load("inference_products.h", space=space, **values, **kind)
    both = [products(suffix="", type="float", scale="", row_scale="", about="", scales=[], scale_ih="",
                     scale_hh="", weight=[], scale_rows=[])]
    if int8:
        both.append(products(suffix="_int8", type="int8_t", scale="const float *scale, ",
                             row_scale=" * scale[j]", about=" Row j of w is multiplied by scale[j].",
                             scales=["const float *ih_scale, *hh_scale;"],
                             scale_ih="r->ih_scale, ", scale_hh="r->hh_scale, ",
                             weight=template.load("inference_bytes.h", **values).splitlines(),
                             scale_rows=["for (j = 0; j < out; ++j) y[j] *= scale[j];"]))
    ops = template.load("inference_ops.h", space=space, products="\n\n".join(both).splitlines(), **values)
    return template.needed("\n\n".join((own, freestanding(math_h, name), ops, hash_grid(name, values["fn"]))),
                           called)


def choice(emitters):
    """The prototype and the text of the function that takes blocks of several lengths."""
    first = emitters[0]
    parameters = first.parameters()
    prototype = scalar.wrapped("bool %s_forward(" % first.name, ["int length"] + parameters, ")")
    names = ", ".join(re.search(r"(\w+)$", one).group() for one in parameters)
    lines = prototype + ["{", "    switch (length) {"]
    for one in emitters:
        call = "%s_forward_%d(%s)" % (one.name, one.length, names)
        lines += ["    case %d:" % one.length]
        lines += ["        return %s;" % call] if one.can_fail else ["        %s;" % call,
                                                                      "        return true;"]
    return prototype, lines + ["    default:", "        return false;", "    }", "}"]


def emit_inference(plan, source, name, weights=None, quantized=None):
    """The text of NAME_inference.h. source: as for stamp.lines. weights: {id: numbers} to write into the
    file. quantized: from weights.quantize."""
    return emit_blocks({0: plan}, source, name, weights, quantized)


def share_scratch(emitters):
    """Gives all the scratch of the largest."""
    for dtype in dict.fromkeys(dtype for one in emitters for dtype in one.scratch_sizes):
        most = max(one.plan.sizes().get(dtype, 0) for one in emitters)
        for one in emitters:
            one.scratch_sizes[dtype] = most


def constants_of(emitters):
    lines, written = [], set()
    for one in emitters:
        lines += one.constant_lines(written)
        written |= {block.tensor.id for block in one.constants}
    return lines


def facts_of(emitters, weights):
    """The facts in the file's comment."""
    first, more = emitters[0], [one.facts(weights)[0] for one in emitters[1:]]
    lengths = " or ".join(str(one.length) for one in emitters)
    first_line, *rest = first.facts(weights)
    return [" * %s_forward takes blocks of %s. It returns false for other lengths." % (
        first.name, lengths)] * bool(first.length) + [first_line] + more + rest


def emit_blocks(plans, source, name, weights=None, quantized=None):
    """The same for several lengths of blocks. plans: by length; 0: the only plan."""
    emitters, bodies = [], []
    for length, plan in plans.items():
        emitters.append(Emitter(plan, name, quantized, length, *emitters[:1]))
        bodies.append(["    " + line if line else "" for line in emitters[-1].body()])
    first = emitters[0]
    share_scratch(emitters)
    declared, defined = first.weights_struct(), []
    if weights is not None and first.plan.weights:
        declared.append("extern const %s_weights %s_trained;" % (name, name))
        defined = first.trained(weights) + [""]
    prototype, ending = choice(emitters) if first.length else (first.prototype(), [])
    declared += first.states_struct() + first.scratch_struct() + prototype[:-1] + [prototype[-1] + ";"]
    texts = [line for one, body in zip(emitters, bodies) for line in one.definition(body) + [""]] + ending
    own = [freestanding(text, name)
           for text in (first.element_functions(),
                        "\n".join(constants_of(emitters) + [""] + first.reset() + texts).rstrip("\n"))]
    lines = library(name, "\n".join(own), bool(quantized))
    return template.load(
        "inference.h", NAME=name.upper(), opening=stamp.lines(source, name + "_inference.h"),
        facts=facts_of(emitters, weights), declarations=declared, restrict="_RESTRICT" in "".join(lines),
        library=lines, functions=own[0].splitlines(), definitions=defined + own[1].splitlines())
