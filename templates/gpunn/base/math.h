#ifndef GPUNN__BASE_MATH_H
#define GPUNN__BASE_MATH_H
#include "base/structs.h"

/* ==== >>base/math ======================================================================================== *
 * Float functions without branches or tables, so that compilers vectorise loops over them; both sides of
 * every choice are computed. Results are within 2 ulp of the true value (sigmoid, tanh: 3). At infinities,
 * NaN, denormals and outside the domain they equal C's. The polynomials are minimax fits by iteratively
 * reweighted least squares. */
#define GPUNN__SQRT_HALF_BITS 0x3f3504f3u

GPUNN__INLINE float gpunn__float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

GPUNN__INLINE uint32_t gpunn__bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* condition ? a : b, with bit masks: gcc turns the plain form into branches, which it cannot vectorise. */
GPUNN__INLINE float gpunn__select(bool condition, float a, float b)
{
    uint32_t mask = 0u - (uint32_t)condition;
    return gpunn__float_of((gpunn__bits_of(a) & mask) | (gpunn__bits_of(b) & ~mask));
}

/* The correctly rounded square root. sqrtf may set errno, which prevents vectorisation; this declares the
 * compiler's builtins as free of side effects. */
#if defined(__GNUC__)
extern float  __builtin_sqrtf(float) __attribute__((const));
extern double __builtin_sqrt(double) __attribute__((const));
#endif
GPUNN__INLINE float gpunn__sqrt(float x)
{
#if defined(__GNUC__)
    return __builtin_sqrtf(x);
#else
    return sqrtf(x);
#endif
}

GPUNN__INLINE double gpunn__sqrt_double(double x)
{
#if defined(__GNUC__)
    return __builtin_sqrt(x);
#else
    return sqrt(x);
#endif
}

/* Clamps x to -limit .. limit; NaN becomes +-limit. */
GPUNN__INLINE float gpunn__limit(float x, float limit)
{
    int32_t size = (int32_t)(gpunn__bits_of(x) & 0x7fffffffu), most = (int32_t)gpunn__bits_of(limit);
    return gpunn__float_of((uint32_t)(size < most ? size : most) | (gpunn__bits_of(x) & 0x80000000u));
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
GPUNN__INLINE float gpunn__exp2i(int32_t n)
{
    return gpunn__float_of((uint32_t)(n + 127) << 23);
}

/* The nearest integer to x, for |x| < 2^22. */
GPUNN__INLINE int32_t gpunn__nearest(float x)
{
    float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds a number to an integer, in the low bits */
    return (int32_t)(gpunn__bits_of(x + magic) - gpunn__bits_of(magic));
}

/* The integer of 8 bits that the weight w of an op of 8-bit numbers is: w / scale, rounded and saturated. */
GPUNN__INLINE int gpunn__rounded_weight(float w, float scale)
{
    const float ratio = scale != 0 ? w / scale : 0;
    const int   q = ratio == ratio ? gpunn__nearest(gpunn__limit(ratio, 256)) : 0;
    return q < -128 ? -128 : q > 127 ? 127 : q;
}

/* exp(r) - 1 for |r| <= ln 2 / 2. */
GPUNN__INLINE float gpunn__expm1_near(float r)
{
    float p = (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    return r + r * r * (p * r + 0.5f);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2; returns exp(r) - 1. For |x| < 2^15. */
GPUNN__INLINE float gpunn__exp_reduce(float x, int32_t *n)
{
    *n = gpunn__nearest(x * 1.44269504f);
    float k = (float)*n; /* ln 2 is in two parts; the first has 9 bits, so its product with k is exact */
    return gpunn__expm1_near(x - k * 0.693359375f + k * 2.12194440e-4f);
}

/* 2^n * e, as two factors, since 2^n may be outside the normal range. */
GPUNN__INLINE float gpunn__scaled(float e, int32_t n)
{
    int32_t half = n >> 1;
    return e * gpunn__exp2i(half) * gpunn__exp2i(n - half);
}

GPUNN__INLINE float gpunn__exp(float x)
{
    int32_t n;
    float   e = gpunn__exp_reduce(gpunn__limit(x, 104), &n) + 1;
    return gpunn__select(x == x, gpunn__scaled(e, n), x);
}

GPUNN__INLINE float gpunn__exp2(float x)
{
    float   near = gpunn__limit(x, 160);
    int32_t n = gpunn__nearest(near);
    float   e = gpunn__expm1_near((near - (float)n) * 0.693147181f) + 1;
    return gpunn__select(x == x, gpunn__scaled(e, n), x);
}

/* exp(x) - 1 for |x| <= 89 and not denormal. */
GPUNN__INLINE float gpunn__expm1_inside(float x)
{
    int32_t n;
    float   e = gpunn__exp_reduce(x, &n);
    float   half_scale = gpunn__exp2i(n > -126 ? n - 1 : -127);
    return 2 * (half_scale * e + (half_scale - 0.5f));
}

GPUNN__INLINE float gpunn__expm1(float x)
{
    /* tiny x and NaN: x itself */
    return gpunn__select(fabsf(x) > 1e-8f, gpunn__expm1_inside(gpunn__limit(x, 89)), x);
}

/* n ln 2 + log(1 + f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1. */
GPUNN__INLINE float gpunn__log_join(float n, float f)
{
    float s = f * f;
    float p = ((-0.0785961151f * f + 0.128816471f) * s + (-0.131287545f * f + 0.141811922f)) * (s * s) +
              ((-0.166245535f * f + 0.200022861f) * s + (-0.250008106f * f + 0.333333164f));
    return (f - (0.5f * s - (s * f * p - n * 2.12194440e-4f))) + n * 0.693359375f;
}

/* Returns y for x in (limit, inf), -inf at the limit, NaN below it, and x for inf and NaN. */
GPUNN__INLINE float gpunn__log_edges(float x, float limit, float y)
{
    float outside = gpunn__select(x == limit, -INFINITY, gpunn__select(x < limit, NAN, x));
    return gpunn__select(x > limit, gpunn__select(x <= FLT_MAX, y, x), outside);
}

/* n of x = 2^n m with sqrt(1/2) <= m < sqrt(2), for normal x > 0. */
GPUNN__INLINE int32_t gpunn__exponent(float x)
{
    return (int32_t)(gpunn__bits_of(x) - GPUNN__SQRT_HALF_BITS) >> 23;
}

/* Splits x = 2^n (1 + f) with f in the range of gpunn__log_join; returns f. For finite x > 0. */
GPUNN__INLINE float gpunn__log_split(float x, float *n)
{
    float   normal = gpunn__select(x < FLT_MIN, x * 8388608.0f, x);
    int32_t exponent = gpunn__exponent(normal);
    *n = (float)exponent - gpunn__select(x < FLT_MIN, 23, 0);
    return gpunn__float_of(gpunn__bits_of(normal) - ((uint32_t)exponent << 23)) - 1;
}

GPUNN__INLINE float gpunn__log(float x)
{
    float n, f = gpunn__log_split(x, &n);
    return gpunn__log_edges(x, 0, gpunn__log_join(n, f));
}

/* Exact for powers of 2. */
GPUNN__INLINE float gpunn__log2(float x)
{
    float n, f = gpunn__log_split(x, &n);
    return gpunn__log_edges(x, 0, n + gpunn__log_join(0, f) * 1.44269504f);
}

/* log10(2) is in two parts; the first has 13 bits, so its product with n is exact, and so are powers of
 * 10. */
GPUNN__INLINE float gpunn__log10(float x)
{
    float n, f = gpunn__log_split(x, &n);
    return gpunn__log_edges(x, 0,
                            n * 0.301025391f + (n * 4.60503907e-6f + gpunn__log_join(0, f) * 0.434294482f));
}

GPUNN__INLINE float gpunn__log1p(float x)
{
    int32_t n = gpunn__exponent(1 + x);
    /* 4 * 2^-n, since 2^-n may be denormal; exact for small x */
    float scale = gpunn__float_of((uint32_t)(129 - n) << 23);
    float y = gpunn__log_join((float)n, 0.25f * x * scale + (0.25f * scale - 1));
    return gpunn__select(fabsf(x) < 1e-8f, x, gpunn__log_edges(x, -1, y));
}

/* exp(-|x|) is 0 where it would be denormal. */
GPUNN__INLINE float gpunn__sigmoid(float x)
{
    int32_t n;
    float   t = -fabsf(x), e = gpunn__exp_reduce(gpunn__select(t < -88, -88, t), &n) + 1;
    e *= gpunn__exp2i(n);
    return gpunn__select(x < 0, e, 1) / (1 + e);
}

GPUNN__INLINE float gpunn__tanh(float x)
{
    float e = gpunn__expm1_inside(2 * gpunn__limit(fabsf(x), 10));
    return gpunn__select(x == x, copysignf(e / (e + 2), x), x);
}

GPUNN__INLINE float gpunn__erf(float x)
{
    float a = gpunn__limit(fabsf(x), 4), s = x * x;
    float p = ((-0.000620325445f * s + 0.00503218127f) * s - 0.0267914627f) * s + 0.112824552f;
    float small = x + x * ((p * s - 0.376125515f) * s + 0.128379151f);
    /* erfc(a) = exp(-a q(a)) */
    float q = ((-0.00021522498f * a + 0.00322512374f) * a - 0.0229223836f) * a + 0.105312094f;
    float large = -gpunn__expm1_inside(-a * ((q * a + 0.635680437f) * a + 1.1285255f));
    return gpunn__select(fabsf(x) > 0.875f, copysignf(large, x), small);
}

/* exp(a) / 2 for a >= 0. From a = 90 on the result is infinite. */
GPUNN__INLINE float gpunn__half_exp(float a)
{
    int32_t n;
    float   e = gpunn__exp_reduce(gpunn__limit(a, 90), &n) + 1;
    return gpunn__scaled(e, n - 1);
}

GPUNN__INLINE float gpunn__sinh(float x)
{
    float a = fabsf(x), e = gpunn__expm1_inside(gpunn__limit(a, 1)), h = gpunn__half_exp(a);
    float size = gpunn__select(a < 1, 0.5f * (e + e / (e + 1)), h - 0.25f / h);
    return gpunn__select(a > 3e-4f, copysignf(size, x), x); /* tiny x and NaN: x itself */
}

GPUNN__INLINE float gpunn__cosh(float x)
{
    float h = gpunn__half_exp(fabsf(x));
    return gpunn__select(x == x, h + 0.25f / h, x);
}

/* t is the tangent of an angle up to pi / 4. Above tan(pi / 8), pi / 4 is subtracted from the angle, so the
 * polynomial needs only |u| <= tan(pi / 8). */
GPUNN__INLINE float gpunn__atan2(float y, float x)
{
    float a = fabsf(x), b = fabsf(y), less = gpunn__select(b > a, a, b), more = gpunn__select(b > a, b, a);
    float t = gpunn__select(less == more, gpunn__select(more > 0, 1, 0), less / more);
    float u = gpunn__select(t > 0.414213562f, (t - 1) / (t + 1), t), q = u * u;
    float p = (((-0.0607775748f * q + 0.105936393f) * q - 0.142435104f) * q + 0.199984699f) * q -
              0.333333164f;
    float r = gpunn__select(t > 0.414213562f, 0.785398163f, 0) + (u + u * q * p);
    r = gpunn__select(b > a, 1.57079633f - r, r);
    r = gpunn__select(gpunn__bits_of(x) >> 31 != 0, 3.14159265f - r, r);
    return copysignf(r, y);
}

/* Scales by a power of 2, so that no square overflows or underflows. */
GPUNN__INLINE float gpunn__hypot(float x, float y)
{
    float a = fabsf(x), b = fabsf(y), most = gpunn__select(a > b, a, b);
    bool  large = most > 1.12589991e15f, small = most < 8.88178420e-16f; /* 2^50, 2^-50 */
    float big = 1.26765060e30f, tiny = 7.88860905e-31f;                  /* 2^100, 2^-100 */
    float down = gpunn__select(large, tiny, gpunn__select(small, big, 1)), p = x * down, q = y * down;
    float size = gpunn__sqrt(p * p + q * q) * gpunn__select(large, big, gpunn__select(small, tiny, 1));
    return gpunn__select(a > FLT_MAX, INFINITY, gpunn__select(b > FLT_MAX, INFINITY, size));
}

/* NaN in, NaN out, as in torch and unlike C. */
GPUNN__INLINE float gpunn__min(float a, float b)
{
    return gpunn__select(a < b, a, gpunn__select(a != a, a, b));
}

GPUNN__INLINE float gpunn__max(float a, float b)
{
    return gpunn__select(a > b, a, gpunn__select(a != a, a, b));
}

GPUNN__INLINE float gpunn__sign(float x)
{
    return gpunn__select(x > 0, 1, gpunn__select(x < 0, -1, 0));
}

/* Converts `count` numbers of a float dtype to F32. The bits of an F16 number, except its sign, are moved to
 * an F32 number whose exponent is too small by 112. A subnormal F16 number is the difference of two normal
 * numbers. */
GPUNN__INLINE void gpunn__widen_floats(gpunn_dtype dtype, const void *from, int64_t count, float *to)
{
    const char *at = (const char *)from;
    if (dtype == GPUNN_F32) memcpy(to, from, (size_t)count * sizeof *to);
    for (int64_t i = 0; dtype == GPUNN_BF16 && i < count; i++) {
        uint16_t half;
        memcpy(&half, at + 2 * i, sizeof half);
        to[i] = gpunn__float_of((uint32_t)half << 16);
    }
    for (int64_t i = 0; dtype == GPUNN_F16 && i < count; i++) {
        uint16_t half;
        memcpy(&half, at + 2 * i, sizeof half);
        const uint32_t bits = (uint32_t)(half & 0x7FFFu) << 13, sign = (uint32_t)(half & 0x8000u) << 16;
        const uint32_t normal = bits + (bits < 0x0F800000u ? 112u << 23 : 224u << 23);
        const float    tiny = gpunn__float_of(bits + (113u << 23)) - gpunn__float_of(113u << 23);
        uint32_t       small;
        memcpy(&small, &tiny, sizeof small);
        to[i] = gpunn__float_of((bits < 1u << 23 ? small : normal) | sign);
    }
}

/* Rounds to nearest even; NaN stays NaN. */
GPUNN__INTERNAL uint16_t gpunn__bfloat_of_float(float value);

/* Rounds `count` numbers to a 16-bit dtype. `to` may be the memory of values. */
GPUNN__INTERNAL void gpunn__round_floats(gpunn_dtype dtype, const float *values, int64_t count, void *to);

/* Conversions between F32 and BF16. They are not inlined, because their callers are compiled with less
 * optimization. */
GPUNN__NOINLINE void gpunn__bf16_round(uint16_t *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++) to[i] = gpunn__bfloat_of_float(from[i]);
}

GPUNN__NOINLINE void gpunn__bf16_widen(float *to, const uint16_t *from, int64_t count)
{
    gpunn__widen_floats(GPUNN_BF16, from, count, to);
}

/* Adds `size` parts of `count` BF16 values, in F32 and in the order of the parts; rounds each sum once. */
GPUNN__NOINLINE void gpunn__bf16_add(uint16_t *sums, const uint16_t *parts, int size, size_t count)
{
    enum { MOST = 256 };
    float sum[MOST], part[MOST];
    for (size_t at = 0, n; at < count; at += n) {
        n = count - at < MOST ? count - at : (size_t)MOST;
        gpunn__widen_floats(GPUNN_BF16, parts + at, (int64_t)n, sum);
        for (int rank = 1; rank < size; rank++) {
            gpunn__widen_floats(GPUNN_BF16, parts + (size_t)rank * count + at, (int64_t)n, part);
            for (size_t i = 0; i < n; i++) sum[i] += part[i];
        }
        gpunn__bf16_round(sums + at, sum, (int64_t)n);
    }
}

#endif /* GPUNN__BASE_MATH_H */
