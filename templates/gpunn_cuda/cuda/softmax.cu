#include "cuda/softmax.h"

struct gpunn__softmax_visit {
    const gpunn__along &a;
    int64_t             stride;
    float               top, factor; /* 1 / sum; log: log(sum) */

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float v[N];
        gpunn__strided_load<N>(a.x, a.x_type, i, stride, v);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = a.log ? v[j] - top - factor : expf(v[j] - top) * factor;
        gpunn__strided_store<N>(a.out, a.out_type, i, stride, v, false);
    }
};

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__softmax_kernel(const gpunn__along a)
{
    GPUNN__FOLLOW();
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row   row = gpunn__along_row(a, first);
        gpunn__exp_sum       s = gpunn__exp_sum_of(a, row);
        gpunn__softmax_visit visit = {a, row.stride, s.top, a.log ? logf(s.sum) : 1 / s.sum};
        gpunn__strided_visit(row, visit);
    }
}

/* Accumulates the sum of g y; for log_softmax the sum of g. */
struct gpunn__softmax_dot_visit {
    const gpunn__along &a;
    int64_t             stride;
    float               sum;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float g[N], y[N];
        gpunn__strided_load<N>(a.gradient, a.gradient_type, i, stride, g);
        if (!a.log) {
            gpunn__strided_load<N>(a.y, a.y_type, i, stride, y);
#pragma unroll
            for (int j = 0; j < N; j++) g[j] *= y[j];
        }
        sum += gpunn__pack_reduce<N>(g, gpunn__add());
    }
};

/* softmax: dx = or += y (g - sum g y). log_softmax: dx = or += g - exp(y) sum g. */
struct gpunn__softmax_dx_visit {
    const gpunn__along &a;
    int64_t             stride;
    float               sum;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float g[N], y[N];
        gpunn__strided_load<N>(a.gradient, a.gradient_type, i, stride, g);
        gpunn__strided_load<N>(a.y, a.y_type, i, stride, y);
#pragma unroll
        for (int j = 0; j < N; j++) g[j] = a.log ? g[j] - expf(y[j]) * sum : y[j] * (g[j] - sum);
        gpunn__strided_store<N>(a.out, a.out_type, i, stride, g, a.add);
    }
};

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__softmax_backward_kernel(const gpunn__along a)
{
    GPUNN__FOLLOW();
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row       row = gpunn__along_row(a, first);
        gpunn__softmax_dot_visit dot = {a, row.stride, 0};
        gpunn__strided_visit(row, dot);
        gpunn__softmax_dx_visit dx_visit = {a, row.stride,
                                            gpunn__lanes_reduce(dot.sum, gpunn__add(), a.lanes)};
        gpunn__strided_visit(row, dx_visit);
    }
}

static gpunn_status gpunn__softmax_step(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action, bool log)
{
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    gpunn__along a = gpunn__along_axis(cuda, step, step->attr->axis);
    a.log = log;
    if (step->backward)
        return GPUNN__LAUNCH(cuda, gpunn__softmax_backward_kernel, gpunn__along_blocks(cuda, &a),
                             GPUNN__THREADS, a);
    return GPUNN__LAUNCH(cuda, gpunn__softmax_kernel, gpunn__along_blocks(cuda, &a), GPUNN__THREADS, a);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_softmax(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__softmax_step(cuda, step, action, false);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_log_softmax(gpunn__cuda *cuda, gpunn_step *step,
                                                     gpunn__action action)
{
    return gpunn__softmax_step(cuda, step, action, true);
}
