"""Computes ONNX ops whose operands are all known. Exporters leave such ops for shapes, masks and weights."""
import itertools
import math
import operator
import struct

from .arrays import (CODES, RANGES, Array, check_count, expanded, floats32, gathered, is_float, offsets,
                     strides, transposed)
from .onnx_file import KINDS
from .spec_writer import Refused, broadcast, normal_axes, normal_axis, product, size_name
from .. import sizes as varying

MAX_BYTES = 1 << 31  # of a result that is copied


class Size:
    """A number that depends on the batch or other sizes, which are only known to be positive: a sum of
    generator/sizes.py."""

    def __init__(self, terms):
        self.terms = terms

    @staticmethod
    def made(terms):
        return Size(terms) if any(terms) else terms.get((), 0)  # any atoms

    @staticmethod
    def terms_of(x):
        return x.terms if isinstance(x, Size) else varying.number_or_size(x)

    def unknown(self, *_):
        if set(self.terms) == {(varying.BATCH,)}:
            raise Refused(
                "what it computes from the batch size cannot be expressed; fix the batch with --batch")
        raise Refused("what it computes from the size %s cannot be expressed; fix it with --size" %
                      varying.sum_text(self.terms))

    __float__ = __int__ = __index__ = __pow__ = __rpow__ = unknown
    __truediv__ = __rtruediv__ = __rfloordiv__ = __rmod__ = unknown

    def __mul__(self, other):
        return (self.unknown() if isinstance(other, float) else
                Size.made(varying.times(self.terms, self.terms_of(other))))

    def __add__(self, other):
        return (self.unknown() if isinstance(other, float) else
                Size.made(varying.plus(self.terms, self.terms_of(other))))

    def __sub__(self, other):
        return self + -1 * other

    def __rsub__(self, other):
        return -1 * self + other

    def __neg__(self):
        return self * -1

    def __floordiv__(self, other):
        if isinstance(other, Size):
            terms = varying.divided(self.terms, other.terms)
        else:
            terms = varying.quotient(self.terms, other) if isinstance(other, int) and other > 0 else None
        return self.unknown() if terms is None else Size.made(terms)

    def __mod__(self, other):
        return self - self // other * other

    def compared(self, other, name):
        """Compares by the difference, if it is certainly a number, positive or negative."""
        if isinstance(other, float):
            other = int(other) if math.isfinite(other) and other == int(other) else self.unknown()
        rest = varying.plus(self.terms, self.terms_of(other), -1)
        signs, constant = {count > 0 for atoms, count in rest.items() if atoms}, rest.get((), 0)
        if not signs:
            return getattr(operator, name)(constant, 0)
        if abs(constant) > varying.MOST:
            return getattr(operator, name)(constant, 0)
        known = len(signs) == 1 and (constant == 0 or (constant > 0) in signs)
        return getattr(operator, name)(1 if True in signs else -1, 0) if known else self.unknown()

    def __eq__(self, other):
        return self.compared(other, "eq")

    def __ne__(self, other):
        return self.compared(other, "ne")

    def __lt__(self, other):
        return self.compared(other, "lt")

    def __le__(self, other):
        return self.compared(other, "le")

    def __gt__(self, other):
        return self.compared(other, "gt")

    def __ge__(self, other):
        return self.compared(other, "ge")

    __rmul__, __radd__ = __mul__, __add__
    __hash__ = None


def dim_of(value):
    """Converts a number of a shape to a dimension: -k for k times the batch."""
    return varying.dim_of(value.terms) if isinstance(value, Size) else int(value)


def of_dim(dim):
    """Converts a dimension to a number."""
    return Size(varying.sum_of(dim)) if dim < 0 else dim


def of_values(kind, shape, values):
    """An Array of computed values, rounded and wrapped for the kind."""
    if any(isinstance(x, Size) for x in values):
        return Array(kind, shape, values)
    if kind == "float32":
        values = floats32(values).tolist()
    elif kind == "float16":
        values = [struct.unpack("<e", struct.pack("<e", x))[0] if abs(x) < 65520 else
                  math.copysign(math.inf, x) if x == x else x for x in values]
    elif kind == "bool":
        values = [bool(x) for x in values]
    elif kind in RANGES:
        low, high = RANGES[kind]
        values = [x if low <= x <= high else (x - low) % (high - low + 1) + low
                  for x in map(whole_number, values)]
    return Array(kind, shape, values)


def whole_number(x):
    """Rounds towards zero. What is no integer becomes 0."""
    return int(x) if isinstance(x, int) or math.isfinite(x) else 0


# ---- the ops: each gets the call, whose attributes it asks for, and Arrays ---------------------------------
FOLDED = {}


def folded(*names):
    def register(function):
        FOLDED.update({name: function for name in names})
        return function
    return register


def elementwise(function, kind=None):
    """An elementwise function of broadcast operands. kind: the result's, if not that of the first operand."""
    def fold(call, *operands):
        shape = broadcast([x.shape for x in operands])
        values = list(map(function, *[expanded(x, shape) for x in operands]))
        return of_values(kind or operands[0].kind, shape, values)
    return fold


def divided(a, b):
    if isinstance(a, float) or isinstance(b, float):
        if b == 0:
            return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)
        return a / b
    if isinstance(a, Size) or isinstance(b, Size):
        return a // b
    if b == 0:
        raise Refused("it divides an integer by 0")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def power(a, b):
    try:
        result = a ** b
        return result if not isinstance(result, complex) else math.nan
    except OverflowError:
        return math.inf
    except ZeroDivisionError:
        return math.inf


def guarded(function, otherwise=math.nan):
    """A function of floats that returns a value where it would fail."""
    def compute(x):
        try:
            return function(x)
        except OverflowError:
            return math.inf
        except ValueError:
            return otherwise if x == x else x
    return compute


def rounded(x):
    return float(round(x)) if math.isfinite(x) else x


def larger(a, b):
    return a if a != a or a >= b else b


def smaller(a, b):
    return a if a != a or a <= b else b


FOLDED.update({
    "Add": elementwise(operator.add), "Sub": elementwise(operator.sub), "Mul": elementwise(operator.mul),
    "Div": elementwise(divided), "Pow": elementwise(power), "Neg": elementwise(operator.neg),
    "Abs": elementwise(abs), "Sqrt": elementwise(guarded(math.sqrt)), "Exp": elementwise(guarded(math.exp)),
    "Log": elementwise(lambda x: guarded(math.log)(x) if x else -math.inf), "Erf": elementwise(math.erf),
    "Sin": elementwise(guarded(math.sin)), "Cos": elementwise(guarded(math.cos)),
    "Tanh": elementwise(math.tanh),
    "Reciprocal": elementwise(lambda x: divided(1.0, float(x))), "Round": elementwise(rounded),
    "Floor": elementwise(lambda x: float(math.floor(x)) if math.isfinite(x) else x),
    "Ceil": elementwise(lambda x: float(math.ceil(x)) if math.isfinite(x) else x),
    "Sign": elementwise(lambda x: (x > 0) - (x < 0) if x == x else x),
    "Equal": elementwise(operator.eq, "bool"), "Less": elementwise(operator.lt, "bool"),
    "LessOrEqual": elementwise(operator.le, "bool"), "Greater": elementwise(operator.gt, "bool"),
    "GreaterOrEqual": elementwise(operator.ge, "bool"), "Not": elementwise(operator.not_, "bool"),
    "And": elementwise(lambda a, b: bool(a and b), "bool"),
    "Or": elementwise(lambda a, b: bool(a or b), "bool"),
    "Xor": elementwise(lambda a, b: bool(a) != bool(b), "bool"),
    "IsNaN": elementwise(lambda x: x != x, "bool"), "BitwiseAnd": elementwise(operator.and_),
    "BitwiseOr": elementwise(operator.or_), "BitwiseXor": elementwise(operator.xor),
    "BitwiseNot": elementwise(operator.invert)})


@folded("Max", "Min", "Sum")
def many(call, *operands):
    step = {"Max": larger, "Min": smaller, "Sum": operator.add}[call.op]
    result = operands[0]
    for x in operands[1:]:
        result = elementwise(step)(call, result, x)
    return result


@folded("Mod")
def mod(call, a, b):
    return elementwise(math.fmod if call.get("fmod", 0) else operator.mod)(call, a, b)


@folded("Where")
def where(call, condition, a, b):
    return elementwise(lambda c, x, y: x if c else y, a.kind)(call, condition, a, b)


@folded("Clip")
def clip(call, x, low=None, high=None):
    low, high = [bound.item() if bound else call.get(name, None)
                 for name, bound in (("min", low), ("max", high))]
    values = [x if low is None else larger(x, low) for x in x.values]
    return of_values(x.kind, x.shape, [x if high is None else smaller(x, high) for x in values])


@folded("Identity")
def identity(call, x):
    return x


@folded("Cast", "CastLike")
def cast(call, x, like=None):
    kind = like.kind if like else KINDS.get(call.get("to", 0))
    if kind not in CODES:
        raise Refused("tensors of %s are not possible" % kind)
    if kind == x.kind:
        return x
    values = x.values
    if is_float(kind) and not is_float(x.kind):
        values = [value if isinstance(value, Size) else float(value) for value in values]
    return of_values(kind, x.shape, values)


# -- shapes --
@folded("Shape")
def shape_of(call, x):
    dims = [of_dim(dim) for dim in x.shape][slice(call.get("start", 0), call.get("end", None))]
    return Array("int64", (len(dims),), dims)


@folded("Size")
def size_of(call, x):
    return Array("int64", (), [product(map(of_dim, x.shape))])


def shape_from(x, target, allow_zero):
    """The shape that Reshape's second operand asks for, with -k for k times the batch."""
    result = [dim_of(value) if isinstance(value, Size) else value for value in target]
    result = [x[i] if value == 0 and not isinstance(value, Size) and not allow_zero else value
              for i, value in enumerate(result)]
    unknown = [i for i, value in enumerate(target) if not isinstance(value, Size) and value == -1]
    if len(unknown) > 1 or any(not isinstance(v, Size) and v < -1 for v in target):
        raise Refused("the shape %s is not possible" % target)
    if unknown:
        rest = product(map(of_dim, result[:unknown[0]] + result[unknown[0] + 1:]))
        total = product(map(of_dim, x))
        if not isinstance(rest, Size) and (rest == 0 or not isinstance(total, Size) and total % rest):
            raise Refused("%s cannot be reshaped to %s" % (list(x), target))
        result[unknown[0]] = dim_of(total // rest)
    return tuple(result)


@folded("Reshape")
def reshape(call, x, shape=None):
    target = shape.values if shape else call.get("shape", [])
    result = x.reshape(shape_from(x.shape, target, call.get("allowzero", 0)))
    if product(result.shape) != x.count():
        raise Refused("%s cannot be reshaped to %s" % (list(x.shape), list(result.shape)))
    return result


def squeezed_shape(shape, axes):
    axes = ([i for i, size in enumerate(shape) if size == 1] if axes is None else
            normal_axes(axes, len(shape)) if axes else [])
    if any(shape[axis] != 1 for axis in axes):
        raise Refused("it squeezes an axis of %s that is not 1" % list(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes)


def unsqueezed_shape(shape, axes):
    rank = len(shape) + len(axes)
    axes, rest = [normal_axis(axis, rank) for axis in axes], iter(shape)
    if len(set(axes)) != len(axes) or any(not 0 <= axis < rank for axis in axes):
        raise Refused("the axes %s are not possible" % axes)
    return tuple(1 if i in axes else next(rest) for i in range(rank))


@folded("Squeeze")
def squeeze(call, x, axes=None):
    return x.reshape(squeezed_shape(x.shape, axes.values if axes else call.get("axes", None)))


@folded("Unsqueeze")
def unsqueeze(call, x, axes=None):
    return x.reshape(unsqueezed_shape(x.shape, axes.values if axes else call.get("axes", [])))


@folded("Flatten")
def flatten(call, x):
    axis = normal_axis(call.get("axis", 1), len(x.shape))
    return x.reshape((product(x.shape[:axis]), product(x.shape[axis:])))


@folded("Transpose")
def transpose(call, x):
    return transposed(x, call.get("perm", list(range(len(x.shape)))[::-1]))


@folded("Expand")
def expand(call, x, shape):
    shape = broadcast([x.shape, tuple(map(dim_of, shape.values))])
    if any(dim < 0 for dim in shape):
        return None  # expanding by the batch: what all samples share stays small
    return Array(x.kind, shape, expanded(x, shape))


@folded("Tile")
def tile(call, x, repeats):
    steps = strides(x.shape)
    shape = [size for pair in zip(repeats.values, x.shape) for size in pair]
    values = gathered(x.values, shape, [step for own in steps for step in (0, own)])
    return Array(x.kind, [a * b for a, b in zip(repeats.values, x.shape)], values)


@folded("Concat")
def concat(call, *parts):
    axis = normal_axis(call.get("axis", 1), len(parts[0].shape))
    outer, shape = product(parts[0].shape[:axis]), list(parts[0].shape)
    shape[axis] = sum(x.shape[axis] for x in parts)
    values = []
    for i in range(outer):
        for x in parts:
            row = product(x.shape[axis:])
            values += x.values[i * row:(i + 1) * row]
    return Array(parts[0].kind, shape, values)


@folded("Split")
def split(call, x, sizes=None):
    axis = normal_axis(call.get("axis", 0), len(x.shape))
    sizes = split_sizes(call, x.shape[axis], sizes)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [sliced(x, [axis], [start], [start + size], [1]) for start, size in zip(starts, sizes)]


def split_sizes(call, size, sizes):
    """The lengths of the parts of an axis that is split."""
    sizes = sizes.values if sizes else call.get("split", None)
    if sizes is None:
        parts = call.get("num_outputs", len(call.outputs))
        each = -(-size // parts)
        sizes = [min(each, size - i * each) for i in range(parts)]
    if sum(sizes) != size:
        raise Refused("the parts %s are not %s together" % (sizes, size))
    return sizes


def bounds(size, start, end, step):
    """start, step and count of a slice along an axis, as ONNX clamps them."""
    end = size if isinstance(end, Size) else end
    if isinstance(start, Size):
        raise Refused("its place depends on %s" % size_name(dim_of(start)))
    places = range(size)[slice(start, None if step < 0 and end < -size else end, step)]
    return places.start, places.step, len(places)


def sliced(x, axes, starts, ends, places):
    shape, steps, at = list(x.shape), strides(x.shape), 0
    for axis, start, end, step in zip(axes, starts, ends, places):
        start, step, count = bounds(x.shape[axis], start, end, step)
        at += start * steps[axis] if count else 0
        shape[axis], steps[axis] = count, steps[axis] * step
    return Array(x.kind, shape, gathered(x.values, shape, steps, at))


def slice_arguments(call, rank, starts, ends, axes, steps):
    """Slice's starts, ends, axes and steps. They were attributes before opset 10."""
    starts, ends, axes, steps = [given.values if given else call.get(name, None) for given, name in (
        (starts, "starts"), (ends, "ends"), (axes, "axes"), (steps, "steps"))]
    axes = list(range(len(starts))) if axes is None else [normal_axis(axis, rank) for axis in axes]
    return axes, starts, ends, steps or [1] * len(starts)


@folded("Slice")
def slice_(call, x, starts=None, ends=None, axes=None, steps=None):
    if any(isinstance(y, Size) and varying.varies(dim_of(y)) for given in (starts, ends) if given
           for y in given.values):
        return None
    return sliced(x, *slice_arguments(call, len(x.shape), starts, ends, axes, steps))


@folded("Gather")
def gather(call, x, index):
    axis = normal_axis(call.get("axis", 0), len(x.shape))
    size, inner, outer = x.shape[axis], product(x.shape[axis + 1:]), product(x.shape[:axis])
    places = [whole_place(i, size) for i in index.values]
    values = []
    for start in range(0, outer * size, size):
        for place in places:
            values += x.values[(start + place) * inner:(start + place + 1) * inner]
    return Array(x.kind, x.shape[:axis] + index.shape + x.shape[axis + 1:], values)


def whole_place(index, size):
    if not -size <= index < size:
        raise Refused("the index %d lies outside an axis of %d" % (index, size))
    return index % size


@folded("GatherElements")
def gather_elements(call, x, index):
    axis, steps = normal_axis(call.get("axis", 0), len(x.shape)), strides(x.shape)
    places = offsets(index.shape, [0 if i == axis else step for i, step in enumerate(steps)])
    values = [x.values[place + whole_place(i, x.shape[axis]) * steps[axis]]
              for place, i in zip(places, index.values)]
    return Array(x.kind, index.shape, values)


@folded("GatherND")
def gather_nd(call, x, index):
    lead, depth = call.get("batch_dims", 0), index.shape[-1]
    steps, inner = strides(x.shape), product(x.shape[lead + depth:])
    rows = product(index.shape[lead:-1])
    values = []
    for k in range(0, len(index.values), max(depth, 1)):
        start = k // depth // rows * product(x.shape[lead:])
        start += sum(whole_place(i, size) * step
                     for i, size, step in zip(index.values[k:k + depth], x.shape[lead:], steps[lead:]))
        values += x.values[start:start + inner]
    return Array(x.kind, index.shape[:-1] + x.shape[lead + depth:], values)


@folded("ScatterND")
def scatter_nd(call, x, index, updates):
    if call.get("reduction", "none") != "none":
        raise Refused("the reduction %s is not possible" % call.get("reduction"))
    values, depth, steps = list(x.values), index.shape[-1], strides(x.shape)
    inner = product(x.shape[depth:])
    for k in range(product(index.shape[:-1])):
        start = sum(whole_place(i, size) * step
                    for i, size, step in zip(index.values[k * depth:(k + 1) * depth], x.shape, steps))
        values[start:start + inner] = updates.values[k * inner:(k + 1) * inner]
    return Array(x.kind, x.shape, values)


# -- new tensors --
@folded("ConstantOfShape")
def constant_of_shape(call, shape):
    value = call.get("value", None) or Array("float32", (1,), [0.0])
    dims = tuple(map(dim_of, shape.values))
    if any(dim < 0 for dim in dims):
        return None
    if product(dims) * value.item_size() > MAX_BYTES:
        raise Refused("its result would have %d elements" % product(dims))
    return Array(value.kind, dims, raw=value.encoded() * product(dims))


@folded("Range")
def range_(call, start, limit, delta):
    first, last, step = start.item(), limit.item(), delta.item()
    if any(isinstance(x, Size) for x in (first, last, step)):
        return None
    count = max(0, math.ceil((last - first) / step))
    check_count(count)
    return of_values(start.kind, (count,), [first + i * step for i in range(count)])


@folded("EyeLike")
def eye_like(call, x):
    kind, k = KINDS[call.get("dtype", 1)] if call.has("dtype") else x.kind, call.get("k", 0)
    rows, columns = x.shape
    check_count(rows * columns)
    return of_values(kind, x.shape, [float(j - i == k) for i in range(rows) for j in range(columns)])


@folded("Trilu")
def trilu(call, x, k=None):
    k, (rows, columns) = k.item() if k else 0, x.shape[-2:]
    upper = call.get("upper", 1)
    keep = [(j - i >= k) if upper else (j - i <= k) for i in range(rows) for j in range(columns)]
    zero = x.values[0] * 0 if x.values else 0
    return Array(x.kind, x.shape,
                 [value if kept else zero for value, kept in zip(x.values, itertools.cycle(keep))])


@folded("NonZero")
def non_zero(call, x):
    places = [i for i, value in enumerate(x.values) if value]
    rows = [[place // step % size for place in places] for size, step in zip(x.shape, strides(x.shape))]
    return Array("int64", (len(x.shape), len(places)), [i for row in rows for i in row])


@folded("OneHot")
def one_hot(call, index, depth, values):
    axis, depth = normal_axis(call.get("axis", -1), len(index.shape) + 1), int(depth.item())
    off, on = values.values
    inner = product(index.shape[axis:])
    shape = index.shape[:axis] + (depth,) + index.shape[axis:]
    check_count(product(shape))
    result = [on if index.values[place // (depth * inner) * inner + place % inner] % depth == place // inner %
              depth else off for place in range(product(shape))]
    return Array(values.kind, shape, result)


WINDOWS = {"HannWindow": (0.5, 0.5, 0.0), "HammingWindow": (25 / 46, 21 / 46, 0.0),
           "BlackmanWindow": (0.42, 0.5, 0.08)}


@folded(*WINDOWS)
def window(call, size):
    a, b, c = WINDOWS[call.op]
    count, kind = int(size.item()), KINDS[call.get("output_datatype", 1)]
    check_count(count)
    steps = [2 * math.pi * i / max(1, count - 1 + bool(call.get("periodic", 1))) for i in range(count)]
    return of_values(kind, (count,), [a - b * math.cos(x) + c * math.cos(2 * x) for x in steps])


@folded("CumSum")
def cum_sum(call, x, axis):
    axis = normal_axis(axis.item(), len(x.shape))
    size, step, result = x.shape[axis], strides(x.shape)[axis], list(x.values)
    order = range(size - 1, -1, -1) if call.get("reverse", 0) else range(size)
    shape, steps = list(x.shape), strides(x.shape)
    shape[axis] = 1
    for place in offsets(shape, steps):
        total = 0
        for i in order:
            value = x.values[place + i * step]
            result[place + i * step] = total if call.get("exclusive", 0) else total + value
            total += value
    return of_values(x.kind, x.shape, result)


def reduction(function):
    def fold(call, x, axes=None):
        axes = axes.values if axes else call.get("axes", None)
        if not axes and call.get("noop_with_empty_axes", 0):
            return x
        axes = normal_axes(axes, len(x.shape))
        steps, kept = strides(x.shape), [i for i in range(len(x.shape)) if i not in axes]
        inner = offsets([x.shape[i] for i in axes], [steps[i] for i in axes])
        values = [function([x.values[start + place] for place in inner])
                  for start in offsets([x.shape[i] for i in kept], [steps[i] for i in kept])]
        keep = call.get("keepdims", 1)
        return of_values(x.kind, [1 if i in axes else size
                                  for i, size in enumerate(x.shape) if keep or i not in axes], values)
    return fold


FOLDED.update({"ReduceSum": reduction(sum), "ReduceProd": reduction(product), "ReduceMax": reduction(max),
               "ReduceMin": reduction(min),
               "ReduceMean": reduction(lambda values: sum(values) / len(values))})


@folded("DequantizeLinear")
def dequantize(call, x, scale, zero=None):
    axis, block = call.get("axis", 1), call.get("block_size", 0)

    def spread(y):
        """A scale or zero point along x's axis, for each element of x."""
        if block:
            at = normal_axis(axis, len(x.shape))
            inner, size = product(x.shape[at + 1:]), x.shape[at]
            return [y.values[(p // (size * inner) * y.shape[at] + p // inner % size // block) * inner +
                             p % inner] for p in range(x.count())]
        behind = (1,) * (len(x.shape) - 1 - normal_axis(axis, len(x.shape)))
        return expanded(y.reshape(y.shape + behind if y.count() > 1 else ()), x.shape)

    zeros = spread(zero) if zero else itertools.repeat(0)
    return of_values(scale.kind, x.shape,
                     [(value - z) * s for value, s, z in zip(x.values, spread(scale), zeros)])


@folded("ScatterElements")
def scatter_elements(call, x, index, updates):
    """PyTorch's exporter computes shapes of other indices with it."""
    if call.get("reduction", "none") != "none":
        return None
    axis, steps, values = normal_axis(call.get("axis", 0), len(x.shape)), strides(x.shape), list(x.values)
    places = offsets(index.shape, [0 if i == axis else step for i, step in enumerate(steps)])
    for place, i, update in zip(places, index.values, updates.values):
        values[place + whole_place(i, x.shape[axis]) * steps[axis]] = update
    return Array(x.kind, x.shape, values)
