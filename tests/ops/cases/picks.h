/* Elements that integers pick: cases of golden.c (tests/golden/picks.safetensors) and of gradients.c. */

/* A model that reads its words' vectors and, as torch's tied models, scores each word with them. */
static gpunn_tensor *tied(gpunn_model *m, gpunn_tensor *tokens, int words, int width, int padding)
{
    gpunn_tensor *h = gpunn_embedding(tokens, "l", .num_embeddings = words, .embedding_dim = width, .padding_idx = padding);
    return gpunn_linear(gpunn_tanh(h), "head", .weight = gpunn_find(m, "l.weight"));
}

/* The same table read by two layers. */
static gpunn_tensor *twice(gpunn_model *m, gpunn_tensor *one, gpunn_tensor *other, int padding)
{
    gpunn_tensor *a = gpunn_embedding(one, "l", .num_embeddings = 9, .embedding_dim = 8);
    return gpunn_mul(a, gpunn_embedding(other, "m", .weight = gpunn_find(m, "l.weight"), .padding_idx = padding));
}

/* clang-format off */
#define WORDS(n, width, ...) gpunn_embedding(in("tokens"), "l", .num_embeddings = n, .embedding_dim = width, __VA_ARGS__)
#define PICKS_CASES(X)                                                                             \
    X(embedding, "plain", WORDS(11, 5, .padding_idx = 0))                                          \
    X(embedding, "line", WORDS(11, 16, .padding_idx = 0))                                          \
    X(embedding, "one", WORDS(1, 1, .padding_idx = 0))                                             \
    X(embedding, "i32", WORDS(11, 8, .padding_idx = 0))                                            \
    X(embedding, "padding", WORDS(11, 8, .padding_idx = 2))                                        \
    X(embedding, "padding_first", WORDS(11, 5, .padding_idx = GPUNN_ZERO))                         \
    X(embedding, "padding_last", WORDS(11, 5, .padding_idx = -1))                                  \
    X(embedding, "computed", gpunn_embedding(in("tokens"), "l", .weight = gpunn_tanh(in("w"))))    \
    X(embedding, "tied", tied(model, in("tokens"), 11, 8, 3))                                         \
    X(embedding, "twice", twice(model, in("tokens"), in("others"), GPUNN_ZERO))                                   \
    X(gather, "last", gpunn_gather(in("x"), -1, in("index")))                                      \
    X(gather, "middle", gpunn_gather(in("x"), 1, in("index")))                                     \
    X(gather, "batch", gpunn_gather(in("x"), 0, in("index")))                                      \
    X(gather, "narrow", gpunn_gather(in("x"), 1, in("index")))                                     \
    X(gather, "i32", gpunn_gather(in("x"), 1, in("index")))                                        \
    X(gather, "many", gpunn_gather(in("x"), 1, in("index")))                                       \
    X(gather, "line", gpunn_gather(in("x"), 0, in("index")))
#define PICKS_GRADIENTS(X)                                                                                                      \
    X(embedding, XS(3, 4, 5), gpunn_mul(x, gpunn_embedding(indices(in, GPUNN_I64, GPUNN_SHAPE(3, 4), 6), "l",                   \
      .num_embeddings = 6, .embedding_dim = 5)))                                                                                \
    X(embedding_tied, XS(3, 4, 6), gpunn_mul(x, tied(in->f->model, indices(in, GPUNN_I32, GPUNN_SHAPE(3, 4), 6), 6, 8, 0)))     \
    X(embedding_computed, B("table", 3, 8), gpunn_embedding(indices(in, GPUNN_I64, GPUNN_SHAPE(3, 7), 4), "l",                  \
      .weight = gpunn_matmul(gpunn_matmul(x, x, .transpose_a = true), gpunn_matmul(x, x, .transpose_a = true))))                \
    X(gather, XS(3, 5, 2), gpunn_gather(x, 1, indices(in, GPUNN_I64, GPUNN_SHAPE(3, 7, 2), 5)))                                 \
    X(gather_last, XS(3, 2, 6), gpunn_mul(gpunn_gather(x, 2, indices(in, GPUNN_I32, GPUNN_SHAPE(3, 2, 3), 6)),                  \
      gpunn_slice(x, 2, 1, 4, 1)))                                                                                              \
    X(embedding_twice, indices(in, GPUNN_I32, GPUNN_SHAPE(3, 4), 9), (in->x[0] = NULL, twice(in->f->model, x, x, 0)))              \
    X(gather_narrow, XS(3, 5, 4), gpunn_gather(x, 1, indices(in, GPUNN_I64, GPUNN_SHAPE(3, 2, 3), 5)))
/* clang-format on */
