/* The cases of tests/golden/pool.py, and gradients of the same ops. */
/* clang-format off */
#define WINDOW_CASES(X, kind)                                                                                                   \
    X(kind, "plain", gpunn_##kind(in("x"), .kernel_size = 2))                                                                   \
    X(kind, "overlap", gpunn_##kind(in("x"), .kernel_size = 3, .stride = 2, .padding = 1))                                      \
    X(kind, "dense", gpunn_##kind(in("x"), .kernel_size = 3, .stride = 1, .padding = 1))                                        \
    X(kind, "ceil", gpunn_##kind(in("x"), .kernel_size = 3, .stride = 2, .ceil_mode = true))                                    \
    X(kind, "ceil_padded", gpunn_##kind(in("x"), .kernel_size = 2, .stride = 3, .padding = 1, .ceil_mode = true))               \
    X(kind, "gap", gpunn_##kind(in("x"), .kernel_size = 1, .stride = 2))                                                        \
    X(kind, "one", gpunn_##kind(in("x"), .kernel_size = 1))
#define EXCLUDE_CASES(X, kind)                                                                                                  \
    X(kind, "overlap_exclude", gpunn_##kind(in("x"), .kernel_size = 3, .stride = 2, .padding = 1, .count_exclude_pad = true))   \
    X(kind, "dense_exclude", gpunn_##kind(in("x"), .kernel_size = 3, .stride = 1, .padding = 1, .count_exclude_pad = true))     \
    X(kind, "ceil_padded_exclude",                                                                                              \
      gpunn_##kind(in("x"), .kernel_size = 2, .stride = 3, .padding = 1, .ceil_mode = true, .count_exclude_pad = true))
#define ADAPTIVE_CASES(X, kind)                                                                                                 \
    X(kind##1d, "plain", gpunn_##kind##1d(in("x"), 3))                                                                          \
    X(kind##1d, "global", gpunn_##kind##1d(in("x"), 1))                                                                         \
    X(kind##1d, "enlarge", gpunn_##kind##1d(in("x"), 6))                                                                        \
    X(kind##1d, "even", gpunn_##kind##1d(in("x"), 5))                                                                           \
    X(kind##1d, "halves", gpunn_##kind##1d(in("x"), 2))                                                                         \
    X(kind##3d, "plain", gpunn_##kind##3d(in("x"), 3, 4, 5))                                                                    \
    X(kind##3d, "global", gpunn_##kind##3d(in("x"), 1, 1, 1))                                                                   \
    X(kind##3d, "enlarge", gpunn_##kind##3d(in("x"), 6, 8, 9))                                                                \
    X(kind##3d, "even", gpunn_##kind##3d(in("x"), 5, 3, 1))                                                                     \
    X(kind##3d, "halves", gpunn_##kind##3d(in("x"), 2, 2, 2))
#define UNEVEN_CASES(X, kind, label, ...)                                                                                       \
    X(kind, "uneven" label, gpunn_##kind(in("x"), .kernel_size = 3, .stride = 2, __VA_ARGS__ .padding_end = 1))                 \
    X(kind, "uneven_start" label,                                                                                               \
      gpunn_##kind(in("x"), .kernel_size = 4, .stride = 1, .padding = 2, __VA_ARGS__ .padding_end = GPUNN_ZERO))                \
    X(kind, "uneven_ceil" label, gpunn_##kind(in("x"), .kernel_size = 3, .stride = 2, .padding = 1, .ceil_mode = true,          \
      __VA_ARGS__ .padding_end = GPUNN_ZERO))                                                                                   \
    X(kind, "uneven_dropped" label,                                                                                             \
      gpunn_##kind(in("x"), .kernel_size = 2, .stride = 3, .ceil_mode = true, __VA_ARGS__ .padding_end = 1))
#define OTHER_CASES(X, axes)                                                                                                    \
    UNEVEN_CASES(X, max_pool##axes, "", )                                                                                       \
    UNEVEN_CASES(X, avg_pool##axes, "", )                                                                                       \
    UNEVEN_CASES(X, avg_pool##axes, "_exclude", .count_exclude_pad = true, )                                                    \
    X(max_pool##axes, "dilated",                                                                                                \
      gpunn_max_pool##axes(in("x"), .kernel_size = 3, .stride = 1, .padding = 1, .dilation = 2))                                \
    X(max_pool##axes, "dilated_ceil",                                                                                           \
      gpunn_max_pool##axes(in("x"), .kernel_size = 2, .stride = 2, .ceil_mode = true, .dilation = 3))                           \
    X(max_pool##axes, "dilated_gap", gpunn_max_pool##axes(in("x"), .kernel_size = 1, .stride = 2, .dilation = 4))               \
    X(max_pool##axes, "dilated_ties", gpunn_max_pool##axes(in("x"), .kernel_size = 2, .stride = 1, .dilation = 3))              \
    X(max_pool##axes, "dilated_uneven", gpunn_max_pool##axes(in("x"), .kernel_size = 2, .stride = 3, .ceil_mode = true,         \
      .padding_end = 1, .dilation = 2))                                                                                         \
    X(lp_pool##axes, "plain", gpunn_lp_pool##axes(in("x"), .kernel_size = 3))                                                   \
    X(lp_pool##axes, "ceil", gpunn_lp_pool##axes(in("x"), .norm_type = 3, .kernel_size = 3, .stride = 2, .ceil_mode = true))    \
    X(lp_pool##axes, "sum", gpunn_lp_pool##axes(in("x"), .norm_type = 1, .kernel_size = 2, .stride = 1))
/* X(name before the dot, name after it, builder) */
#define POOL_FAMILY_CASES(X)                                                                                                    \
    OTHER_CASES(X, 1d)                                                                                                          \
    OTHER_CASES(X, 2d)                                                                                                          \
    OTHER_CASES(X, 3d)                                                                                                          \
    X(max_pool1d, "dilated_far", gpunn_max_pool1d(in("x"), .kernel_size = 66, .stride = 3, .dilation = 2))                      \
    X(max_pool2d, "dilated_line", gpunn_max_pool2d(in("x"), .kernel_shape = {1, 3}, .strides = {2, 1}, .dilations = {1, 3}))    \
    X(lp_pool2d, "oblong", gpunn_lp_pool2d(in("x"), .norm_type = 4, .kernel_shape = {2, 3}, .strides = {1, 2}))                 \
    WINDOW_CASES(X, max_pool1d)                                                                                                 \
    X(max_pool1d, "whole", gpunn_max_pool1d(in("x"), .kernel_size = 17))                                                        \
    X(max_pool1d, "ties", gpunn_max_pool1d(in("x"), .kernel_size = 3, .stride = 1))                                             \
    X(max_pool1d, "special", gpunn_max_pool1d(in("x"), .kernel_size = 2))                                                       \
    WINDOW_CASES(X, avg_pool1d)                                                                                                 \
    EXCLUDE_CASES(X, avg_pool1d)                                                                                                \
    X(avg_pool1d, "whole", gpunn_avg_pool1d(in("x"), .kernel_size = 17))                                                        \
    WINDOW_CASES(X, max_pool3d)                                                                                                 \
    X(max_pool3d, "whole", gpunn_max_pool3d(in("x"), .kernel_shape = {5, 6, 7}))                                                \
    X(max_pool3d, "ties", gpunn_max_pool3d(in("x"), .kernel_size = 3, .stride = 1))                                             \
    X(max_pool3d, "special", gpunn_max_pool3d(in("x"), .kernel_size = 2))                                                       \
    X(max_pool3d, "box", gpunn_max_pool3d(in("x"), .kernel_shape = {2, 3, 4}, .strides = {1, 2, 3}, .paddings = {1, 0, 2}))     \
    X(max_pool3d, "large", gpunn_max_pool3d(in("x"), .kernel_size = 7, .stride = 2, .padding = 2))                              \
    WINDOW_CASES(X, avg_pool3d)                                                                                                 \
    EXCLUDE_CASES(X, avg_pool3d)                                                                                                \
    X(avg_pool3d, "whole", gpunn_avg_pool3d(in("x"), .kernel_shape = {5, 6, 7}))                                                \
    X(avg_pool3d, "box", gpunn_avg_pool3d(in("x"), .kernel_shape = {2, 3, 4}, .strides = {1, 2, 3}, .paddings = {1, 0, 2}))     \
    X(avg_pool3d, "large", gpunn_avg_pool3d(in("x"), .kernel_size = 7, .stride = 2, .padding = 2))                              \
    ADAPTIVE_CASES(X, adaptive_avg_pool)                                                                                        \
    ADAPTIVE_CASES(X, adaptive_max_pool)                                                                                        \
    X(adaptive_max_pool1d, "ties", gpunn_adaptive_max_pool1d(in("x"), 2))                                                       \
    X(adaptive_max_pool1d, "global_ties", gpunn_adaptive_max_pool1d(in("x"), 1))                                                \
    X(adaptive_max_pool1d, "special", gpunn_adaptive_max_pool1d(in("x"), 1))                                                    \
    X(adaptive_max_pool2d, "plain", gpunn_adaptive_max_pool2d(in("x"), 3, 4))                                                   \
    X(adaptive_max_pool2d, "global", gpunn_adaptive_max_pool2d(in("x"), 1, 1))                                                  \
    X(adaptive_max_pool2d, "enlarge", gpunn_adaptive_max_pool2d(in("x"), 6, 8))                                                \
    X(adaptive_max_pool2d, "even", gpunn_adaptive_max_pool2d(in("x"), 5, 3))                                                    \
    X(adaptive_max_pool2d, "halves", gpunn_adaptive_max_pool2d(in("x"), 2, 2))                                                  \
    X(adaptive_max_pool2d, "ties", gpunn_adaptive_max_pool2d(in("x"), 2, 2))                                                    \
    X(adaptive_max_pool2d, "global_ties", gpunn_adaptive_max_pool2d(in("x"), 1, 1))                                             \
    X(adaptive_max_pool2d, "special", gpunn_adaptive_max_pool2d(in("x"), 1, 1))                                                 \
    X(adaptive_max_pool3d, "ties", gpunn_adaptive_max_pool3d(in("x"), 2, 2, 2))                                                 \
    X(adaptive_max_pool3d, "global_ties", gpunn_adaptive_max_pool3d(in("x"), 1, 1, 1))                                          \
    X(adaptive_max_pool3d, "special", gpunn_adaptive_max_pool3d(in("x"), 1, 1, 1))

/* X(name, first input, builder from that x) */
#define POOL_FAMILY_GRADIENTS(X)                                                                                                \
    X(max_pool1d, APART(3, 2, 9), gpunn_max_pool1d(x, .kernel_size = 3, .stride = 2, .padding = 1))                             \
    X(avg_pool1d, XS(3, 2, 9), gpunn_avg_pool1d(x, .kernel_size = 3, .stride = 2, .padding = 1))                                \
    X(max_pool3d, APART(3, 1, 4, 5, 6), gpunn_max_pool3d(x, .kernel_size = 3, .stride = 2, .padding = 1))                       \
    X(max_pool3d_large, APART(3, 1, 7, 8, 9), gpunn_max_pool3d(x, .kernel_size = 7, .stride = 1, .padding = 1))                 \
    X(avg_pool3d, XS(3, 2, 4, 5, 6), gpunn_avg_pool3d(x, .kernel_size = 2))                                                     \
    X(avg_pool3d_exclude, XS(3, 1, 5, 4, 6), gpunn_avg_pool3d(x, .kernel_size = 3, .stride = 2, .padding = 1,                   \
      .ceil_mode = true, .count_exclude_pad = true))                                                                            \
    X(adaptive_avg_pool1d, XS(3, 2, 7), gpunn_adaptive_avg_pool1d(x, 3))                                                        \
    X(adaptive_avg_pool3d, XS(3, 1, 4, 5, 6), gpunn_adaptive_avg_pool3d(x, 3, 2, 4))                                            \
    X(adaptive_max_pool1d, APART(3, 2, 7), gpunn_adaptive_max_pool1d(x, 3))                                                     \
    X(adaptive_max_pool2d, APART(3, 2, 7, 5), gpunn_adaptive_max_pool2d(x, 3, 4))                                               \
    X(adaptive_max_pool2d_global, APART(3, 2, 7, 5), gpunn_adaptive_max_pool2d(x, 1, 1))                                        \
    X(adaptive_max_pool3d, APART(3, 1, 4, 5, 6), gpunn_adaptive_max_pool3d(x, 3, 2, 4))                                         \
    X(max_pool2d_dilated, APART(3, 2, 6, 5), gpunn_max_pool2d(x, .kernel_size = 2, .stride = 1, .padding = 1, .dilation = 2))   \
    X(max_pool1d_uneven, APART(3, 2, 9), gpunn_max_pool1d(x, .kernel_size = 3, .stride = 2, .padding_end = 1))                  \
    X(avg_pool2d_uneven, XS(3, 2, 5, 4), gpunn_avg_pool2d(x, .kernel_size = 2, .padding_end = 1, .count_exclude_pad = true))    \
    X(lp_pool2d, XS(3, 2, 5, 4), gpunn_lp_pool2d(gpunn_exp(x), .norm_type = 3, .kernel_size = 2, .stride = 1))
/* clang-format on */
