/* fashion_mnist_deep_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.1, templates a9785fb6116f
 * spec sha256 f8f54a05be877c22a8c4c2494bdec66f3e43956e5d613102e611bfd4fff81448
 * renew it with: python3 -m generator examples/kernels/fashion_mnist_deep.json -o examples/kernels/fashion_mnist_deep
 */
#ifndef FASHION_MNIST_DEEP_KERNELS_H
#define FASHION_MNIST_DEEP_KERNELS_H
#include "gpunn.h"

#define FASHION_MNIST_DEEP_KERNELS_STAMP 0x309fffab6ad44227ull /* of this text: fashion_mnist_deep_kernels.cu was written with it */
#ifdef __cplusplus
extern "C" {
#endif
/* For gpunn_use_kernels(model, &fashion_mnist_deep_kernels). One C file of the program defines this before it includes this file:
 *     #define FASHION_MNIST_DEEP_KERNELS_IMPLEMENTATION
 * fashion_mnist_deep_kernels.cu, where it is linked, adds the kernels for GPUs. */
extern const gpunn_kernel_set fashion_mnist_deep_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(FASHION_MNIST_DEEP_KERNELS_IMPLEMENTATION) || defined(FASHION_MNIST_DEEP_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 4
#error "fashion_mnist_deep_kernels.h is for GPUNN_KERNELS_ABI 4; renew it with the command in its first lines"
#endif
#endif

/* ==== the mathematics ================================================================================================= */
#if defined(FASHION_MNIST_DEEP_KERNELS_CUDA)
#define FASHION_MNIST_DEEP_FN static __device__ __forceinline__

/* The functions of gpunn.h's tables on a GPU, as gpunn_cuda.cu has them. Those with _fast in their name are for values that are
 * stored in 16 bits: within 2^-10 of the true value, and 0 for what is denormal. */

FASHION_MNIST_DEEP_FN float fashion_mnist_deep_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

FASHION_MNIST_DEEP_FN float fashion_mnist_deep_max(float a, float b)
{
    return a > b || a != a ? a : b;
}

FASHION_MNIST_DEEP_FN float fashion_mnist_deep_exp(float x)
{
    return expf(x);
}

FASHION_MNIST_DEEP_FN float fashion_mnist_deep_log(float x)
{
    return logf(x);
}

FASHION_MNIST_DEEP_FN float fashion_mnist_deep_rsqrt(float x)
{
    return 1 / sqrtf(x);
}
#elif defined(FASHION_MNIST_DEEP_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>
#if defined(__AVX__) && defined(__GNUC__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

#if defined(__GNUC__)
#define FASHION_MNIST_DEEP_FN __attribute__((unused, always_inline)) static inline
#else
#define FASHION_MNIST_DEEP_FN static inline
#endif
/* gcc vectorises little below -O3, makes branches of choices that might trap, and with -std=c99 joins no x * y + z. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define FASHION_MNIST_DEEP_OPTIMIZED
#pragma GCC push_options
#pragma GCC optimize("O3,no-trapping-math,fp-contract=fast")
#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#endif

/* The functions of gpunn.h's tables on a CPU, without branches or tables, so that loops over them become vector code. Within 3
 * ulp of the true value (sin and cos: 1e-7, up to 1e6), and C's values at infinities, NaN and outside the domain; results below
 * 2^-125 may be 0, and denormal operands count as 0. */

FASHION_MNIST_DEEP_FN float fashion_mnist_deep_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

FASHION_MNIST_DEEP_FN uint32_t fashion_mnist_deep_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

FASHION_MNIST_DEEP_FN float fashion_mnist_deep_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

FASHION_MNIST_DEEP_FN float fashion_mnist_deep_max(float a, float b)
{
    return fashion_mnist_deep_where(a > b, a, fashion_mnist_deep_where(a != a, a, b));
}

/* x, but at least low and at most high; NaN stays. */
FASHION_MNIST_DEEP_FN float fashion_mnist_deep_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
FASHION_MNIST_DEEP_FN float fashion_mnist_deep_exp2i(int32_t n)
{
    return fashion_mnist_deep_float_of((uint32_t)(n + 127) << 23);
}

/* x = n ln 2 + r with |r| <= ln 2 / 2, and exp(r) - 1, for |x| < 2^15. */
FASHION_MNIST_DEEP_FN float fashion_mnist_deep_exp_reduce(float x, int32_t *n)
{
    const float magic = 12582912.0f; /* 1.5 2^23: added to it, a number rounds to an integer in the low bits */
    *n = (int32_t)(fashion_mnist_deep_bits_of(x * 1.44269504f + magic) - fashion_mnist_deep_bits_of(magic));
    const float k = (float)*n;
    const float r = x - k * 0.693359375f + k * 2.12194440e-4f; /* ln 2 in two parts, the first with 9 bits: k times it is exact */
    const float p = ((0.00139465544f * r + 0.00836664438f) * r + 0.0416662805f) * r + 0.16666542f;
    return r + r * r * (p * r + 0.5f);
}

FASHION_MNIST_DEEP_FN float fashion_mnist_deep_exp(float x)
{
    int32_t     n;
    const float e = fashion_mnist_deep_exp_reduce(fashion_mnist_deep_limit(x, -87.3f, 89), &n) + 1;
    return (e + e) * fashion_mnist_deep_exp2i(n - 1);
}

/* n ln 2 + log(1 + f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1. */
FASHION_MNIST_DEEP_FN float fashion_mnist_deep_log_join(float n, float f)
{
    const float s = f * f;
    float       p = (((-0.0785961151f * f + 0.128816471f) * f - 0.131287545f) * f + 0.141811922f) * f - 0.166245535f;
    p = ((p * f + 0.200022861f) * f - 0.250008106f) * f + 0.333333164f;
    return (f - (0.5f * s - (s * f * p - n * 2.12194440e-4f))) + n * 0.693359375f;
}

/* y where x is inside (limit, inf); at and below the limit -inf and NaN, at inf and NaN x itself. */
FASHION_MNIST_DEEP_FN float fashion_mnist_deep_log_edges(float x, float limit, float y)
{
    const float outside = fashion_mnist_deep_where(x == limit, -INFINITY, fashion_mnist_deep_where(x < limit, NAN, x));
    return fashion_mnist_deep_where(x > limit, fashion_mnist_deep_where(x <= FLT_MAX, y, x), outside);
}

/* x = 2^n m with sqrt(1/2) <= m < sqrt(2), for normal x > 0. */
FASHION_MNIST_DEEP_FN int32_t fashion_mnist_deep_exponent(float x)
{
    return (int32_t)(fashion_mnist_deep_bits_of(x) - 0x3f3504f3u) >> 23;
}

FASHION_MNIST_DEEP_FN float fashion_mnist_deep_log(float x)
{
    const float   normal = fashion_mnist_deep_where(x < FLT_MIN, x * 8388608.0f, x);
    const int32_t n = fashion_mnist_deep_exponent(normal);
    const float   m = fashion_mnist_deep_float_of(fashion_mnist_deep_bits_of(normal) - ((uint32_t)n << 23));
    return fashion_mnist_deep_log_edges(x, 0, fashion_mnist_deep_log_join((float)n - fashion_mnist_deep_where(x < FLT_MIN, 23, 0), m - 1));
}

/* 1 / sqrt(x) for normal x > 0, by Newton's method. C's sqrtf may set errno, which keeps it out of vector code. */
FASHION_MNIST_DEEP_FN float fashion_mnist_deep_root(float x)
{
    float r = fashion_mnist_deep_float_of(0x5f375a86u - (fashion_mnist_deep_bits_of(x) >> 1));
    r *= 1.5f - 0.5f * x * r * r;
    r *= 1.5f - 0.5f * x * r * r;
    return r * (1.5f - 0.5f * x * r * r);
}

FASHION_MNIST_DEEP_FN float fashion_mnist_deep_rsqrt(float x)
{
    const float r = fashion_mnist_deep_root(x), y = r + 0.5f * r * (1 - x * r * r);
    const float outside = fashion_mnist_deep_where(x < 0, NAN, fashion_mnist_deep_where(x < FLT_MIN, INFINITY, x));
    return fashion_mnist_deep_where(x >= FLT_MIN, fashion_mnist_deep_where(x <= FLT_MAX, y, 0), outside);
}
#endif

#if defined(FASHION_MNIST_DEEP_KERNELS_IMPLEMENTATION) || defined(FASHION_MNIST_DEEP_KERNELS_CUDA)
/* g0, forward: t10 = relu(batch_norm(conv1, bn1_weight, bn1_bias, bn1_running_mean, bn1_running_var)); bytes: 301056 a sample and 1408 */
FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g0_forward_0(float conv1, float conv1_2, float *sum0, float *sum1)
{
    const float t0 = conv1 - conv1_2;
    *sum0 = t0;
    *sum1 = t0 * t0;
}

FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g0_forward_0_final(float sum0, float count, float conv1_2, float sum1,
                                                                 float bn1_running_mean, float bn1_running_var, float *kept0,
                                                                 float *kept1, float *bn1_running_mean_out,
                                                                 float *bn1_running_var_out)
{
    const float t0 = sum0 / count;
    const float t1 = t0 + conv1_2;
    const float t2 = fashion_mnist_deep_max(sum1 / count - t0 * t0, 0);
    *kept0 = t1;
    *kept1 = fashion_mnist_deep_rsqrt(t2 + 1e-05f);
    *bn1_running_mean_out = 0.1f * t1 + 0.9f * bn1_running_mean;
    *bn1_running_var_out = 0.1f * (t2 * (count / (count - 1))) + 0.9f * bn1_running_var;
}
FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g0_forward_1(float bn1_bias, float bn1_weight, float kept1, float conv1,
                                                           float kept0, float *t10)
{
    const float t0 = bn1_bias + bn1_weight * kept1 * (conv1 - kept0);
    *t10 = fashion_mnist_deep_where(t0 <= 0, 0, t0);
}

/* g0, backward: t10 = relu(batch_norm(conv1, bn1_weight, bn1_bias, bn1_running_mean, bn1_running_var)); bytes: 501760 a sample and 1792 */
FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g0_backward_0(float bn1_bias, float conv1, float kept0, float bn1_weight,
                                                            float kept1, float grad_t10, float *sum0, float *sum1)
{
    const float t0 = conv1 - kept0;
    const float t1 = bn1_bias + t0 * (bn1_weight * kept1);
    const bool t2 = fashion_mnist_deep_where(t1 <= 0, 0, t1) <= 0;
    *sum0 = fashion_mnist_deep_where(t2, 0, grad_t10);
    *sum1 = fashion_mnist_deep_where(t2, 0, grad_t10 * t0);
}

FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g0_backward_0_final(float sum0, float count, float sum1, float kept1, float *stat0,
                                                                  float *stat1, float *grad_bn1_weight, float *grad_bn1_bias)
{
    *stat0 = sum0 / count;
    *stat1 = sum1 / count * (kept1 * kept1);
    *grad_bn1_weight = sum1 * kept1;
    *grad_bn1_bias = sum0;
}
FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g0_backward_1(float bn1_weight, float kept1, float bn1_bias, float conv1,
                                                            float kept0, float grad_t10, float stat0, float stat1,
                                                            float *grad_conv1)
{
    const float t0 = bn1_weight * kept1;
    const float t1 = conv1 - kept0;
    const float t2 = bn1_bias + t1 * t0;
    const float t3 = fashion_mnist_deep_where(fashion_mnist_deep_where(t2 <= 0, 0, t2) <= 0, 0, grad_t10) - stat0;
    *grad_conv1 = t0 * (t3 - t1 * stat1);
}

/* g1, forward: t20 = relu(batch_norm(conv2, bn2_weight, bn2_bias, bn2_running_mean, bn2_running_var)); bytes: 150528 a sample and 2816 */
FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g1_forward_0(float conv2, float conv2_2, float *sum0, float *sum1)
{
    const float t0 = conv2 - conv2_2;
    *sum0 = t0;
    *sum1 = t0 * t0;
}

FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g1_forward_0_final(float sum0, float count, float conv2_2, float sum1,
                                                                 float bn2_running_mean, float bn2_running_var, float *kept0,
                                                                 float *kept1, float *bn2_running_mean_out,
                                                                 float *bn2_running_var_out)
{
    const float t0 = sum0 / count;
    const float t1 = t0 + conv2_2;
    const float t2 = fashion_mnist_deep_max(sum1 / count - t0 * t0, 0);
    *kept0 = t1;
    *kept1 = fashion_mnist_deep_rsqrt(t2 + 1e-05f);
    *bn2_running_mean_out = 0.1f * t1 + 0.9f * bn2_running_mean;
    *bn2_running_var_out = 0.1f * (t2 * (count / (count - 1))) + 0.9f * bn2_running_var;
}
FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g1_forward_1(float bn2_bias, float bn2_weight, float kept1, float conv2,
                                                           float kept0, float *t20)
{
    const float t0 = bn2_bias + bn2_weight * kept1 * (conv2 - kept0);
    *t20 = fashion_mnist_deep_where(t0 <= 0, 0, t0);
}

/* g1, backward: t20 = relu(batch_norm(conv2, bn2_weight, bn2_bias, bn2_running_mean, bn2_running_var)); bytes: 250880 a sample and 3584 */
FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g1_backward_0(float bn2_bias, float conv2, float kept0, float bn2_weight,
                                                            float kept1, float grad_t20, float *sum0, float *sum1)
{
    const float t0 = conv2 - kept0;
    const float t1 = bn2_bias + t0 * (bn2_weight * kept1);
    const bool t2 = fashion_mnist_deep_where(t1 <= 0, 0, t1) <= 0;
    *sum0 = fashion_mnist_deep_where(t2, 0, grad_t20);
    *sum1 = fashion_mnist_deep_where(t2, 0, grad_t20 * t0);
}

FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g1_backward_0_final(float sum0, float count, float sum1, float kept1, float *stat0,
                                                                  float *stat1, float *grad_bn2_weight, float *grad_bn2_bias)
{
    *stat0 = sum0 / count;
    *stat1 = sum1 / count * (kept1 * kept1);
    *grad_bn2_weight = sum1 * kept1;
    *grad_bn2_bias = sum0;
}
FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g1_backward_1(float bn2_weight, float kept1, float bn2_bias, float conv2,
                                                            float kept0, float grad_t20, float stat0, float stat1,
                                                            float *grad_conv2)
{
    const float t0 = bn2_weight * kept1;
    const float t1 = conv2 - kept0;
    const float t2 = bn2_bias + t1 * t0;
    const float t3 = fashion_mnist_deep_where(fashion_mnist_deep_where(t2 <= 0, 0, t2) <= 0, 0, grad_t20) - stat0;
    *grad_conv2 = t0 * (t3 - t1 * stat1);
}

/* g2, forward: t32 = cross_entropy(fc, label); bytes: 82 a sample and 24 */
FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g2_forward_0(float label, float *sum0)
{
    *sum0 = fashion_mnist_deep_where(label == (-100), 0, fashion_mnist_deep_where(label < 0, 0, fashion_mnist_deep_where(label >= 10, 0, 1)));
}

FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g2_forward_0_final(float sum0, float grad_t32, float *stat0, float *stat1)
{
    *stat0 = sum0;
    *stat1 = grad_t32 / sum0;
}
FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g2_forward_1_row0(float label_2, float *row0, float *row1, float *row2)
{
    *row0 = (float)(label_2 == (-100));
    *row1 = (float)(label_2 < 0);
    *row2 = (float)(label_2 >= 10);
}

FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g2_forward_1_stage1(float fc, float *max0)
{
    *max0 = fc;
}

FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g2_forward_1_stage2(float fc, float max0, float at_label_2, float *sum1,
                                                                  float *sum2)
{
    const float t0 = fc - max0;
    *sum1 = fashion_mnist_deep_exp(t0);
    *sum2 = fashion_mnist_deep_where(at_label_2 != 0, t0, 0);
}

FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g2_forward_1_row2(float stat1, float sum1, float row0, float row1, float row2,
                                                                float sum2, float *row3, float *sum0)
{
    const float t0 = fashion_mnist_deep_where(row1 != 0, NAN, fashion_mnist_deep_where(row2 != 0, NAN, fashion_mnist_deep_log(sum1) - sum2));
    *row3 = stat1 / sum1;
    *sum0 = fashion_mnist_deep_where(row0 != 0, 0, t0);
}

FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g2_forward_1(float row0, float row1, float row2, float at_label_2, float fc,
                                                           float max0, float row3, float stat1, float *grad_fc)
{
    const float t0 = fashion_mnist_deep_exp(fc - max0) * row3;
    const float t1 = fashion_mnist_deep_where(row2 != 0, 0, fashion_mnist_deep_where(at_label_2 != 0, t0 - stat1, t0));
    *grad_fc = fashion_mnist_deep_where(row0 != 0, 0, fashion_mnist_deep_where(row1 != 0, 0, t1));
}

FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g2_forward_1_final(float sum0, float stat0, float *t32)
{
    *t32 = sum0 / stat0;
}

/* g3, evaluation: t36 = eq(cast(t33), cast(label)); bytes: 13 a sample */
FASHION_MNIST_DEEP_FN void fashion_mnist_deep_g3_evaluation_0(float t33, float label, float *t36)
{
    *t36 = fashion_mnist_deep_where(t33 == label, 1, 0);
}
#endif

#if defined(FASHION_MNIST_DEEP_KERNELS_IMPLEMENTATION) && !defined(FASHION_MNIST_DEEP_KERNELS_CUDA)
/* ==== loops =========================================================================================================== */
enum { FASHION_MNIST_DEEP_BLOCK = 1024, FASHION_MNIST_DEEP_ROW = 4096, FASHION_MNIST_DEEP_SLICES = 64 };

/* Steps of the loop that follows depend on no others. */
#if defined(__clang__) && defined(__AVX512F__)
#define FASHION_MNIST_DEEP_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define FASHION_MNIST_DEEP_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define FASHION_MNIST_DEEP_VECTOR _Pragma("GCC ivdep")
#else
#define FASHION_MNIST_DEEP_VECTOR
#endif
#if defined(__GNUC__)
#define FASHION_MNIST_DEEP_SELDOM __attribute__((unused, noinline)) static
#else
#define FASHION_MNIST_DEEP_SELDOM static
#endif

/* Functions with the loops over elements. */
#if defined(__clang__) && defined(__AVX512F__)
#define FASHION_MNIST_DEEP_LOOPS __attribute__((min_vector_width(512))) static void
#else
#define FASHION_MNIST_DEEP_LOOPS static void
#endif

/* The square roots of n floats. C's sqrtf may set errno, which keeps it out of vector code. */
FASHION_MNIST_DEEP_FN void fashion_mnist_deep_roots(float *x, int64_t n)
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
FASHION_MNIST_DEEP_FN int fashion_mnist_deep_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > FASHION_MNIST_DEEP_SLICES ? FASHION_MNIST_DEEP_SLICES : slices > 1 ? (int)slices : 1;
}

FASHION_MNIST_DEEP_FN int64_t fashion_mnist_deep_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* A launch's loop over elements, or rows, from begin to end. stat: scratch of the program; sums: of the slice. */
typedef void (*fashion_mnist_deep_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums);

FASHION_MNIST_DEEP_FN void fashion_mnist_deep_run_slice(fashion_mnist_deep_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums, int width)
{
    const int64_t begin = fashion_mnist_deep_slice(count, grain, slices, slice), end = fashion_mnist_deep_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct fashion_mnist_deep_work {
    fashion_mnist_deep_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} fashion_mnist_deep_work;

FASHION_MNIST_DEEP_SELDOM void fashion_mnist_deep_task(void *arg, int index, int threads)
{
    const fashion_mnist_deep_work *w = (const fashion_mnist_deep_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads; ++i)
        fashion_mnist_deep_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums, w->width);
}

/* Runs a loop over count elements or rows, in slices that are a multiple of grain; each slice has `width` sums. */
FASHION_MNIST_DEEP_SELDOM void fashion_mnist_deep_run(fashion_mnist_deep_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    fashion_mnist_deep_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, fashion_mnist_deep_task, &work);
}

FASHION_MNIST_DEEP_FN int fashion_mnist_deep_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace. */
FASHION_MNIST_DEEP_FN size_t fashion_mnist_deep_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

/* The column of a label; -1 where it is no class. */
FASHION_MNIST_DEEP_FN int fashion_mnist_deep_column(int64_t label, int columns)
{
    return label >= 0 && label < columns ? (int)label : -1;
}

FASHION_MNIST_DEEP_FN void fashion_mnist_deep_add(float *to, const float *from, int n)
{
    FASHION_MNIST_DEEP_VECTOR
    for (int j = 0; j < n; ++j) to[j] += from[j];
}

FASHION_MNIST_DEEP_FN float fashion_mnist_deep_sum(const float *x, int n)
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

FASHION_MNIST_DEEP_FN float fashion_mnist_deep_highest(const float *x, int n)
{
    enum { LANES = 32 }; /* more than compilers unroll */
    float lane[LANES], rest = -INFINITY;
    int   i = 0;
    for (int j = 0; j < LANES; ++j) lane[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < LANES; ++j) lane[j] = fashion_mnist_deep_max(lane[j], x[i + j]);
    }
    for (; i < n; ++i) rest = fashion_mnist_deep_max(rest, x[i]);
    for (int j = 0; j < LANES; ++j) rest = fashion_mnist_deep_max(rest, lane[j]);
    return rest;
}

/* sums[c] += those of x[0 .. n), which belong to elements i, i + 1, ..., that stand in channel c: div after each other, then the
 * next of mod channels. */
FASHION_MNIST_DEEP_FN void fashion_mnist_deep_add_channels(double *sums, const float *x, int64_t i, int n, int64_t div, int64_t mod)
{
    int64_t c = i / div % mod, left = div - i % div;
    for (int j = 0, run; j < n; j += run) {
        run = fashion_mnist_deep_least(n - j, left);
        sums[c] += (double)fashion_mnist_deep_sum(x + j, run);
        c = c + 1 == mod ? 0 : c + 1;
        left = div;
    }
}

/* One place's sum over all slices, whose sums stand `width` apart. */
FASHION_MNIST_DEEP_FN float fashion_mnist_deep_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, forward: sum0, sum1 */
FASHION_MNIST_DEEP_LOOPS fashion_mnist_deep_g0_forward_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float sum0_block[1024];
    float sum1_block[1024];
    const float *const conv1 = (const float *)call->data[0];
    const float *const conv1_2 = (const float *)call->data[1];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int left = fashion_mnist_deep_least(FASHION_MNIST_DEEP_BLOCK, end - i), n = fashion_mnist_deep_least(left, 784 - i % 784);
        const float conv1_2_0 = conv1_2[i / 784 % 32 * 784];
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_deep_g0_forward_0(conv1[i + j], conv1_2_0, &sum0_block[j], &sum1_block[j]);
        fashion_mnist_deep_add_channels(sums, sum0_block, i, n, 784, 32);
        fashion_mnist_deep_add_channels(sums + 32, sum1_block, i, n, 784, 32);
        i += n;
    }
}

/* g0, forward: t10 */
FASHION_MNIST_DEEP_LOOPS fashion_mnist_deep_g0_forward_1_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    const float *const bn1_bias = (const float *)call->data[3];
    const float *const bn1_weight = (const float *)call->data[2];
    const float *const kept1 = (const float *)call->data[8];
    const float *const conv1 = (const float *)call->data[0];
    const float *const kept0 = (const float *)call->data[7];
    float *const t10 = (float *)call->data[6];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int left = fashion_mnist_deep_least(FASHION_MNIST_DEEP_BLOCK, end - i), n = fashion_mnist_deep_least(left, 784 - i % 784);
        const float bn1_bias_0 = bn1_bias[i / 784 % 32];
        const float bn1_weight_0 = bn1_weight[i / 784 % 32];
        const float kept1_0 = kept1[i / 784 % 32];
        const float kept0_0 = kept0[i / 784 % 32];
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_deep_g0_forward_1(bn1_bias_0, bn1_weight_0, kept1_0, conv1[i + j], kept0_0, &t10[i + j]);
        i += n;
    }
}

static int fashion_mnist_deep_g0_forward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = fashion_mnist_deep_slices(call->batch * 25088, 16384);
        fashion_mnist_deep_run(fashion_mnist_deep_g0_forward_0_loop, call, NULL, call->batch * 25088, 784, slices, sums, 64);
        {
            const float elements = (float)(call->batch * 784);
            const float *const conv1_2 = (const float *)call->data[1];
            float *const bn1_running_mean = (float *)call->data[4];
            float *const bn1_running_var = (float *)call->data[5];
            float *const kept0 = (float *)call->data[7];
            float *const kept1 = (float *)call->data[8];
            for (int64_t c = 0; c < 32; ++c) {
                const float conv1_2_0 = conv1_2[c * 784];
                const float bn1_running_mean_0 = bn1_running_mean[c];
                const float bn1_running_var_0 = bn1_running_var[c];
                float kept0_value;
                float kept1_value;
                float bn1_running_mean_out_value;
                float bn1_running_var_out_value;
                fashion_mnist_deep_g0_forward_0_final(fashion_mnist_deep_total(sums + c, slices, 64), elements, conv1_2_0,
                                                      fashion_mnist_deep_total(sums + 32 + c, slices, 64), bn1_running_mean_0,
                                                      bn1_running_var_0, &kept0_value, &kept1_value, &bn1_running_mean_out_value,
                                                      &bn1_running_var_out_value);
                kept0[c] = kept0_value;
                kept1[c] = kept1_value;
                bn1_running_mean[c] = bn1_running_mean_out_value;
                bn1_running_var[c] = bn1_running_var_out_value;
            }
        }
    }
    {
        const int slices = fashion_mnist_deep_slices(call->batch * 25088, 16384);
        fashion_mnist_deep_run(fashion_mnist_deep_g0_forward_1_loop, call, NULL, call->batch * 25088, 784, slices, NULL, 0);
    }
    return 0;
}

static size_t fashion_mnist_deep_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = fashion_mnist_deep_room(fashion_mnist_deep_slices(batch * 25088, 16384) * (int64_t)64, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}

/* g0, backward: sum0, sum1 */
FASHION_MNIST_DEEP_LOOPS fashion_mnist_deep_g0_backward_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float sum0_block[1024];
    float sum1_block[1024];
    const float *const bn1_bias = (const float *)call->data[2];
    const float *const conv1 = (const float *)call->data[0];
    const float *const kept0 = (const float *)call->data[7];
    const float *const bn1_weight = (const float *)call->data[1];
    const float *const kept1 = (const float *)call->data[8];
    const float *const grad_t10 = (const float *)call->data[6];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int left = fashion_mnist_deep_least(FASHION_MNIST_DEEP_BLOCK, end - i), n = fashion_mnist_deep_least(left, 784 - i % 784);
        const float bn1_bias_0 = bn1_bias[i / 784 % 32];
        const float kept0_0 = kept0[i / 784 % 32];
        const float bn1_weight_0 = bn1_weight[i / 784 % 32];
        const float kept1_0 = kept1[i / 784 % 32];
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_deep_g0_backward_0(bn1_bias_0, conv1[i + j], kept0_0, bn1_weight_0, kept1_0, grad_t10[i + j],
                                             &sum0_block[j], &sum1_block[j]);
        fashion_mnist_deep_add_channels(sums, sum0_block, i, n, 784, 32);
        fashion_mnist_deep_add_channels(sums + 32, sum1_block, i, n, 784, 32);
        i += n;
    }
}

/* g0, backward: grad_conv1 */
FASHION_MNIST_DEEP_LOOPS fashion_mnist_deep_g0_backward_1_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float grad_conv1_block[1024];
    const float *const bn1_weight = (const float *)call->data[1];
    const float *const kept1 = (const float *)call->data[8];
    const float *const bn1_bias = (const float *)call->data[2];
    const float *const conv1 = (const float *)call->data[0];
    const float *const kept0 = (const float *)call->data[7];
    const float *const grad_t10 = (const float *)call->data[6];
    const float *const stat0 = stat[0];
    const float *const stat1 = stat[1];
    float *const grad_conv1 = (float *)call->data[3];
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int left = fashion_mnist_deep_least(FASHION_MNIST_DEEP_BLOCK, end - i), n = fashion_mnist_deep_least(left, 784 - i % 784);
        const float bn1_weight_0 = bn1_weight[i / 784 % 32];
        const float kept1_0 = kept1[i / 784 % 32];
        const float bn1_bias_0 = bn1_bias[i / 784 % 32];
        const float kept0_0 = kept0[i / 784 % 32];
        const float stat0_0 = stat0[i / 784 % 32];
        const float stat1_0 = stat1[i / 784 % 32];
        float *const grad_conv1_at = grad_conv1 == NULL || call->accumulate[3] ? grad_conv1_block : grad_conv1 + i;
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_deep_g0_backward_1(bn1_weight_0, kept1_0, bn1_bias_0, conv1[i + j], kept0_0, grad_t10[i + j],
                                             stat0_0, stat1_0, &grad_conv1_at[j]);
        if (grad_conv1_at == grad_conv1_block && grad_conv1 != NULL) fashion_mnist_deep_add(grad_conv1 + i, grad_conv1_block, n);
        i += n;
    }
}

static int fashion_mnist_deep_g0_backward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    float *stat[2];
    stat[0] = (float *)(void *)space;
    space += fashion_mnist_deep_room(32, sizeof(float));
    stat[1] = (float *)(void *)space;
    space += fashion_mnist_deep_room(32, sizeof(float));
    double *const sums = (double *)(void *)space;
    {
        const int slices = fashion_mnist_deep_slices(call->batch * 25088, 16384);
        fashion_mnist_deep_run(fashion_mnist_deep_g0_backward_0_loop, call, NULL, call->batch * 25088, 784, slices, sums, 64);
        {
            const float elements = (float)(call->batch * 784);
            const float *const kept1 = (const float *)call->data[8];
            float *const stat0 = stat[0];
            float *const stat1 = stat[1];
            float *const grad_bn1_weight = (float *)call->data[4];
            float *const grad_bn1_bias = (float *)call->data[5];
            for (int64_t c = 0; c < 32; ++c) {
                const float kept1_0 = kept1[c];
                float stat0_value;
                float stat1_value;
                float grad_bn1_weight_value;
                float grad_bn1_bias_value;
                fashion_mnist_deep_g0_backward_0_final(fashion_mnist_deep_total(sums + c, slices, 64), elements,
                                                       fashion_mnist_deep_total(sums + 32 + c, slices, 64), kept1_0, &stat0_value,
                                                       &stat1_value, &grad_bn1_weight_value, &grad_bn1_bias_value);
                stat0[c] = stat0_value;
                stat1[c] = stat1_value;
                if (grad_bn1_weight != NULL) grad_bn1_weight[c] = call->accumulate[4] ? grad_bn1_weight[c] + grad_bn1_weight_value : grad_bn1_weight_value;
                if (grad_bn1_bias != NULL) grad_bn1_bias[c] = call->accumulate[5] ? grad_bn1_bias[c] + grad_bn1_bias_value : grad_bn1_bias_value;
            }
        }
    }
    {
        const int slices = fashion_mnist_deep_slices(call->batch * 25088, 16384);
        fashion_mnist_deep_run(fashion_mnist_deep_g0_backward_1_loop, call, stat, call->batch * 25088, 784, slices, NULL, 0);
    }
    return 0;
}

static size_t fashion_mnist_deep_g0_backward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    bytes += fashion_mnist_deep_room(32, sizeof(float));
    bytes += fashion_mnist_deep_room(32, sizeof(float));
    sums = fashion_mnist_deep_room(fashion_mnist_deep_slices(batch * 25088, 16384) * (int64_t)64, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}

/* g1, forward: sum0, sum1 */
FASHION_MNIST_DEEP_LOOPS fashion_mnist_deep_g1_forward_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float sum0_block[1024];
    float sum1_block[1024];
    const float *const conv2 = (const float *)call->data[0];
    const float *const conv2_2 = (const float *)call->data[1];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int left = fashion_mnist_deep_least(FASHION_MNIST_DEEP_BLOCK, end - i), n = fashion_mnist_deep_least(left, 196 - i % 196);
        const float conv2_2_0 = conv2_2[i / 196 % 64 * 196];
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_deep_g1_forward_0(conv2[i + j], conv2_2_0, &sum0_block[j], &sum1_block[j]);
        fashion_mnist_deep_add_channels(sums, sum0_block, i, n, 196, 64);
        fashion_mnist_deep_add_channels(sums + 64, sum1_block, i, n, 196, 64);
        i += n;
    }
}

/* g1, forward: t20 */
FASHION_MNIST_DEEP_LOOPS fashion_mnist_deep_g1_forward_1_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    const float *const bn2_bias = (const float *)call->data[3];
    const float *const bn2_weight = (const float *)call->data[2];
    const float *const kept1 = (const float *)call->data[8];
    const float *const conv2 = (const float *)call->data[0];
    const float *const kept0 = (const float *)call->data[7];
    float *const t20 = (float *)call->data[6];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int left = fashion_mnist_deep_least(FASHION_MNIST_DEEP_BLOCK, end - i), n = fashion_mnist_deep_least(left, 196 - i % 196);
        const float bn2_bias_0 = bn2_bias[i / 196 % 64];
        const float bn2_weight_0 = bn2_weight[i / 196 % 64];
        const float kept1_0 = kept1[i / 196 % 64];
        const float kept0_0 = kept0[i / 196 % 64];
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_deep_g1_forward_1(bn2_bias_0, bn2_weight_0, kept1_0, conv2[i + j], kept0_0, &t20[i + j]);
        i += n;
    }
}

static int fashion_mnist_deep_g1_forward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = fashion_mnist_deep_slices(call->batch * 12544, 16384);
        fashion_mnist_deep_run(fashion_mnist_deep_g1_forward_0_loop, call, NULL, call->batch * 12544, 196, slices, sums, 128);
        {
            const float elements = (float)(call->batch * 196);
            const float *const conv2_2 = (const float *)call->data[1];
            float *const bn2_running_mean = (float *)call->data[4];
            float *const bn2_running_var = (float *)call->data[5];
            float *const kept0 = (float *)call->data[7];
            float *const kept1 = (float *)call->data[8];
            for (int64_t c = 0; c < 64; ++c) {
                const float conv2_2_0 = conv2_2[c * 196];
                const float bn2_running_mean_0 = bn2_running_mean[c];
                const float bn2_running_var_0 = bn2_running_var[c];
                float kept0_value;
                float kept1_value;
                float bn2_running_mean_out_value;
                float bn2_running_var_out_value;
                fashion_mnist_deep_g1_forward_0_final(fashion_mnist_deep_total(sums + c, slices, 128), elements, conv2_2_0,
                                                      fashion_mnist_deep_total(sums + 64 + c, slices, 128), bn2_running_mean_0,
                                                      bn2_running_var_0, &kept0_value, &kept1_value, &bn2_running_mean_out_value,
                                                      &bn2_running_var_out_value);
                kept0[c] = kept0_value;
                kept1[c] = kept1_value;
                bn2_running_mean[c] = bn2_running_mean_out_value;
                bn2_running_var[c] = bn2_running_var_out_value;
            }
        }
    }
    {
        const int slices = fashion_mnist_deep_slices(call->batch * 12544, 16384);
        fashion_mnist_deep_run(fashion_mnist_deep_g1_forward_1_loop, call, NULL, call->batch * 12544, 196, slices, NULL, 0);
    }
    return 0;
}

static size_t fashion_mnist_deep_g1_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = fashion_mnist_deep_room(fashion_mnist_deep_slices(batch * 12544, 16384) * (int64_t)128, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}

/* g1, backward: sum0, sum1 */
FASHION_MNIST_DEEP_LOOPS fashion_mnist_deep_g1_backward_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float sum0_block[1024];
    float sum1_block[1024];
    const float *const bn2_bias = (const float *)call->data[2];
    const float *const conv2 = (const float *)call->data[0];
    const float *const kept0 = (const float *)call->data[7];
    const float *const bn2_weight = (const float *)call->data[1];
    const float *const kept1 = (const float *)call->data[8];
    const float *const grad_t20 = (const float *)call->data[6];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int left = fashion_mnist_deep_least(FASHION_MNIST_DEEP_BLOCK, end - i), n = fashion_mnist_deep_least(left, 196 - i % 196);
        const float bn2_bias_0 = bn2_bias[i / 196 % 64];
        const float kept0_0 = kept0[i / 196 % 64];
        const float bn2_weight_0 = bn2_weight[i / 196 % 64];
        const float kept1_0 = kept1[i / 196 % 64];
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_deep_g1_backward_0(bn2_bias_0, conv2[i + j], kept0_0, bn2_weight_0, kept1_0, grad_t20[i + j],
                                             &sum0_block[j], &sum1_block[j]);
        fashion_mnist_deep_add_channels(sums, sum0_block, i, n, 196, 64);
        fashion_mnist_deep_add_channels(sums + 64, sum1_block, i, n, 196, 64);
        i += n;
    }
}

/* g1, backward: grad_conv2 */
FASHION_MNIST_DEEP_LOOPS fashion_mnist_deep_g1_backward_1_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float grad_conv2_block[1024];
    const float *const bn2_weight = (const float *)call->data[1];
    const float *const kept1 = (const float *)call->data[8];
    const float *const bn2_bias = (const float *)call->data[2];
    const float *const conv2 = (const float *)call->data[0];
    const float *const kept0 = (const float *)call->data[7];
    const float *const grad_t20 = (const float *)call->data[6];
    const float *const stat0 = stat[0];
    const float *const stat1 = stat[1];
    float *const grad_conv2 = (float *)call->data[3];
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int left = fashion_mnist_deep_least(FASHION_MNIST_DEEP_BLOCK, end - i), n = fashion_mnist_deep_least(left, 196 - i % 196);
        const float bn2_weight_0 = bn2_weight[i / 196 % 64];
        const float kept1_0 = kept1[i / 196 % 64];
        const float bn2_bias_0 = bn2_bias[i / 196 % 64];
        const float kept0_0 = kept0[i / 196 % 64];
        const float stat0_0 = stat0[i / 196 % 64];
        const float stat1_0 = stat1[i / 196 % 64];
        float *const grad_conv2_at = grad_conv2 == NULL || call->accumulate[3] ? grad_conv2_block : grad_conv2 + i;
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_deep_g1_backward_1(bn2_weight_0, kept1_0, bn2_bias_0, conv2[i + j], kept0_0, grad_t20[i + j],
                                             stat0_0, stat1_0, &grad_conv2_at[j]);
        if (grad_conv2_at == grad_conv2_block && grad_conv2 != NULL) fashion_mnist_deep_add(grad_conv2 + i, grad_conv2_block, n);
        i += n;
    }
}

static int fashion_mnist_deep_g1_backward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    float *stat[2];
    stat[0] = (float *)(void *)space;
    space += fashion_mnist_deep_room(64, sizeof(float));
    stat[1] = (float *)(void *)space;
    space += fashion_mnist_deep_room(64, sizeof(float));
    double *const sums = (double *)(void *)space;
    {
        const int slices = fashion_mnist_deep_slices(call->batch * 12544, 16384);
        fashion_mnist_deep_run(fashion_mnist_deep_g1_backward_0_loop, call, NULL, call->batch * 12544, 196, slices, sums, 128);
        {
            const float elements = (float)(call->batch * 196);
            const float *const kept1 = (const float *)call->data[8];
            float *const stat0 = stat[0];
            float *const stat1 = stat[1];
            float *const grad_bn2_weight = (float *)call->data[4];
            float *const grad_bn2_bias = (float *)call->data[5];
            for (int64_t c = 0; c < 64; ++c) {
                const float kept1_0 = kept1[c];
                float stat0_value;
                float stat1_value;
                float grad_bn2_weight_value;
                float grad_bn2_bias_value;
                fashion_mnist_deep_g1_backward_0_final(fashion_mnist_deep_total(sums + c, slices, 128), elements,
                                                       fashion_mnist_deep_total(sums + 64 + c, slices, 128), kept1_0,
                                                       &stat0_value, &stat1_value, &grad_bn2_weight_value, &grad_bn2_bias_value);
                stat0[c] = stat0_value;
                stat1[c] = stat1_value;
                if (grad_bn2_weight != NULL) grad_bn2_weight[c] = call->accumulate[4] ? grad_bn2_weight[c] + grad_bn2_weight_value : grad_bn2_weight_value;
                if (grad_bn2_bias != NULL) grad_bn2_bias[c] = call->accumulate[5] ? grad_bn2_bias[c] + grad_bn2_bias_value : grad_bn2_bias_value;
            }
        }
    }
    {
        const int slices = fashion_mnist_deep_slices(call->batch * 12544, 16384);
        fashion_mnist_deep_run(fashion_mnist_deep_g1_backward_1_loop, call, stat, call->batch * 12544, 196, slices, NULL, 0);
    }
    return 0;
}

static size_t fashion_mnist_deep_g1_backward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    bytes += fashion_mnist_deep_room(64, sizeof(float));
    bytes += fashion_mnist_deep_room(64, sizeof(float));
    sums = fashion_mnist_deep_room(fashion_mnist_deep_slices(batch * 12544, 16384) * (int64_t)128, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}

/* g2, forward: sum0 */
FASHION_MNIST_DEEP_LOOPS fashion_mnist_deep_g2_forward_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float sum0_block[1024];
    const uint8_t *const label = (const uint8_t *)call->data[1];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int n = fashion_mnist_deep_least(FASHION_MNIST_DEEP_BLOCK, end - i);
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_deep_g2_forward_0((float)label[i + j], &sum0_block[j]);
        sums[0] += (double)fashion_mnist_deep_sum(sum0_block, n);
        i += n;
    }
}

/* g2, forward: grad_fc, sum0 */
FASHION_MNIST_DEEP_LOOPS fashion_mnist_deep_g2_forward_1_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
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
        fashion_mnist_deep_g2_forward_1_row0(label_2_0, &row0, &row1, &row2);
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_deep_g2_forward_1_stage1(fc[i + j], &terms0[j]);
        const float max0 = fashion_mnist_deep_highest(terms0, n);
        const int label_2_column = fashion_mnist_deep_column((int64_t)label_2[row], 10);
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_deep_g2_forward_1_stage2(fc[i + j], max0, (float)(j == label_2_column), &terms1[j], &terms2[j]);
        const float sum1 = fashion_mnist_deep_sum(terms1, n);
        const float sum2 = fashion_mnist_deep_sum(terms2, n);
        float row3;
        float sum0;
        fashion_mnist_deep_g2_forward_1_row2(stat1_0, sum1, row0, row1, row2, sum2, &row3, &sum0);
        sums[0] += (double)sum0;
        float *const grad_fc_at = grad_fc == NULL || call->accumulate[4] ? grad_fc_block : grad_fc + i;
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_deep_g2_forward_1(row0, row1, row2, (float)(j == label_2_column), fc[i + j], max0, row3, stat1_0,
                                            &grad_fc_at[j]);
        if (grad_fc_at == grad_fc_block && grad_fc != NULL) fashion_mnist_deep_add(grad_fc + i, grad_fc_block, n);
    }
}

static int fashion_mnist_deep_g2_forward(const gpunn_kernel_call *call)
{
    const uint8_t *const labels2 = (const uint8_t *)call->data[2];
    for (int64_t i = 0; i < call->batch; ++i) {
        const int64_t label = (int64_t)labels2[i];
        if ((label < 0 || label >= 10) && label != -100) return GPUNN_ERR_ARGUMENT;
    }
    char *space = (char *)call->workspace;
    float *stat[2];
    stat[0] = (float *)(void *)space;
    space += fashion_mnist_deep_room(1, sizeof(float));
    stat[1] = (float *)(void *)space;
    space += fashion_mnist_deep_room(1, sizeof(float));
    double *const sums = (double *)(void *)space;
    {
        const int slices = fashion_mnist_deep_slices(call->batch, 16384);
        fashion_mnist_deep_run(fashion_mnist_deep_g2_forward_0_loop, call, NULL, call->batch, 16, slices, sums, 8);
        {
            const float *const grad_t32 = (const float *)call->data[5];
            float *const stat0 = stat[0];
            float *const stat1 = stat[1];
            const float grad_t32_0 = grad_t32[0];
            float stat0_value;
            float stat1_value;
            fashion_mnist_deep_g2_forward_0_final(fashion_mnist_deep_total(sums, slices, 8), grad_t32_0, &stat0_value,
                                                  &stat1_value);
            stat0[0] = stat0_value;
            stat1[0] = stat1_value;
        }
    }
    {
        const int slices = fashion_mnist_deep_slices(call->batch * 10, 16384);
        fashion_mnist_deep_run(fashion_mnist_deep_g2_forward_1_loop, call, stat, call->batch, 1, slices, sums, 8);
        {
            const float *const stat0 = stat[0];
            float *const t32 = (float *)call->data[3];
            const float stat0_0 = stat0[0];
            float t32_value;
            fashion_mnist_deep_g2_forward_1_final(fashion_mnist_deep_total(sums, slices, 8), stat0_0, &t32_value);
            t32[0] = t32_value;
        }
    }
    return 0;
}

static size_t fashion_mnist_deep_g2_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    bytes += fashion_mnist_deep_room(1, sizeof(float));
    bytes += fashion_mnist_deep_room(1, sizeof(float));
    sums = fashion_mnist_deep_room(fashion_mnist_deep_slices(batch, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    sums = fashion_mnist_deep_room(fashion_mnist_deep_slices(batch * 10, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}

/* g3, evaluation: t36 */
FASHION_MNIST_DEEP_LOOPS fashion_mnist_deep_g3_evaluation_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    const int64_t *const t33 = (const int64_t *)call->data[0];
    const uint8_t *const label = (const uint8_t *)call->data[1];
    float *const t36 = (float *)call->data[2];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = fashion_mnist_deep_least(FASHION_MNIST_DEEP_BLOCK, end - i);
        FASHION_MNIST_DEEP_VECTOR
        for (int j = 0; j < n; ++j)
            fashion_mnist_deep_g3_evaluation_0((float)t33[i + j], (float)label[i + j], &t36[i + j]);
        i += n;
    }
}

static int fashion_mnist_deep_g3_evaluation(const gpunn_kernel_call *call)
{
    {
        const int slices = fashion_mnist_deep_slices(call->batch, 16384);
        fashion_mnist_deep_run(fashion_mnist_deep_g3_evaluation_0_loop, call, NULL, call->batch, 16, slices, NULL, 0);
    }
    return 0;
}

static size_t fashion_mnist_deep_g3_evaluation_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    return 0;
}

/* adam */
FASHION_MNIST_DEEP_LOOPS fashion_mnist_deep_update0_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
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
        FASHION_MNIST_DEEP_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         g = gradient[i] * numbers.scale;
            g = fashion_mnist_deep_where(g > limit, limit, fashion_mnist_deep_where(g < -limit, -limit, g));
            g += decay * parameter[i];
            kept[j] = 0.9f * m[i] + 0.1f * g;
            root[j] = 0.999f * v[i] + 0.001f * g * g;
            m[i] = kept[j];
            v[i] = root[j];
        }
        fashion_mnist_deep_roots(root, n);
        FASHION_MNIST_DEEP_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         p = parameter[i];
            p = p - numbers.rate * (kept[j] / (root[j] * numbers.root_scale + 1e-08f));
            parameter[i] = p;
        }
    }
}

typedef struct fashion_mnist_deep_update0_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} fashion_mnist_deep_update0_work;

static void fashion_mnist_deep_update0_task(void *arg, int index, int threads)
{
    const fashion_mnist_deep_update0_work *w = (const fashion_mnist_deep_update0_work *)arg;
    fashion_mnist_deep_update0_loop(w->u, *w->numbers, fashion_mnist_deep_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     fashion_mnist_deep_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int fashion_mnist_deep_update0(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    fashion_mnist_deep_update0_work work = {u, numbers, fashion_mnist_deep_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, fashion_mnist_deep_update0_task, &work);
    return 0;
}
#ifdef FASHION_MNIST_DEEP_OPTIMIZED
#pragma GCC pop_options
#undef FASHION_MNIST_DEEP_OPTIMIZED
#endif

/* ==== tables ========================================================================================================== */
static const signed char fashion_mnist_deep_g0_operands0[] = {
    0, 1, 2, 3, 4,
};
static const signed char fashion_mnist_deep_g0_operands1[] = {
    -1,
};
static const gpunn_kernel_node fashion_mnist_deep_g0_nodes[] = {
    {"batch_norm eps=9.99999975e-06 momentum=0.100000001 f32 [N,32,28,28]", fashion_mnist_deep_g0_operands0, 5},
    {"relu f32 [N,32,28,28]", fashion_mnist_deep_g0_operands1, 1},
};
static const char *const fashion_mnist_deep_g0_externals[] = {
    "f32 [N,32,28,28]",
    "f32 [32]",
    "f32 [32]",
    "f32 [32]",
    "f32 [32]",
};
static const gpunn_kernel_kept fashion_mnist_deep_g0_kept[] = {
    {GPUNN_F32, 32, 0},
    {GPUNN_F32, 32, 0},
};
static const gpunn_kernel_operand fashion_mnist_deep_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 1, 1, GPUNN_F32, 0, 3, -1},
    {GPUNN_KERNEL_VALUE, 1, 1, GPUNN_F32, 0, 4, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -2, -1},
    {GPUNN_KERNEL_KEPT, 1, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_KEPT, 1, 1, GPUNN_F32, 0, 1, -1},
};
static const gpunn_kernel_operand fashion_mnist_deep_g0_backward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -2, -1},
    {GPUNN_KERNEL_KEPT, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_KEPT, 1, 0, GPUNN_F32, 0, 1, -1},
};
static const signed char fashion_mnist_deep_g1_operands0[] = {
    0, 1, 2, 3, 4,
};
static const signed char fashion_mnist_deep_g1_operands1[] = {
    -1,
};
static const gpunn_kernel_node fashion_mnist_deep_g1_nodes[] = {
    {"batch_norm eps=9.99999975e-06 momentum=0.100000001 f32 [N,64,14,14]", fashion_mnist_deep_g1_operands0, 5},
    {"relu f32 [N,64,14,14]", fashion_mnist_deep_g1_operands1, 1},
};
static const char *const fashion_mnist_deep_g1_externals[] = {
    "f32 [N,64,14,14]",
    "f32 [64]",
    "f32 [64]",
    "f32 [64]",
    "f32 [64]",
};
static const gpunn_kernel_kept fashion_mnist_deep_g1_kept[] = {
    {GPUNN_F32, 64, 0},
    {GPUNN_F32, 64, 0},
};
static const gpunn_kernel_operand fashion_mnist_deep_g1_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 1, 1, GPUNN_F32, 0, 3, -1},
    {GPUNN_KERNEL_VALUE, 1, 1, GPUNN_F32, 0, 4, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -2, -1},
    {GPUNN_KERNEL_KEPT, 1, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_KEPT, 1, 1, GPUNN_F32, 0, 1, -1},
};
static const gpunn_kernel_operand fashion_mnist_deep_g1_backward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -2, -1},
    {GPUNN_KERNEL_KEPT, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_KEPT, 1, 0, GPUNN_F32, 0, 1, -1},
};
static const signed char fashion_mnist_deep_g2_operands0[] = {
    0, 1, 127,
};
static const gpunn_kernel_node fashion_mnist_deep_g2_nodes[] = {
    {"cross_entropy reduction=mean ignore_index=-100 label_smoothing=0 f32 []", fashion_mnist_deep_g2_operands0, 3},
};
static const char *const fashion_mnist_deep_g2_externals[] = {
    "f32 [N,10]",
    "u8 [N]",
};
static const gpunn_kernel_operand fashion_mnist_deep_g2_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_U8, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_U8, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -1, -1},
};
static const signed char fashion_mnist_deep_g3_operands0[] = {
    0,
};
static const signed char fashion_mnist_deep_g3_operands1[] = {
    1,
};
static const signed char fashion_mnist_deep_g3_operands2[] = {
    -1, -2,
};
static const gpunn_kernel_node fashion_mnist_deep_g3_nodes[] = {
    {"cast f32 [N]", fashion_mnist_deep_g3_operands0, 1},
    {"cast f32 [N]", fashion_mnist_deep_g3_operands1, 1},
    {"eq f32 [N]", fashion_mnist_deep_g3_operands2, 2},
};
static const char *const fashion_mnist_deep_g3_externals[] = {
    "i64 [N]",
    "u8 [N]",
};
static const gpunn_kernel_operand fashion_mnist_deep_g3_evaluation_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_I64, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_U8, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -3, -1},
};
static const gpunn_kernel fashion_mnist_deep_set[] = {
    {"g0",
     "t10 = relu(batch_norm(conv1, bn1_weight, bn1_bias, bn1_running_mean, bn1_running_var))",
     fashion_mnist_deep_g0_nodes, 2,
     fashion_mnist_deep_g0_externals, 5,
     fashion_mnist_deep_g0_kept, 2,
     GPUNN_KERNEL_ANY, false,
     {{NULL, 0, NULL, NULL},
      {fashion_mnist_deep_g0_forward_operands, 9, fashion_mnist_deep_g0_forward, fashion_mnist_deep_g0_forward_workspace},
      {fashion_mnist_deep_g0_backward_operands, 9, fashion_mnist_deep_g0_backward, fashion_mnist_deep_g0_backward_workspace}}},
    {"g1",
     "t20 = relu(batch_norm(conv2, bn2_weight, bn2_bias, bn2_running_mean, bn2_running_var))",
     fashion_mnist_deep_g1_nodes, 2,
     fashion_mnist_deep_g1_externals, 5,
     fashion_mnist_deep_g1_kept, 2,
     GPUNN_KERNEL_ANY, false,
     {{NULL, 0, NULL, NULL},
      {fashion_mnist_deep_g1_forward_operands, 9, fashion_mnist_deep_g1_forward, fashion_mnist_deep_g1_forward_workspace},
      {fashion_mnist_deep_g1_backward_operands, 9, fashion_mnist_deep_g1_backward, fashion_mnist_deep_g1_backward_workspace}}},
    {"g2",
     "t32 = cross_entropy(fc, label)",
     fashion_mnist_deep_g2_nodes, 1,
     fashion_mnist_deep_g2_externals, 2,
     NULL, 0,
     GPUNN_KERNEL_ANY, true,
     {{NULL, 0, NULL, NULL},
      {fashion_mnist_deep_g2_forward_operands, 6, fashion_mnist_deep_g2_forward, fashion_mnist_deep_g2_forward_workspace},
      {NULL, 0, NULL, NULL}}},
    {"g3",
     "t36 = eq(cast(t33), cast(label))",
     fashion_mnist_deep_g3_nodes, 3,
     fashion_mnist_deep_g3_externals, 2,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{fashion_mnist_deep_g3_evaluation_operands, 3, fashion_mnist_deep_g3_evaluation, fashion_mnist_deep_g3_evaluation_workspace},
      {NULL, 0, NULL, NULL},
      {NULL, 0, NULL, NULL}}},
};
static const int fashion_mnist_deep_evaluation0[] = {
    34, 35, 36, 33, 1,
};
static const gpunn_kernel_instance fashion_mnist_deep_evaluation[] = {
    {3, fashion_mnist_deep_evaluation0},
};
static const int fashion_mnist_deep_training0[] = {
    9, 10, 4, 5, 6, 7, 8,
};
static const int fashion_mnist_deep_training1[] = {
    19, 20, 14, 15, 16, 17, 18,
};
static const int fashion_mnist_deep_training2[] = {
    32, 31, 1,
};
static const gpunn_kernel_instance fashion_mnist_deep_training[] = {
    {0, fashion_mnist_deep_training0},
    {1, fashion_mnist_deep_training1},
    {2, fashion_mnist_deep_training2},
};
static const gpunn_kernel_update fashion_mnist_deep_updates[] = {
    {{GPUNN_UPDATE_ADAM, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, false, false, false, false, false, 0, 0, NULL, NULL},
     fashion_mnist_deep_update0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda fashion_mnist_deep_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda fashion_mnist_deep_kernels_cuda;
#elif defined(__GNUC__) && !defined(_WIN32) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda fashion_mnist_deep_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && !defined(_WIN32)
extern const gpunn_kernel_cuda fashion_mnist_deep_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set fashion_mnist_deep_kernels = {
    GPUNN_KERNELS_ABI,
    FASHION_MNIST_DEEP_KERNELS_STAMP,
    "fashion_mnist_deep",
    "0.1",
    "f8f54a05be877c22a8c4c2494bdec66f3e43956e5d613102e611bfd4fff81448",
    "python3 -m generator examples/kernels/fashion_mnist_deep.json -o examples/kernels/fashion_mnist_deep",
    fashion_mnist_deep_set,
    4,
    38,
    fashion_mnist_deep_evaluation,
    fashion_mnist_deep_training,
    1,
    3,
    fashion_mnist_deep_updates,
    1,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && !defined(_WIN32))
    &fashion_mnist_deep_kernels_cuda,
#else
    NULL,
#endif
};
#undef FASHION_MNIST_DEEP_KERNELS_IMPLEMENTATION
#endif
