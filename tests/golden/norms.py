#!/usr/bin/env python3
"""Writes norms.safetensors, as make_golden.py does: norms over groups of channels, instances and volumes, or
beside each other. python3 tests/golden/norms.py"""
import torch
import torch.nn.functional as F
from make_golden import add_case, draw_for, randn, save

STATISTICS = ("l.running_mean", "l.running_var")


def affine(channels):
    return {"l.weight": randn(channels), "l.bias": randn(channels)}


def groups(out):
    def case(name, x, count, eps=1e-5, with_affine=True):
        add_case(out, f"group_norm.{name}",
                 lambda x, l_weight=None, l_bias=None: F.group_norm(x, count, l_weight, l_bias, eps),
                 batch={"x": x}, params=affine(x.shape[1]) if with_affine else None)

    case("plain", randn(2, 6, 5), 3)
    case("rows", randn(3, 12), 4)
    case("one", randn(2, 3, 4), 1, 0.1)
    case("line", randn(2, 4, 67), 2)
    case("image", randn(2, 6, 7, 5, shift=0.5), 2)
    case("volume", randn(2, 4, 3, 2, 5), 2, with_affine=False)
    case("large", randn(1, 4, 33, 31), 2)
    case("far", randn(2, 4, 24, shift=20), 2)


def instances(out):
    for axes, eps, with_affine in ((1, 0.1, False), (2, 1e-5, True), (3, 1e-5, False)):
        x = randn(2, 3, *((17,), (5, 8), (3, 4, 2))[axes - 1])
        add_case(
            out, f"instance_norm.{axes}d",
            lambda x, l_weight=None, l_bias=None: F.instance_norm(x, weight=l_weight, bias=l_bias, eps=eps),
            batch={"x": x}, params=affine(3) if with_affine else None)


def batches(out):
    def case(name, x, channels, before=lambda x, parts: x, after=lambda x: x, eps=1e-5, momentum=0.1,
             params=None):
        def run(training):
            def norm(x, l_weight, l_bias, l_running_mean, l_running_var, **parts):
                return after(F.batch_norm(before(x, parts), l_running_mean, l_running_var, l_weight, l_bias,
                                          training, momentum, eps))
            return norm
        statistics = {"l.running_mean": randn(channels), "l.running_var": torch.rand(channels) + 0.5}
        add_case(out, f"batch_norm.{name}", run(True), batch={"x": x},
                 params=dict(affine(channels), **statistics, **(params or {})), buffers=STATISTICS,
                 evaluate=run(False))

    case("3d", randn(3, 4, 2, 3, 5), 4)
    case("3d_options", randn(2, 3, 4, 2, 2), 3, eps=1e-3, momentum=0.3)
    case("1d_merged", randn(3, 3, 9), 4, lambda x, p: F.conv1d(x, p["c_weight"], p["c_bias"]), F.relu,
         params={"c.weight": randn(4, 3, 2), "c.bias": randn(4)})
    case("3d_merged", randn(2, 3, 4, 3, 5), 4, lambda x, p: F.conv3d(x, p["c_weight"]), F.relu,
         params={"c.weight": randn(4, 3, 2, 2, 2)})
    case("other_axis", randn(3, 5, 2, 4), 5, lambda x, p: F.linear(x, p["c_weight"], p["c_bias"]),
         params={"c.weight": randn(7, 4), "c.bias": randn(7)})


def responses(out):
    for name, shape, size, options in (("line", (2, 5, 7), 3, {}),
                                       ("even", (3, 6, 4, 3), 4, {"alpha": 0.5, "beta": 1.5, "k": 2.0}),
                                       ("volume", (2, 4, 2, 3, 5), 9, {"alpha": 2.0}),
                                       ("one", (2, 3, 4), 1, {"alpha": 1.0})):
        add_case(out, f"local_response_norm.{name}", lambda x: F.local_response_norm(x, size, **options),
                 batch={"x": randn(*shape)})


def other_statistics(out):
    """batch_norm without running statistics, instance_norm with them."""
    draw_for("other_statistics")
    for name, shape, with_affine in (("1d", (5, 3), True), ("1d_length", (3, 4, 7), False),
                                     ("2d", (3, 4, 5, 2), True),
                                     ("3d", (2, 3, 2, 3, 3), True), ("2d_wide", (3, 2, 17, 19), True)):
        def norm(x, l_weight=None, l_bias=None):
            return F.batch_norm(x, None, None, l_weight, l_bias, True, 0.1, 1e-3)
        add_case(out, f"batch_norm.untracked_{name}", norm, batch={"x": randn(*shape, shift=0.5)},
                 params=affine(shape[1]) if with_affine else None)
    for name, shape, eps, momentum, with_affine, before, after in (
            ("1d", (4, 3, 5), 1e-5, 0.1, False, None, None), ("2d", (3, 5, 4, 7), 0.1, 0.3, True, None, None),
            ("3d", (1, 2, 3, 3, 5), 1e-5, 1.0, True, None, None),
            ("large", (2, 2, 17, 37), 1e-5, 0.1, True, None, None),
            ("many", (2, 260, 2, 2), 1e-5, 0.1, True, None, None),
            ("merged", (2, 3, 5, 4), 1e-5, 0.1, True, F.conv2d, F.relu)):
        def run(training):
            def norm(x, l_running_mean, l_running_var, l_weight=None, l_bias=None, c_weight=None):
                y = before(x, c_weight) if before else x
                y = F.instance_norm(y, l_running_mean, l_running_var, l_weight, l_bias, training, momentum,
                                    eps)
                return after(y) if after else y
            return norm
        channels = 4 if before else shape[1]
        statistics = {"l.running_mean": randn(channels), "l.running_var": torch.rand(channels) + 0.5}
        x, parts = randn(*shape, shift=0.5), dict(affine(channels) if with_affine else {}, **statistics)
        if before:
            parts["c.weight"] = randn(4, 3, 2, 2)
        add_case(out, f"instance_norm.tracked_{name}", run(True), batch={"x": x}, params=parts,
                 buffers=STATISTICS, evaluate=run(False))


def main():
    torch.manual_seed(72)
    out = {}
    groups(out)
    instances(out)
    batches(out)
    responses(out)
    other_statistics(out)
    save("norms.safetensors", out)


if __name__ == "__main__":
    main()
