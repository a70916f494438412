/* layer_norm_half_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator layer_norm_half.json -o layer_norm_half
 */
#ifndef LAYER_NORM_HALF_KERNELS_H
#define LAYER_NORM_HALF_KERNELS_H
#include "gpunn.h"

#define LAYER_NORM_HALF_KERNELS_STAMP 0xdc0633630af24270ull /* must equal the stamp in layer_norm_half_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &layer_norm_half_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define LAYER_NORM_HALF_KERNELS_IMPLEMENTATION
 * Link layer_norm_half_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set layer_norm_half_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(LAYER_NORM_HALF_KERNELS_IMPLEMENTATION) || defined(LAYER_NORM_HALF_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "layer_norm_half_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(LAYER_NORM_HALF_KERNELS_CUDA)
#define LAYER_NORM_HALF_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

LAYER_NORM_HALF_FN float layer_norm_half_rsqrt(float x)
{
    return 1 / sqrtf(x);
}

/* x rounded to the 16-bit type, to nearest even. */
LAYER_NORM_HALF_FN float layer_norm_half_round_bf16(float x)
{
    unsigned bits = __float_as_uint(x);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(x), "f"(0.0f));
#else
    bits = x != x ? 0x7FFF0000u : (bits + 0x7FFFu + (bits >> 16 & 1)) & 0xFFFF0000u;
#endif
    return __uint_as_float(bits);
}
#elif defined(LAYER_NORM_HALF_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define LAYER_NORM_HALF_FN __attribute__((unused, always_inline)) static inline
#else
#define LAYER_NORM_HALF_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define LAYER_NORM_HALF_OPTIMIZED
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

LAYER_NORM_HALF_FN float layer_norm_half_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

LAYER_NORM_HALF_FN uint32_t layer_norm_half_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

LAYER_NORM_HALF_FN float layer_norm_half_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

/* 1 / sqrt(x) for normal x > 0, by Newton's method. C's sqrtf may set errno, which prevents vectorization. */
LAYER_NORM_HALF_FN float layer_norm_half_root(float x)
{
    float r = layer_norm_half_float_of(0x5f375a86u - (layer_norm_half_bits_of(x) >> 1));
    r *= 1.5f - x * r * (0.5f * r);
    r *= 1.5f - x * r * (0.5f * r);
    return r * (1.5f - x * r * (0.5f * r));
}

LAYER_NORM_HALF_FN float layer_norm_half_rsqrt(float x)
{
    const float r = layer_norm_half_root(x), y = r + 0.5f * r * (1 - x * r * r);
    const float outside = layer_norm_half_where(x < 0, NAN, layer_norm_half_where(x < FLT_MIN, copysignf(INFINITY, x), x));
    return layer_norm_half_where(x >= FLT_MIN, layer_norm_half_where(x <= FLT_MAX, y, 0), outside);
}

/* On a GPU these round values that are stored in 16 bits. On the CPU such values are stored as floats. */
LAYER_NORM_HALF_FN float layer_norm_half_round_bf16(float x)
{
    return x;
}
#endif

#if defined(LAYER_NORM_HALF_KERNELS_IMPLEMENTATION) || defined(LAYER_NORM_HALF_KERNELS_CUDA)
/* g0, forward: y = f(x) */
LAYER_NORM_HALF_FN void layer_norm_half_g0_forward_0_stage1(float x, float r, float *sum0)
{
    *sum0 = layer_norm_half_round_bf16(x + r);
}

LAYER_NORM_HALF_FN void layer_norm_half_g0_forward_0_row1(float sum0, float *row0)
{
    *row0 = 0.015625f * sum0;
}

LAYER_NORM_HALF_FN void layer_norm_half_g0_forward_0_stage2(float x, float r, float row0, float *sum1)
{
    const float t0 = layer_norm_half_round_bf16(x + r) - row0;
    *sum1 = t0 * t0;
}

LAYER_NORM_HALF_FN void layer_norm_half_g0_forward_0_row2(float sum1, float row0, float *row1, float *mean,
                                                          float *rstd)
{
    const float t0 = layer_norm_half_rsqrt(0.015625f * sum1 + 1e-05f);
    *row1 = t0;
    *mean = row0;
    *rstd = t0;
}

LAYER_NORM_HALF_FN void layer_norm_half_g0_forward_0(float x, float r, float bias, float weight, float row0,
                                                     float row1, float *h, float *y)
{
    const float t0 = layer_norm_half_round_bf16(x + r);
    *h = t0;
    *y = bias + weight * ((t0 - row0) * row1);
}

/* g0, backward: y = f(x) */
LAYER_NORM_HALF_FN void layer_norm_half_g0_backward_0_stage1(float weight, float dy, float h, float mean,
                                                             float *sum0, float *sum1)
{
    const float t0 = weight * dy;
    *sum0 = t0;
    *sum1 = (h - mean) * t0;
}

LAYER_NORM_HALF_FN void layer_norm_half_g0_backward_0_row1(float sum0, float rstd, float sum1, float *row0,
                                                           float *row1)
{
    *row0 = 0.015625f * sum0;
    *row1 = rstd * rstd * (0.015625f * sum1);
}

LAYER_NORM_HALF_FN void layer_norm_half_g0_backward_0(float dh, float rstd, float weight, float dy,
                                                      float row0, float h, float mean, float row1, float *dx,
                                                      float *dr, float *sum0, float *sum1)
{
    const float t0 = h - mean;
    const float t1 = dh + rstd * (weight * dy - row0 - t0 * row1);
    *dx = t1;
    *dr = t1;
    *sum0 = dy * (rstd * t0);
    *sum1 = dy;
}

LAYER_NORM_HALF_FN void layer_norm_half_g0_backward_0_final(float sum0, float sum1, float *dweight,
                                                            float *dbias)
{
    *dweight = sum0;
    *dbias = sum1;
}
#endif

#if defined(LAYER_NORM_HALF_KERNELS_IMPLEMENTATION) && !defined(LAYER_NORM_HALF_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { LAYER_NORM_HALF_BLOCK = 1024, LAYER_NORM_HALF_ROW = 4096, LAYER_NORM_HALF_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define LAYER_NORM_HALF_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define LAYER_NORM_HALF_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define LAYER_NORM_HALF_VECTOR _Pragma("GCC ivdep")
#else
#define LAYER_NORM_HALF_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define LAYER_NORM_HALF_SELDOM __attribute__((unused, noinline)) static
#else
#define LAYER_NORM_HALF_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define LAYER_NORM_HALF_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define LAYER_NORM_HALF_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define LAYER_NORM_HALF_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(LAYER_NORM_HALF_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define LAYER_NORM_HALF_LOOPS(function, lanes, parameters, arguments)                        \
    LAYER_NORM_HALF_FN void function##_code parameters;                                      \
    LAYER_NORM_HALF_V16 static void function##_v16 parameters { function##_code arguments; } \
    LAYER_NORM_HALF_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    LAYER_NORM_HALF_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define LAYER_NORM_HALF_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define LAYER_NORM_HALF_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
LAYER_NORM_HALF_FN int layer_norm_half_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > LAYER_NORM_HALF_SLICES ? LAYER_NORM_HALF_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
LAYER_NORM_HALF_FN int64_t layer_norm_half_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*layer_norm_half_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

LAYER_NORM_HALF_FN void layer_norm_half_run_slice(layer_norm_half_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = layer_norm_half_slice(count, grain, slices, slice),
                  end = layer_norm_half_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct layer_norm_half_work {
    layer_norm_half_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} layer_norm_half_work;

LAYER_NORM_HALF_SELDOM void layer_norm_half_task(void *arg, int index, int threads)
{
    const layer_norm_half_work *w = (const layer_norm_half_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        layer_norm_half_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
LAYER_NORM_HALF_SELDOM void layer_norm_half_run(layer_norm_half_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    layer_norm_half_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, layer_norm_half_task, &work);
}

LAYER_NORM_HALF_FN int layer_norm_half_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace for `count` elements of `size` bytes: a multiple of 64. */
LAYER_NORM_HALF_FN size_t layer_norm_half_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

LAYER_NORM_HALF_FN void layer_norm_half_fill(float *to, float value)
{
    for (int j = 0; j < LAYER_NORM_HALF_BLOCK; ++j) to[j] = value;
}

LAYER_NORM_HALF_FN void layer_norm_half_add(float *to, const float *from, int n)
{
    LAYER_NORM_HALF_VECTOR
    for (int j = 0; j < n; ++j) to[j] += from[j];
}

/* The sum of x[n]: 16 interleaved partial sums, added pairwise, plus the rest. */
LAYER_NORM_HALF_FN float layer_norm_half_sum(const float *x, int n)
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

/* Sums by column: sums[(i + j) % columns] += x[j] for j < n. i: the element index of x[0]. */
LAYER_NORM_HALF_FN void layer_norm_half_add_columns(double *sums, const float *x, int64_t i, int n, int64_t columns)
{
    int64_t c = i % columns;
    for (int j = 0, run; j < n; j += run) {
        run = layer_norm_half_least(n - j, columns - c);
        LAYER_NORM_HALF_VECTOR
        for (int k = 0; k < run; ++k) sums[c + k] += (double)x[j + k];
        c = 0;
    }
}

/* The total of sums[slice * width] over all slices, in ascending order. */
LAYER_NORM_HALF_FN float layer_norm_half_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, forward: h, y, mean, rstd */
LAYER_NORM_HALF_LOOPS(layer_norm_half_g0_forward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float terms0[64];
    float terms1[64];
    const float *const x = (const float *)call->data[0];
    const float *const r = (const float *)call->data[1];
    const float *const bias = (const float *)call->data[3];
    const float *const weight = (const float *)call->data[2];
    float *const h = (float *)call->data[4];
    float *const y = (float *)call->data[5];
    float *const mean = (float *)call->data[6];
    float *const rstd = (float *)call->data[7];
    const int n = 64;
    (void)stat;
    (void)sums;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row * 64;
        LAYER_NORM_HALF_VECTOR
        for (int j = 0; j < n; ++j)
            layer_norm_half_g0_forward_0_stage1(x[i + j], r[i + j], &terms0[j]);
        const float sum0 = layer_norm_half_sum(terms0, n);
        float row0;
        layer_norm_half_g0_forward_0_row1(sum0, &row0);
        LAYER_NORM_HALF_VECTOR
        for (int j = 0; j < n; ++j)
            layer_norm_half_g0_forward_0_stage2(x[i + j], r[i + j], row0, &terms1[j]);
        const float sum1 = layer_norm_half_sum(terms1, n);
        float row1;
        float mean_value;
        float rstd_value;
        layer_norm_half_g0_forward_0_row2(sum1, row0, &row1, &mean_value, &rstd_value);
        mean[row] = mean_value;
        rstd[row] = rstd_value;
        LAYER_NORM_HALF_VECTOR
        for (int j = 0; j < n; ++j)
            layer_norm_half_g0_forward_0(x[i + j], r[i + j], bias[j], weight[j], row0, row1, &h[i + j],
                                         &y[i + j]);
    }
}

static int layer_norm_half_g0_forward(const gpunn_kernel_call *call)
{
    {
        const int slices = layer_norm_half_slices(call->batch * 256, 16384);
        layer_norm_half_run(layer_norm_half_g0_forward_0_loop, call, NULL, call->batch * 4, 1, slices, NULL, 0);
    }
    return 0;
}

static size_t layer_norm_half_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    return 0;
}

/* g0, backward: dx, dr, sum0, sum1 */
LAYER_NORM_HALF_LOOPS(layer_norm_half_g0_backward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float terms0[64];
    float terms1[64];
    float dh_absent[LAYER_NORM_HALF_BLOCK];
    float dx_block[64];
    float dr_block[64];
    float sum0_block[64];
    float sum1_block[64];
    const float *const weight = (const float *)call->data[1];
    const float *const dy = (const float *)call->data[4];
    const float *const h = (const float *)call->data[0];
    const float *const mean = (const float *)call->data[2];
    const float *const rstd = (const float *)call->data[3];
    const float *const dh = (const float *)call->data[5];
    float *const dx = (float *)call->data[6];
    float *const dr = (float *)call->data[7];
    layer_norm_half_fill(dh_absent, 0);
    const int n = 64;
    (void)stat;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row * 64;
        const float mean_0 = mean[row];
        LAYER_NORM_HALF_VECTOR
        for (int j = 0; j < n; ++j)
            layer_norm_half_g0_backward_0_stage1(weight[j], dy[i + j], h[i + j], mean_0, &terms0[j],
                                                 &terms1[j]);
        const float sum0 = layer_norm_half_sum(terms0, n);
        const float sum1 = layer_norm_half_sum(terms1, n);
        const float rstd_0 = rstd[row];
        float row0;
        float row1;
        layer_norm_half_g0_backward_0_row1(sum0, rstd_0, sum1, &row0, &row1);
        const float *const dh_at = dh != NULL ? dh + i : dh_absent;
        float *const dx_at = dx == NULL || call->accumulate[6] ? dx_block : dx + i;
        float *const dr_at = dr == NULL || call->accumulate[7] ? dr_block : dr + i;
        LAYER_NORM_HALF_VECTOR
        for (int j = 0; j < n; ++j)
            layer_norm_half_g0_backward_0(dh_at[j], rstd_0, weight[j], dy[i + j], row0, h[i + j], mean_0,
                                          row1, &dx_at[j], &dr_at[j], &sum0_block[j], &sum1_block[j]);
        if (dx_at == dx_block && dx != NULL) layer_norm_half_add(dx + i, dx_block, n);
        if (dr_at == dr_block && dr != NULL) layer_norm_half_add(dr + i, dr_block, n);
        layer_norm_half_add_columns(sums, sum0_block, i, n, 64);
        layer_norm_half_add_columns(sums + 64, sum1_block, i, n, 64);
    }
}

static int layer_norm_half_g0_backward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = layer_norm_half_slices(call->batch * 256, 16384);
        layer_norm_half_run(layer_norm_half_g0_backward_0_loop, call, NULL, call->batch * 4, 1, slices, sums, 128);
        {
            float *const dweight = (float *)call->data[8];
            float *const dbias = (float *)call->data[9];
            for (int64_t c = 0; c < 64; ++c) {
                float dweight_value;
                float dbias_value;
                layer_norm_half_g0_backward_0_final(layer_norm_half_total(sums + c, slices, 128),
                                                    layer_norm_half_total(sums + 64 + c, slices, 128),
                                                    &dweight_value, &dbias_value);
                if (dweight != NULL) dweight[c] = call->accumulate[8] ? dweight[c] + dweight_value : dweight_value;
                if (dbias != NULL) dbias[c] = call->accumulate[9] ? dbias[c] + dbias_value : dbias_value;
            }
        }
    }
    return 0;
}

static size_t layer_norm_half_g0_backward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = layer_norm_half_room(layer_norm_half_slices(batch * 256, 16384) * (int64_t)128, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}
#ifdef LAYER_NORM_HALF_OPTIMIZED
#pragma GCC pop_options
#undef LAYER_NORM_HALF_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char layer_norm_half_g0_operands0[] = {
    0,
};
static const gpunn_kernel_node layer_norm_half_g0_nodes[] = {
    {"relu f32 [N,8]", layer_norm_half_g0_operands0, 1},
};
static const char *const layer_norm_half_g0_externals[] = {
    "f32 [N,8]",
};
static const gpunn_kernel_operand layer_norm_half_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_BF16, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_BF16, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 3, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_BF16, 0, -1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_BF16, 0, -2, -1},
    {GPUNN_KERNEL_KEPT, 0, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_KEPT, 0, 1, GPUNN_F32, 0, 1, -1},
};
static const gpunn_kernel_operand layer_norm_half_g0_backward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_BF16, 0, -1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_KEPT, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_KEPT, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_BF16, 0, -2, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_BF16, 0, -1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_BF16, 0, 0, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_BF16, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 3, -1},
};
static const gpunn_kernel layer_norm_half_set[] = {
    {"g0",
     "y = f(x)",
     layer_norm_half_g0_nodes, 1,
     layer_norm_half_g0_externals, 1,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{NULL, 0, NULL, NULL, 0},
      {layer_norm_half_g0_forward_operands, 8, layer_norm_half_g0_forward, layer_norm_half_g0_forward_workspace, 0},
      {layer_norm_half_g0_backward_operands, 10, layer_norm_half_g0_backward, layer_norm_half_g0_backward_workspace, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int layer_norm_half_evaluation0[] = {
    3, 0,
};
static const gpunn_kernel_instance layer_norm_half_evaluation[] = {
    {0, layer_norm_half_evaluation0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda layer_norm_half_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda layer_norm_half_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda layer_norm_half_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda layer_norm_half_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set layer_norm_half_kernels = {
    GPUNN_KERNELS_ABI,
    LAYER_NORM_HALF_KERNELS_STAMP,
    "layer_norm_half",
    "0.2",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "python3 -m generator layer_norm_half.json -o layer_norm_half",
    layer_norm_half_set,
    1,
    9,
    layer_norm_half_evaluation,
    NULL,
    1,
    0,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &layer_norm_half_kernels_cuda,
#else
    NULL,
#endif
};
#undef LAYER_NORM_HALF_KERNELS_IMPLEMENTATION
#endif
