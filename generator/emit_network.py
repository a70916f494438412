"""The CPU kernel of a small network (network.py). It takes a block of samples through all steps, so that
values stay in cache."""
from . import scalar, template
from .emit_inference import STORED, Emitter, Given, loops

BLOCKS = (48, 24, 12)    # samples of a block: the largest number whose values are ...
NEAR = 12288             # ... at most this many floats at once, on the stack
WORK = 1 << 18           # multiplications of a slice of the batch
# floats of a vector, registers for sums, and vectors of a panel
LEVELS = ((16, 24, 4), (8, 12, 2), (4, 12, 4), (1, 12, 4))


class BlockEmitter(Emitter):
    """Steps for n samples. Their values are [n][elements]. What all samples share is read from the call's
    memory."""

    def __init__(self, plan, name, operands):
        super().__init__(plan, name)
        self.operands = operands  # ids of the program's tensors
        self.each = False         # whether steps are within a loop over samples s
        self.packs, self.packed = [], []
        self.floats = plan.sizes().get("f32", 0)
        self.samples = next((count for count in BLOCKS if count * self.floats <= NEAR), BLOCKS[-1])

    def locals(self):
        return super().locals() + ("begin", "call", "end", "first", "lanes", "packed", "row", "s")

    # ---- where values lie ----
    def named(self, block):
        return (self.names.new(self.word(block.tensor)) if block.kind in ("weight", "constant") else
                super().named(block))

    def is_whole(self, i):
        """Whether a value is [n][elements], with samples one after another."""
        block = self.plan.at[i][0].root()
        return block.kind in ("input", "scratch") and self.plan.count(i) == block.count

    def place(self, block):
        """The offset of the sample's values from the block's begin."""
        block = block.root()
        return (["s * %d" % block.count if block.count > 1 else "s"] if self.each and
                block.kind in ("input", "scratch") else [])

    def pointer(self, i):
        if i is None:
            return "NULL"
        block, offset = self.plan.at[i]
        return " + ".join([self.base(block)] + self.place(block) + [str(offset)] * bool(offset))

    def element(self, i, index):
        block, offset = self.plan.at[i]
        terms = self.place(block) + [index] * (index != "0") + [str(offset)] * bool(offset)
        return "%s[%s]" % (self.base(block), " + ".join(terms) or "0")

    # ---- steps ----
    def step(self, step):
        if step.tensor.op == "linear":
            return self.linear(step.tensor)
        if step.members and all(self.is_whole(i) and self.shape(i) == self.shape(step.tensor.id)
                                for i in step.operands):
            return self.all_at_once(step)
        self.each = True
        body = self.vector(super().step(step))
        self.each = False
        return ["for (int s = 0; s < n; ++s) {"] + ["    " + line for line in body] + ["}"]

    def vector(self, lines):
        """The innermost loop of functions of elements."""
        at = max((k for k, line in enumerate(lines) if line.lstrip().startswith("for (")), default=None)
        if at is None or not any("_apply_" in line for line in lines):
            return lines
        indent = " " * (len(lines[at]) - len(lines[at].lstrip()))
        return lines[:at] + ["%s%s_VECTOR" % (indent, self.NAME)] + lines[at:]

    def all_at_once(self, step):
        """An elementwise step whose operands have the same samples and elements, as one loop."""
        t, (_, values) = step.tensor, self.values(step)
        function, parameters = self.function(t.op, [("result", "store", Given("result"), values[t.id])])
        names = {values[i].attr.name: self.element(i, "i") for i in step.operands}
        call = scalar.wrapped(function + "(",
                              [names[name] for name in parameters] + ["&" + self.element(t.id, "i")], ");", 4)
        count = self.plan.count(t.id)
        head = "for (int i = 0; i < n%s; ++i)" % (" * %d" % count if count > 1 else "")
        return self.vector([head] + ["    " + line for line in call])

    def linear(self, t):
        x, w, b = t.inputs
        out, width = self.shape(w)
        rows, packed = self.plan.count(t.id) // out, self.names.new("%s_packed" % self.word(t))
        self.packed.append((packed, self.offset()))
        self.packs.append((w, b, width, out))
        whole, apart = self.is_whole(x), self.plan.at[x][0].root().count
        self.each = each = rows > 1 and not whole
        many = "n" if rows == 1 else str(rows) if each else "n * %d" % rows
        lines = self.call("product", "lanes", self.pointer(t.id), self.pointer(x),
                          width if whole or each else apart, packed, many, width, out)
        self.each = False
        return ["for (int s = 0; s < n; ++s)"] + ["    " + line for line in lines] if each else lines

    def op_embedding(self, t):
        tokens, w = t.inputs
        width = self.shape(w)[1]
        row = "const float *const row = %s + (int)%s * %d;" % (
            self.pointer(w), self.element(tokens, "i"), width)
        return loops((self.plan.count(tokens),), [
            row,
            "for (int j = 0; j < %d; ++j) %s = row[j];" % (width, self.element(t.id, "i * %d + j" % width))])

    def offset(self):
        """The offset at which the next weight is packed, in floats, whatever the vector size."""
        return sum((width + 1) * -(-out // 16) * 16 for _, _, width, out in self.packs)

    @staticmethod
    def at(pointer, offset):
        return "%s + %d" % (pointer, offset) if offset else pointer

    # ---- the kernel ----
    def fixed(self):
        """Lines before the loop over blocks."""
        lines = ["float scratch[%d];" % (self.floats * self.samples)] * bool(self.floats)
        shared = [block for block in self.blocks if block.kind not in ("input", "scratch")]
        lines += [self.from_call(block, "") for block in shared] + [
            "const float *const packed = (const float *)call->cache;"]
        return lines + ["const float *const %s = %s;" % (name, self.at("packed", offset))
                        for name, offset in self.packed]

    def from_call(self, block, offset):
        t = block.output or block.tensor
        kind = "float *" if block.output else "const %s *" % STORED[t.dtype]
        return "%sconst %s = (%s)call->data[%d]%s;" % (
            kind, self.blocks[block], kind, self.operands.index(t.id), offset)

    def of_block(self):
        """Lines that define where the values of a block of samples are."""
        lines = []
        for block in self.blocks:
            if block.kind == "input" or block.output:
                lines.append(self.from_call(block,
                                            " + first" + (" * %d" % block.count if block.count > 1 else "")))
            elif block.kind == "scratch":
                lines.append("float *const %s = scratch + %d;" %
                             (self.blocks[block], block.place * self.samples))
        return lines

    def checks(self):
        """Lines that return if an index is out of its embedding's range. gpunn.h reports which one."""
        lines = []
        for t in [step.tensor for step in self.plan.steps if step.tensor.op == "embedding"]:
            tokens = self.plan.at[t.inputs[0]][0].tensor
            data = "((const %s *)call->data[%d])[i]" % (STORED[tokens.dtype], self.operands.index(tokens.id))
            lines += ["for (int64_t i = 0; i < call->batch * %d; ++i)" % self.plan.count(tokens.id),
                      "    if (%s < 0 || %s >= %d) return GPUNN_ERR_ARGUMENT;" %
                      (data, data, self.shape(t.inputs[1])[0])]
        return lines

    def pack_lines(self):
        lines = ["float *const packed = (float *)call->cache;"]
        for (w, b, width, out), (_, offset) in zip(self.packs, self.packed):
            weight, bias = ["(const float *)call->data[%d]" % self.operands.index(i) if i is not None else
                            "NULL" for i in (w, b)]
            lines += self.call("pack", self.at("packed", offset), weight, bias, width, out, "lanes")
        return lines

    def copies(self):
        """Lines that copy outputs that have no block of their own."""
        self.each = True
        lines = super().copies()
        self.each = False
        return ["for (int s = 0; s < n; ++s) {"] + ["    " + line for line in lines] + ["}"] if lines else []


def emit_c(kernel_set):
    """Returns (functions of elements, functions of the kernel, bytes of its cache)."""
    kernel, ids = kernel_set.network
    plan, name = kernel.evaluation.network, kernel_set.name
    numbers = [one.index for one in kernel.evaluation.operands]
    emitter = BlockEmitter(plan, name, [ids[-1 - k if k < 0 else len(kernel.nodes) + k] for k in numbers])
    steps = [line for step in plan.steps for line in emitter.step(step)] + emitter.copies()
    function = "%s_%s_evaluation" % (name, kernel.name)
    text = template.load(
        "network.c", name=name, NAME=emitter.NAME, function=function, comment=kernel.name,
        fixed=emitter.fixed(), values=emitter.of_block(), steps=steps, packs=emitter.pack_lines(),
        checks=emitter.checks(), block=str(emitter.samples), loops=levels(emitter.NAME, function),
        least=str(max(emitter.samples, WORK // max(plan.products(), 1))))
    return emitter.element_functions(), text, str(4 * emitter.offset())


def levels(upper, function):
    """The loop over samples for each kind of vector."""
    def text(isa, level, lanes):
        space = " " * len("%s static void %s_%s(" % (isa, function, level))
        loop = template.load("network_loop.c", isa=isa, function=function, level=level, lanes=lanes,
                             space=space[1:])
        return loop.lstrip().splitlines()
    wide = text(upper + "_V16", "v16", "16") + [""] + text(upper + "_V8", "v8", "8")
    return ["#if defined(%s_V16)" % upper] + wide + ["#endif", ""] + text("", "narrow", upper + "_NARROWEST")


def library(name):
    """The functions that the loops call."""
    values = {"name": name, "NAME": name.upper()}
    levels = [template.load("network_vectors.h", level="v%d" % floats,
                            isa="%s_V%d" % (values["NAME"], floats), floats=str(floats), sums=str(sums),
                            panel=str(panel), wide=panel > 2, **values) for floats, sums, panel in LEVELS]
    panels = "(%s4)" % "".join("lanes == %d ? %d : " % (floats, panel)
                               for floats, _, panel in LEVELS if panel != 4)
    return template.load("network.h", levels="\n".join(levels).splitlines(), panels=panels, **values)
