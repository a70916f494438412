/* vector_add.c - adds two vectors with a CUDA kernel of the program's own, and times it against the CPU,
 * transfers included.
 *
 * Shows: an op of your own (gpunn_custom) with C functions and, where the compiler knows CUDA, kernels;
 *        its gradient; the same as a formula (gpunn_expr), for which nobody writes CUDA; what a GPU's time
 *        is spent on.
 * Build: cc -O3 -march=native -I. examples/vector_add.c -o vector_add -lm
 *        nvcc -O3 -arch=native -std=c++17 -I. -x cu examples/vector_add.c gpunn_cuda.cu -o vector_add
 * Run:   ./vector_add [--count N] [--runs N]
 * Expect: kernel and formula give the same sums and gradients; on a GPU the addition is far quicker than
 *         carrying the vectors there and back.
 * Time:  less than a second on two cores.
 * Next:  --count N; custom_op.c trains an op of your own. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the op: y = a + b ---- */
static int add_forward(const gpunn_custom_call *call)
{
    const float *a = (const float *)call->in[0].data, *b = (const float *)call->in[1].data;
    float       *y = (float *)call->out->data;
    for (int64_t i = 0; i < call->out->count; i++) y[i] = a[i] + b[i];
    return 0;
}

/* Both operands have the result's gradient; data NULL: not wanted. */
static int add_backward(const gpunn_custom_call *call)
{
    for (int k = 0; k < 2; k++)
        if (call->grad_in[k].data)
            memcpy(call->grad_in[k].data, call->grad_out->data,
                   (size_t)call->grad_out->count * sizeof(float));
    return 0;
}

#ifdef __CUDACC__
static __global__ void add_kernel(const float *a, const float *b, float *y, int64_t count)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < count) y[i] = a[i] + b[i];
}

static int add_cuda_forward(const gpunn_custom_call *call)
{
    int64_t  count = call->out->count;
    unsigned blocks = (unsigned)((count + 255) / 256);
    add_kernel<<<blocks, 256, 0, (cudaStream_t)call->stream>>>(
        (const float *)call->in[0].data, (const float *)call->in[1].data, (float *)call->out->data, count);
    return (int)cudaGetLastError();
}

static int add_cuda_backward(const gpunn_custom_call *call)
{
    size_t bytes = (size_t)call->grad_out->count * sizeof(float);
    for (int k = 0; k < 2; k++) {
        if (call->grad_in[k].data == NULL) continue;
        cudaError_t error = cudaMemcpyAsync(call->grad_in[k].data, call->grad_out->data, bytes,
                                            cudaMemcpyDeviceToDevice, (cudaStream_t)call->stream);
        if (error != cudaSuccess) return (int)error;
    }
    return 0;
}
#else
#define add_cuda_forward NULL
#define add_cuda_backward NULL
#endif

static const gpunn_custom_op vector_add = {
    "vector_add", 2, NULL, add_forward, add_backward, add_cuda_forward, add_cuda_backward, 0, NULL, NULL};

/* ---- trying it out ---- */
static double now(void)
{
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct trial {
    gpunn_tensor *a, *b, *y, *loss; /* loss: the sum of y^2, so that the gradient of a is 2 y */
} trial;

static trial trial_make(gpunn_model *model, int64_t count, bool own)
{
    trial t;
    t.a = gpunn_retain_grad(gpunn_input(model, "a", GPUNN_F32, GPUNN_SHAPE(count)));
    t.b = gpunn_input(model, "b", GPUNN_F32, GPUNN_SHAPE(count));
    gpunn_tensor *pair[] = {t.a, t.b};
    t.y = own ? gpunn_custom(&vector_add, pair) : gpunn_expr("x + y", pair, 2);
    t.loss = gpunn_sum(gpunn_square(t.y), GPUNN_ALL, false);
    return t;
}

/* Milliseconds a run. results: y, then the gradient of a. */
static gpunn_status trial_run(gpunn_device *dev, const trial *t, const float *a, const float *b,
                              int64_t count, int runs, float *results, double *there, double *adding,
                              double *back)
{
    const size_t bytes = (size_t)count * sizeof(float);
    gpunn_status status = GPUNN_OK;
    *there = *adding = *back = 0;
    for (int run = -3; run < runs && status == GPUNN_OK; run++) { /* the first three plan, warm up, capture */
        double start = now(), wrote, added;
        status = gpunn_write(t->a, a, bytes);
        if (status == GPUNN_OK) status = gpunn_write(t->b, b, bytes);
        if (status == GPUNN_OK) status = gpunn_synchronize(dev);
        wrote = now();
        if (status == GPUNN_OK) status = gpunn_forward(&t->y, 1);
        if (status == GPUNN_OK) status = gpunn_synchronize(dev);
        added = now();
        if (status == GPUNN_OK) status = gpunn_read(t->y, results, bytes);
        if (run < 0) continue;
        *there += 1e3 * (wrote - start) / runs;
        *adding += 1e3 * (added - wrote) / runs;
        *back += 1e3 * (now() - added) / runs;
    }
    if (status == GPUNN_OK) status = gpunn_backward(t->loss);
    return status == GPUNN_OK ? gpunn_read_grad(t->a, results + count, bytes) : status;
}

/* Both ways on one device, compared; false after a failure. */
static bool try_device(gpunn_device *dev, const float *a, const float *b, int64_t count, int runs, float *own,
                       float *formula)
{
    static const char *const names[] = {"gpunn_expr", "own kernel"};
    printf("%s\n  %-12s %10s %10s %10s %10s\n", gpunn_device_name(dev), "", "to, ms", "add, ms", "from, ms",
           "all, ms");
    for (int way = 0; way < 2; way++) {
        gpunn_model *model = gpunn_model_create(dev);
        trial        t = trial_make(model, count, way == 1);
        gpunn_status status = gpunn_last_status(dev);
        double       there = 0, adding = 0, back = 0;
        if (status == GPUNN_OK)
            status = trial_run(dev, &t, a, b, count, runs, way ? own : formula, &there, &adding, &back);
        gpunn_model_destroy(model);
        if (status != GPUNN_OK) {
            fprintf(stderr, "%s\n", gpunn_error(dev));
            return false;
        }
        printf("  %-12s %10.3f %10.3f %10.3f %10.3f\n", names[way], there, adding, back,
               there + adding + back);
    }
    double sums = 0, gradients = 0;
    for (int64_t i = 0; i < count; i++) {
        double difference = (double)own[i] - (double)formula[i],
               of_gradient = (double)own[count + i] - (double)formula[count + i];
        sums = difference > sums ? difference : -difference > sums ? -difference : sums;
        gradients = of_gradient > gradients    ? of_gradient
                    : -of_gradient > gradients ? -of_gradient
                                               : gradients;
    }
    printf("  greatest difference: sums %g, gradients %g\n", sums, gradients);
    return sums == 0 && gradients == 0;
}

int main(int argc, char **argv)
{
    int          count = 1 << 20, runs = 20;
    const option known[] = {{"--count N", "elements of a vector", .number = &count, .lowest = 1},
                            {"--runs N", "how often each time is taken", .number = &runs, .lowest = 1}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    float *a = (float *)malloc((size_t)count * 6 * sizeof *a);
    if (a == NULL) {
        fprintf(stderr, "no memory for vectors of %d numbers\n", count);
        return 1;
    }
    float *b = a + count, *own = b + count, *formula = own + 2 * (size_t)count;
    for (int i = 0; i < count; i++) {
        a[i] = (float)(i % 1000) * 0.25f;
        b[i] = (float)(i % 77) - 30;
    }
    bool good = true;
    printf("vectors of %d numbers, means of %d runs\n", count, runs);
    for (int gpu = 0; gpu < 2; gpu++) {
        if (gpu && gpunn_cuda_device_count() == 0) {
            printf("no GPU, or no gpunn_cuda.cu on the compile line: the CPU alone\n");
            break;
        }
        gpunn_device *dev = gpunn_device_open(.type = gpu ? GPUNN_DEVICE_CUDA : GPUNN_DEVICE_CPU);
        if (dev == NULL) fprintf(stderr, "%s\n", gpunn_error(NULL));
        good = good && dev && try_device(dev, a, b, count, runs, own, formula);
        gpunn_device_close(dev);
    }
    free(a);
    return good ? 0 : 1;
}
