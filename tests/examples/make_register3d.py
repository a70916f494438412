#!/usr/bin/env python3
"""Writes tests/examples/expected_output/register3d.json: the losses of examples/register3d.c's optimisation
of a small pair, as PyTorch computes them in float64. python3 tests/examples/make_register3d.py (with
torch)"""
import json
import os

import torch
import torch.nn.functional as F

from register3d_pair import SIZE, pair

HERE = os.path.dirname(os.path.abspath(__file__))
START = (0.31, 0.23, -0.36)  # no point lies on a voxel, where the derivative jumps
CASES = {"mse": dict(similarity="mse", smooth=0.01, levels=1, steps=20, lr=0.1),
         "pyramid": dict(similarity="mse", smooth=0.02, levels=2, steps=12, lr=0.2),
         "ncc": dict(similarity="ncc", smooth=0.05, levels=1, steps=20, lr=0.1),
         "lncc": dict(similarity="lncc", window=5, smooth=0.1, levels=1, steps=20, lr=0.05)}


def local_ncc(a, b, window):
    """VoxelMorph's."""
    ones, cells = torch.ones(1, 1, window, window, window, dtype=a.dtype), float(window ** 3)

    def sums(x):
        return F.conv3d(x, ones, padding=window // 2)
    sa, sb = sums(a), sums(b)
    cross = sums(a * b) - sa * sb / cells
    return (cross ** 2 / ((sums(a * a) - sa ** 2 / cells) * (sums(b * b) - sb ** 2 / cells) + 1e-5)).mean()


def similarity(kind, a, b, window):
    if kind == "mse":
        return F.mse_loss(a, b)
    if kind == "lncc":
        return -local_ncc(a, b, window)
    a, b = a - a.mean(), b - b.mean()
    return -(a * b).sum() / ((a * a).sum() * (b * b).sum() + 1e-5).sqrt()


def losses(similarity_, smooth, levels, steps, lr, window=9):
    volumes = [torch.tensor(v, dtype=torch.float32).double().reshape(1, 1, *SIZE) for v in pair()]
    pyramid = [[(v - v.min()) / (v.max() - v.min()) for v in volumes]]
    for _ in range(1, levels):
        size = [(n + 1) // 2 for n in pyramid[-1][0].shape[2:]]
        pyramid.append([F.interpolate(v, size, mode="trilinear", align_corners=False) for v in pyramid[-1]])
    field, result = None, []
    for moving, fixed in reversed(pyramid):
        size = moving.shape[2:]
        if field is None:
            shift = [s * n / whole for s, n, whole in zip(START, reversed(size), reversed(SIZE))]
            grown = torch.tensor(shift, dtype=torch.float64).reshape(1, 3, 1, 1, 1).expand(1, 3, *size)
        else:
            grown = F.interpolate(field, size, mode="trilinear", align_corners=False)
            grown *= torch.tensor([b / a for a, b in zip(field.shape[2:], size)][::-1]).reshape(1, 3, 1, 1, 1)
        u = torch.nn.Parameter(grown.permute(0, 2, 3, 4, 1).contiguous())
        grid = F.affine_grid(torch.eye(3, 4, dtype=torch.float64)[None], [1, 1, *size], align_corners=False)
        units = torch.tensor([2 / n for n in reversed(size)], dtype=torch.float64)
        adam = torch.optim.Adam([u], lr=lr)
        for _ in range(steps):
            warped = F.grid_sample(moving, grid + u * units, padding_mode="border", align_corners=False)
            energy = sum((u.diff(dim=d) ** 2).mean() for d in (1, 2, 3))
            loss = similarity(similarity_, warped, fixed, window) + smooth * energy
            adam.zero_grad()
            loss.backward()
            adam.step()
            result.append(loss.item())
        field = u.detach().permute(0, 4, 1, 2, 3)
    return result


def main():
    golden = {}
    for name, case in CASES.items():
        options = dict(case)
        golden[name] = {"options": dict(case, shift="%g,%g,%g" % START),
                        "losses": losses(options.pop("similarity"), **options)}
        print(name, golden[name]["losses"][0], golden[name]["losses"][-1])
    with open(os.path.join(HERE, "expected_output", "register3d.json"), "w", encoding="ascii") as file:
        json.dump(golden, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
