/* Plans and runs: what can be read when, batches, memory, accumulation, freezing, clipping, failures that
 * change nothing. */
#include "../test.h"

#define FLOATS(...) ((const float[]){__VA_ARGS__})

/* ---- reading ---- */
static void test_read(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    gpunn_tensor *hidden = MADE(dev, gpunn_linear(x, "fc1", .out_features = 4)),
                 *y = MADE(dev, gpunn_relu(gpunn_tanh(hidden)));
    gpunn_tensor *loss = MADE(dev, gpunn_mean(gpunn_linear(y, "fc2", .out_features = 2), GPUNN_ALL, false));
    float         value[8], grad[8];
    OK(dev, gpunn_write(x, FLOATS(1, 2, 3, 4, 5, 6), 24));
    OK(dev, gpunn_forward(&y, 1));
    OK(dev, gpunn_read(y, value, sizeof value));
    OK(dev, gpunn_read(x, value, 24)); /* inputs too */
    assert_true(value[5] == 6);
    FAILS(dev, gpunn_read(loss, value, 4), GPUNN_ERR_STATE, "gpunn_forward");
    FAILS(dev, gpunn_read(hidden, value, sizeof value), GPUNN_ERR_STATE, "gpunn_keep");
    MADE(dev, gpunn_keep(hidden));
    MADE(dev, gpunn_retain_grad(hidden));
    MADE(dev, gpunn_retain_grad(x));
    OK(dev, gpunn_backward(loss));
    OK(dev, gpunn_read(hidden, value, sizeof value));
    OK(dev, gpunn_read_grad(hidden, grad, sizeof grad));
    OK(dev, gpunn_read_grad(x, grad, 24));
    assert_true(isfinite(gpunn_item(loss)));
    FAILS(dev, gpunn_read(y, value, sizeof value), GPUNN_ERR_STATE, "gpunn_keep");
    FAILS(dev, gpunn_read_grad(y, value, sizeof value), GPUNN_ERR_STATE, "gpunn_retain_grad");
    float before = value[0];
    OK(dev, gpunn_forward(&y, 1)); /* kept values stay readable after evaluation as well */
    OK(dev, gpunn_read(hidden, value, sizeof value));
    assert_true(value[0] == before);
    assert_true(isnan(gpunn_item(y)));
    gpunn_clear_error(dev);
    gpunn_tensor *both[] = {y, loss};
    OK(dev, gpunn_forward(both, 2));
    OK(dev, gpunn_read(y, value, sizeof value));
    assert_true(isfinite(gpunn_item(loss)));
    assert_ptr_equal(gpunn_find(f->model, "fc1.weight"), gpunn_parameter_at(f->model, 0));
    assert_string_equal(gpunn_tensor_name(gpunn_set_name(y, "activation")), "activation");
    assert_ptr_equal(gpunn_find(f->model, "activation"), y);
    assert_null(gpunn_find(f->model, "no such"));
    assert_string_equal(gpunn_tensor_name(loss), "");
    OK(dev, gpunn_last_status(dev)); /* asking for a name that is not there is no failure */
}

/* Class weights are no more than factors: the loss gives them no gradient. */
static void test_class_weights(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    gpunn_tensor *t = gpunn_input(f->model, "t", GPUNN_U8, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *w = MADE(
        f->dev, gpunn_parameter(f->model, "w", GPUNN_SHAPE(3), (gpunn_init){GPUNN_INIT_CONSTANT, 1, 0}));
    gpunn_tensor *loss = MADE(f->dev,
                              gpunn_cross_entropy(gpunn_linear(x, "fc", .out_features = 3), t, .weight = w));
    float         grad[3];
    uint8_t       label = 1;
    OK(f->dev, gpunn_write(x, FLOATS(1, 2, 3), 12));
    OK(f->dev, gpunn_write(t, &label, sizeof label));
    OK(f->dev, gpunn_backward(loss));
    FAILS(f->dev, gpunn_read_grad(w, grad, sizeof grad), GPUNN_ERR_STATE, "has no gradient");
}

/* A graph may grow after it has run. */
static void test_growth(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *y = gpunn_linear(x, "fc1", .out_features = 2), *z;
    float         first[2], again[2], value[3];
    OK(f->dev, gpunn_write(x, FLOATS(1, 2), 8));
    OK(f->dev, gpunn_forward(&y, 1));
    OK(f->dev, gpunn_read(y, first, sizeof first));
    z = MADE(f->dev, gpunn_linear(gpunn_relu(y), "fc2", .out_features = 3));
    OK(f->dev, gpunn_forward(&z, 1));
    OK(f->dev, gpunn_read(z, value, sizeof value));
    OK(f->dev, gpunn_forward(&y, 1));
    OK(f->dev, gpunn_read(y, again, sizeof again));
    assert_memory_equal(first, again, sizeof first); /* fc1's weights have stayed */
}

/* Evaluation may pack or fold weights; it must see every change of them. */
static void test_weights_change(void **state)
{
    fixture         *f = *state;
    net              n = net_make(f->model);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .lr = 0.5f));
    float            before[15], after[15];
    net_write(f->dev, n, 5, 1);
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, before, sizeof before));
    for (int change = 0; change < 4; change++) {
        const char *const names[] = {"conv1.weight", "fc1.weight", "bn2.running_var"};
        if (change < 3) {
            gpunn_tensor *p = MADE(f->dev, gpunn_find(f->model, names[change]));
            int64_t       count;
            float        *values = read_floats(f->dev, p, &count);
            for (int64_t i = 0; i < count; i++) values[i] = values[i] * 1.5f + 0.1f;
            OK(f->dev, write_floats(p, values, count));
            free(values);
        } else
            OK(f->dev, gpunn_train_step(opt, n.loss));
        OK(f->dev, gpunn_forward(&n.logits, 1));
        OK(f->dev, gpunn_read(n.logits, after, sizeof after));
        assert_memory_not_equal(before, after, sizeof before);
        memcpy(before, after, sizeof before);
    }
    OK(f->dev, gpunn_forward(&n.logits, 1)); /* and nothing changes by itself */
    OK(f->dev, gpunn_read(n.logits, after, sizeof after));
    assert_memory_equal(before, after, sizeof before);
    gpunn_optimizer_destroy(opt);
}

/* ---- batches ---- */
static void test_batches(void **state)
{
    fixture *f = *state;
    net      n = net_make(f->model);
    float   *x, *all, *part;
    int64_t *t;
    net_data(11, 4, &x, &t);
    OK(f->dev, write_floats(n.x, x, 11 * NET_X));
    OK(f->dev, gpunn_write(n.t, t, 11 * sizeof *t));
    OK(f->dev, gpunn_forward(&n.logits, 1));
    all = read_floats(f->dev, n.logits, NULL);
    static const int64_t sizes[] = {11, 4, 1, 7, 4, 11, 3};
    for (int i = 0; i < COUNT(sizes); i++) { /* rows do not depend on the batch that they are in */
        OK(f->dev, write_floats(n.x, x, sizes[i] * NET_X));
        OK(f->dev, gpunn_forward(&n.logits, 1));
        assert_int_equal(gpunn_tensor_bytes(n.logits), sizes[i] * 12);
        part = read_floats(f->dev, n.logits, NULL);
        check_close(part, all, sizes[i] * 3, 1e-5, 1e-6);
        free(part);
    }
    OK(f->dev, write_floats(n.x, x, 4 * NET_X));
    OK(f->dev, gpunn_write(n.t, t, 3 * sizeof *t));
    FAILS(f->dev, gpunn_forward(&n.loss, 1), GPUNN_ERR_SHAPE, "batch", "x", "t", "4", "3");
    OK(f->dev, gpunn_write(n.t, t, 4 * sizeof *t));
    OK(f->dev, gpunn_forward(&n.loss, 1));
    free(x), free(t), free(all);
}

/* The mean of a partial batch divides by its own size (trap T23), and a row of batch_norm alone is an
 * error. */
static void test_partial_mean(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *t = gpunn_input(f->model, "t", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *loss = MADE(f->dev, gpunn_mse_loss(x, t)),
                 *mean = MADE(f->dev, gpunn_mean(x, GPUNN_ALL, false));
    gpunn_tensor *norm = MADE(f->dev, gpunn_sum(gpunn_batch_norm1d(x, "bn"), GPUNN_ALL, false)),
                 *outputs[] = {loss, mean};
    OK(f->dev, gpunn_write(t, FLOATS(0, 0, 0, 0, 0, 0), 24));
    OK(f->dev, gpunn_write(x, FLOATS(1, 1, 1, 1, 2, 2), 24));
    OK(f->dev, gpunn_forward(outputs, 2));
    check_close(((float[]){gpunn_item(loss), gpunn_item(mean)}), FLOATS(2, 4.0f / 3), 2, 1e-6, 0);
    OK(f->dev, gpunn_write(t, FLOATS(0, 0), 8));
    OK(f->dev, gpunn_write(x, FLOATS(2, 4), 8));
    OK(f->dev, gpunn_forward(outputs, 2));
    check_close(((float[]){gpunn_item(loss), gpunn_item(mean)}), FLOATS(10, 3), 2, 1e-6, 0);
    FAILS(f->dev, gpunn_backward(norm), GPUNN_ERR_SHAPE, "batch_norm", "bn", "1");
    OK(f->dev, gpunn_forward(&norm, 1)); /* evaluation has its running statistics */
}

/* ---- gradients ---- */
static void test_accumulation(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    gpunn_tensor *y = gpunn_linear(gpunn_tanh(gpunn_linear(x, "fc1", .out_features = 5)), "fc2",
                                   .out_features = 2);
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(gpunn_square(y), GPUNN_ALL, false));
    float        *values = test_randoms(8 * 3, 2, 1), whole[15], parts[15];
    gpunn_tensor *w = gpunn_find(f->model, "fc1.weight");
    OK(f->dev, write_floats(x, values, 24));
    OK(f->dev, gpunn_backward(loss));
    OK(f->dev, gpunn_read_grad(w, whole, sizeof whole));
    OK(f->dev, gpunn_zero_grad(f->model));
    OK(f->dev, write_floats(x, values, 9)); /* 3 + 5 rows make 8 */
    OK(f->dev, gpunn_backward(loss));
    OK(f->dev, write_floats(x, values + 9, 15));
    OK(f->dev, gpunn_backward(loss));
    OK(f->dev, gpunn_read_grad(w, parts, sizeof parts));
    check_close(parts, whole, 15, 1e-5, 1e-5);
    OK(f->dev, gpunn_zero_grad(f->model));
    FAILS(f->dev, gpunn_read_grad(w, parts, sizeof parts), GPUNN_ERR_STATE, "fc1.weight", "gpunn_backward");

    /* backward, clip and step apart are what train_step does */
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .lr = 0.1f));
    float            before[15], apart[15];
    OK(f->dev, gpunn_read(w, before, sizeof before));
    OK(f->dev, write_floats(x, values, 24));
    OK(f->dev, gpunn_backward(loss));
    OK(f->dev, gpunn_optimizer_step(opt));
    OK(f->dev, gpunn_read(w, apart, sizeof apart));
    for (int i = 0; i < 15; i++) assert_true(fabsf(before[i] - 0.1f * whole[i] - apart[i]) < 1e-5f);
    free(values);
    gpunn_optimizer_destroy(opt);
}

static void test_clipping(void **state)
{
    fixture      *f = *state;
    const float   start[] = {3, 4, 0, -12}; /* the gradient of p * g: norm 13 */
    gpunn_tensor *g = gpunn_input(f->model, "g", GPUNN_F32, GPUNN_SHAPE(4));
    gpunn_tensor *p = gpunn_parameter(f->model, "p", GPUNN_SHAPE(4), ((gpunn_init){GPUNN_INIT_ZEROS, 0, 0}));
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(gpunn_mul(p, g), GPUNN_ALL, false));
    float         grad[4], norm;
    OK(f->dev, gpunn_write(g, start, sizeof start));
    OK(f->dev, gpunn_backward(loss));
    OK(f->dev, gpunn_clip_grad_norm(f->model, 20, &norm));
    check_close(&norm, FLOATS(13), 1, 1e-6, 0);
    OK(f->dev, gpunn_read_grad(p, grad, sizeof grad));
    check_close(grad, start, 4, 0, 0); /* below the limit nothing changes */
    OK(f->dev, gpunn_clip_grad_norm(f->model, 6.5f, NULL));
    OK(f->dev, gpunn_read_grad(p, grad, sizeof grad));
    check_close(grad, FLOATS(1.5f, 2, 0, -6), 4, 1e-6, 0);
    OK(f->dev, gpunn_clip_grad_value(f->model, 1.75f));
    OK(f->dev, gpunn_read_grad(p, grad, sizeof grad));
    check_close(grad, FLOATS(1.5f, 1.75f, 0, -1.75f), 4, 1e-6, 0);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .lr = 1));
    gpunn_set_clip_norm(opt, 6.5f);
    OK(f->dev, gpunn_train_step(opt, loss));
    OK(f->dev, gpunn_read(p, grad, sizeof grad));
    check_close(grad, FLOATS(-1.5f, -2, 0, 6), 4, 1e-6, 0);
    gpunn_set_clip_norm(opt, 0);
    gpunn_set_clip_value(opt, 2);
    OK(f->dev, gpunn_train_step(opt, loss));
    OK(f->dev, gpunn_read(p, grad, sizeof grad));
    check_close(grad, FLOATS(-3.5f, -4, 0, 8), 4, 1e-6, 0);
    gpunn_optimizer_destroy(opt);
}

static void check_freezing(const fixture *f, net n, gpunn_optimizer *opt)
{
    gpunn_tensor *frozen = gpunn_find(f->model, "conv1.weight"), *live = gpunn_find(f->model, "fc2.weight");
    OK(f->dev, gpunn_set_trainable(frozen, false));
    float *a = read_floats(f->dev, frozen, NULL), *b = read_floats(f->dev, live, NULL);
    for (int round = 0; round < 4; round++) { /* frozen, live, frozen, live */
        if (round) OK(f->dev, gpunn_set_trainable(frozen, round % 2 == 1));
        OK(f->dev, gpunn_train_step(opt, n.loss));
        float *a2 = read_floats(f->dev, frozen, NULL), *b2 = read_floats(f->dev, live, NULL);
        if (round % 2 == 0)
            assert_memory_equal(a, a2, 36 * 4);
        else
            assert_memory_not_equal(a, a2, 36 * 4);
        assert_memory_not_equal(b, b2, 21 * 4);
        free(a), free(b);
        a = a2, b = b2;
    }
    free(a), free(b);
    gpunn_optimizer_destroy(opt);
}

/* Why there is no gradient: nothing to train, or only ops without one between; a retained input needs
 * neither. */
static void test_no_gradient(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2)));
    gpunn_tensor *h = MADE(f->dev, gpunn_linear(x, "l", .out_features = 2));
    gpunn_tensor *steps = MADE(f->dev, gpunn_sum(gpunn_gt(h, x), GPUNN_ALL, false));
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(h, GPUNN_ALL, false));
    float         dx[2];
    OK(f->dev, gpunn_write(x, FLOATS(1, -1), 8));
    FAILS(f->dev, gpunn_backward(steps), GPUNN_ERR_STATE,
          "only through ops without a gradient, such as comparisons");
    OK(f->dev, gpunn_set_trainable(gpunn_find(f->model, "l.weight"), false));
    OK(f->dev, gpunn_set_trainable(gpunn_find(f->model, "l.bias"), false));
    FAILS(f->dev, gpunn_backward(loss), GPUNN_ERR_STATE,
          "every parameter is frozen; unfreeze one with gpunn_set_trainable");
    MADE(f->dev, gpunn_retain_grad(x));
    OK(f->dev, gpunn_backward(loss));
    OK(f->dev, gpunn_read_grad(x, dx, sizeof dx));
}

/* A parameter whose gradient is all zeros decays; one behind gpunn_detach has none and stays. */
static void test_zero_gradient(void **state)
{
    fixture         *f = *state;
    const gpunn_init init = {GPUNN_INIT_CONSTANT, 2.5f, 0};
    gpunn_tensor    *p = MADE(f->dev, gpunn_parameter(f->model, "p", GPUNN_SHAPE(2), init));
    gpunn_tensor    *q = MADE(f->dev, gpunn_parameter(f->model, "q", GPUNN_SHAPE(2), init));
    gpunn_tensor    *loss = MADE(
           f->dev, gpunn_sum(gpunn_mul(gpunn_floor(p), gpunn_sign(gpunn_detach(q))), GPUNN_ALL, false));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .lr = 0.1f, .weight_decay = 0.5f));
    float            value[2], grad[2] = {1, 1};
    OK(f->dev, gpunn_train_step(opt, loss));
    OK(f->dev, gpunn_read_grad(p, grad, sizeof grad));
    check_close(grad, FLOATS(0, 0), 2, 0, 0);
    OK(f->dev, gpunn_read(p, value, sizeof value));
    check_close(value, FLOATS(2.375f, 2.375f), 2, 1e-6, 0);
    OK(f->dev, gpunn_read(q, value, sizeof value));
    check_close(value, FLOATS(2.5f, 2.5f), 2, 0, 0);
    gpunn_optimizer_destroy(opt);
}

static void test_freezing(void **state)
{
    fixture *f = *state;
    net      n = net_make(f->model);
    net_write(f->dev, n, 6, 1);
    check_freezing(f, n, MADE(f->dev, gpunn_adamw(f->model, .lr = 0.1f)));
    check_freezing(f, n, MADE(f->dev, gpunn_nadam(f->model, .lr = 0.1f, .weight_decay = 0.1f)));
    check_freezing(f, n, MADE(f->dev, gpunn_lamb(f->model, .lr = 0.1f)));
    check_freezing(f, n, MADE(f->dev, gpunn_lion(f->model, .lr = 0.1f, .weight_decay = 0.1f)));
    check_freezing(f, n, MADE(f->dev, gpunn_muon(f->model, .lr = 0.1f)));
}

static void test_bad_settings(void **state)
{
    fixture *f = *state;
    FAILS_NULL(f->dev, gpunn_adam(f->model, .beta1 = 1), GPUNN_ERR_ARGUMENT, "gpunn_adam", "beta1 is 1");
    FAILS_NULL(f->dev, gpunn_nadam(f->model, .momentum_decay = -1), GPUNN_ERR_ARGUMENT, "gpunn_nadam",
               "momentum_decay is -1");
    FAILS_NULL(f->dev, gpunn_lamb(f->model, .trust_clip = NAN), GPUNN_ERR_ARGUMENT, "gpunn_lamb",
               "trust_clip is nan");
    FAILS_NULL(f->dev, gpunn_lion(f->model, .lr = -1), GPUNN_ERR_ARGUMENT, "gpunn_lion", "lr is -1");
    FAILS_NULL(f->dev, gpunn_adamax(f->model, .eps = INFINITY), GPUNN_ERR_ARGUMENT, "gpunn_adamax",
               "eps is inf");
    FAILS_NULL(f->dev, gpunn_muon(f->model, .ns_steps = 100), GPUNN_ERR_ARGUMENT, "gpunn_muon",
               "ns_steps is 100", "below 100");
    FAILS_NULL(f->dev, gpunn_muon(f->model, .adjust_lr_fn = 3), GPUNN_ERR_ARGUMENT, "adjust_lr_fn is 3");
    assert_null(gpunn_lamb(NULL));
    assert_null(gpunn_muon(NULL));
    assert_null(gpunn_lion(NULL));
    assert_null(gpunn_nadam(NULL));
    assert_null(gpunn_radam(NULL));
    assert_null(gpunn_adamax(NULL));
}

/* A parameter without a gradient is left alone by the optimizer, weight decay included, as torch does with
 * grad None. */
static void test_unreached(void **state)
{
    fixture      *f = *state;
    gpunn_init    ones = {GPUNN_INIT_CONSTANT, 1, 0};
    gpunn_tensor *p = gpunn_parameter(f->model, "p", GPUNN_SHAPE(2), ones),
                 *q = gpunn_parameter(f->model, "q", GPUNN_SHAPE(2), ones);
    gpunn_tensor    *lp = gpunn_sum(p, GPUNN_ALL, false), *lq = gpunn_sum(q, GPUNN_ALL, false);
    gpunn_optimizer *opt = MADE(f->dev,
                                gpunn_sgd(f->model, .lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.5f));
    float            value[2];
    OK(f->dev, gpunn_train_step(opt, lp));
    OK(f->dev, gpunn_read(p, value, sizeof value));
    check_close(value, FLOATS(0.85f, 0.85f), 2, 1e-6, 0);
    OK(f->dev, gpunn_read(q, value, sizeof value));
    check_close(value, FLOATS(1, 1), 2, 0, 0);
    OK(f->dev, gpunn_train_step(opt, lq));
    OK(f->dev, gpunn_read(p, value, sizeof value)); /* no coasting on the momentum either */
    check_close(value, FLOATS(0.85f, 0.85f), 2, 1e-6, 0);
    gpunn_optimizer_destroy(opt);
}

/* Exchanged for their averages, the weights are evaluated and saved, but neither trained nor put into a
 * checkpoint. */
static void test_swapped(void **state)
{
    fixture         *f = *state;
    net              n = net_make(f->model);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(f->model, .lr = 0.01f)),
                    *other = MADE(f->dev, gpunn_sgd(f->model));
    const char *path = test_path(f, "averages.safetensors");
    float       trained[15], average[15], again[15];
    int64_t     count;
    FAILS(NULL, gpunn_set_ema(NULL, 0.9f), GPUNN_ERR_ARGUMENT, "gpunn_set_ema", "NULL");
    FAILS(NULL, gpunn_ema_swap(NULL), GPUNN_ERR_ARGUMENT, "gpunn_ema_swap", "NULL");
    FAILS(f->dev, gpunn_set_ema(opt, 1), GPUNN_ERR_ARGUMENT, "gpunn_set_ema: decay is 1");
    FAILS(f->dev, gpunn_set_ema(opt, -0.1f), GPUNN_ERR_ARGUMENT, "decay is -0.1");
    FAILS(f->dev, gpunn_set_ema(opt, NAN), GPUNN_ERR_ARGUMENT, "decay is nan");
    FAILS(f->dev, gpunn_ema_swap(opt), GPUNN_ERR_STATE, "gpunn_adam keeps no averages", "gpunn_set_ema");
    net_write(f->dev, n, 5, 1);
    OK(f->dev, gpunn_train_step(opt, n.loss));
    OK(f->dev, gpunn_set_ema(opt, 0.9f)); /* in the middle of training */
    for (int step = 0; step < 4; step++) OK(f->dev, gpunn_train_step(opt, n.loss));
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, trained, sizeof trained));
    float *before = read_weights(f->dev, f->model, &count);

    OK(f->dev, gpunn_ema_swap(opt));
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, average, sizeof average));
    assert_memory_not_equal(average, trained, sizeof average);
    OK(f->dev, gpunn_save(f->model, path));
    FAILS(f->dev, gpunn_train_step(opt, n.loss), GPUNN_ERR_STATE, "gpunn_adam", "averages", "gpunn_ema_swap");
    FAILS(f->dev, gpunn_train_step(other, n.loss), GPUNN_ERR_STATE, "gpunn_sgd", "gpunn_ema_swap");
    FAILS(f->dev, gpunn_optimizer_step(opt), GPUNN_ERR_STATE, "gpunn_ema_swap");
    FAILS(f->dev, gpunn_checkpoint_save(opt, NULL, path), GPUNN_ERR_STATE, "trained or saved",
          "gpunn_ema_swap");
    FAILS(f->dev, gpunn_checkpoint_load(opt, NULL, path), GPUNN_ERR_STATE, "trained or saved",
          "gpunn_ema_swap");
    FAILS(f->dev, gpunn_set_ema(opt, 0), GPUNN_ERR_STATE, "gpunn_set_ema", "gpunn_ema_swap");
    FAILS(f->dev, gpunn_ema_swap(other), GPUNN_ERR_STATE, "gpunn_sgd keeps no averages");

    OK(f->dev, gpunn_ema_swap(opt));
    float *after = read_weights(f->dev, f->model, &count);
    assert_memory_equal(before, after, (size_t)count * sizeof *before);
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, again, sizeof again));
    assert_memory_equal(again, trained, sizeof again);
    OK(f->dev, gpunn_train_step(opt, n.loss));
    OK(f->dev, gpunn_load(f->model, path));
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, again, sizeof again));
    assert_memory_equal(again, average, sizeof again);

    OK(f->dev, gpunn_ema_swap(opt)); /* what is there at the end stays */
    free(before), free(after);
    before = read_weights(f->dev, f->model, &count);
    gpunn_optimizer_destroy(opt);
    after = read_weights(f->dev, f->model, &count);
    assert_memory_equal(before, after, (size_t)count * sizeof *before);
    OK(f->dev, gpunn_train_step(other, n.loss));
    free(before), free(after);
    gpunn_optimizer_destroy(other);
    assert_int_equal(remove(path), 0);
}

/* Averages grow with the model, move with it, and are gone once they are off. */
static void test_averages_follow(void **state)
{
    fixture         *f = *state;
    gpunn_device    *cpu = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .realloc_fn = hook_realloc,
                                             .user = &f->memory);
    gpunn_tensor    *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor    *y = gpunn_batch_norm1d(gpunn_linear(x, "fc1", .out_features = 3), "bn"), *loss;
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .lr = 0.5f, .momentum = 0.5f));
    OK(f->dev, gpunn_set_ema(opt, 0.5f));
    loss = MADE(f->dev, gpunn_mean(gpunn_square(y), GPUNN_ALL, false));
    OK(f->dev, gpunn_write(x, FLOATS(1, 2, -3, 4), 16));
    OK(f->dev, gpunn_train_step(opt, loss));
    loss = MADE(f->dev,
                gpunn_mean(gpunn_square(gpunn_linear(y, "fc2", .out_features = 1)), GPUNN_ALL, false));
    gpunn_tensor *weights[] = {gpunn_find(f->model, "bn.weight"), gpunn_find(f->model, "fc2.weight")},
                 *running = gpunn_find(f->model, "bn.running_mean");
    float expected[2][3], value[3], statistics[3];
    for (int step = 0; step < 4; step++) {
        if (step == 2) OK(f->dev, gpunn_model_to(f->model, cpu));
        gpunn_device *dev = step < 2 ? f->dev : cpu;
        for (int i = 0; i < 2 && step == 0; i++) OK(dev, gpunn_read(weights[i], expected[i], sizeof value));
        OK(dev, gpunn_train_step(opt, loss));
        OK(dev, gpunn_read(running, statistics, sizeof statistics));
        for (int i = 0; i < 2; i++) {
            OK(dev, gpunn_read(weights[i], value, sizeof value));
            for (int j = 0; j < 3; j++) expected[i][j] += 0.5f * (value[j] - expected[i][j]);
        }
        OK(dev, gpunn_ema_swap(opt));
        for (int i = 0; i < 2; i++) {
            OK(dev, gpunn_read(weights[i], value, sizeof value));
            check_close(value, expected[i], 3, 1e-6, 1e-6);
        }
        OK(dev, gpunn_read(running, value, sizeof value));
        assert_memory_equal(value, statistics, sizeof value);
        OK(dev, gpunn_ema_swap(opt));
    }
    size_t bytes = gpunn_memory_allocated(cpu);
    OK(cpu, gpunn_set_ema(opt, 0));
    assert_true(gpunn_memory_allocated(cpu) < bytes);
    OK(cpu, gpunn_train_step(opt, loss));
    FAILS(cpu, gpunn_ema_swap(opt), GPUNN_ERR_STATE, "keeps no averages");
    OK(cpu, gpunn_model_to(f->model, f->dev));
    gpunn_optimizer_destroy(opt);
    gpunn_device_close(cpu);
}

/* Also after steps that reach no parameter, or not all, but not after one that is skipped. */
static void test_averages_of_steps(void **state)
{
    fixture      *f = *state;
    gpunn_init    ones = {GPUNN_INIT_CONSTANT, 1, 0};
    gpunn_tensor *p = gpunn_parameter(f->model, "p", GPUNN_SHAPE(1), ones),
                 *q = gpunn_parameter(f->model, "q", GPUNN_SHAPE(1), ones);
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(1));
    gpunn_tensor *lp = gpunn_sum(gpunn_mul(p, x), GPUNN_ALL, false),
                 *lq = gpunn_sum(gpunn_mul(q, x), GPUNN_ALL, false);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .lr = 1));
    float            value[2];
    OK(f->dev, gpunn_set_ema(opt, 0.5f));
    gpunn_set_clip_norm(opt, 4.05f); /* reached if averages counted as gradients */
    static const struct {
        float x, p, q; /* the averages after it */
        int   what;    /* 0: lp, 1: lq, 2: no gradient */
    } steps[] = {{1, 0, 1, 0},      {2, 0, 0, 1},       {NAN, 0, 0, 0},        {INFINITY, 0, 0, 1},
                 {4, -2, -0.5f, 0}, {0, -3, -0.75f, 2}, {1, -3.5f, -1.375f, 1}};
    for (int i = 0; i < COUNT(steps); i++) {
        OK(f->dev, gpunn_write(x, &steps[i].x, sizeof(float)));
        if (steps[i].what == 2) {
            OK(f->dev, gpunn_zero_grad(f->model));
            OK(f->dev, gpunn_optimizer_step(opt));
        } else {
            gpunn_status status = settled(f->dev, gpunn_train_step(opt, steps[i].what ? lq : lp));
            assert_int_equal(status, isfinite(steps[i].x) ? GPUNN_OK : GPUNN_ERR_NUMERIC);
            gpunn_clear_error(f->dev);
        }
        OK(f->dev, gpunn_ema_swap(opt));
        OK(f->dev, gpunn_read(p, value, sizeof(float)));
        OK(f->dev, gpunn_read(q, value + 1, sizeof(float)));
        assert_true(value[0] == steps[i].p && value[1] == steps[i].q);
        OK(f->dev, gpunn_ema_swap(opt));
    }
    gpunn_optimizer_destroy(opt);
}

/* ---- failures that change nothing ---- */
static void test_nan_loss(void **state)
{
    fixture         *f = *state;
    const bool       on_cpu = f->backend->type == GPUNN_DEVICE_CPU;
    net              n = net_make(f->model);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(f->model));
    net_write(f->dev, n, 4, 1);
    OK(f->dev, gpunn_train_step(opt, n.loss));
    int64_t count, again;
    float  *before = read_weights(f->dev, f->model, &count), *values = test_randoms(4 * NET_X, 1, 1);
    values[7] = NAN;
    OK(f->dev, write_floats(n.x, values, 4 * NET_X));
    FAILS(f->dev, settled(f->dev, gpunn_train_step(opt, n.loss)), GPUNN_ERR_NUMERIC, "loss");
    assert_int_equal(gpunn_step_count(opt), 1);
    float *after = read_weights(f->dev, f->model, &again);
    assert_memory_equal(before, after, (size_t)count * sizeof *before);
    free(before), free(after), free(values);

    int64_t bad[4] = {0, 1, 3, 2}; /* three classes: 3 is none */
    net_write(f->dev, n, 4, 2);
    before = read_weights(f->dev, f->model, &count);
    for (int round = 0; round < 2; round++, bad[2] = -1) {
        OK(f->dev, gpunn_write(n.t, bad, sizeof bad));
        if (on_cpu) {
            const char *label = round ? "-1" : "3";
            FAILS(f->dev, gpunn_train_step(opt, n.loss), GPUNN_ERR_ARGUMENT, "cross_entropy", label);
            FAILS(f->dev, gpunn_forward(&n.loss, 1), GPUNN_ERR_ARGUMENT, "cross_entropy", label);
        } else { /* the loss tells */
            FAILS(f->dev, settled(f->dev, gpunn_train_step(opt, n.loss)), GPUNN_ERR_NUMERIC, "loss");
            OK(f->dev, gpunn_forward(&n.loss, 1));
            assert_true(isnan(gpunn_item(n.loss)));
        }
    }
    after = read_weights(f->dev, f->model, &again);
    assert_memory_equal(before, after, (size_t)count * sizeof *before);
    free(before), free(after);
    gpunn_optimizer_destroy(opt);
}

/* The square root of 0 has no finite slope: a row of zeros in x makes the gradient of 'fc.weight' NaN and the
 * loss stays finite. Beside it, what training moves without gradients. */
static gpunn_tensor *steep_net(gpunn_model *model, int width)
{
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    gpunn_tensor *normed = gpunn_instance_norm1d(
        gpunn_reshape(gpunn_batch_norm1d(x, "bn"), GPUNN_SHAPE(GPUNN_BATCH, 1, 3)), "in",
        .track_running_stats = true);
    gpunn_tensor *h = gpunn_linear(x, "fc", .out_features = width, .no_bias = true);
    gpunn_tensor *visits = gpunn_state(model, "visits", GPUNN_SHAPE(5000), (gpunn_init){0});
    (void)gpunn_set_saved(visits, true);
    (void)gpunn_assign(visits, gpunn_add_scalar(visits, 1), .in_training = true);
    return gpunn_add(gpunn_mean(gpunn_sqrt(gpunn_square(h)), GPUNN_ALL, false),
                     gpunn_mean(gpunn_square(normed), GPUNN_ALL, false));
}

enum { GOOD, STEEP, NAN_LOSS };
static void steep_write(fixture *f, gpunn_model *model, int kind)
{
    const float low = kind == GOOD ? 1 : kind == STEEP ? 0 : NAN;
    OK(f->dev, write_floats(gpunn_find(model, "x"), FLOATS(low, low, low, 1, -2, 3, 3, 1, 1), 9));
}

/* Neither in the first run nor in one that has been captured, with any kind of update, of few gradients or
 * many. */
static void test_nan_gradient(void **state)
{
    fixture *f = *state;
    for (int kind = 0; kind < 8; kind++) {
        gpunn_model     *model = MADE(f->dev, gpunn_model_create(f->dev));
        gpunn_tensor    *loss = MADE(f->dev, steep_net(model, kind % 2 ? 2000 : 2));
        const int        parts = kind == 5 ? 2 : 1;
        gpunn_optimizer *opt = kind == 0   ? gpunn_sgd(model)
                               : kind == 1 ? gpunn_nadam(model)
                               : kind == 2 ? gpunn_lamb(model)
                               : kind == 7 ? gpunn_muon(model)
                                           : gpunn_adam(model, .lr = 0.01f);
        if (kind == 3) OK(f->dev, gpunn_set_ema(opt, 0.5f));
        if (kind == 4) gpunn_set_clip_norm(MADE(f->dev, opt), 1);
        for (int round = 0; round < 2; round++) {
            gpunn_status status;
            int64_t      count;
            steep_write(f, model, GOOD);
            for (int i = 0; i < 3 * parts; i++) OK(f->dev, gpunn_train_step(opt, loss, .accumulate = parts));
            if (parts == 2) OK(f->dev, gpunn_train_step(opt, loss, .accumulate = parts));
            float *before = read_weights(f->dev, model, &count), *after;
            steep_write(f, model, STEEP);
            if (kind == 6) {
                OK(f->dev, gpunn_zero_grad(model));
                OK(f->dev, gpunn_backward(loss, .mode = GPUNN_MODE_EVALUATION));
                status = gpunn_optimizer_step(opt);
            } else
                status = gpunn_train_step(opt, loss, .accumulate = parts);
            FAILS(f->dev, settled(f->dev, status), GPUNN_ERR_NUMERIC,
                  "the gradient of 'fc.weight', by linear 'fc', is NaN");
            after = read_weights(f->dev, model, &count);
            assert_memory_equal(before, after, (size_t)count * sizeof *before);
            assert_true(isfinite(gpunn_item(loss)));
            free(before), free(after);
        }
        gpunn_optimizer_destroy(opt);
        gpunn_model_destroy(model);
    }
}

/* Parameters of many gradients and few, whose gradients come in another order the other way round: one of
 * them is not finite. */
static void test_bad_places(void **state)
{
    fixture           *f = *state;
    static const int   widths[2][3] = {{5, 5000, 7000}, {7000, 5000, 5}};
    static const float one = 1, zero = 0;
    for (int way = 0; way < 2; way++) {
        gpunn_model  *model = MADE(f->dev, gpunn_model_create(f->dev));
        gpunn_tensor *scale[3], *loss = NULL;
        for (int i = 0; i < 3; i++) {
            char name[2][16];
            (void)snprintf(name[0], sizeof name[0], "s%d", i);
            (void)snprintf(name[1], sizeof name[1], "p%d", i);
            gpunn_init    init = {GPUNN_INIT_UNIFORM, 1, 2};
            gpunn_tensor *p = gpunn_parameter(model, name[1], GPUNN_SHAPE(widths[way][i]), init);
            scale[i] = gpunn_input(model, name[0], GPUNN_F32, GPUNN_SHAPE(1));
            gpunn_tensor *steep = gpunn_mean(gpunn_sqrt(gpunn_square(gpunn_mul(p, scale[i]))), GPUNN_ALL,
                                             false);
            loss = MADE(f->dev, i ? gpunn_add(loss, steep) : steep);
            OK(f->dev, write_floats(scale[i], &one, 1));
        }
        gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(model));
        for (int round = 0; round < 2; round++)
            for (int bad = 0; bad < 3; bad++) {
                int64_t count;
                char    text[64];
                if (round) OK(f->dev, gpunn_train_step(opt, loss));
                float *before = read_weights(f->dev, model, &count);
                OK(f->dev, write_floats(scale[bad], &zero, 1));
                (void)snprintf(text, sizeof text, "gradient of 'p%d', by mul, is NaN", bad);
                FAILS(f->dev, settled(f->dev, gpunn_train_step(opt, loss)), GPUNN_ERR_NUMERIC, text);
                float *after = read_weights(f->dev, model, &count);
                assert_memory_equal(before, after, (size_t)count * sizeof *before);
                OK(f->dev, write_floats(scale[bad], &one, 1));
                free(before), free(after);
            }
        OK(f->dev, settled(f->dev, gpunn_train_step(opt, loss)));
        gpunn_optimizer_destroy(opt);
        gpunn_model_destroy(model);
    }
}

/* A gradient that the program asks for, of a parameter that another optimizer trains, may be anything. */
static void test_other_gradient(void **state)
{
    fixture         *f = *state;
    gpunn_init       init = {GPUNN_INIT_UNIFORM, 1, 2};
    gpunn_tensor    *own = gpunn_parameter(f->model, "own", GPUNN_SHAPE(5000), init);
    gpunn_tensor    *other = gpunn_parameter(f->model, "other", GPUNN_SHAPE(5000),
                                             (gpunn_init){GPUNN_INIT_ZEROS, 0, 0});
    gpunn_tensor    *steep = gpunn_mean(gpunn_sqrt(gpunn_square(other)), GPUNN_ALL, false);
    gpunn_tensor    *loss = MADE(f->dev, gpunn_add(gpunn_mean(gpunn_square(own), GPUNN_ALL, false), steep));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .prefix = "own"));
    float            gradient[5000];
    assert_non_null(gpunn_retain_grad(other));
    for (int i = 0; i < 3; i++) OK(f->dev, settled(f->dev, gpunn_train_step(opt, loss)));
    OK(f->dev, gpunn_read_grad(other, gradient, sizeof gradient));
    assert_true(isnan(gradient[0]));
    gpunn_optimizer_destroy(opt);
}

/* What is known of gradients goes when they change: b and g are backward passes with bad and good gradients,
 * z gpunn_zero_grad, c clipping, s a step and r one that is refused. */
static void test_known_gradients(void **state)
{
    fixture         *f = *state;
    gpunn_tensor    *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    gpunn_tensor    *h = gpunn_linear(x, "fc", .out_features = 2000, .no_bias = true);
    gpunn_tensor    *loss = gpunn_mean(gpunn_sqrt(gpunn_square(h)), GPUNN_ALL, false);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model));
    for (const char *at = "zgszgsszbrrgrzgsbrrzgcszbzgsszbrgrzgsss"; *at; at++) {
        gpunn_status status = GPUNN_OK;
        if (*at == 'z') status = gpunn_zero_grad(f->model);
        if (*at == 'b' || *at == 'g') {
            steep_write(f, f->model, *at == 'b' ? STEEP : GOOD);
            status = gpunn_backward(loss);
        }
        if (*at == 'c') status = gpunn_clip_grad_value(f->model, 0.5f);
        if (*at == 's' || *at == 'r') status = settled(f->dev, gpunn_optimizer_step(opt));
        if (*at == 'r')
            FAILS(f->dev, status, GPUNN_ERR_NUMERIC, "the gradient of 'fc.weight', by linear 'fc', is NaN");
        else
            OK(f->dev, status);
    }
    gpunn_optimizer_destroy(opt);
}

/* A step in one of the ways in which there are updates: whole, of two parts, or by gpunn_optimizer_step. */
enum { WHOLE, IN_PARTS, BY_HAND, STEP_WAYS };
static gpunn_status one_step(gpunn_model *model, gpunn_optimizer *opt, gpunn_tensor *loss, int way)
{
    gpunn_status status = GPUNN_OK;
    for (int part = 0; way != BY_HAND && part <= way && status == GPUNN_OK; part++)
        status = gpunn_train_step(opt, loss, .accumulate = 1 + way);
    if (way != BY_HAND) return status;
    status = gpunn_zero_grad(model);
    if (status == GPUNN_OK) status = gpunn_backward(loss, .mode = GPUNN_MODE_EVALUATION);
    return status == GPUNN_OK ? gpunn_optimizer_step(opt) : status;
}

/* A refused step counts nowhere: the same bits as without it. Updates that each block decides, with few
 * gradients and many, that a kernel decides, of two kernels, clipped, and with a loss scale. A parameter that
 * the bad steps do not reach keeps its own number of steps. */
static void test_refused(void **state)
{
    fixture         *f = *state;
    static const int batches[] = {GOOD, STEEP, GOOD, GOOD, STEEP, GOOD, NAN_LOSS, GOOD};
    for (int kind = 0; kind < 6 * STEP_WAYS; kind++) {
        float  *trained[2];
        int64_t count;
        for (int bad = 0; bad < 2; bad++) {
            const bool   half = kind % 6 == 5;
            gpunn_model *model = MADE(
                f->dev,
                gpunn_model_create(f->dev, .precision = half ? GPUNN_PRECISION_F16 : GPUNN_PRECISION_F32));
            gpunn_tensor    *h = gpunn_linear(gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3)),
                                              "fc", .out_features = kind % 6 == 1 ? 2000 : 2, .no_bias = true);
            gpunn_tensor    *loss = gpunn_mean(gpunn_sqrt(gpunn_square(h)), GPUNN_ALL, false);
            gpunn_tensor    *other = gpunn_parameter(model, "other", GPUNN_SHAPE(3),
                                                     (gpunn_init){GPUNN_INIT_CONSTANT, 1, 0});
            gpunn_tensor    *both = gpunn_add(loss, gpunn_mean(gpunn_square(other), GPUNN_ALL, false));
            gpunn_optimizer *opt = kind % 6 == 2   ? gpunn_nadam(model, .lr = 0.01f)
                                   : kind % 6 == 3 ? gpunn_lamb(model, .lr = 0.01f)
                                                   : gpunn_adam(model, .lr = 0.01f);
            OK(f->dev, gpunn_set_ema(MADE(f->dev, opt), 0.5f));
            if (kind % 6 == 4) gpunn_set_clip_norm(opt, 0.1f);
            for (int i = 0; i < COUNT(batches); i++) {
                /* skipped, and the scale halved */
                if (batches[i] != GOOD && (!bad || (half && batches[i] == STEEP))) continue;
                steep_write(f, model, batches[i]);
                const gpunn_status status = settled(f->dev,
                                                    one_step(model, opt, i < 4 ? loss : both, kind / 6));
                if (batches[i] == GOOD)
                    OK(f->dev, status);
                else
                    FAILS(f->dev, status, GPUNN_ERR_NUMERIC, "changed nothing");
            }
            assert_int_equal(gpunn_step_count(opt), 5);
            OK(f->dev, gpunn_ema_swap(opt));
            trained[bad] = read_weights(f->dev, model, &count);
            gpunn_optimizer_destroy(opt);
            gpunn_model_destroy(model);
        }
        if (memcmp(trained[0], trained[1], (size_t)count * sizeof(float)) != 0)
            fail_msg("kind %d has counted a refused step", kind);
        free(trained[0]), free(trained[1]);
    }
}

/* Skipped steps leave no trace but in their count. */
static void test_skipped(void **state)
{
    fixture *f = *state;
    for (int width = 2; width <= 2000; width += 1998) {
        float  *trained[2];
        int64_t count, skipped;
        for (int bad = 0; bad < 2; bad++) {
            gpunn_model     *model = MADE(f->dev, gpunn_model_create(f->dev));
            gpunn_tensor    *loss = MADE(f->dev, steep_net(model, width));
            gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(model, .lr = 0.01f));
            OK(f->dev, gpunn_set_ema(opt, 0.5f));
            gpunn_set_skip_nan(opt, true);
            for (int i = 0; i < 8; i++) {
                const int kind = i % 4 == 1 ? STEEP : i % 4 == 3 ? NAN_LOSS : GOOD;
                if (kind != GOOD && !bad) continue;
                steep_write(f, model, kind);
                OK(f->dev, settled(f->dev, gpunn_train_step(opt, loss)));
            }
            assert_true(gpunn_loss_scale(opt, &skipped) == 1);
            assert_int_equal(skipped, bad ? 4 : 0);
            OK(f->dev, gpunn_ema_swap(opt));
            trained[bad] = read_weights(f->dev, model, &count);
            gpunn_optimizer_destroy(opt);
            gpunn_model_destroy(model);
        }
        assert_memory_equal(trained[0], trained[1], (size_t)count * sizeof(float));
        free(trained[0]), free(trained[1]);
    }
}

/* Integers that pick nothing. */
/* Lengths and labels of ctc_loss that are out of range. */
static void test_bad_labels(void **state)
{
    fixture *f = *state;
    enum { TIMES = 4, CLASSES = 3, MOST = 2 };
    static const struct {
        int64_t     targets[2 * MOST], lengths[2], target_lengths[2]; /* sample 1 is wrong */
        const char *said;
    } cases[] = {
        {{1, 2, 1, 2}, {4, 5}, {2, 2}, "sample 1 has input length 5 (at most 4) and target length 2"},
        {{1, 2, 1, 2}, {4, -1}, {2, 2}, "sample 1 has input length -1 (at most 4)"},
        {{1, 2, 1, 2}, {4, 4}, {2, 3}, "target length 3 (at most 2); check the lengths"},
        {{1, 2, 1, 2}, {4, 4}, {2, -2}, "target length -2 (at most 2); check the lengths"},
        {{1, 2, 1, 3}, {4, 4}, {2, 2}, "label 3 of sample 1 is outside 0 .. 2; check the targets"},
        {{1, 2, -1, 2}, {4, 4}, {2, 2}, "label -1 of sample 1 is outside 0 .. 2; check the targets"},
        {{1, 2, 0, 3}, {4, 4}, {0, 2}, "label 3 of sample 1 is outside 0 .. 2; check the targets"}};
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(TIMES, 2, CLASSES));
    gpunn_tensor *targets = gpunn_input(f->model, "targets", GPUNN_I64, GPUNN_SHAPE(2, MOST));
    gpunn_tensor *lengths = gpunn_input(f->model, "lengths", GPUNN_I64, GPUNN_SHAPE(2));
    gpunn_tensor *ends = gpunn_input(f->model, "ends", GPUNN_I64, GPUNN_SHAPE(2));
    gpunn_tensor *loss = MADE(f->dev, gpunn_ctc_loss(gpunn_log_softmax(x, 2), targets, lengths, ends,
                                                     .reduction = GPUNN_REDUCE_NONE));
    float        *values = test_randoms(TIMES * 2 * CLASSES, 7, 1), value[2];
    OK(f->dev, write_floats(x, values, TIMES * 2 * CLASSES));
    for (int i = 0; i < COUNT(cases); i++) {
        OK(f->dev, gpunn_write(targets, cases[i].targets, sizeof cases[i].targets));
        OK(f->dev, gpunn_write(lengths, cases[i].lengths, sizeof cases[i].lengths));
        OK(f->dev, gpunn_write(ends, cases[i].target_lengths, sizeof cases[i].target_lengths));
        if (f->backend->type == GPUNN_DEVICE_CPU) {
            FAILS(f->dev, gpunn_forward(&loss, 1), GPUNN_ERR_ARGUMENT, cases[i].said);
            continue;
        }
        OK(f->dev, gpunn_forward(&loss, 1));
        OK(f->dev, gpunn_read(loss, value, sizeof value));
        assert_true(isfinite(value[0]) && isnan(value[1]));
    }
    free(values);
}

/* A sample without labels, whose loss is that of blanks alone, beside one whose label is the first class. */
static void test_no_labels(void **state)
{
    enum { TIMES = 2, CLASSES = 3, BLANK = 1 };
    fixture      *f = *state;
    const int64_t targets[] = {0, 2}, lengths[] = {TIMES, TIMES}, ends[] = {1, 0};
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(TIMES, 2, CLASSES));
    gpunn_tensor *given[3] = {gpunn_input(f->model, "targets", GPUNN_I64, GPUNN_SHAPE(2, 1)),
                              gpunn_input(f->model, "lengths", GPUNN_I64, GPUNN_SHAPE(2)),
                              gpunn_input(f->model, "ends", GPUNN_I64, GPUNN_SHAPE(2))};
    gpunn_tensor *loss = MADE(f->dev, gpunn_ctc_loss(x, given[0], given[1], given[2], .blank = BLANK,
                                                     .reduction = GPUNN_REDUCE_NONE));
    float        *p = test_randoms(TIMES * 2 * CLASSES, 7, 1),
          found[2]; /* log-probabilities [time][sample][class] */
    OK(f->dev, write_floats(x, p, TIMES * 2 * CLASSES));
    OK(f->dev, gpunn_write(given[0], targets, sizeof targets));
    OK(f->dev, gpunn_write(given[1], lengths, sizeof lengths));
    OK(f->dev, gpunn_write(given[2], ends, sizeof ends));
    OK(f->dev, gpunn_forward(&loss, 1));
    OK(f->dev, gpunn_read(loss, found, sizeof found));
    const double label[2] = {p[0], p[2 * CLASSES]}, blank[2] = {p[BLANK], p[2 * CLASSES + BLANK]};
    const double one = -log(exp(label[0] + label[1]) + exp(label[0] + blank[1]) + exp(blank[0] + label[1]));
    const double none = -(double)p[CLASSES + BLANK] - (double)p[3 * CLASSES + BLANK];
    assert_true(fabs(found[0] - one) <= 1e-5 && fabs(found[1] - none) <= 1e-5);
    free(p);
}

/* Labels of a cross-entropy that are out of range, at each place. */
static void test_bad_classes(void **state)
{
    enum { N = 3, CLASSES = 4 };
    fixture *f = *state;
    if (f->backend->type != GPUNN_DEVICE_CPU) SKIP("a GPU answers with NaN");
    float        *values = test_randoms(N * CLASSES, 3, 1);
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(N, CLASSES)),
                 *t = gpunn_input(f->model, "t", GPUNN_I64, GPUNN_SHAPE(N));
    gpunn_tensor *loss = MADE(f->dev, gpunn_cross_entropy(x, t));
    OK(f->dev, write_floats(x, values, N * CLASSES));
    for (int place = 0; place < N; place++)
        for (int bad = -1; bad <= CLASSES; bad += CLASSES + 1) {
            int64_t labels[N] = {0, CLASSES - 1, 1};
            char    said[64];
            labels[place] = bad;
            (void)snprintf(said, sizeof said, "label %d at position %d is outside 0 .. 3", bad, place);
            OK(f->dev, gpunn_write(t, labels, sizeof labels));
            FAILS(f->dev, gpunn_forward(&loss, 1), GPUNN_ERR_ARGUMENT, said);
        }
    free(values);
}

static void test_bad_index(void **state)
{
    fixture      *f = *state;
    const int64_t index[3] = {0, 3, -1}, first[3] = {-1, 0, 1};
    gpunn_tensor *t = gpunn_input(f->model, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, 1));
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    gpunn_tensor *out[4] = {
        gpunn_reshape(gpunn_embedding(t, "words", .num_embeddings = 3, .embedding_dim = 2),
                      GPUNN_SHAPE(GPUNN_BATCH, 2)),
        gpunn_gather(x, 1, t), gpunn_scatter_add(x, 1, t, gpunn_slice(x, 1, 0, 1, 1)),
        gpunn_reshape(gpunn_gather_nd(x, t, 1), GPUNN_SHAPE(GPUNN_BATCH, 1))};
    const char *const said[4] = {
        "embedding 'words': token 3 at position 1 is outside 0 .. 2; check the tokens",
        "gather: index 3 at position 1 is outside 0 .. 2; check the indices",
        "scatter_add: index 3 at position 1 is outside 0 .. 2; check the indices",
        "gather: index 3 at position 1 is outside 0 .. 2; check the indices"};
    float value[9];
    OK(f->dev, write_floats(x, FLOATS(0, 1, 2, 3, 4, 5, 6, 7, 8), 9));
    for (int i = 0; i < COUNT(out); i++) {
        const int64_t width = gpunn_tensor_shape(out[i]).dim[1];
        OK(f->dev, gpunn_write(t, index, sizeof index));
        if (f->backend->type == GPUNN_DEVICE_CPU) {
            FAILS(f->dev, gpunn_forward(&out[i], 1), GPUNN_ERR_ARGUMENT, said[i]);
            OK(f->dev, gpunn_write(t, first, sizeof first));
            FAILS(f->dev, gpunn_forward(&out[i], 1), GPUNN_ERR_ARGUMENT,
                  " -1 at position 0 is outside 0 .. 2");
            OK(f->dev, gpunn_write(t, index, sizeof *index));
            continue;
        }
        OK(f->dev, gpunn_forward(&out[i], 1));
        OK(f->dev, gpunn_read(out[i], value, 3 * (size_t)width * sizeof *value));
        for (int k = 0; k < 3 * width; k++) assert_int_equal(isnan(value[k]), k >= width);
    }
}

/* A box of a sample that there is not, or of none, beside boxes that are no numbers or larger than all that
 * can be counted. */
static void test_bad_boxes(void **state)
{
    fixture    *f = *state;
    const float wide = 3e38f;
    float       boxes[] = {0, 0, 0, 2,    2,    1, NAN,   0,     2,    NAN,  0, -INFINITY, 0,    INFINITY, 2,
                           1, 0, 0, wide, wide, 0, -wide, -wide, wide, wide, 1, 1,         wide, 2,        wide};
    const float missing[] = {2, -1, NAN, INFINITY};
    float       value[6 * 4];
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 2, 2));
    gpunn_tensor *t = gpunn_input(f->model, "boxes", GPUNN_F32, GPUNN_SHAPE(6, 5));
    OK(f->dev, write_floats(x, FLOATS(1, 1, 1, 1, 1, 1, 1, 1), 8));
    for (int ratio = 0; ratio < 3; ratio++) {
        gpunn_tensor *y = MADE(f->dev, gpunn_roi_align(x, t, .output_size = 2, .sampling_ratio = ratio));
        OK(f->dev, gpunn_write(t, boxes, sizeof boxes));
        OK(f->dev, gpunn_forward(&y, 1));
        OK(f->dev, gpunn_read(y, value, sizeof value));
        for (int i = 0; i < 24; i++) assert_true(i < 4 ? value[i] == 1 : value[i] >= 0 && value[i] <= 1);
        for (int i = 0; i < COUNT(missing); i++) {
            boxes[5] = missing[i];
            OK(f->dev, gpunn_write(t, boxes, sizeof boxes));
            boxes[5] = 1;
            if (f->backend->type == GPUNN_DEVICE_CPU) {
                FAILS(f->dev, gpunn_forward(&y, 1), GPUNN_ERR_ARGUMENT, "roi_align: box 1 has sample number ",
                      ", which is outside 0 .. 1; check the boxes");
                continue;
            }
            OK(f->dev, gpunn_forward(&y, 1));
            OK(f->dev, gpunn_read(y, value, sizeof value));
            for (int k = 0; k < 24; k++) assert_int_equal(isnan(value[k]), k / 4 == 1);
        }
    }
}

/* A box of no sample is an error on a CPU. On a GPU it adds nothing to the gradient of x. */
static void test_gradient_of_bad_boxes(void **state)
{
    fixture      *f = *state;
    float         boxes[] = {0, 0, 0, 2, 2, 1, 0, 0, 2, 2}, gradient[2][8];
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 2, 2));
    gpunn_tensor *t = gpunn_input(f->model, "boxes", GPUNN_F32, GPUNN_SHAPE(2, 5));
    MADE(f->dev, gpunn_retain_grad(x));
    gpunn_tensor *y = gpunn_roi_align(x, t, .output_size = 2, .sampling_ratio = 2);
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(y, GPUNN_ALL, false));
    OK(f->dev, write_floats(x, FLOATS(1, 2, 3, 4, 5, 6, 7, 8), 8));
    for (int missing = 0; missing < 2; missing++) {
        boxes[5] = missing ? -1 : 1;
        OK(f->dev, gpunn_write(t, boxes, sizeof boxes));
        if (missing && f->backend->type == GPUNN_DEVICE_CPU) {
            FAILS(f->dev, gpunn_backward(loss), GPUNN_ERR_ARGUMENT, "roi_align: box 1 has sample number -1");
            return;
        }
        OK(f->dev, gpunn_backward(loss));
        OK(f->dev, gpunn_read_grad(x, gradient[missing], sizeof *gradient));
    }
    float sum[2] = {0, 0}; /* each of a box's 4 results is a mean of cells */
    for (int i = 0; i < 8; i++) {
        sum[i / 4] += gradient[0][i];
        assert_true(gradient[1][i] == (i < 4 ? gradient[0][i] : 0));
    }
    for (int i = 0; i < 2; i++) assert_true(fabsf(sum[i] - 4) <= 1e-5f);
}

/* All labels ignored: the gradient is 0, as torch's; the mean is -0. */
static void test_all_ignored(void **state)
{
    fixture         *f = *state;
    net              n = net_make(f->model);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model));
    int64_t          ignored[3] = {-100, -100, -100};
    float            slope[3];
    net_write(f->dev, n, 3, 1);
    OK(f->dev, gpunn_write(n.t, ignored, sizeof ignored));
    OK(f->dev, gpunn_forward(&n.loss, 1));
    assert_true(gpunn_item(n.loss) == 0 && signbit(gpunn_item(n.loss)));
    OK(f->dev, settled(f->dev, gpunn_train_step(opt, n.loss)));
    assert_true(gpunn_item(n.loss) == 0 && signbit(gpunn_item(n.loss)));
    OK(f->dev, gpunn_read_grad(gpunn_find(f->model, "fc2.bias"), slope, sizeof slope));
    for (int i = 0; i < COUNT(slope); i++) assert_true(slope[i] == 0);
    gpunn_optimizer_destroy(opt);
}

/* ---- dropout ---- */
static void test_dropout(void **state)
{
    fixture *f = *state;
    enum { N = 40000 };
    const float   p[] = {0, 0.3f, 0.75f, 1};
    gpunn_tensor *x = gpunn_retain_grad(gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(N))), *y[4],
                 *loss[4];
    float *ones = malloc(N * sizeof *ones), *value = malloc(N * sizeof *value),
          *grad = malloc(N * sizeof *grad), *second = malloc(N * 4);
    for (int i = 0; i < N; i++) ones[i] = 1;
    OK(f->dev, write_floats(x, ones, N));
    for (int i = 0; i < 4; i++) {
        y[i] = gpunn_keep(gpunn_dropout(x, p[i]));
        loss[i] = MADE(f->dev, gpunn_sum(y[i], GPUNN_ALL, false));
    }
    for (int i = 0; i < 4; i++) {
        OK(f->dev, gpunn_zero_grad(f->model));
        OK(f->dev, gpunn_backward(loss[i]));
        OK(f->dev, gpunn_read(y[i], value, N * sizeof *value));
        OK(f->dev, gpunn_read_grad(x, grad, N * sizeof *grad));
        int64_t kept = 0, pairs = 0;
        for (int k = 0; k < N; k++) {
            /* p is rounded to 16 bits, and the scale fits that */
            assert_true(value[k] == 0 || fabs(value[k] * (1 - (double)p[i]) - 1) < 1e-5);
            assert_true(value[k] == grad[k]); /* the same mask backward */
            kept += value[k] != 0;
            pairs += k > 0 && value[k] != 0 && value[k - 1] != 0;
        }
        const double q = 1 - (double)p[i];
        assert_true(fabs((double)kept - q * N) <= 4.5 * sqrt(N * q * (1 - q)));
        /* neighbours are independent */
        assert_true(fabs((double)pairs - q * q * N) <= 9 * sqrt(N * q * q * (1 - q * q)) + 1);
        OK(f->dev, gpunn_forward(&y[i], 1));
        OK(f->dev, gpunn_read(y[i], value, N * sizeof *value));
        assert_memory_equal(value, ones, N * sizeof *value); /* evaluation keeps all */
    }
    /* a new mask in each training step, and another at each random_stream */
    gpunn_tensor *w = gpunn_parameter(f->model, "w", GPUNN_SHAPE(1),
                                      ((gpunn_init){GPUNN_INIT_CONSTANT, 1, 0}));
    gpunn_tensor *a = gpunn_keep(gpunn_dropout(gpunn_mul(x, w), 0.5f)),
                 *b = gpunn_keep(gpunn_dropout(gpunn_mul(x, w), 0.5f));
    gpunn_tensor    *sum = MADE(f->dev, gpunn_sum(gpunn_add(a, b), GPUNN_ALL, false));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_sgd(f->model, .lr = 1e-9f));
    OK(f->dev, gpunn_train_step(opt, sum));
    OK(f->dev, gpunn_read(a, value, N * sizeof *value));
    OK(f->dev, gpunn_read(b, grad, N * sizeof *value));
    OK(f->dev, gpunn_train_step(opt, sum));
    OK(f->dev, gpunn_read(a, second, N * sizeof *value));
    int64_t same_stream = 0, same_step = 0;
    for (int k = 0; k < N; k++) {
        same_stream += (value[k] != 0) == (second[k] != 0);
        same_step += (value[k] != 0) == (grad[k] != 0);
    }
    assert_true(llabs(same_stream - N / 2) < 450 && llabs(same_step - N / 2) < 450);
    gpunn_optimizer_destroy(opt);
    free(ones), free(value), free(grad), free(second);
}

/* ---- metrics ---- */
static void test_metrics(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    gpunn_tensor *k = gpunn_input(f->model, "k", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *p = gpunn_input(f->model, "p", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1)),
                 *t = gpunn_input(f->model, "t", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    gpunn_tensor *outputs[] = {gpunn_accuracy(x, k), gpunn_binary_accuracy(p, t)};
    const int64_t labels[] = {2, 0, 1, 1};
    MADE(f->dev, outputs[0]), MADE(f->dev, outputs[1]);
    /* right, right, wrong, a tie goes to the first: wrong */
    OK(f->dev, gpunn_write(x, FLOATS(1, 2, 3, 5, 4, 4, 0, 0, 1, 2, 2, 2), 48));
    OK(f->dev, gpunn_write(k, labels, sizeof labels));
    OK(f->dev, gpunn_write(p, FLOATS(0.5f, 0.6f, 0.1f, 0.9f), 16)); /* 0.5 is no */
    OK(f->dev, gpunn_write(t, FLOATS(0, 1, 1, 1), 16));
    OK(f->dev, gpunn_forward(outputs, 2));
    check_close(((float[]){gpunn_item(outputs[0]), gpunn_item(outputs[1])}), FLOATS(0.5f, 0.75f), 2, 1e-6, 0);
}

/* ---- the memory plan ---- */
typedef struct text {
    char   all[16384];
    size_t length;
} text;
static void append(void *user, const char *piece)
{
    text  *t = user;
    size_t n = strlen(piece);
    assert_true(t->length + n < sizeof t->all);
    memcpy(t->all + t->length, piece, n + 1);
    t->length += n;
}

/* What the summary says is what the device holds after the run, to the byte: training and evaluation, batches
 * and models. */
static gpunn_tensor *chain_net(gpunn_model *model, net *n)
{
    n->x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 36));
    gpunn_tensor *h = n->x;
    for (int i = 0; i < 6; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "fc%d", i);
        h = gpunn_relu(gpunn_linear(h, name, .out_features = 36));
    }
    return n->logits = n->loss = gpunn_mean(h, GPUNN_ALL, false);
}
/* A summary at another batch size leaves results readable as they are. Without .loss and .outputs it counts
 * what no op reads. */
static void test_summary_between(void **state)
{
    fixture *f = *state;
    size_t   whole = 0, named = 0, part = 0;
    FAILS(f->dev, gpunn_model_summary(f->model), GPUNN_ERR_ARGUMENT, "computes nothing yet");
    net n = net_make(f->model);
    net_write(f->dev, n, 5, 1);
    OK(f->dev, gpunn_backward(n.loss));
    const float loss = gpunn_item(n.loss);
    OK(f->dev, gpunn_model_summary(f->model, .batch_size = 64, .loss = n.loss, .bytes = &whole));
    assert_true(gpunn_item(n.loss) == loss);
    OK(f->dev, gpunn_forward(&n.logits, 1));
    float *before = read_floats(f->dev, n.logits, NULL);
    OK(f->dev, gpunn_model_summary(f->model, .batch_size = 64, .bytes = &whole));
    float *after = read_floats(f->dev, n.logits, NULL);
    assert_memory_equal(before, after, 5 * 3 * sizeof *before);
    assert_int_equal(gpunn_tensor_bytes(n.logits), 5 * 3 * sizeof *before);
    OK(f->dev,
       gpunn_model_summary(f->model, .batch_size = 64, .outputs = {n.accuracy, n.loss}, .bytes = &named));
    OK(f->dev, gpunn_model_summary(f->model, .batch_size = 64, .outputs = {n.logits}, .bytes = &part));
    assert_int_equal(whole, named);
    assert_true(part < whole);
    gpunn_model *other = gpunn_model_create(f->dev);
    FAILS(f->dev, gpunn_model_summary(other, .outputs = {n.logits}), GPUNN_ERR_ARGUMENT,
          "output 0 belongs to another model");
    FAILS(f->dev, gpunn_model_summary(f->model, .batch_size = -1), GPUNN_ERR_ARGUMENT, "negative");
    gpunn_model_destroy(other);
    free(before), free(after);
}

/* What is too large for a kernel of the CPU is refused before any memory is taken. */
static void test_limits(void **state)
{
    enum { CASES = 6 };
    static const char *const says[CASES] = {"topk over 4294967297",   "argmax over 2147483648",
                                            "sample from 4294967297", "more than 2^31 - 1 classes",
                                            "more than 2^31 cells",   "more than 2^31 cells"};
    fixture                 *f = *state;
    const int64_t            far = (INT64_C(1) << 32) + 1, wide = INT64_C(1) << 31, side = 2048;
    if (f->backend->type != GPUNN_DEVICE_CPU) SKIP("a GPU has other limits");
    gpunn_tensor *line = gpunn_input(f->model, "line", GPUNN_F32, GPUNN_SHAPE(1, far)),
                 *half = gpunn_input(f->model, "half", GPUNN_F32, GPUNN_SHAPE(wide)),
                 *u = gpunn_input(f->model, "u", GPUNN_F32, GPUNN_SHAPE(1)),
                 *n = gpunn_input(f->model, "n", GPUNN_I64, GPUNN_SHAPE(1)),
                 *words = gpunn_input(f->model, "words", GPUNN_I64, GPUNN_SHAPE(1, 1)),
                 *times = gpunn_input(f->model, "times", GPUNN_F32, GPUNN_SHAPE(1, 1, wide)),
                 *volume = gpunn_input(f->model, "volume", GPUNN_F32, GPUNN_SHAPE(1, 1, side, side, side)),
                 *y[CASES] = {gpunn_topk(line, 2, 1, true, NULL),
                              gpunn_argmax(half, 0, false),
                              gpunn_sample(line, u),
                              gpunn_ctc_loss(times, words, n, n),
                              gpunn_max_pool3d(volume, .kernel_size = 2048),
                              gpunn_avg_pool3d(volume, .kernel_size = 2048)};
    for (int i = 0; i < CASES; i++)
        FAILS(f->dev, gpunn_model_summary(f->model, .outputs = {MADE(f->dev, y[i])}), GPUNN_ERR_UNSUPPORTED,
              says[i]);
    /* as large as can be */
    gpunn_tensor *longest = gpunn_input(f->model, "longest", GPUNN_F32, GPUNN_SHAPE(1, far - 2)),
                 *whole = gpunn_input(f->model, "whole", GPUNN_F32, GPUNN_SHAPE(1, 1, wide - 1));
    gpunn_tensor *fits[] = {gpunn_topk(longest, 2, 1, true, NULL), gpunn_sample(longest, u),
                            gpunn_argmax(whole, 2, false), gpunn_ctc_loss(whole, words, n, n),
                            gpunn_max_pool1d(whole, .kernel_size = INT32_MAX)};
    for (int i = 0; i < COUNT(fits); i++)
        OK(f->dev, gpunn_model_summary(f->model, .outputs = {MADE(f->dev, fits[i])}));
}

static void test_summary(void **state)
{
    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        test_memory memory;
        test_memory_init(&memory);
        gpunn_device *dev = gpunn_device_open(ON(first_backend()), .realloc_fn = hook_realloc,
                                              .user = &memory, .threads = 1 + kind % 2);
        gpunn_model  *model = gpunn_model_create(dev);
        net           n = {NULL, NULL, NULL, NULL, NULL};
        const bool    training = kind & 1, chain = kind & 2;
        const int64_t batch = kind & 4 ? 64 : 3;
        size_t        promised = 0, again = 0;
        text          summary = {{0}, 0};
        if (chain)
            chain_net(model, &n);
        else
            n = net_make(model);
        gpunn_optimizer *opt = training ? gpunn_sgd(model)
                                        /* one without state, which no summary of a model can know of */
                                        : NULL;
        OK(dev,
           gpunn_model_summary(model, .batch_size = batch, .loss = training ? n.loss : NULL,
                               .outputs = {n.logits}, .write = append, .user = &summary, .bytes = &promised));
        assert_int_equal(gpunn_memory_allocated(dev), 0); /* before anything is allocated */
        assert_non_null(strstr(summary.all, chain ? "fc3" : "conv2"));
        /* parameters: 6 * 36 * 37, 40 + 8 + 144 + 8 + 259 + 24 */
        assert_non_null(strstr(summary.all, chain ? "7992" : "483"));
        if (chain) {
            float *values = test_randoms(batch * 36, 1, 1);
            OK(dev, write_floats(n.x, values, batch * 36));
            free(values);
        } else if (training)
            net_write(dev, n, batch, 1);
        else {
            float *values = test_randoms(batch * 36, 1, 1);
            OK(dev, write_floats(n.x, values, batch * 36));
            free(values);
        }
        OK(dev, training ? gpunn_train_step(opt, n.loss) : gpunn_forward(&n.logits, 1));
        const size_t held = gpunn_memory_allocated(dev);
        gpunn_optimizer_destroy(opt); /* a GPU has a few counts of it */
        const size_t peak = gpunn_memory_peak(dev) - (held - gpunn_memory_allocated(dev));
        if (promised != gpunn_memory_allocated(dev))
            fail_msg("%s %s, batch %d: %zu bytes promised, %zu held", training ? "training" : "evaluation",
                     chain ? "chain" : "net", (int)batch, promised, gpunn_memory_allocated(dev));
        assert_true(peak <= promised + 64); /* and never more on the way */
        OK(dev, gpunn_model_summary(model, .batch_size = batch, .loss = training ? n.loss : NULL,
                                    .outputs = {n.logits}, .bytes = &again));
        assert_int_equal(again, promised);
        /* weights, packed weights, x, and two places that the twelve values share */
        if (chain && !training && batch == 64)
            assert_in_range(promised, 0, (size_t)(2.4 * 7992 + 64 * 36 * 3) * 4 + 12000);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
        test_memory_check(&memory);
    }
}

/* Sizes beyond 2^31 elements are counted in 64 bits; beyond those, refused. */
static void test_huge(void **state)
{
    fixture      *f = *state;
    size_t        bytes = 0;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1000));
    gpunn_tensor *y = MADE(f->dev, gpunn_linear(x, "fc", .out_features = 1000));
    OK(f->dev,
       gpunn_model_summary(f->model, .batch_size = INT64_C(3000000000), .outputs = {y}, .bytes = &bytes));
    assert_true(bytes > (size_t)24000000000000);
    FAILS(f->dev, gpunn_model_summary(f->model, .batch_size = INT64_MAX / 8, .outputs = {y}, .bytes = &bytes),
          GPUNN_ERR_SHAPE, "x");
    gpunn_tensor *image = gpunn_input(f->model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 16, 1, 3));
    gpunn_tensor *wide = gpunn_input(f->model, "wide", GPUNN_F32,
                                     GPUNN_SHAPE(GPUNN_BATCH, 1 << 20, 1 << 10, 1 << 10));
    gpunn_tensor *grid = gpunn_input(f->model, "grid", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 3, 2));
    gpunn_tensor *folded[] = {
        MADE(f->dev, gpunn_conv2d(image, "c", .out_channels = 16, .kernel_size = 3, .padding = 1)),
        MADE(f->dev, gpunn_conv2d(wide, "w", .out_channels = 1 << 20, .kernel_size = 1, .stride = 1 << 30,
                                  .padding = 0)),
        MADE(f->dev, gpunn_conv2d(wide, "v", .out_channels = 1 << 18, .kernel_size = 5, .padding = 2,
                                  .no_bias = true)),
        MADE(f->dev, gpunn_grid_sample(image, grid))};
    const int64_t batches[] = {INT64_C(1) << 53, INT64_C(1) << 18, INT64_C(1) << 18, INT64_C(1) << 53};
    for (int i = 0; i < COUNT(folded); i++) {
        gpunn_status status = gpunn_model_summary(f->model, .batch_size = batches[i], .outputs = {folded[i]},
                                                  .bytes = &bytes);
        assert_true(status == GPUNN_OK || status == GPUNN_ERR_SHAPE || status == GPUNN_ERR_MEMORY);
        gpunn_clear_error(f->dev);
    }
    FAILS(f->dev, gpunn_write(x, &bytes, SIZE_MAX / 4000 * 4000), GPUNN_ERR_MEMORY, "memory");
    FAILS(f->dev, gpunn_forward(&y, 1), GPUNN_ERR_STATE, "x");
    assert_int_equal(gpunn_memory_allocated(f->dev), 0);
}

/* Not one allocation after the first step of each plan. */
static void test_no_allocation(void **state)
{
    fixture         *f = *state;
    net              n = net_make(f->model);
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adamw(f->model));
    OK(f->dev, gpunn_set_ema(opt, 0.99f));
    float   *x, logits[36];
    int64_t *t;
    net_data(12, 4, &x, &t);
    static const int64_t sizes[] = {12, 5, 12, 7, 5};
    long                 calls = 0;
    size_t               bytes = 0;
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < COUNT(sizes); i++) {
            OK(f->dev, write_floats(n.x, x, sizes[i] * NET_X));
            OK(f->dev, gpunn_write(n.t, t, (size_t)sizes[i] * sizeof *t));
            OK(f->dev, gpunn_train_step(opt, n.loss));
            (void)gpunn_item(n.loss);
            OK(f->dev, gpunn_backward(n.loss));
            OK(f->dev, gpunn_clip_grad_norm(f->model, 1, NULL));
            OK(f->dev, gpunn_optimizer_step(opt));
            OK(f->dev, gpunn_forward(&n.logits, 1));
            OK(f->dev, gpunn_read(n.logits, logits, (size_t)sizes[i] * 12));
            gpunn_tensor *both[] = {n.loss, n.accuracy};
            OK(f->dev, gpunn_forward(both, 2));
        }
        if (round == 0) {
            calls = f->memory.calls;
            bytes = gpunn_memory_allocated(f->dev);
        }
    }
    assert_int_equal(f->memory.calls, calls);
    assert_int_equal(gpunn_memory_allocated(f->dev), bytes);

    gpunn_empty_cache(f->dev); /* frees plans and arena, keeps weights, and the next run makes them again */
    assert_true(gpunn_memory_allocated(f->dev) < bytes);
    float again[36];
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, again, 60));
    assert_memory_equal(again, logits, 60);
    free(x), free(t);
    gpunn_optimizer_destroy(opt);
}

/* A batch whose values no memory holds is refused before anything is allocated. */
static void test_vast_batch(void **state)
{
    fixture      *f = *state;
    const float   ones[4] = {1, 1, 1, 1};
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1)));
    gpunn_tensor *wide = gpunn_expand(x, GPUNN_SHAPE(GPUNN_BATCH, (int64_t)1 << 58));
    gpunn_tensor *sum = MADE(f->dev, gpunn_sum(wide, GPUNN_ALL, false));
    OK(f->dev, gpunn_write(x, ones, sizeof ones));
    FAILS(f->dev, gpunn_forward(&sum, 1), GPUNN_ERR_SHAPE, "batch 4", "expand", "smaller batch");
}

/* A CPU refuses to divide integers by 0, and the next run goes on. On a GPU the quotient is 0 and the remainder
 * the dividend. */
static void test_integer_division(void **state)
{
    fixture      *f = *state;
    const int64_t a[] = {7, -7, 9}, zero[] = {2, 0, 3}, two[] = {2, 2, 2};
    const int64_t floors[2][3] = {{3, 0, 3}, {3, -4, 4}}, rests[2][3] = {{1, -7, 0}, {1, 1, 1}};
    int64_t       out[3];
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH))),
                 *y = MADE(f->dev, gpunn_input(f->model, "y", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH)));
    gpunn_tensor *const results[] = {MADE(f->dev, gpunn_floor_divide(x, y)),
                                     MADE(f->dev, gpunn_remainder(x, y))};
    OK(f->dev, gpunn_write(x, a, sizeof a));
    for (int k = 0; k < 4; k++) {
        gpunn_tensor *result = results[k / 2];
        OK(f->dev, gpunn_write(y, k % 2 ? two : zero, sizeof zero));
        if (k % 2 == 0 && f->backend->type == GPUNN_DEVICE_CPU) {
            FAILS(f->dev, gpunn_forward(&result, 1), GPUNN_ERR_ARGUMENT, "divides by 0",
                  "check the divisors");
            continue;
        }
        OK(f->dev, gpunn_forward(&result, 1));
        OK(f->dev, gpunn_read(result, out, sizeof out));
        assert_memory_equal(out, k < 2 ? floors[k % 2] : rests[k % 2], sizeof out);
    }
}

/* Sums of integers between short steps of floats, which a GPU runs in one launch. */
static void test_integer_sums(void **state)
{
    fixture      *f = *state;
    const float   floats[] = {1, 2, 4};
    const uint8_t bytes[] = {250, 7, 1};
    const int64_t wide[] = {((int64_t)1 << 40) + 1, -3, 5};
    int64_t       sum;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH)),
                 *b = gpunn_input(f->model, "b", GPUNN_U8, GPUNN_SHAPE(GPUNN_BATCH)),
                 *w = gpunn_input(f->model, "w", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *out[] = {gpunn_square(x), gpunn_sum(b, GPUNN_ALL, false), gpunn_sum(w, GPUNN_ALL, false),
                           gpunn_sum(x, GPUNN_ALL, false)};
    OK(f->dev, gpunn_write(x, floats, sizeof floats));
    OK(f->dev, gpunn_write(b, bytes, sizeof bytes));
    OK(f->dev, gpunn_write(w, wide, sizeof wide));
    OK(f->dev, gpunn_forward(out, COUNT(out)));
    OK(f->dev, gpunn_read(out[1], &sum, sizeof sum));
    assert_int_equal(sum, 258);
    OK(f->dev, gpunn_read(out[2], &sum, sizeof sum));
    assert_int_equal(sum, ((int64_t)1 << 40) + 3);
    assert_true(gpunn_item(out[3]) == 7);
}

/* A tensor without axes is padded in each mode to itself. */
static void test_pad_of_number(void **state)
{
    fixture      *f = *state;
    const float   values[] = {1, 2, 6};
    float         gradient[3];
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH));
    MADE(f->dev, gpunn_retain_grad(x));
    OK(f->dev, gpunn_write(x, values, sizeof values));
    for (int mode = GPUNN_PAD_CONSTANT; mode <= GPUNN_PAD_CIRCULAR; mode++) {
        gpunn_tensor *mean = gpunn_mean(x, GPUNN_ALL, false),
                     *y = MADE(f->dev, gpunn_pad(mean, .mode = (gpunn_pad_mode)mode));
        OK(f->dev, gpunn_zero_grad(f->model));
        OK(f->dev, gpunn_backward(y));
        assert_true(gpunn_item(y) == 3);
        OK(f->dev, gpunn_read_grad(x, gradient, sizeof gradient));
        for (int i = 0; i < 3; i++) assert_true(fabsf(gradient[i] - 1 / 3.0f) < 1e-6f);
    }
}

/* A pad's value as an element of each dtype. */
static void test_pad_of_dtypes(void **state)
{
    static const gpunn_dtype dtypes[] = {GPUNN_U8, GPUNN_BOOL, GPUNN_I32, GPUNN_I64};
    fixture                 *f = *state;
    const float              x = 1, values[] = {0, 1, 3};
    gpunn_tensor            *in = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(1, 1));
    OK(f->dev, gpunn_write(in, &x, sizeof x));
    for (int d = 0; d < COUNT(dtypes); d++)
        for (int i = 0; i < COUNT(values); i++) {
            gpunn_tensor *y = gpunn_pad(gpunn_cast(in, dtypes[d]), .before = {2}, .after = {1},
                                        .value = values[i]);
            gpunn_tensor *all = MADE(f->dev, gpunn_cast(y, GPUNN_F32));
            float         found[4];
            OK(f->dev, gpunn_forward(&all, 1));
            OK(f->dev, gpunn_read(all, found, sizeof found));
            const float wanted = dtypes[d] == GPUNN_BOOL ? (float)(values[i] != 0) : values[i];
            for (int k = 0; k < 4; k++) assert_true(found[k] == (k == 2 ? 1 : wanted));
        }
}

int main(void)
{
    static const struct {
        const char        *name;
        CMUnitTestFunction run;
    } list[] = {{"read", test_read},
                {"class weights", test_class_weights},
                {"integer division", test_integer_division},
                {"integer sums", test_integer_sums},
                {"pad of a number", test_pad_of_number},
                {"pad of dtypes", test_pad_of_dtypes},
                {"vast batch", test_vast_batch},
                {"growth", test_growth},
                {"weights change", test_weights_change},
                {"batches", test_batches},
                {"partial mean", test_partial_mean},
                {"accumulation", test_accumulation},
                {"clipping", test_clipping},
                {"no_gradient", test_no_gradient},
                {"zero_gradient", test_zero_gradient},
                {"freezing", test_freezing},
                {"bad settings", test_bad_settings},
                {"unreached", test_unreached},
                {"swapped", test_swapped},
                {"averages follow", test_averages_follow},
                {"averages of steps", test_averages_of_steps},
                {"nan loss", test_nan_loss},
                {"nan gradient", test_nan_gradient},
                {"bad places", test_bad_places},
                {"other gradient", test_other_gradient},
                {"known gradients", test_known_gradients},
                {"refused", test_refused},
                {"skipped", test_skipped},
                {"bad index", test_bad_index},
                {"bad labels", test_bad_labels},
                {"no labels", test_no_labels},
                {"bad classes", test_bad_classes},
                {"bad boxes", test_bad_boxes},
                {"gradient of bad boxes", test_gradient_of_bad_boxes},
                {"all ignored", test_all_ignored},
                {"dropout", test_dropout},
                {"metrics", test_metrics},
                {"no allocation", test_no_allocation},
                {"summary between", test_summary_between},
                {"limits", test_limits},
                {"huge", test_huge}};
    static struct CMUnitTest tests[64];
    int                      count = 0;
    for (int i = 0; i < COUNT(list); i++)
        count += each_backend(tests + count, list[i].name, list[i].run, NULL);
    count += missing_backends(tests + count);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(test_summary);
    return _cmocka_run_group_tests("run", tests, (size_t)count, NULL, NULL);
}
