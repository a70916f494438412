#ifndef GPUNN__CUDA_CUDA_ELEMENTWISE_H
#define GPUNN__CUDA_CUDA_ELEMENTWISE_H
#include "base/values.h"
#include "cuda/formulas.h"

/* ==== >>cuda/elementwise ================================================================================= *
 * Elementwise ops as kernels made from gpunn.h's tables, one forward and one backward kernel per op. A
 * thread computes packs of 8 elements. It does not load operands that the op's formulas do not mention.
 * Below them are ops that only move data. */
/* Which values the derivatives of an elementwise op read. */
GPUNN__INTERNAL const gpunn__map_facts *gpunn__map_facts_for(gpunn_op op);

/* Block number `block` of `blocks` copies its share: to = or += from. */
__device__ __forceinline__ void gpunn__copy_part(void *to, gpunn_dtype to_dtype, const void *from,
                                                 gpunn_dtype from_dtype, int64_t count, bool add,
                                                 unsigned block, unsigned blocks)
{
    const int apart = from_dtype == GPUNN_F32 || to_dtype == GPUNN_F32 ? GPUNN__APART : GPUNN__QUAD;
    int64_t   i = gpunn__pack_first(apart, block);
    for (; i < count; i += gpunn__packs_step(blocks)) {
        float v[8];
        gpunn__load_quads(from, from_dtype, i, apart, count, v);
        gpunn__store_quads(to, to_dtype, i, apart, count, add, v);
    }
}

/* Whether the dtype is F32, F16 or BF16. */
GPUNN__INTERNAL bool gpunn__is_float(gpunn_dtype dtype);

#endif /* GPUNN__CUDA_CUDA_ELEMENTWISE_H */
