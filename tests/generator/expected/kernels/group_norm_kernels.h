/* group_norm_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator group_norm.json -o group_norm
 */
#ifndef GROUP_NORM_KERNELS_H
#define GROUP_NORM_KERNELS_H
#include "gpunn.h"

#define GROUP_NORM_KERNELS_STAMP 0x58c4e4f1dd7b8afbull /* must equal the stamp in group_norm_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &group_norm_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define GROUP_NORM_KERNELS_IMPLEMENTATION
 * Link group_norm_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set group_norm_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(GROUP_NORM_KERNELS_IMPLEMENTATION) || defined(GROUP_NORM_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "group_norm_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(GROUP_NORM_KERNELS_CUDA)
#define GROUP_NORM_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

GROUP_NORM_FN float group_norm_rsqrt(float x)
{
    return 1 / sqrtf(x);
}
#elif defined(GROUP_NORM_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define GROUP_NORM_FN __attribute__((unused, always_inline)) static inline
#else
#define GROUP_NORM_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define GROUP_NORM_OPTIMIZED
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

GROUP_NORM_FN float group_norm_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

GROUP_NORM_FN uint32_t group_norm_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

GROUP_NORM_FN float group_norm_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

/* 1 / sqrt(x) for normal x > 0, by Newton's method. C's sqrtf may set errno, which prevents vectorization. */
GROUP_NORM_FN float group_norm_root(float x)
{
    float r = group_norm_float_of(0x5f375a86u - (group_norm_bits_of(x) >> 1));
    r *= 1.5f - x * r * (0.5f * r);
    r *= 1.5f - x * r * (0.5f * r);
    return r * (1.5f - x * r * (0.5f * r));
}

GROUP_NORM_FN float group_norm_rsqrt(float x)
{
    const float r = group_norm_root(x), y = r + 0.5f * r * (1 - x * r * r);
    const float outside = group_norm_where(x < 0, NAN, group_norm_where(x < FLT_MIN, copysignf(INFINITY, x), x));
    return group_norm_where(x >= FLT_MIN, group_norm_where(x <= FLT_MAX, y, 0), outside);
}
#endif

#if defined(GROUP_NORM_KERNELS_IMPLEMENTATION) || defined(GROUP_NORM_KERNELS_CUDA)
/* g0, forward: y = f(x) */
GROUP_NORM_FN void group_norm_g0_forward_0_stage1(float x, float *sum0)
{
    *sum0 = x;
}

GROUP_NORM_FN void group_norm_g0_forward_0_row1(float sum0, float *row0)
{
    *row0 = sum0 / 105;
}

GROUP_NORM_FN void group_norm_g0_forward_0_stage2(float x, float row0, float *sum1)
{
    const float t0 = x - row0;
    *sum1 = t0 * t0;
}

GROUP_NORM_FN void group_norm_g0_forward_0_row2(float sum1, float row0, float *row1, float *mean, float *rstd)
{
    const float t0 = group_norm_rsqrt(sum1 / 105 + 1e-05f);
    *row1 = t0;
    *mean = row0;
    *rstd = t0;
}

GROUP_NORM_FN void group_norm_g0_forward_0(float bias, float weight, float x, float row0, float row1, float r,
                                           float *y)
{
    *y = bias + weight * ((x - row0) * row1) + r;
}

/* g0, backward: y = f(x) */
GROUP_NORM_FN void group_norm_g0_backward_0(float dy, float rstd, float x, float mean, float *sum0,
                                            float *sum1)
{
    *sum0 = dy * (rstd * (x - mean));
    *sum1 = dy;
}

GROUP_NORM_FN void group_norm_g0_backward_0_final(float sum0, float sum1, float *dweight, float *dbias)
{
    *dweight = sum0;
    *dbias = sum1;
}
GROUP_NORM_FN void group_norm_g0_backward_1_stage1(float weight, float dy, float x, float mean, float *sum0,
                                                   float *sum1)
{
    const float t0 = weight * dy;
    *sum0 = t0;
    *sum1 = (x - mean) * t0;
}

GROUP_NORM_FN void group_norm_g0_backward_1_row1(float sum0, float rstd, float sum1, float *row0, float *row1)
{
    *row0 = sum0 / 105;
    *row1 = rstd * rstd * (sum1 / 105);
}

GROUP_NORM_FN void group_norm_g0_backward_1(float rstd, float weight, float dy, float row0, float x,
                                            float mean, float row1, float *dx)
{
    *dx = rstd * (weight * dy - row0 - (x - mean) * row1);
}
#endif

#if defined(GROUP_NORM_KERNELS_IMPLEMENTATION) && !defined(GROUP_NORM_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { GROUP_NORM_BLOCK = 1024, GROUP_NORM_ROW = 4096, GROUP_NORM_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define GROUP_NORM_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define GROUP_NORM_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define GROUP_NORM_VECTOR _Pragma("GCC ivdep")
#else
#define GROUP_NORM_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define GROUP_NORM_SELDOM __attribute__((unused, noinline)) static
#else
#define GROUP_NORM_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define GROUP_NORM_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define GROUP_NORM_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define GROUP_NORM_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(GROUP_NORM_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define GROUP_NORM_LOOPS(function, lanes, parameters, arguments)                        \
    GROUP_NORM_FN void function##_code parameters;                                      \
    GROUP_NORM_V16 static void function##_v16 parameters { function##_code arguments; } \
    GROUP_NORM_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    GROUP_NORM_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define GROUP_NORM_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define GROUP_NORM_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
GROUP_NORM_FN int group_norm_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > GROUP_NORM_SLICES ? GROUP_NORM_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
GROUP_NORM_FN int64_t group_norm_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*group_norm_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

GROUP_NORM_FN void group_norm_run_slice(group_norm_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = group_norm_slice(count, grain, slices, slice),
                  end = group_norm_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct group_norm_work {
    group_norm_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} group_norm_work;

GROUP_NORM_SELDOM void group_norm_task(void *arg, int index, int threads)
{
    const group_norm_work *w = (const group_norm_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        group_norm_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
GROUP_NORM_SELDOM void group_norm_run(group_norm_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    group_norm_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, group_norm_task, &work);
}

GROUP_NORM_FN int group_norm_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace for `count` elements of `size` bytes: a multiple of 64. */
GROUP_NORM_FN size_t group_norm_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

GROUP_NORM_FN void group_norm_add(float *to, const float *from, int n)
{
    GROUP_NORM_VECTOR
    for (int j = 0; j < n; ++j) to[j] += from[j];
}

/* to[j] = from[(i + j) / div % mod]. mod = 0: no modulo. */
GROUP_NORM_FN void group_norm_expand(float *to, const float *from, int64_t i, int n, int64_t div, int64_t mod)
{
    int64_t place = mod ? i / div % mod : i / div, left = div - i % div;
    for (int j = 0, run; j < n; j += run) {
        run = group_norm_least(n - j, left);
        for (int k = 0; k < run; ++k) to[j + k] = from[place];
        place = place + 1 == mod ? 0 : place + 1;
        left = div;
    }
}

/* The sum of x[n]: 16 interleaved partial sums, added pairwise, plus the rest. */
GROUP_NORM_FN float group_norm_sum(const float *x, int n)
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
GROUP_NORM_FN void group_norm_add_channels(double *sums, const float *x, int64_t i, int n, int64_t div, int64_t mod)
{
    int64_t c = i / div % mod, left = div - i % div;
    for (int j = 0, run; j < n; j += run) {
        run = group_norm_least(n - j, left);
        sums[c] += (double)group_norm_sum(x + j, run);
        c = c + 1 == mod ? 0 : c + 1;
        left = div;
    }
}

/* The total of sums[slice * width] over all slices, in ascending order. */
GROUP_NORM_FN float group_norm_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, forward: y, mean, rstd */
GROUP_NORM_LOOPS(group_norm_g0_forward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float terms0[105];
    float terms1[105];
    float bias_block[105];
    float weight_block[105];
    const float *const x = (const float *)call->data[0];
    const float *const bias = (const float *)call->data[2];
    const float *const weight = (const float *)call->data[1];
    const float *const r = (const float *)call->data[3];
    float *const y = (float *)call->data[4];
    float *const mean = (float *)call->data[5];
    float *const rstd = (float *)call->data[6];
    const int n = 105;
    (void)stat;
    (void)sums;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row * 105;
        GROUP_NORM_VECTOR
        for (int j = 0; j < n; ++j)
            group_norm_g0_forward_0_stage1(x[i + j], &terms0[j]);
        const float sum0 = group_norm_sum(terms0, n);
        float row0;
        group_norm_g0_forward_0_row1(sum0, &row0);
        GROUP_NORM_VECTOR
        for (int j = 0; j < n; ++j)
            group_norm_g0_forward_0_stage2(x[i + j], row0, &terms1[j]);
        const float sum1 = group_norm_sum(terms1, n);
        float row1;
        float mean_value;
        float rstd_value;
        group_norm_g0_forward_0_row2(sum1, row0, &row1, &mean_value, &rstd_value);
        mean[row] = mean_value;
        rstd[row] = rstd_value;
        group_norm_expand(bias_block, bias, i, n, 35, 6);
        group_norm_expand(weight_block, weight, i, n, 35, 6);
        GROUP_NORM_VECTOR
        for (int j = 0; j < n; ++j)
            group_norm_g0_forward_0(bias_block[j], weight_block[j], x[i + j], row0, row1, r[i + j],
                                    &y[i + j]);
    }
}

static int group_norm_g0_forward(const gpunn_kernel_call *call)
{
    {
        const int slices = group_norm_slices(call->batch * 210, 16384);
        group_norm_run(group_norm_g0_forward_0_loop, call, NULL, call->batch * 2, 1, slices, NULL, 0);
    }
    return 0;
}

static size_t group_norm_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    return 0;
}

/* g0, backward: sum0, sum1 */
GROUP_NORM_LOOPS(group_norm_g0_backward_0_loop, call->lanes,
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
        const int left = group_norm_least(GROUP_NORM_BLOCK, end - i), n = group_norm_least(left, 105 - i % 105);
        const float rstd_0 = rstd[i / 105];
        const float mean_0 = mean[i / 105];
        GROUP_NORM_VECTOR
        for (int j = 0; j < n; ++j)
            group_norm_g0_backward_0(dy[i + j], rstd_0, x[i + j], mean_0, &sum0_block[j], &sum1_block[j]);
        group_norm_add_channels(sums, sum0_block, i, n, 35, 6);
        group_norm_add_channels(sums + 6, sum1_block, i, n, 35, 6);
        i += n;
    }
}

/* g0, backward: dx */
GROUP_NORM_LOOPS(group_norm_g0_backward_1_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float weight_block[105];
    float terms0[105];
    float terms1[105];
    float dx_block[105];
    const float *const weight = (const float *)call->data[1];
    const float *const dy = (const float *)call->data[4];
    const float *const x = (const float *)call->data[0];
    const float *const mean = (const float *)call->data[2];
    const float *const rstd = (const float *)call->data[3];
    float *const dx = (float *)call->data[7];
    const int n = 105;
    (void)stat;
    (void)sums;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row * 105;
        group_norm_expand(weight_block, weight, i, n, 35, 6);
        const float mean_0 = mean[row];
        GROUP_NORM_VECTOR
        for (int j = 0; j < n; ++j)
            group_norm_g0_backward_1_stage1(weight_block[j], dy[i + j], x[i + j], mean_0, &terms0[j],
                                            &terms1[j]);
        const float sum0 = group_norm_sum(terms0, n);
        const float sum1 = group_norm_sum(terms1, n);
        const float rstd_0 = rstd[row];
        float row0;
        float row1;
        group_norm_g0_backward_1_row1(sum0, rstd_0, sum1, &row0, &row1);
        float *const dx_at = dx == NULL || call->accumulate[7] ? dx_block : dx + i;
        GROUP_NORM_VECTOR
        for (int j = 0; j < n; ++j)
            group_norm_g0_backward_1(rstd_0, weight_block[j], dy[i + j], row0, x[i + j], mean_0, row1,
                                     &dx_at[j]);
        if (dx_at == dx_block && dx != NULL) group_norm_add(dx + i, dx_block, n);
    }
}

static int group_norm_g0_backward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = group_norm_slices(call->batch * 210, 16384);
        group_norm_run(group_norm_g0_backward_0_loop, call, NULL, call->batch * 210, 105, slices, sums, 16);
        {
            float *const dweight = (float *)call->data[5];
            float *const dbias = (float *)call->data[6];
            for (int64_t c = 0; c < 6; ++c) {
                float dweight_value;
                float dbias_value;
                group_norm_g0_backward_0_final(group_norm_total(sums + c, slices, 16),
                                               group_norm_total(sums + 6 + c, slices, 16), &dweight_value,
                                               &dbias_value);
                if (dweight != NULL) dweight[c] = call->accumulate[5] ? dweight[c] + dweight_value : dweight_value;
                if (dbias != NULL) dbias[c] = call->accumulate[6] ? dbias[c] + dbias_value : dbias_value;
            }
        }
    }
    {
        const int slices = group_norm_slices(call->batch * 210, 16384);
        group_norm_run(group_norm_g0_backward_1_loop, call, NULL, call->batch * 2, 1, slices, NULL, 0);
    }
    return 0;
}

static size_t group_norm_g0_backward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = group_norm_room(group_norm_slices(batch * 210, 16384) * (int64_t)16, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}
#ifdef GROUP_NORM_OPTIMIZED
#pragma GCC pop_options
#undef GROUP_NORM_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char group_norm_g0_operands0[] = {
    0,
};
static const gpunn_kernel_node group_norm_g0_nodes[] = {
    {"relu f32 [N,8]", group_norm_g0_operands0, 1},
};
static const char *const group_norm_g0_externals[] = {
    "f32 [N,8]",
};
static const gpunn_kernel_operand group_norm_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 3, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_KEPT, 0, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_KEPT, 0, 1, GPUNN_F32, 0, 1, -1},
};
static const gpunn_kernel_operand group_norm_g0_backward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_KEPT, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_KEPT, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 0, -1},
};
static const gpunn_kernel group_norm_set[] = {
    {"g0",
     "y = f(x)",
     group_norm_g0_nodes, 1,
     group_norm_g0_externals, 1,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{NULL, 0, NULL, NULL, 0},
      {group_norm_g0_forward_operands, 7, group_norm_g0_forward, group_norm_g0_forward_workspace, 0},
      {group_norm_g0_backward_operands, 8, group_norm_g0_backward, group_norm_g0_backward_workspace, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int group_norm_evaluation0[] = {
    3, 0,
};
static const gpunn_kernel_instance group_norm_evaluation[] = {
    {0, group_norm_evaluation0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda group_norm_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda group_norm_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda group_norm_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda group_norm_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set group_norm_kernels = {
    GPUNN_KERNELS_ABI,
    GROUP_NORM_KERNELS_STAMP,
    "group_norm",
    "0.2",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "python3 -m generator group_norm.json -o group_norm",
    group_norm_set,
    1,
    9,
    group_norm_evaluation,
    NULL,
    1,
    0,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &group_norm_kernels_cuda,
#else
    NULL,
#endif
};
#undef GROUP_NORM_KERNELS_IMPLEMENTATION
#endif
