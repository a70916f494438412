/* gpunn_profile: steps, their work and their times as a table and as a trace; runs that it times are runs as
 * any other. */
#include "../test.h"

enum { BATCH = 4 };
typedef struct net2 {
    gpunn_tensor *image, *label, *scores, *loss;
} net2;

static net2 network(gpunn_device *dev, gpunn_model *model)
{
    static float   images[BATCH * 3 * 8 * 8];
    static int64_t labels[BATCH] = {1, 0, 3, 2};
    net2           n;
    for (int i = 0; i < COUNT(images); i++) images[i] = sinf((float)i);
    n.image = MADE(dev, gpunn_input(model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3, 8, 8)));
    n.label = MADE(dev, gpunn_input(model, "label", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH)));
    gpunn_tensor *h = gpunn_tanh(gpunn_conv2d(n.image, "conv", .out_channels = 6, .kernel_size = 3));
    n.scores = MADE(dev, gpunn_linear(gpunn_flatten(h), "a \"quoted\\\" name", .out_features = 5));
    n.loss = MADE(dev, gpunn_cross_entropy(n.scores, n.label));
    OK(dev, gpunn_write(n.image, images, sizeof images));
    OK(dev, gpunn_write(n.label, labels, sizeof labels));
    return n;
}

typedef struct table {
    char text[16384];
    int  lines;
} table;
static void keep_line(void *user, const char *text)
{
    table *t = user;
    t->lines++;
    assert_int_equal(text[strlen(text) - 1], '\n');
    strncat(t->text, text, sizeof t->text - strlen(t->text) - 1);
}

/* The columns of the row whose step is `label`. */
typedef struct row {
    double us, share, mflop, of_flops, mb, of_bytes;
} row;
static row row_of(const table *t, const char *label)
{
    row         r = {0};
    const char *at = strstr(t->text, label), *line = at;
    if (at == NULL) print_error("no '%s' in\n%s", label, t->text);
    assert_non_null(at);
    while (line > t->text && line[-1] != '\n') line--;
    assert_int_equal(
        sscanf(line, "%lf %lf %lf %lf %lf %lf", &r.us, &r.share, &r.mflop, &r.of_flops, &r.mb, &r.of_bytes),
        6);
    return r;
}
static void check_number(double value, double expected)
{
    assert_true(fabs(value - expected) <= 0.001);
}

static void test_evaluation(void **state)
{
    fixture *f = *state;
    net2     n = network(f->dev, f->model);
    table    t = {0};
    OK(f->dev, gpunn_profile(f->model, .outputs = {n.scores}, .runs = 3, .peak_flops = 1e12,
                             .peak_bytes = 1e11, .write = keep_line, .user = &t));
    assert_non_null(strstr(t.text, "evaluation, batch 4: "));
    assert_non_null(strstr(t.text, "peaks 1000.00 GFLOP/s, 100.00 GB/s\n"));
    const row conv = row_of(&t, "conv conv2d [4, 6, 6, 6]\n"),
              linear = row_of(&t, "a \"quoted\\\" name linear [4, 5]\n");
    check_number(conv.mflop, 2e-6 * 4 * 6 * 36 * 27);
    check_number(conv.mb, 4e-6 * (4 * 3 * 64 + 6 * 27 + 6 + 4 * 6 * 36));
    check_number(linear.mflop, 2e-6 * 4 * 216 * 5);
    check_number(linear.mb, 4e-6 * (4 * 216 + 216 * 5 + 5 + 4 * 5));
    assert_null(strstr(t.text, "backward"));
    double share = 0, before = HUGE_VAL, us, percent;
    char  *line = strchr(strchr(t.text, '\n') + 1, '\n') + 1;
    for (; *line; line = strchr(line, '\n') + 1) {
        assert_int_equal(sscanf(line, "%lf %lf", &us, &percent), 2);
        assert_true(us >= 0 && us <= before);
        before = us;
        share += percent;
    }
    assert_true(fabs(share - 100) < 1);
    float scores[BATCH][5]; /* the last run's */
    OK(f->dev, gpunn_read(n.scores, scores, sizeof scores));
}

/* Operations of products: two for each product of two numbers. */
static void test_products(void **state)
{
    enum { COUNTED = 4 * 24 * 40 };
    fixture      *f = *state;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 24, 40)),
                 *heads = gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, 2, 24, 20));
    float        *values = test_randoms(COUNTED, 1, 1);
    gpunn_tensor *outputs[] = {
        gpunn_linear(x, "a", .out_features = 7, .no_bias = true),
        gpunn_conv1d(x, "b", .out_channels = 8, .kernel_size = 3, .no_bias = true),
        gpunn_conv_transpose1d(x, "c", .out_channels = 5, .kernel_size = 3, .no_bias = true),
        gpunn_set_name(gpunn_matmul(x, x, .transpose_b = true), "d"),
        gpunn_set_name(gpunn_matmul(x, x, .transpose_a = true), "e"),
        gpunn_set_name(gpunn_scaled_dot_product_attention(heads, heads, heads), "f"),
        gpunn_gru(x, "g", .hidden_size = 3, .batch_first = true, .no_bias = true),
    };
    const struct {
        const char *row;
        double      products;
    } rows[] = {{"a linear [4, 24, 7]\n", COUNTED * 7},
                {"b conv1d [4, 8, 38]\n", 4 * 8 * 38 * 24 * 3},
                {"c conv_transpose1d [4, 5, 42]\n", COUNTED * 5 * 3},
                {"d matmul [4, 24, 24]\n", COUNTED * 24},
                {"e matmul [4, 40, 40]\n", COUNTED * 40},
                {"f scaled_dot_product_attention [4, 2, 24, 20]\n", 2 * COUNTED * 24},
                {"g gru [24, 4, 3]\n", 4 * 24 * 9 * (40 + 3)}};
    OK(f->dev, write_floats(x, values, COUNTED));
    for (int i = 0; i < COUNT(outputs); i++) {
        table t = {0};
        OK(f->dev, gpunn_profile(f->model, .outputs = {MADE(f->dev, outputs[i])}, .runs = 1, .peak_flops = 1,
                                 .peak_bytes = 1, .write = keep_line, .user = &t));
        check_number(row_of(&t, rows[i].row).mflop, 2e-6 * rows[i].products);
    }
    free(values);
}

/* A warm run and two timed ones are three training steps. */
static void test_training(void **state)
{
    fixture         *f = *state;
    net2             n = network(f->dev, f->model);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(f->model, .lr = 0.01f));
    gpunn_model     *twin = gpunn_model_create(f->dev);
    net2             m = network(f->dev, twin);
    gpunn_optimizer *twins = MADE(f->dev, gpunn_adam(twin, .lr = 0.01f));
    table            t = {0};
    for (int i = 0; i < gpunn_parameter_count(twin); i++) {
        gpunn_tensor *from = gpunn_parameter_at(f->model, i), *to = gpunn_parameter_at(twin, i);
        void         *values = malloc(gpunn_tensor_bytes(from));
        OK(f->dev, gpunn_read(from, values, gpunn_tensor_bytes(from)));
        OK(f->dev, gpunn_write(to, values, gpunn_tensor_bytes(from)));
        free(values);
    }
    OK(f->dev, gpunn_profile(f->model, .loss = n.loss, .optimizer = opt, .runs = 2, .peak_flops = 1,
                             .peak_bytes = 1, .write = keep_line, .user = &t));
    for (int i = 0; i < 3; i++) OK(f->dev, gpunn_train_step(twins, m.loss));
    assert_true(gpunn_item(n.loss) == gpunn_item(m.loss));
    assert_int_equal(gpunn_step_count(opt), 3);
    assert_non_null(strstr(t.text, "training step, batch 4: "));
    const double weights = 6 * 27 + 6 + 216 * 5 + 5;
    check_number(row_of(&t, "gpunn_adam\n").mflop, 1e-6 * weights);
    /* gradient; weight and two moments */
    check_number(row_of(&t, "gpunn_adam\n").mb, (4 + 3 * 8) * 1e-6 * weights);
    const row forward = row_of(&t, "name linear [4, 5]\n"),
              backward = row_of(&t, "name linear backward [4, 5]\n");
    check_number(backward.mflop, 2 * forward.mflop);
    /* images have no gradient */
    check_number(row_of(&t, "conv conv2d backward").mflop, row_of(&t, "conv conv2d [").mflop);
    double total = 0; /* the CPU's clock may have no more than microseconds; the emulator's counts */
    assert_int_equal(sscanf(t.text, "training step, batch 4: %lf us", &total), 1);
    assert_true(total > 0);
    if (f->backend->type != GPUNN_DEVICE_CPU)
        assert_true(row_of(&t, "conv conv2d backward").us > 0 && forward.us < total);
    OK(f->dev, gpunn_train_step(opt, n.loss));
    OK(f->dev, gpunn_train_step(twins, m.loss));
    assert_true(gpunn_item(n.loss) == gpunn_item(m.loss));

    t.text[0] = 0; /* without an optimizer nothing is updated */
    OK(f->dev, gpunn_profile(f->model, .loss = n.loss, .runs = 1, .peak_flops = 1, .peak_bytes = 1,
                             .write = keep_line, .user = &t));
    assert_null(strstr(t.text, "gpunn_adam"));
    assert_int_equal(gpunn_step_count(opt), 4);
    gpunn_optimizer_destroy(opt);
    gpunn_optimizer_destroy(twins);
    gpunn_model_destroy(twin);
}

static void test_trace(void **state)
{
    fixture    *f = *state;
    net2        n = network(f->dev, f->model);
    const char *path = test_path(f, "trace.json");
    const char *check =
        "import json, sys\nt = json.load(open(sys.argv[1]))\ne = t['traceEvents']\nassert len(e) > 4, e\n"
        "assert [x['cat'] for x in e] == sorted([x['cat'] for x in e], key=['forward', 'backward', "
        "'update'].index)\n"
        "assert any(x['name'].startswith('a \\\"quoted\\\\\\\\\\\" name linear [') for x in e), e\n"
        "assert all(x['ph'] == 'X' and x['dur'] >= 0 and x['args']['bytes'] >= 0 for x in e)\n"
        "assert all(abs(a['ts'] + a['dur'] - b['ts']) < 0.01 for a, b in zip(e, e[1:]))";
    OK(f->dev,
       gpunn_profile(f->model, .loss = n.loss, .runs = 1, .peak_flops = 1, .peak_bytes = 1, .trace = path));
    FAILS(f->dev,
          gpunn_profile(f->model, .loss = n.loss, .runs = 1, .peak_flops = 1, .peak_bytes = 1,
                        .trace = "/nowhere/trace.json"),
          GPUNN_ERR_IO, "/nowhere/trace.json");
    const bool python = system("command -v python3 > /dev/null") == 0;
    char      *line = malloc(strlen(check) + 256);
    (void)sprintf(line, "python3 -c \"%s\" '%s'", check, path);
    const int code = python ? system(line) : 0;
    free(line);
    unlink(path);
    assert_int_equal(code, 0);
    if (!python) SKIP("python3 is not installed");
}

static void test_peaks(void **state)
{
    fixture *f = *state;
    if (is_emulated(f->backend)) SKIP("large products take long on the emulator");
    net2   n = network(f->dev, f->model);
    table  t = {0};
    double flops = 0, bytes = 0;
    OK(f->dev, gpunn_profile(f->model, .outputs = {n.scores}, .runs = 1, .write = keep_line, .user = &t));
    assert_int_equal(sscanf(strstr(t.text, "peaks"), "peaks %lf GFLOP/s, %lf GB/s", &flops, &bytes), 2);
    assert_true(flops > 0 && bytes > 0);
}

static void test_refused(void **state)
{
    fixture         *f = *state;
    net2             n = network(f->dev, f->model);
    gpunn_model     *other = gpunn_model_create(f->dev);
    net2             m = network(f->dev, other);
    gpunn_tensor    *unwritten = gpunn_input(f->model, "unwritten", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor    *y = MADE(f->dev, gpunn_relu(unwritten));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model));
    assert_int_equal(gpunn_profile(NULL), GPUNN_ERR_ARGUMENT);
    gpunn_clear_error(NULL);
    FAILS(f->dev, gpunn_profile(f->model), GPUNN_ERR_ARGUMENT, ".loss");
    FAILS(f->dev, gpunn_profile(f->model, .loss = n.loss, .runs = -1), GPUNN_ERR_ARGUMENT, "negative");
    FAILS(f->dev, gpunn_profile(f->model, .loss = n.loss, .peak_flops = -1), GPUNN_ERR_ARGUMENT, "negative");
    FAILS(f->dev, gpunn_profile(f->model, .loss = m.loss), GPUNN_ERR_ARGUMENT, "another model");
    FAILS(f->dev, gpunn_profile(other, .loss = m.loss, .optimizer = opt), GPUNN_ERR_ARGUMENT,
          "another model");
    FAILS(f->dev, gpunn_profile(f->model, .outputs = {n.scores}, .optimizer = opt), GPUNN_ERR_ARGUMENT,
          ".loss");
    FAILS(f->dev, gpunn_profile(f->model, .outputs = {y}), GPUNN_ERR_STATE, "unwritten");
    OK(f->dev, gpunn_forward(&n.scores, 1));
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(other);
}

enum { WORDS = 8, WIDTH = 32 };
static gpunn_tensor *added_norm(gpunn_tensor *x, const char *layer, const char *norm)
{
    return gpunn_layer_norm(gpunn_add(gpunn_linear(x, layer, .out_features = WIDTH), x), norm);
}

/* An input's features and an embedding's, each added to what a layer makes of them; normed. */
static gpunn_model *sentence(gpunn_device *dev, gpunn_precision precision, gpunn_tensor **y)
{
    static float   features[BATCH * WORDS * WIDTH];
    static int64_t ids[BATCH * WORDS];
    gpunn_model   *model = gpunn_model_create(dev, .precision = precision, .inference = true);
    gpunn_tensor  *x = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, WORDS, WIDTH)));
    gpunn_tensor  *id = MADE(dev, gpunn_input(model, "ids", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, WORDS)));
    gpunn_tensor  *e = MADE(dev, gpunn_embedding(id, "words", .num_embeddings = 5, .embedding_dim = WIDTH));
    for (int i = 0; i < COUNT(features); i++) features[i] = 2 * sinf((float)i);
    for (int i = 0; i < COUNT(ids); i++) ids[i] = i * i % 5;
    OK(dev, gpunn_write(x, features, sizeof features));
    OK(dev, gpunn_write(id, ids, sizeof ids));
    *y = MADE(dev, gpunn_add(added_norm(x, "fc1", "n1"), added_norm(e, "fc2", "n2")));
    return model;
}

/* In 16 bits a model for evaluation keeps all values between its layers so, where the device computes on
 * them. */
static void test_half(void **state)
{
    fixture           *f = *state;
    static const float most[] = {3e-2f, 5e-3f};
    static float       expected[BATCH * WORDS * WIDTH], value[BATCH * WORDS * WIDTH];
    for (int i = 0; i < 2; i++) {
        gpunn_tensor *y, *half;
        gpunn_model  *model = sentence(f->dev, GPUNN_PRECISION_F32, &y);
        gpunn_model  *twin = sentence(f->dev, i == 0 ? GPUNN_PRECISION_BF16 : GPUNN_PRECISION_F16, &half);
        table         t = {0};
        float         weights[WIDTH * WIDTH];
        for (int k = 0; k < gpunn_parameter_count(model); k++) {
            gpunn_tensor *from = gpunn_parameter_at(model, k);
            OK(f->dev, gpunn_read(from, weights, gpunn_tensor_bytes(from)));
            OK(f->dev, gpunn_write(gpunn_parameter_at(twin, k), weights, gpunn_tensor_bytes(from)));
        }
        OK(f->dev, gpunn_forward(&y, 1));
        OK(f->dev, gpunn_read(y, expected, sizeof expected));
        OK(f->dev, gpunn_profile(twin, .outputs = {half}, .runs = 1, .peak_flops = 1, .peak_bytes = 1,
                                 .write = keep_line, .user = &t));
        OK(f->dev, gpunn_read(half, value, sizeof value));
        for (int k = 0; k < COUNT(value); k++) {
            assert_true(isfinite(value[k]));
            if (!(fabsf(value[k] - expected[k]) <= most[i] * fmaxf(1, fabsf(expected[k]))))
                fail_msg("%g, and in F32 %g", value[k], expected[k]);
        }
        const double each = f->backend->type == GPUNN_DEVICE_CPU ? 4 : 2;
        check_number(row_of(&t, "n1 layer_norm").mb, 1e-6 * (2 * each * COUNT(value) + 2 * 4 * WIDTH));
        check_number(row_of(&t, "n2 layer_norm").mb, 1e-6 * (2 * each * COUNT(value) + 2 * 4 * WIDTH));
        gpunn_model_destroy(model);
        gpunn_model_destroy(twin);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {test_with_device(test_evaluation), test_with_device(test_half),
                                       test_with_device(test_training),   test_with_device(test_trace),
                                       test_with_device(test_peaks),      test_with_device(test_refused),
                                       test_with_device(test_products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
