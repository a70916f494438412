/* Elements that integers pick: cases of golden.c (tests/golden/picks.safetensors) and of gradients.c. */

/* A model that reads its words' vectors and, as torch's tied models, scores each word with them. */
static gpunn_tensor *tied(gpunn_model *m, gpunn_tensor *tokens, int words, int width, int padding)
{
    gpunn_tensor *h = gpunn_embedding(tokens, "l", .num_embeddings = words, .embedding_dim = width,
                                      .padding_idx = padding);
    return gpunn_linear(gpunn_tanh(h), "head", .weight = gpunn_find(m, "l.weight"));
}

/* The same table read by two layers. */
static gpunn_tensor *twice(gpunn_model *m, gpunn_tensor *one, gpunn_tensor *other, int padding)
{
    gpunn_tensor *a = gpunn_embedding(one, "l", .num_embeddings = 9, .embedding_dim = 8);
    return gpunn_mul(
        a, gpunn_embedding(other, "m", .weight = gpunn_find(m, "l.weight"), .padding_idx = padding));
}

/* One of the two results. */
static gpunn_tensor *topk(gpunn_tensor *x, int k, int axis, bool largest, bool indices)
{
    gpunn_tensor *places = NULL, *values = gpunn_topk(x, k, axis, largest, &places);
    return indices ? places : values;
}
static gpunn_tensor *einsum(const char *equation, gpunn_tensor *a, gpunn_tensor *b)
{
    gpunn_tensor *tensors[] = {a, b};
    return gpunn_einsum(equation, tensors, b ? 2 : 1);
}
/* The sum of the grids of those that are given, each times its number, times the last. */
static gpunn_tensor *meshgrid(gpunn_tensor *a, gpunn_tensor *b, gpunn_tensor *c, gpunn_indexing indexing)
{
    gpunn_tensor *coordinates[] = {a, b, c}, *grids[3], *sum = NULL;
    const int     count = c ? 3 : b ? 2 : 1;
    if (gpunn_meshgrid(coordinates, count, indexing, grids) != GPUNN_OK) return NULL;
    for (int i = 0; i < count; i++) {
        gpunn_tensor *part = gpunn_mul_scalar(grids[i], (float)(i + 1));
        sum = i ? gpunn_add(sum, part) : part;
    }
    return gpunn_mul(sum, grids[count - 1]);
}
static gpunn_tensor *stack2(gpunn_tensor *a, gpunn_tensor *b, int axis)
{
    gpunn_tensor *tensors[] = {a, b};
    return gpunn_stack(tensors, 2, axis);
}
/* Each part times its number, joined again. */
static gpunn_tensor *parted(gpunn_tensor *x, int size, int chunks, int axis)
{
    gpunn_tensor *parts[8];
    int count = size ? gpunn_split(x, size, axis, parts, 8) : gpunn_chunk(x, chunks, axis, parts, 8);
    for (int i = 0; i < count; i++) parts[i] = gpunn_mul_scalar(parts[i], (float)(i + 1));
    return gpunn_concat(parts, count, axis);
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
    X(embedding, "sparse", WORDS(11, 8, .padding_idx = 2, .sparse = true))                         \
    X(embedding, "sparse_one", WORDS(1, 3, .sparse = true))                                        \
    X(embedding, "computed", gpunn_embedding(in("tokens"), "l", .weight = gpunn_tanh(in("w"))))    \
    X(embedding, "tied", tied(model, in("tokens"), 11, 8, 3))                                         \
    X(embedding, "twice", twice(model, in("tokens"), in("others"), GPUNN_ZERO))                                   \
    X(gather, "last", gpunn_gather(in("x"), -1, in("index")))                                      \
    X(gather, "middle", gpunn_gather(in("x"), 1, in("index")))                                     \
    X(gather, "batch", gpunn_gather(in("x"), 0, in("index")))                                      \
    X(gather, "narrow", gpunn_gather(in("x"), 1, in("index")))                                     \
    X(gather, "i32", gpunn_gather(in("x"), 1, in("index")))                                        \
    X(gather, "many", gpunn_gather(in("x"), 1, in("index")))                                       \
    X(gather, "line", gpunn_gather(in("x"), 0, in("index")))                                       \
    X(scatter_add, "last", gpunn_scatter_add(in("x"), -1, in("index"), in("src")))                 \
    X(scatter_add, "middle", gpunn_scatter_add(in("x"), 1, in("index"), in("src")))                \
    X(scatter_add, "i32", gpunn_scatter_add(in("x"), 1, in("index"), in("src")))                   \
    X(scatter_add, "many", gpunn_scatter_add(in("x"), 1, in("index"), in("src")))                  \
    X(scatter_add, "line", gpunn_scatter_add(in("x"), 0, in("index"), in("src")))                  \
    X(gather_nd, "pixels", gpunn_gather_nd(in("x"), in("index"), 1))                               \
    X(gather_nd, "one", gpunn_gather_nd(in("x"), in("index"), 1))                                  \
    X(gather_nd, "all", gpunn_gather_nd(in("x"), in("index"), 1))                                  \
    X(gather_nd, "rows", gpunn_gather_nd(in("x"), in("index"), 2))                                 \
    X(gather_nd, "samples", gpunn_gather_nd(in("x"), in("index"), 0))                              \
    X(gather_nd, "sample", gpunn_gather_nd(in("x"), in("index"), 0))                               \
    X(gather_nd, "again", gpunn_gather_nd(in("x"), in("index"), 1))                                \
    X(gather_nd, "element", gpunn_gather_nd(in("x"), in("index"), 0))                              \
    X(meshgrid, "ij", meshgrid(in("a"), in("b"), in("c"), GPUNN_INDEXING_IJ))                                          \
    X(meshgrid, "xy", meshgrid(in("a"), in("b"), in("c"), GPUNN_INDEXING_XY))                                          \
    X(meshgrid, "pair", meshgrid(in("a"), in("b"), NULL, GPUNN_INDEXING_XY))                                        \
    X(meshgrid, "one", meshgrid(in("a"), NULL, NULL, GPUNN_INDEXING_XY))                                         \
    X(index_select, "middle", gpunn_index_select(in("x"), 1, in("index")))                         \
    X(index_add, "middle", gpunn_index_add(in("x"), 1, in("index"), in("src")))                    \
    X(topk, "values", topk(in("x"), 3, -1, true, false))                                           \
    X(topk, "indices", topk(in("x"), 3, -1, true, true))                                           \
    X(topk, "smallest", topk(in("x"), 2, 1, false, false))                                         \
    X(topk, "smallest_indices", topk(in("x"), 2, 1, false, true))                                  \
    X(topk, "all", topk(in("x"), 70, 1, true, true))                                               \
    X(topk, "ties", topk(in("x"), 5, -1, true, true))                                              \
    X(topk, "special", topk(in("x"), 5, -1, true, true))                                           \
    X(topk, "special_smallest", topk(in("x"), 5, -1, false, true))                                 \
    X(argmin, "plain", gpunn_argmin(in("x"), 1, false))                                            \
    X(argmin, "special", gpunn_argmin(in("x"), -1, true))                                          \
    X(cumsum, "last", gpunn_cumsum(in("x"), -1))                                                   \
    X(cumsum, "middle", gpunn_cumsum(in("x"), 1))                                                  \
    X(cumsum, "batch", gpunn_cumsum(in("x"), 0))                                                   \
    X(cross, "last", gpunn_cross(in("a"), in("b"), -1))                                            \
    X(cross, "middle", gpunn_cross(in("a"), in("b"), 1))                                           \
    X(cross, "batch", gpunn_cross(in("a"), in("b"), 0))                                            \
    X(cross, "line", gpunn_cross(in("a"), in("b"), 0))                                             \
    X(cross, "wide", gpunn_cross(in("a"), in("b"), 1))                                             \
    X(cross, "many", gpunn_cross(in("a"), in("b"), -1))                                            \
    X(cross, "same", gpunn_cross(in("a"), gpunn_cross(in("a"), in("b"), 1), 1))                    \
    X(cross, "ends", gpunn_cross(in("a"), in("b"), 1))                                             \
    X(searchsorted, "left", gpunn_searchsorted(in("s"), in("v")))                                  \
    X(searchsorted, "left_i64", gpunn_searchsorted(in("s"), in("v")))                              \
    X(searchsorted, "left_i32", gpunn_searchsorted(in("s"), in("v")))                              \
    X(searchsorted, "left_u8", gpunn_searchsorted(in("s"), in("v")))                               \
    X(searchsorted, "left_ends", gpunn_searchsorted(in("s"), in("v")))                             \
    X(searchsorted, "right", gpunn_searchsorted(in("s"), in("v"), .right = true))                  \
    X(searchsorted, "right_i64", gpunn_searchsorted(in("s"), in("v"), .right = true))              \
    X(searchsorted, "right_i32", gpunn_searchsorted(in("s"), in("v"), .right = true))              \
    X(searchsorted, "right_u8", gpunn_searchsorted(in("s"), in("v"), .right = true))               \
    X(searchsorted, "right_ends", gpunn_searchsorted(in("s"), in("v"), .right = true))             \
    X(searchsorted, "one", gpunn_searchsorted(in("s"), in("v")))                                   \
    X(searchsorted, "line", gpunn_searchsorted(in("s"), in("v")))                                  \
    X(searchsorted, "many", gpunn_searchsorted(in("s"), in("v")))                                  \
    X(bucketize, "plain", gpunn_bucketize(in("x"), in("b"), .right = true))                        \
    X(bucketize, "scalars", gpunn_bucketize(in("x"), in("b"), .right = true))                      \
    X(logcumsumexp, "last", gpunn_logcumsumexp(in("x"), -1))                                       \
    X(logcumsumexp, "middle", gpunn_logcumsumexp(in("x"), 1))                                      \
    X(logcumsumexp, "batch", gpunn_logcumsumexp(in("x"), 0))                                       \
    X(logcumsumexp, "long", gpunn_logcumsumexp(in("x"), 1))                                        \
    X(logcumsumexp, "columns", gpunn_logcumsumexp(in("x"), 1))                                     \
    X(logcumsumexp, "one", gpunn_logcumsumexp(in("x"), 1))                                         \
    X(logcumsumexp, "ends", gpunn_logcumsumexp(in("x"), 1))                                        \
    X(logcumsumexp, "falling", gpunn_logcumsumexp(in("x"), 1))                                     \
    X(logcumsumexp, "rising", gpunn_logcumsumexp(in("x"), 1))                                      \
    X(logcumsumexp, "steep", gpunn_logcumsumexp(in("x"), 1))                                       \
    X(cumsum, "long", gpunn_cumsum(in("x"), 1))                                                    \
    X(one_hot, "plain", gpunn_one_hot(in("index"), 5))                                             \
    X(one_hot, "u8", gpunn_one_hot(in("index"), 5))                                                \
    X(expand, "middle", gpunn_expand(in("x"), GPUNN_SHAPE(GPUNN_BATCH, 4, 5)))                     \
    X(expand, "front", gpunn_expand(in("x"), GPUNN_SHAPE(2, GPUNN_BATCH, 3)))                      \
    X(expand, "last", gpunn_expand(in("x"), GPUNN_SHAPE(GPUNN_BATCH, 3, 9)))                       \
    X(expand, "batch", gpunn_mul(gpunn_expand(in("x"), GPUNN_SHAPE(GPUNN_BATCH, 3, 5)), in("y")))  \
    X(tile, "plain", gpunn_tile(in("x"), GPUNN_SHAPE(2, 1, 3)))                                    \
    X(tile, "front", gpunn_tile(in("x"), GPUNN_SHAPE(3, 1, 2)))                                    \
    X(stack, "middle", stack2(in("a"), in("b"), 1))                                                \
    X(stack, "last", stack2(in("a"), in("b"), -1))                                                 \
    X(split, "size", parted(in("x"), 3, 0, 1))                                                     \
    X(split, "chunk", parted(in("x"), 0, 4, -1))                                                   \
    X(where, "bool", gpunn_where(gpunn_cast(in("c"), GPUNN_BOOL), in("a"), in("b")))               \
    X(where, "i64", gpunn_where(in("c"), in("a"), in("b")))                                        \
    X(einsum, "scores", einsum("nhid,nhjd->nhij", in("a"), in("b")))                               \
    X(einsum, "turned", einsum("nhid, nhjd -> njih", in("a"), in("b")))                            \
    X(einsum, "one_side", einsum("nhid,jd->nhij", in("a"), in("m")))                               \
    X(einsum, "other_side", einsum("jd,nhid->nhij", in("m"), in("a")))                             \
    X(einsum, "vector", einsum("ij,j", in("m"), in("v")))                                          \
    X(einsum, "outer", einsum("i,j->ji", in("v"), in("v")))                                        \
    X(einsum, "dot", einsum("i,i->", in("v"), in("v")))                                            \
    X(einsum, "times", einsum("nhid,d->ndih", in("a"), in("v")))                                   \
    X(einsum, "alone", einsum("nhid,ij->nd", in("a"), in("m")))                                    \
    X(einsum, "transposed", einsum("ba", in("m"), NULL))                                           \
    X(einsum, "total", einsum("abcd->", in("a"), NULL))                                            \
    X(einsum, "batch", einsum("nhid,mhid->nm", in("a"), in("a")))                                  \
    X(einsum, "dots", einsum("...id,...jd->...ij", in("a"), in("b")))                              \
    X(einsum, "dots_turned", einsum("n...id, ...jd -> j...in", in("a"), in("u")))                  \
    X(einsum, "dots_implicit", einsum("...lk,ik", in("a"), in("m")))                               \
    X(einsum, "dots_times", einsum("nh...,...->n...h", in("a"), in("m")))                          \
    X(einsum, "dots_summed", einsum("...d,...d->d", in("a"), in("m")))                             \
    X(einsum, "dots_of_one", einsum("...hid->d...h", in("a"), NULL))                               \
    X(einsum, "dots_total", einsum("...->", in("a"), NULL))                                        \
    X(einsum, "dots_nothing", einsum("...nhid,d...->hn", in("a"), in("v")))                        \
    X(unfold, "plain", gpunn_unfold(in("x"), .kernel_shape = {2, 3})) \
    X(fold, "plain", gpunn_fold(in("x"), .kernel_shape = {2, 3}, .output_size = {4, 5})) \
    X(unfold, "one", gpunn_unfold(in("x"), .kernel_size = 1)) \
    X(fold, "one", gpunn_fold(in("x"), .kernel_size = 1, .output_size = {1, 1})) \
    X(unfold, "all", gpunn_unfold(in("x"), .kernel_shape = {3, 2}, .strides = {3, 2}, .paddings = {1, 2}, .dilations = {2, 1})) \
    X(fold, "all", gpunn_fold(in("x"), .kernel_shape = {3, 2}, .strides = {3, 2}, .paddings = {1, 2}, .dilations = {2, 1}, .output_size = {9, 7})) \
    X(unfold, "apart", gpunn_unfold(in("x"), .kernel_size = 2, .stride = 3)) \
    X(fold, "apart", gpunn_fold(in("x"), .kernel_size = 2, .stride = 3, .output_size = {8, 9})) \
    X(unfold, "patches", gpunn_unfold(in("x"), .kernel_size = 4, .stride = 4)) \
    X(fold, "patches", gpunn_fold(in("x"), .kernel_size = 4, .stride = 4, .output_size = {8, 12})) \
    X(unfold, "wide", gpunn_unfold(in("x"), .kernel_shape = {1, 67}, .stride = 2)) \
    X(fold, "wide", gpunn_fold(in("x"), .kernel_shape = {1, 67}, .stride = 2, .output_size = {2, 71})) \
    X(flip, "two", gpunn_flip(in("x"), GPUNN_AXES(1, -1)))                                         \
    X(flip, "all", gpunn_flip(in("x"), GPUNN_ALL))                                                 \
    X(roll, "forth", gpunn_roll(in("x"), 3, 2))                                                    \
    X(roll, "back", gpunn_roll(in("x"), -13, -3))                                                  \
    X(pixel_shuffle, "plain", gpunn_pixel_shuffle(in("x"), 2))                                     \
    X(pixel_unshuffle, "plain", gpunn_pixel_unshuffle(in("x"), 2))                                 \
    X(depth_to_space, "plain", gpunn_depth_to_space(in("x"), 2))                                   \
    X(space_to_depth, "plain", gpunn_space_to_depth(in("x"), 2))                                   \
    X(glu, "last", gpunn_glu(in("x"), -1))                                                         \
    X(glu, "channels", gpunn_glu(in("x"), 1))                                                      \
    X(bilinear, "plain", gpunn_bilinear(in("x"), in("y"), "l", .out_features = 4))                 \
    X(bilinear, "no_bias", gpunn_bilinear(in("x"), in("y"), "l", .out_features = 1, .no_bias = true)) \
    X(bilinear, "rows", gpunn_bilinear(in("x"), in("y"), "l", .out_features = 7))                  \
    X(tril, "plain", gpunn_tril(in("x"), 0))                                                       \
    X(tril, "above", gpunn_tril(in("x"), 1))                                                       \
    X(triu, "below", gpunn_triu(in("x"), -2))                                                      \
    X(diagonal, "right", gpunn_diagonal(in("x"), 3))                                               \
    X(diagonal, "left", gpunn_diagonal(in("x"), -1))                                               \
    X(masked_fill, "rows", gpunn_masked_fill(in("x"), in("mask"), -2.5f))                          \
    X(masked_fill, "infinite", gpunn_masked_fill(in("x"), gpunn_cast(in("mask"), GPUNN_BOOL), -INFINITY)) \
    X(sort, "values", gpunn_sort(in("x"), 1, false, NULL))                                         \
    X(argsort, "falling", gpunn_argsort(in("x"), -1, true))                                        \
    X(min, "two", gpunn_min(in("x"), GPUNN_AXES(0, 2), false))                                     \
    X(var, "plain", gpunn_var(in("x"), GPUNN_AXES(1), 1, false))                                   \
    X(var, "far", gpunn_var(in("x"), GPUNN_AXES(-1), 1, false))                                    \
    X(var, "all", gpunn_var(in("x"), GPUNN_ALL, 0, false))                                         \
    X(std, "two", gpunn_std(in("x"), GPUNN_AXES(1, 2), 1, true))                                   \
    X(std, "same", gpunn_std(in("x"), GPUNN_AXES(2), 0, false))                                    \
    X(norm, "two", gpunn_norm(in("x"), 2, GPUNN_AXES(1, 2), false))                                \
    X(norm, "one", gpunn_norm(in("x"), 1, GPUNN_AXES(-1), true))                                   \
    X(norm, "half", gpunn_norm(in("x"), 2.5f, GPUNN_AXES(1), false))                               \
    X(norm, "largest", gpunn_norm(in("x"), INFINITY, GPUNN_ALL, false))                            \
    X(logsumexp, "two", gpunn_logsumexp(in("x"), GPUNN_AXES(0, 2), false))                         \
    X(logsumexp, "large", gpunn_logsumexp(in("x"), GPUNN_AXES(1), true))                           \
    X(logsumexp, "ends", gpunn_logsumexp(in("x"), GPUNN_AXES(1), false))                           \
    X(prod, "odd", gpunn_prod(in("x"), 1, false))                                                  \
    X(prod, "zeros", gpunn_prod(in("x"), 1, true))                                                 \
    X(cumprod, "odd", gpunn_cumprod(in("x"), 1))                                                   \
    X(cumprod, "zeros", gpunn_cumprod(in("x"), 1))                                                 \
    X(cummax, "odd", gpunn_cummax(in("x"), 1))                                                     \
    X(cummin, "last", gpunn_cummin(in("x"), -1))                                                   \
    X(cdist, "p1", gpunn_cdist(in("a"), in("b"), 1))                                               \
    X(cdist, "p2", gpunn_cdist(in("a"), in("b"), 2))                                               \
    X(cdist, "p2.5", gpunn_cdist(in("a"), in("b"), 2.5f))                                          \
    X(cdist, "pinf", gpunn_cdist(in("a"), in("b"), INFINITY))                                      \
    X(cdist, "leading", gpunn_cdist(in("a"), in("b"), 2))                                          \
    X(cdist, "same", gpunn_cdist(in("a"), in("a"), 2))                                             \
    X(pairwise_distance, "p1", gpunn_pairwise_distance(in("a"), in("b"), 1, 1e-6f))                \
    X(pairwise_distance, "p2", gpunn_pairwise_distance(in("a"), in("b"), 2, 1e-6f))                \
    X(pairwise_distance, "p2.5", gpunn_pairwise_distance(in("a"), in("b"), 2.5f, 1e-6f))           \
    X(pairwise_distance, "pinf", gpunn_pairwise_distance(in("a"), in("b"), INFINITY, 1e-6f))
#define PICKS_GRADIENTS(X)                                                                                                      \
    X(embedding, XS(3, 4, 5), gpunn_mul(x, gpunn_embedding(indices(in, GPUNN_I64, GPUNN_SHAPE(3, 4), 6), "l",                   \
      .num_embeddings = 6, .embedding_dim = 5)))                                                                                \
    X(embedding_sparse, XS(3, 4, 5), gpunn_mul(x, gpunn_embedding(indices(in, GPUNN_I32, GPUNN_SHAPE(3, 4), 6), "l",            \
      .num_embeddings = 6, .embedding_dim = 5, .padding_idx = 2, .sparse = true)))                                              \
    X(embedding_tied, XS(3, 4, 6), gpunn_mul(x, tied(in->f->model, indices(in, GPUNN_I32, GPUNN_SHAPE(3, 4), 6), 6, 8, 0)))     \
    X(embedding_computed, B("table", 3, 8), gpunn_embedding(indices(in, GPUNN_I64, GPUNN_SHAPE(3, 7), 4), "l",                  \
      .weight = gpunn_matmul(gpunn_matmul(x, x, .transpose_a = true), gpunn_matmul(x, x, .transpose_a = true))))                \
    X(gather, XS(3, 5, 2), gpunn_gather(x, 1, indices(in, GPUNN_I64, GPUNN_SHAPE(3, 7, 2), 5)))                                 \
    X(gather_last, XS(3, 2, 6), gpunn_mul(gpunn_gather(x, 2, indices(in, GPUNN_I32, GPUNN_SHAPE(3, 2, 3), 6)),                  \
      gpunn_slice(x, 2, 1, 4, 1)))                                                                                              \
    X(gather_nd, XS(3, 5, 2), gpunn_mul(gpunn_gather_nd(x, indices(in, GPUNN_I64, GPUNN_SHAPE(3, 5, 2), 2), 1),                 \
      gpunn_sum(x, GPUNN_AXES(2), false)))                                                                                      \
    X(meshgrid, XS(3, 4), meshgrid(gpunn_sum(x, GPUNN_AXES(0), false), gpunn_sum(gpunn_sin(x), GPUNN_AXES(0), false),           \
      gpunn_slice(gpunn_sum(x, GPUNN_AXES(0), false), 0, 1, 3, 1), GPUNN_INDEXING_XY))                                          \
    X(scatter_add, XS(3, 5, 2), gpunn_mul(x, gpunn_scatter_add(x, 1, indices(in, GPUNN_I64, GPUNN_SHAPE(3, 7, 2), 5),           \
      in->x[1] = B("src", 3, 7, 2))))                                                                                           \
    X(scatter_add_itself, XS(3, 6), gpunn_scatter_add(x, 1, indices(in, GPUNN_I32, GPUNN_SHAPE(3, 6), 6), x))                   \
    X(embedding_twice, indices(in, GPUNN_I32, GPUNN_SHAPE(3, 4), 9), (in->x[0] = NULL, twice(in->f->model, x, x, 0)))              \
    X(topk, APART(3, 7), gpunn_square(topk(x, 3, 1, true, false)))                                                              \
    X(topk_smallest, APART(3, 4, 2), topk(x, 2, 1, false, false))                                                               \
    X(cumsum, XS(3, 9), gpunn_cumsum(x, 1))                                                                                     \
    X(cross, XS(3, 4, 3), gpunn_cross(x, in->x[1] = B("b", 3, 4, 3), 2))                                     \
    X(cross_itself, XS(3, 3, 2), gpunn_cross(x, gpunn_square(x), 1))                                         \
    X(logcumsumexp, XS(3, 9, 2), gpunn_logcumsumexp(x, 1))                                                   \
    X(cumsum_twice, XS(3, 4, 2), gpunn_mul(gpunn_cumsum(x, 1), gpunn_cumsum(x, 0)))                                             \
    X(expand, XS(3, 1, 4), gpunn_expand(x, GPUNN_SHAPE(GPUNN_BATCH, 5, 4)))                                                     \
    X(expand_twice, XS(3, 1), gpunn_mul(gpunn_expand(x, GPUNN_SHAPE(2, GPUNN_BATCH, 7)), x))                                    \
    X(tile, XS(3, 2, 3), gpunn_square(gpunn_tile(x, GPUNN_SHAPE(3, 2))))                                                     \
    X(stack, XS(3, 2), stack2(x, gpunn_tanh(x), 1))                                                                             \
    X(split, XS(3, 7), parted(x, 3, 0, 1))                                                                                      \
    X(einsum, XS(3, 2, 4), einsum("nij,nkj->nki", x, in->x[1] = B("b", 3, 5, 4)))                                               \
    X(einsum_dots, XS(3, 1, 4), einsum("n...j,n...kj->k...n", x, in->x[1] = B("b", 3, 2, 5, 4)))                                  \
    X(einsum_times, XS(3, 4), einsum("ni,i->in", x, constant(in, 4)))                                                           \
    X(gather_narrow, XS(3, 5, 4), gpunn_gather(x, 1, indices(in, GPUNN_I64, GPUNN_SHAPE(3, 2, 3), 5)))                          \
    X(flip, XS(3, 2, 5), gpunn_mul(x, gpunn_flip(x, GPUNN_ALL)))                                                                \
    X(roll, XS(3, 7), gpunn_mul(x, gpunn_roll(x, 2, 1)))                                                                        \
    X(glu, XS(3, 4, 3), gpunn_glu(x, 1))                                                                                        \
    X(bilinear, XS(3, 4), gpunn_bilinear(x, gpunn_tanh(x), "l", .out_features = 3))                                             \
    X(depth_to_space, XS(3, 4, 2, 1), gpunn_square(gpunn_space_to_depth(gpunn_depth_to_space(x, 2), 2)))                        \
    X(pixel_shuffle, XS(3, 4, 2, 1), gpunn_square(gpunn_pixel_unshuffle(gpunn_pixel_shuffle(x, 2), 2)))                         \
    X(unfold, XS(3, 2, 5, 4), gpunn_square(gpunn_unfold(x, .kernel_shape = {2, 3}, .paddings = {1}, .stride = 2))) \
    X(fold, XS(3, 8, 6), gpunn_square(gpunn_fold(x, .kernel_size = 2, .padding = 1, .dilation = 2, .output_size = {3, 2}))) \
    X(triangles, XS(3, 4, 5), gpunn_mul(gpunn_tril(x, 0), gpunn_triu(x, -1)))                                                   \
    X(sort, APART(3, 7), gpunn_square(gpunn_sort(x, 1, false, NULL)))                                                           \
    X(min, APART(3, 4, 2), gpunn_min(x, GPUNN_AXES(1, 2), false))                                                               \
    X(var, XS(3, 4, 2), gpunn_var(x, GPUNN_AXES(1, 2), 1, true))                                                                \
    X(std, XS(3, 6), gpunn_std(x, GPUNN_AXES(1), 1, false))                                                                     \
    X(norm, XS(3, 6), gpunn_norm(x, 2, GPUNN_AXES(1), false))                                                                   \
    X(norm_of_order, APART(3, 6), gpunn_norm(x, 3, GPUNN_AXES(1), true))                                                        \
    X(logsumexp, XS(3, 4, 2), gpunn_logsumexp(x, GPUNN_AXES(0, 2), false))                                                      \
    X(prod, XS(3, 5), gpunn_prod(x, 1, false))                                                                                  \
    X(cumprod, XS(3, 5), gpunn_cumprod(x, 1))                                                                                   \
    X(cummax, APART(3, 7), gpunn_mul(gpunn_cummax(x, 1), gpunn_cummin(x, 1)))                                                   \
    X(diagonal, XS(3, 4, 5), gpunn_square(gpunn_diagonal(x, 1)))                                                                \
    X(masked_fill, XS(3, 4, 5), gpunn_square(gpunn_masked_fill(x, constant(in, 5), 3)))                                         \
    X(cdist, XS(3, 4, 2), gpunn_cdist(x, in->x[1] = B("b", 3, 5, 2), 2))                                                        \
    X(pairwise_distance, XS(3, 6), gpunn_pairwise_distance(x, in->x[1] = B("b", 3, 6), 3, 0.01f))
/* clang-format on */
