#!/usr/bin/env python3
"""Writes tensors.safetensors, as make_golden.py does: integers, extremes with their indices, scatter,
diagonals in einsum, Fourier transforms. python3 tests/golden/tensors.py"""
import torch
from make_golden import add_case, inf, nan, randn, save

LOWEST, HIGHEST = -2 ** 63, 2 ** 63 - 1


def whole(values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


def below(top, *shape, dtype=torch.int64):
    return torch.randint(0, top, shape).to(dtype)


def truncated(a, b):
    return torch.div(a, b, rounding_mode="trunc")


def integers(out):
    """Numbers that float arithmetic would round, wrap or change in sign: above 2^53, the ends of the range,
    both signs."""
    a = whole([[7, -7, 7, -7, 0, 9007199254740993, HIGHEST],
               [LOWEST, -1, 1, 2 ** 62, -(2 ** 62) - 1, 6, HIGHEST]])
    b = whole([[2, 2, -2, -2, 3, 10, HIGHEST], [3, -1, LOWEST, 5, 2 ** 31, 6, -2]])
    column = whole([[3], [-4]])
    narrow = whole([[7, -7, 2 ** 31 - 1, -2 ** 31, 5]], torch.int32)
    other = whole([[-2, 3, 2, 3, 5]], torch.int32)
    small, least = whole([[7, 255, 0, 128, 3]], torch.uint8), whole([[9, 2, 1, 129, 4]], torch.uint8)
    yes, no = whole([[1, 0, 1, 0]], torch.bool), whole([[1, 1, 0, 0]], torch.bool)
    binary = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "floor_divide": torch.floor_divide,
              "trunc_divide": truncated, "remainder": torch.remainder, "fmod": torch.fmod,
              "maximum": torch.maximum, "minimum": torch.minimum, "eq": torch.eq,
              "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
              "logical_and": torch.logical_and,
              "logical_or": torch.logical_or, "logical_xor": torch.logical_xor}
    for name, function in binary.items():
        def op(a, b, function=function):
            return function(a, b)
        add_case(out, f"integer.{name}", op, batch={"a": a, "b": b})
        add_case(out, f"integer.{name}_i32", op, batch={"a": narrow, "b": other})
        add_case(out, f"integer.{name}_u8", op, batch={"a": small, "b": least})
        add_case(out, f"integer.{name}_broadcast", op, batch={"a": column}, fixed={"b": whole([5, -3, 2])})
        add_case(out, f"integer.{name}_mixed", op, batch={"a": narrow}, fixed={"b": whole([2 ** 40])})
    for name in ("eq", "ne", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "mul"):
        add_case(out, f"integer.{name}_bool", lambda a, b: binary[name](a, b), batch={"a": yes, "b": no})
    for name, function in (("neg", torch.neg), ("abs", torch.abs), ("sign", torch.sign),
                           ("logical_not", torch.logical_not)):
        add_case(out, f"integer.{name}", lambda a: function(a), batch={"a": a})
        add_case(out, f"integer.{name}_u8", lambda a: function(a), batch={"a": small})
    add_case(out, "integer.logical_not_bool", lambda a: torch.logical_not(a), batch={"a": yes})
    for name, value in (("add", 2 ** 60 + 1), ("sub", -5), ("mul", -3), ("floor_divide", -4),
                        ("trunc_divide", 4), ("remainder", 10), ("fmod", -3), ("maximum", 0),
                        ("minimum", 9007199254740993), ("eq", 9007199254740993), ("lt", 0)):
        add_case(out, f"integer.{name}_scalar", lambda a: binary[name](a, torch.tensor(value)),
                 batch={"a": a})
    add_case(out, "integer.where", lambda c, a, b: torch.where(c, a, b), batch={"c": a > b, "a": a, "b": b})
    add_case(out, "integer.where_floats", lambda c, a, b: torch.where(c != 0, a, b),
             batch={"c": randn(2, 7).relu(), "a": a, "b": b})
    add_case(out, "integer.where_mixed", lambda c, a, b: torch.where(c, a, b),
             batch={"c": narrow > 0, "a": narrow}, fixed={"b": whole([2 ** 40])})
    add_case(out, "integer.chain", lambda a, b: ((a * 31 + b) % 1000003 // 7 - b).abs(),
             batch={"a": a // 64, "b": b // 64})


def moved(out):
    x = torch.randint(LOWEST, HIGHEST, (3, 4, 5))
    for name, fn in (("permute", lambda x: x.permute(2, 0, 1)), ("slice", lambda x: x[:, 1:4:2]),
                     ("flip", lambda x: x.flip(1, 2)), ("roll", lambda x: x.roll(2, 2)),
                     ("tile", lambda x: x.tile(1, 2, 3)), ("concat", lambda x: torch.cat([x, x + 1], 1)),
                     ("stack", lambda x: torch.stack([x, x], 1)),
                     ("pad", lambda x: torch.nn.functional.pad(x, (1, 2), value=-7)),
                     ("expand", lambda x: x[:, :1].expand(3, 9, 5)),
                     ("diagonal", lambda x: x.diagonal(0, 1, 2)),
                     ("chunk", lambda x: x.chunk(2, 1)[1]), ("reshape", lambda x: x.reshape(3, 20)),
                     ("sum", lambda x: x.sum((0, 2))), ("sum_keep", lambda x: x.sum(1, keepdim=True)),
                     ("max", lambda x: x.amax(1)), ("min", lambda x: x.amin((1, 2), keepdim=True)),
                     ("total", lambda x: x.sum()), ("cumsum", lambda x: x.cumsum(1)),
                     ("prod", lambda x: x.prod(1)), ("argmax", lambda x: x.argmax(1)),
                     ("argmin", lambda x: x.argmin(-1, keepdim=True)), ("cummax", lambda x: x.cummax(1)[0])):
        add_case(out, f"integers.{name}", fn, batch={"x": x})
    bits = {"i32": (torch.int32, -2 ** 31, 2 ** 31), "u8": (torch.uint8, 0, 256), "bool": (torch.bool, 0, 2)}
    for name, (dtype, low, high) in bits.items():
        y = torch.randint(low, high, (3, 4, 17)).to(dtype)
        add_case(out, f"integers.permute_{name}", lambda x: x.permute(0, 2, 1), batch={"x": y})
        add_case(out, f"integers.sum_{name}", lambda x: x.sum(1), batch={"x": y})
        add_case(out, f"integers.max_{name}", lambda x: x.amax(2), batch={"x": y})
        add_case(out, f"integers.min_{name}", lambda x: x.amin(1), batch={"x": y})
        add_case(out, f"integers.concat_{name}", lambda x: torch.cat([x, x], 2), batch={"x": y})
        add_case(out, f"integers.gather_{name}", lambda x, index: x.gather(1, index),
                 batch={"x": y, "index": below(4, 3, 6, 17)})
    add_case(out, "integers.gather", lambda x, index: x.gather(2, index),
             batch={"x": x, "index": below(5, 3, 4, 7)})
    add_case(out, "integers.index_select", lambda x, index: x.index_select(1, index), batch={"x": x},
             fixed={"index": below(4, 9)})
    add_case(out, "integers.long", lambda x: x.sum(1), batch={"x": torch.randint(LOWEST, HIGHEST, (2, 1009))})


def extremes(out):
    x = randn(3, 7, 5)
    ties = torch.tensor([[1, 3, 2, 3, 1, 3], [2, 2, -1, -1, 0, -1], [nan, 1, nan, 2, inf, -inf],
                         [0, inf, inf, -inf, nan, 1.0]])
    for name, fn in (("max", torch.max), ("min", torch.min)):
        for case, given, dim, keep in (("middle", x, 1, False), ("last", x, -1, True),
                                       ("special", ties, 1, False), ("line", x[:, 0, 0], 0, False)):
            role = "fixed" if case == "line" else "batch"
            add_case(out, f"{name}_with_indices.{case}", lambda x: fn(x, dim, keep)[0],
                     gradient=case != "special", **{role: {"x": given}})
            add_case(out, f"{name}_with_indices.{case}_indices", lambda x: fn(x, dim, keep)[1],
                     **{role: {"x": given}})
    for name, fn in (("cummax", torch.cummax), ("cummin", torch.cummin)):
        for case, given, dim in (("middle", x, 1), ("last", x, -1), ("first", x[:, 0], 0),
                                 ("special", ties, 1)):
            role = {"fixed" if case == "first" else "batch": {"x": given}}
            add_case(out, f"{name}_with_indices.{case}", lambda x: fn(x, dim)[0], gradient=case != "special",
                     **role)
            add_case(out, f"{name}_with_indices.{case}_indices", lambda x: fn(x, dim)[1], **role)
    a, b = torch.tensor([[0, 1, nan, 0, -2.5]]), torch.tensor([[0, 0, 0, 2, inf]])
    for name in ("logical_and", "logical_or", "logical_xor"):
        add_case(out, f"{name}.floats", lambda a, b: getattr(torch, name)(a, b).double(),
                 batch={"a": a, "b": b}, gradient=False)
    add_case(out, "trunc_divide.floats", truncated, batch={"a": randn(3, 7, scale=9)}, fixed={"b": randn(7)},
             gradient=False)
    add_case(out, "trunc_divide.ends", truncated,
             batch={"a": torch.tensor([[5, -5, 0, 7, 1.0]]), "b": torch.tensor([[0, 0, 0, -2, 0.1]])},
             gradient=False)


def overwritten(x, axis, index, src):
    """x.scatter(axis, index, src). Of several elements for one place, the last counts."""
    places = torch.arange(index.shape[axis]).reshape(
        [-1 if i == axis % index.dim() else 1 for i in range(index.dim())]).expand(index.shape)
    last = torch.full(x.shape, -1).scatter_reduce(axis, index, places, "amax")
    counts = last.gather(axis, index) == places
    added = torch.zeros_like(x).scatter_add(axis, index, torch.where(counts, src, torch.zeros_like(src)))
    return torch.where(last >= 0, added, x)


def scatters(out):
    for name, shape, axis, count, dtype in (
            ("unique", (3, 4, 7), 2, 0, torch.int64), ("again", (3, 4, 5), 1, 9, torch.int32),
            ("many", (2, 5, 3), 1, 71, torch.int64), ("one", (3, 1), 1, 1, torch.int64),
            ("few", (2, 67), -1, 3, torch.int64), ("line", (40,), 0, 9, torch.int64)):
        wanted = list(shape)
        wanted[axis] = count or shape[axis]
        index = below(shape[axis], *wanted, dtype=dtype) if count else torch.rand(shape).argsort(axis)
        group = {"x": randn(*shape), "index": index, "src": randn(*wanted)}
        add_case(out, f"scatter.{name}", lambda x, index, src: overwritten(x, axis, index.long(), src),
                 **{"fixed" if name == "line" else "batch": group})
    x, src = torch.randint(LOWEST, HIGHEST, (3, 6)), torch.randint(LOWEST, HIGHEST, (3, 8))
    add_case(out, "scatter.integers", lambda x, index, src: overwritten(x, 1, index, src),
             batch={"x": x, "index": below(6, 3, 8), "src": src})
    u8 = below(256, 2, 7, 3, dtype=torch.uint8)
    add_case(out, "scatter.bytes", lambda x, index, src: overwritten(x, 1, index, src),
             batch={"x": u8, "index": below(7, 2, 4, 3), "src": u8[:, :4].contiguous()})


def diagonals(out):
    square, batched, wide = randn(5, 5), randn(3, 4, 4), randn(3, 4, 4, 6)
    for name, equation, operands in (("diagonal", "ii->i", (square,)), ("trace", "ii", (square,)),
                                     ("total", "ii->", (square,)), ("batch", "bii->bi", (batched,)),
                                     ("turned", "bii->ib", (batched,)), ("traces", "...ii->...", (batched,)),
                                     ("times", "bii,bij->bj", (batched, randn(3, 4, 2))),
                                     ("inner", "biik,bk->bi", (wide, randn(3, 6))),
                                     ("both", "ii,jj->ij", (square, randn(2, 2))),
                                     ("thrice", "iii->i", (randn(3, 3, 3),)),
                                     ("pairs", "ijij->ji", (randn(2, 3, 2, 3),))):
        fixed = {"ab"[i]: t for i, t in enumerate(operands)}
        add_case(out, f"einsum.{name}", lambda **t: torch.einsum(equation, *t.values()), fixed=fixed)


def transforms(out):
    fft = torch.fft
    for name, shape, dim, norm in (("one", (3, 1), -1, "backward"), ("two", (3, 2), -1, "ortho"),
                                   ("odd", (2, 7), 1, "forward"), ("even", (2, 4, 12), 2, "ortho"),
                                   ("middle", (2, 9, 3), 1, "backward"), ("batch", (6, 5), 1, "backward"),
                                   ("line", (10,), 0, "forward"),
                                   ("factors", (2, 2, 120), -1, "backward"), ("prime", (2, 67), -1, "ortho"),
                                   ("odd_factors", (1, 3, 135), 2, "forward"),
                                   ("large_primes", (2, 323), -1, "backward"),
                                   ("powers", (2, 512), -1, "ortho"), ("far", (2, 200, 2), 1, "backward")):
        x = randn(*shape)
        role = "fixed" if name == "line" else "batch"
        add_case(out, f"rfft.{name}", lambda x: torch.view_as_real(fft.rfft(x, dim=dim, norm=norm)),
                 **{role: {"x": x}})
        half = list(shape) + [2]
        half[dim - 1 if dim < 0 else dim] = shape[dim] // 2 + 1
        y = randn(*half)
        add_case(out, f"irfft.{name}",
                 lambda x: fft.irfft(torch.view_as_complex(x.contiguous()), shape[dim], dim=dim, norm=norm),
                 **{role: {"x": y}})


def main():
    torch.manual_seed(77)
    out = {}
    integers(out)
    moved(out)
    extremes(out)
    diagonals(out)
    scatters(out)
    transforms(out)
    save("tensors.safetensors", out)


if __name__ == "__main__":
    main()
