#include "graph/arguments.h"

/* Default of a tensor argument, instead of NONE: it is operand i of the node. */
#define GPUNN__OPERAND(i) (i)
/* Places where a node has a value: an attribute, or an axis, -8 to 7, of an operand or the result. */
#define GPUNN__MEMBER(member) offsetof(gpunn_attributes, member)
#define GPUNN__AT(operand, axis) (size_t)(16 * ((operand) + 1) + 8 + (axis))
#define GPUNN__RESULT (-1)

/* clang-format off */
#define GPUNN__NO_ARGS(K, A, S)
#define GPUNN__INPUT_ARGS(K, A, S)        \
    K(_plain, dtype, DTYPE, 0, dtype, "") \
    K(_plain, shape, SHAPE, GPUNN__NEEDED, shape, "One size at most may be \"N\".")
#define GPUNN__PARAMETER_ARGS(K, A, S)                              \
    K(_plain, shape, SHAPE, GPUNN__NEEDED, shape, "Without \"N\".") \
    K(_plain, init, INIT, GPUNN__EMPTY, args_, "")
#define GPUNN__STATE_ARGS(K, A, S) \
    GPUNN__PARAMETER_ARGS(K, A, S) \
    K(_plain, saved, FLAG, false, saved, "Whether files of weights have it.")
#define GPUNN__ASSIGN_ARGS(K, A, S)                                                                       \
    K(_assign, position, REFERENCE, GPUNN__OPERAND(2), position,                                          \
      "i64 or i32, one number or one for each sample of axis 0: the value's first place along the axis.") \
    K(_assign, axis, AXIS, 0, axis, "With a position.") A(axis, INT, axis)                                \
    K(_assign, in_training, FLAG, false, in_training, "Training steps make it, too.")                     \
    A(in_training, BOOL, in_training)
#define GPUNN__CONSTANT_ARGS(K, A, S)                                               \
    K(_plain, shape, SHAPE, GPUNN__NEEDED, shape, "Without \"N\"; [] is a scalar.") \
    K(_plain, values, ELEMENTS, GPUNN__NEEDED, args_, "Row-major.")
#define GPUNN__LINEAR_ARGS(K, A, S)                                                           \
    K(linear, out_features, COUNT, GPUNN__NEEDED, out_features, "")                           \
    S(out_features, SIZE, GPUNN__AT(GPUNN__RESULT, -1))                                       \
    K(linear, bias, NO_BIAS, true, no_bias, "A bias [out_features], or a parameter to take.") \
    S(bias, EXISTS, GPUNN__AT(2, 0))                                                          \
    K(linear, bias, BIAS, GPUNN__OPERAND(2), bias, "")                                        \
    K(linear, weight, REFERENCE, GPUNN__OPERAND(1), weight,                                   \
      "A parameter [out_features, in] in place of one of its own, for example another layer's.")
#define GPUNN__EMBEDDING_ARGS(K, A, S)                                                     \
    K(embedding, num_embeddings, COUNT, GPUNN__NEEDED, num_embeddings, "")                 \
    S(num_embeddings, SIZE, GPUNN__AT(1, 0))                                               \
    K(embedding, embedding_dim, COUNT, GPUNN__NEEDED, embedding_dim, "")                   \
    S(embedding_dim, SIZE, GPUNN__AT(1, 1))                                                \
    K(embedding, padding_idx, INTEGER, GPUNN__NONE, padding_idx,                           \
      "A row that starts as 0 and gets no gradient; below 0 from the end. Default: none.") \
      A(padding_idx, ROW, ignore_index)                                                    \
    K(embedding, weight, REFERENCE, GPUNN__OPERAND(1), weight,                             \
      "A tensor [num_embeddings, embedding_dim] in place of a parameter of its own.")      \
    K(embedding, sparse, FLAG, false, sparse,                                              \
      "Training changes only the rows of the batch: torch.optim.SparseAdam.")              \
    S(sparse, BOOL, GPUNN__MEMBER(sparse))
#define GPUNN__CONV_START(K, A, S)                                    \
    K(conv, out_channels, COUNT, GPUNN__NEEDED, out_channels, "")     \
    S(out_channels, SIZE, GPUNN__AT(GPUNN__RESULT, 1))                \
    K(conv, kernel_size, WINDOW, GPUNN__NEEDED, kernel_shape, "")     \
    S(kernel_size, WINDOW, GPUNN__MEMBER(kernel))                     \
    K(conv, stride, WINDOW, 1, strides, "") A(stride, WINDOW, stride) \
    K(conv, padding, PADDING, 0, paddings, "") A(padding, WINDOW, padding)
#define GPUNN__CONV_END(K, A, S)                                                            \
    K(conv, dilation, WINDOW, 1, dilations, "") A(dilation, WINDOW, dilation)               \
    K(conv, groups, COUNT, 1, groups, "") A(groups, INT, groups)                            \
    K(conv, bias, NO_BIAS, true, no_bias, "A bias [out_channels], or a parameter to take.") \
    S(bias, EXISTS, GPUNN__AT(2, 0))                                                        \
    K(conv, bias, BIAS, GPUNN__OPERAND(2), bias, "")                                        \
    K(conv, weight, REFERENCE, GPUNN__OPERAND(1), weight,                                   \
      "A tensor of the weight's shape in place of a parameter of its own.")
#define GPUNN__CONV_ARGS(K, A, S) GPUNN__CONV_START(K, A, S) GPUNN__CONV_END(K, A, S)
#define GPUNN__CONV_TRANSPOSE_ARGS(K, A, S)                  \
    GPUNN__CONV_START(K, A, S)                               \
    K(conv, output_padding, PADDING, 0, output_paddings, "") \
    S(output_padding, WINDOW, GPUNN__MEMBER(output_padding)) \
    GPUNN__CONV_END(K, A, S)
#define GPUNN__BATCH_NORM_ARGS(K, A, S)                                                                \
    K(batch_norm, eps, POSITIVE, 1e-05, eps, "") A(eps, FLOAT, eps)                                    \
    K(batch_norm, momentum, SHARE, 0.1, momentum, "Share of the new batch in the running statistics.") \
    A(momentum, FLOAT, momentum)                                                                       \
    K(batch_norm, affine, UNLESS, true, no_affine, "With weight and bias [c].")                        \
    S(affine, EXISTS, GPUNN__AT(1, 0))                                                                 \
    K(batch_norm, sync, FLAG, false, sync, "In training, over the batches of all ranks.")              \
    S(sync, BOOL, GPUNN__MEMBER(sync))                                                                 \
    K(batch_norm, track_running_stats, UNLESS, true, no_running_stats,                                 \
      "false: by the batch's statistics in evaluation too.")
#define GPUNN__GROUP_NORM_ARGS(K, A, S)                                                  \
    K(group_norm, num_groups, COUNT, GPUNN__NEEDED, num_groups, "Divides the channels.") \
    A(num_groups, INT, groups)                                                           \
    K(group_norm, eps, POSITIVE, 1e-05, eps, "") A(eps, FLOAT, eps)                      \
    K(group_norm, affine, UNLESS, true, no_affine, "With weight and bias [c].")          \
    S(affine, EXISTS, GPUNN__AT(1, 0))
#define GPUNN__INSTANCE_NORM_ARGS(K, A, S)                                                                \
    K(instance_norm, eps, POSITIVE, 1e-05, eps, "") A(eps, FLOAT, eps)                                    \
    K(instance_norm, affine, FLAG, false, affine, "With weight and bias [c].")                            \
    S(affine, EXISTS, GPUNN__AT(1, 0))                                                                    \
    K(instance_norm, track_running_stats, FLAG, false, track_running_stats,                               \
      "With running_mean and running_var [c], which evaluation takes.")                                   \
      S(track_running_stats, EXISTS, GPUNN__AT(3, 0))                                                     \
    K(instance_norm, momentum, SHARE, 0.1, momentum, "Share of the new batch in the running statistics.") \
    A(momentum, FLOAT, momentum)
#define GPUNN__LAYER_NORM_ARGS(K, A, S)                                                   \
    K(layer_norm, dims, COUNT, 1, dims, "How many of the last axes.") A(dims, LAST, axis) \
    K(layer_norm, eps, POSITIVE, 1e-05, eps, "") A(eps, FLOAT, eps)                       \
    K(layer_norm, elementwise_affine, UNLESS, true, no_affine, "With weight and bias.")   \
    S(elementwise_affine, EXISTS, GPUNN__AT(1, 0))                                        \
    K(layer_norm, bias, UNLESS, true, no_bias, "With bias, if elementwise_affine.")       \
    S(bias, EXISTS, GPUNN__AT(2, 0))
#define GPUNN__RMS_NORM_ARGS(K, A, S)                                                     \
    K(layer_norm, dims, COUNT, 1, dims, "How many of the last axes.") A(dims, LAST, axis) \
    K(layer_norm, eps, POSITIVE, 1.1920929e-07, eps, "") A(eps, FLOAT, eps)               \
    K(layer_norm, elementwise_affine, UNLESS, true, no_affine, "With weight.")            \
    S(elementwise_affine, EXISTS, GPUNN__AT(1, 0))
#define GPUNN__RECURRENT_START(K, A, S)                               \
    K(rnn, layer, NAME, GPUNN__NONE, args_, "What messages call it.") \
    K(rnn, weights, REFERENCES, GPUNN__NEEDED, args_,                 \
      "For each direction the parameters weight_ih, weight_hh and, or not, bias_ih, bias_hh.")
#define GPUNN__RECURRENT_END(K, A, S)                                                                \
    K(rnn, bidirectional, FLAG, false, bidirectional, "") A(bidirectional, BOOL, bidirectional)      \
    K(rnn, states, FLAG, false, states,                                                              \
      "Behind the last step stand rows with h_n and, lstm, c_n, with the memory of [directions, n, " \
      "hidden_size].")                                                                               \
    A(states, BOOL, states)                                                                          \
    K(rnn, lengths, REFERENCE, GPUNN__OPERAND(1), lengths,                                           \
      "I64 or I32 [n]: steps of each sequence that exist.")                                          \
    K(rnn, reset, REFERENCE, GPUNN__OPERAND(4), reset,                                               \
      "[length, n]: where it is not 0, a sequence continues from zeros at that step.")               \
    K(rnn, h_0, REFERENCE, GPUNN__OPERAND(2), h_0, "Initial state [directions, n, hidden_size].")
#define GPUNN__RNN_ARGS(K, A, S)                                                 \
    GPUNN__RECURRENT_START(K, A, S)                                              \
    K(rnn, relu, FLAG, false, relu, "relu instead of tanh.") A(relu, BOOL, relu) \
    GPUNN__RECURRENT_END(K, A, S)
#define GPUNN__LSTM_ARGS(K, A, S) \
    GPUNN__GRU_ARGS(K, A, S)      \
    K(rnn, c_0, REFERENCE, GPUNN__OPERAND(3), c_0, "Initial cell state, of h_0's shape.")
#define GPUNN__GRU_ARGS(K, A, S) GPUNN__RECURRENT_START(K, A, S) GPUNN__RECURRENT_END(K, A, S)
#define GPUNN__PRELU_ARGS(K, A, S)                                              \
    K(_plain, num_parameters, COUNT, 1, count, "1, or the channels of axis 1.") \
    S(num_parameters, COUNT, GPUNN__AT(1, 0))                                   \
    K(_plain, init, NUMBER, 0.25, number, "What the weight starts at.")
#define GPUNN__MATMUL_ARGS(K, A, S)                                           \
    K(matmul, transpose_a, FLAG, false, transpose_a, "Of the last two axes.") \
    A(transpose_a, BOOL, transpose_a)                                         \
    K(matmul, transpose_b, FLAG, false, transpose_b, "Of the last two axes.") \
    A(transpose_b, BOOL, transpose_b)
#define GPUNN__ATTENTION_ARGS(K, A, S)                                                                   \
    K(attention, mask, REFERENCE, GPUNN__OPERAND(3), mask,                                               \
      "bool: true takes part; f32: added; broadcasts to [n, heads, l, s].")                              \
    K(attention, dropout_p, SHARE, 0, dropout_p, "") A(dropout_p, FLOAT, dropout_p)                      \
    K(attention, is_causal, FLAG, false, is_causal, "Row i sees keys 0 to i only.")                      \
    A(is_causal, BOOL, is_causal)                                                                        \
    K(attention, scale, NUMBER, GPUNN__NONE, scale, "Default: 1 / sqrt(e).") A(scale, FLOAT, scale)      \
    K(attention, enable_gqa, FLAG, false, enable_gqa, "k and v may have fewer heads, which divide q's.") \
    S(enable_gqa, BOOL, GPUNN__MEMBER(enable_gqa))                                                       \
    K(attention, heads_last, FLAG, false, heads_last, "All values are [n, l, heads, e].")                \
    A(heads_last, BOOL, heads_last)                                                                      \
    K(attention, lengths, REFERENCE, GPUNN__OPERAND(4), lengths,                                         \
      "I64 or I32, one or [n]: so many of the keys are there.")
#define GPUNN__ROTARY_ARGS(K, A, S)                                                              \
    K(rotary, theta, POSITIVE, 10000, theta, "")                                                 \
    K(rotary, dims, AMOUNT, 0, dims, "Features of each head that turn, the first ones; 0: all.") \
    K(rotary, interleaved, FLAG, false, interleaved,                                             \
      "2 i and 2 i + 1 are a pair instead of i and i + dims / 2.")                               \
    K(rotary, heads_last, FLAG, false, heads_last, "x is [n, l, heads, e].")                     \
    K(rotary, frequencies, REFERENCE, GPUNN__NONE, frequencies, "[dims / 2], in place of theta's.")
#define GPUNN__MULTI_HEAD_ARGS(K, A, S)                                                       \
    K(multi_head_attention, num_heads, COUNT, GPUNN__NEEDED, num_heads, "")                   \
    K(multi_head_attention, dropout, SHARE, 0, dropout, "")                                   \
    K(multi_head_attention, batch_first, FLAG, false, batch_first, "false: [rows, n, size].") \
    K(multi_head_attention, key_padding_mask, REFERENCE, GPUNN__NONE, key_padding_mask,       \
      "[n, keys]; bool: true is ignored; f32: added.")                                        \
    K(multi_head_attention, attn_mask, REFERENCE, GPUNN__NONE, attn_mask,                     \
      "[rows, keys] or [n heads, rows, keys]; bool: true is ignored; f32: added.")            \
    K(multi_head_attention, is_causal, FLAG, false, is_causal, "And row i sees keys 0 to i only.")
#define GPUNN__TRANSFORMER_STACK(K, A, S)                \
    K(transformer, num_layers, COUNT, 6, num_layers, "") \
    K(transformer, norm, FLAG, false, norm, "A layer_norm at the end.")
#define GPUNN__ENCODER_LAYER_ARGS(K, A, S)                                                                 \
    K(transformer, nhead, COUNT, GPUNN__NEEDED, nhead, "")                                                 \
    K(transformer, dim_feedforward, COUNT, 2048, dim_feedforward, "")                                      \
    K(transformer, dropout, SHARE, 0.1, dropout, "")                                                       \
    K(transformer, activation, ACTIVATION, 0, gelu, "")                                                    \
    K(transformer, layer_norm_eps, POSITIVE, 1e-05, layer_norm_eps, "")                                    \
    K(transformer, batch_first, FLAG, false, batch_first, "false: [rows, n, size].")                       \
    K(transformer, norm_first, FLAG, false, norm_first, "")                                                \
    K(transformer, mask, REFERENCE, GPUNN__NONE, mask, "[rows, rows]; bool: true is ignored; f32: added.") \
    K(transformer, key_padding_mask, REFERENCE, GPUNN__NONE, key_padding_mask,                             \
      "[n, rows]; bool: true is ignored; f32: added.")                                                     \
    K(transformer, is_causal, FLAG, false, is_causal, "And row i sees rows 0 to i only.")
#define GPUNN__DECODER_LAYER_ARGS(K, A, S)                                                   \
    GPUNN__ENCODER_LAYER_ARGS(K, A, S)                                                       \
    K(transformer, memory_mask, REFERENCE, GPUNN__NONE, memory_mask,                         \
      "[rows, memory rows]; bool: true is ignored; f32: added.")                             \
    K(transformer, memory_key_padding_mask, REFERENCE, GPUNN__NONE, memory_key_padding_mask, \
      "[n, memory rows]; bool: true is ignored; f32: added.")
#define GPUNN__ENCODER_ARGS(K, A, S) GPUNN__TRANSFORMER_STACK(K, A, S) GPUNN__ENCODER_LAYER_ARGS(K, A, S)
#define GPUNN__DECODER_ARGS(K, A, S) GPUNN__TRANSFORMER_STACK(K, A, S) GPUNN__DECODER_LAYER_ARGS(K, A, S)
#define GPUNN__MAX_POOL_ARGS(K, A, S)                                                                      \
    K(pool, kernel_size, WINDOW, GPUNN__NEEDED, kernel_shape, "") A(kernel_size, WINDOW, kernel)           \
    K(pool, stride, WINDOW, GPUNN__NONE, strides, "Default: the kernel's size.") A(stride, WINDOW, stride) \
    K(pool, padding, PADDING, 0, paddings, "") A(padding, WINDOW, padding)                                 \
    K(pool, ceil_mode, FLAG, false, ceil_mode, "") A(ceil_mode, BOOL, ceil_mode)
#define GPUNN__AVG_POOL_ARGS(K, A, S)                                                                   \
    GPUNN__MAX_POOL_ARGS(K, A, S)                                                                       \
    K(pool, count_include_pad, UNLESS, true, count_exclude_pad, "Padding counts as zeros in the mean.") \
    A(count_include_pad, NOT, count_exclude_pad)
#define GPUNN__ADAPTIVE_POOL_ARGS(K, A, S)                  \
    K(_plain, output_size, WINDOW, GPUNN__NEEDED, size, "") \
    S(output_size, SPATIAL, GPUNN__AT(GPUNN__RESULT, 2))
#define GPUNN__GRID_ARGS(K, A, S)                                                                        \
    K(grid, mode, GRID_MODE, 0, mode, "") A(mode, GRID_MODE, mode)                                       \
    K(grid, padding_mode, GRID_PADDING, 0, padding_mode, "") A(padding_mode, GRID_PADDING, padding_mode) \
    K(grid, align_corners, FLAG, false, align_corners, "") A(align_corners, BOOL, align_corners)
#define GPUNN__ROI_ARGS(K, A, S)                                                                     \
    K(roi, output_size, WINDOW, GPUNN__NEEDED, output_shape, "")                                     \
    S(output_size, SPATIAL, GPUNN__AT(GPUNN__RESULT, 2))                                             \
    K(roi, spatial_scale, POSITIVE, 1, spatial_scale, "Cells of x for one unit of the boxes.")       \
    A(spatial_scale, FLOAT, scale)                                                                   \
    K(roi, sampling_ratio, AMOUNT, 0, sampling_ratio,                                                \
      "Samples along each axis of a bin; 0: one for each cell.")                                     \
    A(sampling_ratio, INT, k)                                                                        \
    K(roi, aligned, FLAG, false, aligned, "Half a cell less, and boxes may be smaller than a cell.") \
    A(aligned, BOOL, align_corners)
#define GPUNN__AFFINE_GRID_ARGS(K, A, S)                                             \
    K(_plain, size, COUNTS, GPUNN__NEEDED, shape, "Of the result: h, w or d, h, w.") \
    K(_plain, align_corners, FLAG, false, align_corners, "") A(align_corners, BOOL, align_corners)
#define GPUNN__INTERPOLATE_ARGS(K, A, S)                                                                \
    K(interpolate, size, SIZES, GPUNN__NONE, size, "Of the result; or what scale_factor makes of x's.") \
    K(interpolate, scale_factor, FACTORS, GPUNN__NONE, scale_factors,                                   \
      "Tells where results lie in x, even where size is given.")                                        \
    K(interpolate, mode, INTERPOLATE_MODE, 0, mode, "") A(mode, INTERPOLATE_MODE, mode)                 \
    K(interpolate, align_corners, FLAG, false, align_corners, "") A(align_corners, BOOL, align_corners) \
    A(ratio, RATIOS, ratio)
#define GPUNN__LOCAL_RESPONSE_NORM_ARGS(K, A, S)                                             \
    K(local_response_norm, size, COUNT, GPUNN__NEEDED, size, "Channels of a neighbourhood.") \
    K(local_response_norm, alpha, NUMBER, 1e-4, alpha, "")                                   \
    K(local_response_norm, beta, NUMBER, 0.75, beta, "")                                     \
    K(local_response_norm, k, NUMBER, 1, k, "")
#define GPUNN__DROPOUT_ARGS(K, A, S) K(_plain, p, SHARE, 0.5, number, "") A(p, FLOAT, dropout_p)
#define GPUNN__RRELU_ARGS(K, A, S)              \
    K(_plain, lower, NUMBER, 0.125, number, "") \
    K(_plain, upper, NUMBER, 0.33333334, other, "")
#define GPUNN__SHAPE_ARGS(K, A, S) K(_plain, shape, SHAPE, GPUNN__NEEDED, shape, "")
#define GPUNN__PERMUTE_ARGS(K, A, S) K(_plain, dims, AXES, GPUNN__NEEDED, axes, "") A(dims, ORDER, order)
#define GPUNN__CONCAT_ARGS(K, A, S) K(_plain, dim, AXIS, 0, axis, "") A(dim, INT, axis)
#define GPUNN__SLICE_ARGS(K, A, S)                                   \
    K(_plain, dim, AXIS, GPUNN__NEEDED, axis, "") A(dim, INT, axis)  \
    K(_plain, start, INDEX, 0, start, "") A(start, DIM, start)       \
    K(_plain, end, END, GPUNN__NONE, end, "Default: the axis' end.") \
    K(_plain, step, STEP, 1, step, "") A(step, INT64, step)
#define GPUNN__PAD_ARGS(K, A, S)                                                                       \
    K(pad, before, AMOUNTS, GPUNN__EMPTY, before, "") A(before, SIZES, before)                         \
    K(pad, after, AMOUNTS, GPUNN__EMPTY, after, "") S(after, SIZES, GPUNN__MEMBER(after))              \
    K(pad, mode, PAD_MODE, 0, mode, "All but constant take x's own elements.") A(mode, PAD_MODE, mode) \
    K(pad, value, EXTENDED, 0, value, "") A(value, FLOAT, fill)
#define GPUNN__TILE_ARGS(K, A, S) K(_plain, repeats, COUNTS, GPUNN__NEEDED, shape, "")
#define GPUNN__ONE_HOT_ARGS(K, A, S) K(_plain, num_classes, COUNT, GPUNN__NEEDED, count, "")
#define GPUNN__FREQUENCY_ARGS(K, A, S) K(_plain, num_frequencies, COUNT, GPUNN__NEEDED, count, "")
#define GPUNN__ONE_BLOB_ARGS(K, A, S) K(_plain, num_bins, COUNT, GPUNN__NEEDED, count, "")
#define GPUNN__HASH_GRID_ARGS(K, A, S)                                                                     \
    K(hash_grid, n_levels, COUNT, 16, n_levels, "At most 32.") A(n_levels, INT, n_levels)                  \
    K(hash_grid, n_features_per_level, COUNT, 2, n_features_per_level, "At most 8.")                       \
    S(n_features_per_level, SIZE, GPUNN__AT(1, 1))                                                         \
    K(hash_grid, log2_hashmap_size, COUNT, 19, log2_hashmap_size, "4 to 28.")                              \
    A(log2_hashmap_size, INT, log2_hashmap_size)                                                           \
    K(hash_grid, base_resolution, COUNT, 16, base_resolution, "") A(base_resolution, INT, base_resolution) \
    K(hash_grid, per_level_scale, POSITIVE, 2, per_level_scale, "1 or more.")                              \
    A(per_level_scale, FLOAT, per_level_scale)                                                             \
    K(hash_grid, sparse, FLAG, false, sparse, "Training changes only the rows of the batch.")              \
    S(sparse, BOOL, GPUNN__MEMBER(sparse))
#define GPUNN__HARMONICS_ARGS(K, A, S) K(_plain, degree, COUNT, GPUNN__NEEDED, count, "")
#define GPUNN__INTEGER_ARGS(K, A, S)                                                              \
    K(_plain, operation, INTEGER_OP, GPUNN__NEEDED, operation, "") A(operation, INTEGER_OP, mode) \
    K(_plain, value, WIDE, 0, start, "The last operand, where it is no tensor.") A(value, INT64, number)
#define GPUNN__CAST_ARGS(K, A, S) K(_plain, dtype, DTYPE, GPUNN__NEEDED, dtype, "")
#define GPUNN__DIMS_ARGS(K, A, S) \
    K(_plain, dims, AXES, GPUNN__EMPTY, axes, "Default: all.") A(dims, AXES, axes)
#define GPUNN__REDUCTION_ARGS(K, A, S)                                          \
    GPUNN__DIMS_ARGS(K, A, S)                                                   \
    K(_plain, keepdim, FLAG, false, keepdim, "Leaves 1 in place of each axis.") \
    S(keepdim, SAME_RANK, GPUNN__AT(GPUNN__RESULT, 0))
#define GPUNN__SUM_ARGS(K, A, S)   \
    GPUNN__REDUCTION_ARGS(K, A, S) \
    A(mean, BOOL, mean)
#define GPUNN__AXIS_ARGS(K, A, S) K(_plain, dim, AXIS, GPUNN__NEEDED, axis, "") A(dim, INT, axis)
#define GPUNN__ARGMAX_ARGS(K, A, S)                                            \
    GPUNN__AXIS_ARGS(K, A, S)                                                  \
    K(_plain, keepdim, FLAG, false, keepdim, "Leaves 1 in place of the axis.") \
    S(keepdim, SAME_RANK, GPUNN__AT(GPUNN__RESULT, 0))
#define GPUNN__TOPK_ARGS(K, A, S)                                                  \
    K(_plain, k, COUNT, GPUNN__NEEDED, count, "") S(k, ALONG, GPUNN__MEMBER(axis)) \
    GPUNN__AXIS_ARGS(K, A, S)                                                      \
    K(_plain, largest, FLAG, true, largest, "") A(largest, BOOL, largest)
#define GPUNN__SAMPLE_ARGS(K, A, S)                                                                  \
    K(sample, temperature, POSITIVE, 1, temperature, "") A(temperature, FLOAT, temperature)          \
    K(sample, top_p, SHARE, 1, top_p, "Above 0: the fewest likeliest classes that have this share.") \
    A(top_p, FLOAT, top_p)
#define GPUNN__SEARCHSORTED_ARGS(K, A, S)                                                           \
    K(searchsorted, right, FLAG, false, right, "Elements equal to the value come before it, too.") \
    A(right, BOOL, right)
#define GPUNN__SCALE_ARGS(K, A, S, args)                          \
    K(args, scale, POSITIVE, GPUNN__NEEDED, scale, "Of the result.") \
    A(scale, FLOAT, scale)                                        \
    K(args, zero_point, BYTE, 0, zero_point, "")                  \
    A(zero_point, INT, zero_point)
#define GPUNN__RANGE_ARGS(K, A, S, args)                                                   \
    GPUNN__SCALE_ARGS(K, A, S, args)                                                       \
    K(args, quant_min, BYTE, 0, quant_min, "Bounds of the result; zero_point for a relu.") \
    A(quant_min, INT, quant_min)                                                           \
    K(args, quant_max, BYTE, 255, quant_max, "") A(quant_max, INT, quant_max)
#define GPUNN__OPERAND_SCALE_ARGS(K, A, S, args)         \
    K(args, x_scale, POSITIVE, GPUNN__NEEDED, x_scale, "") \
    A(x_scale, FLOAT, x_scale)                           \
    K(args, x_zero_point, BYTE, 0, x_zero_point, "")     \
    A(x_zero_point, INT, x_zero_point)
#define GPUNN__QUANTIZE_ARGS(K, A, S)                    \
    K(quantize, scale, POSITIVE, GPUNN__NEEDED, scale, "") \
    A(scale, FLOAT, scale)                               \
    K(quantize, zero_point, BYTE, 0, zero_point, "")     \
    A(zero_point, INT, zero_point)
#define GPUNN__QUANTIZED_ADD_ARGS(K, A, S)                      \
    K(quantized_add, a_scale, POSITIVE, GPUNN__NEEDED, a_scale, "") \
    A(a_scale, FLOAT, x_scale)                                  \
    K(quantized_add, a_zero_point, BYTE, 0, a_zero_point, "")   \
    A(a_zero_point, INT, x_zero_point)                          \
    K(quantized_add, b_scale, POSITIVE, GPUNN__NEEDED, b_scale, "") \
    A(b_scale, FLOAT, b_scale)                                  \
    K(quantized_add, b_zero_point, BYTE, 0, b_zero_point, "")   \
    A(b_zero_point, INT, b_zero_point)                          \
    GPUNN__RANGE_ARGS(K, A, S, quantized_add)
#define GPUNN__QUANTIZED_LINEAR_ARGS(K, A, S)               \
    GPUNN__OPERAND_SCALE_ARGS(K, A, S, quantized_linear)    \
    GPUNN__RANGE_ARGS(K, A, S, quantized_linear)
#define GPUNN__QUANTIZED_CONV_ARGS(K, A, S)                                      \
    K(quantized_conv, stride, WINDOW, 1, strides, "") A(stride, WINDOW, stride)  \
    K(quantized_conv, padding, PADDING, 0, paddings, "")                         \
    A(padding, WINDOW, padding)                                                  \
    K(quantized_conv, dilation, WINDOW, 1, dilations, "")                        \
    A(dilation, WINDOW, dilation)                                                \
    K(quantized_conv, groups, COUNT, 1, groups, "") A(groups, INT, groups)       \
    GPUNN__OPERAND_SCALE_ARGS(K, A, S, quantized_conv)                           \
    GPUNN__RANGE_ARGS(K, A, S, quantized_conv)
#define GPUNN__EINSUM_ARGS(K, A, S) \
    K(_plain, equation, TEXT, GPUNN__NEEDED, text, "Such as \"...ij,jk->...ik\".")
#define GPUNN__LOSS_ARGS(K, A, S) K(loss, reduction, REDUCTION, 0, reduction, "")
#define GPUNN__HUBER_ARGS(K, A, S) \
    GPUNN__LOSS_ARGS(K, A, S)      \
    K(loss, delta, POSITIVE, 1, delta, "")
#define GPUNN__SMOOTH_L1_ARGS(K, A, S) \
    GPUNN__LOSS_ARGS(K, A, S)          \
    K(loss, beta, SCALE, 1, beta, "")
#define GPUNN__BCE_ARGS(K, A, S) \
    GPUNN__LOSS_ARGS(K, A, S)    \
    K(loss, weight, REFERENCE, GPUNN__NONE, weight, "A factor of each element, broadcast.")
#define GPUNN__BCE_LOGITS_ARGS(K, A, S) \
    GPUNN__BCE_ARGS(K, A, S)            \
    K(loss, pos_weight, REFERENCE, GPUNN__NONE, pos_weight, "A factor of the positive part, broadcast.")
#define GPUNN__KL_ARGS(K, A, S) \
    GPUNN__LOSS_ARGS(K, A, S)   \
    K(loss, log_target, FLAG, false, log_target, "The target holds log-probabilities too.")
#define GPUNN__GAUSSIAN_ARGS(K, A, S)                           \
    GPUNN__LOSS_ARGS(K, A, S)                                   \
    K(loss, full, FLAG, false, full, "With the constant term.") \
    K(loss, eps, POSITIVE, 1e-06, eps, "What var is at least.")
#define GPUNN__POISSON_ARGS(K, A, S)                                                          \
    GPUNN__LOSS_ARGS(K, A, S)                                                                 \
    K(loss, log_input, UNLESS, true, no_log_input, "The input is the logarithm of the rate.") \
    K(loss, full, FLAG, false, full, "With Stirling's approximation of log(t!).")             \
    K(loss, eps, SCALE, 1e-08, eps, "Added within the logarithm.")
#define GPUNN__NCC_ARGS(K, A, S)         \
    K(ncc, window, CELLS, 0, window, "") \
    K(ncc, eps, SCALE, 1e-05, eps, "")
#define GPUNN__CLASS_START(K, A, S)                                                                      \
    K(class_loss, reduction, CLASS_REDUCTION, 0, reduction, "") A(reduction, CLASS_REDUCTION, reduction) \
    K(class_loss, ignore_index, INTEGER, -100, ignore_index, "Labels that count for nothing.")           \
    A(ignore_index, INT64, ignore_index)
#define GPUNN__CLASS_WEIGHT(K, A, S) \
    K(class_loss, weight, REFERENCE, GPUNN__OPERAND(2), weight, "One number for each class.")
#define GPUNN__NLL_ARGS(K, A, S) GPUNN__CLASS_START(K, A, S) GPUNN__CLASS_WEIGHT(K, A, S)
#define GPUNN__CROSS_ENTROPY_ARGS(K, A, S)                                                                   \
    GPUNN__CLASS_START(K, A, S)                                                                              \
    K(class_loss, label_smoothing, SHARE, 0, label_smoothing, "") A(label_smoothing, FLOAT, label_smoothing) \
    GPUNN__CLASS_WEIGHT(K, A, S)
#define GPUNN__SOFT_MARGIN_ARGS(K, A, S) K(margin, reduction, CLASS_REDUCTION, 0, reduction, "")
#define GPUNN__MARGIN(K, A, S, usual) \
    GPUNN__SOFT_MARGIN_ARGS(K, A, S)  \
    K(margin, margin, NUMBER, usual, margin, "")
#define GPUNN__HINGE_ARGS(K, A, S) GPUNN__MARGIN(K, A, S, 1)
#define GPUNN__RANKING_ARGS(K, A, S) GPUNN__MARGIN(K, A, S, 0)
#define GPUNN__MULTI_MARGIN_ARGS(K, A, S) \
    GPUNN__MARGIN(K, A, S, 1)             \
    K(margin, p, NUMBER, 1, p, "1 or 2.") \
    K(margin, weight, REFERENCE, GPUNN__NONE, weight, "One number for each class.")
#define GPUNN__TRIPLET_ARGS(K, A, S)       \
    GPUNN__MARGIN(K, A, S, 1)              \
    K(margin, p, EXTENDED, 2, p, "")       \
    K(margin, eps, NUMBER, 1e-06, eps, "") \
    K(margin, swap, FLAG, false, swap, "")
#define GPUNN__COSINE_ARGS(K, A, S)   \
    K(_plain, dim, AXIS, 1, axis, "") \
    K(_plain, eps, SCALE, 1e-08, number, "")
#define GPUNN__SOFTSHRINK_ARGS(K, A, S) K(_plain, lambd, NUMBER, 0.5, number, "")
#define GPUNN__THRESHOLD_ARGS(K, A, S)                      \
    K(_plain, threshold, NUMBER, GPUNN__NEEDED, number, "") \
    K(_plain, value, NUMBER, GPUNN__NEEDED, other, "")
#define GPUNN__LOGIT_ARGS(K, A, S) K(_plain, eps, NUMBER, -1, number, "")
#define GPUNN__DICE_ARGS(K, A, S)                         \
    K(dice, reduction, CLASS_REDUCTION, 0, reduction, "") \
    K(dice, smooth, SCALE, 1e-05, smooth, "")             \
    K(dice, squared, FLAG, false, squared, "")            \
    K(dice, batch, FLAG, false, batch, "All samples are one.")
#define GPUNN__CTC_ARGS(K, A, S)                                                                  \
    K(ctc, reduction, CLASS_REDUCTION, 0, reduction, "") A(reduction, CLASS_REDUCTION, reduction) \
    K(ctc, blank, AMOUNT, 0, blank, "") A(blank, INT, blank)                                      \
    K(ctc, zero_infinity, FLAG, false, zero_infinity, "") A(zero_infinity, BOOL, zero_infinity)   \
    K(ctc, batch_first, FLAG, false, batch_first, "Log-probabilities are [n, t, classes].")       \
    A(batch_first, BOOL, batch_first)
#define GPUNN__CUSTOM_ARGS(K, A, S)                                                       \
    K(custom, kind, NAME, GPUNN__NEEDED, args_, "The op's name.") A(kind, CUSTOM, custom) \
    K(custom, shape, RESULT, GPUNN__NEEDED, args_, "The result's.")                       \
    K(custom, numbers, NUMBERS, GPUNN__EMPTY, args_, "") A(numbers, NUMBERS, numbers)
/* clang-format on */

static const char *const   gpunn__dtype_words[] = {"f32", "i64", "i32", "u8", "bool", "f64"};
static const char *const   gpunn__reduction_names[] = {"mean", "sum", "none", "batchmean"};
static const char *const   gpunn__grid_mode_names[] = {"bilinear", "nearest"};
static const char *const   gpunn__grid_padding_names[] = {"zeros", "border", "reflection"};
static const char *const   gpunn__interpolate_mode_names[] = {"nearest", "nearest-exact", "linear", "area",
                                                              "cubic"};
static const char *const   gpunn__activation_names[] = {"relu", "gelu"};
static const gpunn__choice gpunn__choices[] = {
    {GPUNN__WORDS(gpunn__dtype_words), "one of gpunn_dtype"},
    {GPUNN__WORDS(gpunn__reduction_names), "one of gpunn_reduction"},
    {gpunn__reduction_names, GPUNN_REDUCE_BATCHMEAN, "GPUNN_REDUCE_MEAN, _SUM or _NONE"},
    {GPUNN__WORDS(gpunn__grid_mode_names), "one of gpunn_grid_mode"},
    {GPUNN__WORDS(gpunn__grid_padding_names), "one of gpunn_grid_padding"},
    {GPUNN__WORDS(gpunn__interpolate_mode_names), "one of gpunn_interpolate_mode"},
    {GPUNN__WORDS(gpunn__pad_mode_names), "one of gpunn_pad_mode"},
    {GPUNN__WORDS(gpunn__integer_names), "one of gpunn_integer_op"},
    {GPUNN__WORDS(gpunn__activation_names), "true or false"},
};

GPUNN__INTERNAL const gpunn__choice *gpunn__choice_of(gpunn__key_kind kind)
{
    return &gpunn__choices[(int)kind - (int)GPUNN__K_DTYPE];
}

#define GPUNN__NOTHING(...)
#define GPUNN__K(args, key, kind, otherwise, member, about) \
    {#key, #member, otherwise, GPUNN__K_##kind, offsetof(gpunn_##args##_args, member)},
#define GPUNN__A(key, kind, member) {#key, GPUNN__A_##kind, GPUNN__MEMBER(member)},
#define GPUNN__S(key, kind, place) {#key, GPUNN__A_##kind, place},
#define GPUNN__X(kind, row, op, operands, axes, list, ...)                                            \
    static const gpunn__argument gpunn__args_of_##row[] = {                                           \
        GPUNN__##list##_ARGS(GPUNN__K, GPUNN__NOTHING, GPUNN__NOTHING){"", "", 0, GPUNN__K_NAME, 0}}; \
    static const gpunn__attribute gpunn__attributes_of_##row[] = {                                    \
        GPUNN__##list##_ARGS(GPUNN__NOTHING, GPUNN__A, GPUNN__NOTHING){NULL, GPUNN__A_BOOL, 0}};      \
    static const gpunn__attribute gpunn__shown_of_##row[] = {                                         \
        GPUNN__##list##_ARGS(GPUNN__NOTHING, GPUNN__NOTHING, GPUNN__S){NULL, GPUNN__A_BOOL, 0}};
GPUNN__ROWS(GPUNN__X)
#undef GPUNN__X
#undef GPUNN__S
#undef GPUNN__A
#undef GPUNN__K

#define GPUNN__X(kind, row, op, operands, axes, list, args, ...) \
    {#row, GPUNN__##kind, GPUNN_OP_##op,        operands,        \
     axes, #args,         gpunn__args_of_##row, gpunn__attributes_of_##row},
GPUNN__INTERNAL const gpunn__row gpunn__rows[GPUNN__ROW_COUNT] = {GPUNN__ROWS(GPUNN__X)};
#undef GPUNN__X

#define GPUNN__X(kind, row, ...) gpunn__shown_of_##row,
GPUNN__INTERNAL const gpunn__attribute *const gpunn__shown[GPUNN__ROW_COUNT] = {GPUNN__ROWS(GPUNN__X)};
#undef GPUNN__X

GPUNN__INTERNAL const gpunn__row *gpunn__row_called(const char *name)
{
    for (int i = 0; i < GPUNN__ROW_COUNT; i++)
        if (strcmp(gpunn__rows[i].name, name) == 0) return &gpunn__rows[i];
    return NULL;
}

GPUNN__INTERNAL const gpunn__attribute *gpunn__attributes_of(gpunn_op op)
{
    static const gpunn__attribute nothing = {NULL, GPUNN__A_BOOL, 0};
    for (int i = 0; i < GPUNN__ROW_COUNT; i++)
        if (op != GPUNN_OP_NONE && gpunn__rows[i].op == op) return gpunn__rows[i].attributes;
    return &nothing;
}
