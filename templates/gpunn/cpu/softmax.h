#ifndef GPUNN__CPU_SOFTMAX_H
#define GPUNN__CPU_SOFTMAX_H
#include "base/math.h"

/* ==== >>cpu/softmax ====================================================================================== *
 * Softmax and related ops. A unit of work is one row (inner 1) or n x 64 columns. The maximum may skip NaN,
 * since the sum propagates it. A row that is all -inf gives NaN, as in torch. */
#define GPUNN__COLUMNS 64

/* exp(x) for x <= 0. Results that would be denormal become 0, since processors are slow at denormals. Others
 * are normal, so one power of two scales them. */
GPUNN__INLINE float gpunn__exp_down(float x)
{
    int32_t     n;
    const float e = gpunn__exp_reduce(gpunn__select(x < -87.0f, -87.0f, x), &n) + 1;
    return gpunn__select(x < -87.0f, 0, e * gpunn__exp2i(n));
}

/* Replaces n numbers, a multiple of GPUNN__EXP_LANES, by exp(x - shift), for x <= shift. Returns their
 * sum. */
enum { GPUNN__EXP_LANES = 32 };
GPUNN__INTERNAL float gpunn__exp_values(float *x, int64_t n, float shift);

/* Reduces one row (inner 1), or `width` columns otherwise: top receives the maxima, sum the sums of exp(x -
 * top). e, if non-NULL, receives exp(x - top), in the same layout. */
GPUNN__INTERNAL void gpunn__exp_sum(const float *x, int64_t n, int64_t inner, int64_t width, float *top,
                                    float *sum, float *e);

#endif /* GPUNN__CPU_SOFTMAX_H */
