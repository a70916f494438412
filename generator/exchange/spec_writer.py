"""Writes a spec and its weights, for every exporter and importer: tensors, their entries, and building blocks
for other libraries' operations."""
import array
import copy
import itertools
import json
import math
import os
import shlex
import struct

from .. import spec, table
from ..outputs import write as write_file
from ..sizes import any_varies, dim_of, dim_product, slice_index, sum_of, varies
from .header import ONE_FILE

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))


class Refused(Exception):
    """Why one operation cannot be expressed."""


# ---- tensors of the spec: a dimension -k is k times the batch; other varying ones are sizes.Size ---------
class Value:
    """shape: the spec's. full: PyTorch's, which is larger if an expansion is left to broadcasting."""

    def __init__(self, shape, full=None, dtype="f32", view_of=None):
        self.shape, self.dtype = tuple(shape), dtype
        self.full = self.shape if full is None else tuple(full)
        self.memory = view_of.memory if view_of else self  # in PyTorch, where in-place operations change it
        # transposed: this value with its last two axes exchanged
        self.entry = self.parameter = self.transposed = None
        self.is_bool = False  # in PyTorch

    def id(self):
        # parameter: its name in a layer's entry
        return self.parameter or self.entry.name or self.entry.layer or self.entry.id


def json_value(x):
    """A value for JSON: a Value as its id, a size that varies as its formula, and numbers that JSON lacks in
    the spec's spelling, "inf"."""
    return (x.id() if isinstance(x, Value) else str(x) if varies(x) or
            (isinstance(x, float) and not math.isfinite(x)) else x)


class Entry:
    """An entry of the spec. inputs and values of attributes may be Values. weights: its part of the weights
    file."""

    def __init__(self, op, entry_id, inputs, attributes, layer, name, weights):
        self.op, self.id, self.inputs, self.attributes = op, entry_id, list(inputs), attributes
        self.layer, self.name, self.weights = layer, name, weights

    def reads(self):
        listed = [y for x in self.attributes.values() for y in (x if isinstance(x, list) else [x])]
        return [x for x in self.inputs + listed if isinstance(x, Value)]

    def json(self):
        result = {"op": self.op}
        if self.layer:
            result["name"] = self.layer
        if self.name:
            result["as" if self.layer else "name"] = self.name
        if not self.layer and not self.name:
            result["id"] = self.id
        if self.inputs:
            result["inputs"] = [x.id() for x in self.inputs]
        for key, x in self.attributes.items():
            x = [dim_text(d) for d in x] if key == "shape" else x
            result[key] = [json_value(y) for y in x] if isinstance(x, (list, tuple)) else json_value(x)
        return result


class Constant:
    """A tensor known now. It becomes an entry when an operation reads it. name: that of its buffer."""

    def __init__(self, tensor, full=None, name=None):
        self.tensor, self.name = tensor, name
        self.full = tuple(tensor.shape) if full is None else tuple(full)
        self.memory = self  # what it is a view of in PyTorch, if tensor is a copy


class Parameter:
    """A parameter or running statistic: part of a layer, or an entry of its own if something else reads it
    first."""

    def __init__(self, name, tensor, trainable=False):
        self.name, self.tensor, self.trainable, self.value = name, tensor, trainable, None
        self.full = tuple(tensor.shape)


def broadcast(shapes):
    shape = []
    for i in range(1, max(map(len, shapes)) + 1):
        sizes = sorted({s[-i] for s in shapes if len(s) >= i} - {1})
        if len(sizes) > 1:
            raise Refused("the shapes " + ", ".join(map(shape_text, shapes)) + " do not broadcast" + (
                "; if only some sizes make them equal, give bounds with a multiple" if any_varies(sizes)
                else ""))
        shape.insert(0, sizes[0] if sizes else 1)
    return tuple(shape)


def dim_text(dim):
    return str(dim) if varies(dim) else dim if dim >= 0 else "N" if dim == -1 else f"{-dim}N"


def size_name(dim):
    """The name of a varying dimension in messages."""
    return f"the size {dim}" if varies(dim) else "the batch"


def shape_text(shape):
    return "[" + ", ".join(str(dim_text(d)) for d in shape) + "]"


def product(numbers):
    numbers = list(numbers)
    return dim_product(numbers) if any_varies(numbers) else math.prod(numbers)


def is_number(x):
    return isinstance(x, (int, float))


def normal_axis(axis, rank):
    return axis + rank if axis < 0 else axis


def normal_axes(axes, rank):
    """Normalizes a list of axes, or one, or None for all of them. The result ascends."""
    if axes is None or axes == []:
        return list(range(rank))
    return sorted(normal_axis(a, rank) for a in (axes if isinstance(axes, (list, tuple)) else [axes]))


def text(x):
    if not math.isfinite(x):
        raise Refused(f"{x} cannot stand in a formula")
    return f"({float(x)!r})" if x < 0 else repr(float(x))


def named(*names):
    """{name: text} of gpunn.h's formulas over x, or x and y, with PyTorch's names."""
    return {name: table.formulas()[name].text for name in names}


def axes_of(letters, rank):
    """The axis of each letter in an einsum. Axes of "..." are negative, counted from the last of them."""
    first, dots, last = letters.partition("...")
    return list(first) + list(range(len(first + last) - rank, 0) if dots else []) + list(last)


def grid(counts):
    """All index tuples of a grid, in row-major order."""
    return itertools.product(*map(range, counts))


MAX_WAVES = 4096
MAX_CELLS = 256  # cells of a pool's window for which max_pool can return indices
MAX_JOINED = 256  # steps of a scatter that does not add


def waves(rows, size):
    """cos and sin of 2 pi j k / size, as the numbers of matrices [rows, size]."""
    if not 1 <= size <= MAX_WAVES:
        raise Refused(
            f"only axes of up to {MAX_WAVES} that are not the batch are possible, as products with matrices")
    angles = [2 * math.pi * (j * k % size) / size for j in range(rows) for k in range(size)]
    return [math.cos(a) for a in angles], [math.sin(a) for a in angles]


# ---- the spec that is being written ------------------------------------------------------------------------
class Writer:
    """Appends entries to the spec. A subclass handles its library's tensors: constant_of, f32_bytes,
    init_of."""

    def __init__(self, taken):
        self.taken, self.entries, self.constants, self.layers = set(taken), [], {}, set()
        self.numbers_of_names = {}  # the last that unique gave

    def unique(self, name):
        i = self.numbers_of_names.get(name, 0)
        result = f"{name}_{i}" if i else name
        while result in self.taken:
            i += 1
            result = f"{name}_{i}"
        self.numbers_of_names[name] = i
        self.taken.add(result)
        return result

    def add(self, op, inputs, size, /, full=None, kind="f32", view_of=None, name=None, layer=None, stored=(),
            **attributes):
        """Adds an entry and returns its Value of dtype kind. Attributes that are None are left out."""
        value, given = (Value(size, full, kind, view_of),
                        {key: x for key, x in attributes.items() if x is not None})
        value.entry = Entry(op, None if name or layer else self.unique(op), inputs, given, layer, name,
                            stored)
        self.entries.append(value.entry)
        return value

    # -- operands --
    def tensor(self, x):
        """x as a Value. Its expansion may be left to broadcasting."""
        if is_number(x):
            x = self.constant_of(float(x))
        if isinstance(x, Constant):
            return self.constant(x)
        if isinstance(x, Parameter):
            return x.value or self.parameter(x)
        return x

    def constant(self, x):
        chunk, shape = self.f32_bytes(x.tensor), tuple(x.tensor.shape)
        key = shape, chunk
        if len(chunk) > 4 * (64 if x.name else 4096):  # long as text: stored with the weights
            if key not in self.constants:
                self.constants[key] = self.parameter(Parameter(x.name or self.unique("constant"), x.tensor))
        elif key not in self.constants:
            values = tuple(float(f"{v:.9g}") for v in array.array("f", chunk))
            self.constants[key] = self.add("constant", [], shape, shape=shape, values=values)
        return self.view(self.constants[key], full=x.full)

    def parameter(self, x):
        x.value = self.add("parameter", [], x.full, name=x.name, stored=[x], shape=x.full,
                           init=self.init_of(x.tensor), trainable=None if x.trainable else False)
        return x.value

    @staticmethod
    def view(x, full):
        """x with another expansion."""
        result = copy.copy(x)
        result.full = tuple(full)
        return result

    def f32(self, x):
        x = self.tensor(x)
        return x if x.dtype == "f32" else self.add("cast", [x], x.shape, x.full, dtype="f32")

    def integers(self, x, dtypes=("i64", "i32", "u8")):
        """x as class indices."""
        x = self.tensor(x)
        return x if x.dtype in dtypes else self.add("cast", [x], x.shape, x.full, kind="i64", dtype="i64")

    def whole(self, x):
        """x with its expansion carried out."""
        x = self.tensor(x)
        if x.shape == x.full:
            return x
        x, full = self.copied(x), x.full
        return self.add("expand", [self.view(x, x.shape)], full, kind=x.dtype, shape=full)

    def is_exact(self, x):
        """Whether x holds integers that may not fit float32, so that ops that copy must keep them exact."""
        return False

    def copied(self, x):
        """x as an operand of an op that only copies."""
        x = self.tensor(x)
        return x if self.is_exact(x) else self.f32(x)

    # -- steps --
    def map(self, op, *operands, **attributes):
        operands = [self.f32(x) for x in operands]
        return self.add(op, operands, broadcast([x.shape for x in operands]),
                        broadcast([x.full for x in operands]), **attributes)

    def expr(self, expression, *operands):
        return self.map("expr", *operands, expression=expression)

    def alike(self, tensors):
        """Makes the operands of one copying op alike: integers if some must stay exact, else floats."""
        if not any(self.is_exact(x) for x in tensors):
            return [self.f32(x) for x in tensors]
        return [x if x.dtype == "i64" else self.add("cast", [x], x.shape, x.full, kind="i64", dtype="i64")
                for x in tensors]

    def integer(self, operation, *operands):
        """An elementwise op of integers, exact in 64 bits. Operands may be numbers."""
        number = operands[-1] if is_number(operands[-1]) else None
        operands = operands if number is None else operands[:-1]
        operands = [self.whole_numbers(self.constant_of(x) if is_number(x) else x) for x in operands]
        kinds = [x.dtype for x in operands[operation == "where":]]
        kind = ("bool" if table.integers()[operation][1] else
                max(kinds, key=("bool", "u8", "i32", "i64").index))
        return self.add("integer", operands, broadcast([x.shape for x in operands]),
                        broadcast([x.full for x in operands]), kind="i64" if kind == "bool" and
                        number is not None and not table.integers()[operation][1] else kind,
                        operation=operation, value=number or None)

    def whole_numbers(self, x):
        """x as a tensor of integers, or of bool."""
        if not isinstance(x, Constant):
            x = self.tensor(x)
            return x if x.dtype != "f32" else self.add("cast", [x], x.shape, x.full, kind="i64", dtype="i64")
        values, result = self.integer_values(x.tensor), None
        shifts = [48, 24, 0]  # a constant has floats with 24 bits
        while len(shifts) > 1 and all(abs(value >> shifts[1]) <= 1 << 24 for value in values):
            shifts.pop(0)
        for shift in shifts:
            part = [value >> shift if shift == shifts[0] else value >> shift & (1 << 24) - 1
                    for value in values]
            part = self.tensor(self.numbers(part, tuple(x.tensor.shape)))
            part = self.add("cast", [part], part.shape, kind="i64", dtype="i64")
            result = part if result is None else self.integer("add", self.integer("mul", result, 1 << 24),
                                                              part)
        return self.view(result, x.full)

    def scale(self, x, factor):
        return x if factor == 1 else self.map("mul_scalar", x, value=float(factor))

    def reshape(self, x, shape):
        if isinstance(x, Constant) and product(x.tensor.shape) == 1:
            return Constant(x.tensor.reshape(()), shape)
        x = self.whole(x)
        source, shape = x.entry.inputs[0] if x.entry.op == "reshape" else x, tuple(shape)
        return source if source.shape == shape else self.add("reshape", [source], shape, kind=x.dtype,
                                                             view_of=x, shape=shape)

    def permute(self, x, order):
        x = self.whole(x)
        shape = tuple(x.shape[i] for i in order)
        if [i for i in order if x.shape[i] != 1] == [i for i in range(len(order)) if x.shape[i] != 1]:
            return self.reshape(x, shape)
        if (x.entry.op == "permute" and
            [x.entry.attributes["dims"][i] for i in order] == list(range(len(order)))):
            return self.view(x.entry.inputs[0], shape)
        x = self.copied(x)
        result = self.add("permute", [x], shape, kind=x.dtype, view_of=x, dims=list(order))
        if list(order) == list(range(len(order) - 2)) + [len(order) - 1, len(order) - 2]:
            result.transposed = x
        return result

    def slice(self, x, axis, start, end, step=1):
        size = x.full[axis]
        if any_varies((size, start, end)):
            start, end = slice_index(start or 0, size), size if end is None else slice_index(end, size)
        elif size < 0:
            if start in (0, None) and step == 1 and (end is None or end >= 2 ** 31):
                return x
            raise Refused("it cuts the batch")
        else:
            start, end, step = slice(start, end, step).indices(size)
        if (start, end, step) == (0, size, 1):
            return x
        x, count = self.copied(self.whole(x)), (end - start + step - 1) // step
        shape = x.shape[:axis] + (count if varies(count) else max(0, count),) + x.shape[axis + 1:]
        return self.add("slice", [x], shape, kind=x.dtype, view_of=x, dim=axis, start=start, end=end,
                        step=None if step == 1 else step)

    def reduce(self, op, x, axes=None, keepdim=False):
        x = self.copied(self.whole(x)) if op in ("sum", "max") else self.f32(self.whole(x))
        rank = len(x.shape)
        axes = normal_axes(axes, rank)
        shape = [1 if i in axes else d for i, d in enumerate(x.shape) if keepdim or i not in axes]
        return self.add(op, [x], shape, kind="i64" if op == "sum" and x.dtype != "f32" else x.dtype,
                        dims=None if len(axes) == rank else axes, keepdim=True if keepdim else None)

    def flip(self, x, axis):
        """x reversed along an axis, by a gather."""
        size, full = x.full[axis], tuple(x.full)
        if size < 0:
            raise Refused(f"it turns {size_name(size)} round")
        own = tuple(size if i == axis else 1 for i in range(len(full)))
        return self.pick(x, axis, self.view(self.tensor(self.numbers(range(size - 1, -1, -1), own)), full))

    def ones(self, count):
        return self.whole(self.view(self.tensor(self.numbers([1], (1,))), (count,)))

    def number_of(self, size):
        """A varying size as a tensor. Its constant part is added as a number, since the difference may be 0
        or less."""
        terms = sum_of(size)
        parts = [dim_of({atoms: abs(count) for atoms, count in terms.items() if (count > 0) == added})
                 for added in (True, False)]
        added, subtracted = [self.reduce("sum", self.ones(part)) if varies(part) else part for part in parts]
        return added if parts[1] == 0 else self.map("sub", added, subtracted)

    def counting(self, count):
        """0, 1, ... as [count]."""
        if count >= 0:
            return self.numbers(range(count), (count,))
        return self.map("add_scalar", self.add("cumsum", [self.ones(count)], (count,), dim=0), value=-1.0)

    def triangle_of_sizes(self, rows, columns, lower, diagonal):
        """1 on and below the diagonal, or on and above it, else 0."""
        if not any_varies((rows, columns)):
            raise Refused("its triangle depends on the batch size")
        own = self.map("add_scalar", self.reshape(self.counting(rows), (rows, 1)), value=float(diagonal))
        return self.map("le" if lower else "ge", self.counting(columns), own)

    def pick(self, x, axis, index):
        """gather along an axis. index has as many axes as x."""
        index = self.integers(self.whole(index), ("i64", "i32"))
        x = self.whole(self.copied(x))
        return self.add("gather", [x, index], index.shape, kind=x.dtype, dim=axis)

    def running(self, op, x, axis):
        """op of all elements so far along an axis, in steps that double."""
        x, step = self.copied(self.whole(x)), 1
        size, apply = self.known_size(x, axis), self.map if x.dtype == "f32" else self.integer
        while step < size:
            later = apply(op, self.slice(x, axis, step, size), self.slice(x, axis, 0, size - step))
            x, step = (self.add("concat", [self.slice(x, axis, 0, step), later], x.shape, kind=x.dtype,
                                dim=axis), 2 * step)
        return x

    def fold(self, op, x, axis):
        """op of all elements of an axis, which keeps size 1, in steps that halve it."""
        x = self.copied(self.whole(x))
        apply = self.map if x.dtype == "f32" else self.integer
        while self.known_size(x, axis) > 1:
            size, half = x.full[axis], x.full[axis] // 2
            y = apply(op, self.slice(x, axis, 0, half), self.slice(x, axis, half, 2 * half))
            shape = y.shape[:axis] + (half + 1,) + y.shape[axis + 1:]
            x = (self.add("concat", [y, self.slice(x, axis, size - 1, size)], shape, kind=y.dtype,
                          dim=axis) if size % 2 else y)
        return x

    @staticmethod
    def known_size(x, axis):
        if x.full[axis] < 1:
            raise Refused(f"the axis is {size_name(x.full[axis]) if x.full[axis] else 'empty'}")
        return x.full[axis]

    def scatter(self, x, axis, index, src, reduction=None):
        """x with src written at the places of index, or joined to the values there by "add", "mul", "maximum"
        or "minimum". Without such a reduction, the last of several elements for one place counts. Other axes
        may be longer in x than in index."""
        for i, size in enumerate(index.full):
            if i != axis and x.full[i] != size:
                part = self.scatter(self.slice(x, i, 0, size), axis, index, src, reduction)
                return self.add("concat", [part, self.slice(x, i, size, None)], x.full, dim=i)
        (x, src), index = (self.alike([self.whole(x), self.whole(src)]),
                           self.integers(self.whole(index), ("i64", "i32")))
        if reduction is None or (reduction == "add" and x.dtype == "f32"):
            return self.add("scatter_add" if reduction else "scatter", [x, index, src], x.shape, kind=x.dtype,
                            dim=axis)
        return (self.sums_at if reduction == "add" else self.scatter_joined)(x, axis, index, src, reduction)

    def sums_at(self, x, axis, index, src, _):
        """x with integers added. It adds so many bits at a time that float sums are exact."""
        bits = 24 - self.known_size(index, axis).bit_length()
        if bits < 8:
            raise Refused(f"sums of integers take up to {(1 << 16) - 1} indices along the axis")
        for shift in range(0, 63, bits):
            part = self.integer("floor_divide", src, 1 << shift) if shift else src
            part = self.integer("remainder", part, 1 << bits) if shift + bits < 63 else part
            total = self.add("scatter_add", [self.zeros(x), index, self.f32(part)], x.shape, dim=axis)
            total = self.integers(total, ("i64",))
            x = self.integer("add", x, self.integer("mul", total, 1 << shift) if shift else total)
        return x

    def zeros(self, x):
        """Zeros of x's shape, even if x holds NaN or infinity."""
        return self.whole(Constant(self.constant_of(0.0).tensor, x.full))

    def scatter_joined(self, x, axis, index, src, reduction):
        """Writes one element along the axis after another, so that no step writes a place twice."""
        if self.known_size(index, axis) > MAX_JOINED:
            raise Refused(f"a reduction other than a sum takes up to {MAX_JOINED} indices along the axis")
        places = self.reshape(self.counting(x.full[axis]), (x.full[axis],) + (1,) * (len(x.full) - 1 - axis))
        joined = {"mul": "x0 * x1", "maximum": "max(x0, x1)", "minimum": "min(x0, x1)"}[reduction]
        for i in range(index.full[axis]):
            own, place = [self.slice(y, axis, i, i + 1) for y in (src, index)]
            if x.dtype == "f32":
                x = self.expr(joined + " if x2 == x3 else x0", x, own, place, places)
            else:
                x = self.integer("where", self.integer("eq", place, places), self.integer(reduction, x, own),
                                 x)
        return x

    def bitwise(self, op, a, b, low, high):
        """and, or or xor of integers, bit by bit, from low to high."""
        bits, count = [], (high - low).bit_length()
        one = {"and": "min(a, b)", "or": "max(a, b)", "xor": "abs(a - b)"}[op]
        lines = ["u = x + %d if x < 0 else x" % (high - low + 1),
                 "v = y + %d if y < 0 else y" % (high - low + 1)]
        for i in range(count):
            a_bit, b_bit = ["floor(%s / %d) - 2 * floor(%s / %d)" % (name, 1 << i, name, 2 << i)
                            for name in "uv"]
            lines.append("p%d = %d * %s" % (i, 1 << i, one.replace("a, b", "%s, %s" % (a_bit, b_bit)).replace(
                "a - b", "(%s) - (%s)" % (a_bit, b_bit))))
            bits.append("p%d" % i)
        lines.append("s = " + " + ".join(bits))
        return self.expr("; ".join(lines + ["s - %d if s > %d else s" % (high - low + 1, high)]), a, b)

    def bitwise_of_integers(self, op, a, b):
        """The same for 64-bit integers, 16 bits at a time."""
        result = None
        for shift in (0, 16, 32, 48):
            parts = [self.integer("floor_divide", x, 1 << shift) if shift else x for x in (a, b)]
            part = self.bitwise(op, *[self.integer("remainder", x, 1 << 16) for x in parts], 0, (1 << 16) - 1)
            part = self.integers(self.whole(part), ("i64",))
            part = self.integer("mul", part, 1 << shift) if shift else part
            result = part if result is None else self.integer("add", result, part)
        return result

    def cubic_sample(self, x, grid, padding_mode, align_corners):
        """grid_sample of images in mode bicubic: the 16 cells around each point, by mode nearest, times Keys'
        weights."""
        (n, rows, columns), sides = grid.full[:3], (self.known_size(x, 3), self.known_size(x, 2))
        if align_corners and 1 in sides:
            raise Refused("mode bicubic with align_corners needs two rows and columns")
        places, weights = [], []
        for axis, size in enumerate(sides):
            to_cell = f"(x + 1) / 2 * {size - 1}" if align_corners else f"((x + 1) * {size} - 1) / 2"
            from_cell = f"2 * z / {size - 1} - 1" if align_corners else f"(2 * z + 1) / {size} - 1"
            point = self.expr(to_cell,
                              self.reshape(self.slice(grid, 3, axis, axis + 1), (n, 1, 1, rows, columns)))
            four = self.numbers(range(4), (1, 4, 1, 1) if axis == 0 else (4, 1, 1, 1))
            places.append(self.expr("z = floor(x) + y - 1; " + from_cell, point, four))
            weights.append(self.expr("d = abs(x - floor(x) + 1 - y); (1.25 * d - 2.25) * d * d + 1 if d <= 1 "
                                     "else ((-0.75 * d + 3.75) * d - 6) * d + 3", point, four))
        places = [self.whole(self.view(y, (n, 4, 4, rows, columns))) for y in places]
        places = [self.reshape(y, (n, 16 * rows, columns, 1)) for y in places]
        points = self.add("concat", places, (n, 16 * rows, columns, 2), dim=3)
        cells = self.add("grid_sample", [x, points], x.full[:2] + (16 * rows, columns), mode="nearest",
                         padding_mode=None if padding_mode == "zeros" else padding_mode,
                         align_corners=align_corners or None)
        weight = self.reshape(self.map("mul", *weights), (n, 1, 16, rows, columns))
        return self.reduce("sum",
                           self.map("mul", self.reshape(cells, x.full[:2] + (16, rows, columns)), weight), 2)

    def drawn(self, op, shape):
        """Random numbers of rand or randn."""
        x = self.whole(self.view(self.tensor(0.0), shape))
        return self.add(op + "_like", [x], x.shape)

    def pooled_places(self, x, kernel, stride, dilation, padding, counts, sizes):
        """The maxima of windows of x, which is padded, and their indices in the unpadded sizes, in row-major
        order."""
        cells = [(x, [])]
        for axis, (k, s, d, n) in enumerate(zip(kernel, stride, dilation, counts), 2):
            cells = [(self.slice(y, axis, i * d, i * d + (n - 1) * s + 1, s), at + [i]) for y, at in cells
                     for i in range(k)]
        if len(cells) > MAX_CELLS:
            raise Refused(f"windows of up to {MAX_CELLS} cells can return indices")
        parts = [self.reshape(y, y.shape + (1,)) for y, _ in cells]
        rank = len(x.shape)
        y = self.add("concat", parts, parts[0].shape[:-1] + (len(parts),), dim=rank)
        cell = self.add("argmax", [y], y.shape[:-1] + (1,), kind="i64", dim=rank, keepdim=True)
        y = self.add("gather", [y, cell], cell.shape, dim=rank)
        strides = [product(sizes[i + 1:]) for i in range(len(sizes))]
        inside = [sum(a * d * step for a, d, step in zip(at, dilation, strides)) for _, at in cells]
        starts = [sum((i * s - p) * step for i, s, p, step in zip(at, stride, padding, strides))
                  for at in grid(counts)]
        place = self.pick(self.view(self.tensor(self.numbers(inside, (1,) * rank + (len(cells),))),
                                    y.shape[:-1] + (len(cells),)), rank, cell)
        place = self.map("add", self.reshape(place, x.shape[:2] + tuple(counts)),
                         self.numbers(starts, tuple(counts)))
        return self.reshape(y, place.shape), place

    def matmul(self, a, b, transpose_b=False):
        a, b, transpose_a = self.f32(self.whole(a)), self.f32(self.whole(b)), False
        if a.transposed:
            a, transpose_a = a.transposed, True
        if b.transposed:
            b, transpose_b = b.transposed, not transpose_b
        shape = (broadcast([a.shape[:-2] or (1,), b.shape[:-2] or (1,)]) if len(a.shape) > 2 or
                 len(b.shape) > 2 else ())
        shape += (a.shape[-1 if transpose_a else -2], b.shape[-2 if transpose_b else -1])
        return self.add("matmul", [a, b], shape, transpose_a=transpose_a or None,
                        transpose_b=transpose_b or None)

    def diagonal(self, x, dim1, dim2, offset=0):
        """The diagonal of two axes as a new last axis. With the two axes joined it is a slice, since each
        element is a row and a column after the one before."""
        rank = len(x.full)
        lead, (rows, columns) = ([i for i in range(rank) if i not in (dim1, dim2)],
                                 (x.full[dim1], x.full[dim2]))
        if rows < 0 or columns < 0:
            raise Refused(f"its axes depend on {size_name(min(rows, columns))}")
        count = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
        first = offset if offset >= 0 else -offset * columns
        y = self.permute(x, lead + [dim1, dim2])
        y = self.reshape(y, y.shape[:-2] + (rows * columns,))
        return self.slice(y, rank - 2, first, first + (count - 1) * (columns + 1) + 1, columns + 1)

    def einsum(self, equation, tensors):
        """Einsum of three tensors or more, two at a time. It keeps the letters that others or the result
        have."""
        given, arrow, result = equation.replace(" ", "").partition("->")
        labels, sizes = given.split(","), {}
        if len(labels) != len(tensors):
            raise Refused(f"{equation} is of {len(labels)} tensors, not {len(tensors)}")
        if not arrow:
            result = "..." * ("..." in given) + "".join(
                sorted(c for c in set(given) - set(",.") if given.count(c) == 1))
        parts = [(self.f32(self.whole(x)), own) for x, own in zip(tensors, labels)]
        for y, own in parts:
            for letter, size in zip(axes_of(own, len(y.shape)), y.shape):
                sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
        dots = sum(isinstance(letter, int) for letter in sizes)
        y, own = parts[0]
        if len(parts) == 1 and own == result:
            return y
        for i, (x, part) in enumerate(parts[1:] or [(None, None)], 2):
            later = set("".join(labels[i:])) | set(result)
            both = own + part if part else own
            kept = "".join(c for c in dict.fromkeys(both.replace("...", "")) if c in later)
            kept = result if i >= len(labels) else "..." * ("..." in both) + kept
            shape = tuple(sizes[letter] for letter in axes_of(kept, dots + len(kept.replace("...", ""))))
            y = self.add("einsum", [y, x] if part else [y], shape,
                         equation=f"{own},{part}->{kept}" if part else f"{own}->{kept}")
            own = kept
        return y

    def along(self, x, axis, matrix):
        """x with one axis multiplied by a matrix [new, old]."""
        front, back = x.full[:axis], x.full[axis + 1:]
        if not back:
            return self.matmul(x, matrix, True)
        y = self.matmul(matrix, self.reshape(x, (product(front), x.full[axis], product(back))))
        return self.reshape(y, front + matrix.full[:1] + back)

    def fourier(self, parts, axis, rows, inverse, scale=1.0):
        """Real and imaginary part of the first rows of a Fourier transform. parts: the real one, or both."""
        size = parts[0].full[axis]
        sign = scale if inverse else -scale
        cos, sin = [self.numbers([factor * x for x in wave], (rows, size))
                    for factor, wave in zip((scale, sign), waves(rows, size))]
        real, imag = [self.along(parts[0], axis, matrix) for matrix in (cos, sin)]
        if len(parts) == 1:
            return real, imag
        return (self.map("sub", real, self.along(parts[1], axis, sin)),
                self.map("add", imag, self.along(parts[1], axis, cos)))

    def real_of_half(self, parts, axis, size, scale):
        """The inverse of a real transform from its first half. All rows count twice except the first, and the
        last of an even size."""
        rows = size // 2 + 1
        times = [scale if 2 * k % size == 0 else 2 * scale for k in range(rows)]
        cos, sin = [self.numbers([wave[k * size + i] * times[k] for i in range(size) for k in range(rows)],
                                 (size, rows)) for wave in waves(rows, size)]
        return self.map("sub", self.along(parts[0], axis, cos), self.along(parts[1], axis, sin))

    # -- layers --
    def layer_name(self, **parts):
        """The layer of these parameters, if all of them are read here first. None: there is none."""
        parts = {suffix: x for suffix, x in parts.items() if x is not None}
        if not all(isinstance(x, (Parameter, Constant)) and (x.name or "").endswith("." + suffix)
                   for suffix, x in parts.items()):
            return None
        names = {x.name[:-len(suffix) - 1] for suffix, x in parts.items()}
        if len(names) != 1 or names & self.layers or any(isinstance(x, Parameter) and x.value
                                                         for x in parts.values()):
            return None
        return names.pop()

    def layer(self, op, name, x, shape, parts, **attributes):
        """The value of a layer. parts: its parameters by suffix, None for missing ones."""
        parts = {suffix: p for suffix, p in parts.items() if p is not None}
        own = {suffix: p for suffix, p in parts.items() if isinstance(p, Parameter)}
        frozen = [suffix for suffix, p in own.items() if not p.trainable]
        if frozen and len(frozen) == len(own):
            attributes["trainable"] = False
        elif frozen:
            attributes["parameters"] = {suffix: {"trainable": False} for suffix in frozen}
        self.layers.add(name)
        x = self.whole(x) if op == "embedding" else self.f32(self.whole(x))
        value = self.add(op, [x], shape, layer=name, stored=list(parts.values()), **attributes)
        for p in own.values():
            p.value = Value(p.full)
            p.value.entry, p.value.parameter = value.entry, p.name
        return value


def named_sizes(names, bounds):
    """The "sizes" of a spec, for these names. bounds: the program's."""
    for name in bounds:
        if name not in names:
            raise Refused("bounds: no axis has the name %s%s" %
                          (name, ", but %s" % ", ".join(names) if names else ""))
    written = {name: bounds.get(name, {}) for name in names}
    try:
        spec.parse(json.dumps({"gpunn_spec": 1, "sizes": written, "tensors": []}))
    except spec.SpecError as why:
        raise Refused("bounds: %s" % str(why).partition(": ")[2]) from None
    return written


# ---- the files ---------------------------------------------------------------------------------------------
def json_text(spec):
    """spec as JSON with one tensor on a line."""
    head = json.dumps({key: x for key, x in spec.items() if key != "tensors"}, indent=1)[:-2]
    lines = ",\n".join("  " + json.dumps(x) for x in spec["tensors"])
    return head + ',\n "tensors": [\n' + lines + "\n ]\n}\n"


def next_step(name, spec):
    """What a command prints once it has written NAME.json and NAME.safetensors, or NAME.gpunn."""
    inputs = ", ".join("%s %s [%s]" % (json.dumps(x["name"]), x.get("dtype", "f32"),
                                       ", ".join(map(str, x["shape"])))
                       for x in spec["tensors"] if x["op"] == "input")
    one = name.endswith(ONE_FILE)
    files = [shlex.quote(name)] if one else [shlex.quote(name + ".json"), shlex.quote(name + ".safetensors")]
    program = "build/run_model" if os.path.realpath(".") == ROOT else os.path.join(ROOT, "build", "run_model")
    return ("Wrote %s. Inputs: %s\n" % (" and ".join(files), inputs) +
            "Next: %s %s --input X.safetensors --output Y.safetensors" %
            (shlex.quote(program), " --weights ".join(files)))


def save_safetensors(path, tensors, metadata=None):
    """Writes tensors by name, each as its dtype (the format's name), shape and bytes. metadata: texts by
    key."""
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, (kind, shape, chunk) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [end, end + len(chunk)]}
        end += len(chunk)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    write_file(path, [struct.pack("<Q", len(head)), head] + [chunk for _, _, chunk in tensors.values()])


def save_model(name, text, tensors):
    """Writes a spec's text and its weights to NAME.json and NAME.safetensors; to one file if the name ends in
    ONE_FILE."""
    if name.endswith(ONE_FILE):
        save_safetensors(name, tensors, {"format": "pt", "gpunn_spec": text})
    else:
        save_safetensors(name + ".safetensors", tensors)
        write_file(name + ".json", [text.encode("ascii")])


def nan_notes(tensors):
    """A note for the user about NaN in weights, which are kept. It checks what save_safetensors writes."""
    names = []
    for name, (kind, _, chunk) in tensors.items():
        values = memoryview(chunk).cast("f") if kind == "F32" else ()
        total = sum(values)
        if total != total and any(x != x for x in values):  # infinities alone may sum to NaN, too
            names.append(name)
    more = " and %d others" % (len(names) - 3) if len(names) > 3 else ""
    return ["weights hold NaN, which is kept: %s%s" % (", ".join(names[:3]), more)] if names else []


def needed_entries(entries, results):
    """The entries that the results depend on, and all inputs."""
    needed, pending = set(), list(results)
    while pending:
        entry = pending.pop()
        if id(entry) not in needed:
            needed.add(id(entry))
            pending.extend(x.entry for x in entry.reads())
    return [e for e in entries if id(e) in needed or e.op == "input"]
