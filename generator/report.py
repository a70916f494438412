"""What --report prints: the kernels, and launches and bytes with and without them."""
import textwrap

from . import lower, partition, schedule, table, tiling, training
from .graph import measure
from .sizes import any_varies
from .lower import BYTES, CLASS_LOSSES, ROW_NORMS, called

COUNTED = lower.ROW_OPS + lower.CHANNEL_NORMS + table.having("RECURRENT") + (
    "dropout", "gradient_energy", "cast", "assign")
NOT_COUNTED = {op.name for op in table.ops().values() if not op.arity}.difference(COUNTED)

HOW = """\
How this counts. Before: one kernel for each op, as in a framework that runs ops one by one. Each tensor that
an op reads or writes counts once; batch_norm's input counts twice in each direction. Dropout writes and reads
a mask of one byte per element. The gradient of a broadcast operand is written whole and then summed.
cross_entropy is log_softmax and a selection. A bias's gradient reads its layer's gradient. Every further
contribution to a gradient is an addition, which reads two tensors and writes one.
After: the kernels above and, for the rest, gpunn's own on a GPU. Layers merge some ops that follow them (a
residual, relu, gelu_tanh, the gradient of linear's bias). Such an op costs what the layer reads and writes in
addition. A further contribution to a gradient is added in place, which reads one tensor. An addition passes
its gradient on in the same memory.
Not in these numbers: what layers, pools, sampling and copies (permute, slice, concat, pad) read and write
themselves. It is the same before and after."""


class Count:
    """Launches and bytes: a fixed part, and a part per batch."""

    def __init__(self):
        self.launches, self.fixed, self.per_batch = 0, 0, 0

    def add(self, launches, *sizes):
        self.launches += launches
        for fixed, per_batch in sizes:
            self.fixed += fixed
            self.per_batch += per_batch

    def bytes(self, batch=partition.SAMPLE):
        return self.fixed + batch * self.per_batch


class Counter:
    """Counts launches and bytes of one View."""

    def __init__(self, view, kernels, instances):
        self.view, self.tensors = view, view.tensors
        self.programs, self.claimed = [], set()
        for instance in instances:
            kernel = kernels[instance.kernel]
            nodes = instance.tensors[:len(kernel.nodes)]
            if not self.claimed & set(nodes):
                self.claimed |= set(nodes)
                self.programs.append((kernel, nodes, instance.tensors[len(nodes):]))

    def size(self, number, width=None):
        factor, power = measure(self.tensors[number].shape)
        total = factor * (width or BYTES[self.view.storage[self.view.root[number]]])
        return (0, total) if power else (total, 0)

    def operands(self, t):
        return [self.size(number)
                for number in dict.fromkeys(number for number in t.inputs if number is not None)]

    def nodes(self):
        """The values in the counted part."""
        return [t for t in self.tensors if t.kind == "value" and self.view.needed[t.id] and
                not self.view.alias[t.id] and t.op not in NOT_COUNTED]

    # ---- one kernel an op ----
    def forward(self, t, count, eager):
        operands, result = self.operands(t), self.size(t.id)
        if t.op in CLASS_LOSSES and eager:
            logits = self.size(t.inputs[0])
            if t.op == "cross_entropy":
                count.add(1, logits, self.size(t.inputs[0], 4))
            count.add(1, self.size(t.inputs[1]), result)
        elif t.op == "batch_norm" and self.view.training:
            count.add(1 if eager else 2, *operands, self.size(t.inputs[0]), result)
        elif t.op == "dropout" and eager:
            count.add(1, *operands, result, self.size(t.id, 1))
        else:
            count.add(1, *operands, result)

    def wanted(self, t):
        return [k for k in range(len(t.inputs)) if self.view.passes(t, k)] if self.view.behind[t.id] else []

    def backward(self, t, count, eager):
        wanted, op = self.wanted(t), table.ops()[t.op]
        if not wanted:
            return
        result, operand = self.size(t.id), [None if number is None else self.size(number)
                                            for number in t.inputs]
        if op.arity and not eager:
            reads = [result] + [operand[k] for k in range(op.arity)
                                if any(table.mentions(op.derivatives[j], op.operands[k]) for j in wanted)]
            writes = [operand[k] for k in wanted if not (t.op == "add" and operand[k] == result)]
            if writes:
                count.add(1, *reads, *writes)
        elif op.arity:
            for k in wanted:
                text = op.derivatives[k]
                reads = [operand[j] for j in range(op.arity) if table.mentions(text, op.operands[j])]
                reads += [result] * (1 + table.mentions(text, "y"))
                if text != "g":
                    count.add(1, *reads, result)
                if operand[k] != result:
                    count.add(1, result, operand[k])
        elif t.op == "dropout":
            count.add(1, result, operand[0], *([self.size(t.id, 1)] if eager else []))
        elif t.op == "batch_norm":
            count.add(1 if eager else 2, result, result, operand[0], operand[0],
                      *[operand[k] for k in wanted])
        elif t.op in ROW_NORMS:
            if 0 in wanted:
                count.add(1, result, operand[0], operand[0])
            if wanted != [0]:
                count.add(1, result, operand[0], *[operand[k] for k in wanted if k])
        elif t.op in ("softmax", "log_softmax"):
            count.add(1, result, result, operand[0])
        elif t.op == "sum":
            if t.attrs["mean"] or not eager:
                count.add(1, result, operand[0])
        elif t.op == "max":
            count.add(1, result, result, operand[0], operand[0])
        elif t.op in CLASS_LOSSES and eager:
            count.add(1, operand[1], self.size(t.inputs[0], 4))
            if t.op == "cross_entropy":
                count.add(1, self.size(t.inputs[0], 4), self.size(t.inputs[0], 4), operand[0])
        elif t.op in CLASS_LOSSES:
            count.add(1, operand[0], operand[1], operand[0])

    def contributions(self, grouped):
        """For each tensor, how many kernels add to its gradient."""
        found = {}
        owner = ({number: k for k, (_, nodes, _) in enumerate(self.programs) for number in nodes} if grouped
                 else {})
        for t in self.tensors:
            if t.kind != "value" or not self.view.needed[t.id] or self.view.alias[t.id]:
                continue
            for k in self.wanted(t):
                root = self.view.root[t.inputs[k]]
                if t.id in owner and owner.get(root) == owner[t.id]:
                    continue
                found.setdefault(root,
                                 []).append(("kernel", owner[t.id]) if t.id in owner else ("node", t.id, k))
        return {root: len(dict.fromkeys(makers)) for root, makers in found.items()}

    # ---- all of it ----
    def before(self):
        forward, backward = Count(), Count()
        for t in self.nodes():
            self.forward(t, forward, True)
            self.backward(t, backward, True)
        self.bias_gradients(backward, ("linear",) + partition.CONVOLUTIONS)
        for root, times in self.contributions(False).items():
            for _ in range(times - 1):
                backward.add(1, *[self.size(root)] * 3)
        return forward, backward

    def after(self):
        forward, backward = Count(), Count()
        for kernel, _, _ in self.programs:
            for program, count in (((kernel.forward, forward),
                                    (kernel.backward, backward)) if self.view.training else (
                                        (kernel.evaluation, forward),)):
                if program:
                    count.add(launches_of(program), program.bytes_per_batch)
        for t in self.nodes():
            if t.id in self.claimed:
                continue
            if self.view.chained[t.id]:
                self.merged(t, forward, backward)
            else:
                self.forward(t, forward, False)
                self.backward(t, backward, False)
        self.bias_gradients(backward, partition.CONVOLUTIONS)
        for root, times in self.contributions(True).items():
            backward.add(0, *[self.size(root)] * (times - 1))
        return forward, backward

    def bias_gradients(self, count, ops):
        for t in self.tensors:
            if t.op in ops and self.view.needed[t.id] and 2 in self.wanted(t):
                count.add(1, self.size(t.id), self.size(t.inputs[2]))

    def merged(self, t, forward, backward):
        """The cost of a node that a layer merges."""
        if t.op == "add":
            forward.add(0, self.size(t.id))
            return
        if t.op == "batch_norm":
            forward.add(0, *self.operands(t)[1:])
            return
        if not self.view.training:
            return
        readers = [self.tensors[number] for number in self.view.readers[t.id]]
        into_linear = len(readers) == 1 and readers[0].op == "linear" and self.view.uses[t.id] == 1
        if t.op == "gelu_tanh":
            forward.add(0, self.size(t.id))
        if not into_linear:
            self.backward(t, backward, False)
        elif self.wanted(t) and t.op == "gelu_tanh":
            backward.add(0, self.size(t.id))


def launches_of(program):
    """Launches on a GPU. A launch with wide sums is followed by a small one for each of their places."""
    joined = len(program.launches) == 2 and schedule.leads(*program.launches)
    return sum(1 if schedule.finishes(launch) else 1 + len({store.operand.place for store in launch.finals})
               for launch in program.launches[joined:])


def amount(number):
    for unit in ("B", "KB", "MB", "GB"):
        if number < 10000 or unit == "GB":
            return ("%d %s" if isinstance(number, int) or unit == "B" else "%.1f %s") % (number, unit)
        number = number / 1000


def moved(fixed, per_batch):
    parts = [amount(per_batch) + " a sample"] if per_batch else []
    return " + ".join(parts + ([amount(fixed)] if fixed or not per_batch else []))


def formula_lines(kernel, kind=""):
    return textwrap.wrap("%s  %s%s" % (kernel.name, kernel.formula, kind), 130, subsequent_indent="    ")


def kernel_lines(kernel, where):
    kind = (", of the loss" if kernel.loss else "" if kernel.layout == "any" else
            ", channels %s" % kernel.layout)
    yield from formula_lines(kernel, kind)
    yield "    nodes: %s" % "; ".join(where)
    for name, program in (("evaluation", kernel.evaluation), ("forward", kernel.forward),
                          ("backward", kernel.backward)):
        if program:
            parts = []
            for launch in program.launches:
                parts.append("rows of %d" % launch.domain.inner if launch.family == "row" else "map")
                parts += (["%d sum%s" % (len(launch.sums), "s" if len(launch.sums) > 1 else "")]
                          if launch.finals else [])
            yield "    %-10s  %s: %s" % (name, ", ".join(parts), moved(*program.bytes_per_batch))


def network_lines(model, kernels):
    if kernels.network is None:
        yield "evaluation is not one kernel: " + partition.network_fault(model)
        return
    kernel, program = kernels.network[0], kernels.network[0].evaluation
    yield from formula_lines(kernel)
    yield "    evaluation  %s, %d multiplications a sample: %s" % (
        "of images, for GPUs alone" if program.on_gpus_alone() else "on a CPU in place of all others",
        program.network.products(), moved(*program.bytes_per_batch))
    yield from tile_lines(tiling.tile_plan(program.network))


def tile_lines(plan):
    """Lines on how GPUs run a network, and the estimated cost."""
    if tiling.refusal(plan):
        yield "    evaluation  not on a GPU: " + tiling.refusal(plan)
        return
    yield "    evaluation  on a GPU in one launch; by arithmetic, not measured:"
    for name, card in tiling.CARDS.items():
        for batch in tiling.BATCHES:
            form = tiling.form_on(plan, batch, card)
            yield "        %-5s batch %5d: %s" % (
                name, batch, "step by step" if form is None else
                "%4.1f us, tiles of %d sample%s, %s of shared memory, weights %s, %s" % (
                    1e6 * tiling.seconds(plan, form, batch, card), form.samples, "s" * (form.samples > 1),
                    amount(form.bytes), "whole" if form.whole else "in pieces", cores(form)))


def step_lines(model, kernels):
    if model.loss is None:
        return
    if kernels.step is None:
        yield "a training step is not one kernel: " + partition.step_fault(model)
        return
    kernel, plan = kernels.step[0], kernels.step[0].forward.step
    yield from formula_lines(kernel)
    tables = ", %d more for gradients of tables" % training.TABLE_LAUNCHES if plan.tables() else ""
    yield ("    training    on a GPU forward and back in one launch%s, the update in another, %d "
           "multiplications a sample: %s" % (
               tables, plan.multiplications(), moved(*kernel.forward.bytes_per_batch)))
    yield "    without the update, by arithmetic, not measured:"
    for name, card in tiling.CARDS.items():
        for batch in tiling.BATCHES:
            yield "        %-5s batch %5d: %s" % (name, batch, step_line(plan, batch, card))


def step_line(plan, batch, card):
    """The line on how one card runs a step."""
    best = training.quickest(plan, training.forms(plan), batch, card)
    if best is None:
        return "step by step, the card has no room or no instructions for it"
    time = "%4.1f us" % (1e6 * training.seconds(plan, best, batch, card))
    if training.form_for(plan, batch, card) is None:
        return "step by step, %4.1f us, where one launch should take %s" % (
            1e6 * training.seconds_apart(plan, best.factors, batch, card), time.strip())
    gathered, again = training.ending(plan, training.blocks_of(best, batch, card.multiprocessors),
                                      card.multiprocessors)
    return "%s, tiles of %d samples, %s of shared memory, weights %s, %s%s" % (
        time, best.samples, amount(best.bytes), "whole" if best.whole else "in pieces", cores(best),
        ", a second launch for their sums" * (again < gathered))


def cores(form):
    return "no tensor cores" if form.factors == "f32" else "tensor cores in " + form.factors.upper()


def table_line(name, before, after):
    return "%-20s %4d -> %-4d %14s -> %-14s %.2f" % (
        name, before.launches, after.launches, amount(before.bytes()),
        amount(after.bytes()), after.bytes() / max(before.bytes(), 1))


def ratio(model, kernels):
    """The bytes of a training step's elementwise part after fusion, divided by those before."""
    counter = Counter(partition.View(model, True), kernels.kernels, kernels.training)
    return sum(count.bytes() for count in counter.after()) / max(
        sum(count.bytes() for count in counter.before()), 1)


def left_apart(model):
    """Lines on nodes that vary in sizes other than the batch and are not one kernel, with the reason."""
    lines = []
    for training in (False, True) if model.loss is not None else (False,):
        for members, fault in partition.Partition(partition.View(model, training)).faults.items():
            nodes = [model.tensors[number] for number in members]
            line = "    %s: %s" % (" ".join(map(called, nodes)), fault)
            if fault and any(any_varies(t.shape) for t in nodes) and line not in lines:
                lines.append(line)
    return ["not one kernel"] + lines + [""] if lines else []


def report(model, kernels):
    lines, where = ["%s (%s)" % (model.name or "model", model.precision), ""], {}
    for instances in (kernels.training, kernels.evaluation):
        for instance in instances:
            nodes = [model.tensors[number]
                     for number in instance.tensors[:len(kernels.kernels[instance.kernel].nodes)]]
            text = " ".join(called(t) for t in nodes)
            if text not in where.setdefault(instance.kernel, []):
                where[instance.kernel].append(text)
    lines += list(network_lines(model, kernels)) + [""]
    lines += list(step_lines(model, kernels)) + [""] * (model.loss is not None)
    for number, kernel in enumerate(kernels.kernels):
        lines += list(kernel_lines(kernel, where[number])) + [""]
    lines += left_apart(model) if model.sizes else []
    lines.append("%-20s %12s %21s" % ("batch %d" % partition.SAMPLE, "launches", "bytes"))
    counter = Counter(partition.View(model, False), kernels.kernels, kernels.evaluation)
    lines.append(table_line("evaluation", counter.before()[0], counter.after()[0]))
    if model.loss is not None:
        counter = Counter(partition.View(model, True), kernels.kernels, kernels.training)
        before, after = counter.before(), counter.after()
        lines += [table_line("training, forward", before[0], after[0]),
                  table_line("training, backward", before[1], after[1])]
        lines.append("elementwise part of a training step: %.2f of the bytes" % ratio(model, kernels))
    text = "\n".join(lines + ["", HOW]) + "\n"
    return text.encode("ascii", "backslashreplace").decode("ascii")
