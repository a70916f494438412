#ifndef GPUNN__CUDA_CUDA_GEMM_H
#define GPUNN__CUDA_CUDA_GEMM_H
#include "base/values.h"
#include "base/shared.h"

/* ==== >>cuda/gemm ================================================================================================== */
enum { GPUNN__TILE = 16, GPUNN__DEPTH = 64 };

/* to[k][i] = x at (i0 + i, k0 + k), stored [k][i] if by_k, else [i][k]; what lies outside [m][depth] is 0. */
__device__ __forceinline__ void gpunn__load_tile(float (*to)[GPUNN__TILE + 1], const void *x, gpunn_dtype dtype, bool by_k,
                                                 int64_t start, int64_t ld, int64_t i0, int64_t m, int64_t k0, int64_t depth)
{
#pragma unroll
    for (int part = 0; part < GPUNN__TILE * GPUNN__DEPTH / GPUNN__THREADS; part++) {
        const int     at = part * GPUNN__THREADS + (int)threadIdx.x;
        const int     i = by_k ? at % GPUNN__TILE : at / GPUNN__DEPTH, k = by_k ? at / GPUNN__TILE : at % GPUNN__DEPTH;
        const int64_t row = i0 + i, column = k0 + k;
        to[k][i] = row < m && column < depth ? gpunn__load(x, dtype, start + (by_k ? column * ld + row : row * ld + column)) : 0;
    }
}

/* The constants are gpunn.h's. */
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

/* d at (i, j), with all that follows its sum; row_sum: of row i of a. */
__device__ __forceinline__ void gpunn__product_store(const gpunn__product *p, int64_t i, int64_t j, int64_t at, float sum,
                                                     float row_sum)
{
    if (p->row_sums && j == 0) p->row_sums[i] = row_sum;
    if (p->bias) sum += gpunn__load(p->bias, p->bias_dtype, j);
    if (p->accumulate) sum += gpunn__load(p->d, p->d_dtype, at);
    if (p->residual) sum += gpunn__load(p->residual, p->d_dtype, at);
    if (p->activation == GPUNN__GELU_TANH && p->aux) gpunn__store(p->aux, p->d_dtype, at, sum);
    gpunn__store(p->d, p->d_dtype, at, gpunn__activate(p, at, sum));
}

/* A block makes 16 x 16 of d at a time, a thread one of them. */
__device__ __forceinline__ void gpunn__product_make(const gpunn__product *p)
{
    __shared__ float a[GPUNN__DEPTH][GPUNN__TILE + 1], b[GPUNN__DEPTH][GPUNN__TILE + 1];
    const int        x = (int)threadIdx.x % GPUNN__TILE, y = (int)threadIdx.x / GPUNN__TILE;
    const int64_t    across = (p->n + GPUNN__TILE - 1) / GPUNN__TILE;
    const int64_t    tiles = across * ((p->m + GPUNN__TILE - 1) / GPUNN__TILE);
    for (int64_t tile = blockIdx.x; tile < tiles * p->batch; tile += gridDim.x) {
        const int64_t batch = tile / tiles, i0 = tile % tiles / across * GPUNN__TILE, j0 = tile % across * GPUNN__TILE;
        float         sum = 0, row_sum = 0;
        for (int64_t k0 = 0; k0 < p->k; k0 += GPUNN__DEPTH) {
            __syncthreads(); /* the last piece has been used */
            gpunn__load_tile(a, p->a, p->dtype, p->transpose_a, batch * p->stride_a, p->lda, i0, p->m, k0, p->k);
            gpunn__load_tile(b, p->b, p->dtype, !p->transpose_b, batch * p->stride_b, p->ldb, j0, p->n, k0, p->k);
            __syncthreads();
            const int depth = p->k - k0 < GPUNN__DEPTH ? (int)(p->k - k0) : GPUNN__DEPTH;
#pragma unroll 8
            for (int k = 0; k < depth; k++) {
                sum += a[k][y] * b[k][x];
                row_sum += a[k][y];
            }
        }
        const int64_t i = i0 + y, j = j0 + x;
        if (i < p->m && j < p->n) gpunn__product_store(p, i, j, batch * p->stride_d + i * p->ldd + j, sum, row_sum);
    }
}

GPUNN__INTERNAL int64_t gpunn__product_tiles(const gpunn__product *p);

/* Done before the library's kernel would have started: a multiprocessor has no more than two pieces to do. */
GPUNN__INTERNAL bool gpunn__product_is_small(const gpunn__cuda *cuda, const gpunn__product *p);

/* Up to two products that do not depend on each other, with all that follows their sums. */
GPUNN__INTERNAL gpunn_status gpunn__products(gpunn__cuda *cuda, const gpunn__product *p, int count, gpunn__action action);

GPUNN__INTERNAL void *gpunn__element(const void *data, gpunn_dtype dtype, int64_t index);

/* d[m][n] = a[m][k] b[k][n], all contiguous; transpose_a: a is stored [k][m]; transpose_b: b as [n][k]. */
GPUNN__INTERNAL gpunn__product gpunn__make_product(const gpunn_step *step, int64_t m, int64_t n, int64_t k, const gpunn_value *a,
                                                   bool transpose_a, const gpunn_value *b, bool transpose_b,
                                                   const gpunn_value *d);

/* Operands of one dtype make a result of that dtype or of F32. */
GPUNN__INTERNAL gpunn_status gpunn__check_operands(gpunn__cuda *cuda, const gpunn_value *a, const gpunn_value *b,
                                                   const gpunn_value *d);

/* All that bias, norm, residual and relu do to the bare product in y. */
GPUNN__INTERNAL gpunn_status gpunn__finish_all(gpunn__cuda *cuda, const gpunn_step *step, const void *y, gpunn_dtype y_dtype);

/* x [rows, in], y = x W^T + bias, with what is merged into the step, as one product. false: a product cannot make all of that. */
GPUNN__INTERNAL bool gpunn__linear_whole(const gpunn_step *step, gpunn__product *whole);

typedef struct gpunn__linear_gradients {
    gpunn__product product[2];
    int            count;
    gpunn_value   *before;        /* what the activation that made x was applied to; of relu x, which tells as much */
    bool           sums, derived; /* whether they make the bias's gradient, and the activation's derivative */
} gpunn__linear_gradients;

/* dX = dY W, times the derivative of an activation that made X; dW = dY^T X; dbias = the sums over the rows of dY, which go with
 * the product for dW where nothing is added to them. Whether a gradient is added to may change from run to run. */
GPUNN__INTERNAL gpunn__linear_gradients gpunn__linear_gradients_of(gpunn_step *step);

/* p for every index of the kept axes, summed over the others. The longest kept axis goes into one call. */
GPUNN__INTERNAL gpunn_status gpunn__repeated_products(gpunn__cuda *cuda, gpunn__product p, gpunn__walk kept,
                                                      const gpunn__walk *summed, gpunn__action action);

#endif /* GPUNN__CUDA_CUDA_GEMM_H */
