/* long_groups_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator long_groups.json -o long_groups
 */
#ifndef LONG_GROUPS_KERNELS_H
#define LONG_GROUPS_KERNELS_H
#include "gpunn.h"

#define LONG_GROUPS_KERNELS_STAMP 0xde4eac5319a7c6f0ull /* must equal the stamp in long_groups_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &long_groups_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define LONG_GROUPS_KERNELS_IMPLEMENTATION
 * Link long_groups_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set long_groups_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(LONG_GROUPS_KERNELS_IMPLEMENTATION) || defined(LONG_GROUPS_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "long_groups_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(LONG_GROUPS_KERNELS_CUDA)
#define LONG_GROUPS_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

LONG_GROUPS_FN float long_groups_rsqrt(float x)
{
    return 1 / sqrtf(x);
}
#elif defined(LONG_GROUPS_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define LONG_GROUPS_FN __attribute__((unused, always_inline)) static inline
#else
#define LONG_GROUPS_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define LONG_GROUPS_OPTIMIZED
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

LONG_GROUPS_FN float long_groups_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

LONG_GROUPS_FN uint32_t long_groups_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

LONG_GROUPS_FN float long_groups_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

/* 1 / sqrt(x) for normal x > 0, by Newton's method. C's sqrtf may set errno, which prevents vectorization. */
LONG_GROUPS_FN float long_groups_root(float x)
{
    float r = long_groups_float_of(0x5f375a86u - (long_groups_bits_of(x) >> 1));
    r *= 1.5f - x * r * (0.5f * r);
    r *= 1.5f - x * r * (0.5f * r);
    return r * (1.5f - x * r * (0.5f * r));
}

LONG_GROUPS_FN float long_groups_rsqrt(float x)
{
    const float r = long_groups_root(x), y = r + 0.5f * r * (1 - x * r * r);
    const float outside = long_groups_where(x < 0, NAN, long_groups_where(x < FLT_MIN, copysignf(INFINITY, x), x));
    return long_groups_where(x >= FLT_MIN, long_groups_where(x <= FLT_MAX, y, 0), outside);
}
#endif

#if defined(LONG_GROUPS_KERNELS_IMPLEMENTATION) || defined(LONG_GROUPS_KERNELS_CUDA)
/* g0, forward: y = f(x) */
LONG_GROUPS_FN void long_groups_g0_forward_0_stage1(float x, float *sum0)
{
    *sum0 = x;
}

LONG_GROUPS_FN void long_groups_g0_forward_0_row1(float sum0, float *row0)
{
    *row0 = sum0 / 5000;
}

LONG_GROUPS_FN void long_groups_g0_forward_0_stage2(float x, float row0, float *sum1)
{
    const float t0 = x - row0;
    *sum1 = t0 * t0;
}

LONG_GROUPS_FN void long_groups_g0_forward_0_row2(float sum1, float row0, float *row1, float *mean,
                                                  float *rstd)
{
    const float t0 = long_groups_rsqrt(sum1 / 5000 + 1e-05f);
    *row1 = t0;
    *mean = row0;
    *rstd = t0;
}

LONG_GROUPS_FN void long_groups_g0_forward_0(float bias, float weight, float x, float row0, float row1,
                                             float r, float *y)
{
    *y = bias + weight * ((x - row0) * row1) + r;
}

/* g0, backward: y = f(x) */
LONG_GROUPS_FN void long_groups_g0_backward_0(float dy, float rstd, float x, float mean, float *sum0,
                                              float *sum1)
{
    *sum0 = dy * (rstd * (x - mean));
    *sum1 = dy;
}

LONG_GROUPS_FN void long_groups_g0_backward_0_final(float sum0, float sum1, float *dweight, float *dbias)
{
    *dweight = sum0;
    *dbias = sum1;
}
LONG_GROUPS_FN void long_groups_g0_backward_1_stage1(float weight, float dy, float x, float mean, float *sum0,
                                                     float *sum1)
{
    const float t0 = weight * dy;
    *sum0 = t0;
    *sum1 = (x - mean) * t0;
}

LONG_GROUPS_FN void long_groups_g0_backward_1_row1(float sum0, float rstd, float sum1, float *row0,
                                                   float *row1)
{
    *row0 = sum0 / 5000;
    *row1 = rstd * rstd * (sum1 / 5000);
}

LONG_GROUPS_FN void long_groups_g0_backward_1(float rstd, float weight, float dy, float row0, float x,
                                              float mean, float row1, float *dx)
{
    *dx = rstd * (weight * dy - row0 - (x - mean) * row1);
}
#endif

#if defined(LONG_GROUPS_KERNELS_IMPLEMENTATION) && !defined(LONG_GROUPS_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { LONG_GROUPS_BLOCK = 1024, LONG_GROUPS_ROW = 4096, LONG_GROUPS_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define LONG_GROUPS_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define LONG_GROUPS_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define LONG_GROUPS_VECTOR _Pragma("GCC ivdep")
#else
#define LONG_GROUPS_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define LONG_GROUPS_SELDOM __attribute__((unused, noinline)) static
#else
#define LONG_GROUPS_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define LONG_GROUPS_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define LONG_GROUPS_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define LONG_GROUPS_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(LONG_GROUPS_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define LONG_GROUPS_LOOPS(function, lanes, parameters, arguments)                        \
    LONG_GROUPS_FN void function##_code parameters;                                      \
    LONG_GROUPS_V16 static void function##_v16 parameters { function##_code arguments; } \
    LONG_GROUPS_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    LONG_GROUPS_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define LONG_GROUPS_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define LONG_GROUPS_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
LONG_GROUPS_FN int long_groups_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > LONG_GROUPS_SLICES ? LONG_GROUPS_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
LONG_GROUPS_FN int64_t long_groups_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*long_groups_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

LONG_GROUPS_FN void long_groups_run_slice(long_groups_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = long_groups_slice(count, grain, slices, slice),
                  end = long_groups_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct long_groups_work {
    long_groups_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} long_groups_work;

LONG_GROUPS_SELDOM void long_groups_task(void *arg, int index, int threads)
{
    const long_groups_work *w = (const long_groups_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        long_groups_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
LONG_GROUPS_SELDOM void long_groups_run(long_groups_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    long_groups_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, long_groups_task, &work);
}

LONG_GROUPS_FN int long_groups_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace for `count` elements of `size` bytes: a multiple of 64. */
LONG_GROUPS_FN size_t long_groups_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

LONG_GROUPS_FN void long_groups_add(float *to, const float *from, int n)
{
    LONG_GROUPS_VECTOR
    for (int j = 0; j < n; ++j) to[j] += from[j];
}

/* to[j] = from[(i + j) / div % mod]. mod = 0: no modulo. */
LONG_GROUPS_FN void long_groups_expand(float *to, const float *from, int64_t i, int n, int64_t div, int64_t mod)
{
    int64_t place = mod ? i / div % mod : i / div, left = div - i % div;
    for (int j = 0, run; j < n; j += run) {
        run = long_groups_least(n - j, left);
        for (int k = 0; k < run; ++k) to[j + k] = from[place];
        place = place + 1 == mod ? 0 : place + 1;
        left = div;
    }
}

/* The sum of x[n]: 16 interleaved partial sums, added pairwise, plus the rest. */
LONG_GROUPS_FN float long_groups_sum(const float *x, int n)
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
LONG_GROUPS_FN void long_groups_add_channels(double *sums, const float *x, int64_t i, int n, int64_t div, int64_t mod)
{
    int64_t c = i / div % mod, left = div - i % div;
    for (int j = 0, run; j < n; j += run) {
        run = long_groups_least(n - j, left);
        sums[c] += (double)long_groups_sum(x + j, run);
        c = c + 1 == mod ? 0 : c + 1;
        left = div;
    }
}

/* The total of sums[slice * width] over all slices, in ascending order. */
LONG_GROUPS_FN float long_groups_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, forward: y, mean, rstd */
LONG_GROUPS_LOOPS(long_groups_g0_forward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float terms0[4096];
    float terms1[4096];
    float bias_block[4096];
    float weight_block[4096];
    const float *const x = (const float *)call->data[0];
    const float *const bias = (const float *)call->data[2];
    const float *const weight = (const float *)call->data[1];
    const float *const r = (const float *)call->data[3];
    float *const y = (float *)call->data[4];
    float *const mean = (float *)call->data[5];
    float *const rstd = (float *)call->data[6];
    (void)stat;
    (void)sums;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row * 5000;
        double sum0_so_far = 0;
        for (int at = 0, n; at < 5000; at += n) {
            const int64_t i_at = i + at;
            n = long_groups_least(LONG_GROUPS_ROW, 5000 - at);
            LONG_GROUPS_VECTOR
            for (int j = 0; j < n; ++j)
                long_groups_g0_forward_0_stage1(x[i_at + j], &terms0[j]);
            sum0_so_far += (double)long_groups_sum(terms0, n);
        }
        const float sum0 = (float)sum0_so_far;
        float row0;
        long_groups_g0_forward_0_row1(sum0, &row0);
        double sum1_so_far = 0;
        for (int at = 0, n; at < 5000; at += n) {
            const int64_t i_at = i + at;
            n = long_groups_least(LONG_GROUPS_ROW, 5000 - at);
            LONG_GROUPS_VECTOR
            for (int j = 0; j < n; ++j)
                long_groups_g0_forward_0_stage2(x[i_at + j], row0, &terms1[j]);
            sum1_so_far += (double)long_groups_sum(terms1, n);
        }
        const float sum1 = (float)sum1_so_far;
        float row1;
        float mean_value;
        float rstd_value;
        long_groups_g0_forward_0_row2(sum1, row0, &row1, &mean_value, &rstd_value);
        mean[row] = mean_value;
        rstd[row] = rstd_value;
        for (int at = 0, n; at < 5000; at += n) {
            const int64_t i_at = i + at;
            n = long_groups_least(LONG_GROUPS_ROW, 5000 - at);
            long_groups_expand(bias_block, bias, i_at, n, 2500, 4);
            long_groups_expand(weight_block, weight, i_at, n, 2500, 4);
            LONG_GROUPS_VECTOR
            for (int j = 0; j < n; ++j)
                long_groups_g0_forward_0(bias_block[j], weight_block[j], x[i_at + j], row0, row1, r[i_at + j],
                                         &y[i_at + j]);
        }
    }
}

static int long_groups_g0_forward(const gpunn_kernel_call *call)
{
    {
        const int slices = long_groups_slices(call->batch * 10000, 16384);
        long_groups_run(long_groups_g0_forward_0_loop, call, NULL, call->batch * 2, 1, slices, NULL, 0);
    }
    return 0;
}

static size_t long_groups_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    return 0;
}

/* g0, backward: sum0, sum1 */
LONG_GROUPS_LOOPS(long_groups_g0_backward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float sum0_block[1024];
    float sum1_block[1024];
    const float *const dy = (const float *)call->data[4];
    const float *const rstd = (const float *)call->data[3];
    const float *const x = (const float *)call->data[0];
    const float *const mean = (const float *)call->data[2];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int left = long_groups_least(LONG_GROUPS_BLOCK, end - i), n = long_groups_least(left, 5000 - i % 5000);
        const float rstd_0 = rstd[i / 5000];
        const float mean_0 = mean[i / 5000];
        LONG_GROUPS_VECTOR
        for (int j = 0; j < n; ++j)
            long_groups_g0_backward_0(dy[i + j], rstd_0, x[i + j], mean_0, &sum0_block[j],
                                      &sum1_block[j]);
        long_groups_add_channels(sums, sum0_block, i, n, 2500, 4);
        long_groups_add_channels(sums + 4, sum1_block, i, n, 2500, 4);
        i += n;
    }
}

/* g0, backward: dx */
LONG_GROUPS_LOOPS(long_groups_g0_backward_1_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float weight_block[4096];
    float terms0[4096];
    float terms1[4096];
    float weight_block_2[4096];
    float dx_block[4096];
    const float *const weight = (const float *)call->data[1];
    const float *const dy = (const float *)call->data[4];
    const float *const x = (const float *)call->data[0];
    const float *const mean = (const float *)call->data[2];
    const float *const rstd = (const float *)call->data[3];
    float *const dx = (float *)call->data[7];
    (void)stat;
    (void)sums;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row * 5000;
        const float mean_0 = mean[row];
        double sum0_so_far = 0;
        double sum1_so_far = 0;
        for (int at = 0, n; at < 5000; at += n) {
            const int64_t i_at = i + at;
            n = long_groups_least(LONG_GROUPS_ROW, 5000 - at);
            long_groups_expand(weight_block, weight, i_at, n, 2500, 4);
            LONG_GROUPS_VECTOR
            for (int j = 0; j < n; ++j)
                long_groups_g0_backward_1_stage1(weight_block[j], dy[i_at + j], x[i_at + j], mean_0,
                                                 &terms0[j], &terms1[j]);
            sum0_so_far += (double)long_groups_sum(terms0, n);
            sum1_so_far += (double)long_groups_sum(terms1, n);
        }
        const float sum0 = (float)sum0_so_far;
        const float sum1 = (float)sum1_so_far;
        const float rstd_0 = rstd[row];
        float row0;
        float row1;
        long_groups_g0_backward_1_row1(sum0, rstd_0, sum1, &row0, &row1);
        for (int at = 0, n; at < 5000; at += n) {
            const int64_t i_at = i + at;
            n = long_groups_least(LONG_GROUPS_ROW, 5000 - at);
            long_groups_expand(weight_block_2, weight, i_at, n, 2500, 4);
            float *const dx_at = dx == NULL || call->accumulate[7] ? dx_block : dx + i_at;
            LONG_GROUPS_VECTOR
            for (int j = 0; j < n; ++j)
                long_groups_g0_backward_1(rstd_0, weight_block_2[j], dy[i_at + j], row0, x[i_at + j], mean_0,
                                          row1, &dx_at[j]);
            if (dx_at == dx_block && dx != NULL) long_groups_add(dx + i_at, dx_block, n);
        }
    }
}

static int long_groups_g0_backward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = long_groups_slices(call->batch * 10000, 16384);
        long_groups_run(long_groups_g0_backward_0_loop, call, NULL, call->batch * 10000, 5000, slices, sums, 8);
        {
            float *const dweight = (float *)call->data[5];
            float *const dbias = (float *)call->data[6];
            for (int64_t c = 0; c < 4; ++c) {
                float dweight_value;
                float dbias_value;
                long_groups_g0_backward_0_final(long_groups_total(sums + c, slices, 8),
                                                long_groups_total(sums + 4 + c, slices, 8), &dweight_value,
                                                &dbias_value);
                if (dweight != NULL) dweight[c] = call->accumulate[5] ? dweight[c] + dweight_value : dweight_value;
                if (dbias != NULL) dbias[c] = call->accumulate[6] ? dbias[c] + dbias_value : dbias_value;
            }
        }
    }
    {
        const int slices = long_groups_slices(call->batch * 10000, 16384);
        long_groups_run(long_groups_g0_backward_1_loop, call, NULL, call->batch * 2, 1, slices, NULL, 0);
    }
    return 0;
}

static size_t long_groups_g0_backward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = long_groups_room(long_groups_slices(batch * 10000, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}
#ifdef LONG_GROUPS_OPTIMIZED
#pragma GCC pop_options
#undef LONG_GROUPS_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char long_groups_g0_operands0[] = {
    0,
};
static const gpunn_kernel_node long_groups_g0_nodes[] = {
    {"relu f32 [N,8]", long_groups_g0_operands0, 1},
};
static const char *const long_groups_g0_externals[] = {
    "f32 [N,8]",
};
static const gpunn_kernel_operand long_groups_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 3, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_KEPT, 0, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_KEPT, 0, 1, GPUNN_F32, 0, 1, -1},
};
static const gpunn_kernel_operand long_groups_g0_backward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_KEPT, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_KEPT, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 0, -1},
};
static const gpunn_kernel long_groups_set[] = {
    {"g0",
     "y = f(x)",
     long_groups_g0_nodes, 1,
     long_groups_g0_externals, 1,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{NULL, 0, NULL, NULL, 0},
      {long_groups_g0_forward_operands, 7, long_groups_g0_forward, long_groups_g0_forward_workspace, 0},
      {long_groups_g0_backward_operands, 8, long_groups_g0_backward, long_groups_g0_backward_workspace, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int long_groups_evaluation0[] = {
    3, 0,
};
static const gpunn_kernel_instance long_groups_evaluation[] = {
    {0, long_groups_evaluation0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda long_groups_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda long_groups_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda long_groups_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda long_groups_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set long_groups_kernels = {
    GPUNN_KERNELS_ABI,
    LONG_GROUPS_KERNELS_STAMP,
    "long_groups",
    "0.2",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "python3 -m generator long_groups.json -o long_groups",
    long_groups_set,
    1,
    9,
    long_groups_evaluation,
    NULL,
    1,
    0,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &long_groups_kernels_cuda,
#else
    NULL,
#endif
};
#undef LONG_GROUPS_KERNELS_IMPLEMENTATION
#endif
