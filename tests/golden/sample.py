#!/usr/bin/env python3
"""Writes sample.safetensors with PyTorch and torchvision: python3 tests/golden/sample.py

grid_sample, roi_align, affine_grid, gradient_energy and ncc_loss, in make_golden.py's form."""
import torch
import torch.nn.functional as F
from torchvision.ops import roi_align

from make_golden import add_case, f32, inf, nan, randn, save

SIZES = {2: (5, 7), 3: (3, 5, 4)}  # of x
POINTS = {2: (4, 9), 3: (3, 4, 6)}


def points(samples, shape, size, align_corners, reach=1.4):
    """A grid whose points avoid the jumps of the derivative: whole and half cells."""
    grid = torch.rand(samples, *shape, len(size), dtype=torch.float64) * 2 * reach - reach
    for k, cells in enumerate(reversed(size)):
        half = (cells - 1 if align_corners else cells) / 2
        shift = half if align_corners else half - 0.5
        at = grid[..., k] * half + shift
        part = (2 * at) % 1
        at += (0.1 + 0.8 * part - part) / 2  # parts of half cells: 0.1 to 0.9
        grid[..., k] = (at - shift) / max(half, 0.5)
    return grid.float()


def grid_sample_cases(out):
    def case(label, x, grid, **options):
        no_grad = options.pop("no_grad", ())
        options.setdefault("align_corners", False)
        add_case(out, "grid_sample." + label, lambda x, grid: F.grid_sample(x, grid, **options),
                 batch={"x": x, "grid": grid}, no_grad=no_grad)

    for axes in (2, 3):
        size = SIZES[axes]
        for padding in ("zeros", "border", "reflection"):
            for align in (False, True):
                label = "%dd_%s%s" % (axes, padding, "_align" if align else "")
                case(label, randn(2, 3, *size), points(2, POINTS[axes], size, align), padding_mode=padding,
                     align_corners=align)
            case("%dd_nearest_%s" % (axes, padding), randn(2, 2, *size), points(2, POINTS[axes], size, False),
                 mode="nearest", padding_mode=padding)
        case("%dd_nearest_align" % axes, randn(1, 2, *size), points(1, POINTS[axes], size, True),
             mode="nearest", align_corners=True)
        case("%dd_far" % axes, randn(1, 1, *size), points(1, POINTS[axes], size, False, 9.0),
             padding_mode="reflection")
        case("%dd_one_cell" % axes, randn(2, 2, *size[:-2], 1, 1),
             points(2, POINTS[axes], size[:-2] + (1, 1), False))
        case("%dd_one_cell_border" % axes, randn(1, 2, *size[:-1], 1),
             points(1, POINTS[axes], size[:-1] + (1,), False), padding_mode="border", no_grad=("grid",))
        case("%dd_one_point" % axes, randn(2, 3, *size), points(2, (1,) * axes, size, False, 0.5))
        # one cell is the sum of many points, all between the same cells
        case("%dd_crowd" % axes, randn(1, 1, *size), points(1, (7,) * axes, size, False, 0.08))
        size = (2,) * axes
        case("%dd_many" % axes, randn(3, 1, *size),
             points(3, (5, 31) if axes == 2 else (2, 3, 23), size, True, 1.1), align_corners=True)
        # whole cells, the corners among them; 5 cells are exact in binary
        steps = torch.linspace(-1, 1, 5)
        exact = torch.stack(torch.meshgrid(*([steps] * axes), indexing="ij")[::-1], -1)[None]
        case("%dd_exact" % axes, randn(1, 2, *(5,) * axes), exact, align_corners=True, no_grad=("grid",))
    special = points(1, (1, 1, 8), SIZES[3], False, 0.9)
    for i, value in enumerate((nan, inf, -inf, 1e30)):
        special[0, 0, 0, i, i % 3] = value
    case("3d_special", randn(1, 2, *SIZES[3]), special)


def affine_grid_cases(out):
    def case(label, theta, size, align_corners=False):
        add_case(out, "affine_grid." + label,
                 lambda theta: F.affine_grid(theta, [theta.shape[0], 1, *size], align_corners),
                 batch={"theta": theta})

    case("2d", randn(2, 2, 3), (3, 5))
    case("2d_align", randn(2, 2, 3), (4, 7), True)
    case("2d_one", randn(1, 2, 3), (1, 1))
    case("2d_line", randn(3, 2, 3), (1, 9), True)
    case("2d_many", randn(1, 2, 3), (37, 41))
    case("2d_identity", f32([1, 0, 0, 0, 1, 0], 1, 2, 3), (4, 8), True)
    case("3d", randn(2, 3, 4), (3, 4, 5))
    case("3d_align", randn(2, 3, 4), (2, 5, 3), True)
    case("3d_slice", randn(1, 3, 4), (1, 3, 6))
    case("3d_many", randn(1, 3, 4), (11, 5, 13), True)


def gradient_energy_cases(out):
    def energy(x, dims):
        return sum((x.diff(dim=d) ** 2).mean() for d in dims if x.shape[d] > 1)

    def case(label, x, *dims):
        add_case(out, "gradient_energy." + label, lambda x: energy(x, dims), batch={"x": x})

    case("field", randn(2, 4, 5, 6, 3), 1, 2, 3)
    case("image", randn(2, 2, 7, 5), 2, 3)
    case("all", randn(3, 4, 5), 0, 1, 2)
    case("first", randn(3, 5), 0)
    case("last", randn(2, 37), 1)
    case("pair", randn(2, 2), 0, 1)
    case("one", randn(2, 1, 3), 1, 2)
    case("middle", randn(2, 3, 41, 2), 2)
    case("long", randn(1, 2311), 1)
    case("rows", randn(1, 31, 67), 1)


def ncc_cases(out):
    def whole(input, target, eps=1e-5):
        axes = tuple(range(2, input.dim()))
        a, b = input - input.mean(axes, keepdim=True), target - target.mean(axes, keepdim=True)
        return -((a * b).sum(axes) / ((a * a).sum(axes) * (b * b).sum(axes) + eps).sqrt()).mean()

    def local(input, target, window, eps=1e-5):
        """VoxelMorph's (voxelmorph/torch/losses.py), for any number of channels."""
        axes, channels = input.dim() - 2, input.shape[1]
        ones = torch.ones(channels, 1, *[window] * axes, dtype=input.dtype)

        def sums(x):
            return (F.conv1d, F.conv2d, F.conv3d)[axes - 1](x, ones, padding=window // 2, groups=channels)

        cells = float(window ** axes)
        a, b = sums(input), sums(target)
        u, v = a / cells, b / cells
        cross = sums(input * target) - v * a - u * b + u * v * cells
        aa = sums(input * input) - 2 * u * a + u * u * cells
        bb = sums(target * target) - 2 * v * b + v * v * cells
        return -(cross * cross / (aa * bb + eps)).mean()

    def case(label, loss, *shape):
        add_case(out, "ncc_loss." + label, loss,
                 batch={"input": torch.rand(shape), "target": torch.rand(shape)})

    case("volume", whole, 2, 1, 4, 5, 6)
    case("channels", whole, 3, 2, 7, 5)
    case("line", lambda input, target: whole(input, target, 0.1), 2, 1, 19)
    case("local_volume", lambda input, target: local(input, target, 3), 2, 1, 4, 5, 6)
    case("local_image", lambda input, target: local(input, target, 5), 1, 2, 7, 8)
    case("local_line", lambda input, target: local(input, target, 9, 0.1), 2, 1, 21)
    case("local_large", lambda input, target: local(input, target, 7), 1, 1, 4, 5, 3)


def roi_align_cases(out):
    def boxes(count, samples, height, width, reach=1.2):
        """[count, 5]: a sample's index and two corners, the second one after the first."""
        x, y = ((torch.rand(2, count) * reach - (reach - 1) / 2).sort(0)[0] * size
                for size in (width, height))
        corners = torch.stack([x[0], y[0], x[1], y[1]], 1)
        return torch.cat([torch.randint(samples, (count, 1)).float(), (corners * 64).round() / 64], 1)

    def case(label, x, boxes, size, scale=1.0, ratio=-1, aligned=False, role="fixed"):
        def align(x, boxes):
            return roi_align(x, boxes, size, scale, ratio, aligned)
        if role == "batch":
            add_case(out, "roi_align." + label, align, batch={"x": x, "boxes": boxes}, no_grad=("boxes",))
        else:
            add_case(out, "roi_align." + label, align, batch={"x": x}, fixed={"boxes": boxes},
                     no_grad=("boxes",))

    case("plain", randn(2, 3, 7, 9), boxes(5, 2, 7, 9), 2)
    case("aligned", randn(2, 3, 7, 9), boxes(5, 2, 7, 9), 2, aligned=True)
    case("ratio", randn(2, 3, 8, 6), boxes(4, 2, 8, 6), (3, 2), ratio=2)
    case("ratio_aligned", randn(2, 3, 8, 6), boxes(4, 2, 8, 6), (2, 5), ratio=3, aligned=True)
    case("scale", randn(3, 2, 6, 5), boxes(7, 3, 24, 20), 3, scale=0.25, aligned=True)
    case("many_samples", randn(1, 2, 31, 29), boxes(3, 1, 31, 29), (2, 1), aligned=True)  # more than a chunk
    case("whole", randn(1, 4, 5, 5), f32([0, 0, 0, 5, 5], 1, 5), 5, ratio=1, aligned=True)
    case("one_cell", randn(2, 2, 1, 1), boxes(3, 2, 1, 1, 3.0), 2)
    case("row", randn(1, 1, 1, 11), boxes(3, 1, 1, 11), (1, 4), ratio=2)
    # many add to the same cells
    case("crowd", randn(1, 1, 6, 6), boxes(64, 1, 3, 3, 1.0), 2, ratio=2, aligned=True)
    case("twice", randn(4, 2, 5, 7), boxes(4, 4, 5, 7), 3, role="batch")
    case("many", randn(3, 5, 13, 17), boxes(37, 3, 13, 17), (7, 5), ratio=2, aligned=True)
    # empty, turned round, beside x on each side, over its edges by less and by more than a cell, as large as
    # many such x
    odd = [[2, 3, 2, 3], [4, 4, 1.5, 2], [-9, 1, -4, 3], [1, 20, 3, 25], [-1.75, -1.5, 1, 1],
           [4.5, 5, 8.75, 9], [-40, -30, 50, 60], [0.25, 0.25, 0.375, 0.5]]
    odd = f32([value for box in odd for value in [0] + box], len(odd), 5)
    case("odd", randn(1, 2, 6, 7), odd, 3)
    case("odd_aligned", randn(1, 2, 6, 7), odd, 3, aligned=True)
    case("odd_ratio", randn(1, 2, 6, 7), odd, (2, 3), ratio=2, aligned=True)


def main():
    torch.manual_seed(8)
    out = {}
    grid_sample_cases(out)
    affine_grid_cases(out)
    gradient_energy_cases(out)
    ncc_cases(out)
    roi_align_cases(out)
    save("sample.safetensors", out)


if __name__ == "__main__":
    main()
