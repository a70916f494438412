#ifndef GPUNN__BASE_BLOCKS_H
#define GPUNN__BASE_BLOCKS_H
#include "base/structs.h"
#include "common/blocks.h"

/* ==== >>base/blocks ====================================================================================== *
 * Conversions between blocks and floats on the host. */

/* Bytes of n numbers, a multiple of the block's length. Also right for dtypes without blocks. */
GPUNN__INLINE size_t gpunn__block_bytes(gpunn_dtype format, int64_t n)
{
    if (!gpunn__is_blocks(format)) return (size_t)n * gpunn_dtype_size(format);
    return (size_t)(n / gpunn__block_length(format) * gpunn__block_size(format));
}

/* An unpacked group: scale gpunn__block_number(q) + minimum. */
typedef struct gpunn__group {
    int8_t q[GPUNN__GROUP];
    float  scale[2]; /* of each half */
    float  minimum;  /* -0 if the format has none, which changes no number */
} gpunn__group;

/* Unpacks group `index` of blocks. */
GPUNN__INTERNAL gpunn__group gpunn__unpack_group(gpunn_dtype format, const void *blocks, int64_t index);

/* Writes n numbers of blocks from number `at` on. Both are multiples of GPUNN__GROUP. */
GPUNN__INTERNAL void gpunn__dequantize_from(gpunn_dtype format, const void *blocks, int64_t at, float *values,
                                            int64_t n);

/* Writes the numbers of n / length blocks. n is a multiple of the block's length. */
GPUNN__INTERNAL void gpunn__dequantize(gpunn_dtype format, const void *blocks, float *values, int64_t n);

/* Rounds n values, a multiple of the block's length, to blocks, as ggml's quantize_row_*_ref, and to NF4 as
 * bitsandbytes; to blocks of 256 and IQ4_NL with ggml's search for scales but not its bits. A block with a
 * NaN gets the scale NaN, and one with an infinity an infinite scale. */
GPUNN__INTERNAL void gpunn__quantize(gpunn_dtype format, const float *values, void *blocks, int64_t n);

/* Stores n values as a dtype of 16 bits or as blocks. `to` may be the memory of values. */
GPUNN__INTERNAL void gpunn__convert_values(gpunn_dtype dtype, const float *values, void *to, int64_t n);

/* Reads n values of F32, 16 bits or blocks. */
GPUNN__INTERNAL void gpunn__widen_values(gpunn_dtype dtype, const void *from, float *values, int64_t n);

#endif /* GPUNN__BASE_BLOCKS_H */
