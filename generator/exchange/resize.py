"""ONNX's Resize, one axis at a time, each as a matrix from its cells to the results."""
import math

from .arrays import check_count
from .spec_writer import Refused, normal_axis, size_name


def plan(call, shape, scales, sizes):
    """(axis, old size, new size, scale) for each axis that is resized."""
    rank = len(shape)
    given = scales if scales is not None else sizes
    if given is None:
        raise Refused("neither scales nor sizes are given")
    axes = [normal_axis(axis, rank) for axis in call.get("axes", None) or range(rank)]
    pairs = [(axis, value)
             for axis, value in zip(axes, given) if not (shape[axis] < 0 and is_unchanged(value, scales))]
    if any(shape[axis] < 0 for axis, _ in pairs):
        raise Refused("it resizes %s" % size_name(min(shape)))
    if scales is not None:
        return [(axis, shape[axis], math.floor(shape[axis] * scale), scale) for axis, scale in pairs]
    factors = [value / shape[axis] for axis, value in pairs]
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [(axis, shape[axis], value, factor) for (axis, value), factor in zip(pairs, factors)]
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [(axis, shape[axis], math.floor(shape[axis] * factor + 0.5), factor) for axis, _ in pairs]


def is_unchanged(value, scales):
    """Whether the batch stays as it is: its scale is 1, or its size is itself."""
    return value == 1 if scales is not None else not isinstance(value, (int, float))


def source(mode, i, old, new, scale, roi):
    """The coordinate of result i among the cells of an axis."""
    length = scale * old
    # of new cells, as in ONNX Runtime and PyTorch, if size times scale is no integer
    if mode == "align_corners":
        return i * (old - 1) / (new - 1) if new != 1 else 0.0
    if mode == "asymmetric":
        return i / scale
    if mode == "tf_crop_and_resize":
        start, end = roi
        inner = (end - start) * (old - 1)
        return (inner / 2 if new == 1 else i * inner / (new - 1)) + start * (old - 1)
    if mode == "pytorch_half_pixel" and length == 1:
        return -0.5
    if mode == "half_pixel_symmetric":
        return old / 2 * (1 - new / length) + (i + 0.5) / scale - 0.5
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (i + 0.5) / scale - 0.5
    raise Refused("the coordinate mode %s is not possible" % mode)


NEAREST = {"round_prefer_floor": lambda x: math.ceil(x - 0.5),
           "round_prefer_ceil": lambda x: math.floor(x + 0.5), "floor": math.floor, "ceil": math.ceil}


def triangle(x, _):
    return max(0.0, 1 - abs(x))


def cubic(x, a):
    x = abs(x)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def taps(call, x, old, scale):
    """(cell, weight) for each cell, perhaps outside, of the result at x."""
    mode = call.get("mode", "nearest")
    if mode == "nearest":
        return [(NEAREST[call.get("nearest_mode", "round_prefer_floor")](x), 1.0)]
    kernel, reach = (triangle, 1) if mode in ("linear", "bilinear") else (cubic, 2)
    narrow = min(scale, 1.0) if call.get("antialias", 0) else 1.0
    cells = range(math.floor(x - reach / narrow) + 1, math.ceil(x + reach / narrow))
    pairs = [(cell, kernel((cell - x) * narrow, call.get("cubic_coeff_a", -0.75))) for cell in cells]
    if call.get("exclude_outside", 0):
        pairs = [(cell, weight) for cell, weight in pairs if 0 <= cell < old]
    total = sum(weight for _, weight in pairs)
    return [(cell, weight / total) for cell, weight in pairs]


def matrix(call, axis, old, new, scale, roi, rank):
    """[new, old] as a flat list, and which results are outside and have extrapolation_value."""
    check_count(new * old)
    mode = call.get("coordinate_transformation_mode", "half_pixel")
    bounds = own_bounds(call, roi, axis, rank)
    result, outside = [0.0] * (new * old), []
    for i in range(new):
        x = source(mode, i, old, new, scale, bounds)
        outside.append(mode == "tf_crop_and_resize" and not 0 <= x <= old - 1)
        for cell, weight in taps(call, x, old, scale) if not outside[-1] else ():
            result[i * old + min(max(cell, 0), old - 1)] += weight
    return result, outside


def own_bounds(call, roi, axis, rank):
    """The part of an axis that roi gives: its starts, then its ends."""
    if roi is None:
        return 0.0, 1.0
    axes = [normal_axis(a, rank) for a in call.get("axes", None) or range(rank)]
    at = axes.index(axis)
    return roi[at], roi[at + len(axes)]


class _Own:
    """The settings of gpunn's interpolate, as Resize has them."""

    def __init__(self, **attributes):
        self.attributes = attributes

    def get(self, name, default):
        return self.attributes.get(name, default)


OWN = {("nearest", None): _Own(mode="nearest", coordinate_transformation_mode="asymmetric",
                               nearest_mode="floor"),
       ("linear", None): _Own(mode="linear", coordinate_transformation_mode="half_pixel"),
       ("linear", True): _Own(mode="linear", coordinate_transformation_mode="align_corners"),
       ("cubic", None): _Own(mode="cubic", coordinate_transformation_mode="half_pixel"),
       ("cubic", True): _Own(mode="cubic", coordinate_transformation_mode="align_corners")}


def interpolate_mode(plans, matrices, rank):
    """(mode, align_corners) of gpunn's interpolate if that gives the same. None: it does not."""
    if rank not in (3, 4, 5) or any(axis < 2 for axis, *_ in plans):
        return None
    for mode, call in OWN.items():
        if (mode[0] != "cubic" or rank == 4) and all(
                close(matrix(call, axis, old, new, new / old, None, rank)[0], own)
                for (axis, old, new, _), (own, _) in zip(plans, matrices)):
            return mode
    return None


def close(a, b):
    return all(abs(x - y) < 1e-6 for x, y in zip(a, b))
