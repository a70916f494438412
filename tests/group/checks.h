/* What ranks do together, checked by each of them: they are threads in tests/unit/group.c and processes under
 * mpirun in mpi.c. A check returns whether all was right, and says in `why` what was not. All ranks run it at
 * once. */
#ifndef GPUNN_GROUP_CHECKS_H
#define GPUNN_GROUP_CHECKS_H
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpunn.h"

enum { WHY = 1024, IN = 6, HIDDEN = 13, CLASSES = 3, WHOLE = 24, STEPS = 5, ROWS_OF_TABLE = 41 };
/* of a model at most, running statistics too */
enum { NUMBERS = IN * HIDDEN + (5 + ROWS_OF_TABLE) * HIDDEN + HIDDEN * CLASSES + CLASSES };

typedef struct ranks {
    gpunn_device *dev;
    gpunn_group  *group;                                   /* NULL: one process, for comparison */
    const char   *folder;                                  /* of all ranks' */
    char         *why;                                     /* [WHY] */
    bool (*gather)(void *user, void *parts, size_t bytes); /* as all_gather of gpunn_group_args */
    void *user;
} ranks;

/* Evaluates to false, having said why, unless the condition holds. */
#define EXPECT(r, condition) \
    ((condition) ||          \
     (snprintf((r)->why, WHY, "line %d: %s (%.150s)", __LINE__, #condition, gpunn_error((r)->dev)), false))

static bool rounds; /* the groups exchange gradients as BF16 */
/* of CPUs, rank 0 and every second one, and GPUs, which compute the same within rounding alone */
static bool mixes;
static bool shards; /* the groups share the optimizers' states out */

typedef struct ranked {
    gpunn_model     *model;
    gpunn_tensor    *x, *t, *loss, *hidden, *accuracy, *tokens; /* tokens: NULL without a table */
    gpunn_optimizer *opt;
} ranked;
typedef struct task {
    int             optimizer; /* 0: SGD, 1: Adam */
    float           clip, average, dropout;
    bool            norm, sync; /* batch_norm, whose statistics are each rank's own; or of all */
    int             accumulate, hidden;
    gpunn_precision precision;
    bool            table; /* an embedding with .sparse, which momentum does not train */
} task;

static ranked ranked_open(gpunn_device *dev, const task *task)
{
    ranked n = {
        gpunn_model_create(dev, .precision = task->precision), NULL, NULL, NULL, NULL, NULL, NULL, NULL};
    n.x = gpunn_input(n.model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, IN));
    n.t = gpunn_input(n.model, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    n.hidden = gpunn_linear(n.x, "fc1", .out_features = task->hidden ? task->hidden : HIDDEN);
    if (task->norm) n.hidden = gpunn_batch_norm1d(n.hidden, "bn", .sync = task->sync);
    if (task->table) {
        n.tokens = gpunn_input(n.model, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
        n.hidden = gpunn_add(n.hidden,
                             gpunn_embedding(n.tokens, "words", .num_embeddings = ROWS_OF_TABLE,
                                             .embedding_dim = HIDDEN, .padding_idx = 2, .sparse = true));
    }
    n.hidden = gpunn_tanh(n.hidden);
    if (task->dropout > 0) n.hidden = gpunn_keep(gpunn_dropout(n.hidden, task->dropout));
    gpunn_tensor *logits = gpunn_linear(n.hidden, "fc2", .out_features = CLASSES);
    n.loss = gpunn_cross_entropy(logits, n.t);
    n.accuracy = gpunn_accuracy(logits, n.t);
    n.opt = task->optimizer ? gpunn_adam(n.model, .lr = 0.02f)
                            : gpunn_sgd(n.model, .lr = 0.1f, .momentum = task->table ? 0 : 0.9f);
    if (task->clip > 0) gpunn_set_clip_norm(n.opt, task->clip);
    if (task->average > 0) (void)gpunn_set_ema(n.opt, task->average);
    return n;
}

static void ranked_close(ranked *n)
{
    gpunn_optimizer_destroy(n->opt);
    gpunn_model_destroy(n->model);
}

/* The same numbers on every rank. */
static void samples(float x[][IN], int64_t *t, int count, uint32_t seed)
{
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < IN; k++) {
            seed = seed * 1664525u + 1013904223u;
            x[i][k] = (float)(seed >> 8) / 8388608.0f - 1;
        }
        t[i] = x[i][0] > 0.3f ? 2 : x[i][1] > 0 ? 1 : 0;
    }
}

/* Writes `count` samples of the whole batch of a seed, from `first` on. */
static bool write_samples(const ranks *r, const ranked *n, int first, int count, uint32_t seed)
{
    float   x[WHOLE][IN];
    int64_t t[WHOLE], tokens[WHOLE];
    samples(x, t, WHOLE, seed);
    for (int i = 0; i < WHOLE; i++) tokens[i] = (int64_t)((unsigned)i * 5u + seed) * (i % 4) % ROWS_OF_TABLE;
    return EXPECT(r, gpunn_write(n->x, x[first], (size_t)count * sizeof x[0]) == GPUNN_OK) &&
           EXPECT(r, gpunn_write(n->t, t + first, (size_t)count * sizeof t[0]) == GPUNN_OK) &&
           (n->tokens == NULL ||
            EXPECT(r, gpunn_write(n->tokens, tokens + first, (size_t)count * sizeof tokens[0]) == GPUNN_OK));
}

/* Steps on this rank's part of each whole batch; losses[STEPS] as they are read. */
static bool steps(const ranks *r, ranked *n, const task *task, int from, float *losses)
{
    const int parts = task->accumulate > 0 ? task->accumulate : 1, size = gpunn_group_size(r->group),
              each = WHOLE / parts / size;
    for (int step = from; step < from + STEPS; step++)
        for (int part = 0; part < parts; part++) {
            const int first = part * (WHOLE / parts) + gpunn_group_rank(r->group) * each;
            if (!write_samples(r, n, first, each, (uint32_t)step + 1) ||
                !EXPECT(r, gpunn_train_step(n->opt, n->loss, .accumulate = task->accumulate) == GPUNN_OK))
                return false;
            losses[step - from] = gpunn_item(n->loss);
        }
    return true;
}

/* And running statistics. */
static bool weights(const ranks *r, const ranked *n, float *values)
{
    for (int i = 0; i < gpunn_parameter_count(n->model); i++) {
        gpunn_tensor *p = gpunn_parameter_at(n->model, i);
        if (!EXPECT(r, gpunn_read(p, values, gpunn_tensor_bytes(p)) == GPUNN_OK)) return false;
        values += gpunn_tensor_bytes(p) / sizeof *values;
    }
    return true;
}

static bool close_to(const float *a, const float *b, int count, double tolerance)
{
    for (int i = 0; i < count; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= tolerance)) return false;
    return true;
}

/* Whether all ranks have the same bytes, of which there are at most those of two models. */
static bool same_on_all(const ranks *r, const void *own, size_t bytes)
{
    const int rank = gpunn_group_rank(r->group), size = gpunn_group_size(r->group);
    char     *parts = calloc((size_t)size, bytes);
    memcpy(parts + (size_t)rank * bytes, own, bytes);
    bool same = r->gather(r->user, parts, bytes);
    for (int other = 0; other < size; other++)
        same = same && memcmp(parts, parts + (size_t)other * bytes, bytes) == 0;
    free(parts);
    return same;
}

/* Trains, on ranks or alone, and reads the weights and, where they are kept, their averages behind them. */
static bool train(const ranks *r, const task *task, float *values, float *losses)
{
    ranked n = ranked_open(r->dev, task);
    bool   good = EXPECT(r, n.opt && n.loss) &&
                (r->group == NULL || EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK)) &&
                steps(r, &n, task, 0, losses) && weights(r, &n, values);
    if (good && task->average > 0)
        good = EXPECT(r, gpunn_ema_swap(n.opt) == GPUNN_OK) && weights(r, &n, values + NUMBERS) &&
               EXPECT(r, gpunn_ema_swap(n.opt) == GPUNN_OK);
    ranked_close(&n);
    return good;
}

/* As one process on the whole batch within rounding, and the same bits when done again. */
static bool same_as_alone(const ranks *r, const task *task)
{
    const bool   wide = rounds && gpunn_group_size(r->group) > 1;
    const double of_weights = wide ? 5e-3 : 2e-5, of_losses = wide ? 2e-3 : 1e-5;
    float together[2 * NUMBERS] = {0}, again[2 * NUMBERS] = {0}, alone[2 * NUMBERS] = {0}, losses[3][STEPS];
    const ranks one = {r->dev, NULL, r->folder, r->why, NULL, NULL};
    return train(r, task, together, losses[0]) && train(r, task, again, losses[1]) &&
           train(&one, task, alone, losses[2]) && EXPECT(r, memcmp(together, again, sizeof again) == 0) &&
           EXPECT(r, same_on_all(r, together, sizeof together)) &&
           EXPECT(r, memcmp(losses[0], losses[1], sizeof losses[0]) == 0) &&
           EXPECT(r, close_to(together, alone, 2 * NUMBERS, of_weights)) &&
           (task->accumulate > 0 || EXPECT(r, close_to(losses[0], losses[2], STEPS, of_losses)));
}

static bool check_sgd(const ranks *r)
{
    const task task = {.optimizer = 0};
    return same_as_alone(r, &task);
}
/* Of 3 ranks the last has no share of it. */
static bool check_narrow(const ranks *r)
{
    const task task = {.hidden = 1};
    return same_as_alone(r, &task);
}
static bool check_adam_clipped(const ranks *r)
{
    const task task = {.optimizer = 1, .clip = 0.05f};
    return same_as_alone(r, &task);
}
static bool check_clipped(const ranks *r)
{
    const task task = {.clip = 0.05f};
    return same_as_alone(r, &task);
}
static bool check_averages(const ranks *r)
{
    const task task = {.average = 0.8f};
    return same_as_alone(r, &task);
}
static bool check_accumulate(const ranks *r)
{
    const task task = {.accumulate = 2, .clip = 0.1f};
    return same_as_alone(r, &task);
}

/* Not with Adam: to the bias before the norm it gives steps that follow from rounding alone. */
static bool check_sync(const ranks *r)
{
    const task plain = {.norm = true, .sync = true},
               more = {.norm = true, .sync = true, .hidden = 8, .clip = 0.1f, .accumulate = 2};
    return same_as_alone(r, &plain) && same_as_alone(r, &more);
}

/* Images of which each rank has another number: what comes out in training, the running statistics, and the
 * gradients. */
enum { IMAGES = 11, CHANNELS = 3 };
typedef struct normed {
    float *out, *gradient, statistics[2][CHANNELS], weight[CHANNELS];
} normed;

static bool norm_images(const ranks *r, const float *x, int count, int pixels, normed *n)
{
    const size_t  bytes = (size_t)(count * CHANNELS * pixels) * sizeof *x;
    gpunn_model  *model = gpunn_model_create(r->dev);
    gpunn_tensor *in = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, CHANNELS, pixels / 4, 4));
    gpunn_tensor *y = gpunn_relu(gpunn_batch_norm2d(in, "bn", .sync = true));
    gpunn_tensor *loss = gpunn_sum(gpunn_square(gpunn_add_scalar(y, 0.5f)), GPUNN_ALL, false);
    gpunn_tensor *parts[] = {gpunn_find(model, "bn.running_mean"), gpunn_find(model, "bn.running_var")};
    gpunn_optimizer *opt = gpunn_sgd(model, .lr = 0.1f);
    n->out = calloc(IMAGES, CHANNELS * (size_t)pixels * sizeof *x);
    n->gradient = calloc(IMAGES, CHANNELS * (size_t)pixels * sizeof *x);
    gpunn_keep(y), gpunn_retain_grad(in);
    bool good = (r->group == NULL || EXPECT(r, gpunn_distribute(opt, r->group) == GPUNN_OK)) &&
                EXPECT(r, gpunn_write(in, x, bytes) == GPUNN_OK) &&
                EXPECT(r, gpunn_forward_training(&y, 1) == GPUNN_OK) &&
                EXPECT(r, gpunn_backward(loss) == GPUNN_OK) &&
                EXPECT(r, gpunn_read(y, n->out, bytes) == GPUNN_OK) &&
                EXPECT(r, gpunn_read_grad(in, n->gradient, bytes) == GPUNN_OK) &&
                EXPECT(r, gpunn_read_grad(gpunn_find(model, "bn.weight"), n->weight, sizeof n->weight) ==
                              GPUNN_OK);
    for (int i = 0; i < 2 && good; i++)
        good = EXPECT(r, gpunn_read(parts[i], n->statistics[i], sizeof n->statistics[i]) == GPUNN_OK);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    return good;
}

static bool check_sync_unequal(const ranks *r)
{
    const int rank = gpunn_group_rank(r->group), size = gpunn_group_size(r->group);
    /* 3072: several blocks for a channel */
    const int   pixels = size == 2 ? 3072 : 20, image = CHANNELS * pixels;
    const int   first = rank * (rank + 1) / 2, count = rank == size - 1 ? IMAGES - first : rank + 1;
    const ranks one = {r->dev, NULL, r->folder, r->why, NULL, NULL};
    normed      together = {NULL, NULL, {{0}}, {0}}, alone = together;
    float      *x = calloc(IMAGES, (size_t)image * sizeof *x), sums[8][CHANNELS] = {{0}};
    for (int i = 0; i < IMAGES * image; i++)
        x[i] = 100 + (float)(i * 7 % 101) / 17 * (float)(1 + i / pixels % CHANNELS);
    bool good = norm_images(r, x + first * image, count, pixels, &together) &&
                norm_images(&one, x, IMAGES, pixels, &alone);
    memcpy(sums[rank], together.weight, sizeof sums[0]);
    good = good && EXPECT(r, close_to(together.out, alone.out + first * image, count * image, 1e-4)) &&
           EXPECT(r, close_to(together.gradient, alone.gradient + first * image, count * image, 1e-4)) &&
           EXPECT(r, close_to(together.statistics[0], alone.statistics[0], 2 * CHANNELS, 1e-4)) &&
           EXPECT(r, mixes || same_on_all(r, together.statistics, sizeof together.statistics)) &&
           r->gather(r->user, sums, sizeof sums[0]);
    for (int other = 1; other < size; other++)
        for (int c = 0; c < CHANNELS; c++) sums[0][c] += sums[other][c];
    good = good && EXPECT(r, close_to(sums[0], alone.weight, CHANNELS, 1e-5 * IMAGES * pixels)) &&
           EXPECT(r,
                  size > 1 || memcmp(together.out, alone.out, (size_t)(IMAGES * image) * sizeof *x) == 0) &&
           EXPECT(r, size > 1 || memcmp(together.gradient, alone.gradient,
                                        (size_t)(IMAGES * image) * sizeof *x) == 0);
    free(x), free(together.out), free(together.gradient), free(alone.out), free(alone.gradient);
    return good;
}

/* A rank that cannot go on before its norm, or behind it, is heard by those that wait in theirs. */
static bool check_sync_fails(const ranks *r)
{
    const task task = {.norm = true, .sync = true};
    const int  last = gpunn_group_size(r->group) - 1;
    float      losses[STEPS], x[WHOLE][IN];
    int64_t    t[WHOLE], wrong[WHOLE] = {CLASSES};
    char       who[32];
    ranked     n = ranked_open(r->dev, &task);
    bool       good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK);
    (void)snprintf(who, sizeof who, "rank %d: ", last);
    if (gpunn_group_rank(r->group) < last) { /* the last has not written its inputs */
        samples(x, t, WHOLE, 1);
        good = good && EXPECT(r, gpunn_write(n.x, x, sizeof x) == GPUNN_OK) &&
               EXPECT(r, gpunn_write(n.t, t, sizeof t) == GPUNN_OK);
    }
    for (int turn = 0; turn < 3 && good; turn++) {
        good = EXPECT(r, (turn == 0   ? gpunn_train_step(n.opt, n.loss)
                          : turn == 1 ? gpunn_backward(n.loss)
                                      : gpunn_forward_training(&n.hidden, 1)) == GPUNN_ERR_STATE) &&
               EXPECT(r, gpunn_group_rank(r->group) == last ||
                             strncmp(gpunn_error(r->dev), who, strlen(who)) == 0);
        gpunn_clear_error(r->dev);
    }
    good = good && steps(r, &n, &task, 0, losses) &&
           EXPECT(r, gpunn_group_rank(r->group) < last ||
                         gpunn_write(n.t, wrong, (size_t)(WHOLE / (last + 1)) * sizeof t[0]) == GPUNN_OK);
    if (mixes ? last % 2 == 0 : gpunn_device_type(r->dev) == GPUNN_DEVICE_CPU) /* the last rank's */
        good = good && EXPECT(r, gpunn_train_step(n.opt, n.loss) != GPUNN_OK) &&
               EXPECT(r, strstr(gpunn_error(r->dev), "label 3"));
    gpunn_clear_error(r->dev);
    good = good && steps(r, &n, &task, 0, losses);
    ranked_close(&n);
    return good;
}

/* The update alone behind gradients of the program's own making. */
static bool check_parts_of_a_step(const ranks *r)
{
    const task task = {.optimizer = 0};
    float      values[2][NUMBERS] = {{0}};
    bool       good = true;
    for (int alone = 0; alone < 2 && good; alone++) {
        const ranks now = {r->dev, alone ? NULL : r->group, r->folder, r->why, NULL, NULL};
        ranked      n = ranked_open(r->dev, &task);
        float       x[WHOLE][IN];
        int64_t     t[WHOLE];
        const int   each = WHOLE / gpunn_group_size(now.group), first = gpunn_group_rank(now.group) * each;
        samples(x, t, WHOLE, 1);
        good = (alone || EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK)) &&
               EXPECT(r, gpunn_write(n.x, x[first], (size_t)each * sizeof x[0]) == GPUNN_OK) &&
               EXPECT(r, gpunn_write(n.t, t + first, (size_t)each * sizeof t[0]) == GPUNN_OK) &&
               EXPECT(r, gpunn_backward(n.loss) == GPUNN_OK) &&
               EXPECT(r, gpunn_optimizer_step(n.opt) == GPUNN_OK) && weights(&now, &n, values[alone]);
        ranked_close(&n);
    }
    return good && EXPECT(r, close_to(values[0], values[1], NUMBERS, rounds ? 1e-3 : 1e-6));
}

/* To nearest even. */
static float as_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Every gradient behind an update alone is the mean of all ranks', to the bit where it travels as BF16. */
static bool check_means(const ranks *r)
{
    enum { MANY = IN * HIDDEN };
    const task    task = {.optimizer = 0};
    const int     rank = gpunn_group_rank(r->group), size = gpunn_group_size(r->group), each = WHOLE / size;
    const bool    narrow = rounds && size > 1;
    float         all[8][MANY] = {{0}}, mean[MANY] = {0}, got[MANY], x[WHOLE][IN];
    int64_t       t[WHOLE];
    ranked        n = ranked_open(r->dev, &task);
    gpunn_tensor *weight = gpunn_find(n.model, "fc1.weight");
    samples(x, t, WHOLE, 11);
    bool good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) &&
                EXPECT(r, gpunn_write(n.x, x[rank * each], (size_t)each * sizeof x[0]) == GPUNN_OK) &&
                EXPECT(r, gpunn_write(n.t, t + rank * each, (size_t)each * sizeof t[0]) == GPUNN_OK) &&
                EXPECT(r, gpunn_backward(n.loss) == GPUNN_OK) &&
                EXPECT(r, gpunn_read_grad(weight, all[rank], sizeof all[0]) == GPUNN_OK) &&
                EXPECT(r, r->gather(r->user, all, sizeof all[0])) &&
                EXPECT(r, gpunn_optimizer_step(n.opt) == GPUNN_OK) &&
                EXPECT(r, gpunn_read_grad(weight, got, sizeof got) == GPUNN_OK) &&
                EXPECT(r, same_on_all(r, got, sizeof got));
    for (int i = 0; i < MANY; i++) {
        for (int other = 0; other < size; other++) mean[i] += narrow ? as_bf16(all[other][i]) : all[other][i];
        mean[i] = (narrow ? as_bf16(mean[i]) : mean[i]) * (1 / (float)size);
    }
    good = good && EXPECT(r, close_to(got, mean, MANY, narrow ? 0 : 1e-7));
    ranked_close(&n);
    return good;
}

/* Each rank drops elements of its own; the weights are the same on all, and the same bits again. */
static bool check_dropout(const ranks *r)
{
    const task task = {.dropout = 0.5f};
    float      values[2][NUMBERS] = {{0}}, losses[STEPS], x[WHOLE][IN], hidden[WHOLE * HIDDEN];
    int64_t    t[WHOLE];
    bool       good = true;
    samples(x, t, WHOLE, 9);
    for (int turn = 0; turn < 2 && good; turn++) {
        ranked n = ranked_open(r->dev, &task);
        good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) && steps(r, &n, &task, 0, losses) &&
               EXPECT(r, gpunn_write(n.x, x, sizeof x) == GPUNN_OK) &&
               EXPECT(r, gpunn_write(n.t, t, sizeof t) == GPUNN_OK) &&
               EXPECT(r, gpunn_train_step(n.opt, n.loss) == GPUNN_OK) &&
               EXPECT(r, gpunn_read(n.hidden, hidden, sizeof hidden) == GPUNN_OK) &&
               weights(r, &n, values[turn]);
        ranked_close(&n);
    }
    return good && EXPECT(r, memcmp(values[0], values[1], sizeof values[0]) == 0) &&
           EXPECT(r, same_on_all(r, values[0], sizeof values[0])) &&
           EXPECT(r, gpunn_group_size(r->group) == 1 || !same_on_all(r, hidden, sizeof hidden));
}

/* Ranks that begin with other weights have rank 0's, layers made later have the same, and running statistics
 * are rank 0's. */
static bool check_begin(const ranks *r)
{
    const task task = {.norm = true};
    float      values[NUMBERS] = {0}, mean[HIDDEN], late[HIDDEN], losses[STEPS], first[HIDDEN * IN];
    ranked     n = ranked_open(r->dev, &task);
    for (int i = 0; i < HIDDEN * IN; i++)
        first[i] = 0.01f * (float)(i % 7) + (float)gpunn_group_rank(r->group);
    bool good = EXPECT(r, gpunn_write(gpunn_find(n.model, "fc1.weight"), first, sizeof first) == GPUNN_OK) &&
                EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) && weights(r, &n, values) &&
                EXPECT(r, values[1] == 0.01f) && EXPECT(r, same_on_all(r, values, sizeof values)) &&
                steps(r, &n, &task, 0, losses) &&
                EXPECT(r,
                       gpunn_read(gpunn_find(n.model, "bn.running_mean"), mean, sizeof mean) == GPUNN_OK) &&
                EXPECT(r, same_on_all(r, mean, sizeof mean));
    gpunn_tensor *more = gpunn_linear(n.hidden, "late", .out_features = 1);
    good = good && EXPECT(r, gpunn_forward(&more, 1) == GPUNN_OK) &&
           EXPECT(r, gpunn_read(gpunn_find(n.model, "late.weight"), late, sizeof late) == GPUNN_OK) &&
           EXPECT(r, same_on_all(r, late, sizeof late));
    ranked_close(&n);
    return good;
}

/* GPUs that exchange by themselves tell of a loss, the mean by then, once they have got that far. */
static gpunn_status told_late(const ranks *r, gpunn_status status, bool *late)
{
    *late = status == GPUNN_OK;
    return *late ? gpunn_synchronize(r->dev) : status;
}

/* A loss that is not finite on the last rank changes nothing anywhere, and all hear whose it was, where one
 * knows. */
static bool check_bad_loss(const ranks *r)
{
    const task task = {.optimizer = 1};
    const int  last = gpunn_group_size(r->group) - 1;
    float      before[NUMBERS] = {0}, after[NUMBERS] = {0}, losses[STEPS], x[WHOLE][IN];
    int64_t    t[WHOLE];
    char       who[32];
    bool       late;
    ranked     n = ranked_open(r->dev, &task);
    bool good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) && steps(r, &n, &task, 0, losses) &&
                weights(r, &n, before);
    samples(x, t, WHOLE, 1);
    if (gpunn_group_rank(r->group) == last) x[0][0] = NAN;
    (void)snprintf(who, sizeof who, "rank %d: ", last);
    good = good && EXPECT(r, gpunn_write(n.x, x, sizeof x) == GPUNN_OK) &&
           EXPECT(r, gpunn_write(n.t, t, sizeof t) == GPUNN_OK) &&
           EXPECT(r, told_late(r, gpunn_train_step(n.opt, n.loss), &late) == GPUNN_ERR_NUMERIC) &&
           EXPECT(r, strstr(gpunn_error(r->dev), "NaN")) &&
           EXPECT(r, late || gpunn_group_rank(r->group) == last ||
                         strncmp(gpunn_error(r->dev), who, strlen(who)) == 0) &&
           weights(r, &n, after) && EXPECT(r, memcmp(before, after, sizeof before) == 0);
    gpunn_clear_error(r->dev);
    good = good && steps(r, &n, &task, STEPS, losses) && weights(r, &n, after) &&
           EXPECT(r, memcmp(before, after, sizeof before) != 0);
    ranked_close(&n);
    return good;
}

/* Weights and running statistics of check_bad_gradient. */
enum { STEEP = 4 * 3 + 3 * 2 };
static bool steep_values(const ranks *r, gpunn_model *model, float *values)
{
    return EXPECT(r, gpunn_read(gpunn_find(model, "low.weight"), values, 6 * sizeof(float)) == GPUNN_OK) &&
           EXPECT(r,
                  gpunn_read(gpunn_find(model, "high.weight"), values + 6, 6 * sizeof(float)) == GPUNN_OK) &&
           EXPECT(r, gpunn_read(gpunn_find(model, "bn.running_mean"), values + 12, 3 * sizeof(float)) ==
                         GPUNN_OK) &&
           EXPECT(r, gpunn_read(gpunn_find(model, "bn.running_var"), values + 15, 3 * sizeof(float)) ==
                         GPUNN_OK);
}

/* The same of a gradient, which a row of zeros makes NaN where the loss is finite, in a first step and in
 * later ones. */
static bool check_bad_gradient(const ranks *r)
{
    const int     last = gpunn_group_size(r->group) - 1;
    gpunn_model  *model = gpunn_model_create(r->dev);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    gpunn_tensor *low = gpunn_linear(x, "low", .out_features = 2, .no_bias = true);
    gpunn_tensor *high = gpunn_linear(gpunn_batch_norm1d(x, "bn", .no_affine = true), "high",
                                      .out_features = 2, .no_bias = true);
    gpunn_tensor *loss = gpunn_mean(gpunn_add(gpunn_sqrt(gpunn_square(low)), gpunn_square(high)), GPUNN_ALL,
                                    false);
    gpunn_optimizer *opt = gpunn_adam(model);
    float            before[STEEP] = {0}, after[STEEP] = {0};
    bool             late, good = EXPECT(r, gpunn_distribute(opt, r->group) == GPUNN_OK);
    for (int step = 0; step < 5 && good; step++) {
        const bool  bad = step == 1 || step == 4;
        const float zero = bad && gpunn_group_rank(r->group) == last ? 0 : 1,
                    rows[6] = {zero, zero, zero, 1, -2, 3};
        good = EXPECT(r, gpunn_write(x, rows, sizeof rows) == GPUNN_OK) && steep_values(r, model, before) &&
               EXPECT(r, told_late(r, gpunn_train_step(opt, loss), &late) ==
                             (bad ? GPUNN_ERR_NUMERIC : GPUNN_OK)) &&
               steep_values(r, model, after) && EXPECT(r, (memcmp(before, after, sizeof before) == 0) == bad);
        gpunn_clear_error(r->dev);
    }
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    return good;
}

/* Whether the last call failed as it should, with these words. */
static bool refused(const ranks *r, gpunn_status status, const char *word, const char *other)
{
    const bool good = EXPECT(r, status == GPUNN_ERR_STATE) && EXPECT(r, strstr(gpunn_error(r->dev), word)) &&
                      EXPECT(r, strstr(gpunn_error(r->dev), other));
    gpunn_clear_error(r->dev);
    return good;
}

/* What a parameter has of its own, on rank 1 alone. */
static bool different_treatment(const ranks *r, ranked *n)
{
    const bool    here = gpunn_group_rank(r->group) == 1;
    gpunn_tensor *bias = gpunn_find(n->model, "fc2.bias");
    bool          good = EXPECT(r, gpunn_set_lr_scale(bias, here ? 0.5f : 1) == GPUNN_OK) &&
                refused(r, gpunn_distribute(n->opt, r->group), "'fc2.bias' [3], lr_scale 1,",
                        "'fc2.bias' [3], lr_scale 0.5,");
    good = good && EXPECT(r, gpunn_set_lr_scale(bias, 1) == GPUNN_OK) &&
           EXPECT(r, gpunn_set_decay(bias, !here) == GPUNN_OK) &&
           refused(r, gpunn_distribute(n->opt, r->group), "lr_scale 1,", "lr_scale 1, no decay");
    good = good && EXPECT(r, gpunn_set_decay(bias, true) == GPUNN_OK) &&
           EXPECT(r, gpunn_set_trainable(bias, !here) == GPUNN_OK) &&
           refused(r, gpunn_distribute(n->opt, r->group), "'fc2.bias' [3], lr_scale",
                   "'fc2.bias' [3], frozen");
    return good && EXPECT(r, gpunn_set_trainable(bias, true) == GPUNN_OK);
}

/* What an optimizer says of all parameters, and of some. */
static bool different_settings(const ranks *r, ranked *n)
{
    const bool                  here = gpunn_group_rank(r->group) == 1;
    const gpunn_optimizer_group some = {.prefix = "fc2", .lr = here ? 0.25f : 0.5f};
    gpunn_optimizer            *one = gpunn_sgd(n->model, .lr = 0.5f, .momentum = here ? 0.75f : 0.5f);
    gpunn_optimizer            *other = gpunn_sgd(n->model, .lr = 1, .groups = &some, .group_count = 1);
    const bool                  good = refused(r, gpunn_distribute(one, r->group), "lr 0.5, momentum 0.5",
                                               "lr 0.5, momentum 0.75") &&
                      refused(r, gpunn_distribute(other, r->group), "settings of 2 parameters", "lr 0.25");
    gpunn_optimizer_destroy(one), gpunn_optimizer_destroy(other);
    return good;
}

/* Models, rates and calls that differ are told, with what differs, on every rank. */
static bool check_differences(const ranks *r)
{
    const int  rank = gpunn_group_rank(r->group);
    const task wide = {.hidden = rank == 1 ? 8 : 5}, plain = {.optimizer = 0};
    ranked     n = ranked_open(r->dev, &wide), m = ranked_open(r->dev, &plain);
    float      losses[STEPS];
    char       path[300];
    if (gpunn_group_size(r->group) == 1) {
        ranked_close(&n), ranked_close(&m);
        return true;
    }
    bool good = refused(r, gpunn_distribute(n.opt, r->group), "'fc1.weight' [5, 6]", "'fc1.weight' [8, 6]") &&
                different_treatment(r, &m) && different_settings(r, &m) &&
                EXPECT(r, gpunn_distribute(m.opt, r->group) == GPUNN_OK) && steps(r, &m, &plain, 0, losses);
    gpunn_set_lr(m.opt, rank == 1 ? 0.5f : 0.25f);
    good = good && refused(r, gpunn_train_step(m.opt, m.loss), "lr 0.25", "lr 0.5");
    gpunn_set_lr(m.opt, 0.1f);
    (void)snprintf(path, sizeof path, "%s/fit.ckpt", r->folder);
    good = good &&
           refused(r, rank == 1 ? gpunn_optimizer_step(m.opt) : gpunn_checkpoint_save(m.opt, NULL, path),
                   "gpunn_checkpoint_save", "rank 1 has update");
    ranked_close(&n), ranked_close(&m);
    return good;
}

/* Whether no sample went to two ranks; seen: how often each was this rank's. */
static bool apart(const ranks *r, const float *seen, int count)
{
    const int rank = gpunn_group_rank(r->group), size = gpunn_group_size(r->group);
    float    *all = calloc((size_t)(size * count), sizeof *all), most = 0;
    memcpy(all + rank * count, seen, (size_t)count * sizeof *all);
    bool good = r->gather(r->user, all, (size_t)count * sizeof *all);
    for (int i = 0; i < count; i++) {
        float times = 0;
        for (int other = 0; other < size; other++) times += all[other * count + i];
        most = times > most ? times : most;
    }
    free(all);
    return good && most == 1;
}

/* Ranks share out every epoch: no sample twice, as many batches on each, at most size - 1 samples left
 * out. */
static bool check_loader(const ranks *r)
{
    enum { COUNT = 53, SIZE = 4 };
    const task plain = {.optimizer = 0};
    const int  size = gpunn_group_size(r->group);
    float      x[COUNT][IN], seen[COUNT] = {0};
    int64_t    t[COUNT];
    bool       good = true;
    ranked     n = ranked_open(r->dev, &plain);
    samples(x, t, COUNT, 5);
    for (int i = 0; i < COUNT; i++) x[i][0] = (float)i;
    for (int shuffled = 0; shuffled < 2 && good; shuffled++) {
        gpunn_loader *loader = gpunn_loader_create(
            n.model, .fields = {{.input = n.x, .samples = x}, {.input = n.t, .samples = t}}, .count = COUNT,
            .batch_size = SIZE, .shuffle = shuffled, .workers = shuffled, .group = r->group);
        int64_t batches = 0, got = 0;
        good = EXPECT(r, loader != NULL);
        memset(seen, 0, sizeof seen);
        for (; good && gpunn_next(loader); batches++) {
            float rows[SIZE][IN];
            int   here = gpunn_loader_batch_size(loader);
            good = EXPECT(r, gpunn_read(n.x, rows, (size_t)here * sizeof rows[0]) == GPUNN_OK);
            for (int i = 0; i < here && good; i++) good = EXPECT(r, seen[(int)rows[i][0]]++ == 0);
            got += here;
        }
        good = good && EXPECT(r, batches == gpunn_loader_batches(loader)) && EXPECT(r, got == COUNT / size) &&
               EXPECT(r, batches == (COUNT / size + SIZE - 1) / SIZE) && EXPECT(r, apart(r, seen, COUNT));
        gpunn_loader_destroy(loader);
    }
    ranked_close(&n);
    return good;
}

/* Scores of classes are of all ranks' samples, each rank's own being a part. */
static bool check_classes(const ranks *r)
{
    enum { COUNT = 48 };
    const task         task = {.optimizer = 0};
    const int          size = gpunn_group_size(r->group);
    gpunn_group       *groups[] = {NULL, r->group};
    gpunn_class_scores scores[2];
    int64_t            confusion[2][HIDDEN * HIDDEN], t[COUNT];
    float              x[COUNT][IN];
    bool               good = true;
    ranked             n = ranked_open(r->dev, &task);
    samples(x, t, COUNT, 7);
    for (int i = 0; i < 2 && good; i++) {
        gpunn_loader *loader = gpunn_loader_create(
            n.model, .fields = {{.input = n.x, .samples = x}, {.input = n.t, .samples = t}}, .count = COUNT,
            .batch_size = i ? COUNT / size / 2 + 1 : COUNT, .group = groups[i]);
        good = EXPECT(r, loader != NULL) &&
               EXPECT(r, gpunn_evaluate_classes(loader, n.hidden, n.t, &scores[i], .confusion = confusion[i],
                                                .auc = true) == GPUNN_OK);
        gpunn_loader_destroy(loader);
    }
    ranked_close(&n);
    return good && EXPECT(r, scores[1].samples == COUNT) &&
           EXPECT(r, memcmp(confusion[0], confusion[1], sizeof confusion[0]) == 0) &&
           EXPECT(r, fabsf(scores[0].accuracy - scores[1].accuracy) < 1e-6f) &&
           EXPECT(r, fabsf(scores[0].f1 - scores[1].f1) < 1e-6f) &&
           EXPECT(r, fabsf(scores[0].auc - scores[1].auc) < 1e-5f);
}

typedef struct stopper {
    int calls, stop_after;
} stopper;
static bool watch(void *user, const gpunn_progress *progress)
{
    stopper *w = user;
    (void)progress;
    return ++w->calls != w->stop_after;
}

static gpunn_loader *fit_loader(const ranks *r, const ranked *n, const float *x, const int64_t *t, int count)
{
    return gpunn_loader_create(
        n->model, .fields = {{.input = n->x, .samples = x}, {.input = n->t, .samples = t}}, .count = count,
        .batch_size = WHOLE / gpunn_group_size(r->group), .shuffle = true, .group = r->group);
}

/* The loop: rank 0 alone reports and writes, all know the same means, one that stops stops all; a checkpoint
 * goes on to the bit. */
static bool check_fit(const ranks *r)
{
    enum { COUNT = 5 * WHOLE };
    const task task = {.optimizer = 1, .dropout = 0.2f, .norm = true};
    const int  rank = gpunn_group_rank(r->group);
    float      through[NUMBERS] = {0}, resumed[NUMBERS] = {0}, loss[2], accuracy[2];
    char       path[300], best[300];
    bool       good = true;
    (void)snprintf(path, sizeof path, "%s/fit.ckpt", r->folder);
    (void)snprintf(best, sizeof best, "%s/best.safetensors", r->folder);
    for (int turn = 0; turn < 2 && good; turn++) {
        ranked  n = ranked_open(r->dev, &task);
        stopper w = {0, 0};
        float   x[COUNT][IN];
        int64_t t[COUNT];
        samples(x, t, COUNT, 3);
        good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK);
        gpunn_loader *loader = fit_loader(r, &n, x[0], t, COUNT);
        good = good && EXPECT(r, loader != NULL);
        if (turn == 0)
            good = good &&
                   EXPECT(r, gpunn_fit(n.opt, .loss = n.loss, .metric = n.accuracy, .train = loader,
                                       .validation = loader, .epochs = 2, .checkpoint = path,
                                       .best_weights = best, .on_progress = watch, .user = &w) == GPUNN_OK) &&
                   EXPECT(r, w.calls == (rank == 0 ? 12 : 0)) && EXPECT(r, access(best, R_OK) == 0);
        else
            good = good && EXPECT(r, gpunn_checkpoint_load(n.opt, loader, path) == GPUNN_OK);
        good = good &&
               EXPECT(r, gpunn_fit(n.opt, .loss = n.loss, .train = loader, .epochs = 1) == GPUNN_OK) &&
               weights(r, &n, turn ? resumed : through) &&
               EXPECT(r,
                      gpunn_evaluate(loader, n.loss, n.accuracy, &loss[turn], &accuracy[turn]) == GPUNN_OK);
        w.stop_after = w.calls + 3;
        good = good && EXPECT(r, gpunn_fit(n.opt, .loss = n.loss, .train = loader, .epochs = 1,
                                           .on_progress = watch, .user = &w) == GPUNN_ERR_CANCELLED);
        gpunn_clear_error(r->dev);
        gpunn_loader_destroy(loader);
        ranked_close(&n);
    }
    return good && EXPECT(r, memcmp(through, resumed, sizeof through) == 0) &&
           EXPECT(r, loss[0] == loss[1] && loss[0] < 2) &&
           EXPECT(r, accuracy[0] == accuracy[1] && accuracy[0] > 0.3f);
}

/* Backward passes of a program's own, whose gradients are read, then an update; on ranks or alone. */
static bool table_alone(const ranks *r, float *gradient, float *table)
{
    const task    task = {.optimizer = 1, .table = true};
    const int     each = WHOLE / 2 / gpunn_group_size(r->group);
    const size_t  bytes = (size_t)(ROWS_OF_TABLE * HIDDEN) * sizeof *table;
    ranked        n = ranked_open(r->dev, &task);
    gpunn_tensor *weight = gpunn_find(n.model, "words.weight");
    bool          good = r->group == NULL || EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK);
    for (int part = 0; part < 2 && good; part++)
        good = write_samples(r, &n, part * (WHOLE / 2) + gpunn_group_rank(r->group) * each, each, 6) &&
               EXPECT(r, gpunn_backward(n.loss) == GPUNN_OK);
    good = good && EXPECT(r, gpunn_optimizer_step(n.opt) == GPUNN_OK) &&
           EXPECT(r, gpunn_read_grad(weight, gradient, bytes) == GPUNN_OK) &&
           EXPECT(r, gpunn_read(weight, table, bytes) == GPUNN_OK);
    ranked_close(&n);
    return good;
}

static bool table_gradient(const ranks *r)
{
    enum { COUNT = ROWS_OF_TABLE * HIDDEN };
    const ranks one = {r->dev, NULL, r->folder, r->why, NULL, NULL};
    float       gradient[2][COUNT], table[2][COUNT];
    return table_alone(r, gradient[0], table[0]) && table_alone(&one, gradient[1], table[1]) &&
           EXPECT(r, close_to(gradient[0], gradient[1], COUNT, 1e-6)) &&
           EXPECT(r, close_to(table[0], table[1], COUNT, rounds ? 1e-4 : 1e-5)) &&
           EXPECT(r, same_on_all(r, table[0], sizeof table[0]));
}

/* Ranks whose batches differ in size are told so, and go on. A gradient of before has no room for theirs. */
static bool table_rows_differ(const ranks *r)
{
    const task task = {.table = true};
    const int  rank = gpunn_group_rank(r->group);
    float      losses[STEPS];
    ranked     n = ranked_open(r->dev, &task);
    bool       good = write_samples(r, &n, 0, 4, 1) && EXPECT(r, gpunn_backward(n.loss) == GPUNN_OK) &&
                EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) &&
                refused(r, gpunn_optimizer_step(n.opt), "'words.weight'", "gpunn_distribute") &&
                write_samples(r, &n, 0, rank == 1 ? 3 : 4, 1) &&
                refused(r, gpunn_train_step(n.opt, n.loss), "4 rows", "3 rows") &&
                steps(r, &n, &task, 0, losses);
    ranked_close(&n);
    return good;
}

/* Of a table's gradient only the rows travel. */
static bool check_tables(const ranks *r)
{
    const task plain = {.table = true}, more = {.table = true, .clip = 0.05f, .accumulate = 2},
               adam = {.table = true, .optimizer = 1, .clip = 0.05f, .average = 0.8f};
    if (shards && gpunn_group_size(r->group) > 1) {
        ranked     n = ranked_open(r->dev, &plain);
        const bool good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_ERR_UNSUPPORTED) &&
                          EXPECT(r, strstr(gpunn_error(r->dev), ".shard"));
        gpunn_clear_error(r->dev);
        ranked_close(&n);
        return good;
    }
    return same_as_alone(r, &plain) && same_as_alone(r, &more) && same_as_alone(r, &adam) &&
           table_gradient(r) && (gpunn_group_size(r->group) == 1 || table_rows_differ(r));
}

/* Adapters on weights in 16 bits, which rank 0 hands out: all ranks have the same bytes after some steps. */
static bool check_adapters(const ranks *r)
{
    const int        rank = gpunn_group_rank(r->group);
    gpunn_model     *model = gpunn_model_create(r->dev, .precision = GPUNN_PRECISION_BF16);
    gpunn_tensor    *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, IN));
    gpunn_tensor    *hidden = gpunn_tanh(gpunn_linear(x, "fc1", .out_features = HIDDEN));
    gpunn_tensor    *y = gpunn_linear(hidden, "fc2", .out_features = CLASSES);
    gpunn_tensor    *loss = gpunn_mean(gpunn_square(y), GPUNN_ALL, false);
    bool             good = EXPECT(r, gpunn_lora(model, "fc*", .rank = 2) == GPUNN_OK);
    gpunn_optimizer *opt = gpunn_adam(model, .lr = 0.02f);
    gpunn_array      file = {0};
    float            given[WHOLE][IN], other[HIDDEN][IN];
    int64_t          t[WHOLE];
    for (int i = 0; i < HIDDEN * IN; i++) other[i / IN][i % IN] = (float)(i * rank % 7) / 8;
    samples(given, t, WHOLE, (uint32_t)rank + 1);
    good = good && EXPECT(r, gpunn_write(gpunn_find(model, "fc1.weight"), other, sizeof other) == GPUNN_OK) &&
           EXPECT(r, gpunn_distribute(opt, r->group) == GPUNN_OK) &&
           EXPECT(r, gpunn_write(x, given, sizeof given) == GPUNN_OK);
    for (int step = 0; step < STEPS && good; step++)
        good = EXPECT(r, gpunn_train_step(opt, loss) == GPUNN_OK);
    good = good && EXPECT(r, gpunn_save_memory(model, &file) == GPUNN_OK);
    uint64_t sum = 0;
    for (size_t i = 0; good && i < file.bytes; i++) sum = sum * 31 + ((const unsigned char *)file.data)[i];
    good = good && EXPECT(r, same_on_all(r, &sum, sizeof sum));
    gpunn_array_free(r->dev, &file);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    return good;
}

typedef struct check {
    const char *name;
    bool (*run)(const ranks *r);
} check;
static const check checks[] = {{"sgd", check_sgd},
                               {"a narrow layer", check_narrow},
                               {"adam with clipping", check_adam_clipped},
                               {"sgd with clipping", check_clipped},
                               {"averages", check_averages},
                               {"accumulated batches", check_accumulate},
                               {"statistics over all ranks", check_sync},
                               {"the same of unequal batches", check_sync_unequal},
                               {"failures beside these", check_sync_fails},
                               {"parts of a step", check_parts_of_a_step},
                               {"means of gradients", check_means},
                               {"dropout", check_dropout},
                               {"beginning", check_begin},
                               {"bad loss", check_bad_loss},
                               {"bad gradient", check_bad_gradient},
                               {"differences", check_differences},
                               {"loader", check_loader},
                               {"scores of classes", check_classes},
                               {"fit and checkpoints", check_fit},
                               {"adapters", check_adapters},
                               {"sparse tables", check_tables}};
#endif
