#ifndef GPUNN__BASE_BLOCKS_H
#define GPUNN__BASE_BLOCKS_H
#include "base/structs.h"

/* ==== >>base/blocks ====================================================================================== *
 * Blocks of quantised numbers, bit for bit those of ggml. All formats have groups of 32 numbers q. A group
 * stands for scale q + minimum, with integers q of at most 8 bits. A block of 32 numbers is one group with
 * its scale and, in Q4_1 and Q5_1, its minimum in F16. A block of 256 numbers has 8 groups; its two F16
 * numbers are multiplied by scales and minimums of 6 bits. Q6_K has no minimums, and scales of 8 bits for
 * each half of a group. */
enum { GPUNN__GROUP = 32 };

/* Whether the dtype is a format of blocks. */
GPUNN__INLINE bool gpunn__is_blocks(gpunn_dtype dtype)
{
    return dtype > GPUNN__BLOCKS && dtype < GPUNN__BLOCKS_END;
}

GPUNN__PRIVATE const struct {
    uint16_t length, bytes;
} gpunn__block_infos[] = {
#define GPUNN__X(id, name, length, bytes) {length, bytes},
    GPUNN_BLOCK_LIST(GPUNN__X)
#undef GPUNN__X
};

/* Numbers in a block. 1 for other dtypes. */
GPUNN__INLINE int64_t gpunn__block_length(gpunn_dtype format)
{
    return gpunn__is_blocks(format) ? gpunn__block_infos[format - GPUNN__BLOCKS - 1].length : 1;
}

/* Bytes of n numbers, a multiple of the block's length. Also right for dtypes without blocks. */
GPUNN__INLINE size_t gpunn__block_bytes(gpunn_dtype format, int64_t n)
{
    if (!gpunn__is_blocks(format)) return (size_t)n * gpunn_dtype_size(format);
    return (size_t)(n / gpunn__block_length(format)) * gpunn__block_infos[format - GPUNN__BLOCKS - 1].bytes;
}

/* An unpacked group: scale q + minimum. */
typedef struct gpunn__group {
    int8_t q[GPUNN__GROUP];
    float  scale[2]; /* of each half */
    float  minimum;  /* -0 if the format has none, which changes no number */
} gpunn__group;

/* Unpacks group `index` of blocks. */
GPUNN__INTERNAL gpunn__group gpunn__unpack_group(gpunn_dtype format, const void *blocks, int64_t index);

/* Scale and minimum of group j of a block of Q4_K or Q5_K: 6 bits each in 12 bytes. */
GPUNN__INLINE void gpunn__group_scales(const uint8_t *packed, int64_t j, int *scale, int *minimum)
{
    *scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
    *minimum = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | packed[j] >> 6 << 4;
}

/* Writes n numbers of blocks from number `at` on. Both are multiples of GPUNN__GROUP. */
GPUNN__INTERNAL void gpunn__dequantize_from(gpunn_dtype format, const void *blocks, int64_t at, float *values,
                                            int64_t n);

/* Writes the numbers of n / length blocks. n is a multiple of the block's length. */
GPUNN__INTERNAL void gpunn__dequantize(gpunn_dtype format, const void *blocks, float *values, int64_t n);

/* Whether gpunn__quantize writes this format. */
GPUNN__INTERNAL bool gpunn__quantizes(gpunn_dtype format);

/* Rounds n values, a multiple of the block's length, to blocks, as ggml's quantize_row_*_ref. A block with a
 * NaN gets the scale NaN, and one with an infinity an infinite scale. */
GPUNN__INTERNAL void gpunn__quantize(gpunn_dtype format, const float *values, void *blocks, int64_t n);

/* Stores n values as a dtype of 16 bits or as blocks. `to` may be the memory of values. */
GPUNN__INTERNAL void gpunn__narrow_values(gpunn_dtype dtype, const float *values, void *to, int64_t n);

/* Reads n values of F32, 16 bits or blocks. */
GPUNN__INTERNAL void gpunn__widen_values(gpunn_dtype dtype, const void *from, float *values, int64_t n);

#endif /* GPUNN__BASE_BLOCKS_H */
