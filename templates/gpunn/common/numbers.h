#ifndef GPUNN__COMMON_NUMBERS_H
#define GPUNN__COMMON_NUMBERS_H
#include "common/geometry.h"

/* ==== >>common/numbers ================================================================================== */
/* Integer arithmetic, float remainders, conversions and random numbers, identical on the CPU and the GPU. */
/* Stores a number in element i of I64, I32, U8 or BOOL storage. */
GPUNN__SHARED void gpunn__put_integer(void *data, gpunn_dtype dtype, int64_t i, int64_t value)
{
    if (dtype == GPUNN_I64)
        ((int64_t *)data)[i] = value;
    else if (dtype == GPUNN_I32)
        ((int32_t *)data)[i] = (int32_t)(uint32_t)value;
    else
        ((uint8_t *)data)[i] = dtype == GPUNN_BOOL ? value != 0 : (uint8_t)value;
}

/* x, limited to [low, high]. */
GPUNN__SHARED int64_t gpunn__clamp(int64_t x, int64_t low, int64_t high)
{
    if (x < low) return low;
    return x < high ? x : high;
}

/* a / b, rounded towards 0; 0 if b is 0. */
GPUNN__SHARED int64_t gpunn__trunc_quotient(int64_t a, int64_t b)
{
    if (b == 0) return 0;
    return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

/* The remainder of that division; a if b is 0. */
GPUNN__SHARED int64_t gpunn__trunc_rest(int64_t a, int64_t b)
{
    if (b == 0) return a;
    return b == -1 ? 0 : a % b;
}

/* Whether that quotient is above the exact one. */
GPUNN__SHARED bool gpunn__rounds_up(int64_t a, int64_t b)
{
    return b != 0 && gpunn__trunc_rest(a, b) != 0 && (a < 0) != (b < 0);
}

/* Value of an integer op (gpunn_integer_op) of up to three operands. */
GPUNN__SHARED int64_t gpunn__integer_value(int op, int64_t a, int64_t b, int64_t c)
{
    switch (op) {
#define GPUNN__X(ENUM, name, operands, is_bool, value) \
    case GPUNN_INTEGER_##ENUM: return value;
        GPUNN_INTEGER_OPS(GPUNN__X)
#undef GPUNN__X
    default: return 0;
    }
}

/* Whether the op divides by its last operand. */
GPUNN__SHARED bool gpunn__integer_divides(int op)
{
    return op >= GPUNN_INTEGER_FLOOR_DIVIDE && op <= GPUNN_INTEGER_FMOD;
}

/* ---- numbers ------------------------------------------------------------------------------------------- */
/* Floor of the exact quotient: 9 for 1 and 0.1f, although 1 / 0.1f is 10 as a float. */
GPUNN__SHARED float gpunn__floordiv(float p, float q)
{
    const float rest = fmodf(p, q),
                whole = (p - rest) / q - (rest != 0 && (q < 0) != (rest < 0) ? 1.0f : 0.0f);
    const float low = floorf(whole);
    if (q == 0) return p / q;
    if (whole == 0) return copysignf(0, p / q);
    return low + (whole - low > 0.5f ? 1.0f : 0.0f);
}

/* Remainder of p / q with q's sign; exact except for the final addition. */
GPUNN__SHARED float gpunn__remainder(float p, float q)
{
    const float rest = fmodf(p, q);
    return rest != 0 && (rest < 0) != (q < 0) ? rest + q : rest;
}

/* Conversions to integers. Values out of range give INT64_MIN or INT32_MIN, as on x86. */
GPUNN__SHARED int64_t gpunn__to_i64(float x)
{
    return x >= -9223372036854775808.0f && x < 9223372036854775808.0f ? (int64_t)x : INT64_MIN;
}

GPUNN__SHARED int32_t gpunn__to_i32(float x)
{
    return x >= -2147483648.0f && x < 2147483648.0f ? (int32_t)x : INT32_MIN;
}

GPUNN__SHARED int64_t gpunn__double_to_i64(double x)
{
    return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (int64_t)x : INT64_MIN;
}

GPUNN__SHARED int32_t gpunn__double_to_i32(double x)
{
    return x >= -2147483648.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN;
}

/* ---- random numbers ------------------------------------------------------------------------------------ */
/* Philox4x32-10 (Salmon et al. 2011), the generator of every random number here. */
GPUNN__SHARED void gpunn__philox(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Dropout stores no mask: backward draws the same numbers again, and so does every backend. Element i belongs
 * to pack i / 8. The eight elements of a pack use the eight 16-bit halves, low before high, of the four words
 * of
 *     philox4x32-10(key: seed, counter: pack low, stream ^ pack high << 16, step low, step high)
 * where low and high are 32-bit halves. An element is kept if its draw < keep = round((1 - p) * 65536), and
 * then multiplied by 65536 / keep. */
GPUNN__COMMON uint32_t gpunn__drop_keep(const gpunn_step *step)
{
    return step->training && !step->evaluates ? (uint32_t)((1 - (double)step->attr->dropout_p) * 65536 + 0.5)
                                              : 65536;
}

/* Factor of the elements that dropout keeps. */
GPUNN__SHARED float gpunn__drop_scale(uint32_t keep)
{
    return keep ? 65536.0f / (float)keep : 0;
}

/* Random numbers use the same scheme, with draw instead of step and four numbers per pack: element i uses
 * word i % 4 of pack i / 4. */
/* Uniform in [0, 1), in steps of 2^-24. */
GPUNN__SHARED float gpunn__uniform(uint32_t word)
{
    return (float)(word >> 8) * (1 / 16777216.0f);
}

/* Box-Muller: words 2j and 2j + 1 give two normal numbers, radius cos(angle) and radius sin(angle), with
 * radius = sqrt(-2 log(unit)). unit is in (0, 1], angle in [0, 2 pi]. */
GPUNN__SHARED float gpunn__unit(uint32_t word)
{
    return ((float)word + 1) * (1 / 4294967296.0f);
}

GPUNN__SHARED float gpunn__angle(uint32_t word)
{
    return (float)word * (6.2831853f / 4294967296.0f);
}

#endif /* GPUNN__COMMON_NUMBERS_H */
