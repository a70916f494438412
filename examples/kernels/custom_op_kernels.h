/* custom_op_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.1, templates a9785fb6116f
 * spec sha256 69bb937185aec3d159faf1a70e32abe348f18e4ba8597249bdae8eda85061087
 * renew it with: python3 -m generator examples/kernels/custom_op.json -o examples/kernels/custom_op
 */
#ifndef CUSTOM_OP_KERNELS_H
#define CUSTOM_OP_KERNELS_H
#include "gpunn.h"

#define CUSTOM_OP_KERNELS_STAMP 0x8dba7cd83e5989b7ull /* of this text: custom_op_kernels.cu was written with it */
#ifdef __cplusplus
extern "C" {
#endif
/* For gpunn_use_kernels(model, &custom_op_kernels). One C file of the program defines this before it includes this file:
 *     #define CUSTOM_OP_KERNELS_IMPLEMENTATION
 * custom_op_kernels.cu, where it is linked, adds the kernels for GPUs. */
extern const gpunn_kernel_set custom_op_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(CUSTOM_OP_KERNELS_IMPLEMENTATION) || defined(CUSTOM_OP_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 4
#error "custom_op_kernels.h is for GPUNN_KERNELS_ABI 4; renew it with the command in its first lines"
#endif
#endif

/* ==== the mathematics ================================================================================================= */
#if defined(CUSTOM_OP_KERNELS_CUDA)
#define CUSTOM_OP_FN static __device__ __forceinline__

/* The functions of gpunn.h's tables on a GPU, as gpunn_cuda.cu has them. Those with _fast in their name are for values that are
 * stored in 16 bits: within 2^-10 of the true value, and 0 for what is denormal. */

/* 32 bits of 1 / (2 pi), from bit 32 i behind the point on, after a word of zeros. */
CUSTOM_OP_FN unsigned custom_op_turns(unsigned i)
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

/* sin(x + quadrants pi / 2). Unlike sinf's, the reduction of large x needs no local memory: x / (2 pi) is the product of x's 32
 * bits of significand and those 96 bits of 1 / (2 pi) that leave less than whole turns. */
CUSTOM_OP_FN float custom_op_sine(float x, int quadrants)
{
    float turned = rintf(x * 0.636619772f), r;
    if (fabsf(x) < 1e5f) { /* pi / 2 in three parts */
        r = fmaf(-turned, 1.57079601f, x);
        r = fmaf(-turned, 3.13916473e-7f, r);
        r = fmaf(-turned, 5.39030253e-15f, r);
        quadrants += (int)turned;
    } else if (fabsf(x) < INFINITY) {
        unsigned bits = __float_as_uint(x), exponent = (bits >> 23 & 0xFF) - 126, word = exponent / 32, shift = exponent % 32;
        uint64_t significand = bits << 8 | 0x80000000u, part[3];
#pragma unroll
        for (unsigned k = 0; k < 3; k++)
            part[k] = ((uint64_t)custom_op_turns(word + k) << 32 | custom_op_turns(word + k + 1)) << shift >> 32;
        uint64_t turns = (significand * part[0] << 32) + significand * part[1] + (significand * part[2] >> 32);
        int      quadrant = (int)((turns + (1ull << 61)) >> 62);
        r = (float)(int64_t)(turns - ((uint64_t)quadrant << 62)) * 3.40612167e-19f; /* pi / 2 / 2^62 */
        r = x < 0 ? -r : r;
        quadrants += x < 0 ? -quadrant : quadrant;
    } else
        r = NAN;
    float s = r * r,
          sine = fmaf(fmaf(fmaf(fmaf(2.86567956e-6f, s, -1.98559923e-4f), s, 8.33338592e-3f), s, -1.66666672e-1f), r * s, r);
    float cosine = fmaf(fmaf(fmaf(fmaf(2.44677067e-5f, s, -1.38877297e-3f), s, 4.16666567e-2f), s, -0.5f), s, 1.0f);
    float y = quadrants & 1 ? cosine : sine;
    return quadrants & 2 ? -y : y;
}

CUSTOM_OP_FN float custom_op_sin(float x)
{
    return custom_op_sine(x, 0);
}

CUSTOM_OP_FN float custom_op_cos(float x)
{
    return custom_op_sine(x, 1);
}
#elif defined(CUSTOM_OP_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>
#if defined(__AVX__) && defined(__GNUC__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

#if defined(__GNUC__)
#define CUSTOM_OP_FN __attribute__((unused, always_inline)) static inline
#else
#define CUSTOM_OP_FN static inline
#endif
/* gcc vectorises little below -O3, makes branches of choices that might trap, and with -std=c99 joins no x * y + z. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define CUSTOM_OP_OPTIMIZED
#pragma GCC push_options
#pragma GCC optimize("O3,no-trapping-math,fp-contract=fast")
#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#endif

/* The functions of gpunn.h's tables on a CPU, without branches or tables, so that loops over them become vector code. Within 3
 * ulp of the true value (sin and cos: 1e-7, up to 1e6), and C's values at infinities, NaN and outside the domain; results below
 * 2^-125 may be 0, and denormal operands count as 0. */

CUSTOM_OP_FN float custom_op_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

CUSTOM_OP_FN uint32_t custom_op_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

CUSTOM_OP_FN float custom_op_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

/* x, but at least low and at most high; NaN stays. */
CUSTOM_OP_FN float custom_op_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* sin(x + quadrants pi / 2). */
CUSTOM_OP_FN float custom_op_sine(float x, int32_t quadrants)
{
    const double magic = 6755399441055744.0; /* 1.5 2^52 */
    const double from = (double)custom_op_limit(x, -1e9f, 1e9f), turned = from * 0.63661977236758134 + magic, k = turned - magic;
    const float  near = (float)(from - k * 1.5707963267341256 - k * 6.0771005065061922e-11);
    const float  r = custom_op_limit(near, -0.79f, 0.79f), s = r * r;
    const float  sine = r + r * s * ((-1.98559923e-4f + 2.86567956e-6f * s) * s * s + (8.33338592e-3f * s - 1.66666672e-1f));
    const float  cosine = 1 + s * (((2.44677067e-5f * s - 1.38877297e-3f) * s + 4.16666567e-2f) * s - 0.5f);
    const int32_t  quadrant = (int32_t)k + quadrants;
    const uint32_t sign = ((uint32_t)quadrant & 2u) << 30;
    const float    y = custom_op_where((quadrant & 1) != 0, cosine, sine);
    return custom_op_float_of(custom_op_bits_of(y) ^ sign) + (x - x);
}

CUSTOM_OP_FN float custom_op_sin(float x)
{
    return custom_op_sine(x, 0);
}

CUSTOM_OP_FN float custom_op_cos(float x)
{
    return custom_op_sine(x, 1);
}
#endif

#if defined(CUSTOM_OP_KERNELS_IMPLEMENTATION) || defined(CUSTOM_OP_KERNELS_CUDA)
/* g0, evaluation: t10 = fc1 + square(sin(a1 * fc1)) / a1; bytes: 256 a sample and 128 */
CUSTOM_OP_FN void custom_op_g0_evaluation_0(float fc1, float a1, float *t10)
{
    const float t0 = custom_op_sin(fc1 * a1);
    *t10 = fc1 + t0 * t0 / a1;
}

/* g0, forward: t10 = fc1 + square(sin(a1 * fc1)) / a1; bytes: 256 a sample and 128 */
CUSTOM_OP_FN void custom_op_g0_forward_0(float fc1, float a1, float *t10)
{
    const float t0 = custom_op_sin(fc1 * a1);
    *t10 = fc1 + t0 * t0 / a1;
}

/* g0, backward: t10 = fc1 + square(sin(a1 * fc1)) / a1; bytes: 384 a sample and 256 */
CUSTOM_OP_FN void custom_op_g0_backward_0(float grad_t10, float a1, float fc1, float *grad_fc1, float *sum0, float *sum1)
{
    const float t0 = fc1 * a1;
    const float t1 = custom_op_sin(t0);
    const float t2 = custom_op_cos(t0) * (t1 * (2 * (grad_t10 / a1)));
    *grad_fc1 = grad_t10 + a1 * t2;
    *sum0 = -(grad_t10 * (t1 * t1 / a1 / a1));
    *sum1 = fc1 * t2;
}

CUSTOM_OP_FN void custom_op_g0_backward_0_final(float sum0, float sum1, float *grad_a1)
{
    *grad_a1 = sum0 + sum1;
}

/* g1, evaluation: t24 = mean(squared_error(fc3, t)); bytes: 8 a sample and 4 */
CUSTOM_OP_FN void custom_op_g1_evaluation_0(float fc3, float t, float *sum0)
{
    const float t0 = fc3 - t;
    *sum0 = t0 * t0;
}

CUSTOM_OP_FN void custom_op_g1_evaluation_0_final(float sum0, float count, float *t24)
{
    *t24 = sum0 / count;
}

/* g1, forward: t24 = mean(squared_error(fc3, t)); bytes: 16 a sample and 8 */
CUSTOM_OP_FN void custom_op_g1_forward_0(float fc3, float t, float grad_t24, float count, float *grad_fc3, float *grad_t,
                                         float *sum0)
{
    const float t0 = fc3 - t;
    const float t1 = 2 * (grad_t24 / count);
    *grad_fc3 = t0 * t1;
    *grad_t = (t - fc3) * t1;
    *sum0 = t0 * t0;
}

CUSTOM_OP_FN void custom_op_g1_forward_0_final(float sum0, float count, float *t24)
{
    *t24 = sum0 / count;
}
#endif

#if defined(CUSTOM_OP_KERNELS_IMPLEMENTATION) && !defined(CUSTOM_OP_KERNELS_CUDA)
/* ==== loops =========================================================================================================== */
enum { CUSTOM_OP_BLOCK = 1024, CUSTOM_OP_ROW = 4096, CUSTOM_OP_SLICES = 64 };

/* Steps of the loop that follows depend on no others. */
#if defined(__clang__) && defined(__AVX512F__)
#define CUSTOM_OP_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define CUSTOM_OP_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define CUSTOM_OP_VECTOR _Pragma("GCC ivdep")
#else
#define CUSTOM_OP_VECTOR
#endif
#if defined(__GNUC__)
#define CUSTOM_OP_SELDOM __attribute__((unused, noinline)) static
#else
#define CUSTOM_OP_SELDOM static
#endif

/* Functions with the loops over elements. */
#if defined(__clang__) && defined(__AVX512F__)
#define CUSTOM_OP_LOOPS __attribute__((min_vector_width(512))) static void
#else
#define CUSTOM_OP_LOOPS static void
#endif

/* The square roots of n floats. C's sqrtf may set errno, which keeps it out of vector code. */
CUSTOM_OP_FN void custom_op_roots(float *x, int64_t n)
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
CUSTOM_OP_FN int custom_op_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > CUSTOM_OP_SLICES ? CUSTOM_OP_SLICES : slices > 1 ? (int)slices : 1;
}

CUSTOM_OP_FN int64_t custom_op_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* A launch's loop over elements, or rows, from begin to end. stat: scratch of the program; sums: of the slice. */
typedef void (*custom_op_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums);

CUSTOM_OP_FN void custom_op_run_slice(custom_op_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums, int width)
{
    const int64_t begin = custom_op_slice(count, grain, slices, slice), end = custom_op_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct custom_op_work {
    custom_op_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} custom_op_work;

CUSTOM_OP_SELDOM void custom_op_task(void *arg, int index, int threads)
{
    const custom_op_work *w = (const custom_op_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads; ++i)
        custom_op_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums, w->width);
}

/* Runs a loop over count elements or rows, in slices that are a multiple of grain; each slice has `width` sums. */
CUSTOM_OP_SELDOM void custom_op_run(custom_op_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    custom_op_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, custom_op_task, &work);
}

CUSTOM_OP_FN int custom_op_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace. */
CUSTOM_OP_FN size_t custom_op_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

CUSTOM_OP_FN void custom_op_add(float *to, const float *from, int n)
{
    CUSTOM_OP_VECTOR
    for (int j = 0; j < n; ++j) to[j] += from[j];
}

/* to[j] = what stands at (i + j) % mod: once as it stands, then by copies of what is there. */
CUSTOM_OP_FN void custom_op_repeat(float *to, const float *from, int64_t i, int n, int64_t mod)
{
    const int64_t place = i % mod;
    int           done = custom_op_least(n, mod), run = custom_op_least(done, mod - place);
    memcpy(to, from + place, (size_t)run * sizeof *to);
    memcpy(to + run, from, (size_t)(done - run) * sizeof *to);
    for (; done < n; done += run) {
        run = custom_op_least(n - done, done);
        memcpy(to + done, to, (size_t)run * sizeof *to);
    }
}

CUSTOM_OP_FN float custom_op_sum(const float *x, int n)
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

/* sums[c] += those of x[0 .. n), which belong to elements i, i + 1, ..., that stand in column c. */
CUSTOM_OP_FN void custom_op_add_columns(double *sums, const float *x, int64_t i, int n, int64_t columns)
{
    int64_t c = i % columns;
    for (int j = 0, run; j < n; j += run) {
        run = custom_op_least(n - j, columns - c);
        CUSTOM_OP_VECTOR
        for (int k = 0; k < run; ++k) sums[c + k] += (double)x[j + k];
        c = 0;
    }
}

/* One place's sum over all slices, whose sums stand `width` apart. */
CUSTOM_OP_FN float custom_op_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, evaluation: t10 */
CUSTOM_OP_LOOPS custom_op_g0_evaluation_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float a1_block[1024];
    const float *const fc1 = (const float *)call->data[1];
    const float *const a1 = (const float *)call->data[0];
    float *const t10 = (float *)call->data[2];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = custom_op_least(CUSTOM_OP_BLOCK, end - i);
        custom_op_repeat(a1_block, a1, i, n, 32);
        CUSTOM_OP_VECTOR
        for (int j = 0; j < n; ++j)
            custom_op_g0_evaluation_0(fc1[i + j], a1_block[j], &t10[i + j]);
        i += n;
    }
}

static int custom_op_g0_evaluation(const gpunn_kernel_call *call)
{
    {
        const int slices = custom_op_slices(call->batch * 32, 16384);
        custom_op_run(custom_op_g0_evaluation_0_loop, call, NULL, call->batch * 32, 16, slices, NULL, 0);
    }
    return 0;
}

static size_t custom_op_g0_evaluation_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    return 0;
}

/* g0, forward: t10 */
CUSTOM_OP_LOOPS custom_op_g0_forward_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float a1_block[1024];
    const float *const fc1 = (const float *)call->data[1];
    const float *const a1 = (const float *)call->data[0];
    float *const t10 = (float *)call->data[2];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = custom_op_least(CUSTOM_OP_BLOCK, end - i);
        custom_op_repeat(a1_block, a1, i, n, 32);
        CUSTOM_OP_VECTOR
        for (int j = 0; j < n; ++j)
            custom_op_g0_forward_0(fc1[i + j], a1_block[j], &t10[i + j]);
        i += n;
    }
}

static int custom_op_g0_forward(const gpunn_kernel_call *call)
{
    {
        const int slices = custom_op_slices(call->batch * 32, 16384);
        custom_op_run(custom_op_g0_forward_0_loop, call, NULL, call->batch * 32, 16, slices, NULL, 0);
    }
    return 0;
}

static size_t custom_op_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    return 0;
}

/* g0, backward: grad_fc1, sum0, sum1 */
CUSTOM_OP_LOOPS custom_op_g0_backward_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float a1_block[1024];
    float grad_fc1_block[1024];
    float sum0_block[1024];
    float sum1_block[1024];
    const float *const grad_t10 = (const float *)call->data[4];
    const float *const a1 = (const float *)call->data[0];
    const float *const fc1 = (const float *)call->data[1];
    float *const grad_fc1 = (float *)call->data[3];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int n = custom_op_least(CUSTOM_OP_BLOCK, end - i);
        custom_op_repeat(a1_block, a1, i, n, 32);
        float *const grad_fc1_at = grad_fc1 == NULL || call->accumulate[3] ? grad_fc1_block : grad_fc1 + i;
        CUSTOM_OP_VECTOR
        for (int j = 0; j < n; ++j)
            custom_op_g0_backward_0(grad_t10[i + j], a1_block[j], fc1[i + j], &grad_fc1_at[j], &sum0_block[j],
                                    &sum1_block[j]);
        if (grad_fc1_at == grad_fc1_block && grad_fc1 != NULL) custom_op_add(grad_fc1 + i, grad_fc1_block, n);
        custom_op_add_columns(sums, sum0_block, i, n, 32);
        custom_op_add_columns(sums + 32, sum1_block, i, n, 32);
        i += n;
    }
}

static int custom_op_g0_backward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = custom_op_slices(call->batch * 32, 16384);
        custom_op_run(custom_op_g0_backward_0_loop, call, NULL, call->batch * 32, 16, slices, sums, 64);
        {
            float *const grad_a1 = (float *)call->data[2];
            for (int64_t c = 0; c < 32; ++c) {
                float grad_a1_value;
                custom_op_g0_backward_0_final(custom_op_total(sums + c, slices, 64), custom_op_total(sums + 32 + c, slices, 64),
                                              &grad_a1_value);
                if (grad_a1 != NULL) grad_a1[c] = call->accumulate[2] ? grad_a1[c] + grad_a1_value : grad_a1_value;
            }
        }
    }
    return 0;
}

static size_t custom_op_g0_backward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = custom_op_room(custom_op_slices(batch * 32, 16384) * (int64_t)64, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}

/* g1, evaluation: sum0 */
CUSTOM_OP_LOOPS custom_op_g1_evaluation_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float sum0_block[1024];
    const float *const fc3 = (const float *)call->data[0];
    const float *const t = (const float *)call->data[1];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int n = custom_op_least(CUSTOM_OP_BLOCK, end - i);
        CUSTOM_OP_VECTOR
        for (int j = 0; j < n; ++j)
            custom_op_g1_evaluation_0(fc3[i + j], t[i + j], &sum0_block[j]);
        sums[0] += (double)custom_op_sum(sum0_block, n);
        i += n;
    }
}

static int custom_op_g1_evaluation(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = custom_op_slices(call->batch, 16384);
        custom_op_run(custom_op_g1_evaluation_0_loop, call, NULL, call->batch, 16, slices, sums, 8);
        {
            const float elements = (float)(call->batch);
            float *const t24 = (float *)call->data[2];
            float t24_value;
            custom_op_g1_evaluation_0_final(custom_op_total(sums, slices, 8), elements, &t24_value);
            t24[0] = t24_value;
        }
    }
    return 0;
}

static size_t custom_op_g1_evaluation_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = custom_op_room(custom_op_slices(batch, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}

/* g1, forward: grad_fc3, grad_t, sum0 */
CUSTOM_OP_LOOPS custom_op_g1_forward_0_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    float grad_fc3_block[1024];
    float grad_t_block[1024];
    float sum0_block[1024];
    const float *const fc3 = (const float *)call->data[0];
    const float *const t = (const float *)call->data[1];
    const float *const grad_t24 = (const float *)call->data[5];
    float *const grad_fc3 = (float *)call->data[3];
    float *const grad_t = (float *)call->data[4];
    const float grad_t24_0 = grad_t24[0];
    const float elements = (float)(call->batch);
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int n = custom_op_least(CUSTOM_OP_BLOCK, end - i);
        float *const grad_fc3_at = grad_fc3 == NULL || call->accumulate[3] ? grad_fc3_block : grad_fc3 + i;
        float *const grad_t_at = grad_t == NULL || call->accumulate[4] ? grad_t_block : grad_t + i;
        CUSTOM_OP_VECTOR
        for (int j = 0; j < n; ++j)
            custom_op_g1_forward_0(fc3[i + j], t[i + j], grad_t24_0, elements, &grad_fc3_at[j], &grad_t_at[j],
                                   &sum0_block[j]);
        if (grad_fc3_at == grad_fc3_block && grad_fc3 != NULL) custom_op_add(grad_fc3 + i, grad_fc3_block, n);
        if (grad_t_at == grad_t_block && grad_t != NULL) custom_op_add(grad_t + i, grad_t_block, n);
        sums[0] += (double)custom_op_sum(sum0_block, n);
        i += n;
    }
}

static int custom_op_g1_forward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = custom_op_slices(call->batch, 16384);
        custom_op_run(custom_op_g1_forward_0_loop, call, NULL, call->batch, 16, slices, sums, 8);
        {
            const float elements = (float)(call->batch);
            float *const t24 = (float *)call->data[2];
            float t24_value;
            custom_op_g1_forward_0_final(custom_op_total(sums, slices, 8), elements, &t24_value);
            t24[0] = t24_value;
        }
    }
    return 0;
}

static size_t custom_op_g1_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = custom_op_room(custom_op_slices(batch, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}

/* adam */
CUSTOM_OP_LOOPS custom_op_update0_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
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
        CUSTOM_OP_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         g = gradient[i] * numbers.scale;
            g = custom_op_where(g > limit, limit, custom_op_where(g < -limit, -limit, g));
            g += decay * parameter[i];
            kept[j] = 0.9f * m[i] + 0.1f * g;
            root[j] = 0.999f * v[i] + 0.001f * g * g;
            m[i] = kept[j];
            v[i] = root[j];
        }
        custom_op_roots(root, n);
        CUSTOM_OP_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         p = parameter[i];
            p = p - numbers.rate * (kept[j] / (root[j] * numbers.root_scale + 1e-08f));
            parameter[i] = p;
        }
    }
}

typedef struct custom_op_update0_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} custom_op_update0_work;

static void custom_op_update0_task(void *arg, int index, int threads)
{
    const custom_op_update0_work *w = (const custom_op_update0_work *)arg;
    custom_op_update0_loop(w->u, *w->numbers, custom_op_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     custom_op_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int custom_op_update0(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    custom_op_update0_work work = {u, numbers, custom_op_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, custom_op_update0_task, &work);
    return 0;
}
#ifdef CUSTOM_OP_OPTIMIZED
#pragma GCC pop_options
#undef CUSTOM_OP_OPTIMIZED
#endif

/* ==== tables ========================================================================================================== */
static const signed char custom_op_g0_operands0[] = {
    0, 1,
};
static const signed char custom_op_g0_operands1[] = {
    -1,
};
static const signed char custom_op_g0_operands2[] = {
    -2,
};
static const signed char custom_op_g0_operands3[] = {
    -3, 0,
};
static const signed char custom_op_g0_operands4[] = {
    1, -4,
};
static const gpunn_kernel_node custom_op_g0_nodes[] = {
    {"mul f32 [N,32]", custom_op_g0_operands0, 2},
    {"sin f32 [N,32]", custom_op_g0_operands1, 1},
    {"square f32 [N,32]", custom_op_g0_operands2, 1},
    {"div f32 [N,32]", custom_op_g0_operands3, 2},
    {"add f32 [N,32]", custom_op_g0_operands4, 2},
};
static const char *const custom_op_g0_externals[] = {
    "f32 [32]",
    "f32 [N,32]",
};
static const gpunn_kernel_operand custom_op_g0_evaluation_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -5, -1},
};
static const gpunn_kernel_operand custom_op_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -5, -1},
};
static const gpunn_kernel_operand custom_op_g0_backward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -5, -1},
};
static const signed char custom_op_g1_operands0[] = {
    0, 1,
};
static const signed char custom_op_g1_operands1[] = {
    -1,
};
static const gpunn_kernel_node custom_op_g1_nodes[] = {
    {"squared_error f32 [N,1]", custom_op_g1_operands0, 2},
    {"sum dims=0,1 mean=1 f32 []", custom_op_g1_operands1, 1},
};
static const char *const custom_op_g1_externals[] = {
    "f32 [N,1]",
    "f32 [N,1]",
};
static const gpunn_kernel_operand custom_op_g1_evaluation_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -2, -1},
};
static const gpunn_kernel_operand custom_op_g1_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -2, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -2, -1},
};
static const gpunn_kernel custom_op_set[] = {
    {"g0",
     "t10 = fc1 + square(sin(a1 * fc1)) / a1",
     custom_op_g0_nodes, 5,
     custom_op_g0_externals, 2,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{custom_op_g0_evaluation_operands, 3, custom_op_g0_evaluation, custom_op_g0_evaluation_workspace},
      {custom_op_g0_forward_operands, 3, custom_op_g0_forward, custom_op_g0_forward_workspace},
      {custom_op_g0_backward_operands, 5, custom_op_g0_backward, custom_op_g0_backward_workspace}}},
    {"g1",
     "t24 = mean(squared_error(fc3, t))",
     custom_op_g1_nodes, 2,
     custom_op_g1_externals, 2,
     NULL, 0,
     GPUNN_KERNEL_ANY, true,
     {{custom_op_g1_evaluation_operands, 3, custom_op_g1_evaluation, custom_op_g1_evaluation_workspace},
      {custom_op_g1_forward_operands, 6, custom_op_g1_forward, custom_op_g1_forward_workspace},
      {NULL, 0, NULL, NULL}}},
};
static const int custom_op_evaluation0[] = {
    6, 7, 8, 9, 10, 5, 4,
};
static const int custom_op_evaluation1[] = {
    15, 16, 17, 18, 19, 14, 13,
};
static const int custom_op_evaluation2[] = {
    23, 24, 22, 1,
};
static const gpunn_kernel_instance custom_op_evaluation[] = {
    {0, custom_op_evaluation0},
    {0, custom_op_evaluation1},
    {1, custom_op_evaluation2},
};
static const int custom_op_training0[] = {
    6, 7, 8, 9, 10, 5, 4,
};
static const int custom_op_training1[] = {
    15, 16, 17, 18, 19, 14, 13,
};
static const int custom_op_training2[] = {
    23, 24, 22, 1,
};
static const gpunn_kernel_instance custom_op_training[] = {
    {0, custom_op_training0},
    {0, custom_op_training1},
    {1, custom_op_training2},
};
static const gpunn_kernel_update custom_op_updates[] = {
    {{GPUNN_UPDATE_ADAM, 0, NULL, {NULL, NULL, NULL}, NULL, NULL, GPUNN_F32, 0, 0, 0, 0, 0, 0.9f, 0.999f, 0, 1e-08f, 0, 0, 0, false, false, false, false, false, 0, 0, NULL, NULL},
     custom_op_update0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda custom_op_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda custom_op_kernels_cuda;
#elif defined(__GNUC__) && !defined(_WIN32) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda custom_op_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && !defined(_WIN32)
extern const gpunn_kernel_cuda custom_op_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set custom_op_kernels = {
    GPUNN_KERNELS_ABI,
    CUSTOM_OP_KERNELS_STAMP,
    "custom_op",
    "0.1",
    "69bb937185aec3d159faf1a70e32abe348f18e4ba8597249bdae8eda85061087",
    "python3 -m generator examples/kernels/custom_op.json -o examples/kernels/custom_op",
    custom_op_set,
    2,
    25,
    custom_op_evaluation,
    custom_op_training,
    3,
    3,
    custom_op_updates,
    1,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && !defined(_WIN32))
    &custom_op_kernels_cuda,
#else
    NULL,
#endif
};
#undef CUSTOM_OP_KERNELS_IMPLEMENTATION
#endif
