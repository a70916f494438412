/* Every derivative against central differences, signed and element by element: each elementwise op of the
 * header's table, each layer, reduction, shape op and loss, and whole models in training mode.
 *
 * With f(v) the vector of outputs after one value has become v, h = 1/64 and the error O(h^4):
 *     d sum(w f) / dv = sum(w (8 (f(v+h) - f(v-h)) - (f(v+2h) - f(v-2h)))) / 12h
 * The library computes f in f32, the test sums in f64. Inputs are multiples of 2^-12, so v +- h is exact.
 * What remains is the rounding of f: about 2^-24 max|f| for each output that changes, independent of each
 * other, hence
 *     tolerance = 32 2^-24 max|f| sqrt(sum of changed w^2) / h + 5e-4 max|gradient|. */
#include "../test.h"
#include "cases/attention.h"
#include "cases/sample.h"
#include "cases/pool.h"
#include "cases/resize.h"
#include "cases/criteria.h"
#include "cases/encodings.h"

#define H (1.0 / 64)
/* values perturbed per tensor; of larger ones every k-th */
#ifndef CPU_LIMIT
#define CPU_LIMIT 160
#endif
#ifndef EMULATOR_LIMIT
#define EMULATOR_LIMIT 8
#endif

typedef struct inputs {
    fixture      *f;
    gpunn_tensor *x[3];
    uint32_t      seed;
} inputs;
typedef gpunn_tensor *(*build_fn)(inputs *in);

static float quantised(float value)
{
    return (float)floor((double)value * 4096 + 0.5) / 4096;
}

/* Away from every kink of the table (multiples of 0.5, with the attributes 0.5 and 1.5) by more than 2h:
 * offset + k/2 +- 0.04. */
static float away_from_kinks(uint32_t *seed, float offset, float range)
{
    const float at = floorf(test_random(seed) * range * 2) / 2 + offset;
    return quantised(at + 0.04f * test_random(seed));
}

static gpunn_tensor *add_input(inputs *in, const char *name, gpunn_shape shape, const float *values,
                               int64_t n)
{
    gpunn_tensor *t = MADE(in->f->dev, gpunn_input(in->f->model, name, GPUNN_F32, shape));
    OK(in->f->dev, write_floats(t, values, n));
    return t;
}

/* Batch 3 (the first dimension); values in +-scale, distinct by at least 6h when `apart` so that no maximum
 * changes place. */
static gpunn_tensor *make_x(inputs *in, const char *name, gpunn_shape shape, float scale, bool apart)
{
    int64_t n = 1;
    for (int i = 0; i < shape_rank(shape); i++) n *= shape.dim[i];
    float *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = quantised(apart ? ((float)i - (float)n / 2 + 0.5f) * 0.1f
                                    : scale * test_random(&in->seed));
    for (int64_t i = n - 1; apart && i > 0; i--) {
        int64_t k = (int64_t)((test_random(&in->seed) * 0.5f + 0.5f) * (float)i);
        float   swap = values[i];
        values[i] = values[k];
        values[k] = swap;
    }
    shape.dim[0] = GPUNN_BATCH;
    gpunn_tensor *t = add_input(in, name, shape, values, n);
    MADE(in->f->dev, gpunn_retain_grad(t));
    free(values);
    return t;
}
#define XS(...) make_x(in, "x", GPUNN_SHAPE(__VA_ARGS__), 1.5f, false)
#define APART(...) make_x(in, "x", GPUNN_SHAPE(__VA_ARGS__), 0, true)
#define B(name, ...) make_x(in, name, GPUNN_SHAPE(__VA_ARGS__), 1.5f, false)

/* Every parameter gets new values, multiples of 2^-12, so that biases and scales are not 0 and 1. */
static void draw_parameters(inputs *in)
{
    for (int i = 0; i < gpunn_parameter_count(in->f->model); i++) {
        gpunn_tensor *p = gpunn_parameter_at(in->f->model, i);
        const char   *name = gpunn_tensor_name(p);
        if (strstr(name, "running_")) continue;
        int64_t n = (int64_t)gpunn_tensor_bytes(p) / 4;
        float  *values = malloc((size_t)n * sizeof *values);
        for (int64_t k = 0; k < n; k++)
            values[k] = quantised(0.6f * test_random(&in->seed) + (n < 64 ? 0.3f : 0));
        OK(in->f->dev, write_floats(p, values, n));
        free(values);
    }
}

/* The outputs in training mode. */
static void outputs_at(inputs *in, gpunn_tensor *loss, gpunn_tensor *out, gpunn_tensor *t,
                       const float *values, int64_t n, float *result)
{
    OK(in->f->dev, write_floats(t, values, n));
    OK(in->f->dev, gpunn_backward(loss));
    OK(in->f->dev, gpunn_read(out, result, gpunn_tensor_bytes(out)));
}

static void check_tensor(inputs *in, gpunn_tensor *loss, gpunn_tensor *out, const float *w, int64_t outputs,
                         gpunn_tensor *t)
{
    int64_t n;
    float  *values = read_floats(in->f->dev, t, &n), *gradient = malloc((size_t)n * sizeof *gradient);
    float  *f[4];
    double  largest = 0;
    OK(in->f->dev, gpunn_zero_grad(in->f->model));
    OK(in->f->dev, gpunn_backward(loss));
    OK(in->f->dev, gpunn_read_grad(t, gradient, (size_t)n * sizeof *gradient));
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)gradient[i]));
    for (int k = 0; k < 4; k++) f[k] = malloc((size_t)outputs * sizeof **f);
    for (int64_t i = 0; i < n; i += 1 + n / (is_emulated(in->f->backend) ? EMULATOR_LIMIT : CPU_LIMIT)) {
        static const double offsets[4] = {1, -1, 2, -2}, factors[4] = {8, -8, -1, 1};
        const float         value = values[i];
        double              sum = 0, changed = 0, highest = 0;
        for (int k = 0; k < 4; k++) {
            values[i] = (float)(value + offsets[k] * H);
            outputs_at(in, loss, out, t, values, n, f[k]);
        }
        values[i] = value;
        for (int64_t j = 0; j < outputs; j++) {
            if (f[0][j] != f[1][j] || f[2][j] != f[3][j]) changed += (double)w[j] * w[j];
            for (int k = 0; k < 4; k++) {
                sum += factors[k] * (double)f[k][j] * w[j];
                highest = fmax(highest, fabs((double)f[k][j]));
            }
        }
        const double expected = sum / (12 * H),
                     tolerance = 32 * 0x1p-24 * highest * sqrt(changed) / H + 5e-4 * largest;
        if (!(fabs(gradient[i] - expected) <= tolerance))
            fail_msg("gradient of %s[%lld] is %.7g, differences give %.7g +- %.2g", gpunn_tensor_name(t),
                     (long long)i, gradient[i], expected, tolerance);
    }
    OK(in->f->dev, write_floats(t, values, n));
    for (int k = 0; k < 4; k++) free(f[k]);
    free(gradient);
    free(values);
}

/* The gradient of loss by t as a node of gpunn_grad, against that of the backward pass. Ops without a
 * derivative made of ops have none. */
static void check_node(const inputs *in, gpunn_tensor *loss, gpunn_tensor *t)
{
    gpunn_device *dev = in->f->dev;
    gpunn_tensor *node = gpunn_grad(loss, t);
    if (node == NULL) {
        if (gpunn_last_status(dev) != GPUNN_ERR_UNSUPPORTED) /* a node that would cut the batch */
            assert_non_null(strstr(gpunn_error(dev), "batch"));
        gpunn_clear_error(dev);
        return;
    }
    int64_t n;
    OK(dev, gpunn_forward(&node, 1));
    float *actual = read_floats(dev, node, &n), *expected = malloc((size_t)n * sizeof *expected);
    OK(dev, gpunn_zero_grad(in->f->model));
    OK(dev, gpunn_backward(loss));
    OK(dev, gpunn_read_grad(t, expected, (size_t)n * sizeof *expected));
    check_close(actual, expected, n, 2e-4, 2e-4);
    free(actual), free(expected);
}

/* All inputs that keep their gradient and all parameters of a model whose result is out. */
static void check_gradients(inputs *in, gpunn_tensor *out)
{
    gpunn_device *dev = in->f->dev;
    MADE(dev, gpunn_keep(MADE(dev, out)));
    gpunn_tensor *weights = MADE(dev, gpunn_input(in->f->model, "w", GPUNN_F32, gpunn_tensor_shape(out)));
    gpunn_tensor *loss = MADE(dev, gpunn_sum(gpunn_mul(out, weights), GPUNN_ALL, false));
    draw_parameters(in);
    int64_t outputs = 1;
    for (int i = 0; i < shape_rank(gpunn_tensor_shape(out)); i++) {
        int64_t d = gpunn_tensor_shape(out).dim[i];
        outputs *= d < 0 ? -3 * d : d;
    }
    float *w = test_randoms(outputs, 77, 1);
    OK(dev, write_floats(weights, w, outputs));
    for (int i = 0; i < COUNT(in->x); i++)
        if (in->x[i]) check_tensor(in, loss, out, w, outputs, in->x[i]);
    for (int i = 0; i < COUNT(in->x); i++) /* the same ops on each backend */
        if (in->x[i] && !is_emulated(in->f->backend)) check_node(in, loss, in->x[i]);
    for (int i = 0; i < gpunn_parameter_count(in->f->model); i++) {
        gpunn_tensor *p = gpunn_parameter_at(in->f->model, i);
        if (strstr(gpunn_tensor_name(p), "running_") == NULL) check_tensor(in, loss, out, w, outputs, p);
    }
    free(w);
}

/* ---- elementwise, from the table ---- */
#define X(ENUM, name, ...)                     \
    static gpunn_tensor *op_##name(inputs *in) \
    {                                          \
        return gpunn_##name(in->x[0]);         \
    }
GPUNN_UNARY_OPS(X)
#undef X
#define X(ENUM, name, ...)                     \
    static gpunn_tensor *op_##name(inputs *in) \
    {                                          \
        return gpunn_##name(in->x[0], 0.5f);   \
    }
GPUNN_UNARY1_OPS(X)
#undef X
#define X(ENUM, name, ...)                         \
    static gpunn_tensor *op_##name(inputs *in)     \
    {                                              \
        return gpunn_##name(in->x[0], 0.5f, 1.5f); \
    }
GPUNN_UNARY2_OPS(X)
#undef X
#define X(ENUM, name, ...)                       \
    static gpunn_tensor *op_##name(inputs *in)   \
    {                                            \
        return gpunn_##name(in->x[0], in->x[1]); \
    }
GPUNN_BINARY_OPS(X)
#undef X
#define X(ENUM, name, ...)                           \
    static gpunn_tensor *op_##name(inputs *in)       \
    {                                                \
        return gpunn_expr(#name "(x, y)", in->x, 2); \
    }
GPUNN_LOSS_OPS(X)
#undef X
#define X(ENUM, name, ...)                                \
    static gpunn_tensor *op_##name(inputs *in)            \
    {                                                     \
        return gpunn_expr(#name "(x, y, 0.5)", in->x, 2); \
    }
GPUNN_LOSS1_OPS(X)
#undef X
#define X(ENUM, name, ...)                                                                          \
    static gpunn_tensor *op_##name(inputs *in)                                                      \
    {                                                                                               \
        return gpunn_add(in->x[0], gpunn_##name(gpunn_gt(in->x[0], in->x[1]), in->x[1], in->x[2])); \
    }
GPUNN_TERNARY_OPS(X)
#undef X

typedef struct elementwise {
    const char *name;
    int         operands;
    build_fn    build;
} elementwise;
static const elementwise ops[] = {
#define X(ENUM, name, ...) {#name, 1, op_##name},
    GPUNN_UNARY_OPS(X) GPUNN_UNARY1_OPS(X) GPUNN_UNARY2_OPS(X)
#undef X
#define X(ENUM, name, ...) {#name, 2, op_##name},
        GPUNN_BINARY_OPS(X) GPUNN_LOSS_OPS(X) GPUNN_LOSS1_OPS(X)
#undef X
#define X(ENUM, name, ...) {#name, 3, op_##name},
            GPUNN_TERNARY_OPS(X)
#undef X
};

static bool listed(const char *name, const char *list)
{
    char word[64];
    (void)snprintf(word, sizeof word, " %s ", name);
    return strstr(list, word) != NULL;
}

/* The operands of an op, broadcast against each other when `broadcast`: [3, 5], [5], [3, 1]. */
static void make_operands(inputs *in, const elementwise *op, bool broadcast)
{
    static const char *const names[] = {"a", "b", "c"};
    const gpunn_shape        full = GPUNN_SHAPE(GPUNN_BATCH, 5), row = GPUNN_SHAPE(5),
                      column = GPUNN_SHAPE(GPUNN_BATCH, 1);
    for (int i = 0; i < op->operands; i++) {
        const gpunn_shape shape = !broadcast || i == 0 ? full : i == 1 ? row : column;
        const int64_t     n = !broadcast || i == 0 ? 15 : i == 1 ? 5 : 3;
        float             values[15];
        for (int64_t k = 0; k < n; k++) {
            /* operands differ by a quarter, so that a - b keeps away from kinks too */
            values[k] = away_from_kinks(&in->seed, i == 1 ? 0.0f : 0.25f, 2.5f);
            if (listed(op->name,
                       " log log2 log10 sqrt rsqrt log1p pow pow_scalar reciprocal div kl_divergence "))
                values[k] = fabsf(values[k]) + 0.5f;
            if (strcmp(op->name, "acosh") == 0) values[k] = fabsf(values[k]) + 1.5f;
            if (i == 1 && listed(op->name, " fmod remainder ")) values[k] = fabsf(values[k]) + 3.5f;
            if (listed(op->name, " asin acos atanh ")) values[k] = quantised(0.25f * values[k]);
            if (strcmp(op->name, "binary_cross_entropy") == 0) values[k] = quantised(0.5f + 0.1f * values[k]);
        }
        in->x[i] = add_input(in, names[i], shape, values, n);
        MADE(in->f->dev, gpunn_retain_grad(in->x[i]));
    }
}

static void run_elementwise(inputs *in, const elementwise *op, bool broadcast)
{
    make_operands(in, op, broadcast);
    check_gradients(in, op->build(in));
}
static inputs begin(void **state, uint32_t seed)
{
    inputs in = {*state, {NULL, NULL, NULL}, seed};
    return in;
}
#define FLAT " sign floor detach floor_divide eq ne lt le gt ge " /* their derivative is 0 */
static void test_elementwise(void **state)
{
    inputs             in = begin(state, 3);
    const elementwise *op = in.f->data;
    run_elementwise(&in, op, false);
}
static void test_broadcast(void **state)
{
    inputs             in = begin(state, 4);
    const elementwise *op = in.f->data;
    run_elementwise(&in, op, true);
}
/* Beside another use of each operand: gradients add up, and an op without derivative adds nothing. */
static void test_shared(void **state)
{
    inputs             in = begin(state, 5);
    const elementwise *op = in.f->data;
    make_operands(&in, op, false);
    gpunn_tensor *y = op->build(&in);
    for (int i = 0; i < op->operands; i++) y = gpunn_add(gpunn_mul_scalar(in.x[i], 0.5f), y);
    if (strcmp(op->name, "detach") != 0 && strcmp(op->name, "floor_divide") != 0) {
        check_gradients(&in, y);
        return;
    }
    /* differences see more than the gradient */
    OK(in.f->dev, gpunn_backward(MADE(in.f->dev, gpunn_sum(y, GPUNN_ALL, false))));
    for (int i = 0; i < op->operands; i++) {
        const size_t bytes = gpunn_tensor_bytes(in.x[i]);
        float       *gradient = malloc(bytes);
        OK(in.f->dev, gpunn_read_grad(in.x[i], gradient, bytes));
        for (size_t k = 0; k < bytes / sizeof *gradient; k++) assert_true(gradient[k] == 0.5f);
        free(gradient);
    }
}

/* ---- layers, reductions, shapes, losses ---- */
static gpunn_tensor *labels(inputs *in, bool image)
{
    static const int64_t values[3 * 4] = {1, 0, 2, 2, 1, -100, 0, 1, 2, 1, 0, 2};
    gpunn_tensor        *t = MADE(in->f->dev,
                                  gpunn_input(in->f->model, "labels", GPUNN_I64,
                                       image ? GPUNN_SHAPE(GPUNN_BATCH, 2, 2) : GPUNN_SHAPE(GPUNN_BATCH)));
    OK(in->f->dev, gpunn_write(t, values, (image ? 12 : 3) * sizeof *values));
    return t;
}
/* rows x columns integers, or, columns 0, rows of them. */
static gpunn_tensor *integers(inputs *in, const char *name, const int64_t *values, int64_t rows,
                              int64_t columns)
{
    gpunn_tensor *t = MADE(in->f->dev,
                           gpunn_input(in->f->model, name, GPUNN_I64, GPUNN_SHAPE(rows, columns)));
    OK(in->f->dev, gpunn_write(t, values, (size_t)(rows * (columns ? columns : 1)) * sizeof *values));
    return t;
}
static gpunn_tensor *constant(inputs *in, int64_t n)
{
    static const float values[] = {0.5f, 1.25f, 2, 0.75f, 1};
    return gpunn_constant(in->f->model, GPUNN_SHAPE(n), values);
}
/* A grid, in->x[1], for images of that many cells along each axis: its points keep away from half and whole
 * cells, where the derivative jumps, by more than 2h. */
static gpunn_tensor *grid(inputs *in, int cells, bool align_corners, gpunn_shape shape)
{
    const float half = (float)(align_corners ? cells - 1 : cells) / 2,
                shift = align_corners ? half : half - 0.5f;
    int64_t n = 1;
    for (int i = 0; i < shape_rank(shape); i++) n *= shape.dim[i];
    float *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) {
        const float cell = floorf(test_random(&in->seed) * ((float)cells + 0.5f) + (float)cells) / 2 - 0.5f;
        values[i] = quantised((cell + 0.25f + 0.1f * test_random(&in->seed) - shift) / half);
    }
    shape.dim[0] = GPUNN_BATCH;
    in->x[1] = add_input(in, "grid", shape, values, n);
    MADE(in->f->dev, gpunn_retain_grad(in->x[1]));
    free(values);
    return in->x[1];
}
/* Boxes [7, 5] in three images of that size, some of which reach over their edges. */
static gpunn_tensor *boxes(inputs *in, int height, int width)
{
    float values[7 * 5];
    for (int i = 0; i < 7; i++) {
        float *box = values + 5 * i;
        box[0] = (float)(i % 3);
        for (int k = 0; k < 4; k++)
            box[1 + k] = (0.6f + 0.6f * test_random(&in->seed)) * (float)(k % 2 ? height : width);
    }
    return add_input(in, "boxes", GPUNN_SHAPE(7, 5), values, 35);
}
static gpunn_tensor *pair(inputs *in) /* two tensors whose difference keeps away from kinks */
{
    static const elementwise two = {"pair", 2, NULL};
    make_operands(in, &two, false);
    return in->x[0];
}
static gpunn_tensor *concat3(gpunn_tensor *a, gpunn_tensor *b, gpunn_tensor *c, int axis)
{
    gpunn_tensor *tensors[] = {a, b, c};
    return gpunn_concat(tensors, 3, axis);
}
static gpunn_tensor *expression(inputs *in, const char *text)
{
    return gpunn_expr(text, in->x, 2);
}

static gpunn_tensor *indices(inputs *in, gpunn_dtype dtype, gpunn_shape shape, int limit)
{
    int64_t n = 1, wide[256];
    int32_t narrow[256];
    for (int i = 0; i < shape_rank(shape); i++) n *= shape.dim[i];
    for (int64_t i = 0; i < n; i++) narrow[i] = (int32_t)(wide[i] = i * i % 7 * 3 % limit);
    gpunn_tensor *t = MADE(in->f->dev,
                           gpunn_input(in->f->model, "indices", dtype, (shape.dim[0] = GPUNN_BATCH, shape)));
    OK(in->f->dev, dtype == GPUNN_I64 ? gpunn_write(t, wide, (size_t)n * sizeof *wide)
                                      : gpunn_write(t, narrow, (size_t)n * sizeof *narrow));
    return t;
}
#include "cases/norms.h"
#include "cases/picks.h"
#include "cases/tensors.h"

#include "cases/rnn.h"

/* clang-format off */
#include "cases/conv.h"
/* X(name, first input, builder from that x) */
#define LAYERS(X)                                                                                            \
    X(linear, XS(3, 7), gpunn_linear(x, "l", .out_features = 5))                                             \
    X(linear_one, XS(3, 1), gpunn_linear(x, "l", .out_features = 1))                                         \
    X(linear_rank4, XS(3, 2, 2, 5), gpunn_linear(x, "l", .out_features = 3, .no_bias = true))                \
    X(linear_prime, XS(3, 97), gpunn_linear(x, "l", .out_features = 37))                                     \
    X(linear_narrow, XS(3, 3), narrow(in, x))                                                                \
    X(conv2d, XS(3, 2, 5, 6), gpunn_conv2d(x, "l", .out_channels = 3, .kernel_size = 3))                     \
    X(conv2d_padded, XS(3, 2, 5, 4), gpunn_conv2d(x, "l", .out_channels = 3, .kernel_size = 3, .stride = 2,  \
      .padding = 1))                                                                                         \
    X(conv2d_dilated, XS(3, 2, 7, 7), gpunn_conv2d(x, "l", .out_channels = 2, .kernel_size = 2,              \
      .dilation = 3))                                                                                        \
    X(conv2d_groups, XS(3, 4, 5, 5), gpunn_conv2d(x, "l", .out_channels = 6, .kernel_size = 3, .padding = 1, \
      .groups = 2))                                                                                          \
    X(conv2d_depthwise, XS(3, 3, 5, 5), gpunn_conv2d(x, "l", .out_channels = 3, .kernel_size = 3,            \
      .padding = 1,                                                                                          \
      .groups = 3))                                                                                          \
    X(conv2d_pointwise, XS(3, 5, 4, 4), gpunn_conv2d(x, "l", .out_channels = 7, .kernel_size = 1))           \
    X(conv2d_rectangular, XS(3, 2, 6, 7), gpunn_conv2d(x, "l", .out_channels = 3, .kernel_shape = {3, 2},    \
      .strides = {1, 2}, .paddings = {2, 1}, .no_bias = true))                                               \
    X(conv2d_gelu_tanh, XS(3, 2, 4, 4),                                                                      \
      gpunn_gelu_tanh(gpunn_conv2d(x, "l", .out_channels = 2, .kernel_size = 3)))                            \
    X(conv2d_wide, XS(3, 16, 8, 8), gpunn_conv2d(x, "l", .out_channels = 32, .kernel_size = 3,               \
      .padding = 1))                                                                                         \
    X(max_pool2d, APART(3, 2, 6, 6), gpunn_max_pool2d(x, .kernel_size = 2))                                  \
    X(max_pool2d_overlap, APART(3, 2, 6, 5), gpunn_max_pool2d(x, .kernel_size = 3, .stride = 2,              \
      .padding = 1))                                                                                         \
    X(max_pool2d_ceil, APART(3, 1, 6, 6), gpunn_max_pool2d(x, .kernel_size = 3, .stride = 2,                 \
      .ceil_mode = true))                                                                                    \
    X(avg_pool2d, XS(3, 2, 6, 6), gpunn_avg_pool2d(x, .kernel_size = 2))                                     \
    X(avg_pool2d_exclude, XS(3, 2, 6, 5), gpunn_avg_pool2d(x, .kernel_size = 3, .stride = 2, .padding = 1,   \
      .ceil_mode = true, .count_exclude_pad = true))                                                         \
    X(avg_pool2d_include, XS(3, 2, 6, 5), gpunn_avg_pool2d(x, .kernel_size = 3, .stride = 2, .padding = 1,   \
      .ceil_mode = true))                                                                                    \
    X(adaptive_avg_pool2d, XS(3, 2, 7, 5), gpunn_adaptive_avg_pool2d(x, 3, 4))                               \
    SAMPLE_GRADIENTS(X)                                                                                      \
    X(batch_norm1d, XS(3, 5), gpunn_batch_norm1d(x, "l"))                                                    \
    X(batch_norm1d_length, XS(3, 2, 5), gpunn_batch_norm1d(x, "l", .eps = 0.01f))                            \
    X(batch_norm2d, XS(3, 4, 3, 2), gpunn_batch_norm2d(x, "l"))                                              \
    X(batch_norm2d_no_affine, XS(3, 2, 3, 3), gpunn_batch_norm2d(x, "l", .no_affine = true))                 \
    X(layer_norm, XS(3, 7), gpunn_layer_norm(x, "l"))                                                        \
    X(layer_norm_dims, XS(3, 4, 3, 5), gpunn_layer_norm(x, "l", .dims = 2, .eps = 0.01f))                    \
    X(layer_norm_no_affine, XS(3, 2, 9), gpunn_layer_norm(x, "l", .no_affine = true))                        \
    X(layer_norm_no_bias, XS(3, 5), gpunn_layer_norm(x, "l", .no_bias = true))                               \
    X(layer_norm_twice, XS(3, 6), gpunn_mul(gpunn_layer_norm(x, "l"), gpunn_layer_norm(gpunn_tanh(x), "m"))) \
    X(rms_norm, XS(3, 7), gpunn_rms_norm(x, "l"))                                                            \
    X(rms_norm_dims, XS(3, 4, 3, 5), gpunn_rms_norm(x, "l", .dims = 3, .eps = 0.01f))                        \
    X(rms_norm_no_affine, XS(3, 2, 9), gpunn_rms_norm(x, "l", .no_affine = true))                            \
    X(rms_norm_twice, XS(3, 6), gpunn_add(x, gpunn_mul(gpunn_rms_norm(x, "l"), gpunn_rms_norm(x, "m"))))     \
    X(prelu, APART(3, 4, 2), gpunn_prelu(x, "l", 4, 0))                                                      \
    X(prelu_one, APART(3, 4, 2), gpunn_prelu(x, "l", 0, 0.2f))                                               \
    X(reshape, XS(3, 4, 2), gpunn_mul(gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, 2, 4)), constant(in, 4)))    \
    X(flatten, XS(3, 2, 2, 3), gpunn_square(gpunn_flatten(x)))                                               \
    X(permute, XS(3, 4, 2, 5), gpunn_permute(x, GPUNN_AXES(2, 0, 3, 1)))                                     \
    X(concat, XS(3, 2, 2), concat3(x, in->x[1] = B("b", 3, 1, 2), in->x[2] = B("c", 3, 4, 2), 1))            \
    X(concat_same, XS(3, 2), concat3(x, in->x[1] = B("b", 3, 1), x, 1))                                      \
    X(slice, XS(3, 7), gpunn_slice(x, 1, 1, -1, 2))                                                          \
    X(slice_overlap, XS(3, 7), gpunn_add(gpunn_slice(x, 1, 0, 5, 1), gpunn_slice(x, 1, 2, 7, 1)))            \
    X(pad, XS(3, 2, 3), gpunn_pad(x, .before = {0, 1, 2}, .after = {0, 0, 1}, .value = 2))                   \
    X(sum, XS(3, 4, 2), gpunn_sum(x, GPUNN_AXES(1), false))                                                  \
    X(sum_batch, XS(3, 4, 2), gpunn_sum(x, GPUNN_AXES(0, -1), true))                                         \
    X(mean, XS(3, 4, 2), gpunn_mean(x, GPUNN_AXES(0, 2), false))                                             \
    X(mean_all, XS(3, 4, 2), gpunn_square(gpunn_mean(x, GPUNN_ALL, false)))                                  \
    X(max, APART(3, 4, 2), gpunn_max(x, GPUNN_AXES(1), false))                                               \
    X(max_two, APART(3, 4, 2), gpunn_max(x, GPUNN_AXES(0, 2), true))                                         \
    X(softmax, XS(3, 6), gpunn_softmax(x, -1))                                                               \
    X(softmax_middle, XS(3, 4, 3), gpunn_softmax(x, 1))                                                      \
    X(softmax_batch, XS(3, 4), gpunn_softmax(x, 0))                                                          \
    X(log_softmax, XS(3, 6), gpunn_log_softmax(x, -1))                                                       \
    X(log_softmax_middle, XS(3, 4, 3), gpunn_log_softmax(x, 1))                                              \
    RNN_GRADIENTS(X)                                                                                         \
    X(matmul, XS(3, 2, 5), gpunn_matmul(x, in->x[1] = B("b", 3, 5, 4)))                                      \
    X(matmul_transposed, XS(3, 5, 2), gpunn_matmul(x, in->x[1] = B("b", 3, 4, 5), .transpose_a = true,       \
      .transpose_b = true))                                                                                  \
    X(matmul_broadcast, XS(3, 1, 2, 5), gpunn_matmul(x, in->x[1] = B("b", 3, 2, 5, 2)))                      \
    X(matmul_narrow, XS(3, 17), gpunn_matmul(x, in->x[1] = B("b", 3, 3), .transpose_a = true))               \
    X(matmul_same, XS(3, 4), gpunn_matmul(x, x, .transpose_a = true))                                        \
    X(mse, XS(3, 4), gpunn_mse_loss(x, in->x[1] = B("t", 3, 4)))                                             \
    X(mse_none, XS(3, 4), gpunn_mse_loss(x, in->x[1] = B("t", 3, 4), .reduction = GPUNN_REDUCE_NONE))        \
    X(l1, pair(in), gpunn_l1_loss(x, in->x[1]))                                                              \
    X(huber, pair(in), gpunn_huber_loss(x, in->x[1], .delta = 0.5f))                                         \
    X(smooth_l1, pair(in), gpunn_smooth_l1_loss(x, in->x[1], .beta = 0.5f, .reduction = GPUNN_REDUCE_SUM))   \
    X(bce, XS(3, 4), gpunn_bce_loss(gpunn_sigmoid(x), gpunn_sigmoid(in->x[1] = B("t", 3, 4)),                \
      .weight = constant(in, 4)))                                                                            \
    X(bce_with_logits, XS(3, 4), gpunn_bce_with_logits(x, gpunn_sigmoid(in->x[1] = B("t", 3, 4)),            \
      .weight = constant(in, 4), .pos_weight = constant(in, 4)))                                             \
    X(kl_div, XS(3, 4), gpunn_kl_div(gpunn_log(gpunn_sigmoid(x)), gpunn_sigmoid(in->x[1] = B("t", 3, 4)),    \
      .reduction = GPUNN_REDUCE_BATCHMEAN))                                                                  \
    X(kl_div_log, XS(3, 4), gpunn_kl_div(x, in->x[1] = B("t", 3, 4), .log_target = true))                    \
    X(cross_entropy, XS(3, 3), gpunn_cross_entropy(x, labels(in, false)))                                    \
    X(cross_entropy_all, XS(3, 3, 2, 2), gpunn_cross_entropy(x, labels(in, true), .weight = constant(in, 3), \
      .label_smoothing = 0.2f))                                                                              \
    X(cross_entropy_none, XS(3, 3, 2, 2), gpunn_cross_entropy(x, labels(in, true),                           \
      .reduction = GPUNN_REDUCE_NONE))                                                                       \
    X(nll, XS(3, 3), gpunn_nll_loss(gpunn_log_softmax(x, 1), labels(in, false), .weight = constant(in, 3)))  \
    X(expr, pair(in), expression(in,                                                                         \
      "where(x > y, x * sigmoid(1.702 * x), leaky_relu(y, 0.2)) + exp(-x * x) / 2"))                         \
    X(square_of_itself, XS(3, 4), gpunn_mul(x, x))                                                           \
    X(diamond, XS(3, 4), gpunn_mul(gpunn_exp(x), gpunn_sub(gpunn_tanh(x), gpunn_sigmoid(x))))                \
    X(model_merged, XS(3, 6), merged(in, x))                                                                 \
    X(model_mlp, XS(3, 6), mlp(in, x))                                                                       \
    X(model_lenet, XS(3, 1, 12, 12), lenet(in, x))                                                           \
    X(model_residual, XS(3, 2, 6, 6), residual(in, x))                                                       \
    NORMS_GRADIENTS(X)                                                                                       \
    PICKS_GRADIENTS(X)                                                                                       \
    TENSORS_GRADIENTS(X)

/* clang-format on */
static gpunn_tensor *mlp(inputs *in, gpunn_tensor *x)
{
    gpunn_tensor *h = gpunn_tanh(gpunn_linear(x, "fc1", .out_features = 8));
    h = gpunn_gelu(gpunn_linear(h, "fc2", .out_features = 8));
    return gpunn_cross_entropy(gpunn_linear(h, "fc3", .out_features = 3), labels(in, false));
}
/* Many features of a few, twice with the same weight. */
static gpunn_tensor *narrow(inputs *in, gpunn_tensor *x)
{
    gpunn_tensor *y = gpunn_linear(x, "l", .out_features = 37);
    return gpunn_add(
        y, gpunn_linear(gpunn_sin(x), "k", .weight = gpunn_find(in->f->model, "l.weight"), .no_bias = true));
}
/* Activations whose forward goes into the linear before them and whose derivative into the linear after. */
static gpunn_tensor *merged(inputs *in, gpunn_tensor *x)
{
    gpunn_tensor *skip = gpunn_linear(x, "skip", .out_features = 8),
                 *h = gpunn_gelu_tanh(gpunn_linear(x, "fc1", .out_features = 8));
    h = gpunn_gelu_tanh(gpunn_add(gpunn_linear(h, "fc2", .out_features = 8), skip));
    return gpunn_cross_entropy(gpunn_linear(h, "fc3", .out_features = 3), labels(in, false));
}
/* With smooth activations and average pools, since a kink within 2h of some value is certain in so many. */
static gpunn_tensor *lenet(inputs *in, gpunn_tensor *x)
{
    gpunn_tensor *h = gpunn_avg_pool2d(
        gpunn_silu(gpunn_conv2d(x, "conv1", .out_channels = 3, .kernel_size = 3)), .kernel_size = 2);
    h = gpunn_avg_pool2d(gpunn_tanh(gpunn_conv2d(h, "conv2", .out_channels = 4, .kernel_size = 3)),
                         .kernel_size = 3);
    h = gpunn_softplus(gpunn_linear(gpunn_flatten(h), "fc1", .out_features = 7), 1, 20);
    return gpunn_cross_entropy(gpunn_linear(h, "fc2", .out_features = 3), labels(in, false),
                               .label_smoothing = 0.1f);
}
static gpunn_tensor *residual(inputs *in, gpunn_tensor *x)
{
    x = gpunn_silu(gpunn_batch_norm2d(
        gpunn_conv2d(x, "conv1", .out_channels = 4, .kernel_size = 3, .padding = 1, .no_bias = true), "bn1"));
    gpunn_tensor *y = gpunn_mish(gpunn_batch_norm2d(
        gpunn_conv2d(x, "conv2", .out_channels = 4, .kernel_size = 3, .padding = 1, .no_bias = true), "bn2"));
    y = gpunn_batch_norm2d(
        gpunn_conv2d(y, "conv3", .out_channels = 4, .kernel_size = 3, .padding = 1, .no_bias = true), "bn3");
    y = gpunn_adaptive_avg_pool2d(gpunn_elu(gpunn_add(x, y), 1), 1, 1);
    return gpunn_cross_entropy(gpunn_linear(gpunn_flatten(y), "fc", .out_features = 3), labels(in, false));
}

#define X(name, input, ...)                       \
    static gpunn_tensor *layer_##name(inputs *in) \
    {                                             \
        gpunn_tensor *x = in->x[0] = input;       \
        return (void)x, __VA_ARGS__;              \
    }
LAYERS(X)
ATTENTION_GRADIENTS(X)
CONV_GRADIENTS(X)
POOL_FAMILY_GRADIENTS(X)
RESIZE_GRADIENTS(X)
CRITERIA_GRADIENTS(X)
ENCODING_GRADIENTS(X)
#undef X
static const elementwise layers[] = {
#define X(name, ...) {#name, 0, layer_##name},
    LAYERS(X) ATTENTION_GRADIENTS(X) CONV_GRADIENTS(X) POOL_FAMILY_GRADIENTS(X) RESIZE_GRADIENTS(X)
        CRITERIA_GRADIENTS(X) ENCODING_GRADIENTS(X)
#undef X
};
static void test_layer(void **state)
{
    inputs             in = begin(state, 6);
    const elementwise *layer = in.f->data;
    gpunn_tensor      *out = layer->build(&in);
    check_gradients(&in, out);
}

/* Many frequencies and bins against doubles, within what rounding their arguments to floats does to them. */
static void test_encodings(void **state)
{
    enum { COORDINATES = 5, FREQUENCIES = 12, BINS = 64 };
    const fixture *f = *state;
    const float    points[COORDINATES] = {-0.95f, 0.0f, 0.123f, 0.5f, 1.0f};
    const double   pi = 3.14159265358979323846;
    float          values[COORDINATES * BINS];
    gpunn_tensor  *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    gpunn_tensor  *y[] = {MADE(f->dev, gpunn_frequency_encoding(x, FREQUENCIES)),
                          MADE(f->dev, gpunn_one_blob_encoding(x, BINS))};
    OK(f->dev, gpunn_write(x, points, sizeof points));
    OK(f->dev, gpunn_forward(y, 2));
    OK(f->dev, gpunn_read(y[0], values, COORDINATES * 2 * FREQUENCIES * sizeof *values));
    for (int i = 0; i < COORDINATES * 2 * FREQUENCIES; i++) {
        const double angle = pi * pow(2, i / 2 % FREQUENCIES) * (double)points[i / (2 * FREQUENCIES)];
        assert_true(fabs((double)values[i] - (i % 2 ? cos(angle) : sin(angle))) <=
                    1.5e-6 + 2e-7 * fabs(angle));
    }
    OK(f->dev, gpunn_read(y[1], values, sizeof values));
    for (int i = 0; i < COORDINATES * BINS; i++) {
        const double way = BINS * (double)points[i / BINS] - i % BINS - 0.5;
        assert_true(fabs((double)values[i] - exp(-way * way / 2)) <= 1.5e-6 + 1e-5 * exp(-way * way / 4));
    }
}

static void other_elements(void **state)
{
    (void)state;
    SKIP("the emulated GPU is slow: of larger tensors it differentiates by %d elements, the CPU by %d",
         EMULATOR_LIMIT, CPU_LIMIT);
}

int main(void)
{
    static struct CMUnitTest tests[1024];
    int                      count = 0;
    for (int i = 0; i < COUNT(ops); i++) {
        char name[64];
        if (!listed(ops[i].name, FLAT))
            count += each_backend(tests + count, ops[i].name, test_elementwise, &ops[i]);
        (void)snprintf(name, sizeof name, "%s broadcast", ops[i].name);
        if (!listed(ops[i].name, FLAT) && ops[i].operands > 1)
            count += each_backend(tests + count, name, test_broadcast, &ops[i]);
        (void)snprintf(name, sizeof name, "%s shared", ops[i].name);
        count += each_backend(tests + count, name, test_shared, &ops[i]);
    }
    for (int i = 0; i < COUNT(layers); i++)
        count += each_backend(tests + count, layers[i].name, test_layer, &layers[i]);
    count += each_backend(tests + count, "encodings", test_encodings, NULL);
    count += missing_backends(tests + count);
    if (is_emulated(first_backend())) tests[count++] = (struct CMUnitTest)cmocka_unit_test(other_elements);
    return _cmocka_run_group_tests("gradients", tests, (size_t)count, NULL, NULL);
}
