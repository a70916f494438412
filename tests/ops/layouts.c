/* Images with channels last: evaluations whose convolutions have many channels store them that way on the
 * CPU. Each network is computed a second time together with a large convolution of few channels, for which
 * the plan keeps channels first. */
#include "../test.h"

enum { CHANNELS = 24, HEIGHT = 9, WIDTH = 11 };

/* Statistics that do more than nothing. */
static void fill_statistics(fixture *f)
{
    for (int i = 0; i < gpunn_parameter_count(f->model); i++) {
        gpunn_tensor *t = gpunn_parameter_at(f->model, i);
        const int64_t n = (int64_t)(gpunn_tensor_bytes(t) / sizeof(float));
        float        *values = test_randoms(n, (uint32_t)i + 5, 0.3f);
        for (int64_t k = 0; strstr(gpunn_tensor_name(t), "running_var") && k < n; k++)
            values[k] = 0.5f + fabsf(values[k]);
        OK(f->dev, write_floats(t, values, n));
        free(values);
    }
}

/* Adds to the number at found whether a step of the profile copies the input into another layout. */
static void find_relayout(void *found, const char *text)
{
    *(int *)found += strstr(text, " x permute [") != NULL;
}

static int relayouts(fixture *f, gpunn_tensor *y, gpunn_tensor *narrow)
{
    int found = 0;
    OK(f->dev, gpunn_profile(f->model, .outputs = {y, narrow}, .runs = 1, .peak_flops = 1, .peak_bytes = 1,
                             .write = find_relayout, .user = &found));
    return found;
}

static gpunn_tensor *stem(fixture *f, gpunn_tensor *x)
{
    return MADE(f->dev, gpunn_conv2d(x, "stem", .out_channels = 40, .kernel_size = 3, .padding = 1));
}

#define CONV(...) gpunn_conv2d(h, "conv", __VA_ARGS__)
#define DEPTHWISE(k, ...) \
    gpunn_conv2d(h, "conv", .out_channels = 40, .groups = 40, .kernel_size = k, __VA_ARGS__)
#define POOLED(kind, ...) gpunn_##kind##_pool2d(h, __VA_ARGS__)
#define NORMED(name) gpunn_batch_norm2d(h, name)
#define NORMED_OF(...) gpunn_batch_norm2d(CONV(__VA_ARGS__), "bn")

static gpunn_tensor *gated(gpunn_tensor *h, bool all)
{
    gpunn_tensor *mean = gpunn_adaptive_avg_pool2d(h, 1, 1);
    mean = gpunn_sigmoid(
        gpunn_conv2d(gpunn_relu(gpunn_conv2d(mean, "squeeze", .out_channels = 16, .kernel_size = 1)),
                     "excite", .out_channels = (int)gpunn_tensor_shape(h).dim[1], .kernel_size = 1));
    return gpunn_mul(h, all ? gpunn_mean(mean, GPUNN_AXES(0), true) : mean);
}

static gpunn_tensor *joined(gpunn_tensor *x, gpunn_tensor *h)
{
    gpunn_tensor *parts[3] = {h, x, gpunn_silu(gpunn_slice(h, 1, 3, 30, 2))};
    return gpunn_conv2d(gpunn_concat(parts, 3, 1), "joined", .out_channels = 32, .kernel_size = 3);
}

/* A convolution of few channels, which reads planes, beside the others' result. */
static gpunn_tensor *few(gpunn_tensor *x, gpunn_tensor *h, bool adds)
{
    gpunn_tensor *y = gpunn_slice(x, 1, 0, 3, 1);
    y = gpunn_conv2d(y, "few", .out_channels = 19, .kernel_size = 3, .padding = 1);
    y = adds ? gpunn_add(y, gpunn_slice(h, 1, 0, 19, 1)) : gpunn_batch_norm2d(y, "bn");
    gpunn_tensor *parts[2] = {h, gpunn_hardswish(y)};
    return gpunn_concat(parts, 2, 1);
}

static gpunn_tensor *shuffled(gpunn_tensor *h)
{
    h = gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 2, 20, HEIGHT, WIDTH));
    h = gpunn_reshape(gpunn_permute(h, GPUNN_AXES(0, 2, 1, 3, 4)),
                      GPUNN_SHAPE(GPUNN_BATCH, 40, HEIGHT, WIDTH));
    return gpunn_conv2d(h, "shuffled", .out_channels = 16, .kernel_size = 1);
}

/* A residual block: norms, a sum and the activation behind a convolution, all merged into it. */
static gpunn_tensor *residual(gpunn_tensor *h, bool depthwise, gpunn_tensor *(*activation)(gpunn_tensor *))
{
    gpunn_tensor *y = gpunn_conv2d(h, "a", .out_channels = 40, .kernel_size = 3, .padding = 1,
                                   .groups = depthwise ? 40 : 1, .no_bias = true);
    y = activation(gpunn_add(gpunn_batch_norm2d(y, "bn"), h));
    return gpunn_add(gpunn_conv2d(y, "b", .out_channels = 40, .kernel_size = 1), y);
}

/* One channel more than whole vectors. */
#define EDGE CONV(.out_channels = 33, .kernel_size = 1)

/* Depthwise with n channels, which is no whole number of vectors. */
static gpunn_tensor *slim(gpunn_tensor *h, int n)
{
    h = gpunn_slice(h, 1, 0, n, 1);
    gpunn_tensor *y = gpunn_conv2d(h, "a", .out_channels = n, .groups = n, .kernel_size = 3, .padding = 1);
    return gpunn_relu(gpunn_add(y, h));
}

#define CASES(X)                                                                                        \
    X(edge_max_pool, gpunn_max_pool2d(EDGE, .kernel_size = 3, .stride = 2))                             \
    X(edge_avg_pool, gpunn_avg_pool2d(EDGE, .kernel_size = 2))                                          \
    X(edge_adaptive, gpunn_adaptive_avg_pool2d(EDGE, 2, 3))                                             \
    X(edge_depthwise, gpunn_conv2d(EDGE, "d", .out_channels = 33, .groups = 33, .kernel_size = 3))      \
    X(edge_norm, gpunn_batch_norm2d(gpunn_tanh(EDGE), "bn"))                                            \
    X(edge_gate, gated(EDGE, false))                                                                    \
    X(edge_sum, gpunn_relu(gpunn_add(EDGE, gpunn_slice(h, 1, 3, 36, 1))))                               \
    X(edge_softmax, gpunn_softmax(EDGE, 1))                                                             \
    X(edge_mean, gpunn_mean(EDGE, GPUNN_AXES(2, 3), false))                                             \
    X(edge_resized, gpunn_interpolate(EDGE, .size = {5, 17}, .mode = GPUNN_INTERPOLATE_LINEAR))         \
    X(edge_padded, gpunn_pad(EDGE, .before = {0, 1, 2}, .after = {0, 0, 0, 3}))                         \
    X(edge_window, gpunn_conv2d(EDGE, "w", .out_channels = 33, .kernel_size = 3, .stride = 2))          \
    X(strips, CONV(.out_channels = 150, .kernel_size = 3, .padding = 1))                                \
    X(pointwise, CONV(.out_channels = 33, .kernel_size = 1))                                            \
    X(pointwise_stride, CONV(.out_channels = 16, .kernel_size = 1, .stride = 2))                        \
    X(window, CONV(.out_channels = 17, .kernel_shape = {2, 5}, .stride = 2, .paddings = {1, 2}))        \
    X(dilated, CONV(.out_channels = 16, .kernel_size = 3, .dilation = 3, .padding = 3))                 \
    X(groups, CONV(.out_channels = 32, .kernel_size = 3, .groups = 2, .padding = 1))                    \
    X(few_in_groups, gpunn_silu(CONV(.out_channels = 20, .kernel_size = 3, .groups = 20)))              \
    X(multiplied, CONV(.out_channels = 80, .kernel_size = 3, .groups = 40, .padding = 1))               \
    X(one_channel, CONV(.out_channels = 1, .kernel_size = 3))                                           \
    X(one_cell, CONV(.out_channels = 19, .kernel_shape = {HEIGHT, WIDTH}))                              \
    X(transposed, gpunn_conv_transpose2d(h, "t", .out_channels = 18, .kernel_size = 3, .stride = 2))    \
    X(depthwise3, DEPTHWISE(3, .padding = 1))                                                           \
    X(depthwise3_stride, DEPTHWISE(3, .padding = 1, .stride = 2))                                       \
    X(depthwise5, DEPTHWISE(5, .padding = 2))                                                           \
    X(depthwise5_stride, DEPTHWISE(5, .padding = 2, .stride = 2))                                       \
    X(depthwise7, DEPTHWISE(7, .padding = 3))                                                           \
    X(depthwise7_stride, DEPTHWISE(7, .padding = 3, .stride = 3))                                       \
    X(depthwise_dilated, DEPTHWISE(3, .padding = 4, .dilation = 2))                                     \
    X(depthwise_even, DEPTHWISE(4, .paddings = {3, 0}))                                                 \
    X(depthwise_far, DEPTHWISE(3, .padding = 5, .dilation = 4, .stride = 2))                            \
    X(depthwise_odd, slim(h, 37))                                                                       \
    X(depthwise_13, slim(h, 13))                                                                        \
    X(depthwise_few, slim(h, 3))                                                                        \
    X(hardswish, gpunn_hardswish(CONV(.out_channels = 40, .kernel_size = 1)))                           \
    X(relu6, gpunn_relu6(NORMED("bn")))                                                                 \
    X(relu6_pointwise, gpunn_relu6(CONV(.out_channels = 33, .kernel_size = 1)))                         \
    X(clamped, gpunn_hardtanh(DEPTHWISE(5, .padding = 2, .stride = 2), 0, 0.3f))                        \
    X(hardtanh, gpunn_hardtanh(CONV(.out_channels = 33, .kernel_size = 1), -0.2f, 0.3f))                \
    X(clamped_sum, gpunn_hardtanh(gpunn_add(CONV(.out_channels = 40, .kernel_size = 1), h), 0, 0.3f))   \
    X(gelu_tanh, gpunn_gelu_tanh(CONV(.out_channels = 33, .kernel_size = 3)))                           \
    X(leaky, gpunn_leaky_relu(DEPTHWISE(3, .stride = 1), 0.2f))                                         \
    X(one_plane,                                                                                        \
      gpunn_tanh(gpunn_conv2d(gpunn_slice(h, 1, 0, 1, 1), "a", .out_channels = 1, .kernel_size = 3)))   \
    X(norm_pointwise, NORMED_OF(.out_channels = 33, .kernel_size = 1, .no_bias = true))                 \
    X(norm_window, NORMED_OF(.out_channels = 17, .kernel_size = 3, .stride = 2))                        \
    X(norm_groups, gpunn_silu(NORMED_OF(.out_channels = 34, .kernel_size = 3, .groups = 2)))            \
    X(norm_alone, NORMED("bn"))                                                                         \
    X(norm_apart,                                                                                       \
      gpunn_mul_scalar(gpunn_batch_norm2d(gpunn_tanh(gpunn_max_pool2d(h, .kernel_size = 2)), "bn"), 2)) \
    X(residual_relu, residual(h, false, gpunn_relu))                                                    \
    X(residual_silu, residual(h, false, gpunn_silu))                                                    \
    X(residual_relu6, residual(h, true, gpunn_relu6))                                                   \
    X(residual_depthwise, residual(h, true, gpunn_gelu))                                                \
    X(gate, gated(h, false))                                                                            \
    X(gate_of_all, gated(h, true))                                                                      \
    X(few_channels, few(x, h, false))                                                                   \
    X(few_and_sum, few(x, h, true))                                                                     \
    X(joined, joined(x, h))                                                                             \
    X(shuffled, shuffled(h))                                                                            \
    X(rows, gpunn_slice(h, 2, 1, 8, 3))                                                                 \
    X(permuted, gpunn_permute(h, GPUNN_AXES(0, 3, 1, 2)))                                               \
    X(flat, gpunn_linear(gpunn_flatten(h), "fc", .out_features = 7))                                    \
    X(padded, gpunn_pad(h, .before = {0, 1, 2}, .after = {0, 0, 0, 3}))                                 \
    X(mean, gpunn_mean(h, GPUNN_AXES(2, 3), false))                                                     \
    X(softmax, gpunn_softmax(h, 1))                                                                     \
    X(resized, gpunn_interpolate(h, .size = {5, 17}, .mode = GPUNN_INTERPOLATE_LINEAR))                 \
    X(max_pool, POOLED(max, .kernel_size = 3, .stride = 2, .padding = 1, .ceil_mode = true))            \
    X(max_dilated, POOLED(max, .kernel_size = 2, .dilation = 3, .stride = 1))                           \
    X(avg_pool, POOLED(avg, .kernel_shape = {3, 2}, .stride = 2, .paddings = {1, 0}))                   \
    X(avg_inside, POOLED(avg, .kernel_size = 3, .padding = 1, .count_exclude_pad = true))               \
    X(adaptive_avg, gpunn_adaptive_avg_pool2d(h, 4, 5))                                                 \
    X(adaptive_max, gpunn_adaptive_max_pool2d(h, 5, 3))

typedef struct layout_case {
    const char *name;
    gpunn_tensor *(*make)(gpunn_tensor *x, gpunn_tensor *h);
} layout_case;
#define X(name, formula)                                               \
    static gpunn_tensor *make_##name(gpunn_tensor *x, gpunn_tensor *h) \
    {                                                                  \
        (void)x;                                                       \
        return formula;                                                \
    }
CASES(X)
#undef X
#define X(name, formula) {#name, make_##name},
static const layout_case cases[] = {CASES(X)};
#undef X

static void test_layout(void **state)
{
    fixture           *f = *state;
    const layout_case *c = f->data;
    gpunn_tensor      *x = gpunn_input(f->model, "x", GPUNN_F32,
                                       GPUNN_SHAPE(GPUNN_BATCH, CHANNELS, HEIGHT, WIDTH));
    gpunn_tensor      *y = MADE(f->dev, c->make(x, stem(f, x)));
    gpunn_tensor      *narrow = MADE(
             f->dev, gpunn_conv2d(x, "narrow", .out_channels = 15, .kernel_size = 7, .padding = 3));
    gpunn_tensor *both[2] = {y, narrow};
    fill_statistics(f);
    for (int batch = 1; batch <= 3; batch += 2) {
        const int64_t n = batch * CHANNELS * HEIGHT * WIDTH;
        int64_t       count;
        float        *values = test_randoms(n, (uint32_t)batch, 2);
        OK(f->dev, write_floats(x, values, n));
        OK(f->dev, gpunn_forward(&y, 1));
        float *last = read_floats(f->dev, y, &count);
        OK(f->dev, gpunn_forward(both, 2));
        float *first = read_floats(f->dev, y, NULL);
        check_close(last, first, count, 2e-5, 2e-5);
        free(values), free(last), free(first);
    }
    if (f->backend->type == GPUNN_DEVICE_CPU) {
        assert_int_equal(relayouts(f, y, NULL) > 0, true);
        assert_int_equal(relayouts(f, y, narrow), 0);
    }
}

/* Convolutions that follow each other and have large results, which the CPU computes in strips. */
enum { MOST_VALUES = 6 };

typedef struct chain_case {
    const char *name;
    int         channels, height, width;
    /* adds the values in their order, and returns how many */
    int (*make)(gpunn_tensor *x, int channels, gpunn_tensor **values);
} chain_case;

static gpunn_tensor *pointwise(gpunn_tensor *x, const char *name, int channels)
{
    return gpunn_conv2d(x, name, .out_channels = channels, .kernel_size = 1);
}

#define DEEP(x, n, ...) gpunn_conv2d(x, "deep", .out_channels = n, .groups = n, __VA_ARGS__)

/* The block of a MobileNet, with a depthwise convolution. */
#define BLOCK(name, activation, ...)                                                        \
    static int chain_##name(gpunn_tensor *x, int n, gpunn_tensor **values)                  \
    {                                                                                       \
        values[0] = activation(gpunn_batch_norm2d(pointwise(x, "wide", n), "bn"));          \
        values[1] = activation(gpunn_batch_norm2d(DEEP(values[0], n, __VA_ARGS__), "bn2")); \
        values[2] = pointwise(values[1], "narrow", 17);                                     \
        return 3;                                                                           \
    }
BLOCK(three, gpunn_relu6, .kernel_size = 3, .padding = 1)
BLOCK(three_stride, gpunn_silu, .kernel_size = 3, .stride = 2)
BLOCK(five, gpunn_hardswish, .kernel_size = 5, .padding = 2)
BLOCK(five_stride, gpunn_relu, .kernel_size = 5, .padding = 2, .stride = 2)
BLOCK(seven, gpunn_relu6, .kernel_size = 7, .padding = 3)
BLOCK(oblong, gpunn_silu, .kernel_shape = {2, 5}, .paddings = {1, 4}, .stride = 3)
BLOCK(dilated, gpunn_relu6, .kernel_size = 3, .padding = 2, .dilation = 2)

static int chain_long(gpunn_tensor *x, int n, gpunn_tensor **values)
{
    values[0] = pointwise(x, "a", n);
    values[1] = gpunn_relu6(pointwise(values[0], "b", n));
    values[2] = DEEP(values[1], n, .kernel_size = 3, .padding = 1);
    values[3] = gpunn_conv2d(values[2], "c", .out_channels = n, .groups = n, .kernel_size = 5, .padding = 1);
    values[4] = gpunn_add(pointwise(values[3], "d", 24),
                          gpunn_conv2d(x, "e", .out_channels = 24, .kernel_size = 3));
    return 5;
}

/* A residual of a product whose sums are stored and loaded again. */
static int chain_deep(gpunn_tensor *x, int n, gpunn_tensor **values)
{
    values[0] = pointwise(x, "a", n);
    values[1] = pointwise(values[0], "b", 40);
    values[2] = gpunn_relu6(gpunn_add(values[1], pointwise(x, "c", 40)));
    return 3;
}

/* A second reader of the first result. */
static int chain_shared(gpunn_tensor *x, int n, gpunn_tensor **values)
{
    values[0] = pointwise(x, "a", n);
    values[1] = DEEP(values[0], n, .kernel_size = 3, .padding = 1);
    values[2] = gpunn_add(pointwise(values[1], "b", n), values[0]);
    return 3;
}

static const chain_case chains[] = {
    {"three", 203, 61, 43, chain_three}, {"three_stride", 203, 62, 43, chain_three_stride},
    {"five", 203, 43, 61, chain_five},   {"five_stride", 131, 64, 65, chain_five_stride},
    {"seven", 203, 61, 43, chain_seven}, {"oblong", 203, 61, 43, chain_oblong},
    {"few", 17, 203, 199, chain_three},  {"dilated", 203, 61, 43, chain_dilated},
    {"low", 211, 1, 2500, chain_three},  {"narrow", 211, 2500, 1, chain_five_stride},
    {"long", 203, 61, 43, chain_long},   {"shared", 203, 61, 43, chain_shared},
    {"deep", 1601, 9, 11, chain_deep}};

/* The last value is the same, bit by bit, if the others are wanted too. Each is a step of its own then. */
static void test_chain(void **state)
{
    fixture          *f = *state;
    const chain_case *c = f->data;
    gpunn_tensor     *values[MOST_VALUES],
        *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, CHANNELS, c->height, c->width));
    const int count = c->make(x, c->channels, values);
    OK(f->dev, gpunn_last_status(f->dev));
    fill_statistics(f);
    for (int batch = 1; batch <= 3; batch += 2) {
        const int64_t n = (int64_t)batch * CHANNELS * c->height * c->width;
        int64_t       numbers;
        float        *image = test_randoms(n, (uint32_t)batch, 2);
        OK(f->dev, write_floats(x, image, n));
        OK(f->dev, gpunn_forward(&values[count - 1], 1));
        float *joined = read_floats(f->dev, values[count - 1], &numbers);
        OK(f->dev, gpunn_forward(values, count));
        float *apart = read_floats(f->dev, values[count - 1], NULL);
        check_close(joined, apart, numbers, 2e-5, 2e-5);
        if (f->backend->type == GPUNN_DEVICE_CPU)
            assert_memory_equal(joined, apart, (size_t)numbers * sizeof *joined);
        free(image), free(joined), free(apart);
    }
}

/* Activations that convolutions with channels last apply themselves. */
static gpunn_tensor *relu2(gpunn_tensor *x)
{
    return gpunn_hardtanh(x, 0, 2.5f);
}

static gpunn_tensor *clamp3(gpunn_tensor *x)
{
    return gpunn_clamp(x, 0, 3);
}

static gpunn_tensor *clamp_below(gpunn_tensor *x)
{
    return gpunn_clamp(x, 0, -1);
}

typedef struct activation_case {
    const char *name;
    gpunn_tensor *(*of)(gpunn_tensor *x);
} activation_case;
static const activation_case activations[] = {{"relu_of_all", gpunn_relu},      {"relu6_of_all", gpunn_relu6},
                                              {"hardtanh_of_all", relu2},       {"clamp_of_all", clamp3},
                                              {"clamp_below_all", clamp_below}, {"silu_of_all", gpunn_silu}};

/* The same as the op by itself, for numbers of every kind. */
static void test_activation(void **state)
{
    enum { COLUMNS = 37, NUMBERS = CHANNELS * COLUMNS };
    static const float     edges[] = {0,   -0.0f, 1e-30f, -1e-30f, 6,      6.0001f,  -87.5f,    88,
                                      -88, 100,   -100,   1e30f,   -3e38f, INFINITY, -INFINITY, NAN};
    fixture               *f = *state;
    const activation_case *c = f->data;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, CHANNELS, 1, COLUMNS));
    gpunn_tensor *same = gpunn_conv2d(x, "same", .out_channels = CHANNELS, .groups = CHANNELS,
                                      .kernel_size = 1, .no_bias = true);
    gpunn_tensor *y[2] = {MADE(f->dev, c->of(same)), MADE(f->dev, c->of(x))};
    float         ones[CHANNELS], *values = test_randoms(NUMBERS, 3, 9);
    for (int i = 0; i < CHANNELS; i++) ones[i] = 1;
    for (int i = 0; i < NUMBERS; i += 3) values[i] = edges[i / 3 % COUNT(edges)];
    OK(f->dev, write_floats(gpunn_parameter_at(f->model, 0), ones, CHANNELS));
    OK(f->dev, write_floats(x, values, NUMBERS));
    OK(f->dev, gpunn_forward(y, 2));
    float *merged = read_floats(f->dev, y[0], NULL), *alone = read_floats(f->dev, y[1], NULL);
    for (int i = 0; i < NUMBERS; i++)
        if (!(fabsf(merged[i] - alone[i]) <= 1e-6f * fabsf(alone[i]) + 1e-30f) && merged[i] != alone[i] &&
            !(isnan(merged[i]) && isnan(alone[i])))
            fail_msg("%s(%g) is %.9g, by itself %.9g", c->name, values[i], merged[i], alone[i]);
    free(values), free(merged), free(alone);
}

int main(void)
{
    static struct CMUnitTest tests[4 * (COUNT(cases) + COUNT(chains) + COUNT(activations))];
    int                      count = 0;
    for (int i = 0; i < COUNT(cases); i++)
        count += each_backend(tests + count, cases[i].name, test_layout, &cases[i]);
    for (int i = 0; i < COUNT(chains); i++)
        count += each_backend(tests + count, chains[i].name, test_chain, &chains[i]);
    for (int i = 0; i < COUNT(activations); i++)
        count += each_backend(tests + count, activations[i].name, test_activation, &activations[i]);
    count += missing_backends(tests + count);
    return _cmocka_run_group_tests("layouts", tests, (size_t)count, NULL, NULL);
}
