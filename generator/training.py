"""A training step of a small network as one kernel for GPUs: from a batch to the loss and the gradients of all weights.

Of linear layers, elementwise ops, norms, softmax, sums and copies, each of single samples, and a loss that is the sum or the mean of
values of these or tells classes apart by them. Blocks take tiles of samples (tiling.py) forward and back, with all values and their
gradients in shared memory; each leaves its sums of the weights' gradients, which the last one adds up in a fixed order.
emit_training_cuda.py writes it; the optimizer's update is the next launch.
"""
import copy
import math

from . import tiling
from .graph import shape_text
from .inference import GIVEN, VIEWS, Refused, is_elementwise
from .lower import CLASS_LOSSES, Infeasible, called, identifier
from .network import MOST_NODES, MOST_OPERANDS, MOST_VALUES, MOST_WIDE, NORMS
from .program import SCALAR, WHOLE, Operand, Program
from .tiling import FAR, LAUNCH, NEAR, STAGED, THREADS, TILES, TilePlan, Tiling, pitch_of

NAME = "step"
FACTORS = "f32"  # of products
WEIGHTED = ("linear",) + NORMS  # operands from the second on are weights
OTHERS = ("softmax", "log_softmax", "sum", "concat", "slice", "permute")
STATIC = 1024  # bytes of shared memory that are left for what else a block needs


class StepPlan(TilePlan):
    """One sample's values and, behind them, the gradients of those that have any; each has a place of its own."""

    def __init__(self, view, outputs):
        self.view, self.loss = view, view.model.tensors[view.model.loss]
        own = copy.copy(view.model)
        own.outputs = outputs
        super().__init__(own, 1, check, in_place=False)
        self.storage = [view.storage[root] for root in view.root]

    def reached(self):
        self.labels = behind(self.model, self.loss.inputs[1]) if self.has_labels() else set()
        return super().reached() | self.labels

    @staticmethod
    def array(block):
        """Labels lie among the others, as numbers."""
        return "f32"

    @classmethod
    def pack(cls, blocks):
        end = 0
        for block in blocks:
            block.place, end = end, end + cls.room_for(block)

    def lay_out(self, in_place):
        super().lay_out(in_place)
        self.floats, self.gradients = self.sizes()["f32"], {}  # gradients: places by block
        readers = [{self.at[i][0] for i in step.operands if i is not None} for step in self.steps]
        for k, step in reversed(list(enumerate(self.steps))):
            block = self.at[step.tensor.id][0]
            if self.wants(step.tensor.id) and block not in self.gradients:
                self.gradients[block] = self.floats
                self.floats += self.room_for(block)
            alone = [i for i in step.operands if step.members and self.tensors[i].kind == "value" and self.wants(i) and
                     sum(self.at[i][0] in blocks for blocks in readers) == 1]
            for i in alone[:1]:  # its gradient is this step's alone, which makes it of its own
                self.gradients[self.at[i][0]] = self.gradients[block]

    def is_view(self, t):
        """Not a slice, whose gradient is a part of another's."""
        return t.op in VIEWS

    def room(self, step):
        """A norm's means and factors."""
        t = step.tensor
        return 2 * math.prod(self.shape(t.id)[:len(t.shape) - t.attrs["dims"]]) if t.op in NORMS else 0

    def wants(self, i):
        """Whether there is a gradient to be computed."""
        return self.view.wants[i] and self.view.behind[i]

    def gradient(self, i):
        """Its place."""
        return self.gradients[self.at[i][0]]

    def pitch(self):
        return pitch_of(self.floats)

    def sums(self):
        """(id, place among a block's sums) of the weights that want a gradient."""
        end = 0
        for step in self.steps:
            for i in step.tensor.inputs[1:] if step.tensor.op in WEIGHTED else ():
                if i is not None and self.view.wants[i]:
                    yield i, end
                    end += self.count(i)

    def has_labels(self):
        return self.loss.op in CLASS_LOSSES

    def divides_by_labels(self):
        return self.has_labels() and self.loss.attrs["reduction"] == "mean"

    def summed(self):
        """Floats of a block's sums: with the loss, and with labels its divisor, a multiple of 4."""
        return (sum(self.count(i) for i, _ in self.sums()) + self.has_labels() + 4) // 4 * 4


def check(t, plan):
    """Why a value has no place in such a kernel."""
    if t.kind in ("value", "input"):
        if t.shape[:1] != (-1,) or any(dim < 0 for dim in t.shape[1:]):
            return "%s is not a value of each sample" % shape_text(t.shape)
        if plan.count(t.id) > MOST_VALUES:
            return "%d elements a sample, where %d are the most" % (plan.count(t.id), MOST_VALUES)
    if t.id in plan.labels:
        return None
    if t.dtype != "f32":
        return "%s values are not for it" % t.dtype
    if t.op in WEIGHTED:
        return check_layer(t, plan)
    if t.op in OTHERS:
        return along_batch(t)
    if t.kind != "value" or t.op == "reshape" or (t.op == "dropout" and t.attrs["p"] == 0):
        return None
    if not is_elementwise(t):
        return "its gradient is not written for single samples"
    for i in t.inputs:
        if plan.view.wants[i] and plan.tensors[i].shape != t.shape:
            return "the gradient of '%s' is a sum over more than its samples" % called(plan.tensors[i])
    return None


def along_batch(t):
    if t.attrs.get("dim") == 0 or t.op in NORMS and t.attrs["dims"] == len(t.shape):
        return "it works along the batch"
    return None


def check_layer(t, plan):
    w = plan.tensors[t.inputs[1]] if t.op == "linear" else None
    if w and plan.count(t.id) != w.shape[0]:
        return "several rows a sample"
    if w and max(w.shape) > MOST_WIDE:
        return "%d wide, where %d is the most" % (max(w.shape), MOST_WIDE)
    if along_batch(t):
        return along_batch(t)
    for i in t.inputs[1:]:
        if i is not None and plan.tensors[i].kind == "value":
            return "its weight '%s' is computed" % called(plan.tensors[i])
        if i is not None and len(plan.view.readers[i]) > 1:
            return "its weight '%s' is read elsewhere, too" % called(plan.tensors[i])
    return None


def program(view):
    """The Group of nodes that one kernel computes in a training View, and its Program. Raises Refused."""
    model = view.model
    if model.precision != "f32":
        raise Refused("the model's precision is %s" % model.precision)
    loss = model.tensors[model.loss]
    check_loss(view, loss)
    cost = view.root[loss.inputs[0]]
    seen = [i for i in sorted(behind(model, cost)) if i != cost and view.root[i] == i and model.tensors[i].kind == "value"]
    plan = StepPlan(view, (cost,) + tuple(i for i in seen if view.visible & {i, *view.aliases.get(i, ())}))
    if not any(plan.linears()):
        raise Refused("there is no linear layer before the loss")
    try:
        group = view.group([i for i in plan.needed if model.tensors[i].kind == "value"] + [loss.id])
    except Infeasible as fault:
        raise Refused(str(fault)) from None
    if group.outputs - {loss.id} - set(plan.outputs):
        raise Refused("values of it are read by what is no part of it")
    operands = tuple(operands_of(plan, group))
    if len(operands) > MOST_OPERANDS or len(group.nodes) > MOST_NODES:
        raise Refused("%d tensors are read and written and %d ops computed; a kernel has at most %d and %d" % (
            len(operands), len(group.nodes), MOST_OPERANDS, MOST_NODES))
    reason = refusal(plan)
    if reason:
        raise Refused(reason)
    traffic = [[4 * count for count in one.count] for one in operands]
    return group, Program(operands, (), tuple(map(sum, zip(*traffic))), step=plan)


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
    """What a value is made of, and itself."""
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
        return Operand(name, role, index, t.dtype, place, (0, count) if t.shape[:1] == (-1,) else (count, 0), **use)
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


# ---- forms, and what they should cost: arithmetic, not measurements -------------------------------------------------------------
def forms(plan):
    """The kernel's forms: tiles of so many samples."""
    staged = plan.staged(FACTORS)
    found = [Tiling(FACTORS, samples, staged, True, 4 * (samples * plan.pitch() + staged)) for samples in TILES]
    return tuple(one for one in found if one.bytes <= tiling.BUDGETS[-1] - STATIC)


def gradient_rows(width, out):
    """How many rows of a weight's gradient a thread has at once."""
    return next((n for n in (4, 2) if -(-width // 4) * -(-out // n) >= THREADS), 1)


def backward_cycles(form, width, out):
    """Of a multiprocessor, for a tile: the gradients of a product's operand and weight, as training_device.h has them."""
    slots = min(form.samples, 32)
    own, teams, warps, fours = form.samples // slots, THREADS // slots, THREADS // 32, -(-width // 4)
    wavefronts, instructions = own * slots / 8 + 4 * (32 // slots), 20 * own + 4
    operand = -(-fours // teams) * -(-out // 4) * max(warps * max(wavefronts, instructions / 4), NEAR)
    each = gradient_rows(width, out)
    passes = -(-fours * -(-out // each) // THREADS)
    weight = passes * (form.samples * max(warps * max(4 + each, (5 * each + 1) / 4), NEAR / 2) + FAR)
    return operand + weight


def cycles(plan, form):
    """Of a multiprocessor, for a tile."""
    back = sum(backward_cycles(form, width, out) for _, width, out in plan.linears())
    others = [step.tensor.id for step in plan.steps if step.tensor.op != "linear"]
    others += plan.outputs[:1] if plan.has_labels() else []
    return tiling.cycles(plan, form) + back + sum(
        form.samples * plan.count(i) * tiling.ELEMENT / tiling.LANES + NEAR for i in others)


def adding(plan):
    """Clocks in which one block adds another's sums to its own."""
    return max(4 * plan.summed() / STAGED, FAR / 6)


def clocks(plan, form, batch, multiprocessors):
    """Of a launch. As step_form in training_device.h has it."""
    tiles = -(-batch // form.samples)
    blocks = min(tiles, multiprocessors)
    return tiling.staging(form) + -(-tiles // blocks) * cycles(plan, form) + 2 * math.ceil(math.sqrt(blocks)) * adding(plan) + 4 * FAR


def apart(plan):
    """Of the steps by themselves: clocks more than this one launch has to begin, and clocks a sample of one multiprocessor. Those
    that are not elementwise are two launches, with what stands behind them; a layer has three products."""
    fixed = 2 * sum(not step.members for step in plan.steps) * (LAUNCH + tiling.ALONE) - LAUNCH
    return fixed * tiling.GIGAHERTZ * 1e9, 3 * tiling.each_apart(plan, FACTORS)


def form_for(plan, batch, card):
    """The form that a launch takes; None: none fits, or steps by themselves should be quicker."""
    fitting = [one for one in forms(plan) if one.bytes + STATIC <= card.room]
    best = min(fitting, key=lambda one: clocks(plan, one, batch, card.multiprocessors), default=None)
    fixed, each = apart(plan)
    limit = fixed + batch * each / card.multiprocessors
    return best if best and clocks(plan, best, batch, card.multiprocessors) <= limit else None


def seconds(plan, form, batch, card):
    return LAUNCH + clocks(plan, form, batch, card.multiprocessors) / (card.gigahertz * 1e9)


def refusal(plan):
    """Why no GPU has such a kernel; None: some have."""
    if not forms(plan):
        return "the values and gradients of %d samples and all weights take %d bytes of shared memory, where no block has more than %d" % (
            TILES[-1], 4 * (TILES[-1] * plan.pitch() + plan.staged(FACTORS)), tiling.BUDGETS[-1] - STATIC)
    if not any(form_for(plan, batch, card) for card in tiling.CARDS.values() for batch in tiling.BATCHES):
        return "step by step should be quicker, with %d multiplications a sample" % (3 * plan.products())
    return None
