/* relu_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator relu.json -o relu
 */
#ifndef RELU_KERNELS_H
#define RELU_KERNELS_H
#include "gpunn.h"

#define RELU_KERNELS_STAMP 0xfda5e67c5caeb807ull /* must equal the stamp in relu_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &relu_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define RELU_KERNELS_IMPLEMENTATION
 * Link relu_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set relu_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(RELU_KERNELS_IMPLEMENTATION) || defined(RELU_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "relu_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(RELU_KERNELS_CUDA)
#define RELU_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

RELU_FN float relu_where(bool condition, float a, float b)
{
    return condition ? a : b;
}
#elif defined(RELU_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define RELU_FN __attribute__((unused, always_inline)) static inline
#else
#define RELU_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define RELU_OPTIMIZED
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

RELU_FN float relu_where(bool condition, float a, float b)
{
    return condition ? a : b;
}
#endif

#if defined(RELU_KERNELS_IMPLEMENTATION) || defined(RELU_KERNELS_CUDA)
/* g0, forward: y = f(x) */
RELU_FN void relu_g0_forward_0(float x, float b, float *y)
{
    const float t0 = x + b;
    *y = relu_where(t0 <= 0, 0, t0);
}

/* g0, backward: y = f(x) */
RELU_FN void relu_g0_backward_0(float y, float dy, float *dx, float *sum0)
{
    const float t0 = relu_where(y <= 0, 0, dy);
    *dx = t0;
    *sum0 = t0;
}

RELU_FN void relu_g0_backward_0_final(float sum0, float *db)
{
    *db = sum0;
}
#endif

#if defined(RELU_KERNELS_IMPLEMENTATION) && !defined(RELU_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { RELU_BLOCK = 1024, RELU_ROW = 4096, RELU_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define RELU_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define RELU_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define RELU_VECTOR _Pragma("GCC ivdep")
#else
#define RELU_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define RELU_SELDOM __attribute__((unused, noinline)) static
#else
#define RELU_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define RELU_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define RELU_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define RELU_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(RELU_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define RELU_LOOPS(function, lanes, parameters, arguments)                        \
    RELU_FN void function##_code parameters;                                      \
    RELU_V16 static void function##_v16 parameters { function##_code arguments; } \
    RELU_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    RELU_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define RELU_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define RELU_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
RELU_FN int relu_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > RELU_SLICES ? RELU_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
RELU_FN int64_t relu_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*relu_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

RELU_FN void relu_run_slice(relu_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = relu_slice(count, grain, slices, slice),
                  end = relu_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct relu_work {
    relu_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} relu_work;

RELU_SELDOM void relu_task(void *arg, int index, int threads)
{
    const relu_work *w = (const relu_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        relu_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
RELU_SELDOM void relu_run(relu_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    relu_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, relu_task, &work);
}

RELU_FN int relu_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace for `count` elements of `size` bytes: a multiple of 64. */
RELU_FN size_t relu_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

/* to[j] = from[(i + j) % mod]: copies `from` once, then what is already in `to`. */
RELU_FN void relu_repeat(float *to, const float *from, int64_t i, int n, int64_t mod)
{
    const int64_t place = i % mod;
    int           done = relu_least(n, mod), run = relu_least(done, mod - place);
    memcpy(to, from + place, (size_t)run * sizeof *to);
    memcpy(to + run, from, (size_t)(done - run) * sizeof *to);
    for (; done < n; done += run) {
        run = relu_least(n - done, done);
        memcpy(to + done, to, (size_t)run * sizeof *to);
    }
}

/* Sums by column: sums[(i + j) % columns] += x[j] for j < n. i: the element index of x[0]. */
RELU_FN void relu_add_columns(double *sums, const float *x, int64_t i, int n, int64_t columns)
{
    int64_t c = i % columns;
    for (int j = 0, run; j < n; j += run) {
        run = relu_least(n - j, columns - c);
        RELU_VECTOR
        for (int k = 0; k < run; ++k) sums[c + k] += (double)x[j + k];
        c = 0;
    }
}

/* The total of sums[slice * width] over all slices, in ascending order. */
RELU_FN float relu_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, forward: y */
RELU_LOOPS(relu_g0_forward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float b_block[1024];
    const float *const x = (const float *)call->data[1];
    const float *const b = (const float *)call->data[2];
    float *const y = (float *)call->data[0];
    (void)stat;
    (void)sums;
    for (int64_t i = begin; i < end;) {
        const int n = relu_least(RELU_BLOCK, end - i);
        relu_repeat(b_block, b, i, n, 10);
        RELU_VECTOR
        for (int j = 0; j < n; ++j)
            relu_g0_forward_0(x[i + j], b_block[j], &y[i + j]);
        i += n;
    }
}

static int relu_g0_forward(const gpunn_kernel_call *call)
{
    {
        const int slices = relu_slices(call->batch * 10, 16384);
        relu_run(relu_g0_forward_0_loop, call, NULL, call->batch * 10, 16, slices, NULL, 0);
    }
    return 0;
}

static size_t relu_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    return 0;
}

/* g0, backward: dx, sum0 */
RELU_LOOPS(relu_g0_backward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float dx_block[1024];
    float sum0_block[1024];
    const float *const y = (const float *)call->data[0];
    const float *const dy = (const float *)call->data[1];
    float *const dx = (float *)call->data[2];
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int n = relu_least(RELU_BLOCK, end - i);
        float *const dx_at = dx == NULL ? dx_block : dx + i;
        RELU_VECTOR
        for (int j = 0; j < n; ++j)
            relu_g0_backward_0(y[i + j], dy[i + j], &dx_at[j], &sum0_block[j]);
        relu_add_columns(sums, sum0_block, i, n, 10);
        i += n;
    }
}

static int relu_g0_backward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = relu_slices(call->batch * 10, 16384);
        relu_run(relu_g0_backward_0_loop, call, NULL, call->batch * 10, 16, slices, sums, 16);
        {
            float *const db = (float *)call->data[3];
            for (int64_t c = 0; c < 10; ++c) {
                float db_value;
                relu_g0_backward_0_final(relu_total(sums + c, slices, 16), &db_value);
                db[c] = call->accumulate[3] ? db[c] + db_value : db_value;
            }
        }
    }
    return 0;
}

static size_t relu_g0_backward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = relu_room(relu_slices(batch * 10, 16384) * (int64_t)16, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}
#ifdef RELU_OPTIMIZED
#pragma GCC pop_options
#undef RELU_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char relu_g0_operands0[] = {
    0,
};
static const gpunn_kernel_node relu_g0_nodes[] = {
    {"relu f32 [N,8]", relu_g0_operands0, 1},
};
static const char *const relu_g0_externals[] = {
    "f32 [N,8]",
};
static const gpunn_kernel_operand relu_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 2, -1},
};
static const gpunn_kernel_operand relu_g0_backward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_GRADIENT, 1, 0, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 0, 1},
    {GPUNN_KERNEL_GRADIENT, 0, 1, GPUNN_F32, 0, 1, -1},
};
static const gpunn_kernel relu_set[] = {
    {"g0",
     "y = f(x)",
     relu_g0_nodes, 1,
     relu_g0_externals, 1,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{NULL, 0, NULL, NULL, 0},
      {relu_g0_forward_operands, 3, relu_g0_forward, relu_g0_forward_workspace, 0},
      {relu_g0_backward_operands, 4, relu_g0_backward, relu_g0_backward_workspace, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int relu_evaluation0[] = {
    3, 0,
};
static const gpunn_kernel_instance relu_evaluation[] = {
    {0, relu_evaluation0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda relu_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda relu_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda relu_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda relu_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set relu_kernels = {
    GPUNN_KERNELS_ABI,
    RELU_KERNELS_STAMP,
    "relu",
    "0.2",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "python3 -m generator relu.json -o relu",
    relu_set,
    1,
    9,
    relu_evaluation,
    NULL,
    1,
    0,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &relu_kernels_cuda,
#else
    NULL,
#endif
};
#undef RELU_KERNELS_IMPLEMENTATION
#endif
