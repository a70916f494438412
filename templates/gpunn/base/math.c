#include "base/math.h"

#undef GPUNN__SQRT_HALF_BITS

/* ---- 16-bit floats ------------------------------------------------------------------------------------- */

GPUNN__INTERNAL uint16_t gpunn__bfloat_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 64u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

static uint16_t gpunn__half_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u;
    bits &= 0x7FFFFFFFu;
    if (bits > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);
    if (bits >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* 65520 and above: infinity */
    if (bits < 0x38800000u)                                     /* subnormal, in units of 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(fabsf(value) * 16777216.0f));
    return (uint16_t)(sign | (bits - (112u << 23) + 0xFFFu + (bits >> 13 & 1u)) >> 13);
}

GPUNN__INTERNAL void gpunn__round_floats(gpunn_dtype dtype, const float *values, int64_t count, void *to)
{
    for (int64_t i = 0; i < count; i++) {
        const uint16_t bits = dtype == GPUNN_F16 ? gpunn__half_of_float(values[i])
                                                 : gpunn__bfloat_of_float(values[i]);
        memcpy((char *)to + 2 * i, &bits, sizeof bits);
    }
}
