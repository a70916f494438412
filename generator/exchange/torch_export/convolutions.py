"""Convolutions and pools."""
import math

from ..spec_writer import Parameter, normal_axis, product
from .operands import small_integers
from .registry import operation, reads


def along(setting, axes):
    """A setting of a window, as one number per spatial axis."""
    setting = [setting] if isinstance(setting, int) else list(setting)
    return setting * axes if len(setting) == 1 else setting


def alike(setting):
    """One number if all are equal, as the spec has it."""
    return setting[0] if len(set(setting)) == 1 else setting


def batched(w, x, axes):
    """x as [n, channels, ...] with so many spatial axes."""
    return w.f32(w.reshape(x, x.full if len(x.full) == axes + 2 else (1,) + x.full))


@operation("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
           "_convolution", "convolution", "_convolution_mode")
def conv(w, call, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, transposed=False,
         output_padding=0, **_):
    axes, transposed = len(weight.full) - 2, transposed or call.op.startswith("conv_transpose")
    name, parts, given, added = (w.layer_name(weight=weight, bias=bias), {"weight": weight, "bias": bias}, {},
                                 None)
    kernel, channels = list(weight.full[2:]), weight.full[1] * groups if transposed else weight.full[0]
    if name is None:  # another layer's weight, or a computed one
        name, parts, given = w.free_name(call), {}, {"weight": w.f32(w.whole(weight))}
        if isinstance(bias, Parameter):
            given["bias"] = w.tensor(bias)
        elif bias is not None:
            added = w.reshape(bias, (channels,) + (1,) * axes)
    x, shape = batched(w, x, axes), call.shapes[0][0]
    if padding == "same":
        missing = [d * (k - 1) for d, k in zip(along(dilation, axes), kernel)]
        padding = [m // 2 for m in missing]
        if any(m % 2 for m in missing):  # PyTorch pads one more at the end
            before, after, padding = [0, 0] + padding, [0, 0] + [m - m // 2 for m in missing], 0
            x = w.add("pad", [x], tuple(d + b + a for d, b, a in zip(x.full, before, after)), before=before,
                      after=after)
    elif padding == "valid":
        padding = 0

    def unless(default, setting):
        setting = along(setting, axes)
        return None if set(setting) == {default} else alike(setting)

    given.setdefault("bias", False if bias is None or added else None)
    y = w.layer("conv%s%dd" % ("_transpose" if transposed else "", axes), name, x,
                shape if len(shape) == axes + 2 else (1,) + shape, parts, out_channels=channels,
                kernel_size=alike(kernel),
                stride=unless(1, stride), padding=unless(0, padding), dilation=unless(1, dilation),
                output_padding=unless(0, output_padding), groups=None if groups == 1 else groups, **given)
    return w.reshape(w.map("add", y, added) if added else y, shape)


@operation("_weight_norm")
def weight_norm(w, call, v, g, dim=0):
    dims = [i for i in range(len(v.full)) if dim == -1 or i != normal_axis(dim, len(v.full))]
    return w.map("mul", v, w.map("div", g, w.map("sqrt", w.reduce("sum", w.map("square", v), dims, True))))


@operation("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d")
def pool(w, call, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, count_include_pad=True,
         divisor_override=None):
    axes = int(call.op[-2])
    x, kernel, padding = batched(w, x, axes), along(kernel_size, axes), along(padding, axes)
    stride = along(stride, axes) if stride else kernel
    if divisor_override is not None:
        after = pool_reach(call, x, kernel, stride, padding, [1] * axes)
        x = pool(w, call, padded_by(w, x, padding, after, None), kernel, stride)
        return w.scale(x, product(kernel) / divisor_override)
    if set(along(dilation, axes)) != {1}:
        return dilated_pool(w, call, x, kernel, stride, padding, along(dilation, axes))
    y = w.add(call.op, [x], x.shape[:2] + tuple(call.shapes[0][0][-axes:]), kernel_size=alike(kernel),
              stride=None if stride == kernel else alike(stride), padding=alike(padding) if any(padding) else
              None, ceil_mode=ceil_mode or None, count_include_pad=None if count_include_pad else False)
    return w.reshape(y, call.shapes[0][0])


def pool_reach(call, x, kernel, stride, padding, dilation):
    """For each axis, the cells behind x that the last window reaches."""
    sizes = call.shapes[0][0][-len(kernel):]
    ends = [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in zip(sizes, kernel, stride, dilation)]
    return [max(0, end - size - p) for end, size, p in zip(ends, x.full[2:], padding)]


def padded_by(w, x, before, after, value):
    """x with so many values before and after it along its last axes."""
    if not any(before) and not any(after):
        return x
    shape = x.full[:2] + tuple(p + size + a for p, size, a in zip(before, x.full[2:], after))
    return w.add("pad", [x], shape, before=[0, 0] + list(before), after=[0, 0] + list(after), value=value)


def dilated_pool(w, call, x, kernel, stride, padding, dilation):
    """Maxima of dilated windows, one axis at a time: a slice for each cell of the kernel."""
    sizes = call.shapes[0][0][-len(kernel):]
    x = padded_by(w, x, padding, pool_reach(call, x, kernel, stride, padding, dilation), -math.inf)
    for axis, (n, k, s, d) in enumerate(zip(sizes, kernel, stride, dilation), 2):
        cells = [w.slice(x, axis, i * d, i * d + (n - 1) * s + 1, s) for i in range(k)]
        x = cells[0]
        for cell in cells[1:]:
            x = w.map("maximum", x, cell)
    return w.reshape(x, call.shapes[0][0])


@operation("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def pool_with_indices(w, call, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
    plain = call._replace(op=call.op[:10])
    if 1 not in w.wanted:
        return pool(w, plain, x, kernel_size, stride, padding, dilation, ceil_mode), None
    axes, shape = int(call.op[8]), call.shapes[0][0]
    x, kernel, padding, dilation = (batched(w, x, axes), along(kernel_size, axes), along(padding, axes),
                                    along(dilation, axes))
    stride, sizes = along(stride, axes) if stride else kernel, x.full[2:]
    x = padded_by(w, x, padding, pool_reach(plain, x, kernel, stride, padding, dilation), -math.inf)
    y, places = w.pooled_places(x, kernel, stride, dilation, padding, shape[-axes:], sizes)
    return w.reshape(y, shape), w.reshape(small_integers(w, places), shape)


@operation("max_unpool2d", "max_unpool3d")
@reads("stride", "padding")
def unpool(w, call, x, indices, output_size=None, **_):
    """Puts each value where it was the maximum."""
    axes, shape = int(call.op[-2]), call.shapes[0][0]
    lead, cells = shape[:-axes], product(x.full[-axes:])
    blank = w.whole(w.view(w.tensor(0.0), lead + (product(shape[-axes:]),)))
    x, indices = [w.reshape(y, lead + (cells,)) for y in (x, indices)]
    return w.reshape(w.scatter(blank, len(lead), indices, x), shape)


@operation("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
           "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_pool(w, call, x, output_size):
    axes = int(call.op[-2])
    x, size = batched(w, x, axes), list(call.shapes[0][0][-axes:])
    y = w.reshape(w.add(call.op, [x], x.shape[:2] + tuple(size), output_size=alike(size)), call.shapes[0][0])
    return (y, None) if "max" in call.op else y
