#ifndef GPUNN__BASE_BLOCKS_H
#define GPUNN__BASE_BLOCKS_H
#include "base/structs.h"

/* ==== >>base/blocks ====================================================================================== *
 * Blocks of quantised numbers, bit for bit those of ggml. Numbers of scales are F16. A block of 32 numbers q
 * stands for d q, in Q4_1 and Q5_1 for d q + m. A block of 256 numbers has 8 groups of 32 with scales and
 * minimums of 6 bits, d s q - dmin m, or, in Q6_K, 16 groups of 16 with scales of 8 bits, d s q. */
enum { GPUNN__BLOCK_LENGTH = 256 }; /* of the longest block */

/* Whether the dtype is a format of blocks. */
GPUNN__INLINE bool gpunn__is_blocks(gpunn_dtype format)
{
    return format > GPUNN__BLOCKS && format < GPUNN__BLOCKS_END;
}

/* Numbers in a block. */
GPUNN__INTERNAL int64_t gpunn__block_length(gpunn_dtype format);

/* Bytes of n numbers, a multiple of the block's length. */
GPUNN__INTERNAL size_t gpunn__block_bytes(gpunn_dtype format, int64_t n);

/* Writes the numbers of n / length blocks. n is a multiple of the block's length. */
GPUNN__INTERNAL void gpunn__dequantize(gpunn_dtype format, const void *blocks, float *values, int64_t n);

/* Whether gpunn__quantize writes this format. */
GPUNN__INTERNAL bool gpunn__quantizes(gpunn_dtype format);

/* Rounds n values, a multiple of the block's length, to blocks, as ggml's quantize_row_*_ref. A block with a
 * NaN gets the scale NaN, and one with an infinity an infinite scale. */
GPUNN__INTERNAL void gpunn__quantize(gpunn_dtype format, const float *values, void *blocks, int64_t n);

#endif /* GPUNN__BASE_BLOCKS_H */
