/* step_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 037d804f8e360a0a08a6604187ef7742b117e9a51289a6c9a45f0afdc21f9911
 * renew it with: python3 -m generator step.json -o step
 */
#ifndef STEP_KERNELS_H
#define STEP_KERNELS_H
#include "gpunn.h"

#define STEP_KERNELS_STAMP 0x6934a432874134e5ull /* must equal the stamp in step_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &step_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define STEP_KERNELS_IMPLEMENTATION
 * Link step_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set step_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(STEP_KERNELS_IMPLEMENTATION) || defined(STEP_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "step_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(STEP_KERNELS_CUDA)
#define STEP_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

STEP_FN float step_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

STEP_FN float step_tanh(float x)
{
    return tanhf(x);
}

/* erf with a bound on the absolute error only: for results that are added to a number not near 0. */
STEP_FN float step_erf_near(float x)
{
    return erff(x);
}

STEP_FN float step_erf_gauss(float x, float *gauss)
{
    *gauss = expf(-x * x);
    return erff(x);
}

STEP_FN float step_sigmoid(float x)
{
    float e = expf(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1 + e);
}
#elif defined(STEP_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define STEP_FN __attribute__((unused, always_inline)) static inline
#else
#define STEP_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define STEP_OPTIMIZED
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

STEP_FN float step_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

STEP_FN uint32_t step_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

STEP_FN float step_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

/* x clamped to [low, high]; NaN stays NaN. */
STEP_FN float step_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
STEP_FN float step_exp2i(int32_t n)
{
    return step_float_of((uint32_t)(n + 127) << 23);
}

/* The nearest integer to x, for |x| < 2^22. */
STEP_FN int32_t step_nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 2^23: adding it rounds x to an integer in the low bits */
    return (int32_t)(step_bits_of(x + magic) - step_bits_of(magic));
}

/* exp(r) - 1 for |r| <= ln 2 / 2. */
STEP_FN float step_expm1_near(float r)
{
    const float p = (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    return r + r * r * (p * r + 0.5f);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^15. Returns exp(r) - 1. */
STEP_FN float step_exp_reduce(float x, int32_t *n)
{
    *n = step_nearest(x * 1.44269504f);
    const float k = (float)*n; /* ln 2 is split in two; the high part has 9 bits, so k times it is exact */
    return step_expm1_near(x - k * 0.693359375f + k * 2.12194440e-4f);
}

STEP_FN float step_exp(float x)
{
    int32_t     n;
    const float e = step_exp_reduce(step_limit(x, -87.3f, 89), &n) + 1;
    return (e + e) * step_exp2i(n - 1);
}

/* exp(x) - 1 for |x| <= 89. */
STEP_FN float step_expm1_inside(float x)
{
    int32_t     n;
    const float e = step_exp_reduce(x, &n);
    const float half_scale = step_exp2i(n > -126 ? n - 1 : -127);
    return 2 * (half_scale * e + (half_scale - 0.5f));
}

STEP_FN float step_sigmoid(float x)
{
    return 1 / (1 + step_exp(-x));
}

STEP_FN float step_tanh(float x)
{
    const float e = step_expm1_inside(2 * step_limit(fabsf(x), 0, 10));
    return copysignf(e / (e + 2), x);
}

/* Returns erf(x), within 2.5e-7; *gauss = exp(-x^2). For a = |x|, erf(a) = 1 - exp(-a^2) times a polynomial
 * in a. */
STEP_FN float step_erf_gauss(float x, float *gauss)
{
    const float a = step_limit(fabsf(x), 0, 9.38f); /* gauss is 0 there */
    int32_t     n;
    const float e = step_exp_reduce(-(a * a), &n), scale = step_exp2i(n);
    float       p = (0.000104428294f * a - 0.00159332412f) * a + 0.010871639f;
    p = ((p * a - 0.0446807411f) * a + 0.127030288f) * a - 0.275080752f;
    p = ((p * a + 0.489239109f) * a - 0.749611248f) * a + 0.999667174f;
    p = (p * a - 1.12836286f) * a + 0.999999868f;
    *gauss = scale * e + scale;
    return copysignf(1 - *gauss * p, x);
}

/* erf with a bound on the absolute error only. */
STEP_FN float step_erf_near(float x)
{
    float gauss;
    return step_erf_gauss(x, &gauss);
}
#endif

#if defined(STEP_KERNELS_IMPLEMENTATION) || defined(STEP_KERNELS_CUDA)
/* step, forward: h1 = gelu(linear(x, fc1_weight, fc1_bias)); residual = linear(tanh(linear(h1 * scale,
 * fixed_weight, fixed_bias)), plain_weight) + h1; gated = sigmoid(linear(residual * residual, gate_weight,
 * gate_bias)) * residual; last = linear(relu(linear(gated, fc2_weight, fc2_bias)), last_weight,
 * last_bias); error = last - t; loss = mean(error * rates * error); bytes: 136 per sample and 27192 */
STEP_FN void step_step_gelu(float x, float *result)
{
    *result = 0.5f * x * (step_erf_near(0.70710677f * x) + 1);
}

STEP_FN void step_step_mul(float x, float y, float *result)
{
    *result = x * y;
}

STEP_FN void step_step_tanh(float x, float *result)
{
    *result = step_tanh(x);
}

STEP_FN void step_step_add(float x, float y, float *result)
{
    *result = x + y;
}

STEP_FN void step_step_mul_2(float x, float *result)
{
    *result = x * x;
}

STEP_FN void step_step_mul_3(float y, float x, float *result)
{
    *result = y * step_sigmoid(x);
}

STEP_FN void step_step_relu(float x, float *result)
{
    *result = step_where(x <= 0, 0, x);
}

STEP_FN void step_step_mul_4(float x, float y, float z, float *result)
{
    const float t0 = x - y;
    *result = t0 * (z * t0);
}

STEP_FN void step_step_mul_gradient(float z, float x, float y, float g, float *d0)
{
    const float t0 = x - y;
    *d0 = z * t0 * g + z * (t0 * g);
}

STEP_FN void step_step_relu_gradient(float result, float g, float *d0)
{
    *d0 = step_where(result <= 0, 0, g);
}

STEP_FN void step_step_mul_gradient_2(float x, float y, float g, float *d0, float *d1)
{
    const float t0 = step_sigmoid(x);
    *d0 = t0 * (y * g * (1 - t0));
    *d1 = t0 * g;
}

STEP_FN void step_step_mul_gradient_3(float x, float g, float *d0)
{
    const float t0 = x * g;
    *d0 = t0 + t0;
}

STEP_FN void step_step_add_gradient(float g, float *d0, float *d1)
{
    *d0 = g;
    *d1 = g;
}

STEP_FN void step_step_tanh_gradient(float g, float result, float *d0)
{
    *d0 = g * (1 - result * result);
}

STEP_FN void step_step_mul_gradient_4(float y, float g, float *d0)
{
    *d0 = y * g;
}

STEP_FN void step_step_gelu_gradient(float g, float x, float *d0)
{
    float gauss;
    const float t0 = step_erf_gauss(0.70710677f * x, &gauss);
    *d0 = g * (0.5f * (t0 + 1) + 0.3989423f * x * gauss);
}
#endif

#if defined(STEP_KERNELS_IMPLEMENTATION) && !defined(STEP_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { STEP_BLOCK = 1024, STEP_ROW = 4096, STEP_SLICES = 64 };

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*step_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

#ifdef STEP_OPTIMIZED
#pragma GCC pop_options
#undef STEP_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char step_step_operands0[] = {
    0, 1, 2,
};
static const signed char step_step_operands1[] = {
    -1,
};
static const signed char step_step_operands2[] = {
    -2, 3,
};
static const signed char step_step_operands3[] = {
    -3, 4, 5,
};
static const signed char step_step_operands4[] = {
    -4,
};
static const signed char step_step_operands5[] = {
    -5, 6, 127,
};
static const signed char step_step_operands6[] = {
    -6, -2,
};
static const signed char step_step_operands7[] = {
    -7, -7,
};
static const signed char step_step_operands8[] = {
    -8, 7, 8,
};
static const signed char step_step_operands9[] = {
    -9,
};
static const signed char step_step_operands10[] = {
    -10, -7,
};
static const signed char step_step_operands11[] = {
    -11,
};
static const signed char step_step_operands12[] = {
    -12,
};
static const signed char step_step_operands13[] = {
    -13, 9, 10,
};
static const signed char step_step_operands14[] = {
    -14,
};
static const signed char step_step_operands15[] = {
    -15, 11, 12,
};
static const signed char step_step_operands16[] = {
    -16, 13,
};
static const signed char step_step_operands17[] = {
    -17, 14,
};
static const signed char step_step_operands18[] = {
    -18, -17,
};
static const signed char step_step_operands19[] = {
    -19,
};
static const gpunn_kernel_node step_step_nodes[] = {
    {"linear f32 [N,21]", step_step_operands0, 3},
    {"gelu f32 [N,21]", step_step_operands1, 1},
    {"mul f32 [N,21]", step_step_operands2, 2},
    {"linear f32 [N,34]", step_step_operands3, 3},
    {"tanh f32 [N,34]", step_step_operands4, 1},
    {"linear f32 [N,21]", step_step_operands5, 3},
    {"add f32 [N,21]", step_step_operands6, 2},
    {"mul f32 [N,21]", step_step_operands7, 2},
    {"linear f32 [N,21]", step_step_operands8, 3},
    {"sigmoid f32 [N,21]", step_step_operands9, 1},
    {"mul f32 [N,21]", step_step_operands10, 2},
    {"reshape f32 [N,3,7]", step_step_operands11, 1},
    {"reshape f32 [N,21]", step_step_operands12, 1},
    {"linear f32 [N,67]", step_step_operands13, 3},
    {"relu f32 [N,67]", step_step_operands14, 1},
    {"linear f32 [N,3]", step_step_operands15, 3},
    {"sub f32 [N,3]", step_step_operands16, 2},
    {"mul f32 [N,3]", step_step_operands17, 2},
    {"mul f32 [N,3]", step_step_operands18, 2},
    {"sum dims=0,1 mean=1 f32 []", step_step_operands19, 1},
};
static const char *const step_step_externals[] = {
    "f32 [N,7]",
    "f32 [21,7]",
    "f32 [21]",
    "f32 []",
    "f32 [34,21]",
    "f32 [34]",
    "f32 [21,34]",
    "f32 [21,21]",
    "f32 [21]",
    "f32 [67,21]",
    "f32 [67]",
    "f32 [3,67]",
    "f32 [3]",
    "f32 [N,3]",
    "f32 [3]",
};
static const gpunn_kernel_operand step_step_forward_operands[] = {
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
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -11, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -16, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -20, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -20, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 6, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 7, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 8, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 9, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 10, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 11, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 12, -1},
};
static const gpunn_kernel step_set[] = {
    {"step",
     "h1 = gelu(linear(x, fc1_weight, fc1_bias)); residual = linear(tanh(linear(h1 * scale, fixed_weight, fixed_bias)), plain_weight) + h1; gated = sigmoid(linear(residual * residual, gate_weight, gate_bias)) * residual; last = linear(relu(linear(gated, fc2_weight, fc2_bias)), last_weight, last_bias); error = last - t; loss = mean(error * rates * error)",
     step_step_nodes, 20,
     step_step_externals, 15,
     NULL, 0,
     GPUNN_KERNEL_ANY, true,
     {{NULL, 0, NULL, NULL, 0},
      {step_step_forward_operands, 28, NULL, NULL, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int step_training0[] = {
    6, 7, 8, 11, 12, 14, 15, 16, 19, 20, 21, 22, 23, 26, 27, 30, 31, 32, 33, 34, 0, 4, 5, 2, 9, 10, 13, 17,
    18, 24, 25, 28, 29, 1, 3,
};
static const gpunn_kernel_instance step_training[] = {
    {0, step_training0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda step_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda step_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda step_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda step_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set step_kernels = {
    GPUNN_KERNELS_ABI,
    STEP_KERNELS_STAMP,
    "step",
    "0.2",
    "037d804f8e360a0a08a6604187ef7742b117e9a51289a6c9a45f0afdc21f9911",
    "python3 -m generator step.json -o step",
    step_set,
    1,
    35,
    NULL,
    step_training,
    0,
    1,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &step_kernels_cuda,
#else
    NULL,
#endif
};
#undef STEP_KERNELS_IMPLEMENTATION
#endif
