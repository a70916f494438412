/* gelu_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator gelu.json -o gelu
 */
#ifndef GELU_KERNELS_H
#define GELU_KERNELS_H
#include "gpunn.h"

#define GELU_KERNELS_STAMP 0x4d3f7592f667195eull /* must equal the stamp in gelu_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &gelu_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define GELU_KERNELS_IMPLEMENTATION
 * Link gelu_kernels.cu to add the kernels for GPUs. */
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

/* ==== mathematical functions ============================================================================ */
#if defined(GELU_KERNELS_CUDA)
#define GELU_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

/* erf with a bound on the absolute error only: for results that are added to a number not near 0. */
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
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define GELU_OPTIMIZED
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

/* x clamped to [low, high]; NaN stays NaN. */
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
    const float magic = 12582912.0f; /* 1.5 2^23: adding it rounds x to an integer in the low bits */
    return (int32_t)(gelu_bits_of(x + magic) - gelu_bits_of(magic));
}

/* exp(r) - 1 for |r| <= ln 2 / 2. */
GELU_FN float gelu_expm1_near(float r)
{
    const float p = (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    return r + r * r * (p * r + 0.5f);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^15. Returns exp(r) - 1. */
GELU_FN float gelu_exp_reduce(float x, int32_t *n)
{
    *n = gelu_nearest(x * 1.44269504f);
    const float k = (float)*n; /* ln 2 is split in two; the high part has 9 bits, so k times it is exact */
    return gelu_expm1_near(x - k * 0.693359375f + k * 2.12194440e-4f);
}

/* Returns erf(x), within 2.5e-7; *gauss = exp(-x^2). For a = |x|, erf(a) = 1 - exp(-a^2) times a polynomial
 * in a. */
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

/* erf with a bound on the absolute error only. */
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
/* ==== loops ============================================================================================= */
enum { GELU_BLOCK = 1024, GELU_ROW = 4096, GELU_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define GELU_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define GELU_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define GELU_VECTOR _Pragma("GCC ivdep")
#else
#define GELU_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define GELU_SELDOM __attribute__((unused, noinline)) static
#else
#define GELU_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define GELU_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define GELU_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define GELU_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
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

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
GELU_FN int gelu_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > GELU_SLICES ? GELU_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
GELU_FN int64_t gelu_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*gelu_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

GELU_FN void gelu_run_slice(gelu_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = gelu_slice(count, grain, slices, slice),
                  end = gelu_slice(count, grain, slices, slice + 1);
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
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        gelu_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
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

/* Bytes of workspace for `count` elements of `size` bytes: a multiple of 64. */
GELU_FN size_t gelu_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

GELU_FN void gelu_add(float *to, const float *from, int n)
{
    GELU_VECTOR
    for (int j = 0; j < n; ++j) to[j] += from[j];
}

/* The sum of x[n]: 16 interleaved partial sums, added pairwise, plus the rest. */
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

/* Sums by channel: sums[(i + j) / div % mod] += x[j] for j < n. i: the element index of x[0]; div: elements
 * per plane; mod: channels. */
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

/* The total of sums[slice * width] over all slices, in ascending order. */
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

/* ==== tables ============================================================================================ */
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
