#include "cpu/blocks.h"
#include "base/math.h"

/* Rounds n numbers to groups. The scale of a group with a NaN or an infinity is that. zero: see
 * gpunn__block_zero. */
GPUNN__VECTORIZED(gpunn__round_groups, (const float *a, int64_t n, int zero, gpunn__rounded *to),
                  (a, n, zero, to))
{
    for (int64_t i = 0; i < n; i += GPUNN__GROUP, to++) {
        float most = 0;
        for (int k = 0; k < GPUNN__GROUP; k++) most = gpunn__max(most, fabsf(a[i + k]));
        const float   scale = most / 127, inverse = most > 0 ? 127 / most : 0;
        const int32_t limit = 127;
        int32_t       sum = 0;
        for (int k = 0; k < GPUNN__GROUP; k++) {
            const int32_t x = gpunn__nearest(a[i + k] * inverse), low = x < -limit ? -limit : x;
            const int32_t q = low > limit ? limit : low;
            to->q[k] = (int8_t)q;
            sum += q;
        }
        to->scale = scale;
        to->sum = scale * (float)sum;
        to->shift = -zero * sum;
    }
}

/* What kernels subtract from unsigned numbers of this format, by `shift`. */
static int gpunn__block_zero(gpunn_dtype format)
{
    return gpunn__block_length(format) == GPUNN__GROUP ? gpunn__block_bias(format) : 0;
}

/* Whether there are kernels of a format. Those that do not saturate gain a tenth of the time or more only for
 * blocks of 32 numbers without minimums, whose numbers are signed. */
GPUNN__INLINE bool gpunn__block_fits(gpunn_dtype format, bool saturates)
{
    return gpunn__block_has_integers(format) &&
           (saturates || (gpunn__block_length(format) == GPUNN__GROUP && !gpunn__block_has_minimums(format)));
}

/* The kernels for one set of instructions: C [m, n] as in gpunn__block_dots, with A in groups. */
typedef void (*gpunn__block_kernel)(gpunn_dtype format, int64_t m, int64_t n, int64_t groups,
                                    const gpunn__rounded *a, const char *b, float *c, int64_t c_row,
                                    bool add);

#if defined(GPUNN__AVX2) || defined(GPUNN__AVX512)
#define GPUNN__B(name) gpunn__maddubs_##name
#define GPUNN__SATURATES 1
#ifdef GPUNN__AVX2
#define GPUNN__TARGET GPUNN__AVX2
#else
#define GPUNN__TARGET GPUNN__AVX512
#endif
GPUNN__TARGET GPUNN__INLINE __m256i gpunn__maddubs_sums(__m256i sums, __m256i u, __m256i s)
{
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
}
#include "cpu/blocks_products.inc"
#endif

#ifdef GPUNN__AVX512
#define GPUNN__B(name) gpunn__vnni_##name
#define GPUNN__SATURATES 0
#define GPUNN__TARGET                                                                                   \
    __attribute__((target("avx512vnni,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c,bmi,bmi2,lzcnt," \
                          "popcnt"),                                                                    \
                   GPUNN__KERNEL))
GPUNN__TARGET GPUNN__INLINE __m256i gpunn__vnni_sums(__m256i sums, __m256i u, __m256i s)
{
    return _mm256_dpbusd_epi32(sums, u, s);
}
#include "cpu/blocks_products.inc"
#endif

#if defined(GPUNN__VECTORS) && defined(__aarch64__)
#include "cpu/blocks_neon.inc"
#endif

/* Any processor. */
GPUNN__PRIVATE void gpunn__plain_block_products(gpunn_dtype format, int64_t m, int64_t n, int64_t groups,
                                                const gpunn__rounded *a, const char *b, float *c,
                                                int64_t c_row, bool add)
{
    const size_t row = gpunn__block_bytes(format, groups * GPUNN__GROUP);
    for (int64_t j = 0; j < n; j++, b += row)
        for (int64_t i = 0; i < m; i++) {
            float sum = 0;
            for (int64_t g = 0; g < groups; g++) {
                const gpunn__rounded *x = &a[i * groups + g];
                const gpunn__group    y = gpunn__unpack_group(format, b, g);
                int32_t               half[2] = {0, 0};
                for (int k = 0; k < GPUNN__GROUP; k++) half[k / 16] += x->q[k] * y.q[k];
                sum += x->scale * (y.scale[0] * (float)half[0] + y.scale[1] * (float)half[1]);
                sum += y.minimum * x->sum;
            }
            c[i * c_row + j] = add ? c[i * c_row + j] + sum : sum;
        }
}

static gpunn__block_kernel gpunn__block_choose(gpunn_dtype format)
{
    (void)format;
#ifdef GPUNN__LEVELS
    const int level = gpunn__level();
    if (level < GPUNN__LEVEL_AVX2) return gpunn__plain_block_products;
    if (level < GPUNN__LEVEL_AVX512) return gpunn__maddubs_products;
#endif
#ifdef GPUNN__AVX512
    if (gpunn__block_fits(format, false) && __builtin_cpu_supports("avx512vnni")) return gpunn__vnni_products;
#endif
#if defined(GPUNN__AVX2) || defined(GPUNN__AVX512)
    return gpunn__maddubs_products;
#elif defined(GPUNN__VECTORS) && defined(__aarch64__)
    return gpunn__neon_products;
#else
    return gpunn__plain_block_products;
#endif
}

GPUNN__INTERNAL void gpunn__block_widen(gpunn_dtype format, const void *blocks, int64_t at, float *values,
                                        int64_t n)
{
#if defined(GPUNN__AVX2) || defined(GPUNN__AVX512)
#ifdef GPUNN__LEVELS
    if (gpunn__level() >= GPUNN__LEVEL_AVX2)
#endif
    {
        gpunn__maddubs_widen(format, (const uint8_t *)blocks, at, values, n);
        return;
    }
#endif
#if !(defined(GPUNN__AVX2) || defined(GPUNN__AVX512)) || defined(GPUNN__LEVELS)
    gpunn__dequantize_from(format, blocks, at, values, n);
#endif
}

GPUNN__INTERNAL void gpunn__block_dots(gpunn_dtype format, int64_t m, int64_t n, int64_t k, const float *a,
                                       int64_t a_row, const void *b, float *c, int64_t c_row, bool add,
                                       gpunn__rounded *scratch)
{
    const int64_t groups = k / GPUNN__GROUP;
    for (int64_t i = 0; i < m; i++)
        gpunn__round_groups(a + i * a_row, k, gpunn__block_zero(format), scratch + i * groups);
    gpunn__block_choose(format)(format, m, n, groups, scratch, (const char *)b, c, c_row, add);
}
