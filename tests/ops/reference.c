/* The heavy kernels against plain loops in double, on awkward sizes: 1, odd, prime, just beside the blocks of
 * a packed product, and random geometries of convolution and pooling. Forward, and the gradients of the
 * input, weight and bias. */
#include "../test.h"

#include <float.h>

static char   geometry[256]; /* of the case at work, for messages */
static double allowance = 1; /* 3 for convolutions: Winograd's transforms round more than plain sums */

/* |actual - sum| may be what n roundings of products whose magnitudes sum to `magnitude` explain. */
static void check_sum(const char *what, int64_t index, float actual, double sum, double magnitude, int64_t n)
{
    if (!(fabs(actual - sum) <= allowance * (4 + sqrt((double)n)) * 0x1p-24 * magnitude + 1e-30))
        fail_msg("%s: %s[%lld] is %.9g, should be %.9g", geometry, what, (long long)index, actual, sum);
}

/* What every case needs: an output, a gradient fed into it, and what came out. */
typedef struct run {
    fixture      *f;
    gpunn_tensor *x, *out, *loss;
    float        *value, *grad_out;
    int64_t       count; /* of out */
} run;

static gpunn_tensor *add_input(fixture *f, const char *name, gpunn_shape shape, const float *values,
                               int64_t n)
{
    gpunn_tensor *t = MADE(f->dev,
                           gpunn_retain_grad(MADE(f->dev, gpunn_input(f->model, name, GPUNN_F32, shape))));
    OK(f->dev, write_floats(t, values, n));
    return t;
}

static void run_backward(run *r)
{
    gpunn_device *dev = r->f->dev;
    MADE(dev, gpunn_keep(MADE(dev, r->out)));
    gpunn_tensor *w = MADE(dev, gpunn_input(r->f->model, "w", GPUNN_F32, gpunn_tensor_shape(r->out)));
    gpunn_shape   shape = gpunn_tensor_shape(r->out);
    r->count = 1;
    for (int i = 0; i < shape_rank(shape); i++) r->count *= shape.dim[i];
    r->grad_out = test_randoms(r->count, 99, 1);
    OK(dev, write_floats(w, r->grad_out, r->count));
    r->loss = MADE(dev, gpunn_sum(gpunn_mul(r->out, w), GPUNN_ALL, false));
    OK(dev, gpunn_backward(r->loss));
    r->value = read_floats(dev, r->out, NULL);
}
static float *read_gradient(gpunn_device *dev, gpunn_tensor *t)
{
    float *values = malloc(gpunn_tensor_bytes(t) + 1);
    OK(dev, gpunn_read_grad(t, values, gpunn_tensor_bytes(t)));
    return values;
}

/* ---- products: out[m, n] = sum over k of a(m, k) b(k, n), b stored transposed or not ---- */
typedef struct product {
    int  m, n, k;
    bool ta, tb, linear;
} product;

static void check_product(fixture *f, product p)
{
    (void)snprintf(geometry, sizeof geometry, "%s m %d n %d k %d%s%s", p.linear ? "linear" : "matmul", p.m,
                   p.n, p.k, p.ta ? ", a transposed" : "", p.tb ? ", b transposed" : "");
    allowance = 1;
    const int64_t ma = p.ta ? p.k : p.m, ka = p.ta ? p.m : p.k, kb = p.tb ? p.n : p.k, nb = p.tb ? p.k : p.n;
    float *a = test_randoms(ma * ka, 1, 1), *b = test_randoms(kb * nb, 2, 1), *bias = test_randoms(p.n, 3, 1);
    run    r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    gpunn_tensor *other, *bias_tensor = NULL;
    r.x = add_input(f, "a", GPUNN_SHAPE(ma, ka), a, ma * ka);
    if (p.linear) {
        r.out = gpunn_linear(r.x, "l", .out_features = p.n);
        other = gpunn_find(f->model, "l.weight");
        bias_tensor = gpunn_find(f->model, "l.bias");
        OK(f->dev, write_floats(other, b, kb * nb));
        OK(f->dev, write_floats(bias_tensor, bias, p.n));
    } else {
        other = add_input(f, "b", GPUNN_SHAPE(kb, nb), b, kb * nb);
        r.out = gpunn_matmul(r.x, other, .transpose_a = p.ta, .transpose_b = p.tb);
    }
    run_backward(&r);
    float *grad_a = read_gradient(f->dev, r.x), *grad_b = read_gradient(f->dev, other);
#define A(i, j) ((double)a[p.ta ? (j)*ka + (i) : (i)*ka + (j)])
#define B(i, j) ((double)b[p.tb ? (j)*nb + (i) : (i)*nb + (j)])
    for (int64_t i = 0; i < p.m; i++) {
        for (int64_t j = 0; j < p.n; j++) {
            double sum = p.linear ? bias[j] : 0, magnitude = fabs(sum);
            for (int64_t l = 0; l < p.k; l++) {
                sum += A(i, l) * B(l, j);
                magnitude += fabs(A(i, l) * B(l, j));
            }
            check_sum("out", i * p.n + j, r.value[i * p.n + j], sum, magnitude, p.k);
        }
        for (int64_t l = 0; l < p.k; l++) {
            double sum = 0, magnitude = 0;
            for (int64_t j = 0; j < p.n; j++) {
                const double term = r.grad_out[i * p.n + j] * B(l, j);
                sum += term;
                magnitude += fabs(term);
            }
            const int64_t at = p.ta ? l * ka + i : i * ka + l;
            check_sum("gradient of a", at, grad_a[at], sum, magnitude, p.n);
        }
    }
    for (int64_t j = 0; j < p.n; j++) {
        for (int64_t l = 0; l < p.k; l++) {
            double sum = 0, magnitude = 0;
            for (int64_t i = 0; i < p.m; i++) {
                const double term = r.grad_out[i * p.n + j] * A(i, l);
                sum += term;
                magnitude += fabs(term);
            }
            const int64_t at = p.tb ? j * nb + l : l * nb + j;
            check_sum("gradient of b", at, grad_b[at], sum, magnitude, p.m);
        }
    }
    if (p.linear) {
        float *grad_bias = read_gradient(f->dev, bias_tensor);
        for (int64_t j = 0; j < p.n; j++) {
            double sum = 0, magnitude = 0;
            for (int64_t i = 0; i < p.m; i++) {
                sum += r.grad_out[i * p.n + j];
                magnitude += fabs((double)r.grad_out[i * p.n + j]);
            }
            check_sum("gradient of bias", j, grad_bias[j], sum, magnitude, p.m);
        }
        free(grad_bias);
    }
#undef A
#undef B
    free(grad_a), free(grad_b), free(r.value), free(r.grad_out), free(a), free(b), free(bias);
}

/* A fresh model for each geometry of a test. */
static void next_model_of(fixture *f, gpunn_precision precision)
{
    gpunn_model_destroy(f->model);
    f->model = gpunn_model_create(f->dev, .precision = precision);
    assert_non_null(f->model);
}
static void next_model(fixture *f)
{
    next_model_of(f, GPUNN_PRECISION_F32);
}

static void products(fixture *f, bool linear)
{
    static const int sizes[] = {1,  2,  3,  5,  7,  8,  9,  15,  16,  17,  31,  32, 33,
                                47, 48, 49, 63, 64, 65, 97, 127, 128, 129, 255, 257};
    uint32_t         seed = linear ? 11 : 12;
    for (int i = 0; i < 120; i++) {
        int s[3];
        for (int k = 0; k < 3; k++) s[k] = sizes[(int)((test_random(&seed) * 0.5f + 0.5f) * COUNT(sizes))];
        const product p = {s[0], s[1], s[2], !linear && i & 1, linear || i & 2, linear};
        if ((int64_t)p.m * p.n * p.k > 600000) continue;
        next_model(f);
        check_product(f, p);
    }
    static const product large[] = {{1, 1031, 257, false, true, true},  {300, 10, 784, false, true, true},
                                    {521, 3, 67, false, false, false},  {2, 2, 5003, true, false, false},
                                    {129, 130, 131, true, true, false}, {260, 96, 131, false, true, true}};
    for (int i = 0; i < COUNT(large); i++) {
        if (large[i].linear != linear) continue;
        next_model(f);
        check_product(f, large[i]);
    }
}
static void test_linear(void **state)
{
    products(*state, true);
}
static void test_matmul(void **state)
{
    products(*state, false);
}

/* One row of x through a small layer, and one window of conv1d, which is such a row: forward keeps their
 * weights packed. The second run reads what the first has left, the third other weights. */
static void check_row(fixture *f, int64_t in, int64_t out, bool window, int kernel, int dilation, bool relu)
{
    const int64_t length = (int64_t)(kernel - 1) * dilation + 1, count = in * kernel;
    float        *values = test_randoms(in * length, 1, 1), *bias = test_randoms(out, 3, 1);
    gpunn_model  *model = gpunn_model_create(f->dev);
    gpunn_tensor *x = MADE(
        f->dev, gpunn_input(model, "x", GPUNN_F32, window ? GPUNN_SHAPE(1, in, length) : GPUNN_SHAPE(1, in)));
    gpunn_tensor *y = MADE(f->dev, window ? gpunn_conv1d(x, "l", .out_channels = (int)out,
                                                         .kernel_size = kernel, .dilation = dilation)
                                          : gpunn_linear(x, "l", .out_features = (int)out));
    if (relu) y = MADE(f->dev, gpunn_relu(y));
    (void)snprintf(geometry, sizeof geometry, "%s in %d out %d kernel %d dilation %d%s",
                   window ? "window" : "row", (int)in, (int)out, kernel, dilation, relu ? " relu" : "");
    OK(f->dev, write_floats(x, values, in * length));
    OK(f->dev, write_floats(gpunn_find(model, "l.bias"), bias, out));
    for (int pass = 0; pass < 3; pass++) {
        float *weight = test_randoms(out * count, 2 + (uint32_t)(pass == 2), 1);
        if (pass != 1) OK(f->dev, write_floats(gpunn_find(model, "l.weight"), weight, out * count));
        OK(f->dev, gpunn_forward(&y, 1));
        float *result = read_floats(f->dev, y, NULL);
        for (int64_t o = 0; o < out; o++) {
            double sum = bias[o], magnitude = fabs(sum);
            for (int64_t i = 0; i < count; i++) {
                const double term = (double)values[i / kernel * length + i % kernel * dilation] *
                                    weight[o * count + i];
                sum += term;
                magnitude += fabs(term);
            }
            check_sum("out", o, result[o], relu && sum < 0 ? 0 : sum, magnitude, count);
        }
        free(result), free(weight);
    }
    gpunn_model_destroy(model);
    free(values), free(bias);
}
static void test_small_rows(void **state)
{
    static const int outs[] = {1, 7, 8, 9, 16, 17, 24, 25, 31, 48, 49, 64, 97},
                     ins[] = {1, 2, 3, 4, 5, 8, 40, 129};
    fixture *f = *state;
    allowance = 1;
    for (int o = 0; o < COUNT(outs); o++)
        for (int i = 0; i < COUNT(ins); i++) {
            check_row(f, ins[i], outs[o], false, 1, 1, (o + i) % 2);
            check_row(f, ins[i], outs[o], true, 1 + i % 3, 1 + o % 3, i % 2);
        }
}

/* Evaluation keeps a linear layer's weights packed, over blocks of k and chunks of rows: the second run reads
 * what the first one left, and every number of threads gives the same bits. */
static void test_linear_evaluation(void **state)
{
    /* rows, out, in */
    static const int cases[][3] = {{2, 8, 1}, {65, 145, 769}, {63, 49, 1537}, {130, 97, 255}, {7, 200, 2309}};
    static const int threads[] = {1, 2, 3, 7};
    (void)state;
    for (int c = 0; c < COUNT(cases); c++) {
        const int64_t m = cases[c][0], n = cases[c][1], k = cases[c][2];
        float *a = test_randoms(m * k, 1, 1), *b = test_randoms(n * k, 2, 1), *bias = test_randoms(n, 3, 1),
              *first = NULL;
        (void)snprintf(geometry, sizeof geometry, "linear and gelu m %d n %d k %d", cases[c][0], cases[c][1],
                       cases[c][2]);
        allowance = 2;
        for (int i = 0; i < COUNT(threads); i++) {
            gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = threads[i]);
            gpunn_model  *model = gpunn_model_create(dev);
            gpunn_tensor *x = MADE(dev, gpunn_input(model, "a", GPUNN_F32, GPUNN_SHAPE(m, k)));
            gpunn_tensor *y = MADE(dev, gpunn_gelu(gpunn_linear(x, "l", .out_features = (int)n)));
            OK(dev, write_floats(x, a, m * k));
            OK(dev, write_floats(gpunn_find(model, "l.weight"), b, n * k));
            OK(dev, write_floats(gpunn_find(model, "l.bias"), bias, n));
            for (int pass = 0; pass < 2; pass++) {
                OK(dev, gpunn_forward(&y, 1));
                float *values = read_floats(dev, y, NULL);
                if (first) {
                    assert_memory_equal(values, first, (size_t)(m * n) * sizeof *first);
                    free(values);
                } else
                    first = values;
            }
            gpunn_model_destroy(model);
            gpunn_device_close(dev);
        }
        for (int64_t i = 0; i < m * n; i++) {
            double sum = bias[i % n], magnitude = fabs(sum);
            for (int64_t l = 0; l < k; l++) {
                const double term = (double)a[i / n * k + l] * b[i % n * k + l];
                sum += term;
                magnitude += fabs(term);
            }
            check_sum("out", i, first[i], 0.5 * sum * (1 + erf(sum * 0.70710678118654752)), magnitude, k);
        }
        free(a), free(b), free(bias), free(first);
    }
}

/* ---- convolutions: of one to three axes, and transposed ---- */
static int between(uint32_t *seed, int low, int high)
{
    return low + (int)((test_random(seed) * 0.5f + 0.5f) * (float)(high - low + 1));
}

typedef struct convolution {
    int  axes;
    bool transposed;
    int  n, cin, cout, groups, in[3], kernel[3], stride[3], padding[3], dilation[3];
    int  extra[3]; /* output_padding */
    int  out[3];
} convolution;

/* Fills what the case leaves out: axes beyond its own are 1. Whether the result has cells. */
static bool complete(convolution *g)
{
    for (int i = 0; i < 3; i++) {
        if (i >= g->axes) g->in[i] = 1, g->padding[i] = g->extra[i] = 0;
        if (i >= g->axes || !g->kernel[i]) g->kernel[i] = 1;
        if (i >= g->axes || !g->stride[i]) g->stride[i] = 1;
        if (i >= g->axes || !g->dilation[i]) g->dilation[i] = 1;
        const int span = g->dilation[i] * (g->kernel[i] - 1) + 1, room = g->in[i] + 2 * g->padding[i] - span;
        g->out[i] = g->transposed ? (g->in[i] - 1) * g->stride[i] + span - 2 * g->padding[i] + g->extra[i]
                                  : room / g->stride[i] + (room >= 0);
        if (g->out[i] < 1 || (!g->transposed && room < 0)) return false;
    }
    return true;
}

static convolution draw_conv(uint32_t *seed, int axes, bool transposed)
{
    static const int largest[] = {60, 19, 7};
    for (;;) {
        convolution g;
        memset(&g, 0, sizeof g);
        g.axes = axes;
        g.transposed = transposed;
        g.n = between(seed, 1, 3);
        g.groups = between(seed, 1, 4);
        if (g.groups == 4) g.groups = 1;
        g.cin = g.groups * between(seed, 1, 17 / g.groups);
        g.cout = g.groups * between(seed, 1, 20 / g.groups);
        if (between(seed, 0, 5) == 0) g.groups = g.cout = g.cin;
        const bool square = between(seed, 0, 1);
        for (int i = 0; i < axes; i++) {
            const int drawn[] = {between(seed, 1, axes == 3 ? 3 : 5), between(seed, 1, 3),
                                 between(seed, 0, 3), between(seed, 1, 2)};
            g.in[i] = between(seed, 1, transposed ? largest[axes - 1] / 2 + 1 : largest[axes - 1]);
            g.kernel[i] = square && i ? g.kernel[0] : drawn[0];
            g.stride[i] = square && i ? g.stride[0] : drawn[1];
            g.padding[i] = square && i ? g.padding[0] : drawn[2];
            g.dilation[i] = square && i ? g.dilation[0] : drawn[3];
            const int steps = g.stride[i] > g.dilation[i] ? g.stride[i] : g.dilation[i];
            g.extra[i] = transposed ? between(seed, 0, steps - 1) : 0;
        }
        if (complete(&g)) return g;
    }
}

static gpunn_tensor *build_conv(gpunn_tensor *x, const convolution *g)
{
    gpunn_conv_args args = {.out_channels = g->cout, .groups = g->groups};
    for (int i = 0; i < g->axes; i++) {
        args.kernel_shape[i] = g->kernel[i];
        args.strides[i] = g->stride[i];
        args.paddings[i] = g->padding[i];
        args.dilations[i] = g->dilation[i];
        args.output_paddings[i] = g->extra[i];
    }
    if (g->transposed)
        return g->axes == 1   ? gpunn_conv_transpose1d_(x, "l", args)
               : g->axes == 2 ? gpunn_conv_transpose2d_(x, "l", args)
                              : gpunn_conv_transpose3d_(x, "l", args);
    return g->axes == 1   ? gpunn_conv1d_(x, "l", args)
           : g->axes == 2 ? gpunn_conv2d_(x, "l", args)
                          : gpunn_conv3d_(x, "l", args);
}

/* Adds a * b to a sum and its size to the magnitude beside it. */
static void add_product(double *sums, int64_t i, double a, double b)
{
    sums[2 * i] += a * b;
    sums[2 * i + 1] += fabs(a * b);
}

/* The cell of the larger side, of sizes `size`, that window `at` sees through `tap`; -1: padding. */
static int64_t cell_under(const convolution *g, const int *size, const int *at, const int *tap)
{
    int64_t cell = 0;
    for (int i = 0; i < 3; i++) {
        const int k = at[i] * g->stride[i] - g->padding[i] + tap[i] * g->dilation[i];
        if (k < 0 || k >= size[i]) return -1;
        cell = cell * size[i] + k;
    }
    return cell;
}

static void check_conv(fixture *f, convolution g)
{
    assert_true(complete(&g));
    (void)snprintf(geometry, sizeof geometry,
                   "conv%s%dd n %d channels %d to %d, %dx%dx%d, groups %d, kernel %dx%dx%d, stride %dx%dx%d, "
                   "padding %dx%dx%d, "
                   "dilation %dx%dx%d, output_padding %dx%dx%d",
                   g.transposed ? "_transpose" : "", g.axes, g.n, g.cin, g.cout, g.in[0], g.in[1], g.in[2],
                   g.groups, g.kernel[0], g.kernel[1], g.kernel[2], g.stride[0], g.stride[1], g.stride[2],
                   g.padding[0], g.padding[1], g.padding[2], g.dilation[0], g.dilation[1], g.dilation[2],
                   g.extra[0], g.extra[1], g.extra[2]);
    allowance = 3;
    const int64_t cells = (int64_t)g.in[0] * g.in[1] * g.in[2],
                  made = (int64_t)g.out[0] * g.out[1] * g.out[2];
    const int64_t taps = g.kernel[0] * g.kernel[1] * g.kernel[2], xs = g.n * g.cin * cells,
                  ys = g.n * g.cout * made;
    const int64_t ws = (int64_t)g.cin * g.cout / g.groups * taps;
    float        *x = test_randoms(xs, 1, 1), *w = test_randoms(ws, 2, 1), *bias = test_randoms(g.cout, 3, 1);
    run           r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    gpunn_shape   shape = GPUNN_SHAPE(g.n, g.cin);
    for (int i = 0; i < g.axes; i++) shape.dim[2 + i] = g.in[i];
    r.x = add_input(f, "x", shape, x, xs);
    r.out = MADE(f->dev, build_conv(r.x, &g));
    gpunn_tensor *weight = gpunn_find(f->model, "l.weight"), *bias_tensor = gpunn_find(f->model, "l.bias");
    OK(f->dev, write_floats(weight, w, ws));
    OK(f->dev, write_floats(bias_tensor, bias, g.cout));
    run_backward(&r);
    assert_int_equal(r.count, ys);
    float *grad_x = read_gradient(f->dev, r.x), *grad_w = read_gradient(f->dev, weight),
          *grad_b = read_gradient(f->dev, bias_tensor);
    /* Windows slide over the larger side, x or, of a transposed convolution, y: weight [small channels][large
     * / groups][taps]. */
    const int    *large = g.transposed ? g.out : g.in, *small = g.transposed ? g.in : g.out;
    const int64_t large_cells = g.transposed ? made : cells, small_cells = g.transposed ? cells : made;
    const int64_t a_count = (g.transposed ? g.cin : g.cout) / g.groups,
                  b_count = (g.transposed ? g.cout : g.cin) / g.groups;
    double *sums = calloc((size_t)(2 * (ys + xs + ws + g.cout)), sizeof *sums); /* sum, magnitude */
    double *y = sums, *dx = y + 2 * ys, *dw = dx + 2 * xs, *db = dw + 2 * ws;
    for (int64_t o = 0; o < ys; o++) {
        add_product(y, o, bias[o / made % g.cout], 1);
        add_product(db, o / made % g.cout, r.grad_out[o], 1);
    }
    for (int64_t i = 0; i < small_cells; i++)
        for (int64_t t = 0; t < taps; t++) {
            const int     at[] = {(int)(i / small[2] / small[1]), (int)(i / small[2] % small[1]),
                                  (int)(i % small[2])};
            const int     tap[] = {(int)(t / g.kernel[2] / g.kernel[1]), (int)(t / g.kernel[2] % g.kernel[1]),
                                   (int)(t % g.kernel[2])};
            const int64_t cell = cell_under(&g, large, at, tap);
            for (int64_t pair = 0; cell >= 0 && pair < g.n * g.groups * a_count * b_count; pair++) {
                const int64_t a = pair / b_count % (g.groups * a_count),
                              image = pair / b_count / (g.groups * a_count);
                const int64_t b = a / a_count * b_count + pair % b_count,
                              wi = (a * b_count + pair % b_count) * taps + t;
                const int64_t si = (image * g.groups * a_count + a) * small_cells + i;
                const int64_t li = (image * g.groups * b_count + b) * large_cells + cell;
                const int64_t xi = g.transposed ? si : li, yi = g.transposed ? li : si;
                add_product(y, yi, x[xi], w[wi]);
                add_product(dx, xi, r.grad_out[yi], w[wi]);
                add_product(dw, wi, r.grad_out[yi], x[xi]);
            }
        }
    const int64_t in_terms = g.cin / g.groups * taps, out_terms = g.cout / g.groups * taps;
    for (int64_t i = 0; i < ys; i++) check_sum("out", i, r.value[i], y[2 * i], y[2 * i + 1], in_terms);
    for (int64_t i = 0; i < xs; i++)
        check_sum("gradient of x", i, grad_x[i], dx[2 * i], dx[2 * i + 1], out_terms);
    for (int64_t i = 0; i < ws; i++)
        check_sum("gradient of weight", i, grad_w[i], dw[2 * i], dw[2 * i + 1], g.n * small_cells);
    for (int64_t i = 0; i < g.cout; i++)
        check_sum("gradient of bias", i, grad_b[i], db[2 * i], db[2 * i + 1], g.n * made);
    free(sums), free(grad_x), free(grad_w), free(grad_b), free(r.value), free(r.grad_out), free(x), free(w),
        free(bias);
}

static void check_convs(fixture *f, int axes, bool transposed, int count)
{
    uint32_t seed = (uint32_t)(21 + 10 * transposed + axes);
    for (int i = 0; i < count; i++) {
        const convolution g = draw_conv(&seed, axes, transposed);
        next_model(f);
        check_conv(f, g);
    }
    static const convolution large[] = {
        {1, false, 3, 48, 33, 1, .in = {129}, .kernel = {5}, .stride = {2}, .padding = {2}},
        {1, false, 2, 64, 64, 64, .in = {301}, .kernel = {7}, .padding = {3}},
        {2, false, 2, 64, 64, 1, .in = {14, 14}, .kernel = {3, 3}, .padding = {1, 1}},
        {2, false, 4, 3, 6, 1, .in = {32, 32}, .kernel = {5, 5}},
        {2, false, 3, 67, 31, 1, .in = {9, 9}, .kernel = {1, 1}},
        {2, false, 2, 32, 48, 1, .in = {15, 17}, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
        {2, false, 2, 64, 64, 64, .in = {9, 9}, .kernel = {3, 3}, .padding = {1, 1}},
        {2, false, 5, 1, 32, 1, .in = {28, 28}, .kernel = {3, 3}},
        {2, false, 1, 16, 24, 2, .in = {37, 41}, .kernel = {3, 3}, .padding = {1, 1}},
        {2, false, 2, 40, 72, 1, .in = {8, 8}, .kernel = {1, 1}, .stride = {2, 2}},
        {3, false, 1, 17, 33, 1, .in = {6, 9, 10}, .kernel = {3, 3, 3}, .padding = {1, 1, 1}},
        {3, false, 2, 16, 16, 1, .in = {1, 12, 9}, .kernel = {1, 3, 3}, .padding = {0, 1, 1}},
        {3, false, 1, 20, 19, 1, .in = {5, 8, 8}, .kernel = {3, 3, 3}, .stride = {2, 1, 1},
         .padding = {1, 2, 0}, .dilation = {2, 1, 1}},
        {3, false, 2, 1, 8, 1, .in = {9, 17, 19}, .kernel = {3, 3, 3}, .padding = {1, 1, 1}},
        {3, false, 2, 32, 48, 1, .in = {5, 9, 10}, .kernel = {3, 3, 3}, .padding = {1, 1, 1}},
        {3, false, 1, 16, 32, 1, .in = {4, 9, 15}, .kernel = {2, 3, 3}, .padding = {3, 2, 0}},
        {3, false, 1, 96, 17, 1, .in = {3, 8, 8}, .kernel = {3, 3, 3}, .padding = {0, 1, 1}},
        {3, true, 1, 32, 16, 1, .in = {3, 8, 8}, .kernel = {3, 3, 3}, .padding = {1, 1, 1}},
        {3, false, 1, 24, 40, 1, .in = {7, 5, 6}, .kernel = {2, 2, 2}, .stride = {2, 2, 2}},
        {1, true, 3, 40, 33, 1, .in = {65}, .kernel = {4}, .stride = {2}, .padding = {1}},
        {2, true, 2, 65, 33, 1, .in = {7, 9}, .kernel = {4, 4}, .stride = {2, 2}, .padding = {1, 1}},
        {2, true, 2, 48, 17, 1, .in = {8, 9}, .kernel = {3, 3}, .padding = {1, 1}},
        {2, true, 2, 32, 32, 32, .in = {9, 9}, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1},
         .extra = {1, 1}},
        {3, true, 1, 33, 17, 1, .in = {4, 5, 3}, .kernel = {2, 2, 2}, .stride = {2, 2, 2}},
        {3, true, 1, 18, 16, 1, .in = {4, 8, 9}, .kernel = {3, 3, 3}, .padding = {1, 1, 1}},
        /* few channels of large images, which go in bands */
        {2, false, 1, 2, 3, 1, .in = {140, 240}, .kernel = {5, 3}, .padding = {2, 1}},
        {2, false, 2, 4, 2, 1, .in = {300, 250}, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
        {2, false, 1, 2, 3, 1, .in = {200, 330}, .kernel = {5, 1}, .padding = {2, 0}},
        {2, false, 1, 3, 4, 1, .in = {100, 250}, .kernel = {4, 3}},
        {2, false, 1, 2, 2, 1, .in = {150, 260}, .kernel = {3, 3}, .padding = {3, 3}, .dilation = {3, 3}},
        {3, false, 1, 1, 2, 1, .in = {3, 160, 150}, .kernel = {3, 3, 3}, .padding = {1, 1, 1}},
        {2, true, 1, 3, 2, 1, .in = {150, 120}, .kernel = {4, 4}, .stride = {2, 2}, .padding = {1, 1}},
    };
    for (int i = 0; i < COUNT(large); i++) {
        if (large[i].axes != axes || large[i].transposed != transposed) continue;
        next_model(f);
        check_conv(f, large[i]);
    }
}
static void test_conv1d(void **state)
{
    check_convs(*state, 1, false, 60);
}
static void test_conv2d(void **state)
{
    check_convs(*state, 2, false, 150);
}
static void test_conv3d(void **state)
{
    check_convs(*state, 3, false, 60);
}
static void test_conv_transpose1d(void **state)
{
    check_convs(*state, 1, true, 60);
}
static void test_conv_transpose2d(void **state)
{
    check_convs(*state, 2, true, 60);
}
static void test_conv_transpose3d(void **state)
{
    check_convs(*state, 3, true, 60);
}

/* ---- windows: pooling ---- */
typedef struct window {
    int n, c, h, w, k[2], s[2], p[2], oh, ow;
} window;

/* A random geometry whose output is not empty. */
static window draw_window(uint32_t *seed)
{
    for (;;) {
        window g;
        g.n = between(seed, 1, 3);
        g.c = between(seed, 1, 3);
        g.h = between(seed, 1, 19);
        g.w = between(seed, 1, 19);
        const bool square = between(seed, 0, 1);
        for (int i = 0; i < 2; i++) {
            g.k[i] = square && i ? g.k[0] : between(seed, 1, 5);
            g.s[i] = square && i ? g.s[0] : between(seed, 1, 3);
            g.p[i] = square && i ? g.p[0] : between(seed, 0, g.k[i] / 2);
        }
        g.oh = (g.h + 2 * g.p[0] - g.k[0]) / g.s[0] + 1;
        g.ow = (g.w + 2 * g.p[1] - g.k[1]) / g.s[1] + 1;
        if (g.h + 2 * g.p[0] >= g.k[0] && g.w + 2 * g.p[1] >= g.k[1]) return g;
    }
}

static void describe(const char *op, window g)
{
    (void)snprintf(geometry, sizeof geometry,
                   "%s n %d channels %d, %dx%d, kernel %dx%d, stride %dx%d, padding %dx%d", op, g.n, g.c, g.h,
                   g.w, g.k[0], g.k[1], g.s[0], g.s[1], g.p[0], g.p[1]);
    allowance = 1;
}

/* maximum, average with and without the padding counted */
static void check_pool(fixture *f, window g, int kind)
{
    static const char *const kinds[] = {"max_pool2d", "avg_pool2d", "avg_pool2d .count_exclude_pad"};
    describe(kinds[kind], g);
    const int64_t   xs = (int64_t)g.n * g.c * g.h * g.w;
    float          *x = test_randoms(xs, 1, 1);
    run             r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    gpunn_pool_args args = {.kernel_shape = {g.k[0], g.k[1]},
                            .strides = {g.s[0], g.s[1]},
                            .paddings = {g.p[0], g.p[1]},
                            .count_exclude_pad = kind == 2};
    r.x = add_input(f, "x", GPUNN_SHAPE(g.n, g.c, g.h, g.w), x, xs);
    r.out = MADE(f->dev, kind == 0 ? gpunn_max_pool2d_(r.x, args) : gpunn_avg_pool2d_(r.x, args));
    run_backward(&r);
    float  *grad_x = read_gradient(f->dev, r.x);
    double *dx = calloc((size_t)xs, sizeof *dx);
    int64_t at = 0;
    for (int64_t plane = 0; plane < (int64_t)g.n * g.c; plane++)
        for (int64_t y = 0; y < g.oh; y++)
            for (int64_t z = 0; z < g.ow; z++, at++) {
                double  sum = 0;
                int64_t real = 0, best = -1;
                for (int pass = 0; pass < (kind == 0 ? 1 : 2); pass++)
                    for (int64_t i = 0; i < g.k[0]; i++)
                        for (int64_t j = 0; j < g.k[1]; j++) {
                            const int64_t row = y * g.s[0] - g.p[0] + i, column = z * g.s[1] - g.p[1] + j;
                            if (row < 0 || row >= g.h || column < 0 || column >= g.w) continue;
                            const int64_t xi = (plane * g.h + row) * g.w + column;
                            if (pass == 1)
                                dx[xi] += r.grad_out[at] /
                                          (kind == 2 ? (double)real : (double)g.k[0] * g.k[1]);
                            else {
                                sum += x[xi];
                                real++;
                                if (best < 0 || x[xi] > x[best]) best = xi;
                            }
                        }
                if (kind == 0) dx[best] += r.grad_out[at];
                const double expected = kind == 0
                                            ? x[best]
                                            : sum / (kind == 2 ? (double)real : (double)g.k[0] * g.k[1]);
                check_sum("out", at, r.value[at], expected, 1, 25);
            }
    for (int64_t i = 0; i < xs; i++) check_sum("gradient of x", i, grad_x[i], dx[i], 4, 25);
    free(dx), free(grad_x), free(r.value), free(r.grad_out), free(x);
}

static void test_pool(void **state)
{
    fixture *f = *state;
    uint32_t seed = 31;
    /* windows in steps of 4, and many planes of short rows, which vectors take together */
    static const window apart[] = {
        {1, 2, 3, 77, {2, 4}, {1, 4}, {0, 1}, 2, 19}, {1, 2, 2, 64, {1, 3}, {1, 4}, {0, 0}, 2, 16},
        {4, 16, 5, 16, {1, 4}, {1, 4}, {0, 0}, 5, 4}, {2, 33, 7, 12, {1, 3}, {1, 4}, {0, 0}, 7, 3},
        {8, 8, 3, 2, {1, 2}, {1, 2}, {0, 0}, 3, 1},   {4, 16, 3, 17, {1, 4}, {1, 4}, {0, 0}, 3, 4}};
    for (int i = 0; i < 150 + 3 * COUNT(apart); i++) {
        const window g = i < 150 ? draw_window(&seed) : apart[i / 3 - 50];
        next_model(f);
        check_pool(f, g, i % 3);
    }
}

/* ---- pools of one to three axes, interpolation and padding: along each axis a matrix of what outputs have
 * of inputs -- */
typedef struct axis_map {
    int    in, out;
    double share[64][64];
} axis_map;

typedef enum map_kind {
    AVG_POOL,
    AVG_POOL_EXCLUDE,
    MAX_POOL,
    ADAPTIVE_AVG,
    ADAPTIVE_MAX,
    NEAREST,
    NEAREST_EXACT,
    LINEAR,
    LINEAR_ALIGNED,
    REFLECT,
    REPLICATE,
    CIRCULAR,
    MAP_KINDS
} map_kind;
static const char *const map_names[] = {"avg_pool",          "avg_pool, padding excluded",
                                        "max_pool",          "adaptive_avg_pool",
                                        "adaptive_max_pool", "nearest",
                                        "nearest-exact",     "linear",
                                        "linear, aligned",   "reflect",
                                        "replicate",         "circular"};

/* What the axis is asked for, and its matrix by torch's rules. */
typedef struct axis_setting {
    int    kernel, stride, padding, before, after;
    double scale; /* 0: by the size of the result */
} axis_setting;

static axis_setting draw_axis(uint32_t *seed, map_kind kind, int most, axis_map *m)
{
    axis_setting s = {0, 0, 0, 0, 0, 0};
    memset(m, 0, sizeof *m);
    m->in = between(seed, 1, most);
    if (kind <= MAX_POOL) {
        s.kernel = between(seed, 1, m->in < 7 ? m->in : 7);
        s.stride = between(seed, 1, 4);
        s.padding = between(seed, 0, s.kernel / 2);
        m->out = (m->in + 2 * s.padding - s.kernel) / s.stride + 1;
        for (int o = 0; o < m->out; o++) {
            int first = o * s.stride - s.padding, cells = 0;
            for (int i = first; i < first + s.kernel; i++) cells += i >= 0 && i < m->in;
            for (int i = first; i < first + s.kernel; i++)
                if (i >= 0 && i < m->in) m->share[o][i] = 1.0 / (kind == AVG_POOL_EXCLUDE ? cells : s.kernel);
        }
    } else if (kind <= ADAPTIVE_MAX) {
        m->out = between(seed, 0, 2) ? between(seed, 1, most) : 1;
        for (int o = 0; o < m->out; o++) {
            int begin = o * m->in / m->out, end = ((o + 1) * m->in + m->out - 1) / m->out;
            for (int i = begin; i < end; i++) m->share[o][i] = 1.0 / (end - begin);
        }
    } else if (kind <= LINEAR_ALIGNED) {
        s.scale = between(seed, 0, 1) ? 0.3 + 2.7 * (test_random(seed) * 0.5 + 0.5) : 0;
        m->out = s.scale > 0 ? (int)floor(m->in * s.scale) : between(seed, 1, most);
        if (m->out < 1 || m->out > 63) m->out = between(seed, 1, most);
        bool  linear = kind >= LINEAR;
        float ratio = s.scale > 0 ? (float)(1 / s.scale) : (float)m->in / (float)m->out;
        if (kind == LINEAR_ALIGNED) ratio = m->out > 1 ? (float)(m->in - 1) / (float)(m->out - 1) : 0;
        for (int o = 0; o < m->out; o++) {
            float at = ratio * (kind == NEAREST || kind == LINEAR_ALIGNED ? (float)o : (float)o + 0.5f);
            if (kind == LINEAR) at = at > 0.5f ? at - 0.5f : 0;
            if (linear && m->in == m->out) at = (float)o;
            int    i = at < (float)(m->in - 1) ? (int)at : m->in - 1;
            double rest = !linear ? 0 : at - (float)i < 1 ? (double)at - i : 1;
            m->share[o][i] += 1 - rest;
            m->share[o][i + 1 < m->in ? i + 1 : i] += rest;
        }
    } else {
        int limit = kind == REFLECT ? m->in - 1 : kind == CIRCULAR ? m->in : 9;
        s.before = between(seed, 0, limit < 9 ? limit : 9);
        s.after = between(seed, 0, limit < 9 ? limit : 9);
        m->out = s.before + m->in + s.after;
        for (int o = 0; o < m->out; o++) {
            int i = o - s.before;
            if (kind == REFLECT) i = i < 0 ? -i : i >= m->in ? 2 * (m->in - 1) - i : i;
            if (kind == REPLICATE) i = i < 0 ? 0 : i >= m->in ? m->in - 1 : i;
            if (kind == CIRCULAR) i = (i + m->in) % m->in;
            m->share[o][i] = 1;
        }
    }
    return s;
}

static gpunn_tensor *build_map(gpunn_tensor *x, map_kind kind, int axes, const axis_setting *s,
                               const axis_map *m)
{
    gpunn_pool_args        pool = {.count_exclude_pad = kind == AVG_POOL_EXCLUDE};
    gpunn_interpolate_args resize = {.align_corners = kind == LINEAR_ALIGNED};
    gpunn_pad_args         pad = {.mode = (gpunn_pad_mode)(GPUNN_PAD_REFLECT + kind - REFLECT)};
    int                    out[3] = {1, 1, 1};
    resize.mode = kind == NEAREST         ? GPUNN_INTERPOLATE_NEAREST
                  : kind == NEAREST_EXACT ? GPUNN_INTERPOLATE_NEAREST_EXACT
                                          : GPUNN_INTERPOLATE_LINEAR;
    for (int i = 0; i < axes; i++) {
        pool.kernel_shape[i] = s[i].kernel, pool.strides[i] = s[i].stride, pool.paddings[i] = s[i].padding;
        resize.size[i] = m[i].out, resize.scale_factors[i] = s[i].scale;
        pad.before[2 + i] = s[i].before, pad.after[2 + i] = s[i].after;
        out[i] = m[i].out;
    }
    if (kind >= REFLECT) return gpunn_pad_(x, pad);
    if (kind >= NEAREST) return gpunn_interpolate_(x, resize);
    if (kind == MAX_POOL)
        return axes == 1   ? gpunn_max_pool1d_(x, pool)
               : axes == 2 ? gpunn_max_pool2d_(x, pool)
                           : gpunn_max_pool3d_(x, pool);
    if (kind < MAX_POOL)
        return axes == 1   ? gpunn_avg_pool1d_(x, pool)
               : axes == 2 ? gpunn_avg_pool2d_(x, pool)
                           : gpunn_avg_pool3d_(x, pool);
    if (kind == ADAPTIVE_AVG)
        return axes == 1   ? gpunn_adaptive_avg_pool1d(x, out[0])
               : axes == 2 ? gpunn_adaptive_avg_pool2d(x, out[0], out[1])
                           : gpunn_adaptive_avg_pool3d(x, out[0], out[1], out[2]);
    return axes == 1   ? gpunn_adaptive_max_pool1d(x, out[0])
           : axes == 2 ? gpunn_adaptive_max_pool2d(x, out[0], out[1])
                       : gpunn_adaptive_max_pool3d(x, out[0], out[1], out[2]);
}

static void check_map(fixture *f, uint32_t *seed, map_kind kind, int axes)
{
    static axis_map map[3];
    axis_setting    s[3];
    gpunn_shape     shape = GPUNN_SHAPE(between(seed, 1, 2), between(seed, 1, 3));
    run             r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    const int       most[3] = {33, 19, 9};
    for (int i = 0; i < 3; i++) {
        map[i].in = map[i].out = 1;
        map[i].share[0][0] = 1;
    }
    axis_map *m = map + 3 - axes; /* the first ones are planes and rows that are not there */
    for (int i = 0; i < axes; i++) {
        s[i] = draw_axis(seed, kind, most[axes - 1], &m[i]);
        shape.dim[2 + i] = m[i].in;
    }
    (void)snprintf(geometry, sizeof geometry, "%s of %d axes, %d x %d x %d to %d x %d x %d", map_names[kind],
                   axes, map[0].in, map[1].in, map[2].in, map[0].out, map[1].out, map[2].out);
    const int64_t planes = shape.dim[0] * shape.dim[1], cells = (int64_t)map[0].in * map[1].in * map[2].in;
    float        *x = test_randoms(planes * cells, 5, 1);
    double       *dx = calloc((size_t)(planes * cells), sizeof *dx);
    r.x = add_input(f, "x", shape, x, planes * cells);
    r.out = MADE(f->dev, build_map(r.x, kind, axes, s, m));
    run_backward(&r);
    float  *grad_x = read_gradient(f->dev, r.x);
    int64_t at = 0;
    for (int64_t plane = 0; plane < planes; plane++)
        for (int oz = 0; oz < map[0].out; oz++)
            for (int oy = 0; oy < map[1].out; oy++)
                for (int ox = 0; ox < map[2].out; ox++, at++) {
                    double  sum = 0, size = 0;
                    int64_t best = -1;
                    for (int64_t cell = 0; cell < cells; cell++) {
                        int64_t i = plane * cells + cell;
                        double  share = map[0].share[oz][cell / map[2].in / map[1].in] *
                                       map[1].share[oy][cell / map[2].in % map[1].in] *
                                       map[2].share[ox][cell % map[2].in];
                        if (share == 0) continue;
                        if (best < 0 || x[i] > x[best]) best = i;
                        sum += share * x[i];
                        size += fabs(share * x[i]);
                        if (kind != MAX_POOL && kind != ADAPTIVE_MAX) dx[i] += share * r.grad_out[at];
                    }
                    if (kind == MAX_POOL || kind == ADAPTIVE_MAX) {
                        sum = x[best];
                        dx[best] += r.grad_out[at];
                    }
                    check_sum("out", at, r.value[at], sum, 40 * size + 1, 9);
                }
    assert_int_equal(at, r.count);
    for (int64_t i = 0; i < planes * cells; i++) check_sum("gradient of x", i, grad_x[i], dx[i], 40, 25);
    free(dx), free(grad_x), free(r.value), free(r.grad_out), free(x);
}

static void test_maps(void **state)
{
    fixture *f = *state;
    uint32_t seed = 77;
    for (int i = 0; i < (is_emulated(f->backend) ? 6 : 24) * MAP_KINDS; i++) {
        next_model(f);
        check_map(f, &seed, (map_kind)(i % MAP_KINDS), 1 + i / MAP_KINDS % 3);
    }
}

/* ---- layer_norm and rms_norm ---- */
typedef struct rows {
    int64_t rows, n;
    bool    centered, no_affine;
} rows;

static void check_rows(fixture *f, rows c)
{
    const char *const op = c.centered ? "layer_norm" : "rms_norm";
    (void)snprintf(geometry, sizeof geometry, "%s rows %d n %d%s", op, (int)c.rows, (int)c.n,
                   c.no_affine ? " no_affine" : "");
    allowance = 1;
    const int64_t               count = c.rows * c.n;
    const gpunn_layer_norm_args args = {.no_affine = c.no_affine};
    float *x = test_randoms(count, 1, 1), *w = test_randoms(c.n, 2, 1), *bias = test_randoms(c.n, 3, 1);
    for (int64_t i = 0; i < count; i++) x[i] += 0.25f;
    run r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    r.x = add_input(f, "x", GPUNN_SHAPE(c.rows, c.n), x, count);
    r.out = MADE(f->dev, c.centered ? gpunn_layer_norm_(r.x, "l", args) : gpunn_rms_norm_(r.x, "l", args));
    gpunn_tensor *weight = gpunn_find(f->model, "l.weight"), *bias_tensor = gpunn_find(f->model, "l.bias");
    if (weight) OK(f->dev, write_floats(weight, w, c.n));
    if (bias_tensor) OK(f->dev, write_floats(bias_tensor, bias, c.n));
    run_backward(&r);
    float *grad_x = read_gradient(f->dev, r.x);
    /* of each column: dweight, its magnitude, dbias, its magnitude */
    double *sums = calloc((size_t)(4 * c.n), sizeof *sums);
    for (int64_t i = 0; i < c.rows; i++) {
        const float *const xi = x + i * c.n, *const g = r.grad_out + i * c.n;
        double mean = 0, variance = c.centered ? (double)1e-5f : 0x1p-23, k_sum = 0, kh_sum = 0, k_size = 0,
               kh_size = 0;
        for (int64_t j = 0; j < c.n && c.centered; j++) mean += (double)xi[j] / (double)c.n;
        for (int64_t j = 0; j < c.n; j++) variance += (xi[j] - mean) * (xi[j] - mean) / (double)c.n;
        const double rstd = 1 / sqrt(variance);
        for (int64_t j = 0; j < c.n; j++) {
            const double h = (xi[j] - mean) * rstd, size = (fabs((double)xi[j]) + fabs(mean)) * rstd,
                         k = weight ? g[j] * (double)w[j] : g[j];
            check_sum("out", i * c.n + j, r.value[i * c.n + j],
                      (weight ? h * w[j] : h) + (bias_tensor ? bias[j] : 0),
                      (weight ? size * fabs((double)w[j]) : size) + fabs((double)bias[j]), c.n);
            k_sum += k / (double)c.n, k_size += fabs(k) / (double)c.n;
            kh_sum += k * h / (double)c.n, kh_size += fabs(k) * size / (double)c.n;
            sums[4 * j] += g[j] * h, sums[4 * j + 1] += fabs((double)g[j]) * size;
            sums[4 * j + 2] += g[j], sums[4 * j + 3] += fabs((double)g[j]);
        }
        for (int64_t j = 0; j < c.n; j++) {
            const double h = (xi[j] - mean) * rstd, size = (fabs((double)xi[j]) + fabs(mean)) * rstd,
                         k = weight ? g[j] * (double)w[j] : g[j];
            check_sum("gradient of x", i * c.n + j, grad_x[i * c.n + j],
                      (k - (c.centered ? k_sum : 0) - h * kh_sum) * rstd,
                      (fabs(k) + k_size + size * kh_size) * rstd, c.n);
        }
    }
    for (int times = 1; times <= 2; times++) /* the second gradient is added to the first */
        for (int part = 0; part < 2; part++) {
            gpunn_tensor *const t = part ? bias_tensor : weight;
            if (t == NULL) continue;
            float *gradient = read_gradient(f->dev, t);
            for (int64_t j = 0; j < c.n; j++)
                check_sum(part ? "gradient of bias" : "gradient of weight", j, gradient[j],
                          times * sums[4 * j + 2 * part], times * sums[4 * j + 2 * part + 1], c.rows);
            free(gradient);
            if (part == 1 || bias_tensor == NULL) OK(f->dev, gpunn_backward(r.loss));
        }
    free(sums), free(grad_x), free(r.value), free(r.grad_out), free(x), free(w), free(bias);
}

static void test_rows(void **state)
{
    fixture          *f = *state;
    static const int  sizes[] = {1,  2,  3,  5,   7,   8,   9,   16,  17,  31,  32,  33,
                                 63, 64, 65, 127, 128, 129, 255, 256, 257, 264, 511, 513};
    static const rows large[] = {{9001, 5, true, false}, {5003, 8, true, false},  {641, 264, true, false},
                                 {2, 8200, true, false}, {3, 8201, false, false}, {5003, 8, false, false},
                                 {2100, 1, true, true},  {1, 2048, true, false},  {70, 2051, false, false},
                                 {1, 40003, true, false}};
    uint32_t          seed = 41;
    for (int i = 0; i < 100; i++) {
        const rows c = {sizes[between(&seed, 0, COUNT(sizes) - 1)],
                        sizes[between(&seed, 0, COUNT(sizes) - 1)], i % 2 == 0, i % 5 == 0};
        if (c.rows * c.n > 40000) continue;
        next_model(f);
        check_rows(f, c);
    }
    for (int i = 0; i < COUNT(large); i++) {
        next_model(f);
        check_rows(f, large[i]);
    }
}

/* One value is its own mean: the result is the bias, and neither x nor weight has a gradient. */
static void test_norms_of_one(void **state)
{
    fixture *f = *state;
    enum { N = 37, CHANNELS = 19 };
    float *x = test_randoms(N * CHANNELS, 1, 3), *w = test_randoms(CHANNELS, 2, 1),
          *bias = test_randoms(CHANNELS, 3, 1);
    for (int kind = 0; kind < 2; kind++) { /* layer_norm, group_norm */
        next_model(f);
        const int     channels = kind ? CHANNELS : 1;
        run           r = {f, NULL, NULL, NULL, NULL, NULL, 0};
        gpunn_tensor *gradient_of[2];
        r.x = add_input(f, "x", GPUNN_SHAPE(N, channels), x, N * channels);
        r.out = kind ? gpunn_group_norm(r.x, "l", .num_groups = channels) : gpunn_layer_norm(r.x, "l");
        MADE(f->dev, r.out);
        gradient_of[0] = r.x, gradient_of[1] = gpunn_find(f->model, "l.weight");
        OK(f->dev, write_floats(gradient_of[1], w, channels));
        OK(f->dev, write_floats(gpunn_find(f->model, "l.bias"), bias, channels));
        run_backward(&r);
        for (int i = 0; i < N * channels; i++) assert_true(r.value[i] == bias[i % channels]);
        for (int k = 0; k < 2; k++) {
            float *gradient = read_gradient(f->dev, gradient_of[k]);
            for (int i = 0; i < (k ? 1 : N) * channels; i++)
                if (gradient[i] != 0)
                    fail_msg("%s: the gradient of %s is %g", kind ? "group_norm" : "layer_norm",
                             k ? "weight" : "x", gradient[i]);
            free(gradient);
        }
        free(r.value), free(r.grad_out);
    }
    free(x), free(w), free(bias);
}

/* ---- attention ---- */
typedef struct heads {
    int64_t n, heads, kv_heads, l, s, e, ev;
    bool    last, causal, choice, added;
} heads;

/* Where element i of a row of a head lies, of a value with so many heads and rows of such a size. */
static int64_t place(heads c, int64_t heads, int64_t rows, int64_t size, int64_t sample, int64_t head,
                     int64_t row, int64_t i)
{
    return ((c.last ? (sample * rows + row) * heads + head : (sample * heads + head) * rows + row)) * size +
           i;
}

static gpunn_shape heads_shape(heads c, int64_t heads, int64_t rows, int64_t size)
{
    return c.last ? GPUNN_SHAPE(c.n, rows, heads, size) : GPUNN_SHAPE(c.n, heads, rows, size);
}

static void check_all(const char *what, const float *actual, const double *expected, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(expected[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(actual[i] - expected[i]) <= 4e-6 * (largest + 0.5)))
            fail_msg("%s: %s[%lld] is %.9g, should be %.9g", geometry, what, (long long)i, actual[i],
                     expected[i]);
}

static void check_attention(fixture *f, heads c)
{
    (void)snprintf(geometry, sizeof geometry, "attention n %d heads %d/%d l %d s %d e %d ev %d%s%s%s%s",
                   (int)c.n, (int)c.heads, (int)c.kv_heads, (int)c.l, (int)c.s, (int)c.e, (int)c.ev,
                   c.last ? ", heads last" : "", c.causal ? ", causal" : "", c.choice ? ", choice" : "",
                   c.added ? ", added" : "");
    const int64_t nq = c.n * c.heads * c.l * c.e, nk = c.n * c.kv_heads * c.s * c.e,
                  nv = c.n * c.kv_heads * c.s * c.ev, ny = c.n * c.heads * c.l * c.ev,
                  group = c.heads / c.kv_heads;
    float   *q = test_randoms(nq, 1, 2), *k = test_randoms(nk, 2, 2), *v = test_randoms(nv, 3, 1);
    float   *added = test_randoms(c.n * c.l * c.s, 4, 1);
    uint8_t *choice = malloc((size_t)(c.n * c.s));
    for (int64_t i = 0; i < c.n * c.s; i++) choice[i] = added[i % (c.l * c.s)] > -0.3f;
    gpunn_attention_args args = {.is_causal = c.causal, .enable_gqa = group > 1, .heads_last = c.last};
    if (c.choice) {
        args.mask = MADE(f->dev, gpunn_input(f->model, "mask", GPUNN_BOOL, GPUNN_SHAPE(c.n, 1, 1, c.s)));
        OK(f->dev, gpunn_write(args.mask, choice, (size_t)(c.n * c.s)));
    } else if (c.added) {
        args.mask = MADE(f->dev, gpunn_input(f->model, "mask", GPUNN_F32, GPUNN_SHAPE(c.n, 1, c.l, c.s)));
        OK(f->dev, write_floats(args.mask, added, c.n * c.l * c.s));
    }
    run r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    r.x = add_input(f, "q", heads_shape(c, c.heads, c.l, c.e), q, nq);
    gpunn_tensor *tk = add_input(f, "k", heads_shape(c, c.kv_heads, c.s, c.e), k, nk);
    gpunn_tensor *tv = add_input(f, "v", heads_shape(c, c.kv_heads, c.s, c.ev), v, nv);
    r.out = gpunn_scaled_dot_product_attention_(r.x, tk, tv, args);
    run_backward(&r);
    double *y = calloc((size_t)(ny + nq + nk + nv), sizeof *y), *dq = y + ny, *dk = dq + nq, *dv = dk + nk;
    double *p = malloc((size_t)c.s * sizeof *p), *dp = malloc((size_t)c.s * sizeof *dp);
    for (int64_t row = 0; row < c.n * c.heads * c.l; row++) {
        const int64_t a = row / c.l / c.heads, h = row / c.l % c.heads, i = row % c.l, kv = h / group;
        double        top = -INFINITY, sum = 0, dot = 0;
        for (int64_t j = 0; j < c.s; j++) {
            p[j] = 0;
            for (int64_t x = 0; x < c.e; x++)
                p[j] += (double)q[place(c, c.heads, c.l, c.e, a, h, i, x)] *
                        k[place(c, c.kv_heads, c.s, c.e, a, kv, j, x)];
            p[j] /= sqrt((double)c.e);
            if (c.added) p[j] += added[(a * c.l + i) * c.s + j];
            if ((c.causal && j > i) || (c.choice && !choice[a * c.s + j])) p[j] = -INFINITY;
            top = fmax(top, p[j]);
        }
        for (int64_t j = 0; j < c.s; j++) sum += p[j] = top > -INFINITY ? exp(p[j] - top) : 0;
        for (int64_t j = 0; j < c.s; j++) {
            p[j] = sum > 0 ? p[j] / sum : 0;
            dp[j] = 0;
            for (int64_t x = 0; x < c.ev; x++) {
                const int64_t at = place(c, c.heads, c.l, c.ev, a, h, i, x),
                              from = place(c, c.kv_heads, c.s, c.ev, a, kv, j, x);
                y[at] += p[j] * v[from];
                dp[j] += (double)r.grad_out[at] * v[from];
                dv[from] += p[j] * r.grad_out[at];
            }
            dot += p[j] * dp[j];
        }
        for (int64_t j = 0; j < c.s; j++)
            for (int64_t x = 0; x < c.e; x++) {
                const int64_t at = place(c, c.heads, c.l, c.e, a, h, i, x),
                              from = place(c, c.kv_heads, c.s, c.e, a, kv, j, x);
                const double slope = p[j] * (dp[j] - dot) / sqrt((double)c.e);
                dq[at] += slope * k[from];
                dk[from] += slope * q[at];
            }
    }
    float *grad_q = read_gradient(f->dev, r.x), *grad_k = read_gradient(f->dev, tk),
          *grad_v = read_gradient(f->dev, tv);
    check_all("out", r.value, y, ny);
    check_all("gradient of q", grad_q, dq, nq);
    check_all("gradient of k", grad_k, dk, nk);
    check_all("gradient of v", grad_v, dv, nv);
    free(grad_q), free(grad_k), free(grad_v), free(y), free(p), free(dp), free(r.value), free(r.grad_out);
    free(q), free(k), free(v), free(added), free(choice);
}

static void test_attention(void **state)
{
    fixture         *f = *state;
    static const int sizes[] = {1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 64, 127, 128, 129},
                     widths[] = {1, 3, 4, 8, 17, 48, 64};
    static const heads large[] = {{1, 1, 1, 257, 513, 5, 3, false, false, false, false},
                                  {2, 2, 1, 300, 300, 8, 8, true, true, false, false},
                                  {1, 1, 1, 130, 700, 3, 2, false, true, true, false},
                                  {1, 3, 3, 5, 256, 130, 70, true, false, false, true},
                                  {1, 2, 1, 555, 430, 9, 27, true, true, false, true},
                                  {1, 1, 1, 41, 200, 300, 260, false, false, true, false}};
    uint32_t           seed = 51;
    for (int i = 0; i < (is_emulated(f->backend) ? 25 : 80); i++) {
        heads c = {between(&seed, 1, 3),
                   0,
                   between(&seed, 1, 3),
                   sizes[between(&seed, 0, COUNT(sizes) - 1)],
                   sizes[between(&seed, 0, COUNT(sizes) - 1)],
                   widths[between(&seed, 0, COUNT(widths) - 1)],
                   widths[between(&seed, 0, COUNT(widths) - 1)],
                   i % 2 == 0,
                   i % 3 == 0,
                   i % 4 == 1,
                   i % 4 == 2};
        c.heads = c.kv_heads * between(&seed, 1, 2);
        next_model(f);
        check_attention(f, c);
    }
    for (int i = 0; i < COUNT(large); i++) {
        next_model(f);
        check_attention(f, large[i]);
    }
}

/* Attention of `rows` queries to s keys, of 8 elements each, q and k `size` large; with a mask that adds so much
 * to every score. */
typedef struct extreme {
    run           r;
    gpunn_tensor *t[3];
    float        *value[3], *gradient[3];
} extreme;

static extreme run_extreme(fixture *f, int rows, int s, float size, float added)
{
    extreme x;
    memset(&x, 0, sizeof x);
    (void)snprintf(geometry, sizeof geometry, "attention, l %d, s %d, values of %g, a mask of %g", rows, s,
                   size, added);
    float *mask = malloc((size_t)s * sizeof *mask);
    for (int i = 0; i < s; i++) mask[i] = added;
    next_model(f);
    for (int i = 0; i < 3; i++) {
        x.value[i] = test_randoms((i ? s : rows) * 8, 60 + (unsigned)i, size);
        x.t[i] = add_input(f,
                           i == 0   ? "q"
                           : i == 1 ? "k"
                                    : "v",
                           GPUNN_SHAPE(1, 1, i ? s : rows, 8), x.value[i], (i ? s : rows) * 8);
    }
    gpunn_attention_args args = {0};
    if (added != 0) {
        args.mask = MADE(f->dev, gpunn_input(f->model, "mask", GPUNN_F32, GPUNN_SHAPE(1, 1, 1, s)));
        OK(f->dev, write_floats(args.mask, mask, s));
    }
    x.r.f = f;
    x.r.out = gpunn_scaled_dot_product_attention_(x.t[0], x.t[1], x.t[2], args);
    run_backward(&x.r);
    for (int i = 0; i < 3; i++) x.gradient[i] = read_gradient(f->dev, x.t[i]);
    free(mask);
    return x;
}

static void free_extreme(extreme *x)
{
    for (int i = 0; i < 3; i++) free(x->value[i]), free(x->gradient[i]);
    free(x->r.value), free(x->r.grad_out);
}

/* One key has all the weight: scores do not matter, and their gradients are 0, however large the values. */
static void test_attention_saturated(void **state)
{
    static const int sizes[] = {1, 5, 64, 256, 257, 700};
    for (int i = 0; i < 2 * COUNT(sizes); i++) {
        const int rows = i % 2 ? 40 : 3, keys = sizes[i / 2];
        extreme   x = run_extreme(*state, rows, keys, 1e8f, 0);
        for (int k = 0; k < rows * 8; k++)
            if (x.gradient[0][k] != 0) fail_msg("%s: the gradient of q is %g", geometry, x.gradient[0][k]);
        for (int k = 0; k < keys * 8; k++)
            if (x.gradient[1][k] != 0) fail_msg("%s: the gradient of k is %g", geometry, x.gradient[1][k]);
        free_extreme(&x);
    }
}

/* Beside a mask of -1e9 scores vanish by rounding: all keys weigh the same, forward and backward. */
static void test_attention_far_mask(void **state)
{
    static const struct {
        int   s;
        float mask;
    } cases[] = {{2, -1e9f}, {5, -1e9f}, {300, -1e9f}, {5, -FLT_MAX}, {300, -FLT_MAX}, {7, 1e9f}};
    for (int i = 0; i < COUNT(cases); i++) {
        const int s = cases[i].s;
        extreme   x = run_extreme(*state, 3, s, 1, cases[i].mask);
        double   *y = calloc((size_t)(6 * 8 + 2 * 8 * s), sizeof *y), *dq = y + 3 * 8, *dk = dq + 3 * 8,
               *dv = dk + 8 * s;
        for (int row = 0; row < 3; row++) {
            const float *g = x.r.grad_out + row * 8, *v = x.value[2];
            double       mean = 0;
            for (int c = 0; c < 8 * s; c++) {
                y[row * 8 + c % 8] += v[c] / (double)s;
                dv[c] += g[c % 8] / (double)s;
                mean += (double)g[c % 8] * v[c] / s;
            }
            for (int j = 0; j < s; j++) {
                double slope = -mean;
                for (int c = 0; c < 8; c++) slope += (double)g[c] * v[j * 8 + c];
                for (int c = 0; c < 8; c++) {
                    dq[row * 8 + c] += slope / s / sqrt(8.0) * x.value[1][j * 8 + c];
                    dk[j * 8 + c] += slope / s / sqrt(8.0) * x.value[0][row * 8 + c];
                }
            }
        }
        check_all("out", x.r.value, y, 3 * 8);
        check_all("gradient of q", x.gradient[0], dq, 3 * 8);
        check_all("gradient of k", x.gradient[1], dk, 8 * s);
        check_all("gradient of v", x.gradient[2], dv, 8 * s);
        free_extreme(&x), free(y);
    }
}

/* Dropout in the op is dropout between its parts: the same weights are dropped, forward and backward. */
static void test_attention_dropout(void **state)
{
    fixture *f = *state;
    for (int s = 5; s <= 160; s += 31) {
        float *value[2], *gradient[2][3];
        for (int way = 0; way < 2; way++) {
            next_model(f);
            run           r = {f, NULL, NULL, NULL, NULL, NULL, 0};
            const int64_t n = 2 * 3 * s * 4;
            float        *q = test_randoms(n, 1, 2), *k = test_randoms(n, 2, 2), *v = test_randoms(n, 3, 1);
            gpunn_tensor *t[3];
            t[0] = r.x = add_input(f, "q", GPUNN_SHAPE(2, 3, s, 4), q, n);
            t[1] = add_input(f, "k", GPUNN_SHAPE(2, 3, s, 4), k, n);
            t[2] = add_input(f, "v", GPUNN_SHAPE(2, 3, s, 4), v, n);
            gpunn_tensor *scores = way ? NULL
                                       : gpunn_mul_scalar(gpunn_matmul(t[0], t[1], .transpose_b = true),
                                                          0.5f);
            r.out = way ? gpunn_scaled_dot_product_attention(t[0], t[1], t[2], .dropout_p = 0.3f)
                        : gpunn_matmul(gpunn_dropout(gpunn_softmax(scores, -1), 0.3f), t[2]);
            run_backward(&r);
            value[way] = r.value;
            for (int i = 0; i < 3; i++) gradient[way][i] = read_gradient(f->dev, t[i]);
            free(r.grad_out), free(q), free(k), free(v);
        }
        (void)snprintf(geometry, sizeof geometry, "attention with dropout, s %d", s);
        for (int part = 0; part < 4; part++) {
            const int64_t n = 2 * 3 * s * 4;
            double       *expected = malloc((size_t)n * sizeof *expected);
            for (int64_t i = 0; i < n; i++) expected[i] = part ? gradient[0][part - 1][i] : value[0][i];
            check_all(part ? "a gradient" : "out", part ? gradient[1][part - 1] : value[1], expected, n);
            free(expected);
        }
        for (int way = 0; way < 2; way++) {
            free(value[way]);
            for (int i = 0; i < 3; i++) free(gradient[way][i]);
        }
    }
}

/* Every number of threads gives the same bits, also where it changes how many rows of a head go together. */
static void test_attention_threads(void **state)
{
    (void)state;
    enum { ROWS = 620, SIZE = 16, COUNT_X = ROWS * 3 * SIZE };
    static const int threads[] = {1, 2, 3, 7};
    float           *x = test_randoms(COUNT_X, 20, 2), *value = NULL, *gradient = NULL;
    for (int i = 0; i < COUNT(threads); i++) {
        fixture f = {.dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = threads[i])};
        f.model = gpunn_model_create(f.dev);
        run r = {&f, NULL, NULL, NULL, NULL, NULL, 0};
        r.x = add_input(&f, "x", GPUNN_SHAPE(1, ROWS, 3, 1, SIZE), x, COUNT_X);
        r.out = gpunn_scaled_dot_product_attention(r.x, NULL, NULL, .is_causal = true);
        run_backward(&r);
        float *again = read_gradient(f.dev, r.x);
        if (i > 0) {
            assert_memory_equal(r.value, value, ROWS * SIZE * sizeof *value);
            assert_memory_equal(again, gradient, COUNT_X * sizeof *again);
        }
        free(value), free(gradient), free(r.grad_out);
        value = r.value, gradient = again;
        gpunn_model_destroy(f.model);
        gpunn_device_close(f.dev);
    }
    free(x), free(value), free(gradient);
}

/* ---- embedding and gather ---- */
typedef struct words {
    int64_t count, n, width;
    int     padding, common; /* of ten tokens so many are row 1 % n */
} words;

static void check_words(fixture *f, words c)
{
    (void)snprintf(geometry, sizeof geometry, "embedding of %d tokens, weight %d x %d, padding %d, common %d",
                   (int)c.count, (int)c.n, (int)c.width, c.padding, c.common);
    allowance = 1;
    uint32_t      seed = 7;
    int64_t      *tokens = malloc((size_t)c.count * sizeof *tokens);
    const int64_t padding = c.padding == 0 ? -1 : c.padding == GPUNN_ZERO ? 0 : c.padding;
    for (int64_t i = 0; i < c.count; i++)
        tokens[i] = between(&seed, 0, 9) < c.common ? 1 % c.n : between(&seed, 0, (int)c.n - 1);
    run r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    r.x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_I64, GPUNN_SHAPE(c.count)));
    OK(f->dev, gpunn_write(r.x, tokens, (size_t)c.count * sizeof *tokens));
    r.out = MADE(f->dev, gpunn_embedding(r.x, "l", .num_embeddings = (int)c.n, .embedding_dim = (int)c.width,
                                         .padding_idx = c.padding));
    gpunn_tensor *weight = gpunn_find(f->model, "l.weight");
    run_backward(&r);
    float  *table = read_floats(f->dev, weight, NULL);
    double *sums = calloc((size_t)(2 * c.n * c.width), sizeof *sums);
    for (int64_t i = 0; i < c.count; i++) {
        if (memcmp(r.value + i * c.width, table + tokens[i] * c.width, (size_t)c.width * sizeof *table) != 0)
            fail_msg("%s: row %lld is not that of token %lld", geometry, (long long)i, (long long)tokens[i]);
        for (int64_t j = 0; j < c.width && tokens[i] != padding; j++) {
            sums[2 * (tokens[i] * c.width + j)] += r.grad_out[i * c.width + j];
            sums[2 * (tokens[i] * c.width + j) + 1] += fabs((double)r.grad_out[i * c.width + j]);
        }
    }
    for (int times = 1; times <= 2; times++) { /* the second gradient is added to the first */
        float *gradient = read_gradient(f->dev, weight);
        for (int64_t k = 0; k < c.n * c.width; k++)
            check_sum("gradient of weight", k, gradient[k], times * sums[2 * k], times * sums[2 * k + 1],
                      c.count);
        free(gradient);
        OK(f->dev, gpunn_backward(r.loss));
    }
    OK(f->dev, gpunn_zero_grad(f->model)); /* rows that were there and no longer are, become 0 */
    for (int64_t i = 0; i < c.count; i++) tokens[i] = c.n / 2;
    OK(f->dev, gpunn_write(r.x, tokens, (size_t)c.count * sizeof *tokens));
    OK(f->dev, gpunn_backward(r.loss));
    float *gradient = read_gradient(f->dev, weight);
    for (int64_t k = 0; k < c.n * c.width; k++)
        if (k / c.width != c.n / 2) assert_float_equal(gradient[k], 0, 0);
    free(gradient);
    for (int64_t j = 0; j < c.width && padding >= 0; j++)
        assert_float_equal(table[padding * c.width + j], 0, 0);
    free(sums), free(table), free(r.value), free(r.grad_out), free(tokens);
}

static void test_words(void **state)
{
    fixture           *f = *state;
    static const words cases[] = {{1, 1, 1, 0, 0},           {1, 300, 7, 0, 0},    {33, 2, 8, GPUNN_ZERO, 0},
                                  {1023, 255, 3, 0, 0},      {1024, 256, 8, 5, 0}, {1025, 257, 16, 0, 5},
                                  {2100, 300, 24, 1, 3},     {3000, 1, 9, 0, 0},   {1100, 5, 40, 0, 9},
                                  {700, 70001, 1, 69999, 2}, {40, 11, 513, 0, 0},  {70, 3, 4104, 0, 5},
                                  {90, 50257, 8, 0, 1},      {5, 7, 1031, 2, 0}};
    for (int i = 0; i < COUNT(cases); i++) {
        next_model(f);
        check_words(f, cases[i]);
    }
}

static void check_gather(fixture *f, int64_t outer, int64_t m, int64_t n, int64_t inner)
{
    (void)snprintf(geometry, sizeof geometry, "gather of [%d, %d, %d] by [%d, %d, %d]", (int)outer, (int)n,
                   (int)inner, (int)outer, (int)m, (int)inner);
    allowance = 1;
    uint32_t seed = 9;
    int64_t  count = outer * m * inner, size = outer * n * inner;
    int32_t *index = malloc((size_t)count * sizeof *index);
    float   *x = test_randoms(size, 1, 1);
    double  *sums = calloc((size_t)(2 * size), sizeof *sums);
    for (int64_t i = 0; i < count; i++) index[i] = between(&seed, 0, (int)n - 1);
    run r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    r.x = add_input(f, "x", GPUNN_SHAPE(outer, n, inner), x, size);
    gpunn_tensor *t = MADE(f->dev, gpunn_input(f->model, "index", GPUNN_I32, GPUNN_SHAPE(outer, m, inner)));
    OK(f->dev, gpunn_write(t, index, (size_t)count * sizeof *index));
    r.out = MADE(f->dev, gpunn_gather(r.x, 1, t));
    run_backward(&r);
    float *gradient = read_gradient(f->dev, r.x);
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = (i / inner / m * n + index[i]) * inner + i % inner;
        if (r.value[i] != x[at])
            fail_msg("%s: element %lld is %g, not %g", geometry, (long long)i, r.value[i], x[at]);
        sums[2 * at] += r.grad_out[i];
        sums[2 * at + 1] += fabs((double)r.grad_out[i]);
    }
    for (int64_t i = 0; i < size; i++)
        check_sum("gradient of x", i, gradient[i], sums[2 * i], sums[2 * i + 1], m);
    free(gradient), free(sums), free(x), free(index), free(r.value), free(r.grad_out);
}

typedef gpunn_tensor *(*binary_fn)(gpunn_tensor *, gpunn_tensor *);

static int64_t floor_quotient(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* What ops of integers make of a and b, by the numbers of the list below. */
static int64_t of_integers(int op, int64_t a, int64_t b)
{
    const bool    less = a < b;
    const int64_t results[] = {a + b,  a - b, a * b,       floor_quotient(a, b), a - floor_quotient(a, b) * b,
                               a == b, less,  less ? b : a};
    return results[op];
}

/* Rows longer than the blocks that these ops work in; of the operands either has its elements apart, or one
 * for all. */
static void test_integers(void **state)
{
    static const binary_fn ops[] = {gpunn_add,       gpunn_sub, gpunn_mul, gpunn_floor_divide,
                                    gpunn_remainder, gpunn_eq,  gpunn_lt,  gpunn_maximum};
    enum { SAMPLES = 2, ROWS = 3, LENGTH = 1201, ALL = SAMPLES * ROWS * LENGTH };
    fixture       *f = *state;
    static int64_t wide[SAMPLES * LENGTH], whole[ALL];
    static uint8_t flags[ALL];
    static int32_t narrow[ROWS], row[LENGTH];
    gpunn_tensor  *y[COUNT(ops)], *a = gpunn_input(f->model, "a", GPUNN_I64, GPUNN_SHAPE(SAMPLES, 1, LENGTH));
    gpunn_tensor  *b = gpunn_input(f->model, "b", GPUNN_I32, GPUNN_SHAPE(ROWS, 1));
    for (int i = 0; i < COUNT(wide); i++)
        wide[i] = ((int64_t)i * i * i * 7919 - 1000000007) * (i % 2 ? 1 : -3) / (1 + i % 5);
    for (int i = 0; i < ROWS; i++) wide[i] = narrow[i] = i - 5;
    for (int i = 0; i < LENGTH; i++) row[i] = i % 7 - 9;
    OK(f->dev, gpunn_write(a, wide, sizeof wide));
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < COUNT(ops); i++) y[i] = MADE(f->dev, ops[i](a, b));
        OK(f->dev, turn ? gpunn_write(b, row, sizeof row) : gpunn_write(b, narrow, sizeof narrow));
        OK(f->dev, gpunn_forward(y, COUNT(ops)));
        for (int op = 0; op < COUNT(ops); op++) {
            const bool is_flag = op == 5 || op == 6;
            OK(f->dev,
               is_flag ? gpunn_read(y[op], flags, sizeof flags) : gpunn_read(y[op], whole, sizeof whole));
            for (int i = 0; i < ALL; i++) {
                const int64_t left = wide[i / LENGTH / ROWS * LENGTH + i % LENGTH];
                const int64_t right = turn ? row[i % LENGTH] : narrow[i / LENGTH % ROWS];
                assert_int_equal(is_flag ? flags[i] : whole[i], of_integers(op, left, right));
            }
        }
        a = gpunn_expand(a, GPUNN_SHAPE(SAMPLES, ROWS, LENGTH)); /* and b as a row for all */
        b = gpunn_input(f->model, "row", GPUNN_I32, GPUNN_SHAPE(LENGTH));
    }
}

/* A length outside 1 .. length fails on the CPU; on a GPU that sequence is NaN, and no other. */
static void test_lengths(void **state)
{
    fixture             *f = *state;
    static const int32_t lengths[][3] = {{2, 0, 1}, {2, 4, 1}, {3, -1, 3}};
    gpunn_tensor        *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(3, 3, 2));
    gpunn_tensor        *n = gpunn_input(f->model, "lengths", GPUNN_I32, GPUNN_SHAPE(3)), *h;
    gpunn_tensor        *y = MADE(f->dev, gpunn_gru(x, "gru", .hidden_size = 2, .lengths = n, .h_n = &h));
    gpunn_tensor        *outputs[] = {y, h};
    float                values[18] = {1, 2, 3}, got[18], last[6];
    OK(f->dev, gpunn_write(x, values, sizeof values));
    for (int i = 0; i < COUNT(lengths); i++) {
        OK(f->dev, gpunn_write(n, lengths[i], sizeof lengths[i]));
        const gpunn_status status = gpunn_forward(outputs, 2);
        if (gpunn_device_type(f->dev) == GPUNN_DEVICE_CPU) {
            assert_int_equal(status, GPUNN_ERR_ARGUMENT);
            assert_non_null(
                strstr(gpunn_error(f->dev), "at position 1 is outside 1 .. 3; check the lengths"));
            gpunn_clear_error(f->dev);
            continue;
        }
        OK(f->dev, status);
        OK(f->dev, gpunn_read(y, got, sizeof got));
        OK(f->dev, gpunn_read(h, last, sizeof last));
        for (int k = 0; k < 18; k++) assert_int_equal(got[k] != got[k], k % 6 / 2 == 1);
        for (int k = 0; k < 6; k++) assert_int_equal(last[k] != last[k], k / 2 == 1);
    }
}
static void test_gather(void **state)
{
    fixture         *f = *state;
    static const int cases[][4] = {{1, 1, 1, 1},   {1, 1000, 7, 1}, {3, 64, 1, 65},
                                   {3, 65, 11, 1}, {2, 63, 500, 3}, {1, 3, 4001, 1},
                                   {700, 1, 9, 1}, {5, 129, 3, 67}, {1, 70, 2, 129}};
    for (int i = 0; i < COUNT(cases); i++) {
        next_model(f);
        check_gather(f, cases[i][0], cases[i][1], cases[i][2], cases[i][3]);
    }
}

/* ---- grid_sample by its definition: each axis has two cells, each corner the product of its weights ---- */
typedef struct sampling {
    int                axes, samples, channels, size[3], out[3]; /* size, out: z, y, x; z 1 of images */
    gpunn_grid_mode    mode;
    gpunn_grid_padding padding;
    bool               align_corners;
} sampling;

/* Cells and weights along an axis, and how they change with the coordinate. -1: outside. */
static void cells_of(const sampling *c, double coordinate, int size, int cell[2], double weight[2],
                     double slope[2])
{
    const double span = c->align_corners ? size - 1 : size, shift = c->align_corners ? 0 : 0.5;
    double       at = (coordinate + 1) / 2 * span - shift, turn = span / 2;
    if (c->padding == GPUNN_GRID_REFLECTION) {
        while (span > 0 && (at < -shift || at > span - shift)) {
            at = at < -shift ? -2 * shift - at : 2 * (span - shift) - at;
            turn = -turn;
        }
        if (span == 0) at = 0;
    }
    if (c->padding != GPUNN_GRID_ZEROS) {
        if (at <= 0 || at >= size - 1) turn = 0;
        at = fmin(fmax(at, 0), size - 1);
    }
    const double base = c->mode == GPUNN_GRID_NEAREST ? nearbyint(at) : floor(at);
    for (int i = 0; i < 2; i++) {
        cell[i] = base + i >= 0 && base + i < size ? (int)base + i : -1;
        weight[i] = c->mode == GPUNN_GRID_NEAREST ? 1 - i : i ? at - base : 1 - (at - base);
        slope[i] = c->mode == GPUNN_GRID_NEAREST ? 0 : i ? turn : -turn;
    }
}

/* Random coordinates, which keep away from half and whole cells, where the derivative jumps. */
static float *draw_points(const sampling *c, int64_t points)
{
    float *grid = test_randoms(points * c->axes, 21, 1.4f);
    for (int64_t i = 0; i < points * c->axes; i++) {
        const int    size = c->size[2 - i % c->axes];
        const double half = fmax(c->align_corners ? size - 1 : size, 1) / 2,
                     shift = c->align_corners ? half : half - 0.5;
        const double at = 2 * (grid[i] * half + shift), part = at - floor(at);
        grid[i] = (float)(((floor(at) + 0.1 + 0.8 * part) / 2 - shift) / half);
    }
    return grid;
}

static gpunn_shape sampling_shape(const sampling *c, const int *size, bool grid)
{
    if (c->axes == 2)
        return grid ? GPUNN_SHAPE(c->samples, size[1], size[2], 2)
                    : GPUNN_SHAPE(c->samples, c->channels, size[1], size[2]);
    return grid ? GPUNN_SHAPE(c->samples, size[0], size[1], size[2], 3)
                : GPUNN_SHAPE(c->samples, c->channels, size[0], size[1], size[2]);
}

static void check_within(const char *what, const float *actual, const double *expected, int64_t n,
                         double tolerance)
{
    double largest = 0.5;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(expected[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(actual[i] - expected[i]) <= tolerance * largest))
            fail_msg("%s: %s[%lld] is %.9g, should be %.9g", geometry, what, (long long)i, actual[i],
                     expected[i]);
}

static void check_sampling(fixture *f, sampling c)
{
    const int64_t cells = (int64_t)c.size[0] * c.size[1] * c.size[2],
                  points = (int64_t)c.out[0] * c.out[1] * c.out[2];
    const int64_t nx = cells * c.channels * c.samples, ng = points * c.axes * c.samples,
                  ny = points * c.channels * c.samples;
    (void)snprintf(geometry, sizeof geometry,
                   "grid_sample %d x %d of %d x %d x %d at %d x %d x %d, mode %d, padding %d%s", c.samples,
                   c.channels, c.size[0], c.size[1], c.size[2], c.out[0], c.out[1], c.out[2], c.mode,
                   c.padding, c.align_corners ? ", align_corners" : "");
    float        *x = test_randoms(nx, 20, 1), *grid = draw_points(&c, points * c.samples);
    run           r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    gpunn_tensor *tg = add_input(f, "grid", sampling_shape(&c, c.out, true), grid, ng);
    r.x = add_input(f, "x", sampling_shape(&c, c.size, false), x, nx);
    r.out = gpunn_grid_sample(r.x, tg, .mode = c.mode, .padding_mode = c.padding,
                              .align_corners = c.align_corners);
    run_backward(&r);
    double *y = calloc((size_t)(ny + nx + ng), sizeof *y), *dx = y + ny, *dg = dx + nx;
    for (int64_t point = 0; point < points * c.samples; point++) {
        int    cell[3][2] = {{-1, -1}, {-1, -1}, {0, -1}};
        double weight[3][2] = {{0}, {0}, {1, 0}}, slope[3][2] = {{0}};
        for (int k = 0; k < c.axes; k++)
            cells_of(&c, grid[point * c.axes + k], c.size[2 - k], cell[k], weight[k], slope[k]);
        for (int corner = 0; corner < 8; corner++) {
            const int a = corner & 1, b = corner >> 1 & 1, d = corner >> 2;
            if (cell[0][a] < 0 || cell[1][b] < 0 || cell[2][d] < 0) continue;
            const int64_t at = ((int64_t)cell[2][d] * c.size[1] + cell[1][b]) * c.size[2] + cell[0][a];
            for (int ch = 0; ch < c.channels; ch++) {
                const int64_t channel = point / points * c.channels + ch,
                              to = channel * points + point % points;
                const double v = x[channel * cells + at], g = r.grad_out[to];
                y[to] += v * weight[0][a] * weight[1][b] * weight[2][d];
                dx[channel * cells + at] += g * weight[0][a] * weight[1][b] * weight[2][d];
                dg[point * c.axes] += g * v * slope[0][a] * weight[1][b] * weight[2][d];
                dg[point * c.axes + 1] += g * v * weight[0][a] * slope[1][b] * weight[2][d];
                if (c.axes == 3) dg[point * c.axes + 2] += g * v * weight[0][a] * weight[1][b] * slope[2][d];
            }
        }
    }
    /* A coordinate's rounding moves a point by about 2^-23 of the size, and with it its weights. */
    const double tolerance = 6e-6 + 2.5e-7 * (c.size[0] + c.size[1] + c.size[2]);
    float       *grad_x = read_gradient(f->dev, r.x), *grad_grid = read_gradient(f->dev, tg);
    check_within("out", r.value, y, ny, tolerance);
    check_within("gradient of x", grad_x, dx, nx, tolerance);
    check_within("gradient of the grid", grad_grid, dg, ng, tolerance);
    OK(f->dev, gpunn_zero_grad(f->model)); /* the same bits again */
    OK(f->dev, gpunn_backward(r.loss));
    float *again = read_gradient(f->dev, r.x);
    if (memcmp(again, grad_x, (size_t)nx * sizeof *again) != 0)
        fail_msg("%s: the gradient of x varies", geometry);
    free(x), free(grid), free(y), free(grad_x), free(grad_grid), free(again), free(r.value), free(r.grad_out);
}

static void test_grid_sample(void **state)
{
    fixture              *f = *state;
    const bool            slow = is_emulated(f->backend);
    static const sampling cases[] = {
        {2, 1, 1, {1, 1, 1}, {1, 1, 1}, 0, 0, false},      {2, 2, 3, {1, 1, 5}, {1, 7, 1}, 0, 0, true},
        {2, 1, 2, {1, 9, 1}, {1, 1, 63}, 0, 1, false},     {2, 3, 1, {1, 2, 3}, {1, 5, 13}, 0, 2, true},
        {2, 1, 1, {1, 16, 17}, {1, 8, 8}, 0, 0, false},    {2, 2, 7, {1, 5, 4}, {1, 13, 5}, 1, 0, false},
        {2, 1, 1, {1, 31, 129}, {1, 33, 65}, 0, 2, false}, {2, 5, 2, {1, 3, 3}, {1, 1, 129}, 0, 1, true},
        {3, 1, 1, {1, 1, 1}, {1, 1, 1}, 0, 0, false},      {3, 1, 2, {1, 3, 5}, {3, 1, 21}, 0, 0, true},
        {3, 2, 1, {7, 1, 2}, {1, 64, 1}, 0, 1, false},     {3, 1, 3, {4, 5, 6}, {5, 1, 13}, 0, 2, false},
        {3, 2, 2, {3, 8, 3}, {2, 3, 11}, 1, 2, true},      {3, 1, 1, {17, 13, 19}, {11, 16, 23}, 0, 1, true},
        {3, 1, 1, {2, 2, 2}, {17, 19, 13}, 0, 0, true},    {3, 1, 1, {9, 33, 65}, {31, 29, 37}, 0, 2, false},
    };
    for (int i = 0; i < COUNT(cases) - slow; i++) { /* the emulator leaves out the last, a large one */
        next_model(f);
        check_sampling(f, cases[i]);
    }
}

/* A coordinate that is no number, or infinite, beside others in the middle: outside, or at an end, where its
 * gradient goes. */
static void check_special(fixture *f, int axes, gpunn_grid_mode mode, gpunn_grid_padding padding, bool align)
{
    static const float value[3] = {NAN, INFINITY, -INFINITY};
    /* by padding and value; -1: outside */
    static const int end[3][3] = {{-1, -1, -1}, {0, 2, 0}, {0, 0, 0}};
    const int        cells = axes == 3 ? 27 : 9, points = 3 * axes, step[3] = {1, 3, 9};
    float           *x = test_randoms(cells, 5, 1), grid[9 * 3] = {0}, expected[9], dx[27] = {0};
    for (int i = 0; i < points; i++) grid[i * axes + i / 3] = value[i % 3];
    next_model(f);
    run           r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    gpunn_tensor *tg = add_input(f, "grid",
                                 axes == 3 ? GPUNN_SHAPE(1, 1, 1, points, 3) : GPUNN_SHAPE(1, 1, points, 2),
                                 grid, points * axes);
    r.x = add_input(f, "x", axes == 3 ? GPUNN_SHAPE(1, 1, 3, 3, 3) : GPUNN_SHAPE(1, 1, 3, 3), x, cells);
    r.out = gpunn_grid_sample(r.x, tg, .mode = mode, .padding_mode = padding, .align_corners = align);
    run_backward(&r);
    float *grad_x = read_gradient(f->dev, r.x), *grad_grid = read_gradient(f->dev, tg);
    for (int i = 0; i < points; i++) {
        const int at = cells / 2 + (end[padding][i % 3] - 1) * step[i / 3];
        expected[i] = end[padding][i % 3] < 0 ? 0 : x[at];
        if (end[padding][i % 3] >= 0) dx[at] += r.grad_out[i];
    }
    (void)snprintf(geometry, sizeof geometry, "%d axes, mode %d, padding %d%s", axes, mode, padding,
                   align ? ", align_corners" : "");
    for (int i = 0; i < points; i++)
        if (r.value[i] != expected[i])
            fail_msg("%s: point %d is %g, should be %g", geometry, i, r.value[i], expected[i]);
    for (int i = 0; i < cells; i++)
        if (!(fabsf(grad_x[i] - dx[i]) <= 1e-6f))
            fail_msg("%s: gradient of x[%d] is %g", geometry, i, grad_x[i]);
    for (int i = 0; i < points * axes; i++) {
        const bool none = i % axes == i / axes / 3 || padding == GPUNN_GRID_ZEROS;
        if (none ? grad_grid[i] != 0 : !isfinite(grad_grid[i]))
            fail_msg("%s: gradient of coordinate %d is %g", geometry, i, grad_grid[i]);
    }
    free(x), free(grad_x), free(grad_grid), free(r.value), free(r.grad_out);
}

static void test_grid_sample_special(void **state)
{
    fixture           *f = *state;
    static const float x[3] = {5, 6, 7}, grid[4] = {3e38f, 0, -3e38f, 0};
    for (int i = 0; i < 24; i++)
        check_special(f, 2 + i % 2, (gpunn_grid_mode)(i / 2 % 2), (gpunn_grid_padding)(i / 4 % 3),
                      i / 12 != 0);
    for (int padding = 0; padding < 3; padding++) {
        next_model(f);
        gpunn_tensor *tx = add_input(f, "x", GPUNN_SHAPE(1, 1, 1, 3), x, 3);
        gpunn_tensor *tg = add_input(f, "grid", GPUNN_SHAPE(1, 1, 2, 2), grid, 4);
        gpunn_tensor *y = MADE(f->dev,
                               gpunn_grid_sample(tx, tg, .padding_mode = (gpunn_grid_padding)padding));
        OK(f->dev, gpunn_forward(&y, 1));
        float *value = read_floats(f->dev, y, NULL);
        if (padding == GPUNN_GRID_REFLECTION) /* wherever rounding put them */
            assert_true(value[0] >= 5 && value[0] <= 7 && value[1] >= 5 && value[1] <= 7);
        else
            assert_true(value[0] == (padding ? 7 : 0) && value[1] == (padding ? 5 : 0));
        free(value);
    }
}

/* Half way between two cells the even one is the nearest. */
static void test_grid_sample_ties(void **state)
{
    fixture           *f = *state;
    static const float x[4] = {5, 6, 7, 8}, grid[10] = {-1, 0, -0.5f, 0, 0, 0, 0.5f, 0, 1, 0},
                       expected[5] = {5, 5, 7, 7, 0};
    gpunn_tensor *tx = add_input(f, "x", GPUNN_SHAPE(1, 1, 1, 4), x, 4);
    gpunn_tensor *tg = add_input(f, "grid", GPUNN_SHAPE(1, 1, 5, 2), grid, 10);
    gpunn_tensor *y = MADE(f->dev, gpunn_grid_sample(tx, tg, .mode = GPUNN_GRID_NEAREST));
    OK(f->dev, gpunn_forward(&y, 1));
    float *value = read_floats(f->dev, y, NULL);
    assert_memory_equal(value, expected, sizeof expected);
    free(value);
}

/* Every number of threads gives the same bits. smooth: points of a chunk stay together, in few rows. */
static void check_threads(bool smooth)
{
    const sampling c = {3, 1, 2, {23, 29, 31}, {37, 25, 33}, GPUNN_GRID_BILINEAR, GPUNN_GRID_BORDER, false};
    const int64_t  nx = 23 * 29 * 31 * 2, ng = 37 * 25 * 33 * 3;
    float         *x = test_randoms(nx, 20, 1), *grid = draw_points(&c, ng / 3), *first[2] = {NULL, NULL};
    for (int64_t i = 0; smooth && i < ng; i++) {
        const int64_t at[3] = {i / 3 % 33, i / 3 / 33 % 25, i / 3 / 33 / 25};
        grid[i] = grid[i] * 0.02f + 2 * ((float)at[i % 3] + 0.5f) / (float)c.out[2 - i % 3] - 1;
    }
    static const int threads[] = {1, 2, 3, 7};
    for (int i = 0; i < COUNT(threads); i++) {
        fixture f = {.dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = threads[i])};
        f.model = gpunn_model_create(f.dev);
        run           r = {&f, NULL, NULL, NULL, NULL, NULL, 0};
        gpunn_tensor *tg = add_input(&f, "grid", sampling_shape(&c, c.out, true), grid, ng);
        r.x = add_input(&f, "x", sampling_shape(&c, c.size, false), x, nx);
        r.out = gpunn_grid_sample(r.x, tg, .padding_mode = GPUNN_GRID_BORDER);
        run_backward(&r);
        float *gradient[2] = {read_gradient(f.dev, r.x), read_gradient(f.dev, tg)};
        for (int k = 0; k < 2; k++) {
            if (i > 0) assert_memory_equal(gradient[k], first[k], (size_t)(k ? ng : nx) * sizeof(float));
            if (i > 0)
                free(gradient[k]);
            else
                first[k] = gradient[k];
        }
        free(r.value), free(r.grad_out);
        gpunn_model_destroy(f.model);
        gpunn_device_close(f.dev);
    }
    free(x), free(grid), free(first[0]), free(first[1]);
}

/* A mask has no gradient: one that is learned is refused when gradients are asked for. */
static void test_learned_mask(void **state)
{
    fixture      *f = *state;
    float        *values = test_randoms(2 * 3 * 5 * 4, 1, 1);
    gpunn_tensor *x = add_input(f, "x", GPUNN_SHAPE(2, 3, 5, 4), values, 2 * 3 * 5 * 4);
    gpunn_tensor *slopes = MADE(f->dev,
                                gpunn_parameter(f->model, "slopes", GPUNN_SHAPE(5, 5), (gpunn_init){0}));
    gpunn_tensor *y = MADE(f->dev, gpunn_scaled_dot_product_attention(x, x, x, .mask = gpunn_tanh(slopes)));
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(y, GPUNN_ALL, false));
    OK(f->dev, gpunn_forward(&y, 1));
    assert_int_equal(gpunn_backward(loss), GPUNN_ERR_UNSUPPORTED);
    assert_non_null(strstr(gpunn_error(f->dev), "its mask needs a gradient"));
    gpunn_clear_error(f->dev);
    OK(f->dev, gpunn_set_trainable(slopes, false));
    OK(f->dev, gpunn_backward(loss));
    free(values);
}

/* The gradient of a grid is the same where x needs none. */
static void test_grid_alone(void **state)
{
    enum { N = 2 * 3 * 7 * 9, POINTS = 2 * 5 * 4 };
    fixture *f = *state;
    float   *x = test_randoms(N, 31, 1), *grid = test_randoms(2 * POINTS, 32, 1.2f), *gradient[2];
    for (int padding = GPUNN_GRID_ZEROS; padding <= GPUNN_GRID_REFLECTION; padding++) {
        for (int alone = 0; alone < 2; alone++) {
            next_model(f);
            run r = {f, NULL, NULL, NULL, NULL, NULL, 0};
            r.x = add_input(f, "grid", GPUNN_SHAPE(2, 5, 4, 2), grid, 2 * POINTS);
            gpunn_tensor *image = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(2, 3, 7, 9));
            OK(f->dev, write_floats(image, x, N));
            if (!alone) MADE(f->dev, gpunn_retain_grad(image));
            r.out = gpunn_grid_sample(image, r.x, .padding_mode = (gpunn_grid_padding)padding);
            run_backward(&r);
            gradient[alone] = read_gradient(f->dev, r.x);
            free(r.value), free(r.grad_out);
        }
        assert_memory_equal(gradient[0], gradient[1], 2 * POINTS * sizeof *grid);
        free(gradient[0]), free(gradient[1]);
    }
    free(x), free(grid);
}

static void test_grid_sample_threads(void **state)
{
    (void)state;
    check_threads(false);
    check_threads(true);
}

/* Boxes, many of which are in the same places: every number of threads gives the same bits. */
static void test_roi_align_threads(void **state)
{
    enum { BOXES = 67, N = 3 * 5 * 37 * 41 };
    static const int threads[] = {1, 2, 3, 7};
    float boxes[BOXES * 5], *x = test_randoms(N, 20, 1), *corners = test_randoms(BOXES * 4, 22, 20),
                            *first[2] = {0};
    (void)state;
    for (int i = 0; i < BOXES; i++) {
        boxes[5 * i] = (float)(i % 3);
        for (int k = 0; k < 4; k++) boxes[5 * i + 1 + k] = corners[4 * i + k] + (k < 2 ? 15 : 25);
    }
    for (int i = 0; i < COUNT(threads); i++) {
        fixture f = {.dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = threads[i])};
        f.model = gpunn_model_create(f.dev);
        run           r = {&f, NULL, NULL, NULL, NULL, NULL, 0};
        gpunn_tensor *tb = add_input(&f, "boxes", GPUNN_SHAPE(BOXES, 5), boxes, BOXES * 5);
        r.x = add_input(&f, "x", GPUNN_SHAPE(3, 5, 37, 41), x, N);
        r.out = gpunn_roi_align(r.x, tb, .output_shape = {3, 2});
        run_backward(&r);
        float *result[2] = {read_gradient(f.dev, r.x), r.value};
        for (int k = 0; k < 2; k++) {
            if (i > 0)
                assert_memory_equal(result[k], first[k], (size_t)(k ? BOXES * 5 * 6 : N) * sizeof(float));
            if (i > 0)
                free(result[k]);
            else
                first[k] = result[k];
        }
        free(r.grad_out);
        gpunn_model_destroy(f.model);
        gpunn_device_close(f.dev);
    }
    free(x), free(corners), free(first[0]), free(first[1]);
}

/* ---- rnn, lstm, gru: time runs through plain loops, and back ---- */
typedef struct recurrence {
    int64_t gates, length, batch, in, hidden, directions; /* gates: 1 rnn, 4 lstm, 3 gru */
    bool    relu, given;                                  /* given: h_0 and c_0 */
    int64_t frozen;                                       /* bit i: parts[i] of check_recurrent */
} recurrence;
enum { RECURRENT_PARTS = 4, RECURRENT_LONGEST = 20, RECURRENT_WIDEST = 193 };

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* One direction of one sequence: y, and what dy adds to dx, the weights dw, dh and dc. x and dx step by the
 * batch's rows of c.in, y and dy by those of the hidden of all directions. */
static void recur(recurrence c, bool back, const float *x, float *const *w, const float *h_0,
                  const float *c_0, const float *dy, double *y, double *dx, double **dw, double *dh,
                  double *dc)
{
    static double h[RECURRENT_LONGEST + 1][RECURRENT_WIDEST], cell[RECURRENT_LONGEST + 1][RECURRENT_WIDEST];
    static double gate[RECURRENT_LONGEST][4][RECURRENT_WIDEST], product[RECURRENT_LONGEST][RECURRENT_WIDEST];
    const int64_t H = c.hidden, x_step = c.batch * c.in, y_step = c.batch * c.directions * H;
    for (int64_t k = 0; k < H; k++) h[0][k] = h_0 ? h_0[k] : 0, cell[0][k] = c_0 ? c_0[k] : 0;
    for (int64_t s = 0; s < c.length; s++) {
        const int64_t t = back ? c.length - 1 - s : s;
        for (int64_t k = 0; k < H; k++) {
            double v[4] = {0, 0, 0, 0}, q[4] = {0, 0, 0, 0};
            for (int64_t g = 0; g < c.gates; g++) {
                const int64_t row = g * H + k;
                v[g] = w[2][row], q[g] = w[3][row];
                for (int64_t i = 0; i < c.in; i++) v[g] += (double)w[0][row * c.in + i] * x[t * x_step + i];
                for (int64_t i = 0; i < H; i++) q[g] += (double)w[1][row * H + i] * h[s][i];
            }
            product[s][k] = q[2];
            if (c.gates == 1) {
                v[0] = c.relu ? fmax(v[0] + q[0], 0) : tanh(v[0] + q[0]);
                h[s + 1][k] = v[0];
            } else if (c.gates == 4) {
                for (int g = 0; g < 4; g++) v[g] = g == 2 ? tanh(v[g] + q[g]) : sigmoid(v[g] + q[g]);
                cell[s + 1][k] = v[1] * cell[s][k] + v[0] * v[2];
                h[s + 1][k] = v[3] * tanh(cell[s + 1][k]);
            } else {
                v[0] = sigmoid(v[0] + q[0]), v[1] = sigmoid(v[1] + q[1]), v[2] = tanh(v[2] + v[0] * q[2]);
                h[s + 1][k] = (1 - v[1]) * v[2] + v[1] * h[s][k];
            }
            for (int g = 0; g < 4; g++) gate[s][g][k] = v[g];
            y[t * y_step + k] = h[s + 1][k];
        }
    }
    for (int64_t s = c.length; s-- > 0;) {
        const int64_t t = back ? c.length - 1 - s : s;
        double        before[RECURRENT_WIDEST];
        memset(before, 0, sizeof before);
        for (int64_t k = 0; k < H; k++) {
            const double in = gate[s][0][k], z = gate[s][1][k], g = gate[s][2][k], out = gate[s][3][k],
                         q = product[s][k];
            const double d = dh[k] + dy[t * y_step + k], tanh_c = tanh(cell[s + 1][k]);
            const double d_cell = dc[k] + d * out * (1 - tanh_c * tanh_c), d_new = d * (1 - z) * (1 - g * g);
            const double lstm[4] = {d_cell * g * in * (1 - in), d_cell * cell[s][k] * z * (1 - z),
                                    d_cell * in * (1 - g * g), d * tanh_c * out * (1 - out)};
            const double gru[3] = {d_new * q * in * (1 - in), d * (h[s][k] - g) * z * (1 - z), d_new};
            const double rnn = c.relu ? (in > 0 ? d : 0) : d * (1 - in * in);
            if (c.gates == 4) dc[k] = d_cell * z;
            if (c.gates == 3) before[k] += d * z;
            for (int64_t a = 0; a < c.gates; a++) {
                const int64_t row = a * H + k;
                const double  slope = c.gates == 4 ? lstm[a] : c.gates == 3 ? gru[a] : rnn;
                const double  inner = c.gates == 3 && a == 2 ? slope * in : slope; /* of the product with h */
                dw[2][row] += slope, dw[3][row] += inner;
                for (int64_t i = 0; i < c.in; i++) {
                    dw[0][row * c.in + i] += slope * x[t * x_step + i];
                    dx[t * x_step + i] += slope * w[0][row * c.in + i];
                }
                for (int64_t i = 0; i < H; i++) {
                    dw[1][row * H + i] += inner * h[s][i];
                    before[i] += inner * w[1][row * H + i];
                }
            }
        }
        memcpy(dh, before, (size_t)H * sizeof *dh);
    }
}

static void check_recurrent(fixture *f, recurrence c)
{
    static const char *const parts[RECURRENT_PARTS] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
    const int64_t H = c.hidden, rows = c.gates * H, nx = c.length * c.batch * c.in, states = c.batch * H;
    const int64_t ny = c.length * c.directions * states, ns = c.directions * states;
    const int64_t size[RECURRENT_PARTS] = {rows * c.in, rows * H, rows, rows};
    (void)snprintf(geometry, sizeof geometry, "%s length %d batch %d in %d hidden %d%s%s",
                   c.gates == 1   ? c.relu ? "relu" : "rnn"
                   : c.gates == 4 ? "lstm"
                                  : "gru",
                   (int)c.length, (int)c.batch, (int)c.in, (int)H,
                   c.directions == 2 ? ", both directions" : "", c.given ? ", states given" : "");
    float *x = test_randoms(nx, 1, 1), *first[2] = {test_randoms(ns, 2, 1), test_randoms(ns, 3, 1)},
          *w[2][RECURRENT_PARTS];
    run r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    r.x = add_input(f, "x", GPUNN_SHAPE(c.length, c.batch, c.in), x, nx);
    gpunn_tensor *state[2] = {NULL, NULL}, *weight[2][RECURRENT_PARTS];
    for (int i = 0; c.given && i < (c.gates == 4 ? 2 : 1); i++)
        state[i] = add_input(f, i ? "c" : "h", GPUNN_SHAPE(c.directions, c.batch, H), first[i], ns);
    gpunn_rnn_args args = {.hidden_size = H,
                           .bidirectional = c.directions == 2,
                           .relu = c.relu,
                           .h_0 = state[0],
                           .c_0 = state[1]};
    r.out = c.gates == 1   ? gpunn_rnn_(r.x, "l", args)
            : c.gates == 4 ? gpunn_lstm_(r.x, "l", args)
                           : gpunn_gru_(r.x, "l", args);
    MADE(f->dev, r.out);
    for (int64_t d = 0; d < c.directions; d++)
        for (int i = 0; i < RECURRENT_PARTS; i++) {
            char name[32];
            (void)snprintf(name, sizeof name, "l.%s_l0%s", parts[i], d ? "_reverse" : "");
            weight[d][i] = MADE(f->dev, gpunn_find(f->model, name));
            w[d][i] = test_randoms(size[i], (uint32_t)(10 + 4 * d + i),
                                   (float)(1 / sqrt((double)(i ? H : c.in))));
            OK(f->dev, write_floats(weight[d][i], w[d][i], size[i]));
            OK(f->dev, gpunn_set_trainable(weight[d][i], !(c.frozen >> i & 1)));
        }
    run_backward(&r);
    double *y = calloc((size_t)(ny + nx + 2 * ns), sizeof *y), *dx = y + ny, *ds[2] = {dx + nx, dx + nx + ns},
           *dw[2][4];
    for (int64_t d = 0; d < c.directions; d++) {
        for (int i = 0; i < RECURRENT_PARTS; i++) dw[d][i] = calloc((size_t)size[i], sizeof **dw[d]);
        for (int64_t n = 0; n < c.batch; n++) {
            const int64_t at = (d * c.batch + n) * H, out = (n * c.directions + d) * H;
            recur(c, d == 1, x + n * c.in, w[d], c.given ? first[0] + at : NULL,
                  c.given ? first[1] + at : NULL, r.grad_out + out, y + out, dx + n * c.in, dw[d], ds[0] + at,
                  ds[1] + at);
        }
    }
    check_all("out", r.value, y, ny);
    float *grad = read_gradient(f->dev, r.x);
    check_all("gradient of x", grad, dx, nx);
    free(grad);
    for (int i = 0; i < 2; i++) {
        if (state[i] == NULL) continue;
        grad = read_gradient(f->dev, state[i]);
        check_all(i ? "gradient of c_0" : "gradient of h_0", grad, ds[i], ns);
        free(grad);
    }
    for (int64_t d = 0; d < c.directions; d++)
        for (int i = 0; i < RECURRENT_PARTS; i++) {
            if (!(c.frozen >> i & 1)) {
                grad = read_gradient(f->dev, weight[d][i]);
                check_all(parts[i], grad, dw[d][i], size[i]);
                free(grad);
            }
            free(dw[d][i]), free(w[d][i]);
        }
    free(x), free(first[0]), free(first[1]), free(y), free(r.value), free(r.grad_out);
}

static void test_recurrent(void **state)
{
    fixture             *f = *state;
    static const int     kinds[] = {1, 4, 3}, sizes[] = {1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33};
    static const int64_t large[][4] = {
        {2, 129, 3, 5}, {3, 5, 127, 65}, {20, 2, 6, 33}, {2, 3, 17, 130}, {20, 1, 7, 193}};
    uint32_t seed = 71;
    for (int i = 0; i < (is_emulated(f->backend) ? 24 : 72); i++) {
        const recurrence c = {kinds[i % 3],
                              between(&seed, 1, 9),
                              sizes[between(&seed, 0, COUNT(sizes) - 1)],
                              sizes[between(&seed, 0, COUNT(sizes) - 1)],
                              sizes[between(&seed, 0, COUNT(sizes) - 1)],
                              between(&seed, 1, 2),
                              i % 6 == 3,
                              i % 4 < 2,
                              i % 2 ? 0 : i / 2 * 5 % 16};
        next_model(f);
        check_recurrent(f, c);
    }
    for (int i = 0; i < COUNT(large); i++)
        for (int kind = 0; kind < 3; kind++) {
            next_model(f);
            check_recurrent(f, (recurrence){kinds[kind], large[i][0], large[i][1], large[i][2], large[i][3],
                                            1 + i % 2, false, true, 0});
        }
}

/* One sequence, whose columns threads share: every number of threads gives the same bits, more than there are
 * processors too, where one goes on alone. */
static void test_recurrent_threads(void **state)
{
    enum { LENGTH = 37, IN = 5, HIDDEN = 401 };
    static const int threads[] = {1, 2, 3, 16}, gates[] = {1, 4, 3};
    float           *x = test_randoms(LENGTH * IN, 1, 1);
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        float *first[3] = {NULL, NULL, NULL};
        for (int i = 0; i < COUNT(threads); i++) {
            fixture f = {
                .dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1, .threads = threads[i])};
            f.model = gpunn_model_create(f.dev);
            const gpunn_rnn_args args = {.hidden_size = HIDDEN, .bidirectional = kind == 1};
            run                  r = {&f, NULL, NULL, NULL, NULL, NULL, 0};
            r.x = add_input(&f, "x", GPUNN_SHAPE(LENGTH, 1, IN), x, LENGTH * IN);
            r.out = kind == 0   ? gpunn_rnn_(r.x, "l", args)
                    : kind == 1 ? gpunn_lstm_(r.x, "l", args)
                                : gpunn_gru_(r.x, "l", args);
            run_backward(&r);
            gpunn_tensor *weight = MADE(f.dev, gpunn_find(f.model, "l.weight_hh_l0"));
            const size_t  counts[3] = {(size_t)r.count, LENGTH * IN, (size_t)gates[kind] * HIDDEN * HIDDEN};
            float        *result[3] = {r.value, read_gradient(f.dev, r.x), read_gradient(f.dev, weight)};
            for (int k = 0; k < 3; k++) {
                if (i > 0) assert_memory_equal(result[k], first[k], counts[k] * sizeof(float));
                if (i > 0)
                    free(result[k]);
                else
                    first[k] = result[k];
            }
            free(r.grad_out);
            gpunn_model_destroy(f.model);
            gpunn_device_close(f.dev);
        }
        for (int k = 0; k < 3; k++) free(first[k]);
    }
    free(x);
}

/* ---- lines: cumsum, topk, argmin and argmax along an axis with others on both sides; expand to copies of
 * such lines -- */
typedef struct lines {
    int64_t outer, n, inner;
} lines;

/* Whether a stands before b: NaN above all, equals by their place. */
static bool precedes(float a, int64_t i, float b, int64_t j, bool largest)
{
    if (a != a || b != b) return a != a && b != b ? i < j : (a != a) == largest;
    return a == b ? i < j : largest ? a > b : a < b;
}

static int64_t *read_places(gpunn_device *dev, gpunn_tensor *t)
{
    int64_t *values = malloc(gpunn_tensor_bytes(t) + 1);
    OK(dev, gpunn_read(t, values, gpunn_tensor_bytes(t)));
    return values;
}

static void check_lines(fixture *f, lines c, uint32_t *seed)
{
    const int64_t count = c.outer * c.n * c.inner, k = between(seed, 1, (int)c.n),
                  all = c.outer * k * c.inner;
    const bool largest = between(seed, 0, 1), special = between(seed, 0, 2) == 0;
    float     *x = test_randoms(count, *seed, 1);
    (void)snprintf(geometry, sizeof geometry, "lines %d x %d x %d, %d %s", (int)c.outer, (int)c.n,
                   (int)c.inner, (int)k, largest ? "largest" : "smallest");
    allowance = 1;
    run r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    r.x = add_input(f, "x", GPUNN_SHAPE(c.outer, c.n, c.inner), x, count);
    r.out = MADE(f->dev, gpunn_cumsum(r.x, 1));
    run_backward(&r);
    float *grad = read_gradient(f->dev, r.x);
    for (int64_t o = 0; o < c.outer; o++)
        for (int64_t in = 0; in < c.inner; in++)
            for (int back = 0; back < 2; back++) {
                double sum = 0, size = 0;
                for (int64_t i = 0; i < c.n; i++) {
                    const int64_t at = (o * c.n + (back ? c.n - 1 - i : i)) * c.inner + in;
                    const double  value = back ? r.grad_out[at] : x[at];
                    sum += value, size += fabs(value);
                    check_sum(back ? "gradient of x" : "cumsum", at, back ? grad[at] : r.value[at], sum, size,
                              i + 1);
                }
            }
    free(grad), free(r.value), free(r.grad_out);

    static const float odd[] = {NAN, -NAN, INFINITY, -0.0f};
    for (int64_t i = 0; i < count && special; i++) /* equals, and what is no number */
        x[i] = between(seed, 0, 4) == 0 ? odd[between(seed, 0, COUNT(odd) - 1)] : floorf(3 * x[i]);
    next_model(f);
    r.x = add_input(f, "x", GPUNN_SHAPE(c.outer, c.n, c.inner), x, count);
    gpunn_tensor *places, *out[4], *top = MADE(f->dev, gpunn_topk(r.x, (int)k, 1, largest, &places));
    out[0] = gpunn_keep(top), out[1] = gpunn_keep(places), out[2] = gpunn_keep(gpunn_argmax(r.x, 1, false));
    out[3] = gpunn_keep(gpunn_argmin(r.x, 1, false));
    OK(f->dev, gpunn_forward(out, 4));
    float   *values = read_floats(f->dev, top, NULL);
    int64_t *indices = read_places(f->dev, places), *most = read_places(f->dev, out[2]),
            *least = read_places(f->dev, out[3]);
    for (int64_t o = 0; o < c.outer; o++)
        for (int64_t in = 0; in < c.inner; in++) {
            const float *line = x + o * c.n * c.inner + in;
            int64_t      first = 0, last = 0;
            for (int64_t i = 0; i < c.n; i++) {
                int64_t rank = 0; /* how many stand before it */
                for (int64_t j = 0; j < c.n; j++)
                    rank += precedes(line[j * c.inner], j, line[i * c.inner], i, largest);
                const int64_t at = (o * k + rank) * c.inner + in;
                if (rank < k &&
                    (indices[at] != i || memcmp(&values[at], &line[i * c.inner], sizeof *values) != 0))
                    fail_msg("%s: place %lld is %lld with %g, should be %lld with %g", geometry,
                             (long long)rank, (long long)indices[at], (double)values[at], (long long)i,
                             (double)line[i * c.inner]);
                if (!special && line[i * c.inner] > line[first * c.inner]) first = i;
                if (!special && line[i * c.inner] < line[last * c.inner]) last = i;
            }
            if (!special && (most[o * c.inner + in] != first || least[o * c.inner + in] != last))
                fail_msg("%s: argmax %lld, argmin %lld, should be %lld, %lld", geometry,
                         (long long)most[o * c.inner + in], (long long)least[o * c.inner + in],
                         (long long)first, (long long)last);
        }
    assert_int_equal(gpunn_tensor_bytes(places), 8 * all);
    free(values), free(indices), free(most), free(least);

    if (!special) { /* each row n times: the gradient is their sum */
        next_model(f);
        r.x = add_input(f, "x", GPUNN_SHAPE(c.outer, 1, c.inner), x, c.outer * c.inner);
        r.out = MADE(f->dev, gpunn_expand(r.x, GPUNN_SHAPE(c.outer, c.n, c.inner)));
        run_backward(&r);
        grad = read_gradient(f->dev, r.x);
        for (int64_t o = 0; o < c.outer; o++)
            for (int64_t in = 0; in < c.inner; in++) {
                double sum = 0, size = 0;
                for (int64_t i = 0; i < c.n; i++) {
                    const int64_t at = (o * c.n + i) * c.inner + in;
                    if (r.value[at] != x[o * c.inner + in])
                        fail_msg("%s: copy %lld differs", geometry, (long long)at);
                    sum += r.grad_out[at], size += fabs((double)r.grad_out[at]);
                }
                check_sum("gradient of what is copied", o * c.inner + in, grad[o * c.inner + in], sum, size,
                          c.n);
            }
        free(grad), free(r.value), free(r.grad_out);
    }
    free(x);
}

static void test_lines(void **state)
{
    fixture           *f = *state;
    static const int   sizes[] = {1, 2, 3, 5, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65};
    static const lines large[] = {{2, 1025, 1}, {1, 513, 3},  {3, 257, 65}, {1, 255, 33},
                                  {257, 3, 1},  {1, 2, 4099}, {1, 2500, 2}};
    uint32_t           seed = 59;
    for (int i = 0; i < (is_emulated(f->backend) ? followed(30) : 90); i++) {
        const int64_t outer = sizes[between(&seed, 0, is_emulated(f->backend) ? 5 : 8)];
        const lines   c = {outer, sizes[between(&seed, 0, COUNT(sizes) - 1)], sizes[between(&seed, 0, 8)]};
        next_model(f);
        check_lines(f, c, &seed);
    }
    for (int i = 0; i < followed(COUNT(large)); i++) {
        next_model(f);
        check_lines(f, large[i], &seed);
    }
}

/* The first of two maxima in a row of zeros, at all edges of what is searched at once; then NaN behind it. */
static void test_argmax_rows(void **state)
{
    fixture             *f = *state;
    static const int64_t lengths[] = {1, 63, 64, 511, 513, 1537}, edges[] = {0, 1, 62, 511, 512, 1023, 1536};
    for (int i = 0; i < COUNT(lengths) * COUNT(edges); i++) {
        const int64_t n = lengths[i / COUNT(edges)], place = edges[i % COUNT(edges)];
        float        *x = calloc((size_t)n, sizeof *x);
        int64_t       found[2] = {-1, -1};
        if (place < n) {
            next_model(f);
            gpunn_tensor *row = add_input(f, "x", GPUNN_SHAPE(n), x, n),
                         *y = MADE(f->dev, gpunn_argmax(row, 0, false));
            for (int nan = 0; nan < 2; nan++) {
                x[n - 1] = nan ? NAN : 1;
                if (!nan) x[place] = 1;
                OK(f->dev, write_floats(row, x, n));
                OK(f->dev, gpunn_forward(&y, 1));
                OK(f->dev, gpunn_read(y, &found[nan], sizeof *found));
            }
            assert_int_equal(found[0], place);
            assert_int_equal(found[1], n - 1);
        }
        free(x);
    }
}

/* ---- long lines: what a block of the GPU sorts alone, in rounds, or all of a line; equals, infinities and
 * NaN -- */
typedef struct order {
    int64_t         outer, n, inner, k;
    bool            largest, special;
    gpunn_precision precision;
} order;
static struct {
    const float *x;
    int64_t      stride;
    bool         largest;
} ordered; /* the line whose places are compared */

static int compare_places(const void *a, const void *b)
{
    const int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
    return precedes(ordered.x[i * ordered.stride], i, ordered.x[j * ordered.stride], j, ordered.largest) ? -1
                                                                                                         : 1;
}

/* Small whole numbers, which 16 bits hold, with many equals. */
static float *whole_numbers(int64_t count, uint32_t seed, bool special)
{
    static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY, -0.0f};
    float             *x = test_randoms(count, seed, 100);
    for (int64_t i = 0; i < count; i++)
        x[i] = special && between(&seed, 0, 9) == 0 ? odd[between(&seed, 0, COUNT(odd) - 1)] : floorf(x[i]);
    return x;
}

/* x; of another precision than F32: as a linear layer makes it, which that precision stores. */
static gpunn_tensor *stored(fixture *f, gpunn_tensor *x, int64_t count, const char *layer,
                            gpunn_precision precision)
{
    static const float one = 1;
    if (precision == GPUNN_PRECISION_F32) return x;
    gpunn_tensor *rows = gpunn_reshape(x, GPUNN_SHAPE(count, 1));
    char          name[32];
    (void)snprintf(name, sizeof name, "%s.weight", layer);
    rows = MADE(f->dev, gpunn_linear(rows, layer, .out_features = 1, .no_bias = true));
    OK(f->dev, write_floats(gpunn_find(f->model, name), &one, 1));
    return MADE(f->dev, gpunn_reshape(rows, gpunn_tensor_shape(x)));
}

static void check_order(fixture *f, order c, uint32_t seed)
{
    const int64_t count = c.outer * c.n * c.inner;
    float        *x = c.precision == GPUNN_PRECISION_F32 && !c.special ? test_randoms(count, seed, 1)
                                                                       : whole_numbers(count, seed, c.special);
    next_model_of(f, c.precision);
    gpunn_tensor *in = add_input(f, "x", GPUNN_SHAPE(c.outer, c.n, c.inner), x, count);
    gpunn_tensor *out = gpunn_keep(
        MADE(f->dev, gpunn_topk_indices(stored(f, in, count, "l", c.precision), (int)c.k, 1, c.largest)));
    OK(f->dev, gpunn_forward(&out, 1));
    int64_t *places = read_places(f->dev, out), *all = malloc((size_t)c.n * sizeof *all);
    for (int64_t line = 0; line < c.outer * c.inner; line++) {
        const int64_t o = line / c.inner, column = line % c.inner;
        ordered.x = x + o * c.n * c.inner + column, ordered.stride = c.inner, ordered.largest = c.largest;
        for (int64_t i = 0; i < c.n; i++) all[i] = i;
        qsort(all, (size_t)c.n, sizeof *all, compare_places);
        for (int64_t i = 0; i < c.k; i++)
            if (places[(o * c.k + i) * c.inner + column] != all[i])
                fail_msg("line %d of %d x %d x %d, number %d of %d: place %d, should be %d", (int)line,
                         (int)c.outer, (int)c.n, (int)c.inner, (int)i, (int)c.k,
                         (int)places[(o * c.k + i) * c.inner + column], (int)all[i]);
    }
    free(places), free(all), free(x);
}

static void test_orders(void **state)
{
    fixture           *f = *state;
    static const order cases[] = {{1, 5001, 1, 5001, true, true, GPUNN_PRECISION_F32},
                                  {1, 9001, 1, 512, true, true, GPUNN_PRECISION_F32},
                                  {1, 2048, 1, 2048, true, true, GPUNN_PRECISION_F32},
                                  {1, 2049, 1, 1, true, false, GPUNN_PRECISION_F32},
                                  {2, 2500, 2, 40, false, true, GPUNN_PRECISION_BF16},
                                  {2, 2051, 3, 513, false, false, GPUNN_PRECISION_F32},
                                  {1, 2600, 2, 2600, true, true, GPUNN_PRECISION_BF16},
                                  {1, 3100, 1, 3100, false, true, GPUNN_PRECISION_F16}};
    for (int i = 0; i < followed(COUNT(cases)); i++) check_order(f, cases[i], (uint32_t)i + 91);
}

/* ---- sample: the classes of each row in the order of their logits, and which of them a number draws ---- */
typedef struct drawing {
    int             rows, classes, values; /* of logits, multiples of 1 / 8; 0: any; 1: all alike */
    float           temperature, top_p;
    int             top_k;
    gpunn_precision precision;
} drawing;

static void draw_classes(fixture *f, const drawing *d, const float *x, const float *draws, int64_t *drawn)
{
    const int64_t count = (int64_t)d->rows * d->classes;
    next_model_of(f, d->precision);
    gpunn_tensor *in = add_input(f, "x", GPUNN_SHAPE(d->rows, d->classes), x, count);
    gpunn_tensor *draw = add_input(f, "draw", GPUNN_SHAPE(d->rows), draws, d->rows);
    gpunn_tensor *y = MADE(f->dev,
                           gpunn_sample(stored(f, in, count, "l", d->precision), draw,
                                        .temperature = d->temperature, .top_k = d->top_k, .top_p = d->top_p));
    OK(f->dev, gpunn_forward(&y, 1));
    OK(f->dev, gpunn_read(y, drawn, (size_t)d->rows * sizeof *drawn));
}

/* A class that can be drawn, and the middle of the numbers that draw it. */
static int64_t class_to_draw(const float *logits, const drawing *d, uint32_t *seed, float *draw)
{
    const int kept = d->top_k ? d->top_k : d->classes;
    int64_t  *places = malloc((size_t)d->classes * sizeof *places);
    double   *upto = malloc(((size_t)kept + 1) * sizeof *upto); /* sums of the probabilities before each */
    int       end = 1;
    for (int i = 0; i < d->classes; i++) places[i] = i;
    ordered.x = logits, ordered.stride = 1, ordered.largest = true;
    qsort(places, (size_t)d->classes, sizeof *places, compare_places);
    upto[0] = 0;
    for (int i = 0; i < kept; i++)
        upto[i + 1] = upto[i] +
                      exp(((double)logits[places[i]] - (double)logits[places[0]]) / (double)d->temperature);
    while (end < kept && upto[end] < upto[kept] * (double)d->top_p) end++;
    /* the last ones may be beyond a float's precision */
    while (end > 1 && upto[end] - upto[end - 1] < 1e-6 * upto[end]) end--;
    const int at = between(seed, 0, end - 1);
    const int64_t class = places[at];
    *draw = (float)((upto[at] + upto[at + 1]) / 2 / upto[end]);
    free(places), free(upto);
    return class;
}

static void check_drawing(fixture *f, drawing d, uint32_t seed)
{
    const int64_t count = (int64_t)d.rows * d.classes;
    const size_t  bytes = (size_t)d.rows * sizeof(int64_t);
    float        *x = test_randoms(count, seed, 4), *draws = malloc((size_t)d.rows * sizeof *draws);
    int64_t      *wanted = malloc(bytes), *drawn = malloc(bytes);
    fixture       cpu = {.backend = &backends[0]};
    fixture_open(&cpu);
    for (int64_t i = 0; i < count; i++) {
        if (d.values) x[i] = (float)((int)(fabsf(x[i]) * 1000) % d.values) / 8;
        if (d.values != 1 && i % 7 == 3) x[i] = -INFINITY;
    }
    for (int row = 0; row < d.rows; row++)
        wanted[row] = class_to_draw(x + (int64_t)row * d.classes, &d, &seed, &draws[row]);
    draw_classes(f, &d, x, draws, drawn);
    for (int row = 0; row < d.rows; row++)
        if (drawn[row] != wanted[row])
            fail_msg("row %d of %d classes, top_p %g: %.9g draws %d, should be %d", row, d.classes,
                     (double)d.top_p, (double)draws[row], (int)drawn[row], (int)wanted[row]);
    for (int row = 0; row < d.rows; row++) draws[row] = fabsf(test_random(&seed));
    draw_classes(&cpu, &d, x, draws, wanted);
    draw_classes(f, &d, x, draws, drawn);
    assert_memory_equal(drawn, wanted, bytes);
    fixture_close(&cpu);
    free(x), free(draws), free(wanted), free(drawn);
}

/* A short row is sorted by a block; longer ones are searched by many. */
static void test_drawings(void **state)
{
    fixture             *f = *state;
    static const int     classes[] = {1, 63, 64, 65, 1000, 1024, 1025}, values[] = {0, 1, 9};
    static const drawing others[] = {{1, 50257, 0, 1, 0.9f, 0, GPUNN_PRECISION_F32},
                                     {1, 50257, 1, 1, 0.5f, 0, GPUNN_PRECISION_F32},
                                     {2, 5003, 9, 0.7f, 0.999f, 0, GPUNN_PRECISION_BF16},
                                     {1, 50257, 0, 0.5f, 0.8f, 40, GPUNN_PRECISION_F32},
                                     {70, 1500, 0, 2, 1, 0, GPUNN_PRECISION_F32},
                                     {9, 1100, 30, 2, 0.6f, 700, GPUNN_PRECISION_F16}};
    for (int i = 0; i < 3 * followed(COUNT(classes)); i++) {
        const drawing d = {1 + 4 * (i % 2),    classes[i / 3], values[i % 3], 1, i % 2 ? 0.5f : 1, 0,
                           GPUNN_PRECISION_F32};
        check_drawing(f, d, (uint32_t)i + 7);
    }
    for (int i = 0; i < followed(COUNT(others)); i++) check_drawing(f, others[i], (uint32_t)i + 47);
}

/* Five rows, alike but for the numbers that draw, of which three are at most 0 or none and two at least 1. */
static void check_extremes(fixture *f, int classes, float logit, float last_two, int first, int last)
{
    static const float draws[5] = {NAN, -1, 0, 1, INFINITY};
    const drawing      d = {5, classes, 0, 1, 0.99f, 0, GPUNN_PRECISION_F32};
    float             *x = malloc((size_t)(5 * classes) * sizeof *x);
    int64_t            drawn[5];
    for (int i = 0; i < 5 * classes; i++) x[i] = i % classes < classes - 2 ? logit : last_two;
    draw_classes(f, &d, x, draws, drawn);
    for (int row = 0; row < 5; row++)
        if (drawn[row] != (row < 3 ? first : last))
            fail_msg("%d classes of %g, the last two %g: %g draws %d, should be %d", classes, (double)logit,
                     (double)last_two, (double)draws[row], (int)drawn[row], row < 3 ? first : last);
    free(x);
}

static void test_drawings_of_extremes(void **state)
{
    fixture         *f = *state;
    static const int classes[] = {3, 1200};
    for (int i = 0; i < COUNT(classes); i++) {
        const int n = classes[i];
        check_extremes(f, n, 1, 1, 0, (int)ceil((double)0.99f * n) - 1);
        check_extremes(f, n, 1, NAN, n - 2, n - 2);
        check_extremes(f, n, 1, INFINITY, n - 2, n - 2);
        check_extremes(f, n, -INFINITY, -3, n - 2, n - 1);
        check_extremes(f, n, -INFINITY, -INFINITY, 0, 0);
        check_extremes(f, n, 0.0f, -0.0f, 0, (int)ceil((double)0.99f * n) - 1);
        check_extremes(f, n, -3e38f, 3e38f, n - 2, n - 1);
    }
}

/* ---- sums at indices: scatter_add, and gather backward, of lines of few and of many indices ---- */
typedef struct adding {
    int64_t outer, n, m, inner;
    enum { ANYWHERE, ONE_PLACE, APART } kind; /* APART: no place twice */
    gpunn_precision precision;
    bool            slices; /* index_add and index_select: all lines have the indices of the first */
} adding;

static size_t index_bytes(adding c)
{
    return (size_t)(c.slices ? c.m : c.outer * c.m * c.inner) * sizeof(int64_t);
}

static int64_t *make_places(adding c, uint32_t *seed)
{
    int64_t *index = malloc(index_bytes(c));
    for (int64_t i = 0; i < (int64_t)(index_bytes(c) / sizeof *index); i++) {
        const int64_t j = c.slices ? i : i / c.inner % c.m;
        index[i] = c.kind == APART       ? (j * 7 + 3) % c.n
                   : c.kind == ONE_PLACE ? c.n - 1
                                         : between(seed, 0, (int)c.n - 1);
    }
    return index;
}

/* The number of the index that serves element i of src. */
static int64_t place_of(adding c, int64_t i)
{
    return c.slices ? i / c.inner % c.m : i;
}

/* On a GPU an index outside makes a NaN in its lines, and in no other. */
static void check_outside(gpunn_device *dev, gpunn_tensor *sum, gpunn_tensor *at, int64_t *index, adding c)
{
    int64_t lost = 0, values = c.outer * c.n * c.inner;
    index[0] = c.n;
    OK(dev, gpunn_write(at, index, index_bytes(c)));
    OK(dev, gpunn_forward(&sum, 1));
    float *y = read_floats(dev, sum, NULL);
    for (int64_t k = 0; k < values; k++) {
        if (isnan(y[k]) && !c.slices && (k >= c.n * c.inner || k % c.inner))
            fail_msg("%s: %d is NaN", geometry, (int)k);
        lost += isnan(y[k]);
    }
    if (lost < (c.slices ? c.outer * c.inner : 1)) fail_msg("%s: %d are NaN", geometry, (int)lost);
    free(y);
}

/* out = y[index] + x[index], where y is x with src added at the indices. */
static void check_adding(fixture *f, adding c, uint32_t seed)
{
    const int64_t places = c.outer * c.n * c.inner, count = c.outer * c.m * c.inner;
    const bool    wide = c.precision == GPUNN_PRECISION_F32; /* numbers of all sizes */
    float        *x = whole_numbers(places, seed, false), *src = whole_numbers(count, seed + 1, false),
          *y = malloc((size_t)places * 4);
    int64_t *index = make_places(c, &seed), *from = malloc((size_t)count * sizeof *from);
    /* of each place: y, its magnitude, the gradient, its magnitude */
    double *sums = calloc((size_t)places * 4, sizeof *sums);
    int    *runs = calloc((size_t)places, sizeof *runs);
    for (int64_t i = 0; i < count && wide; i++) src[i] = ldexpf(src[i] + 0.3f, between(&seed, -90, 90));
    (void)snprintf(geometry, sizeof geometry, "%d x %d x %d at %d indices%s", (int)c.outer, (int)c.n,
                   (int)c.inner, (int)c.m, c.slices ? " of slices" : "");
    allowance = wide ? 1 : 0x1p16;
    next_model_of(f, c.precision);
    run               r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    const gpunn_shape shape = GPUNN_SHAPE(c.outer, c.m, c.inner);
    gpunn_tensor     *at = MADE(f->dev,
                                gpunn_input(f->model, "index", GPUNN_I64, c.slices ? GPUNN_SHAPE(c.m) : shape));
    gpunn_tensor     *added = add_input(f, "src", shape, src, count);
    OK(f->dev, gpunn_write(at, index, index_bytes(c)));
    r.x = add_input(f, "x", GPUNN_SHAPE(c.outer, c.n, c.inner), x, places);
    gpunn_tensor *base = stored(f, r.x, places, "l", c.precision),
                 *more = stored(f, added, count, "m", c.precision);
    gpunn_tensor *sum = c.slices ? gpunn_index_add(base, 1, at, more) : gpunn_scatter_add(base, 1, at, more);
    gpunn_keep(MADE(f->dev, sum));
    r.out = c.slices ? gpunn_add(gpunn_index_select(sum, 1, at), gpunn_index_select(base, 1, at))
                     : gpunn_add(gpunn_gather(sum, 1, at), gpunn_gather(base, 1, at));
    run_backward(&r);
    float *grad = read_gradient(f->dev, r.x), *again;
    for (int64_t k = 0; k < places; k++)
        y[k] = x[k], sums[4 * k] = x[k], sums[4 * k + 1] = fabs((double)x[k]);
    for (int64_t i = 0; i < count; i++) {
        const int64_t k = from[i] = (i / c.inner / c.m * c.n + index[place_of(c, i)]) * c.inner + i % c.inner;
        y[k] += src[i], sums[4 * k] += src[i], sums[4 * k + 1] += fabs((double)src[i]), runs[k]++;
        sums[4 * k + 2] += 2 * (double)r.grad_out[i], sums[4 * k + 3] += 2 * fabs((double)r.grad_out[i]);
    }
    for (int64_t i = 0; i < count; i++) {
        const int64_t k = from[i];
        check_sum("sum", i, r.value[i], sums[4 * k] + x[k], sums[4 * k + 1] + fabs((double)x[k]), runs[k]);
        if (wide && !c.slices && (c.m <= 1024 || runs[k] <= 32) && r.value[i] != y[k] + x[k])
            fail_msg("%s: %d is %.9g, not the sum in the order of the indices, %.9g", geometry, (int)i,
                     r.value[i], y[k] + x[k]);
    }
    for (int64_t k = 0; k < places; k++)
        check_sum("gradient of x", k, grad[k], sums[4 * k + 2], sums[4 * k + 3], runs[k]);
    OK(f->dev, gpunn_forward(&r.out, 1));
    again = read_floats(f->dev, r.out, NULL);
    assert_memory_equal(again, r.value, (size_t)count * sizeof *again);
    if (f->backend->type == GPUNN_DEVICE_CUDA) check_outside(f->dev, sum, at, index, c);
    free(x), free(src), free(y), free(index), free(from), free(sums), free(runs), free(grad), free(again);
    free(r.value), free(r.grad_out);
}

/* ---- sum, mean and max over any axes of [a, b, c], whose values are whole numbers with many equals ---- */
typedef struct reduction {
    int64_t dim[3];
    int     axes; /* bit i: axis i */
    enum { SUM, MEAN, MAX, REDUCTIONS } kind;
} reduction;

static gpunn_tensor *reduce(const reduction *c, gpunn_tensor *x)
{
    gpunn_axes axes = {{0}};
    int        count = 0;
    for (int i = 0; i < 3; i++)
        if (c->axes >> i & 1) axes.axis[count++] = i;
    axes.axis[count] = GPUNN_END;
    return c->kind == SUM    ? gpunn_sum(x, axes, false)
           : c->kind == MEAN ? gpunn_mean(x, axes, false)
                             : gpunn_max(x, axes, false);
}

/* The place of the result to which element `at` of x belongs. */
static int64_t reduced(const reduction *c, int64_t at)
{
    const int64_t index[3] = {at / c->dim[2] / c->dim[1], at / c->dim[2] % c->dim[1], at % c->dim[2]};
    int64_t       place = 0;
    for (int i = 0; i < 3; i++)
        if (!(c->axes >> i & 1)) place = place * c->dim[i] + index[i];
    return place;
}

static void check_reduction(fixture *f, const reduction *c)
{
    static const char *const names[REDUCTIONS] = {"sum", "mean", "max"};
    const int64_t            n = c->dim[0] * c->dim[1] * c->dim[2];
    float                   *x = whole_numbers(n, 7, false);
    run                      r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    next_model(f);
    (void)snprintf(geometry, sizeof geometry, "%s of %lld x %lld x %lld, axes %d", names[c->kind],
                   (long long)c->dim[0], (long long)c->dim[1], (long long)c->dim[2], c->axes);
    r.x = add_input(f, "x", GPUNN_SHAPE(c->dim[0], c->dim[1], c->dim[2]), x, n);
    r.out = reduce(c, r.x);
    run_backward(&r);
    float       *gradient = read_gradient(f->dev, r.x);
    double      *expected = calloc((size_t)r.count, sizeof *expected), *equal = calloc((size_t)r.count, 8);
    const double share = c->kind == MEAN ? (double)r.count / (double)n : 1;
    for (int64_t k = 0; k < r.count && c->kind == MAX; k++) expected[k] = -INFINITY;
    for (int64_t at = 0; at < n; at++) {
        double *to = &expected[reduced(c, at)];
        *to = c->kind == MAX ? fmax(*to, (double)x[at]) : *to + (double)x[at];
    }
    for (int64_t at = 0; at < n; at++) equal[reduced(c, at)] += (double)x[at] == expected[reduced(c, at)];
    for (int64_t k = 0; k < r.count; k++)
        check_sum("result", k, r.value[k], expected[k] * share, fabs(expected[k] * share), 1);
    for (int64_t at = 0; at < n; at++) {
        const int64_t k = reduced(c, at);
        const double  g = (double)r.grad_out[k] * share;
        const double  own = c->kind != MAX ? g : (double)x[at] == expected[k] ? g / equal[k] : 0;
        check_sum("gradient", at, gradient[at], own, fabs(own), 1);
    }
    free(x), free(gradient), free(expected), free(equal), free(r.value), free(r.grad_out);
}

/* The large ones are summed in parts, which are as many as the planes of the first one. */
static void test_reductions(void **state)
{
    static const int64_t sizes[][3] = {{5, 1100, 3},  {70, 3, 41},   {3, 37, 130}, {1, 700, 17},
                                       {2, 2, 40000}, {2, 33000, 2}, {300, 2, 300}};
    fixture             *f = *state;
    reduction            c;
    for (int i = 0; i < (is_emulated(f->backend) ? followed(4) : COUNT(sizes)); i++)
        for (c.axes = 1; c.axes < 8; c.axes++) {
            c.kind = (c.axes + i) % REDUCTIONS;
            memcpy(c.dim, sizes[i], sizeof c.dim);
            check_reduction(f, &c);
        }
}

static void test_additions(void **state)
{
    fixture            *f = *state;
    static const adding cases[] = {{1, 700, 1000, 8, ANYWHERE, GPUNN_PRECISION_F32, true},
                                   {33, 40, 300, 3, ANYWHERE, GPUNN_PRECISION_BF16, true},
                                   {3, 50, 65, 2, ANYWHERE, GPUNN_PRECISION_F32, false},
                                   {2, 700, 3001, 1, ONE_PLACE, GPUNN_PRECISION_F32, false},
                                   {2, 900, 1100, 2, ANYWHERE, GPUNN_PRECISION_BF16, false},
                                   {3, 50, 64, 1, ANYWHERE, GPUNN_PRECISION_F32, false},
                                   {1, 1500, 1025, 1, APART, GPUNN_PRECISION_F32, false},
                                   {2, 300, 1100, 3, ANYWHERE, GPUNN_PRECISION_F32, false},
                                   {2, 7, 1024, 1, ONE_PLACE, GPUNN_PRECISION_F32, false},
                                   {5, 1000, 600, 1, APART, GPUNN_PRECISION_F32, false},
                                   {1, 40, 2100, 2, ANYWHERE, GPUNN_PRECISION_F32, false},
                                   {2, 900, 500, 2, ANYWHERE, GPUNN_PRECISION_BF16, false},
                                   {1, 50, 64, 3, ANYWHERE, GPUNN_PRECISION_F32, true},
                                   {3, 50, 65, 1, ANYWHERE, GPUNN_PRECISION_F32, true},
                                   {2, 300, 1100, 4, ONE_PLACE, GPUNN_PRECISION_F32, true},
                                   {70, 90, 63, 1, APART, GPUNN_PRECISION_F32, true},
                                   {1, 3, 1, 5, ANYWHERE, GPUNN_PRECISION_F32, true},
                                   {1, 300, 257, 700, ANYWHERE, GPUNN_PRECISION_F16, true}};
    for (int i = 0; i < followed(COUNT(cases)); i++) check_adding(f, cases[i], (uint32_t)i + 97);
}

/* ---- group_norm: channels of a group together ---- */
typedef struct grouped {
    int64_t n, groups, channels, cells; /* channels: of a group */
    bool    no_affine;
} grouped;

static void check_groups(fixture *f, grouped c)
{
    const int64_t part = c.channels * c.cells, all = c.groups * c.channels, count = c.n * c.groups * part;
    (void)snprintf(geometry, sizeof geometry, "group_norm n %d groups %d of %d channels, %d cells%s",
                   (int)c.n, (int)c.groups, (int)c.channels, (int)c.cells, c.no_affine ? " no_affine" : "");
    allowance = 2;
    float *x = test_randoms(count, 1, 1), *w = test_randoms(all, 2, 1), *bias = test_randoms(all, 3, 1);
    for (int64_t i = 0; i < count; i++) x[i] += 0.25f;
    run r = {f, NULL, NULL, NULL, NULL, NULL, 0};
    r.x = add_input(f, "x", GPUNN_SHAPE(c.n, all, c.cells), x, count);
    r.out = MADE(f->dev, gpunn_group_norm(r.x, "l", .num_groups = (int)c.groups, .no_affine = c.no_affine));
    gpunn_tensor *parameter[2] = {gpunn_find(f->model, "l.weight"), gpunn_find(f->model, "l.bias")};
    if (!c.no_affine) OK(f->dev, write_floats(parameter[0], w, all));
    if (!c.no_affine) OK(f->dev, write_floats(parameter[1], bias, all));
    run_backward(&r);
    float *grad = read_gradient(f->dev, r.x);
    /* of each channel: dweight, its magnitude, dbias, its magnitude */
    double *sums = calloc((size_t)(4 * all), sizeof *sums);
    for (int64_t i = 0; i < c.n * c.groups; i++) {
        const float *const xi = x + i * part, *const g = r.grad_out + i * part;
        const int64_t first = i % c.groups * c.channels;
        double        mean = 0, variance = (double)1e-5f, k_sum = 0, kh_sum = 0, k_size = 0, kh_size = 0;
        for (int64_t j = 0; j < part; j++) mean += (double)xi[j] / (double)part;
        for (int64_t j = 0; j < part; j++) variance += (xi[j] - mean) * (xi[j] - mean) / (double)part;
        const double rstd = 1 / sqrt(variance);
        for (int pass = 0; pass < 2; pass++)
            for (int64_t j = 0; j < part; j++) {
                const int64_t channel = first + j / c.cells;
                const double  scale = c.no_affine ? 1 : w[channel], h = (xi[j] - mean) * rstd,
                             k = g[j] * scale, size = (fabs((double)xi[j]) + fabs(mean)) * rstd;
                if (pass == 1) {
                    check_sum("gradient of x", i * part + j, grad[i * part + j],
                              (k - k_sum - h * kh_sum) * rstd, (fabs(k) + k_size + size * kh_size) * rstd,
                              part);
                    continue;
                }
                const double shift = c.no_affine ? 0 : bias[channel];
                check_sum("out", i * part + j, r.value[i * part + j], h * scale + shift,
                          size * fabs(scale) + fabs(shift), part);
                k_sum += k / (double)part, k_size += fabs(k) / (double)part;
                kh_sum += k * h / (double)part, kh_size += fabs(k) * size / (double)part;
                sums[4 * channel] += g[j] * h, sums[4 * channel + 1] += fabs((double)g[j]) * size;
                sums[4 * channel + 2] += g[j], sums[4 * channel + 3] += fabs((double)g[j]);
            }
    }
    for (int p = 0; p < 2 && !c.no_affine; p++) {
        float *gradient = read_gradient(f->dev, parameter[p]);
        for (int64_t j = 0; j < all; j++)
            check_sum(p ? "gradient of bias" : "gradient of weight", j, gradient[j], sums[4 * j + 2 * p],
                      sums[4 * j + 2 * p + 1], c.n * c.cells);
        free(gradient);
    }
    free(sums), free(grad), free(r.value), free(r.grad_out), free(x), free(w), free(bias);
}

static void test_groups(void **state)
{
    fixture             *f = *state;
    static const int     cells[] = {1, 2, 3, 7, 8, 9, 31, 32, 33, 64, 65, 127, 129, 257};
    static const grouped large[] = {
        {1, 1, 3, 4099, false}, {2, 33, 1, 513, false}, {257, 2, 2, 5, false}, {1, 2, 65, 65, false}};
    uint32_t seed = 61;
    for (int i = 0; i < (is_emulated(f->backend) ? 30 : 90); i++) {
        const grouped c = {between(&seed, 1, 5), between(&seed, 1, 5), between(&seed, 1, 9),
                           cells[between(&seed, 0, COUNT(cells) - 1)], i % 5 == 0};
        if (c.channels * c.cells == 1) continue; /* nothing to normalise */
        next_model(f);
        check_groups(f, c);
    }
    for (int i = 0; i < COUNT(large); i++) {
        next_model(f);
        check_groups(f, large[i]);
    }
}

/* ---- batch_norm in training, with what a plan merges into it ---- */
/* AGAIN: the residual, or without it the norm, is read twice; SPLIT: the result, once by a convolution that
 * changes nothing */
enum { RESIDUAL = 1, RELU = 2, SWAPPED = 4, AGAIN = 8, FROZEN = 16, SPLIT = 32 };
typedef struct normed {
    int             n, channels, h, w, mode;
    gpunn_precision precision;
} normed;

/* Values that BF16 has; their images come from a convolution that changes nothing, so that memory has their
 * channels where convolutions want them. */
static float *coarse_randoms(int64_t n, uint32_t seed)
{
    float *values = test_randoms(n, seed, 2);
    for (int64_t i = 0; i < n; i++) values[i] = roundf(values[i] * 32) / 32;
    return values;
}

static gpunn_tensor *unchanged(fixture *f, gpunn_tensor *x, const char *name, int channels)
{
    char          weight[48];
    float        *identity = calloc((size_t)(channels * channels), sizeof *identity);
    gpunn_tensor *y = MADE(
        f->dev, gpunn_conv2d(x, name, .out_channels = channels, .kernel_size = 1, .no_bias = true));
    (void)snprintf(weight, sizeof weight, "%s.weight", name);
    for (int i = 0; i < channels; i++) identity[i * channels + i] = 1;
    OK(f->dev, gpunn_set_trainable(gpunn_find(f->model, weight), false));
    OK(f->dev, write_floats(gpunn_find(f->model, weight), identity, channels * channels));
    free(identity);
    return y;
}

static gpunn_tensor *add_image(fixture *f, const char *name, const normed *c, const float *values, int64_t n)
{
    char          conv[32];
    gpunn_tensor *x = MADE(
        f->dev, gpunn_input(f->model, name, GPUNN_F32, GPUNN_SHAPE(c->n, c->channels, c->h, c->w)));
    (void)snprintf(conv, sizeof conv, "conv_%s", name);
    OK(f->dev, write_floats(x, values, n));
    return unchanged(f, x, conv, c->channels);
}

static void check_normed(fixture *f, normed c)
{
    const int     cells = c.h * c.w, values = c.n * cells;
    const int64_t count = (int64_t)values * c.channels;
    const bool    residual = c.mode & RESIDUAL, relu = c.mode & RELU, again = c.mode & AGAIN,
               frozen = c.mode & FROZEN, split = c.mode & SPLIT;
    (void)snprintf(geometry, sizeof geometry, "batch_norm n %d channels %d, %dx%d, precision %d%s%s%s%s%s%s",
                   c.n, c.channels, c.h, c.w, (int)c.precision, residual ? " residual" : "",
                   relu ? " relu" : "", c.mode & SWAPPED ? " swapped" : "", again ? " again" : "",
                   split ? " split" : "", frozen ? " frozen" : "");
    gpunn_model_destroy(f->model);
    f->model = gpunn_model_create(f->dev, .precision = c.precision);
    float *x = coarse_randoms(count, 1), *res = coarse_randoms(count, 2), *g = coarse_randoms(count, 3);
    float *w = test_randoms(c.channels, 4, 1), *bias = test_randoms(c.channels, 5, 1);
    for (int64_t i = 0; i < count; i++) x[i] += 4;
    gpunn_tensor *xt = add_image(f, "x", &c, x, count), *rt = add_image(f, "r", &c, res, count);
    if (!frozen) MADE(f->dev, gpunn_retain_grad(xt));
    MADE(f->dev, gpunn_retain_grad(rt));
    gpunn_tensor *norm = MADE(f->dev, gpunn_batch_norm2d(xt, "bn")), *out = norm;
    if (residual) out = c.mode & SWAPPED ? gpunn_add(rt, out) : gpunn_add(out, rt);
    if (relu) out = gpunn_relu(out);
    if (again) out = gpunn_add(out, residual ? rt : norm);
    if (split) out = gpunn_add(out, unchanged(f, MADE(f->dev, out), "split", c.channels));
    gpunn_tensor *parameter[2] = {gpunn_find(f->model, "bn.weight"), gpunn_find(f->model, "bn.bias")};
    OK(f->dev, write_floats(parameter[0], w, c.channels));
    OK(f->dev, write_floats(parameter[1], bias, c.channels));
    for (int i = 0; i < 2 && frozen; i++) OK(f->dev, gpunn_set_trainable(parameter[i], false));
    MADE(f->dev, gpunn_keep(MADE(f->dev, out)));
    gpunn_tensor *gt = MADE(f->dev,
                            gpunn_input(f->model, "g", GPUNN_F32, GPUNN_SHAPE(c.n, c.channels, c.h, c.w)));
    OK(f->dev, write_floats(gt, g, count));
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(gpunn_mul(out, gt), GPUNN_ALL, false));
    for (int i = 0; i < 2; i++) OK(f->dev, gpunn_backward(loss)); /* gradients of parameters add up */
    float *value = read_floats(f->dev, out, NULL), *dx = frozen ? NULL : read_gradient(f->dev, xt);
    float *dres = residual ? read_gradient(f->dev, rt) : NULL,
          *dw = frozen ? NULL : read_gradient(f->dev, parameter[0]);
    float *db = frozen ? NULL : read_gradient(f->dev, parameter[1]);
    float *mean_now = read_floats(f->dev, gpunn_find(f->model, "bn.running_mean"), NULL);
    float *var_now = read_floats(f->dev, gpunn_find(f->model, "bn.running_var"), NULL);
    /* A GPU rounds to 2^-8, or, in the convolution of a TF32 model, to 2^-11. */
    const double coarse = f->backend->type == GPUNN_DEVICE_CPU           ? 1
                          : c.precision == GPUNN_PRECISION_BF16          ? 0x1p16
                          : c.precision == GPUNN_PRECISION_TF32 && split ? 0x1p13
                                                                         : 1;
    for (int ch = 0; ch < c.channels; ch++) {
        double mean = 0, variance = 0, sum = 0, sum_h = 0, size = 0, size_h = 0;
        for (int i = 0; i < values; i++)
            mean += (double)x[((i / cells) * c.channels + ch) * cells + i % cells] / values;
        for (int i = 0; i < values; i++) {
            const double h = (double)x[((i / cells) * c.channels + ch) * cells + i % cells] - mean;
            variance += h * h / values;
        }
        const double rstd = 1 / sqrt(variance + (double)1e-5f), scale = rstd * (double)w[ch];
        for (int pass = 0; pass < 2; pass++)
            for (int i = 0; i < values; i++) {
                const int64_t at = ((i / cells) * c.channels + ch) * cells + i % cells;
                const double  h = (double)x[at] - mean, v = h * scale + (double)bias[ch],
                             r = residual ? (double)res[at] : 0;
                const double y = relu && v + r <= 0 ? 0 : v + r, more = again ? residual ? r : v : 0;
                const double masked = relu && v + r <= 0 ? 0 : (split ? 2 : 1) * (double)g[at],
                             k = masked + (again && !residual ? (double)g[at] : 0);
                const double reach = (fabs((double)x[at]) + fabs(mean)) * rstd;
                if (pass == 0) {
                    sum += k, size += fabs(k), sum_h += k * h * rstd, size_h += fabs(k) * reach;
                    allowance = 2 * coarse;
                    check_sum("out", at, value[at], (split ? 2 : 1) * y + more,
                              reach * fabs((double)w[ch]) + fabs((double)bias[ch]) + 2 * fabs(r), 1);
                    if (residual)
                        check_sum("gradient of the residual", at, dres[at],
                                  masked + (again ? (double)g[at] : 0), 2 * fabs((double)g[at]), 1);
                } else if (!frozen)
                    check_sum("gradient of x", at, dx[at],
                              (k - sum / values - h * rstd * sum_h / values) * scale,
                              (fabs(k) + size / values + reach * size_h / values) * fabs(scale), values);
            }
        allowance = 4;
        if (!frozen) check_sum("gradient of weight", ch, dw[ch], 2 * sum_h, 2 * size_h, values);
        if (!frozen) check_sum("gradient of bias", ch, db[ch], 2 * sum, 2 * size, values);
        check_sum("running mean", ch, mean_now[ch], 0.19 * mean, fabs(mean), values);
        check_sum("running variance", ch, var_now[ch], 0.81 + 0.19 * variance * values / (values - 1),
                  1 + 16 * variance, values);
    }
    free(x), free(res), free(g), free(w), free(bias), free(value), free(dx), free(dres), free(dw), free(db);
    free(mean_now), free(var_now);
}

/* What is no number stays so through the relu, and is told. */
static void check_normed_nan(fixture *f, gpunn_precision precision, bool residual)
{
    enum { N = 3, CHANNELS = 8, CELLS = 4, VALUES = N * CHANNELS * CELLS };
    float *x = coarse_randoms(VALUES, 1);
    x[CELLS] = NAN;
    gpunn_model_destroy(f->model);
    f->model = gpunn_model_create(f->dev, .precision = precision);
    gpunn_tensor *image = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(N, CHANNELS, 2, 2)));
    gpunn_tensor *h = gpunn_conv2d(image, "conv", .out_channels = CHANNELS, .kernel_size = 1,
                                   .groups = CHANNELS);
    gpunn_tensor *y = gpunn_batch_norm2d(h, "bn"), *loss;
    OK(f->dev, write_floats(image, x, VALUES));
    loss = MADE(
        f->dev,
        gpunn_mean(gpunn_relu(residual ? gpunn_add(y, gpunn_conv2d(image, "side", .out_channels = CHANNELS,
                                                                   .kernel_size = 1, .groups = CHANNELS))
                                       : y),
                   GPUNN_ALL, false));
    gpunn_status status = gpunn_backward(loss);
    if (status == GPUNN_OK) status = gpunn_synchronize(f->dev);
    assert_int_equal(status, GPUNN_ERR_NUMERIC);
    gpunn_clear_error(f->dev);
    free(x);
}

static void test_normed(void **state)
{
    fixture         *f = *state;
    static const int channels[] = {1, 3, 7, 8, 12, 24, 64, 72}, sides[] = {1, 1, 2, 3, 4, 5, 9, 17},
                     images[] = {1, 2, 3, 5, 9, 33, 70};
    static const gpunn_precision precisions[] = {GPUNN_PRECISION_F32, GPUNN_PRECISION_TF32,
                                                 GPUNN_PRECISION_BF16};
    static const int             modes[] = {RELU,
                                            RESIDUAL,
                                            RESIDUAL | RELU,
                                            RESIDUAL | RELU | SWAPPED,
                                            RESIDUAL | RELU | AGAIN,
                                            RESIDUAL | AGAIN,
                                            RELU | AGAIN,
                                            RESIDUAL | RELU | FROZEN,
                                            RESIDUAL | RELU | SPLIT,
                                            RESIDUAL | SPLIT,
                                            RELU | SPLIT,
                                            RESIDUAL | RELU | SPLIT | FROZEN,
                                            0};
    static const normed          large[] = {{16, 64, 17, 23, RESIDUAL | RELU, GPUNN_PRECISION_BF16},
                                            {16, 8, 33, 31, RELU, GPUNN_PRECISION_BF16},
                                            {7, 136, 19, 19, RESIDUAL | RELU | AGAIN, GPUNN_PRECISION_TF32}};
    uint32_t                     seed = 91;
    for (int i = 0; i < followed(COUNT(channels) * COUNT(modes)); i++) {
        normed c = {images[between(&seed, 0, COUNT(images) - 1)],
                    channels[i % COUNT(channels)],
                    sides[between(&seed, 0, COUNT(sides) - 1)],
                    sides[between(&seed, 0, COUNT(sides) - 1)],
                    modes[i % COUNT(modes)],
                    precisions[i / COUNT(modes) % COUNT(precisions)]};
        /* of two values each is as far from the mean as the other, and gradients vanish */
        if (c.n * c.h * c.w < 3) c.n = 3;
        check_normed(f, c);
    }
    for (int i = 0; i < followed(COUNT(large)); i++) check_normed(f, large[i]);
    for (int i = 0; i < COUNT(precisions) * 2; i++) check_normed_nan(f, precisions[i / 2], i % 2);
}

/* ---- ctc_loss: sums over all alignments ---- */
typedef struct labelling {
    /* kinds: so many labels occur, so that they repeat */
    int             times, samples, classes, most, blank, kinds;
    gpunn_reduction reduction;
    bool            batch_first, zero_infinity;
} labelling;

static double log_add(double a, double b)
{
    double top = fmax(a, b);
    return top == -INFINITY ? top : top + log(exp(a - top) + exp(b - top));
}

/* The log-probability of one target, and what each x(t, class) adds to it (slope, times x classes, of 0):
 * forward and backward over the places of blank, label, blank, ... */
static double align(const labelling *c, const double *x, int times, const int64_t *target, int length,
                    double *slope)
{
    const int n = 2 * length + 1;
    double   *forth = malloc((size_t)(2 * times * n + 1) * sizeof *forth), *back = forth + times * n,
           total = -INFINITY;
#define CLASS(s) ((s) % 2 ? (int)target[(s) / 2] : c->blank)
#define MAY_SKIP(s) ((s) % 2 && (s) > 1 && CLASS(s) != CLASS((s)-2))
    for (int t = 0; t < times; t++)
        for (int s = 0; s < n; s++) {
            double sum = t == 0 && s < 2 ? 0 : -INFINITY;
            for (int k = 0; t > 0 && k <= 2 && k <= s; k++)
                if (k < 2 || MAY_SKIP(s)) sum = log_add(sum, forth[(t - 1) * n + s - k]);
            forth[t * n + s] = sum + x[t * c->classes + CLASS(s)];
        }
    for (int s = n > 1 ? n - 2 : 0; times > 0 && s < n; s++)
        total = log_add(total, forth[(times - 1) * n + s]);
    if (times == 0) total = length ? -INFINITY : 0;
    for (int t = times - 1; t >= 0; t--)
        for (int s = 0; s < n; s++) { /* what follows t */
            double sum = t == times - 1 && s > n - 3 ? 0 : -INFINITY;
            for (int k = 0; t < times - 1 && k <= 2 && s + k < n; k++)
                if (k < 2 || MAY_SKIP(s + 2))
                    sum = log_add(sum, back[(t + 1) * n + s + k] + x[(t + 1) * c->classes + CLASS(s + k)]);
            back[t * n + s] = sum;
            if (total > -INFINITY) slope[t * c->classes + CLASS(s)] += exp(forth[t * n + s] + sum - total);
        }
    free(forth);
    return total;
#undef MAY_SKIP
#undef CLASS
}

/* The same by every sequence of classes there is: those that are the target once repetitions and then blanks
 * are left out. */
static double align_all(const labelling *c, const double *x, int times, const int64_t *target, int length)
{
    double total = -INFINITY;
    int    path[16] = {0};
    for (bool more = true; more;) {
        double sum = 0;
        int    at = 0;
        bool   same = true;
        for (int t = 0; t < times; t++) {
            sum += x[t * c->classes + path[t]];
            if (path[t] == c->blank || (t > 0 && path[t] == path[t - 1])) continue;
            same = same && at < length && target[at] == path[t];
            at++;
        }
        if (same && at == length) total = log_add(total, sum);
        more = false;
        for (int t = 0; t < times && !more; t++) {
            more = ++path[t] < c->classes;
            if (!more) path[t] = 0;
        }
    }
    return total;
}

/* One batch: input lengths from 0 on, target lengths from 0 on, some that no alignment fits. */
static void check_batch(fixture *f, const labelling *c, gpunn_tensor *const *in, gpunn_tensor *out,
                        gpunn_tensor *w, gpunn_tensor *loss, int samples, uint32_t *seed)
{
    const int64_t nx = (int64_t)c->times * samples * c->classes;
    const int     time_step = c->batch_first ? c->classes : samples * c->classes,
              sample_step = c->batch_first ? c->times * c->classes : c->classes;
    float  *x = malloc((size_t)nx * sizeof *x), *weight = test_randoms(samples, 5, 1);
    double *row = malloc((size_t)(2 * c->times * c->classes) * sizeof *row),
           *slope = row + c->times * c->classes;
    double *costs = calloc((size_t)(nx + 2 * samples), sizeof *costs), *shares = costs + samples,
           *gradient = shares + samples;
    int64_t *targets = malloc((size_t)(samples * c->most) * sizeof *targets),
            *lengths = malloc(2 * (size_t)samples * sizeof *lengths);
    int32_t *short_lengths = malloc((size_t)samples * sizeof *short_lengths);
    double   total = 0;
    for (int i = 0; i < samples; i++) {
        lengths[i] = i == 0 ? c->times : between(seed, 0, c->times);
        int fitting = (int)(lengths[i] < c->most ? lengths[i] : c->most); /* mostly so short that it fits */
        lengths[samples + i] = i == 0 ? fitting : between(seed, 0, i % 4 == 3 ? c->most : (fitting + 1) / 2);
        for (int k = 0; k < c->most; k++) {
            int64_t label = between(seed, 0, c->kinds - 1);
            targets[i * c->most + k] = k < lengths[samples + i] ? label + (label >= c->blank)
                                                                : -7; /* what is behind is not read */
        }
        for (int t = 0; t < c->times; t++) {
            double sum = 0;
            float *to = x + t * time_step + i * sample_step;
            for (int k = 0; k < c->classes; k++) sum += exp((double)(to[k] = 3 * test_random(seed)));
            for (int k = 0; k < c->classes; k++) to[k] -= (float)log(sum);
        }
    }
    for (int i = 0; i < samples; i++) {
        const int times = (int)lengths[i], length = (int)lengths[samples + i];
        for (int t = 0; t < c->times; t++)
            for (int k = 0; k < c->classes; k++)
                row[t * c->classes + k] = x[t * time_step + i * sample_step + k];
        memset(slope, 0, (size_t)(c->times * c->classes) * sizeof *slope);
        double cost = -align(c, row, times, targets + i * c->most, length, slope);
        if (pow(c->classes, times) <= 2000) {
            double all = -align_all(c, row, times, targets + i * c->most, length);
            if (!(all == cost || fabs(all - cost) < 1e-9))
                fail_msg("%s: %g by all alignments, %g by places", geometry, all, cost);
        }
        shares[i] = c->reduction != GPUNN_REDUCE_MEAN ? 1 : 1 / ((double)samples * (length > 1 ? length : 1));
        if (isinf(cost) && c->zero_infinity) cost = shares[i] = 0;
        costs[i] = c->reduction == GPUNN_REDUCE_NONE ? cost : 0;
        total += shares[i] == 0 ? 0 : shares[i] * cost;
        double upstream = c->reduction == GPUNN_REDUCE_NONE ? (double)weight[i] : (double)weight[0];
        for (int t = 0; t < c->times; t++)
            for (int k = 0; k < c->classes; k++)
                gradient[t * time_step + i * sample_step + k] = -upstream * shares[i] *
                                                                slope[t * c->classes + k];
        short_lengths[i] = (int32_t)times;
    }
    if (c->reduction != GPUNN_REDUCE_NONE && isinf(total)) memset(gradient, 0, (size_t)nx * sizeof *gradient);
    OK(f->dev, write_floats(in[0], x, nx));
    OK(f->dev, gpunn_write(in[1], targets, (size_t)(samples * c->most) * sizeof *targets));
    OK(f->dev, gpunn_write(in[2], short_lengths, (size_t)samples * sizeof *short_lengths));
    OK(f->dev, gpunn_write(in[3], lengths + samples, (size_t)samples * sizeof *lengths));
    OK(f->dev, write_floats(w, weight, c->reduction == GPUNN_REDUCE_NONE ? samples : 1));
    OK(f->dev, gpunn_zero_grad(f->model));
    OK(f->dev, gpunn_backward(loss));
    int64_t count;
    float  *value = read_floats(f->dev, out, &count), *grad = read_gradient(f->dev, in[0]);
    if (c->reduction != GPUNN_REDUCE_NONE) costs[0] = total;
    assert_int_equal(count, c->reduction == GPUNN_REDUCE_NONE ? samples : 1);
    for (int i = 0; i < count; i++)
        if (!(isinf(costs[i]) ? (double)value[i] == costs[i]
                              : fabs(value[i] - costs[i]) <= 2e-6 * (fabs(costs[i]) + c->times)))
            fail_msg("%s: loss %d is %.9g, should be %.9g", geometry, i, (double)value[i], costs[i]);
    /* logarithms are rounded at each step */
    check_within("gradient", grad, gradient, nx, 4e-6 * sqrt(c->times));
    /* Evaluation keeps two rows only. */
    OK(f->dev, gpunn_forward(&out, 1));
    float *again = read_floats(f->dev, out, NULL);
    assert_memory_equal(again, value, (size_t)count * sizeof *again);
    free(x), free(weight), free(row), free(costs), free(targets), free(lengths), free(short_lengths);
    free(value), free(grad), free(again);
}

static void check_labelling(fixture *f, labelling c, uint32_t *seed)
{
    static const char *const reductions[] = {"mean", "sum", "none"};
    gpunn_model             *m = f->model;
    (void)snprintf(geometry, sizeof geometry,
                   "times %d samples %d classes %d labels %d of %d kinds blank %d %s%s%s", c.times, c.samples,
                   c.classes, c.most, c.kinds, c.blank, reductions[c.reduction],
                   c.batch_first ? " batch first" : "", c.zero_infinity ? " zero infinity" : "");
    gpunn_shape   shape = c.batch_first ? GPUNN_SHAPE(GPUNN_BATCH, c.times, c.classes)
                                        : GPUNN_SHAPE(c.times, GPUNN_BATCH, c.classes);
    gpunn_tensor *in[4] = {gpunn_input(m, "x", GPUNN_F32, shape),
                           gpunn_input(m, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, c.most)),
                           gpunn_input(m, "i", GPUNN_I32, GPUNN_SHAPE(GPUNN_BATCH)),
                           gpunn_input(m, "l", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH))};
    MADE(f->dev, gpunn_retain_grad(in[0]));
    gpunn_tensor *out = gpunn_keep(
        MADE(f->dev, gpunn_ctc_loss(in[0], in[1], in[2], in[3], .reduction = c.reduction, .blank = c.blank,
                                    .zero_infinity = c.zero_infinity, .batch_first = c.batch_first)));
    gpunn_tensor *w = gpunn_input(
        m, "w", GPUNN_F32, c.reduction == GPUNN_REDUCE_NONE ? GPUNN_SHAPE(GPUNN_BATCH) : GPUNN_SHAPE(1));
    gpunn_tensor *finite = gpunn_expr("where(x < 1e30, x, 0)", &out, 1); /* an infinite loss is an error */
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(gpunn_mul(finite, w), GPUNN_ALL, false));
    check_batch(f, &c, in, out, w, loss, c.samples, seed);
    check_batch(f, &c, in, out, w, loss, (c.samples + 1) / 2, seed); /* the last, partial batch */
}

static void test_ctc_loss(void **state)
{
    fixture         *f = *state;
    static const int times[] = {1, 2, 3, 5, 8, 9, 16, 17, 31, 33, 65},
                     classes[] = {2, 3, 4, 5, 16, 31, 33, 128, 129};
    static const int       most[] = {1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33};
    static const labelling large[] = {{600, 2, 1000, 90, 999, 900, GPUNN_REDUCE_MEAN, false, false},
                                      {150, 3, 129, 140, 64, 2, GPUNN_REDUCE_NONE, true, true},
                                      {257, 33, 5, 63, 2, 4, GPUNN_REDUCE_SUM, false, true}};
    uint32_t               seed = 83;
    for (int i = 0; i < (is_emulated(f->backend) ? followed(40) : 160); i++) {
        labelling c = {i % 3 ? times[between(&seed, 0, COUNT(times) - 1)] : between(&seed, 1, 6),
                       between(&seed, 1, 9),
                       i % 3 ? classes[between(&seed, 0, COUNT(classes) - 1)] : between(&seed, 2, 3),
                       i % 3 ? most[between(&seed, 0, COUNT(most) - 1)] : between(&seed, 1, 4),
                       0,
                       0,
                       (gpunn_reduction)between(&seed, GPUNN_REDUCE_MEAN, GPUNN_REDUCE_NONE),
                       i % 2,
                       i % 5 > 1};
        c.blank = i % 4 ? between(&seed, 0, c.classes - 1) : 0;
        c.kinds = between(&seed, 1, c.classes - 1 < 4 ? c.classes - 1 : 4);
        next_model(f);
        check_labelling(f, c, &seed);
    }
    for (int i = is_emulated(f->backend); i < COUNT(large); i++) {
        next_model(f);
        check_labelling(f, large[i], &seed);
    }
}

/* ---- initial values: the same numbers in each build, from words of Philox as its authors have it ---- */
static void philox(uint64_t key, uint32_t counter[4])
{
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++, key0 += 0x9E3779B9u, key1 += 0xBB67AE85u) {
        const uint64_t first = UINT64_C(0xD2511F53) * counter[0], second = UINT64_C(0xCD9E8D57) * counter[2];
        counter[0] = (uint32_t)(second >> 32) ^ counter[1] ^ key0;
        counter[1] = (uint32_t)second;
        counter[2] = (uint32_t)(first >> 32) ^ counter[3] ^ key1;
        counter[3] = (uint32_t)first;
    }
}

static double initial_value(gpunn_init init, uint64_t seed, uint32_t id, int64_t i)
{
    uint32_t word[4] = {(uint32_t)(i / 4), id, (uint32_t)(i / 4 >> 32), 0x80000000u};
    philox(seed, word);
    const double low = (double)init.a, high = (double)init.b, all = 4294967296.0;
    if (init.kind == GPUNN_INIT_UNIFORM)
        return low + (high - low) * ((double)(word[i % 4] >> 8) / 16777216.0);
    const double radius = sqrt(-2 * log(((double)word[i & 2] + 1) / all));
    const double angle = (double)word[(i & 2) + 1] * (2 * acos(-1.0) / all);
    return low + high * radius * (i % 2 ? sin(angle) : cos(angle));
}

static void test_initial_values(void **state)
{
    fixture         *f = *state;
    const gpunn_init kinds[] = {
        {GPUNN_INIT_NORMAL, 0, 1}, {GPUNN_INIT_NORMAL, 0.5f, 2}, {GPUNN_INIT_UNIFORM, -1, 3}};
    const int sizes[] = {1, 2, 3, 63, 64, 65, 255, 257, (1 << 18) + 5};
    uint64_t  hash = UINT64_C(0xcbf29ce484222325);
    uint32_t  id = 0;
    for (int k = 0; k < COUNT(kinds); k++)
        for (int i = 0; i < COUNT(sizes); i++, id++) {
            char    name[32];
            int64_t n;
            (void)snprintf(name, sizeof name, "p%u", id);
            gpunn_tensor *p = MADE(f->dev, gpunn_parameter(f->model, name, GPUNN_SHAPE(sizes[i]), kinds[k]));
            float        *values = read_floats(f->dev, p, &n);
            for (int64_t at = 0; at < n; at++) {
                const double wanted = initial_value(kinds[k], 1, id, at);
                uint32_t     bits;
                memcpy(&bits, &values[at], sizeof bits);
                hash = (hash ^ bits) * UINT64_C(0x100000001B3);
                if (!(fabs((double)values[at] - wanted) <= 1.2e-7 * fabs(wanted)))
                    fail_msg("%s: number %d is %.9g, not %.9g", name, (int)at, (double)values[at], wanted);
            }
            free(values);
        }
    if (hash != UINT64_C(0x2da404be7bb11b81))
        fail_msg("the numbers have the hash 0x%llx", (unsigned long long)hash);
}

int main(void)
{
    static struct CMUnitTest tests[64];
    int                      count = 0;
    count += each_backend(tests + count, "linear", test_linear, NULL);
    count += each_backend(tests + count, "rows of small layers", test_small_rows, NULL);
    count += each_backend(tests + count, "matmul", test_matmul, NULL);
    count += each_backend(tests + count, "conv1d", test_conv1d, NULL);
    count += each_backend(tests + count, "conv2d", test_conv2d, NULL);
    count += each_backend(tests + count, "conv3d", test_conv3d, NULL);
    count += each_backend(tests + count, "conv_transpose1d", test_conv_transpose1d, NULL);
    count += each_backend(tests + count, "conv_transpose2d", test_conv_transpose2d, NULL);
    count += each_backend(tests + count, "conv_transpose3d", test_conv_transpose3d, NULL);
    count += each_backend(tests + count, "pooling", test_pool, NULL);
    count += each_backend(tests + count, "pools, interpolation and padding", test_maps, NULL);
    count += each_backend(tests + count, "grid_sample", test_grid_sample, NULL);
    count += each_backend(tests + count, "grid_sample of what is no number", test_grid_sample_special, NULL);
    count += each_backend(tests + count, "grid_sample between cells", test_grid_sample_ties, NULL);
    count += each_backend(tests + count, "grid_sample of a constant", test_grid_alone, NULL);
    const struct CMUnitTest alone[] = {
        cmocka_unit_test(test_linear_evaluation), cmocka_unit_test(test_grid_sample_threads),
        cmocka_unit_test(test_attention_threads), cmocka_unit_test(test_roi_align_threads),
        cmocka_unit_test(test_recurrent_threads)};
    for (int i = 0; i < COUNT(alone); i++) tests[count++] = alone[i];
    count += each_backend(tests + count, "initial values", test_initial_values, NULL);
    count += each_backend(tests + count, "rows", test_rows, NULL);
    count += each_backend(tests + count, "norms of one value", test_norms_of_one, NULL);
    count += each_backend(tests + count, "embedding", test_words, NULL);
    count += each_backend(tests + count, "gather", test_gather, NULL);
    count += each_backend(tests + count, "ops of integers", test_integers, NULL);
    count += each_backend(tests + count, "lengths", test_lengths, NULL);
    count += each_backend(tests + count, "attention", test_attention, NULL);
    count += each_backend(tests + count, "attention to one key of all", test_attention_saturated, NULL);
    count += each_backend(tests + count, "attention behind a far mask", test_attention_far_mask, NULL);
    count += each_backend(tests + count, "attention with dropout", test_attention_dropout, NULL);
    count += each_backend(tests + count, "attention with a learned mask", test_learned_mask, NULL);
    count += each_backend(tests + count, "rnn, lstm and gru", test_recurrent, NULL);
    count += each_backend(tests + count, "cumsum, topk and copies", test_lines, NULL);
    count += each_backend(tests + count, "argmax of rows", test_argmax_rows, NULL);
    count += each_backend(tests + count, "topk of long lines", test_orders, NULL);
    count += each_backend(tests + count, "sample", test_drawings, NULL);
    count += each_backend(tests + count, "sample of extremes", test_drawings_of_extremes, NULL);
    count += each_backend(tests + count, "sums at indices", test_additions, NULL);
    count += each_backend(tests + count, "sum, mean and max", test_reductions, NULL);
    count += each_backend(tests + count, "group_norm", test_groups, NULL);
    count += each_backend(tests + count, "batch_norm, residual and relu", test_normed, NULL);
    count += each_backend(tests + count, "ctc_loss", test_ctc_loss, NULL);
    count += missing_backends(tests + count);
    return _cmocka_run_group_tests("reference", tests, (size_t)count, NULL, NULL);
}
