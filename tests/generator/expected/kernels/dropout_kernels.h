/* dropout_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator dropout.json -o dropout
 */
#ifndef DROPOUT_KERNELS_H
#define DROPOUT_KERNELS_H
#include "gpunn.h"

#define DROPOUT_KERNELS_STAMP 0x90ce39d32daff0c4ull /* must equal the stamp in dropout_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &dropout_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define DROPOUT_KERNELS_IMPLEMENTATION
 * Link dropout_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set dropout_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(DROPOUT_KERNELS_IMPLEMENTATION) || defined(DROPOUT_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "dropout_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(DROPOUT_KERNELS_CUDA)
#define DROPOUT_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */
#elif defined(DROPOUT_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define DROPOUT_FN __attribute__((unused, always_inline)) static inline
#else
#define DROPOUT_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define DROPOUT_OPTIMIZED
#pragma GCC push_options
#pragma GCC optimize("O3,no-trapping-math,fp-contract=fast")
#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#endif

/* The elementwise functions of gpunn.h for CPUs. They have no branches and no lookup tables, so that
 * compilers vectorize loops over them. Errors are within 3 ulp (sin and cos: 1e-7 absolute, for |x| up to
 * 1e9). Infinities, NaN and values outside the domain give C's results. Results below 2^-125 may be 0.
 * Denormal operands count as 0. */

DROPOUT_FN float dropout_where(bool condition, float a, float b)
{
    return condition ? a : b;
}
#endif

#if defined(DROPOUT_KERNELS_IMPLEMENTATION) || defined(DROPOUT_KERNELS_CUDA)
/* g0, forward: y = f(x) */
DROPOUT_FN void dropout_g0_forward_0(float x, float keep0, float r, float keep1, float *y)
{
    *y = x * keep0 + r * keep1;
}
#endif

#if defined(DROPOUT_KERNELS_IMPLEMENTATION) && !defined(DROPOUT_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { DROPOUT_BLOCK = 1024, DROPOUT_ROW = 4096, DROPOUT_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define DROPOUT_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define DROPOUT_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define DROPOUT_VECTOR _Pragma("GCC ivdep")
#else
#define DROPOUT_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define DROPOUT_SELDOM __attribute__((unused, noinline)) static
#else
#define DROPOUT_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define DROPOUT_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define DROPOUT_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define DROPOUT_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(DROPOUT_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define DROPOUT_LOOPS(function, lanes, parameters, arguments)                        \
    DROPOUT_FN void function##_code parameters;                                      \
    DROPOUT_V16 static void function##_v16 parameters { function##_code arguments; } \
    DROPOUT_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    DROPOUT_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define DROPOUT_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define DROPOUT_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
DROPOUT_FN int dropout_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > DROPOUT_SLICES ? DROPOUT_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
DROPOUT_FN int64_t dropout_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*dropout_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

DROPOUT_FN void dropout_run_slice(dropout_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = dropout_slice(count, grain, slices, slice),
                  end = dropout_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct dropout_work {
    dropout_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} dropout_work;

DROPOUT_SELDOM void dropout_task(void *arg, int index, int threads)
{
    const dropout_work *w = (const dropout_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        dropout_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
DROPOUT_SELDOM void dropout_run(dropout_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    dropout_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, dropout_task, &work);
}

DROPOUT_FN int dropout_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Dropout factors (gpunn.h, >>cpu/elementwise) of the n elements from i on. They are computed for packs of
 * eight elements, into `factor`. Returns a pointer to the factor of element i. */
DROPOUT_FN const float *dropout_keep(const gpunn_kernel_call *call, int stream, uint32_t keep, int64_t i, int n,
                                     float *factor)
{
    enum { PACKS = 32 };
    const float    scale = 65536.0f / (float)keep;
    const uint64_t first = (uint64_t)i / 8, seed = call->random[0], step = call->random[1];
    const int      skipped = (int)((uint64_t)i % 8);
    for (int at = 0; at < skipped + n; at += 8 * PACKS) {
        uint32_t c0[PACKS], c1[PACKS], c2[PACKS], c3[PACKS], high0[PACKS], high2[PACKS], words[PACKS][4];
        for (int j = 0; j < PACKS; ++j) {
            const uint64_t pack = first + (uint64_t)(at / 8 + j);
            c0[j] = (uint32_t)pack;
            c1[j] = call->random_streams[stream] ^ (uint32_t)(pack >> 32) << 16;
            c2[j] = (uint32_t)step;
            c3[j] = (uint32_t)(step >> 32);
        }
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
            for (int j = 0; j < PACKS; ++j) high0[j] = (uint32_t)((uint64_t)0xD2511F53u * c0[j] >> 32);
            for (int j = 0; j < PACKS; ++j) high2[j] = (uint32_t)((uint64_t)0xCD9E8D57u * c2[j] >> 32);
            for (int j = 0; j < PACKS; ++j) {
                const uint32_t low0 = 0xD2511F53u * c0[j], low2 = 0xCD9E8D57u * c2[j];
                c0[j] = high2[j] ^ c1[j] ^ k0;
                c1[j] = low2;
                c2[j] = high0[j] ^ c3[j] ^ k1;
                c3[j] = low0;
            }
        }
        for (int j = 0; j < PACKS; ++j) {
            words[j][0] = c0[j];
            words[j][1] = c1[j];
            words[j][2] = c2[j];
            words[j][3] = c3[j];
        }
        uint16_t draw[8 * PACKS];
        memcpy(draw, words, sizeof words);
        for (int j = 0; j < 8 * PACKS; ++j) factor[at + j] = dropout_where(draw[j] < keep, scale, 0);
    }
    return factor + skipped;
}

/* g0, forward: y */
DROPOUT_LOOPS(dropout_g0_forward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float keep0_block[(1024 + 255) / 256 * 256 + 256];
    float keep1_block[(1024 + 255) / 256 * 256 + 256];
    const float *const x = (const float *)call->data[0];
    const float *const r = (const float *)call->data[1];
    float *const y = (float *)call->data[2];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = dropout_least(DROPOUT_BLOCK, end - i);
        const float *const keep0 = dropout_keep(call, 0, 58982u, i, n, keep0_block);
        const float *const keep1 = dropout_keep(call, 1, 32768u, i, n, keep1_block);
        DROPOUT_VECTOR
        for (int j = 0; j < n; ++j)
            dropout_g0_forward_0(x[i + j], keep0[j], r[i + j], keep1[j], &y[i + j]);
        i += n;
    }
}

static int dropout_g0_forward(const gpunn_kernel_call *call)
{
    {
        const int slices = dropout_slices(call->batch * 231, 16384);
        dropout_run(dropout_g0_forward_0_loop, call, NULL, call->batch * 231, 16, slices, NULL, 0);
    }
    return 0;
}

static size_t dropout_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    return 0;
}
#ifdef DROPOUT_OPTIMIZED
#pragma GCC pop_options
#undef DROPOUT_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char dropout_g0_operands0[] = {
    0,
};
static const signed char dropout_g0_operands1[] = {
    1,
};
static const gpunn_kernel_node dropout_g0_nodes[] = {
    {"dropout p=0.1 f32 [N,231]", dropout_g0_operands0, 1},
    {"dropout p=0.5 f32 [N,231]", dropout_g0_operands1, 1},
};
static const char *const dropout_g0_externals[] = {
    "f32 [N,8]",
};
static const gpunn_kernel_operand dropout_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
};
static const gpunn_kernel dropout_set[] = {
    {"g0",
     "y = f(x)",
     dropout_g0_nodes, 2,
     dropout_g0_externals, 1,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{NULL, 0, NULL, NULL, 0},
      {dropout_g0_forward_operands, 3, dropout_g0_forward, dropout_g0_forward_workspace, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int dropout_evaluation0[] = {
    3, 0,
};
static const gpunn_kernel_instance dropout_evaluation[] = {
    {0, dropout_evaluation0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda dropout_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda dropout_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda dropout_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda dropout_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set dropout_kernels = {
    GPUNN_KERNELS_ABI,
    DROPOUT_KERNELS_STAMP,
    "dropout",
    "0.2",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "python3 -m generator dropout.json -o dropout",
    dropout_set,
    1,
    9,
    dropout_evaluation,
    NULL,
    1,
    0,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &dropout_kernels_cuda,
#else
    NULL,
#endif
};
#undef DROPOUT_KERNELS_IMPLEMENTATION
#endif
