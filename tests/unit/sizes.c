/* Models whose dimensions vary: beside the same models with numbers there, at many sizes; and what does not
 * fit. */
#include "../test.h"

typedef struct pair { /* a model with sizes, and the device of its twins */
    test_memory   memory;
    gpunn_device *dev;
    gpunn_model  *model;
} pair;
static void pair_open(pair *p)
{
    memset(p, 0, sizeof *p);
    test_memory_init(&p->memory);
    p->dev = MADE(NULL, gpunn_device_open(ON(first_backend()), .seed = 3, .threads = 2,
                                          .realloc_fn = hook_realloc, .user = &p->memory));
    p->model = MADE(p->dev, gpunn_model_create(p->dev));
}
static void pair_close(pair *p)
{
    gpunn_model_destroy(p->model);
    gpunn_device_close(p->dev);
    test_memory_check(&p->memory);
}

/* A dimension: a number, or with sized a formula. */
static int64_t dim_of(gpunn_model *model, bool sized, const char *formula, int64_t number)
{
    return sized ? gpunn_size(model, formula) : number;
}

typedef struct built {
    gpunn_tensor *input[3], *output, *loss;
} built;
typedef built (*builder)(gpunn_model *model, bool sized, int64_t t, int64_t s);

/* Sequences of t words: positions, attention, norms, a recurrent layer, moves and reductions. */
static built sequences(gpunn_model *model, bool sized, int64_t t, int64_t s)
{
    const int64_t T = dim_of(model, sized, "T", t), rows = dim_of(model, sized, "batch * T", t * GPUNN_BATCH);
    const int64_t next = dim_of(model, sized, "T + 1", t + 1);
    built         b = {{NULL}, NULL, NULL};
    gpunn_init    normal = {GPUNN_INIT_NORMAL, 0, 0.5f};
    gpunn_tensor *h_n = NULL;
    (void)s;
    gpunn_tensor *x = b.input[0] = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, T, 8));
    gpunn_tensor *labels = b.input[1] = gpunn_input(model, "labels", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, T));
    gpunn_tensor *mask = b.input[2] = gpunn_input(model, "mask", GPUNN_BOOL,
                                                  GPUNN_SHAPE(GPUNN_BATCH, 1, 1, T));
    gpunn_tensor *places = gpunn_parameter(model, "places", GPUNN_SHAPE(40, 8), normal);
    x = gpunn_add(x, gpunn_slice(places, 0, 0, T, 1));
    gpunn_tensor *flat = gpunn_linear(gpunn_reshape(x, GPUNN_SHAPE(rows, 8)), "in", .out_features = 24);
    gpunn_tensor *qkv = gpunn_reshape(flat, GPUNN_SHAPE(GPUNN_BATCH, T, 3, 2, 4));
    gpunn_tensor *y = gpunn_scaled_dot_product_attention(qkv, NULL, NULL, .mask = mask);
    y = gpunn_layer_norm(gpunn_add(x, gpunn_reshape(y, GPUNN_SHAPE(GPUNN_BATCH, T, 8))), "norm");
    y = gpunn_transformer_encoder(y, "encoder", .nhead = 2, .dim_feedforward = 12, .num_layers = 1,
                                  .batch_first = true, .dropout = GPUNN_ZERO);
    gpunn_tensor *steps = gpunn_lstm(y, "lstm", .hidden_size = 5, .batch_first = true, .bidirectional = true,
                                     .h_n = &h_n);
    gpunn_tensor *scores = gpunn_softmax(gpunn_matmul(y, gpunn_permute(y, GPUNN_AXES(0, 2, 1))), -1);
    gpunn_tensor *means = gpunn_expand(gpunn_mean(y, GPUNN_AXES(1), true), GPUNN_SHAPE(GPUNN_BATCH, T, 8));
    gpunn_tensor *shorter = gpunn_slice(y, 1, 1, GPUNN_END_OF_AXIS, 1);
    gpunn_tensor *longer = gpunn_concat((gpunn_tensor *[]){y, gpunn_slice(y, 1, -1, T, 1)}, 2, 1);
    gpunn_tensor *wide = gpunn_reshape(longer, GPUNN_SHAPE(GPUNN_BATCH, next, 8));
    gpunn_tensor *all = gpunn_concat(
        (gpunn_tensor *[]){steps, gpunn_matmul(scores, y), means, gpunn_slice(wide, 1, 1, next, 1)}, 4, 2);
    b.output = gpunn_linear(all, "out", .out_features = 6);
    b.loss = gpunn_cross_entropy(gpunn_permute(b.output, GPUNN_AXES(0, 2, 1)), labels);
    b.loss = gpunn_add(b.loss, gpunn_mean(gpunn_square(h_n), GPUNN_ALL, false));
    b.loss = gpunn_add(b.loss, gpunn_mean(gpunn_square(shorter), GPUNN_ALL, false));
    b.loss = gpunn_add(
        b.loss,
        gpunn_mean(gpunn_square(gpunn_einsum("nte,nse->ts", (gpunn_tensor *[]){y, y}, 2)), GPUNN_ALL, false));
    return b;
}

/* Images of t * s: down and up again with what was on the way, pads, pools and sizes of any kind. */
static built images(gpunn_model *model, bool sized, int64_t t, int64_t s)
{
    const int64_t H = sized ? gpunn_size(model, "H", .multiple = 4, .min = 8, .max = 64) : t;
    const int64_t W = dim_of(model, sized, "W", s);
    built         b = {{NULL}, NULL, NULL};
    gpunn_tensor *x = b.input[0] = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 16, H, W));
    gpunn_tensor *c1 = gpunn_relu(
        gpunn_batch_norm2d(gpunn_conv2d(x, "c1", .out_channels = 16, .kernel_size = 3, .padding = 1), "n1"));
    gpunn_tensor *c2 = gpunn_silu(
        gpunn_conv2d(c1, "c2", .out_channels = 16, .kernel_size = 3, .stride = 2, .padding = 1));
    gpunn_tensor *c3 = gpunn_max_pool2d(gpunn_group_norm(c2, "n2", .num_groups = 4), .kernel_size = 2,
                                        .strides = {2, 1}, .padding = 1);
    gpunn_tensor *up = gpunn_conv_transpose2d(c3, "u1", .out_channels = 8, .kernel_size = 2,
                                              .strides = {2, 1});
    gpunn_tensor *rows = gpunn_interpolate(gpunn_mean(c2, GPUNN_AXES(3), true), .scale_factors = {2, 1},
                                           .mode = GPUNN_INTERPOLATE_LINEAR);
    gpunn_tensor *joined = gpunn_concat(
        (gpunn_tensor *[]){c1, gpunn_expand(rows, GPUNN_SHAPE(GPUNN_BATCH, 16, H, W))}, 2, 1);
    gpunn_tensor *padded = gpunn_pad(joined, .before = {0, 0, 1, 2}, .after = {0, 0, 1, 0},
                                     .mode = GPUNN_PAD_REFLECT);
    gpunn_tensor *aligned = gpunn_interpolate(padded, .scale_factor = 0.5f, .mode = GPUNN_INTERPOLATE_LINEAR,
                                              .align_corners = true);
    gpunn_tensor *fixed = gpunn_interpolate(padded, .size = {5, 7}, .mode = GPUNN_INTERPOLATE_LINEAR);
    gpunn_tensor *pooled = gpunn_flatten(
        gpunn_adaptive_avg_pool2d(gpunn_avg_pool2d(aligned, .kernel_size = 2, .stride = 1), 2, 3));
    b.output = gpunn_linear(gpunn_concat((gpunn_tensor *[]){pooled, gpunn_flatten(fixed)}, 2, 1), "out",
                            .out_features = 4);
    gpunn_tensor *turned = gpunn_tril(gpunn_flip(gpunn_pixel_shuffle(c2, 2), GPUNN_AXES(0, 2)), 1);
    turned = gpunn_logsumexp(gpunn_std(turned, GPUNN_AXES(3), 0, true), GPUNN_AXES(1, 2), false);
    b.loss = gpunn_add(gpunn_mean(gpunn_square(b.output), GPUNN_ALL, false),
                       gpunn_mean(gpunn_square(gpunn_flatten(up)), GPUNN_ALL, false));
    b.loss = gpunn_add(b.loss, gpunn_mean(turned, GPUNN_ALL, false));
    /* last windows that end outside at some sizes and not at others */
    gpunn_tensor *most = gpunn_max_pool2d(c1, .kernel_size = 3, .ceil_mode = true);
    gpunn_tensor *means = gpunn_avg_pool2d(c1, .kernel_size = 3, .stride = 2, .padding = 1,
                                           .ceil_mode = true);
    b.loss = gpunn_add(b.loss, gpunn_mean(gpunn_square(most), GPUNN_ALL, false));
    b.loss = gpunn_add(b.loss, gpunn_mean(gpunn_square(means), GPUNN_ALL, false));
    return b;
}

/* ---- beside numbers ---- */
static void write_any(gpunn_device *dev, gpunn_tensor *t, const gpunn_shape *shape, uint32_t seed)
{
    int64_t count = 1;
    for (int i = 0; i < shape_rank(*shape); i++) count *= shape->dim[i];
    float   *values = test_randoms(count, seed, 1);
    int64_t *labels = malloc((size_t)count * sizeof *labels);
    bool    *mask = malloc((size_t)count);
    for (int64_t i = 0; i < count; i++) labels[i] = i * 7 % 6, mask[i] = i % 5 != 4;
    const gpunn_dtype dtype = gpunn_tensor_dtype(t);
    OK(dev, gpunn_write_shape(t,
                              dtype == GPUNN_F32   ? (void *)values
                              : dtype == GPUNN_I64 ? (void *)labels
                                                   : mask,
                              *shape));
    free(values), free(labels), free(mask);
}

static float *read_any(gpunn_device *dev, gpunn_tensor *t, bool gradient, int64_t *count)
{
    const size_t bytes = gpunn_tensor_bytes(t);
    float       *values = malloc(bytes);
    OK(dev, gradient ? gpunn_read_grad(t, values, bytes) : gpunn_read(t, values, bytes));
    *count = (int64_t)(bytes / sizeof *values);
    return values;
}

static void check_same(gpunn_device *dev, gpunn_tensor *sized, gpunn_tensor *fixed, bool gradient)
{
    int64_t count, expected_count;
    float  *actual = read_any(dev, sized, gradient, &count),
          *expected = read_any(dev, fixed, gradient, &expected_count);
    assert_int_equal(count, expected_count);
    check_close(actual, expected, count, 1e-5, 1e-6);
    free(actual), free(expected);
}

/* One size in turn: values, the loss and all gradients of the model with sizes, and of its twin. */
static void check_size(pair *p, const built *sized, builder build, int64_t batch, int64_t t, int64_t s)
{
    gpunn_model *twin = MADE(p->dev, gpunn_model_create(p->dev));
    gpunn_array  weights;
    built        fixed = build(twin, false, t, s);
    MADE(p->dev, fixed.loss);
    OK(p->dev, gpunn_save_memory(p->model, &weights));
    OK(p->dev, gpunn_load_memory(twin, weights.data, weights.bytes));
    gpunn_array_free(p->dev, &weights);
    for (int i = 0; i < 3 && fixed.input[i]; i++) {
        gpunn_shape shape = gpunn_tensor_shape(fixed.input[i]);
        shape.dim[0] = batch;
        write_any(p->dev, fixed.input[i], &shape, (uint32_t)(t * 100 + s));
        write_any(p->dev, sized->input[i], &shape, (uint32_t)(t * 100 + s));
    }
    OK(p->dev, gpunn_forward(&sized->output, 1));
    OK(p->dev, gpunn_forward(&fixed.output, 1));
    check_same(p->dev, sized->output, fixed.output, false);
    OK(p->dev, gpunn_zero_grad(p->model));
    OK(p->dev, gpunn_backward(sized->loss));
    OK(p->dev, gpunn_backward(fixed.loss));
    check_same(p->dev, sized->loss, fixed.loss, false);
    for (int i = 0; i < gpunn_parameter_count(twin); i++) {
        gpunn_tensor *other = gpunn_parameter_at(twin, i),
                     *own = gpunn_find(p->model, gpunn_tensor_name(other));
        const bool trained = strstr(gpunn_tensor_name(other), "running") == NULL &&
                             strstr(gpunn_tensor_name(other), "num_") == NULL;
        check_same(p->dev, own, other, trained);
    }
    gpunn_model_destroy(twin);
}

static void check_sizes(builder build, const int64_t (*sizes)[3], int count)
{
    pair p;
    pair_open(&p);
    built            b = build(p.model, true, 0, 0);
    gpunn_optimizer *o = MADE(p.dev, gpunn_sgd(p.model, .lr = 0.01f));
    MADE(p.dev, b.loss);
    for (int i = 0; i < count; i++) {
        check_size(&p, &b, build, sizes[i][0], sizes[i][1], sizes[i][2]);
        OK(p.dev, gpunn_train_step(o, b.loss));
    }
    gpunn_optimizer_destroy(o);
    pair_close(&p);
}

static void test_sequences(void **state)
{
    static const int64_t sizes[][3] = {{2, 7, 1}, {2, 12, 1}, {3, 7, 1}, {1, 2, 1},
                                       {2, 7, 1}, {4, 33, 1}, {1, 40, 1}};
    (void)state;
    check_sizes(sequences, sizes, COUNT(sizes));
}

/* A mean over the words that are there, of batches padded to any length; and its gradient. */
static void test_lengths(void **state)
{
    enum { ROWS = 3, MOST = 6 };
    static const int64_t lengths[ROWS] = {2, 0, 9}; /* 9: as many as there are */
    pair                 p;
    (void)state;
    pair_open(&p);
    const int64_t T = gpunn_size(p.model, "T");
    gpunn_tensor *x = MADE(p.dev, gpunn_input(p.model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, T)));
    gpunn_tensor *n = MADE(p.dev, gpunn_input(p.model, "n", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH)));
    gpunn_tensor *mask = MADE(p.dev, gpunn_sequence_mask(n, T)), *there = gpunn_sum(mask, GPUNN_ALL, false);
    gpunn_tensor *mean = MADE(p.dev, gpunn_div(gpunn_sum(gpunn_mul(x, mask), GPUNN_ALL, false), there));
    gpunn_retain_grad(x);
    for (int64_t t = 2; t <= MOST; t += 2) {
        float values[ROWS * MOST], seen[ROWS * MOST], got[ROWS * MOST];
        float total = 0, count = 0;
        for (int64_t i = 0; i < ROWS * t; i++) {
            const bool inside = i % t < lengths[i / t];
            values[i] = (float)i;
            seen[i] = inside ? 1.0f : 0.0f;
            total += inside ? values[i] : 0;
            count += inside;
        }
        OK(p.dev, gpunn_write_shape(x, values, GPUNN_SHAPE(ROWS, t)));
        OK(p.dev, gpunn_write(n, lengths, sizeof lengths));
        gpunn_keep(mask);
        OK(p.dev, gpunn_backward(mean));
        OK(p.dev, gpunn_read(mask, got, (size_t)(ROWS * t) * sizeof *got));
        assert_memory_equal(got, seen, (size_t)(ROWS * t) * sizeof *got);
        assert_true(fabsf(gpunn_item(mean) - total / count) <= 1e-5f);
        OK(p.dev, gpunn_read_grad(x, got, (size_t)(ROWS * t) * sizeof *got));
        for (int64_t i = 0; i < ROWS * t; i++) assert_true(fabsf(got[i] - seen[i] / count) <= 1e-6f);
    }
    FAILS_NULL(p.dev, gpunn_sequence_mask(x, T), GPUNN_ERR_SHAPE, "sequence_mask", "[batch, T] of f32",
               "[n] is needed");
    FAILS_NULL(p.dev, gpunn_sequence_mask(n, 0), GPUNN_ERR_SHAPE, "");
    assert_null(gpunn_sequence_mask(NULL, T));
    pair_close(&p);
}

/* The spec of a model, as text. */
static char *spec_of(pair *p, gpunn_model *model, gpunn_tensor *output, gpunn_tensor *loss)
{
    gpunn_array saved;
    OK(p->dev, gpunn_spec_save_memory(model, &saved, .name = "sizes", .outputs = {output}, .loss = loss));
    char *text = malloc(saved.bytes);
    memcpy(text, saved.data, saved.bytes);
    text[saved.bytes - 1] = 0; /* its last newline */
    gpunn_array_free(p->dev, &saved);
    return text;
}

/* Puts in place of a model what its spec tells, which is saved as the same bytes. */
static built specified(pair *p, const built *b, char **text)
{
    *text = spec_of(p, p->model, b->output, b->loss);
    gpunn_model *model = MADE(p->dev, gpunn_spec_load_memory(p->dev, *text, strlen(*text)));
    char        *again = spec_of(p, model, NULL, NULL);
    assert_string_equal(*text, again);
    free(again);
    built result = {{NULL}, gpunn_spec_output(model, 0), gpunn_spec_loss(model)};
    for (int i = 0; i < 3 && b->input[i]; i++)
        result.input[i] = MADE(p->dev, gpunn_find(model, gpunn_tensor_name(b->input[i])));
    gpunn_model_destroy(p->model);
    p->model = model;
    return result;
}

static void test_specs(void **state)
{
    static const struct {
        builder     build;
        int64_t     sizes[2][3];
        const char *says[3];
    } models[] = {{sequences,
                   {{2, 7, 1}, {3, 12, 1}},
                   {"\"sizes\": {\"T\": {}}", "\"T * batch\"", "\"start\": \"T - 1\""}},
                  {images,
                   {{2, 8, 9}, {1, 16, 21}},
                   {"\"H\": {\"min\": 8, \"max\": 64, \"multiple\": 4}, \"W\": {}", "\"size\": [\"H\", 1]",
                    "\"size\": [\"H / 2 + 1\", \"W / 2 + 1\"]"}}};
    (void)state;
    for (int i = 0; i < COUNT(models); i++) {
        pair  p;
        char *text;
        pair_open(&p);
        built b = models[i].build(p.model, true, 0, 0);
        MADE(p.dev, b.loss);
        b = specified(&p, &b, &text);
        for (int k = 0; k < 3; k++)
            if (strstr(text, models[i].says[k]) == NULL) fail_msg("%s is not in %s", models[i].says[k], text);
        free(text);
        for (int k = 0; k < 2; k++)
            check_size(&p, &b, models[i].build, models[i].sizes[k][0], models[i].sizes[k][1],
                       models[i].sizes[k][2]);
        pair_close(&p);
    }
}

static void test_images(void **state)
{
    static const int64_t sizes[][3] = {{2, 8, 9}, {1, 16, 8}, {2, 12, 21}, {2, 8, 9}, {3, 20, 7}};
    (void)state;
    check_sizes(images, sizes, COUNT(sizes));
}

/* ---- formulas ---- */
static void test_formulas(void **state)
{
    pair p;
    (void)state;
    pair_open(&p);
    const int64_t T = gpunn_size(p.model, "T"), H = gpunn_size(p.model, "H", .multiple = 8);
    assert_true(T == gpunn_size(p.model, "T") && T == gpunn_size(p.model, "2 * T - T") && T != H);
    assert_true(gpunn_size(p.model, "(T + 1) * (T - 1)") == gpunn_size(p.model, "T * T - 1"));
    assert_true(gpunn_size(p.model, "(T - 1) / 2 + 1") == gpunn_size(p.model, "(T + 1) / 2"));
    assert_true(gpunn_size(p.model, "T / 2 / 3") == gpunn_size(p.model, "T / 6"));
    assert_true(gpunn_size(p.model, "(T / 2 + 1) / 3") == gpunn_size(p.model, "(T + 2) / 6"));
    assert_true(gpunn_size(p.model, "(2 * T + 1) / 4") == gpunn_size(p.model, "T / 2"));
    assert_true(gpunn_size(p.model, "T / 2 * 2") != T && gpunn_size(p.model, "H / 8 * 8") == H);
    assert_true(gpunn_size(p.model, "((H - 1) / 2 + 1) * 2") == H);
    assert_true(gpunn_size(p.model, "3 * batch") == 3 * GPUNN_BATCH && gpunn_size(p.model, "T - T + 5") == 5);
    assert_true(gpunn_size(p.model, "batch * T") == gpunn_size(p.model, "T * batch"));
    gpunn_tensor *whole = gpunn_input(p.model, "whole", GPUNN_F32, GPUNN_SHAPE(H, T));
    gpunn_tensor *part = gpunn_input(p.model, "part", GPUNN_F32,
                                     GPUNN_SHAPE(gpunn_size(p.model, "H / 8"), T));
    FAILS_NULL(p.dev, gpunn_add(whole, part), GPUNN_ERR_SHAPE, "[H, T]", "[H / 8, T]");
    static const char *const wrong[][2] = {{"T -", "missing"},
                                           {"S + 1", "not a size yet"},
                                           {"(T", ") is missing"},
                                           {"T T", "extra text at its end"},
                                           {"T - T", "never a valid size"},
                                           {"T / 0", "integer of 1 or more"},
                                           {"T * T * T * T * T", "too long"},
                                           {"", "missing"}};
    for (int i = 0; i < COUNT(wrong); i++) {
        const int64_t dim = gpunn_size(p.model, wrong[i][0]);
        check_sentence(p.dev, GPUNN_ERR_ARGUMENT, __FILE__, __LINE__, "size", wrong[i][1],
                       (const char *)NULL);
        FAILS_NULL(p.dev, gpunn_input(p.model, "no", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, dim)),
                   GPUNN_ERR_SHAPE, "no size");
    }
    (void)gpunn_size(p.model, "T", .max = 3);
    check_sentence(p.dev, GPUNN_ERR_ARGUMENT, __FILE__, __LINE__, "only when a name is new",
                   (const char *)NULL);
    (void)gpunn_size(p.model, "U", .min = 9, .max = 15, .multiple = 8);
    check_sentence(p.dev, GPUNN_ERR_ARGUMENT, __FILE__, __LINE__, "allow no size", (const char *)NULL);
    const int64_t counted[] = {T + 1, T - 1, T / 2, T / 4, -T};
    for (int i = 0; i < COUNT(counted); i++) /* C's arithmetic gives no size */
        FAILS_NULL(p.dev, gpunn_input(p.model, "no", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, counted[i], 2)),
                   GPUNN_ERR_SHAPE, "");
    pair_close(&p);
}

/* A summary counts the largest sizes; the last run's are still those of its results. */
static void test_summary(void **state)
{
    pair        p;
    const float values[6] = {1, 2, 3, 4, 5, 6};
    float       got[6];
    size_t      bytes = 0;
    (void)state;
    pair_open(&p);
    const int64_t H = gpunn_size(p.model, "H", .min = 2, .max = 9);
    gpunn_tensor *x = MADE(p.dev, gpunn_input(p.model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, H)));
    gpunn_tensor *y = MADE(p.dev, gpunn_relu(x));
    OK(p.dev, gpunn_write_shape(x, values, GPUNN_SHAPE(2, 3)));
    OK(p.dev, gpunn_forward(&y, 1));
    OK(p.dev, gpunn_model_summary(p.model, .batch_size = 4, .bytes = &bytes));
    assert_true(bytes >= 4 * 9 * sizeof(float));
    assert_int_equal(gpunn_tensor_bytes(y), sizeof values);
    OK(p.dev, gpunn_read(y, got, sizeof got));
    assert_memory_equal(got, values, sizeof values);
    pair_close(&p);
}

/* ---- what does not fit ---- */
static void test_refusals(void **state)
{
    pair  p;
    float values[512] = {0};
    (void)state;
    pair_open(&p);
    const int64_t T = gpunn_size(p.model, "T", .min = 2, .max = 32),
                  S = gpunn_size(p.model, "S", .multiple = 4);
    gpunn_tensor *x = gpunn_input(p.model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, T, 2));
    gpunn_tensor *z = gpunn_input(p.model, "z", GPUNN_F32, GPUNN_SHAPE(T, 2)),
                 *w = gpunn_input(p.model, "w", GPUNN_F32, GPUNN_SHAPE(S));
    gpunn_tensor *later = gpunn_input(p.model, "later", GPUNN_F32,
                                      GPUNN_SHAPE(gpunn_size(p.model, "2 * T + 1")));
    FAILS_NULL(p.dev, gpunn_add(x, w), GPUNN_ERR_SHAPE, "[batch, T, 2]", "[S]",
               "a size that varies broadcasts only with itself");
    FAILS_NULL(p.dev, gpunn_linear(gpunn_permute(x, GPUNN_AXES(0, 2, 1)), "l", .out_features = 2),
               GPUNN_ERR_SHAPE, "axis 2", "varies between runs");
    FAILS_NULL(p.dev,
               gpunn_max_pool1d(gpunn_permute(x, GPUNN_AXES(0, 2, 1)), .kernel_size = 2, .stride = 3,
                                .ceil_mode = true),
               GPUNN_ERR_SHAPE, "axis 2", "the kernel must span the stride and the padding");
    FAILS_NULL(p.dev, gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, T, 3)), GPUNN_ERR_SHAPE, "[batch, T, 3]");
    FAILS_NULL(p.dev, gpunn_parameter(p.model, "p", GPUNN_SHAPE(T), (gpunn_init){0}), GPUNN_ERR_SHAPE,
               "none may vary");
    gpunn_tensor *y = MADE(p.dev, gpunn_sum(gpunn_add(x, z), GPUNN_AXES(1, 2), false));
    gpunn_tensor *pairs = gpunn_input(p.model, "pairs", GPUNN_F32, GPUNN_SHAPE(gpunn_size(p.model, "T * T")));
    gpunn_tensor *squares = MADE(
        p.dev, gpunn_mul(gpunn_sum(pairs, GPUNN_ALL, false), gpunn_sum(z, GPUNN_ALL, false)));
    gpunn_tensor *cut = MADE(p.dev, gpunn_slice(z, 0, 0, 5, 1)),
                 *sum = MADE(p.dev, gpunn_sum(later, GPUNN_ALL, false));
    gpunn_tensor *fifth = MADE(
        p.dev, gpunn_slice(z, 0, gpunn_size(p.model, "T - 5"), gpunn_size(p.model, "T - 4"), 1));
    gpunn_tensor *conv = MADE(
        p.dev, gpunn_conv1d(gpunn_permute(x, GPUNN_AXES(0, 2, 1)), "c", .out_channels = 2, .kernel_size = 7));
    FAILS(p.dev, gpunn_write(x, values, 2 * 3 * 2 * sizeof(float)), GPUNN_ERR_SHAPE,
          "2 dimensions of [batch, T, 2]", "gpunn_write_shape");
    FAILS(p.dev, gpunn_write_shape(x, values, GPUNN_SHAPE(2, 3, 3)), GPUNN_ERR_SHAPE, "[2, 3, 3]",
          "[batch, T, 2]");
    OK(p.dev, gpunn_write_shape(x, values, GPUNN_SHAPE(2, 6, 2)));
    OK(p.dev, gpunn_write(z, values, 7 * 2 * sizeof(float)));
    FAILS(p.dev, gpunn_forward(&y, 1), GPUNN_ERR_SHAPE, "'x' makes it 6", "'z' has 7", "'T'");
    OK(p.dev, gpunn_write(z, values, 6 * 2 * sizeof(float)));
    OK(p.dev, gpunn_write(pairs, values, 35 * sizeof(float)));
    FAILS(p.dev, gpunn_forward(&squares, 1), GPUNN_ERR_SHAPE, "input 'pairs' has 35 along axis 0",
          "'T * T' is 36 in the other inputs");
    OK(p.dev, gpunn_write(pairs, values, 36 * sizeof(float)));
    OK(p.dev, gpunn_forward(&squares, 1));
    OK(p.dev, gpunn_forward(&y, 1));
    gpunn_shape shape = gpunn_tensor_sizes(gpunn_find(p.model, "x"));
    assert_true(shape.dim[0] == 2 && shape.dim[1] == 6 && shape.dim[2] == 2 && shape.dim[3] == 0);
    FAILS(p.dev, gpunn_forward(&conv, 1), GPUNN_ERR_SHAPE, "T = 6", "conv1d 'c'", "spans 7");
    /* of the run before, which can still be read */
    assert_int_equal(gpunn_tensor_bytes(y), 2 * sizeof(float));
    OK(p.dev, gpunn_read(y, values, 2 * sizeof(float)));
    OK(p.dev, gpunn_write(z, values, 4 * 2 * sizeof(float)));
    FAILS(p.dev, gpunn_forward(&cut, 1), GPUNN_ERR_SHAPE, "T = 4", "slice", "0:5");
    FAILS(p.dev, gpunn_forward(&fifth, 1), GPUNN_ERR_SHAPE, "T = 4", "slice",
          "begins 1 elements before axis 0 of [4, 2]");
    OK(p.dev, gpunn_write(z, values, 33 * 2 * sizeof(float)));
    FAILS(p.dev, gpunn_forward(&cut, 1), GPUNN_ERR_SHAPE, "'z'", "33", "'T'", ".max");
    OK(p.dev, gpunn_write(z, values, 1 * 2 * sizeof(float)));
    FAILS(p.dev, gpunn_forward(&cut, 1), GPUNN_ERR_SHAPE, ".min");
    OK(p.dev, gpunn_write(later, values, 12 * sizeof(float)));
    FAILS(p.dev, gpunn_forward(&sum, 1), GPUNN_ERR_SHAPE, "'later'", "12", "2 * T + 1",
          "cannot have that value");
    OK(p.dev, gpunn_write(later, values, 13 * sizeof(float)));
    OK(p.dev, gpunn_forward(&sum, 1));
    OK(p.dev, gpunn_write(w, values, 6 * sizeof(float)));
    FAILS(p.dev, gpunn_forward(&w, 1), GPUNN_ERR_SHAPE, "'w'", "6", ".multiple 4");
    pair_close(&p);
}

/* ---- plans ---- */
static void test_plans(void **state)
{
    pair         p;
    static float values[300];
    size_t       held[4], bytes = 0;
    (void)state;
    pair_open(&p);
    for (int limited = 0; limited < 2; limited++) {
        gpunn_model  *model = MADE(p.dev, gpunn_model_create(p.dev));
        gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32,
                                      GPUNN_SHAPE(gpunn_size(model, "T", .max = 300), 1));
        gpunn_tensor *y = MADE(p.dev, gpunn_linear(gpunn_relu(x), "l", .out_features = 3));
        OK(p.dev, gpunn_set_plan_limit(model, limited ? 0 : 4, limited ? 20000 : 0));
        OK(p.dev, gpunn_model_summary(model, .outputs = {y}, .bytes = &bytes));
        for (int i = 0; i < 2000; i++) {
            OK(p.dev, gpunn_write(x, values, (size_t)(300 - i * 7 % 300) * sizeof *values));
            OK(p.dev, gpunn_forward(&y, 1));
            if (i % 500 == 499) held[i / 500] = p.memory.bytes;
        }
        assert_int_equal(held[1], held[3]);
        gpunn_model_destroy(model);
    }
    FAILS(p.dev, gpunn_set_plan_limit(p.model, -1, 0), GPUNN_ERR_ARGUMENT, "count is negative");
    pair_close(&p);
}

/* x [A, B] and y [C, D], each side 1 to 10: the set of sizes with that number, of 10,000. 0 is the
 * largest. */
static void run_set(const pair *p, const built *b, int number)
{
    static const float values[100];
    const int64_t      side[4] = {10 - number % 10, 10 - number / 10 % 10, 10 - number / 100 % 10,
                                  10 - number / 1000};
    OK(p->dev, gpunn_write_shape(b->input[0], values, GPUNN_SHAPE(side[0], side[1])));
    OK(p->dev, gpunn_write_shape(b->input[1], values, GPUNN_SHAPE(side[2], side[3])));
    OK(p->dev, gpunn_backward(b->loss));
}

/* Bytes with the largest set's plan alone. */
static size_t held_at_rest(const pair *p, const built *b)
{
    OK(p->dev, gpunn_set_plan_limit(p->model, 1, 0));
    run_set(p, b, 0);
    const size_t bytes = p->memory.bytes;
    OK(p->dev, gpunn_set_plan_limit(p->model, 0, 0));
    return bytes;
}

static void test_many_sets(void **state)
{
    pair  p;
    built b = {{NULL}, NULL, NULL};
    (void)state;
    pair_open(&p);
    const int64_t A = gpunn_size(p.model, "A"), B = gpunn_size(p.model, "B");
    const int64_t C = gpunn_size(p.model, "C"), D = gpunn_size(p.model, "D");
    gpunn_tensor *x = b.input[0] = gpunn_input(p.model, "x", GPUNN_F32, GPUNN_SHAPE(A, B));
    gpunn_tensor *y = b.input[1] = gpunn_input(p.model, "y", GPUNN_F32, GPUNN_SHAPE(C, D));
    x = gpunn_linear(gpunn_reshape(x, GPUNN_SHAPE(gpunn_size(p.model, "A * B"), 1)), "rows",
                     .out_features = 3);
    y = gpunn_conv2d(gpunn_reshape(y, GPUNN_SHAPE(1, 1, C, D)), "image", .out_channels = 2, .kernel_size = 3,
                     .stride = 2, .padding = 1);
    b.loss = MADE(p.dev, gpunn_add(gpunn_mean(gpunn_square(x), GPUNN_ALL, false),
                                   gpunn_mean(gpunn_square(y), GPUNN_ALL, false)));
    const int sets = &gpunn_emulator_backend ? 2000 : 10000; /* emulated kernels are slow */
    size_t    held = 0;
    for (int i = 0; i < sets; i++) {
        run_set(&p, &b, i);
        if (i == 99) held = held_at_rest(&p, &b);
    }
    assert_int_equal(held_at_rest(&p, &b), held);
    pair_close(&p);
}

/* A model without named sizes has formulas of the batch too. */
static void test_batch_alone(void **state)
{
    (void)state;
    pair p;
    pair_open(&p);
    const int64_t next = gpunn_size(p.model, "batch + 1"), square = gpunn_size(p.model, "batch * batch");
    assert_true(next == gpunn_size(p.model, "1 + batch") && square != next);
    gpunn_tensor *x = MADE(p.dev, gpunn_input(p.model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2))),
                 *y = MADE(p.dev, gpunn_input(p.model, "y", GPUNN_F32, GPUNN_SHAPE(next, 2)));
    gpunn_tensor *sum = MADE(
        p.dev, gpunn_add(gpunn_sum(x, GPUNN_AXES(0), false), gpunn_mean(y, GPUNN_AXES(0), false)));
    float out[2];
    OK(p.dev, gpunn_write(x, (float[]){1, 2, 3, 4}, 16));
    OK(p.dev, gpunn_write_shape(y, (float[]){1, 2, 3, 4, 5, 6}, GPUNN_SHAPE(3, 2)));
    OK(p.dev, gpunn_forward(&sum, 1));
    OK(p.dev, gpunn_read(sum, out, sizeof out));
    assert_true(out[0] == 7 && out[1] == 10);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formulas),  cmocka_unit_test(test_summary),
                                       cmocka_unit_test(test_refusals),  cmocka_unit_test(test_sequences),
                                       cmocka_unit_test(test_images),    cmocka_unit_test(test_specs),
                                       cmocka_unit_test(test_plans),     cmocka_unit_test(test_lengths),
                                       cmocka_unit_test(test_many_sets), cmocka_unit_test(test_batch_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
