/* grid_sample, roi_align, affine_grid, gradient_energy, ncc_loss: SAMPLE_CASES for golden.c (tests/golden/sample.py), SAMPLE_GRADIENTS for
 * gradients.c. */
/* clang-format off */
#define GRID(...) gpunn_grid_sample(in("x"), in("grid"), __VA_ARGS__)
#define AFFINE(align, ...) gpunn_affine_grid(in("theta"), GPUNN_SHAPE(__VA_ARGS__), align)
#define GRID_CASES(X, axes)                                                                                          \
    X(grid_sample, axes "_zeros", gpunn_grid_sample(in("x"), in("grid")))                                            \
    X(grid_sample, axes "_zeros_align", GRID(.align_corners = true))                                                 \
    X(grid_sample, axes "_border", GRID(.padding_mode = GPUNN_GRID_BORDER))                                          \
    X(grid_sample, axes "_border_align", GRID(.padding_mode = GPUNN_GRID_BORDER, .align_corners = true))             \
    X(grid_sample, axes "_reflection", GRID(.padding_mode = GPUNN_GRID_REFLECTION))                                  \
    X(grid_sample, axes "_reflection_align", GRID(.padding_mode = GPUNN_GRID_REFLECTION, .align_corners = true))     \
    X(grid_sample, axes "_nearest_zeros", GRID(.mode = GPUNN_GRID_NEAREST))                                          \
    X(grid_sample, axes "_nearest_border", GRID(.mode = GPUNN_GRID_NEAREST, .padding_mode = GPUNN_GRID_BORDER))      \
    X(grid_sample, axes "_nearest_reflection", GRID(.mode = GPUNN_GRID_NEAREST, .padding_mode = GPUNN_GRID_REFLECTION)) \
    X(grid_sample, axes "_nearest_align", GRID(.mode = GPUNN_GRID_NEAREST, .align_corners = true))                   \
    X(grid_sample, axes "_far", GRID(.padding_mode = GPUNN_GRID_REFLECTION))                                         \
    X(grid_sample, axes "_one_cell", gpunn_grid_sample(in("x"), in("grid")))                                         \
    X(grid_sample, axes "_one_cell_border", GRID(.padding_mode = GPUNN_GRID_BORDER))                                 \
    X(grid_sample, axes "_one_point", gpunn_grid_sample(in("x"), in("grid")))                                        \
    X(grid_sample, axes "_crowd", gpunn_grid_sample(in("x"), in("grid")))                                            \
    X(grid_sample, axes "_many", GRID(.align_corners = true))                                                        \
    X(grid_sample, axes "_exact", GRID(.align_corners = true))
#define ROI(...) gpunn_roi_align(in("x"), in("boxes"), __VA_ARGS__)
#define ROI_CASES(X)                                                                                                   \
    X(roi_align, "plain", ROI(.output_size = 2))                                                                       \
    X(roi_align, "aligned", ROI(.output_size = 2, .aligned = true))                                                    \
    X(roi_align, "ratio", ROI(.output_shape = {3, 2}, .sampling_ratio = 2))                                            \
    X(roi_align, "ratio_aligned", ROI(.output_shape = {2, 5}, .sampling_ratio = 3, .aligned = true))                   \
    X(roi_align, "scale", ROI(.output_size = 3, .spatial_scale = 0.25f, .aligned = true))                              \
    X(roi_align, "many_samples", ROI(.output_shape = {2, 1}, .aligned = true))                                         \
    X(roi_align, "whole", ROI(.output_size = 5, .sampling_ratio = 1, .aligned = true))                                 \
    X(roi_align, "one_cell", ROI(.output_size = 2))                                                                    \
    X(roi_align, "row", ROI(.output_shape = {1, 4}, .sampling_ratio = 2))                                              \
    X(roi_align, "crowd", ROI(.output_size = 2, .sampling_ratio = 2, .aligned = true))                                 \
    X(roi_align, "twice", ROI(.output_size = 3))                                                                       \
    X(roi_align, "many", ROI(.output_shape = {7, 5}, .sampling_ratio = 2, .aligned = true))                            \
    X(roi_align, "odd", ROI(.output_size = 3))                                                                         \
    X(roi_align, "odd_aligned", ROI(.output_size = 3, .aligned = true))                                                \
    X(roi_align, "odd_ratio", ROI(.output_shape = {2, 3}, .sampling_ratio = 2, .aligned = true))
#define NCC(...) gpunn_ncc_loss(in("input"), in("target"), __VA_ARGS__)
#define ENERGY(...) gpunn_gradient_energy(in("x"), __VA_ARGS__)
#define ENERGY_CASES(X)                                      \
    X(gradient_energy, "field", ENERGY(GPUNN_AXES(1, 2, 3))) \
    X(gradient_energy, "image", ENERGY(GPUNN_AXES(-1, -2)))  \
    X(gradient_energy, "all", ENERGY(GPUNN_ALL))             \
    X(gradient_energy, "first", ENERGY(GPUNN_AXES(0)))       \
    X(gradient_energy, "last", ENERGY(GPUNN_AXES(1)))        \
    X(gradient_energy, "pair", ENERGY(GPUNN_ALL))            \
    X(gradient_energy, "one", ENERGY(GPUNN_AXES(1, 2)))      \
    X(gradient_energy, "middle", ENERGY(GPUNN_AXES(2)))      \
    X(gradient_energy, "long", ENERGY(GPUNN_AXES(1)))        \
    X(gradient_energy, "rows", ENERGY(GPUNN_AXES(1)))
#define SAMPLE_CASES(X)                                               \
    GRID_CASES(X, "2d")                                               \
    GRID_CASES(X, "3d")                                               \
    X(grid_sample, "3d_special", gpunn_grid_sample(in("x"), in("grid"))) \
    X(affine_grid, "2d", AFFINE(false, 3, 5))                         \
    X(affine_grid, "2d_align", AFFINE(true, 4, 7))                    \
    X(affine_grid, "2d_one", AFFINE(false, 1, 1))                     \
    X(affine_grid, "2d_line", AFFINE(true, 1, 9))                     \
    X(affine_grid, "2d_many", AFFINE(false, 37, 41))                  \
    X(affine_grid, "2d_identity", AFFINE(true, 4, 8))                 \
    X(affine_grid, "3d", AFFINE(false, 3, 4, 5))                      \
    X(affine_grid, "3d_align", AFFINE(true, 2, 5, 3))                 \
    X(affine_grid, "3d_slice", AFFINE(false, 1, 3, 6))                \
    X(affine_grid, "3d_many", AFFINE(true, 11, 5, 13)) \
    ENERGY_CASES(X)                                                   \
    ROI_CASES(X)                                                      \
    X(ncc_loss, "volume", gpunn_ncc_loss(in("input"), in("target")))  \
    X(ncc_loss, "channels", gpunn_ncc_loss(in("input"), in("target"))) \
    X(ncc_loss, "line", NCC(.eps = 0.1f))                             \
    X(ncc_loss, "local_volume", NCC(.window = 3))                     \
    X(ncc_loss, "local_image", NCC(.window = 5))                      \
    X(ncc_loss, "local_line", NCC(.window = 9, .eps = 0.1f))          \
    X(ncc_loss, "local_large", NCC(.window = 7))

/* grid: a grid input of that shape for images (or volumes) of `cells` cells along each axis */
#define SAMPLE_GRADIENTS(X)                                                                                                 \
    X(grid_sample, XS(3, 2, 5, 5), gpunn_grid_sample(x, grid(in, 5, false, GPUNN_SHAPE(3, 2, 4, 2))))                       \
    X(grid_sample_border, XS(3, 2, 4, 4), gpunn_grid_sample(x, grid(in, 4, true, GPUNN_SHAPE(3, 3, 2, 2)),                  \
      .padding_mode = GPUNN_GRID_BORDER, .align_corners = true))                                                            \
    X(grid_sample_reflection, XS(3, 1, 4, 4), gpunn_grid_sample(x, grid(in, 4, false, GPUNN_SHAPE(3, 3, 2, 2)),             \
      .padding_mode = GPUNN_GRID_REFLECTION))                                                                               \
    X(grid_sample_nearest, XS(3, 2, 4, 4), gpunn_grid_sample(x, grid(in, 4, false, GPUNN_SHAPE(3, 3, 2, 2)),                \
      .mode = GPUNN_GRID_NEAREST))                                                                                          \
    X(grid_sample_volume, XS(3, 2, 3, 3, 3), gpunn_grid_sample(x, grid(in, 3, false, GPUNN_SHAPE(3, 2, 2, 3, 3))))          \
    X(grid_sample_volume_border, XS(3, 1, 4, 4, 4), gpunn_grid_sample(x, grid(in, 4, true, GPUNN_SHAPE(3, 2, 2, 2, 3)),     \
      .padding_mode = GPUNN_GRID_BORDER, .align_corners = true))                                                            \
    X(grid_sample_twice, XS(3, 1, 3, 3, 3), grid(in, 3, false, GPUNN_SHAPE(3, 3, 3, 3, 3)),                                 \
      gpunn_add(gpunn_grid_sample(x, in->x[1]), gpunn_mul(x, gpunn_grid_sample(x, in->x[1]))))                              \
    X(roi_align, XS(3, 2, 5, 6), gpunn_roi_align(x, boxes(in, 5, 6), .output_shape = {3, 2}))                               \
    X(roi_align_aligned, XS(3, 2, 5, 6), gpunn_mul(gpunn_sum(x, GPUNN_ALL, false),                                          \
      gpunn_roi_align(x, boxes(in, 5, 6), .output_size = 2, .sampling_ratio = 2, .spatial_scale = 0.5f, .aligned = true)))  \
    X(affine_grid, XS(3, 2, 3), gpunn_affine_grid(x, GPUNN_SHAPE(3, 4), false))                                             \
    X(affine_grid_volume, XS(3, 3, 4), gpunn_affine_grid(x, GPUNN_SHAPE(2, 3, 4), true)) \
    X(gradient_energy, XS(3, 4, 3, 2), gpunn_gradient_energy(x, GPUNN_AXES(1, 2)))                                          \
    X(gradient_energy_square, XS(3, 7), gpunn_square(gpunn_gradient_energy(x, GPUNN_ALL))) \
    X(ncc_loss, XS(3, 1, 4, 5), gpunn_ncc_loss(x, in->x[1] = B("t", 3, 1, 4, 5)))                                           \
    X(ncc_loss_local, XS(3, 1, 4, 5), gpunn_ncc_loss(x, in->x[1] = B("t", 3, 1, 4, 5), .window = 3, .eps = 0.1f))
/* clang-format on */
