/* Random sequences of calls beside a fresh twin. The model of a sequence is trained, set, saved and loaded,
 * and between that does what must not count: it runs other outputs at other batch sizes, is told wrong
 * things, lacks memory, saves, moves to another device and back. Then a twin on a fresh device does what
 * counted, and nothing else. Both must be equal, bit for bit.
 *
 * GPUNN_TEST_ROUNDS: sequences, of which number i is that of GPUNN_TEST_SEED + i. A sequence that fails is
 * printed. */
#include "../test.h"

extern bool emulator_fail_allocation(long allocation, bool on) __attribute__((weak));

/* What counts. */
typedef enum act_kind {
    STEP,          /* a training step of `batch` samples drawn from `seed` */
    BACKWARD,      /* gradients of such, added up */
    ZERO_GRAD,     /* */
    UPDATE,        /* the optimizer's step alone */
    LR,            /* to `value`, like the next two */
    CLIP_NORM,     /* */
    CLIP_VALUE,    /* */
    SCHEDULE_STEP, /* with the metric `value` */
    EMA,           /* another decay */
    TRAINABLE,     /* of parameter `index`: value != 0; the next two the same */
    DECAY,         /* */
    LR_SCALE,      /* to `value` */
    WRITE,         /* parameter `index` gets values drawn from `seed` */
    LOAD,          /* weights, from file `index` */
    /* a step that fails on its values: a label out of range or, index 1, NaN in the samples. No parameter
     * changes; its forward pass has happened, for running statistics and dropout */
    WRONG_STEP,
    COUNTING_KINDS
} act_kind;
static const char *const act_names[] = {"step",      "backward",   "zero_grad",     "update", "lr",
                                        "clip_norm", "clip_value", "schedule_step", "ema",    "trainable",
                                        "decay",     "lr_scale",   "write",         "load",   "wrong step"};
typedef struct act {
    act_kind kind;
    int      batch, index;
    uint32_t seed;
    float    value;
} act;

/* What does not. */
typedef enum detour {
    FORWARD,
    READ,
    SUMMARY,
    EMPTY_CACHE,
    SAVE,
    SAVE_SPEC,
    SWAP_AVERAGES,
    SET_AND_BACK,
    LATER_OP,
    WRONG_SHAPE,
    WRONG_BYTES,
    WRONG_BATCHES,
    WRONG_FILE,
    MOVE,
    DETOURS
} detour;
static const char *const detour_names[] = {
    "forward",      "read",     "summary",     "empty_cache", "save",          "save_spec",  "swap",
    "set and back", "later op", "wrong shape", "wrong bytes", "wrong batches", "wrong file", "move"};

enum { ACTS = 40, FILES = 3, LONGEST = 8 * ACTS, MOST = 5 }; /* MOST: samples of a batch */
typedef struct history {
    act acts[LONGEST];
    int count;
} history;

typedef struct side {
    fixture         *f;
    gpunn_device    *dev[2]; /* the model is on dev[at]; [1]: NULL until it moves */
    int              at;
    gpunn_model     *model;
    net              n;
    gpunn_optimizer *opt;
    bool             averages;
} side;

/* ---- chance ---- */
static uint32_t random_state;
static unsigned drawn(unsigned below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % below;
}
static void begin_draw(uint32_t seed, uint32_t step)
{
    random_state = seed * 2654435769u + step;
    for (int i = 0; i < 2; i++) random_state = (random_state ^ random_state >> 16) * 0x45d9f3bu;
    random_state ^= random_state >> 16;
}

/* ---- a failed sequence tells what it was ---- */
static char   trace[16384];
static size_t trace_used;
static void   note(const char *format, ...) GPUNN__PRINTF(1, 2);
static void   note(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(trace + trace_used, sizeof trace - trace_used, format, list);
    va_end(list);
    if (length > 0 && trace_used + (size_t)length < sizeof trace) trace_used += (size_t)length;
}

/* ---- a call, now and then without memory; then it is made again ---- */
static bool scarce; /* in this sequence */
static void arm(const side *s)
{
    if (!scarce || drawn(4) != 0) return;
    if (emulator_fail_allocation && drawn(2))
        (void)emulator_fail_allocation(1 + (long)drawn(6), drawn(2) != 0);
    else
        s->f->memory.fail_at = s->f->memory.calls + 1 + (long)drawn(12);
}
/* dev: of whose failure it is */
static bool again_on(const side *s, gpunn_device *dev, gpunn_status status)
{
    if (emulator_fail_allocation) (void)emulator_fail_allocation(0, false);
    s->f->memory.fail_at = 0;
    if (!scarce || status != GPUNN_ERR_MEMORY) return false;
    check_sentence(dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
    note(" (memory)");
    return true;
}
static bool again(const side *s, gpunn_status status)
{
    return again_on(s, s->dev[s->at], status);
}
#define DO(s, call)                                                      \
    do {                                                                 \
        arm(s);                                                          \
        gpunn_status status_ = (call);                                   \
        if (again((s), status_)) status_ = (call);                       \
        check_ok((s)->dev[(s)->at], status_, #call, __FILE__, __LINE__); \
    } while (0)

/* ---- both sides ---- */
static gpunn_optimizer *make_optimizer(gpunn_model *model, unsigned kind)
{
    switch (kind) {
    case 0: return gpunn_sgd(model, .lr = 0.05f, .momentum = 0.9f, .nesterov = true, .weight_decay = 0.01f);
    case 1: return gpunn_adam(model, .lr = 0.01f, .weight_decay = 0.1f);
    case 2: return gpunn_adamw(model, .lr = 0.01f);
    case 3: return gpunn_rmsprop(model, .lr = 0.01f, .momentum = 0.5f, .centered = true);
    case 4: return gpunn_adagrad(model, .lr = 0.1f, .lr_decay = 0.1f);
    case 5: return gpunn_adamax(model, .lr = 0.01f);
    case 6: return gpunn_nadam(model, .lr = 0.01f);
    case 7: return gpunn_radam(model, .lr = 0.01f, .beta2 = 0.9f);
    case 8: return gpunn_lamb(model, .lr = 0.01f);
    case 9: return gpunn_muon(model, .lr = 0.01f);
    default: return gpunn_lion(model, .lr = 0.01f);
    }
}
static gpunn_device *open_device(fixture *f)
{
    gpunn_device *dev = gpunn_device_open(ON(f->backend), .seed = 3, .threads = 2, .realloc_fn = hook_realloc,
                                          .user = &f->memory);
    if (dev == NULL) fail_msg("gpunn_device_open: %s", gpunn_error(NULL));
    return dev;
}
static side open_side(fixture *f, unsigned optimizer, bool plateau, bool averages)
{
    side s = {.f = f, .averages = averages};
    s.dev[0] = open_device(f);
    s.model = MADE(s.dev[0], gpunn_model_create(s.dev[0]));
    s.n = net_make(s.model);
    MADE(s.dev[0], s.n.accuracy);
    s.opt = MADE(s.dev[0], make_optimizer(s.model, optimizer));
    OK(s.dev[0],
       plateau ? gpunn_set_schedule(s.opt, .type = GPUNN_SCHEDULE_PLATEAU, .patience = 1, .factor = 0.5f)
               : gpunn_set_schedule(s.opt, .type = GPUNN_SCHEDULE_COSINE, .total_steps = 9));
    if (averages) OK(s.dev[0], gpunn_set_ema(s.opt, 0.8f));
    return s;
}
static void close_side(side *s)
{
    gpunn_optimizer_destroy(s->opt);
    gpunn_model_destroy(s->model);
    gpunn_device_close(s->dev[0]);
    gpunn_device_close(s->dev[1]);
}

static const char *file_name(const side *s, int index, bool checkpoint)
{
    char name[32];
    (void)snprintf(name, sizeof name, "%s%d", checkpoint ? "checkpoint" : "weights", index);
    return test_path(s->f, name);
}

static void write_batch(side *s, int batch, uint32_t seed)
{
    float   *x;
    int64_t *t;
    net_data(batch, seed, &x, &t);
    DO(s, gpunn_write(s->n.x, x, (size_t)batch * NET_X * sizeof *x));
    DO(s, gpunn_write(s->n.t, t, (size_t)batch * sizeof *t));
    free(x), free(t);
}

/* The parameters, or (all) these and the running statistics, one after another. */
static float *read_parameters(const side *s, bool all, int64_t *total)
{
    float *values = NULL;
    *total = 0;
    for (int i = 0; i < gpunn_parameter_count(s->model); i++) {
        gpunn_tensor *p = gpunn_parameter_at(s->model, i);
        if (!all && strstr(gpunn_tensor_name(p), "running_")) continue;
        int64_t n;
        float  *one = read_floats(s->dev[s->at], p, &n);
        values = realloc(values, (size_t)(*total + n) * sizeof *values);
        memcpy(values + *total, one, (size_t)n * sizeof *values);
        *total += n;
        free(one);
    }
    return values;
}

/* A training step that fails, and changes no parameter; whatever it is, or (all) nothing else. */
static void wrong_step(side *s, bool all)
{
    gpunn_device *dev = s->dev[s->at];
    int64_t       n, m;
    float        *before = read_parameters(s, all, &n);
    gpunn_status  status;
    arm(s);
    status = settled(dev, gpunn_train_step(s->opt, s->n.loss));
    if (again(s, status)) status = settled(dev, gpunn_train_step(s->opt, s->n.loss));
    if (status != GPUNN_ERR_ARGUMENT && status != GPUNN_ERR_SHAPE && status != GPUNN_ERR_STATE &&
        status != GPUNN_ERR_NUMERIC)
        fail_msg("a wrong step gave %s: %s", gpunn_status_name(status), gpunn_error(dev));
    assert_true(gpunn_last_status(dev) == status && strlen(gpunn_error(dev)) > 20);
    gpunn_clear_error(dev);
    float *after = read_parameters(s, all, &m);
    assert_int_equal(n, m);
    assert_memory_equal(before, after, (size_t)n * sizeof *after);
    free(before), free(after);
}

static void apply(side *s, const act *a)
{
    gpunn_tensor *p = gpunn_parameter_at(s->model, a->index);
    switch (a->kind) {
    case STEP:
        write_batch(s, a->batch, a->seed);
        DO(s, gpunn_train_step(s->opt, s->n.loss));
        break;
    case BACKWARD:
        write_batch(s, a->batch, a->seed);
        DO(s, gpunn_backward(s->n.loss));
        break;
    case ZERO_GRAD: DO(s, gpunn_zero_grad(s->model)); break;
    case UPDATE: DO(s, gpunn_optimizer_step(s->opt)); break;
    case LR: gpunn_set_lr(s->opt, a->value); break;
    case CLIP_NORM: gpunn_set_clip_norm(s->opt, a->value); break;
    case CLIP_VALUE: gpunn_set_clip_value(s->opt, a->value); break;
    case SCHEDULE_STEP: DO(s, gpunn_schedule_step(s->opt, a->value)); break;
    case EMA:
        if (s->averages) DO(s, gpunn_set_ema(s->opt, a->value));
        break;
    case TRAINABLE: DO(s, gpunn_set_trainable(p, a->value != 0)); break;
    case DECAY: DO(s, gpunn_set_decay(p, a->value != 0)); break;
    case LR_SCALE: DO(s, gpunn_set_lr_scale(p, a->value)); break;
    case WRITE: {
        const size_t bytes = gpunn_tensor_bytes(p);
        float       *values = test_randoms((int64_t)(bytes / sizeof *values), a->seed, 0.5f);
        DO(s, gpunn_write(p, values, bytes));
        free(values);
        break;
    }
    case LOAD: DO(s, gpunn_load(s->model, file_name(s, a->index, false))); break;
    default: {
        const int64_t label = 7;
        float         x[NET_X];
        for (int i = 0; i < NET_X; i++) x[i] = NAN;
        write_batch(s, 1, a->seed);
        DO(s, a->index ? gpunn_write(s->n.x, x, sizeof x) : gpunn_write(s->n.t, &label, sizeof label));
        wrong_step(s, false);
        DO(s, gpunn_zero_grad(s->model));
    }
    }
}

/* ---- the model of the sequence ---- */
typedef struct sequence {
    side          s;
    history       done;
    history       saved[FILES]; /* what counted before each checkpoint */
    bool          is_saved[FILES], has_weights[FILES];
    gpunn_tensor *later;
    float         lr;
    int           parameters[8], parameter_count; /* without running statistics */
    /* the last of TRAINABLE, DECAY and LR_SCALE of each: no file has them */
    act flags[8][3];
} sequence;

static void count(sequence *q, act a)
{
    assert_true(q->done.count < LONGEST);
    q->done.acts[q->done.count++] = a;
    apply(&q->s, &a);
}

static void random_act(sequence *q)
{
    static const float rates[] = {0.001f, 0.01f, 0.05f}, clips[] = {0, 0.1f, 1};
    const unsigned     kind = drawn(COUNTING_KINDS + 8);
    act a = {kind < COUNTING_KINDS ? (act_kind)kind : STEP, 1 + (int)drawn(MOST), 0, 1 + drawn(1000), 0};
    const int which = (int)drawn((unsigned)q->parameter_count);
    a.index = q->parameters[which];
    switch (a.kind) {
    case LR: a.value = rates[drawn(3)]; break;
    case CLIP_NORM:
    case CLIP_VALUE: a.value = clips[drawn(3)]; break;
    case SCHEDULE_STEP: a.value = (float)drawn(10); break;
    case EMA: a.value = drawn(2) ? 0.8f : 0.5f; break;
    case TRAINABLE:
    case DECAY: a.value = (float)drawn(2); break;
    case LR_SCALE: a.value = drawn(2) ? 1 : 0.5f; break;
    case LOAD:
        a.index = (int)drawn(FILES);
        if (!q->has_weights[a.index]) return;
        break;
    case WRONG_STEP: a.index = drawn(8) == 0; break;
    default: break;
    }
    if (a.kind >= TRAINABLE && a.kind <= LR_SCALE) q->flags[which][a.kind - TRAINABLE] = a;
    note(" %s", act_names[a.kind]);
    if (a.kind == STEP || a.kind == BACKWARD) note("(%d)", a.batch);
    count(q, a);
}

/* Back to a checkpoint, or a new one. */
static void checkpoint(sequence *q)
{
    const int   i = (int)drawn(FILES);
    const char *path = file_name(&q->s, i, true);
    if (!q->is_saved[i] || drawn(2)) {
        note(" checkpoint_save %d", i);
        DO(&q->s, gpunn_checkpoint_save(q->s.opt, NULL, path));
        q->is_saved[i] = true;
        q->saved[i] = q->done;
        return;
    }
    if (q->saved[i].count > LONGEST - 3 * ACTS) return;
    note(" checkpoint_load %d", i);
    DO(&q->s, gpunn_checkpoint_load(q->s.opt, NULL, path));
    q->done = q->saved[i];
    for (int p = 0; p < q->parameter_count; p++)
        for (int k = 0; k < 3; k++) count(q, q->flags[p][k]);
    const act zero = {ZERO_GRAD, 0, 0, 0, 0};
    count(q, zero);
}

static void make_detour(sequence *q)
{
    side          *s = &q->s;
    gpunn_device  *dev = s->dev[s->at];
    const detour   d = (detour)drawn(DETOURS);
    const int64_t  label = 7;
    const float    bad[] = {NAN, INFINITY};
    gpunn_tensor  *outputs[] = {s->n.logits, s->n.loss, s->n.accuracy, q->later ? q->later : s->n.logits};
    const unsigned first = drawn(4);
    note(" [%s]", detour_names[d]);
    switch (d) {
    case FORWARD:
        write_batch(s, 1 + (int)drawn(MOST), drawn(1000));
        DO(s, gpunn_forward(outputs + first, 1 + (int)drawn(4 - first)));
        break;
    case READ: {
        float value[64];
        DO(s, gpunn_read(gpunn_find(s->model, "fc2.weight"), value, 21 * sizeof *value));
        if (gpunn_read(s->n.logits, value, 12) != GPUNN_OK) gpunn_clear_error(dev); /* it may not have one */
        break;
    }
    case SUMMARY:
        DO(s, gpunn_model_summary(s->model, .batch_size = 1 + drawn(MOST), .loss = s->n.loss));
        break;
    case EMPTY_CACHE: gpunn_empty_cache(dev); break;
    case SAVE: {
        const int i = (int)drawn(FILES);
        for (int k = 0; k < q->done.count; k++) /* the twin needs that file */
            if (q->done.acts[k].kind == LOAD && q->done.acts[k].index == i) return;
        for (int c = 0; c < FILES; c++)
            for (int k = 0; q->is_saved[c] && k < q->saved[c].count; k++)
                if (q->saved[c].acts[k].kind == LOAD && q->saved[c].acts[k].index == i) return;
        DO(s, gpunn_save(s->model, file_name(s, i, false)));
        q->has_weights[i] = true;
        break;
    }
    case SAVE_SPEC:
        DO(s, gpunn_spec_save(s->model, test_path(s->f, "spec"), .loss = s->n.loss, .optimizer = s->opt));
        assert_int_equal(unlink(test_path(s->f, "spec")), 0);
        break;
    case SWAP_AVERAGES:
        if (!s->averages || gpunn_step_count(s->opt) == 0) return;
        DO(s, gpunn_ema_swap(s->opt));
        write_batch(s, 2, 1);
        DO(s, gpunn_forward(outputs, 1));
        DO(s, gpunn_ema_swap(s->opt));
        break;
    case SET_AND_BACK: {
        gpunn_tensor *p = gpunn_parameter_at(s->model, q->parameters[0]);
        DO(s, gpunn_set_lr_scale(p, 3));
        DO(s, gpunn_set_lr_scale(p, q->flags[0][LR_SCALE - TRAINABLE].value));
        DO(s, gpunn_set_trainable(p, false));
        write_batch(s, 2, 1);
        DO(s, gpunn_forward(outputs, 2));
        DO(s, gpunn_set_trainable(p, q->flags[0][0].value != 0));
        break;
    }
    case LATER_OP:
        arm(s);
        q->later = gpunn_sum(gpunn_square(s->n.logits), GPUNN_AXES(1), false);
        if (q->later == NULL && again(s, gpunn_last_status(dev)))
            q->later = gpunn_sum(gpunn_square(s->n.logits), GPUNN_AXES(1), false);
        (void)again(s, GPUNN_OK);
        MADE(dev, q->later);
        break;
    case WRONG_SHAPE:
        assert_null(gpunn_linear(gpunn_add(s->n.logits, s->n.x), "later", .out_features = 3));
        gpunn_clear_error(dev);
        break;
    case WRONG_BYTES:
        assert_int_not_equal(gpunn_write(s->n.x, bad, 3), GPUNN_OK);
        gpunn_clear_error(dev);
        break;
    case WRONG_BATCHES:
        write_batch(s, 2, 1);
        DO(s, gpunn_write(s->n.t, &label, sizeof label));
        wrong_step(s, true);
        break;
    case WRONG_FILE: {
        const char *path = test_path(s->f, "wrong");
        file_write(path, "no safetensors", 14);
        assert_int_not_equal(
            drawn(2) ? gpunn_load(s->model, path) : gpunn_checkpoint_load(s->opt, NULL, path), GPUNN_OK);
        gpunn_clear_error(dev);
        assert_int_equal(unlink(path), 0);
        break;
    }
    default:
        if (s->dev[!s->at] == NULL) s->dev[!s->at] = open_device(s->f);
        arm(s);
        gpunn_status status = gpunn_model_to(s->model, s->dev[!s->at]);
        if (again_on(s, s->dev[!s->at], status)) status = gpunn_model_to(s->model, s->dev[!s->at]);
        OK(s->dev[!s->at], status);
        s->at = !s->at;
        const act zero = {ZERO_GRAD, 0, 0, 0, 0}; /* gradients stay behind */
        count(q, zero);
    }
}

static void compare(side *a, side *b)
{
    const char *path = file_name(a, FILES, true);
    int64_t     n, m;
    size_t      sizes[2];
    float      *logits[2];
    side       *sides[] = {a, b};
    check_same_weights(a->dev[a->at], a->model, b->dev[b->at], b->model);
    unsigned char *files[2];
    for (int i = 0; i < 2; i++) {
        side *s = sides[i];
        DO(s, gpunn_checkpoint_save(s->opt, NULL, path));
        files[i] = file_read(path, &sizes[i]);
        write_batch(s, 3, 77);
        DO(s, gpunn_forward(&s->n.logits, 1));
        logits[i] = read_floats(s->dev[s->at], s->n.logits, i ? &m : &n);
    }
    assert_int_equal(n, m);
    assert_memory_equal(logits[0], logits[1], (size_t)n * sizeof **logits);
    assert_int_equal(sizes[0], sizes[1]);
    /* the optimizer's state, its numbers, the random state */
    assert_memory_equal(files[0], files[1], sizes[0]);
    for (int i = 0; i < 2; i++) free(files[i]), free(logits[i]);
    assert_int_equal(unlink(path), 0);
}

static void run_sequence(fixture *f, uint32_t seed)
{
    sequence *q = calloc(1, sizeof *q);
    begin_draw(seed, 0);
    trace_used = 0;
    const unsigned optimizer = drawn(11);
    const bool     plateau = drawn(2), averages = drawn(2);
    scarce = drawn(2);
    note("seed %u: optimizer %u,", (unsigned)seed, optimizer);
    q->s = open_side(f, optimizer, plateau, averages);
    for (int i = 0; i < gpunn_parameter_count(q->s.model); i++) {
        if (strstr(gpunn_tensor_name(gpunn_parameter_at(q->s.model, i)), "running_") ||
            q->parameter_count == COUNT(q->parameters))
            continue;
        for (int k = 0; k < 3; k++) {
            const act set = {(act_kind)(TRAINABLE + k), 0, i, 0, 1};
            q->flags[q->parameter_count][k] = set;
        }
        q->parameters[q->parameter_count++] = i;
    }
    /* from here on every checkpoint has averages, where they are kept */
    const act start = {STEP, 2, 0, seed, 0};
    count(q, start);
    for (int i = 0; i < ACTS; i++) {
        begin_draw(seed, 1 + (uint32_t)i); /* what one draws changes nothing for the next */
        const unsigned what = drawn(20);
        if (what == 0)
            checkpoint(q);
        else if (what < 10)
            make_detour(q);
        else
            random_act(q);
    }
    scarce = false;
    note(" | twin");
    side twin = open_side(f, optimizer, plateau, averages);
    for (int i = 0; i < q->done.count; i++) apply(&twin, &q->done.acts[i]);
    compare(&q->s, &twin);
    for (int i = 0; i < FILES; i++) {
        if (q->is_saved[i]) assert_int_equal(unlink(file_name(&q->s, i, true)), 0);
        if (q->has_weights[i]) assert_int_equal(unlink(file_name(&q->s, i, false)), 0);
    }
    close_side(&twin);
    close_side(&q->s);
    free(q);
    trace_used = 0;
}

static void test_sequences(void **state)
{
    fixture       *f = *state;
    const uint32_t seed = test_seed();
    const long     rounds = test_setting("GPUNN_TEST_ROUNDS", is_emulated(f->backend) ? 30 : 300);
    for (long i = 0; i < rounds; i++) run_sequence(f, seed + (uint32_t)i);
}
static int teardown(void **state)
{
    if (trace_used) print_message("# %s\n", trace);
    return fixture_teardown(state);
}

int main(void)
{
    static struct CMUnitTest tests[8];
    int                      count = each_backend(tests, "sequences", test_sequences, NULL);
    for (int i = 0; i < count; i++) tests[i].teardown_func = teardown;
    count += missing_backends(tests + count);
    return _cmocka_run_group_tests("sequences", tests, (size_t)count, NULL, NULL);
}
