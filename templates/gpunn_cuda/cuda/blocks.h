#ifndef GPUNN__CUDA_CUDA_BLOCKS_H
#define GPUNN__CUDA_CUDA_BLOCKS_H
#include "cuda/gemm.h"

/* ==== >>cuda/blocks ===================================================================================== */
/* Weights that are stored as blocks of 4 to 8 bits: products and rows of embeddings. Threads unpack eight
 * consecutive numbers at a time into registers. */

/* Numbers i .. i + 7 of blocks, for i a multiple of 8. The blocks stand at an even address. */
template <gpunn_dtype format>
__device__ __forceinline__ void gpunn__block_load8(const void *blocks, int64_t i, float v[8])
{
    const int64_t         length = gpunn__block_length(format), within = i % length;
    const uint8_t        *block = (const uint8_t *)blocks + i / length * gpunn__block_size(format);
    const int             j = (int)within / GPUNN__GROUP, at = (int)within % GPUNN__GROUP;
    const unsigned short *factors = (const unsigned short *)(block + gpunn__block_scale_at(format));
    float scale = format == GPUNN_NF4 ? gpunn__nf4_scale(block) : gpunn__from_half(factors[0], GPUNN_F16),
          minimum = gpunn__block_has_minimums(format) ? gpunn__from_half(factors[1], GPUNN_F16) : 0;
    gpunn__group_factors(format, block, j, at / 16, &scale, &minimum);
#pragma unroll
    for (int part = 0; part < 2; part++) {
        const uint32_t four = gpunn__unpack4(format, block, j, at / 4 + part);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int q = (int)(four >> 8 * k & 255) - gpunn__block_bias(format);
            v[4 * part + k] = scale * gpunn__block_number(format, q) + minimum;
        }
    }
}

#endif /* GPUNN__CUDA_CUDA_BLOCKS_H */
