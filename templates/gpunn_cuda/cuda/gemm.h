#ifndef GPUNN__CUDA_CUDA_GEMM_H
#define GPUNN__CUDA_CUDA_GEMM_H
#include "base/values.h"
#include "base/shared.h"

/* ==== >>cuda/gemm ======================================================================================= */
/* Matrix products and linear layers. Products go to cuBLASLt, or to the tiled kernel below if they are small
 * or cuBLASLt does not support them. Bias, residual, activation and row sums are fused where possible. */
enum { GPUNN__TILE = 16, GPUNN__DEPTH = 64 };

/* Loads a tile into shared memory: to[k][i] = x at (i0 + i, k0 + k). x is stored [k][i] if by_k, else [i][k].
 * Elements outside [m][depth] read as 0. The dtype is constant, so that no branch parts a thread's loads.
 * They then wait for memory together. */
template <gpunn_dtype dtype>
__device__ __forceinline__ void gpunn__load_tile_of(float (*to)[GPUNN__TILE + 1], const void *x, bool by_k,
                                                    int64_t start, int64_t ld, int64_t i0, int64_t m,
                                                    int64_t k0, int64_t depth)
{
    float value[GPUNN__TILE * GPUNN__DEPTH / GPUNN__THREADS];
#pragma unroll
    for (int part = 0; part < GPUNN__TILE * GPUNN__DEPTH / GPUNN__THREADS; part++) {
        const int     at = part * GPUNN__THREADS + (int)threadIdx.x;
        const int64_t row = i0 + (by_k ? at % GPUNN__TILE : at / GPUNN__DEPTH),
                      column = k0 + (by_k ? at / GPUNN__TILE : at % GPUNN__DEPTH);
        value[part] = row < m && column < depth
                          ? gpunn__load(x, dtype, start + (by_k ? column * ld + row : row * ld + column))
                          : 0;
    }
#pragma unroll
    for (int part = 0; part < GPUNN__TILE * GPUNN__DEPTH / GPUNN__THREADS; part++) {
        const int at = part * GPUNN__THREADS + (int)threadIdx.x;
        to[by_k ? at / GPUNN__TILE : at % GPUNN__DEPTH][by_k ? at % GPUNN__TILE : at / GPUNN__DEPTH] =
            value[part];
    }
}

__device__ __forceinline__ void gpunn__load_tile(float (*to)[GPUNN__TILE + 1], const void *x,
                                                 gpunn_dtype dtype, bool by_k, int64_t start, int64_t ld,
                                                 int64_t i0, int64_t m, int64_t k0, int64_t depth)
{
    if (dtype == GPUNN_F32)
        gpunn__load_tile_of<GPUNN_F32>(to, x, by_k, start, ld, i0, m, k0, depth);
    else if (dtype == GPUNN_BF16)
        gpunn__load_tile_of<GPUNN_BF16>(to, x, by_k, start, ld, i0, m, k0, depth);
    else
        gpunn__load_tile_of<GPUNN_F16>(to, x, by_k, start, ld, i0, m, k0, depth);
}

/* The activation of one element, or sum times its derivative at aux. The constants are gpunn.h's. */
__device__ __forceinline__ float gpunn__activate(const gpunn__product *p, int64_t at, float sum)
{
    if (p->activation == GPUNN__NO_ACTIVATION) return sum;
    if (p->activation == GPUNN__RELU) return sum <= 0 ? 0 : sum;
    const float x = p->activation == GPUNN__GELU_TANH ? sum : gpunn__load(p->aux, p->d_dtype, at);
    if (p->activation == GPUNN__RELU_DERIVATIVE) return x <= 0 ? 0 : sum;
    const float t = tanhf(0.7978846f * (x + 0.044715f * x * x * x));
    if (p->activation == GPUNN__GELU_TANH) return 0.5f * x * (1 + t);
    return sum * 0.5f * (1 + t) * (1 + x * (1 - t) * 0.7978846f * (1 + 0.134145f * x * x));
}

/* Adds bias, previous value and residual to the sum, applies the activation and stores d at (i, j). row_sum
 * is the sum of row i of op(a). */
__device__ __forceinline__ void gpunn__product_store(const gpunn__product *p, int64_t i, int64_t j,
                                                     int64_t at, float sum, float row_sum)
{
    if (p->row_sums && j == 0) p->row_sums[i] = row_sum;
    if (p->bias) sum += gpunn__load(p->bias, p->bias_dtype, j);
    if (p->accumulate) sum += gpunn__load(p->d, p->d_dtype, at);
    if (p->residual) sum += gpunn__load(p->residual, p->d_dtype, at);
    if (p->activation == GPUNN__GELU_TANH && p->aux) gpunn__store(p->aux, p->d_dtype, at, sum);
    gpunn__store(p->d, p->d_dtype, at, gpunn__activate(p, at, sum));
}

/* Computes a product. A block computes 16 x 16 tiles of d, each thread one element. */
__device__ __forceinline__ void gpunn__product_make(const gpunn__product *p)
{
    __shared__ float a[GPUNN__DEPTH][GPUNN__TILE + 1], b[GPUNN__DEPTH][GPUNN__TILE + 1];
    const int        x = (int)threadIdx.x % GPUNN__TILE, y = (int)threadIdx.x / GPUNN__TILE;
    const int64_t    across = (p->n + GPUNN__TILE - 1) / GPUNN__TILE;
    const int64_t    tiles = across * ((p->m + GPUNN__TILE - 1) / GPUNN__TILE);
    for (int64_t tile = blockIdx.x; tile < tiles * p->batch; tile += gridDim.x) {
        const int64_t batch = tile / tiles, i0 = tile % tiles / across * GPUNN__TILE,
                      j0 = tile % across * GPUNN__TILE;
        float sum = 0, row_sum = 0;
        for (int64_t k0 = 0; k0 < p->k; k0 += GPUNN__DEPTH) {
            __syncthreads(); /* the previous tiles have been read */
            gpunn__load_tile(a, p->a, p->dtype, p->transpose_a, batch * p->stride_a, p->lda, i0, p->m, k0,
                             p->k);
            gpunn__load_tile(b, p->b, p->dtype, !p->transpose_b, batch * p->stride_b, p->ldb, j0, p->n, k0,
                             p->k);
            __syncthreads();
            const int depth = p->k - k0 < GPUNN__DEPTH ? (int)(p->k - k0) : GPUNN__DEPTH;
#pragma unroll 8
            for (int k = 0; k < depth; k++) {
                sum += a[k][y] * b[k][x];
                row_sum += a[k][y];
            }
        }
        const int64_t i = i0 + y, j = j0 + x;
        if (i < p->m && j < p->n)
            gpunn__product_store(p, i, j, batch * p->stride_d + i * p->ldd + j, sum, row_sum);
    }
}

/* The number of 16 x 16 tiles of d, over the whole batch. */
GPUNN__INTERNAL int64_t gpunn__product_tiles(const gpunn__product *p);

/* Whether our own kernel would finish before cuBLASLt's could start: a multiprocessor then has at most two
 * pieces of work. */
GPUNN__INTERNAL bool gpunn__product_is_small(const gpunn__cuda *cuda, const gpunn__product *p);

/* Prepares or runs up to two independent products, with everything fused into them. */
GPUNN__INTERNAL gpunn_status gpunn__products(gpunn__cuda *cuda, const gpunn__product *p, int count,
                                             gpunn__action action);

/* The address of element `index`. */
GPUNN__INTERNAL void *gpunn__element(const void *data, gpunn_dtype dtype, int64_t index);

/* Describes d[m][n] = a[m][k] b[k][n], all contiguous. transpose_a: a is stored [k][m]. transpose_b: b is
 * stored [n][k]. */
GPUNN__INTERNAL gpunn__product gpunn__make_product(const gpunn_step *step, int64_t m, int64_t n, int64_t k,
                                                   const gpunn_value *a, bool transpose_a,
                                                   const gpunn_value *b, bool transpose_b,
                                                   const gpunn_value *d);

/* Checks that the operands share a dtype and that the result has that dtype or F32. Else
 * GPUNN_ERR_UNSUPPORTED. */
GPUNN__INTERNAL gpunn_status gpunn__check_operands(gpunn__cuda *cuda, const gpunn_value *a,
                                                   const gpunn_value *b, const gpunn_value *d);

/* Applies the step's bias, norm, residual and activation to the bare product in y, and stores step->out. */
GPUNN__INTERNAL gpunn_status gpunn__finish_all(gpunn__cuda *cuda, const gpunn_step *step, const void *y,
                                               gpunn_dtype y_dtype);

/* Describes y = x W^T + bias for x [rows, in], with everything fused into the step, as one product. Returns
 * false if one product cannot do all of that. */
GPUNN__INTERNAL bool gpunn__linear_whole(const gpunn_step *step, gpunn__product *whole);

/* The product alone. Its result is the activation's argument, if there is an activation. */
GPUNN__INTERNAL gpunn__product gpunn__linear_bare(gpunn_step *step);

/* What follows that product: bias, norm, residual and activation. */
GPUNN__INTERNAL gpunn_status gpunn__linear_rest(gpunn__cuda *cuda, gpunn_step *step);

/* LINEAR's forward step. Fuses as much into the product as it supports; the rest follows in separate
 * passes. */
GPUNN__INTERNAL gpunn_status gpunn__linear_forward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action);

typedef struct gpunn__linear_gradients {
    gpunn__product product[2];
    int            count;
    /* the argument of the activation that made x; for relu x itself, which determines the derivative as
     * well */
    gpunn_value *before;
    /* whether the products also compute the bias gradient (sums) and the activation's derivative (derived) */
    bool sums, derived;
} gpunn__linear_gradients;

/* The products of LINEAR's backward step. dX = dY W, times the derivative of an activation that made X.
 * dW = dY^T X. dbias is dY summed over its rows, and is fused into the product for dW unless it accumulates.
 * Whether a gradient accumulates may change from run to run. */
GPUNN__INTERNAL gpunn__linear_gradients gpunn__linear_gradients_of(gpunn_step *step);

/* Runs p for every index of the kept axes and sums over the others. The longest kept axis becomes the batch
 * of one call. */
GPUNN__INTERNAL gpunn_status gpunn__repeated_products(gpunn__cuda *cuda, gpunn__product p, gpunn__walk kept,
                                                      const gpunn__walk *summed, gpunn__action action);

#endif /* GPUNN__CUDA_CUDA_GEMM_H */
