/* softmax_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator softmax.json -o softmax
 */
#ifndef SOFTMAX_KERNELS_H
#define SOFTMAX_KERNELS_H
#include "gpunn.h"

#define SOFTMAX_KERNELS_STAMP 0x04f3516fa9d41053ull /* must equal the stamp in softmax_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &softmax_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define SOFTMAX_KERNELS_IMPLEMENTATION
 * Link softmax_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set softmax_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(SOFTMAX_KERNELS_IMPLEMENTATION) || defined(SOFTMAX_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "softmax_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(SOFTMAX_KERNELS_CUDA)
#define SOFTMAX_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

SOFTMAX_FN float softmax_exp(float x)
{
    return expf(x);
}
#elif defined(SOFTMAX_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define SOFTMAX_FN __attribute__((unused, always_inline)) static inline
#else
#define SOFTMAX_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define SOFTMAX_OPTIMIZED
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

SOFTMAX_FN float softmax_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

SOFTMAX_FN uint32_t softmax_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SOFTMAX_FN float softmax_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

SOFTMAX_FN float softmax_max(float a, float b)
{
    return softmax_where(a > b, a, softmax_where(a != a, a, b));
}

/* x clamped to [low, high]; NaN stays NaN. */
SOFTMAX_FN float softmax_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
SOFTMAX_FN float softmax_exp2i(int32_t n)
{
    return softmax_float_of((uint32_t)(n + 127) << 23);
}

/* The nearest integer to x, for |x| < 2^22. */
SOFTMAX_FN int32_t softmax_nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 2^23: adding it rounds x to an integer in the low bits */
    return (int32_t)(softmax_bits_of(x + magic) - softmax_bits_of(magic));
}

/* exp(r) - 1 for |r| <= ln 2 / 2. */
SOFTMAX_FN float softmax_expm1_near(float r)
{
    const float p = (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    return r + r * r * (p * r + 0.5f);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^15. Returns exp(r) - 1. */
SOFTMAX_FN float softmax_exp_reduce(float x, int32_t *n)
{
    *n = softmax_nearest(x * 1.44269504f);
    const float k = (float)*n; /* ln 2 is split in two; the high part has 9 bits, so k times it is exact */
    return softmax_expm1_near(x - k * 0.693359375f + k * 2.12194440e-4f);
}

SOFTMAX_FN float softmax_exp(float x)
{
    int32_t     n;
    const float e = softmax_exp_reduce(softmax_limit(x, -87.3f, 89), &n) + 1;
    return (e + e) * softmax_exp2i(n - 1);
}
#endif

#if defined(SOFTMAX_KERNELS_IMPLEMENTATION) || defined(SOFTMAX_KERNELS_CUDA)
/* g0, evaluation: y = f(x) */
SOFTMAX_FN void softmax_g0_evaluation_0_stage1(float x, float temperature, float position, float *max0)
{
    *max0 = x / temperature + position;
}

SOFTMAX_FN void softmax_g0_evaluation_0_stage2(float x, float temperature, float position, float max0,
                                               float *sum1)
{
    *sum1 = softmax_exp(x / temperature + position - max0);
}

SOFTMAX_FN void softmax_g0_evaluation_0_row2(float sum1, float max0, float *row0, float *top)
{
    *row0 = 1 / sum1;
    *top = max0;
}

SOFTMAX_FN void softmax_g0_evaluation_0(float x, float temperature, float position, float max0, float row0,
                                        float tiny, float *y, float *sum0)
{
    const float t0 = x / temperature + position;
    *y = softmax_exp(t0 - max0) * row0 * tiny;
    *sum0 = t0;
}

SOFTMAX_FN void softmax_g0_evaluation_0_final(float sum0, float *columns)
{
    *columns = sum0;
}
#endif

#if defined(SOFTMAX_KERNELS_IMPLEMENTATION) && !defined(SOFTMAX_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { SOFTMAX_BLOCK = 1024, SOFTMAX_ROW = 4096, SOFTMAX_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define SOFTMAX_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define SOFTMAX_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define SOFTMAX_VECTOR _Pragma("GCC ivdep")
#else
#define SOFTMAX_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define SOFTMAX_SELDOM __attribute__((unused, noinline)) static
#else
#define SOFTMAX_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define SOFTMAX_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define SOFTMAX_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define SOFTMAX_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(SOFTMAX_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define SOFTMAX_LOOPS(function, lanes, parameters, arguments)                        \
    SOFTMAX_FN void function##_code parameters;                                      \
    SOFTMAX_V16 static void function##_v16 parameters { function##_code arguments; } \
    SOFTMAX_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    SOFTMAX_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define SOFTMAX_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define SOFTMAX_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
SOFTMAX_FN int softmax_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > SOFTMAX_SLICES ? SOFTMAX_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
SOFTMAX_FN int64_t softmax_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*softmax_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

SOFTMAX_FN void softmax_run_slice(softmax_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = softmax_slice(count, grain, slices, slice),
                  end = softmax_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct softmax_work {
    softmax_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} softmax_work;

SOFTMAX_SELDOM void softmax_task(void *arg, int index, int threads)
{
    const softmax_work *w = (const softmax_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        softmax_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
SOFTMAX_SELDOM void softmax_run(softmax_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    softmax_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, softmax_task, &work);
}

SOFTMAX_FN int softmax_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace for `count` elements of `size` bytes: a multiple of 64. */
SOFTMAX_FN size_t softmax_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

SOFTMAX_FN void softmax_fill(float *to, float value)
{
    for (int j = 0; j < SOFTMAX_BLOCK; ++j) to[j] = value;
}

/* to[j] = from[(i + j) % mod]: copies `from` once, then what is already in `to`. */
SOFTMAX_FN void softmax_repeat(float *to, const float *from, int64_t i, int n, int64_t mod)
{
    const int64_t place = i % mod;
    int           done = softmax_least(n, mod), run = softmax_least(done, mod - place);
    memcpy(to, from + place, (size_t)run * sizeof *to);
    memcpy(to + run, from, (size_t)(done - run) * sizeof *to);
    for (; done < n; done += run) {
        run = softmax_least(n - done, done);
        memcpy(to + done, to, (size_t)run * sizeof *to);
    }
}

/* The sum of x[n]: 16 interleaved partial sums, added pairwise, plus the rest. */
SOFTMAX_FN float softmax_sum(const float *x, int n)
{
    float lane[16] = {0}, rest = 0;
    int   i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; ++j) lane[j] += x[i + j];
    for (; i < n; ++i) rest += x[i];
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    return lane[0] + rest;
}

/* The maximum of x[n]; NaN if x contains NaN. */
SOFTMAX_FN float softmax_highest(const float *x, int n)
{
    enum { LANES = 32 }; /* too many for compilers to unroll */
    float lane[LANES], rest = -INFINITY;
    int   i = 0;
    for (int j = 0; j < LANES; ++j) lane[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
        SOFTMAX_VECTOR
        for (int j = 0; j < LANES; ++j) lane[j] = softmax_max(lane[j], x[i + j]);
    }
    for (; i < n; ++i) rest = softmax_max(rest, x[i]);
    for (int j = 0; j < LANES; ++j) rest = softmax_max(rest, lane[j]);
    return rest;
}

/* Sums by column: sums[(i + j) % columns] += x[j] for j < n. i: the element index of x[0]. */
SOFTMAX_FN void softmax_add_columns(double *sums, const float *x, int64_t i, int n, int64_t columns)
{
    int64_t c = i % columns;
    for (int j = 0, run; j < n; j += run) {
        run = softmax_least(n - j, columns - c);
        SOFTMAX_VECTOR
        for (int k = 0; k < run; ++k) sums[c + k] += (double)x[j + k];
        c = 0;
    }
}

/* The total of sums[slice * width] over all slices, in ascending order. */
SOFTMAX_FN float softmax_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, evaluation: y, top, sum0 */
SOFTMAX_LOOPS(softmax_g0_evaluation_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float position_absent[SOFTMAX_BLOCK];
    float terms0[40];
    float terms1[40];
    float tiny_block[40];
    float sum0_block[40];
    const float *const x = (const float *)call->data[0];
    const float *const temperature = (const float *)call->data[1];
    const float *const position = (const float *)call->data[2];
    const float *const tiny = (const float *)call->data[4];
    float *const y = (float *)call->data[3];
    float *const top = (float *)call->data[5];
    softmax_fill(position_absent, 0);
    const int n = 40;
    (void)stat;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row * 40;
        const float temperature_0 = temperature[row];
        const float *const position_at = position != NULL ? position + i % 120 : position_absent;
        SOFTMAX_VECTOR
        for (int j = 0; j < n; ++j)
            softmax_g0_evaluation_0_stage1(x[i + j], temperature_0, position_at[j], &terms0[j]);
        const float max0 = softmax_highest(terms0, n);
        SOFTMAX_VECTOR
        for (int j = 0; j < n; ++j)
            softmax_g0_evaluation_0_stage2(x[i + j], temperature_0, position_at[j], max0, &terms1[j]);
        const float sum1 = softmax_sum(terms1, n);
        float row0;
        float top_value;
        softmax_g0_evaluation_0_row2(sum1, max0, &row0, &top_value);
        top[row] = top_value;
        softmax_repeat(tiny_block, tiny, i, n, 8);
        SOFTMAX_VECTOR
        for (int j = 0; j < n; ++j)
            softmax_g0_evaluation_0(x[i + j], temperature_0, position_at[j], max0, row0, tiny_block[j],
                                    &y[i + j], &sum0_block[j]);
        softmax_add_columns(sums, sum0_block, i, n, 40);
    }
}

static int softmax_g0_evaluation(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = softmax_slices(call->batch * 120, 16384);
        softmax_run(softmax_g0_evaluation_0_loop, call, NULL, call->batch * 3, 1, slices, sums, 40);
        {
            float *const columns = (float *)call->data[6];
            for (int64_t c = 0; c < 40; ++c) {
                float columns_value;
                softmax_g0_evaluation_0_final(softmax_total(sums + c, slices, 40), &columns_value);
                columns[c] = columns_value;
            }
        }
    }
    return 0;
}

static size_t softmax_g0_evaluation_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = softmax_room(softmax_slices(batch * 120, 16384) * (int64_t)40, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}
#ifdef SOFTMAX_OPTIMIZED
#pragma GCC pop_options
#undef SOFTMAX_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char softmax_g0_operands0[] = {
    0,
};
static const gpunn_kernel_node softmax_g0_nodes[] = {
    {"relu f32 [N,8]", softmax_g0_operands0, 1},
};
static const char *const softmax_g0_externals[] = {
    "f32 [N,8]",
};
static const gpunn_kernel_operand softmax_g0_evaluation_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 4, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -2, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -3, -1},
};
static const gpunn_kernel softmax_set[] = {
    {"g0",
     "y = f(x)",
     softmax_g0_nodes, 1,
     softmax_g0_externals, 1,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{softmax_g0_evaluation_operands, 7, softmax_g0_evaluation, softmax_g0_evaluation_workspace, 0},
      {NULL, 0, NULL, NULL, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int softmax_evaluation0[] = {
    3, 0,
};
static const gpunn_kernel_instance softmax_evaluation[] = {
    {0, softmax_evaluation0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda softmax_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda softmax_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda softmax_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda softmax_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set softmax_kernels = {
    GPUNN_KERNELS_ABI,
    SOFTMAX_KERNELS_STAMP,
    "softmax",
    "0.2",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "python3 -m generator softmax.json -o softmax",
    softmax_set,
    1,
    9,
    softmax_evaluation,
    NULL,
    1,
    0,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &softmax_kernels_cuda,
#else
    NULL,
#endif
};
#undef SOFTMAX_KERNELS_IMPLEMENTATION
#endif
