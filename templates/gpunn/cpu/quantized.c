#include "cpu/context.h"
#include "cpu/gemm.h"
#include "common/geometry.h"

/* ==== >>cpu/quantized ==================================================================================== *
 * Ops of 8-bit numbers. Linear layers and convolutions are products of integers, A B^T. A row of A is what
 * one result reads; x itself, or a copy of it. Columns of B are packed into panels of 16 columns. A panel has
 * 64 bytes for each step along k: 4 bytes of each column, or 2 numbers of 16 bits where the processor
 * multiplies no bytes without saturation. x is not reduced by its zero point z. The sums start at the bias
 * minus z times the sum of the column instead. So padding is bytes z. */

/* ---- rounding ------------------------------------------------------------------------------------------ */

/* The nearest integer to x, with halves to even, for |x| < 2^31. */
GPUNN__INLINE int32_t gpunn__nearest_of_double(double x)
{
    const double magic = x + 6755399441055744.0; /* 1.5 * 2^52, as in gpunn__nearest */
    uint64_t     bits;
    memcpy(&bits, &magic, sizeof bits);
    return (int32_t)(uint32_t)bits;
}

GPUNN__INLINE int32_t gpunn__between(int32_t x, int32_t low, int32_t high)
{
    const int32_t least = x > low ? x : low;
    return least < high ? least : high;
}

/* x rounded, plus zero, from low to high. A NaN gives low. */
GPUNN__INLINE uint8_t gpunn__byte_of(float x, int zero, int low, int high)
{
    const float near = gpunn__limit(x, 1000);
    return (uint8_t)gpunn__between(gpunn__nearest(gpunn__select(x == x, near, -1000)) + zero, low, high);
}

typedef struct gpunn__bytes { /* an elementwise op */
    const gpunn_step *step;
    int64_t           count;
} gpunn__bytes;

GPUNN__VECTORIZED(gpunn__quantize_task, (void *arg, int index, int threads), (arg, index, threads))
{
    const gpunn_step *step = ((const gpunn__bytes *)arg)->step;
    const float      *x = (const float *)step->in[0].data, scale = step->attr->scale;
    uint8_t          *y = (uint8_t *)step->out.data;
    const int         zero = step->attr->zero_point;
    int64_t           i, end;
    gpunn__cpu_part(((const gpunn__bytes *)arg)->count, 64, threads, index, &i, &end);
    for (; i < end; i++) y[i] = gpunn__byte_of(x[i] / scale, zero, 0, 255);
}

GPUNN__VECTORIZED(gpunn__dequantize_task, (void *arg, int index, int threads), (arg, index, threads))
{
    const gpunn_step *step = ((const gpunn__bytes *)arg)->step;
    const uint8_t    *x = (const uint8_t *)step->in[0].data;
    float            *y = (float *)step->out.data;
    const float       scale = step->attr->scale;
    const int         zero = step->attr->zero_point;
    int64_t           i, end;
    gpunn__cpu_part(((const gpunn__bytes *)arg)->count, 64, threads, index, &i, &end);
    for (; i < end; i++) y[i] = (float)(x[i] - zero) * scale;
}

GPUNN__VECTORIZED(gpunn__quantized_add_task, (void *arg, int index, int threads), (arg, index, threads))
{
    const gpunn_step       *step = ((const gpunn__bytes *)arg)->step;
    const gpunn_attributes *attr = step->attr;
    const uint8_t          *a = (const uint8_t *)step->in[0].data, *b = (const uint8_t *)step->in[1].data;
    uint8_t                *y = (uint8_t *)step->out.data;
    const float             a_scale = attr->x_scale, b_scale = attr->b_scale, scale = attr->scale;
    const int               a_zero = attr->x_zero_point, b_zero = attr->b_zero_point;
    const int               zero = attr->zero_point, low = attr->quant_min, high = attr->quant_max;
    int64_t                 i, end;
    gpunn__cpu_part(((const gpunn__bytes *)arg)->count, 64, threads, index, &i, &end);
    for (; i < end; i++) {
        const float sum = (float)(a[i] - a_zero) * a_scale + (float)(b[i] - b_zero) * b_scale;
        y[i] = gpunn__byte_of(sum / scale, zero, low, high);
    }
}

static GPUNN__STATUS gpunn__bytes_run(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action,
                                      void (*task)(void *arg, int index, int threads))
{
    gpunn__bytes bytes = {step, step->out.count};
    if (action != GPUNN__PREPARE) gpunn_parallel(gpunn__cpu_threads(cpu, bytes.count), task, &bytes);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_quantize_per_tensor(gpunn__cpu *cpu, gpunn_step *step,
                                                             gpunn__action action)
{
    return gpunn__bytes_run(cpu, step, action, gpunn__quantize_task);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_dequantize(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__bytes_run(cpu, step, action, gpunn__dequantize_task);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_quantized_add(gpunn__cpu *cpu, gpunn_step *step,
                                                       gpunn__action action)
{
    return gpunn__bytes_run(cpu, step, action, gpunn__quantized_add_task);
}

/* ---- products of integers ------------------------------------------------------------------------------ */

enum { GPUNN__PANEL = 16, GPUNN__BLOCK_ROWS = 48, GPUNN__BLOCK_PANELS = 4 };

typedef struct gpunn__integer_tile {
    const char *a;
    int64_t     a_row; /* bytes from a row of A to the next */
    int64_t     steps; /* along k */
    int         rows;  /* of A, at most GPUNN__BLOCK_ROWS */
} gpunn__integer_tile;

/* What is added to a rounded result, and its bounds. */
typedef struct gpunn__bounds {
    int zero, low, high;
} gpunn__bounds;

/* What some results of a depthwise convolution read. weight: 16 bits [count][columns], or bytes for blocks of
 * GPUNN__CHANNELS channels, 4 cells of each channel one after another. */
enum { GPUNN__CHANNELS = 64, GPUNN__PIXELS = 16 };
typedef struct gpunn__cells {
    const uint8_t **at;    /* [pixels][count]: the channels of each cell of the kernel */
    int             count; /* a multiple of 4 */
    int             pixels;
    const char     *weight;
    const int32_t  *start;
    int64_t         columns; /* padded channels */
} gpunn__cells;

/* The functions for one set of instructions. */
typedef struct gpunn__integer_kernels {
    int bytes; /* of a number in A and B */
    /* sums [rows][16 count] = start + A B^T of `count` panels, 1, 2 or 4 */
    void (*products)(const gpunn__integer_tile *t, const char *panels, const int32_t *start, int32_t *sums,
                     int count);
    /* y [rows][n] = sums [rows][width] times factor [n], rounded. y_row: from a row of y to the next */
    void (*requantize)(const gpunn_attributes *attr, const int32_t *sums, int width, int rows,
                       const float *factor, int64_t n, uint8_t *y, int64_t y_row);
    /* sums [pixels][GPUNN__CHANNELS] of channels [first, first + n) */
    void (*cells)(const gpunn__cells *c, int64_t first, int64_t n, int32_t *sums);
} gpunn__integer_kernels;

#ifdef GPUNN__AVX512
#define GPUNN__AVX512_VNNI                                                                              \
    __attribute__((target("avx512vnni,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c,bmi,bmi2,lzcnt," \
                          "popcnt" GPUNN__WHOLE),                                                       \
                   GPUNN__KERNEL))
typedef struct gpunn__sums512_scale { /* of a panel */
    __m512d low, high;
} gpunn__sums512_scale;
#define GPUNN__SUMS512(prefix, TARGET_)                                                                      \
    TARGET_ GPUNN__INLINE __m512i gpunn__##prefix##_load(const void *from)                                   \
    {                                                                                                        \
        return _mm512_loadu_si512(from);                                                                     \
    }                                                                                                        \
    TARGET_ GPUNN__INLINE void gpunn__##prefix##_store(void *to, __m512i x)                                  \
    {                                                                                                        \
        _mm512_storeu_si512(to, x);                                                                          \
    }                                                                                                        \
    TARGET_ GPUNN__INLINE __m512i gpunn__##prefix##_set(const char *from)                                    \
    {                                                                                                        \
        int32_t four;                                                                                        \
        memcpy(&four, from, sizeof four);                                                                    \
        return _mm512_set1_epi32(four);                                                                      \
    }                                                                                                        \
    TARGET_ GPUNN__INLINE gpunn__sums512_scale gpunn__##prefix##_factors(const float *from)                  \
    {                                                                                                        \
        gpunn__sums512_scale f;                                                                              \
        f.low = _mm512_cvtps_pd(_mm256_loadu_ps(from));                                                      \
        f.high = _mm512_cvtps_pd(_mm256_loadu_ps(from + 8));                                                 \
        return f;                                                                                            \
    }                                                                                                        \
    /* a product below -2^31, or NaN, becomes -2^31 */                                                       \
    TARGET_ GPUNN__INLINE __m256i gpunn__##prefix##_eight(__m256i sums, __m512d factor)                      \
    {                                                                                                        \
        const __m512d x = _mm512_mul_pd(_mm512_cvtepi32_pd(sums), factor);                                   \
        return _mm512_cvtpd_epi32(_mm512_min_pd(_mm512_set1_pd(1e6), x));                                    \
    }                                                                                                        \
    TARGET_ GPUNN__INLINE __m512i gpunn__##prefix##_near(const int32_t *sums, const gpunn__sums512_scale *f) \
    {                                                                                                        \
        const __m512i all = _mm512_loadu_si512(sums);                                                        \
        const __m256i low = gpunn__##prefix##_eight(_mm512_castsi512_si256(all), f->low);                    \
        const __m256i high = gpunn__##prefix##_eight(_mm512_extracti64x4_epi64(all, 1), f->high);            \
        return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);                                     \
    }                                                                                                        \
    TARGET_ GPUNN__INLINE __m128i gpunn__##prefix##_bytes(const gpunn__bounds *b, const int32_t *sums,       \
                                                          const gpunn__sums512_scale *f)                     \
    {                                                                                                        \
        __m512i x = gpunn__##prefix##_near(sums, f);                                                         \
        x = _mm512_max_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(b->zero)), _mm512_set1_epi32(b->low));    \
        return _mm512_cvtepi32_epi8(_mm512_min_epi32(x, _mm512_set1_epi32(b->high)));                        \
    }                                                                                                        \
    /* four panels; packing leaves four columns of each in a lane */                                         \
    TARGET_ GPUNN__INLINE __m512i gpunn__##prefix##_bytes64(const gpunn__bounds *b, const int32_t *sums,     \
                                                            const gpunn__sums512_scale f[4])                 \
    {                                                                                                        \
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);       \
        const __m512i zero = _mm512_set1_epi16((short)b->zero);                                              \
        const __m512i x = _mm512_packs_epi32(gpunn__##prefix##_near(sums, f),                                \
                                             gpunn__##prefix##_near(sums + 16, f + 1));                      \
        const __m512i y = _mm512_packs_epi32(gpunn__##prefix##_near(sums + 32, f + 2),                       \
                                             gpunn__##prefix##_near(sums + 48, f + 3));                      \
        const __m512i bytes = _mm512_packus_epi16(_mm512_adds_epi16(x, zero), _mm512_adds_epi16(y, zero));   \
        const __m512i least = _mm512_max_epu8(bytes, _mm512_set1_epi8((char)b->low));                        \
        return _mm512_permutexvar_epi32(order, _mm512_min_epu8(least, _mm512_set1_epi8((char)b->high)));     \
    }
#define GPUNN__SCALE gpunn__sums512_scale

GPUNN__SUMS512(sums_vnni, GPUNN__AVX512_VNNI)
GPUNN__AVX512_VNNI GPUNN__INLINE __m512i gpunn__sums_vnni_dot(__m512i sums, __m512i a, __m512i b)
{
    return _mm512_dpbusd_epi32(sums, a, b);
}
/* Four cells of 16 channels in each lane: bytes in the order in which a channel's four are multiplied. */
GPUNN__AVX512_VNNI GPUNN__INLINE void gpunn__interleave(__m512i x[4])
{
    const __m512i a = _mm512_unpacklo_epi8(x[0], x[1]), b = _mm512_unpackhi_epi8(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi8(x[2], x[3]), d = _mm512_unpackhi_epi8(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi16(a, c);
    x[1] = _mm512_unpackhi_epi16(a, c);
    x[2] = _mm512_unpacklo_epi16(b, d);
    x[3] = _mm512_unpackhi_epi16(b, d);
}
/* sum[j] has channels 16 l + 4 j .. 16 l + 4 j + 3 in its lane l. Stores them in the channels' order. */
GPUNN__AVX512_VNNI GPUNN__INLINE void gpunn__store_channels(const __m512i sum[4], int32_t *to)
{
    const __m512i a = _mm512_shuffle_i32x4(sum[0], sum[1], 0x44),
                  b = _mm512_shuffle_i32x4(sum[2], sum[3], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(sum[0], sum[1], 0xEE),
                  d = _mm512_shuffle_i32x4(sum[2], sum[3], 0xEE);
    _mm512_storeu_si512(to, _mm512_shuffle_i32x4(a, b, 0x88));
    _mm512_storeu_si512(to + 16, _mm512_shuffle_i32x4(a, b, 0xDD));
    _mm512_storeu_si512(to + 32, _mm512_shuffle_i32x4(c, d, 0x88));
    _mm512_storeu_si512(to + 48, _mm512_shuffle_i32x4(c, d, 0xDD));
}
GPUNN__AVX512_VNNI static void gpunn__sums_vnni_cells(const gpunn__cells *c, int64_t first, int64_t n,
                                                      int32_t *sums)
{
    const char     *weight = c->weight + first * c->count;
    const __mmask64 some = n < GPUNN__CHANNELS ? ((uint64_t)1 << n) - 1 : ~(uint64_t)0;
    for (int p = 0; p < c->pixels; p++, sums += GPUNN__CHANNELS) {
        __m512i sum[4], x[4];
        GPUNN__UNROLL
        for (int j = 0; j < 4; j++) sum[j] = _mm512_setzero_si512();
        for (int k = 0; k < c->count; k += 4) {
            GPUNN__UNROLL
            for (int i = 0; i < 4; i++)
                x[i] = _mm512_maskz_loadu_epi8(some, c->at[p * c->count + k + i] + first);
            gpunn__interleave(x);
            GPUNN__UNROLL
            for (int j = 0; j < 4; j++)
                sum[j] = _mm512_dpbusd_epi32(sum[j], x[j],
                                             _mm512_loadu_si512(weight + (int64_t)GPUNN__CHANNELS * (k + j)));
        }
        gpunn__store_channels(sum, sums);
        GPUNN__UNROLL
        for (int j = 0; j < 64; j += 16)
            _mm512_storeu_si512(sums + j, _mm512_add_epi32(_mm512_loadu_si512(sums + j),
                                                           _mm512_loadu_si512(c->start + first + j)));
    }
}
#define GPUNN__Q(name) gpunn__sums_vnni_##name
#define GPUNN__LANES 16
#define GPUNN__SUMS __m512i
#define GPUNN__TARGET GPUNN__AVX512_VNNI
#include "cpu/quantized_products.inc"

GPUNN__SUMS512(sums512, GPUNN__AVX512)
GPUNN__AVX512 GPUNN__INLINE __m512i gpunn__sums512_dot(__m512i sums, __m512i a, __m512i b)
{
    return _mm512_add_epi32(sums, _mm512_madd_epi16(a, b));
}
#define GPUNN__Q(name) gpunn__sums512_##name
#define GPUNN__LANES 16
#define GPUNN__SUMS __m512i
#define GPUNN__TARGET GPUNN__AVX512
#include "cpu/quantized_products.inc"
#undef GPUNN__SCALE
#endif

#ifdef GPUNN__AVX2
typedef struct gpunn__sums256_scale { /* of a panel */
    __m256d part[4];
} gpunn__sums256_scale;
#define GPUNN__SCALE gpunn__sums256_scale
GPUNN__AVX2 GPUNN__INLINE __m256i gpunn__sums256_load(const void *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}
GPUNN__AVX2 GPUNN__INLINE void gpunn__sums256_store(void *to, __m256i x)
{
    _mm256_storeu_si256((__m256i *)to, x);
}
GPUNN__AVX2 GPUNN__INLINE __m256i gpunn__sums256_set(const char *from)
{
    int32_t four;
    memcpy(&four, from, sizeof four);
    return _mm256_set1_epi32(four);
}
GPUNN__AVX2 GPUNN__INLINE __m256i gpunn__sums256_dot(__m256i sums, __m256i a, __m256i b)
{
    return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
}
GPUNN__AVX2 GPUNN__INLINE gpunn__sums256_scale gpunn__sums256_factors(const float *from)
{
    gpunn__sums256_scale f;
    GPUNN__UNROLL
    for (int i = 0; i < 4; i++) f.part[i] = _mm256_cvtps_pd(_mm_loadu_ps(from + 4 * i));
    return f;
}
/* Four sums. A product below -2^31, or NaN, becomes -2^31. */
GPUNN__AVX2 GPUNN__INLINE __m128i gpunn__sums256_four(const gpunn__bounds *b, const int32_t *sums,
                                                      __m256d factor)
{
    const __m128i own = _mm_loadu_si128((const __m128i *)(const void *)sums);
    const __m256d x = _mm256_mul_pd(_mm256_cvtepi32_pd(own), factor);
    __m128i       y = _mm256_cvtpd_epi32(_mm256_min_pd(_mm256_set1_pd(1e6), x));
    y = _mm_add_epi32(y, _mm_set1_epi32(b->zero));
    return _mm_min_epi32(_mm_max_epi32(y, _mm_set1_epi32(b->low)), _mm_set1_epi32(b->high));
}
GPUNN__AVX2 GPUNN__INLINE __m128i gpunn__sums256_bytes(const gpunn__bounds *b, const int32_t *sums,
                                                       const gpunn__sums256_scale *f)
{
    __m128i x[4];
    GPUNN__UNROLL
    for (int i = 0; i < 4; i++) x[i] = gpunn__sums256_four(b, sums + 4 * i, f->part[i]);
    return _mm_packus_epi16(_mm_packs_epi32(x[0], x[1]), _mm_packs_epi32(x[2], x[3]));
}
#define GPUNN__Q(name) gpunn__sums256_##name
#define GPUNN__LANES 8
#define GPUNN__SUMS __m256i
#define GPUNN__TARGET GPUNN__AVX2
#include "cpu/quantized_products.inc"
#undef GPUNN__SCALE
#endif

/* A sum that may be outside 32 bits before its last product. */
GPUNN__INLINE int32_t gpunn__wrapped_sum(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a + (uint32_t)b);
}

/* Any processor, with numbers of 16 bits. */
GPUNN__PRIVATE void gpunn__sums_plain_products(const gpunn__integer_tile *t, const char *panels,
                                               const int32_t *start, int32_t *sums, int count)
{
    for (int i = 0; i < t->rows; i++)
        for (int p = 0; p < count; p++) {
            const int16_t *a = (const int16_t *)(const void *)(t->a + i * t->a_row);
            const int16_t *b = (const int16_t *)(const void *)(panels + 64 * t->steps * p);
            int32_t       *sum = sums + (i * count + p) * GPUNN__PANEL;
            memcpy(sum, start + p * GPUNN__PANEL, GPUNN__PANEL * sizeof *sum);
            for (int64_t k = 0; k < t->steps; k++, a += 2, b += 2 * GPUNN__PANEL)
                for (int j = 0; j < GPUNN__PANEL; j++)
                    sum[j] = gpunn__wrapped_sum(sum[j], a[0] * b[2 * j] + a[1] * b[2 * j + 1]);
        }
}

GPUNN__PRIVATE void gpunn__sums_plain_requantize(const gpunn_attributes *attr, const int32_t *sums, int width,
                                                 int rows, const float *factor, int64_t n, uint8_t *y,
                                                 int64_t y_row)
{
    for (int i = 0; i < rows; i++, sums += width, y += y_row)
        for (int64_t j = 0; j < n; j++) {
            const double  x = (double)sums[j] * (double)factor[j], above = x > -1e6 ? x : -1e6;
            const int32_t near = gpunn__nearest_of_double(above < 1e6 ? above : 1e6);
            y[j] = (uint8_t)gpunn__between(near + attr->zero_point, attr->quant_min, attr->quant_max);
        }
}

GPUNN__VECTORIZED(gpunn__sums_plain_cells, (const gpunn__cells *c, int64_t first, int64_t n, int32_t *sums),
                  (c, first, n, sums))
{
    for (int p = 0; p < c->pixels; p++, sums += GPUNN__CHANNELS) {
        const int16_t *w = (const int16_t *)(const void *)c->weight + first;
        for (int64_t i = 0; i < n; i++) sums[i] = c->start[first + i];
        for (int k = 0; k < c->count; k++, w += c->columns) {
            const uint8_t *x = c->at[p * c->count + k] + first;
            for (int64_t i = 0; i < n; i++) sums[i] = gpunn__wrapped_sum(sums[i], x[i] * w[i]);
        }
    }
}

/* The functions for this processor. */
static const gpunn__integer_kernels *gpunn__integer_choose(void)
{
    static const gpunn__integer_kernels plain = {2, gpunn__sums_plain_products, gpunn__sums_plain_requantize,
                                                 gpunn__sums_plain_cells};
#ifdef GPUNN__AVX512
    static const gpunn__integer_kernels vnni = {1, gpunn__sums_vnni_products, gpunn__sums_vnni_requantize,
                                                gpunn__sums_vnni_cells},
                                        wide = {2, gpunn__sums512_products, gpunn__sums512_requantize,
                                                gpunn__sums_plain_cells};
#endif
#ifdef GPUNN__AVX2
    static const gpunn__integer_kernels half = {2, gpunn__sums256_products, gpunn__sums256_requantize,
                                                gpunn__sums_plain_cells};
#endif
#ifdef GPUNN__LEVELS
    const int level = gpunn__level();
    if (level < GPUNN__LEVEL_AVX2) return &plain;
    if (level < GPUNN__LEVEL_AVX512) return &half;
#endif
    (void)plain;
#ifdef GPUNN__AVX512
    return __builtin_cpu_supports("avx512vnni") ? &vnni : &wide;
#elif defined(GPUNN__AVX2)
    return &half;
#else
    return &plain;
#endif
}

/* ---- linear layers and convolutions -------------------------------------------------------------------- */

/* A linear layer is a convolution of images with one cell. */
typedef struct gpunn__int8 {
    const gpunn_attributes       *attr;
    int64_t                       n, h, w, c, oh, ow, out; /* x [n][h][w][c] -> y [n][oh][ow][out] */
    int64_t                       groups, in, columns;     /* in, columns: of a group */
    int                           kernel[2], stride[2], padding[2], dilation[2];
    int64_t                       k, steps, panels;  /* panels: of a group */
    int                           bytes;             /* of a number in A and B */
    bool                          depthwise, copies; /* copies: A is a copy of x */
    const gpunn__integer_kernels *kernels;
    /* Memory. start, factor and total have an entry for each column, padded to whole panels in each group.
     * total: sum of the column. */
    char    *packed;
    int32_t *total, *start;
    float   *factor;
    char    *scratch; /* of each thread */
    size_t   scratch_bytes;
    uint8_t *outside; /* depthwise: the channels of padding */
    /* of a run */
    const uint8_t *x;
    int            zero;
    void          *y;    /* U8, or F32 with bias */
    const float   *bias; /* F32 results: is added to them */
} gpunn__int8;

GPUNN__INLINE int64_t gpunn__int8_rows(const gpunn__int8 *g)
{
    return g->n * g->oh * g->ow;
}

GPUNN__INLINE int64_t gpunn__padded_columns(const gpunn__int8 *g)
{
    return g->depthwise ? gpunn__round_up(g->out, GPUNN__CHANNELS) : g->groups * g->panels * GPUNN__PANEL;
}

/* The part of g that does not depend on whether it is a convolution. */
static void gpunn__int8_finish(gpunn__int8 *g)
{
    g->in = g->c / g->groups;
    g->columns = g->out / g->groups;
    g->k = (int64_t)g->kernel[0] * g->kernel[1] * g->in;
    g->kernels = gpunn__integer_choose();
    g->depthwise = g->in == 1 && g->columns == 1;
    g->steps = gpunn__round_up(g->k * g->kernels->bytes, 4) / 4;
    g->panels = gpunn__round_up(g->columns, GPUNN__PANEL) / GPUNN__PANEL;
    const bool whole = g->k == g->c && g->stride[0] == 1 && g->stride[1] == 1 && g->padding[0] == 0 &&
                       g->padding[1] == 0; /* a kernel of one cell, and one group */
    g->copies = !(whole && g->kernels->bytes == 1 && g->c % 4 == 0);
}

/* Cells of the kernel of a depthwise convolution. */
GPUNN__INLINE int64_t gpunn__padded_cells(const gpunn__int8 *g)
{
    return gpunn__round_up(g->k, 4);
}

static size_t gpunn__packed_bytes(const gpunn__int8 *g)
{
    return (size_t)(gpunn__padded_columns(g) *
                    (g->depthwise ? gpunn__padded_cells(g) * g->kernels->bytes : 4 * g->steps));
}

/* Takes the memory that does not change between runs. */
static void gpunn__int8_keep(gpunn__int8 *g, gpunn__arena *arena)
{
    const size_t columns = (size_t)gpunn__padded_columns(g);
    g->packed = (char *)gpunn__arena_take(arena, gpunn__packed_bytes(g));
    g->total = (int32_t *)gpunn__arena_take(arena, columns * sizeof(int32_t));
}

static void gpunn__int8_take(gpunn__int8 *g, gpunn__arena *arena)
{
    g->start = (int32_t *)gpunn__arena_take(arena, (size_t)gpunn__padded_columns(g) * sizeof(int32_t));
    g->factor = (float *)gpunn__arena_take(arena, (size_t)gpunn__padded_columns(g) * sizeof(float));
}

/* Takes the memory of the threads: a block of A, once in bytes and once in 16 bits where these are needed, or
 * the cells of some results. */
static void gpunn__int8_scratch(gpunn__int8 *g, gpunn__arena *arena, int threads)
{
    const int64_t row = 4 * g->steps, rows = g->copies ? GPUNN__BLOCK_ROWS : 0;
    const int64_t block = (row + (g->kernels->bytes == 2 ? row / 2 : 0)) * rows;
    const int64_t cells = gpunn__padded_cells(g) * GPUNN__PIXELS * (int64_t)sizeof(uint8_t *);
    g->outside = g->depthwise ? (uint8_t *)gpunn__arena_take(arena, (size_t)gpunn__padded_columns(g)) : NULL;
    g->scratch_bytes = (size_t)gpunn__round_up(g->depthwise ? cells : block, 64);
    g->scratch = (char *)gpunn__arena_take(arena, g->scratch_bytes * (size_t)threads);
}

/* The place of column o in start and factor. */
GPUNN__INLINE int64_t gpunn__column_at(const gpunn__int8 *g, int64_t o)
{
    if (g->depthwise) return o;
    return o / g->columns * g->panels * GPUNN__PANEL + o % g->columns;
}

/* Stores weight element k of column o. */
GPUNN__INLINE void gpunn__pack_number(const gpunn__int8 *g, int64_t o, int64_t k, int q)
{
    const int64_t at = gpunn__column_at(g, o), each = 4 / g->kernels->bytes;
    if (g->depthwise && g->kernels->bytes == 2) {
        ((int16_t *)(void *)g->packed)[k * gpunn__padded_columns(g) + o] = (int16_t)q;
        return;
    }
    if (g->depthwise) {
        const int64_t block = o / GPUNN__CHANNELS * gpunn__padded_cells(g) + k / 4 * 4,
                      c = o % GPUNN__CHANNELS;
        ((int8_t *)g->packed)[(block + c % 16 / 4) * GPUNN__CHANNELS + c / 16 * 16 + c % 4 * 4 + k % 4] =
            (int8_t)q;
        return;
    }
    char *cell = g->packed + (at / GPUNN__PANEL * g->steps + k / each) * 64 + at % GPUNN__PANEL * 4;
    if (g->kernels->bytes == 1)
        ((int8_t *)cell)[k % each] = (int8_t)q;
    else
        ((int16_t *)(void *)cell)[k % each] = (int16_t)q;
}

/* Rounds and packs weight [out, in, kh, kw]. k runs over kh, kw, in. */
static void gpunn__pack_weight(const gpunn__int8 *g, const float *weight, const float *scale)
{
    const int64_t cells = (int64_t)g->kernel[0] * g->kernel[1], columns = gpunn__padded_columns(g);
    memset(g->packed, 0, gpunn__packed_bytes(g));
    memset(g->total, 0, (size_t)columns * sizeof *g->total);
    for (int64_t o = 0; o < g->out; o++)
        for (int64_t i = 0; i < g->in; i++)
            for (int64_t cell = 0; cell < cells; cell++, weight++) {
                const int q = gpunn__rounded_weight(*weight, scale[o]);
                g->total[gpunn__column_at(g, o)] += q;
                gpunn__pack_number(g, o, cell * g->in + i, q);
            }
}

/* Sets start and factor. bias NULL: none. scale: of the result. */
static void gpunn__scale_columns(const gpunn__int8 *g, const float *weight_scale, const float *bias,
                                 float x_scale, int zero, float scale)
{
    const size_t columns = (size_t)gpunn__padded_columns(g);
    memset(g->start, 0, columns * sizeof *g->start);
    memset(g->factor, 0, columns * sizeof *g->factor);
    for (int64_t o = 0; o < g->out; o++) {
        const int64_t at = gpunn__column_at(g, o);
        const float   unit = x_scale * weight_scale[o];
        const double  most = 1 << 30, shift = bias && unit != 0 ? (double)(bias[o] / unit) : 0;
        const double  above = shift > -most ? shift : -most;
        g->start[at] = gpunn__nearest_of_double(above < most ? above : most) - zero * g->total[at];
        g->factor[at] = unit / scale;
    }
}

GPUNN__VECTORIZED(gpunn__scale_sums,
                  (const int32_t *sums, const float *factor, int64_t n, const float *bias, float *y),
                  (sums, factor, n, bias, y))
{
    for (int64_t i = 0; i < n; i++) y[i] = (float)sums[i] * factor[i] + bias[i];
}

/* Writes n results of each of some rows from column `column` on. at: of factor. */
static void gpunn__int8_store(const gpunn__int8 *g, const int32_t *sums, int width, int64_t row, int rows,
                              int64_t column, int64_t at, int64_t n)
{
    const int64_t to = row * g->out + column;
    if (g->bias == NULL)
        g->kernels->requantize(g->attr, sums, width, rows, g->factor + at, n, (uint8_t *)g->y + to, g->out);
    for (int i = 0; i < rows && g->bias; i++)
        gpunn__scale_sums(sums + i * width, g->factor + at, n, g->bias + column,
                          (float *)g->y + to + i * g->out);
}

/* Copies what row `row` reads of a group: a cell of the kernel after the other. */
static void gpunn__copy_row(const gpunn__int8 *g, int64_t row, int64_t group, uint8_t *to)
{
    const int64_t ox = row % g->ow, oy = row / g->ow % g->oh, in = g->in;
    const int64_t left = ox * g->stride[1] - g->padding[1];
    const bool    joined = in == g->c && g->dilation[1] == 1 && left >= 0 && left + g->kernel[1] <= g->w;
    for (int ky = 0; ky < g->kernel[0]; ky++) {
        const int64_t  y = oy * g->stride[0] - g->padding[0] + (int64_t)ky * g->dilation[0];
        const bool     inside = y >= 0 && y < g->h;
        const uint8_t *line = g->x + ((row / g->ow / g->oh * g->h + (inside ? y : 0)) * g->w) * g->c +
                              group * in;
        if (joined && inside) {
            memcpy(to, line + left * in, (size_t)(g->kernel[1] * in));
            to += g->kernel[1] * in;
            continue;
        }
        for (int kx = 0; kx < g->kernel[1]; kx++, to += in) {
            const int64_t x = left + (int64_t)kx * g->dilation[1];
            if (inside && x >= 0 && x < g->w)
                memcpy(to, line + x * g->c, (size_t)in);
            else
                memset(to, g->zero, (size_t)in);
        }
    }
}

GPUNN__VECTORIZED(gpunn__widen_bytes, (const uint8_t *from, int64_t n, int16_t *to), (from, n, to))
{
    for (int64_t i = 0; i < n; i++) to[i] = from[i];
}

/* Copies rows of A to scratch, in 16 bits where the kernels take these. */
static void gpunn__int8_copy(const gpunn__int8 *g, int64_t group, int64_t first, int rows, char *scratch)
{
    const bool    wide = g->kernels->bytes == 2;
    const int64_t numbers = 4 / g->kernels->bytes * g->steps;
    uint8_t      *bytes = (uint8_t *)scratch + (wide ? 2 * numbers * GPUNN__BLOCK_ROWS : 0);
    for (int i = 0; i < rows; i++) {
        gpunn__copy_row(g, first + i, group, bytes + i * numbers);
        memset(bytes + i * numbers + g->k, 0, (size_t)(numbers - g->k));
    }
    if (wide) gpunn__widen_bytes(bytes, rows * numbers, (int16_t *)(void *)scratch);
}

/* Makes t the rows from `first` on of A, in scratch if it is a copy. */
static void gpunn__int8_block(const gpunn__int8 *g, int64_t group, int64_t first, int rows, char *scratch,
                              gpunn__integer_tile *t)
{
    t->a = g->copies ? scratch : (const char *)g->x + first * g->c;
    t->a_row = g->copies ? 4 * g->steps : g->c;
    t->steps = g->steps;
    t->rows = rows;
    if (g->copies) gpunn__int8_copy(g, group, first, rows, scratch);
}

/* Computes panels [panel, end) of a group for the rows of a tile. */
static void gpunn__int8_columns(const gpunn__int8 *g, const gpunn__integer_tile *t, int64_t group,
                                int64_t first, int64_t panel, int64_t end)
{
    int32_t sums[GPUNN__BLOCK_ROWS * GPUNN__BLOCK_PANELS * GPUNN__PANEL];
    while (panel < end) {
        const int     count = end - panel >= 4 ? 4 : end - panel >= 2 ? 2 : 1;
        const int64_t at = (group * g->panels + panel) * GPUNN__PANEL, column = panel * GPUNN__PANEL;
        const int64_t n = gpunn__least((int64_t)count * GPUNN__PANEL, g->columns - column);
        g->kernels->products(t, g->packed + at * 4 * g->steps, g->start + at, sums, count);
        gpunn__int8_store(g, sums, count * GPUNN__PANEL, first, t->rows, group * g->columns + column, at, n);
        panel += count;
    }
}

/* A thread's share: of the rows, or of the panels if there are few rows. */
static void gpunn__int8_task(void *arg, int index, int threads)
{
    const gpunn__int8 *g = (const gpunn__int8 *)arg;
    const int64_t      rows = gpunn__int8_rows(g);
    const bool         by_rows = rows >= (int64_t)GPUNN__BLOCK_ROWS * 2 * threads;
    char              *scratch = g->scratch_bytes ? g->scratch + g->scratch_bytes * (size_t)index : NULL;
    int64_t            first, last, panel, end;
    gpunn__cpu_part(rows, GPUNN__BLOCK_ROWS, by_rows ? threads : 1, by_rows ? index : 0, &first, &last);
    gpunn__cpu_part(g->panels, GPUNN__BLOCK_PANELS, by_rows ? 1 : threads, by_rows ? 0 : index, &panel, &end);
    for (; first < last && panel < end; first += GPUNN__BLOCK_ROWS) {
        const int count = (int)gpunn__least(GPUNN__BLOCK_ROWS, last - first);
        for (int64_t group = 0; group < g->groups; group++) {
            gpunn__integer_tile t;
            gpunn__int8_block(g, group, first, count, scratch, &t);
            gpunn__int8_columns(g, &t, group, first, panel, end);
        }
    }
}

/* ---- depthwise convolutions ---------------------------------------------------------------------------- */

/* Finds the cells of the kernel for the result at [n][oy][ox]. */
static void gpunn__find_cells(const gpunn__int8 *g, int64_t n, int64_t oy, int64_t ox, const uint8_t **at)
{
    const int64_t  left = ox * g->stride[1] - g->padding[1], top = oy * g->stride[0] - g->padding[0];
    const uint8_t *image = g->x + n * g->h * g->w * g->c;
    for (int ky = 0; ky < g->kernel[0]; ky++) {
        const int64_t y = top + (int64_t)ky * g->dilation[0];
        const bool    inside = y >= 0 && y < g->h;
        for (int kx = 0; kx < g->kernel[1]; kx++) {
            const int64_t x = left + (int64_t)kx * g->dilation[1];
            *at++ = inside && x >= 0 && x < g->w ? image + (y * g->w + x) * g->c : g->outside;
        }
    }
    for (int64_t k = g->k; k < gpunn__padded_cells(g); k++) *at++ = g->outside;
}

static void gpunn__int8_depthwise(void *arg, int index, int threads)
{
    const gpunn__int8 *g = (const gpunn__int8 *)arg;
    const int          count = (int)gpunn__padded_cells(g);
    const uint8_t    **at = (const uint8_t **)(void *)(g->scratch + g->scratch_bytes * (size_t)index);
    gpunn__cells       c = {at, count, 0, g->packed, g->start, gpunn__padded_columns(g)};
    int32_t            sums[GPUNN__PIXELS * GPUNN__CHANNELS];
    int64_t            row, last;
    gpunn__cpu_part(gpunn__int8_rows(g), GPUNN__PIXELS, threads, index, &row, &last);
    for (; row < last; row += c.pixels) {
        c.pixels = (int)gpunn__least(GPUNN__PIXELS, last - row);
        for (int p = 0; p < c.pixels; p++)
            gpunn__find_cells(g, (row + p) / g->ow / g->oh, (row + p) / g->ow % g->oh, (row + p) % g->ow,
                              at + p * count);
        for (int64_t first = 0; first < g->out; first += GPUNN__CHANNELS) {
            const int64_t n = gpunn__least(GPUNN__CHANNELS, g->out - first);
            g->kernels->cells(&c, first, n, sums);
            gpunn__int8_store(g, sums, GPUNN__CHANNELS, row, c.pixels, first, first, n);
        }
    }
}

static void gpunn__int8_run(gpunn__int8 *g, int threads)
{
    if (g->depthwise) memset(g->outside, g->zero, (size_t)gpunn__padded_columns(g));
    gpunn_parallel(threads, g->depthwise ? gpunn__int8_depthwise : gpunn__int8_task, g);
}

/* Number of threads worth using. */
static int gpunn__int8_threads(const gpunn__cpu *cpu, const gpunn__int8 *g)
{
    return gpunn__cpu_threads_for(cpu,
                                  (double)gpunn__int8_rows(g) * (double)g->out * (1 + (double)g->k / 64));
}

static GPUNN__STATUS gpunn__check_products(gpunn__cpu *cpu, const gpunn__int8 *g)
{
    if (g->k <= GPUNN__MOST_PRODUCTS) return GPUNN_OK;
    return gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED,
                           "a sum of %lld products may exceed 32 bits; %d products are possible",
                           (long long)g->k, GPUNN__MOST_PRODUCTS);
}

/* y of 8 bits. Evaluation plans keep the packed weight. */
static GPUNN__STATUS gpunn__int8_step(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action, gpunn__int8 *g)
{
    gpunn__arena kept = {action == GPUNN__PREPARE ? NULL : (char *)step->cache, 0},
                 scratch = {action == GPUNN__PREPARE ? NULL : (char *)step->workspace, 0};
    gpunn__int8_finish(g);
    const int          threads = gpunn__int8_threads(cpu, g);
    const gpunn_status status = gpunn__check_products(cpu, g);
    if (status != GPUNN_OK) return status;
    gpunn__int8_keep(g, &kept);
    gpunn__int8_take(g, &kept);
    gpunn__int8_scratch(g, &scratch, threads);
    step->cache_bytes = kept.bytes;
    step->workspace_bytes = scratch.bytes;
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    const float *weight_scale = (const float *)step->in[2].data;
    g->attr = step->attr;
    g->x = (const uint8_t *)step->in[0].data;
    g->y = step->out.data;
    g->zero = step->attr->x_zero_point;
    if (step->cache_version != step->state->weights_version) {
        gpunn__pack_weight(g, (const float *)step->in[1].data, weight_scale);
        gpunn__scale_columns(g, weight_scale, (const float *)step->in[3].data, step->attr->x_scale, g->zero,
                             step->attr->scale);
        step->cache_version = step->state->weights_version;
    }
    gpunn__int8_run(g, threads);
    return GPUNN_OK;
}

/* A linear layer of weight [out, in] for count numbers of x. */
static gpunn__int8 gpunn__int8_linear(const gpunn_value *weight, int64_t count)
{
    gpunn__int8 g;
    memset(&g, 0, sizeof g);
    g.h = g.w = g.oh = g.ow = g.groups = 1;
    g.c = weight->dim[1];
    g.n = count / g.c;
    g.out = weight->dim[0];
    for (int i = 0; i < 2; i++) g.kernel[i] = g.stride[i] = g.dilation[i] = 1;
    return g;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_quantized_linear(gpunn__cpu *cpu, gpunn_step *step,
                                                          gpunn__action action)
{
    gpunn__int8 g = gpunn__int8_linear(&step->in[1], step->in[0].count);
    return gpunn__int8_step(cpu, step, action, &g);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_quantized_conv2d(gpunn__cpu *cpu, gpunn_step *step,
                                                          gpunn__action action)
{
    const int64_t *x = step->in[0].dim, *y = step->out.dim;
    gpunn__int8    g;
    memset(&g, 0, sizeof g);
    g.n = x[0], g.c = x[1], g.h = x[2], g.w = x[3];
    g.out = y[1], g.oh = y[2], g.ow = y[3];
    g.groups = step->attr->groups;
    memcpy(g.kernel, step->attr->kernel, sizeof g.kernel);
    memcpy(g.stride, step->attr->stride, sizeof g.stride);
    memcpy(g.padding, step->attr->padding, sizeof g.padding);
    memcpy(g.dilation, step->attr->dilation, sizeof g.dilation);
    return gpunn__int8_step(cpu, step, action, &g);
}

/* ---- linear layers of floats that each run rounds ------------------------------------------------------ */

typedef struct gpunn__float_range {
    float least, most;
} gpunn__float_range;

/* The range of n floats and 0. A NaN makes both ends NaN. */
GPUNN__VECTORIZED(gpunn__find_range, (const float *x, int64_t n, gpunn__float_range *range), (x, n, range))
{
    float least = 0, most = 0, doubt = 0;
    for (int64_t i = 0; i < n; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
        doubt = x[i] == x[i] ? doubt : x[i];
    }
    range->least = least + doubt;
    range->most = most + doubt;
}

/* scale and zero point as ONNX's DynamicQuantizeLinear. */
static void gpunn__quantize_scale(const float *x, int64_t n, float *scale, int *zero)
{
    gpunn__float_range range;
    gpunn__find_range(x, n, &range);
    *scale = (range.most == range.least ? 1 : range.most - range.least) / 255;
    *zero = gpunn__byte_of(-range.least / *scale, 0, 0, 255);
}

GPUNN__VECTORIZED(gpunn__floats_to_bytes, (const float *x, int64_t n, float scale, int zero, uint8_t *to),
                  (x, n, scale, zero, to))
{
    for (int64_t i = 0; i < n; i++) to[i] = gpunn__byte_of(x[i] / scale, zero, 0, 255);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_quantized_linear_dynamic(gpunn__cpu *cpu, gpunn_step *step,
                                                                  gpunn__action action)
{
    gpunn__arena kept = {action == GPUNN__PREPARE ? NULL : (char *)step->cache, 0},
                 scratch = {action == GPUNN__PREPARE ? NULL : (char *)step->workspace, 0};
    const int64_t count = step->in[0].count;
    gpunn__int8   g = gpunn__int8_linear(&step->in[1], count);
    float         scale;
    gpunn__int8_finish(&g);
    const int          threads = gpunn__int8_threads(cpu, &g);
    const gpunn_status status = gpunn__check_products(cpu, &g);
    if (status != GPUNN_OK) return status;
    gpunn__int8_keep(&g, &kept);
    gpunn__int8_take(&g, &scratch);
    gpunn__int8_scratch(&g, &scratch, threads);
    uint8_t *x = (uint8_t *)gpunn__arena_take(&scratch, (size_t)count);
    step->cache_bytes = kept.bytes;
    step->workspace_bytes = scratch.bytes;
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    const float *weight_scale = (const float *)step->in[2].data;
    if (step->cache_version != step->state->weights_version)
        gpunn__pack_weight(&g, (const float *)step->in[1].data, weight_scale);
    step->cache_version = step->state->weights_version;
    gpunn__quantize_scale((const float *)step->in[0].data, count, &scale, &g.zero);
    gpunn__floats_to_bytes((const float *)step->in[0].data, count, scale, g.zero, x);
    gpunn__scale_columns(&g, weight_scale, NULL, scale, g.zero, 1);
    g.x = x;
    g.y = step->out.data;
    g.bias = (const float *)step->in[3].data;
    gpunn__int8_run(&g, threads);
    return GPUNN_OK;
}
