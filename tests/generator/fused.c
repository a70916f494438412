/* Fused equals unfused: small models with every kind of group, trained and
 * evaluated with their generated kernels and without.
 * tests/generator/specs/small holds the specs; the build writes one copy for
 * each precision, and its kernels, into build/generated. */
#include "../test.h"

/* Name, precision, and how many calls of a training step are not made where
 * convolutions want their channels last, as on the emulated GPU with cuDNN: that
 * of a loss that reads one image like that, and another with its channels first. */
#define SETS(X)                        \
    X(chain_f32, F32, 0)               \
    X(chain_f16, F16, 1)               \
    X(criteria_f32, F32, 0)            \
    X(criteria_bf16, BF16, 0)          \
    X(groups_f32, F32, 0)              \
    X(groups_bf16, BF16, 0)            \
    X(images_f32, F32, 0)              \
    X(images_long_f32, F32, 0)         \
    X(lenet_f32, F32, 0)               \
    X(lenet_bf16, BF16, 0)             \
    X(losses_f32, F32, 0)              \
    X(losses_bf16, BF16, 0)            \
    X(mlp_f32, F32, 0)                 \
    X(mlp_bf16, BF16, 0)               \
    X(network_f32, F32, 0)             \
    X(network_fields_f32, F32, 0)      \
    X(network_fields_bf16, BF16, 0)    \
    X(network_tf32, TF32, 0)           \
    X(network_bf16, BF16, 0)           \
    X(network_f16, F16, 0)             \
    X(resnet_block_f32, F32, 0)        \
    X(resnet_block_bf16, BF16, 0)      \
    X(resnet_wide_f32, F32, 0)         \
    X(resnet_wide_bf16, BF16, 1)       \
    X(second_order_f32, F32, 0)        \
    X(step_f32, F32, 0)                \
    X(step_tf32, TF32, 0)              \
    X(step_bf16, BF16, 0)              \
    X(step_f16, F16, 0)                \
    X(step_bytes_f32, F32, 0)          \
    X(step_bytes_bf16, BF16, 0)        \
    X(step_classes_f32, F32, 0)        \
    X(step_classes_f16, F16, 0)        \
    X(step_fields_f32, F32, 0)         \
    X(step_fields_bf16, BF16, 0)       \
    X(step_layers_f32, F32, 0)         \
    X(step_layers_f16, F16, 0)         \
    X(step_rows_f32, F32, 0)           \
    X(step_rows_bf16, BF16, 0)         \
    X(step_scaled_f32, F32, 0)         \
    X(step_scaled_bf16, BF16, 0)       \
    X(step_words_f32, F32, 0)          \
    X(step_words_f16, F16, 0)          \
    X(step_wide_f32, F32, 0)           \
    X(step_wide_tf32, TF32, 0)         \
    X(step_wide_f16, F16, 0)           \
    X(step_deep_bf16, BF16, 0)         \
    X(sized_image_f32, F32, 0)         \
    X(sized_image_bf16, BF16, 0)       \
    X(sized_text_f32, F32, 0)          \
    X(sized_text_bf16, BF16, 0)        \
    X(swiglu_f32, F32, 0)              \
    X(swiglu_bf16, BF16, 0)            \
    X(transformer_block_f32, F32, 0)   \
    X(transformer_block_bf16, BF16, 0) \
    X(transformer_odd_f32, F32, 0)     \
    X(transformer_odd_f16, F16, 0)
#define X(name, ...) extern const gpunn_kernel_set name##_kernels;
SETS(X)
#undef X

typedef struct subject {
    const char             *name;
    const gpunn_kernel_set *set;
    gpunn_precision         precision;
    int                     left; /* to the single ops, of a training step */
} subject;
static const subject subjects[] = {
#define X(name, precision, ...) {#name, &name##_kernels, GPUNN_PRECISION_##precision, __VA_ARGS__},
    SETS(X)
#undef X
};

/* ---- a set whose calls are counted ---- */
enum { MOST_KERNELS = 12 };
static struct {
    const gpunn_kernel_set *set; /* the true one */
    int                     calls[MOST_KERNELS][GPUNN_KERNEL_DIRECTIONS], updates;
    /* a GPU's kernel of a whole network, and of its training step, for the last batch */
    bool declined[2];
} counted;

static int count_call(int kernel, int direction, bool cuda, const gpunn_kernel_call *call)
{
    counted.calls[kernel][direction]++;
    return cuda ? counted.set->cuda->launch[kernel][direction].run(call)
                : counted.set->kernels[kernel].program[direction].cpu(call);
}

/* The kernel of a whole network, or of its training step; -1: there is none. */
static int whole_kernel(const gpunn_kernel_set *set, bool training)
{
    for (int k = 0; k < set->kernel_count && k < 2; k++)
        if (strcmp(set->kernels[k].name, training ? "step" : "network") == 0) return k;
    return -1;
}
static size_t ask(bool training, int64_t batch, int multiprocessors)
{
    const gpunn_kernel_launch *launch = counted.set->cuda->launch[whole_kernel(counted.set, training)];
    const size_t bytes = launch[training ? GPUNN_KERNEL_FORWARD : GPUNN_KERNEL_EVALUATION].workspace(
        batch, multiprocessors);
    counted.declined[training] = bytes == SIZE_MAX;
    return bytes;
}
static size_t ask_network(int64_t batch, int multiprocessors)
{
    return ask(false, batch, multiprocessors);
}
static size_t ask_step(int64_t batch, int multiprocessors)
{
    return ask(true, batch, multiprocessors);
}
static int count_update(const gpunn_update *update, const gpunn_update_numbers *numbers, int threads,
                        int lanes)
{
    counted.updates++;
    return counted.set->updates[0].cpu(update, numbers, threads, lanes);
}
static int count_update_launch(const gpunn_update *update, const gpunn_update_numbers *numbers, void *stream)
{
    counted.updates++;
    return counted.set->cuda->update[0](update, numbers, stream);
}
#define EACH_DIRECTION(X, k) X(k, 0) X(k, 1) X(k, 2)
/* clang-format off */
#define EACH_KERNEL(X)                                                                  \
    EACH_DIRECTION(X, 0) EACH_DIRECTION(X, 1) EACH_DIRECTION(X, 2) EACH_DIRECTION(X, 3) \
    EACH_DIRECTION(X, 4) EACH_DIRECTION(X, 5) EACH_DIRECTION(X, 6) EACH_DIRECTION(X, 7) \
    EACH_DIRECTION(X, 8) EACH_DIRECTION(X, 9) EACH_DIRECTION(X, 10) EACH_DIRECTION(X, 11)
/* clang-format on */
#define X(k, d)                                                \
    static int run_##k##_##d(const gpunn_kernel_call *call)    \
    {                                                          \
        return count_call(k, d, false, call);                  \
    }                                                          \
    static int launch_##k##_##d(const gpunn_kernel_call *call) \
    {                                                          \
        return count_call(k, d, true, call);                   \
    }
EACH_KERNEL(X)
#undef X
static const gpunn_kernel_function runs[] = {
#define X(k, d) run_##k##_##d,
    EACH_KERNEL(X)
#undef X
};
static const gpunn_kernel_function launches[] = {
#define X(k, d) launch_##k##_##d,
    EACH_KERNEL(X)
#undef X
};

static const gpunn_kernel_set *count_calls(const gpunn_kernel_set *set)
{
    static gpunn_kernel_set           copy;
    static gpunn_kernel               kernels[MOST_KERNELS];
    static gpunn_kernel_update        update;
    static gpunn_kernel_cuda          cuda;
    static gpunn_kernel_launch        launch[MOST_KERNELS][GPUNN_KERNEL_DIRECTIONS];
    static gpunn_kernel_update_launch update_launch = count_update_launch;
    assert_true(set->kernel_count <= MOST_KERNELS);
    assert_int_equal(set->update_count, 1);
    counted.set = set;
    copy = *set;
    for (int k = 0; k < set->kernel_count; k++) {
        kernels[k] = set->kernels[k];
        for (int d = 0; d < GPUNN_KERNEL_DIRECTIONS; d++) {
            if (kernels[k].program[d].cpu) kernels[k].program[d].cpu = runs[k * GPUNN_KERNEL_DIRECTIONS + d];
            launch[k][d].run = launches[k * GPUNN_KERNEL_DIRECTIONS + d];
            if (set->cuda && set->cuda->launch[k][d].run == NULL) launch[k][d].run = NULL;
            if (set->cuda) launch[k][d].workspace = set->cuda->launch[k][d].workspace;
        }
    }
    const int network = whole_kernel(set, false), step = whole_kernel(set, true);
    if (set->cuda && network >= 0) launch[network][GPUNN_KERNEL_EVALUATION].workspace = ask_network;
    if (set->cuda && step >= 0) launch[step][GPUNN_KERNEL_FORWARD].workspace = ask_step;
    update = set->updates[0];
    update.cpu = count_update;
    if (set->cuda) cuda = *set->cuda;
    cuda.launch = (const gpunn_kernel_launch(*)[GPUNN_KERNEL_DIRECTIONS])launch;
    cuda.update = &update_launch;
    copy.kernels = kernels;
    copy.updates = &update;
    copy.cuda = set->cuda ? &cuda : NULL;
    return &copy;
}

static bool is_op(const gpunn_kernel *kernel, int node, const char *op)
{
    const char *text = kernel->nodes[node].text;
    size_t      length = strlen(op);
    return strncmp(text, op, length) == 0 && text[length] != '_' &&
           !(text[length] >= 'a' && text[length] <= 'z');
}

/* A batch norm with a sum, a relu or both: in training a GPU does that in one
 * step of its own. */
static bool is_norm_step(const gpunn_kernel *kernel)
{
    bool sums = kernel->node_count > 1 && is_op(kernel, 1, "add");
    bool ends = kernel->node_count == 2 + sums && is_op(kernel, kernel->node_count - 1, "relu");
    return is_op(kernel, 0, "batch_norm") && (ends || (sums && kernel->node_count == 2));
}

/* A whole network or its training step, which the first kernel of either may be.
 * What stands in its place elsewhere has no call then. */
static const gpunn_kernel_instance *network_of(const gpunn_kernel_set *set, const test_backend *backend,
                                               bool training)
{
    const int                    number = whole_kernel(set, training);
    const gpunn_kernel_instance *first = training ? set->training : set->evaluation;
    if (number < 0) return NULL;
    assert_int_equal(first->kernel, number);
    const int direction = training ? GPUNN_KERNEL_FORWARD : GPUNN_KERNEL_EVALUATION;
    if (backend->type == GPUNN_DEVICE_CPU) return set->kernels[number].program[direction].cpu ? first : NULL;
    bool fits = set->cuda->launch[number][direction].run != NULL;
    return fits && !counted.declined[training] ? first : NULL;
}

static bool is_within(const gpunn_kernel_set *set, const gpunn_kernel_instance *network, int id)
{
    for (int i = 0; network && i < set->kernels[network->kernel].node_count; i++)
        if (network->tensors[i] == id) return true;
    return false;
}

/* Calls that one run must make: every group of the set, once. One with a kernel
 * for each place of images' channels counts once. */
static int wanted_calls(const gpunn_kernel_set *set, const test_backend *backend, bool training)
{
    const gpunn_kernel_instance *instances = training ? set->training : set->evaluation;
    int                          count = training ? set->training_count : set->evaluation_count, calls = 0;
    const gpunn_kernel_instance *network = network_of(set, backend, training);
    for (int i = 0; i < count; i++) {
        const gpunn_kernel *kernel = &set->kernels[instances[i].kernel];
        bool                again = false;
        for (int k = 0; k < i; k++)
            again = again || (instances[k].kernel != whole_kernel(set, training) &&
                              instances[k].tensors[set->kernels[instances[k].kernel].node_count - 1] ==
                                  instances[i].tensors[kernel->node_count - 1]);
        bool left = training && backend->type == GPUNN_DEVICE_CUDA && is_norm_step(kernel);
        left = left || (instances[i].kernel == whole_kernel(set, training) && network == NULL) ||
               (&instances[i] != network && is_within(set, network, instances[i].tensors[0]));
        if (!again && !left)
            calls += 1 + (training && kernel->program[GPUNN_KERNEL_BACKWARD].operands != NULL);
    }
    return calls;
}

static int calls_made(void)
{
    int calls = 0;
    for (int k = 0; k < MOST_KERNELS; k++)
        for (int d = 0; d < GPUNN_KERNEL_DIRECTIONS; d++) calls += counted.calls[k][d];
    return calls;
}

/* A model whose training step is one kernel of a GPU. */
static bool is_step(const subject *s)
{
    return strncmp(s->name, "step_", 5) == 0;
}

static void expect_calls(const subject *s, const test_backend *backend, bool training)
{
    int wanted = wanted_calls(s->set, backend, training), made = calls_made();
    if (training && is_emulated(backend) && is_step(s)) assert_false(counted.declined[1]);
    const bool small = strncmp(s->name, "images_", 7) == 0 || strncmp(s->name, "network_fields", 14) == 0;
    if (!training && is_emulated(backend) && small) assert_false(counted.declined[0]);
    const char *what = training ? "training" : "evaluation";
    const char *cudnn = getenv("EMULATOR_CUDNN");
    if (is_emulated(backend) && !(cudnn && strcmp(cudnn, "0") == 0)) wanted -= training ? s->left : 0;
    if (made != wanted) fail_msg("%s, %s: %d calls of kernels, expected %d", s->name, what, made, wanted);
    memset(counted.calls, 0, sizeof counted.calls);
}

/* ---- what a run leaves behind: named arrays of floats ---- */
typedef struct piece {
    char    name[96];
    char    kind; /* v value, g gradient, w weight: those of one kind are of one
                scale */
    int64_t count;
    float  *values;
} piece;
typedef struct record {
    piece *pieces;
    int    count;
} record;

static float *add_piece(record *r, char kind, const char *name, int64_t count)
{
    r->pieces = realloc(r->pieces, (size_t)(r->count + 1) * sizeof *r->pieces);
    piece *p = &r->pieces[r->count++];
    (void)snprintf(p->name, sizeof p->name, "%s", name);
    p->kind = kind;
    p->count = count;
    p->values = malloc((size_t)count * sizeof(float) + 1);
    return p->values;
}

static void end_record(record *r)
{
    for (int i = 0; i < r->count; i++) free(r->pieces[i].values);
    free(r->pieces);
}

static double mean_square(const piece *p)
{
    double sum = 0;
    for (int64_t i = 0; i < p->count; i++) sum += (double)p->values[i] * (double)p->values[i];
    return sum / (double)p->count;
}

/* The root mean square of piece i; an array much smaller than the largest of
 * its kind may be what is left of a sum that cancels: the bias before a
 * batch_norm. */
static double scale_of(const record *r, int i)
{
    double largest = 0;
    for (int k = 0; k < r->count; k++)
        if (r->pieces[k].kind == r->pieces[i].kind) largest = fmax(largest, mean_square(&r->pieces[k]));
    return sqrt(mean_square(&r->pieces[i])) + 1e-2 * sqrt(largest) + 1e-30;
}

/* F32: sums in another order. Elements differ by little of their array's scale,
 * or of their own size where that is more, as in a table of which few rows are
 * anybody's, and arrays as a whole by less. */
static void compare_records(const char *name, const record *fused, const record *unfused)
{
    /* cuDNN sums a convolution's gradients in an order of its own */
    const double times = strcmp(first_backend()->name, "cuda") == 0 ? 10 : 1;
    const double most = 2e-5 * times, typical = 4e-6 * times;
    int          bad = 0;
    assert_int_equal(fused->count, unfused->count);
    for (int i = 0; i < unfused->count; i++) {
        const piece *p = &fused->pieces[i], *q = &unfused->pieces[i];
        double       scale = scale_of(unfused, i), sum = 0;
        assert_string_equal(p->name, q->name);
        assert_int_equal(p->count, q->count);
        for (int64_t k = 0; k < p->count; k++) {
            double difference = fabs((double)p->values[k] - (double)q->values[k]) /
                                fmax(scale, fabs((double)q->values[k]));
            if (!isfinite(p->values[k]) || !isfinite(q->values[k])) difference = INFINITY;
            if (!(difference <= most) && bad++ < 5)
                print_error("%s, %s[%lld]: %.9g, unfused %.9g (rms %.3g)\n", name, p->name, (long long)k,
                            (double)p->values[k], (double)q->values[k], scale);
            sum += difference * difference;
        }
        double rms = sqrt(sum / (double)p->count);
        if (!(rms <= typical) && bad++ < 5)
            print_error("%s, %s: differs by %.3g of its rms\n", name, p->name, rms);
    }
    if (bad) fail_msg("%s: fused and unfused differ", name);
}

/* In 16 bits both differ from what F32 gives: fused must be as good as unfused
 * on the whole. In a single array one relu that falls to the other side may
 * make much of a rounding. */
static void compare_errors(const char *name, const record *fused, const record *unfused, const record *exact,
                           double ulp)
{
    double whole[2] = {0};
    int    bad = 0;
    assert_int_equal(fused->count, exact->count);
    assert_int_equal(unfused->count, exact->count);
    for (int i = 0; i < exact->count; i++) {
        const piece *of[2] = {&fused->pieces[i], &unfused->pieces[i]}, *e = &exact->pieces[i];
        double       scale = scale_of(exact, i), typical[2] = {0}, most[2] = {0};
        for (int which = 0; which < 2; which++) {
            for (int64_t k = 0; k < e->count; k++) {
                double error = ((double)of[which]->values[k] - (double)e->values[k]) / scale;
                typical[which] += error * error / (double)e->count;
                if (!(fabs(error) <= most[which])) most[which] = fabs(error);
            }
            whole[which] += typical[which] / exact->count;
            typical[which] = sqrt(typical[which]);
        }
        if (!(typical[0] <= 4 * typical[1] + 10 * ulp && most[0] <= 8 * most[1] + 40 * ulp) && bad++ < 5)
            print_error("%s, %s: errors of %.3g of its rms, at most %.3g; unfused "
                        "%.3g, at most %.3g\n",
                        name, e->name, typical[0], most[0], typical[1], most[1]);
    }
    if (!(sqrt(whole[0]) <= 1.5 * sqrt(whole[1]) + ulp) && bad++ < 6)
        print_error("%s: errors of %.3g of the arrays' rms, unfused %.3g\n", name, sqrt(whole[0]),
                    sqrt(whole[1]));
    if (bad) fail_msg("%s: fused is less exact than unfused", name);
}

static void same_records(const char *name, const record *a, const record *b)
{
    assert_int_equal(a->count, b->count);
    for (int i = 0; i < a->count; i++)
        if (memcmp(a->pieces[i].values, b->pieces[i].values, (size_t)a->pieces[i].count * sizeof(float)) != 0)
            fail_msg("%s: %s is not the same bytes", name, a->pieces[i].name);
}

/* ---- a model ---- */
typedef struct net_of_spec {
    gpunn_device    *dev;
    gpunn_model     *model;
    gpunn_optimizer *opt;
    gpunn_tensor    *loss, *outputs[8];
    int              output_count;
} net_of_spec;

static net_of_spec open_net(const subject *s, const test_backend *backend, bool fused, int threads)
{
    net_of_spec n = {0};
    char        path[128];
    n.dev = gpunn_device_open(ON(backend), .seed = 5, .threads = threads);
    if (n.dev == NULL) fail_msg("gpunn_device_open: %s", gpunn_error(NULL));
    (void)snprintf(path, sizeof path, "build/generated/%s.json", s->name);
    n.model = MADE(n.dev, gpunn_spec_load(n.dev, path));
    n.loss = MADE(n.dev, gpunn_spec_loss(n.model));
    while (n.output_count < 7 &&
           (n.outputs[n.output_count] = gpunn_spec_output(n.model, n.output_count)) != NULL)
        n.output_count++;
    gpunn_clear_error(n.dev);
    n.outputs[n.output_count] = n.loss;
    n.opt = MADE(n.dev, gpunn_spec_optimizer(n.model));
    OK(n.dev, gpunn_set_ema(n.opt, 0.5f));
    if (fused) OK(n.dev, gpunn_use_kernels(n.model, count_calls(s->set), .policy = GPUNN_KERNELS_STRICT));
    memset(counted.calls, 0, sizeof counted.calls);
    return n;
}

static void close_net(net_of_spec *n)
{
    gpunn_optimizer_destroy(n->opt);
    gpunn_model_destroy(n->model);
    gpunn_device_close(n->dev);
}

/* A dimension beside that batch; other sizes that vary do so with it. */
static int64_t number_of(net_of_spec *n, int64_t dim, int64_t batch)
{
    const int64_t length = batch % 37 + 2;
    const struct {
        const char *text;
        int64_t     number;
    } sizes[] = {
        {"T", length}, {"T * batch", length * batch}, {"H", batch % 3 * 4 + 4}, {"W", batch % 5 + 2}};
    for (int i = 0; dim < -1000000 && i < COUNT(sizes); i++) {
        if (gpunn_size(n->model, sizes[i].text) == dim) return sizes[i].number;
        gpunn_clear_error(n->dev);
    }
    return dim < 0 ? -dim * batch : dim;
}

static gpunn_shape shape_of(net_of_spec *n, const gpunn_tensor *t, int64_t batch)
{
    gpunn_shape shape = gpunn_tensor_shape(t);
    for (int i = 0; i < shape_rank(shape); i++) shape.dim[i] = number_of(n, shape.dim[i], batch);
    return shape;
}

static int64_t elements_of(const gpunn_shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape_rank(*shape); i++) count *= shape->dim[i];
    return count;
}

/* The classes of a model's labels: what its loss tells apart. */
static int64_t classes_of(const subject *s)
{
    return strncmp(s->name, "lenet", 5) == 0                        ? 1003
           : is_step(s) && strncmp(s->name, "step_fields", 11) != 0 ? 11
                                                                    : 7;
}

static void write_labels(net_of_spec *n, gpunn_tensor *t, const int64_t *labels, const gpunn_shape *shape)
{
    const int64_t  count = elements_of(shape);
    size_t         size = gpunn_dtype_size(gpunn_tensor_dtype(t));
    unsigned char *bytes = malloc((size_t)count * size);
    /* the lowest bytes come first */
    for (int64_t k = 0; k < count; k++) memcpy(bytes + (size_t)k * size, &labels[k], size);
    OK(n->dev, gpunn_write_shape(t, bytes, *shape));
    free(bytes);
}

/* x: anything in [-2, 2); other F32 inputs are weights and targets, in (0.05,
 * 0.95); integers are labels, seven different ones. */
static void write_inputs(net_of_spec *n, int64_t batch, uint32_t seed, int64_t classes)
{
    for (int i = 0; gpunn_input_at(n->model, i); i++) {
        gpunn_tensor *t = gpunn_input_at(n->model, i);
        gpunn_shape   shape = shape_of(n, t, batch);
        int64_t       count = elements_of(&shape);
        float        *values = test_randoms(count, seed + (uint32_t)i, 1);
        if (gpunn_tensor_dtype(t) == GPUNN_F32) {
            bool any = strcmp(gpunn_tensor_name(t), "x") == 0;
            for (int64_t k = 0; k < count; k++) values[k] = any ? 2 * values[k] : 0.5f + 0.45f * values[k];
            OK(n->dev, gpunn_write_shape(t, values, shape));
        } else {
            int64_t *labels = malloc((size_t)count * sizeof *labels);
            for (int64_t k = 0; k < count; k++)
                labels[k] = (int64_t)((values[k] + 1) * 3.5f) * ((classes - 1) / 6);
            write_labels(n, t, labels, &shape);
            free(labels);
        }
        free(values);
    }
}

static void record_value(record *r, net_of_spec *n, gpunn_tensor *t, const char *what)
{
    char   name[96];
    size_t bytes = gpunn_tensor_bytes(t);
    (void)snprintf(name, sizeof name, "%s of %s", what, *gpunn_tensor_name(t) ? gpunn_tensor_name(t) : "?");
    OK(n->dev,
       gpunn_read(t, add_piece(r, t == n->loss ? 'l' : 'v', name, (int64_t)(bytes / sizeof(float))), bytes));
}

static void record_gradient(record *r, net_of_spec *n, gpunn_tensor *t, const char *what)
{
    char    name[96];
    size_t  bytes = gpunn_tensor_bytes(t);
    float  *values = malloc(bytes + 1);
    int64_t count = (int64_t)(bytes / sizeof(float));
    (void)snprintf(name, sizeof name, "%s of %s", what, gpunn_tensor_name(t));
    if (gpunn_read_grad(t, values, bytes) == GPUNN_OK)
        memcpy(add_piece(r, 'g', name, count), values, bytes);
    else
        gpunn_clear_error(n->dev); /* frozen, or not reached: for both alike */
    free(values);
}

static void record_gradients(record *r, net_of_spec *n, const char *what)
{
    for (int i = 0; i < gpunn_parameter_count(n->model); i++)
        record_gradient(r, n, gpunn_parameter_at(n->model, i), what);
    for (int i = 0; gpunn_input_at(n->model, i); i++)
        if (gpunn_tensor_dtype(gpunn_input_at(n->model, i)) == GPUNN_F32)
            record_gradient(r, n, gpunn_input_at(n->model, i), what);
}

static void record_weights(record *r, net_of_spec *n, int64_t batch)
{
    for (int i = 0; i < gpunn_parameter_count(n->model); i++) {
        gpunn_tensor *t = gpunn_parameter_at(n->model, i);
        char          name[96];
        size_t        bytes = gpunn_tensor_bytes(t);
        (void)snprintf(name, sizeof name, "%s after batch %d", gpunn_tensor_name(t), (int)batch);
        OK(n->dev, gpunn_read(t, add_piece(r, 'w', name, (int64_t)(bytes / sizeof(float))), bytes));
    }
}

/* C kernels cut large batches into slices, which is tried where the build is
 * not a slow one. */
#ifdef __SANITIZE_ADDRESS__
enum { STEPS = 3, WITH_SLICES = 0 };
#else
enum { STEPS = 3, WITH_SLICES = 1 };
#endif

/* Batches of which a GPU takes the larger of a network's forms (two
 * multiprocessors are emulated), and C kernels many slices. */
static bool takes_batch(const subject *s, const test_backend *backend, int64_t batch)
{
    /* for many samples of a multiprocessor, step by step is quicker */
    const bool wide = strncmp(s->name, "step_wide", 9) == 0 || strncmp(s->name, "step_deep", 9) == 0;
    /* the CPU gives what other precisions are compared with */
    const bool step = is_step(s) &&
                      (backend->type != GPUNN_DEVICE_CPU || s->precision != GPUNN_PRECISION_F32);
    if (batch == 150) return strncmp(s->name, "network_", 8) == 0 || (step && !wide);
    if (wide && step) return batch == 1 || batch == 3 || batch == 31; /* more take long on the emulator */
    /* tiles of 4, 8 and 16 samples */
    if (batch > 7 && batch < 100) return strncmp(s->name, "images_", 7) == 0;
    return batch < 100 ||
           (backend->type == GPUNN_DEVICE_CPU && s->precision == GPUNN_PRECISION_F32 && WITH_SLICES);
}

static record run_net(const subject *s, const test_backend *backend, bool fused, int threads)
{
    static const int64_t batches[] = {3, 7, 1, 400, 2, 150, 10, 31, 32}; /* 2: what is left of the data */
    record               r = {NULL, 0};
    net_of_spec          n = open_net(s, backend, fused, threads);
    for (int b = 0; b < COUNT(batches); b++) {
        if (!takes_batch(s, backend, batches[b])) continue;
        write_inputs(&n, batches[b], 100u * (uint32_t)b, classes_of(s));
        OK(n.dev, gpunn_forward(n.outputs, n.output_count + 1));
        if (fused) expect_calls(s, backend, false);
        for (int i = 0; i <= n.output_count; i++) record_value(&r, &n, n.outputs[i], "evaluation");
        OK(n.dev, gpunn_zero_grad(n.model));
        OK(n.dev, gpunn_backward(n.loss));
        OK(n.dev, gpunn_synchronize(n.dev));
        if (fused) expect_calls(s, backend, true);
        record_value(&r, &n, n.loss, "training");
        record_gradients(&r, &n, "gradient");
        OK(n.dev, gpunn_backward(n.loss)); /* is added to the first one */
        record_gradients(&r, &n, "twice the gradient");
        for (int i = 0; i < STEPS; i++) OK(n.dev, settled(n.dev, gpunn_train_step(n.opt, n.loss)));
        record_value(&r, &n, n.loss, "trained");
        record_weights(&r, &n, batches[b]);
        OK(n.dev, gpunn_ema_swap(n.opt));
        record_weights(&r, &n, batches[b]);
        OK(n.dev, gpunn_ema_swap(n.opt));
        memset(counted.calls, 0, sizeof counted.calls);
    }
    /* whose optimizer is NAdam */
    bool own = backend->type != GPUNN_DEVICE_CPU && strncmp(s->name, "swiglu", 6) != 0;
    assert_true(!fused || (own ? counted.updates == 0 : counted.updates >= STEPS));
    counted.updates = 0;
    close_net(&n);
    return r;
}

/* ---- tests ---- */
static void test_equal(void **state)
{
    fixture       *f = *state;
    const subject *s = f->data;
    bool           half = s->precision != GPUNN_PRECISION_F32 && f->backend->type != GPUNN_DEVICE_CPU;
    record         fused = run_net(s, f->backend, true, 1), unfused = run_net(s, f->backend, false, 1);
    if (half) {
        record exact = run_net(s, &backends[0], false, 1);
        compare_errors(s->name, &fused, &unfused, &exact,
                       s->precision == GPUNN_PRECISION_BF16 ? 0x1p-8 : 0x1p-11);
        end_record(&exact);
    } else
        compare_records(s->name, &fused, &unfused);
    for (int threads = 2; threads <= 3; threads++) { /* the GPU runs again */
        record again = run_net(s, f->backend, true, threads);
        same_records(s->name, &again, &fused);
        end_record(&again);
        if (f->backend->type != GPUNN_DEVICE_CPU) break;
    }
    end_record(&fused), end_record(&unfused);
}

/* Whoever looks at a value or a gradient within a group sees it; a metric that
 * is appended changes nothing. */
enum { NOTHING, VALUE, GRADIENT, METRIC, LOOKS };
static record run_seen(const subject *s, const test_backend *backend, bool fused, const char *name, int look)
{
    record        r = {NULL, 0};
    net_of_spec   n = open_net(s, backend, fused, 2);
    gpunn_tensor *seen = gpunn_find(n.model, name);
    if (look == VALUE) MADE(n.dev, gpunn_keep(seen));
    if (look == GRADIENT) MADE(n.dev, gpunn_retain_grad(seen));
    gpunn_tensor *metric = look == METRIC ? MADE(n.dev, gpunn_mean(gpunn_square(seen), GPUNN_ALL, false))
                                          : NULL;
    write_inputs(&n, 3, 17, classes_of(s));
    if (metric) {
        OK(n.dev, gpunn_forward(&metric, 1));
        record_value(&r, &n, metric, "metric");
        n.outputs[n.output_count + 1] = MADE(n.dev, gpunn_keep(metric));
    }
    OK(n.dev, gpunn_backward(n.loss));
    record_gradients(&r, &n, "gradient");
    if (look == VALUE) record_value(&r, &n, seen, "kept");
    if (look == GRADIENT) record_gradient(&r, &n, seen, "retained");
    OK(n.dev, settled(n.dev, gpunn_train_step(n.opt, n.loss)));
    record_weights(&r, &n, 3);
    close_net(&n);
    return r;
}

static void test_seen(void **state)
{
    fixture       *f = *state;
    const subject *s = f->data;
    char           path[128], label[256];
    size_t         size;
    int            number = 0;
    (void)snprintf(path, sizeof path, "build/generated/%s.json", s->name);
    char *text = (char *)file_read(path, &size), *at = strstr(text, "\"tensors\"");
    while ((at = strstr(at, "\"name\": \"")) != NULL) {
        char *name = at + 9, *end = strchr(name, '"');
        *end = 0, at = end + 1;
        bool          whole = f->backend->type == GPUNN_DEVICE_CPU || number++ % 5 == 0;
        gpunn_model  *model = whole ? gpunn_spec_load(f->dev, path) : NULL;
        gpunn_tensor *t = model ? gpunn_find(model, name) : NULL;
        bool          value = t && gpunn_tensor_dtype(t) == GPUNN_F32 && gpunn_parameter_count(model) > 0;
        gpunn_model_destroy(model);
        for (int look = NOTHING + 1; value && look < LOOKS; look++) {
            /* the weights of classes have none */
            if (look == GRADIENT && strcmp(name, "rates") == 0) continue;
            record fused = run_seen(s, f->backend, true, name, look),
                   unfused = run_seen(s, f->backend, false, name, look);
            (void)snprintf(label, sizeof label, "%s, look %d at %s", s->name, look, name);
            compare_records(label, &fused, &unfused);
            end_record(&fused), end_record(&unfused);
        }
    }
    free(text);
}

/* Kernels that run again for the backward pass, where nothing is held for it, give it the same bytes. */
static record run_recomputed(const subject *s, const test_backend *backend, bool recomputes)
{
    record      r = {NULL, 0};
    net_of_spec n = open_net(s, backend, true, 2);
    if (recomputes) OK(n.dev, gpunn_recompute(gpunn_input_at(n.model, 0), n.loss));
    for (int i = 0; i < 2; i++) {
        write_inputs(&n, 3, 17u + (uint32_t)i, classes_of(s));
        OK(n.dev, settled(n.dev, gpunn_train_step(n.opt, n.loss)));
        record_value(&r, &n, n.loss, "training");
        record_gradients(&r, &n, "gradient");
        OK(n.dev, gpunn_forward_training(n.outputs, n.output_count + 1));
        for (int k = 0; k <= n.output_count; k++) record_value(&r, &n, n.outputs[k], "forward");
    }
    record_weights(&r, &n, 3);
    counted.updates = 0;
    close_net(&n);
    return r;
}

static void test_recomputed(void **state)
{
    fixture       *f = *state;
    const subject *s = f->data;
    record held = run_recomputed(s, f->backend, false), recomputed = run_recomputed(s, f->backend, true);
    same_records(s->name, &recomputed, &held);
    end_record(&held), end_record(&recomputed);
}

/* A label that is no class changes no weight. */
static void test_labels(void **state)
{
    fixture       *f = *state;
    const subject *s = f->data;
    bool           cpu = f->backend->type == GPUNN_DEVICE_CPU;
    gpunn_tensor  *labels = NULL;
    const int64_t  classes = classes_of(s), wrong[] = {classes, classes + 1, -1, INT64_C(1) << 32};
    net_of_spec    n = open_net(s, f->backend, true, 2);
    for (int i = 0; gpunn_input_at(n.model, i); i++)
        if (gpunn_tensor_dtype(gpunn_input_at(n.model, i)) != GPUNN_F32) labels = gpunn_input_at(n.model, i);
    const gpunn_shape shape = labels ? shape_of(&n, labels, 3) : (gpunn_shape){{0}};
    const int64_t     count = elements_of(&shape);
    int64_t           given[16] = {0};
    assert_true(count < COUNT(given));
    for (int k = 0; labels && k < COUNT(wrong); k++) {
        if (wrong[k] >> 32 > 0 && gpunn_tensor_dtype(labels) != GPUNN_I64) continue; /* would be 0 */
        record before = {NULL, 0}, after = {NULL, 0};
        write_inputs(&n, 3, 9, classes);
        OK(n.dev, settled(n.dev, gpunn_train_step(n.opt, n.loss)));
        record_weights(&before, &n, 3);
        memset(given, 0, sizeof given);
        given[k == 0 ? count - 1 : 1] = wrong[k];
        write_labels(&n, labels, given, &shape);
        assert_int_equal(settled(n.dev, gpunn_train_step(n.opt, n.loss)),
                         cpu ? GPUNN_ERR_ARGUMENT : GPUNN_ERR_NUMERIC);
        gpunn_clear_error(n.dev);
        gpunn_status status = gpunn_forward(&n.loss, 1);
        assert_int_equal(status, cpu ? GPUNN_ERR_ARGUMENT : GPUNN_OK);
        if (!cpu) assert_true(isnan(gpunn_item(n.loss)));
        gpunn_clear_error(n.dev);
        record_weights(&after, &n, 3);
        for (int i = 0; i < before.count; i++)
            assert_memory_equal(after.pieces[i].values, before.pieces[i].values,
                                (size_t)before.pieces[i].count * sizeof(float));
        end_record(&before), end_record(&after);
    }
    close_net(&n);
}

/* The gradients of a training step that is one kernel of a GPU are those that differences of its loss
 * tell. */
static void test_differences(void **state)
{
    enum { BATCH = 5, FEW = 7, MANY = 61 };
    fixture       *f = *state;
    const subject *s = f->data;
    int            compared = 0;
    net_of_spec    n = open_net(s, f->backend, true, 2);
    write_inputs(&n, BATCH, 3, classes_of(s));
    OK(n.dev, gpunn_zero_grad(n.model));
    OK(n.dev, gpunn_backward(n.loss));
    OK(n.dev, gpunn_synchronize(n.dev));
    expect_calls(s, f->backend, true);
    for (int i = 0; i < gpunn_parameter_count(n.model); i++) {
        gpunn_tensor *t = gpunn_parameter_at(n.model, i);
        const size_t  bytes = gpunn_tensor_bytes(t);
        const int64_t count = (int64_t)(bytes / sizeof(float));
        record        r = {NULL, 0};
        float        *weight = add_piece(&r, 'w', "weight", count),
              *gradient = add_piece(&r, 'g', "gradient", count);
        OK(n.dev, gpunn_read(t, weight, bytes));
        const bool   wanted = gpunn_read_grad(t, gradient, bytes) == GPUNN_OK; /* else frozen */
        const double scale = wanted ? sqrt(mean_square(&r.pieces[1])) : 0;
        gpunn_clear_error(n.dev);
        /* small numbers, most of them of no sample */
        const bool    is_grid = strcmp(gpunn_tensor_name(t), "grid.weight") == 0;
        const float   step = is_grid ? 0x1p-17f : 0x1p-8f;
        const int64_t picked = is_grid ? MANY : FEW, stride = (count + picked - 1) / picked;
        for (int64_t k = 0; wanted && k < count; k += stride, compared++) {
            const float own = weight[k];
            double      loss[2];
            for (int side = 0; side < 2; side++) {
                weight[k] = side ? own - step : own + step;
                OK(n.dev, gpunn_write(t, weight, bytes));
                OK(n.dev, gpunn_forward(&n.loss, 1));
                loss[side] = (double)gpunn_item(n.loss);
            }
            weight[k] = own;
            const double slope = (loss[0] - loss[1]) / (2 * (double)step), given = (double)gradient[k];
            if (!(fabs(slope - given) <= 1e-2 * (fabs(given) + scale)))
                fail_msg("%s[%d]: %g, by differences %g", gpunn_tensor_name(t), (int)k, given, slope);
        }
        OK(n.dev, gpunn_write(t, weight, bytes));
        end_record(&r);
    }
    assert_in_range(compared, 40, 400);
    close_net(&n);
}

/* A token that is no row of its embedding: on the CPU the error that single ops tell, before anything is
 * written, and on a GPU NaN for its sample alone. */
static void test_tokens(void **state)
{
    fixture       *f = *state;
    const subject *s = f->data;
    const bool     cpu = f->backend->type == GPUNN_DEVICE_CPU;
    const int64_t  wrong[] = {7, -1, INT64_MAX};
    float          y[2][15];
    for (int k = 0; k < 2 * COUNT(wrong); k++) {
        net_of_spec  n = open_net(s, f->backend, k % 2 == 0, 2);
        int64_t      words[3][2] = {{0, 6}, {3, 2}, {1, 5}};
        float       *own = y[k % 2];
        char         text[96];
        gpunn_status status;
        write_inputs(&n, 3, 9, 7);
        words[1][1] = wrong[k / 2];
        OK(n.dev, gpunn_write(gpunn_find(n.model, "words"), words, sizeof words));
        status = gpunn_forward(n.outputs, 1);
        (void)snprintf(text, sizeof text, "token %lld at position 3 is outside 0 .. 6; check the tokens",
                       (long long)wrong[k / 2]);
        assert_int_equal(status, cpu ? GPUNN_ERR_ARGUMENT : GPUNN_OK);
        if (cpu && strstr(gpunn_error(n.dev), text) == NULL)
            fail_msg("%s, not: %s", gpunn_error(n.dev), text);
        if (!cpu) OK(n.dev, gpunn_read(n.outputs[0], own, sizeof y[0]));
        for (int i = 0; i < 15 && !cpu; i++) assert_int_equal(isnan(own[i]) != 0, i / 5 == 1);
        gpunn_clear_error(n.dev);
        words[1][1] = 0;
        OK(n.dev, gpunn_write(gpunn_find(n.model, "words"), words, sizeof words));
        OK(n.dev, gpunn_forward(n.outputs, 1));
        OK(n.dev, gpunn_read(n.outputs[0], own, sizeof y[0]));
        for (int i = 0; i < 15 && k % 2 == 1; i++)
            assert_true(fabsf(own[i] - y[0][i]) <= (cpu ? 1e-4f : 0.05f));
        /* a GPU repeats a graph */
        if (k % 2 == 0) assert_in_range(counted.calls[0][GPUNN_KERNEL_EVALUATION], cpu ? 2 : 1, 2);
        memset(counted.calls, 0, sizeof counted.calls);
        close_net(&n);
    }
}

/* A GPU's kernel that computes products is for models of its own precision; those of CPUs compute in F32. */
static void test_precisions(void **state)
{
    fixture      *f = *state;
    const subject s = {"network_f32", &network_tf32_kernels, GPUNN_PRECISION_F32, 0};
    net_of_spec   n = open_net(&s, f->backend, false, 1);
    OK(n.dev, gpunn_use_kernels(n.model, count_calls(s.set)));
    write_inputs(&n, 3, 1, 7);
    OK(n.dev, gpunn_forward(n.outputs, n.output_count));
    assert_int_equal(counted.calls[0][GPUNN_KERNEL_EVALUATION], f->backend->type == GPUNN_DEVICE_CPU);
    memset(counted.calls, 0, sizeof counted.calls);
    close_net(&n);
}

static int test_of(struct CMUnitTest *tests, const subject *s, const char *what, CMUnitTestFunction function)
{
    char name[96];
    (void)snprintf(name, sizeof name, "%s: %s", s->name, what);
    return each_backend(tests, name, function, s);
}

int main(void)
{
    static struct CMUnitTest tests[COUNT(subjects) * 10 + COUNT(backends)];
    int                      count = 0;
    /* so that groups of small models are not too short to be fused */
    (void)setenv("EMULATOR_SHORT", "0", 1);
    (void)setenv("GPUNN_VECTORS", "avx512", 1); /* at most: without products of BF16 the CPU is exact */
    for (int i = 0; i < COUNT(subjects); i++) {
        const subject *s = &subjects[i];
        count += test_of(tests + count, s, "equals unfused", test_equal);
        count += test_of(tests + count, s, "recomputed", test_recomputed);
        if (s->precision == GPUNN_PRECISION_F32) count += test_of(tests + count, s, "looked into", test_seen);
        if (s->precision == GPUNN_PRECISION_F32) count += test_of(tests + count, s, "labels", test_labels);
        const bool derives = strcmp(s->name, "step_rows_f32") == 0 || strcmp(s->name, "step_fields_f32") == 0;
        if (derives) count += test_of(tests + count, s, "differences", test_differences);
        if (strncmp(s->name, "network_fields", 14) == 0)
            count += test_of(tests + count, s, "tokens", test_tokens);
    }
    count += each_backend(tests + count, "network of another precision", test_precisions, NULL);
    return _cmocka_run_group_tests("fused", tests, (size_t)count, NULL, NULL);
}
