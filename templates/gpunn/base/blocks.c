#include "base/blocks.h"
#include "base/math.h"

static const struct {
    uint16_t length, bytes;
} gpunn__block_infos[] = {
#define GPUNN__X(id, name, length, bytes) {length, bytes},
    GPUNN_BLOCK_LIST(GPUNN__X)
#undef GPUNN__X
};

GPUNN__INTERNAL int64_t gpunn__block_length(gpunn_dtype format)
{
    return gpunn__block_infos[format - GPUNN__BLOCKS - 1].length;
}

GPUNN__INTERNAL size_t gpunn__block_bytes(gpunn_dtype format, int64_t n)
{
    return (size_t)(n / gpunn__block_length(format)) * gpunn__block_infos[format - GPUNN__BLOCKS - 1].bytes;
}

/* ---- blocks of 32 -------------------------------------------------------------------------------------- */

/* A block holds d, m if `minimum`, the highest bits of 5, then two numbers a byte or, of 8 bits, one. */
typedef struct gpunn__block32 {
    int  bits;
    bool minimum;
} gpunn__block32;

static gpunn__block32 gpunn__block32_of(gpunn_dtype format)
{
    gpunn__block32 layout;
    layout.bits = format == GPUNN_Q8_0 ? 8 : format == GPUNN_Q4_0 || format == GPUNN_Q4_1 ? 4 : 5;
    layout.minimum = format == GPUNN_Q4_1 || format == GPUNN_Q5_1;
    return layout;
}

static float gpunn__block_half(const uint8_t *at)
{
    float value;
    gpunn__widen_floats(GPUNN_F16, at, 1, &value);
    return value;
}

/* Adds bit `bit` of 32 numbers, which is bit i % 8 of byte i / 8. */
static void gpunn__block_add_bits(const uint8_t *bits, int bit, uint8_t *numbers)
{
    for (int i = 0; i < 32; i++) numbers[i] = (uint8_t)(numbers[i] | (bits[i / 8] >> i % 8 & 1) << bit);
}

static void gpunn__dequantize32(gpunn__block32 layout, const uint8_t *block, float *values)
{
    const float    d = gpunn__block_half(block), m = layout.minimum ? gpunn__block_half(block + 2) : 0;
    const uint8_t *packed = block + (layout.minimum ? 4 : 2);
    const int      zero = layout.minimum ? 0 : 1 << (layout.bits - 1);
    uint8_t        numbers[32] = {0};
    if (layout.bits == 5) {
        gpunn__block_add_bits(packed, 4, numbers);
        packed += 4;
    }
    for (int i = 0; layout.bits < 8 && i < 16; i++) {
        numbers[i] = (uint8_t)(numbers[i] | (packed[i] & 15));
        numbers[i + 16] = (uint8_t)(numbers[i + 16] | packed[i] >> 4);
    }
    for (int i = 0; layout.bits == 8 && i < 32; i++) numbers[i] = packed[i] ^ 128;
    if (layout.minimum)
        for (int i = 0; i < 32; i++) values[i] = d * (float)numbers[i] + m;
    else
        for (int i = 0; i < 32; i++) values[i] = d * (float)(numbers[i] - zero);
}

/* The first value of the largest size, or NaN if there is one. */
static float gpunn__block_farthest(const float *values)
{
    float farthest = 0;
    for (int i = 0; i < 32; i++)
        if (fabsf(values[i]) > fabsf(farthest) || values[i] != values[i]) farthest = values[i];
    return farthest;
}

/* The difference of the largest and the smallest value, or NaN. */
static float gpunn__block_range(const float *values, float *least)
{
    float most = *least = values[0];
    for (int i = 0; i < 32; i++) {
        *least = gpunn__min(*least, values[i]);
        most = gpunn__max(most, values[i]);
    }
    return most - *least;
}

/* x * scale + half, rounded down to 0 .. most, and 0 for NaN. The product is rounded before the sum. */
static uint8_t gpunn__block_round(float x, float scale, float half, int most)
{
    const float y = (float)((double)x * (double)scale) + half;
    if (!(y > 0)) return 0;
    return (uint8_t)(y < (float)most ? (int)y : most);
}

/* Half away from zero, and 0 for NaN. */
static uint8_t gpunn__block_round8(float x, float scale)
{
    const float y = roundf(x * scale);
    return y == y ? (uint8_t)(int8_t)(y > 127 ? 127 : y < -127 ? -127 : y) : 0;
}

static void gpunn__quantize32(gpunn__block32 layout, const float *values, uint8_t *block)
{
    const int levels = 1 << layout.bits;
    float     least = 0, d;
    uint8_t  *packed = block + (layout.minimum ? 4 : 2), number[32];
    if (layout.minimum)
        d = gpunn__block_range(values, &least) / (float)(levels - 1);
    else if (layout.bits == 8)
        d = fabsf(gpunn__block_farthest(values)) / 127;
    else
        d = gpunn__block_farthest(values) / (float)(-levels / 2);
    const float scale = d != 0 ? 1 / d : 0, half = layout.minimum ? 0.5f : (float)(levels / 2) + 0.5f;
    gpunn__round_floats(GPUNN_F16, &d, 1, block);
    if (layout.minimum) gpunn__round_floats(GPUNN_F16, &least, 1, block + 2);
    for (int i = 0; i < 32; i++)
        number[i] = layout.bits == 8 ? gpunn__block_round8(values[i], scale)
                                     : gpunn__block_round(values[i] - least, scale, half, levels - 1);
    if (layout.bits == 5) {
        memset(packed, 0, 4);
        for (int i = 0; i < 32; i++) packed[i / 8] = (uint8_t)(packed[i / 8] | number[i] >> 4 << i % 8);
        packed += 4;
    }
    if (layout.bits == 8)
        memcpy(packed, number, sizeof number);
    else
        for (int i = 0; i < 16; i++) packed[i] = (uint8_t)((number[i] & 15) | number[i + 16] << 4);
}

/* ---- blocks of 256 ------------------------------------------------------------------------------------- */

/* Scale and minimum of group j of 8: 6 bits each in 12 bytes. */
static void gpunn__block_scales(const uint8_t *packed, int j, float *scale, float *minimum)
{
    int s = packed[j] & 63, m = packed[j + 4] & 63;
    if (j >= 4) {
        s = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
        m = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    }
    *scale = (float)s;
    *minimum = (float)m;
}

/* Q4_K and, with the highest bits in 32 bytes, Q5_K. */
static void gpunn__dequantize_q4_k(const uint8_t *block, bool five, float *values)
{
    const float    d = gpunn__block_half(block), dmin = gpunn__block_half(block + 2);
    const uint8_t *high = block + 16, *low = high + (five ? 32 : 0);
    for (int j = 0; j < 8; j++) {
        float s, m;
        gpunn__block_scales(block + 4, j, &s, &m);
        for (int i = 0; i < 32; i++) {
            int q = low[j / 2 * 32 + i] >> j % 2 * 4 & 15;
            if (five) q |= (high[i] >> j & 1) << 4;
            values[32 * j + i] = d * s * (float)q - dmin * m;
        }
    }
}

static void gpunn__dequantize_q6_k(const uint8_t *block, float *values)
{
    const float d = gpunn__block_half(block + 208);
    for (int i = 0; i < 256; i++) {
        const int      half = i / 128, group = i % 128 / 32;
        const uint8_t *low = block + 64 * half + 32 * (group & 1), *high = block + 128 + 32 * half;
        const int      q = (low[i % 32] >> group / 2 * 4 & 15) | (high[i % 32] >> 2 * group & 3) << 4;
        values[i] = d * (float)(int8_t)block[192 + i / 16] * (float)(q - 32);
    }
}

/* ---- all formats --------------------------------------------------------------------------------------- */

GPUNN__INTERNAL void gpunn__dequantize(gpunn_dtype format, const void *blocks, float *values, int64_t n)
{
    const int64_t  length = gpunn__block_length(format);
    const size_t   bytes = gpunn__block_bytes(format, length);
    const uint8_t *block = (const uint8_t *)blocks;
    for (int64_t i = 0; i < n; i += length, block += bytes) {
        if (format == GPUNN_Q6_K)
            gpunn__dequantize_q6_k(block, values + i);
        else if (length == 256)
            gpunn__dequantize_q4_k(block, format == GPUNN_Q5_K, values + i);
        else
            gpunn__dequantize32(gpunn__block32_of(format), block, values + i);
    }
}

GPUNN__INTERNAL bool gpunn__quantizes(gpunn_dtype format)
{
    return gpunn__block_length(format) == 32;
}

GPUNN__INTERNAL void gpunn__quantize(gpunn_dtype format, const float *values, void *blocks, int64_t n)
{
    const gpunn__block32 layout = gpunn__block32_of(format);
    for (int64_t i = 0; i < n; i += 32)
        gpunn__quantize32(layout, values + i, (uint8_t *)blocks + gpunn__block_bytes(format, i));
}
