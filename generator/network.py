"""A small network as one kernel for evaluation: all values between a model's inputs and its outputs, sample
by sample.

The layers must treat each sample by itself (linear, elementwise, norms and softmax of one row, residuals,
concatenations, embeddings, hash grids) and be narrow. Then a kernel needs only a few samples' values, in
cache or shared memory. emit_network.py writes it for CPUs, emit_network_cuda.py for GPUs. Networks of images
(convolutions, pools, batch norms) are for GPUs alone, and only if a block has shared memory for all values of
an image."""
import copy

from .graph import shape_text
from .inference import CONVOLUTIONS, VIEWS, Plan, Refused, is_elementwise
from .lower import BYTES, Infeasible, called, identifier
from .program import WHOLE, Operand, Program

NAME = "network"
NORMS = ("layer_norm", "rms_norm")
OPS = VIEWS + NORMS + ("linear", "softmax", "log_softmax", "sum", "concat", "slice", "permute", "expand",
                       "cast", "embedding", "hash_grid_encoding")
POOLS = ("max_pool2d", "avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool2d")
IMAGE_OPS = ("conv1d", "conv2d", "batch_norm") + POOLS
MOST_VALUES = 1024   # elements of a sample's value, or ...
MOST_PIXELS = 58112  # ... of one in a network of images, by the shared memory of a block
MOST_WIDE = 256      # columns of a linear layer's result
MOST_ROWS = 1 << 24  # rows of an embedding: indices are floats in shared memory
MOST_OPERANDS = 64   # gpunn.h's GPUNN_KERNEL_OPERANDS
MOST_NODES = 100     # as many as a kernel's table can number


def check(t, plan):
    """The reason why a value cannot be in such a kernel, or None."""
    if t.dtype != "f32" and not plan.is_given_integer(t):
        return "%s values are not supported" % t.dtype
    if t.kind == "value" and t.op not in OPS + IMAGE_OPS and not is_elementwise(t):
        return "the op does not work on single samples"
    if t.kind == "value" and t.op in IMAGE_OPS and plan.model.precision != "f32":
        return "a model of images must be F32 to be one kernel"
    if t.attrs.get("dim") == 0 or t.op in NORMS and t.attrs["dims"] == len(t.shape):
        return "it works along the batch"
    if t.kind in ("value", "input"):
        if t.shape[:1] != (-1,) or any(dim < 0 for dim in t.shape[1:]):
            return "%s is not a value of each sample" % shape_text(t.shape)
        most = MOST_PIXELS if plan.has_images() else MOST_VALUES
        if plan.count(t.id) > most:
            return "%d elements per sample, more than the limit of %d" % (plan.count(t.id), most)
    if t.op == "embedding" and plan.shape(t.inputs[1])[0] > MOST_ROWS:
        return "%d rows, more than the limit of %d" % (plan.shape(t.inputs[1])[0], MOST_ROWS)
    if t.op == "linear" and t.shape[-1] > MOST_WIDE:
        return "%d wide, more than the limit of %d" % (t.shape[-1], MOST_WIDE)
    return None


class SamplePlan(Plan):
    """One sample's values. Scalar constants are read from memory too, since a model with the same ops may
    have other ones."""

    storage = None  # dtypes in a GPU's memory, by id

    def is_number(self, i):
        return False

    def is_product(self, t):
        return False

    def has_images(self):
        return any(self.tensors[i].op in IMAGE_OPS for i in self.needed)

    def hash_calls(self):
        """The functions of hash_grid.h that a kernel calls."""
        return ["features"] * any(step.tensor.op == "hash_grid_encoding" for step in self.steps)

    def layers(self):
        """The steps whose weights get gradients by sums."""
        return [step.tensor for step in self.steps if step.tensor.op in ("linear",) + CONVOLUTIONS]


def plan_of(model, outputs):
    """The plan of a model. Raises Refused."""
    own = copy.copy(model)
    own.outputs = outputs
    return SamplePlan(own, 1, check)


def outputs_of(view):
    """The outputs that one kernel can compute, and the reason why it cannot compute the others."""
    model, outputs, reasons = view.model, [], []
    for i in dict.fromkeys(view.root[number] for number in model.outputs):
        try:
            if i != model.loss and len(plan_of(model, (i,)).layers()) > 1:
                outputs.append(i)
        except Refused as fault:
            reasons.append("'%s': %s" % (called(model.tensors[i]), str(fault).split(";")[0]))
    return tuple(outputs), reasons


def program(view):
    """The Group of nodes that one kernel computes in an evaluation's View, and its Program. Raises
    Refused."""
    model = view.model
    outputs, reasons = outputs_of(view)
    if not outputs:
        raise Refused("; ".join(reasons) or "no output depends on two linear layers or convolutions")
    plan = plan_of(model, outputs)
    plan.storage = [view.storage[root] for root in view.root]
    try:
        group = view.group(i for i in plan.needed if model.tensors[i].kind == "value")
    except Infeasible as fault:
        raise Refused(str(fault)) from None
    operands = tuple(operands_of(plan, group))
    if len(operands) > MOST_OPERANDS or len(group.nodes) > MOST_NODES:
        raise Refused("%d tensors are read and written and %d ops computed; a kernel has at most %d and %d" %
                      (
                          len(operands), len(group.nodes), MOST_OPERANDS, MOST_NODES))
    own = [t.id for t in group.externals] + [t.id for t in group.nodes if t.id in plan.outputs]
    return group, Program(operands, (), moved(plan, own, operands), network=plan)


def moved(plan, ids, operands):
    """The bytes that operands with these ids move: fixed, and per sample."""
    picked = dict(picks(plan))
    counts = [(0, picked[i]) if i in picked else one.count for i, one in zip(ids, operands)]
    return tuple(
        map(sum, zip(*([BYTES[one.dtype] * count for count in own] for one, own in zip(operands, counts)))))


def picks(plan):
    """(id, elements that a sample reads) for the weights of which a sample needs some rows."""
    for t in [step.tensor for step in plan.steps]:
        if t.op == "embedding":
            yield t.inputs[1], plan.count(t.id)
        if t.op == "hash_grid_encoding":
            yield t.inputs[1], plan.count(t.id) << plan.shape(t.inputs[0])[-1]


def operands_of(plan, group):
    names = set()
    for number, t in enumerate(group.externals):
        yield operand(plan, t, number, names, read=True)
    for number, t in enumerate(group.nodes):
        if t.id in plan.outputs:
            yield operand(plan, t, -1 - number, names, written=True)


def operand(plan, t, index, names, **use):
    name = identifier(called(t))
    while name in names:
        name += "_"
    names.add(name)
    count = plan.count(t.id)
    batch = t.shape[:1] == (-1,)
    return Operand(name, "value", index, plan.storage[t.id], WHOLE, (0, count) if batch else (count, 0),
                   **use)

