#include "base/context.h"

GPUNN__INTERNAL unsigned gpunn__blocks(const gpunn__cuda *cuda, int64_t n, int64_t each)
{
    int64_t blocks = (n + each * GPUNN__THREADS - 1) / (each * GPUNN__THREADS),
            most = (int64_t)cuda->multiprocessors * 16;
    return (unsigned)gpunn__clamp(blocks, 1, most);
}

GPUNN__INTERNAL unsigned gpunn__single_blocks(int64_t n, int64_t each)
{
    return (unsigned)gpunn__clamp((n + each * GPUNN__THREADS - 1) / (each * GPUNN__THREADS), 1, INT32_MAX);
}

GPUNN__INTERNAL bool gpunn__cuda_is_stale(const gpunn__cuda *cuda, const gpunn_step *step)
{
    return cuda->replayed || step->cache_version != step->state->weights_version;
}

GPUNN__INTERNAL size_t gpunn__counters_bytes(const gpunn__cuda *cuda)
{
    size_t own = (size_t)cuda->multiprocessors * 2;
    return (own > GPUNN_KERNEL_COUNTERS ? own : GPUNN_KERNEL_COUNTERS) * sizeof(unsigned);
}
