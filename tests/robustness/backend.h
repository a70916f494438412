/* A backend whose n-th call fails, and a program that calls all of a backend. Whatever fails, the program gets
 * the backend's status and a sentence, nothing leaks, and the device goes on. */
#ifndef GPUNN_TEST_BACKEND_H
#define GPUNN_TEST_BACKEND_H
#include "../test.h"

static const gpunn_backend *computing; /* what the failing backend passes its calls on to */
static long                 backend_calls, backend_fails_at; /* 0: none */
static const char           lost_text[] = "the test lost the device";

static bool backend_fails(void)
{
    return ++backend_calls == backend_fails_at;
}

#define FAILING(name, parameters, arguments)                                   \
    static gpunn_status failing_##name parameters                              \
    {                                                                          \
        return backend_fails() ? GPUNN_ERR_DEVICE : computing->name arguments; \
    }
FAILING(upload, (void *context, void *to, const void *from, size_t bytes), (context, to, from, bytes))
FAILING(download, (void *context, void *to, const void *from, size_t bytes), (context, to, from, bytes))
FAILING(fill, (void *context, void *to, int byte, size_t bytes), (context, to, byte, bytes))
FAILING(normalize, (void *context, float *to, const uint8_t *from, int64_t count, const gpunn_pixels *pixels),
        (context, to, from, count, pixels))
FAILING(synchronize, (void *context), (context))
FAILING(prepare, (void *context, gpunn_step *step), (context, step))
FAILING(update, (void *context, const gpunn_update *update), (context, update))
FAILING(sum_of_squares, (void *context, const float *values, int64_t count, double *result),
        (context, values, count, result))
FAILING(value_sums,
        (void *context, const void *values, gpunn_dtype dtype, int64_t count, gpunn_value_sums *parts),
        (context, values, dtype, count, parts))
FAILING(scale, (void *context, float *values, int64_t count, float factor, float limit),
        (context, values, count, factor, limit))
FAILING(convert,
        (void *context, void *to, gpunn_dtype to_dtype, const void *from, gpunn_dtype dtype, int64_t count),
        (context, to, to_dtype, from, dtype, count))
FAILING(execute, (void *context, gpunn_run *run), (context, run))
FAILING(time, (void *context, gpunn_run *run, double *seconds), (context, run, seconds))
FAILING(draw, (void *context, const gpunn_drawing *drawing, float *to), (context, drawing, to))
#undef FAILING

/* Any of the steps may be the call that fails. */
static gpunn_status failing_run(void *context, gpunn_step *steps, int count, const gpunn_step **failed)
{
    gpunn_status status = GPUNN_OK;
    for (int i = 0; i < count && status == GPUNN_OK; i++) {
        *failed = &steps[i];
        status = backend_fails() ? GPUNN_ERR_DEVICE : computing->run(context, &steps[i], 1, failed);
    }
    return status;
}

static const char *failing_error(void *context)
{
    return backend_fails_at != 0 && backend_calls >= backend_fails_at ? lost_text : computing->error(context);
}

static gpunn_backend failing_backend(const gpunn_backend *table)
{
    gpunn_backend failing = *table;
    computing = table;
    failing.upload = failing_upload, failing.download = failing_download, failing.fill = failing_fill;
    failing.synchronize = failing_synchronize;
    failing.prepare = failing_prepare, failing.run = failing_run, failing.update = failing_update;
    failing.sum_of_squares = failing_sum_of_squares, failing.value_sums = failing_value_sums;
    failing.scale = failing_scale, failing.convert = failing_convert, failing.time = failing_time;
    if (table->execute) failing.execute = failing_execute;
    if (table->normalize) failing.normalize = failing_normalize;
    if (table->draw) failing.draw = failing_draw;
    failing.error = failing_error;
    return failing;
}

static bool sees_layer(void *user, const gpunn_layer_statistics *layer)
{
    (void)user;
    return layer->count >= 0;
}

static void reads_line(void *user, const char *text)
{
    *(size_t *)user += strlen(text);
}

enum { LOST_BATCH = 2, LOST_IN = 3, LOST_OUT = 2 };
typedef struct lost_net {
    gpunn_tensor *x, *rows, *bias, *state, *h, *loss;
} lost_net;

/* An input of doubles, a sparse table, a linear layer, a state. */
static lost_net lost_open(gpunn_model *model)
{
    const gpunn_init ones = {GPUNN_INIT_CONSTANT, 1, 0};
    lost_net         n;
    n.x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, LOST_IN));
    n.rows = gpunn_input(model, "rows", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *d = gpunn_input(model, "d", GPUNN_F64, GPUNN_SHAPE(GPUNN_BATCH, LOST_IN));
    gpunn_tensor *e = gpunn_embedding(n.rows, "e", .num_embeddings = 5, .embedding_dim = LOST_IN,
                                      .sparse = true);
    n.h = gpunn_linear(gpunn_add(gpunn_add(n.x, d), e), "fc", .out_features = LOST_OUT);
    n.bias = gpunn_find(model, "fc.bias");
    n.state = gpunn_state(model, "state", GPUNN_SHAPE(LOST_OUT), ones);
    (void)gpunn_assign(n.state, gpunn_add_scalar(n.state, 1));
    n.h = gpunn_batch_norm1d(gpunn_add(n.h, n.state), "bn");
    n.loss = gpunn_mean(gpunn_square(gpunn_set_name(n.h, "h")), GPUNN_ALL, false);
    return n;
}

/* GPUNN_OK, or the status of the first call that fails. bias: memory of the program on the device, or NULL. */
static gpunn_status lost_evaluates(gpunn_model *model, const lost_net *n, float *bias)
{
    static const float   x[LOST_BATCH * LOST_IN] = {1, 2, 3, 4, 5, 6};
    static const double  d[LOST_BATCH * LOST_IN] = {0.5, 0, 0, 0, 0, 1};
    static const int64_t rows[LOST_BATCH] = {4, 1};
    float                out[LOST_BATCH * LOST_OUT];
    double               wide[LOST_BATCH * LOST_OUT];
    size_t               length = 0;
    gpunn_status         status = gpunn_write(n->x, x, sizeof x);
    if (status == GPUNN_OK) status = gpunn_write(gpunn_find(model, "d"), d, sizeof d);
    if (status == GPUNN_OK) status = gpunn_write(n->rows, rows, sizeof rows);
    if (status == GPUNN_OK) status = gpunn_forward(&n->h, 1);
    if (status == GPUNN_OK) status = gpunn_read(n->h, out, sizeof out);
    if (status == GPUNN_OK) status = gpunn_read_as(n->h, GPUNN_TYPED(wide), sizeof wide);
    if (status == GPUNN_OK) status = gpunn_bind(n->bias, bias, bias ? LOST_OUT * sizeof *bias : 0);
    if (status == GPUNN_OK) status = gpunn_forward(&n->h, 1);
    if (status == GPUNN_OK)
        status = gpunn_profile(model, .outputs = {n->h}, .runs = 1, .peak_flops = 1, .peak_bytes = 1,
                               .write = reads_line, .user = &length);
    if (status == GPUNN_OK) status = gpunn_inspect(n->loss, .on_layer = sees_layer);
    if (status == GPUNN_OK) status = gpunn_reset_states(model);
    return status;
}

static gpunn_status lost_trains(gpunn_optimizer *opt, gpunn_model *model, const lost_net *n)
{
    static const float given[LOST_BATCH * LOST_OUT] = {1, 2, 3, 4};
    const void *const  from[1] = {given};
    float              gradient[LOST_OUT], norm;
    gpunn_status       status = gpunn_backward(n->loss);
    if (status == GPUNN_OK) status = gpunn_read_grad(n->bias, gradient, sizeof gradient);
    if (status == GPUNN_OK) status = gpunn_clip_grad_norm(model, 0.1f, &norm);
    if (status == GPUNN_OK) status = gpunn_clip_grad_value(model, 0.01f);
    if (status == GPUNN_OK) status = gpunn_optimizer_step(opt);
    if (status == GPUNN_OK) status = gpunn_zero_grad(model);
    if (status == GPUNN_OK) status = gpunn_backward_from(&n->h, from, 1);
    gpunn_set_clip_norm(opt, 0.5f);
    if (status == GPUNN_OK) status = gpunn_train_step(opt, n->loss);
    gpunn_set_clip_value(opt, 0.5f);
    if (status == GPUNN_OK) status = gpunn_train_step(opt, n->loss);
    if (status == GPUNN_OK) status = gpunn_ema_swap(opt);
    if (status == GPUNN_OK) status = gpunn_ema_swap(opt);
    return status;
}

/* On another device. */
static gpunn_status lost_moves(gpunn_model *model, gpunn_optimizer *opt, const lost_net *n,
                               gpunn_device *other)
{
    gpunn_array    file = {0};
    gpunn_session *session = NULL;
    gpunn_status   status = gpunn_set_init(n->bias, (gpunn_init){GPUNN_INIT_NORMAL, 0, 1});
    if (status == GPUNN_OK) status = gpunn_save_memory(model, &file);
    if (status == GPUNN_OK) status = gpunn_load_memory(model, file.data, file.bytes);
    gpunn_array_free(other, &file);
    if (status == GPUNN_OK) status = gpunn_bind(n->bias, NULL, 0);
    if (status == GPUNN_OK) status = gpunn_model_to(model, other);
    if (status == GPUNN_OK) status = gpunn_train_step(opt, n->loss);
    if (status == GPUNN_OK && (session = gpunn_session_create(model)) == NULL)
        status = gpunn_last_status(other);
    if (status == GPUNN_OK) status = gpunn_use_session(model, session);
    if (status == GPUNN_OK) status = gpunn_forward(&n->h, 1);
    if (status == GPUNN_OK) status = gpunn_use_session(model, NULL);
    gpunn_session_destroy(session);
    return status;
}

static gpunn_status lost_fits(gpunn_device *dev, gpunn_model *model, gpunn_optimizer *opt, const lost_net *n)
{
    static uint8_t x[4 * LOST_IN];
    static int64_t rows[4] = {0, 1, 2, 3};
    static double  d[4 * LOST_IN];
    gpunn_loader  *loader = gpunn_loader_create(
         model,
         .fields = {{.input = n->x, .samples = x, .dtype = GPUNN_U8, .mean = {0.5f}, .std = {2}},
                    {.input = n->rows, .samples = rows},
                    {.input = gpunn_find(model, "d"), .samples = d}},
         .count = 4, .batch_size = LOST_BATCH, .shuffle = true);
    float        loss;
    gpunn_status status = loader ? gpunn_fit(opt, .loss = n->loss, .train = loader, .epochs = 1)
                                 : gpunn_last_status(dev);
    if (status == GPUNN_OK) status = gpunn_evaluate(loader, n->loss, NULL, &loss, NULL);
    if (status == GPUNN_OK) status = gpunn_synchronize(dev);
    gpunn_loader_destroy(loader);
    return status;
}

static gpunn_status lost_program(gpunn_device *dev, gpunn_device *other)
{
    const bool       halves = gpunn_device_type(dev) == GPUNN_DEVICE_CUDA;
    float            bias[LOST_OUT] = {0.25f, 0.75f};
    gpunn_model     *model = gpunn_model_create(dev,
                                                .precision = halves ? GPUNN_PRECISION_BF16 : GPUNN_PRECISION_F32);
    lost_net         n = lost_open(model);
    gpunn_optimizer *opt = gpunn_adam(model);
    gpunn_status     status = opt ? gpunn_set_ema(opt, 0.9f) : gpunn_last_status(dev);
    if (status == GPUNN_OK) status = lost_evaluates(model, &n, halves ? NULL : bias);
    if (status == GPUNN_OK) status = lost_trains(opt, model, &n);
    if (status == GPUNN_OK) status = lost_fits(dev, model, opt, &n);
    if (status == GPUNN_OK) status = lost_moves(model, opt, &n, other);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    return status;
}

/* Fails call n of the program. Returns false if it has fewer calls; then it succeeds. */
static bool fail_call(gpunn_device *const dev[2], long n)
{
    backend_calls = 0, backend_fails_at = n;
    const gpunn_status status = lost_program(dev[0], dev[1]);
    const bool         fails = backend_calls >= n;
    const char        *text[2] = {gpunn_error(dev[0]), gpunn_error(dev[1])};
    if (status != (fails ? GPUNN_ERR_DEVICE : GPUNN_OK) ||
        (fails && !strstr(text[0], lost_text) && !strstr(text[1], lost_text)))
        fail_msg("call %ld failed: %s \"%s\" \"%s\"", n, gpunn_status_name(status), text[0], text[1]);
    gpunn_clear_error(dev[0]), gpunn_clear_error(dev[1]);
    return fails;
}

/* Fails one call after another, with GPUNN_TEST_ALLOCATIONS=k every k-th. The devices go on. */
static void every_backend_call(const gpunn_backend *table)
{
    const gpunn_backend failing = failing_backend(table);
    const long          step = test_setting("GPUNN_TEST_ALLOCATIONS", 1);
    long                n = 1;
    test_memory         memory;
    gpunn_device       *dev[2];
    test_memory_init(&memory);
    for (int i = 0; i < 2; i++)
        dev[i] = gpunn_device_open(.backend = &failing, .threads = 1, .realloc_fn = hook_realloc,
                                   .user = &memory);
    while (fail_call(dev, n)) n += step;
    for (int i = 0; i < 2; i++) gpunn_device_close(dev[i]);
    test_memory_check(&memory);
    print_message("# calls 1 to %ld failed, one by one\n", n - step);
    assert_true(n > 200);
}
#endif
