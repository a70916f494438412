#include "base/blocks.h"
#include "base/math.h"

/* ---- rounding to blocks of 32 ---------------------------------------------------------------------- */

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
    for (int i = 0; i < 32; i++)
        number[i] = layout.bits == 8 ? gpunn__block_round8(values[i], scale)
                                     : gpunn__block_round(values[i] - least, scale, half, levels - 1);
    gpunn__round_floats(GPUNN_F16, &d, 1, block);
    if (layout.minimum) gpunn__round_floats(GPUNN_F16, &least, 1, block + 2);
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

/* ---- all formats --------------------------------------------------------------------------------------- */

GPUNN__INTERNAL gpunn__group gpunn__unpack_group(gpunn_dtype format, const void *blocks, int64_t index)
{
    const int64_t  groups = gpunn__block_length(format) / GPUNN__GROUP;
    const uint8_t *block = (const uint8_t *)blocks + index / groups * gpunn__block_size(format),
                  *scale = block + gpunn__block_scale_at(format);
    const float d = gpunn__block_half(scale),
                m = gpunn__block_has_minimums(format) ? gpunn__block_half(scale + 2) : 0;
    const int    j = (int)(index % groups);
    gpunn__group group = {{0}, {d, d}, m};
    for (int half = 0; half < 2; half++) {
        group.minimum = m;
        gpunn__group_factors(format, block, j, half, &group.scale[half], &group.minimum);
    }
    for (int i = 0; i < GPUNN__GROUP; i += 4) {
        const uint32_t four = gpunn__unpack4(format, block, j, i / 4);
        for (int k = 0; k < 4; k++)
            group.q[i + k] = (int8_t)((int)(four >> 8 * k & 255) - gpunn__block_bias(format));
    }
    return group;
}

GPUNN__INTERNAL void gpunn__dequantize_from(gpunn_dtype format, const void *blocks, int64_t at, float *values,
                                            int64_t n)
{
    for (int64_t i = 0; i < n; i += GPUNN__GROUP) {
        const gpunn__group group = gpunn__unpack_group(format, blocks, (at + i) / GPUNN__GROUP);
        for (int k = 0; k < GPUNN__GROUP; k++)
            values[i + k] = group.scale[k / 16] * (float)group.q[k] + group.minimum;
    }
}

GPUNN__INTERNAL void gpunn__dequantize(gpunn_dtype format, const void *blocks, float *values, int64_t n)
{
    gpunn__dequantize_from(format, blocks, 0, values, n);
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

GPUNN__INTERNAL void gpunn__convert_values(gpunn_dtype dtype, const float *values, void *to, int64_t n)
{
    if (gpunn__is_blocks(dtype))
        gpunn__quantize(dtype, values, to, n);
    else
        gpunn__round_floats(dtype, values, n, to);
}

GPUNN__INTERNAL void gpunn__widen_values(gpunn_dtype dtype, const void *from, float *values, int64_t n)
{
    if (gpunn__is_blocks(dtype))
        gpunn__dequantize(dtype, from, values, n);
    else
        gpunn__widen_floats(dtype, from, n, values);
}
