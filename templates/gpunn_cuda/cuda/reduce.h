#ifndef GPUNN__CUDA_CUDA_REDUCE_H
#define GPUNN__CUDA_CUDA_REDUCE_H
#include "base/values.h"

/* ==== >>cuda/reduce ====================================================================================== *
 * Sums and maxima over axes, and the ops along one axis. All work on rows: elements that are contiguous or
 * a constant stride apart. A row is shared by 1, 2, 4, .. 32 adjacent lanes or by a block. */
typedef struct gpunn__strided_row {
    /* index: among the rows of the op; begin: of the first element; n: elements */
    int64_t index, begin, stride, n;
    int     thread, lanes; /* this thread's index among the lanes; their number */
} gpunn__strided_row;

/* Visits every element of the row once, distributed over the lanes. visit.at<8>(i, c) takes packs of 8,
 * aligned if the stride is 1, and visit.at<1>(i, c) takes the remaining elements. i is the index of the
 * (first) element in memory, c its position in the row. */
template <typename Visit>
__device__ __forceinline__ void gpunn__strided_visit(const gpunn__strided_row &row, Visit &visit)
{
    int64_t head = 0, packed = 0;
    if (row.n >= 8 * row.lanes) {
        head = row.stride == 1 ? -row.begin & 7 : 0;
        packed = (row.n - head) & ~(int64_t)7;
        for (int64_t c = head + 8 * row.thread; c < head + packed; c += 8 * row.lanes)
            visit.template at<8>(row.begin + c * row.stride, c);
    }
    for (int64_t rest = row.thread; rest < row.n - packed; rest += row.lanes) {
        int64_t c = rest < head ? rest : rest + packed;
        visit.template at<1>(row.begin + c * row.stride, c);
    }
}

template <int N>
__device__ __forceinline__ void gpunn__strided_load(const void *data, gpunn_dtype dtype, int64_t i,
                                                    int64_t stride, float *v)
{
    if (N == 8 && stride == 1) {
        gpunn__load8(data, dtype, i, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = gpunn__load(data, dtype, i + j * stride);
}

/* data = or += v. v is overwritten if add. */
template <int N>
__device__ __forceinline__ void gpunn__strided_store(void *data, gpunn_dtype dtype, int64_t i, int64_t stride,
                                                     float *v, bool add)
{
    if (add) {
        float old[N];
        gpunn__strided_load<N>(data, dtype, i, stride, old);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] += old[j];
    }
    if (N == 8 && stride == 1) {
        gpunn__store8(data, dtype, i, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++) gpunn__store(data, dtype, i + j * stride, v[j]);
}

/* Reduces all N values, pairwise. v is overwritten. */
template <int N, typename Op> __device__ __forceinline__ float gpunn__pack_reduce(float *v, Op op)
{
#pragma unroll
    for (int width = N / 2; width > 0; width /= 2)
#pragma unroll
        for (int j = 0; j < width; j++) v[j] = op(v[j], v[j + width]);
    return v[0];
}

/* Reduces over the lanes of a row. Every thread gets the result. All threads of the block must call it. */
template <typename T, typename Op> __device__ __forceinline__ T gpunn__lanes_reduce(T value, Op op, int lanes)
{
    if (lanes > 32) return gpunn__block_reduce(value, op);
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value = op(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
    return value;
}

/* The smallest power of 2 that is at least n, at most `most`. */
GPUNN__INTERNAL int gpunn__power_of_2(int64_t n, int most);

/* The number of threads that share each of `rows` rows. If the stride is not 1, adjacent rows are adjacent
 * in memory. Then their number grows only as far as needed to fill the device. */
GPUNN__INTERNAL int gpunn__lanes_of(const gpunn__cuda *cuda, int64_t rows, int64_t n, int64_t stride);

/* A reduction of x to y; >>cuda/reduce describes its kept axes, planes, rows and columns beside the
 * kernels. */
typedef struct gpunn__reduction {
    int     kind;
    bool    by_column; /* the last axis is kept */
    bool    add;       /* y += */
    int     kept_rank, plane_rank;
    int64_t kept_dim[GPUNN_MAX_RANK / 2], kept_stride[GPUNN_MAX_RANK / 2];
    int64_t plane_dim[GPUNN_MAX_RANK / 2], plane_stride[GPUNN_MAX_RANK / 2];
    int64_t kept, planes, rows, columns;
    /* span: threads per unit (output or column tile, and chunk); lanes: threads across a run */
    int         span, lanes;
    int         pack;                 /* columns per thread, 8 or 1 */
    int64_t     tiles;                /* tiles of lanes * pack columns */
    int64_t     pieces, step, length; /* runs per plane, elements from run to run and per run */
    int64_t     runs, chunk_runs, chunks;
    const void *x, *reference; /* reference: the maxima, for COUNT */
    void       *y;             /* [kept][columns]; of the first of two launches [chunks][kept][columns] */
    gpunn_dtype x_type, reference_type, y_type;
    float       divisor;
} gpunn__reduction;

/* Chooses threads and chunks: enough to fill the device, but no chunk below 16384 elements. whole: a single
 * chunk. */
GPUNN__INTERNAL void gpunn__reduction_cut(const gpunn__cuda *cuda, gpunn__reduction *r, bool whole);

/* Bytes for the partial results of the first launch; 0 if there is a single chunk. */
GPUNN__INTERNAL size_t gpunn__reduction_workspace(const gpunn__reduction *r);

/* An op along one axis of x[outer][n][inner]; rows = outer * inner. */
typedef struct gpunn__along {
    int64_t     rows, n, inner;
    int         lanes;
    const void *x, *y, *gradient;
    void       *out; /* forward: the result; backward: dx */
    gpunn_dtype x_type, y_type, gradient_type, out_type;
    bool        add, log;
} gpunn__along;

/* Describes a step along one axis: its rows, lanes, operand, result and gradients. */
GPUNN__INTERNAL gpunn__along gpunn__along_axis(const gpunn__cuda *cuda, const gpunn_step *step, int axis);

/* The number of blocks for a kernel in which some lanes take each row. */
GPUNN__INTERNAL unsigned gpunn__along_blocks(const gpunn__cuda *cuda, const gpunn__along *a);

/* The lanes of a block, grouped by row, take adjacent rows and advance together: for (first = _first; first
 * < a.rows; first += _step). */
__device__ __forceinline__ int64_t gpunn__along_step(const gpunn__along &a)
{
    return (int64_t)gridDim.x * (blockDim.x / a.lanes);
}

__device__ __forceinline__ int64_t gpunn__along_first(const gpunn__along &a)
{
    return (int64_t)blockIdx.x * (blockDim.x / a.lanes);
}

/* This thread's row. It has no elements if it is beyond the last. */
__device__ __forceinline__ gpunn__strided_row gpunn__along_row(const gpunn__along &a, int64_t first)
{
    int64_t index = first + threadIdx.x / a.lanes,
            outer = a.inner == 1 ? index : gpunn__quotient(index, a.inner);
    gpunn__strided_row row = {index,
                              outer * a.n * a.inner + (index - outer * a.inner),
                              a.inner,
                              index < a.rows ? a.n : 0,
                              (int)(threadIdx.x & (a.lanes - 1)),
                              a.lanes};
    return row;
}

/* Where element i of a line is, counted from the line's end if reverse. */
__device__ __forceinline__ int64_t gpunn__along_place(const gpunn__along &a, int64_t line, int64_t i,
                                                      bool reverse)
{
    const int64_t outer = gpunn__quotient(line, a.inner);
    return (outer * a.n + (reverse ? a.n - 1 - i : i)) * a.inner + (line - outer * a.inner);
}

#endif /* GPUNN__CUDA_CUDA_REDUCE_H */
