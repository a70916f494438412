"""Builds ONNX's ops: elementwise ops, shapes, reductions and selections. onnx_layers.py has the layers.

Each function gets the writer, the Call and its operands, with None for those left out. It returns a Value or
a Constant, or a list of them."""
import math

from . import fold
from .arrays import RANGES, Array, check_count, is_float
from .onnx_file import KINDS
from .spec_writer import (Constant, Parameter, Refused, Value, broadcast, named, normal_axes, normal_axis,
                          product, size_name, text)
from ..sizes import any_varies, varies

OPERATIONS = {}
# The kinds of results that differ from the first operand's kind. own: the op sets it itself.
RESULT_KINDS = {}


def operation(*names, kind=None):
    def register(function):
        OPERATIONS.update({name: function for name in names})
        if kind:
            RESULT_KINDS.update({name: kind for name in names})
        return function
    return register


def op_text(node):
    """The key of a node's op."""
    return "%s.%s" % (node.domain, node.op) if node.domain else node.op


def number(x, default=None):
    """The one number that an operand is. default: its value if it is left out."""
    if x is None:
        return default
    if (isinstance(x, (Constant, Parameter)) and x.tensor.count() == 1 and
        not isinstance(x.tensor.item(), fold.Size)):
        return x.tensor.item()
    return None


def numbers(w, x, what, default=None):
    """The values of an operand, which must be known."""
    return default if x is None else w.known_array(x, what).values


def counted(count, behind=0):
    """0, 1, ... along an axis with so many axes of 1 after it."""
    check_count(count)
    return Constant(Array("float32", (count,) + (1,) * behind, [float(i) for i in range(count)]))


# ---- elementwise -------------------------------------------------------------------------------------------
# kinds of integers that gpunn computes as integers; others are floats
DTYPES = {"int64": "i64", "int32": "i32", "uint8": "u8"}


def are_integers(w, operands):
    """Whether all are integers as gpunn has them."""
    return all(isinstance(x, (Value, Constant, Parameter)) and w.kind_of(x) in DTYPES for x in operands)


def exactly(w, op, *operands):
    """The result of an op on integers, in their kind or in bool. None: gpunn has that kind as floats."""
    kind = w.kind_of(operands[-1])
    if kind not in DTYPES:
        return None
    last = (number(operands[-1]) if len(operands) > 1 and
            len(operands[-1].full) <= len(operands[-2].full) else None)
    y = w.integer(op, *operands[:-1], operands[-1] if last is None else int(last))
    y = y if y.dtype in ("bool", DTYPES[kind]) else w.add("cast", [y], y.shape, y.full, dtype=DTYPES[kind])
    return y if y.dtype == "bool" else w.as_kind(y, kind)


def unary(name):
    def lower(w, call, x):
        y = exactly(w, name, x) if name in ("neg", "abs", "sign") else None
        return w.map(name, x) if y is None else y
    return lower


def formula(expression, **defaults):
    """An op from a formula. expression is over x, y, z, with {name} for the attributes."""
    def lower(w, call, *operands):
        values = {name: text(call.get(name, value)) for name, value in defaults.items()}
        return w.expr(expression.format(**values), *operands)
    return lower


TABLE = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Abs": "abs", "Neg": "neg", "Sign": "sign",
         "Floor": "floor", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal",
         "Erf": "erf", "Sin": "sin", "Cos": "cos", "Softsign": "softsign", "HardSwish": "hardswish",
         "Mish": "mish", "Asin": "asin", "Acos": "acos", "Atan": "atan",
         "Sinh": "sinh", "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh"}
OPERATIONS.update({name: unary(own) for name, own in TABLE.items()})

OPERATIONS.update({name.capitalize(): formula(expression)
                   for name, expression in named("tan", "ceil", "round").items()})
OPERATIONS.update({name: formula(named(own)[own])
                   for name, own in {"Not": "logical_not", "IsNaN": "isnan"}.items()})
OPERATIONS.update({
    "ThresholdedRelu": formula("where(x > {alpha}, x, 0)", alpha=1.0),
    "HardSigmoid": formula("max(0, min(1, {alpha} * x + {beta}))", alpha=0.2, beta=0.5),
    "Elu": lambda w, call, x: w.map("elu", x, alpha=call.get("alpha", 1.0)),
    "Celu": lambda w, call, x: w.map("celu", x, alpha=call.get("alpha", 1.0)),
    "LeakyRelu": lambda w, call, x: w.map("leaky_relu", x, negative_slope=call.get("alpha", 0.01)),
    "Selu": formula("{gamma} * where(x > 0, x, {alpha} * expm1(x))", alpha=1.6732631921768188,
                    gamma=1.0507010221481323), "Softplus": lambda w, call, x: w.map("softplus", x),
    "Shrink": formula("where(x < -{lambd}, x + {bias}, where(x > {lambd}, x - {bias}, 0))", lambd=0.5,
                      bias=0.0), "Swish": formula("x * sigmoid({alpha} * x)", alpha=1.0),
    "Gelu": lambda w, call, x: w.map("gelu_tanh" if call.get("approximate", "none") == "tanh" else "gelu",
                                     x)})
RESULT_KINDS.update({"Not": "bool", "IsNaN": "bool"})


@operation("PRelu")
def prelu(w, call, x, slope):
    if call.opset < 7 and len(slope.full) == 1 and slope.full != (1,):  # along axis 1
        slope = w.reshape(slope, slope.full + (1,) * (len(x.full) - 2))
    return w.map("parametric_relu", x, slope)


@operation("IsInf", kind="bool")
def is_inf(w, call, x):
    signs = [sign for sign, wanted in ((">", "detect_positive"),
                                       ("<", "detect_negative")) if call.get(wanted, 1)]
    parts = ["where(x {} {}, 1, 0)".format(sign, "3.4028234e38" if sign == ">" else "-3.4028234e38")
             for sign in signs]
    return w.expr(" + ".join(parts) or "0 * detach(where(x == x, 0, 0))", x)


@operation("Identity")
def same(w, call, x, *_):
    return x


@operation("Dropout")
def dropout(w, call, x, ratio=None, training=None):
    """Identity: models are imported for evaluation."""
    if training is not None and number(training) is None or number(training) and number(ratio, 0.5):
        raise Refused("it drops in training mode")
    ones = Constant(Array("bool", (), [True]), x.full)
    return [x, ones][:len(call.outputs)]


@operation("Cast", "CastLike", kind="own")
def cast(w, call, x, like=None):
    kind = w.kind_of(like) if like is not None else KINDS.get(call.get("to", 0))
    source = w.kind_of(x)
    if kind == "bool":
        return w.as_kind(w.expr("where(x == 0, 0, 1)", w.rounded(x)) if source != "bool" else x, kind)
    if is_float(kind or ""):
        return w.as_kind(w.rounded(x), kind)
    if kind not in RANGES:
        raise Refused("gpunn has no tensors of %s" % kind)
    if is_float(source):
        x = w.expr("where(x < 0, -floor(-x), floor(x))", x)
    x = w.tensor(x)
    if kind in DTYPES and x.dtype != "f32":
        return w.as_kind(x if x.dtype == DTYPES[kind] else
                         w.add("cast", [x], x.shape, x.full, dtype=DTYPES[kind]), kind)
    low, high = RANGES[source] if source in RANGES else (0, 1 if source == "bool" else math.inf)
    fits = RANGES[kind][0] <= low and high <= RANGES[kind][1]
    return w.as_kind(x if fits else w.wrapped(w.f32(x), kind), kind)


def of_integers(w, call, op, a, b):
    """An elementwise op whose result wraps if the kind is a small integer's."""
    kind, y = w.kind_of(a), exactly(w, op, a, b)
    if y is not None:
        return y
    if kind not in ("bool",) and not is_float(kind):
        w.note_integers(call)
        return w.wrapped(w.map(op, a, b), kind)
    return w.map(op, a, b)


def broadcast_to_axis(w, call, a, b):
    """b reshaped for opset 6's attribute "axis"."""
    if call.opset >= 7 or not call.get("broadcast", 0) or not call.has("axis"):
        return b
    axis = normal_axis(call.get("axis", 0), len(a.full))
    return w.reshape(b, tuple(b.full) + (1,) * (len(a.full) - axis - len(b.full)))


def binary(op, scalar=None, sign=1):
    """An op of two operands. scalar: the op for a number as the second one, multiplied by sign."""
    def lower(w, call, a, b):
        b = broadcast_to_axis(w, call, a, b)
        value = number(b)
        if (scalar and value is not None and len(b.full) <= len(a.full) and is_float(w.kind_of(a)) and
            abs(value) < 3.4e38):
            return w.map(scalar, a, value=float(sign * value))
        return of_integers(w, call, op, a, b)
    return lower


OPERATIONS.update({"Add": binary("add", "add_scalar"), "Sub": binary("sub", "add_scalar", -1),
                   "Mul": binary("mul", "mul_scalar")})


@operation("Div")
def div(w, call, a, b):
    b, value = broadcast_to_axis(w, call, a, b), number(b)
    y = exactly(w, "trunc_divide", a, b)
    if y is not None:
        return y
    if not is_float(w.kind_of(a)):
        w.note_integers(call)
        return w.expr("q = floor_divide(abs(x), abs(y)); where((x < 0) == (y < 0), q, -q)", a, b)
    if value and math.log2(abs(value)) % 1 == 0:
        return w.scale(w.f32(a), 1 / value)
    return w.map("div", a, b)


@operation("Mod")
def mod(w, call, a, b):
    y = exactly(w, "fmod" if call.get("fmod", 0) else "remainder", a, b)
    if y is not None:
        return y
    if not is_float(w.kind_of(a)):
        w.note_integers(call)
    return w.map("fmod" if call.get("fmod", 0) else "remainder", a, b)


@operation("BitShift")
def bit_shift(w, call, a, b):
    """Negative shifts count as larger than all others."""
    low, high = RANGES[w.kind_of(a)]
    bits = (high - low).bit_length()
    w.note_integers(call)
    if call.get("direction", "LEFT") == "RIGHT":
        return w.expr("floor(x / pow(2, %d if y < 0 else min(y, %d)))" % (bits, bits), a, b)
    return w.wrapped(w.expr("x * pow(2, y) if 0 <= y < %d else 0" % bits, a, b), w.kind_of(a))


@operation("BitwiseNot")
def bitwise_not(w, call, x):
    low, high = RANGES[w.kind_of(x)]
    if high >= 1 << 24 and low == 0:
        raise Refused("a complement above 2^24 is not possible")
    w.note_integers(call)
    return w.expr("%d - x" % (low + high), x)


@operation("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(w, call, a, b):
    kind = w.kind_of(a)
    if RANGES[kind][1] >= 1 << 24:
        raise Refused("the bits of %s are not possible: only those of integers up to 16 bits" % kind)
    return w.bitwise(call.op[len("Bitwise"):].lower(), a, b, *RANGES[kind])


@operation("Pow")
def power(w, call, a, b):
    special = {2: "square", 0.5: "sqrt", -1: "reciprocal", 1: None}.get(number(b), "")
    if special is None:
        return a
    y = w.map(special, a) if special else w.map("pow", a, b)
    if is_float(w.kind_of(a)):
        return y
    w.note_integers(call)
    # powf's result is near the integer; results of special ops are never above it
    near = 0 if special else 1e-6
    return w.expr("r = abs(x); n = floor(r + 0.5); sign(x) * where(abs(r - n) <= %s * r, n, floor(r))" %
                  text(near), y)


def many(op, scale_of=lambda count: 1):
    def lower(w, call, *operands):
        if are_integers(w, operands):
            y = operands[0]
            for x in operands[1:]:
                y = exactly(w, op, y, x)
            return y
        y = w.f32(operands[0])
        for x in operands[1:]:
            y = w.map(op, y, x)
        if not is_float(w.kind_of(operands[0])):
            w.note_integers(call)
        return w.scale(y, scale_of(len(operands)))
    return lower


OPERATIONS.update({"Max": many("maximum"), "Min": many("minimum"), "Sum": many("add"),
                   "Mean": many("add", lambda count: 1 / count)})


def compared(name):
    def lower(w, call, a, b):
        b = broadcast_to_axis(w, call, a, b)
        y = exactly(w, name, a, b)
        if y is not None:
            return y
        if w.is_large(a) and w.is_large(b):
            raise Refused("it compares integers that may be above 2^24, which gpunn's floats "
                          "cannot all represent")
        return w.map(name, w.rounded(a), w.rounded(b))
    return lower


for onnx_name, own_name in {"And": "mul", "Or": "maximum", "Xor": "ne", "Equal": "eq", "Less": "lt",
                            "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge"}.items():
    operation(onnx_name, kind="bool")(compared(own_name))


@operation("Where", kind="own")
def where(w, call, condition, a, b):
    y = exactly(w, "where", condition, a, b)
    return y if y is not None else w.as_kind(w.map("where", condition, a, b), w.kind_of(a))


@operation("Clip")
def clip(w, call, x, low=None, high=None):
    low = call.get("min", None) if low is None else low
    high = call.get("max", None) if high is None else high
    if are_integers(w, [y for y in (x, low, high) if y is not None]):
        x = x if low is None else exactly(w, "maximum", x, low)
        return x if high is None else exactly(w, "minimum", x, high)
    values = [number(bound) if isinstance(bound, (Constant, Parameter)) else bound for bound in (low, high)]
    if not any(isinstance(bound, Value) for bound in values):
        return w.map("clamp", x, **{name: float(bound)
                                    for name, bound in zip(("min", "max"), values) if bound is not None})
    x = x if low is None else w.map("maximum", x, low)
    return x if high is None else w.map("minimum", x, high)


# ---- shapes ------------------------------------------------------------------------------------------------
@operation("Reshape")
def reshape(w, call, x, shape=None):
    target = call.get("shape", None) if shape is None else numbers(w, shape, "shape")
    return w.reshape(x, fold.shape_from(x.full, target, call.get("allowzero", 0)))


@operation("Flatten")
def flatten(w, call, x):
    axis = normal_axis(call.get("axis", 1), len(x.full))
    shape = flat_shape(x.full, axis)
    if shape == x.full:
        return x
    if any(dim < 0 and not varies(dim) for dim in x.full[axis:]) and axis:
        raise Refused("it joins the batch with other axes")
    return w.reshape(x, shape)


@operation("Squeeze")
def squeeze(w, call, x, axes=None):
    return w.reshape(x, fold.squeezed_shape(x.full, numbers(w, axes, "axes", call.get("axes", None))))


@operation("Unsqueeze")
def unsqueeze(w, call, x, axes=None):
    return w.reshape(x, fold.unsqueezed_shape(x.full, numbers(w, axes, "axes", call.get("axes", None))))


@operation("Transpose")
def transpose(w, call, x):
    return w.permute(x, call.get("perm", list(range(len(x.full)))[::-1]))


@operation("Expand")
def expand(w, call, x, shape):
    full = broadcast([x.full, tuple(map(fold.dim_of, numbers(w, shape, "shape")))])
    return Constant(x.tensor, full) if isinstance(x, Constant) else w.view(w.tensor(x), full)


@operation("ConstantOfShape", kind="own")
def constant_of_shape(w, call, shape):
    value = call.get("value", None) or Array("float32", (1,), [0.0])
    return Constant(value.reshape(()), tuple(map(fold.dim_of, numbers(w, shape, "shape"))))


@operation("RandomUniformLike", "RandomNormalLike", "RandomUniform", "RandomNormal", kind="own")
def random_like(w, call, x=None):
    """The numbers come from gpunn's seed. The node's seed is ignored."""
    if "Uniform" in call.op:
        op, scale, shift = "rand", call.get("high", 1.0) - call.get("low", 0.0), call.get("low", 0.0)
    else:
        op, scale, shift = "randn", call.get("scale", 1.0), call.get("mean", 0.0)
    kind = KINDS.get(call.get("dtype", 0)) or ("float32" if x is None else w.kind_of(x))
    y = w.drawn(op, tuple(call.get("shape", ())) if x is None else x.full)
    return w.as_kind(y if (scale, shift) == (1, 0) else w.expr("%r * x + %r" % (scale, shift), y), kind)


@operation("Bernoulli", kind="own")
def bernoulli(w, call, x):
    return w.as_kind(w.map("lt", w.drawn("rand", x.full), x), KINDS.get(call.get("dtype", 0)) or w.kind_of(x))


@operation("Multinomial", kind="own")
def multinomial(w, call, x):
    """Draws classes by the Gumbel trick: argmax of the logarithms of the weights plus Gumbel noise."""
    (rows, classes), count = x.full, call.get("sample_size", 1)
    score = w.expr("y - log(max(-log(1 - x), 1e-30))", w.drawn("rand", (rows, count, classes)),
                   w.reshape(x, (rows, 1, classes)))
    return w.as_kind(w.add("argmax", [score], (), dim=2), KINDS.get(call.get("dtype", 0)) or "int32")


@operation("Range", kind="own")
def range_of_sizes(w, call, start, limit, delta):
    """A range with fixed start and step, up to a size that varies."""
    for x, what in ((start, "start"), (limit, "limit"), (delta, "delta")):
        w.known_array(x, what)
    first, step = number(start), number(delta)
    if first is None or step != 1:
        raise Refused("only steps of 1 from a number on to a size are possible")
    count = fold.dim_of(limit.tensor.item() - int(first))
    if not varies(count):
        raise Refused("it counts the batch; fix the batch with --batch")
    return w.as_kind(w.map("add_scalar", w.counting(count), value=float(first)), w.kind_of(limit))


@operation("Tile")
def tile(w, call, x, repeats, axis=None):
    repeats = numbers(w, repeats, "repeats")
    if call.opset < 6 or axis is not None:
        raise Refused("the form of opset 1 is not possible")
    if any(isinstance(times, fold.Size) for times in repeats):
        raise Refused("it repeats by a size that varies")
    return (w.add("tile", [w.whole(w.copied(x))], (), repeats=repeats) if any(times != 1 for times in repeats)
            else x)


@operation("Concat")
def concat(w, call, *parts):
    parts = w.alike([w.whole(x if isinstance(x, Value) else w.copied(x)) for x in parts])
    axis = normal_axis(call.get("axis", 1), len(parts[0].shape))
    return parts[0] if len(parts) == 1 else w.add("concat", parts, (), dim=axis)


@operation("Split")
def split(w, call, x, sizes=None):
    axis = normal_axis(call.get("axis", 0), len(x.full))
    if x.full[axis] < 0:
        raise Refused("it cuts %s" % size_name(x.full[axis]))
    sizes = fold.split_sizes(call, x.full[axis], None if sizes is None else w.known_array(sizes, "split"))
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [w.slice(x, axis, start, start + size) for start, size in zip(starts, sizes)]


@operation("Slice")
def slice_(w, call, x, starts=None, ends=None, axes=None, steps=None):
    known = [None if y is None else w.known_array(y, name) for y, name in
             ((starts, "starts"), (ends, "ends"), (axes, "axes"), (steps, "steps"))]
    for axis, start, end, step in zip(*fold.slice_arguments(call, len(x.full), *known)):
        size, places = x.full[axis], [fold.dim_of(start), min(fold.dim_of(end), 1 << 60)]
        if start == 0 and step == 1 and places[1] == size < 0:
            continue
        if any_varies([size] + places) and step > 0 and not any(
                isinstance(y, fold.Size) and not varies(place) for y, place in zip((start, end), places)):
            x = w.slice(x, axis, *places, step)
            continue
        if size < 0:
            if start == 0 and step == 1 and not isinstance(end, fold.Size) and end >= 2 ** 31 - 1:
                continue
            raise Refused("it cuts %s" % size_name(size))
        start, step, count = fold.bounds(size, start, end, step)
        if count == 0:
            raise Refused("its result is empty")
        last = start + (count - 1) * step
        x = w.slice(x, axis, min(start, last), max(start, last) + 1, abs(step))
        x = w.flip(x, axis) if step < 0 and count > 1 else x
    return x


def in_range(w, index, size):
    """An index with negative values counted from the end."""
    if isinstance(index, (Constant, Parameter)) and size >= 0:
        values = [fold.whole_place(i, size) for i in index.tensor.values]
        return Constant(Array("int64", index.tensor.shape, values), index.full)
    if size < 0:
        return w.expr("where(x < 0, x + y, x)", w.rounded(index), w.number_of(size))
    return w.expr("where(x < 0, x + %d, x)" % size, w.rounded(index))


@operation("Gather")
def gather(w, call, x, index):
    axis, shape = normal_axis(call.get("axis", 0), len(x.full)), index.full
    lead, size, tail = x.full[:axis], x.full[axis], x.full[axis + 1:]
    if size < 0 and not varies(size):
        raise Refused("it picks samples of the batch")
    if (isinstance(index, Constant) and index.tensor.count() == 1 and
        not isinstance(index.tensor.item(), fold.Size)):
        place = (normal_axis(index.tensor.item(), size) if varies(size) else
                 fold.whole_place(index.tensor.item(), size))
        return w.reshape(w.slice(x, axis, place, place + 1), lead + shape + tail)
    index = in_range(w, index, size)
    if axis == 0 and size > 0 and product(tail) > 0 and is_float(w.kind_of(x)):
        return w.reshape(looked_up(w, call, x, index, size, product(tail)), shape + tail)
    count = fold.dim_of(product(map(fold.of_dim, shape)))
    index = w.reshape(index, (1,) * len(lead) + (count,) + (1,) * len(tail))
    y = w.pick(x, axis, w.view(w.tensor(index), lead + (count,) + tail))
    return w.reshape(y, lead + shape + tail)


def looked_up(w, call, x, index, rows, width):
    """An embedding, with x as its weight if it is one."""
    index = w.integers(w.whole(index), ("i64", "i32"))
    name = w.layer_name(weight=x) if len(x.full) == 2 else None
    weight = None if name else w.f32(w.whole(w.reshape(x, (rows, width))))
    return w.layer("embedding", name or w.free_name(call), index, (), {"weight": x} if name else {},
                   num_embeddings=rows, embedding_dim=width, weight=weight)


@operation("GatherElements")
def gather_elements(w, call, x, index):
    axis = normal_axis(call.get("axis", 0), len(x.full))
    return w.pick(x, axis, in_range(w, index, x.full[axis]))


@operation("Pad")
def pad(w, call, x, pads=None, value=None, axes=None):
    rank, before, after = len(x.full), {}, {}
    pads = numbers(w, pads, "pads", call.get("pads", call.get("paddings", None)))
    axes = [normal_axis(axis, rank) for axis in numbers(w, axes, "axes", list(range(rank)))]
    fill = number(value, call.get("value", 0.0))
    if fill is None:
        w.known_array(value, "constant_value")
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
        if min(before[axis], after[axis]) < 0:
            x = w.slice(x, axis, max(0, -before[axis]), x.full[axis] + min(0, after[axis]))
    mode = {"constant": None, "reflect": "reflect", "edge": "replicate",
            "wrap": "circular"}[call.get("mode", "constant")]
    return padded(w, x, [max(0, before.get(i, 0)) for i in range(rank)],
                  [max(0, after.get(i, 0)) for i in range(rank)], mode, fill)


def padded(w, x, before, after, mode=None, value=0.0):
    if not any(before) and not any(after):
        return x
    value = float(value)
    return w.add("pad", [w.f32(w.whole(x))], (), before=list(before), after=list(after), mode=mode,
                 value=(value or None) if mode is None else None)


@operation("CenterCropPad")
def center_crop_pad(w, call, x, shape):
    rank, sizes = len(x.full), numbers(w, shape, "shape")
    before, after = [0] * rank, [0] * rank
    for axis, size in zip([normal_axis(axis, rank) for axis in call.get("axes", range(rank))], sizes):
        lost, missing = max(0, x.full[axis] - size), max(0, size - x.full[axis])
        x = w.slice(x, axis, lost // 2, lost // 2 + min(size, x.full[axis]))
        before[axis], after[axis] = missing // 2, missing - missing // 2
    return padded(w, x, before, after)


@operation("DepthToSpace")
def depth_to_space(w, call, x):
    (n, c, height, width), b = x.full, call.get("blocksize", 1)
    if call.get("mode", "DCR") == "DCR":
        y = w.permute(w.reshape(x, (n, b, b, c // (b * b), height, width)), [0, 3, 4, 1, 5, 2])
    else:
        y = w.permute(w.reshape(x, (n, c // (b * b), b, b, height, width)), [0, 1, 4, 2, 5, 3])
    return w.reshape(y, (n, c // (b * b), height * b, width * b))


@operation("SpaceToDepth")
def space_to_depth(w, call, x):
    (n, c, height, width), b = x.full, call.get("blocksize", 1)
    order = [0, 3, 5, 1, 2, 4] if call.get("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    y = w.permute(w.reshape(x, (n, c, height // b, b, width // b, b)), order)
    return w.reshape(y, (n, c * b * b, height // b, width // b))


@operation("GatherND")
def gather_nd(w, call, x, index):
    """One index into all the indexed axes, as rows of a matrix."""
    lead, depth = call.get("batch_dims", 0), index.full[-1]
    tail, rows = x.full[lead + depth:], joined_places(w, x, index, lead)
    matrix = w.reshape(x, (product(x.full[:lead + depth]), product(tail)))
    y = w.pick(matrix, 0, w.view(w.tensor(rows), (rows.full[0], product(tail))))
    return w.reshape(y, index.full[:-1] + tail)


def joined_places(w, x, index, lead=0):
    """The rows [count, 1] of x, as a matrix, that index [..., depth] selects, after so many axes that both
    have."""
    depth = index.full[-1]
    if any(dim < 0 for dim in x.full) or any(dim < 0 for dim in index.full):
        raise Refused("it picks samples of the batch")
    sizes, outer, place = x.full[lead:lead + depth], product(x.full[:lead]), None
    stride = product(sizes)
    index = w.reshape(index, (outer, product(index.full[lead:-1]), depth))
    starts = w.numbers([i * stride for i in range(outer)], (outer, 1, 1))
    for i, size in enumerate(sizes):
        stride //= size
        own = w.scale(w.f32(in_range(w, w.slice(index, 2, i, i + 1), size)), stride)
        place = own if place is None else w.map("add", place, own)
    place = w.map("add", place, starts)
    return w.reshape(place, (product(place.full), 1))


def reduction_of(call):
    reduction = call.get("reduction", "none")
    return {"none": None, "max": "maximum", "min": "minimum"}.get(reduction, reduction)


@operation("ScatterElements", "Scatter")
def scatter_elements(w, call, x, index, updates):
    axis = normal_axis(call.get("axis", 0), len(x.full))
    return w.scatter(x, axis, in_range(w, index, x.full[axis]), updates, reduction_of(call))


@operation("ScatterND")
def scatter_nd(w, call, x, index, updates):
    depth = index.full[-1]
    tail, rows = product(x.full[depth:]), joined_places(w, x, index)
    every = w.view(w.tensor(rows), (rows.full[0], tail))
    y = w.scatter(w.reshape(x, (product(x.full[:depth]), tail)), 0, every, w.reshape(updates, every.full),
                  reduction_of(call))
    return w.reshape(y, x.full)


@operation("Trilu")
def trilu(w, call, x, k=None):
    rows, columns = x.full[-2:]
    if rows < 0 or columns < 0:
        diagonal = int(numbers(w, k, "k", [0])[0])
        return w.map("where", w.triangle_of_sizes(rows, columns, not call.get("upper", 1), diagonal), x, 0.0)
    check_count(rows * columns)
    ones = Array("float32", (rows, columns), [1.0] * (rows * columns))
    mask = fold.trilu(call, ones, None if k is None else w.known_array(k, "k"))
    return w.map("where", Constant(mask), x, 0.0)


@operation("ReverseSequence")
def reverse_sequence(w, call, x, lengths):
    """Reverses the first elements of each sequence, up to its length. The others stay."""
    along, across = call.get("time_axis", 0), call.get("batch_axis", 1)
    own = [tuple(size if i == axis else 1 for i, size in enumerate(x.full)) for axis in (along, across)]
    count = w.known_size(x, along)
    places = w.expr("y - 1 - x if x < y else x", w.numbers(range(count), own[0]),
                    w.reshape(w.rounded(lengths), own[1]))
    return w.pick(x, along, w.view(places, x.full))


@operation("Compress")
def compress(w, call, x, condition):
    places = [i for i, keep in enumerate(numbers(w, condition, "condition")) if keep]
    if not call.has("axis"):
        x = w.reshape(x, (product(x.full),))
    axis = normal_axis(call.get("axis", 0), len(x.full))
    return gather(w, call.with_attributes(axis=axis), x, Constant(Array("int64", (len(places),), places)))


@operation("OneHot", kind="own")
def one_hot(w, call, index, depth, values):
    count, rank = int(numbers(w, depth, "depth")[0]), len(index.full)
    axis, lead = normal_axis(call.get("axis", -1), rank + 1), tuple(index.full)
    column = w.expr("where(x < 0, x + %d, x)" % count, w.reshape(index, lead[:axis] + (1,) + lead[axis:]))
    classes = counted(count, rank - axis)
    chosen = w.map("eq", column, classes)
    off, on = [w.slice(values, 0, i, i + 1) if isinstance(values, Value) else values.tensor.values[i]
               for i in (0, 1)]
    return w.as_kind(w.map("where", chosen, on, off), w.kind_of(values))


# ---- reductions --------------------------------------------------------------------------------------------
def reduction(build):
    """build: a function of the writer, x, axes and whether they are kept."""
    def lower(w, call, x, axes=None):
        given = numbers(w, axes, "axes", call.get("axes", None))
        if not given and call.get("noop_with_empty_axes", 0):
            return build(w, w.copied(x), [], True)
        return build(w, w.copied(x), normal_axes(given, len(x.full)), bool(call.get("keepdims", 1)))
    return lower


def total(w, x, axes, keep):
    return w.reduce("sum", x, axes, keep) if axes else x


def greatest(w, x, axes, keep):
    return w.reduce("max", x, axes, keep) if axes else x


def log_sum_exp(w, x, axes, keep):
    if not axes:
        return x
    top = w.expr("where(abs(x) <= 3.4028234e38, x, 0)", w.reduce("max", x, axes, True))
    y = w.map("log", w.reduce("sum", w.expr("exp(x - y)", x, top), axes, keep))
    return w.map("add", y, top if keep else w.reshape(top, y.shape))


def product_along(w, x, axes, keep):
    """One axis after another."""
    for axis in axes:
        x = w.fold("mul", x, axis)
    return x if keep else w.reshape(x, tuple(size for i, size in enumerate(x.full) if i not in axes))


OPERATIONS.update({
    "ReduceSum": reduction(total), "ReduceMax": reduction(greatest),
    "ReduceMean": reduction(lambda w, x, axes, keep: w.reduce("mean", x, axes, keep) if axes else x),
    "ReduceMin": reduction(lambda w, x, axes, keep: w.map("neg", greatest(w, w.map("neg", x), axes, keep))),
    "ReduceL1": reduction(lambda w, x, axes, keep: total(w, w.map("abs", x), axes, keep)),
    "ReduceL2": reduction(lambda w, x, axes, keep: w.map("sqrt", total(w, w.map("square", x), axes, keep))),
    "ReduceSumSquare": reduction(lambda w, x, axes, keep: total(w, w.map("square", x), axes, keep)),
    "ReduceLogSum": reduction(lambda w, x, axes, keep: w.map("log", total(w, x, axes, keep))),
    "ReduceLogSumExp": reduction(log_sum_exp), "ReduceProd": reduction(product_along)})


@operation("ArgMax", "ArgMin", kind="int64")
def arg_max(w, call, x):
    x, axis = w.f32(w.whole(x)), normal_axis(call.get("axis", 0), len(x.full))
    x = w.map("neg", x) if call.op == "ArgMin" else x
    keep = True if call.get("keepdims", 1) else None
    if not call.get("select_last_index", 0):
        return w.add("argmax", [x], (), dim=axis, keepdim=keep)
    last = w.add("argmax", [w.flip(x, axis)], (), dim=axis, keepdim=keep)
    return w.expr("%d - x" % (x.full[axis] - 1), w.f32(last))


@operation("TopK", kind="own")
def top_k(w, call, x, k=None):
    kind, axis = w.kind_of(x), normal_axis(call.get("axis", -1), len(x.full))
    x = w.f32(w.whole(x))
    count = call.get("k", None) if k is None else numbers(w, k, "k")[0]
    places = w.add("topk_indices", [x], (), k=count, dim=axis,
                   largest=None if call.get("largest", 1) else False)
    return [w.as_kind(w.add("gather", [x, places], (), dim=axis), kind), w.as_kind(places, "int64")]


@operation("NonMaxSuppression")
def non_max_suppression(w, call, boxes, scores, *_):
    raise Refused("how many boxes it keeps depends on values; end the model at '%.80s' and '%.80s' with "
                  "onnx.utils.extract_model, and call nms of examples/nms.h with them for each class" %
                  tuple(call.inputs[:2]))


@operation("Hardmax")
def hardmax(w, call, x):
    axis = normal_axis(call.get("axis", -1 if call.opset >= 13 else 1), len(x.full))
    y = rows_of(w, x, axis) if call.opset < 13 else w.f32(w.whole(x))
    along = 1 if call.opset < 13 else axis
    place = w.add("argmax", [y], (), dim=along, keepdim=True)
    size = y.shape[along]
    classes = counted(size, len(y.shape) - along - 1)
    return w.reshape(w.map("eq", w.f32(place), classes), x.full)


def rows_of(w, x, axis):
    """x as the matrix that ops before opset 13 take: all axes before axis, and all others."""
    return w.f32(w.reshape(x, flat_shape(x.full, axis)))


def flat_shape(shape, axis):
    return tuple(fold.dim_of(product(map(fold.of_dim, part))) for part in (shape[:axis], shape[axis:]))


@operation("Softmax", "LogSoftmax")
def softmax(w, call, x):
    op = "softmax" if call.op == "Softmax" else "log_softmax"
    axis = normal_axis(call.get("axis", -1 if call.opset >= 13 else 1), len(x.full))
    if call.opset >= 13 or axis == len(x.full) - 1:
        return w.add(op, [w.f32(w.whole(x))], (), dim=axis)
    return w.reshape(w.add(op, [rows_of(w, x, axis)], (), dim=1), x.full)


@operation("CumSum", "CumProd")
def cumulative(w, call, x, axis):
    axis, x = normal_axis(numbers(w, axis, "axis")[0], len(x.full)), w.f32(w.whole(x))
    x = w.flip(x, axis) if call.get("reverse", 0) else x
    y = w.add("cumsum", [x], (), dim=axis) if call.op == "CumSum" else w.running("mul", x, axis)
    if call.get("exclusive", 0) and call.op == "CumSum":
        y = w.map("sub", y, x)
    elif call.get("exclusive", 0):
        before = [int(i == axis) for i in range(len(x.full))]
        y = padded(w, w.slice(y, axis, 0, x.full[axis] - 1), before, [0] * len(before), value=1.0)
    return w.flip(y, axis) if call.get("reverse", 0) else y


@operation("Einsum")
def einsum(w, call, *operands):
    return w.einsum(call.get("equation", ""), operands)


@operation("QuantizeLinear", kind="own")
def quantize(w, call, x, scale, zero=None):
    kind = w.kind_of(zero) if zero is not None else KINDS[call.get("output_dtype", 0) or 2]
    if kind not in RANGES or call.get("block_size", 0):
        raise Refused("quantising to %s is not possible" % ("blocks" if call.get("block_size", 0) else kind))
    low, high = RANGES[kind]
    y = OPERATIONS["Round"](w, call, w.map("div", x, along_axis(w, call, x, scale)))
    y = y if zero is None else w.map("add", y, along_axis(w, call, x, zero))
    return w.as_kind(w.map("clamp", y, min=float(low), max=float(high)), kind)


def along_axis(w, call, x, y):
    """A scale or zero point, reshaped to broadcast against x."""
    if len(y.full) != 1 or y.full == (1,):
        return w.reshape(y, ()) if y.full == (1,) else y
    return w.reshape(y, y.full + (1,) * (len(x.full) - 1 - normal_axis(call.get("axis", 1), len(x.full))))


@operation("DequantizeLinear", kind="own")
def dequantize(w, call, x, scale, zero=None):
    if call.get("block_size", 0):
        raise Refused("blocks are not possible where the tensor is not known")
    y = w.f32(x) if zero is None else w.map("sub", x, along_axis(w, call, x, zero))
    return w.as_kind(w.map("mul", y, along_axis(w, call, x, scale)), w.kind_of(scale))


@operation("DynamicQuantizeLinear", kind="own")
def dynamic_quantize(w, call, x):
    top = w.map("clamp", w.reduce("max", x), min=0.0)
    bottom = w.map("neg", w.map("clamp", w.reduce("max", w.map("neg", x)), min=0.0))
    scale = w.expr("where(x == y, 1, x - y) / 255", top, bottom)
    zero = w.map("clamp", OPERATIONS["Round"](w, call, w.expr("-x / y", bottom, scale)), min=0.0, max=255.0)
    y = w.map("add", OPERATIONS["Round"](w, call, w.map("div", x, scale)), zero)
    return [w.as_kind(w.map("clamp", y, min=0.0, max=255.0), "uint8"), w.as_kind(scale, "float32"),
            w.as_kind(zero, "uint8")]


