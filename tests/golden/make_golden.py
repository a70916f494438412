#!/usr/bin/env python3
"""Writes the golden files beside it with PyTorch (2.9 or later, for Muon): python3
tests/golden/make_golden.py

Inputs are float32 values. Everything is computed in float64 and rounded once at the end, so the files do not
contain the rounding of some build. Each case is a group of tensors "case/role.name":
    batch.x, in.x    an input, with its first dimension the batch or fixed
    param.l.weight   a parameter or buffer
    out              the result in training mode          eval    in evaluation mode, if it differs
    grad_out         the gradient of out                  grad.x  the gradient of an input or parameter
    after.l.name     a buffer after one training step     attr    attributes of an elementwise op"""
import gzip
import io
import json
import math
import os
import struct
import types
import warnings
import zlib

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16",
          torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}
nan, inf = math.nan, math.inf


def raw(t):
    t = t.detach().contiguous()
    t = t.view(torch.int16) if t.dtype == torch.bfloat16 else t
    return t.numpy().tobytes()


def save(name, tensors):
    """Writes a safetensors file, so this script needs only torch. Tensors are sorted by element size, as in
    the safetensors library."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for key, t in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        chunk = raw(t)
        header[key] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape),
                       "data_offsets": [len(data), len(data) + len(chunk)]}
        data += chunk
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(HERE, name), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def f32(values, *shape):
    t = torch.tensor(values, dtype=torch.float64).float()
    return t.reshape(*shape) if shape else t


def randn(*shape, scale=1.0, shift=0.0):
    return (torch.randn(shape, dtype=torch.float64) * scale + shift).float()


def draw_for(name):
    """The random numbers of one op's cases stay the same when another op is added."""
    torch.manual_seed(zlib.crc32(name.encode()))


def up(t):
    return t.double() if t.dtype == torch.float32 else t


def down(t):
    return t.detach().float() if t.dtype == torch.float64 else t.detach()


def add_case(out, name, fn, batch=None, fixed=None, params=None, attr=None, no_grad=(), gradient=True,
             evaluate=None, buffers=(), grad_out=None):
    batch, fixed, params = batch or {}, fixed or {}, params or {}
    assert f"{name}/out" not in out, name
    live = {}
    for role, group in (("batch", batch), ("in", fixed), ("param", params)):
        for key, t in group.items():
            out[f"{name}/{role}.{key}"] = t.clone()
            live[key] = up(t.clone())
            if gradient and live[key].is_floating_point() and key not in no_grad and key not in buffers:
                live[key].requires_grad_(True)
    y = fn(**{key.replace(".", "_"): t for key, t in live.items()})
    out[f"{name}/out"] = down(y)
    if attr is not None:
        out[f"{name}/attr"] = f32(attr)
    if gradient and y.requires_grad:
        g = randn(*y.shape) if grad_out is None else grad_out
        out[f"{name}/grad_out"] = g
        y.backward(up(g))
        for key, t in live.items():
            if t.requires_grad:
                out[f"{name}/grad.{key}"] = down(t.grad if t.grad is not None else torch.zeros_like(t))
    for key in buffers:
        out[f"{name}/after.{key}"] = down(live[key])
    if evaluate is not None:
        with torch.no_grad():
            out[f"{name}/eval"] = down(evaluate(**{key.replace(".", "_"): t for key, t in live.items()}))


# ---- elementwise: the names of gpunn's op table ------------------------------------------------------------
UNARY = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "floor": torch.floor, "detach": torch.detach,
    "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin,
    "cos": torch.cos, "square": torch.square, "erf": torch.erf,
    "reciprocal": torch.reciprocal, "expm1": torch.expm1, "log1p": torch.log1p,
    "relu": F.relu, "relu6": F.relu6, "selu": F.selu, "gelu": F.gelu, "silu": F.silu, "mish": F.mish,
    "softsign": F.softsign,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "exp2": torch.exp2,
    "log2": torch.log2, "log10": torch.log10, "sinh": torch.sinh, "cosh": torch.cosh, "asin": torch.asin,
    "acos": torch.acos, "atan": torch.atan, "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh,
}
UNARY1 = {  # one attribute
    "leaky_relu": (lambda x, a: F.leaky_relu(x, a), [0.01, 0.25]),
    "elu": (lambda x, a: F.elu(x, a), [1.0, 0.5]),
    "celu": (lambda x, a: F.celu(x, a), [1.0, 0.5]),
    "hardshrink": (lambda x, a: F.hardshrink(x, a), [0.5, 1.0]),
    "pow_scalar": (lambda x, a: torch.pow(x, a), [2.0, 3.0, 0.0, -1.0]),
    "add_scalar": (lambda x, a: x + a, [0.5]),
    "mul_scalar": (lambda x, a: x * a, [0.5]),
}
UNARY2 = {  # two attributes
    "clamp": (lambda x, a, b: torch.clamp(x, a, b), [(-0.5, 0.75), (-1.0, 1.0), (-inf, 1.0), (-1.0, inf)]),
    "hardtanh": (lambda x, a, b: F.hardtanh(x, a, b), [(-1.0, 1.0), (-0.5, 2.0)]),
    "softplus": (lambda x, a, b: F.softplus(x, a, b), [(1.0, 20.0), (2.0, 5.0)]),
}
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum, "floor_divide": torch.floor_divide, "atan2": torch.atan2, "hypot": torch.hypot,
    "logaddexp": torch.logaddexp, "fmod": torch.fmod, "remainder": torch.remainder,
    "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne,
}
def loss_op(fn, **options):
    return lambda a, b: fn(*torch.broadcast_tensors(a, b), reduction="none", **options)


PAIR_LOSSES = {  # the losses without their reduction: function, attribute, whether a and b are probabilities
    "squared_error": (loss_op(F.mse_loss), None, False), "absolute_error": (loss_op(F.l1_loss), None, False),
    "huber": (loss_op(F.huber_loss, delta=0.75), [0.75], False),
    "smooth_l1": (loss_op(F.smooth_l1_loss, beta=0.75), [0.75], False),
    "binary_cross_entropy": (loss_op(F.binary_cross_entropy), None, True),
    "binary_cross_entropy_with_logits": (loss_op(F.binary_cross_entropy_with_logits), None, False),
    "kl_divergence": (loss_op(F.kl_div), None, True),
    "kl_divergence_log": (loss_op(F.kl_div, log_target=True), None, False),
    "parametric_relu": (lambda a, b: torch.where(a > 0, a, a * b), None, False),
}
COMMON = [-30.0, -8.0, -6.5, -4.0, -3.5, -2.75, -2.0, -1.5, -1.0, -0.75, -0.5, -0.25, -1e-3, -0.0, 0.0, 1e-3,
          0.25, 0.5, 0.75, 1.0, 1.25, 1.75, 2.5, 2.9, 3.5, 4.5, 5.9, 6.0, 6.5, 7.0, 11.0, 19.5, 20.5, 30.0]
SPECIAL = [nan, inf, -inf, 100.0, -100.0, 1e-30, -1e-30, 1e30, -1e30]
POSITIVE = ("log", "sqrt", "rsqrt", "log1p", "log2", "log10", "acosh")
INSIDE = ("asin", "acos", "atanh")  # of -1 and 1


def unary_values(name, attr):
    # torch's versions differ in its gradient there
    values = COMMON + ([-3.0, 3.0] if name != "hardswish" else [])
    if name == "reciprocal" or name == "pow_scalar" and attr[0] < 0:
        values = [v for v in values if v != 0]
    if name in POSITIVE:
        values = [1e-3, 0.25, 0.5, 1.0, 2.0, 7.5, 30.0, 1e4, 1e-8]
    return [v + 1.0009765625 for v in values] if name == "acosh" else values


def drawn(name):
    x = randn(19, scale=2)
    return (x.abs() + (1.125 if name == "acosh" else 0) if name in POSITIVE else
            x.tanh() if name in INSIDE else x)


def elementwise():
    out = {}

    def unary(name, fn, attr=None):
        label = name if attr is None else name + "".join(f"_{a:g}" for a in attr)
        fn_ = (lambda x: fn(x, *attr)) if attr else fn
        draw_for(label)
        values = f32(unary_values(name, attr))
        x = torch.cat([values[values.abs() < 1] if name in INSIDE else values, drawn(name)])
        add_case(out, f"{label}", lambda x: fn_(x), batch={"x": x}, attr=attr,
                 gradient=name not in ("sign", "floor", "detach"))
        # NaN, infinities and huge values forward only: gradients there are a matter of convention
        special = f32(SPECIAL + ([0.0, -1.0] if name in POSITIVE else []))
        if name in ("sin", "cos"):
            special = f32([nan, inf, -inf, 100.0, -100.0, 1e-30])
        add_case(out, f"{label}.special", lambda x: fn_(x), batch={"x": special}, attr=attr, gradient=False)

    for name, fn in UNARY.items():
        unary(name, fn)
    for name, (fn, attributes) in UNARY1.items():
        for a in attributes:
            unary(name, fn, [a])
    for name, (fn, attributes) in UNARY2.items():
        for a in attributes:
            unary(name, fn, list(a))

    pairs = {"same": ((5, 7), (5, 7)), "scalar": ((4, 3), ()), "row": ((4, 6), (6,)),
             "column": ((4, 6), (4, 1)), "outer": ((5, 1), (1, 7)), "both": ((3, 1, 4, 1), (2, 1, 5)),
             "channel": ((2, 3, 4, 5), (3, 1, 1)), "left": ((6,), (2, 3, 6)), "one": ((1,), (1, 1))}
    for name, fn in BINARY.items():
        compare = name in ("lt", "le", "gt", "ge", "eq", "ne", "floor_divide")
        draw_for(name)
        for label, (sa, sb) in pairs.items():
            a, b = randn(*sa), randn(*sb)
            if name in ("maximum", "minimum") or compare:  # with ties
                a, b = (a * 2).round() / 2, (b * 2).round() / 2
            if name == "pow":
                a = a.abs() + 0.125
            if name == "div":
                b = torch.where(b.abs() < 0.25, b + 0.5, b)
            add_case(out, f"{name}.{label}", lambda a, b: fn(a, b).to(torch.float64) if compare else fn(a, b),
                     fixed={"a": a, "b": b}, gradient=not compare)
        grid = f32([0.0, -0.0, 1.0, -1.0, 2.5, inf, -inf, nan])
        a, b = grid.repeat_interleave(8), grid.repeat(8)
        add_case(out, f"{name}.special", lambda a, b: fn(a, b).to(torch.float64), batch={"a": a, "b": b},
                 gradient=False)
    for name, (fn, attr, probability) in PAIR_LOSSES.items():
        draw_for(name)
        for label, (sa, sb) in pairs.items():
            a, b = (torch.sigmoid(randn(*shape)) if probability else randn(*shape) for shape in (sa, sb))
            add_case(out, f"{name}.{label}", fn, fixed={"a": a, "b": b}, attr=attr)
    draw_for("where")
    for label, (sc, sa, sb) in {"same": ((4, 5), (4, 5), (4, 5)), "broadcast": ((4, 1), (5,), ())}.items():
        c = (randn(*sc) > 0).float()
        add_case(out, f"where.{label}", lambda c, a, b: torch.where(c != 0, a, b),
                 fixed={"c": c, "a": randn(*sa), "b": randn(*sb)}, no_grad=("c",))
    c = f32([0, 1, 0, 1, 1, 0])  # the branch not taken must not matter
    add_case(out, "where.special", lambda c, a, b: torch.where(c != 0, a, b),
             fixed={"c": c, "a": f32([nan, 1, inf, 2, nan, nan]), "b": f32([1, nan, 3, inf, 4, nan])},
             gradient=False)
    for label, weight, shape in (("one", [0.25], (4, 3, 2)), ("channels", [0.25, -0.5, 1.5], (4, 3, 2)),
                                 ("matrix", [0.1, 0.2, 0.3], (5, 3))):
        x = randn(*shape)
        x.view(-1)[0] = 0.0
        add_case(out, f"prelu.{label}", lambda x, l_weight: F.prelu(x, l_weight), batch={"x": x},
                 params={"l.weight": f32(weight)})
    save("elementwise.safetensors", out)


# ---- layers ------------------------------------------------------------------------------------------------
def layers():
    out = {}

    def conv(name, x, cout, kernel, stride=1, padding=0, dilation=1, groups=1, bias=True):
        cin = x[1]
        params = {"l.weight": randn(cout, cin // groups, *kernel, scale=0.5)}
        if bias:
            params["l.bias"] = randn(cout)
        add_case(out, f"conv2d.{name}", lambda x, l_weight, l_bias=None: F.conv2d(
            x, l_weight, l_bias, stride, padding, dilation, groups), batch={"x": randn(*x)}, params=params)

    conv("plain", (2, 3, 7, 9), 4, (3, 3))
    conv("one", (1, 1, 1, 1), 1, (1, 1))
    conv("pointwise", (3, 5, 6, 6), 7, (1, 1))
    conv("pointwise_stride", (3, 5, 7, 6), 7, (1, 1), 2)
    conv("same5", (2, 3, 8, 8), 4, (5, 5), 1, 2)
    conv("stride2", (2, 4, 9, 8), 6, (3, 3), 2, 1)
    conv("stride3", (2, 2, 11, 13), 3, (3, 3), 3)
    conv("rectangular", (2, 3, 11, 12), 5, (3, 5), (2, 1), (1, 2), (1, 2))
    conv("dilated", (2, 3, 9, 10), 4, (3, 3), 1, 2, 2)
    conv("groups", (2, 6, 7, 7), 4, (3, 3), 1, 1, 1, 2)
    conv("depthwise", (2, 5, 8, 7), 5, (3, 3), 1, 1, 1, 5)
    conv("depthwise_double", (2, 3, 8, 7), 6, (3, 3), 2, 1, 1, 3)
    conv("no_bias", (2, 3, 6, 6), 4, (3, 3), bias=False)
    conv("primes", (1, 13, 11, 17), 17, (3, 3), 1, 1)
    conv("wide", (2, 16, 12, 12), 48, (3, 3), 1, 1)
    conv("stem", (2, 3, 15, 15), 8, (7, 7), 2, 3)
    conv("even", (2, 3, 8, 8), 4, (4, 4), 2, 1)
    conv("whole", (3, 4, 5, 6), 7, (5, 6))
    conv("row", (2, 3, 5, 12), 4, (1, 7), 1, (0, 3))
    conv("column", (2, 3, 12, 5), 4, (7, 1), 1, (3, 0))
    conv("padded_far", (1, 2, 3, 3), 2, (2, 2), 2, 4)
    conv("one_image_channel", (5, 1, 10, 10), 9, (5, 5))

    def pool(name, fn, x, **kw):
        add_case(out, name, lambda x: fn(x, **kw), batch={"x": x})

    for label, kw, shape in (
            ("plain", dict(kernel_size=2), (2, 3, 6, 8)), ("odd", dict(kernel_size=2), (2, 3, 7, 9)),
            ("overlap", dict(kernel_size=3, stride=2, padding=1), (2, 3, 8, 9)),
            ("dense", dict(kernel_size=3, stride=1, padding=1), (2, 2, 5, 6)),
            ("ceil", dict(kernel_size=3, stride=2, ceil_mode=True), (2, 3, 6, 8)),
            ("ceil_padded", dict(kernel_size=3, stride=2, padding=1, ceil_mode=True), (2, 2, 6, 7)),
            ("ceil_dropped", dict(kernel_size=2, stride=3, padding=1, ceil_mode=True), (1, 2, 5, 6)),
            ("gap", dict(kernel_size=2, stride=3), (2, 2, 8, 10)),
            ("rectangular", dict(kernel_size=(2, 3), stride=(1, 2), padding=(1, 0)), (2, 3, 6, 9)),
            ("one", dict(kernel_size=1), (1, 1, 1, 1)), ("whole", dict(kernel_size=(5, 4)), (3, 2, 5, 4))):
        pool(f"max_pool2d.{label}", F.max_pool2d, randn(*shape), **kw)
        pool(f"avg_pool2d.{label}", F.avg_pool2d, randn(*shape), **kw)
        if "padding" in kw:
            pool(f"avg_pool2d.{label}_exclude", F.avg_pool2d, randn(*shape), count_include_pad=False, **kw)
    pool("max_pool2d.ties", F.max_pool2d, randn(2, 2, 6, 6).round(), kernel_size=3, stride=1, padding=1)
    special = randn(1, 1, 6, 6)
    special[0, 0, 0, 1], special[0, 0, 2:4, 2:4], special[0, 0, 4, 5] = nan, -inf, inf
    add_case(out, "max_pool2d.special", lambda x: F.max_pool2d(x, 2), batch={"x": special}, gradient=False)
    for label, shape, size in (("plain", (2, 3, 7, 9), (3, 4)), ("global", (3, 4, 5, 6), (1, 1)),
                               ("same", (2, 2, 3, 4), (3, 4)),
                               ("enlarge", (2, 2, 3, 2), (5, 4)), ("even", (2, 2, 8, 6), (4, 3))):
        pool(f"adaptive_avg_pool2d.{label}", F.adaptive_avg_pool2d, randn(*shape), output_size=size)

    def batch_norm(name, shape, eps=1e-5, momentum=0.1, affine=True):
        c = shape[1]
        params = {"l.running_mean": randn(c), "l.running_var": randn(c).abs() + 0.5}
        if affine:
            params.update({"l.weight": randn(c), "l.bias": randn(c)})

        def run(training):
            return lambda x, l_running_mean, l_running_var, l_weight=None, l_bias=None: F.batch_norm(
                x, l_running_mean, l_running_var, l_weight, l_bias, training, momentum, eps)
        add_case(out, f"batch_norm.{name}", run(True), batch={"x": randn(*shape, scale=2, shift=0.7)},
                 params=params, evaluate=run(False), buffers=("l.running_mean", "l.running_var"))

    batch_norm("2d", (4, 3, 5, 6))
    batch_norm("2d_options", (2, 5, 3, 4), 1e-3, 0.3)
    batch_norm("2d_no_affine", (3, 4, 2, 3), affine=False)
    batch_norm("2d_one_image", (1, 3, 4, 5))
    batch_norm("2d_wide", (2, 67, 3, 3))
    batch_norm("1d", (6, 5))
    batch_norm("1d_length", (4, 3, 7))
    batch_norm("1d_pair", (2, 3))

    def linear(name, shape, features, bias=True):
        params = {"l.weight": randn(features, shape[-1])}
        if bias:
            params["l.bias"] = randn(features)
        add_case(out, f"linear.{name}", lambda x, l_weight, l_bias=None: F.linear(x, l_weight, l_bias),
                 batch={"x": randn(*shape)}, params=params)

    linear("plain", (5, 7), 4)
    linear("one", (1, 1), 1)
    linear("rank3", (3, 5, 6), 4)
    linear("rank4", (2, 3, 2, 5), 7)
    linear("no_bias", (4, 9), 6, False)
    linear("one_out", (6, 50), 1)
    linear("primes", (17, 53), 61)
    linear("tall", (67, 3), 5)

    def matmul(name, a, b, transpose_a=False, transpose_b=False):
        fn = lambda a, b: torch.matmul(a.transpose(-1, -2) if transpose_a else a,
                                       b.transpose(-1, -2) if transpose_b else b)
        add_case(out, f"matmul.{name}", fn, fixed={"a": randn(*a), "b": randn(*b)})

    matmul("plain", (4, 5), (5, 3))
    matmul("one", (1, 1), (1, 1))
    matmul("batched", (3, 4, 5), (3, 5, 2))
    matmul("broadcast", (2, 1, 4, 5), (3, 5, 2))
    matmul("matrix_right", (3, 4, 5), (5, 2))
    matmul("matrix_left", (4, 5), (3, 5, 2))
    matmul("transpose_a", (3, 5, 4), (3, 5, 2), True, False)
    matmul("transpose_b", (3, 4, 5), (3, 2, 5), False, True)
    matmul("transpose_both", (5, 4), (2, 5), True, True)
    matmul("transpose_broadcast", (5, 4), (3, 2, 5), True, True)
    matmul("primes", (37, 29), (29, 41))

    def row_norm(name, shape, dims=1, eps=None, affine=True, bias=True, fixed=False):
        axes, x, w, b = (list(range(-dims, 0)), randn(*shape, scale=2, shift=0.7), randn(*shape[-dims:]),
                         randn(*shape[-dims:]))
        inputs = {"fixed" if fixed else "batch": {"x": x}}

        def rms(x, l_weight=1.0):
            return (x / torch.sqrt(x.square().mean(axes, keepdim=True) +
                                   (eps or torch.finfo(torch.float32).eps)) * l_weight)

        weights = {"l.weight": w} if affine else {}
        if bias:
            add_case(out, f"rms_norm.{name}", rms, params=weights, **inputs)
        if affine and bias:
            weights = {"l.weight": w, "l.bias": b}
        add_case(out, f"layer_norm.{name}", lambda x, l_weight=None, l_bias=None: F.layer_norm(
            x, shape[-dims:], l_weight, l_bias, eps or 1e-5), params=weights, **inputs)

    row_norm("plain", (5, 7))
    row_norm("one", (6, 1), eps=0.5)
    row_norm("rank3", (3, 5, 6))
    row_norm("two_dims", (4, 3, 5), 2)
    row_norm("image", (2, 3, 8, 8), 3)
    row_norm("all", (3, 4, 5), 3, fixed=True)
    row_norm("line", (11,), fixed=True)
    row_norm("eps", (5, 9), eps=0.1)
    row_norm("no_affine", (4, 9), affine=False)
    row_norm("no_bias", (6, 13), bias=False)
    row_norm("prime", (5, 67))
    row_norm("tall", (333, 3))
    row_norm("packs", (7, 264))
    row_norm("packs_odd", (2, 3, 269))
    row_norm("large", (2, 2053))
    row_norm("large_packs", (1, 2056))
    special = randn(5, 9)
    special[1, 3], special[2, 0], special[3, 8] = nan, inf, -inf
    add_case(out, "layer_norm.special", lambda x: F.layer_norm(x, (9,)), batch={"x": special}, gradient=False)
    add_case(out, "rms_norm.special", lambda x: x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-3),
             batch={"x": special}, gradient=False)
    save("layers.safetensors", out)


# ---- reductions and shapes ---------------------------------------------------------------------------------
def shapes():
    out = {}
    x, y = randn(4, 3, 5), randn(2, 3, 4, 5)
    ties = (randn(4, 3, 5) * 1.5).round()
    for name, fn in (("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax)):
        v = ties if name == "max" else x
        add_case(out, f"{name}.all", lambda x: fn(x, dim=(0, 1, 2)), batch={"x": v})
        add_case(out, f"{name}.all_keep", lambda x: fn(x, dim=(0, 1, 2), keepdim=True), batch={"x": v})
        add_case(out, f"{name}.last", lambda x: fn(x, dim=-1), batch={"x": v})
        add_case(out, f"{name}.middle", lambda x: fn(x, dim=1), batch={"x": v})
        add_case(out, f"{name}.first_keep", lambda x: fn(x, dim=0, keepdim=True), batch={"x": v})
        add_case(out, f"{name}.split", lambda x: fn(x, dim=(0, 2)), batch={"x": v})
        add_case(out, f"{name}.channel", lambda x: fn(x, dim=(0, 2, 3)), batch={"x": y})
        add_case(out, f"{name}.spatial_keep", lambda x: fn(x, dim=(2, 3), keepdim=True), batch={"x": y})
        add_case(out, f"{name}.long", lambda x: fn(x, dim=1), batch={"x": randn(3, 1009)})
    add_case(out, "max.special", lambda x: torch.amax(x, dim=1),
             batch={"x": f32([1, nan, 3, -inf, -inf, -inf, inf, 2, 1], 3, 3)}, gradient=False)
    for label, axis, keep in (("last", -1, False), ("first", 0, False), ("middle_keep", 1, True)):
        add_case(out, f"argmax.{label}", lambda x: torch.argmax(x, dim=axis, keepdim=keep), batch={"x": ties},
                 gradient=False)
    add_case(out, "argmax.special", lambda x: torch.argmax(x, dim=1),
             batch={"x": f32([1, nan, 3, -inf, -inf, -inf, 1, inf, inf], 3, 3)}, gradient=False)
    for name, fn in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
        add_case(out, f"{name}.last", lambda x: fn(x, dim=-1), batch={"x": x})
        add_case(out, f"{name}.middle", lambda x: fn(x, dim=1), batch={"x": y})
        add_case(out, f"{name}.first", lambda x: fn(x, dim=0), batch={"x": x})
        add_case(out, f"{name}.one", lambda x: fn(x, dim=1), batch={"x": randn(3, 1)})
        add_case(out, f"{name}.long", lambda x: fn(x, dim=1), batch={"x": randn(3, 257, scale=4)})
        add_case(out, f"{name}.large", lambda x: fn(x, dim=1),
                 batch={"x": f32([1e4, 9.99e3, -1e4, 1e30, 0, -1e30], 2, 3)})
        add_case(out, f"{name}.special", lambda x: fn(x, dim=1),
                 batch={"x": f32([1, -inf, 2, nan, 0, 1, -inf, 0, -inf], 3, 3)}, gradient=False)
    add_case(out, "reshape.split", lambda x: x.reshape(4, 5, 3), batch={"x": x})
    add_case(out, "reshape.merge", lambda x: x.reshape(12, 5), batch={"x": x})
    add_case(out, "flatten.plain", lambda x: x.flatten(1), batch={"x": y})
    add_case(out, "permute.last", lambda x: x.permute(0, 2, 1), batch={"x": x})
    add_case(out, "permute.first", lambda x: x.permute(1, 2, 0), batch={"x": x})
    add_case(out, "permute.nhwc", lambda x: x.permute(0, 2, 3, 1), batch={"x": y})
    add_case(out, "permute.reverse", lambda x: x.permute(3, 2, 1, 0), batch={"x": y})
    add_case(out, "permute.large", lambda x: x.permute(1, 0), batch={"x": randn(67, 45)})
    add_case(out, "concat.columns", lambda a, b, c: torch.cat([a, b, c], 1),
             batch={"a": randn(3, 2, 4), "b": randn(3, 1, 4), "c": randn(3, 5, 4)})
    add_case(out, "concat.last", lambda a, b: torch.cat([a, b], -1),
             batch={"a": randn(3, 2), "b": randn(3, 5)})
    add_case(out, "concat.first", lambda a, b: torch.cat([a, b], 0),
             fixed={"a": randn(3, 2), "b": randn(2, 2)})
    add_case(out, "concat.twice", lambda a: torch.cat([a, a], 1), batch={"a": randn(3, 2)})
    add_case(out, "slice.middle", lambda x: x[:, 1:3], batch={"x": x})
    add_case(out, "slice.step", lambda x: x[:, :, 0:5:2], batch={"x": x})
    add_case(out, "slice.negative", lambda x: x[:, :, -3:-1], batch={"x": x})
    add_case(out, "slice.to_end", lambda x: x[:, :, 3:], batch={"x": x})
    add_case(out, "pad.value", lambda x: F.pad(x, (1, 2, 0, 3), value=1.5), batch={"x": x})
    add_case(out, "pad.image", lambda x: F.pad(x, (2, 1, 1, 0)), batch={"x": y})
    add_case(out, "cast.i64", lambda x: x.to(torch.int64), batch={"x": f32([-2.7, -0.5, 0, 0.5, 2.7, 1e6])},
             gradient=False)
    add_case(out, "cast.u8", lambda x: x.to(torch.uint8), batch={"x": f32([0, 0.5, 2.7, 255])},
             gradient=False)
    add_case(out, "cast.bool", lambda x: x.to(torch.bool), batch={"x": f32([0, 0.5, -0.0, -3])},
             gradient=False)
    add_case(out, "cast.i32_f32", lambda x: x.to(torch.float64),
             batch={"x": torch.tensor([-7, 0, 123456], dtype=torch.int32)}, gradient=False)
    add_case(out, "cast.i64_f32", lambda x: x.to(torch.float64), batch={"x": torch.tensor([-7, 0, 123456])},
             gradient=False)
    save("shapes.safetensors", out)


# ---- losses ------------------------------------------------------------------------------------------------
def losses():
    out = {}
    x, t = randn(5, 4), randn(5, 4)
    x.view(-1)[0] = t.view(-1)[0]
    x.view(-1)[1] = t.view(-1)[1] + 1.0
    t[4] *= 4
    prob = torch.sigmoid(randn(5, 4))
    target = torch.rand(5, 4)
    target[0] = f32([0, 1, 0, 1])
    edge, edge_target = f32([0, 1, 0, 1, 1e-30, 0.5], 2, 3), f32([0, 1, 1, 0, 1, 1], 2, 3)
    weight, pos = torch.rand(4) + 0.5, torch.rand(4) * 3
    log_p, q = F.log_softmax(randn(5, 4), 1).float(), F.softmax(randn(5, 4), 1).float()
    q[1, 2] = 0.0
    for r in ("mean", "sum", "none"):
        add_case(out, f"mse.{r}", lambda x, t: F.mse_loss(x, t, reduction=r), batch={"x": x, "t": t})
        add_case(out, f"l1.{r}", lambda x, t: F.l1_loss(x, t, reduction=r), batch={"x": x, "t": t})
        add_case(out, f"huber.{r}", lambda x, t: F.huber_loss(x, t, reduction=r), batch={"x": x, "t": t})
        add_case(out, f"huber_delta.{r}", lambda x, t: F.huber_loss(x, t, reduction=r, delta=0.5),
                 batch={"x": x, "t": t})
        add_case(out, f"smooth_l1.{r}", lambda x, t: F.smooth_l1_loss(x, t, reduction=r),
                 batch={"x": x, "t": t})
        add_case(out, f"smooth_l1_beta.{r}", lambda x, t: F.smooth_l1_loss(x, t, reduction=r, beta=0.25),
                 batch={"x": x, "t": t})
        add_case(out, f"smooth_l1_zero.{r}", lambda x, t: F.l1_loss(x, t, reduction=r),
                 batch={"x": x, "t": t})
        add_case(out, f"bce.{r}", lambda x, t: F.binary_cross_entropy(x, t, reduction=r),
                 batch={"x": prob, "t": target})
        add_case(out, f"bce_edge.{r}", lambda x, t: F.binary_cross_entropy(x, t, reduction=r),
                 batch={"x": edge, "t": edge_target}, gradient=False)
        add_case(out, f"bce_weight.{r}",
                 lambda x, t, w: F.binary_cross_entropy(x, t, w.expand(5, 4), reduction=r),
                 batch={"x": prob, "t": target}, fixed={"w": weight}, no_grad=("w",))
        add_case(out, f"bce_with_logits.{r}",
                 lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction=r),
                 batch={"x": x, "t": target})
        add_case(out, f"bce_with_logits_weight.{r}", lambda x, t, w, p: F.binary_cross_entropy_with_logits(
            x, t, w.expand(5, 4), pos_weight=p, reduction=r), batch={"x": x, "t": target},
                 fixed={"w": weight, "p": pos}, no_grad=("w", "p"))
        add_case(out, f"bce_with_logits_edge.{r}",
                 lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction=r),
                 batch={"x": f32([100, -100, 1e4, -1e4, 0, -0.0], 2, 3),
                        "t": f32([0, 1, 1, 0, 0.5, 1], 2, 3)})
        add_case(out, f"kl_div_log.{r}", lambda x, t: F.kl_div(x, t, reduction=r, log_target=True),
                 batch={"x": log_p, "t": log_p.flip(0)})
        add_case(out, f"kl_div.{r}", lambda x, t: F.kl_div(x, t, reduction=r), batch={"x": log_p, "t": q},
                 no_grad=("t",))
    add_case(out, "kl_div.batchmean", lambda x, t: F.kl_div(x, t, reduction="batchmean"),
             batch={"x": log_p, "t": q}, no_grad=("t",))

    logits, labels = randn(6, 5, scale=2), torch.tensor([0, 4, 2, 2, 1, 3])
    ignored = torch.tensor([0, -100, 2, -100, 1, 3])
    zero = torch.tensor([0, 4, 0, 2, 1, 3])
    weights = torch.rand(5) + 0.25
    image, image_labels = randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))
    image_labels[0, 1, 1] = 7
    large = f32([1e4, -1e4, 0, 80, 90, 100], 2, 3)
    for r in ("mean", "sum", "none"):
        def both(name, x, t, types=(torch.int64,), **kw):
            w = kw.pop("weight", None)
            fixed = {} if w is None else {"w": w}
            for dtype in types:
                label = (name if dtype == torch.int64 else
                         name + {torch.int32: "_i32", torch.uint8: "_u8"}[dtype])
                add_case(out, f"cross_entropy{label}.{r}",
                         lambda x, t, w=None: F.cross_entropy(x, t.long(), w, reduction=r, **kw),
                         batch={"x": x, "t": t.to(dtype)}, fixed=fixed, no_grad=("w",))
            if "label_smoothing" not in kw:
                add_case(out, f"nll{name}.{r}", lambda x, t, w=None: F.nll_loss(x, t, w, reduction=r, **kw),
                         batch={"x": F.log_softmax(x, 1), "t": t}, fixed=fixed, no_grad=("w",))
        both("", logits, labels, (torch.int64, torch.int32, torch.uint8))
        both("_ignore", logits, ignored)
        both("_ignore_zero", logits, zero, ignore_index=0)
        both("_weight", logits, labels, weight=weights)
        both("_weight_ignore", logits, ignored, weight=weights)
        both("_smooth", logits, labels, label_smoothing=0.1)
        both("_smooth_all", logits, ignored, label_smoothing=0.3, weight=weights)
        both("_image", image, image_labels, ignore_index=7)
        both("_image_weight", image, image_labels, ignore_index=7, weight=weights[:3])
        both("_image_smooth", image, image_labels, ignore_index=7, label_smoothing=0.2)
        both("_large", large, torch.tensor([1, 0]))
        both("_one", randn(1, 1), torch.tensor([0]))
        both("_long", randn(7, 131, scale=3), torch.randint(0, 131, (7,)))
    save("losses.safetensors", out)


# ---- optimizers: 20 steps with given gradients; the rate is halved after ten -------------------------------
class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", as in
    lion-pytorch."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                g = -p.grad if group["maximize"] else p.grad
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - lr * group["weight_decay"])
                p.sub_(lr * torch.sign(beta1 * m + (1 - beta1) * g))
                m.copy_(beta2 * m + (1 - beta2) * g)


class LAMB(torch.optim.Optimizer):
    """Algorithm 2 of You et al. 2020, "Large Batch Optimization for Deep Learning", with timm's and NVIDIA's
    choices: phi is the identity, both biases are corrected, and a parameter without weight decay adapts only
    with always_adapt."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, trust_clip=0.0,
                 always_adapt=False, maximize=False):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
                                      trust_clip=trust_clip, always_adapt=always_adapt, maximize=maximize))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                g = -p.grad if group["maximize"] else p.grad
                m, v = state.setdefault("m", torch.zeros_like(p)), state.setdefault("v", torch.zeros_like(p))
                t = state["t"] = state.get("t", 0) + 1
                m.copy_(beta1 * m + (1 - beta1) * g)
                v.copy_(beta2 * v + (1 - beta2) * g * g)
                u = (m / (1 - beta1 ** t) / ((v / (1 - beta2 ** t)).sqrt() + group["eps"]) +
                     group["weight_decay"] * p)
                ratio = 1.0
                if group["weight_decay"] != 0 or group["always_adapt"]:
                    weight, move = p.norm().item(), u.norm().item()
                    ratio = weight / move if weight > 0 and move > 0 else 1.0
                    ratio = min(ratio, group["trust_clip"] or inf)
                p.sub_(group["lr"] * ratio * u)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, dict(lr=0.1)),
    "sgd_momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    "sgd_dampening": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.05)),
    "sgd_nesterov": (torch.optim.SGD, dict(lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.01)),
    "sgd_maximize": (torch.optim.SGD, dict(lr=0.1, momentum=0.5, weight_decay=0.1, maximize=True)),
    "adam": (torch.optim.Adam, dict()),
    "adam_options": (torch.optim.Adam, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1)),
    "adam_maximize": (torch.optim.Adam, dict(lr=0.02, maximize=True, weight_decay=0.1)),
    "adamw": (torch.optim.AdamW, dict(lr=0.02)),
    "adamw_options": (torch.optim.AdamW, dict(lr=0.02, betas=(0.7, 0.9), eps=1e-4, weight_decay=0.3)),
    "adamw_maximize": (torch.optim.AdamW, dict(lr=0.02, maximize=True)),
    "rmsprop": (torch.optim.RMSprop, dict()),
    "rmsprop_options": (torch.optim.RMSprop,
                        dict(lr=0.02, alpha=0.9, eps=1e-3, weight_decay=0.1, momentum=0.7)),
    "rmsprop_centered": (torch.optim.RMSprop, dict(lr=0.02, alpha=0.9, momentum=0.5, centered=True)),
    "adagrad": (torch.optim.Adagrad, dict()),
    "adagrad_options": (torch.optim.Adagrad, dict(lr=0.1, lr_decay=0.1, weight_decay=0.1, eps=1e-3,
                                                  initial_accumulator_value=0.5)),
    "adamax": (torch.optim.Adamax, dict()),
    "adamax_options": (torch.optim.Adamax,
                       dict(lr=0.02, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1, maximize=True)),
    "nadam": (torch.optim.NAdam, dict()),
    "nadam_options": (torch.optim.NAdam,
                      dict(lr=0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, momentum_decay=0.05)),
    "nadam_decoupled": (torch.optim.NAdam, dict(lr=0.02, weight_decay=0.1, momentum_decay=0.0,
                                                decoupled_weight_decay=True, maximize=True)),
    "radam": (torch.optim.RAdam, dict()),
    "radam_options": (torch.optim.RAdam, dict(lr=0.02, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1)),
    "radam_decoupled": (torch.optim.RAdam, dict(lr=0.02, betas=(0.9, 0.5), weight_decay=0.1,
                                                decoupled_weight_decay=True, maximize=True)),
    "lion": (Lion, dict()),
    "lion_options": (Lion, dict(lr=0.01, betas=(0.8, 0.9), weight_decay=0.3, maximize=True)),
    "adadelta": (torch.optim.Adadelta, dict()),
    "adadelta_options": (torch.optim.Adadelta,
                         dict(lr=0.5, rho=0.8, eps=1e-3, weight_decay=0.1, maximize=True)),
    "lamb": (LAMB, dict()), "lamb_options":
    (LAMB, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, trust_clip=1.5, maximize=True)),
    "lamb_adapt": (LAMB, dict(lr=0.02, weight_decay=0.0, always_adapt=True)),
}


def optimizers():
    out = {}
    a, b = randn(3, 7), randn(5)
    gradients_a, gradients_b = randn(20, 3, 7, scale=0.5), randn(20, 5, scale=0.5)
    gradients_a[:, 0, 0] = 0.0
    gradients_a[3] *= 1e3
    gradients_a[7] *= 1e-6
    out.update({"start.a": a, "start.b": b, "gradients.a": gradients_a, "gradients.b": gradients_b})
    for name, (kind, options) in OPTIMIZERS.items():
        for groups in (False, True):  # b without decay, its rate a fifth
            wa, wb = (up(t.clone()).requires_grad_(True) for t in (a, b))
            opt = kind([{"params": [wa]}, {"params": [wb]}], **options)
            if groups:
                opt.param_groups[1].update(weight_decay=0.0, lr=opt.defaults["lr"] * 0.2)
            trace_a, trace_b = [], []
            for t in range(20):
                if t == 10:
                    for group in opt.param_groups:
                        group["lr"] *= 0.5
                wa.grad, wb.grad = up(gradients_a[t]), up(gradients_b[t])
                opt.step()
                trace_a.append(down(wa).clone())
                trace_b.append(down(wb).clone())
            label = name + ("_groups" if groups else "")
            out[f"{label}/a"], out[f"{label}/b"] = torch.stack(trace_a), torch.stack(trace_b)
    # averages of sgd_momentum's a and of b, which is frozen and, after ten steps, written
    for decay in (0.9, 0.3):
        net = torch.nn.ParameterDict({"a": up(a.clone()), "b": up(b.clone())})
        opt = torch.optim.SGD([net["a"]], **OPTIMIZERS["sgd_momentum"][1])
        average = torch.optim.swa_utils.AveragedModel(
            net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
        traces = {"a": [], "b": []}
        for t in range(20):
            net["a"].grad = up(gradients_a[t])
            opt.step()
            if t == 10:
                net["b"].data.copy_(gradients_b[t])
            average.update_parameters(net)
            for name, trace in traces.items():
                trace.append(down(average.module[name]).clone())
        out["ema_end/a"] = down(net["a"]).clone()
        out.update({f"ema_{decay}/{name}": torch.stack(trace) for name, trace in traces.items()})
    save("optimizers.safetensors", out)


MUON = {
    "muon": dict(), "muon_options": dict(lr=0.02, weight_decay=0.3, momentum=0.8, nesterov=False, eps=0.5,
                                         ns_coefficients=(2.0, -1.5, 0.5), ns_steps=4,
                                         adjust_lr_fn="match_rms_adamw"),
    "muon_spectral": dict(lr=0.05, adjust_lr_fn="spectral_unclamped", momentum=0.0),
}


def muon():
    """torch.optim.Muon of matrices, AdamW of the others, after the first and the last of six steps. torch
    rounds the iteration to BF16; '_exact' is the same code in F64."""
    out, halves = {}, torch.optim._muon.torch
    shapes = {"wide": (5, 12), "tall": (37, 24), "square": (9, 9), "one": (1, 1), "row": (1, 9),
              "column": (11, 1), "vector": (5,), "cube": (2, 3, 4)}
    starts = {name: randn(*shape) for name, shape in shapes.items()}
    gradients = {name: randn(6, *shape, scale=0.5) for name, shape in shapes.items()}
    gradients["wide"][2] *= 1e-6
    gradients["tall"][3] = 0
    gradients["square"][:2] = 0
    out.update({f"start.{name}": t for name, t in starts.items()})
    out.update({f"gradients.{name}": t for name, t in gradients.items()})
    exact = types.SimpleNamespace(**dict(vars(torch), bfloat16=torch.float64))
    for label, options in MUON.items():
        for torch.optim._muon.torch, suffix in ((halves, "_bf16"), (exact, "")):
            w = {name: up(t.clone()).requires_grad_(True) for name, t in starts.items()}
            shared = {"weight_decay": options.get("weight_decay", 0.1)}
            both = (torch.optim.Muon([t for t in w.values() if t.ndim == 2], **options),
                    torch.optim.AdamW([t for t in w.values() if t.ndim != 2], lr=0.01, betas=(0.8, 0.95),
                                      **shared))
            for t in range(6):
                for name in w:
                    w[name].grad = up(gradients[name][t])
                for opt in both:
                    opt.step()
                if t in (0, 5):
                    out.update({f"{label}{suffix}/{name}.{t}": down(p).clone() for name, p in w.items()})
    torch.optim._muon.torch = halves
    save("muon.safetensors", out)


def schedules():
    out = {}
    lr, total = 0.5, 120
    sched = torch.optim.lr_scheduler
    metrics = [1.0 / (1 + 0.3 * t) + 0.05 * math.sin(t) + (0.4 if 30 < t < 70 else 0) for t in range(total)]
    out["metrics"] = f32(metrics)
    makers = {
        "constant": None,
        "step": lambda o: sched.StepLR(o, 30, 0.1),
        "step_options": lambda o: sched.StepLR(o, 7, 0.8),
        "multi_step": lambda o: sched.MultiStepLR(o, [15, 40, 90], 0.3),
        "exponential": lambda o: sched.ExponentialLR(o, 0.95), "cosine": lambda o: sched.LambdaLR(
            o, lambda t: (1e-3 + (lr - 1e-3) * (1 + math.cos(math.pi * min(t, 100) / 100)) / 2) / lr),
        "one_cycle": lambda o: sched.OneCycleLR(o, lr, total_steps=total, cycle_momentum=False),
        "one_cycle_options": lambda o:
        sched.OneCycleLR(o, lr, total_steps=total, pct_start=0.45, div_factor=10, final_div_factor=100,
                         cycle_momentum=False),
        "linear": lambda o: sched.LambdaLR(o, lambda t: t / 20 if t < 20 else
                                           (0.01 + (lr - 0.01) * max(0, (100 - t) / 80)) / lr), "plateau":
        lambda o: sched.ReduceLROnPlateau(o, patience=3, cooldown=2, factor=0.5, min_lr=0.01, threshold=1e-2),
        "plateau_max": lambda o: sched.ReduceLROnPlateau(o, mode="max", patience=5),
    }
    for name, make in makers.items():
        opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
        schedule = make(opt) if make else None
        rates = []
        for t in range(total):
            rates.append(opt.param_groups[0]["lr"])
            if schedule is None:
                continue
            opt.step()
            if "plateau" in name:
                schedule.step(float(out["metrics"][t]))
            elif t < total - 1:
                schedule.step()
        out[name] = f32(rates)
    # the closed form above equals torch's only as long as that falls
    opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = sched.CosineAnnealingLR(opt, 100, 1e-3)
    for t in range(100):
        assert abs(opt.param_groups[0]["lr"] - float(out["cosine"][t])) < 1e-6
        opt.step(), schedule.step()
    save("schedules.safetensors", out)


# ---- whole models ------------------------------------------------------------------------------------------
class LeNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 4, 5), torch.nn.Conv2d(4, 6, 3)
        self.fc1, self.fc2 = torch.nn.Linear(6 * 2 * 2, 16), torch.nn.Linear(16, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(torch.tanh(self.fc1(x.flatten(1))))


class Block(torch.nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(cout)
        self.conv2 = torch.nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(cout)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = torch.nn.Sequential(torch.nn.Conv2d(cin, cout, 1, stride, bias=False),
                                                  torch.nn.BatchNorm2d(cout))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (self.downsample(x) if self.downsample else x))


class ResNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(3, 6, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(6)
        self.layer1 = torch.nn.Sequential(Block(6, 6, 1), Block(6, 10, 2))
        self.fc = torch.nn.Linear(10, 4)

    def forward(self, x):
        x = self.layer1(F.relu(self.bn1(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class RMSNorm(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, x):
        return (
            x / torch.sqrt(x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps) * self.weight)


class Transformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.norm2, self.ln3 = torch.nn.LayerNorm(8), RMSNorm(8), torch.nn.LayerNorm((5, 8))
        self.q, self.k, self.v = (torch.nn.Linear(8, 8) for _ in range(3))
        self.fc1, self.fc2, self.head = torch.nn.Linear(8, 19), torch.nn.Linear(19, 8), torch.nn.Linear(40, 4)

    def forward(self, x):
        h = self.ln1(x)
        x = x + torch.softmax(self.q(h) @ self.k(h).transpose(1, 2) * 0.35, -1) @ self.v(h)
        x = x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))
        return self.head(self.ln3(x).flatten(1))


def models():
    out = {}
    mlp = torch.nn.Sequential()
    for name, layer in (("fc1", torch.nn.Linear(20, 16)), ("act", torch.nn.ReLU()),
                        ("fc2", torch.nn.Linear(16, 3))):
        mlp.add_module(name, layer)
    nets = {
        "mlp": (mlp, (20,), 3, lambda p: torch.optim.Adam(p, lr=0.01), 9),
        "lenet": (LeNet(), (1, 16, 16), 10, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), 6),
        "resnet": (ResNet(), (3, 8, 8), 4, lambda p: torch.optim.AdamW(p, lr=0.01), 7),
    }

    def train(name, net, shape, classes, optimizer, batch):
        # as torch saves it, with num_batches_tracked
        state = {key: t.clone() for key, t in net.state_dict().items()}
        try:
            from safetensors.torch import save_file
            save_file(state, os.path.join(HERE, f"{name}.safetensors"))
        except ImportError:
            save(f"{name}.safetensors", state)
        net = net.double()
        opt = optimizer(net.parameters())
        x, t = randn(10, batch, *shape), torch.randint(0, classes, (10, batch))
        values = []
        for step in range(10):
            opt.zero_grad()
            loss = F.cross_entropy(net(up(x[step])), t[step])
            loss.backward()
            opt.step()
            values.append(loss.item())
        net.eval()
        with torch.no_grad():
            out[f"{name}/eval"] = down(net(up(x[0])))
        out.update({f"{name}/x": x, f"{name}/t": t, f"{name}/losses": f32(values)})
        out.update({f"{name}/final.{key}": down(v)
                    for key, v in net.state_dict().items() if not key.endswith("num_batches_tracked")})

    for name, arguments in nets.items():
        train(name, *arguments)
    with torch.random.fork_rng():
        train("transformer", Transformer(), (5, 8), 4, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), 7)
    save("models.safetensors", out)
    weights = randn(3, 5)
    save("dtypes.safetensors", {"half": weights.half(), "bfloat": weights.bfloat16(),
                                "double": weights.double(), "single": weights})


# ---- files of other programs, byte for byte ----------------------------------------------------------------
def files():
    import numpy as np
    out = {}

    def add(name, data, expected):
        out[f"{name}/file"] = torch.frombuffer(bytearray(data), dtype=torch.uint8).clone()
        out[f"{name}/expected"] = expected

    def npy(name, array, expected, **kw):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, array, **kw)
        add(f"npy.{name}", buffer.getvalue(), expected)

    grid = np.arange(24).reshape(2, 3, 4)
    f = torch.arange(24).reshape(2, 3, 4).float()
    npy("f4", grid.astype("<f4"), f)
    npy("f8", grid.astype("<f8"), f)
    npy("f4_fortran", np.asfortranarray(grid.astype("<f4")), f)
    npy("f8_fortran", np.asfortranarray(grid.astype("<f8")), f)
    npy("i8", grid.astype("<i8") - 5, torch.arange(24).reshape(2, 3, 4) - 5)
    npy("i4", grid.astype("<i4") - 5, torch.arange(24, dtype=torch.int32).reshape(2, 3, 4) - 5)
    npy("u1_fortran", np.asfortranarray(grid.astype("u1")),
        torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4))
    npy("b1", grid % 3 == 0, torch.arange(24).reshape(2, 3, 4) % 3 == 0)
    npy("scalar", np.array(1.5, "<f4"), torch.tensor(1.5))
    npy("version2", grid.astype("<f4"), f, version=(2, 0))
    npy("version3", grid.astype("<f4"), f, version=(3, 0))
    images = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + bytes(range(24))
    add("idx.u8", images, torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4))
    add("idx_gz.u8", gzip.compress(images, mtime=0), torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4))
    add("idx.i32", bytes([0, 0, 12, 1, 0, 0, 0, 3]) + struct.pack(">3i", 1, -2, 70000),
        torch.tensor([1, -2, 70000], dtype=torch.int32))
    add("idx.f32", bytes([0, 0, 13, 1, 0, 0, 0, 3]) + struct.pack(">3f", 1, -2.5, 7e9),
        torch.tensor([1, -2.5, 7e9]))
    save("files.safetensors", out)


if __name__ == "__main__":
    # torch's kl_div on what it might become
    warnings.filterwarnings("ignore", message="reduction: 'mean' divides")
    for seed, make in enumerate((elementwise, layers, shapes, losses, optimizers, schedules, models, files,
                                 muon)):
        torch.manual_seed(seed)
        make()
