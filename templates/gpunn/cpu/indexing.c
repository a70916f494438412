#include "cpu/indexing.h"
#include "base/blocks.h"
#include "cpu/reduce.h"

/* ---- embedding and gather: read elements at integer indices --------------------------------------------- *
 * out[o][j][i] = x[o][index[o][j][i]][i]. The
 * index of an embedding is [1][m][1] and applies to all i, the columns of its weight. The index of slices is
 * [m] and applies to all o and i. */

/* Elements, or rows of an embedding. */
GPUNN__INLINE int64_t gpunn__pick_count(const gpunn__pick *p)
{
    return p->outer * p->m * (p->rows ? 1 : p->inner);
}

/* Begins to load the row of a later token. Rows of a large table are in no cache. */
static void gpunn__pick_ahead(const gpunn__pick *p, int64_t at)
{
#if defined(GPUNN__VECTORS)
    if (at >= p->m) return;
    const int64_t row = gpunn__picked(p, at);
    if (row >= 0 && row < p->n)
        __builtin_prefetch((const char *)p->from + gpunn__block_bytes(p->dtype, row * p->inner));
#else
    (void)p, (void)at;
#endif
}

static void gpunn__pick_part(gpunn__pick *p, int64_t part)
{
    int64_t count = gpunn__pick_count(p), begin = gpunn__least(part * p->part_size, count);
    int64_t end = gpunn__least(begin + p->part_size, count);
    int64_t inner = p->rows ? 1 : p->inner, line = begin / inner, i = begin - line * inner, j = line % p->m;
    const bool   whole = !p->rows && p->dtype != GPUNN_F32;
    int64_t      first = line / p->m * p->n * inner; /* offset of a line of x */
    const float *from = p->from;
    p->bad[part] = -1;
    for (int64_t at = begin; at < end; at++) {
        int64_t index = gpunn__picked(p, p->slices ? j : at);
        if (index < 0 || index >= p->n) {
            p->bad[part] = p->slices ? j : at;
            return;
        }
        if (p->rows) {
            gpunn__pick_ahead(p, at + GPUNN__PICK_AHEAD);
            gpunn__widen_values(p->dtype, (const char *)from + gpunn__block_bytes(p->dtype, index * p->inner),
                                p->to + at * p->inner, p->inner);
            continue;
        }
        if (whole)
            gpunn__put_integer(p->to, p->dtype, at,
                               gpunn__integer(from, p->dtype, first + index * inner + i));
        else
            p->to[at] = p->add ? p->to[at] + from[first + index * inner + i]
                               : from[first + index * inner + i];
        if (++i < inner) continue;
        i = 0;
        if (++j < p->m) continue;
        j = 0;
        first += p->n * inner;
    }
}

static void gpunn__pick_task(void *arg, int thread, int threads)
{
    gpunn__pick *p = (gpunn__pick *)arg;
    int64_t      begin, end;
    gpunn__cpu_part(GPUNN__PICK_PARTS, 1, threads, thread, &begin, &end);
    for (; begin < end; begin++) gpunn__pick_part(p, begin);
}

/* Each thread takes its own columns, so every element is summed in the order of the indices. */
static void gpunn__pick_back_task(void *arg, int thread, int threads)
{
    const gpunn__pick *p = (const gpunn__pick *)arg;
    int64_t            blocks = (p->inner + GPUNN__PICK_BLOCK - 1) / GPUNN__PICK_BLOCK, unit, end;
    if (!p->add) {
        gpunn__cpu_part(p->outer * p->n * p->inner, 16, threads, thread, &unit, &end);
        memset(p->to + unit, 0, (size_t)(end - unit) * sizeof *p->to);
        (void)gpunn__thread_barrier();
    }
    gpunn__cpu_part(p->outer * blocks, 1, threads, thread, &unit, &end);
    for (; unit < end; unit++) {
        int64_t      o = unit / blocks, column = (unit - o * blocks) * GPUNN__PICK_BLOCK;
        int64_t      width = gpunn__least(p->inner - column, GPUNN__PICK_BLOCK);
        float       *to = p->to + o * p->n * p->inner + column;
        const float *from = p->from + o * p->m * p->inner + column;
        for (int64_t j = 0; j < p->m; j++, from += p->inner) {
            if (p->rows || p->slices) {
                int64_t                index = gpunn__picked(p, j);
                float *GPUNN__RESTRICT row = to + index * p->inner;
                if (index == p->padding) continue;
                for (int64_t i = 0; i < width; i++) row[i] += from[i];
            } else {
                int64_t at = (o * p->m + j) * p->inner + column;
                for (int64_t i = 0; i < width; i++) to[gpunn__picked(p, at + i) * p->inner + i] += from[i];
            }
        }
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__pick_fail(gpunn__cpu *cpu, const gpunn__pick *p, int64_t at)
{
    return gpunn__cpu_fail(cpu, GPUNN_ERR_ARGUMENT,
                           "%s %lld at position %lld is outside 0 .. %lld; check the %s",
                           p->rows ? "token" : "index", (long long)gpunn__picked(p, at), (long long)at,
                           (long long)(p->n - 1), p->rows ? "tokens" : "indices");
}

/* table: the operand that is read from, 0 or 1; the other is the index. */
static GPUNN__STATUS gpunn__pick_run(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action, gpunn__pick *p,
                                     int table)
{
    p->index = &step->in[1 - table];
    if (action == GPUNN__BACKWARD) {
        if (!step->grad_in[table].data) return GPUNN_OK;
        p->from = (const float *)step->grad_out.data;
        p->to = (float *)step->grad_in[table].data;
        p->add = step->accumulate[table];
        gpunn_parallel(gpunn__cpu_threads(cpu, step->out.count + (p->add ? 0 : step->in[table].count)),
                       gpunn__pick_back_task, p);
        return GPUNN_OK;
    }
    p->from = (const float *)step->in[table].data;
    p->dtype = step->in[table].dtype;
    p->to = (float *)step->out.data;
    p->add = false;
    p->part_size = (gpunn__pick_count(p) + GPUNN__PICK_PARTS - 1) / GPUNN__PICK_PARTS;
    gpunn_parallel(gpunn__cpu_threads(cpu, step->out.count), gpunn__pick_task, p);
    for (int part = 0; part < GPUNN__PICK_PARTS; part++)
        if (p->bad[part] >= 0) return gpunn__pick_fail(cpu, p, p->bad[part]);
    return GPUNN_OK;
}

/* ---- sparse gradient of a table ------------------------------------------------------------------------- *
 * Entries have rows in the order in which tokens first refer to them. A hash table finds a row's entry. */

typedef struct gpunn__sparse_job {
    gpunn__pick *p;
    int64_t     *rows;
    int32_t     *entry; /* of each token; -1: padding */
    int32_t     *table; /* [1 << bits]: 1 + entry, at the hash of its row or behind it; 0: empty */
    int          bits;
    int32_t      used;
    int64_t      capacity;
} gpunn__sparse_job;

/* At least half of the table stays empty. */
static int gpunn__sparse_bits(int64_t capacity)
{
    int bits = 4;
    while (bits < 40 && (INT64_C(1) << bits) < 2 * capacity) bits++;
    return bits;
}

/* The entry of a row, which is added if it has none. */
static int32_t gpunn__entry_of(gpunn__sparse_job *job, int64_t row)
{
    const uint64_t last = (UINT64_C(1) << job->bits) - 1;
    uint64_t       at = (uint64_t)row * UINT64_C(0x9E3779B97F4A7C15) >> (64 - job->bits);
    for (; job->table[at]; at = (at + 1) & last)
        if (job->rows[job->table[at] - 1] == row) return job->table[at] - 1;
    job->rows[job->used] = row;
    job->table[at] = ++job->used;
    return job->used - 1;
}

/* Finds the entry of each token. */
static void gpunn__find_entries(gpunn__sparse_job *job)
{
    const gpunn__pick *p = job->p;
    memset(job->table, 0, sizeof *job->table << job->bits);
    if (!p->add) memset(job->rows, 0xFF, (size_t)job->capacity * sizeof *job->rows);
    while (job->used < job->capacity && job->rows[job->used] >= 0)
        (void)gpunn__entry_of(job, job->rows[job->used]);
    for (int64_t j = 0; j < p->m; j++) {
        const int64_t row = gpunn__picked(p, j);
        job->entry[j] = row == p->padding ? -1 : gpunn__entry_of(job, row);
    }
}

/* Each thread sums its own columns, in the order of the tokens. */
static void gpunn__sum_entries_task(void *arg, int thread, int threads)
{
    const gpunn__sparse_job *job = (const gpunn__sparse_job *)arg;
    const gpunn__pick       *p = job->p;
    int64_t                  block, end;
    gpunn__cpu_part((p->inner + GPUNN__PICK_BLOCK - 1) / GPUNN__PICK_BLOCK, 1, threads, thread, &block, &end);
    for (; block < end; block++) {
        const int64_t column = block * GPUNN__PICK_BLOCK,
                      width = gpunn__least(p->inner - column, GPUNN__PICK_BLOCK);
        for (int64_t i = 0; i < job->capacity && !p->add; i++)
            memset(p->to + i * p->inner + column, 0, (size_t)width * sizeof *p->to);
        for (int64_t j = 0; j < p->m; j++) {
            if (job->entry[j] < 0) continue;
            const float           *from = p->from + j * p->inner + column;
            float *GPUNN__RESTRICT to = p->to + job->entry[j] * p->inner + column;
            for (int64_t i = 0; i < width; i++) to[i] += from[i];
        }
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__sparse_back(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action,
                                                 gpunn__pick *p, gpunn__arena *arena)
{
    const gpunn_value *gradient = &step->grad_in[1];
    gpunn__sparse_job  job = {p, NULL, NULL, NULL, gpunn__sparse_bits(gradient->dim[0]), 0, gradient->dim[0]};
    if (gradient->dim[0] > INT32_MAX / 2)
        return gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED,
                               "%lld rows are too many for a sparse gradient; the limit is 2^30",
                               (long long)gradient->dim[0]);
    job.entry = (int32_t *)gpunn__arena_take(arena, (size_t)p->m * sizeof *job.entry);
    job.table = (int32_t *)gpunn__arena_take(arena, sizeof *job.table << job.bits);
    step->workspace_bytes = arena->bytes;
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    p->to = (float *)gradient->data;
    p->add = step->accumulate[1];
    job.rows = gpunn__sparse_rows(p->to, gradient->count);
    gpunn__find_entries(&job);
    gpunn_parallel(gpunn__cpu_threads(cpu, p->m * p->inner), gpunn__sum_entries_task, &job);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_embedding(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__pick  p;
    gpunn__arena arena = {(char *)step->workspace, 0};
    if (action == GPUNN__PREPARE && !(step->backward && step->attr->sparse)) return GPUNN_OK;
    p.rows = true;
    p.slices = false;
    p.outer = 1;
    p.m = step->in[0].count;
    p.n = step->in[1].dim[0];
    p.inner = step->in[1].dim[1];
    p.padding = step->attr->ignore_index;
    p.index = &step->in[0];
    p.from = (const float *)step->grad_out.data;
    if (step->backward && step->attr->sparse) return gpunn__sparse_back(cpu, step, action, &p, &arena);
    return gpunn__pick_run(cpu, step, action, &p, 1);
}

/* gather, and scatter_add. */
static void gpunn__pick_along(gpunn__pick *p, const gpunn_step *step)
{
    gpunn__along a;
    gpunn__along_axis(&a, &step->in[0], step->attr->axis);
    p->index = &step->in[1];
    p->outer = a.outer;
    p->m = p->index->dim[step->attr->axis];
    p->n = a.n;
    p->inner = a.inner;
    p->padding = -1;
    p->rows = false;
    p->slices = p->index->count < gpunn__pick_count(p);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_gather(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__pick p;
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    gpunn__pick_along(&p, step);
    return gpunn__pick_run(cpu, step, action, &p, 0);
}

/* ---- scatter_add: the backward of gather, onto a copy of x --------------------------------------------- */

static GPUNN__STATUS gpunn__scatter_check(gpunn__cpu *cpu, const gpunn__pick *p)
{
    for (int64_t at = 0; at < p->index->count; at++) {
        const int64_t index = gpunn__picked(p, at);
        if (index < 0 || index >= p->n) return gpunn__pick_fail(cpu, p, at);
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_scatter_add(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__pick p;
    gpunn_step  copy = *step;
    copy.input_count = 1;
    gpunn_status status = gpunn__cpu_expand(cpu, &copy, action);
    step->workspace_bytes = copy.workspace_bytes;
    if (status != GPUNN_OK || action == GPUNN__PREPARE ||
        (action == GPUNN__BACKWARD && !step->grad_in[2].data))
        return status;
    gpunn__pick_along(&p, step);
    p.dtype = GPUNN_F32;
    p.part_size = (gpunn__pick_count(&p) + GPUNN__PICK_PARTS - 1) / GPUNN__PICK_PARTS;
    p.add = action == GPUNN__BACKWARD ? step->accumulate[2] : true;
    p.from = (const float *)(action == GPUNN__BACKWARD ? step->grad_out.data : step->in[2].data);
    p.to = (float *)(action == GPUNN__BACKWARD ? step->grad_in[2].data : step->out.data);
    if (action != GPUNN__BACKWARD) status = gpunn__scatter_check(cpu, &p);
    if (status != GPUNN_OK) return status;
    gpunn_parallel(gpunn__cpu_threads(cpu, gpunn__pick_count(&p)),
                   action == GPUNN__BACKWARD ? gpunn__pick_task : gpunn__pick_back_task, &p);
    return GPUNN_OK;
}

/* ---- scatter: the last index that names an element wins ------------------------------------------------- *
 * For each line of x[outer][n][inner],
 * last[k] is the number of the last index that names element k, or -1 if none does. */

typedef struct gpunn__scatter_job {
    gpunn_step  *step;
    gpunn__along line;
    int64_t      m;
    int64_t     *last; /* [threads][n] */
} gpunn__scatter_job;

static void gpunn__scatter_row(const gpunn__scatter_job *job, const int64_t *last, int64_t x, int64_t src)
{
    const gpunn_value *in = job->step->in, *out = &job->step->out;
    const int64_t      inner = job->line.inner;
    for (int64_t k = 0; k < job->line.n; k++, x += inner) {
        const gpunn_value *from = last[k] < 0 ? &in[0] : &in[2];
        const int64_t      at = last[k] < 0 ? x : src + last[k] * inner;
        if (out->dtype == GPUNN_F32)
            ((float *)out->data)[x] = ((const float *)from->data)[at];
        else
            gpunn__put_integer(out->data, out->dtype, x, gpunn__integer(from->data, from->dtype, at));
    }
}

static void gpunn__scatter_row_back(const gpunn__scatter_job *job, const int64_t *last, int64_t x,
                                    int64_t src)
{
    gpunn_step   *step = job->step;
    const int64_t inner = job->line.inner;
    const float  *g = (const float *)step->grad_out.data + x;
    float        *dx = (float *)step->grad_in[0].data, *dsrc = (float *)step->grad_in[2].data;
    for (int64_t k = 0; dx && k < job->line.n; k++) {
        const float value = last[k] < 0 ? g[k * inner] : 0;
        dx[x + k * inner] = step->accumulate[0] ? dx[x + k * inner] + value : value;
    }
    for (int64_t j = 0; dsrc && j < job->m; j++, src += inner) {
        const int64_t k = gpunn__integer(step->in[1].data, step->in[1].dtype, src);
        const float   value = last[k] == j ? g[k * inner] : 0;
        dsrc[src] = step->accumulate[2] ? dsrc[src] + value : value;
    }
}

static void gpunn__scatter_task(void *arg, int thread, int threads)
{
    const gpunn__scatter_job *job = (const gpunn__scatter_job *)arg;
    const gpunn_value        *index = &job->step->in[1];
    const int64_t             inner = job->line.inner, n = job->line.n;
    int64_t                  *last = job->last + thread * n, line, end;
    gpunn__cpu_part(job->line.outer * inner, 1, threads, thread, &line, &end);
    for (; line < end; line++) {
        const int64_t o = line / inner, i = line - o * inner, src = o * job->m * inner + i;
        for (int64_t k = 0; k < n; k++) last[k] = -1;
        for (int64_t j = 0; j < job->m; j++)
            last[gpunn__integer(index->data, index->dtype, src + j * inner)] = j;
        (job->step->backward ? gpunn__scatter_row_back : gpunn__scatter_row)(job, last, o * n * inner + i,
                                                                             src);
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_scatter(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__scatter_job job;
    gpunn__pick        indices;
    job.step = step;
    gpunn__along_axis(&job.line, &step->in[0], step->attr->axis);
    job.m = step->in[2].dim[step->attr->axis];
    const int threads = gpunn__cpu_threads(cpu, 4 * (step->in[0].count + step->in[1].count));
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = (size_t)threads * (size_t)job.line.n * sizeof *job.last;
        return GPUNN_OK;
    }
    job.last = (int64_t *)step->workspace;
    indices.rows = false;
    indices.index = &step->in[1];
    indices.n = job.line.n;
    gpunn_status status = action == GPUNN__FORWARD ? gpunn__scatter_check(cpu, &indices) : GPUNN_OK;
    if (status == GPUNN_OK) gpunn_parallel(threads, gpunn__scatter_task, &job);
    return status;
}

/* ---- topk: x[outer][n][inner] -------------------------------------------------------------------------- */

typedef struct gpunn__topk {
    gpunn__along along;
    int64_t      k;
    bool         largest;
    uint64_t    *codes; /* [threads][n] */
} gpunn__topk;

static int gpunn__topk_compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

static void gpunn__topk_task(void *arg, int thread, int threads)
{
    const gpunn__topk  *t = (const gpunn__topk *)arg;
    const gpunn__along *a = &t->along;
    uint64_t           *best = t->codes + thread * a->n;
    int64_t             line, end;
    gpunn__cpu_part(a->outer * a->inner, 1, threads, thread, &line, &end);
    for (; line < end; line++) {
        int64_t      o = line / a->inner, from = o * a->n * a->inner + line - o * a->inner, count = 0;
        const float *x = a->x + from;
        bool         few = t->k <= 64; /* the best k are kept sorted; otherwise all are sorted */
        for (int64_t i = 0; i < a->n; i++) {
            uint64_t code = gpunn__topk_code(x[i * a->inner], i, t->largest);
            if (few && count == t->k && code < best[count - 1]) continue;
            int64_t at = few && count == t->k ? count - 1 : count++;
            for (; few && at > 0 && best[at - 1] < code; at--) best[at] = best[at - 1];
            best[at] = code;
        }
        if (!few) qsort(best, (size_t)a->n, sizeof *best, gpunn__topk_compare);
        int64_t *y = a->index + o * t->k * a->inner + line - o * a->inner;
        for (int64_t i = 0; i < t->k; i++) y[i * a->inner] = (int64_t)(0xFFFFFFFFu - (uint32_t)best[i]);
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_topk_indices(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__topk t;
    gpunn__along_axis(&t.along, &step->in[0], step->attr->axis);
    int threads = gpunn__cpu_threads(cpu, 4 * step->in[0].count);
    if (action == GPUNN__PREPARE) {
        if (t.along.n > UINT32_MAX)
            return gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED,
                                   "topk over %lld elements is not possible; the limit is 2^32 - 1",
                                   (long long)t.along.n);
        step->workspace_bytes = (size_t)threads * (size_t)t.along.n * sizeof *t.codes;
        return GPUNN_OK;
    }
    t.k = step->out.dim[step->attr->axis];
    t.largest = step->attr->largest;
    t.codes = (uint64_t *)step->workspace;
    t.along.x = (const float *)step->in[0].data;
    t.along.index = (int64_t *)step->out.data;
    gpunn_parallel(threads, gpunn__topk_task, &t);
    return GPUNN_OK;
}

/* ---- sample: digit by digit of its key, the class at which the weights in falling order pass a sum ----- */

typedef struct gpunn__nucleus {
    const float *logits, *draw;
    int64_t     *drawn, rows, n;
    float        scale, top_p;
} gpunn__nucleus;
typedef struct gpunn__nucleus_row {
    const float *logits;
    int64_t      n;
    uint32_t     most;
    float        scale;
    uint64_t     first[GPUNN__NUCLEUS_DIGITS]; /* sums of weights by the keys' first digits */
} gpunn__nucleus_row;

/* The sums of weights of the keys that begin with the first digits of `key`, by their next digit. */
static void gpunn__nucleus_sums(const gpunn__nucleus_row *r, int level, uint64_t key,
                                uint64_t sums[GPUNN__NUCLEUS_DIGITS])
{
    const int shift = 32 - 8 * level;
    memset(sums, 0, GPUNN__NUCLEUS_DIGITS * sizeof *sums);
    for (int64_t i = 0; i < r->n; i++) {
        const uint64_t own = gpunn__nucleus_key(r->logits[i]);
        if (own >> shift == key)
            sums[own >> (shift - 8) & 0xFF] += gpunn__nucleus_weight((uint32_t)own, r->most, r->scale);
    }
}

/* The key at which the sum of weights passes `target`; *before: the sum of larger keys. */
static uint32_t gpunn__nucleus_find(const gpunn__nucleus_row *r, uint64_t target, uint64_t *before)
{
    uint64_t sums[GPUNN__NUCLEUS_DIGITS], key = 0;
    *before = 0;
    memcpy(sums, r->first, sizeof sums);
    for (int level = 0; level < GPUNN__NUCLEUS_LEVELS; level++) {
        unsigned digit = GPUNN__NUCLEUS_DIGITS - 1;
        if (level > 0) gpunn__nucleus_sums(r, level, key, sums);
        for (; *before + sums[digit] <= target; digit--) *before += sums[digit];
        key = key << 8 | digit;
    }
    return (uint32_t)key;
}

static int64_t gpunn__nucleus_drawn(gpunn__nucleus_row *r, float draw, float top_p)
{
    uint64_t kept = 0, before;
    r->most = 0;
    for (int64_t i = 0; i < r->n; i++) {
        const uint32_t key = gpunn__nucleus_key(r->logits[i]);
        if (key > r->most) r->most = key;
    }
    gpunn__nucleus_sums(r, 0, 0, r->first);
    for (int digit = 0; digit < GPUNN__NUCLEUS_DIGITS; digit++) kept += r->first[digit];
    if (top_p < 1) {
        const uint64_t end = gpunn__nucleus_end(kept, top_p);
        const uint32_t weight = gpunn__nucleus_weight(gpunn__nucleus_find(r, end, &before), r->most,
                                                      r->scale);
        kept = before + ((end - before) / weight + 1) * weight;
    }
    const uint64_t target = gpunn__nucleus_draw(kept, draw, r->most);
    const uint32_t key = gpunn__nucleus_find(r, target, &before);
    /* before the class that is drawn */
    uint64_t equals = (target - before) / gpunn__nucleus_weight(key, r->most, r->scale);
    int64_t  i = 0;
    while (gpunn__nucleus_key(r->logits[i]) != key || equals-- > 0) i++;
    return i;
}

static void gpunn__nucleus_task(void *arg, int thread, int threads)
{
    const gpunn__nucleus *s = (const gpunn__nucleus *)arg;
    gpunn__nucleus_row    row;
    int64_t               i, end;
    row.n = s->n;
    row.scale = s->scale;
    gpunn__cpu_part(s->rows, 1, threads, thread, &i, &end);
    for (; i < end; i++) {
        row.logits = s->logits + i * s->n;
        s->drawn[i] = gpunn__nucleus_drawn(&row, s->draw[i], s->top_p);
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_sample(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__nucleus s;
    s.logits = (const float *)step->in[0].data;
    s.draw = (const float *)step->in[1].data;
    s.drawn = (int64_t *)step->out.data;
    s.rows = step->in[0].dim[0];
    s.n = step->in[0].dim[1];
    s.scale = gpunn__nucleus_scale(step->attr->temperature);
    s.top_p = step->attr->top_p;
    if (action == GPUNN__PREPARE && s.n > UINT32_MAX)
        return gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED,
                               "sample from %lld classes is not possible; the limit is 2^32 - 1",
                               (long long)s.n);
    if (action == GPUNN__FORWARD)
        gpunn_parallel(gpunn__cpu_threads(cpu, 16 * step->in[0].count), gpunn__nucleus_task, &s);
    return GPUNN_OK;
}

/* ---- argmax over x[outer][n][inner]: the first maximum; NaN counts as largest -------------------------- */

/* Long rows are searched only in the block of their maximum. */
static int64_t gpunn__argmax_row(const float *x, int64_t n)
{
    enum { SHORT = 64, BLOCK = 512 };
    float   best = x[0];
    int64_t at = 0;
    for (int64_t i = 0, count; i < n; i += count) {
        count = n < SHORT ? 1 : gpunn__least(n - i, BLOCK);
        const float most = count == 1 ? x[i] : gpunn__max_row(x + i, count);
        if (most > best || (most != most && best == best)) {
            best = most;
            at = i;
        }
    }
    while (x[at] != best && (best == best || x[at] == x[at])) at++;
    return at;
}

static void gpunn__argmax_task(void *arg, int thread, int threads)
{
    const gpunn__along *a = (const gpunn__along *)arg;
    enum { WIDTH = 64 };
    int64_t begin, end, n = a->n, inner = a->inner;
    gpunn__cpu_part(a->outer, 1, threads, thread, &begin, &end);
    for (int64_t o = begin; o < end; o++) {
        const float *x = a->x + o * n * inner;
        int64_t     *y = a->index + o * inner;
        if (inner == 1) {
            *y = gpunn__argmax_row(x, n);
            continue;
        }
        for (int64_t column = 0; column < inner; column += WIDTH) {
            int64_t width = gpunn__least(inner - column, WIDTH);
            float   best[WIDTH];
            int32_t at[WIDTH];
            for (int64_t j = 0; j < width; j++) {
                best[j] = x[column + j];
                at[j] = 0;
            }
            for (int64_t i = 1; i < n; i++) {
                const float *row = x + i * inner + column;
                for (int64_t j = 0; j < width; j++) {
                    bool better = row[j] > best[j] || (row[j] != row[j] && best[j] == best[j]);
                    best[j] = better ? row[j] : best[j];
                    at[j] = better ? (int32_t)i : at[j];
                }
            }
            for (int64_t j = 0; j < width; j++) y[column + j] = at[j];
        }
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_argmax(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__along a;
    gpunn__along_axis(&a, &step->in[0], step->attr->axis);
    if (action == GPUNN__PREPARE) {
        if (a.n > INT32_MAX)
            return gpunn__cpu_fail(
                cpu, GPUNN_ERR_UNSUPPORTED,
                "argmax over %lld elements is not possible on the CPU; the limit is 2^31 - 1",
                (long long)a.n);
        return GPUNN_OK;
    }
    a.x = (const float *)step->in[0].data;
    a.index = (int64_t *)step->out.data;
    gpunn_parallel(gpunn__cpu_threads(cpu, step->in[0].count), gpunn__argmax_task, &a);
    return GPUNN_OK;
}

/* ---- searchsorted: places of values[rows][m] in sorted_sequence[rows][n] ------------------------------- */

typedef struct gpunn__sorted {
    const gpunn_value *sequence, *values;
    int64_t           *places, n, m;
    bool               right;
} gpunn__sorted;

/* Whether an element comes before a value; every element comes before NaN. */
GPUNN__INLINE bool gpunn__sorts_before(const gpunn__sorted *s, int64_t element, int64_t value)
{
    if (s->values->dtype == GPUNN_F32) {
        const float a = ((const float *)s->sequence->data)[element],
                    v = ((const float *)s->values->data)[value];
        return s->right ? !(a > v) : !(a >= v);
    }
    const int64_t a = gpunn__integer(s->sequence->data, s->sequence->dtype, element);
    const int64_t v = gpunn__integer(s->values->data, s->values->dtype, value);
    return s->right ? a <= v : a < v;
}

static void gpunn__searchsorted_task(void *arg, int thread, int threads)
{
    const gpunn__sorted *s = (const gpunn__sorted *)arg;
    int64_t              at, end;
    gpunn__cpu_part(s->values->count, 16, threads, thread, &at, &end);
    for (; at < end; at++) {
        const int64_t row = at / s->m * s->n;
        int64_t       begin = row, count = s->n;
        while (count > 0) {
            const int64_t half = count / 2;
            const bool    before = gpunn__sorts_before(s, begin + half, at);
            begin = before ? begin + half + 1 : begin;
            count = before ? count - half - 1 : half;
        }
        s->places[at] = begin - row;
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_searchsorted(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *sequence = &step->in[0], *values = &step->in[1];
    gpunn__sorted      s = {sequence,
                            values,
                            (int64_t *)step->out.data,
                            sequence->dim[sequence->rank - 1],
                            values->dim[values->rank - 1],
                            step->attr->right};
    if (action == GPUNN__FORWARD)
        gpunn_parallel(gpunn__cpu_threads(cpu, 16 * values->count), gpunn__searchsorted_task, &s);
    return GPUNN_OK;
}
