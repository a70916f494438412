"""Reads the models of KANN (kann_save, kad_save): a graph of nodes, its variables and its constants."""
import collections
import math
import struct

from .arrays import Array
from .network import BATCH, Cursor, Network
from .onnx_import import FAULTS
from .spec_writer import Refused
from .tensor_files import FileError

MAGIC = b"KAN\1"
MAX_NODES, MAX_RANK = 1 << 16, 4
VARIABLE, CONSTANT, POOL = 1, 2, 4  # of a node's flag
INPUT, OUTPUT, TRUTH, COST = 1, 2, 4, 8  # of its flag for kann.h
NAMES = (None, "add", "mul", "cmul", "ce_bin_neg", "square", "sigm", "tanh", "relu", "matmul", "avg",
         "1minus", "select", "ce_multi", "softmax", "dropout", "conv2d", "max2d", "conv1d", "max1d", "slice",
         "max", "ce_bin", "sub", "sample_normal", "reduce_sum", "reduce_mean", "log", "avg1d", "mse",
         "reshape", "concat", "stdnorm", "exp", "sin", "stack", "reverse")
SAME = {"sigm": "Sigmoid", "tanh": "Tanh", "relu": "Relu", "log": "Log", "exp": "Exp", "sin": "Sin"}
TINY = 1e-9  # the least probability in KANN's costs


class Node:
    """op: its name; None for a leaf. pre: the node whose value it is at the next step. shape: a leaf's."""

    def __init__(self, cursor, index):
        self.label, = cursor.integers()
        self.external, = cursor.integers(signed=False)
        self.flag, = cursor.integers(size=1)
        count, = cursor.integers()
        self.op, self.children, self.pre, self.settings, self.shape, self.array = None, [], None, [], (), None
        if not 0 <= count <= MAX_NODES:
            raise FileError("node %d has %d operands" % (index, count))
        if count:
            self.read_op(cursor, index, count)
        else:
            rank, = cursor.integers(size=1)
            if not 0 <= rank <= MAX_RANK:
                raise FileError("node %d has %d dimensions" % (index, rank))
            self.shape = tuple(cursor.integers(rank))
            if any(size < 1 for size in self.shape):
                raise FileError("node %d has the shape %s" % (index, list(self.shape)))

    def read_op(self, cursor, index, count):
        number, = cursor.integers(size=2)
        if not 0 < number < len(NAMES):
            raise FileError("node %d is an op of number %d, which KANN r557 does not have" % (index, number))
        self.op, self.children = NAMES[number], cursor.integers(count)
        self.pre, size = cursor.integers(2)
        if any(not 0 <= i < index for i in self.children) or self.pre >= index:
            raise FileError("node %d reads a node that does not come before it" % index)
        raw = cursor.take(size)
        self.settings = struct.unpack("<%di" % (size // 4), raw[:size // 4 * 4])

    def is_leaf(self, flag):
        return self.op is None and bool(self.flag & flag)

    def kind(self):
        """What a feed is for."""
        return "input" if self.external & INPUT else "truth" if self.external & TRUTH else "feed"

    def is_pivot(self):
        return len(self.children) == 1 and bool(self.flag & POOL)


def read(path):
    """The nodes of a file."""
    with open(path, "rb") as file:
        cursor = Cursor(file.read())
    try:
        if cursor.take(4) != MAGIC:
            raise FileError("it does not begin with %s" % MAGIC)
        count, = cursor.integers()
        if not 0 < count <= MAX_NODES:
            raise FileError("it has %d nodes" % count)
        nodes = []
        while len(nodes) < count:
            nodes.append(Node(cursor, len(nodes)))
        for flag in (VARIABLE, CONSTANT):
            for node in nodes:
                # KANN writes a leaf with both flags among its variables
                if node.is_leaf(flag) and node.array is None:
                    node.array = cursor.floats(*node.shape)
        if cursor.left():
            raise FileError("%d bytes follow its numbers" % cursor.left())
    except (FileError, struct.error) as error:
        raise FileError("%s: this is no model of KANN: %s" % (path, error)) from None
    return nodes


def length(shape):
    """The number of elements of one sample."""
    return math.prod(size for size in shape if size != BATCH)


def rows_and_columns(shape, columns):
    """The axes of shape that are rows, if the others have so many columns in all."""
    for rows in reversed(range(len(shape))):
        if length(shape[rows:]) == columns and BATCH not in shape[rows:]:
            return rows
    raise Refused("%s is no matrix with %d columns" % (shape_text(shape), columns))


def shape_text(shape):
    return "[%s]" % ", ".join(map(str, shape))


class Converter:
    """Appends the ops of nodes to a Network. values: by node, its name there and its shape. steps: the length
    of sequences; None: one step from the initial state."""

    def __init__(self, nodes, steps=None):
        self.nodes, self.steps, self.network, self.values = nodes, steps, Network(), {}
        self.readers, self.layers, counts = [[] for _ in nodes], {}, collections.Counter()
        for index, node in enumerate(nodes):
            for i in node.children:
                self.readers[i].append(index)
            kind = {"cmul": "linear", "conv1d": "conv", "conv2d": "conv"}.get(node.op)
            if kind:
                counts[kind] += 1
                self.layers[index] = "%s%d" % (kind, counts[kind])
        self.joined = {self.product_of(index) for index in range(len(nodes))}
        self.feeds = {i for i, node in enumerate(nodes) if node.op is None and node.array is None}
        self.kinds = collections.Counter(nodes[i].kind() for i in self.feeds)
        self.repeated = self.of_each_step() if steps else set()
        self.notes = []

    def product_of(self, index):
        """The product with a weight of which a node is the sum with a bias, and which nothing else reads."""
        node = self.nodes[index]
        if node.op != "add" or len(node.children) != 2 or len(self.readers[node.children[0]]) != 1:
            return None
        product, bias = [self.nodes[i] for i in node.children]
        if product.op != "cmul" or len(product.children) != 2:
            return None
        weight = self.nodes[product.children[1]]
        fits = weight.is_leaf(VARIABLE) and bias.is_leaf(VARIABLE) and bias.shape == weight.shape[:1]
        return node.children[0] if fits else None

    # -- leaves --
    def leaf(self, index):
        node, net = self.nodes[index], self.network
        if node.is_leaf(VARIABLE):
            return net.weight(self.weight_name(index), self.kernel(index)), node.shape
        if node.is_leaf(CONSTANT):
            return net.op("Constant", value=node.array), node.shape
        kind, shape = node.kind(), (BATCH,) + node.shape[1:]
        steps = (self.steps,) if index in self.repeated else ()
        return net.input(kind if self.kinds[kind] == 1 else net.unique(kind), steps + shape), shape

    def weight_name(self, index):
        """The name of a layer's parameter, or one by its own kind."""
        for reader in self.readers[index]:
            children = self.nodes[reader].children
            if index in children[1:] and reader in self.layers:
                return "%s.weight" % self.layers[reader]
            if index in children[1:] and self.product_of(reader) is not None:
                return "%s.bias" % self.layers[children[0]]
        return self.network.unique("parameter")

    def kernel(self, index):
        """The numbers of a variable, as gpunn has them. KANN turns kernels by 180 degrees, and leaves out
        their first rows where these lie in the padding above: those become 0."""
        node, readers = self.nodes[index], [self.nodes[i] for i in self.readers[index]]
        skipped = {other.settings[2] if other.op == "conv2d" else 0 for other in readers
                   if other.op in ("conv1d", "conv2d")}
        if not skipped:
            return node.array
        if len(skipped) > 1 or any(other.op not in ("conv1d", "conv2d") for other in readers):
            raise Refused("node %d is a kernel of several ops that read it in different ways" % index)
        size, first = math.prod(node.shape[2:]), skipped.pop() * node.shape[-1]
        values = [node.array.values[i:i + size][::-1] for i in range(0, math.prod(node.shape), size)]
        return Array("float32", node.shape, [x for own in values for x in [0.0] * first + own[first:]])

    # -- sequences --
    def ancestors(self, indices):
        """All nodes that some depend on, themselves included."""
        found, pending = set(), list(indices)
        while pending:
            index = pending.pop()
            if index not in found:
                found.add(index)
                pending.extend(self.nodes[index].children)
        return found

    def dependants(self, indices):
        """All nodes that depend on some, themselves included."""
        found = set(indices)
        for index, node in enumerate(self.nodes):
            if found.intersection(node.children):
                found.add(index)
        return found

    def of_each_step(self):
        """The nodes that each step of a sequence computes anew: below a pivot, with an input or a state."""
        pivots = [i for i, node in enumerate(self.nodes) if node.is_pivot()]
        below = self.ancestors([i for pivot in pivots for i in self.nodes[pivot].children])
        states = [node.pre for node in self.nodes if node.pre is not None and node.pre >= 0]
        return below & self.dependants(self.feeds.union(states))

    def run(self):
        """Converts all nodes. Returns the names of the outputs and of the cost, or None."""
        repeated = self.repeated
        if self.steps and not repeated:
            raise Refused("it has no pivot and so no steps: leave out --steps")
        later = self.dependants(repeated) - repeated
        for index in range(len(self.nodes)):
            if index not in repeated | later or index in self.feeds:
                self.convert(index)
        sequences = {i: self.values[i] for i in self.feeds if i in repeated}
        kept = {i: [] for i in repeated}
        for step in range(self.steps or 0):
            self.step(step, sequences)
            for i in repeated:
                kept[i].append(self.values.get(i))
        for index in sorted(later):
            self.convert(index, kept)
        return self.named_results(kept)

    def step(self, step, sequences):
        """Converts the nodes of one step. A state is the value that its node had a step before."""
        before = dict(self.values)
        after = {node.pre: i for i, node in enumerate(self.nodes) if node.pre is not None and node.pre >= 0}
        for index in sorted(self.repeated):
            if index in sequences:
                name, shape = sequences[index]
                place = self.network.numbers("int64", (), [step])
                self.values[index] = self.network.op("Gather", name, place, axis=0), shape
            elif index in after and step > 0:
                self.values[index] = before[after[index]]
            else:
                self.convert(index)

    def named_results(self, kept):
        net, outputs, cost = self.network, [], None
        marked = [i for i, node in enumerate(self.nodes) if node.external & OUTPUT]
        if not marked:
            raise Refused("no node has the flag KANN_F_OUT")
        for index in marked:
            name = "output" if len(marked) == 1 else net.unique("output")
            parts = kept.get(index)
            value = self.stacked([x for x, _ in parts]) if parts else self.values[index][0]
            outputs.append(net.op("Identity", value, name=name))
        costs = [i for i, node in enumerate(self.nodes) if node.external & COST]
        if len(costs) == 1 and self.values[costs[0]][1] == ():
            cost = net.op("Identity", self.values[costs[0]][0], name="cost")
        return outputs, cost

    def stacked(self, names):
        net = self.network
        rows = [net.op("Unsqueeze", name, net.integers(0)) for name in names]
        return net.op("Concat", *rows, axis=0)

    # -- ops --
    def convert(self, index, kept=None):
        """Appends the ops of a node. kept: by node, its values at all steps."""
        node = self.nodes[index]
        if node.op is None:
            self.values[index] = self.leaf(index)
            return
        if index in self.joined:  # a part of its reader
            return
        operands = [self.values.get(i) for i in node.children]
        if node.is_pivot() and kept:
            operands = kept[node.children[0]]
        try:
            if self.product_of(index) is not None:
                self.values[index] = self.product(self.product_of(index), node.children[1])
            elif node.op in SAME:
                (x, shape), = operands
                self.values[index] = self.network.op(SAME[node.op], x), shape
            else:
                self.values[index] = getattr(self, "op_" + node.op)(index, *operands)
        except (Refused,) + FAULTS as error:
            raise Refused("node %d, %s: %s" % (index, node.op, error)) from None

    def product(self, index, bias=None):
        """A linear layer, or a product with another node's value transposed."""
        net, (left, right) = self.network, self.nodes[index].children
        (x, shape), (w, other) = self.values[left], self.values[right]
        columns = max(shape[-1], other[-1]) if BATCH not in (shape[-1], other[-1]) else other[-1]
        rows, others = [self.as_matrix(name, own, columns) for name, own in ((x, shape), (w, other))]
        name = net.op("Gemm", rows[0], others[0], bias and self.values[bias][0], transB=1,
                      place=self.layers[index])
        return name, (rows[1], others[1])

    def as_matrix(self, name, shape, columns):
        """A value with so many columns, and its number of rows."""
        axis = rows_and_columns(shape, columns)
        rows = BATCH if BATCH in shape[:axis] else length(shape[:axis])
        if BATCH in shape[:axis] and length(shape[:axis]) != 1:
            raise Refused("%s has more rows than samples" % shape_text(shape))
        if len(shape) == 2 and axis == 1:
            return name, rows
        size = -1 if rows == BATCH else rows
        return self.network.op("Reshape", name, self.network.integers(size, columns)), rows

    def op_cmul(self, index, x, y):
        return self.product(index)

    def op_matmul(self, index, x, y):
        net, parts = self.network, []
        for name, shape in (x, y):
            rows, columns = (1, shape[0]) if len(shape) == 1 else (shape[0], length(shape[1:]))
            size = -1 if rows == BATCH else rows
            parts.append((net.op("Reshape", name, net.integers(size, columns)), rows, columns))
        return net.op("MatMul", parts[0][0], parts[1][0]), (parts[0][1], parts[1][2])

    def elementwise(self, op, x, y):
        """y repeats along the first axes of x."""
        own = list(y[1])
        while own and own[0] == 1:
            own.pop(0)
        if tuple(own) != x[1][len(x[1]) - len(own):] and not (x[1][:1] == (1,) and y[1][:1] == (BATCH,)):
            raise Refused("its operands are %s and %s" % (shape_text(x[1]), shape_text(y[1])))
        shape = y[1] if BATCH in y[1] and BATCH not in x[1] else x[1]
        return self.network.op(op, x[0], y[0]), shape

    def op_add(self, index, x, y):
        return self.elementwise("Add", x, y)

    def op_sub(self, index, x, y):
        return self.elementwise("Sub", x, y)

    def op_mul(self, index, x, y):
        return self.elementwise("Mul", x, y)

    def op_square(self, index, x):
        return self.network.op("Mul", x[0], x[0]), x[1]

    def op_1minus(self, index, x):
        return self.network.op("Sub", self.network.number(1), x[0]), x[1]

    def op_softmax(self, index, x):
        return self.network.op("Softmax", x[0], axis=-1), x[1]

    def op_stdnorm(self, index, x):
        """A row without deviation becomes 0."""
        return self.network.op("LayerNormalization", x[0], None, axis=-1, epsilon=1e-30), x[1]

    def op_sample_normal(self, index, x):
        return self.network.op("Mul", x[0], self.network.op("RandomNormalLike", x[0])), x[1]

    def op_dropout(self, index, x, rate):
        self.note("dropout is left out: models are imported for evaluation")
        return x

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)

    def op_select(self, index, *operands):
        """kann_switch takes the first of two in evaluation."""
        which = 0 if len(operands) == 2 else self.nodes[index].settings[0]
        return operands[which]

    def op_avg(self, index, *operands):
        return self.over_nodes("Mean", operands)

    def op_max(self, index, *operands):
        return self.over_nodes("Max", operands)

    def over_nodes(self, op, operands):
        names = [name for name, _ in operands]
        return (names[0] if len(names) == 1 else self.network.op(op, *names)), operands[0][1]

    def op_stack(self, index, *operands):
        return self.stacked([name for name, _ in operands]), (len(operands),) + operands[0][1]

    # -- windows --
    def windows(self, index, shape, kernel=None):
        """Attributes of ONNX's windows, and the shape of the results' axes."""
        settings, axes = self.nodes[index].settings, len(shape) - 2
        if len(settings) != 4 * axes:
            raise Refused("x is %s" % shape_text(shape))
        size, stride, before, after = [list(settings[i::4]) for i in range(4)]
        size = list(kernel or size)
        counts = tuple((n - k + b + a) // s + 1
                       for n, k, s, b, a in zip(shape[2:], size, stride, before, after))
        return {"kernel_shape": size, "strides": stride, "pads": before + after}, counts

    def convolution(self, index, x, weight):
        window, counts = self.windows(index, x[1], weight[1][2:])
        name = self.network.op("Conv", x[0], weight[0], place=self.layers[index], **window)
        return name, x[1][:1] + weight[1][:1] + counts

    op_conv1d = op_conv2d = convolution

    def pool(self, op, index, x):
        window, counts = self.windows(index, x[1])
        axes = len(counts)
        if any(window["pads"][:axes]):
            raise Refused("it has padding before the first cell, where KANN reads other cells")
        return self.network.op(op, x[0], **window), x[1][:2] + counts

    def op_max1d(self, index, x):
        return self.pool("MaxPool", index, x)

    op_max2d = op_max1d

    def op_avg1d(self, index, x):
        return self.pool("AveragePool", index, x)

    # -- shapes --
    def op_slice(self, index, x):
        net, (axis, start, end) = self.network, self.nodes[index].settings
        if not 0 <= axis < len(x[1]) or x[1][axis] == BATCH or not 0 <= start < end <= x[1][axis]:
            raise Refused("it takes %d to %d of axis %d of %s" % (start, end, axis, shape_text(x[1])))
        name = net.op("Slice", x[0], *[net.integers(value) for value in (start, end, axis)])
        return name, x[1][:axis] + (end - start,) + x[1][axis + 1:]

    def op_concat(self, index, *operands):
        axis, shape = self.nodes[index].settings[0], operands[0][1]
        if not 0 <= axis < len(shape) or shape[axis] == BATCH:
            raise Refused("it joins axis %d of %s" % (axis, shape_text(shape)))
        size = sum(own[axis] for _, own in operands)
        name = self.network.op("Concat", *[name for name, _ in operands], axis=axis)
        return name, shape[:axis] + (size,) + shape[axis + 1:]

    def op_reverse(self, index, x):
        axis = (self.nodes[index].settings or (0,))[0]
        axis += len(x[1]) * (axis < 0)
        if not 0 <= axis < len(x[1]) or x[1][axis] == BATCH:
            raise Refused("it turns axis %d of %s round" % (axis, shape_text(x[1])))
        places = self.network.integers(*range(x[1][axis] - 1, -1, -1))
        return self.network.op("Gather", x[0], places, axis=axis), x[1]

    def op_reshape(self, index, x):
        """KANN's rule for sizes that are left out: the last follows from the others, those before are x's."""
        own = [1 if size == BATCH else size for size in x[1]]
        wanted = list(self.nodes[index].settings) or own
        missing = [i for i, size in enumerate(wanted) if size <= 0]
        for i in missing[:-1]:
            wanted[i] = own[i]
        if missing:
            rest = wanted[:missing[-1]] + wanted[missing[-1] + 1:]
            wanted[missing[-1]] = math.prod(own) // math.prod(rest)
        batch = BATCH in x[1]
        if math.prod(wanted) != math.prod(own) or (batch and (x[1][0] != BATCH or wanted[0] != 1)):
            raise Refused("it makes %s of %s" % (shape_text(wanted), shape_text(x[1])))
        sizes = [-1] * batch + wanted[batch:]
        name = self.network.op("Reshape", x[0], self.network.integers(*sizes))
        return name, (BATCH,) * batch + tuple(wanted[batch:])

    def reduce(self, op, index, x):
        axis, = self.nodes[index].settings
        if not 0 <= axis < len(x[1]) or x[1][axis] == BATCH:
            raise Refused("it joins axis %d of %s" % (axis, shape_text(x[1])))
        name = self.network.op(op, x[0], self.network.integers(axis), keepdims=0)
        return name, x[1][:axis] + x[1][axis + 1:]

    def op_reduce_sum(self, index, x):
        return self.reduce("ReduceSum", index, x)

    def op_reduce_mean(self, index, x):
        return self.reduce("ReduceMean", index, x)

    # -- costs: means of t log(t / max(p, TINY)), where 0 log 0 is 0 --
    def entropy(self, p, t, scale=1.0):
        net = self.network
        logs = [net.op("Log", net.op("Max", x, net.number(least))) for x, least in ((t, 1e-37), (p, TINY))]
        product = net.op("Mul", t, net.op("Sub", *logs))
        return product if scale == 1 else net.op("Mul", product, net.number(scale))

    def mean(self, x):
        axes = self.network.integers(*range(len(x[1])))
        return self.network.op("ReduceMean", x[0], axes, keepdims=0), ()

    def op_ce_multi(self, index, p, t, weight=None):
        net, x = self.network, self.entropy(p[0], t[0])
        x = x if weight is None else net.op("Mul", x, weight[0])
        return self.mean((net.op("ReduceSum", x, net.integers(len(t[1]) - 1), keepdims=0), t[1][:-1]))

    def both(self, p, t, one_less, scale):
        """Of two classes: entropy(p, t) and that of the other class, which one_less gives."""
        net = self.network
        parts = [self.entropy(p[0] if i == 0 else one_less(p[0]), t[0] if i == 0 else one_less(t[0]), scale)
                 for i in (0, 1)]
        return self.mean((net.op("Add", *parts), t[1]))

    def op_ce_bin(self, index, p, t):
        net = self.network
        return self.both(p, t, lambda x: net.op("Sub", net.number(1), x), 1.0)

    def op_ce_bin_neg(self, index, p, t):
        """Of numbers from -1 to 1."""
        net = self.network
        p, t = [(net.op("Add", x, net.number(1)), shape) for x, shape in (p, t)]
        return self.both(p, t, lambda x: net.op("Sub", net.number(2), x), 0.5)

    def op_mse(self, index, x, t):
        net, difference = self.network, self.elementwise("Sub", x, t)
        return self.mean((net.op("Mul", difference[0], difference[0]), difference[1]))


def converted(title, file, steps=None):
    """The spec of a file, its weights and notes."""
    nodes = read(file)
    try:
        converter = Converter(nodes, steps)
        outputs, cost = converter.run()
    except Refused as why:
        raise FileError("%s: %s" % (file, why)) from None
    result, weights, notes = converter.network.spec(title, outputs, cost)
    return result, weights, converter.notes + notes
