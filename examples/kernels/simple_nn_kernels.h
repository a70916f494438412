/* simple_nn_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates c9514ad691f1
 * spec sha256 f747829dacd7b34a0908812bd8cf3afc76481dcc0a213d6ff68a5a714731227d
 * renew it with: python3 -m generator examples/kernels/simple_nn.json -o examples/kernels/simple_nn
 */
#ifndef SIMPLE_NN_KERNELS_H
#define SIMPLE_NN_KERNELS_H
#include "gpunn.h"

#define SIMPLE_NN_KERNELS_STAMP 0x6ccc8dd8acd8e9ffull /* must equal the stamp in simple_nn_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &simple_nn_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define SIMPLE_NN_KERNELS_IMPLEMENTATION
 * Link simple_nn_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set simple_nn_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(SIMPLE_NN_KERNELS_IMPLEMENTATION) || defined(SIMPLE_NN_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "simple_nn_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(SIMPLE_NN_KERNELS_CUDA)
#define SIMPLE_NN_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

SIMPLE_NN_FN float simple_nn_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

SIMPLE_NN_FN float simple_nn_max(float a, float b)
{
    return a > b || a != a ? a : b;
}

SIMPLE_NN_FN float simple_nn_log(float x)
{
    return logf(x);
}

SIMPLE_NN_FN float simple_nn_log1p(float x)
{
    return log1pf(x);
}

SIMPLE_NN_FN float simple_nn_sigmoid(float x)
{
    float e = expf(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1 + e);
}
#elif defined(SIMPLE_NN_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define SIMPLE_NN_FN __attribute__((unused, always_inline)) static inline
#else
#define SIMPLE_NN_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define SIMPLE_NN_OPTIMIZED
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

SIMPLE_NN_FN float simple_nn_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

SIMPLE_NN_FN uint32_t simple_nn_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SIMPLE_NN_FN float simple_nn_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

SIMPLE_NN_FN float simple_nn_max(float a, float b)
{
    return simple_nn_where(a > b, a, simple_nn_where(a != a, a, b));
}

/* x clamped to [low, high]; NaN stays NaN. */
SIMPLE_NN_FN float simple_nn_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
SIMPLE_NN_FN float simple_nn_exp2i(int32_t n)
{
    return simple_nn_float_of((uint32_t)(n + 127) << 23);
}

/* The nearest integer to x, for |x| < 2^22. */
SIMPLE_NN_FN int32_t simple_nn_nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 2^23: adding it rounds x to an integer in the low bits */
    return (int32_t)(simple_nn_bits_of(x + magic) - simple_nn_bits_of(magic));
}

/* exp(r) - 1 for |r| <= ln 2 / 2. */
SIMPLE_NN_FN float simple_nn_expm1_near(float r)
{
    const float p = (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    return r + r * r * (p * r + 0.5f);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^15. Returns exp(r) - 1. */
SIMPLE_NN_FN float simple_nn_exp_reduce(float x, int32_t *n)
{
    *n = simple_nn_nearest(x * 1.44269504f);
    const float k = (float)*n; /* ln 2 is split in two; the high part has 9 bits, so k times it is exact */
    return simple_nn_expm1_near(x - k * 0.693359375f + k * 2.12194440e-4f);
}

SIMPLE_NN_FN float simple_nn_exp(float x)
{
    int32_t     n;
    const float e = simple_nn_exp_reduce(simple_nn_limit(x, -87.3f, 89), &n) + 1;
    return (e + e) * simple_nn_exp2i(n - 1);
}

/* n ln 2 + log(1 + f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1. */
SIMPLE_NN_FN float simple_nn_log_join(float n, float f)
{
    const float s = f * f;
    const float p = ((-0.0785961151f * f + 0.128816471f) * s + (-0.131287545f * f + 0.141811922f)) * (s * s) +
                    ((-0.166245535f * f + 0.200022861f) * s + (-0.250008106f * f + 0.333333164f));
    return (f - (0.5f * s - (s * f * p - n * 2.12194440e-4f))) + n * 0.693359375f;
}

/* The value of a logarithm: y for limit < x < inf, -inf at the limit, NaN below it, x itself if x is inf or
 * NaN. */
SIMPLE_NN_FN float simple_nn_log_edges(float x, float limit, float y)
{
    const float outside = simple_nn_where(x == limit, -INFINITY, simple_nn_where(x < limit, NAN, x));
    return simple_nn_where(x > limit, simple_nn_where(x <= FLT_MAX, y, x), outside);
}

/* Returns n where x = 2^n m with sqrt(1/2) <= m < sqrt(2), for normal x > 0. */
SIMPLE_NN_FN int32_t simple_nn_exponent(float x)
{
    return (int32_t)(simple_nn_bits_of(x) - 0x3f3504f3u) >> 23;
}

/* Splits finite x > 0 into 2^n (1 + f), with f in the range of log_join. Returns f. */
SIMPLE_NN_FN float simple_nn_log_split(float x, float *n)
{
    const float   normal = simple_nn_where(x < FLT_MIN, x * 8388608.0f, x);
    const int32_t exponent = simple_nn_exponent(normal);
    *n = (float)exponent - simple_nn_where(x < FLT_MIN, 23, 0);
    return simple_nn_float_of(simple_nn_bits_of(normal) - ((uint32_t)exponent << 23)) - 1;
}

SIMPLE_NN_FN float simple_nn_log(float x)
{
    float       n;
    const float f = simple_nn_log_split(x, &n);
    return simple_nn_log_edges(x, 0, simple_nn_log_join(n, f));
}

SIMPLE_NN_FN float simple_nn_log1p(float x)
{
    const int32_t n = simple_nn_exponent(1 + x);
    const float   scale = simple_nn_float_of((uint32_t)(129 - n) << 23); /* 4 2^-n: 2^-n may be denormal */
    const float   y = simple_nn_log_join((float)n, 0.25f * x * scale + (0.25f * scale - 1));
    return simple_nn_where(fabsf(x) < 1e-8f, x, simple_nn_log_edges(x, -1, y));
}

SIMPLE_NN_FN float simple_nn_sigmoid(float x)
{
    return 1 / (1 + simple_nn_exp(-x));
}
#endif

#if defined(SIMPLE_NN_KERNELS_IMPLEMENTATION) || defined(SIMPLE_NN_KERNELS_CUDA)
/* network, evaluation: t9 = sigmoid(linear(relu(linear(x, fc1_weight, fc1_bias)), fc2_weight, fc2_bias));
 * bytes: 84 per sample and 4404 */
SIMPLE_NN_FN void simple_nn_apply_relu(float x, float *result)
{
    *result = simple_nn_where(x <= 0, 0, x);
}

SIMPLE_NN_FN void simple_nn_apply_sigmoid(float x, float *result)
{
    *result = simple_nn_sigmoid(x);
}

/* step, forward: t9 = sigmoid(linear(relu(linear(x, fc1_weight, fc1_bias)), fc2_weight, fc2_bias)); t11 =
 * mean(binary_cross_entropy(t9, y)); bytes: 88 per sample and 8816 */
SIMPLE_NN_FN void simple_nn_step_relu(float x, float *result)
{
    *result = simple_nn_where(x <= 0, 0, x);
}

SIMPLE_NN_FN void simple_nn_step_sigmoid(float x, float *result)
{
    *result = simple_nn_sigmoid(x);
}

SIMPLE_NN_FN void simple_nn_step_binary_cross_entropy(float y, float x, float *result)
{
    *result = (y - 1) * simple_nn_max(simple_nn_log1p(-x), -100) - y * simple_nn_max(simple_nn_log(x), -100);
}

SIMPLE_NN_FN void simple_nn_step_binary_cross_entropy_gradient(float g, float x, float y, float *d0)
{
    *d0 = g * (x - y) / simple_nn_max(x * (1 - x), 1e-12f);
}

SIMPLE_NN_FN void simple_nn_step_sigmoid_gradient(float result, float g, float *d0)
{
    *d0 = result * (g * (1 - result));
}

SIMPLE_NN_FN void simple_nn_step_relu_gradient(float result, float g, float *d0)
{
    *d0 = simple_nn_where(result <= 0, 0, g);
}

/* g0, forward: t9 = sigmoid(fc2); t11 = mean(binary_cross_entropy(t9, y)); bytes: 20 per sample and 8 */
SIMPLE_NN_FN void simple_nn_g0_forward_0(float fc2, float grad_t11, float count, float y, float *t9,
                                         float *grad_y, float *grad_fc2, float *sum0)
{
    const float t0 = simple_nn_sigmoid(fc2);
    const float t1 = grad_t11 / count;
    const float t2 = simple_nn_log1p(-t0);
    const float t3 = simple_nn_log(t0);
    const float t4 = 1 - t0;
    *t9 = t0;
    *grad_y = t1 * (t2 - t3);
    *grad_fc2 = t0 * (t4 * ((t0 - y) * t1 / simple_nn_max(t0 * t4, 1e-12f)));
    *sum0 = simple_nn_max(t2, -100) * (y - 1) - y * simple_nn_max(t3, -100);
}

SIMPLE_NN_FN void simple_nn_g0_forward_0_final(float sum0, float count, float *t11)
{
    *t11 = sum0 / count;
}

/* g1, evaluation: t11 = mean(binary_cross_entropy(t9, y)); bytes: 8 per sample and 4 */
SIMPLE_NN_FN void simple_nn_g1_evaluation_0(float t9, float y, float *sum0)
{
    *sum0 = simple_nn_max(simple_nn_log1p(-t9), -100) * (y - 1) - y * simple_nn_max(simple_nn_log(t9), -100);
}

SIMPLE_NN_FN void simple_nn_g1_evaluation_0_final(float sum0, float count, float *t11)
{
    *t11 = sum0 / count;
}

/* g2, evaluation: t15 = eq(gt(t9, t12), gt(y, t12)); bytes: 12 per sample and 4 */
SIMPLE_NN_FN void simple_nn_g2_evaluation_0(float y, float t12, float t9, float *t15)
{
    *t15 = simple_nn_where(simple_nn_where(y > t12, 1, 0) == simple_nn_where(t9 > t12, 1, 0), 1, 0);
}

/* sgd */
SIMPLE_NN_FN void simple_nn_update0_step(float p, float lr, float ahead, float g, float weight_decay,
                                         float behind, float *p_out)
{
    *p_out = p - lr * (ahead * (g + p * weight_decay) + 0 * behind);
}
#endif

#if defined(SIMPLE_NN_KERNELS_IMPLEMENTATION) && !defined(SIMPLE_NN_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { SIMPLE_NN_BLOCK = 1024, SIMPLE_NN_ROW = 4096, SIMPLE_NN_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define SIMPLE_NN_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define SIMPLE_NN_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define SIMPLE_NN_VECTOR _Pragma("GCC ivdep")
#else
#define SIMPLE_NN_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define SIMPLE_NN_SELDOM __attribute__((unused, noinline)) static
#else
#define SIMPLE_NN_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define SIMPLE_NN_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define SIMPLE_NN_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define SIMPLE_NN_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(SIMPLE_NN_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define SIMPLE_NN_LOOPS(function, lanes, parameters, arguments)                        \
    SIMPLE_NN_FN void function##_code parameters;                                      \
    SIMPLE_NN_V16 static void function##_v16 parameters { function##_code arguments; } \
    SIMPLE_NN_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    SIMPLE_NN_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define SIMPLE_NN_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define SIMPLE_NN_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
SIMPLE_NN_FN int simple_nn_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > SIMPLE_NN_SLICES ? SIMPLE_NN_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
SIMPLE_NN_FN int64_t simple_nn_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*simple_nn_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

SIMPLE_NN_FN void simple_nn_run_slice(simple_nn_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = simple_nn_slice(count, grain, slices, slice),
                  end = simple_nn_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct simple_nn_work {
    simple_nn_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} simple_nn_work;

SIMPLE_NN_SELDOM void simple_nn_task(void *arg, int index, int threads)
{
    const simple_nn_work *w = (const simple_nn_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        simple_nn_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
SIMPLE_NN_SELDOM void simple_nn_run(simple_nn_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    simple_nn_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, simple_nn_task, &work);
}

SIMPLE_NN_FN int simple_nn_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace for `count` elements of `size` bytes: a multiple of 64. */
SIMPLE_NN_FN size_t simple_nn_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

SIMPLE_NN_FN void simple_nn_add(float *to, const float *from, int n)
{
    SIMPLE_NN_VECTOR
    for (int j = 0; j < n; ++j) to[j] += from[j];
}

/* The sum of x[n]: 16 interleaved partial sums, added pairwise, plus the rest. */
SIMPLE_NN_FN float simple_nn_sum(const float *x, int n)
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

/* The total of sums[slice * width] over all slices, in ascending order. */
SIMPLE_NN_FN float simple_nn_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* The narrowest vectors: for processors without the wider ones. */
#if defined(__GNUC__)
#define SIMPLE_NN_V4
enum { SIMPLE_NN_NARROWEST = 4 };
#else
#define SIMPLE_NN_V1
enum { SIMPLE_NN_NARROWEST = 1 };
#endif
#if defined(__clang__)
#define SIMPLE_NN_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define SIMPLE_NN_UNROLL _Pragma("GCC unroll 16")
#if defined(__CUDACC__)
#pragma nv_diag_suppress 1675 /* nvcc does not know that pragma, but passes it to gcc */
#endif
#else
#define SIMPLE_NN_UNROLL
#endif

/* Keeps x in a register. Otherwise gcc reloads it from memory for each product, and the loads become the
 * bottleneck. */
#if defined(__GNUC__) && defined(__x86_64__) && !defined(__clang__)
#define SIMPLE_NN_HOLD(x) __asm__("" : "+v"(x))
#else
#define SIMPLE_NN_HOLD(x) (void)(x)
#endif

/* Packs w[out][in] and b[out] (or NULL) as panels of several vectors of y's columns; the last panel has what
 * is left. A panel holds the columns' biases, then one row per input. Columns beyond `out` are 0. */
SIMPLE_NN_SELDOM void simple_nn_pack(float *to, const float *w, const float *b, int in, int out, int lanes)
{
    const int panel = (lanes == 8 ? 2 : 4) * lanes;
    for (int j = 0; j < out; j += panel) {
        const int width = (simple_nn_least(out - j, panel) + lanes - 1) / lanes * lanes;
        for (int c = 0; c < width; ++c) *to++ = b != NULL && j + c < out ? b[j + c] : 0;
        for (int k = 0; k < in; ++k)
            for (int c = 0; c < width; ++c) *to++ = j + c < out ? w[(j + c) * in + k] : 0;
    }
}

/* The vector width in floats to use on a processor with vectors of `most` floats. */
SIMPLE_NN_FN int simple_nn_lanes(int most)
{
#if defined(SIMPLE_NN_V16)
    if (most >= 8) return most >= 16 ? 16 : 8;
#endif
    (void)most;
    return SIMPLE_NN_NARROWEST;
}

#if defined(SIMPLE_NN_V16)
#if defined(__GNUC__)
typedef float simple_nn_v16 __attribute__((vector_size(4 * 16)));
typedef float simple_nn_v16_memory __attribute__((vector_size(4 * 16), aligned(4), may_alias));
#else
typedef float simple_nn_v16, simple_nn_v16_memory;
#endif

/* y[j] = value[j] for j < columns; the whole vector if `columns` is larger. */
SIMPLE_NN_V16 SIMPLE_NN_FN void simple_nn_v16_put(float *y, simple_nn_v16 value, int columns)
{
    if (columns >= 16) {
        *(simple_nn_v16_memory *)y = value;
        return;
    }
    float part[16];
    memcpy(part, &value, sizeof part);
    for (int j = 0; j < 16; ++j)
        if (j < columns) y[j] = part[j];
}

/* y = x w + bias for R rows and V vectors of columns. Each element has U partial sums, so that about 8 sums
 * are independent of each other. Partial sum u adds inputs u, u + U, ...; the first starts with the bias. */
SIMPLE_NN_V16 SIMPLE_NN_FN void simple_nn_v16_tile(float *y, int64_t y_row, const float *x, int64_t x_row,
                                             const float *w, int in, int columns, const int R, const int V)
{
    const int U = R * V >= 6 ? 1 : R * V >= 3 ? 2 : 4;
    const simple_nn_v16 none = {0};
    simple_nn_v16 sum[6][8], factor[4];
    SIMPLE_NN_UNROLL
    for (int i = 0; i < R; ++i) {
        SIMPLE_NN_UNROLL
        for (int v = 0; v < V; ++v) sum[i][v] = *(const simple_nn_v16_memory *)(w + v * 16);
        SIMPLE_NN_UNROLL
        for (int v = V; v < V * U; ++v) sum[i][v] = none;
    }
    w += V * 16;
    for (int k = 0; k < in; k += U) {
        SIMPLE_NN_UNROLL
        for (int u = 0; u < U; ++u) {
            if (k + u >= in) break;
            SIMPLE_NN_UNROLL
            for (int v = 0; v < V; ++v) {
                factor[v] = *(const simple_nn_v16_memory *)(w + (u * V + v) * 16);
                if (R > 1) SIMPLE_NN_HOLD(factor[v]);
            }
            SIMPLE_NN_UNROLL
            for (int i = 0; i < R; ++i) {
                SIMPLE_NN_UNROLL
                for (int v = 0; v < V; ++v) sum[i][u * V + v] += x[i * x_row + k + u] * factor[v];
            }
        }
        w += U * V * 16;
    }
    SIMPLE_NN_UNROLL
    for (int i = 0; i < R; ++i) {
        SIMPLE_NN_UNROLL
        for (int v = 0; v < V; ++v) {
            SIMPLE_NN_UNROLL
            for (int u = 1; u < U; ++u) sum[i][v] += sum[i][u * V + v];
            simple_nn_v16_put(y + i * y_row + v * 16, sum[i][v], columns - v * 16);
        }
    }
}

/* All rows of V vectors of columns, in tiles whose sums fit into registers. */
SIMPLE_NN_V16 SIMPLE_NN_FN void simple_nn_v16_panel(float *y, int64_t y_row, const float *x, int64_t x_row,
                                              const float *w, int rows, int in, int columns, const int V)
{
    int i = 0;
    for (; 6 * V <= 24 && i + 6 <= rows; i += 6)
        simple_nn_v16_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 6, V);
    for (; 4 * V <= 24 && i + 4 <= rows; i += 4)
        simple_nn_v16_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 4, V);
    for (; i + 2 <= rows; i += 2)
        simple_nn_v16_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 2, V);
    if (i < rows) simple_nn_v16_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 1, V);
}

/* y[rows][out] = x w^T + b with packed weights, panel by panel. */
SIMPLE_NN_V16 SIMPLE_NN_SELDOM void simple_nn_v16_product(float *y, const float *x, int64_t x_row,
                                                    const float *packed, int rows, int in, int out)
{
    for (int j = 0, width; j < out; j += 4 * 16, packed += (in + 1) * width) {
        const int columns = simple_nn_least(out - j, 4 * 16);
        width = (columns + 16 - 1) / 16 * 16;
        if (columns <= 16)
            simple_nn_v16_panel(y + j, out, x, x_row, packed, rows, in, columns, 1);
        else if (columns <= 2 * 16)
            simple_nn_v16_panel(y + j, out, x, x_row, packed, rows, in, columns, 2);
        else if (columns <= 3 * 16)
            simple_nn_v16_panel(y + j, out, x, x_row, packed, rows, in, columns, 3);
        else
            simple_nn_v16_panel(y + j, out, x, x_row, packed, rows, in, columns, 4);
    }
}
#endif

#if defined(SIMPLE_NN_V8)
#if defined(__GNUC__)
typedef float simple_nn_v8 __attribute__((vector_size(4 * 8)));
typedef float simple_nn_v8_memory __attribute__((vector_size(4 * 8), aligned(4), may_alias));
#else
typedef float simple_nn_v8, simple_nn_v8_memory;
#endif

/* y[j] = value[j] for j < columns; the whole vector if `columns` is larger. */
SIMPLE_NN_V8 SIMPLE_NN_FN void simple_nn_v8_put(float *y, simple_nn_v8 value, int columns)
{
    if (columns >= 8) {
        *(simple_nn_v8_memory *)y = value;
        return;
    }
    float part[8];
    memcpy(part, &value, sizeof part);
    for (int j = 0; j < 8; ++j)
        if (j < columns) y[j] = part[j];
}

/* y = x w + bias for R rows and V vectors of columns. Each element has U partial sums, so that about 8 sums
 * are independent of each other. Partial sum u adds inputs u, u + U, ...; the first starts with the bias. */
SIMPLE_NN_V8 SIMPLE_NN_FN void simple_nn_v8_tile(float *y, int64_t y_row, const float *x, int64_t x_row,
                                             const float *w, int in, int columns, const int R, const int V)
{
    const int U = R * V >= 6 ? 1 : R * V >= 3 ? 2 : 4;
    const simple_nn_v8 none = {0};
    simple_nn_v8 sum[6][8], factor[4];
    SIMPLE_NN_UNROLL
    for (int i = 0; i < R; ++i) {
        SIMPLE_NN_UNROLL
        for (int v = 0; v < V; ++v) sum[i][v] = *(const simple_nn_v8_memory *)(w + v * 8);
        SIMPLE_NN_UNROLL
        for (int v = V; v < V * U; ++v) sum[i][v] = none;
    }
    w += V * 8;
    for (int k = 0; k < in; k += U) {
        SIMPLE_NN_UNROLL
        for (int u = 0; u < U; ++u) {
            if (k + u >= in) break;
            SIMPLE_NN_UNROLL
            for (int v = 0; v < V; ++v) {
                factor[v] = *(const simple_nn_v8_memory *)(w + (u * V + v) * 8);
                if (R > 1) SIMPLE_NN_HOLD(factor[v]);
            }
            SIMPLE_NN_UNROLL
            for (int i = 0; i < R; ++i) {
                SIMPLE_NN_UNROLL
                for (int v = 0; v < V; ++v) sum[i][u * V + v] += x[i * x_row + k + u] * factor[v];
            }
        }
        w += U * V * 8;
    }
    SIMPLE_NN_UNROLL
    for (int i = 0; i < R; ++i) {
        SIMPLE_NN_UNROLL
        for (int v = 0; v < V; ++v) {
            SIMPLE_NN_UNROLL
            for (int u = 1; u < U; ++u) sum[i][v] += sum[i][u * V + v];
            simple_nn_v8_put(y + i * y_row + v * 8, sum[i][v], columns - v * 8);
        }
    }
}

/* All rows of V vectors of columns, in tiles whose sums fit into registers. */
SIMPLE_NN_V8 SIMPLE_NN_FN void simple_nn_v8_panel(float *y, int64_t y_row, const float *x, int64_t x_row,
                                              const float *w, int rows, int in, int columns, const int V)
{
    int i = 0;
    for (; 6 * V <= 12 && i + 6 <= rows; i += 6)
        simple_nn_v8_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 6, V);
    for (; 4 * V <= 12 && i + 4 <= rows; i += 4)
        simple_nn_v8_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 4, V);
    for (; i + 2 <= rows; i += 2)
        simple_nn_v8_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 2, V);
    if (i < rows) simple_nn_v8_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 1, V);
}

/* y[rows][out] = x w^T + b with packed weights, panel by panel. */
SIMPLE_NN_V8 SIMPLE_NN_SELDOM void simple_nn_v8_product(float *y, const float *x, int64_t x_row,
                                                    const float *packed, int rows, int in, int out)
{
    for (int j = 0, width; j < out; j += 2 * 8, packed += (in + 1) * width) {
        const int columns = simple_nn_least(out - j, 2 * 8);
        width = (columns + 8 - 1) / 8 * 8;
        if (columns <= 8)
            simple_nn_v8_panel(y + j, out, x, x_row, packed, rows, in, columns, 1);
        else
            simple_nn_v8_panel(y + j, out, x, x_row, packed, rows, in, columns, 2);
    }
}
#endif

#if defined(SIMPLE_NN_V4)
#if defined(__GNUC__)
typedef float simple_nn_v4 __attribute__((vector_size(4 * 4)));
typedef float simple_nn_v4_memory __attribute__((vector_size(4 * 4), aligned(4), may_alias));
#else
typedef float simple_nn_v4, simple_nn_v4_memory;
#endif

/* y[j] = value[j] for j < columns; the whole vector if `columns` is larger. */
SIMPLE_NN_V4 SIMPLE_NN_FN void simple_nn_v4_put(float *y, simple_nn_v4 value, int columns)
{
    if (columns >= 4) {
        *(simple_nn_v4_memory *)y = value;
        return;
    }
    float part[4];
    memcpy(part, &value, sizeof part);
    for (int j = 0; j < 4; ++j)
        if (j < columns) y[j] = part[j];
}

/* y = x w + bias for R rows and V vectors of columns. Each element has U partial sums, so that about 8 sums
 * are independent of each other. Partial sum u adds inputs u, u + U, ...; the first starts with the bias. */
SIMPLE_NN_V4 SIMPLE_NN_FN void simple_nn_v4_tile(float *y, int64_t y_row, const float *x, int64_t x_row,
                                             const float *w, int in, int columns, const int R, const int V)
{
    const int U = R * V >= 6 ? 1 : R * V >= 3 ? 2 : 4;
    const simple_nn_v4 none = {0};
    simple_nn_v4 sum[6][8], factor[4];
    SIMPLE_NN_UNROLL
    for (int i = 0; i < R; ++i) {
        SIMPLE_NN_UNROLL
        for (int v = 0; v < V; ++v) sum[i][v] = *(const simple_nn_v4_memory *)(w + v * 4);
        SIMPLE_NN_UNROLL
        for (int v = V; v < V * U; ++v) sum[i][v] = none;
    }
    w += V * 4;
    for (int k = 0; k < in; k += U) {
        SIMPLE_NN_UNROLL
        for (int u = 0; u < U; ++u) {
            if (k + u >= in) break;
            SIMPLE_NN_UNROLL
            for (int v = 0; v < V; ++v) {
                factor[v] = *(const simple_nn_v4_memory *)(w + (u * V + v) * 4);
                if (R > 1) SIMPLE_NN_HOLD(factor[v]);
            }
            SIMPLE_NN_UNROLL
            for (int i = 0; i < R; ++i) {
                SIMPLE_NN_UNROLL
                for (int v = 0; v < V; ++v) sum[i][u * V + v] += x[i * x_row + k + u] * factor[v];
            }
        }
        w += U * V * 4;
    }
    SIMPLE_NN_UNROLL
    for (int i = 0; i < R; ++i) {
        SIMPLE_NN_UNROLL
        for (int v = 0; v < V; ++v) {
            SIMPLE_NN_UNROLL
            for (int u = 1; u < U; ++u) sum[i][v] += sum[i][u * V + v];
            simple_nn_v4_put(y + i * y_row + v * 4, sum[i][v], columns - v * 4);
        }
    }
}

/* All rows of V vectors of columns, in tiles whose sums fit into registers. */
SIMPLE_NN_V4 SIMPLE_NN_FN void simple_nn_v4_panel(float *y, int64_t y_row, const float *x, int64_t x_row,
                                              const float *w, int rows, int in, int columns, const int V)
{
    int i = 0;
    for (; 6 * V <= 12 && i + 6 <= rows; i += 6)
        simple_nn_v4_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 6, V);
    for (; 4 * V <= 12 && i + 4 <= rows; i += 4)
        simple_nn_v4_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 4, V);
    for (; i + 2 <= rows; i += 2)
        simple_nn_v4_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 2, V);
    if (i < rows) simple_nn_v4_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 1, V);
}

/* y[rows][out] = x w^T + b with packed weights, panel by panel. */
SIMPLE_NN_V4 SIMPLE_NN_SELDOM void simple_nn_v4_product(float *y, const float *x, int64_t x_row,
                                                    const float *packed, int rows, int in, int out)
{
    for (int j = 0, width; j < out; j += 4 * 4, packed += (in + 1) * width) {
        const int columns = simple_nn_least(out - j, 4 * 4);
        width = (columns + 4 - 1) / 4 * 4;
        if (columns <= 4)
            simple_nn_v4_panel(y + j, out, x, x_row, packed, rows, in, columns, 1);
        else if (columns <= 2 * 4)
            simple_nn_v4_panel(y + j, out, x, x_row, packed, rows, in, columns, 2);
        else if (columns <= 3 * 4)
            simple_nn_v4_panel(y + j, out, x, x_row, packed, rows, in, columns, 3);
        else
            simple_nn_v4_panel(y + j, out, x, x_row, packed, rows, in, columns, 4);
    }
}
#endif

#if defined(SIMPLE_NN_V1)
#if defined(__GNUC__)
typedef float simple_nn_v1 __attribute__((vector_size(4 * 1)));
typedef float simple_nn_v1_memory __attribute__((vector_size(4 * 1), aligned(4), may_alias));
#else
typedef float simple_nn_v1, simple_nn_v1_memory;
#endif

/* y[j] = value[j] for j < columns; the whole vector if `columns` is larger. */
SIMPLE_NN_V1 SIMPLE_NN_FN void simple_nn_v1_put(float *y, simple_nn_v1 value, int columns)
{
    if (columns >= 1) {
        *(simple_nn_v1_memory *)y = value;
        return;
    }
    float part[1];
    memcpy(part, &value, sizeof part);
    for (int j = 0; j < 1; ++j)
        if (j < columns) y[j] = part[j];
}

/* y = x w + bias for R rows and V vectors of columns. Each element has U partial sums, so that about 8 sums
 * are independent of each other. Partial sum u adds inputs u, u + U, ...; the first starts with the bias. */
SIMPLE_NN_V1 SIMPLE_NN_FN void simple_nn_v1_tile(float *y, int64_t y_row, const float *x, int64_t x_row,
                                             const float *w, int in, int columns, const int R, const int V)
{
    const int U = R * V >= 6 ? 1 : R * V >= 3 ? 2 : 4;
    const simple_nn_v1 none = {0};
    simple_nn_v1 sum[6][8], factor[4];
    SIMPLE_NN_UNROLL
    for (int i = 0; i < R; ++i) {
        SIMPLE_NN_UNROLL
        for (int v = 0; v < V; ++v) sum[i][v] = *(const simple_nn_v1_memory *)(w + v * 1);
        SIMPLE_NN_UNROLL
        for (int v = V; v < V * U; ++v) sum[i][v] = none;
    }
    w += V * 1;
    for (int k = 0; k < in; k += U) {
        SIMPLE_NN_UNROLL
        for (int u = 0; u < U; ++u) {
            if (k + u >= in) break;
            SIMPLE_NN_UNROLL
            for (int v = 0; v < V; ++v) {
                factor[v] = *(const simple_nn_v1_memory *)(w + (u * V + v) * 1);
                if (R > 1) SIMPLE_NN_HOLD(factor[v]);
            }
            SIMPLE_NN_UNROLL
            for (int i = 0; i < R; ++i) {
                SIMPLE_NN_UNROLL
                for (int v = 0; v < V; ++v) sum[i][u * V + v] += x[i * x_row + k + u] * factor[v];
            }
        }
        w += U * V * 1;
    }
    SIMPLE_NN_UNROLL
    for (int i = 0; i < R; ++i) {
        SIMPLE_NN_UNROLL
        for (int v = 0; v < V; ++v) {
            SIMPLE_NN_UNROLL
            for (int u = 1; u < U; ++u) sum[i][v] += sum[i][u * V + v];
            simple_nn_v1_put(y + i * y_row + v * 1, sum[i][v], columns - v * 1);
        }
    }
}

/* All rows of V vectors of columns, in tiles whose sums fit into registers. */
SIMPLE_NN_V1 SIMPLE_NN_FN void simple_nn_v1_panel(float *y, int64_t y_row, const float *x, int64_t x_row,
                                              const float *w, int rows, int in, int columns, const int V)
{
    int i = 0;
    for (; 6 * V <= 12 && i + 6 <= rows; i += 6)
        simple_nn_v1_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 6, V);
    for (; 4 * V <= 12 && i + 4 <= rows; i += 4)
        simple_nn_v1_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 4, V);
    for (; i + 2 <= rows; i += 2)
        simple_nn_v1_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 2, V);
    if (i < rows) simple_nn_v1_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 1, V);
}

/* y[rows][out] = x w^T + b with packed weights, panel by panel. */
SIMPLE_NN_V1 SIMPLE_NN_SELDOM void simple_nn_v1_product(float *y, const float *x, int64_t x_row,
                                                    const float *packed, int rows, int in, int out)
{
    for (int j = 0, width; j < out; j += 4 * 1, packed += (in + 1) * width) {
        const int columns = simple_nn_least(out - j, 4 * 1);
        width = (columns + 1 - 1) / 1 * 1;
        if (columns <= 1)
            simple_nn_v1_panel(y + j, out, x, x_row, packed, rows, in, columns, 1);
        else if (columns <= 2 * 1)
            simple_nn_v1_panel(y + j, out, x, x_row, packed, rows, in, columns, 2);
        else if (columns <= 3 * 1)
            simple_nn_v1_panel(y + j, out, x, x_row, packed, rows, in, columns, 3);
        else
            simple_nn_v1_panel(y + j, out, x, x_row, packed, rows, in, columns, 4);
    }
}
#endif

/* y[rows][out] = x w^T + b, with packed weights. x_row: floats from one row of x to the next. lanes: floats
 * of a vector. */
SIMPLE_NN_FN void simple_nn_product(int lanes, float *y, const float *x, int64_t x_row, const float *packed,
                                int rows, int in, int out)
{
#if defined(SIMPLE_NN_V16)
    if (lanes == 16)
        simple_nn_v16_product(y, x, x_row, packed, rows, in, out);
    else if (lanes == 8)
        simple_nn_v8_product(y, x, x_row, packed, rows, in, out);
    else
#endif
#if defined(SIMPLE_NN_V4)
        simple_nn_v4_product(y, x, x_row, packed, rows, in, out);
#else
        simple_nn_v1_product(y, x, x_row, packed, rows, in, out);
#endif
}

/* network: evaluates samples begin to end - 1, in blocks. */
SIMPLE_NN_FN void simple_nn_network_evaluation_samples(const int lanes, const gpunn_kernel_call *call, int64_t begin,
                                    int64_t end)
{
    float scratch[2400];
    const float *const packed = (const float *)call->cache;
    const float *const fc1_packed = packed;
    const float *const fc2_packed = packed + 1344;
    for (int64_t first = begin; first < end; first += 48) {
        const int n = simple_nn_least(48, end - first);
        float *const fc1 = scratch + 0;
        const float *const x = (const float *)call->data[0] + first * 20;
        float *const t9 = (float *)call->data[5] + first;

        simple_nn_product(lanes, fc1, x, 20, fc1_packed, n, 20, 50);
        SIMPLE_NN_VECTOR
        for (int i = 0; i < n * 50; ++i)
            simple_nn_apply_relu(fc1[i], &fc1[i]);
        simple_nn_product(lanes, t9, fc1, 50, fc2_packed, n, 50, 1);
        SIMPLE_NN_VECTOR
        for (int i = 0; i < n; ++i)
            simple_nn_apply_sigmoid(t9[i], &t9[i]);
    }
}

#if defined(SIMPLE_NN_V16)
SIMPLE_NN_V16 static void simple_nn_network_evaluation_v16(const gpunn_kernel_call *call, float *const *stat, int64_t begin,
                                                           int64_t end, double *sums)
{
    (void)stat, (void)sums;
    simple_nn_network_evaluation_samples(16, call, begin, end);
}

SIMPLE_NN_V8 static void simple_nn_network_evaluation_v8(const gpunn_kernel_call *call, float *const *stat, int64_t begin,
                                                         int64_t end, double *sums)
{
    (void)stat, (void)sums;
    simple_nn_network_evaluation_samples(8, call, begin, end);
}
#endif

static void simple_nn_network_evaluation_narrow(const gpunn_kernel_call *call, float *const *stat, int64_t begin,
                                                 int64_t end, double *sums)
{
    (void)stat, (void)sums;
    simple_nn_network_evaluation_samples(SIMPLE_NN_NARROWEST, call, begin, end);
}

static int simple_nn_network_evaluation(const gpunn_kernel_call *call)
{
    const int lanes = simple_nn_lanes(call->lanes);
    simple_nn_loop loop = simple_nn_network_evaluation_narrow;
    if (call->stale) {
        float *const packed = (float *)call->cache;
        simple_nn_pack(packed, (const float *)call->data[1], (const float *)call->data[2], 20, 50, lanes);
        simple_nn_pack(packed + 1344, (const float *)call->data[3], (const float *)call->data[4], 50, 1, lanes);
    }
#if defined(SIMPLE_NN_V16)
    if (lanes == 16) loop = simple_nn_network_evaluation_v16;
    if (lanes == 8) loop = simple_nn_network_evaluation_v8;
#endif
    simple_nn_run(loop, call, NULL, call->batch, 48, simple_nn_slices(call->batch, 249), NULL, 0);
    return 0;
}

static size_t simple_nn_network_evaluation_workspace(int64_t batch, int threads)
{
    (void)batch, (void)threads;
    return 0;
}

/* g0, forward: t9, grad_y, grad_fc2, sum0 */
SIMPLE_NN_LOOPS(simple_nn_g0_forward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float grad_y_block[1024];
    float grad_fc2_block[1024];
    float sum0_block[1024];
    const float *const fc2 = (const float *)call->data[0];
    const float *const grad_t11 = (const float *)call->data[6];
    const float *const y = (const float *)call->data[1];
    float *const t9 = (float *)call->data[2];
    float *const grad_y = (float *)call->data[5];
    float *const grad_fc2 = (float *)call->data[4];
    const float grad_t11_0 = grad_t11[0];
    const float elements = (float)(call->batch);
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int n = simple_nn_least(SIMPLE_NN_BLOCK, end - i);
        float *const grad_y_at = grad_y == NULL || call->accumulate[5] ? grad_y_block : grad_y + i;
        float *const grad_fc2_at = grad_fc2 == NULL || call->accumulate[4] ? grad_fc2_block : grad_fc2 + i;
        SIMPLE_NN_VECTOR
        for (int j = 0; j < n; ++j)
            simple_nn_g0_forward_0(fc2[i + j], grad_t11_0, elements, y[i + j], &t9[i + j], &grad_y_at[j],
                                   &grad_fc2_at[j], &sum0_block[j]);
        if (grad_y_at == grad_y_block && grad_y != NULL) simple_nn_add(grad_y + i, grad_y_block, n);
        if (grad_fc2_at == grad_fc2_block && grad_fc2 != NULL) simple_nn_add(grad_fc2 + i, grad_fc2_block, n);
        sums[0] += (double)simple_nn_sum(sum0_block, n);
        i += n;
    }
}

static int simple_nn_g0_forward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = simple_nn_slices(call->batch, 16384);
        simple_nn_run(simple_nn_g0_forward_0_loop, call, NULL, call->batch, 16, slices, sums, 8);
        {
            const float elements = (float)(call->batch);
            float *const t11 = (float *)call->data[3];
            float t11_value;
            simple_nn_g0_forward_0_final(simple_nn_total(sums, slices, 8), elements, &t11_value);
            t11[0] = t11_value;
        }
    }
    return 0;
}

static size_t simple_nn_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = simple_nn_room(simple_nn_slices(batch, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}

/* g1, evaluation: sum0 */
SIMPLE_NN_LOOPS(simple_nn_g1_evaluation_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float sum0_block[1024];
    const float *const t9 = (const float *)call->data[0];
    const float *const y = (const float *)call->data[1];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int n = simple_nn_least(SIMPLE_NN_BLOCK, end - i);
        SIMPLE_NN_VECTOR
        for (int j = 0; j < n; ++j)
            simple_nn_g1_evaluation_0(t9[i + j], y[i + j], &sum0_block[j]);
        sums[0] += (double)simple_nn_sum(sum0_block, n);
        i += n;
    }
}

static int simple_nn_g1_evaluation(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = simple_nn_slices(call->batch, 16384);
        simple_nn_run(simple_nn_g1_evaluation_0_loop, call, NULL, call->batch, 16, slices, sums, 8);
        {
            const float elements = (float)(call->batch);
            float *const t11 = (float *)call->data[2];
            float t11_value;
            simple_nn_g1_evaluation_0_final(simple_nn_total(sums, slices, 8), elements, &t11_value);
            t11[0] = t11_value;
        }
    }
    return 0;
}

static size_t simple_nn_g1_evaluation_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = simple_nn_room(simple_nn_slices(batch, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}

/* g2, evaluation: t15 */
SIMPLE_NN_LOOPS(simple_nn_g2_evaluation_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const y = (const float *)call->data[2];
    const float *const t12 = (const float *)call->data[1];
    const float *const t9 = (const float *)call->data[0];
    float *const t15 = (float *)call->data[3];
    const float t12_0 = t12[0];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = simple_nn_least(SIMPLE_NN_BLOCK, end - i);
        SIMPLE_NN_VECTOR
        for (int j = 0; j < n; ++j)
            simple_nn_g2_evaluation_0(y[i + j], t12_0, t9[i + j], &t15[i + j]);
        i += n;
    }
}

static int simple_nn_g2_evaluation(const gpunn_kernel_call *call)
{
    {
        const int slices = simple_nn_slices(call->batch, 16384);
        simple_nn_run(simple_nn_g2_evaluation_0_loop, call, NULL, call->batch, 16, slices, NULL, 0);
    }
    return 0;
}

static size_t simple_nn_g2_evaluation_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    return 0;
}

/* sgd */
SIMPLE_NN_LOOPS(simple_nn_update0_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float lr = n.lr;
    const float ahead = n.once[2];
    const float weight_decay = u->setting[3];
    const float behind = n.once[3];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    (void)lanes;
    SIMPLE_NN_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = simple_nn_where(g > limit, limit, simple_nn_where(g < -limit, -limit, g));
        simple_nn_update0_step(p[i], lr, ahead, g, weight_decay, behind, &p[i]);
    }
}

typedef struct simple_nn_update0_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} simple_nn_update0_work;

static void simple_nn_update0_task(void *arg, int index, int threads)
{
    const simple_nn_update0_work *w = (const simple_nn_update0_work *)arg;
    simple_nn_update0_loop(w->u, *w->numbers, w->lanes,
                     simple_nn_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     simple_nn_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int simple_nn_update0(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    simple_nn_update0_work work = {u, numbers, simple_nn_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, simple_nn_update0_task, &work);
    return 0;
}
#ifdef SIMPLE_NN_OPTIMIZED
#pragma GCC pop_options
#undef SIMPLE_NN_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char simple_nn_network_operands0[] = {
    0, 1, 2,
};
static const signed char simple_nn_network_operands1[] = {
    -1,
};
static const signed char simple_nn_network_operands2[] = {
    -2, 3, 4,
};
static const signed char simple_nn_network_operands3[] = {
    -3,
};
static const gpunn_kernel_node simple_nn_network_nodes[] = {
    {"linear f32 [N,50]", simple_nn_network_operands0, 3},
    {"relu f32 [N,50]", simple_nn_network_operands1, 1},
    {"linear f32 [N,1]", simple_nn_network_operands2, 3},
    {"sigmoid f32 [N,1]", simple_nn_network_operands3, 1},
};
static const char *const simple_nn_network_externals[] = {
    "f32 [N,20]",
    "f32 [50,20]",
    "f32 [50]",
    "f32 [1,50]",
    "f32 [1]",
};
static const gpunn_kernel_operand simple_nn_network_evaluation_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 3, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 4, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -4, -1},
};
static const signed char simple_nn_step_operands0[] = {
    0, 1, 2,
};
static const signed char simple_nn_step_operands1[] = {
    -1,
};
static const signed char simple_nn_step_operands2[] = {
    -2, 3, 4,
};
static const signed char simple_nn_step_operands3[] = {
    -3,
};
static const signed char simple_nn_step_operands4[] = {
    -4, 5,
};
static const signed char simple_nn_step_operands5[] = {
    -5,
};
static const gpunn_kernel_node simple_nn_step_nodes[] = {
    {"linear f32 [N,50]", simple_nn_step_operands0, 3},
    {"relu f32 [N,50]", simple_nn_step_operands1, 1},
    {"linear f32 [N,1]", simple_nn_step_operands2, 3},
    {"sigmoid f32 [N,1]", simple_nn_step_operands3, 1},
    {"binary_cross_entropy f32 [N,1]", simple_nn_step_operands4, 2},
    {"sum dims=0,1 mean=1 f32 []", simple_nn_step_operands5, 1},
};
static const char *const simple_nn_step_externals[] = {
    "f32 [N,20]",
    "f32 [50,20]",
    "f32 [50]",
    "f32 [1,50]",
    "f32 [1]",
    "f32 [N,1]",
};
static const gpunn_kernel_operand simple_nn_step_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 3, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 4, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 5, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -4, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -6, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -6, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 3, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 4, -1},
};
static const signed char simple_nn_g0_operands0[] = {
    0,
};
static const signed char simple_nn_g0_operands1[] = {
    -1, 1,
};
static const signed char simple_nn_g0_operands2[] = {
    -2,
};
static const gpunn_kernel_node simple_nn_g0_nodes[] = {
    {"sigmoid f32 [N,1]", simple_nn_g0_operands0, 1},
    {"binary_cross_entropy f32 [N,1]", simple_nn_g0_operands1, 2},
    {"sum dims=0,1 mean=1 f32 []", simple_nn_g0_operands2, 1},
};
static const char *const simple_nn_g0_externals[] = {
    "f32 [N,1]",
    "f32 [N,1]",
};
static const gpunn_kernel_operand simple_nn_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -3, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -3, -1},
};
static const signed char simple_nn_g1_operands0[] = {
    0, 1,
};
static const signed char simple_nn_g1_operands1[] = {
    -1,
};
static const gpunn_kernel_node simple_nn_g1_nodes[] = {
    {"binary_cross_entropy f32 [N,1]", simple_nn_g1_operands0, 2},
    {"sum dims=0,1 mean=1 f32 []", simple_nn_g1_operands1, 1},
};
static const char *const simple_nn_g1_externals[] = {
    "f32 [N,1]",
    "f32 [N,1]",
};
static const gpunn_kernel_operand simple_nn_g1_evaluation_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -2, -1},
};
static const signed char simple_nn_g2_operands0[] = {
    0, 1,
};
static const signed char simple_nn_g2_operands1[] = {
    2, 1,
};
static const signed char simple_nn_g2_operands2[] = {
    -1, -2,
};
static const gpunn_kernel_node simple_nn_g2_nodes[] = {
    {"gt f32 [N,1]", simple_nn_g2_operands0, 2},
    {"gt f32 [N,1]", simple_nn_g2_operands1, 2},
    {"eq f32 [N,1]", simple_nn_g2_operands2, 2},
};
static const char *const simple_nn_g2_externals[] = {
    "f32 [N,1]",
    "f32 []",
    "f32 [N,1]",
};
static const gpunn_kernel_operand simple_nn_g2_evaluation_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -3, -1},
};
static const gpunn_kernel simple_nn_set[] = {
    {"network",
     "t9 = sigmoid(linear(relu(linear(x, fc1_weight, fc1_bias)), fc2_weight, fc2_bias))",
     simple_nn_network_nodes, 4,
     simple_nn_network_externals, 5,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{simple_nn_network_evaluation_operands, 6, simple_nn_network_evaluation, simple_nn_network_evaluation_workspace, 8640},
      {NULL, 0, NULL, NULL, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
    {"step",
     "t9 = sigmoid(linear(relu(linear(x, fc1_weight, fc1_bias)), fc2_weight, fc2_bias)); t11 = mean(binary_cross_entropy(t9, y))",
     simple_nn_step_nodes, 6,
     simple_nn_step_externals, 6,
     NULL, 0,
     GPUNN_KERNEL_ANY, true,
     {{NULL, 0, NULL, NULL, 0},
      {simple_nn_step_forward_operands, 13, NULL, NULL, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
    {"g0",
     "t9 = sigmoid(fc2); t11 = mean(binary_cross_entropy(t9, y))",
     simple_nn_g0_nodes, 3,
     simple_nn_g0_externals, 2,
     NULL, 0,
     GPUNN_KERNEL_ANY, true,
     {{NULL, 0, NULL, NULL, 0},
      {simple_nn_g0_forward_operands, 7, simple_nn_g0_forward, simple_nn_g0_forward_workspace, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
    {"g1",
     "t11 = mean(binary_cross_entropy(t9, y))",
     simple_nn_g1_nodes, 2,
     simple_nn_g1_externals, 2,
     NULL, 0,
     GPUNN_KERNEL_ANY, true,
     {{simple_nn_g1_evaluation_operands, 3, simple_nn_g1_evaluation, simple_nn_g1_evaluation_workspace, 0},
      {NULL, 0, NULL, NULL, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
    {"g2",
     "t15 = eq(gt(t9, t12), gt(y, t12))",
     simple_nn_g2_nodes, 3,
     simple_nn_g2_externals, 3,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{simple_nn_g2_evaluation_operands, 4, simple_nn_g2_evaluation, simple_nn_g2_evaluation_workspace, 0},
      {NULL, 0, NULL, NULL, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int simple_nn_evaluation0[] = {
    4, 5, 8, 9, 0, 2, 3, 6, 7,
};
static const int simple_nn_evaluation1[] = {
    10, 11, 9, 1,
};
static const int simple_nn_evaluation2[] = {
    13, 14, 15, 9, 12, 1,
};
static const gpunn_kernel_instance simple_nn_evaluation[] = {
    {0, simple_nn_evaluation0},
    {3, simple_nn_evaluation1},
    {4, simple_nn_evaluation2},
};
static const int simple_nn_training0[] = {
    4, 5, 8, 9, 10, 11, 0, 2, 3, 6, 7, 1,
};
static const int simple_nn_training1[] = {
    9, 10, 11, 8, 1,
};
static const gpunn_kernel_instance simple_nn_training[] = {
    {1, simple_nn_training0},
    {2, simple_nn_training1},
};
static const gpunn_kernel_update simple_nn_updates[] = {
    {GPUNN_UPDATE_SGD, {0, 0, 0, 0, 0, 0}, GPUNN_F32, simple_nn_update0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda simple_nn_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda simple_nn_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda simple_nn_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda simple_nn_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set simple_nn_kernels = {
    GPUNN_KERNELS_ABI,
    SIMPLE_NN_KERNELS_STAMP,
    "simple_nn",
    "0.2",
    "f747829dacd7b34a0908812bd8cf3afc76481dcc0a213d6ff68a5a714731227d",
    "python3 -m generator examples/kernels/simple_nn.json -o examples/kernels/simple_nn",
    simple_nn_set,
    5,
    17,
    simple_nn_evaluation,
    simple_nn_training,
    3,
    2,
    simple_nn_updates,
    1,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &simple_nn_kernels_cuda,
#else
    NULL,
#endif
};
#undef SIMPLE_NN_KERNELS_IMPLEMENTATION
#endif
