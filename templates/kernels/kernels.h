${opening}
#ifndef ${NAME}_KERNELS_H
#define ${NAME}_KERNELS_H
#include "gpunn.h"

#define ${NAME}_KERNELS_STAMP ${stamp} /* must equal the stamp in ${name}_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &${name}_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define ${NAME}_KERNELS_IMPLEMENTATION
 * Link ${name}_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set ${name}_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(${NAME}_KERNELS_IMPLEMENTATION) || defined(${NAME}_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != ${abi}
#error "${name}_kernels.h is for GPUNN_KERNELS_ABI ${abi}; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(${NAME}_KERNELS_CUDA)
#define ${NAME}_FN static __device__ __forceinline__

${math_cuda}
#elif defined(${NAME}_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define ${NAME}_FN __attribute__((unused, always_inline)) static inline
#else
#define ${NAME}_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define ${NAME}_OPTIMIZED
#pragma GCC push_options
#pragma GCC optimize("O3,no-trapping-math,fp-contract=fast")
#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#endif

${math_c}
#endif

#if defined(${NAME}_KERNELS_IMPLEMENTATION) || defined(${NAME}_KERNELS_CUDA)
${functions}
#endif

#if defined(${NAME}_KERNELS_IMPLEMENTATION) && !defined(${NAME}_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
${loops}

${kernels}
#ifdef ${NAME}_OPTIMIZED
#pragma GCC pop_options
#undef ${NAME}_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
${tables}
#undef ${NAME}_KERNELS_IMPLEMENTATION
#endif
