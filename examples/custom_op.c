/* custom_op.c - an activation of the program's own, snake(x) = x + sin(a x)^2 / a with a trained a for
 * each feature, in a network.
 *
 * Shows: an op with operands and gradients of its own, in C and, where the compiler knows CUDA, as kernels
 *        (gpunn_custom); the same as a formula (gpunn_expr); and that formula fused by the generator,
 *        without writing CUDA.
 * First: python3 -m generator examples/kernels/custom_op.json -o examples/kernels/custom_op
 * Build: cc -O3 -march=native -I. examples/custom_op.c -o custom_op -lm
 *        nvcc -O3 -arch=native -std=c++17 -I. -x cu examples/custom_op.c \
 *             examples/kernels/custom_op_kernels.cu gpunn_cuda.cu -o custom_op
 * Run:   ./custom_op
 *        ./custom_op --spec FILE.json only writes the formula's model, examples/kernels/custom_op.json.
 * Expect: three times nearly the same losses, falling from about 0.5 to below 0.001, and the times of a
 *         step: the generated kernels are the quickest.
 * Time:  less than a second on two cores.
 * Next:  an activation of your own: its formula in activation(), its C in snake_forward and
 *        snake_backward. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#define CUSTOM_OP_KERNELS_IMPLEMENTATION
#include "kernels/custom_op_kernels.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SAMPLES = 256, FEATURES = 32, STEPS = 300 };

/* ---- the op: x [n, features], a [features] ---- */
static bool snake_shape(const gpunn_shape *inputs, const float *numbers, gpunn_shape *result)
{
    (void)numbers, (void)result; /* which is x's already */
    return inputs[0].dim[2] == 0 && inputs[1].dim[1] == 0 && inputs[0].dim[1] == inputs[1].dim[0];
}

static int snake_forward(const gpunn_custom_call *call)
{
    const float  *x = (const float *)call->in[0].data, *a = (const float *)call->in[1].data;
    const int64_t rows = call->in[0].dim[0], features = call->in[0].dim[1];
    float        *y = (float *)call->out->data;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t f = 0; f < features; f++) {
            float at = x[r * features + f], s = sinf(a[f] * at);
            y[r * features + f] = at + s * s / a[f];
        }
    return 0;
}

/* dx = g (1 + sin(2 a x)); da = the sum over n of g (x sin(2 a x) - sin(a x)^2 / a) / a. */
static int snake_backward(const gpunn_custom_call *call)
{
    const float  *x = (const float *)call->in[0].data, *a = (const float *)call->in[1].data;
    const float  *g = (const float *)call->grad_out->data;
    const int64_t rows = call->in[0].dim[0], features = call->in[0].dim[1];
    float        *dx = (float *)call->grad_in[0].data, *da = (float *)call->grad_in[1].data;
    for (int64_t f = 0; f < features; f++) {
        float sum = 0;
        for (int64_t r = 0; r < rows; r++) {
            float at = x[r * features + f], s = sinf(a[f] * at), slope = sinf(2 * a[f] * at);
            if (dx) dx[r * features + f] = g[r * features + f] * (1 + slope);
            sum += g[r * features + f] * (at * slope - s * s / a[f]) / a[f];
        }
        if (da) da[f] = sum;
    }
    return 0;
}

#ifdef __CUDACC__
static __global__ void snake_kernel(const float *x, const float *a, float *y, int64_t count, int64_t features)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= count) return;
    float s = sinf(a[i % features] * x[i]);
    y[i] = x[i] + s * s / a[i % features];
}

/* A thread a feature, which adds up in the order of the rows: the same bits at every run. */
static __global__ void snake_backward_kernel(const float *x, const float *a, const float *g, float *dx,
                                             float *da, int64_t rows, int64_t features)
{
    int64_t f = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    float   sum = 0;
    for (int64_t r = 0; f < features && r < rows; r++) {
        int64_t i = r * features + f;
        float   s = sinf(a[f] * x[i]), slope = sinf(2 * a[f] * x[i]);
        if (dx) dx[i] = g[i] * (1 + slope);
        sum += g[i] * (x[i] * slope - s * s / a[f]) / a[f];
    }
    if (f < features && da) da[f] = sum;
}

static int snake_cuda_forward(const gpunn_custom_call *call)
{
    int64_t count = call->out->count;
    snake_kernel<<<(unsigned)((count + 255) / 256), 256, 0, (cudaStream_t)call->stream>>>(
        (const float *)call->in[0].data, (const float *)call->in[1].data, (float *)call->out->data, count,
        call->in[0].dim[1]);
    return (int)cudaGetLastError();
}

static int snake_cuda_backward(const gpunn_custom_call *call)
{
    int64_t rows = call->in[0].dim[0], features = call->in[0].dim[1];
    snake_backward_kernel<<<(unsigned)((features + 31) / 32), 32, 0, (cudaStream_t)call->stream>>>(
        (const float *)call->in[0].data, (const float *)call->in[1].data, (const float *)call->grad_out->data,
        (float *)call->grad_in[0].data, (float *)call->grad_in[1].data, rows, features);
    return (int)cudaGetLastError();
}
#else
#define snake_cuda_forward NULL
#define snake_cuda_backward NULL
#endif

static const gpunn_custom_op snake = {
    "snake", 2,    snake_shape, snake_forward, snake_backward, snake_cuda_forward, snake_cuda_backward,
    0,       NULL, NULL};

/* ---- the network ---- */
static gpunn_tensor *activation(gpunn_model *model, gpunn_tensor *x, const char *name, bool own)
{
    gpunn_init    ones = {GPUNN_INIT_CONSTANT, 1, 0};
    gpunn_tensor *pair[] = {x, gpunn_parameter(model, name, GPUNN_SHAPE(FEATURES), ones)};
    return own ? gpunn_custom(&snake, pair) : gpunn_expr("x + sin(y * x) ** 2 / y", pair, 2);
}

typedef struct network {
    gpunn_tensor    *x, *t, *y, *loss;
    gpunn_optimizer *opt;
} network;

static network network_make(gpunn_model *model, bool own)
{
    network n;
    n.x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    n.t = gpunn_input(model, "t", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    gpunn_tensor *h = activation(model, gpunn_linear(n.x, "fc1", .out_features = FEATURES), "a1", own);
    h = activation(model, gpunn_linear(h, "fc2", .out_features = FEATURES), "a2", own);
    n.y = gpunn_linear(h, "fc3", .out_features = 1);
    n.loss = gpunn_mse_loss(n.y, n.t);
    n.opt = gpunn_adam(model, .lr = 0.01f);
    return n;
}

static double now(void)
{
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static gpunn_status train(gpunn_device *dev, const network *n, float *losses, double *milliseconds)
{
    static float x[SAMPLES], t[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        x[i] = 4 * (float)i / SAMPLES - 2;
        t[i] = sinf(3 * x[i]) + 0.3f * x[i];
    }
    gpunn_status status = gpunn_write(n->x, x, sizeof x);
    if (status == GPUNN_OK) status = gpunn_write(n->t, t, sizeof t);
    double start = 0;
    int    noted = 0;
    for (int step = 0; step < STEPS && status == GPUNN_OK; step++) {
        if (step == 100) start = now();
        status = gpunn_train_step(n->opt, n->loss);
        if (status == GPUNN_OK && (step == 0 || step == 99 || step == STEPS - 1))
            losses[noted++] = gpunn_item(n->loss);
    }
    if (status == GPUNN_OK) status = gpunn_synchronize(dev);
    *milliseconds = 1e3 * (now() - start) / (STEPS - 100);
    return status;
}

/* The own op's network says what the others start from. */
static gpunn_status start_alike(gpunn_model *model, bool first)
{
    static float values[8][FEATURES * FEATURES];
    gpunn_status status = GPUNN_OK;
    for (int i = 0; i < gpunn_parameter_count(model) && status == GPUNN_OK; i++) {
        gpunn_tensor *p = gpunn_parameter_at(model, i);
        size_t        bytes = gpunn_tensor_bytes(p);
        status = first ? gpunn_read(p, values[i], bytes) : gpunn_write(p, values[i], bytes);
    }
    return status;
}

static bool run(gpunn_device *dev, const char *name, bool own, bool fused, float *losses)
{
    gpunn_model *model = gpunn_model_create(dev);
    network      n = network_make(model, own);
    gpunn_status status = gpunn_last_status(dev);
    double       milliseconds = 0;
    if (status == GPUNN_OK && fused) status = gpunn_use_kernels(model, &custom_op_kernels);
    if (status == GPUNN_OK) status = start_alike(model, own);
    if (status == GPUNN_OK) status = train(dev, &n, losses, &milliseconds);
    if (status == GPUNN_OK)
        printf("  %-11s %9.6f %9.6f %9.6f %10.3f\n", name, (double)losses[0], (double)losses[1],
               (double)losses[2], milliseconds);
    else
        fprintf(stderr, "%s\n", gpunn_error(dev));
    gpunn_optimizer_destroy(n.opt);
    gpunn_model_destroy(model);
    return status == GPUNN_OK;
}

/* The three ways on one device; false after a failure or where they differ. */
static bool run_all(gpunn_device_type type)
{
    float                    losses[3][3];
    bool                     good = true;
    static const char *const names[] = {"own op", "gpunn_expr", "generated"};
    gpunn_device            *dev = NULL;
    for (int way = 0; way < 3 && good; way++) {
        dev = gpunn_device_open(.type = type, .seed = 7);
        if (dev == NULL) {
            fprintf(stderr, "%s\n", gpunn_error(NULL));
            return false;
        }
        if (way == 0)
            printf("%s\n  %-11s %9s %9s %9s %10s\n", gpunn_device_name(dev), "loss at", "step 1", "step 100",
                   "step 300", "ms a step");
        good = run(dev, names[way], way == 0, way == 2, losses[way]);
        gpunn_device_close(dev);
        float difference = good ? losses[way][1] - losses[0][1] : 0;
        if (difference > 1e-3f || difference < -1e-3f) {
            fprintf(stderr, "%s trains otherwise than the op of one's own\n", names[way]);
            good = false;
        }
    }
    return good;
}

static int write_spec(const char *path)
{
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU);
    gpunn_model  *model = gpunn_model_create(dev);
    network       n = network_make(model, false);
    gpunn_status  status = gpunn_spec_save(model, path, .outputs = {n.y}, .loss = n.loss, .optimizer = n.opt);
    if (status != GPUNN_OK) fprintf(stderr, "%s\n", gpunn_error(dev));
    gpunn_optimizer_destroy(n.opt);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return status == GPUNN_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    const char  *spec = NULL;
    const option known[] = {
        {"--spec FILE.json", "only writes the formula's model, for python3 -m generator", .text = &spec}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    if (spec) return write_spec(spec);
    bool good = run_all(GPUNN_DEVICE_CPU);
    if (good && gpunn_cuda_device_count() > 0)
        good = run_all(GPUNN_DEVICE_CUDA);
    else if (good)
        printf("no GPU, or no gpunn_cuda.cu on the compile line: the CPU alone\n");
    return good ? 0 : 1;
}
