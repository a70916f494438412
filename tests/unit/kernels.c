/* Generated kernels in a model: how a set is matched, planned, refused and declined. The set here is written
 * by hand, so that what is tested is gpunn.h alone; results must be those of the single ops. Then a backend
 * whose calls fail. */
#define GPUNN_STATIC /* a copy of its own: it looks inside */
#define GPUNN_IMPLEMENTATION
#include "../robustness/backend.h"

/* ---- a set of kernels over [N, 4] ---- */
enum { TWICE_TANH, LOSS, TANH_ADD, MASK, FORK, EXP_SIN, KERNELS };
static int     calls[KERNELS][GPUNN_KERNEL_DIRECTIONS];
static int64_t most_batch = 1000;

static const float *in(const gpunn_kernel_call *call, int i)
{
    return call->data[i];
}

static void give(const gpunn_kernel_call *call, int i, int64_t at, float value)
{
    float *to = call->data[i];
    if (to) to[at] = call->accumulate[i] ? to[at] + value : value;
}

static size_t no_workspace(int64_t batch, int units)
{
    (void)units;
    return batch > most_batch ? SIZE_MAX : 0;
}

#define VALUE(index, read, written)                                \
    {                                                              \
        GPUNN_KERNEL_VALUE, read, written, GPUNN_F32, 0, index, -1 \
    }
#define GRADIENT(index, read, written)                                \
    {                                                                 \
        GPUNN_KERNEL_GRADIENT, read, written, GPUNN_F32, 0, index, -1 \
    }
#define SHARED_GRADIENT(index, with)                           \
    {                                                          \
        GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, index, with \
    }
#define KEPT(index, read, written)                                \
    {                                                             \
        GPUNN_KERNEL_KEPT, read, written, GPUNN_F32, 0, index, -1 \
    }
#define PROGRAM(list, function)                      \
    {                                                \
        list, COUNT(list), function, no_workspace, 0 \
    }
#define NONE                   \
    {                          \
        NULL, 0, NULL, NULL, 0 \
    }
#define NODE(text, list)        \
    {                           \
        text, list, COUNT(list) \
    }

/* y = tanh(2 a) */
static const gpunn_kernel_operand twice_tanh_forward[] = {VALUE(0, 1, 0), VALUE(-2, 0, 1)};
static const gpunn_kernel_operand twice_tanh_backward[] = {VALUE(-2, 1, 0), GRADIENT(-2, 1, 0),
                                                           GRADIENT(0, 0, 1)};
static int                        run_twice_tanh(const gpunn_kernel_call *call)
{
    for (int64_t i = 0; i < 4 * call->batch; i++) give(call, 1, i, tanhf(2 * in(call, 0)[i]));
    calls[TWICE_TANH][GPUNN_KERNEL_FORWARD]++;
    return 0;
}
static int run_twice_tanh_backward(const gpunn_kernel_call *call)
{
    for (int64_t i = 0; i < 4 * call->batch; i++)
        give(call, 2, i, in(call, 1)[i] * (1 - in(call, 0)[i] * in(call, 0)[i]) * 2);
    calls[TWICE_TANH][GPUNN_KERNEL_BACKWARD]++;
    return 0;
}
static const signed char       of_external[] = {0}, of_node1[] = {-1};
static const gpunn_kernel_node twice_tanh_nodes[] = {NODE("mul_scalar value=2 f32 [N,4]", of_external),
                                                     NODE("tanh f32 [N,4]", of_node1)};

/* loss = mean(y^2), and the gradient of y with it */
static const gpunn_kernel_operand loss_evaluation[] = {VALUE(0, 1, 0), VALUE(-2, 0, 1)};
static const gpunn_kernel_operand loss_forward[] = {VALUE(0, 1, 0), VALUE(-2, 0, 1), GRADIENT(-2, 1, 0),
                                                    GRADIENT(0, 0, 1)};
static int                        run_loss(const gpunn_kernel_call *call)
{
    int64_t n = 4 * call->batch;
    double  sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)in(call, 0)[i] * (double)in(call, 0)[i];
    give(call, 1, 0, (float)(sum / (double)n));
    calls[LOSS][GPUNN_KERNEL_EVALUATION]++;
    return 0;
}
static int run_loss_forward(const gpunn_kernel_call *call)
{
    int64_t n = 4 * call->batch;
    for (int64_t i = 0; i < n; i++) give(call, 3, i, 2 * in(call, 0)[i] * in(call, 2)[0] / (float)n);
    calls[LOSS][GPUNN_KERNEL_FORWARD]++;
    return run_loss(call);
}
static const gpunn_kernel_node loss_nodes[] = {NODE("square f32 [N,4]", of_external),
                                               NODE("sum dims=0,1 mean=1 f32 []", of_node1)};

/* y = tanh(a) + r, whose gradient is y's; keeps tanh(a) */
static const gpunn_kernel_operand tanh_add_evaluation[] = {VALUE(0, 1, 0), VALUE(1, 1, 0), VALUE(-2, 0, 1)};
static const gpunn_kernel_operand tanh_add_forward[] = {VALUE(0, 1, 0), VALUE(1, 1, 0), VALUE(-2, 0, 1),
                                                        KEPT(0, 0, 1)};
static const gpunn_kernel_operand tanh_add_backward[] = {KEPT(0, 1, 0), GRADIENT(-2, 1, 0), GRADIENT(0, 0, 1),
                                                         SHARED_GRADIENT(1, 1)};
static int                        run_tanh_add(const gpunn_kernel_call *call)
{
    for (int64_t i = 0; i < 4 * call->batch; i++) give(call, 2, i, tanhf(in(call, 0)[i]) + in(call, 1)[i]);
    calls[TANH_ADD][GPUNN_KERNEL_EVALUATION]++;
    return 0;
}
static int run_tanh_add_forward(const gpunn_kernel_call *call)
{
    for (int64_t i = 0; i < 4 * call->batch; i++) give(call, 3, i, tanhf(in(call, 0)[i]));
    calls[TANH_ADD][GPUNN_KERNEL_FORWARD]++;
    return run_tanh_add(call);
}
static int run_tanh_add_backward(const gpunn_kernel_call *call)
{
    for (int64_t i = 0; i < 4 * call->batch; i++) {
        float g = in(call, 1)[i], y = in(call, 0)[i];
        give(call, 2, i, g * (1 - y * y));
        give(call, 3, i, g);
    }
    calls[TANH_ADD][GPUNN_KERNEL_BACKWARD]++;
    return 0;
}
static const signed char       of_node1_external1[] = {-1, 1};
static const gpunn_kernel_node tanh_add_nodes[] = {NODE("tanh f32 [N,4]", of_external),
                                                   NODE("add f32 [N,4]", of_node1_external1)};
static const gpunn_kernel_kept tanh_add_kept[] = {{GPUNN_F32, 0, 4}};

/* y = relu(sin(a) + r): its gradient is masked in place and handed on to r */
static const gpunn_kernel_operand mask_forward[] = {VALUE(0, 1, 0), VALUE(1, 1, 0), VALUE(-3, 0, 1)};
static const gpunn_kernel_operand mask_backward[] = {VALUE(0, 1, 0), VALUE(-3, 1, 0), GRADIENT(-3, 1, 1),
                                                     GRADIENT(0, 0, 1), SHARED_GRADIENT(1, 2)};
static int                        run_mask(const gpunn_kernel_call *call)
{
    for (int64_t i = 0; i < 4 * call->batch; i++) {
        float y = sinf(in(call, 0)[i]) + in(call, 1)[i];
        give(call, 2, i, y > 0 ? y : 0);
    }
    calls[MASK][GPUNN_KERNEL_FORWARD]++;
    return 0;
}
static int run_mask_backward(const gpunn_kernel_call *call)
{
    for (int64_t i = 0; i < 4 * call->batch; i++) {
        float g = in(call, 1)[i] > 0 ? in(call, 2)[i] : 0;
        ((float *)call->data[2])[i] = g;
        give(call, 3, i, g * cosf(in(call, 0)[i]));
        give(call, 4, i, g);
    }
    calls[MASK][GPUNN_KERNEL_BACKWARD]++;
    return 0;
}
static const signed char       of_node2[] = {-2};
static const gpunn_kernel_node mask_nodes[] = {NODE("sin f32 [N,4]", of_external),
                                               NODE("add f32 [N,4]", of_node1_external1),
                                               NODE("relu f32 [N,4]", of_node2)};

/* e = exp(a), y = e * q, where e is read outside too */
static const gpunn_kernel_operand fork_forward[] = {VALUE(0, 1, 0), VALUE(1, 1, 0), VALUE(-1, 0, 1),
                                                    VALUE(-2, 0, 1)};
static const gpunn_kernel_operand fork_backward[] = {VALUE(-1, 1, 0),    VALUE(1, 1, 0),
                                                     GRADIENT(-1, 1, 0), GRADIENT(-2, 1, 0),
                                                     GRADIENT(0, 0, 1),  GRADIENT(1, 0, 1)};
static int                        run_fork(const gpunn_kernel_call *call)
{
    for (int64_t i = 0; i < 4 * call->batch; i++) {
        float e = expf(in(call, 0)[i]);
        give(call, 2, i, e);
        give(call, 3, i, e * in(call, 1)[i]);
    }
    calls[FORK][GPUNN_KERNEL_FORWARD]++;
    return 0;
}
static int run_fork_backward(const gpunn_kernel_call *call)
{
    for (int64_t i = 0; i < 4 * call->batch; i++) {
        float e = in(call, 0)[i];
        give(call, 4, i, (in(call, 2)[i] + in(call, 3)[i] * in(call, 1)[i]) * e);
        give(call, 5, i, in(call, 3)[i] * e);
    }
    calls[FORK][GPUNN_KERNEL_BACKWARD]++;
    return 0;
}
static const gpunn_kernel_node fork_nodes[] = {NODE("exp f32 [N,4]", of_external),
                                               NODE("mul f32 [N,4]", of_node1_external1)};

/* e = exp(a), s = sin(c): two nodes without an edge between them */
static const gpunn_kernel_operand exp_sin[] = {VALUE(0, 1, 0), VALUE(1, 1, 0), VALUE(-1, 0, 1),
                                               VALUE(-2, 0, 1)};
static int                        run_exp_sin(const gpunn_kernel_call *call)
{
    for (int64_t i = 0; i < 4 * call->batch; i++) {
        give(call, 2, i, expf(in(call, 0)[i]));
        give(call, 3, i, sinf(in(call, 1)[i]));
    }
    calls[EXP_SIN][GPUNN_KERNEL_FORWARD]++;
    return 0;
}
static const signed char       of_external1[] = {1};
static const gpunn_kernel_node exp_sin_nodes[] = {NODE("exp f32 [N,4]", of_external),
                                                  NODE("sin f32 [N,4]", of_external1)};

static const char *const  externals[] = {"f32 [N,4]", "f32 [N,4]"};
static const gpunn_kernel kernels[KERNELS] = {
    {"g0",
     "y = tanh(2 a)",
     twice_tanh_nodes,
     2,
     externals,
     1,
     NULL,
     0,
     GPUNN_KERNEL_ANY,
     false,
     {PROGRAM(twice_tanh_forward, run_twice_tanh), PROGRAM(twice_tanh_forward, run_twice_tanh),
      PROGRAM(twice_tanh_backward, run_twice_tanh_backward)},
     0,
     0,
     GPUNN_PRECISION_F32},
    {"g1",
     "loss = mean(y^2)",
     loss_nodes,
     2,
     externals,
     1,
     NULL,
     0,
     GPUNN_KERNEL_ANY,
     true,
     {PROGRAM(loss_evaluation, run_loss), PROGRAM(loss_forward, run_loss_forward), NONE},
     0,
     0,
     GPUNN_PRECISION_F32},
    {"g2",
     "y = tanh(a) + r",
     tanh_add_nodes,
     2,
     externals,
     2,
     tanh_add_kept,
     1,
     GPUNN_KERNEL_ANY,
     false,
     {PROGRAM(tanh_add_evaluation, run_tanh_add), PROGRAM(tanh_add_forward, run_tanh_add_forward),
      PROGRAM(tanh_add_backward, run_tanh_add_backward)},
     0,
     0,
     GPUNN_PRECISION_F32},
    {"g3",
     "y = relu(sin(a) + r)",
     mask_nodes,
     3,
     externals,
     2,
     NULL,
     0,
     GPUNN_KERNEL_ANY,
     false,
     {PROGRAM(mask_forward, run_mask), PROGRAM(mask_forward, run_mask),
      PROGRAM(mask_backward, run_mask_backward)},
     0,
     0,
     GPUNN_PRECISION_F32},
    {"g4",
     "e = exp(a); y = e q",
     fork_nodes,
     2,
     externals,
     2,
     NULL,
     0,
     GPUNN_KERNEL_ANY,
     false,
     {PROGRAM(fork_forward, run_fork), PROGRAM(fork_forward, run_fork),
      PROGRAM(fork_backward, run_fork_backward)},
     0,
     0,
     GPUNN_PRECISION_F32},
    {"g5",
     "e = exp(a); s = sin(c)",
     exp_sin_nodes,
     2,
     externals,
     2,
     NULL,
     0,
     GPUNN_KERNEL_ANY,
     false,
     {PROGRAM(exp_sin, run_exp_sin), NONE, NONE},
     0,
     0,
     GPUNN_PRECISION_F32},
};

static int updates_made;
static int run_update(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    (void)threads, (void)lanes;
    assert_true(numbers->go);
    for (int64_t i = 0; i < u->count; i++)
        u->parameter[i] -= numbers->lr * (numbers->scale * u->gradient[i] + u->setting[3] * u->parameter[i]);
    updates_made++;
    return 0;
}
static const gpunn_kernel_update updates[] = {{.kind = GPUNN_UPDATE_SGD, .cpu = run_update}};

/* Everything but `from` to `to` is left out, which also makes it a set for another model. */
static gpunn_kernel_set set_of(int from, int to)
{
    gpunn_kernel_set set = {GPUNN_KERNELS_ABI,
                            1,
                            "try",
                            "0.1",
                            "no hash",
                            "python3 -m generator try.json -o try",
                            kernels + from,
                            to - from + 1,
                            1,
                            NULL,
                            NULL,
                            0,
                            0,
                            updates,
                            1,
                            NULL};
    memset(calls, 0, sizeof calls);
    updates_made = 0;
    most_batch = 1000;
    return set;
}

/* ---- models ---- */
typedef struct trained {
    gpunn_model     *model;
    gpunn_tensor    *x, *middle, *y, *loss;
    gpunn_optimizer *opt;
} trained;

typedef gpunn_tensor *(*body)(gpunn_tensor *a, gpunn_tensor **middle);

static trained make_net(gpunn_device *dev, body make)
{
    trained n = {0};
    n.model = MADE(dev, gpunn_model_create(dev));
    n.x = gpunn_input(n.model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    n.y = MADE(dev, make(gpunn_linear(n.x, "fc1", .out_features = 4), &n.middle));
    n.loss = MADE(dev, gpunn_mean(gpunn_square(n.y), GPUNN_ALL, false));
    n.opt = MADE(dev, gpunn_sgd(n.model, .lr = 0.3f));
    OK(dev, gpunn_set_ema(n.opt, 0.5f));
    return n;
}

static void end_net(trained *n)
{
    gpunn_optimizer_destroy(n->opt);
    gpunn_model_destroy(n->model);
}

enum { BATCH = 6, STEPS = 4 };

/* Trains two models of one kind, the second with the set, and compares losses, weights and values of
 * evaluation. */
static void compare(gpunn_device *dev, body make, const gpunn_kernel_set *set, bool keep)
{
    trained n[2];
    float   value[2][BATCH * 4], loss[2][STEPS], weight[2][12], average[2][12], x[BATCH * 3];
    for (int i = 0; i < BATCH * 3; i++) x[i] = 0.3f * (float)(i % 7) - 0.8f;
    for (int k = 0; k < 2; k++) {
        n[k] = make_net(dev, make);
        if (keep) MADE(dev, gpunn_keep(n[k].middle));
        if (keep) MADE(dev, gpunn_retain_grad(n[k].y));
        if (k == 1) OK(dev, gpunn_use_kernels(n[k].model, set));
        OK(dev, gpunn_write(n[k].x, x, sizeof x));
        for (int i = 0; i < STEPS; i++) {
            OK(dev, gpunn_train_step(n[k].opt, n[k].loss));
            loss[k][i] = gpunn_item(n[k].loss);
        }
        OK(dev, gpunn_read(gpunn_find(n[k].model, "fc1.weight"), weight[k], sizeof weight[k]));
        OK(dev, gpunn_forward(&n[k].y, 1));
        OK(dev, gpunn_read(n[k].y, value[k], sizeof value[k]));
        OK(dev, gpunn_ema_swap(n[k].opt));
        OK(dev, gpunn_read(gpunn_find(n[k].model, "fc1.weight"), average[k], sizeof average[k]));
        assert_memory_not_equal(average[k], weight[k], sizeof weight[k]);
    }
    check_close(loss[1], loss[0], STEPS, 1e-5, 1e-6);
    check_close(average[1], average[0], 12, 1e-5, 1e-6);
    check_close(weight[1], weight[0], 12, 1e-5, 1e-6);
    check_close(value[1], value[0], BATCH * 4, 1e-5, 1e-6);
    end_net(&n[1]);
    end_net(&n[0]);
}

static gpunn_tensor *twice_tanh(gpunn_tensor *a, gpunn_tensor **middle)
{
    *middle = gpunn_mul_scalar(a, 2);
    return gpunn_tanh(*middle);
}

/* r is read by both: its gradient is y's, then added to. */
static gpunn_tensor *residual(gpunn_tensor *a, gpunn_tensor **middle)
{
    *middle = gpunn_tanh(gpunn_linear(a, "fc2", .out_features = 4));
    return gpunn_add(*middle, a);
}

static gpunn_tensor *two_masks(gpunn_tensor *a, gpunn_tensor **middle)
{
    gpunn_tensor *one = gpunn_relu(gpunn_add(gpunn_sin(gpunn_linear(a, "fc2", .out_features = 4)), a));
    *middle = one;
    return gpunn_relu(gpunn_add(gpunn_sin(gpunn_linear(one, "fc3", .out_features = 4)), one));
}

/* The gradient of a sum is masked in place by the group of one operand before the other operand has read
 * it. */
static gpunn_tensor *shared_mask(gpunn_tensor *a, gpunn_tensor **middle)
{
    gpunn_tensor *r = gpunn_linear(a, "fc2", .out_features = 4);
    *middle = gpunn_exp(gpunn_linear(r, "fc3", .out_features = 4));
    return gpunn_add(gpunn_relu(gpunn_add(gpunn_sin(a), r)), *middle);
}

/* A group adds to the gradient of one operand of a sum before the other operand has read it. */
static gpunn_tensor *added_between(gpunn_tensor *a, gpunn_tensor **middle)
{
    gpunn_tensor *p = gpunn_linear(a, "fc2", .out_features = 4),
                 *q = gpunn_cos(gpunn_linear(a, "fc3", .out_features = 4));
    gpunn_tensor *group = gpunn_tanh(gpunn_mul_scalar(p, 2));
    *middle = gpunn_add(p, q);
    return gpunn_sub(*middle, group);
}

/* The gradient that could be shared has been written before. */
static gpunn_tensor *written_before(gpunn_tensor *a, gpunn_tensor **middle)
{
    *middle = gpunn_linear(a, "fc2", .out_features = 4);
    return gpunn_mul(gpunn_relu(gpunn_add(gpunn_sin(a), *middle)), *middle);
}

/* What a group takes cannot be merged into the layer before it. */
static gpunn_tensor *after_layer(gpunn_tensor *a, gpunn_tensor **middle)
{
    *middle = gpunn_linear(a, "fc2", .out_features = 4);
    return gpunn_relu(gpunn_add(gpunn_sin(a), *middle));
}

/* The first node of the group is read by nobody else. */
static gpunn_tensor *unforked(gpunn_tensor *a, gpunn_tensor **middle)
{
    *middle = gpunn_linear(a, "fc2", .out_features = 4);
    return gpunn_mul(gpunn_exp(*middle), gpunn_linear(a, "fc3", .out_features = 4));
}

/* The loss of a kernel is not the model's. */
static gpunn_tensor *inner_loss(gpunn_tensor *a, gpunn_tensor **middle)
{
    *middle = gpunn_cos(a);
    return gpunn_add(*middle, gpunn_mean(gpunn_square(*middle), GPUNN_ALL, false));
}

/* An outer node stands between the two of the group, and reads the first. */
static gpunn_tensor *forked(gpunn_tensor *a, gpunn_tensor **middle)
{
    gpunn_tensor *e = gpunn_exp(gpunn_linear(a, "fc2", .out_features = 4)), *side = gpunn_cos(e);
    gpunn_tensor *q = gpunn_linear(a, "fc3", .out_features = 4);
    *middle = side;
    return gpunn_sub(gpunn_mul(e, q), side);
}

static gpunn_tensor *waiting(gpunn_tensor *a, gpunn_tensor **middle)
{
    *middle = gpunn_cos(gpunn_exp(a));
    return gpunn_sin(*middle);
}

/* ---- tests ---- */
static void test_matching(void **state)
{
    fixture         *f = *state;
    gpunn_kernel_set set = set_of(TWICE_TANH, LOSS);
    compare(f->dev, twice_tanh, &set, false);
    assert_int_equal(calls[TWICE_TANH][GPUNN_KERNEL_FORWARD], STEPS + 1);
    assert_int_equal(calls[TWICE_TANH][GPUNN_KERNEL_BACKWARD], STEPS);
    assert_int_equal(calls[LOSS][GPUNN_KERNEL_FORWARD], STEPS);
    assert_true(updates_made >= STEPS);
}

/* By the hash of the model's text, with instances; what is appended later does no harm. */
static void test_exact(void **state)
{
    fixture         *f = *state;
    gpunn_kernel_set set = set_of(TWICE_TANH, LOSS);
    char             hash[65];
    trained          n = make_net(f->dev, twice_tanh);
    int              body_ids[3] = {n.middle->id, n.y->id, n.middle->id - 1},
        loss_ids[3] = {n.loss->id - 1, n.loss->id, n.y->id};
    const gpunn_kernel_instance instances[2] = {{0, body_ids}, {1, loss_ids}};
    float                       x[3 * 2] = {1, 2, 3, 4, 5, 6};
    set.tensor_count = n.model->tensor_count;
    gpunn__model_sha256(n.model, set.tensor_count, hash);
    set.spec_sha256 = hash;
    set.evaluation = set.training = instances;
    set.evaluation_count = set.training_count = 2;
    gpunn_tensor *late = MADE(f->dev, gpunn_mean(n.y, GPUNN_ALL, false));
    OK(f->dev, gpunn_use_kernels(n.model, &set, .policy = GPUNN_KERNELS_STRICT));
    OK(f->dev, gpunn_write(n.x, x, sizeof x));
    OK(f->dev, gpunn_train_step(n.opt, n.loss));
    assert_int_equal(calls[TWICE_TANH][GPUNN_KERNEL_BACKWARD], 1);
    assert_int_equal(calls[LOSS][GPUNN_KERNEL_FORWARD], 1);
    OK(f->dev, gpunn_forward(&late, 1));
    assert_int_equal(calls[TWICE_TANH][GPUNN_KERNEL_FORWARD], 2);
    assert_true(isfinite(gpunn_item(late)));
    OK(f->dev, gpunn_use_kernels(n.model, NULL));
    OK(f->dev, gpunn_forward(&late, 1));
    assert_int_equal(calls[TWICE_TANH][GPUNN_KERNEL_FORWARD], 2);
    end_net(&n);
}

/* What somebody reads inside of a group keeps it single. */
static void test_visible(void **state)
{
    fixture         *f = *state;
    gpunn_kernel_set set = set_of(TWICE_TANH, LOSS);
    compare(f->dev, twice_tanh, &set, true);
    assert_int_equal(calls[TWICE_TANH][GPUNN_KERNEL_FORWARD], 0);
    assert_int_equal(calls[LOSS][GPUNN_KERNEL_FORWARD], STEPS);
}

static void test_shared_gradients(void **state)
{
    fixture         *f = *state;
    gpunn_kernel_set set = set_of(TANH_ADD, TANH_ADD);
    compare(f->dev, residual, &set, false);
    assert_int_equal(calls[TANH_ADD][GPUNN_KERNEL_BACKWARD], STEPS);
    set = set_of(MASK, MASK);
    compare(f->dev, two_masks, &set, false);
    assert_int_equal(calls[MASK][GPUNN_KERNEL_BACKWARD], 2 * STEPS);
    set = set_of(MASK, MASK);
    compare(f->dev, shared_mask, &set, false);
    assert_int_equal(calls[MASK][GPUNN_KERNEL_BACKWARD], STEPS);
    set = set_of(TWICE_TANH, TWICE_TANH);
    compare(f->dev, added_between, &set, false);
    assert_int_equal(calls[TWICE_TANH][GPUNN_KERNEL_BACKWARD], STEPS);
    set = set_of(MASK, MASK);
    compare(f->dev, written_before, &set, false);
    assert_int_equal(calls[MASK][GPUNN_KERNEL_BACKWARD], STEPS);
    set = set_of(MASK, MASK);
    compare(f->dev, after_layer, &set, false);
    assert_int_equal(calls[MASK][GPUNN_KERNEL_BACKWARD], STEPS);
    set = set_of(MASK, MASK);
    compare(f->dev, two_masks, &set, true); /* a retained gradient is not masked in place */
    assert_int_equal(calls[MASK][GPUNN_KERNEL_BACKWARD], STEPS);
}

/* Gradients come from outside just where the kernel reads some. */
static void test_gradients_from_outside(void **state)
{
    fixture                          *f = *state;
    gpunn_kernel_set                  set = set_of(FORK, FORK);
    static const gpunn_kernel_operand fewer[] = {VALUE(-1, 1, 0), VALUE(1, 1, 0), GRADIENT(-2, 1, 0),
                                                 GRADIENT(0, 0, 1), GRADIENT(1, 0, 1)};
    gpunn_kernel                      kernel = kernels[FORK];
    compare(f->dev, unforked, &set, false);
    assert_int_equal(calls[FORK][GPUNN_KERNEL_BACKWARD], 0);
    kernel.program[GPUNN_KERNEL_BACKWARD].operands = fewer;
    kernel.program[GPUNN_KERNEL_BACKWARD].operand_count = COUNT(fewer);
    set = set_of(FORK, FORK);
    set.kernels = &kernel;
    compare(f->dev, forked, &set, false);
    assert_int_equal(calls[FORK][GPUNN_KERNEL_BACKWARD], 0);
    set = set_of(LOSS, LOSS);
    compare(f->dev, inner_loss, &set, false);
    assert_int_equal(calls[LOSS][GPUNN_KERNEL_FORWARD], STEPS); /* the model's own loss */
}

static void test_order(void **state)
{
    fixture         *f = *state;
    gpunn_kernel_set set = set_of(FORK, FORK);
    compare(f->dev, forked, &set, false);
    assert_int_equal(calls[FORK][GPUNN_KERNEL_BACKWARD], STEPS);
    set = set_of(EXP_SIN, EXP_SIN); /* a group that waits for itself */
    compare(f->dev, waiting, &set, false);
    assert_int_equal(calls[EXP_SIN][GPUNN_KERNEL_FORWARD], 0);
}

static void test_decline(void **state)
{
    fixture         *f = *state;
    gpunn_kernel_set set = set_of(TWICE_TANH, LOSS);
    most_batch = BATCH - 1;
    compare(f->dev, twice_tanh, &set, false);
    assert_int_equal(calls[TWICE_TANH][GPUNN_KERNEL_FORWARD], 0);
    gpunn_kernel without = kernels[TWICE_TANH]; /* a kernel that has no C text */
    for (int k = 0; k < COUNT(without.program); k++) without.program[k].cpu = NULL;
    set = set_of(TWICE_TANH, TWICE_TANH);
    set.kernels = &without;
    compare(f->dev, twice_tanh, &set, false);
}

/* y = tanh(2 exp(a)), in evaluation alone: the same last node as TWICE_TANH has. Its cache holds what weights
 * are, by their number. */
static int larger_calls, stale_calls;
static int run_larger(const gpunn_kernel_call *call)
{
    int *filled = call->cache;
    larger_calls++;
    if (call->stale) *filled = ++stale_calls;
    assert_int_equal(*filled, stale_calls);
    for (int64_t i = 0; i < 4 * call->batch; i++) give(call, 1, i, tanhf(2 * expf(in(call, 0)[i])));
    return 0;
}
static gpunn_tensor *tanh_of_exp(gpunn_tensor *a, gpunn_tensor **middle)
{
    return twice_tanh(gpunn_exp(a), middle);
}

static void test_larger(void **state)
{
    static const signed char          of_node2[] = {-2};
    static const gpunn_kernel_operand larger[] = {VALUE(0, 1, 0), VALUE(-3, 0, 1)};
    const gpunn_kernel_node           nodes[] = {NODE("exp f32 [N,4]", of_external),
                                                 NODE("mul_scalar value=2 f32 [N,4]", of_node1),
                                                 NODE("tanh f32 [N,4]", of_node2)};
    const float                       ones[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    gpunn_kernel                      both[2] = {kernels[TWICE_TANH], kernels[TWICE_TANH]};
    fixture                          *f = *state;
    gpunn_kernel_set                  set = set_of(TWICE_TANH, LOSS);
    trained                           n = make_net(f->dev, tanh_of_exp);
    if (f->backend->type != GPUNN_DEVICE_CPU) SKIP("a kernel for CPUs");
    both[0].nodes = nodes;
    both[0].node_count = 3;
    both[0].program[GPUNN_KERNEL_EVALUATION] = (gpunn_kernel_program){larger, COUNT(larger), run_larger,
                                                                      no_workspace, sizeof(int)};
    both[0].program[GPUNN_KERNEL_FORWARD].operands = both[0].program[GPUNN_KERNEL_BACKWARD].operands = NULL;
    set.kernels = both;
    OK(f->dev, gpunn_use_kernels(n.model, &set));
    OK(f->dev, gpunn_write(n.x, ones, sizeof ones));
    larger_calls = stale_calls = 0;
    for (int i = 0; i < 2; i++) OK(f->dev, gpunn_forward(&n.y, 1));
    assert_int_equal(larger_calls, 2);
    assert_int_equal(stale_calls, 1);
    OK(f->dev, gpunn_write(gpunn_find(n.model, "fc1.weight"), ones, sizeof ones));
    OK(f->dev, gpunn_forward(&n.y, 1));
    assert_int_equal(stale_calls, 2);
    most_batch = 2; /* declined with 3, and then the smaller one in its place too */
    OK(f->dev, gpunn_use_kernels(n.model, &set));
    OK(f->dev, gpunn_forward(&n.y, 1));
    assert_int_equal(larger_calls, 3);
    assert_int_equal(calls[TWICE_TANH][GPUNN_KERNEL_FORWARD], 0);
    most_batch = 1000;
    both[0].program[GPUNN_KERNEL_EVALUATION].cpu = NULL; /* refused, and the smaller one is not */
    OK(f->dev, gpunn_use_kernels(n.model, &set));
    OK(f->dev, gpunn_forward(&n.y, 1));
    assert_int_equal(calls[TWICE_TANH][GPUNN_KERNEL_FORWARD], 1);
    end_net(&n);
}

static void keep_log(void *user, gpunn_log_level level, const char *message)
{
    (void)level;
    (void)snprintf(user, 1024, "%s", message);
}

static void test_policies(void **state)
{
    char             log[1024] = "";
    gpunn_device    *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .log_fn = keep_log, .user = log);
    gpunn_kernel_set set = set_of(TWICE_TANH, TANH_ADD);
    trained          n = make_net(dev, twice_tanh);
    (void)state;
    OK(dev, gpunn_use_kernels(n.model, &set));
    assert_non_null(strstr(log, "try_kernels.h was generated for another model: 2 of its 3 kernels fit this "
                                "one; g2 (y = tanh(a) + r)"));
    assert_non_null(strstr(
        log, "does not find 'add f32 [N,4]' in this model; renew it: python3 -m generator try.json -o try"));
    FAILS(dev, gpunn_use_kernels(n.model, &set, .policy = GPUNN_KERNELS_STRICT), GPUNN_ERR_STATE,
          "another model", "python3 -m generator");
    FAILS(dev, gpunn_use_kernels(n.model, &set, .policy = (gpunn_kernel_policy)9), GPUNN_ERR_ARGUMENT,
          "policy 9");
    FAILS(NULL, gpunn_use_kernels(NULL, &set), GPUNN_ERR_ARGUMENT, "model is NULL");
    set.abi = 99;
    FAILS(dev, gpunn_use_kernels(n.model, &set), GPUNN_ERR_UNSUPPORTED, "ABI 99", "renew");
    set.abi = GPUNN_KERNELS_ABI;
    set.cuda = &(const gpunn_kernel_cuda){98, 1, NULL, NULL};
    FAILS(dev, gpunn_use_kernels(n.model, &set), GPUNN_ERR_UNSUPPORTED, "ABI 98", "renew");
    set.cuda = &(const gpunn_kernel_cuda){GPUNN_KERNELS_ABI, 2, NULL, NULL};
    FAILS(dev, gpunn_use_kernels(n.model, &set), GPUNN_ERR_STATE, "try_kernels.cu", "compile both again");
    OK(dev, gpunn_use_kernels(n.model, &set, .policy = GPUNN_KERNELS_OFF));
    assert_null(n.model->kernels);
    assert_int_equal(setenv("GPUNN_KERNELS", "off", 1), 0);
    OK(dev, gpunn_use_kernels(n.model, &set));
    assert_null(n.model->kernels);
    assert_int_equal(unsetenv("GPUNN_KERNELS"), 0);
    end_net(&n);
    gpunn_device_close(dev);
}

/* A failure of any allocation leaves the model usable. */
static void test_out_of_memory(void **state)
{
    fixture         *f = *state;
    gpunn_kernel_set set = set_of(TWICE_TANH, LOSS);
    float            x[3] = {1, 2, 3};
    for (long n = 1;; n++) {
        trained net = make_net(f->dev, twice_tanh);
        OK(f->dev, gpunn_use_kernels(net.model, &set));
        OK(f->dev, gpunn_write(net.x, x, sizeof x));
        f->memory.fail_at = f->memory.calls + n;
        gpunn_status status = gpunn_train_step(net.opt, net.loss);
        bool         done = f->memory.calls < f->memory.fail_at;
        f->memory.fail_at = 0;
        if (!done) {
            assert_int_equal(status, GPUNN_ERR_MEMORY);
            gpunn_clear_error(f->dev);
            OK(f->dev, gpunn_train_step(net.opt, net.loss));
        }
        end_net(&net);
        if (done) break;
    }
}

static int run_nothing(const gpunn_kernel_call *call)
{
    (void)call;
    return 1;
}

/* A kernel only says that it failed. The device finds the token outside of its embedding, or else names the
 * labels. */
static void test_kernel_fails(void **state)
{
    static const signed char          rows_and_weight[] = {0, 1};
    static const gpunn_kernel_operand operands[] = {
        {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_I64, 0, 0, -1}, VALUE(1, 1, 0), VALUE(-1, 0, 1)};
    fixture          *f = *state;
    char              text[3][256];
    const char *const given[] = {text[1], text[2]};
    gpunn_tensor     *rows = gpunn_input(f->model, "rows", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor     *e = MADE(f->dev, gpunn_embedding(rows, "e", .num_embeddings = 7, .embedding_dim = 4));
    gpunn__node_text(e, text[0], sizeof text[0]);
    for (int i = 0; i < 2; i++) gpunn__external_text(e->inputs[i], text[1 + i], sizeof text[1 + i]);
    const gpunn_kernel_node node = NODE(text[0], rows_and_weight);
    gpunn_kernel            kernel = kernels[EXP_SIN];
    kernel.nodes = &node, kernel.node_count = 1, kernel.externals = given, kernel.external_count = 2;
    kernel.program[GPUNN_KERNEL_EVALUATION] = (gpunn_kernel_program)PROGRAM(operands, run_nothing);
    gpunn_kernel_set set = set_of(EXP_SIN, EXP_SIN);
    set.kernels = &kernel;
    OK(f->dev, gpunn_use_kernels(f->model, &set));
    const int64_t bad[] = {3, 7}, negative[] = {-1, 3}, good[] = {0, 6};
    OK(f->dev, gpunn_write(rows, bad, sizeof bad));
    FAILS(f->dev, gpunn_forward(&e, 1), GPUNN_ERR_ARGUMENT, "token 7 at position 1 is outside 0 .. 6");
    OK(f->dev, gpunn_write(rows, negative, sizeof negative));
    FAILS(f->dev, gpunn_forward(&e, 1), GPUNN_ERR_ARGUMENT, "token -1 at position 0 is outside 0 .. 6");
    OK(f->dev, gpunn_write(rows, good, sizeof good));
    FAILS(f->dev, gpunn_forward(&e, 1), GPUNN_ERR_ARGUMENT, "neither a class nor ignore_index");
}

static void test_backend_fails(void **state)
{
    (void)state;
    every_backend_call(gpunn__cpu_backend());
}

/* A backend may lack what only gpunn_profile needs. */
static void test_backend_without_time(void **state)
{
    (void)state;
    gpunn_backend untimed = *gpunn__cpu_backend();
    untimed.time = NULL;
    gpunn_device *dev = MADE(NULL, gpunn_device_open(.backend = &untimed));
    trained       n = make_net(dev, twice_tanh);
    OK(dev, gpunn_write(n.x, (float[]){1, 2, 3}, 12));
    FAILS(dev, gpunn_profile(n.model, .outputs = {n.y}), GPUNN_ERR_UNSUPPORTED, "cannot time steps");
    end_net(&n);
    gpunn_device_close(dev);
}

/* Only training keeps what a backward step reads. */
static int          saving[2]; /* steps of a forward pass that save something: in evaluation, in training */
static gpunn_status prepare_and_look(void *context, gpunn_step *step)
{
    const gpunn_status status = gpunn__cpu_backend()->prepare(context, step);
    if (!step->backward && step->saved_bytes > 0) saving[step->training]++;
    return status;
}

static void test_nothing_saved(void **state)
{
    enum { OPS = 10 };
    (void)state;
    gpunn_backend looking = *gpunn__cpu_backend();
    looking.prepare = prepare_and_look;
    gpunn_device *dev = MADE(NULL, gpunn_device_open(.backend = &looking));
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *x = gpunn_parameter(model, "x", GPUNN_SHAPE(2, 6, 8, 8),
                                      ((gpunn_init){GPUNN_INIT_NORMAL, 0, 1}));
    gpunn_tensor *rows = gpunn_reshape(x, GPUNN_SHAPE(12, 8, 8));
    gpunn_tensor *y[OPS] = {gpunn_layer_norm(x, "layer"),
                            gpunn_rms_norm(x, "rms"),
                            gpunn_group_norm(x, "group", .num_groups = 2),
                            gpunn_instance_norm2d(x, "instance", .track_running_stats = true),
                            gpunn_batch_norm2d(x, "batch"),
                            gpunn_lstm(rows, "lstm", .hidden_size = 5),
                            gpunn_gru(rows, "gru", .hidden_size = 5),
                            gpunn_rnn(rows, "rnn", .hidden_size = 5),
                            gpunn_scaled_dot_product_attention(x, x, x),
                            gpunn_max_pool2d(x, .kernel_size = 2)};
    for (int i = 0; i < OPS; i++) {
        MADE(dev, y[i]);
        saving[0] = saving[1] = 0;
        OK(dev, gpunn_forward(&y[i], 1));
        OK(dev, gpunn_backward(gpunn_sum(y[i], GPUNN_ALL, false)));
        if (saving[0] != 0 || (i < 9 && saving[1] == 0))
            fail_msg("op %d saves %d times in evaluation, %d in training", i, saving[0], saving[1]);
    }
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test_with_device(test_matching),
        test_with_device(test_exact),
        test_with_device(test_visible),
        test_with_device(test_shared_gradients),
        test_with_device(test_gradients_from_outside),
        test_with_device(test_order),
        test_with_device(test_decline),
        test_with_device(test_larger),
        test_with_device(test_policies),
        test_with_device(test_out_of_memory),
        test_with_device(test_kernel_fails),
        cmocka_unit_test(test_backend_fails),
        cmocka_unit_test(test_backend_without_time),
        cmocka_unit_test(test_nothing_saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
