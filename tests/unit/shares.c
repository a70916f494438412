/* How evenly two threads share the work of one image. The kernels of the library are compiled to count their
 * basic blocks as they run, so no clock is needed; waiting threads count nothing. */
#include "../test.h"

enum { THREADS = 2 };
static uint64_t                blocks[THREADS];
static int                     seen;
static _Thread_local uint64_t *mine; /* of `blocks` */

void __sanitizer_cov_trace_pc(void); /* the compiler calls it in each block of the kernels */
void __sanitizer_cov_trace_pc(void)
{
    if (mine == NULL) mine = &blocks[__atomic_fetch_add(&seen, 1, __ATOMIC_SEQ_CST) % THREADS];
    ++*mine;
}

typedef struct network {
    int channels, side; /* of the image */
    gpunn_tensor *(*of)(gpunn_tensor *x);
} network;

static gpunn_tensor *many_products(gpunn_tensor *x)
{
    return gpunn_conv2d(x, "conv", .out_channels = 48, .kernel_size = 1);
}

static gpunn_tensor *few_pixels(gpunn_tensor *x)
{
    return gpunn_silu(gpunn_conv2d(x, "conv", .out_channels = 144, .kernel_size = 1));
}

static gpunn_tensor *windows(gpunn_tensor *x)
{
    return gpunn_conv2d(x, "conv", .out_channels = 48, .kernel_size = 3, .stride = 2);
}

static gpunn_tensor *winograd(gpunn_tensor *x)
{
    return gpunn_conv2d(x, "conv", .out_channels = 32, .kernel_size = 3, .padding = 1);
}

static gpunn_tensor *few_channels(gpunn_tensor *x)
{
    return gpunn_conv2d(x, "conv", .out_channels = 24, .kernel_size = 3, .stride = 2);
}

static gpunn_tensor *depthwise(gpunn_tensor *x)
{
    return gpunn_conv2d(x, "conv", .out_channels = 96, .groups = 96, .kernel_size = 5, .padding = 2);
}

/* The block of a MobileNet, whose first results are large. */
static gpunn_tensor *inverted(gpunn_tensor *x)
{
    gpunn_tensor *h = gpunn_silu(gpunn_conv2d(x, "wide", .out_channels = 128, .kernel_size = 1));
    h = gpunn_silu(
        gpunn_conv2d(h, "deep", .out_channels = 128, .groups = 128, .kernel_size = 3, .stride = 2));
    return gpunn_conv2d(h, "narrow", .out_channels = 24, .kernel_size = 1);
}

/* The squeeze of a squeeze-and-excite. */
static gpunn_tensor *global_mean(gpunn_tensor *x)
{
    return gpunn_adaptive_avg_pool2d(few_pixels(x), 1, 1);
}

static gpunn_tensor *norm(gpunn_tensor *x)
{
    return gpunn_batch_norm2d(gpunn_relu(few_pixels(x)), "norm");
}

typedef struct built {
    gpunn_device *dev;
    gpunn_model  *model;
    gpunn_tensor *x, *y;
} built;

static built build(const network *n, int threads)
{
    const int64_t count = (int64_t)n->channels * n->side * n->side;
    float        *values = test_randoms(count, 1, 1);
    built         b;
    b.dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = threads, .seed = 3);
    b.model = MADE(b.dev, gpunn_model_create(b.dev));
    b.x = MADE(b.dev, gpunn_input(b.model, "x", GPUNN_F32, GPUNN_SHAPE(1, n->channels, n->side, n->side)));
    b.y = MADE(b.dev, n->of(b.x));
    OK(b.dev, write_floats(b.x, values, count));
    free(values);
    return b;
}

static void end(built *b)
{
    gpunn_model_destroy(b->model);
    gpunn_device_close(b->dev);
}

static double share(built *b)
{
    memset(blocks, 0, sizeof blocks);
    OK(b->dev, gpunn_forward(&b->y, 1));
    const double most = (double)(blocks[0] > blocks[1] ? blocks[0] : blocks[1]);
    return most / (double)(blocks[0] + blocks[1]);
}

/* The first run starts the threads and packs the weights. */
static void test_share(void **state)
{
    built b = build((const network *)*state, THREADS);
    mine = NULL, seen = 0;
    (void)share(&b);
    const double largest = share(&b);
    if (!(largest <= 0.56)) fail_msg("one of two threads computes %.0f %%", 100 * largest);
    end(&b);
}

/* The results of an evaluation before and after a training step, by `threads` threads. */
static char *results(const network *n, int threads, size_t *bytes)
{
    built            b = build(n, threads);
    gpunn_tensor    *loss = MADE(b.dev, gpunn_mean(gpunn_silu(b.y), GPUNN_ALL, false));
    gpunn_optimizer *opt = MADE(b.dev, gpunn_sgd(b.model, .lr = 0.1f));
    *bytes = gpunn_tensor_bytes(b.y);
    char *values = (char *)malloc(2 * *bytes);
    for (int i = 0; i < 2; i++) {
        OK(b.dev, gpunn_forward(&b.y, 1));
        OK(b.dev, gpunn_read(b.y, values + (size_t)i * *bytes, *bytes));
        OK(b.dev, gpunn_train_step(opt, loss));
    }
    gpunn_optimizer_destroy(opt);
    end(&b);
    return values;
}

/* Threads change no bit. */
static void test_bits(void **state)
{
    const network *n = (const network *)*state;
    size_t         bytes;
    char *const    one = results(n, 1, &bytes);
    assert_memory_not_equal(one, one + bytes, bytes);
    for (int threads = 2; threads <= 3; threads++) {
        char *more = results(n, threads, &bytes);
        assert_memory_equal(one, more, 2 * bytes);
        free(more);
    }
    free(one);
}

#define SHARE(name, channels, side)                                    \
    {#name, test_share, NULL, NULL, &(network){channels, side, name}}, \
    {                                                                  \
#name "_bits", test_bits, NULL, NULL, &(network)               \
        {                                                              \
            channels, side, name                                       \
        }                                                              \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        SHARE(many_products, 512, 13), SHARE(few_pixels, 96, 7),   SHARE(windows, 32, 49),
        SHARE(winograd, 128, 56),      SHARE(few_channels, 3, 81), SHARE(depthwise, 96, 7),
        SHARE(global_mean, 128, 24),   SHARE(norm, 16, 28),        SHARE(inverted, 8, 81)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
