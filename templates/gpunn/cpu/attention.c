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
 * sum over e of dy y, which is equal up to rounding. The exception is a block of rows in which one key has
 * all the weight of some row. There the sum of p dp is exactly dp, so the blocks are traversed twice. Blocks,
 * and therefore all sums, depend on sizes only. */
#define GPUNN__ATTENTION_ROWS 128
#define GPUNN__ATTENTION_KEYS 256

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
    float  *workspace;
    int64_t each; /* floats of workspace per thread ... */
    /* ... of which this many, behind the scores, are scratch for products */
    int64_t                    packed;
    const gpunn__gemm_kernels *kernels;
} gpunn__attention;

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

/* Computes one product in this thread: c[m, n] (=, +=) a b. b is packed into `packed` where that pays off. */
static void gpunn__attention_product(const gpunn__attention *a, gpunn__gemm *g, float *packed)
{
    g->panels = gpunn__gemm_panels(g);
    gpunn__gemm_block(g, a->kernels, 0, g->m, 0, g->n, packed);
}

/* c[rows, keys] = q k^T or dy v^T. left and right point to the first row of each. */
static void gpunn__attention_pairs(const gpunn__attention *a, const float *left, int64_t left_row,
                                   const float *right, int64_t right_row, int64_t rows, int64_t keys,
                                   int64_t e, float *c, float *packed)
{
    gpunn__gemm g = gpunn__gemm_make(rows, keys, e, left, false, right, true, c, false);
    g.a_row = left_row;
    g.b_col = right_row;
    gpunn__attention_product(a, &g, packed);
}

static int64_t gpunn__attention_seen(const gpunn__attention *a, int64_t sample, int64_t i)
{
    return gpunn__keys_seen(&a->lengths, gpunn__length_of(&a->lengths, sample, a->s), a->causal, i, a->l);
}

/* Scales and masks one row of scores: keys j .. j + n - 1 of query i. */
static void gpunn__attention_mask(const gpunn__attention *a, int64_t sample, int64_t head, int64_t i,
                                  int64_t j, int64_t n, float *GPUNN__RESTRICT x)
{
    const float    scale = a->scale;
    const int64_t *step = a->mask_step, at = sample * step[0] + head * step[1] + i * step[2] + j * step[3];
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
    const int64_t seen = gpunn__attention_seen(a, sample, i) - j;
    for (int64_t k = seen < 0 ? 0 : seen; k < n; k++) x[k] = -INFINITY;
}

/* Number of keys visible to rows before `end`, at least 1. */
static int64_t gpunn__attention_reach(const gpunn__attention *a, int64_t sample, int64_t end)
{
    const int64_t seen = gpunn__attention_seen(a, sample, end - 1);
    return seen < 1 ? 1 : gpunn__least(a->s, seen);
}

static void gpunn__attention_forward_block(const gpunn__attention *a, int64_t sample, int64_t head,
                                           int64_t i0, int64_t rows, float *scratch)
{
    const int64_t kv_head = head / (a->heads / a->kv_heads),
                  reach = gpunn__attention_reach(a, sample, i0 + rows);
    float *const scores = scratch, *const packed = scratch + GPUNN__ATTENTION_ROWS * GPUNN__ATTENTION_KEYS;
    float *const y = gpunn__attention_at(&a->y, sample, head, i0);
    float        top[GPUNN__ATTENTION_ROWS], sum[GPUNN__ATTENTION_ROWS];
    for (int64_t j = 0; j < reach; j += GPUNN__ATTENTION_KEYS) {
        const int64_t keys = gpunn__least(reach - j, GPUNN__ATTENTION_KEYS);
        const bool    last = j + keys == reach;
        gpunn__attention_pairs(a, gpunn__attention_at(&a->q, sample, head, i0), a->q.rows,
                               gpunn__attention_at(&a->k, sample, kv_head, j), a->k.rows, rows, keys, a->e,
                               scores, packed);
        for (int64_t i = 0; i < rows; i++) {
            float *GPUNN__RESTRICT x = scores + i * keys;
            gpunn__attention_mask(a, sample, head, i0 + i, j, keys, x);
            const float block = (float)gpunn__reduce_row(GPUNN__TOP, x, keys, 0),
                        before = j ? top[i] : -INFINITY;
            const float highest = block > before ? block : before, shift = highest > -INFINITY ? highest : 0;
            for (int64_t k = 0; k < keys; k++) x[k] = gpunn__exp_down(x[k] - shift);
            const float total = (float)gpunn__sum_row(x, keys);
            if (a->drop.keep < 65536)
                gpunn__attention_drop(&a->drop, ((sample * a->heads + head) * a->l + i0 + i) * a->s + j, keys,
                                      x, NULL);
            top[i] = highest;
            if (j == 0)
                sum[i] = total;
            else {
                const float            shrink = gpunn__exp_down(before - shift);
                float *GPUNN__RESTRICT row = y + i * a->y.rows;
                sum[i] = sum[i] * shrink + total;
                if (shrink != 1)
                    for (int64_t k = 0; k < a->ev; k++) row[k] *= shrink;
            }
            if (!last) continue;
            sum[i] = sum[i] == 0 ? 0 : 1 / sum[i];
            if (a->top == NULL) continue;
            a->top[(sample * a->heads + head) * a->l + i0 + i] = shift;
            a->inverse[(sample * a->heads + head) * a->l + i0 + i] = sum[i];
        }
        gpunn__gemm g = gpunn__gemm_make(rows, a->ev, keys, scores, false,
                                         gpunn__attention_at(&a->v, sample, kv_head, j), false, y, j > 0);
        g.b_row = a->v.rows;
        g.c_row = a->y.rows;
        g.scale_row = last ? sum : NULL;
        gpunn__attention_product(a, &g, packed);
    }
}

GPUNN__VECTORIZED(gpunn__attention_forward, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__attention *a = (const gpunn__attention *)arg;
    const int64_t           blocks = (a->l + GPUNN__ATTENTION_ROWS - 1) / GPUNN__ATTENTION_ROWS;
    int64_t                 begin, end;
    gpunn__cpu_part(a->n * a->heads * blocks, 1, threads, thread, &begin, &end);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t head = unit / blocks, i = unit % blocks * GPUNN__ATTENTION_ROWS;
        gpunn__attention_forward_block(a, head / a->heads, head % a->heads, i,
                                       gpunn__least(a->l - i, GPUNN__ATTENTION_ROWS),
                                       a->workspace + thread * a->each);
    }
}

/* Recomputes p and dp of rows from i0 and keys from j. sum: adds the sum of p dp of each row to dot. apply:
 * stores ds to d_scores and the weights for dv, with dropout applied, to weights. */
static void gpunn__attention_ds(const gpunn__attention *a, int64_t sample, int64_t head, int64_t i0,
                                int64_t rows, int64_t j, int64_t keys, float *dot, bool sum, bool apply,
                                float *weights, float *d_scores, float *packed)
{
    const int64_t kv_head = head / (a->heads / a->kv_heads), row0 = (sample * a->heads + head) * a->l + i0;
    const float   scale = a->scale;
    gpunn__attention_pairs(a, gpunn__attention_at(&a->q, sample, head, i0), a->q.rows,
                           gpunn__attention_at(&a->k, sample, kv_head, j), a->k.rows, rows, keys, a->e,
                           weights, packed);
    gpunn__attention_pairs(a, gpunn__attention_at(&a->dy, sample, head, i0), a->dy.rows,
                           gpunn__attention_at(&a->v, sample, kv_head, j), a->v.rows, rows, keys, a->ev,
                           d_scores, packed);
    for (int64_t i = 0; i < rows; i++) {
        float *GPUNN__RESTRICT p = weights + i * keys, *GPUNN__RESTRICT ds = d_scores + i * keys;
        float       kept[GPUNN__ATTENTION_KEYS], part;
        const float top = a->top[row0 + i], inverse = a->inverse[row0 + i], *whole = p;
        gpunn__attention_mask(a, sample, head, i0 + i, j, keys, p);
        for (int64_t k = 0; k < keys; k++) p[k] = gpunn__exp_down(p[k] - top) * inverse;
        if (a->drop.keep < 65536) {
            memcpy(kept, p, (size_t)keys * sizeof *kept);
            gpunn__attention_drop(&a->drop, (row0 + i) * a->s + j, keys, p, ds);
            whole = kept;
        }
        if (sum) {
            a->kernels->dots(1, 1, keys, whole, 0, ds, 0, &part, 0, false);
            dot[i] += part;
        }
        part = dot[i];
        for (int64_t k = 0; apply && k < keys; k++) ds[k] = whole[k] * (ds[k] - part) * scale;
    }
}

/* gradient += left^T right if transposed, else left right. The caller clears gradients that are to be
 * overwritten. */
static void gpunn__attention_gradient(const gpunn__attention *a, const gpunn__heads *gradient, int64_t sample,
                                      int64_t head, int64_t row, int64_t m, int64_t n, int64_t k,
                                      const float *left, bool transposed, const gpunn__heads *right,
                                      int64_t right_head, int64_t right_row, float *packed)
{
    if (gradient->data == NULL) return;
    gpunn__gemm g = gpunn__gemm_make(m, n, k, left, transposed,
                                     gpunn__attention_at(right, sample, right_head, right_row), false,
                                     gpunn__attention_at(gradient, sample, head, row), true);
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

/* Backward of one head of k and v, with the heads of q that share it. The gradients of q, k and v may be
 * parts of one tensor. Gradients to be overwritten are cleared before anything is added; gradients to be
 * accumulated are not cleared. */
static void gpunn__attention_backward_head(const gpunn__attention *a, int64_t sample, int64_t kv_head,
                                           float *scratch)
{
    const int64_t heads_per_kv = a->heads / a->kv_heads,
                  block = GPUNN__ATTENTION_ROWS * GPUNN__ATTENTION_KEYS;
    float *const weights = scratch, *const d_scores = weights + block, *const packed = d_scores + block;
    for (int64_t h = 0; h < heads_per_kv && !a->add[0]; h++)
        gpunn__attention_clear(&a->dq, sample, kv_head * heads_per_kv + h, a->l, a->e);
    if (!a->add[1]) gpunn__attention_clear(&a->dk, sample, kv_head, a->s, a->e);
    if (!a->add[2]) gpunn__attention_clear(&a->dv, sample, kv_head, a->s, a->ev);
    for (int64_t head = kv_head * heads_per_kv; head < (kv_head + 1) * heads_per_kv; head++)
        for (int64_t i = 0; i < a->l; i += GPUNN__ATTENTION_ROWS) {
            const int64_t rows = gpunn__least(a->l - i, GPUNN__ATTENTION_ROWS),
                          reach = gpunn__attention_reach(a, sample, i + rows);
            const float *inverse = a->inverse + (sample * a->heads + head) * a->l + i;
            bool         one = reach <= GPUNN__ATTENTION_KEYS, sharp = false;
            float        dot[GPUNN__ATTENTION_ROWS] = {0};
            for (int64_t r = 0; r < rows; r++) sharp = sharp || inverse[r] == 1;
            for (int64_t r = 0; r < rows && !one && !sharp; r++) {
                const float *y = gpunn__attention_at(&a->y, sample, head, i + r),
                            *dy = gpunn__attention_at(&a->dy, sample, head, i + r);
                a->kernels->dots(1, 1, a->ev, y, 0, dy, 0, &dot[r], 0, false);
            }
            for (int64_t j = 0; j < reach && !one && sharp; j += GPUNN__ATTENTION_KEYS)
                gpunn__attention_ds(a, sample, head, i, rows, j,
                                    gpunn__least(reach - j, GPUNN__ATTENTION_KEYS), dot, true, false, weights,
                                    d_scores, packed);
            for (int64_t j = 0; j < reach; j += GPUNN__ATTENTION_KEYS) {
                const int64_t keys = gpunn__least(reach - j, GPUNN__ATTENTION_KEYS);
                gpunn__attention_ds(a, sample, head, i, rows, j, keys, dot, one, true, weights, d_scores,
                                    packed);
                gpunn__attention_gradient(a, &a->dv, sample, kv_head, j, keys, a->ev, rows, weights, true,
                                          &a->dy, head, i, packed);
                gpunn__attention_gradient(a, &a->dq, sample, head, i, rows, a->e, keys, d_scores, false,
                                          &a->k, kv_head, j, packed);
                gpunn__attention_gradient(a, &a->dk, sample, kv_head, j, keys, a->e, rows, d_scores, true,
                                          &a->q, head, i, packed);
            }
        }
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
    gpunn__gemm widest = gpunn__gemm_make(1, a.e > a.ev ? a.e : a.ev, GPUNN__ATTENTION_KEYS, NULL, false,
                                          NULL, false, NULL, false);
    if (widest.n < GPUNN__ATTENTION_KEYS) widest.n = GPUNN__ATTENTION_KEYS;
    widest.k = widest.n;
    a.packed = gpunn__gemm_scratch(&widest);
    a.each = gpunn__round_up(
        (step->backward ? 2 : 1) * GPUNN__ATTENTION_ROWS * GPUNN__ATTENTION_KEYS + a.packed, GPUNN__ALIGN);
    /* may overflow an integer */
    const double work = (double)(a.n * a.heads * a.l) * (double)a.s * (double)(a.e + a.ev) / 8;
    const int    threads = gpunn__cpu_threads_for(cpu, work);
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
