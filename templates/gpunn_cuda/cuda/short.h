#ifndef GPUNN__CUDA_CUDA_SHORT_H
#define GPUNN__CUDA_CUDA_SHORT_H
#include "cuda/formulas.h"
#include "cuda/gemm.h"
#include "cuda/loss.h"

/* ==== >>cuda/short ======================================================================================= *
 * Runs several short steps in one launch, because they take longer to launch than to compute. One block does
 * them one after another, forward or backward: small products, elementwise ops, sums to one number and class
 * losses. A product is small if it has one or two tiles, or few multiplications per thread. Eight
 * multiplications of a thread take about 150 clocks, a launch about 4000. */
enum {
    GPUNN__SHORT_STEPS = 16,
    GPUNN__SHORT_BEFORE_UPDATE = 12,
    GPUNN__SHORT_TILES = 2,
    GPUNN__SHORT_EIGHTS = 24
};

/* like gpunn__map_job; each operand has the result's size or is one number */
typedef struct gpunn__short_map {
    gpunn_op    op;
    bool        single[GPUNN__FROM_COUNT], add[3];
    int         count;
    const void *from[GPUNN__FROM_COUNT];
    void       *to[3];
    gpunn_dtype from_dtype[GPUNN__FROM_COUNT], to_dtype[3];
    float       attr[2];
} gpunn__short_map;

typedef struct gpunn__short_sum { /* y = the sum of x / divisor; backward x = or += y / divisor */
    void       *x, *y;
    gpunn_dtype x_type, y_type;
    int         count;
    float       divisor;
    bool        add;
} gpunn__short_sum;

typedef struct gpunn__short {
    gpunn_op op;
    bool     backward, tiled; /* tiled: a product, computed by tiles */
    union {
        gpunn__short_map  map;
        gpunn__short_sum  sum;
        gpunn__product    product;
        gpunn__class_loss loss;
    };
} gpunn__short;

typedef struct gpunn__short_steps {
    gpunn__short step[GPUNN__SHORT_STEPS];
    int          count;
} gpunn__short_steps;
static_assert(sizeof(gpunn__short_steps) <= 4096, "a kernel's arguments");

/* The forward function of any op of the tables. */
__device__ __forceinline__ float gpunn__map_forward_of(gpunn_op op, const float *from, const float *attr)
{
    switch (op) {
#define GPUNN__X(ENUM, name, ...) \
    case GPUNN_OP_##ENUM: return gpunn__op_##name::forward(from, attr);
        GPUNN__ELEMENTWISE_OPS(GPUNN__X)
#undef GPUNN__X
    default: return 0;
    }
}

__device__ __forceinline__ float gpunn__map_derivative_of(gpunn_op op, int i, const float *from,
                                                          const float *attr)
{
    switch (op) {
#define GPUNN__X(ENUM, name, ...) \
    case GPUNN_OP_##ENUM: return gpunn__op_##name::derivative(i, from, attr);
        GPUNN__ELEMENTWISE_OPS(GPUNN__X)
#undef GPUNN__X
    default: return 0;
    }
}

__device__ __forceinline__ void gpunn__short_map_make(const gpunn__short_map &m, bool backward)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < m.count; i += (int)blockDim.x) {
        float from[GPUNN__FROM_COUNT];
#pragma unroll
        for (int k = 0; k < GPUNN__FROM_COUNT; k++)
            from[k] = m.from[k] ? gpunn__load(m.from[k], m.from_dtype[k], m.single[k] ? 0 : i) : 0;
        if (!backward) {
            gpunn__store(m.to[0], m.to_dtype[0], i, gpunn__map_forward_of(m.op, from, m.attr));
            continue;
        }
#pragma unroll 1
        for (int d = 0; d < 3; d++) {
            if (m.to[d] == NULL) continue;
            float gradient = gpunn__map_derivative_of(m.op, d, from, m.attr);
            gpunn__store(m.to[d], m.to_dtype[d], i,
                         m.add[d] ? gpunn__load(m.to[d], m.to_dtype[d], i) + gradient : gradient);
        }
    }
}

__device__ __forceinline__ void gpunn__short_sum_make(const gpunn__short_sum &s, bool backward)
{
    float sum = 0, gradient = backward ? gpunn__load(s.y, s.y_type, 0) / s.divisor : 0;
    for (int i = (int)threadIdx.x; i < s.count; i += (int)blockDim.x)
        if (backward)
            gpunn__store(s.x, s.x_type, i, s.add ? gpunn__load(s.x, s.x_type, i) + gradient : gradient);
        else
            sum += gpunn__load(s.x, s.x_type, i);
    if (backward) return;
    sum = gpunn__block_reduce(sum, gpunn__add());
    if (threadIdx.x == 0) gpunn__store(s.y, s.y_type, 0, sum / s.divisor);
}

/* One thread per element of d. The dtype is constant, so that the loads of 8 steps wait for memory
 * together. */
template <gpunn_dtype dtype> __device__ __forceinline__ void gpunn__short_product_of(const gpunn__product &p)
{
    const int m = (int)p.m, n = (int)p.n, count = (int)p.k;
    const int step_a = p.transpose_a ? (int)p.lda : 1, step_b = p.transpose_b ? 1 : (int)p.ldb;
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < m * n; at += (int)blockDim.x) {
        const int i = at / n, j = at % n;
        int       from_a = p.transpose_a ? i : i * (int)p.lda, from_b = p.transpose_b ? j * (int)p.ldb : j;
        float     sum = 0, row_sum = 0;
#pragma unroll 8
        for (int k = 0; k < count; k++, from_a += step_a, from_b += step_b) {
            const float a = gpunn__load(p.a, dtype, from_a);
            sum += a * gpunn__load(p.b, dtype, from_b);
            row_sum += a;
        }
        gpunn__product_store(&p, i, j, i * p.ldd + j, sum, row_sum);
    }
}

__device__ __forceinline__ void gpunn__short_product_make(const gpunn__product &p)
{
    if (p.dtype == GPUNN_F32)
        gpunn__short_product_of<GPUNN_F32>(p);
    else if (p.dtype == GPUNN_BF16)
        gpunn__short_product_of<GPUNN_BF16>(p);
    else
        gpunn__short_product_of<GPUNN_F16>(p);
}

/* Makes the steps one after another. All threads see the results of a step before the next one begins. */
__device__ __forceinline__ void gpunn__short_make(const gpunn__short *steps, int count)
{
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        const gpunn__short &step = steps[i];
        if (step.tiled)
            gpunn__product_make(&step.product);
        else if (step.op == GPUNN_OP_LINEAR)
            gpunn__short_product_make(step.product);
        else if (step.op == GPUNN_OP_SUM)
            gpunn__short_sum_make(step.sum, step.backward);
        else if (step.op != GPUNN_OP_CROSS_ENTROPY && step.op != GPUNN_OP_NLL)
            gpunn__short_map_make(step.map, step.backward);
        else if (step.backward)
            gpunn__class_loss_dx(step.loss);
        else
            gpunn__class_loss_make(step.loss);
        __syncthreads();
    }
}

/* Whether each node of a generated kernel's group would be a short step by itself. Such a group is run as
 * single steps, so that it shares a launch with its neighbours. */
GPUNN__INTERNAL bool gpunn__short_fused(const gpunn_step *step);

/* Collects the short steps from `step` on. Returns the first step that is not among them. */
GPUNN__INTERNAL gpunn_step *gpunn__short_gather(const gpunn__cuda *cuda, gpunn_step *step,
                                                gpunn__short_steps *shorts);

/* Launches the short steps at cuda->next as one kernel and moves cuda->next past them. Does nothing if there
 * are fewer than two. joins: steps that end the run are left to the launch of its update. */
GPUNN__INTERNAL gpunn_status gpunn__short_run(gpunn__cuda *cuda, bool joins);

#endif /* GPUNN__CUDA_CUDA_SHORT_H */
