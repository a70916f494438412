#!/usr/bin/env python3
"""Writes pool.safetensors with PyTorch, as make_golden.py does: python3 tests/golden/pool.py

Pools over one and three axes and adaptive ones."""
import torch
import torch.nn.functional as F

from make_golden import add_case, draw_for, inf, nan, randn, save

SHAPES = {1: (2, 3, 17), 2: (2, 3, 7, 9), 3: (2, 1, 5, 6, 7)}
WINDOWS = (
    ("plain", dict(kernel_size=2)), ("overlap", dict(kernel_size=3, stride=2, padding=1)),
    ("dense", dict(kernel_size=3, stride=1, padding=1)),
    ("ceil", dict(kernel_size=3, stride=2, ceil_mode=True)),
    ("ceil_padded", dict(kernel_size=2, stride=3, padding=1, ceil_mode=True)),
    ("gap", dict(kernel_size=1, stride=2)))
ADAPTIVE = (("plain", (3, 4, 5)), ("global", (1, 1, 1)), ("enlarge", (6, 8, 9)), ("even", (5, 3, 1)),
            ("halves", (2, 2, 2)))


def pool(out, name, fn, x, gradient=True, **settings):
    add_case(out, name, lambda x: fn(x, **settings), batch={"x": x}, gradient=gradient)


def special(*shape):
    """NaN, infinities and ties; the first element is larger than all others."""
    x = randn(*shape).round()
    flat = x.view(-1)
    flat[0], flat[3], flat[7:11], flat[-2] = 9, nan, -inf, inf
    return x


def pools(out):
    for axes in (1, 3):
        for kind in ("max_pool", "avg_pool"):
            fn, name = getattr(F, f"{kind}{axes}d"), f"{kind}{axes}d"
            for label, settings in WINDOWS:
                pool(out, f"{name}.{label}", fn, randn(*SHAPES[axes]), **settings)
                if kind == "avg_pool" and "padding" in settings:
                    pool(out, f"{name}.{label}_exclude", fn, randn(*SHAPES[axes]), count_include_pad=False,
                         **settings)
            pool(out, f"{name}.whole", fn, randn(*SHAPES[axes]), kernel_size=SHAPES[axes][2:])
            pool(out, f"{name}.one", fn, randn(*([1] * (2 + axes))), kernel_size=1)
        pool(out, f"max_pool{axes}d.ties", getattr(F, f"max_pool{axes}d"), randn(*SHAPES[axes]).round(),
             kernel_size=3, stride=1)
        pool(out, f"max_pool{axes}d.special", getattr(F, f"max_pool{axes}d"), special(*SHAPES[axes]), False,
             kernel_size=2)
    for kind in ("max_pool3d", "avg_pool3d"):
        pool(out, f"{kind}.box", getattr(F, kind), randn(1, 2, 6, 7, 9), kernel_size=(2, 3, 4),
             stride=(1, 2, 3), padding=(1, 0, 2))
        pool(out, f"{kind}.large", getattr(F, kind), randn(1, 1, 9, 11, 10), kernel_size=7, stride=2,
             padding=2)
    for axes in (1, 2, 3):
        for kind in ("max", "avg"):
            fn, name = getattr(F, f"adaptive_{kind}_pool{axes}d"), f"adaptive_{kind}_pool{axes}d"
            if name == "adaptive_avg_pool2d":
                continue  # in layers.safetensors
            for label, sizes in ADAPTIVE:
                pool(out, f"{name}.{label}", fn, randn(*SHAPES[axes]), output_size=sizes[:axes])
        fn = getattr(F, f"adaptive_max_pool{axes}d")
        pool(out, f"adaptive_max_pool{axes}d.ties", fn, randn(*SHAPES[axes]).round(), output_size=(2,) * axes)
        pool(out, f"adaptive_max_pool{axes}d.global_ties", fn,
             special(*SHAPES[axes]).nan_to_num(5.0, 5.0, -5.0), output_size=(1,) * axes)
        pool(out, f"adaptive_max_pool{axes}d.special", fn, special(*SHAPES[axes]), False,
             output_size=(1,) * axes)


def window_counts(sizes, kernel, stride, before, after, dilation, ceil):
    """torch's rule, with a padding of its own on each side: windows that start in the padding at the end do
    not count."""
    counts = []
    for size, k, s, p, q, d in zip(sizes, kernel, stride, before, after, dilation):
        room = size + p + q - d * (k - 1) - 1
        count = (room + (s - 1 if ceil else 0)) // s + 1
        counts.append(count - (ceil and (count - 1) * s >= size + p))
    return counts


def uneven(x, kind, kernel, stride, before, after, dilation=1, ceil=False, exclude=False):
    """A pool of x, padded so that all windows are whole. A mean's divisor counts x's own cells or, with the
    padding, all."""
    axes = x.dim() - 2
    kernel, stride, before, after, dilation = ([v] * axes if isinstance(v, int) else list(v)
                                               for v in (kernel, stride, before, after, dilation))
    counts = window_counts(x.shape[2:], kernel, stride, before, after, dilation, ceil)
    parts = slice(None), slice(None), *map(slice, counts)
    amounts = [side for p, q in zip(reversed(before), reversed(after)) for side in (p, q)]
    more = [side for k, d in zip(reversed(kernel), reversed(dilation)) for side in (0, k * d)]
    if kind == "max":
        fn = getattr(F, f"max_pool{axes}d")
        return fn(F.pad(F.pad(x, amounts, value=-inf), more, value=-inf), kernel, stride, 0, dilation)[parts]
    fn = getattr(F, f"avg_pool{axes}d")
    cells = torch.ones_like(x)
    cells = F.pad(F.pad(cells, amounts, value=0.0 if exclude else 1.0), more)
    return (fn(F.pad(F.pad(x, amounts), more), kernel, stride) / fn(cells, kernel, stride))[parts]


UNEVEN = (("uneven", dict(kernel=3, stride=2, before=0, after=1)),
          ("uneven_start", dict(kernel=4, stride=1, before=2, after=0)),
          ("uneven_ceil", dict(kernel=3, stride=2, before=1, after=0, ceil=True)),
          ("uneven_dropped", dict(kernel=2, stride=3, before=0, after=1, ceil=True)))
DILATED = (("dilated", dict(kernel_size=3, stride=1, dilation=2, padding=1)),
           ("dilated_ceil", dict(kernel_size=2, stride=2, dilation=3, ceil_mode=True)),
           ("dilated_gap", dict(kernel_size=1, stride=2, dilation=4)))


def others(out):
    draw_for("others")
    for axes in (1, 2, 3):
        name = f"max_pool{axes}d"
        for label, settings in UNEVEN:
            for kind in ("max", "avg"):
                add_case(out, f"{kind}_pool{axes}d.{label}", lambda x: uneven(x, kind, **settings),
                         batch={"x": randn(*SHAPES[axes])})
            add_case(out, f"avg_pool{axes}d.{label}_exclude",
                     lambda x: uneven(x, "avg", exclude=True, **settings), batch={"x": randn(*SHAPES[axes])})
        for label, settings in DILATED:
            pool(out, f"{name}.{label}", getattr(F, name), randn(*SHAPES[axes]), **settings)
        pool(out, f"{name}.dilated_ties", getattr(F, name), randn(*SHAPES[axes]).round(), kernel_size=2,
             stride=1, dilation=3)
        add_case(out, f"{name}.dilated_uneven", lambda x: uneven(x, "max", 2, 3, 0, 1, 2, True),
                 batch={"x": randn(*SHAPES[axes])})
        fn = getattr(F, f"lp_pool{axes}d")
        pool(out, f"lp_pool{axes}d.plain", fn, randn(*SHAPES[axes]), norm_type=2, kernel_size=3)
        pool(out, f"lp_pool{axes}d.ceil", fn, randn(*SHAPES[axes]).abs() + 0.1, norm_type=3, kernel_size=3,
             stride=2, ceil_mode=True)
        pool(out, f"lp_pool{axes}d.sum", fn, randn(*SHAPES[axes]).abs() + 0.1, norm_type=1, kernel_size=2,
             stride=1)
    pool(out, "max_pool1d.dilated_far", F.max_pool1d, randn(1, 1, 150), kernel_size=66, stride=3, dilation=2)
    pool(out, "max_pool2d.dilated_line", F.max_pool2d, randn(2, 2, 5, 9), kernel_size=(1, 3), stride=(2, 1),
         dilation=(1, 3))
    pool(out, "lp_pool2d.oblong", F.lp_pool2d, randn(2, 2, 5, 9), norm_type=4, kernel_size=(2, 3),
         stride=(1, 2))


def main():
    torch.manual_seed(51)
    out = {}
    pools(out)
    others(out)
    save("pool.safetensors", out)


if __name__ == "__main__":
    main()
