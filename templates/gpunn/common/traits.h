#ifndef GPUNN__COMMON_TRAITS_H
#define GPUNN__COMMON_TRAITS_H
#include "base/platform.h"

/* ==== >>common/traits ==================================================================================== *
 * The parts in common/ are shared by the CPU backend and gpunn_cuda.cu. They are plain C; a GPU runs the
 * functions marked GPUNN__SHARED. This part has the traits of ops. */
#include <math.h>
#include <string.h>
#ifdef _WIN32
#define GPUNN__PROCESS() 0 /* Windows has no fork */
#else
#include <unistd.h>
/* Process id. The child of a fork has another one; it has none of its parent's threads and no CUDA
 * context. */
#define GPUNN__PROCESS() ((int)getpid())
#endif

#if defined(__CUDACC__)
#define GPUNN__SHARED static __host__ __device__ __forceinline__
#define GPUNN__ROLLED _Pragma("unroll 1")
#elif defined(__GNUC__)
#define GPUNN__SHARED __attribute__((unused, always_inline)) static inline
#else
#define GPUNN__SHARED static inline
#endif
#ifdef __GNUC__
#define GPUNN__COMMON __attribute__((unused)) static
#else
#define GPUNN__COMMON static
#endif
#ifndef GPUNN__ROLLED /* prevents unrolling of the following loop: registers are scarce on a GPU */
#define GPUNN__ROLLED
#endif

/* Traits of the ops that are not elementwise. */
/* >>traits begin */
enum {
    GPUNN__KEEPS_F32 = 1, /* results stay F32 where others have 16-bit storage */
    GPUNN__PRODUCT = 2,   /* operands and results have 16-bit storage */
    GPUNN__CONVOLUTION = 4 | GPUNN__PRODUCT,
    GPUNN__TRANSPOSED = 8 | GPUNN__CONVOLUTION,
    GPUNN__LOCAL = 16, /* keeps channels last if its operand has that layout */
    GPUNN__POOL = 32 | GPUNN__LOCAL,
    GPUNN__SAVES = 1024, /* its forward step saves more than the result for backward */
    GPUNN__MAX_POOL = 64 | GPUNN__POOL | GPUNN__SAVES,
    GPUNN__ADAPTIVE_POOL = 128 | GPUNN__POOL,
    GPUNN__ROW_NORM = 256 | GPUNN__SAVES,
    GPUNN__RECURRENT = 512 | GPUNN__KEEPS_F32 | GPUNN__SAVES,
    GPUNN__INTEGER = 2048 /* computes with 8-bit numbers; in evaluation only */
};
/* >>traits end */

/* The table is in the order of gpunn_op, whose last members are these ops; the elementwise ops come
 * before. */
GPUNN__COMMON bool gpunn__op_is(gpunn_op op, int traits)
{
    static const short own[] = {
#define GPUNN__X(ENUM, name, operands, reads, reads_out, backward, traits, rule) traits,
        GPUNN_OTHER_OPS(GPUNN__X) GPUNN_ALIAS_OPS(GPUNN__X)
#undef GPUNN__X
    };
    const int first = (int)GPUNN_OP_COUNT - (int)(sizeof own / sizeof *own);
    return (int)op >= first && (own[(int)op - first] & traits) == traits;
}

/* Whether operands 3 and 4 of a norm are running_mean and running_var. */
GPUNN__COMMON bool gpunn__has_statistics(gpunn_op op)
{
    return op == GPUNN_OP_BATCH_NORM || op == GPUNN_OP_INSTANCE_NORM;
}

typedef enum gpunn__action { GPUNN__PREPARE, GPUNN__FORWARD, GPUNN__BACKWARD } gpunn__action;

#endif /* GPUNN__COMMON_TRAITS_H */
