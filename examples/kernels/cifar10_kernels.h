/* cifar10_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.1, templates a9785fb6116f
 * spec sha256 f4d67ba069e420a2298823f907f2e6dd291294fc98a1fd9de083ba27d7ff5933
 * renew it with: python3 -m generator examples/kernels/cifar10.json -o examples/kernels/cifar10
 */
#ifndef CIFAR10_KERNELS_H
#define CIFAR10_KERNELS_H
#include "gpunn.h"

#define CIFAR10_KERNELS_STAMP 0x85f9d2e4cf0c9ad6ull /* of this text: cifar10_kernels.cu was written with it */
#ifdef __cplusplus
extern "C" {
#endif
/* For gpunn_use_kernels(model, &cifar10_kernels). One C file of the program defines this before it includes this file:
 *     #define CIFAR10_KERNELS_IMPLEMENTATION
 * cifar10_kernels.cu, where it is linked, adds the kernels for GPUs. */
extern const gpunn_kernel_set cifar10_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(CIFAR10_KERNELS_IMPLEMENTATION) || defined(CIFAR10_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 4
#error "cifar10_kernels.h is for GPUNN_KERNELS_ABI 4; renew it with the command in its first lines"
#endif
#endif

/* ==== the mathematics ================================================================================================= */
#if defined(CIFAR10_KERNELS_CUDA)
#define CIFAR10_FN static __device__ __forceinline__

/* The functions of gpunn.h's tables on a GPU, as gpunn_cuda.cu has them. Those with _fast in their name are for values that are
 * stored in 16 bits: within 2^-10 of the true value, and 0 for what is denormal. */

CIFAR10_FN float cifar10_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

CIFAR10_FN float cifar10_exp(float x)
{
    return expf(x);
}

CIFAR10_FN float cifar10_log(float x)
{
    return logf(x);
}
#elif defined(CIFAR10_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define CIFAR10_FN __attribute__((unused, always_inline)) static inline
#else
#define CIFAR10_FN static inline
#endif
/* gcc vectorises little below -O3, makes branches of choices that might trap, and with -std=c99 joins no x * y + z. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define CIFAR10_OPTIMIZED
#pragma GCC push_options
#pragma GCC optimize("O3,no-trapping-math,fp-contract=fast")
#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#endif

/* The functions of gpunn.h's tables on a CPU, without branches or tables, so that loops over them become vector code. Within 3
 * ulp of the true value (sin and cos: 1e-7, up to 1e6), and C's values at infinities, NaN and outside the domain; results below
 * 2^-125 may be 0, and denormal operands count as 0. */

CIFAR10_FN float cifar10_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

CIFAR10_FN uint32_t cifar10_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

CIFAR10_FN float cifar10_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

CIFAR10_FN float cifar10_max(float a, float b)
{
    return cifar10_where(a > b, a, cifar10_where(a != a, a, b));
}

/* x, but at least low and at most high; NaN stays. */
CIFAR10_FN float cifar10_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
CIFAR10_FN float cifar10_exp2i(int32_t n)
{
    return cifar10_float_of((uint32_t)(n + 127) << 23);
}

/* x = n ln 2 + r with |r| <= ln 2 / 2, and exp(r) - 1, for |x| < 2^15. */
CIFAR10_FN float cifar10_exp_reduce(float x, int32_t *n)
{
    const float magic = 12582912.0f; /* 1.5 2^23: added to it, a number rounds to an integer in the low bits */
    *n = (int32_t)(cifar10_bits_of(x * 1.44269504f + magic) - cifar10_bits_of(magic));
    const float k = (float)*n;
    const float r = x - k * 0.693359375f + k * 2.12194440e-4f; /* ln 2 in two parts, the first with 9 bits: k times it is exact */
    const float p = ((0.00139465544f * r + 0.00836664438f) * r + 0.0416662805f) * r + 0.16666542f;
    return r + r * r * (p * r + 0.5f);
}

CIFAR10_FN float cifar10_exp(float x)
{
    int32_t     n;
    const float e = cifar10_exp_reduce(cifar10_limit(x, -87.3f, 89), &n) + 1;
    return (e + e) * cifar10_exp2i(n - 1);
}

/* n ln 2 + log(1 + f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1. */
CIFAR10_FN float cifar10_log_join(float n, float f)
{
    const float s = f * f;
    float       p = (((-0.0785961151f * f + 0.128816471f) * f - 0.131287545f) * f + 0.141811922f) * f - 0.166245535f;
    p = ((p * f + 0.200022861f) * f - 0.250008106f) * f + 0.333333164f;
    return (f - (0.5f * s - (s * f * p - n * 2.12194440e-4f))) + n * 0.693359375f;
}

/* y where x is inside (limit, inf); at and below the limit -inf and NaN, at inf and NaN x itself. */
CIFAR10_FN float cifar10_log_edges(float x, float limit, float y)
{
    const float outside = cifar10_where(x == limit, -INFINITY, cifar10_where(x < limit, NAN, x));
    return cifar10_where(x > limit, cifar10_where(x <= FLT_MAX, y, x), outside);
}

/* x = 2^n m with sqrt(1/2) <= m < sqrt(2), for normal x > 0. */
CIFAR10_FN int32_t cifar10_exponent(float x)
{
    return (int32_t)(cifar10_bits_of(x) - 0x3f3504f3u) >> 23;
}

CIFAR10_FN float cifar10_log(float x)
{
    const float   normal = cifar10_where(x < FLT_MIN, x * 8388608.0f, x);
    const int32_t n = cifar10_exponent(normal);
    const float   m = cifar10_float_of(cifar10_bits_of(normal) - ((uint32_t)n << 23));
    return cifar10_log_edges(x, 0, cifar10_log_join((float)n - cifar10_where(x < FLT_MIN, 23, 0), m - 1));
}
#endif

#if defined(CIFAR10_KERNELS_IMPLEMENTATION) || defined(CIFAR10_KERNELS_CUDA)
/* g0, forward: t24 = cross_entropy(fc3, label); bytes: 82 a sample and 24 */
CIFAR10_FN void cifar10_g0_forward_0(float label, float *sum0)
{
    *sum0 = cifar10_where(label == (-100), 0, cifar10_where(label < 0, 0, cifar10_where(label >= 10, 0, 1)));
}

CIFAR10_FN void cifar10_g0_forward_0_final(float sum0, float grad_t24, float *stat0, float *stat1)
{
    *stat0 = sum0;
    *stat1 = grad_t24 / sum0;
}
CIFAR10_FN void cifar10_g0_forward_1_row0(float label_2, float *row0, float *row1, float *row2)
{
    *row0 = (float)(label_2 == (-100));
    *row1 = (float)(label_2 < 0);
    *row2 = (float)(label_2 >= 10);
}

CIFAR10_FN void cifar10_g0_forward_1_stage1(float fc3, float *max0)
{
    *max0 = fc3;
}

CIFAR10_FN void cifar10_g0_forward_1_stage2(float fc3, float max0, float at_label_2, float *sum1, float *sum2)
{
    const float t0 = fc3 - max0;
    *sum1 = cifar10_exp(t0);
    *sum2 = cifar10_where(at_label_2 != 0, t0, 0);
}

CIFAR10_FN void cifar10_g0_forward_1_row2(float stat1, float sum1, float row0, float row1, float row2, float sum2, float *row3,
                                          float *sum0)
{
    const float t0 = cifar10_where(row1 != 0, NAN, cifar10_where(row2 != 0, NAN, cifar10_log(sum1) - sum2));
    *row3 = stat1 / sum1;
    *sum0 = cifar10_where(row0 != 0, 0, t0);
}

CIFAR10_FN void cifar10_g0_forward_1(float row0, float row1, float row2, float at_label_2, float fc3, float max0, float row3,
                                     float stat1, float *grad_fc3)
{
    const float t0 = cifar10_exp(fc3 - max0) * row3;
    const float t1 = cifar10_where(row1 != 0, 0, cifar10_where(row2 != 0, 0, cifar10_where(at_label_2 != 0, t0 - stat1, t0)));
    *grad_fc3 = cifar10_where(row0 != 0, 0, t1);
}

CIFAR10_FN void cifar10_g0_forward_1_final(float sum0, float stat0, float *t24)
{
    *t24 = sum0 / stat0;
}
#endif

#if defined(CIFAR10_KERNELS_IMPLEMENTATION) && !defined(CIFAR10_KERNELS_CUDA)
/* ==== loops =========================================================================================================== */
enum { CIFAR10_BLOCK = 1024, CIFAR10_ROW = 4096, CIFAR10_SLICES = 64 };

/* Steps of the loop that follows depend on no others. */
#if defined(__clang__) && defined(__AVX512F__)
#define CIFAR10_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define CIFAR10_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define CIFAR10_VECTOR _Pragma("GCC ivdep")
#else
#define CIFAR10_VECTOR
#endif
#if defined(__GNUC__)
#define CIFAR10_SELDOM __attribute__((unused, noinline)) static
#else
#define CIFAR10_SELDOM static
#endif

/* Functions with the loops over elements. */
#if defined(__clang__) && defined(__AVX512F__)
#define CIFAR10_LOOPS __attribute__((min_vector_width(512))) static void
#else
#define CIFAR10_LOOPS static void
#endif

/* Work is cut into slices by its size alone, so that no result depends on the number of threads. */
CIFAR10_FN int cifar10_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > CIFAR10_SLICES ? CIFAR10_SLICES : slices > 1 ? (int)slices : 1;
}

CIFAR10_FN int64_t cifar10_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* A launch's loop over elements, or rows, from begin to end. stat: scratch of the program; sums: of the slice. */
typedef void (*cifar10_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums);

CIFAR10_FN void cifar10_run_slice(cifar10_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums, int width)
{
    const int64_t begin = cifar10_slice(count, grain, slices, slice), end = cifar10_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct cifar10_work {
    cifar10_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} cifar10_work;

CIFAR10_SELDOM void cifar10_task(void *arg, int index, int threads)
{
    const cifar10_work *w = (const cifar10_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads; ++i)
        cifar10_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums, w->width);
}

/* Runs a loop over count elements or rows, in slices that are a multiple of grain; each slice has `width` sums. */
CIFAR10_SELDOM void cifar10_run(cifar10_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    cifar10_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, cifar10_task, &work);
}

CIFAR10_FN int cifar10_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace. */
CIFAR10_FN size_t cifar10_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

/* The column of a label; -1 where it is no class. */
CIFAR10_FN int cifar10_column(int64_t label, int columns)
{
    return label >= 0 && label < columns ? (int)label : -1;
}

CIFAR10_FN void cifar10_add(float *to, const float *from, int n)
{
    CIFAR10_VECTOR
    for (int j = 0; j < n; ++j) to[j] += from[j];
}

CIFAR10_FN float cifar10_sum(const float *x, int n)
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

CIFAR10_FN float cifar10_highest(const float *x, int n)
{
    enum { LANES = 32 }; /* more than compilers unroll */
    float lane[LANES], rest = -INFINITY;
    int   i = 0;
    for (int j = 0; j < LANES; ++j) lane[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
        CIFAR10_VECTOR
        for (int j = 0; j < LANES; ++j) lane[j] = cifar10_max(lane[j], x[i + j]);
    }
    for (; i < n; ++i) rest = cifar10_max(rest, x[i]);
    for (int j = 0; j < LANES; ++j) rest = cifar10_max(rest, lane[j]);
    return rest;
}

/* One place's sum over all slices, whose sums stand `width` apart. */
CIFAR10_FN float cifar10_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, forward: sum0 */
CIFAR10_LOOPS cifar10_g0_forward_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float sum0_block[1024];
    const uint8_t *const label = (const uint8_t *)call->data[1];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int n = cifar10_least(CIFAR10_BLOCK, end - i);
        CIFAR10_VECTOR
        for (int j = 0; j < n; ++j)
            cifar10_g0_forward_0((float)label[i + j], &sum0_block[j]);
        sums[0] += (double)cifar10_sum(sum0_block, n);
        i += n;
    }
}

/* g0, forward: grad_fc3, sum0 */
CIFAR10_LOOPS cifar10_g0_forward_1_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float terms0[10];
    float terms1[10];
    float terms2[10];
    float grad_fc3_block[10];
    const uint8_t *const label_2 = (const uint8_t *)call->data[2];
    const float *const fc3 = (const float *)call->data[0];
    const float *const stat1 = stat[1];
    float *const grad_fc3 = (float *)call->data[4];
    const float stat1_0 = stat1[0];
    const int n = 10;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row * 10;
        const float label_2_0 = (float)label_2[row];
        float row0;
        float row1;
        float row2;
        cifar10_g0_forward_1_row0(label_2_0, &row0, &row1, &row2);
        CIFAR10_VECTOR
        for (int j = 0; j < n; ++j)
            cifar10_g0_forward_1_stage1(fc3[i + j], &terms0[j]);
        const float max0 = cifar10_highest(terms0, n);
        const int label_2_column = cifar10_column((int64_t)label_2[row], 10);
        CIFAR10_VECTOR
        for (int j = 0; j < n; ++j)
            cifar10_g0_forward_1_stage2(fc3[i + j], max0, (float)(j == label_2_column), &terms1[j], &terms2[j]);
        const float sum1 = cifar10_sum(terms1, n);
        const float sum2 = cifar10_sum(terms2, n);
        float row3;
        float sum0;
        cifar10_g0_forward_1_row2(stat1_0, sum1, row0, row1, row2, sum2, &row3, &sum0);
        sums[0] += (double)sum0;
        float *const grad_fc3_at = grad_fc3 == NULL || call->accumulate[4] ? grad_fc3_block : grad_fc3 + i;
        CIFAR10_VECTOR
        for (int j = 0; j < n; ++j)
            cifar10_g0_forward_1(row0, row1, row2, (float)(j == label_2_column), fc3[i + j], max0, row3, stat1_0,
                                 &grad_fc3_at[j]);
        if (grad_fc3_at == grad_fc3_block && grad_fc3 != NULL) cifar10_add(grad_fc3 + i, grad_fc3_block, n);
    }
}

static int cifar10_g0_forward(const gpunn_kernel_call *call)
{
    const uint8_t *const labels2 = (const uint8_t *)call->data[2];
    for (int64_t i = 0; i < call->batch; ++i) {
        const int64_t label = (int64_t)labels2[i];
        if ((label < 0 || label >= 10) && label != -100) return GPUNN_ERR_ARGUMENT;
    }
    char *space = (char *)call->workspace;
    float *stat[2];
    stat[0] = (float *)(void *)space;
    space += cifar10_room(1, sizeof(float));
    stat[1] = (float *)(void *)space;
    space += cifar10_room(1, sizeof(float));
    double *const sums = (double *)(void *)space;
    {
        const int slices = cifar10_slices(call->batch, 16384);
        cifar10_run(cifar10_g0_forward_0_loop, call, NULL, call->batch, 16, slices, sums, 8);
        {
            const float *const grad_t24 = (const float *)call->data[5];
            float *const stat0 = stat[0];
            float *const stat1 = stat[1];
            const float grad_t24_0 = grad_t24[0];
            float stat0_value;
            float stat1_value;
            cifar10_g0_forward_0_final(cifar10_total(sums, slices, 8), grad_t24_0, &stat0_value, &stat1_value);
            stat0[0] = stat0_value;
            stat1[0] = stat1_value;
        }
    }
    {
        const int slices = cifar10_slices(call->batch * 10, 16384);
        cifar10_run(cifar10_g0_forward_1_loop, call, stat, call->batch, 1, slices, sums, 8);
        {
            const float *const stat0 = stat[0];
            float *const t24 = (float *)call->data[3];
            const float stat0_0 = stat0[0];
            float t24_value;
            cifar10_g0_forward_1_final(cifar10_total(sums, slices, 8), stat0_0, &t24_value);
            t24[0] = t24_value;
        }
    }
    return 0;
}

static size_t cifar10_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    bytes += cifar10_room(1, sizeof(float));
    bytes += cifar10_room(1, sizeof(float));
    sums = cifar10_room(cifar10_slices(batch, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    sums = cifar10_room(cifar10_slices(batch * 10, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}

/* sgd */
CIFAR10_LOOPS cifar10_update0_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float decay = u->weight_decay;
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    float *const m = u->state[0];
    CIFAR10_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float p = parameter[i], g = gradient[i] * numbers.scale;
        g = cifar10_where(g > limit, limit, cifar10_where(g < -limit, -limit, g));
        g += decay * p;
        const float m_next = cifar10_where(numbers.first, g, 0.9f * m[i] + 1 * g);
        m[i] = m_next;
        p -= numbers.rate * (m_next);
        parameter[i] = p;
    }
}

typedef struct cifar10_update0_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} cifar10_update0_work;

static void cifar10_update0_task(void *arg, int index, int threads)
{
    const cifar10_update0_work *w = (const cifar10_update0_work *)arg;
    cifar10_update0_loop(w->u, *w->numbers, cifar10_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     cifar10_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int cifar10_update0(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    cifar10_update0_work work = {u, numbers, cifar10_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, cifar10_update0_task, &work);
    return 0;
}
#ifdef CIFAR10_OPTIMIZED
#pragma GCC pop_options
#undef CIFAR10_OPTIMIZED
#endif

/* ==== tables ========================================================================================================== */
static const signed char cifar10_g0_operands0[] = {
    0, 1, 127,
};
static const gpunn_kernel_node cifar10_g0_nodes[] = {
    {"cross_entropy reduction=mean ignore_index=-100 label_smoothing=0 f32 []", cifar10_g0_operands0, 3},
};
static const char *const cifar10_g0_externals[] = {
    "f32 [N,10]",
    "u8 [N]",
};
static const gpunn_kernel_operand cifar10_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_U8, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_U8, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -1, -1},
};
static const gpunn_kernel cifar10_set[] = {
    {"g0",
     "t24 = cross_entropy(fc3, label)",
     cifar10_g0_nodes, 1,
     cifar10_g0_externals, 2,
     NULL, 0,
     GPUNN_KERNEL_ANY, true,
     {{NULL, 0, NULL, NULL},
      {cifar10_g0_forward_operands, 6, cifar10_g0_forward, cifar10_g0_forward_workspace},
      {NULL, 0, NULL, NULL}}},
};
static const int cifar10_training0[] = {
    24, 23, 1,
};
static const gpunn_kernel_instance cifar10_training[] = {
    {0, cifar10_training0},
};
static const gpunn_kernel_update cifar10_updates[] = {
    {{GPUNN_UPDATE_SGD, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0.9f, 0, 0, 0, 0, 0, 0, 0, 0, false, false, false, false, false, 0, 0, NULL, NULL},
     cifar10_update0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda cifar10_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda cifar10_kernels_cuda;
#elif defined(__GNUC__) && !defined(_WIN32) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda cifar10_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && !defined(_WIN32)
extern const gpunn_kernel_cuda cifar10_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set cifar10_kernels = {
    GPUNN_KERNELS_ABI,
    CIFAR10_KERNELS_STAMP,
    "cifar10",
    "0.1",
    "f4d67ba069e420a2298823f907f2e6dd291294fc98a1fd9de083ba27d7ff5933",
    "python3 -m generator examples/kernels/cifar10.json -o examples/kernels/cifar10",
    cifar10_set,
    1,
    25,
    NULL,
    cifar10_training,
    0,
    1,
    cifar10_updates,
    1,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && !defined(_WIN32))
    &cifar10_kernels_cuda,
#else
    NULL,
#endif
};
#undef CIFAR10_KERNELS_IMPLEMENTATION
#endif
