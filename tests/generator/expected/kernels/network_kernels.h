/* network_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 e16257e499be24e5c00f083228c5e28cda736f803ab07a93ed6da291cf8f003f
 * renew it with: python3 -m generator network.json -o network
 */
#ifndef NETWORK_KERNELS_H
#define NETWORK_KERNELS_H
#include "gpunn.h"

#define NETWORK_KERNELS_STAMP 0x1978311bb41d12f6ull /* must equal the stamp in network_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &network_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define NETWORK_KERNELS_IMPLEMENTATION
 * Link network_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set network_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(NETWORK_KERNELS_IMPLEMENTATION) || defined(NETWORK_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "network_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(NETWORK_KERNELS_CUDA)
#define NETWORK_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

NETWORK_FN float network_tanh(float x)
{
    return tanhf(x);
}

/* erf with a bound on the absolute error only: for results that are added to a number not near 0. */
NETWORK_FN float network_erf_near(float x)
{
    return erff(x);
}

/* Word i of 1 / (2 pi) in binary: word 0 is 0, word 1 holds the first 32 bits after the binary point, and so
 * on. */
NETWORK_FN unsigned network_turns(unsigned i)
{
    return i == 0   ? 0
           : i == 1 ? 0x28BE60DBu
           : i == 2 ? 0x9391054Au
           : i == 3 ? 0x7F09D5F4u
           : i == 4 ? 0x7D4D3770u
           : i == 5 ? 0x36D8A566u
           : i == 6 ? 0x4F10E410u
                    : 0x7F9458EAu;
}

/* sin(x + quadrants pi / 2). Unlike in sinf, the reduction of large x needs no local memory. x / (2 pi),
 * without whole turns, is the product of x's 32-bit significand and the 96 relevant bits of 1 / (2 pi). */
NETWORK_FN float network_sine(float x, int quadrants)
{
    float turned = rintf(x * 0.636619772f), r;
    if (fabsf(x) < 1e5f) { /* subtracts pi / 2 in three parts */
        r = fmaf(-turned, 1.57079601f, x);
        r = fmaf(-turned, 3.13916473e-7f, r);
        r = fmaf(-turned, 5.39030253e-15f, r);
        quadrants += (int)turned;
    } else if (fabsf(x) < INFINITY) {
        unsigned bits = __float_as_uint(x), exponent = (bits >> 23 & 0xFF) - 126, word = exponent / 32,
                 shift = exponent % 32;
        uint64_t significand = bits << 8 | 0x80000000u, part[3];
#pragma unroll
        for (unsigned k = 0; k < 3; k++)
            part[k] = ((uint64_t)network_turns(word + k) << 32 | network_turns(word + k + 1)) << shift >> 32;
        uint64_t turns = (significand * part[0] << 32) + significand * part[1] +
                         (significand * part[2] >> 32);
        int quadrant = (int)((turns + (1ull << 61)) >> 62);
        r = (float)(int64_t)(turns - ((uint64_t)quadrant << 62)) * 3.40612167e-19f; /* pi / 2 / 2^62 */
        r = x < 0 ? -r : r;
        quadrants += x < 0 ? -quadrant : quadrant;
    } else
        r = NAN;
    float s = r * r, sine = fmaf(fmaf(fmaf(fmaf(2.86567956e-6f, s, -1.98559923e-4f), s, 8.33338592e-3f), s,
                                      -1.66666672e-1f),
                                 r * s, r);
    float cosine = fmaf(fmaf(fmaf(fmaf(2.44677067e-5f, s, -1.38877297e-3f), s, 4.16666567e-2f), s, -0.5f), s,
                        1.0f);
    float y = quadrants & 1 ? cosine : sine;
    return quadrants & 2 ? -y : y;
}

NETWORK_FN float network_sin(float x)
{
    return network_sine(x, 0);
}
#elif defined(NETWORK_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define NETWORK_FN __attribute__((unused, always_inline)) static inline
#else
#define NETWORK_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define NETWORK_OPTIMIZED
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

NETWORK_FN float network_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

NETWORK_FN uint32_t network_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

NETWORK_FN float network_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

NETWORK_FN float network_max(float a, float b)
{
    return network_where(a > b, a, network_where(a != a, a, b));
}

/* x clamped to [low, high]; NaN stays NaN. */
NETWORK_FN float network_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
NETWORK_FN float network_exp2i(int32_t n)
{
    return network_float_of((uint32_t)(n + 127) << 23);
}

/* The nearest integer to x, for |x| < 2^22. */
NETWORK_FN int32_t network_nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 2^23: adding it rounds x to an integer in the low bits */
    return (int32_t)(network_bits_of(x + magic) - network_bits_of(magic));
}

/* exp(r) - 1 for |r| <= ln 2 / 2. */
NETWORK_FN float network_expm1_near(float r)
{
    const float p = (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    return r + r * r * (p * r + 0.5f);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^15. Returns exp(r) - 1. */
NETWORK_FN float network_exp_reduce(float x, int32_t *n)
{
    *n = network_nearest(x * 1.44269504f);
    const float k = (float)*n; /* ln 2 is split in two; the high part has 9 bits, so k times it is exact */
    return network_expm1_near(x - k * 0.693359375f + k * 2.12194440e-4f);
}

NETWORK_FN float network_exp(float x)
{
    int32_t     n;
    const float e = network_exp_reduce(network_limit(x, -87.3f, 89), &n) + 1;
    return (e + e) * network_exp2i(n - 1);
}

/* exp(x) - 1 for |x| <= 89. */
NETWORK_FN float network_expm1_inside(float x)
{
    int32_t     n;
    const float e = network_exp_reduce(x, &n);
    const float half_scale = network_exp2i(n > -126 ? n - 1 : -127);
    return 2 * (half_scale * e + (half_scale - 0.5f));
}

/* 1 / sqrt(x) for normal x > 0, by Newton's method. C's sqrtf may set errno, which prevents vectorization. */
NETWORK_FN float network_root(float x)
{
    float r = network_float_of(0x5f375a86u - (network_bits_of(x) >> 1));
    r *= 1.5f - x * r * (0.5f * r);
    r *= 1.5f - x * r * (0.5f * r);
    return r * (1.5f - x * r * (0.5f * r));
}

NETWORK_FN float network_rsqrt(float x)
{
    const float r = network_root(x), y = r + 0.5f * r * (1 - x * r * r);
    const float outside = network_where(x < 0, NAN, network_where(x < FLT_MIN, copysignf(INFINITY, x), x));
    return network_where(x >= FLT_MIN, network_where(x <= FLT_MAX, y, 0), outside);
}

NETWORK_FN float network_tanh(float x)
{
    const float e = network_expm1_inside(2 * network_limit(fabsf(x), 0, 10));
    return copysignf(e / (e + 2), x);
}

/* Returns erf(x), within 2.5e-7; *gauss = exp(-x^2). For a = |x|, erf(a) = 1 - exp(-a^2) times a polynomial
 * in a. */
NETWORK_FN float network_erf_gauss(float x, float *gauss)
{
    const float a = network_limit(fabsf(x), 0, 9.38f); /* gauss is 0 there */
    int32_t     n;
    const float e = network_exp_reduce(-(a * a), &n), scale = network_exp2i(n);
    float       p = (0.000104428294f * a - 0.00159332412f) * a + 0.010871639f;
    p = ((p * a - 0.0446807411f) * a + 0.127030288f) * a - 0.275080752f;
    p = ((p * a + 0.489239109f) * a - 0.749611248f) * a + 0.999667174f;
    p = (p * a - 1.12836286f) * a + 0.999999868f;
    *gauss = scale * e + scale;
    return copysignf(1 - *gauss * p, x);
}

/* erf with a bound on the absolute error only. */
NETWORK_FN float network_erf_near(float x)
{
    float gauss;
    return network_erf_gauss(x, &gauss);
}

/* sin(x + quadrants pi / 2). */
NETWORK_FN float network_sine(float x, int32_t quadrants)
{
    const double magic = 6755399441055744.0; /* 1.5 2^52: adding it rounds to an integer */
    /* NaN becomes 1e9 here; x - x at the end makes it NaN again. */
    const double from = (double)network_where(x < 1e9f, network_where(x > -1e9f, x, -1e9f), 1e9f);
    const double turned = from * 0.63661977236758134 + magic, k = turned - magic;
    const float  near = (float)(from - k * 1.5707963267341256 - k * 6.0771005065061922e-11);
    const float  r = network_limit(near, -0.79f, 0.79f), s = r * r;
    const float  sine = r + r * s *
                               ((-1.98559923e-4f + 2.86567956e-6f * s) * s * s +
                                (8.33338592e-3f * s - 1.66666672e-1f));
    const float  cosine = 1 + s * (((2.44677067e-5f * s - 1.38877297e-3f) * s + 4.16666567e-2f) * s - 0.5f);
    const int32_t  quadrant = (int32_t)k + quadrants;
    const uint32_t sign = ((uint32_t)quadrant & 2u) << 30;
    const float    y = network_where((quadrant & 1) != 0, cosine, sine);
    return network_float_of(network_bits_of(y) ^ sign) + (x - x);
}

NETWORK_FN float network_sin(float x)
{
    return network_sine(x, 0);
}
#endif

#if defined(NETWORK_KERNELS_IMPLEMENTATION) || defined(NETWORK_KERNELS_CUDA)
/* network, evaluation: h2 = tanh(linear(concat(layer_norm(linear(slice(gelu(linear(sin(x * s * constant_6
 * + constant_8), fc1_weight, fc1_bias))), narrow_weight, narrow_bias), ln_weight, ln_bias), x,
 * sum(linear(slice(words), each_weight, each_bias))), fc2_weight, fc2_bias)); rms = rms_norm(linear(h2,
 * fc3_weight, fc3_bias) + h2, rms_weight); shares = softmax(linear(rms, policy_weight, policy_bias));
 * value = linear(rms ...; bytes: 172 per sample and 132508 */
NETWORK_FN void network_apply_mul(float x, float y, float *result)
{
    *result = x * y;
}

NETWORK_FN void network_apply_sin(float z, float x, float y, float *result)
{
    *result = network_sin(z + x * y);
}

NETWORK_FN void network_apply_gelu(float x, float *result)
{
    *result = 0.5f * x * (network_erf_near(0.70710677f * x) + 1);
}

NETWORK_FN void network_apply_tanh(float x, float *result)
{
    *result = network_tanh(x);
}

NETWORK_FN void network_apply_add(float x, float y, float *result)
{
    *result = x + y;
}
#endif

#if defined(NETWORK_KERNELS_IMPLEMENTATION) && !defined(NETWORK_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { NETWORK_BLOCK = 1024, NETWORK_ROW = 4096, NETWORK_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define NETWORK_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define NETWORK_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define NETWORK_VECTOR _Pragma("GCC ivdep")
#else
#define NETWORK_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define NETWORK_SELDOM __attribute__((unused, noinline)) static
#else
#define NETWORK_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define NETWORK_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define NETWORK_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define NETWORK_V8 __attribute__((target("avx2,fma")))
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
NETWORK_FN int network_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > NETWORK_SLICES ? NETWORK_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
NETWORK_FN int64_t network_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*network_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

NETWORK_FN void network_run_slice(network_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = network_slice(count, grain, slices, slice),
                  end = network_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct network_work {
    network_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} network_work;

NETWORK_SELDOM void network_task(void *arg, int index, int threads)
{
    const network_work *w = (const network_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        network_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
NETWORK_SELDOM void network_run(network_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    network_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, network_task, &work);
}

NETWORK_FN int network_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* The sum of x[n]: 16 interleaved partial sums, added pairwise, plus the rest. */
NETWORK_FN float network_sum(const float *x, int n)
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

#define NETWORK_LANES 8 /* independent partial sums, which compilers vectorize */

/* The sum of (x[i] - mean)^2, in the order of network_sum. */
NETWORK_FN float network_squares(const float *x, float mean, int n)
{
    float lane[NETWORK_LANES] = {0}, rest = 0;
    int   i = 0;
    for (; i + NETWORK_LANES <= n; i += NETWORK_LANES)
        for (int j = 0; j < NETWORK_LANES; ++j) lane[j] += (x[i + j] - mean) * (x[i + j] - mean);
    for (; i < n; ++i) rest += (x[i] - mean) * (x[i] - mean);
    for (int width = NETWORK_LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    return lane[0] + rest;
}

/* y = (x - mean) * scale * w + b. w[n / each] and b[n / each] apply to `each` elements per number; both may
 * be NULL. */
NETWORK_FN void network_affine(float *y, const float *x, float mean, float scale, const float *w, const float *b,
                    int n, int each)
{
    for (int i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale * (w ? w[i / each] : 1) + (b ? b[i / each] : 0);
}

/* y = layer_norm(x) of x[rows][n], or rms_norm(x) if `root`. w[n] and b[n] may be NULL. */
NETWORK_FN void network_layer_norm(float *y, const float *x, const float *w, const float *b, int rows, int n,
                        float eps, bool root)
{
    for (int i = 0; i < rows; ++i, x += n, y += n) {
        const float mean = root ? 0 : network_sum(x, n) / (float)n;
        const float scale = network_rsqrt(network_squares(x, mean, n) / (float)n + eps);
        network_affine(y, x, mean, scale, w, b, n, 1);
    }
}

/* y = softmax(x) along the middle axis of x[outer][n][inner]. y may be x. */
NETWORK_FN void network_softmax(float *y, const float *x, int outer, int n, int inner)
{
    for (int line = 0; line < outer * inner; ++line) {
        const int at = line / inner * n * inner + line % inner;
        float     top = x[at], sum = 0;
        for (int i = 1; i < n; ++i) top = network_max(top, x[at + i * inner]);
        for (int i = 0; i < n; ++i) sum += y[at + i * inner] = network_exp(x[at + i * inner] - top);
        for (int i = 0; i < n; ++i) y[at + i * inner] /= sum;
    }
}

/* The narrowest vectors: for processors without the wider ones. */
#if defined(__GNUC__)
#define NETWORK_V4
enum { NETWORK_NARROWEST = 4 };
#else
#define NETWORK_V1
enum { NETWORK_NARROWEST = 1 };
#endif
#if defined(__clang__)
#define NETWORK_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define NETWORK_UNROLL _Pragma("GCC unroll 16")
#if defined(__CUDACC__)
#pragma nv_diag_suppress 1675 /* nvcc does not know that pragma, but passes it to gcc */
#endif
#else
#define NETWORK_UNROLL
#endif

/* Keeps x in a register. Otherwise gcc reloads it from memory for each product, and the loads become the
 * bottleneck. */
#if defined(__GNUC__) && defined(__x86_64__) && !defined(__clang__)
#define NETWORK_HOLD(x) __asm__("" : "+v"(x))
#else
#define NETWORK_HOLD(x) (void)(x)
#endif

/* Packs w[out][in] and b[out] (or NULL) as panels of several vectors of y's columns; the last panel has what
 * is left. A panel holds the columns' biases, then one row per input. Columns beyond `out` are 0. */
NETWORK_SELDOM void network_pack(float *to, const float *w, const float *b, int in, int out, int lanes)
{
    const int panel = (lanes == 8 ? 2 : 4) * lanes;
    for (int j = 0; j < out; j += panel) {
        const int width = (network_least(out - j, panel) + lanes - 1) / lanes * lanes;
        for (int c = 0; c < width; ++c) *to++ = b != NULL && j + c < out ? b[j + c] : 0;
        for (int k = 0; k < in; ++k)
            for (int c = 0; c < width; ++c) *to++ = j + c < out ? w[(j + c) * in + k] : 0;
    }
}

/* The vector width in floats to use on a processor with vectors of `most` floats. */
NETWORK_FN int network_lanes(int most)
{
#if defined(NETWORK_V16)
    if (most >= 8) return most >= 16 ? 16 : 8;
#endif
    (void)most;
    return NETWORK_NARROWEST;
}

#if defined(NETWORK_V16)
#if defined(__GNUC__)
typedef float network_v16 __attribute__((vector_size(4 * 16)));
typedef float network_v16_memory __attribute__((vector_size(4 * 16), aligned(4), may_alias));
#else
typedef float network_v16, network_v16_memory;
#endif

/* y[j] = value[j] for j < columns; the whole vector if `columns` is larger. */
NETWORK_V16 NETWORK_FN void network_v16_put(float *y, network_v16 value, int columns)
{
    if (columns >= 16) {
        *(network_v16_memory *)y = value;
        return;
    }
    float part[16];
    memcpy(part, &value, sizeof part);
    for (int j = 0; j < 16; ++j)
        if (j < columns) y[j] = part[j];
}

/* y = x w + bias for R rows and V vectors of columns. Each element has U partial sums, so that about 8 sums
 * are independent of each other. Partial sum u adds inputs u, u + U, ...; the first starts with the bias. */
NETWORK_V16 NETWORK_FN void network_v16_tile(float *y, int64_t y_row, const float *x, int64_t x_row,
                                             const float *w, int in, int columns, const int R, const int V)
{
    const int U = R * V >= 6 ? 1 : R * V >= 3 ? 2 : 4;
    const network_v16 none = {0};
    network_v16 sum[6][8], factor[4];
    NETWORK_UNROLL
    for (int i = 0; i < R; ++i) {
        NETWORK_UNROLL
        for (int v = 0; v < V; ++v) sum[i][v] = *(const network_v16_memory *)(w + v * 16);
        NETWORK_UNROLL
        for (int v = V; v < V * U; ++v) sum[i][v] = none;
    }
    w += V * 16;
    for (int k = 0; k < in; k += U) {
        NETWORK_UNROLL
        for (int u = 0; u < U; ++u) {
            if (k + u >= in) break;
            NETWORK_UNROLL
            for (int v = 0; v < V; ++v) {
                factor[v] = *(const network_v16_memory *)(w + (u * V + v) * 16);
                if (R > 1) NETWORK_HOLD(factor[v]);
            }
            NETWORK_UNROLL
            for (int i = 0; i < R; ++i) {
                NETWORK_UNROLL
                for (int v = 0; v < V; ++v) sum[i][u * V + v] += x[i * x_row + k + u] * factor[v];
            }
        }
        w += U * V * 16;
    }
    NETWORK_UNROLL
    for (int i = 0; i < R; ++i) {
        NETWORK_UNROLL
        for (int v = 0; v < V; ++v) {
            NETWORK_UNROLL
            for (int u = 1; u < U; ++u) sum[i][v] += sum[i][u * V + v];
            network_v16_put(y + i * y_row + v * 16, sum[i][v], columns - v * 16);
        }
    }
}

/* All rows of V vectors of columns, in tiles whose sums fit into registers. */
NETWORK_V16 NETWORK_FN void network_v16_panel(float *y, int64_t y_row, const float *x, int64_t x_row,
                                              const float *w, int rows, int in, int columns, const int V)
{
    int i = 0;
    for (; 6 * V <= 24 && i + 6 <= rows; i += 6)
        network_v16_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 6, V);
    for (; 4 * V <= 24 && i + 4 <= rows; i += 4)
        network_v16_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 4, V);
    for (; i + 2 <= rows; i += 2)
        network_v16_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 2, V);
    if (i < rows) network_v16_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 1, V);
}

/* y[rows][out] = x w^T + b with packed weights, panel by panel. */
NETWORK_V16 NETWORK_SELDOM void network_v16_product(float *y, const float *x, int64_t x_row,
                                                    const float *packed, int rows, int in, int out)
{
    for (int j = 0, width; j < out; j += 4 * 16, packed += (in + 1) * width) {
        const int columns = network_least(out - j, 4 * 16);
        width = (columns + 16 - 1) / 16 * 16;
        if (columns <= 16)
            network_v16_panel(y + j, out, x, x_row, packed, rows, in, columns, 1);
        else if (columns <= 2 * 16)
            network_v16_panel(y + j, out, x, x_row, packed, rows, in, columns, 2);
        else if (columns <= 3 * 16)
            network_v16_panel(y + j, out, x, x_row, packed, rows, in, columns, 3);
        else
            network_v16_panel(y + j, out, x, x_row, packed, rows, in, columns, 4);
    }
}
#endif

#if defined(NETWORK_V8)
#if defined(__GNUC__)
typedef float network_v8 __attribute__((vector_size(4 * 8)));
typedef float network_v8_memory __attribute__((vector_size(4 * 8), aligned(4), may_alias));
#else
typedef float network_v8, network_v8_memory;
#endif

/* y[j] = value[j] for j < columns; the whole vector if `columns` is larger. */
NETWORK_V8 NETWORK_FN void network_v8_put(float *y, network_v8 value, int columns)
{
    if (columns >= 8) {
        *(network_v8_memory *)y = value;
        return;
    }
    float part[8];
    memcpy(part, &value, sizeof part);
    for (int j = 0; j < 8; ++j)
        if (j < columns) y[j] = part[j];
}

/* y = x w + bias for R rows and V vectors of columns. Each element has U partial sums, so that about 8 sums
 * are independent of each other. Partial sum u adds inputs u, u + U, ...; the first starts with the bias. */
NETWORK_V8 NETWORK_FN void network_v8_tile(float *y, int64_t y_row, const float *x, int64_t x_row,
                                             const float *w, int in, int columns, const int R, const int V)
{
    const int U = R * V >= 6 ? 1 : R * V >= 3 ? 2 : 4;
    const network_v8 none = {0};
    network_v8 sum[6][8], factor[4];
    NETWORK_UNROLL
    for (int i = 0; i < R; ++i) {
        NETWORK_UNROLL
        for (int v = 0; v < V; ++v) sum[i][v] = *(const network_v8_memory *)(w + v * 8);
        NETWORK_UNROLL
        for (int v = V; v < V * U; ++v) sum[i][v] = none;
    }
    w += V * 8;
    for (int k = 0; k < in; k += U) {
        NETWORK_UNROLL
        for (int u = 0; u < U; ++u) {
            if (k + u >= in) break;
            NETWORK_UNROLL
            for (int v = 0; v < V; ++v) {
                factor[v] = *(const network_v8_memory *)(w + (u * V + v) * 8);
                if (R > 1) NETWORK_HOLD(factor[v]);
            }
            NETWORK_UNROLL
            for (int i = 0; i < R; ++i) {
                NETWORK_UNROLL
                for (int v = 0; v < V; ++v) sum[i][u * V + v] += x[i * x_row + k + u] * factor[v];
            }
        }
        w += U * V * 8;
    }
    NETWORK_UNROLL
    for (int i = 0; i < R; ++i) {
        NETWORK_UNROLL
        for (int v = 0; v < V; ++v) {
            NETWORK_UNROLL
            for (int u = 1; u < U; ++u) sum[i][v] += sum[i][u * V + v];
            network_v8_put(y + i * y_row + v * 8, sum[i][v], columns - v * 8);
        }
    }
}

/* All rows of V vectors of columns, in tiles whose sums fit into registers. */
NETWORK_V8 NETWORK_FN void network_v8_panel(float *y, int64_t y_row, const float *x, int64_t x_row,
                                              const float *w, int rows, int in, int columns, const int V)
{
    int i = 0;
    for (; 6 * V <= 12 && i + 6 <= rows; i += 6)
        network_v8_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 6, V);
    for (; 4 * V <= 12 && i + 4 <= rows; i += 4)
        network_v8_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 4, V);
    for (; i + 2 <= rows; i += 2)
        network_v8_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 2, V);
    if (i < rows) network_v8_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 1, V);
}

/* y[rows][out] = x w^T + b with packed weights, panel by panel. */
NETWORK_V8 NETWORK_SELDOM void network_v8_product(float *y, const float *x, int64_t x_row,
                                                    const float *packed, int rows, int in, int out)
{
    for (int j = 0, width; j < out; j += 2 * 8, packed += (in + 1) * width) {
        const int columns = network_least(out - j, 2 * 8);
        width = (columns + 8 - 1) / 8 * 8;
        if (columns <= 8)
            network_v8_panel(y + j, out, x, x_row, packed, rows, in, columns, 1);
        else
            network_v8_panel(y + j, out, x, x_row, packed, rows, in, columns, 2);
    }
}
#endif

#if defined(NETWORK_V4)
#if defined(__GNUC__)
typedef float network_v4 __attribute__((vector_size(4 * 4)));
typedef float network_v4_memory __attribute__((vector_size(4 * 4), aligned(4), may_alias));
#else
typedef float network_v4, network_v4_memory;
#endif

/* y[j] = value[j] for j < columns; the whole vector if `columns` is larger. */
NETWORK_V4 NETWORK_FN void network_v4_put(float *y, network_v4 value, int columns)
{
    if (columns >= 4) {
        *(network_v4_memory *)y = value;
        return;
    }
    float part[4];
    memcpy(part, &value, sizeof part);
    for (int j = 0; j < 4; ++j)
        if (j < columns) y[j] = part[j];
}

/* y = x w + bias for R rows and V vectors of columns. Each element has U partial sums, so that about 8 sums
 * are independent of each other. Partial sum u adds inputs u, u + U, ...; the first starts with the bias. */
NETWORK_V4 NETWORK_FN void network_v4_tile(float *y, int64_t y_row, const float *x, int64_t x_row,
                                             const float *w, int in, int columns, const int R, const int V)
{
    const int U = R * V >= 6 ? 1 : R * V >= 3 ? 2 : 4;
    const network_v4 none = {0};
    network_v4 sum[6][8], factor[4];
    NETWORK_UNROLL
    for (int i = 0; i < R; ++i) {
        NETWORK_UNROLL
        for (int v = 0; v < V; ++v) sum[i][v] = *(const network_v4_memory *)(w + v * 4);
        NETWORK_UNROLL
        for (int v = V; v < V * U; ++v) sum[i][v] = none;
    }
    w += V * 4;
    for (int k = 0; k < in; k += U) {
        NETWORK_UNROLL
        for (int u = 0; u < U; ++u) {
            if (k + u >= in) break;
            NETWORK_UNROLL
            for (int v = 0; v < V; ++v) {
                factor[v] = *(const network_v4_memory *)(w + (u * V + v) * 4);
                if (R > 1) NETWORK_HOLD(factor[v]);
            }
            NETWORK_UNROLL
            for (int i = 0; i < R; ++i) {
                NETWORK_UNROLL
                for (int v = 0; v < V; ++v) sum[i][u * V + v] += x[i * x_row + k + u] * factor[v];
            }
        }
        w += U * V * 4;
    }
    NETWORK_UNROLL
    for (int i = 0; i < R; ++i) {
        NETWORK_UNROLL
        for (int v = 0; v < V; ++v) {
            NETWORK_UNROLL
            for (int u = 1; u < U; ++u) sum[i][v] += sum[i][u * V + v];
            network_v4_put(y + i * y_row + v * 4, sum[i][v], columns - v * 4);
        }
    }
}

/* All rows of V vectors of columns, in tiles whose sums fit into registers. */
NETWORK_V4 NETWORK_FN void network_v4_panel(float *y, int64_t y_row, const float *x, int64_t x_row,
                                              const float *w, int rows, int in, int columns, const int V)
{
    int i = 0;
    for (; 6 * V <= 12 && i + 6 <= rows; i += 6)
        network_v4_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 6, V);
    for (; 4 * V <= 12 && i + 4 <= rows; i += 4)
        network_v4_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 4, V);
    for (; i + 2 <= rows; i += 2)
        network_v4_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 2, V);
    if (i < rows) network_v4_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 1, V);
}

/* y[rows][out] = x w^T + b with packed weights, panel by panel. */
NETWORK_V4 NETWORK_SELDOM void network_v4_product(float *y, const float *x, int64_t x_row,
                                                    const float *packed, int rows, int in, int out)
{
    for (int j = 0, width; j < out; j += 4 * 4, packed += (in + 1) * width) {
        const int columns = network_least(out - j, 4 * 4);
        width = (columns + 4 - 1) / 4 * 4;
        if (columns <= 4)
            network_v4_panel(y + j, out, x, x_row, packed, rows, in, columns, 1);
        else if (columns <= 2 * 4)
            network_v4_panel(y + j, out, x, x_row, packed, rows, in, columns, 2);
        else if (columns <= 3 * 4)
            network_v4_panel(y + j, out, x, x_row, packed, rows, in, columns, 3);
        else
            network_v4_panel(y + j, out, x, x_row, packed, rows, in, columns, 4);
    }
}
#endif

#if defined(NETWORK_V1)
#if defined(__GNUC__)
typedef float network_v1 __attribute__((vector_size(4 * 1)));
typedef float network_v1_memory __attribute__((vector_size(4 * 1), aligned(4), may_alias));
#else
typedef float network_v1, network_v1_memory;
#endif

/* y[j] = value[j] for j < columns; the whole vector if `columns` is larger. */
NETWORK_V1 NETWORK_FN void network_v1_put(float *y, network_v1 value, int columns)
{
    if (columns >= 1) {
        *(network_v1_memory *)y = value;
        return;
    }
    float part[1];
    memcpy(part, &value, sizeof part);
    for (int j = 0; j < 1; ++j)
        if (j < columns) y[j] = part[j];
}

/* y = x w + bias for R rows and V vectors of columns. Each element has U partial sums, so that about 8 sums
 * are independent of each other. Partial sum u adds inputs u, u + U, ...; the first starts with the bias. */
NETWORK_V1 NETWORK_FN void network_v1_tile(float *y, int64_t y_row, const float *x, int64_t x_row,
                                             const float *w, int in, int columns, const int R, const int V)
{
    const int U = R * V >= 6 ? 1 : R * V >= 3 ? 2 : 4;
    const network_v1 none = {0};
    network_v1 sum[6][8], factor[4];
    NETWORK_UNROLL
    for (int i = 0; i < R; ++i) {
        NETWORK_UNROLL
        for (int v = 0; v < V; ++v) sum[i][v] = *(const network_v1_memory *)(w + v * 1);
        NETWORK_UNROLL
        for (int v = V; v < V * U; ++v) sum[i][v] = none;
    }
    w += V * 1;
    for (int k = 0; k < in; k += U) {
        NETWORK_UNROLL
        for (int u = 0; u < U; ++u) {
            if (k + u >= in) break;
            NETWORK_UNROLL
            for (int v = 0; v < V; ++v) {
                factor[v] = *(const network_v1_memory *)(w + (u * V + v) * 1);
                if (R > 1) NETWORK_HOLD(factor[v]);
            }
            NETWORK_UNROLL
            for (int i = 0; i < R; ++i) {
                NETWORK_UNROLL
                for (int v = 0; v < V; ++v) sum[i][u * V + v] += x[i * x_row + k + u] * factor[v];
            }
        }
        w += U * V * 1;
    }
    NETWORK_UNROLL
    for (int i = 0; i < R; ++i) {
        NETWORK_UNROLL
        for (int v = 0; v < V; ++v) {
            NETWORK_UNROLL
            for (int u = 1; u < U; ++u) sum[i][v] += sum[i][u * V + v];
            network_v1_put(y + i * y_row + v * 1, sum[i][v], columns - v * 1);
        }
    }
}

/* All rows of V vectors of columns, in tiles whose sums fit into registers. */
NETWORK_V1 NETWORK_FN void network_v1_panel(float *y, int64_t y_row, const float *x, int64_t x_row,
                                              const float *w, int rows, int in, int columns, const int V)
{
    int i = 0;
    for (; 6 * V <= 12 && i + 6 <= rows; i += 6)
        network_v1_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 6, V);
    for (; 4 * V <= 12 && i + 4 <= rows; i += 4)
        network_v1_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 4, V);
    for (; i + 2 <= rows; i += 2)
        network_v1_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 2, V);
    if (i < rows) network_v1_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 1, V);
}

/* y[rows][out] = x w^T + b with packed weights, panel by panel. */
NETWORK_V1 NETWORK_SELDOM void network_v1_product(float *y, const float *x, int64_t x_row,
                                                    const float *packed, int rows, int in, int out)
{
    for (int j = 0, width; j < out; j += 4 * 1, packed += (in + 1) * width) {
        const int columns = network_least(out - j, 4 * 1);
        width = (columns + 1 - 1) / 1 * 1;
        if (columns <= 1)
            network_v1_panel(y + j, out, x, x_row, packed, rows, in, columns, 1);
        else if (columns <= 2 * 1)
            network_v1_panel(y + j, out, x, x_row, packed, rows, in, columns, 2);
        else if (columns <= 3 * 1)
            network_v1_panel(y + j, out, x, x_row, packed, rows, in, columns, 3);
        else
            network_v1_panel(y + j, out, x, x_row, packed, rows, in, columns, 4);
    }
}
#endif

/* y[rows][out] = x w^T + b, with packed weights. x_row: floats from one row of x to the next. lanes: floats
 * of a vector. */
NETWORK_FN void network_product(int lanes, float *y, const float *x, int64_t x_row, const float *packed,
                                int rows, int in, int out)
{
#if defined(NETWORK_V16)
    if (lanes == 16)
        network_v16_product(y, x, x_row, packed, rows, in, out);
    else if (lanes == 8)
        network_v8_product(y, x, x_row, packed, rows, in, out);
    else
#endif
#if defined(NETWORK_V4)
        network_v4_product(y, x, x_row, packed, rows, in, out);
#else
        network_v1_product(y, x, x_row, packed, rows, in, out);
#endif
}

/* network: evaluates samples begin to end - 1, in blocks. */
NETWORK_FN void network_network_evaluation_samples(const int lanes, const gpunn_kernel_call *call, int64_t begin,
                                    int64_t end)
{
    float scratch[6288];
    const float *const s_2 = (const float *)call->data[1];
    const float *const t8 = (const float *)call->data[3];
    const float *const t6 = (const float *)call->data[2];
    const float *const ln_weight = (const float *)call->data[11];
    const float *const ln_bias = (const float *)call->data[12];
    const float *const rms_weight = (const float *)call->data[17];
    const float *const packed = (const float *)call->cache;
    const float *const each_packed = packed;
    const float *const fc1_packed = packed + 144;
    const float *const narrow_packed = packed + 2896;
    const float *const fc2_packed = packed + 5616;
    const float *const fc3_packed = packed + 16992;
    const float *const policy_packed = packed + 36000;
    const float *const value_packed = packed + 38112;
    for (int64_t first = begin; first < end; first += 24) {
        const int n = network_least(24, end - first);
        const float *const x = (const float *)call->data[0] + first * 7;
        float *const stretched = scratch + 1008;
        float *const t10 = scratch + 0;
        const float *const words = (const float *)call->data[4] + first * 30;
        float *const some = scratch + 1008;
        float *const each = scratch + 1584;
        float *const pooled = scratch + 2760;
        float *const fc1 = scratch + 1560;
        float *const narrow = scratch + 0;
        float *const joined = scratch + 3144;
        float *const fc2 = scratch + 0;
        float *const fc3 = scratch + 3144;
        float *const shares = (float *)call->data[22] + first * 5;
        float *const value = (float *)call->data[23] + first;

        for (int s = 0; s < n; ++s) {
            NETWORK_VECTOR
            for (int i = 0; i < 7; ++i)
                network_apply_mul(x[s * 7 + i], s_2[i], &stretched[s * 7 + i]);
        }
        for (int s = 0; s < n; ++s) {
            for (int i = 0; i < 7; ++i)
                NETWORK_VECTOR
                for (int j = 0; j < 6; ++j)
                    network_apply_sin(t8[j], stretched[s * 7 + i], t6[j], &t10[s * 42 + i * 6 + j]);
        }
        for (int s = 0; s < n; ++s) {
            for (int i = 0; i < 3; ++i)
                for (int j = 0; j < 8; ++j)
                    some[s * 24 + i * 8 + j] = words[s * 30 + i * 10 + j + 1];
        }
        network_product(lanes, each, some, 8, each_packed, n * 3, 8, 6);
        for (int s = 0; s < n; ++s) {
            for (int i = 0; i < 6; ++i) {
                {
                    float total = 0;
                    for (int j = 0; j < 3; ++j)
                        total += each[s * 18 + i + j * 6];
                    pooled[s * 6 + i] = total;
                }
            }
        }
        network_product(lanes, fc1, t10, 42, fc1_packed, n, 42, 50);
        NETWORK_VECTOR
        for (int i = 0; i < n * 50; ++i)
            network_apply_gelu(fc1[i], &fc1[i]);
        network_product(lanes, narrow, fc1 + 3, 50, narrow_packed, n, 33, 65);
        for (int s = 0; s < n; ++s) {
            network_layer_norm(narrow + s * 65, narrow + s * 65, ln_weight, ln_bias, 1, 65, 1e-05f, false);
        }
        for (int s = 0; s < n; ++s) {
            for (int i = 0; i < 65; ++i)
                joined[s * 78 + i] = narrow[s * 65 + i];
            for (int i = 0; i < 7; ++i)
                joined[s * 78 + i + 65] = x[s * 7 + i];
            for (int i = 0; i < 6; ++i)
                joined[s * 78 + i + 72] = pooled[s * 6 + i];
        }
        network_product(lanes, fc2, joined, 78, fc2_packed, n, 78, 131);
        NETWORK_VECTOR
        for (int i = 0; i < n * 131; ++i)
            network_apply_tanh(fc2[i], &fc2[i]);
        network_product(lanes, fc3, fc2, 131, fc3_packed, n, 131, 131);
        NETWORK_VECTOR
        for (int i = 0; i < n * 131; ++i)
            network_apply_add(fc3[i], fc2[i], &fc3[i]);
        for (int s = 0; s < n; ++s) {
            network_layer_norm(fc3 + s * 131, fc3 + s * 131, rms_weight, NULL, 1, 131, 1.1920929e-07f, true);
        }
        network_product(lanes, shares, fc3, 131, policy_packed, n, 131, 5);
        for (int s = 0; s < n; ++s) {
            network_softmax(shares + s * 5, shares + s * 5, 1, 5, 1);
        }
        network_product(lanes, value, fc3, 131, value_packed, n, 131, 1);
    }
}

#if defined(NETWORK_V16)
NETWORK_V16 static void network_network_evaluation_v16(const gpunn_kernel_call *call, float *const *stat, int64_t begin,
                                                       int64_t end, double *sums)
{
    (void)stat, (void)sums;
    network_network_evaluation_samples(16, call, begin, end);
}

NETWORK_V8 static void network_network_evaluation_v8(const gpunn_kernel_call *call, float *const *stat, int64_t begin,
                                                     int64_t end, double *sums)
{
    (void)stat, (void)sums;
    network_network_evaluation_samples(8, call, begin, end);
}
#endif

static void network_network_evaluation_narrow(const gpunn_kernel_call *call, float *const *stat, int64_t begin,
                                               int64_t end, double *sums)
{
    (void)stat, (void)sums;
    network_network_evaluation_samples(NETWORK_NARROWEST, call, begin, end);
}

static int network_network_evaluation(const gpunn_kernel_call *call)
{
    const int lanes = network_lanes(call->lanes);
    network_loop loop = network_network_evaluation_narrow;
    if (call->stale) {
        float *const packed = (float *)call->cache;
        network_pack(packed, (const float *)call->data[5], (const float *)call->data[6], 8, 6, lanes);
        network_pack(packed + 144, (const float *)call->data[7], (const float *)call->data[8], 42, 50, lanes);
        network_pack(packed + 2896, (const float *)call->data[9], (const float *)call->data[10], 33, 65, lanes);
        network_pack(packed + 5616, (const float *)call->data[13], (const float *)call->data[14], 78, 131, lanes);
        network_pack(packed + 16992, (const float *)call->data[15], (const float *)call->data[16], 131, 131,
                     lanes);
        network_pack(packed + 36000, (const float *)call->data[18], (const float *)call->data[19], 131, 5, lanes);
        network_pack(packed + 38112, (const float *)call->data[20], (const float *)call->data[21], 131, 1, lanes);
    }
#if defined(NETWORK_V16)
    if (lanes == 16) loop = network_network_evaluation_v16;
    if (lanes == 8) loop = network_network_evaluation_v8;
#endif
    network_run(loop, call, NULL, call->batch, 24, network_slices(call->batch, 24), NULL, 0);
    return 0;
}

static size_t network_network_evaluation_workspace(int64_t batch, int threads)
{
    (void)batch, (void)threads;
    return 0;
}
#ifdef NETWORK_OPTIMIZED
#pragma GCC pop_options
#undef NETWORK_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char network_network_operands0[] = {
    0, 1,
};
static const signed char network_network_operands1[] = {
    -1,
};
static const signed char network_network_operands2[] = {
    -2, 2,
};
static const signed char network_network_operands3[] = {
    -3, 3,
};
static const signed char network_network_operands4[] = {
    -4,
};
static const signed char network_network_operands5[] = {
    -5,
};
static const signed char network_network_operands6[] = {
    4,
};
static const signed char network_network_operands7[] = {
    -7, 5, 6,
};
static const signed char network_network_operands8[] = {
    -8,
};
static const signed char network_network_operands9[] = {
    -6, 7, 8,
};
static const signed char network_network_operands10[] = {
    -10,
};
static const signed char network_network_operands11[] = {
    -11,
};
static const signed char network_network_operands12[] = {
    -12, 9, 10,
};
static const signed char network_network_operands13[] = {
    -13, 11, 12,
};
static const signed char network_network_operands14[] = {
    -14, 0, -9,
};
static const signed char network_network_operands15[] = {
    -15, 13, 14,
};
static const signed char network_network_operands16[] = {
    -16,
};
static const signed char network_network_operands17[] = {
    -17, 15, 16,
};
static const signed char network_network_operands18[] = {
    -18, -17,
};
static const signed char network_network_operands19[] = {
    -19, 17, 127,
};
static const signed char network_network_operands20[] = {
    -20, 18, 19,
};
static const signed char network_network_operands21[] = {
    -21,
};
static const signed char network_network_operands22[] = {
    -20, 20, 21,
};
static const gpunn_kernel_node network_network_nodes[] = {
    {"mul f32 [N,7]", network_network_operands0, 2},
    {"reshape f32 [N,7,1]", network_network_operands1, 1},
    {"mul f32 [N,7,6]", network_network_operands2, 2},
    {"add f32 [N,7,6]", network_network_operands3, 2},
    {"sin f32 [N,7,6]", network_network_operands4, 1},
    {"reshape f32 [N,42]", network_network_operands5, 1},
    {"slice dim=2 start=1 step=1 f32 [N,3,8]", network_network_operands6, 1},
    {"linear f32 [N,3,6]", network_network_operands7, 3},
    {"sum dims=1 mean=0 f32 [N,6]", network_network_operands8, 1},
    {"linear f32 [N,50]", network_network_operands9, 3},
    {"gelu f32 [N,50]", network_network_operands10, 1},
    {"slice dim=1 start=3 step=1 f32 [N,33]", network_network_operands11, 1},
    {"linear f32 [N,65]", network_network_operands12, 3},
    {"layer_norm dims=1 eps=9.99999975e-06 f32 [N,65]", network_network_operands13, 3},
    {"concat dim=1 f32 [N,78]", network_network_operands14, 3},
    {"linear f32 [N,131]", network_network_operands15, 3},
    {"tanh f32 [N,131]", network_network_operands16, 1},
    {"linear f32 [N,131]", network_network_operands17, 3},
    {"add f32 [N,131]", network_network_operands18, 2},
    {"rms_norm dims=1 eps=1.1920929e-07 f32 [N,131]", network_network_operands19, 3},
    {"linear f32 [N,5]", network_network_operands20, 3},
    {"softmax dim=1 f32 [N,5]", network_network_operands21, 1},
    {"linear f32 [N,1]", network_network_operands22, 3},
};
static const char *const network_network_externals[] = {
    "f32 [N,7]",
    "f32 [7]",
    "f32 [6]",
    "f32 [6]",
    "f32 [N,3,10]",
    "f32 [6,8]",
    "f32 [6]",
    "f32 [50,42]",
    "f32 [50]",
    "f32 [65,33]",
    "f32 [65]",
    "f32 [65]",
    "f32 [65]",
    "f32 [131,78]",
    "f32 [131]",
    "f32 [131,131]",
    "f32 [131]",
    "f32 [131]",
    "f32 [5,131]",
    "f32 [5]",
    "f32 [1,131]",
    "f32 [1]",
};
static const gpunn_kernel_operand network_network_evaluation_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 3, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 4, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 5, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 6, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 7, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 8, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 9, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 10, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 11, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 12, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 13, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 14, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 15, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 16, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 17, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 18, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 19, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 20, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 21, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -22, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -23, -1},
};
static const gpunn_kernel network_set[] = {
    {"network",
     "h2 = tanh(linear(concat(layer_norm(linear(slice(gelu(linear(sin(x * s * constant_6 + constant_8), fc1_weight, fc1_bias))), narrow_weight, narrow_bias), ln_weight, ln_bias), x, sum(linear(slice(words), each_weight, each_bias))), fc2_weight, fc2_bias)); rms = rms_norm(linear(h2, fc3_weight, fc3_bias) + h2, rms_weight); shares = softmax(linear(rms, policy_weight, policy_bias)); value = linear(rms ...",
     network_network_nodes, 23,
     network_network_externals, 22,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{network_network_evaluation_operands, 24, network_network_evaluation, network_network_evaluation_workspace, 160896},
      {NULL, 0, NULL, NULL, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int network_evaluation0[] = {
    4, 5, 7, 9, 10, 11, 12, 15, 16, 19, 20, 21, 24, 27, 28, 31, 32, 35, 36, 38, 41, 42, 45, 0, 3, 6, 8, 1, 13,
    14, 17, 18, 22, 23, 25, 26, 29, 30, 33, 34, 37, 39, 40, 43, 44,
};
static const gpunn_kernel_instance network_evaluation[] = {
    {0, network_evaluation0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda network_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda network_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda network_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda network_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set network_kernels = {
    GPUNN_KERNELS_ABI,
    NETWORK_KERNELS_STAMP,
    "network",
    "0.2",
    "e16257e499be24e5c00f083228c5e28cda736f803ab07a93ed6da291cf8f003f",
    "python3 -m generator network.json -o network",
    network_set,
    1,
    48,
    network_evaluation,
    NULL,
    1,
    0,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &network_kernels_cuda,
#else
    NULL,
#endif
};
#undef NETWORK_KERNELS_IMPLEMENTATION
#endif
