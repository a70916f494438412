"""Lowers a group of nodes to its programs: the launches of its values, the launches of its gradients, and
what is stored between them.

A group has one domain, the elements of its widest nodes. Every node has one value per element, or one value
per row. What its nodes read from outside may be narrower (columns, channels, a scalar). Values are built as
expressions, node by node. Gradients are built by walking the same nodes backward. The gradient of something
narrower becomes a sum over the launch.

A backward program reads the cheapest set of forward values from which it can compute the rest again. These
are externals, stored nodes, statistics of rows (always stored), or a value that is stored only for this.

16-bit storage: a value that is stored is rounded, and the group's nodes use the rounded value."""
import keyword
import re
from dataclasses import dataclass, replace
from typing import Dict, FrozenSet, Optional, Tuple

from . import cut, grad, ir, schedule
from .graph import dim_text, measure, shape_text
from .program import SCALAR, WHOLE, Domain, Kept, Labels, Launch, Operand, Program, Store, Sum
from .sizes import any_varies, content, varies

MOST_POINTERS, MOST_STREAMS, MOST_NODES, MOST_REGISTERS, MOST_DEPTH = 12, 8, 200, 96, 2
MOST_RANDOM_STREAMS = 8
MOST_INNER = 1 << 20
BYTES = {"f32": 4, "bf16": 2, "f16": 2, "i64": 8, "i32": 4, "u8": 1, "bool": 1}

ROW_NORMS = ("layer_norm", "rms_norm", "group_norm")
CHANNEL_NORMS = ("batch_norm", "group_norm")  # their other operands have a value for each channel
CLASS_LOSSES = ("cross_entropy", "nll")
# These read whole rows of their first operand.
ROW_OPS = ("softmax", "log_softmax", "sum", "max") + ROW_NORMS + CLASS_LOSSES


class Infeasible(Exception):
    """Why some nodes cannot be one kernel."""


@dataclass(frozen=True)
class Group:
    nodes: tuple                   # tensors by rising id: the last one is computed last
    externals: tuple               # tensors, in the order of their first use
    aliases: FrozenSet[int]        # nodes that are their operand under another name
    outputs: FrozenSet[int]        # nodes that are read outside, also through aliases
    graded: FrozenSet[int]         # nodes whose gradient comes from outside
    wanted: FrozenSet[int]         # externals that need a gradient
    spare: FrozenSet[int]          # externals with optional gradients: inputs, and what is made of them alone
    storage: Dict[int, str]        # dtype in memory, by id
    training: bool
    loss: bool                     # whether the last node is the loss
    half: Optional[str]            # dtype of products' operands and results: bf16 or f16; None: f32
    layout: str                    # of images: first, last


@dataclass(frozen=True)
class Ref:
    """An operand of a Pass, before its program exists."""
    role: str
    index: int
    dtype: str
    place: Tuple[int, int]
    count: Tuple[int, int]
    stride: int = 1


@dataclass
class Pass:
    """A launch before its operands exist. stores, finals: [(Ref, node)]."""
    stores: list
    sums: list
    finals: list
    rows: bool = False  # over rows of the domain: one element each


@dataclass(frozen=True)
class Lowered:
    evaluation: Program
    forward: Program
    backward: Program
    kept: Tuple[Kept, ...]
    random_streams: int


# ---- shapes ------------------------------------------------------------------------------------------------
def elements(shape):
    """(fixed, per batch), one of them 0. A kernel's batch includes all varying sizes."""
    if any_varies(shape):
        return 0, content(shape)[0]
    factor, power = measure(shape)
    if power > 1:
        raise Infeasible("its elements grow with the square of the batch")
    return (0, factor) if power else (factor, 0)


def product(dims):
    factor, power = measure(dims)
    if power:
        raise Infeasible("%s varies, and is not among the outermost axes" %
                         next(dim_text(dim) for dim in dims if dim < 0))
    return factor


def check_varying(tensors):
    """A kernel has one batch, so the batch and other varying sizes must have the same product in all of its
    tensors."""
    if any(any_varies(t.shape) for t in tensors):
        products = {content(t.shape)[1]: t for t in tensors if elements(t.shape)[1]}
        if len(products) > 1:
            one, other = list(products.values())[:2]
            raise Infeasible("%s and %s vary in different ways" %
                             (shape_text(one.shape), shape_text(other.shape)))


def place_of(narrow, wide):
    """The place (div, mod) at which elements of shape `wide` read one of shape `narrow`, which broadcasts to
    it."""
    narrow = (1,) * (len(wide) - len(narrow)) + tuple(narrow)
    there = [axis for axis, dim in enumerate(narrow) if dim != 1]
    missing = [axis for axis, dim in enumerate(wide) if dim != narrow[axis]]
    if not there:
        return SCALAR if missing else WHOLE
    if not missing:
        return WHOLE
    if any(there[0] < axis < there[-1] for axis in missing):
        raise Infeasible("a broadcast operand's axes are not next to each other")
    div = product(wide[there[-1] + 1:])
    return div, product(wide[there[0]:there[-1] + 1]) if missing[0] < there[0] else 0


def row_shape(node, x):
    """The axes that a row op reduces together: the last axes of x, or of some of its channels. (): other
    axes."""
    if node.op == "group_norm" and any(dim < 0 and not varies(dim) for dim in x.shape[2:]):
        return ()  # the batch is within a row
    if node.op == "group_norm":
        return (x.shape[1] // node.attrs["num_groups"],) + tuple(x.shape[2:])
    rank = len(x.shape)
    if node.op in ROW_NORMS:
        first = rank - node.attrs["dims"]
    elif node.op in ("sum", "max"):
        dims = tuple(node.attrs["dims"])
        first = dims[0] if dims == tuple(range(dims[0], rank)) else rank
    else:
        axis = 1 if node.op in CLASS_LOSSES else node.attrs["dim"]
        first = axis if all(dim == 1 for dim in x.shape[axis + 1:]) else rank
    return tuple(x.shape[first:])


def row_length(node, x):
    shape = row_shape(node, x)
    if not shape:
        raise Infeasible("%s is not over the last axes" % node.op)
    return product(shape)


# ---- expressions -------------------------------------------------------------------------------------------
class Lowering:
    """The values and gradients of a group, as expressions over Refs."""

    def __init__(self, group, kept_values=frozenset()):
        self.group, self.graph = group, ir.Graph()
        # nodes that the forward pass stores for the backward pass, besides its outputs
        self.kept_values = kept_values
        self.inside = {node.id: node for node in group.nodes}
        self.outside = {t.id: t for t in group.externals}
        self.numbers = {node.id: -1 - k for k, node in enumerate(group.nodes)}
        self.numbers.update((t.id, k) for k, t in enumerate(group.externals))
        self.random_streams = [node.id for node in group.nodes if node.op == "dropout" and
                      node.id not in group.aliases]
        self.norm = None                      # a batch_norm of a training step
        for node in group.nodes:
            if node.op == "batch_norm" and group.training:
                if self.norm:
                    raise Infeasible("two batch_norm")
                if group.loss:
                    raise Infeasible("batch_norm and the loss, whose gradients come in different passes")
                self.norm = node
        if len(self.random_streams) > MOST_RANDOM_STREAMS:
            raise Infeasible("more than %d dropout" % MOST_RANDOM_STREAMS)
        self._find_domain()
        self.kept, self.labels = [], []
        self.values = {}
        for node in group.nodes:
            self._build(node)

    def tensor(self, number):
        return self.inside.get(number) or self.outside[number]

    def operand_tensor(self, node, k):
        return None if node.inputs[k] is None else self.tensor(node.inputs[k])

    def root(self, number):
        """The node that an alias of the group names."""
        while number in self.group.aliases and self.inside[number].inputs[0] in self.inside:
            number = self.inside[number].inputs[0]
        return number

    def _is_total(self, node):
        """Whether the loss is a sum over everything."""
        return self.group.loss and node is self.group.nodes[-1] and node.op == "sum"

    # ---- domain ----
    def _find_domain(self):
        self.inner, self.domain, self.places = 1, (0, 0), {}
        check_varying(self.group.nodes + self.group.externals)
        shapes = []
        for node in self.group.nodes:
            x = self.operand_tensor(node, 0)
            if node.op in ROW_OPS and not self._is_total(node):
                inner = row_length(node, x)
                if self.inner not in (1, inner):
                    raise Infeasible("rows of %d and of %d" % (self.inner, inner))
                if inner == 1 or inner > MOST_INNER:
                    raise Infeasible("rows of %d" % inner)
                self.inner = inner
                shapes.append(x.shape)
            else:
                shapes.append(x.shape if self._is_total(node) else node.shape)
        counts = [elements(shape) for shape in shapes]
        if len({count[0] > 0 for count in counts}) > 1:
            raise Infeasible("some of it grows with the batch, some not")
        self.domain = max(counts)
        for node in self.group.nodes:
            count, x = elements(node.shape), self.operand_tensor(node, 0)
            if self.group.loss and node is self.group.nodes[-1]:
                self.places[node.id] = SCALAR
            elif node.op in ROW_OPS and elements(x.shape) != self.domain:
                raise Infeasible("%s reads something else than the rows" % node.op)
            elif count == self.domain:
                self.places[node.id] = WHOLE
            elif self.inner > 1 and count == self.rows:
                self.places[node.id] = (self.inner, 0)
            else:
                raise Infeasible("nodes of different sizes")
            if (node.op in ("batch_norm", "dropout") and self.places[node.id] != WHOLE and
                node.id not in self.group.aliases):
                raise Infeasible("%s of something narrower" % node.op)

    @property
    def rows(self):
        return self.domain[0] // self.inner, self.domain[1] // self.inner

    def place(self, node, k):
        """The place of operand k in the domain."""
        t, shape = self.operand_tensor(node, k), tuple(node.shape)
        if node.id in self.group.aliases or self._is_total(node):
            count = elements(t.shape)
            place = (WHOLE if count == self.domain else (self.inner, 0) if self.inner > 1 and
                     count == self.rows else None)
            if place is None:
                raise Infeasible("a reshape of something narrower")
            return place
        if node.op in ROW_OPS:
            shape = tuple(self.operand_tensor(node, 0).shape)
            if k == 0:
                return WHOLE
            if node.op in CLASS_LOSSES:
                return (self.inner, 0) if k == 1 else (1, self.inner)
        if node.op in CHANNEL_NORMS and k > 0:
            last = self.group.layout == "last" and len(shape) == 4
            return (1 if last else product(shape[2:]), shape[1]) if shape[1] > 1 else SCALAR
        place = place_of(t.shape, shape)
        if self.group.layout == "last" and place not in (WHOLE, SCALAR):
            raise Infeasible("a broadcast operand in channels last images")
        if self.places[node.id] == WHOLE or place == SCALAR:
            return place
        return place[0] * self.inner, place[1]

    # ---- values ----
    def load(self, role, t, place, stride=1):
        return self.graph.load(Ref(role, self.numbers[t.id], self.group.storage[t.id], place,
                                   elements(t.shape), stride))

    def operand(self, node, k):
        t = self.operand_tensor(node, k)
        if t is None:
            return None
        place = self.place(node, k)
        if t.id not in self.inside:
            return self.load("value", t, place)
        if place != self.places[t.id]:
            raise Infeasible("a node is broadcast within the group")
        return self.values[t.id]

    def _build(self, node):
        operands = [self.operand(node, k) for k in range(len(node.inputs))]
        if node.id in self.group.aliases or self._is_total(node):
            value = operands[0]
        elif node.op == "dropout":
            value = self.graph.mul(operands[0], self._keep(node))
        elif node is self.norm:
            value = self._build_norm(operands)
        else:
            value = grad.forward(self.graph, node.op, node.attrs, operands, self.inner)
            if node.op in CLASS_LOSSES:
                self.labels.append((operands[1].attr, node.attrs["ignore_index"]))
        if node.id in self.kept_values or (node.id in self.group.outputs and node.id == self.root(node.id)):
            value = self.graph.round(self.group.storage[node.id], value)
        self.values[node.id] = value

    def _keep(self, node):
        return self.graph.keep(self.random_streams.index(node.id), node.attrs["p"])

    def keep_value(self, dtype, count, place):
        """Declares memory that the forward program writes for the backward program."""
        self.kept.append(Kept(dtype, *count))
        return Ref("kept", len(self.kept) - 1, dtype, place, count)

    def _build_norm(self, operands):
        x = operands[0]
        if self.norm.inputs[0] in self.inside:
            raise Infeasible("batch_norm of a value of the group")
        self.channel = self.place(self.norm, 3)
        channels = self.norm.shape[1]
        self.per_channel = self.graph.count(self.domain[0] // channels, self.domain[1] // channels)
        self.mean = self.graph.load(self.keep_value("f32", (channels, 0), self.channel))
        self.rstd = self.graph.load(self.keep_value("f32", (channels, 0), self.channel))
        return grad.batch_norm_apply(self.graph, x, operands[1], operands[2], self.mean, self.rstd)

    # ---- gradients ----
    def gradients(self, seed=None):
        """Fills direct {external: gradient} and sums {external: [(place, gradient, over rows)]}. seed: the
        gradient of the loss."""
        self.adjoints, self.direct, self.sums, self.incoming = {}, {}, {}, {}
        for node in reversed(self.group.nodes):
            adjoint = self.adjoints.get(node.id)
            if self.group.loss and node is self.group.nodes[-1]:
                adjoint = seed
            elif node.id in self.group.graded and node.id == self.root(node.id):
                self.incoming[node.id] = self.load("gradient", node, self.places[node.id])
                adjoint = grad.accumulate(self.graph, self.incoming[node.id], adjoint)
            if adjoint is None:
                continue
            operands = [self.operand(node, k) for k in range(len(node.inputs))]
            if node.id in self.group.aliases or self._is_total(node):
                parts = (adjoint,)
            elif node.op == "dropout":
                factor = self._keep(node)
                parts = (self.graph.linear(adjoint,
                                           lambda live, factor=factor: self.graph.mul(live, factor)),)
            elif node is self.norm:
                self.norm_adjoint, parts = adjoint, ()
            else:
                parts = grad.backward(self.graph, node.op, node.attrs, operands, self.values[node.id],
                                      adjoint, self.inner)
            for k, part in enumerate(parts):
                if part is not None and node.inputs[k] is not None:
                    self._contribute(node, k, part)

    def _contribute(self, node, k, part):
        t, target = self.operand_tensor(node, k), self.place(node, k)
        source = (WHOLE if node.op in ROW_OPS or self.places[node.id] != (self.inner, 0) else
                  self.places[node.id])
        if self._is_total(node):
            source = target
        if t.id in self.inside:
            if target != source:
                part = self._over_row(part, target)
            self.adjoints[t.id] = grad.accumulate(self.graph, self.adjoints.get(t.id), part)
        elif t.id in self.group.wanted or t.id in self.group.spare:
            if t.id in self.group.spare and target != WHOLE:
                return
            if target == source or (source == WHOLE and target[0] > 1 and target[1] == 0):
                if target != source:
                    part = self._over_row(part, target)
                place, before = self.direct.get(t.id, (target, None))
                if place != target:
                    raise Infeasible("one operand is broadcast in two ways")
                self.direct[t.id] = target, grad.accumulate(self.graph, before, part)
            else:
                self.sums.setdefault(t.id, []).append((target, part, source != WHOLE))

    def _over_row(self, part, target):
        """The sum of a gradient over its row."""
        if target[1] != 0 or self.inner not in (1, target[0]):
            raise Infeasible("gradients of rows of different lengths")
        self.inner = target[0]
        return self.graph.rowred("sum", part)

    def gradient_ref(self, number, place):
        t = self.tensor(number)
        return Ref("gradient", self.numbers[number], self.group.storage[number], place, elements(t.shape))

    # ---- the launches of each direction ----
    def value_stores(self):
        return [(Ref("value", self.numbers[node.id], self.group.storage[node.id], self.places[node.id],
                     elements(node.shape)), self.values[node.id]) for node in self.group.nodes
                if node.id in self.group.outputs and node.id == self.root(node.id) and
                self.places[node.id] != SCALAR]

    def moments(self):
        """The launch before a batch_norm, which computes its statistics."""
        g, node = self.graph, self.norm
        x = self.operand_tensor(node, 0)
        shift = self.load("value", x, self.channel, self.channel[0])
        terms = grad.batch_norm_terms(g, self.load("value", x, WHOLE), shift)
        sums = [(term, self.channel, False) for term in terms]
        mean, variance = grad.batch_norm_moments(g, [g.total(0), g.total(1)], shift, self.per_channel)
        old = [self.load("value", self.operand_tensor(node, k), self.channel) for k in (3, 4)]
        new = grad.batch_norm_running(g, mean, variance, old[0], old[1], self.per_channel,
                                      node.attrs["momentum"])
        return Pass([], sums, [(self.mean.attr, mean),
                               (self.rstd.attr, grad.inverse_root(g, variance, node.attrs["eps"])),
                               (old[0].attr, new[0]), (old[1].attr, new[1])])

    def forward(self):
        """The launches of an evaluation, or of training without the gradients."""
        return ([self.moments()] if self.norm else []) + [Pass(self.value_stores(), [], [])]

    def loss(self):
        """The launches of a group whose last node is the loss. In training they include the gradients."""
        g, node = self.graph, self.group.nodes[-1]
        x, value, passes = self.operand_tensor(node, 0), self.values[node.id], []
        result = Ref("value", self.numbers[node.id], "f32", SCALAR, (1, 0))
        incoming = self.load("gradient", node, SCALAR) if self.group.training else None
        over_rows = node.op in CLASS_LOSSES or self.place(node, 0) != WHOLE
        sums, total, divisor, seed = [(value, SCALAR, over_rows)], g.total(0), None, incoming
        if node.op == "sum" and node.attrs["mean"]:
            divisor = g.count(*elements(x.shape))
            seed = g.div(incoming, divisor) if incoming else None
        elif node.op in CLASS_LOSSES and node.attrs["reduction"] == "mean":
            weight = self._divisor_terms(node)
            if incoming:
                refs = [Ref("stat", k, "f32", SCALAR, (1, 0)) for k in range(2)]
                by_rows = not any(ref.place == (1, self.inner) for ref in ir.loads([weight]))
                passes.append(Pass([], [(weight, SCALAR, not by_rows)],
                                   [(refs[0], g.total(0)), (refs[1], g.div(incoming, g.total(0)))], by_rows))
                divisor, seed = g.load(refs[0]), g.load(refs[1])
            else:
                sums.append((weight, SCALAR, True))
                divisor = g.total(1)
        mean = g.div(total, divisor) if divisor else total
        if node.op in CLASS_LOSSES and divisor:  # -0 if no label counts
            empty = g.where(g.op("eq", total, g.const(0)), g.neg(total), mean)
            mean = g.where(g.op("eq", divisor, g.const(0)), empty, mean)
        main = Pass(self.value_stores(), sums, [(result, mean)])
        if incoming:
            self.gradients(seed)
            self._add_gradients(main)
        return passes + [main]

    def _divisor_terms(self, node):
        operands = [self.operand(node, k) for k in range(len(node.inputs))]
        return grad.loss_weight(self.graph, node.op, node.attrs, operands, self.inner)

    def _add_gradients(self, launch, direct=None):
        """Stores, and sums, of externals' gradients."""
        for number, (place, value) in (self.direct if direct is None else direct).items():
            launch.stores.append((self.gradient_ref(number, place), value))
        for number, parts in self.sums.items():
            if number in self.direct or len({place for place, _, _ in parts}) > 1:
                raise Infeasible("one operand is broadcast in two ways")
            total = None
            for place, part, over_rows in parts:
                if place[1] == 0:
                    raise Infeasible("gradients of rows of different lengths")
                if (part, place, over_rows) not in launch.sums:
                    launch.sums.append((part, place, over_rows))
                index = launch.sums.index((part, place, over_rows))
                total = grad.accumulate(self.graph, total, self.graph.total(index))
            launch.finals.append((self.gradient_ref(number, parts[0][0]), total))

    def backward(self):
        """(launches, {Ref of a gradient: Ref of a node's gradient whose memory it may share})."""
        self.gradients()
        main, shares = Pass([], [], []), {}
        if self.norm is None:
            self._add_gradients(main)
            self._share(main, shares)
            return [main], shares
        return self._norm_backward(main, shares)

    def _share(self, launch, shares):
        """If a gradient equals a node's own, it takes over that memory. If several externals get the same
        gradient, it is written there first."""
        own = {value: node for node, value in self.incoming.items() if self.places[node] == WHOLE}
        targets = {}
        for ref, value in launch.stores:
            if ref.place == WHOLE and ref.index >= 0:
                targets.setdefault(value, []).append(ref)
        for value, refs in targets.items():
            if value in own:
                home = self.gradient_ref(own.pop(value), WHOLE)
            else:
                made_of = [own[node] for node in ir.topological([value]) if node in own]
                if len(refs) == 1 or not made_of:
                    continue
                home = self.gradient_ref(made_of[0], WHOLE)
                if [ref.dtype for ref in refs].count(home.dtype) < 2:
                    continue
                del own[self.incoming[made_of[0]]]
                launch.stores.append((home, value))
            shares.update((ref, home) for ref in refs if ref.dtype == home.dtype)

    def _norm_backward(self, main, shares):
        """The gradients of what follows the batch_norm, with the sums that it needs, then the batch_norm's
        own gradient."""
        g, node, adjoint = self.graph, self.norm, self.norm_adjoint
        x, weight = self.operand(node, 0), self.operand(node, 1)
        direct = {number: part for number, part in self.direct.items() if number != node.inputs[0]}
        if len(direct) != len(self.direct) or node.inputs[0] in self.sums:
            raise Infeasible("batch_norm's operand is read beside it")
        streams = [ref for ref in ir.loads([adjoint]) if ref.place == WHOLE and ref != x.attr]
        copies = [number for number, (_, value) in direct.items() if value is adjoint]
        own = [number for number, value in self.incoming.items() if value.attr in streams]
        if len(own) == 1 and len(streams) + len(copies) > 2 + max(len(copies) - 1, 0):
            ref = self.gradient_ref(own[0], WHOLE)
            stored = g.round(ref.dtype, adjoint)
            main.stores.append((ref, stored))
            for number in copies:
                direct[number] = WHOLE, stored
                shares[self.gradient_ref(number, WHOLE)] = ref
            adjoint, again = stored, g.load(ref)
        else:
            again = adjoint
        terms = grad.batch_norm_gradient_terms(g, x, self.mean, adjoint)
        main.sums += [(term, self.channel, False) for term in terms]
        self._add_gradients(main, direct)
        offset, proj_scale = (Ref("stat", k, "f32", self.channel, (node.shape[1], 0)) for k in range(2))
        main.finals += [(offset, g.div(g.total(0), self.per_channel)),
                        (proj_scale, g.mul(g.mul(self.rstd, self.rstd), g.div(g.total(1), self.per_channel)))]
        for k, value in ((1, g.mul(g.total(1), self.rstd)), (2, g.total(0))):
            if node.inputs[k] is not None and node.inputs[k] in self.group.wanted:
                main.finals.append((self.gradient_ref(node.inputs[k], self.channel), value))
        if node.inputs[0] not in self.group.wanted and node.inputs[0] not in self.group.spare:
            return [main], shares
        scale = self.rstd if weight is None else g.mul(self.rstd, weight)
        inside = g.sub(g.sub(again, g.load(offset)), g.mul(g.sub(x, self.mean), g.load(proj_scale)))
        return ([main, Pass([(self.gradient_ref(node.inputs[0], WHOLE), g.mul(inside, scale))], [], [])],
                shares)


# ---- what the backward pass reads --------------------------------------------------------------------------
UNIT = 1024  # of the cut's costs, for one byte per element


def price_of(ref, low, written):
    """The cost to read a value again in the backward pass, plus the cost to write it if it is stored only for
    that."""
    size = BYTES[ref.dtype] * UNIT
    size = size if ref.place == WHOLE else max(1, size // low.inner) if ref.place == (low.inner, 0) else 1
    return size * (22 if written else 10)


def keep(low, passes):
    """What the backward launches read from memory: {node: Ref}, the forward stores for that, and the nodes of
    the group whose values are stored."""
    before = ir.topological([low.values[node.id] for node in low.group.nodes])
    made = set(before)
    places = ir.places(before, low.inner)
    roots = [value for launch in passes for value in roots_of(launch)]
    needed, stack, seen = {}, list(reversed(roots)), set()
    while stack:  # from the gradients down to values of the forward pass
        node = stack.pop()
        if node in made:
            needed[node] = True
        elif node not in seen:
            seen.add(node)
            stack.extend(reversed(node.args))
    stored = {value: ref for ref, value in low.value_stores()}
    by_value = {low.values[node.id]: node
                for node in reversed(low.group.nodes) if low.places[node.id] == WHOLE}

    def candidate(node):
        if node.op == "load":
            return node.attr, False
        if node in stored:
            return stored[node], False
        if places[node] == (low.inner, 0) and low.inner > 1 and not node.is_condition:
            return Ref("kept", -1, "f32", places[node], low.rows), True
        if node in by_value and node.op not in ir.LEAVES:
            number = by_value[node].id
            return (Ref("kept", -1, low.group.storage[number], WHOLE, low.domain),
                    number not in low.kept_values)
        return None, False

    def cost(node):
        ref, written = candidate(node)
        return ref and price_of(ref, low, written)

    chosen = cut.keep(list(needed), cost, lambda node: node.op == "rowred")
    stores, kept_values, memory = [], set(), {}
    for node in chosen:
        ref, _ = candidate(node)
        if ref.role == "kept" and node.op != "load":
            if ref.place == WHOLE:
                kept_values.add(by_value[node].id)
            ref = low.keep_value(ref.dtype, ref.count, ref.place)
            stores.append((ref, node))
        memory[node] = ref
    return memory, stores, frozenset(kept_values)


def roots_of(launch):
    return [value for _, value in launch.stores] + [part for part, _, _ in launch.sums] + [
        value for _, value in launch.finals]


def replaced(graph, launch, memory):
    """The launch with some nodes read from memory."""
    swap = {node: graph.load(ref) for node, ref in memory.items()}
    nodes = iter(graph.substitute(roots_of(launch), swap))
    return Pass([(ref, next(nodes)) for ref, _ in launch.stores],
                [(next(nodes), place, over) for _, place, over in launch.sums],
                [(ref, next(nodes)) for ref, _ in launch.finals], launch.rows)


def is_spare(low, ref):
    """Whether this is an input's gradient, which is optional."""
    return ref.role == "gradient" and ref.index in [low.numbers[number] for number in low.group.spare]


def asked_for(low, passes):
    """The launches without the gradients of inputs."""
    return [replace(launch, stores=[(ref, value) for ref, value in launch.stores if not is_spare(low, ref)])
            for launch in passes]


def without_costly(low, passes):
    """The launches without input gradients that would read another tensor as large as the domain."""
    there = whole([value for launch in asked_for(low, passes) for value in roots_of(launch)])
    return [replace(launch, stores=[(ref, value) for ref, value in launch.stores if not is_spare(low, ref) or
                                    there.issuperset(whole([value]))]) for launch in passes]


def whole(roots):
    return {ref for ref in ir.loads(roots) if ref.place == WHOLE}


# ---- programs ----------------------------------------------------------------------------------------------
RESERVED = frozenset(keyword.kwlist) | frozenset(
    "auto bool case catch char const default delete do double else enum explicit export extern false float "
    "goto inline int long mutable namespace new operator private protected public register restrict short "
    "signed sizeof static struct switch template this throw true typedef typename union unsigned using "
    "virtual void volatile wchar_t y0 y1 yn j0 j1 jn".split())


def identifier(text):
    text = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "t"
    return "t" + text if text[0].isdigit() else text + "_" if text in RESERVED else text


def called(t):
    """The name of a tensor in a kernel's texts."""
    return t.name or getattr(t, "label", None) or t.layer or "%s_%d" % (t.op, t.id)


class Builder:
    """One program of a group. It turns Refs into operands."""

    def __init__(self, low, passes, shares):
        self.low, self.graph, self.shares = low, low.graph, shares
        self.passes = [part for launch in passes
                       for part in ([self._by_rows(launch)] if launch.rows else self._parted(launch))]
        self.read, self.written = {}, {}
        for launch in self.passes:
            for ref in ir.loads(roots_of(launch)):
                self.read[ref] = True
            for ref, _ in launch.stores + launch.finals:
                self.written[ref] = True
        refs = sorted({**self.read, **self.written}, key=self._order)
        self.names = {}
        for ref in refs:
            self.names[ref] = self._name(ref)
        self.operands = {ref: self._operand(ref) for ref in refs}

    def _by_rows(self, launch):
        """The launch with one element per row."""
        inner, swap = self.low.inner, {}
        for node in ir.topological(roots_of(launch)):
            if node.op == "load" and node.attr.place != SCALAR:
                swap[node] = replace(node.attr, place=(node.attr.place[0] // inner, node.attr.place[1]))
        return replace(replaced(self.graph, launch, swap), rows=True)

    def _is_by_row(self, launch):
        """Whether the launch's elements need the row's number."""
        inner = self.low.inner
        elements = [value for _, value in launch.stores] + [part for part, _, _ in launch.sums]
        return any(node.op in ("rowred", "is_column") for node in ir.topological(elements)) or any(
            over for _, _, over in launch.sums) or any(ref.place == (inner, 0) and inner > 1
                                                       for ref, _ in launch.stores)

    def _parted(self, launch):
        """Rows are only summed per column. Sums for other places become a launch of their own, ahead, since
        the stores of the other may share the memory that it reads."""
        columns = all(place in (SCALAR, (1, self.low.inner)) for _, place, _ in launch.sums)
        if columns or not self._is_by_row(launch):
            return [launch]
        return [replace(launch, stores=[]), replace(launch, sums=[], finals=[])]

    @staticmethod
    def _order(ref):
        roles = ("value", "gradient", "kept", "stat")
        return (roles.index(ref.role), ref.index < 0, abs(ref.index), ref.stride > 1, ref.place != WHOLE,
                ref.place)

    def _name(self, ref):
        low, number = self.low, 2
        if ref.role in ("kept", "stat"):
            return "%s%d" % (ref.role, ref.index)
        t = low.group.externals[ref.index] if ref.index >= 0 else low.group.nodes[-1 - ref.index]
        name = wanted = ("grad_" if ref.role == "gradient" else "") + identifier(called(t))
        while name in self.names.values():
            name, number = "%s_%d" % (wanted, number), number + 1
        return name

    def _operand(self, ref):
        outer = ref.role == "gradient" and ref.index >= 0
        home, half = self.shares.get(ref), self.low.group.half
        given = outer or (ref.role == "value" and ref.index < 0)
        rounds = given and ref in self.written and ref.place == WHOLE and ref.dtype == "f32"
        return Operand(self.names[ref], ref.role, ref.index, ref.dtype, ref.place, ref.count,
                       ref in self.read, ref in self.written, optional=outer, accumulate=outer,
                       shares=home and self.names[home], stride=ref.stride, half=half if rounds else None)

    def program(self):
        if sum(operand.role != "stat" for operand in self.operands.values()) > MOST_POINTERS:
            raise Infeasible("more than %d operands" % MOST_POINTERS)
        launches = tuple(self._launch(launch) for launch in self.passes)
        fixed, per_batch = (sum(part) for part in zip(*(traffic(launch) for launch in launches)))
        inner, labels = self.low.inner, []
        for ref, ignore in self.low.labels:
            for place in ((inner, 0), WHOLE):
                if replace(ref, place=place) in self.operands:
                    labels.append(Labels(self.operands[replace(ref, place=place)], inner, ignore))
                    break
        return Program(tuple(self.operands.values()), launches, (fixed, per_batch), tuple(labels))

    def _launch(self, launch):
        low, roots = self.low, roots_of(launch)
        swap = {node: self.operands[node.attr] for node in ir.topological(roots) if node.op == "load"}
        launch = replaced(self.graph, launch, swap)
        elements = [value for _, value in launch.stores] + [part for part, _, _ in launch.sums]
        by_row = not launch.rows and self._is_by_row(launch)
        domain = Domain(*(low.rows if launch.rows else low.domain), low.inner if by_row else 1)
        places = sorted({place for _, place, _ in launch.sums if place != SCALAR})
        if len(places) > 1:
            raise Infeasible("sums over different axes")
        if by_row and places not in ([], [(1, low.inner)]):
            raise Infeasible("sums over other axes than rows and columns")
        check(elements + [value for _, value in launch.finals], elements, launch.stores, low.inner)
        result = Launch("row" if by_row else "map", domain,
                        tuple(Store(self.operands[ref], value) for ref, value in launch.stores),
                        tuple(Sum(number, part, place, place[1], over)
                              for number, (part, place, over) in enumerate(launch.sums)),
                        tuple(Store(self.operands[ref], value) for ref, value in launch.finals))
        try:
            schedule.shape_of(result)
        except schedule.EmitError as fault:
            raise Infeasible(str(fault)) from None
        return result


def check(roots, elements, stores, inner):
    """Checks the limits of one launch."""
    order = ir.topological(elements)
    if len(ir.topological(roots)) > MOST_NODES:
        raise Infeasible("more than %d operations" % MOST_NODES)
    streams = dict.fromkeys([(o.role, o.index) for o in ir.loads(elements) if o.place == WHOLE] +
                            [(ref.role, ref.index) for ref, _ in stores if ref.place == WHOLE])
    if len(streams) > MOST_STREAMS:
        raise Infeasible("more than %d tensors as large as the domain" % MOST_STREAMS)
    depth = {}
    for node in order:
        depth[node] = max([depth[arg] for arg in node.args], default=0) + (node.op == "rowred")
    if max(depth.values(), default=0) > MOST_DEPTH:
        raise Infeasible("reductions of rows one after another, more than %d" % MOST_DEPTH)
    if registers(order, elements, inner) > MOST_REGISTERS:
        raise Infeasible("more values at a time than registers hold")


def registers(order, elements, inner):
    """Estimates the registers on a GPU: 16 bytes of each tensor that is read, as floats, and the values that
    are live at the same time."""
    places = ir.places(order, inner)
    whole = [node for node in order if node.op == "load" and places[node] == WHOLE]
    loaded = sum(16 // BYTES[node.attr.dtype] if BYTES[node.attr.dtype] < 4 else 4 for node in whole)
    last = {node: k for k, node in enumerate(order)}
    for k, node in enumerate(order):
        for arg in node.args:
            last[arg] = k
    for node in elements:
        last[node] = len(order)
    live, most, ending = 0, 0, {}
    for k, node in enumerate(order):
        live -= ending.pop(k, 0)
        if node.op in ("const", "count") or node in whole:
            continue
        live += 1
        most = max(most, live)
        ending[last[node]] = ending.get(last[node], 0) + 1
    return loaded + most


def traffic(launch):
    """The bytes that it moves, (fixed, per batch): each operand once, in its stored dtype."""
    moved = {}
    for operand in ir.loads([store.value for store in launch.stores + launch.finals] +
                            [one.value for one in launch.sums]):
        moved[operand.role, operand.index, operand.place, "read"] = operand
    for store in launch.stores + launch.finals:
        if store.operand.shares is None:
            moved[store.operand.role, store.operand.index, store.operand.place, "write"] = store.operand
    counts = [[BYTES[operand.dtype] * count for count in used(operand)] for operand in moved.values()]
    return tuple(map(sum, zip(*counts))) if counts else (0, 0)


def used(operand):
    """The elements of an operand that a launch touches."""
    return (operand.place[1], 0) if operand.place[1] else operand.count


def lower(group):
    """Lowers a group to its programs. Raises Infeasible. If only optional gradients prevent it, they are left
    out."""
    try:
        return lower_all(group)
    except Infeasible:
        if not group.spare:
            raise
        return lower_all(replace(group, spare=frozenset()))


def lower_all(group):
    low = Lowering(group)
    if group.loss:
        program = Builder(low, without_costly(low, low.loss()), {}).program()
        return (Lowered(None, program, None, (), len(low.random_streams)) if group.training else
                Lowered(program, None, None, (), 0))
    if not group.training:
        return Lowered(Builder(low, low.forward(), {}).program(), None, None, (), 0)
    passes, shares, stores, kept_values = [], {}, [], frozenset()
    while group.graded and group.wanted:
        low = Lowering(group, kept_values)
        passes, shares = low.backward()
        memory, stores, found = keep(low, asked_for(low, passes))
        if found <= kept_values:
            passes = without_costly(low, [replaced(low.graph, launch, memory) for launch in passes])
            break
        kept_values |= found
    forward = low.forward()
    forward[-1].stores.extend(stores)
    return Lowered(None, Builder(low, forward, {}).program(),
                   Builder(low, passes, shares).program() if passes else None,
                   tuple(low.kept), len(low.random_streams))
