"""Builds ONNX's layers: products, convolutions, pools, norms, resizing, recurrence, attention, losses."""
import math

from . import resize
from .arrays import Array, transposed
from .onnx_ops import OPERATIONS, numbers, operation, padded
from .spec_writer import (Constant, Parameter, Refused, Value, normal_axes, normal_axis, product, size_name,
                          text, waves)
from ..sizes import any_varies, varies


# ---- products ----------------------------------------------------------------------------------------------
def turned(w, x):
    """A weight with its two axes exchanged, as a parameter of the same name."""
    if id(x) not in w.turned:
        result = transposed(x.tensor, (1, 0))
        w.turned[id(x)] = x, Parameter(x.name, result, True) if x.name else Constant(result)
    return w.turned[id(x)][1]


def linear(w, call, x, weight, bias):
    """x times weight [out, in] transposed: a layer of that name, or one that reads parameters of other
    names."""
    given, added = {}, None
    if bias is not None and (isinstance(bias, Value) or bias.full != weight.full[:1]):
        bias, added = None, bias
    suffixes = {"weight": weight, "bias": bias}
    own = next((y.name[:-5] for y in (bias,) if y is not None and (y.name or "").endswith(".bias")), None)
    if own and "%s.weight" % own not in w.taken and not weight.value and isinstance(weight, Parameter):
        weight.name = own + ".weight"  # PyTorch's exporter gives transposed weights no name
    name = w.layer_name(**suffixes)
    if name is None:
        name = w.free_name(call)
        given = {"weight": w.weight(weight, name + ".weight"),
                 "bias": False if bias is None else w.weight(bias, name + ".bias")}
        suffixes = {}
    elif bias is None:
        given["bias"] = False
    y = w.layer("linear", name, x, (), suffixes, out_features=weight.full[0], **given)
    return y if added is None else w.map("add", y, added)


def is_weight(x, rank=2):
    return isinstance(x, (Parameter, Constant)) and len(x.full) == rank and x.full == x.tensor.shape


@operation("MatMul")
def matmul(w, call, a, b):
    if isinstance(a, Value) and is_weight(b) and len(a.full) >= 2:
        return linear(w, call, a, turned(w, b), w.bias_of(call, b.full[1]))
    return product_of(w, a, b)


def product_of(w, a, b):
    """numpy.matmul, also of vectors."""
    rank_a, rank_b = len(a.full), len(b.full)
    a = w.reshape(a, (1,) + a.full) if rank_a == 1 else a
    b = w.reshape(b, b.full + (1,)) if rank_b == 1 else b
    y = w.matmul(a, b)
    shape = y.shape[:-2] + (() if rank_a == 1 else y.shape[-2:-1]) + (() if rank_b == 1 else y.shape[-1:])
    return w.reshape(y, shape)


@operation("Gemm")
def gemm(w, call, a, b, c=None):
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    if (isinstance(a, Value) and is_weight(b) and not call.get("transA", 0) and alpha == 1 and
        (c is None or beta == 1)):
        return linear(w, call, a, b if call.get("transB", 0) else turned(w, b), c)
    a = w.permute(a, (1, 0)) if call.get("transA", 0) else a
    b = w.permute(b, (1, 0)) if call.get("transB", 0) else b
    y = w.scale(w.matmul(a, b), alpha)
    return y if c is None or beta == 0 else w.map("add", y, w.scale(w.f32(c), beta))


def less(w, x, zero, behind=0):
    """x minus its zero point: one number, or one for each element of an axis."""
    if zero is None:
        return w.f32(x)
    return w.map("sub", x, w.reshape(zero, zero.full + (1,) * behind) if product(zero.full) > 1 else zero)


@operation("MatMulInteger", kind="int32")
def matmul_integer(w, call, a, b, a_zero=None, b_zero=None):
    w.note_integers(call)
    return product_of(w, less(w, a, a_zero, 1), less(w, b, b_zero))


@operation("ConvInteger", kind="int32")
def conv_integer(w, call, x, weight, x_zero=None, w_zero=None):
    w.note_integers(call)
    return conv(w, call, less(w, x, x_zero), less(w, weight, w_zero, len(weight.full) - 1))


def scaled(w, call, y, factors, scale, zero):
    """Scales a product of integers to the scale of the result."""
    y = w.map("mul", y, w.map("div", w.map("mul", *factors), scale))
    return OPERATIONS["QuantizeLinear"](w, call.with_attributes(axis=1), y, w.f32(1.0), zero)


@operation("QLinearMatMul", kind="own")
def qlinear_matmul(w, call, a, a_scale, a_zero, b, b_scale, b_zero, scale, zero):
    y = product_of(w, less(w, a, a_zero, 1), less(w, b, b_zero))
    a_scale = w.reshape(a_scale, a_scale.full + (1,)) if product(a_scale.full) > 1 else a_scale
    return scaled(w, call, y, (a_scale, b_scale), scale, zero)


@operation("QLinearConv", kind="own")
def qlinear_conv(w, call, x, x_scale, x_zero, weight, w_scale, w_zero, scale, zero, bias=None):
    y = conv(w, call, less(w, x, x_zero), less(w, weight, w_zero, len(weight.full) - 1), bias and w.f32(bias))
    w_scale = column(w, w_scale, len(x.full)) if product(w_scale.full) > 1 else w_scale
    return scaled(w, call, y, (x_scale, w_scale), scale, zero)


# ---- windows -----------------------------------------------------------------------------------------------
def alike(setting):
    """One number if all are equal, as the spec has it."""
    return setting[0] if len(set(setting)) == 1 else list(setting)


def unless(default, setting):
    return None if set(setting) == {default} else alike(setting)


class Window:
    """A window of a convolution or pool: kernel, strides, dilations, and the padding before and after, for
    each axis."""

    def __init__(self, call, x, kernel):
        axes = len(x.full) - 2
        if axes not in (1, 2, 3):
            raise Refused("x has %d spatial axes; 1 to 3 are possible" % axes)
        if any(size < 0 and not varies(size) for size in x.full[1:]):
            raise Refused("a spatial axis is the batch")
        self.axes, self.kernel = axes, list(kernel)
        self.strides = list(call.get("strides", None) or [1] * axes)
        self.dilations = list(call.get("dilations", None) or [1] * axes)
        pads = list(call.get("pads", None) or [0] * 2 * axes)
        self.before, self.after = pads[:axes], pads[axes:]
        self.auto = call.get("auto_pad", "NOTSET")
        if self.auto == "VALID":
            self.before, self.after = [0] * axes, [0] * axes
        elif self.auto != "NOTSET":
            self.set_same(x.full[2:])
        if min(self.before + self.after) < 0:
            raise Refused("negative padding is not possible")

    def reach(self):
        return [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations)]

    def set_same(self, sizes):
        """Sets the padding to give size / stride results, rounded up. The odd cell is after, or before for
        SAME_LOWER."""
        if any_varies(sizes) and set(self.strides) != {1}:
            raise Refused("its padding depends on %s; with auto_pad only a stride of 1 is possible there" %
                          size_name(min(sizes)))
        sizes = [1 << 30 if varies(size) else size for size in sizes]  # any number, if the stride is 1
        missing = [max(0, (-(-size // s) - 1) * s + reach - size)
                   for size, s, reach in zip(sizes, self.strides, self.reach())]
        less, more = [m // 2 for m in missing], [m - m // 2 for m in missing]
        self.before, self.after = (less, more) if self.auto == "SAME_UPPER" else (more, less)

    def is_even(self):
        return self.before == self.after

    def padded(self, w, x, value=0.0):
        """x with the padding carried out."""
        x = padded(w, x, [0, 0] + self.before, [0, 0] + self.after, value=value)
        self.before = self.after = [0] * self.axes
        return x


    def reached(self, call, x):
        """The number of results along each axis. Extends the padding after x to the end of the last
        window."""
        ceil = call.get("ceil_mode", 0) and self.auto == "NOTSET"
        counts = [pooled_size(self, i, size, ceil) for i, size in enumerate(x.full[2:])]
        for i, (size, count) in enumerate(zip(x.full[2:], counts)):
            missing = (count - 1) * self.strides[i] + self.reach()[i] - size - self.before[i]
            self.after[i] = max(self.after[i], missing)
        return counts


def convolution(w, call, op, x, weight, bias, channels, window, **given):
    """A convolution's layer, or one that reads weights of other names or computed ones."""
    parts, added = {"weight": weight, "bias": bias}, None
    name = w.layer_name(**parts)
    if name is None:
        name, parts = w.free_name(call), {}
        given["weight"] = (w.f32(w.whole(weight)) if isinstance(weight, Value) else
                           w.weight(weight, name + ".weight"))
        if isinstance(bias, Value):
            added = w.reshape(bias, (channels,) + (1,) * window.axes)
        elif bias is not None:
            given["bias"] = w.weight(bias, name + ".bias")
    if bias is None or added is not None:
        given["bias"] = False
    y = w.layer(op + "%dd" % window.axes, name, x, (), parts, out_channels=channels,
                kernel_size=alike(window.kernel), stride=unless(1, window.strides),
                dilation=unless(1, window.dilations), padding=unless(0, window.before), **given)
    return y if added is None else w.map("add", y, added)


@operation("Conv")
def conv(w, call, x, weight, bias=None):
    window, groups = Window(call, x, weight.full[2:]), call.get("group", 1)
    x = w.f32(w.whole(x)) if window.is_even() else window.padded(w, x)
    return convolution(w, call, "conv", x, weight, bias, weight.full[0], window,
                       groups=None if groups == 1 else groups)


@operation("ConvTranspose")
def conv_transpose(w, call, x, weight, bias=None):
    groups, axes = call.get("group", 1), len(x.full) - 2
    window = Window(call.with_attributes(auto_pad="NOTSET"), x, weight.full[2:])
    extra = list(call.get("output_padding", None) or [0] * axes)
    full = [(size - 1) * s + reach + e
            for size, s, reach, e in zip(x.full[2:], window.strides, window.reach(), extra)]
    sizes, auto = call.get("output_shape", None), call.get("auto_pad", "NOTSET")
    if sizes is not None and len(sizes) != axes:
        raise Refused("its output_shape has %d sizes for %d spatial axes" % (len(sizes), axes))
    if sizes is None and auto.startswith("SAME"):
        sizes = [size * s for size, s in zip(x.full[2:], window.strides)]
    if sizes is not None:
        lost = [f - size for f, size in zip(full, sizes)]
        less, more = [n // 2 for n in lost], [n - n // 2 for n in lost]
        window.before, window.after = (less, more) if auto == "SAME_UPPER" else (more, less)
    if any_varies(x.full[2:]) and (sizes is not None or window.before != window.after):
        raise Refused("its padding depends on %s" % size_name(min(x.full[2:])))
    cut = [(b, f - a) for b, a, f in zip(window.before, window.after, full)]
    before, after = window.before, window.after
    if (before == after and all(b >= 0 for b in before) and
        all(e < max(s, d) for e, s, d in zip(extra, window.strides, window.dilations))):
        cut = [(0, None)] * axes
    else:
        window.before, grown, extra = [0] * axes, extra, [0] * axes
        extra = [e if e < max(s, d) else 0 for e, s, d in zip(grown, window.strides, window.dilations)]
    y = convolution(w, call, "conv_transpose", w.f32(w.whole(x)), weight, bias, weight.full[1] * groups,
                    window, output_padding=unless(0, extra), groups=None if groups == 1 else groups)
    missing = [max(0, (end or 0) - size) for (_, end), size in zip(cut, y.full[2:])]
    if any(missing) or any(start < 0 for start, _ in cut):
        raise Refused("its output_padding or output_shape is larger than what the kernel reaches")
    for axis, (start, end) in enumerate(cut):
        y = w.slice(y, axis + 2, start, end)
    return y


@operation("MaxPool", kind="own")
def max_pool(w, call, x):
    window, kind = Window(call, x, call.get("kernel_shape", None)), w.kind_of(x)
    if len(call.outputs) > 1 and call.outputs[1]:
        y, places = max_pool_places(w, call, x, window)
        return [w.as_kind(y, kind), w.as_kind(places, "int64")]
    if set(window.dilations) != {1}:
        return w.as_kind(dilated_pool(w, "maximum", x, window, window.reached(call, x), -math.inf), kind)
    even = window.is_even() and all(2 * p <= k for p, k in zip(window.before, window.kernel))
    return w.as_kind(pool(w, call, "max_pool", x if even else window.padded(w, x, -math.inf), window), kind)


def max_pool_places(w, call, x, window):
    """The maxima, and the index of each in the whole tensor."""
    sizes, before = list(x.full[2:]), list(window.before)
    counts = window.reached(call, x)
    x = w.f32(w.whole(window.padded(w, x, -math.inf)))
    y, places = w.pooled_places(x, window.kernel, window.strides, window.dilations, before, counts, sizes)
    if call.get("storage_order", 0):  # columns before rows
        rows, columns = sizes
        places = w.expr("r = floor_divide(x, %d); (x - r * %d) * %d + r" % (columns, columns, rows), places)
    channels = w.numbers([i * product(sizes) for i in range(x.full[1])], (x.full[1],) + (1,) * len(sizes))
    samples = w.scale(w.reshape(w.counting(x.full[0]), x.full[:1] + (1,) * (len(x.full) - 1)),
                      x.full[1] * product(sizes))
    w.note_integers(call)
    return y, w.map("add", w.map("add", places, channels), samples)


@operation("MaxUnpool")
def max_unpool(w, call, x, places, shape=None):
    """Puts each value where it was the maximum, with zeros elsewhere."""
    kernel = call.get("kernel_shape", None)
    axes = len(kernel)
    window = Window(call.with_attributes(auto_pad="NOTSET"), x, kernel)
    pads = [b + a for b, a in zip(window.before, window.after)]
    own = [(size - 1) * s + k - pad for size, s, k, pad in zip(x.full[2:], window.strides, kernel, pads)]
    wanted = numbers(w, shape, "output shape", own)[-axes:]
    lead, cells = x.full[:2], product(own)
    inside = w.expr("x - %d * floor_divide(x, %d)" % (cells, cells),
                    w.reshape(places, lead + (product(x.full[2:]),)))
    blank = w.whole(w.view(w.tensor(0.0), lead + (cells,)))
    y = w.reshape(w.scatter(blank, 2, inside, w.reshape(x, lead + (product(x.full[2:]),))), lead + tuple(own))
    return padded(w, y, [0] * (axes + 2), [0, 0] + [size - least for size, least in zip(wanted, own)])


def dilated_pool(w, op, x, window, counts, fill):
    """A pool with dilated windows, one axis at a time: a slice for each cell of the kernel, joined by op."""
    if max(window.kernel) > 256:
        raise Refused("a pool with dilation of more than 256 cells along an axis is not possible")
    x = window.padded(w, x, fill)
    for i, count in enumerate(counts):
        x = joined_cells(w, op, x, i + 2, count, window.kernel[i], window.strides[i], window.dilations[i])
    return x


def pooled_size(window, axis, size, ceil):
    """The number of windows along an axis. With ceil one may end outside, but none may start there."""
    before, after, step = window.before[axis], window.after[axis], window.strides[axis]
    count = (size + before + after - window.reach()[axis] + (step - 1 if ceil else 0)) // step + 1
    return count - 1 if ceil and (count - 1) * step >= size + before else count


def joined_cells(w, op, x, axis, count, kernel, stride, dilation):
    result = None
    for cell in range(kernel):
        start = cell * dilation
        part = w.slice(x, axis, start, start + (count - 1) * stride + 1, stride)
        result = part if result is None else w.map(op, result, part)
    return result


def pool(w, call, op, x, window, **given):
    return w.add(op + "%dd" % window.axes, [w.f32(w.whole(x))], (), **dict(pool_keys(call, window), **given))


def pool_keys(call, window):
    ceil = call.get("ceil_mode", 0) and window.auto == "NOTSET"
    return {"kernel_size": alike(window.kernel),
            "stride": None if window.strides == window.kernel else alike(window.strides),
            "padding": unless(0, window.before), "ceil_mode": True if ceil else None}


@operation("AveragePool")
def average_pool(w, call, x):
    window, inside = Window(call, x, call.get("kernel_shape", None)), call.get("count_include_pad", 0)
    even = window.is_even() and all(2 * p <= k for p, k in zip(window.before, window.kernel))
    if set(window.dilations) != {1} or not even and inside and call.get("ceil_mode", 0):
        return dilated_average(w, call, x, window, inside)
    if even and (inside or not any(window.before)):
        return pool(w, call, "avg_pool", x, window)
    if even:
        return pool(w, call, "avg_pool", x, window, count_include_pad=False)
    ones = None if inside else Constant(Array("float32", (1, 1) + x.full[2:], [1.0] * product(x.full[2:])))
    before, after = window.before, window.after
    y = pool(w, call, "avg_pool", window.padded(w, x), window)
    if inside:
        return y
    window.before, window.after = before, after
    return w.map("div", y, pool(w, call, "avg_pool", window.padded(w, ones), window))


def dilated_average(w, call, x, window, inside):
    """Sums divided by the number of cells in x, or also in its padding."""
    before, own = list(window.before), list(window.after)
    counts = window.reached(call, x)
    after = list(window.after)  # up to the end of the last window, which is not counted
    ones = Constant(Array("float32", (1, 1) + x.full[2:], [1.0] * product(x.full[2:])))
    if inside:
        ones = Constant(Array("float32", (1, 1), [1.0]),
                        (1, 1) + tuple(s + b + a for s, b, a in zip(x.full[2:], before, own)))
    total = dilated_pool(w, "add", x, window, counts, 0.0)
    window.before, window.after = (([0] * window.axes, [a - o for a, o in zip(after, own)]) if inside else
                                   (before, after))
    return w.map("div", total, dilated_pool(w, "add", w.whole(ones), window, counts, 0.0))


def spatial(x):
    return list(range(2, len(x.full)))


@operation("GlobalAveragePool")
def global_average_pool(w, call, x):
    return w.reduce("mean", x, spatial(x), True)


@operation("GlobalMaxPool")
def global_max_pool(w, call, x):
    return w.reduce("max", x, spatial(x), True)


def powered(w, x, p):
    return w.map("square", x) if p == 2 else w.map("pow_scalar", w.map("abs", x), exponent=float(p))


def root(w, x, p):
    return w.map("sqrt", x) if p == 2 else w.map("pow_scalar", x, exponent=1.0 / p)


@operation("GlobalLpPool")
def global_lp_pool(w, call, x):
    p = call.get("p", 2)
    return root(w, w.reduce("sum", powered(w, x, p), spatial(x), True), p)


@operation("LpPool")
def lp_pool(w, call, x):
    window, p = Window(call, x, call.get("kernel_shape", None)), call.get("p", 2)
    if set(window.dilations) != {1} or call.get("ceil_mode", 0):
        return root(w, dilated_pool(w, "add", powered(w, x, p), window, window.reached(call, x), 0.0), p)
    means = pool(w, call, "avg_pool", window.padded(w, powered(w, x, p)), window)
    return root(w, w.scale(means, product(window.kernel)), p)


@operation("LRN")
def local_response_norm(w, call, x):
    """Squares are summed along the channels by an average pool of [n, 1, channels, all else]."""
    size, rest = call.get("size", 1), product(x.full[2:])
    squares = w.reshape(w.map("square", x), (x.full[0], 1, x.full[1], rest))
    squares = padded(w, squares, [0, 0, (size - 1) // 2, 0], [0, 0, size - 1 - (size - 1) // 2, 0])
    means = w.reshape(w.add("avg_pool2d", [squares], (), kernel_size=[size, 1], stride=1), x.full)
    return w.expr("x / pow(%s + %s * y, %s)" % (text(call.get("bias", 1.0)), text(call.get("alpha", 1e-4)),
                                                text(call.get("beta", 0.75))), x, means)


@operation("Col2Im")
def col2im(w, call, x, image, block):
    """A transposed convolution whose weight puts each cell of a column in its place."""
    image, block = numbers(w, image, "image shape"), numbers(w, block, "block shape")
    axes, cells = len(image), product(block)
    pads = call.get("pads", [0] * 2 * axes)
    strides, dilations = call.get("strides", [1] * axes), call.get("dilations", [1] * axes)
    sizes = [size + before + after for size, before, after in zip(image, pads, pads[axes:])]
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, block)]
    counts = tuple((size - r) // s + 1 for size, r, s in zip(sizes, reach, strides))
    channels = x.full[1] // cells
    unit = [float(i == j) for i in range(cells) for j in range(cells)]
    weight = w.tensor(Constant(Array("float32", (channels * cells, 1) + tuple(block), unit * channels)))
    y = w.layer("conv_transpose%dd" % axes, w.free_name(call), w.reshape(x, x.full[:2] + counts), (), {},
                out_channels=channels, kernel_size=alike(list(block)), stride=unless(1, strides),
                dilation=unless(1, dilations), bias=False,
                groups=None if channels == 1 else channels, weight=weight)
    y = padded(w, y, [0] * (axes + 2), [0, 0] + [size - own for size, own in zip(sizes, y.full[2:])])
    for axis, (size, before) in enumerate(zip(image, pads), 2):
        y = w.slice(y, axis, before, before + size)
    return y


# ---- norms -------------------------------------------------------------------------------------------------
def column(w, x, rank):
    """One number per channel, reshaped to broadcast against [n, channels, ...]."""
    return w.reshape(x, x.full + (1,) * (rank - 2))


@operation("BatchNormalization")
def batch_norm(w, call, x, scale, bias, mean, var):
    trains = (call.get("training_mode", 0) if call.opset >= 14 else any(call.outputs[1:]) and
              not call.get("is_test", 0))
    if trains:
        raise Refused("training mode is not possible in an imported model")
    parts, rank = {"weight": scale, "bias": bias, "running_mean": mean, "running_var": var}, len(x.full)
    eps = call.get("epsilon", 1e-5)
    if not all(is_weight(p, 1) and p.full == x.full[1:2] for p in parts.values()) or not 2 <= rank <= 5:
        scale, bias, mean, var = [column(w, p, rank) for p in parts.values()]
        factor = w.expr("x / sqrt(y + %s)" % text(eps), scale, var)
        return w.map("add", w.map("mul", w.map("sub", x, mean), factor), bias)
    name = w.layer_name(**parts)
    if name is None:
        name = (scale.name or "").rpartition(".weight")[0]
        name = name if name and name not in w.layers and name not in w.taken else w.free_name(call)
        parts = {suffix: Parameter("%s.%s" % (name, suffix), p.tensor, True) for suffix, p in parts.items()}
    parts = {suffix: Constant(p.tensor, name=p.name) if "running" in suffix else p
             for suffix, p in parts.items()}
    op = {4: "batch_norm2d", 5: "batch_norm3d"}.get(rank, "batch_norm1d")
    return w.layer(op, name, x, (), parts, eps=None if eps == 1e-5 else eps)


def layer_of(w, call, op, x, weight, bias, **given):
    """A norm's layer. weight and bias become its own if they are known and have its shape, else they are
    applied after it."""
    shape = given.pop("shape")
    known = all(p is None or isinstance(p, (Parameter, Constant)) and p.full == p.tensor.shape == shape
                for p in (weight, bias))
    if known and weight is not None and (bias is not None or op in ("layer_norm", "rms_norm")):
        parts = {"weight": weight, "bias": bias}
        name = w.layer_name(**parts)
        if name is None:
            name = w.free_name(call)
            parts = {key: None if p is None else Parameter("%s.%s" % (name, key), p.tensor, True)
                     for key, p in parts.items()}
        if bias is None and op == "layer_norm":
            given["bias"] = False
        return w.layer(op, name, x, (), parts, **given)
    flag = {"elementwise_affine": False} if op in ("layer_norm", "rms_norm") else {"affine": False}
    return w.layer(op, w.free_name(call), x, (), {}, **dict(given, **flag))


def norm_of_last(w, call, op, x, weight, bias, axis, eps):
    dims = len(x.full) - normal_axis(axis, len(x.full))
    given = {"eps": float(eps), "dims": None if dims == 1 else dims, "shape": tuple(x.full[-dims:])}
    mark = len(w.layers)
    y = layer_of(w, call, op, x, weight, bias, **given)
    if mark < len(w.layers) and y.entry.attributes.get("elementwise_affine") is False:
        y = y if weight is None else w.map("mul", y, weight)
        y = y if bias is None else w.map("add", y, bias)
    return y


@operation("LayerNormalization")
def layer_norm(w, call, x, weight=None, bias=None):
    axis, eps = normal_axis(call.get("axis", -1), len(x.full)), call.get("epsilon", 1e-5)
    y = norm_of_last(w, call, "layer_norm", x, weight, bias, axis, eps)
    if len(call.outputs) == 1:
        return y
    axes = list(range(axis, len(x.full)))
    mean = w.reduce("mean", x, axes, True)
    var = w.reduce("mean", w.map("square", w.map("sub", x, mean)), axes, True)
    return [y, mean, w.expr("1 / sqrt(x + %s)" % text(eps), var)][:len(call.outputs)]


@operation("RMSNormalization")
def rms_norm(w, call, x, weight):
    return norm_of_last(w, call, "rms_norm", x, weight, None, call.get("axis", -1), call.get("epsilon", 1e-5))


@operation("InstanceNormalization", "GroupNormalization")
def group_norm(w, call, x, weight, bias):
    groups, channels, eps = call.get("num_groups", x.full[1]), x.full[1], call.get("epsilon", 1e-5)
    if weight.full == (groups,) and groups != channels:  # opset 18: one number per group
        weight, bias = [w.reshape(w.view(w.tensor(w.reshape(p, (groups, 1))), (groups, channels // groups)),
                                  (channels,)) for p in (weight, bias)]
    y = layer_of(w, call, "group_norm", x, weight, bias, num_groups=groups, eps=float(eps), shape=(channels,))
    if y.entry.attributes.get("affine") is False:
        y = w.map("add", w.map("mul", y, column(w, weight, len(x.full))), column(w, bias, len(x.full)))
    return y


@operation("MeanVarianceNormalization")
def mean_variance_norm(w, call, x):
    axes = normal_axes(call.get("axes", [0, 2, 3]), len(x.full))
    centred = w.map("sub", x, w.reduce("mean", x, axes, True))
    return w.expr("x / (sqrt(y) + 1e-9)", centred, w.reduce("mean", w.map("square", centred), axes, True))


@operation("LpNormalization")
def lp_norm(w, call, x):
    axis, p = normal_axis(call.get("axis", -1), len(x.full)), call.get("p", 2)
    length = w.reduce("sum", w.map("square" if p == 2 else "abs", x), [axis], True)
    return w.expr("n = %s; where(n == 0, 0, x / n)" % ("sqrt(y)" if p == 2 else "y"), x, length)


# ---- resizing ----------------------------------------------------------------------------------------------
def resized_by_scales(w, call, x, scales, sizes):
    """Resizes images of any size, if gpunn's interpolate gives the same as Resize."""
    mode = call.get("mode", "nearest"), call.get("coordinate_transformation_mode", "half_pixel")
    own = {("nearest", "asymmetric"): ("nearest", None)
           if call.get("nearest_mode", "round_prefer_floor") == "floor" else None,
           ("linear", "half_pixel"): ("linear", None), ("linear", "pytorch_half_pixel"): ("linear", None),
           ("linear", "align_corners"): ("linear", True)}.get(mode)
    if call.get("mode", "") == "cubic" and (call.get("cubic_coeff_a", -0.75), call.get("exclude_outside", 0),
                                           call.get("antialias", 0), len(x.full)) == (-0.75, 0, 0, 4):
        own = {"half_pixel": ("cubic", None), "align_corners": ("cubic", True)}.get(mode[1])
    if (own is None or sizes or not scales or len(scales) != len(x.full) or list(scales[:2]) != [1, 1] or
        call.has("axes")):
        raise Refused("of %s it is possible with scales, as nearest with asymmetric and floor, linear or "
                      "cubic" % size_name(min(x.full[2:])))
    return w.add("interpolate", [w.f32(w.whole(x))], (),
                 scale_factor=alike([float(scale) for scale in scales[2:]]), mode=own[0],
                 align_corners=own[1])


@operation("Resize", "Upsample")
def resized(w, call, x, roi=None, scales=None, sizes=None):
    if call.op == "Upsample" or call.opset < 11:
        scales = call.get("scales", None) if roi is None else numbers(w, roi, "scales")
        scales, sizes, roi = scales if scales is not None else None, None, None
        call = call.with_attributes(coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    else:
        scales, sizes = numbers(w, scales, "scales"), numbers(w, sizes, "sizes")
    if any_varies(x.full[2:]):
        return resized_by_scales(w, call, x, scales, sizes)
    cropped = call.get("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    roi = numbers(w, roi, "roi") if cropped else None
    plans = [one for one in resize.plan(call, x.full, scales or None, sizes or None) if cropped or
             one[1:] != (one[2], one[1], 1)]
    matrices = [resize.matrix(call, *one, roi, len(x.full)) for one in plans]
    own = resize.interpolate_mode(plans, matrices, len(x.full))
    if own and plans:
        size = list(x.full[2:])
        for axis, _, new, _ in plans:
            size[axis - 2] = new
        return w.add("interpolate", [w.f32(w.whole(x))], (), size=alike(size), mode=own[0],
                     align_corners=own[1])
    for (axis, old, new, _), (values, outside) in zip(plans, matrices):
        x = w.along(x, axis, Constant(Array("float32", (new, old), values)))
        if any(outside) and call.get("extrapolation_value", 0.0):
            fill = [call.get("extrapolation_value", 0.0) * out for out in outside]
            x = w.map("add", x, Constant(Array("float32", (new,) + (1,) * (len(x.full) - 1 - axis), fill)))
    return x


@operation("DFT")
def fourier(w, call, x, length=None, axis=None):
    """Real numbers have a last axis of 1, complex ones of 2."""
    last = len(x.full) - 1
    axis = normal_axis(call.get("axis", 1) if call.opset < 20 else numbers(w, axis, "axis", [-2])[0],
                       last + 1)
    size, count = x.full[axis], int(numbers(w, length, "length", [x.full[axis]])[0])
    if call.get("inverse", 0) and call.get("onesided", 0):
        count = int(numbers(w, length, "length", [2 * (size - 1)])[0])
        x = padded_to(w, x, axis, count // 2 + 1)
        return w.real_of_half([w.slice(x, last, i, i + 1) for i in (0, 1)], axis, count, 1 / count)
    x = padded_to(w, x, axis, count)
    parts = [w.slice(x, last, i, i + 1) for i in range(x.full[last])]
    rows, inverse = count // 2 + 1 if call.get("onesided", 0) else count, bool(call.get("inverse", 0))
    return w.add("concat", list(w.fourier(parts, axis, rows, inverse, 1 / count if inverse else 1.0)), (),
                 dim=last)


def padded_to(w, x, axis, count):
    """The first count elements along an axis, padded with zeros."""
    rank, size = len(x.full), x.full[axis]
    x = w.slice(x, axis, 0, min(size, count))
    return padded(w, x, [0] * rank, [max(0, count - size) if i == axis else 0 for i in range(rank)])


@operation("STFT")
def short_fourier(w, call, x, step, window=None, length=None):
    """A convolution with the window times the cosines, then the negative sines, of each frequency as its
    channels."""
    step, own = (numbers(w, step, "frame_step")[0],
                 None if window is None else w.known_array(window, "window").values)
    size = numbers(w, length, "frame_length", [x.full[1] if own is None else len(own)])[0]
    rows, (cos, sin) = size // 2 + 1 if call.get("onesided", 1) else size, waves(size, size)
    cells = [c * v for wave, sign in ((cos, 1), (sin, -1)) for k in range(rows)
             for c, v in zip([sign * y for y in wave[k * size:(k + 1) * size]], own or [1.0] * size)]
    weight, parts = w.numbers(cells, (2 * rows, 1, size)), []
    for i in range(x.full[2]):
        part = w.reshape(w.slice(x, 2, i, i + 1), (x.full[0], 1, x.full[1]))
        y = convolution(w, call, "conv", w.f32(part), weight, None, 2 * rows,
                        Window(call.with_attributes(strides=[step]), part, [size]))
        parts.append([w.slice(y, 1, at, at + rows) for at in (0, rows)])
    (real, imag), more = parts[0], parts[1:]
    if more:  # of a complex signal
        real, imag = w.map("sub", real, more[0][1]), w.map("add", imag, more[0][0])
    turned = [w.permute(part, (0, 2, 1)) for part in (real, imag)]
    return w.add("concat", [w.reshape(part, part.full + (1,)) for part in turned], (), dim=3)


@operation("GridSample")
def grid_sample(w, call, x, grid):
    mode, padding = call.get("mode", "linear"), call.get("padding_mode", "zeros")
    if mode in ("cubic", "bicubic") and len(x.full) == 4:
        return w.cubic_sample(w.f32(w.whole(x)), w.f32(w.whole(grid)), padding,
                              bool(call.get("align_corners", 0)))
    mode = {"bilinear": "bilinear", "linear": "bilinear", "nearest": "nearest"}.get(mode)
    if mode is None:
        raise Refused("mode %s is not possible" % call.get("mode", ""))
    return w.add("grid_sample", [w.f32(w.whole(x)), w.f32(w.whole(grid))], (),
                 mode=None if mode == "bilinear" else mode, padding_mode=None if padding == "zeros" else
                 padding, align_corners=bool(call.get("align_corners", 0)) or None)


@operation("RoiAlign")
def roi_align(w, call, x, boxes, samples):
    if call.get("mode", "avg") != "avg":
        raise Refused("mode %s is not possible: only the mean of samples is" % call.get("mode", ""))
    aligned = call.opset >= 16 and call.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    samples = w.reshape(w.f32(w.whole(samples)), (samples.full[0], 1))
    boxes = w.add("concat", [w.whole(samples), w.f32(w.whole(boxes))], (), dim=1)
    size, scale = [call.get("output_height", 1), call.get("output_width", 1)], call.get("spatial_scale", 1.0)
    return w.add("roi_align", [w.f32(w.whole(x)), boxes], (), output_size=alike(size),
                 spatial_scale=None if scale == 1 else scale,
                 sampling_ratio=max(call.get("sampling_ratio", 0), 0) or None, aligned=aligned or None)


@operation("AffineGrid")
def affine_grid(w, call, theta, size):
    sizes = numbers(w, size, "size")
    return w.add("affine_grid", [w.f32(w.whole(theta))], (), size=list(sizes[2:]),
                 align_corners=bool(call.get("align_corners", 0)) or None)


# ---- losses ------------------------------------------------------------------------------------------------
def class_loss(w, call, op, x, labels, weight):
    reduction = call.get("reduction", "mean")
    x, labels = w.f32(w.whole(x)), w.whole(w.integers(labels))
    given = {"ignore_index": call.get("ignore_index", 0)} if call.has("ignore_index") else {}
    return w.add(op, [x, labels], (), reduction=None if reduction == "mean" else reduction,
                 weight=None if weight is None else w.tensor(weight), **given)


@operation("NegativeLogLikelihoodLoss")
def nll_loss(w, call, x, labels, weight=None):
    return class_loss(w, call, "nll_loss", x, labels, weight)


@operation("SoftmaxCrossEntropyLoss")
def cross_entropy(w, call, x, labels, weight=None):
    y = class_loss(w, call, "cross_entropy", x, labels, weight)
    return [y, w.add("log_softmax", [w.f32(w.whole(x))], (), dim=1)] if len(call.outputs) > 1 else y


# ---- attention ---------------------------------------------------------------------------------------------
@operation("RotaryEmbedding")
def rotary(w, call, x, cos, sin, places=None):
    if places is not None:
        cos, sin = [OPERATIONS["Gather"](w, call.with_attributes(axis=0), cache, places)
                    for cache in (cos, sin)]
    heads = call.get("num_heads", 0)
    shape = x.full
    x = (w.permute(w.reshape(x, shape[:2] + (heads, shape[2] // heads)), (0, 2, 1, 3)) if len(shape) == 3 else
         x)
    size = call.get("rotary_embedding_dim", 0) or x.full[3]
    half = size // 2
    cos, sin = [w.reshape(w.slice(c, len(c.full) - 1, 0, half), (c.full[0], 1) + c.full[1:-1] + (half,))
                for c in (cos, sin)]
    step = 2 if call.get("interleaved", 0) else 1
    first, last = ((0, size), (1, size)) if step == 2 else ((0, half), (half, size))
    a, b = w.slice(x, 3, first[0], first[1], step), w.slice(x, 3, last[0], last[1], step)
    parts = [w.expr("x0 * x2 - x1 * x3", a, b, cos, sin), w.expr("x0 * x3 + x1 * x2", a, b, cos, sin)]
    if step == 2:
        parts = [w.reshape(part, part.shape + (1,)) for part in parts]
    y = w.add("concat", parts, (), dim=len(parts[0].shape) - 1)
    y = w.reshape(y, y.shape[:3] + (size,)) if step == 2 else y
    y = w.add("concat", [y, w.slice(x, 3, size, None)], (), dim=3) if size < x.full[3] else y
    return w.reshape(w.permute(y, (0, 2, 1, 3)), shape) if len(shape) == 3 else y


