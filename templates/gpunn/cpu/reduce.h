#ifndef GPUNN__CPU_REDUCE_H
#define GPUNN__CPU_REDUCE_H
#include "base/math.h"
#include "cpu/context.h"
#include "cpu/vectors.h"

/* ==== >>cpu/reduce ======================================================================================= *
 * Sums and maxima over axes. */
/* An op along one axis: the tensor seen as [outer, n, inner]. */
typedef struct gpunn__along {
    int64_t      outer, n, inner;
    const float *x, *y, *gradient;
    float       *out;
    int64_t     *index;
    bool         add, log;
} gpunn__along;

/* Sets outer, n and inner for an axis of v. */
GPUNN__INTERNAL void gpunn__along_axis(gpunn__along *a, const gpunn_value *v, int axis);

#define GPUNN__TILE 256
typedef enum gpunn__reduce_kind {
    GPUNN__SUM,
    GPUNN__MAX,
    GPUNN__TOP,  /* maximum of the elements that are not NaN */
    GPUNN__COUNT /* number of elements equal to the maximum */
} gpunn__reduce_kind;

/* The value that a reduction starts from. */
GPUNN__INLINE float gpunn__start(gpunn__reduce_kind kind)
{
    return kind == GPUNN__MAX || kind == GPUNN__TOP ? -INFINITY : 0;
}

/* GPUNN__MAX propagates NaN. */
GPUNN__INLINE float gpunn__join(gpunn__reduce_kind kind, float a, float x, float reference)
{
    if (kind == GPUNN__SUM) return a + x;
    if (kind == GPUNN__MAX) return gpunn__select((x > a) | (x != x), x, a);
    if (kind == GPUNN__TOP) return x > a ? x : a;
    return a + (x == reference ? 1.0f : 0.0f);
}

GPUNN__INLINE double gpunn__join_wide(gpunn__reduce_kind kind, double a, double x)
{
    if (kind == GPUNN__TOP) return x > a ? x : a;
    if (kind == GPUNN__MAX) return x > a || x != x ? x : a;
    return a + x;
}

/* Combines 16 partial results into one, always in the same order. */
GPUNN__INLINE float gpunn__join_lanes(gpunn__reduce_kind kind, const float *lane)
{
    float eight[8], four[4];
    GPUNN__UNROLL
    for (int j = 0; j < 8; j++) eight[j] = gpunn__join(kind, lane[j], lane[j + 8], 0);
    GPUNN__UNROLL
    for (int j = 0; j < 4; j++) four[j] = gpunn__join(kind, eight[j], eight[j + 4], 0);
    return gpunn__join(kind, gpunn__join(kind, four[0], four[2], 0), gpunn__join(kind, four[1], four[3], 0),
                       0);
}

/* Reduces n contiguous floats. At most 2048 elements accumulate in 32 float lanes; their result is then
 * joined in double. */
GPUNN__INLINE double gpunn__reduce_row(gpunn__reduce_kind kind, const float *GPUNN__RESTRICT x, int64_t n,
                                       float reference)
{
    enum { LANES = 32, FEW = 8, BLOCK = 2048 };
    gpunn__reduce_kind join = kind == GPUNN__COUNT ? GPUNN__SUM : kind;
    double             total = (double)gpunn__start(kind);
    for (; n > 0; n -= BLOCK, x += BLOCK) {
        int64_t block = gpunn__least(n, BLOCK), i = 0;
        float   lane[LANES], rest = gpunn__start(kind);
        for (int j = 0; j < LANES; j++) lane[j] = rest;
        for (; i + LANES <= block; i += LANES) {
            GPUNN__UNROLL
            for (int j = 0; j < LANES; j++) lane[j] = gpunn__join(kind, lane[j], x[i + j], reference);
        }
        for (; i + FEW <= block; i += FEW) {
            GPUNN__UNROLL
            for (int j = 0; j < FEW; j++) lane[j] = gpunn__join(kind, lane[j], x[i + j], reference);
        }
        for (; i < block; i++) rest = gpunn__join(kind, rest, x[i], reference);
        GPUNN__UNROLL
        for (int j = 0; j < LANES / 2; j++) lane[j] = gpunn__join(join, lane[j], lane[j + LANES / 2], 0);
        total = gpunn__join_wide(kind, total,
                                 (double)gpunn__join(join, gpunn__join_lanes(join, lane), rest, 0));
    }
    return total;
}

/* Sum and maximum of n contiguous floats. The maximum is NaN if any of them is. */
GPUNN__INTERNAL double gpunn__sum_row(const float *x, int64_t n);

GPUNN__INTERNAL float gpunn__max_row(const float *x, int64_t n);

#endif /* GPUNN__CPU_REDUCE_H */
