/* Values and gradients of every op, layer and loss against PyTorch's (tests/golden), in training and in
 * evaluation mode.
 *
 * GPUNN_TEST_ALLOCATIONS=k: the same while memory fails. In the first run of a case one of its first k
 * allocations fails, then the k-th after that and so on until a run needs no more; then all from there on
 * fail; on the emulated GPU then the GPU's own. The call that fails says so and is made again, nothing leaks,
 * and the case's values must be as ever. */
#include "../test.h"
#include "cases/attention.h"
#include "cases/sample.h"
#include "cases/pool.h"
#include "cases/resize.h"
#include "cases/criteria.h"
#include "cases/encodings.h"

static gpunn_model *model; /* of the case being built */

static gpunn_tensor *in(const char *name)
{
    gpunn_tensor *t = gpunn_find(model, name);
    if (t == NULL) fail_msg("the golden case has no input %s", name);
    return t;
}
static gpunn_tensor *concat2(gpunn_tensor *a, gpunn_tensor *b, int axis)
{
    gpunn_tensor *tensors[] = {a, b};
    return gpunn_concat(tensors, 2, axis);
}
static gpunn_tensor *concat3(gpunn_tensor *a, gpunn_tensor *b, gpunn_tensor *c, int axis)
{
    gpunn_tensor *tensors[] = {a, b, c};
    return gpunn_concat(tensors, 3, axis);
}
/* The second of the two results. */
typedef gpunn_tensor *(*extreme_fn)(gpunn_tensor *x, int axis, bool keepdim, gpunn_tensor **indices);
typedef gpunn_tensor *(*running_fn)(gpunn_tensor *x, int axis, gpunn_tensor **indices);
static gpunn_tensor *places_of_extreme(extreme_fn fn, gpunn_tensor *x, int axis, bool keepdim)
{
    gpunn_tensor *places = NULL;
    return fn(x, axis, keepdim, &places) ? places : NULL;
}
static gpunn_tensor *places_of_running(running_fn fn, gpunn_tensor *x, int axis)
{
    gpunn_tensor *places = NULL;
    return fn(x, axis, &places) ? places : NULL;
}
static gpunn_tensor *second_chunk(gpunn_tensor *x, int chunks, int axis)
{
    gpunn_tensor *parts[2];
    return gpunn_chunk(x, chunks, axis, parts, 2) == 2 ? parts[1] : NULL;
}
/* ((a * 31 + b) mod 1000003 / 7 - b).abs() */
static gpunn_tensor *hashed(gpunn_tensor *a, gpunn_tensor *b)
{
    gpunn_tensor *h = gpunn_add(gpunn_integer_scalar(GPUNN_INTEGER_MUL, a, 31), b);
    h = gpunn_integer_scalar(GPUNN_INTEGER_REMAINDER, h, 1000003);
    return gpunn_abs(gpunn_sub(gpunn_integer_scalar(GPUNN_INTEGER_FLOOR_DIVIDE, h, 7), b));
}

#include "cases/norms.h"
#include "cases/picks.h"
#include "cases/tensors.h"

#include "cases/rnn.h"

/* clang-format off */
#include "cases/conv.h"
#define CONV(...) gpunn_conv2d(in("x"), "l", __VA_ARGS__)
#define POOL_CASES(X, kind)                                                                    \
    X(kind, "plain", gpunn_##kind(in("x"), .kernel_size = 2))                                  \
    X(kind, "odd", gpunn_##kind(in("x"), .kernel_size = 2))                                    \
    X(kind, "overlap", gpunn_##kind(in("x"), .kernel_size = 3, .stride = 2, .padding = 1))     \
    X(kind, "dense", gpunn_##kind(in("x"), .kernel_size = 3, .stride = 1, .padding = 1))       \
    X(kind, "ceil", gpunn_##kind(in("x"), .kernel_size = 3, .stride = 2, .ceil_mode = true))   \
    X(kind, "ceil_padded", gpunn_##kind(in("x"), .kernel_size = 3, .stride = 2, .padding = 1,  \
      .ceil_mode = true))                                                                      \
    X(kind, "ceil_dropped", gpunn_##kind(in("x"), .kernel_size = 2, .stride = 3, .padding = 1, \
      .ceil_mode = true))                                                                      \
    X(kind, "gap", gpunn_##kind(in("x"), .kernel_size = 2, .stride = 3))                       \
    X(kind, "rectangular", gpunn_##kind(in("x"), .kernel_shape = {2, 3}, .strides = {1, 2},    \
      .paddings = {1, 0}))                                                                     \
    X(kind, "one", gpunn_##kind(in("x"), .kernel_size = 1))                                    \
    X(kind, "whole", gpunn_##kind(in("x"), .kernel_shape = {5, 4}))
#define ROW_NORM_CASES(X, kind)                                               \
    X(kind, "plain", gpunn_##kind(in("x"), "l"))                              \
    X(kind, "one", gpunn_##kind(in("x"), "l", .eps = 0.5f))                   \
    X(kind, "rank3", gpunn_##kind(in("x"), "l"))                              \
    X(kind, "two_dims", gpunn_##kind(in("x"), "l", .dims = 2))                \
    X(kind, "image", gpunn_##kind(in("x"), "l", .dims = 3))                   \
    X(kind, "all", gpunn_##kind(in("x"), "l", .dims = 3))                     \
    X(kind, "line", gpunn_##kind(in("x"), "l"))                               \
    X(kind, "eps", gpunn_##kind(in("x"), "l", .eps = 0.1f))                   \
    X(kind, "no_affine", gpunn_##kind(in("x"), "l", .no_affine = true))       \
    X(kind, "prime", gpunn_##kind(in("x"), "l"))                              \
    X(kind, "tall", gpunn_##kind(in("x"), "l"))                               \
    X(kind, "packs", gpunn_##kind(in("x"), "l"))                              \
    X(kind, "packs_odd", gpunn_##kind(in("x"), "l"))                          \
    X(kind, "large", gpunn_##kind(in("x"), "l"))                              \
    X(kind, "large_packs", gpunn_##kind(in("x"), "l"))
#define REDUCTION_CASES(X, kind)                                             \
    X(kind, "all", gpunn_##kind(in("x"), GPUNN_ALL, false))                  \
    X(kind, "all_keep", gpunn_##kind(in("x"), GPUNN_ALL, true))              \
    X(kind, "last", gpunn_##kind(in("x"), GPUNN_AXES(-1), false))            \
    X(kind, "middle", gpunn_##kind(in("x"), GPUNN_AXES(1), false))           \
    X(kind, "first_keep", gpunn_##kind(in("x"), GPUNN_AXES(0), true))        \
    X(kind, "split", gpunn_##kind(in("x"), GPUNN_AXES(2, 0), false))         \
    X(kind, "channel", gpunn_##kind(in("x"), GPUNN_AXES(0, 2, 3), false))    \
    X(kind, "spatial_keep", gpunn_##kind(in("x"), GPUNN_AXES(-1, -2), true)) \
    X(kind, "long", gpunn_##kind(in("x"), GPUNN_AXES(1), false))
#define SOFTMAX_CASES(X, kind)                    \
    X(kind, "last", gpunn_##kind(in("x"), -1))    \
    X(kind, "middle", gpunn_##kind(in("x"), 1))   \
    X(kind, "first", gpunn_##kind(in("x"), 0))    \
    X(kind, "one", gpunn_##kind(in("x"), 1))      \
    X(kind, "long", gpunn_##kind(in("x"), 1))     \
    X(kind, "large", gpunn_##kind(in("x"), 1))    \
    X(kind, "special", gpunn_##kind(in("x"), 1))

/* X(name before the dot, name after it, builder) */
#define LAYER_CASES(X)                                                                                    \
    X(conv2d, "plain", CONV(.out_channels = 4, .kernel_size = 3))                                         \
    X(conv2d, "one", CONV(.out_channels = 1, .kernel_size = 1))                                           \
    X(conv2d, "pointwise", CONV(.out_channels = 7, .kernel_size = 1))                                     \
    X(conv2d, "pointwise_stride", CONV(.out_channels = 7, .kernel_size = 1, .stride = 2))                 \
    X(conv2d, "same5", CONV(.out_channels = 4, .kernel_size = 5, .padding = 2))                           \
    X(conv2d, "stride2", CONV(.out_channels = 6, .kernel_size = 3, .stride = 2, .padding = 1))            \
    X(conv2d, "stride3", CONV(.out_channels = 3, .kernel_size = 3, .stride = 3))                          \
    X(conv2d, "rectangular",                                                                              \
      CONV(.out_channels = 5, .kernel_shape = {3, 5}, .strides = {2, 1}, .paddings = {1, 2},              \
      .dilations = {1, 2}))                                                                               \
    X(conv2d, "dilated", CONV(.out_channels = 4, .kernel_size = 3, .padding = 2, .dilation = 2))          \
    X(conv2d, "groups", CONV(.out_channels = 4, .kernel_size = 3, .padding = 1, .groups = 2))             \
    X(conv2d, "depthwise", CONV(.out_channels = 5, .kernel_size = 3, .padding = 1, .groups = 5))          \
    X(conv2d, "depthwise_double", CONV(.out_channels = 6, .kernel_size = 3, .stride = 2, .padding = 1,    \
      .groups = 3))                                                                                       \
    X(conv2d, "no_bias", CONV(.out_channels = 4, .kernel_size = 3, .no_bias = true))                      \
    X(conv2d, "primes", CONV(.out_channels = 17, .kernel_size = 3, .padding = 1))                         \
    X(conv2d, "wide", CONV(.out_channels = 48, .kernel_size = 3, .padding = 1))                           \
    X(conv2d, "stem", CONV(.out_channels = 8, .kernel_size = 7, .stride = 2, .padding = 3))               \
    X(conv2d, "even", CONV(.out_channels = 4, .kernel_size = 4, .stride = 2, .padding = 1))               \
    X(conv2d, "whole", CONV(.out_channels = 7, .kernel_shape = {5, 6}))                                   \
    X(conv2d, "row", CONV(.out_channels = 4, .kernel_shape = {1, 7}, .paddings = {0, 3}))                 \
    X(conv2d, "column", CONV(.out_channels = 4, .kernel_shape = {7, 1}, .paddings = {3, 0}))              \
    X(conv2d, "padded_far", CONV(.out_channels = 2, .kernel_size = 2, .stride = 2, .padding = 4))         \
    X(conv2d, "one_image_channel", CONV(.out_channels = 9, .kernel_size = 5))                             \
    POOL_CASES(X, max_pool2d)                                                                             \
    X(max_pool2d, "ties", gpunn_max_pool2d(in("x"), .kernel_size = 3, .stride = 1, .padding = 1))         \
    X(max_pool2d, "special", gpunn_max_pool2d(in("x"), .kernel_size = 2))                                 \
    POOL_CASES(X, avg_pool2d)                                                                             \
    X(avg_pool2d, "overlap_exclude",                                                                      \
      gpunn_avg_pool2d(in("x"), .kernel_size = 3, .stride = 2, .padding = 1, .count_exclude_pad = true))  \
    X(avg_pool2d, "dense_exclude",                                                                        \
      gpunn_avg_pool2d(in("x"), .kernel_size = 3, .stride = 1, .padding = 1, .count_exclude_pad = true))  \
    X(avg_pool2d, "ceil_padded_exclude",                                                                  \
      gpunn_avg_pool2d(in("x"), .kernel_size = 3, .stride = 2, .padding = 1, .ceil_mode = true,           \
      .count_exclude_pad = true))                                                                         \
    X(avg_pool2d, "ceil_dropped_exclude",                                                                 \
      gpunn_avg_pool2d(in("x"), .kernel_size = 2, .stride = 3, .padding = 1, .ceil_mode = true,           \
      .count_exclude_pad = true))                                                                         \
    X(avg_pool2d, "rectangular_exclude",                                                                  \
      gpunn_avg_pool2d(in("x"), .kernel_shape = {2, 3}, .strides = {1, 2}, .paddings = {1, 0},            \
      .count_exclude_pad = true))                                                                         \
    X(adaptive_avg_pool2d, "plain", gpunn_adaptive_avg_pool2d(in("x"), 3, 4))                             \
    X(adaptive_avg_pool2d, "global", gpunn_adaptive_avg_pool2d(in("x"), 1, 1))                            \
    X(adaptive_avg_pool2d, "same", gpunn_adaptive_avg_pool2d(in("x"), 3, 4))                              \
    X(adaptive_avg_pool2d, "enlarge", gpunn_adaptive_avg_pool2d(in("x"), 5, 4))                           \
    X(adaptive_avg_pool2d, "even", gpunn_adaptive_avg_pool2d(in("x"), 4, 3))                              \
    X(batch_norm, "2d", gpunn_batch_norm2d(in("x"), "l"))                                                 \
    X(batch_norm, "2d_options", gpunn_batch_norm2d(in("x"), "l", .eps = 1e-3f, .momentum = 0.3f))         \
    X(batch_norm, "2d_no_affine", gpunn_batch_norm2d(in("x"), "l", .no_affine = true))                    \
    X(batch_norm, "2d_one_image", gpunn_batch_norm2d(in("x"), "l"))                                       \
    X(batch_norm, "2d_wide", gpunn_batch_norm2d(in("x"), "l"))                                            \
    X(batch_norm, "1d", gpunn_batch_norm1d(in("x"), "l"))                                                 \
    X(batch_norm, "1d_length", gpunn_batch_norm1d(in("x"), "l"))                                          \
    X(batch_norm, "1d_pair", gpunn_batch_norm1d(in("x"), "l"))                                            \
    ROW_NORM_CASES(X, layer_norm)                                                                         \
    X(layer_norm, "no_bias", gpunn_layer_norm(in("x"), "l", .no_bias = true))                             \
    X(layer_norm, "special", gpunn_layer_norm(in("x"), "l", .no_affine = true))                           \
    X(rms_norm, "special", gpunn_rms_norm(in("x"), "l", .eps = 1e-3f, .no_affine = true))                 \
    ROW_NORM_CASES(X, rms_norm)                                                                           \
    X(linear, "plain", gpunn_linear(in("x"), "l", .out_features = 4))                                     \
    X(linear, "one", gpunn_linear(in("x"), "l", .out_features = 1))                                       \
    X(linear, "rank3", gpunn_linear(in("x"), "l", .out_features = 4))                                     \
    X(linear, "rank4", gpunn_linear(in("x"), "l", .out_features = 7))                                     \
    X(linear, "no_bias", gpunn_linear(in("x"), "l", .out_features = 6, .no_bias = true))                  \
    X(linear, "one_out", gpunn_linear(in("x"), "l", .out_features = 1))                                   \
    X(linear, "primes", gpunn_linear(in("x"), "l", .out_features = 61))                                   \
    X(linear, "tall", gpunn_linear(in("x"), "l", .out_features = 5))                                      \
    X(matmul, "plain", gpunn_matmul(in("a"), in("b")))                                                    \
    X(matmul, "one", gpunn_matmul(in("a"), in("b")))                                                      \
    X(matmul, "batched", gpunn_matmul(in("a"), in("b")))                                                  \
    X(matmul, "broadcast", gpunn_matmul(in("a"), in("b")))                                                \
    X(matmul, "matrix_right", gpunn_matmul(in("a"), in("b")))                                             \
    X(matmul, "matrix_left", gpunn_matmul(in("a"), in("b")))                                              \
    X(matmul, "transpose_a", gpunn_matmul(in("a"), in("b"), .transpose_a = true))                         \
    X(matmul, "transpose_b", gpunn_matmul(in("a"), in("b"), .transpose_b = true))                         \
    X(matmul, "transpose_both", gpunn_matmul(in("a"), in("b"), .transpose_a = true, .transpose_b = true)) \
    X(matmul, "transpose_broadcast", gpunn_matmul(in("a"), in("b"), .transpose_a = true,                  \
      .transpose_b = true))                                                                               \
    X(matmul, "primes", gpunn_matmul(in("a"), in("b")))

#define SHAPE_CASES(X)                                                                           \
    REDUCTION_CASES(X, sum)                                                                      \
    REDUCTION_CASES(X, mean)                                                                     \
    REDUCTION_CASES(X, max)                                                                      \
    X(max, "special", gpunn_max(in("x"), GPUNN_AXES(1), false))                                  \
    X(argmax, "last", gpunn_argmax(in("x"), -1, false))                                          \
    X(argmax, "first", gpunn_argmax(in("x"), 0, false))                                          \
    X(argmax, "middle_keep", gpunn_argmax(in("x"), 1, true))                                     \
    X(argmax, "special", gpunn_argmax(in("x"), 1, false))                                        \
    SOFTMAX_CASES(X, softmax)                                                                    \
    SOFTMAX_CASES(X, log_softmax)                                                                \
    X(reshape, "split", gpunn_reshape(in("x"), GPUNN_SHAPE(GPUNN_BATCH, 5, 3)))                  \
    X(reshape, "merge", gpunn_reshape(in("x"), GPUNN_SHAPE(GPUNN_BATCH * 3, 5)))                 \
    X(flatten, "plain", gpunn_flatten(in("x")))                                                  \
    X(permute, "last", gpunn_permute(in("x"), GPUNN_AXES(0, 2, 1)))                              \
    X(permute, "first", gpunn_permute(in("x"), GPUNN_AXES(1, 2, 0)))                             \
    X(permute, "nhwc", gpunn_permute(in("x"), GPUNN_AXES(0, 2, 3, 1)))                           \
    X(permute, "reverse", gpunn_permute(in("x"), GPUNN_AXES(3, 2, 1, 0)))                        \
    X(permute, "large", gpunn_permute(in("x"), GPUNN_AXES(1, 0)))                                \
    X(concat, "columns", concat3(in("a"), in("b"), in("c"), 1))                                  \
    X(concat, "last", concat2(in("a"), in("b"), -1))                                             \
    X(concat, "first", concat2(in("a"), in("b"), 0))                                             \
    X(concat, "twice", concat2(in("a"), in("a"), 1))                                             \
    X(slice, "middle", gpunn_slice(in("x"), 1, 1, 3, 1))                                         \
    X(slice, "step", gpunn_slice(in("x"), 2, 0, 5, 2))                                           \
    X(slice, "negative", gpunn_slice(in("x"), 2, -3, -1, 1))                                     \
    X(slice, "to_end", gpunn_slice(in("x"), -1, 3, GPUNN_END_OF_AXIS, 1))                        \
    X(pad, "value", gpunn_pad(in("x"), .before = {0, 0, 1}, .after = {0, 3, 2}, .value = 1.5f))  \
    X(pad, "image", gpunn_pad(in("x"), .before = {0, 0, 1, 2}, .after = {0, 0, 0, 1}))           \
    X(cast, "i64", gpunn_cast(in("x"), GPUNN_I64))                                               \
    X(cast, "u8", gpunn_cast(in("x"), GPUNN_U8))                                                 \
    X(cast, "bool", gpunn_cast(in("x"), GPUNN_BOOL))                                             \
    X(cast, "i32_f32", gpunn_cast(in("x"), GPUNN_F32))                                           \
    X(cast, "i64_f32", gpunn_cast(in("x"), GPUNN_F32))

/* X(name, reduction's name, builder) for each reduction */
#define EACH_REDUCTION(X, name, builder, ...)                                    \
    X(name, "mean", builder(__VA_ARGS__))                                        \
    X(name, "sum", builder(__VA_ARGS__, .reduction = GPUNN_REDUCE_SUM))          \
    X(name, "none", builder(__VA_ARGS__, .reduction = GPUNN_REDUCE_NONE))
#define XT in("x"), in("t")
#define CLASS_CASES(X, name, builder)                                                         \
    EACH_REDUCTION(X, name, builder, XT)                                                      \
    EACH_REDUCTION(X, name##_ignore, builder, XT)                                             \
    EACH_REDUCTION(X, name##_ignore_zero, builder, XT, .ignore_index = GPUNN_ZERO)            \
    EACH_REDUCTION(X, name##_weight, builder, XT, .weight = in("w"))                          \
    EACH_REDUCTION(X, name##_weight_ignore, builder, XT, .weight = in("w"))                   \
    EACH_REDUCTION(X, name##_image, builder, XT, .ignore_index = 7)                           \
    EACH_REDUCTION(X, name##_image_weight, builder, XT, .ignore_index = 7, .weight = in("w")) \
    EACH_REDUCTION(X, name##_large, builder, XT)                                              \
    EACH_REDUCTION(X, name##_one, builder, XT)                                                \
    EACH_REDUCTION(X, name##_long, builder, XT)
/* Named arguments after a required one keep the order of the struct in C++ only; this is C. */
#define LOSS_CASES(X)                                                                           \
    EACH_REDUCTION(X, mse, gpunn_mse_loss, XT)                                                  \
    EACH_REDUCTION(X, l1, gpunn_l1_loss, XT)                                                    \
    EACH_REDUCTION(X, huber, gpunn_huber_loss, XT)                                              \
    EACH_REDUCTION(X, huber_delta, gpunn_huber_loss, XT, .delta = 0.5f)                         \
    EACH_REDUCTION(X, smooth_l1, gpunn_smooth_l1_loss, XT)                                      \
    EACH_REDUCTION(X, smooth_l1_beta, gpunn_smooth_l1_loss, XT, .beta = 0.25f)                  \
    EACH_REDUCTION(X, smooth_l1_zero, gpunn_smooth_l1_loss, XT, .beta = GPUNN_ZERO)             \
    EACH_REDUCTION(X, bce, gpunn_bce_loss, XT)                                                  \
    EACH_REDUCTION(X, bce_edge, gpunn_bce_loss, XT)                                             \
    EACH_REDUCTION(X, bce_weight, gpunn_bce_loss, XT, .weight = in("w"))                        \
    EACH_REDUCTION(X, bce_with_logits, gpunn_bce_with_logits, XT)                               \
    EACH_REDUCTION(X, bce_with_logits_weight, gpunn_bce_with_logits, XT, .weight = in("w"),     \
    .pos_weight = in("p"))                                                                      \
    EACH_REDUCTION(X, bce_with_logits_edge, gpunn_bce_with_logits, XT)                          \
    EACH_REDUCTION(X, kl_div, gpunn_kl_div, XT)                                                 \
    X(kl_div, "batchmean", gpunn_kl_div(in("x"), in("t"), .reduction = GPUNN_REDUCE_BATCHMEAN)) \
    EACH_REDUCTION(X, kl_div_log, gpunn_kl_div, XT, .log_target = true)                         \
    CLASS_CASES(X, cross_entropy, gpunn_cross_entropy)                                          \
    EACH_REDUCTION(X, cross_entropy_i32, gpunn_cross_entropy, XT)                               \
    EACH_REDUCTION(X, cross_entropy_u8, gpunn_cross_entropy, XT)                                \
    EACH_REDUCTION(X, cross_entropy_smooth, gpunn_cross_entropy, XT, .label_smoothing = 0.1f)   \
    EACH_REDUCTION(X, cross_entropy_smooth_all, gpunn_cross_entropy, XT, .weight = in("w"),     \
    .label_smoothing = 0.3f)                                                                    \
    EACH_REDUCTION(X, cross_entropy_image_smooth, gpunn_cross_entropy, XT, .ignore_index = 7,   \
    .label_smoothing = 0.2f)                                                                    \
    CLASS_CASES(X, nll, gpunn_nll_loss)

/* clang-format on */
/* ---- the elementwise ops come from the header's own table, so that a new op without a golden case fails
 * -- */
typedef gpunn_tensor *(*build_fn)(const float *attr);
#define X(ENUM, name, ...)                            \
    static gpunn_tensor *op_##name(const float *attr) \
    {                                                 \
        return (void)attr, gpunn_##name(in("x"));     \
    }
GPUNN_UNARY_OPS(X)
#undef X
#define X(ENUM, name, ...)                            \
    static gpunn_tensor *op_##name(const float *attr) \
    {                                                 \
        return gpunn_##name(in("x"), attr[0]);        \
    }
GPUNN_UNARY1_OPS(X)
#undef X
#define X(ENUM, name, ...)                              \
    static gpunn_tensor *op_##name(const float *attr)   \
    {                                                   \
        return gpunn_##name(in("x"), attr[0], attr[1]); \
    }
GPUNN_UNARY2_OPS(X)
#undef X
#define X(ENUM, name, ...)                                 \
    static gpunn_tensor *op_##name(const float *attr)      \
    {                                                      \
        return (void)attr, gpunn_##name(in("a"), in("b")); \
    }
GPUNN_BINARY_OPS(X)
#undef X
/* The terms of losses have no builders; formulas know them. */
static gpunn_tensor *term(const char *name, int attributes, float attr)
{
    gpunn_tensor *operands[] = {in("a"), in("b")};
    char          formula[128];
    (void)snprintf(formula, sizeof formula, attributes ? "%s(x, y, %.9g)" : "%s(x, y)", name, (double)attr);
    return gpunn_expr(formula, operands, 2);
}
#define X(ENUM, name, ...)                            \
    static gpunn_tensor *op_##name(const float *attr) \
    {                                                 \
        return (void)attr, term(#name, 0, 0);         \
    }
GPUNN_LOSS_OPS(X)
#undef X
#define X(ENUM, name, ...)                            \
    static gpunn_tensor *op_##name(const float *attr) \
    {                                                 \
        return term(#name, 1, attr[0]);               \
    }
GPUNN_LOSS1_OPS(X)
#undef X
#define X(ENUM, name, ...)                                          \
    static gpunn_tensor *op_##name(const float *attr)               \
    {                                                               \
        return (void)attr, gpunn_##name(in("c"), in("a"), in("b")); \
    }
GPUNN_TERNARY_OPS(X)
#undef X
static gpunn_tensor *op_prelu(const float *attr)
{
    const int count = (int)gpunn_tensor_shape(in("x")).dim[1];
    return gpunn_prelu(in("x"), "l", attr[0] != 0 ? 1 : count, 0);
}

static const struct {
    const char *name;
    build_fn    build;
} elementwise[] = {
#define X(ENUM, name, ...) {#name, op_##name},
    GPUNN_UNARY_OPS(X) GPUNN_UNARY1_OPS(X) GPUNN_UNARY2_OPS(X) GPUNN_BINARY_OPS(X) GPUNN_LOSS_OPS(X)
        GPUNN_LOSS1_OPS(X) GPUNN_TERNARY_OPS(X)
#undef X
};

typedef struct golden_case {
    const golden *file;
    char          name[96];
    int           index; /* in `cases`, or of an elementwise op */
    build_fn      op;
} golden_case;

/* Every other case is an expression in one switch: CASE(index) in the order of the lists above. */
static const struct {
    const char *name, *file, *text;
} cases[] = {
#define X(kind, label, ...) {#kind "." label, "layers", #__VA_ARGS__},
    LAYER_CASES(X)
#undef X
#define X(kind, label, ...) {#kind "." label, "shapes", #__VA_ARGS__},
        SHAPE_CASES(X)
#undef X
#define X(kind, label, ...) {#kind "." label, "losses", #__VA_ARGS__},
            LOSS_CASES(X)
#undef X
#define X(kind, label, ...) {#kind "." label, "attention", #__VA_ARGS__},
                ATTENTION_CASES(X)
#undef X
#define X(kind, label, ...) {#kind "." label, "sample", #__VA_ARGS__},
                    SAMPLE_CASES(X)
#undef X
#define X(kind, label, ...) {#kind "." label, "norms", #__VA_ARGS__},
                        NORMS_CASES(X)
#undef X
#define X(kind, label, ...) {#kind "." label, "picks", #__VA_ARGS__},
                            PICKS_CASES(X)
#undef X
#define X(kind, label, ...) {#kind "." label, "conv", #__VA_ARGS__},
                                CONV_CASES(X)
#undef X
#define X(kind, label, ...) {#kind "." label, "resize", #__VA_ARGS__},
                                    RESIZE_CASES(X)
#undef X
#define X(kind, label, ...) {#kind "." label, "pool", #__VA_ARGS__},
                                        POOL_FAMILY_CASES(X)
#undef X
#define X(kind, label, ...) {#kind "." label, "rnn", #__VA_ARGS__},
                                            RNN_CASES(X)
#undef X
#define X(kind, label, ...) {#kind "." label, "criteria", #__VA_ARGS__},
                                                CRITERIA_CASES(X)
#undef X
#define X(kind, label, ...) {#kind "." label, "encodings", #__VA_ARGS__},
                                                    ENCODING_CASES(X)
#undef X
#define X(kind, label, ...) {#kind "." label, "tensors", #__VA_ARGS__},
                                                        TENSORS_CASES(X)
#undef X
};
static gpunn_tensor *build_case(int index)
{
    int i = 0;
#define X(kind, label, ...) \
    if (i++ == index) return __VA_ARGS__;
    LAYER_CASES(X)
    SHAPE_CASES(X)
    LOSS_CASES(X)
    ATTENTION_CASES(X)
    SAMPLE_CASES(X)
    NORMS_CASES(X)
    PICKS_CASES(X)
    CONV_CASES(X)
    RESIZE_CASES(X)
    POOL_FAMILY_CASES(X)
    RNN_CASES(X)
    CRITERIA_CASES(X)
    ENCODING_CASES(X)
    TENSORS_CASES(X)
#undef X
    return NULL;
}

/* ---- memory that fails ---- */
extern bool     emulator_fail_allocation(long allocation, bool on) __attribute__((weak));
static bool     failing;  /* an allocation of this run is to fail; until then */
static char     what[64]; /* which, for messages */
static uint32_t seed;     /* of where each case begins */

/* Whether the call whose status this is is to be made again: memory failed it, which it has told. */
static bool again(fixture *f, gpunn_status status)
{
    if (!failing || status != GPUNN_ERR_MEMORY) return false;
    failing = false;
    f->memory.fail_at = 0;
    if (emulator_fail_allocation) (void)emulator_fail_allocation(0, false);
    check_sentence(f->dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
    return true;
}
static gpunn_status made(fixture *f, const gpunn_tensor *t)
{
    return t ? GPUNN_OK : gpunn_last_status(f->dev);
}
#define DO(call)                                              \
    do {                                                      \
        gpunn_status status_ = (call);                        \
        if (again(f, status_)) status_ = (call);              \
        check_ok(f->dev, status_, #call, __FILE__, __LINE__); \
    } while (0)
#define BUILD(t, call) DO(made(f, t = (call)))

/* Whether a case, by its text, is one call of the library. */
static bool is_one_call(const char *text)
{
    static const char *const made[] = {"gpunn_", "CONV(", "RNN("}, *const beside[] = {"gpunn_tensor",
                                                                                      "gpunn_find"};
    bool one = false;
    for (int i = 0; i < COUNT(made); i++) one |= strncmp(text, made[i], strlen(made[i])) == 0;
    for (const char *at = text + 1; one && (at = strstr(at, "gpunn_")) != NULL; at++) {
        one = false;
        for (int i = 0; i < COUNT(beside); i++) one |= strncmp(at, beside[i], strlen(beside[i])) == 0;
    }
    return one;
}

/* ---- one case ---- */
static double largest(const golden_tensor *t)
{
    double result = 0;
    for (int64_t i = 0; i < t->count; i++) {
        const double value = fabs((double)((const float *)t->data)[i]);
        if (value < 1e4 && value > result) result = value;
    }
    return result;
}

/* grad_out: the gradient fed in when t's gradient is meant; NULL: its value is */
static void check_value(fixture *f, gpunn_tensor *t, const golden_tensor *expected, const char *what,
                        const golden_tensor *grad_out)
{
    void *actual = malloc(expected->bytes + 1);
    if (grad_out)
        DO(gpunn_read_grad(t, actual, expected->bytes));
    else {
        assert_int_equal(gpunn_tensor_dtype(t), expected->dtype);
        DO(gpunn_read(t, actual, expected->bytes));
    }
    if (expected->dtype == GPUNN_F32) {
        /* Rounding of a sum of n products grows like its largest part, not like the result: the absolute
         * term. Convolutions may take Winograd's transforms, which round some three times more. What is 0 but
         * for rounding, as the gradient of a bias before a normalisation, is measured by the gradients that
         * are summed. */
        const double scale = strncmp(expected->name, "conv", 4) == 0 ? 6e-6 : 2e-6;
        const double atol = scale * largest(expected) + (grad_out ? 5e-7 * largest(grad_out) : 0) + 1e-30;
        check_close_at(actual, expected->data, expected->count, 4e-6, atol, what, __FILE__, __LINE__);
    } else if (memcmp(actual, expected->data, expected->bytes) != 0)
        fail_msg("%s: integers differ", what);
    free(actual);
}

/* false: a chain of calls in which one has failed has left the names of those before it; only a fresh model
 * can have them again. */
static bool run_values(fixture *f, const golden_case *c)
{
    const golden *g = c->file;
    const size_t  prefix = strlen(c->name) + 1;
    model = f->model;

    for (int i = 0; i < g->count; i++) { /* inputs */
        const golden_tensor *t = &g->tensors[i];
        if (strncmp(t->name, c->name, prefix - 1) != 0 || t->name[prefix - 1] != '/') continue;
        const char *role = t->name + prefix, *name = strchr(role, '.');
        gpunn_shape shape = t->shape;
        if (strncmp(role, "batch.", 6) == 0)
            shape.dim[0] = GPUNN_BATCH;
        else if (strncmp(role, "in.", 3) != 0)
            continue;
        gpunn_tensor *x;
        BUILD(x, gpunn_input(model, name + 1, t->dtype, shape));
        if (golden_find(g, "%s/grad.%s", c->name, name + 1)) DO(made(f, gpunn_retain_grad(x)));
        DO(gpunn_write(x, t->data, t->bytes));
    }
    const golden_tensor *attr = golden_find(g, "%s/attr", c->name);
    const float          single = strstr(c->name, "prelu.one") != NULL, *values = attr ? attr->data : &single;
    gpunn_tensor        *out = c->op ? c->op(values) : build_case(c->index);
    if (out == NULL && again(f, gpunn_last_status(f->dev))) {
        out = c->op ? c->op(values) : build_case(c->index);
        if (out == NULL && c->op == NULL && !is_one_call(cases[c->index].text) &&
            strstr(gpunn_error(f->dev), "taken"))
            return false;
    }
    MADE(f->dev, out);
    DO(made(f, gpunn_keep(out)));

    const golden_tensor *expected = golden_find(g, "%s/out", c->name),
                        *eval = golden_find(g, "%s/eval", c->name);
    const golden_tensor *grad_out = golden_find(g, "%s/grad_out", c->name);
    assert_non_null(expected);
    const gpunn_shape shape = gpunn_tensor_shape(out);
    assert_int_equal(shape_rank(shape), shape_rank(expected->shape));
    for (int i = 0; i < shape_rank(shape); i++)
        if (shape.dim[i] > 0) assert_int_equal(shape.dim[i], expected->shape.dim[i]);

    for (int i = 0; i < g->count; i++) { /* parameters and buffers */
        const golden_tensor *t = &g->tensors[i];
        if (strncmp(t->name, c->name, prefix - 1) != 0 || strncmp(t->name + prefix - 1, "/param.", 7) != 0)
            continue;
        gpunn_tensor *p = gpunn_find(model, t->name + prefix + 6);
        if (p == NULL) fail_msg("the layer has no %s", t->name + prefix + 6);
        for (int k = 0; k < GPUNN_MAX_RANK; k++)
            assert_int_equal(gpunn_tensor_shape(p).dim[k], t->shape.dim[k]);
        DO(gpunn_write(p, t->data, t->bytes));
    }

    if (grad_out) { /* training: the gradient of sum(out * grad_out) */
        gpunn_tensor *y = out, *w, *loss;
        if (shape.dim[0] < -1) /* several times the batch, which an input cannot have */
            BUILD(y, gpunn_reshape(out, GPUNN_SHAPE(GPUNN_BATCH, -shape.dim[0],
                                                    expected->count / expected->shape.dim[0])));
        BUILD(w, gpunn_input(model, "grad_out", GPUNN_F32, gpunn_tensor_shape(y)));
        DO(gpunn_write(w, grad_out->data, grad_out->bytes));
        BUILD(loss, gpunn_sum(gpunn_mul(y, w), GPUNN_ALL, false));
        DO(gpunn_backward(loss));
        check_value(f, out, expected, "training: out", NULL);
        for (int i = 0; i < g->count; i++) {
            const golden_tensor *t = &g->tensors[i];
            if (strncmp(t->name, c->name, prefix - 1) != 0 || t->name[prefix - 1] != '/') continue;
            const char *role = t->name + prefix;
            if (strncmp(role, "grad.", 5) == 0) check_value(f, in(role + 5), t, role, grad_out);
            if (strncmp(role, "after.", 6) == 0) check_value(f, in(role + 6), t, role, NULL);
        }
    }
    DO(gpunn_forward(&out, 1));
    check_value(f, out, eval ? eval : expected, "evaluation: out", NULL);
    return true;
}

/* Allocation after allocation fails: one, all from there on until the call is made again, one of the
 * GPU's. */
static void run_failing(fixture *f, const golden_case *c, long step)
{
    enum { ONE, ALL_ON, GPU_ONE, GPU_ALL_ON, KINDS };
    static const char *const names[KINDS] = {"allocation", "every allocation from", "the GPU's allocation",
                                             "every one of the GPU's from"};
    for (int kind = ONE; kind < (emulator_fail_allocation ? KINDS : GPU_ONE); kind++) {
        bool reached = true;
        for (long n = 1 + (c->index + (long)seed) % step; reached; n += step) {
            fixture_close(f);
            fixture_open(f);
            model = f->model;
            const long start = f->memory.calls;
            failing = true;
            f->memory.fail_at = kind < GPU_ONE ? start + n : 0;
            f->memory.fail_on = kind == ALL_ON;
            if (kind >= GPU_ONE) (void)emulator_fail_allocation(n, kind == GPU_ALL_ON);
            (void)snprintf(what, sizeof what, "%s %ld", names[kind], n);
            const bool whole = run_values(f, c);
            reached = kind < GPU_ONE ? f->memory.calls >= start + n
                                     : !failing || !emulator_fail_allocation(0, false);
            if (!whole) {
                gpunn_clear_error(f->dev);
                gpunn_model_destroy(f->model);
                model = f->model = MADE(f->dev, gpunn_model_create(f->dev));
                assert_true(run_values(f, c));
            }
        }
    }
    what[0] = 0;
}
static int teardown(void **state)
{
    if (what[0]) print_message("# when %s failed\n", what);
    if (emulator_fail_allocation) (void)emulator_fail_allocation(0, false);
    what[0] = 0;
    return fixture_teardown(state);
}

static void run_case(void **state)
{
    fixture           *f = *state;
    const golden_case *c = f->data;
    const long         step = test_setting("GPUNN_TEST_ALLOCATIONS", 0);
    model = f->model;
    failing = false;
    if (step)
        run_failing(f, c, step);
    else
        (void)run_values(f, c);
}

static int begins(const char *name, const char *op)
{
    size_t length = strlen(op);
    return strncmp(name, op, length) == 0 &&
           (name[length] == '.' || name[length] == '/' || name[length] == '_');
}

/* Every group of the golden files needs a builder here, and every builder and every op of the header's table
 * a group. */
static char missing[8192];
static void note_missing(const char *name, const char *what)
{
    const size_t used = strlen(missing);
    (void)snprintf(missing + used, sizeof missing - used, "%s %s\n", name, what);
}
static void test_complete(void **state)
{
    (void)state;
    if (missing[0]) fail_msg("%s", missing);
}

int main(void)
{
    static const char *const files[] = {"elementwise", "layers", "shapes",   "losses",    "attention",
                                        "sample",      "norms",  "picks",    "conv",      "pool",
                                        "rnn",         "resize", "criteria", "encodings", "tensors"};
    static golden            goldens[COUNT(files)];
    static golden_case       list[2048];
    static struct CMUnitTest tests[2 * COUNT(list)];
    int                      count = 0, test_count = 0;
    if (test_setting("GPUNN_TEST_ALLOCATIONS", 0) > 1) seed = test_seed();
    bool covered[COUNT(elementwise)] = {false};

    for (int i = 0; i < COUNT(files); i++) {
        char path[64];
        (void)snprintf(path, sizeof path, "tests/golden/%s.safetensors", files[i]);
        goldens[i] = golden_open(path);
        for (int k = 0; k < goldens[i].count; k++) {
            const char  *name = goldens[i].tensors[k].name, *slash = strchr(name, '/');
            golden_case *c = &list[count];
            if (strcmp(slash, "/out") != 0) continue;
            c->file = &goldens[i];
            c->op = NULL;
            (void)snprintf(c->name, sizeof c->name, "%.*s", (int)(slash - name), name);
            size_t longest = 0;
            c->index = -1;
            if (i == 0) { /* the longest op name that it begins with */
                for (int op = 0; op < COUNT(elementwise); op++) {
                    if (begins(name, elementwise[op].name) && strlen(elementwise[op].name) > longest) {
                        longest = strlen(elementwise[op].name);
                        c->index = op;
                        c->op = elementwise[op].build;
                    }
                }
                if (longest) covered[c->index] = true;
                if (begins(name, "prelu")) c->op = op_prelu;
            } else {
                for (int j = 0; j < COUNT(cases); j++)
                    if (strcmp(cases[j].file, files[i]) == 0 && strcmp(cases[j].name, c->name) == 0)
                        c->index = j;
            }
            if (c->index < 0 && c->op == NULL) {
                note_missing(c->name, "has no builder in tests/ops/golden.c");
            } else
                count++;
        }
    }
    for (int op = 0; op < COUNT(elementwise); op++) {
        if (!covered[op]) note_missing(elementwise[op].name, "has no case in tests/golden/make_golden.py");
    }
    for (int j = 0; j < COUNT(cases); j++) {
        int i = 0;
        while (i < count && !(list[i].op == NULL && list[i].index == j)) i++;
        if (i == count) note_missing(cases[j].name, "has no case in tests/golden");
    }
    for (int i = 0; i < count; i++)
        test_count += each_backend(tests + test_count, list[i].name, run_case, &list[i]);
    for (int i = 0; i < test_count; i++) tests[i].teardown_func = teardown;
    test_count += missing_backends(tests + test_count);
    const struct CMUnitTest complete = cmocka_unit_test(test_complete);
    tests[test_count++] = complete;
    int failed = _cmocka_run_group_tests("golden", tests, (size_t)test_count, NULL, NULL);
    for (int i = 0; i < COUNT(files); i++) golden_close(&goldens[i]);
    return failed;
}
