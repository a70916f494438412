/* updates_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.1, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator updates.json -o updates
 */
#ifndef UPDATES_KERNELS_H
#define UPDATES_KERNELS_H
#include "gpunn.h"

#define UPDATES_KERNELS_STAMP 0xbd010fbd97ae104bull /* of this text: updates_kernels.cu was written with it */
#ifdef __cplusplus
extern "C" {
#endif
/* For gpunn_use_kernels(model, &updates_kernels). One C file of the program defines this before it includes this file:
 *     #define UPDATES_KERNELS_IMPLEMENTATION
 * updates_kernels.cu, where it is linked, adds the kernels for GPUs. */
extern const gpunn_kernel_set updates_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(UPDATES_KERNELS_IMPLEMENTATION) || defined(UPDATES_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 4
#error "updates_kernels.h is for GPUNN_KERNELS_ABI 4; renew it with the command in its first lines"
#endif
#endif

/* ==== the mathematics ================================================================================================= */
#if defined(UPDATES_KERNELS_CUDA)
#define UPDATES_FN static __device__ __forceinline__

/* The functions of gpunn.h's tables on a GPU, as gpunn_cuda.cu has them. Those with _fast in their name are for values that are
 * stored in 16 bits: within 2^-10 of the true value, and 0 for what is denormal. */
#elif defined(UPDATES_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>
#if defined(__AVX__) && defined(__GNUC__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

#if defined(__GNUC__)
#define UPDATES_FN __attribute__((unused, always_inline)) static inline
#else
#define UPDATES_FN static inline
#endif
/* gcc vectorises little below -O3, makes branches of choices that might trap, and with -std=c99 joins no x * y + z. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define UPDATES_OPTIMIZED
#pragma GCC push_options
#pragma GCC optimize("O3,no-trapping-math,fp-contract=fast")
#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#endif

/* The functions of gpunn.h's tables on a CPU, without branches or tables, so that loops over them become vector code. Within 3
 * ulp of the true value (sin and cos: 1e-7, up to 1e6), and C's values at infinities, NaN and outside the domain; results below
 * 2^-125 may be 0, and denormal operands count as 0. */

UPDATES_FN float updates_where(bool condition, float a, float b)
{
    return condition ? a : b;
}
#endif

#if defined(UPDATES_KERNELS_IMPLEMENTATION) || defined(UPDATES_KERNELS_CUDA)
#endif

#if defined(UPDATES_KERNELS_IMPLEMENTATION) && !defined(UPDATES_KERNELS_CUDA)
/* ==== loops =========================================================================================================== */
enum { UPDATES_BLOCK = 1024, UPDATES_ROW = 4096, UPDATES_SLICES = 64 };

/* Steps of the loop that follows depend on no others. */
#if defined(__clang__) && defined(__AVX512F__)
#define UPDATES_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define UPDATES_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define UPDATES_VECTOR _Pragma("GCC ivdep")
#else
#define UPDATES_VECTOR
#endif
#if defined(__GNUC__)
#define UPDATES_SELDOM __attribute__((unused, noinline)) static
#else
#define UPDATES_SELDOM static
#endif

/* Functions with the loops over elements. */
#if defined(__clang__) && defined(__AVX512F__)
#define UPDATES_LOOPS __attribute__((min_vector_width(512))) static void
#else
#define UPDATES_LOOPS static void
#endif

/* The square roots of n floats. C's sqrtf may set errno, which keeps it out of vector code. */
UPDATES_FN void updates_roots(float *x, int64_t n)
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
UPDATES_FN int updates_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > UPDATES_SLICES ? UPDATES_SLICES : slices > 1 ? (int)slices : 1;
}

UPDATES_FN int64_t updates_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* A launch's loop over elements, or rows, from begin to end. stat: scratch of the program; sums: of the slice. */
typedef void (*updates_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums);

typedef struct updates_work {
    updates_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} updates_work;

/* sgd */
UPDATES_LOOPS updates_update0_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float decay = u->weight_decay;
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float p = parameter[i], g = gradient[i] * numbers.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        g += decay * p;
        p -= numbers.rate * g;
        parameter[i] = p;
    }
}

typedef struct updates_update0_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update0_work;

static void updates_update0_task(void *arg, int index, int threads)
{
    const updates_update0_work *w = (const updates_update0_work *)arg;
    updates_update0_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update0(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update0_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update0_task, &work);
    return 0;
}

/* sgd */
UPDATES_LOOPS updates_update1_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float decay = u->weight_decay;
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    float *const m = u->state[0];
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float p = parameter[i], g = gradient[i] * numbers.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        g += decay * p;
        const float m_next = updates_where(numbers.first, g, 0.9f * m[i] + 0.9f * g);
        m[i] = m_next;
        p -= numbers.rate * (m_next);
        parameter[i] = p;
    }
}

typedef struct updates_update1_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update1_work;

static void updates_update1_task(void *arg, int index, int threads)
{
    const updates_update1_work *w = (const updates_update1_work *)arg;
    updates_update1_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update1(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update1_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update1_task, &work);
    return 0;
}

/* sgd */
UPDATES_LOOPS updates_update2_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float decay = u->weight_decay;
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    float *const m = u->state[0];
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float p = parameter[i], g = gradient[i] * numbers.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        g += decay * p;
        const float m_next = updates_where(numbers.first, g, 0.9f * m[i] + 1 * g);
        m[i] = m_next;
        p -= numbers.rate * (g + 0.9f * m_next);
        parameter[i] = p;
    }
}

typedef struct updates_update2_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update2_work;

static void updates_update2_task(void *arg, int index, int threads)
{
    const updates_update2_work *w = (const updates_update2_work *)arg;
    updates_update2_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update2(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update2_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update2_task, &work);
    return 0;
}

/* adam */
UPDATES_LOOPS updates_update3_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
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
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         g = gradient[i] * numbers.scale;
            g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
            g += decay * parameter[i];
            kept[j] = 0.9f * m[i] + 0.1f * g;
            root[j] = 0.999f * v[i] + 0.001f * g * g;
            m[i] = kept[j];
            v[i] = root[j];
        }
        updates_roots(root, n);
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         p = parameter[i];
            p = p - numbers.rate * (kept[j] / (root[j] * numbers.root_scale + 1e-08f));
            parameter[i] = p;
        }
    }
}

typedef struct updates_update3_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update3_work;

static void updates_update3_task(void *arg, int index, int threads)
{
    const updates_update3_work *w = (const updates_update3_work *)arg;
    updates_update3_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update3(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update3_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update3_task, &work);
    return 0;
}

/* adamw */
UPDATES_LOOPS updates_update4_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    float *const m = u->state[0];
    float *const v = u->state[1];
    enum { PIECE = 64 }; /* elements whose roots are taken together */
    for (int64_t at = begin; at < end; at += PIECE) {
        const int64_t n = end - at < PIECE ? end - at : (int64_t)PIECE;
        float         root[PIECE], kept[PIECE];
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         g = gradient[i] * numbers.scale;
            g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
            kept[j] = 0.9f * m[i] + 0.1f * g;
            root[j] = 0.999f * v[i] + 0.001f * g * g;
            m[i] = kept[j];
            v[i] = root[j];
        }
        updates_roots(root, n);
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         p = parameter[i];
            p = p * numbers.shrink - numbers.rate * (kept[j] / (root[j] * numbers.root_scale + 1e-08f));
            parameter[i] = p;
        }
    }
}

typedef struct updates_update4_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update4_work;

static void updates_update4_task(void *arg, int index, int threads)
{
    const updates_update4_work *w = (const updates_update4_work *)arg;
    updates_update4_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update4(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update4_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update4_task, &work);
    return 0;
}

/* rmsprop */
UPDATES_LOOPS updates_update5_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float decay = u->weight_decay;
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    float *const v = u->state[0];
    float *const buffer = u->state[1];
    float *const average = u->state[2];
    enum { PIECE = 64 }; /* elements whose roots are taken together */
    for (int64_t at = begin; at < end; at += PIECE) {
        const int64_t n = end - at < PIECE ? end - at : (int64_t)PIECE;
        float         root[PIECE], kept[PIECE];
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         g = gradient[i] * numbers.scale;
            g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
            g += decay * parameter[i];
            const float square = 0.99f * v[i] + 0.01f * g * g;
            v[i] = square;
            kept[j] = g;
            const float average_next = average[i] + 0.01f * (g - average[i]);
            average[i] = average_next;
            root[j] = square - average_next * average_next;
        }
        updates_roots(root, n);
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         p = parameter[i];
            float move = kept[j] / (root[j] + 1e-08f);
            move += 0.9f * buffer[i];
            buffer[i] = move;
            p -= numbers.rate * move;
            parameter[i] = p;
        }
    }
}

typedef struct updates_update5_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update5_work;

static void updates_update5_task(void *arg, int index, int threads)
{
    const updates_update5_work *w = (const updates_update5_work *)arg;
    updates_update5_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update5(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update5_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update5_task, &work);
    return 0;
}

/* rmsprop */
UPDATES_LOOPS updates_update6_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float decay = u->weight_decay;
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    float *const v = u->state[0];
    enum { PIECE = 64 }; /* elements whose roots are taken together */
    for (int64_t at = begin; at < end; at += PIECE) {
        const int64_t n = end - at < PIECE ? end - at : (int64_t)PIECE;
        float         root[PIECE], kept[PIECE];
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         g = gradient[i] * numbers.scale;
            g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
            g += decay * parameter[i];
            const float square = 0.99f * v[i] + 0.01f * g * g;
            v[i] = square;
            kept[j] = g;
            root[j] = square;
        }
        updates_roots(root, n);
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         p = parameter[i];
            float move = kept[j] / (root[j] + 1e-08f);
            p -= numbers.rate * move;
            parameter[i] = p;
        }
    }
}

typedef struct updates_update6_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update6_work;

static void updates_update6_task(void *arg, int index, int threads)
{
    const updates_update6_work *w = (const updates_update6_work *)arg;
    updates_update6_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update6(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update6_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update6_task, &work);
    return 0;
}

/* adagrad */
UPDATES_LOOPS updates_update7_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float decay = u->weight_decay;
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    float *const sum = u->state[0];
    enum { PIECE = 64 }; /* elements whose roots are taken together */
    for (int64_t at = begin; at < end; at += PIECE) {
        const int64_t n = end - at < PIECE ? end - at : (int64_t)PIECE;
        float         root[PIECE], kept[PIECE];
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         g = gradient[i] * numbers.scale;
            g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
            g += decay * parameter[i];
            kept[j] = g;
            root[j] = sum[i] + g * g;
            sum[i] = root[j];
        }
        updates_roots(root, n);
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         p = parameter[i];
            p -= numbers.rate * (kept[j] / (root[j] + 1e-10f));
            parameter[i] = p;
        }
    }
}

typedef struct updates_update7_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update7_work;

static void updates_update7_task(void *arg, int index, int threads)
{
    const updates_update7_work *w = (const updates_update7_work *)arg;
    updates_update7_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update7(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update7_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update7_task, &work);
    return 0;
}

/* adamax */
UPDATES_LOOPS updates_update8_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float decay = u->weight_decay;
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    float *const m = u->state[0];
    float *const most = u->state[1];
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float p = parameter[i], g = gradient[i] * numbers.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        g += decay * p;
        const float m_next = 0.9f * m[i] + 0.1f * g;
        const float now = fabsf(g) + 1e-08f, before = 0.999f * most[i];
        const float most_next = updates_where(before > now, before, now);
        m[i] = m_next;
        most[i] = most_next;
        p -= numbers.rate * (m_next / most_next);
        parameter[i] = p;
    }
}

typedef struct updates_update8_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update8_work;

static void updates_update8_task(void *arg, int index, int threads)
{
    const updates_update8_work *w = (const updates_update8_work *)arg;
    updates_update8_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update8(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update8_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update8_task, &work);
    return 0;
}

/* nadam */
UPDATES_LOOPS updates_update9_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
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
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         g = gradient[i] * numbers.scale;
            g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
            g += decay * parameter[i];
            kept[j] = 0.9f * m[i] + 0.1f * g;
            root[j] = 0.999f * v[i] + 0.001f * g * g;
            m[i] = kept[j];
            v[i] = root[j];
            kept[j] = numbers.lead * g + numbers.rate * kept[j];
        }
        updates_roots(root, n);
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         p = parameter[i];
            p = p - kept[j] / (root[j] * numbers.root_scale + 1e-08f);
            parameter[i] = p;
        }
    }
}

typedef struct updates_update9_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update9_work;

static void updates_update9_task(void *arg, int index, int threads)
{
    const updates_update9_work *w = (const updates_update9_work *)arg;
    updates_update9_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update9(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update9_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update9_task, &work);
    return 0;
}

/* nadam */
UPDATES_LOOPS updates_update10_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    float *const m = u->state[0];
    float *const v = u->state[1];
    enum { PIECE = 64 }; /* elements whose roots are taken together */
    for (int64_t at = begin; at < end; at += PIECE) {
        const int64_t n = end - at < PIECE ? end - at : (int64_t)PIECE;
        float         root[PIECE], kept[PIECE];
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         g = gradient[i] * numbers.scale;
            g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
            kept[j] = 0.9f * m[i] + 0.1f * g;
            root[j] = 0.999f * v[i] + 0.001f * g * g;
            m[i] = kept[j];
            v[i] = root[j];
            kept[j] = numbers.lead * g + numbers.rate * kept[j];
        }
        updates_roots(root, n);
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         p = parameter[i];
            p = p * numbers.shrink - kept[j] / (root[j] * numbers.root_scale + 1e-08f);
            parameter[i] = p;
        }
    }
}

typedef struct updates_update10_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update10_work;

static void updates_update10_task(void *arg, int index, int threads)
{
    const updates_update10_work *w = (const updates_update10_work *)arg;
    updates_update10_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update10(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update10_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update10_task, &work);
    return 0;
}

/* radam */
UPDATES_LOOPS updates_update11_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
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
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         g = gradient[i] * numbers.scale;
            g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
            g += decay * parameter[i];
            kept[j] = 0.9f * m[i] + 0.1f * g;
            root[j] = 0.999f * v[i] + 0.001f * g * g;
            m[i] = kept[j];
            v[i] = root[j];
        }
        updates_roots(root, n);
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         p = parameter[i];
            p = p - numbers.rate * updates_where(numbers.root_scale > 0, kept[j] / (root[j] + 1e-08f), kept[j]);
            parameter[i] = p;
        }
    }
}

typedef struct updates_update11_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update11_work;

static void updates_update11_task(void *arg, int index, int threads)
{
    const updates_update11_work *w = (const updates_update11_work *)arg;
    updates_update11_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update11(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update11_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update11_task, &work);
    return 0;
}

/* radam */
UPDATES_LOOPS updates_update12_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    float *const m = u->state[0];
    float *const v = u->state[1];
    enum { PIECE = 64 }; /* elements whose roots are taken together */
    for (int64_t at = begin; at < end; at += PIECE) {
        const int64_t n = end - at < PIECE ? end - at : (int64_t)PIECE;
        float         root[PIECE], kept[PIECE];
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         g = gradient[i] * numbers.scale;
            g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
            kept[j] = 0.9f * m[i] + 0.1f * g;
            root[j] = 0.999f * v[i] + 0.001f * g * g;
            m[i] = kept[j];
            v[i] = root[j];
        }
        updates_roots(root, n);
        UPDATES_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         p = parameter[i];
            p = p * numbers.shrink - numbers.rate * updates_where(numbers.root_scale > 0, kept[j] / (root[j] + 1e-08f), kept[j]);
            parameter[i] = p;
        }
    }
}

typedef struct updates_update12_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update12_work;

static void updates_update12_task(void *arg, int index, int threads)
{
    const updates_update12_work *w = (const updates_update12_work *)arg;
    updates_update12_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update12(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update12_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update12_task, &work);
    return 0;
}

/* lion */
UPDATES_LOOPS updates_update13_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    float *const m = u->state[0];
    UPDATES_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float p = parameter[i], g = gradient[i] * numbers.scale;
        g = updates_where(g > limit, limit, updates_where(g < -limit, -limit, g));
        const float old = m[i], way = 0.9f * old + 0.1f * g;
        p = p * numbers.shrink - numbers.rate * updates_where(way > 0, 1.0f, updates_where(way < 0, -1.0f, way));
        m[i] = 0.999f * old + 0.001f * g;
        parameter[i] = p;
    }
}

typedef struct updates_update13_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} updates_update13_work;

static void updates_update13_task(void *arg, int index, int threads)
{
    const updates_update13_work *w = (const updates_update13_work *)arg;
    updates_update13_loop(w->u, *w->numbers, updates_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     updates_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int updates_update13(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    updates_update13_work work = {u, numbers, updates_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, updates_update13_task, &work);
    return 0;
}
#ifdef UPDATES_OPTIMIZED
#pragma GCC pop_options
#undef UPDATES_OPTIMIZED
#endif

/* ==== tables ========================================================================================================== */
static const gpunn_kernel_update updates_updates[] = {
    {{GPUNN_UPDATE_SGD, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, false, false, false, false, false, 0, 0, NULL, NULL},
     updates_update0},
    {{GPUNN_UPDATE_SGD, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0.9f, 0.1f, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, false, false, false, false, false, 0, 0, NULL, NULL},
     updates_update1},
    {{GPUNN_UPDATE_SGD, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0.9f, 0, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, true, false, true, false, false, 0, 0, NULL, NULL},
     updates_update2},
    {{GPUNN_UPDATE_ADAM, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, false, false, false, false, false, 0, 0, NULL, NULL},
     updates_update3},
    {{GPUNN_UPDATE_ADAMW, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, false, false, false, false, false, 0, 0, NULL, NULL},
     updates_update4},
    {{GPUNN_UPDATE_RMSPROP, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0.9f, 0, 0.9f, 0.999f, 0.99f, 1e-08f, 0, 0, 0, false, true, false, false, false, 0, 0, NULL, NULL},
     updates_update5},
    {{GPUNN_UPDATE_RMSPROP, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0.99f, 1e-08f, 0, 0, 0, false, false, false, false, false, 0, 0, NULL, NULL},
     updates_update6},
    {{GPUNN_UPDATE_ADAGRAD, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0, 1e-10f, 0, 0, 0, false, false, false, false, false, 0, 0, NULL, NULL},
     updates_update7},
    {{GPUNN_UPDATE_ADAMAX, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, false, false, false, false, false, 0, 0, NULL, NULL},
     updates_update8},
    {{GPUNN_UPDATE_NADAM, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, false, false, false, false, false, 0, 0, NULL, NULL},
     updates_update9},
    {{GPUNN_UPDATE_NADAM, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, false, false, false, true, false, 0, 0, NULL, NULL},
     updates_update10},
    {{GPUNN_UPDATE_RADAM, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, false, false, true, false, false, 0, 0, NULL, NULL},
     updates_update11},
    {{GPUNN_UPDATE_RADAM, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, false, false, false, true, false, 0, 0, NULL, NULL},
     updates_update12},
    {{GPUNN_UPDATE_LION, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, false, false, false, false, false, 0, 0, NULL, NULL},
     updates_update13},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda updates_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda updates_kernels_cuda;
#elif defined(__GNUC__) && !defined(_WIN32) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda updates_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && !defined(_WIN32)
extern const gpunn_kernel_cuda updates_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set updates_kernels = {
    GPUNN_KERNELS_ABI,
    UPDATES_KERNELS_STAMP,
    "updates",
    "0.1",
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
    14,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && !defined(_WIN32))
    &updates_kernels_cuda,
#else
    NULL,
#endif
};
#undef UPDATES_KERNELS_IMPLEMENTATION
#endif
