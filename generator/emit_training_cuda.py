"""The GPU kernel of a small network's training step (training.py): the backward pass, after the forward pass
of emit_network_cuda.py."""
import math

from . import scalar, template, tiling
from .emit_inference import STORED, Emitter, Given, joined, loops, spread, strides
from .emit_network_cuda import TYPES, TileEmitter, at, cases, instance
from .tiling import CAPABILITY, FAR, LAUNCH, THREADS, staging
from .training import RESULT, STATIC, adding, apart, cycles, each_apart, forms, gradient_rows


class StepEmitter(TileEmitter):
    def __init__(self, plan, name, operands):
        super().__init__(plan, name, operands)
        self.begun = set()   # blocks whose gradient has been written
        self.summed = set()  # weights for which the block's sums have been written
        self.starts = {}     # of staged weights, by product; the kernel has their places (TileEmitter.places)

    def function(self, op, results):
        _, slots, _, text = scalar.function(self.name, "@", results)
        if text not in self.functions:
            self.functions[text] = self.function_names.new("%s_step_%s" % (self.name, op))
        return self.functions[text], [slot.key.name for slot in slots]

    def op_linear(self, t):
        self.starts[t.id] = "weights + (WHOLE ? AT%d : 0)" % len(self.staged) if self.staged else "weights"
        return super().op_linear(t)

    def op_dropout(self, t):
        return self.dropped(t, self.stored(t.id), self.pointer(t.id), self.pointer(t.inputs[0]), True)

    def dropped(self, t, stored, y, x, is_first):
        kept, stream = scalar.threshold(t.attrs["p"]), self.plan.random_streams.index(t.id)
        form = "dropped<%s, SAMPLES, PITCH, %d, %d>(" % (stored, self.plan.count(t.id), kept)
        return scalar.wrapped(form, [y, x, "o.random", "o.random_stream%d" % stream, "first",
                                     self.flag(is_first)], ");", 8)

    def index_in(self, i, whole):
        """The index, in a value, for element e of another value to which it is broadcast."""
        sizes, (steps,) = joined(self.shape(whole), [spread(self.shape(i), self.shape(whole))])
        return self.index(sizes, steps)

    # ---- the way back ----
    def gradient(self, i):
        return at("values", self.plan.gradient(i))

    def is_first(self, i):
        """Whether the gradient gets its first contribution. Marks it as begun."""
        block = self.plan.at[i][0]
        first = block not in self.begun
        self.begun.add(block)
        return first

    def is_first_sum(self, i):
        """The same for a weight's sums, as a C condition: the first one is in the block's first tile."""
        first = i not in self.summed
        self.summed.add(i)
        return "is_first" if first else "false"

    def seeded(self, cost):
        """Lines that sum the loss and write the gradient of each cost."""
        count = self.plan.count(cost)
        index = "e" if count > 1 else "0"
        self.is_first(cost)
        if self.plan.has_labels():
            return self.class_loss(cost, count)
        value, to = self.element(cost, index), "own[%s]" % self.place(index, self.plan.gradient(cost))
        return self.each(count, ["if (i < samples * %d) loss += %s;" % (count, value),
                                 "%s = seed;" % to]) + ["__syncthreads();"]

    def class_loss(self, cost, count):
        loss = self.plan.loss
        _, labels, weight = (loss.inputs + (None,))[:3]
        form = "class_loss<PITCH, %d, %d, %s>(" % (count, self.offset(labels) - self.offset(cost),
                                                   self.flag(loss.op == "cross_entropy"))
        weight = "(const float *)NULL" if weight is None else "o." + self.operands[weight]
        numbers = [scalar.number(float(loss.attrs.get(key, 0)))
                   for key in ("ignore_index", "label_smoothing")]
        return scalar.wrapped(form, ["(int)samples", self.gradient(cost), self.pointer(cost),
                                     weight] + numbers + ["seed", "loss", "divisor"], ");", 8)

    def back(self, step):
        t = step.tensor
        if self.plan.at[t.id][0] not in self.begun:
            return []
        if step.members:
            lines = self.back_elementwise(step)
        else:
            lines = getattr(self, "back_" + t.op)(step)
        return lines + ["__syncthreads();"] if lines else []

    def back_linear(self, step):
        t = step.tensor
        x, w, b = t.inputs
        out, width = self.shape(w)
        y, lines, sums = self.gradient(t.id), [], dict(self.plan.sums())
        if self.plan.wants(x):
            form = "operand_gradient<T, SAMPLES, PITCH, %d, %d, WHOLE, FLOATS>(" % (width, out)
            parts = [self.gradient(x), y, self.starts[t.id], self.pointer(w), self.flag(self.is_first(x))]
            lines += scalar.wrapped(form, parts, ");", 8)
        if w in sums:
            form = "weight_gradient<PITCH, %d, %d, %d>(" % (width, out, gradient_rows(width, out))
            lines += scalar.wrapped(form, ["T()", at("sums", sums[w]), y, self.pointer(x), "(int)samples",
                                          self.is_first_sum(w)], ");", 8)
        if b in sums:
            parts = [at("sums", sums[b]), y, "(int)samples", self.is_first_sum(b)]
            lines += scalar.wrapped("bias_gradient<PITCH, %d>(" % out, parts, ");", 8)
        return lines

    def recorded(self, t):
        """Lines that write, to the samples' records, what the gradient of a lookup's table needs."""
        place = {one.id: at for one, at in self.plan.records()}.get(t.id)
        if place is None:
            return []
        x, table = t.inputs
        records, largest = self.plan.record(), "largest[%d]" % list(self.plan.tables()).index(table)
        count, behind = self.plan.count(x), self.plan.count(t.id)

        def record(elements, offset):
            own = "i / %d * %d + e" % (elements, records) if elements > 1 else "i * %d" % records
            return "record[%s]" % self.place(own, offset)
        own, given = ("e" if count > 1 else "0",
                      "own[%s]" % self.place("e" if behind > 1 else "0", self.plan.gradient(t.id)))
        lines = self.each(count, ["%s = %s;" % (record(count, place), self.element(x, own))], "samples")
        return lines + self.each(behind,
                                 ["%s = %s;" % (record(behind, place + count), given),
                                  "%s = larger()(fabsf(%s), %s);" % (largest, given, largest)], "samples")

    def back_embedding(self, step):
        return self.recorded(step.tensor)

    def back_hash_grid_encoding(self, step):
        """A thread computes one point."""
        t = step.tensor
        x, table = t.inputs
        if not self.plan.wants(x):
            return self.recorded(t)
        axes, features = self.shape(x)[-1], self.shape(table)[1]
        (rows, levels), points = self.hash_levels(t), self.plan.count(x) // axes
        places = ["own + " + self.place("e * %d" % width if points > 1 else "0", offset)
                  for width, offset in (
                      (axes, self.plan.gradient(x)), (levels * features, self.plan.gradient(t.id)),
                      (axes, self.offset(x)))]
        lines = (["float *const dx = %s;" % places[0]] +
                 ["dx[%d] = 0;" % k for k in range(axes)] * self.is_first(x))
        call = self.call("hash_gradient", "dx", places[1] + " + j * %d" % features, places[2],
                         self.pointer(table), "&levels[j]", axes, features)
        lines += ["for (int j = 0; j < %d; j++)" % levels] + ["    " + line for line in call]
        return self.recorded(t) + self.block_of(rows + self.each(points, lines))

    def back_dropout(self, step):
        t = step.tensor
        x = t.inputs[0]
        if not self.plan.wants(x):
            return []
        return self.dropped(t, "float", self.gradient(x), self.gradient(t.id), self.is_first(x))

    def back_layer_norm(self, step):
        """The means and factors, with the gradient of its operand, then the gradients of its weights."""
        t, sums = step.tensor, dict(self.plan.sums())
        x, w, b = (t.inputs + (None,))[:3]
        n = math.prod(self.shape(t.id)[len(t.shape) - t.attrs["dims"]:])
        wanted, y, moments = self.plan.wants(x), self.gradient(t.id), at("values", step.room.place)
        rows = "PITCH, %d, %d" % (self.plan.count(t.id) // n, n)
        form = "norm_gradient<%s, %s, %s>(" % (rows, self.flag(t.op == "rms_norm"), self.flag(wanted))
        parts = ["(int)samples", self.gradient(x) if wanted else moments, y, self.pointer(x), self.pointer(w),
                 moments, scalar.number(t.attrs["eps"]), self.flag(wanted and self.is_first(x))]
        lines = scalar.wrapped(form, parts, ");", 8)
        to = [at("sums", sums[i]) if i in sums else "(float *)NULL" for i in (w, b)]
        if {w, b} & set(sums):
            parts = to + [y, self.pointer(x), moments, "(int)samples"] + [
                self.is_first_sum(i) if i in sums else "false" for i in (w, b)]
            lines += scalar.wrapped("norm_weight_gradient<%s>(" % rows, parts, ");", 8)
        return lines

    back_rms_norm = back_layer_norm

    def back_softmax(self, step):
        t = step.tensor
        x = t.inputs[0]
        outer, n, inner = self.line(t.id, t.attrs["dim"])
        form = "softmax_gradient<PITCH, %d, %d, %d, %s>(" % (
            outer * inner, n, inner, self.flag(t.op == "log_softmax"))
        parts = ["(int)samples", self.gradient(x), self.gradient(t.id), self.pointer(t.id),
                 self.flag(self.is_first(x))]
        return scalar.wrapped(form, parts, ");", 8)

    back_log_softmax = back_softmax

    def back_sum(self, step):
        t = step.tensor
        x, dims = t.inputs[0], t.attrs["dims"]
        shape = self.shape(x)
        kept = iter(strides([size for axis, size in enumerate(shape) if axis not in dims]))
        to = [0 if axis in dims else next(kept) for axis in range(len(shape))]
        divided = " / %d" % (self.plan.count(x) // self.plan.count(t.id)) if t.attrs.get("mean") else ""
        return self.handed_on(x, t.id, shape, to, strides(shape), divided=divided)

    def back_concat(self, step):
        lines = []
        for source, sizes, to, frm, to_offset, from_offset in self.moves(step.tensor):
            if self.plan.wants(source):
                lines += ["__syncthreads();"] if lines else []
                lines += self.handed_on(source, step.tensor.id, sizes, to, frm, to_offset, from_offset)
        return lines

    back_slice = back_permute = back_concat

    def handed_on(self, x, y, sizes, to, frm, to_offset=0, from_offset=0, divided=""):
        """Lines that add elements of y's gradient to x's. to, frm: strides in y and in x along axes of these
        sizes."""
        sizes, (to, frm) = joined(sizes, [to, frm])
        count, first, lines = math.prod(sizes), self.is_first(x), []
        if first and count < self.plan.count(x):
            zero = "own[%s] = 0;" % self.place("e", self.plan.gradient(x))
            lines, first = self.each(self.plan.count(x), [zero]) + ["__syncthreads();"], False
        own = self.place(self.index(sizes, frm), self.plan.gradient(x) + from_offset)
        other = self.place(self.index(sizes, to), self.plan.gradient(y) + to_offset)
        return lines + self.each(count,
                                 ["own[%s] %s own[%s]%s;" % (own, "=" if first else "+=", other, divided)])

    def back_elementwise(self, step):
        """The gradients of an elementwise step's operands. Those of missing samples are undefined and reach
        no other sample."""
        t, (terms, _) = step.tensor, self.plan.contributions(step)
        if not terms:
            return []
        wanted = list(terms)
        results = [("d%d" % k, "store", Given("d%d" % k), terms[i]) for k, i in enumerate(wanted)]
        function, parameters = self.function(t.op + "_gradient", results)
        names = {value.attr.name: self.element(i, self.index_in(i, t.id))
                 for i, value in self.given_values(step)}
        names[RESULT] = self.element(t.id, self.index_in(t.id, t.id))
        names["g"] = "own[%s]" % self.place(self.index_in(t.id, t.id), self.plan.gradient(t.id))
        made = ["d%d" % k for k in range(len(wanted))]
        room = {i: step.room.place + k * self.plan.count(t.id) for k, i in enumerate(self.plan.narrow(step))}
        lines = ["float %s;" % ", ".join(made)]
        lines += scalar.wrapped(function + "(",
                                [names[name] for name in parameters] + ["&" + one for one in made], ");", 12)
        for i, one in zip(wanted, made):
            sign = "=" if i in room or self.is_first(i) else "+="
            to = self.place(self.index_in(t.id, t.id), room[i] if i in room else self.plan.gradient(i))
            lines.append("own[%s] %s %s;" % (to, sign, one))
        lines = self.each(self.plan.count(t.id), lines)
        return lines + ["__syncthreads();"] * bool(room) + [line for i in room
                                                            for line in self.narrowed(t, i, room[i])]

    def narrowed(self, t, i, room):
        """Lines that reduce the gradients of t's elements, in `room`, to the gradient of an operand that t
        broadcasts."""
        shape, steps = self.shape(t.id), strides(self.shape(t.id))
        kept = [bool(step) for step in spread(self.shape(i), shape)]
        sizes, (frm,) = joined([size for size, own in zip(shape, kept) if own],
                               [[step for step, own in zip(steps, kept) if own]])
        inner, (within,) = joined([size for size, own in zip(shape, kept) if not own],
                                  [[step for step, own in zip(steps, kept) if not own]])
        terms = [self.index(sizes, frm)] + ["%s * %d" % pair for pair in zip("jklm", within)]
        index = self.place(" + ".join(term for term in terms if term != "0") or "0", room)
        count = self.plan.count(i)
        if self.plan.tensors[i].kind != "parameter":
            own = self.place("e" if count > 1 else "0", self.plan.gradient(i))
            return self.each(count, ["float total = 0;"] + loops(inner, ["total += own[%s];" % index], 1) +
                             ["own[%s] %s total;" % (own, "=" if self.is_first(i) else "+=")])
        of_samples = ["for (unsigned s = 0; s < samples; s++)"]
        of_samples += ["    " +
                       line for line in loops(inner, ["total += values[s * PITCH + %s];" % index], 1)]
        to = self.place("e", dict(self.plan.sums())[i])
        return (["for (unsigned e = threadIdx.x; e < %d; e += %d) {" % (count, THREADS),
                 "    float total = 0;"] + [
                     "    " + line for line in of_samples] +
                ["    add_to(sums + %s, total, %s);" % (to, self.is_first_sum(i)), "}"])

    def given_values(self, step):
        """The id of each operand, with the expression that loads it."""
        values = self.values(step)[1]
        return [(i, values[i]) for i in step.operands]

    # ---- tables, in launches of their own ----
    def added(self):
        """For each lookup (lookup, lines that add its records to its table's sums), and the most pieces of a
        sample's record."""
        found, most = [], 1
        for t, place in self.plan.records():
            lines, each = getattr(self, "added_" + t.op)(t)
            head = ["const float *const own = %s;" %
                    self.place("o.records + i / %d * %d" % (each, self.plan.record()), place),
                    "const int e = (int)(i %% %d);" % each]
            loop = (["for (int64_t i = begin; i < o.batch * %d; i += step) {" % each] +
                    ["    " + line for line in head + lines] + ["}"])
            found.append((t, self.block_of(self.hash_levels(t)[0] + loop) if t.op == "hash_grid_encoding" else
                          loop))
            most = max(most, each)
        return found, most

    def added_embedding(self, t):
        """Lines for piece e, and the number of pieces."""
        (rows, width), count, padding = (self.shape(t.inputs[1]), self.plan.count(t.inputs[0]),
                                         t.attrs["padding_idx"])
        apart = " && token != %d" % padding if padding >= 0 else ""
        return (["const float token = own[e / %d];" % width,
                 "if (token >= 0 && token < %d%s)" % (rows, apart), "    exact_add(sums + (size_t)token * %d "
                 "+ e %% %d, own[%d + e], scale);" % (width, width, count)], count * width)

    def added_hash_grid_encoding(self, t):
        axes, features, count = (self.shape(t.inputs[0])[-1], self.shape(t.inputs[1])[1],
                                 self.plan.count(t.inputs[0]))
        levels, name = self.hash_levels(t)[1], self.name
        return (["const %s_hash_level *const level = &levels[e %% %d];" % (name, levels), "uint32_t cell[3];",
                 "float part[3];", "%s_hash_find(cell, part, own + e / %d * %d, level->scale, %d);" %
                 (name, levels, axes, axes), "for (int corner = 0; corner < %d; corner++) {" % (1 << axes),
                 "    const float weight = %s_hash_weight(part, corner, %d, -1);" % (name, axes),
                 "    const size_t row = (size_t)%s_hash_row(level, cell, corner, %d) * %d;" %
                 (name, axes, features), "    for (int f = 0; f < %d; f++) exact_add(sums + row + f, weight "
                 "* own[%d + e * %d + f], scale);" % (
                     features, count, features), "}"], count // axes * levels)

    # ---- the kernel ----
    def steps(self):
        lines = self.given() + [line for step in self.plan.steps for line in self.step(step)] + self.taken()
        lines += self.seeded(self.plan.outputs[0])
        return lines + [line for step in reversed(self.plan.steps) for line in self.back(step)]

    def taken(self):
        return self.brought(i for i in self.plan.outputs if i in self.operands)


def emitter_of(kernel_set):
    """The emitter with the kernel's lines in it, and the names of the program's operands by their names in
    the struct."""
    kernel, ids = kernel_set.step
    program = kernel.forward
    values = {}
    for one in program.operands:
        if one.role == "value":
            values[ids[-1 - one.index if one.index < 0 else len(kernel.nodes) + one.index]] = one.name + "_"
    emitter = StepEmitter(program.step, kernel_set.name, values)
    return emitter, emitter.steps()


def functions(kernel_set):
    """The functions of elements, which the header holds."""
    emitter, _ = emitter_of(kernel_set)
    return emitter.element_functions().splitlines()


def gradients_of(kernel_set):
    """The names of the weights' gradients in the struct, by id."""
    kernel, ids = kernel_set.step
    return {ids[len(kernel.nodes) + one.index]: one.name + "_" for one in kernel.forward.operands
            if one.role == "gradient" and one.index >= 0}


def given_lines(kernel_set):
    """Lines that store sum i, whose place belongs to a weight."""
    plan, gradients, lines = kernel_set.step[0].forward.step, gradients_of(kernel_set), []
    for i, place in plan.sums():
        name, index = gradients[i], "i - %d" % place if place else "i"
        lines += ["%sif (i < %d) {" % ("} else " if lines else "", place + plan.count(i)),
                  "    if (o.%s) store_one(o.add_%s, o.%s, %s, total);" % (name, name, name, index)]
    return lines + ["}"]


def table_lines(kernel_set, emitter):
    """Lines that add records to the sums of tables, lines that store these, and the most pieces of a
    record."""
    plan, (added, most), gradients, adding, bringing = (emitter.plan, emitter.added(),
                                                        gradients_of(kernel_set), [], [])
    for number, (table, place) in enumerate(plan.tables().items()):
        scale = "const float2 scale = exact_scale<%d>(o.largest + %d, %d, blocks, o.batch * %d);" % (
            THREADS, number, len(plan.tables()), plan.terms(table))
        sums, name = at("o.exact", place), gradients[table]
        of_table = [line for t, lines in added if t.inputs[1] == table for line in lines]
        adding += ["if (o.%s) {" % name, "    unsigned long long *const sums = %s;" % sums, "    %s" % scale,
                   "    if (scale.x == scale.x) {"]
        adding += ["        " + line for line in of_table] + ["    }", "}"]
        bringing += ["if (o.%s) {" % name, "    const unsigned long long *const sums = %s;" % sums,
                     "    %s" % scale, "    for (int64_t i = begin; i < %d; i += step)" % plan.count(table),
                     "        store_one(o.add_%s, o.%s, (size_t)i, exact_sum(sums[i], scale)%s);" % (
                         name, name, " * factor" if plan.divides_by_labels() else ""), "}"]
    return adding, bringing, most


def is_mean(plan):
    """Whether the loss is a mean over the samples."""
    return not plan.has_labels() and plan.loss.attrs["mean"]


def seed_of(plan, gradient):
    """The gradient of each cost. If the labels determine the divisor, then the divisor and the loss's own
    gradient are left out and applied last."""
    if plan.divides_by_labels():
        return "1"
    return "*o.%s%s" % (gradient, " / " + divisor(plan) if is_mean(plan) else "")


def weights_of(plan):
    return sum(plan.count(i) for i, _ in plan.sums())


def divisor(plan):
    count = plan.count(plan.outputs[0])
    return "(float)o.batch" if count == 1 else "(float)(o.batch * %d)" % count


def factor_lines(plan, gradient, labels):
    """Lines that define the factor of the gradients' sums, where labels determine the divisor."""
    if not plan.divides_by_labels():
        return []
    return ["const float labels = %s, factor = labels != 0 ? *o.%s / labels : 0;" % (labels, gradient)]


def loss_operands(kernel):
    """The names of the loss and of its gradient."""
    last = -len(kernel.nodes)
    return [next(one.name + "_" for one in kernel.forward.operands if one.index == last and one.role == role)
            for role in ("value", "gradient")]


def members_of(program):
    """The members of the kernel's struct, and the lines that fill it."""
    members, filled = [], []
    for k, one in enumerate(program.operands):
        kind = ("" if one.written else "const ") + (TYPES.get(one.dtype) or STORED[one.dtype])
        members.append("%s *%s_;" % (kind, one.name))
        filled.append("o.%s_ = (%s *)call->data[%d];" % (one.name, kind, k))
        if one.accumulate:
            members.append("bool add_%s_;" % one.name)
            filled.append("o.add_%s_ = call->accumulate[%d] != 0;" % (one.name, k))
    if program.step.random_streams:
        members.append("const uint64_t *random;")
        filled.append("o.random = call->random;")
    for k, _ in enumerate(program.step.random_streams):
        members.append("unsigned random_stream%d;" % k)
        filled.append("o.random_stream%d = call->random_streams[%d];" % (k, k))
    return members, filled


def emit_cuda(kernel_set):
    """The text of the kernels and of the two functions that the runtime calls."""
    kernel, _ = kernel_set.step
    program, plan = kernel.forward, kernel.forward.step
    emitter, steps = emitter_of(kernel_set)
    members, filled = members_of(program)
    loss, gradient = loss_operands(kernel)
    choices, weights, sums = forms(plan), weights_of(plan), plan.summed()
    costs = "%.0f, %.0f, %.6g" % (apart(plan), adding(plan), 4 * sums / tiling.MEMORY)
    by_labels, tables = plan.divides_by_labels(), plan.tables()
    elements, (add, bring, most) = sum(map(plan.count, tables)), table_lines(kernel_set, emitter)
    return template.load(
        "training.cu", function="%s_%s_forward" % (kernel_set.name, kernel.name), comment="a training step",
        threads=str(THREADS), members=members, filled=filled, steps=steps, given=given_lines(kernel_set),
        pitch=str(plan.pitch()), sums=str(sums),
        weights=str(weights), seed=seed_of(plan, gradient), loss=loss, costs=costs, labels=plan.has_labels(),
        second="threadIdx.x == 1 ? divisor : 0" if plan.has_labels() else "0", count=str(len(choices)),
        mean="mean_cost(" * by_labels, divided=", labels)" if by_labels else
        " / " + divisor(plan) if is_mean(plan) else "", scaled=" * factor" if by_labels else "",
        factor=factor_lines(plan, gradient, "o.partial[%d]" % (weights + 1)),
        later=factor_lines(plan, gradient,
                           "total_of<%d>(o.partial + %d, %d, blocks)" % (THREADS, weights + 1, sums)),
        last=factor_lines(plan, gradient,
                          "total_of<%d>(o.partial + %d, %d, slices)" % (THREADS, weights + 1, sums)),
        sliced=", unsigned slices" * by_labels,
        slices=", choice.again ? (unsigned)choice.blocks : 1" * by_labels, has_tables=bool(tables),
        tables=str(len(tables)), elements=str(elements), record=str(plan.record()), add=add, bring=bring,
        most=str(most), more=" + area(2 * (size_t)%d + choice.blocks * %d + (size_t)batch * %d)" % (
            elements, len(tables), plan.record()) if tables else "",
        places=emitter.places(), resident=[line for _, _, line in emitter.staged] + ["__syncthreads();"],
        forms=["{%d, %d, %d, %.0f, %.0f, %.6g}," % (one.samples, one.bytes, CAPABILITY[one.factors], staging(
            one), cycles(plan, one), each_apart(plan, one.factors)) for one in choices],
        first=instance(choices[0]), cases=cases(choices))


def library(kernel_set):
    """The library functions that such kernels call."""
    return template.load(
        "training_device.h", threads=str(THREADS), static_bytes=str(STATIC), far=str(FAR),
        tiles=kernel_set.step[0].precision != "f32", launch="%.0f" % (LAUNCH * tiling.GIGAHERTZ * 1e9))
