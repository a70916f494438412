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
    int64_t i = ((int64_t)block * blockDim.x + threadIdx.x) * GPUNN__PACK;
    for (; i < count; i += (int64_t)blocks * blockDim.x * GPUNN__PACK) {
        int   n = gpunn__pack_size(count, i);
        float v[8];
        gpunn__load_pack(from, from_dtype, i, n, v);
        gpunn__store_pack(to, to_dtype, i, n, add, v);
    }
}

/* Whether the dtype is F32, F16 or BF16. */
GPUNN__INTERNAL bool gpunn__is_float(gpunn_dtype dtype);

#endif /* GPUNN__CUDA_CUDA_ELEMENTWISE_H */
