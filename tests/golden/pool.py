#!/usr/bin/env python3
"""Makes pool.safetensors beside it with PyTorch, as make_golden.py does the others: python3 tests/golden/pool.py

Pools over one and three axes and adaptive ones.
"""
import torch
import torch.nn.functional as F

from make_golden import add_case, inf, nan, randn, save

SHAPES = {1: (2, 3, 17), 2: (2, 3, 7, 9), 3: (2, 1, 5, 6, 7)}
WINDOWS = (
    ("plain", dict(kernel_size=2)), ("overlap", dict(kernel_size=3, stride=2, padding=1)),
    ("dense", dict(kernel_size=3, stride=1, padding=1)), ("ceil", dict(kernel_size=3, stride=2, ceil_mode=True)),
    ("ceil_padded", dict(kernel_size=2, stride=3, padding=1, ceil_mode=True)), ("gap", dict(kernel_size=1, stride=2)))
ADAPTIVE = (("plain", (3, 4, 5)), ("global", (1, 1, 1)), ("enlarge", (6, 8, 9)), ("even", (5, 3, 1)), ("halves", (2, 2, 2)))


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
                    pool(out, f"{name}.{label}_exclude", fn, randn(*SHAPES[axes]), count_include_pad=False, **settings)
            pool(out, f"{name}.whole", fn, randn(*SHAPES[axes]), kernel_size=SHAPES[axes][2:])
            pool(out, f"{name}.one", fn, randn(*([1] * (2 + axes))), kernel_size=1)
        pool(out, f"max_pool{axes}d.ties", getattr(F, f"max_pool{axes}d"), randn(*SHAPES[axes]).round(), kernel_size=3, stride=1)
        pool(out, f"max_pool{axes}d.special", getattr(F, f"max_pool{axes}d"), special(*SHAPES[axes]), False, kernel_size=2)
    for kind in ("max_pool3d", "avg_pool3d"):
        pool(out, f"{kind}.box", getattr(F, kind), randn(1, 2, 6, 7, 9), kernel_size=(2, 3, 4), stride=(1, 2, 3), padding=(1, 0, 2))
        pool(out, f"{kind}.large", getattr(F, kind), randn(1, 1, 9, 11, 10), kernel_size=7, stride=2, padding=2)
    for axes in (1, 2, 3):
        for kind in ("max", "avg"):
            fn, name = getattr(F, f"adaptive_{kind}_pool{axes}d"), f"adaptive_{kind}_pool{axes}d"
            if name == "adaptive_avg_pool2d":
                continue  # in layers.safetensors
            for label, sizes in ADAPTIVE:
                pool(out, f"{name}.{label}", fn, randn(*SHAPES[axes]), output_size=sizes[:axes])
        fn = getattr(F, f"adaptive_max_pool{axes}d")
        pool(out, f"adaptive_max_pool{axes}d.ties", fn, randn(*SHAPES[axes]).round(), output_size=(2,) * axes)
        pool(out, f"adaptive_max_pool{axes}d.global_ties", fn, special(*SHAPES[axes]).nan_to_num(5.0, 5.0, -5.0), output_size=(1,) * axes)
        pool(out, f"adaptive_max_pool{axes}d.special", fn, special(*SHAPES[axes]), False, output_size=(1,) * axes)


def main():
    torch.manual_seed(51)
    out = {}
    pools(out)
    save("pool.safetensors", out)


if __name__ == "__main__":
    main()
