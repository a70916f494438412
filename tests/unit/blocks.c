/* Weights stored as blocks of 4 to 8 bits: products and embeddings against those of the dequantised weights,
 * storage, files, bound memory, and what is refused. */
#include "../test.h"

#include "../emulator/caller.h"

#pragma weak caller_malloc
#pragma weak caller_free
#pragma weak caller_put
#pragma weak caller_get
#pragma weak caller_legacy_stream

static const struct {
    gpunn_dtype dtype;
    int64_t     length;
    size_t      bytes;
} formats[] = {
#define X(id, name, length, bytes) {id, length, bytes},
    GPUNN_BLOCK_LIST(X)
#undef X
};

/* Blocks in memory that gpunn_bind_as takes: on the emulated GPU a copy in its memory. */
static void *lend(unsigned char *blocks, size_t bytes)
{
    if (!is_emulated(first_backend())) return blocks;
    void         *memory = caller_malloc(bytes);
    unsigned char first;
    caller_put(memory, blocks, bytes, caller_legacy_stream());
    caller_get(&first, memory, 1, caller_legacy_stream()); /* waits */
    return memory;
}

static void take_back(void *lent, const unsigned char *blocks)
{
    if (lent != blocks) caller_free(lent);
}

static bool on_cpu(void)
{
    return first_backend()->type == GPUNN_DEVICE_CPU;
}

/* ---- a linear layer whose weight is bound to random blocks ---- */
typedef struct layer {
    gpunn_device *dev;
    gpunn_model  *model;
    gpunn_tensor *x, *y, *weight;
} layer;

/* dtype: of .weights. */
static layer layer_of(int threads, gpunn_dtype dtype, gpunn_precision precision, int k, int n)
{
    layer l;
    l.dev = gpunn_device_open(ON(first_backend()), .seed = 3, .threads = threads);
    assert_non_null(l.dev);
    l.model = MADE(l.dev,
                   gpunn_model_create(l.dev, .inference = true, .weights = dtype, .precision = precision));
    l.x = MADE(l.dev, gpunn_input(l.model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, k)));
    l.y = MADE(l.dev, gpunn_linear(l.x, "l", .out_features = n));
    l.weight = gpunn_find(l.model, "l.weight");
    return l;
}

static layer layer_open(int threads, gpunn_dtype dtype, int k, int n)
{
    return layer_of(threads, dtype, GPUNN_PRECISION_F32, k, n);
}

static void layer_close(layer *l)
{
    gpunn_model_destroy(l->model);
    gpunn_device_close(l->dev);
}

/* y [m, n] of x [m, k]. */
static void layer_run(layer *l, const float *x, int m, int k, float *y, int n)
{
    OK(l->dev, gpunn_write(l->x, x, (size_t)(m * k) * sizeof *x));
    OK(l->dev, gpunn_forward(&l->y, 1));
    OK(l->dev, gpunn_read(l->y, y, (size_t)(m * n) * sizeof *y));
}

/* Where F16 scales stand in a block, 2 bytes each. An F32 scale has its exponent in its last 2. */
static int scale_of(int f)
{
    return formats[f].dtype == GPUNN_Q6_K ? 208 : formats[f].dtype == GPUNN_NF4 ? 2 : 0;
}

/* The scale of block b becomes NaN. */
static void spoil(int f, unsigned char *blocks, int64_t b)
{
    unsigned char *scale = blocks + (size_t)b * formats[f].bytes + scale_of(f);
    scale[0] = formats[f].dtype == GPUNN_NF4 ? 0xc0 : 0;
    scale[1] = formats[f].dtype == GPUNN_NF4 ? 0x7f : 0x7e;
}

/* Blocks of random bits, with scales of about 2^-7. */
static unsigned char *random_blocks(int f, int64_t count, uint32_t seed)
{
    const size_t   bytes = formats[f].bytes, size = (size_t)(count / formats[f].length) * bytes;
    unsigned char *blocks = malloc(size + 1); /* at an odd address below */
    for (size_t i = 0; i < size; i++) blocks[i] = (unsigned char)(128 + 127 * test_random(&seed));
    for (unsigned char *b = blocks; b < blocks + size; b += bytes) {
        unsigned char *scale = b + scale_of(f);
        for (int i = 1; i < (scale == b && (formats[f].length == 256 || bytes % 4 == 0) ? 4 : 2); i += 2)
            scale[i] = (unsigned char)(0x1c | (scale[i] & 0x83));
        if (formats[f].dtype == GPUNN_NF4) scale[1] = 0x3c; /* 2^-7 to 2^-6 */
    }
    return blocks;
}

/* y = x w^T + bias in double, and how far rounding x to 8 bits by groups of 32 may move each element. */
static void expected_product(const float *x, const float *w, const float *bias, int m, int k, int n,
                             bool rounds, double *y, double *allowed)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = bias[j], size = fabs((double)bias[j]), error = 0;
            for (int g = 0; g < k; g += 32) {
                double most = 0, weights = 0;
                for (int p = g; p < g + 32; p++) {
                    most = fmax(most, fabs((double)x[i * k + p]));
                    weights += fabs((double)w[j * k + p]);
                    sum += (double)x[i * k + p] * (double)w[j * k + p];
                    size += fabs((double)x[i * k + p] * (double)w[j * k + p]);
                }
                error += most / 254 * weights;
            }
            y[i * n + j] = sum;
            allowed[i * n + j] = (rounds ? 1.001 * error : 0) + 1e-5 * size;
        }
}

/* whole: x has whole numbers to 127 in each group, which 8 bits hold as they are. */
static void check_product(int f, int m, int k, int n, bool whole)
{
    layer one = layer_open(1, GPUNN_DTYPE_DEFAULT, k, n), four = layer_open(4, GPUNN_DTYPE_DEFAULT, k, n);
    unsigned char *blocks = random_blocks(f, (int64_t)k * n, (uint32_t)(k + n));
    const size_t   size = (size_t)(k / formats[f].length * n) * formats[f].bytes;
    if (on_cpu()) memmove(blocks + 1, blocks, size); /* memory of a file has any alignment */
    unsigned char *const from = blocks + on_cpu();
    void *const          lent = lend(from, size);
    OK(one.dev, gpunn_bind_as(one.weight, formats[f].dtype, lent, size));
    OK(four.dev, gpunn_bind_as(four.weight, formats[f].dtype, lent, size));
    float *x = test_randoms((int64_t)m * k, 7, 2), *w = malloc((size_t)(n * k) * sizeof *w),
          *bias = malloc((size_t)n * sizeof *bias), *y = malloc((size_t)(m * n) * sizeof *y),
          *shared = malloc((size_t)(m * n) * sizeof *y);
    double *expected = malloc((size_t)(m * n) * sizeof *expected),
           *allowed = malloc((size_t)(m * n) * sizeof *allowed);
    for (int i = 0; i < m * k && whole; i++) x[i] = (float)(i % 32 ? i * 37 % 255 - 127 : 127);
    memset(x, 0, 32 * sizeof *x); /* a group without a scale */
    layer_run(&one, x, m, k, y, n);
    layer_run(&four, x, m, k, shared, n);
    assert_memory_equal(y, shared, (size_t)(m * n) * sizeof *y);
    OK(one.dev, gpunn_read(one.weight, w, (size_t)(n * k) * sizeof *w));
    OK(one.dev, gpunn_read(gpunn_find(one.model, "l.bias"), bias, (size_t)n * sizeof *bias));
    const bool rounded = on_cpu() && formats[f].dtype != GPUNN_NF4 && !whole;
    expected_product(x, w, bias, m, k, n, rounded, expected, allowed);
    for (int i = 0; i < m * n; i++)
        if (!(fabs((double)y[i] - expected[i]) <= allowed[i]))
            fail_msg("%s, m %d, k %d, n %d: [%d] is %g, expected %g within %g",
                     gpunn_dtype_name(formats[f].dtype), m, k, n, i, (double)y[i], expected[i], allowed[i]);
    layer_close(&one);
    layer_close(&four);
    take_back(lent, from);
    free(x), free(w), free(bias), free(y), free(shared), free(expected), free(allowed), free(blocks);
}

static void products(void **state)
{
    static const int sizes[][3] = {{1, 256, 1},  {1, 768, 67},   {2, 512, 5},   {3, 256, 4},   {4, 256, 130},
                                   {5, 256, 3},  {8, 512, 33},   {17, 256, 17}, {33, 768, 50}, {70, 512, 7},
                                   {3, 4352, 5}, {19, 1280, 37}, {242, 256, 3}};
    (void)state;
    for (int f = 0; f < COUNT(formats); f++) {
        for (int i = 0; i < COUNT(sizes); i++)
            check_product(f, sizes[i][0], sizes[i][1], sizes[i][2], i % 3 == 1);
        for (int k = (int)formats[f].length; k <= 192 && formats[f].length < 256; k += k)
            for (int m = 1; m <= 17; m += 8) check_product(f, m, k, 9, m == 9);
        for (int k = 288; k <= 480 && formats[f].length == 32; k += 64) /* not whole spans of 8 groups */
            check_product(f, 1, k, 7, k == 352);
    }
}

/* Rows are computed as in any batch of 2 to 16 rows, or of more. */
static void rows_alone(void **state)
{
    enum { M = 41, K = 256, N = 10 };
    static const int rows[][2] = {{7, 2}, {M, 17}};
    (void)state;
    for (int f = 0; f < COUNT(formats); f++)
        for (int e = 0; e < COUNT(rows); e++) {
            layer     l = layer_open(2, formats[f].dtype, K, N);
            float    *x = test_randoms(M * K, 5, 1), together[M * N], alone[M * N];
            const int m = rows[e][0], few = rows[e][1];
            layer_run(&l, x, m, K, together, N);
            for (int i = 0; i + few <= m; i++) {
                layer_run(&l, x + i * K, few, K, alone, N);
                assert_memory_equal(alone, together + i * N, (size_t)(few * N) * sizeof *alone);
            }
            free(x);
            layer_close(&l);
        }
}

/* Sums of the largest numbers that a format has fit what holds them. x needs no rounding. */
static void extremes(void **state)
{
    enum { M = 23, K = 256, N = 4 };
    (void)state;
    for (int f = 0; f < COUNT(formats); f++)
        for (int bits = 0; bits < 256; bits += 17) { /* the same four bits twice */
            layer          l = layer_open(1, GPUNN_DTYPE_DEFAULT, K, N);
            unsigned char *blocks = random_blocks(f, K * N, 5);
            const size_t   bytes = formats[f].bytes, size = (size_t)(K / formats[f].length * N) * bytes;
            const size_t   from = formats[f].dtype == GPUNN_Q6_K ? 0 : formats[f].length == 256 ? 16 : 4;
            const size_t   to = formats[f].dtype == GPUNN_Q6_K ? 192 : bytes;
            float          x[M * K], w[K * N], bias[N], y[M * N];
            double         expected[M * N], allowed[M * N];
            for (int i = 0; i < M * K; i++) x[i] = i / K % 2 ? 127 : -127;
            for (size_t b = 0; b < size; b += bytes) memset(blocks + b + from, bits, to - from);
            void *const lent = lend(blocks, size);
            OK(l.dev, gpunn_bind_as(l.weight, formats[f].dtype, lent, size));
            layer_run(&l, x, M, K, y, N);
            OK(l.dev, gpunn_read(l.weight, w, sizeof w));
            OK(l.dev, gpunn_read(gpunn_find(l.model, "l.bias"), bias, sizeof bias));
            expected_product(x, w, bias, M, K, N, false, expected, allowed);
            for (int i = 0; i < M * N; i++) assert_true(fabs((double)y[i] - expected[i]) <= allowed[i]);
            layer_close(&l);
            take_back(lent, blocks);
            free(blocks);
        }
}

/* What is not finite stays in its row of x, or its row of the weight. */
static void not_finite(void **state)
{
    enum { K = 256, N = 6 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    for (int f = 0; f < COUNT(formats); f++)
        for (int m = 5; m <= 18; m += 13)
            for (int e = 0; e < COUNT(bad); e++) {
                layer          l = layer_open(1, GPUNN_DTYPE_DEFAULT, K, N);
                unsigned char *blocks = random_blocks(f, K * N, 9);
                const size_t   size = (size_t)(K / formats[f].length * N) * formats[f].bytes;
                float         *x = test_randoms(m * K, 7, 2), y[18 * N];
                spoil(f, blocks, 2 * K / formats[f].length); /* in the third row of the weight */
                x[3 * K + 11] = bad[e];
                void *const lent = lend(blocks, size);
                OK(l.dev, gpunn_bind_as(l.weight, formats[f].dtype, lent, size));
                layer_run(&l, x, m, K, y, N);
                for (int i = 0; i < m * N; i++) {
                    if (i % N == 2) assert_true(isnan(y[i]));
                    if (i / N != 3 && i % N != 2) assert_true(isfinite(y[i]));
                    if (i / N == 3) assert_false(isfinite(y[i]));
                }
                layer_close(&l);
                take_back(lent, blocks);
                free(x), free(blocks);
            }
}

/* A model of 16 bits rounds x and y, by at most 2^-8 of a number each. */
static void half(void **state)
{
    enum { K = 256, N = 9, M = 20 };
    (void)state;
    for (int f = 0; f < COUNT(formats); f++)
        for (int m = 3; m <= M; m += M - 3) {
            layer          l = layer_of(1, GPUNN_DTYPE_DEFAULT, GPUNN_PRECISION_BF16, K, N);
            unsigned char *blocks = random_blocks(f, K * N, 5);
            const size_t   size = (size_t)(K / formats[f].length * N) * formats[f].bytes;
            void *const    lent = lend(blocks, size);
            float         *x = test_randoms(m * K, 7, 2), w[K * N], bias[N], y[M * N];
            double         expected[M * N], allowed[M * N];
            OK(l.dev, gpunn_bind_as(l.weight, formats[f].dtype, lent, size));
            layer_run(&l, x, m, K, y, N);
            OK(l.dev, gpunn_read(l.weight, w, sizeof w));
            OK(l.dev, gpunn_read(gpunn_find(l.model, "l.bias"), bias, sizeof bias));
            expected_product(x, w, bias, m, K, N, false, expected, allowed);
            for (int i = 0; i < m * N; i++) /* 1% of the sum of sizes */
                assert_true(fabs((double)y[i] - expected[i]) <= 1000 * allowed[i]);
            layer_close(&l);
            take_back(lent, blocks);
            free(x), free(blocks);
        }
}

/* Bias, residual and activations, against the same layers with the numbers of the blocks as F32. */
static void epilogues(void **state)
{
    enum { WIDTH = 64, M = 20 };
    fixture    *f = *state;
    const char *path = test_path(f, "e.safetensors");
    float      *values = test_randoms(M * WIDTH, 8, 1), got[M * WIDTH], expected[M * WIDTH];
    for (int m = 2; m <= M; m += M - 2) {
        for (int i = 0; i < 2; i++) {
            layer         l = layer_open(1, i == 0 ? GPUNN_Q8_0 : GPUNN_F32, WIDTH, WIDTH);
            gpunn_tensor *sum = gpunn_relu(gpunn_add(l.y, l.x)),
                         *y = MADE(l.dev, gpunn_gelu_tanh(gpunn_linear(sum, "g", .out_features = WIDTH)));
            if (i == 1) OK(l.dev, gpunn_load(l.model, path));
            OK(l.dev, gpunn_write(l.x, values, (size_t)(m * WIDTH) * sizeof *values));
            OK(l.dev, gpunn_forward(&y, 1));
            OK(l.dev, gpunn_read(y, i == 0 ? got : expected, (size_t)(m * WIDTH) * sizeof *got));
            if (i == 0) OK(l.dev, gpunn_save(l.model, path));
            layer_close(&l);
        }
        check_close(got, expected, m * WIDTH, on_cpu() ? 0.03 : 1e-5, on_cpu() ? 0.03 : 1e-5);
    }
    assert_int_equal(unlink(path), 0);
    free(values);
}

/* ---- storage ---- */
static void embeddings(void **state)
{
    static const int64_t tokens[] = {6, 0, 3, 3, 5};
    enum { ROWS = 7, WIDTH = 256, TOKENS = 5 };
    (void)state;
    for (int f = 0; f < COUNT(formats); f++) {
        gpunn_device  *dev = gpunn_device_open(ON(first_backend()), .threads = 2);
        gpunn_model   *model = MADE(dev, gpunn_model_create(dev, .inference = true));
        gpunn_tensor  *x = MADE(dev, gpunn_input(model, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH)));
        gpunn_tensor  *y = MADE(dev, gpunn_embedding(x, "e", .num_embeddings = ROWS, .embedding_dim = WIDTH));
        unsigned char *blocks = random_blocks(f, ROWS * WIDTH, 4);
        static float   table[ROWS][WIDTH], rows[TOKENS][WIDTH];
        const size_t   size = (size_t)(ROWS * WIDTH / formats[f].length) * formats[f].bytes;
        void *const    lent = lend(blocks, size);
        OK(dev, gpunn_bind_as(gpunn_find(model, "e.weight"), formats[f].dtype, lent, size));
        OK(dev, gpunn_write(x, tokens, sizeof tokens));
        OK(dev, gpunn_forward(&y, 1));
        OK(dev, gpunn_read(y, rows, sizeof rows));
        OK(dev, gpunn_read(gpunn_find(model, "e.weight"), table, sizeof table));
        for (int i = 0; i < TOKENS; i++) assert_memory_equal(rows[i], table[tokens[i]], sizeof *table);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
        take_back(lent, blocks);
        free(blocks);
    }
}

/* Rows that are no blocks of 256 have blocks of 32. */
static void other_blocks(void **state)
{
    enum { K = 96, N = 2 };
    static const struct {
        gpunn_dtype asked, stored;
    } cases[] = {{GPUNN_Q4_K, GPUNN_Q5_0}, {GPUNN_Q5_K, GPUNN_Q5_1}, {GPUNN_Q6_K, GPUNN_Q8_0}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        layer  l = layer_open(1, cases[i].asked, K, N), wanted = layer_open(1, cases[i].stored, K, N);
        float *w = test_randoms(K * N, 3, 1), got[K * N], expected[K * N];
        OK(l.dev, gpunn_write(l.weight, w, sizeof got));
        OK(wanted.dev, gpunn_write(wanted.weight, w, sizeof got));
        OK(l.dev, gpunn_read(l.weight, got, sizeof got));
        OK(wanted.dev, gpunn_read(wanted.weight, expected, sizeof got));
        assert_memory_equal(got, expected, sizeof got);
        assert_memory_not_equal(got, w, sizeof got);
        layer_close(&l), layer_close(&wanted);
        free(w);
    }
}

/* Written, loaded and drawn values are rounded; reading and saving give the numbers of the blocks. */
static void storage(void **state)
{
    enum { K = 256, N = 5 };
    fixture *f = *state;
    for (int i = 0; i < COUNT(formats); i++) {
        layer l = layer_open(1, formats[i].dtype, K, N), other = layer_open(1, formats[i].dtype, K, N),
              plain = layer_open(1, GPUNN_F32, K, N);
        const size_t  size = (size_t)(K * N / formats[i].length) * formats[i].bytes;
        float        *w = test_randoms(K * N, 3, 1), got[K * N], again[K * N], wide[K * N];
        unsigned char blocks[K * N * 2], loaded[K * N * 2];
        const char   *path = test_path(f, "w.safetensors");
        OK(l.dev, gpunn_read_as(l.weight, formats[i].dtype, blocks, size)); /* initial values */
        OK(l.dev, gpunn_write(l.weight, w, sizeof got));
        OK(l.dev, gpunn_read(l.weight, got, sizeof got));
        OK(l.dev, gpunn_read_as(l.weight, formats[i].dtype, blocks, size));
        assert_int_equal(gpunn_tensor_dtype(l.weight), GPUNN_F32);
        for (int e = 0; e < K * N; e++)
            assert_true(fabsf(got[e] - w[e]) <= (formats[i].dtype == GPUNN_Q8_0 ? 0.005f : 0.16f));
        OK(plain.dev, gpunn_write(plain.weight, w, sizeof got));
        OK(plain.dev, gpunn_save(plain.model, path));
        OK(other.dev, gpunn_load(other.model, path)); /* before it has values */
        OK(other.dev, gpunn_read_as(other.weight, formats[i].dtype, loaded, size));
        assert_memory_equal(blocks, loaded, size);
        OK(l.dev, gpunn_load(l.model, path)); /* over its values */
        OK(l.dev, gpunn_read_as(l.weight, formats[i].dtype, loaded, size));
        assert_memory_equal(blocks, loaded, size);
        OK(l.dev, gpunn_save(l.model, path)); /* as F32 */
        OK(plain.dev, gpunn_load(plain.model, path));
        OK(plain.dev, gpunn_read(plain.weight, wide, sizeof wide));
        assert_memory_equal(wide, got, sizeof got);
        memset(blocks, 0, size);
        OK(l.dev, gpunn_write_as(l.weight, formats[i].dtype, blocks, size));
        OK(l.dev, gpunn_read(l.weight, again, sizeof again));
        for (int e = 0; e < K * N; e++) assert_true(again[e] == 0);
        OK(plain.dev, gpunn_write_as(plain.weight, formats[i].dtype, loaded, size));
        OK(plain.dev, gpunn_read(plain.weight, again, sizeof again));
        assert_memory_equal(again, got, sizeof got);
        assert_int_equal(unlink(path), 0);
        free(w);
        layer_close(&l), layer_close(&other), layer_close(&plain);
    }
}

static void weights_of_summary(void *user, const char *text)
{
    const char *at = strstr(text, "weights ");
    if (at) *(size_t *)user = (size_t)strtoull(at + 8, NULL, 10);
}

/* The summary counts blocks; a bound weight has no memory, and a weight with other rows stays F32. */
static void bytes_of_summary(void **state)
{
    enum { K = 256, N = 64 };
    static unsigned char blocks[K * N / 32 * 18];
    const size_t         head = 64, bias = N * sizeof(float);
    size_t               weights;
    (void)state;
    layer l = layer_open(1, GPUNN_Q4_0, K, N), lent = layer_open(1, GPUNN_DTYPE_DEFAULT, K, N),
          odd = layer_open(1, GPUNN_Q4_0, K + 16, N), chosen = layer_open(1, GPUNN_Q4_0, K, N);
    OK(l.dev, gpunn_model_summary(l.model, .write = weights_of_summary, .user = &weights));
    assert_int_equal(weights, head + bias + sizeof blocks);
    void *const memory = lend(blocks, sizeof blocks);
    OK(lent.dev, gpunn_bind_as(lent.weight, GPUNN_Q4_0, memory, sizeof blocks));
    OK(lent.dev, gpunn_model_summary(lent.model, .write = weights_of_summary, .user = &weights));
    assert_int_equal(weights, head + bias);
    OK(odd.dev, gpunn_model_summary(odd.model, .write = weights_of_summary, .user = &weights));
    assert_int_equal(weights, head + bias + (K + 16) * N * sizeof(float));
    OK(chosen.dev, gpunn_set_storage(chosen.weight, GPUNN_Q8_0));
    OK(chosen.dev, gpunn_model_summary(chosen.model, .write = weights_of_summary, .user = &weights));
    assert_int_equal(weights, head + bias + K * N / 32 * 34);
    OK(chosen.dev, gpunn_set_storage(chosen.weight, GPUNN_F32));
    OK(chosen.dev, gpunn_model_summary(chosen.model, .write = weights_of_summary, .user = &weights));
    assert_int_equal(weights, head + bias + K * N * sizeof(float));
    layer_close(&l), layer_close(&lent), layer_close(&odd), layer_close(&chosen);
    take_back(memory, blocks);
}

/* q, k and v, which one product computes where their weights are adjacent. */
static gpunn_tensor *attention_of(gpunn_tensor *x, int width)
{
    static const char *const names[] = {"q", "k", "v"};
    gpunn_tensor            *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = gpunn_reshape(gpunn_linear(x, names[i], .out_features = width),
                                GPUNN_SHAPE(GPUNN_BATCH, 9, 2, width / 2));
    return gpunn_scaled_dot_product_attention(part[0], part[1], part[2], .heads_last = true);
}

static void attention(void **state)
{
    enum { WIDTH = 64, NUMBERS = 2 * 9 * WIDTH };
    fixture    *f = *state;
    const char *path = test_path(f, "qkv.safetensors");
    float      *values = test_randoms(NUMBERS, 6, 1), got[NUMBERS], expected[NUMBERS];
    for (int i = 0; i < 2; i++) {
        gpunn_device *dev = gpunn_device_open(ON(first_backend()), .seed = 2, .threads = 1);
        gpunn_model  *model = MADE(
             dev, gpunn_model_create(dev, .inference = true, .weights = i == 0 ? GPUNN_Q8_0 : GPUNN_F32));
        gpunn_tensor *x = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 9, WIDTH)));
        gpunn_tensor *y = MADE(dev, attention_of(x, WIDTH));
        if (i == 1) OK(dev, gpunn_load(model, path)); /* the numbers of the blocks */
        OK(dev, gpunn_write(x, values, NUMBERS * sizeof *values));
        OK(dev, gpunn_forward(&y, 1));
        OK(dev, gpunn_read(y, i == 0 ? got : expected, sizeof got));
        if (i == 0) OK(dev, gpunn_save(model, path));
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
    }
    check_close(got, expected, NUMBERS, on_cpu() ? 0.03 : 1e-4, on_cpu() ? 0.03 : 1e-5);
    assert_int_equal(unlink(path), 0);
    free(values);
}

/* The blocks of a layer that a model file and its copies must have, and their format. */
static void check_blocks(gpunn_device *dev, gpunn_model *model, int f, const unsigned char *expected,
                         size_t size)
{
    unsigned char *got = malloc(size);
    OK(dev, gpunn_read_as(MADE(dev, gpunn_find(model, "l.weight")), formats[f].dtype, got, size));
    assert_memory_equal(got, expected, size);
    free(got);
}

/* One file holds a model with its blocks as they are, whether they are its own, bound or loaded. */
static void model_files(void **state)
{
    enum { K = 256, N = 3 };
    fixture    *fixture = *state;
    const char *path = test_path(fixture, "blocks.gpunn");
    for (int f = 0; f < COUNT(formats); f++) {
        layer          l = layer_open(1, formats[f].dtype, K, N);
        const size_t   size = (size_t)(K * N / formats[f].length) * formats[f].bytes;
        unsigned char *blocks = random_blocks(f, K * N, 8);
        float         *x = test_randoms(K, 4, 1), y[N], got[N], wide[K * N], again[K * N];
        OK(l.dev, gpunn_write_as(l.weight, formats[f].dtype, blocks, size));
        layer_run(&l, x, 1, K, y, N);
        OK(l.dev, gpunn_read(l.weight, wide, sizeof wide));
        OK(l.dev, gpunn_model_save(l.model, path, .outputs = {l.y}));
        layer_close(&l);
        gpunn_array file, copy;
        layer       read = {gpunn_device_open(ON(first_backend()), .threads = 1), NULL, NULL, NULL, NULL};
        read.model = MADE(read.dev, gpunn_model_load(read.dev, path, .inference = true));
        read.x = gpunn_find(read.model, "x"), read.y = gpunn_spec_output(read.model, 0);
        check_blocks(read.dev, read.model, f, blocks, size);
        layer_run(&read, x, 1, K, got, N);
        assert_memory_equal(got, y, sizeof y);
        OK(read.dev, gpunn_model_save_memory(read.model, &file));
        gpunn_model *third = MADE(
            read.dev, gpunn_model_load_memory(read.dev, file.data, file.bytes, .inference = true));
        gpunn_model *floats = MADE(read.dev, gpunn_model_load_memory(read.dev, file.data, file.bytes));
        OK(read.dev, gpunn_model_save_memory(third, &copy));
        assert_true(copy.bytes == file.bytes && memcmp(copy.data, file.data, file.bytes) == 0);
        gpunn_array_free(read.dev, &file), gpunn_array_free(read.dev, &copy);
        check_blocks(read.dev, third, f, blocks, size);
        OK(read.dev, gpunn_read(gpunn_find(floats, "l.weight"), again, sizeof again)); /* can be trained */
        assert_memory_equal(again, wide, sizeof wide);
        gpunn_model_destroy(third), gpunn_model_destroy(floats);
        layer_close(&read);
        assert_int_equal(unlink(path), 0);
        free(x), free(blocks);
    }
}

/* A spec tells how parameters are stored. */
static void specs(void **state)
{
    enum { K = 256 };
    unsigned char blocks[K / 256 * 144 + 4 * K];
    layer         l = layer_open(1, GPUNN_Q4_K, K, 1);
    gpunn_array   spec;
    (void)state;
    gpunn_linear(l.x, "wide", .out_features = 1);
    OK(l.dev, gpunn_set_storage(gpunn_find(l.model, "wide.weight"), GPUNN_F32));
    OK(l.dev, gpunn_spec_save_memory(l.model, &spec, .outputs = {l.y})); /* before it has values */
    for (int way = 0; way < 3; way++) { /* as the spec says; another default; to be trained */
        gpunn_array  again;
        gpunn_model *read = MADE(
            l.dev, gpunn_spec_load_memory(l.dev, spec.data, spec.bytes, .inference = way < 2,
                                          .weights = way == 1 ? GPUNN_Q8_0 : GPUNN_DTYPE_DEFAULT));
        gpunn_tensor *w = gpunn_find(read, "l.weight"), *wide = gpunn_find(read, "wide.weight");
        OK(l.dev, gpunn_spec_save_memory(read, &again));
        assert_true(again.bytes == spec.bytes && memcmp(again.data, spec.data, spec.bytes) == 0);
        gpunn_array_free(l.dev, &again);
        if (way < 2) OK(l.dev, gpunn_read_as(w, GPUNN_Q4_K, blocks, 144));
        if (way == 2) FAILS(l.dev, gpunn_read_as(w, GPUNN_Q4_K, blocks, 144), GPUNN_ERR_DTYPE, "f32");
        FAILS(l.dev, gpunn_read_as(wide, GPUNN_Q8_0, blocks, K / 32 * 34), GPUNN_ERR_DTYPE, "f32");
        gpunn_model_destroy(read);
    }
    FAILS_NULL(l.dev,
               gpunn_spec_load_memory(l.dev, spec.data, spec.bytes, .inference = true, .weights = GPUNN_I64),
               GPUNN_ERR_DTYPE, "i64");
    char *text = strstr(spec.data, "Q4_K");
    text[1] = '9';
    FAILS_NULL(l.dev, gpunn_spec_load_memory(l.dev, spec.data, spec.bytes), GPUNN_ERR_FORMAT, "\"storage\"",
               "Q4_K");
    text[1] = '4';
    text = strstr(spec.data, "256");
    text[2] = '4';
    FAILS_NULL(l.dev, gpunn_spec_load_memory(l.dev, spec.data, spec.bytes), GPUNN_ERR_FORMAT, "254 numbers",
               "Q4_K");
    gpunn_array_free(l.dev, &spec);
    layer_close(&l);
}

/* Formats that do not fit the bytes of a tensor. */
static void damaged_files(void **state)
{
    static const char *const changes[][2] = {{"\"Q8_0\"", "\"Q9_0\""},
                                             {"\"Q8_0\"", "\"Q4_0\""},
                                             {"\"Q8_0\"", "\"BF16\""},
                                             {"s:l.w", "s:k.w"},
                                             {"s:l.weight", "s:l.bias\\u0000"}};
    fixture                 *f = *state;
    layer                    l = layer_open(1, GPUNN_Q8_0, 64, 1);
    gpunn_array              file;
    OK(l.dev, gpunn_model_save_memory(l.model, &file));
    for (int i = 0; i < COUNT(changes); i++) {
        char *copy = memcpy(malloc(file.bytes), file.data, file.bytes), *at = copy;
        while (memcmp(at, changes[i][0], strlen(changes[i][0])) != 0) at++;
        memcpy(at, changes[i][1], strlen(changes[i][0]));
        FAILS_NULL(l.dev, gpunn_model_load_memory(l.dev, copy, file.bytes), GPUNN_ERR_FORMAT, "'memory'");
        free(copy);
    }
    gpunn_array_free(l.dev, &file);
    layer_close(&l);
    (void)f;
}

/* ---- fine-tuning: adapters on weights in blocks ---- */
enum { TUNED_LENGTH = 9, TUNED_BATCH = 2, TUNED_WORDS = 7, TUNED_CLASSES = 5, TUNED_STEPS = 10 };

typedef struct tuned {
    gpunn_device *dev;
    gpunn_model  *model;
    gpunn_tensor *tokens, *labels, *first, *last, *loss;
    int           width;
} tuned;

/* An embedding and two layers for 18 rows, then one for 2 rows. */
static tuned tuned_open(gpunn_dtype weights, gpunn_precision precision, int threads, int width)
{
    tuned         t = {.width = width};
    gpunn_tensor *x, *y;
    t.dev = gpunn_device_open(ON(first_backend()), .seed = 5, .threads = threads);
    assert_non_null(t.dev);
    t.model = MADE(t.dev, gpunn_model_create(t.dev, .weights = weights, .precision = precision));
    t.tokens = gpunn_input(t.model, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, TUNED_LENGTH));
    t.labels = gpunn_input(t.model, "labels", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    x = gpunn_embedding(t.tokens, "embed", .num_embeddings = TUNED_WORDS, .embedding_dim = width);
    t.first = gpunn_mul_scalar(gpunn_linear(x, "up", .out_features = width), 0.01f);
    t.last = gpunn_mul_scalar(gpunn_linear(gpunn_gelu_tanh(t.first), "down", .out_features = width), 0.01f);
    y = gpunn_linear(gpunn_mean(gpunn_add(x, t.last), GPUNN_AXES(1), false), "head",
                     .out_features = TUNED_CLASSES);
    t.loss = MADE(t.dev, gpunn_cross_entropy(gpunn_mul_scalar(y, 0.01f), t.labels));
    return t;
}

static void tuned_adapt(const tuned *t)
{
    OK(t->dev, gpunn_lora(t->model, "*", .rank = 2, .alpha = 4));
}

static void tuned_close(tuned *t)
{
    gpunn_model_destroy(t->model);
    gpunn_device_close(t->dev);
}

static const char *const tuned_weights[] = {"embed.weight", "up.weight", "down.weight", "head.weight"};

/* Random blocks for all weights; lent: where they lie. */
static void tuned_bind(const tuned *t, int f, unsigned char *blocks[4], void *lent[4])
{
    for (int i = 0; i < 4; i++) {
        gpunn_tensor *w = gpunn_find(t->model, tuned_weights[i]);
        const int64_t count = (int64_t)(gpunn_tensor_bytes(w) / sizeof(float));
        const size_t  size = (size_t)(count / formats[f].length) * formats[f].bytes;
        blocks[i] = random_blocks(f, count, (uint32_t)(11 + i));
        lent[i] = lend(blocks[i], size);
        OK(t->dev, gpunn_bind_as(w, formats[f].dtype, lent[i], size));
    }
}

static void tuned_write(const tuned *t)
{
    int64_t tokens[TUNED_BATCH * TUNED_LENGTH], labels[TUNED_BATCH] = {1, 3};
    for (int i = 0; i < COUNT(tokens); i++) tokens[i] = 5 * i % TUNED_WORDS;
    OK(t->dev, gpunn_write(t->tokens, tokens, sizeof tokens));
    OK(t->dev, gpunn_write(t->labels, labels, sizeof labels));
}

/* Gives B of all adapters values other than 0. */
static void tuned_fill(const tuned *t)
{
    for (int i = 0; i < gpunn_parameter_count(t->model); i++) {
        gpunn_tensor *p = gpunn_parameter_at(t->model, i);
        const int64_t n = (int64_t)(gpunn_tensor_bytes(p) / sizeof(float));
        if (strstr(gpunn_tensor_name(p), ".lora_") == NULL) continue;
        float *values = test_randoms(n, (uint32_t)(40 + i), 0.3f);
        OK(t->dev, write_floats(p, values, n));
        free(values);
    }
}

/* Gives all parameters the numbers that `from` computes with. */
static void tuned_copy(const tuned *to, const tuned *from)
{
    for (int i = 0; i < gpunn_parameter_count(from->model); i++) {
        int64_t       n;
        gpunn_tensor *p = gpunn_parameter_at(from->model, i);
        float        *values = read_floats(from->dev, p, &n);
        OK(to->dev, write_floats(gpunn_find(to->model, gpunn_tensor_name(p)), values, n));
        free(values);
    }
}

/* Losses of some steps of Adam. thorough: with recomputation and two parts of a batch in an update. */
static void tuned_train(const tuned *t, bool thorough, float *losses)
{
    gpunn_optimizer *opt = MADE(t->dev, gpunn_adam(t->model, .lr = 0.01f));
    if (thorough) OK(t->dev, gpunn_recompute(t->first, t->last));
    for (int i = 0; i < TUNED_STEPS; i++) {
        OK(t->dev, settled(t->dev, gpunn_train_step(opt, t->loss, .accumulate = 1 + thorough)));
        losses[i] = gpunn_item(t->loss);
    }
    gpunn_optimizer_destroy(opt);
}

/* Ten steps give the losses of a model whose F32 weights are the numbers of the blocks. */
static void check_tuned(int f, gpunn_precision precision, bool thorough, double tolerance)
{
    const int      width = formats[f].length == 32 ? 96 : (int)formats[f].length;
    unsigned char *blocks[4];
    void          *lent[4];
    float          losses[2][TUNED_STEPS];
    tuned          t = tuned_open(GPUNN_DTYPE_DEFAULT, precision, thorough ? 2 : 1, width),
          twin = tuned_open(GPUNN_DTYPE_DEFAULT, GPUNN_PRECISION_F32, 1, width);
    tuned_adapt(&twin);
    if (!thorough) tuned_adapt(&t); /* before or after */
    tuned_bind(&t, f, blocks, lent);
    if (thorough) tuned_adapt(&t);
    FAILS(t.dev, gpunn_set_trainable(gpunn_find(t.model, "up.weight"), true), GPUNN_ERR_STATE, "'up.weight'",
          gpunn_dtype_name(formats[f].dtype));
    tuned_fill(&t);
    tuned_copy(&twin, &t);
    tuned_write(&t);
    tuned_write(&twin);
    tuned_train(&t, thorough, losses[0]);
    tuned_train(&twin, thorough, losses[1]);
    check_close(losses[0], losses[1], TUNED_STEPS, tolerance, tolerance);
    assert_true(losses[1][TUNED_STEPS - 1] < losses[1][0]);
    tuned_close(&t);
    tuned_close(&twin);
    for (int i = 0; i < 4; i++) take_back(lent[i], blocks[i]), free(blocks[i]);
}

static void tuning(void **state)
{
    (void)state;
    for (int f = 0; f < COUNT(formats); f++) {
        if (!on_cpu() && formats[f].length == 256 && formats[f].dtype != GPUNN_Q4_K) continue;
        check_tuned(f, GPUNN_PRECISION_F32, f % 2, 1e-4);
    }
    check_tuned(0, GPUNN_PRECISION_BF16, true, 0.05);
}

/* Gradients of adapters before and behind products with blocks, by central differences. */
static void tuning_differences(void **state)
{
    static const char *const names[] = {"embed.lora_embedding_B.default.weight", "up.lora_A.default.weight",
                                        "head.lora_B.default.weight"};
    (void)state;
    for (int f = 0; f < COUNT(formats); f++) {
        if (formats[f].dtype != GPUNN_Q8_0 && formats[f].dtype != GPUNN_Q4_K && formats[f].dtype != GPUNN_NF4)
            continue;
        unsigned char *blocks[4];
        void          *lent[4];
        tuned          t = tuned_open(GPUNN_DTYPE_DEFAULT, GPUNN_PRECISION_F32, 1, 256);
        tuned_bind(&t, f, blocks, lent);
        tuned_adapt(&t);
        tuned_fill(&t);
        tuned_write(&t);
        OK(t.dev, gpunn_backward(t.loss));
        for (int k = 0; k < COUNT(names); k++) {
            gpunn_tensor *p = gpunn_find(t.model, names[k]);
            int64_t       n;
            float *values = read_floats(t.dev, p, &n), *gradient = malloc((size_t)n * sizeof *gradient);
            OK(t.dev, gpunn_read_grad(p, gradient, (size_t)n * sizeof *gradient));
            for (int64_t i = 0; i < n; i += n / 3) {
                const float was = values[i], h = 0.02f;
                float       side[2];
                for (int s = 0; s < 2; s++) {
                    values[i] = was + (s ? h : -h);
                    OK(t.dev, write_floats(p, values, n));
                    OK(t.dev, gpunn_forward(&t.loss, 1));
                    side[s] = gpunn_item(t.loss);
                }
                values[i] = was;
                const float slope = (side[1] - side[0]) / (2 * h);
                check_close(&gradient[i], &slope, 1, 0.02, 1e-3);
            }
            OK(t.dev, write_floats(p, values, n));
            free(values), free(gradient);
        }
        tuned_close(&t);
        for (int i = 0; i < 4; i++) take_back(lent[i], blocks[i]), free(blocks[i]);
    }
}

static void numbers_of_summary(void *user, const char *text)
{
    size_t     *to = user;
    const char *at = strstr(text, "weights ");
    if (at) (void)sscanf(at, "weights %zu, gradients %zu", &to[0], &to[1]);
}

/* .weights holds for what gpunn_lora freezes: the numbers that are written are rounded, no gradient has a
 * place, and none is trained. */
static void tuning_storage(void **state)
{
    enum { WIDTH = 64 };
    const int64_t base = (TUNED_WORDS + 2 * WIDTH + TUNED_CLASSES) * WIDTH,
                  adapters = 2 * (TUNED_WORDS + WIDTH) + 2 * 2 * (2 * WIDTH) + 2 * (WIDTH + TUNED_CLASSES);
    float  rows[WIDTH * WIDTH], losses[2][TUNED_STEPS], none[WIDTH * WIDTH];
    size_t held[2];
    (void)state;
    tuned t = tuned_open(GPUNN_Q4_0, GPUNN_PRECISION_F32, 1, WIDTH),
          twin = tuned_open(GPUNN_F32, GPUNN_PRECISION_F32, 1, WIDTH);
    tuned_adapt(&t), tuned_adapt(&twin);
    OK(t.dev, gpunn_model_summary(t.model, .loss = t.loss, .batch_size = TUNED_BATCH,
                                  .write = numbers_of_summary, .user = held));
    assert_in_range(held[0], (uintmax_t)(base / 32 * 18 + 4 * adapters),
                    (uintmax_t)(base / 32 * 18 + 4 * adapters + 4096));
    assert_in_range(held[1], (uintmax_t)(4 * adapters), (uintmax_t)(4 * adapters + 2048));
    for (int i = 0; i < WIDTH * WIDTH; i++) rows[i] = (float)(i % 16 - 8) / 2; /* exact in Q4_0 */
    OK(t.dev, gpunn_write(gpunn_find(t.model, "up.weight"), rows, sizeof rows));
    OK(t.dev, gpunn_read_as(gpunn_find(t.model, "up.weight"), GPUNN_Q4_0, none, WIDTH * WIDTH / 32 * 18));
    OK(t.dev, gpunn_read(gpunn_find(t.model, "up.weight"), none, sizeof none));
    assert_memory_equal(none, rows, sizeof rows);
    tuned_copy(&twin, &t);
    tuned_write(&t);
    tuned_write(&twin);
    FAILS(t.dev, gpunn_set_trainable(gpunn_find(t.model, "up.weight"), true), GPUNN_ERR_STATE, "'up.weight'",
          "Q4_0");
    tuned_train(&t, false, losses[0]);
    tuned_train(&twin, false, losses[1]);
    check_close(losses[0], losses[1], TUNED_STEPS, 1e-4, 1e-4);
    FAILS(t.dev, gpunn_read_grad(gpunn_find(t.model, "up.weight"), none, sizeof none), GPUNN_ERR_STATE,
          "up.weight", "no gradient");
    OK(t.dev, gpunn_read(gpunn_find(t.model, "up.weight"), none, sizeof none));
    assert_memory_equal(none, rows, sizeof rows);
    OK(t.dev, gpunn_lora_merge(t.model)); /* rounded once */
    tuned_close(&t), tuned_close(&twin);
}

/* A model for training with .weights is trained with adapters alone, which come before its values. */
static void tuning_refused(void **state)
{
    fixture      *f = *state;
    float         w[32 * 32] = {0}, b[32];
    gpunn_model  *model = MADE(f->dev, gpunn_model_create(f->dev, .weights = GPUNN_Q8_0));
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 32));
    gpunn_tensor *loss = gpunn_sum(gpunn_square(gpunn_linear(x, "l", .out_features = 32)), GPUNN_ALL, false);
    FAILS_NULL(f->dev, gpunn_adam(model), GPUNN_ERR_STATE, "gpunn_adam", "Q8_0", "gpunn_lora");
    OK(f->dev, write_floats(x, w, 64));
    FAILS(f->dev, gpunn_backward(loss), GPUNN_ERR_STATE, "Q8_0", "gpunn_lora");
    OK(f->dev, gpunn_forward(&loss, 1));
    FAILS(f->dev, gpunn_lora(model, "l"), GPUNN_ERR_STATE, "gpunn_lora", "Q8_0");
    gpunn_model_destroy(model);
    model = MADE(f->dev, gpunn_model_create(f->dev));
    x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 32));
    loss = gpunn_sum(gpunn_square(gpunn_linear(x, "l", .out_features = 32)), GPUNN_ALL, false);
    OK(f->dev, gpunn_lora(model, "l", .rank = 1));
    OK(f->dev, gpunn_set_trainable(gpunn_find(model, "l.weight"), true)); /* as peft's modules_to_save */
    FAILS(f->dev, gpunn_set_storage(gpunn_find(model, "l.weight"), GPUNN_Q8_0), GPUNN_ERR_STATE, "'l.weight'",
          "trained");
    OK(f->dev, write_floats(x, w, 64));
    OK(f->dev, gpunn_backward(loss));
    OK(f->dev, gpunn_read_grad(gpunn_find(model, "l.weight"), w, sizeof w));
    FAILS(f->dev, gpunn_read_grad(gpunn_find(model, "l.bias"), b, sizeof b), GPUNN_ERR_STATE, "no gradient");
    gpunn_model_destroy(model);
}

/* ---- what is refused ---- */
/* A file as bitsandbytes writes it is not taken for one of integers. */
static void weights_of_bitsandbytes(void **state)
{
    static const char *const names[] = {"l.weight", "l.weight.quant_state.bitsandbytes__nf4"};
    unsigned char            packed[128] = {0};
    const gpunn_array        arrays[] = {
               {.dtype = GPUNN_U8, .rank = 2, .dim = {128, 1}, .data = packed, .bytes = 128},
               {.dtype = GPUNN_U8, .rank = 1, .dim = {2}, .data = packed, .bytes = 2}};
    fixture    *f = *state;
    const char *path = test_path(f, "b.safetensors");
    layer       l = layer_open(1, GPUNN_NF4, 64, 4);
    OK(l.dev, gpunn_write_safetensors(l.dev, path, names, arrays, 2));
    FAILS(l.dev, gpunn_load(l.model, path), GPUNN_ERR_UNSUPPORTED, "l.weight", "bitsandbytes",
          "generator.quantize --to nf4");
    assert_int_equal(unlink(path), 0);
    layer_close(&l);
}

/* With pointers to the GPU's memory. bound, stored: layers of 64 to 4; blocks: 272 bytes there. */
static void on_device(layer *bound, layer *stored, void *blocks)
{
    static unsigned char host[512];
    float                w[64 * 4], got[64 * 4];
    float *const         wide = caller_malloc(sizeof w);
    unsigned char       *near = host + (64 - (uintptr_t)host % 64) % 64;
    FAILS(bound->dev, gpunn_bind_as(bound->weight, GPUNN_Q8_0, near, 272), GPUNN_ERR_ARGUMENT, "on the host");
    FAILS(bound->dev, gpunn_bind_as(bound->weight, GPUNN_Q8_0, near + 2, 272), GPUNN_ERR_ARGUMENT, "aligned");
    FAILS(stored->dev, gpunn_write_as(stored->weight, GPUNN_Q8_0, blocks, 272), GPUNN_ERR_UNSUPPORTED,
          "host");
    FAILS(stored->dev, gpunn_write(stored->weight, wide, sizeof w), GPUNN_ERR_UNSUPPORTED, "host");
    FAILS(stored->dev, gpunn_read_as(stored->weight, GPUNN_Q8_0, blocks, 272), GPUNN_ERR_UNSUPPORTED, "host");
    OK(bound->dev, gpunn_read(bound->weight, wide, sizeof w)); /* as floats, in the GPU's memory */
    OK(bound->dev, gpunn_synchronize(bound->dev));
    caller_get(got, wide, sizeof got, caller_legacy_stream());
    OK(bound->dev, gpunn_read(bound->weight, w, sizeof w));
    assert_memory_equal(got, w, sizeof w);
    caller_free(wide);
}

static void refused(void **state)
{
    static unsigned char blocks[4096] = {0, 0x38}; /* scale 0.5 */
    fixture             *f = *state;
    gpunn_device        *dev = f->dev;
    float                w[64 * 4] = {0};
    gpunn_tensor *trained = MADE(dev, gpunn_parameter(f->model, "w", GPUNN_SHAPE(4, 64), (gpunn_init){0}));
    gpunn_tensor *x = MADE(dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(4, 64)));
    FAILS_NULL(dev, gpunn_model_create(dev, .inference = true, .weights = GPUNN_I64), GPUNN_ERR_DTYPE, "i64");
    FAILS(dev, gpunn_set_storage(trained, GPUNN_Q8_0), GPUNN_ERR_STATE, "'w'", "trained");
    FAILS(dev, gpunn_set_storage(x, GPUNN_Q8_0), GPUNN_ERR_DTYPE, "'x'");
    FAILS(dev, gpunn_set_storage(trained, GPUNN_I64), GPUNN_ERR_DTYPE, "i64", "Q4_K");
    FAILS(dev, gpunn_write_as(x, GPUNN_Q8_0, blocks, 272), GPUNN_ERR_DTYPE, "'x'");
    FAILS(dev, gpunn_read_as(trained, GPUNN_Q8_0, blocks, 272), GPUNN_ERR_DTYPE, "f32", "Q8_0");
    OK(dev, gpunn_set_storage(trained, GPUNN_F32));
    for (int i = 2; i < COUNT(blocks); i++)
        blocks[i] = (unsigned char)(i % 34 < 2 ? blocks[i - 34 * (i > 33)] : i);
    OK(dev, gpunn_write_as(trained, GPUNN_Q8_0, blocks, 272)); /* as floats */
    OK(dev, gpunn_read(trained, w, sizeof w));
    assert_true(w[0] == 2 * 0.5f && w[33] == 37 * 0.5f);
    layer late = layer_open(1, GPUNN_Q8_0, 64, 4), l = layer_open(1, GPUNN_DTYPE_DEFAULT, 64, 4),
          odd = layer_open(1, GPUNN_DTYPE_DEFAULT, 40, 4);
    FAILS(odd.dev, gpunn_set_storage(odd.weight, GPUNN_Q8_0), GPUNN_ERR_SHAPE, "40", "32");
    FAILS(odd.dev, gpunn_write_as(odd.weight, GPUNN_Q8_0, blocks, 170), GPUNN_ERR_SHAPE, "40", "32");
    FAILS(l.dev, gpunn_bind_as(l.weight, GPUNN_Q4_K, blocks, 144), GPUNN_ERR_SHAPE, "64", "256");
    FAILS(l.dev, gpunn_bind_as(l.weight, GPUNN_Q8_0, blocks, 271), GPUNN_ERR_SHAPE, "271", "272");
    void *const lent = lend(blocks, 272), *const other = lend(blocks + 272, 272);
    OK(l.dev, gpunn_bind_as(l.weight, GPUNN_Q8_0, lent, 272));
    OK(l.dev, gpunn_bind_as(l.weight, GPUNN_Q8_0, other, 272));
    if (!on_cpu()) on_device(&l, &late, lent);
    FAILS(l.dev, gpunn_set_storage(l.weight, GPUNN_F32), GPUNN_ERR_STATE, "bound", "Q8_0");
    FAILS(l.dev, gpunn_write(l.weight, w, sizeof w), GPUNN_ERR_STATE, "only read");
    FAILS(l.dev, gpunn_bind(l.weight, NULL, 0), GPUNN_ERR_STATE, "other blocks");
    FAILS(l.dev, gpunn_bind(l.weight, w, sizeof w), GPUNN_ERR_STATE, "other blocks");
    OK(odd.dev, gpunn_write(odd.weight, w, 160 * sizeof *w));
    FAILS(odd.dev, gpunn_set_storage(odd.weight, GPUNN_BF16), GPUNN_ERR_DTYPE, "bf16");
    OK(late.dev, gpunn_write(late.weight, w, sizeof w));
    FAILS(late.dev, gpunn_set_storage(late.weight, GPUNN_F32), GPUNN_ERR_STATE, "already", "Q8_0");
    FAILS(late.dev, gpunn_bind_as(late.weight, GPUNN_Q4_0, blocks, 144), GPUNN_ERR_STATE, "already", "Q8_0");
    const char *path = test_path(f, "w.safetensors");
    OK(l.dev, gpunn_save(l.model, path));
    FAILS(l.dev, gpunn_load(l.model, path), GPUNN_ERR_STATE, "l.weight", "blocks");
    OK(l.dev, gpunn_load(l.model, path, .partial = true)); /* the bias */
    assert_int_equal(unlink(path), 0);
    layer_close(&l), layer_close(&odd), layer_close(&late);
    take_back(lent, blocks), take_back(other, blocks + 272);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),       cmocka_unit_test(rows_alone),
        cmocka_unit_test(extremes),       cmocka_unit_test(not_finite),
        cmocka_unit_test(embeddings),     cmocka_unit_test(bytes_of_summary),
        cmocka_unit_test(other_blocks),   test_with_device(storage),
        test_with_device(model_files),    cmocka_unit_test(damaged_files),
        cmocka_unit_test(specs),          test_with_device(attention),
        test_with_device(refused),        test_with_device(weights_of_bitsandbytes),
        test_with_device(epilogues),      cmocka_unit_test(half),
        cmocka_unit_test(tuning),         cmocka_unit_test(tuning_differences),
        cmocka_unit_test(tuning_storage), test_with_device(tuning_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
