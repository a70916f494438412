"""References for tests: evaluate a model's nodes one by one, and programs launch by launch. Memory is lists
of Python floats."""
import itertools
import math

from generator import ir, table
from generator.floats import ROUND


def dims(shape, batch):
    return tuple(-dim * batch if dim < 0 else dim for dim in shape)


def count(shape):
    return math.prod(shape)


def keep_factor(k, p, i):
    """Replaces dropout's random numbers: any function of the random stream k and the element will do."""
    kept = int((1 - p) * 65536 + 0.5)
    return 65536 / kept if (i * 40503 + k * 30011 + 12345) * 2654435761 % 2 ** 32 / 2 ** 16 < kept else 0.0


# ---- nodes -------------------------------------------------------------------------------------------------
def broadcast_index(narrow, wide):
    """For each element of shape `wide`, the index of the element of shape `narrow` that it reads."""
    narrow = (1,) * (len(wide) - len(narrow)) + tuple(narrow)
    steps, step = [0] * len(wide), 1
    for axis in reversed(range(len(wide))):
        steps[axis] = step if narrow[axis] != 1 else 0
        step *= narrow[axis]
    return [sum(a * b for a, b in zip(index, steps)) for index in itertools.product(*map(range, wide))]


def lines(shape, axes):
    """Lists of the elements that differ only along the axes."""
    found = {}
    for number, index in enumerate(itertools.product(*map(range, shape))):
        found.setdefault(tuple(0 if axis in axes else at for axis, at in enumerate(index)), []).append(number)
    return list(found.values())


def softmax(row, log):
    top = max(row)
    total = math.fsum(math.exp(value - top) for value in row)
    return [value - top - math.log(total) if log else math.exp(value - top) / total for value in row]


def norm(row, eps, centered=True):
    mean = math.fsum(row) / len(row) if centered else 0.0
    rstd = 1 / math.sqrt(math.fsum((value - mean) ** 2 for value in row) / len(row) + eps)
    return [(value - mean) * rstd for value in row]


def row_loss(row, label, weight, attrs, log):
    """The loss of one row, and its weight in a mean."""
    if label == attrs["ignore_index"]:
        return 0.0, 0.0
    below = softmax(row, True) if log else row
    smoothing = attrs.get("label_smoothing", 0.0)
    cost = -(1 - smoothing) * weight[label] * below[label]
    cost -= smoothing / len(row) * math.fsum(w * value for w, value in zip(weight, below))
    return cost, weight[label]


def compute(model, node, values, batch, training, random_streams):
    """The value of a node from those of its operands. random_streams: {id of a dropout: number}."""
    operands = [None if number is None else values[number] for number in node.inputs]
    shapes = [None if number is None else dims(model.tensors[number].shape, batch) for number in node.inputs]
    shape, x = dims(node.shape, batch), operands[0]
    if table.ops()[node.op].arity:
        graph = ir.Graph()
        root = graph.apply(node.op, node.attrs, [graph.load(k) for k in range(len(operands))])
        index = [broadcast_index(narrow, shape) for narrow in shapes]
        return ir.evaluate([root], count(shape), lambda k, i: operands[k][index[k][i]])[0]
    if node.op in ("reshape", "cast") or (node.op == "dropout" and not training):
        return list(x)
    if node.op == "dropout":
        return [value * keep_factor(random_streams[node.id], node.attrs["p"], i) for i, value in enumerate(x)]
    if node.op == "permute":
        inverse = broadcast_index(shapes[0], shapes[0])
        strides = [math.prod(shapes[0][axis + 1:]) for axis in range(len(shapes[0]))]
        return [x[inverse[sum(at * strides[axis] for at, axis in zip(index, node.attrs["dims"]))]]
                for index in itertools.product(*map(range, shape))]
    if node.op == "linear":
        width, weight, bias = shapes[0][-1], operands[1], operands[2]
        return [math.fsum(x[row * width + k] * weight[out * width + k] for k in range(width)) +
                (bias[out] if bias else 0.0) for row in range(len(x) // width) for out in range(shape[-1])]
    result = [0.0] * count(shape)
    if node.op in ("softmax", "log_softmax"):
        for line in lines(shape, (node.attrs["dim"],)):
            for number, value in zip(line, softmax([x[i] for i in line], node.op == "log_softmax")):
                result[number] = value
    elif node.op in ("sum", "max"):
        for number, line in enumerate(lines(shapes[0], node.attrs["dims"])):
            row = [x[i] for i in line]
            result[number] = (max(row) if node.op == "max" else
                              math.fsum(row) / (len(row) if node.attrs["mean"] else 1))
    elif node.op in ("layer_norm", "rms_norm"):
        axes = range(len(shape) - node.attrs["dims"], len(shape))
        for line in lines(shape, axes):
            weight, bias = ((operands[1:] + [None, None])[k] for k in range(2))
            row = norm([x[i] for i in line], node.attrs["eps"], node.op == "layer_norm")
            for k, number in enumerate(line):
                result[number] = row[k] * (weight[k] if weight else 1.0) + (bias[k] if bias else 0.0)
    elif node.op == "group_norm":
        weight, bias = ((operands[1:] + [None, None])[k] for k in range(2))
        plane, size = math.prod(shape[2:]), math.prod(shape[1:]) // node.attrs["num_groups"]
        for start in range(0, len(x), size):
            for number, value in enumerate(norm(x[start:start + size], node.attrs["eps"]), start):
                c = number // plane % shape[1]
                result[number] = value * (weight[c] if weight else 1.0) + (bias[c] if bias else 0.0)
    elif node.op == "batch_norm":
        _, weight, bias, mean, variance = operands
        axes = [axis for axis in range(len(shape)) if axis != 1]
        for c, line in enumerate(lines(shape, axes)):
            row = [x[i] for i in line]
            row = norm(row, node.attrs["eps"]) if training else [
                (value - mean[c]) / math.sqrt(variance[c] + node.attrs["eps"]) for value in row]
            for number, value in zip(line, row):
                result[number] = value * (weight[c] if weight else 1.0) + (bias[c] if bias else 0.0)
    elif node.op in ("cross_entropy", "nll"):
        weight = operands[2] if len(operands) > 2 and operands[2] else [1.0] * shapes[0][1]
        parts = [row_loss([x[i] for i in line], label, weight, node.attrs, node.op == "cross_entropy")
                 for line, label in zip(lines(shapes[0], (1,)), operands[1])]
        total = math.fsum(cost for cost, _ in parts)
        if node.attrs["reduction"] == "none":
            return [cost for cost, _ in parts]
        result = [total / math.fsum(w for _, w in parts) if node.attrs["reduction"] == "mean" else total]
    else:
        raise NotImplementedError(node.op)
    return result


# ---- programs ----------------------------------------------------------------------------------------------
class Run:
    """Runs a program on data {(role, index): list of floats}. None in a list's place: absent. random_streams:
    the numbers of the group's random nodes."""

    def __init__(self, program, data, batch, random_streams=(), accumulate=()):
        self.data, self.batch, self.random_streams, self.accumulate = data, batch, random_streams, accumulate
        for operand in program.operands:
            if operand.written and (operand.role, operand.index) not in data:
                data[operand.role, operand.index] = [math.nan] * self.size(*operand.count)
        for launch in program.launches:
            self.launch(launch)

    def size(self, fixed, per_batch):
        return fixed + self.batch * per_batch

    def at(self, operand, i):
        div, mod = operand.place
        return operand.stride * (i // div % mod if mod else i // div)

    def load(self, operand, i):
        assert operand.read
        return self.data[operand.role, operand.index][self.at(operand, i)]

    def keep(self, random_stream, p, i):
        return keep_factor(self.random_streams[random_stream], p, i)

    def write(self, pending):
        for operand, number, value in pending:
            assert operand.written
            memory, key = self.data[operand.role, operand.index], (operand.role, operand.index)
            if memory is None:
                assert operand.optional
                continue
            if key in self.accumulate:
                assert operand.accumulate
                value += memory[number]
            memory[number] = value if operand.dtype == "f32" else ROUND[operand.dtype](value)

    def launch(self, launch):
        n, inner = self.size(launch.domain.fixed, launch.domain.per_batch), launch.domain.inner
        roots = [store.value for store in launch.stores] + [one.value for one in launch.sums]
        assert launch.family == "row" or not any(node.op in ("rowred", "is_column")
                                                 for node in ir.topological(roots))
        totals, pending = [{} for _ in launch.sums], []
        step = inner if launch.family == "row" else n
        for start in range(0, n, step):
            values = ir.evaluate(roots, step, lambda operand, i: self.load(operand, start + i),
                                 lambda k, p, i: self.keep(k, p, start + i), batch=self.batch)
            for store, row in zip(launch.stores, values):
                once = launch.family == "row" and store.operand.place == (inner, 0)
                assert not once or max(row) == min(row) or row[0] != row[0]
                pending += [(store.operand, self.at(store.operand, start + i), value)
                            for i, value in enumerate(row[:1] if once else row)]
            for one, row in zip(launch.sums, values[len(launch.stores):]):
                div, mod = one.place
                for i, value in enumerate(row[:1] if one.over_rows else row):
                    totals[one.number].setdefault((start + i) // div % mod, []).append(value)
        self.write(pending)
        sums = [{c: math.fsum(parts) for c, parts in found.items()} for found in totals]
        pending = []
        for store in launch.finals:
            for c in range(store.operand.place[1]):
                known = {one.number: sums[one.number].get(c if one.place[1] > 1 else 0, 0.0)
                         for one in launch.sums}
                value = ir.evaluate([store.value], 1, lambda operand, _: self.final_load(operand, c),
                                    totals=known, batch=self.batch)[0][0]
                pending.append((store.operand, c, value))
        self.write(pending)

    def final_load(self, operand, c):
        assert operand.read
        return self.data[operand.role, operand.index][operand.stride * c if operand.place[1] > 1 else 0]
