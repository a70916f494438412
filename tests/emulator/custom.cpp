/* The CUDA functions of tests/unit/custom.c's op, y = numbers[0] a + numbers[1] a b, as a program would write
 * them, for the emulated GPU and for true ones. */
#include <cuda_runtime.h>

#include "gpunn.h"

#ifndef GPUNN__LAUNCH_ON
#define GPUNN__LAUNCH_ON(stream, kernel, blocks, threads, ...) \
    kernel<<<(blocks), (threads), 0, (cudaStream_t)(stream)>>>(__VA_ARGS__)
#endif

static __global__ void mix(const float *a, const float *b, float *y, int64_t count, float first, float second)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < count) y[i] = first * a[i] + second * a[i] * b[i];
}

static __global__ void mix_backward(const float *a, const float *b, const float *g, float *da, float *db,
                                    int64_t count, float first, float second)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= count) return;
    if (da) da[i] = g[i] * (first + second * b[i]);
    if (db) db[i] = g[i] * second * a[i];
}

extern "C" int mix_cuda_forward(const gpunn_custom_call *call)
{
    int64_t count = call->out->count;
    GPUNN__LAUNCH_ON(call->stream, mix, (unsigned)(count + 63) / 64, 64, (const float *)call->in[0].data,
                     (const float *)call->in[1].data, (float *)call->out->data, count, call->numbers[0],
                     call->numbers[1]);
    return (int)cudaGetLastError();
}

extern "C" int mix_cuda_backward(const gpunn_custom_call *call)
{
    int64_t count = call->grad_out->count;
    GPUNN__LAUNCH_ON(call->stream, mix_backward, (unsigned)(count + 63) / 64, 64,
                     (const float *)call->in[0].data, (const float *)call->in[1].data,
                     (const float *)call->grad_out->data, (float *)call->grad_in[0].data,
                     (float *)call->grad_in[1].data, count, call->numbers[0], call->numbers[1]);
    return (int)cudaGetLastError();
}
