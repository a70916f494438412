/* Steps that share a launch on the emulated GPU: what they give beside a launch for each of them
 * (EMULATOR_SHORT=0) and beside the CPU, on awkward sizes, in each precision, and where somebody reads
 * between them. */
#include "../test.h"

#include "emulator.h"

/* ---- losses of a few numbers ---- */
#define LOSSES(X)                                                                                         \
    X(sigmoid_bce, gpunn_bce_loss(gpunn_sigmoid(h), t))                                                   \
    X(bce_with_logits, gpunn_bce_with_logits(h, t))                                                       \
    X(mse, gpunn_mse_loss(h, t))                                                                          \
    X(mse_sum, gpunn_mul_scalar(gpunn_mse_loss(h, t, .reduction = GPUNN_REDUCE_SUM), 0.01f))              \
    X(l1, gpunn_l1_loss(gpunn_tanh(h), t))                                                                \
    X(huber, gpunn_huber_loss(h, t, .delta = 0.3f))                                                       \
    X(smooth_l1, gpunn_smooth_l1_loss(h, t, .beta = 0.2f))                                                \
    X(chain,                                                                                              \
      gpunn_mean(gpunn_sqrt(gpunn_add_scalar(gpunn_square(gpunn_sub(h, t)), 0.1f)), GPUNN_ALL, false))    \
    X(cross_entropy, gpunn_cross_entropy(h, labels))                                                      \
    X(smoothed, gpunn_cross_entropy(h, labels, .label_smoothing = 0.2f, .reduction = GPUNN_REDUCE_SUM))   \
    X(ignored, gpunn_cross_entropy(h, labels, .ignore_index = GPUNN_ZERO))                                \
    X(nll, gpunn_nll_loss(gpunn_log_softmax(h, 1), labels))                                               \
    X(each, gpunn_mean(gpunn_cross_entropy(h, labels, .reduction = GPUNN_REDUCE_NONE), GPUNN_ALL, false)) \
    X(twice, twice(gpunn_mse_loss(h, t)))

static gpunn_tensor *twice(gpunn_tensor *loss)
{
    return gpunn_add(loss, gpunn_mul_scalar(loss, 0.5f));
}

typedef gpunn_tensor *loss_maker(gpunn_tensor *h, gpunn_tensor *t, gpunn_tensor *labels);
#define X(name, ...)                                                                         \
    static gpunn_tensor *make_##name(gpunn_tensor *h, gpunn_tensor *t, gpunn_tensor *labels) \
    {                                                                                        \
        (void)t, (void)labels;                                                               \
        return __VA_ARGS__;                                                                  \
    }
LOSSES(X)
#undef X
static const struct loss_case {
    const char *name;
    loss_maker *make;
} losses[] = {
#define X(name, ...) {#name, make_##name},
    LOSSES(X)
#undef X
};

/* ---- convolution, relu, maximum ---- */
typedef struct pooled {
    int  n, channels, height, width, out, pool;
    bool no_bias;
} pooled;

typedef enum mode { PLAIN, ACCUMULATED, FROZEN, SEEN, SHARED, MODES } mode;
static const char *const mode_names[] = {"plain", "accumulated", "frozen", "seen", "shared"};

/* A model of either kind, trained. */
typedef struct subject {
    gpunn_precision precision;
    mode            mode;
    loss_maker     *make;
    int             n, in, out; /* where there is no convolution */
    int             hidden;     /* features between two linear layers; 0: there is one */
    bool            gelu;       /* stands behind the first of two, instead of relu */
    const pooled   *pooled;
    float           poison;  /* added to the first number of x in the last step */
    float          *numbers; /* losses, what was seen, weights */
    int64_t         count;
    /* of the third step; of it, those that join a convolution's end with its pool, there and back */
    long         launches;
    long         pools[2];
    gpunn_status last;
} subject;

static void note(subject *s, const float *values, int64_t n)
{
    s->numbers = realloc(s->numbers, (size_t)(s->count + n) * sizeof *s->numbers + 1);
    memcpy(s->numbers + s->count, values, (size_t)n * sizeof *values);
    s->count += n;
}

static void note_tensor(subject *s, gpunn_device *dev, gpunn_tensor *t, bool gradient)
{
    const size_t bytes = gpunn_tensor_bytes(t);
    float       *values = malloc(bytes);
    OK(dev, gradient ? gpunn_read_grad(t, values, bytes) : gpunn_read(t, values, bytes));
    note(s, values, (int64_t)(bytes / sizeof *values));
    free(values);
}

static void count_launches(subject *s)
{
    const char *name;
    s->launches = emulator_launches();
    for (int i = 0; emulator_launched(i, &name); i++) {
        if (strstr(name, "finish_pool")) s->pools[0] += emulator_launched(i, &name);
        if (strstr(name, "pool_relu_back")) s->pools[1] += emulator_launched(i, &name);
    }
}

static void train(subject *s, gpunn_device_type type)
{
    enum { STEPS = 4 };
    gpunn_device *dev = MADE(NULL, gpunn_device_open(.type = type, .seed = 3, .threads = 1));
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev, .precision = s->precision));
    const pooled *p = s->pooled;
    const int     n = p ? p->n : s->n, out = p ? 3 : s->out;
    const int64_t in = p ? (int64_t)p->channels * p->height * p->width : s->in;
    gpunn_tensor *labels = gpunn_input(model, "labels", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *t = gpunn_input(model, "t", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, out)), *seen = NULL, *x, *h,
                 *loss;
    if (p) {
        x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, p->channels, p->height, p->width));
        h = gpunn_conv2d(x, "conv", .out_channels = p->out, .kernel_size = 3, .padding = 1,
                         .no_bias = p->no_bias);
        seen = h = gpunn_relu(h);
        h = gpunn_flatten(gpunn_max_pool2d(h, .kernel_size = p->pool));
    } else
        h = x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, s->in));
    if (s->hidden) {
        h = gpunn_linear(h, "fc0", .out_features = s->hidden);
        seen = h = s->gelu ? gpunn_gelu_tanh(h) : gpunn_relu(h);
    }
    h = gpunn_linear(h, "fc", .out_features = out);
    if (seen == NULL) seen = h;
    loss = MADE(dev, s->make(h, t, labels));
    if (s->mode == SHARED)
        loss = MADE(dev, gpunn_add(loss, gpunn_mean(gpunn_square(seen), GPUNN_ALL, false)));
    if (s->mode == SEEN) gpunn_keep(seen), gpunn_retain_grad(seen);
    if (s->mode == FROZEN)
        gpunn_set_trainable(gpunn_find(model, p && !p->no_bias ? "conv.bias" : "fc.bias"), false);
    gpunn_optimizer *opt = MADE(dev, gpunn_sgd(model, .lr = 0.05f, .momentum = 0.5f));
    for (int step = 0; step < STEPS; step++) {
        float *values = test_randoms(n * in, (uint32_t)step, 1),
              *targets = test_randoms((int64_t)n * out, 50, 0.45f);
        int64_t *classes = malloc((size_t)n * sizeof *classes);
        for (int i = 0; i < n * out; i++) targets[i] += 0.5f;
        for (int i = 0; i < n; i++) classes[i] = (i + 1) % out;
        if (step == STEPS - 1) values[0] += s->poison;
        OK(dev, write_floats(x, values, n * in));
        OK(dev, write_floats(t, targets, (int64_t)n * out));
        OK(dev, gpunn_write(labels, classes, (size_t)n * sizeof *classes));
        OK(dev, gpunn_synchronize(dev));
        emulator_forget_launches();
        if (s->mode == ACCUMULATED) {
            OK(dev, gpunn_zero_grad(model));
            for (int i = 0; i < 2; i++) OK(dev, gpunn_backward(loss));
            OK(dev, gpunn_optimizer_step(opt));
        } else
            s->last = settled(dev, gpunn_train_step(opt, loss));
        if (s->last == GPUNN_OK) {
            const float item = gpunn_item(loss);
            if (step == 2) count_launches(s);
            note(s, &item, 1);
        }
        free(values), free(targets), free(classes);
        if (s->mode != SEEN) continue;
        note_tensor(s, dev, seen, false);
        /* there it has the loss scale in it */
        if (s->precision != GPUNN_PRECISION_F16) note_tensor(s, dev, seen, true);
        gpunn_tensor *both[] = {seen, loss};
        OK(dev, gpunn_forward(both, 2));
        note_tensor(s, dev, seen, false), note_tensor(s, dev, loss, false);
    }
    int64_t count;
    float  *weights = read_weights(dev, model, &count);
    note(s, weights, count);
    free(weights);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

/* By root mean squares, since a 16-bit number here and there may be rounded the other way. */
static void check_same(const subject *a, const subject *b, double tolerance, const char *what)
{
    double error = 0, size = 0;
    assert_int_equal(a->count, b->count);
    for (int64_t i = 0; i < b->count; i++) {
        const double d = (double)a->numbers[i] - (double)b->numbers[i];
        if (!isfinite(a->numbers[i]))
            fail_msg("%s: number %lld is %g", what, (long long)i, (double)a->numbers[i]);
        error += d * d, size += (double)b->numbers[i] * (double)b->numbers[i];
    }
    if (!(sqrt(error) <= tolerance * sqrt(size)))
        fail_msg("%s: off by %g of its size", what, sqrt(error / size));
}

/* Joined, a launch each, and on the CPU. Returns the launches that joining has saved. */
static long compare(subject s, const char *name, subject *joined)
{
    const double slack = s.precision == GPUNN_PRECISION_F32 ? 2e-6 : 2e-4;
    subject      each = s, cpu = s;
    char         what[256];
    *joined = s;
    emulator_set("EMULATOR_SHORT", "1024");
    train(joined, GPUNN_DEVICE_CUDA);
    emulator_set("EMULATOR_SHORT", "0");
    train(&each, GPUNN_DEVICE_CUDA);
    emulator_set("EMULATOR_SHORT", "1024");
    train(&cpu, GPUNN_DEVICE_CPU);
    (void)snprintf(what, sizeof what, "%s, precision %d, %s, beside a launch each", name, (int)s.precision,
                   mode_names[s.mode]);
    check_same(joined, &each, slack, what);
    (void)snprintf(what, sizeof what, "%s, precision %d, %s, beside the CPU", name, (int)s.precision,
                   mode_names[s.mode]);
    check_same(joined, &cpu,
               s.precision == GPUNN_PRECISION_F32   ? 2e-5
               : s.precision == GPUNN_PRECISION_F16 ? 4e-3
                                                    : 3e-2,
               what);
    free(joined->numbers), free(each.numbers), free(cpu.numbers);
    return each.launches - joined->launches;
}

static void test_losses(void **state)
{
    static const int        sizes[][3] = {{1, 1, 1},     {3, 2, 1},   {1, 5, 7},   {32, 50, 1}, {31, 3, 5},
                                          {101, 70, 10}, {64, 7, 16}, {65, 7, 16}, {257, 3, 9}};
    const struct loss_case *c = *state;
    subject                 joined;
    for (int i = 0; i < COUNT(sizes); i++) {
        const subject s = {.make = c->make, .n = sizes[i][0], .in = sizes[i][1], .out = sizes[i][2]};
        /* nothing to learn */
        const bool single = strstr("cross_entropy smoothed ignored nll each", c->name) && s.out == 1;
        char       name[64];
        (void)snprintf(name, sizeof name, "%s %dx%d->%d", c->name, s.n, s.in, s.out);
        const long saved = single ? 1 : compare(s, name, &joined);
        if (single) continue;
        if (s.n * s.out <= 1024 ? saved < 1 : saved < 0)
            fail_msg("%s: joining saves %ld launches", name, saved);
    }
}

static void test_losses_otherwise(void **state)
{
    const struct loss_case *c = *state;
    subject                 joined;
    for (mode m = PLAIN; m < MODES; m++)
        for (gpunn_precision p = GPUNN_PRECISION_F32; p <= GPUNN_PRECISION_F16; p++)
            if (p != GPUNN_PRECISION_TF32 && !(m == ACCUMULATED && p == GPUNN_PRECISION_F16))
                (void)compare(
                    (subject){.precision = p, .mode = m, .make = c->make, .n = 13, .in = 11, .out = 5},
                    c->name, &joined);
}

/* Products of gradients, too, and those of more than two tiles. A step that fits into one row is two
 * launches: the run's numbers, and the row with the update. */
static void test_layers(void **state)
{
    static const int  sizes[][4] = {{32, 20, 50, 1}, {5, 1, 2, 3},     {7, 3, 5, 4},
                                    {31, 16, 33, 3}, {64, 33, 31, 10}, {3, 70, 90, 2}};
    static const bool whole[] = {true, true, true, true, false, false};
    (void)state;
    emulator_set("EMULATOR_MULTIPROCESSORS", "132"); /* with few, such products are the library's */
    for (int i = 0; i < COUNT(sizes); i++)
        for (mode m = PLAIN; m < MODES; m++)
            for (gpunn_precision p = GPUNN_PRECISION_F32; p <= GPUNN_PRECISION_F16; p++) {
                if (p == GPUNN_PRECISION_TF32 || (m == ACCUMULATED && p == GPUNN_PRECISION_F16)) continue;
                subject joined, s = {.precision = p,
                                     .mode = m,
                                     .make = sizes[i][3] > 1 ? make_cross_entropy : make_sigmoid_bce,
                                     .n = sizes[i][0],
                                     .in = sizes[i][1],
                                     .out = sizes[i][3],
                                     .hidden = sizes[i][2],
                                     .gelu = i % 2 == 1};
                char    name[64];
                (void)snprintf(name, sizeof name, "layers %d", i);
                const long saved = compare(s, name, &joined);
                if (saved < 1) fail_msg("%s, %s: joining saves %ld launches", name, mode_names[m], saved);
                if (whole[i] && m == PLAIN && p == GPUNN_PRECISION_F32 && joined.launches != 2)
                    fail_msg("%s: %ld launches", name, joined.launches);
            }
    emulator_set("EMULATOR_MULTIPROCESSORS", "2");
}

/* A number that is none reaches the check of the loss, and no weight changes. */
static void test_nan(void **state)
{
    const struct loss_case *c = *state;
    const pooled            small = {2, 1, 6, 4, 3, 2, false};
    for (int i = 0; i < 2; i++) {
        subject good = {.make = c->make, .n = 13, .in = 11, .out = 5, .pooled = i ? &small : NULL},
                bad = good;
        bad.poison = NAN;
        train(&bad, GPUNN_DEVICE_CUDA);
        assert_int_equal(bad.last, GPUNN_ERR_NUMERIC);
        for (int64_t k = 0; k < bad.count; k++)
            if (!isfinite(bad.numbers[k])) fail_msg("number %lld is not finite", (long long)k);
        free(bad.numbers);
    }
}

static void test_pools(void **state)
{
    static const pooled cases[] = {{1, 1, 2, 2, 1, 2, false},  {3, 2, 6, 9, 5, 3, false},
                                   {2, 3, 8, 12, 7, 4, true},  {5, 1, 10, 6, 16, 2, false},
                                   {13, 2, 4, 4, 3, 1, false}, {1, 1, 130, 130, 1, 2, false},
                                   {2, 2, 7, 8, 4, 2, false},  {1, 1, 12, 12, 2, 6, false}};
    static const bool   joins[] = {true, true, true, true, true, false, false, false};
    (void)state;
    for (int cudnn = 0; cudnn < 2; cudnn++)
        for (int i = 0; i < COUNT(cases); i++)
            for (mode m = PLAIN; m < MODES; m++)
                for (gpunn_precision precision = GPUNN_PRECISION_F32; precision <= GPUNN_PRECISION_F16;
                     precision++) {
                    subject joined;
                    char    name[64];
                    if (precision == GPUNN_PRECISION_TF32 ||
                        (m == ACCUMULATED && precision == GPUNN_PRECISION_F16))
                        continue;
                    /* time */
                    if ((i == 5 && m > PLAIN) || (precision != GPUNN_PRECISION_F32 && m != PLAIN && i != 1))
                        continue;
                    emulator_set("EMULATOR_CUDNN", cudnn ? "1" : "0");
                    (void)snprintf(name, sizeof name, "pool %d, cuDNN %d", i, cudnn);
                    (void)compare((subject){.precision = precision,
                                            .mode = m,
                                            .make = make_cross_entropy,
                                            .pooled = &cases[i]},
                                  name, &joined);
                    if (precision != GPUNN_PRECISION_F32) continue;
                    const long runs = m == ACCUMULATED ? 2 : 1, back = m == SEEN || m == SHARED ? 0 : runs;
                    if (joined.pools[0] != (joins[i] ? runs : 0) || joined.pools[1] != (joins[i] ? back : 0))
                        fail_msg("%s, %s: %ld and %ld launches for the pool", name, mode_names[m],
                                 joined.pools[0], joined.pools[1]);
                }
    emulator_set("EMULATOR_CUDNN", "1");
}

int main(void)
{
    enum { LOSS_COUNT = COUNT(losses) };
    static char       names[2 * LOSS_COUNT][64];
    struct CMUnitTest tests[2 * LOSS_COUNT + 3];
    int               count = 0;
    for (int i = 0; i < LOSS_COUNT; i++) {
        (void)snprintf(names[2 * i], sizeof names[0], "%s", losses[i].name);
        (void)snprintf(names[2 * i + 1], sizeof names[0], "%s in other ways", losses[i].name);
        tests[count++] = (struct CMUnitTest){names[2 * i], test_losses, NULL, NULL, (void *)&losses[i]};
        tests[count++] = (struct CMUnitTest){names[2 * i + 1], test_losses_otherwise, NULL, NULL,
                                             (void *)&losses[i]};
    }
    tests[count++] = (struct CMUnitTest){"layers", test_layers, NULL, NULL, NULL};
    tests[count++] = (struct CMUnitTest){"not a number", test_nan, NULL, NULL, (void *)&losses[0]};
    tests[count++] = (struct CMUnitTest){"pools", test_pools, NULL, NULL, NULL};
    return cmocka_run_group_tests_name("joined", tests, NULL, NULL);
}
