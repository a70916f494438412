/* batch_norm_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator batch_norm.json -o batch_norm
 */
#ifndef BATCH_NORM_KERNELS_H
#define BATCH_NORM_KERNELS_H
#include "gpunn.h"

#define BATCH_NORM_KERNELS_STAMP 0x9878b21d2ffc3794ull /* must equal the stamp in batch_norm_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &batch_norm_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define BATCH_NORM_KERNELS_IMPLEMENTATION
 * Link batch_norm_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set batch_norm_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(BATCH_NORM_KERNELS_IMPLEMENTATION) || defined(BATCH_NORM_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "batch_norm_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(BATCH_NORM_KERNELS_CUDA)
#define BATCH_NORM_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

BATCH_NORM_FN float batch_norm_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

BATCH_NORM_FN float batch_norm_max(float a, float b)
{
    return a > b || a != a ? a : b;
}

BATCH_NORM_FN float batch_norm_rsqrt(float x)
{
    return 1 / sqrtf(x);
}
#elif defined(BATCH_NORM_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define BATCH_NORM_FN __attribute__((unused, always_inline)) static inline
#else
#define BATCH_NORM_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define BATCH_NORM_OPTIMIZED
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

BATCH_NORM_FN float batch_norm_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

BATCH_NORM_FN uint32_t batch_norm_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

BATCH_NORM_FN float batch_norm_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

BATCH_NORM_FN float batch_norm_max(float a, float b)
{
    return batch_norm_where(a > b, a, batch_norm_where(a != a, a, b));
}

/* 1 / sqrt(x) for normal x > 0, by Newton's method. C's sqrtf may set errno, which prevents vectorization. */
BATCH_NORM_FN float batch_norm_root(float x)
{
    float r = batch_norm_float_of(0x5f375a86u - (batch_norm_bits_of(x) >> 1));
    r *= 1.5f - x * r * (0.5f * r);
    r *= 1.5f - x * r * (0.5f * r);
    return r * (1.5f - x * r * (0.5f * r));
}

BATCH_NORM_FN float batch_norm_rsqrt(float x)
{
    const float r = batch_norm_root(x), y = r + 0.5f * r * (1 - x * r * r);
    const float outside = batch_norm_where(x < 0, NAN, batch_norm_where(x < FLT_MIN, copysignf(INFINITY, x), x));
    return batch_norm_where(x >= FLT_MIN, batch_norm_where(x <= FLT_MAX, y, 0), outside);
}
#endif

#if defined(BATCH_NORM_KERNELS_IMPLEMENTATION) || defined(BATCH_NORM_KERNELS_CUDA)
/* g0, forward: y = f(x) */
BATCH_NORM_FN void batch_norm_g0_forward_0(float x, float sample, float *sum0, float *sum1)
{
    const float t0 = x - sample;
    *sum0 = t0;
    *sum1 = t0 * t0;
}

BATCH_NORM_FN void batch_norm_g0_forward_0_final(float sample, float sum0, float count, float sum1,
                                                 float running_mean, float *mean, float *rstd,
                                                 float *running_mean_out)
{
    const float t0 = sum0 / count;
    const float t1 = sample + t0;
    *mean = t1;
    *rstd = batch_norm_rsqrt(batch_norm_max(sum1 / count - t0 * t0, 0) + 1e-05f);
    *running_mean_out = 0.9f * running_mean + 0.1f * t1;
}
BATCH_NORM_FN void batch_norm_g0_forward_1(float bias, float x, float mean, float weight, float rstd,
                                           float *y)
{
    const float t0 = bias + (x - mean) * (weight * rstd);
    *y = batch_norm_where(t0 <= 0, 0, t0);
}
#endif

#if defined(BATCH_NORM_KERNELS_IMPLEMENTATION) && !defined(BATCH_NORM_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { BATCH_NORM_BLOCK = 1024, BATCH_NORM_ROW = 4096, BATCH_NORM_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define BATCH_NORM_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define BATCH_NORM_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define BATCH_NORM_VECTOR _Pragma("GCC ivdep")
#else
#define BATCH_NORM_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define BATCH_NORM_SELDOM __attribute__((unused, noinline)) static
#else
#define BATCH_NORM_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define BATCH_NORM_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define BATCH_NORM_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define BATCH_NORM_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(BATCH_NORM_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define BATCH_NORM_LOOPS(function, lanes, parameters, arguments)                        \
    BATCH_NORM_FN void function##_code parameters;                                      \
    BATCH_NORM_V16 static void function##_v16 parameters { function##_code arguments; } \
    BATCH_NORM_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    BATCH_NORM_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define BATCH_NORM_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define BATCH_NORM_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
BATCH_NORM_FN int batch_norm_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > BATCH_NORM_SLICES ? BATCH_NORM_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
BATCH_NORM_FN int64_t batch_norm_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*batch_norm_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

BATCH_NORM_FN void batch_norm_run_slice(batch_norm_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = batch_norm_slice(count, grain, slices, slice),
                  end = batch_norm_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct batch_norm_work {
    batch_norm_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} batch_norm_work;

BATCH_NORM_SELDOM void batch_norm_task(void *arg, int index, int threads)
{
    const batch_norm_work *w = (const batch_norm_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        batch_norm_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
BATCH_NORM_SELDOM void batch_norm_run(batch_norm_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    batch_norm_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, batch_norm_task, &work);
}

BATCH_NORM_FN int batch_norm_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace for `count` elements of `size` bytes: a multiple of 64. */
BATCH_NORM_FN size_t batch_norm_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

/* The sum of x[n]: 16 interleaved partial sums, added pairwise, plus the rest. */
BATCH_NORM_FN float batch_norm_sum(const float *x, int n)
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

/* Sums by channel: sums[(i + j) / div % mod] += x[j] for j < n. i: the element index of x[0]; div: elements
 * per plane; mod: channels. */
BATCH_NORM_FN void batch_norm_add_channels(double *sums, const float *x, int64_t i, int n, int64_t div, int64_t mod)
{
    int64_t c = i / div % mod, left = div - i % div;
    for (int j = 0, run; j < n; j += run) {
        run = batch_norm_least(n - j, left);
        sums[c] += (double)batch_norm_sum(x + j, run);
        c = c + 1 == mod ? 0 : c + 1;
        left = div;
    }
}

/* The total of sums[slice * width] over all slices, in ascending order. */
BATCH_NORM_FN float batch_norm_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, forward: sum0, sum1 */
BATCH_NORM_LOOPS(batch_norm_g0_forward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float sum0_block[1024];
    float sum1_block[1024];
    const float *const x = (const float *)call->data[0];
    const float *const sample = (const float *)call->data[1];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int left = batch_norm_least(BATCH_NORM_BLOCK, end - i), n = batch_norm_least(left, 70 - i % 70);
        const float sample_0 = sample[i / 70 % 3 * 70];
        BATCH_NORM_VECTOR
        for (int j = 0; j < n; ++j)
            batch_norm_g0_forward_0(x[i + j], sample_0, &sum0_block[j], &sum1_block[j]);
        batch_norm_add_channels(sums, sum0_block, i, n, 70, 3);
        batch_norm_add_channels(sums + 3, sum1_block, i, n, 70, 3);
        i += n;
    }
}

/* g0, forward: y */
BATCH_NORM_LOOPS(batch_norm_g0_forward_1_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const bias = (const float *)call->data[3];
    const float *const x = (const float *)call->data[0];
    const float *const mean = stat[0];
    const float *const weight = (const float *)call->data[2];
    const float *const rstd = (const float *)call->data[5];
    float *const y = (float *)call->data[6];
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int left = batch_norm_least(BATCH_NORM_BLOCK, end - i), n = batch_norm_least(left, 70 - i % 70);
        const float bias_0 = bias[i / 70 % 3];
        const float mean_0 = mean[i / 70 % 3];
        const float weight_0 = weight[i / 70 % 3];
        const float rstd_0 = rstd[i / 70 % 3];
        BATCH_NORM_VECTOR
        for (int j = 0; j < n; ++j)
            batch_norm_g0_forward_1(bias_0, x[i + j], mean_0, weight_0, rstd_0, &y[i + j]);
        i += n;
    }
}

static int batch_norm_g0_forward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    float *stat[1];
    stat[0] = (float *)(void *)space;
    space += batch_norm_room(3, sizeof(float));
    double *const sums = (double *)(void *)space;
    {
        const int slices = batch_norm_slices(call->batch * 210, 16384);
        batch_norm_run(batch_norm_g0_forward_0_loop, call, NULL, call->batch * 210, 70, slices, sums, 8);
        {
            const float *const sample = (const float *)call->data[1];
            const float elements = (float)(call->batch * 70);
            float *const running_mean = (float *)call->data[4];
            float *const mean = stat[0];
            float *const rstd = (float *)call->data[5];
            for (int64_t c = 0; c < 3; ++c) {
                const float sample_0 = sample[c * 70];
                const float running_mean_0 = running_mean[c];
                float mean_value;
                float rstd_value;
                float running_mean_out_value;
                batch_norm_g0_forward_0_final(sample_0, batch_norm_total(sums + c, slices, 8), elements,
                                              batch_norm_total(sums + 3 + c, slices, 8), running_mean_0,
                                              &mean_value, &rstd_value, &running_mean_out_value);
                mean[c] = mean_value;
                rstd[c] = rstd_value;
                running_mean[c] = running_mean_out_value;
            }
        }
    }
    {
        const int slices = batch_norm_slices(call->batch * 210, 16384);
        batch_norm_run(batch_norm_g0_forward_1_loop, call, stat, call->batch * 210, 70, slices, NULL, 0);
    }
    return 0;
}

static size_t batch_norm_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    bytes += batch_norm_room(3, sizeof(float));
    sums = batch_norm_room(batch_norm_slices(batch * 210, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}
#ifdef BATCH_NORM_OPTIMIZED
#pragma GCC pop_options
#undef BATCH_NORM_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char batch_norm_g0_operands0[] = {
    0,
};
static const gpunn_kernel_node batch_norm_g0_nodes[] = {
    {"relu f32 [N,8]", batch_norm_g0_operands0, 1},
};
static const char *const batch_norm_g0_externals[] = {
    "f32 [N,8]",
};
static const gpunn_kernel_operand batch_norm_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 1, 1, GPUNN_F32, 0, 3, -1},
    {GPUNN_KERNEL_KEPT, 1, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
};
static const gpunn_kernel batch_norm_set[] = {
    {"g0",
     "y = f(x)",
     batch_norm_g0_nodes, 1,
     batch_norm_g0_externals, 1,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{NULL, 0, NULL, NULL, 0},
      {batch_norm_g0_forward_operands, 7, batch_norm_g0_forward, batch_norm_g0_forward_workspace, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int batch_norm_evaluation0[] = {
    3, 0,
};
static const gpunn_kernel_instance batch_norm_evaluation[] = {
    {0, batch_norm_evaluation0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda batch_norm_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda batch_norm_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda batch_norm_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda batch_norm_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set batch_norm_kernels = {
    GPUNN_KERNELS_ABI,
    BATCH_NORM_KERNELS_STAMP,
    "batch_norm",
    "0.2",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "python3 -m generator batch_norm.json -o batch_norm",
    batch_norm_set,
    1,
    9,
    batch_norm_evaluation,
    NULL,
    1,
    0,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &batch_norm_kernels_cuda,
#else
    NULL,
#endif
};
#undef BATCH_NORM_KERNELS_IMPLEMENTATION
#endif
