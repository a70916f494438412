/* fashion_mnist_simple_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.1, templates a9785fb6116f
 * spec sha256 75e03a4c55392a6a7e53555d05213d51406235ba9d827c3eda824af09be1cd9a
 * renew it with: python3 -m generator examples/kernels/fashion_mnist_simple.json -o examples/kernels/fashion_mnist_simple
 */
#ifndef FASHION_MNIST_SIMPLE_KERNELS_H
#define FASHION_MNIST_SIMPLE_KERNELS_H
#include "gpunn.h"

#define FASHION_MNIST_SIMPLE_KERNELS_STAMP 0x95fe4a169446f010ull /* of this text: fashion_mnist_simple_kernels.cu was written with it */
#ifdef __cplusplus
extern "C" {
#endif
/* For gpunn_use_kernels(model, &fashion_mnist_simple_kernels). One C file of the program defines this before it includes this file:
 *     #define FASHION_MNIST_SIMPLE_KERNELS_IMPLEMENTATION
 * fashion_mnist_simple_kernels.cu, where it is linked, adds the kernels for GPUs. */
extern const gpunn_kernel_set fashion_mnist_simple_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(FASHION_MNIST_SIMPLE_KERNELS_IMPLEMENTATION) || defined(FASHION_MNIST_SIMPLE_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 4
#error "fashion_mnist_simple_kernels.h is for GPUNN_KERNELS_ABI 4; renew it with the command in its first lines"
#endif
#endif

/* ==== the mathematics ================================================================================================= */
#if defined(FASHION_MNIST_SIMPLE_KERNELS_CUDA)
#define FASHION_MNIST_SIMPLE_FN static __device__ __forceinline__

/* The functions of gpunn.h's tables on a GPU, as gpunn_cuda.cu has them. Those with _fast in their name are for values that are
 * stored in 16 bits: within 2^-10 of the true value, and 0 for what is denormal. */

FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_exp(float x)
{
    return expf(x);
}

FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_log(float x)
{
    return logf(x);
}
#elif defined(FASHION_MNIST_SIMPLE_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>
#if defined(__AVX__) && defined(__GNUC__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

#if defined(__GNUC__)
#define FASHION_MNIST_SIMPLE_FN __attribute__((unused, always_inline)) static inline
#else
#define FASHION_MNIST_SIMPLE_FN static inline
#endif
/* gcc vectorises little below -O3, makes branches of choices that might trap, and with -std=c99 joins no x * y + z. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define FASHION_MNIST_SIMPLE_OPTIMIZED
#pragma GCC push_options
#pragma GCC optimize("O3,no-trapping-math,fp-contract=fast")
#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#endif

/* The functions of gpunn.h's tables on a CPU, without branches or tables, so that loops over them become vector code. Within 3
 * ulp of the true value (sin and cos: 1e-7, up to 1e6), and C's values at infinities, NaN and outside the domain; results below
 * 2^-125 may be 0, and denormal operands count as 0. */

FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

FASHION_MNIST_SIMPLE_FN uint32_t fashion_mnist_simple_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_max(float a, float b)
{
    return fashion_mnist_simple_where(a > b, a, fashion_mnist_simple_where(a != a, a, b));
}

/* x, but at least low and at most high; NaN stays. */
FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_exp2i(int32_t n)
{
    return fashion_mnist_simple_float_of((uint32_t)(n + 127) << 23);
}

/* x = n ln 2 + r with |r| <= ln 2 / 2, and exp(r) - 1, for |x| < 2^15. */
FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_exp_reduce(float x, int32_t *n)
{
    const float magic = 12582912.0f; /* 1.5 2^23: added to it, a number rounds to an integer in the low bits */
    *n = (int32_t)(fashion_mnist_simple_bits_of(x * 1.44269504f + magic) - fashion_mnist_simple_bits_of(magic));
    const float k = (float)*n;
    const float r = x - k * 0.693359375f + k * 2.12194440e-4f; /* ln 2 in two parts, the first with 9 bits: k times it is exact */
    const float p = ((0.00139465544f * r + 0.00836664438f) * r + 0.0416662805f) * r + 0.16666542f;
    return r + r * r * (p * r + 0.5f);
}

FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_exp(float x)
{
    int32_t     n;
    const float e = fashion_mnist_simple_exp_reduce(fashion_mnist_simple_limit(x, -87.3f, 89), &n) + 1;
    return (e + e) * fashion_mnist_simple_exp2i(n - 1);
}

/* n ln 2 + log(1 + f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1. */
FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_log_join(float n, float f)
{
    const float s = f * f;
    float       p = (((-0.0785961151f * f + 0.128816471f) * f - 0.131287545f) * f + 0.141811922f) * f - 0.166245535f;
    p = ((p * f + 0.200022861f) * f - 0.250008106f) * f + 0.333333164f;
    return (f - (0.5f * s - (s * f * p - n * 2.12194440e-4f))) + n * 0.693359375f;
}

/* y where x is inside (limit, inf); at and below the limit -inf and NaN, at inf and NaN x itself. */
FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_log_edges(float x, float limit, float y)
{
    const float outside = fashion_mnist_simple_where(x == limit, -INFINITY, fashion_mnist_simple_where(x < limit, NAN, x));
    return fashion_mnist_simple_where(x > limit, fashion_mnist_simple_where(x <= FLT_MAX, y, x), outside);
}

/* x = 2^n m with sqrt(1/2) <= m < sqrt(2), for normal x > 0. */
FASHION_MNIST_SIMPLE_FN int32_t fashion_mnist_simple_exponent(float x)
{
    return (int32_t)(fashion_mnist_simple_bits_of(x) - 0x3f3504f3u) >> 23;
}

FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_log(float x)
{
    const float   normal = fashion_mnist_simple_where(x < FLT_MIN, x * 8388608.0f, x);
    const int32_t n = fashion_mnist_simple_exponent(normal);
    const float   m = fashion_mnist_simple_float_of(fashion_mnist_simple_bits_of(normal) - ((uint32_t)n << 23));
    return fashion_mnist_simple_log_edges(x, 0, fashion_mnist_simple_log_join((float)n - fashion_mnist_simple_where(x < FLT_MIN, 23, 0), m - 1));
}
#endif

#if defined(FASHION_MNIST_SIMPLE_KERNELS_IMPLEMENTATION) || defined(FASHION_MNIST_SIMPLE_KERNELS_CUDA)
/* g0, forward: t11 = cross_entropy(fc, label); bytes: 82 a sample and 24 */
FASHION_MNIST_SIMPLE_FN void fashion_mnist_simple_g0_forward_0(float label, float *sum0)
{
    const float t0 = fashion_mnist_simple_where(label < 0, 0, fashion_mnist_simple_where(label >= 10, 0, 1));
    *sum0 = fashion_mnist_simple_where(label == (-100), 0, t0);
}

FASHION_MNIST_SIMPLE_FN void fashion_mnist_simple_g0_forward_0_final(float sum0, float grad_t11, float *stat0, float *stat1)
{
    *stat0 = sum0;
    *stat1 = grad_t11 / sum0;
}
FASHION_MNIST_SIMPLE_FN void fashion_mnist_simple_g0_forward_1_row0(float label_2, float *row0, float *row1, float *row2)
{
    *row0 = (float)(label_2 == (-100));
    *row1 = (float)(label_2 < 0);
    *row2 = (float)(label_2 >= 10);
}

FASHION_MNIST_SIMPLE_FN void fashion_mnist_simple_g0_forward_1_stage1(float fc, float *max0)
{
    *max0 = fc;
}

FASHION_MNIST_SIMPLE_FN void fashion_mnist_simple_g0_forward_1_stage2(float fc, float max0, float at_label_2, float *sum1,
                                                                      float *sum2)
{
    const float t0 = fc - max0;
    *sum1 = fashion_mnist_simple_exp(t0);
    *sum2 = fashion_mnist_simple_where(at_label_2 != 0, t0, 0);
}

FASHION_MNIST_SIMPLE_FN void fashion_mnist_simple_g0_forward_1_row2(float stat1, float sum1, float row0, float row1, float row2,
                                                                    float sum2, float *row3, float *sum0)
{
    const float t0 = fashion_mnist_simple_where(row1 != 0, NAN, fashion_mnist_simple_where(row2 != 0, NAN, fashion_mnist_simple_log(sum1) - sum2));
    *row3 = stat1 / sum1;
    *sum0 = fashion_mnist_simple_where(row0 != 0, 0, t0);
}

FASHION_MNIST_SIMPLE_FN void fashion_mnist_simple_g0_forward_1(float row0, float row1, float row2, float at_label_2, float fc,
                                                               float max0, float row3, float stat1, float *grad_fc)
{
    const float t0 = fashion_mnist_simple_exp(fc - max0) * row3;
    const float t1 = fashion_mnist_simple_where(row2 != 0, 0, fashion_mnist_simple_where(at_label_2 != 0, t0 - stat1, t0));
    *grad_fc = fashion_mnist_simple_where(row0 != 0, 0, fashion_mnist_simple_where(row1 != 0, 0, t1));
}

FASHION_MNIST_SIMPLE_FN void fashion_mnist_simple_g0_forward_1_final(float sum0, float stat0, float *t11)
{
    *t11 = sum0 / stat0;
}

/* g1, evaluation: t15 = eq(cast(t12), cast(label)); bytes: 13 a sample */
FASHION_MNIST_SIMPLE_FN void fashion_mnist_simple_g1_evaluation_0(float t12, float label, float *t15)
{
    *t15 = fashion_mnist_simple_where(t12 == label, 1, 0);
}
#endif

#if defined(FASHION_MNIST_SIMPLE_KERNELS_IMPLEMENTATION) && !defined(FASHION_MNIST_SIMPLE_KERNELS_CUDA)
/* ==== loops =========================================================================================================== */
enum { FASHION_MNIST_SIMPLE_BLOCK = 1024, FASHION_MNIST_SIMPLE_ROW = 4096, FASHION_MNIST_SIMPLE_SLICES = 64 };

/* Steps of the loop that follows depend on no others. */
#if defined(__clang__) && defined(__AVX512F__)
#define FASHION_MNIST_SIMPLE_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define FASHION_MNIST_SIMPLE_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define FASHION_MNIST_SIMPLE_VECTOR _Pragma("GCC ivdep")
#else
#define FASHION_MNIST_SIMPLE_VECTOR
#endif
#if defined(__GNUC__)
#define FASHION_MNIST_SIMPLE_SELDOM __attribute__((unused, noinline)) static
#else
#define FASHION_MNIST_SIMPLE_SELDOM static
#endif

/* Functions with the loops over elements. */
#if defined(__clang__) && defined(__AVX512F__)
#define FASHION_MNIST_SIMPLE_LOOPS __attribute__((min_vector_width(512))) static void
#else
#define FASHION_MNIST_SIMPLE_LOOPS static void
#endif

/* The square roots of n floats. C's sqrtf may set errno, which keeps it out of vector code. */
FASHION_MNIST_SIMPLE_FN void fashion_mnist_simple_roots(float *x, int64_t n)
{
    int64_t i = 0;
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__CUDACC__) /* as wide as the loops that write x and read it again */
    for (; i + 16 <= n; i += 16) _mm512_storeu_ps(x + i, _mm512_sqrt_ps(_mm512_loadu_ps(x + i)));
#elif defined(__AVX__) && defined(__GNUC__) && !defined(__CUDACC__)
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(x + i, _mm256_sqrt_ps(_mm256_loadu_ps(x + i)));
#endif
    for (; i < n; ++i) x[i] = sqrtf(x[i]);
}

/* Work is cut into slices by its size alone, so that no result depends on the number of threads. */
FASHION_MNIST_SIMPLE_FN int fashion_mnist_simple_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > FASHION_MNIST_SIMPLE_SLICES ? FASHION_MNIST_SIMPLE_SLICES : slices > 1 ? (int)slices : 1;
}

FASHION_MNIST_SIMPLE_FN int64_t fashion_mnist_simple_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* A launch's loop over elements, or rows, from begin to end. stat: scratch of the program; sums: of the slice. */
typedef void (*fashion_mnist_simple_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums);

FASHION_MNIST_SIMPLE_FN void fashion_mnist_simple_run_slice(fashion_mnist_simple_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums, int width)
{
    const int64_t begin = fashion_mnist_simple_slice(count, grain, slices, slice), end = fashion_mnist_simple_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct fashion_mnist_simple_work {
    fashion_mnist_simple_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} fashion_mnist_simple_work;

FASHION_MNIST_SIMPLE_SELDOM void fashion_mnist_simple_task(void *arg, int index, int threads)
{
    const fashion_mnist_simple_work *w = (const fashion_mnist_simple_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads; ++i)
        fashion_mnist_simple_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums, w->width);
}

/* Runs a loop over count elements or rows, in slices that are a multiple of grain; each slice has `width` sums. */
FASHION_MNIST_SIMPLE_SELDOM void fashion_mnist_simple_run(fashion_mnist_simple_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    fashion_mnist_simple_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, fashion_mnist_simple_task, &work);
}

FASHION_MNIST_SIMPLE_FN int fashion_mnist_simple_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace. */
FASHION_MNIST_SIMPLE_FN size_t fashion_mnist_simple_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

/* The column of a label; -1 where it is no class. */
FASHION_MNIST_SIMPLE_FN int fashion_mnist_simple_column(int64_t label, int columns)
{
    return label >= 0 && label < columns ? (int)label : -1;
}

FASHION_MNIST_SIMPLE_FN void fashion_mnist_simple_add(float *to, const float *from, int n)
{
    FASHION_MNIST_SIMPLE_VECTOR
    for (int j = 0; j < n; ++j) to[j] += from[j];
}

FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_sum(const float *x, int n)
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

FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_highest(const float *x, int n)
{
    enum { LANES = 32 }; /* more than compilers unroll */
    float lane[LANES], rest = -INFINITY;
    int   i = 0;
    for (int j = 0; j < LANES; ++j) lane[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
        FASHION_MNIST_SIMPLE_VECTOR
        for (int j = 0; j < LANES; ++j) lane[j] = fashion_mnist_simple_max(lane[j], x[i + j]);
    }
    for (; i < n; ++i) rest = fashion_mnist_simple_max(rest, x[i]);
    for (int j = 0; j < LANES; ++j) rest = fashion_mnist_simple_max(rest, lane[j]);
    return rest;
}

/* One place's sum over all slices, whose sums stand `width` apart. */
FASHION_MNIST_SIMPLE_FN float fashion_mnist_simple_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, forward: sum0 */
FASHION_MNIST_SIMPLE_LOOPS fashion_mnist_simple_g0_forward_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float sum0_block[1024];
    const uint8_t *const label = (const uint8_t *)call->data[1];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int n = fashion_mnist_simple_least(FASHION_MNIST_SIMPLE_BLOCK, end - i);
        FASHION_MNIST_SIMPLE_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_simple_g0_forward_0((float)label[i + j], &sum0_block[j]);
        sums[0] += (double)fashion_mnist_simple_sum(sum0_block, n);
        i += n;
    }
}

/* g0, forward: grad_fc, sum0 */
FASHION_MNIST_SIMPLE_LOOPS fashion_mnist_simple_g0_forward_1_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float terms0[10];
    float terms1[10];
    float terms2[10];
    float grad_fc_block[10];
    const uint8_t *const label_2 = (const uint8_t *)call->data[2];
    const float *const fc = (const float *)call->data[0];
    const float *const stat1 = stat[1];
    float *const grad_fc = (float *)call->data[4];
    const float stat1_0 = stat1[0];
    const int n = 10;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row * 10;
        const float label_2_0 = (float)label_2[row];
        float row0;
        float row1;
        float row2;
        fashion_mnist_simple_g0_forward_1_row0(label_2_0, &row0, &row1, &row2);
        FASHION_MNIST_SIMPLE_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_simple_g0_forward_1_stage1(fc[i + j], &terms0[j]);
        const float max0 = fashion_mnist_simple_highest(terms0, n);
        const int label_2_column = fashion_mnist_simple_column((int64_t)label_2[row], 10);
        FASHION_MNIST_SIMPLE_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_simple_g0_forward_1_stage2(fc[i + j], max0, (float)(j == label_2_column), &terms1[j], &terms2[j]);
        const float sum1 = fashion_mnist_simple_sum(terms1, n);
        const float sum2 = fashion_mnist_simple_sum(terms2, n);
        float row3;
        float sum0;
        fashion_mnist_simple_g0_forward_1_row2(stat1_0, sum1, row0, row1, row2, sum2, &row3, &sum0);
        sums[0] += (double)sum0;
        float *const grad_fc_at = grad_fc == NULL || call->accumulate[4] ? grad_fc_block : grad_fc + i;
        FASHION_MNIST_SIMPLE_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_simple_g0_forward_1(row0, row1, row2, (float)(j == label_2_column), fc[i + j], max0, row3, stat1_0,
                                              &grad_fc_at[j]);
        if (grad_fc_at == grad_fc_block && grad_fc != NULL) fashion_mnist_simple_add(grad_fc + i, grad_fc_block, n);
    }
}

static int fashion_mnist_simple_g0_forward(const gpunn_kernel_call *call)
{
    const uint8_t *const labels2 = (const uint8_t *)call->data[2];
    for (int64_t i = 0; i < call->batch; ++i) {
        const int64_t label = (int64_t)labels2[i];
        if ((label < 0 || label >= 10) && label != -100) return GPUNN_ERR_ARGUMENT;
    }
    char *space = (char *)call->workspace;
    float *stat[2];
    stat[0] = (float *)(void *)space;
    space += fashion_mnist_simple_room(1, sizeof(float));
    stat[1] = (float *)(void *)space;
    space += fashion_mnist_simple_room(1, sizeof(float));
    double *const sums = (double *)(void *)space;
    {
        const int slices = fashion_mnist_simple_slices(call->batch, 16384);
        fashion_mnist_simple_run(fashion_mnist_simple_g0_forward_0_loop, call, NULL, call->batch, 16, slices, sums, 8);
        {
            const float *const grad_t11 = (const float *)call->data[5];
            float *const stat0 = stat[0];
            float *const stat1 = stat[1];
            const float grad_t11_0 = grad_t11[0];
            float stat0_value;
            float stat1_value;
            fashion_mnist_simple_g0_forward_0_final(fashion_mnist_simple_total(sums, slices, 8), grad_t11_0, &stat0_value,
                                                    &stat1_value);
            stat0[0] = stat0_value;
            stat1[0] = stat1_value;
        }
    }
    {
        const int slices = fashion_mnist_simple_slices(call->batch * 10, 16384);
        fashion_mnist_simple_run(fashion_mnist_simple_g0_forward_1_loop, call, stat, call->batch, 1, slices, sums, 8);
        {
            const float *const stat0 = stat[0];
            float *const t11 = (float *)call->data[3];
            const float stat0_0 = stat0[0];
            float t11_value;
            fashion_mnist_simple_g0_forward_1_final(fashion_mnist_simple_total(sums, slices, 8), stat0_0, &t11_value);
            t11[0] = t11_value;
        }
    }
    return 0;
}

static size_t fashion_mnist_simple_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    bytes += fashion_mnist_simple_room(1, sizeof(float));
    bytes += fashion_mnist_simple_room(1, sizeof(float));
    sums = fashion_mnist_simple_room(fashion_mnist_simple_slices(batch, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    sums = fashion_mnist_simple_room(fashion_mnist_simple_slices(batch * 10, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}

/* g1, evaluation: t15 */
FASHION_MNIST_SIMPLE_LOOPS fashion_mnist_simple_g1_evaluation_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    const int64_t *const t12 = (const int64_t *)call->data[0];
    const uint8_t *const label = (const uint8_t *)call->data[1];
    float *const t15 = (float *)call->data[2];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = fashion_mnist_simple_least(FASHION_MNIST_SIMPLE_BLOCK, end - i);
        FASHION_MNIST_SIMPLE_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_simple_g1_evaluation_0((float)t12[i + j], (float)label[i + j], &t15[i + j]);
        i += n;
    }
}

static int fashion_mnist_simple_g1_evaluation(const gpunn_kernel_call *call)
{
    {
        const int slices = fashion_mnist_simple_slices(call->batch, 16384);
        fashion_mnist_simple_run(fashion_mnist_simple_g1_evaluation_0_loop, call, NULL, call->batch, 16, slices, NULL, 0);
    }
    return 0;
}

static size_t fashion_mnist_simple_g1_evaluation_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    return 0;
}

/* adam */
FASHION_MNIST_SIMPLE_LOOPS fashion_mnist_simple_update0_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float decay = u->weight_decay;
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    float *const m = u->state[0];
    float *const v = u->state[1];
    enum { PIECE = 64 }; /* elements whose roots are taken together */
    for (int64_t at = begin; at < end; at += PIECE) {
        const int64_t n = end - at < PIECE ? end - at : (int64_t)PIECE;
        float         root[PIECE], kept[PIECE];
        FASHION_MNIST_SIMPLE_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         g = gradient[i] * numbers.scale;
            g = fashion_mnist_simple_where(g > limit, limit, fashion_mnist_simple_where(g < -limit, -limit, g));
            g += decay * parameter[i];
            kept[j] = 0.9f * m[i] + 0.1f * g;
            root[j] = 0.999f * v[i] + 0.001f * g * g;
            m[i] = kept[j];
            v[i] = root[j];
        }
        fashion_mnist_simple_roots(root, n);
        FASHION_MNIST_SIMPLE_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         p = parameter[i];
            p = p - numbers.rate * (kept[j] / (root[j] * numbers.root_scale + 1e-08f));
            parameter[i] = p;
        }
    }
}

typedef struct fashion_mnist_simple_update0_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} fashion_mnist_simple_update0_work;

static void fashion_mnist_simple_update0_task(void *arg, int index, int threads)
{
    const fashion_mnist_simple_update0_work *w = (const fashion_mnist_simple_update0_work *)arg;
    fashion_mnist_simple_update0_loop(w->u, *w->numbers, fashion_mnist_simple_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     fashion_mnist_simple_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int fashion_mnist_simple_update0(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    fashion_mnist_simple_update0_work work = {u, numbers, fashion_mnist_simple_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, fashion_mnist_simple_update0_task, &work);
    return 0;
}
#ifdef FASHION_MNIST_SIMPLE_OPTIMIZED
#pragma GCC pop_options
#undef FASHION_MNIST_SIMPLE_OPTIMIZED
#endif

/* ==== tables ========================================================================================================== */
static const signed char fashion_mnist_simple_g0_operands0[] = {
    0, 1, 127,
};
static const gpunn_kernel_node fashion_mnist_simple_g0_nodes[] = {
    {"cross_entropy reduction=mean ignore_index=-100 label_smoothing=0 f32 []", fashion_mnist_simple_g0_operands0, 3},
};
static const char *const fashion_mnist_simple_g0_externals[] = {
    "f32 [N,10]",
    "u8 [N]",
};
static const gpunn_kernel_operand fashion_mnist_simple_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_U8, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_U8, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -1, -1},
};
static const signed char fashion_mnist_simple_g1_operands0[] = {
    0,
};
static const signed char fashion_mnist_simple_g1_operands1[] = {
    1,
};
static const signed char fashion_mnist_simple_g1_operands2[] = {
    -1, -2,
};
static const gpunn_kernel_node fashion_mnist_simple_g1_nodes[] = {
    {"cast f32 [N]", fashion_mnist_simple_g1_operands0, 1},
    {"cast f32 [N]", fashion_mnist_simple_g1_operands1, 1},
    {"eq f32 [N]", fashion_mnist_simple_g1_operands2, 2},
};
static const char *const fashion_mnist_simple_g1_externals[] = {
    "i64 [N]",
    "u8 [N]",
};
static const gpunn_kernel_operand fashion_mnist_simple_g1_evaluation_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_I64, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_U8, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -3, -1},
};
static const gpunn_kernel fashion_mnist_simple_set[] = {
    {"g0",
     "t11 = cross_entropy(fc, label)",
     fashion_mnist_simple_g0_nodes, 1,
     fashion_mnist_simple_g0_externals, 2,
     NULL, 0,
     GPUNN_KERNEL_ANY, true,
     {{NULL, 0, NULL, NULL},
      {fashion_mnist_simple_g0_forward_operands, 6, fashion_mnist_simple_g0_forward, fashion_mnist_simple_g0_forward_workspace},
      {NULL, 0, NULL, NULL}}},
    {"g1",
     "t15 = eq(cast(t12), cast(label))",
     fashion_mnist_simple_g1_nodes, 3,
     fashion_mnist_simple_g1_externals, 2,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{fashion_mnist_simple_g1_evaluation_operands, 3, fashion_mnist_simple_g1_evaluation, fashion_mnist_simple_g1_evaluation_workspace},
      {NULL, 0, NULL, NULL},
      {NULL, 0, NULL, NULL}}},
};
static const int fashion_mnist_simple_evaluation0[] = {
    13, 14, 15, 12, 1,
};
static const gpunn_kernel_instance fashion_mnist_simple_evaluation[] = {
    {1, fashion_mnist_simple_evaluation0},
};
static const int fashion_mnist_simple_training0[] = {
    11, 10, 1,
};
static const gpunn_kernel_instance fashion_mnist_simple_training[] = {
    {0, fashion_mnist_simple_training0},
};
static const gpunn_kernel_update fashion_mnist_simple_updates[] = {
    {{GPUNN_UPDATE_ADAM, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, false, false, false, false, false, 0, 0, NULL, NULL},
     fashion_mnist_simple_update0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda fashion_mnist_simple_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda fashion_mnist_simple_kernels_cuda;
#elif defined(__GNUC__) && !defined(_WIN32) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda fashion_mnist_simple_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && !defined(_WIN32)
extern const gpunn_kernel_cuda fashion_mnist_simple_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set fashion_mnist_simple_kernels = {
    GPUNN_KERNELS_ABI,
    FASHION_MNIST_SIMPLE_KERNELS_STAMP,
    "fashion_mnist_simple",
    "0.1",
    "75e03a4c55392a6a7e53555d05213d51406235ba9d827c3eda824af09be1cd9a",
    "python3 -m generator examples/kernels/fashion_mnist_simple.json -o examples/kernels/fashion_mnist_simple",
    fashion_mnist_simple_set,
    2,
    17,
    fashion_mnist_simple_evaluation,
    fashion_mnist_simple_training,
    1,
    1,
    fashion_mnist_simple_updates,
    1,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && !defined(_WIN32))
    &fashion_mnist_simple_kernels_cuda,
#else
    NULL,
#endif
};
#undef FASHION_MNIST_SIMPLE_KERNELS_IMPLEMENTATION
#endif
