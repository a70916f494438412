/* cross_entropy_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator cross_entropy.json -o cross_entropy
 */
#ifndef CROSS_ENTROPY_KERNELS_H
#define CROSS_ENTROPY_KERNELS_H
#include "gpunn.h"

#define CROSS_ENTROPY_KERNELS_STAMP 0xff931abe41eae6efull /* must equal the stamp in cross_entropy_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &cross_entropy_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define CROSS_ENTROPY_KERNELS_IMPLEMENTATION
 * Link cross_entropy_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set cross_entropy_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(CROSS_ENTROPY_KERNELS_IMPLEMENTATION) || defined(CROSS_ENTROPY_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "cross_entropy_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(CROSS_ENTROPY_KERNELS_CUDA)
#define CROSS_ENTROPY_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

CROSS_ENTROPY_FN float cross_entropy_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

CROSS_ENTROPY_FN float cross_entropy_exp(float x)
{
    return expf(x);
}

CROSS_ENTROPY_FN float cross_entropy_log(float x)
{
    return logf(x);
}
#elif defined(CROSS_ENTROPY_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define CROSS_ENTROPY_FN __attribute__((unused, always_inline)) static inline
#else
#define CROSS_ENTROPY_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define CROSS_ENTROPY_OPTIMIZED
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

CROSS_ENTROPY_FN float cross_entropy_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

CROSS_ENTROPY_FN uint32_t cross_entropy_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

CROSS_ENTROPY_FN float cross_entropy_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

CROSS_ENTROPY_FN float cross_entropy_max(float a, float b)
{
    return cross_entropy_where(a > b, a, cross_entropy_where(a != a, a, b));
}

/* x clamped to [low, high]; NaN stays NaN. */
CROSS_ENTROPY_FN float cross_entropy_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
CROSS_ENTROPY_FN float cross_entropy_exp2i(int32_t n)
{
    return cross_entropy_float_of((uint32_t)(n + 127) << 23);
}

/* The nearest integer to x, for |x| < 2^22. */
CROSS_ENTROPY_FN int32_t cross_entropy_nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 2^23: adding it rounds x to an integer in the low bits */
    return (int32_t)(cross_entropy_bits_of(x + magic) - cross_entropy_bits_of(magic));
}

/* exp(r) - 1 for |r| <= ln 2 / 2. */
CROSS_ENTROPY_FN float cross_entropy_expm1_near(float r)
{
    const float p = (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    return r + r * r * (p * r + 0.5f);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^15. Returns exp(r) - 1. */
CROSS_ENTROPY_FN float cross_entropy_exp_reduce(float x, int32_t *n)
{
    *n = cross_entropy_nearest(x * 1.44269504f);
    const float k = (float)*n; /* ln 2 is split in two; the high part has 9 bits, so k times it is exact */
    return cross_entropy_expm1_near(x - k * 0.693359375f + k * 2.12194440e-4f);
}

CROSS_ENTROPY_FN float cross_entropy_exp(float x)
{
    int32_t     n;
    const float e = cross_entropy_exp_reduce(cross_entropy_limit(x, -87.3f, 89), &n) + 1;
    return (e + e) * cross_entropy_exp2i(n - 1);
}

/* n ln 2 + log(1 + f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1. */
CROSS_ENTROPY_FN float cross_entropy_log_join(float n, float f)
{
    const float s = f * f;
    const float p = ((-0.0785961151f * f + 0.128816471f) * s + (-0.131287545f * f + 0.141811922f)) * (s * s) +
                    ((-0.166245535f * f + 0.200022861f) * s + (-0.250008106f * f + 0.333333164f));
    return (f - (0.5f * s - (s * f * p - n * 2.12194440e-4f))) + n * 0.693359375f;
}

/* The value of a logarithm: y for limit < x < inf, -inf at the limit, NaN below it, x itself if x is inf or
 * NaN. */
CROSS_ENTROPY_FN float cross_entropy_log_edges(float x, float limit, float y)
{
    const float outside = cross_entropy_where(x == limit, -INFINITY, cross_entropy_where(x < limit, NAN, x));
    return cross_entropy_where(x > limit, cross_entropy_where(x <= FLT_MAX, y, x), outside);
}

/* Returns n where x = 2^n m with sqrt(1/2) <= m < sqrt(2), for normal x > 0. */
CROSS_ENTROPY_FN int32_t cross_entropy_exponent(float x)
{
    return (int32_t)(cross_entropy_bits_of(x) - 0x3f3504f3u) >> 23;
}

/* Splits finite x > 0 into 2^n (1 + f), with f in the range of log_join. Returns f. */
CROSS_ENTROPY_FN float cross_entropy_log_split(float x, float *n)
{
    const float   normal = cross_entropy_where(x < FLT_MIN, x * 8388608.0f, x);
    const int32_t exponent = cross_entropy_exponent(normal);
    *n = (float)exponent - cross_entropy_where(x < FLT_MIN, 23, 0);
    return cross_entropy_float_of(cross_entropy_bits_of(normal) - ((uint32_t)exponent << 23)) - 1;
}

CROSS_ENTROPY_FN float cross_entropy_log(float x)
{
    float       n;
    const float f = cross_entropy_log_split(x, &n);
    return cross_entropy_log_edges(x, 0, cross_entropy_log_join(n, f));
}
#endif

#if defined(CROSS_ENTROPY_KERNELS_IMPLEMENTATION) || defined(CROSS_ENTROPY_KERNELS_CUDA)
/* g0, forward: y = f(x) */
CROSS_ENTROPY_FN void cross_entropy_g0_forward_0_row0(float labels, float *sum0)
{
    *sum0 = cross_entropy_where(labels == (-100), 0, cross_entropy_where(labels < 0, 0, cross_entropy_where(labels >= 10, 0, 1)));
}

CROSS_ENTROPY_FN void cross_entropy_g0_forward_0_final(float sum0, float *divisor)
{
    *divisor = sum0;
}
CROSS_ENTROPY_FN void cross_entropy_g0_forward_1_row0(float labels, float dloss, float divisor, float *row0,
                                                      float *row1, float *row2, float *row4, float *row5)
{
    const float t0 = dloss / divisor;
    *row0 = (float)(labels == (-100));
    *row1 = (float)(labels < 0);
    *row2 = (float)(labels >= 10);
    *row4 = 0.01f * t0;
    *row5 = 0.9f * t0;
}

CROSS_ENTROPY_FN void cross_entropy_g0_forward_1_stage1(float logits, float *max0)
{
    *max0 = logits;
}

CROSS_ENTROPY_FN void cross_entropy_g0_forward_1_stage2(float logits, float max0, float at_labels,
                                                        float *sum1, float *sum2, float *sum3)
{
    const float t0 = logits - max0;
    *sum1 = cross_entropy_exp(t0);
    *sum2 = cross_entropy_where(at_labels != 0, t0, 0);
    *sum3 = t0;
}

CROSS_ENTROPY_FN void cross_entropy_g0_forward_1_row2(float row5, float dloss, float divisor, float sum1,
                                                      float row0, float row1, float row2, float sum2,
                                                      float sum3, float *row3, float *sum0)
{
    const float t0 = cross_entropy_log(sum1);
    const float t1 = cross_entropy_where(row1 != 0, NAN, cross_entropy_where(row2 != 0, NAN, 0.9f * (t0 - sum2) + 0.01f * (10 * t0 - sum3)));
    *row3 = (row5 + 0.099999994f * (dloss / divisor)) / sum1;
    *sum0 = cross_entropy_where(row0 != 0, 0, t1);
}

CROSS_ENTROPY_FN void cross_entropy_g0_forward_1(float row0, float row1, float row2, float at_labels,
                                                 float logits, float max0, float row3, float row4, float row5,
                                                 float *dlogits)
{
    const float t0 = cross_entropy_exp(logits - max0) * row3 - row4;
    const float t1 = cross_entropy_where(row2 != 0, 0, cross_entropy_where(at_labels != 0, t0 - row5, t0));
    *dlogits = cross_entropy_where(row0 != 0, 0, cross_entropy_where(row1 != 0, 0, t1));
}

CROSS_ENTROPY_FN void cross_entropy_g0_forward_1_final(float sum0, float divisor, float *loss)
{
    *loss = sum0 / divisor;
}
#endif

#if defined(CROSS_ENTROPY_KERNELS_IMPLEMENTATION) && !defined(CROSS_ENTROPY_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { CROSS_ENTROPY_BLOCK = 1024, CROSS_ENTROPY_ROW = 4096, CROSS_ENTROPY_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define CROSS_ENTROPY_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define CROSS_ENTROPY_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define CROSS_ENTROPY_VECTOR _Pragma("GCC ivdep")
#else
#define CROSS_ENTROPY_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define CROSS_ENTROPY_SELDOM __attribute__((unused, noinline)) static
#else
#define CROSS_ENTROPY_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define CROSS_ENTROPY_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define CROSS_ENTROPY_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define CROSS_ENTROPY_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(CROSS_ENTROPY_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define CROSS_ENTROPY_LOOPS(function, lanes, parameters, arguments)                        \
    CROSS_ENTROPY_FN void function##_code parameters;                                      \
    CROSS_ENTROPY_V16 static void function##_v16 parameters { function##_code arguments; } \
    CROSS_ENTROPY_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    CROSS_ENTROPY_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define CROSS_ENTROPY_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define CROSS_ENTROPY_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
CROSS_ENTROPY_FN int cross_entropy_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > CROSS_ENTROPY_SLICES ? CROSS_ENTROPY_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
CROSS_ENTROPY_FN int64_t cross_entropy_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*cross_entropy_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

CROSS_ENTROPY_FN void cross_entropy_run_slice(cross_entropy_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = cross_entropy_slice(count, grain, slices, slice),
                  end = cross_entropy_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct cross_entropy_work {
    cross_entropy_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} cross_entropy_work;

CROSS_ENTROPY_SELDOM void cross_entropy_task(void *arg, int index, int threads)
{
    const cross_entropy_work *w = (const cross_entropy_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        cross_entropy_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
CROSS_ENTROPY_SELDOM void cross_entropy_run(cross_entropy_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    cross_entropy_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, cross_entropy_task, &work);
}

/* Bytes of workspace for `count` elements of `size` bytes: a multiple of 64. */
CROSS_ENTROPY_FN size_t cross_entropy_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

/* A label as a column index, or -1 if it is not a class. */
CROSS_ENTROPY_FN int cross_entropy_column(int64_t label, int columns)
{
    return label >= 0 && label < columns ? (int)label : -1;
}

CROSS_ENTROPY_FN void cross_entropy_add(float *to, const float *from, int n)
{
    CROSS_ENTROPY_VECTOR
    for (int j = 0; j < n; ++j) to[j] += from[j];
}

/* The sum of x[n]: 16 interleaved partial sums, added pairwise, plus the rest. */
CROSS_ENTROPY_FN float cross_entropy_sum(const float *x, int n)
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
CROSS_ENTROPY_FN float cross_entropy_highest(const float *x, int n)
{
    enum { LANES = 32 }; /* too many for compilers to unroll */
    float lane[LANES], rest = -INFINITY;
    int   i = 0;
    for (int j = 0; j < LANES; ++j) lane[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
        CROSS_ENTROPY_VECTOR
        for (int j = 0; j < LANES; ++j) lane[j] = cross_entropy_max(lane[j], x[i + j]);
    }
    for (; i < n; ++i) rest = cross_entropy_max(rest, x[i]);
    for (int j = 0; j < LANES; ++j) rest = cross_entropy_max(rest, lane[j]);
    return rest;
}

/* The total of sums[slice * width] over all slices, in ascending order. */
CROSS_ENTROPY_FN float cross_entropy_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, forward: sum0 */
CROSS_ENTROPY_LOOPS(cross_entropy_g0_forward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const int64_t *const labels = (const int64_t *)call->data[1];
    (void)stat;
    for (int64_t row = begin; row < end; ++row) {
        const float labels_0 = (float)labels[row];
        float sum0;
        cross_entropy_g0_forward_0_row0(labels_0, &sum0);
        sums[0] += (double)sum0;
    }
}

/* g0, forward: dlogits, sum0 */
CROSS_ENTROPY_LOOPS(cross_entropy_g0_forward_1_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float terms0[10];
    float terms1[10];
    float terms2[10];
    float terms3[10];
    float dlogits_block[10];
    const int64_t *const labels = (const int64_t *)call->data[1];
    const float *const dloss = (const float *)call->data[3];
    const float *const divisor = stat[0];
    const float *const logits = (const float *)call->data[0];
    float *const dlogits = (float *)call->data[4];
    const float dloss_0 = dloss[0];
    const float divisor_0 = divisor[0];
    const int n = 10;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row * 10;
        const float labels_0 = (float)labels[row];
        float row0;
        float row1;
        float row2;
        float row4;
        float row5;
        cross_entropy_g0_forward_1_row0(labels_0, dloss_0, divisor_0, &row0, &row1, &row2, &row4,
                                        &row5);
        CROSS_ENTROPY_VECTOR
        for (int j = 0; j < n; ++j)
            cross_entropy_g0_forward_1_stage1(logits[i + j], &terms0[j]);
        const float max0 = cross_entropy_highest(terms0, n);
        const int labels_column = cross_entropy_column((int64_t)labels[row], 10);
        CROSS_ENTROPY_VECTOR
        for (int j = 0; j < n; ++j)
            cross_entropy_g0_forward_1_stage2(logits[i + j], max0, (float)(j == labels_column),
                                              &terms1[j], &terms2[j], &terms3[j]);
        const float sum1 = cross_entropy_sum(terms1, n);
        const float sum2 = cross_entropy_sum(terms2, n);
        const float sum3 = cross_entropy_sum(terms3, n);
        float row3;
        float sum0;
        cross_entropy_g0_forward_1_row2(row5, dloss_0, divisor_0, sum1, row0, row1, row2, sum2, sum3,
                                        &row3, &sum0);
        sums[0] += (double)sum0;
        float *const dlogits_at = dlogits == NULL || call->accumulate[4] ? dlogits_block : dlogits + i;
        CROSS_ENTROPY_VECTOR
        for (int j = 0; j < n; ++j)
            cross_entropy_g0_forward_1(row0, row1, row2, (float)(j == labels_column), logits[i + j], max0,
                                       row3, row4, row5, &dlogits_at[j]);
        if (dlogits_at == dlogits_block && dlogits != NULL) cross_entropy_add(dlogits + i, dlogits_block, n);
    }
}

static int cross_entropy_g0_forward(const gpunn_kernel_call *call)
{
    const int64_t *const labels1 = (const int64_t *)call->data[1];
    for (int64_t i = 0; i < call->batch; ++i) {
        const int64_t label = (int64_t)labels1[i];
        if ((label < 0 || label >= 10) && label != -100) return GPUNN_ERR_ARGUMENT;
    }
    char *space = (char *)call->workspace;
    float *stat[1];
    stat[0] = (float *)(void *)space;
    space += cross_entropy_room(1, sizeof(float));
    double *const sums = (double *)(void *)space;
    {
        const int slices = cross_entropy_slices(call->batch * 10, 16384);
        cross_entropy_run(cross_entropy_g0_forward_0_loop, call, NULL, call->batch, 1, slices, sums, 8);
        {
            float *const divisor = stat[0];
            float divisor_value;
            cross_entropy_g0_forward_0_final(cross_entropy_total(sums, slices, 8), &divisor_value);
            divisor[0] = divisor_value;
        }
    }
    {
        const int slices = cross_entropy_slices(call->batch * 10, 16384);
        cross_entropy_run(cross_entropy_g0_forward_1_loop, call, stat, call->batch, 1, slices, sums, 8);
        {
            const float *const divisor = stat[0];
            float *const loss = (float *)call->data[5];
            const float divisor_0 = divisor[0];
            float loss_value;
            cross_entropy_g0_forward_1_final(cross_entropy_total(sums, slices, 8), divisor_0,
                                             &loss_value);
            loss[0] = loss_value;
        }
    }
    return 0;
}

static size_t cross_entropy_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    bytes += cross_entropy_room(1, sizeof(float));
    sums = cross_entropy_room(cross_entropy_slices(batch * 10, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    sums = cross_entropy_room(cross_entropy_slices(batch * 10, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}
#ifdef CROSS_ENTROPY_OPTIMIZED
#pragma GCC pop_options
#undef CROSS_ENTROPY_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char cross_entropy_g0_operands0[] = {
    0, 1,
};
static const gpunn_kernel_node cross_entropy_g0_nodes[] = {
    {"cross_entropy reduction=mean ignore_index=-100 label_smoothing=0.1 f32 []", cross_entropy_g0_operands0, 2},
};
static const char *const cross_entropy_g0_externals[] = {
    "f32 [N,8]",
};
static const gpunn_kernel_operand cross_entropy_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_I64, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
};
static const gpunn_kernel cross_entropy_set[] = {
    {"g0",
     "y = f(x)",
     cross_entropy_g0_nodes, 1,
     cross_entropy_g0_externals, 1,
     NULL, 0,
     GPUNN_KERNEL_ANY, true,
     {{NULL, 0, NULL, NULL, 0},
      {cross_entropy_g0_forward_operands, 6, cross_entropy_g0_forward, cross_entropy_g0_forward_workspace, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int cross_entropy_evaluation0[] = {
    3, 0,
};
static const gpunn_kernel_instance cross_entropy_evaluation[] = {
    {0, cross_entropy_evaluation0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda cross_entropy_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda cross_entropy_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda cross_entropy_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda cross_entropy_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set cross_entropy_kernels = {
    GPUNN_KERNELS_ABI,
    CROSS_ENTROPY_KERNELS_STAMP,
    "cross_entropy",
    "0.2",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "python3 -m generator cross_entropy.json -o cross_entropy",
    cross_entropy_set,
    1,
    9,
    cross_entropy_evaluation,
    NULL,
    1,
    0,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &cross_entropy_kernels_cuda,
#else
    NULL,
#endif
};
#undef CROSS_ENTROPY_KERNELS_IMPLEMENTATION
#endif
