#include "cpu/reduce.h"
#include "cpu/levels.h"

/* ---- along one axis ------------------------------------------------------------------------------------ */

GPUNN__INTERNAL void gpunn__along_axis(gpunn__along *a, const gpunn_value *v, int axis)
{
    a->outer = a->inner = 1;
    a->n = v->rank ? v->dim[axis] : 1;
    for (int d = 0; d < v->rank; d++) {
        if (d < axis) a->outer *= v->dim[d];
        if (d > axis) a->inner *= v->dim[d];
    }
}

/* ---- sum and max over any set of axes ------------------------------------------------------------------- *
 * Adjacent axes that are
 * all reduced, or all kept, are merged. The result is kept x planes x rows x columns. There are `kept`
 * results (or rows of results), each from `planes` contiguous blocks of rows * columns floats. Either columns
 * are reduced too (by_column is false, columns is 1 and rows holds the length), or each column has its own
 * result. Narrow rows are folded: several are read side by side to fill vectors. Work is split into units
 * (result, tile of columns, chunk of the reduction) that depend on the shape alone. */

typedef struct gpunn__reduce {
    gpunn__reduce_kind kind;
    bool               by_column; /* the last axis is kept */
    bool               add;       /* backward: += */
    int                kept_rank, plane_rank;
    int64_t            kept_dim[GPUNN_MAX_RANK], kept_stride[GPUNN_MAX_RANK], plane_dim[GPUNN_MAX_RANK],
        plane_stride[GPUNN_MAX_RANK];
    int64_t      kept, planes, rows, columns, fold, tiles, chunks;
    const float *x, *reference; /* reference: the maxima, for COUNT and for the gradient of MAX */
    float       *y;             /* results; in backward, the operand's gradient */
    double      *partial;       /* [kept][tiles][chunks][TILE or 1]; NULL if there is one chunk */
    /* backward: gradient of the result; for MAX, the number of elements equal to it */
    const float *gradient, *equal;
    double       scale; /* 1, or 1 / elements for means */
} gpunn__reduce;

static void gpunn__reduce_shape(gpunn__reduce *r, const gpunn_value *in, uint32_t axes)
{
    const gpunn__walk all = gpunn__axes_reduced(in, axes);
    int               next = 0;
    r->by_column = all.rank > 0 && all.stride[1][0] != 0;
    r->columns = r->by_column ? all.dim[next++] : 1;
    r->rows = next < all.rank ? all.dim[next++] : 1;
    r->planes = gpunn__axes_select(&all, next, true, &r->plane_rank, r->plane_dim, r->plane_stride);
    r->kept = gpunn__axes_select(&all, next, false, &r->kept_rank, r->kept_dim, r->kept_stride);
    r->fold = r->by_column && r->columns <= GPUNN__TILE / 2 ? GPUNN__TILE / r->columns : 1;
    r->tiles = (r->columns + GPUNN__TILE - 1) / GPUNN__TILE;
    r->chunks = 1;
    if (r->kept * r->tiles < 32) {
        int64_t chunks = in->count / (r->kept * r->tiles) / 32768;
        r->chunks = chunks < 1 ? 1 : gpunn__least(chunks, 64);
    }
}

static size_t gpunn__reduce_partial_bytes(const gpunn__reduce *r)
{
    if (r->chunks == 1) return 0;
    return (size_t)(r->kept * r->tiles * r->chunks * (r->by_column ? GPUNN__TILE : 1)) * sizeof(double);
}

GPUNN__INTERNAL double gpunn__sum_row(const float *x, int64_t n)
{
    return gpunn__reduce_row(GPUNN__SUM, x, n, 0);
}

GPUNN__INTERNAL float gpunn__max_row(const float *x, int64_t n)
{
    return (float)gpunn__reduce_row(GPUNN__MAX, x, n, 0);
}

static double gpunn__count_row(const float *x, int64_t n, float reference)
{
    return gpunn__reduce_row(GPUNN__COUNT, x, n, reference);
}

static double gpunn__reduce_any_row(gpunn__reduce_kind kind, const float *x, int64_t n,
                                    const float *reference)
{
    if (kind == GPUNN__SUM) return gpunn__sum_row(x, n);
    return kind == GPUNN__MAX ? (double)gpunn__max_row(x, n) : gpunn__count_row(x, n, *reference);
}

/* Joins n contiguous floats into *total. */
GPUNN__VECTORIZED(gpunn__reduce_line,
                  (gpunn__reduce_kind kind, const float *x, int64_t n, const float *reference, double *total),
                  (kind, x, n, reference, total))
{
    *total = gpunn__join_wide(kind, *total, gpunn__reduce_any_row(kind, x, n, reference));
}

/* Computes results begin .. end if each reduces a single line. The general path would slow down short
 * lines. */
GPUNN__VECTORIZED(gpunn__reduce_contiguous, (const gpunn__reduce *r, int64_t begin, int64_t end),
                  (r, begin, end))
{
    const gpunn__reduce_kind kind = r->kind;
    for (int64_t i = begin; i < end; i++) {
        const float *x = r->x + gpunn__offset(i, r->kept_rank, r->kept_dim, r->kept_stride);
        r->y[i] = (float)(gpunn__reduce_any_row(kind, x, r->rows, r->reference ? r->reference + i : NULL) *
                          r->scale);
    }
}

/* Joins `rows` rows of `width` floats, `stride` apart, into total[width]: up to 64 rows in float, then in
 * double. */
GPUNN__INLINE void gpunn__reduce_rows(gpunn__reduce_kind kind, const float *x, int64_t rows, int64_t stride,
                                      int64_t width, const float *GPUNN__RESTRICT reference,
                                      double *GPUNN__RESTRICT total)
{
    float sum[GPUNN__TILE];
    while (rows > 0) {
        int64_t block = gpunn__least(rows, 64), row = 0;
        for (int64_t j = 0; j < width; j++) sum[j] = gpunn__start(kind);
        for (; row + 4 <= block; row += 4) {
            const float *a = x + row * stride, *b = a + stride, *c = b + stride, *d = c + stride;
            for (int64_t j = 0; j < width; j++) {
                float ref = kind == GPUNN__COUNT ? reference[j] : 0;
                sum[j] = gpunn__join(
                    kind,
                    gpunn__join(kind, gpunn__join(kind, gpunn__join(kind, sum[j], a[j], ref), b[j], ref),
                                c[j], ref),
                    d[j], ref);
            }
        }
        for (; row < block; row++) {
            const float *a = x + row * stride;
            for (int64_t j = 0; j < width; j++)
                sum[j] = gpunn__join(kind, sum[j], a[j], kind == GPUNN__COUNT ? reference[j] : 0);
        }
        for (int64_t j = 0; j < width; j++) total[j] = gpunn__join_wide(kind, total[j], (double)sum[j]);
        x += block * stride;
        rows -= block;
    }
}

GPUNN__VECTORIZED(gpunn__reduce_block,
                  (gpunn__reduce_kind kind, const float *x, int64_t rows, int64_t stride, int64_t width,
                   const float *reference, double *total),
                  (kind, x, rows, stride, width, reference, total))
{
    if (kind == GPUNN__SUM)
        gpunn__reduce_rows(GPUNN__SUM, x, rows, stride, width, reference, total);
    else if (kind == GPUNN__MAX)
        gpunn__reduce_rows(GPUNN__MAX, x, rows, stride, width, reference, total);
    else
        gpunn__reduce_rows(GPUNN__COUNT, x, rows, stride, width, reference, total);
}

/* Joins n results of one kind, not GPUNN__TOP, into total. */
static void gpunn__reduce_join(gpunn__reduce_kind kind, const double *GPUNN__RESTRICT result, int64_t n,
                               double *GPUNN__RESTRICT total)
{
    if (kind == GPUNN__MAX)
        for (int64_t j = 0; j < n; j++) total[j] = gpunn__join_wide(GPUNN__MAX, total[j], result[j]);
    else
        for (int64_t j = 0; j < n; j++) total[j] += result[j];
}

/* Repeats row[columns] `fold` times, side by side. */
static const float *gpunn__widen(const float *row, int64_t columns, int64_t fold, float *buffer)
{
    if (fold == 1) return row;
    for (int64_t i = 0; i < fold; i++)
        for (int64_t j = 0; j < columns; j++) buffer[i * columns + j] = row[j];
    return buffer;
}

static void gpunn__reduce_task(void *arg, int thread, int threads)
{
    const gpunn__reduce     *r = (const gpunn__reduce *)arg;
    const gpunn__reduce_kind kind = r->kind;
    int64_t                  begin, end;
    gpunn__cpu_part(r->kept * r->tiles * r->chunks, 1, threads, thread, &begin, &end);
    if (!r->by_column && r->planes * r->chunks == 1) {
        gpunn__reduce_contiguous(r, begin, end);
        return;
    }
    const double start = (double)gpunn__start(kind);
    double       total[GPUNN__TILE];
    float        buffer[GPUNN__TILE];
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t chunk = r->chunks > 1 ? unit % r->chunks : 0,
                tile_index = r->chunks > 1 ? unit / r->chunks : unit;
        int64_t kept = r->tiles > 1 ? tile_index / r->tiles : tile_index,
                column = (tile_index - kept * r->tiles) * GPUNN__TILE;
        int64_t      width = gpunn__least(r->columns - column, GPUNN__TILE);
        const float *x = r->x + gpunn__offset(kept, r->kept_rank, r->kept_dim, r->kept_stride) + column;
        const float *reference = kind == GPUNN__COUNT ? r->reference + kept * r->columns + column : NULL;
        int64_t      from, to;
        gpunn__cpu_part(r->planes * r->rows, r->fold, (int)r->chunks, (int)chunk, &from, &to);
        if (r->by_column) {
            if (kind == GPUNN__COUNT) reference = gpunn__widen(reference, width, r->fold, buffer);
            for (int64_t j = 0; j < width * r->fold; j++) total[j] = start;
        } else
            total[0] = start;
        while (from < to) {
            int64_t      plane = r->planes > 1 ? from / r->rows : 0, row = from - plane * r->rows;
            int64_t      count = gpunn__least(r->rows - row, to - from);
            const float *p = x + gpunn__offset(plane, r->plane_rank, r->plane_dim, r->plane_stride) +
                             row * r->columns;
            if (!r->by_column)
                gpunn__reduce_line(kind, p, count, reference, total);
            else {
                int64_t whole = count / r->fold;
                gpunn__reduce_block(kind, p, whole, r->columns * r->fold, width * r->fold, reference, total);
                if (count > whole * r->fold)
                    gpunn__reduce_block(kind, p + whole * r->fold * r->columns, 1, 0,
                                        (count - whole * r->fold) * width, reference, total);
            }
            from += count;
        }
        for (int64_t i = 1; i < r->fold; i++) gpunn__reduce_join(kind, total + i * width, width, total);
        if (r->partial)
            memcpy(r->partial + unit * (r->by_column ? GPUNN__TILE : 1), total,
                   (size_t)width * sizeof *total);
        else
            for (int64_t j = 0; j < width; j++)
                r->y[kept * r->columns + column + j] = (float)(total[j] * r->scale);
    }
}

static void gpunn__reduce_run(gpunn__cpu *cpu, const gpunn_value *in, gpunn__reduce *r)
{
    gpunn_parallel(gpunn__cpu_threads(cpu, in->count), gpunn__reduce_task, r);
    if (r->chunks == 1) return;
    int64_t span = r->by_column ? GPUNN__TILE : 1;
    for (int64_t unit = 0; unit < r->kept * r->tiles; unit++) {
        int64_t kept = unit / r->tiles, column = unit % r->tiles * GPUNN__TILE;
        int64_t width = gpunn__least(r->columns - column, GPUNN__TILE);
        double *total = r->partial + unit * r->chunks * span;
        for (int64_t chunk = 1; chunk < r->chunks; chunk++)
            gpunn__reduce_join(r->kind, total + chunk * span, width, total);
        for (int64_t j = 0; j < width; j++)
            r->y[kept * r->columns + column + j] = (float)(total[j] * r->scale);
    }
}

/* One line of the gradient. For max: dx[i] (+)= (x[i] is the maximum) ? hit : miss. For sum: dx[i] (+)= hit;
 * x is unused. hit, miss and reference hold one value per element or (single) one for all. */
GPUNN__INLINE void gpunn__spread_row(float *GPUNN__RESTRICT dx, const float *GPUNN__RESTRICT x,
                                     const float *hit, const float *miss, const float *reference, int64_t n,
                                     bool single, bool max, bool add)
{
    float hit0 = hit[0], miss0 = miss[0], reference0 = reference[0];
    for (int64_t i = 0; i < n; i++) {
        float value = single ? hit0 : hit[i];
        if (max) {
            float other = single ? miss0 : miss[i];
            value = x[i] == (single ? reference0 : reference[i]) ? value : other;
        }
        dx[i] = add ? dx[i] + value : value;
    }
}

static void gpunn__spread_sum(float *dx, const float *hit, int64_t n, bool single, bool add)
{
    if (single)
        GPUNN__FIXED(add, gpunn__spread_row, dx, NULL, hit, hit, hit, n, true, false);
    else
        GPUNN__FIXED(add, gpunn__spread_row, dx, NULL, hit, hit, hit, n, false, false);
}

static void gpunn__spread_max(float *dx, const float *x, const float *hit, const float *miss,
                              const float *reference, int64_t n, bool single, bool add)
{
    if (single)
        GPUNN__FIXED(add, gpunn__spread_row, dx, x, hit, miss, reference, n, true, true);
    else
        GPUNN__FIXED(add, gpunn__spread_row, dx, x, hit, miss, reference, n, false, true);
}

/* Gradient of sum and max. Each thread takes whole blocks of rows, or a share of the rows of every block if
 * blocks are few. */
GPUNN__VECTORIZED(gpunn__spread_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    enum { WIDTH = 1024 };
    const gpunn__reduce *r = (const gpunn__reduce *)arg;
    int64_t              begin = 0, end = r->kept * r->planes, first = 0, limit = r->rows;
    if (end >= threads * 4)
        gpunn__cpu_part(end, 1, threads, thread, &begin, &end);
    else
        gpunn__cpu_part(r->rows, r->fold, threads, thread, &first, &limit);
    float   hit[WIDTH], miss[WIDTH], reference[WIDTH];
    bool    is_max = r->kind == GPUNN__MAX;
    int64_t previous = -1;
    for (int64_t column = 0; column < r->columns; column += WIDTH, previous = -1) {
        int64_t width = gpunn__least(r->columns - column, WIDTH), wide = width * r->fold;
        for (int64_t block = begin; block < end; block++) {
            int64_t kept = r->planes > 1 ? block / r->planes : block, plane = block - kept * r->planes;
            int64_t at = gpunn__offset(kept, r->kept_rank, r->kept_dim, r->kept_stride) +
                         gpunn__offset(plane, r->plane_rank, r->plane_dim, r->plane_stride) + column;
            if (kept != previous) {
                int64_t result = kept * r->columns + column;
                for (int64_t j = 0; j < width; j++) {
                    float g = r->gradient[result + j];
                    hit[j] = is_max ? g / r->equal[result + j] : (float)((double)g * r->scale);
                    if (is_max) { /* torch computes mask * g / count: NaN everywhere if the maximum is NaN */
                        miss[j] = g * 0 / r->equal[result + j];
                        reference[j] = r->reference[result + j];
                    }
                }
                for (int64_t j = width; j < wide; j++) {
                    hit[j] = hit[j - width];
                    miss[j] = is_max ? miss[j - width] : 0;
                    reference[j] = is_max ? reference[j - width] : 0;
                }
                previous = kept;
            }
            /* one line: all rows of a block, or `fold` rows at once */
            int64_t step = r->by_column ? r->fold : limit - first;
            for (int64_t row = first; row < limit; row += step) {
                int64_t n = gpunn__least(limit - row, step) * (r->by_column ? width : 1),
                        offset = at + row * r->columns;
                if (is_max)
                    gpunn__spread_max(r->y + offset, r->x + offset, hit, miss, reference, n, !r->by_column,
                                      r->add);
                else
                    gpunn__spread_sum(r->y + offset, hit, n, !r->by_column, r->add);
            }
        }
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_reduce(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action,
                                                gpunn__reduce_kind kind)
{
    const gpunn_value *in = &step->in[0];
    const gpunn_value *out = &step->out;
    gpunn__reduce      r;
    gpunn__reduce_shape(&r, &step->in[0], step->attr->axes);
    size_t partial_bytes = gpunn__reduce_partial_bytes(&r);
    size_t equal_bytes = step->backward && kind == GPUNN__MAX ? (size_t)out->count * sizeof(float) : 0;
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = step->backward && kind == GPUNN__SUM ? 0 : partial_bytes + equal_bytes;
        return GPUNN_OK;
    }
    if (step->backward && !step->grad_in[0].data) return GPUNN_OK;
    r.kind = kind;
    r.partial = partial_bytes ? (double *)step->workspace : NULL;
    r.x = (const float *)step->in[0].data;
    r.scale = step->attr->mean ? (double)out->count / (double)in->count : 1;
    r.reference = action == GPUNN__FORWARD ? NULL : (const float *)step->out.data;
    if (action == GPUNN__FORWARD) {
        r.y = (float *)out->data;
        gpunn__reduce_run(cpu, in, &r);
        return GPUNN_OK;
    }
    r.equal = NULL;
    if (kind == GPUNN__MAX) {
        float *equal = (float *)(void *)((char *)step->workspace + partial_bytes);
        r.kind = GPUNN__COUNT;
        r.y = equal;
        gpunn__reduce_run(cpu, in, &r);
        r.kind = GPUNN__MAX;
        r.equal = equal;
    }
    r.y = (float *)step->grad_in[0].data;
    r.gradient = (const float *)step->grad_out.data;
    r.add = step->accumulate[0];
    gpunn_parallel(gpunn__cpu_threads(cpu, in->count), gpunn__spread_task, &r);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_sum(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (step->in[0].dtype != GPUNN_F32) return gpunn__cpu_integer(cpu, step, action);
    return gpunn__cpu_reduce(cpu, step, action, GPUNN__SUM);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_max(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (step->in[0].dtype != GPUNN_F32) return gpunn__cpu_integer(cpu, step, action);
    return gpunn__cpu_reduce(cpu, step, action, GPUNN__MAX);
}

/* ---- gradient_energy ------------------------------------------------------------------------------------ *
 * The
 * last of the axes and everything after it form a row. The other axes step from row to row. */

typedef struct gpunn__energy {
    int          count;                  /* number of axes; axes of size 1 are omitted */
    int64_t      rows, length;           /* of a row */
    int64_t      size[GPUNN_MAX_RANK];   /* along each axis */
    int64_t      stride[GPUNN_MAX_RANK]; /* in elements */
    double       share[GPUNN_MAX_RANK];  /* weight of one difference in the mean along that axis */
    const float *x, *dy;
    float       *dx;
    double      *sums; /* [rows] */
    bool         add;
} gpunn__energy;

static gpunn__energy gpunn__energy_of(const gpunn_step *step)
{
    const gpunn_value *x = &step->in[0];
    gpunn__energy      e;
    memset(&e, 0, sizeof e);
    e.count = gpunn__energy_axes(step, e.size, e.stride, e.share);
    e.length = e.count > 0 ? e.size[e.count - 1] * e.stride[e.count - 1] : 1;
    e.rows = e.count > 0 ? x->count / e.length : 1;
    return e;
}

/* Sum of squared differences. The order of summation depends only on n. */
static double gpunn__squared_distance(const float *a, const float *b, int64_t n)
{
    enum { LANES = 16, BLOCK = 1024 };
    double sum = 0;
    for (int64_t first = 0; first < n; first += BLOCK) {
        float   lane[LANES] = {0};
        int64_t i = first, end = gpunn__least(n, first + BLOCK);
        for (; i + LANES <= end; i += LANES)
            for (int l = 0; l < LANES; l++) lane[l] += (a[i + l] - b[i + l]) * (a[i + l] - b[i + l]);
        for (int l = 0; i < end; i++, l++) lane[l] += (a[i] - b[i]) * (a[i] - b[i]);
        for (int l = 0; l < LANES; l++) sum += lane[l];
    }
    return sum;
}

GPUNN__VECTORIZED(gpunn__energy_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__energy *e = (const gpunn__energy *)arg;
    int64_t              row, end;
    gpunn__cpu_part(e->rows, 1, threads, thread, &row, &end);
    for (; row < end; row++) {
        const float *x = e->x + row * e->length;
        double       sum = 0;
        for (int k = 0; k < e->count; k++) {
            int64_t stride = e->stride[k], last = e->size[k] - 1;
            if (k == e->count - 1)
                sum += e->share[k] * gpunn__squared_distance(x + stride, x, e->length - stride);
            else if (row * e->length / stride % e->size[k] < last)
                sum += e->share[k] * gpunn__squared_distance(x + stride, x, e->length);
        }
        e->sums[row] = sum;
    }
}

/* dx += factor * ((x - before) - (after - x)). Where there is no neighbour, before or after is x. */
static void gpunn__energy_dx(float *dx, const float *x, const float *before, const float *after, int64_t n,
                             float factor)
{
    GPUNN__IVDEP
    for (int64_t i = 0; i < n; i++) dx[i] += factor * (x[i] - before[i] - (after[i] - x[i]));
}

GPUNN__VECTORIZED(gpunn__energy_back_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__energy *e = (const gpunn__energy *)arg;
    int64_t              row, end;
    gpunn__cpu_part(e->rows, 1, threads, thread, &row, &end);
    for (; row < end; row++) {
        const float *x = e->x + row * e->length;
        float       *dx = e->dx + row * e->length;
        if (!e->add) memset(dx, 0, (size_t)e->length * sizeof *dx);
        for (int k = 0; k < e->count; k++) {
            int64_t stride = e->stride[k], last = e->length - stride,
                    at = row * e->length / stride % e->size[k];
            float factor = (float)(2 * e->share[k] * (double)*e->dy);
            if (k < e->count - 1) {
                gpunn__energy_dx(dx, x, at > 0 ? x - stride : x, at < e->size[k] - 1 ? x + stride : x,
                                 e->length, factor);
                continue;
            }
            gpunn__energy_dx(dx, x, x, x + stride, stride, factor);
            gpunn__energy_dx(dx + stride, x + stride, x, x + 2 * stride, last - stride, factor);
            gpunn__energy_dx(dx + last, x + last, x + last - stride, x + last, stride, factor);
        }
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_gradient_energy(gpunn__cpu *cpu, gpunn_step *step,
                                                         gpunn__action action)
{
    gpunn__energy e = gpunn__energy_of(step);
    int           threads = gpunn__cpu_threads_for(cpu, (double)step->in[0].count * (double)e.count);
    e.x = (const float *)step->in[0].data;
    if (action == GPUNN__PREPARE) {
        if (!step->backward) step->workspace_bytes = (size_t)e.rows * sizeof *e.sums;
    } else if (action == GPUNN__FORWARD) {
        double sum = 0;
        e.sums = (double *)step->workspace;
        gpunn_parallel(threads, gpunn__energy_task, &e);
        for (int64_t row = 0; row < e.rows; row++) sum += e.sums[row];
        *(float *)step->out.data = (float)sum;
    } else {
        e.dy = (const float *)step->grad_out.data;
        e.dx = (float *)step->grad_in[0].data;
        e.add = step->accumulate[0];
        gpunn_parallel(threads, gpunn__energy_back_task, &e);
    }
    return GPUNN_OK;
}

/* ---- cumsum over x[outer][n][inner]; backward is the same from the end --------------------------------- */

typedef struct gpunn__cumsum {
    gpunn__along along; /* x: the operand, or in backward the gradient */
    bool         reverse;
} gpunn__cumsum;

/* sum += x, y (+)= sum. */
GPUNN__INLINE void gpunn__cumsum_row(const float *GPUNN__RESTRICT x, double *GPUNN__RESTRICT sum,
                                     float *GPUNN__RESTRICT y, int64_t n, bool add)
{
    for (int64_t j = 0; j < n; j++) {
        sum[j] += (double)x[j];
        y[j] = (add ? y[j] : 0) + (float)sum[j];
    }
}

GPUNN__VECTORIZED_AVX2(gpunn__cumsum_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__cumsum *k = (const gpunn__cumsum *)arg;
    const gpunn__along  *a = &k->along;
    enum { WIDTH = 64 };
    int64_t blocks = (a->inner + WIDTH - 1) / WIDTH, unit, end;
    gpunn__cpu_part(a->outer * blocks, 1, threads, thread, &unit, &end);
    for (; unit < end; unit++) {
        int64_t o = unit / blocks, column = (unit - o * blocks) * WIDTH,
                width = gpunn__least(a->inner - column, WIDTH);
        double sum[WIDTH] = {0};
        for (int64_t i = 0; i < a->n; i++) {
            int64_t      at = (o * a->n + (k->reverse ? a->n - 1 - i : i)) * a->inner + column;
            const float *x = a->x + at;
            float       *y = a->out + at;
            GPUNN__FIXED(a->add, gpunn__cumsum_row, x, sum, y, width);
        }
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_cumsum(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__cumsum k;
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    gpunn__along_axis(&k.along, &step->in[0], step->attr->axis);
    k.reverse = step->backward;
    k.along.x = (const float *)(step->backward ? step->grad_out.data : step->in[0].data);
    k.along.out = (float *)(step->backward ? step->grad_in[0].data : step->out.data);
    k.along.add = step->backward && step->accumulate[0];
    gpunn_parallel(gpunn__cpu_threads(cpu, step->in[0].count), gpunn__cumsum_task, &k);
    return GPUNN_OK;
}

/* ---- cross: vector products of the 3 elements along an axis: x[outer][3][inner] ------------------------ */

typedef struct gpunn__cross {
    const float *a, *b;
    float       *y;
    int64_t      outer, inner;
    bool         add;
} gpunn__cross;

GPUNN__VECTORIZED(gpunn__cross_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__cross *c = (const gpunn__cross *)arg;
    const int64_t       n = c->inner;
    int64_t             at, end, width;
    gpunn__cpu_part(c->outer * n, 16, threads, thread, &at, &end);
    for (; at < end; at += width) {
        const int64_t o = at / n, first = at + 2 * n * o; /* 3 n o + (at - n o) */
        const float  *a = c->a + first, *b = c->b + first;
        float        *y = c->y + first;
        width = gpunn__least(n * (o + 1), end) - at;
        for (int k = 0; k < 3; k++) {
            const int64_t p = (k + 1) % 3 * n, q = (k + 2) % 3 * n;
            for (int64_t i = 0; i < width; i++) {
                const float value = a[p + i] * b[q + i] - a[q + i] * b[p + i];
                y[k * n + i] = c->add ? y[k * n + i] + value : value;
            }
        }
    }
}

static void gpunn__cross_run(gpunn__cpu *cpu, const gpunn_step *step, const gpunn_value *a,
                             const gpunn_value *b, const gpunn_value *y, bool add)
{
    gpunn__along shape;
    gpunn__along_axis(&shape, a, step->attr->axis);
    gpunn__cross c = {
        (const float *)a->data, (const float *)b->data, (float *)y->data, shape.outer, shape.inner, add};
    if (c.y) gpunn_parallel(gpunn__cpu_threads(cpu, y->count), gpunn__cross_task, &c);
}

/* da = b x g, db = g x a. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_cross(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *a = &step->in[0], *b = &step->in[1], *g = &step->grad_out;
    if (action == GPUNN__FORWARD) gpunn__cross_run(cpu, step, a, b, &step->out, false);
    if (action != GPUNN__BACKWARD) return GPUNN_OK;
    gpunn__cross_run(cpu, step, b, g, &step->grad_in[0], step->accumulate[0]);
    gpunn__cross_run(cpu, step, g, a, &step->grad_in[1], step->accumulate[1]);
    return GPUNN_OK;
}
