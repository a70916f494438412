#ifndef GPUNN__CUDA_CUDA_OPTIMIZERS_H
#define GPUNN__CUDA_CUDA_OPTIMIZERS_H
#include "base/config.h"

/* ==== >>cuda/optimizers ============================================================================================ *
 * The rows of the optimizers as kernels, each in one pass over parameter, gradient and state. What a run decides by (is the loss
 * finite, the norm of all gradients, the loss scale, lr, step) is in device memory: every block works it out for itself, in the
 * same order. */
#define GPUNN__BAD_GRADIENT ((uint64_t)1 << 63) /* in bad[0], beside the step: it is no loss */
enum {
    GPUNN__FEW_GRADIENTS = 4096,  /* every block of an update looks at so many by itself */
    GPUNN__GRADIENT_RANGES = 160, /* that fit a kernel's arguments */
};

/* What a run changes in place is copied aside, or back: range by range in blocks first, first + blocks, ... */
__device__ __forceinline__ void gpunn__kept_copy(const gpunn_kept *kept, int count, bool back, unsigned first, unsigned blocks)
{
    for (unsigned k = first; k < (unsigned)count; k += blocks) {
        float *const from = back ? kept[k].copy : kept[k].values, *const to = back ? kept[k].values : kept[k].copy;
        for (int64_t i = threadIdx.x; i < kept[k].count; i += blockDim.x) to[i] = from[i];
    }
}

typedef struct gpunn__gradients {
    int          count;
    const float *values[GPUNN__GRADIENT_RANGES];
    int64_t      length[GPUNN__GRADIENT_RANGES];
} gpunn__gradients;

GPUNN__INTERNAL gpunn_status gpunn__cuda_sum_of_squares(void *context, const float *values, int64_t count, double *result);

GPUNN__INTERNAL gpunn_status gpunn__cuda_value_sums(void *context, const void *values, gpunn_dtype dtype, int64_t count,
                                                    gpunn_value_sums parts[GPUNN_SUM_PARTS]);

#endif /* GPUNN__CUDA_CUDA_OPTIMIZERS_H */
