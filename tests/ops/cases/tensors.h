/* Integers, extremes with their places, diagonals in einsum, Fourier transforms: cases of golden.c
 * (tests/golden/tensors.safetensors) and of gradients.c. */

/* clang-format off */
#define INTEGER_CASES(X, name)                                        \
    X(integer, #name, gpunn_##name(in("a"), in("b")))                 \
    X(integer, #name "_i32", gpunn_##name(in("a"), in("b")))          \
    X(integer, #name "_u8", gpunn_##name(in("a"), in("b")))           \
    X(integer, #name "_broadcast", gpunn_##name(in("a"), in("b")))    \
    X(integer, #name "_mixed", gpunn_##name(in("a"), in("b")))
#define BOOL_CASE(X, name) X(integer, #name "_bool", gpunn_##name(in("a"), in("b")))
#define SCALAR_CASE(X, name, ENUM, value) X(integer, #name "_scalar", gpunn_integer_scalar(GPUNN_INTEGER_##ENUM, in("a"), value))
#define MOVED_CASES(X, dtype)                                                                   \
    X(integers, "permute_" dtype, gpunn_permute(in("x"), GPUNN_AXES(0, 2, 1)))                  \
    X(integers, "sum_" dtype, gpunn_sum(in("x"), GPUNN_AXES(1), false))                         \
    X(integers, "max_" dtype, gpunn_max(in("x"), GPUNN_AXES(2), false))                         \
    X(integers, "min_" dtype, gpunn_min(in("x"), GPUNN_AXES(1), false))                         \
    X(integers, "concat_" dtype, concat2(in("x"), in("x"), 2))                                  \
    X(integers, "gather_" dtype, gpunn_gather(in("x"), 1, in("index")))
#define EXTREME_CASES(X, name)                                                                            \
    X(name, "middle", gpunn_##name(in("x"), 1, false, NULL))                                              \
    X(name, "middle_indices", places_of_extreme(gpunn_##name, in("x"), 1, false))                         \
    X(name, "last", gpunn_##name(in("x"), -1, true, NULL))                                                \
    X(name, "last_indices", places_of_extreme(gpunn_##name, in("x"), -1, true))                           \
    X(name, "special", gpunn_##name(in("x"), 1, false, NULL))                                             \
    X(name, "special_indices", places_of_extreme(gpunn_##name, in("x"), 1, false))                        \
    X(name, "line", gpunn_##name(in("x"), 0, false, NULL))                                                \
    X(name, "line_indices", places_of_extreme(gpunn_##name, in("x"), 0, false))
#define RUNNING_CASES(X, name)                                                                            \
    X(name, "middle", gpunn_##name(in("x"), 1, NULL))                                                     \
    X(name, "middle_indices", places_of_running(gpunn_##name, in("x"), 1))                                \
    X(name, "last", gpunn_##name(in("x"), -1, NULL))                                                      \
    X(name, "last_indices", places_of_running(gpunn_##name, in("x"), -1))                                 \
    X(name, "first", gpunn_##name(in("x"), 0, NULL))                                                      \
    X(name, "first_indices", places_of_running(gpunn_##name, in("x"), 0))                                 \
    X(name, "special", gpunn_##name(in("x"), 1, NULL))                                                    \
    X(name, "special_indices", places_of_running(gpunn_##name, in("x"), 1))
#define FOURIER_CASES(X, name, n, axis, norm)                                        \
    X(rfft, name, gpunn_rfft(in("x"), axis, GPUNN_FFT_##norm))                       \
    X(irfft, name, gpunn_irfft(in("x"), n, axis, GPUNN_FFT_##norm))
#define TENSORS_CASES(X)                                                                       \
    INTEGER_CASES(X, add) INTEGER_CASES(X, sub) INTEGER_CASES(X, mul)                          \
    INTEGER_CASES(X, floor_divide) INTEGER_CASES(X, trunc_divide)                              \
    INTEGER_CASES(X, remainder) INTEGER_CASES(X, fmod)                                         \
    INTEGER_CASES(X, maximum) INTEGER_CASES(X, minimum)                                        \
    INTEGER_CASES(X, eq) INTEGER_CASES(X, ne) INTEGER_CASES(X, lt)                             \
    INTEGER_CASES(X, le) INTEGER_CASES(X, gt) INTEGER_CASES(X, ge)                             \
    INTEGER_CASES(X, logical_and) INTEGER_CASES(X, logical_or) INTEGER_CASES(X, logical_xor)   \
    BOOL_CASE(X, eq) BOOL_CASE(X, ne) BOOL_CASE(X, maximum) BOOL_CASE(X, minimum)              \
    BOOL_CASE(X, mul) BOOL_CASE(X, logical_and) BOOL_CASE(X, logical_or) BOOL_CASE(X, logical_xor) \
    X(integer, "neg", gpunn_neg(in("a"))) X(integer, "neg_u8", gpunn_neg(in("a")))             \
    X(integer, "abs", gpunn_abs(in("a"))) X(integer, "abs_u8", gpunn_abs(in("a")))             \
    X(integer, "sign", gpunn_sign(in("a"))) X(integer, "sign_u8", gpunn_sign(in("a")))         \
    X(integer, "logical_not", gpunn_logical_not(in("a")))                                      \
    X(integer, "logical_not_u8", gpunn_logical_not(in("a")))                                   \
    X(integer, "logical_not_bool", gpunn_logical_not(in("a")))                                 \
    SCALAR_CASE(X, add, ADD, ((int64_t)1 << 60) + 1) SCALAR_CASE(X, sub, SUB, -5)              \
    SCALAR_CASE(X, mul, MUL, -3) SCALAR_CASE(X, floor_divide, FLOOR_DIVIDE, -4)                \
    SCALAR_CASE(X, trunc_divide, TRUNC_DIVIDE, 4) SCALAR_CASE(X, remainder, REMAINDER, 10)     \
    SCALAR_CASE(X, fmod, FMOD, -3) SCALAR_CASE(X, maximum, MAXIMUM, 0)                         \
    SCALAR_CASE(X, minimum, MINIMUM, 9007199254740993) SCALAR_CASE(X, eq, EQ, 9007199254740993) \
    SCALAR_CASE(X, lt, LT, 0)                                                                  \
    X(integer, "where", gpunn_where(in("c"), in("a"), in("b")))                                \
    X(integer, "where_floats", gpunn_where(in("c"), in("a"), in("b")))                         \
    X(integer, "where_mixed", gpunn_where(in("c"), in("a"), in("b")))                          \
    X(integer, "chain", hashed(in("a"), in("b")))                                              \
    X(integers, "permute", gpunn_permute(in("x"), GPUNN_AXES(2, 0, 1)))                        \
    X(integers, "slice", gpunn_slice(in("x"), 1, 1, 4, 2))                                     \
    X(integers, "flip", gpunn_flip(in("x"), GPUNN_AXES(1, 2)))                                 \
    X(integers, "roll", gpunn_roll(in("x"), 2, 2))                                             \
    X(integers, "tile", gpunn_tile(in("x"), GPUNN_SHAPE(1, 2, 3)))                             \
    X(integers, "concat", concat2(in("x"), gpunn_integer_scalar(GPUNN_INTEGER_ADD, in("x"), 1), 1)) \
    X(integers, "stack", stack2(in("x"), in("x"), 1))                                          \
    X(integers, "pad", gpunn_pad(in("x"), .before = {0, 0, 1}, .after = {0, 0, 2}, .value = -7)) \
    X(integers, "expand", gpunn_expand(gpunn_slice(in("x"), 1, 0, 1, 1), GPUNN_SHAPE(GPUNN_BATCH, 9, 5))) \
    X(integers, "diagonal", gpunn_diagonal(in("x"), 0))                                        \
    X(integers, "chunk", second_chunk(in("x"), 2, 1))                                          \
    X(integers, "reshape", gpunn_reshape(in("x"), GPUNN_SHAPE(GPUNN_BATCH, 20)))               \
    X(integers, "sum", gpunn_sum(in("x"), GPUNN_AXES(0, 2), false))                            \
    X(integers, "sum_keep", gpunn_sum(in("x"), GPUNN_AXES(1), true))                           \
    X(integers, "total", gpunn_sum(in("x"), GPUNN_ALL, false))                                 \
    X(integers, "long", gpunn_sum(in("x"), GPUNN_AXES(1), false))                              \
    X(integers, "max", gpunn_max(in("x"), GPUNN_AXES(1), false))                               \
    X(integers, "min", gpunn_min(in("x"), GPUNN_AXES(1, 2), true))                             \
    X(integers, "cumsum", gpunn_cumsum(in("x"), 1))                                            \
    X(integers, "prod", gpunn_prod(in("x"), 1, false))                                         \
    X(integers, "argmax", gpunn_argmax(in("x"), 1, false))                                     \
    X(integers, "argmin", gpunn_argmin(in("x"), -1, true))                                     \
    X(integers, "cummax", gpunn_cummax(in("x"), 1))                                            \
    X(integers, "gather", gpunn_gather(in("x"), 2, in("index")))                               \
    X(integers, "index_select", gpunn_index_select(in("x"), 1, in("index")))                   \
    MOVED_CASES(X, "i32") MOVED_CASES(X, "u8") MOVED_CASES(X, "bool")                          \
    EXTREME_CASES(X, max_with_indices) EXTREME_CASES(X, min_with_indices)                      \
    RUNNING_CASES(X, cummax_with_indices) RUNNING_CASES(X, cummin_with_indices)                \
    X(logical_and, "floats", gpunn_logical_and(in("a"), in("b")))                              \
    X(logical_or, "floats", gpunn_logical_or(in("a"), in("b")))                                \
    X(logical_xor, "floats", gpunn_logical_xor(in("a"), in("b")))                              \
    X(trunc_divide, "floats", gpunn_trunc_divide(in("a"), in("b")))                            \
    X(trunc_divide, "ends", gpunn_trunc_divide(in("a"), in("b")))                              \
    X(scatter, "unique", gpunn_scatter(in("x"), 2, in("index"), in("src")))                    \
    X(scatter, "again", gpunn_scatter(in("x"), 1, in("index"), in("src")))                     \
    X(scatter, "many", gpunn_scatter(in("x"), 1, in("index"), in("src")))                      \
    X(scatter, "one", gpunn_scatter(in("x"), 1, in("index"), in("src")))                       \
    X(scatter, "few", gpunn_scatter(in("x"), -1, in("index"), in("src")))                      \
    X(scatter, "line", gpunn_scatter(in("x"), 0, in("index"), in("src")))                      \
    X(scatter, "integers", gpunn_scatter(in("x"), 1, in("index"), in("src")))                  \
    X(scatter, "bytes", gpunn_scatter(in("x"), 1, in("index"), in("src")))                     \
    X(einsum, "diagonal", einsum("ii->i", in("a"), NULL))                                      \
    X(einsum, "trace", einsum("ii", in("a"), NULL))                                            \
    X(einsum, "total", einsum("ii->", in("a"), NULL))                                          \
    X(einsum, "batch", einsum("bii->bi", in("a"), NULL))                                       \
    X(einsum, "turned", einsum("bii->ib", in("a"), NULL))                                      \
    X(einsum, "traces", einsum("...ii->...", in("a"), NULL))                                   \
    X(einsum, "times", einsum("bii,bij->bj", in("a"), in("b")))                                \
    X(einsum, "inner", einsum("biik,bk->bi", in("a"), in("b")))                                \
    X(einsum, "both", einsum("ii,jj->ij", in("a"), in("b")))                                   \
    X(einsum, "thrice", einsum("iii->i", in("a"), NULL))                                       \
    X(einsum, "pairs", einsum("ijij->ji", in("a"), NULL))                                      \
    FOURIER_CASES(X, "one", 1, -1, BACKWARD) FOURIER_CASES(X, "two", 2, -1, ORTHO)             \
    FOURIER_CASES(X, "odd", 7, 1, FORWARD) FOURIER_CASES(X, "even", 12, 2, ORTHO)              \
    FOURIER_CASES(X, "middle", 9, 1, BACKWARD) FOURIER_CASES(X, "batch", 5, 1, BACKWARD)       \
    FOURIER_CASES(X, "line", 10, 0, FORWARD) FOURIER_CASES(X, "factors", 120, -1, BACKWARD)    \
    FOURIER_CASES(X, "prime", 67, -1, ORTHO) FOURIER_CASES(X, "odd_factors", 135, 2, FORWARD)  \
    FOURIER_CASES(X, "large_primes", 323, -1, BACKWARD) FOURIER_CASES(X, "powers", 512, -1, ORTHO) \
    FOURIER_CASES(X, "far", 200, 1, BACKWARD)
#define TENSORS_GRADIENTS(X)                                                                                                    \
    X(index_select, XS(3, 5, 2), gpunn_square(gpunn_index_select(x, 0, indices(in, GPUNN_I64, GPUNN_SHAPE(3), 3))))             \
    X(index_add, XS(3, 5, 2), gpunn_mul(x, gpunn_index_add(x, 0, indices(in, GPUNN_I32, GPUNN_SHAPE(3), 3),                     \
      in->x[1] = B("src", 3, 5, 2))))                                                                                           \
    X(scatter, XS(3, 5, 2), gpunn_mul(x, gpunn_scatter(x, 1, indices(in, GPUNN_I64, GPUNN_SHAPE(3, 7, 2), 5),                    \
      in->x[1] = B("src", 3, 7, 2))))                                                                                           \
    X(scatter_itself, XS(3, 6), gpunn_square(gpunn_scatter(gpunn_sin(x), 1, indices(in, GPUNN_I32, GPUNN_SHAPE(3, 6), 6), x)))  \
    X(scatter_source, XS(3, 6), gpunn_mul(x, gpunn_scatter(gpunn_sin(x), 1, indices(in, GPUNN_I32, GPUNN_SHAPE(3, 6), 6), x)))  \
    X(max_with_indices, APART(3, 7), gpunn_mul(gpunn_max_with_indices(x, 1, true, NULL), x))                                    \
    X(min_with_indices, APART(3, 4, 2), gpunn_square(gpunn_min_with_indices(x, 1, false, NULL)))                                \
    X(cummax_with_indices, APART(3, 7), gpunn_mul(gpunn_cummax_with_indices(x, 1, NULL), gpunn_cummin_with_indices(x, 1, NULL))) \
    X(einsum_diagonal, XS(3, 4, 4), einsum("bii,bij->bj", x, x))                                                                \
    X(einsum_trace, XS(3, 2, 4, 4), gpunn_square(einsum("...ii->...", x, NULL)))                                                \
    X(rfft, XS(3, 12), gpunn_square(gpunn_rfft(x, 1, GPUNN_FFT_ORTHO)))                                                         \
    X(rfft_factors, XS(3, 66), gpunn_square(gpunn_rfft(x, -1, GPUNN_FFT_ORTHO)))                                                \
    X(irfft, XS(3, 4, 2, 2), gpunn_square(gpunn_irfft(x, 7, 1, GPUNN_FFT_BACKWARD)))                                            \
    X(irfft_factors, XS(3, 34, 2), gpunn_square(gpunn_irfft(x, 66, 1, GPUNN_FFT_ORTHO)))
/* clang-format on */
