#ifndef GPUNN__CUDA_CUDA_SOFTMAX_H
#define GPUNN__CUDA_CUDA_SOFTMAX_H
#include "cuda/reduce.h"

/* ==== >>cuda/softmax ===================================================================================== *
 * softmax, log_softmax and logcumsumexp. The first two read a line twice, the second time from a cache. The
 * first pass updates the maximum and the sum of exp(x - maximum) together; the second writes the result. NaN
 * appears in the sum, not in the maximum. A line that is all -inf gives NaN, as in torch. */
struct gpunn__exp_sum {
    const void *x;
    gpunn_dtype dtype;
    int64_t     stride;
    float       top, sum;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float v[N], most;
        gpunn__strided_load<N>(x, dtype, i, stride, v);
        most = top;
#pragma unroll
        for (int j = 0; j < N; j++) most = v[j] > most ? v[j] : most;
        sum *= expf(top - most);
        top = most;
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = expf(v[j] - most);
        sum += gpunn__pack_reduce<N>(v, gpunn__add());
    }
};

/* top and sum of a whole row, for each of its lanes. top starts at the lowest finite number, so that
 * x - top is never NaN for x = -inf. */
__device__ __forceinline__ gpunn__exp_sum gpunn__exp_sum_of(const gpunn__along       &a,
                                                            const gpunn__strided_row &row)
{
    gpunn__exp_sum s = {a.x, a.x_type, row.stride, -3.402823466e38f, 0};
    gpunn__strided_visit(row, s);
    float top = gpunn__lanes_reduce(s.top, gpunn__larger(), a.lanes);
    s.sum = gpunn__lanes_reduce(s.sum * expf(s.top - top), gpunn__add(), a.lanes);
    s.top = top;
    return s;
}

#endif /* GPUNN__CUDA_CUDA_SOFTMAX_H */
