/* Ops of 8-bit numbers against plain loops of exact integers, models of floats that become such ops, and what
 * is refused. */
#include "../test.h"

/* ---- plain loops ---- */
typedef struct numbers { /* pseudo-random, the same in each run */
    uint32_t state;
} numbers;

static uint32_t next(numbers *n)
{
    n->state = n->state * 1664525u + 1013904223u;
    return n->state >> 8;
}

static uint8_t saturated(double y, int zero, int low, int high)
{
    const double rounded = nearbyint(y) + zero;
    return (uint8_t)(rounded < low ? low : rounded > high ? high : rounded);
}

typedef struct scales {
    float x_scale, scale;
    int   x_zero, zero, low, high;
} scales;
static const scales settings[] = {{0.02f, 0.3f, 131, 7, 7, 255},
                                  {0.1f, 1.7f, 0, 128, 0, 255},
                                  {0.25f, 0.5f, 255, 0, 3, 97},    /* halves, which round to even */
                                  {1e-3f, 1e-5f, 12, 200, 0, 255}, /* saturates */
                                  {0.5f, 3e4f, 100, 99, 0, 255}};

/* A convolution; a linear layer is one of images of one cell. window: of rows and of columns. */
typedef struct shape {
    int n, c, h, w, out, groups, kh, kw;
    struct window {
        int stride, padding, dilation;
    } window[2];
} shape;

static int sizes_of(const struct window *w, int size, int kernel)
{
    return (size + 2 * w->padding - w->dilation * (kernel - 1) - 1) / w->stride + 1;
}

/* The cell that cell k of the kernel reads for result number `at`. */
static int cell_of(const struct window *w, int at, int k)
{
    return at * w->stride - w->padding + k * w->dilation;
}

/* The integer that the weight w stands for. */
static int rounded_weight(float w, float scale)
{
    const double q = nearbyint((double)(w / scale));
    return (int)(q < -128 ? -128 : q > 127 ? 127 : q);
}

/* The sum of products of one result. */
static int64_t sum_at(const shape *s, const uint8_t *x, int zero, const float *weight, const float *scale,
                      int n, int o, int oy, int ox)
{
    const int in = s->c / s->groups, group = o / (s->out / s->groups);
    int64_t   sum = 0;
    for (int c = 0; c < in; c++)
        for (int ky = 0; ky < s->kh; ky++)
            for (int kx = 0; kx < s->kw; kx++) {
                const int y = cell_of(&s->window[0], oy, ky), column = cell_of(&s->window[1], ox, kx);
                if (y < 0 || y >= s->h || column < 0 || column >= s->w) continue;
                const int value = x[((n * s->c + group * in + c) * s->h + y) * s->w + column] - zero;
                sum += value * rounded_weight(weight[((o * in + c) * s->kh + ky) * s->kw + kx], scale[o]);
            }
    return sum;
}

typedef struct layer {
    float *weight, *scale, *bias;
} layer;

static layer random_layer(numbers *random, int out, int each)
{
    layer l = {malloc((size_t)(out * each) * sizeof(float)), malloc((size_t)out * sizeof(float)),
               malloc((size_t)out * sizeof(float))};
    for (int o = 0; o < out; o++) {
        l.scale[o] = o % 5 == 3 ? 0.125f : 0.001f * (float)(1 + next(random) % 100);
        l.bias[o] = ((float)(next(random) % 2001) - 1000) * l.scale[o] * 0.25f;
        for (int k = 0; k < each; k++)
            l.weight[o * each + k] = (float)((int)(next(random) % 300) - 150) * l.scale[o];
    }
    if (out > 1) l.scale[1] = 0, l.bias[1] = 0; /* a column of zeros */
    for (int k = 0; k < each && out > 1; k++) l.weight[each + k] = 0;
    return l;
}

static void free_layer(layer *l)
{
    free(l->weight);
    free(l->scale);
    free(l->bias);
}

/* All results [n, out, oh, ow]. A column of scale 0 has only zeros. */
static void expect(const shape *s, const scales *q, const uint8_t *x, const layer *l, uint8_t *y)
{
    const int oh = sizes_of(&s->window[0], s->h, s->kh), ow = sizes_of(&s->window[1], s->w, s->kw);
    for (int n = 0; n < s->n; n++)
        for (int o = 0; o < s->out; o++)
            for (int at = 0; at < oh * ow; at++) {
                const float   unit = q->x_scale * l->scale[o], factor = unit / q->scale;
                const int64_t sum = unit == 0 ? 0
                                              : sum_at(s, x, q->x_zero, l->weight, l->scale, n, o, at / ow,
                                                       at % ow) +
                                                    (int64_t)nearbyint((double)(l->bias[o] / unit));
                y[(n * s->out + o) * oh * ow + at] = saturated((double)sum * (double)factor, q->zero, q->low,
                                                               q->high);
            }
}

static gpunn_tensor *parameter(gpunn_model *model, const char *name, gpunn_shape shape, const float *values,
                               int count)
{
    gpunn_tensor *t = gpunn_parameter(model, name, shape, GPUNN_LITERAL(gpunn_init){GPUNN_INIT_ZEROS, 0, 0});
    assert_int_equal(gpunn_write(t, values, (size_t)count * sizeof *values), GPUNN_OK);
    return t;
}

static int given_padding(const struct window *w)
{
    return w->padding ? w->padding : GPUNN_ZERO;
}

static void check_layer(const shape *s, const scales *q, int threads, bool linear)
{
    const struct window *rows = &s->window[0], *columns = &s->window[1];
    const int            in = s->c / s->groups, each = in * s->kh * s->kw, count = s->n * s->c * s->h * s->w;
    const int            oh = sizes_of(&s->window[0], s->h, s->kh), ow = sizes_of(&s->window[1], s->w, s->kw),
              wanted = s->n * s->out * oh * ow;
    numbers       random = {(uint32_t)(s->c * 7 + s->out)};
    layer         l = random_layer(&random, s->out, each);
    uint8_t      *x = malloc((size_t)count), *y = malloc((size_t)wanted), *exact = malloc((size_t)wanted);
    gpunn_device *dev = gpunn_device_open(ON(first_backend()), .threads = threads);
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *tx, *tw, *out;
    for (int i = 0; i < count; i++) x[i] = (uint8_t)(next(&random) % 256);
    tx = MADE(dev, gpunn_input(model, "x", GPUNN_U8,
                               linear ? GPUNN_SHAPE(GPUNN_BATCH, s->c)
                                      : GPUNN_SHAPE(GPUNN_BATCH, s->c, s->h, s->w)));
    tw = parameter(model, "weight", linear ? GPUNN_SHAPE(s->out, in) : GPUNN_SHAPE(s->out, in, s->kh, s->kw),
                   l.weight, s->out * each);
    gpunn_tensor *ts = parameter(model, "weight_scale", GPUNN_SHAPE(s->out), l.scale, s->out),
                 *tb = parameter(model, "bias", GPUNN_SHAPE(s->out), l.bias, s->out);
    if (linear)
        out = gpunn_quantized_linear(tx, tw, ts, tb, .x_scale = q->x_scale, .x_zero_point = q->x_zero,
                                     .scale = q->scale, .zero_point = q->zero, .quant_min = q->low,
                                     .quant_max = q->high);
    else
        out = gpunn_quantized_conv2d(tx, tw, ts, tb, .strides = {rows->stride, columns->stride},
                                     .paddings = {given_padding(rows), given_padding(columns)},
                                     .dilations = {rows->dilation, columns->dilation}, .groups = s->groups,
                                     .x_scale = q->x_scale, .x_zero_point = q->x_zero, .scale = q->scale,
                                     .zero_point = q->zero, .quant_min = q->low, .quant_max = q->high);
    assert_int_equal(gpunn_tensor_dtype(MADE(dev, out)), GPUNN_U8);
    OK(dev, gpunn_write(tx, x, (size_t)count));
    OK(dev, gpunn_forward(&out, 1));
    OK(dev, gpunn_read(out, y, (size_t)wanted));
    expect(s, q, x, &l, exact);
    for (int i = 0; i < wanted; i++)
        if (y[i] != exact[i])
            fail_msg("[%d, %d, %d, %d] to %d, groups %d: element %d is %d, not %d", s->n, s->c, s->h, s->w,
                     s->out, s->groups, i, y[i], exact[i]);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    free_layer(&l);
    free(x);
    free(y);
    free(exact);
}

static void test_linear(void **state)
{
    static const int sizes[][3] = {{1, 1, 1},    {1, 4, 16},   {3, 5, 17},    {7, 64, 64}, {2, 100, 130},
                                   {49, 36, 70}, {101, 8, 33}, {300, 20, 48}, {33, 48, 80}};
    (void)state;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            const shape s = {sizes[i][0], sizes[i][1], 1, 1, sizes[i][2], 1, 1, 1, {{1, 0, 1}, {1, 0, 1}}};
            check_layer(&s, &settings[i % COUNT(settings)], threads, true);
        }
}

static void test_conv(void **state)
{
    static const shape shapes[] = {{1, 3, 9, 7, 8, 1, 3, 3, {{1, 1, 1}, {1, 1, 1}}},
                                   {2, 16, 5, 5, 20, 1, 1, 1, {{1, 0, 1}, {1, 0, 1}}},
                                   {1, 64, 12, 12, 70, 1, 3, 3, {{1, 1, 1}, {1, 1, 1}}},
                                   {1, 3, 23, 19, 16, 1, 7, 7, {{2, 3, 1}, {2, 3, 1}}},
                                   {2, 8, 6, 6, 16, 1, 1, 1, {{2, 0, 1}, {2, 0, 1}}},
                                   {1, 70, 9, 9, 70, 70, 3, 3, {{1, 1, 1}, {1, 1, 1}}},
                                   {2, 16, 11, 8, 16, 16, 5, 3, {{2, 2, 2}, {2, 2, 2}}},
                                   {1, 12, 7, 7, 24, 3, 3, 3, {{1, 1, 1}, {1, 1, 1}}},
                                   {1, 6, 5, 5, 12, 6, 3, 3, {{1, 0, 1}, {1, 0, 1}}},
                                   {1, 4, 1, 1, 5, 1, 1, 1, {{1, 0, 1}, {1, 0, 1}}},
                                   {1, 1, 6, 6, 1, 1, 3, 3, {{1, 2, 2}, {1, 2, 2}}},
                                   {3, 20, 20, 20, 33, 1, 1, 1, {{1, 0, 1}, {1, 0, 1}}},
                                   {1, 6, 7, 7, 80, 2, 3, 3, {{1, 1, 1}, {1, 1, 1}}},
                                   {2, 5, 9, 14, 17, 1, 3, 4, {{1, 0, 2}, {2, 3, 1}}},
                                   {2, 5, 13, 8, 17, 1, 4, 3, {{2, 3, 1}, {1, 0, 2}}},
                                   {1, 34, 9, 14, 34, 34, 3, 4, {{1, 0, 2}, {2, 3, 1}}},
                                   {2, 8, 7, 9, 6, 2, 2, 3, {{3, 1, 1}, {1, 2, 2}}},
                                   {2, 8, 6, 5, 16, 1, 1, 1, {{1, 0, 1}, {2, 0, 1}}},
                                   {2, 8, 6, 5, 16, 1, 1, 1, {{2, 0, 1}, {1, 0, 1}}},
                                   {1, 8, 3, 4, 16, 1, 1, 1, {{1, 1, 1}, {1, 0, 1}}},
                                   {1, 8, 3, 4, 16, 1, 1, 1, {{1, 0, 1}, {1, 1, 1}}},
                                   /* enough for several threads, which share rows or columns */
                                   {2, 70, 31, 33, 70, 70, 3, 3, {{1, 1, 1}, {1, 1, 1}}},
                                   {2, 12, 31, 33, 36, 1, 3, 3, {{1, 1, 1}, {1, 1, 1}}},
                                   {1, 90, 7, 7, 400, 1, 3, 3, {{1, 1, 1}, {1, 1, 1}}}};
    (void)state;
    for (int i = 0; i < COUNT(shapes); i++)
        for (int threads = 1; threads <= 3; threads += 2)
            check_layer(&shapes[i], &settings[i % COUNT(settings)], threads, false);
}

/* ---- elementwise ---- */
enum { COUNTED = 300 };

static void test_elementwise(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    float         x[COUNTED], floats[COUNTED], reals[COUNTED];
    uint8_t       bytes[COUNTED], other[COUNTED], y[COUNTED], sums[COUNTED];
    for (int i = 0; i < COUNTED; i++) {
        x[i] = (float)(i - 150) * 0.25f; /* halves among the quotients by 0.5 */
        bytes[i] = (uint8_t)(i * 7), other[i] = (uint8_t)(i * i);
    }
    x[0] = -1e30f, x[1] = 1e30f, x[2] = -INFINITY, x[3] = INFINITY, x[4] = NAN;
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *tx = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(COUNTED))),
                 *ta = MADE(dev, gpunn_input(model, "a", GPUNN_U8, GPUNN_SHAPE(COUNTED))),
                 *tb = MADE(dev, gpunn_input(model, "b", GPUNN_U8, GPUNN_SHAPE(COUNTED)));
    gpunn_tensor *out[] = {
        MADE(dev, gpunn_quantize_per_tensor(tx, .scale = 0.5f, .zero_point = 37)),
        MADE(dev, gpunn_dequantize(ta, .scale = 0.3f, .zero_point = 200)),
        MADE(dev, gpunn_quantized_add(ta, tb, .a_scale = 0.3f, .a_zero_point = 12, .b_scale = 0.7f,
                                      .scale = 0.9f, .zero_point = 9, .quant_min = 9, .quant_max = 240)),
        MADE(dev, gpunn_dequantize(gpunn_quantize_per_tensor(tx, .scale = 0.1f), .scale = 0.1f))};
    OK(dev, gpunn_write(tx, x, sizeof x));
    OK(dev, gpunn_write(ta, bytes, sizeof bytes));
    OK(dev, gpunn_write(tb, other, sizeof other));
    OK(dev, gpunn_forward(out, COUNT(out)));
    OK(dev, gpunn_read(out[0], y, sizeof y));
    OK(dev, gpunn_read(out[1], floats, sizeof floats));
    OK(dev, gpunn_read(out[2], sums, sizeof sums));
    OK(dev, gpunn_read(out[3], reals, sizeof reals));
    for (int i = 0; i < COUNTED; i++) {
        assert_int_equal(y[i], i == 4 ? 0 : saturated((double)(x[i] / 0.5f), 37, 0, 255));
        assert_true(floats[i] == (float)(bytes[i] - 200) * 0.3f);
        const double sum = (bytes[i] - 12) * (double)0.3f + other[i] * (double)0.7f;
        const double near = sum / (double)0.9f - floor(sum / (double)0.9f) - 0.5;
        if (fabs(near) > 1e-3) assert_int_equal(sums[i], saturated(sum / (double)0.9f, 9, 9, 240));
        if (i > 4) assert_true(fabsf(reals[i] - fminf(fmaxf(x[i], 0), 25.5f)) <= 0.0501f);
    }
    gpunn_model_destroy(model);
}

/* ---- images between layers of both kinds ---- */
static void test_layouts(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    enum { C = 20, SIZE = 6, CELLS = 2 * C * SIZE * SIZE };
    numbers random = {5};
    layer   l = random_layer(&random, C, C);
    float   x[CELLS], found[CELLS], wanted[CELLS];
    uint8_t bytes[CELLS], q[CELLS], twice[CELLS];
    for (int i = 0; i < CELLS; i++) {
        x[i] = (float)(next(&random) % 1000) * 0.01f;
        q[i] = saturated((double)(x[i] / 0.04f), 3, 0, 255);
    }
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *tx = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, C, SIZE, SIZE)));
    gpunn_tensor *tw = parameter(model, "w", GPUNN_SHAPE(C, C, 1, 1), l.weight, C * C),
                 *ts = parameter(model, "s", GPUNN_SHAPE(C), l.scale, C),
                 *tb = parameter(model, "b", GPUNN_SHAPE(C), l.bias, C);
    gpunn_tensor *start = gpunn_quantize_per_tensor(tx, .scale = 0.04f, .zero_point = 3);
    gpunn_tensor *y = gpunn_quantized_conv2d(start, tw, ts, tb, .x_scale = 0.04f, .x_zero_point = 3,
                                             .scale = 0.5f, .zero_point = 60);
    gpunn_tensor *sum = gpunn_quantized_add(y, start, .a_scale = 0.5f, .a_zero_point = 60, .b_scale = 0.04f,
                                            .b_zero_point = 3, .scale = 0.6f, .zero_point = 50);
    gpunn_tensor *real = gpunn_dequantize(sum, .scale = 0.6f, .zero_point = 50);
    gpunn_tensor *out[] = {MADE(dev, gpunn_relu(real)), gpunn_flatten(y),
                           gpunn_permute(sum, GPUNN_AXES(0, 2, 3, 1)), gpunn_slice(y, 1, 2, 9, 1)};
    OK(dev, gpunn_write(tx, x, sizeof x));
    OK(dev, gpunn_forward(out, COUNT(out)));
    OK(dev, gpunn_read(out[0], found, sizeof found));
    OK(dev, gpunn_read(out[1], bytes, sizeof bytes));
    OK(dev, gpunn_read(out[2], twice, sizeof twice));
    const shape  s = {2, C, SIZE, SIZE, C, 1, 1, 1, {{1, 0, 1}, {1, 0, 1}}};
    const scales k = {0.04f, 0.5f, 3, 60, 0, 255};
    uint8_t      exact[CELLS], part[2 * 7 * SIZE * SIZE];
    OK(dev, gpunn_read(out[3], part, sizeof part));
    expect(&s, &k, q, &l, exact);
    assert_memory_equal(bytes, exact, sizeof exact);
    for (int n = 0; n < 2; n++)
        assert_memory_equal(part + n * 7 * SIZE * SIZE, exact + (n * C + 2) * SIZE * SIZE, 7 * SIZE * SIZE);
    for (int i = 0; i < CELLS; i++) {
        const int   n = i / (C * SIZE * SIZE), c = i / (SIZE * SIZE) % C, at = i % (SIZE * SIZE);
        const float a = (float)(exact[i] - 60) * 0.5f + (float)(q[i] - 3) * 0.04f;
        wanted[i] = fmaxf((float)(twice[(n * SIZE * SIZE + at) * C + c] - 50) * 0.6f, 0);
        assert_true(found[i] == wanted[i]);
        assert_true(fabsf((float)(twice[(n * SIZE * SIZE + at) * C + c] - 50) * 0.6f - a) <= 0.3001f ||
                    a > 123 || a < -30);
    }
    gpunn_model_destroy(model);
    free_layer(&l);
}

/* The maximum of the window of 3 by 3 cells around cell (2 oy, 2 ox) of a plane. */
static uint8_t most_around(const uint8_t *plane, int size, int oy, int ox)
{
    uint8_t most = 0;
    for (int y = 2 * oy - 1; y <= 2 * oy + 1; y++)
        for (int x = 2 * ox - 1; x <= 2 * ox + 1; x++)
            if (y >= 0 && y < size && x >= 0 && x < size && plane[y * size + x] > most)
                most = plane[y * size + x];
    return most;
}

/* Maxima of images that the program gives, and of a convolution's, which have their channels last. */
static void check_max_pool(gpunn_device *dev, int channels)
{
    enum { N = 2, SIZE = 7, OUT = 4 };
    numbers       random = {(uint32_t)channels};
    layer         l = random_layer(&random, channels, 1);
    const int     planes = N * channels, count = planes * SIZE * SIZE;
    uint8_t      *x = malloc((size_t)count), *y = malloc((size_t)count), most[2 * N * 24 * OUT * OUT];
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *tx = MADE(dev, gpunn_input(model, "x", GPUNN_U8, GPUNN_SHAPE(N, channels, SIZE, SIZE)));
    gpunn_tensor *w = parameter(model, "w", GPUNN_SHAPE(channels, 1, 1, 1), l.weight, channels),
                 *s = parameter(model, "s", GPUNN_SHAPE(channels), l.scale, channels),
                 *b = parameter(model, "b", GPUNN_SHAPE(channels), l.bias, channels);
    gpunn_tensor *conv = MADE(dev, gpunn_quantized_conv2d(tx, w, s, b, .groups = channels, .x_scale = 0.02f,
                                                          .scale = 0.01f, .zero_point = 90));
    gpunn_tensor *out[] = {gpunn_max_pool2d(tx, .kernel_size = 3, .stride = 2, .padding = 1),
                           gpunn_max_pool2d(conv, .kernel_size = 3, .stride = 2, .padding = 1), conv};
    for (int i = 0; i < count; i++) x[i] = (uint8_t)(next(&random) % 256);
    OK(dev, gpunn_write(tx, x, (size_t)count));
    OK(dev, gpunn_forward(out, COUNT(out)));
    assert_int_equal(gpunn_tensor_dtype(out[1]), GPUNN_U8);
    for (int i = 0; i < 2; i++)
        OK(dev, gpunn_read(out[i], most + i * planes * OUT * OUT, (size_t)(planes * OUT * OUT)));
    OK(dev, gpunn_read(conv, y, (size_t)count));
    for (int i = 0; i < 2 * planes * OUT * OUT; i++) {
        const int      plane = i / (OUT * OUT);
        const uint8_t *from = (plane < planes ? x : y) + plane % planes * SIZE * SIZE;
        assert_int_equal(most[i], most_around(from, SIZE, i / OUT % OUT, i % OUT));
    }
    gpunn_model_destroy(model);
    free_layer(&l);
    free(x);
    free(y);
}

static void test_max_pool(void **state)
{
    check_max_pool(((fixture *)*state)->dev, 24);
    check_max_pool(((fixture *)*state)->dev, 5);
}

/* ---- layers of floats ---- */
static void check_dynamic(gpunn_device *dev, int rows, int in, int outs, float low, float high)
{
    numbers random = {(uint32_t)(rows * 31 + in)};
    layer   l = random_layer(&random, outs, in);
    float  *x = malloc((size_t)(rows * in) * sizeof *x), *y = malloc((size_t)(rows * outs) * sizeof *y);
    float   least = 0, most = 0;
    for (int i = 0; i < rows * in; i++) {
        x[i] = low + (high - low) * (float)(next(&random) % 1024) / 1023;
        least = fminf(least, x[i]), most = fmaxf(most, x[i]);
    }
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *tx = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, in)));
    gpunn_tensor *out = MADE(dev, gpunn_quantized_linear_dynamic(
                                      tx, parameter(model, "w", GPUNN_SHAPE(outs, in), l.weight, outs * in),
                                      parameter(model, "s", GPUNN_SHAPE(outs), l.scale, outs),
                                      parameter(model, "b", GPUNN_SHAPE(outs), l.bias, outs)));
    OK(dev, gpunn_write(tx, x, (size_t)(rows * in) * sizeof *x));
    OK(dev, gpunn_forward(&out, 1));
    OK(dev, gpunn_read(out, y, (size_t)(rows * outs) * sizeof *y));
    const float scale = (most == least ? 1 : most - least) / 255;
    const int   zero = saturated((double)(-least / scale), 0, 0, 255);
    for (int i = 0; i < rows; i++)
        for (int o = 0; o < outs; o++) {
            int64_t sum = 0;
            for (int k = 0; k < in && l.scale[o] != 0; k++)
                sum += (saturated((double)(x[i * in + k] / scale), zero, 0, 255) - zero) *
                       rounded_weight(l.weight[o * in + k], l.scale[o]);
            const float wanted = (float)sum * (scale * l.scale[o]) + l.bias[o];
            assert_true(fabsf(y[i * outs + o] - wanted) <= 1e-6f * (fabsf(wanted) + fabsf(l.bias[o])));
        }
    gpunn_model_destroy(model);
    free_layer(&l);
    free(x);
    free(y);
}

static void test_dynamic(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    check_dynamic(dev, 3, 50, 40, -1, 3);
    check_dynamic(dev, 1, 1, 1, 2, 3);
    check_dynamic(dev, 120, 16, 17, -9, -1);
    check_dynamic(dev, 4, 8, 3, 0, 0); /* zeros, of which ONNX says that the scale is 1 / 255 */
}

/* A NaN reaches all results. */
static void test_nan(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    const float   x[4] = {1, NAN, 2, -1}, one[1] = {1};
    float         y[4];
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *tx = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1)));
    gpunn_tensor *out = gpunn_quantized_linear_dynamic(tx, parameter(model, "w", GPUNN_SHAPE(1, 1), one, 1),
                                                       parameter(model, "s", GPUNN_SHAPE(1), one, 1),
                                                       parameter(model, "b", GPUNN_SHAPE(1), one, 1));
    OK(dev, gpunn_write(tx, x, sizeof x));
    OK(dev, gpunn_forward(&out, 1));
    OK(dev, gpunn_read(out, y, sizeof y));
    for (int i = 0; i < 4; i++) assert_true(y[i] != y[i]);
    gpunn_model_destroy(model);
}

/* New weights are rounded anew. */
static void test_new_weights(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    const uint8_t x[2] = {10, 20};
    const float   first[2] = {1, 2}, second[2] = {3, -1}, one[1] = {1}, none[1] = {0};
    const float   floats[2] = {10, 20};
    uint8_t       y;
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev, .inference = true));
    gpunn_tensor *tx = MADE(dev, gpunn_input(model, "x", GPUNN_U8, GPUNN_SHAPE(1, 2)));
    gpunn_tensor *w = parameter(model, "w", GPUNN_SHAPE(1, 2), first, 2);
    gpunn_tensor *out = gpunn_quantized_linear(tx, w, parameter(model, "s", GPUNN_SHAPE(1), one, 1),
                                               parameter(model, "b", GPUNN_SHAPE(1), none, 1), .x_scale = 1,
                                               .scale = 1);
    gpunn_tensor *tf = MADE(dev, gpunn_input(model, "floats", GPUNN_F32, GPUNN_SHAPE(1, 2)));
    gpunn_tensor *dynamic = gpunn_quantized_linear_dynamic(tf, w, gpunn_find(model, "s"),
                                                           gpunn_find(model, "b"));
    OK(dev, gpunn_write(tx, x, sizeof x));
    OK(dev, gpunn_write(tf, floats, sizeof floats));
    for (int i = 0; i < 6; i++) {
        if (i == 3) OK(dev, gpunn_write(w, second, sizeof second));
        OK(dev, gpunn_forward(&out, 1));
        OK(dev, gpunn_read(out, &y, 1));
        assert_int_equal(y, i >= 3 ? 10 : 50);
        OK(dev, gpunn_forward(&dynamic, 1));
        assert_true(fabsf(gpunn_item(dynamic) - (i >= 3 ? 10.0f : 50.0f)) <= 0.2f);
    }
    gpunn_model_destroy(model);
}

/* A weight that is an input differs from run to run. */
static void test_computed_weights(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    enum { C = 16, CELLS = C * 8 * 8, WEIGHTS = C * C * 9 };
    const uint8_t one_byte[C] = {1};
    const float   one[1] = {1}, none[1] = {0};
    float         x[CELLS], w[WEIGHTS], sum;
    uint8_t       y;
    for (int i = 0; i < CELLS; i++) x[i] = 1;
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *q = MADE(dev, gpunn_input(model, "q", GPUNN_U8, GPUNN_SHAPE(1, C))),
                 *tw = MADE(dev, gpunn_input(model, "w", GPUNN_F32, GPUNN_SHAPE(1, C))),
                 *image = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(1, C, 8, 8))),
                 *filter = MADE(dev, gpunn_input(model, "f", GPUNN_F32, GPUNN_SHAPE(C, C, 3, 3)));
    gpunn_tensor *conv = gpunn_conv2d(image, "conv", .out_channels = C, .kernel_size = 3, .no_bias = true,
                                      .weight = gpunn_mul_scalar(filter, 2));
    gpunn_tensor *out[] = {
        MADE(dev,
             gpunn_quantized_linear(q, gpunn_mul_scalar(tw, 2), gpunn_constant(model, GPUNN_SHAPE(1), one),
                                    gpunn_constant(model, GPUNN_SHAPE(1), none), .x_scale = 1, .scale = 1)),
        MADE(dev, gpunn_mean(conv, GPUNN_ALL, false))};
    OK(dev, gpunn_write(q, one_byte, sizeof one_byte));
    OK(dev, gpunn_write(image, x, sizeof x));
    for (int run = 1; run <= 4; run++) {
        for (int i = 0; i < WEIGHTS; i++) w[i] = (float)run;
        OK(dev, gpunn_write(tw, w, C * sizeof *w));
        OK(dev, gpunn_write(filter, w, sizeof w));
        OK(dev, gpunn_forward(out, 2));
        OK(dev, gpunn_read(out[0], &y, 1));
        OK(dev, gpunn_read(out[1], &sum, sizeof sum));
        assert_int_equal(y, 2 * run);
        assert_float_equal(sum, (float)(2 * run * C * 9), 1e-2f);
    }
    gpunn_model_destroy(model);
}

/* Weights that are no numbers count as 0, and what a bias shifts out of range saturates. */
static void test_extremes(void **state)
{
    enum { OUT = 5 };
    gpunn_device *dev = ((fixture *)*state)->dev;
    const uint8_t x[1] = {10};
    const float   weight[OUT] = {NAN, 1, 1, INFINITY, -INFINITY}, ones[OUT] = {1, 1, 1, 1, 1};
    const float   bias[OUT] = {0, 1e30f, -1e30f, 0, 0}, zeros[OUT] = {0};
    uint8_t       y[OUT];
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *tx = MADE(dev, gpunn_input(model, "x", GPUNN_U8, GPUNN_SHAPE(1, 1)));
    gpunn_tensor *out = gpunn_quantized_linear(tx, parameter(model, "w", GPUNN_SHAPE(OUT, 1), weight, OUT),
                                               parameter(model, "s", GPUNN_SHAPE(OUT), ones, OUT),
                                               parameter(model, "b", GPUNN_SHAPE(OUT), bias, OUT),
                                               .x_scale = 1, .scale = 100, .zero_point = 50);
    gpunn_tensor *tb = parameter(model, "zeros", GPUNN_SHAPE(OUT), zeros, OUT);
    OK(dev, gpunn_write(tx, x, sizeof x));
    OK(dev, gpunn_forward(&out, 1));
    OK(dev, gpunn_read(out, y, sizeof y));
    assert_memory_equal(y, ((const uint8_t[OUT]){50, 255, 0, 50 + 13, 50 - 13}), sizeof y);
    const float   ends[2] = {-1.5f, 253.5f}; /* from -2 to 254 after rounding, which is more than a byte */
    gpunn_tensor *tf = MADE(dev, gpunn_input(model, "floats", GPUNN_F32, GPUNN_SHAPE(2, 1)));
    gpunn_tensor *all = MADE(
        dev, gpunn_quantized_linear_dynamic(tf, gpunn_find(model, "w"), gpunn_find(model, "s"), tb));
    float found[2][OUT];
    OK(dev, gpunn_write(tf, ends, sizeof ends));
    OK(dev, gpunn_forward(&all, 1));
    OK(dev, gpunn_read(all, found, sizeof found));
    assert_true(found[0][1] == -2 && found[1][1] == 253);
    gpunn_model_destroy(model);
}

/* ---- what is refused ---- */
static void test_refused(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    const float   one[1] = {1};
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *x = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1))),
                 *q = MADE(dev, gpunn_input(model, "q", GPUNN_U8, GPUNN_SHAPE(GPUNN_BATCH, 1))),
                 *image = MADE(dev, gpunn_input(model, "i", GPUNN_U8, GPUNN_SHAPE(GPUNN_BATCH, 1, 4, 4))),
                 *w = parameter(model, "w", GPUNN_SHAPE(1, 1), one, 1),
                 *filter = parameter(model, "f", GPUNN_SHAPE(1, 1, 1, 1), one, 1),
                 *s = parameter(model, "s", GPUNN_SHAPE(1), one, 1);
#define REFUSES(status, text, call) FAILS_NULL(dev, call, status, text)
    REFUSES(GPUNN_ERR_ARGUMENT, "quantize_per_tensor: scale is 0; use a positive number",
            gpunn_quantize_per_tensor(x, .zero_point = 1));
    REFUSES(GPUNN_ERR_ARGUMENT, "quantize_per_tensor: scale is inf; use a positive number",
            gpunn_quantize_per_tensor(x, .scale = INFINITY));
    REFUSES(GPUNN_ERR_ARGUMENT, "dequantize: zero_point is 256; set .zero_point to 255 or less",
            gpunn_dequantize(q, .scale = 1, .zero_point = 256));
    REFUSES(GPUNN_ERR_ARGUMENT, "dequantize: zero_point is -1; set .zero_point to 0 or more",
            gpunn_dequantize(q, .scale = 1, .zero_point = -1));
    REFUSES(GPUNN_ERR_DTYPE,
            "dequantize: x is f32, but u8 is needed; convert it with gpunn_quantize_per_tensor",
            gpunn_dequantize(x, .scale = 1));
    REFUSES(GPUNN_ERR_DTYPE,
            "quantized_conv2d: x is f32, but u8 is needed; convert it with gpunn_quantize_per_tensor",
            gpunn_quantized_conv2d(gpunn_cast(image, GPUNN_F32), filter, s, s, .x_scale = 1, .scale = 1));
    REFUSES(GPUNN_ERR_SHAPE, "quantized_conv2d: weight is [1, 1], but [out, in / groups, kh, kw] is needed",
            gpunn_quantized_conv2d(image, w, s, s, .x_scale = 1, .scale = 1));
    REFUSES(GPUNN_ERR_SHAPE, "quantized_conv2d: bias is [1, 1], but [1] is needed",
            gpunn_quantized_conv2d(image, filter, s, w, .x_scale = 1, .scale = 1));
    REFUSES(GPUNN_ERR_ARGUMENT,
            "quantized_conv2d: groups is 2, but the weight has 1 output channels; it must divide them",
            gpunn_quantized_conv2d(image, filter, s, s, .groups = 2, .x_scale = 1, .scale = 1));
    REFUSES(GPUNN_ERR_ARGUMENT,
            "quantized_conv2d: strides[2] is set, but the window has 2 axes; leave it out",
            gpunn_quantized_conv2d(image, filter, s, s, .strides = {1, 1, 1}, .x_scale = 1, .scale = 1));
    REFUSES(GPUNN_ERR_DTYPE, "max_pool2d: x is u8, for which dilation is 1 and padding_end is padding",
            gpunn_max_pool2d(image, .kernel_size = 2, .padding_end = 1));
    REFUSES(GPUNN_ERR_DTYPE, "avg_pool2d: x is u8", gpunn_avg_pool2d(image, .kernel_size = 2));
    gpunn_tensor    *y = MADE(dev, gpunn_quantized_linear(q, w, s, s, .x_scale = 1, .scale = 1));
    gpunn_tensor    *loss = MADE(dev, gpunn_mean(gpunn_dequantize(y, .scale = 1), GPUNN_ALL, false));
    gpunn_optimizer *opt = MADE(dev, gpunn_sgd(model, .lr = 0.1f));
    const uint8_t    one_byte = 1;
    OK(dev, gpunn_write(q, &one_byte, 1));
    FAILS(dev, gpunn_train_step(opt, loss), GPUNN_ERR_UNSUPPORTED,
          "computes with 8-bit numbers, which have no gradient");
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
}

/* Sums that may exceed 32 bits are refused. */
static void test_long_sums(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_init    most = {GPUNN_INIT_CONSTANT, 127, 0};
    const float   one[1] = {1}, byte[1] = {255};
    gpunn_tensor *y = NULL;
    for (int in = 32768; in <= 32769; in++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", in);
        gpunn_tensor *full = gpunn_constant(model, GPUNN_SHAPE(1, 1), byte);
        gpunn_tensor *x = gpunn_cast(gpunn_expand(full, GPUNN_SHAPE(1, in)), GPUNN_U8);
        gpunn_tensor *s = gpunn_constant(model, GPUNN_SHAPE(1), one);
        y = MADE(dev, gpunn_quantized_linear(x, gpunn_parameter(model, name, GPUNN_SHAPE(1, in), most), s, s,
                                             .x_scale = 1, .scale = 1e7f));
        if (in == 32769) break;
        uint8_t found;
        OK(dev, gpunn_forward(&y, 1));
        OK(dev, gpunn_read(y, &found, 1));
        assert_int_equal(found, 106); /* 32768 * 255 * 127 / 1e7 */
    }
    FAILS(dev, gpunn_forward(&y, 1), GPUNN_ERR_UNSUPPORTED, "a sum of 32769 products may exceed 32 bits");
    gpunn_model_destroy(model);
}

/* ---- models of floats that are quantised ---- */
enum { LAYERS = 16 };
typedef struct report {
    int                   count;
    gpunn_quantized_layer layers[LAYERS];
    char                  names[LAYERS][32];
} report;

static void take_layer(void *user, const gpunn_quantized_layer *layer)
{
    report *r = user;
    assert_true(r->count < LAYERS);
    (void)snprintf(r->names[r->count], sizeof r->names[0], "%s %s", layer->op, layer->layer);
    r->layers[r->count++] = *layer;
}

static float *parameter_values(gpunn_device *dev, gpunn_model *model, const char *name, int count)
{
    float *values = malloc((size_t)count * sizeof *values);
    OK(dev, gpunn_read(MADE(dev, gpunn_find(model, name)), values, (size_t)count * sizeof *values));
    return values;
}

static double decibels(const float *exact, const float *found, int count)
{
    double signal = 0, noise = 0;
    for (int i = 0; i < count; i++) {
        signal += (double)exact[i] * (double)exact[i];
        noise += ((double)found[i] - (double)exact[i]) * ((double)found[i] - (double)exact[i]);
    }
    return 10 * log10(signal / noise);
}

/* A linear layer with a relu, whose scales, zero points and results are computed here by the formulas. */
static void test_quantize_linear(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    gpunn_model  *model = ((fixture *)*state)->model;
    enum { ROWS = 5, IN = 4, OUT = 3 };
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, IN));
    gpunn_tensor *y = MADE(dev, gpunn_relu(gpunn_linear(x, "fc", .out_features = OUT)));
    float         in[ROWS * IN], weight[OUT * IN], bias[OUT] = {0.1f, -0.2f, 3}, out[ROWS * OUT], most = 0;
    for (int i = 0; i < ROWS * IN; i++) in[i] = (float)((i * 7) % 20) * 0.1f - 0.5f; /* -0.5 to 1.4 */
    for (int i = 0; i < OUT * IN; i++) weight[i] = (float)((i * 5) % 12) * 0.07f - 0.3f;
    OK(dev, gpunn_write(gpunn_find(model, "fc.weight"), weight, sizeof weight));
    OK(dev, gpunn_write(gpunn_find(model, "fc.bias"), bias, sizeof bias));
    OK(dev, gpunn_write(x, in, sizeof in));
    OK(dev, gpunn_calibrate(model, .outputs = {y}));
    gpunn_model *small = MADE(dev, gpunn_quantize(model));
    for (int i = 0; i < ROWS; i++)
        for (int o = 0; o < OUT; o++) {
            float sum = bias[o];
            for (int k = 0; k < IN; k++) sum += in[i * IN + k] * weight[o * IN + k];
            out[i * OUT + o] = fmaxf(sum, 0);
            most = fmaxf(most, sum);
        }
    const scales  q = {1.9f / 255, most / 255, 67 /* 0.5 / 1.9 255 */, 0, 0, 255};
    float        *scale = parameter_values(dev, small, "fc.weight_scale", OUT), found[ROWS * OUT];
    gpunn_tensor *result = MADE(dev, gpunn_spec_output(small, 0));
    OK(dev, gpunn_write(gpunn_find(small, "x"), in, sizeof in));
    OK(dev, gpunn_forward(&result, 1));
    OK(dev, gpunn_read(result, found, sizeof found));
    for (int o = 0; o < OUT; o++) {
        float largest = 0;
        for (int k = 0; k < IN; k++) largest = fmaxf(largest, fabsf(weight[o * IN + k]));
        assert_true(fabsf(scale[o] - largest / 127) <= 1e-6f * largest);
        for (int i = 0; i < ROWS; i++) {
            double sum = nearbyint((double)(bias[o] / (q.x_scale * scale[o])));
            for (int k = 0; k < IN; k++)
                sum += (saturated((double)(in[i * IN + k] / q.x_scale), q.x_zero, 0, 255) - q.x_zero) *
                       rounded_weight(weight[o * IN + k], scale[o]);
            const int byte = saturated(sum * (double)(q.x_scale * scale[o] / q.scale), 0, 0, 255);
            assert_true(fabsf(found[i * OUT + o] - (float)byte * q.scale) <= 1e-5f);
            assert_true(fabsf(found[i * OUT + o] - out[i * OUT + o]) <= 0.03f);
        }
    }
    assert_int_equal(gpunn_tensor_dtype(gpunn_find(small, "fc")), GPUNN_U8);
    free(scale);
    gpunn_model_destroy(small);
}

/* Rows of zeros or tiny weights, as behind a batch norm that has switched channels off: the bias counts. */
static void test_quantize_biases(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    gpunn_model  *model = ((fixture *)*state)->model;
    const float   weight[4][2] = {{0, 0}, {1e-12f, 0}, {0, -1e-30f}, {1, 2}}, bias[4] = {3, -2, 2.5f, 0},
                in[2][2] = {{1, 0.5f}, {-1, 1}};
    float         found[2][4];
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *y = MADE(dev, gpunn_linear(x, "fc", .out_features = 4));
    OK(dev, gpunn_write(gpunn_find(model, "fc.weight"), weight, sizeof weight));
    OK(dev, gpunn_write(gpunn_find(model, "fc.bias"), bias, sizeof bias));
    OK(dev, gpunn_write(x, in, sizeof in));
    OK(dev, gpunn_calibrate(model, .outputs = {y}));
    gpunn_model *small = MADE(dev, gpunn_quantize(model));
    y = gpunn_spec_output(small, 0);
    OK(dev, gpunn_forward(&y, 1)); /* its inputs hold what the calibration's held */
    OK(dev, gpunn_read(y, found, sizeof found));
    for (int i = 0; i < 2; i++)
        for (int o = 0; o < 3; o++) assert_true(fabsf(found[i][o] - bias[o]) <= 2.5f / 255);
    gpunn_model_destroy(small);
}

/* Convolutions with batch norms and relus, a residual sum, a pool, dropout, and what stays F32. */
typedef struct classifier {
    gpunn_tensor *x, *y, *label, *loss;
} classifier;
enum { IMAGES = 32, SIDE = 8, PIXELS = 2 * SIDE * SIDE, CLASSES = 4 };

static classifier classifier_make(gpunn_device *dev, gpunn_model *model)
{
    classifier n;
    n.x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2, SIDE, SIDE));
    n.label = gpunn_input(model, "label", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *h = gpunn_conv2d(n.x, "conv1", .out_channels = 8, .kernel_size = 3, .padding = 1);
    h = gpunn_max_pool2d(gpunn_relu(gpunn_batch_norm2d(h, "bn1")), .kernel_size = 2);
    gpunn_tensor *r = gpunn_relu6(
        gpunn_conv2d(h, "conv2", .out_channels = 8, .kernel_size = 3, .padding = 1, .stride = 1));
    r = gpunn_conv2d(r, "conv3", .out_channels = 8, .kernel_size = 3, .padding = 1, .groups = 8,
                     .no_bias = true);
    h = gpunn_relu(gpunn_add(gpunn_batch_norm2d(r, "bn3"), h));
    h = gpunn_linear(gpunn_dropout(gpunn_flatten(h), 0.3f), "fc1", .out_features = 16);
    n.y = gpunn_linear(gpunn_gelu(h), "fc2", .out_features = CLASSES);
    n.loss = MADE(dev, gpunn_cross_entropy(n.y, n.label));
    return n;
}

/* Stripes, whose direction and phase are the class. */
static void classifier_write(gpunn_device *dev, classifier n, uint32_t seed, int64_t *labels)
{
    static float images[IMAGES][PIXELS];
    numbers      random = {seed};
    for (int i = 0; i < IMAGES; i++) {
        labels[i] = next(&random) % CLASSES;
        for (int p = 0; p < PIXELS; p++) {
            const int at = labels[i] % 2 ? p % SIDE : p / SIDE % SIDE;
            const int on = (at + p / (SIDE * SIDE) * (labels[i] > 1)) % 2;
            images[i][p] = (float)on + (float)(next(&random) % 1000) * 0.002f - 1;
        }
    }
    OK(dev, gpunn_write(n.x, images, sizeof images));
    if (n.label) OK(dev, gpunn_write(n.label, labels, IMAGES * sizeof *labels));
}

static void classifier_train(gpunn_device *dev, gpunn_model *model, classifier n)
{
    gpunn_optimizer *opt = MADE(dev, gpunn_adam(model, .lr = 0.01f));
    int64_t          labels[IMAGES];
    for (uint32_t step = 0; step < 40; step++) {
        classifier_write(dev, n, 100 + step, labels);
        OK(dev, gpunn_train_step(opt, n.loss));
    }
    gpunn_optimizer_destroy(opt);
}

static void classifier_calibrate(gpunn_device *dev, gpunn_model *model, classifier n)
{
    int64_t labels[IMAGES];
    for (uint32_t batch = 0; batch < 3; batch++) {
        classifier_write(dev, n, 50 + batch, labels);
        OK(dev, gpunn_calibrate(model, .outputs = {n.y}));
    }
}

/* Runs a model on images of 4 batches; logits [4 IMAGES][CLASSES]. Returns how many classes are right. */
static int classify(gpunn_device *dev, gpunn_tensor *x, gpunn_tensor *y, float logits[][CLASSES])
{
    const classifier n = {x, y, NULL, NULL};
    int64_t          labels[IMAGES];
    int              right = 0;
    for (uint32_t batch = 0; batch < 4; batch++, logits += IMAGES) {
        classifier_write(dev, n, 1000 + batch, labels);
        OK(dev, gpunn_forward(&y, 1));
        OK(dev, gpunn_read(y, logits, IMAGES * sizeof *logits));
        for (int i = 0; i < IMAGES; i++) {
            int best = 0;
            for (int k = 1; k < CLASSES; k++) best = logits[i][k] > logits[i][best] ? k : best;
            right += best == labels[i];
        }
    }
    return right;
}

static void check_report(const report *r, const char *const *names, int count)
{
    assert_int_equal(r->count, count);
    for (int i = 0; i < count; i++) assert_string_equal(r->names[i], names[i]);
}

/* The model, written to one file and read from it. */
static gpunn_model *reloaded(gpunn_device *dev, gpunn_model *model)
{
    gpunn_array file;
    OK(dev, gpunn_model_save_memory(model, &file));
    gpunn_model *loaded = MADE(dev, gpunn_model_load_memory(dev, file.data, file.bytes, .inference = true));
    gpunn_array_free(dev, &file);
    return loaded;
}

static void test_quantize_classifier(void **state)
{
    static const char *const names[] = {"conv2d conv1", "conv2d conv2", "conv2d conv3",
                                        "add ",         "linear fc1",   "linear fc2"};
    static float     exact[4 * IMAGES][CLASSES], found[4 * IMAGES][CLASSES], again[4 * IMAGES][CLASSES];
    gpunn_device    *dev = ((fixture *)*state)->dev;
    gpunn_model     *model = ((fixture *)*state)->model;
    report           r = {0};
    const classifier n = classifier_make(dev, model);
    classifier_train(dev, model, n);
    classifier_calibrate(dev, model, n);
    gpunn_model  *small = MADE(dev, gpunn_quantize(model, .report = take_layer, .user = &r));
    gpunn_tensor *y = MADE(dev, gpunn_spec_output(small, 0));
    check_report(&r, names, COUNT(names));
    for (int i = 0; i < r.count; i++) {
        assert_null(r.layers[i].wide);
        assert_true(r.layers[i].snr > 28 && r.layers[i].total_snr > 25 && r.layers[i].total_snr < 60);
        assert_true(r.layers[i].low < r.layers[i].high);
    }
    assert_true(r.layers[1].low == 0 && r.layers[1].high <= 6); /* a relu6 */
    const int right = classify(dev, n.x, n.y, exact),
              rounded = classify(dev, gpunn_find(small, "x"), y, found);
    assert_true(right >= 120 && rounded >= right - 3);
    assert_true(decibels(exact[0], found[0], 4 * IMAGES * CLASSES) > 22);
    assert_null(gpunn_find(small, "label"));
    assert_non_null(gpunn_find(small, "conv1.bias"));
    assert_non_null(gpunn_find(small, "conv3.weight_bias"));

    gpunn_model *loaded = reloaded(dev, small);
    gpunn_model_destroy(small);
    (void)classify(dev, gpunn_find(loaded, "x"), gpunn_spec_output(loaded, 0), again);
    assert_memory_equal(found, again, sizeof found);
    gpunn_model_destroy(loaded);
}

/* A small one of all 8-bit ops that gpunn_quantize makes, whose numbers are exact in floats on a CPU. Its file
 * is the one that the generator's tests read. GPUNN_TEST_RENEW=1 writes it anew. */
static gpunn_model *integer_model(gpunn_device *dev, gpunn_model *model)
{
    static const char *const names[] = {"stem.weight", "left.weight", "right.weight", "head.weight",
                                        "stem.bias",   "right.bias",  "head.bias"};
    float                    values[8 * 16];
    gpunn_tensor            *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2, 7, 6));
    gpunn_tensor            *h = gpunn_relu(gpunn_conv2d(x, "stem", .out_channels = 4, .kernel_size = 1));
    h = gpunn_max_pool2d(h, .kernel_size = 3, .stride = 2, .padding = 1);
    gpunn_tensor *left = gpunn_conv2d(h, "left", .out_channels = 4, .kernel_shape = {2, 3}, .strides = {1, 2},
                                      .padding = 1, .no_bias = true),
                 *right = gpunn_clamp(gpunn_conv2d(h, "right", .out_channels = 4, .kernel_shape = {2, 3},
                                                   .strides = {1, 2}, .padding = 1, .groups = 2),
                                      -100, 800);
    gpunn_tensor *both[] = {gpunn_add(left, right), right};
    gpunn_tensor *y = gpunn_linear(gpunn_permute(gpunn_concat(both, 2, 1), GPUNN_AXES(0, 2, 3, 1)), "head",
                                   .out_features = 3);
    MADE(dev, gpunn_set_name(y, "y"));
    for (int k = 0; k < COUNT(names); k++) {
        gpunn_tensor *t = MADE(dev, gpunn_find(model, names[k]));
        for (int i = 0; i < COUNT(values); i++) values[i] = (float)(i * (5 + k) % 17 - 8);
        OK(dev, gpunn_write(t, values, gpunn_tensor_bytes(t)));
    }
    for (int i = 0; i < 2 * 7 * 6; i++) values[i] = (float)(i * 7 % 23 - 11);
    OK(dev, gpunn_write_shape(x, values, GPUNN_SHAPE(1, 2, 7, 6)));
    OK(dev, gpunn_set_metadata(model, "classes", "a, b, c"));
    OK(dev, gpunn_calibrate(model, .outputs = {y}));
    return MADE(dev, gpunn_quantize(model));
}

static void test_quantize_file(void **state)
{
    (void)state;
    static const char path[] = "tests/golden/quantized.gpunn";
    gpunn_device     *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU);
    gpunn_model      *model = MADE(dev, gpunn_model_create(dev));
    gpunn_model      *small = integer_model(dev, model);
    gpunn_array       file;
    assert_string_equal(gpunn_get_metadata(small, "classes"), "a, b, c");
    if (getenv("GPUNN_TEST_RENEW")) OK(dev, gpunn_model_save(small, path, .name = "quantized"));
    OK(dev, gpunn_model_save_memory(small, &file, .name = "quantized"));
    char *bytes = malloc(file.bytes + 1);
    FILE *golden = fopen(path, "rb");
    assert_non_null(golden);
    assert_int_equal(fread(bytes, 1, file.bytes + 1, golden), file.bytes);
    assert_memory_equal(bytes, file.data, file.bytes);
    (void)fclose(golden);
    free(bytes);
    gpunn_array_free(dev, &file);
    gpunn_model_destroy(small);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

/* Layers that are named, or that lose too much, stay as they are. */
static void test_quantize_wide(void **state)
{
    static const char *const wide[] = {"conv{1,3}", "fc2", NULL}, *const all[] = {"*", NULL};
    static const char *const names[] = {"conv2d conv1", "conv2d conv2", "conv2d conv3", "linear fc1",
                                        "linear fc2"};
    static float             exact[4 * IMAGES][CLASSES], found[4 * IMAGES][CLASSES];
    gpunn_device            *dev = ((fixture *)*state)->dev;
    gpunn_model             *model = ((fixture *)*state)->model;
    report                   r = {0}, bounded = {0};
    const classifier         n = classifier_make(dev, model);
    classifier_calibrate(dev, model, n);
    gpunn_model *small = MADE(dev, gpunn_quantize(model, .wide = wide, .report = take_layer, .user = &r));
    check_report(&r, names, COUNT(names)); /* the sum of floats is left alone */
    for (int i = 0; i < r.count; i++) {
        const bool named = i == 0 || i == 2 || i == 4;
        assert_true(named ? strcmp(r.layers[i].wide, "named") == 0 : r.layers[i].wide == NULL);
        assert_true((r.layers[i].snr != r.layers[i].snr) == named);
        assert_true(r.layers[i].total_snr > 25);
    }
    (void)classify(dev, n.x, n.y, exact);
    (void)classify(dev, gpunn_find(small, "x"), gpunn_spec_output(small, 0), found);
    assert_true(decibels(exact[0], found[0], 4 * IMAGES * CLASSES) > 25);
    assert_non_null(gpunn_find(small, "bn3.running_var"));
    gpunn_model_destroy(small);

    const float bound = (float)(r.layers[1].snr + r.layers[3].snr) / 2; /* between the two */
    small = MADE(
        dev, gpunn_quantize(model, .wide = wide, .min_snr = bound, .report = take_layer, .user = &bounded));
    for (int i = 1; i <= 3; i += 2)
        if (r.layers[i].snr < (double)bound)
            assert_string_equal(bounded.layers[i].wide, "error");
        else
            assert_null(bounded.layers[i].wide);
    gpunn_model_destroy(small);
    FAILS_NULL(dev, gpunn_quantize(model, .min_snr = 200), GPUNN_ERR_ARGUMENT,
               "gpunn_quantize: no layer is left to quantise: 0 are named in .wide, and 5 have less than "
               ".min_snr; name fewer, or lower it");
    FAILS_NULL(dev, gpunn_quantize(model, .wide = all), GPUNN_ERR_ARGUMENT, "5 are named in .wide, and 0");
}

/* The range of a layer y = x, by a method, after a call of gpunn_calibrate for each batch. */
static gpunn_quantized_layer range_of(gpunn_device *dev, const float *x, int batches, int each,
                                      gpunn_range_method method)
{
    const float   one = 1, zero = 0;
    report        r = {0};
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *in = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    gpunn_tensor *y = MADE(dev, gpunn_linear(in, "fc", .out_features = 1));
    OK(dev, gpunn_write(gpunn_find(model, "fc.weight"), &one, sizeof one));
    OK(dev, gpunn_write(gpunn_find(model, "fc.bias"), &zero, sizeof zero));
    for (int i = 0; i < batches; i++) {
        OK(dev, gpunn_write(in, x + i * each, (size_t)each * sizeof *x));
        OK(dev, gpunn_calibrate(model, .outputs = {y}));
    }
    gpunn_model_destroy(MADE(dev, gpunn_quantize(model, .method = method, .report = take_layer, .user = &r)));
    gpunn_model_destroy(model);
    return r.layers[0];
}

/* Rare large numbers: the range of the least divergence clips them, and rounds the others more finely. */
static void test_quantize_entropy(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    enum { MANY = 4096 };
    float                *x = malloc(2 * MANY * sizeof *x);
    numbers               random = {3};
    gpunn_quantized_layer found;
    for (int i = 0; i < 2 * MANY; i++) x[i] = (float)(next(&random) % 1000) * 0.002f;
    found = range_of(dev, x, 1, 2 * MANY, GPUNN_RANGE_ENTROPY); /* as many everywhere: nothing to clip */
    assert_true(found.low == 0 && found.high > 1.9f);
    for (int i = 0; i < 2 * MANY; i++) { /* a sum of four: nearly normal, from -2 to 2 */
        x[i] = -2;
        for (int k = 0; k < 4; k++) x[i] += (float)(next(&random) % 1000) * 0.001f;
    }
    x[MANY + 17] = 60, x[MANY + 18] = -50;
    found = range_of(dev, x, 1, 2 * MANY, GPUNN_RANGE_MIN_MAX);
    assert_true(found.low == -50 && found.high == 60);
    found = range_of(dev, x, 1, 2 * MANY, GPUNN_RANGE_ENTROPY);
    assert_true(found.high > 1 && found.high < 4 && found.low < -1 && found.low > -4);
    const gpunn_quantized_layer parts = range_of(dev, x, 2, MANY, GPUNN_RANGE_ENTROPY);
    assert_true(parts.low == found.low && parts.high == found.high); /* the bins have grown in between */
    for (int i = MANY; i < 2 * MANY; i++) x[i] = i % 100 ? 0 : (float)(i % 13 - 6); /* a few, up to 6 */
    x[MANY] = 60;
    for (int sign = 0; sign < 2; sign++) { /* the many are counted still, on either side of 0 */
        found = range_of(dev, x, 1, 2 * MANY, GPUNN_RANGE_ENTROPY);
        const gpunn_quantized_layer both = range_of(dev, x, 2, MANY, GPUNN_RANGE_ENTROPY);
        assert_true(both.low == found.low && both.high == found.high);
        for (int i = 0; i < 2 * MANY; i++) x[i] = -x[i];
    }
    free(x);
}

/* Bounds behind a layer, beyond what the samples show; values that are read by more than one op. */
static void test_quantize_bounds(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    gpunn_model  *model = ((fixture *)*state)->model;
    const float   weight[2] = {1, -1}, bias[2] = {0, 0}, samples[3] = {1.5f, 2.5f, 4}, others[3] = {-9, 9, 2};
    float         found[3][2];
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    gpunn_tensor *a = gpunn_linear(x, "a", .out_features = 2), *b = gpunn_linear(x, "b", .out_features = 2),
                 *c = gpunn_linear(x, "c", .out_features = 2), *d = gpunn_linear(x, "d", .out_features = 2);
    gpunn_tensor *all[] = {gpunn_clamp(a, 1, 3), gpunn_hardtanh(b, -3, -1),
                           gpunn_add(gpunn_relu(c), gpunn_tanh(c)), d, gpunn_relu(d)};
    for (int i = 0; i < 4; i++) {
        const char *const names[] = {"a", "b", "c", "d"};
        char              name[16];
        (void)snprintf(name, sizeof name, "%s.weight", names[i]);
        OK(dev, gpunn_write(MADE(dev, gpunn_find(model, name)), weight, sizeof weight));
        (void)snprintf(name, sizeof name, "%s.bias", names[i]);
        OK(dev, gpunn_write(MADE(dev, gpunn_find(model, name)), bias, sizeof bias));
    }
    OK(dev, gpunn_write(x, samples, sizeof samples));
    OK(dev, gpunn_calibrate(model, .outputs = {all[0], all[1], all[2], all[3], all[4]}));
    gpunn_model *small = MADE(dev, gpunn_quantize(model));
    for (int k = 0; k < COUNT(all); k++) {
        gpunn_tensor *y = MADE(dev, gpunn_spec_output(small, k));
        OK(dev, gpunn_write(gpunn_find(small, "x"), others, sizeof others));
        OK(dev, gpunn_forward(&y, 1));
        OK(dev, gpunn_read(y, found, sizeof found));
        for (int i = 0; i < 6; i++) {
            const float v = fmaxf(fminf(others[i / 2], 4), 0) * weight[i % 2]; /* x saturates, too */
            const float wanted = k == 0   ? fminf(fmaxf(v, 1), 3)
                                 : k == 1 ? fminf(fmaxf(v, -3), -1)
                                 : k == 2 ? fmaxf(v, 0) + tanhf(v)
                                 : k == 3 ? v
                                          : fmaxf(v, 0);
            assert_true(fabsf(found[i / 2][i % 2] - wanted) <= 0.05f);
        }
    }
    gpunn_model_destroy(small);
}

/* A convolution whose results have nearly this mean. */
static gpunn_tensor *shifted_conv(fixture *f, gpunn_tensor *x, const char *layer, int stride, float mean)
{
    const float   bias[5] = {mean, mean, mean, mean, mean};
    char          name[32];
    gpunn_tensor *y = MADE(
        f->dev, gpunn_conv2d(x, layer, .out_channels = 5, .kernel_size = 3, .padding = 1, .stride = stride));
    (void)snprintf(name, sizeof name, "%s.bias", layer);
    OK(f->dev, gpunn_write(gpunn_find(f->model, name), bias, sizeof bias));
    return y;
}

/* Maxima and concats of bytes stay bytes. Values that concats join, directly or by way of others, have one
 * range. */
static void test_quantize_joined(void **state)
{
    enum { PIXELS_ = 4 * 3 * 9 * 9, OUT = 4 * 3 };
    static const char *const bytes[] = {"pooled", "ab", "bc", "joined", "top"};
    gpunn_device            *dev = ((fixture *)*state)->dev;
    gpunn_model             *model = ((fixture *)*state)->model;
    numbers                  random = {8};
    report                   r = {0};
    float                    image[PIXELS_], exact[2][OUT], found[2][OUT];
    for (int i = 0; i < PIXELS_; i++) image[i] = (float)(next(&random) % 1000) * 0.002f - 1;
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3, 9, 9));
    gpunn_tensor *a = gpunn_max_pool2d(shifted_conv(*state, x, "a", 1, -4), .kernel_size = 2,
                                       .ceil_mode = true),
                 *b = shifted_conv(*state, x, "b", 2, 0), *c = shifted_conv(*state, x, "c", 2, 6);
    gpunn_tensor *ab = gpunn_concat((gpunn_tensor *[]){a, b}, 2, 1),
                 *bc = gpunn_concat((gpunn_tensor *[]){b, c}, 2, 1);
    gpunn_tensor *joined = gpunn_concat((gpunn_tensor *[]){bc, gpunn_tanh(c)}, 2, 1);
    gpunn_tensor *top = gpunn_max_pool2d(joined, .kernel_size = 3, .stride = 2, .padding = 1);
    gpunn_tensor *named[] = {a, ab, bc, joined, top};
    for (int i = 0; i < COUNT(named); i++) MADE(dev, gpunn_set_name(named[i], bytes[i]));
    gpunn_tensor *y[] = {MADE(dev, gpunn_linear(gpunn_flatten(ab), "left", .out_features = 3)),
                         MADE(dev, gpunn_linear(gpunn_flatten(top), "right", .out_features = 3))};
    OK(dev, gpunn_write(x, image, sizeof image));
    OK(dev, gpunn_calibrate(model, .outputs = {y[0], y[1]}));
    gpunn_model *small = MADE(dev, gpunn_quantize(model, .report = take_layer, .user = &r));
    for (int i = 0; i < COUNT(bytes); i++)
        assert_int_equal(gpunn_tensor_dtype(gpunn_find(small, bytes[i])), GPUNN_U8);
    for (int i = 0; i < 3; i++)
        assert_true(r.layers[i].low == r.layers[0].low && r.layers[i].high == r.layers[0].high);
    assert_true(r.layers[0].low < -4 && r.layers[0].high > 6 && r.layers[3].high < 6);
    for (int i = 0; i < 2; i++) {
        gpunn_tensor *bytes_y = gpunn_spec_output(small, i);
        OK(dev, gpunn_forward(&y[i], 1));
        OK(dev, gpunn_forward(&bytes_y, 1));
        OK(dev, gpunn_read(y[i], exact[i], sizeof exact[0]));
        OK(dev, gpunn_read(bytes_y, found[i], sizeof found[0]));
        assert_true(decibels(exact[i], found[i], OUT) > 30);
    }
    gpunn_model_destroy(small);
}

/* Maxima of floats have the range of what they are taken from. Those of the samples are all above 0. */
static void test_quantize_maxima(void **state)
{
    static const char *const names[][3] = {
        {"a", "a.weight", "a.bias"}, {"b", "b.weight", "b.bias"}, {"c", "c.weight", "c.bias"}};
    gpunn_device *dev = ((fixture *)*state)->dev;
    gpunn_model  *model = ((fixture *)*state)->model;
    const float   difference[2] = {10, -10}, zero = 0;
    const float   samples[2][8] = {{-9, 1, 0.5f, -2, 0, -3, -9, -1}, {-1, 0, -9, -8, 0.2f, 1, -4, -3}},
                others[8] = {-5, -7, -8, -5.1f, -5.5f, -9, -6, -7};
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2, 2, 2)), *y[3];
    gpunn_tensor *most[] = {
        gpunn_adaptive_max_pool2d(x, 1, 1), gpunn_max_pool2d(x, .kernel_size = 2),
        gpunn_max_pool1d(gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, 2, 4)), .kernel_size = 4)};
    for (int i = 0; i < COUNT(most); i++) {
        y[i] = MADE(dev, gpunn_linear(gpunn_flatten(most[i]), names[i][0], .out_features = 1));
        OK(dev, gpunn_write(gpunn_find(model, names[i][1]), difference, sizeof difference));
        OK(dev, gpunn_write(gpunn_find(model, names[i][2]), &zero, sizeof zero));
    }
    OK(dev, gpunn_write(x, samples, sizeof samples));
    OK(dev, gpunn_calibrate(model, .outputs = {y[0], y[1], y[2]}));
    gpunn_model *small = MADE(dev, gpunn_quantize(model));
    OK(dev, gpunn_write_shape(gpunn_find(small, "x"), others, GPUNN_SHAPE(1, 2, 2, 2)));
    for (int i = 0; i < COUNT(most); i++) {
        gpunn_tensor *result = gpunn_spec_output(small, i);
        OK(dev, gpunn_forward(&result, 1));
        assert_true(fabsf(gpunn_item(result) - 5) <= 0.5f);
    }
    gpunn_model_destroy(small);
}

/* The batches of a loader are recorded as those that are written. */
static void test_calibrate_loader(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    gpunn_model  *model = ((fixture *)*state)->model;
    float         samples[10][2], batch[4][2];
    report        r[3] = {{0}, {0}, {0}};
    for (int i = 0; i < 20; i++) samples[i / 2][i % 2] = (float)(i * i) - 9;
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *y = MADE(dev, gpunn_linear(x, "fc", .out_features = 3));
    gpunn_loader *loader = MADE(dev, gpunn_loader_create(model, .fields = {{.input = x, .samples = samples}},
                                                         .count = 10, .batch_size = 4));
    assert_true(gpunn_next(loader)); /* it is rewound */
    for (int i = 0; i < 3; i++) {
        const float one[3 * 2] = {1, 2, -3, 4, 5, -6};
        OK(dev, gpunn_write(gpunn_find(model, "fc.weight"), one, sizeof one)); /* begins anew */
        if (i < 2) OK(dev, gpunn_calibrate(model, .outputs = {y}, .loader = loader, .batches = i ? 2 : 0));
        for (int k = 0; k < 10 && i == 2; k += 4) {
            memcpy(batch, samples[k], (size_t)(k < 8 ? 4 : 2) * sizeof *batch);
            OK(dev, gpunn_write(x, batch, (size_t)(k < 8 ? 4 : 2) * sizeof *batch));
            OK(dev, gpunn_calibrate(model, .outputs = {y}));
        }
        gpunn_model_destroy(MADE(dev, gpunn_quantize(model, .report = take_layer, .user = &r[i])));
    }
    assert_memory_equal(&r[0].layers[0].low, &r[2].layers[0].low, 2 * sizeof(float));
    assert_true(r[0].layers[0].high > r[1].layers[0].high || r[0].layers[0].low < r[1].layers[0].low);
    for (int k = 0; k < 3; k++) assert_true(gpunn_next(loader));
    assert_false(gpunn_next(loader));
    gpunn_loader_destroy(loader);
}

/* What stands between quantised layers is copied: sizes that vary, shared tables, norms, states. */
static void test_quantize_copies(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    gpunn_model  *model = ((fixture *)*state)->model;
    enum { LENGTH = 6, WIDTH = 8, WORDS = 11 };
    const float half[WIDTH] = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f}, counted[1] = {7};
    int64_t     tokens[2 * LENGTH];
    float       exact[2 * LENGTH * WORDS], found[2 * LENGTH * WORDS];
    for (int i = 0; i < 2 * LENGTH; i++) tokens[i] = i * 5 % WORDS;
    gpunn_tensor *x = gpunn_input(model, "tokens", GPUNN_I64,
                                  GPUNN_SHAPE(GPUNN_BATCH, gpunn_size(model, "T", .max = 9)));
    gpunn_tensor *h = gpunn_embedding(x, "table", .num_embeddings = WORDS, .embedding_dim = WIDTH);
    gpunn_tensor *runs = gpunn_state(model, "runs", GPUNN_SHAPE(1), (gpunn_init){GPUNN_INIT_ZEROS, 0, 0});
    h = gpunn_layer_norm(gpunn_add(h, gpunn_constant(model, GPUNN_SHAPE(WIDTH), half)), "norm");
    h = gpunn_add(h, gpunn_mul_scalar(runs, 0.01f));
    h = gpunn_add(h, gpunn_linear(gpunn_silu(gpunn_linear(h, "up", .out_features = 12)), "down",
                                  .out_features = WIDTH, .no_bias = true));
    gpunn_tensor *y = MADE(dev, gpunn_linear(gpunn_lstm(h, "lstm", .hidden_size = WIDTH, .batch_first = true),
                                             "head", .weight = gpunn_find(model, "table.weight"),
                                             .no_bias = true));
    MADE(dev, gpunn_assign(runs, gpunn_add_scalar(runs, 1)));
    MADE(dev, gpunn_set_name(y, "scores"));
    OK(dev, gpunn_set_dtype(y, GPUNN_F64));
    OK(dev, gpunn_write_shape(x, tokens, GPUNN_SHAPE(2, LENGTH)));
    OK(dev, gpunn_write(runs, counted, sizeof counted));
    OK(dev, gpunn_calibrate(model, .outputs = {y}));
    gpunn_model  *small = MADE(dev, gpunn_quantize(model));
    gpunn_tensor *result = MADE(dev, gpunn_find(small, "scores"));
    assert_ptr_equal(result, gpunn_spec_output(small, 0));
    const float now = gpunn_item(runs);
    assert_true(now == 9 && gpunn_item(gpunn_find(small, "runs")) == now);
    assert_int_equal(gpunn_tensor_dtype(result), GPUNN_F64);
    OK(dev, gpunn_write_shape(gpunn_find(small, "tokens"), tokens, GPUNN_SHAPE(3, 4)));
    OK(dev, gpunn_write_shape(x, tokens, GPUNN_SHAPE(3, 4)));
    OK(dev, gpunn_forward(&result, 1));
    OK(dev, gpunn_forward(&y, 1));
    OK(dev, gpunn_read_as(result, GPUNN_F32, found, sizeof found));
    OK(dev, gpunn_read_as(y, GPUNN_F32, exact, sizeof exact));
    assert_true(decibels(exact, found, COUNT(found)) > 25);
    gpunn_model *loaded = reloaded(dev, small);
    result = gpunn_spec_output(loaded, 0);
    OK(dev, gpunn_write(gpunn_find(loaded, "runs"), &now, sizeof now)); /* files do not hold it */
    OK(dev, gpunn_write_shape(gpunn_find(loaded, "tokens"), tokens, GPUNN_SHAPE(3, 4)));
    OK(dev, gpunn_forward(&result, 1));
    OK(dev, gpunn_read(result, exact, sizeof exact));
    assert_memory_equal(exact, found, sizeof found);
    gpunn_model_destroy(loaded);
    gpunn_model_destroy(small);
}

static void test_quantize_refused(void **state)
{
    gpunn_device     *dev = ((fixture *)*state)->dev;
    gpunn_model      *model = ((fixture *)*state)->model;
    const char *const bad[] = {"a{b", NULL};
    float             x[2][4] = {{1, 2, 3, 4}, {-1, NAN, 0, 2}};
    gpunn_tensor     *in = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 4)), *y, *loss;
    y = MADE(dev, gpunn_linear(gpunn_relu(in), "fc", .out_features = 3));
    loss = gpunn_mean(gpunn_square(y), GPUNN_ALL, false);
    FAILS_NULL(dev, gpunn_quantize(model), GPUNN_ERR_STATE,
               "gpunn_quantize: there are no ranges of the model's values; call gpunn_calibrate with samples "
               "first");
    FAILS(dev, gpunn_calibrate(model), GPUNN_ERR_ARGUMENT,
          "gpunn_calibrate: there are no outputs; name the network's results in .outputs");
    FAILS(dev, gpunn_calibrate(model, .outputs = {in}), GPUNN_ERR_ARGUMENT,
          "gpunn_calibrate: output 0 is not a computed value of this model");
    FAILS(dev, gpunn_calibrate(model, .outputs = {gpunn_relu(in)}), GPUNN_ERR_UNSUPPORTED,
          "the outputs depend on no linear layer, conv2d or sum of values");
    FAILS(dev, gpunn_calibrate(model, .outputs = {y}, .batches = -1), GPUNN_ERR_ARGUMENT,
          "gpunn_calibrate: .batches is -1; use 1 or more, or 0 for all");
    FAILS(dev, gpunn_calibrate(model, .outputs = {y}), GPUNN_ERR_STATE, "input 'x' has not been written");
    OK(dev, gpunn_write(in, x, sizeof x));
    FAILS(
        dev, gpunn_calibrate(model, .outputs = {y}), GPUNN_ERR_NUMERIC,
        "gpunn_calibrate: relu has a NaN or infinite number, for which there is no range; leave such samples "
        "out");
    x[1][1] = 0;
    OK(dev, gpunn_write(in, x, sizeof x));
    OK(dev, gpunn_calibrate(model, .outputs = {y}));
    FAILS_NULL(dev, gpunn_quantize(model, .wide = bad), GPUNN_ERR_ARGUMENT,
               "gpunn_quantize: 'a{b' in .wide is no pattern: its braces do not come in pairs");
    FAILS_NULL(dev, gpunn_quantize(model, .method = (gpunn_range_method)2), GPUNN_ERR_ARGUMENT,
               "gpunn_quantize: .method 2 or .min_snr 0 is not possible");
    gpunn_model     *small = MADE(dev, gpunn_quantize(model));
    gpunn_optimizer *opt = MADE(dev, gpunn_sgd(model, .lr = 0.1f));
    FAILS_NULL(dev, gpunn_sgd(small, .lr = 0.1f), GPUNN_ERR_STATE, "inference");
    FAILS(dev, gpunn_calibrate(small), GPUNN_ERR_STATE,
          "gpunn_calibrate: the model has ops of 8-bit numbers already, such as quantize_per_tensor; use the "
          "model of floats from which it was made");
    FAILS_NULL(dev, gpunn_quantize(small), GPUNN_ERR_STATE, "the model has ops of 8-bit numbers already");
    OK(dev, gpunn_train_step(opt, loss));
    FAILS_NULL(dev, gpunn_quantize(model), GPUNN_ERR_STATE,
               "gpunn_quantize: the weights have changed since the calibration");
    gpunn_optimizer_destroy(opt);
    OK(dev, gpunn_lora(model, "fc"));
    FAILS(dev, gpunn_calibrate(model, .outputs = {y}), GPUNN_ERR_STATE,
          "the model has adapters of gpunn_lora; merge them first with gpunn_lora_merge");
    gpunn_model_destroy(small);
}

/* The header of a safetensors file has this text. */
static bool header_has(const gpunn_array *file, const char *text)
{
    const char  *at = (const char *)file->data + 8;
    const size_t length = strlen(text), end = *(const uint64_t *)file->data - length;
    bool         found = false;
    for (size_t i = 0; i < end && !found; i++) found = memcmp(at + i, text, length) == 0;
    return found;
}

/* The file of a model has the weights of ops of 8-bit numbers as integers, which become the same floats. */
static void test_integers_in_files(void **state)
{
    gpunn_device *dev = ((fixture *)*state)->dev;
    gpunn_model  *model = ((fixture *)*state)->model;
    enum { IN = 700, OUT = 300 }; /* more than a piece that is written at a time */
    numbers       random = {4};
    layer         l = random_layer(&random, OUT, IN);
    const float   none[OUT] = {0};
    float        *values = malloc(IN * OUT * sizeof *values);
    gpunn_array   file, plain;
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_U8, GPUNN_SHAPE(GPUNN_BATCH, IN));
    gpunn_tensor *w = parameter(model, "w", GPUNN_SHAPE(OUT, IN), l.weight, IN * OUT),
                 *s = parameter(model, "s", GPUNN_SHAPE(OUT), l.scale, OUT),
                 *other = parameter(model, "other", GPUNN_SHAPE(OUT, IN), l.weight, IN * OUT);
    MADE(dev, gpunn_quantized_linear(x, w, s, s, .x_scale = 1, .scale = 1));
    MADE(dev, gpunn_quantized_linear(x, other, s, s, .x_scale = 1, .scale = 1));
    MADE(dev, gpunn_relu(other)); /* whose values count */
    OK(dev, gpunn_model_save_memory(model, &file));
    OK(dev, gpunn_save_memory(model, &plain));
    assert_true(header_has(&file, "\"int8:w\":{\"dtype\":\"I8\",\"shape\":[300,700]"));
    assert_true(header_has(&file, "\"other\":{\"dtype\":\"F32\",\"shape\":[300,700]"));
    assert_true(header_has(&plain, "\"w\":{\"dtype\":\"F32\""));
    assert_true(file.bytes < plain.bytes - IN * OUT * 5 / 2);
    gpunn_model *loaded = MADE(dev, gpunn_model_load_memory(dev, file.data, file.bytes));
    for (int time = 0; time < 2; time++) {
        OK(dev, gpunn_read(gpunn_find(loaded, "w"), values, IN * OUT * sizeof *values));
        for (int i = 0; i < IN * OUT; i++) {
            const float scale = l.scale[i / IN];
            assert_true(values[i] == (scale != 0 ? (float)rounded_weight(l.weight[i], scale) * scale : 0));
        }
        OK(dev, gpunn_write(gpunn_find(loaded, "w"), l.weight, IN * OUT * sizeof *values));
        OK(dev, gpunn_write(gpunn_find(loaded, "s"), none, sizeof none)); /* the file's are taken */
        OK(dev, gpunn_load_memory(loaded, file.data, file.bytes));
    }
    gpunn_model_destroy(loaded);
    gpunn_model *floats = MADE(dev, gpunn_model_create(dev));
    (void)parameter(floats, "w", GPUNN_SHAPE(OUT, IN), l.weight, IN * OUT);
    FAILS(dev, gpunn_load_memory(floats, file.data, file.bytes), GPUNN_ERR_FORMAT, "w: in the model only");
    gpunn_model_destroy(floats);
    gpunn_array_free(dev, &file);
    gpunn_array_free(dev, &plain);
    free_layer(&l);
    free(values);
}

/* Whichever allocation fails, nothing leaks, and the next call works. */
static void test_quantize_memory(void **state)
{
    fixture      *f = *state;
    float         x[4] = {1, 2, -3, 4};
    gpunn_model  *small = NULL, *loaded = NULL;
    gpunn_tensor *in = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 4));
    gpunn_tensor *h = gpunn_batch_norm1d(gpunn_linear(in, "fc", .out_features = 4), "bn");
    gpunn_tensor *y = MADE(f->dev, gpunn_linear(gpunn_add(h, in), "fc2", .out_features = 2));
    OK(f->dev, gpunn_write(in, x, sizeof x));
    OK(f->dev, gpunn_forward(&y, 1));
    for (int n = 1; loaded == NULL; n++) {
        gpunn_array file = {0};
        f->memory.fail_at = f->memory.calls + n;
        if (gpunn_calibrate(f->model, .outputs = {y}) == GPUNN_OK) small = gpunn_quantize(f->model);
        if (small && gpunn_model_save_memory(small, &file) == GPUNN_OK)
            loaded = gpunn_model_load_memory(f->dev, file.data, file.bytes);
        f->memory.fail_at = 0;
        if (loaded == NULL) assert_int_equal(gpunn_last_status(f->dev), GPUNN_ERR_MEMORY);
        gpunn_clear_error(f->dev);
        gpunn_array_free(f->dev, &file);
        gpunn_model_destroy(small);
        small = NULL;
        assert_true(n < 3000);
    }
    gpunn_model_destroy(loaded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_conv),
        test_with_device(test_elementwise),
        test_with_device(test_layouts),
        test_with_device(test_dynamic),
        test_with_device(test_nan),
        test_with_device(test_refused),
        test_with_device(test_new_weights),
        test_with_device(test_long_sums),
        test_with_device(test_computed_weights),
        test_with_device(test_extremes),
        test_with_device(test_max_pool),
        test_with_device(test_quantize_linear),
        test_with_device(test_quantize_biases),
        test_with_device(test_quantize_classifier),
        cmocka_unit_test(test_quantize_file),
        test_with_device(test_quantize_wide),
        test_with_device(test_quantize_entropy),
        test_with_device(test_quantize_bounds),
        test_with_device(test_quantize_joined),
        test_with_device(test_quantize_maxima),
        test_with_device(test_calibrate_loader),
        test_with_device(test_quantize_copies),
        test_with_device(test_quantize_refused),
        test_with_device(test_quantize_memory),
        test_with_device(test_integers_in_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
