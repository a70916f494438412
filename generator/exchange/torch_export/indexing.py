"""Operators that read or write at indices: embeddings, gather, index, scatter."""
import math
import sys

from ... import sizes
from ..spec_writer import Constant, Refused, Value, broadcast, is_number, normal_axis, product, size_name
from .elementwise import mul
from .integers import integer_pair
from .operands import INDICES, dtype_of, is_exact, number, place_from_start, place_of, truth
from .registry import operation
from .shapes import cat
from ...sizes import varies


@operation("masked_scatter")
def masked_scatter(w, call, x, mask, source):
    """Writes the elements of source, in order, where the mask holds."""
    inside = w.reshape(w.whole(w.view(w.tensor(truth(w, mask)), x.full)), (product(x.full),))
    source = w.reshape(source, (product(source.full),))
    order = w.add("cumsum", [inside], inside.shape, dim=0)
    place = w.expr(f"min(max(x - 1, 0), {w.known_size(source, 0) - 1})", order)
    own = w.reshape(gather(w, call, source, 0, place), x.full)
    return w.integer("where", mask, own, x) if is_exact(w, x) else w.map("where", mask, own, x)


def slice_of_size_scatter(w, call, x, src, dim, start, end, step, index):
    """slice_scatter along a varying axis: what is before src, src, and what follows it."""
    size = x.full[dim]
    if not varies(size) or step != 1:
        raise Refused(f"it changes parts of {size_name(size)}")
    if index is not None:
        start = place_from_start(index, size)
        src, end = w.reshape(src, x.full[:dim] + (1,) + x.full[dim + 1:]), start + 1
    start, end = [sizes.slice_index(place_of(place, size), size)
                  for place in (start or 0, sys.maxsize if end is None else end)]
    parts = [w.slice(x, dim, 0, start)] if start != 0 else []
    return cat(w, call, parts + [src] + ([w.slice(x, dim, end, None)] if end != size else []), dim)


@operation("slice_scatter", "select_scatter")
def slice_scatter(w, call, x, src, dim=0, start=None, end=None, step=1, index=None):
    dim = normal_axis(dim, len(x.full))
    if x.full[dim] < 0:
        if index is None and w.slice(x, dim, start, end, step) is x:
            return src
        return slice_of_size_scatter(w, call, x, src, dim, start, end, step, index)
    if index is not None:
        start = normal_axis(index, x.full[dim])
        src, end = w.reshape(src, x.full[:dim] + (1,) + x.full[dim + 1:]), start + 1
    start, end, step = slice(start, end, step).indices(x.full[dim])
    if step != 1:
        return index_add(w, call._replace(op="index_copy"), x, dim,
                         Constant(w.torch.arange(start, end, step)), src)
    return cat(w, call, [w.slice(x, dim, 0, start), src, w.slice(x, dim, end, None)], dim)


@operation("one_hot")
def one_hot(w, call, x, num_classes=-1):
    classes = call.shapes[0][0][-1]
    y = w.add("one_hot", [w.whole(w.integers(x))], call.shapes[0][0], num_classes=classes)
    return w.add("cast", [y], y.shape, kind="i64", dtype="i64")


@operation("embedding")
def embedding(w, call, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    if scale_grad_by_freq:
        raise Refused("scale_grad_by_freq is not possible")
    tokens = w.integers(w.whole(indices), INDICES)
    name = w.layer_name(weight=weight)
    parts, shared = ({"weight": weight}, None) if name else ({}, w.f32(w.whole(weight)))
    return w.layer("embedding", name or w.free_name(call), tokens, tokens.shape + weight.full[1:], parts,
                   num_embeddings=weight.full[0], embedding_dim=weight.full[1],
                   padding_idx=None if padding_idx == -1 else padding_idx, weight=shared,
                   sparse=bool(sparse and name) or None)


def bag_length(w, offsets, count):
    """The number of words per bag out of `count`, if the offsets are known to be equally spaced. None: bags
    differ."""
    if isinstance(offsets, Constant):
        places, length = offsets.tensor.tolist(), count // max(1, len(offsets.tensor)) if count > 0 else 0
        return length if length and places == list(range(0, count, length)) else None
    entry = offsets.entry
    while entry.op in ("reshape", "cast"):
        entry = entry.inputs[0].entry
    length = w.steps.get(entry)
    return length if length and product(offsets.full + (length,)) == count else None


def joined_bags(w, rows, offsets, op):
    """Rows [words, ...] joined for each bag by "add" or "maximum", [bags, ...]. Empty bags give 0 or -inf."""
    (count, *rest), bags = rows.full, offsets.full[0]
    length = bag_length(w, offsets, count)
    if length:
        return w.reduce("sum" if op == "add" else "max", w.reshape(rows, (bags, length, *rest)), 1)
    places = w.reshape(w.counting(count), (count, 1))
    bag = w.map("add_scalar", w.reduce("sum", w.map("le", offsets, places), 1), value=-1.0)
    every = w.view(w.tensor(w.reshape(bag, (count,) + (1,) * len(rest))), rows.full)
    start = w.tensor(0.0 if op == "add" else -math.inf)
    return w.scatter(w.view(start, (bags, *rest)), 0, every, rows, op)


@operation("_embedding_bag", "_embedding_bag_forward_only", "embedding_bag")
def embedding_bag(w, call, weight, indices, offsets, scale_grad_by_freq=False, mode=0,
                  per_sample_weights=None, include_last_offset=False, padding_idx=-1, sparse=False, **_):
    """mode 0: sums, 1: means, 2: maxima of each bag's rows. Padding does not count."""
    if w.wanted - {0}:
        raise Refused("only the rows of the bags are possible")
    offsets = w.slice(offsets, 0, 0, -1) if include_last_offset else offsets
    rows = embedding(w, call, weight, indices, -1 if padding_idx is None else padding_idx, scale_grad_by_freq,
                     sparse)
    count, column = rows.full[0], (rows.full[0], 1)
    counted = (w.tensor(1.0) if padding_idx in (None, -1) else
               w.reshape(w.map("ne", indices, padding_idx), column))
    counts = joined_bags(w, w.whole(w.view(w.tensor(counted), column)), offsets, "add") if mode else None
    if mode == 2:
        rows = w.map("where", counted, rows, -math.inf)
        y = w.expr("x if y > 0 else 0", joined_bags(w, w.whole(rows), offsets, "maximum"), counts)
        return y, None, None, None
    rows = rows if padding_idx in (None, -1) else w.map("mul", rows, counted)
    rows = rows if per_sample_weights is None else w.map("mul", rows,
                                                         w.reshape(per_sample_weights, (count, 1)))
    y = joined_bags(w, w.whole(rows), offsets, "add")
    return (w.expr("x / max(y, 1)", y, counts) if mode else y), None, None, None


@operation("gather")
def gather(w, call, x, dim, index, **_):
    inputs = [w.copied(w.whole(x)), w.integers(w.whole(index), INDICES)]
    return w.add("gather", inputs, inputs[1].shape, kind=inputs[0].dtype, dim=normal_axis(dim, len(x.full)))


def is_batch_range(w, x):
    """Whether x is 0, 1, ... over the batch, [N, 1, ...]."""
    if not isinstance(x, Value) or x.full != (-1,) + (1,) * (len(x.full) - 1):
        return False
    entry = x.entry
    while entry.op in ("reshape", "cast"):
        entry = entry.inputs[0].entry
    return entry in w.ranges


def joined_index(w, indices, sizes):
    """Joins indices into axes of these sizes to one index into the joined axis."""
    result, stride = Constant(w.torch.tensor(0)), product(sizes)
    if stride > 2 ** 24:
        raise Refused(f"it picks one of {stride} elements; gpunn counts to 2^24 there")
    for index, size in zip(indices, sizes):
        stride //= size
        if isinstance(index, Constant):
            part = Constant(index.tensor.long() % size * stride, index.full)
        else:
            is_place = w.tensor(index).entry.op in ("argmax", "topk_indices")  # never below 0
            part = w.scale(w.f32(index) if is_place else w.expr(f"x if x >= 0 else x + {size}", index),
                           stride)
        if isinstance(result, Constant) and isinstance(part, Constant):
            result = Constant(result.tensor + part.tensor, broadcast([result.full, part.full]))
        else:
            result = (part if isinstance(result, Constant) and not result.tensor.any() else
                      w.map("add", result, part))
    return result


def is_range(w, index, size):
    """Whether an index with one axis longer than 1 is 0, 1, ... up to a varying size."""
    if not isinstance(index, Value) or [n for n in index.full if n != 1] != [size] or size > 0:
        return False
    entry = index.entry
    while entry.op in ("reshape", "cast"):
        entry = entry.inputs[0].entry
    return entry in w.ranges


def spread_by_ranges(w, x, indices):
    """x indexed by ranges of its first axes, each along another axis of the result: x[b, t] with b [N, 1, 1]
    and t [1, 1, T] is x as [N, 1, T]. None: other indices."""
    if None in indices or not all(is_range(w, y, size) for y, size in zip(indices, x.full)):
        return None
    rank = max(len(y.full) for y in indices)
    axes = [next(i for i, n in enumerate((1,) * (rank - len(y.full)) + y.full) if n != 1) for y in indices]
    if len(set(axes)) < len(axes):
        return None
    order = sorted(range(len(axes)), key=axes.__getitem__)
    x = w.permute(x, order + list(range(len(axes), len(x.full))))
    return w.reshape(x, tuple(indices[axes.index(i)].full[i - rank] if i in axes else 1
                              for i in range(rank)) + x.full[len(axes):])


@operation("index")
def index_(w, call, x, indices):
    spread = spread_by_ranges(w, x, indices)
    y = picked(w, call, x, indices) if spread is None else spread
    whole = not call.shapes[0][1].is_floating_point and call.shapes[0][1] != w.torch.bool
    return w.integers(y, INDICES) if whole and isinstance(y, Value) else y


def picked(w, call, x, indices):
    """The elements of x at the indices. Those that are tensors broadcast."""
    indices = indices + [None] * (len(x.full) - len(indices))  # one for each axis; None: all of it
    if any(index is not None and dtype_of(w, index) in ("bool", "u8") for index in indices):
        raise Refused("how many elements a mask takes depends on its values")
    by_sample = x.full[0] == -1 and is_batch_range(w, indices[0])
    if (by_sample and isinstance(x, Constant) and x.tensor.shape[0] == 1 and
        all(not isinstance(y, Value) for y in indices[1:])):
        # the same for all samples
        others = [slice(None) if y is None else y.tensor.long().expand(y.full) for y in indices[1:]]
        one = w.torch.zeros((1,) * len(indices[0].full), dtype=w.torch.int64)
        return Constant(x.tensor.expand((1,) + x.full[1:])[tuple([one] + others)], call.shapes[0][0])
    axes = [i for i, index in enumerate(indices) if index is not None and not (by_sample and i == 0)]
    for i in axes:
        if x.full[i] < 0:
            raise Refused(f"it picks elements of {size_name(x.full[i])}" if varies(x.full[i]) else
                          "it picks samples of the batch")
    taken, sizes, rest = ([indices[i] for i in axes], [x.full[i] for i in axes],
                          [i for i, y in enumerate(indices) if y is None])
    # the result's axis of the picks: in place of adjacent axes, else first
    shape = broadcast([y.full for y in indices if y is not None])
    first = 1 if by_sample else axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    x = w.permute(x, [0] * by_sample + rest[:first - by_sample] + axes + rest[first - by_sample:])
    lead, tail = x.full[:first], x.full[first + len(axes):]
    x, index = w.reshape(x, lead + (product(sizes),) + tail), joined_index(w, taken, sizes)
    if (isinstance(index, Constant) and index.full[-1:] == x.full[first:first + 1] == (product(index.full),)
            and w.torch.equal(index.tensor.expand(index.full).flatten(), w.torch.arange(index.full[-1]))):
        return w.reshape(x, call.shapes[0][0])  # all, in order
    if not lead and product(tail) > 0:
        y = embedding(w, call, w.reshape(x, (product(sizes), product(tail))), w.reshape(index, shape))
    else:
        picks = shape[1:] if by_sample else shape
        index = w.view(w.tensor(index), shape if by_sample else index.full)
        index = w.reshape(index,
                          (lead if by_sample else (1,) * len(lead)) + (product(picks),) + (1,) * len(tail))
        y = gather(w, call, x, first, w.view(w.tensor(index), lead + (product(picks),) + tail))
    return w.reshape(y, call.shapes[0][0])


@operation("index_select")
def index_select(w, call, x, dim, index):
    dim, rank = normal_axis(dim, len(x.full)), len(x.full)
    index = w.view(w.tensor(w.reshape(index, tuple(index.full[0] if i == dim else 1 for i in range(rank)))),
                   call.shapes[0][0])
    return gather(w, call, x, dim, index)


def places(w, index, size):
    """An index as gather and scatter_add read it, without negative values."""
    if isinstance(index, Constant):
        if size < 0 and index.tensor.min() < 0:
            raise Refused(f"it counts from the end of {size_name(size)}")
        return Constant(index.tensor.long() % size if size > 0 else index.tensor, index.full)
    return index


@operation("scatter", "scatter_add")
def scatter(w, call, x, dim, index, src=None, value=None, reduce=None):
    dim = normal_axis(dim, len(x.full))
    if src is None:
        value = value if isinstance(value, Constant) else Constant(w.torch.tensor(value))
    src = w.view(w.tensor(value), index.full) if src is None else part_of(w, src, index.full)
    reduction = "add" if call.op == "scatter_add" else {"multiply": "mul"}.get(reduce, reduce)
    return w.scatter(x, dim, places(w, index, x.full[dim]), src, reduction)


@operation("scatter_reduce")
def scatter_reduce(w, call, x, dim, index, src, reduce, include_self=True):
    dim = normal_axis(dim, len(x.full))
    return scattered(w, x, dim, places(w, index, x.full[dim]), part_of(w, src, index.full), reduce,
                     include_self)


def part_of(w, x, full):
    """The first elements along each axis, as many as full has."""
    for axis, size in enumerate(full):
        x = x if x.full[axis] == size else w.slice(x, axis, 0, size)
    return x


# By PyTorch's names of reductions: the op that joins two elements, and its neutral element.
JOINS = {"sum": ("add", 0.0), "mean": ("add", 0.0), "prod": ("mul", 1.0), "amax": ("maximum", -math.inf),
         "amin": ("minimum", math.inf)}


def scattered(w, x, dim, index, src, reduce, include_self):
    """src joined to x at the places of index. not include_self: only to each other."""
    (op, neutral), (x, src), count = JOINS[reduce], w.alike([w.whole(x), w.whole(src)]), None
    if reduce == "mean" or not include_self:
        count = w.scatter(w.zeros(x), dim, index, w.view(w.tensor(1.0), index.full), "add")
    if x.dtype != "f32":
        least, most = -1 << 63, (1 << 63) - 1
        x = x if include_self else w.integer("where", w.integer("eq", count, 0), x,
                                             int(max(least, min(neutral, most))))
        y = w.scatter(x, dim, index, src, op)
        return y if reduce != "mean" else w.integer(
            "floor_divide", y, w.integer("add", count, 1) if include_self else w.integer("maximum", count, 1))
    y = w.scatter(x if include_self else w.map("where", count, neutral, x), dim, index, src, op)
    return y if reduce != "mean" else w.expr("x / (y + 1)" if include_self else "x / max(y, 1)", y, count)


def slices_of(w, x, dim, index):
    """index [count] expanded to one index for each element of the slices of x."""
    full = x.full[:dim] + index.full + x.full[dim + 1:]
    one = tuple(size if i == dim else 1 for i, size in enumerate(full))
    return w.view(w.tensor(w.reshape(places(w, index, x.full[dim]), one)), full)


@operation("index_add", "index_copy", "index_fill")
def index_add(w, call, x, dim, index, source=None, alpha=1, value=None):
    dim = normal_axis(dim, len(x.full))
    every = slices_of(w, x, dim, index)
    if source is None:
        value = Constant(w.torch.tensor(value)) if is_number(value) else value
        source = w.view(w.tensor(value), every.full)
    elif number(alpha) != 1:
        source = (mul(w, call, source, alpha) if not is_exact(w, source) else
                  integer_pair(w, "mul", source, alpha))
    return w.scatter(x, dim, every, source, "add" if call.op == "index_add" else None)


@operation("index_reduce")
def index_reduce(w, call, x, dim, index, source, reduce, include_self=True):
    dim = normal_axis(dim, len(x.full))
    return scattered(w, x, dim, slices_of(w, x, dim, index), source, reduce, include_self)


@operation("index_put")
def index_put(w, call, x, indices, values, accumulate=False, **_):
    """Indices into the first axes are joined to one."""
    if (any(index is None or dtype_of(w, index) in ("bool", "u8") for index in indices) or
        any(d < 0 for d in x.full)):
        raise Refused("only places in the first axes of a tensor without the batch are possible")
    sizes, tail = x.full[:len(indices)], x.full[len(indices):]
    index, shape = joined_index(w, indices, sizes), broadcast([y.full for y in indices])
    index = w.reshape(w.view(w.tensor(index), shape), (product(shape), 1))
    every = w.view(w.tensor(index), (product(shape), product(tail)))
    values = w.reshape(w.view(w.tensor(values), shape + tail), every.full)
    y = w.scatter(w.reshape(x, (product(sizes), product(tail))), 0, every, values,
                  "add" if accumulate else None)
    return w.reshape(y, x.full)
