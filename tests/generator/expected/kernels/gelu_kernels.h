/* gelu_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator gelu.json -o gelu
 */
#ifndef GELU_KERNELS_H
#define GELU_KERNELS_H
#include "gpunn.h"

#define GELU_KERNELS_STAMP 0x2591d3ad2ad97923ull /* of this text: gelu_kernels.cu was written with it */
#ifdef __cplusplus
extern "C" {
#endif
/* For gpunn_use_kernels(model, &gelu_kernels). One C file of the program defines this before it includes this file:
 *     #define GELU_KERNELS_IMPLEMENTATION
 * gelu_kernels.cu, where it is linked, adds the kernels for GPUs. */
extern const gpunn_kernel_set gelu_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(GELU_KERNELS_IMPLEMENTATION) || defined(GELU_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "gelu_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== the mathematics ================================================================================================= */
#if defined(GELU_KERNELS_CUDA)
#define GELU_FN static __device__ __forceinline__

/* The functions of gpunn.h's tables on a GPU, as gpunn_cuda.cu has them. Those with _fast in their name are for values that are
 * stored in 16 bits: within 2^-10 of the true value, and 0 for what is denormal. */

/* Where the result is added to a number that is not near 0. */
GELU_FN float gelu_erf_near(float x)
{
    return erff(x);
}

GELU_FN float gelu_erf_gauss(float x, float *gauss)
{
    *gauss = expf(-x * x);
    return erff(x);
}
#elif defined(GELU_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define GELU_FN __attribute__((unused, always_inline)) static inline
#else
#define GELU_FN static inline
#endif
/* gcc vectorises little below -O3, makes branches of choices that might trap, and with -std=c99 joins no x * y + z. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define GELU_OPTIMIZED
#pragma GCC push_options
#pragma GCC optimize("O3,no-trapping-math,fp-contract=fast")
#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#endif

/* The functions of gpunn.h's tables on a CPU, without branches or tables, so that loops over them become vector code. Within 3
 * ulp of the true value (sin and cos: 1e-7, up to 1e9), and C's values at infinities, NaN and outside the domain; results below
 * 2^-125 may be 0, and denormal operands count as 0. */

GELU_FN float gelu_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

GELU_FN uint32_t gelu_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* x, but at least low and at most high; NaN stays. */
GELU_FN float gelu_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
GELU_FN float gelu_exp2i(int32_t n)
{
    return gelu_float_of((uint32_t)(n + 127) << 23);
}

/* The nearest integer to x, for |x| < 2^22. */
GELU_FN int32_t gelu_nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 2^23: added to it, a number rounds to an integer in the low bits */
    return (int32_t)(gelu_bits_of(x + magic) - gelu_bits_of(magic));
}

/* exp(r) - 1 for |r| <= ln 2 / 2. */
GELU_FN float gelu_expm1_near(float r)
{
    const float p = (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    return r + r * r * (p * r + 0.5f);
}

/* x = n ln 2 + r with |r| <= ln 2 / 2, and exp(r) - 1, for |x| < 2^15. */
GELU_FN float gelu_exp_reduce(float x, int32_t *n)
{
    *n = gelu_nearest(x * 1.44269504f);
    const float k = (float)*n; /* ln 2 in two parts, the first with 9 bits: k times it is exact */
    return gelu_expm1_near(x - k * 0.693359375f + k * 2.12194440e-4f);
}

/* erf(x), within 2.5e-7, and exp(-x^2). With a = |x| that is 1 - exp(-a^2) times a polynomial in a. */
GELU_FN float gelu_erf_gauss(float x, float *gauss)
{
    const float a = gelu_limit(fabsf(x), 0, 9.38f); /* gauss is 0 there */
    int32_t     n;
    const float e = gelu_exp_reduce(-(a * a), &n), scale = gelu_exp2i(n);
    float       p = (0.000104428294f * a - 0.00159332412f) * a + 0.010871639f;
    p = ((p * a - 0.0446807411f) * a + 0.127030288f) * a - 0.275080752f;
    p = ((p * a + 0.489239109f) * a - 0.749611248f) * a + 0.999667174f;
    p = (p * a - 1.12836286f) * a + 0.999999868f;
    *gauss = scale * e + scale;
    return copysignf(1 - *gauss * p, x);
}

/* Where only the absolute error matters. */
GELU_FN float gelu_erf_near(float x)
{
    float gauss;
    return gelu_erf_gauss(x, &gauss);
}
#endif

#if defined(GELU_KERNELS_IMPLEMENTATION) || defined(GELU_KERNELS_CUDA)
/* g0, forward: y = f(x) */
GELU_FN void gelu_g0_forward_0(float r, float x, float scale, float shift, float *y)
{
    const float t0 = x * scale + shift;
    *y = r + 0.5f * t0 * (gelu_erf_near(0.70710677f * t0) + 1);
}

/* g0, backward: y = f(x) */
GELU_FN void gelu_g0_backward_0(float scale, float dy, float shift, float x, float *dx, float *sum0,
                                float *sum1)
{
    const float t0 = shift + x * scale;
    float gauss;
    const float t1 = gelu_erf_gauss(0.70710677f * t0, &gauss);
    const float t2 = dy * (0.5f * (t1 + 1) + 0.3989423f * t0 * gauss);
    *dx = scale * t2;
    *sum0 = x * t2;
    *sum1 = t2;
}

GELU_FN void gelu_g0_backward_0_final(float sum0, float sum1, float *dscale, float *dshift)
{
    *dscale = sum0;
    *dshift = sum1;
}
#endif

#if defined(GELU_KERNELS_IMPLEMENTATION) && !defined(GELU_KERNELS_CUDA)
/* ==== loops =========================================================================================================== */
enum { GELU_BLOCK = 1024, GELU_ROW = 4096, GELU_SLICES = 64 };

/* Steps of the loop that follows depend on no others. */
#if defined(__clang__) && defined(__AVX512F__)
#define GELU_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define GELU_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define GELU_VECTOR _Pragma("GCC ivdep")
#else
#define GELU_VECTOR
#endif
#if defined(__GNUC__)
#define GELU_SELDOM __attribute__((unused, noinline)) static
#else
#define GELU_SELDOM static
#endif

/* What is there for several kinds of vector; gpunn tells which one the processor has, by the floats that it takes. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define GELU_V16 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define GELU_V16 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define GELU_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. A build that is told of AVX2 or AVX-512 has it for that alone. */
#if defined(GELU_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define GELU_LOOPS(function, lanes, parameters, arguments)                        \
    GELU_FN void function##_code parameters;                                      \
    GELU_V16 static void function##_v16 parameters { function##_code arguments; } \
    GELU_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    GELU_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define GELU_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define GELU_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* Work is cut into slices by its size alone, so that no result depends on the number of threads. */
GELU_FN int gelu_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > GELU_SLICES ? GELU_SLICES : slices > 1 ? (int)slices : 1;
}

GELU_FN int64_t gelu_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* A launch's loop over elements, or rows, from begin to end. stat: scratch of the program; sums: of the slice. */
typedef void (*gelu_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums);

GELU_FN void gelu_run_slice(gelu_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums, int width)
{
    const int64_t begin = gelu_slice(count, grain, slices, slice), end = gelu_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct gelu_work {
    gelu_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} gelu_work;

GELU_SELDOM void gelu_task(void *arg, int index, int threads)
{
    const gelu_work *w = (const gelu_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads; ++i)
        gelu_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums, w->width);
}

/* Runs a loop over count elements or rows, in slices that are a multiple of grain; each slice has `width` sums. */
GELU_SELDOM void gelu_run(gelu_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    gelu_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, gelu_task, &work);
}

GELU_FN int gelu_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace. */
GELU_FN size_t gelu_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

GELU_FN void gelu_add(float *to, const float *from, int n)
{
    GELU_VECTOR
    for (int j = 0; j < n; ++j) to[j] += from[j];
}

GELU_FN float gelu_sum(const float *x, int n)
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

/* sums[c] += those of x[0 .. n), which belong to elements i, i + 1, ..., that stand in channel c: div after each other, then the
 * next of mod channels. */
GELU_FN void gelu_add_channels(double *sums, const float *x, int64_t i, int n, int64_t div, int64_t mod)
{
    int64_t c = i / div % mod, left = div - i % div;
    for (int j = 0, run; j < n; j += run) {
        run = gelu_least(n - j, left);
        sums[c] += (double)gelu_sum(x + j, run);
        c = c + 1 == mod ? 0 : c + 1;
        left = div;
    }
}

/* One place's sum over all slices, whose sums stand `width` apart. */
GELU_FN float gelu_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, forward: y */
GELU_LOOPS(gelu_g0_forward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    const float *const r = (const float *)call->data[3];
    const float *const x = (const float *)call->data[0];
    const float *const scale = (const float *)call->data[1];
    const float *const shift = (const float *)call->data[2];
    float *const y = (float *)call->data[4];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int left = gelu_least(GELU_BLOCK, end - i), n = gelu_least(left, 70 - i % 70);
        const float scale_0 = scale[i / 70 % 5];
        const float shift_0 = shift[i / 70 % 5];
        GELU_VECTOR
        for (int j = 0; j < n; ++j)
            gelu_g0_forward_0(r[i + j], x[i + j], scale_0, shift_0, &y[i + j]);
        i += n;
    }
}

static int gelu_g0_forward(const gpunn_kernel_call *call)
{
    {
        const int slices = gelu_slices(call->batch * 350, 16384);
        gelu_run(gelu_g0_forward_0_loop, call, NULL, call->batch * 350, 70, slices, NULL, 0);
    }
    return 0;
}

static size_t gelu_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    return 0;
}

/* g0, backward: dx, sum0, sum1 */
GELU_LOOPS(gelu_g0_backward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float dx_block[1024];
    float sum0_block[1024];
    float sum1_block[1024];
    const float *const scale = (const float *)call->data[1];
    const float *const dy = (const float *)call->data[3];
    const float *const shift = (const float *)call->data[2];
    const float *const x = (const float *)call->data[0];
    float *const dx = (float *)call->data[4];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int left = gelu_least(GELU_BLOCK, end - i), n = gelu_least(left, 70 - i % 70);
        const float scale_0 = scale[i / 70 % 5];
        const float shift_0 = shift[i / 70 % 5];
        float *const dx_at = dx == NULL || call->accumulate[4] ? dx_block : dx + i;
        GELU_VECTOR
        for (int j = 0; j < n; ++j)
            gelu_g0_backward_0(scale_0, dy[i + j], shift_0, x[i + j], &dx_at[j], &sum0_block[j],
                               &sum1_block[j]);
        if (dx_at == dx_block && dx != NULL) gelu_add(dx + i, dx_block, n);
        gelu_add_channels(sums, sum0_block, i, n, 70, 5);
        gelu_add_channels(sums + 5, sum1_block, i, n, 70, 5);
        i += n;
    }
}

static int gelu_g0_backward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = gelu_slices(call->batch * 350, 16384);
        gelu_run(gelu_g0_backward_0_loop, call, NULL, call->batch * 350, 70, slices, sums, 16);
        {
            float *const dscale = (float *)call->data[5];
            float *const dshift = (float *)call->data[6];
            for (int64_t c = 0; c < 5; ++c) {
                float dscale_value;
                float dshift_value;
                gelu_g0_backward_0_final(gelu_total(sums + c, slices, 16),
                                         gelu_total(sums + 5 + c, slices, 16), &dscale_value, &dshift_value);
                if (dscale != NULL) dscale[c] = call->accumulate[5] ? dscale[c] + dscale_value : dscale_value;
                if (dshift != NULL) dshift[c] = call->accumulate[6] ? dshift[c] + dshift_value : dshift_value;
            }
        }
    }
    return 0;
}

static size_t gelu_g0_backward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = gelu_room(gelu_slices(batch * 350, 16384) * (int64_t)16, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}
#ifdef GELU_OPTIMIZED
#pragma GCC pop_options
#undef GELU_OPTIMIZED
#endif

/* ==== tables ========================================================================================================== */
static const signed char gelu_g0_operands0[] = {
    0,
};
static const gpunn_kernel_node gelu_g0_nodes[] = {
    {"relu f32 [N,8]", gelu_g0_operands0, 1},
};
static const char *const gelu_g0_externals[] = {
    "f32 [N,8]",
};
static const gpunn_kernel_operand gelu_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 3, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
};
static const gpunn_kernel_operand gelu_g0_backward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 2, -1},
};
static const gpunn_kernel gelu_set[] = {
    {"g0",
     "y = f(x)",
     gelu_g0_nodes, 1,
     gelu_g0_externals, 1,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{NULL, 0, NULL, NULL, 0},
      {gelu_g0_forward_operands, 5, gelu_g0_forward, gelu_g0_forward_workspace, 0},
      {gelu_g0_backward_operands, 7, gelu_g0_backward, gelu_g0_backward_workspace, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int gelu_evaluation0[] = {
    3, 0,
};
static const gpunn_kernel_instance gelu_evaluation[] = {
    {0, gelu_evaluation0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda gelu_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda gelu_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda gelu_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda gelu_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set gelu_kernels = {
    GPUNN_KERNELS_ABI,
    GELU_KERNELS_STAMP,
    "gelu",
    "0.2",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "python3 -m generator gelu.json -o gelu",
    gelu_set,
    1,
    9,
    gelu_evaluation,
    NULL,
    1,
    0,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &gelu_kernels_cuda,
#else
    NULL,
#endif
};
#undef GELU_KERNELS_IMPLEMENTATION
#endif
