"""Reductions along axes: sums, extremes, cumulative sums, statistics, norms, distances, softmax."""
import math

from ..spec_writer import Constant, Refused, broadcast, normal_axes, normal_axis, product, size_name, text
from .linear_algebra import product_of
from .operands import is_exact, negative, number, small_integers, truth
from .registry import operation, reads
from .shapes import inside_triangle
from ...sizes import varies


def reduction(name):
    return lambda w, call, x, dim=None, keepdim=False, **_: w.reduce(name, x, dim, keepdim)


for torch_name, own in {"sum": "sum", "mean": "mean", "amax": "max"}.items():
    operation(torch_name)(reduction(own))


@operation("amin")
def amin(w, call, x, dim=None, keepdim=False):
    return negative(w, w.reduce("max", negative(w, x), dim, keepdim))


def score_of(w, x, dim):
    """Floats whose first maximum along an axis is at the same place as x's."""
    if not is_exact(w, x):
        return w.f32(w.whole(x))
    return w.f32(w.whole(w.integer("eq", x, w.reduce("max", x, dim, True))))


@operation("argmax")
def argmax(w, call, x, dim=None, keepdim=False):
    if dim is None:
        x, dim = w.reshape(x, (product(x.full),)), 0
    dim = normal_axis(dim, len(x.full))
    return w.add("argmax", [score_of(w, x, dim)], call.shapes[-1][0], kind="i64", dim=dim,
                 keepdim=keepdim or None)


@operation("argmin")
def argmin(w, call, x, dim=None, keepdim=False):
    return argmax(w, call, negative(w, x), dim, keepdim)


@operation("prod")
def prod(w, call, x, dim=None, keepdim=False, **_):
    if dim is None:
        x, dim = w.reshape(x, (product(x.full),)), 0
    return w.reshape(w.fold("mul", x, normal_axis(dim, len(x.full))), call.shapes[0][0])


@operation("cumprod")
def cumprod(w, call, x, dim, **_):
    return w.running("mul", x, normal_axis(dim, len(x.full)))


@operation("cummax", "cummin")
def cummax(w, call, x, dim):
    """The index is that of the last element that was as large as all before it."""
    dim, x = normal_axis(dim, len(x.full)), w.copied(w.whole(x))
    y = w.running("maximum" if call.op == "cummax" else "minimum", x, dim)
    if 1 not in w.wanted:
        return y, None
    own = w.reshape(w.counting(x.full[dim]), x.full[dim:dim + 1] + (1,) * (len(x.full) - 1 - dim))
    last = (w.expr("z if x == y or x != x else 0", x, y, own) if x.dtype == "f32" else
            w.map("mul", w.integer("eq", x, y), own))
    return y, small_integers(w, w.running("maximum", last, dim))


@operation("any", "all")
def any_(w, call, x, dim=None, keepdim=False):
    return (w.reduce("max", truth(w, x), dim, keepdim) if call.op == "any" else
            amin(w, call, truth(w, x), dim, keepdim))


@operation("count_nonzero")
def count_nonzero(w, call, x, dim=None):
    return small_integers(w, w.reduce("sum", w.expr("where(x == 0, 0, 1)", x), dim))


def running_sum_of_size(w, x, axis):
    """Along a varying axis: a product with a triangle of ones. Two parts make sums of up to 4096 integers
    below 2^36 exact."""
    if is_exact(w, x):
        low, high = [running_sum_of_size(w, w.f32(w.integer(op, x, 1 << 12)), axis)
                     for op in ("remainder", "floor_divide")]
        return w.integer("add", w.integers(low, ("i64",)),
                         w.integer("mul", w.integers(high, ("i64",)), 1 << 12))
    order = [i for i in range(len(x.full)) if i != axis] + [axis]
    y = product_of(w, w.permute(x, order), inside_triangle(w, x.full[axis], x.full[axis], False))
    return w.permute(y, [order.index(i) for i in range(len(order))])


@operation("cumsum")
def cumsum(w, call, x, dim, **_):
    axis = normal_axis(dim, len(x.full))
    if varies(x.full[axis]):
        return running_sum_of_size(w, x, axis)
    x = w.copied(w.whole(x))
    return w.add("cumsum", [x], x.shape, kind="f32" if x.dtype == "f32" else "i64", dim=axis)


def picked_with(index_of, w, call, x, dim, keepdim):
    """The elements, and their indices. Of equal elements only the picked one has a gradient."""
    x, dim = w.copied(w.whole(x)), normal_axis(dim, len(x.full))
    if not x.shape:
        return x, Constant(w.torch.tensor(0))
    ahead, behind = x.shape[:dim], x.shape[dim + 1:]
    score = score_of(w, x if index_of is argmax else negative(w, x), dim)
    place = w.add("argmax", [score], ahead + (1,) + behind, kind="i64", dim=dim, keepdim=True)
    y = w.add("gather", [x, place], place.shape, kind=x.dtype, dim=dim)
    return tuple(z if keepdim else w.reshape(z, ahead + behind) for z in (y, place))


@operation("max")
def maximum(w, call, x, other=None, dim=None, keepdim=False):
    if other is not None:
        return w.map("maximum", x, other)
    if dim is None:
        return w.reduce("max", x)
    return picked_with(argmax, w, call, x, dim, keepdim)


@operation("min")
def minimum(w, call, x, other=None, dim=None, keepdim=False):
    if other is not None:
        return w.map("minimum", x, other)
    if dim is None:
        return amin(w, call, x)
    return picked_with(argmin, w, call, x, dim, keepdim)


@operation("var")
def var(w, call, x, dim=None, unbiased=True, correction=None, keepdim=False):
    axes = normal_axes(dim, len(x.full))
    count, lost = (product([x.full[i] for i in axes]),
                   (1 if unbiased else 0) if correction is None else number(correction))
    if count < 0 and lost:
        raise Refused(f"the correction would depend on {size_name(count)}; use correction=0" if varies(count)
                      else "the correction would depend on the batch size; use correction=0")
    for _ in range(2):  # twice, since the mean of large values is rounded
        x = w.map("sub", x, w.reduce("mean", x, axes, True))
    squares = w.map("square", x)
    if count - lost <= 0 and lost:
        return w.map("div", w.reduce("sum", squares, axes, keepdim), 0)
    y = w.reduce("mean", squares, axes, keepdim)
    return w.scale(y, count / (count - lost)) if lost else y


# with a gradient of 0 at 0, as PyTorch's norms and deviations
ROOT = "where(x == 0, 0, sqrt(where(x == 0, 1, x)))"


@operation("std")
@reads("dim", "unbiased", "correction", "keepdim")
def std(w, call, x, **arguments):
    return w.expr(ROOT, var(w, call, x, **arguments))


@operation("var_mean", "std_mean")
@reads("unbiased", "correction", "keepdim")
def var_mean(w, call, x, dim=None, **arguments):
    y = (std if call.op == "std_mean" else var)(w, call, x, dim=dim, **arguments)
    return y, w.reduce("mean", x, dim, arguments.get("keepdim", False))


@operation("linalg_vector_norm", "norm", "frobenius_norm")
def norm(w, call, x, ord=2, p=None, dim=None, keepdim=False, **_):
    order = number(ord if p is None else p)
    if order == 2:
        return w.expr(ROOT, w.reduce("sum", w.map("square", x), dim, keepdim))
    if order in (1, math.inf):
        return w.reduce("sum" if order == 1 else "max", w.map("abs", x), dim, keepdim)
    if order == -math.inf:
        return w.map("neg", w.reduce("max", w.expr("-abs(x)", x), dim, keepdim))
    if order == 0:
        return w.reduce("sum", w.expr("where(x == 0, 0, 1)", x), dim, keepdim)
    total = w.reduce("sum", w.expr(f"where(x == 0, 0, pow(abs(where(x == 0, 1, x)), {text(order)}))", x), dim,
                     keepdim)
    return w.expr(f"where(x == 0, 0, pow(where(x == 0, 1, x), {text(1 / order)}))", total)


@operation("dist")
def dist(w, call, x, other, p=2):
    return norm(w, call, w.map("sub", x, other), p=p)


@operation("pairwise_distance")
def pairwise_distance(w, call, x1, x2, p=2.0, eps=1e-6, keepdim=False):
    return norm(w, call, w.expr(f"x - y + {text(eps)}", x1, x2), p=p, dim=-1, keepdim=keepdim)


@operation("cdist", "_cdist_forward")
def cdist(w, call, x1, x2, p=2.0, **_):
    """Of all pairs, by their differences. A matrix product would round small distances away."""
    rank = len(x1.full)
    x1 = w.reshape(x1, x1.full[:-1] + (1,) + x1.full[-1:])
    x2 = w.reshape(x2, x2.full[:-2] + (1,) + x2.full[-2:])
    return norm(w, call, w.map("sub", x1, x2), p=p, dim=rank)


@operation("logsumexp")
def logsumexp(w, call, x, dim, keepdim=False):
    top = w.expr("detach(x if abs(x) <= 3.4028234e38 else 0)", w.reduce("max", x, dim, True))
    y = w.map("log", w.reduce("sum", w.expr("exp(x - y)", x, top), dim, keepdim))
    return w.map("add", y, top if keepdim else w.reshape(top, y.shape))


@operation("softmax", "_softmax", "log_softmax", "_log_softmax", "logcumsumexp")
def softmax(w, call, x, dim, **_):
    x = w.f32(w.whole(x))
    return w.add(call.op.lstrip("_"), [x], x.shape, dim=normal_axis(dim, len(x.shape)))


@operation("cross", "linalg_cross")
def cross(w, call, x, other, dim=None):
    full = broadcast([x.full, other.full])
    dim = (full.index(3) if dim is None and call.op == "cross" else
           normal_axis(-1 if dim is None else dim, len(full)))
    return w.add("cross", [w.whole(w.view(w.f32(each), full)) for each in (x, other)], full, dim=dim)


@operation("cosine_similarity")
def cosine_similarity(w, call, x1, x2, dim=1, eps=1e-8):
    units = []
    for x in (x1, x2):
        length = w.expr(ROOT, w.reduce("sum", w.map("square", x), dim, True))
        # PyTorch's gradient ignores the limit
        units.append(w.expr(f"x / (y + detach(max(y, {text(eps)}) - y))", x, length))
    return w.reduce("sum", w.map("mul", *units), dim)
