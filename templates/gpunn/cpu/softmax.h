#ifndef GPUNN__CPU_SOFTMAX_H
#define GPUNN__CPU_SOFTMAX_H
#include "base/math.h"

/* ==== >>cpu/softmax ================================================================================================ *
 * Units of work are rows (inner 1) or n x 64 columns. NaN need not show in the maximum: it spreads through the sum. A row wholly
 * -inf gives NaN, as torch's does. */
#define GPUNN__COLUMNS 64

/* exp(x) for x <= 0; what would be denormal is 0, since processors are slow at denormals. */
GPUNN__INLINE float gpunn__exp_down(float x)
{
    return gpunn__select(x < -87.0f, 0, gpunn__exp(gpunn__select(x < -87.0f, -87.0f, x)));
}

/* Rows of inner 1, columns otherwise; e as for these. */
GPUNN__INTERNAL void gpunn__exp_sum(const float *x, int64_t n, int64_t inner, int64_t width, float *top, float *sum, float *e);

#endif /* GPUNN__CPU_SOFTMAX_H */
