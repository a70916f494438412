#ifndef GPUNN__CPU_BLOCKS_H
#define GPUNN__CPU_BLOCKS_H
#include "base/blocks.h"
#include "cpu/vectors.h"

/* ==== >>cpu/blocks ======================================================================================= *
 * Products of rows with weights of blocks. The rows of A are rounded to 8 bits by groups of 32 numbers,
 * as in ggml, with scales of F32. Products of two groups are sums of integers, which are exact. NF4, whose
 * numbers are floats, has no such products. */
typedef struct gpunn__rounded { /* a group of A: scale q */
    float   scale, sum;         /* sum: of the rounded numbers */
    int32_t shift[2]; /* -gpunn__block_bias times the sum of q; in Q6_K of each half, else of all and 0 */
    int8_t  q[GPUNN__GROUP];
} gpunn__rounded;

/* Floats that `count` rounded numbers take, for the scratch of gpunn__block_dots. */
GPUNN__INLINE int64_t gpunn__rounded_floats(int64_t count)
{
    return count / GPUNN__GROUP * (int64_t)(sizeof(gpunn__rounded) / sizeof(float));
}

/* C (=, or += if add) A B^T, for A [m, k] and rows of B [n, k] in blocks. a_row and c_row are the strides of
 * A and C. scratch: m k numbers. The result depends neither on m nor on n. */
GPUNN__INTERNAL void gpunn__block_dots(gpunn_dtype format, int64_t m, int64_t n, int64_t k, const float *a,
                                       int64_t a_row, const void *b, float *c, int64_t c_row, bool add,
                                       gpunn__rounded *scratch);

/* Whether gpunn__block_tiles has kernels. */
GPUNN__INTERNAL bool gpunn__block_has_tiles(void);

/* Floats of scratch for gpunn__block_tiles. */
GPUNN__INTERNAL int64_t gpunn__block_tiles_floats(int64_t m, int64_t k);

/* As gpunn__block_dots, for two rows or more. Panels of B are unpacked to 8 bits and stay in the cache
 * while rows of A, rounded too, stream past. The result depends neither on m nor on n, but is not that of
 * gpunn__block_dots to the last bit. */
GPUNN__INTERNAL void gpunn__block_tiles(gpunn_dtype format, int64_t m, int64_t n, int64_t k, const float *a,
                                        int64_t a_row, const void *b, float *c, int64_t c_row, bool add,
                                        float *scratch);

/* gpunn__dequantize_from, with vectors. */
GPUNN__INTERNAL void gpunn__block_widen(gpunn_dtype format, const void *blocks, int64_t at, float *values,
                                        int64_t n);

#endif /* GPUNN__CPU_BLOCKS_H */
