/* The training loop: progress and its bar, evaluation, history, best weights, early stop, cancelling, going
 * on. */
#include "../test.h"

#include <fcntl.h>
#include <pty.h>

typedef struct setup {
    gpunn_device    *dev;
    gpunn_model     *model;
    net              n;
    gpunn_optimizer *opt;
    gpunn_loader    *train, *validation;
    float           *x;
    int64_t         *t;
} setup;
enum { TRAIN = 50, VALIDATION = 17, BATCH = 8 };

static setup make(fixture *f, int kind)
{
    setup s = {f->dev, f->model, net_make(f->model), NULL, NULL, NULL, NULL, NULL};
    net_data(TRAIN + VALIDATION, 3, &s.x, &s.t);
    s.opt = kind == 0   ? gpunn_sgd(s.model, .lr = 0.05f, .momentum = 0.9f)
            : kind == 1 ? gpunn_adam(s.model, .lr = 0.01f)
            : kind == 2 ? gpunn_adamw(s.model, .lr = 0.01f)
            : kind == 3 ? gpunn_rmsprop(s.model, .lr = 0.003f, .momentum = 0.5f, .centered = true)
                        : gpunn_adagrad(s.model, .lr = 0.05f);
    MADE(s.dev, s.opt);
    s.train = MADE(s.dev, gpunn_loader_create(
                              s.model,
                              .fields = {{.input = s.n.x, .samples = s.x}, {.input = s.n.t, .samples = s.t}},
                              .count = TRAIN, .batch_size = BATCH, .shuffle = true, .workers = kind % 2));
    s.validation = MADE(s.dev,
                        gpunn_loader_create(s.model, .count = VALIDATION, .batch_size = BATCH,
                                            .fields = {{.input = s.n.x, .samples = s.x + TRAIN * NET_X},
                                                       {.input = s.n.t, .samples = s.t + TRAIN}}));
    return s;
}
static void unmake(setup *s)
{
    gpunn_loader_destroy(s->train);
    gpunn_loader_destroy(s->validation);
    gpunn_optimizer_destroy(s->opt);
    free(s->x), free(s->t);
}

/* ---- progress ---- */
typedef struct watch {
    int            calls, epochs, stop_after; /* calls; 0: never */
    gpunn_progress last;
    float          losses[64], validation[64];
} watch;
static bool on_progress(void *user, const gpunn_progress *p)
{
    watch *w = user;
    w->calls++;
    assert_true(p->epoch >= 1 && p->epoch <= p->epochs && p->batch >= 1 && p->batch <= p->batches &&
                p->seconds >= 0);
    assert_true(isfinite(p->loss) && p->metric >= 0 && p->metric <= 1 && p->lr > 0);
    if (p->epoch_done) {
        w->losses[w->epochs] = p->loss;
        w->validation[w->epochs++] = p->validation_loss;
        assert_int_equal(p->batch, p->batches);
    }
    w->last = *p;
    return w->stop_after == 0 || w->calls < w->stop_after;
}

static void test_fit(void **state)
{
    fixture    *f = *state;
    setup       s = make(f, 1);
    watch       w = {0};
    int         epochs = 0;
    const char *csv = test_path(f, "history.csv"), *svg = test_path(f, "history.svg"),
               *best = test_path(f, "best.safetensors");
    const char       *checkpoint = test_path(f, "last.ckpt");
    const char *const drawn[] = {"text{", ".title{", ".page{", ".grid{", ".train{", ".validation{"};
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .metric = s.n.accuracy, .train = s.train,
                        .validation = s.validation, .epochs = 12, .on_progress = on_progress, .user = &w,
                        .history_csv = csv, .history_svg = svg, .checkpoint = checkpoint,
                        .best_weights = best, .epochs_run = &epochs));
    assert_int_equal(epochs, 12);
    assert_int_equal(w.epochs, 12);
    assert_int_equal(w.calls, 12 * 7 + 12);
    assert_int_equal(gpunn_step_count(s.opt), 12 * 7);
    assert_true(w.losses[11] < 0.6f * w.losses[0]); /* it learns */
    assert_true(w.last.validation_metric > 0.8f);

    /* evaluation is the mean over samples, not over batches */
    float loss, metric;
    OK(s.dev, gpunn_evaluate(s.validation, s.n.loss, s.n.accuracy, &loss, &metric));
    check_close(&loss, &w.last.validation_loss, 1, 1e-6, 0);
    double sum = 0, hits = 0;
    while (gpunn_next(s.validation)) {
        gpunn_tensor *both[] = {s.n.loss, s.n.accuracy};
        OK(s.dev, gpunn_forward(both, 2));
        sum += (double)gpunn_item(s.n.loss) * gpunn_loader_batch_size(s.validation);
        hits += (double)gpunn_item(s.n.accuracy) * gpunn_loader_batch_size(s.validation);
    }
    check_close(((float[]){loss, metric}), ((float[]){(float)(sum / VALIDATION), (float)(hits / VALIDATION)}),
                2, 1e-6, 0);

    /* the best weights are those of the best epoch */
    int lowest = 0;
    for (int i = 1; i < 12; i++)
        if (w.validation[i] < w.validation[lowest]) lowest = i;
    OK(s.dev, gpunn_load(s.model, best));
    OK(s.dev, gpunn_evaluate(s.validation, s.n.loss, NULL, &loss, NULL));
    check_close(&loss, &w.validation[lowest], 1, 1e-5, 0);

    size_t size;
    char  *text = (char *)file_read(csv, &size);
    int    lines = 0;
    for (char *p = text; (p = strchr(p, '\n')) != NULL; p++) lines++;
    assert_int_equal(lines, 13);
    assert_non_null(strstr(text, "epoch"));
    assert_non_null(strstr(text, "loss"));
    free(text);
    text = (char *)file_read(svg, &size);
    assert_true(strncmp(text, "<svg", 4) == 0 || strncmp(text, "<?xml", 5) == 0);
    assert_non_null(strstr(text, "</svg>"));
    assert_null(strstr(text, "nan"));
    for (int i = 0; i < COUNT(drawn); i++) { /* in light and in dark */
        const char *light = strstr(text, drawn[i]), *dark = strstr(text, "prefers-color-scheme:dark");
        assert_true(light && dark && light < dark && strstr(dark, drawn[i]));
    }
    assert_null(strstr(text, "href"));                          /* self-contained */
    assert_non_null(strstr(text, "viewBox=\"0 0 4700 7200\"")); /* a phone's width */
    free(text);
    assert_int_equal(unlink(csv) | unlink(svg) | unlink(best) | unlink(checkpoint), 0);
    unmake(&s);
}

static void test_cancel(void **state)
{
    fixture *f = *state;
    setup    s = make(f, 0);
    watch    w = {.stop_after = 10};
    int      epochs = -1;
    FAILS(s.dev,
          gpunn_fit(s.opt, .loss = s.n.loss, .metric = s.n.accuracy, .train = s.train, .epochs = 5,
                    .on_progress = on_progress, .user = &w, .epochs_run = &epochs),
          GPUNN_ERR_CANCELLED, "on_progress");
    assert_int_equal(w.calls, 10);
    assert_int_equal(epochs, 1);
    /* everything stays usable */
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = 1));
    unmake(&s);
}

static void test_patience(void **state)
{
    fixture *f = *state;
    setup    s = make(f, 0);
    watch    w = {0};
    int      epochs = 0;
    gpunn_set_lr(s.opt, 1e-12f); /* hardly anything gets better */
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .metric = s.n.accuracy, .train = s.train,
                        .validation = s.validation, .epochs = 60, .patience = 2, .on_progress = on_progress,
                        .user = &w, .epochs_run = &epochs));
    assert_true(epochs >= 3 && epochs < 60);
    int lowest = 0;
    for (int i = 1; i < epochs; i++)
        if (w.validation[i] < w.validation[lowest]) lowest = i;
    assert_int_equal(epochs - 1 - lowest, 2);
    assert_true(w.last.stopped_early && w.last.best_epoch == lowest + 1);
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .validation = s.validation, .epochs = 9,
                        .patience = 2, .epochs_run = &epochs));
    assert_int_equal(epochs, 0); /* it had run out before */
    unmake(&s);
}

/* The first epochs are never the best, and patience counts from their end. */
static void test_min_epochs(void **state)
{
    fixture *f = *state;
    setup    s = make(f, 0);
    watch    w = {0};
    int      epochs = 0;
    gpunn_set_lr(s.opt, 1e-30f); /* no epoch is better than the first one that counts */
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .metric = s.n.accuracy, .train = s.train,
                        .validation = s.validation, .epochs = 5, .min_epochs = 4, .on_progress = on_progress,
                        .user = &w, .epochs_run = &epochs));
    assert_int_equal(epochs, 5);
    assert_int_equal(w.last.best_epoch, 5);
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .metric = s.n.accuracy, .train = s.train,
                        .validation = s.validation, .epochs = 20, .min_epochs = 7, .patience = 3,
                        .on_progress = on_progress, .user = &w, .epochs_run = &epochs));
    assert_int_equal(epochs, 7 + 3 - 5);
    assert_true(w.last.stopped_early && w.last.best_epoch == 5);
    FAILS(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = 1, .min_epochs = -1),
          GPUNN_ERR_ARGUMENT, "min_epochs -1");
    unmake(&s);
}

typedef struct worsening {
    gpunn_optimizer *opt;
    int              best, stop_after; /* epochs; stop_after 0: never */
} worsening;

/* After the best epoch the steps go uphill. */
static bool worsen(void *user, const gpunn_progress *p)
{
    const worsening *w = user;
    if (p->epoch_done && p->epoch == w->best) gpunn_set_lr(w->opt, 0.5f);
    return !p->epoch_done || p->epoch != w->stop_after;
}

/* The model ends with the weights of the best epoch, which are those of .best_weights. They outlive a call;
 * what the program loads in between stays where no epoch runs, and a checkpoint begins without them. */
static void test_restore_best(void **state)
{
    fixture    *f = *state;
    setup       s = make(f, 0);
    worsening   w = {s.opt, 3, 0};
    int64_t     count;
    const char *best = test_path(f, "best.safetensors"), *checkpoint = test_path(f, "best.ckpt");
    gpunn_set_clip_norm(s.opt, 1);      /* uphill, but not to infinity */
    for (int way = 0; way < 3; way++) { /* ends after all epochs, by patience, by a callback */
        gpunn_set_lr(s.opt, 0.01f);
        w.best = 3 + 7 * way;
        w.stop_after = way == 2 ? w.best + 2 : 0;
        const gpunn_status status = gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train,
                                              .validation = s.validation, .epochs = way ? 9 : 7,
                                              .patience = way == 1 ? 4 : 0, .best_weights = best,
                                              .restore_best = true, .on_progress = worsen, .user = &w);
        assert_int_equal(status, way == 2 ? GPUNN_ERR_CANCELLED : GPUNN_OK);
        if (way == 2) check_sentence(s.dev, status, __FILE__, __LINE__, "on_progress", (const char *)NULL);
        float *held = read_weights(s.dev, s.model, &count), loss, again;
        OK(s.dev, gpunn_evaluate(s.validation, s.n.loss, NULL, &loss, NULL));
        OK(s.dev, gpunn_load(s.model, best));
        float *saved = read_weights(s.dev, s.model, &count);
        OK(s.dev, gpunn_evaluate(s.validation, s.n.loss, NULL, &again, NULL));
        assert_memory_equal(held, saved, (size_t)count * sizeof *held);
        assert_true(loss == again);
        free(held), free(saved);
    }
    OK(s.dev, gpunn_checkpoint_save(s.opt, NULL, checkpoint));
    const float   zeros[64] = {0};
    gpunn_tensor *first = gpunn_parameter_at(s.model, 0);
    OK(s.dev, gpunn_write(first, zeros, gpunn_tensor_bytes(first)));
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .validation = s.validation,
                        .epochs = GPUNN_ZERO, .restore_best = true));
    float value[64];
    OK(s.dev, gpunn_read(first, value, gpunn_tensor_bytes(first)));
    assert_memory_equal(value, zeros, gpunn_tensor_bytes(first));
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .validation = s.validation, .epochs = 1,
                        .restore_best = true));
    OK(s.dev, gpunn_read(first, value, gpunn_tensor_bytes(first)));
    assert_memory_not_equal(value, zeros, gpunn_tensor_bytes(first));
    OK(s.dev, gpunn_checkpoint_load(s.opt, NULL, checkpoint));
    gpunn_set_lr(s.opt, 0);
    OK(s.dev, gpunn_write(first, zeros, gpunn_tensor_bytes(first)));
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .validation = s.validation, .epochs = 1,
                        .restore_best = true));
    OK(s.dev, gpunn_read(first, value, gpunn_tensor_bytes(first)));
    assert_memory_equal(value, zeros, gpunn_tensor_bytes(first));
    assert_int_equal(unlink(best) | unlink(checkpoint), 0);
    unmake(&s);
}

static void test_schedule_in_fit(void **state)
{
    fixture *f = *state;
    setup    s = make(f, 0);
    float    lr;
    OK(s.dev, gpunn_set_schedule(s.opt, .type = GPUNN_SCHEDULE_EXPONENTIAL, .gamma = 0.5f));
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = 3));
    lr = gpunn_get_lr(s.opt);
    check_close(&lr, &(float){0.05f / 8}, 1, 1e-6, 0);
    gpunn_set_lr(s.opt, 0.05f);
    OK(s.dev, gpunn_set_schedule(s.opt, .type = GPUNN_SCHEDULE_STEP, .step_size = 7, .gamma = 0.5f));
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = 2, .schedule_per_batch = true));
    lr = gpunn_get_lr(s.opt);
    check_close(&lr, &(float){0.05f / 4}, 1, 1e-6, 0);
    unmake(&s);
}

/* Averages are validated and saved, the weights train on: as they do without, bit for bit. */
static void test_averages(void **state)
{
    fixture    *f = *state;
    setup       s = make(f, 1);
    char        best[224];
    float      *trained[2] = {NULL, NULL}, loss[3];
    int64_t     count;
    const char *checkpoint;
    (void)strcpy(best, test_path(f, "best.safetensors"));
    OK(s.dev, gpunn_set_ema(s.opt, 0.9f));
    checkpoint = test_path(f, "start.ckpt");
    OK(s.dev, gpunn_checkpoint_save(s.opt, s.train, checkpoint));
    for (int plain = 0; plain < 2; plain++) {
        watch w = {0};
        OK(s.dev, gpunn_checkpoint_load(s.opt, s.train, checkpoint));
        OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .metric = s.n.accuracy, .train = s.train,
                            .validation = s.validation, .epochs = 4, .on_progress = on_progress, .user = &w,
                            .best_weights = best, .no_ema = plain));
        trained[plain] = read_weights(s.dev, s.model, &count);
        OK(s.dev, gpunn_evaluate(s.validation, s.n.loss, NULL, &loss[0], NULL));
        OK(s.dev, gpunn_ema_swap(s.opt));
        OK(s.dev, gpunn_evaluate(s.validation, s.n.loss, NULL, &loss[1], NULL));
        OK(s.dev, gpunn_ema_swap(s.opt));
        assert_true(w.last.validation_loss == loss[!plain] && loss[0] != loss[1]);
        int lowest = 0;
        for (int i = 1; i < 4; i++)
            if (w.validation[i] < w.validation[lowest]) lowest = i;
        OK(s.dev, gpunn_load(s.model, best));
        OK(s.dev, gpunn_evaluate(s.validation, s.n.loss, NULL, &loss[2], NULL));
        assert_true(loss[2] == w.validation[lowest]);
    }
    assert_memory_equal(trained[0], trained[1], (size_t)count * sizeof **trained);

    /* without validation best_weights are the averages too; after an error the weights are back in their
     * place */
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = 1, .best_weights = best));
    float *weights = read_weights(s.dev, s.model, &count);
    OK(s.dev, gpunn_load(s.model, best));
    float *saved = read_weights(s.dev, s.model, &count);
    assert_memory_not_equal(saved, weights, (size_t)count * sizeof *saved);
    OK(s.dev, gpunn_ema_swap(s.opt));
    float *averages = read_weights(s.dev, s.model, &count);
    assert_memory_equal(saved, averages, (size_t)count * sizeof *saved);
    OK(s.dev, gpunn_ema_swap(s.opt));
    FAILS(s.dev,
          gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .validation = s.validation, .epochs = 1,
                    .best_weights = "/no/such/folder/w"),
          GPUNN_ERR_IO, "/no/such/folder/w");
    OK(s.dev, gpunn_train_step(s.opt, s.n.loss));
    assert_int_equal(unlink(best) | unlink(checkpoint), 0);
    free(trained[0]), free(trained[1]), free(weights), free(saved), free(averages);
    unmake(&s);
}

/* ---- going on ------------------------------------------------------------------------------------------ */
/* The file without its last column, the seconds. */
static char *read_history(const char *path)
{
    size_t size;
    char  *text = (char *)file_read(path, &size), *to = text, *comma = NULL;
    for (char *from = text; *from; from++) {
        if (*from == ',') comma = to;
        if (*from == '\n' && comma) to = comma;
        *to++ = *from;
    }
    *to = 0;
    return text;
}

typedef struct ended {
    char   *history;
    float  *weights, *best;
    int64_t count;
    watch   w;
} ended;

/* So many epochs by one call, then by another, which another process may make. */
static ended go(fixture *f, int first, int second, bool restart)
{
    gpunn_model *model = f->model;
    ended        e = {.count = 0};
    char         csv[224], svg[224], checkpoint[224], best[224];
    (void)strcpy(csv, test_path(f, "history.csv"));
    (void)strcpy(svg, test_path(f, "history.svg"));
    (void)strcpy(checkpoint, test_path(f, "last.ckpt"));
    (void)strcpy(best, test_path(f, "best.safetensors"));
    setup s;
    for (int part = 0; part < (second ? 2 : 1); part++) {
        int epochs = part ? second : first, done = -1;
        if (part == 0 || restart) {
            if (part) unmake(&s), gpunn_model_destroy(f->model);
            f->model = MADE(f->dev, gpunn_model_create(f->dev));
            s = make(f, 0);
            gpunn_set_lr(s.opt, 0.6f); /* so high that later epochs are worse than the best one */
            if (part) OK(f->dev, gpunn_checkpoint_load(s.opt, s.train, checkpoint));
        }
        OK(f->dev, gpunn_fit(s.opt, .loss = s.n.loss, .metric = s.n.accuracy, .train = s.train,
                             .validation = s.validation, .epochs = epochs, .on_progress = on_progress,
                             .user = &e.w, .history_csv = csv, .history_svg = svg, .checkpoint = checkpoint,
                             .best_weights = best, .epochs_run = &done));
        assert_int_equal(done, epochs);
        assert_int_equal(e.w.last.epochs, part ? first + second : first);
        assert_string_equal(e.w.last.metric_name, "accuracy");
        /* no epochs: nothing is done, and nothing is written */
        OK(f->dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .validation = s.validation,
                             .epochs = GPUNN_ZERO, .checkpoint = "/no/such/folder/c",
                             .history_csv = "/no/such/folder/h", .epochs_run = &done));
        assert_int_equal(done, 0);
    }
    size_t size;
    char  *drawn = (char *)file_read(svg, &size);
    assert_non_null(strstr(drawn, ">accuracy</text>"));
    free(drawn);
    e.history = read_history(csv);
    e.weights = read_weights(f->dev, f->model, &e.count);
    OK(f->dev, gpunn_load(f->model, best));
    e.best = read_weights(f->dev, f->model, &e.count);
    assert_int_equal(unlink(csv) | unlink(svg) | unlink(best) | unlink(checkpoint), 0);
    unmake(&s);
    gpunn_model_destroy(f->model);
    f->model = model;
    return e;
}

static void test_goes_on(void **state)
{
    fixture *f = *state;
    enum { EPOCHS = 7, FIRST = 4, WAYS = 3 };
    ended e[WAYS];
    for (int way = 0; way < WAYS; way++) {
        e[way] = way ? go(f, FIRST, EPOCHS - FIRST, way == 2) : go(f, EPOCHS, 0, false);
        assert_string_equal(e[way].history, e[0].history);
        assert_memory_equal(e[way].weights, e[0].weights, (size_t)e[0].count * sizeof(float));
        assert_memory_equal(e[way].best, e[0].best, (size_t)e[0].count * sizeof(float));
        assert_int_equal(e[way].w.last.best_epoch, e[0].w.last.best_epoch);
        assert_in_range(e[way].w.last.best_epoch, 1, FIRST); /* so that a lost record would show */
    }
    for (int way = 0; way < WAYS; way++) free(e[way].history), free(e[way].weights), free(e[way].best);
}

/* A rate that is really 0 is written GPUNN_ZERO, or set. */
static void test_rate_zero(void **state)
{
    fixture         *f = *state;
    net              n = net_make(f->model);
    gpunn_optimizer *opt[2] = {gpunn_sgd(f->model, .lr = GPUNN_ZERO), gpunn_sgd(f->model, .lr = 1)};
    float           *x;
    int64_t         *t;
    net_data(BATCH, 3, &x, &t);
    gpunn_set_lr(opt[1], 0);
    for (int i = 0; i < 2; i++) {
        OK(f->dev, gpunn_write(n.x, x, BATCH * NET_X * sizeof *x));
        OK(f->dev, gpunn_write(n.t, t, BATCH * sizeof *t));
        OK(f->dev, gpunn_train_step(opt[i], n.loss));
        assert_true(gpunn_get_lr(opt[i]) == 0);
        for (int k = 0; k < gpunn_parameter_count(f->model); k++) {
            gpunn_tensor *p = gpunn_parameter_at(f->model, k);
            const size_t  bytes = gpunn_tensor_bytes(p);
            if (strstr(gpunn_tensor_name(p), "running_")) continue; /* statistics move */
            float *before = malloc(bytes), *after = malloc(bytes);
            OK(f->dev, gpunn_read(p, before, bytes));
            OK(f->dev, gpunn_train_step(opt[i], n.loss));
            OK(f->dev, gpunn_read(p, after, bytes));
            assert_memory_equal(before, after, bytes);
            free(before), free(after);
        }
    }
    gpunn_optimizer_destroy(opt[0]), gpunn_optimizer_destroy(opt[1]);
    free(x), free(t);
}

/* ---- the bar ------------------------------------------------------------------------------------------- */
/* What it writes for p to a terminal of that many columns; 0: to a file. */
static void bar(const gpunn_progress *p, int columns, char *text, size_t size)
{
    int            both[2], kept = dup(2);
    struct winsize window = {.ws_row = 24, .ws_col = (unsigned short)columns};
    if (columns)
        assert_int_equal(openpty(&both[0], &both[1], NULL, NULL, &window), 0);
    else
        assert_int_equal(pipe(both), 0);
    (void)fcntl(both[0], F_SETFL, O_NONBLOCK);
    (void)dup2(both[1], 2);
    assert_true(gpunn_progress_bar(NULL, p));
    (void)dup2(kept, 2);
    ssize_t got = read(both[0], text, size - 1);
    text[got > 0 ? got : 0] = 0;
    (void)close(both[0]), (void)close(both[1]), (void)close(kept);
}

static void test_bar(void **state)
{
    (void)state;
    char           text[1024];
    gpunn_progress p = {.epoch = 100,
                        .epochs = 1000,
                        .batch = 1,
                        .batches = 100000,
                        .loss = 0.0001234f,
                        .metric = 0.5f,
                        .validation_loss = 0.0001234f,
                        .validation_metric = 0.5f,
                        .seconds = 12345,
                        .metric_name = "accuracy\x1b[2J",
                        .best_epoch = 90};
    for (int columns = 20; columns <= 200; columns += 20)
        for (int done = 0; done < 2; done++) {
            p.epoch_done = done;
            bar(&p, columns, text, sizeof text);
            assert_int_equal(text[0], '\r');
            /* and the terminal's "\r\n" */
            assert_true(strlen(text + 1) <= (size_t)columns - 1 + (done ? 2 : 0));
            assert_null(strchr(text, '\x1b'));
            if (columns >= 120) assert_non_null(strstr(text, "accuracy?[2J 0.5"));
            if (columns >= 120 && !done) assert_non_null(strstr(text, "s left"));
            if (columns >= 160) assert_non_null(strchr(text, '>'));
        }
    p.epoch_done = p.stopped_early = true;
    bar(&p, 0, text, sizeof text);
    assert_non_null(strstr(text, "\nstopped early, epoch 90 was best\n"));
    p.epoch_done = p.stopped_early = false;
    bar(&p, 0, text, sizeof text);
    assert_string_equal(text, "");
    assert_true(gpunn_progress_bar(NULL, NULL));
}

/* ---- callbacks, several metrics, accumulation ---- */
typedef struct calls {
    int            epochs, batches, ends, stop;
    gpunn_tensor  *x;
    gpunn_progress last;
} calls;
static bool on_epoch_begin(void *user, const gpunn_progress *p)
{
    calls *c = user;
    assert_true(!p->epoch_done && p->batch == 0 && p->epoch == c->epochs + 1);
    c->epochs++;
    return true;
}
static bool on_batch_begin(void *user, const gpunn_progress *p)
{
    calls *c = user;
    assert_int_equal(c->batches, c->ends); /* each is followed by its end */
    assert_true(p->batch >= 1 && !p->epoch_done);
    return ++c->batches != c->stop;
}
static bool on_end(void *user, const gpunn_progress *p)
{
    calls *c = user;
    c->ends += !p->epoch_done;
    c->last = *p;
    return true;
}

static void test_callbacks(void **state)
{
    fixture      *f = *state;
    setup         s = make(f, 0);
    calls         c = {0};
    gpunn_tensor *two = MADE(s.dev, gpunn_top_k_accuracy(s.n.logits, s.n.t, 2)),
                 *all = gpunn_top_k_accuracy(s.n.logits, s.n.t, 3);
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .metric = s.n.accuracy, .train = s.train,
                        .validation = s.validation, .epochs = 3, .accumulate = 3, .on_progress = on_end,
                        .user = &c, .metrics = {two, all, s.n.accuracy}, .on_epoch_begin = on_epoch_begin,
                        .on_batch_begin = on_batch_begin));
    assert_int_equal(c.epochs, 3);
    assert_int_equal(c.batches, 21);
    assert_int_equal(c.ends, 21);
    assert_int_equal(gpunn_step_count(s.opt), 3 * 3); /* of 7 batches: 3, 3 and 1 */
    const gpunn_progress *p = &c.last;
    assert_true(p->metrics[1] == 1 && p->validation_metrics[1] == 1 && isnan(p->metrics[3]) &&
                isnan(p->validation_metrics[3]));
    assert_true(p->metrics[2] == p->metric && p->validation_metrics[2] == p->validation_metric);
    assert_true(p->metrics[0] >= p->metric && p->validation_metrics[0] >= p->validation_metric &&
                p->metrics[0] <= 1);
    c.stop = c.batches + 4;
    FAILS(s.dev,
          gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = 2, .user = &c,
                    .on_batch_begin = on_batch_begin, .on_progress = on_end),
          GPUNN_ERR_CANCELLED, "on_batch_begin", "before batch 4 of 7");
    FAILS(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = 1, .metrics = {s.n.logits}),
          GPUNN_ERR_SHAPE, "metric");
    FAILS(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = 1, .accumulate = -2),
          GPUNN_ERR_ARGUMENT, "accumulate -2");
    unmake(&s);
}

/* Labels of 8 and 32 bits give the scores of those of 64. One that is no class counts for nothing. */
static void check_class_labels(setup *s, const gpunn_class_scores *wanted)
{
    uint8_t       bytes[VALIDATION];
    int32_t       words[VALIDATION];
    gpunn_tensor *label[] = {
        MADE(s->dev, gpunn_input(s->model, "bytes", GPUNN_U8, GPUNN_SHAPE(GPUNN_BATCH))),
        MADE(s->dev, gpunn_input(s->model, "words", GPUNN_I32, GPUNN_SHAPE(GPUNN_BATCH)))};
    for (int strays = 0; strays < 3; strays++) {
        for (int i = 0; i < VALIDATION; i++) words[i] = bytes[i] = (uint8_t)s->t[TRAIN + i];
        for (int i = 0; i < strays; i++) bytes[i] = 3, words[i] = i ? -1 : 3;
        gpunn_class_scores scores[2];
        gpunn_loader      *loader = MADE(
                 s->dev, gpunn_loader_create(s->model, .count = VALIDATION, .batch_size = BATCH,
                                             .fields = {{.input = s->n.x, .samples = s->x + TRAIN * NET_X},
                                                        {.input = label[0], .samples = bytes},
                                                        {.input = label[1], .samples = words}}));
        for (int i = 0; i < 2; i++) {
            OK(s->dev, gpunn_evaluate_classes(loader, s->n.logits, label[i], &scores[i]));
            assert_int_equal(scores[i].samples, VALIDATION - strays);
            assert_true(strays || (scores[i].accuracy == wanted->accuracy && scores[i].f1 == wanted->f1));
        }
        assert_true(scores[0].accuracy == scores[1].accuracy && scores[0].recall == scores[1].recall);
        gpunn_loader_destroy(loader);
    }
}

/* Counts, shares and areas as their definitions have them, sample by sample and pair by pair. */
static void test_classes(void **state)
{
    enum { CLASSES = 3 };
    fixture           *f = *state;
    setup              s = make(f, 1);
    gpunn_class_scores scores, plain;
    int64_t            confusion[CLASSES][CLASSES], counted[CLASSES][CLASSES] = {{0}};
    float              logits[VALIDATION][CLASSES];
    double             hits = 0, precision = 0, recall = 0, f1 = 0, areas = 0;
    gpunn_tensor      *truth = s.n.t;
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = 8));
    for (int i = 0; i < 5; i++) s.t[TRAIN + i] = 0; /* of what the network has learned, some is wrong */
    OK(s.dev, gpunn_evaluate_classes(s.validation, s.n.logits, truth, &scores, .confusion = confusion[0],
                                     .auc = true));
    OK(s.dev, gpunn_evaluate_classes(s.validation, s.n.logits, truth, &plain));
    assert_true(isnan(plain.auc) && plain.f1 == scores.f1 && plain.samples == VALIDATION);
    for (int at = 0, n; gpunn_next(s.validation); at += n) {
        n = gpunn_loader_batch_size(s.validation);
        OK(s.dev, gpunn_forward(&s.n.logits, 1));
        OK(s.dev, gpunn_read(s.n.logits, logits[at], (size_t)n * sizeof logits[0]));
    }
    double share[VALIDATION][CLASSES];
    for (int i = 0; i < VALIDATION; i++) {
        int    best = 0;
        double sum = 0;
        for (int k = 1; k < CLASSES; k++) best = logits[i][k] > logits[i][best] ? k : best;
        counted[s.t[TRAIN + i]][best]++;
        hits += s.t[TRAIN + i] == best;
        for (int k = 0; k < CLASSES; k++) sum += exp((double)logits[i][k]);
        for (int k = 0; k < CLASSES; k++) share[i][k] = exp((double)logits[i][k]) / sum;
    }
    assert_memory_equal(confusion, counted, sizeof counted);
    for (int k = 0; k < CLASSES; k++) {
        double labels = 0, guesses = 0, above = 0, pairs = 0;
        for (int j = 0; j < CLASSES; j++) labels += (double)counted[k][j], guesses += (double)counted[j][k];
        assert_true(counted[k][k] > 0 && hits < VALIDATION);
        precision += (double)counted[k][k] / guesses / CLASSES;
        recall += (double)counted[k][k] / labels / CLASSES;
        f1 += 2 * (double)counted[k][k] / (labels + guesses) / CLASSES;
        for (int i = 0; i < VALIDATION; i++)
            for (int j = 0; j < VALIDATION; j++) {
                if (s.t[TRAIN + i] != k || s.t[TRAIN + j] == k) continue;
                pairs++;
                above += share[i][k] > share[j][k];
            }
        areas += above / pairs / CLASSES;
    }
    check_close(
        ((float[]){scores.accuracy, scores.precision, scores.recall, scores.f1, scores.auc}),
        ((float[]){(float)(hits / VALIDATION), (float)precision, (float)recall, (float)f1, (float)areas}), 5,
        1e-6, 1e-6);
    check_class_labels(&s, &plain);
    FAILS(s.dev, gpunn_evaluate_classes(s.validation, s.n.loss, truth, &scores), GPUNN_ERR_SHAPE,
          "[n, classes]");
    FAILS(s.dev, gpunn_evaluate_classes(s.validation, NULL, truth, &scores), GPUNN_ERR_ARGUMENT,
          "tensor of logits is NULL");
    FAILS(s.dev, gpunn_evaluate_classes(s.validation, s.n.logits, truth, NULL), GPUNN_ERR_ARGUMENT,
          "place for the scores is NULL");
    FAILS(s.dev, gpunn_evaluate_classes(s.validation, s.n.logits, NULL, &scores), GPUNN_ERR_ARGUMENT,
          "tensor of labels is NULL");
    FAILS(NULL, gpunn_evaluate_classes(NULL, s.n.logits, truth, &scores), GPUNN_ERR_ARGUMENT,
          "loader is NULL");
    unmake(&s);
}

/* Any schedule behind a warm-up. */
static void test_warmup(void **state)
{
    fixture         *f = *state;
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .lr = 0.4f));
    OK(f->dev, gpunn_set_schedule(opt, .type = GPUNN_SCHEDULE_COSINE, .warmup_steps = 4, .total_steps = 12));
    for (int t = 0; t < 14; t++) {
        double after = t < 12 ? (t - 4) / 8.0 : 1,
               lr = t < 4 ? 0.4 * t / 4 : 0.2 * (1 + cos(3.14159265358979 * after));
        assert_true(fabs((double)gpunn_get_lr(opt) - lr) < 1e-6);
        OK(f->dev, gpunn_schedule_step(opt, 0));
    }
    OK(f->dev, gpunn_set_schedule(opt, .type = GPUNN_SCHEDULE_STEP, .warmup_steps = 2, .step_size = 3));
    for (int t = 0; t < 9; t++) {
        double lr = t < 2 ? 0.4 * t / 2 : 0.4 * pow(0.1, (t - 2) / 3);
        assert_true(fabs((double)gpunn_get_lr(opt) - lr) < 1e-6);
        OK(f->dev, gpunn_schedule_step(opt, 0));
    }
    FAILS(f->dev, gpunn_set_schedule(opt, .type = GPUNN_SCHEDULE_COSINE, .warmup_steps = 4, .total_steps = 4),
          GPUNN_ERR_ARGUMENT, "warmup_steps is 4");
    gpunn_optimizer_destroy(opt);
}

static void test_fit_errors(void **state)
{
    fixture *f = *state;
    setup    s = make(f, 0);
    assert_true(gpunn_progress_bar(NULL, NULL));
    FAILS(s.dev, gpunn_fit(s.opt, .train = s.train), GPUNN_ERR_ARGUMENT, "loss");
    FAILS(s.dev, gpunn_fit(s.opt, .loss = s.n.loss), GPUNN_ERR_ARGUMENT, "train");
    FAILS(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = -1), GPUNN_ERR_ARGUMENT,
          "epochs");
    FAILS(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train), GPUNN_ERR_ARGUMENT,
          ".epochs is 0 or left out");
    FAILS(s.dev, gpunn_fit(s.opt, .loss = s.n.logits, .train = s.train, .epochs = 1), GPUNN_ERR_SHAPE,
          "loss");
    FAILS(s.dev,
          gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = 1,
                    .history_csv = "/no/such/folder/h.csv"),
          GPUNN_ERR_IO, "/no/such/folder/h.csv");
    gpunn_model     *other = gpunn_model_create(s.dev);
    const net        alike = net_make(other);
    gpunn_optimizer *opt = MADE(s.dev, gpunn_sgd(other));
    FAILS(s.dev, gpunn_fit(opt, .loss = alike.loss, .train = s.train, .epochs = 1), GPUNN_ERR_ARGUMENT,
          "the train loader and the optimizer belong to different models");
    FAILS(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .metric = alike.accuracy, .train = s.train, .epochs = 1),
          GPUNN_ERR_ARGUMENT, "the metric and the loader belong to different models");
    gpunn_loader *theirs = MADE(s.dev, gpunn_loader_create(other, .count = 4, .batch_size = 2,
                                                           .fields = {{.input = alike.x, .samples = s.x},
                                                                      {.input = alike.t, .samples = s.t}}));
    FAILS(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .validation = theirs, .epochs = 1),
          GPUNN_ERR_ARGUMENT, "the validation loader and the optimizer belong to different models");
    float              loss;
    gpunn_class_scores scores = {0};
    FAILS(s.dev, gpunn_evaluate(NULL, s.n.loss, NULL, &loss, NULL), GPUNN_ERR_ARGUMENT, "loader is NULL");
    FAILS(s.dev, gpunn_evaluate(s.train, NULL, NULL, &loss, NULL), GPUNN_ERR_ARGUMENT, "loss is NULL");
    FAILS(s.dev, gpunn_evaluate_classes(s.train, alike.logits, s.n.t, &scores), GPUNN_ERR_ARGUMENT,
          "the logits and the loader");
    FAILS(s.dev, gpunn_evaluate_classes(s.train, s.n.logits, alike.t, &scores), GPUNN_ERR_ARGUMENT,
          "the labels and the loader");
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = 1));
    FAILS(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = INT32_MAX / 2),
          GPUNN_ERR_ARGUMENT, "1073741823 epochs after 1 are too many");
    gpunn_loader_destroy(theirs);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(other);
    s.x[20] = NAN;
    FAILS(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .train = s.train, .epochs = 2), GPUNN_ERR_NUMERIC,
          "loss");
    unmake(&s);
}

/* ---- batches that count for nothing ---- */
typedef struct spoiling { /* of the second batch */
    gpunn_tensor  *input;
    bool           spoils;
    float          value;
    gpunn_progress last;
} spoiling;

static bool spoil(void *user, const gpunn_progress *p)
{
    const spoiling *s = user;
    const float     values[2] = {s->value, s->value};
    if (s->spoils && p->batch == 2) assert_int_equal(gpunn_write(s->input, values, sizeof values), GPUNN_OK);
    return true;
}

static bool keep_progress(void *user, const gpunn_progress *p)
{
    ((spoiling *)user)->last = *p;
    return true;
}

/* The square root of 0 has no finite slope: the gradient of a batch of zeros is NaN. What gpunn_fit wrote
 * before stays as it is; with gpunn_set_skip_nan training goes on, and means are of the other batches. */
static void test_nan_gradients_in_fit(void **state)
{
    fixture         *f = *state;
    const float      x[6] = {1, 2, 3, 4, 5, 9};
    const char      *names[2] = {"steep.safetensors", "steep.ckpt"}, *paths[2];
    void            *files[2];
    size_t           sizes[2], again;
    int64_t          skipped;
    spoiling         s = {.input = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1))};
    gpunn_tensor    *h = gpunn_linear(s.input, "fc", .out_features = 2, .no_bias = true);
    gpunn_tensor    *loss = MADE(f->dev, gpunn_mean(gpunn_sqrt(gpunn_square(h)), GPUNN_ALL, false));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .lr = GPUNN_ZERO));
    gpunn_loader    *train = gpunn_loader_create(f->model, .fields = {{.input = s.input, .samples = x}},
                                                 .count = 6, .batch_size = 2);
    for (int i = 0; i < 2; i++) paths[i] = test_path(f, names[i]);
    OK(f->dev,
       gpunn_fit(opt, .loss = loss, .train = MADE(f->dev, train), .epochs = 1, .best_weights = paths[0],
                 .checkpoint = paths[1], .on_progress = keep_progress, .user = &s));
    const float all = s.last.loss; /* proportional to the mean of x */
    for (int i = 0; i < 2; i++) files[i] = file_read(paths[i], &sizes[i]);
    s.spoils = true;
    for (int bad = 0; bad < 2; bad++) {
        s.value = bad ? NAN : 0;
        gpunn_loader_rewind(train);
        FAILS(f->dev,
              gpunn_fit(opt, .loss = loss, .train = train, .epochs = 1, .best_weights = paths[0],
                        .checkpoint = paths[1], .on_batch_begin = spoil, .user = &s),
              GPUNN_ERR_NUMERIC, bad ? "the loss is NaN" : "gradient of 'fc.weight'");
        for (int i = 0; i < 2; i++) {
            void *now = file_read(paths[i], &again);
            assert_int_equal(again, sizes[i]);
            assert_memory_equal(now, files[i], again);
            free(now);
        }
    }
    gpunn_set_skip_nan(opt, true);
    gpunn_loader_rewind(train);
    OK(f->dev, gpunn_fit(opt, .loss = loss, .train = train, .epochs = 1, .on_batch_begin = spoil,
                         .on_progress = keep_progress, .user = &s));
    (void)gpunn_loss_scale(opt, &skipped);
    assert_int_equal(skipped, 1);
    assert_true(fabsf(s.last.loss / all - (17 / 4.0f) / (24 / 6.0f)) < 1e-5f);
    for (int i = 0; i < 2; i++) free(files[i]), (void)unlink(paths[i]);
    gpunn_loader_destroy(train);
    gpunn_optimizer_destroy(opt);
}

/* A batch all of whose labels are ignored has no part in any mean. */
static void test_ignored_in_fit(void **state)
{
    fixture *f = *state;
    setup    s = make(f, 0);
    spoiling w = {0};
    float    loss, metric;
    double   sum = 0, hits = 0;
    gpunn_set_lr(s.opt, 0);
    for (int i = 0; i < BATCH; i++) s.t[TRAIN + i] = -100;
    OK(s.dev, gpunn_evaluate(s.validation, s.n.loss, s.n.accuracy, &loss, &metric));
    for (int batch = 0; gpunn_next(s.validation); batch++) {
        gpunn_tensor *both[] = {s.n.loss, s.n.accuracy};
        OK(s.dev, gpunn_forward(both, 2));
        const int samples = gpunn_loader_batch_size(s.validation);
        if (batch > 0)
            sum += (double)gpunn_item(s.n.loss) * samples, hits += (double)gpunn_item(s.n.accuracy) * samples;
    }
    const int counted = VALIDATION - BATCH;
    check_close(((float[]){loss, metric}), ((float[]){(float)(sum / counted), (float)(hits / counted)}), 2,
                1e-6, 0);
    OK(s.dev, gpunn_fit(s.opt, .loss = s.n.loss, .metric = s.n.accuracy, .train = s.validation, .epochs = 2,
                        .on_progress = keep_progress, .user = &w));
    assert_true(isfinite(w.last.loss) && w.last.loss > 0.5f);
    unmake(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {test_with_device(test_fit),
                                       test_with_device(test_cancel),
                                       test_with_device(test_patience),
                                       test_with_device(test_min_epochs),
                                       test_with_device(test_restore_best),
                                       test_with_device(test_schedule_in_fit),
                                       test_with_device(test_averages),
                                       test_with_device(test_goes_on),
                                       test_with_device(test_rate_zero),
                                       cmocka_unit_test(test_bar),
                                       test_with_device(test_callbacks),
                                       test_with_device(test_classes),
                                       test_with_device(test_warmup),
                                       test_with_device(test_fit_errors),
                                       test_with_device(test_nan_gradients_in_fit),
                                       test_with_device(test_ignored_in_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
