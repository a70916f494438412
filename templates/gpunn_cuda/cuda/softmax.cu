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

/* ---- logcumsumexp: see gpunn.h's >>cpu/softmax ------------------------------------------------------------
 * Sums of w exp(t) in units of exp(top). Many lines use one thread each. Otherwise a block scans a line, one
 * element per thread at a time, and carries the sum over. */

typedef struct gpunn__exp_term {
    float top, sum;
} gpunn__exp_term;

__device__ __forceinline__ gpunn__exp_term gpunn__exp_add(gpunn__exp_term a, gpunn__exp_term b)
{
    const bool  higher = b.top > a.top;
    const float e = expf(b.top == a.top ? 0 : higher ? a.top - b.top : b.top - a.top);
    return {higher ? b.top : a.top, higher ? a.sum * e + b.sum : a.sum + b.sum * e};
}

/* Forward the term of element `at` is exp(x), backward g exp(-y). */
__device__ __forceinline__ gpunn__exp_term gpunn__exp_term_of(const gpunn__along &a, bool backward,
                                                              int64_t at)
{
    if (!backward) return {gpunn__load(a.x, a.x_type, at), 1};
    return {-gpunn__load(a.y, a.y_type, at), gpunn__load(a.gradient, a.gradient_type, at)};
}

/* Stores y or, backward, dx. The gradient of an x of -inf is 0. */
__device__ __forceinline__ void gpunn__exp_term_store(const gpunn__along &a, bool backward, int64_t at,
                                                      gpunn__exp_term s)
{
    float value = s.top + logf(s.sum);
    if (backward) {
        const float x = gpunn__load(a.x, a.x_type, at), y = gpunn__load(a.y, a.y_type, at);
        value = (x == y ? (x < -3.402823466e38f ? 0 : 1) : expf(x - y)) * s.sum;
        if (a.add) value += gpunn__load(a.out, a.out_type, at);
    }
    gpunn__store(a.out, a.out_type, at, value);
}

/* One thread per row. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__logcumsumexp_rows_kernel(const gpunn__along a, bool backward)
{
    GPUNN__FOLLOW();
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; row < a.rows; row += (int64_t)gridDim.x * blockDim.x) {
        gpunn__exp_term s = {-INFINITY, 0};
        for (int64_t i = 0; i < a.n; i++) {
            const int64_t at = gpunn__along_place(a, row, i, backward);
            s = gpunn__exp_add(s, gpunn__exp_term_of(a, backward, at));
            gpunn__exp_term_store(a, backward, at, s);
        }
    }
}

/* One block per row: a Hillis-Steele scan over GPUNN__THREADS elements at a time. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__logcumsumexp_block_kernel(const gpunn__along a, bool backward)
{
    GPUNN__FOLLOW();
    __shared__ gpunn__exp_term sums[GPUNN__THREADS];
    const int                  t = (int)threadIdx.x;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        gpunn__exp_term before = {-INFINITY, 0};
        for (int64_t start = 0; start < a.n; start += GPUNN__THREADS) {
            const int64_t   at = start + t < a.n ? gpunn__along_place(a, row, start + t, backward) : -1;
            gpunn__exp_term s = {-INFINITY, 0};
            if (at >= 0) s = gpunn__exp_term_of(a, backward, at);
            for (int distance = 1; distance < GPUNN__THREADS; distance *= 2) {
                __syncthreads(); /* the previous contents of sums have been read */
                sums[t] = s;
                __syncthreads();
                if (t >= distance) s = gpunn__exp_add(sums[t - distance], s);
            }
            __syncthreads();
            sums[t] = s;
            __syncthreads();
            if (at >= 0) gpunn__exp_term_store(a, backward, at, gpunn__exp_add(before, s));
            before = gpunn__exp_add(before, sums[GPUNN__THREADS - 1]);
        }
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_logcumsumexp(gpunn__cuda *cuda, gpunn_step *step,
                                                      gpunn__action action)
{
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    const gpunn__along a = gpunn__along_axis(cuda, step, step->attr->axis);
    if (a.n <= 32 || a.rows >= (int64_t)cuda->multiprocessors * 256)
        return GPUNN__LAUNCH(cuda, gpunn__logcumsumexp_rows_kernel, gpunn__blocks(cuda, a.rows, 1),
                             GPUNN__THREADS, a, step->backward);
    return GPUNN__LAUNCH(cuda, gpunn__logcumsumexp_block_kernel,
                         gpunn__blocks(cuda, a.rows * GPUNN__THREADS, 1), GPUNN__THREADS, a, step->backward);
}
