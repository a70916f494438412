/* The cases of tests/golden/resize.py, and gradients of the same ops. */
/* clang-format off */
#define RESIZE(...) gpunn_interpolate(in("x"), __VA_ARGS__)
#define LINEAR .mode = GPUNN_INTERPOLATE_LINEAR
#define EXACT .mode = GPUNN_INTERPOLATE_NEAREST_EXACT
#define LINEAR_CASES(X, label, ...)                                                                                             \
    X(interpolate, "linear" label, RESIZE(.size = {12}, __VA_ARGS__))                                                           \
    X(interpolate, "linear_factor" label, RESIZE(.scale_factor = 2.6, __VA_ARGS__))                                             \
    X(interpolate, "bilinear_twice" label, RESIZE(.scale_factor = 2, __VA_ARGS__))                                              \
    X(interpolate, "bilinear" label, RESIZE(.size = {8, 11}, __VA_ARGS__))                                                      \
    X(interpolate, "bilinear_smaller" label, RESIZE(.size = {4, 5}, __VA_ARGS__))                                               \
    X(interpolate, "bilinear_factor" label, RESIZE(.scale_factors = {1.3, 0.7}, __VA_ARGS__))                                   \
    X(interpolate, "bilinear_same" label, RESIZE(.size = {5, 9}, __VA_ARGS__))                                                  \
    X(interpolate, "bilinear_one" label, RESIZE(.size = {3, 1}, __VA_ARGS__))                                                   \
    X(interpolate, "bilinear_point" label, RESIZE(.size = {9, 9}, __VA_ARGS__))                                                 \
    X(interpolate, "trilinear" label, RESIZE(.size = {5, 7, 6}, __VA_ARGS__))                                                   \
    X(interpolate, "trilinear_factor" label, RESIZE(.scale_factors = {0.6, 1.5, 2}, __VA_ARGS__))
#define CUBIC .mode = GPUNN_INTERPOLATE_CUBIC
#define CUBIC_CASES(X, label, ...)                                                                                              \
    X(interpolate, "cubic_twice" label, RESIZE(.scale_factor = 2, __VA_ARGS__))                                                 \
    X(interpolate, "cubic" label, RESIZE(.size = {11, 13}, __VA_ARGS__))                                                        \
    X(interpolate, "cubic_smaller" label, RESIZE(.size = {4, 5}, __VA_ARGS__))                                                  \
    X(interpolate, "cubic_factor" label, RESIZE(.scale_factors = {1.3, 0.7}, __VA_ARGS__))                                      \
    X(interpolate, "cubic_same" label, RESIZE(.size = {5, 9}, __VA_ARGS__))                                                     \
    X(interpolate, "cubic_narrow" label, RESIZE(.size = {3, 7}, __VA_ARGS__))                                                   \
    X(interpolate, "cubic_row" label, RESIZE(.size = {1, 1}, __VA_ARGS__))                                                      \
    X(interpolate, "cubic_point" label, RESIZE(.size = {9, 9}, __VA_ARGS__))                                                    \
    X(interpolate, "cubic_wide" label, RESIZE(.size = {2, 41}, __VA_ARGS__))                                                    \
    X(interpolate, "cubic_seen" label, RESIZE(.size = {17, 23}, __VA_ARGS__))
#define PAD_CASES(X, kind, MODE)                                                                                                \
    X(pad, kind "_line", gpunn_pad(in("x"), .before = {0, 0, 2}, .after = {0, 0, 3}, MODE))                                     \
    X(pad, kind "_image", gpunn_pad(in("x"), .before = {0, 0, 2, 1}, .after = {0, 0, 0, 3}, MODE))                              \
    X(pad, kind "_volume", gpunn_pad(in("x"), .before = {0, 0, 1, 0, 2}, .after = {0, 0, 2, 3, 1}, MODE))                       \
    X(pad, kind "_rows", gpunn_pad(in("x"), .before = {0, 0, 3}, .after = {0, 0, 2}, MODE))                                     \
    X(pad, kind "_full", gpunn_pad(in("x"), .before = {0, 0, 3, 3}, .after = {0, 0, 3, 3}, MODE))                               \
    X(pad, kind "_packs", gpunn_pad(in("x"), .before = {0, 0, 1, 8}, .after = {0, 0, 1, 8}, MODE))
/* X(name before the dot, name after it, builder) */
#define RESIZE_CASES(X)                                                                                                         \
    X(interpolate, "nearest_line", RESIZE(.size = {11}))                                                                        \
    X(interpolate, "nearest_twice", RESIZE(.scale_factor = 2))                                                                  \
    X(interpolate, "nearest_image", RESIZE(.size = {7, 9}))                                                                     \
    X(interpolate, "nearest_smaller", RESIZE(.size = {4, 3}))                                                                   \
    X(interpolate, "nearest_factor", RESIZE(.scale_factors = {1.7, 2.3}))                                                       \
    X(interpolate, "nearest_volume", RESIZE(.scale_factors = {2, 1, 2.5}))                                                      \
    X(interpolate, "nearest_thirds", RESIZE(.size = {9, 192}))                                                                  \
    X(interpolate, "exact_image", RESIZE(.size = {7, 9}, EXACT))                                                                \
    X(interpolate, "exact_smaller", RESIZE(.scale_factor = 0.4, EXACT))                                                         \
    X(interpolate, "exact_volume", RESIZE(.size = {4, 6, 5}, EXACT))                                                            \
    LINEAR_CASES(X, "", LINEAR)                                                                                                 \
    LINEAR_CASES(X, "_aligned", LINEAR, .align_corners = true)                                                                  \
    CUBIC_CASES(X, "", CUBIC)                                                                                                   \
    CUBIC_CASES(X, "_aligned", CUBIC, .align_corners = true)                                                                    \
    X(interpolate, "area_image", RESIZE(.size = {3, 8}, .mode = GPUNN_INTERPOLATE_AREA))                                        \
    X(interpolate, "area_volume", RESIZE(.scale_factor = 0.5, .mode = GPUNN_INTERPOLATE_AREA))                                  \
    PAD_CASES(X, "reflect", .mode = GPUNN_PAD_REFLECT)                                                                          \
    PAD_CASES(X, "replicate", .mode = GPUNN_PAD_REPLICATE)                                                                      \
    PAD_CASES(X, "circular", .mode = GPUNN_PAD_CIRCULAR)                                                                        \
    X(pad, "replicate_far", gpunn_pad(in("x"), .before = {0, 0, 4}, .after = {0, 0, 7}, .mode = GPUNN_PAD_REPLICATE))           \
    X(pad, "replicate_one", gpunn_pad(in("x"), .before = {0, 0, 1, 2}, .after = {0, 0, 1, 3}, .mode = GPUNN_PAD_REPLICATE))     \
    X(pad, "circular_whole", gpunn_pad(in("x"), .before = {0, 0, 3}, .after = {0, 0, 3}, .mode = GPUNN_PAD_CIRCULAR))

/* X(name, first input, builder from that x) */
#define RESIZE_GRADIENTS(X)                                                                                                     \
    X(interpolate_nearest, XS(3, 2, 5, 4), gpunn_interpolate(x, .size = {8, 3}))                                                \
    X(interpolate_exact, XS(3, 2, 7), gpunn_interpolate(x, .scale_factor = 1.6, EXACT))                                         \
    X(interpolate_linear, XS(3, 2, 6), gpunn_interpolate(x, .scale_factor = 1.7, LINEAR))                                       \
    X(interpolate_bilinear, XS(3, 2, 5, 4), gpunn_interpolate(x, .size = {9, 3}, LINEAR))                                       \
    X(interpolate_bilinear_aligned, XS(3, 2, 4, 5), gpunn_interpolate(x, .size = {7, 11}, LINEAR, .align_corners = true))       \
    X(interpolate_trilinear, XS(3, 1, 3, 4, 3), gpunn_interpolate(x, .scale_factor = 1.5, LINEAR))                              \
    X(interpolate_point, XS(3, 2, 1, 1), gpunn_interpolate(x, .size = {9, 8}, LINEAR))                                          \
    X(interpolate_twice_read, XS(3, 2, 4, 4), gpunn_mul(gpunn_interpolate(x, .scale_factor = 1, LINEAR), x))                    \
    X(pad_reflect, XS(3, 2, 4, 5), gpunn_pad(x, .before = {0, 1, 3, 2}, .after = {0, 0, 1, 4}, .mode = GPUNN_PAD_REFLECT))      \
    X(pad_replicate, XS(3, 2, 4, 5), gpunn_pad(x, .before = {0, 2, 3}, .after = {0, 0, 1, 4}, .mode = GPUNN_PAD_REPLICATE))     \
    X(interpolate_cubic, XS(3, 2, 5, 4), gpunn_interpolate(x, .size = {8, 3}, CUBIC))                                           \
    X(interpolate_cubic_aligned, XS(3, 2, 4, 5), gpunn_interpolate(x, .scale_factor = 1.5, CUBIC, .align_corners = true))       \
    X(pad_circular, XS(3, 2, 4, 5), gpunn_pad(x, .before = {0, 1, 3, 5}, .after = {0, 2, 4}, .mode = GPUNN_PAD_CIRCULAR))       \
    X(pad_twice_read, XS(3, 2, 4), gpunn_mul(gpunn_slice(gpunn_pad(x, .before = {0, 0, 1}, .mode = GPUNN_PAD_CIRCULAR), 2, 0,  \
      4, 1), x))
/* clang-format on */
