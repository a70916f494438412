/* Ops of a program's own: values, gradients and training against the same formula as gpunn_expr, on the CPU
 * and, with kernels of tests/emulator/custom.cpp, on the emulated GPU; refusals; specs. */
#include "../test.h"

int mix_cuda_forward(const gpunn_custom_call *call) __attribute__((weak));
int mix_cuda_backward(const gpunn_custom_call *call) __attribute__((weak));

static bool mix_shape(const gpunn_shape *inputs, const float *numbers, gpunn_shape *result)
{
    (void)numbers, (void)result;
    return memcmp(&inputs[0], &inputs[1], sizeof *inputs) == 0;
}

static int mix_forward(const gpunn_custom_call *call)
{
    const float *a = call->in[0].data, *b = call->in[1].data;
    float       *y = call->out->data;
    for (int64_t i = 0; i < call->out->count; i++)
        y[i] = call->numbers[0] * a[i] + call->numbers[1] * a[i] * b[i];
    return call->user ? 7 : 0;
}

static int mix_backward(const gpunn_custom_call *call)
{
    const float *a = call->in[0].data, *b = call->in[1].data, *g = call->grad_out->data;
    float       *da = call->grad_in[0].data, *db = call->grad_in[1].data;
    for (int64_t i = 0; i < call->grad_out->count; i++) {
        if (da) da[i] = g[i] * (call->numbers[0] + call->numbers[1] * b[i]);
        if (db) db[i] = g[i] * call->numbers[1] * a[i];
    }
    return 0;
}

static const gpunn_custom_op mix = {.name = "mix",
                                    .inputs = 2,
                                    .shape = mix_shape,
                                    .forward = mix_forward,
                                    .backward = mix_backward,
                                    .cuda_forward = mix_cuda_forward,
                                    .cuda_backward = mix_cuda_backward};

/* A network whose middle is the op, or the same formula; h is read again beside it, so that its gradient is a
 * sum. */
typedef struct network {
    gpunn_tensor    *x, *y, *h, *loss;
    gpunn_optimizer *opt;
} network;
static network network_make(gpunn_model *model, const gpunn_custom_op *op)
{
    network n;
    n.x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 6));
    n.h = gpunn_tanh(gpunn_linear(n.x, "fc1", .out_features = 5));
    gpunn_tensor *pair[] = {n.h, gpunn_linear(n.x, "fc2", .out_features = 5)};
    n.y = op ? gpunn_custom(op, pair, .numbers = {0.5f, -2}) : gpunn_expr("0.5 * x + -2 * x * y", pair, 2);
    n.loss = gpunn_mean(gpunn_square(gpunn_add(n.y, n.h)), GPUNN_ALL, false);
    n.opt = gpunn_sgd(model, .lr = 0.1f, .momentum = 0.9f);
    return n;
}

static void compare(const fixture *f, gpunn_precision precision, double tolerance)
{
    network      n[2];
    gpunn_model *models[2];
    float       *values = test_randoms(7 * 6, 1, 1);
    for (int k = 0; k < 2; k++) {
        models[k] = MADE(f->dev, gpunn_model_create(f->dev, .precision = precision));
        n[k] = network_make(models[k], k ? &mix : NULL);
        MADE(f->dev, n[k].loss);
        for (int i = 0; i < gpunn_parameter_count(models[k]); i++) {
            gpunn_tensor *p = gpunn_parameter_at(models[k], i);
            float        *start = test_randoms((int64_t)gpunn_tensor_bytes(p) / 4, 5 + (uint32_t)i, 0.5f);
            OK(f->dev, gpunn_write(p, start, gpunn_tensor_bytes(p)));
            free(start);
        }
    }
    /* first kernel by kernel, then captured, then replayed; another batch in between */
    for (int step = 0; step < 6; step++) {
        int64_t batch = step == 3 ? 4 : 7, count[2];
        float  *results[2];
        for (int k = 0; k < 2; k++) {
            OK(f->dev, write_floats(n[k].x, values, batch * 6));
            OK(f->dev, gpunn_train_step(n[k].opt, n[k].loss));
            results[k] = read_weights(f->dev, models[k], &count[k]);
        }
        check_close(results[1], results[0], count[0], tolerance, tolerance);
        free(results[0]), free(results[1]);
    }
    float outputs[2][35];
    for (int k = 0; k < 2; k++) {
        OK(f->dev, write_floats(n[k].x, values, 42));
        OK(f->dev, gpunn_forward(&n[k].y, 1));
        OK(f->dev, gpunn_read(n[k].y, outputs[k], sizeof outputs[k]));
        gpunn_optimizer_destroy(n[k].opt);
        gpunn_model_destroy(models[k]);
    }
    check_close(outputs[1], outputs[0], 35, tolerance, tolerance);
    free(values);
}

static void test_training(void **state)
{
    compare(*state, GPUNN_PRECISION_F32, 2e-6);
}

static void test_half(void **state)
{
    compare(*state, GPUNN_PRECISION_BF16, 0.04);
}

static void test_refusals(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 6));
    gpunn_tensor *pair[] = {x, gpunn_relu(x)}, *other[] = {x, gpunn_slice(x, 1, 0, 2, 1)},
                 *none[] = {x, NULL};
    gpunn_custom_op bad = mix;
    FAILS_NULL(f->dev, gpunn_custom(&mix, other), GPUNN_ERR_SHAPE, "custom 'mix'", "[batch, 6], [batch, 2]");
    FAILS_NULL(f->dev, gpunn_custom(&mix, none), GPUNN_ERR_ARGUMENT, "custom 'mix'", "tensors[1] is NULL");
    FAILS_NULL(f->dev, gpunn_custom(&mix, pair, .numbers = {1, INFINITY}), GPUNN_ERR_ARGUMENT,
               ".numbers[1] is inf", "finite");
    FAILS_NULL(NULL, gpunn_custom(NULL, pair), GPUNN_ERR_ARGUMENT, "the op is NULL", "custom");
    bad.name = "a b";
    FAILS_NULL(NULL, gpunn_custom(&bad, pair), GPUNN_ERR_ARGUMENT, ".name", "letters");
    bad = mix;
    bad.inputs = 17;
    FAILS(f->dev, gpunn_register_custom(f->dev, &bad), GPUNN_ERR_ARGUMENT, "gpunn_register_custom",
          ".inputs");
    bad = mix;
    OK(f->dev, gpunn_register_custom(f->dev, &mix));
    OK(f->dev, gpunn_register_custom(f->dev, &mix));
    FAILS(f->dev, gpunn_register_custom(f->dev, &bad), GPUNN_ERR_ARGUMENT, "'mix'", "unique");
    assert_ptr_equal(gpunn_find_custom(f->dev, "mix"), &mix);
    assert_null(gpunn_find_custom(f->dev, "mixed"));
    bad.name = "failing";
    bad.user = &bad;
    bad.cuda_forward = NULL;
    gpunn_tensor *y = MADE(f->dev, gpunn_custom(&bad, pair));
    float         values[12] = {0};
    OK(f->dev, gpunn_write(x, values, sizeof values));
    if (f->backend->type == GPUNN_DEVICE_CPU)
        FAILS(f->dev, gpunn_forward(&y, 1), GPUNN_ERR_DEVICE, "op 'failing' failed with 7", "custom");
    else
        FAILS(f->dev, gpunn_forward(&y, 1), GPUNN_ERR_UNSUPPORTED, "'failing' has no .cuda_forward", "CPU");
}

static void test_spec(void **state)
{
    fixture      *f = *state;
    const char   *path = test_path(f, "m.json");
    network       n = network_make(f->model, &mix);
    gpunn_device *dev = gpunn_device_open(ON(f->backend));
    OK(f->dev, gpunn_spec_save(f->model, path, .loss = n.loss));
    FAILS_NULL(dev, gpunn_spec_load(dev, path), GPUNN_ERR_FORMAT, "no op \"mix\" is registered",
               "gpunn_register_custom");
    OK(dev, gpunn_register_custom(dev, &mix));
    gpunn_model *loaded = MADE(dev, gpunn_spec_load(dev, path));
    float        values[12] = {1, -1, 0.5f}, first, second;
    for (int i = 0; i < gpunn_parameter_count(loaded); i++) {
        int64_t count;
        float  *start = read_floats(f->dev, gpunn_parameter_at(f->model, i), &count);
        OK(dev, write_floats(gpunn_parameter_at(loaded, i), start, count));
        free(start);
    }
    gpunn_tensor *loss = gpunn_spec_loss(loaded);
    OK(f->dev, gpunn_write(n.x, values, sizeof values));
    OK(f->dev, gpunn_forward(&n.loss, 1));
    first = gpunn_item(n.loss);
    OK(dev, gpunn_write(gpunn_input_at(loaded, 0), values, sizeof values));
    OK(dev, gpunn_forward(&loss, 1));
    second = gpunn_item(loss);
    assert_true(first == second);
    gpunn_optimizer_destroy(n.opt);
    gpunn_model_destroy(loaded);
    gpunn_device_close(dev);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    static struct CMUnitTest tests[16];
    int                      count = 0;
    count += each_backend(tests + count, "training", test_training, NULL);
    count += each_backend(tests + count, "half", test_half, NULL);
    count += each_backend(tests + count, "refusals", test_refusals, NULL);
    count += each_backend(tests + count, "spec", test_spec, NULL);
    count += missing_backends(tests + count);
    return _cmocka_run_group_tests("custom", tests, (size_t)count, NULL, NULL);
}
