#include "cpu/levels.h"
#include "cpu/elementwise.h"
#include "cpu/reduce.h"
#include "cpu/gemm.h"
#include "cpu/softmax.h"

/* ==== >>cpu/attention ==================================================================================== *
 * softmax(q k^T scale + mask) v, per sample and head. Blocks of queries stream past blocks of keys, so only
 * one block of weights exists at a time (flash attention). Each row keeps its running maximum score and the
 * sum of its weights relative to that maximum. When a later block has a larger maximum, the sum and the row
 * of the result are rescaled. Training saves both values, and the backward pass recomputes the weights p from
 * them. (A single logarithm of both would lose the sum next to scores of -1e9, a common mask.)
 *
 * With dp = dy v^T and d = the sum of p dp over a row:
 *     dv = p^T dy, ds = p (dp - d) scale, dq = ds k, dk = ds^T q.
 * Dropout factors multiply p in dv, and dp. If the keys of a row span several blocks, d is computed as the
 * sum over e of dy y, which is equal up to rounding. The exception is a tile of rows in which one key has all
 * the weight of some row. There the sum of p dp is exactly dp, so the blocks are traversed twice.
 *
 * A block of keys and values is packed once for a block of rows, which passes in tiles. A tile's scores stay
 * in the cache, and it skips the keys that none of its rows sees. Blocks of keys and tiles, and therefore all
 * sums, depend on sizes only. */
#define GPUNN__ATTENTION_ROWS 512
#define GPUNN__ATTENTION_TILE 32
#define GPUNN__ATTENTION_KEYS 192

typedef struct gpunn__attention {
    int64_t        n, heads, kv_heads, l, s, e, ev;
    gpunn__heads   q, k, v, y, dy, dq, dk, dv;
    const void    *mask; /* NULL: none */
    bool           choice, causal;
    gpunn__lengths lengths;
    int64_t        mask_step[4]; /* strides along samples, heads, queries, keys */
    float          scale;
    gpunn__drop    drop; /* keep 65536: no dropout */
    /* [n, heads, l]: maximum score, 1 / sum (0 without keys); NULL: not needed */
    float  *top, *inverse;
    bool    add[3];
    int64_t rows, keys; /* of a block */
    float  *workspace;
    /* floats per thread: the whole workspace, of which packed keys and packed values */
    int64_t                    each, packed_k, packed_v;
    const gpunn__gemm_kernels *kernels;
} gpunn__attention;

/* Rows i .. i + rows of the queries and j .. j + keys of the keys of one head. */
typedef struct gpunn__attention_tile {
    int64_t sample, head, kv_head, i, rows, j, keys;
} gpunn__attention_tile;

/* B[k, n] of a product: a block of keys or values, shared by all tiles of a block of rows. */
typedef struct gpunn__attention_operand {
    const float *from; /* B(p, j) = from[p * row + j], or from[j * row + p] if transposed */
    int64_t      row;
    bool         transposed;
    float       *packed; /* panels of `depth` rows and `width` columns */
    int64_t      depth, width;
} gpunn__attention_operand;

static float *gpunn__attention_at(const gpunn__heads *h, int64_t sample, int64_t head, int64_t row)
{
    return (float *)h->data + sample * h->samples + head * h->heads + row * h->rows;
}

/* Multiplies x, and z unless it is NULL, by the dropout factors of `count` weights, from weight number `at`
 * on. */
static void gpunn__attention_drop(const gpunn__drop *d, int64_t at, int64_t count, float *x, float *z)
{
    float factor[GPUNN__DROP_BLOCK];
    for (int64_t j = 0, n; j < count; j += n) {
        const int64_t inside = (at + j) % GPUNN__DROP_BLOCK;
        n = gpunn__least(count - j, GPUNN__DROP_BLOCK - inside);
        gpunn__drop_factors(d, (uint64_t)(at + j - inside) / 8, factor);
        for (int64_t i = 0; i < n; i++) x[j + i] *= factor[inside + i];
        for (int64_t i = 0; z && i < n; i++) z[j + i] *= factor[inside + i];
    }
}

/* Packed operands pay off with many queries. gpunn__gemm_block multiplies few. The choice depends on sizes
 * only, so that the forward and the backward pass compute the same scores. */
static bool gpunn__attention_is_few(const gpunn__attention *a)
{
    return a->l <= 8;
}

/* Computes one product in this thread: c[m, n] (=, +=) a b. b is packed into `packed` where that pays off. */
static void gpunn__attention_product(const gpunn__attention *a, gpunn__gemm *g, float *packed)
{
    g->panels = gpunn__gemm_panels(g);
    gpunn__gemm_block(g, a->kernels, 0, g->m, 0, g->n, packed);
}

/* Columns of a panel, if n columns are cut into as few panels as possible. */
static int64_t gpunn__attention_width(const gpunn__attention *a, int64_t n)
{
    const int64_t most = 3 * a->kernels->lanes, panels = (n + most - 1) / most;
    return gpunn__round_up((n + panels - 1) / panels, a->kernels->lanes);
}

static gpunn__attention_operand gpunn__attention_pack(const gpunn__attention *a, const float *from,
                                                      int64_t row, bool transposed, int64_t k, int64_t n,
                                                      float *packed)
{
    const int64_t                  width = gpunn__attention_width(a, n);
    const gpunn__attention_operand b = {from, row, transposed, packed, k, width};
    for (int64_t j = 0; j < n && !gpunn__attention_is_few(a); j += width) {
        const int64_t columns = gpunn__least(n - j, width);
        if (transposed)
            a->kernels->copy_transposed(from + j * row, row, k, columns, width, packed + j * k);
        else
            a->kernels->copy(from + j, row, k, columns, width, packed + j * k);
    }
    return b;
}

/* c[m, n] (=, or += if add) left[m, k] b. k and n are at most those that b was packed for. */
static void gpunn__attention_multiply(const gpunn__attention *a, int64_t m, int64_t n, int64_t k,
                                      const float *left, int64_t left_row, const gpunn__attention_operand *b,
                                      float *c, int64_t c_row, bool add)
{
    if (gpunn__attention_is_few(a)) {
        gpunn__gemm g = gpunn__gemm_make(m, n, k, left, false, b->from, b->transposed, c, add);
        g.a_row = left_row;
        *(b->transposed ? &g.b_col : &g.b_row) = b->row;
        g.c_row = c_row;
        gpunn__attention_product(a, &g, b->packed);
        return;
    }
    gpunn__panel t;
    memset(&t, 0, sizeof t);
    t.rows = m, t.k = k, t.a = left, t.a_row = left_row, t.a_col = 1;
    t.b_row = b->width, t.c_row = c_row, t.add = add;
    for (int64_t j = 0; j < n; j += b->width) {
        t.columns = gpunn__least(n - j, b->width);
        t.b = b->packed + j * b->depth;
        t.c = c + j;
        a->kernels->panel(&t);
    }
}

/* The block of keys from j on, transposed for q k^T, and that of values, for weights v or dy v^T. */
static gpunn__attention_operand gpunn__attention_keys(const gpunn__attention      *a,
                                                      const gpunn__attention_tile *t, bool transposed,
                                                      float *packed)
{
    const float *k = gpunn__attention_at(&a->k, t->sample, t->kv_head, t->j);
    return gpunn__attention_pack(a, k, a->k.rows, transposed, transposed ? a->e : t->keys,
                                 transposed ? t->keys : a->e, packed);
}
static gpunn__attention_operand gpunn__attention_values(const gpunn__attention      *a,
                                                        const gpunn__attention_tile *t, bool transposed,
                                                        float *packed)
{
    const float *v = gpunn__attention_at(&a->v, t->sample, t->kv_head, t->j);
    return gpunn__attention_pack(a, v, a->v.rows, transposed, transposed ? a->ev : t->keys,
                                 transposed ? t->keys : a->ev, packed);
}

static int64_t gpunn__attention_seen(const gpunn__attention *a, int64_t sample, int64_t i)
{
    return gpunn__keys_seen(&a->lengths, gpunn__length_of(&a->lengths, sample, a->s), a->causal, i, a->l);
}

/* Rows of scores are padded to whole groups of lanes. */
static int64_t gpunn__attention_whole(int64_t keys)
{
    return gpunn__round_up(keys, GPUNN__EXP_LANES);
}

/* Scales and masks the scores x of query i, and pads them with -inf to whole vectors. */
static void gpunn__attention_mask(const gpunn__attention *a, const gpunn__attention_tile *t, int64_t i,
                                  float *GPUNN__RESTRICT x)
{
    const float   scale = a->scale;
    const int64_t n = t->keys, *step = a->mask_step;
    const int64_t at = t->sample * step[0] + t->head * step[1] + i * step[2] + t->j * step[3];
    if (a->mask == NULL)
        for (int64_t k = 0; k < n; k++) x[k] *= scale;
    else if (a->choice) {
        const uint8_t *m = (const uint8_t *)a->mask + at;
        if (step[3])
            for (int64_t k = 0; k < n; k++) x[k] = gpunn__select(m[k] != 0, x[k] * scale, -INFINITY);
        else
            for (int64_t k = 0; k < n; k++) x[k] = gpunn__select(m[0] != 0, x[k] * scale, -INFINITY);
    } else {
        const float *m = (const float *)a->mask + at;
        if (step[3])
            for (int64_t k = 0; k < n; k++) x[k] = x[k] * scale + m[k];
        else
            for (int64_t k = 0; k < n; k++) x[k] = x[k] * scale + m[0];
    }
    const int64_t seen = gpunn__attention_seen(a, t->sample, i) - t->j, whole = gpunn__attention_whole(n);
    for (int64_t k = seen < 0 ? 0 : gpunn__least(seen, n); k < whole; k++) x[k] = -INFINITY;
}

/* Number of keys visible to rows before `end`, at least 1. */
static int64_t gpunn__attention_reach(const gpunn__attention *a, int64_t sample, int64_t end)
{
    const int64_t seen = gpunn__attention_seen(a, sample, end - 1);
    return seen < 1 ? 1 : gpunn__least(a->s, seen);
}

/* Turns the scores x of row i of the tile into weights relative to the row's new maximum. *top and *sum are
 * the row's maximum and sum, and y its result, of the blocks before. */
static void gpunn__attention_weigh(const gpunn__attention *a, const gpunn__attention_tile *t, int64_t i,
                                   float *x, float *top, float *sum, float *GPUNN__RESTRICT y)
{
    const int64_t n = gpunn__attention_whole(t->keys), row = (t->sample * a->heads + t->head) * a->l + i;
    gpunn__attention_mask(a, t, i, x);
    const float block = (float)gpunn__reduce_row(GPUNN__TOP, x, n, 0), before = t->j ? *top : -INFINITY;
    const float highest = block > before ? block : before, shift = highest > -INFINITY ? highest : 0;
    const float total = gpunn__exp_values(x, n, shift);
    if (a->drop.keep < 65536) gpunn__attention_drop(&a->drop, row * a->s + t->j, t->keys, x, NULL);
    *top = highest;
    if (t->j == 0) {
        *sum = total;
        return;
    }
    const float shrink = gpunn__exp_down(before - shift);
    *sum = *sum * shrink + total;
    if (shrink != 1)
        for (int64_t k = 0; k < a->ev; k++) y[k] *= shrink;
}

/* Divides the row of the result by the sum of its weights, and saves what the backward pass needs. */
static void gpunn__attention_finish(const gpunn__attention *a, const gpunn__attention_tile *t, int64_t i,
                                    float top, float sum)
{
    const int64_t          row = (t->sample * a->heads + t->head) * a->l + i;
    const float            inverse = sum == 0 ? 0 : 1 / sum;
    float *GPUNN__RESTRICT y = gpunn__attention_at(&a->y, t->sample, t->head, i);
    for (int64_t k = 0; k < a->ev; k++) y[k] *= inverse;
    if (a->top == NULL) return;
    a->top[row] = top > -INFINITY ? top : 0;
    a->inverse[row] = inverse;
}

/* Cuts the tile to the keys that its rows see. Returns false if they see none. */
static bool gpunn__attention_cut(const gpunn__attention *a, gpunn__attention_tile *t)
{
    t->keys = gpunn__least(t->keys, gpunn__attention_reach(a, t->sample, t->i + t->rows) - t->j);
    return t->keys > 0;
}

/* Adds a block of keys to the results of a tile's rows. */
static void gpunn__attention_forward_tile(const gpunn__attention *a, gpunn__attention_tile t,
                                          const gpunn__attention_operand *k,
                                          const gpunn__attention_operand *v, float *top, float *sum,
                                          float *scores)
{
    const float *q = gpunn__attention_at(&a->q, t.sample, t.head, t.i);
    float       *y = gpunn__attention_at(&a->y, t.sample, t.head, t.i);
    if (!gpunn__attention_cut(a, &t)) return;
    const bool last = t.j + t.keys == gpunn__attention_reach(a, t.sample, t.i + t.rows);
    gpunn__attention_multiply(a, t.rows, t.keys, a->e, q, a->q.rows, k, scores, GPUNN__ATTENTION_KEYS, false);
    for (int64_t i = 0; i < t.rows; i++)
        gpunn__attention_weigh(a, &t, t.i + i, scores + i * GPUNN__ATTENTION_KEYS, &top[i], &sum[i],
                               y + i * a->y.rows);
    gpunn__attention_multiply(a, t.rows, a->ev, t.keys, scores, GPUNN__ATTENTION_KEYS, v, y, a->y.rows,
                              t.j > 0);
    for (int64_t i = 0; i < t.rows && last; i++) gpunn__attention_finish(a, &t, t.i + i, top[i], sum[i]);
}

static gpunn__attention_tile gpunn__attention_first(const gpunn__attention *a, int64_t sample, int64_t head)
{
    const gpunn__attention_tile t = {sample, head, head / (a->heads / a->kv_heads), 0, 0, 0, 0};
    return t;
}

static void gpunn__attention_forward_block(const gpunn__attention *a, int64_t sample, int64_t head,
                                           int64_t begin, int64_t end, float *scratch)
{
    const int64_t         reach = gpunn__attention_reach(a, sample, end);
    gpunn__attention_tile t = gpunn__attention_first(a, sample, head);
    float *const scores = scratch, *const packed = scores + GPUNN__ATTENTION_TILE * GPUNN__ATTENTION_KEYS;
    float top[GPUNN__ATTENTION_ROWS], sum[GPUNN__ATTENTION_ROWS];
    for (t.j = 0; t.j < reach; t.j += a->keys) {
        t.keys = gpunn__least(reach - t.j, a->keys);
        const gpunn__attention_operand k = gpunn__attention_keys(a, &t, true, packed),
                                       v = gpunn__attention_values(a, &t, false, packed + a->packed_k);
        for (t.i = begin; t.i < end; t.i += GPUNN__ATTENTION_TILE) {
            t.rows = gpunn__least(end - t.i, GPUNN__ATTENTION_TILE);
            gpunn__attention_forward_tile(a, t, &k, &v, top + (t.i - begin), sum + (t.i - begin), scores);
        }
    }
}

GPUNN__VECTORIZED(gpunn__attention_forward, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__attention *a = (const gpunn__attention *)arg;
    const int64_t           blocks = (a->l + a->rows - 1) / a->rows;
    int64_t                 unit, end;
    gpunn__cpu_part(a->n * a->heads * blocks, 1, threads, thread, &unit, &end);
    for (; unit < end; unit++) {
        /* first, last, second, ...: if causal, later blocks see more keys */
        const int64_t head = unit / blocks, turn = unit % blocks;
        const int64_t i = (turn % 2 ? blocks - 1 - turn / 2 : turn / 2) * a->rows;
        gpunn__attention_forward_block(a, head / a->heads, head % a->heads, i,
                                       gpunn__least(a->l, i + a->rows), a->workspace + thread * a->each);
    }
}

/* Computes the weights p and dp of a tile. sum: adds the sum of p dp of each row to dot. apply: stores ds to
 * d_scores and the weights for dv, with dropout applied, to weights. k and v are transposed. */
static void gpunn__attention_ds(const gpunn__attention *a, const gpunn__attention_tile *t,
                                const gpunn__attention_operand *k, const gpunn__attention_operand *v,
                                float *dot, bool sum, bool apply, float *weights, float *d_scores)
{
    const int64_t n = t->keys, row0 = (t->sample * a->heads + t->head) * a->l + t->i;
    const float   scale = a->scale;
    gpunn__attention_multiply(a, t->rows, n, a->e, gpunn__attention_at(&a->q, t->sample, t->head, t->i),
                              a->q.rows, k, weights, GPUNN__ATTENTION_KEYS, false);
    gpunn__attention_multiply(a, t->rows, n, a->ev, gpunn__attention_at(&a->dy, t->sample, t->head, t->i),
                              a->dy.rows, v, d_scores, GPUNN__ATTENTION_KEYS, false);
    for (int64_t i = 0; i < t->rows; i++) {
        float *GPUNN__RESTRICT                  p = weights + i * GPUNN__ATTENTION_KEYS,
                               *GPUNN__RESTRICT ds = d_scores + i * GPUNN__ATTENTION_KEYS;
        float                                   kept[GPUNN__ATTENTION_KEYS], part;
        const float top = a->top[row0 + i], inverse = a->inverse[row0 + i], *whole = p;
        gpunn__attention_mask(a, t, t->i + i, p);
        gpunn__exp_values(p, gpunn__attention_whole(n), top);
        for (int64_t x = 0; x < n; x++) p[x] *= inverse;
        if (a->drop.keep < 65536) {
            memcpy(kept, p, (size_t)n * sizeof *kept);
            gpunn__attention_drop(&a->drop, (row0 + i) * a->s + t->j, n, p, ds);
            whole = kept;
        }
        if (sum) {
            a->kernels->dots(1, 1, n, whole, 0, ds, 0, &part, 0, false);
            dot[i] += part;
        }
        part = dot[i];
        for (int64_t x = 0; apply && x < n; x++) ds[x] = whole[x] * (ds[x] - part) * scale;
    }
}

/* gradient[keys, n] += left[rows, keys]^T right[rows, n], from row `j` of the gradient on. The caller clears
 * gradients that are to be overwritten. */
static void gpunn__attention_gradient(const gpunn__attention *a, const gpunn__attention_tile *t,
                                      const gpunn__heads *gradient, int64_t n, const float *left,
                                      const gpunn__heads *right, float *packed)
{
    if (gradient->data == NULL) return;
    gpunn__gemm g = gpunn__gemm_make(t->keys, n, t->rows, left, true,
                                     gpunn__attention_at(right, t->sample, t->head, t->i), false,
                                     gpunn__attention_at(gradient, t->sample, t->kv_head, t->j), true);
    g.a_col = GPUNN__ATTENTION_KEYS;
    g.b_row = right->rows;
    g.c_row = gradient->rows;
    gpunn__attention_product(a, &g, packed);
}

static void gpunn__attention_clear(const gpunn__heads *h, int64_t sample, int64_t head, int64_t rows,
                                   int64_t e)
{
    for (int64_t i = 0; h->data && i < rows; i++)
        memset(gpunn__attention_at(h, sample, head, i), 0, (size_t)e * sizeof(float));
}

/* Where the sums of p dp of a tile's rows come from: its only block of keys, all blocks, or y dy. */
typedef enum gpunn__attention_source {
    GPUNN__FROM_BLOCK,
    GPUNN__FROM_BLOCKS,
    GPUNN__FROM_RESULT
} gpunn__attention_source;

static gpunn__attention_source gpunn__attention_source_of(const gpunn__attention      *a,
                                                          const gpunn__attention_tile *t)
{
    const float *inverse = a->inverse + (t->sample * a->heads + t->head) * a->l + t->i;
    if (gpunn__attention_reach(a, t->sample, t->i + t->rows) <= a->keys) return GPUNN__FROM_BLOCK;
    for (int64_t r = 0; r < t->rows; r++)
        if (inverse[r] == 1) return GPUNN__FROM_BLOCKS;
    return GPUNN__FROM_RESULT;
}

/* The gradients that a tile gives. k: keys as they are. packed: scratch for products. */
static void gpunn__attention_gradients(const gpunn__attention *a, const gpunn__attention_tile *t,
                                       const gpunn__attention_operand *k, const float *weights,
                                       const float *d_scores, float *packed)
{
    gpunn__attention_gradient(a, t, &a->dv, a->ev, weights, &a->dy, packed);
    if (a->dq.data)
        gpunn__attention_multiply(a, t->rows, a->e, t->keys, d_scores, GPUNN__ATTENTION_KEYS, k,
                                  gpunn__attention_at(&a->dq, t->sample, t->head, t->i), a->dq.rows, true);
    gpunn__attention_gradient(a, t, &a->dk, a->e, d_scores, &a->q, packed);
}

/* Queries begin .. end of t's head past all blocks of keys. apply: computes their gradients; otherwise only
 * dot, where that needs all blocks. */
static void gpunn__attention_backward_keys(const gpunn__attention *a, gpunn__attention_tile t, int64_t begin,
                                           int64_t end, float *dot, bool apply, float *scratch)
{
    const int64_t tile = GPUNN__ATTENTION_TILE * GPUNN__ATTENTION_KEYS,
                  reach = gpunn__attention_reach(a, t.sample, end);
    float *const weights = scratch, *const d_scores = weights + tile, *const packed = d_scores + tile;
    for (t.j = 0; t.j < reach; t.j += a->keys) {
        t.keys = gpunn__least(reach - t.j, a->keys);
        const gpunn__attention_operand k = gpunn__attention_keys(a, &t, true, packed),
                                       v = gpunn__attention_values(a, &t, true, packed + a->packed_k),
                                       plain = gpunn__attention_keys(a, &t, false,
                                                                     packed + a->packed_k + a->packed_v);
        for (t.i = begin; t.i < end; t.i += GPUNN__ATTENTION_TILE) {
            gpunn__attention_tile now = t;
            now.rows = gpunn__least(end - t.i, GPUNN__ATTENTION_TILE);
            const gpunn__attention_source source = gpunn__attention_source_of(a, &now);
            if (!gpunn__attention_cut(a, &now) || (!apply && source != GPUNN__FROM_BLOCKS)) continue;
            gpunn__attention_ds(a, &now, &k, &v, dot + (t.i - begin), !apply || source == GPUNN__FROM_BLOCK,
                                apply, weights, d_scores);
            if (apply)
                gpunn__attention_gradients(a, &now, &plain, weights, d_scores,
                                           packed + 2 * a->packed_k + a->packed_v);
        }
    }
}

static void gpunn__attention_backward_block(const gpunn__attention *a, gpunn__attention_tile t, int64_t begin,
                                            int64_t end, float *scratch)
{
    bool  all = false;
    float dot[GPUNN__ATTENTION_ROWS] = {0};
    for (t.i = begin; t.i < end; t.i += GPUNN__ATTENTION_TILE) {
        t.rows = gpunn__least(end - t.i, GPUNN__ATTENTION_TILE);
        const gpunn__attention_source source = gpunn__attention_source_of(a, &t);
        all = all || source == GPUNN__FROM_BLOCKS;
        for (int64_t i = t.i; i < t.i + t.rows && source == GPUNN__FROM_RESULT; i++)
            a->kernels->dots(1, 1, a->ev, gpunn__attention_at(&a->y, t.sample, t.head, i), 0,
                             gpunn__attention_at(&a->dy, t.sample, t.head, i), 0, &dot[i - begin], 0, false);
    }
    if (all) gpunn__attention_backward_keys(a, t, begin, end, dot, false, scratch);
    gpunn__attention_backward_keys(a, t, begin, end, dot, true, scratch);
}

/* Backward of one head of k and v, with the heads of q that share it. The gradients of q, k and v may be
 * parts of one tensor. Gradients to be overwritten are cleared before anything is added; gradients to be
 * accumulated are not cleared. */
static void gpunn__attention_backward_head(const gpunn__attention *a, int64_t sample, int64_t kv_head,
                                           float *scratch)
{
    const int64_t heads_per_kv = a->heads / a->kv_heads;
    for (int64_t h = 0; h < heads_per_kv && !a->add[0]; h++)
        gpunn__attention_clear(&a->dq, sample, kv_head * heads_per_kv + h, a->l, a->e);
    if (!a->add[1]) gpunn__attention_clear(&a->dk, sample, kv_head, a->s, a->e);
    if (!a->add[2]) gpunn__attention_clear(&a->dv, sample, kv_head, a->s, a->ev);
    for (int64_t head = kv_head * heads_per_kv; head < (kv_head + 1) * heads_per_kv; head++)
        for (int64_t i = 0; i < a->l; i += a->rows)
            gpunn__attention_backward_block(a, gpunn__attention_first(a, sample, head), i,
                                            gpunn__least(a->l, i + a->rows), scratch);
}

GPUNN__VECTORIZED(gpunn__attention_backward, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__attention *a = (const gpunn__attention *)arg;
    int64_t                 begin, end;
    gpunn__cpu_part(a->n * a->kv_heads, 1, threads, thread, &begin, &end);
    for (int64_t unit = begin; unit < end; unit++)
        gpunn__attention_backward_head(a, unit / a->kv_heads, unit % a->kv_heads,
                                       a->workspace + thread * a->each);
}

/* Floats for a packed operand: keys or values of n elements, transposed or not. */
static int64_t gpunn__attention_room(const gpunn__attention *a, int64_t n)
{
    const gpunn__gemm plain = gpunn__gemm_make(1, n, a->keys, NULL, false, NULL, false, NULL, false),
                      transposed = gpunn__gemm_make(1, a->keys, n, NULL, false, NULL, false, NULL, false);
    const int64_t width = gpunn__attention_width(a, n), most = gpunn__gemm_scratch(&transposed);
    if (!gpunn__attention_is_few(a)) return a->keys * ((n + width - 1) / width * width);
    return most > gpunn__gemm_scratch(&plain) ? most : gpunn__gemm_scratch(&plain);
}

/* Sets the sizes of blocks and of the workspace. Only `rows`, on which no sum depends, depends on threads:
 * forward, each gets some blocks. */
static void gpunn__attention_blocks(gpunn__attention *a, int threads, bool backward)
{
    const int64_t whole = 48, most = GPUNN__ATTENTION_KEYS * 256 / (a->e + a->ev) / whole * whole;
    const int64_t tile = GPUNN__ATTENTION_TILE * GPUNN__ATTENTION_KEYS, wide = a->e > a->ev ? a->e : a->ev;
    const int64_t share = a->n * a->heads * a->l / (threads > 1 && !backward ? 8 * threads : 1);
    a->rows = gpunn__least(GPUNN__ATTENTION_ROWS,
                           share > 128 ? gpunn__round_up(share, GPUNN__ATTENTION_TILE) : 128);
    a->keys = most < whole ? whole : gpunn__least(most, GPUNN__ATTENTION_KEYS);
    a->packed_k = gpunn__attention_room(a, a->e);
    a->packed_v = gpunn__attention_room(a, a->ev);
    a->each = tile + a->packed_k + a->packed_v;
    if (backward) {
        const gpunn__gemm widest = gpunn__gemm_make(1, wide, GPUNN__ATTENTION_TILE, NULL, false, NULL, false,
                                                    NULL, false);
        a->each += tile + a->packed_k + gpunn__gemm_scratch(&widest);
    }
    a->each = gpunn__round_up(a->each, GPUNN__ALIGN);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_scaled_dot_product_attention(gpunn__cpu *cpu, gpunn_step *step,
                                                                      gpunn__action action)
{
    const gpunn_value           *in = step->in, *mask = &in[3];
    const gpunn__attention_shape c = gpunn__attention_shape_of(step);
    gpunn__heads                *heads[3], *gradient[3];
    gpunn__attention             a;
    memset(&a, 0, sizeof a);
    a.n = c.n, a.heads = c.heads, a.kv_heads = c.kv_heads;
    a.l = c.l, a.s = c.s, a.e = c.e, a.ev = c.ev;
    a.kernels = gpunn__gemm_choose();
    /* may overflow an integer */
    const double work = (double)(a.n * a.heads * a.l) * (double)a.s * (double)(a.e + a.ev) / 8;
    const int    threads = gpunn__cpu_threads_for(cpu, work);
    gpunn__attention_blocks(&a, threads, step->backward);
    if (action == GPUNN__PREPARE) {
        if (step->training && !step->backward)
            step->saved_bytes = 2 * (size_t)(a.n * a.heads * a.l) * sizeof(float);
        step->workspace_bytes = (size_t)(threads * a.each) * sizeof(float);
        return GPUNN_OK;
    }
    heads[0] = &a.q, heads[1] = &a.k, heads[2] = &a.v;
    gradient[0] = &a.dq, gradient[1] = &a.dk, gradient[2] = &a.dv;
    for (int i = 0; i < 3; i++) {
        const int part = c.packed ? 0 : i;
        *heads[i] = gpunn__attention_heads(&c, &in[part], i);
        if (step->backward) *gradient[i] = gpunn__attention_heads(&c, &step->grad_in[part], i);
        a.add[i] = step->backward && step->accumulate[part];
    }
    a.y = gpunn__attention_heads(&c, &step->out, 3);
    a.dy = gpunn__attention_heads(&c, &step->grad_out, 3);
    a.mask = mask->data;
    a.choice = mask->dtype == GPUNN_BOOL;
    gpunn__attention_mask_steps(mask, a.mask_step);
    a.causal = step->attr->is_causal;
    a.lengths = gpunn__attention_lengths(step);
    for (int64_t n = 0; n < a.n; n++) {
        const int64_t length = gpunn__length_of(&a.lengths, n, a.s);
        if (length < 0 || length > a.s)
            return gpunn__cpu_fail(cpu, GPUNN_ERR_ARGUMENT,
                                   "length %lld of sample %lld is outside 0 .. %lld; check the lengths",
                                   (long long)length, (long long)n, (long long)a.s);
    }
    a.scale = step->attr->scale;
    a.top = step->training ? (float *)step->saved : NULL;
    a.inverse = a.top ? a.top + a.n * a.heads * a.l : NULL;
    a.workspace = (float *)step->workspace;
    a.drop = gpunn__drop_of(step);
    gpunn_parallel(threads, step->backward ? gpunn__attention_backward : gpunn__attention_forward, &a);
    return GPUNN_OK;
}
