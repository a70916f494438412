#ifndef GPUNN__COMMON_BLOCKS_H
#define GPUNN__COMMON_BLOCKS_H
#include "common/traits.h"

/* ==== >>common/blocks =================================================================================== *
 * Blocks of quantised numbers, bit for bit those of ggml. All formats have groups of 32 numbers q. A group
 * stands for scale q + minimum, with integers q of at most 8 bits. A block of 32 numbers is one group with
 * its scale and, in Q4_1 and Q5_1, its minimum in F16. A block of 256 numbers has 8 groups; its two F16
 * numbers are multiplied by scales and minimums of 6 bits. Q6_K has no minimums, and scales of 8 bits for
 * each half of a group. IQ4_NL stores indices of 4 bits into a table of numbers q. scale q is exact in F32,
 * except in Q6_K, so that all backends give the same bits.
 * A block of NF4 has two groups: a scale in F32, then indices of 4 bits into a table of floats, the first of
 * two in the upper half of a byte (Dettmers et al., 2023, arXiv 2305.14314; bitsandbytes). */
enum { GPUNN__GROUP = 32 };

/* q + 128 of the indices 0 to 7 and 8 to 15 of IQ4_NL, a byte each: kvalues_iq4nl of ggml. */
#define GPUNN__IQ4_NL_LOW 0x766A5D4F3F2D1801u
#define GPUNN__IQ4_NL_HIGH 0xF1D9C5B5A6998D81u

/* The numbers of NF4, the quantiles of a normal distribution, from the paper's appendix E. */
GPUNN__SHARED const float *gpunn__nf4_numbers(void)
{
    static const float numbers[16] = {
        -1.0f,
        -0.6961928009986877f,
        -0.5250730514526367f,
        -0.39491748809814453f,
        -0.28444138169288635f,
        -0.18477343022823334f,
        -0.09105003625154495f,
        0.0f,
        0.07958029955625534f,
        0.16093020141124725f,
        0.24611230194568634f,
        0.33791524171829224f,
        0.44070982933044434f,
        0.5626170039176941f,
        0.7229568362236023f,
        1.0f,
    };
    return numbers;
}

/* Whether the dtype is a format of blocks, which a program may leave out. */
GPUNN__SHARED bool gpunn__names_blocks(gpunn_dtype dtype)
{
    return dtype > GPUNN__BLOCKS && dtype < GPUNN__BLOCKS_END;
}

/* Whether the dtype is a format of blocks that the program has. Without any, compilers drop the code for
 * them. */
GPUNN__SHARED bool gpunn__is_blocks(gpunn_dtype dtype)
{
#ifdef GPUNN_NO_GGUF
    (void)dtype;
    return false;
#else
    return gpunn__names_blocks(dtype);
#endif
}

/* Numbers in a block. 1 for other dtypes. */
GPUNN__SHARED int64_t gpunn__block_length(gpunn_dtype format)
{
#define GPUNN__X(id, name, length, bytes) \
    if (format == (id)) return length;
    GPUNN_BLOCK_LIST(GPUNN__X)
#undef GPUNN__X
    return 1;
}

/* Bytes of a block. 0 for other dtypes. */
GPUNN__SHARED int64_t gpunn__block_size(gpunn_dtype format)
{
    switch ((int)format) {
#define GPUNN__X(id, name, length, bytes) \
    case id: return bytes;
        GPUNN_BLOCK_LIST(GPUNN__X)
#undef GPUNN__X
    default: return 0;
    }
}

GPUNN__SHARED bool gpunn__block_has_minimums(gpunn_dtype format)
{
    return format == GPUNN_Q4_1 || format == GPUNN_Q5_1 || format == GPUNN_Q4_K || format == GPUNN_Q5_K;
}

/* The byte of a block at which its F16 scale stands. The F16 minimum, if there is one, follows. */
GPUNN__SHARED int gpunn__block_scale_at(gpunn_dtype format)
{
    return format == GPUNN_Q6_K ? 208 : 0;
}

/* Scale and minimum of group j of a block of Q4_K or Q5_K: 6 bits each in 12 bytes. */
GPUNN__SHARED void gpunn__group_scales(const uint8_t *packed, int64_t j, int *scale, int *minimum)
{
    *scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
    *minimum = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | packed[j] >> 6 << 4;
}

/* Scale and minimum of one half of group j. On entry they are the block's. The minimum is -0 if the format
 * has none, which changes no number. */
GPUNN__SHARED void gpunn__group_factors(gpunn_dtype format, const uint8_t *block, int j, int half,
                                        float *scale, float *minimum)
{
    int s, m;
    if (!gpunn__block_has_minimums(format)) *minimum = -0.0f;
    if (format == GPUNN_Q6_K) *scale *= (float)((const int8_t *)block)[192 + 2 * j + half];
    if (format != GPUNN_Q4_K && format != GPUNN_Q5_K) return;
    gpunn__group_scales(block + 4, j, &s, &m);
    *scale *= (float)s;
    *minimum *= -(float)m;
}

/* Four bytes, the first of which is the lowest. A GPU's blocks stand at even addresses. */
GPUNN__SHARED uint32_t gpunn__four_bytes(const uint8_t *at)
{
#ifdef __CUDA_ARCH__
    return (uint32_t)((const uint16_t *)at)[0] | (uint32_t)((const uint16_t *)at)[1] << 16;
#else
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
#endif
}

/* The scale of a block of NF4. */
GPUNN__SHARED float gpunn__nf4_scale(const uint8_t *block)
{
    const uint32_t bits = gpunn__four_bytes(block);
    float          scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* gpunn__unpack4 for group j of a block of NF4. */
GPUNN__SHARED uint32_t gpunn__unpack4_of_nf4(const uint8_t *block, int j, int i)
{
    const uint8_t *at = block + 4 + 16 * j + 2 * i;
    return (uint32_t)at[0] >> 4 | (at[0] & 15u) << 8 | (uint32_t)(at[1] >> 4) << 16 | (at[1] & 15u) << 24;
}

/* q + 128 for an index of IQ4_NL. */
GPUNN__SHARED uint32_t gpunn__iq4_nl_byte(uint32_t index)
{
    return (uint32_t)((index < 8 ? GPUNN__IQ4_NL_LOW : GPUNN__IQ4_NL_HIGH) >> index % 8 * 8) & 255u;
}

/* gpunn__unpack4 for a block of 32. The lower half of a byte is a number of the group's first half. The
 * highest bits of 5 stand apart; the multiplication spreads four of them over four bytes. */
GPUNN__SHARED uint32_t gpunn__unpack4_of_32(gpunn_dtype format, const uint8_t *block, int i)
{
    const uint8_t *packed = block + (gpunn__block_has_minimums(format) ? 4 : 2);
    const bool     five = format == GPUNN_Q5_0 || format == GPUNN_Q5_1;
    if (format == GPUNN_Q8_0) return gpunn__four_bytes(packed + 4 * i) ^ 0x80808080u;
    const uint32_t high = five ? (packed[i / 2] >> i % 2 * 4 & 15u) * 0x204081u & 0x01010101u : 0;
    const uint32_t four = gpunn__four_bytes(packed + (five ? 4 : 0) + i % 4 * 4) >> i / 4 * 4 & 0x0F0F0F0Fu;
    if (format != GPUNN_IQ4_NL) return four | high << 4;
    return gpunn__iq4_nl_byte(four & 15u) | gpunn__iq4_nl_byte(four >> 8 & 15u) << 8 |
           gpunn__iq4_nl_byte(four >> 16 & 15u) << 16 | gpunn__iq4_nl_byte(four >> 24) << 24;
}

/* The same of group j of a block of 256. */
GPUNN__SHARED uint32_t gpunn__unpack4_of_256(gpunn_dtype format, const uint8_t *block, int j, int i)
{
    const bool     six = format == GPUNN_Q6_K;
    const int      low = six ? j / 4 * 64 + j % 2 * 32 : (format == GPUNN_Q5_K ? 48 : 16) + j / 2 * 32;
    const uint32_t four = gpunn__four_bytes(block + low + 4 * i) >> (six ? j % 4 / 2 : j % 2) * 4;
    if (format == GPUNN_Q4_K) return four & 0x0F0F0F0Fu;
    const uint32_t high = gpunn__four_bytes(block + (six ? 128 + j / 4 * 32 : 16) + 4 * i);
    return (four & 0x0F0F0F0Fu) | (high >> (six ? j % 4 * 2 : j) & (six ? 0x03030303u : 0x01010101u)) << 4;
}

/* Numbers 4 i .. 4 i + 3 of group j of a block, a byte each, the first lowest. Each byte is q +
 * gpunn__block_bias. */
GPUNN__SHARED uint32_t gpunn__unpack4(gpunn_dtype format, const uint8_t *block, int j, int i)
{
    if (format == GPUNN_NF4) return gpunn__unpack4_of_nf4(block, j, i);
    return gpunn__block_length(format) == GPUNN__GROUP ? gpunn__unpack4_of_32(format, block, i)
                                                       : gpunn__unpack4_of_256(format, block, j, i);
}

/* Whether the numbers of a block of 32 have 8 bits. */
GPUNN__SHARED bool gpunn__block_is_bytes(gpunn_dtype format)
{
    return format == GPUNN_Q8_0 || format == GPUNN_IQ4_NL;
}

GPUNN__SHARED int gpunn__block_bias(gpunn_dtype format)
{
    if (gpunn__block_is_bytes(format)) return 128;
    return format == GPUNN_Q6_K ? 32 : format == GPUNN_Q5_0 ? 16 : format == GPUNN_Q4_0 ? 8 : 0;
}

/* Whether the numbers q are integers, of which kernels make products. */
GPUNN__SHARED bool gpunn__block_has_integers(gpunn_dtype format)
{
    return format != GPUNN_NF4;
}

/* The number by which the scale is multiplied. Of NF4, q is its index. */
GPUNN__SHARED float gpunn__block_number(gpunn_dtype format, int q)
{
    return gpunn__block_has_integers(format) ? (float)q : gpunn__nf4_numbers()[q];
}

#endif /* GPUNN__COMMON_BLOCKS_H */
