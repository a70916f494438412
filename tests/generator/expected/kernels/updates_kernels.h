/* updates_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator updates.json -o updates
 */
#ifndef UPDATES_KERNELS_H
#define UPDATES_KERNELS_H
#include "gpunn.h"

#define UPDATES_KERNELS_STAMP 0x122fe552b0b72c24ull /* must equal the stamp in updates_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &updates_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define UPDATES_KERNELS_IMPLEMENTATION
 * Link updates_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set updates_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(UPDATES_KERNELS_IMPLEMENTATION) || defined(UPDATES_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "updates_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(UPDATES_KERNELS_CUDA)
#define UPDATES_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

UPDATES_FN float updates_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

UPDATES_FN float updates_max(float a, float b)
{
    return a > b || a != a ? a : b;
}

UPDATES_FN float updates_abs(float x)
{
    return fabsf(x);
}

UPDATES_FN float updates_sqrt(float x)
{
    return sqrtf(x);
}
#elif defined(UPDATES_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define UPDATES_FN __attribute__((unused, always_inline)) static inline
#else
#define UPDATES_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define UPDATES_OPTIMIZED
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

UPDATES_FN float updates_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

UPDATES_FN uint32_t updates_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

UPDATES_FN float updates_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

UPDATES_FN float updates_max(float a, float b)
{
    return updates_where(a > b, a, updates_where(a != a, a, b));
}

UPDATES_FN float updates_abs(float x)
{
    return fabsf(x);
}

/* 1 / sqrt(x) for normal x > 0, by Newton's method. C's sqrtf may set errno, which prevents vectorization. */
UPDATES_FN float updates_root(float x)
{
    float r = updates_float_of(0x5f375a86u - (updates_bits_of(x) >> 1));
    r *= 1.5f - x * r * (0.5f * r);
    r *= 1.5f - x * r * (0.5f * r);
    return r * (1.5f - x * r * (0.5f * r));
}

/* x below 2^-60 is scaled by 2^64, so that the residual of the square is not denormal. */
UPDATES_FN float updates_sqrt(float x)
{
    const bool  tiny = x < 8.67361738e-19f;
    const float p = x * updates_where(tiny, 1.84467441e19f, 1), r = updates_root(p), s = p * r;
    const float y = (s + 0.5f * r * (p - s * s)) * updates_where(tiny, 2.32830644e-10f, 1);
    return updates_where(x >= FLT_MIN, updates_where(x <= FLT_MAX, y, x), updates_where(x < 0, NAN, x));
}
#endif

#if defined(UPDATES_KERNELS_IMPLEMENTATION) || defined(UPDATES_KERNELS_CUDA)
/* sgd */
UPDATES_FN void updates_update0_step(float p, float lr, float ahead, float g, float weight_decay,
                                     float behind, float *p_out)
{
    *p_out = p - lr * (ahead * (g + p * weight_decay) + 0 * behind);
}

/* sgd */
UPDATES_FN void updates_update1_step(float p, float lr, float ahead, float g, float weight_decay,
                                     float behind, float keep, float s0, float take, float *p_out,
                                     float *s0_out)
{
    const float t0 = g + p * weight_decay;
    const float t1 = keep * s0 + take * t0;
    *p_out = p - lr * (ahead * t0 + behind * t1);
    *s0_out = t1;
}

/* sgd */
UPDATES_FN void updates_update2_step(float p, float lr, float ahead, float g, float weight_decay,
                                     float behind, float keep, float s0, float take, float *p_out,
                                     float *s0_out)
{
    const float t0 = g + p * weight_decay;
    const float t1 = keep * s0 + take * t0;
    *p_out = p - lr * (ahead * t0 + behind * t1);
    *s0_out = t1;
}

/* adam */
UPDATES_FN void updates_update3_step(float p, float rate, float s0, float take1, float g, float weight_decay,
                                     float root_scale, float s1, float take2, float *p_out, float *s0_out,
                                     float *s1_out)
{
    const float t0 = g + p * weight_decay;
    const float t1 = 0.9f * s0 + take1 * t0;
    const float t2 = 0.999f * s1 + t0 * (take2 * t0);
    *p_out = p - rate * (t1 / (root_scale * updates_sqrt(t2) + 1e-08f));
    *s0_out = t1;
    *s1_out = t2;
}

/* adamw */
UPDATES_FN void updates_update4_step(float p, float shrink, float rate, float s0, float g, float take1,
                                     float root_scale, float s1, float take2, float *p_out, float *s0_out,
                                     float *s1_out)
{
    const float t0 = 0.9f * s0 + g * take1;
    const float t1 = 0.999f * s1 + g * (g * take2);
    *p_out = p * shrink - rate * (t0 / (root_scale * updates_sqrt(t1) + 1e-08f));
    *s0_out = t0;
    *s1_out = t1;
}

/* rmsprop */
UPDATES_FN void updates_update5_step(float p, float lr, float g, float weight_decay, float s0, float take,
                                     float s2, float s1, float *p_out, float *s0_out, float *s1_out,
                                     float *s2_out)
{
    const float t0 = g + p * weight_decay;
    const float t1 = 0.99f * s0 + t0 * (take * t0);
    const float t2 = s2 + take * (t0 - s2);
    const float t3 = t0 / (updates_sqrt(t1 - t2 * t2) + 1e-08f) + 0.9f * s1;
    *p_out = p - lr * t3;
    *s0_out = t1;
    *s1_out = t3;
    *s2_out = t2;
}

/* rmsprop */
UPDATES_FN void updates_update6_step(float p, float lr, float g, float weight_decay, float s0, float take,
                                     float *p_out, float *s0_out)
{
    const float t0 = g + p * weight_decay;
    const float t1 = 0.99f * s0 + t0 * (take * t0);
    *p_out = p - lr * (t0 / (updates_sqrt(t1) + 1e-08f));
    *s0_out = t1;
}

/* adagrad */
UPDATES_FN void updates_update7_step(float p, float rate, float g, float weight_decay, float s0, float *p_out,
                                     float *s0_out)
{
    const float t0 = g + p * weight_decay;
    const float t1 = s0 + t0 * t0;
    *p_out = p - rate * (t0 / (updates_sqrt(t1) + 1e-10f));
    *s0_out = t1;
}

/* adamax */
UPDATES_FN void updates_update8_step(float p, float rate, float s0, float take1, float g, float weight_decay,
                                     float s1, float *p_out, float *s0_out, float *s1_out)
{
    const float t0 = g + p * weight_decay;
    const float t1 = 0.9f * s0 + take1 * t0;
    const float t2 = updates_max(0.999f * s1, updates_abs(t0) + 1e-08f);
    *p_out = p - rate * (t1 / t2);
    *s0_out = t1;
    *s1_out = t2;
}

/* nadam */
UPDATES_FN void updates_update9_step(float p, float shrink, float lead, float g, float weight_decay,
                                     float rate, float s0, float take1, float root_scale, float s1,
                                     float take2, float *p_out, float *s0_out, float *s1_out)
{
    const float t0 = g + p * weight_decay;
    const float t1 = 0.9f * s0 + take1 * t0;
    const float t2 = 0.999f * s1 + t0 * (take2 * t0);
    *p_out = p * shrink - (lead * t0 + rate * t1) / (root_scale * updates_sqrt(t2) + 1e-08f);
    *s0_out = t1;
    *s1_out = t2;
}

/* nadam */
UPDATES_FN void updates_update10_step(float p, float shrink, float g, float lead, float rate, float s0,
                                      float take1, float root_scale, float s1, float take2, float *p_out,
                                      float *s0_out, float *s1_out)
{
    const float t0 = 0.9f * s0 + g * take1;
    const float t1 = 0.999f * s1 + g * (g * take2);
    *p_out = p * shrink - (g * lead + rate * t0) / (root_scale * updates_sqrt(t1) + 1e-08f);
    *s0_out = t0;
    *s1_out = t1;
}

/* radam */
UPDATES_FN void updates_update11_step(float p, float shrink, float rate, float enough, float s0, float take1,
                                      float g, float weight_decay, float s1, float take2, float *p_out,
                                      float *s0_out, float *s1_out)
{
    const float t0 = g + p * weight_decay;
    const float t1 = 0.9f * s0 + take1 * t0;
    const float t2 = 0.999f * s1 + t0 * (take2 * t0);
    *p_out = p * shrink - rate * updates_where(enough != 0, t1 / (updates_sqrt(t2) + 1e-08f), t1);
    *s0_out = t1;
    *s1_out = t2;
}

/* radam */
UPDATES_FN void updates_update12_step(float p, float shrink, float rate, float enough, float s0, float g,
                                      float take1, float s1, float take2, float *p_out, float *s0_out,
                                      float *s1_out)
{
    const float t0 = 0.9f * s0 + g * take1;
    const float t1 = 0.999f * s1 + g * (g * take2);
    *p_out = p * shrink - rate * updates_where(enough != 0, t0 / (updates_sqrt(t1) + 1e-08f), t0);
    *s0_out = t0;
    *s1_out = t1;
}

/* lion */
UPDATES_FN void updates_update13_step(float p, float shrink, float lr, float s0, float g, float take1,
                                      float take2, float *p_out, float *s0_out)
{
    const float t0 = 0.9f * s0 + g * take1;
    *p_out = p * shrink - lr * updates_where(t0 > 0, 1, updates_where(t0 < 0, -1, t0));
    *s0_out = 0.99f * s0 + g * take2;
}

/* adadelta */
UPDATES_FN void updates_update14_step(float p, float lr, float g, float weight_decay, float s1, float s0,
                                      float take, float *p_out, float *s0_out, float *s1_out)
{
    const float t0 = g + p * weight_decay;
    const float t1 = 0.9f * s0 + t0 * (take * t0);
    const float t2 = t0 * updates_sqrt((s1 + 1e-06f) / (t1 + 1e-06f));
    *p_out = p - lr * t2;
    *s0_out = t1;
    *s1_out = 0.9f * s1 + t2 * (take * t2);
}
#endif

#if defined(UPDATES_KERNELS_IMPLEMENTATION) && !defined(UPDATES_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { UPDATES_BLOCK = 1024, UPDATES_ROW = 4096, UPDATES_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define UPDATES_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define UPDATES_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define UPDATES_VECTOR _Pragma("GCC ivdep")
#else
#define UPDATES_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define UPDATES_SELDOM __attribute__((unused, noinline)) static
#else
#define UPDATES_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define UPDATES_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define UPDATES_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define UPDATES_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(UPDATES_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define UPDATES_LOOPS(function, lanes, parameters, arguments)                        \
    UPDATES_FN void function##_code parameters;                                      \
    UPDATES_V16 static void function##_v16 parameters { function##_code arguments; } \
    UPDATES_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    UPDATES_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define UPDATES_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define UPDATES_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
UPDATES_FN int updates_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > UPDATES_SLICES ? UPDATES_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
UPDATES_FN int64_t updates_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*updates_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

/* sgd */
UPDATES_LOOPS(updates_update0_loop, lanes,
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
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update0_step(p[i], lr, ahead, g, weight_decay, behind, &p[i]);
    }
}

typedef struct updates_update0_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update0_work;

static void updates_update0_task(void *arg, int index, int threads)
{
    const updates_update0_work *w = (const updates_update0_work *)arg;
    updates_update0_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update0(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update0_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update0_task, &work);
    return 0;
}

/* sgd */
UPDATES_LOOPS(updates_update1_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float lr = n.lr;
    const float ahead = n.once[2];
    const float weight_decay = u->setting[3];
    const float behind = n.once[3];
    const float keep = n.once[0];
    const float take = n.once[1];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update1_step(p[i], lr, ahead, g, weight_decay, behind, keep, s0[i], take, &p[i], &s0[i]);
    }
}

typedef struct updates_update1_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update1_work;

static void updates_update1_task(void *arg, int index, int threads)
{
    const updates_update1_work *w = (const updates_update1_work *)arg;
    updates_update1_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update1(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update1_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update1_task, &work);
    return 0;
}

/* sgd */
UPDATES_LOOPS(updates_update2_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float lr = n.lr;
    const float ahead = n.once[2];
    const float weight_decay = u->setting[3];
    const float behind = n.once[3];
    const float keep = n.once[0];
    const float take = n.once[1];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update2_step(p[i], lr, ahead, g, weight_decay, behind, keep, s0[i], take, &p[i], &s0[i]);
    }
}

typedef struct updates_update2_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update2_work;

static void updates_update2_task(void *arg, int index, int threads)
{
    const updates_update2_work *w = (const updates_update2_work *)arg;
    updates_update2_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update2(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update2_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update2_task, &work);
    return 0;
}

/* adam */
UPDATES_LOOPS(updates_update3_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float rate = n.once[2];
    const float take1 = n.once[0];
    const float weight_decay = u->setting[4];
    const float root_scale = n.once[3];
    const float take2 = n.once[1];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    float *const s1 = u->state[1];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update3_step(p[i], rate, s0[i], take1, g, weight_decay, root_scale, s1[i], take2, &p[i], &s0[i],
                             &s1[i]);
    }
}

typedef struct updates_update3_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update3_work;

static void updates_update3_task(void *arg, int index, int threads)
{
    const updates_update3_work *w = (const updates_update3_work *)arg;
    updates_update3_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update3(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update3_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update3_task, &work);
    return 0;
}

/* adamw */
UPDATES_LOOPS(updates_update4_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float shrink = n.once[2];
    const float rate = n.once[3];
    const float take1 = n.once[0];
    const float root_scale = n.once[4];
    const float take2 = n.once[1];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    float *const s1 = u->state[1];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update4_step(p[i], shrink, rate, s0[i], g, take1, root_scale, s1[i], take2, &p[i], &s0[i], &s1[i]);
    }
}

typedef struct updates_update4_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update4_work;

static void updates_update4_task(void *arg, int index, int threads)
{
    const updates_update4_work *w = (const updates_update4_work *)arg;
    updates_update4_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update4(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update4_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update4_task, &work);
    return 0;
}

/* rmsprop */
UPDATES_LOOPS(updates_update5_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float lr = n.lr;
    const float weight_decay = u->setting[3];
    const float take = n.once[0];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    float *const s1 = u->state[1];
    float *const s2 = u->state[2];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update5_step(p[i], lr, g, weight_decay, s0[i], take, s2[i], s1[i], &p[i], &s0[i], &s1[i], &s2[i]);
    }
}

typedef struct updates_update5_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update5_work;

static void updates_update5_task(void *arg, int index, int threads)
{
    const updates_update5_work *w = (const updates_update5_work *)arg;
    updates_update5_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update5(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update5_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update5_task, &work);
    return 0;
}

/* rmsprop */
UPDATES_LOOPS(updates_update6_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float lr = n.lr;
    const float weight_decay = u->setting[3];
    const float take = n.once[0];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update6_step(p[i], lr, g, weight_decay, s0[i], take, &p[i], &s0[i]);
    }
}

typedef struct updates_update6_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update6_work;

static void updates_update6_task(void *arg, int index, int threads)
{
    const updates_update6_work *w = (const updates_update6_work *)arg;
    updates_update6_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update6(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update6_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update6_task, &work);
    return 0;
}

/* adagrad */
UPDATES_LOOPS(updates_update7_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float rate = n.once[0];
    const float weight_decay = u->setting[3];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update7_step(p[i], rate, g, weight_decay, s0[i], &p[i], &s0[i]);
    }
}

typedef struct updates_update7_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update7_work;

static void updates_update7_task(void *arg, int index, int threads)
{
    const updates_update7_work *w = (const updates_update7_work *)arg;
    updates_update7_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update7(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update7_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update7_task, &work);
    return 0;
}

/* adamax */
UPDATES_LOOPS(updates_update8_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float rate = n.once[1];
    const float take1 = n.once[0];
    const float weight_decay = u->setting[4];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    float *const s1 = u->state[1];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update8_step(p[i], rate, s0[i], take1, g, weight_decay, s1[i], &p[i], &s0[i], &s1[i]);
    }
}

typedef struct updates_update8_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update8_work;

static void updates_update8_task(void *arg, int index, int threads)
{
    const updates_update8_work *w = (const updates_update8_work *)arg;
    updates_update8_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update8(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update8_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update8_task, &work);
    return 0;
}

/* nadam */
UPDATES_LOOPS(updates_update9_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float shrink = n.once[2];
    const float lead = n.once[5];
    const float weight_decay = u->setting[4];
    const float rate = n.once[6];
    const float take1 = n.once[0];
    const float root_scale = n.once[7];
    const float take2 = n.once[1];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    float *const s1 = u->state[1];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update9_step(p[i], shrink, lead, g, weight_decay, rate, s0[i], take1, root_scale, s1[i], take2, &p[i],
                             &s0[i], &s1[i]);
    }
}

typedef struct updates_update9_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update9_work;

static void updates_update9_task(void *arg, int index, int threads)
{
    const updates_update9_work *w = (const updates_update9_work *)arg;
    updates_update9_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update9(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update9_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update9_task, &work);
    return 0;
}

/* nadam */
UPDATES_LOOPS(updates_update10_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float shrink = n.once[2];
    const float lead = n.once[5];
    const float rate = n.once[6];
    const float take1 = n.once[0];
    const float root_scale = n.once[7];
    const float take2 = n.once[1];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    float *const s1 = u->state[1];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update10_step(p[i], shrink, g, lead, rate, s0[i], take1, root_scale, s1[i], take2, &p[i], &s0[i],
                              &s1[i]);
    }
}

typedef struct updates_update10_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update10_work;

static void updates_update10_task(void *arg, int index, int threads)
{
    const updates_update10_work *w = (const updates_update10_work *)arg;
    updates_update10_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update10(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update10_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update10_task, &work);
    return 0;
}

/* radam */
UPDATES_LOOPS(updates_update11_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float shrink = n.once[2];
    const float rate = n.once[7];
    const float enough = n.once[6];
    const float take1 = n.once[0];
    const float weight_decay = u->setting[4];
    const float take2 = n.once[1];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    float *const s1 = u->state[1];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update11_step(p[i], shrink, rate, enough, s0[i], take1, g, weight_decay, s1[i], take2, &p[i], &s0[i],
                              &s1[i]);
    }
}

typedef struct updates_update11_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update11_work;

static void updates_update11_task(void *arg, int index, int threads)
{
    const updates_update11_work *w = (const updates_update11_work *)arg;
    updates_update11_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update11(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update11_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update11_task, &work);
    return 0;
}

/* radam */
UPDATES_LOOPS(updates_update12_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float shrink = n.once[2];
    const float rate = n.once[7];
    const float enough = n.once[6];
    const float take1 = n.once[0];
    const float take2 = n.once[1];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    float *const s1 = u->state[1];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update12_step(p[i], shrink, rate, enough, s0[i], g, take1, s1[i], take2, &p[i], &s0[i], &s1[i]);
    }
}

typedef struct updates_update12_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update12_work;

static void updates_update12_task(void *arg, int index, int threads)
{
    const updates_update12_work *w = (const updates_update12_work *)arg;
    updates_update12_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update12(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update12_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update12_task, &work);
    return 0;
}

/* lion */
UPDATES_LOOPS(updates_update13_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float shrink = n.once[2];
    const float lr = n.lr;
    const float take1 = n.once[0];
    const float take2 = n.once[1];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update13_step(p[i], shrink, lr, s0[i], g, take1, take2, &p[i], &s0[i]);
    }
}

typedef struct updates_update13_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update13_work;

static void updates_update13_task(void *arg, int index, int threads)
{
    const updates_update13_work *w = (const updates_update13_work *)arg;
    updates_update13_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update13(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update13_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update13_task, &work);
    return 0;
}

/* adadelta */
UPDATES_LOOPS(updates_update14_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float lr = n.lr;
    const float weight_decay = u->setting[3];
    const float take = n.once[0];
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    float *const s0 = u->state[0];
    float *const s1 = u->state[1];
    (void)lanes;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        updates_update14_step(p[i], lr, g, weight_decay, s1[i], s0[i], take, &p[i], &s0[i], &s1[i]);
    }
}

typedef struct updates_update14_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} updates_update14_work;

static void updates_update14_task(void *arg, int index, int threads)
{
    const updates_update14_work *w = (const updates_update14_work *)arg;
    updates_update14_loop(w->u, *w->numbers, w->lanes,
                     updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update14(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    updates_update14_work work = {u, numbers, updates_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update14_task, &work);
    return 0;
}
#ifdef UPDATES_OPTIMIZED
#pragma GCC pop_options
#undef UPDATES_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const gpunn_kernel_update updates_updates[] = {
    {GPUNN_UPDATE_SGD, {0, 0, 0, 0, 0, 0}, GPUNN_F32, updates_update0},
    {GPUNN_UPDATE_SGD, {0, 0.9f, 0.1f, 0, 0, 0}, GPUNN_F32, updates_update1},
    {GPUNN_UPDATE_SGD, {0, 0.9f, 0, 0, 1, 0}, GPUNN_F32, updates_update2},
    {GPUNN_UPDATE_ADAM, {0, 0.9f, 0.999f, 1e-08f, 0, 0}, GPUNN_F32, updates_update3},
    {GPUNN_UPDATE_ADAMW, {0, 0.9f, 0.999f, 1e-08f, 0, 0}, GPUNN_F32, updates_update4},
    {GPUNN_UPDATE_RMSPROP, {0, 0.99f, 1e-08f, 0, 0.9f, 1, 0}, GPUNN_F32, updates_update5},
    {GPUNN_UPDATE_RMSPROP, {0, 0.99f, 1e-08f, 0, 0, 0, 0}, GPUNN_F32, updates_update6},
    {GPUNN_UPDATE_ADAGRAD, {0, 1e-10f, 0, 0, 0, 0}, GPUNN_F32, updates_update7},
    {GPUNN_UPDATE_ADAMAX, {0, 0.9f, 0.999f, 1e-08f, 0, 0}, GPUNN_F32, updates_update8},
    {GPUNN_UPDATE_NADAM, {0, 0.9f, 0.999f, 1e-08f, 0, 0.004f, 0, 0}, GPUNN_F32, updates_update9},
    {GPUNN_UPDATE_NADAM, {0, 0.9f, 0.999f, 1e-08f, 0, 0.004f, 1, 0}, GPUNN_F32, updates_update10},
    {GPUNN_UPDATE_RADAM, {0, 0.9f, 0.999f, 1e-08f, 0, 0, 0}, GPUNN_F32, updates_update11},
    {GPUNN_UPDATE_RADAM, {0, 0.9f, 0.999f, 1e-08f, 0, 1, 0}, GPUNN_F32, updates_update12},
    {GPUNN_UPDATE_LION, {0, 0.9f, 0.99f, 0, 0}, GPUNN_F32, updates_update13},
    {GPUNN_UPDATE_ADADELTA, {0, 0.9f, 1e-06f, 0, 0}, GPUNN_F32, updates_update14},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda updates_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda updates_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda updates_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda updates_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set updates_kernels = {
    GPUNN_KERNELS_ABI,
    UPDATES_KERNELS_STAMP,
    "updates",
    "0.2",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "python3 -m generator updates.json -o updates",
    NULL,
    0,
    9,
    NULL,
    NULL,
    0,
    0,
    updates_updates,
    15,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &updates_kernels_cuda,
#else
    NULL,
#endif
};
#undef UPDATES_KERNELS_IMPLEMENTATION
#endif
