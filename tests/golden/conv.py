#!/usr/bin/env python3
"""Makes conv.safetensors, the convolutions of one and three axes and the transposed ones: python3
tests/golden/conv.py

The names of the cases and the files' form: make_golden.py."""
import torch
import torch.nn.functional as F

from make_golden import add_case, draw_for, randn, save

# batch, channels, sizes, out_channels, kernel, stride, padding, dilation, groups, bias, output_padding
CONV1D = {
    "plain": (2, 3, (9,), 4, 3, 1, 0, 1, 1, True),
    "one": (2, 1, (1,), 1, 1, 1, 0, 1, 1, True),
    "pointwise": (3, 5, (7,), 6, 1, 1, 0, 1, 1, True),
    "strided": (2, 4, (17,), 6, 5, 3, 2, 1, 1, True),
    "dilated": (2, 3, (20,), 5, 3, 1, 4, 4, 1, True),
    "groups": (2, 6, (11,), 4, 3, 1, 1, 1, 2, True),
    "depthwise": (2, 5, (13,), 5, 7, 1, 3, 1, 5, True),
    "no_bias": (2, 3, (8,), 4, 4, 2, 1, 1, 1, False),
    "wide": (1, 9, (33,), 37, 3, 1, 1, 1, 1, True),
    "whole": (3, 2, (6,), 7, 6, 1, 0, 1, 1, True),
}
CONV3D = {
    "plain": (2, 2, (5, 6, 7), 3, 3, 1, 0, 1, 1, True),
    "one": (2, 1, (1, 1, 1), 1, 1, 1, 0, 1, 1, True),
    "pointwise": (1, 5, (2, 3, 4), 6, 1, 1, 0, 1, 1, True),
    "same": (1, 3, (4, 5, 6), 4, 3, 1, 1, 1, 1, True),
    "strided": (1, 2, (7, 6, 5), 3, 3, 2, 1, 1, 1, True),
    "settings": (1, 2, (6, 7, 9), 3, (2, 3, 4), (1, 2, 3), (1, 0, 2), (2, 1, 1), 1, True),
    "groups": (1, 4, (4, 4, 4), 6, 3, 1, 1, 1, 2, True),
    "depthwise": (1, 3, (4, 5, 5), 3, 3, 1, 1, 1, 3, True),
    "no_bias": (2, 2, (3, 4, 5), 3, 2, 1, 0, 1, 1, False),
    "wide": (1, 9, (3, 4, 3), 17, 3, 1, 1, 1, 1, True),
    "deep": (1, 3, (9, 3, 3), 4, (5, 1, 1), 1, (2, 0, 0), 1, 1, True),
    "flat": (2, 3, (1, 5, 6), 4, (1, 3, 3), 1, (0, 1, 1), 1, 1, True),
}
CONV_TRANSPOSE1D = {
    "plain": (2, 3, (9,), 4, 3, 1, 0, 1, 1, True, 0),
    "one": (2, 1, (1,), 1, 1, 1, 0, 1, 1, True, 0),
    "up": (2, 4, (7,), 3, 4, 2, 1, 1, 1, True, 0),
    "output_padding": (2, 3, (6,), 5, 3, 3, 1, 1, 1, True, 2),
    "dilated": (2, 3, (8,), 4, 3, 2, 2, 3, 1, True, 2),
    "groups": (2, 6, (9,), 4, 3, 2, 1, 1, 2, False, 1),
    "depthwise": (2, 4, (8,), 4, 5, 1, 2, 1, 4, True, 0),
    "wide": (1, 17, (9,), 10, 3, 2, 1, 1, 1, True, 1),
}
CONV_TRANSPOSE2D = {
    "plain": (2, 3, (5, 6), 4, 3, 1, 0, 1, 1, True, 0),
    "one": (2, 1, (1, 1), 1, 1, 1, 0, 1, 1, True, 0),
    "pointwise": (2, 5, (3, 4), 6, 1, 1, 0, 1, 1, True, 0),
    "up": (2, 5, (4, 5), 3, 2, 2, 0, 1, 1, True, 0),
    "generator": (2, 6, (4, 4), 4, 4, 2, 1, 1, 1, False, 0),
    "output_padding": (2, 3, (5, 4), 4, 3, 2, 1, 1, 1, True, 1),
    "settings": (1, 2, (4, 5), 3, (2, 4), (3, 2), (0, 1), (1, 2), 1, True, (2, 1)),
    "gap": (2, 2, (3, 4), 3, 2, 3, 0, 1, 1, True, 0),
    "groups": (2, 6, (5, 5), 4, 3, 2, 1, 1, 2, True, 1),
    "depthwise": (2, 5, (6, 6), 5, 3, 1, 1, 1, 5, True, 0),
    "padded": (2, 3, (6, 7), 4, 3, 1, 2, 1, 1, True, 0),
    "cut": (2, 3, (6, 7), 4, 3, 1, 3, 1, 1, True, 0),
    "wide": (1, 9, (5, 4), 17, 3, 2, 1, 1, 1, True, 1),
    "winograd": (2, 16, (8, 8), 16, 3, 1, 1, 1, 1, True, 0),
}
CONV_TRANSPOSE3D = {
    "plain": (1, 2, (3, 4, 5), 3, 3, 1, 0, 1, 1, True, 0),
    "one": (2, 1, (1, 1, 1), 1, 1, 1, 0, 1, 1, True, 0),
    "up": (2, 4, (3, 2, 4), 3, 2, 2, 0, 1, 1, True, 0),
    "settings": (1, 2, (2, 3, 3), 3, (2, 3, 4), (3, 1, 2), (1, 0, 1), (1, 2, 1), 1, True, (2, 1, 1)),
    "groups": (1, 4, (2, 3, 2), 6, 3, 2, 1, 1, 2, False, 1),
    "depthwise": (1, 3, (4, 3, 5), 3, 3, 1, 1, 1, 3, True, 0),
    "wide": (1, 9, (2, 3, 2), 10, 3, 2, 1, 1, 1, True, 1),
}
FAMILIES = {"conv1d": (CONV1D, F.conv1d), "conv3d": (CONV3D, F.conv3d),
            "conv_transpose1d": (CONV_TRANSPOSE1D, F.conv_transpose1d),
            "conv_transpose2d": (CONV_TRANSPOSE2D, F.conv_transpose2d),
            "conv_transpose3d": (CONV_TRANSPOSE3D, F.conv_transpose3d)}


def function(fn, stride, padding, dilation, groups, output_padding):
    if output_padding is None:
        return lambda x, l_weight, l_bias=None: fn(x, l_weight, l_bias, stride, padding, dilation, groups)
    return lambda x, l_weight, l_bias=None: fn(x, l_weight, l_bias, stride, padding, output_padding, groups,
                                               dilation)


def uneven(out):
    """A padding of its own on each side, in torch an F.pad; 'same' with an even kernel."""
    draw_for("uneven")
    for name, shape, kernel, amounts, settings in (
            ("conv1d.uneven", (2, 3, 9), (4,), (2, 1), {"stride": 2}),
            ("conv2d.uneven", (2, 3, 6, 7), (3, 2), (0, 1, 2, 0), {}),
            ("conv2d.uneven_end", (2, 4, 8, 8), (3, 3), (0, 1, 0, 1), {"stride": 2, "groups": 2}),
            ("conv3d.uneven", (1, 2, 3, 4, 5), (2, 2, 3), (2, 0, 0, 1, 1, 0), {"dilation": (1, 2, 1)})):
        params = {"l.weight": randn(4, shape[1] // settings.get("groups", 1), *kernel, scale=0.5),
                  "l.bias": randn(4)}
        fn = getattr(F, name[:6])
        add_case(out, name, lambda x, l_weight, l_bias: fn(F.pad(x, amounts), l_weight, l_bias, **settings),
                 batch={"x": randn(*shape)}, params=params)
    add_case(out, "conv2d.same_even",
             lambda x, l_weight, l_bias: F.conv2d(x, l_weight, l_bias, padding="same", dilation=(1, 3)),
             batch={"x": randn(2, 3, 5, 9)},
             params={"l.weight": randn(4, 3, 4, 2, scale=0.5), "l.bias": randn(4)})


def main():
    torch.manual_seed(20260805)
    out = {}
    for family, (cases, fn) in FAMILIES.items():
        for name, (n, cin, sizes, cout, kernel, stride, padding, dilation, groups, bias, *rest) in (
                cases.items()):
            kernel = kernel if isinstance(kernel, tuple) else (kernel,) * len(sizes)
            channels = (cin, cout // groups) if rest else (cout, cin // groups)
            params = {"l.weight": randn(*channels, *kernel, scale=0.5)}
            if bias:
                params["l.bias"] = randn(cout)
            add_case(out, f"{family}.{name}",
                     function(fn, stride, padding, dilation, groups, rest[0] if rest else None),
                     batch={"x": randn(n, cin, *sizes)}, params=params)
    uneven(out)
    save("conv.safetensors", out)


if __name__ == "__main__":
    main()
