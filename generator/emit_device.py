"""Writes NAME_device.cuh: a small model, and the gradient of its input, as CUDA functions. A thread computes
one sample, or a warp computes the samples of its lanes."""
import re
import textwrap
from collections import namedtuple

from . import emit_network_cuda, scalar, stamp, template
from .emit_inference import (INDICES, STORED, WIDTH, Emitter, Given, hash_grid, joined, loops, place, spread,
                             strides)
from .inference import VIEWS, Plan, Refused, is_elementwise
from .scalar import number

MOST_VALUES = 1024     # the most elements of one value
# The most multiplications of a forward call whose loops are unrolled, so that its values stay in registers.
MOST_UNROLLED = 4096
MOST_REGISTERS = 144   # registers of a thread for the factors and results of a warp's product
MOVES = ("concat", "slice", "permute", "expand")
ROWS = ("layer_norm", "rms_norm", "softmax", "log_softmax")
OPS = VIEWS + MOVES + ROWS + ("linear", "sum", "embedding", "hash_grid_encoding")
# These and elementwise ops may read 16-bit weights.
READ_AS_STORED = MOVES + ROWS + ("linear", "embedding")

# How weights are stored: the C type, and the function that reads it. For the factors of tensor cores: how
# they are rounded, their type, the elements of a row per instruction, the least compute capability, and a
# name for comments.
Storage = namedtuple("Storage", "type read rounded factors chunk capability about")
STORAGES = {
    "f32": Storage("float", "%s", "rounded_tf32", "tf32", 8, 80, "TF32 (10 mantissa bits)"),
    "f16": Storage("__half", "__half2float(%s)", "__float2half_rn", "f16", 16, 75, "F16 (at most 65504)"),
    "bf16": Storage("__nv_bfloat16", "__bfloat162float(%s)", "__float2bfloat16_rn", "bf16", 16, 80,
                    "BF16 (7 mantissa bits)")}


def check(t, plan):
    """The reason why a thread cannot compute a value, or None."""
    if t.dtype != "f32" and not plan.is_given_integer(t):
        return "%s, but one thread computes with f32 alone" % t.dtype
    if t.kind == "value" and t.op not in OPS and not is_elementwise(t):
        return "not written for one thread"
    if t.kind in ("input", "value") and plan.count(t.id) > MOST_VALUES:
        return "%d elements; one thread can hold %d" % (plan.count(t.id), MOST_VALUES)
    rest = plan.shape(t.id)
    if t.op in ROWS and rest[-1] != plan.count(t.id) or t.op in ROWS[:2] and t.attrs["dims"] != 1 or (
            t.op in ROWS[2:] and t.attrs["dim"] != len(rest) - 1):
        return "one row of its last axis is possible"
    return None


class DeviceEmitter(Emitter):
    """Writes the steps for one sample."""
    CONSTANT = "static __device__ const"

    def __init__(self, plan, name, gradient=False, storage=STORAGES["f32"]):
        super().__init__(plan, name)
        self.gradient, self.storage = gradient, storage
        self.gradients = {}  # names of the arrays of gradients, by block
        self.read = set()  # blocks that some line reads

    def locals(self):
        """With those of the kernels in the comment."""
        return super().locals() + (
            "active", "dx", "dy", "slope", "sum", "eight", "w", "b", "lane", "thread", *(
                "d%d" % k for step in self.plan.steps for k in range(len(step.operands))))

    def named(self, block):
        if block.kind == "scratch" and self.gradient:
            return self.names.new(self.word(block.tensor))
        return super().named(block)

    def local(self, block):
        return "%s %s[%d];" % (STORED[block.dtype], self.base(block), block.count)

    def pointer(self, i):
        self.read.update(() if i is None else (self.block(i),))
        return super().pointer(i)

    def element(self, i, index):
        self.read.add(self.block(i))
        text = super().element(i, index)
        return self.storage.read % text if self.block(i).kind == "weight" else text

    def with_floats(self, weights, statement):
        """The lines of statement(pointers of the weights), with weights converted to float, since the called
        function takes only floats."""
        if self.storage.read == "%s":
            return statement(*map(self.pointer, weights))
        pointers, lines = [], []
        for i, name in zip(weights, "wb"):
            pointers.append("NULL" if i is None else name)
            if i is not None:
                lines += ["float %s[%d];" % (name, self.plan.count(i))]
                lines += loops((self.plan.count(i),), ["%s[i] = %s;" % (name, self.element(i, "i"))])
        return self.block_of(lines + statement(*pointers))

    # ---- forward ----
    def along(self, w, width, statement):
        """A loop over row j of a product's weight, around statement(k, number)."""
        if self.storage.read == "%s" or width % 8 or self.plan.at[w][1]:
            return ["for (int k = 0; k < %d; ++k) %s" %
                    (width, statement("k", self.element(w, "j * %d + k" % width)))]
        return ["for (int k = 0; k < %d; k += 8) {" % width, "    float eight[8];",
                "    %s_eight(eight, %s + j * %d + k);" % (self.name, self.pointer(w), width),
                "    for (int l = 0; l < 8; ++l) " + statement("k + l", "eight[l]"), "}"]

    def op_linear(self, t):
        x, w, b = t.inputs
        out, width = self.shape(w)
        rows = self.plan.count(t.id) // out
        body = ["float sum = %s;" % (self.element(b, "j") if b is not None else "0")]
        body += self.along(w, width, lambda k, number: "sum += %s * %s;" % (
            self.element(x, place((width, 1), ("i", k)) if rows > 1 else k), number))
        body.append("%s = sum;" % self.element(t.id, place((out, 1), "ij") if rows > 1 else "j"))
        inner = loops((out,), body, 1)
        return loops((rows,), inner) if rows > 1 else inner

    def op_layer_norm(self, t):
        x, w, b = (t.inputs + (None,))[:3]
        return self.with_floats((w, b), lambda *weights: self.rows_call(
            "layer_norm", t, self.pointer(t.id), self.pointer(x), *weights, number(t.attrs["eps"]),
            self.flag(t.op == "rms_norm")))

    op_rms_norm = op_layer_norm

    def op_softmax(self, t):
        return self.rows_call("softmax", t, self.pointer(t.id), self.pointer(t.inputs[0]),
                              self.flag(t.op == "log_softmax"))

    op_log_softmax = op_softmax

    def op_embedding(self, t):
        tokens, w = t.inputs
        (rows, width), token = self.shape(w), self.element(tokens, "i")
        body = ["const int index = %s >= 0 && %s < %d ? (int)%s : -1;" % (token, token, rows, token),
                "for (int j = 0; j < %d; ++j) %s = index >= 0 ? %s : NAN;" % (
                    width, self.element(t.id, "i * %d + j" % width),
                    self.element(w, "index * %d + j" % width))]
        return loops((self.plan.count(tokens),), body)

    def rows_call(self, function, t, *arguments):
        return self.call("%s<%d>" % (function, self.plan.count(t.id)), *arguments)

    def block(self, i):
        return self.plan.at[i][0]

    def steps(self):
        """All steps, or only those whose values the lines of backward() read."""
        if not self.gradient:
            return self.plan.steps
        needed, read = [], set(self.read)
        for step in reversed(self.plan.steps):
            if self.block(step.tensor.id) in read:
                needed.insert(0, step)
                read.update(self.block(i) for i in step.operands if i is not None)
        return needed

    def forward(self):
        """Lines that compute the values."""
        steps = self.steps()
        blocks = [self.block(step.tensor.id) for step in steps]
        return [self.local(block) for block in blocks if self.gradient or not block.output] + [
            line for step in steps for line in self.step(step)]

    def unread(self):
        """Lines that mark arguments as used for the compiler, if no other line uses them."""
        unread = [self.arguments["input", t.id]
                  for t in self.plan.inputs if self.block(t.id) not in self.read]
        if self.plan.weights and all(block.kind != "weight" for block in self.read):
            unread.append("weights")
        return ["(void)%s;" % name for name in unread]

    # ---- backward ----
    def gradient_of(self, i, index):
        """The element of a value's gradient."""
        block, offset = self.plan.at[i]
        return "%s[%s]" % (self.gradients[block], index if not offset else "%s + %d" % (index, offset))

    def live(self, i):
        return i is not None and self.plan.at[i][0] in self.gradients

    def backward(self):
        """Lines from dy to dx."""
        lines = []
        for block in self.plan.blocks:
            if block.kind in ("scratch", "input") and block.dtype == "f32":
                self.gradients[block] = self.names.new("d_" + self.base(block))
                lines.append("float %s[%d] = {0};" % (self.gradients[block], block.count))
        x, y = coordinates(self.plan)[0].id, self.plan.outputs[0]
        lines += loops((self.plan.count(y),), ["%s = dy[i];" % self.gradient_of(y, "i")])
        for step in reversed(self.plan.steps):
            lines += self.back(step)
        return lines + loops((self.plan.count(x),), ["dx[i] = %s;" % self.gradient_of(x, "i")])

    def back(self, step):
        t = step.tensor
        if step.members:
            return self.elementwise_back(step)
        if t.op in MOVES:
            return [line for move in self.moves(t) if self.live(move[0]) for line in self.move_back(t, *move)]
        if not self.live(t.inputs[0]):
            return []
        return getattr(self, "back_" + t.op)(t)

    def move_back(self, t, source, sizes, to, frm, to_offset, from_offset):
        sizes, (to, frm) = joined(sizes, [to, frm])
        names = INDICES[:len(sizes)]
        own, other = (self.gradient_of(source, place(frm, names, from_offset)),
                      self.gradient_of(t.id, place(to, names, to_offset)))
        return loops(sizes, ["%s += %s;" % (own, other)])

    def back_sum(self, t):
        x, dims = t.inputs[0], t.attrs["dims"]
        shape = self.shape(x)
        kept = iter(strides([size for axis, size in enumerate(shape) if axis not in dims]))
        to = [0 if axis in dims else next(kept) for axis in range(len(shape))]
        sizes, (to, frm) = joined(shape, [to, strides(shape)])
        names = INDICES[:len(sizes)]
        count = self.plan.count(x) // self.plan.count(t.id) if t.attrs["mean"] else 1
        value = self.gradient_of(t.id, place(to, names)) + (" / %d" % count if count > 1 else "")
        return loops(sizes, ["%s += %s;" % (self.gradient_of(x, place(frm, names)), value)])

    def back_linear(self, t):
        x, w, _ = t.inputs
        out, width = self.shape(w)
        rows = self.plan.count(t.id) // out
        body = ["const float slope = %s;" %
                self.gradient_of(t.id, place((out, 1), "ij") if rows > 1 else "j")]
        body += self.along(w, width, lambda k, number: "%s += slope * %s;" % (
            self.gradient_of(x, place((width, 1), ("i", k)) if rows > 1 else k), number))
        inner = loops((out,), body, 1)
        return loops((rows,), inner) if rows > 1 else inner

    def gradient_pointer(self, i):
        return "&" + self.gradient_of(i, "0")

    def back_layer_norm(self, t):
        return self.with_floats(t.inputs[1:2], lambda weight: self.rows_call(
            "layer_norm_gradient", t, self.gradient_pointer(t.inputs[0]), self.gradient_pointer(t.id),
            self.pointer(t.inputs[0]), weight, number(t.attrs["eps"]), self.flag(t.op == "rms_norm")))

    back_rms_norm = back_layer_norm

    def back_softmax(self, t):
        return self.rows_call(
            "softmax_gradient", t, self.gradient_pointer(t.inputs[0]), self.gradient_pointer(t.id),
            self.pointer(t.id), self.flag(t.op == "log_softmax"))

    back_log_softmax = back_softmax

    def back_hash_grid_encoding(self, t):
        x, table = t.inputs
        return self.hashing(t, "gradient", lambda y, at: [
            self.gradient_pointer(x) + at, self.gradient_pointer(t.id) + y, self.pointer(x) + at,
            self.pointer(table)])

    def elementwise_back(self, step):
        """The gradients of an elementwise step's operands, by one function."""
        t, (graph, values) = step.tensor, self.values(step)
        adjoints = {t.id: graph.load(Given("slope"))}
        for m in reversed(step.members):
            node = self.plan.tensors[m]
            for k, i in enumerate(node.inputs):
                if m in adjoints and (i in step.members or self.live(i)):
                    more = graph.derivative(node.op, k, node.attrs, [values[j] for j in node.inputs],
                                            values[m], adjoints[m])
                    if more is not None:
                        adjoints[i] = graph.add(adjoints[i], more) if i in adjoints else more
        wanted = [i for i in step.operands if i in adjoints]
        if not wanted:
            return []
        results = [("d%d" % k, "store", Given("d%d" % k), adjoints[i]) for k, i in enumerate(wanted)]
        function, parameters = self.function(t.op + "_gradient", results)
        own = self.shape(t.id)
        sizes, steps = joined(own, [strides(own)] + [spread(self.shape(i), own) for i in step.operands])
        names = INDICES[:len(sizes)]
        at = {i: place(one, names) for i, one in zip(step.operands, steps[1:])}
        given = {values[i].attr.name: self.element(i, at[i])
                 for i in step.operands if values[i].attr.name in parameters}
        given["slope"] = self.gradient_of(t.id, place(steps[0], names))
        arguments = [given[name] for name in parameters] + ["&d%d" % k for k in range(len(wanted))]
        body = ["float %s;" % ", ".join("d%d" % k for k in range(len(wanted)))]
        body += scalar.wrapped(function + "(", arguments, ");", 4 * len(sizes) + 4)
        body += ["%s += d%d;" % (self.gradient_of(i, at[i]), k) for k, i in enumerate(wanted)]
        return loops(sizes, body) if sizes else self.block_of(body)


class WarpEmitter(DeviceEmitter):
    """Writes the steps for the samples of a warp's lanes. The warp computes products and what follows them
    together, on tiles in its registers (templates/kernels/device_warp.h). Each lane computes all other steps
    for its own sample."""

    def __init__(self, plan, name, factors, groups):
        """factors: the Storage of products' factors. groups: the number of groups of 16 samples."""
        super().__init__(plan, name)
        self.factors, self.groups, self.space = factors, groups, name + "_warp::"
        self.lines = []
        # blocks that the lanes hold; names of tiles, by block, offset and count
        self.lanes, self.tiles = set(), {}
        # weights: lengths of fields by block, and those of products, (field, K, N) by id
        self.plain, self.packed = {}, {}

    def named(self, block):
        if block.kind == "weight":
            self.plain[block] = block.count
        return (self.names.new("own_" + self.word(block.tensor)) if block.kind in ("input", "scratch") else
                super().named(block))

    def is_sample(self, i):
        return i is not None and self.block(i).kind in ("input", "scratch")

    def own(self, i):
        """Gives each lane its own sample of a value."""
        block = self.block(i)
        if block not in self.lanes:
            self.lanes.add(block)
            self.lines += [self.local(block), "%sscatter(%s, %s);" % (
                self.space, self.base(block), self.tiles[block, 0, block.count])]

    def key(self, i):
        return self.plan.at[i] + (self.plan.count(i),)

    def tile(self, i):
        """The name of a value's tile."""
        if self.key(i) not in self.tiles:
            if self.is_sample(i):
                self.own(i)
            self.lines.append("%sgather(%s, %s);" % (self.space, self.new_tile(i), self.pointer(i)))
        return self.tiles[self.key(i)]

    def new_tile(self, i):
        name = self.tiles[self.key(i)] = self.names.new(self.word(self.plan.tensors[i]) + "_tile")
        self.lines.append("%stile<%d, %d> %s;" % (self.space, self.groups, self.plan.count(i), name))
        return name

    def on_tiles(self, step):
        """Whether the warp has the tiles to compute a step from."""
        t, count = step.tensor, self.plan.count(step.tensor.id)
        samples = [i for i in step.operands if self.is_sample(i)]
        if not any(self.key(i) in self.tiles for i in samples):
            return False
        whole = all(self.plan.count(i) == count for i in samples)
        return (t.op in ROWS or bool(step.members) and whole and
                all(self.plan.count(i) in (1, count) for i in step.operands))

    def step(self, step):
        if step.tensor.op == "linear":
            self.product(step.tensor)
        elif self.on_tiles(step):
            (self.elements if step.members else self.rows)(step)
        else:
            for i in filter(self.is_sample, step.operands):
                self.own(i)
            block = self.block(step.tensor.id)
            self.lanes.add(block)
            self.lines += [self.local(block)] + super().step(step)

    def product(self, t):
        x, w, b = t.inputs
        (out, width), tile, bias = self.shape(w), self.tile(x), self.pointer(b)
        if b is not None:
            self.plain[self.block(b)] = -(-out // 8) * 8
        if w not in self.packed:
            self.packed[w] = self.fields.new(self.field[w] + "_packed"), width, out
        self.lines += scalar.wrapped("%sproduct<%s%s>(" % (self.space, self.space, self.factors.factors), [
            self.new_tile(t.id), tile, "weights->" + self.packed[w][0], bias], ");", 4)

    def elements(self, step):
        t, function, used = self.element_function(step)
        tiles = {i: self.tile(i) for i in used if self.is_sample(i)}
        name = self.new_tile(t.id)
        arguments = [tiles[i] + "[i]" if i in tiles else
                     self.element(i, "%s.within(i)" % name if self.plan.count(i) > 1 else "0") for i in used]
        call = scalar.wrapped(function + "(", arguments + ["&%s[i]" % name], ");", 8)
        self.lines += loops((-(-self.plan.count(t.id) // 8) * 4 * self.groups,), call)

    def rows(self, step):
        t = step.tensor
        x, w, b = (t.inputs + (None, None))[:3]
        tile, form = self.tile(x), "softmax" if "softmax" in t.op else "norm"
        rest = [self.pointer(w), self.pointer(b), number(t.attrs["eps"])] if form == "norm" else []
        head = "%s%s_rows<%s>(" % (self.space, form, self.flag(t.op in ("rms_norm", "log_softmax")))
        self.lines += scalar.wrapped(head, [self.new_tile(t.id), tile] + rest, ");", 4)

    def forward(self):
        """Lines from a lane's inputs to its y."""
        y = self.plan.outputs[0]
        self.lines = ["__syncwarp();"] + ["active = active && %slane_of_warp() < 16;" % self.space] * (
            self.groups == 1)
        for t in self.plan.inputs:
            block = self.block(t.id)
            self.lanes.add(block)
            self.lines += [self.local(block)] + loops((block.count,), ["%s[i] = active ? %s[i] : 0;" % (
                self.base(block), self.arguments["input", t.id])])
        for step in self.plan.steps:
            self.step(step)
        self.own(y)
        return self.lines + loops((self.plan.count(y),), ["if (active) %s[i] = %s;" % (
            self.arguments["output", y], self.element(y, "i"))])

    def weights(self):
        """The struct of the weights that forward()'s lines read, and the function that fills it."""
        members, filling, chunk = [], [], self.factors.chunk
        for i, (field, width, out) in self.packed.items():
            members.append("__align__(16) %s %s[%d]; /* %s */" % (
                self.factors.type, field, -(-width // chunk) * chunk * -(-out // 8) * 8,
                stamp.safe(self.of_type(i))))
            head = "%sarrange<%s%s, %d, %d>(" % (self.space, self.space, self.factors.factors, width, out)
            filling += scalar.wrapped(head, ["to->" + field, "from->" + self.field[i], "first", "step"], ");",
                                      4)
        for block, count in self.plain.items():
            field = self.field[block.tensor.id]
            members.append("float %s[%d]; /* %s */" %
                           (field, count, stamp.safe(self.of_type(block.tensor.id))))
            value = ("i < %d ? from->%s[i] : 0" % (block.count, field) if count > block.count else
                     "from->%s[i]" % field)
            filling += filling_loop(count, "to->%s[i] = %s;" % (field, value))
        return weights_as(self.name, "warp", members, filling)


def groups_of(plan, stored):
    """How many groups of 16 samples fit the registers of a warp: 2, or 1 where layers are wide. Raises
    Refused."""
    reasons, most = [], 0
    for t in (step.tensor for step in plan.steps if step.tensor.op == "linear"):
        out, width = plan.shape(t.inputs[1])
        registers = (out + (width if stored == "f32" else width // 2)) // 2
        most, reason = max(most, registers), None
        if plan.count(t.id) != out:
            reason = "%d rows a sample, where a warp computes one" % (plan.count(t.id) // out)
        elif registers > MOST_REGISTERS:
            reason = "%d to %d numbers, more than a warp's registers hold" % (width, out)
        reasons += ["linear%s: %s" % (" '%s'" % t.label if t.label else "", reason)] * bool(reason)
    if not most:
        reasons.append("it has no linear layer, which a warp would compute on tensor cores")
    if reasons:
        raise Refused("no function for a warp: " + "; ".join(reasons))
    return 2 if most * 2 <= MOST_REGISTERS else 1


def filling_loop(count, statement):
    """A loop in which a thread, one of several, fills its share of `count` numbers."""
    return ["for (int i = first; i < %d; i += step) %s" % (count, statement)]


def definition(head, lines, unroll=()):
    """A function. head: its first lines. unroll: the pragma for its loops; one-line loops that are sums get
    none; (): no pragma."""
    body = []
    for line in lines:
        if unroll and line.lstrip().startswith("for ("):
            body.append("#pragma " + unroll[line.endswith(";")])
        body.append("    " + line)
    return head + ["{"] + body + ["}"]


def weights_as(name, form, members, filling):
    """Another struct of the weights, and the function that fills it."""
    kind = "%s_weights_%s" % (name, form)
    lines = ["typedef struct %s {" % kind] + ["    " + line for line in members] + ["} %s;" % kind, ""]
    lines.append("/* Fills `to`. Thread `first` of `step` does its share; 0 and 1 fill all. It also runs on "
                 "the host. */")
    start = "static inline __host__ __device__ void %s_weights_to_%s(" % (name, form)
    parameters = ["const %s_weights *from" % name, kind + " *to", "int first", "int step"]
    return lines + definition(scalar.wrapped(start, parameters, ")"), filling) + [""]


def stored_weights(emitter, stored):
    """The weights in 16-bit storage."""
    members = ["__align__(16) " + "%s %s[%d]; /* %s */" % (emitter.storage.type, field, count, about)
               for _, field, count, about, _ in emitter.members()]
    filling = [line for _, field, count, _, _ in emitter.members() for line in filling_loop(
        count, "to->%s[i] = %s(from->%s[i]);" % (field, emitter.storage.rounded, field))]
    return weights_as(emitter.name, stored, members, filling)


def warp_lines(emitter, head):
    """The function for a warp, with these first lines, and the functions that it calls."""
    name, factors = emitter.name, emitter.factors
    text = definition(head, emitter.forward(), ("unroll", "unroll"))
    library = "\n".join((template.load("device.cu"), emit_network_cuda.of_tiles(True), template.load(
        "device_warp.h", tf32=factors.factors == "tf32", rounded=factors.rounded)))
    weights = emitter.weights()
    needed = template.needed(library, "\n".join(weights + text), titles=False)
    lines = ["namespace %s_warp {" % name, ""] + needed + ["", "} // namespace %s_warp" % name, ""]
    lines += ["#define %s_WARP_SAMPLES %d /* samples per call */" % (name.upper(), 16 * emitter.groups), ""]
    return (lines + weights + ["#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= %d0" % factors.capability] +
            text + ["#endif"])


def plan_of(model, stored="f32"):
    """The Plan of a model that a thread can compute with weights stored like this. Raises Refused."""
    plan = Plan(model, 1, check, False)
    if not plan.inputs or len(coordinates(plan)) > 1 or len(plan.outputs) != 1:
        raise Refused(
            "it has %d float inputs and %d outputs, but a thread takes one of each; concatenate them" % (
                len(coordinates(plan)), len(plan.outputs)))
    weights = {t.id for t in plan.weights}
    for step in plan.steps:
        t = step.tensor
        if (stored != "f32" and not step.members and t.op not in READ_AS_STORED and
            weights & set(step.operands)):
            raise Refused("%s%s: it reads weights in F32 alone" %
                          (t.op, " '%s'" % t.label if t.label else ""))
    return plan


def coordinates(plan):
    """The f32 input that gets a gradient, or None."""
    return [t for t in plan.inputs if t.dtype == "f32"]


def facts(plan, name, stored, groups):
    """Lines of the file's comment: how to fill the weights, what an index out of range gives, and what a warp
    computes."""
    parts = []
    if plan.weights:
        text = ("The program fills %s_weights: each array as PyTorch stores the tensor named in its comment, "
                "in F32." % name)
        if stored != "f32":
            text += " %s_weights_to_%s() converts it to %s_weights_%s, rounded to nearest even." % (
                name, stored, name, stored)
        parts.append(text + " Copy structs of weights to the GPU byte by byte, to global, shared or constant "
                     "memory.")
    if any(step.tensor.op == "embedding" for step in plan.steps):
        parts.append("An index outside its embedding's rows gives NaN, as in gpunn's own kernels.")
    if groups:
        parts.append(
            "%s_forward_warp() evaluates the samples of a warp's %s at once, by tensor cores. It requires "
            "compute capability %d.%d or newer. All 32 lanes must call it together, converged. Each lane "
            "passes its own x and y, in any memory or in local variables. Those of inactive lanes are "
            "neither read nor written. %s_weights_to_warp() packs the weights for it, in the order in which "
            "lanes read them. The factors of products are %s; sums and all else are F32. It uses no shared "
            "memory." % (
                (name, "32 lanes" if groups == 2 else "first 16 lanes") +
                divmod(STORAGES[stored].capability, 10) +
                (name, STORAGES[stored].about)))
    lines = [line for part in parts for line in textwrap.wrap(part, WIDTH - 3) + [""]]
    return ["* " + line if line else "*" for line in lines[:-1]]


def emit_device(plan, source, name, stored="f32", warp=False):
    """The text of NAME_device.cuh. plan: from plan_of(). stored: a key of STORAGES for the weights. warp:
    whether to add a function for a warp. Raises Refused."""
    storage, groups = STORAGES[stored], groups_of(plan, stored) if warp else 0
    ahead, back = DeviceEmitter(plan, name, False, storage), DeviceEmitter(plan, name, True, storage)
    back.functions, back.function_names = ahead.functions, ahead.function_names
    kind = "%s_weights%s" % (name, "" if stored == "f32" else "_" + stored)
    weights = ["const %s *weights" % kind] if plan.weights else []
    small = ("unroll", "unroll") if plan.products() <= MOST_UNROLLED else ()
    ids, y = [t.id for t in plan.inputs], ahead.arguments["output", plan.outputs[0]]
    inputs = [ahead.arguments["input", i] for i in ids]
    given = ["const %s *%s" % (STORED[t.dtype], x) for t, x in zip(plan.inputs, inputs)]

    def head(function, *parameters):
        return scalar.wrapped("static __device__ void %s_%s(" % (name, function), parameters, ")")

    def about(i, argument):
        return "%s: %s" % (argument, stamp.safe(ahead.of_type(i)))

    lines = stored_weights(ahead, stored) if plan.weights and stored != "f32" else []
    lines += ["/* %s -> %s. */" % (", ".join(map(about, ids, inputs)), about(plan.outputs[0], y))]
    lines += definition(head("forward", *weights, *given, "float *" + y), ahead.forward() + ahead.copies(),
                        small)
    for t in coordinates(plan):
        lines += ["", "/* dx: the gradient of %s where dy is that of %s. */" %
                  (ahead.arguments["input", t.id], y)]
        backward = back.backward()
        backward = back.forward() + backward
        lines += definition(head("input_gradient", *weights, *given, "const float *dy", "float *dx"),
                            back.unread() + backward, ("unroll 1", "unroll 8"))
    if warp:
        of_warp = WarpEmitter(plan, name, storage, groups)
        of_warp.functions, of_warp.function_names = ahead.functions, ahead.function_names
        lines += [""] + warp_lines(of_warp, head(
            "forward_warp", "const %s_weights_warp *weights" % name, *given, "float *" + y, "bool active"))
    functions = ahead.element_functions()
    values = {"name": name, "fn": name.upper() + "_FN"}
    library = [template.load(file, **values) for file in ("math_cuda.h", "device_ops.h")] + [
        hash_grid(**values)]
    if stored != "f32":
        library.append(template.load("device_stored.h", half=stored == "f16", type=storage.type, **values))
    library = template.needed("\n".join(library), "\n".join([functions] + lines))
    text = "\n".join(library + lines)
    places = ["%s + i" % one + " * %d" % plan.count(i) * (plan.count(i) > 1)
              for one, i in zip(inputs + [y], ids + plan.outputs)]
    return template.load(
        "device_inference.cuh", name=name, NAME=name.upper(),
        opening=stamp.lines(source, name + "_device.cuh"),
        parameters=", ".join(weights + given + ["float *" + y]), of_warp=", ".join(given + ["float *" + y]),
        arguments=", ".join(["weights"] * bool(weights) + places), places=", ".join(places),
        products=str(plan.products()), facts=facts(plan, name, stored, groups), half="__half" in text,
        bfloat="bfloat" in text, integers=bool(re.search(r"int\d+_t", text)),
        declarations=ahead.weights_struct() + ahead.constant_lines(), library=library,
        functions=functions.splitlines() + [""] * bool(functions), definitions=lines, warp=warp)
