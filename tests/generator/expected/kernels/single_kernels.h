/* single_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator single.json -o single
 */
#ifndef SINGLE_KERNELS_H
#define SINGLE_KERNELS_H
#include "gpunn.h"

#define SINGLE_KERNELS_STAMP 0x0fe67b3508a2f1f6ull /* must equal the stamp in single_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &single_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define SINGLE_KERNELS_IMPLEMENTATION
 * Link single_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set single_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(SINGLE_KERNELS_IMPLEMENTATION) || defined(SINGLE_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "single_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(SINGLE_KERNELS_CUDA)
#define SINGLE_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

SINGLE_FN float single_exp(float x)
{
    return expf(x);
}
#elif defined(SINGLE_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define SINGLE_FN __attribute__((unused, always_inline)) static inline
#else
#define SINGLE_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define SINGLE_OPTIMIZED
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

SINGLE_FN float single_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

SINGLE_FN uint32_t single_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SINGLE_FN float single_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

SINGLE_FN float single_max(float a, float b)
{
    return single_where(a > b, a, single_where(a != a, a, b));
}

/* x clamped to [low, high]; NaN stays NaN. */
SINGLE_FN float single_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
SINGLE_FN float single_exp2i(int32_t n)
{
    return single_float_of((uint32_t)(n + 127) << 23);
}

/* The nearest integer to x, for |x| < 2^22. */
SINGLE_FN int32_t single_nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 2^23: adding it rounds x to an integer in the low bits */
    return (int32_t)(single_bits_of(x + magic) - single_bits_of(magic));
}

/* exp(r) - 1 for |r| <= ln 2 / 2. */
SINGLE_FN float single_expm1_near(float r)
{
    const float p = (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    return r + r * r * (p * r + 0.5f);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^15. Returns exp(r) - 1. */
SINGLE_FN float single_exp_reduce(float x, int32_t *n)
{
    *n = single_nearest(x * 1.44269504f);
    const float k = (float)*n; /* ln 2 is split in two; the high part has 9 bits, so k times it is exact */
    return single_expm1_near(x - k * 0.693359375f + k * 2.12194440e-4f);
}

SINGLE_FN float single_exp(float x)
{
    int32_t     n;
    const float e = single_exp_reduce(single_limit(x, -87.3f, 89), &n) + 1;
    return (e + e) * single_exp2i(n - 1);
}
#endif

#if defined(SINGLE_KERNELS_IMPLEMENTATION) || defined(SINGLE_KERNELS_CUDA)
/* g0, evaluation: y = f(x) */
SINGLE_FN void single_g0_evaluation_0_row0(float x, float temperature, float position, float *row0)
{
    *row0 = x / temperature + position;
}

SINGLE_FN void single_g0_evaluation_0_stage1(float row0, float *max0)
{
    *max0 = row0;
}

SINGLE_FN void single_g0_evaluation_0_row1(float row0, float max0, float *row1)
{
    *row1 = single_exp(row0 - max0);
}

SINGLE_FN void single_g0_evaluation_0_stage2(float row1, float *sum1)
{
    *sum1 = row1;
}

SINGLE_FN void single_g0_evaluation_0_row2(float row1, float sum1, float tiny, float max0, float *y,
                                           float *top)
{
    *y = row1 * (1 / sum1) * tiny;
    *top = max0;
}

SINGLE_FN void single_g0_evaluation_0(float row0, float *sum0)
{
    *sum0 = row0;
}

SINGLE_FN void single_g0_evaluation_0_final(float sum0, float *columns)
{
    *columns = sum0;
}
#endif

#if defined(SINGLE_KERNELS_IMPLEMENTATION) && !defined(SINGLE_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { SINGLE_BLOCK = 1024, SINGLE_ROW = 4096, SINGLE_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define SINGLE_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define SINGLE_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define SINGLE_VECTOR _Pragma("GCC ivdep")
#else
#define SINGLE_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define SINGLE_SELDOM __attribute__((unused, noinline)) static
#else
#define SINGLE_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define SINGLE_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define SINGLE_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define SINGLE_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(SINGLE_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define SINGLE_LOOPS(function, lanes, parameters, arguments)                        \
    SINGLE_FN void function##_code parameters;                                      \
    SINGLE_V16 static void function##_v16 parameters { function##_code arguments; } \
    SINGLE_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    SINGLE_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define SINGLE_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define SINGLE_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
SINGLE_FN int single_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > SINGLE_SLICES ? SINGLE_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
SINGLE_FN int64_t single_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*single_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

SINGLE_FN void single_run_slice(single_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = single_slice(count, grain, slices, slice),
                  end = single_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct single_work {
    single_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} single_work;

SINGLE_SELDOM void single_task(void *arg, int index, int threads)
{
    const single_work *w = (const single_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        single_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
SINGLE_SELDOM void single_run(single_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    single_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, single_task, &work);
}

/* Bytes of workspace for `count` elements of `size` bytes: a multiple of 64. */
SINGLE_FN size_t single_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

/* The sum of x[n]: 16 interleaved partial sums, added pairwise, plus the rest. */
SINGLE_FN float single_sum(const float *x, int n)
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
SINGLE_FN float single_highest(const float *x, int n)
{
    enum { LANES = 32 }; /* too many for compilers to unroll */
    float lane[LANES], rest = -INFINITY;
    int   i = 0;
    for (int j = 0; j < LANES; ++j) lane[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
        SINGLE_VECTOR
        for (int j = 0; j < LANES; ++j) lane[j] = single_max(lane[j], x[i + j]);
    }
    for (; i < n; ++i) rest = single_max(rest, x[i]);
    for (int j = 0; j < LANES; ++j) rest = single_max(rest, lane[j]);
    return rest;
}

/* The total of sums[slice * width] over all slices, in ascending order. */
SINGLE_FN float single_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, evaluation: y, top, sum0 */
SINGLE_LOOPS(single_g0_evaluation_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float terms0[1];
    float terms1[1];
    float sum0_block[1];
    const float *const x = (const float *)call->data[0];
    const float *const temperature = (const float *)call->data[1];
    const float *const position = (const float *)call->data[2];
    const float *const tiny = (const float *)call->data[4];
    float *const y = (float *)call->data[3];
    float *const top = (float *)call->data[5];
    const int n = 1;
    (void)stat;
    for (int64_t row = begin; row < end; ++row) {
        const float x_0 = x[row];
        const float temperature_0 = temperature[row];
        const float position_0 = position != NULL ? position[row % 3] : 0;
        float row0;
        single_g0_evaluation_0_row0(x_0, temperature_0, position_0, &row0);
        SINGLE_VECTOR
        for (int j = 0; j < n; ++j)
            single_g0_evaluation_0_stage1(row0, &terms0[j]);
        const float max0 = single_highest(terms0, n);
        float row1;
        single_g0_evaluation_0_row1(row0, max0, &row1);
        SINGLE_VECTOR
        for (int j = 0; j < n; ++j)
            single_g0_evaluation_0_stage2(row1, &terms1[j]);
        const float sum1 = single_sum(terms1, n);
        const float tiny_0 = tiny[row % 8];
        float y_value;
        float top_value;
        single_g0_evaluation_0_row2(row1, sum1, tiny_0, max0, &y_value, &top_value);
        y[row] = y_value;
        top[row] = top_value;
        SINGLE_VECTOR
        for (int j = 0; j < n; ++j)
            single_g0_evaluation_0(row0, &sum0_block[j]);
        sums[0] += (double)single_sum(sum0_block, n);
    }
}

static int single_g0_evaluation(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = single_slices(call->batch * 3, 16384);
        single_run(single_g0_evaluation_0_loop, call, NULL, call->batch * 3, 1, slices, sums, 8);
        {
            float *const columns = (float *)call->data[6];
            float columns_value;
            single_g0_evaluation_0_final(single_total(sums, slices, 8), &columns_value);
            columns[0] = columns_value;
        }
    }
    return 0;
}

static size_t single_g0_evaluation_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = single_room(single_slices(batch * 3, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}
#ifdef SINGLE_OPTIMIZED
#pragma GCC pop_options
#undef SINGLE_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char single_g0_operands0[] = {
    0,
};
static const gpunn_kernel_node single_g0_nodes[] = {
    {"relu f32 [N,8]", single_g0_operands0, 1},
};
static const char *const single_g0_externals[] = {
    "f32 [N,8]",
};
static const gpunn_kernel_operand single_g0_evaluation_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 4, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -2, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -3, -1},
};
static const gpunn_kernel single_set[] = {
    {"g0",
     "y = f(x)",
     single_g0_nodes, 1,
     single_g0_externals, 1,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{single_g0_evaluation_operands, 7, single_g0_evaluation, single_g0_evaluation_workspace, 0},
      {NULL, 0, NULL, NULL, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int single_evaluation0[] = {
    3, 0,
};
static const gpunn_kernel_instance single_evaluation[] = {
    {0, single_evaluation0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda single_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda single_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda single_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda single_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set single_kernels = {
    GPUNN_KERNELS_ABI,
    SINGLE_KERNELS_STAMP,
    "single",
    "0.2",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "python3 -m generator single.json -o single",
    single_set,
    1,
    9,
    single_evaluation,
    NULL,
    1,
    0,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &single_kernels_cuda,
#else
    NULL,
#endif
};
#undef SINGLE_KERNELS_IMPLEMENTATION
#endif
