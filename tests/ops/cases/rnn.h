/* rnn, lstm, gru and their cells: the cases of tests/golden/rnn.py, and gradients. */
static gpunn_tensor *flat(gpunn_tensor *t)
{
    const gpunn_shape shape = gpunn_tensor_shape(t);
    return t ? gpunn_reshape(t, GPUNN_SHAPE(shape.dim[0] * shape.dim[1] * shape.dim[2])) : NULL;
}
/* y, h_n and, of lstm, c_n behind each other; as [batch, ...] where the batch varies. */
static gpunn_tensor *with_states(gpunn_tensor *y, gpunn_tensor *h, gpunn_tensor *c)
{
    gpunn_tensor *tensors[] = {flat(y), flat(h), flat(c)}, *all = gpunn_concat(tensors, c ? 3 : 2, 0);
    const int64_t size = gpunn_tensor_shape(all).dim[0];
    return size < 0 ? gpunn_reshape(all, GPUNN_SHAPE(GPUNN_BATCH, -size)) : all;
}
static gpunn_tensor *state[3]; /* h_n, c_n, y */
static gpunn_tensor *with_c(gpunn_tensor *h)
{
    gpunn_tensor *both[] = {h, state[1]};
    return gpunn_concat(both, 2, 1);
}

/* clang-format off */
#define RNN(kind, ...) gpunn_##kind(gpunn_find(model, "x"), "l", __VA_ARGS__)
#define RNN_START .h_0 = gpunn_find(model, "h_0"), .c_0 = gpunn_find(model, "c_0")
#define RNN_LENGTHS .lengths = gpunn_find(model, "lengths")
#define RNN_RESET .reset = gpunn_find(model, "reset")
#define RNN_FINAL(call) (state[1] = NULL, state[2] = call, with_states(state[2], state[0], state[1]))
#define RNN_KIND_CASES(X, kind, ...)                                                                                     \
    X(kind, "plain", RNN(kind, .hidden_size = 6))                                                                        \
    X(kind, "one", RNN(kind, .hidden_size = 1))                                                                          \
    X(kind, "batch_first", RNN(kind, .hidden_size = 7, .batch_first = true))                                             \
    X(kind, "no_bias", RNN(kind, .hidden_size = 5, .no_bias = true))                                                     \
    X(kind, "both", RNN(kind, .hidden_size = 4, .bidirectional = true))                                                  \
    X(kind, "start", RNN_FINAL(RNN(kind, .hidden_size = 5, RNN_START, __VA_ARGS__)))                                     \
    X(kind, "layers",                                                                                                    \
      RNN_FINAL(RNN(kind, .hidden_size = 3, .num_layers = 2, .bidirectional = true, RNN_START, __VA_ARGS__)))            \
    X(kind, "lengths",                                                                                                   \
      RNN_FINAL(RNN(kind, .hidden_size = 4, .bidirectional = true, RNN_START, RNN_LENGTHS, __VA_ARGS__)))                \
    X(kind, "lengths_plain",                                                                                             \
      RNN_FINAL(RNN(kind, .hidden_size = 4, .num_layers = 2, .batch_first = true, RNN_LENGTHS, __VA_ARGS__)))            \
    X(kind, "wide", RNN(kind, .hidden_size = 33))                                                                        \
    X(kind, "reset", RNN(kind, .hidden_size = 6, RNN_RESET))                                                             \
    X(kind, "reset_start", RNN_FINAL(RNN(kind, .hidden_size = 5, RNN_START, RNN_RESET, __VA_ARGS__)))                    \
    X(kind, "reset_layers",                                                                                              \
      RNN_FINAL(RNN(kind, .hidden_size = 3, .num_layers = 2, .batch_first = true, RNN_START, RNN_RESET, __VA_ARGS__)))   \
    X(kind, "reset_lengths",                                                                                             \
      RNN_FINAL(RNN(kind, .hidden_size = 4, RNN_START, RNN_LENGTHS, RNN_RESET, __VA_ARGS__)))                            \
    X(kind, "reset_long", RNN(kind, .hidden_size = 3, RNN_RESET))
#define CELL(kind, ...) gpunn_##kind##_cell(gpunn_find(model, "x"), "l", __VA_ARGS__)
#define CELL_H .h = gpunn_find(model, "h")
#define CELL_C .c = gpunn_find(model, "c"), .c_n = &state[1]
#define RNN_BOTH .h_n = &state[0], .c_n = &state[1]
#define RNN_CASES(X)                                           \
    RNN_KIND_CASES(X, rnn, .h_n = &state[0])                   \
    RNN_KIND_CASES(X, lstm, .h_n = &state[0], .c_n = &state[1]) \
    RNN_KIND_CASES(X, gru, .h_n = &state[0])                   \
    X(lstm, "projected", RNN(lstm, .hidden_size = 6, .proj_size = 2))                                        \
    X(lstm, "projected_one", RNN_FINAL(RNN(lstm, .hidden_size = 2, .no_bias = true, .proj_size = 1, RNN_START, RNN_BOTH)))   \
    X(lstm, "projected_layers", RNN_FINAL(RNN(lstm, .hidden_size = 7, .num_layers = 2, .bidirectional = true,     \
      .proj_size = 3, RNN_START, RNN_BOTH)))                                                                     \
    X(lstm, "projected_lengths", RNN_FINAL(RNN(lstm, .hidden_size = 4, .batch_first = true, .bidirectional = true, \
      .proj_size = 3, RNN_START, RNN_LENGTHS, RNN_BOTH)))                                                        \
    X(lstm, "reset_projected", RNN_FINAL(RNN(lstm, .hidden_size = 5, .proj_size = 2, RNN_START, RNN_RESET, RNN_BOTH)))       \
    X(lstm, "projected_wide", RNN_FINAL(RNN(lstm, .hidden_size = 33, .proj_size = 17, RNN_BOTH)))                \
    X(rnn, "relu", RNN(rnn, .hidden_size = 5, .relu = true))   \
    X(rnn_cell, "plain", CELL(rnn, .hidden_size = 6, CELL_H))  \
    X(rnn_cell, "zeros", CELL(rnn, .hidden_size = 1))          \
    X(rnn_cell, "no_bias", CELL(rnn, .hidden_size = 7, .no_bias = true, CELL_H)) \
    X(rnn_cell, "relu", CELL(rnn, .hidden_size = 5, .relu = true, CELL_H))       \
    X(lstm_cell, "plain", with_c(CELL(lstm, .hidden_size = 6, CELL_H, CELL_C)))  \
    X(lstm_cell, "zeros", with_c(CELL(lstm, .hidden_size = 1, .c_n = &state[1])))                           \
    X(lstm_cell, "no_bias", with_c(CELL(lstm, .hidden_size = 7, .no_bias = true, CELL_H, CELL_C)))          \
    X(gru_cell, "plain", CELL(gru, .hidden_size = 6, CELL_H))  \
    X(gru_cell, "zeros", CELL(gru, .hidden_size = 1))          \
    X(gru_cell, "no_bias", CELL(gru, .hidden_size = 7, .no_bias = true, CELL_H))

/* X(name, first input, builder from that x); B(name, ...) and `in` are gradients.c's */
#define RNN_TURNED(name, ...) gpunn_permute(in->x[1] = B(name, __VA_ARGS__), GPUNN_AXES(1, 0, 2))
/* x, h_0 and the weights have other readers, whose gradients are there first. */
#define RNN_AGAIN(call)                                                            \
    (state[1] = call, gpunn_mul(gpunn_add(gpunn_add(state[1], state[2]), state[0]), \
                                gpunn_add(RNN_SQUARES("weight_hh_l0"), RNN_SQUARES("bias_hh_l0"))))
#define RNN_SQUARES(name) gpunn_sum(gpunn_square(gpunn_find(in->f->model, "l." name)), GPUNN_ALL, false)
#define RNN_KIND_GRADIENTS(X, kind, ...)                                                                                 \
    X(kind, XS(3, 4, 3), gpunn_##kind(x, "l", .hidden_size = 5, .batch_first = true))                                    \
    X(kind##_both, XS(3, 3, 2), gpunn_##kind(x, "l", .hidden_size = 3, .batch_first = true, .bidirectional = true))      \
    X(kind##_twice, XS(3, 3, 2), gpunn_mul(gpunn_##kind(x, "l", .hidden_size = 3, .batch_first = true, .no_bias = true), \
      gpunn_##kind(gpunn_tanh(x), "m", .hidden_size = 3, .batch_first = true)))                                          \
    X(kind##_states, XS(3, 3, 2), RNN_FINAL(gpunn_##kind(x, "l", .hidden_size = 3, .batch_first = true,                  \
      .num_layers = 2, .bidirectional = true, .h_0 = RNN_TURNED("b", 3, 4, 3), __VA_ARGS__)))                            \
    X(kind##_reset, XS(3, 4, 3), RNN_FINAL(gpunn_##kind(x, "l", .hidden_size = 5, .batch_first = true,                   \
      .h_0 = RNN_TURNED("b", 3, 1, 5), .reset = gpunn_relu(B("anew", 3, 4)), .h_n = &state[0])))                         \
    X(kind##_added, XS(3, 4, 2), (state[0] = RNN_TURNED("b", 3, 1, 2), state[2] = gpunn_permute(x, GPUNN_AXES(1, 0, 2)), \
      RNN_AGAIN(gpunn_##kind(state[2], "l", .hidden_size = 2, .h_0 = state[0]))))
#define RNN_GRADIENTS(X)                                                                                \
    RNN_KIND_GRADIENTS(X, rnn, .h_n = &state[0])                                                        \
    RNN_KIND_GRADIENTS(X, lstm, .c_0 = RNN_TURNED("c", 3, 4, 3), .h_n = &state[0], .c_n = &state[1])    \
    RNN_KIND_GRADIENTS(X, gru, .h_n = &state[0])                                                        \
    X(lstm_projected, XS(3, 4, 3), gpunn_lstm(x, "l", .hidden_size = 5, .batch_first = true, .proj_size = 2)) \
    X(lstm_projected_states, XS(3, 3, 2), RNN_FINAL(gpunn_lstm(x, "l", .hidden_size = 3, .batch_first = true, \
      .bidirectional = true, .num_layers = 2, .proj_size = 2, .h_0 = RNN_TURNED("b", 3, 4, 2),               \
      .c_0 = RNN_TURNED("c", 3, 4, 3), RNN_BOTH)))                                                             \
    X(lstm_cells, XS(3, 4), (state[0] = gpunn_lstm_cell(x, "l", .hidden_size = 4, .c = x, .c_n = &state[1]), \
      with_c(gpunn_lstm_cell(gpunn_sin(x), "m", .hidden_size = 4, .h = state[0], .c = state[1], .c_n = &state[1]))))
/* clang-format on */
