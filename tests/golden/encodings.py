#!/usr/bin/env python3
"""Writes encodings.safetensors with PyTorch, from formulas. python3 tests/golden/encodings.py"""
import itertools
import math

import torch

from make_golden import add_case, save


def frequency(x, count):
    angle = x[..., None] * (math.pi * 2.0 ** torch.arange(count))
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-3)


def one_blob(x, bins):
    return torch.exp(-(bins * x[..., None] - torch.arange(bins) - 0.5) ** 2 / 2).flatten(-2)


def harmonics(v, degree):
    """As in tiny-cuda-nn."""
    x, y, z = v.unbind(-1)
    all_of = [torch.full_like(x, 0.28209479177387814),
              -0.48860251190291987 * y, 0.48860251190291987 * z, -0.48860251190291987 * x,
              1.0925484305920792 * x * y, -1.0925484305920792 * y * z,
              0.94617469575755997 * z * z - 0.31539156525251999, -1.0925484305920792 * x * z,
              0.54627421529603959 * (x * x - y * y), 0.59004358992664352 * y * (y * y - 3 * x * x),
              2.8906114426405538 * x * y * z, 0.45704579946446572 * y * (1 - 5 * z * z),
              0.3731763325901154 * z * (5 * z * z - 3), 0.45704579946446572 * x * (1 - 5 * z * z),
              1.4453057213202769 * z * (x * x - y * y), 0.59004358992664352 * x * (3 * y * y - x * x)]
    return torch.stack(all_of[:degree ** 2], -1)


def hash_grid(x, table, levels, log2_size, base, scale):
    """As in tiny-cuda-nn."""
    axes, first, cells, out = x.shape[-1], 0, float(base), []
    for _ in range(levels):
        resolution = math.ceil(cells - 1) + 1
        dense, rows = (resolution ** axes <= 1 << log2_size,
                       min(-(-resolution ** axes // 8) * 8, 1 << log2_size))
        position = x * (cells - 1) + 0.5
        cell = position.detach().floor()
        part, y = position - cell, 0
        for corner in itertools.product((0, 1), repeat=axes):
            at, index, weight = cell.long() + torch.tensor(corner), 0, 1
            for i in range(axes):
                index = (index + at[..., i] * resolution ** i if dense else
                         index ^ (at[..., i] * (1, 2654435761, 805459861)[i]))
                weight = weight * (part[..., i] if corner[i] else 1 - part[..., i])
            y = y + weight[..., None] * table[first + (index & 0xFFFFFFFF) % rows]
        out.append(y)
        first, cells = first + rows, cells * scale
    assert first == len(table), (first, table.shape)
    return torch.cat(out, -1)


def main():
    torch.manual_seed(73)
    out = {}
    for label, shape, count in (("", (5, 3), 4), ("_one", (7, 2), 1), ("_fine", (3, 1), 6),
                                ("_points", (2, 6, 2), 3)):
        add_case(out, f"frequency_encoding.{label}", lambda x: frequency(x, count),
                 batch={"x": torch.rand(shape) * 2 - 1})
    add_case(out, "frequency_encoding._line", lambda x: frequency(x, 2), batch={"x": torch.rand(5)})
    for label, shape, bins in (("", (5, 3), 16), ("_one", (7, 2), 1), ("_many", (3, 1), 32),
                               ("_points", (2, 6, 2), 5)):
        add_case(out, f"one_blob_encoding.{label}", lambda x: one_blob(x, bins),
                 batch={"x": torch.rand(shape) * 1.2 - 0.1})
    for label, shape, degree in (("", (7, 3), 4), ("_one", (5, 3), 1), ("_two", (2, 3, 3), 2),
                                 ("_three", (2, 1, 3, 3), 3)):
        v = torch.nn.functional.normalize(torch.randn(shape), dim=-1)
        add_case(out, f"spherical_harmonics_encoding.{label}", lambda x: harmonics(x, degree), batch={"x": v})
    for label, shape, rows, *grid in (("", (7, 3), (320, 2), 3, 7, 4, 2.0),
                                      ("_flat", (9, 2), (112, 3), 4, 5, 3, 1.5),
                                      ("_one", (2, 3, 3), (16, 1), 1, 4, 3, 2.0),
                                      ("_fine", (5, 2), (48, 8), 3, 4, 5, 4.0)):
        add_case(out, f"hash_grid_encoding.{label}", lambda x, l_weight: hash_grid(x, l_weight, *grid),
                 batch={"x": torch.rand(shape) * 1.1 - 0.05}, params={"l.weight": torch.randn(rows)})
    save("encodings.safetensors", out)


if __name__ == "__main__":
    main()
