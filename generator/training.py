"""A training step of a small network as one kernel for GPUs: from a batch to the loss and the gradients of
all weights.

The model may have linear layers, elementwise ops, dropout, norms, softmax, sums and copies, embeddings and
hash grids, each within a sample. The loss is the sum or the mean of such values, or compares them with class
labels. Blocks take tiles of samples (tiling.py) forward and backward. Values and gradients are in shared
memory while they are needed, and the weights beside them, all at once or piece by piece. Each block writes
its sums of the weights' gradients. The last block adds these up in a fixed order; if they are many, a second
launch does. Tables, of which a sample reads some rows, are too large for that. For them each sample leaves a
record, and later launches add the records up as integers, so the order does not matter. emit_training_cuda.py
writes the kernel. The optimizer's update is the next launch."""
import copy
import functools
import math

from . import grad, ir, tiling
from .emit_inference import Given, values_of
from .graph import shape_text
from .inference import GIVEN, VIEWS, Block, Refused, is_elementwise
from .lower import BYTES, CLASS_LOSSES, MOST_RANDOM_STREAMS, Infeasible, called, identifier
from .network import MOST_NODES, MOST_OPERANDS, MOST_ROWS, MOST_WIDE, NORMS, moved
from .program import SCALAR, WHOLE, Operand, Program
from .tiling import CAPABILITY, CHUNK, FAR, LAUNCH, MEMORY, NEAR, STAGED, TENSOR, THREADS, TILES, TilePlan

NAME = "step"
WEIGHTED = ("linear",) + NORMS  # operands from the second on are weights
TABLES = ("embedding", "hash_grid_encoding")  # operand 1 is a table
OTHERS = ("softmax", "log_softmax", "sum", "concat", "slice", "permute", "cast")
STATIC = 1024  # bytes of shared memory that a block needs for other things
BATCHES = tuple(4 ** k for k in range(9))  # for which the forms are chosen
TABLE_LAUNCHES = 3  # that clear, add up and store gradients of tables
ADDED = 1     # integers that a multiprocessor adds to memory per clock
RESULT = "result"  # an elementwise step's result, among the values that its gradient reads


class StepPlan(TilePlan):
    """One sample's values, and the gradients of those that have any. Time runs through the forward steps 0,
    1, ... to the loss, and back: with n steps, step k's backward turn is at 2 n - k. Values whose lifetimes
    do not overlap share memory."""

    def __init__(self, view, outputs):
        self.view, self.loss = view, view.model.tensors[view.model.loss]
        self.storage = [view.storage[root] for root in view.root]
        own = copy.copy(view.model)
        own.outputs = outputs
        super().__init__(own, 1, check, in_place=False)

    def reached(self):
        self.labels = behind(self.model, self.loss.inputs[1]) if self.has_labels() else set()
        return super().reached() | self.labels

    def is_long(self, width):
        """No product is: the backward pass reads weights from shared memory."""
        return False

    def scratch(self):
        return super().scratch() + list(dict.fromkeys(self.gradients.values()))

    def lay_out(self, in_place):
        self.gradients = {}  # blocks, by those of the values
        self.ways = {}       # by elementwise step, the result of contributions()
        super().lay_out(in_place)
        self.hold()
        self.give_gradients()
        for k, step in enumerate(self.steps):
            self.merge(k, step)
        for block in self.scratch():
            block.place = 0
        self.pack(self.scratch())
        self.floats = self.sizes()["f32"]

    def turn(self, k):
        """The time at which step k passes its gradient on."""
        return 2 * len(self.steps) - k

    def hold(self):
        """Extends the lifetime of values to the last step that reads them, in the backward pass too."""
        for i in self.labels:
            self.at[i][0].last = len(self.steps)
        for k, step in enumerate(self.steps):
            if self.wants(step.tensor.id):
                for i in self.read_back(step):
                    self.at[i][0].last = max(self.at[i][0].last, self.turn(k))
                if step.room:
                    step.room.first = step.room.last = self.turn(k)

    def read_back(self, step):
        """The values that the backward pass of a step reads."""
        t = step.tensor
        if step.members:
            return self.contributions(step)[1]
        if t.op == "linear":
            return t.inputs[:1] * self.view.wants[t.inputs[1]]
        if t.op in TABLES:
            return t.inputs[:1] * (self.view.wants[t.inputs[1]] or self.wants(t.inputs[0]))
        return {"softmax": (t.id,), "log_softmax": (t.id,)}.get(t.op, t.inputs[:1] if t.op in NORMS else ())

    def contributions(self, step):
        """For an elementwise step, by operand, the contribution to its gradient, as an expression of the
        operands, of RESULT and of the result's gradient g; and the ids of what it reads in scratch. Of the
        forms with and without RESULT it takes the one that reads fewer values."""
        if step not in self.ways:
            ways = [self.contributions_by(step, by_result) for by_result in (True, False)]
            self.ways[step] = min(ways, key=lambda way: len(way[1]))
        return self.ways[step]

    def contributions_by(self, step, by_result):
        t, (graph, values) = step.tensor, values_of(self, step)
        names = {values[i].attr.name: i for i in step.operands}
        if by_result:
            names[RESULT], values[t.id] = t.id, graph.load(Given(RESULT))
        adjoints = {t.id: graph.load(Given("g"))}
        for m in reversed(step.members):
            if m not in adjoints:
                continue
            node = self.tensors[m]
            parts = grad.backward(graph, node.op, node.attrs, [values[i] for i in node.inputs], values[m],
                                  adjoints[m])
            for i, part in zip(node.inputs, parts):
                if part is not None and self.view.wants[i]:
                    adjoints[i] = grad.accumulate(graph, adjoints.get(i), part)
        found = {i: adjoints[i] for i in step.operands if i in adjoints}
        read = [names[one.name] for one in ir.loads(found.values()) if one.name in names]
        return found, [i for i in read if self.at[i][0].kind == "scratch"]

    def give_gradients(self):
        """A gradient lives from the last step that reads the value (or from the loss) to the turn of the step
        that computes it."""
        readers = [{self.at[i][0] for i in step.operands if i is not None} for step in self.steps]
        cost = self.at[self.outputs[0]][0]
        for k, step in reversed(list(enumerate(self.steps))):
            block = self.at[step.tensor.id][0]
            if not self.wants(step.tensor.id):
                continue
            if block not in self.gradients:
                last = max((r for r, blocks in enumerate(readers) if block in blocks), default=k)
                first = len(self.steps) if block is cost else self.turn(last)
                self.gradients[block] = Block("scratch", "f32", block.count, None, first)
            self.gradients[block].last = self.turn(k)
            alone = [i for i in step.operands if (step.members or step.tensor.op == "dropout") and
                     self.tensors[i].kind == "value" and self.wants(i) and i not in self.narrow(step) and
                     sum(self.at[i][0] in blocks for blocks in readers) == 1]
            for i in alone[:1]:  # the gradient is only this step's, so it is made from the step's own
                self.gradients[self.at[i][0]] = self.gradients[block]

    def is_view(self, t):
        """Excludes a slice, whose gradient is a part of another's."""
        return t.op in VIEWS and not self.is_random(t)

    @staticmethod
    def is_random(t):
        return t.op == "dropout" and t.attrs["p"] > 0

    def narrow(self, step):
        """The operands of an elementwise step whose gradients are sums over its elements, or over samples."""
        return ([i for i in self.contributions(step)[0] if self.tensors[i].shape != step.tensor.shape]
                if step.members else [])

    def room(self, step):
        """The floats for a norm's means and factors, or for what is summed to the gradients of narrow
        operands."""
        t = step.tensor
        if t.op in NORMS:
            return 2 * math.prod(self.shape(t.id)[:len(t.shape) - t.attrs["dims"]])
        return self.count(t.id) * len(self.narrow(step))

    def wants(self, i):
        """Whether a gradient has to be computed."""
        return self.view.wants[i] and self.view.behind[i]

    def gradient(self, i):
        """The place of a gradient."""
        return self.gradients[self.at[i][0]].place

    def sums(self):
        """(id, place among a block's sums) of the weights that need a gradient."""
        end, seen = 0, set()
        for step in self.steps:
            for i in step.tensor.inputs[1:] if step.tensor.op in WEIGHTED else self.narrow(step):
                if (i is not None and i not in seen and self.view.wants[i] and
                    self.tensors[i].kind == "parameter"):
                    yield i, end
                    end += self.count(i)
                    seen.add(i)

    def records(self):
        """(tensor, place in a sample's record) of each lookup whose table needs a gradient. The record holds
        its operand, then the gradient of its result."""
        end = 0
        for t in self.lookups():
            if self.view.wants[t.inputs[1]] and self.wants(t.id):
                yield t, end
                end += self.count(t.inputs[0]) + self.count(t.id)

    def record(self):
        """The floats of a record."""
        return sum(self.count(t.inputs[0]) + self.count(t.id) for t, _ in self.records())

    def lookups(self):
        return [step.tensor for step in self.steps if step.tensor.op in TABLES]

    def hash_calls(self):
        slopes = any(t.op == "hash_grid_encoding" and self.wants(t.inputs[0]) for t in self.lookups())
        return super().hash_calls() + ["gradient"] * slopes

    def tables(self):
        """For each table that needs a gradient, by id, its place among the elements of all tables."""
        found, end = {}, 0
        for t, _ in self.records():
            if t.inputs[1] not in found:
                found[t.inputs[1]] = end
                end += self.count(t.inputs[1])
        return found

    def terms(self, table):
        """The most terms that a sample adds to a table's element."""
        own = [t for t, _ in self.records() if t.inputs[1] == table]
        return sum(self.count(t.inputs[0]) if t.op == "embedding" else corners_of(self, t) for t in own)

    def products_back(self):
        """(width, outputs, whether its operand has a gradient, whether its weight has one) of each
        product."""
        for t in self.layers():
            out, width = self.shape(t.inputs[1])
            yield width, out, self.wants(t.inputs[0]), self.view.wants[t.inputs[1]]

    def multiplications(self):
        """Multiplications per sample, forward and backward."""
        return sum(width * out * (1 + x + w) for width, out, x, w in self.products_back())

    def has_labels(self):
        return self.loss.op in CLASS_LOSSES

    def divides_by_labels(self):
        return self.has_labels() and self.loss.attrs["reduction"] == "mean"

    def summed(self):
        """The floats of a block's sums: with the loss and, with labels, its divisor. A multiple of 4."""
        return (sum(self.count(i) for i, _ in self.sums()) + self.has_labels() + 4) // 4 * 4


def check(t, plan):
    """The reason why a value cannot be in such a kernel, or None."""
    if t.kind in ("value", "input"):
        if t.shape[:1] != (-1,) or any(dim < 0 for dim in t.shape[1:]):
            return "%s is not a value of each sample" % shape_text(t.shape)
    if t.id in plan.labels:
        return None
    if t.dtype != "f32" and not plan.is_given_integer(t):
        return "%s values are not supported" % t.dtype
    if t.op in WEIGHTED:
        return check_layer(t, plan)
    if t.op in TABLES:
        return check_table(t, plan)
    if t.op in OTHERS:
        return along_batch(t)
    if t.kind != "value" or t.op in VIEWS:
        return None
    if not is_elementwise(t):
        return "its gradient is not written for single samples"
    return next((read_elsewhere(i, plan)
                 for i in t.inputs if plan.tensors[i].kind == "parameter" and read_elsewhere(i, plan)), None)


def along_batch(t):
    if t.attrs.get("dim") == 0 or t.op in NORMS and t.attrs["dims"] == len(t.shape):
        return "it works along the batch"
    return None


def check_layer(t, plan):
    w = plan.tensors[t.inputs[1]] if t.op == "linear" else None
    if w and plan.count(t.id) != w.shape[0]:
        return "several rows a sample"
    if w and w.shape[0] > MOST_WIDE:
        return "%d wide, more than the limit of %d" % (w.shape[0], MOST_WIDE)
    if along_batch(t):
        return along_batch(t)
    for i in t.inputs[1:]:
        if i is not None and plan.tensors[i].kind == "value":
            return "its weight '%s' is computed" % called(plan.tensors[i])
        if i is not None and read_elsewhere(i, plan):
            return read_elsewhere(i, plan)
    return None


def check_table(t, plan):
    table = plan.tensors[t.inputs[1]]
    if table.kind == "value":
        return "its table '%s' is computed" % called(table)
    if table.sparse:
        return "its table '%s' has a sparse gradient" % called(table)
    if t.op == "embedding" and table.shape[0] > MOST_ROWS:
        return "%d rows, more than the limit of %d" % (table.shape[0], MOST_ROWS)
    return read_elsewhere(table.id, plan, TABLES)


def corners_of(plan, t):
    """The corners of a sample's points in a level of a hash grid."""
    axes = plan.shape(t.inputs[0])[-1]
    return plan.count(t.inputs[0]) // axes << axes


def read_elsewhere(i, plan, ops=WEIGHTED):
    """The reason why a kernel cannot compute a weight's gradient, or None. Such ops read the weight as a
    whole, or an elementwise op reads a table."""
    for other in (plan.tensors[number] for number in plan.view.readers[i] if plan.view.wants[i]):
        reads = other.op in ops and i not in other.inputs[:1] or ops is WEIGHTED and is_elementwise(other)
        if other.id not in plan.needed or not reads:
            return "its weight '%s' is read elsewhere, too" % called(plan.tensors[i])
    return None


def program(view):
    """The Group of nodes that one kernel computes in a training View, and its Program. Raises Refused."""
    model = view.model
    loss = model.tensors[model.loss]
    check_loss(view, loss)
    cost = view.root[loss.inputs[0]]
    seen = [i for i in sorted(behind(model, cost)) if i != cost and view.root[i] == i and
            model.tensors[i].kind == "value"]
    plan = StepPlan(view, (cost,) + tuple(i for i in seen if view.visible & {i, *view.aliases.get(i, ())}))
    if not any(plan.linears()):
        raise Refused("there is no linear layer before the loss")
    try:
        group = view.group([i for i in plan.needed if model.tensors[i].kind == "value"] + [loss.id])
    except Infeasible as fault:
        raise Refused(str(fault)) from None
    if group.outputs - {loss.id} - set(plan.outputs):
        raise Refused("its values are also read outside of the step")
    operands = tuple(operands_of(plan, group))
    if len(operands) > MOST_OPERANDS or len(group.nodes) > MOST_NODES:
        raise Refused("%d tensors are read and written and %d ops computed; a kernel has at most %d and %d" %
                      (
                          len(operands), len(group.nodes), MOST_OPERANDS, MOST_NODES))
    if not any(plan.sums()):
        raise Refused("it trains only tables" if any(plan.records()) else "it trains no weight")
    plan.random_streams = [t.id for t in group.nodes if plan.is_random(t)]
    if len(plan.random_streams) > MOST_RANDOM_STREAMS:
        raise Refused("more than %d dropout" % MOST_RANDOM_STREAMS)
    reason = refusal(plan)
    if reason:
        raise Refused(reason)
    # gradients of tables are written as a whole
    own = [t.id for t in group.externals] + [None] * len(operands)
    return group, Program(operands, (), moved(plan, own, operands), step=plan)


def check_loss(view, loss):
    """Raises Refused."""
    if view.kind(loss) != "loss":
        raise Refused("%s '%s' is no sum or mean of the samples' values" % (loss.op, called(loss)))
    if loss.op not in CLASS_LOSSES:
        return
    if len(view.tensors[loss.inputs[0]].shape) != 2:
        raise Refused("%s '%s' has several labels a sample" % (loss.op, called(loss)))
    for i in loss.inputs[1:]:
        if i is not None and view.tensors[view.root[i]].kind not in GIVEN:
            raise Refused("what %s '%s' reads beside the logits is computed" % (loss.op, called(loss)))


def behind(model, i):
    """A value, and all that it is computed from."""
    found, pending = set(), [i]
    while pending:
        i = pending.pop()
        if i is not None and i not in found:
            found.add(i)
            pending.extend(model.tensors[i].inputs)
    return found


def operands_of(plan, group):
    names, loss = set(), plan.model.loss

    def operand(t, role, index, **use):
        name = wanted = ("grad_" if role == "gradient" else "") + identifier(called(t))
        number = 2
        while name in names:
            name, number = "%s_%d" % (wanted, number), number + 1
        names.add(name)
        count = math.prod(abs(dim) for dim in t.shape)
        place = SCALAR if t.id == loss else WHOLE
        dtype = plan.storage[t.id] if role == "value" else t.dtype
        return Operand(name, role, index, dtype, place, (0, count) if t.shape[:1] == (-1,) else (count, 0),
                       **use)
    for number, t in enumerate(group.externals):
        yield operand(t, "value", number, read=True)
    for number, t in enumerate(group.nodes):
        if t.id in group.outputs:
            yield operand(t, "value", -1 - number, written=True)
    for number, t in enumerate(group.nodes):
        if t.id == loss:
            yield operand(t, "gradient", -1 - number, read=True)
    for number, t in enumerate(group.externals):
        if t.id in group.wanted:
            yield operand(t, "gradient", number, written=True, optional=True, accumulate=True)


# ---- forms, and what they should cost: arithmetic, not measurements ----------------------------------------
@functools.lru_cache(maxsize=8)
def forms(plan):
    """The kernel's forms that should be the fastest on some card for some batch."""
    kinds = [plan.model.precision] + ["f32"] * (plan.model.precision == "tf32")  # for GPUs without TF32
    rooms = sorted({card.room for card in tiling.CARDS.values()}, reverse=True)
    made = [tiling.tiling(plan, factors, samples, room - STATIC) for factors in kinds for room in rooms
            for samples in TILES]
    found = list(dict.fromkeys(one for one in made if one))
    best = {quickest(plan, found, batch, card) for card in tiling.CARDS.values() for batch in BATCHES}
    return tuple(one for one in found if one in best)


def quickest(plan, found, batch, card):
    """The fastest of some forms. None: none fits."""
    fitting = [one for one in found if one.bytes + STATIC <= card.room and
               CAPABILITY[one.factors] <= card.capability]
    return min(fitting, key=lambda one: clocks(plan, one, batch, card.multiprocessors), default=None)


def gradient_rows(width, out):
    """How many rows of a weight's gradient a thread computes at once."""
    return next((n for n in (4, 2) if -(-width // 4) * -(-out // n) >= THREADS), 1)


def backward_cycles(form, width, out, of_operand, of_weight, tensor=TENSOR):
    """The clocks of a multiprocessor for a tile: the gradients of a product's operand and weight, as in
    training_device.h."""
    operand, weight = (multiply_cycles if form.factors == "f32" else tile_cycles)(form, width, out, tensor)
    moved = 4 * out * width / STAGED
    if not form.whole:
        operand += moved + FAR * -(-out // tiling.rows_at_once(form, width, out))
    return operand * of_operand + (weight + moved) * of_weight


def multiply_cycles(form, width, out, _):
    slots = min(form.samples, 32)
    own, teams, warps, fours = form.samples // slots, THREADS // slots, THREADS // 32, -(-width // 4)
    wavefronts, instructions = own * slots / 8 + 4 * (32 // slots), 20 * own + 4
    operand = -(-fours // teams) * -(-out // 4) * max(warps * max(wavefronts, instructions / 4), NEAR)
    each = gradient_rows(width, out)
    passes = -(-fours * -(-out // each) // THREADS)
    return operand, passes * (form.samples * max(warps * max(4 + each, (5 * each + 1) / 4), NEAR / 2) + FAR)


def tile_cycles(form, width, out, tensor):
    """Each factor of a chunk is read as one 32-bit number, or half of one for 16-bit weights."""
    chunk, tiles, warps, slots = CHUNK[form.factors], -(-width // 8), THREADS // 32, form.samples // 16
    numbers, more = chunk // 2, 1 if form.factors == "tf32" else 2
    each = tiling.each_of(tiles, warps // slots)
    products = each * 16 * 8 * chunk / tiling.rate_of(form.factors, tensor)
    taken = max(numbers + each * numbers / 2, (numbers + 4 + each * (1 + more * numbers / 2)) / 4, products)
    busy = slots * min(warps // slots, -(-tiles // each))
    operand = -(-tiles // (warps // slots * each)) * -(-out // chunk) * max(busy * taken, NEAR)
    rows = -(-out // 16)
    each = tiling.each_of(rows * tiles, warps)
    products = each * 16 * 8 * chunk / tiling.rate_of(form.factors, tensor)
    taken = max(numbers + each * numbers / 2, (2 * numbers + 4 + each * (3 + numbers)) / 4, products)
    tasks = rows * -(-tiles // each)
    return operand, -(-tasks // warps) * (-(-form.samples // chunk) * max(min(tasks, warps) * taken, NEAR) +
                                          FAR)


def cycles(plan, form, tensor=TENSOR):
    """The clocks of a multiprocessor for a tile."""
    back = sum(backward_cycles(form, *one, tensor) for one in plan.products_back())
    others = [step.tensor.id for step in plan.steps if step.tensor.op != "linear"]
    others += plan.outputs[:1] if plan.has_labels() else []
    return tiling.cycles(plan, form, tensor) + back + sum(
        form.samples * plan.count(i) * tiling.ELEMENT / tiling.LANES + NEAR for i in others)


def adding(plan):
    """The clocks in which one block adds another's sums to its own."""
    return max(4 * plan.summed() / STAGED, FAR / 6)


def blocks_of(form, batch, multiprocessors):
    return min(-(-batch // form.samples), multiprocessors)


def tables_seconds(plan, batch, card):
    """The time to turn the records into gradients of tables: integers are cleared, added up and read. Single
    steps do the same."""
    if not plan.tables():
        return 0
    elements, second = sum(plan.count(i) for i in plan.tables()), card.multiprocessors * card.gigahertz * 1e9
    added = sum(plan.count(t.id) * (1 if t.op == "embedding" else 1 << plan.shape(t.inputs[0])[-1])
                for t, _ in plan.records())
    return (TABLE_LAUNCHES * LAUNCH + ((8 + 8 + 4) * elements + 8 * batch * plan.record()) /
            (MEMORY * second) + batch * added / (ADDED * second))


def ending(plan, blocks, multiprocessors):
    """The clocks to add up the blocks' sums: by the last block, and by a second launch, as in
    training_device.h."""
    return 2 * math.ceil(math.sqrt(blocks)) * adding(plan), (
        LAUNCH * tiling.GIGAHERTZ * 1e9 + 4 * plan.summed() * blocks / (tiling.MEMORY * multiprocessors) +
        FAR * -(-blocks // 32))


def clocks(plan, form, batch, multiprocessors, tensor=TENSOR):
    """The clocks of a launch, and of the second one if there is one."""
    tiles, blocks = -(-batch // form.samples), blocks_of(form, batch, multiprocessors)
    return tiling.staging(form) + -(-tiles // blocks) * cycles(plan, form, tensor) + 4 * FAR + min(
        ending(plan, blocks, multiprocessors))


def apart(plan):
    """The additional clocks to start single steps instead of one launch. A step that is not elementwise takes
    two launches, with the elementwise ones that follow. Gradients of tables cost the same in both."""
    launches = sum(1 if step.tensor.op in TABLES else 2
                   for step in plan.steps if not step.members and step.tensor.op != "dropout")
    return (launches * (LAUNCH + tiling.ALONE) - LAUNCH) * tiling.GIGAHERTZ * 1e9


def each_apart(plan, factors):
    """The clocks per sample of one multiprocessor for those steps: a layer has up to three products."""
    products = sum(tiling.linear_apart(factors, 1, width, out) * (1 + x + w)
                   for width, out, x, w in plan.products_back())
    return products + sum(tiling.hashes(plan))


def clocks_apart(plan, factors, batch, multiprocessors):
    return apart(plan) + batch * each_apart(plan, factors) / multiprocessors


def form_for(plan, batch, card):
    """The form that a launch takes. None: none fits, or single steps should be faster."""
    best, many = quickest(plan, forms(plan), batch, card), card.multiprocessors
    return (best if best and
            clocks(plan, best, batch, many) <= clocks_apart(plan, best.factors, batch, many) else None)


def seconds(plan, form, batch, card):
    own = clocks(plan, form, batch, card.multiprocessors, card.tensor) / (card.gigahertz * 1e9)
    return LAUNCH + own + tables_seconds(plan, batch, card)


def seconds_apart(plan, factors, batch, card):
    """The seconds of the single steps."""
    own = clocks_apart(plan, factors, batch, card.multiprocessors) / (card.gigahertz * 1e9)
    return LAUNCH + own + tables_seconds(plan, batch, card)


def refusal(plan):
    """The reason why no GPU has such a kernel, or None."""
    if not forms(plan):
        return ("the values and gradients of %d samples take %d bytes of shared memory, where no block has "
                "more than %d with weights" % (
                    TILES[-1], 4 * TILES[-1] * plan.pitch(),
                    max(card.room for card in tiling.CARDS.values()) - STATIC))
    if not any(form_for(plan, batch, card) for card in tiling.CARDS.values() for batch in BATCHES):
        return "step by step should be quicker, with %d multiplications a sample" % (plan.multiplications())
    return None
