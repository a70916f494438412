"""Operators on images, also torchvision's: resizing, sampling at points, and columns of windows."""
from ..spec_writer import Constant, Refused, is_number, product
from .convolutions import alike, batched, conv
from .registry import operation, reads
from .shapes import pad, pick, stack


@operation("im2col")
def im2col(w, call, x, kernel_size, dilation, padding, stride):
    """torch.nn.Unfold: a slice for each cell of the kernel."""
    n, c, height, width = x.full
    x = pad(w, call._replace(shapes=[((n, c, height + 2 * padding[0], width + 2 * padding[1]),
                                      call.shapes[0][1])]), x,
            [padding[1], padding[1], padding[0], padding[0]])
    rows, columns = [(size - d * (k - 1) - 1) // s + 1
                     for size, k, d, s in zip(x.full[2:], kernel_size, dilation, stride)]
    cells = []
    for i in range(kernel_size[0]):
        band = w.slice(x, 2, i * dilation[0], i * dilation[0] + (rows - 1) * stride[0] + 1, stride[0])
        for j in range(kernel_size[1]):
            cell = w.slice(band, 3, j * dilation[1], j * dilation[1] + (columns - 1) * stride[1] + 1,
                           stride[1])
            cells.append(w.reshape(cell, (n, c, 1, rows * columns)))
    y = w.add("concat", [w.f32(w.whole(cell)) for cell in cells], (n, c, len(cells), rows * columns), dim=2)
    return w.reshape(y, (n, c * len(cells), rows * columns))


@operation("col2im")
def col2im(w, call, x, output_size, kernel_size, dilation, padding, stride):
    """torch.nn.Fold: a transposed convolution whose weight puts each cell of a column in its place."""
    cells, c = product(kernel_size), x.full[1] // product(kernel_size)
    counts = [(size + 2 * p - d * (k - 1) - 1) // s + 1
              for size, p, d, k, s in zip(output_size, padding, dilation, kernel_size, stride)]
    own = [(n - 1) * s - 2 * p + d * (k - 1) + 1
           for n, s, p, d, k in zip(counts, stride, padding, dilation, kernel_size)]
    weight = Constant(w.torch.eye(cells).repeat(c, 1).reshape([c * cells, 1] + list(kernel_size)))
    shape = call.shapes[0]
    y = conv(w, call._replace(op="conv_transpose2d"),
             w.reshape(x, x.full[:-1] + tuple(counts)), weight, None, stride, padding, dilation, c,
             output_padding=[size - n for size, n in zip(output_size, own)])
    return w.reshape(y, shape[0])


RESIZES = {"nearest": "nearest", "_upsample_nearest_exact": "nearest-exact", "linear": "linear",
           "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}


@operation("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
           "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
           "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
def interpolate(w, call, x, output_size=None, align_corners=False, scale_factors=None, scales=None,
                scales_d=None, scales_h=None, scales_w=None):
    axes = int(call.op[-2])
    if scale_factors is None:
        scale_factors = [scales] if axes == 1 else [scales_d, scales_h, scales_w][-axes:]
    if None in scale_factors:
        scale_factors = None
    x, size = batched(w, x, axes), list(call.shapes[0][0][-axes:])
    mode = RESIZES[call.op[:-2].replace("upsample_", "", 0 if call.op[0] == "_" else 1)]
    y = w.add("interpolate", [x], x.shape[:2] + tuple(size), size=alike(size),
              scale_factor=scale_factors and alike([float(scale) for scale in scale_factors]),
              mode=None if mode == "nearest" else mode, align_corners=align_corners or None)
    return w.reshape(y, call.shapes[0][0])


@operation("_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa")
@reads("align_corners", "scale_factors", "output_size", "scales_h", "scales_w")
def resample(w, call, x, **arguments):
    """Resizes each axis by a matrix: PyTorch's result for the unit matrix."""
    for axis, scale in ((2, "scales_h"), (3, "scales_w")):
        old, new = w.known_size(x, axis), call.shapes[0][0][axis]
        given = dict(arguments, output_size=[new, old], scales_h=arguments.get(scale), scales_w=None)
        if arguments.get("scale_factors"):
            given.update(output_size=None, scale_factors=[arguments["scale_factors"][axis - 2], 1.0])
        given["self"] = given["input"] = w.torch.eye(old).reshape(1, 1, old, old)
        matrix = call.function({name: given[name] for name in call.arguments})
        x = w.along(x, axis, Constant(matrix.reshape(new, old)))
    return x


@operation("grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sample(w, call, x, grid, interpolation_mode=0, padding_mode=0, align_corners=False, mode="bilinear"):
    mode = ("bilinear", "nearest", "bicubic")[interpolation_mode] if interpolation_mode else mode
    padding_mode = (("zeros", "border", "reflection")[padding_mode] if is_number(padding_mode) else
                    padding_mode)
    if mode == "bicubic":
        return w.cubic_sample(w.f32(w.whole(x)), w.f32(w.whole(grid)), padding_mode, align_corners)
    return w.add("grid_sample", [w.f32(w.whole(x)), w.f32(w.whole(grid))], call.shapes[0][0],
                 mode=None if mode == "bilinear" else mode, padding_mode=None if padding_mode == "zeros" else
                 padding_mode, align_corners=align_corners or None)


@operation("roi_align")
def roi_align(w, call, x, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    """torchvision's operator."""
    return w.add("roi_align", [w.f32(w.whole(x)), w.f32(w.whole(rois))], call.shapes[0][0],
                 output_size=alike([pooled_height, pooled_width]),
                 spatial_scale=None if spatial_scale == 1 else spatial_scale,
                 sampling_ratio=sampling_ratio if sampling_ratio > 0 else None, aligned=aligned or None)


@operation("roi_pool", "ps_roi_pool", "ps_roi_align")
@reads("x", "rois", "spatial_scale", "pooled_height", "pooled_width", "sampling_ratio")
def other_regions(w, call, **_):
    raise Refused("how large its windows are depends on values; use roi_align" if call.op == "roi_pool" else
                  "it has no counterpart in gpunn; use roi_align")


@operation("deform_conv2d")
@reads("use_mask")
def deform_conv(w, call, x, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, dilation_h,
                dilation_w, groups, offset_groups, use_mask):
    """torchvision's operator: the kernel's cells as points of one grid_sample, then a 1x1 convolution over
    channels and cells."""
    (n, c), (count, own, kh, kw), (rows, columns) = x.full[:2], weight.full, call.shapes[0][0][2:]
    height, width = w.known_size(x, 2), w.known_size(x, 3)
    cells, parts, each = kh * kw, product([n, offset_groups]), c // offset_groups
    offset = w.reshape(offset, (parts, cells, 2, rows, columns))

    def coordinate(axis, size, out, k, stride, padding, dilation):
        start = w.torch.arange(k)[:, None] * dilation - padding + w.torch.arange(out) * stride  # [k, out]
        start = (start[:, None, :, None] if axis == 0 else
                 start[None, :, None, :]).expand(kh, kw, rows, columns)
        moved = w.map("add", pick(w, offset, 2, axis),
                      Constant(start.float().reshape(1, cells, rows, columns)))
        return w.expr(f"(2 * x + 1) / {size} - 1", moved)

    y = coordinate(0, height, rows, kh, stride_h, pad_h, dilation_h)
    grid = stack(w, call, [coordinate(1, width, columns, kw, stride_w, pad_w, dilation_w), y], 4)
    taken = w.add("grid_sample",
                  [w.f32(w.reshape(x, (parts, each, height, width))),
                   w.reshape(grid, (parts, cells * rows, columns, 2))], (parts, each, cells * rows, columns))
    taken = w.reshape(taken, (parts, each, cells, rows, columns))
    taken = w.map("mul", taken, w.reshape(mask, (parts, 1, cells, rows, columns))) if use_mask else taken
    return conv(w, call._replace(op="conv2d"), w.reshape(taken, (n, c * cells, rows, columns)),
                w.reshape(weight, (count, own * cells, 1, 1)), bias, groups=groups)


@operation("affine_grid", "affine_grid_generator")
def affine_grid(w, call, theta, size, align_corners=False):
    return w.add("affine_grid", [w.f32(w.whole(theta))], call.shapes[0][0],
                 size=list(call.shapes[0][0][1:-1]), align_corners=align_corners or None)
