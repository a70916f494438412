/* mixed_kernels.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates 000000000000
 * spec sha256 0000000000000000000000000000000000000000000000000000000000000000
 * renew it with: python3 -m generator mixed.json -o mixed
 */
#ifndef MIXED_KERNELS_H
#define MIXED_KERNELS_H
#include "gpunn.h"

#define MIXED_KERNELS_STAMP 0x0cac36590e3aee5cull /* must equal the stamp in mixed_kernels.cu */
#ifdef __cplusplus
extern "C" {
#endif
/* The argument of gpunn_use_kernels(model, &mixed_kernels). One C file of the program must define this
 * before it includes this file:
 *     #define MIXED_KERNELS_IMPLEMENTATION
 * Link mixed_kernels.cu to add the kernels for GPUs. */
extern const gpunn_kernel_set mixed_kernels;
#ifdef __cplusplus
}
#endif
#endif

#if defined(MIXED_KERNELS_IMPLEMENTATION) || defined(MIXED_KERNELS_CUDA)
#if GPUNN_KERNELS_ABI != 7
#error "mixed_kernels.h is for GPUNN_KERNELS_ABI 7; renew it with the command in its first lines"
#endif
#endif

/* ==== mathematical functions ============================================================================ */
#if defined(MIXED_KERNELS_CUDA)
#define MIXED_FN static __device__ __forceinline__

/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

MIXED_FN float mixed_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

MIXED_FN float mixed_abs(float x)
{
    return fabsf(x);
}

MIXED_FN float mixed_exp(float x)
{
    return expf(x);
}

MIXED_FN float mixed_pow(float x, float exponent)
{
    return powf(x, exponent);
}

/* Word i of 1 / (2 pi) in binary: word 0 is 0, word 1 holds the first 32 bits after the binary point, and so
 * on. */
MIXED_FN unsigned mixed_turns(unsigned i)
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
MIXED_FN float mixed_sine(float x, int quadrants)
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
            part[k] = ((uint64_t)mixed_turns(word + k) << 32 | mixed_turns(word + k + 1)) << shift >> 32;
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

MIXED_FN float mixed_sin(float x)
{
    return mixed_sine(x, 0);
}
#elif defined(MIXED_KERNELS_IMPLEMENTATION)
#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define MIXED_FN __attribute__((unused, always_inline)) static inline
#else
#define MIXED_FN static inline
#endif
/* Below -O3 gcc vectorizes little. It also compiles selections that might trap as branches, and with -std=c99
 * it does not contract x * y + z to an FMA. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define MIXED_OPTIMIZED
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

MIXED_FN float mixed_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

MIXED_FN uint32_t mixed_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

MIXED_FN float mixed_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

MIXED_FN float mixed_abs(float x)
{
    return fabsf(x);
}

/* x clamped to [low, high]; NaN stays NaN. */
MIXED_FN float mixed_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
MIXED_FN float mixed_exp2i(int32_t n)
{
    return mixed_float_of((uint32_t)(n + 127) << 23);
}

/* The nearest integer to x, for |x| < 2^22. */
MIXED_FN int32_t mixed_nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 2^23: adding it rounds x to an integer in the low bits */
    return (int32_t)(mixed_bits_of(x + magic) - mixed_bits_of(magic));
}

/* exp(r) - 1 for |r| <= ln 2 / 2. */
MIXED_FN float mixed_expm1_near(float r)
{
    const float p = (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    return r + r * r * (p * r + 0.5f);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^15. Returns exp(r) - 1. */
MIXED_FN float mixed_exp_reduce(float x, int32_t *n)
{
    *n = mixed_nearest(x * 1.44269504f);
    const float k = (float)*n; /* ln 2 is split in two; the high part has 9 bits, so k times it is exact */
    return mixed_expm1_near(x - k * 0.693359375f + k * 2.12194440e-4f);
}

MIXED_FN float mixed_exp(float x)
{
    int32_t     n;
    const float e = mixed_exp_reduce(mixed_limit(x, -87.3f, 89), &n) + 1;
    return (e + e) * mixed_exp2i(n - 1);
}

/* Returns n where x = 2^n m with sqrt(1/2) <= m < sqrt(2), for normal x > 0. */
MIXED_FN int32_t mixed_exponent(float x)
{
    return (int32_t)(mixed_bits_of(x) - 0x3f3504f3u) >> 23;
}

/* sin(x + quadrants pi / 2). */
MIXED_FN float mixed_sine(float x, int32_t quadrants)
{
    const double magic = 6755399441055744.0; /* 1.5 2^52: adding it rounds to an integer */
    /* NaN becomes 1e9 here; x - x at the end makes it NaN again. */
    const double from = (double)mixed_where(x < 1e9f, mixed_where(x > -1e9f, x, -1e9f), 1e9f);
    const double turned = from * 0.63661977236758134 + magic, k = turned - magic;
    const float  near = (float)(from - k * 1.5707963267341256 - k * 6.0771005065061922e-11);
    const float  r = mixed_limit(near, -0.79f, 0.79f), s = r * r;
    const float  sine = r + r * s *
                               ((-1.98559923e-4f + 2.86567956e-6f * s) * s * s +
                                (8.33338592e-3f * s - 1.66666672e-1f));
    const float  cosine = 1 + s * (((2.44677067e-5f * s - 1.38877297e-3f) * s + 4.16666567e-2f) * s - 0.5f);
    const int32_t  quadrant = (int32_t)k + quadrants;
    const uint32_t sign = ((uint32_t)quadrant & 2u) << 30;
    const float    y = mixed_where((quadrant & 1) != 0, cosine, sine);
    return mixed_float_of(mixed_bits_of(y) ^ sign) + (x - x);
}

MIXED_FN float mixed_sin(float x)
{
    return mixed_sine(x, 0);
}

/* x^y by 2^(y log2 |x|), in double. */
MIXED_FN float mixed_pow(float x, float y)
{
    const float   a = fabsf(x), scaled = mixed_where(a < FLT_MIN, a * 16777216.0f, a);
    const int32_t n = mixed_exponent(scaled);
    const float   whole = (float)n - mixed_where(a < FLT_MIN, 24, 0), power = mixed_where(a == 1, 0, y);
    const double  m = (double)mixed_float_of(mixed_bits_of(scaled) - ((uint32_t)n << 23));
    const double  f = (m - 1) / (m + 1), s = f * f;
    const double  p = ((((s / 13 + 1.0 / 11) * s + 1.0 / 9) * s + 1.0 / 7) * s + 0.2) * s * s + s / 3 + 1;
    const double  wide = (double)power * ((double)whole + 2.8853900817779268 * f * p),
                 high = wide > 140 ? 140 : wide;
    /* magic = 1.5 2^52: adding and subtracting it rounds t to an integer. */
    const double  t = high < -160 ? -160 : high, magic = 6755399441055744.0, k = (t + magic) - magic;
    const double  r = (t - k) * 0.69314718055994531;
    const double  q = ((((r / 5040 + 1.0 / 720) * r + 1.0 / 120) * r + 1.0 / 24) * r + 1.0 / 6) * r;
    const int32_t exponent = (int32_t)(k == k ? k : 0), half = exponent >> 1;
    const double  scale = (double)mixed_exp2i(half) * (double)mixed_exp2i(exponent - half);
    const float   inside = (float)((1 + r + r * r * (q + 0.5)) * scale);
    /* for |x| = 0, inf or NaN */
    const float edge = power * mixed_where(a == 0, -INFINITY, a);
    const float outside = mixed_where(edge > 0, INFINITY, mixed_where(edge < 0, 0, edge));
    const float size = mixed_where(a > 0 && a <= FLT_MAX, inside, outside);
    const bool  whole_y = floorf(y) == y, odd = whole_y && floorf(0.5f * y) != 0.5f * y;
    const float value = mixed_where(odd, copysignf(size, x), size);
    const float real = mixed_where(x < 0 && a <= FLT_MAX && !whole_y, NAN, value);
    return mixed_where(x == 1 || y == 0, 1, real);
}
#endif

#if defined(MIXED_KERNELS_IMPLEMENTATION) || defined(MIXED_KERNELS_CUDA)
/* g0, forward: y = f(x) */
MIXED_FN void mixed_g0_forward_0(float late, float flags, float scale, float x, float small_2,
                                 float temperature, float numbers, float first, float extra, float *y,
                                 float *z, float *sum0, float *sum1)
{
    const float t0 = mixed_where(flags != 0, mixed_exp((scale + x * small_2) / temperature), mixed_pow(mixed_abs(x), numbers));
    const float t1 = late + (t0 + first * extra);
    *y = t1;
    *z = mixed_sin(2 * x);
    *sum0 = t1;
    *sum1 = x;
}

MIXED_FN void mixed_g0_forward_0_final(float sum0, float count, float *average)
{
    *average = sum0 / count;
}

MIXED_FN void mixed_g0_forward_0_final1(float sum0, float sum1, float *parts)
{
    *parts = sum0 + sum1;
}
#endif

#if defined(MIXED_KERNELS_IMPLEMENTATION) && !defined(MIXED_KERNELS_CUDA)
/* ==== loops ============================================================================================= */
enum { MIXED_BLOCK = 1024, MIXED_ROW = 4096, MIXED_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define MIXED_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define MIXED_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define MIXED_VECTOR _Pragma("GCC ivdep")
#else
#define MIXED_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define MIXED_SELDOM __attribute__((unused, noinline)) static
#else
#define MIXED_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define MIXED_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define MIXED_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define MIXED_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(MIXED_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define MIXED_LOOPS(function, lanes, parameters, arguments)                        \
    MIXED_FN void function##_code parameters;                                      \
    MIXED_V16 static void function##_v16 parameters { function##_code arguments; } \
    MIXED_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    MIXED_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define MIXED_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define MIXED_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
MIXED_FN int mixed_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > MIXED_SLICES ? MIXED_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
MIXED_FN int64_t mixed_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*mixed_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

MIXED_FN void mixed_run_slice(mixed_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = mixed_slice(count, grain, slices, slice),
                  end = mixed_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct mixed_work {
    mixed_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} mixed_work;

MIXED_SELDOM void mixed_task(void *arg, int index, int threads)
{
    const mixed_work *w = (const mixed_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        mixed_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
MIXED_SELDOM void mixed_run(mixed_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    mixed_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, mixed_task, &work);
}

MIXED_FN int mixed_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace for `count` elements of `size` bytes: a multiple of 64. */
MIXED_FN size_t mixed_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

MIXED_FN void mixed_fill(float *to, float value)
{
    for (int j = 0; j < MIXED_BLOCK; ++j) to[j] = value;
}

/* to[j] = from[(i + j) / div % mod]. mod = 0: no modulo. */
MIXED_FN void mixed_expand(float *to, const float *from, int64_t i, int n, int64_t div, int64_t mod)
{
    int64_t place = mod ? i / div % mod : i / div, left = div - i % div;
    for (int j = 0, run; j < n; j += run) {
        run = mixed_least(n - j, left);
        for (int k = 0; k < run; ++k) to[j + k] = from[place];
        place = place + 1 == mod ? 0 : place + 1;
        left = div;
    }
}

/* to[j] = from[(i + j) % mod]: copies `from` once, then what is already in `to`. */
MIXED_FN void mixed_repeat(float *to, const float *from, int64_t i, int n, int64_t mod)
{
    const int64_t place = i % mod;
    int           done = mixed_least(n, mod), run = mixed_least(done, mod - place);
    memcpy(to, from + place, (size_t)run * sizeof *to);
    memcpy(to + run, from, (size_t)(done - run) * sizeof *to);
    for (; done < n; done += run) {
        run = mixed_least(n - done, done);
        memcpy(to + done, to, (size_t)run * sizeof *to);
    }
}

/* The sum of x[n]: 16 interleaved partial sums, added pairwise, plus the rest. */
MIXED_FN float mixed_sum(const float *x, int n)
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
MIXED_FN void mixed_add_channels(double *sums, const float *x, int64_t i, int n, int64_t div, int64_t mod)
{
    int64_t c = i / div % mod, left = div - i % div;
    for (int j = 0, run; j < n; j += run) {
        run = mixed_least(n - j, left);
        sums[c] += (double)mixed_sum(x + j, run);
        c = c + 1 == mod ? 0 : c + 1;
        left = div;
    }
}

/* The total of sums[slice * width] over all slices, in ascending order. */
MIXED_FN float mixed_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* g0, forward: y, z, sum0, sum1 */
MIXED_LOOPS(mixed_g0_forward_0_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    float late_absent[1024];
    float scale_block[1024];
    float small_block[1024];
    float numbers_block[1024];
    float first_block[1024];
    float extra_absent[1024];
    float z_block[1024];
    float sum0_block[1024];
    float sum1_block[1024];
    const float *const late = (const float *)call->data[8];
    const uint8_t *const flags = (const uint8_t *)call->data[1];
    const float *const scale = (const float *)call->data[4];
    const float *const x = (const float *)call->data[0];
    const float *const small_2 = (const float *)call->data[3];
    const float *const temperature = (const float *)call->data[5];
    const int64_t *const numbers = (const int64_t *)call->data[2];
    const float *const first = (const float *)call->data[6];
    const float *const extra = (const float *)call->data[7];
    float *const y = (float *)call->data[9];
    float *const z = (float *)call->data[10];
    mixed_fill(late_absent, 2);
    const float temperature_0 = temperature[0];
    mixed_fill(extra_absent, 0.5f);
    (void)stat;
    for (int64_t i = begin; i < end;) {
        const int left = mixed_least(MIXED_BLOCK, end - i), n = mixed_least(left, 420 - i % 420);
        const float *const late_at = late != NULL ? late + i % 420 : late_absent;
        mixed_repeat(scale_block, scale, i, n, 35);
        mixed_expand(small_block, small_2, i, n, 5, 7);
        for (int j = 0; j < n; ++j) numbers_block[j] = (float)numbers[(i + j) / 35];
        for (int j = 0; j < n; ++j) first_block[j] = first[(i + j) / 35 % 12 * 5];
        const float *const extra_at = extra != NULL ? extra + i : extra_absent;
        float *const z_at = z == NULL ? z_block : z + i;
        MIXED_VECTOR
        for (int j = 0; j < n; ++j)
            mixed_g0_forward_0(late_at[j], (float)(flags[i + j] != 0), scale_block[j], x[i + j],
                               small_block[j], temperature_0, numbers_block[j], first_block[j],
                               extra_at[j], &y[i + j], &z_at[j], &sum0_block[j], &sum1_block[j]);
        sums[0] += (double)mixed_sum(sum0_block, n);
        mixed_add_channels(sums + 1, sum1_block, i, n, 5, 7);
        i += n;
    }
}

static int mixed_g0_forward(const gpunn_kernel_call *call)
{
    char *space = (char *)call->workspace;
    double *const sums = (double *)(void *)space;
    {
        const int slices = mixed_slices(call->batch * 420, 16384);
        mixed_run(mixed_g0_forward_0_loop, call, NULL, call->batch * 420, 420, slices, sums, 8);
        {
            const float elements = (float)(call->batch * 420);
            float *const average = (float *)call->data[11];
            float average_value;
            mixed_g0_forward_0_final(mixed_total(sums, slices, 8), elements, &average_value);
            average[0] = average_value;
        }
        {
            float *const parts = (float *)call->data[12];
            for (int64_t c = 0; c < 7; ++c) {
                float parts_value;
                mixed_g0_forward_0_final1(mixed_total(sums, slices, 8), mixed_total(sums + 1 + c, slices, 8),
                                          &parts_value);
                parts[c] = call->accumulate[12] ? parts[c] + parts_value : parts_value;
            }
        }
    }
    return 0;
}

static size_t mixed_g0_forward_workspace(int64_t batch, int threads)
{
    (void)batch;
    (void)threads;
    size_t bytes = 0, most = 0, sums;
    sums = mixed_room(mixed_slices(batch * 420, 16384) * (int64_t)8, sizeof(double));
    if (sums > most) most = sums;
    return bytes + most;
}
#ifdef MIXED_OPTIMIZED
#pragma GCC pop_options
#undef MIXED_OPTIMIZED
#endif

/* ==== tables ============================================================================================ */
static const signed char mixed_g0_operands0[] = {
    0,
};
static const gpunn_kernel_node mixed_g0_nodes[] = {
    {"relu f32 [N,8]", mixed_g0_operands0, 1},
};
static const char *const mixed_g0_externals[] = {
    "f32 [N,8]",
};
static const gpunn_kernel_operand mixed_g0_forward_operands[] = {
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 0, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_BOOL, 0, 1, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_I64, 0, 2, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 3, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 4, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 5, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 6, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 7, -1},
    {GPUNN_KERNEL_VALUE, 1, 0, GPUNN_F32, 0, 8, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -1, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -2, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -3, -1},
    {GPUNN_KERNEL_VALUE, 0, 1, GPUNN_F32, 0, -4, -1},
};
static const gpunn_kernel mixed_set[] = {
    {"g0",
     "y = f(x)",
     mixed_g0_nodes, 1,
     mixed_g0_externals, 1,
     NULL, 0,
     GPUNN_KERNEL_ANY, false,
     {{NULL, 0, NULL, NULL, 0},
      {mixed_g0_forward_operands, 13, mixed_g0_forward, mixed_g0_forward_workspace, 0},
      {NULL, 0, NULL, NULL, 0}},
     0, 0, GPUNN_PRECISION_F32},
};
static const int mixed_evaluation0[] = {
    3, 0,
};
static const gpunn_kernel_instance mixed_evaluation[] = {
    {0, mixed_evaluation0},
};
#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda mixed_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda mixed_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda mixed_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda mixed_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set mixed_kernels = {
    GPUNN_KERNELS_ABI,
    MIXED_KERNELS_STAMP,
    "mixed",
    "0.2",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "python3 -m generator mixed.json -o mixed",
    mixed_set,
    1,
    9,
    mixed_evaluation,
    NULL,
    1,
    0,
    NULL,
    0,
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &mixed_kernels_cuda,
#else
    NULL,
#endif
};
#undef MIXED_KERNELS_IMPLEMENTATION
#endif
