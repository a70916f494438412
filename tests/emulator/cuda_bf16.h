/* Stands in for CUDA's header of the same name: what generated files use of it. */
#ifndef EMULATOR_CUDA_BF16_H
#define EMULATOR_CUDA_BF16_H
#include "cuda_runtime.h"

struct __nv_bfloat16 {
    unsigned short bits;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}

/* To the nearest, ties to even; NaN becomes 0x7FFF as on the device. */
static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    const unsigned bits = __float_as_uint(x);
    return {(unsigned short)(x != x ? 0x7FFFu : (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16)};
}
#endif
