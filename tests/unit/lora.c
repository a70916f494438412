/* Low-rank adapters: what they compute, their gradients and memory, switching, merging, and PEFT's files. */
#include "../test.h"

enum { ROWS = 5, WIDTH = 6, INNER = 9, CLASSES = 4, VOCAB = 11, LENGTH = 7, STEPS = 10 };

/* A small network with layers as a language model names them. */
typedef struct network {
    gpunn_tensor *tokens, *labels, *logits, *loss;
} network;

static gpunn_tensor *block(gpunn_tensor *x, int layer)
{
    char up[64], down[64];
    (void)snprintf(up, sizeof up, "layers.%d.up_proj", layer);
    (void)snprintf(down, sizeof down, "layers.%d.down_proj", layer);
    gpunn_tensor *h = gpunn_silu(gpunn_linear(x, up, .out_features = INNER));
    return gpunn_add(x, gpunn_linear(h, down, .out_features = WIDTH, .no_bias = true));
}

static network network_make(gpunn_device *dev, gpunn_model *model)
{
    network n;
    n.tokens = gpunn_input(model, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, LENGTH));
    n.labels = gpunn_input(model, "labels", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *x = gpunn_embedding(n.tokens, "embed_tokens", .num_embeddings = VOCAB,
                                      .embedding_dim = WIDTH);
    x = block(block(x, 0), 1);
    n.logits = gpunn_linear(gpunn_mean(x, GPUNN_AXES(1), false), "head", .out_features = CLASSES);
    n.loss = MADE(dev, gpunn_cross_entropy(n.logits, n.labels));
    return n;
}

static void network_write(gpunn_device *dev, network n)
{
    int64_t tokens[ROWS][LENGTH], labels[ROWS];
    for (int i = 0; i < ROWS; i++) {
        labels[i] = i % CLASSES;
        for (int k = 0; k < LENGTH; k++) tokens[i][k] = (3 * i + 5 * k) % VOCAB;
    }
    OK(dev, gpunn_write(n.tokens, tokens, sizeof tokens));
    OK(dev, gpunn_write(n.labels, labels, sizeof labels));
}

static void network_run(gpunn_device *dev, network n, float *logits)
{
    OK(dev, gpunn_forward(&n.logits, 1));
    OK(dev, gpunn_read(n.logits, logits, ROWS * CLASSES * sizeof *logits));
}

/* Gives every parameter of the adapters numbers of some size: B starts as zeros. */
static void adapters_fill(gpunn_device *dev, gpunn_model *model, const char *adapter, uint32_t seed)
{
    for (int i = 0; i < gpunn_parameter_count(model); i++) {
        gpunn_tensor *t = gpunn_parameter_at(model, i);
        if (strstr(gpunn_tensor_name(t), ".lora_") == NULL || strstr(gpunn_tensor_name(t), adapter) == NULL)
            continue;
        int64_t n = (int64_t)(gpunn_tensor_bytes(t) / sizeof(float));
        float  *values = test_randoms(n, seed + (uint32_t)i, 0.5f);
        OK(dev, write_floats(t, values, n));
        free(values);
    }
}

static gpunn_tensor *found(fixture *f, const char *name)
{
    return MADE(f->dev, gpunn_find(f->model, name));
}

static void take_gradients(void *user, const char *text)
{
    const char *at = strstr(text, "gradients ");
    if (at) *(size_t *)user = (size_t)strtoull(at + 10, NULL, 10);
}

/* Bytes of gradients in a training step, as the summary tells them beforehand. */
static size_t gradient_bytes(fixture *f, gpunn_tensor *loss)
{
    size_t bytes = SIZE_MAX;
    OK(f->dev, gpunn_model_summary(f->model, .loss = loss, .batch_size = ROWS, .write = take_gradients,
                                   .user = &bytes));
    return bytes;
}

/* ---- one layer by its formula -------------------------------------------------------------------------- */
typedef struct layer {
    gpunn_tensor *x, *y, *loss;
} layer;

/* y = fc(x) [3, out], and the sum of its squares. */
static layer layer_make(fixture *f)
{
    layer l;
    l.x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, WIDTH));
    l.y = gpunn_linear(l.x, "fc", .out_features = INNER);
    l.loss = MADE(f->dev, gpunn_sum(gpunn_square(l.y), GPUNN_ALL, false));
    return l;
}

/* W x + b + scale B A x in double, from the values in the model. */
static void check_formula(fixture *f, layer l, const float *x, double scale, int rank)
{
    float *w = read_floats(f->dev, found(f, "fc.weight"), NULL);
    float *bias = read_floats(f->dev, found(f, "fc.bias"), NULL);
    float *a = read_floats(f->dev, found(f, "fc.lora_A.default.weight"), NULL);
    float *b = read_floats(f->dev, found(f, "fc.lora_B.default.weight"), NULL);
    float  y[3 * INNER], wanted[3 * INNER];
    for (int i = 0; i < 3 * INNER; i++) {
        const int o = i % INNER;
        double    sum = bias[o];
        for (int k = 0; k < WIDTH; k++) {
            double more = 0;
            for (int r = 0; r < rank; r++) more += (double)b[o * rank + r] * a[r * WIDTH + k];
            sum += (w[o * WIDTH + k] + scale * more) * x[i / INNER * WIDTH + k];
        }
        wanted[i] = (float)sum;
    }
    OK(f->dev, gpunn_forward(&l.y, 1));
    OK(f->dev, gpunn_read(l.y, y, sizeof y));
    check_close(y, wanted, 3 * INNER, 1e-5, 1e-5);
    free(w), free(bias), free(a), free(b);
}

/* Values by the formula, gradients by central differences; the layer's own weights have none. */
static void test_formula(void **state)
{
    fixture *f = *state;
    layer    l = layer_make(f);
    float   *x = test_randoms(3 * WIDTH, 3, 1), before[3 * INNER], after[3 * INNER];
    OK(f->dev, write_floats(l.x, x, 3 * WIDTH));
    OK(f->dev, gpunn_forward(&l.y, 1));
    OK(f->dev, gpunn_read(l.y, before, sizeof before));
    OK(f->dev, gpunn_lora(f->model, "fc", .rank = 4, .alpha = 6, .dropout = 0.25f));
    OK(f->dev, gpunn_forward(&l.y, 1));
    OK(f->dev, gpunn_read(l.y, after, sizeof after));
    check_close(after, before, 3 * INNER, 1e-6, 1e-6); /* B is zero */
    float *a = read_floats(f->dev, found(f, "fc.lora_A.default.weight"), NULL), most = 0;
    for (int i = 0; i < 4 * WIDTH; i++) most = fmaxf(most, fabsf(a[i]));
    assert_true(most <= 1 / sqrtf(WIDTH) && most > 0.5f / sqrtf(WIDTH));
    free(a);
    adapters_fill(f->dev, f->model, "default", 9);
    check_formula(f, l, x, 1.5, 4);
    const char *const names[] = {"fc.lora_A.default.weight", "fc.lora_B.default.weight"};
    OK(f->dev, gpunn_backward(l.loss, .mode = GPUNN_MODE_EVALUATION));
    for (int k = 0; k < 2; k++) {
        gpunn_tensor *t = found(f, names[k]);
        int64_t       n;
        float        *values = read_floats(f->dev, t, &n), *gradient = malloc((size_t)n * sizeof *gradient);
        OK(f->dev, gpunn_read_grad(t, gradient, (size_t)n * sizeof *gradient));
        for (int64_t i = 0; i < n; i += 5) {
            const float was = values[i], h = 1e-2f;
            float       side[2];
            for (int s = 0; s < 2; s++) {
                values[i] = was + (s ? h : -h);
                OK(f->dev, write_floats(t, values, n));
                OK(f->dev, gpunn_forward(&l.loss, 1));
                side[s] = gpunn_item(l.loss);
            }
            values[i] = was;
            const float slope = (side[1] - side[0]) / (2 * h);
            check_close(&gradient[i], &slope, 1, 5e-3, 5e-3);
        }
        OK(f->dev, write_floats(t, values, n));
        free(values), free(gradient);
    }
    float none[WIDTH * INNER];
    FAILS(f->dev, gpunn_read_grad(found(f, "fc.weight"), none, sizeof none), GPUNN_ERR_STATE, "fc.weight",
          "no gradient");
    OK(f->dev, gpunn_forward_training(&l.y, 1)); /* dropout */
    OK(f->dev, gpunn_read(l.y, after, sizeof after));
    OK(f->dev, gpunn_forward(&l.y, 1));
    OK(f->dev, gpunn_read(l.y, before, sizeof before));
    assert_true(memcmp(after, before, sizeof before) != 0);
    free(x);
}

/* ---- a network ----------------------------------------------------------------------------------------- */

/* Training changes adapters alone; neither gradients nor optimizer states exist for the rest. */
static void test_frozen(void **state)
{
    fixture *f = *state;
    network  n = network_make(f->dev, f->model);
    network_write(f->dev, n);
    OK(f->dev, gpunn_forward(&n.loss, 1)); /* the weights have their memory before the adapters */
    int64_t count, trained = 0, places = 0;
    float  *weights = read_weights(f->dev, f->model, &count);
    OK(f->dev, gpunn_lora(f->model, "layers.*.{up,down}_proj", .rank = 1));
    for (int i = 0; i < gpunn_parameter_count(f->model); i++) {
        gpunn_tensor *t = gpunn_parameter_at(f->model, i);
        const int64_t n_t = (int64_t)(gpunn_tensor_bytes(t) / 4);
        if (strstr(gpunn_tensor_name(t), ".lora_")) trained += n_t, places += (n_t + 15) / 16 * 16;
    }
    assert_int_equal(trained, 4 * (WIDTH + INNER));
    assert_in_range(gradient_bytes(f, n.loss), (uintmax_t)(4 * trained), (uintmax_t)(4 * places + 64));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(f->model, .lr = 0.05f));
    const float      first = (OK(f->dev, gpunn_forward(&n.loss, 1)), gpunn_item(n.loss));
    for (int i = 0; i < 20; i++) OK(f->dev, settled(f->dev, gpunn_train_step(opt, n.loss)));
    OK(f->dev, gpunn_checkpoint_save(opt, NULL, test_path(f, "c.safetensors")));
    golden g = golden_open(test_path(f, "c.safetensors"));
    assert_non_null(golden_find(&g, "optimizer.0.layers.1.up_proj.lora_B.default.weight"));
    assert_null(golden_find(&g, "optimizer.0.layers.1.up_proj.weight"));
    golden_close(&g);
    assert_int_equal(remove(test_path(f, "c.safetensors")), 0);
    assert_true(gpunn_item(n.loss) < first);
    int64_t at = 0;
    for (int i = 0; i < gpunn_parameter_count(f->model); i++) {
        gpunn_tensor *t = gpunn_parameter_at(f->model, i);
        int64_t       size;
        float        *now = read_floats(f->dev, t, &size);
        if (strstr(gpunn_tensor_name(t), ".lora_") == NULL) {
            assert_memory_equal(now, weights + at, (size_t)size * sizeof *now);
            at += size;
        }
        free(now);
    }
    assert_int_equal(at, count);
    FAILS(f->dev, gpunn_set_trainable(found(f, "head.bias"), true), GPUNN_ERR_STATE, "head.bias",
          "before the optimizer");
    gpunn_optimizer_destroy(opt);
    OK(f->dev, gpunn_set_trainable(found(f, "head.bias"), true)); /* as peft's modules_to_save */
    opt = MADE(f->dev, gpunn_adam(f->model, .lr = 0.05f));
    OK(f->dev, settled(f->dev, gpunn_train_step(opt, n.loss)));
    float bias[CLASSES];
    OK(f->dev, gpunn_read_grad(found(f, "head.bias"), bias, sizeof bias));
    OK(f->dev, gpunn_read(found(f, "head.bias"), bias, sizeof bias));
    assert_true(memcmp(bias, weights + count - CLASSES, sizeof bias) != 0);
    gpunn_optimizer_destroy(opt);
    free(weights);
}

/* The merged model is one like before, with other weights and the same results. */
static void test_merge(void **state)
{
    fixture *f = *state;
    network  n = network_make(f->dev, f->model);
    network_write(f->dev, n);
    const int count = gpunn_parameter_count(f->model);
    float     plain[ROWS * CLASSES], adapted[ROWS * CLASSES], merged[ROWS * CLASSES];
    network_run(f->dev, n, plain);
    OK(f->dev, gpunn_lora(f->model, "*", .rank = 3, .alpha = 2));
    assert_int_equal(gpunn_parameter_count(f->model), count + 12);
    adapters_fill(f->dev, f->model, "default", 5);
    network_run(f->dev, n, adapted);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model));
    FAILS(f->dev, gpunn_lora_merge(f->model), GPUNN_ERR_STATE, "optimizer", "destroy");
    FAILS(f->dev, gpunn_lora(f->model, "head", .name = "b"), GPUNN_ERR_STATE, "optimizer", "destroy");
    gpunn_optimizer_destroy(opt);
    OK(f->dev, gpunn_lora_merge(f->model));
    assert_int_equal(gpunn_parameter_count(f->model), count);
    assert_null(gpunn_find(f->model, "head.lora_A.default.weight"));
    network_run(f->dev, n, merged);
    check_close(merged, adapted, ROWS * CLASSES, 1e-5, 1e-5);
    assert_true(fabsf(merged[0] - plain[0]) > 1e-3f);
    FAILS(f->dev, gpunn_lora_merge(f->model), GPUNN_ERR_STATE, "no adapter is enabled");
    OK(f->dev, gpunn_lora(f->model, "head", .rank = 2)); /* and once more */
    network_run(f->dev, n, adapted);
    check_close(adapted, merged, ROWS * CLASSES, 1e-6, 1e-6);
}

/* Adapters take turns, and go away together. */
static void test_switch(void **state)
{
    fixture *f = *state;
    network  n = network_make(f->dev, f->model);
    float    plain[ROWS * CLASSES], got[ROWS * CLASSES], of[2][ROWS * CLASSES];
    network_write(f->dev, n);
    network_run(f->dev, n, plain);
    OK(f->dev, gpunn_lora(f->model, "{up,down}_proj", .name = "one"));
    adapters_fill(f->dev, f->model, "one", 5);
    network_run(f->dev, n, of[0]);
    OK(f->dev, gpunn_lora(f->model, "{layers.1.*,head}", .name = "two", .rank = 2));
    adapters_fill(f->dev, f->model, "two", 77);
    network_run(f->dev, n, of[1]);
    assert_true(fabsf(of[0][0] - of[1][0]) > 1e-4f && fabsf(of[0][0] - plain[0]) > 1e-4f);
    OK(f->dev, gpunn_lora_enable(f->model, "one"));
    network_run(f->dev, n, got);
    check_close(got, of[0], ROWS * CLASSES, 0, 0);
    OK(f->dev, gpunn_lora_enable(f->model, NULL));
    network_run(f->dev, n, got);
    check_close(got, plain, ROWS * CLASSES, 1e-6, 1e-6);
    OK(f->dev, gpunn_lora_enable(f->model, "two"));
    network_run(f->dev, n, got);
    check_close(got, of[1], ROWS * CLASSES, 0, 0);
    FAILS(f->dev, gpunn_lora_enable(f->model, "three"), GPUNN_ERR_ARGUMENT, "'three'", "gpunn_lora_load");
    /* an optimizer trains what is enabled, and switching is allowed then */
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .lr = 0.1f));
    float           *one = read_floats(f->dev, found(f, "layers.1.up_proj.lora_B.one.weight"), NULL), *now;
    OK(f->dev, settled(f->dev, gpunn_train_step(opt, n.loss)));
    now = read_floats(f->dev, found(f, "layers.1.up_proj.lora_B.one.weight"), NULL);
    assert_memory_equal(now, one, INNER * 8 * sizeof *now);
    free(now);
    OK(f->dev, gpunn_lora_enable(f->model, "one"));
    OK(f->dev, settled(f->dev, gpunn_train_step(opt, n.loss)));
    now = read_floats(f->dev, found(f, "layers.1.up_proj.lora_B.one.weight"), NULL);
    assert_true(memcmp(now, one, INNER * 8 * sizeof *now) != 0);
    free(now), free(one);
    gpunn_optimizer_destroy(opt);
    network_run(f->dev, n, of[0]);
    OK(f->dev, gpunn_lora_merge(f->model));
    network_run(f->dev, n, got);
    check_close(got, of[0], ROWS * CLASSES, 1e-5, 1e-5);
}

/* ---- 16 bits ------------------------------------------------------------------------------------------- */

/* Reads the gradient of the first layer's A, to which that of the result flows through all other layers. */
static void first_gradient(gpunn_device *dev, gpunn_model *model, network n, float *gradient, size_t bytes)
{
    network_write(dev, n);
    OK(dev, gpunn_backward(n.loss));
    OK(dev, gpunn_read_grad(gpunn_find(model, "layers.0.up_proj.lora_A.default.weight"), gradient, bytes));
}

/* Frozen weights are stored in 16 bits alone; results and gradients are those of the rounded weights. */
static void check_half(fixture *f, gpunn_precision precision, gpunn_dtype dtype)
{
    gpunn_model *half = MADE(f->dev, gpunn_model_create(f->dev, .precision = precision));
    gpunn_model *wide = MADE(f->dev, gpunn_model_create(f->dev));
    network      n = network_make(f->dev, half), w = network_make(f->dev, wide);
    float        logits[2][ROWS * CLASSES], gradient[2][3 * WIDTH];
    OK(f->dev, gpunn_lora(half, "{up,down}_proj", .rank = 3));
    OK(f->dev, gpunn_lora(wide, "{up,down}_proj", .rank = 3));
    adapters_fill(f->dev, half, "default", 3);
    const char *path = test_path(f, "half.safetensors");
    OK(f->dev, gpunn_save(half, path));
    golden g = golden_open(path);
    assert_int_equal(golden_get(&g, "layers.0.up_proj.weight")->dtype, dtype);
    assert_int_equal(golden_get(&g, "embed_tokens.weight")->dtype, dtype);
    assert_int_equal(golden_get(&g, "layers.0.up_proj.bias")->dtype, GPUNN_F32);
    assert_int_equal(golden_get(&g, "layers.0.up_proj.lora_A.default.weight")->dtype, GPUNN_F32);
    golden_close(&g);
    OK(f->dev, gpunn_load(wide, path));
    assert_int_equal(remove(path), 0);
    network_write(f->dev, n);
    network_write(f->dev, w);
    network_run(f->dev, n, logits[0]);
    network_run(f->dev, w, logits[1]);
    check_close(logits[0], logits[1], ROWS * CLASSES, 0.02, 0.02);
    first_gradient(f->dev, half, n, gradient[0], sizeof gradient[0]);
    first_gradient(f->dev, wide, w, gradient[1], sizeof gradient[1]);
    check_close(gradient[0], gradient[1], 3 * WIDTH, 0.05, 1e-3);
    FAILS(f->dev, gpunn_set_trainable(gpunn_find(half, "head.weight"), true), GPUNN_ERR_STATE,
          "'head.weight'", gpunn_dtype_name(dtype));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(half, .lr = 0.02f));
    OK(f->dev, settled(f->dev, gpunn_train_step(opt, n.loss)));
    const float first = gpunn_item(n.loss);
    for (int i = 0; i < 10; i++) OK(f->dev, settled(f->dev, gpunn_train_step(opt, n.loss)));
    assert_true(gpunn_item(n.loss) < first);
    gpunn_optimizer_destroy(opt);
    network_run(f->dev, n, logits[1]);
    OK(f->dev, gpunn_lora_merge(half));
    network_run(f->dev, n, logits[0]);
    check_close(logits[0], logits[1], ROWS * CLASSES, 0.03, 0.03);
    gpunn_model_destroy(half);
    gpunn_model_destroy(wide);
}

/* The gradient of a wide layer's input through a weight in 16 bits: that of the sum of y is, for each row,
 * the sum of the weight's rows. */
static void check_wide(fixture *f, gpunn_precision precision)
{
    enum { IN = 211, OUT = 37, SAMPLES = 19 };
    gpunn_model  *model = MADE(f->dev, gpunn_model_create(f->dev, .precision = precision));
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, IN));
    gpunn_tensor *y = gpunn_linear(x, "fc", .out_features = OUT);
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(y, GPUNN_ALL, false));
    float *given = test_randoms(SAMPLES * IN, 3, 1), *weight, *got = malloc(SAMPLES * IN * sizeof *got),
          wanted[IN] = {0};
    OK(f->dev, gpunn_lora(model, "fc")); /* B is zero */
    MADE(f->dev, gpunn_retain_grad(x));
    OK(f->dev, write_floats(x, given, SAMPLES * IN));
    OK(f->dev, gpunn_backward(loss));
    OK(f->dev, gpunn_read_grad(x, got, SAMPLES * IN * sizeof *got));
    weight = read_floats(f->dev, gpunn_find(model, "fc.weight"), NULL);
    for (int i = 0; i < OUT * IN; i++) wanted[i % IN] += weight[i];
    for (int i = 0; i < SAMPLES; i++) check_close(got + i * IN, wanted, IN, 0.02, 0.01);
    free(given), free(weight), free(got);
    gpunn_model_destroy(model);
}

static void test_half(void **state)
{
    check_wide(*state, GPUNN_PRECISION_BF16);
    check_wide(*state, GPUNN_PRECISION_F16);
    check_half(*state, GPUNN_PRECISION_BF16, GPUNN_BF16);
    check_half(*state, GPUNN_PRECISION_F16, GPUNN_F16);
}

/* ---- files --------------------------------------------------------------------------------------------- */

/* Writes a weight of the golden network. */
static void take_golden(fixture *f, const golden *g)
{
    for (int i = 0; i < g->count; i++) {
        const golden_tensor *t = &g->tensors[i];
        if (strncmp(t->name, "param.", 6) == 0)
            OK(f->dev, gpunn_write(found(f, t->name + 6), t->data, t->bytes));
    }
}

/* The golden network with the adapter that peft wrote. */
static network golden_network(fixture *f, const golden *g)
{
    network n = network_make(f->dev, f->model);
    take_golden(f, g);
    OK(f->dev, gpunn_lora_load(f->model, "tests/golden/lora_adapter"));
    const golden_tensor *tokens = golden_get(g, "tokens"), *labels = golden_get(g, "labels");
    OK(f->dev, gpunn_write(n.tokens, tokens->data, tokens->bytes));
    OK(f->dev, gpunn_write(n.labels, labels->data, labels->bytes));
    return n;
}

/* What was saved in a folder, removed afterwards. */
static golden folder_take(const char *folder)
{
    char path[300];
    (void)snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    assert_int_equal(remove(path), 0);
    (void)snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    golden g = golden_open(path);
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(folder), 0);
    return g;
}

/* Ten steps of Adam on peft's adapter: its results, losses and values, and its file. */
static void test_golden(void **state)
{
    fixture *f = *state;
    golden   g = golden_open("tests/golden/lora.safetensors");
    network  n = golden_network(f, &g);
    float    logits[ROWS * CLASSES], losses[STEPS];
    network_run(f->dev, n, logits);
    check_close(logits, golden_get(&g, "eval")->data, ROWS * CLASSES, 1e-5, 1e-5);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(f->model, .lr = 0.02f));
    for (int i = 0; i < STEPS; i++) {
        OK(f->dev, settled(f->dev, gpunn_train_step(opt, n.loss)));
        losses[i] = gpunn_item(n.loss);
    }
    check_close(losses, golden_get(&g, "losses")->data, STEPS, 1e-4, 1e-5);
    const char *folder = test_path(f, "saved");
    OK(f->dev, gpunn_lora_save(f->model, folder, .task_type = "CAUSAL_LM"));
    network_run(f->dev, n, logits);
    OK(f->dev, gpunn_lora_load(f->model, folder)); /* into the adapter that is there */
    gpunn_optimizer_destroy(opt);
    OK(f->dev, gpunn_lora_load(f->model, folder, .name = "other"));
    float again[ROWS * CLASSES];
    network_run(f->dev, n, again);
    check_close(again, logits, ROWS * CLASSES, 0, 0);
    golden saved = folder_take(folder);
    assert_int_equal(saved.count, 10);
    for (int i = 0; i < saved.count; i++) {
        const golden_tensor *t = &saved.tensors[i], *wanted = golden_find(&g, "after.%s", t->name);
        if (wanted == NULL) fail_msg("peft has no %s", t->name);
        assert_memory_equal(&t->shape, &wanted->shape, sizeof t->shape);
        check_close_at(t->data, wanted->data, t->count, 2e-3, 2e-4, t->name, __FILE__, __LINE__);
    }
    golden_close(&saved);
    golden_close(&g);
}

/* A copy of peft's folder in which `from` is `to`, in one of the two files. */
static const char *altered(fixture *f, const char *file, const char *from, const char *to, bool cut)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    for (int i = 0; i < 2; i++) {
        char           path[100];
        size_t         size;
        unsigned char *data;
        (void)snprintf(path, sizeof path, "tests/golden/lora_adapter/%s", names[i]);
        data = file_read(path, &size);
        if (strcmp(file, names[i]) == 0) {
            size_t at = 0;
            while (memcmp(data + at, from, strlen(from)) != 0)
                if (++at + strlen(from) > size) fail_msg("%s is not in %s", from, path);
            memcpy(data + at, to, strlen(to));
            if (cut) size = at;
        }
        file_write(test_path(f, names[i]), data, size);
        free(data);
    }
    (void)test_path(f, "");
    return f->folder;
}

/* Whatever is wrong with a file, the model stays as it was. */
static void test_bad_files(void **state)
{
    static const struct {
        const char  *file, *from, *to;
        bool         cut;
        gpunn_status status;
        const char  *word;
    } cases[] = {
        {"adapter_config.json", "\"r\": 3", "\"r\": 2", false, GPUNN_ERR_SHAPE,
         "embed_tokens.lora_embedding_A"},
        {"adapter_config.json", "\"r\": 3", "\"r\": 0", false, GPUNN_ERR_FORMAT, "\"r\""},
        {"adapter_config.json", "\"r\": 3", "\"q\": 3", false, GPUNN_ERR_FORMAT, "\"r\""},
        {"adapter_config.json", "\"r\": 3", "\"r\": .", false, GPUNN_ERR_FORMAT, "adapter_config.json:"},
        {"adapter_config.json", "\"r\": 3,\n ", "\"r\": 2.5,", false, GPUNN_ERR_FORMAT, "\"r\""},
        {"adapter_config.json", "\"r\": 3,\n ", "\"r\": 3e9,", false, GPUNN_ERR_FORMAT, "\"r\""},
        {"adapter_config.json", "\"r\": 3,\n ", "\"r\": \"3\",", false, GPUNN_ERR_FORMAT, "\"r\""},
        {"adapter_config.json", "\"lora_alpha\": 5,\n  ", "\"lora_alpha\": 1e39,", false, GPUNN_ERR_FORMAT,
         "\"lora_alpha\""},
        {"adapter_config.json", "\"lora_alpha\": 5,\n", "\"lora_alpha\": [],", false, GPUNN_ERR_FORMAT,
         "\"lora_alpha\""},
        {"adapter_config.json", "\"lora_dropout\": 0.0", "\"lora_dropout\": -1 ", false, GPUNN_ERR_FORMAT,
         "\"lora_dropout\""},
        {"adapter_config.json", "\"bias\": \"none\"", "\"bias\": \"all\" ", false, GPUNN_ERR_UNSUPPORTED,
         "\"bias\""},
        {"adapter_config.json", "\"rank_pattern\": {},\n  ", "\"rank_pattern\":{\"\":1},", false,
         GPUNN_ERR_UNSUPPORTED, "rank_pattern"},
        {"adapter_config.json", "\"modules_to_save\": null", "\"modules_to_save\": [1] ", false,
         GPUNN_ERR_UNSUPPORTED, "modules_to_save"},
        {"adapter_model.safetensors", "\"shape\":[9,3]", "\"shape\":[27 ]", false, GPUNN_ERR_SHAPE,
         "is not [9, 3]"},
        {"adapter_config.json", "\"lora_dropout\": 0.0", "\"lora_dropout\": 1.0", false, GPUNN_ERR_FORMAT,
         "\"lora_dropout\""},
        {"adapter_config.json", "\"r\": 3", "", true, GPUNN_ERR_FORMAT, "adapter_config.json:"},
        {"adapter_config.json", "{", "[", false, GPUNN_ERR_FORMAT, "adapter_config.json:"},
        {"adapter_config.json", "LORA", "LOHA", false, GPUNN_ERR_UNSUPPORTED, "peft_type"},
        {"adapter_config.json", "\"use_dora\": false", "\"use_dora\": true ", false, GPUNN_ERR_UNSUPPORTED,
         "use_dora"},
        {"adapter_config.json", "\"rank_pattern\": {}", "\"rank_pattern\": 77", false, GPUNN_ERR_UNSUPPORTED,
         "rank_pattern"},
        {"adapter_model.safetensors", "layers.1.up_proj.lora_B", "layers.1.up_proj.lora_C", false,
         GPUNN_ERR_FORMAT, "lacks 'base_model.model.layers.1.up_proj.lora_B.weight'"},
        {"adapter_model.safetensors", "layers.1.up_proj.lora_A", "layers.2.up_proj.lora_A", false,
         GPUNN_ERR_FORMAT, "layers.1.up_proj.lora_B.weight', but the model has no"},
        {"adapter_model.safetensors", "\"shape\":[9,3]", "\"shape\":[3,9]", false, GPUNN_ERR_SHAPE,
         "is not [9, 3]"},
        {"adapter_model.safetensors", "base_model", "", true, GPUNN_ERR_FORMAT, "adapter_model.safetensors"},
    };
    fixture *f = *state;
    network  n = network_make(f->dev, f->model);
    float    before[ROWS * CLASSES], after[ROWS * CLASSES];
    network_write(f->dev, n);
    network_run(f->dev, n, before);
    const int count = gpunn_parameter_count(f->model);
    for (int i = 0; i < COUNT(cases); i++) {
        const char *folder = altered(f, cases[i].file, cases[i].from, cases[i].to, cases[i].cut);
        FAILS(f->dev, gpunn_lora_load(f->model, folder), cases[i].status, cases[i].word);
        assert_int_equal(gpunn_parameter_count(f->model), count);
    }
    network_run(f->dev, n, after);
    check_close(after, before, ROWS * CLASSES, 0, 0);
    OK(f->dev,
       gpunn_lora_load(f->model, altered(f, "adapter_config.json", "lora_dropout", "lora_unknown", false)));
    OK(f->dev, gpunn_lora_merge(f->model));
    network_run(f->dev, n, before);
    OK(f->dev, gpunn_lora_load(f->model, altered(f, "adapter_config.json", "\"lora_alpha\": 5",
                                                 "\"lora_alpha\": 0", false)));
    network_run(f->dev, n, after); /* an adapter of factor 0 */
    check_close(after, before, ROWS * CLASSES, 1e-6, 1e-6);
    OK(f->dev, gpunn_lora_merge(f->model));
    assert_int_equal(remove(test_path(f, "adapter_model.safetensors")), 0);
    FAILS(f->dev, gpunn_lora_load(f->model, f->folder), GPUNN_ERR_IO, "adapter_model.safetensors");
    assert_int_equal(remove(test_path(f, "adapter_config.json")), 0);
    FAILS(f->dev, gpunn_lora_load(f->model, f->folder), GPUNN_ERR_IO, "adapter_config.json");
    FAILS(f->dev, gpunn_lora_save(f->model, f->folder), GPUNN_ERR_STATE, "no adapter is enabled");
    OK(f->dev, gpunn_lora(f->model, "up_proj"));
    FAILS(f->dev, gpunn_lora_load(f->model, "tests/golden/lora_adapter"), GPUNN_ERR_ARGUMENT, "'default'",
          ".name");
    FAILS(f->dev, gpunn_lora_save(f->model, "tests/golden/lora.safetensors"), GPUNN_ERR_IO,
          "lora.safetensors");
}

/* ---- memory that fails --------------------------------------------------------------------------------- */

/* The files of an adapter when allocations fail: no adapter, or the whole one. */
static void test_file_faults(void **state)
{
    fixture *f = *state;
    golden   g = golden_open("tests/golden/lora.safetensors");
    network  n = network_make(f->dev, f->model);
    take_golden(f, &g);
    const int    count = gpunn_parameter_count(f->model);
    const char  *folder = test_path(f, "saved");
    gpunn_status status = GPUNN_ERR_MEMORY;
    for (int step = 0; step < 2; step++) {
        for (long at = 1;; at++) {
            f->memory.fail_at = f->memory.calls + at;
            status = step ? gpunn_lora_save(f->model, folder)
                          : gpunn_lora_load(f->model, "tests/golden/lora_adapter");
            f->memory.fail_at = 0;
            if (status == GPUNN_OK) break;
            assert_int_equal(status, GPUNN_ERR_MEMORY);
            gpunn_clear_error(f->dev);
            assert_int_equal(gpunn_parameter_count(f->model), step ? count + 10 : count);
        }
    }
    golden saved = folder_take(folder);
    assert_int_equal(saved.count, 10);
    golden_close(&saved);
    const golden_tensor *tokens = golden_get(&g, "tokens");
    float                logits[ROWS * CLASSES];
    OK(f->dev, gpunn_write(n.tokens, tokens->data, tokens->bytes));
    network_run(f->dev, n, logits);
    check_close(logits, golden_get(&g, "eval")->data, ROWS * CLASSES, 1e-5, 1e-5);
    golden_close(&g);
}

/* Whatever allocation fails, the model computes what it did, or, once all is well, what it should. */
static void test_faults(void **state)
{
    fixture *f = *state;
    network  n = network_make(f->dev, f->model);
    float    plain[ROWS * CLASSES], adapted[ROWS * CLASSES], got[ROWS * CLASSES];
    network_write(f->dev, n);
    network_run(f->dev, n, plain);
    const int count = gpunn_parameter_count(f->model);
    for (int step = 0; step < 2; step++) {
        gpunn_status status = GPUNN_ERR_MEMORY;
        for (long at = 1; status != GPUNN_OK; at++) {
            f->memory.fail_at = f->memory.calls + at;
            status = step ? gpunn_lora_merge(f->model) : gpunn_lora(f->model, "{embed_tokens,*_proj}");
            f->memory.fail_at = 0;
            if (status == GPUNN_OK) break;
            assert_int_equal(status, GPUNN_ERR_MEMORY);
            gpunn_clear_error(f->dev);
            assert_int_equal(gpunn_parameter_count(f->model), step ? count + 10 : count);
            network_run(f->dev, n, got);
            check_close(got, step ? adapted : plain, ROWS * CLASSES, 1e-6, 1e-6);
        }
        if (step == 0) adapters_fill(f->dev, f->model, "default", 8);
        network_run(f->dev, n, step ? got : adapted);
    }
    check_close(got, adapted, ROWS * CLASSES, 1e-5, 1e-5);
}

/* Files with a few other bytes: loaded or refused, and the model works. */
static void test_altered_files(void **state)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    fixture                 *f = *state;
    uint32_t                 seed = test_seed();
    unsigned char           *data[2];
    size_t                   size[2];
    for (int i = 0; i < 2; i++) {
        char path[100];
        (void)snprintf(path, sizeof path, "tests/golden/lora_adapter/%s", names[i]);
        data[i] = file_read(path, &size[i]);
        file_write(test_path(f, names[i]), data[i], size[i]);
    }
    for (int round = 0; round < 200; round++) {
        const int      i = round % 2;
        unsigned char *copy = malloc(size[i]);
        memcpy(copy, data[i], size[i]);
        for (int k = 0; k <= round % 3; k++) {
            const size_t at = (size_t)(fabsf(test_random(&seed)) * (float)(size[i] - 1));
            copy[at] = (unsigned char)"0129-.,:\"[]{}xL "[(size_t)(fabsf(test_random(&seed)) * 15)];
        }
        file_write(test_path(f, names[i]), copy, size[i]);
        gpunn_model *model = MADE(f->dev, gpunn_model_create(f->dev));
        network      n = network_make(f->dev, model);
        float        logits[ROWS * CLASSES];
        if (gpunn_lora_load(model, f->folder) != GPUNN_OK) gpunn_clear_error(f->dev);
        network_write(f->dev, n);
        network_run(f->dev, n, logits);
        gpunn_model_destroy(model);
        file_write(test_path(f, names[i]), data[i], size[i]);
        free(copy);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(remove(test_path(f, names[i])), 0);
        free(data[i]);
    }
}

/* ---- other files of a model ---------------------------------------------------------------------------- */

/* A spec holds the model with the adapter that is enabled, or without. */
static void test_spec(void **state)
{
    fixture *f = *state;
    network  n = network_make(f->dev, f->model);
    network_write(f->dev, n);
    OK(f->dev, gpunn_lora(f->model, "{embed_tokens,*_proj}", .rank = 2, .dropout = 0.5f));
    adapters_fill(f->dev, f->model, "default", 4);
    for (int enabled = 0; enabled < 2; enabled++) {
        float       wanted[ROWS * CLASSES], got[ROWS * CLASSES];
        gpunn_array file;
        OK(f->dev, gpunn_lora_enable(f->model, enabled ? "default" : NULL));
        network_run(f->dev, n, wanted);
        OK(f->dev, gpunn_model_save_memory(f->model, &file, .outputs = {n.logits}, .loss = n.loss));
        gpunn_model *again = MADE(f->dev, gpunn_model_load_memory(f->dev, file.data, file.bytes));
        network m = {gpunn_find(again, "tokens"), gpunn_find(again, "labels"), gpunn_spec_output(again, 0),
                     gpunn_spec_loss(again)};
        network_write(f->dev, m);
        network_run(f->dev, m, got);
        check_close(got, wanted, ROWS * CLASSES, 1e-6, 1e-6);
        if (enabled) OK(f->dev, gpunn_backward(m.loss)); /* what was frozen still is */
        FAILS(f->dev, gpunn_read_grad(gpunn_find(again, "head.bias"), got, CLASSES * sizeof *got),
              GPUNN_ERR_STATE, "no gradient");
        gpunn_model_destroy(again);
        gpunn_array_free(f->dev, &file);
    }
    OK(f->dev, gpunn_model_summary(f->model)); /* outputs are those of the model, not of adapters */
}

/* A checkpoint fits the model that its spec makes, whose frozen parameters have no optimizer state either. */
static void test_spec_and_checkpoint(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "lora.ckpt"), *again_path = test_path(f, "again.ckpt");
    gpunn_array spec;
    network     n = network_make(f->dev, f->model);
    network_write(f->dev, n);
    OK(f->dev, gpunn_lora(f->model, "{embed_tokens,*_proj}", .rank = 2));
    OK(f->dev, gpunn_set_trainable(found(f, "head.bias"), true));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(f->model));
    OK(f->dev, gpunn_train_step(opt, n.loss));
    OK(f->dev, gpunn_checkpoint_save(opt, NULL, path));
    OK(f->dev, gpunn_spec_save_memory(f->model, &spec, .loss = n.loss));
    gpunn_model     *again = MADE(f->dev, gpunn_spec_load_memory(f->dev, spec.data, spec.bytes));
    gpunn_optimizer *other = MADE(f->dev, gpunn_adam(again));
    OK(f->dev, gpunn_checkpoint_load(other, NULL, path));
    OK(f->dev, gpunn_checkpoint_save(other, NULL, again_path));
    OK(f->dev, gpunn_checkpoint_load(opt, NULL, again_path));
    gpunn_optimizer_destroy(other);
    gpunn_model_destroy(again);
    gpunn_optimizer_destroy(opt);
    gpunn_array_free(f->dev, &spec);
    assert_int_equal(unlink(path) + unlink(again_path), 0);
}

/* What reads an adapter keeps it from being removed. */
static void test_readers(void **state)
{
    fixture      *f = *state;
    layer         l = layer_make(f);
    gpunn_tensor *a = NULL, *slope = NULL;
    float         x[3 * WIDTH] = {1, 2, 3}, of[2][3 * WIDTH];
    OK(f->dev, gpunn_lora(f->model, "fc", .rank = 2));
    adapters_fill(f->dev, f->model, "default", 4);
    OK(f->dev, write_floats(l.x, x, 3 * WIDTH));
    MADE(f->dev, gpunn_retain_grad(l.x));
    OK(f->dev, gpunn_backward(l.loss));
    OK(f->dev, gpunn_read_grad(l.x, of[0], sizeof of[0]));
    slope = MADE(f->dev, gpunn_grad(l.loss, l.x)); /* through the adapter */
    OK(f->dev, gpunn_forward(&slope, 1));
    OK(f->dev, gpunn_read(slope, of[1], sizeof of[1]));
    check_close(of[1], of[0], 3 * WIDTH, 1e-5, 1e-5);
    FAILS(f->dev, gpunn_lora_merge(f->model), GPUNN_ERR_UNSUPPORTED, "fc.weight");
    OK(f->dev, gpunn_forward(&slope, 1));
    gpunn_model_destroy(f->model);
    f->model = MADE(f->dev, gpunn_model_create(f->dev));
    l = layer_make(f);
    OK(f->dev, gpunn_lora(f->model, "fc", .rank = 2));
    a = found(f, "fc.lora_A.default.weight");
    a = MADE(f->dev, gpunn_sum(gpunn_square(a), GPUNN_ALL, false)); /* a penalty */
    FAILS(f->dev, gpunn_lora_merge(f->model), GPUNN_ERR_UNSUPPORTED, "reads a tensor of an adapter");
    OK(f->dev, gpunn_forward(&a, 1));
}

/* Blocks that runs only read keep an adapter from being merged, also into weights before them. */
static void test_bound_blocks(void **state)
{
    enum { WHOLE = 32, BYTES = 18 }; /* of a block of Q4_0 */
    fixture      *f = *state;
    unsigned char bound[WHOLE * BYTES];
    float         x[WHOLE] = {1, 2, 3}, before[WHOLE], after[WHOLE];
    if (f->backend->type != GPUNN_DEVICE_CPU) return; /* blocks are the CPU's */
    gpunn_model  *model = MADE(f->dev, gpunn_model_create(f->dev, .inference = true));
    gpunn_tensor *in = MADE(f->dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, WHOLE)));
    gpunn_tensor *y = gpunn_linear(in, "own", .out_features = WHOLE);
    y = MADE(f->dev, gpunn_linear(y, "bound", .out_features = WHOLE));
    memset(bound, 0x35, sizeof bound);
    OK(f->dev, gpunn_bind_as(gpunn_find(model, "bound.weight"), GPUNN_Q4_0, bound, sizeof bound));
    OK(f->dev, gpunn_lora(model, "*", .rank = 2));
    adapters_fill(f->dev, model, "default", 3);
    OK(f->dev, write_floats(in, x, WHOLE));
    OK(f->dev, gpunn_forward(&y, 1));
    OK(f->dev, gpunn_read(y, before, sizeof before));
    FAILS(f->dev, gpunn_lora_merge(model), GPUNN_ERR_UNSUPPORTED, "gpunn_lora_merge", "'bound.weight'",
          ".keep_blocks");
    OK(f->dev, gpunn_forward(&y, 1));
    OK(f->dev, gpunn_read(y, after, sizeof after));
    assert_memory_equal(before, after, sizeof before);
    gpunn_model_destroy(model);
}

/* Weights in the program's memory are read at each run, also after an adapter has been merged. */
static void test_bound_weights(void **state)
{
    fixture *f = *state;
    float    weight[CLASSES * WIDTH] = {1, 2, 3}, bias[CLASSES] = {0}, logits[ROWS * CLASSES];
    if (f->backend->type != GPUNN_DEVICE_CPU) return; /* a GPU has other memory */
    network n = network_make(f->dev, f->model);
    network_write(f->dev, n);
    OK(f->dev, gpunn_bind(gpunn_find(f->model, "head.weight"), weight, sizeof weight));
    OK(f->dev, gpunn_bind(gpunn_find(f->model, "head.bias"), bias, sizeof bias));
    OK(f->dev, gpunn_lora(f->model, "layers.0.up_proj", .rank = 2));
    network_run(f->dev, n, logits);
    OK(f->dev, gpunn_lora_merge(f->model));
    for (int value = 5; value < 7; value++) {
        memset(weight, 0, sizeof weight);
        for (int i = 0; i < CLASSES; i++) bias[i] = (float)value;
        network_run(f->dev, n, logits);
        for (int i = 0; i < ROWS * CLASSES; i++) assert_true(logits[i] == (float)value);
        weight[0] = bias[0] = 1;
        network_run(f->dev, n, logits);
        assert_true(logits[0] != (float)value);
    }
}

/* The same of a recurrent layer, which packs its weights. As many are bound as the adapter has. */
static void test_bound_recurrent(void **state)
{
    fixture *f = *state;
    float    input[3 * WIDTH * WIDTH] = {0}, hidden[3 * WIDTH * WIDTH] = {0}, x[LENGTH * WIDTH], y[WIDTH];
    if (f->backend->type != GPUNN_DEVICE_CPU) return;
    gpunn_tensor *in = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(LENGTH, GPUNN_BATCH, WIDTH)),
                 *state_n;
    gpunn_tensor *h = gpunn_gru(in, "gru", .hidden_size = WIDTH, .no_bias = true, .h_n = &state_n);
    h = MADE(f->dev, gpunn_linear(state_n, "fc", .out_features = WIDTH));
    OK(f->dev, gpunn_bind(gpunn_find(f->model, "gru.weight_ih_l0"), input, sizeof input));
    OK(f->dev, gpunn_bind(gpunn_find(f->model, "gru.weight_hh_l0"), hidden, sizeof hidden));
    OK(f->dev, gpunn_lora(f->model, "fc", .rank = 2));
    for (int i = 0; i < LENGTH * WIDTH; i++) x[i] = 1;
    OK(f->dev, gpunn_write(in, x, sizeof x));
    OK(f->dev, gpunn_lora_merge(f->model));
    for (int value = 0; value < 3; value++) {
        for (int i = 2 * WIDTH * WIDTH; i < 3 * WIDTH * WIDTH; i++) input[i] = (float)value;
        OK(f->dev, gpunn_forward(&state_n, 1));
        OK(f->dev, gpunn_read(state_n, y, sizeof y));
        /* gates of 1 / 2, and n = tanh(6 value): h goes half of the way to n in each step */
        for (int i = 0; i < WIDTH; i++)
            assert_true(fabs(y[i] - (1 - ldexp(1, -LENGTH)) * tanh(WIDTH * value)) <= 1e-6);
    }
    (void)h;
}

/* Runs of several lengths: the adapter adds what merging it adds to the weights. */
static void test_lengths(void **state)
{
    fixture      *f = *state;
    const int64_t T = gpunn_size(f->model, "T");
    float        *x = test_randoms(ROWS * LENGTH * WIDTH, 3, 1), y[2][LENGTH][ROWS * LENGTH * INNER];
    gpunn_tensor *in = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, T, WIDTH));
    gpunn_tensor *h = MADE(f->dev, gpunn_tanh(gpunn_linear(in, "fc", .out_features = INNER)));
    OK(f->dev, gpunn_lora(f->model, "fc", .rank = 2));
    adapters_fill(f->dev, f->model, "default", 4);
    for (int merged = 0; merged < 2; merged++) {
        if (merged) OK(f->dev, gpunn_lora_merge(f->model));
        for (int length = 1; length <= LENGTH; length += 3) {
            OK(f->dev, gpunn_write_shape(in, x, GPUNN_SHAPE(ROWS, length, WIDTH)));
            OK(f->dev, gpunn_forward(&h, 1));
            OK(f->dev, gpunn_read(h, y[merged][length - 1], (size_t)(ROWS * length * INNER) * sizeof(float)));
        }
    }
    for (int length = 1; length <= LENGTH; length += 3)
        check_close(y[1][length - 1], y[0][length - 1], ROWS * length * INNER, 1e-5, 1e-5);
    free(x);
}

/* Values that are computed again give the same gradients, with dropout too; merging comes after that. */
static void test_recompute(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, WIDTH));
    gpunn_tensor *first = gpunn_linear(x, "fc1", .out_features = INNER);
    gpunn_tensor *y = gpunn_linear(gpunn_tanh(gpunn_linear(gpunn_relu(first), "fc2", .out_features = INNER)),
                                   "fc3", .out_features = WIDTH);
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(gpunn_square(y), GPUNN_ALL, false));
    float         given[3 * WIDTH] = {1, 2, 3}, gradient[2][2 * WIDTH], of[2][3 * WIDTH];
    OK(f->dev, gpunn_lora(f->model, "fc*", .rank = 2, .dropout = 0.5f));
    adapters_fill(f->dev, f->model, "default", 4);
    OK(f->dev, write_floats(x, given, 3 * WIDTH));
    for (int i = 0; i < 2; i++) {
        if (i) OK(f->dev, gpunn_recompute(first, y));
        OK(f->dev, gpunn_zero_grad(f->model));
        OK(f->dev, gpunn_backward(loss, .mode = GPUNN_MODE_EVALUATION));
        OK(f->dev, gpunn_read_grad(found(f, "fc1.lora_A.default.weight"), gradient[i], sizeof gradient[i]));
    }
    check_close(gradient[1], gradient[0], 2 * WIDTH, 0, 0);
    OK(f->dev, gpunn_backward(loss)); /* with dropout */
    FAILS(f->dev, gpunn_lora(f->model, "fc1", .name = "b"), GPUNN_ERR_STATE, "gpunn_recompute");
    for (int i = 0; i < 2; i++) {
        if (i) OK(f->dev, gpunn_lora_merge(f->model));
        OK(f->dev, gpunn_forward(&y, 1));
        OK(f->dev, gpunn_read(y, of[i], sizeof of[i]));
    }
    check_close(of[1], of[0], 3 * WIDTH, 1e-5, 1e-5);
    OK(f->dev, gpunn_set_trainable(found(f, "fc2.weight"), true));
    OK(f->dev, gpunn_backward(loss));
}

/* ---- bad calls ----------------------------------------------------------------------------------------- */
static void test_errors(void **state)
{
    fixture      *f = *state;
    network       n = network_make(f->dev, f->model);
    gpunn_device *dev = f->dev;
    const int     count = gpunn_parameter_count(f->model);
    float         before[ROWS * CLASSES], after[ROWS * CLASSES];
    network_write(dev, n);
    network_run(dev, n, before);
    FAILS(dev, gpunn_lora(f->model, "q_proj"), GPUNN_ERR_ARGUMENT, "'q_proj'", "no linear layer");
    FAILS(dev, gpunn_lora(f->model, "ayers.0.up_proj"), GPUNN_ERR_ARGUMENT, "'ayers.0.up_proj'");
    FAILS(dev, gpunn_lora(f->model, "up_projx"), GPUNN_ERR_ARGUMENT, "'up_projx'");
    FAILS(dev, gpunn_lora(f->model, "{up,down"), GPUNN_ERR_ARGUMENT, "braces");
    FAILS(dev, gpunn_lora(f->model, "up}"), GPUNN_ERR_ARGUMENT, "braces");
    FAILS(dev, gpunn_lora(f->model, ""), GPUNN_ERR_ARGUMENT, "empty");
    FAILS(dev, gpunn_lora(f->model, NULL), GPUNN_ERR_ARGUMENT, "pattern");
    FAILS(NULL, gpunn_lora(NULL, "*"), GPUNN_ERR_ARGUMENT, "model");
    FAILS(dev, gpunn_lora(f->model, "head", .rank = -1), GPUNN_ERR_ARGUMENT, "rank -1");
    FAILS(dev, gpunn_lora(f->model, "head", .dropout = 1), GPUNN_ERR_ARGUMENT, "dropout 1");
    FAILS(dev, gpunn_lora(f->model, "head", .alpha = NAN), GPUNN_ERR_ARGUMENT, "alpha");
    FAILS(dev, gpunn_lora(f->model, "head", .name = "a.b"), GPUNN_ERR_ARGUMENT, "'a.b'");
    gpunn_tensor *product = MADE(dev, gpunn_matmul(n.logits, found(f, "head.weight")));
    FAILS(dev, gpunn_lora(f->model, "{up_proj,head}"), GPUNN_ERR_UNSUPPORTED, "'head.weight'", "matmul");
    assert_int_equal(gpunn_parameter_count(f->model), count);
    network_run(dev, n, after);
    check_close(after, before, ROWS * CLASSES, 0, 0);
    OK(dev, gpunn_lora(f->model, "up_proj"));
    FAILS(dev, gpunn_lora(f->model, "down_proj"), GPUNN_ERR_ARGUMENT, "'default'", ".name");
    assert_non_null(product);
}

/* A table that the head reads, too, keeps its adapter apart. */
static void test_tied(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *tokens = gpunn_input(f->model, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *x = gpunn_embedding(tokens, "embed", .num_embeddings = VOCAB, .embedding_dim = WIDTH);
    gpunn_tensor *y = gpunn_linear(x, "lm_head", .weight = found(f, "embed.weight"), .no_bias = true);
    const int64_t three[] = {1, 4, 10};
    float         got[3 * VOCAB], wanted[3 * VOCAB];
    OK(f->dev, gpunn_write(tokens, three, sizeof three));
    OK(f->dev, gpunn_lora(f->model, "{embed,lm_head}", .rank = 2, .alpha = 4));
    adapters_fill(f->dev, f->model, "default", 31);
    float *table = read_floats(f->dev, found(f, "embed.weight"), NULL);
    float *ea = read_floats(f->dev, found(f, "embed.lora_embedding_A.default.weight"), NULL);
    float *eb = read_floats(f->dev, found(f, "embed.lora_embedding_B.default.weight"), NULL);
    float *ha = read_floats(f->dev, found(f, "lm_head.lora_A.default.weight"), NULL);
    float *hb = read_floats(f->dev, found(f, "lm_head.lora_B.default.weight"), NULL);
    for (int i = 0; i < 3; i++)
        for (int v = 0; v < VOCAB; v++) {
            double sum = 0;
            for (int k = 0; k < WIDTH; k++) {
                double row = table[three[i] * WIDTH + k], weight = table[v * WIDTH + k];
                for (int r = 0; r < 2; r++) {
                    row += 2.0 * ea[three[i] * 2 + r] * eb[k * 2 + r];
                    weight += 2.0 * hb[v * 2 + r] * ha[r * WIDTH + k];
                }
                sum += row * weight;
            }
            wanted[i * VOCAB + v] = (float)sum;
        }
    OK(f->dev, gpunn_forward(&y, 1));
    OK(f->dev, gpunn_read(y, got, sizeof got));
    check_close(got, wanted, 3 * VOCAB, 1e-5, 1e-5);
    FAILS(f->dev, gpunn_lora_merge(f->model), GPUNN_ERR_UNSUPPORTED, "embed.weight", "'embed'", "'lm_head'");
    OK(f->dev, gpunn_forward(&y, 1));
    OK(f->dev, gpunn_read(y, got, sizeof got));
    check_close(got, wanted, 3 * VOCAB, 1e-5, 1e-5);
    free(table), free(ea), free(eb), free(ha), free(hb);
}

int main(void)
{
    static const struct {
        const char        *name;
        CMUnitTestFunction function;
    } all[] = {{"formula", test_formula},
               {"frozen", test_frozen},
               {"merge", test_merge},
               {"switch", test_switch},
               {"errors", test_errors},
               {"tied", test_tied},
               {"half", test_half},
               {"faults", test_faults},
               {"golden", test_golden},
               {"bad files", test_bad_files},
               {"file faults", test_file_faults},
               {"spec", test_spec},
               {"spec_and_checkpoint", test_spec_and_checkpoint},
               {"readers", test_readers},
               {"bound blocks", test_bound_blocks},
               {"bound weights", test_bound_weights},
               {"bound weights of a recurrent layer", test_bound_recurrent},
               {"lengths", test_lengths},
               {"recompute", test_recompute},
               {"altered files", test_altered_files}};
    static struct CMUnitTest tests[3 * COUNT(all) + 3];
    int                      count = missing_backends(tests);
    for (int i = 0; i < COUNT(all); i++)
        count += each_backend(tests + count, all[i].name, all[i].function, NULL);
    return _cmocka_run_group_tests("lora", tests, (size_t)count, NULL, NULL);
}
