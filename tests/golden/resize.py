#!/usr/bin/env python3
"""Writes resize.safetensors with PyTorch, as make_golden.py does: python3 tests/golden/resize.py

interpolate and pad. The nearest cell is determined in float32, as for float32 values."""
import torch
import torch.nn.functional as F

from make_golden import add_case, draw_for, randn, save

PADS = (  # (name, shape, torch's list, from the last axis on)
    ("line", (2, 3, 5), (2, 3)), ("image", (2, 2, 4, 5), (1, 3, 2, 0)),
    ("volume", (1, 2, 3, 4, 3), (2, 1, 0, 3, 1, 2)), ("rows", (2, 2, 4, 5), (0, 0, 3, 2)),
    ("full", (1, 1, 4, 4), (3, 3, 3, 3)), ("packs", (1, 2, 3, 16), (8, 8, 1, 1)))


def resize(out, name, shape, **settings):
    exact = settings.get("mode", "nearest").startswith("nearest")
    add_case(out, "interpolate." + name,
             lambda x: F.interpolate(x.float() if exact else x, **settings).double(),
             batch={"x": randn(*shape)})


def resizes(out):
    resize(out, "nearest_line", (2, 3, 7), size=11)
    resize(out, "nearest_twice", (2, 2, 3, 4), scale_factor=2)
    resize(out, "nearest_image", (2, 2, 5, 4), size=(7, 9))
    resize(out, "nearest_smaller", (2, 2, 9, 10), size=(4, 3))
    resize(out, "nearest_factor", (2, 2, 6, 5), scale_factor=(1.7, 2.3))
    resize(out, "nearest_volume", (1, 2, 3, 4, 2), scale_factor=(2, 1, 2.5))
    resize(out, "nearest_thirds", (1, 1, 3, 64), size=(9, 192))
    resize(out, "exact_image", (2, 2, 5, 4), size=(7, 9), mode="nearest-exact")
    resize(out, "exact_smaller", (2, 2, 9, 10), scale_factor=0.4, mode="nearest-exact")
    resize(out, "exact_volume", (1, 2, 3, 4, 2), size=(4, 6, 5), mode="nearest-exact")
    for label, align in (("", False), ("_aligned", True)):
        resize(out, "linear" + label, (2, 3, 7), size=12, mode="linear", align_corners=align)
        resize(out, "linear_factor" + label, (2, 3, 7), scale_factor=2.6, mode="linear", align_corners=align)
        resize(out, "bilinear_twice" + label, (2, 2, 5, 6), scale_factor=2, mode="bilinear",
               align_corners=align)
        resize(out, "bilinear" + label, (2, 2, 5, 6), size=(8, 11), mode="bilinear", align_corners=align)
        resize(out, "bilinear_smaller" + label, (2, 2, 9, 11), size=(4, 5), mode="bilinear",
               align_corners=align)
        resize(out, "bilinear_factor" + label, (2, 2, 5, 6), scale_factor=(1.3, 0.7), mode="bilinear",
               align_corners=align)
        resize(out, "bilinear_same" + label, (2, 2, 5, 6), size=(5, 9), mode="bilinear", align_corners=align)
        resize(out, "bilinear_one" + label, (2, 2, 1, 4), size=(3, 1), mode="bilinear", align_corners=align)
        resize(out, "bilinear_point" + label, (2, 3, 1, 1), size=(9, 9), mode="bilinear", align_corners=align)
        resize(out, "trilinear" + label, (1, 2, 3, 4, 5), size=(5, 7, 6), mode="trilinear",
               align_corners=align)
        resize(out, "trilinear_factor" + label, (1, 2, 4, 5, 3), scale_factor=(0.6, 1.5, 2), mode="trilinear",
               align_corners=align)
    resize(out, "area_image", (2, 2, 7, 6), size=(3, 8), mode="area")
    resize(out, "area_volume", (1, 2, 4, 5, 6), scale_factor=0.5, mode="area")


def cubics(out):
    draw_for("cubic")
    for label, align in (("", False), ("_aligned", True)):
        resize(out, "cubic_twice" + label, (2, 2, 5, 6), scale_factor=2, mode="bicubic", align_corners=align)
        resize(out, "cubic" + label, (2, 3, 7, 5), size=(11, 13), mode="bicubic", align_corners=align)
        resize(out, "cubic_smaller" + label, (2, 2, 13, 11), size=(4, 5), mode="bicubic", align_corners=align)
        resize(out, "cubic_factor" + label, (2, 2, 5, 6), scale_factor=(1.3, 0.7), mode="bicubic",
               align_corners=align)
        resize(out, "cubic_same" + label, (2, 2, 5, 6), size=(5, 9), mode="bicubic", align_corners=align)
        resize(out, "cubic_narrow" + label, (2, 2, 1, 3), size=(3, 7), mode="bicubic", align_corners=align)
        resize(out, "cubic_row" + label, (2, 2, 4, 2), size=(1, 1), mode="bicubic", align_corners=align)
        resize(out, "cubic_point" + label, (2, 3, 1, 1), size=(9, 9), mode="bicubic", align_corners=align)
        resize(out, "cubic_wide" + label, (1, 1, 3, 12), size=(2, 41), mode="bicubic", align_corners=align)
        resize(out, "cubic_seen" + label, (1, 1, 2, 3), size=(17, 23), mode="bicubic", align_corners=align)


def main():
    torch.manual_seed(52)
    out = {}
    resizes(out)
    for mode in ("reflect", "replicate", "circular"):
        for label, shape, amounts in PADS:
            add_case(out, f"pad.{mode}_{label}", lambda x: F.pad(x, amounts, mode=mode),
                     batch={"x": randn(*shape)})
    add_case(out, "pad.replicate_far", lambda x: F.pad(x, (4, 7), mode="replicate"),
             batch={"x": randn(2, 2, 3)})
    add_case(out, "pad.replicate_one", lambda x: F.pad(x, (2, 3, 1, 1), mode="replicate"),
             batch={"x": randn(2, 2, 1, 1)})
    add_case(out, "pad.circular_whole", lambda x: F.pad(x, (3, 3), mode="circular"),
             batch={"x": randn(2, 2, 3)})
    cubics(out)
    save("resize.safetensors", out)


if __name__ == "__main__":
    main()
