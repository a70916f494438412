"""Writes NAME_device.cuh: a small model and the gradient of its input as CUDA functions for one sample a thread."""
from . import ir, scalar, stamp, template
from .emit_inference import INDICES, STORED, Emitter, Given, hash_grid, joined, loops, place, spread, strides
from .inference import VIEWS, Plan, Refused, is_elementwise
from .scalar import number

MOST_VALUES = 1024     # elements of one value
MOST_UNROLLED = 4096   # multiplications of a forward call whose loops are unrolled, so that its values stay in registers
MOVES = ("concat", "slice", "permute", "expand")
ROWS = ("layer_norm", "rms_norm", "softmax", "log_softmax")
FROM_OPERAND = ROWS[:2] + ("hash_grid_encoding",)  # whose gradients take their operand; those of the other two their value
OPS = VIEWS + MOVES + ROWS + ("linear", "sum", "embedding", "hash_grid_encoding")


def check(t, plan):
    """Why a thread cannot compute a value."""
    if t.dtype != "f32" and not plan.is_given_integer(t):
        return "%s, but one thread computes with f32 alone" % t.dtype
    if t.kind == "value" and t.op not in OPS and not is_elementwise(t):
        return "not written for one thread"
    if t.kind in ("input", "value") and plan.count(t.id) > MOST_VALUES:
        return "%d elements; one thread has room for %d" % (plan.count(t.id), MOST_VALUES)
    rest = plan.shape(t.id)
    if t.op in ROWS and rest[-1] != plan.count(t.id) or t.op in ROWS[:2] and t.attrs["dims"] != 1 or (
            t.op in ROWS[2:] and t.attrs["dim"] != len(rest) - 1):
        return "one row of its last axis is possible"
    return None


class DeviceEmitter(Emitter):
    CONSTANT = "static __device__ const"

    def __init__(self, plan, name, gradient):
        super().__init__(plan, name)
        self.gradient = gradient
        self.names.taken.update(("dx", "dy", "slope"))
        self.slopes = {}  # names of the arrays of gradients, by block

    def named(self, block):
        if block.kind == "scratch" and self.gradient:
            return self.names.new(self.word(block.tensor))
        return super().named(block)

    def local(self, block):
        return "float %s[%d];" % (self.base(block), block.count)

    # ---- forward ----
    def op_linear(self, t):
        x, w, b = t.inputs
        out, width = self.shape(w)
        rows = self.plan.count(t.id) // out
        names = "ij"
        body = ["float sum = %s;" % (self.element(b, "j") if b is not None else "0"),
                "for (int k = 0; k < %d; ++k) sum += %s * %s;" % (
                    width, self.element(x, place((width, 1), "ik") if rows > 1 else "k"), self.element(w, "j * %d + k" % width)),
                "%s = sum;" % self.element(t.id, place((out, 1), names) if rows > 1 else "j")]
        inner = loops((out,), body, 1)
        return loops((rows,), inner) if rows > 1 else inner

    def op_layer_norm(self, t):
        x, w, b = (t.inputs + (None,))[:3]
        return self.rows_call("layer_norm", t, self.pointer(t.id), self.pointer(x), self.pointer(w), self.pointer(b),
                              number(t.attrs["eps"]), self.flag(t.op == "rms_norm"))

    op_rms_norm = op_layer_norm

    def op_softmax(self, t):
        return self.rows_call("softmax", t, self.pointer(t.id), self.pointer(t.inputs[0]), self.flag(t.op == "log_softmax"))

    op_log_softmax = op_softmax

    def op_embedding(self, t):
        tokens, w = t.inputs
        (rows, width), token = self.shape(w), self.element(tokens, "i")
        body = ["const int index = %s >= 0 && %s < %d ? (int)%s : -1;" % (token, token, rows, token),
                "for (int j = 0; j < %d; ++j) %s = index >= 0 ? %s : NAN;" % (
                    width, self.element(t.id, "i * %d + j" % width), self.element(w, "index * %d + j" % width))]
        return loops((self.plan.count(tokens),), body)

    def rows_call(self, function, t, *arguments):
        return self.call("%s<%d>" % (function, self.plan.count(t.id)), *arguments)

    def block(self, i):
        return self.plan.at[i][0]

    def steps(self):
        """All, or those that the gradients need."""
        if not self.gradient:
            return self.plan.steps
        read, needed = set(), []
        for step in self.plan.steps:
            t = step.tensor
            kept = step.operands if step.members else t.inputs[:1] if t.op in FROM_OPERAND else (t.id,) if t.op in ROWS[2:] else ()
            read.update(map(self.block, kept))
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

    # ---- backward ----
    def slope(self, i, index):
        """The element of the gradient of a value."""
        block, offset = self.plan.at[i]
        return "%s[%s]" % (self.slopes[block], index if not offset else "%s + %d" % (index, offset))

    def live(self, i):
        return i is not None and self.plan.at[i][0] in self.slopes

    def backward(self):
        """Lines from dy to dx."""
        lines = []
        for block in self.plan.blocks:
            if block.kind in ("scratch", "input") and block.dtype == "f32":
                self.slopes[block] = self.names.new("d_" + self.base(block))
                lines.append("float %s[%d] = {0};" % (self.slopes[block], block.count))
        x, y = coordinates(self.plan)[0].id, self.plan.outputs[0]
        lines += loops((self.plan.count(y),), ["%s = dy[i];" % self.slope(y, "i")])
        for step in reversed(self.plan.steps):
            lines += self.back(step)
        return lines + loops((self.plan.count(x),), ["dx[i] = %s;" % self.slope(x, "i")])

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
        own, other = self.slope(source, place(frm, names, from_offset)), self.slope(t.id, place(to, names, to_offset))
        return loops(sizes, ["%s += %s;" % (own, other)])

    def back_sum(self, t):
        x, dims = t.inputs[0], t.attrs["dims"]
        shape = self.shape(x)
        kept = iter(strides([size for axis, size in enumerate(shape) if axis not in dims]))
        to = [0 if axis in dims else next(kept) for axis in range(len(shape))]
        sizes, (to, frm) = joined(shape, [to, strides(shape)])
        names = INDICES[:len(sizes)]
        count = self.plan.count(x) // self.plan.count(t.id) if t.attrs["mean"] else 1
        value = self.slope(t.id, place(to, names)) + (" / %d" % count if count > 1 else "")
        return loops(sizes, ["%s += %s;" % (self.slope(x, place(frm, names)), value)])

    def back_linear(self, t):
        x, w, _ = t.inputs
        out, width = self.shape(w)
        rows = self.plan.count(t.id) // out
        body = ["const float slope = %s;" % self.slope(t.id, place((out, 1), "ij") if rows > 1 else "j"),
                "for (int k = 0; k < %d; ++k) %s += slope * %s;" % (
                    width, self.slope(x, place((width, 1), "ik") if rows > 1 else "k"), self.element(w, "j * %d + k" % width))]
        inner = loops((out,), body, 1)
        return loops((rows,), inner) if rows > 1 else inner

    def slope_pointer(self, i):
        return "&" + self.slope(i, "0")

    def back_layer_norm(self, t):
        return self.rows_call("layer_norm_gradient", t, self.slope_pointer(t.inputs[0]), self.slope_pointer(t.id),
                              self.pointer(t.inputs[0]), self.pointer(t.inputs[1]), number(t.attrs["eps"]), self.flag(t.op == "rms_norm"))

    back_rms_norm = back_layer_norm

    def back_softmax(self, t):
        return self.rows_call("softmax_gradient", t, self.slope_pointer(t.inputs[0]), self.slope_pointer(t.id), self.pointer(t.id),
                              self.flag(t.op == "log_softmax"))

    back_log_softmax = back_softmax

    def back_hash_grid_encoding(self, t):
        x, table = t.inputs
        return self.hashing(t, "slopes", lambda y, at: [
            self.slope_pointer(x) + at, self.slope_pointer(t.id) + y, self.pointer(x) + at, self.pointer(table)])

    def elementwise_back(self, step):
        """The gradients of an elementwise step's operands, by one function."""
        t, (graph, values) = step.tensor, self.values(step)
        slopes = {t.id: graph.load(Given("slope"))}
        for m in reversed(step.members):
            node = self.plan.tensors[m]
            for k, i in enumerate(node.inputs):
                if m in slopes and (i in step.members or self.live(i)):
                    more = graph.derivative(node.op, k, node.attrs, [values[j] for j in node.inputs], values[m], slopes[m])
                    if more is not None:
                        slopes[i] = graph.add(slopes[i], more) if i in slopes else more
        wanted = [i for i in step.operands if i in slopes]
        if not wanted:
            return []
        results = [("d%d" % k, "store", Given("d%d" % k), slopes[i]) for k, i in enumerate(wanted)]
        function, parameters = self.function(t.op + "_gradient", results)
        own = self.shape(t.id)
        sizes, steps = joined(own, [strides(own)] + [spread(self.shape(i), own) for i in step.operands])
        names = INDICES[:len(sizes)]
        at = {i: place(one, names) for i, one in zip(step.operands, steps[1:])}
        given = {values[i].attr.name: self.element(i, at[i]) for i in step.operands}
        given["slope"] = self.slope(t.id, place(steps[0], names))
        arguments = [given[name] for name in parameters] + ["&d%d" % k for k in range(len(wanted))]
        body = ["float %s;" % ", ".join("d%d" % k for k in range(len(wanted)))]
        body += scalar.wrapped(function + "(", arguments, ");", 4 * len(sizes) + 4)
        body += ["%s += d%d;" % (self.slope(i, at[i]), k) for k, i in enumerate(wanted)]
        return loops(sizes, body) if sizes else self.block_of(body)


def definition(start, lines, unroll):
    """A function. unroll: what is asked of loops, and of those that are one line, a sum; None: nothing."""
    body = []
    for line in lines:
        if line.lstrip().startswith("for ("):
            body += ["#pragma " + word for word in unroll[line.endswith(";"):][:1] if word]
        body.append("    " + line)
    return [start, "{"] + body + ["}"]


def plan_of(model):
    """The Plan of a model that a thread can compute. Raises Refused."""
    plan = Plan(model, 1, check, False)
    if not plan.inputs or len(coordinates(plan)) > 1 or len(plan.outputs) != 1:
        raise Refused("%d inputs of floats and %d outputs; a thread takes one and gives one: concatenate them" % (
            len(coordinates(plan)), len(plan.outputs)))
    return plan


def coordinates(plan):
    """The input of f32, of which there is a gradient, if there is one."""
    return [t for t in plan.inputs if t.dtype == "f32"]


def emit_device(plan, source, name):
    """The text of NAME_device.cuh. plan: of plan_of()."""
    ahead, back = DeviceEmitter(plan, name, False), DeviceEmitter(plan, name, True)
    back.functions, back.function_names = ahead.functions, ahead.function_names
    given = ["const %s_weights *weights" % name] if plan.weights else []
    given += ["const %s *%s" % (STORED[t.dtype], ahead.arguments["input", t.id]) for t in plan.inputs]
    small = ("unroll", "unroll") if plan.products() <= MOST_UNROLLED else (None, None)
    start = "static __device__ void %s_%%s(%s, %%s)" % (name, ", ".join(given))
    y = ahead.arguments["output", plan.outputs[0]]
    inputs = ", ".join("%s: %s" % (ahead.arguments["input", t.id], ahead.of_type(t.id)) for t in plan.inputs)
    lines = ["/* %s -> %s: %s. */" % (inputs, y, ahead.of_type(plan.outputs[0]))]
    lines += definition(start % ("forward", "float *" + y), ahead.forward() + ahead.copies(), small)
    for t in coordinates(plan):
        lines += ["", "/* dx: the gradient of %s where dy is that of %s. */" % (ahead.arguments["input", t.id], y)]
        lines += definition(start % ("input_gradient", "const float *dy, float *dx"), back.forward() + back.backward(),
                            ("unroll 1", "unroll 8"))
    functions = "\n".join(text.replace("@", own) for text, own in ahead.functions.items())
    values = {"name": name, "fn": name.upper() + "_FN"}
    library = "\n\n".join((template.load("math_cuda.h", **values), template.load("device_ops.h", **values), hash_grid(name, values["fn"])))
    return template.load(
        "device_inference.cuh", name=name, NAME=name.upper(), opening=stamp.lines(source, name + "_device.cuh"),
        products=str(plan.products()), picks=any(step.tensor.op == "embedding" for step in plan.steps),
        declarations=ahead.weights_struct() + ahead.constant_lines(),
        library=template.needed(library, "\n".join([functions] + lines)), functions=functions.splitlines(), definitions=lines)
