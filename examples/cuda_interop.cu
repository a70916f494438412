/* cuda_interop.cu - a CUDA solver of the heat equation, and a network that learns its step beside it, on
 * the GPU alone.
 *
 * Shows: gpunn in a CUDA program: its stream (gpunn_device_open(.stream)), its memory as the network's
 *        input and target (gpunn_bind), two buffers that take turns, and no copy to or from the host while
 *        it trains.
 * Build: nvcc -O3 -arch=native -std=c++17 -I. examples/cuda_interop.cu gpunn_cuda.cu -o cuda_interop
 * Run:   ./cuda_interop [steps]
 * Expect: after 2000 steps the filter of the convolution is the solver's stencil: 0.2 beside, 0.2 in the
 *         middle, 0 at the corners.
 * Time:  about a second on one core and an H200.
 * Next:  a solver of your own: its stream to gpunn_device_open, its arrays to gpunn_bind. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 64, CELLS = SIZE * SIZE, THREADS = 128, BLOCKS = CELLS / THREADS };
static const float rate = 0.2f; /* diffusivity times time step over cell area; stable up to 0.25 */

/* Heat that appears here and there, so that the field never comes to rest. */
static __global__ void ignite(float *field, unsigned step)
{
    unsigned cell = blockIdx.x * blockDim.x + threadIdx.x, noise = (cell ^ step * 2654435769u) * 2246822519u;
    noise = (noise ^ noise >> 15) * 3266489917u;
    if (noise >> 16 < 4000) field[cell] += (float)(noise & 0xFFFF) / 32768 - 1;
}

/* One explicit step: next = field + rate (neighbours - 4 field); outside it is 0. */
static __global__ void diffuse(const float *field, float *next)
{
    int   cell = (int)(blockIdx.x * blockDim.x + threadIdx.x), row = cell / SIZE, column = cell % SIZE;
    float sum = 0;
    if (row > 0) sum += field[cell - SIZE];
    if (row < SIZE - 1) sum += field[cell + SIZE];
    if (column > 0) sum += field[cell - 1];
    if (column < SIZE - 1) sum += field[cell + 1];
    next[cell] = field[cell] + rate * (sum - 4 * field[cell]);
}

/* The network: one convolution, from a field to the next. */
typedef struct learner {
    gpunn_model     *model;
    gpunn_tensor    *field, *next, *filter, *loss;
    gpunn_optimizer *optimizer;
} learner;

static learner learner_make(gpunn_device *dev)
{
    learner l;
    l.model = gpunn_model_create(dev);
    l.field = gpunn_input(l.model, "field", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, SIZE, SIZE));
    l.next = gpunn_input(l.model, "next", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, SIZE, SIZE));
    l.loss = gpunn_mse_loss(
        gpunn_conv2d(l.field, "step", .out_channels = 1, .kernel_size = 3, .padding = 1, .no_bias = true),
        l.next);
    l.filter = gpunn_find(l.model, "step.weight");
    l.optimizer = gpunn_adam(l.model, .lr = 0.005f);
    return l;
}

/* The solver's loop. All of it is only put into the stream: the host runs ahead. */
static gpunn_status solve(learner l, float *fields[2], int steps, cudaStream_t stream)
{
    gpunn_status status = GPUNN_OK;
    for (int step = 0; step < steps && status == GPUNN_OK; step++) {
        float *field = fields[step % 2], *next = fields[1 - step % 2];
        ignite<<<BLOCKS, THREADS, 0, stream>>>(field, (unsigned)step);
        diffuse<<<BLOCKS, THREADS, 0, stream>>>(field, next);
        status = gpunn_bind(l.field, field, CELLS * sizeof *field);
        if (status == GPUNN_OK) status = gpunn_bind(l.next, next, CELLS * sizeof *next);
        if (status == GPUNN_OK) status = gpunn_train_step(l.optimizer, l.loss);
    }
    return status;
}

int main(int argc, char **argv)
{
    int          steps = argc > 1 ? atoi(argv[1]) : 2000;
    float       *fields[2], filter[3][3];
    cudaStream_t stream;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMalloc((void **)&fields[0], 2 * CELLS * sizeof *fields[0]) != cudaSuccess) {
        (void)fprintf(stderr, "no GPU: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    fields[1] = fields[0] + CELLS;
    (void)cudaMemsetAsync(fields[0], 0, 2 * CELLS * sizeof *fields[0], stream);
    gpunn_device *dev = gpunn_device_open(.stream = stream);
    learner       l = learner_make(dev);
    gpunn_status  status = l.optimizer ? solve(l, fields, steps, stream) : gpunn_last_status(dev);
    if (status == GPUNN_OK) status = gpunn_read(l.filter, filter, sizeof filter);
    for (int row = 0; row < 3 && status == GPUNN_OK; row++)
        printf("%7.3f %7.3f %7.3f\n", (double)filter[row][0], (double)filter[row][1], (double)filter[row][2]);
    if (status != GPUNN_OK) (void)fprintf(stderr, "%s\n", gpunn_error(dev));
    gpunn_optimizer_destroy(l.optimizer);
    gpunn_model_destroy(l.model);
    gpunn_device_close(dev);
    (void)cudaFree(fields[0]);
    (void)cudaStreamDestroy(stream);
    return status == GPUNN_OK ? 0 : 1;
}
