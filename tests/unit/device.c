/* Devices, errors and their sentences, the life of models, initial values, independence of threads and
 * devices. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "../test.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <sys/wait.h>

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(gpunn_status_name(GPUNN_OK), "GPUNN_OK: ok");
    assert_string_equal(gpunn_status_name(GPUNN_ERR_SHAPE), "GPUNN_ERR_SHAPE: shapes do not fit");
    for (int i = -3; i < GPUNN_STATUS_COUNT + 3; i++)
        assert_true(strlen(gpunn_status_name((gpunn_status)i)) > 4);
    assert_int_equal(gpunn_dtype_size(GPUNN_F32), 4);
    assert_int_equal(gpunn_dtype_size(GPUNN_BF16), 2);
    assert_int_equal(gpunn_dtype_size(GPUNN_I64), 8);
    assert_int_equal(gpunn_dtype_size(GPUNN_U8), 1);
    assert_int_equal(gpunn_dtype_size(GPUNN_DTYPE_DEFAULT), 0);
    assert_int_equal(gpunn_dtype_size((gpunn_dtype)99), 0);
    assert_string_equal(gpunn_dtype_name(GPUNN_I64), "i64");
    assert_non_null(gpunn_dtype_name((gpunn_dtype)-1));
    for (int i = -1; i <= GPUNN_OP_COUNT; i++) assert_non_null(gpunn_op_name((gpunn_op)i));
    assert_string_equal(gpunn_op_name(GPUNN_OP_CONV2D), "conv2d");
}

static void test_open(void **state)
{
    fixture *f = *state;
    assert_int_equal(gpunn_device_type(f->dev), f->backend->type);
    assert_true(strlen(gpunn_device_name(f->dev)) > 3);
    if (f->backend->type == GPUNN_DEVICE_CPU) assert_in_range(gpunn_device_threads(f->dev), 1, 2);
    assert_string_equal(gpunn_error(f->dev), "");
    assert_int_equal(gpunn_last_status(f->dev), GPUNN_OK);
    assert_int_equal(gpunn_memory_allocated(f->dev), 0);
    OK(f->dev, gpunn_synchronize(f->dev));
    gpunn_empty_cache(f->dev);
    gpunn_empty_cache(NULL);
    gpunn_device_close(NULL);
    gpunn_model_destroy(NULL);
    gpunn_optimizer_destroy(NULL);
    gpunn_loader_destroy(NULL);

    assert_null(gpunn_device_open(.type = (gpunn_device_type)17));
    assert_int_equal(gpunn_last_status(NULL), GPUNN_ERR_ARGUMENT);
    assert_true(strlen(gpunn_error(NULL)) > 10);
    gpunn_clear_error(NULL);
    assert_string_equal(gpunn_error(NULL), "");
    assert_null(gpunn_device_open(.threads = -1));
    assert_int_not_equal(gpunn_last_status(NULL), GPUNN_OK);
    gpunn_clear_error(NULL);
    const gpunn_backend strange = {.abi = GPUNN_BACKEND_ABI + 1};
    assert_null(gpunn_device_open(.type = GPUNN_DEVICE_CUDA, .backend = &strange));
    check_sentence(NULL, gpunn_last_status(NULL), __FILE__, __LINE__, "the backend has ABI", "one version",
                   (const char *)NULL);
    gpunn_device_args newer = {.args_ = GPUNN_VERSION_NUMBER + 1};
    assert_null(gpunn_device_open_(newer));
    check_sentence(NULL, GPUNN_ERR_ARGUMENT, __FILE__, __LINE__, "version", (const char *)NULL);
    newer.args_ = 0; /* not said */
    gpunn_device_close(gpunn_device_open_(newer));
    assert_int_equal(gpunn_last_status(NULL), GPUNN_OK);
    assert_int_equal(gpunn_version(), 1000 * GPUNN_VERSION_MAJOR + GPUNN_VERSION_MINOR);
    gpunn_device *plain = gpunn_device_open();
    assert_non_null(plain);
    gpunn_device_close(plain);
}

extern const gpunn_backend gpunn_cuda_backend __attribute__((weak));
static void                test_open_cuda(void **state)
{
    (void)state;
    if (gpunn_cuda_device_count() > 0) SKIP("there is a CUDA device");
    assert_null(gpunn_device_open(.type = GPUNN_DEVICE_CUDA));
    const char *word = &gpunn_cuda_backend ? "GPU" : "gpunn_cuda.cu";
    check_sentence(NULL, GPUNN_ERR_DEVICE, __FILE__, __LINE__, word, (const char *)NULL);
}

static void keep_message(void *user, gpunn_log_level level, const char *message)
{
    if (level != GPUNN_LOG_ERROR) (void)snprintf(user, 256, "%s", message);
}

/* log_fn learns why the CPU computes, unless nothing suggests a GPU. */
static void test_why_cpu(void **state)
{
    (void)state;
    char          text[256] = "";
    gpunn_device *dev = MADE(NULL, gpunn_device_open(.log_fn = keep_message, .user = text));
    if (gpunn_device_type(dev) == GPUNN_DEVICE_CPU && *text)
        assert_non_null(strstr(text, "gpunn computes on the CPU: "));
    gpunn_device_close(dev);
}

/* A rank's own index is one that the machine has. */
static void test_local_index(void **state)
{
    (void)state;
    gpunn_device *dev = gpunn_device_open(ON(first_backend()), .index = GPUNN_LOCAL_RANK);
    assert_int_equal(gpunn_device_type(MADE(NULL, dev)), first_backend()->type);
    gpunn_device_close(dev);
}

static void append_report(void *user, const char *text)
{
    strncat(user, text, 4095 - strlen(user));
}

static void test_report(void **state)
{
    (void)state;
    char text[4096] = "";
    gpunn_device_report(NULL, text);
    gpunn_device_report(append_report, text);
    assert_non_null(strstr(text, &gpunn_cuda_backend ? "driver" : "linked without gpunn_cuda.cu"));
    assert_int_equal(text[strlen(text) - 1], '\n');
}

/* Each thread sees its own failures to open. */
static void *open_in_thread(void *arg)
{
    (void)arg;
    bool clean = gpunn_error(NULL)[0] == 0;
    (void)gpunn_device_open(.type = (gpunn_device_type)18);
    return clean && gpunn_error(NULL)[0] != 0 ? (void *)1 : NULL;
}
static void test_errors_per_thread(void **state)
{
    (void)state;
    pthread_t thread;
    void     *result;
    gpunn_clear_error(NULL);
    assert_null(gpunn_device_open(.type = (gpunn_device_type)17));
    assert_int_equal(pthread_create(&thread, NULL, open_in_thread, NULL), 0);
    (void)pthread_join(thread, &result);
    assert_non_null(result);
    assert_int_not_equal(gpunn_last_status(NULL), GPUNN_OK);
    gpunn_clear_error(NULL);
}

static int  log_count;
static char log_text[256];
static void log_error(void *user, gpunn_log_level level, const char *message)
{
    *(int *)user += level == GPUNN_LOG_ERROR;
    (void)snprintf(log_text, sizeof log_text, "%s", message);
}
static void test_first_error_wins(void **state)
{
    (void)state;
    gpunn_device *dev = gpunn_device_open(ON(first_backend()), .log_fn = log_error, .user = &log_count);
    gpunn_model  *model = gpunn_model_create(dev);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 6));
    assert_null(gpunn_relu(gpunn_linear(x, "fc1", .out_features = -5)));
    char first[512];
    (void)snprintf(first, sizeof first, "%s", gpunn_error(dev));
    assert_int_equal(gpunn_last_status(dev), GPUNN_ERR_ARGUMENT);
    assert_non_null(strstr(first, "fc1"));
    assert_int_equal(log_count, 1);
    assert_string_equal(log_text, first);
    assert_null(gpunn_linear(x, "", .out_features = 5)); /* a second failure is logged, not kept */
    assert_string_equal(gpunn_error(dev), first);
    assert_null(gpunn_relu(NULL)); /* and NULL handed on is no failure of its own */
    gpunn_clear_error(dev);
    assert_string_equal(gpunn_error(dev), "");
    FAILS_NULL(dev, gpunn_add(NULL, x), GPUNN_ERR_ARGUMENT, "add", "NULL"); /* unless it comes from nowhere */
    assert_null(gpunn_conv2d(NULL, "c", .out_channels = 1, .kernel_size = 1));
    /* the failed call left nothing behind, not even its name */
    assert_non_null(gpunn_linear(x, "fc1", .out_features = 5));
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

/* A failure that leaves a NULL is named by the calls that receive the NULL, whoever looks at the end. */
static void test_null_chain(void **state)
{
    (void)state;
    static const char first[] = "gpunn_device_open: type 7 is unknown; use GPUNN_DEVICE_AUTO, _CPU or _CUDA";
    char              last[256];
    gpunn_clear_error(NULL);
    gpunn_device    *none = gpunn_device_open(.type = (gpunn_device_type)7);
    gpunn_model     *model = gpunn_model_create(none);
    gpunn_tensor    *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    gpunn_tensor    *loss = gpunn_mean(gpunn_linear(x, "fc", .out_features = 2), GPUNN_ALL, false);
    gpunn_optimizer *opt = gpunn_sgd(model);
    assert_true(!none && !model && !x && !loss && !opt);
    assert_string_equal(gpunn_error(NULL), first);
    for (int i = 0; i < 2; i++) { /* a second call still names the first failure, once */
        assert_int_equal(gpunn_train_step(opt, loss), GPUNN_ERR_ARGUMENT);
        (void)snprintf(last, sizeof last,
                       "gpunn_train_step: the optimizer is NULL; an earlier call failed: %s", first);
        assert_string_equal(gpunn_error(NULL), last);
    }
    gpunn_clear_error(NULL);
    FAILS(NULL, gpunn_forward(&loss, 1), GPUNN_ERR_ARGUMENT, "gpunn_forward: the first output is NULL");

    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU);
    model = gpunn_model_create(dev);
    x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    loss = gpunn_mean(gpunn_relu(gpunn_linear(x, "fc", .out_features = 0)), GPUNN_ALL, false);
    FAILS(NULL, gpunn_backward(loss), GPUNN_ERR_ARGUMENT, "the loss is NULL; an earlier call failed: see",
          "gpunn_error(device)");
    FAILS(dev, gpunn_train_step(NULL, loss), GPUNN_ERR_ARGUMENT, "linear 'fc': out_features is 0");
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

static void test_null(void **state)
{
    fixture *f = *state;
    char     byte = 0;
    assert_null(gpunn_model_create(NULL));
    assert_null(gpunn_input(NULL, "x", GPUNN_F32, GPUNN_SHAPE(1)));
    assert_null(gpunn_find(NULL, "x"));
    assert_null(gpunn_sgd(NULL));
    assert_null(gpunn_loader_create(NULL));
    assert_null(gpunn_find(f->model, NULL));
    assert_int_not_equal(gpunn_write(NULL, &byte, 1), GPUNN_OK);
    assert_int_not_equal(gpunn_read(NULL, &byte, 1), GPUNN_OK);
    assert_int_not_equal(gpunn_read_grad(NULL, &byte, 1), GPUNN_OK);
    assert_int_not_equal(gpunn_forward(NULL, 1), GPUNN_OK);
    assert_int_not_equal(gpunn_forward(NULL, 0), GPUNN_OK);
    assert_int_not_equal(gpunn_backward(NULL), GPUNN_OK);
    assert_int_not_equal(gpunn_train_step(NULL, NULL), GPUNN_OK);
    assert_int_not_equal(gpunn_optimizer_step(NULL), GPUNN_OK);
    assert_int_not_equal(gpunn_zero_grad(NULL), GPUNN_OK);
    assert_int_not_equal(gpunn_save(NULL, "x"), GPUNN_OK);
    assert_int_not_equal(gpunn_load(NULL, "x"), GPUNN_OK);
    assert_int_not_equal(gpunn_save(f->model, NULL), GPUNN_OK);
    assert_int_not_equal(gpunn_checkpoint_save(NULL, NULL, "x"), GPUNN_OK);
    assert_int_not_equal(gpunn_fit(NULL), GPUNN_OK);
    assert_int_not_equal(gpunn_evaluate(NULL, NULL, NULL, NULL, NULL), GPUNN_OK);
    assert_int_not_equal(gpunn_set_trainable(NULL, true), GPUNN_OK);
    assert_int_not_equal(gpunn_model_summary(NULL), GPUNN_OK);
    assert_false(gpunn_next(NULL));
    assert_true(isnan(gpunn_item(NULL)));
    assert_int_equal(gpunn_parameter_count(NULL), 0);
    assert_null(gpunn_parameter_at(f->model, 0));
    assert_null(gpunn_parameter_at(f->model, -1));
    assert_int_equal(gpunn_tensor_bytes(NULL), 0);
    gpunn_clear_error(f->dev);
    gpunn_clear_error(NULL);
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    assert_int_equal(gpunn_write(x, NULL, 8), GPUNN_ERR_ARGUMENT);
    gpunn_clear_error(f->dev);
}

/* ---- sentences: op, layer, shapes and what to do ---- */
static void *no_malloc(void *user, size_t bytes, void *stream)
{
    (void)user, (void)bytes, (void)stream;
    return NULL;
}

static void test_sentences(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    gpunn_model  *m = f->model;
    gpunn_tensor *x = gpunn_input(m, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 6, 14, 14));
    gpunn_tensor *v = gpunn_input(m, "v", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 5));
    gpunn_tensor *k = gpunn_input(m, "k", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *k2 = gpunn_input(m, "k2", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, 2));

    FAILS_NULL(dev, gpunn_input(m, "x", GPUNN_F32, GPUNN_SHAPE(3)), GPUNN_ERR_ARGUMENT, "x");
    FAILS_NULL(dev, gpunn_input(m, "", GPUNN_F32, GPUNN_SHAPE(3)), GPUNN_ERR_ARGUMENT, "name");
    FAILS_NULL(dev, gpunn_input(m, "h", GPUNN_F16, GPUNN_SHAPE(3)), GPUNN_ERR_DTYPE, "f16");
    FAILS_NULL(dev, gpunn_input(m, "b2", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, GPUNN_BATCH)), GPUNN_ERR_SHAPE,
               "b2");
    FAILS_NULL(dev, gpunn_input(m, "huge", GPUNN_F32, GPUNN_SHAPE(INT64_MAX / 2, INT64_MAX / 2)),
               GPUNN_ERR_SHAPE, "huge");
    FAILS_NULL(dev, gpunn_conv2d(x, "conv1", .kernel_size = 3), GPUNN_ERR_ARGUMENT, "conv1", "out_channels");
    FAILS_NULL(dev, gpunn_conv2d(x, "conv1", .out_channels = 4), GPUNN_ERR_ARGUMENT, "conv1", "kernel_size");
    FAILS_NULL(dev, gpunn_conv2d(x, "conv1", .out_channels = 4, .kernel_size = 3, .groups = 4),
               GPUNN_ERR_ARGUMENT, "conv2d", "conv1", "6", "4");
    FAILS_NULL(dev, gpunn_conv2d(x, "conv1", .out_channels = 4, .kernel_size = 15), GPUNN_ERR_SHAPE, "conv2d",
               "conv1", "15", "14");
    FAILS_NULL(dev, gpunn_conv2d(v, "conv1", .out_channels = 4, .kernel_size = 3), GPUNN_ERR_SHAPE, "conv2d",
               "conv1", "5");
    FAILS_NULL(dev, gpunn_conv2d(x, "conv1", .out_channels = 4, .kernel_size = 3, .stride = -1),
               GPUNN_ERR_ARGUMENT, "conv1", "stride");
    FAILS_NULL(dev, gpunn_conv2d(k, "conv1", .out_channels = 4, .kernel_size = 3), GPUNN_ERR_DTYPE, "conv1",
               "i64");
    FAILS_NULL(dev, gpunn_linear(v, NULL, .out_features = 3), GPUNN_ERR_ARGUMENT, "name");
    FAILS_NULL(dev, gpunn_linear(v, "fc"), GPUNN_ERR_ARGUMENT, "linear", "fc", "out_features");
    FAILS_NULL(dev, gpunn_add(x, v), GPUNN_ERR_SHAPE, "add", "14", "5");
    FAILS_NULL(dev, gpunn_add(v, k), GPUNN_ERR_DTYPE, "add", "i64");
    FAILS_NULL(dev, gpunn_max_pool2d(x, .kernel_size = 0), GPUNN_ERR_ARGUMENT, "max_pool2d", "kernel_size");
    FAILS_NULL(dev, gpunn_max_pool2d(x, .kernel_size = 2, .padding = 2), GPUNN_ERR_ARGUMENT, "max_pool2d",
               "padding");
    FAILS_NULL(dev, gpunn_batch_norm1d(x, "bn"), GPUNN_ERR_SHAPE, "batch_norm", "bn");
    FAILS_NULL(dev, gpunn_batch_norm2d(v, "bn"), GPUNN_ERR_SHAPE, "batch_norm", "bn");
    FAILS_NULL(dev, gpunn_dropout(v, 1.5f), GPUNN_ERR_ARGUMENT, "dropout", "1.5");
    FAILS_NULL(dev, gpunn_reshape(v, GPUNN_SHAPE(GPUNN_BATCH, 7)), GPUNN_ERR_SHAPE, "reshape", "5", "7");
    FAILS_NULL(dev, gpunn_permute(v, GPUNN_AXES(0, 0)), GPUNN_ERR_ARGUMENT, "permute");
    FAILS_NULL(dev, gpunn_slice(v, 1, 3, 3, 1), GPUNN_ERR_SHAPE, "slice");
    FAILS_NULL(dev, gpunn_slice(v, 0, 0, 1, 1), GPUNN_ERR_SHAPE, "slice", "batch");
    FAILS_NULL(dev, gpunn_sum(v, GPUNN_AXES(2), false), GPUNN_ERR_ARGUMENT, "sum", "2");
    FAILS_NULL(dev, gpunn_softmax(v, 5), GPUNN_ERR_ARGUMENT, "softmax", "5");
    FAILS_NULL(dev, gpunn_matmul(v, v), GPUNN_ERR_SHAPE, "matmul", "5");
    FAILS_NULL(dev, gpunn_mse_loss(v, gpunn_sum(v, GPUNN_AXES(1), true)), GPUNN_ERR_SHAPE, "mse_loss", "5");
    FAILS_NULL(dev, gpunn_cross_entropy(v, v), GPUNN_ERR_DTYPE, "cross_entropy", "f32");
    FAILS_NULL(dev, gpunn_cross_entropy(v, k2), GPUNN_ERR_SHAPE, "cross_entropy", "2");
    FAILS_NULL(dev, gpunn_cast(v, GPUNN_BF16), GPUNN_ERR_DTYPE, "cast", "bf16");
    FAILS_NULL(dev, gpunn_expr("x +", &v, 1), GPUNN_ERR_ARGUMENT, "x +");
    FAILS_NULL(dev, gpunn_expr("frobnicate(x)", &v, 1), GPUNN_ERR_ARGUMENT, "frobnicate");
    FAILS_NULL(dev,
               gpunn_parameter(m, "p", GPUNN_SHAPE(GPUNN_BATCH, 2), ((gpunn_init){GPUNN_INIT_ZEROS, 0, 0})),
               GPUNN_ERR_SHAPE, "p");
    FAILS_NULL(dev, gpunn_set_name(gpunn_relu(v), "x"), GPUNN_ERR_ARGUMENT, "x");
    gpunn_tensor *fc = MADE(dev, gpunn_linear(v, "fc", .out_features = 3));
    FAILS_NULL(dev, gpunn_linear(v, "fc", .out_features = 3), GPUNN_ERR_ARGUMENT, "fc");
    FAILS(dev, gpunn_set_trainable(fc, false), GPUNN_ERR_ARGUMENT, "parameter");
    FAILS(dev, gpunn_backward(fc), GPUNN_ERR_SHAPE, "loss");

    /* sizes, constants, integers */
    char long_text[200] = "";
    memset(long_text, 'a', sizeof long_text - 1);
    assert_int_not_equal(gpunn_size(m, long_text), 0);
    check_sentence(dev, GPUNN_ERR_ARGUMENT, __FILE__, __LINE__, "longer than", NULL);
    FAILS_NULL(dev, gpunn_integer_scalar(GPUNN_INTEGER_WHERE, k, 0), GPUNN_ERR_ARGUMENT, "got 1 operands",
               "3 are needed");
    FAILS_NULL(dev, gpunn_model_create(dev, .precision = (gpunn_precision)9), GPUNN_ERR_ARGUMENT,
               "precision 9");

    /* operands of two models */
    gpunn_model  *other = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *y = MADE(dev, gpunn_input(other, "y", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 5)));
    FAILS_NULL(dev, gpunn_add(v, y), GPUNN_ERR_ARGUMENT, "add", "model");
    gpunn_model_destroy(other);

    /* running */
    float four[20] = {0};
    FAILS(dev, gpunn_forward(&fc, 1), GPUNN_ERR_STATE, "v", "gpunn_write");
    FAILS(dev, gpunn_read(v, four, 20), GPUNN_ERR_STATE, "'v' has not been written");
    FAILS(dev, gpunn_read(v, NULL, 20), GPUNN_ERR_ARGUMENT, "host pointer is NULL");
    FAILS(NULL, gpunn_write_shape(NULL, four, GPUNN_SHAPE(1, 5)), GPUNN_ERR_ARGUMENT, "tensor is NULL");
    FAILS(dev, gpunn_write_shape(v, NULL, GPUNN_SHAPE(1, 5)), GPUNN_ERR_ARGUMENT, "host pointer is NULL");
    FAILS(dev, gpunn_write_shape(fc, four, GPUNN_SHAPE(1, 5)), GPUNN_ERR_SHAPE, "an input is needed");
    FAILS(NULL, gpunn_use_session(NULL, NULL), GPUNN_ERR_ARGUMENT, "model is NULL");
    FAILS(NULL, gpunn_bind_dlpack(NULL, NULL), GPUNN_ERR_ARGUMENT, "tensor is NULL");
    FAILS(dev, gpunn_bind_dlpack(v, NULL), GPUNN_ERR_ARGUMENT, "DLPack is NULL");
    FAILS(NULL, gpunn_synchronize(NULL), GPUNN_ERR_ARGUMENT, "device is NULL");
    FAILS_NULL(NULL, gpunn_device_open(.cuda_malloc_fn = no_malloc), GPUNN_ERR_ARGUMENT, "cuda_malloc_fn",
               "both");
    FAILS(dev, gpunn_write(v, four, 19), GPUNN_ERR_SHAPE, "v", "19", "20");
    FAILS(dev, gpunn_write(v, four, 0), GPUNN_ERR_SHAPE, "v");
    FAILS(dev, gpunn_write(fc, four, 12), GPUNN_ERR_STATE, "gpunn_write", "inputs");
    OK(dev, gpunn_write(v, four, sizeof four));
    FAILS(dev, gpunn_read(fc, four, 48), GPUNN_ERR_STATE, "gpunn_forward");
    OK(dev, gpunn_forward(&fc, 1));
    FAILS(dev, gpunn_read(fc, four, 12), GPUNN_ERR_SHAPE, "12", "48");
    FAILS(dev, gpunn_read_grad(gpunn_find(m, "fc.weight"), four, 60), GPUNN_ERR_STATE, "fc.weight",
          "gpunn_backward");
}

/* ---- initial values ---- */
static void test_init(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 100));
    gpunn_tensor *fc = gpunn_linear(x, "fc", .out_features = 64);
    const struct {
        const char *name;
        gpunn_init  init;
        double      mean, deviation, low, high; /* deviation 0: constant */
    } kinds[] = {{"default", {GPUNN_INIT_DEFAULT, 0, 0}, 0, 0, 0, 0},
                 {"zeros", {GPUNN_INIT_ZEROS, 0, 0}, 0, 0, 0, 0},
                 {"constant", {GPUNN_INIT_CONSTANT, 2.5f, 0}, 2.5, 0, 2.5, 2.5},
                 {"uniform", {GPUNN_INIT_UNIFORM, -1, 3}, 1, 4 / sqrt(12), -1, 3},
                 {"normal", {GPUNN_INIT_NORMAL, 0.5f, 2}, 0.5, 2, -12, 13},
                 {"kaiming", {GPUNN_INIT_KAIMING_UNIFORM, 0, 0}, 0, 0.1 / sqrt(3), -0.1, 0.1},
                 {"fan", {GPUNN_INIT_KAIMING_UNIFORM, 25, 0}, 0, 0.2 / sqrt(3), -0.2, 0.2},
                 {"fc.weight", {GPUNN_INIT_DEFAULT, 0, 0}, 0, 0.1 / sqrt(3), -0.1, 0.1},
                 {"fc.bias", {GPUNN_INIT_DEFAULT, 0, 0}, 0, 0.1 / sqrt(3), -0.1, 0.1}};
    for (int i = 0; i < COUNT(kinds) - 2; i++)
        MADE(f->dev, gpunn_parameter(f->model, kinds[i].name, GPUNN_SHAPE(64, 100), kinds[i].init));
    assert_int_equal(gpunn_parameter_count(f->model), COUNT(kinds));
    float row[100] = {0};
    OK(f->dev, gpunn_write(x, row, sizeof row));
    OK(f->dev, gpunn_forward(&fc, 1));
    for (int i = 0; i < COUNT(kinds); i++) {
        int64_t n;
        float  *values = read_floats(f->dev, MADE(f->dev, gpunn_find(f->model, kinds[i].name)), &n);
        double  sum = 0, squares = 0, low = INFINITY, high = -INFINITY;
        for (int64_t k = 0; k < n; k++) {
            sum += values[k];
            low = fmin(low, (double)values[k]);
            high = fmax(high, (double)values[k]);
        }
        const double mean = sum / (double)n, error = kinds[i].deviation / sqrt((double)n);
        for (int64_t k = 0; k < n; k++) squares += (values[k] - mean) * (values[k] - mean);
        const double deviation = sqrt(squares / (double)n);
        if (!(fabs(mean - kinds[i].mean) <= 4 * error) ||
            !(fabs(deviation - kinds[i].deviation) <= 4 * error) || !(low >= kinds[i].low - 1e-7) ||
            !(high <= kinds[i].high + 1e-7))
            fail_msg("%s: mean %g, deviation %g, from %g to %g", kinds[i].name, mean, deviation, low, high);
        free(values);
    }
}

/* Large tensors are drawn by several threads, in which denormals count as zero. gpunn_set_init draws the same
 * values in this thread. */
static void test_init_of_threads(void **state)
{
    (void)state;
    gpunn_device    *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 3, .threads = 3);
    gpunn_model     *model = gpunn_model_create(dev);
    gpunn_tensor    *words = gpunn_input(model, "words", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    const gpunn_init inits[] = {{GPUNN_INIT_NORMAL, 0, 1}, /* of embeddings, with a row of zeros */
                                {GPUNN_INIT_NORMAL, 0, 1e-39f},
                                {GPUNN_INIT_UNIFORM, -2, 3},
                                {GPUNN_INIT_KAIMING_UNIFORM, 0, 0}};
    gpunn_tensor    *drawn[COUNT(inits)];
    MADE(dev,
         gpunn_embedding(words, "w", .num_embeddings = 70001, .embedding_dim = 13, .padding_idx = 40000));
    drawn[0] = MADE(dev, gpunn_find(model, "w.weight"));
    for (int i = 1; i < COUNT(inits); i++) {
        const char name[] = {(char)('a' + i), 0};
        drawn[i] = MADE(dev, gpunn_parameter(model, name, GPUNN_SHAPE(70001, 13), inits[i]));
    }
    for (int i = 0; i < COUNT(inits); i++) {
        int64_t n, again;
        float  *before = read_floats(dev, drawn[i], &n);
        OK(dev, gpunn_set_init(drawn[i], inits[i]));
        float *after = read_floats(dev, drawn[i], &again);
        assert_int_equal(n, 70001 * 13);
        assert_true(before[n - 1] != 0);
        assert_memory_equal(before, after, (size_t)n * sizeof *after);
        free(before), free(after);
    }
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

/* The weights that a run ends with, after ten steps with dropout. */
static float *train(uint64_t seed, int threads, int64_t *count)
{
    gpunn_device    *dev = gpunn_device_open(ON(first_backend()), .seed = seed, .threads = threads);
    gpunn_model     *model = gpunn_model_create(dev);
    net              n = net_make(model);
    gpunn_optimizer *opt = gpunn_adam(model, .lr = 0.01f);
    for (uint32_t i = 0; i < 10; i++) {
        net_write(dev, n, 37, i);
        OK(dev, gpunn_train_step(opt, n.loss));
    }
    float *weights = read_weights(dev, model, count);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return weights;
}

static void test_reproducible(void **state)
{
    (void)state;
    int64_t n, m;
    float  *first = train(5, 1, &n);
    for (int threads = 1; threads <= 7; threads += threads == 1 ? 1 : 5) {
        float *again = train(5, threads, &m);
        assert_int_equal(n, m);
        assert_memory_equal(first, again, (size_t)n * sizeof *first);
        free(again);
    }
    float *other = train(6, 1, &m);
    assert_memory_not_equal(first, other, (size_t)n * sizeof *first);
    free(first), free(other);
}

/* Larger work, so that it really is split: the same bits with 1 and 3 threads. */
static void test_threads_large(void **state)
{
    (void)state;
    float *results[2];
    size_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        gpunn_device *dev = gpunn_device_open(ON(first_backend()), .seed = 3, .threads = i ? 3 : 1);
        gpunn_model  *model = gpunn_model_create(dev);
        gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 16, 24, 24));
        gpunn_tensor *h = gpunn_rms_norm(gpunn_layer_norm(x, "ln"), "rms", .dims = 2);
        h = gpunn_gelu(gpunn_batch_norm2d(
            gpunn_conv2d(h, "c1", .out_channels = 24, .kernel_size = 3, .padding = 1), "bn"));
        h = gpunn_max_pool2d(gpunn_conv2d(h, "c2", .out_channels = 32, .kernel_size = 3, .stride = 2),
                             .kernel_size = 2);
        h = gpunn_softmax(gpunn_linear(gpunn_flatten(h), "fc", .out_features = 300), 1);
        gpunn_tensor    *loss = MADE(dev, gpunn_mean(gpunn_square(h), GPUNN_ALL, false));
        gpunn_optimizer *opt = gpunn_sgd(model, .lr = 0.5f, .momentum = 0.9f);
        float           *values = test_randoms(9 * 16 * 24 * 24, 5, 1);
        OK(dev, write_floats(x, values, 9 * 16 * 24 * 24));
        gpunn_set_clip_norm(opt, 0.01f);
        for (int step = 0; step < 3; step++) OK(dev, gpunn_train_step(opt, loss));
        int64_t n;
        results[i] = read_weights(dev, model, &n);
        bytes = (size_t)n * sizeof **results;
        free(values);
        gpunn_optimizer_destroy(opt);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
    }
    assert_memory_equal(results[0], results[1], bytes);
    free(results[0]), free(results[1]);
}

static void test_interleaved(void **state)
{
    (void)state;
    gpunn_device    *dev[3];
    gpunn_model     *model[3];
    gpunn_optimizer *opt[3];
    net              n[3];
    for (int i = 0; i < 3; i++) {
        dev[i] = gpunn_device_open(ON(first_backend()), .seed = 9, .threads = 1 + i % 2);
        model[i] = gpunn_model_create(dev[i]);
        n[i] = net_make(model[i]);
        opt[i] = gpunn_adamw(model[i]);
    }
    for (uint32_t step = 0; step < 5; step++) /* 0 and 1 take turns */
        for (int i = 0; i < 2; i++) {
            net_write(dev[i], n[i], 6, step);
            OK(dev[i], gpunn_train_step(opt[i], n[i].loss));
        }
    for (uint32_t step = 0; step < 5; step++) { /* 2 is alone */
        net_write(dev[2], n[2], 6, step);
        OK(dev[2], gpunn_train_step(opt[2], n[2].loss));
    }
    check_same_weights(dev[0], model[0], dev[1], model[1]);
    check_same_weights(dev[0], model[0], dev[2], model[2]);
    for (int i = 0; i < 3; i++) {
        gpunn_optimizer_destroy(opt[i]);
        gpunn_model_destroy(model[i]);
        gpunn_device_close(dev[i]);
    }
}

/* ---- a device's threads -------------------------------------------------------------------------------- */
static int thread_count(void)
{
    int            count = 0;
    struct dirent *entry;
    DIR           *folder = opendir("/proc/self/task");
    if (folder == NULL) return 0;
    while ((entry = readdir(folder)) != NULL) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

/* A thread that has been joined may be listed for a moment more; one that stays fails the test after ten
 * seconds. */
static void check_threads(int wanted)
{
    const struct timespec moment = {0, 1000000};
    for (int tries = 0; thread_count() != wanted && tries < 10000; tries++) nanosleep(&moment, NULL);
    assert_int_equal(thread_count(), wanted);
}

static int threads_left = -1; /* so many more can be started; below 0: any */
int pthread_create(pthread_t *__newthread, const pthread_attr_t *__attr, void *(*__start_routine)(void *),
                   void *__arg)
{
    if (threads_left == 0) return EAGAIN;
    if (threads_left > 0) threads_left--;
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT,
                                                                                        "pthread_create");
    return real(__newthread, __attr, __start_routine, __arg);
}

enum { TEAM = 5, ROUNDS = 200 };
typedef struct teamwork {
    int  ran[TEAM], inner, threads;
    bool alone; /* each inner call had one thread */
} teamwork;

static void inner_task(void *arg, int index, int threads)
{
    teamwork *work = arg;
    if (index != 0 || threads != 1) work->alone = false;
    __atomic_fetch_add(&work->inner, 1, __ATOMIC_RELAXED);
}

static void outer_task(void *arg, int index, int threads)
{
    teamwork *work = arg;
    work->ran[index]++;
    if (index == 0) work->threads = threads;
    gpunn_parallel(TEAM, inner_task, work);
}

static int team_forward(const gpunn_custom_call *call)
{
    teamwork *work = call->user;
    assert_int_equal(call->threads, TEAM);
    for (int round = 0; round < ROUNDS; round++) {
        if (round % 50 == 49) usleep(2000); /* they sleep meanwhile */
        gpunn_parallel(2 + round % (TEAM - 1), outer_task, work);
    }
    memcpy(call->out->data, call->in[0].data, (size_t)call->out->count * sizeof(float));
    return 0;
}

/* A program's function on the device's threads, which end with the device; without enough of them it is told
 * how many there are. */
static void test_teams(void **state)
{
    (void)state;
    for (int most = TEAM; most >= 1; most -= 2) {
        const int     before = thread_count();
        teamwork      work = {.alone = true};
        gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = TEAM);
        if (gpunn_device_threads(dev) == 1) {
            gpunn_device_close(dev);
            SKIP("built without threads");
        }
        gpunn_model          *model = gpunn_model_create(dev);
        gpunn_tensor         *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
        const gpunn_custom_op op = {.name = "team", .inputs = 1, .forward = team_forward, .user = &work};
        gpunn_tensor         *y = MADE(dev, gpunn_custom(&op, &x));
        const float           values[3] = {1, 2, 3};
        OK(dev, gpunn_write(x, values, sizeof values));
        assert_int_equal(thread_count(), before); /* none before there is work for it */
        threads_left = most - 1;
        OK(dev, gpunn_forward(&y, 1));
        threads_left = -1;
        assert_int_equal(thread_count(), before + most - 1);
        int total = 0;
        for (int i = 0; i < TEAM; i++) total += work.ran[i];
        int expected = 0;
        for (int round = 0; round < ROUNDS; round++)
            expected += 2 + round % (TEAM - 1) < most ? 2 + round % (TEAM - 1) : most;
        assert_int_equal(work.ran[0], ROUNDS);
        assert_int_equal(total, expected);
        assert_int_equal(work.inner, total);
        assert_true(work.alone);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
        check_threads(before);
    }
    teamwork outside = {.alone = true};
    gpunn_parallel(TEAM, outer_task, &outside); /* where no device computes, the caller is the only thread */
    assert_int_equal(outside.ran[0], 1);
    assert_int_equal(outside.threads, 1);
}

/* What is reserved holds what is allocated. The CPU has no pool: there both are the same. */
static void check_reserved(const gpunn_device *dev)
{
    const size_t now = gpunn_memory_reserved(dev), peak = gpunn_memory_reserved_peak(dev);
    assert_true(now >= gpunn_memory_allocated(dev) && peak >= gpunn_memory_peak(dev) && peak >= now);
    if (gpunn_device_type(dev) == GPUNN_DEVICE_CUDA) return;
    assert_int_equal(now, gpunn_memory_allocated(dev));
    assert_int_equal(peak, gpunn_memory_peak(dev));
}

static void test_memory_limit(void **state)
{
    (void)state;
    gpunn_device *dev = gpunn_device_open(ON(first_backend()), .memory_limit = 200000);
    gpunn_model  *model = gpunn_model_create(dev);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 100));
    gpunn_tensor *y = MADE(
        dev, gpunn_linear(gpunn_relu(gpunn_linear(x, "a", .out_features = 50)), "b", .out_features = 50));
    float *values = test_randoms(1000 * 100, 1, 1);
    FAILS(dev, gpunn_write(x, values, 1000 * 400), GPUNN_ERR_MEMORY, "memory_limit", "200000");
    assert_true(gpunn_memory_allocated(dev) <= 200000);
    OK(dev, gpunn_write(x, values, 20 * 400));
    OK(dev, gpunn_forward(&y, 1));
    /* packs no weights */
    OK(dev, gpunn_write(x, values, gpunn_device_type(dev) == GPUNN_DEVICE_CPU ? 130 * 400 : 250 * 400));
    FAILS(dev, gpunn_forward(&y, 1), GPUNN_ERR_MEMORY, "memory_limit");
    OK(dev, gpunn_write(x, values, 20 * 400));
    OK(dev, gpunn_forward(&y, 1));
    assert_true(gpunn_memory_peak(dev) <= 200000 && gpunn_memory_peak(dev) >= gpunn_memory_allocated(dev));
    check_reserved(dev);
    free(values);
    gpunn_model_destroy(model);
    assert_int_equal(gpunn_memory_allocated(dev), 0);
    gpunn_empty_cache(dev);
    check_reserved(dev);
    gpunn_device_close(dev);
}

/* The status of a run on a device of so many bytes; 0: of any number. *peak: bytes that it took. */
static gpunn_status run_within(size_t limit, size_t *peak)
{
    gpunn_device *dev = gpunn_device_open(ON(first_backend()), .threads = 2, .memory_limit = limit);
    gpunn_model  *model = MADE(NULL, gpunn_model_create(MADE(NULL, dev)));
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 100));
    gpunn_tensor *y = MADE(dev, gpunn_linear(x, "a", .out_features = 50));
    float        *values = test_randoms(20 * 100, 1, 1);
    gpunn_status  status = gpunn_write(x, values, 20 * 400);
    if (status == GPUNN_OK) status = gpunn_forward(&y, 1);
    *peak = gpunn_memory_peak(dev);
    free(values);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return status;
}

/* All bytes of the limit may be used. */
static void test_whole_limit(void **state)
{
    size_t needed, peak;
    (void)state;
    assert_int_equal(run_within(0, &needed), GPUNN_OK);
    assert_int_equal(run_within(needed, &peak), GPUNN_OK);
    assert_int_equal(peak, needed);
    assert_int_equal(run_within(needed - 1, &peak), GPUNN_ERR_MEMORY);
    assert_true(peak < needed);
}

/* ---- closing ---- */
typedef struct warnings {
    test_memory memory;
    int         count;
    char        last[256];
} warnings;

static void *warned_realloc(void *user, void *ptr, size_t old_size, size_t new_size)
{
    return hook_realloc(&((warnings *)user)->memory, ptr, old_size, new_size);
}

static void count_warnings(void *user, gpunn_log_level level, const char *message)
{
    warnings *w = user;
    w->count += level == GPUNN_LOG_WARNING;
    if (level == GPUNN_LOG_WARNING) (void)snprintf(w->last, sizeof w->last, "%s", message);
}

/* A device, a model, its optimizer and its loader, closed in every order. */
static void closing_orders(void **state)
{
    fixture *f = *state;
    for (int order = 0; order < 256; order++) {
        const int turn[4] = {order & 3, order >> 2 & 3, order >> 4 & 3, order >> 6};
        int       all = 0;
        for (int i = 0; i < 4; i++) all |= 1 << turn[i];
        if (all != 15) continue;
        warnings w;
        memset(&w, 0, sizeof w);
        test_memory_init(&w.memory);
        gpunn_device *dev = gpunn_device_open(ON(f->backend), .threads = 1, .realloc_fn = warned_realloc,
                                              .log_fn = count_warnings, .user = &w);
        assert_non_null(dev);
        gpunn_model     *model = gpunn_model_create(dev);
        net              n = net_make(model);
        gpunn_optimizer *opt = MADE(dev, gpunn_adam(model));
        float           *x;
        int64_t         *t;
        net_data(8, 1, &x, &t);
        gpunn_loader *loader = MADE(
            dev,
            gpunn_loader_create(model, .fields = {{.input = n.x, .samples = x}, {.input = n.t, .samples = t}},
                                .count = 8, .batch_size = 4, .workers = 1));
        assert_true(gpunn_next(loader));
        OK(dev, gpunn_train_step(opt, n.loss));
        w.count = 0;
        bool gone[4] = {false, false, false, false};
        int  expected = 0;
        for (int i = 0; i < 4; i++) {
            const int which = turn[i];
            gone[which] = true;
            expected += which == 0 ? !gone[1] || !gone[2] || !gone[3] : which == 1 ? !gone[2] || !gone[3] : 0;
            if (which == 0) gpunn_device_close(dev);
            if (which == 1) gpunn_model_destroy(model);
            if (which == 2) gpunn_optimizer_destroy(opt);
            if (which == 3) gpunn_loader_destroy(loader);
            if (!gone[2] && !gone[3]) { /* what is left still works */
                (void)gpunn_next(loader);
                assert_int_equal(gpunn_train_step(opt, n.loss), GPUNN_OK);
            }
        }
        if (w.count != expected)
            fail_msg("order %d: %d warnings for %d, the last: %s", order, w.count, expected, w.last);
        free(x), free(t);
        test_memory_check(&w.memory);
    }
}

/* A closed device goes with the model that leaves it. */
static void moved_from_closed(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = gpunn_device_open(ON(f->backend), .threads = 1, .realloc_fn = hook_realloc,
                                          .user = &f->memory);
    gpunn_model  *model = gpunn_model_create(dev);
    (void)net_make(model);
    gpunn_device_close(dev);
    OK(f->dev, gpunn_model_to(model, f->dev));
    gpunn_model_destroy(model);
}

/* ---- forks: the child of a process that computes goes on, or only closes ---- */
enum { FORK_WIDTH = 256, FORK_BATCH = 64, FORK_BATCHES = 4, FORK_SAMPLES = FORK_BATCH * FORK_BATCHES };
typedef struct forked {
    test_memory      memory;
    gpunn_device    *dev;
    gpunn_model     *model;
    gpunn_tensor    *loss;
    gpunn_optimizer *opt;
    gpunn_loader    *loader;
    int              losses;
    float            loss_of[FORK_BATCHES];
} forked;

static void forked_open(forked *t, const test_backend *backend, const float *samples)
{
    memset(t, 0, sizeof *t);
    test_memory_init(&t->memory);
    t->dev = gpunn_device_open(ON(backend), .threads = 3, .seed = 1, .realloc_fn = hook_realloc,
                               .user = &t->memory);
    assert_non_null(t->dev);
    t->model = gpunn_model_create(t->dev);
    gpunn_tensor *x = gpunn_input(t->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, FORK_WIDTH));
    t->loss = MADE(t->dev, gpunn_mean(gpunn_square(gpunn_linear(x, "fc", .out_features = FORK_WIDTH)),
                                      GPUNN_ALL, false));
    t->opt = MADE(t->dev, gpunn_adam(t->model));
    t->loader = MADE(t->dev, gpunn_loader_create(t->model, .fields = {{.input = x, .samples = samples}},
                                                 .count = FORK_SAMPLES, .batch_size = FORK_BATCH,
                                                 .shuffle = true, .workers = 2));
}

/* So many of the epoch's batches, or those that are left. */
static gpunn_status forked_train(forked *t, int most)
{
    gpunn_status status = GPUNN_OK;
    for (t->losses = 0; t->losses < most && status == GPUNN_OK && gpunn_next(t->loader); t->losses++) {
        status = gpunn_train_step(t->opt, t->loss);
        t->loss_of[t->losses] = gpunn_item(t->loss);
    }
    return status == GPUNN_OK ? gpunn_last_status(t->dev) : status;
}

static bool forked_close(forked *t)
{
    gpunn_loader_destroy(t->loader);
    gpunn_optimizer_destroy(t->opt);
    gpunn_model_destroy(t->model);
    gpunn_device_close(t->dev);
    return t->memory.fault == NULL && t->memory.blocks == 0;
}

/* A GPU's child learns why it cannot compute. */
static bool forked_refuses(forked *t)
{
    float loss;
    bool  refuses = forked_train(t, FORK_BATCHES) == GPUNN_ERR_DEVICE &&
                   strstr(gpunn_error(t->dev), "forked") != NULL;
    gpunn_clear_error(t->dev);
    refuses = refuses && gpunn_train_step(t->opt, t->loss) == GPUNN_ERR_DEVICE;
    gpunn_clear_error(t->dev);
    refuses = refuses && gpunn_read(t->loss, &loss, sizeof loss) == GPUNN_ERR_DEVICE;
    gpunn_empty_cache(t->dev);
    return refuses && gpunn_memory_reserved(t->dev) < SIZE_MAX;
}

/* Its exit status: what went wrong; the losses go to the pipe. A child that hangs ends by SIGALRM. */
static int forked_child(forked *t, bool computes, int pipe)
{
    (void)alarm(120);
    if (computes && gpunn_device_type(t->dev) == GPUNN_DEVICE_CUDA && !forked_refuses(t)) return 1;
    if (computes && gpunn_device_type(t->dev) == GPUNN_DEVICE_CPU &&
        forked_train(t, FORK_BATCHES) != GPUNN_OK)
        return 2;
    if (write(pipe, t->loss_of, sizeof t->loss_of) != (ssize_t)sizeof t->loss_of) return 3;
    return forked_close(t) ? 0 : 4;
}

static void test_fork(void **state)
{
    fixture *f = *state;
    float   *samples = malloc(FORK_SAMPLES * FORK_WIDTH * sizeof *samples);
    for (int i = 0; i < FORK_SAMPLES * FORK_WIDTH; i++) samples[i] = sinf((float)i);
    for (int computes = 0; computes < 2; computes++) {
        forked t;
        float  theirs[FORK_BATCHES];
        int    ends[2], ended = -1;
        forked_open(&t, f->backend, samples);
        OK(t.dev, forked_train(&t, FORK_BATCHES + 1)); /* CUDA captures the run */
        OK(t.dev, forked_train(&t, 1));
        assert_int_equal(pipe(ends), 0);
        (void)fflush(NULL);
        const pid_t child = fork();
        if (child == 0) _exit(forked_child(&t, computes, ends[1]));
        assert_int_equal(waitpid(child, &ended, 0), child);
        assert_int_equal(ended, 0);
        assert_int_equal(read(ends[0], theirs, sizeof theirs), sizeof theirs);
        OK(t.dev, forked_train(&t, FORK_BATCHES));
        assert_int_equal(t.losses, FORK_BATCHES - 1);
        if (computes && f->backend->type == GPUNN_DEVICE_CPU)
            assert_memory_equal(theirs, t.loss_of, (FORK_BATCHES - 1) * sizeof *theirs);
        assert_true(forked_close(&t));
        (void)close(ends[0]), (void)close(ends[1]);
    }
    free(samples);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names),
                                       test_with_device(test_open),
                                       cmocka_unit_test(test_open_cuda),
                                       cmocka_unit_test(test_report),
                                       cmocka_unit_test(test_why_cpu),
                                       cmocka_unit_test(test_local_index),
                                       cmocka_unit_test(test_errors_per_thread),
                                       cmocka_unit_test(test_first_error_wins),
                                       cmocka_unit_test(test_null_chain),
                                       test_with_device(test_null),
                                       test_with_device(test_sentences),
                                       test_with_device(test_init),
                                       cmocka_unit_test(test_init_of_threads),
                                       cmocka_unit_test(test_reproducible),
                                       cmocka_unit_test(test_threads_large),
                                       cmocka_unit_test(test_teams),
                                       cmocka_unit_test(test_interleaved),
                                       cmocka_unit_test(test_memory_limit),
                                       cmocka_unit_test(test_whole_limit),
                                       test_with_device(closing_orders),
                                       test_with_device(moved_from_closed),
                                       test_with_device(test_fork)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
