/* functions_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator functions.json -o functions
 */
#ifndef FUNCTIONS_KERNELS_H
#define FUNCTIONS_KERNELS_H
#include "gpunn.h"

#define FUNCTIONS_KERNELS_STAMP 0xab6b3cb6484102ffull /* must equal the stamp in functions_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &functions_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define FUNCTIONS_KERNELS_IMPLEMENTATION
 * Link functions_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set functions_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(FUNCTIONS_KERNELS_IMPLEMENTATION) || defined(FUNCTIONS_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "functions_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(FUNCTIONS_KERNELS_CUDA)
#define FUNCTIONS_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

FUNCTIONS_FN float functions_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

FUNCTIONS_FN float functions_min(float a, float b)
{
    return a < b || a != a ? a : b;
}

FUNCTIONS_FN float functions_max(float a, float b)
{
    return a > b || a != a ? a : b;
}

FUNCTIONS_FN float functions_abs(float x)
{
    return fabsf(x);
}

/* The floor of the exact quotient p / q: 9 for 1 and 0.1f. */
FUNCTIONS_FN float functions_floordiv(float p, float q)
{
    const float rest = fmodf(p, q),
                whole = (p - rest) / q - (rest != 0 && (q < 0) != (rest < 0) ? 1.0f : 0.0f);
    const float low = floorf(whole);
    return q == 0 ? p / q : whole == 0 ? copysignf(0, p / q) : low + (whole - low > 0.5f ? 1.0f : 0.0f);
}

FUNCTIONS_FN float functions_fmod(float p, float q)
{
    return fmodf(p, q);
}

/* PyTorch's remainder: it has the sign of q. Only the final addition rounds. */
FUNCTIONS_FN float functions_remainder(float p, float q)
{
    const float rest = fmodf(p, q);
    return rest != 0 && (rest < 0) != (q < 0) ? rest + q : rest;
}

FUNCTIONS_FN float functions_sign(float x)
{
    return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;
}

FUNCTIONS_FN float functions_floor(float x)
{
    return floorf(x);
}

FUNCTIONS_FN float functions_exp(float x)
{
    return expf(x);
}

FUNCTIONS_FN float functions_expm1(float x)
{
    return expm1f(x);
}

FUNCTIONS_FN float functions_log(float x)
{
    return logf(x);
}

FUNCTIONS_FN float functions_log1p(float x)
{
    return log1pf(x);
}

FUNCTIONS_FN float functions_exp2(float x)
{
    return exp2f(x);
}

FUNCTIONS_FN float functions_log2(float x)
{
    return log2f(x);
}

/* x = 2^n m with sqrt(1/2) <= m < sqrt(2). log10(2) is split in two; the high part has 13 bits. Unlike
 * log10f, powers of 10 give exact results. */
FUNCTIONS_FN float functions_log10(float x)
{
    float normal = x < 1.17549435e-38f ? x * 8388608.0f : x;
    int   exponent = (int)(__float_as_uint(normal) - 0x3f3504f3u) >> 23;
    float m = __uint_as_float(__float_as_uint(normal) - ((unsigned)exponent << 23));
    float n = (float)exponent - (x < 1.17549435e-38f ? 23.0f : 0.0f);
    float y = fmaf(n, 0.301025391f, fmaf(n, 4.60503907e-6f, log10f(m)));
    return x > 0 && x < INFINITY ? y : x == 0 ? -INFINITY : x < 0 ? NAN : x;
}

FUNCTIONS_FN float functions_sinh(float x)
{
    return sinhf(x);
}

FUNCTIONS_FN float functions_cosh(float x)
{
    return coshf(x);
}

FUNCTIONS_FN float functions_atan2(float y, float x)
{
    return atan2f(y, x);
}

FUNCTIONS_FN float functions_hypot(float x, float y)
{
    return hypotf(x, y);
}

FUNCTIONS_FN float functions_sqrt(float x)
{
    return sqrtf(x);
}

FUNCTIONS_FN float functions_rsqrt(float x)
{
    return 1 / sqrtf(x);
}

FUNCTIONS_FN float functions_tanh(float x)
{
    return tanhf(x);
}

FUNCTIONS_FN float functions_erf(float x)
{
    return erff(x);
}

FUNCTIONS_FN float functions_sigmoid(float x)
{
    float e = expf(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1 + e);
}

FUNCTIONS_FN float functions_pow(float x, float exponent)
{
    return powf(x, exponent);
}

/* Word i of 1 / (2 pi) in binary: word 0 is 0, word 1 holds the first 32 bits after the binary point, and so
 * on. */
FUNCTIONS_FN unsigned functions_turns(unsigned i)
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
FUNCTIONS_FN float functions_sine(float x, int quadrants)
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
            part[k] = ((uint64_t)functions_turns(word + k) << 32 | functions_turns(word + k + 1)) << shift >> 32;
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

FUNCTIONS_FN float functions_sin(float x)
{
    return functions_sine(x, 0);
}

FUNCTIONS_FN float functions_cos(float x)
{
    return functions_sine(x, 1);
}
#elif defined(FUNCTIONS_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define FUNCTIONS_FN __attribute__((unused, always_inline)) static inline
#else
#define FUNCTIONS_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define FUNCTIONS_OPTIMIZED
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

FUNCTIONS_FN float functions_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

FUNCTIONS_FN uint32_t functions_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

FUNCTIONS_FN float functions_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

/* PyTorch's minimum and maximum: NaN if an operand is NaN. */
FUNCTIONS_FN float functions_min(float a, float b)
{
    return functions_where(a < b, a, functions_where(a != a, a, b));
}

FUNCTIONS_FN float functions_max(float a, float b)
{
    return functions_where(a > b, a, functions_where(a != a, a, b));
}

FUNCTIONS_FN float functions_abs(float x)
{
    return fabsf(x);
}

/* The floor of the exact quotient p / q: 9 for 1 and 0.1f. */
FUNCTIONS_FN float functions_floordiv(float p, float q)
{
    const float rest = fmodf(p, q),
                whole = (p - rest) / q - (rest != 0 && (q < 0) != (rest < 0) ? 1.0f : 0.0f);
    const float low = floorf(whole);
    return q == 0 ? p / q : whole == 0 ? copysignf(0, p / q) : low + (whole - low > 0.5f ? 1.0f : 0.0f);
}

FUNCTIONS_FN float functions_fmod(float p, float q)
{
    return fmodf(p, q);
}

/* PyTorch's remainder: it has the sign of q. Only the final addition rounds. */
FUNCTIONS_FN float functions_remainder(float p, float q)
{
    const float rest = fmodf(p, q);
    return rest != 0 && (rest < 0) != (q < 0) ? rest + q : rest;
}

FUNCTIONS_FN float functions_sign(float x)
{
    return functions_where(x > 0, 1, functions_where(x < 0, -1, 0));
}

FUNCTIONS_FN float functions_floor(float x)
{
    return floorf(x);
}

/* x clamped to [low, high]; NaN stays NaN. */
FUNCTIONS_FN float functions_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
FUNCTIONS_FN float functions_exp2i(int32_t n)
{
    return functions_float_of((uint32_t)(n + 127) << 23);
}

/* The nearest integer to x, for |x| < 2^22. */
FUNCTIONS_FN int32_t functions_nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 2^23: adding it rounds x to an integer in the low bits */
    return (int32_t)(functions_bits_of(x + magic) - functions_bits_of(magic));
}

/* exp(r) - 1 for |r| <= ln 2 / 2. */
FUNCTIONS_FN float functions_expm1_near(float r)
{
    const float p = (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    return r + r * r * (p * r + 0.5f);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^15. Returns exp(r) - 1. */
FUNCTIONS_FN float functions_exp_reduce(float x, int32_t *n)
{
    *n = functions_nearest(x * 1.44269504f);
    const float k = (float)*n; /* ln 2 is split in two; the high part has 9 bits, so k times it is exact */
    return functions_expm1_near(x - k * 0.693359375f + k * 2.12194440e-4f);
}

FUNCTIONS_FN float functions_exp(float x)
{
    int32_t     n;
    const float e = functions_exp_reduce(functions_limit(x, -87.3f, 89), &n) + 1;
    return (e + e) * functions_exp2i(n - 1);
}

FUNCTIONS_FN float functions_exp2(float x)
{
    const float   near = functions_limit(x, -126, 128);
    const int32_t n = functions_nearest(near);
    const float   e = functions_expm1_near((near - (float)n) * 0.693147181f) + 1;
    return functions_where(x < -126, 0, (e + e) * functions_exp2i(n - 1));
}

/* exp(x) - 1 for |x| <= 89. */
FUNCTIONS_FN float functions_expm1_inside(float x)
{
    int32_t     n;
    const float e = functions_exp_reduce(x, &n);
    const float half_scale = functions_exp2i(n > -126 ? n - 1 : -127);
    return 2 * (half_scale * e + (half_scale - 0.5f));
}

FUNCTIONS_FN float functions_expm1(float x)
{
    return functions_where(fabsf(x) < 1e-8f, x, functions_expm1_inside(functions_limit(x, -89, 89)));
}

/* n ln 2 + log(1 + f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1. */
FUNCTIONS_FN float functions_log_join(float n, float f)
{
    const float s = f * f;
    const float p = ((-0.0785961151f * f + 0.128816471f) * s + (-0.131287545f * f + 0.141811922f)) * (s * s) +
                    ((-0.166245535f * f + 0.200022861f) * s + (-0.250008106f * f + 0.333333164f));
    return (f - (0.5f * s - (s * f * p - n * 2.12194440e-4f))) + n * 0.693359375f;
}

/* The value of a logarithm: y for limit < x < inf, -inf at the limit, NaN below it, x itself if x is inf or
 * NaN. */
FUNCTIONS_FN float functions_log_edges(float x, float limit, float y)
{
    const float outside = functions_where(x == limit, -INFINITY, functions_where(x < limit, NAN, x));
    return functions_where(x > limit, functions_where(x <= FLT_MAX, y, x), outside);
}

/* Returns n where x = 2^n m with sqrt(1/2) <= m < sqrt(2), for normal x > 0. */
FUNCTIONS_FN int32_t functions_exponent(float x)
{
    return (int32_t)(functions_bits_of(x) - 0x3f3504f3u) >> 23;
}

/* Splits finite x > 0 into 2^n (1 + f), with f in the range of log_join. Returns f. */
FUNCTIONS_FN float functions_log_split(float x, float *n)
{
    const float   normal = functions_where(x < FLT_MIN, x * 8388608.0f, x);
    const int32_t exponent = functions_exponent(normal);
    *n = (float)exponent - functions_where(x < FLT_MIN, 23, 0);
    return functions_float_of(functions_bits_of(normal) - ((uint32_t)exponent << 23)) - 1;
}

FUNCTIONS_FN float functions_log(float x)
{
    float       n;
    const float f = functions_log_split(x, &n);
    return functions_log_edges(x, 0, functions_log_join(n, f));
}

/* Exact for powers of 2. */
FUNCTIONS_FN float functions_log2(float x)
{
    float       n;
    const float f = functions_log_split(x, &n);
    return functions_log_edges(x, 0, n + functions_log_join(0, f) * 1.44269504f);
}

/* log10(2) is split in two; the high part has 13 bits, so n times it is exact. Powers of 10 give exact
 * results. */
FUNCTIONS_FN float functions_log10(float x)
{
    float       n;
    const float f = functions_log_split(x, &n);
    return functions_log_edges(x, 0,
                             n * 0.301025391f + (n * 4.60503907e-6f + functions_log_join(0, f) * 0.434294482f));
}

FUNCTIONS_FN float functions_log1p(float x)
{
    const int32_t n = functions_exponent(1 + x);
    const float   scale = functions_float_of((uint32_t)(129 - n) << 23); /* 4 2^-n: 2^-n may be denormal */
    const float   y = functions_log_join((float)n, 0.25f * x * scale + (0.25f * scale - 1));
    return functions_where(fabsf(x) < 1e-8f, x, functions_log_edges(x, -1, y));
}

/* 1 / sqrt(x) for normal x > 0, by Newton's method. C's sqrtf may set errno, which prevents vectorization. */
FUNCTIONS_FN float functions_root(float x)
{
    float r = functions_float_of(0x5f375a86u - (functions_bits_of(x) >> 1));
    r *= 1.5f - x * r * (0.5f * r);
    r *= 1.5f - x * r * (0.5f * r);
    return r * (1.5f - x * r * (0.5f * r));
}

/* x below 2^-60 is scaled by 2^64, so that the residual of the square is not denormal. */
FUNCTIONS_FN float functions_sqrt(float x)
{
    const bool  tiny = x < 8.67361738e-19f;
    const float p = x * functions_where(tiny, 1.84467441e19f, 1), r = functions_root(p), s = p * r;
    const float y = (s + 0.5f * r * (p - s * s)) * functions_where(tiny, 2.32830644e-10f, 1);
    return functions_where(x >= FLT_MIN, functions_where(x <= FLT_MAX, y, x), functions_where(x < 0, NAN, x));
}

FUNCTIONS_FN float functions_rsqrt(float x)
{
    const float r = functions_root(x), y = r + 0.5f * r * (1 - x * r * r);
    const float outside = functions_where(x < 0, NAN, functions_where(x < FLT_MIN, copysignf(INFINITY, x), x));
    return functions_where(x >= FLT_MIN, functions_where(x <= FLT_MAX, y, 0), outside);
}

FUNCTIONS_FN float functions_sigmoid(float x)
{
    return 1 / (1 + functions_exp(-x));
}

FUNCTIONS_FN float functions_tanh(float x)
{
    const float e = functions_expm1_inside(2 * functions_limit(fabsf(x), 0, 10));
    return copysignf(e / (e + 2), x);
}

FUNCTIONS_FN float functions_erf(float x)
{
    const float a = functions_limit(fabsf(x), 0, 4), s = x * x;
    const float p = ((-0.000620325445f * s + 0.00503218127f) * s - 0.0267914627f) * s + 0.112824552f;
    const float small_x = x + x * ((p * s - 0.376125515f) * s + 0.128379151f);
    /* erfc(a) = exp(-a q(a)) */
    const float q = ((-0.00021522498f * a + 0.00322512374f) * a - 0.0229223836f) * a + 0.105312094f;
    const float large_x = -functions_expm1_inside(-a * ((q * a + 0.635680437f) * a + 1.1285255f));
    return functions_where(fabsf(x) > 0.875f, copysignf(large_x, x), small_x);
}

/* sin(x + quadrants pi / 2). */
FUNCTIONS_FN float functions_sine(float x, int32_t quadrants)
{
    const double magic = 6755399441055744.0; /* 1.5 2^52: adding it rounds to an integer */
    /* NaN becomes 1e9 here; x - x at the end makes it NaN again. */
    const double from = (double)functions_where(x < 1e9f, functions_where(x > -1e9f, x, -1e9f), 1e9f);
    const double turned = from * 0.63661977236758134 + magic, k = turned - magic;
    const float  near = (float)(from - k * 1.5707963267341256 - k * 6.0771005065061922e-11);
    const float  r = functions_limit(near, -0.79f, 0.79f), s = r * r;
    const float  sine = r + r * s *
                               ((-1.98559923e-4f + 2.86567956e-6f * s) * s * s +
                                (8.33338592e-3f * s - 1.66666672e-1f));
    const float  cosine = 1 + s * (((2.44677067e-5f * s - 1.38877297e-3f) * s + 4.16666567e-2f) * s - 0.5f);
    const int32_t  quadrant = (int32_t)k + quadrants;
    const uint32_t sign = ((uint32_t)quadrant & 2u) << 30;
    const float    y = functions_where((quadrant & 1) != 0, cosine, sine);
    return functions_float_of(functions_bits_of(y) ^ sign) + (x - x);
}

FUNCTIONS_FN float functions_sin(float x)
{
    return functions_sine(x, 0);
}

FUNCTIONS_FN float functions_cos(float x)
{
    return functions_sine(x, 1);
}

/* x^y by 2^(y log2 |x|), in double. */
FUNCTIONS_FN float functions_pow(float x, float y)
{
    const float   a = fabsf(x), scaled = functions_where(a < FLT_MIN, a * 16777216.0f, a);
    const int32_t n = functions_exponent(scaled);
    const float   whole = (float)n - functions_where(a < FLT_MIN, 24, 0), power = functions_where(a == 1, 0, y);
    const double  m = (double)functions_float_of(functions_bits_of(scaled) - ((uint32_t)n << 23));
    const double  f = (m - 1) / (m + 1), s = f * f;
    const double  p = ((((s / 13 + 1.0 / 11) * s + 1.0 / 9) * s + 1.0 / 7) * s + 0.2) * s * s + s / 3 + 1;
    const double  wide = (double)power * ((double)whole + 2.8853900817779268 * f * p),
                 high = wide > 140 ? 140 : wide;
    /* magic = 1.5 2^52: adding and subtracting it rounds t to an integer. */
    const double  t = high < -160 ? -160 : high, magic = 6755399441055744.0, k = (t + magic) - magic;
    const double  r = (t - k) * 0.69314718055994531;
    const double  q = ((((r / 5040 + 1.0 / 720) * r + 1.0 / 120) * r + 1.0 / 24) * r + 1.0 / 6) * r;
    const int32_t exponent = (int32_t)(k == k ? k : 0), half = exponent >> 1;
    const double  scale = (double)functions_exp2i(half) * (double)functions_exp2i(exponent - half);
    const float   inside = (float)((1 + r + r * r * (q + 0.5)) * scale);
    /* for |x| = 0, inf or NaN */
    const float edge = power * functions_where(a == 0, -INFINITY, a);
    const float outside = functions_where(edge > 0, INFINITY, functions_where(edge < 0, 0, edge));
    const float size = functions_where(a > 0 && a <= FLT_MAX, inside, outside);
    const bool  whole_y = floorf(y) == y, odd = whole_y && floorf(0.5f * y) != 0.5f * y;
    const float value = functions_where(odd, copysignf(size, x), size);
    const float real = functions_where(x < 0 && a <= FLT_MAX && !whole_y, NAN, value);
    return functions_where(x == 1 || y == 0, 1, real);
}

/* exp(a) / 2 for a >= 0. a is clamped to 90, whose result is infinite. */
FUNCTIONS_FN float functions_half_exp(float a)
{
    int32_t     n;
    const float e = functions_exp_reduce(functions_limit(a, 0, 90), &n) + 1;
    return (e + e) * functions_exp2i(n - 2);
}

FUNCTIONS_FN float functions_sinh(float x)
{
    const float a = fabsf(x), e = functions_expm1_inside(functions_limit(a, 0, 1)), h = functions_half_exp(a);
    const float size = functions_where(a < 1, 0.5f * (e + e / (e + 1)), h - 0.25f / h);
    return functions_where(a > 3e-4f, copysignf(size, x), x);
}

FUNCTIONS_FN float functions_cosh(float x)
{
    const float h = functions_half_exp(fabsf(x));
    return h + 0.25f / h;
}

/* t is the tangent of an angle up to pi / 4. Above tan(pi / 8), pi / 4 is subtracted from the angle, so the
 * polynomial's argument is |u| <= tan(pi / 8). */
FUNCTIONS_FN float functions_atan2(float y, float x)
{
    const float a = fabsf(x), b = fabsf(y), less = functions_where(b > a, a, b),
                more = functions_where(b > a, b, a);
    const float t = functions_where(less == more, functions_where(more > 0, 1, 0), less / more);
    const float u = functions_where(t > 0.414213562f, (t - 1) / (t + 1), t), q = u * u;
    const float p = (((-0.0607775748f * q + 0.105936393f) * q - 0.142435104f) * q + 0.199984699f) * q -
                    0.333333164f;
    const float eighth = functions_where(t > 0.414213562f, 0.785398163f, 0) + (u + u * q * p);
    const float quarter = functions_where(b > a, 1.57079633f - eighth, eighth);
    const bool  left = (functions_bits_of(x) >> 31) != 0;
    return copysignf(functions_where(left, 3.14159265f - quarter, quarter), y);
}

/* The operands are scaled by a power of 2, so that squares neither overflow nor underflow. */
FUNCTIONS_FN float functions_hypot(float x, float y)
{
    const float a = fabsf(x), b = fabsf(y), most = functions_where(a > b, a, b);
    const bool  large = most > 1.12589991e15f, small = most < 8.88178420e-16f; /* 2^50, 2^-50 */
    const float big = 1.26765060e30f, tiny = 7.88860905e-31f;                  /* 2^100, 2^-100 */
    const float down = functions_where(large, tiny, functions_where(small, big, 1)), p = x * down, q = y * down;
    const float size = functions_sqrt(p * p + q * q) * functions_where(large, big, functions_where(small, tiny, 1));
    return functions_where(a > FLT_MAX, INFINITY, functions_where(b > FLT_MAX, INFINITY, size));
}
#endif

#if defined(FUNCTIONS_KERNELS_IMPLEMENTATION) || defined(FUNCTIONS_KERNELS_CUDA)
/* g0, forward: y = f(x) */
FUNCTIONS_FN void functions_g0_forward_0(float x, float *abs_x)
{
    *abs_x = functions_abs(x);
}
FUNCTIONS_FN void functions_g0_forward_1(float x, float *sign_x)
{
    *sign_x = functions_sign(x);
}
FUNCTIONS_FN void functions_g0_forward_2(float x, float *floor_x)
{
    *floor_x = functions_floor(x);
}
FUNCTIONS_FN void functions_g0_forward_3(float x, float *exp_x)
{
    *exp_x = functions_exp(x);
}
FUNCTIONS_FN void functions_g0_forward_4(float x, float *expm1_x)
{
    *expm1_x = functions_expm1(x);
}
FUNCTIONS_FN void functions_g0_forward_5(float x, float *log_x)
{
    *log_x = functions_log(x);
}
FUNCTIONS_FN void functions_g0_forward_6(float x, float *log1p_x)
{
    *log1p_x = functions_log1p(x);
}
FUNCTIONS_FN void functions_g0_forward_7(float x, float *sqrt_x)
{
    *sqrt_x = functions_sqrt(x);
}
FUNCTIONS_FN void functions_g0_forward_8(float x, float *tanh_x)
{
    *tanh_x = functions_tanh(x);
}
FUNCTIONS_FN void functions_g0_forward_9(float x, float *erf_x)
{
    *erf_x = functions_erf(x);
}
FUNCTIONS_FN void functions_g0_forward_10(float x, float *sigmoid_x)
{
    *sigmoid_x = functions_sigmoid(x);
}
FUNCTIONS_FN void functions_g0_forward_11(float x, float *sin_x)
{
    *sin_x = functions_sin(x);
}
FUNCTIONS_FN void functions_g0_forward_12(float x, float *cos_x)
{
    *cos_x = functions_cos(x);
}
FUNCTIONS_FN void functions_g0_forward_13(float x, float *exp2_x)
{
    *exp2_x = functions_exp2(x);
}
FUNCTIONS_FN void functions_g0_forward_14(float x, float *log2_x)
{
    *log2_x = functions_log2(x);
}
FUNCTIONS_FN void functions_g0_forward_15(float x, float *log10_x)
{
    *log10_x = functions_log10(x);
}
FUNCTIONS_FN void functions_g0_forward_16(float x, float *sinh_x)
{
    *sinh_x = functions_sinh(x);
}
FUNCTIONS_FN void functions_g0_forward_17(float x, float *cosh_x)
{
    *cosh_x = functions_cosh(x);
}
FUNCTIONS_FN void functions_g0_forward_18(float x, float z, float *min_xz, float *max_xz, float *pow_xz,
                                          float *div_xz, float *floordiv_xz, float *atan2_xz, float *hypot_xz,
                                          float *fmod_xz, float *remainder_xz, float *lt_xz, float *le_xz,
                                          float *gt_xz, float *ge_xz, float *eq_xz, float *ne_xz, float *root)
{
    const float t0 = -z;
    *min_xz = functions_min(x, z);
    *max_xz = functions_max(x, z);
    *pow_xz = functions_pow(x, z);
    *div_xz = x / z;
    *floordiv_xz = functions_floordiv(x, z);
    *atan2_xz = functions_atan2(x, z);
    *hypot_xz = functions_hypot(x, z);
    *fmod_xz = functions_fmod(x, z);
    *remainder_xz = functions_remainder(x, z);
    *lt_xz = functions_where(x < z, x, t0);
    *le_xz = functions_where(x <= z, x, t0);
    *gt_xz = functions_where(x > z, x, t0);
    *ge_xz = functions_where(x >= z, x, t0);
    *eq_xz = functions_where(x == z, x, t0);
    *ne_xz = functions_where(x != z, x, t0);
    *root = functions_rsqrt(z);
}
#endif

#if defined(FUNCTIONS_KERNELS_IMPLEMENTATION) && !defined(FUNCTIONS_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { FUNCTIONS_BLOCK = 1024, FUNCTIONS_ROW = 4096, FUNCTIONS_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define FUNCTIONS_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define FUNCTIONS_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define FUNCTIONS_VECTOR _Pragma("GCC ivdep")
#else
#define FUNCTIONS_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define FUNCTIONS_SELDOM __attribute__((unused, noinline)) static
#else
#define FUNCTIONS_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define FUNCTIONS_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define FUNCTIONS_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define FUNCTIONS_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(FUNCTIONS_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define FUNCTIONS_LOOPS(function, lanes, parameters, arguments)                        \
    FUNCTIONS_FN void function##_code parameters;                                      \
    FUNCTIONS_V16 static void function##_v16 parameters { function##_code arguments; } \
    FUNCTIONS_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    FUNCTIONS_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define FUNCTIONS_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define FUNCTIONS_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
FUNCTIONS_FN int functions_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > FUNCTIONS_SLICES ? FUNCTIONS_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
FUNCTIONS_FN int64_t functions_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*functions_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

FUNCTIONS_FN void functions_run_slice(functions_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = functions_slice(count, grain, slices, slice),
                  end = functions_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct functions_work {
    functions_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} functions_work;

FUNCTIONS_SELDOM void functions_task(void *arg, int index, int threads)
{
    const functions_work *w = (const functions_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        functions_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
FUNCTIONS_SELDOM void functions_run(functions_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    functions_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, functions_task, &work);
}

FUNCTIONS_FN int functions_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* g0, forward: abs_x */
FUNCTIONS_LOOPS(functions_g0_forward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const abs_x = (float *)call->data[2];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_0(x[i + j], &abs_x[i + j]);
        i += n;
    }
}

/* g0, forward: sign_x */
FUNCTIONS_LOOPS(functions_g0_forward_1_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const sign_x = (float *)call->data[3];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_1(x[i + j], &sign_x[i + j]);
        i += n;
    }
}

/* g0, forward: floor_x */
FUNCTIONS_LOOPS(functions_g0_forward_2_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const floor_x = (float *)call->data[4];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_2(x[i + j], &floor_x[i + j]);
        i += n;
    }
}

/* g0, forward: exp_x */
FUNCTIONS_LOOPS(functions_g0_forward_3_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const exp_x = (float *)call->data[5];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_3(x[i + j], &exp_x[i + j]);
        i += n;
    }
}

/* g0, forward: expm1_x */
FUNCTIONS_LOOPS(functions_g0_forward_4_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const expm1_x = (float *)call->data[6];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_4(x[i + j], &expm1_x[i + j]);
        i += n;
    }
}

/* g0, forward: log_x */
FUNCTIONS_LOOPS(functions_g0_forward_5_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const log_x = (float *)call->data[7];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_5(x[i + j], &log_x[i + j]);
        i += n;
    }
}

/* g0, forward: log1p_x */
FUNCTIONS_LOOPS(functions_g0_forward_6_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const log1p_x = (float *)call->data[8];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_6(x[i + j], &log1p_x[i + j]);
        i += n;
    }
}

/* g0, forward: sqrt_x */
FUNCTIONS_LOOPS(functions_g0_forward_7_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const sqrt_x = (float *)call->data[9];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_7(x[i + j], &sqrt_x[i + j]);
        i += n;
    }
}

/* g0, forward: tanh_x */
FUNCTIONS_LOOPS(functions_g0_forward_8_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const tanh_x = (float *)call->data[10];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_8(x[i + j], &tanh_x[i + j]);
        i += n;
    }
}

/* g0, forward: erf_x */
FUNCTIONS_LOOPS(functions_g0_forward_9_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const erf_x = (float *)call->data[11];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_9(x[i + j], &erf_x[i + j]);
        i += n;
    }
}

/* g0, forward: sigmoid_x */
FUNCTIONS_LOOPS(functions_g0_forward_10_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const sigmoid_x = (float *)call->data[12];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_10(x[i + j], &sigmoid_x[i + j]);
        i += n;
    }
}

/* g0, forward: sin_x */
FUNCTIONS_LOOPS(functions_g0_forward_11_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const sin_x = (float *)call->data[13];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_11(x[i + j], &sin_x[i + j]);
        i += n;
    }
}

/* g0, forward: cos_x */
FUNCTIONS_LOOPS(functions_g0_forward_12_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const cos_x = (float *)call->data[14];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_12(x[i + j], &cos_x[i + j]);
        i += n;
    }
}

/* g0, forward: exp2_x */
FUNCTIONS_LOOPS(functions_g0_forward_13_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const exp2_x = (float *)call->data[15];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_13(x[i + j], &exp2_x[i + j]);
        i += n;
    }
}

/* g0, forward: log2_x */
FUNCTIONS_LOOPS(functions_g0_forward_14_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const log2_x = (float *)call->data[16];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_14(x[i + j], &log2_x[i + j]);
        i += n;
    }
}

/* g0, forward: log10_x */
FUNCTIONS_LOOPS(functions_g0_forward_15_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const log10_x = (float *)call->data[17];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_15(x[i + j], &log10_x[i + j]);
        i += n;
    }
}

/* g0, forward: sinh_x */
FUNCTIONS_LOOPS(functions_g0_forward_16_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const sinh_x = (float *)call->data[18];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_16(x[i + j], &sinh_x[i + j]);
        i += n;
    }
}

/* g0, forward: cosh_x */
FUNCTIONS_LOOPS(functions_g0_forward_17_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    float *const cosh_x = (float *)call->data[19];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_17(x[i + j], &cosh_x[i + j]);
        i += n;
    }
}

/* g0, forward: min_xz, max_xz, pow_xz, div_xz, floordiv_xz, atan2_xz, hypot_xz, fmod_xz, remainder_xz, lt_xz, le_xz, gt_xz, ge_xz, eq_xz, ne_xz, root */
FUNCTIONS_LOOPS(functions_g0_forward_18_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const x = (const float *)call->data[0];
    const float *const z = (const float *)call->data[1];
    float *const min_xz = (float *)call->data[20];
    float *const max_xz = (float *)call->data[21];
    float *const pow_xz = (float *)call->data[22];
    float *const div_xz = (float *)call->data[23];
    float *const floordiv_xz = (float *)call->data[24];
    float *const atan2_xz = (float *)call->data[25];
    float *const hypot_xz = (float *)call->data[26];
    float *const fmod_xz = (float *)call->data[27];
    float *const remainder_xz = (float *)call->data[28];
    float *const lt_xz = (float *)call->data[29];
    float *const le_xz = (float *)call->data[30];
    float *const gt_xz = (float *)call->data[31];
    float *const ge_xz = (float *)call->data[32];
    float *const eq_xz = (float *)call->data[33];
    float *const ne_xz = (float *)call->data[34];
    float *const root = (float *)call->data[35];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = functions_least(FUNCTIONS_BLOCK, end - i);
        FUNCTIONS_VECTOR
        for (int j = 0; j < n; ++j)
            functions_g0_forward_18(x[i + j], z[i + j], &min_xz[i + j], &max_xz[i + j], &pow_xz[i + j],
                                    &div_xz[i + j], &floordiv_xz[i + j], &atan2_xz[i + j],
                                    &hypot_xz[i + j], &fmod_xz[i + j], &remainder_xz[i + j],
                                    &lt_xz[i + j], &le_xz[i + j], &gt_xz[i + j], &ge_xz[i + j],
                                    &eq_xz[i + j], &ne_xz[i + j], &root[i + j]);
        i += n;
    }
}

static int functions_g0_forward(const gpunn_kernel_call *call)
{
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_0_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_1_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_2_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_3_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_4_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_5_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_6_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_7_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_8_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_9_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_10_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_11_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_12_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_13_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_14_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_15_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_16_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_17_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    {
        const int slices = functions_slices(call->batch * 64, 16384);
        functions_run(functions_g0_forward_18_loop, call, NULL, call->batch * 64, 16, slices, NULL, 0);
    }
    return 0;
}

static size_t functions_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    return 0;
}
#ifdef FUNCTIONS_OPTIMIZED
#pragma GCC pop_options
#undef FUNCTIONS_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char functions_g0_operands0[] = {
    0,
};
static const gpunn_kernel_node functions_g0_nodes[] = {
    {"relu f32 [N,8]", functions_g0_operands0, 1},
};
static const char *const functions_g0_externals[] = {
    "f32 [N,8]",
};
static const gpunn_kernel_operand functions_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -2, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -3, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -4, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -5, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -6, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -7, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -8, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -9, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -10, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -11, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -12, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -13, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -14, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -15, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -16, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -17, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -18, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -30, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -31, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -32, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -33, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -34, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -35, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -36, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -37, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -38, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -40, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -41, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -42, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -43, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -44, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -45, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -50, -1},
};
static const gpunn_kernel functions_set[] = {
    {"g0",
     "y = f(x)",
     functions_g0_nodes, 1,
     functions_g0_externals, 1,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{NULL, 0, NULL, NULL, 0},
      {functions_g0_forward_operands, 36, functions_g0_forward, functions_g0_forward_workspace, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int functions_evaluation0[] = {
    3, 0,
};
static const gpunn_kernel_instance functions_evaluation[] = {
    {0, functions_evaluation0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda functions_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda functions_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda functions_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda functions_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set functions_kernels = {
    GPUNN_KERNELS_ABI,
    FUNCTIONS_KERNELS_STAMP,
    "functions",
    "0.2",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "python3 -m generator functions.json -o functions",
    functions_set,
    1,
    9,
    functions_evaluation,
    NULL,
    1,
    0,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &functions_kernels_cuda,
#else
    NULL,
#endif
};
#undef FUNCTIONS_KERNELS_IMPLEMENTATION
#endif
