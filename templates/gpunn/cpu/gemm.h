#ifndef GPUNN__CPU_GEMM_H
#define GPUNN__CPU_GEMM_H
#include "cpu/blocks.h"
#include "cpu/context.h"

/* ==== >>cpu/gemm ========================================================================================= *
 * Matrix products. C is cut into panels, each as wide as three vectors. A panel of B, at most `depth` rows
 * deep, is packed and stays in the cache while rows of A stream past it. A is read in place at any stride, by
 * broadcasts. Each element of C is summed in an order that depends only on the sizes, never on threads, tiles
 * or alignment. */
typedef struct gpunn__gemm { /* C[m, n] = A[m, k] B[k, n], or += if accumulate; then the epilogue */
    int64_t      m, n, k;
    const float *a;
    int64_t      a_row, a_col; /* A(i, p) = a[i * a_row + p * a_col] */
    const float *b;
    int64_t      b_row, b_col; /* B(p, j) = b[p * b_row + j * b_col] */
    gpunn_dtype  b_dtype;      /* 16 bits or blocks: b has this type, and b_row is 1; otherwise F32 */
    bool         rounds_a;     /* with B of blocks: rows of A are rounded to 8 bits */
    /* Used instead of b. Writes rows p .. p + pc and columns j .. j + jc of B to packed[row * width +
     * column], and 0 in columns jc .. width. Several threads call it at the same time. */
    void (*pack_b)(const void *user, int64_t p, int64_t pc, int64_t j, int64_t jc, int64_t width,
                   float *packed);
    const void  *pack_user;
    const float *packed_b; /* used instead of b: the output of gpunn__gemm_pack_b */
    float       *c;
    int64_t      c_row; /* C(i, j) = c[i * c_row + j] */
    bool         accumulate;
    /* Epilogue, in this order: c = c * scale + shift per row and per column (each may be NULL); + residual
     * (strides of C); relu, and no more than `most` unless that is 0. */
    const float *scale_row, *shift_row, *scale_col, *shift_col, *residual;
    bool         relu;
    float        most;
    /* multiply BF16, accumulate in F32; A needs contiguous rows or columns. See gpunn__gemm_rounds */
    bool bf16;
    /* panels of B that fit the scratch of gpunn__gemm_block; 0 means 1. gpunn__gemm_run sets it */
    int64_t panels;
} gpunn__gemm;

typedef struct gpunn__panel { /* one panel of C (at most 3 vectors wide) for one block of k */
    int64_t      rows, columns, k;
    const float *a;
    int64_t      a_row, a_col;
    const float *b; /* rows of whole vectors, b_row apart */
    int64_t      b_row;
    float       *c;
    int64_t      c_row;
    bool         add, relu;
    float        most;                  /* of the relu */
    const float *residual;              /* laid out as c; NULL: 0 */
    const float *shift_row, *shift_col; /* initial values of the sums; NULL: 0 */
    /* next panel of B, to prefetch from memory; NULL: already in the cache */
    const float *ahead;
} gpunn__panel;

/* The most that the relu of the epilogue returns. */
GPUNN__INLINE float gpunn__gemm_most(const gpunn__gemm *g)
{
    return g->most > 0 ? g->most : INFINITY;
}

GPUNN__INLINE float gpunn__relu_to(float x, float most)
{
    const float y = x <= 0 ? 0 : x; /* NaN stays */
    return y > most ? most : y;
}

/* Rounds n up to a multiple of lanes, a power of two. */
GPUNN__INLINE int64_t gpunn__round_up(int64_t n, int64_t lanes)
{
    return (n + lanes - 1) & ~(lanes - 1);
}

/* Kernels for BF16 products. An element is a 32-bit word: two BF16 numbers that are consecutive along k.
 * `pair` builds words from pairs of rows of `width` floats, `line` from one line of floats. An odd count is
 * padded with 0. */
typedef struct gpunn__word_kernels {
    /* 1, or 16 with tiles: in scratch, words along k and rows of A are rounded up to a multiple */
    int64_t tile;
    int64_t rows; /* replaces `rows` of gpunn__gemm_kernels */
    void (*panel)(const gpunn__panel *t);
    void (*dots)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, const float *b,
                 int64_t b_row, float *c, int64_t c_row, bool add);
    void (*pair)(const float *rows, int64_t count, int64_t width, float *words);
    void (*line)(const float *from, int64_t count, float *words);
} gpunn__word_kernels;

/* The kernels for one vector type. */
typedef struct gpunn__gemm_kernels {
    const char *name;
    int64_t     lanes;
    int64_t     depth; /* maximum rows of a packed panel: deeper panels read and write C fewer times */
    /* maximum total rows of the panels that stay in the cache while chunks of A stream past */
    int64_t nearby;
    /* rows of A in a chunk: the next panel is prefetched from memory while one chunk is computed */
    int64_t rows;
    void (*panel)(const gpunn__panel *t);
    /* packed[row * width + column] = b[row * b_row + column], and 0 in columns `columns` .. width. width is a
     * multiple of lanes. */
    void (*copy)(const float *b, int64_t b_row, int64_t rows, int64_t columns, int64_t width, float *packed);
    /* The same from b[row + column * b_col]. */
    void (*copy_transposed)(const float *b, int64_t b_col, int64_t rows, int64_t columns, int64_t width,
                            float *packed);
    /* C (=, or += if add) A B^T. Rows of A[m, k] and B[n, k] are contiguous along k; a_row and b_row are
     * their strides. */
    void (*dots)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, const float *b,
                 int64_t b_row, float *c, int64_t c_row, bool add);
    /* The same with B in 16 bits. */
    void (*half_dots)(gpunn_dtype dtype, int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row,
                      const void *b, int64_t b_row, float *c, int64_t c_row, bool add);
    /* like gpunn__widen_floats */
    void (*widen)(gpunn_dtype dtype, const void *from, int64_t count, float *to);
    /* y[n] (=, or += if add) x[k] B + shift, then relu. packed: from gpunn__gemm_pack_b, with k at most
     * `depth`. shift may be NULL. */
    void (*row)(int64_t k, int64_t n, const float *x, const float *packed, const float *shift, float *y,
                bool add, bool relu);
} gpunn__gemm_kernels;

/* The kernels for the widest vectors that this processor and GPUNN_VECTORS allow. */
GPUNN__INTERNAL const gpunn__gemm_kernels *gpunn__gemm_choose(void);
/* Floats in the widest vector of this processor. Plain C builds return 1. */
GPUNN__INTERNAL int gpunn__widest_vector(void);

/* The BF16 kernels; NULL if this build has none. Then no product uses BF16. */
GPUNN__INTERNAL const gpunn__word_kernels *gpunn__words(void);

/* Steps along k that a kernel takes for k elements: k itself, or the number of words. */
GPUNN__INLINE int64_t gpunn__gemm_steps(const gpunn__gemm *g, int64_t k)
{
    return g->bf16 ? gpunn__round_up((k + 1) / 2, gpunn__words()->tile) : k;
}

/* Rows of A in one chunk. */
GPUNN__INLINE int64_t gpunn__gemm_rows(const gpunn__gemm *g)
{
    return g->bf16 ? gpunn__words()->rows : gpunn__gemm_choose()->rows;
}

/* Products of rows of A, rounded to 8 bits, with B of blocks by gpunn__block_tiles. For one row dot products
 * are as fast. */
GPUNN__INLINE bool gpunn__gemm_is_tiles(const gpunn__gemm *g)
{
    return gpunn__is_blocks(g->b_dtype) && gpunn__block_has_integers(g->b_dtype) && g->rounds_a && g->m > 1 &&
           gpunn__block_has_tiles();
}

/* Both operands are contiguous along k and one has few rows. Such products are computed as dot products,
 * without panels. They also widen B of 16 bits in registers, which costs less than panels for few rows of
 * A. With B of blocks, A's few rows are rounded to 8 bits, or else all of B is unpacked into panels. */
enum { GPUNN__NARROW_ROWS = 16 };
GPUNN__INLINE bool gpunn__gemm_is_dots(const gpunn__gemm *g)
{
    if (gpunn__is_blocks(g->b_dtype))
        return g->rounds_a && g->m <= GPUNN__NARROW_ROWS && gpunn__block_has_integers(g->b_dtype) &&
               !gpunn__gemm_is_tiles(g);
    const int64_t few = g->m < g->n ? g->m : g->n;
    const bool    narrow = g->b_dtype && g->m <= GPUNN__NARROW_ROWS;
    return g->b && g->k > 1 && g->a_col == 1 && g->b_row == 1 &&
           (few <= 2 || ((few <= 8 || narrow) && g->k >= 64));
}

/* Maximum elements of k in a packed panel. */
GPUNN__INLINE int64_t gpunn__gemm_deepest(const gpunn__gemm *g)
{
    const int64_t most = gpunn__gemm_choose()->depth * (g->bf16 ? 2 : 1);
    return g->k < most ? g->k : most;
}

/* A is copied chunk by chunk if its columns lie pages apart or if it is converted to words. Shallower blocks
 * (gpunn__gemm_depth) let more panels share one copy. */
GPUNN__INLINE bool gpunn__gemm_copies(const gpunn__gemm *g)
{
    return g->bf16 || (g->a_row == 1 && g->a_col >= 256);
}
GPUNN__INLINE int64_t gpunn__gemm_depth(const gpunn__gemm *g)
{
    const int64_t deepest = gpunn__gemm_deepest(g), shared = g->bf16 ? 512 : 256;
    return deepest > shared && gpunn__gemm_copies(g) && !g->packed_b ? shared : deepest;
}

/* Scratch of one thread, in floats, which is also enough for smaller products. It holds panels of B and a
 * chunk of A, or, for dot products with B of 16 bits, the words of A. */
GPUNN__INLINE int64_t gpunn__gemm_scratch(const gpunn__gemm *g)
{
    if (gpunn__is_blocks(g->b_dtype) && gpunn__gemm_is_dots(g)) return gpunn__rounded_floats(g->m * g->k);
    if (gpunn__gemm_is_tiles(g)) return gpunn__block_tiles_floats(g->m, g->k);
    if (g->b_dtype && gpunn__gemm_is_dots(g)) return g->bf16 ? GPUNN__NARROW_ROWS * g->k / 2 : 0;
    const gpunn__gemm_kernels *kernels = gpunn__gemm_choose();
    const int64_t              width = 3 * kernels->lanes, panels = (g->n + width - 1) / width;
    const int64_t depth = g->bf16 ? gpunn__gemm_steps(g, gpunn__gemm_deepest(g)) : gpunn__gemm_depth(g);
    const int64_t rows = panels * depth < kernels->nearby ? panels * depth : kernels->nearby;
    return rows * width + (panels > 1 || g->bf16 ? gpunn__gemm_rows(g) * depth : 0);
}

/* Number of panels that share one pass over a chunk of A. */
GPUNN__INLINE int64_t gpunn__gemm_panels(const gpunn__gemm *g)
{
    const gpunn__gemm_kernels *kernels = gpunn__gemm_choose();
    const int64_t              width = 3 * kernels->lanes, panels = (g->n + width - 1) / width;
    const int64_t most = g->k > 0 ? kernels->nearby / gpunn__gemm_steps(g, gpunn__gemm_depth(g)) : 1;
    return panels < most ? panels : most;
}

/* Bytes of scratch for gpunn__gemm_run. */
GPUNN__INTERNAL size_t gpunn__gemm_workspace(const gpunn__gemm *g, int threads);

/* gpunn__gemm_pack_b packs all of B for later products (as g->packed_b), multiplied by scale_col if that is
 * non-NULL. The layout is the blocks of k, each with its panels. */
GPUNN__INLINE size_t gpunn__gemm_packed_b_bytes(int64_t steps, int64_t n)
{
    int64_t lanes = gpunn__gemm_choose()->lanes;
    return (size_t)steps * (size_t)(gpunn__round_up(n, lanes)) * sizeof(float);
}
GPUNN__INTERNAL void gpunn__gemm_pack_b(const gpunn__gemm *g, float *packed);

/* Offset of row p, column j (a multiple of the lanes) in a packed right operand [k][n]. *width: distance to
 * the next row. */
GPUNN__INLINE int64_t gpunn__gemm_packed_at(int64_t k, int64_t n, int64_t lanes, int64_t p, int64_t j,
                                            int64_t *width)
{
    int64_t padded = gpunn__round_up(n, lanes), panel = j / (3 * lanes) * 3 * lanes;
    int64_t most = gpunn__gemm_choose()->depth, block = p / most * most;
    int64_t depth = k - block < most ? k - block : most;
    *width = padded - panel < 3 * lanes ? padded - panel : 3 * lanes;
    return block * padded + depth * panel + (p - block) * *width + j - panel;
}

/* A block of C: rows i0 .. i1 and columns j0 .. j1. across: blocks side by side. */
typedef struct gpunn__gemm_share {
    int64_t i0, i1, j0, j1;
    int     across;
} gpunn__gemm_share;

/* The block of C [m, n] that thread `index` computes. The threads form a grid over C, such that the largest
 * block is as small as possible. j0 is a multiple of grain, which is a multiple of lanes. */
GPUNN__INTERNAL gpunn__gemm_share gpunn__gemm_part(int64_t m, int64_t n, int64_t grain, int threads,
                                                   int index);

/* Computes rows i0 .. i1 and columns j0 .. j1 of the whole product in one thread. packed: gpunn__gemm_scratch
 * floats for g->panels. */
GPUNN__INTERNAL void gpunn__gemm_block(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels, int64_t i0,
                                       int64_t i1, int64_t j0, int64_t j1, float *packed);

/* Computes the whole product and sets g->panels. With threads = 1 everything runs in the calling thread, so
 * a task of a thread pool may call it. workspace: gpunn__gemm_workspace bytes. */
GPUNN__INTERNAL void gpunn__gemm_run(gpunn__gemm *g, int threads, void *workspace);

/* Name of the chosen kernels, for the device's name. */
GPUNN__INTERNAL const char *gpunn__gemm_name(void);

/* Number of threads worth using for a product. */
GPUNN__INLINE int gpunn__gemm_threads(const gpunn__cpu *cpu, const gpunn__gemm *g)
{
    return gpunn__cpu_threads_for(cpu, (double)g->m * (double)g->n / 8 * (double)g->k);
}

/* LINEAR of one row, and convolutions of one window, which is such a row. Whether a step's weight, packed in
 * its cache, can be multiplied so: it is small, and nothing but relu is fused. */
GPUNN__INTERNAL bool gpunn__fits_row(const gpunn_step *step);

/* Sets what such a step needs. workspace: floats. */
GPUNN__INTERNAL void gpunn__prepare_row(gpunn_step *step, int64_t workspace);

/* Its result, from the row x. */
GPUNN__INTERNAL void gpunn__run_row(gpunn_step *step, const float *x);

/* Scale and shift per channel of a batch norm that is fused into a linear or convolution layer. bias is that
 * layer's, or NULL. */
GPUNN__INTERNAL void gpunn__fold_norm(const gpunn_step *step, const float *bias, int64_t channels,
                                      float *scale, float *shift);

/* C[m, n] = A[m, k] B[k, n], all contiguous; transpose_a: A is stored as [k, m]; transpose_b: B as [n, k]. */
GPUNN__INLINE void gpunn__gemm_set(gpunn__gemm *g, int64_t m, int64_t n, int64_t k, const void *a,
                                   bool transpose_a, const void *b, bool transpose_b, void *c,
                                   bool accumulate)
{
    memset(g, 0, sizeof *g);
    g->m = m;
    g->n = n;
    g->k = k;
    g->a = (const float *)a;
    g->a_row = transpose_a ? 1 : k;
    g->a_col = transpose_a ? m : 1;
    g->b = (const float *)b;
    g->b_row = transpose_b ? 1 : n;
    g->b_col = transpose_b ? k : 1;
    g->c = (float *)c;
    g->c_row = n;
    g->accumulate = accumulate;
}

GPUNN__INLINE gpunn__gemm gpunn__gemm_make(int64_t m, int64_t n, int64_t k, const void *a, bool transpose_a,
                                           const void *b, bool transpose_b, void *c, bool accumulate)
{
    gpunn__gemm g;
    gpunn__gemm_set(&g, m, n, k, a, transpose_a, b, transpose_b, c, accumulate);
    return g;
}

/* Whether `row` of the kernels computes the product, of which a thread may compute some columns. */
GPUNN__INLINE bool gpunn__gemm_is_row(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels)
{
    return g->m == 1 && g->packed_b && g->a_col == 1 && g->k <= kernels->depth && !g->bf16 && !g->scale_row &&
           !g->shift_row && !g->scale_col && !g->residual;
}

/* Columns j0 .. j1 of such a product, to c instead of g->c. */
GPUNN__INLINE void gpunn__gemm_row(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels, int64_t j0,
                                   int64_t j1, float *c)
{
    kernels->row(g->k, j1 - j0, g->a, g->packed_b + g->k * j0, g->shift_col ? g->shift_col + j0 : NULL,
                 c + j0, g->accumulate, g->relu);
}

#endif /* GPUNN__CPU_GEMM_H */
