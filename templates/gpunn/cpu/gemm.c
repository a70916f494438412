#include "cpu/gemm.h"
#include "graph/nodes.h"
#include "cpu/vectors.h"

#ifdef GPUNN__VECTORS
/* The four rows behind rows j .. j + 4 of B [n, k], to prefetch while dot products read those: four streams
 * are more than a processor prefetches by itself. NULL if B fits the second-level cache. size: bytes of an
 * element. */
GPUNN__INLINE const char *gpunn__dots_ahead(const void *b, size_t size, int64_t n, int64_t k, int64_t b_row,
                                            int64_t j)
{
    enum { CACHED = 1 << 18 }; /* bytes */
    if (n * k * (int64_t)size < CACHED || b_row != k || n - j < 8) return NULL;
    return (const char *)b + (size_t)((j + 4) * k) * size;
}

#define GPUNN__GEMM_KERNELS(isa, NAME, LANES, DEPTH, NEAR, ROWS)         \
    static const gpunn__gemm_kernels isa##_kernels = {                   \
        NAME,       LANES,           DEPTH,       NEAR,                  \
        ROWS,       isa##_panel,     isa##_copy,  isa##_copy_transposed, \
        isa##_dots, isa##_half_dots, isa##_widen, isa##_row};

#ifdef GPUNN__AVX512
/* Words of BF16, in vectors of the same type. A product adds both products of a word to one lane. */
typedef gpunn__v16                          gpunn__b16;
typedef gpunn__v16_memory                   gpunn__b16_memory;
typedef gpunn__v16_bits                     gpunn__b16_bits;
GPUNN__AVX512_BF16 GPUNN__INLINE gpunn__b16 gpunn__b16_set(float x)
{
    return gpunn__v16_set(x);
}
GPUNN__AVX512_BF16 GPUNN__INLINE gpunn__b16 gpunn__b16_fma(gpunn__b16 a, gpunn__b16 b, gpunn__b16 c)
{
    return (gpunn__b16)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
}
GPUNN__AVX512_BF16 GPUNN__INLINE gpunn__b16 gpunn__b16_min(gpunn__b16 a, gpunn__b16 b)
{
    return gpunn__v16_min(a, b);
}
GPUNN__AVX512_BF16 GPUNN__INLINE gpunn__b16 gpunn__b16_load(const float *p, int count)
{
    return gpunn__v16_load(p, count);
}
GPUNN__AVX512_BF16 GPUNN__INLINE void gpunn__b16_store(float *p, int count, gpunn__b16 x)
{
    gpunn__v16_store(p, count, x);
}
GPUNN__VECTOR_SUMS(b16, GPUNN__AVX512_BF16, 16)
#define GPUNN__VECTOR gpunn__b16
#define GPUNN__VECTOR_LANES 16
#define GPUNN__TARGET GPUNN__AVX512_BF16
#define GPUNN__TILE_ROWS3 8
#define GPUNN__TILE_ROWS2 8
#define GPUNN__TILE_ROWS1 8
#include "cpu/gemm_products.inc"

GPUNN__AVX512_BF16 GPUNN__INLINE gpunn__b16_bits gpunn__b16_of(const float *p)
{
    return (gpunn__b16_bits)_mm512_maskz_cvtepu16_epi32(
        0xffff, (__m256i)_mm512_cvtneps_pbh((__m512)gpunn__v16_load(p, 16)));
}
GPUNN__AVX512_BF16 GPUNN__NOINLINE void gpunn__b16_pair(const float *rows, int64_t count, int64_t width,
                                                        float *words)
{
    for (int64_t x = 0; x < count; x += 2, rows += 2 * width, words += width)
        for (int64_t y = 0; y < width; y += 16) {
            gpunn__b16_bits word = gpunn__b16_of(rows + y);
            if (x + 1 < count) word |= gpunn__b16_of(rows + width + y) << 16;
            gpunn__v16_store(words + y, 16, (gpunn__v16)word);
        }
}
GPUNN__AVX512_BF16 GPUNN__NOINLINE void gpunn__b16_line(const float *from, int64_t count, float *words)
{
    for (; count > 0; count -= 32, from += 32, words += 16) {
        const int      low = (int)gpunn__least(count, 16), high = (int)gpunn__least(count - low, 16);
        const __m512bh word = _mm512_cvtne2ps_pbh((__m512)gpunn__v16_load(from + 16, high),
                                                  (__m512)gpunn__v16_load(from, low));
        gpunn__v16_store(words, (low + high + 1) / 2, (gpunn__v16)word);
    }
}

#ifdef GPUNN__AMX
/* R tiles of A, one below the other, times V tiles of B, side by side. A tile of A is 16 rows of 16 words; a
 * tile of B is 16 rows of words by 16 columns. The sums go to sums [R * 16][48]. */
GPUNN__AMX GPUNN__INLINE void gpunn__amx_tiles(const gpunn__panel *t, const float *a, int R, int V,
                                               const float *ahead, int lines, float *sums)
{
    const int64_t a_bytes = t->a_row * (int64_t)sizeof *a, b_bytes = t->b_row * (int64_t)sizeof *a,
                  bytes = 48 * sizeof *sums;
    const float *below = a + 16 * t->a_row, *b = t->b;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t p = t->k; p > 0; p -= 16, a += 16, below += 16, b += 16 * t->b_row) {
        for (int i = 0; i < lines; i++, ahead += 16) __builtin_prefetch(ahead, 0, 2);
        _tile_loadd(7, b, b_bytes);
        _tile_loadd(6, a, a_bytes);
        _tile_dpbf16ps(0, 6, 7);
        if (R > 1) {
            _tile_loadd(6, below, a_bytes);
            _tile_dpbf16ps(3, 6, 7);
        }
        if (V > 1) {
            _tile_loadd(7, b + 16, b_bytes);
            if (R > 1) {
                _tile_dpbf16ps(4, 6, 7);
                _tile_loadd(6, a, a_bytes);
            }
            _tile_dpbf16ps(1, 6, 7);
        }
        if (V > 2) {
            _tile_loadd(7, b + 32, b_bytes);
            _tile_dpbf16ps(2, 6, 7);
            if (R > 1) {
                _tile_loadd(6, below, a_bytes);
                _tile_dpbf16ps(5, 6, 7);
            }
        }
    }
    _tile_stored(0, sums, bytes);
    if (V > 1) _tile_stored(1, sums + 16, bytes);
    if (V > 2) _tile_stored(2, sums + 32, bytes);
    if (R > 1) {
        sums += 16 * 48;
        _tile_stored(3, sums, bytes);
        if (V > 1) _tile_stored(4, sums + 16, bytes);
        if (V > 2) _tile_stored(5, sums + 32, bytes);
    }
}

/* Adds initial values and previous contents to the sums, applies relu and stores them to C, from row i on. */
GPUNN__AMX GPUNN__INLINE void gpunn__amx_finish(const gpunn__panel *t, int64_t i, int64_t rows,
                                                const float *sums)
{
    for (int64_t x = 0; x < rows; x++, sums += 48)
        for (int64_t j = 0; j < t->columns; j += 16) {
            const int  lanes = t->columns - j < 16 ? (int)(t->columns - j) : 16;
            float     *c = t->c + (i + x) * t->c_row + j;
            gpunn__v16 sum = *(const gpunn__v16_memory *)(sums + j);
            if (t->shift_row) sum += gpunn__v16_set(t->shift_row[i + x]);
            if (t->shift_col) sum += gpunn__v16_load(t->shift_col + j, lanes);
            if (t->add) sum += gpunn__v16_load(c, lanes);
            if (t->residual) sum += gpunn__v16_load(t->residual + (i + x) * t->c_row + j, lanes);
            if (t->relu) sum = gpunn__v16_relu(sum, t->most);
            gpunn__v16_store(c, lanes, sum);
        }
}

GPUNN__AMX GPUNN__NOINLINE void gpunn__amx_panel(const gpunn__panel *t)
{
    static const struct {
        uint8_t  palette, start, none[14];
        uint16_t bytes[16];
        uint8_t  rows[16];
    } shape = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    float sums[32 * 48];
    __asm__ volatile("" ::: "memory"); /* gcc does not know that loads of tiles read memory */
    _tile_loadconfig(&shape);
    const int passes = (int)((t->rows + 31) / 32),
              lines = t->ahead ? (48 + passes - 1) / passes : 0; /* of the 48 lines in one step of a panel */
    const float *ahead = t->ahead ? t->ahead : t->b;
    for (int64_t i = 0; i < t->rows; i += 32, ahead += lines * t->k) {
        gpunn__amx_tiles(t, t->a + i * t->a_row, t->rows - i > 16 ? 2 : 1, (int)((t->columns + 15) / 16),
                         ahead, lines, sums);
        gpunn__amx_finish(t, i, t->rows - i < 32 ? t->rows - i : 32, sums);
    }
    _tile_release();
}
#endif
#define GPUNN__VECTOR gpunn__v16
#define GPUNN__VECTOR_LANES 16
#define GPUNN__TARGET GPUNN__AVX512
#define GPUNN__TILE_ROWS3 8
#define GPUNN__TILE_ROWS2 8
#define GPUNN__TILE_ROWS1 8
#include "cpu/gemm_moves.inc"
#include "cpu/gemm_halves.inc"
#include "cpu/gemm_row.inc"
#include "cpu/gemm_products.inc"
GPUNN__GEMM_KERNELS(gpunn__v16, "AVX-512", 16, 768, 3072, 64)
#endif

#ifdef GPUNN__AVX2
#define GPUNN__VECTOR gpunn__v8
#define GPUNN__VECTOR_LANES 8
#define GPUNN__TARGET GPUNN__AVX2
#define GPUNN__TILE_ROWS3 4
#define GPUNN__TILE_ROWS2 4
#define GPUNN__TILE_ROWS1 8
#include "cpu/gemm_moves.inc"
#include "cpu/gemm_halves.inc"
#include "cpu/gemm_row.inc"
#include "cpu/gemm_products.inc"
GPUNN__GEMM_KERNELS(gpunn__v8, "AVX2", 8, 256, 2048, 32)
#endif

#ifdef GPUNN__BASELINE
#define GPUNN__VECTOR gpunn__v4
#define GPUNN__VECTOR_LANES 4
#define GPUNN__TARGET GPUNN__BASELINE
#if defined(__aarch64__) /* which has 32 registers */
#define GPUNN__TILE_ROWS3 6
#define GPUNN__TILE_ROWS2 8
#define GPUNN__TILE_ROWS1 8
#define GPUNN__BASELINE_NAME "NEON"
#else
#define GPUNN__TILE_ROWS3 4
#define GPUNN__TILE_ROWS2 4
#define GPUNN__TILE_ROWS1 8
#define GPUNN__BASELINE_NAME "4 lanes"
#endif
#include "cpu/gemm_moves.inc"
#include "cpu/gemm_halves.inc"
#include "cpu/gemm_row.inc"
#include "cpu/gemm_products.inc"
GPUNN__GEMM_KERNELS(gpunn__v4, GPUNN__BASELINE_NAME, 4, 256, 2048, 32)
#undef GPUNN__BASELINE_NAME
#endif

GPUNN__INTERNAL const gpunn__gemm_kernels *gpunn__gemm_choose(void)
{
#if defined(GPUNN__LEVELS)
    static const gpunn__gemm_kernels *const level[] = {NULL, &gpunn__v4_kernels, &gpunn__v8_kernels,
                                                       &gpunn__v16_kernels};
    return level[gpunn__level()];
#elif defined(GPUNN__AVX512)
    return &gpunn__v16_kernels;
#elif defined(GPUNN__AVX2)
    return &gpunn__v8_kernels;
#else
    return &gpunn__v4_kernels;
#endif
}

GPUNN__INTERNAL int gpunn__widest_vector(void)
{
    return (int)gpunn__gemm_choose()->lanes;
}
#else /* plain C: the compiler may vectorize it */

#define GPUNN__PLAIN_LANES 8
static void gpunn__plain_panel(const gpunn__panel *t)
{
    const int64_t width = (t->columns + GPUNN__PLAIN_LANES - 1) / GPUNN__PLAIN_LANES * GPUNN__PLAIN_LANES;
    for (int64_t i = 0; i < t->rows; i++) {
        float        sum[3 * GPUNN__PLAIN_LANES];
        const float *a = t->a + i * t->a_row, *b = t->b, start = t->shift_row ? t->shift_row[i] : 0;
        for (int64_t j = 0; j < width; j++)
            sum[j] = t->shift_col && j < t->columns ? start + t->shift_col[j] : start;
        for (int64_t p = 0; p < t->k; p++, a += t->a_col, b += t->b_row)
            for (int64_t j = 0; j < width; j++) sum[j] += *a * b[j];
        float *c = t->c + i * t->c_row;
        for (int64_t j = 0; j < t->columns; j++) {
            float x = t->add ? c[j] + sum[j] : sum[j];
            if (t->residual) x += t->residual[i * t->c_row + j];
            c[j] = t->relu ? gpunn__relu_to(x, t->most) : x;
        }
    }
}
static void gpunn__plain_copy(const float *b, int64_t b_row, int64_t rows, int64_t columns, int64_t width,
                              float *packed)
{
    for (; rows > 0; rows--, b += b_row, packed += width) {
        memcpy(packed, b, (size_t)columns * sizeof *b);
        for (int64_t j = columns; j < width; j++) packed[j] = 0;
    }
}
static void gpunn__plain_relayout(const float *b, int64_t b_col, int64_t rows, int64_t columns, int64_t width,
                                  float *packed)
{
    for (int64_t j = 0; j < width; j++)
        for (int64_t x = 0; x < rows; x++) packed[x * width + j] = j < columns ? b[x + j * b_col] : 0;
}
/* dtype: of B. */
GPUNN__INLINE void gpunn__plain_dots_of(const gpunn_dtype dtype, int64_t m, int64_t n, int64_t k,
                                        const float *a, int64_t a_row, const void *b, int64_t b_row, float *c,
                                        int64_t c_row, bool add)
{
    const int64_t bytes = dtype == GPUNN_F32 ? 4 : 2;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            const char *row = (const char *)b + j * b_row * bytes;
            float       sum[GPUNN__PLAIN_LANES] = {0}, y[GPUNN__PLAIN_LANES];
            int64_t     p = 0;
            for (; p + GPUNN__PLAIN_LANES <= k; p += GPUNN__PLAIN_LANES) {
                gpunn__widen_floats(dtype, row + p * bytes, GPUNN__PLAIN_LANES, y);
                for (int64_t l = 0; l < GPUNN__PLAIN_LANES; l++) sum[l] += a[i * a_row + p + l] * y[l];
            }
            for (; p < k; p++) {
                gpunn__widen_floats(dtype, row + p * bytes, 1, y);
                sum[0] += a[i * a_row + p] * y[0];
            }
            for (int64_t l = 1; l < GPUNN__PLAIN_LANES; l++) sum[0] += sum[l];
            c[i * c_row + j] = add ? c[i * c_row + j] + sum[0] : sum[0];
        }
}
static void gpunn__plain_dots(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, const float *b,
                              int64_t b_row, float *c, int64_t c_row, bool add)
{
    gpunn__plain_dots_of(GPUNN_F32, m, n, k, a, a_row, b, b_row, c, c_row, add);
}
static void gpunn__plain_half_dots(gpunn_dtype dtype, int64_t m, int64_t n, int64_t k, const float *a,
                                   int64_t a_row, const void *b, int64_t b_row, float *c, int64_t c_row,
                                   bool add)
{
    gpunn__plain_dots_of(dtype, m, n, k, a, a_row, b, b_row, c, c_row, add);
}
static void gpunn__plain_widen(gpunn_dtype dtype, const void *from, int64_t count, float *to)
{
    gpunn__widen_floats(dtype, from, count, to);
}
static void gpunn__plain_row(int64_t k, int64_t n, const float *x, const float *packed, const float *shift,
                             float *y, bool add, bool relu)
{
    enum { WIDTH = 3 * GPUNN__PLAIN_LANES };
    gpunn__panel t;
    memset(&t, 0, sizeof t);
    t.rows = t.a_col = 1, t.k = k, t.a = x, t.add = add, t.relu = relu, t.most = INFINITY;
    for (int64_t j = 0; j < n; j += WIDTH, packed += k * WIDTH) {
        t.columns = n - j < WIDTH ? n - j : (int64_t)WIDTH;
        t.b = packed, t.b_row = gpunn__round_up(t.columns, GPUNN__PLAIN_LANES);
        t.c = y + j, t.shift_col = shift ? shift + j : NULL;
        gpunn__plain_panel(&t);
    }
}
GPUNN__INTERNAL const gpunn__gemm_kernels *gpunn__gemm_choose(void)
{
    static const gpunn__gemm_kernels plain = {"plain C",
                                              GPUNN__PLAIN_LANES,
                                              256,
                                              2048,
                                              32,
                                              gpunn__plain_panel,
                                              gpunn__plain_copy,
                                              gpunn__plain_relayout,
                                              gpunn__plain_dots,
                                              gpunn__plain_half_dots,
                                              gpunn__plain_widen,
                                              gpunn__plain_row};
    return &plain;
}
/* Unknown in plain C. */
GPUNN__INTERNAL int gpunn__widest_vector(void)
{
    return 1;
}
#endif

GPUNN__INTERNAL const gpunn__word_kernels *gpunn__words(void)
{
#ifdef GPUNN__AMX
    static const gpunn__word_kernels tiles = {
        16, 256, gpunn__amx_panel, gpunn__b16_dots, gpunn__b16_pair, gpunn__b16_line};
    if (gpunn__has_bf16() == GPUNN__BF16_TILES) return &tiles;
#endif
#ifdef GPUNN__AVX512
    static const gpunn__word_kernels vectors = {
        1, 64, gpunn__b16_panel, gpunn__b16_dots, gpunn__b16_pair, gpunn__b16_line};
    return &vectors;
#else
    return NULL;
#endif
}

/* Number of parts of the sum over k. A long sum into few elements is split into fixed parts, so that threads
 * can share it. */
GPUNN__INLINE int64_t gpunn__gemm_parts(const gpunn__gemm *g)
{
    int64_t parts = g->k / 2048;
    if (g->m > 128 || g->n > 128 || parts < 2 || (g->bf16 && g->b_dtype) || gpunn__is_blocks(g->b_dtype))
        return 1;
    return parts < 16 ? parts : 16;
}

/* Address of B's element (p, j). Must not be used if B exists only in packed form. */
GPUNN__INLINE const void *gpunn__gemm_b_at(const gpunn__gemm *g, int64_t p, int64_t j)
{
    const int64_t at = p * g->b_row + j * g->b_col;
    return (const char *)g->b + gpunn__block_bytes(g->b_dtype ? g->b_dtype : GPUNN_F32, at);
}

/* Whether C has few columns, as the gradient of the weights of two features does. Then C^T = B^T A^T fills
 * the vectors and reads A in place. */
GPUNN__INLINE bool gpunn__gemm_has_few_columns(const gpunn__gemm *g)
{
    return g->b && !g->b_dtype && !g->bf16 && g->a_row == 1 && g->n <= 4 && g->m >= 16 && !g->scale_row &&
           !g->shift_row && !g->scale_col && !g->shift_col && !g->residual && !g->relu;
}

/* The transposed product, into c [n, m]. */
GPUNN__INLINE gpunn__gemm gpunn__gemm_transposed(const gpunn__gemm *g, float *c)
{
    gpunn__gemm t = *g;
    t.m = g->n, t.n = g->m;
    t.a = g->b, t.a_row = g->b_col, t.a_col = g->b_row;
    t.b = g->a, t.b_row = g->a_col, t.b_col = g->a_row;
    t.c = c, t.c_row = g->m;
    t.accumulate = false;
    return t;
}

GPUNN__INTERNAL size_t gpunn__gemm_workspace(const gpunn__gemm *g, int threads)
{
    if (gpunn__gemm_has_few_columns(g)) {
        const gpunn__gemm transposed = gpunn__gemm_transposed(g, NULL);
        return gpunn__gemm_workspace(&transposed, threads) + (size_t)(g->m * g->n) * sizeof(float);
    }
    int64_t parts = gpunn__gemm_parts(g), sums = parts > 1 ? parts * g->m * g->n : 0;
    return (size_t)(sums + threads * gpunn__gemm_scratch(g)) * sizeof(float);
}

/* Unpacks rows x .. x + rows of column y of a panel of B of blocks [pc][jc] at (p, j). The first visit of a
 * column fetches all that the panel has of the one eight columns on. */
static void gpunn__gemm_widen_blocks(const gpunn__gemm *g, int64_t p, int64_t pc, int64_t j, int64_t jc,
                                     int64_t x, int64_t y, int64_t rows, float *wide)
{
    const int64_t ahead = y + 8;
    const int     bytes = (int)gpunn__block_bytes(g->b_dtype, pc);
    if (x == 0 && ahead < jc) (void)gpunn__prefetch((const char *)gpunn__gemm_b_at(g, p, j + ahead), bytes);
    gpunn__block_widen(g->b_dtype, gpunn__gemm_b_at(g, 0, j + y), p + x, wide, rows);
}

/* Packs columns of a panel of B of 16 bits or blocks, widening some rows at a time. */
static void gpunn__gemm_pack_narrow(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels, int64_t p,
                                    int64_t pc, int64_t j, int64_t jc, float *packed)
{
    enum { ROWS = 64, COLUMNS = 48 };
    float         wide[COLUMNS * ROWS];
    const int64_t width = gpunn__round_up(jc, kernels->lanes);
    for (int64_t x = 0; x < pc; x += ROWS) {
        const int64_t rows = pc - x < ROWS ? pc - x : (int64_t)ROWS;
        for (int64_t y = 0; y < jc; y++)
            if (gpunn__is_blocks(g->b_dtype))
                gpunn__gemm_widen_blocks(g, p, pc, j, jc, x, y, rows, wide + y * ROWS);
            else
                kernels->widen(g->b_dtype, gpunn__gemm_b_at(g, p + x, j + y), rows, wide + y * ROWS);
        kernels->copy_transposed(wide, ROWS, rows, jc, width, packed + x * width);
    }
}

/* Dot products with columns of B of 16 bits or blocks. BF16 words are used as they are. */
GPUNN__INLINE bool gpunn__gemm_b_is_words(const gpunn__gemm *g)
{
    return g->bf16 && g->b_dtype == GPUNN_BF16 && g->b_row == 1 && g->b_col % 2 == 0 && g->k % 2 == 0;
}
static void gpunn__gemm_narrow_dots(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels, int64_t i0,
                                    int64_t i1, int64_t j0, int64_t j1, float *a_words)
{
    const int64_t     m = i1 - i0, n = j1 - j0, words = g->k / 2;
    const float      *a = g->a + i0 * g->a_row;
    const void *const b = gpunn__gemm_b_at(g, 0, j0);
    float *const      c = g->c + i0 * g->c_row + j0;
    if (gpunn__is_blocks(g->b_dtype)) {
        gpunn__block_dots(g->b_dtype, m, n, g->k, a, g->a_row, b, c, g->c_row, g->accumulate,
                          (gpunn__rounded *)a_words);
        return;
    }
    if (!gpunn__gemm_b_is_words(g) || m > GPUNN__NARROW_ROWS) {
        kernels->half_dots(g->b_dtype, m, n, g->k, a, g->a_row, b, g->b_col, c, g->c_row, g->accumulate);
        return;
    }
    for (int64_t i = 0; i < m; i++) gpunn__words()->line(a + i * g->a_row, g->k, a_words + i * words);
    gpunn__words()->dots(m, n, words, a_words, words, (const float *)b, g->b_col / 2, c, g->c_row,
                         g->accumulate);
}

/* Packs a panel of B as floats. scale: one factor per column; NULL: 1. */
static void gpunn__gemm_pack_floats(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels, int64_t p,
                                    int64_t pc, int64_t j, int64_t jc, const float *scale, float *packed)
{
    const int64_t width = gpunn__round_up(jc, kernels->lanes);
    const float  *b = g->pack_b ? NULL : (const float *)gpunn__gemm_b_at(g, p, j);
    if (g->pack_b)
        g->pack_b(g->pack_user, p, pc, j, jc, width, packed);
    else if (g->b_dtype)
        gpunn__gemm_pack_narrow(g, kernels, p, pc, j, jc, packed);
    else if (g->b_col == 1)
        kernels->copy(b, g->b_row, pc, jc, width, packed);
    else if (g->b_row == 1)
        kernels->copy_transposed(b, g->b_col, pc, jc, width, packed);
    else
        for (int64_t x = 0; x < pc; x++)
            for (int64_t y = 0; y < width; y++)
                packed[x * width + y] = y < jc ? b[x * g->b_row + y * g->b_col] : 0;
    for (int64_t x = 0; scale && x < pc; x++)
        for (int64_t y = 0; y < jc; y++) packed[x * width + y] *= scale[y];
}

/* Packs a panel of B, and copies a chunk of A, as words; some rows of floats at a time. */
enum { GPUNN__PAIRED = 64, GPUNN__PAIRS = GPUNN__PAIRED / 2, GPUNN__WIDEST = 64 };
GPUNN__NOINLINE void gpunn__gemm_pack_words(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels,
                                            int64_t p, int64_t pc, int64_t j, int64_t jc, const float *scale,
                                            float *packed)
{
    float         wide[GPUNN__PAIRED * GPUNN__WIDEST];
    const int64_t width = gpunn__round_up(jc, kernels->lanes), words = (pc + 1) / 2;
    memset(packed + words * width, 0, (size_t)((gpunn__gemm_steps(g, pc) - words) * width) * sizeof *packed);
    if (gpunn__gemm_b_is_words(g) && !scale) {
        kernels->copy_transposed((const float *)gpunn__gemm_b_at(g, p, j), g->b_col / 2, pc / 2, jc, width,
                                 packed);
        return;
    }
    for (int64_t x = 0; x < pc; x += GPUNN__PAIRED) {
        const int64_t rows = pc - x < GPUNN__PAIRED ? pc - x : (int64_t)GPUNN__PAIRED;
        gpunn__gemm_pack_floats(g, kernels, p + x, rows, j, jc, scale, wide);
        gpunn__words()->pair(wide, rows, width, packed + x / 2 * width);
    }
}

/* Converts at most GPUNN__WIDEST columns of the chunk's A^T to words: [pair][row], or [row][pair] for
 * tiles. */
static void gpunn__gemm_copy_columns(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels, const float *a,
                                     int64_t k, int64_t rows, const gpunn__panel *t, float *to)
{
    float wide[GPUNN__PAIRED * GPUNN__WIDEST], words[GPUNN__PAIRS * GPUNN__WIDEST];
    for (int64_t x = 0; x < k; x += GPUNN__PAIRED) {
        const int64_t count = k - x < GPUNN__PAIRED ? k - x : (int64_t)GPUNN__PAIRED;
        kernels->copy(a + x * g->a_col, g->a_col, count, rows, GPUNN__WIDEST, wide);
        if (t->a_col != 1) {
            gpunn__words()->pair(wide, count, GPUNN__WIDEST, to + x / 2 * GPUNN__WIDEST);
            continue;
        }
        gpunn__words()->pair(wide, count, GPUNN__WIDEST, words);
        kernels->copy_transposed(words, GPUNN__WIDEST, rows, (count + 1) / 2, GPUNN__PAIRS, wide);
        const int64_t pairs = t->k - x / 2 < GPUNN__PAIRS ? t->k - x / 2 : (int64_t)GPUNN__PAIRS;
        for (int64_t i = 0; i < rows; i++)
            memcpy(to + i * t->a_row + x / 2, wide + i * GPUNN__PAIRS, (size_t)pairs * sizeof *to);
    }
}
GPUNN__NOINLINE void gpunn__gemm_copy_words(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels,
                                            const float *a, int64_t k, gpunn__panel *t, float *to)
{
    const bool    lines = g->a_col == 1 || gpunn__words()->tile > 1;
    const int64_t words = (k + 1) / 2;
    t->a = to;
    t->a_row = lines ? t->k : 1;
    t->a_col = lines ? 1 : (int64_t)GPUNN__WIDEST;
    for (int64_t i = 0; g->a_col != 1 && i < t->rows; i += GPUNN__WIDEST)
        gpunn__gemm_copy_columns(g, kernels, a + i * g->a_row, k,
                                 t->rows - i < GPUNN__WIDEST ? t->rows - i : (int64_t)GPUNN__WIDEST, t,
                                 to + i * t->a_row);
    for (int64_t i = 0; g->a_col == 1 && i < t->rows; i++, to += t->k) {
        gpunn__words()->line(a + i * g->a_row, k, to);
        memset(to + words, 0, (size_t)(t->k - words) * sizeof *to);
    }
}

static void gpunn__gemm_pack_panel(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels, int64_t p,
                                   int64_t pc, int64_t j, int64_t jc, const float *scale, float *packed)
{
    if (g->bf16)
        gpunn__gemm_pack_words(g, kernels, p, pc, j, jc, scale, packed);
    else
        gpunn__gemm_pack_floats(g, kernels, p, pc, j, jc, scale, packed);
}

GPUNN__INTERNAL void gpunn__gemm_pack_b(const gpunn__gemm *g, float *packed)
{
    const gpunn__gemm_kernels *kernels = gpunn__gemm_choose();
    const int64_t lanes = kernels->lanes, width = 3 * lanes, padded = gpunn__round_up(g->n, lanes);
    const int64_t depth = g->bf16 ? 2 * kernels->depth : kernels->depth;
    for (int64_t p = 0; p < g->k; p += depth) {
        const int64_t pc = g->k - p < depth ? g->k - p : depth, steps = gpunn__gemm_steps(g, pc);
        for (int64_t j = 0; j < g->n; j += width)
            gpunn__gemm_pack_panel(g, kernels, p, pc, j, g->n - j < width ? g->n - j : width,
                                   g->scale_col ? g->scale_col + j : NULL,
                                   packed + gpunn__gemm_steps(g, p) * padded + steps * j);
    }
}

/* Applies the part of the epilogue that the kernels have not applied, to rows i0 .. i1 and columns j0 ..
 * j1. */
GPUNN__VECTORIZED(gpunn__gemm_finish, (const gpunn__gemm *g, int64_t i0, int64_t i1, int64_t j0, int64_t j1),
                  (g, i0, i1, j0, j1))
{
    const float most = gpunn__gemm_most(g);
    for (int64_t i = i0; i < i1; i++) {
        float *GPUNN__RESTRICT c = g->c + i * g->c_row;
        const float scale = g->scale_row ? g->scale_row[i] : 1, shift = g->shift_row ? g->shift_row[i] : 0;
        if (g->scale_row || g->shift_row)
            for (int64_t j = j0; j < j1; j++) c[j] = c[j] * scale + shift;
        if (g->scale_col)
            for (int64_t j = j0; j < j1; j++) c[j] *= g->scale_col[j];
        if (g->shift_col)
            for (int64_t j = j0; j < j1; j++) c[j] += g->shift_col[j];
        if (g->residual)
            for (int64_t j = j0; j < j1; j++) c[j] += g->residual[i * g->c_row + j];
        if (g->relu)
            for (int64_t j = j0; j < j1; j++) c[j] = gpunn__relu_to(c[j], most);
    }
}

/* The kinds of gpunn__gemm_block. Tasks for several sets of vectors call them and do not copy them. */
GPUNN__NOINLINE void gpunn__gemm_by_dots(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels, int64_t i0,
                                         int64_t i1, int64_t j0, int64_t j1, float *packed)
{
    if (g->b_dtype)
        gpunn__gemm_narrow_dots(g, kernels, i0, i1, j0, j1, packed);
    else
        kernels->dots(i1 - i0, j1 - j0, g->k, g->a + i0 * g->a_row, g->a_row, g->b + j0 * g->b_col, g->b_col,
                      g->c + i0 * g->c_row + j0, g->c_row, g->accumulate);
    gpunn__gemm_finish(g, i0, i1, j0, j1);
}
GPUNN__NOINLINE void gpunn__gemm_by_tiles(const gpunn__gemm *g, int64_t i0, int64_t i1, int64_t j0,
                                          int64_t j1, float *packed)
{
    gpunn__block_tiles(g->b_dtype, i1 - i0, j1 - j0, g->k, g->a + i0 * g->a_row, g->a_row,
                       gpunn__gemm_b_at(g, 0, j0), g->c + i0 * g->c_row + j0, g->c_row, g->accumulate,
                       packed);
    gpunn__gemm_finish(g, i0, i1, j0, j1);
}
GPUNN__NOINLINE void gpunn__gemm_by_panels(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels,
                                           int64_t i0, int64_t i1, int64_t j0, int64_t j1, float *packed)
{
    const int64_t lanes = kernels->lanes, width = 3 * lanes, padded = gpunn__round_up(g->n, lanes);
    const int64_t group = g->packed_b ? j1 - j0 : (g->panels ? g->panels : 1) * width;
    const int64_t depth = gpunn__gemm_depth(g);
    const bool    late = g->scale_row || g->scale_col; /* the epilogue runs after the sums */
    gpunn__panel  t;
    t.c_row = g->c_row, t.most = gpunn__gemm_most(g);
    for (int64_t p = 0; p < g->k; p += depth) {
        const bool    first = p == 0, last = g->k - p <= depth;
        const int64_t k = last ? g->k - p : depth;
        t.k = gpunn__gemm_steps(g, k);
        t.add = g->accumulate || !first;
        t.relu = g->relu && last && !late;
        /* B is read in place if few rows of A stream past, or if the block fits the first-level cache as it
         * is. */
        const bool in_place = !g->packed_b && g->b && g->b_col == 1 && !g->b_dtype && !g->bf16 &&
                              (i1 - i0 <= 16 || t.k * g->b_row <= 6144);
        for (int64_t left = j0; left < j1; left += group) {
            const int64_t right = j1 - left < group ? j1 : left + group;
            const int64_t chunk = right - left > width || g->bf16 ? gpunn__gemm_rows(g) : i1 - i0;
            const bool    copy_a = g->panels > 1 && chunk == kernels->rows && gpunn__gemm_copies(g);
            for (int64_t i = i0; i < i1; i += chunk) {
                t.rows = i1 - i < chunk ? i1 - i : chunk;
                t.a = g->a + i * g->a_row + p * g->a_col;
                t.a_row = g->a_row;
                t.a_col = g->a_col;
                if (g->bf16) {
                    gpunn__gemm_copy_words(g, kernels, t.a, k, &t,
                                           packed + (g->packed_b ? 0 : g->panels) * width * t.k);
                } else if (copy_a) {
                    kernels->copy(t.a, g->a_col, t.k, t.rows, kernels->rows,
                                  packed + g->panels * width * t.k);
                    t.a = packed + g->panels * width * t.k;
                    t.a_col = kernels->rows;
                }
                t.shift_row = first && !late && g->shift_row ? g->shift_row + i : NULL;
                for (int64_t j = left; j < right; j += width) {
                    t.columns = right - j < width ? right - j : width;
                    t.b_row = gpunn__round_up(t.columns, lanes);
                    t.c = g->c + i * g->c_row + j;
                    t.residual = last && !late && g->residual ? g->residual + i * g->c_row + j : NULL;
                    t.shift_col = first && !late && g->shift_col ? g->shift_col + j : NULL;
                    t.ahead = NULL;
                    if (g->packed_b) {
                        const float  *panels = g->packed_b + gpunn__gemm_steps(g, p) * padded;
                        const int64_t next = j + width < right ? j + width : left;
                        t.b = panels + t.k * j;
                        if (next > j || (next < j && i + chunk < i1)) t.ahead = panels + t.k * next;
                    } else if (in_place && t.columns == t.b_row) {
                        t.b = g->b + p * g->b_row + j;
                        t.b_row = g->b_row;
                    } else {
                        t.b = packed + (j - left) * t.k;
                        if (i == i0)
                            gpunn__gemm_pack_panel(g, kernels, p, k, j, t.columns, NULL,
                                                   packed + (j - left) * t.k);
                    }
                    if (g->bf16)
                        gpunn__words()->panel(&t);
                    else
                        kernels->panel(&t);
                }
            }
        }
    }
    if (late) gpunn__gemm_finish(g, i0, i1, j0, j1);
}

GPUNN__INTERNAL void gpunn__gemm_block(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels, int64_t i0,
                                       int64_t i1, int64_t j0, int64_t j1, float *packed)
{
    if (gpunn__gemm_is_tiles(g))
        gpunn__gemm_by_tiles(g, i0, i1, j0, j1, packed);
    else if (gpunn__gemm_is_dots(g))
        gpunn__gemm_by_dots(g, kernels, i0, i1, j0, j1, packed);
    else if (gpunn__gemm_is_row(g, kernels))
        gpunn__gemm_row(g, kernels, j0, j1, g->c);
    else
        gpunn__gemm_by_panels(g, kernels, i0, i1, j0, j1, packed);
}

typedef struct gpunn__gemm_job {
    const gpunn__gemm         *g;
    const gpunn__gemm_kernels *kernels;
    int64_t                    parts;
    float                     *scratch, *sums; /* packed panels per thread; sums of the parts [parts][m][n] */
} gpunn__gemm_job;

GPUNN__INTERNAL gpunn__gemm_share gpunn__gemm_part(int64_t m, int64_t n, int64_t grain, int threads,
                                                   int index)
{
    const int64_t     lanes = gpunn__gemm_choose()->lanes, vectors = (n + lanes - 1) / lanes;
    int64_t           best = INT64_MAX;
    gpunn__gemm_share own = {0, 0, 0, 0, 1};
    for (int d = 1; d <= threads; d++) {
        if (threads % d) continue;
        int64_t columns = ((n + grain - 1) / grain + d - 1) / d * (grain / lanes),
                rows = ((m + 7) / 8 + threads / d - 1) / (threads / d);
        if (columns > vectors) columns = vectors;
        if (columns * (rows + 1) <= best) { /* packing a panel of B costs about as much as 8 rows of work */
            best = columns * (rows + 1);
            own.across = d;
        }
    }
    gpunn__cpu_part(m, 8, threads / own.across, index / own.across, &own.i0, &own.i1);
    gpunn__cpu_part(n, grain, own.across, index % own.across, &own.j0, &own.j1);
    return own;
}

static void gpunn__gemm_task(void *arg, int index, int threads)
{
    const gpunn__gemm_job *job = (const gpunn__gemm_job *)arg;
    const gpunn__gemm     *g = job->g;
    const int64_t          lanes = job->kernels->lanes;
    float                 *packed = job->scratch + index * gpunn__gemm_scratch(g);
    if (job->parts > 1) {
        int64_t begin, end;
        gpunn__cpu_part(job->parts, 1, threads, index, &begin, &end);
        for (int64_t part = begin; part < end; part++) {
            int64_t     p = g->k * part / job->parts;
            gpunn__gemm own = *g;
            own.k = g->k * (part + 1) / job->parts - p;
            if (g->b) own.b = (const float *)gpunn__gemm_b_at(g, p, 0);
            own.a = g->a + p * g->a_col;
            own.c = job->sums + part * g->m * g->n;
            own.c_row = g->n;
            own.accumulate = own.relu = false;
            own.scale_row = own.shift_row = own.scale_col = own.shift_col = own.residual = NULL;
            gpunn__gemm_block(&own, job->kernels, 0, g->m, 0, g->n, packed);
        }
        return;
    }
    const int64_t           grain = g->packed_b ? 3 * lanes : lanes;
    const gpunn__gemm_share own = gpunn__gemm_part(g->m, g->n, grain, threads, index);
    if (own.i0 < own.i1 && own.j0 < own.j1)
        gpunn__gemm_block(g, job->kernels, own.i0, own.i1, own.j0, own.j1, packed);
}

#ifdef GPUNN_CBLAS
/* Large products of plain matrices go to CBLAS, which has its own threads. Returns false if this product does
 * not qualify. */
static bool gpunn__gemm_cblas(const gpunn__gemm *g)
{
    if (gpunn__task_threads > 1) return false;
    const bool    ta = g->a_col != 1, tb = g->b_col != 1;
    const int64_t lda = ta ? g->a_col : g->a_row, ldb = tb ? g->b_col : g->b_row, limit = INT32_MAX;
    if (!g->b || g->b_dtype || g->bf16 || (ta && g->a_row != 1) || (tb && g->b_row != 1)) return false;
    if (lda < (ta ? g->m : g->k) || ldb < (tb ? g->k : g->n)) return false;
    if (g->m < 16 || g->n < 16 || g->k < 16 || g->m * g->n / 64 * g->k < 32768) return false;
    if (g->m > limit || g->n > limit || g->k > limit || lda > limit || ldb > limit || g->c_row > limit)
        return false;
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (int)g->m,
                (int)g->n, (int)g->k, 1, g->a, (int)lda, g->b, (int)ldb, g->accumulate ? 1.0f : 0.0f, g->c,
                (int)g->c_row);
    gpunn__gemm_finish(g, 0, g->m, 0, g->n);
    return true;
}
#endif

GPUNN__INTERNAL void gpunn__gemm_run(gpunn__gemm *g, int threads, void *workspace)
{
#ifdef GPUNN_CBLAS
    if (gpunn__gemm_cblas(g)) return;
#endif
    if (gpunn__gemm_has_few_columns(g)) {
        float *const c = (float *)workspace;
        gpunn__gemm  transposed = gpunn__gemm_transposed(g, c);
        gpunn__gemm_run(&transposed, threads, c + g->m * g->n);
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++)
                g->c[i * g->c_row + j] = c[j * g->m + i] + (g->accumulate ? g->c[i * g->c_row + j] : 0);
        return;
    }
    gpunn__gemm_job job;
    g->panels = gpunn__gemm_panels(g);
    job.g = g;
    job.kernels = gpunn__gemm_choose();
    job.parts = g->b ? gpunn__gemm_parts(g) : 1;
    job.sums = (float *)workspace;
    job.scratch = job.sums + (job.parts > 1 ? job.parts * g->m * g->n : 0);
    if (job.parts == 1 && threads == 1) {
        gpunn__gemm_block(g, job.kernels, 0, g->m, 0, g->n, job.scratch);
        return;
    }
    gpunn_parallel(threads, gpunn__gemm_task, &job);
    if (job.parts == 1) return;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            float sum = g->accumulate ? g->c[i * g->c_row + j] : 0;
            for (int64_t part = 0; part < job.parts; part++) sum += job.sums[(part * g->m + i) * g->n + j];
            g->c[i * g->c_row + j] = sum;
        }
    gpunn__gemm_finish(g, 0, g->m, 0, g->n);
}
#undef GPUNN__GEMM_KERNELS

GPUNN__INTERNAL const char *gpunn__gemm_name(void)
{
#ifdef GPUNN__AVX512
    const gpunn__bf16 has = gpunn__bf16_find(false);
    if (has != GPUNN__BF16_NONE) return has == GPUNN__BF16_TILES ? "AMX BF16" : "AVX-512 BF16";
#endif
    return gpunn__gemm_choose()->name;
}

GPUNN__INTERNAL void gpunn__fold_norm(const gpunn_step *step, const float *bias, int64_t channels,
                                      float *scale, float *shift)
{
    const float *weight = (const float *)step->fused->scale.data,
                *offset = (const float *)step->fused->shift.data;
    const float *mean = (const float *)step->fused->mean.data,
                *variance = (const float *)step->fused->variance.data;
    for (int64_t i = 0; i < channels; i++) {
        scale[i] = (weight ? weight[i] : 1) / sqrtf(variance[i] + step->fused->eps);
        shift[i] = (offset ? offset[i] : 0) + ((bias ? bias[i] : 0) - mean[i]) * scale[i];
    }
}

/* Whether to compute a product in BF16. The model must have that precision and the processor BF16
 * instructions. The product must be worth the rounding: B is already rounded, or there are many rows. */
GPUNN__INLINE bool gpunn__gemm_rounds(const gpunn__gemm *g, const gpunn_step *step, bool packed)
{
    if (step->precision != GPUNN_PRECISION_BF16 || gpunn__has_bf16() == GPUNN__BF16_NONE) return false;
    return g->b_dtype == GPUNN_BF16 || ((packed || g->m >= 32) && g->n >= 16 && g->k >= 32);
}

static GPUNN__STATUS gpunn__cpu_activate(gpunn__cpu *cpu, gpunn_op op, gpunn_value *x, const gpunn_value *y,
                                         gpunn_value *gradient)
{
    const gpunn_attributes none = gpunn__no_attributes();
    bool                   accumulate = false;
    gpunn_step             step = gpunn__activation_step(op, x, y, gradient, &none, &accumulate);
    return (op == GPUNN_OP_RELU ? gpunn__cpu_relu : gpunn__cpu_gelu_tanh)(
        cpu, &step, step.backward ? GPUNN__BACKWARD : GPUNN__FORWARD);
}

/* Widens `count` numbers of a weight of 16 bits or blocks from number `at` on. Blocks are unpacked in whole
 * groups. count is at most GPUNN__WIDEST. */
static void gpunn__widen_part(const gpunn_value *weight, int64_t at, int64_t count, float *to)
{
    float         wide[GPUNN__WIDEST + 2 * GPUNN__GROUP];
    const int64_t within = at % GPUNN__GROUP;
    if (!gpunn__is_blocks(weight->dtype)) {
        gpunn__gemm_choose()->widen(weight->dtype, (const char *)weight->data + at * 2, count, to);
        return;
    }
    gpunn__block_widen(weight->dtype, weight->data, at - within, wide,
                       gpunn__round_up(within + count, GPUNN__GROUP));
    memcpy(to, wide + within, (size_t)count * sizeof *to);
}

/* Rows p .. p + pc and columns j .. j + jc of a weight of 16 bits or blocks, widened for a product that needs
 * it row by row (pack_b of gpunn__gemm). */
static void gpunn__pack_narrow_rows(const void *user, int64_t p, int64_t pc, int64_t j, int64_t jc,
                                    int64_t width, float *packed)
{
    const gpunn_value *weight = (const gpunn_value *)user;
    for (int64_t x = 0; x < pc; x++, packed += width) {
        gpunn__widen_part(weight, (p + x) * weight->dim[1] + j, jc, packed);
        for (int64_t y = jc; y < width; y++) packed[y] = 0;
    }
}

/* dX = dY W, dW = dY^T X, dbias = 1^T dY, for rows x [rows, in]. */
static GPUNN__STATUS gpunn__linear_backward(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    static const float one = 1;
    const int64_t      in = step->in[1].dim[1], out = step->in[1].dim[0], rows = step->in[0].count / in;
    const void *const x = step->in[0].data, *const weight = step->in[1].data, *const dy = step->grad_out.data;
    gpunn__gemm g[3];
    g[0] = gpunn__gemm_make(rows, in, out, dy, false, weight, false, step->grad_in[0].data,
                            step->accumulate[0]);
    if (step->in[1].dtype != GPUNN_F32) {
        g[0].b = NULL;
        g[0].pack_b = gpunn__pack_narrow_rows;
        g[0].pack_user = &step->in[1];
    }
    g[1] = gpunn__gemm_make(out, in, rows, dy, true, x, false, step->grad_in[1].data, step->accumulate[1]);
    g[2] = gpunn__gemm_make(1, out, rows, &one, false, dy, false, step->grad_in[2].data, step->accumulate[2]);
    g[2].a_col = 0;
    step->workspace_bytes = 0;
    for (int i = 0; i < 3; i++) {
        if (!g[i].c) continue;
        g[i].bf16 = i < 2 && gpunn__gemm_rounds(&g[i], step, false);
        const int threads = gpunn__gemm_threads(cpu, &g[i]);
        if (action == GPUNN__BACKWARD)
            gpunn__gemm_run(&g[i], threads, step->workspace);
        else if (gpunn__gemm_workspace(&g[i], threads) > step->workspace_bytes)
            step->workspace_bytes = gpunn__gemm_workspace(&g[i], threads);
    }
    gpunn_value *before = step->fused->activated == GPUNN_OP_RELU ? &step->in[0] : &step->fused->before;
    if (action == GPUNN__BACKWARD && step->fused->activated)
        return gpunn__cpu_activate(cpu, step->fused->activated, before, &step->in[0], &step->grad_in[0]);
    return GPUNN_OK;
}

/* Layers of at most so many weights keep a packed copy for one row too. Larger ones take the time of reading
 * their weights anyway. */
enum { GPUNN__SMALL_LAYER = 1 << 14 };

GPUNN__INTERNAL bool gpunn__fits_row(const gpunn_step *step)
{
    const gpunn_value      *weight = &step->in[1];
    const gpunn_step_fused *fused = step->fused;
    return !step->backward && !step->training && weight->dtype == GPUNN_F32 && weight->dim[0] >= 8 &&
           weight->count <= GPUNN__SMALL_LAYER &&
           weight->count <= weight->dim[0] * gpunn__gemm_choose()->depth && !fused->norm &&
           !fused->gelu_tanh && !fused->residual.data;
}

GPUNN__INTERNAL void gpunn__prepare_row(gpunn_step *step, int64_t workspace)
{
    const int64_t out = step->in[1].dim[0];
    step->workspace_bytes = (size_t)workspace * sizeof(float);
    step->cache_bytes = gpunn__gemm_packed_b_bytes(step->in[1].count / out, out);
}

GPUNN__INTERNAL void gpunn__run_row(gpunn_step *step, const float *x)
{
    const int64_t out = step->in[1].dim[0], in = step->in[1].count / out;
    float *const  packed = (float *)step->cache;
    if (step->cache_version != step->state->weights_version) {
        const gpunn__gemm g = gpunn__gemm_make(1, out, in, NULL, false, step->in[1].data, true, NULL, false);
        gpunn__gemm_pack_b(&g, packed);
        step->cache_version = step->state->weights_version;
    }
    gpunn__gemm_choose()->row(in, out, x, packed, (const float *)step->in[2].data, (float *)step->out.data,
                              false, step->fused->relu);
}

static GPUNN__STATUS gpunn__linear_row(gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE)
        gpunn__prepare_row(step, 0);
    else
        gpunn__run_row(step, (const float *)step->in[0].data);
    return GPUNN_OK;
}

/* y = x W^T + bias. Evaluation plans keep W packed, scaled by a fused batch norm if there is one: cache =
 * shift [out], packed W. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_linear(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (step->backward) return gpunn__linear_backward(cpu, step, action);
    if (step->in[0].count == step->in[1].dim[1] && gpunn__fits_row(step))
        return gpunn__linear_row(step, action);
    const int64_t in = step->in[1].dim[1], out = step->in[1].dim[0], rows = step->in[0].count / in;
    void *const x = step->in[0].data, *const weight = step->in[1].data, *const workspace = step->workspace;
    const size_t       head = ((size_t)out * sizeof(float) + GPUNN__ALIGN - 1) / GPUNN__ALIGN * GPUNN__ALIGN;
    gpunn_value *const y = step->fused->before.data ? &step->fused->before : &step->out;
    gpunn__gemm        g = gpunn__gemm_make(rows, out, in, x, false, weight, true, y->data, false);
    g.b_dtype = step->in[1].dtype == GPUNN_F32 ? GPUNN_DTYPE_DEFAULT : step->in[1].dtype;
    /* Packed weights are worth their memory where packing takes a notable share of the time. With one row,
     * memory bandwidth hides its cost; with many rows its share vanishes. Blocks are not kept as floats. */
    const bool keeps = !step->training && !step->inference && rows > 1 && rows <= 2048 && out >= 8 &&
                       !gpunn__is_blocks(g.b_dtype);
    g.rounds_a = step->inference;
    g.bf16 = gpunn__gemm_rounds(&g, step, keeps);
    const int threads = gpunn__gemm_threads(cpu, &g);
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = 2 * head + gpunn__gemm_workspace(&g, threads);
        if (keeps) step->cache_bytes = head + gpunn__gemm_packed_b_bytes(gpunn__gemm_steps(&g, in), out);
        return GPUNN_OK;
    }
    const float *bias = (const float *)step->in[2].data;
    float       *scale = (float *)workspace, *shift = (float *)((char *)workspace + head);
    float       *packed = step->cache ? (float *)((char *)step->cache + head) : NULL;
    const bool   stale = !packed || step->cache_version != step->state->weights_version;
    g.shift_col = bias;
    if (step->fused->norm) {
        if (packed) shift = (float *)step->cache;
        if (stale) gpunn__fold_norm(step, bias, out, scale, shift);
        g.scale_col = scale;
        g.shift_col = shift;
    }
    if (packed) {
        if (stale) gpunn__gemm_pack_b(&g, packed);
        step->cache_version = step->state->weights_version;
        g.packed_b = packed;
        g.b = NULL;
        g.scale_col = NULL;
    }
    g.residual = (const float *)step->fused->residual.data;
    g.relu = step->fused->relu;
    gpunn__gemm_run(&g, threads, (char *)workspace + 2 * head);
    return step->fused->gelu_tanh ? gpunn__cpu_activate(cpu, GPUNN_OP_GELU_TANH, y, &step->out, NULL)
                                  : GPUNN_OK;
}

/* Many products. For every index of the kept axes, C is the sum over the summed axes (along which c has
 * stride 0) of A B. */
typedef struct gpunn__products {
    gpunn__gemm g;
    gpunn__walk kept, summed; /* with strides of a, b and c */
    int64_t     kept_count, sum_count;
    char       *workspace;
    size_t      workspace_each;
} gpunn__products;

/* Computes one C, summed over the summed axes. */
static void gpunn__products_one(const gpunn__products *all, int64_t index, int threads, void *workspace)
{
    gpunn__gemm g = all->g;
    g.a += gpunn__offset(index, all->kept.rank, all->kept.dim, all->kept.stride[0]);
    g.b += gpunn__offset(index, all->kept.rank, all->kept.dim, all->kept.stride[1]);
    g.c += gpunn__offset(index, all->kept.rank, all->kept.dim, all->kept.stride[2]);
    const float *a = g.a, *b = g.b;
    for (int64_t s = 0; s < all->sum_count; s++) {
        g.a = a + gpunn__offset(s, all->summed.rank, all->summed.dim, all->summed.stride[0]);
        g.b = b + gpunn__offset(s, all->summed.rank, all->summed.dim, all->summed.stride[1]);
        gpunn__gemm_run(&g, threads, workspace);
        g.accumulate = true;
    }
}

static void gpunn__products_task(void *arg, int index, int threads)
{
    const gpunn__products *all = (const gpunn__products *)arg;
    int64_t                begin, end;
    gpunn__cpu_part(all->kept_count, 1, threads, index, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        gpunn__products_one(all, i, 1, all->workspace + (size_t)index * all->workspace_each);
}

/* Finds the batch axes of C = A B among the leading axes of shape. */
static void gpunn__products_axes(gpunn__products *all, const gpunn_value *shape, const gpunn_value *a,
                                 const gpunn_value *b, const gpunn_value *c)
{
    const gpunn_value *const value[3] = {a, b, c};
    gpunn__axes_of(shape, 2, value, 3, &all->kept, &all->summed);
    all->kept_count = gpunn__axes_count(&all->kept);
    all->sum_count = gpunn__axes_count(&all->summed);
}

/* If there is at least one product per thread, each thread computes its own; otherwise all threads share each
 * product. PREPARE only raises workspace_bytes to what this call needs. */
static void gpunn__products_run(gpunn__cpu *cpu, gpunn_step *step, gpunn__products *all, gpunn__action action)
{
    const int64_t total = all->kept_count * all->sum_count;
    const int     threads = gpunn__cpu_threads_for(cpu, (double)all->g.m * (double)all->g.n / 8 *
                                                            (double)all->g.k * (double)total);
    all->workspace = (char *)step->workspace;
    all->g.bf16 = gpunn__gemm_rounds(&all->g, step, false);
    all->workspace_each = gpunn__gemm_workspace(&all->g, 1);
    if (action == GPUNN__PREPARE) {
        const size_t bytes = (size_t)threads * all->workspace_each;
        if (step->workspace_bytes < bytes) step->workspace_bytes = bytes;
    } else if (all->kept_count >= threads) {
        gpunn_parallel(threads, gpunn__products_task, all);
    } else {
        for (int64_t i = 0; i < all->kept_count; i++) gpunn__products_one(all, i, threads, all->workspace);
    }
}

/* C = op(A) op(B). dA = dC op(B)^T and dB = op(A)^T dC, or their transposes if the operand is stored
 * transposed. Gradients are summed over the axes along which the operand was broadcast. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_matmul(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const bool      ta = step->attr->transpose_a, tb = step->attr->transpose_b;
    gpunn_value     a, b, c;
    int64_t         m, n, k;
    gpunn__products all;
    gpunn__matmul_sizes(step, &a, &b, &c, &m, &n, &k);
    if (action == GPUNN__PREPARE) step->workspace_bytes = 0;
    if (!step->backward) {
        gpunn__products_axes(&all, &c, &a, &b, &c);
        all.g = gpunn__gemm_make(m, n, k, a.data, ta, b.data, tb, c.data, false);
        gpunn__products_run(cpu, step, &all, action);
        return GPUNN_OK;
    }
    if (step->grad_in[0].data) {
        void *const da = step->grad_in[0].data;
        gpunn__products_axes(&all, &c, ta ? &b : &c, ta ? &c : &b, &a);
        if (ta)
            all.g = gpunn__gemm_make(k, m, n, b.data, tb, c.data, true, da, step->accumulate[0]);
        else
            all.g = gpunn__gemm_make(m, k, n, c.data, false, b.data, !tb, da, step->accumulate[0]);
        gpunn__products_run(cpu, step, &all, action);
    }
    if (step->grad_in[1].data) {
        void *const db = step->grad_in[1].data;
        gpunn__products_axes(&all, &c, tb ? &c : &a, tb ? &a : &c, &b);
        if (tb)
            all.g = gpunn__gemm_make(n, k, m, c.data, true, a.data, ta, db, step->accumulate[1]);
        else
            all.g = gpunn__gemm_make(k, n, m, a.data, !ta, c.data, false, db, step->accumulate[1]);
        gpunn__products_run(cpu, step, &all, action);
    }
    return GPUNN_OK;
}
