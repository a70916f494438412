#ifndef GPUNN__CUDA_CUDA_LOSS_H
#define GPUNN__CUDA_CUDA_LOSS_H
#include "cuda/softmax.h"

/* ==== >>cuda/loss ======================================================================================== *
 * cross_entropy and nll over x[n][classes][inner], with one label per row and row = n * inner + position.
 * Let l = log_softmax(x) (nll: x itself), w the class weights (1 without) and e the label smoothing (nll:
 * 0). A row that is not ignored costs
 *    (1 - e) w[label] (-l[label]) + e / classes * sum over c of w[c] (-l[c])
 * The mean divides by the sum of w[label]. The gradient is
 *    dx[c] = or += a p[c] - b (c == label) - d w[c]
 * where p = softmax(x) and s = g / divisor. Its factors are b = s (1 - e) w[label], d = s e / classes and
 * a = b + d sum w. For nll, a = d = 0.
 * A label outside 0 .. classes - 1 that is not ignore_index costs NaN, which the check of the loss reports.
 * It has no gradient.
 * The saved data is the divisor and sum w. For cross_entropy each row adds its maximum and
 * 1 / sum exp(x - maximum). */
typedef struct gpunn__class_loss {
    gpunn__along    along; /* out: the losses or dx */
    bool            softmax;
    gpunn_reduction reduction;
    gpunn_dtype     label_type, weight_type;
    const void     *labels, *weight;
    float           smoothing;
    int64_t         ignore;
    float2         *saved;   /* [0]: divisor, sum w; [1 + row]: maximum, 1 / sum */
    float2         *partial; /* per block: the sum of costs and the sum of w[label] */
} gpunn__class_loss;

/* The label of a row. -1: ignored. -2: out of range. */
__device__ __forceinline__ int64_t gpunn__label(const gpunn__class_loss &l, int64_t row)
{
    int64_t label = gpunn__integer(l.labels, l.label_type, row);
    if (label == l.ignore) return -1;
    return label >= 0 && label < l.along.n ? label : -2;
}

__device__ __forceinline__ float gpunn__class_weight(const gpunn__class_loss &l, int64_t c)
{
    return l.weight ? gpunn__load(l.weight, l.weight_type, c) : 1;
}

/* Accumulates, for label smoothing, the sums of w[c] (top - x[c]) and of w[c]. */
struct gpunn__smooth_visit {
    const gpunn__class_loss &l;
    int64_t                  stride;
    float                    top, sum, weights;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float v[N], cost = 0, all = 0;
        gpunn__strided_load<N>(l.along.x, l.along.x_type, i, stride, v);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float weight = gpunn__class_weight(l, c + j);
            cost += weight * (top - v[j]);
            all += weight;
        }
        sum += cost;
        weights += all;
    }
};

/* Stores the reduced loss and saves the divisor. The reduction is MEAN or SUM. */
__device__ __forceinline__ void gpunn__class_loss_total(const gpunn__class_loss &l, double loss,
                                                        double weights)
{
    double divisor = l.reduction == GPUNN_REDUCE_MEAN ? weights : 1;
    l.saved->x = (float)divisor;
    gpunn__store(l.along.out, l.along.out_type, 0,
                 loss == 0 && divisor == 0 ? -0.0f : (float)(loss / divisor));
}

/* The forward pass. With several blocks, each leaves its partial sums for a second launch. */
__device__ __forceinline__ void gpunn__class_loss_make(const gpunn__class_loss &l)
{
    float loss = 0, weights = 0;
    for (int64_t first = gpunn__along_first(l.along); first < l.along.rows;
         first += gpunn__along_step(l.along)) {
        gpunn__strided_row row = gpunn__along_row(l.along, first);
        float              top = 0, spread = 0, smooth = 0, all = 0;
        if (l.softmax) {
            gpunn__exp_sum s = gpunn__exp_sum_of(l.along, row);
            top = s.top;
            spread = logf(s.sum);
            if (row.index < l.along.rows && row.thread == 0)
                l.saved[1 + row.index] = make_float2(top, 1 / s.sum);
        }
        if (l.smoothing > 0) {
            gpunn__smooth_visit visit = {l, row.stride, top, 0, 0};
            gpunn__strided_visit(row, visit);
            float sum = gpunn__lanes_reduce(visit.sum, gpunn__add(), row.lanes);
            all = gpunn__lanes_reduce(visit.weights, gpunn__add(), row.lanes);
            smooth = l.smoothing / (float)row.n * (sum + all * spread);
        }
        if (row.index >= l.along.rows || row.thread != 0) continue;
        if (row.index == 0) l.saved->y = all;
        int64_t label = gpunn__label(l, row.index);
        float   cost = label == -1 ? 0 : NAN;
        if (label >= 0) {
            float weight = gpunn__class_weight(l, label);
            float x = gpunn__load(l.along.x, l.along.x_type, row.begin + label * row.stride);
            cost = (1 - l.smoothing) * weight * (top - x + spread) + smooth;
            weights += weight;
        }
        loss += cost;
        if (l.reduction == GPUNN_REDUCE_NONE) gpunn__store(l.along.out, l.along.out_type, row.index, cost);
    }
    if (l.reduction == GPUNN_REDUCE_NONE) {
        if (blockIdx.x == 0 && threadIdx.x == 0) l.saved->x = 1;
        return;
    }
    loss = gpunn__block_reduce(loss, gpunn__add());
    weights = gpunn__block_reduce(weights, gpunn__add());
    if (threadIdx.x != 0) return;
    if (gridDim.x == 1)
        gpunn__class_loss_total(l, loss, weights);
    else
        l.partial[blockIdx.x] = make_float2(loss, weights);
}

/* exp(x) of an argument up to 0. For 16-bit values a shorter instruction sequence serves: its error is 2^-21
 * for each 1.2 of the argument. */
__device__ __forceinline__ float gpunn__exp(float x, gpunn_dtype dtype)
{
    return dtype == GPUNN_F32 ? expf(x) : __expf(x);
}

/* Writes the gradient of a row. a, b, d and top are those of the formulas above. */
struct gpunn__class_loss_dx_visit {
    const gpunn__class_loss &l;
    int64_t                  stride, label;
    float                    top, a, b, d;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float v[N];
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = 0;
        if (a != 0) {
            gpunn__strided_load<N>(l.along.x, l.along.x_type, i, stride, v);
#pragma unroll
            for (int j = 0; j < N; j++) v[j] = a * gpunn__exp(v[j] - top, l.along.x_type);
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (d != 0) v[j] -= d * gpunn__class_weight(l, c + j);
            v[j] -= label - c == j ? b : 0;
        }
        gpunn__strided_store<N>(l.along.out, l.along.out_type, i, stride, v, l.along.add);
    }
};

/* The backward pass. */
__device__ __forceinline__ void gpunn__class_loss_dx(const gpunn__class_loss &l)
{
    float2 whole = *l.saved;
    for (int64_t first = gpunn__along_first(l.along); first < l.along.rows;
         first += gpunn__along_step(l.along)) {
        gpunn__strided_row row = gpunn__along_row(l.along, first);
        if (row.index >= l.along.rows) continue;
        gpunn__class_loss_dx_visit visit = {l, row.stride, gpunn__label(l, row.index), 0, 0, 0, 0};
        if (visit.label >= 0) {
            int64_t at = l.reduction == GPUNN_REDUCE_NONE ? row.index : 0;
            float   scale = gpunn__load(l.along.gradient, l.along.gradient_type, at) / whole.x;
            visit.b = scale * (1 - l.smoothing) * gpunn__class_weight(l, visit.label);
            if (l.softmax) {
                float2 sums = l.saved[1 + row.index];
                visit.top = sums.x;
                visit.d = scale * l.smoothing / (float)row.n;
                visit.a = (visit.b + visit.d * whole.y) * sums.y;
            }
        }
        gpunn__strided_visit(row, visit);
    }
}

/* Describes a step of cross_entropy or nll, forward or backward. */
GPUNN__INTERNAL gpunn__class_loss gpunn__class_loss_of(const gpunn__cuda *cuda, const gpunn_step *step);

#endif /* GPUNN__CUDA_CUDA_LOSS_H */
