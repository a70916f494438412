#include "cpu/levels.h"
#include "cpu/reduce.h"
#include "cpu/softmax.h"

/* ==== >>cpu/loss ========================================================================================= *
 * cross_entropy and nll: x[n][classes][inner], one label per row, row = n * inner + position. l =
 * log_softmax(x) (for nll, x itself), w is the class weights (1 if absent) and e the label smoothing (0 for
 * nll). The loss of a row that is not ignored is
 *     (1 - e) w[label] (-l[label]) + e / classes * sum over c of w[c] (-l[c])
 * and the mean divides by the sum of w[label]. The gradient is dx[c] = a p[c] - b (c == label) - d w[c], with
 * p = softmax(x) and
 *     b = s (1 - e) w[label], d = s e / classes, a = b + d sum w, s = g / divisor; nll: a = d = 0.
 * Saved for backward: the divisor; for cross_entropy also the maximum and 1 / sum exp(x - maximum) of each
 * row. */
enum { GPUNN__LOSS_PARTS = 64 };

typedef struct gpunn__class_loss {
    gpunn__along along;         /* x: logits, out: losses or dx */
    bool         softmax, none; /* none: no reduction */
    gpunn_dtype  label_type;
    const void  *labels;
    const float *weight;
    double       smoothing, weight_sum; /* weight_sum: over all classes */
    int64_t      ignore, rows, part_rows, parts;
    float       *top, *inverse; /* saved, per row */
    double       divisor;
    double       loss[GPUNN__LOSS_PARTS], weights[GPUNN__LOSS_PARTS];
    int64_t      bad[GPUNN__LOSS_PARTS]; /* first row with an invalid label; -1: none */
} gpunn__class_loss;

GPUNN__INLINE int64_t gpunn__label(const gpunn__class_loss *l, int64_t row)
{
    return gpunn__integer(l->labels, l->label_type, row);
}

/* sum over c of w[c] (top - x[c]), for label smoothing. */
static double gpunn__smooth_sum(const gpunn__class_loss *l, const float *x, float top)
{
    double total = 0;
    for (int64_t c = 0; c < l->along.n; c++)
        total += (l->weight ? (double)l->weight[c] : 1) * ((double)top - (double)x[c * l->along.inner]);
    return total;
}

/* A tile is one row, or up to GPUNN__COLUMNS neighbouring rows with the same n. Returns its width, at most
 * `limit`, and its offset in x. */
GPUNN__INLINE int64_t gpunn__loss_tile(const gpunn__along *a, int64_t row, int64_t limit, int64_t *offset)
{
    int64_t outer = row / a->inner, column = row - outer * a->inner, width = a->inner - column;
    *offset = outer * a->n * a->inner + column;
    return gpunn__least(gpunn__least(width, limit), GPUNN__COLUMNS);
}

static void gpunn__loss_forward_part(gpunn__class_loss *l, int64_t part)
{
    const gpunn__along *a = &l->along;
    int64_t             row = part * l->part_rows, end = gpunn__least(row + l->part_rows, l->rows), width;
    double              loss = 0, weights = 0;
    l->bad[part] = -1;
    for (; row < end; row += width) {
        float   sum[GPUNN__COLUMNS];
        int64_t offset;
        width = gpunn__loss_tile(a, row, end - row, &offset);
        const float *x = a->x + offset;
        if (l->softmax) gpunn__exp_sum(x, a->n, a->inner, width, l->top + row, sum, NULL);
        for (int64_t j = 0; j < width; j++) {
            int64_t label = gpunn__label(l, row + j);
            double  cost = 0;
            if (l->softmax) l->inverse[row + j] = 1 / sum[j];
            if (label != l->ignore && (label < 0 || label >= a->n)) {
                if (l->bad[part] < 0) l->bad[part] = row + j;
            } else if (label != l->ignore) {
                double weight = l->weight ? (double)l->weight[label] : 1;
                cost = -(double)x[label * a->inner + j];
                if (l->softmax) {
                    float  top = l->top[row + j];
                    double spread = (double)gpunn__log(sum[j]);
                    cost = (1 - l->smoothing) * weight * ((double)top + cost + spread);
                    if (l->smoothing > 0)
                        cost += l->smoothing / (double)a->n *
                                (gpunn__smooth_sum(l, x + j, top) + l->weight_sum * spread);
                } else
                    cost *= weight;
                loss += cost;
                weights += weight;
            }
            if (l->none) a->out[row + j] = (float)cost;
        }
    }
    l->loss[part] = loss;
    l->weights[part] = weights;
}

GPUNN__VECTORIZED(gpunn__loss_forward_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    gpunn__class_loss *l = (gpunn__class_loss *)arg;
    int64_t            begin, end;
    gpunn__cpu_part(l->parts, 1, threads, thread, &begin, &end);
    for (; begin < end; begin++) gpunn__loss_forward_part(l, begin);
}

/* dx (+)= factor exp(x - top). top and factor are per column, or (single) one for all. */
GPUNN__INLINE void gpunn__loss_row(float *GPUNN__RESTRICT dx, const float *GPUNN__RESTRICT x,
                                   const float *GPUNN__RESTRICT top, const float *GPUNN__RESTRICT factor,
                                   int64_t n, bool single, bool add)
{
    float top0 = top[0], factor0 = factor[0];
    for (int64_t i = 0; i < n; i++) {
        float value = (single ? factor0 : factor[i]) * gpunn__exp_down(x[i] - (single ? top0 : top[i]));
        dx[i] = add ? dx[i] + value : value;
    }
}

GPUNN__VECTORIZED(gpunn__loss_backward_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__class_loss *l = (const gpunn__class_loss *)arg;
    const gpunn__along      *a = &l->along;
    int64_t                  row, end, width;
    gpunn__cpu_part(l->rows, 1, threads, thread, &row, &end);
    for (; row < end; row += width) {
        float   factor[GPUNN__COLUMNS], flat[GPUNN__COLUMNS], at_label[GPUNN__COLUMNS];
        int64_t label[GPUNN__COLUMNS], offset;
        width = gpunn__loss_tile(a, row, end - row, &offset);
        for (int64_t j = 0; j < width; j++) {
            label[j] = gpunn__label(l, row + j);
            if (label[j] < 0 || label[j] >= a->n || label[j] == l->ignore) {
                label[j] = -1;
                factor[j] = flat[j] = at_label[j] = 0;
                continue;
            }
            double scale = (double)a->gradient[l->none ? row + j : 0] / l->divisor;
            double b = scale * (1 - l->smoothing) * (l->weight ? (double)l->weight[label[j]] : 1);
            double d = scale * l->smoothing / (double)a->n;
            at_label[j] = (float)b;
            flat[j] = (float)d;
            factor[j] = l->softmax ? (float)((b + d * l->weight_sum) * (double)l->inverse[row + j]) : 0;
        }
        float  *dx = a->out + offset;
        int64_t lines = a->inner == 1 ? 1 : a->n, length = a->inner == 1 ? a->n : width;
        for (int64_t c = 0; c < lines; c++) {
            /* nll_loss's backward does not need it */
            const float *x = l->softmax ? a->x + offset + c * a->inner : NULL;
            float       *to = dx + c * a->inner;
            if (l->softmax && a->inner == 1)
                GPUNN__FIXED(a->add, gpunn__loss_row, to, x, l->top + row, factor, length, true);
            else if (l->softmax)
                GPUNN__FIXED(a->add, gpunn__loss_row, to, x, l->top + row, factor, length, false);
            else if (!a->add)
                memset(to, 0, (size_t)length * sizeof *to);
        }
        if (l->smoothing > 0)
            for (int64_t c = 0; c < a->n; c++)
                for (int64_t j = 0; j < width; j++)
                    dx[c * a->inner + j] -= flat[j] * (l->weight ? l->weight[c] : 1);
        for (int64_t j = 0; j < width; j++)
            if (label[j] >= 0) dx[label[j] * a->inner + j] -= at_label[j];
    }
}

static GPUNN__STATUS gpunn__class_loss_run(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action,
                                           bool softmax)
{
    const gpunn_value *in = step->in;
    gpunn__class_loss  l;
    gpunn__along_axis(&l.along, &in[0], in[0].rank > 1 ? 1 : 0);
    l.rows = l.along.outer * l.along.inner;
    size_t row_bytes = softmax ? (size_t)l.rows * sizeof(float) : 0;
    if (action == GPUNN__PREPARE) {
        if (!step->backward) step->saved_bytes = sizeof l.divisor + 2 * row_bytes;
        return GPUNN_OK;
    }
    char *saved = (char *)step->saved;
    l.top = (float *)(void *)(saved + sizeof l.divisor);
    l.inverse = l.top + (softmax ? l.rows : 0);
    l.softmax = softmax;
    l.none = step->attr->reduction == GPUNN_REDUCE_NONE;
    l.label_type = in[1].dtype;
    l.labels = in[1].data;
    l.weight = step->input_count > 2 ? (const float *)in[2].data : NULL;
    l.smoothing = softmax ? (double)step->attr->label_smoothing : 0;
    l.ignore = step->attr->ignore_index;
    l.weight_sum = (double)l.along.n;
    if (l.weight && l.smoothing > 0) {
        l.weight_sum = 0;
        for (int64_t c = 0; c < l.along.n; c++) l.weight_sum += (double)l.weight[c];
    }
    l.along.x = (const float *)in[0].data;
    int threads = gpunn__cpu_threads(cpu, 3 * in[0].count);
    if (action == GPUNN__BACKWARD) {
        if (!step->grad_in[0].data) return GPUNN_OK;
        memcpy(&l.divisor, saved, sizeof l.divisor);
        l.along.out = (float *)step->grad_in[0].data;
        l.along.gradient = (const float *)step->grad_out.data;
        l.along.add = step->accumulate[0];
        gpunn_parallel(threads, gpunn__loss_backward_task, &l);
        return GPUNN_OK;
    }
    l.along.out = (float *)step->out.data;
    l.part_rows = 16384 / l.along.n + 1;
    if (l.part_rows * GPUNN__LOSS_PARTS < l.rows)
        l.part_rows = (l.rows + GPUNN__LOSS_PARTS - 1) / GPUNN__LOSS_PARTS;
    l.parts = (l.rows + l.part_rows - 1) / l.part_rows;
    gpunn_parallel(threads, gpunn__loss_forward_task, &l);
    double loss = 0, weights = 0;
    for (int64_t part = 0; part < l.parts; part++) {
        if (l.bad[part] >= 0)
            return gpunn__cpu_fail(cpu, GPUNN_ERR_ARGUMENT,
                                   "label %lld at position %lld is outside 0 .. %lld and is not ignore_index "
                                   "%lld; check the labels",
                                   (long long)gpunn__label(&l, l.bad[part]), (long long)l.bad[part],
                                   (long long)(l.along.n - 1), (long long)l.ignore);
        loss += l.loss[part];
        weights += l.weights[part];
    }
    l.divisor = step->attr->reduction == GPUNN_REDUCE_MEAN ? weights : 1;
    memcpy(saved, &l.divisor, sizeof l.divisor);
    if (!l.none) *l.along.out = loss == 0 && l.divisor == 0 ? -0.0f : (float)(loss / l.divisor);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_cross_entropy(gpunn__cpu *cpu, gpunn_step *step,
                                                       gpunn__action action)
{
    return gpunn__class_loss_run(cpu, step, action, true);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_nll(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__class_loss_run(cpu, step, action, false);
}

/* ---- ctc_loss ------------------------------------------------------------------------------------------- *
 * *
 * The labels of a target, with a blank before, between and after them, form 2 length + 1 places. a[t][s] is
 * the log-probability of all paths that reach place s at time t. It equals log(exp(a[t-1][s]) +
 * exp(a[t-1][s-1]) + exp(a[t-1][s-2])) + x[t][s], where x[t][s] is x of the place's class. The last term
 * exists only if places s and s - 2 have different labels. b[t][s] is the same from the end. The gradient of
 * x[t][class] is the sum over the class's places of -exp(a + b - x - log likelihood). Each row is stored
 * relative to the maxima of the rows before it, whose sum is `offset`. So values stay small and accurate,
 * however long the input is.
 *
 * Saved: the loss of each sample, -log likelihood; in training also the offsets and the rows of a. Two places
 * of -inf precede each row. */

typedef struct gpunn__ctc {
    const gpunn_step *step;
    const float      *x;
    double           *loss, *offset;      /* [n], [n][times] */
    float            *dx, *rows;          /* rows [n][row_count][row] */
    float            *skip, *emit, *back; /* [n][row], [n][row], [n][2][row] */
    int32_t          *classes;            /* [n][row] */
    /* count: classes; most: maximum labels of a target */
    int64_t times, samples, count, most, row, row_count;
    int64_t time_stride, sample_stride;
} gpunn__ctc;

static int64_t gpunn__ctc_number(const gpunn__ctc *c, int operand, int64_t i)
{
    return gpunn__integer(c->step->in[operand].data, c->step->in[operand].dtype, i);
}

/* log(exp(a) + exp(b) + exp(c)) */
GPUNN__INLINE float gpunn__log_add(float a, float b, float c)
{
    float top = gpunn__select(a > b, a, b);
    top = gpunn__select(c > top, c, top);
    top = gpunn__select(top == -INFINITY, 0, top);
    return top + gpunn__log(gpunn__exp_down(a - top) + gpunn__exp_down(b - top) + gpunn__exp_down(c - top));
}

/* to[s] = log(exp(from[s]) + exp(from[s + way]) + exp(from[s + 2 way] + skip)) + emit[s] - max of from. way
 * is 1 if back, else -1. skip belongs to the later of the two places. Returns that maximum. */
GPUNN__INLINE double gpunn__ctc_row(float *GPUNN__RESTRICT to, const float *from,
                                    const float *GPUNN__RESTRICT skip, const float *GPUNN__RESTRICT emit,
                                    int64_t n, bool back)
{
    const int64_t way = back ? 1 : -1;
    float         most = (float)gpunn__reduce_row(GPUNN__TOP, from, n, 0);
    if (most == -INFINITY) most = 0;
    for (int64_t s = 0; s < n; s++)
        to[s] = gpunn__log_add(from[s], from[s + way], from[s + 2 * way] + skip[back ? s + 2 : s]) +
                (emit[s] - most);
    return (double)most;
}

static void gpunn__ctc_emit(const gpunn__ctc *c, int64_t sample, int64_t time, int64_t n,
                            const int32_t *classes, float *emit)
{
    const float *x = c->x + time * c->time_stride + sample * c->sample_stride;
    for (int64_t s = 0; s < n; s++) emit[s] = x[classes[s]];
}

static void gpunn__ctc_forward_task(void *arg, int thread, int threads)
{
    gpunn__ctc *c = (gpunn__ctc *)arg;
    int64_t     sample, end;
    gpunn__cpu_part(c->samples, 1, threads, thread, &sample, &end);
    for (; sample < end; sample++) {
        int64_t  times = gpunn__ctc_number(c, 2, sample), length = gpunn__ctc_number(c, 3, sample);
        float   *skip = c->skip + sample * c->row, *emit = c->emit + sample * c->row;
        int32_t *classes = c->classes + sample * c->row;
        bool     sound = times >= 0 && times <= c->times && length >= 0 && length <= c->most;
        int64_t  n = sound ? 2 * length + 1 : 0;
        for (int64_t s = 0; s < n; s++) {
            int64_t label = s % 2 ? gpunn__ctc_number(c, 1, sample * c->most + s / 2) : c->step->attr->blank;
            sound = sound && label >= 0 && label < c->count;
            classes[s] = sound ? (int32_t)label : 0;
            skip[s] = s % 2 && s > 1 && classes[s] != classes[s - 2] ? 0 : -INFINITY;
        }
        c->loss[sample] = NAN;
        if (!sound) continue;
        skip[n] = skip[n + 1] = -INFINITY;
        float *first = c->rows + sample * c->row_count * c->row + 2, *row = first;
        double offset = 0;
        for (int64_t k = 0; k < c->row_count; k++) first[k * c->row - 1] = first[k * c->row - 2] = -INFINITY;
        for (int64_t t = 0; t < times; t++) {
            const float *before = row;
            row = first + t % c->row_count * c->row;
            gpunn__ctc_emit(c, sample, t, n, classes, emit);
            if (t > 0)
                offset += gpunn__ctc_row(row, before, skip, emit, n, false);
            else
                for (int64_t s = 0; s < n; s++) row[s] = s < 2 ? emit[s] : -INFINITY;
            if (c->step->training) c->offset[sample * c->times + t] = offset;
        }
        if (times == 0)
            c->loss[sample] = length == 0 ? 0 : INFINITY;
        else
            c->loss[sample] = -offset -
                              (double)gpunn__log_add(row[n - 1], n > 1 ? row[n - 2] : -INFINITY, -INFINITY);
    }
}

static double gpunn__ctc_share_of(const gpunn__ctc *c, int64_t sample)
{
    const gpunn_attributes *attr = c->step->attr;
    return gpunn__ctc_share(c->loss[sample], gpunn__ctc_number(c, 3, sample), c->samples, attr->reduction,
                            attr->zero_infinity);
}

static void gpunn__ctc_backward_task(void *arg, int thread, int threads)
{
    const gpunn__ctc *c = (const gpunn__ctc *)arg;
    const float      *gradient = (const float *)c->step->grad_out.data;
    int64_t           sample, end;
    gpunn__cpu_part(c->samples, 1, threads, thread, &sample, &end);
    for (; sample < end; sample++) {
        int64_t      times = gpunn__ctc_number(c, 2, sample), n = 2 * gpunn__ctc_number(c, 3, sample) + 1;
        const float *skip = c->skip + sample * c->row, *first = c->rows + sample * c->row_count * c->row + 2;
        float       *emit = c->emit + sample * c->row, *row = c->back + 2 * sample * c->row;
        const int32_t *classes = c->classes + sample * c->row;
        double         share = gpunn__ctc_share_of(c, sample), offset = c->loss[sample];
        float          scale = (float)(share *
                              (double)gradient[c->step->attr->reduction == GPUNN_REDUCE_NONE ? sample : 0]);
        for (int64_t t = c->times - 1; t >= 0; t--) {
            float *dx = c->dx + t * c->time_stride + sample * c->sample_stride;
            if (!c->step->accumulate[0]) memset(dx, 0, (size_t)c->count * sizeof *dx);
            if (t >= times || share == 0) continue;
            const float *before = row, *forth = first + t * c->row;
            row = c->back + (2 * sample + t % 2) * c->row;
            gpunn__ctc_emit(c, sample, t, n, classes, emit);
            row[n] = row[n + 1] = -INFINITY;
            if (t < times - 1)
                offset += gpunn__ctc_row(row, before, skip, emit, n, true);
            else
                for (int64_t s = 0; s < n; s++) row[s] = s > n - 3 ? emit[s] : -INFINITY;
            float shift = (float)(offset + c->offset[sample * c->times + t]);
            for (int64_t s = 0; s < n; s++) {
                float both = forth[s] + row[s];
                emit[s] = gpunn__select(both == -INFINITY, 0, scale * gpunn__exp(both - emit[s] + shift));
            }
            for (int64_t s = 0; s < n; s++) dx[classes[s]] -= emit[s];
        }
    }
}

/* Checks that the numbers of a sample are in range, and reports the one that is not. */
static GPUNN__STATUS gpunn__ctc_check(gpunn__cpu *cpu, const gpunn__ctc *c, int64_t sample)
{
    int64_t times = gpunn__ctc_number(c, 2, sample), length = gpunn__ctc_number(c, 3, sample);
    if (times < 0 || times > c->times || length < 0 || length > c->most)
        return gpunn__cpu_fail(cpu, GPUNN_ERR_ARGUMENT,
                               "sample %lld has input length %lld (at most %lld) and target length %lld (at "
                               "most %lld); check the lengths",
                               (long long)sample, (long long)times, (long long)c->times, (long long)length,
                               (long long)c->most);
    for (int64_t k = 0; k < length; k++) {
        int64_t label = gpunn__ctc_number(c, 1, sample * c->most + k);
        if (label < 0 || label >= c->count)
            return gpunn__cpu_fail(cpu, GPUNN_ERR_ARGUMENT,
                                   "label %lld of sample %lld is outside 0 .. %lld; check the targets",
                                   (long long)label, (long long)sample, (long long)(c->count - 1));
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_ctc_loss(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *x = &step->in[0];
    const int          sample = step->attr->batch_first ? 0 : 1;
    gpunn__ctc         c;
    memset(&c, 0, sizeof c);
    c.step = step;
    c.times = x->dim[1 - sample];
    c.samples = x->dim[sample];
    c.count = x->dim[2];
    c.most = step->in[1].dim[1];
    c.row = 2 * c.most + 3;
    c.row_count = step->training ? c.times : 2;
    c.time_stride = sample ? c.samples * c.count : c.count;
    c.sample_stride = sample ? c.count : c.times * c.count;
    const int64_t doubles = c.samples * (step->training ? 1 + c.times : 1), scratch = c.samples * c.row;
    const int64_t rows = scratch * c.row_count;
    const size_t  bytes = (size_t)doubles * sizeof *c.loss + (size_t)(rows + 3 * scratch) * sizeof *c.rows;
    if (action == GPUNN__PREPARE) {
        if (c.count > INT32_MAX)
            return gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED, "there are more than 2^31 - 1 classes");
        if (!step->backward) step->saved_bytes = step->training ? bytes : 0;
        if (step->backward)
            step->workspace_bytes = 2 * (size_t)scratch * sizeof *c.back;
        else
            step->workspace_bytes = step->training ? 0 : bytes;
        return GPUNN_OK;
    }
    c.loss = (double *)(step->training ? step->saved : step->workspace);
    c.offset = c.loss + c.samples;
    c.rows = (float *)(void *)(c.loss + doubles);
    c.skip = c.rows + rows;
    c.emit = c.skip + scratch;
    c.classes = (int32_t *)(void *)(c.emit + scratch);
    c.x = (const float *)x->data;
    int threads = gpunn__cpu_threads(cpu, 64 * c.times * scratch);
    if (threads > c.samples) threads = (int)c.samples;
    if (action == GPUNN__BACKWARD) {
        c.dx = (float *)step->grad_in[0].data;
        c.back = (float *)step->workspace;
        if (c.dx) gpunn_parallel(threads, gpunn__ctc_backward_task, &c);
        return GPUNN_OK;
    }
    gpunn_parallel(threads, gpunn__ctc_forward_task, &c);
    double total = 0;
    bool   none = step->attr->reduction == GPUNN_REDUCE_NONE;
    for (int64_t i = 0; i < c.samples; i++) {
        double share = gpunn__ctc_share_of(&c, i), cost = share == 0 ? 0 : share * c.loss[i];
        if (c.loss[i] != c.loss[i] && gpunn__ctc_check(cpu, &c, i) != GPUNN_OK) return GPUNN_ERR_ARGUMENT;
        total += cost;
        if (none) ((float *)step->out.data)[i] = (float)cost;
    }
    if (!none) *(float *)step->out.data = (float)total;
    return GPUNN_OK;
}
