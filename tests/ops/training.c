/* Optimizers and schedules step by step, and whole models over ten steps, against PyTorch's
 * (tests/golden). */
#include "../test.h"

static golden optimizers, schedules, models, sparse, muon;

/* ---- optimizers: the loss is sum(parameter * g), so that the gradient is g ---- */
/* clang-format off */
#define OPTIMIZERS(X)                                                                                        \
    X(sgd, sgd, .lr = 0.1f)                                                                                  \
    X(sgd_momentum, sgd, .lr = 0.1f, .momentum = 0.9f)                                                       \
    X(sgd_dampening, sgd, .lr = 0.1f, .momentum = 0.9f, .dampening = 0.3f, .weight_decay = 0.05f)            \
    X(sgd_nesterov, sgd, .lr = 0.1f, .momentum = 0.8f, .nesterov = true, .weight_decay = 0.01f)              \
    X(sgd_maximize, sgd, .lr = 0.1f, .momentum = 0.5f, .weight_decay = 0.1f, .maximize = true)               \
    X(adam, adam, .lr = 0)                                                                                   \
    X(adam_options, adam, .lr = 0.02f, .beta1 = 0.8f, .beta2 = 0.95f, .eps = 1e-3f, .weight_decay = 0.1f)    \
    X(adam_maximize, adam, .lr = 0.02f, .maximize = true, .weight_decay = 0.1f)                              \
    X(adamw, adamw, .lr = 0.02f)                                                                             \
    X(adamw_options, adamw, .lr = 0.02f, .beta1 = 0.7f, .beta2 = 0.9f, .eps = 1e-4f, .weight_decay = 0.3f)   \
    X(adamw_maximize, adamw, .lr = 0.02f, .maximize = true)                                                  \
    X(rmsprop, rmsprop, .lr = 0)                                                                             \
    X(rmsprop_options, rmsprop, .lr = 0.02f, .alpha = 0.9f, .eps = 1e-3f, .weight_decay = 0.1f,              \
      .momentum = 0.7f)                                                                                      \
    X(rmsprop_centered, rmsprop, .lr = 0.02f, .alpha = 0.9f, .momentum = 0.5f, .centered = true)             \
    X(adagrad, adagrad, .lr = 0)                                                                             \
    X(adagrad_options, adagrad, .lr = 0.1f, .lr_decay = 0.1f, .weight_decay = 0.1f, .eps = 1e-3f,            \
      .initial_accumulator_value = 0.5f)                                                                     \
    X(adamax, adamax, .lr = 0)                                                                               \
    X(adamax_options, adamax, .lr = 0.02f, .beta1 = 0.8f, .beta2 = 0.9f, .eps = 1e-3f, .weight_decay = 0.1f, \
      .maximize = true)                                                                                      \
    X(nadam, nadam, .lr = 0)                                                                                 \
    X(nadam_options, nadam, .lr = 0.02f, .beta1 = 0.8f, .beta2 = 0.95f, .eps = 1e-3f, .weight_decay = 0.1f,  \
      .momentum_decay = 0.05f)                                                                               \
    X(nadam_decoupled, nadam, .lr = 0.02f, .weight_decay = 0.1f, .momentum_decay = GPUNN_ZERO,               \
      .decoupled_weight_decay = true,                                                                        \
      .maximize = true)                                                                                      \
    X(radam, radam, .lr = 0)                                                                                 \
    X(radam_options, radam, .lr = 0.02f, .beta1 = 0.8f, .beta2 = 0.9f, .eps = 1e-3f, .weight_decay = 0.1f)   \
    X(radam_decoupled, radam, .lr = 0.02f, .beta2 = 0.5f, .weight_decay = 0.1f,                              \
      .decoupled_weight_decay = true, .maximize = true)                                                      \
    X(lion, lion, .lr = 0)                                                                                   \
    X(lion_options, lion, .lr = 0.01f, .beta1 = 0.8f, .beta2 = 0.9f, .weight_decay = 0.3f, .maximize = true) \
    X(adadelta, adadelta, .lr = 0)                                                                           \
    X(adadelta_options, adadelta, .lr = 0.5f, .rho = 0.8f, .eps = 1e-3f, .weight_decay = 0.1f,               \
      .maximize = true)                                                                                      \
    X(lamb, lamb, .lr = 0)                                                                                   \
    X(lamb_options, lamb, .lr = 0.02f, .beta1 = 0.8f, .beta2 = 0.95f, .eps = 1e-3f, .weight_decay = 0.1f,    \
      .trust_clip = 1.5f,                                                                                    \
      .maximize = true)                                                                                      \
    X(lamb_adapt, lamb, .lr = 0.02f, .weight_decay = GPUNN_ZERO, .always_adapt = true)

/* clang-format on */
typedef struct optimizer_case {
    const char *name;
    gpunn_optimizer *(*create)(gpunn_model *model);
    bool groups; /* b: no decay, a fifth of the rate */
} optimizer_case;
#define X(name, kind, ...)                                    \
    static gpunn_optimizer *create_##name(gpunn_model *model) \
    {                                                         \
        return gpunn_##kind(model, __VA_ARGS__);              \
    }
OPTIMIZERS(X)
#undef X
static const optimizer_case optimizer_cases[] = {
#define X(name, kind, ...) {#name, create_##name, false}, {#name "_groups", create_##name, true},
    OPTIMIZERS(X)
#undef X
};

static void test_optimizer(void **state)
{
    fixture              *f = *state;
    const optimizer_case *c = f->data;
    const char *const     names[] = {"a", "b"};
    gpunn_tensor         *parameters[2], *gradients[2], *terms[2];
    const golden_tensor  *given[2], *expected[2];
    for (int i = 0; i < 2; i++) {
        const golden_tensor *start = golden_find(&optimizers, "start.%s", names[i]);
        given[i] = golden_find(&optimizers, "gradients.%s", names[i]);
        expected[i] = golden_find(&optimizers, "%s/%s", c->name, names[i]);
        assert_true(start && given[i] && expected[i]);
        gpunn_init zeros = {GPUNN_INIT_ZEROS, 0, 0};
        parameters[i] = MADE(f->dev, gpunn_parameter(f->model, names[i], start->shape, zeros));
        OK(f->dev, gpunn_write(parameters[i], start->data, start->bytes));
        gradients[i] = MADE(f->dev, gpunn_input(f->model, i ? "gb" : "ga", GPUNN_F32, start->shape));
        terms[i] = gpunn_sum(gpunn_mul(parameters[i], gradients[i]), GPUNN_ALL, false);
    }
    gpunn_tensor *loss = MADE(f->dev, gpunn_add(terms[0], terms[1]));
    if (c->groups) {
        OK(f->dev, gpunn_set_decay(parameters[1], false));
        OK(f->dev, gpunn_set_lr_scale(parameters[1], 0.2f));
    }
    gpunn_optimizer *opt = MADE(f->dev, c->create(f->model));
    for (int t = 0; t < 20; t++) {
        if (t == 10) gpunn_set_lr(opt, gpunn_get_lr(opt) * 0.5f);
        for (int i = 0; i < 2; i++)
            OK(f->dev,
               gpunn_write(gradients[i], (const char *)given[i]->data + (size_t)t * given[i]->bytes / 20,
                           given[i]->bytes / 20));
        OK(f->dev, gpunn_train_step(opt, loss));
        assert_int_equal(gpunn_step_count(opt), t + 1);
        for (int i = 0; i < 2; i++) {
            int64_t n;
            float  *actual = read_floats(f->dev, parameters[i], &n);
            char    what[32];
            (void)snprintf(what, sizeof what, "%s after step %d", names[i], t + 1);
            check_close_at(actual, (const float *)expected[i]->data + t * n, n, 5e-6, 5e-6, what, __FILE__,
                           __LINE__);
            free(actual);
        }
    }
    gpunn_optimizer_destroy(opt);
}

/* ---- muon: matrices of all forms, and by AdamW what is no matrix ---- */
typedef struct muon_case {
    const char     *name;
    gpunn_muon_args args;
} muon_case;
static const muon_case   muon_cases[] = {{"muon", {.adamw_lr = 0.01f, .beta1 = 0.8f, .beta2 = 0.95f}},
                                         {"muon_options",
                                          {.lr = 0.02f,
                                           .weight_decay = 0.3f,
                                           .momentum = 0.8f,
                                           .no_nesterov = true,
                                           .eps = 0.5f,
                                           .ns_a = 2,
                                           .ns_b = -1.5f,
                                           .ns_c = 0.5f,
                                           .ns_steps = 4,
                                           .adjust_lr_fn = GPUNN_ADJUST_LR_MATCH_RMS_ADAMW,
                                           .adamw_lr = 0.01f,
                                           .beta1 = 0.8f,
                                           .beta2 = 0.95f}},
                                         {"muon_spectral",
                                          {.lr = 0.05f,
                                           .adjust_lr_fn = GPUNN_ADJUST_LR_SPECTRAL_UNCLAMPED,
                                           .momentum = GPUNN_ZERO,
                                           .adamw_lr = 0.01f,
                                           .beta1 = 0.8f,
                                           .beta2 = 0.95f}}};
static const char *const muon_names[] = {"wide", "tall", "square", "one", "row", "column", "vector", "cube"};
enum { MUON_TENSORS = COUNT(muon_names), MUON_STEPS = 6 };

typedef struct muon_network {
    gpunn_tensor *parameter[MUON_TENSORS], *gradient[MUON_TENSORS], *loss;
} muon_network;

static muon_network muon_make(const fixture *f, gpunn_model *model)
{
    muon_network n = {.loss = NULL};
    for (int i = 0; i < MUON_TENSORS; i++) {
        const golden_tensor *start = golden_find(&muon, "start.%s", muon_names[i]);
        gpunn_init           zeros = {GPUNN_INIT_ZEROS, 0, 0};
        char                 name[16];
        (void)snprintf(name, sizeof name, "g.%s", muon_names[i]);
        n.parameter[i] = MADE(f->dev, gpunn_parameter(model, muon_names[i], start->shape, zeros));
        OK(f->dev, gpunn_write(n.parameter[i], start->data, start->bytes));
        n.gradient[i] = gpunn_input(model, name, GPUNN_F32, start->shape);
        gpunn_tensor *term = gpunn_sum(gpunn_mul(n.parameter[i], n.gradient[i]), GPUNN_ALL, false);
        n.loss = MADE(f->dev, n.loss ? gpunn_add(n.loss, term) : term);
    }
    return n;
}

static void muon_step(const fixture *f, gpunn_optimizer *opt, const muon_network *n, int t)
{
    for (int i = 0; i < MUON_TENSORS; i++) {
        const golden_tensor *given = golden_find(&muon, "gradients.%s", muon_names[i]);
        const size_t         bytes = given->bytes / MUON_STEPS;
        OK(f->dev, gpunn_write(n->gradient[i], (const char *)given->data + (size_t)t * bytes, bytes));
    }
    OK(f->dev, gpunn_train_step(opt, n->loss));
}

/* torch's own values differ by its BF16, of 8 bits, and by what the iteration makes of that. */
static void muon_check(const fixture *f, const muon_network *n, const char *name, float lr, int t)
{
    for (int i = 0; i < MUON_TENSORS; i++) {
        const golden_tensor *exact = golden_find(&muon, "%s/%s.%d", name, muon_names[i], t),
                            *halves = golden_find(&muon, "%s_bf16/%s.%d", name, muon_names[i], t);
        int64_t count;
        float  *actual = read_floats(f->dev, n->parameter[i], &count);
        char    what[48];
        (void)snprintf(what, sizeof what, "%s, %s after step %d", name, muon_names[i], t + 1);
        check_close_at(actual, exact->data, count, 5e-6, 5e-6, what, __FILE__, __LINE__);
        check_close_at(actual, halves->data, count, 0, 0.15 * (double)lr, what, __FILE__, __LINE__);
        free(actual);
    }
}

static void test_muon(void **state)
{
    fixture         *f = *state;
    const muon_case *c = f->data;
    muon_network     n = muon_make(f, f->model);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_muon_(f->model, c->args));
    for (int t = 0; t < MUON_STEPS; t++) {
        gpunn_device *other = t == 3 ? MADE(NULL,
                                            gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 4,
                                                              .realloc_fn = hook_realloc, .user = &f->memory))
                                     : NULL; /* for one step */
        if (other) OK(f->dev, gpunn_model_to(f->model, other));
        muon_step(f, opt, &n, t);
        if (other) OK(f->dev, gpunn_model_to(f->model, f->dev));
        gpunn_device_close(other);
        if (t == 0 || t == MUON_STEPS - 1) muon_check(f, &n, c->name, c->args.lr > 0 ? c->args.lr : 1e-3f, t);
    }
    gpunn_optimizer_destroy(opt);
}

/* A model of 16 bits reads the new weights. With x the identity, y is the transposed weight. */
static void test_muon_half(void **state)
{
    enum { N = 24 };
    fixture         *f = *state;
    float            identity[N * N] = {0};
    gpunn_model     *model = MADE(f->dev, gpunn_model_create(f->dev, .precision = GPUNN_PRECISION_BF16));
    gpunn_tensor    *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, N));
    gpunn_tensor    *y = gpunn_linear(x, "fc", .out_features = N, .no_bias = true);
    gpunn_tensor    *loss = MADE(f->dev, gpunn_mean(gpunn_exp(y), GPUNN_ALL, false));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_muon(model, .lr = 0.1f));
    for (int i = 0; i < N; i++) identity[i * (N + 1)] = 1;
    OK(f->dev, gpunn_write(x, identity, sizeof identity));
    for (int step = 0; step < 3; step++) {
        OK(f->dev, gpunn_train_step(opt, loss));
        OK(f->dev, gpunn_forward(&y, 1));
        int64_t count;
        float  *product = read_floats(f->dev, y, &count),
              *weight = read_floats(f->dev, gpunn_find(model, "fc.weight"), &count), turned[N * N];
        for (int i = 0; i < N * N; i++) turned[i] = weight[i % N * N + i / N];
        check_close(product, turned, N * N, 0.01, 1e-4);
        free(product), free(weight);
    }
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
}

/* ---- averages: sgd_momentum's of a, and of b, which is frozen and, after ten steps, written ---- */
static void test_average(void **state)
{
    fixture             *f = *state;
    const char          *decay = f->data;
    const golden_tensor *start = golden_find(&optimizers, "start.b"),
                        *given = golden_find(&optimizers, "gradients.a"),
                        *written = golden_find(&optimizers, "gradients.b");
    gpunn_init    zeros = {GPUNN_INIT_ZEROS, 0, 0};
    gpunn_tensor *p[2] = {MADE(f->dev, gpunn_parameter(f->model, "a", GPUNN_SHAPE(3, 7), zeros)),
                          MADE(f->dev, gpunn_parameter(f->model, "b", GPUNN_SHAPE(5), zeros))};
    gpunn_tensor *g = gpunn_input(f->model, "g", GPUNN_F32, GPUNN_SHAPE(3, 7));
    gpunn_tensor *sums[2] = {gpunn_sum(gpunn_mul(p[0], g), GPUNN_ALL, false),
                             gpunn_sum(p[1], GPUNN_ALL, false)};
    gpunn_tensor *loss = MADE(f->dev, gpunn_add(sums[0], sums[1]));
    OK(f->dev, gpunn_write(p[0], golden_find(&optimizers, "start.a")->data, 3 * 7 * sizeof(float)));
    OK(f->dev, gpunn_write(p[1], start->data, start->bytes));
    OK(f->dev, gpunn_set_trainable(p[1], false));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .lr = 0.1f, .momentum = 0.9f));
    OK(f->dev, gpunn_set_ema(opt, strtof(decay, NULL)));
    for (int t = 0; t < 20; t++) {
        if (t == 10)
            OK(f->dev, gpunn_write(p[1], (const char *)written->data + written->bytes / 2, start->bytes));
        OK(f->dev,
           gpunn_write(g, (const char *)given->data + (size_t)t * given->bytes / 20, given->bytes / 20));
        OK(f->dev, gpunn_train_step(opt, loss));
        OK(f->dev, gpunn_ema_swap(opt));
        for (int i = 0; i < 2; i++) {
            const golden_tensor *expected = golden_find(&optimizers, "ema_%s/%s", decay, i ? "b" : "a");
            int64_t              n;
            float               *actual = read_floats(f->dev, p[i], &n);
            char                 what[32];
            (void)snprintf(what, sizeof what, "average of %s, %d", i ? "b" : "a", t + 1);
            check_close_at(actual, (const float *)expected->data + t * n, n, 5e-6, 5e-6, what, __FILE__,
                           __LINE__);
            free(actual);
        }
        OK(f->dev, gpunn_ema_swap(opt));
    }
    float *end = read_floats(f->dev, p[0], NULL); /* the weights have not seen all this */
    check_close(end, (const float *)golden_find(&optimizers, "ema_end/a")->data, 3 * 7, 5e-6, 5e-6);
    free(end);
    gpunn_optimizer_destroy(opt);
}

/* ---- schedules ---- */
/* clang-format off */
#define SCHEDULES(X)                                                                                  \
    X(constant, .type = GPUNN_SCHEDULE_CONSTANT)                                                      \
    X(step, .type = GPUNN_SCHEDULE_STEP, .step_size = 30)                                             \
    X(step_options, .type = GPUNN_SCHEDULE_STEP, .step_size = 7, .gamma = 0.8f)                       \
    X(multi_step, .type = GPUNN_SCHEDULE_MULTI_STEP, .milestones = {15, 40, 90}, .gamma = 0.3f)       \
    X(exponential, .type = GPUNN_SCHEDULE_EXPONENTIAL)                                                \
    X(cosine, .type = GPUNN_SCHEDULE_COSINE, .total_steps = 100, .min_lr = 1e-3f)                     \
    X(one_cycle, .type = GPUNN_SCHEDULE_ONE_CYCLE, .total_steps = 120)                                \
    X(one_cycle_options, .type = GPUNN_SCHEDULE_ONE_CYCLE, .total_steps = 120, .pct_start = 0.45f,    \
      .div_factor = 10,                                                                               \
      .final_div_factor = 100)                                                                        \
    X(linear, .type = GPUNN_SCHEDULE_LINEAR, .total_steps = 100, .warmup_steps = 20, .min_lr = 0.01f) \
    X(plateau, .type = GPUNN_SCHEDULE_PLATEAU, .patience = 3, .cooldown = 2, .factor = 0.5f,          \
      .min_lr = 0.01f, .threshold = 1e-2f)                                                            \
    X(plateau_max, .type = GPUNN_SCHEDULE_PLATEAU, .patience = 5, .maximize = true)

/* clang-format on */
typedef struct schedule_case {
    const char *name;
    gpunn_status (*set)(gpunn_optimizer *opt);
} schedule_case;
#define X(name, ...)                                     \
    static gpunn_status set_##name(gpunn_optimizer *opt) \
    {                                                    \
        return gpunn_set_schedule(opt, __VA_ARGS__);     \
    }
SCHEDULES(X)
#undef X
static const schedule_case schedule_cases[] = {
#define X(name, ...) {#name, set_##name},
    SCHEDULES(X)
#undef X
};

static void test_schedule(void **state)
{
    fixture             *f = *state;
    const schedule_case *c = f->data;
    const golden_tensor *metrics = golden_get(&schedules, "metrics"),
                        *expected = golden_get(&schedules, c->name);
    float            rates[120];
    gpunn_init       zeros = {GPUNN_INIT_ZEROS, 0, 0};
    gpunn_tensor    *p = MADE(f->dev, gpunn_parameter(f->model, "p", GPUNN_SHAPE(1), zeros));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .lr = 0.5f));
    OK(f->dev, c->set(opt));
    for (int t = 0; t < 120; t++) {
        rates[t] = gpunn_get_lr(opt);
        OK(f->dev, gpunn_schedule_step(opt, ((const float *)metrics->data)[t]));
    }
    check_close(rates, expected->data, 120, 2e-6, 1e-9);
    /* and the rate is what an update uses */
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(p, GPUNN_ALL, false));
    OK(f->dev, c->set(opt)); /* starts anew */
    for (int t = 0; t < 40; t++) {
        float before, after, rate = gpunn_get_lr(opt);
        OK(f->dev, gpunn_read(p, &before, sizeof before));
        OK(f->dev, gpunn_train_step(opt, loss));
        OK(f->dev, gpunn_read(p, &after, sizeof after));
        check_close(&after, &(float){before - rate}, 1, 1e-6, 1e-6);
        OK(f->dev, gpunn_schedule_step(opt, ((const float *)metrics->data)[t]));
    }
    gpunn_optimizer_destroy(opt);
}

/* At the limits of its arguments a schedule still has its closed form. */
static void test_schedule_limits(void **state)
{
    const gpunn_schedule_args step = {.type = GPUNN_SCHEDULE_STEP, .step_size = 1, .gamma = 0.5f},
                              sixteen = {.type = GPUNN_SCHEDULE_MULTI_STEP,
                                         .milestones = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                                                        16},
                                         .gamma = 0.5f},
                              cosine = {.type = GPUNN_SCHEDULE_COSINE, .total_steps = 1, .min_lr = 0.1f},
                              longest = {.type = GPUNN_SCHEDULE_COSINE, .total_steps = INT64_MAX / 2},
                              single = {.type = GPUNN_SCHEDULE_ONE_CYCLE, .total_steps = 1},
                              falls = {.type = GPUNN_SCHEDULE_ONE_CYCLE,
                                       .total_steps = 4,
                                       .pct_start = GPUNN_ZERO},
                              rises = {.type = GPUNN_SCHEDULE_ONE_CYCLE, .total_steps = 4, .pct_start = 1},
                              linear = {.type = GPUNN_SCHEDULE_LINEAR, .total_steps = 1, .min_lr = 0.1f},
                              steep = {.type = GPUNN_SCHEDULE_LINEAR, .total_steps = 3, .warmup_steps = 2},
                              warm = {.type = GPUNN_SCHEDULE_CONSTANT, .warmup_steps = 1};
    const struct {
        const gpunn_schedule_args *args;
        int                        steps;
        double                     lr;
    } cases[] = {{&step, 3, 0.0625},
                 {&sixteen, 15, ldexp(0.5, -15)},
                 {&sixteen, 20, ldexp(0.5, -16)},
                 {&cosine, 0, 0.5},
                 {&cosine, 1, 0.1},
                 {&cosine, 9, 0.1},
                 {&longest, 3, 0.5},
                 {&single, 0, 2e-6},
                 {&single, 5, 2e-6},
                 {&falls, 0, 2e-6 + (0.5 - 2e-6) * (1 + sqrt(0.5)) / 2},
                 {&falls, 3, 2e-6},
                 {&rises, 0, 0.02},
                 {&rises, 3, 0.5},
                 {&rises, 9, 0.5},
                 {&linear, 0, 0.5},
                 {&linear, 1, 0.1},
                 {&steep, 0, 0},
                 {&steep, 1, 0.25},
                 {&steep, 2, 0.5},
                 {&steep, 3, 0},
                 {&warm, 0, 0},
                 {&warm, 1, 0.5}};
    fixture         *f = *state;
    const gpunn_init zeros = {GPUNN_INIT_ZEROS, 0, 0};
    (void)MADE(f->dev, gpunn_parameter(f->model, "p", GPUNN_SHAPE(1), zeros));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .lr = 0.5f));
    for (int i = 0; i < COUNT(cases); i++) {
        OK(f->dev, gpunn_set_schedule_(opt, *cases[i].args));
        for (int t = 0; t < cases[i].steps; t++) OK(f->dev, gpunn_schedule_step(opt, 0));
        if (!(fabs(gpunn_get_lr(opt) - cases[i].lr) <= 1e-6 * cases[i].lr))
            fail_msg("case %d: %.9g, expected %.9g", i, (double)gpunn_get_lr(opt), cases[i].lr);
    }
    gpunn_optimizer_destroy(opt);
}

/* ---- whole models: weights that torch saved, ten steps, the losses and the weights then ---- */
static gpunn_tensor *mlp(gpunn_tensor *x)
{
    return gpunn_linear(gpunn_relu(gpunn_linear(x, "fc1", .out_features = 16)), "fc2", .out_features = 3);
}
static gpunn_tensor *lenet(gpunn_tensor *x)
{
    gpunn_tensor *h = gpunn_max_pool2d(
        gpunn_relu(gpunn_conv2d(x, "conv1", .out_channels = 4, .kernel_size = 5)), .kernel_size = 2);
    h = gpunn_max_pool2d(gpunn_relu(gpunn_conv2d(h, "conv2", .out_channels = 6, .kernel_size = 3)),
                         .kernel_size = 2);
    return gpunn_linear(gpunn_tanh(gpunn_linear(gpunn_flatten(h), "fc1", .out_features = 16)), "fc2",
                        .out_features = 10);
}
static gpunn_tensor *block(gpunn_tensor *x, const char *name, int channels, int stride)
{
    char layer[64];
#define NAMED(part) ((void)snprintf(layer, sizeof layer, "%s.%s", name, part), layer)
    gpunn_tensor *y = gpunn_conv2d(x, NAMED("conv1"), .out_channels = channels, .kernel_size = 3,
                                   .stride = stride, .padding = 1, .no_bias = true);
    y = gpunn_relu(gpunn_batch_norm2d(y, NAMED("bn1")));
    y = gpunn_conv2d(y, NAMED("conv2"), .out_channels = channels, .kernel_size = 3, .padding = 1,
                     .no_bias = true);
    y = gpunn_batch_norm2d(y, NAMED("bn2"));
    if (stride != 1) {
        x = gpunn_conv2d(x, NAMED("downsample.0"), .out_channels = channels, .kernel_size = 1,
                         .stride = stride, .no_bias = true);
        x = gpunn_batch_norm2d(x, NAMED("downsample.1"));
    }
#undef NAMED
    return gpunn_relu(gpunn_add(y, x));
}
static gpunn_tensor *resnet(gpunn_tensor *x)
{
    gpunn_tensor *h = gpunn_conv2d(x, "conv1", .out_channels = 6, .kernel_size = 3, .padding = 1,
                                   .no_bias = true);
    h = gpunn_relu(gpunn_batch_norm2d(h, "bn1"));
    h = block(block(h, "layer1.0", 6, 1), "layer1.1", 10, 2);
    return gpunn_linear(gpunn_flatten(gpunn_adaptive_avg_pool2d(h, 1, 1)), "fc", .out_features = 4);
}
static gpunn_tensor *transformer(gpunn_tensor *x)
{
    gpunn_tensor *h = gpunn_layer_norm(x, "ln1");
    gpunn_tensor *q = gpunn_linear(h, "q", .out_features = 8), *k = gpunn_linear(h, "k", .out_features = 8);
    gpunn_tensor *weights = gpunn_softmax(gpunn_mul_scalar(gpunn_matmul(q, k, .transpose_b = true), 0.35f),
                                          -1);
    x = gpunn_add(x, gpunn_matmul(weights, gpunn_linear(h, "v", .out_features = 8)));
    h = gpunn_gelu_tanh(gpunn_linear(gpunn_rms_norm(x, "norm2"), "fc1", .out_features = 19));
    x = gpunn_add(x, gpunn_linear(h, "fc2", .out_features = 8));
    return gpunn_linear(gpunn_flatten(gpunn_layer_norm(x, "ln3", .dims = 2)), "head", .out_features = 4);
}

typedef struct model_case {
    const char *name;
    gpunn_tensor *(*build)(gpunn_tensor *x);
    optimizer_case optimizer;
} model_case;
static gpunn_optimizer *adam(gpunn_model *model)
{
    return gpunn_adam(model, .lr = 0.01f);
}
static gpunn_optimizer *momentum(gpunn_model *model)
{
    return gpunn_sgd(model, .lr = 0.05f, .momentum = 0.9f);
}
static gpunn_optimizer *adamw(gpunn_model *model)
{
    return gpunn_adamw(model, .lr = 0.01f);
}
static const model_case model_cases[] = {{"mlp", mlp, {"adam", adam, false}},
                                         {"lenet", lenet, {"momentum", momentum, false}},
                                         {"resnet", resnet, {"adamw", adamw, false}},
                                         {"transformer", transformer, {"momentum", momentum, false}}};

static void test_model(void **state)
{
    fixture             *f = *state;
    const model_case    *c = f->data;
    const golden_tensor *x = golden_find(&models, "%s/x", c->name),
                        *t = golden_find(&models, "%s/t", c->name);
    const golden_tensor *losses = golden_find(&models, "%s/losses", c->name),
                        *eval = golden_find(&models, "%s/eval", c->name);
    gpunn_shape shape = {{GPUNN_BATCH}};
    char        path[64];
    float       actual[10];
    assert_true(x && t && losses && eval);
    for (int i = 1; i < shape_rank(x->shape) - 1; i++) shape.dim[i] = x->shape.dim[i + 1];
    gpunn_tensor *input = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, shape));
    gpunn_tensor *labels = MADE(f->dev, gpunn_input(f->model, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH)));
    gpunn_tensor *logits = MADE(f->dev, c->build(input)),
                 *loss = MADE(f->dev, gpunn_cross_entropy(logits, labels));
    gpunn_optimizer *opt = MADE(f->dev, c->optimizer.create(f->model));
    (void)snprintf(path, sizeof path, "tests/golden/%s.safetensors", c->name);
    OK(f->dev, gpunn_load(f->model, path));
    for (int step = 0; step < 10; step++) {
        OK(f->dev, gpunn_write(input, (const char *)x->data + (size_t)step * x->bytes / 10, x->bytes / 10));
        OK(f->dev, gpunn_write(labels, (const char *)t->data + (size_t)step * t->bytes / 10, t->bytes / 10));
        OK(f->dev, gpunn_train_step(opt, loss));
        actual[step] = gpunn_item(loss);
    }
    check_close(actual, losses->data, 10, 2e-4, 2e-5);
    for (int i = 0; i < gpunn_parameter_count(f->model); i++) {
        gpunn_tensor        *p = gpunn_parameter_at(f->model, i);
        const golden_tensor *final = golden_find(&models, "%s/final.%s", c->name, gpunn_tensor_name(p));
        if (final == NULL) fail_msg("torch has no %s", gpunn_tensor_name(p));
        int64_t n;
        float  *values = read_floats(f->dev, p, &n);
        assert_int_equal(n, final->count);
        /* Adam divides by |g|, so that a gradient that is nearly 0 amplifies rounding to a part of the
         * rate */
        check_close_at(values, final->data, n, 1e-3, 3e-4, gpunn_tensor_name(p), __FILE__, __LINE__);
        free(values);
    }
    OK(f->dev, gpunn_write(input, x->data, x->bytes / 10));
    OK(f->dev, gpunn_forward(&logits, 1));
    float *values = read_floats(f->dev, logits, NULL);
    check_close(values, eval->data, eval->count, 2e-3, 2e-3);
    free(values);
    gpunn_optimizer_destroy(opt);
}

/* ---- q, k and v of one product: as of three ---- */
typedef struct parts_case {
    const char *name;
    int         rows, width, heads, size;
    int         no_bias, frozen, frozen_bias; /* bit i: q, k, v */
    /* shared: k's weight is q's; late: v's layer is made after q has been trained */
    bool shared, late;
} parts_case;
static const parts_case parts_cases[] = {
    {"qkv of 16", 5, 9, 2, 8, 0, 0, 0, false, false},
    {"qkv of 48", 7, 8, 3, 16, 0, 0, 0, false, false},
    {"qkv of one row", 1, 3, 1, 16, 0, 0, 0, false, false},
    {"qkv of 15", 4, 7, 3, 5, 0, 0, 0, false, false},
    {"qkv without bias", 5, 4, 3, 8, 7, 0, 0, false, false},
    {"qkv, bias of q and v", 5, 9, 2, 8, 2, 0, 0, false, false},
    {"qkv, q frozen", 5, 9, 2, 8, 0, 1, 0, false, false},
    {"qkv, k frozen", 5, 9, 2, 8, 0, 2, 0, false, false},
    {"qkv, v frozen", 5, 9, 2, 8, 0, 4, 0, false, false},
    {"qkv, all frozen", 5, 9, 2, 8, 0, 7, 0, false, false},
    {"qkv, biases frozen", 5, 9, 2, 8, 0, 0, 7, false, false},
    {"qkv, k's bias frozen", 5, 9, 2, 8, 0, 0, 2, false, false},
    {"qkv, q and k of one weight", 5, 9, 2, 8, 0, 0, 0, true, false},
    {"qkv, v of a later layer", 5, 9, 2, 8, 0, 0, 0, false, true},
};
typedef struct parts {
    gpunn_tensor *x, *q, *loss, *loss_of_q;
} parts;

/* apart: the program reads what makes k and v, so that these stay values of their own. */
static parts parts_make(gpunn_device *dev, gpunn_model *model, const parts_case *c, bool apart)
{
    static const char *const names[] = {"q", "k", "v"};
    parts p = {gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, c->rows, c->width)), NULL, NULL,
               NULL};
    gpunn_tensor *h = gpunn_retain_grad(p.x), *part[3];
    for (int i = 0; i < 3; i++) {
        gpunn_tensor *shared = i == 1 && c->shared ? gpunn_find(model, "q.weight") : NULL;
        part[i] = gpunn_linear(h, names[i], .out_features = c->heads * c->size,
                               .no_bias = c->no_bias >> i & 1, .weight = shared);
        if (i == 0) {
            p.q = part[0];
            p.loss_of_q = gpunn_sum(gpunn_square(part[0]), GPUNN_ALL, false);
        } else if (apart)
            gpunn_keep(part[i]);
        if (i == 1 && c->late) {
            float *zeros = calloc((size_t)(c->rows * c->width), sizeof *zeros);
            OK(dev, write_floats(p.x, zeros, c->rows * c->width));
            OK(dev, gpunn_backward(p.loss_of_q));
            OK(dev, gpunn_forward(&part[1], 1));
            free(zeros);
        }
    }
    for (int i = 0; i < 3; i++)
        part[i] = gpunn_reshape(part[i], GPUNN_SHAPE(GPUNN_BATCH, c->rows, c->heads, c->size));
    h = gpunn_scaled_dot_product_attention(part[0], part[1], part[2], .heads_last = true,
                                           .is_causal = c->rows > 5);
    h = gpunn_linear(gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, c->rows, c->heads * c->size)), "o",
                     .out_features = c->width);
    p.loss = gpunn_mean(gpunn_square(gpunn_sub(h, p.x)), GPUNN_ALL, false);
    for (int i = 0; i < gpunn_parameter_count(model); i++) {
        gpunn_tensor     *t = gpunn_parameter_at(model, i);
        const char *const name = gpunn_tensor_name(t), *const at = strchr("qkv", name[0]);
        if (at && ((strstr(name, "weight") ? c->frozen : c->frozen_bias) >> (at - strchr("qkv", 'q')) & 1))
            gpunn_set_trainable(t, false);
    }
    return p;
}

static void parts_same(gpunn_device *dev, gpunn_model *a, gpunn_model *b, bool gradients)
{
    for (int i = 0; i < gpunn_parameter_count(a); i++) {
        gpunn_tensor *t = gpunn_parameter_at(a, i), *other = gpunn_find(b, gpunn_tensor_name(t));
        int64_t       n = (int64_t)(gpunn_tensor_bytes(t) / sizeof(float));
        float        *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y);
        if (!gradients) {
            OK(dev, gpunn_read(t, x, (size_t)n * sizeof *x));
            OK(dev, gpunn_read(other, y, (size_t)n * sizeof *y));
        } else if (gpunn_read_grad(other, y, (size_t)n * sizeof *y) == GPUNN_OK) {
            OK(dev, gpunn_read_grad(t, x, (size_t)n * sizeof *x));
        } else { /* frozen, or not reached: for both */
            gpunn_clear_error(dev);
            assert_true(gpunn_read_grad(t, x, (size_t)n * sizeof *x) != GPUNN_OK);
            gpunn_clear_error(dev);
            n = 0;
        }
        check_close(x, y, n, 1e-4, 2e-6);
        free(x), free(y);
    }
}

static void test_parts(void **state)
{
    fixture          *f = *state;
    const parts_case *c = f->data;
    gpunn_model      *a = f->model, *b = gpunn_model_create(f->dev);
    parts             one = parts_make(f->dev, a, c, false), three = parts_make(f->dev, b, c, true);
    MADE(f->dev, one.loss), MADE(f->dev, three.loss); /* the same numbers are drawn for both */
    OK(f->dev, gpunn_zero_grad(a));
    OK(f->dev, gpunn_zero_grad(b));
    for (int step = 0; step < 8; step++) { /* 0 to 3: gradients add up; then each is used */
        int64_t n = (step == 2 ? 2 : 3) * c->rows * c->width;
        float  *x = test_randoms(n, 5 + (uint32_t)step, 1);
        OK(f->dev, write_floats(one.x, x, n));
        OK(f->dev, write_floats(three.x, x, n));
        free(x);
        if (step == 4) {
            OK(f->dev, gpunn_zero_grad(a));
            OK(f->dev, gpunn_zero_grad(b));
        }
        if (step >= 4 && !(c->frozen & 1)) { /* q has a gradient before the others have one */
            OK(f->dev, gpunn_backward(one.loss_of_q));
            OK(f->dev, gpunn_backward(three.loss_of_q));
            parts_same(f->dev, a, b, true);
        }
        OK(f->dev, gpunn_backward(one.loss));
        OK(f->dev, gpunn_backward(three.loss));
        parts_same(f->dev, a, b, true);
        if (step < 4) continue;
        gpunn_optimizer *opt[2] = {MADE(f->dev, gpunn_sgd(a, .lr = 0.05f)),
                                   MADE(f->dev, gpunn_sgd(b, .lr = 0.05f))};
        for (int k = 0; k < 2; k++) {
            OK(f->dev, gpunn_optimizer_step(opt[k]));
            gpunn_optimizer_destroy(opt[k]);
        }
        OK(f->dev, gpunn_zero_grad(a));
        OK(f->dev, gpunn_zero_grad(b));
        parts_same(f->dev, a, b, false);
        float losses[2] = {0, 0};
        OK(f->dev, gpunn_forward(&one.loss, 1));
        OK(f->dev, gpunn_forward(&three.loss, 1));
        losses[0] = gpunn_item(one.loss), losses[1] = gpunn_item(three.loss);
        check_close(&losses[0], &losses[1], 1, 1e-5, 1e-6);
    }
    gpunn_model_destroy(b);
}

/* ---- sparse gradients ---- */

/* sum(rows * g), where the rows of the tokens come from a table. */
typedef struct lookup {
    gpunn_tensor *tokens, *g, *table, *loss;
} lookup;

static lookup lookup_make(gpunn_model *model, int rows, int width, int padding, bool is_sparse)
{
    lookup        l;
    gpunn_tensor *picked;
    l.tokens = gpunn_input(model, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, 2));
    l.g = gpunn_input(model, "g", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2, width));
    picked = gpunn_embedding(l.tokens, "words", .num_embeddings = rows, .embedding_dim = width,
                             .padding_idx = padding, .sparse = is_sparse);
    l.table = gpunn_find(model, "words.weight");
    l.loss = gpunn_sum(gpunn_mul(picked, l.g), GPUNN_ALL, false);
    return l;
}

/* Writes a batch of tokens with gradients. about: they differ by it; tokens repeat. */
static void lookup_write(gpunn_device *dev, const lookup *l, int batch, int rows, int width, uint32_t about)
{
    int64_t tokens[256];
    float  *g = test_randoms(2 * batch * width, about, 1);
    for (int i = 0; i < 2 * batch; i++) tokens[i] = (int64_t)((unsigned)i * 7u + about) * (i % 3) % rows;
    OK(dev, gpunn_write(l->tokens, tokens, (size_t)batch * 2 * sizeof *tokens));
    OK(dev, gpunn_write(l->g, g, (size_t)(2 * batch * width) * sizeof *g));
    free(g);
}

static void same_values(gpunn_device *dev, gpunn_tensor *a, gpunn_tensor *b, double tolerance)
{
    int64_t n;
    float  *x = read_floats(dev, a, &n), *y = read_floats(dev, b, NULL);
    check_close(x, y, n, tolerance, tolerance);
    free(x), free(y);
}

static void same_gradients(gpunn_device *dev, gpunn_tensor *a, gpunn_tensor *b)
{
    const size_t bytes = gpunn_tensor_bytes(a);
    float       *x = malloc(bytes), *y = malloc(bytes);
    OK(dev, gpunn_read_grad(a, x, bytes));
    OK(dev, gpunn_read_grad(b, y, bytes));
    check_close(x, y, (int64_t)(bytes / sizeof *x), 1e-5, 1e-5);
    free(x), free(y);
}

/* clang-format off */
#define SPARSE(X)                                                                                         \
    X(sgd, sgd, .lr = 0.1f)                                                                               \
    X(sgd_maximize, sgd, .lr = 0.1f, .maximize = true)                                                    \
    X(adagrad, adagrad, .lr = 0.1f, .lr_decay = 0.1f, .eps = 1e-3f, .initial_accumulator_value = 0.5f)    \
    X(adam, adam, .lr = 0)                                                                                \
    X(adam_options, adam, .lr = 0.02f, .beta1 = 0.8f, .beta2 = 0.95f, .eps = 1e-3f, .maximize = true)
/* clang-format on */
#define X(name, kind, ...)                                           \
    static gpunn_optimizer *create_sparse_##name(gpunn_model *model) \
    {                                                                \
        return gpunn_##kind(model, __VA_ARGS__);                     \
    }
SPARSE(X)
#undef X
static const optimizer_case sparse_cases[] = {
#define X(name, kind, ...) {"sparse " #name, create_sparse_##name, false},
    SPARSE(X)
#undef X
};

/* Against PyTorch. */
static void test_sparse(void **state)
{
    fixture              *f = *state;
    const optimizer_case *c = f->data;
    const golden_tensor  *table = golden_find(&sparse, "table"), *tokens = golden_find(&sparse, "tokens"),
                        *given = golden_find(&sparse, "given"),
                        *expected = golden_find(&sparse, "%s", c->name + strlen("sparse "));
    lookup l = lookup_make(f->model, 23, 5, 3, true);
    MADE(f->dev, l.loss);
    OK(f->dev, gpunn_write(l.table, table->data, table->bytes));
    gpunn_optimizer *opt = MADE(f->dev, c->create(f->model));
    for (int step = 0; step < 12; step++) {
        OK(f->dev, gpunn_write(l.tokens, (const char *)tokens->data + (size_t)step * tokens->bytes / 12,
                               tokens->bytes / 12));
        OK(f->dev,
           gpunn_write(l.g, (const char *)given->data + (size_t)step * given->bytes / 12, given->bytes / 12));
        OK(f->dev, gpunn_train_step(opt, l.loss));
        float *actual = read_floats(f->dev, l.table, NULL);
        check_close(actual, (const float *)expected->data + step * 23 * 5, 23 * 5, 5e-6, 5e-6);
        free(actual);
    }
    gpunn_optimizer_destroy(opt);
}

typedef struct sparse_shape {
    const char *name;
    int         rows, width, batch, padding;
} sparse_shape;
static const sparse_shape sparse_shapes[] = {{"sparse, one row", 1, 3, 5, 0},
                                             {"sparse, one number", 4, 1, 1, 0},
                                             {"sparse, a line", 30, 16, 40, GPUNN_ZERO},
                                             {"sparse, many columns", 9, 137, 20, -1}};

/* Against a dense gradient, whose numbers SGD and Adagrad have too: clipped, accumulated over batches that
 * differ in size, of two embeddings. */
static void test_sparse_as_dense(void **state)
{
    fixture            *f = *state;
    const sparse_shape *c = f->data;
    gpunn_model        *models[2] = {f->model, MADE(f->dev, gpunn_model_create(f->dev))};
    lookup              l[2];
    gpunn_optimizer    *opt[2];
    for (int i = 0; i < 2; i++) {
        l[i] = lookup_make(models[i], c->rows, c->width, c->padding, i == 0);
        gpunn_tensor *more = gpunn_embedding(l[i].tokens, "again", .weight = l[i].table, .sparse = i == 0),
                     *square = gpunn_mean(gpunn_square(more), GPUNN_ALL, false);
        l[i].loss = MADE(f->dev, gpunn_add(l[i].loss, square));
    }
    same_values(f->dev, l[0].table, l[1].table, 0);
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < 2; i++) {
            opt[i] = MADE(f->dev,
                          kind ? gpunn_adagrad(models[i], .lr = 0.1f) : gpunn_sgd(models[i], .lr = 0.1f));
            gpunn_set_clip_norm(opt[i], kind ? 0 : 3);
            gpunn_set_clip_value(opt[i], kind ? 0.3f : 0);
            OK(f->dev, gpunn_set_schedule(opt[i], .type = GPUNN_SCHEDULE_EXPONENTIAL));
            OK(f->dev, gpunn_set_ema(opt[i], 0.5f));
        }
        for (int step = 0; step < 9; step++)
            for (int i = 0; i < 2; i++) {
                const int batch = step % 3 == 1 && c->batch > 1 ? c->batch - 1 : c->batch;
                lookup_write(f->dev, &l[i], batch, c->rows, c->width, (uint32_t)step);
                OK(f->dev, gpunn_train_step(opt[i], l[i].loss, .accumulate = step < 6 ? 3 : 1));
                OK(f->dev, gpunn_schedule_step(opt[i], 0));
                if (i == 1) same_gradients(f->dev, l[0].table, l[1].table);
                if (i == 1) same_values(f->dev, l[0].table, l[1].table, 1e-5);
            }
        for (int i = 0; i < 2; i++) OK(f->dev, gpunn_ema_swap(opt[i]));
        same_values(f->dev, l[0].table, l[1].table, 1e-5);
        for (int i = 0; i < 2; i++) {
            OK(f->dev, gpunn_ema_swap(opt[i]));
            gpunn_optimizer_destroy(opt[i]);
        }
    }
    float norms[2];
    for (int i = 0; i < 2; i++) {
        OK(f->dev, gpunn_zero_grad(models[i]));
        for (int part = 0; part < 5; part++) {
            lookup_write(f->dev, &l[i], c->batch, c->rows, c->width, 20);
            OK(f->dev, gpunn_backward(l[i].loss));
        }
        OK(f->dev, gpunn_clip_grad_norm(models[i], 0.5f, &norms[i]));
    }
    check_close(&norms[0], &norms[1], 1, 1e-5, 0);
    same_gradients(f->dev, l[0].table, l[1].table);
    gpunn_model_destroy(models[1]);
}

/* Two tables, which have other rows and columns, beside dense ones. */
static void test_sparse_tables(void **state)
{
    enum { BATCH = 6, ROWS = 17, WIDTH = 3, OTHERS = 5, WIDER = 8 };
    fixture         *f = *state;
    gpunn_model     *models[2] = {f->model, MADE(f->dev, gpunn_model_create(f->dev))};
    lookup           l[2];
    gpunn_tensor    *others[2], *kinds[2];
    gpunn_optimizer *opt[2];
    for (int i = 0; i < 2; i++) {
        l[i] = lookup_make(models[i], ROWS, WIDTH, GPUNN_ZERO, i == 0);
        kinds[i] = gpunn_input(models[i], "kinds", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
        gpunn_tensor *picked = gpunn_embedding(kinds[i], "kind", .num_embeddings = OTHERS,
                                               .embedding_dim = WIDER, .sparse = i == 0);
        others[i] = gpunn_find(models[i], "kind.weight");
        l[i].loss = MADE(f->dev, gpunn_add(l[i].loss, gpunn_sum(gpunn_square(picked), GPUNN_ALL, false)));
        opt[i] = MADE(f->dev, gpunn_adagrad(models[i], .lr = 0.1f));
    }
    for (int step = 0; step < 4; step++)
        for (int i = 0; i < 2; i++) {
            int64_t of[BATCH];
            for (int k = 0; k < BATCH; k++) of[k] = (k * k + step) % OTHERS;
            lookup_write(f->dev, &l[i], BATCH - step % 2, ROWS, WIDTH, (uint32_t)step);
            OK(f->dev, gpunn_write(kinds[i], of, (size_t)(BATCH - step % 2) * sizeof *of));
            OK(f->dev, gpunn_train_step(opt[i], l[i].loss));
            if (i == 0) continue;
            same_gradients(f->dev, l[0].table, l[1].table);
            same_gradients(f->dev, others[0], others[1]);
            same_values(f->dev, l[0].table, l[1].table, 1e-5);
            same_values(f->dev, others[0], others[1], 1e-5);
        }
    for (int i = 0; i < 2; i++) gpunn_optimizer_destroy(opt[i]);
    gpunn_model_destroy(models[1]);
}

/* Passes whose rows all differ: the gradient grows, and keeps what it had. */
static void test_sparse_grows(void **state)
{
    enum { ROWS = 64, WIDTH = 5, BATCH = 4, PASSES = 6 };
    fixture     *f = *state;
    gpunn_model *models[2] = {f->model, MADE(f->dev, gpunn_model_create(f->dev))};
    lookup       l[2];
    for (int i = 0; i < 2; i++) l[i] = lookup_make(models[i], ROWS, WIDTH, 0, i == 0);
    for (int pass = 0; pass < PASSES; pass++)
        for (int i = 0; i < 2; i++) {
            int64_t tokens[2 * BATCH];
            lookup_write(f->dev, &l[i], BATCH, ROWS, WIDTH, (uint32_t)pass);
            for (int k = 0; k < 2 * BATCH; k++) tokens[k] = pass * 2 * BATCH + k;
            OK(f->dev, gpunn_write(l[i].tokens, tokens, sizeof tokens));
            OK(f->dev, gpunn_backward(l[i].loss));
            if (i == 1) same_gradients(f->dev, l[0].table, l[1].table);
        }
    for (int i = 0; i < 2; i++) {
        gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(models[i], .lr = 0.1f));
        OK(f->dev, gpunn_optimizer_step(opt));
        gpunn_optimizer_destroy(opt);
    }
    same_values(f->dev, l[0].table, l[1].table, 1e-6);
    gpunn_model_destroy(models[1]);
}

/* The number of threads changes no bit. */
static void test_sparse_threads(void **state)
{
    fixture *f = *state;
    float   *tables[2];
    int64_t  n;
    for (int i = 0; i < 2; i++) {
        gpunn_device    *dev = gpunn_device_open(ON(f->backend), .seed = 1, .threads = 1 + 2 * i);
        gpunn_model     *model = MADE(f->dev, gpunn_model_create(dev));
        const lookup     l = lookup_make(model, 900, 200, 0, true);
        gpunn_optimizer *opt = MADE(dev, gpunn_adam(model, .lr = 0.1f));
        for (int step = 0; step < 3; step++) {
            lookup_write(dev, &l, 120, 900, 200, (uint32_t)step);
            OK(dev, gpunn_train_step(opt, l.loss));
        }
        tables[i] = read_floats(dev, l.table, &n);
        gpunn_optimizer_destroy(opt);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
    }
    assert_memory_equal(tables[0], tables[1], (size_t)n * sizeof(float));
    free(tables[0]), free(tables[1]);
}

/* In 16 bits products read the rounded rows, which each step renews. */
static void test_sparse_half(void **state)
{
    fixture      *f = *state;
    gpunn_model  *models[2];
    gpunn_tensor *tables[2];
    for (int i = 0; i < 2; i++) {
        models[i] = MADE(f->dev, gpunn_model_create(f->dev, .precision = GPUNN_PRECISION_F16));
        const lookup  l = lookup_make(models[i], 10, 16, 0, i == 0);
        gpunn_tensor *more = gpunn_embedding(l.tokens, "more", .weight = l.table),
                     *y = gpunn_linear(more, "fc", .out_features = 8),
                     *loss = MADE(f->dev, gpunn_add(l.loss, gpunn_mean(gpunn_square(y), GPUNN_ALL, false)));
        gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(models[i], .lr = 0.1f));
        tables[i] = l.table;
        for (int step = 0; step < 4; step++) {
            lookup_write(f->dev, &l, 6, 10, 16, (uint32_t)step);
            OK(f->dev, gpunn_train_step(opt, loss));
        }
        gpunn_optimizer_destroy(opt);
    }
    same_values(f->dev, tables[0], tables[1], 2e-3);
    for (int i = 0; i < 2; i++) gpunn_model_destroy(models[i]);
}

/* sum(features * g) of points in a hash grid. */
static const int grid_axes[] = {2, 3};
enum { GRID_POINTS = 7, GRID_LEVELS = 3, GRID_FEATURES = 2 };
typedef struct grid {
    gpunn_tensor *x, *g, *table, *loss;
} grid;

static grid grid_make(gpunn_model *model, int axes, bool is_sparse)
{
    grid n;
    n.x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, axes));
    n.g = gpunn_input(model, "g", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, GRID_LEVELS * GRID_FEATURES));
    gpunn_tensor *y = gpunn_hash_grid_encoding(n.x, "grid", .n_levels = GRID_LEVELS,
                                               .n_features_per_level = GRID_FEATURES, .log2_hashmap_size = 7,
                                               .base_resolution = 3, .sparse = is_sparse);
    n.table = gpunn_find(model, "grid.weight");
    n.loss = gpunn_sum(gpunn_mul(y, n.g), GPUNN_ALL, false);
    return n;
}

/* Writes points in a part of the grid; some lie outside it. */
static void grid_write(gpunn_device *dev, const grid *n, int axes, int points, uint32_t about)
{
    float *x = test_randoms(points * axes, about, 0.6f),
          *g = test_randoms(points * GRID_LEVELS * GRID_FEATURES, about + 50, 1);
    OK(dev, gpunn_write(n->x, x, (size_t)(points * axes) * sizeof *x));
    OK(dev, gpunn_write(n->g, g, (size_t)(points * GRID_LEVELS * GRID_FEATURES) * sizeof *g));
    free(x), free(g);
}

/* As a dense gradient, with SGD and Adagrad; clipped, accumulated over batches that grow. */
static void test_sparse_grid(void **state)
{
    fixture     *f = *state;
    const int    axes = *(const int *)f->data;
    gpunn_model *models[2] = {f->model, MADE(f->dev, gpunn_model_create(f->dev))};
    grid         n[2];
    for (int i = 0; i < 2; i++) MADE(f->dev, (n[i] = grid_make(models[i], axes, i == 0)).loss);
    for (int kind = 0; kind < 2; kind++) {
        gpunn_optimizer *opt[2];
        for (int i = 0; i < 2; i++) {
            opt[i] = MADE(f->dev,
                          kind ? gpunn_adagrad(models[i], .lr = 0.1f) : gpunn_sgd(models[i], .lr = 0.1f));
            gpunn_set_clip_norm(opt[i], 2);
        }
        for (int step = 0; step < 6; step++)
            for (int i = 0; i < 2; i++) {
                grid_write(f->dev, &n[i], axes, 1 + step, (uint32_t)step);
                OK(f->dev, gpunn_train_step(opt[i], n[i].loss, .accumulate = step < 4 ? 2 : 1));
                if (i == 1) same_gradients(f->dev, n[0].table, n[1].table);
                if (i == 1) same_values(f->dev, n[0].table, n[1].table, 1e-5);
            }
        gpunn_optimizer_destroy(opt[0]), gpunn_optimizer_destroy(opt[1]);
    }
    gpunn_model_destroy(models[1]);
}

/* An update of torch.optim.SparseAdam, which skips rows without a gradient. */
static void sparse_adam(float *p, float *m, float *v, const float *g, int64_t rows, int step)
{
    const double rate = 0.01 * sqrt(1 - pow(0.999, step)) / (1 - pow(0.9, step));
    for (int64_t row = 0; row < rows; row++) {
        bool there = false;
        for (int64_t i = row * GRID_FEATURES; i < (row + 1) * GRID_FEATURES; i++) there = there || g[i] != 0;
        for (int64_t i = row * GRID_FEATURES; there && i < (row + 1) * GRID_FEATURES; i++) {
            m[i] = 0.9f * m[i] + 0.1f * g[i];
            v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
            p[i] -= (float)(rate * (double)m[i] / (sqrt((double)v[i]) + 1e-8));
        }
    }
}

static void test_sparse_grid_adam(void **state)
{
    fixture         *f = *state;
    const int        axes = *(const int *)f->data;
    gpunn_model     *twin = MADE(f->dev, gpunn_model_create(f->dev));
    grid             n = grid_make(f->model, axes, true), dense = grid_make(twin, axes, false);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(f->model, .lr = 0.01f));
    int64_t          count;
    float           *p = read_floats(f->dev, n.table, &count);
    float           *m = calloc((size_t)count, sizeof *m), *v = calloc((size_t)count, sizeof *v),
          *g = calloc((size_t)count, sizeof *g);
    for (int step = 1; step < 5; step++) {
        grid_write(f->dev, &n, axes, GRID_POINTS, (uint32_t)step);
        grid_write(f->dev, &dense, axes, GRID_POINTS, (uint32_t)step);
        OK(f->dev, gpunn_zero_grad(twin));
        OK(f->dev, gpunn_backward(dense.loss));
        OK(f->dev, gpunn_read_grad(dense.table, g, (size_t)count * sizeof *g));
        OK(f->dev, gpunn_train_step(opt, n.loss));
        sparse_adam(p, m, v, g, count / GRID_FEATURES, step);
        float *actual = read_floats(f->dev, n.table, NULL);
        check_close(actual, p, count, 1e-5, 1e-5);
        free(actual);
    }
    free(p), free(m), free(v), free(g);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(twin);
}

/* No memory of a table's size but the table's and the states'. */
static void test_sparse_memory(void **state)
{
    enum { ROWS = 100000, WIDTH = 16 };
    fixture     *f = *state;
    const size_t table = (size_t)ROWS * WIDTH * sizeof(float);
    lookup       l = lookup_make(f->model, ROWS, WIDTH, 0, true);
    size_t       planned = 0;
    MADE(f->dev, l.loss);
    OK(f->dev, gpunn_set_init(l.table, (gpunn_init){GPUNN_INIT_CONSTANT, 0.5f, 0}));
    OK(f->dev, gpunn_model_summary(f->model, .loss = l.loss, .batch_size = 100, .bytes = &planned));
    assert_true(planned < table + table / 8);
    for (int kind = 0; kind < 2; kind++) {
        gpunn_optimizer *opt = MADE(f->dev,
                                    kind ? gpunn_adam(f->model, .lr = 0) : gpunn_sgd(f->model, .lr = 0.1f));
        lookup_write(f->dev, &l, 100, ROWS, WIDTH, 3);
        OK(f->dev, gpunn_train_step(opt, l.loss));
        OK(f->dev, gpunn_train_step(opt, l.loss));
        gpunn_optimizer_destroy(opt);
        assert_true(gpunn_memory_peak(f->dev) < (kind ? 3 : 1) * table + table / 4);
    }
}

/* A step with a gradient that is not finite changes nothing, and a checkpoint continues as if there had been
 * none. */
static void test_sparse_state(void **state)
{
    fixture         *f = *state;
    const char      *path = test_path(f, "sparse.ckpt");
    gpunn_model     *twin = MADE(f->dev, gpunn_model_create(f->dev));
    lookup           l = lookup_make(f->model, 12, 5, 0, true), other = lookup_make(twin, 12, 5, 0, true);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(f->model, .lr = 0.02f)),
                    *again = MADE(f->dev, gpunn_adam(twin, .lr = 0.02f));
    const float zeros[12 * 5] = {0},
                           bad[2 * 5] = {0, 0, 3e38f, 0, 0, 0, 0, 3e38f}; /* their sum is infinite */
    OK(f->dev, gpunn_write(l.table, zeros, sizeof zeros));
    for (int step = 0; step < 3; step++) {
        lookup_write(f->dev, &l, 4, 12, 5, (uint32_t)step);
        OK(f->dev, gpunn_train_step(opt, l.loss));
    }
    OK(f->dev, gpunn_checkpoint_save(opt, NULL, path));
    OK(f->dev, gpunn_checkpoint_load(again, NULL, path));
    assert_int_equal(remove(path), 0);
    OK(f->dev, gpunn_write(l.tokens, (int64_t[2]){1, 1}, 2 * sizeof(int64_t)));
    OK(f->dev, gpunn_write(l.g, bad, sizeof bad));
    gpunn_status status = gpunn_train_step(opt, l.loss);
    if (status == GPUNN_OK) status = gpunn_synchronize(f->dev);
    FAILS(f->dev, status, GPUNN_ERR_NUMERIC, "'words.weight'", "infinite");
    gpunn_set_skip_nan(opt, true);
    OK(f->dev, gpunn_train_step(opt, l.loss));
    OK(f->dev, gpunn_synchronize(f->dev));
    gpunn_set_skip_nan(opt, false);
    same_values(f->dev, l.table, other.table, 0);
    for (int step = 3; step < 6; step++) {
        lookup_write(f->dev, &l, 5, 12, 5, (uint32_t)step);
        lookup_write(f->dev, &other, 5, 12, 5, (uint32_t)step);
        OK(f->dev, gpunn_train_step(opt, l.loss));
        OK(f->dev, gpunn_train_step(again, other.loss));
        same_values(f->dev, l.table, other.table, 1e-6);
    }
    gpunn_optimizer_destroy(opt), gpunn_optimizer_destroy(again);
    gpunn_model_destroy(twin);
}

/* An optimizer that cannot train the table says so; one of the table's own helps. */
static void refused(fixture *f, const lookup *l, gpunn_optimizer *opt, const char *word)
{
    MADE(f->dev, opt);
    FAILS(f->dev, gpunn_train_step(opt, l->loss), GPUNN_ERR_UNSUPPORTED, "'words.weight'", ".sparse", word);
    gpunn_optimizer_destroy(opt);
}

static void test_sparse_refusals(void **state)
{
    fixture      *f = *state;
    float         memory[12 * 5];
    lookup        l = lookup_make(f->model, 12, 5, 0, true);
    gpunn_tensor *free_table = MADE(
        f->dev, gpunn_parameter(f->model, "free", GPUNN_SHAPE(12, 5), (gpunn_init){GPUNN_INIT_ZEROS, 0, 0}));
    lookup_write(f->dev, &l, 4, 12, 5, 1);
    refused(f, &l, gpunn_adamw(f->model, .lr = 0), "gpunn_adamw");
    refused(f, &l, gpunn_lamb(f->model, .lr = 0), "gpunn_lamb");
    refused(f, &l, gpunn_sgd(f->model, .lr = 0.1f, .momentum = 0.9f), "momentum");
    refused(f, &l, gpunn_adam(f->model, .weight_decay = 0.1f), "weight_decay");
    FAILS_NULL(f->dev, gpunn_embedding(l.tokens, "other", .weight = free_table, .sparse = true),
               GPUNN_ERR_ARGUMENT, ".sparse", ".weight");
    FAILS(f->dev, gpunn_bind_grad(l.table, memory, sizeof memory), GPUNN_ERR_UNSUPPORTED, "sparse");
    OK(f->dev, gpunn_set_decay(l.table, false));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(f->model, .weight_decay = 0.1f));
    OK(f->dev, gpunn_train_step(opt, l.loss));
    FAILS_NULL(f->dev, gpunn_data_grad(l.table), GPUNN_ERR_UNSUPPORTED, "gpunn_read_grad");
    gpunn_optimizer_destroy(opt);
    opt = MADE(f->dev, gpunn_adamw(f->model, .lr = 0));
    OK(f->dev, gpunn_set_trainable(l.table, false));
    gpunn_tensor *head = gpunn_linear(l.g, "head", .out_features = 1),
                 *loss = MADE(f->dev, gpunn_add(l.loss, gpunn_sum(head, GPUNN_ALL, false)));
    OK(f->dev, gpunn_train_step(opt, loss));
    OK(f->dev, gpunn_set_trainable(l.table, true));
    gpunn_optimizer_destroy(opt);
    gpunn_optimizer *own = MADE(f->dev, gpunn_adam(f->model, .prefix = "words"));
    opt = MADE(f->dev, gpunn_adamw(f->model, .prefix = "head"));
    OK(f->dev, gpunn_backward(loss));
    OK(f->dev, gpunn_optimizer_step(opt));
    OK(f->dev, gpunn_optimizer_step(own));
    gpunn_optimizer_destroy(own);
    gpunn_tensor *tied = gpunn_linear(l.g, "tied", .weight = l.table),
                 *both = MADE(f->dev, gpunn_add(l.loss, gpunn_sum(tied, GPUNN_ALL, false)));
    FAILS(f->dev, gpunn_backward(both), GPUNN_ERR_UNSUPPORTED, "linear 'tied'", "'words.weight'", ".sparse");
    OK(f->dev, gpunn_forward(&both, 1));
    gpunn_optimizer_destroy(opt);
}

int main(void)
{
    static struct CMUnitTest tests[256];
    int                      count = 0;
    optimizers = golden_open("tests/golden/optimizers.safetensors");
    muon = golden_open("tests/golden/muon.safetensors");
    schedules = golden_open("tests/golden/schedules.safetensors");
    models = golden_open("tests/golden/models.safetensors");
    sparse = golden_open("tests/golden/sparse.safetensors");
    for (int i = 0; i < COUNT(optimizer_cases); i++)
        count += each_backend(tests + count, optimizer_cases[i].name, test_optimizer, &optimizer_cases[i]);
    for (int i = 0; i < COUNT(muon_cases); i++)
        count += each_backend(tests + count, muon_cases[i].name, test_muon, &muon_cases[i]);
    count += each_backend(tests + count, "muon half", test_muon_half, NULL);
    count += each_backend(tests + count, "average 0.9", test_average, "0.9");
    count += each_backend(tests + count, "average 0.3", test_average, "0.3");
    for (int i = 0; i < COUNT(schedule_cases); i++)
        count += each_backend(tests + count, schedule_cases[i].name, test_schedule, &schedule_cases[i]);
    count += each_backend(tests + count, "schedules at their limits", test_schedule_limits, NULL);
    for (int i = 0; i < COUNT(model_cases); i++)
        count += each_backend(tests + count, model_cases[i].name, test_model, &model_cases[i]);
    for (int i = 0; i < COUNT(parts_cases); i++)
        count += each_backend(tests + count, parts_cases[i].name, test_parts, &parts_cases[i]);
    for (int i = 0; i < COUNT(sparse_cases); i++)
        count += each_backend(tests + count, sparse_cases[i].name, test_sparse, &sparse_cases[i]);
    for (int i = 0; i < COUNT(sparse_shapes); i++)
        count += each_backend(tests + count, sparse_shapes[i].name, test_sparse_as_dense, &sparse_shapes[i]);
    for (int i = 0; i < COUNT(grid_axes); i++) {
        count += each_backend(tests + count, "sparse hash grid", test_sparse_grid, &grid_axes[i]);
        count += each_backend(tests + count, "sparse hash grid, adam", test_sparse_grid_adam, &grid_axes[i]);
    }
    count += each_backend(tests + count, "sparse tables", test_sparse_tables, NULL);
    count += each_backend(tests + count, "sparse grows", test_sparse_grows, NULL);
    count += each_backend(tests + count, "sparse threads", test_sparse_threads, NULL);
    count += each_backend(tests + count, "sparse half", test_sparse_half, NULL);
    count += each_backend(tests + count, "sparse memory", test_sparse_memory, NULL);
    count += each_backend(tests + count, "sparse state", test_sparse_state, NULL);
    count += each_backend(tests + count, "sparse refusals", test_sparse_refusals, NULL);
    count += missing_backends(tests + count);
    int failed = _cmocka_run_group_tests("training", tests, (size_t)count, NULL, NULL);
    golden_close(&optimizers), golden_close(&schedules), golden_close(&models), golden_close(&sparse),
        golden_close(&muon);
    return failed;
}
