#!/usr/bin/env python3
"""Makes encodings.safetensors beside it with PyTorch, from formulas. python3 tests/golden/encodings.py"""
import math

import torch

from make_golden import add_case, save


def frequency(x, count):
    angle = x[..., None] * (math.pi * 2.0 ** torch.arange(count))
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-3)


def one_blob(x, bins):
    return torch.exp(-(bins * x[..., None] - torch.arange(bins) - 0.5) ** 2 / 2).flatten(-2)


def main():
    torch.manual_seed(73)
    out = {}
    for label, shape, count in (("", (5, 3), 4), ("_one", (7, 2), 1), ("_fine", (3, 1), 6), ("_points", (2, 6, 2), 3)):
        add_case(out, f"frequency_encoding.{label}", lambda x: frequency(x, count), batch={"x": torch.rand(shape) * 2 - 1})
    add_case(out, "frequency_encoding._line", lambda x: frequency(x, 2), batch={"x": torch.rand(5)})
    for label, shape, bins in (("", (5, 3), 16), ("_one", (7, 2), 1), ("_many", (3, 1), 32), ("_points", (2, 6, 2), 5)):
        add_case(out, f"one_blob_encoding.{label}", lambda x: one_blob(x, bins), batch={"x": torch.rand(shape) * 1.2 - 0.1})
    save("encodings.safetensors", out)


if __name__ == "__main__":
    main()
