#include "cuda/blocks.h"

/* ---- rows ---------------------------------------------------------------------------------------------- */

template <gpunn_dtype format>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__block_rows_kernel(const gpunn__block_rows r)
{
    GPUNN__FOLLOW();
    const int64_t packs = r.width / GPUNN__PACK;
    int64_t       i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < r.count * packs; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t at = gpunn__quotient(i, packs),
                      row = r.index ? gpunn__integer(r.index, r.index_type, at) : at;
        const bool there = row >= 0 && row < r.n;
        float      v[8];
        gpunn__block_load8<format>(r.blocks, (there ? row : 0) * r.width + (i - at * packs) * GPUNN__PACK, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] = there ? v[j] : NAN;
        gpunn__store8(r.to, r.to_type, i * GPUNN__PACK, v);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_block_rows(gpunn__cuda *cuda, gpunn_dtype format,
                                                    const gpunn__block_rows *r)
{
    const unsigned blocks = gpunn__blocks(cuda, r->count * r->width, GPUNN__PACK);
    switch ((int)format) {
#define GPUNN__X(id, name, length, bytes) \
    case id: return GPUNN__LAUNCH(cuda, (gpunn__block_rows_kernel<id>), blocks, GPUNN__THREADS, *r);
        GPUNN_BLOCK_LIST(GPUNN__X)
#undef GPUNN__X
    default: return GPUNN_ERR_DTYPE;
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_block_values(gpunn__cuda *cuda, void *to, gpunn_dtype to_dtype,
                                                      const void *blocks, gpunn_dtype format, int64_t count)
{
    const int64_t           rows = count / GPUNN__GROUP;
    const gpunn__block_rows r = {blocks, NULL, GPUNN_I64, to_dtype, to, rows, rows, GPUNN__GROUP};
    return gpunn__cuda_block_rows(cuda, format, &r);
}

/* ---- products ------------------------------------------------------------------------------------------ *
 * With few rows of x, a warp computes a column of y for all rows and unpacks its row of W once. The order of
 * a sum depends only on its length. With more rows, W is unpacked into the workspace, as x's dtype. */

enum { GPUNN__BLOCK_ROWS = 16 };

/* sum + the product of w and the eight numbers of a from `at` on. */
__device__ __forceinline__ float gpunn__block_add(const gpunn__product &p, int64_t at, const float w[8],
                                                  float sum)
{
    float x[8];
    gpunn__load8(p.a, p.dtype, at, x);
#pragma unroll
    for (int i = 0; i < GPUNN__PACK; i++) sum += x[i] * w[i];
    return sum;
}

/* d = a b^T with all that is fused into p, for p->m <= ROWS. b [n][k] is in blocks. */
template <gpunn_dtype format, int ROWS>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__block_product_kernel(const gpunn__product p)
{
    GPUNN__FOLLOW();
    const int     lane = (int)threadIdx.x % 32;
    const int64_t warps = (int64_t)gridDim.x * blockDim.x / 32;
    int64_t       j = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (; j < p.n; j += warps) {
        float sum[ROWS] = {}, mine = 0;
        for (int64_t k = lane * GPUNN__PACK; k < p.k; k += 32 * GPUNN__PACK) {
            float w[8];
            gpunn__block_load8<format>(p.b, j * p.k + k, w);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (i < p.m) sum[i] = gpunn__block_add(p, i * p.lda + k, w, sum[i]);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2)
                sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], distance);
            mine = lane == i ? sum[i] : mine;
        }
        if (lane < p.m) gpunn__product_store(&p, lane, j, lane * p.ldd + j, mine, 0);
    }
}

template <gpunn_dtype format>
static gpunn_status gpunn__block_product_of(gpunn__cuda *cuda, const gpunn__product *p)
{
    const unsigned blocks = gpunn__blocks(cuda, p->n * 32, 1);
    if (p->m == 1)
        return GPUNN__LAUNCH(cuda, (gpunn__block_product_kernel<format, 1>), blocks, GPUNN__THREADS, *p);
    if (p->m <= 4)
        return GPUNN__LAUNCH(cuda, (gpunn__block_product_kernel<format, 4>), blocks, GPUNN__THREADS, *p);
    return GPUNN__LAUNCH(cuda, (gpunn__block_product_kernel<format, GPUNN__BLOCK_ROWS>), blocks,
                         GPUNN__THREADS, *p);
}

static gpunn_status gpunn__block_product(gpunn__cuda *cuda, gpunn_dtype format, const gpunn__product *p)
{
    switch ((int)format) {
#define GPUNN__X(id, name, length, bytes) \
    case id: return gpunn__block_product_of<id>(cuda, p);
        GPUNN_BLOCK_LIST(GPUNN__X)
#undef GPUNN__X
    default: return GPUNN_ERR_DTYPE;
    }
}

/* The step with its weight unpacked into the workspace, in the dtype of the rows that it multiplies. The
 * workspace of that step follows, at a multiple of 64 bytes. */
static gpunn_status gpunn__block_unpacked(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *weight = &step->in[1];
    gpunn_value        in[3] = {step->in[0], *weight, step->in[2]};
    gpunn_step         unpacked = *step;
    unpacked.in = in;
    in[1].data = step->workspace;
    in[1].dtype = step->backward ? step->grad_out.dtype : in[0].dtype;
    const size_t bytes = gpunn__bytes(in[1].dtype, weight->count);
    if (action != GPUNN__PREPARE) unpacked.workspace = (char *)step->workspace + bytes;
    if (action != GPUNN__PREPARE && (!step->backward || step->grad_in[0].data))
        GPUNN__TRY(gpunn__cuda_block_values(cuda, in[1].data, in[1].dtype, weight->data, weight->dtype,
                                            weight->count));
    GPUNN__TRY(gpunn__cuda_linear(cuda, &unpacked, action));
    if (action == GPUNN__PREPARE) step->workspace_bytes = bytes + unpacked.workspace_bytes;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_block_linear(gpunn__cuda *cuda, gpunn_step *step,
                                                      gpunn__action action)
{
    gpunn__product p;
    if (step->backward) return gpunn__block_unpacked(cuda, step, action);
    const bool whole = gpunn__linear_whole(step, &p);
    if (p.m > GPUNN__BLOCK_ROWS) return gpunn__block_unpacked(cuda, step, action);
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = 0;
        return GPUNN_OK;
    }
    if (!whole) p = gpunn__linear_bare(step);
    GPUNN__TRY(gpunn__block_product(cuda, step->in[1].dtype, &p));
    return whole ? GPUNN_OK : gpunn__linear_rest(cuda, step);
}
