"""Plans a call of a model as plain C: its steps in order, and the memory of each value.

A value is in a Block: the caller's memory (inputs, weights, states), constants, or scratch. Reshapes,
dropout and contiguous slices are views of their operand's block. An assignment is a view of its state, which
it writes in place. Scratch blocks whose lifetimes do not overlap share memory."""
import math
from dataclasses import dataclass

from . import signature, table, template
from .graph import MAX_INT, shape_text

GIVEN = ("input", "parameter", "buffer", "constant", "state")
VIEWS = ("reshape", "dropout")
IN_PLACE = ("softmax", "log_softmax", "cumsum", "layer_norm", "rms_norm", "group_norm", "batch_norm",
            "instance_norm")  # and elementwise ops
CONVOLUTIONS = table.having("CONVOLUTION")
GATES = {"rnn": 1, "lstm": 4, "gru": 3}
REASONS = {
    "cross_entropy": "a loss; leave it out of \"outputs\"", "nll": "a loss; leave it out of \"outputs\"",
    "ctc_loss": "a loss; leave it out of \"outputs\"",
    "gradient_energy": "a loss; leave it out of \"outputs\"",
    "custom": "its code is the program's own; write it as an expr"}
# Ops that a function of their name computes.
WRITTEN = tuple(op for op in template.functions("inference_ops.h") if op in table.ops())
SUPPORTED = frozenset(CONVOLUTIONS + table.having("POOL") + VIEWS + IN_PLACE + tuple(GATES) + WRITTEN + (
    "assign", "linear", "matmul", "embedding", "hash_grid_encoding", "permute", "concat", "slice", "pad",
    "expand", "gather", "scatter_add", "scatter", "cast", "sum", "max", "argmax", "topk_indices",
    "interpolate", "scaled_dot_product_attention"))
INTEGER_RESULTS = ("cast", "reshape", "argmax", "topk_indices", "permute", "concat", "slice", "expand",
                   "gather", "scatter") + tuple(
    op for op in WRITTEN if signature.gives_integers(table.ops()[op].signature))


class Refused(Exception):
    """Why a model cannot be written in this form: one sentence that lists all reasons."""


@dataclass(eq=False)
class Block:
    kind: str            # input, weight, state, constant or scratch
    dtype: str
    count: int           # number of elements
    tensor: object       # the first value in it; None: workspace of a step
    first: int = 0       # the first step in which it is in use
    last: int = 0
    place: int = 0       # of scratch: offset in the array of its dtype
    output: object = None  # the output that it is
    merged: object = None  # the block of which it is a part

    def root(self):
        return self.merged.root() if self.merged else self


@dataclass(eq=False)
class Step:
    tensor: object       # the value that it computes
    members: tuple       # elementwise: ids that are computed together, operands first; else ()
    operands: tuple      # ids that it reads; None: left out
    room: object = None  # Block of workspace


def is_elementwise(t):
    return t.kind == "value" and table.ops()[t.op].arity > 0


def recurrent_matrices(t):
    """weight_ih, then weight_hh, of each direction of a recurrent layer."""
    return t.inputs[5::4] + t.inputs[6::4]


class Plan:
    UNIT = 1       # scratch offsets are multiples of this many elements
    WHOLE = False  # whether inputs and outputs are in scratch, too

    def __init__(self, model, batch=1, check=None, in_place=True, rings=True):
        """batch: samples of a call. check(tensor, plan): a further reason to reject a value, or None.
        in_place: whether results may take the memory of operands that are not read later. rings: whether a
        convolution of one element may keep its state as a ring, which blocks of other lengths cannot read."""
        self.model, self.tensors, self.batch = model, model.tensors, batch
        self.outputs = [i for i in dict.fromkeys(model.outputs) if i != model.loss]
        self.needed = self.reached()
        self.refuse(check)
        self.inputs = [t for t in self.tensors if t.kind == "input" and t.id in self.needed]
        self.weights = [t for t in self.tensors if t.kind in ("parameter", "buffer") and t.id in self.needed]
        self.rings = {}  # (id of the state, id of x) by id of a streaming convolution
        if rings:
            self.rings = self.find_rings()
        self.states = [t for t in self.tensors if t.kind == "state" and t.id in self.needed]
        self.steps = self.in_order()
        self.check_states()
        self.blocks, self.at = [], {}  # at: (Block, offset) by id
        self.lay_out(in_place)

    # ---- what there is to do ----
    def reached(self):
        """The ids of what the outputs need, and of all assignments to states among them."""
        needed, pending = set(), list(self.outputs)
        while pending:
            i = pending.pop()
            if i is not None and i not in needed:
                needed.add(i)
                pending.extend(self.tensors[i].inputs)
            if not pending:
                pending = [t.id for t in self.tensors if t.op == "assign" and t.id not in needed and
                           self.state_of(t.id).id in needed]
        return needed

    def state_of(self, i, past_assigns=True):
        """The state, or the assignment if not `past_assigns`, whose memory a value views. None: neither."""
        t = self.tensors[i]
        while t.kind == "value" and (past_assigns and t.op == "assign" or self.is_view(t)):
            t = self.tensors[t.inputs[0]]
        return t if t.kind == "state" or t.op == "assign" else None

    def refuse(self, check):
        if self.model.sizes:
            raise Refused("sizes vary between calls, '%s' for one; use numbers there" %
                          next(iter(self.model.sizes)))
        reasons = [] if self.outputs else ["the model has no outputs but its loss"]
        for t in self.tensors:
            if t.id not in self.needed:
                continue
            reason = None
            if t.kind == "value" and t.op not in SUPPORTED and not is_elementwise(t):
                reason = REASONS.get(t.op, "not written as plain C")
            elif t.kind == "value" and t.dtype != "f32" and t.op not in INTEGER_RESULTS:
                reason = "not written as plain C of integers"
            elif t.op in WRITTEN and any(self.tensors[i].dtype != "f32" for i in t.inputs if i is not None):
                reason = "not written as plain C of integers"
            elif t.kind == "state" and check:
                reason = "it changes between calls"
            elif t.kind == "state" and t.init[0] not in ("zeros", "constant"):
                reason = "its initial values are random"
            elif t.op == "scaled_dot_product_attention" and len(t.inputs) > 4:
                reason = "its lengths change between calls"
            elif t.op in GATES and t.inputs[4] is not None:
                reason = "resets within a sequence are not written as plain C"
            elif self.count(t.id) > MAX_INT:
                reason = "more than 2^31 - 1 elements, %s" % shape_text(self.shape(t.id))
            elif check:
                reason = check(t, self)
            if reason:
                reasons.append("%s%s: %s" % (t.op, " '%s'" % t.label if t.label else "", reason))
        if reasons:
            raise Refused("; ".join(dict.fromkeys(reasons)))

    def shape(self, i):
        return tuple(-dim * self.batch if dim < 0 else dim for dim in self.tensors[i].shape)

    def count(self, i):
        return math.prod(self.shape(i))

    def read(self, t):
        """The ids of what a value is computed from."""
        return self.rings[t.id][1:] + t.inputs[1:] if t.id in self.rings else t.inputs

    def readers(self):
        """The values that read a value, by its id."""
        result = {}
        for t in self.tensors:
            if t.id in self.needed:
                for i in set(self.read(t)) - {None}:
                    result.setdefault(i, []).append(t)
        return result

    def find_rings(self):
        """Finds the convolutions of a state and one new element of each sequence. Their state becomes a ring,
        so that its elements stay where they are. The other values of the pattern are not needed then."""
        readers, found = self.readers(), {}
        for t in self.tensors:
            pattern = self.ring_of(t, readers) if t.id in self.needed and t.op == "conv1d" else None
            if pattern:
                found[t.id], rest = pattern
                self.needed -= rest
        return found

    def ring_of(self, t, readers):
        """((id of the state, id of x), ids that are not needed), or None: the convolution reads
        seen = concat(state, x), and seen[:, :, 1:] is assigned to the state."""
        seen = self.tensors[t.inputs[0]]
        if (seen.op != "concat" or len(seen.inputs) != 2 or self.tensors[seen.inputs[0]].kind != "state" or
            not self.is_product(t)):
            return None
        state, x = seen.inputs
        (past,), (dilation,) = self.shape(state)[2:], t.attrs["dilation"]
        last = [one for one in readers[seen.id] if one is not t]
        assigns = readers.get(last[0].id, ()) if len(last) == 1 else ()
        rest = {seen.id} | {one.id for one in (*last, *assigns)}
        if ([one.op for one in (*last, *assigns)] == ["slice", "assign"] and
            assigns[0].inputs == (state, last[0].id, None) and self.shape(last[0].id) == self.shape(state) and
            last[0].attrs["start"] == self.shape(x)[2] == 1 and
            past == dilation * (self.shape(t.inputs[1])[2] - 1) and
            {one.id for one in readers[state]} == rest - {last[0].id} and not rest & set(self.outputs)):
            return (state, x), rest
        return None

    def in_order(self):
        """The steps. An elementwise value joins a later step if only that step reads it, if it reads no
        state, and if all values there are elementwise with its shape. Assignments that nothing reads come
        last."""
        readers = self.readers()
        home = {}  # by id of an elementwise value, the value that its step computes
        for t in reversed(self.tensors):
            if t.id in self.needed and is_elementwise(t):
                homes = {home.get(r.id) if self.shape(r.id) == self.shape(t.id) else None
                         for r in readers.get(t.id, ())}
                inner = (t.id not in self.outputs and len(homes) == 1 and None not in homes and
                         not any(self.state_of(i) for i in t.inputs))
                home[t.id] = homes.pop() if inner else t.id
        members = {}
        for i in sorted(home):
            members.setdefault(home[i], []).append(i)
        steps = []
        for t in self.tensors:
            if (t.id not in self.needed or t.kind != "value" or home.get(t.id, t.id) != t.id or
                self.is_view(t)):
                continue
            own = tuple(members.get(t.id, ()))
            read = [i for m in own for i in self.tensors[m].inputs if i not in own and not self.is_number(i)]
            steps.append(Step(t, own, tuple(dict.fromkeys(read)) if own else self.read(t)))
        return sorted(steps, key=lambda step: step.tensor.op == "assign" and step.tensor.id not in readers)

    def check_states(self):
        """Rejects a model that reads a state's value from before an assignment that has been done."""
        current = {}
        for step in self.steps:
            for i in step.operands:
                seen = None if i is None else self.state_of(i, False)
                state = seen and self.state_of(i)
                if seen and current.get(state.id, state) is not seen:
                    raise Refused("state '%s' is read after an assignment to it" % state.label)
            if step.tensor.op == "assign":
                current[self.state_of(step.tensor.id).id] = step.tensor

    def is_number(self, i):
        return self.tensors[i].kind == "constant" and self.count(i) == 1

    def is_view(self, t):
        if t.op in VIEWS:
            return True
        return (t.op == "slice" and t.attrs["step"] == 1 and
                math.prod(self.shape(t.inputs[0])[:t.attrs["dim"]]) == 1)

    def is_given_integer(self, t):
        """Whether a value is integers from the caller, perhaps reshaped."""
        if t.op == "reshape":
            return self.is_given_integer(self.tensors[t.inputs[0]])
        return t.kind == "input" and t.dtype in ("i64", "i32", "u8")

    # ---- memory ----
    def lay_out(self, in_place):
        numbers = {step.tensor.id: k for k, step in enumerate(self.steps)}
        for t in self.tensors:
            if t.id not in self.needed:
                continue
            if t.op == "assign" or t.kind == "value" and self.is_view(t):
                block, offset = self.at[t.inputs[0]]
                if t.op == "slice":
                    offset += t.attrs["start"] * math.prod(self.shape(t.id)[t.attrs["dim"] + 1:])
                self.at[t.id] = block, offset
            elif t.kind in GIVEN or t.id in numbers:
                near = "scratch" if self.WHOLE else "input"
                kind = {"value": "scratch", "input": near, "constant": "constant", "state": "state"}.get(
                    t.kind, "weight")
                self.at[t.id] = self.block(kind, t.dtype, self.count(t.id), t, numbers.get(t.id, 0)), 0
        for k, step in enumerate(self.steps):
            for i in step.operands:
                if i is not None:
                    self.at[i][0].last = k
            count = self.room(step)
            if count:
                step.room = self.block("scratch", "f32", count, None, k)
        for i in self.outputs:
            block, offset = self.at[i]
            block.last = len(self.steps)
            if (block.kind == "scratch" and offset == 0 and block.count == self.count(i) and
                block.output is None and not self.WHOLE):
                block.output = self.tensors[i]
        for k, step in enumerate(self.steps if in_place else ()):
            self.merge(k, step)
        for dtype in ("f32", "i64", "i32", "u8"):
            self.pack([block for block in self.scratch() if self.array(block) == dtype])

    def block(self, kind, dtype, count, tensor, first):
        self.blocks.append(Block(kind, dtype, count, tensor, first, first))
        return self.blocks[-1]

    def merge(self, k, step):
        """Computes in place if an operand has the result's form and is not read later."""
        if not (step.members or step.tensor.op in IN_PLACE):
            return
        own = self.at[step.tensor.id][0]
        read = [(i, self.at[i][0].root(), self.at[i][1]) for i in step.operands if i is not None]
        for i, block, _ in read if step.members else read[:1]:
            alike = all(offset == 0 and self.shape(j) == self.shape(step.tensor.id)
                        for j, other, offset in read if other is block)
            if (block.kind == "scratch" and block.last == k and block.count == own.count and
                block.dtype == own.dtype and alike):
                own.merged = block
                block.last, block.output = own.last, own.output
                return

    @staticmethod
    def array(block):
        """The array of scratch that holds a block."""
        return "u8" if block.dtype == "bool" else block.dtype

    def scratch(self):
        """The blocks that need an offset."""
        return [block for block in self.blocks if block.kind == "scratch" and not block.merged and
                not block.output]

    @classmethod
    def room_for(cls, block):
        return -(-block.count // cls.UNIT) * cls.UNIT

    @classmethod
    def pack(cls, blocks):
        """Places the largest block first, each at the lowest offset that is free during its lifetime."""
        placed = []
        for block in sorted(blocks, key=lambda one: (-one.count, one.first)):
            for other in sorted(placed, key=lambda one: one.place):
                if other.first <= block.last and block.first <= other.last and (
                        other.place < block.place + cls.room_for(block) and
                        block.place < other.place + cls.room_for(other)):
                    block.place = other.place + cls.room_for(other)
            placed.append(block)

    def sizes(self):
        """The elements of scratch for each dtype that is used."""
        result = {}
        for block in self.scratch():
            result[self.array(block)] = max(result.get(self.array(block), 0),
                                            block.place + self.room_for(block))
        return {dtype: result[dtype] for dtype in ("i64", "f32", "i32", "u8") if dtype in result}

    def room(self, step):
        """The floats of workspace that a step needs."""
        t = step.tensor
        if t.op in GATES:
            hidden = self.shape(t.inputs[6])[1]
            return (2 * GATES[t.op] + 2) * hidden
        if t.op in CONVOLUTIONS and self.is_product(t) and (t.id in self.rings or not self.takes_all(t)):
            return math.prod(self.shape(t.inputs[0])[:2] + self.shape(t.inputs[1])[2:])
        if t.op == "scaled_dot_product_attention":
            last = t.attrs["heads_last"] or t.inputs[1] is None
            return self.shape(t.inputs[1] if t.inputs[1] is not None else t.inputs[0])[1 if last else 2]
        return 0

    def is_product(self, t):
        """Whether a convolution has one output position, without padding: a product."""
        return (not t.op.startswith("conv_transpose") and t.attrs["groups"] == 1 and
                math.prod(self.shape(t.id)[2:]) == 1 and not any(t.attrs["padding"]))

    def takes_all(self, t):
        """Whether the window of such a convolution is all of x."""
        return self.shape(t.inputs[0])[2:] == self.shape(t.inputs[1])[2:]

    def products(self):
        """Multiplications of a call in matrix products, convolutions, recurrent layers and attention."""
        total = 0
        for step in self.steps:
            t = step.tensor
            if t.op == "linear":
                total += self.count(t.id) * self.shape(t.inputs[1])[1]
            elif t.op == "matmul":
                total += self.count(t.id) * self.shape(t.inputs[0])[-2 if t.attrs["transpose_a"] else -1]
            elif t.op in CONVOLUTIONS:
                wide = t.inputs[0] if t.op.startswith("conv_transpose") else t.id
                total += self.count(wide) * math.prod(self.shape(t.inputs[1])[1:])
            elif t.op in GATES:
                steps = math.prod(self.shape(t.inputs[0])[:2])
                total += steps * sum(map(self.count, recurrent_matrices(t)))
            elif t.op == "scaled_dot_product_attention":
                width = self.shape(t.inputs[0])[-1] + self.shape(t.id)[-1]
                total += self.count(t.id) // self.shape(t.id)[-1] * self.room(step) * width
        return total
