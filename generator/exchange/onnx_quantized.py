"""Builds ops of 8-bit numbers from quantised ONNX graphs.

In a QDQ graph a DequantizeLinear stands before each op and a QuantizeLinear behind it, perhaps after a Relu
or Clip. In a QOperator graph one op, such as QLinearConv, does all of this. Ops that only move numbers, or
take the largest, do so with bytes. What the ops of 8-bit numbers cannot express stays ops of floats that
round to 8 bits. int8 numbers of ONNX are stored as uint8 numbers 128 larger."""
import collections
import math

from . import fold
from .arrays import Array, transposed
from .onnx_layers import Window, is_weight, pool_keys, unless
from .onnx_microsoft import DOMAIN
from .onnx_ops import OPERATIONS, op_text
from .spec_writer import Constant, Parameter, Value, normal_axis
from ..floats import f32
from ..sizes import any_varies

SHIFTS = {"uint8": 0, "int8": 128}  # what is added to numbers of a kind
MOST_PRODUCTS = 32768  # of a sum, as in gpunn.h
MOST_BIAS = 1 << 22  # in units of a sum: larger ones may not be exact in a float32

Scale = collections.namedtuple("Scale", "scale zero kind")  # zero: of the stored numbers
Bytes = collections.namedtuple("Bytes", "value scale")  # a value of dtype u8 with its Scale
# The weight [out, ...] as floats, and what each of its rows is a multiple of
Rounded = collections.namedtuple("Rounded", "weight scales")
# The nodes up to a QuantizeLinear, its Scale, and the bounds before it
Ending = collections.namedtuple("Ending", "nodes scale low high")


# ---- what is known when a graph is imported ----------------------------------------------------------------
def values_of(x):
    """The values of a tensor that is the same in every run. None: it is not."""
    known = isinstance(x, (Constant, Parameter)) and x.full == x.tensor.shape
    return x.tensor.values if known else None


def scale_of(w, scale, zero, kind=None):
    """The Scale of a whole tensor. None: it has several, or they vary. kind: if there is no zero point."""
    scales, zeros = values_of(scale), [0] if zero is None else values_of(zero)
    kind = kind if zero is None else w.kind_of(zero)
    if (kind not in SHIFTS or scales is None or zeros is None or len(scales) != 1 or len(zeros) != 1 or
        not 0 < f32(scales[0]) < math.inf):
        return None
    return Scale(f32(scales[0]), zeros[0] + SHIFTS[kind], kind)


def row_scales(call, x, scale, zero, rows):
    """What each row of a weight of integers is a multiple of. rows: their axis. None: it is not possible."""
    known = [values_of(y) for y in (x, scale) + ((zero,) if zero is not None else ())]
    if any(values is None for values in known) or x.tensor.kind not in SHIFTS or call.get("block_size", 0):
        return None
    zeros, scales = known[2] if zero is not None else [0], [f32(y) for y in known[1]]
    along = len(scales) == 1 or normal_axis(call.get("axis", 1), len(x.full)) == rows
    if (not along or len(set(zeros)) != 1 or min(known[0]) - zeros[0] < -128 or
        max(known[0]) - zeros[0] > 127 or len(scales) not in (1, x.full[rows]) or
        not all(0 <= y < math.inf for y in scales)):
        return None
    return scales * (x.full[rows] if len(scales) == 1 else 1)


def of_integers(call, x, scale, zero, rows):
    """The Rounded of a weight of integers. None: it is not possible."""
    call = call.with_attributes(axis=rows, block_size=0)
    scales = row_scales(call, x, scale, zero, rows)
    return scales and Rounded(Constant(fold.dequantize(call, x.tensor, scale.tensor, zero and zero.tensor),
                                       name=x.name), scales)


def rounded_of(x, rows):
    """The Rounded of what DequantizeLinear gave of a weight. None: it is not possible."""
    call, operands = getattr(x, "rounded", (None, None))
    scales = call and row_scales(call, *(list(operands) + [None])[:3], rows)
    return scales and Rounded(x, scales)


def turned(rounded):
    """A Rounded of [in, out] as [out, in]."""
    return Rounded(Constant(transposed(rounded.weight.tensor, (1, 0)), name=rounded.weight.name),
                   rounded.scales)


# ---- values of 8 bits --------------------------------------------------------------------------------------
def stored(w, value, kind):
    """A value of dtype u8 as a tensor of ONNX's kind."""
    if kind == "uint8":
        return w.as_kind(value, kind)
    result = w.as_kind(w.map("add_scalar", w.f32(value), value=-128.0), kind)
    result.bytes = value
    return result


def bytes_of(w, x):
    """The value of dtype u8 in which a tensor of bytes is stored. None: there is none."""
    if not isinstance(x, Value) or x.shape != x.full:
        return None
    if w.kind_of(x) == "int8" and x.dtype == "i32":  # an input
        return w.add("cast", [w.integer("add", x, SHIFTS["int8"])], (), dtype="u8")
    return x if x.dtype == "u8" and w.kind_of(x) == "uint8" else getattr(x, "bytes", None)


def before(x):
    """The Bytes that x is the floats of. None: it is something else."""
    if not isinstance(x, Value) or x.entry is None or x.entry.op != "dequantize" or x.shape != x.full:
        return None
    given = x.entry.attributes
    return Bytes(x.entry.inputs[0], Scale(given["scale"], given.get("zero_point", 0), None))


def zero_point(zero):
    return zero or None


def quantize(w, call, x, scale, zero=None):
    known = scale_of(w, scale, zero, "uint8" if call.get("output_dtype", 0) in (0, 2) else None)
    if not w.int8 or known is None or call.get("block_size", 0):
        return FLOAT["QuantizeLinear"](w, call, x, scale, zero)
    if before(x):
        return stored(w, rescaled(w, before(x), whole(known)), known.kind)
    y = w.add("quantize_per_tensor", [w.f32(w.whole(x))], (), scale=known.scale,
              zero_point=zero_point(known.zero))
    return stored(w, y, known.kind)


def dequantize(w, call, x, scale, zero=None):
    value, known = bytes_of(w, x), scale_of(w, scale, zero, w.kind_of(x))
    if not w.int8 or value is None or known is None or w.kind_of(scale) != "float32":
        return FLOAT["DequantizeLinear"](w, call, x, scale, zero)
    return floats_of(w, Bytes(value, known))


def floats_of(w, x):
    """The floats of Bytes."""
    return w.as_kind(w.add("dequantize", [x.value], (), scale=x.scale.scale,
                           zero_point=zero_point(x.scale.zero)), "float32")


# ---- what follows an op ------------------------------------------------------------------------------------
def reader(lowering, name):
    """The only node that reads a value. None: there are none, several, or the graph gives it."""
    nodes = lowering.readers.get(name, [])
    return nodes[0] if len(nodes) == 1 and nodes[0] and id(nodes[0]) not in lowering.done else None


def bounds(lowering, node):
    """The bounds of a Relu or Clip. None: they vary."""
    if node.op == "Relu":
        return 0.0, math.inf
    if node.op != "Clip" or node.domain:
        return None
    given = [lowering.known.get(name) if name else None for name in node.inputs[1:]] + [None, None]
    numbers = [node.attributes.get(key, usual) if x is None else (values_of(x) or [None])[0]
               for x, key, usual in zip(given, ("min", "max"), (-math.inf, math.inf))]
    return None if None in numbers else tuple(numbers)


def ending(lowering, name, low=-math.inf, high=math.inf):
    """The Ending behind a value of these bounds. None: it is not rounded to 8 bits next."""
    nodes, node = [], reader(lowering, name)
    while node is not None and bounds(lowering, node):
        least, most = bounds(lowering, node)
        low, high = min(max(low, least), most), min(max(high, least), most)
        nodes.append(node)
        node = reader(lowering, node.outputs[0])
    if node is None or node.op != "QuantizeLinear" or node.attributes.get("block_size", 0):
        return None
    given = [lowering.known.get(name) for name in node.inputs[1:3]] + [None]
    known = scale_of(lowering.writer, given[0], given[1], "uint8")
    return known and Ending(nodes + [node], known, low, high)


def finish(lowering, call, end):
    """Marks the nodes of an Ending as done. The op's result is theirs."""
    lowering.done.update(map(id, end.nodes))
    lowering.joined[call.outputs[0]] = end.nodes[-1].outputs[0]


def bound(x, scale, usual):
    """A bound as a stored number."""
    if not math.isfinite(x):
        return usual
    return min(max(round(f32(x / scale.scale)) + scale.zero, 0), 255)


def whole(scale):
    """An Ending without nodes and bounds."""
    return Ending([], scale, -math.inf, math.inf)


def rescaled(w, x, end):
    """The value of Bytes at another Scale, within bounds: the sum of their halves."""
    keys = result_keys(end)
    if x.scale[:2] == end.scale[:2] and keys["quant_min"] is keys["quant_max"] is None:
        return x.value
    half = Bytes(x.value, x.scale._replace(scale=x.scale.scale / 2))
    return sum_of(w, half, half, end)


def result_keys(end):
    """The keys of the result's Scale and bounds."""
    least, most = bound(end.low, end.scale, 0), bound(end.high, end.scale, 255)
    return {"scale": end.scale.scale, "zero_point": zero_point(end.scale.zero), "quant_min": least or None,
            "quant_max": None if most == 255 else most}


# ---- layers ------------------------------------------------------------------------------------------------
def is_possible(x, weight, bias):
    """Whether a layer's sums are exact."""
    shape = weight.weight.tensor.shape
    units = [x.scale.scale * s for s in weight.scales]
    return (math.prod(shape[1:]) <= MOST_PRODUCTS and
            all(abs(b) <= MOST_BIAS * unit for b, unit in zip(bias or (), units)))


def layer(w, op, operand, weight, bias, **given):
    """An op with the operands of torch.ops.quantized."""
    out, name = len(weight.scales), weight.weight.name or w.unique("weight")
    parts = [Parameter(name, weight.weight.tensor)]
    for suffix, values in ("_scale", weight.scales), ("_bias", bias or [0.0] * out):
        parts.append(Constant(Array("float32", (out,), values), name=w.unique(name + suffix)))
    return w.add(op, [w.whole(operand)] + [w.tensor(x) for x in parts], (), **given)


def with_bytes(w, op, x, weight, bias, end, **given):
    """A layer of Bytes, as a tensor of the kind of its result. None: it is not possible."""
    if not is_possible(x, weight, bias):
        return None
    y = layer(w, op, x.value, weight, bias, x_scale=x.scale.scale,
              x_zero_point=zero_point(x.scale.zero), **dict(given, **result_keys(end)))
    return stored(w, y, end.scale.kind)


def convolution(w, call, x, weight, bias, end):
    shape = x.value.shape
    if len(shape) != 4 or any_varies(shape) or min(shape[1:]) < 1:
        return None
    window, groups = Window(call, x.value, weight.weight.tensor.shape[2:]), call.get("group", 1)
    if not window.is_even():
        return None
    return with_bytes(w, "quantized_conv2d", x, weight, bias, end, stride=unless(1, window.strides),
                      padding=unless(0, window.before), dilation=unless(1, window.dilations),
                      groups=None if groups == 1 else groups)


def bias_values(bias, out):
    """The values of a bias, [] for none. None: it is not known, or has another shape."""
    if bias is None:
        return []
    return values_of(bias) if bias.full == (out,) else None


def fused_layer(lowering, call, x, weight, bias, build):
    """A layer between a DequantizeLinear and a QuantizeLinear. None: it is not one."""
    x, end = before(x), ending(lowering, call.outputs[0])
    if x is None or weight is None or end is None:
        return None
    bias = bias_values(bias, len(weight.scales))
    y = None if bias is None else build(lowering.writer, call, x, weight, bias, end)
    if y is not None:
        finish(lowering, call, end)
    return y


def linear(w, call, x, weight, bias, end):
    return with_bytes(w, "quantized_linear", x, weight, bias, end)


def conv(lowering, call, x, weight, bias=None):
    return fused_layer(lowering, call, x, rounded_of(weight, 0), bias, convolution)


def gemm(lowering, call, a, b, c=None):
    plain = not call.get("transA", 0) and call.get("alpha", 1.0) == 1 and call.get("beta", 1.0) == 1
    rows = 0 if call.get("transB", 0) else 1
    weight = rounded_of(b, rows) if plain and is_weight(b) else None
    return fused_layer(lowering, call, a, weight and (turned(weight) if rows else weight), c, linear)


def matmul(lowering, call, a, b):
    weight = rounded_of(b, 1) if is_weight(b) else None
    return fused_layer(lowering, call, a, weight and turned(weight), None, linear)


def add(lowering, call, a, b):
    a, b, end = before(a), before(b), ending(lowering, call.outputs[0])
    if a is None or b is None or end is None or a.value.shape != b.value.shape:
        return None
    finish(lowering, call, end)
    return stored(lowering.writer, sum_of(lowering.writer, a, b, end), end.scale.kind)


def sum_of(w, a, b, end):
    return w.add("quantized_add", [a.value, b.value], (), a_scale=a.scale.scale,
                 a_zero_point=zero_point(a.scale.zero), b_scale=b.scale.scale,
                 b_zero_point=zero_point(b.scale.zero), **result_keys(end))


# ---- ops that move numbers or take the largest, and means --------------------------------------------------
def max_pool(w, call, x):
    """None: its padding or dilation is not possible for bytes."""
    window = Window(call, x, call.get("kernel_shape", None)) if len(x.full) == 4 else None
    if (window is None or any(call.outputs[1:]) or set(window.dilations) != {1} or not window.is_even() or
        any(2 * p > k for p, k in zip(window.before, window.kernel))):
        return None
    return w.add("max_pool2d", [x], (), **pool_keys(call, window))


MOVES = {op: OPERATIONS[op] for op in ("Flatten", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
                                       "Unsqueeze")}
MOVES["MaxPool"] = max_pool


def move(lowering, call, x, *rest):
    """Such an op of bytes, or of floats that bytes stand for. These are made behind it."""
    w, given = lowering.writer, before(x)
    value = given.value if given else bytes_of(w, x)
    result = None if value is None else MOVES[call.op](w, call, value, *rest)
    if result is None:
        return None
    results = [floats_of(w, Bytes(y, given.scale)) if given else stored(w, y, w.kind_of(x))
               for y in (result if isinstance(result, list) else [result])]
    return results if isinstance(result, list) else results[0]


def concat(lowering, call, *operands):
    w, parts, end = lowering.writer, [before(x) for x in operands], ending(lowering, call.outputs[0])
    if end is not None and all(parts):
        finish(lowering, call, end)
        return stored(w, joined(w, call, parts, end), end.scale.kind)
    values = [bytes_of(w, x) for x in operands]
    return stored(w, OPERATIONS["Concat"](w, call, *values), w.kind_of(operands[0])) if all(values) else None


def joined(w, call, parts, end):
    return OPERATIONS["Concat"](w, call, *[rescaled(w, x, end) for x in parts])


def limit(lowering, call, x, *_):
    """A Relu or Clip that no other op takes along."""
    x, known = before(x), bounds(lowering, call)
    end = known and ending(lowering, call.outputs[0], *known)
    if x is None or not end:
        return None
    finish(lowering, call, end)
    return stored(lowering.writer, rescaled(lowering.writer, x, end), end.scale.kind)


def mean_of(w, call, x, kernel, end):
    """Means of windows that lie inside: a convolution of each channel with ones. None: it is not possible."""
    channels, cells = x.value.shape[1], math.prod(kernel)
    share = f32(1 / cells)
    ones = Array("float32", (channels, 1) + tuple(kernel), [share] * (channels * cells))
    call = call.with_attributes(group=channels)
    return convolution(w, call, x, Rounded(Constant(ones), [share] * channels), [], end)


def cells_of(call, x):
    """The kernel of a pool of means. None: its windows are not all inside."""
    if len(x.full) != 4 or any_varies(x.full[1:]) or min(x.full[1:]) < 1:
        return None
    if call.op.endswith("GlobalAveragePool"):
        return x.full[2:]
    window = Window(call, x, call.get("kernel_shape", None))
    inside = set(window.before + window.after) == {0} and set(window.dilations) == {1}
    return tuple(window.kernel) if inside and not call.get("ceil_mode", 0) else None


def mean(lowering, call, x):
    x, end = before(x), ending(lowering, call.outputs[0])
    kernel = x and end and cells_of(call, x.value)
    y = kernel and mean_of(lowering.writer, call, x, kernel, end)
    if not y:
        return None
    finish(lowering, call, end)
    return y


# ---- QOperator ---------------------------------------------------------------------------------------------
def operand(w, x, scale, zero):
    """The Bytes of a tensor of bytes with its scale and zero point. None: it is not possible."""
    value, known = bytes_of(w, x), scale_of(w, scale, zero, w.kind_of(x))
    return Bytes(value, known) if value is not None and known else None


def alone(w, scale, zero, kind):
    known = scale_of(w, scale, zero, kind)
    return known and whole(known)


def qlinear_conv(w, call, x, x_scale, x_zero, weight, w_scale, w_zero, scale, zero, bias=None):
    operands = (x, x_scale, x_zero, weight, w_scale, w_zero, scale, zero, bias)
    given, end = operand(w, x, x_scale, x_zero), alone(w, scale, zero, w.kind_of(x))
    own = of_integers(call, weight, w_scale, w_zero, 0) if w.int8 and given and end else None
    y = own and layer_of_units(w, call, given, own, bias, end, convolution)
    return y or FLOAT["QLinearConv"](w, call, *operands)


def layer_of_units(w, call, x, weight, bias, end, build):
    """A layer whose bias is in units of its sums. None: it is not possible."""
    units = bias_values(bias, len(weight.scales))
    sums = [f32(b * f32(x.scale.scale * s)) for b, s in zip(units or [], weight.scales)]
    return None if units is None else build(w, call, x, weight, sums, end)


def qlinear_matmul(w, call, a, a_scale, a_zero, b, b_scale, b_zero, scale, zero):
    given, end = operand(w, a, a_scale, a_zero), alone(w, scale, zero, w.kind_of(a))
    own = of_integers(call, b, b_scale, b_zero, 1) if w.int8 and given and end and is_weight(b) else None
    y = own and linear(w, call, given, turned(own), [], end)
    return FLOAT["QLinearMatMul"](w, call, a, a_scale, a_zero, b, b_scale, b_zero, scale,
                                  zero) if y is None else y


# ---- layers of floats that each run rounds -----------------------------------------------------------------
def maker(lowering, name, op):
    """The node of that op that computes a value. None: another one does."""
    node = lowering.makers.get(name)
    return node if node is not None and node.op == op and not node.domain else None


def dynamic(lowering, call, *_):
    """Mul(Cast(MatMulInteger(q, weight, zero)), Mul(scale, weight_scale)) of DynamicQuantizeLinear's results
    q, scale and zero."""
    for product, factor in (call.inputs, call.inputs[::-1]):
        cast, scales = maker(lowering, product, "Cast"), maker(lowering, factor, "Mul")
        integers = cast and maker(lowering, cast.inputs[0], "MatMulInteger")
        start = integers and maker(lowering, integers.inputs[0], "DynamicQuantizeLinear")
        if (not start or not scales or start.outputs[1] not in scales.inputs or
            (integers.inputs[2:3] or [""])[0] != start.outputs[2]):
            continue
        own = [name for name in scales.inputs if name != start.outputs[1]]
        parts = [lowering.known.get(name) for name in [integers.inputs[1]] + own[:1] + integers.inputs[3:4]]
        return dynamic_linear(lowering.writer, call, lowering.known.get(start.inputs[0]),
                              *(parts + [None])[:3])
    return None


def dynamic_linear(w, call, x, b, b_scale, b_zero, bias=()):
    """bias (): what the next node adds."""
    weight = of_integers(call, b, b_scale, b_zero, 1) if is_weight(b) else None
    if weight is None or not isinstance(x, Value) or x.shape != x.full or not x.shape:
        return None
    weight = turned(weight)
    out = len(weight.scales)
    if weight.weight.tensor.shape[1] > MOST_PRODUCTS:
        return None
    bias = bias_values(w.bias_of(call, out) if bias == () else bias, out)
    y = None if bias is None else layer(w, "quantized_linear_dynamic", w.f32(x), weight, bias)
    return y and w.as_kind(y, "float32")


def dynamic_quantize_matmul(w, call, a, b, b_scale, b_zero=None, bias=None):
    y = dynamic_linear(w, call, a, b, b_scale, b_zero, bias) if w.int8 else None
    return FLOAT[DOMAIN + ".DynamicQuantizeMatMul"](w, call, a, b, b_scale, b_zero, bias) if y is None else y


def qlinear_add(w, call, a, a_scale, a_zero, b, b_scale, b_zero, scale, zero=None):
    parts = [operand(w, *x) if w.int8 else None for x in ((a, a_scale, a_zero), (b, b_scale, b_zero))]
    end = alone(w, scale, zero, w.kind_of(a))
    if not all(parts) or not end or parts[0].value.shape != parts[1].value.shape:
        return FLOAT[DOMAIN + ".QLinearAdd"](w, call, a, a_scale, a_zero, b, b_scale, b_zero, scale, zero)
    return stored(w, sum_of(w, *parts, end), end.scale.kind)


def qlinear_mean(name):
    """A pool of means."""
    def lower(w, call, x, x_scale, x_zero, scale, zero=None):
        first = not call.get("channels_last", 0)
        given = operand(w, x, x_scale, x_zero) if w.int8 and first else None
        end = alone(w, scale, zero, w.kind_of(x))
        kernel = given and end and cells_of(call, given.value)
        y = kernel and mean_of(w, call, given, kernel, end)
        return y or FLOAT[name](w, call, x, x_scale, x_zero, scale, zero)
    return lower


def qlinear_concat(w, call, scale, zero, *operands):
    groups = [operands[i:i + 3] for i in range(0, len(operands), 3)]
    parts = [operand(w, *x) if w.int8 else None for x in groups]
    end = alone(w, scale, zero, w.kind_of(operands[0]))
    if not all(parts) or not end:
        return FLOAT[DOMAIN + ".QLinearConcat"](w, call, scale, zero, *operands)
    return stored(w, joined(w, call, parts, end), end.scale.kind)


def qgemm(w, call, a, a_scale, a_zero, b, b_scale, b_zero, c=None, scale=None, zero=None):
    plain = w.int8 and not call.get("transA", 0) and call.get("alpha", 1.0) == 1 and scale is not None
    given, end = operand(w, a, a_scale, a_zero), plain and alone(w, scale, zero, w.kind_of(a))
    rows = 0 if call.get("transB", 0) else 1
    own = of_integers(call, b, b_scale, b_zero, rows) if given and end and is_weight(b) else None
    y = own and layer_of_units(w, call, given, turned(own) if rows else own, c, end, linear)
    return y or FLOAT[DOMAIN + ".QGemm"](w, call, a, a_scale, a_zero, b, b_scale, b_zero, c, scale, zero)


def matmul_integer_to_float(lowering, call, a, b, a_scale, b_scale, a_zero=None, b_zero=None, bias=None):
    """With a DynamicQuantizeLinear before it."""
    start = maker(lowering, call.inputs[0], "DynamicQuantizeLinear")
    if not start or [call.inputs[2], (call.inputs[4:5] or [""])[0]] != start.outputs[1:]:
        return None
    return dynamic_linear(lowering.writer, call, lowering.known.get(start.inputs[0]), b, b_scale, b_zero,
                          bias)


FUSED = {"Conv": conv, "Gemm": gemm, "MatMul": matmul, "Add": add, "Mul": dynamic, "Concat": concat,
         "Relu": limit, "Clip": limit, "GlobalAveragePool": mean, "AveragePool": mean,
         DOMAIN + ".MatMulIntegerToFloat": matmul_integer_to_float}
FUSED.update(dict.fromkeys(MOVES, move))
OWN = {"QuantizeLinear": quantize, "DequantizeLinear": dequantize, "QLinearConv": qlinear_conv,
       "QLinearMatMul": qlinear_matmul, DOMAIN + ".QLinearAdd": qlinear_add,
       DOMAIN + ".QLinearConcat": qlinear_concat, DOMAIN + ".QGemm": qgemm,
       DOMAIN + ".DynamicQuantizeMatMul": dynamic_quantize_matmul}
OWN.update({name: qlinear_mean(name) for name in (DOMAIN + ".QLinearAveragePool",
                                                  DOMAIN + ".QLinearGlobalAveragePool")})
FLOAT = {name: OPERATIONS[name] for name in OWN}  # the same with floats that are rounded
OPERATIONS.update(OWN)


def fused(lowering, call, operands):
    """The result of an op and of the nodes behind it that round to 8 bits. None: there is no such form."""
    build = FUSED.get(op_text(call)) if lowering.writer.int8 else None
    return build and build(lowering, call, *operands)
