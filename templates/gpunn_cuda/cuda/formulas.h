#ifndef GPUNN__CUDA_CUDA_FORMULAS_H
#define GPUNN__CUDA_CUDA_FORMULAS_H
#include "base/config.h"

/* ==== >>cuda/formulas ==================================================================================== *
 * Turns gpunn.h's tables of elementwise ops into structs of device functions. Macros give each word of the
 * tables' language its CUDA meaning. */
/* indices in from[], after the operands */
enum { GPUNN__FROM_RESULT = 3, GPUNN__FROM_GRADIENT, GPUNN__FROM_COUNT };

/* min and max as the tables define them, in F32: NaN propagates, which C's fminf and fmaxf do not do. */
__device__ __forceinline__ float gpunn__float_min(float a, float b)
{
    return a < b || a != a ? a : b;
}

__device__ __forceinline__ float gpunn__float_max(float a, float b)
{
    return a > b || a != a ? a : b;
}

__device__ __forceinline__ float gpunn__float_sign(float x)
{
    return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;
}

__device__ __forceinline__ float gpunn__float_sigmoid(float x)
{
    float e = expf(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1 + e);
}

/* Splits x into 2^n m with sqrt(1/2) <= m < sqrt(2). log10(2) is held in two parts, the first with 13 bits.
 * Powers of 10 give exact results, which log10f does not provide. */
__device__ __forceinline__ float gpunn__float_log10(float x)
{
    float normal = x < 1.17549435e-38f ? x * 8388608.0f : x;
    int   exponent = (int)(__float_as_uint(normal) - 0x3f3504f3u) >> 23;
    float m = __uint_as_float(__float_as_uint(normal) - ((unsigned)exponent << 23));
    float n = (float)exponent - (x < 1.17549435e-38f ? 23.0f : 0.0f);
    float y = fmaf(n, 0.301025391f, fmaf(n, 4.60503907e-6f, log10f(m)));
    return x > 0 && x < INFINITY ? y : x == 0 ? -INFINITY : x < 0 ? NAN : x;
}

/* sin(x + quadrants pi / 2). Unlike sinf's, the range reduction of large x needs no local memory.
 * x / (2 pi) is the product of x's 32-bit significand and 96 bits of 1 / (2 pi): those that yield less
 * than whole turns. */
static __device__ const unsigned gpunn__turns[8] = {0,           0x28BE60DBu, 0x9391054Au, 0x7F09D5F4u,
                                                    0x7D4D3770u, 0x36D8A566u, 0x4F10E410u, 0x7F9458EAu};
__device__ __forceinline__ float gpunn__float_sin(float x, int quadrants)
{
    float turned = rintf(x * 0.636619772f), r;
    if (fabsf(x) < 1e5f) { /* pi / 2 in three parts */
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
            part[k] = ((uint64_t)gpunn__turns[word + k] << 32 | gpunn__turns[word + k + 1]) << shift >> 32;
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

constexpr bool gpunn__in_name(char letter)
{
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') || letter == '_';
}

/* Whether a formula of the tables mentions a one-letter name. */
constexpr bool gpunn__mentions(const char *text, char name)
{
    for (char before = ' '; *text; before = *text++)
        if (*text == name && !gpunn__in_name(before) && !gpunn__in_name(text[1])) return true;
    return false;
}

/* What the formulas of the derivatives contain. Each is a bit set of derivatives (bit i: of operand i),
 * unless noted. */
typedef struct gpunn__map_facts {
    unsigned present, passed;            /* present: not just 0; passed: just g */
    unsigned readers[GPUNN__FROM_COUNT]; /* the derivatives that mention from[k] */
    unsigned read;                       /* bit k: a derivative reads from[k] */
} gpunn__map_facts;

constexpr gpunn__map_facts gpunn__map_facts_of(int operands, const char *da, const char *db, const char *dc)
{
    gpunn__map_facts  facts = {};
    const char *const text[3] = {da, db, dc};
    const char        name[GPUNN__FROM_COUNT] = {operands == 1 ? 'x' : 'a', 'b', 'c', 'y', 'g'};
    for (int i = 0; i < 3; i++) {
        facts.present |= (unsigned)(text[i][0] != '0' || text[i][1] != 0) << i;
        facts.passed |= (unsigned)(text[i][0] == 'g' && text[i][1] == 0) << i;
        for (int k = 0; k < GPUNN__FROM_COUNT; k++)
            facts.readers[k] |= (unsigned)gpunn__mentions(text[i], name[k]) << i;
    }
    for (int k = 0; k < GPUNN__FROM_COUNT; k++) facts.read |= (unsigned)(facts.readers[k] != 0) << k;
    return facts;
}

/* The tables' language. Every op becomes a struct of functions that read from[] and attr[]. */
#define x from[0]
#define a from[0]
#define b from[1]
#define c from[2]
#define y from[GPUNN__FROM_RESULT]
#define g from[GPUNN__FROM_GRADIENT]
#define K(number) number##f
#define where(condition, yes, no) ((condition) != 0 ? (float)(yes) : (float)(no))
#define min(p, q) gpunn__float_min(p, q)
#define max(p, q) gpunn__float_max(p, q)
#define abs(p) fabsf(p)
#define sign(p) gpunn__float_sign(p)
#define floor(p) floorf(p)
#define exp(p) expf(p)
#define expm1(p) expm1f(p)
#define log(p) logf(p)
#define log1p(p) log1pf(p)
#define sqrt(p) sqrtf(p)
#define tanh(p) tanhf(p)
#define erf(p) erff(p)
#define sigmoid(p) gpunn__float_sigmoid(p)
#define sin(p) gpunn__float_sin(p, 0)
#define cos(p) gpunn__float_sin(p, 1)
#define pow(p, q) powf(p, q)
#define floordiv(p, q) gpunn__floordiv(p, q)
#define exp2(p) exp2f(p)
#define log2(p) log2f(p)
#define log10(p) gpunn__float_log10(p)
#define sinh(p) sinhf(p)
#define cosh(p) coshf(p)
#define atan2(p, q) atan2f(p, q)
#define hypot(p, q) hypotf(p, q)
#define fmod(p, q) fmodf(p, q)
#define remainder(p, q) gpunn__remainder(p, q)

#define GPUNN__CONSTANT(name, i) \
    const float name = attr[i];  \
    (void)name;
/* The derivatives are also passed as unexpanded strings, which gpunn__map_facts_of reads. */
#define GPUNN__MAP(name, operands, constants, f, da, db, dc, ...)                                       \
    struct gpunn__op_##name {                                                                           \
        static constexpr int                    OPERANDS = operands;                                    \
        static constexpr gpunn__map_facts       FACTS = gpunn__map_facts_of(operands, __VA_ARGS__);     \
        static constexpr unsigned               DERIVATIVES = FACTS.present, READ = FACTS.read;         \
        static __device__ __forceinline__ float forward(const float *from, const float *attr)           \
        {                                                                                               \
            constants(void) from, (void)attr;                                                           \
            return (float)(f);                                                                          \
        }                                                                                               \
        static __device__ __forceinline__ float derivative(int i, const float *from, const float *attr) \
        {                                                                                               \
            constants(void) from, (void)attr;                                                           \
            return i == 0 ? (float)(da) : i == 1 ? (float)(db) : (float)(dc);                           \
        }                                                                                               \
    };

#define GPUNN__X(ENUM, name, f, dx) GPUNN__MAP(name, 1, , f, dx, 0, 0, #dx, "0", "0")
GPUNN_UNARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, f, dx) \
    GPUNN__MAP(name, 1, GPUNN__CONSTANT(attr1, 0), f, dx, 0, 0, #dx, "0", "0")
GPUNN_UNARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, attr2, value2, f, dx) \
    GPUNN__MAP(name, 1, GPUNN__CONSTANT(attr1, 0) GPUNN__CONSTANT(attr2, 1), f, dx, 0, 0, #dx, "0", "0")
GPUNN_UNARY2_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, f, da, db) GPUNN__MAP(name, 2, , f, da, db, 0, #da, #db, "0")
GPUNN_BINARY_OPS(GPUNN__X)
GPUNN_LOSS_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, f, da, db) \
    GPUNN__MAP(name, 2, GPUNN__CONSTANT(attr1, 0), f, da, db, 0, #da, #db, "0")
GPUNN_LOSS1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, f, da, db, dc) GPUNN__MAP(name, 3, , f, da, db, dc, #da, #db, #dc)
GPUNN_TERNARY_OPS(GPUNN__X)
#undef GPUNN__X

#undef x
#undef a
#undef b
#undef c
#undef y
#undef g
#undef K
#undef where
#undef min
#undef max
#undef abs
#undef sign
#undef floor
#undef exp
#undef expm1
#undef log
#undef log1p
#undef sqrt
#undef tanh
#undef erf
#undef sigmoid
#undef sin
#undef cos
#undef pow
#undef floordiv
#undef exp2
#undef log2
#undef log10
#undef sinh
#undef cosh
#undef atan2
#undef hypot
#undef fmod
#undef remainder
#undef GPUNN__CONSTANT
#undef GPUNN__MAP

#define GPUNN__X(...) +1
/* elementwise ops are gpunn_op's first members */
enum { GPUNN__MAP_COUNT = 1 GPUNN__ELEMENTWISE_OPS(GPUNN__X) };
#undef GPUNN__X

#endif /* GPUNN__CUDA_CUDA_FORMULAS_H */
