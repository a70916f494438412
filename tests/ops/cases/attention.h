/* The cases of tests/golden/attention.py, and gradients of the same ops. */
static gpunn_tensor *weights;
/* The weights behind the result y [n, l, e], those of each head behind each other. */
static gpunn_tensor *with_weights(gpunn_tensor *y)
{
    const gpunn_shape shape = gpunn_tensor_shape(weights);
    const bool        heads = shape.dim[3] != 0;
    gpunn_tensor     *rows = heads ? gpunn_permute(weights, GPUNN_AXES(0, 2, 1, 3)) : weights;
    if (heads) rows = gpunn_reshape(rows, GPUNN_SHAPE(shape.dim[0], shape.dim[2], shape.dim[1] * shape.dim[3]));
    gpunn_tensor *both[] = {y, rows};
    return gpunn_concat(both, 2, 2);
}

/* clang-format off */
#define ATTENTION(...) gpunn_scaled_dot_product_attention(in("q"), in("k"), in("v"), __VA_ARGS__)
#define MULTI_HEAD(q, k, v, ...) gpunn_multi_head_attention(in(q), in(k), in(v), "l", __VA_ARGS__)
#define TRANSFORMER .nhead = 2, .dim_feedforward = 12, .dropout = GPUNN_ZERO
/* X(name before the dot, name after it, builder) */
#define ATTENTION_CASES(X)                                                                                                       \
    X(attention, "plain", gpunn_scaled_dot_product_attention(in("q"), in("k"), in("v")))                                         \
    X(attention, "one", gpunn_scaled_dot_product_attention(in("q"), in("k"), in("v")))                                           \
    X(attention, "one_row", gpunn_scaled_dot_product_attention(in("q"), in("k"), in("v")))                                       \
    X(attention, "value_size", gpunn_scaled_dot_product_attention(in("q"), in("k"), in("v")))                                    \
    X(attention, "scale", ATTENTION(.scale = 0.75f))                                                                             \
    X(attention, "heads_last", ATTENTION(.heads_last = true))                                                                    \
    X(attention, "heads_last_value_size", ATTENTION(.heads_last = true))                                                         \
    X(attention, "causal", ATTENTION(.is_causal = true))                                                                         \
    X(attention, "causal_tall", ATTENTION(.is_causal = true))                                                                    \
    X(attention, "causal_wide", ATTENTION(.is_causal = true))                                                                    \
    X(attention, "choice", ATTENTION(.mask = in("mask")))                                                                        \
    X(attention, "choice_padding", ATTENTION(.mask = in("mask")))                                                                \
    X(attention, "choice_square", ATTENTION(.mask = in("mask")))                                                                 \
    X(attention, "choice_nothing", ATTENTION(.mask = in("mask")))                                                                \
    X(attention, "choice_rows", ATTENTION(.mask = in("mask")))                                                                   \
    X(attention, "choice_causal", ATTENTION(.mask = in("mask"), .is_causal = true))                                              \
    X(attention, "added", ATTENTION(.mask = in("mask")))                                                                         \
    X(attention, "added_heads", ATTENTION(.mask = in("mask")))                                                                   \
    X(attention, "added_rows", ATTENTION(.mask = in("mask")))                                                                    \
    X(attention, "added_infinite", ATTENTION(.mask = in("mask")))                                                                \
    X(attention, "added_causal", ATTENTION(.mask = in("mask"), .is_causal = true))                                               \
    X(attention, "grouped", ATTENTION(.enable_gqa = true))                                                                       \
    X(attention, "grouped_last", ATTENTION(.is_causal = true, .enable_gqa = true, .heads_last = true))                           \
    X(attention, "blocks", gpunn_scaled_dot_product_attention(in("q"), in("k"), in("v")))                                        \
    X(attention, "blocks_causal", ATTENTION(.is_causal = true))                                                                  \
    X(attention, "all_in_one", gpunn_scaled_dot_product_attention(in("qkv"), NULL, NULL))                                        \
    X(attention, "all_in_one_causal", gpunn_scaled_dot_product_attention(in("qkv"), NULL, NULL, .is_causal = true))              \
    X(attention, "same", gpunn_scaled_dot_product_attention(in("x"), in("x"), in("x")))                                          \
    X(rotary_embedding, "halves", gpunn_rotary_embedding(in("x"), in("positions")))                                              \
    X(rotary_embedding, "interleaved", gpunn_rotary_embedding(in("x"), in("positions"), .interleaved = true))                    \
    X(rotary_embedding, "rows_first", gpunn_rotary_embedding(in("x"), in("positions"), .heads_last = true, .theta = 500000))     \
    X(rotary_embedding, "each", gpunn_rotary_embedding(in("x"), in("positions"), .theta = 10000))                                \
    X(rotary_embedding, "each_interleaved", gpunn_rotary_embedding(in("x"), in("positions"), .interleaved = true, .heads_last = true))\
    X(rotary_embedding, "some", gpunn_rotary_embedding(in("x"), in("positions"), .dims = 4))                                     \
    X(rotary_embedding, "frequencies", gpunn_rotary_embedding(in("x"), in("positions"), .frequencies = in("frequencies")))       \
    X(multi_head, "self", MULTI_HEAD("x", "x", "x", .num_heads = 2, .batch_first = true))                                        \
    X(multi_head, "rows", MULTI_HEAD("x", "x", "x", .num_heads = 2))                                                             \
    X(multi_head, "causal", MULTI_HEAD("x", "x", "x", .num_heads = 4, .batch_first = true, .is_causal = true))                   \
    X(multi_head, "cross", MULTI_HEAD("x", "y", "y", .num_heads = 2, .batch_first = true))                                       \
    X(multi_head, "sizes", MULTI_HEAD("x", "y", "z", .num_heads = 2))                                                            \
    X(multi_head, "padding", MULTI_HEAD("x", "x", "x", .num_heads = 2, .batch_first = true, .key_padding_mask = in("padding")))  \
    X(multi_head, "masks", MULTI_HEAD("x", "x", "x", .num_heads = 2, .batch_first = true, .key_padding_mask = in("padding"),     \
      .attn_mask = in("mask")))                                                                                                  \
    X(multi_head, "added", MULTI_HEAD("x", "x", "x", .num_heads = 2, .batch_first = true, .key_padding_mask = in("padding"),     \
      .attn_mask = in("mask")))                                                                                                  \
    X(multi_head, "each", MULTI_HEAD("x", "x", "x", .num_heads = 2, .batch_first = true, .attn_mask = in("mask")))               \
    X(multi_head, "weights", with_weights(MULTI_HEAD("x", "x", "x", .num_heads = 2, .batch_first = true, .weights = &weights))) \
    X(multi_head, "weights_of_heads", with_weights(MULTI_HEAD("x", "y", "y", .num_heads = 2, .batch_first = true,                \
      .key_padding_mask = in("padding"), .attn_mask = in("mask"), .weights = &weights, .head_weights = true)))                   \
    X(multi_head, "weights_added", with_weights(gpunn_permute(MULTI_HEAD("x", "y", "z", .num_heads = 4, .attn_mask = in("mask"), \
      .weights = &weights), GPUNN_AXES(1, 0, 2))))                                                                               \
    X(multi_head, "weights_causal", with_weights(MULTI_HEAD("x", "x", "x", .num_heads = 2, .batch_first = true,                  \
      .is_causal = true, .weights = &weights, .head_weights = true)))                                                            \
    X(transformer, "encoder_layer", gpunn_transformer_encoder_layer(in("x"), "l", TRANSFORMER, .batch_first = true))             \
    X(transformer, "encoder_layer_first", gpunn_transformer_encoder_layer(in("x"), "l", TRANSFORMER, .gelu = true,               \
      .batch_first = true, .norm_first = true, .key_padding_mask = in("padding")))                                               \
    X(transformer, "decoder_layer", gpunn_transformer_decoder_layer(in("x"), in("y"), "l", TRANSFORMER, .batch_first = true,     \
      .is_causal = true))                                                                                                        \
    X(transformer, "decoder_layer_first", gpunn_transformer_decoder_layer(in("x"), in("y"), "l", TRANSFORMER,                    \
      .norm_first = true))                                                                                                       \
    X(transformer, "encoder", gpunn_transformer_encoder(in("x"), "l", TRANSFORMER, .num_layers = 2, .batch_first = true,         \
      .norm = true))                                                                                                             \
    X(transformer, "decoder", gpunn_transformer_decoder(in("x"), in("y"), "l", TRANSFORMER, .num_layers = 2,                     \
      .batch_first = true, .memory_key_padding_mask = in("padding")))

#define ATTENTION_OF(x, shape, ...) \
    gpunn_scaled_dot_product_attention(x, in->x[1] = B("k", EXPANDED shape), in->x[2] = B("v", EXPANDED shape), __VA_ARGS__)
#define EXPANDED(...) __VA_ARGS__
/* X(name, first input, builder from that x) */
#define ATTENTION_GRADIENTS(X)                                                                                                   \
    X(attention, XS(3, 2, 3, 4), ATTENTION_OF(x, (3, 2, 5, 4), .scale = 0.4f))                                                   \
    X(attention_causal, XS(3, 2, 5, 4), ATTENTION_OF(x, (3, 2, 5, 4), .is_causal = true))                                        \
    X(attention_grouped, XS(3, 4, 3, 4), ATTENTION_OF(x, (3, 2, 5, 4), .enable_gqa = true))                                      \
    X(attention_heads_last, XS(3, 5, 2, 4), ATTENTION_OF(x, (3, 7, 2, 4), .heads_last = true))                                   \
    X(attention_all_in_one, XS(3, 4, 3, 2, 4), gpunn_scaled_dot_product_attention(x, NULL, NULL, .is_causal = true))           \
    X(attention_of_itself, XS(3, 2, 4, 4), gpunn_mul(x, gpunn_scaled_dot_product_attention(x, x, x)))                            \
    X(rotary_embedding, XS(3, 2, 4, 6), gpunn_rotary_embedding(x, indices(in, GPUNN_I64, GPUNN_SHAPE(3, 4), 6), .dims = 4))      \
    X(rotary_embedding_interleaved, XS(3, 4, 2, 6), gpunn_rotary_embedding(x, indices(in, GPUNN_I32, GPUNN_SHAPE(3, 4), 6),      \
      .interleaved = true, .heads_last = true))                                                                                  \
    X(multi_head, XS(3, 4, 6), gpunn_multi_head_attention(x, x, in->x[1] = B("v", 3, 4, 5), "l", .num_heads = 2, .batch_first = true)) \
    X(multi_head_weights, XS(3, 4, 6), with_weights(gpunn_multi_head_attention(x, x, x, "l", .num_heads = 2, .batch_first = true, \
      .is_causal = true, .weights = &weights)))                                                                                  \
    X(transformer_layer, XS(3, 4, 6), gpunn_transformer_decoder_layer(x, in->x[1] = B("m", 3, 5, 6), "l", .nhead = 2,            \
      .dim_feedforward = 5, .dropout = GPUNN_ZERO, .gelu = true, .batch_first = true, .norm_first = true))
/* clang-format on */
