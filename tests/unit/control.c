/* Control of training: several optimizers over one model, and what each of them computes. */
#include "../test.h"

/* ---- several optimizers ---- */
enum { NOISE = 6, SAMPLE = 12, BATCH = 5 };

/* A generator and a discriminator, whose losses both lead through both. */
typedef struct pair {
    gpunn_model     *model;
    gpunn_tensor    *noise, *real, *loss[2]; /* the generator's, the discriminator's */
    gpunn_optimizer *opt[2];
} pair;

static gpunn_tensor *judge(gpunn_model *model, gpunn_tensor *x, const char *names[2])
{
    gpunn_tensor *weight = gpunn_find(model, "judge.1.weight"), *bias = gpunn_find(model, "judge.1.bias");
    gpunn_tensor *h = gpunn_tanh(
        gpunn_linear(x, names[0], .out_features = 16, .weight = weight, .bias = bias));
    weight = gpunn_find(model, "judge.2.weight"), bias = gpunn_find(model, "judge.2.bias");
    return gpunn_linear(h, names[1], .out_features = 1, .weight = weight, .bias = bias);
}

static pair pair_make(gpunn_model *model)
{
    const char *own[] = {"judge.1", "judge.2"}, *again[] = {"again.1", "again.2"};
    pair        p = {.model = model};
    p.noise = gpunn_input(model, "noise", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, NOISE));
    p.real = gpunn_input(model, "real", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, SAMPLE));
    gpunn_tensor *h = gpunn_relu(gpunn_linear(p.noise, "maker.1", .out_features = 16));
    gpunn_tensor *fake = gpunn_tanh(gpunn_linear(h, "maker.2", .out_features = SAMPLE));
    gpunn_tensor *of_real = judge(model, p.real, own), *of_fake = judge(model, fake, again);
    p.loss[0] = gpunn_mean(gpunn_softplus(gpunn_neg(of_fake), 1, 20), GPUNN_ALL, false);
    p.loss[1] = gpunn_add(gpunn_mean(gpunn_softplus(gpunn_neg(of_real), 1, 20), GPUNN_ALL, false),
                          gpunn_mean(gpunn_softplus(of_fake, 1, 20), GPUNN_ALL, false));
    return p;
}

static void pair_write(gpunn_device *dev, const pair *p, uint32_t seed)
{
    float *noise = test_randoms(BATCH * NOISE, seed, 1), *real = test_randoms(BATCH * SAMPLE, seed + 1000, 1);
    OK(dev, write_floats(p->noise, noise, BATCH * NOISE));
    OK(dev, write_floats(p->real, real, BATCH * SAMPLE));
    free(noise), free(real);
}

static void pair_train(gpunn_device *dev, const pair *p, int from, int steps)
{
    for (int step = from; step < from + steps; step++)
        for (int i = 0; i < 2; i++) {
            pair_write(dev, p, (uint32_t)(2 * step + i));
            OK(dev, gpunn_train_step(p->opt[i], p->loss[i]));
        }
}

static void pair_optimizers(gpunn_device *dev, pair *p)
{
    p->opt[0] = MADE(dev, gpunn_adam(p->model, .lr = 0.01f, .prefix = "maker."));
    p->opt[1] = MADE(dev, gpunn_adamw(p->model, .lr = 0.02f, .prefix = "judge."));
}

static void pair_destroy(pair *p)
{
    for (int i = 0; i < 2; i++) gpunn_optimizer_destroy(p->opt[i]);
}

static void freeze(gpunn_model *model, const char *prefix, bool frozen)
{
    for (int i = 0; i < gpunn_parameter_count(model); i++)
        if (strncmp(gpunn_tensor_name(gpunn_parameter_at(model, i)), prefix, strlen(prefix)) == 0)
            (void)gpunn_set_trainable(gpunn_parameter_at(model, i), !frozen);
}

/* What each of two optimizers does is what one over everything does while the rest is frozen, to the bit;
 * nothing is made anew when they take turns. */
static void test_turns(void **state)
{
    fixture     *f = *state;
    gpunn_model *reference = MADE(f->dev, gpunn_model_create(f->dev));
    pair         p = pair_make(f->model), r = pair_make(reference);
    pair_optimizers(f->dev, &p);
    OK(f->dev, gpunn_set_ema(p.opt[0], 0.9f));
    r.opt[0] = MADE(f->dev, gpunn_adam(reference, .lr = 0.01f));
    r.opt[1] = MADE(f->dev, gpunn_adamw(reference, .lr = 0.02f));
    for (int step = 0; step < 6; step++)
        for (int i = 0; i < 2; i++) {
            freeze(reference, i ? "maker." : "judge.", true);
            pair_write(f->dev, &r, (uint32_t)(2 * step + i));
            OK(f->dev, gpunn_train_step(r.opt[i], r.loss[i]));
            freeze(reference, "", false);
        }
    long   calls = 0;
    size_t bytes = 0;
    for (int step = 0; step < 6; step++) {
        pair_train(f->dev, &p, step, 1);
        if (step == 2) calls = f->memory.calls, bytes = gpunn_memory_allocated(f->dev);
    }
    assert_int_equal(f->memory.calls, calls);
    assert_int_equal(gpunn_memory_allocated(f->dev), bytes);
    check_same_weights(f->dev, f->model, f->dev, reference);
    assert_int_equal(gpunn_step_count(p.opt[0]), 6);
    OK(f->dev, gpunn_ema_swap(p.opt[0]));
    OK(f->dev, gpunn_ema_swap(p.opt[0]));
    check_same_weights(f->dev, f->model, f->dev, reference);
    gpunn_optimizer_destroy(p.opt[1]); /* its last loss stays readable, and the other one goes on */
    assert_true(isfinite(gpunn_item(p.loss[1])));
    OK(f->dev, gpunn_train_step(p.opt[0], p.loss[0]));
    gpunn_optimizer_destroy(p.opt[0]);
    pair_destroy(&r);
    gpunn_model_destroy(reference);
}

/* Averages are of the weights, whatever clipping does to gradients: after the first step they equal them. */
static void test_clipped_averages(void **state)
{
    fixture *f = *state;
    pair     p = pair_make(f->model);
    int64_t  total;
    pair_optimizers(f->dev, &p);
    OK(f->dev, gpunn_set_ema(p.opt[0], 0.5f));
    gpunn_set_clip_norm(p.opt[0], 1e-3f);
    pair_write(f->dev, &p, 1);
    OK(f->dev, gpunn_train_step(p.opt[0], p.loss[0]));
    float *weights = read_weights(f->dev, f->model, &total);
    OK(f->dev, gpunn_ema_swap(p.opt[0]));
    float *averages = read_weights(f->dev, f->model, &total);
    assert_memory_equal(weights, averages, (size_t)total * sizeof *weights);
    OK(f->dev, gpunn_ema_swap(p.opt[0]));
    free(weights), free(averages);
    pair_destroy(&p);
}

/* Only what an optimizer trains has gradients, and only these begin anew. */
static void test_own_gradients(void **state)
{
    fixture *f = *state;
    pair     p = pair_make(f->model);
    float    before[16 * NOISE], after[16 * NOISE], other[16 * SAMPLE];
    pair_optimizers(f->dev, &p);
    gpunn_tensor *maker = gpunn_find(f->model, "maker.1.weight"),
                 *judge1 = gpunn_find(f->model, "judge.1.weight");
    pair_write(f->dev, &p, 1);
    OK(f->dev, gpunn_train_step(p.opt[0], p.loss[0]));
    OK(f->dev, gpunn_read_grad(maker, before, sizeof before));
    FAILS(f->dev, gpunn_read_grad(judge1, other, sizeof other), GPUNN_ERR_STATE, "judge.1.weight",
          "has no gradient");
    OK(f->dev, gpunn_train_step(p.opt[1], p.loss[1]));
    OK(f->dev, gpunn_read_grad(judge1, other, sizeof other));
    OK(f->dev, gpunn_read_grad(maker, after, sizeof after));
    assert_memory_equal(before, after, sizeof before);
    OK(f->dev, gpunn_zero_grad(f->model));
    OK(f->dev, gpunn_backward(p.loss[1])); /* belongs to no optimizer */
    OK(f->dev, gpunn_read_grad(maker, after, sizeof after));
    OK(f->dev, gpunn_read_grad(judge1, other, sizeof other));
    pair_destroy(&p);
}

static void test_lists(void **state)
{
    fixture         *f = *state;
    gpunn_device    *dev = f->dev;
    pair             p = pair_make(f->model);
    gpunn_tensor    *list[] = {gpunn_find(f->model, "judge.2.bias"), gpunn_find(f->model, "judge.1.weight"),
                               NULL};
    float           *before = read_floats(dev, list[1], NULL);
    gpunn_optimizer *opt = MADE(
        dev, gpunn_sgd(f->model, .lr = 0.1f, .momentum = 0.5f, .parameters = list, .parameter_count = 2));
    list[1] = gpunn_find(f->model, "judge.1.bias"); /* the list is copied */
    float *bias = read_floats(dev, list[1], NULL);
    pair_write(dev, &p, 3);
    OK(dev, gpunn_train_step(opt, p.loss[1]));
    float *after = read_floats(dev, gpunn_find(f->model, "judge.1.weight"), NULL),
          *bias_after = read_floats(dev, list[1], NULL);
    assert_memory_not_equal(before, after, 16 * SAMPLE * sizeof *before);
    assert_memory_equal(bias, bias_after, 16 * sizeof *bias);
    free(before), free(after), free(bias), free(bias_after);

    FAILS_NULL(dev, gpunn_adam(f->model), GPUNN_ERR_ARGUMENT, "gpunn_sgd", "'judge.1.weight'");
    FAILS_NULL(dev, gpunn_adam(f->model, .prefix = "judge."), GPUNN_ERR_ARGUMENT, "gpunn_adam", "gpunn_sgd",
               "'judge.1.weight'");
    FAILS_NULL(dev, gpunn_adam(f->model, .parameters = list), GPUNN_ERR_ARGUMENT, "parameter_count is 0");
    FAILS_NULL(dev, gpunn_adam(f->model, .parameter_count = 2), GPUNN_ERR_ARGUMENT, "parameters is NULL");
    FAILS_NULL(dev, gpunn_adam(f->model, .parameters = list, .parameter_count = 3), GPUNN_ERR_ARGUMENT,
               "parameters[2] is NULL");
    FAILS_NULL(dev, gpunn_adam(f->model, .parameters = &p.real, .parameter_count = 1), GPUNN_ERR_ARGUMENT,
               "not a parameter");
    gpunn_optimizer *none = MADE(dev, gpunn_adam(f->model, .prefix = "makr."));
    FAILS(dev, gpunn_train_step(none, p.loss[0]), GPUNN_ERR_STATE, "of the optimizer", ".prefix");
    gpunn_optimizer *deep = MADE(dev, gpunn_adam(f->model, .prefix = "later.deep.")),
                    *wide = MADE(dev, gpunn_adam(f->model, .prefix = "later."));
    gpunn_tensor *loss = gpunn_mean(gpunn_linear(p.real, "later.deep.fc", .out_features = 2), GPUNN_ALL,
                                    false);
    FAILS(dev, gpunn_train_step(wide, loss), GPUNN_ERR_STATE, "later.deep.fc.weight", "gpunn_adam");
    gpunn_optimizer_destroy(wide);
    OK(dev, gpunn_train_step(deep, loss)); /* and that layer is its own, although made later */
    gpunn_optimizer_destroy(deep);
    gpunn_optimizer_destroy(none);
    gpunn_optimizer_destroy(opt);
}

/* Of a loss that no parameter reaches: a sentence, and all is as it was. */
static void test_detached_loss(void **state)
{
    fixture         *f = *state;
    gpunn_device    *dev = f->dev;
    net              n = net_make(f->model);
    gpunn_tensor    *cut = gpunn_detach(n.loss);
    gpunn_optimizer *opt = MADE(dev, gpunn_adam(f->model));
    int64_t          count;
    net_write(dev, n, 3, 1);
    OK(dev, gpunn_train_step(opt, n.loss));
    float *before = read_weights(dev, f->model, &count);
    FAILS(dev, gpunn_train_step(opt, cut), GPUNN_ERR_STATE, "no gradient flows from the loss",
          "it depends on none of them");
    FAILS(dev, gpunn_backward(cut), GPUNN_ERR_STATE, "no gradient flows from the loss to a trainable");
    FAILS(dev, gpunn_backward(cut, .inputs_only = true), GPUNN_ERR_STATE, "to a tensor of gpunn_retain_grad");
    FAILS(dev, gpunn_read_grad(n.x, before, 4), GPUNN_ERR_STATE, "call gpunn_retain_grad");
    float *after = read_weights(dev, f->model, &count);
    assert_memory_equal(before, after, (size_t)count * sizeof *before);
    assert_int_equal(gpunn_step_count(opt), 1);
    OK(dev, gpunn_train_step(opt, n.loss));
    free(before), free(after);
    gpunn_optimizer_destroy(opt);
}

/* A checkpoint has all of them, whichever it is asked of. */
static void test_checkpoint(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    const char   *path = test_path(f, "a.ckpt"), *same = test_path(f, "b.ckpt");
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    pair          p = pair_make(f->model), r = pair_make(model);
    pair_optimizers(dev, &p);
    pair_optimizers(dev, &r);
    for (int i = 0; i < 2; i++) OK(dev, gpunn_set_ema((i ? &r : &p)->opt[1], 0.5f));
    OK(dev, gpunn_set_schedule(p.opt[1], .type = GPUNN_SCHEDULE_STEP, .step_size = 1));
    pair_train(dev, &p, 0, 2);
    OK(dev, gpunn_train_step(p.opt[0], p.loss[0]));
    OK(dev, gpunn_schedule_step(p.opt[1], 0));
    OK(dev, gpunn_checkpoint_save(p.opt[0], NULL, path));
    OK(dev, gpunn_checkpoint_save(p.opt[1], NULL, same));
    pair_train(dev, &p, 2, 2);
    OK(dev, gpunn_checkpoint_load(r.opt[1], NULL, same));
    assert_int_equal(gpunn_step_count(r.opt[0]), 3);
    assert_int_equal(gpunn_step_count(r.opt[1]), 2);
    assert_true(gpunn_get_lr(r.opt[1]) == gpunn_get_lr(p.opt[1]));
    pair_train(dev, &r, 2, 2);
    check_same_weights(dev, f->model, dev, model);
    OK(dev, gpunn_ema_swap(p.opt[1]));
    OK(dev, gpunn_ema_swap(r.opt[1]));
    check_same_weights(dev, f->model, dev, model);
    OK(dev, gpunn_ema_swap(p.opt[1]));
    OK(dev, gpunn_ema_swap(r.opt[1]));

    gpunn_optimizer_destroy(r.opt[0]);
    float *before = read_weights(dev, model, &(int64_t){0});
    FAILS(dev, gpunn_checkpoint_load(r.opt[1], NULL, path), GPUNN_ERR_STATE, "holds 2 optimizers", "has 1");
    r.opt[0] = MADE(dev, gpunn_adam(model, .lr = 0.01f, .prefix = "maker.")); /* now in the other order */
    FAILS(dev, gpunn_checkpoint_load(r.opt[1], NULL, path), GPUNN_ERR_STATE, "gpunn_adam", "gpunn_adamw");
    int64_t count;
    float  *after = read_weights(dev, model, &count);
    assert_memory_equal(before, after, (size_t)count * sizeof *before);
    free(before), free(after);
    pair_destroy(&p);
    pair_destroy(&r);
    gpunn_model_destroy(model);
    assert_int_equal(unlink(path) | unlink(same), 0);
}

/* ---- accumulation ---- */
/* One call after another is what backward, clipping and step apart make of a mean that one writes oneself, to
 * the bit. */
static void test_accumulate(void **state)
{
    fixture         *f = *state;
    gpunn_device    *dev = f->dev;
    gpunn_model     *model = MADE(dev, gpunn_model_create(dev));
    net              n[2] = {net_make(f->model), net_make(model)};
    gpunn_tensor    *part = gpunn_mul_scalar(n[1].loss, 1.0f / 4);
    gpunn_optimizer *opt[2] = {MADE(dev, gpunn_adam(f->model, .lr = 0.01f)),
                               MADE(dev, gpunn_adam(model, .lr = 0.01f))};
    const char      *path = test_path(f, "c.ckpt");
    for (int step = 0; step < 5; step++) {
        const bool clipped = step > 2;
        float      norm;
        gpunn_set_clip_norm(opt[0], clipped ? 0.5f : 0);
        OK(dev, gpunn_zero_grad(model));
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < 2; i++) net_write(dev, n[i], k == 3 ? 3 : 5, (uint32_t)(4 * step + k));
            OK(dev, gpunn_train_step(opt[0], n[0].loss, .accumulate = 4));
            OK(dev, gpunn_backward(part));
            if (k == 1 && step == 1)
                FAILS(dev, gpunn_checkpoint_save(opt[0], NULL, path), GPUNN_ERR_STATE,
                      "gpunn_adam has accumulated 2 parts");
        }
        if (clipped) OK(dev, gpunn_clip_grad_norm(model, 0.5f, &norm));
        OK(dev, gpunn_optimizer_step(opt[1]));
        assert_int_equal(gpunn_step_count(opt[0]), step + 1);
        if (!clipped) check_same_weights(dev, f->model, dev, model);
    }
    int64_t total;
    float  *a = read_weights(dev, f->model, &total), *b = read_weights(dev, model, &total);
    check_close(a, b, total, 1e-6, 1e-6);
    free(a), free(b);
    FAILS(dev, gpunn_train_step(opt[0], n[0].loss, .accumulate = -1), GPUNN_ERR_ARGUMENT, "accumulate is -1");
    OK(dev, gpunn_checkpoint_save(opt[0], NULL, path));
    for (int i = 0; i < 2; i++) gpunn_optimizer_destroy(opt[i]);
    gpunn_model_destroy(model);
    assert_int_equal(unlink(path), 0);
}

/* What ends early has the mean of the parts there are; a bad loss, and gpunn_zero_grad, drop them. */
static void test_accumulate_ends(void **state)
{
    fixture         *f = *state;
    gpunn_device    *dev = f->dev;
    gpunn_tensor    *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    gpunn_init       zero = {GPUNN_INIT_ZEROS, 0, 0};
    gpunn_tensor    *w = MADE(dev, gpunn_parameter(f->model, "w", GPUNN_SHAPE(1), zero));
    gpunn_tensor    *loss = gpunn_mean(gpunn_mul(x, w), GPUNN_ALL, false);
    gpunn_optimizer *opt = MADE(dev, gpunn_sgd(f->model, .lr = 1));
    const float      values[] = {1, 2, 6, NAN};
    float            weight;
    for (int i = 0; i < 3; i++) {
        OK(dev, gpunn_write(x, &values[i], sizeof(float)));
        OK(dev, gpunn_train_step(opt, loss, .accumulate = 8));
        OK(dev, gpunn_read(w, &weight, sizeof weight));
        assert_true(weight == 0);
    }
    OK(dev, gpunn_optimizer_step(opt));
    OK(dev, gpunn_read(w, &weight, sizeof weight));
    assert_true(weight == -3);
    OK(dev, gpunn_train_step(opt, loss, .accumulate = 8)); /* 6, dropped */
    OK(dev, gpunn_zero_grad(f->model));
    OK(dev, gpunn_write(x, &values[1], sizeof(float)));
    OK(dev, gpunn_train_step(opt, loss, .accumulate = 2));
    OK(dev, gpunn_train_step(opt, loss, .accumulate = 2));
    OK(dev, gpunn_read(w, &weight, sizeof weight));
    assert_true(weight == -5);
    OK(dev, gpunn_train_step(opt, loss, .accumulate = 3));
    OK(dev, gpunn_write(x, &values[3], sizeof(float)));
    gpunn_status status = gpunn_train_step(opt, loss, .accumulate = 3); /* on a GPU it may show later */
    if (status == GPUNN_OK) status = gpunn_train_step(opt, loss, .accumulate = 3);
    if (status == GPUNN_OK) status = gpunn_synchronize(dev);
    assert_int_equal(status, GPUNN_ERR_NUMERIC);
    gpunn_clear_error(dev);
    OK(dev, gpunn_read(w, &weight, sizeof weight));
    assert_true(weight == -5);
    OK(dev, gpunn_zero_grad(f->model));
    OK(dev, gpunn_write(x, &values[0], sizeof(float)));
    OK(dev, gpunn_train_step(opt, loss));
    OK(dev, gpunn_read(w, &weight, sizeof weight));
    assert_true(weight == -6);
    gpunn_optimizer_destroy(opt);
}

/* ---- groups ---- */
enum { PARTS = 3 };

/* The sum of losses that have nothing in common, of parameters a.*, b.* and c.*; alone receives each. */
static gpunn_tensor *parts_make(gpunn_model *model, gpunn_tensor *alone[PARTS], gpunn_tensor **x)
{
    const char   *names[] = {"a.fc", "b.fc", "c.fc"};
    gpunn_tensor *sum = NULL;
    *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, SAMPLE));
    for (int i = 0; i < PARTS; i++) {
        alone[i] = gpunn_mean(gpunn_square(gpunn_linear(*x, names[i], .out_features = 7)), GPUNN_ALL, false);
        sum = sum ? gpunn_add(sum, alone[i]) : alone[i];
    }
    return sum;
}

/* A group does what an optimizer of its own would do, to the bit, clipping and schedule included. */
static void test_groups(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *x[2], *alone[2][PARTS], *loss = parts_make(f->model, alone[0], &x[0]),
                                          *bias = gpunn_find(f->model, "b.fc.bias");
    (void)parts_make(model, alone[1], &x[1]);
    const gpunn_optimizer_group groups[] = {
        {.prefix = "a.",
         .lr = 0.02f,
         .weight_decay = 0.1f,
         .beta1 = GPUNN_ZERO,
         .beta2 = 0.9f,
         .clip_norm = 0.05f},
        {.parameters = &bias, .parameter_count = 1, .prefix = "b.fc.w", .lr = GPUNN_ZERO},
        {.prefix = "", .clip_value = 0.01f, .clip_norm = 0.02f}};
    gpunn_optimizer *opt = MADE(
        dev, gpunn_adamw(f->model, .lr = 0.01f, .beta1 = 0.8f, .groups = groups, .group_count = 3));
    gpunn_optimizer *own[] = {MADE(dev, gpunn_adamw(model, .lr = 0.02f, .weight_decay = 0.1f,
                                                    .beta1 = GPUNN_ZERO, .beta2 = 0.9f, .prefix = "a.")),
                              MADE(dev, gpunn_adamw(model, .lr = GPUNN_ZERO, .beta1 = 0.8f, .prefix = "b.")),
                              MADE(dev, gpunn_adamw(model, .lr = 0.01f, .beta1 = 0.8f, .prefix = "c."))};
    const float      norms[] = {0.05f, 0.03f, 0.02f};
    gpunn_set_clip_norm(opt, 0.03f);
    gpunn_set_clip_value(own[2], 0.01f);
    OK(dev, gpunn_set_schedule(opt, .type = GPUNN_SCHEDULE_EXPONENTIAL, .gamma = 0.7f));
    for (int i = 0; i < PARTS; i++) {
        gpunn_set_clip_norm(own[i], norms[i]);
        OK(dev, gpunn_set_schedule(own[i], .type = GPUNN_SCHEDULE_EXPONENTIAL, .gamma = 0.7f));
    }
    for (int step = 0; step < 4; step++) {
        float *values = test_randoms(BATCH * SAMPLE, (uint32_t)step, 1);
        for (int i = 0; i < 2; i++) OK(dev, write_floats(x[i], values, BATCH * SAMPLE));
        free(values);
        OK(dev, gpunn_train_step(opt, loss));
        OK(dev, gpunn_schedule_step(opt, 0));
        for (int i = 0; i < PARTS; i++) {
            OK(dev, gpunn_train_step(own[i], alone[1][i]));
            OK(dev, gpunn_schedule_step(own[i], 0));
        }
        check_same_weights(dev, f->model, dev, model);
    }
    gpunn_optimizer_destroy(opt);
    for (int i = 0; i < PARTS; i++) gpunn_optimizer_destroy(own[i]);
    gpunn_model_destroy(model);

    const gpunn_optimizer_group bad[] = {{.lr = 1},
                                         {.prefix = "a.", .beta1 = 0.5f},
                                         {.prefix = "a.", .lr = -1},
                                         {.parameters = &bias, .parameter_count = 1},
                                         {.prefix = "a.", .clip_norm = -1}};
    FAILS_NULL(dev, gpunn_sgd(f->model, .groups = bad), GPUNN_ERR_ARGUMENT, "group_count is 0");
    FAILS_NULL(dev, gpunn_sgd(f->model, .groups = bad, .group_count = 1), GPUNN_ERR_ARGUMENT, "groups[0].",
               "prefix and parameters are both NULL");
    FAILS_NULL(dev, gpunn_sgd(f->model, .groups = bad + 1, .group_count = 1), GPUNN_ERR_ARGUMENT,
               "groups[0].beta1", "does not have it");
    FAILS_NULL(dev, gpunn_sgd(f->model, .groups = bad + 2, .group_count = 1), GPUNN_ERR_ARGUMENT,
               "groups[0].lr is -1");
    FAILS_NULL(dev, gpunn_sgd(f->model, .prefix = "a.", .groups = bad + 3, .group_count = 1),
               GPUNN_ERR_ARGUMENT, "'b.fc.bias'", "does not train");
    FAILS_NULL(dev, gpunn_sgd(f->model, .groups = bad + 4, .group_count = 1), GPUNN_ERR_ARGUMENT,
               "groups[0].clip_norm is -1");
}

/* ---- modes ---- */
enum { TAIL = 8 };

/* Norms over images and over rows, dropout, attention with dropout. The classes are random. */
static gpunn_tensor *modes_make(gpunn_model *model, gpunn_tensor **x)
{
    *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2, 4, 4));
    gpunn_tensor *h = gpunn_conv2d(*x, "conv", .out_channels = 4, .kernel_size = 3, .padding = 1);
    h = gpunn_relu(gpunn_batch_norm2d(h, "images"));
    h = gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 4, 2, 8));
    h = gpunn_scaled_dot_product_attention(h, h, h, .dropout_p = 0.3f);
    h = gpunn_dropout(gpunn_flatten(h), 0.4f);
    h = gpunn_batch_norm1d(gpunn_linear(h, "rows.fc", .out_features = TAIL), "rows");
    return gpunn_mean(gpunn_square(gpunn_add_scalar(h, 0.3f)), GPUNN_ALL, false);
}

static void modes_write(gpunn_device *dev, gpunn_tensor *x, uint32_t seed)
{
    float *values = test_randoms(BATCH * 32, seed, 1);
    OK(dev, write_floats(x, values, BATCH * 32));
    free(values);
}

/* In evaluation mode: gradients as differences of gpunn_forward's losses tell them, and nothing else
 * changes. */
static void test_evaluation_mode(void **state)
{
    fixture         *f = *state;
    gpunn_device    *dev = f->dev;
    gpunn_tensor    *x, *loss = modes_make(f->model, &x);
    gpunn_optimizer *opt = MADE(dev, gpunn_sgd(f->model, .lr = 0.05f));
    const char *names[] = {"conv.weight", "images.weight", "images.bias", "rows.fc.weight", "rows.weight"};
    int64_t     total, count;
    float       slopes[BATCH * 32];
    for (int step = 0; step < 4; step++) { /* statistics of its own */
        modes_write(dev, x, (uint32_t)step);
        OK(dev, gpunn_train_step(opt, loss));
    }
    MADE(dev, gpunn_retain_grad(x));
    float *before = read_weights(dev, f->model, &total);
    OK(dev, gpunn_zero_grad(f->model));
    OK(dev, gpunn_backward(loss, .mode = GPUNN_MODE_EVALUATION));
    const float value = gpunn_item(loss);
    OK(dev, gpunn_read_grad(x, slopes, sizeof slopes));
    OK(dev, gpunn_forward(&loss, 1));
    check_close((float[]){gpunn_item(loss)}, &value, 1, 1e-6, 1e-6);
    float *after = read_weights(dev, f->model, &total);
    assert_memory_equal(before, after, (size_t)total * sizeof *before);
    for (int i = 0; i <= COUNT(names); i++) {
        gpunn_tensor *p = i < COUNT(names) ? gpunn_find(f->model, names[i]) : x;
        float        *values = read_floats(dev, p, &count), *grad = malloc((size_t)count * sizeof *grad);
        if (p == x)
            memcpy(grad, slopes, sizeof slopes);
        else
            OK(dev, gpunn_read_grad(p, grad, (size_t)count * sizeof *grad));
        for (int64_t k = 0; k < count; k += 1 + count / 7) {
            const float kept = values[k];
            double      losses[2];
            for (int side = 0; side < 2; side++) {
                values[k] = kept + (side ? 1e-2f : -1e-2f);
                OK(dev, write_floats(p, values, count));
                OK(dev, gpunn_forward(&loss, 1));
                losses[side] = (double)gpunn_item(loss);
            }
            values[k] = kept;
            OK(dev, write_floats(p, values, count));
            const double slope = (losses[1] - losses[0]) / 2e-2;
            if (!(fabs(slope - (double)grad[k]) <= 2e-3 + 0.02 * fabs(slope)))
                fail_msg("%s[%d]: %g, but differences tell %g", gpunn_tensor_name(p), (int)k, (double)grad[k],
                         slope);
        }
        free(values), free(grad);
    }
    free(before), free(after);
    gpunn_optimizer_destroy(opt);
}

/* A gradient in evaluation mode, or of inputs alone, between training steps leaves no trace in these. */
static void test_untouched(void **state)
{
    fixture         *f = *state;
    gpunn_device    *dev = f->dev;
    gpunn_model     *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor    *x[2], *loss[2] = {modes_make(f->model, &x[0]), modes_make(model, &x[1])};
    gpunn_optimizer *opt[2] = {MADE(dev, gpunn_adam(f->model)), MADE(dev, gpunn_adam(model))};
    float            slopes[2][BATCH * 32], grads[2][TAIL];
    FAILS(dev, gpunn_backward(loss[0], .inputs_only = true), GPUNN_ERR_STATE, "not been written");
    modes_write(dev, x[0], 77);
    FAILS(dev, gpunn_backward(loss[0], .inputs_only = true), GPUNN_ERR_STATE, "gpunn_retain_grad");
    MADE(dev, gpunn_retain_grad(x[0]));
    MADE(dev, gpunn_retain_grad(x[1]));
    gpunn_tensor *weight = gpunn_find(f->model, "rows.weight");
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < 2; i++) {
            modes_write(dev, x[i], (uint32_t)step);
            OK(dev, gpunn_train_step(opt[i], loss[i]));
        }
        OK(dev, gpunn_read_grad(weight, grads[0], sizeof grads[0]));
        OK(dev, gpunn_backward(loss[0], .mode = GPUNN_MODE_EVALUATION, .inputs_only = true));
        OK(dev, gpunn_read_grad(x[0], slopes[0], sizeof slopes[0]));
        OK(dev, gpunn_read_grad(weight, grads[1], sizeof grads[1]));
        assert_memory_equal(grads[0], grads[1], sizeof grads[0]);
    }
    check_same_weights(dev, f->model, dev, model);
    OK(dev, gpunn_backward(loss[0], .mode = GPUNN_MODE_EVALUATION)); /* all at once gives inputs the same */
    OK(dev, gpunn_read_grad(x[0], slopes[1], sizeof slopes[1]));
    assert_memory_equal(slopes[0], slopes[1], sizeof slopes[0]);
    FAILS(dev, gpunn_backward(loss[0], .inputs_only = true, .optimizer = opt[0]), GPUNN_ERR_ARGUMENT,
          "exclude");
    FAILS(dev, gpunn_backward(loss[0], .optimizer = opt[1]), GPUNN_ERR_ARGUMENT, "different models");
    FAILS(dev, gpunn_backward(loss[0], .mode = (gpunn_mode)7), GPUNN_ERR_ARGUMENT, "mode 7");
    FAILS(NULL, gpunn_backward(NULL), GPUNN_ERR_ARGUMENT, "NULL");
    for (int i = 0; i < 2; i++) gpunn_optimizer_destroy(opt[i]);
    gpunn_model_destroy(model);
}

/* gpunn_backward for an optimizer computes what its gpunn_train_step does. */
static void test_backward_of(void **state)
{
    fixture *f = *state;
    pair     p = pair_make(f->model);
    float    grads[2][16 * NOISE], other[16 * SAMPLE];
    pair_optimizers(f->dev, &p);
    gpunn_tensor *maker = gpunn_find(f->model, "maker.1.weight");
    pair_write(f->dev, &p, 1);
    OK(f->dev, gpunn_backward(p.loss[0], .optimizer = p.opt[0]));
    OK(f->dev, gpunn_read_grad(maker, grads[0], sizeof grads[0]));
    FAILS(f->dev, gpunn_read_grad(gpunn_find(f->model, "judge.1.weight"), other, sizeof other),
          GPUNN_ERR_STATE, "no gradient");
    OK(f->dev, gpunn_train_step(p.opt[0], p.loss[0]));
    OK(f->dev, gpunn_read_grad(maker, grads[1], sizeof grads[1]));
    assert_memory_equal(grads[0], grads[1], sizeof grads[0]);
    pair_destroy(&p);
}

/* A batch norm of frozen statistics is in training what it is in evaluation, and stays so. */
static void test_frozen_statistics(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 8, 3, 3));
    gpunn_tensor *norm = gpunn_batch_norm2d(x, "bn"), *y = gpunn_relu(gpunn_add(norm, x));
    gpunn_tensor *loss = gpunn_mean(gpunn_square(y), GPUNN_ALL, false),
                 *mean = gpunn_find(f->model, "bn.running_mean");
    gpunn_optimizer *opt = MADE(dev, gpunn_sgd(f->model, .lr = 0.1f));
    float           *values = test_randoms(BATCH * 72, 3, 1), before[8], after[8], weight[2][8];
    OK(dev, write_floats(x, values, BATCH * 72));
    OK(dev, gpunn_train_step(opt, loss));
    OK(dev, gpunn_freeze_statistics(mean, true));
    OK(dev, gpunn_read(mean, before, sizeof before));
    OK(dev, gpunn_zero_grad(f->model));
    OK(dev, gpunn_backward(loss, .mode = GPUNN_MODE_EVALUATION));
    OK(dev, gpunn_read_grad(gpunn_find(f->model, "bn.weight"), weight[0], sizeof weight[0]));
    OK(dev, gpunn_train_step(opt, loss));
    OK(dev, gpunn_read_grad(gpunn_find(f->model, "bn.weight"), weight[1], sizeof weight[1]));
    assert_memory_equal(weight[0], weight[1], sizeof weight[0]);
    OK(dev, gpunn_read(mean, after, sizeof after));
    assert_memory_equal(before, after, sizeof before);
    OK(dev, gpunn_freeze_statistics(norm, false));
    OK(dev, gpunn_train_step(opt, loss));
    OK(dev, gpunn_read(mean, after, sizeof after));
    assert_memory_not_equal(before, after, sizeof before);
    FAILS(dev, gpunn_freeze_statistics(x, true), GPUNN_ERR_ARGUMENT, "gpunn_freeze_statistics",
          "running_mean");
    FAILS(NULL, gpunn_freeze_statistics(NULL, true), GPUNN_ERR_ARGUMENT, "NULL");
    free(values);
    gpunn_optimizer_destroy(opt);
}

/* ---- inspecting ---- */
typedef struct seen {
    int    values, gradients, told;
    double mean, zeros, deviation, min, max; /* of relu's result */
    bool   parameter;                        /* a gradient of fc1.weight has been told */
} seen;
static bool on_layer(void *user, const gpunn_layer_statistics *layer)
{
    seen *s = user;
    s->told++;
    s->values += layer->gradient_of == NULL;
    s->gradients += layer->gradient_of != NULL;
    s->parameter = s->parameter || (layer->gradient_of && strcmp(layer->gradient_of, "fc1.weight") == 0);
    if (layer->gradient_of == NULL && strcmp(layer->op, "relu") == 0)
        s->mean = layer->mean, s->zeros = (double)layer->zeros / (double)layer->count,
        s->deviation = layer->deviation, s->min = layer->min, s->max = layer->max;
    return layer->nans == 0;
}

static void test_inspect(void **state)
{
    fixture         *f = *state;
    gpunn_device    *dev = f->dev;
    gpunn_model     *model = MADE(dev, gpunn_model_create(dev));
    net              n[2] = {net_make(f->model), net_make(model)};
    gpunn_optimizer *opt[2] = {MADE(dev, gpunn_adam(f->model)), MADE(dev, gpunn_adam(model))};
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < 2; i++) {
            net_write(dev, n[i], 5, (uint32_t)step);
            OK(dev, gpunn_train_step(opt[i], n[i].loss));
        }
        seen s = {0};
        OK(dev, gpunn_inspect(n[0].loss, .on_layer = on_layer, .user = &s));
        assert_true(s.values > 10 && s.gradients > 8 && s.parameter);
        OK(dev, gpunn_check_nan(n[0].loss));
    }
    check_same_weights(dev, f->model, dev, model); /* no trace */
    FAILS(dev, gpunn_inspect(n[0].loss), GPUNN_ERR_ARGUMENT, "on_layer");
    FAILS(dev, gpunn_check_nan(n[0].logits), GPUNN_ERR_SHAPE, "gpunn_mean");
    for (int i = 0; i < 2; i++) gpunn_optimizer_destroy(opt[i]);
    gpunn_model_destroy(model);
}

/* The numbers, and the first layer that is not finite: an input, a parameter, a value, a gradient. */
static void test_check_nan(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 4));
    gpunn_tensor *root = gpunn_sqrt(gpunn_relu(x)), *h = gpunn_linear(root, "fc1", .out_features = 2);
    gpunn_tensor *loss = gpunn_mean(gpunn_square(h), GPUNN_ALL, false),
                 *weight = gpunn_find(f->model, "fc1.weight");
    gpunn_tensor *offset = gpunn_parameter(f->model, "offset", GPUNN_SHAPE(4),
                                           (gpunn_init){GPUNN_INIT_ZEROS, 0, 0});
    gpunn_tensor *steep = gpunn_sum(gpunn_set_name(gpunn_sqrt(gpunn_mul(offset, offset)), "steep"), GPUNN_ALL,
                                    false);
    gpunn_tensor *log = gpunn_mean(gpunn_log(gpunn_sub(root, root)), GPUNN_ALL, false);
    float         values[8] = {4, -1, 9, -2, 1, 1, 1, -7};
    seen          s = {0};
    OK(dev, write_floats(x, values, 8));
    OK(dev, gpunn_inspect(loss, .on_layer = on_layer, .user = &s));
    assert_true(fabs(s.mean - 2) < 1e-6 && fabs(s.zeros - 0.375) < 1e-6 && s.min == 0 && s.max == 9);
    assert_true(fabs(s.deviation - sqrt(100.0 / 8 - 4)) < 1e-6); /* of 4, 0, 9, 0, 1, 1, 1, 0 */
    OK(dev, gpunn_check_nan(loss));
    FAILS(dev, gpunn_check_nan(steep), GPUNN_ERR_NUMERIC, "sqrt 'steep' gives a gradient with", "NaN");
    FAILS(dev, gpunn_check_nan(log), GPUNN_ERR_NUMERIC, "log has 0 NaN and 8 infinite of 8");
    values[2] = INFINITY;
    OK(dev, write_floats(x, values, 8));
    FAILS(dev, gpunn_check_nan(loss), GPUNN_ERR_NUMERIC, "input 'x'", "0 NaN and 1 infinite of 8");
    values[2] = 1;
    OK(dev, write_floats(x, values, 8));
    values[3] = NAN;
    OK(dev, write_floats(weight, values, 8));
    FAILS(dev, gpunn_check_nan(loss), GPUNN_ERR_NUMERIC, "parameter 'fc1.weight'", "1 NaN");
}

/* Many values, of which each part has its share; a forward pass alone, of what is no loss, leaves gradients
 * alone. */
static void test_inspect_forward(void **state)
{
    enum { MANY = 50000 };
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    gpunn_tensor *w = gpunn_parameter(f->model, "w", GPUNN_SHAPE(1), (gpunn_init){GPUNN_INIT_CONSTANT, 1, 0});
    gpunn_tensor *y = gpunn_relu(gpunn_mul(x, w)), *loss = gpunn_mean(y, GPUNN_ALL, false);
    float        *values = test_randoms(MANY, 9, 1), before, after;
    double        sum = 0, squares = 0, zeros = 0, most = 0;
    for (int i = 0; i < MANY; i++) {
        values[i] = 3 * values[i] + 1;
        const double value = values[i] > 0 ? (double)values[i] : 0;
        sum += value, squares += value * value, zeros += value == 0, most = fmax(most, value);
    }
    OK(dev, write_floats(x, values, MANY));
    OK(dev, gpunn_backward(loss));
    OK(dev, gpunn_read_grad(w, &before, sizeof before));
    seen s = {0};
    OK(dev, gpunn_inspect(y, .on_layer = on_layer, .user = &s, .forward_only = true,
                          .mode = GPUNN_MODE_EVALUATION));
    assert_int_equal(s.values, 4);
    assert_int_equal(s.gradients, 0);
    const double mean = sum / MANY;
    assert_true(fabs(s.mean - mean) < 1e-6 && fabs(s.zeros - zeros / MANY) < 1e-9 && s.min == 0 &&
                s.max == most);
    assert_true(fabs(s.deviation - sqrt(squares / MANY - mean * mean)) < 1e-6);
    OK(dev, gpunn_read_grad(w, &after, sizeof after));
    assert_true(before == after);
    FAILS(dev, gpunn_inspect(y, .on_layer = on_layer, .user = &s), GPUNN_ERR_SHAPE, "gpunn_mean");
    FAILS(NULL, gpunn_inspect(NULL, .on_layer = on_layer, .user = &s, .forward_only = true),
          GPUNN_ERR_ARGUMENT, "NULL");
    free(values);
}

/* ---- recomputing ---- */
enum { WIDE = 8, BLOCKS = 3, PLAIN = 0, IN_ONE, IN_PARTS, WITHIN, WAYS };

/* One block with all that a backward step may want, with what is drawn and what is counted in a run. *middle:
 * a value of it. */
static gpunn_tensor *block(gpunn_model *model, gpunn_tensor *x, int number, gpunn_tensor **middle)
{
    char  names[5][16];
    float order[32];
    for (int i = 0; i < 5; i++) (void)snprintf(names[i], sizeof names[i], "b%d.%d", number, i);
    for (int i = 0; i < 32; i++) order[i] = (float)(i * 11 % 32);
    gpunn_tensor *h = gpunn_conv2d(x, names[0], .out_channels = WIDE, .kernel_size = 3, .padding = 1);
    *middle = h = gpunn_relu(gpunn_add(gpunn_batch_norm2d(h, names[1]), x));
    h = gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 2, 4, 16));
    h = gpunn_scaled_dot_product_attention(h, h, h, .dropout_p = 0.2f);
    h = gpunn_flatten(gpunn_max_pool2d(h, .kernel_size = 2));
    h = gpunn_index_select(h, 1, gpunn_argsort(gpunn_constant(model, GPUNN_SHAPE(32), order), 0, true));
    h = gpunn_dropout(gpunn_layer_norm(h, names[2]), 0.3f);
    h = gpunn_mul(gpunn_gelu_tanh(gpunn_linear(h, names[3], .out_features = WIDE * 16)),
                  gpunn_rand_like(gpunn_flatten(x)));
    h = gpunn_softmax(gpunn_linear(h, names[4], .out_features = WIDE * 16), -1);
    return gpunn_add(gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, WIDE, 4, 4)), x);
}

static gpunn_tensor *deep_make(gpunn_device *dev, gpunn_model *model, int parts, gpunn_tensor **x)
{
    *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2, 4, 4));
    gpunn_tensor *stem = gpunn_conv2d(*x, "stem", .out_channels = WIDE, .kernel_size = 3, .padding = 1),
                 *h = stem, *middle[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        gpunn_tensor *first = h;
        h = block(model, h, i, &middle[i]);
        if (parts == IN_PARTS) OK(dev, gpunn_recompute(first, h));
    }
    if (parts == IN_ONE) OK(dev, gpunn_recompute(stem, h));
    gpunn_tensor *series = gpunn_reshape(gpunn_add(h, middle[0]), GPUNN_SHAPE(GPUNN_BATCH, WIDE, 16));
    gpunn_tensor *last = gpunn_linear(gpunn_gru(series, "gru", .hidden_size = 5, .batch_first = true), "head",
                                      .out_features = 3);
    if (parts == IN_ONE || parts == IN_PARTS) OK(dev, gpunn_recompute(series, last));
    return gpunn_mean(gpunn_square(last), GPUNN_ALL, false);
}

/* The same weights and running statistics to the bit, in less memory; what is named stays readable. */
static void recompute(fixture *f, gpunn_precision precision)
{
    gpunn_device    *dev = f->dev;
    gpunn_model     *model[WAYS];
    gpunn_tensor    *x[WAYS], *loss[WAYS];
    gpunn_optimizer *opt[WAYS];
    size_t           bytes[WAYS];
    float            mean[WAYS][WIDE];
    for (int i = 0; i < WAYS; i++) {
        model[i] = MADE(dev, gpunn_model_create(dev, .precision = precision));
        loss[i] = MADE(dev, deep_make(dev, model[i], i, &x[i]));
        if (i == WITHIN) OK(dev, gpunn_recompute_within(loss[i], 256, bytes[PLAIN] * 9 / 10));
        OK(dev, gpunn_model_summary(model[i], .batch_size = 256, .loss = loss[i], .bytes = &bytes[i]));
        opt[i] = MADE(dev, gpunn_adam(model[i], .lr = 0.01f));
        for (int step = 0; step < 4; step++) {
            float *values = test_randoms(BATCH * 32, (uint32_t)step, 1);
            OK(dev, write_floats(x[i], values, BATCH * 32));
            free(values);
            OK(dev, gpunn_train_step(opt[i], loss[i]));
        }
        OK(dev, gpunn_read(gpunn_find(model[i], "b1.1.running_mean"), mean[i], sizeof mean[i]));
        assert_memory_equal(mean[i], mean[0], sizeof mean[i]);
        check_same_weights(dev, model[i], dev, model[0]);
    }
    /* one part is there as a whole when its gradients are computed */
    if (!(bytes[IN_PARTS] < bytes[PLAIN] * 9 / 10))
        fail_msg("%zu bytes in parts, %zu with everything held", bytes[IN_PARTS], bytes[PLAIN]);
    if (!(bytes[WITHIN] <= bytes[PLAIN] * 9 / 10))
        fail_msg("%zu bytes where nine tenths of %zu were given", bytes[WITHIN], bytes[PLAIN]);
    for (int i = 0; i < WAYS; i++) {
        gpunn_optimizer_destroy(opt[i]);
        gpunn_model_destroy(model[i]);
    }
}

static void test_recompute(void **state)
{
    recompute(*state, GPUNN_PRECISION_F32);
}

static void test_recompute_half(void **state)
{
    recompute(*state, GPUNN_PRECISION_BF16);
}

static void test_recompute_misuse(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    gpunn_tensor *a = gpunn_tanh(x), *b = gpunn_set_name(gpunn_exp(a), "b"), *c = gpunn_sin(b),
                 *other = gpunn_cos(x);
    OK(dev, gpunn_recompute(a, c));
    OK(dev, gpunn_recompute(c, gpunn_tanh(gpunn_tanh(c))));
    FAILS(dev, gpunn_recompute(x, c), GPUNN_ERR_ARGUMENT, "'b' already belongs to another part");
    FAILS(dev, gpunn_recompute(c, a), GPUNN_ERR_ARGUMENT, "'tanh' is not computed from 'sin'");
    FAILS(dev, gpunn_recompute(other, c), GPUNN_ERR_ARGUMENT, "'sin' is not computed from 'cos'");
    FAILS(dev, gpunn_recompute(a, NULL), GPUNN_ERR_ARGUMENT, "the last tensor is NULL");
    FAILS(NULL, gpunn_recompute(NULL, NULL), GPUNN_ERR_ARGUMENT, "the first tensor is NULL");
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *far = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(1));
    FAILS(dev, gpunn_recompute(far, c), GPUNN_ERR_ARGUMENT, "different models");
    gpunn_model_destroy(model);
}

/* As little is computed again as will do; what cannot be leaves everything as it was. */
static void test_recompute_within(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    gpunn_tensor *x, *loss = MADE(dev, deep_make(dev, f->model, PLAIN, &x)), *wide = gpunn_tanh(x);
    size_t        held, least, bytes;
    OK(dev, gpunn_model_summary(f->model, .batch_size = 64, .loss = loss, .bytes = &held));
    FAILS(dev, gpunn_recompute_within(loss, 64, 1), GPUNN_ERR_MEMORY, "batch 64 holds at least");
    OK(dev, gpunn_model_summary(f->model, .batch_size = 64, .loss = loss, .bytes = &bytes));
    assert_true(bytes == held);
    /* on a GPU, the libraries' workspaces take a larger share, which recomputing does not shrink */
    const size_t fewest = strcmp(f->backend->name, "cuda") == 0 ? 9 : 8;
    for (size_t tenths = 10; tenths >= fewest; tenths--) {
        OK(dev, gpunn_recompute_within(loss, 64, held * tenths / 10));
        OK(dev, gpunn_model_summary(f->model, .batch_size = 64, .loss = loss, .bytes = &least));
        assert_true(least <= held * tenths / 10);
    }
    assert_true(least < held);
    OK(dev, gpunn_recompute_within(loss, 64, held));
    OK(dev, gpunn_model_summary(f->model, .batch_size = 64, .loss = loss, .bytes = &bytes));
    assert_true(bytes == held);
    FAILS(dev, gpunn_recompute_within(loss, 0, held), GPUNN_ERR_ARGUMENT, "the batch is 0");
    FAILS(dev, gpunn_recompute_within(wide, 64, held), GPUNN_ERR_SHAPE, "gpunn_mean");
    FAILS(NULL, gpunn_recompute_within(NULL, 64, held), GPUNN_ERR_ARGUMENT, "the loss is NULL");
}

/* ---- several losses of one forward pass ---- */
enum { LOSSES = 4 };

/* Of one input: recurrent, normed, dropped; the third is made of all others, of the last, an activation, by a
 * layer. */
static void losses_make(gpunn_device *dev, gpunn_model *model, bool recomputes, gpunn_tensor **x,
                        gpunn_tensor *loss[LOSSES])
{
    gpunn_tensor *last = deep_make(dev, model, recomputes ? IN_PARTS : PLAIN, x);
    gpunn_tensor *h = gpunn_relu(gpunn_linear(gpunn_flatten(*x), "side.1", .out_features = 9));
    h = gpunn_dropout(gpunn_gelu_tanh(gpunn_linear(h, "side.2", .out_features = 7)), 0.4f);
    h = gpunn_lstm(gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 7, 1)), "side.3", .hidden_size = 3,
                   .batch_first = true);
    loss[0] = last;
    loss[1] = gpunn_mean(gpunn_square(gpunn_linear(h, "side.4", .out_features = 2)), GPUNN_ALL, false);
    loss[3] = gpunn_gelu_tanh(
        gpunn_linear(gpunn_sum(h, GPUNN_AXES(0, 1), true), "side.5", .out_features = 1));
    h = gpunn_mean(gpunn_square(gpunn_linear(loss[3], "side.6", .out_features = 3)), GPUNN_ALL, false);
    loss[2] = gpunn_add(gpunn_mul(loss[0], loss[1]), h);
}

/* All gradients that there are, those of x too. */
static float *gradients_of(gpunn_device *dev, gpunn_model *model, gpunn_tensor *x, int64_t *count)
{
    float *all = calloc(BATCH * 32, sizeof *all);
    *count = BATCH * 32;
    OK(dev, gpunn_read_grad(x, all, BATCH * 32 * sizeof *all));
    for (int i = 0; i < gpunn_parameter_count(model); i++) {
        gpunn_tensor *p = gpunn_parameter_at(model, i);
        const size_t  bytes = gpunn_tensor_bytes(p);
        all = realloc(all, (size_t)*count * sizeof *all + bytes);
        memset(all + *count, 0, bytes);
        /* not reached: by neither of two */
        if (gpunn_read_grad(p, all + *count, bytes) != GPUNN_OK) gpunn_clear_error(dev);
        *count += (int64_t)(bytes / sizeof *all);
    }
    return all;
}

/* A loss's gradients are those of a forward pass of its own, alone or added to those before, and the forward
 * pass happens once. On a CPU they have the same bits. On a GPU a value that is a loss of the pass is stored
 * in F32, and its gradient is not joined to a product, so that rounding differs. */
static void test_retained(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    float         mean[2][WIDE];
    for (int variant = 0; variant < 4; variant++) {
        const gpunn_mode      mode = variant == 1 ? GPUNN_MODE_EVALUATION : GPUNN_MODE_TRAINING;
        const gpunn_precision precision = variant == 3 ? GPUNN_PRECISION_BF16 : GPUNN_PRECISION_F32;
        const double  rounding = f->backend->type == GPUNN_DEVICE_CPU ? 0 : variant == 3 ? 4e-3 : 1e-6;
        gpunn_model  *model[1 + LOSSES];
        gpunn_tensor *x[1 + LOSSES], *loss[1 + LOSSES][LOSSES];
        for (int i = 0; i <= LOSSES; i++) { /* the first has all in one, the others one each */
            model[i] = MADE(dev, gpunn_model_create(dev, .precision = precision));
            losses_make(dev, model[i], variant > 1, &x[i], loss[i]);
            for (int k = 0; k < LOSSES; k++) MADE(dev, gpunn_keep(loss[i][k]));
            MADE(dev, gpunn_retain_grad(x[i]));
            modes_write(dev, x[i], 5);
        }
        float *before = NULL; /* gradients of the loss before */
        for (int repeat = 0; repeat < 2; repeat++)
            for (int k = 0; k < LOSSES; k++) {
                int64_t    count;
                const bool adds = repeat == 1 && k == 2; /* the third to the second */
                if (!adds) OK(dev, gpunn_zero_grad(model[0]));
                if (k == 0)
                    OK(dev, gpunn_backward(loss[0][0], .mode = mode,
                                           .then = {loss[0][1], loss[0][2], loss[0][3]}));
                else
                    OK(dev, gpunn_backward(loss[0][k], .mode = mode, .retained = true));
                OK(dev, gpunn_zero_grad(model[1 + k]));
                OK(dev, gpunn_backward(loss[1 + k][k], .mode = mode));
                for (int j = 0; j < LOSSES; j++)
                    check_close((float[]){gpunn_item(loss[0][j])}, (float[]){gpunn_item(loss[1 + k][j])}, 1,
                                rounding, 0);
                float *own = gradients_of(dev, model[0], x[0], &count),
                      *other = gradients_of(dev, model[1 + k], x[1 + k], &count);
                if (!adds && rounding > 0) check_close(own, other, count, 4 * rounding, rounding / 10);
                for (int64_t i = 0; i < count && !adds && rounding == 0; i++)
                    if (memcmp(&own[i], &other[i], sizeof *own) != 0)
                        fail_msg("variant %d, loss %d: gradient %d is %.9g, alone %.9g", variant, k, (int)i,
                                 (double)own[i], (double)other[i]);
                for (int64_t i = BATCH * 32; i < count && adds; i++) other[i] += before[i];
                if (adds && variant < 3) check_close(own, other, count, 1e-5, 1e-6);
                free(before), free(other);
                before = own;
            }
        for (int i = 0; i < 2; i++)
            OK(dev, gpunn_read(gpunn_find(model[i], "b0.1.running_mean"), mean[i], sizeof mean[i]));
        assert_memory_equal(mean[0], mean[1], sizeof mean[0]);
        free(before);
        for (int i = 0; i <= LOSSES; i++) gpunn_model_destroy(model[i]);
    }
}

/* Where the forward pass is not there any more, a sentence, and nothing has changed. */
static void test_retained_misuse(void **state)
{
    fixture         *f = *state;
    gpunn_device    *dev = f->dev;
    gpunn_tensor    *x, *loss[LOSSES], *weight;
    gpunn_optimizer *opt = MADE(dev, gpunn_sgd(f->model, .prefix = "side."));
    losses_make(dev, f->model, false, &x, loss);
    weight = gpunn_find(f->model, "side.1.weight");
    modes_write(dev, x, 1);
    FAILS(dev, gpunn_backward(loss[1], .retained = true), GPUNN_ERR_STATE, "no gpunn_backward has named it");
    FAILS(dev, gpunn_backward(loss[0], .retained = true, .then = {loss[1]}), GPUNN_ERR_ARGUMENT,
          "exclude each other");
    FAILS(dev, gpunn_backward(loss[0], .then = {x}), GPUNN_ERR_SHAPE, "one computed f32 number");
    for (int i = 0; i < 6; i++) {
        static const char *const faults[] = {"have already been computed",
                                             "another run",
                                             "has changed",
                                             "has changed",
                                             "was different",
                                             "another run"};
        float                   *values = read_floats(dev, weight, &(int64_t){0});
        OK(dev, gpunn_backward(loss[0], .then = {loss[1], loss[2]}));
        if (i == 0) OK(dev, gpunn_backward(loss[2], .retained = true));
        if (i == 1) OK(dev, gpunn_forward(loss, 1));
        if (i == 2) modes_write(dev, x, 2);
        if (i == 3) OK(dev, gpunn_write(weight, values, gpunn_tensor_bytes(weight)));
        if (i == 5) gpunn_empty_cache(dev);
        if (i == 5)
            OK(dev, gpunn_backward(loss[0], .then = {loss[1], loss[2]}, .mode = GPUNN_MODE_EVALUATION));
        if (i == 5) OK(dev, gpunn_backward(loss[0]));
        FAILS(dev, gpunn_backward(loss[1], .optimizer = i == 4 ? opt : NULL, .retained = true),
              GPUNN_ERR_STATE, "'sum' has no forward pass that can be continued", faults[i]);
        free(values);
    }
    OK(dev, gpunn_backward(loss[2], .then = {loss[0], loss[1]}, .optimizer = opt));
    FAILS(dev, gpunn_backward(loss[0], .optimizer = opt, .retained = true), GPUNN_ERR_STATE,
          "no gradient flows from the loss");
    OK(dev, gpunn_backward(loss[1], .optimizer = opt, .retained = true));
    if (f->backend->type == GPUNN_DEVICE_CPU) { /* a GPU tells of it later */
        float bad[BATCH * 32] = {NAN};
        OK(dev, write_floats(x, bad, BATCH * 32));
        FAILS(dev, gpunn_backward(loss[0], .then = {loss[1]}), GPUNN_ERR_NUMERIC, "NaN");
        FAILS(dev, gpunn_backward(loss[1], .retained = true), GPUNN_ERR_STATE, "it has failed");
    }
    gpunn_optimizer_destroy(opt);
}

/* With each allocation failing in turn: a sentence, and in the end what there would have been. */
static void test_no_memory(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 32));
    gpunn_tensor *h = gpunn_tanh(
        gpunn_linear(gpunn_tanh(gpunn_linear(x, "a", .out_features = 4)), "b", .out_features = 4));
    gpunn_tensor *loss[] = {gpunn_mean(gpunn_square(h), GPUNN_ALL, false),
                            gpunn_mean(gpunn_exp(h), GPUNN_ALL, false)};
    gpunn_status  status = GPUNN_ERR_MEMORY;
    int           failures = 0;
    modes_write(dev, x, 1);
    for (int part = 0; part < 4; part++) {
        for (long at = 1; at < 10000; at++) {
            f->memory.fail_at = f->memory.calls + at;
            status = part == 0   ? gpunn_recompute(x, h)
                     : part == 1 ? gpunn_recompute_within(loss[0], 8, SIZE_MAX)
                     : part == 2 ? gpunn_backward(loss[0], .then = {loss[1]})
                                 : gpunn_backward(loss[1], .retained = true);
            f->memory.fail_at = 0;
            if (status == GPUNN_OK) break;
            check_sentence(dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
            failures++;
        }
        assert_int_equal(status, GPUNN_OK);
    }
    assert_true(failures > 20);
}

/* Training's forward pass alone: running statistics move and dropout drops, as in a step whose gradients
 * nobody uses. */
static void test_forward_training(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *x[2], *loss[2] = {modes_make(f->model, &x[0]), modes_make(model, &x[1])};
    float         values[4], mean[2][4];
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < 2; i++) modes_write(dev, x[i], (uint32_t)step / 2);
        OK(dev, gpunn_forward_training(loss, 1));
        OK(dev, gpunn_backward(loss[1]));
        values[step] = gpunn_item(loss[0]);
        assert_true(values[step] == gpunn_item(loss[1]));
    }
    assert_true(values[0] != values[1] && values[2] != values[3]); /* of the same batch: other masks */
    OK(dev, gpunn_read(gpunn_find(f->model, "images.running_mean"), mean[0], sizeof mean[0]));
    OK(dev, gpunn_read(gpunn_find(model, "images.running_mean"), mean[1], sizeof mean[1]));
    assert_memory_equal(mean[0], mean[1], sizeof mean[0]);
    FAILS(dev, gpunn_read_grad(gpunn_find(f->model, "rows.weight"), values, sizeof values), GPUNN_ERR_STATE,
          "has no gradient");
    FAILS(NULL, gpunn_forward_training(NULL, 1), GPUNN_ERR_ARGUMENT,
          "gpunn_forward_training: there are no outputs");
    gpunn_model_destroy(model);
}

/* What training refuses changes nothing and is named. */
static void test_refusals(void **state)
{
    fixture         *f = *state;
    gpunn_device    *dev = f->dev;
    gpunn_model     *other = MADE(dev, gpunn_model_create(dev));
    net              n = net_make(f->model), m = net_make(other);
    gpunn_optimizer *opt = MADE(dev, gpunn_sgd(f->model, .lr = 0.5f));
    float            norm;
    FAILS(NULL, gpunn_train_step(NULL, NULL), GPUNN_ERR_ARGUMENT, "gpunn_train_step", "optimizer is NULL");
    FAILS(dev, gpunn_train_step(NULL, n.loss), GPUNN_ERR_ARGUMENT, "optimizer is NULL");
    FAILS(dev, gpunn_train_step(opt, NULL), GPUNN_ERR_ARGUMENT, "loss is NULL");
    FAILS(dev, gpunn_train_step(opt, m.loss), GPUNN_ERR_ARGUMENT, "another model");
    FAILS(NULL, gpunn_clip_grad_norm(NULL, 1, &norm), GPUNN_ERR_ARGUMENT, "model is NULL");
    FAILS(NULL, gpunn_clip_grad_value(NULL, 1), GPUNN_ERR_ARGUMENT, "model is NULL");
    const float bad[] = {0, -1, NAN};
    for (int i = 0; i < COUNT(bad); i++) {
        FAILS(dev, gpunn_clip_grad_norm(f->model, bad[i], &norm), GPUNN_ERR_ARGUMENT, "max_norm", "above 0");
        FAILS(dev, gpunn_clip_grad_value(f->model, bad[i]), GPUNN_ERR_ARGUMENT, "clip_value", "above 0");
    }
    gpunn_set_lr(NULL, 1);
    check_sentence(NULL, GPUNN_ERR_ARGUMENT, __FILE__, __LINE__, "gpunn_set_lr", "optimizer is NULL", NULL);
    gpunn_set_skip_nan(NULL, true);
    check_sentence(NULL, GPUNN_ERR_ARGUMENT, __FILE__, __LINE__, "gpunn_set_skip_nan", "optimizer is NULL",
                   NULL);
    FAILS(NULL, gpunn_set_schedule(NULL), GPUNN_ERR_ARGUMENT, "gpunn_set_schedule", "optimizer is NULL");
    FAILS(NULL, gpunn_schedule_step(NULL, 0), GPUNN_ERR_ARGUMENT, "optimizer is NULL");
    FAILS(dev, gpunn_set_schedule(opt, .type = (gpunn_schedule_type)77), GPUNN_ERR_ARGUMENT, "type 77");
    FAILS(dev, gpunn_set_schedule(opt, .type = GPUNN_SCHEDULE_STEP), GPUNN_ERR_ARGUMENT, "step_size is 0");
    FAILS(dev, gpunn_set_schedule(opt, .type = GPUNN_SCHEDULE_COSINE), GPUNN_ERR_ARGUMENT,
          "total_steps is 0");
    FAILS(dev, gpunn_set_schedule(opt, .type = GPUNN_SCHEDULE_MULTI_STEP, .milestones = {3, 3}),
          GPUNN_ERR_ARGUMENT, "milestones[1] is 3", "rise");
    assert_true(gpunn_get_lr(opt) == 0.5f);
    FAILS_NULL(dev, gpunn_sgd(f->model, .lr = 1, .group_count = 2), GPUNN_ERR_ARGUMENT, "group_count is 2",
               "NULL");
    gpunn_tensor *const chosen[] = {NULL, gpunn_find(other, "fc1.weight"), n.x};
    const char *const   why[] = {"an earlier builder failed", "from another model", "not a parameter"};
    for (int i = 0; i < COUNT(chosen); i++)
        FAILS_NULL(dev, gpunn_sgd(f->model, .lr = 1, .parameters = &chosen[i], .parameter_count = 1),
                   GPUNN_ERR_ARGUMENT, "parameters[0]", why[i]);
    FAILS(dev, gpunn_inspect(n.loss, .mode = (gpunn_mode)7, .on_layer = on_layer), GPUNN_ERR_ARGUMENT,
          "gpunn_inspect", "7");
    gpunn_tensor *const both[] = {n.logits, m.logits}, *const none[] = {n.logits, NULL};
    FAILS(dev, gpunn_forward(both, 2), GPUNN_ERR_ARGUMENT, "output 1", "another model");
    FAILS(dev, gpunn_forward(none, 2), GPUNN_ERR_ARGUMENT, "output 1", "NULL");
    const void *const gradients[] = {&norm};
    gpunn_tensor     *missing = NULL;
    FAILS(NULL, gpunn_backward_from(&missing, gradients, 1), GPUNN_ERR_ARGUMENT, "first output is NULL");
    FAILS(NULL, gpunn_set_plan_limit(NULL, 1, 1), GPUNN_ERR_ARGUMENT, "model is NULL");
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(other);
}

/* Gradients whose norm is no number cannot be clipped, as that of a square root at 0. */
static void test_norm_refused(void **state)
{
    fixture         *f = *state;
    const gpunn_init zeros = {GPUNN_INIT_ZEROS, 0, 0};
    gpunn_tensor    *p = MADE(f->dev, gpunn_parameter(f->model, "p", GPUNN_SHAPE(3), zeros));
    gpunn_tensor    *loss = MADE(f->dev, gpunn_sum(gpunn_sqrt(gpunn_square(p)), GPUNN_ALL, false));
    float            norm;
    OK(f->dev, gpunn_backward(loss));
    FAILS(f->dev, gpunn_clip_grad_norm(f->model, 1, &norm), GPUNN_ERR_NUMERIC, "gpunn_clip_grad_norm",
          "norm of the gradients", "learning rate");
}

/* A model moves between devices whose memory comes from one place. */
static void test_move_refused(void **state)
{
    fixture      *f = *state;
    gpunn_device *other = gpunn_device_open(ON(f->backend), .threads = 1);
    (void)net_make(f->model);
    FAILS(NULL, gpunn_model_to(NULL, f->dev), GPUNN_ERR_ARGUMENT, "model is NULL");
    FAILS(f->dev, gpunn_model_to(f->model, NULL), GPUNN_ERR_ARGUMENT, "device is NULL");
    FAILS(other, gpunn_model_to(f->model, other), GPUNN_ERR_ARGUMENT, "realloc_fn");
    gpunn_device_close(other);
}

int main(void)
{
    static const struct {
        const char        *name;
        CMUnitTestFunction run;
    } list[] = {{"turns", test_turns},
                {"clipped averages", test_clipped_averages},
                {"own gradients", test_own_gradients},
                {"lists", test_lists},
                {"detached loss", test_detached_loss},
                {"checkpoint", test_checkpoint},
                {"groups", test_groups},
                {"inspect", test_inspect},
                {"inspect forward", test_inspect_forward},
                {"check nan", test_check_nan},
                {"accumulate", test_accumulate},
                {"accumulation ends", test_accumulate_ends},
                {"evaluation mode", test_evaluation_mode},
                {"untouched", test_untouched},
                {"backward of an optimizer", test_backward_of},
                {"frozen statistics", test_frozen_statistics},
                {"recompute", test_recompute},
                {"recompute in 16 bits", test_recompute_half},
                {"recompute misused", test_recompute_misuse},
                {"recompute within a budget", test_recompute_within},
                {"retained", test_retained},
                {"retained misused", test_retained_misuse},
                {"no memory", test_no_memory},
                {"forward in training", test_forward_training},
                {"refusals", test_refusals},
                {"norm refused", test_norm_refused},
                {"move refused", test_move_refused}};
    static struct CMUnitTest tests[64];
    int                      count = 0;
    for (int i = 0; i < COUNT(list); i++)
        count += each_backend(tests + count, list[i].name, list[i].run, NULL);
    count += missing_backends(tests + count);
    return _cmocka_run_group_tests("control", tests, (size_t)count, NULL, NULL);
}
