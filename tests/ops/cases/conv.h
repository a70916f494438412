/* The builders of tests/golden/conv.py's cases, and of central differences. */

/* A layer used twice, and one whose weight is computed. */
static inline gpunn_tensor *conv_again(gpunn_model *m, gpunn_tensor *x)
{
    gpunn_tensor *h = gpunn_tanh(gpunn_conv2d(x, "l", .out_channels = 3, .kernel_size = 3, .padding = 1));
    h = gpunn_conv2d(h, "again", .out_channels = 3, .kernel_size = 3, .weight = gpunn_find(m, "l.weight"),
                     .bias = gpunn_find(m, "l.bias"));
    return gpunn_conv_transpose2d(h, "up", .out_channels = 3, .kernel_size = 3, .no_bias = true,
                                  .weight = gpunn_tanh(gpunn_find(m, "l.weight")));
}

/* clang-format off */
#define CONV1D(...) gpunn_conv1d(in("x"), "l", __VA_ARGS__)
#define CONV2D(...) gpunn_conv2d(in("x"), "l", __VA_ARGS__)
#define CONV3D(...) gpunn_conv3d(in("x"), "l", __VA_ARGS__)
#define UP1D(...) gpunn_conv_transpose1d(in("x"), "l", __VA_ARGS__)
#define UP2D(...) gpunn_conv_transpose2d(in("x"), "l", __VA_ARGS__)
#define UP3D(...) gpunn_conv_transpose3d(in("x"), "l", __VA_ARGS__)

#define CONV_CASES(X)                                                                                                            \
    X(conv1d, "plain", CONV1D(.out_channels = 4, .kernel_size = 3))                                                              \
    X(conv1d, "one", CONV1D(.out_channels = 1, .kernel_size = 1))                                                                \
    X(conv1d, "pointwise", CONV1D(.out_channels = 6, .kernel_size = 1))                                                          \
    X(conv1d, "strided", CONV1D(.out_channels = 6, .kernel_size = 5, .stride = 3, .padding = 2))                                 \
    X(conv1d, "dilated", CONV1D(.out_channels = 5, .kernel_size = 3, .padding = 4, .dilation = 4))                               \
    X(conv1d, "groups", CONV1D(.out_channels = 4, .kernel_size = 3, .padding = 1, .groups = 2))                                  \
    X(conv1d, "depthwise", CONV1D(.out_channels = 5, .kernel_size = 7, .padding = 3, .groups = 5))                               \
    X(conv1d, "no_bias", CONV1D(.out_channels = 4, .kernel_size = 4, .stride = 2, .padding = 1, .no_bias = true))                \
    X(conv1d, "wide", CONV1D(.out_channels = 37, .kernel_size = 3, .padding = 1))                                                \
    X(conv1d, "whole", CONV1D(.out_channels = 7, .kernel_size = 6))                                                              \
    X(conv3d, "plain", CONV3D(.out_channels = 3, .kernel_size = 3))                                                              \
    X(conv3d, "one", CONV3D(.out_channels = 1, .kernel_size = 1))                                                                \
    X(conv3d, "pointwise", CONV3D(.out_channels = 6, .kernel_size = 1))                                                          \
    X(conv3d, "same", CONV3D(.out_channels = 4, .kernel_size = 3, .padding = 1))                                                 \
    X(conv3d, "strided", CONV3D(.out_channels = 3, .kernel_size = 3, .stride = 2, .padding = 1))                                 \
    X(conv3d, "settings",                                                                                                        \
      CONV3D(.out_channels = 3, .kernel_shape = {2, 3, 4}, .strides = {1, 2, 3}, .paddings = {1, 0, 2}, .dilations = {2, 1, 1})) \
    X(conv3d, "groups", CONV3D(.out_channels = 6, .kernel_size = 3, .padding = 1, .groups = 2))                                  \
    X(conv3d, "depthwise", CONV3D(.out_channels = 3, .kernel_size = 3, .padding = 1, .groups = 3))                               \
    X(conv3d, "no_bias", CONV3D(.out_channels = 3, .kernel_size = 2, .no_bias = true))                                           \
    X(conv3d, "wide", CONV3D(.out_channels = 17, .kernel_size = 3, .padding = 1))                                                \
    X(conv3d, "deep", CONV3D(.out_channels = 4, .kernel_shape = {5, 1, 1}, .paddings = {2, 0, 0}))                               \
    X(conv3d, "flat", CONV3D(.out_channels = 4, .kernel_shape = {1, 3, 3}, .paddings = {0, 1, 1}))                              \
    X(conv1d, "uneven", CONV1D(.out_channels = 4, .kernel_size = 4, .stride = 2, .padding = 2, .padding_end = 1))                \
    X(conv2d, "uneven",                                                                                                          \
      CONV2D(.out_channels = 4, .kernel_shape = {3, 2}, .paddings = {2}, .paddings_end = {GPUNN_ZERO, 1}))                       \
    X(conv2d, "uneven_end", CONV2D(.out_channels = 4, .kernel_size = 3, .stride = 2, .groups = 2, .padding_end = 1))             \
    X(conv3d, "uneven", CONV3D(.out_channels = 4, .kernel_shape = {2, 2, 3}, .paddings = {1, 0, 2}, .dilations = {1, 2, 1},      \
      .paddings_end = {GPUNN_ZERO, 1, GPUNN_ZERO}))                                                                              \
    X(conv2d, "same_even", CONV2D(.out_channels = 4, .kernel_shape = {4, 2}, .paddings = {1, 1}, .dilations = {1, 3},            \
      .paddings_end = {2, 2}))                                                                                                   \
    X(conv_transpose1d, "plain", UP1D(.out_channels = 4, .kernel_size = 3))                                                      \
    X(conv_transpose1d, "one", UP1D(.out_channels = 1, .kernel_size = 1))                                                        \
    X(conv_transpose1d, "up", UP1D(.out_channels = 3, .kernel_size = 4, .stride = 2, .padding = 1))                              \
    X(conv_transpose1d, "output_padding",                                                                                        \
      UP1D(.out_channels = 5, .kernel_size = 3, .stride = 3, .padding = 1, .output_padding = 2))                                 \
    X(conv_transpose1d, "dilated",                                                                                               \
      UP1D(.out_channels = 4, .kernel_size = 3, .stride = 2, .padding = 2, .dilation = 3, .output_padding = 2))                  \
    X(conv_transpose1d, "groups",                                                                                                \
      UP1D(.out_channels = 4, .kernel_size = 3, .stride = 2, .padding = 1, .groups = 2, .output_padding = 1, .no_bias = true))   \
    X(conv_transpose1d, "depthwise", UP1D(.out_channels = 4, .kernel_size = 5, .padding = 2, .groups = 4))                       \
    X(conv_transpose1d, "wide", UP1D(.out_channels = 10, .kernel_size = 3, .stride = 2, .padding = 1, .output_padding = 1))      \
    X(conv_transpose2d, "plain", UP2D(.out_channels = 4, .kernel_size = 3))                                                      \
    X(conv_transpose2d, "one", UP2D(.out_channels = 1, .kernel_size = 1))                                                        \
    X(conv_transpose2d, "pointwise", UP2D(.out_channels = 6, .kernel_size = 1))                                                  \
    X(conv_transpose2d, "up", UP2D(.out_channels = 3, .kernel_size = 2, .stride = 2))                                            \
    X(conv_transpose2d, "generator", UP2D(.out_channels = 4, .kernel_size = 4, .stride = 2, .padding = 1, .no_bias = true))      \
    X(conv_transpose2d, "output_padding",                                                                                        \
      UP2D(.out_channels = 4, .kernel_size = 3, .stride = 2, .padding = 1, .output_padding = 1))                                 \
    X(conv_transpose2d, "settings",                                                                                              \
      UP2D(.out_channels = 3, .kernel_shape = {2, 4}, .strides = {3, 2}, .paddings = {0, 1}, .dilations = {1, 2},                \
           .output_paddings = {2, 1}))                                                                                           \
    X(conv_transpose2d, "gap", UP2D(.out_channels = 3, .kernel_size = 2, .stride = 3))                                           \
    X(conv_transpose2d, "groups",                                                                                                \
      UP2D(.out_channels = 4, .kernel_size = 3, .stride = 2, .padding = 1, .groups = 2, .output_padding = 1))                    \
    X(conv_transpose2d, "depthwise", UP2D(.out_channels = 5, .kernel_size = 3, .padding = 1, .groups = 5))                       \
    X(conv_transpose2d, "padded", UP2D(.out_channels = 4, .kernel_size = 3, .padding = 2))                                       \
    X(conv_transpose2d, "cut", UP2D(.out_channels = 4, .kernel_size = 3, .padding = 3))                                          \
    X(conv_transpose2d, "wide", UP2D(.out_channels = 17, .kernel_size = 3, .stride = 2, .padding = 1, .output_padding = 1))      \
    X(conv_transpose2d, "winograd", UP2D(.out_channels = 16, .kernel_size = 3, .padding = 1))                                    \
    X(conv_transpose3d, "plain", UP3D(.out_channels = 3, .kernel_size = 3))                                                      \
    X(conv_transpose3d, "one", UP3D(.out_channels = 1, .kernel_size = 1))                                                        \
    X(conv_transpose3d, "up", UP3D(.out_channels = 3, .kernel_size = 2, .stride = 2))                                            \
    X(conv_transpose3d, "settings",                                                                                              \
      UP3D(.out_channels = 3, .kernel_shape = {2, 3, 4}, .strides = {3, 1, 2}, .paddings = {1, 0, 1}, .dilations = {1, 2, 1},    \
           .output_paddings = {2, 1, 1}))                                                                                        \
    X(conv_transpose3d, "groups",                                                                                                \
      UP3D(.out_channels = 6, .kernel_size = 3, .stride = 2, .padding = 1, .groups = 2, .output_padding = 1, .no_bias = true))   \
    X(conv_transpose3d, "depthwise", UP3D(.out_channels = 3, .kernel_size = 3, .padding = 1, .groups = 3))                       \
    X(conv_transpose3d, "wide", UP3D(.out_channels = 10, .kernel_size = 3, .stride = 2, .padding = 1, .output_padding = 1))

#define CONV_GRADIENTS(X)                                                                                                        \
    X(conv2d_again, XS(3, 3, 4, 5), conv_again(in->f->model, x))                                                                 \
    X(conv1d, XS(3, 4, 9), gpunn_conv1d(x, "l", .out_channels = 6, .kernel_size = 3, .stride = 2, .padding = 1, .groups = 2))    \
    X(conv3d, XS(3, 2, 4, 3, 5),                                                                                                 \
      gpunn_conv3d(x, "l", .out_channels = 3, .kernel_shape = {3, 2, 3}, .strides = {1, 1, 2}, .paddings = {1, 0, 1}))           \
    X(conv3d_wide, XS(3, 9, 2, 3, 3), gpunn_conv3d(x, "l", .out_channels = 17, .kernel_size = 3, .padding = 1))                  \
    X(conv2d_uneven, XS(3, 2, 4, 5), gpunn_conv2d(x, "l", .out_channels = 3, .kernel_size = 2, .padding_end = 1))                \
    X(conv_transpose1d, XS(3, 4, 5),                                                                                             \
      gpunn_conv_transpose1d(x, "l", .out_channels = 6, .kernel_size = 3, .stride = 2, .padding = 1, .output_padding = 1,        \
                             .groups = 2))                                                                                       \
    X(conv_transpose2d, XS(3, 3, 3, 4),                                                                                          \
      gpunn_conv_transpose2d(x, "l", .out_channels = 4, .kernel_size = 3, .stride = 2, .dilations = {1, 2}, .padding = 1,        \
                             .output_padding = 1))                                                                               \
    X(conv_transpose2d_no_bias, XS(3, 9, 4, 4),                                                                                  \
      gpunn_conv_transpose2d(x, "l", .out_channels = 17, .kernel_size = 2, .stride = 2, .no_bias = true))                        \
    X(conv_transpose3d, XS(3, 2, 2, 3, 3),                                                                                       \
      gpunn_conv_transpose3d(x, "l", .out_channels = 3, .kernel_size = 3, .stride = 2, .padding = 1, .output_padding = 1))       \
    /* of an operand that another reads too: the second gradient is added */                                                     \
    X(conv3d_shared, XS(3, 2, 3, 3, 4),                                                                                          \
      gpunn_add(gpunn_conv3d(x, "a", .out_channels = 3, .kernel_size = 2),                                                       \
                gpunn_conv3d(x, "b", .out_channels = 3, .kernel_size = 2)))                                                      \
    X(conv_transpose1d_shared, XS(3, 3, 5),                                                                                      \
      gpunn_add(gpunn_conv_transpose1d(x, "a", .out_channels = 4, .kernel_size = 1),                                             \
                gpunn_conv_transpose1d(x, "b", .out_channels = 4, .kernel_size = 3, .padding = 1)))                              \
    X(conv_transpose2d_shared, XS(3, 9, 4, 4),                                                                                   \
      gpunn_add(gpunn_conv_transpose2d(x, "a", .out_channels = 17, .kernel_size = 2, .stride = 2),                               \
                gpunn_conv_transpose2d(x, "b", .out_channels = 17, .kernel_size = 2, .stride = 2)))                              \
    X(conv_transpose2d_shared_wide, XS(3, 16, 8, 8),                                                                             \
      gpunn_add(gpunn_conv_transpose2d(x, "a", .out_channels = 16, .kernel_size = 3, .padding = 1),                              \
                gpunn_conv_transpose2d(x, "b", .out_channels = 16, .kernel_size = 3, .padding = 1)))
