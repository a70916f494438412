"""The ops' values and gradients as expressions. Elementwise ones come from the table; those of a whole row
are here.

inner: the length of a row, over whose axes the op sums or normalises. Operands that are left out are None. A
gradient belongs to one element of the domain. The caller sums it if the operand is narrower than the
domain."""


def forward(graph, op, attrs, operands, inner=1):
    """The op's value. batch_norm: with mean and variance as its last two operands. cross_entropy, nll: of one
    row, before any reduction (see loss_weight)."""
    if op in _FORWARD:
        return _FORWARD[op](graph, attrs, operands, inner)
    return graph.apply(op, attrs, operands)


def backward(graph, op, attrs, operands, y, adjoint, inner=1):
    """For each operand, the contribution of the gradient of the op's value y. None: no contribution."""
    if op in _BACKWARD:
        return _BACKWARD[op](graph, attrs, operands, y, adjoint, inner)
    return tuple(graph.derivative(op, k, attrs, operands, y, adjoint) for k in range(len(operands)))


def accumulate(graph, one, other):
    """The sum of two gradients. Either may be None."""
    return other if one is None else one if other is None else graph.add(one, other)


def _times(graph, value, factor):
    return value if factor is None else graph.linear(value, lambda live: graph.mul(live, factor))


def _mean(graph, value, inner):
    return graph.div(graph.rowred("sum", value), graph.const(inner))


# ---- sums and maxima ---------------------------------------------------------------------------------------
def _sum(graph, attrs, operands, inner):
    total = graph.rowred("sum", operands[0])
    return graph.div(total, graph.const(inner)) if attrs.get("mean") else total


def _sum_gradient(graph, attrs, operands, y, adjoint, inner):
    return (graph.div(adjoint, graph.const(inner)) if attrs.get("mean") else adjoint,)


def _max(graph, attrs, operands, inner):
    return graph.rowred("max", operands[0])


def _max_gradient(graph, attrs, operands, y, adjoint, inner):
    """Equal maxima share the gradient."""
    zero, largest = graph.const(0), graph.op("eq", operands[0], y)
    ties = graph.rowred("sum", graph.where(largest, graph.const(1), zero))
    return (graph.where(largest, graph.div(adjoint, ties), zero),)


# ---- softmax -----------------------------------------------------------------------------------------------
def _exponentials(graph, x):
    """x - max of its row, exp of that, and the sum of these over the row."""
    below = graph.sub(x, graph.rowred("max", x))
    power = graph.op("exp", below)
    return below, power, graph.rowred("sum", power)


def _softmax(graph, attrs, operands, inner):
    _, power, total = _exponentials(graph, operands[0])
    return graph.mul(power, graph.div(graph.const(1), total))


def _softmax_gradient(graph, attrs, operands, y, adjoint, inner):
    return (graph.mul(y, graph.sub(adjoint, graph.rowred("sum", graph.mul(adjoint, y)))),)


def _log_softmax(graph, attrs, operands, inner):
    below, _, total = _exponentials(graph, operands[0])
    return graph.sub(below, graph.op("log", total))


def _log_softmax_gradient(graph, attrs, operands, y, adjoint, inner):
    return (graph.sub(adjoint, graph.mul(graph.op("exp", y), graph.rowred("sum", adjoint))),)


# ---- norms -------------------------------------------------------------------------------------------------
def inverse_root(graph, variance, eps):
    return graph.div(graph.const(1), graph.op("sqrt", graph.add(variance, graph.const(eps))))


def _normalized(graph, op, attrs, x, inner):
    """x minus the mean of its row (rms_norm: x), and 1 / sqrt(variance + eps)."""
    centered = x if op == "rms_norm" else graph.sub(x, _mean(graph, x, inner))
    return centered, inverse_root(graph, _mean(graph, graph.mul(centered, centered), inner), attrs["eps"])


def _affine(graph, value, weight, bias):
    value = value if weight is None else graph.mul(value, weight)
    return value if bias is None else graph.add(value, bias)


def _norm(op):
    def build(graph, attrs, operands, inner):
        x, weight, bias = (tuple(operands) + (None, None))[:3]
        return _affine(graph, graph.mul(*_normalized(graph, op, attrs, x, inner)), weight, bias)
    return build


def _norm_gradient(op):
    """With k = g * weight: dx = rstd * (k - mean of k - h * rstd^2 * mean of k h). rms_norm's is without the
    mean of k."""
    def build(graph, attrs, operands, y, adjoint, inner):
        x, weight = (tuple(operands) + (None,))[:2]
        centered, rstd = _normalized(graph, op, attrs, x, inner)
        k = _times(graph, adjoint, weight)
        proj_scale = graph.mul(graph.mul(rstd, rstd), _mean(graph, graph.mul(k, centered), inner))
        inside = k if op == "rms_norm" else graph.sub(k, _mean(graph, k, inner))
        dx = graph.mul(graph.sub(inside, graph.mul(centered, proj_scale)), rstd)
        dweight = None if weight is None else _times(graph, adjoint, graph.mul(centered, rstd))
        return (dx, dweight, adjoint)[:len(operands)]
    return build


# batch_norm in training takes three passes, with m values per channel in each. The functions below give the
# terms that a pass sums, and the results from these sums.
def batch_norm_terms(graph, x, shift):
    """The terms of a channel's moments. shift: a value near x, which avoids cancellation in the variance."""
    away = graph.sub(x, shift)
    return away, graph.mul(away, away)


def batch_norm_moments(graph, sums, shift, m):
    """Mean and (biased) variance, from the sums of the terms."""
    off = graph.div(sums[0], m)
    spread = graph.sub(graph.div(sums[1], m), graph.mul(off, off))
    return graph.add(shift, off), graph.op("max", spread, graph.const(0))


def batch_norm_running(graph, mean, variance, running_mean, running_var, m, momentum):
    """The new running statistics. The variance is unbiased."""
    old, new = graph.const(1 - momentum), graph.const(momentum)
    unbiased = graph.mul(variance, graph.div(m, graph.sub(m, graph.const(1))))
    return (graph.add(graph.mul(old, running_mean), graph.mul(new, mean)),
            graph.add(graph.mul(old, running_var), graph.mul(new, unbiased)))


def batch_norm_apply(graph, x, weight, bias, mean, rstd):
    return _affine(graph, graph.mul(graph.sub(x, mean), _affine(graph, rstd, weight, None)), None, bias)


def batch_norm_gradient_terms(graph, x, mean, adjoint):
    """The terms of a channel's gradients: dbias, and dweight / rstd."""
    return adjoint, _times(graph, adjoint, graph.sub(x, mean))


def batch_norm_gradient(graph, x, weight, mean, rstd, adjoint, sums, m):
    """dx from the sums of the gradient's terms."""
    proj_scale = graph.mul(graph.mul(rstd, rstd), graph.div(sums[1], m))
    inside = graph.sub(graph.sub(adjoint, graph.div(sums[0], m)), graph.mul(graph.sub(x, mean), proj_scale))
    return graph.mul(inside, _affine(graph, rstd, weight, None))


def _batch_norm(graph, attrs, operands, inner):
    x, weight, bias, mean, variance = operands
    return batch_norm_apply(graph, x, weight, bias, mean, inverse_root(graph, variance, attrs["eps"]))


# ---- losses by class: operands x, a load of the row's label, and weights of the classes --------------------
def _at_label(graph, label, value):
    """The value in the label's column."""
    return graph.rowred("sum", graph.where(graph.is_column(label), value, graph.const(0)))


def _if_class(graph, attrs, label, inner, value, otherwise):
    """`value` if the row's label is a class, 0 if it is ignored, and else `otherwise`."""
    otherwise = graph.const(otherwise)
    value = graph.where(graph.op("ge", label, graph.const(inner)), otherwise, value)
    value = graph.where(graph.op("lt", label, graph.const(0)), otherwise, value)
    return graph.where(graph.op("eq", label, graph.const(attrs["ignore_index"])), graph.const(0), value)


def loss_weight(graph, op, attrs, operands, inner):
    """A row's contribution to the divisor of a mean: the weight of its label, or 0 if that is ignored."""
    label, weight = operands[1], (tuple(operands) + (None,))[2]
    one = graph.const(1) if weight is None else _at_label(graph, label, weight)
    return _if_class(graph, attrs, label, inner, one, 0)


def _nll(graph, attrs, operands, inner):
    x, label, weight = (tuple(operands) + (None,))[:3]
    picked = _at_label(graph, label, x if weight is None else graph.mul(x, weight))
    return _if_class(graph, attrs, label, inner, graph.neg(picked), float("nan"))


def _nll_gradient(graph, attrs, operands, y, adjoint, inner):
    _, label, weight = (tuple(operands) + (None,))[:3]
    dx = graph.neg(adjoint if weight is None else graph.mul(adjoint, weight))
    dx = graph.where(graph.is_column(label), dx, graph.const(0))
    return (_if_class(graph, attrs, label, inner, dx, 0), None, None)[:len(operands)]


def _smoothed(graph, attrs, label, weight, inner):
    """(1 - e) w[label], e / classes, and the sum of w. None stands for 0 and for ones."""
    smoothing = attrs.get("label_smoothing", 0)
    sharp = graph.const(1 - smoothing)
    if weight is not None:
        sharp = graph.mul(sharp, _at_label(graph, label, weight))
    if smoothing == 0:
        return sharp, None, None
    return (sharp, graph.const(smoothing / inner),
            graph.const(inner) if weight is None else graph.rowred("sum", weight))


def _cross_entropy(graph, attrs, operands, inner):
    x, label, weight = (tuple(operands) + (None,))[:3]
    sharp, flat, weights = _smoothed(graph, attrs, label, weight, inner)
    below, _, total = _exponentials(graph, x)
    spread = graph.op("log", total)
    cost = graph.mul(sharp, graph.sub(spread, _at_label(graph, label, below)))
    if flat is not None:
        others = graph.rowred("sum", below if weight is None else graph.mul(weight, below))
        cost = graph.add(cost, graph.mul(flat, graph.sub(graph.mul(weights, spread), others)))
    return _if_class(graph, attrs, label, inner, cost, float("nan"))


def _cross_entropy_gradient(graph, attrs, operands, y, adjoint, inner):
    """dx[c] = a p[c] - b (c == label) - d w[c], where p = softmax(x), b = g (1 - e) w[label], d = g e /
    classes, a = b + d sum w."""
    x, label, weight = (tuple(operands) + (None,))[:3]
    sharp, flat, weights = _smoothed(graph, attrs, label, weight, inner)
    _, power, total = _exponentials(graph, x)
    b = graph.mul(adjoint, sharp)
    a, d = b, None
    if flat is not None:
        d = graph.mul(adjoint, flat)
        a = graph.add(b, graph.mul(d, weights))
    dx = graph.mul(power, graph.div(a, total))
    if d is not None:
        dx = graph.sub(dx, d if weight is None else graph.mul(d, weight))
    dx = graph.where(graph.is_column(label), graph.sub(dx, b), dx)
    return (_if_class(graph, attrs, label, inner, dx, 0), None, None)[:len(operands)]


# ---- other names for the same numbers ----------------------------------------------------------------------
def _same(graph, attrs, operands, inner):
    """Also reshape and cast to f32, since loads of integers are numbers."""
    return operands[0]


def _same_gradient(graph, attrs, operands, y, adjoint, inner):
    return (adjoint,)


def _no_gradient(graph, attrs, operands, y, adjoint, inner):
    return (None,)


_FORWARD = {"sum": _sum, "max": _max, "softmax": _softmax, "log_softmax": _log_softmax,
            "layer_norm": _norm("layer_norm"),
            "rms_norm": _norm("rms_norm"), "group_norm": _norm("group_norm"), "batch_norm": _batch_norm,
            "cross_entropy": _cross_entropy, "nll": _nll, "reshape": _same, "cast": _same}
_BACKWARD = {"sum": _sum_gradient, "max": _max_gradient, "softmax": _softmax_gradient,
             "log_softmax": _log_softmax_gradient,
             "layer_norm": _norm_gradient("layer_norm"), "rms_norm": _norm_gradient("rms_norm"),
             "group_norm": _norm_gradient("group_norm"), "cross_entropy": _cross_entropy_gradient,
             "nll": _nll_gradient, "reshape": _same_gradient, "cast": _no_gradient}
