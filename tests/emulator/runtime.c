/* gpunn_cuda.cu on the emulated GPU: the CPU's numbers in every order of threads, blocks and streams; graphs
 * that take fresh rates and masks; every call of the runtime failing in its turn; several devices; models
 * that move. Linked with the emulator as gpunn_cuda_backend too, for GPUNN_DEVICE_AUTO. */
#include "../test.h"

#include "emulator.h"

/* cudaError_t */
enum {
    NO_MEMORY = 2,
    NO_DRIVER = 35,
    BUSY = 46,
    NO_IMAGE = 209,
    CONTAINED = 226,
    LAUNCH_FAILED = 719,
    TENSOR_MEMORY_LEAK = 721,
    NOT_IN_CAPTURE = 900,
};

static int   log_count;
static char  log_text[1024];
static void *test_user; /* of hook_realloc: the test's memory */
static void  count_log(void *user, gpunn_log_level level, const char *message)
{
    (void)user;
    log_count += level != GPUNN_LOG_ERROR;
    if (level != GPUNN_LOG_ERROR) (void)snprintf(log_text, sizeof log_text, "%s", message);
}

static gpunn_device *open_on(gpunn_device_type type, int index)
{
    return gpunn_device_open(.type = type, .index = index, .seed = 7, .threads = 1,
                             .realloc_fn = hook_realloc, .user = test_user, .log_fn = count_log);
}

/* ---- ten steps of the small network that has everything, with a schedule, clipping, and batches of two
 * sizes -- */
enum { STEPS = 10 };
typedef struct training {
    gpunn_device    *dev;
    gpunn_model     *model;
    gpunn_optimizer *opt;
    net              n;
    float            loss[STEPS];
    int              step;
} training;

static void training_open(training *t, gpunn_device *dev, gpunn_precision precision)
{
    memset(t, 0, sizeof *t);
    t->dev = dev;
    t->model = MADE(dev, gpunn_model_create(dev, .precision = precision));
    t->n = net_make(t->model);
    /* Adam would amplify rounding */
    t->opt = MADE(dev, gpunn_sgd(t->model, .lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f));
    OK(dev, gpunn_set_schedule(t->opt, .type = GPUNN_SCHEDULE_COSINE, .total_steps = STEPS));
    gpunn_set_clip_norm(t->opt, 1.5f);
}
static void training_run(training *t, int steps)
{
    for (; steps > 0; steps--, t->step++) {
        net_write(t->dev, t->n, t->step % 3 == 2 ? 5 : 8, (uint32_t)t->step);
        OK(t->dev, gpunn_train_step(t->opt, t->n.loss));
        t->loss[t->step] = gpunn_item(t->n.loss);
        OK(t->dev, gpunn_schedule_step(t->opt, t->loss[t->step]));
    }
}
static void training_close(training *t)
{
    gpunn_optimizer_destroy(t->opt);
    gpunn_model_destroy(t->model);
    gpunn_device_close(t->dev);
}
/* The losses, then the weights; allocated. */
static float *training_result(training *t, int64_t *count)
{
    float *weights = read_weights(t->dev, t->model, count),
          *all = malloc((STEPS + (size_t)*count) * sizeof *all);
    memcpy(all, t->loss, sizeof t->loss);
    memcpy(all + STEPS, weights, (size_t)*count * sizeof *all);
    free(weights);
    *count += STEPS;
    return all;
}
static float *train_on(gpunn_device_type type, int index, gpunn_precision precision, int64_t *count)
{
    training t;
    training_open(&t, MADE(NULL, open_on(type, index)), precision);
    training_run(&t, STEPS);
    float *result = training_result(&t, count);
    training_close(&t);
    return result;
}

static int setup(void **state)
{
    test_memory *memory = malloc(sizeof *memory);
    test_memory_init(memory);
    *state = test_user = memory;
    log_count = 0;
    log_text[0] = 0;
    gpunn_clear_error(NULL);
    return 0;
}
static int teardown(void **state)
{
    emulator_fail(0, 0);
    emulator_set("EMULATOR_ORDER", "random");
    emulator_set("EMULATOR_STREAMS", "late");
    emulator_set("EMULATOR_CUDNN", "1");
    emulator_set("EMULATOR_VERSION", "92400");
    emulator_set("EMULATOR_DEVICES", "1");
    emulator_set("EMULATOR_MEMORY", "1073741824");
    emulator_set("EMULATOR_NAN", "0");
    emulator_set("EMULATOR_CAPABILITY", "90");
    emulator_set("EMULATOR_EPILOGUE", "1");
    emulator_set("EMULATOR_ALIGNMENT", "1");
    emulator_set("EMULATOR_DRIVER", "13000");
    test_memory_check(*state);
    free(*state);
    if (emulator_held() != 0) fail_msg("%ld objects of the runtime are left", emulator_held());
    emulator_forget_faults();
    return 0;
}

static void test_cpu_numbers(void **state)
{
    (void)state;
    int64_t n, m;
    float  *cpu = train_on(GPUNN_DEVICE_CPU, 0, GPUNN_PRECISION_F32, &n);
    for (int cudnn = 0; cudnn < 2; cudnn++) {
        emulator_set("EMULATOR_CUDNN", cudnn ? "1" : "0");
        long   replayed = emulator_graph_launches();
        float *gpu = train_on(GPUNN_DEVICE_CUDA, 0, GPUNN_PRECISION_F32, &m);
        assert_int_equal(n, m);
        check_close(gpu, cpu, STEPS, 1e-4, 1e-5);
        check_close(gpu + STEPS, cpu + STEPS, n - STEPS, 1e-3, 1e-4);
        /* all but the first two of each batch size */
        assert_true(emulator_graph_launches() - replayed >= STEPS - 4);
        free(gpu);
    }
    assert_int_equal(log_count, 0);
    free(cpu);
}

/* Whatever runs when: the same bits. */
static void test_orders(void **state)
{
    (void)state;
    static const char *const orders[] = {"random", "ascending", "descending", "random"}, *const streams[] = {
                                                                                             "late", "eager",
                                                                                             "random"};
    int64_t n, m;
    float  *first = train_on(GPUNN_DEVICE_CUDA, 0, GPUNN_PRECISION_F32, &n);
    for (int i = 0; i < COUNT(orders) + COUNT(streams) - 1; i++) {
        emulator_set("EMULATOR_ORDER", i < COUNT(orders) ? orders[i] : "random");
        emulator_set("EMULATOR_STREAMS", i < COUNT(orders) ? "late" : streams[i - COUNT(orders) + 1]);
        float *again = train_on(GPUNN_DEVICE_CUDA, 0, GPUNN_PRECISION_F32, &m);
        assert_int_equal(n, m);
        assert_memory_equal(first, again, (size_t)n * sizeof *first);
        free(again);
    }
    free(first);
}

static void test_precisions(void **state)
{
    (void)state;
    static const double tolerance[] = {1e-4, 2e-3, 2e-2, 5e-3}; /* of the losses, by gpunn_precision */
    int64_t             n, m;
    float              *cpu = train_on(GPUNN_DEVICE_CPU, 0, GPUNN_PRECISION_F32, &n);
    for (int cudnn = 0; cudnn < 2; cudnn++)
        for (int precision = 1; precision < COUNT(tolerance); precision++) {
            emulator_set("EMULATOR_CUDNN", cudnn ? "1" : "0");
            float *gpu = train_on(GPUNN_DEVICE_CUDA, 0, (gpunn_precision)precision, &m);
            assert_int_equal(n, m);
            check_close(gpu, cpu, STEPS, tolerance[precision], tolerance[precision]);
            assert_memory_not_equal(gpu, cpu, STEPS * sizeof *gpu); /* it does round */
            free(gpu);
        }
    free(cpu);
}

/* A GPU without products in BF16 says so when a model comes to it, and computes F32. */
static void test_without_bf16(void **state)
{
    (void)state;
    static const struct {
        const char     *capability;
        gpunn_precision precision;
        bool            told;
    } cases[] = {{"75", GPUNN_PRECISION_BF16, true},
                 {"75", GPUNN_PRECISION_F16, false},
                 {"75", GPUNN_PRECISION_TF32, false},
                 {"80", GPUNN_PRECISION_BF16, false}};
    int64_t n, m;
    for (int i = 0; i < COUNT(cases); i++) {
        emulator_set("EMULATOR_CAPABILITY", cases[i].capability);
        float *exact = train_on(GPUNN_DEVICE_CUDA, 0, GPUNN_PRECISION_F32, &n);
        log_count = 0;
        float *result = train_on(GPUNN_DEVICE_CUDA, 0, cases[i].precision, &m);
        assert_int_equal(n, m);
        assert_int_equal(memcmp(result, exact, (size_t)n * sizeof *exact) == 0, cases[i].told);
        assert_int_equal(log_count, cases[i].told);
        gpunn_device *cpu = MADE(NULL, open_on(GPUNN_DEVICE_CPU, 0)),
                     *gpu = MADE(NULL, open_on(GPUNN_DEVICE_CUDA, 0));
        gpunn_model *model = MADE(cpu, gpunn_model_create(cpu, .precision = cases[i].precision));
        assert_int_equal(log_count, cases[i].told); /* the CPU computes all in F32, and is known to */
        OK(gpu, gpunn_model_to(model, gpu));
        assert_int_equal(log_count, 2 * cases[i].told);
        if (cases[i].told)
            assert_true(strstr(log_text, "7.5") && strstr(log_text, "BF16") && strstr(log_text, "in F32"));
        gpunn_model_destroy(model);
        gpunn_device_close(cpu);
        gpunn_device_close(gpu);
        free(exact), free(result);
    }
}

/* ---- dropout: the same elements on both, in plain and replayed steps ---- */
static void dropout_on(gpunn_device_type type, int64_t n, float p, float *values)
{
    gpunn_device *dev = MADE(NULL, open_on(type, 0));
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *x = MADE(
        dev, gpunn_parameter(model, "x", GPUNN_SHAPE(n), ((gpunn_init){GPUNN_INIT_CONSTANT, 1, 0})));
    gpunn_tensor    *a = gpunn_keep(gpunn_dropout(x, p)), *b = gpunn_keep(gpunn_dropout(x, p));
    gpunn_tensor    *loss = MADE(dev, gpunn_sum(gpunn_add(a, b), GPUNN_ALL, false));
    gpunn_optimizer *opt = MADE(dev, gpunn_sgd(model, .lr = GPUNN_ZERO));
    for (int step = 0; step < 4; step++, values += 3 * n) {
        OK(dev, gpunn_train_step(opt, loss));
        OK(dev, gpunn_read(a, values, (size_t)n * sizeof *values));
        OK(dev, gpunn_read(b, values + n, (size_t)n * sizeof *values));
        OK(dev, gpunn_read_grad(x, values + 2 * n, (size_t)n * sizeof *values));
    }
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}
static void test_dropout_masks(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 3, 8, 257, 10007};
    static const float   ps[] = {0.1f, 0.5f, 0.9f};
    for (int i = 0; i < COUNT(sizes); i++)
        for (int k = 0; k < COUNT(ps); k++) {
            size_t bytes = (size_t)sizes[i] * 12 * sizeof(float);
            float *cpu = malloc(bytes), *gpu = malloc(bytes);
            dropout_on(GPUNN_DEVICE_CPU, sizes[i], ps[k], cpu);
            dropout_on(GPUNN_DEVICE_CUDA, sizes[i], ps[k], gpu);
            assert_memory_equal(cpu, gpu, bytes);
            free(cpu), free(gpu);
        }
}

/* ---- failures ---- */
/* Opens, trains (plain, captured, replayed), evaluates, saves weights' bits, empties the cache and runs
 * again: the first status that is not OK, else the last loss in *loss. */
static gpunn_status program(float *loss)
{
    gpunn_device *dev = open_on(GPUNN_DEVICE_CUDA, 0);
    if (dev == NULL) {
        gpunn_status why = gpunn_last_status(NULL);
        gpunn_clear_error(NULL);
        return why;
    }
    gpunn_model     *model = gpunn_model_create(dev);
    gpunn_optimizer *opt = NULL;
    float           *x;
    int64_t         *t;
    net_data(3, 1, &x, &t);
    net n = net_make(model);
    if (n.accuracy == NULL || (opt = gpunn_adam(model, .lr = 0.01f)) == NULL) goto end;
    for (int i = 0; i < 4; i++) {
        if (gpunn_write(n.x, x, 3 * NET_X * sizeof *x) != GPUNN_OK ||
            gpunn_write(n.t, t, 3 * sizeof *t) != GPUNN_OK)
            goto end;
        if (gpunn_train_step(opt, n.loss) != GPUNN_OK) goto end;
    }
    if (gpunn_forward(&n.logits, 1) != GPUNN_OK) goto end;
    gpunn_empty_cache(dev);
    if (gpunn_forward(&n.loss, 1) != GPUNN_OK) goto end;
    *loss = gpunn_item(n.loss);
    (void)gpunn_synchronize(dev);
end:;
    gpunn_status status = gpunn_last_status(dev);
    const char  *text = gpunn_error(dev);
    bool         told = status == GPUNN_OK || strlen(text) > 20;
    free(x), free(t);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    assert_true(told);
    return status;
}

/* Call after call fails with `error`. What the program survives (a fall back, a second try) must have its
 * result. Returns how many it survived. */
static int every_call(test_memory *memory, int error, bool only_memory)
{
    float expected, loss = 0;
    long  before = emulator_calls();
    assert_int_equal(program(&expected), GPUNN_OK);
    long calls = emulator_calls() - before;
    int  survived = 0;
    assert_true(calls > 100);
    for (long n = 1; n <= calls; n++) {
        log_count = 0;
        emulator_fail(n, error);
        gpunn_status status = program(&loss);
        emulator_fail(0, 0);
        if (status == GPUNN_OK) {
            survived++;
            if (memcmp(&loss, &expected, sizeof loss) != 0)
                fail_msg("call %ld, %s, failed unseen: loss %g, expected %g", n, emulator_failed_call(), loss,
                         expected);
        } else if (only_memory ? status != GPUNN_ERR_MEMORY && status != GPUNN_ERR_DEVICE
                               : status != GPUNN_ERR_DEVICE)
            fail_msg("call %ld, %s, failed: %s", n, emulator_failed_call(), gpunn_status_name(status));
        if (log_count > 1)
            fail_msg("call %ld, %s, failed: %d lines in the log, \"%s\"", n, emulator_failed_call(),
                     log_count, log_text);
        if (emulator_held() != 0 || memory->blocks != 0 || memory->fault)
            fail_msg("call %ld, %s, failed: %ld objects and %ld blocks are left, %s", n,
                     emulator_failed_call(), emulator_held(), memory->blocks,
                     memory->fault ? memory->fault : "");
        emulator_forget_faults();
    }
    print_message("# %ld calls failed one by one, %d of them without harm\n", calls, survived);
    return survived;
}
static void test_device_faults(void **state)
{
    (void)every_call(*state, LAUNCH_FAILED, false);
}
static void test_out_of_memory(void **state)
{
    (void)every_call(*state, NO_MEMORY, true);
}
/* What a capture forbids: the program goes on, launch by launch; where kernels overlap, that is tried without
 * first. */
static void test_capture_fails(void **state)
{
    static const struct {
        const char *capability, *driver;
        int         apart; /* calls that fail lie so many apart */
        bool        overlaps;
    } cases[] = {{"80", "13000", 1, false}, {"90", "12030", 4, true}, {"90", "12020", 4, false}};
    for (int i = 0; i < COUNT(cases); i++) {
        float expected = 0, loss = 0;
        int   fell_back = 0;
        emulator_set("EMULATOR_CAPABILITY", cases[i].capability);
        emulator_set("EMULATOR_DRIVER", cases[i].driver);
        assert_int_equal(program(&expected), GPUNN_OK);
        long before = emulator_calls();
        assert_int_equal(program(&expected), GPUNN_OK);
        long calls = emulator_calls() - before;
        for (long n = 1; n <= calls; n += cases[i].apart) {
            log_count = 0;
            emulator_fail(n, NOT_IN_CAPTURE);
            gpunn_status status = program(&loss);
            emulator_fail(0, 0);
            if (status == GPUNN_OK) assert_memory_equal(&loss, &expected, sizeof loss);
            if (log_count == 1 && status == GPUNN_OK) {
                fell_back++;
                assert_non_null(strstr(log_text, "captured"));
            }
            assert_in_range(log_count, 0, 1);
            assert_int_equal(((test_memory *)*state)->blocks, 0);
            emulator_forget_faults();
        }
        /* the capture's begin, each launch in it, its end */
        assert_true(cases[i].overlaps ? fell_back == 0 : fell_back > 16 / cases[i].apart);
    }
}

static void check_sticky(int fault, const char *name)
{
    training t;
    training_open(&t, MADE(NULL, open_on(GPUNN_DEVICE_CUDA, 0)), GPUNN_PRECISION_F32);
    training_run(&t, 3);
    net_write(t.dev, t.n, 8, 1);
    emulator_fail(2, fault);
    gpunn_status status = settled(t.dev, gpunn_train_step(t.opt, t.n.loss));
    assert_int_equal(status, GPUNN_ERR_DEVICE);
    char first[512];
    (void)snprintf(first, sizeof first, "%s", gpunn_error(t.dev));
    assert_non_null(strstr(first, name));
    assert_non_null(strstr(first, "is no longer usable"));
    for (int i = 0; i < 2; i++) {
        gpunn_clear_error(t.dev);
        assert_int_equal(settled(t.dev, gpunn_train_step(t.opt, t.n.loss)), GPUNN_ERR_DEVICE);
        assert_non_null(strstr(gpunn_error(t.dev), name));
        gpunn_clear_error(t.dev);
        assert_int_equal(gpunn_read(gpunn_parameter_at(t.model, 0), first,
                                    gpunn_tensor_bytes(gpunn_parameter_at(t.model, 0))),
                         GPUNN_ERR_DEVICE);
    }
    training_close(&t);
    emulator_forget_faults();
}

/* A fault stays until the device is closed. */
static void test_sticky(void **state)
{
    (void)state;
    check_sticky(LAUNCH_FAILED, "cudaErrorLaunchFailure");
    check_sticky(CONTAINED, "cudaErrorContained");
    check_sticky(TENSOR_MEMORY_LEAK, "cudaErrorTensorMemoryLeak");
    int64_t n; /* and another one works */
    free(train_on(GPUNN_DEVICE_CUDA, 0, GPUNN_PRECISION_F32, &n));
}

/* The fourth training step, whose n-th launch goes astray: the sentence; false: there is no such launch. */
static bool astray(long n, char sentence[512])
{
    training t;
    training_open(&t, MADE(NULL, open_on(GPUNN_DEVICE_CUDA, 0)), GPUNN_PRECISION_F32);
    training_run(&t, 3);
    net_write(t.dev, t.n, 8, 1);
    OK(t.dev, gpunn_synchronize(t.dev));
    emulator_stray(n);
    const gpunn_status status = settled(t.dev, gpunn_train_step(t.opt, t.n.loss));
    const bool         faulty = emulator_faults() > 0;
    emulator_stray(0);
    assert_int_equal(status, faulty ? GPUNN_ERR_DEVICE : GPUNN_OK);
    (void)snprintf(sentence, 512, "%s", gpunn_error(t.dev));
    training_close(&t);
    emulator_forget_faults();
    return faulty;
}

/* GPUNN_PLAIN: the same numbers without graphs, and whichever launch goes astray, the sentence names op and
 * layer. */
static void test_plain(void **state)
{
    (void)state;
    static const char *const known[] = {"conv2d 'conv1': its forward", "batch_norm 'bn2': its backward",
                                        "linear 'fc1': its backward",  "max_pool2d: its forward",
                                        "cross_entropy: its forward",  ": the optimizer's kernels: cuda"};
    int64_t                  total, again;
    bool                     seen[COUNT(known)] = {false};
    char                     sentence[512];
    float                   *expected = train_on(GPUNN_DEVICE_CUDA, 0, GPUNN_PRECISION_F32, &total);
    for (int plain = 0; plain < 2; plain++) {
        (void)setenv("GPUNN_PLAIN", plain ? "1" : "0", 1);
        const long replayed = emulator_graph_launches();
        log_count = 0;
        float *result = train_on(GPUNN_DEVICE_CUDA, 0, GPUNN_PRECISION_F32, &again);
        assert_int_equal(again, total);
        assert_memory_equal(result, expected, (size_t)total * sizeof *result);
        assert_int_equal(emulator_graph_launches() > replayed, !plain);
        assert_int_equal(log_count, plain); /* it says that it is slow */
        free(result);
        long n = 0;
        while (astray(++n, sentence)) {
            assert_non_null(strstr(sentence, "cudaErrorLaunchFailure"));
            assert_int_equal(strstr(sentence, "GPUNN_PLAIN") == NULL, plain); /* the remedy */
            for (int k = 0; k < COUNT(known); k++) seen[k] = seen[k] || strstr(sentence, known[k]);
            const bool named = strstr(sentence, ": its ") || strstr(sentence, "optimizer's") ||
                               strstr(sentence, "before this");
            if (named != plain) fail_msg("launch %ld: %s", n, sentence);
        }
        assert_true(n > 15);
    }
    for (int k = 0; k < COUNT(known); k++)
        if (!seen[k]) fail_msg("no sentence says \"%s\"", known[k]);
    (void)unsetenv("GPUNN_PLAIN");
    free(expected);
}

/* Nor does a launch that fails at once hide where. */
static void test_plain_launch(void **state)
{
    (void)state;
    (void)setenv("GPUNN_PLAIN", "1", 1);
    int named = 0;
    for (long n = 1;; n++) {
        training t;
        training_open(&t, MADE(NULL, open_on(GPUNN_DEVICE_CUDA, 0)), GPUNN_PRECISION_F32);
        training_run(&t, 3);
        net_write(t.dev, t.n, 8, 1);
        const long before = emulator_calls();
        emulator_fail(n, LAUNCH_FAILED);
        const gpunn_status status = gpunn_train_step(t.opt, t.n.loss);
        const bool         failed = emulator_calls() - before >= n;
        emulator_fail(0, 0);
        assert_int_equal(status, failed ? GPUNN_ERR_DEVICE : GPUNN_OK);
        named += strstr(gpunn_error(t.dev), "linear 'fc") != NULL;
        training_close(&t);
        emulator_forget_faults();
        if (!failed) break;
    }
    assert_true(named >= 8); /* two layers, forward and backward, at their launches and waits */
    (void)unsetenv("GPUNN_PLAIN");
}

static void test_memory_ends(void **state)
{
    (void)state;
    emulator_set("EMULATOR_MEMORY", "1500000");
    gpunn_device *dev = MADE(NULL, open_on(GPUNN_DEVICE_CUDA, 0));
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    net           n = net_make(model);
    float        *x = test_randoms(2000 * NET_X, 1, 1);
    OK(dev, write_floats(n.x, x, 2000 * NET_X));
    FAILS(dev, gpunn_forward(&n.logits, 1), GPUNN_ERR_MEMORY, "memory", "smaller");
    OK(dev, write_floats(n.x, x, 20 * NET_X));
    OK(dev, gpunn_forward(&n.logits, 1));
    free(x);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

/* ---- opening ---- */
static void test_open_failures(void **state)
{
    (void)state;
    static const struct {
        int         error;
        const char *says;
    } cases[] = {{NO_DRIVER, "driver"},
                 {BUSY, "busy"},
                 {NO_IMAGE, "-arch"},
                 {NO_MEMORY, "memory"},
                 {LAUNCH_FAILED, "cudaErrorLaunchFailure"}};
    long before = emulator_calls();
    gpunn_device_close(MADE(NULL, open_on(GPUNN_DEVICE_AUTO, 0)));
    long calls = emulator_calls() - before;
    for (int c = 0; c < COUNT(cases); c++) {
        bool said = false;
        for (long n = 1; n <= calls; n++) {
            emulator_fail(n, cases[c].error);
            gpunn_device *dev = open_on(GPUNN_DEVICE_CUDA, 0);
            emulator_fail(0, 0);
            if (dev == NULL) {
                said = said || strstr(gpunn_error(NULL), cases[c].says) != NULL;
                assert_true(strlen(gpunn_error(NULL)) > 30);
            }
            gpunn_clear_error(NULL);
            gpunn_device_close(dev);
            emulator_forget_faults();
            log_count = 0;
            emulator_fail(n, cases[c].error);
            gpunn_device *any = MADE(NULL, open_on(GPUNN_DEVICE_AUTO, 0)); /* there is always the CPU */
            emulator_fail(0, 0);
            if (gpunn_device_type(any) == GPUNN_DEVICE_CPU) assert_int_equal(log_count, 1);
            gpunn_device_close(any);
            emulator_forget_faults();
        }
        if (!said) fail_msg("nothing says \"%s\"", cases[c].says);
    }
    emulator_set("EMULATOR_DEVICES", "0");
    assert_int_equal(gpunn_cuda_device_count(), 0);
    log_count = 0;
    gpunn_device *cpu = MADE(NULL, open_on(GPUNN_DEVICE_AUTO, 0));
    assert_int_equal(gpunn_device_type(cpu), GPUNN_DEVICE_CPU);
    assert_int_equal(log_count, 1);
    gpunn_device_close(cpu);
    assert_null(open_on(GPUNN_DEVICE_CUDA, 0));
    check_sentence(NULL, GPUNN_ERR_DEVICE, __FILE__, __LINE__, "GPU", (const char *)NULL);
    emulator_set("EMULATOR_DEVICES", "2");
    assert_int_equal(gpunn_cuda_device_count(), 2);
    assert_null(open_on(GPUNN_DEVICE_CUDA, 2));
    check_sentence(NULL, GPUNN_ERR_DEVICE, __FILE__, __LINE__, "index", "2 GPUs", (const char *)NULL);
}

static void append_report(void *user, const char *text)
{
    (void)strncat(user, text, 2000);
}
static void test_report(void **state)
{
    (void)state;
    char text[8192] = "";
    gpunn_device_report(append_report, text);
    assert_non_null(strstr(text, "emulated GPU 0"));
    emulator_set("EMULATOR_DEVICES", "0");
    text[0] = 0;
    gpunn_device_report(append_report, text);
    assert_non_null(strstr(text, "none"));
}

/* ---- several ---- */
typedef struct worker {
    pthread_t thread;
    int       index;
    float    *result;
    int64_t   count;
} worker;
static void *work(void *arg)
{
    worker *w = arg;
    w->result = train_on(GPUNN_DEVICE_CUDA, w->index, GPUNN_PRECISION_F32, &w->count);
    return NULL;
}
static void test_threads(void **state)
{
    (void)state;
    int64_t n;
    float  *alone = train_on(GPUNN_DEVICE_CUDA, 0, GPUNN_PRECISION_F32, &n);
    worker  workers[3];
    emulator_set("EMULATOR_DEVICES", "2");
    for (int i = 0; i < COUNT(workers); i++) { /* two on one GPU */
        workers[i].index = i % 2;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < COUNT(workers); i++) {
        (void)pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].count, n);
        assert_memory_equal(workers[i].result, alone, (size_t)n * sizeof *alone);
        free(workers[i].result);
    }
    free(alone);
}

static void *destroy_loader(void *loader)
{
    gpunn_loader_destroy(loader);
    return NULL;
}
/* The GPU that the program opens is the only one that gets a context, whichever is current and whichever
 * thread calls. */
static void test_contexts(void **state)
{
    (void)state;
    enum { COUNT_ = 20 };
    static char text[8192];
    float      *x;
    int64_t    *t;
    size_t      now, peak;
    pthread_t   thread;
    training    r;
    net_data(COUNT_, 3, &x, &t);
    emulator_set("EMULATOR_DEVICES", "3");
    emulator_forget_contexts();
    gpunn_device_report(append_report, text);
    for (int i = 0; i < 3; i++) assert_false(emulator_context(i));
    training_open(&r, MADE(NULL, open_on(GPUNN_DEVICE_CUDA, 1)), GPUNN_PRECISION_F32);
    gpunn_loader *loader = MADE(
        r.dev, gpunn_loader_create(r.model,
                                   .fields = {{.input = r.n.x, .samples = x}, {.input = r.n.t, .samples = t}},
                                   .count = COUNT_, .batch_size = 8, .shuffle = true, .workers = 2));
    training_run(&r, STEPS);
    now = gpunn_memory_reserved(r.dev), peak = gpunn_memory_reserved_peak(r.dev);
    assert_true(now > 0 && peak >= now);
    gpunn_empty_cache(r.dev);
    assert_int_equal(pthread_create(&thread, NULL, destroy_loader, loader), 0);
    (void)pthread_join(thread, NULL);
    training_close(&r);
    gpunn_device_report(append_report, text);
    for (int i = 0; i < 3; i++) assert_int_equal(emulator_context(i), i == 1);
    free(x), free(t);
}

/* Two models of one device take turns, each as if alone. */
static void test_models(void **state)
{
    (void)state;
    int64_t       n, m;
    float        *alone = train_on(GPUNN_DEVICE_CUDA, 0, GPUNN_PRECISION_F32, &n);
    gpunn_device *dev = MADE(NULL, open_on(GPUNN_DEVICE_CUDA, 0));
    training      t[2];
    for (int i = 0; i < 2; i++) training_open(&t[i], dev, GPUNN_PRECISION_F32);
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < 2; i++) training_run(&t[i], 1);
    for (int i = 0; i < 2; i++) {
        float *result = training_result(&t[i], &m);
        assert_int_equal(n, m);
        assert_memory_equal(result, alone, (size_t)n * sizeof *alone);
        free(result);
        gpunn_optimizer_destroy(t[i].opt);
        gpunn_model_destroy(t[i].model);
    }
    gpunn_device_close(dev);
    free(alone);
}

/* From one to the other and back: the losses go on. */
static void test_move(void **state)
{
    (void)state;
    int64_t n, m;
    float  *cpu = train_on(GPUNN_DEVICE_CPU, 0, GPUNN_PRECISION_F32, &n);
    for (int start = 0; start < 2; start++) {
        gpunn_device *dev[2] = {MADE(NULL, open_on(GPUNN_DEVICE_CPU, 0)),
                                MADE(NULL, open_on(GPUNN_DEVICE_CUDA, 0))};
        training      t;
        training_open(&t, dev[start], GPUNN_PRECISION_F32);
        for (int leg = 0; leg < 5; leg++) {
            if (leg > 0) OK(t.dev, gpunn_model_to(t.model, dev[(start + leg) % 2]));
            t.dev = dev[(start + leg) % 2];
            training_run(&t, STEPS / 5);
        }
        float *result = training_result(&t, &m);
        assert_int_equal(n, m);
        check_close(result, cpu, STEPS, 1e-4, 1e-5);
        free(result);
        gpunn_optimizer_destroy(t.opt);
        gpunn_model_destroy(t.model);
        gpunn_device_close(dev[0]);
        gpunn_device_close(dev[1]);
    }
    free(cpu);
}

/* Batches large enough for the copy stream, from a loader whose memory is used again at once. */
static void test_loader(void **state)
{
    (void)state;
    static const char *const streams[] = {"eager", "late", "random"};
    enum { COUNT_ = 1100, BATCH = 512 };
    float   *x, *first = NULL;
    int64_t *t, n = 0;
    net_data(COUNT_, 3, &x, &t);
    for (int i = 0; i < COUNT(streams); i++) {
        emulator_set("EMULATOR_STREAMS", streams[i]);
        training r;
        training_open(&r, MADE(NULL, open_on(GPUNN_DEVICE_CUDA, 0)), GPUNN_PRECISION_F32);
        gpunn_loader *loader = MADE(
            r.dev, gpunn_loader_create(
                       r.model, .fields = {{.input = r.n.x, .samples = x}, {.input = r.n.t, .samples = t}},
                       .count = COUNT_, .batch_size = BATCH, .shuffle = true, .workers = 2));
        for (int epoch = 0; epoch < 2; epoch++)
            while (gpunn_next(loader)) OK(r.dev, gpunn_train_step(r.opt, r.n.loss));
        float *weights = read_weights(r.dev, r.model, &n);
        if (first) assert_memory_equal(weights, first, (size_t)n * sizeof *first);
        if (first)
            free(weights);
        else
            first = weights;
        gpunn_loader_destroy(loader);
        training_close(&r);
    }
    free(first), free(x), free(t);
}

/* ---- what follows a product's sums ---- */
static long launched(const char *wanted)
{
    const char *name;
    long        count, found = 0;
    for (int i = 0; (count = emulator_launched(i, &name)) > 0; i++)
        found += strcmp(name, wanted) == 0 ? count : 0;
    return found;
}

/* By the library where its kernels do it, or where a benchmark finds that faster; else in passes of our own.
 * A training step has five products, of which gelu, its derivative and two bias gradients may be part, a
 * forward pass two, with gelu and relu. */
static void test_epilogues(void **state)
{
    (void)state;
    static const struct {
        const char *capability, *epilogue;
        bool        benchmark, deterministic;
        int         training, forward; /* products that do more */
    } cases[] = {
        {"75", "1", false, false, 0, 0}, {"80", "1", false, false, 0, 0},  {"89", "1", false, false, 0, 0},
        {"90", "1", false, false, 4, 2}, {"100", "1", false, false, 4, 2}, {"120", "1", false, false, 0, 0},
        {"89", "1", true, false, 4, 2},  {"90", "4", true, false, 0, 0},   {"90", "4", true, true, 4, 2},
    };
    enum { N = 40, X = 200, STEPS_ = 4 };
    float  *values = test_randoms(N * X, 1, 1), *first = NULL, *weights;
    int64_t total;
    for (int i = 0; i < COUNT(cases); i++) {
        emulator_set("EMULATOR_CAPABILITY", cases[i].capability);
        emulator_set("EMULATOR_EPILOGUE", cases[i].epilogue);
        gpunn_device *dev = MADE(NULL, gpunn_device_open(.type = GPUNN_DEVICE_CUDA, .seed = 7,
                                                         .benchmark = cases[i].benchmark,
                                                         .deterministic = cases[i].deterministic,
                                                         .realloc_fn = hook_realloc, .user = test_user));
        gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
        gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, X));
        gpunn_tensor *h = gpunn_gelu_tanh(gpunn_linear(x, "fc1", .out_features = 64));
        gpunn_tensor *y = gpunn_linear(h, "fc2", .out_features = 64);
        gpunn_tensor *loss = MADE(dev, gpunn_mean(gpunn_square(y), GPUNN_ALL, false)),
                     *relu = MADE(dev, gpunn_relu(y));
        gpunn_optimizer *opt = MADE(dev, gpunn_sgd(model, .lr = 0.1f));
        OK(dev, write_floats(x, values, N * X));
        for (int step = 0; step < STEPS_; step++) {
            emulator_forget_launches();
            OK(dev, settled(dev, gpunn_train_step(opt, loss)));
        }
        assert_int_equal(launched("product and more"), cases[i].training);
        assert_int_equal(launched("product and more") + launched("product"), 5);
        for (int run = 0; run < 3; run++) {
            emulator_forget_launches();
            OK(dev, settled(dev, gpunn_forward(&relu, 1)));
        }
        assert_int_equal(launched("product and more"), cases[i].forward);
        assert_int_equal(launched("product and more") + launched("product"), 2);
        weights = read_weights(dev, model, &total);
        if (first)
            check_close(weights, first, total, 1e-4, 1e-6);
        else
            first = weights;
        if (weights != first) free(weights);
        gpunn_optimizer_destroy(opt);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
    }
    free(values), free(first);
}

/* A bias is added to an F32 sum as it is, not by way of 16 bits. */
static void test_wide_bias(void **state)
{
    (void)state;
    enum { N = 6, X = 200, Y = 32 };
    for (int conv = 0; conv < 2; conv++) {
        gpunn_device *dev = MADE(NULL, open_on(GPUNN_DEVICE_CUDA, 0));
        gpunn_model  *model = MADE(dev, gpunn_model_create(dev, .precision = GPUNN_PRECISION_BF16));
        gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, X));
        gpunn_tensor *r = gpunn_input(model, "r", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, Y)), *y;
        if (conv) {
            y = gpunn_conv1d(gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, X, 1)), "layer", .out_channels = Y,
                             .kernel_size = 1);
            y = gpunn_add(y, gpunn_reshape(r, GPUNN_SHAPE(GPUNN_BATCH, Y, 1)));
        } else
            y = gpunn_add(gpunn_linear(x, "layer", .out_features = Y), r);
        MADE(dev, y);
        float *zeros = calloc(N * X, sizeof *zeros), *more = test_randoms(N * Y, 1, 1);
        OK(dev, write_floats(x, zeros, N * X));
        OK(dev, write_floats(r, more, N * Y));
        for (int run = 0; run < 3; run++) {
            emulator_forget_launches();
            OK(dev, settled(dev, gpunn_forward(&y, 1)));
        }
        /* the run's numbers with x in 16 bits, the product */
        if (!conv) assert_int_equal(emulator_launches(), 2);
        int64_t n;
        float *bias = read_floats(dev, gpunn_find(model, "layer.bias"), NULL), *got = read_floats(dev, y, &n);
        assert_int_equal(n, N * Y);
        for (int i = 0; i < n; i++)
            if (!(got[i] == bias[i % Y] + more[i])) fail_msg("%g, not %g + %g", got[i], bias[i % Y], more[i]);
        free(zeros), free(more), free(bias), free(got);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
    }
}

/* ---- NaN ---- */
/* Through relu of a product of the library's, and of one that is small, of a convolution and of a recurrent
 * layer. */
static gpunn_tensor *relu_of(gpunn_tensor *x, int kind)
{
    if (kind == 0) return gpunn_relu(gpunn_linear(x, "layer", .out_features = 40));
    if (kind == 1) return gpunn_relu(gpunn_linear(gpunn_slice(x, 1, 0, 8, 1), "layer", .out_features = 8));
    if (kind == 2) {
        x = gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, 2, 10, 10));
        return gpunn_flatten(gpunn_relu(gpunn_conv2d(x, "layer", .out_channels = 4, .kernel_size = 3)));
    }
    x = gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, 10, 20));
    return gpunn_flatten(gpunn_rnn(x, "layer", .hidden_size = 6, .relu = true, .batch_first = true));
}
/* It reaches the loss from an input and from a weight, whatever the libraries make of it, and then no weight
 * changes. */
static void test_nan(void **state)
{
    (void)state;
    enum { N = 5, X = 200 };
    for (int i = 0; i < 4 * 4 * 8; i++) {
        const int             kind = i / 8 % 4;
        const gpunn_precision precision = (gpunn_precision)(i / 32);
        emulator_set("EMULATOR_NAN", i & 1 ? "1" : "0");
        emulator_set("EMULATOR_CUDNN", i & 2 ? "1" : "0");
        gpunn_device    *dev = MADE(NULL, open_on(GPUNN_DEVICE_CUDA, 0));
        gpunn_model     *model = MADE(dev, gpunn_model_create(dev, .precision = precision));
        gpunn_tensor    *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, X));
        gpunn_tensor    *y = gpunn_linear(relu_of(x, kind), "head", .out_features = 3);
        gpunn_tensor    *loss = MADE(dev, gpunn_mean(gpunn_square(y), GPUNN_ALL, false));
        gpunn_optimizer *opt = MADE(dev, gpunn_sgd(model, .lr = 0.01f));
        float           *values = test_randoms(N * X, 1, 1), *weight, *before, *after;
        int64_t          n, total;
        OK(dev, write_floats(x, values, N * X));
        /* the last one replayed */
        for (int step = 0; step < 3; step++) OK(dev, settled(dev, gpunn_train_step(opt, loss)));
        weight = read_floats(dev, gpunn_parameter_at(model, 0), &n);
        if (i & 4)
            weight[n / 2] = NAN;
        else
            values[2 * X + 3] = NAN;
        OK(dev, write_floats(x, values, N * X));
        OK(dev, write_floats(gpunn_parameter_at(model, 0), weight, n));
        before = read_weights(dev, model, &total);
        gpunn_status status = settled(dev, gpunn_train_step(opt, loss));
        if (status != GPUNN_ERR_NUMERIC)
            fail_msg("kind %d, %d: the step's status is %s", kind, i, gpunn_status_name(status));
        check_sentence(dev, status, __FILE__, __LINE__, "loss is NaN", (const char *)NULL);
        after = read_weights(dev, model, &total);
        assert_memory_equal(before, after, (size_t)total * sizeof *after);
        free(values), free(weight), free(before), free(after);
        gpunn_optimizer_destroy(opt);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
    }
}

/* ---- ways ---- */
/* What is left to cuDNN, a forward and a backward pass of each that it can and may take, and what is said
 * where it does not. */
typedef struct way {
    const char     *name;
    gpunn_precision precision;
    bool            deterministic;
    int             rows; /* of attention; 0: an lstm */
    float           dropout_p;
    size_t          workspace_limit;
    int             runs;
    const char     *last, *said; /* what cuDNN did last; a part of what the log hears */
    const char     *capability;  /* NULL: 90 */
    int             e;           /* head size; 0: 16 */
} way;
static void test_ways(void **state)
{
    (void)state;
    static const char added[] = "attention's gradients, dq by adding", kept[] = "attention's gradients",
                      first[] = "attention";
    static const way ways[] = {
        {"attention", GPUNN_PRECISION_BF16, false, 5, 0, 0, 2, kept, NULL, NULL, 0},
        {"attention, deterministic", GPUNN_PRECISION_BF16, true, 5, 0, 0, 2, kept, NULL, NULL, 0},
        {"attention on capability 10.0", GPUNN_PRECISION_BF16, false, 5, 0, 0, 2, kept, NULL, "100", 0},
        {"attention on capability 10.0, deterministic", GPUNN_PRECISION_BF16, true, 5, 0, 0, 1, first,
         "not deterministic", "100", 0},
        {"attention on capability 12.0, deterministic", GPUNN_PRECISION_BF16, true, 5, 0, 0, 2, kept, NULL,
         "120", 0},
        {"attention, its scores within the limit", GPUNN_PRECISION_BF16, false, 5, 0, 2 * 2 * 5 * 5 * 2 + 64,
         2, kept, NULL, NULL, 0},
        {"attention, its scores beyond the limit", GPUNN_PRECISION_F16, false, 5, 0, 2 * 2 * 5 * 5 * 2, 2,
         added, NULL, NULL, 0},
        {"attention beyond the limit, deterministic", GPUNN_PRECISION_BF16, true, 5, 0, 2 * 2 * 5 * 5 * 2, 1,
         first,
         "scaled_dot_product_attention, backward, uses a slower kernel, and perhaps others do: it needs 264 "
         "bytes of workspace; the plans that need less",
         NULL, 0},
        {"attention, no workspace is enough", GPUNN_PRECISION_BF16, false, 5, 0, 1, 0, NULL,
         "scaled_dot_product_attention uses a slower kernel, and perhaps others do: it needs 64 bytes of "
         "workspace",
         NULL, 0},
        {"attention of heads of size 8", GPUNN_PRECISION_BF16, false, 5, 0, 0, 1, first, "multiples of 16",
         NULL, 8},
        {"attention in F32", GPUNN_PRECISION_F32, false, 5, 0, 0, 0, NULL, NULL, NULL, 0},
        {"attention with dropout", GPUNN_PRECISION_BF16, false, 5, 0.5f, 0, 0, NULL, "dropout_p", NULL, 0},
        {"attention of one row", GPUNN_PRECISION_BF16, false, 1, 0, 0, 1, first, "sequences of length 1",
         NULL, 0},
        {"lstm", GPUNN_PRECISION_F32, false, 0, 0, 0, 2, "recurrence", NULL, NULL, 0},
        {"lstm, deterministic", GPUNN_PRECISION_F32, true, 0, 0, 0, 0, NULL, NULL, NULL, 0},
    };
    for (int i = 0; i < 2 * COUNT(ways); i++) {
        const way *w = &ways[i / 2];
        const int  rows = w->rows ? w->rows : 5, runs = i % 2 ? 0 : w->runs, e = w->e ? w->e : 16,
                  lines = i % 2 == 0 && w->said ? 1 : 0;
        emulator_set("EMULATOR_CUDNN", i % 2 ? "0" : "1");
        emulator_set("EMULATOR_CAPABILITY", w->capability ? w->capability : "90");
        log_count = 0;
        gpunn_device *dev = MADE(
            NULL, gpunn_device_open(.type = GPUNN_DEVICE_CUDA, .deterministic = w->deterministic,
                                    .workspace_limit = w->workspace_limit, .log_fn = count_log,
                                    .realloc_fn = hook_realloc, .user = test_user));
        gpunn_model  *model = MADE(dev, gpunn_model_create(dev, .precision = w->precision));
        gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(2, rows, 6)), *y;
        if (w->rows) {
            static const float mask[5] = {0, 0, 0, -INFINITY, 0};
            y = gpunn_reshape(gpunn_linear(x, "qkv", .out_features = 6 * e), GPUNN_SHAPE(2, rows, 3, 2, e));
            y = gpunn_scaled_dot_product_attention(y, NULL, NULL,
                                                   .mask = gpunn_constant(model, GPUNN_SHAPE(rows), mask),
                                                   .dropout_p = w->dropout_p);
        } else
            y = gpunn_lstm(x, "lstm", .hidden_size = 4, .batch_first = true);
        gpunn_tensor *loss = MADE(dev, gpunn_mean(gpunn_square(y), GPUNN_ALL, false));
        float        *values = test_randoms(12 * rows, 1, 1);
        OK(dev, write_floats(x, values, 12 * rows));
        free(values);
        const long before = emulator_cudnn_runs();
        for (int step = 0; step < 3; step++) OK(dev, gpunn_backward(loss));
        assert_true(isfinite(gpunn_item(loss)));
        for (int p = 0; w->rows && p < gpunn_parameter_count(model); p++) {
            float        grad[96 * 6];
            const size_t bytes = gpunn_tensor_bytes(gpunn_parameter_at(model, p));
            OK(dev, gpunn_read_grad(gpunn_parameter_at(model, p), grad, bytes));
            for (size_t j = 0; j < bytes / sizeof *grad; j++)
                if (!isfinite(grad[j])) fail_msg("%s: a gradient is %g", w->name, (double)grad[j]);
        }
        const long times = emulator_cudnn_runs() - before;
        if (times != 3 * runs)
            fail_msg("%s%s: cuDNN ran %ld times", w->name, i % 2 ? ", without cuDNN" : "", times);
        if (runs && strcmp(emulator_cudnn_ran(), w->last) != 0)
            fail_msg("%s: cuDNN ran %s", w->name, emulator_cudnn_ran());
        if (log_count != lines) fail_msg("%s: %d lines in the log, '%s'", w->name, log_count, log_text);
        if (lines && !strstr(log_text, w->said)) fail_msg("%s: the log says '%s'", w->name, log_text);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
    }
}

/* a b of one weight for two samples of three matrices each, 33 x 7 by 7 x 33 in BF16, and the gradients of
 * both. The second sample's matrices begin at odd numbers of elements. */
enum { PLACES_A = 2 * 3 * 33 * 7, PLACES_B = 3 * 7 * 33, PLACES = 2 * 3 * 33 * 33 + PLACES_A + PLACES_B };
static void product_at(const char *alignment, bool benchmark, float *values)
{
    emulator_set("EMULATOR_ALIGNMENT", alignment);
    gpunn_device *dev = MADE(NULL,
                             gpunn_device_open(.type = GPUNN_DEVICE_CUDA, .benchmark = benchmark, .seed = 7,
                                               .realloc_fn = hook_realloc, .user = test_user));
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev, .precision = GPUNN_PRECISION_BF16));
    gpunn_tensor *a = gpunn_parameter(model, "a", GPUNN_SHAPE(2, 3, 33, 7),
                                      ((gpunn_init){GPUNN_INIT_NORMAL, 0, 1}));
    gpunn_tensor *b = gpunn_parameter(model, "b", GPUNN_SHAPE(3, 7, 33),
                                      ((gpunn_init){GPUNN_INIT_NORMAL, 0, 1}));
    gpunn_tensor *c = gpunn_keep(gpunn_matmul(a, b)),
                 *loss = MADE(dev, gpunn_mean(gpunn_square(c), GPUNN_ALL, false));
    OK(dev, gpunn_backward(loss));
    OK(dev, gpunn_read(c, values, 2 * 3 * 33 * 33 * sizeof *values));
    OK(dev, gpunn_read_grad(a, values + 2 * 3 * 33 * 33, PLACES_A * sizeof *values));
    OK(dev, gpunn_read_grad(b, values + 2 * 3 * 33 * 33 + PLACES_A, PLACES_B * sizeof *values));
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}
static void test_product_places(void **state)
{
    (void)state;
    static float expected[PLACES], values[PLACES];
    product_at("1", false, expected);
    for (int benchmark = 0; benchmark < 2; benchmark++) {
        product_at("16", benchmark, values);
        check_close(values, expected, PLACES, 1e-2, 1e-4);
    }
}

/* Depthwise convolutions are cuDNN's from 9.24 on, and the log hears once that those of an older one are
 * not. */
static void test_depthwise(void **state)
{
    (void)state;
    static const char *const versions[] = {"91900", "92399", "92400"};
    for (int i = 0; i < COUNT(versions); i++) {
        const bool with = i == 2;
        emulator_set("EMULATOR_VERSION", versions[i]);
        log_count = 0;
        gpunn_device *dev = MADE(NULL, open_on(GPUNN_DEVICE_CUDA, 0));
        gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
        gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(2, 3, 6, 5));
        gpunn_tensor *y = gpunn_conv2d(x, "first", .out_channels = 3, .kernel_size = 3, .groups = 3);
        y = gpunn_conv2d(y, "twice", .out_channels = 6, .kernel_size = 2, .stride = 2, .padding = 1,
                         .groups = 3);
        y = gpunn_conv2d(y, "groups", .out_channels = 6, .kernel_size = 1, .groups = 3);
        gpunn_tensor *loss = MADE(dev, gpunn_mean(gpunn_square(y), GPUNN_ALL, false));
        float        *values = test_randoms(180, 1, 1);
        OK(dev, write_floats(x, values, 180));
        free(values);
        const long before = emulator_cudnn_runs();
        OK(dev, gpunn_backward(loss));
        OK(dev, gpunn_synchronize(dev));
        const long runs = emulator_cudnn_runs() - before; /* y, dx (not of the input) and dw of each */
        if (runs != (with ? 8 : 3)) fail_msg("cuDNN %s ran %ld times", versions[i], runs);
        if (log_count != !with)
            fail_msg("cuDNN %s: %d lines in the log, '%s'", versions[i], log_count, log_text);
        if (!with)
            assert_string_equal(log_text,
                                "conv2d 'first' uses a slower kernel, and perhaps others do: cuDNN before "
                                "9.24 computes depthwise convolutions of alternating sizes wrongly");
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
    }
}

/* What no builder makes, elementwise ops of one operand that is smaller than the result, the backend
 * refuses. */
static void test_small_operand(void **state)
{
    (void)state;
    char              text[256] = "";
    gpunn_device_args args = {.realloc_fn = hook_realloc, .user = test_user, .workspace_limit = 1 << 20};
    void             *context = gpunn_emulator_backend.open(&args, text, sizeof text);
    if (!context) fail_msg("%s", text);
    gpunn_attributes attr = {0};
    gpunn_value      in[2] = {{.rank = 1, .dim = {1}, .count = 1, .dtype = GPUNN_F32, .data = text},
                              {.rank = 1, .dim = {1}, .count = 1, .dtype = GPUNN_F32, .data = text}};
    gpunn_value      grad_in[2] = {in[0], in[1]}, out = in[0];
    bool             accumulate[2] = {false, false};
    out.dim[0] = out.count = 16;
    for (int i = 0; i < 4; i++) {
        gpunn_step         step = {.op = i / 2 ? GPUNN_OP_ADD : GPUNN_OP_RELU,
                                   .backward = i % 2,
                                   .training = true,
                                   .name = "",
                                   .attr = &attr,
                                   .input_count = i / 2 + 1,
                                   .in = in,
                                   .out = out,
                                   .grad_in = grad_in,
                                   .accumulate = accumulate,
                                   .grad_out = out};
        const gpunn_status status = gpunn_emulator_backend.prepare(context, &step);
        assert_int_equal(status, i / 2 ? GPUNN_OK : GPUNN_ERR_UNSUPPORTED);
        if (i < 2) assert_non_null(strstr(gpunn_emulator_backend.error(context), "gpunn_expand"));
    }
    gpunn_emulator_backend.close(context);
}

/* Two optimizers with a loss each that take turns: from the third turn on each step is one launch of a graph
 * of its own. */
static void test_turns(void **state)
{
    gpunn_device *dev = MADE(
        NULL, gpunn_device_open(.type = GPUNN_DEVICE_CUDA, .realloc_fn = hook_realloc, .user = *state));
    gpunn_model     *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor    *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 6));
    gpunn_tensor    *h = gpunn_tanh(gpunn_linear(x, "a.fc", .out_features = 9));
    gpunn_tensor    *y = gpunn_linear(h, "b.fc", .out_features = 3);
    gpunn_tensor    *loss[] = {gpunn_mean(gpunn_square(y), GPUNN_ALL, false),
                               gpunn_mean(gpunn_abs(y), GPUNN_ALL, false)};
    gpunn_optimizer *opt[] = {MADE(dev, gpunn_adam(model, .prefix = "a.")),
                              MADE(dev, gpunn_sgd(model, .prefix = "b."))};
    float           *values = test_randoms(24, 1, 1);
    OK(dev, write_floats(x, values, 24));
    for (int turn = 0; turn < 8; turn++)
        for (int i = 0; i < 2; i++) {
            const long graphs = emulator_graph_launches();
            OK(dev, gpunn_train_step(opt[i], loss[i]));
            OK(dev, gpunn_synchronize(dev));
            if (turn >= 2) assert_int_equal(emulator_graph_launches() - graphs, 1);
        }
    const long made = emulator_held();
    OK(dev, gpunn_train_step(opt[0], loss[0]));
    assert_int_equal(emulator_held(), made);
    free(values);
    for (int i = 0; i < 2; i++) gpunn_optimizer_destroy(opt[i]);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

/* ---- a step of a small network, whose update its last launch makes, beside one of single launches ---- */
static gpunn_optimizer *optimizer_of(gpunn_model *model, int kind)
{
#define X(ENUM, name, ...) \
    if (kind-- == 0) return gpunn_##name##_(model, (gpunn_##name##_args){0});
    GPUNN_OPTIMIZERS(X, , , , )
#undef X
    return NULL;
}

/* updates: grows by those of the last step that the steps' launch has made. */
static float *train_small(int kind, bool joined, int64_t *count, int *updates)
{
    static const float x[2][10] = {{1, -2, 3, 0.5f, -1, 2, 1, -1, 0.25f, 1.5f}, {NAN}};
    emulator_set("EMULATOR_SHORT", joined ? "1024" : "0");
    gpunn_device    *dev = open_on(GPUNN_DEVICE_CUDA, 0);
    gpunn_model     *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor    *in = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 5));
    gpunn_tensor    *h = gpunn_linear(gpunn_tanh(gpunn_linear(in, "fc1", .out_features = 8)), "fc2",
                                      .out_features = 1);
    gpunn_tensor    *loss = MADE(dev, gpunn_mean(gpunn_square(h), GPUNN_ALL, false));
    gpunn_optimizer *opt = optimizer_of(model, kind);
    for (int step = 0; step < 8; step++) {
        int64_t      again;
        const bool   bad = step == 3 || step == 6;
        float *const before = read_weights(dev, model, count);
        OK(dev, gpunn_write(in, x[bad], sizeof x[bad]));
        emulator_forget_launches();
        const gpunn_status status = settled(dev, gpunn_train_step(opt, loss));
        if (bad) {
            float *const after = read_weights(dev, model, &again);
            FAILS(dev, status, GPUNN_ERR_NUMERIC, "loss is NaN");
            assert_memory_equal(before, after, (size_t)again * sizeof *after);
            free(after);
        }
        free(before);
    }
    for (long i = 0; emulator_ran(i); i++)
        *updates += strcmp(emulator_ran(i), "gpunn__short_training_kernel") == 0;
    float *weights = read_weights(dev, model, count);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return weights;
}

static void test_short_training(void **state)
{
    (void)state;
    gpunn_device *dev = open_on(GPUNN_DEVICE_CUDA, 0);
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    int           kinds = 0, updates = 0, others = 0;
    for (gpunn_optimizer *opt; (opt = optimizer_of(model, kinds)) != NULL; kinds++)
        gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    for (int kind = 0; kind < kinds; kind++) {
        int64_t count;
        float  *joined = train_small(kind, true, &count, &updates),
              *single = train_small(kind, false, &count, &others);
        check_close(joined, single, count, 1e-5, 1e-4);
        free(joined), free(single);
    }
    assert_in_range(kinds, 8, 100);
    assert_int_equal(updates, kinds - 1); /* Nadam's numbers are a kernel's */
    assert_int_equal(others, 0);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(test_cpu_numbers),    TEST(test_orders),
                                       TEST(test_precisions),     TEST(test_dropout_masks),
                                       TEST(test_device_faults),  TEST(test_out_of_memory),
                                       TEST(test_capture_fails),  TEST(test_sticky),
                                       TEST(test_plain),          TEST(test_plain_launch),
                                       TEST(test_memory_ends),    TEST(test_open_failures),
                                       TEST(test_report),         TEST(test_contexts),
                                       TEST(test_threads),        TEST(test_models),
                                       TEST(test_move),           TEST(test_loader),
                                       TEST(test_epilogues),      TEST(test_without_bf16),
                                       TEST(test_wide_bias),      TEST(test_nan),
                                       TEST(test_ways),           TEST(test_depthwise),
                                       TEST(test_product_places), TEST(test_small_operand),
                                       TEST(test_turns),          TEST(test_short_training)};
    return cmocka_run_group_tests_name("runtime", tests, NULL, NULL);
}
