#ifndef GPUNN__CPU_LEVELS_H
#define GPUNN__CPU_LEVELS_H
#include "base/structs.h"

/* ==== >>cpu/levels ======================================================================================= *
 * Which vector instructions are used. A build that enables AVX2 or AVX-512 (-march) contains code for that
 * level alone. Any other build for x86-64 contains each function at three levels: the architecture's
 * baseline, AVX2 and AVX-512. It selects one at run time; each thread checks the processor once. */
#if defined(__GNUC__) && !defined(GPUNN_NO_SIMD)
#define GPUNN__VECTORS 1
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__) || !defined(_WIN32) /* mingw's gcc does not align wide vectors on the stack */
#define GPUNN__WIDE 1
#endif
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#endif

/* clang would turn short loops over vectors into calls to memcpy. gcc uses 256-bit vectors with AVX-512
 * unless this option says otherwise. */
#if defined(__clang__)
#define GPUNN__KERNEL no_builtin("memcpy", "memset")
#define GPUNN__WHOLE ""
#else
#define GPUNN__KERNEL
#define GPUNN__WHOLE ",prefer-vector-width=512"
#endif

#if defined(GPUNN__WIDE)
#if !defined(__AVX512F__) && !(defined(__AVX2__) && defined(__FMA__))
#define GPUNN__LEVELS
#endif
#if defined(__AVX512F__) || defined(GPUNN__LEVELS)
#define GPUNN__AVX512                                                                                  \
    __attribute__((                                                                                    \
        target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt" GPUNN__WHOLE), \
        GPUNN__KERNEL))
#endif
#ifdef GPUNN__AVX512
#define GPUNN__AVX512_VNNI                                                                              \
    __attribute__((target("avx512vnni,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c,bmi,bmi2,lzcnt," \
                          "popcnt" GPUNN__WHOLE),                                                       \
                   GPUNN__KERNEL))
#define GPUNN__AVX512_BF16                                                                              \
    __attribute__((target("avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c,bmi,bmi2,lzcnt," \
                          "popcnt" GPUNN__WHOLE),                                                       \
                   GPUNN__KERNEL))
#endif
#if defined(GPUNN__AVX512) && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 11)
#define GPUNN__AMX                                                                                         \
    __attribute__((target("amx-bf16,amx-tile,avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c," \
                          "bmi,bmi2,lzcnt,popcnt" GPUNN__WHOLE),                                           \
                   GPUNN__KERNEL))
#include <cpuid.h>
#endif
#if !defined(__AVX512F__)
#define GPUNN__AVX2 __attribute__((target("avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt"), GPUNN__KERNEL))
#endif
#endif
#if defined(GPUNN__VECTORS) && (!defined(GPUNN__WIDE) || defined(GPUNN__LEVELS))
#define GPUNN__BASELINE __attribute__((GPUNN__KERNEL))
#endif

#ifdef GPUNN__LEVELS
enum { GPUNN__LEVEL_UNKNOWN, GPUNN__LEVEL_SSE2, GPUNN__LEVEL_AVX2, GPUNN__LEVEL_AVX512 };

/* The highest level that the processor supports and the environment variable GPUNN_VECTORS, if set,
 * allows. */
static int gpunn__level_find(void)
{
    const char *most = getenv("GPUNN_VECTORS");
    if (most && strcmp(most, "sse2") == 0) return GPUNN__LEVEL_SSE2;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
        return GPUNN__LEVEL_SSE2;
    if (most && strcmp(most, "avx2") == 0) return GPUNN__LEVEL_AVX2;
    return __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq")
               ? GPUNN__LEVEL_AVX512
               : GPUNN__LEVEL_AVX2;
}

GPUNN__INLINE int gpunn__level(void)
{
    static GPUNN__THREAD_LOCAL int found; /* the same in all threads */
    if (found == GPUNN__LEVEL_UNKNOWN) found = gpunn__level_find();
    return found;
}
#endif

/* Defines a function at every level, which is not inlined. Functions that it calls are inlined at that level
 * too, unless they are GPUNN__NOINLINE or defined at every level themselves. */
#if defined(GPUNN__LEVELS) && defined(__OPTIMIZE__)
#define GPUNN__AT_LEVEL(TARGET, function, parameters, code)                   \
    TARGET __attribute__((flatten, noinline)) static void function parameters \
    {                                                                         \
        code;                                                                 \
    }
#define GPUNN__VECTORIZED(function, parameters, arguments)                                   \
    GPUNN__INLINE void function##_code parameters;                                           \
    GPUNN__AT_LEVEL(GPUNN__AVX512, function##_avx512, parameters, function##_code arguments) \
    GPUNN__AT_LEVEL(GPUNN__AVX2, function##_avx2, parameters, function##_code arguments)     \
    GPUNN__NOINLINE void function parameters                                                 \
    {                                                                                        \
        const int level = gpunn__level();                                                    \
        if (level == GPUNN__LEVEL_AVX512)                                                    \
            function##_avx512 arguments;                                                     \
        else if (level == GPUNN__LEVEL_AVX2)                                                 \
            function##_avx2 arguments;                                                       \
        else                                                                                 \
            function##_code arguments;                                                       \
    }                                                                                        \
    GPUNN__INLINE void function##_code parameters
/* The same where AVX-512 gains less than a tenth: processors with AVX-512 execute AVX2's code. */
#define GPUNN__VECTORIZED_AVX2(function, parameters, arguments)                          \
    GPUNN__INLINE void function##_code parameters;                                       \
    GPUNN__AT_LEVEL(GPUNN__AVX2, function##_avx2, parameters, function##_code arguments) \
    GPUNN__NOINLINE void function parameters                                             \
    {                                                                                    \
        if (gpunn__level() >= GPUNN__LEVEL_AVX2)                                         \
            function##_avx2 arguments;                                                   \
        else                                                                             \
            function##_code arguments;                                                   \
    }                                                                                    \
    GPUNN__INLINE void function##_code parameters
#else
#define GPUNN__VECTORIZED(function, parameters, arguments) GPUNN__NOINLINE void function parameters
#define GPUNN__VECTORIZED_AVX2 GPUNN__VECTORIZED
#endif

/* Instructions for BF16 products. They are detected at run time in any build. */
typedef enum gpunn__bf16 {
    GPUNN__BF16_UNKNOWN,
    GPUNN__BF16_NONE,
    GPUNN__BF16_VECTORS,
    GPUNN__BF16_TILES
} gpunn__bf16;

#ifdef GPUNN__AMX
/* Whether the processor has AMX tiles. With ask, also requests them from Linux, and returns false if this
 * process may not use them. */
static bool gpunn__has_amx(bool ask)
{
    enum { BF16 = 1 << 22, TILE = 1 << 24, ARCH_PRCTL = 158, ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    unsigned a, b, c, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & BF16) || !(d & TILE)) return false;
    int64_t refused = 0;
    if (!ask) return true;
    __asm__ volatile("syscall"
                     : "=a"(refused)
                     : "0"((int64_t)ARCH_PRCTL), "D"((int64_t)ARCH_REQ_XCOMP_PERM), "S"((int64_t)XTILEDATA)
                     : "rcx", "r11", "memory");
    return !refused;
}
#endif

#ifdef GPUNN__AVX512
static gpunn__bf16 gpunn__bf16_find(bool ask)
{
    const char *most = getenv("GPUNN_VECTORS");
    const bool  vectors = most && strcmp(most, "bf16") == 0;
    if (most && !vectors && strcmp(most, "amx") != 0) return GPUNN__BF16_NONE;
    (void)ask; /* unused in builds without tiles */
    if (!__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bf16")) return GPUNN__BF16_NONE;
#ifdef GPUNN__AMX
    if (!vectors && gpunn__has_amx(ask)) return GPUNN__BF16_TILES;
#endif
    /* On Intel, BF16 vectors are no faster than F32 vectors, which need no rounding. */
    return vectors || !__builtin_cpu_is("intel") ? GPUNN__BF16_VECTORS : GPUNN__BF16_NONE;
}
#endif

/* Only products of a BF16 model call it: once a process has requested tiles, sigaltstack requires a stack of
 * 11 KB. */
GPUNN__INLINE gpunn__bf16 gpunn__has_bf16(void)
{
#ifdef GPUNN__AVX512
    static GPUNN__THREAD_LOCAL gpunn__bf16 found; /* the same in all threads */
    if (found == GPUNN__BF16_UNKNOWN) found = gpunn__bf16_find(true);
    return found;
#else
    return GPUNN__BF16_NONE;
#endif
}

#endif /* GPUNN__CPU_LEVELS_H */
