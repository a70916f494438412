#include "base/values.h"
#include "base/shared.h"
#include "cuda/pool.h"

/* ==== >>cuda/finish ====================================================================================== *
 * The pass after a product or convolution: bias, norm, residual, relu and max pooling in one kernel. */
typedef struct gpunn__finish {
    int64_t      count, channels, inner;
    const void  *y, *bias, *residual; /* NULL: absent */
    void        *out;
    gpunn_dtype  y_dtype, bias_dtype, residual_dtype, out_dtype;
    const float *scale, *shift, *mean, *variance; /* of the norm; all NULL without one */
    float        eps;
    bool         relu;
} gpunn__finish;

/* The factor x and shift y of channel c: a value v becomes v * x + y. */
__device__ __forceinline__ float2 gpunn__finish_affine(const gpunn__finish &f, int64_t c)
{
    float2 affine = {1, f.bias ? gpunn__load(f.bias, f.bias_dtype, c) : 0};
    if (f.mean == NULL) return affine;
    affine.x = 1 / sqrtf(f.variance[c] + f.eps) * (f.scale ? f.scale[c] : 1);
    affine.y = (affine.y - f.mean[c]) * affine.x + (f.shift ? f.shift[c] : 0);
    return affine;
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__finish_kernel(const gpunn__finish f)
{
    GPUNN__FOLLOW();
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * GPUNN__PACK;
    int64_t step = (int64_t)gridDim.x * blockDim.x * GPUNN__PACK;
    for (; i < f.count; i += step) {
        float   v[8], residual[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        int     n = gpunn__pack_size(f.count, i);
        int64_t row = i / f.inner, left = (row + 1) * f.inner - i, c = row % f.channels;
        gpunn__load_pack(f.y, f.y_dtype, i, n, v);
        if (f.residual) gpunn__load_pack(f.residual, f.residual_dtype, i, n, residual);
        float2 affine = gpunn__finish_affine(f, c);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            if (left-- == 0) {
                c = c + 1 < f.channels ? c + 1 : 0;
                left = f.inner - 1;
                affine = gpunn__finish_affine(f, c);
            }
            v[j] = v[j] * affine.x + affine.y + residual[j];
            if (f.relu && v[j] <= 0) v[j] = 0;
        }
        gpunn__store_pack(f.out, f.out_dtype, i, n, false, v);
    }
}

/* The same with max pooling over the result: one thread per window. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__finish_pool_kernel(const gpunn__finish f, const gpunn__pool p)
{
    GPUNN__FOLLOW();
    const int size = p.y.out * p.x.out;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < p.results;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t volume = i / size;
        int index = (int)(i - volume * size), row = index / p.x.out, column = index - row * p.x.out, at = 0;
        int64_t corner = (volume * p.y.n + row * p.y.kernel) * p.x.n + column * p.x.kernel;
        float2  affine = gpunn__finish_affine(f, volume % f.channels);
        float   best = -INFINITY;
        for (int cell = 0; cell < p.y.kernel * p.x.kernel; cell++) {
            int64_t place = corner + cell / p.x.kernel * p.x.n + cell % p.x.kernel;
            float   v = gpunn__load(f.y, f.y_dtype, place) * affine.x + affine.y;
            v = gpunn__rounded(f.relu && v <= 0 ? 0 : v, f.out_dtype);
            gpunn__store(f.out, f.out_dtype, place, v);
            if (v > best || v != v) best = v, at = cell;
        }
        gpunn__store(p.to, p.to_dtype, i, best);
        gpunn__pool_mark(p.at, p.at_bytes, i, at);
    }
}

/* Whether the next step is a max pooling over f's result that this launch can include, with a thread per
 * window at once. Not if f reads other memory than its result, since the maxima may be written there. */
static bool gpunn__finish_pools(const gpunn__cuda *cuda, const gpunn__finish *f, gpunn__pool *p)
{
    const gpunn_step *pool = cuda->next;
    if (pool == cuda->end || pool->op != GPUNN_OP_MAX_POOL2D || pool->backward ||
        pool->in[0].data != f->out || f->y != f->out || f->residual)
        return false;
    *p = gpunn__pool_of(pool);
    return gpunn__pool_tiles(pool, p) && p->results <= (int64_t)cuda->multiprocessors * 2048;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_finish(gpunn__cuda *cuda, const gpunn_step *step, const void *y,
                                                gpunn_dtype y_dtype, bool bias, bool norm, bool residual,
                                                bool relu)
{
    const gpunn_value *out = &step->out;
    gpunn__finish      f;
    memset(&f, 0, sizeof f);
    f.count = out->count;
    f.channels = out->dim[step->op == GPUNN_OP_LINEAR ? out->rank - 1 : 1];
    f.inner = step->op == GPUNN_OP_LINEAR || out->channels_last ? 1 : out->count / (out->dim[0] * f.channels);
    f.y = y, f.y_dtype = y_dtype;
    f.out = out->data, f.out_dtype = out->dtype;
    if (bias) f.bias = step->in[2].data, f.bias_dtype = step->in[2].dtype;
    if (residual) f.residual = step->fused->residual.data, f.residual_dtype = step->fused->residual.dtype;
    if (norm) {
        f.scale = (const float *)step->fused->scale.data;
        f.shift = (const float *)step->fused->shift.data;
        f.mean = (const float *)step->fused->mean.data;
        f.variance = (const float *)step->fused->variance.data;
        f.eps = step->fused->eps;
    }
    f.relu = relu;
    gpunn__pool p;
    if (gpunn__finish_pools(cuda, &f, &p)) {
        cuda->next++;
        return GPUNN__LAUNCH(cuda, gpunn__finish_pool_kernel, gpunn__blocks(cuda, p.results, 1),
                             GPUNN__THREADS, f, p);
    }
    return GPUNN__LAUNCH(cuda, gpunn__finish_kernel, gpunn__blocks(cuda, f.count, GPUNN__PACK),
                         GPUNN__THREADS, f);
}
