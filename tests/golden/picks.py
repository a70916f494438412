#!/usr/bin/env python3
"""Writes picks.safetensors, as make_golden.py does: elements that integers select. python3
tests/golden/picks.py"""
from functools import partial

import torch
import torch.nn.functional as F
from make_golden import add_case, draw_for, inf, nan, randn, save


def words(*shape, below=11, dtype=torch.int64):
    return torch.randint(0, below, shape).to(dtype)


def embedding(out, name, tokens, rows, width, padding_idx=None):
    add_case(out, f"embedding.{name}",
             lambda tokens, l_weight: F.embedding(tokens, l_weight, padding_idx=padding_idx),
             batch={"tokens": tokens}, params={"l.weight": randn(rows, width)})


def embeddings(out):
    case = partial(embedding, out)
    case("plain", words(4, 3), 11, 5)
    case("line", words(9), 11, 16)
    case("one", words(3, 2, below=1), 1, 1)
    case("i32", words(4, 3, dtype=torch.int32), 11, 8)
    case("padding", words(6, 5), 11, 8, 2)
    case("padding_first", words(6, 5), 11, 5, 0)
    case("padding_last", words(6, 5), 11, 5, -1)
    add_case(out, "embedding.computed", lambda tokens, w: F.embedding(tokens, torch.tanh(w)),
             batch={"tokens": words(4, 3)}, fixed={"w": randn(11, 5)})
    add_case(out, "embedding.tied",
             lambda tokens, l_weight, head_bias: F.linear(
                 torch.tanh(F.embedding(tokens, l_weight, padding_idx=3)), l_weight, head_bias),
             batch={"tokens": words(4, 6)}, params={"l.weight": randn(11, 8), "head.bias": randn(11)})
    add_case(out, "embedding.twice",
             lambda tokens, others, l_weight: F.embedding(tokens, l_weight) *
             F.embedding(others, l_weight, padding_idx=0),
             batch={"tokens": words(4, 6, below=9), "others": words(4, 6, below=9)},
             params={"l.weight": randn(9, 8)})


def gathers(out):
    def case(name, x, axis, index, role="batch"):
        add_case(out, f"gather.{name}", lambda x, index: torch.gather(x, axis, index.long()),
                 **{role: {"x": x, "index": index}})

    case("last", randn(3, 4, 7), -1, words(3, 4, 5, below=7))
    case("middle", randn(3, 4, 7), 1, words(3, 6, 7, below=4))
    case("batch", randn(5, 4), 0, words(5, 4, below=5))
    case("narrow", randn(3, 5, 7, 2), 1, words(3, 2, 4, 2, below=5))
    case("i32", randn(3, 6), 1, words(3, 2, below=6, dtype=torch.int32))
    case("many", randn(2, 5, 3), 1, words(2, 71, 3, below=5))
    case("line", randn(40), 0, words(9, below=40), "fixed")


def orders(out):
    x = randn(4, 3, 9)
    ties = torch.tensor([[1, 3, 2, 3, 1, 3, 2, 0.0, -0.0], [0.0, -0.0, 0, 0, -1, -1, 0, -0.0, 5]])
    special = torch.tensor([[1, nan, 3, -inf, inf, nan, -0.0, 0.0], [-inf, -inf, inf, inf, 2, -3, nan, 0]])

    def places(x, k, dim, largest=True):
        """With the first of equal elements, which torch.topk does not guarantee."""
        return torch.sort(x, dim=dim, descending=largest, stable=True)[1].narrow(dim, 0, k)

    def case(name, x, fn):
        add_case(out, f"topk.{name}", fn, batch={"x": x})

    case("values", x, lambda x: torch.topk(x, 3)[0])
    case("indices", x, lambda x: torch.topk(x, 3)[1])
    case("smallest", x, lambda x: torch.topk(x, 2, 1, largest=False)[0])
    case("smallest_indices", x, lambda x: torch.topk(x, 2, 1, largest=False)[1])
    case("all", randn(3, 70), lambda x: torch.topk(x, 70)[1])
    case("ties", ties, lambda x: places(x, 5, -1))
    case("special", special, lambda x: places(x, 5, -1))
    case("special_smallest", special, lambda x: places(x, 5, -1, False))
    add_case(out, "argmin.plain", lambda x: x.argmin(1), batch={"x": x})
    add_case(out, "argmin.special", lambda x: x.argmin(-1, keepdim=True),
             batch={"x": special[:, ::2].contiguous()})
    for name, shape, axis in (("last", (2, 3, 11), -1), ("middle", (2, 40, 3), 1), ("batch", (5, 4), 0),
                              ("long", (2, 700), 1)):
        add_case(out, f"cumsum.{name}", lambda x: x.cumsum(axis), batch={"x": randn(*shape)})


def shapes(out):
    for name, index in (("plain", words(4, 3, below=5)), ("u8", words(6, below=5, dtype=torch.uint8))):
        add_case(out, f"one_hot.{name}", lambda index: F.one_hot(index.long(), 5).double(),
                 batch={"index": index})
    add_case(out, "expand.middle", lambda x: x.expand(3, 4, 5), batch={"x": randn(3, 1, 5)})
    add_case(out, "expand.front", lambda x: x.expand(2, 4, 3), batch={"x": randn(4, 1)})
    add_case(out, "expand.last", lambda x: x.expand(2, 3, 9), batch={"x": randn(2, 3, 1)})
    add_case(out, "expand.batch", lambda x, y: x.expand(4, 3, 5) * y, batch={"y": randn(4, 3, 5)},
             fixed={"x": randn(1, 3, 1)})
    add_case(out, "tile.plain", lambda x: x.tile(2, 1, 3), batch={"x": randn(3, 2, 4)})
    add_case(out, "tile.front", lambda x: x.tile(3, 1, 2), batch={"x": randn(2, 4)})
    pair = {"a": randn(3, 4), "b": randn(3, 4)}
    add_case(out, "stack.middle", lambda a, b: torch.stack((a, b), 1), batch=pair)
    add_case(out, "stack.last", lambda a, b: torch.stack((a, b), -1), batch=pair)

    def parted(parts, dim):
        return torch.cat([part * (i + 1) for i, part in enumerate(parts)], dim)

    add_case(out, "split.size", lambda x: parted(x.split(3, 1), 1), batch={"x": randn(2, 8, 3)})
    add_case(out, "split.chunk", lambda x: parted(x.chunk(4, -1), -1), batch={"x": randn(2, 3, 10)})
    for name, values in (("bool", torch.uint8), ("i64", torch.int64)):
        add_case(out, f"where.{name}", lambda c, a, b: torch.where(c != 0, a, b),
                 batch=dict(pair, c=(words(3, 4, below=3) - int(values == torch.int64)).to(values)))


def einsums(out):
    tensors = {"a": randn(3, 2, 4, 5), "b": randn(3, 2, 6, 5), "m": randn(4, 5), "v": randn(5)}
    for name, equation, operands in (
            ("scores", "nhid,nhjd->nhij", "ab"), ("turned", "nhid, nhjd -> njih", "ab"),
            ("one_side", "nhid,jd->nhij", "am"), ("other_side", "jd,nhid->nhij", "ma"),
            ("vector", "ij,j", "mv"), ("outer", "i,j->ji", "vv"), ("dot", "i,i->", "vv"),
            ("times", "nhid,d->ndih", "av"), ("alone", "nhid,ij->nd", "am"), ("transposed", "ba", "m"),
            ("total", "abcd->", "a"), ("batch", "nhid,mhid->nm", "aa")):
        group = {key: {k: tensors[k] for k in operands if (k in "ab") == (key == "batch")}
                 for key in ("batch", "fixed")}
        add_case(out, f"einsum.{name}", lambda **t: torch.einsum(equation, *[t[k] for k in operands]),
                 gradient=name != "batch", **group)
    tensors["u"] = randn(1, 6, 5)
    for name, equation, operands in (
            ("dots", "...id,...jd->...ij", "ab"), ("dots_turned", "n...id, ...jd -> j...in", "au"),
            ("dots_implicit", "...lk,ik", "am"), ("dots_times", "nh...,...->n...h", "am"),
            ("dots_summed", "...d,...d->d", "am"), ("dots_of_one", "...hid->d...h", "a"),
            ("dots_total", "...->", "a"), ("dots_nothing", "...nhid,d...->hn", "av")):
        group = {key: {k: tensors[k] for k in operands if (k in "ab") == (key == "batch")}
                 for key in ("batch", "fixed")}
        add_case(out, f"einsum.{name}", lambda **t: torch.einsum(equation, *[t[k] for k in operands]),
                 **group)


def scatters(out):
    def case(name, x, axis, index, role="batch"):
        tensors = {"x": x, "index": index, "src": randn(*index.shape)}
        add_case(out, f"scatter_add.{name}", lambda x, index, src: x.scatter_add(axis, index.long(), src),
                 **{role: tensors})

    case("last", randn(3, 4, 7), -1, words(3, 4, 5, below=7))
    case("middle", randn(3, 4, 7), 1, words(3, 6, 7, below=4))
    case("i32", randn(3, 6), 1, words(3, 2, below=6, dtype=torch.int32))
    case("many", randn(2, 5, 3), 1, words(2, 71, 3, below=5))
    case("line", randn(40), 0, words(9, below=40), "fixed")
    add_case(out, "index_select.middle", lambda x, index: x.index_select(1, index),
             batch={"x": randn(3, 5, 2)}, fixed={"index": words(7, below=5)})
    add_case(out, "index_add.middle", lambda x, index, src: x.index_add(1, index, src),
             fixed={"index": words(7, below=5)}, batch={"x": randn(3, 5, 2), "src": randn(3, 7, 2)})


def folds(out):
    """torch.nn.Unfold and Fold: kernel, dilation, padding, stride, size of the image; a size that the windows
    do not fill."""
    rest = torch.random.get_rng_state()
    for name, n, c, *options in (("plain", 3, 2, (2, 3), 1, 0, 1, (4, 5)), ("one", 1, 1, 1, 1, 0, 1, (1, 1)),
                                 ("all", 2, 3, (3, 2), (2, 1), (1, 2), (3, 2), (9, 7)),
                                 ("apart", 2, 2, 2, 1, 0, 3, (8, 9)), ("patches", 1, 3, 4, 1, 0, 4, (8, 12)),
                                 ("wide", 1, 1, (1, 67), 1, 0, 2, (2, 71))):
        kernel, dilation, padding, stride, size = options
        image = randn(n, c, *size)
        columns = randn(*F.unfold(image, kernel, dilation, padding, stride).shape)
        add_case(out, f"unfold.{name}", lambda x: F.unfold(x, kernel, dilation, padding, stride),
                 batch={"x": image})
        add_case(out, f"fold.{name}", lambda x: F.fold(x, size, kernel, dilation, padding, stride),
                 batch={"x": columns})
    torch.random.set_rng_state(rest)


def picks_of_several_axes(out):
    def case(name, x, index, batch_dims=0, **options):
        def pick(x, index):
            lead = [torch.arange(size).reshape((size,) + (1,) * (index.dim() - 2 - i))
                    for i, size in enumerate(index.shape[:batch_dims])]
            return x[tuple(lead) + index.long().unbind(-1)]
        role = options.pop("role", "batch")
        group = ({"batch": {"x": x, "index": index}} if role == "batch" else
                 {"batch": {"x": x}, "fixed": {"index": index}})
        add_case(out, f"gather_nd.{name}", pick, **group)

    def index(shape, *below, dtype=torch.int64):
        return torch.stack([torch.randint(0, size, shape) for size in below], -1).to(dtype)

    case("pixels", randn(3, 4, 5, 2), index((3, 7), 4, 5), 1)
    case("one", randn(3, 6), index((3, 4), 6), 1)
    case("all", randn(3, 4, 5), index((3, 2, 2), 4, 5, dtype=torch.int32), 1)
    case("rows", randn(2, 3, 4, 5), index((2, 3, 6), 4), 2)
    case("samples", randn(4, 3, 2), index((5,), 4, 3), role="fixed")
    case("sample", randn(4, 3), index((), 4), role="fixed")
    case("again", randn(2, 5, 3), index((2, 71), 5, 3), 1)
    case("element", randn(4, 3), index((), 4, 3), role="fixed")


def scans(out):
    draw_for("logcumsumexp")
    for name, shape, dim, scale in (
            ("last", (2, 3, 11), -1, 1), ("middle", (3, 40, 2), 1, 5), ("batch", (5, 4), 0, 1),
            ("long", (2, 700), 1, 5), ("columns", (2, 9, 70), 1, 1), ("one", (4, 1), 1, 1)):
        add_case(out, f"logcumsumexp.{name}", lambda x: x.logcumsumexp(dim),
                 batch={"x": scale * randn(*shape)})
    ends = torch.tensor([[-inf, 1, 2.0, -inf], [1, inf, 2, -inf], [-inf, -inf, -inf, 3], [nan, 1, -inf, 2],
                         [3e38, -3e38, inf, inf]])
    add_case(out, "logcumsumexp.ends", lambda x: x.logcumsumexp(1), batch={"x": ends}, gradient=False)
    falling = torch.linspace(0, -300, 64).expand(3, 64).contiguous()
    add_case(out, "logcumsumexp.falling", lambda x: x.logcumsumexp(1), batch={"x": falling})
    add_case(out, "logcumsumexp.rising", lambda x: x.logcumsumexp(1), batch={"x": falling / -20})
    add_case(out, "logcumsumexp.steep", lambda x: x.logcumsumexp(1), batch={"x": -falling}, gradient=False)


def crosses(out):
    draw_for("cross")
    for name, shape, dim in (("last", (4, 5, 3), -1), ("middle", (2, 3, 7), 1), ("batch", (3, 4), 0),
                             ("line", (3,), 0), ("wide", (2, 3, 130), 1), ("many", (301, 3), 1)):
        role = "batch" if dim else "fixed"
        add_case(out, f"cross.{name}", lambda a, b: torch.linalg.cross(a, b, dim=dim),
                 **{role: {"a": randn(*shape), "b": randn(*shape)}})
    add_case(out, "cross.same", lambda a, b: torch.linalg.cross(a, torch.linalg.cross(a, b)),
             batch={"a": randn(4, 3), "b": randn(4, 3)})
    ends = torch.tensor([[inf, 1, 2], [nan, 0, 0], [3e38, 2, 1], [0.0, -0.0, 0]])
    add_case(out, "cross.ends", lambda a, b: torch.linalg.cross(a, b),
             batch={"a": ends, "b": ends.flip(1).contiguous()}, gradient=False)


def searches(out):
    draw_for("searchsorted")

    def case(name, sequence, values, right=False, role="batch"):
        add_case(out, f"searchsorted.{name}", lambda s, v: torch.searchsorted(s, v, right=right),
                 **{role: {"s": sequence, "v": values}})

    sequence = torch.sort(torch.randint(-4, 5, (3, 2, 37)).float())[0]
    values = torch.randint(-6, 7, (3, 2, 50)).float()
    ends = torch.tensor([[-inf, -1, 0, 0, 1, inf]])
    for name, right in (("left", False), ("right", True)):
        case(name, sequence, values, right)
        case(name + "_i64", sequence.long() * 2 ** 60, values.long() * 2 ** 60, right)
        case(name + "_i32", sequence.int(), values.int(), right)
        case(name + "_u8", (sequence + 6).byte(), (values + 6).byte(), right)
        case(name + "_ends", ends, torch.tensor([[nan, -inf, inf, -0.0, 0, 3e38, -3e38]]), right)
    case("one", randn(4, 1), randn(4, 3))
    case("line", torch.sort(randn(300))[0], randn(11), role="fixed")
    case("many", torch.sort(randn(2, 5))[0], randn(2, 700))
    for name, x in (("plain", randn(3, 4, 5)), ("scalars", randn(7))):
        add_case(out, f"bucketize.{name}", lambda x, b: torch.bucketize(x, b, right=True), batch={"x": x},
                 fixed={"b": torch.tensor([-1.0, 0, 0.5, 2])})


def meshgrids(out):
    for name, indexing, sizes in (("ij", "ij", (2, 3, 4)), ("xy", "xy", (2, 3, 4)), ("pair", "xy", (5, 7)),
                                  ("one", "xy", (6,))):
        def grid(indexing=indexing, **t):
            parts = torch.meshgrid(*t.values(), indexing=indexing)
            return sum((i + 1) * part for i, part in enumerate(parts)) * parts[-1]
        add_case(out, f"meshgrid.{name}", grid, fixed={"abc"[i]: randn(size) for i, size in enumerate(sizes)})


def rearranged(out):
    image = randn(2, 8, 4, 6)
    for name, fn in (("flip.two", lambda x: x.flip(1, -1)), ("flip.all", lambda x: x.flip(0, 1, 2, 3)),
                     ("roll.forth", lambda x: x.roll(3, 2)), ("roll.back", lambda x: x.roll(-13, -3)),
                     ("pixel_shuffle.plain", lambda x: F.pixel_shuffle(x, 2)),
                     ("pixel_unshuffle.plain", lambda x: F.pixel_unshuffle(x, 2)),
                     ("tril.plain", torch.tril), ("tril.above", lambda x: x.tril(1)),
                     ("triu.below", lambda x: x.triu(-2)),
                     ("diagonal.right", lambda x: x.diagonal(3, -2, -1)),
                     ("diagonal.left", lambda x: x.diagonal(-1, -2, -1))):
        add_case(out, name, fn, batch={"x": image})
    mask = words(8, 1, 6, below=3)
    add_case(out, "masked_fill.rows", lambda x, mask: x.masked_fill(mask.bool(), -2.5), batch={"x": image},
             fixed={"mask": mask})
    add_case(out, "masked_fill.infinite", lambda x, mask: x.masked_fill(mask.bool(), -inf),
             batch={"x": image}, fixed={"mask": mask}, gradient=False)
    add_case(out, "sort.values", lambda x: x.sort(1)[0], batch={"x": image})
    add_case(out, "argsort.falling", lambda x: x.argsort(dim=-1, descending=True, stable=True),
             batch={"x": torch.round(image)})


def reductions(out):
    x, zeros = randn(3, 7, 5), randn(3, 7, 5)
    zeros[1, 2:4, 1] = zeros[2, 3, 4] = 0
    same = randn(3, 7, 5)
    same[1] = 0
    norm = torch.linalg.vector_norm
    for name, fn, given in (
            ("min.two", lambda x: x.amin((0, 2)), x), ("var.plain", lambda x: x.var(1), x),
            ("var.far", lambda x: x.var(-1), x + 1000), ("var.all", lambda x: x.var(correction=0), x),
            ("std.two", lambda x: x.std((1, 2), keepdim=True), x),
            ("std.same", lambda x: x.std(2, correction=0), same),
            ("norm.two", lambda x: norm(x, 2, (1, 2)), same),
            ("norm.one", lambda x: norm(x, 1, -1, keepdim=True), x),
            ("norm.half", lambda x: norm(x, 2.5, 1), same),
            ("norm.largest", lambda x: norm(x, inf), x), ("logsumexp.two", lambda x: x.logsumexp((0, 2)), x),
            ("logsumexp.large", lambda x: x.logsumexp(1, keepdim=True), 500 * x),
            ("prod.odd", lambda x: x.prod(1), x), ("prod.zeros", lambda x: x.prod(1, keepdim=True), zeros),
            ("cumprod.odd", lambda x: x.cumprod(1), x), ("cumprod.zeros", lambda x: x.cumprod(1), zeros),
            ("cummax.odd", lambda x: x.cummax(1)[0], x), ("cummin.last", lambda x: x.cummin(-1)[0], x)):
        add_case(out, name, fn, batch={"x": given})
    near = torch.cat([x[:, 2:4] + 1e-3 * randn(3, 2, 5), randn(3, 4, 5)], 1)
    for p in (1, 2, 2.5, inf):
        add_case(out, f"cdist.p{p}", lambda a, b: torch.cdist(a, b, p, "donot_use_mm_for_euclid_dist"),
                 batch={"a": x, "b": near})
        add_case(out, f"pairwise_distance.p{p}", lambda a, b: F.pairwise_distance(a, b, p),
                 batch={"a": x, "b": zeros})
    add_case(out, "cdist.leading", lambda a, b: torch.cdist(a, b), batch={"a": x[:, None]},
             fixed={"b": randn(2, 1, 5)})
    add_case(out, "cdist.same", lambda a: torch.cdist(a, a), batch={"a": same})
    ends = torch.tensor([[-inf, 1, 2.0], [inf, 1, 2], [-inf, -inf, -inf], [nan, 1, 2]])
    add_case(out, "logsumexp.ends", lambda x: x.logsumexp(1), batch={"x": ends}, gradient=False)


def others(out):
    draw_for("others")
    image = randn(2, 8, 4, 6)

    def deep(x):
        n, c, h, w = x.shape
        return x.reshape(n, 2, 2, c // 4, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // 4, 2 * h, 2 * w)

    def flat(x):
        n, c, h, w = x.shape
        return x.reshape(n, c, h // 2, 2, w // 2,
                         2).permute(0, 3, 5, 1, 2, 4).reshape(n, 4 * c, h // 2, w // 2)

    for name, fn in (("depth_to_space.plain", deep), ("space_to_depth.plain", flat),
                     ("glu.last", lambda x: F.glu(x)), ("glu.channels", lambda x: F.glu(x, 1))):
        add_case(out, name, fn, batch={"x": image})
    for name, rows, sizes in (("plain", (5,), (3, 7, 4)), ("no_bias", (4,), (1, 5, 1)),
                              ("rows", (2, 3, 5), (6, 2, 7))):
        params = {"l.weight": randn(sizes[2], sizes[0], sizes[1])}
        if name != "no_bias":
            params["l.bias"] = randn(sizes[2])
        add_case(out, f"bilinear.{name}",
                 lambda x, y, l_weight, l_bias=None: F.bilinear(x, y, l_weight, l_bias),
                 batch={"x": randn(*rows, sizes[0]), "y": randn(*rows, sizes[1])}, params=params)


def main():
    torch.manual_seed(71)
    out = {}
    embeddings(out)
    gathers(out)
    orders(out)
    shapes(out)
    einsums(out)
    scatters(out)
    folds(out)
    rearranged(out)
    reductions(out)
    picks_of_several_axes(out)
    meshgrids(out)
    others(out)
    scans(out)
    crosses(out)
    searches(out)
    embedding(out, "sparse", words(6, 5), 11, 8, 2)
    embedding(out, "sparse_one", words(3, 2, below=1), 1, 3)
    save("picks.safetensors", out)


if __name__ == "__main__":
    main()
