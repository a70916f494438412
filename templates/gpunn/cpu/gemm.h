#ifndef GPUNN__CPU_GEMM_H
#define GPUNN__CPU_GEMM_H
#include "cpu/context.h"

/* ==== >>cpu/gemm =================================================================================================== *
 * Matrix products. C is cut into panels of as many columns as three vectors hold. A panel of B, at most `depth` rows deep, is
 * packed so that it stays near while rows of A pass by; A is read where it is, by broadcasts, whatever its strides. element
 * of C is summed in an order that depends on the sizes only: never on threads, tiles or alignment. */
typedef struct gpunn__gemm { /* C[m, n] (=, or += with accumulate) A[m, k] B[k, n], then the epilogue */
    int64_t      m, n, k;
    const float *a;
    int64_t      a_row, a_col; /* A(i, p) = a[i * a_row + p * a_col] */
    const float *b;
    int64_t      b_row, b_col; /* B(p, j) = b[p * b_row + j * b_col] */
    gpunn_dtype  b_dtype;      /* GPUNN_F16, GPUNN_BF16: b is an array of these, with b_row 1; else F32 */
    /* Instead of b: writes rows p .. p + pc, columns j .. j + jc of B to packed[row * width + column], and 0 in columns
     * jc .. width. Several threads call it at once. */
    void (*pack_b)(const void *user, int64_t p, int64_t pc, int64_t j, int64_t jc, int64_t width, float *packed);
    const void  *pack_user;
    const float *packed_b; /* instead of b: what gpunn__gemm_pack_b made of it */
    float       *c;
    int64_t      c_row; /* C(i, j) = c[i * c_row + j] */
    bool         accumulate;
    /* Epilogue: c = c * scale + shift per row and per column (each may be NULL), + residual (strides of C), then relu. */
    const float *scale_row, *shift_row, *scale_col, *shift_col, *residual;
    bool         relu;
    bool         bf16; /* products of BF16 with sums of F32, where A has rows or columns that lie together: gpunn__gemm_rounds */
    int64_t      panels; /* of B that the scratch of gpunn__gemm_block holds; 0: 1. Set by gpunn__gemm_run */
} gpunn__gemm;

typedef struct gpunn__panel { /* one panel of C, columns <= 3 vectors, for one block of k */
    int64_t      rows, columns, k;
    const float *a;
    int64_t      a_row, a_col;
    const float *b; /* rows of whole vectors, b_row apart */
    int64_t      b_row;
    float       *c;
    int64_t      c_row;
    bool         add, relu;
    const float *shift_row, *shift_col; /* what the sums start from; NULL: 0 */
    const float *ahead;                 /* the next panel of B, to be fetched from memory meanwhile; NULL: it is near */
} gpunn__panel;

/* To whole vectors. */
GPUNN__INLINE int64_t gpunn__round_up(int64_t n, int64_t lanes)
{
    return (n + lanes - 1) & ~(lanes - 1);
}

/* Products of BF16. The elements are words of two numbers that follow each other along k, made of pairs of rows of `width` or of
 * a line, with 0 behind the last. */
typedef struct gpunn__word_kernels {
    int64_t tile; /* 1; or what words along k and rows of A come to a multiple of in scratch, where words of a row lie together */
    int64_t rows; /* in place of gpunn__gemm_kernels' */
    void (*panel)(const gpunn__panel *t);
    void (*dots)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, const float *b, int64_t b_row, float *c,
                 int64_t c_row, bool add);
    void (*pair)(const float *rows, int64_t count, int64_t width, float *words);
    void (*line)(const float *from, int64_t count, float *words);
} gpunn__word_kernels;

/* A set of kernels for one kind of vector. */
typedef struct gpunn__gemm_kernels {
    const char *name;
    int64_t     lanes;
    int64_t     depth;  /* most rows of a packed panel: the more, the fewer times C is read and written */
    int64_t     nearby; /* most rows of all panels that stay near while chunks of A pass by ... */
    int64_t     rows;   /* ... of so many rows: in the time that these take, the next panel can come from afar */
    void (*panel)(const gpunn__panel *t);
    /* packed[row * width + column] = b[row * b_row + column], 0 behind the given columns; width is a multiple of lanes. */
    void (*copy)(const float *b, int64_t b_row, int64_t rows, int64_t columns, int64_t width, float *packed);
    /* The same from b[row + column * b_col]. */
    void (*copy_transposed)(const float *b, int64_t b_col, int64_t rows, int64_t columns, int64_t width, float *packed);
    /* C (=, +=) A B^T for rows that are contiguous along k in both: A[m, k] lies a_row apart, B[n, k] b_row. */
    void (*dots)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, const float *b, int64_t b_row, float *c,
                 int64_t c_row, bool add);
    void (*widen)(gpunn_dtype dtype, const void *from, int64_t count, float *to); /* gpunn__widen_floats */
} gpunn__gemm_kernels;

GPUNN__INTERNAL const gpunn__gemm_kernels *gpunn__gemm_choose(void);
/* Floats that the processor has in one vector. */
GPUNN__INTERNAL int gpunn__widest_vector(void);

/* NULL: none, and no product is one of BF16. */
GPUNN__INTERNAL const gpunn__word_kernels *gpunn__words(void);

/* What a kernel is told of k elements along k: they, or their words. */
GPUNN__INLINE int64_t gpunn__gemm_steps(const gpunn__gemm *g, int64_t k)
{
    return g->bf16 ? gpunn__round_up((k + 1) / 2, gpunn__words()->tile) : k;
}

/* Rows of A in a chunk. */
GPUNN__INLINE int64_t gpunn__gemm_rows(const gpunn__gemm *g)
{
    return g->bf16 ? gpunn__words()->rows : gpunn__gemm_choose()->rows;
}

/* Both operands have rows that are contiguous along k and one has few of them: scalar products instead of panels. */
GPUNN__INLINE bool gpunn__gemm_is_dots(const gpunn__gemm *g)
{
    const int64_t few = g->m < g->n ? g->m : g->n;
    return g->b && g->k > 1 && g->a_col == 1 && g->b_row == 1 && (few <= 2 || (few <= 8 && g->k >= 64));
}

/* Elements of k that a packed panel holds at most. */
GPUNN__INLINE int64_t gpunn__gemm_deepest(const gpunn__gemm *g)
{
    const int64_t most = gpunn__gemm_choose()->depth * (g->bf16 ? 2 : 1);
    return g->k < most ? g->k : most;
}

/* Columns of A that lie pages apart, and words, are copied chunk by chunk: the less deep these, the more panels share one
 * copy. */
GPUNN__INLINE bool gpunn__gemm_copies(const gpunn__gemm *g)
{
    return g->bf16 || (g->a_row == 1 && g->a_col >= 256);
}
GPUNN__INLINE int64_t gpunn__gemm_depth(const gpunn__gemm *g)
{
    const int64_t deepest = gpunn__gemm_deepest(g), shared = g->bf16 ? 512 : 256;
    return deepest > shared && gpunn__gemm_copies(g) && !g->packed_b ? shared : deepest;
}

/* Scratch of one thread in floats, enough for smaller products too: panels, and a chunk of A; or columns of B that are
 * widened. */
enum { GPUNN__WIDENED = 4 };
GPUNN__INLINE int64_t gpunn__gemm_scratch(const gpunn__gemm *g)
{
    if (g->b_dtype && gpunn__gemm_is_dots(g)) return GPUNN__WIDENED * g->k;
    const gpunn__gemm_kernels *kernels = gpunn__gemm_choose();
    const int64_t              width = 3 * kernels->lanes, panels = (g->n + width - 1) / width;
    const int64_t              depth = g->bf16 ? gpunn__gemm_steps(g, gpunn__gemm_deepest(g)) : gpunn__gemm_depth(g);
    const int64_t              rows = panels * depth < kernels->nearby ? panels * depth : kernels->nearby;
    return rows * width + (panels > 1 || g->bf16 ? gpunn__gemm_rows(g) * depth : 0);
}

/* Panels that pass together by each chunk of A. */
GPUNN__INLINE int64_t gpunn__gemm_panels(const gpunn__gemm *g)
{
    const gpunn__gemm_kernels *kernels = gpunn__gemm_choose();
    const int64_t              width = 3 * kernels->lanes, panels = (g->n + width - 1) / width;
    const int64_t              most = g->k > 0 ? kernels->nearby / gpunn__gemm_steps(g, gpunn__gemm_depth(g)) : 1;
    return panels < most ? panels : most;
}

/* Bytes of scratch for gpunn__gemm_run. */
GPUNN__INTERNAL size_t gpunn__gemm_workspace(const gpunn__gemm *g, int threads);

/* Packs all of B for later products (g->packed_b), times scale_col when that is given: the blocks of k, each with its panels. */
GPUNN__INLINE size_t gpunn__gemm_packed_b_bytes(int64_t steps, int64_t n)
{
    int64_t lanes = gpunn__gemm_choose()->lanes;
    return (size_t)steps * (size_t)(gpunn__round_up(n, lanes)) * sizeof(float);
}
GPUNN__INTERNAL void gpunn__gemm_pack_b(const gpunn__gemm *g, float *packed);

/* Rows i0 .. i1, columns j0 .. j1 of the whole product, in one thread. packed: gpunn__gemm_scratch floats for g->panels. */
GPUNN__INTERNAL void gpunn__gemm_block(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels, int64_t i0, int64_t i1,
                                       int64_t j0, int64_t j1, float *packed);

/* threads = 1: everything in the calling thread, so that a task of many may call it. workspace: gpunn__gemm_workspace bytes. */
GPUNN__INTERNAL void gpunn__gemm_run(const gpunn__gemm *g, int threads, void *workspace);

GPUNN__INTERNAL const char *gpunn__gemm_name(void);

/* Threads worth using for a product. */
GPUNN__INLINE int gpunn__gemm_threads(const gpunn__cpu *cpu, const gpunn__gemm *g)
{
    return gpunn__cpu_threads_for(cpu, (double)g->m * (double)g->n / 8 * (double)g->k);
}

/* The batch norm merged into a linear or convolution layer, with that layer's bias (or NULL): a scale and shift per channel. */
GPUNN__INTERNAL void gpunn__fold_norm(const gpunn_step *step, const float *bias, int64_t channels, float *scale, float *shift);

/* C[m, n] = A[m, k] B[k, n], all contiguous; transpose_a: A is stored as [k, m]; transpose_b: B as [n, k]. */
GPUNN__INLINE gpunn__gemm gpunn__gemm_make(int64_t m, int64_t n, int64_t k, const void *a, bool transpose_a, const void *b,
                                           bool transpose_b, void *c, bool accumulate)
{
    gpunn__gemm g;
    memset(&g, 0, sizeof g);
    g.m = m;
    g.n = n;
    g.k = k;
    g.a = (const float *)a;
    g.a_row = transpose_a ? 1 : k;
    g.a_col = transpose_a ? m : 1;
    g.b = (const float *)b;
    g.b_row = transpose_b ? 1 : n;
    g.b_col = transpose_b ? k : 1;
    g.c = (float *)c;
    g.c_row = n;
    g.accumulate = accumulate;
    return g;
}

#endif /* GPUNN__CPU_GEMM_H */
