"""Operators that sort or count: topk, sort, median, searchsorted, histc."""
import math

from ..spec_writer import Refused, normal_axis, product
from .operands import is_exact, negative, number, small_integers
from .registry import operation


@operation("topk")
def topk(w, call, x, k, dim=-1, largest=True, **_):
    dim = normal_axis(dim, len(x.full))
    if is_exact(w, x):
        return topk_of_integers(w, w.whole(x), k, dim, largest)
    x = w.f32(w.whole(x))
    places = w.add("topk_indices", [x], x.shape[:dim] + (k,) + x.shape[dim + 1:], kind="i64", k=k, dim=dim,
                   largest=None if largest else False)
    return w.add("gather", [x, places], places.shape, dim=dim), places


def topk_of_integers(w, x, k, dim, largest):
    """A radix sort: by the last 24 bits, then by those before them, and so on. Each sort keeps the order of
    equal elements."""
    x, count, places = w.integers(x, ("i64",)), w.known_size(x, dim), None
    for shift in (0, 24, 48):
        part = w.integer("floor_divide", x, 1 << shift) if shift else x
        part = w.f32(part if shift == 48 else w.integer("remainder", part, 1 << 24))
        part = part if places is None else w.add("gather", [part, places], places.shape, dim=dim)
        order = w.add("topk_indices", [part], x.shape, kind="i64", k=count, dim=dim,
                      largest=None if largest else False)
        places = order if places is None else w.add("gather", [places, order], order.shape, kind="i64",
                                                    dim=dim)
    places = w.slice(places, dim, 0, k)
    return w.add("gather", [x, places], places.shape, kind="i64", dim=dim), places


@operation("sort", "argsort")
def sort(w, call, x, dim=-1, descending=False, **_):
    """The order of x, with equal elements by index."""
    if not x.full:
        raise Refused("a single number is not sorted")
    y, places = topk(w, call, x, w.known_size(x, normal_axis(dim, len(x.full))), dim, descending)
    return places if call.op == "argsort" else (y, places)


@operation("kthvalue", "median")
def kthvalue(w, call, x, k=None, dim=None, keepdim=False):
    """median: the lower of two middle elements, NaN if x has one."""
    flat, dim = dim is None, normal_axis(dim or 0, max(1, len(x.full)))
    x = w.reshape(x, (product(x.full),)) if flat else x
    k = (w.known_size(x, dim) + 1) // 2 if k is None else k
    y, places = [w.slice(z, dim, k - 1, k) for z in topk(w, call, x, k, dim, False)]
    if call.op == "median" and y.dtype == "f32":
        y = w.map("where", w.reduce("max", w.expr("where(x == x, 0, 1)", x), dim, True), math.nan, y)
    y, places = (y, places) if keepdim else [w.reshape(z, x.full[:dim] + x.full[dim + 1:])
                                             for z in (y, places)]
    return y if flat else (y, small_integers(w, places))


@operation("searchsorted")
def searchsorted(w, call, sorted_sequence, x, right=False, side=None, sorter=None, **_):
    """How many elements of the last axis of the sequence come before each x. One row serves x of any
    shape."""
    if sorter is not None:
        raise Refused("a sorter is not possible")
    operands = [w.tensor(sorted_sequence), w.tensor(x)]
    whole = all(is_exact(w, each) for each in operands)
    sequence, values = [w.whole(w.integers(each, ("i64",)) if whole else w.f32(each)) for each in operands]
    full = values.full
    if len(sequence.full) == 1:
        values = w.reshape(values, (product(full),))
    places = w.add("searchsorted", [sequence, values], values.full, kind="i64",
                   right=right or side == "right" or None)
    return w.reshape(small_integers(w, places), full)


@operation("bucketize")
def bucketize(w, call, x, boundaries, right=False, **_):
    return searchsorted(w, call, boundaries, x, right)


@operation("histc")
def histc(w, call, x, bins=100, min=0, max=0):
    """The number of elements in each of equal intervals from min to max. 0, 0: those of x."""
    x = w.reshape(x, (product(x.full),))
    low, high = number(min), number(max)
    if low == high:
        low, high = negative(w, w.reduce("max", negative(w, x))), w.reduce("max", x)
        low, high = w.expr("x - 1 if x == y else x", low, high), w.expr("y + 1 if x == y else y", low, high)
    inside = w.expr("where(x < y, 0, where(x <= z, 1, 0))", x, low, high)
    place = w.expr(f"min(max(floor((x - y) / (z - y) * {bins}), 0), {bins - 1})",
                   w.map("where", inside, x, low), low, high)
    return w.scatter(w.view(w.tensor(0.0), (bins,)), 0, place, w.map("detach", inside), "add")
