"""Operators of shapes and views: reshape, permute, slice, join, split, pad, repeat, diagonals."""
from ..spec_writer import Constant, Refused, broadcast, normal_axis, product
from .operands import is_exact, number, place_from_start, place_of
from .registry import operation, reads
from .symbols import Size
from ...sizes import varies


@operation("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as",
           "reshape_as", "ravel")
@reads("size", "shape", "dim", "sizes", "start_dim", "end_dim", "other")
def reshape(w, call, x, **_):
    return w.reshape(x, call.shapes[0][0])


@operation("expand", "expand_as", "broadcast_to")
@reads("size", "other")
def expand(w, call, x, **_):
    full = call.shapes[0][0]
    return Constant(x.tensor, full) if isinstance(x, Constant) else w.view(w.tensor(x), full)


@operation("broadcast_tensors")
def broadcast_tensors(w, call, tensors):
    full = broadcast([x.full for x in tensors])
    return tuple(x if x.full == full else w.view(w.tensor(x), full) for x in tensors)


@operation("permute")
def permute(w, call, x, dims):
    return w.permute(x, [normal_axis(d, len(x.full)) for d in dims])


@operation("transpose", "swapaxes", "swapdims", "t", "mT", "numpy_T")
def transpose(w, call, x, dim0=None, dim1=None, axis0=None, axis1=None):
    rank = len(x.full)
    one, other = (dim0 if dim0 is not None else axis0), (dim1 if dim1 is not None else axis1)
    if one is None:
        one, other = -1, -2
        if rank < 2:
            return x
    order = list(range(rank))
    order[one], order[other] = order[other], order[one]
    return w.permute(x, order)


@operation("movedim", "moveaxis")
def movedim(w, call, x, source, destination):
    rank = len(x.full)
    source = [normal_axis(d, rank) for d in (source if isinstance(source, list) else [source])]
    destination = [normal_axis(d, rank)
                   for d in (destination if isinstance(destination, list) else [destination])]
    order = [i for i in range(rank) if i not in source]
    for d, s in sorted(zip(destination, source)):
        order.insert(d, s)
    return w.permute(x, order)


def promoted(w, call, tensors):
    """What one op joins: floats where the result is."""
    return [w.f32(x) for x in tensors] if call.shapes[0][1].is_floating_point else w.alike(tensors)


@operation("cat", "concat", "concatenate")
def cat(w, call, tensors, dim=0, **_):
    tensors = promoted(w, call, [w.whole(x) for x in tensors if 0 not in x.full])
    return w.add("concat", tensors, call.shapes[0][0], kind=tensors[0].dtype,
                 dim=normal_axis(dim, len(tensors[0].shape)))


@operation("stack")
def stack(w, call, tensors, dim=0):
    dim = normal_axis(dim, len(tensors[0].full) + 1)
    tensors = promoted(w, call, [w.whole(w.reshape(x, x.full[:dim] + (1,) + x.full[dim:])) for x in tensors])
    return w.add("concat", tensors, call.shapes[0][0], kind=tensors[0].dtype, dim=dim)


@operation("slice")
def slice_(w, call, x, dim=0, start=None, end=None, step=1):
    return w.slice(x, normal_axis(dim, len(x.full)), start, end, step)


@operation("narrow")
def narrow(w, call, x, dim, start, length):
    dim = normal_axis(dim, len(x.full))
    start = place_from_start(start, x.full[dim])
    return w.slice(x, dim, start, start + place_of(length, x.full[dim]))


def pick(w, x, dim, index):
    if x.full[dim] < 0 and not varies(x.full[dim]):
        raise Refused("it takes one sample of the batch")
    index = place_from_start(index, x.full[dim])
    return w.reshape(w.slice(x, dim, index, index + 1), x.full[:dim] + x.full[dim + 1:])


@operation("select")
def select(w, call, x, dim, index):
    return pick(w, x, normal_axis(dim, len(x.full)), index)


@operation("unbind")
def unbind(w, call, x, dim=0):
    dim = normal_axis(dim, len(x.full))
    return tuple(pick(w, x, dim, i) for i in range(w.known_size(x, dim)))


def split_at(w, x, dim, sizes):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(w.slice(x, dim, start, start + size) for start, size in zip(starts, sizes))


@operation("split", "split_with_sizes", "unsafe_split")
def split(w, call, x, split_size=None, dim=0, split_sizes=None):
    dim, counts = normal_axis(dim, len(x.full)), split_size if split_sizes is None else split_sizes
    if isinstance(counts, list):
        return split_at(w, x, dim, [place_of(count, x.full[dim]) for count in counts])
    size = w.known_size(x, dim)
    return split_at(w, x, dim, [min(counts, size - i) for i in range(0, size, counts)])


@operation("chunk", "unsafe_chunk")
def chunk(w, call, x, chunks, dim=0):
    size = w.known_size(x, normal_axis(dim, len(x.full)))
    return split(w, call, x, max(1, -(-size // chunks)), dim)


@operation("tensor_split")
def tensor_split(w, call, x, sections=None, indices=None, dim=0):
    dim = normal_axis(dim, len(x.full))
    size = w.known_size(x, dim)
    if sections is not None:
        indices = [i * (size // sections) + min(i, size % sections) for i in range(1, sections)]
    return tuple(w.slice(x, dim, start, end) for start, end in zip([0] + indices, indices + [size]))


@operation("roll")
def roll(w, call, x, shifts, dims=()):
    shifts, dims = [[y] if isinstance(y, int) else list(y) for y in (shifts, dims)]
    if not dims:
        return w.reshape(roll(w, call, w.reshape(x, (product(x.full),)), shifts, [0]), x.full)
    for shift, dim in zip(shifts, dims):
        dim = normal_axis(dim, len(x.full))
        cut = -shift % w.known_size(x, dim)
        if cut:
            parts = [w.slice(x, dim, cut, None), w.slice(x, dim, 0, cut)]
            x = w.add("concat", parts, x.full, kind=parts[0].dtype, dim=dim)
    return x


@operation("flip")
def flip(w, call, x, dims):
    for dim in dims:
        x = w.flip(x, normal_axis(dim, len(x.full)))
    return x


@operation("tril", "triu")
def triangle(w, call, x, diagonal=0):
    """For matrices that are computed in a run."""
    inside = inside_triangle(w, *x.full[-2:], call.op == "tril", diagonal)
    return w.integer("where", inside, x, 0) if is_exact(w, x) else w.map("where", inside, x, 0.0)


def inside_triangle(w, rows, columns, lower=True, diagonal=0):
    """1 on and below the diagonal, or on and above it, else 0."""
    if rows < 0 or columns < 0:
        return w.triangle_of_sizes(rows, columns, lower, diagonal)
    ones = w.torch.ones(rows, columns)
    return Constant(ones.tril(diagonal) if lower else ones.triu(diagonal))


@operation("diagonal")
def diagonal(w, call, x, offset=0, dim1=0, dim2=1):
    return w.diagonal(x, normal_axis(dim1, len(x.full)), normal_axis(dim2, len(x.full)), offset)


@operation("diag_embed")
def diag_embed(w, call, x, offset=0, dim1=-2, dim2=-1):
    rank, size = len(x.full), w.known_size(x, len(x.full) - 1)
    if offset or (normal_axis(dim1, rank + 1), normal_axis(dim2, rank + 1)) != (rank - 1, rank):
        raise Refused("only the main diagonal of the last two axes is possible")
    x = w.reshape(x, x.full + (1,))
    if is_exact(w, x):
        return w.integer("mul", x, Constant(w.torch.eye(size, dtype=w.torch.int64)))
    return w.map("mul", x, Constant(w.torch.eye(size)))


@operation("unfold")
def windows(w, call, x, dimension, size, step):
    """Tensor.unfold: the cells of each window along a new last axis, a slice for each."""
    dim = normal_axis(dimension, len(x.full))
    count = call.shapes[0][0][dim]
    parts = [w.slice(x, dim, i, i + (count - 1) * step + 1, step) for i in range(size)]
    return stack(w, call, parts, len(x.full))


@operation("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
           "replication_pad2d", "replication_pad3d")
def pad_with_own(w, call, x, padding):
    return pad(w, call, x, padding, "reflect" if call.op.startswith("reflection") else "replicate")


@operation("pad", "constant_pad_nd")
def pad(w, call, x, pad, mode="constant", value=None):
    before, after = [0] * len(x.full), [0] * len(x.full)
    for i in range(len(pad) // 2):
        before[-1 - i], after[-1 - i] = pad[2 * i], pad[2 * i + 1]
    for axis in range(len(x.full)):
        if before[axis] < 0 or after[axis] < 0:
            x = w.slice(x, axis, max(0, -before[axis]), x.full[axis] + min(0, after[axis]))
    before, after = [[max(0, p) for p in side] for side in (before, after)]
    if not any(before + after):
        return x
    if is_exact(w, x) and mode == "constant":
        return padded_integers(w, x, before, after, int(value or 0))
    value = number(value or 0)
    return w.add("pad", [w.f32(w.whole(x))], call.shapes[0][0], before=before, after=after,
                 mode=None if mode == "constant" else mode, value=value or None)


def padded_integers(w, x, before, after, value):
    for axis, sides in enumerate(zip(before, after)):
        parts = [
            w.integers(w.whole(Constant(w.torch.tensor(value), x.full[:axis] + (size,) + x.full[axis + 1:])),
                       ("i64",)) if size else None for size in sides]
        parts = [y for y in (parts[0], w.integers(w.whole(x), ("i64",)), parts[1]) if y is not None]
        shape = x.full[:axis] + (sum(y.full[axis] for y in parts),) + x.full[axis + 1:]
        x = w.add("concat", parts, shape, kind="i64", dim=axis) if len(parts) > 1 else x
    return x


@operation("repeat", "tile")
def repeat(w, call, x, repeats=None, dims=None):
    repeats = [times.dim if isinstance(times, Size) else times
               for times in (dims if repeats is None else repeats)]
    repeats = [1] * (len(x.full) - len(repeats)) + repeats
    shape = (1,) * (len(repeats) - len(x.full)) + x.full
    one, many = (), ()
    for times, size in zip(repeats, shape):
        one, many = (one + ((1, size) if times != 1 else (size,)),
                     many + ((times, size) if times != 1 else (size,)))
    return w.reshape(w.view(w.tensor(w.reshape(x, one)), many), call.shapes[0][0])


@operation("repeat_interleave")
@reads("output_size")
def repeat_interleave(w, call, x, repeats, dim=None, **_):
    if dim is None or not isinstance(repeats, int):
        raise Refused("a number and a dim are needed")
    dim = normal_axis(dim, len(x.full))
    one, many = (x.full[:dim + 1] + (times,) + x.full[dim + 1:] for times in (1, repeats))
    return w.reshape(w.view(w.tensor(w.reshape(x, one)), many), call.shapes[0][0])


@operation("pixel_shuffle")
def pixel_shuffle(w, call, x, upscale_factor):
    n, c, height, width = x.full
    r = upscale_factor
    return w.reshape(w.permute(w.reshape(x, (n, c // (r * r), r, r, height, width)), [0, 1, 4, 2, 5, 3]),
                     call.shapes[0][0])


@operation("pixel_unshuffle")
def pixel_unshuffle(w, call, x, downscale_factor):
    n, c, height, width = x.full
    r = downscale_factor
    return w.reshape(w.permute(w.reshape(x, (n, c, height // r, r, width // r, r)), [0, 1, 3, 5, 2, 4]),
                     call.shapes[0][0])


@operation("channel_shuffle")
def channel_shuffle(w, call, x, groups):
    n, c = x.full[:2]
    order = [0, 2, 1] + list(range(3, len(x.full) + 1))
    return w.reshape(w.permute(w.reshape(x, (n, groups, c // groups) + x.full[2:]), order), x.full)
