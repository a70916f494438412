"""Builds the ops of ONNX Runtime's domain com.microsoft, which its optimizer writes.

Weights of 8, 4 and 2 bits become floats on import. An op that rounds its inputs or its result to 8 bits does
so here too. Only the states of DynamicQuantizeLSTM stay floats."""
import math

from . import fold
from .arrays import MAX_ELEMENTS, Array, check_count, expanded, transposed
from .onnx_attention import biases, fused_attention, heads_of, summed
from .onnx_file import nibbles
from .onnx_layers import is_weight, linear, norm_of_last, product_of, turned
from .onnx_ops import OPERATIONS, operation
from .spec_writer import Constant, Parameter, Refused, product

DOMAIN = "com.microsoft"
LAYOUT = DOMAIN + ".nchwc"  # ops whose weights are stored in blocks of a processor's vectors


def microsoft(*names, **given):
    return operation(*["%s.%s" % (DOMAIN, name) for name in names], **given)


def renamed(call, op, **attributes):
    """The call as one of ONNX's own op."""
    result = call.with_attributes(**attributes)
    result.op = op
    return result


# ---- elementwise -------------------------------------------------------------------------------------------
@microsoft("Gelu", "BiasGelu")
def gelu(w, call, x, bias=None):
    return w.map("gelu", x if bias is None else w.map("add", x, bias))


@microsoft("FastGelu")
def fast_gelu(w, call, x, bias=None):
    return w.map("gelu_tanh", x if bias is None else w.map("add", x, bias))


@microsoft("QuickGelu")
def quick_gelu(w, call, x):
    return OPERATIONS["Swish"](w, call.with_attributes(alpha=call.get("alpha", 1.702)), x)


# ---- norms -------------------------------------------------------------------------------------------------
def check_outputs(call, *places):
    """Raises Refused if outputs for training are read."""
    if any(place < len(call.outputs) and call.outputs[place] for place in places):
        raise Refused("its mean and inverse deviation as outputs are not possible")


def skip_norm(w, call, op, parts, weight, bias):
    check_outputs(call, 1, 2)
    x = summed(w, [w.f32(part) for part in parts if part is not None])
    y = norm_of_last(w, call, op, x, weight, bias, -1, call.get("epsilon", 1e-12))
    return [y, None, None, x][:len(call.outputs)]


@microsoft("SkipLayerNormalization")
def skip_layer_norm(w, call, x, skip, weight, bias=None, added=None):
    return skip_norm(w, call, "layer_norm", (x, skip, added), weight, bias)


@microsoft("SkipSimplifiedLayerNormalization")
def skip_rms_norm(w, call, x, skip, weight, added=None):
    return skip_norm(w, call, "rms_norm", (x, skip, added), weight, None)


@operation("SimplifiedLayerNormalization")  # ONNX Runtime keeps it in ONNX's own domain
def simplified_layer_norm(w, call, x, weight):
    check_outputs(call, 1)
    return OPERATIONS["RMSNormalization"](w, call, x, weight)


@microsoft("EmbedLayerNormalization", kind="own")
def embed_layer_norm(w, call, ids, segments, words, positions,
                     segment_words, weight, bias, mask=None, places=None):
    """For words [n, length]. The second result is the number of words in each row's mask."""
    rows = call.with_attributes(axis=0)
    parts = [OPERATIONS["Gather"](w, rows, words, ids)]
    parts.append(w.slice(w.tensor(positions), 0, 0, ids.full[1]) if places is None else
                 OPERATIONS["Gather"](w, rows, positions, places))
    if segments is not None:
        parts.append(OPERATIONS["Gather"](w, rows, segment_words, segments))
    x = summed(w, parts)
    y = norm_of_last(w, call, "layer_norm", x, weight, bias, -1, call.get("epsilon", 1e-12))
    counts = Constant(Array("int32", (), [0]), ids.full[:1]) if mask is None else w.reduce("sum", mask, [1])
    return [y, w.as_kind(counts, "int32"), x][:len(call.outputs)]


# ---- products and what follows them ------------------------------------------------------------------------
CONV_PARAMETERS = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max")}


def activated(w, call, y, **attributes):
    op = call.get("activation", "") or "Identity"
    if op not in OPERATIONS:
        raise Refused("the activation %s is not possible" % op)
    return OPERATIONS[op](w, renamed(call, op, **attributes), y)


@microsoft("FusedConv")
def fused_conv(w, call, x, weight, bias=None, added=None):
    y = OPERATIONS["Conv"](w, call, x, weight, bias)
    y = y if added is None else w.map("add", y, added)
    names = CONV_PARAMETERS.get(call.get("activation", ""), ())
    return activated(w, call, y, **dict(zip(names, call.get("activation_params", []))))


@microsoft("FusedGemm")
def fused_gemm(w, call, a, b, c=None):
    y = OPERATIONS["Gemm"](w, call, a, b, c)
    names = [name for name in ("alpha", "beta", "gamma") if call.has("activation_" + name)]
    return activated(w, call, y, **{name: call.get("activation_" + name, 0.0) for name in names})


def with_turned_batch(w, x, turned_batch, turned_rows):
    """x [..., rows, columns] of FusedMatMul. turned_rows exchanges the last two axes.

    turned_batch is for x [rows, ..., columns]: it moves the first axis before the last.
    """
    order = list(range(len(x.full)))
    if turned_batch:
        order = order[1:-1] + [0, order[-1]]
    if turned_rows:
        order[-2:] = order[:-3:-1]
    return w.permute(x, order) if turned_batch or turned_rows else x


@microsoft("FusedMatMul", "TransposeMatMul")
def fused_matmul(w, call, a, b):
    flags = [(call.get("transBatch" + side, 0), call.get("trans" + side, 0)) for side in "AB"]
    a, alpha = with_turned_batch(w, a, *flags[0]), call.get("alpha", 1.0)
    if is_weight(b) and not flags[1][0]:
        return w.scale(linear(w, call, w.f32(a), b if flags[1][1] else turned(w, b), None), alpha)
    return w.scale(product_of(w, a, with_turned_batch(w, b, *flags[1])), alpha)


# ---- quantised ---------------------------------------------------------------------------------------------
def dequantised(w, call, x, scale, zero=None, axis=1):
    """(x - zero) * scale: a weight with x's name if all of them are known."""
    call, operands = renamed(call, "DequantizeLinear", axis=axis), (x, scale, zero)
    known = all(y is None or is_weight(y, len(y.full)) for y in operands)
    if not known or product(x.full) > MAX_ELEMENTS:
        return OPERATIONS["DequantizeLinear"](w, call, *operands)
    return weight_of(x, fold.dequantize(call, *[None if y is None else y.tensor for y in operands]))


def weight_of(x, array):
    """A weight in place of x."""
    return Parameter(x.name, array, True) if x.name else Constant(array)


def requantised(w, call, y, scale, zero, kind):
    zero = Constant(Array(kind, (), [0])) if zero is None else zero
    return OPERATIONS["QuantizeLinear"](w, renamed(call, "QuantizeLinear", block_size=0), y, scale, zero)


def of_integers(op, count=1, **attributes):
    """An op with `count` operands. Each is followed by its scale and zero point; the result's come last."""
    def lower(w, call, *operands):
        operands += (None,) * (3 * count + 2 - len(operands))
        parts = [dequantised(w, call, *operands[i:i + 3]) for i in range(0, 3 * count, 3)]
        y = OPERATIONS[op](w, renamed(call, op, **attributes), *parts)
        return requantised(w, call, y, *operands[3 * count:], w.kind_of(operands[0]))
    return lower


def channels_last(lower):
    """lower: for x [n, channels, ...], and for x [n, ..., channels] if the call has channels_last."""
    def lowered(w, call, x, *operands):
        if not call.get("channels_last", 0):
            return lower(w, call, x, *operands)
        last = len(x.full) - 1
        kind, order = w.kind_of(x), [0, last] + list(range(1, last))
        y = lower(w, call, w.as_kind(w.permute(x, order), kind), *operands)
        return w.as_kind(w.permute(y, [0] + list(range(2, last + 1)) + [1]), w.kind_of(y))
    return lowered


for name, lower in {"QLinearAdd": of_integers("Add", 2), "QLinearMul": of_integers("Mul", 2),
                    "QLinearSigmoid": of_integers("Sigmoid"), "QLinearLeakyRelu": of_integers("LeakyRelu"),
                    "QLinearAveragePool": channels_last(of_integers("AveragePool")),
                    "QLinearGlobalAveragePool": channels_last(of_integers("GlobalAveragePool")),
                    "QLinearConv": channels_last(OPERATIONS["QLinearConv"]),
                    "QuantizeLinear": OPERATIONS["QuantizeLinear"],
                    "DequantizeLinear": OPERATIONS["DequantizeLinear"]}.items():
    microsoft(name, kind="own")(lower)


@microsoft("NhwcMaxPool", kind="own")
def nhwc_max_pool(w, call, x):
    return channels_last(OPERATIONS["MaxPool"])(w, call.with_attributes(channels_last=1), x)


@microsoft("QLinearConcat", kind="own")
def qlinear_concat(w, call, scale, zero, *operands):
    parts = [dequantised(w, call, *operands[i:i + 3]) for i in range(0, len(operands), 3)]
    return requantised(w, call, OPERATIONS["Concat"](w, call, *parts), scale, zero, w.kind_of(operands[0]))


@microsoft("QLinearSoftmax", kind="own")
def qlinear_softmax(w, call, *operands):
    call = call.with_attributes(axis=call.get("axis", -1))
    call.opset = call.get("opset", 13)
    return of_integers("Softmax")(w, call, *operands)


def biased_product(w, call, a, b, bias=None):
    """a times b plus bias: a layer if b is a weight."""
    if is_weight(b) and len(a.full) >= 2:
        return linear(w, call, w.f32(a), turned(w, b), bias)
    y = product_of(w, a, b)
    return y if bias is None else w.map("add", y, bias)


@microsoft("QGemm", kind="own")
def qgemm(w, call, a, a_scale, a_zero, b, b_scale, b_zero, c=None, scale=None, zero=None):
    """c is in units of a_scale * b_scale."""
    unit = fold.FOLDED["Mul"](call, *[w.known_array(y, "scales") for y in (a_scale, b_scale)])
    kind = w.kind_of(a)
    a = dequantised(w, call, a, a_scale, a_zero)
    b = dequantised(w, call, b, b_scale, b_zero, 0 if call.get("transB", 0) else 1)
    c = None if c is None else dequantised(w, call, c, Constant(unit), axis=-1)
    y = w.scale(OPERATIONS["Gemm"](w, call.with_attributes(alpha=1.0), a, b, c), call.get("alpha", 1.0))
    return w.as_kind(y, "float32") if scale is None else requantised(w, call, y, scale, zero, kind)


@microsoft("MatMulIntegerToFloat", kind="float32")
def matmul_integer_to_float(w, call, a, b, a_scale, b_scale, a_zero=None, b_zero=None, bias=None):
    a, b = dequantised(w, call, a, a_scale, a_zero), dequantised(w, call, b, b_scale, b_zero)
    return biased_product(w, call, a, b, bias)


def rounded_to_bytes(w, call, x):
    """x after DynamicQuantizeLinear and DequantizeLinear."""
    y, scale, zero = OPERATIONS["DynamicQuantizeLinear"](w, call, x)
    return w.map("mul", w.map("sub", y, zero), scale)


@microsoft("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(w, call, a, b, b_scale, b_zero=None, bias=None):
    b = dequantised(w, call, b, b_scale, b_zero)
    return biased_product(w, call, rounded_to_bytes(w, call, a), b, bias)


@microsoft("MatMulNBits")
def matmul_n_bits(w, call, a, b, scales, zeros=None, groups=None, bias=None):
    rows, columns, block = [call.get(name, 0) for name in ("N", "K", "block_size")]
    bits = call.get("bits", 4)
    if bits not in (2, 4, 8) or block < 1 or min(rows, columns) < 1:
        raise Refused("weights [%d, %d] of %d bits in blocks of %d are not possible" % (
            rows, columns, bits, block))
    if groups is not None:
        raise Refused("g_idx is not possible")
    check_count(rows * columns)
    blocks = -(-columns // block)
    numbers = unpacked(w.known_array(b, "weight"), bits, rows, columns)
    factors = w.known_array(scales, "scales").values
    places = zero_points(w, zeros, bits, rows, blocks)
    values = [(numbers[i * columns + j] - places[i * blocks + j // block]) * factors[i * blocks + j // block]
              for i in range(rows) for j in range(columns)]
    return linear(w, call, w.f32(a), weight_of(b, fold.of_values("float32", (rows, columns), values)), bias)


def zero_points(w, zeros, bits, rows, blocks):
    """[rows, blocks]. They are packed like the weights, or floats."""
    if zeros is None:
        return [1 << bits - 1] * (rows * blocks)
    zeros = w.known_array(zeros, "zero points")
    return unpacked(zeros, bits, rows, blocks) if zeros.kind == "uint8" else zeros.values


def unpacked(x, bits, rows, columns):
    """Integers of 2, 4 or 8 bits, with the lowest bits of a byte first. Each row begins with a new byte."""
    step = x.count() // rows
    if step * 8 < columns * bits or x.kind != "uint8":
        raise Refused("%d bytes a row hold no %d numbers of %d bits" % (step, columns, bits))
    starts = range(0, rows * step, step)
    return [y for i in starts for y in nibbles(x.values[i:i + step], "uint%d" % bits, columns)]


def gates_weight(w, what, x, scale, zero):
    """The weight [directions, gates, in] of integers [directions, in, gates].

    scale, zero: [directions] or [directions, gates]
    """
    x, *others = [w.known_array(y, what) for y in (x, scale, zero)]
    scale, zero = [expanded(y.reshape((x.shape[0], 1, y.count() // x.shape[0])), x.shape) for y in others]
    values = [(a - z) * s for a, s, z in zip(x.values, scale, zero)]
    return Constant(transposed(fold.of_values("float32", x.shape, values), (0, 2, 1)))


@microsoft("DynamicQuantizeLSTM")
def dynamic_quantize_lstm(w, call, x, weight, recurrent, bias, lengths, h_0, c_0, peepholes, *scales):
    w.notes.setdefault("states", "%s does not round its states to 8 bits at each step" % call.place)
    parts = [gates_weight(w, "W", weight, *scales[:2]), gates_weight(w, "R", recurrent, *scales[2:])]
    x, call = rounded_to_bytes(w, call, x), renamed(call, "LSTM")
    return OPERATIONS["LSTM"](w, call, x, *parts, bias, lengths, h_0, c_0, peepholes)


# ---- attention ---------------------------------------------------------------------------------------------
def hidden_keys(w, call, mask, queries, keys):
    """What is added to the scores. mask: 1 or 0 [n, keys] or [n, queries, keys], or lengths [n]."""
    if mask.full == queries.full[:1]:
        mask = w.map("lt", w.counting(keys), w.reshape(w.f32(mask), mask.full + (1,)))
    if len(mask.full) not in (2, 3) or mask.full[-1] != keys:
        raise Refused("a mask of %s is not possible" % list(mask.full))
    mask = w.reshape(mask, mask.full[:1] + (1,) * (4 - len(mask.full)) + mask.full[1:])
    return w.map("where", w.map("gt", mask, 0.0), 0.0, call.get("mask_filter_value", -10000.0))


def attended(w, call, operands, mask, added):
    """Attention of operands q, k, v [n, length, heads * size]; k and v may be [n, heads, length, size]."""
    heads = call.get("num_heads", 0)
    q, k, v = [heads_of(w, x, heads) for x in operands]
    scores = [hidden_keys(w, call, mask, q, k.full[2])] if mask is not None else []
    scores += [added] if added is not None else []
    call = call.with_attributes(is_causal=call.get("unidirectional", 0))
    scores += biases(w, call, None, 0, None, q.full[2], k.full[2])
    y = fused_attention(w, q, k, v, scores, call.get("scale", 0.0) or 1 / math.sqrt(q.full[3]))
    y = w.permute(y, (0, 2, 1, 3))
    return w.reshape(y, y.full[:2] + (y.full[2] * y.full[3],))


def check_plain(call, past):
    if any(x is not None for x in past) or any(call.outputs[1:]) or call.get("do_rotary", 0):
        raise Refused("past or present keys and values, and do_rotary, are not possible")


@microsoft("Attention")
def attention(w, call, x, weight, bias=None, mask=None, past=None, added=None, past_length=None):
    """One product computes q, k and v."""
    check_plain(call, (past, past_length))
    sizes = call.get("qkv_hidden_sizes", None) or [weight.full[1] // 3] * 3
    y, ends = biased_product(w, call, x, weight, bias), [sum(sizes[:i + 1]) for i in range(3)]
    return attended(w, call, [w.slice(y, 2, end - size, end) for end, size in zip(ends, sizes)], mask, added)


@microsoft("QAttention", kind="float32")
def qattention(w, call, x, weight, bias, x_scale, weight_scale,
               mask=None, x_zero=None, weight_zero=None, past=None):
    x = dequantised(w, call, x, x_scale, x_zero)
    weight = dequantised(w, call, weight, weight_scale, weight_zero)
    return attention(w, call, x, weight, bias, mask, past)


@microsoft("MultiHeadAttention")
def multi_head_attention(w, call, q, k=None, v=None, bias=None, mask=None, added=None, *past):
    check_plain(call, past)
    if k is None or v is None or len(q.full) != 3:
        raise Refused("packed queries, keys and values are not possible")
    operands, start = [q, k, v], 0
    for i, x in enumerate(operands if bias is not None else ()):
        operands[i] = w.map("add", x, w.slice(bias, 0, start, start + x.full[2]))
        start += x.full[2]
    return attended(w, call, operands, mask, added)


def refuse_layout(w, call, *operands):
    raise Refused("its tensors have the layout of one processor; "
                  "write the file with ORT_ENABLE_EXTENDED in place of ORT_ENABLE_ALL")


OPERATIONS.update({"%s.%s" % (LAYOUT, name): refuse_layout for name in (
    "Conv", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "Upsample", "ReorderInput",
    "ReorderOutput")})
