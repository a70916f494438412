/* The CPU's kernels on tensors that they share among threads. One thread and three give the same bits, of the
 * value and of all gradients. Ops that only move elements equal a plain loop. */
#include "../test.h"

/* The shape of all inputs, the size of a slice of the first axis, the number of rows of C elements. */
enum { A = 37, B = 29, C = 41, N = A * B * C, LAST = B * C, ROWS = A * B };

/* The indices: each is inside every axis, and most occur several times. */
static int64_t index_at(int64_t at)
{
    return (at * 7 + at / 11) % B;
}

/* ---- where element `at` of a result comes from: its place in x; below 0: it is 0 ---- */
static int64_t place(int64_t a, int64_t b, int64_t c)
{
    return (a * B + b) * C + c;
}
static int64_t from_rows(int64_t at)
{
    return at + 3 * LAST;
}
static int64_t from_columns(int64_t at)
{
    return place(0, at / 20, 1 + 2 * (at % 20));
}
static int64_t from_lines(int64_t at)
{
    return place(at / C / 14, 1 + 2 * (at / C % 14), at % C);
}
static int64_t from_cab(int64_t at)
{
    return place(at / B % A, at % B, at / B / A);
}
static int64_t from_acb(int64_t at)
{
    return place(at / LAST, at % B, at / B % C);
}
static int64_t from_bac(int64_t at)
{
    return place(at / C % A, at / C / A, at % C);
}
static int64_t from_cba(int64_t at)
{
    return place(at % A, at / A % B, at / A / B);
}
static int64_t from_twice(int64_t at)
{
    return at % N;
}
static int64_t from_twice_lines(int64_t at)
{
    return place(at / (2 * LAST), at / C % B, at % C);
}
static int64_t from_twice_columns(int64_t at)
{
    return place(0, at / (2 * C), at % C);
}
static int64_t from_once_lines(int64_t at)
{
    return place(at / LAST / 2, at / C % B, at % C);
}
/* Elements 2 before and 3 after the last axis, 1 before and none after the one before it. */
static int64_t padded(int64_t at, int64_t b, int64_t c)
{
    return b < 0 || c < 0 || c >= C ? -1 : place(at / ((B + 1) * (C + 5)), b, c);
}
static int64_t from_inside(int64_t at)
{
    return padded(at, at / (C + 5) % (B + 1) - 1, at % (C + 5) - 2);
}
static int64_t from_reflected(int64_t at)
{
    const int64_t b = at / (C + 5) % (B + 1) - 1, c = llabs(at % (C + 5) - 2);
    return padded(at, b < 0 ? -b : b, c < C ? c : 2 * (C - 1) - c);
}
static int64_t from_replicated(int64_t at)
{
    const int64_t b = at / (C + 5) % (B + 1) - 1, c = at % (C + 5) - 2;
    return padded(at, b < 0 ? 0 : b, c < 0 ? 0 : c < C ? c : C - 1);
}
static int64_t from_circular(int64_t at)
{
    return padded(at, (at / (C + 5) % (B + 1) - 1 + B) % B, (at % (C + 5) - 2 + C) % C);
}
static int64_t from_gathered0(int64_t at)
{
    return place(index_at(at), at / C % B, at % C);
}
static int64_t from_gathered1(int64_t at)
{
    return place(at / LAST, index_at(at), at % C);
}
static int64_t from_gathered2(int64_t at)
{
    return place(0, at / C, index_at(at));
}
static int64_t from_table(int64_t at)
{
    return place(0, index_at(at / C * C), at % C);
}
static int64_t from_flipped(int64_t at)
{
    return N - 1 - at;
}

/* ---- the rows: x, y in [-1, 1), u in (0, 1), i: index_at ---- */
#define SHAPED(t, ...) gpunn_reshape(t, GPUNN_SHAPE(__VA_ARGS__))
#define IMAGE(t) SHAPED(t, 1, A, B, C)
#define IMAGES(t) SHAPED(t, A, 1, B, C)
#define PAIR SHAPED(gpunn_slice(x, 0, 0, 32, 1), 2, 16, B, C)
#define SMALL_IMAGES SHAPED(gpunn_slice(SHAPED(x, N), 0, 0, 16 * 64 * 42, 1), 16, 64, 6, 7)
#define VOLUME(t) SHAPED(t, 1, 1, A, B, C)
#define ROWS_OF(t) SHAPED(t, ROWS, C)
#define FIRST(t) gpunn_slice(t, 2, 0, 1, 1)
#define LABELS SHAPED(FIRST(i), ROWS)
#define BOTH(a, b, axis) gpunn_concat((gpunn_tensor *[]){a, b}, 2, axis)
#define PADDED(...) gpunn_pad(x, .before = {0, 1, 2}, .after = {0, 0, 3}, __VA_ARGS__)
#define SIZED(...) gpunn_interpolate(IMAGE(x), .size = {40, 67}, __VA_ARGS__)
#define SAMPLED(...) gpunn_grid_sample(IMAGES(x), GRID, __VA_ARGS__)
#define GRID SHAPED(gpunn_slice(y, 2, 0, 40, 1), A, B, 20, 2)
#define SUMS(kind, ...) gpunn_##kind(x, GPUNN_AXES(__VA_ARGS__), false)
#define DRAWN(...) gpunn_sample(ROWS_OF(x), SHAPED(FIRST(u), ROWS), __VA_ARGS__)
/* In evaluation the CPU stores it with channels last, one more than whole vectors. */
#define POINTS gpunn_conv2d(IMAGE(x), "c", .out_channels = 33, .kernel_size = 1)
#define THREES(t) SHAPED(gpunn_slice(t, 1, 0, 27, 1), A * 9, 3, C)
#define SMALL(t, n) SHAPED(gpunn_slice(gpunn_slice(t, 0, 0, 1, 1), 2, 0, n, 1), B, n)
#define LENGTHS(op, value) gpunn_integer_scalar(GPUNN_INTEGER_##op, SHAPED(SMALL(i, 1), B), value)

/* clang-format off */
/* X(name, formula, where its elements come from or NULL) */
#define DIFFERENTIABLE(X)                                                                                   \
    X(slice_rows, gpunn_slice(x, 0, 3, A, 1), from_rows)                                                    \
    X(slice_columns, gpunn_slice(x, 2, 1, C, 2), from_columns)                                              \
    X(slice_lines, gpunn_slice(x, 1, 1, B, 2), from_lines)                                                  \
    X(permute_cab, gpunn_permute(x, GPUNN_AXES(2, 0, 1)), from_cab)                                         \
    X(permute_acb, gpunn_permute(x, GPUNN_AXES(0, 2, 1)), from_acb)                                         \
    X(permute_bac, gpunn_permute(x, GPUNN_AXES(1, 0, 2)), from_bac)                                         \
    X(permute_cba, gpunn_permute(x, GPUNN_AXES(2, 1, 0)), from_cba)                                         \
    X(permute_two_rows, gpunn_permute(SHAPED(gpunn_slice(x, 0, 1, A, 1), 2, A / 2, B, C),                   \
      GPUNN_AXES(0, 3, 2, 1)), NULL)                                                                        \
    X(concat_rows, BOTH(x, x, 0), from_twice)                                                               \
    X(concat_lines, BOTH(x, x, 1), from_twice_lines)                                                        \
    X(concat_columns, BOTH(x, x, 2), from_twice_columns)                                                    \
    X(concat_of_two, BOTH(x, gpunn_slice(y, 1, 5, 25, 1), 1), NULL)                                         \
    X(stack, gpunn_stack((gpunn_tensor *[]){x, x}, 2, 0), from_twice)                                       \
    X(pad, PADDED(.mode = GPUNN_PAD_CONSTANT), from_inside)                                                 \
    X(pad_reflect, PADDED(.mode = GPUNN_PAD_REFLECT), from_reflected)                                       \
    X(pad_replicate, PADDED(.mode = GPUNN_PAD_REPLICATE), from_replicated)                                  \
    X(pad_circular, PADDED(.mode = GPUNN_PAD_CIRCULAR), from_circular)                                      \
    X(expand, gpunn_expand(SHAPED(x, A, 1, B, C), GPUNN_SHAPE(A, 2, B, C)), from_once_lines)                \
    X(expand_rows, gpunn_expand(x, GPUNN_SHAPE(2, A, B, C)), from_twice)                                    \
    X(tile, gpunn_tile(x, GPUNN_SHAPE(1, 1, 2)), from_twice_columns)                                        \
    X(flip, gpunn_flip(x, GPUNN_AXES(0, 1, 2)), from_flipped)                                               \
    X(gather_rows, gpunn_gather(x, 0, i), from_gathered0)                                                   \
    X(gather_lines, gpunn_gather(x, 1, i), from_gathered1)                                                  \
    X(gather_columns, gpunn_gather(x, 2, i), from_gathered2)                                                \
    X(embedding, gpunn_embedding(LABELS, "e", .weight = ROWS_OF(x)), from_table)                            \
    X(index_select, gpunn_index_select(x, 1, SHAPED(SMALL(i, 1), B)), NULL)                                 \
    X(index_add, gpunn_index_add(x, 1, SHAPED(SMALL(i, 1), B), y), NULL)                                    \
    X(scatter_add_rows, gpunn_scatter_add(x, 0, i, y), NULL)                                                \
    X(scatter_add_columns, gpunn_scatter_add(x, 2, i, y), NULL)                                             \
    X(scatter_rows, gpunn_scatter(x, 0, i, y), NULL)                                                        \
    X(scatter_columns, gpunn_scatter(x, 2, i, y), NULL)                                                     \
    X(gelu, gpunn_gelu(x), NULL)                                                                            \
    X(broadcast, gpunn_div(x, gpunn_add_scalar(gpunn_slice(u, 1, 3, 4, 1), 1)), NULL)                       \
    X(broadcast_columns, gpunn_mul(x, FIRST(u)), NULL)                                                      \
    X(where, gpunn_where(gpunn_gt(x, y), x, gpunn_square(y)), NULL)                                         \
    X(dropout, gpunn_dropout(x, 0.3f), NULL)                                                                \
    X(rrelu, gpunn_rrelu(x, 0.1f, 0.3f), NULL)                                                              \
    X(randn, gpunn_mul(x, gpunn_randn_like(x)), NULL)                                                       \
    X(sum_all, SUMS(sum, 0, 1, 2), NULL)                                                                    \
    X(sum_rows, SUMS(sum, 0), NULL)                                                                         \
    X(sum_lines, SUMS(sum, 1), NULL)                                                                        \
    X(sum_columns, SUMS(sum, 2), NULL)                                                                      \
    X(mean_outer, SUMS(mean, 0, 2), NULL)                                                                   \
    X(max_rows, SUMS(max, 0), NULL)                                                                         \
    X(max_lines, SUMS(max, 1), NULL)                                                                        \
    X(min_columns, SUMS(min, 2), NULL)                                                                      \
    X(max_all, SUMS(max, 0, 1, 2), NULL)                                                                    \
    X(var, gpunn_var(x, GPUNN_AXES(1), 1, false), NULL)                                                     \
    X(norm, gpunn_norm(x, 2, GPUNN_AXES(2), false), NULL)                                                   \
    X(logsumexp, SUMS(logsumexp, 1), NULL)                                                                  \
    X(gradient_energy_planes, gpunn_gradient_energy(x, GPUNN_AXES(1, 2)), NULL)                             \
    X(gradient_energy, gpunn_gradient_energy(x, GPUNN_AXES(0, 1, 2)), NULL)                                 \
    X(cumsum_rows, gpunn_cumsum(x, 0), NULL)                                                                \
    X(cumsum_columns, gpunn_cumsum(x, 2), NULL)                                                             \
    X(logcumsumexp, gpunn_logcumsumexp(x, 1), NULL)                                                         \
    X(cummax, gpunn_cummax(x, 1), NULL)                                                                     \
    X(prod, gpunn_prod(u, 1, false), NULL)                                                                  \
    X(cross, gpunn_cross(THREES(x), THREES(y), 1), NULL)                                                    \
    X(max_with_indices, gpunn_max_with_indices(x, 1, false, NULL), NULL)                                    \
    X(topk, gpunn_topk(x, 5, 2, true, NULL), NULL)                                                          \
    X(topk_rows, gpunn_topk(x, 7, 0, false, NULL), NULL)                                                    \
    X(sort, gpunn_sort(x, 1, true, NULL), NULL)                                                             \
    X(softmax_rows, gpunn_softmax(x, 0), NULL)                                                              \
    X(softmax_columns, gpunn_softmax(x, 2), NULL)                                                           \
    X(log_softmax, gpunn_log_softmax(x, 1), NULL)                                                           \
    X(layer_norm, gpunn_layer_norm(x, "n"), NULL)                                                           \
    X(layer_norm_planes, gpunn_layer_norm(x, "n", .dims = 2), NULL)                                         \
    X(rms_norm, gpunn_rms_norm(x, "n"), NULL)                                                               \
    X(group_norm, gpunn_group_norm(SHAPED(x, 1, A, B, C), "n", .num_groups = A), NULL)                      \
    X(group_norm_of_few, gpunn_group_norm(IMAGES(x), "n", .num_groups = 1), NULL)                           \
    X(instance_norm, gpunn_instance_norm2d(IMAGE(x), "n", .affine = true, .track_running_stats = true),     \
      NULL)                                                                                                 \
    X(batch_norm1d, gpunn_batch_norm1d(ROWS_OF(x), "n"), NULL)                                              \
    X(batch_norm2d, gpunn_batch_norm2d(IMAGE(x), "n"), NULL)                                                \
    X(batch_norm3d, gpunn_batch_norm3d(VOLUME(x), "n"), NULL)                                               \
    X(local_response_norm, gpunn_local_response_norm(IMAGE(x), .size = 5), NULL)                            \
    X(mse_loss, gpunn_mse_loss(x, y), NULL)                                                                 \
    X(l1_loss, gpunn_l1_loss(x, y, .reduction = GPUNN_REDUCE_NONE), NULL)                                   \
    X(huber_loss, gpunn_huber_loss(x, y, .delta = 0.5f), NULL)                                              \
    X(bce_loss, gpunn_bce_loss(gpunn_sigmoid(x), u), NULL)                                                  \
    X(bce_with_logits, gpunn_bce_with_logits(x, u, .reduction = GPUNN_REDUCE_SUM), NULL)                    \
    X(kl_div, gpunn_kl_div(gpunn_log_softmax(x, 2), u, .reduction = GPUNN_REDUCE_BATCHMEAN), NULL)          \
    X(gaussian_nll_loss, gpunn_gaussian_nll_loss(x, y, u), NULL)                                            \
    X(ncc_loss, gpunn_ncc_loss(IMAGE(x), IMAGE(y), .window = 5), NULL)                                      \
    X(cross_entropy, gpunn_cross_entropy(ROWS_OF(x), LABELS, .label_smoothing = 0.1f), NULL)                \
    X(cross_entropy_inner, gpunn_cross_entropy(x, SHAPED(gpunn_slice(i, 1, 0, 1, 1), A, C)), NULL)          \
    X(cross_entropy_each, gpunn_cross_entropy(ROWS_OF(x), LABELS, .reduction = GPUNN_REDUCE_NONE), NULL)    \
    X(nll_loss, gpunn_nll_loss(gpunn_log_softmax(ROWS_OF(x), 1), LABELS, .ignore_index = 5), NULL)          \
    X(multi_margin_loss, gpunn_multi_margin_loss(ROWS_OF(x), LABELS), NULL)                                 \
    X(dice_loss, gpunn_dice_loss(IMAGES(gpunn_sigmoid(x)), IMAGES(u)), NULL)                                \
    X(ctc_loss, gpunn_ctc_loss(gpunn_log_softmax(x, 2), gpunn_integer_scalar(GPUNN_INTEGER_ADD, SMALL(i,    \
      5), 1), LENGTHS(ADD, 8), gpunn_integer_scalar(GPUNN_INTEGER_ADD, LENGTHS(FMOD, 5), 1)), NULL)        \
    X(max_pool1d, gpunn_max_pool1d(x, .kernel_size = 3, .stride = 1), NULL)                                 \
    X(max_pool2d, gpunn_max_pool2d(IMAGE(x), .kernel_size = 3, .stride = 2, .padding = 1), NULL)            \
    X(max_pool3d, gpunn_max_pool3d(VOLUME(x), .kernel_size = 2), NULL)                                      \
    X(avg_pool2d, gpunn_avg_pool2d(IMAGES(x), .kernel_size = 3, .stride = 1, .padding = 1), NULL)           \
    X(avg_pool3d, gpunn_avg_pool3d(VOLUME(x), .kernel_size = 3), NULL)                                      \
    X(max_pool2d_last, gpunn_max_pool2d(POINTS, .kernel_size = 3, .stride = 1), NULL)                       \
    X(avg_pool2d_last, gpunn_avg_pool2d(POINTS, .kernel_size = 2, .stride = 1), NULL)                       \
    X(lp_pool2d, gpunn_lp_pool2d(IMAGE(u), .kernel_size = 2, .norm_type = 3), NULL)                         \
    X(adaptive_max_pool2d, gpunn_adaptive_max_pool2d(IMAGE(x), 30, 35), NULL)                               \
    X(adaptive_avg_pool2d, gpunn_adaptive_avg_pool2d(IMAGES(x), 50, 17), NULL)                              \
    X(adaptive_avg_pool3d, gpunn_adaptive_avg_pool3d(VOLUME(x), 40, 30, 35), NULL)                          \
    X(nearest, SIZED(.mode = GPUNN_INTERPOLATE_NEAREST), NULL)                                              \
    X(nearest_exact, SIZED(.mode = GPUNN_INTERPOLATE_NEAREST_EXACT), NULL)                                  \
    X(bilinear, SIZED(.mode = GPUNN_INTERPOLATE_LINEAR), NULL)                                              \
    X(bilinear_at_corners, SIZED(.mode = GPUNN_INTERPOLATE_LINEAR, .align_corners = true), NULL)            \
    X(bicubic, SIZED(.mode = GPUNN_INTERPOLATE_CUBIC), NULL)                                                \
    X(area, SIZED(.mode = GPUNN_INTERPOLATE_AREA), NULL)                                                    \
    X(trilinear, gpunn_interpolate(VOLUME(x), .size = {30, 50, 43}, .mode = GPUNN_INTERPOLATE_LINEAR),      \
      NULL)                                                                                                 \
    X(grid_sample, SAMPLED(.mode = GPUNN_GRID_BILINEAR), NULL)                                              \
    X(grid_sample_nearest, SAMPLED(.mode = GPUNN_GRID_NEAREST, .padding_mode = GPUNN_GRID_BORDER), NULL)    \
    X(grid_sample_reflected, SAMPLED(.padding_mode = GPUNN_GRID_REFLECTION, .align_corners = true), NULL)   \
    X(affine_grid, gpunn_affine_grid(SHAPED(gpunn_slice(gpunn_slice(x, 1, 0, 1, 1), 2, 0, 6, 1), A, 2,      \
      3), GPUNN_SHAPE(B, C), false), NULL)                                                                  \
    X(roi_align, gpunn_roi_align(IMAGES(x), gpunn_mul_scalar(SHAPED(gpunn_slice(u, 2, 0, 35, 1),            \
      ROWS * 7, 5), 20), .output_size = 2, .sampling_ratio = 2), NULL)                                     \
    X(hash_grid, gpunn_hash_grid_encoding(SHAPED(gpunn_slice(u, 2, 0, 40, 1), ROWS * 20, 2), "h",           \
      .n_levels = 2, .log2_hashmap_size = 8), NULL)                                                         \
    X(linear, gpunn_linear(x, "l", .out_features = 19), NULL)                                               \
    X(matmul, gpunn_matmul(x, y, .transpose_b = true), NULL)                                                \
    X(conv2d, gpunn_conv2d(IMAGE(x), "c", .out_channels = 7, .kernel_size = 3, .padding = 1), NULL)         \
    X(conv2d_of_few, gpunn_conv2d(IMAGES(x), "c", .out_channels = 8, .kernel_size = 3), NULL)               \
    X(conv2d_wide, gpunn_conv2d(IMAGE(x), "c", .out_channels = 32, .kernel_size = 3, .padding = 1), NULL)   \
    X(conv2d_point, POINTS, NULL)                                                                           \
    X(conv2d_stride, gpunn_conv2d(IMAGE(x), "c", .out_channels = 24, .kernel_size = 5, .stride = 2), NULL)  \
    X(conv2d_groups, gpunn_conv2d(gpunn_slice(IMAGE(x), 1, 0, 36, 1), "c", .out_channels = 32, .groups = 2, \
      .kernel_size = 3), NULL)                                                                              \
    X(conv2d_small, gpunn_conv2d(SMALL_IMAGES, "c", .out_channels = 48, .kernel_size = 5, .stride = 2,      \
      .padding = 2), NULL)                                                                                  \
    X(conv2d_gelu, gpunn_gelu(gpunn_conv2d(IMAGE(x), "c", .out_channels = 32, .kernel_size = 3)), NULL)     \
    X(conv2d_samples, gpunn_conv2d(PAIR, "c", .out_channels = 16, .kernel_size = 3), NULL)                  \
    X(conv2d_samples_stride, gpunn_conv2d(PAIR, "c", .out_channels = 64, .kernel_size = 5, .stride = 2),    \
      NULL)                                                                                                 \
    X(conv1d, gpunn_conv1d(x, "c", .out_channels = 24, .kernel_size = 3), NULL)                             \
    X(conv3d, gpunn_conv3d(VOLUME(x), "c", .out_channels = 5, .kernel_size = 3), NULL)                      \
    X(depthwise, gpunn_conv2d(IMAGE(x), "c", .out_channels = A, .groups = A, .kernel_size = 3), NULL)       \
    X(depthwise_wide, gpunn_conv2d(IMAGE(x), "c", .out_channels = A, .groups = A, .kernel_size = 5,         \
      .padding = 2), NULL)                                                                                  \
    X(conv_transpose2d, gpunn_conv_transpose2d(IMAGE(x), "c", .out_channels = 3, .kernel_size = 2), NULL)   \
    X(lstm, gpunn_lstm(x, "r", .hidden_size = 9), NULL)                                                     \
    X(attention, gpunn_scaled_dot_product_attention(IMAGE(x), IMAGE(y), IMAGE(u)), NULL)
/* X(name, formula): results without a gradient */
#define DISCRETE(X)                                                                                         \
    X(slice_of_bytes, gpunn_slice(gpunn_cast(x, GPUNN_U8), 2, 1, C, 2))                                     \
    X(permute_of_bytes, gpunn_permute(gpunn_cast(x, GPUNN_U8), GPUNN_AXES(2, 0, 1)))                        \
    X(permute_of_integers, gpunn_permute(i, GPUNN_AXES(0, 2, 1)))                                           \
    X(pad_of_integers, gpunn_pad(i, .before = {0, 2}, .after = {1}, .value = 3))                            \
    X(expand_of_integers, gpunn_expand(SHAPED(i, A, 1, B, C), GPUNN_SHAPE(A, 2, B, C)))                     \
    X(scatter_of_integers, gpunn_scatter(i, 1, i, i))                                                       \
    X(cast_to_bytes, gpunn_cast(gpunn_mul_scalar(u, 200), GPUNN_U8))                                        \
    X(cast_to_bool, gpunn_cast(i, GPUNN_BOOL))                                                              \
    X(cast_to_int, gpunn_cast(gpunn_mul_scalar(x, 1e6f), GPUNN_I32))                                        \
    X(cast_to_long, gpunn_cast(gpunn_mul_scalar(x, 1e6f), GPUNN_I64))                                       \
    X(cast_to_float, gpunn_cast(i, GPUNN_F32))                                                              \
    X(integers, gpunn_mul(i, i))                                                                            \
    X(rand, gpunn_rand_like(x))                                                                             \
    X(sum_of_integers, gpunn_sum(i, GPUNN_AXES(1), false))                                                  \
    X(max_of_integers, gpunn_max(i, GPUNN_AXES(0), false))                                                  \
    X(argmax_rows, gpunn_argmax(x, 0, false))                                                               \
    X(argmin_columns, gpunn_argmin(x, 2, false))                                                            \
    X(argsort, gpunn_argsort(x, 2, false))                                                                  \
    X(searchsorted, gpunn_searchsorted(gpunn_sort(x, 2, false, NULL), y))                                   \
    X(sample, DRAWN(.temperature = 0.7f))                                                                   \
    X(sample_of_likely, DRAWN(.temperature = 3, .top_p = 0.95f))
/* clang-format on */

typedef struct threads_case {
    const char *name;
    gpunn_tensor *(*make)(gpunn_tensor *x, gpunn_tensor *y, gpunn_tensor *u, gpunn_tensor *i);
    bool differentiable;
    int64_t (*source)(int64_t at);
} threads_case;
#define X(name, formula, ...)                                                                            \
    static gpunn_tensor *make_##name(gpunn_tensor *x, gpunn_tensor *y, gpunn_tensor *u, gpunn_tensor *i) \
    {                                                                                                    \
        (void)x, (void)y, (void)u, (void)i;                                                              \
        return formula;                                                                                  \
    }
DIFFERENTIABLE(X)
DISCRETE(X)
#undef X
#define X(name, formula, source) {#name, make_##name, true, source},
#define Y(name, formula) {#name, make_##name, false, NULL},
static threads_case cases[] = {DIFFERENTIABLE(X) DISCRETE(Y)};
#undef X
#undef Y

/* ---- three devices: of one thread, of three that run one after another and are counted, of three ---- */
static int shared; /* tasks that asked for several threads */

static void one_after_another(void *user, int count, void (*run)(void *arg), void *arg)
{
    (void)user;
    shared += count > 1;
    for (int k = 0; k < count; k++) run(arg);
}

static test_memory memory; /* of all devices: new blocks do not hold what an earlier device computed */

static gpunn_device *device(int which)
{
    return MADE(NULL, gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 5, .threads = which ? 3 : 1,
                                        .parallel_fn = which == 1 ? one_after_another : NULL,
                                        .realloc_fn = hook_realloc, .user = &memory));
}

/* What a case computes: its values in evaluation and in training, gradients of the inputs and of the
 * parameters. */
enum { EVALUATED, TRAINED, GRAD_X, RESULTS = 24 };
typedef struct outcome {
    int    count, forward, backward; /* count: of data; forward, backward: `shared` of each */
    void  *data[RESULTS];
    size_t bytes[RESULTS];
} outcome;

static void *room(outcome *o, const gpunn_tensor *t)
{
    const int at = o->count++;
    assert_in_range(at, 0, RESULTS - 1);
    o->bytes[at] = gpunn_tensor_bytes(t);
    return o->data[at] = calloc(o->bytes[at] + 1, 1);
}

static void keep_value(outcome *o, gpunn_device *dev, gpunn_tensor *t)
{
    const size_t bytes = gpunn_tensor_bytes(t);
    OK(dev, gpunn_read(t, room(o, t), bytes));
}

/* Zeros where no gradient reaches the tensor. */
static void keep_gradient(outcome *o, gpunn_device *dev, gpunn_tensor *t)
{
    const size_t bytes = gpunn_tensor_bytes(t);
    if (gpunn_read_grad(t, room(o, t), bytes) != GPUNN_OK) gpunn_clear_error(dev);
}

static gpunn_tensor *input(gpunn_device *dev, gpunn_model *model, const char *name, const float *values)
{
    gpunn_tensor *t = gpunn_input(model, name, GPUNN_F32, GPUNN_SHAPE(A, B, C));
    MADE(dev, gpunn_retain_grad(t));
    OK(dev, write_floats(t, values, N));
    return t;
}

static gpunn_tensor *indices(gpunn_device *dev, gpunn_model *model)
{
    gpunn_tensor *t = gpunn_input(model, "i", GPUNN_I64, GPUNN_SHAPE(A, B, C));
    int64_t      *values = malloc(N * sizeof *values);
    for (int64_t at = 0; at < N; at++) values[at] = index_at(at);
    OK(dev, gpunn_write(t, values, N * sizeof *values));
    free(values);
    return t;
}

static float *values[3]; /* of x, y and u */

/* The gradient of the result: element `at` of y's values, which begin again after N. */
static float *gradient_of(const gpunn_tensor *t)
{
    const int64_t n = (int64_t)(gpunn_tensor_bytes(t) / sizeof(float));
    float        *gradient = malloc((size_t)n * sizeof *gradient);
    for (int64_t at = 0; at < n; at++) gradient[at] = values[1][at % N];
    return gradient;
}

/* The gradient of x from the result and from -x is the sum of both. */
static void check_added(const float *of_result, const float *of_both)
{
    for (int64_t at = 0; at < N; at++) {
        const double sum = (double)of_result[at] - (double)values[2][at];
        if (!(fabs((double)of_both[at] - sum) <= 1e-4 * (1 + fabs((double)of_result[at]))))
            fail_msg("gradient %lld is %.9g, not %.9g", (long long)at, (double)of_both[at], sum);
    }
}

/* Gradients of the result, then of the result and of -x together, where that of x is a sum. */
static void differentiate(outcome *o, gpunn_device *dev, gpunn_model *model, gpunn_tensor *const input_of[3],
                          gpunn_tensor *result)
{
    gpunn_tensor *outputs[2] = {result, gpunn_neg(input_of[0])};
    float        *gradients[2] = {gradient_of(result), values[2]};
    for (int count = 1; count <= 2; count++) {
        const int before = shared;
        OK(dev, gpunn_zero_grad(model));
        OK(dev, gpunn_backward_from(outputs, (const void *const *)gradients, count));
        if (count == 1) o->backward = shared - before;
        for (int k = 0; k < (count == 1 ? 3 : 1); k++) keep_gradient(o, dev, input_of[k]);
        for (int k = 0; k < gpunn_parameter_count(model); k++)
            keep_gradient(o, dev, gpunn_parameter_at(model, k));
    }
    /* not of what is drawn anew in each pass */
    if (memcmp(o->data[EVALUATED], o->data[TRAINED], o->bytes[TRAINED]) == 0)
        check_added(o->data[GRAD_X], o->data[GRAD_X + 3 + gpunn_parameter_count(model)]);
    free(gradients[0]);
}

static void compute(outcome *o, const threads_case *c, int which)
{
    gpunn_device *dev = device(which);
    gpunn_model  *model = gpunn_model_create(dev);
    gpunn_tensor *in[3] = {input(dev, model, "x", values[0]), input(dev, model, "y", values[1]),
                           input(dev, model, "u", values[2])};
    gpunn_tensor *result = MADE(dev, c->make(in[0], in[1], in[2], indices(dev, model)));
    memset(o, 0, sizeof *o);
    OK(dev, gpunn_forward(&result, 1));
    keep_value(o, dev, result);
    const int before = shared;
    OK(dev, gpunn_forward_training(&result, 1));
    keep_value(o, dev, result);
    o->forward = shared - before;
    if (c->differentiable) differentiate(o, dev, model, in, result);
    for (int k = 0; k < gpunn_parameter_count(model); k++) keep_value(o, dev, gpunn_parameter_at(model, k));
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

/* The value and the gradient of x against plain copies. */
static void check_copies(const threads_case *c, const outcome *o)
{
    const float  *value = o->data[TRAINED], *gradient = o->data[GRAD_X];
    const int64_t n = (int64_t)(o->bytes[TRAINED] / sizeof(float));
    float        *expected = calloc(N, sizeof *expected);
    for (int64_t at = 0; at < n; at++) {
        const int64_t from = c->source(at);
        const float   copied = from < 0 ? 0 : values[0][from];
        if (value[at] != copied)
            fail_msg("%s[%lld] is %.9g, not %.9g", c->name, (long long)at, (double)value[at], (double)copied);
        if (from >= 0) expected[from] += values[1][at % N];
    }
    check_close(gradient, expected, N, 2e-5, 2e-5);
    free(expected);
}

static void check_finite(const threads_case *c, const outcome *o)
{
    const float *value = o->data[TRAINED];
    for (size_t at = 0; at < o->bytes[TRAINED] / sizeof *value; at++)
        if (!isfinite(value[at])) fail_msg("%s[%zu] is %g", c->name, at, (double)value[at]);
}

/* Evaluation has kernels of its own, whose values are those of training, but for statistics of the batch and
 * for what is drawn. */
static void check_evaluated(const threads_case *c, const outcome *o)
{
    static const char *const others[] = {"dropout", "rrelu", "rand", "batch_norm", "instance_norm"};
    for (int i = 0; i < COUNT(others); i++)
        if (strncmp(c->name, others[i], strlen(others[i])) == 0) return;
    check_close(o->data[EVALUATED], o->data[TRAINED], (int64_t)(o->bytes[TRAINED] / sizeof(float)), 1e-4,
                1e-4);
}

/* Several threads were asked for, in each direction: the tensors are large enough. */
static void check_shared(const threads_case *c, const outcome *o)
{
    if (o->forward == 0 || (c->differentiable && o->backward <= o->forward))
        fail_msg("%s: %d tasks of the forward pass and %d with the backward pass ask for several threads",
                 c->name, o->forward, o->backward);
}

static void compare(const char *name, outcome o[3])
{
    for (int which = 1; which < 3; which++)
        for (int k = 0; k < o->count; k++)
            if (memcmp(o->data[k], o[which].data[k], o->bytes[k]) != 0)
                fail_msg("%s: result %d differs on device %d", name, k, which);
}

static void release(outcome o[3])
{
    for (int which = 0; which < 3; which++)
        for (int k = 0; k < o[which].count; k++) free(o[which].data[k]);
    test_memory_check(&memory);
}

static void test_threads(void **state)
{
    const threads_case *c = *state;
    outcome             o[3];
    for (int which = 0; which < 3; which++) compute(&o[which], c, which);
    compare(c->name, o);
    check_shared(c, &o[1]);
    if (c->differentiable) check_finite(c, o), check_evaluated(c, o);
    if (c->source) check_copies(c, o);
    release(o);
}

/* ---- optimizers, with clipping and averages ---- */
typedef struct optimizer_case {
    const char *name;
    gpunn_optimizer *(*make)(gpunn_model *model);
} optimizer_case;
#define X(ENUM, name, ...)                                  \
    static gpunn_optimizer *make_##name(gpunn_model *model) \
    {                                                       \
        return gpunn_##name(model, .lr = 0.01f);            \
    }
GPUNN_OPTIMIZERS(X, , , , )
GPUNN_TRUST_OPTIMIZERS(X, , , , )
GPUNN_MATRIX_OPTIMIZERS(X, , , , )
#undef X
#define X(ENUM, name, ...) {#name, make_##name},
static optimizer_case optimizers[] = {GPUNN_OPTIMIZERS(X, , , , ) GPUNN_TRUST_OPTIMIZERS(X, , , , )
                                          GPUNN_MATRIX_OPTIMIZERS(X, , , , )};
#undef X

/* The weights after three steps, their averages, and a clipped gradient. */
static void train(outcome *o, const optimizer_case *c, int which)
{
    gpunn_device    *dev = device(which);
    gpunn_model     *model = gpunn_model_create(dev);
    gpunn_tensor    *y = input(dev, model, "y", values[1]);
    const gpunn_init normal = {GPUNN_INIT_NORMAL, 0, 1};
    gpunn_tensor    *p = gpunn_parameter(model, "p", GPUNN_SHAPE(A * B, C), normal);
    gpunn_tensor    *error = gpunn_sub(gpunn_reshape(p, GPUNN_SHAPE(A, B, C)), y);
    gpunn_tensor    *loss = MADE(dev, gpunn_mean(gpunn_square(error), GPUNN_ALL, false));
    gpunn_optimizer *opt = MADE(dev, c->make(model));
    memset(o, 0, sizeof *o);
    gpunn_set_clip_norm(opt, 0.001f);
    OK(dev, gpunn_set_ema(opt, 0.9f));
    for (int step = 0; step < 3; step++) OK(dev, gpunn_train_step(opt, loss));
    keep_value(o, dev, p);
    OK(dev, gpunn_ema_swap(opt));
    keep_value(o, dev, p);
    OK(dev, gpunn_zero_grad(model));
    OK(dev, gpunn_backward(loss));
    OK(dev, gpunn_clip_grad_norm(model, 0.001f, NULL));
    keep_gradient(o, dev, p);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

static void test_optimizer(void **state)
{
    const optimizer_case *c = *state;
    outcome               o[3];
    for (int which = 0; which < 3; which++) train(&o[which], c, which);
    compare(c->name, o);
    release(o);
}

int main(void)
{
    static struct CMUnitTest tests[COUNT(cases) + COUNT(optimizers)];
    int                      count = 0;
    test_memory_init(&memory);
    for (int k = 0; k < 3; k++) values[k] = test_randoms(N, (uint32_t)k + 1, k == 2 ? 0.499f : 1);
    for (int64_t at = 0; at < N; at++) values[2][at] += 0.5f;
    for (int i = 0; i < COUNT(cases); i++) {
        struct CMUnitTest test = {cases[i].name, test_threads, NULL, NULL, &cases[i]};
        tests[count++] = test;
    }
    for (int i = 0; i < COUNT(optimizers); i++) {
        struct CMUnitTest test = {optimizers[i].name, test_optimizer, NULL, NULL, &optimizers[i]};
        tests[count++] = test;
    }
    return _cmocka_run_group_tests("threads", tests, (size_t)count, NULL, NULL);
}
