#include "cpu/blocks.h"
#include "base/math.h"
#include "cpu/context.h"

/* The scale of a group whose largest number has these bits, and its shifts. sum: of the numbers of each
 * half. */
GPUNN__INLINE void gpunn__round_scales(gpunn_dtype format, uint32_t most, const int32_t sum[2],
                                       gpunn__rounded *to)
{
    const int32_t zero = gpunn__block_bias(format), all = sum[0] + sum[1];
    to->scale = gpunn__float_of(most) / 127;
    to->sum = to->scale * (float)all;
    to->shift[0] = -zero * (format == GPUNN_Q6_K ? sum[0] : all);
    to->shift[1] = format == GPUNN_Q6_K ? -zero * sum[1] : 0;
}

/* What numbers of a group are multiplied by before they are rounded. */
GPUNN__INLINE float gpunn__round_inverse(uint32_t most)
{
    return most > 0 ? 127 / gpunn__float_of(most) : 0;
}

/* Rounds n numbers to groups. The scale of a group with a NaN or an infinity is that. */
static void gpunn__round_groups(gpunn_dtype format, const float *a, int64_t n, gpunn__rounded *to)
{
    const int32_t limit = 127;
    for (int64_t i = 0; i < n; i += GPUNN__GROUP, to++) {
        uint32_t most = 0; /* the bits of sizes have their order, and NaN the largest */
        int32_t  sum[2] = {0, 0};
        for (int k = 0; k < GPUNN__GROUP; k++) {
            const uint32_t size = gpunn__bits_of(a[i + k]) & 0x7fffffff;
            most = size > most ? size : most;
        }
        for (int k = 0; k < GPUNN__GROUP; k++) {
            const int32_t x = gpunn__nearest(a[i + k] * gpunn__round_inverse(most)),
                          low = x < -limit ? -limit : x;
            to->q[k] = (int8_t)(low > limit ? limit : low);
            sum[k / 16] += to->q[k];
        }
        gpunn__round_scales(format, most, sum, to);
    }
}

/* The kernels for one set of instructions: C [m, n] as in gpunn__block_dots, with A in groups. */
typedef void (*gpunn__block_kernel)(gpunn_dtype format, int64_t m, int64_t n, int64_t groups,
                                    const gpunn__rounded *a, const char *b, float *c, int64_t c_row,
                                    bool add);

/* A panel of B: for each group four numbers of each column in turn, then a scale of each column and its
 * minimum or, in Q6_K, the scale of the second half. */
enum { GPUNN__PANEL_BYTES = GPUNN__GROUP + 2 * sizeof(float) }; /* of a column in a group */

/* C [rows, columns] (=, or += if add) of rounded rows, a_row groups apart, and a panel. */
typedef struct gpunn__tiles {
    int64_t               rows, groups, a_row, c_row;
    int                   columns;
    bool                  add;
    const gpunn__rounded *a;
    const char           *panel;
    float                *c;
} gpunn__tiles;

#if defined(GPUNN__AVX2) || defined(GPUNN__AVX512)
/* Bytes of B between what is computed and what is prefetched. 8 to 32 KiB are equally fast; a row or two
 * are up to 1.5 times slower. */
enum { GPUNN__AHEAD = 16384 };

/* Eight groups of a row of A and of four of B. */
typedef struct gpunn__last_groups {
    gpunn__rounded a[8];
    uint8_t        b[4][8 * (GPUNN__GROUP + 2)];
} gpunn__last_groups;

/* Copies the last groups, blocks of 32 numbers, and zeros behind them. Returns A's and sets b to B's. */
static const gpunn__rounded *gpunn__pad_groups(gpunn__last_groups *tail, int64_t groups, size_t bytes,
                                               const gpunn__rounded *a, const uint8_t *b[4])
{
    memset(tail, 0, sizeof *tail);
    memcpy(tail->a, a, (size_t)groups * sizeof *a);
    for (int e = 0; e < 4; e++) {
        memcpy(tail->b[e], b[e], (size_t)groups * bytes);
        b[e] = tail->b[e];
    }
    return tail->a;
}

#define GPUNN__B(name) gpunn__maddubs_##name
#define GPUNN__SATURATES 1
#ifdef GPUNN__AVX2
#define GPUNN__TARGET GPUNN__AVX2
#else
#define GPUNN__TARGET GPUNN__AVX512
#endif
#include "cpu/blocks_products.inc"
#endif

#ifdef GPUNN__AVX512
/* g++ warns of undefined vectors inside its own intrinsics (gcc's bug 105593). */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#define GPUNN__B(name) gpunn__vnni_##name
#define GPUNN__SATURATES 0
#define GPUNN__TARGET GPUNN__AVX512_VNNI
GPUNN__TARGET GPUNN__INLINE __m512i gpunn__vnni_join(const void *low, const void *high)
{
    const __m256i one = _mm256_loadu_si256((const __m256i *)low);
    return _mm512_inserti64x4(_mm512_zextsi256_si512(one), _mm256_loadu_si256((const __m256i *)high), 1);
}
/* The same 32 bytes in both halves. */
GPUNN__TARGET GPUNN__INLINE __m512i gpunn__vnni_twice(const uint8_t *at)
{
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)at));
}
/* A number of 64 bits for each half. */
GPUNN__TARGET GPUNN__INLINE __m512i gpunn__vnni_pair(int64_t low, int64_t high)
{
    return _mm512_setr_epi64(low, low, low, low, high, high, high, high);
}
#include "cpu/blocks_products.inc"
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

#ifdef GPUNN__AVX2
/* Sums of 16 bits hold the products of 16 numbers of 5 bits, of 8 of 6 bits, or of 4 of 8 bits. Numbers of 8
 * bits are signed. */
GPUNN__AVX2 GPUNN__INLINE void gpunn__maddubs_quads(const int bits, const int R, const char *b,
                                                    const gpunn__rounded *a, int64_t a_row, int at,
                                                    gpunn__v8_bits *dots)
{
    const int     each = bits == 8 ? 1 : bits == 6 ? 2 : 4;
    const __m256i one = _mm256_set1_epi16(1);
    __m256i       sum[4];
    GPUNN__UNROLL
    for (int q = 0; q < 4; q++) {
        const __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)(b + 32 * q));
        GPUNN__UNROLL
        for (int i = 0; i < R; i++) {
            int32_t four;
            memcpy(&four, a[i * a_row].q + at + 4 * q, sizeof four);
            const __m256i x = _mm256_set1_epi32(four);
            const __m256i product = bits == 8
                                        ? _mm256_maddubs_epi16(_mm256_abs_epi8(y), _mm256_sign_epi8(x, y))
                                        : _mm256_maddubs_epi16(y, x);
            sum[i] = q % each ? _mm256_add_epi16(sum[i], product) : product;
            if (q % each == each - 1) dots[i] += (gpunn__v8_bits)_mm256_madd_epi16(sum[i], one);
        }
    }
}
#define GPUNN__B(name) gpunn__maddubs_##name
#define GPUNN__SATURATES 1
#define GPUNN__TARGET GPUNN__AVX2
#define GPUNN__VECTOR gpunn__v8
#define GPUNN__VECTOR_LANES 8
#define GPUNN__TILE_ROWS 4
#define GPUNN__TILE_VECTORS 1
#include "cpu/blocks_tiles.inc"
#endif

#ifdef GPUNN__AVX512
GPUNN__AVX512_VNNI GPUNN__INLINE void gpunn__vnni_quads(const int bits, const int R, const char *b,
                                                        const gpunn__rounded *a, int64_t a_row, int at,
                                                        gpunn__v16_bits *dots)
{
    (void)bits;
    GPUNN__UNROLL
    for (int q = 0; q < 4; q++, b += 128) {
        const __m512i y[2] = {_mm512_loadu_si512(b), _mm512_loadu_si512(b + 64)};
        GPUNN__UNROLL
        for (int e = 0; e < 2 * R; e++) {
            int32_t four;
            memcpy(&four, a[e / 2 * a_row].q + at + 4 * q, sizeof four);
            dots[e] = (gpunn__v16_bits)_mm512_dpbusd_epi32((__m512i)dots[e], y[e % 2],
                                                           _mm512_set1_epi32(four));
        }
    }
}
#define GPUNN__B(name) gpunn__vnni_##name
#define GPUNN__SATURATES 0
#define GPUNN__TARGET GPUNN__AVX512_VNNI
#define GPUNN__VECTOR gpunn__v16
#define GPUNN__VECTOR_LANES 16
#define GPUNN__TILE_ROWS 6
#define GPUNN__TILE_VECTORS 2
#include "cpu/blocks_tiles.inc"
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

static gpunn__block_kernel gpunn__block_choose(void)
{
#ifdef GPUNN__LEVELS
    const int level = gpunn__level();
    if (level < GPUNN__LEVEL_AVX2) return gpunn__plain_block_products;
    if (level < GPUNN__LEVEL_AVX512) return gpunn__maddubs_products;
#endif
#ifdef GPUNN__AVX512
    if (__builtin_cpu_supports("avx512vnni")) return gpunn__vnni_products;
#endif
#if defined(GPUNN__AVX2) || defined(GPUNN__AVX512)
    return gpunn__maddubs_products;
#elif defined(GPUNN__VECTORS) && defined(__aarch64__)
    return gpunn__neon_products;
#else
    return gpunn__plain_block_products;
#endif
}

#if defined(GPUNN__AVX2) || defined(GPUNN__AVX512)
GPUNN__INLINE bool gpunn__blocks_by_avx2(void)
{
#ifdef GPUNN__LEVELS
    return gpunn__level() >= GPUNN__LEVEL_AVX2;
#else
    return true;
#endif
}
#endif

GPUNN__INTERNAL void gpunn__block_widen(gpunn_dtype format, const void *blocks, int64_t at, float *values,
                                        int64_t n)
{
#if defined(GPUNN__AVX2) || defined(GPUNN__AVX512)
    if (gpunn__blocks_by_avx2()) {
        gpunn__maddubs_widen(format, (const uint8_t *)blocks, at, values, n);
        return;
    }
#endif
    gpunn__dequantize_from(format, blocks, at, values, n);
}

static void gpunn__round_row(gpunn_dtype format, const float *a, int64_t n, gpunn__rounded *to)
{
#if defined(GPUNN__AVX2) || defined(GPUNN__AVX512)
    if (gpunn__blocks_by_avx2()) {
        gpunn__maddubs_round(format, a, n, to);
        return;
    }
#endif
    gpunn__round_groups(format, a, n, to);
}

GPUNN__INTERNAL void gpunn__block_dots(gpunn_dtype format, int64_t m, int64_t n, int64_t k, const float *a,
                                       int64_t a_row, const void *b, float *c, int64_t c_row, bool add,
                                       gpunn__rounded *scratch)
{
    const int64_t groups = k / GPUNN__GROUP;
    for (int64_t i = 0; i < m; i++) gpunn__round_row(format, a + i * a_row, k, scratch + i * groups);
    gpunn__block_choose()(format, m, n, groups, scratch, (const char *)b, c, c_row, add);
}

/* ---- by panels ----------------------------------------------------------------------------------------- */

typedef struct gpunn__tile_kernels {
    int64_t columns;   /* of a panel */
    bool    unsigned8; /* numbers of 8 bits are unsigned in panels */
    void (*tiles)(gpunn_dtype format, const gpunn__tiles *t);
    /* Writes groups of eight columns, from group g on, and adds zero to the numbers. */
    void (*pack)(gpunn_dtype format, const char *const b[8], int64_t g, int64_t groups, int zero,
                 int64_t columns, char *to);
} gpunn__tile_kernels;

static const gpunn__tile_kernels *gpunn__tiles_choose(void)
{
#ifdef GPUNN__AVX512
    static const gpunn__tile_kernels vnni = {gpunn__vnni_columns, true, gpunn__vnni_tiles,
                                             gpunn__maddubs_pack};
#ifdef GPUNN__LEVELS
    if (gpunn__level() < GPUNN__LEVEL_AVX2) return NULL;
    if (gpunn__level() == GPUNN__LEVEL_AVX512)
#endif
        if (__builtin_cpu_supports("avx512vnni")) return &vnni;
#endif
#ifdef GPUNN__AVX2
    static const gpunn__tile_kernels maddubs = {gpunn__maddubs_columns, false, gpunn__maddubs_tiles,
                                                gpunn__maddubs_pack};
    return &maddubs;
#else
    return NULL;
#endif
}

GPUNN__INTERNAL bool gpunn__block_has_tiles(void)
{
    return gpunn__tiles_choose() != NULL;
}

/* Rows, groups and columns that stay in the second-level cache, and rows in the first-level one. */
enum { GPUNN__TILED_ROWS = 240, GPUNN__TILED_GROUPS = 32, GPUNN__TILED_COLUMNS = 64, GPUNN__TILED_NEAR = 24 };

GPUNN__INTERNAL int64_t gpunn__block_tiles_floats(int64_t m, int64_t k)
{
    const int64_t rows = gpunn__least(m, GPUNN__TILED_ROWS),
                  groups = gpunn__least(k / GPUNN__GROUP, GPUNN__TILED_GROUPS);
    return groups * (rows * gpunn__rounded_floats(GPUNN__GROUP) +
                     (int64_t)GPUNN__TILED_COLUMNS * GPUNN__PANEL_BYTES / (int64_t)sizeof(float));
}

/* Packs `columns` columns of B, which are `row` bytes long. The last of them fills the panel. */
static void gpunn__pack_panel(gpunn_dtype format, const gpunn__tile_kernels *kernels, const char *b,
                              size_t row, int64_t columns, int64_t group, int64_t groups, char *to)
{
    const bool shifts = kernels->unsigned8 && gpunn__block_is_bytes(format);
    for (int64_t j = 0; j < kernels->columns; j += 8) {
        const char *column[8];
        for (int64_t e = 0; e < 8; e++) column[e] = b + (size_t)(j + e < columns ? j + e : columns - 1) * row;
        kernels->pack(format, column, group, groups, shifts ? gpunn__block_bias(format) : 0, kernels->columns,
                      to + 4 * j);
    }
}

/* Rows of C of some columns and groups. Unpacks B to panels, behind rounded rows. */
static void gpunn__tile_columns(gpunn_dtype format, const gpunn__tile_kernels *kernels, gpunn__tiles t,
                                int64_t columns, const char *b, size_t row, int64_t group, char *panels)
{
    const int64_t               width = kernels->columns, rows = t.rows;
    float *const                c = t.c;
    const gpunn__rounded *const a = t.a;
    const int64_t               bytes = t.groups * GPUNN__PANEL_BYTES * width;
    for (int64_t j = 0; j < columns; j += width)
        gpunn__pack_panel(format, kernels, b + (size_t)j * row, row, columns - j, group, t.groups,
                          panels + j / width * bytes);
    for (int64_t i = 0; i < rows; i += GPUNN__TILED_NEAR)
        for (int64_t j = 0; j < columns; j += width) {
            t.rows = gpunn__least(rows - i, GPUNN__TILED_NEAR);
            t.a = a + i * t.a_row;
            t.columns = (int)gpunn__least(columns - j, width);
            t.panel = panels + j / width * bytes;
            t.c = c + i * t.c_row + j;
            kernels->tiles(format, &t);
        }
}

GPUNN__INTERNAL void gpunn__block_tiles(gpunn_dtype format, int64_t m, int64_t n, int64_t k, const float *a,
                                        int64_t a_row, const void *b, float *c, int64_t c_row, bool add,
                                        float *scratch)
{
    const gpunn__tile_kernels *kernels = gpunn__tiles_choose();
    const size_t               row = gpunn__block_bytes(format, k);
    gpunn__rounded *const      rounded = (gpunn__rounded *)(void *)scratch;
    gpunn__tiles               t;
    memset(&t, 0, sizeof t);
    t.c_row = c_row, t.a = rounded;
    for (int64_t g = 0; g < k / GPUNN__GROUP; g += GPUNN__TILED_GROUPS)
        for (int64_t i = 0; i < m; i += GPUNN__TILED_ROWS) {
            t.groups = gpunn__least(k / GPUNN__GROUP - g, GPUNN__TILED_GROUPS);
            t.rows = gpunn__least(m - i, GPUNN__TILED_ROWS);
            t.a_row = t.groups;
            t.add = add || g > 0;
            for (int64_t x = 0; x < t.rows; x++)
                gpunn__round_row(format, a + (i + x) * a_row + g * GPUNN__GROUP, t.groups * GPUNN__GROUP,
                                 rounded + x * t.a_row);
            for (int64_t j = 0; j < n; j += GPUNN__TILED_COLUMNS) {
                t.c = c + i * c_row + j;
                gpunn__tile_columns(format, kernels, t, gpunn__least(n - j, GPUNN__TILED_COLUMNS),
                                    (const char *)b + (size_t)j * row, row, g,
                                    (char *)(rounded + t.rows * t.a_row));
            }
        }
}
