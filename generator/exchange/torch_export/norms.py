"""Normalisation of batches, layers, instances and groups."""
from ..spec_writer import Refused, text
from .operands import check_mode, number
from .registry import operation


def need_layer(w, name):
    if name is None:
        raise Refused("its weights must be the parameters of one layer that has a name and is used once")
    return name


@operation("batch_norm", "_native_batch_norm_legit", "native_batch_norm")
def batch_norm(w, call, x, weight, bias, running_mean, running_var, training, momentum, eps, **_):
    if running_mean is None:
        return batch_norm_of_batch(w, call, x, weight, bias, eps)
    check_mode(w, training)
    parts = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    return norm_with_statistics(w, "batch_norm", x, parts, momentum, eps,
                                affine=False if weight is None else None)


def norm_with_statistics(w, op, x, parts, momentum, eps, **given):
    if number(momentum) is None:
        raise Refused("momentum=None is not possible")
    if (parts["weight"] is None) != (parts["bias"] is None) or not 2 <= len(x.full) <= 5:
        raise Refused("only x of 2 to 5 axes, with weight and bias or without both, are possible")
    return w.layer("%s%dd" % (op, max(len(x.full) - 2, 1)), need_layer(w, w.layer_name(**parts)), x, x.full,
                   parts,
                   eps=None if eps == 1e-5 else eps, momentum=None if momentum == 0.1 else momentum, **given)


def batch_norm_of_batch(w, call, x, weight, bias, eps):
    """Without running statistics: uses the batch's statistics in both modes."""
    parts = {} if weight is None and bias is None else {"weight": weight, "bias": bias}
    name = w.free_name(call) if not parts else w.layer_name(**parts) if None not in (weight, bias) else None
    if name and 2 <= len(x.full) <= 5:
        return w.layer("batch_norm%dd" % max(len(x.full) - 2, 1), name, x, x.full, parts,
                       eps=None if eps == 1e-5 else eps,
                       affine=None if parts else False, track_running_stats=False)
    axes = [i for i in range(len(x.full)) if i != 1]
    centred = w.map("sub", x, w.reduce("mean", x, axes, True))
    y = w.expr(f"x / sqrt(y + {text(eps)})", centred, w.reduce("mean", w.map("square", centred), axes, True))
    return scaled_channels(w, y, weight, bias)


def norm_of_last(w, call, op, x, dims, eps, weight, bias):
    """layer_norm or rms_norm over the last dims axes: a layer, or one without parameters, which are applied
    after it."""
    default = 1e-5 if op == "layer_norm" else None
    eps, dims = None if eps == default else eps, None if dims == 1 else dims
    name = w.layer_name(weight=weight, bias=bias) if weight is not None else None
    if name:
        return w.layer(op, name, x, x.full, {"weight": weight, "bias": bias}, dims=dims, eps=eps,
                       bias=False if bias is None and op == "layer_norm" else None)
    y = w.layer(op, w.free_name(call), x, x.full, {}, dims=dims, eps=eps, elementwise_affine=False)
    y = y if weight is None else w.map("mul", y, weight)
    return y if bias is None else w.map("add", y, bias)


@operation("layer_norm", "native_layer_norm")
def layer_norm(w, call, x, normalized_shape, weight=None, bias=None, eps=1e-5, **_):
    return norm_of_last(w, call, "layer_norm", x, len(normalized_shape), eps, weight, bias)


@operation("rms_norm")
def rms_norm(w, call, x, normalized_shape, weight=None, eps=None):
    return norm_of_last(w, call, "rms_norm", x, len(normalized_shape), eps, weight, None)


@operation("instance_norm")
def instance_norm(w, call, x, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, **_):
    if running_mean is None:
        return group_norm(w, call, x, weight=weight, bias=bias, eps=eps)
    if w.training and not use_input_stats:  # which training never changes
        mean, var = [w.reshape(y, y.full + (1,) * (len(x.full) - 2)) for y in (running_mean, running_var)]
        return scaled_channels(w, w.expr(f"(x - y) / sqrt(z + {text(eps)})", x, mean, var), weight, bias)
    check_mode(w, use_input_stats)
    parts = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    return norm_with_statistics(w, "instance_norm", x, parts, momentum, eps,
                                affine=None if weight is None else True, track_running_stats=True)


@operation("group_norm")
def group_norm(w, call, x, num_groups=None, weight=None, bias=None, eps=1e-5, **_):
    groups = num_groups or x.full[1]
    eps, name = (None if eps == 1e-5 else eps,
                 None if None in (weight, bias) else w.layer_name(weight=weight, bias=bias))
    if name:
        return w.layer("group_norm", name, x, x.full, {"weight": weight, "bias": bias}, num_groups=groups,
                       eps=eps)
    y = w.layer("group_norm", w.free_name(call), x, x.full, {}, num_groups=groups, eps=eps, affine=False)
    return scaled_channels(w, y, weight, bias)


def scaled_channels(w, x, weight, bias):
    """x times weight plus bias, if they exist, with one number per channel."""
    column = (x.full[1],) + (1,) * (len(x.full) - 2)
    y = x if weight is None else w.map("mul", x, w.reshape(weight, column))
    return y if bias is None else w.map("add", y, w.reshape(bias, column))
