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

/* The squeeze of a squeeze-and-excite. */
static gpunn_tensor *global_mean(gpunn_tensor *x)
{
    return gpunn_adaptive_avg_pool2d(few_pixels(x), 1, 1);
}

static gpunn_tensor *norm(gpunn_tensor *x)
{
    return gpunn_batch_norm2d(gpunn_relu(few_pixels(x)), "norm");
}

static double share(gpunn_device *dev, gpunn_tensor **y)
{
    memset(blocks, 0, sizeof blocks);
    OK(dev, gpunn_forward(y, 1));
    const double most = (double)(blocks[0] > blocks[1] ? blocks[0] : blocks[1]);
    return most / (double)(blocks[0] + blocks[1]);
}

/* The first runs start the threads and pack the weights. */
static void test_share(void **state)
{
    const network *n = (const network *)*state;
    gpunn_device  *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = THREADS);
    gpunn_model   *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor  *x = MADE(dev,
                            gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(1, n->channels, n->side, n->side))),
                 *y = MADE(dev, n->of(x));
    const int64_t count = (int64_t)n->channels * n->side * n->side;
    float        *values = test_randoms(count, 1, 1);
    OK(dev, write_floats(x, values, count));
    free(values);
    mine = NULL, seen = 0;
    (void)share(dev, &y);
    const double largest = share(dev, &y);
    if (!(largest <= 0.56)) fail_msg("one of two threads computes %.0f %%", 100 * largest);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

#define SHARE(name, channels, side)               \
    {                                             \
#name, test_share, NULL, NULL, &(network) \
        {                                         \
            channels, side, name                  \
        }                                         \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {SHARE(many_products, 512, 13), SHARE(few_pixels, 96, 7),
                                       SHARE(windows, 64, 29),        SHARE(winograd, 128, 56),
                                       SHARE(few_channels, 3, 81),    SHARE(depthwise, 96, 7),
                                       SHARE(global_mean, 64, 28),    SHARE(norm, 16, 28)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
