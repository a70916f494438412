/* Stands in for CUDA's header of the same name: what gpunn_cuda.cu uses of it. */
#ifndef EMULATOR_CUDA_FP16_H
#define EMULATOR_CUDA_FP16_H
#include "cuda_runtime.h"

struct __half {
    unsigned short bits;
};
static inline __half __ushort_as_half(unsigned short bits)
{
    return {bits};
}
static inline unsigned short __half_as_ushort(__half x)
{
    return x.bits;
}

static inline float __half2float(__half x)
{
    unsigned sign = (unsigned)(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31, mantissa = x.bits & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7F800000 | mantissa << 13);
    float magnitude = exponent ? ldexpf((float)(1024 + mantissa), (int)exponent - 25)
                               : ldexpf((float)mantissa, -24);
    return sign ? -magnitude : magnitude;
}

/* To the nearest, ties to even; NaN becomes 0x7FFF as on the device. */
static inline __half __float2half_rn(float x)
{
    unsigned short sign = (unsigned short)(__float_as_uint(x) >> 16 & 0x8000);
    if (x != x) return {0x7FFF};
    float magnitude = fabsf(x);
    if (magnitude >= 65520.0f) return {(unsigned short)(sign | 0x7C00)};
    if (magnitude < 0x1p-14f) /* carries into 0x0400 */
        return {(unsigned short)(sign | (unsigned short)rintf(magnitude * 0x1p24f))};
    unsigned bits = __float_as_uint(magnitude);
    bits += 0x0FFF + (bits >> 13 & 1);
    return {(unsigned short)(sign | (unsigned short)((bits >> 13) - (112u << 10)))};
}
#endif
