"""Decides which nodes of a model become one kernel, for evaluation and for training separately.

Candidates are elementwise ops, ops on rows (softmax, norms, sums over the last axes), batch_norm in training,
and the loss. Pairs that share memory as large as themselves are merged, those with the largest savings first.
The result must be one kernel (see lower.py), and no two kernels may wait for each other. What the runtime
merges into layers by itself stays with the runtime (gpunn.h, >>plan/steps)."""
from dataclasses import replace

from . import inference, lower, network, table, tiling, training
from .graph import measure
from .lower import CLASS_LOSSES, ROW_OPS, Group, Infeasible, called, identifier
from .program import Instance, Kernel, KernelSet
from .sizes import any_varies, content

CONVOLUTIONS, PRODUCTS, ROW_NORMS = (table.having("CONVOLUTION"), table.having("PRODUCT"),
                                     table.having("ROW_NORM"))
F32_RESULTS, LOCAL_OPS = table.having("KEEPS_F32"), table.having("LOCAL")
SAMPLE = 32  # the batch at which bytes are compared


class FuseError(Exception):
    """An override in the spec's "fuse" that cannot be followed."""


# ---- what gpunn.h's >>plan/steps and >>plan/backward say of a model ----------------------------------------
class View:
    """A model as one plan of gpunn.h sees it: the plan of its outputs, or of a training step."""

    def __init__(self, model, training):
        self.model, self.tensors, self.training = model, model.tensors, training
        count = len(self.tensors)
        goals = [model.loss] if training else [number for number in model.outputs if number != model.loss]
        goals += [t.id for t in self.tensors if t.op == "assign" and (t.attrs["in_training"] or not training)]
        self.visible = set(model.outputs) | {model.loss}
        self.of_outputs = self._needed(goals)
        self.of_loss = self._needed([] if model.loss is None or training else [model.loss])
        self.needed = [a or b for a, b in zip(self.of_outputs, self.of_loss)]
        self.readers = [[] for _ in range(count)]
        self.uses = [0] * count
        for t in self.tensors:
            for number in t.inputs if self.needed[t.id] else ():
                if number is not None:
                    self.uses[number] += 1
                    if t.id not in self.readers[number]:
                        self.readers[number].append(t.id)
        self._mark_storage()
        self.alias = [self._is_alias(t) for t in self.tensors]
        self.root = list(range(count))
        for t in self.tensors:
            if self.alias[t.id]:
                self.root[t.id] = self.root[t.inputs[0]]
        self.aliases = {}  # for each root: the nodes that name the same memory
        for t in self.tensors:
            if self.alias[t.id] and self.needed[t.id]:
                self.aliases.setdefault(self.root[t.id], []).append(t.id)
        self._mark_chains()
        self._mark_gradients()

    def _needed(self, goals):
        needed = [False] * len(self.tensors)
        for number in goals:
            needed[number] = True
        for t in reversed(self.tensors):
            for number in t.inputs if needed[t.id] else ():
                if number is not None:
                    needed[number] = True
        return needed

    # ---- storage: gpunn__storage_of, gpunn__count_readers, gpunn__is_last ----
    def _mark_storage(self):
        half = self.half = self.model.precision if self.model.precision in ("bf16", "f16") else None
        turns = self.model.precision != "f32" and any(t.op in CONVOLUTIONS and len(t.shape) == 4 and
                                                      self.needed[t.id] for t in self.tensors)
        self.storage, self.last = [], [False] * len(self.tensors)
        for t in self.tensors:
            self.storage.append(self._storage_of(t, half))
            self.last[t.id] = turns and self._is_last(t)
            if half and t.op in ROW_NORMS and self._is_factor(t.id):
                self.storage[t.id] = half

    def _count_readers(self, number):
        """How many operands of products a value is, under any of its names, and how often it is read
        otherwise or is an output."""
        products, others = 0, int(number in self.visible)
        for reader in (self.tensors[one] for one in self.readers[number]):
            for i in (i for i, one in enumerate(reader.inputs) if one == number):
                if self._is_alias(reader):
                    more = self._count_readers(reader.id)
                    products, others = products + more[0], others + more[1]
                elif reader.op in PRODUCTS and i < 3:
                    products += 1
                else:
                    others += 1
        return products, others

    def _is_factor(self, number):
        products, others = self._count_readers(number)
        return products > 0 and others == 0

    def _storage_of(self, t, half):
        if half is None or t.dtype != "f32" or t.kind != "value":
            return t.dtype
        if t.op in PRODUCTS:
            return half
        if t.op in F32_RESULTS or (self.training and t.id == self.model.loss):
            return "f32"
        result = "f32"
        for number in t.inputs:
            source = self.tensors[number] if number is not None else None
            if source is None or source.kind not in ("value", "input"):
                continue
            if self.storage[number] == "f32":
                return "f32"
            if source.dtype == "f32":
                result = self.storage[number]
        return result

    def _is_last(self, t):
        """Whether a value is stored channels-last: convolutions prefer that, so their results are, and what
        continues from these."""
        if t.kind != "value" or len(t.shape) != 4 or t.dtype != "f32":
            return False
        if t.op in CONVOLUTIONS:
            return True
        if t.op in LOCAL_OPS or (t.op == "dropout" and self._is_alias(t)):
            return self.last[t.inputs[0]]
        if not table.ops()[t.op].arity:
            return False
        last = False
        for number in t.inputs:
            source = self.tensors[number]
            whole = source.shape == t.shape and self.storage[number] == self.storage[t.id]
            if not whole and measure(source.shape) != (1, 0):
                return False
            last = last or (whole and self.last[number])
        return last

    def has_layouts(self, number):
        """Images for which the order of channels in memory matters."""
        shape = self.tensors[number].shape
        return (len(shape) == 4 and all(dim > 0 for dim in shape[1:]) and shape[1] > 1 and
                shape[2] * shape[3] > 1)

    def _is_alias(self, t):
        if t.kind != "value":
            return False
        if t.op == "reshape":
            return not (self.last[t.inputs[0]] and self.has_layouts(t.inputs[0]))
        return t.op == "dropout" and (not self.training or t.attrs["p"] == 0)

    # ---- chains: gpunn__next_merge ----
    def _mark_chains(self):
        self.chained = [False] * len(self.tensors)
        follower, head = {}, {}
        for t in self.tensors:
            if not self.needed[t.id] or t.op not in CONVOLUTIONS + ("linear",):
                continue
            end, stage = t, 0
            while True:
                after, stage = self._next_merge(t, end, stage, follower, head)
                if after is None:
                    break
                follower[end.id], end = after.id, after
                self.chained[end.id] = True
            head[end.id] = t.id

    def _next_merge(self, first, end, stage, follower, head):
        if self.uses[end.id] != 1 or end.id in self.visible:
            return None, stage
        t = self.tensors[self.readers[end.id][0]]
        if t.id in follower or head.get(t.id, t.id) != t.id or self.alias[t.id]:
            return None, stage
        then = 0
        if t.op in ("batch_norm", "instance_norm") and t.inputs[0] == end.id and not self.training and (
                len(t.shape) == 2 or first.op != "linear"):
            then = 1
        elif (t.op == "add" and t.inputs[0] != t.inputs[1] and
              self.tensors[t.inputs[0]].shape == self.tensors[t.inputs[1]].shape):
            then = 2
        elif t.op == "relu" or (t.op == "gelu_tanh" and first.op == "linear"):
            then = 3
        if then <= stage or self.last[t.id] != self.last[end.id]:
            return None, stage
        return t, then

    # ---- gradients: gpunn__mark_gradients ----
    def passes(self, t, k):
        """Whether t passes a gradient to its operand k."""
        return (t.inputs[k] is not None and self.wants[t.inputs[k]] and
                bool(table.ops()[t.op].gradients >> k & 1))

    def _mark_gradients(self):
        """wants: a gradient is needed. may_want: it would be needed if the program asks for inputs'
        gradients."""
        count = len(self.tensors)
        self.wants, self.may_want, self.behind = [False] * count, [False] * count, [False] * count
        if not self.training:
            return
        for t in self.tensors:
            sources = [number for k, number in enumerate(t.inputs) if t.kind == "value" and
                       number is not None and table.ops()[t.op].gradients >> k & 1]
            trained, asked = t.kind == "parameter" and t.trainable, t.kind == "input" and t.dtype == "f32"
            self.wants[t.id] = self.needed[t.id] and (trained or
                                                      any(self.wants[number] for number in sources))
            self.may_want[t.id] = self.needed[t.id] and (trained or asked or
                                                         any(self.may_want[number] for number in sources))
        self.behind[self.model.loss] = True
        for t in reversed(self.tensors):
            if not self.behind[t.id] or t.kind != "value":
                continue
            op = table.ops()[t.op]
            for k, number in enumerate(t.inputs):
                if number is not None and op.gradients >> k & 1:
                    self.behind[number] = True

    # ---- what can be in a kernel ----
    def kind(self, t):
        """map, row, norm (batch_norm in training), loss, or None: left to the runtime."""
        if (t.kind != "value" or not self.needed[t.id] or self.alias[t.id] or self.chained[t.id] or
            t.dtype != "f32"):
            return None
        if t.id == self.model.loss and (t.op == "sum" or
                                        (t.op in CLASS_LOSSES and t.attrs["reduction"] != "none")):
            return "loss"
        if all(dim == 1 for dim in t.shape) or any(self.tensors[number].op in ("state", "assign")
                                                   for number in self.sources(t)):
            return None  # a state must be read before it is assigned
        if t.op == "batch_norm":
            return "norm" if self.training else "map"
        if t.op in ROW_OPS:
            return "row" if lower.row_shape(t, self.tensors[t.inputs[0]]) else None
        return "map" if table.ops()[t.op].arity or t.op in ("dropout", "cast") else None

    def sources(self, t):
        """The tensors that t reads, with aliases resolved."""
        return list(dict.fromkeys(self.root[number] for number in t.inputs if number is not None))

    def group(self, members, layout="first"):
        """The nodes, with the aliases between them, as a Group for lower.py."""
        inside = set(members).union(*(self.aliases.get(member, ()) for member in members))
        for number in sorted(inside, reverse=True):
            if self.alias[number] and not any(reader in inside for reader in self.readers[number]):
                inside.remove(number)
        nodes = tuple(self.tensors[number] for number in sorted(inside))
        externals = tuple(self.tensors[number] for number in dict.fromkeys(
            number for t in nodes for number in t.inputs if number is not None and number not in inside))
        outputs, graded = set(), set()
        for t in nodes:
            root = self.root[t.id]
            outside = [self.tensors[reader] for reader in self.readers[t.id] if reader not in inside]
            if outside or t.id in self.visible:
                outputs.add(root)
            if any(self.behind[reader.id] and self.wants[reader.id] and self.passes(reader, k)
                   for reader in outside for k, number in enumerate(reader.inputs) if number == t.id):
                graded.add(root)
        loss = self.model.loss in inside
        if loss and graded:
            raise Infeasible("gradients of a loss kernel's values come from outside")
        wanted = {t.id for t in externals if self.wants[t.id] and any(
            self.behind[node.id] and self.passes(node, k) for node in nodes
            for k, number in enumerate(node.inputs) if number == t.id)}
        if len({self.root[number] for number in wanted}) < len(wanted):
            raise Infeasible("it reads one tensor under two names")
        roots = [self.root[t.id] for t in externals]
        spare = {t.id for t in externals
                 if self.may_want[t.id] and not self.wants[t.id] and roots.count(self.root[t.id]) == 1}
        storage = {t.id: self.storage[self.root[t.id]] for t in nodes + externals}
        return Group(nodes, externals, frozenset(t.id for t in nodes if self.alias[t.id]), frozenset(outputs),
                     frozenset(graded),
                     frozenset(wanted), frozenset(spare), storage, self.training, loss, self.half, layout)

    def layouts(self, group):
        """The layouts for which the group needs kernels: any, first, last."""
        images = [t.id for t in group.nodes if self.has_layouts(t.id)]
        shapes = [node.shape for node in group.nodes]
        narrow = [t for t in group.externals if measure(t.shape) != (1, 0) and t.shape not in shapes]
        if self.model.precision == "f32" or not images or not narrow:
            return ("any",)
        return ("first", "last") if self.last[images[0]] else ("first",)

    def check_layout(self, members):
        if len({self.last[number] for number in members if self.has_layouts(number)}) > 1:
            raise Infeasible("some images have their channels last, some first")


# ---- merging -----------------------------------------------------------------------------------------------
def size_of(view, number):
    """The bytes of a tensor in a small batch, for comparisons."""
    factor, power = measure(view.tensors[number].shape)
    return factor * SAMPLE ** power * lower.BYTES[view.storage[number]]


class Partition:
    def __init__(self, view):
        self.view = view
        self.kinds = {t.id: view.kind(t) for t in view.tensors}
        self.kinds = {number: kind for number, kind in self.kinds.items() if kind}
        # -> one of its members
        self.unit = {t.id: t.id for t in view.tensors if view.needed[t.id] and not view.alias[t.id]}
        self.members = {number: [number] for number in self.unit}
        self.sources = {number: view.sources(view.tensors[number]) for number in self.unit}
        self.readers = {number: [] for number in self.unit}
        for number, sources in self.sources.items():
            for source in sources:
                self.readers[source].append(number)
        # of a unit: after those of the units that it reads
        self.place = {number: number for number in self.unit}
        self.never = [tuple(view.root[number] for number in pair)
                      for pair in view.model.fuse.get("never", ())]
        self.faults = {}  # by members: why they are no kernel; None: they are one
        self._follow(view.model.fuse.get("always", ()))
        for _, _, _, one, other in sorted(self._pairs()):
            self._merge(one, other)

    def _between(self, unit, links, first, last):
        """The units placed between two positions that are reachable from one unit by links (readers or
        sources)."""
        found, waiting = set(), [unit]
        while waiting:
            for member in self.members[waiting.pop()]:
                for number in links[member]:
                    other = self.unit[number]
                    if other not in found and first < self.place[other] < last:
                        found.add(other)
                        waiting.append(other)
        return found

    def _behind(self, one, other):
        """What waits for the first of two units and is placed before the second."""
        former, latter = sorted((one, other), key=self.place.get)
        return self._between(former, self.readers, self.place[former], self.place[latter])

    def _waits(self, one, other):
        """Whether a path between the two leads through a third unit."""
        latter = max(one, other, key=self.place.get)
        return any(self.unit[number] == latter for unit in self._behind(one, other)
                   for member in self.members[unit] for number in self.readers[member])

    def _join(self, one, other):
        """Makes two units one. What the second waits for is placed before it, and what waits for the first
        after it."""
        former, latter = sorted((one, other), key=self.place.get)
        behind = self._behind(one, other)
        before = self._between(latter, self.sources, self.place[former], self.place[latter])
        order = sorted(before, key=self.place.get) + [one] + sorted(behind, key=self.place.get)
        places = sorted([self.place[unit]
                         for unit in before | behind] + [self.place.pop(former), self.place.pop(latter)])
        self.place.update(zip(order, places))
        self.members[one] = sorted(self.members[one] + self.members.pop(other))
        self.unit.update((number, one) for number in self.members[one])

    def _pairs(self):
        """(rank, -bytes saved, distance, ids) of each pair that might be merged."""
        view, pairs, readers = self.view, [], {}
        for number in self.kinds:
            for source in self.sources[number]:
                readers.setdefault(source, []).append(number)
        for source, numbers in readers.items():
            size = size_of(view, source)
            if source in self.kinds:
                pairs += [(source, number, size * (1 + (len(numbers) == 1))) for number in numbers]
            pairs += [(one, other, size) for k, one in enumerate(numbers) for other in numbers[:k]
                      if self._whole(source, one) and self._whole(source, other)]
        return [(all(self.kinds[number] == "map" for number in (one, other)), -size, abs(one - other), one,
                 other) for one, other, size in pairs]

    def _whole(self, source, number):
        return measure(self.view.tensors[source].shape) == measure(self.view.tensors[number].shape) != (1, 0)

    def _fault(self, one, other):
        """The reason why two units cannot be one, or None."""
        view, members = self.view, sorted(self.members[one] + self.members[other])
        if any(a in members and b in members for a, b in self.never):
            return "'never' parts them"
        if len({(view.of_outputs[number], view.of_loss[number]) for number in members}) > 1:
            return "the outputs need one, the loss both"
        if self._waits(one, other):
            return "the nodes between them cannot join it"
        norms = [number for number in members if self.kinds[number] == "norm" or
                 view.tensors[number].op in ROW_NORMS]
        if len(norms) > 1:
            return "two norms"
        key = tuple(members)
        if key not in self.faults:
            self.faults[key] = self._lowering_fault(members)
        return self.faults[key]

    def _lowering_fault(self, members):
        try:
            self.view.check_layout(members)
            lower.lower(self.view.group(members))
        except Infeasible as fault:
            return str(fault)
        return None

    def _merge(self, a, b):
        one, other = self.unit[a], self.unit[b]
        if one == other:
            return None
        fault = self._fault(one, other)
        if fault is None:
            self._join(one, other)
        return fault

    def _follow(self, pairs):
        """Merges the pairs that the spec demands. Those with a node that this view does not use are left in
        `absent`."""
        self.absent = {}
        for pair in pairs:
            names = "fuse.always: '%s' and '%s' cannot be one kernel: " % tuple(
                called(self.view.tensors[one]) for one in pair)
            strange = [number for number in pair if self.view.root[number] not in self.kinds]
            if strange:
                self.absent[pair] = "%sa kernel cannot hold '%s'" % (
                    names, called(self.view.tensors[strange[0]]))
                continue
            fault = self._merge(*(self.view.root[number] for number in pair))
            if fault:
                raise FuseError(names + fault)

    def groups(self):
        """The members of each kernel that is worth having, in the order of their last nodes."""
        found = [members for members in self.members.values() if members[0] in self.kinds and
                 self._worth(members)]
        return sorted(found, key=lambda members: members[-1])

    def _worth(self, members):
        if len(members) > 1:
            return True
        op = self.view.tensors[members[0]].op
        better = op in ROW_NORMS or (op in CLASS_LOSSES and self.kinds[members[0]] == "loss" and
                                     self.view.training)
        return better and self._lowering_fault(members) is None


# ---- kernels -----------------------------------------------------------------------------------------------
MOST_FORMULA = 400  # characters
INFIX = {"add": (1, "%s + %s"), "sub": (1, "%s - %s"), "mul": (2, "%s * %s"), "div": (2, "%s / %s"),
         "add_scalar": (1, "%s + %s"), "mul_scalar": (2, "%s * %s"), "neg": (3, "-%s")}


def formula(group):
    """"y = gelu(x * s + b) + r", one equation per output."""
    inside = {t.id: t for t in group.nodes}
    names = {t.id: identifier(called(t)) for t in group.externals}
    uses = {}
    for t in group.nodes:
        for number in t.inputs:
            uses[number] = uses.get(number, 0) + 1
    lines = []

    def text(number):
        """(priority, text)"""
        if number is None:
            return 9, "-"
        if number in names:
            return 9, names[number]
        t = inside[number]
        if number in group.aliases:
            result = text(t.inputs[0])
        else:
            parts = [text(operand) for operand in t.inputs if operand is not None]
            values = (["%g" % value for value in t.attrs.values() if isinstance(value, float)]
                      if table.ops()[t.op].arity else [])
            if t.op == "dropout":
                values = ["p=%g" % t.attrs["p"]]
            if t.op in INFIX:
                priority, form = INFIX[t.op]
                arguments = [word if rank > priority or (k == 0 and rank == priority) else "(%s)" % word
                             for k, (rank, word) in enumerate(parts + [(9, value) for value in values])]
                result = priority, form % tuple(arguments)
            else:
                name = "mean" if t.op == "sum" and t.attrs["mean"] else t.op
                result = 9, "%s(%s)" % (name, ", ".join([word for _, word in parts] + values))
        if number in group.outputs or uses.get(number, 0) > 1:
            names[number] = identifier(called(t))
            lines.append("%s = %s" % (names[number], result[1]))
            return 9, names[number]
        return result
    for t in group.nodes:
        if t.id in group.outputs:
            text(t.id)
    result = "; ".join(lines)
    return result if len(result) <= MOST_FORMULA else result[:MOST_FORMULA - 4] + " ..."


def pattern(group):
    numbers = {t.id: -1 - k for k, t in enumerate(group.nodes)}
    numbers.update((t.id, k) for k, t in enumerate(group.externals))
    nodes = tuple((t.text(), tuple(None if number is None else numbers[number] for number in t.inputs))
                  for t in group.nodes)
    return nodes, tuple(t.type_text() for t in group.externals)


def measured(group):
    """Kernel.measured of a group."""
    tensors = group.nodes + group.externals
    numbers = list(range(-1, -1 - len(group.nodes), -1)) + list(range(len(group.externals)))
    return next(((number, content(t.shape)[0]) for number, t in zip(numbers, tensors) if any_varies(t.shape)),
                (0, 0))


def signature(group):
    """All that determines the programs, besides the pattern."""
    numbers = [t.id for t in group.nodes + group.externals]

    def marks(some):
        return tuple(number in some for number in numbers)
    return (marks(group.aliases), marks(group.outputs), marks(group.graded), marks(group.wanted),
            marks(group.spare), tuple(group.storage[number] for number in numbers))


class Kernels:
    """Distinct groups. Groups of evaluation and of training with the same pattern share one kernel."""

    def __init__(self, schedule):
        self.schedule, self.found, self.list = schedule, {}, []

    def add(self, group, layout):
        """Adds a kernel and returns its number."""
        key, own = (pattern(group), layout, group.loss), signature(group)
        for number in self.found.setdefault(key, []):
            parts = self.list[number][1]
            if parts.get(group.training, own) == own:
                break
        else:
            number, parts = len(self.list), {}
            self.found[key].append(number)
            self.list.append([self._empty(key, group, number), parts])
        if group.training not in parts:
            parts[group.training] = own
            lowered, kernel = lower.lower(group), self.list[number][0]
            if group.training:
                kernel = replace(kernel, forward=lowered.forward, backward=lowered.backward,
                                 kept=lowered.kept)
            else:
                kernel = replace(kernel, evaluation=lowered.evaluation)
            self.list[number][0] = replace(
                kernel, random_streams=max(kernel.random_streams, lowered.random_streams))
        return number

    def _empty(self, key, group, number):
        (nodes, externals), layout, loss = key
        name = "g%d" % number
        return Kernel(name, formula(group), nodes, externals, (), 0, layout, loss, None, None, None,
                      self.schedule.get(name, {}), measured(group))


def instances(division, kernels):
    view, result = division.view, []
    for members in division.groups():
        for layout in view.layouts(view.group(members)):
            group = view.group(members, "last" if layout == "last" else "first")
            result.append(Instance(kernels.add(group, layout),
                                   tuple(t.id for t in group.nodes + group.externals)))
    return tuple(result)


def network_program(view):
    """The Group and Program of an evaluation that is one kernel. Raises Refused."""
    group, program = network.program(view)
    fault = tiling.refusal(tiling.tile_plan(program.network)) if program.on_gpus_alone() else None
    if fault:
        raise inference.Refused(fault)
    return group, program


def network_kernel(view):
    """The Kernel of an evaluation's small network, and the ids of its tensors. None if there is none."""
    try:
        group, program = network_program(view)
    except inference.Refused:
        return None
    nodes, externals = pattern(group)
    kernel = Kernel(network.NAME, formula(group), nodes, externals, (), 0, "any", False, program, None, None,
                    precision=view.model.precision)
    return kernel, tuple(t.id for t in group.nodes + group.externals)


def step_kernel(view):
    """The same for a training step."""
    try:
        group, program = training.program(view)
    except inference.Refused:
        return None
    nodes, externals = pattern(group)
    kernel = Kernel(training.NAME, formula(group), nodes, externals, (), len(program.step.random_streams),
                    "any", True, None, program, None, precision=view.model.precision)
    return kernel, tuple(t.id for t in group.nodes + group.externals)


def step_fault(model):
    """The first reason why a training step of the model is not one kernel, or None."""
    try:
        training.program(View(model, True))
    except inference.Refused as fault:
        return str(fault).split("; ")[0]
    return None


def network_fault(model):
    """The reason why an evaluation of the model is not one kernel, or None."""
    try:
        network_program(View(model, False))
    except inference.Refused as fault:
        return str(fault)
    return None


def updates(model):
    """Kind, settings and half_dtype of a model's update. Empty if it needs whole parameters."""
    given = model.optimizer
    if given is None or table.optimizers()[given["type"]].whole:
        return ()
    half = model.precision if model.precision in ("bf16", "f16") else "f32"
    return (dict(table.spread(given), kind=given["type"], half_dtype=half),)


def partition(model, name=None, command=""):
    """The KernelSet of a model. Raises FuseError."""
    kernels = Kernels(model.fuse.get("schedule", {}))
    divisions = [Partition(View(model, trains))
                 for trains in (True, False) if not trains or model.loss is not None]
    for pair, fault in divisions[0].absent.items():
        if all(pair in division.absent for division in divisions):
            raise FuseError(fault)
    *steps, evaluation = [instances(division, kernels) for division in divisions]
    for group in kernels.schedule:
        if group not in [kernel.name for kernel, _ in kernels.list]:
            raise FuseError("schedule: there is no group '%s'; --report lists them" % group)
    return KernelSet(name or identifier(model.name or "model"), model.sha256(), command, model.math,
                     len(model.tensors), tuple(kernel for kernel, _ in kernels.list), evaluation,
                     steps[0] if steps else (), updates(model),
                     network_kernel(divisions[-1].view), step_kernel(divisions[0].view) if steps else None)
