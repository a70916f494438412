#include "graph/nodes.h"
#include "cpu/context.h"
#include "cpu/pixels.h"

/* ==== >>cpu/move ========================================================================================= *
 * Ops that only move data. */
/* ---- strided copies: the implementation of permute, concat, slice and pad ------------------------------ */

typedef struct gpunn__copy {
    int         rank;
    int64_t     dim[GPUNN_MAX_RANK], to_stride[GPUNN_MAX_RANK], from_stride[GPUNN_MAX_RANK]; /* in bytes */
    char       *to;
    const char *from;
    size_t      size;   /* of an element, in bytes */
    bool        add;    /* to += from, for floats */
    int         across; /* the axis along which `from` is contiguous if the last axis is not; else -1 */
    int64_t     outer;  /* product of all axes except the last and `across` */
} gpunn__copy;

/* Every caller passes constants for size and add. */
GPUNN__INLINE void gpunn__move(char *to, const char *from, size_t size, bool add)
{
    if (add) {
        float sum, term;
        memcpy(&sum, to, sizeof sum);
        memcpy(&term, from, sizeof term);
        sum += term;
        memcpy(to, &sum, sizeof sum);
    } else
        memcpy(to, from, size);
}

GPUNN__INLINE void gpunn__move_row(char *to, int64_t to_stride, const char *from, int64_t from_stride,
                                   int64_t n, size_t size, bool add)
{
    if (to_stride == (int64_t)size && from_stride == (int64_t)size) {
        if (!add)
            memcpy(to, from, (size_t)n * size);
        else {
            GPUNN__IVDEP
            for (int64_t i = 0; i < n; i++)
                gpunn__move(to + i * (int64_t)sizeof(float), from + i * (int64_t)sizeof(float), size, add);
        }
        return;
    }
    GPUNN__IVDEP
    for (int64_t i = 0; i < n; i++) gpunn__move(to + i * to_stride, from + i * from_stride, size, add);
}

/* Copies `count` elements of the last axis, along which `to` is contiguous, and all of `across`, along which
 * `from` is. The work proceeds in squares that fit the first-level cache. */
GPUNN__INLINE void gpunn__move_across(const gpunn__copy *c, char *to, const char *from, int64_t count,
                                      size_t size, bool add)
{
    enum { SIDE = 16, PIXELS = 64 };
    const int64_t n = c->dim[c->across], row = c->to_stride[c->across], plane = c->from_stride[c->rank - 1];
    if (size == sizeof(float) && !add) {
        for (int64_t b = 0; b < n; b += PIXELS)
            gpunn__to_pixels((const float *)(const void *)from + b, plane / (int64_t)size, count,
                             gpunn__least(PIXELS, n - b), (float *)(void *)(to + b * row),
                             row / (int64_t)size);
        return;
    }
    for (int64_t b = 0; b < n; b += SIDE)
        for (int64_t a = 0; a < count; a += SIDE) {
            const int64_t a_end = gpunn__least(a + SIDE, count), b_end = gpunn__least(b + SIDE, n);
            for (int64_t y = b; y < b_end; y++)
                for (int64_t x = a; x < a_end; x++)
                    gpunn__move(to + y * row + x * (int64_t)size, from + x * plane + y * (int64_t)size, size,
                                add);
        }
}

/* Copies outer positions begin .. end - 1 and elements first .. limit - 1 of the last axis. */
GPUNN__INLINE void gpunn__copy_part(const gpunn__copy *c, int64_t begin, int64_t end, int64_t first,
                                    int64_t limit, size_t size, bool add)
{
    int     last = c->rank - 1;
    int64_t index[GPUNN_MAX_RANK] = {0}, to_stride = c->to_stride[last], from_stride = c->from_stride[last];
    char   *to = c->to + first * to_stride;
    const char *from = c->from + first * from_stride;
    int64_t     rest = begin;
    for (int d = last - 1; d >= 0; d--) {
        if (d == c->across) continue;
        index[d] = rest % c->dim[d];
        rest /= c->dim[d];
        to += index[d] * c->to_stride[d];
        from += index[d] * c->from_stride[d];
    }
    for (int64_t i = begin; i < end; i++) {
        if (c->across < 0)
            gpunn__move_row(to, to_stride, from, from_stride, limit - first, size, add);
        else
            gpunn__move_across(c, to, from, limit - first, size, add);
        for (int d = last - 1; d >= 0; d--) {
            if (d == c->across) continue;
            to += c->to_stride[d];
            from += c->from_stride[d];
            if (++index[d] < c->dim[d]) break;
            to -= index[d] * c->to_stride[d];
            from -= index[d] * c->from_stride[d];
            index[d] = 0;
        }
    }
}

static void gpunn__copy_task(void *arg, int thread, int threads)
{
    const gpunn__copy *c = (const gpunn__copy *)arg;
    int64_t            begin = 0, end = c->outer, first = 0, limit = c->dim[c->rank - 1];
    if (c->outer >= threads)
        gpunn__cpu_part(c->outer, 1, threads, thread, &begin, &end);
    else
        gpunn__cpu_part(limit, c->across < 0 ? 64 : 16, threads, thread, &first, &limit);
    if (begin >= end || first >= limit) return;
    if (c->add)
        gpunn__copy_part(c, begin, end, first, limit, sizeof(float), true);
    else if (c->size == 1)
        gpunn__copy_part(c, begin, end, first, limit, 1, false);
    else if (c->size == 2)
        gpunn__copy_part(c, begin, end, first, limit, 2, false);
    else if (c->size == 4)
        gpunn__copy_part(c, begin, end, first, limit, 4, false);
    else
        gpunn__copy_part(c, begin, end, first, limit, 8, false);
}

/* Runs a copy. The caller sets rank, dim, strides in elements, to, from, size and add. */
static void gpunn__copy_run(gpunn__cpu *cpu, gpunn__copy *c)
{
    /* Sort axes by falling stride of the target, drop axes of size 1, and merge neighbours that are
     * contiguous. */
    gpunn__copy s = *c;
    int64_t     count = 1;
    int64_t     unit = (int64_t)c->size;
    s.rank = 0;
    for (int d = 0; d < c->rank; d++) {
        if (c->dim[d] == 1) continue;
        int at = s.rank++;
        for (; at > 0 && s.to_stride[at - 1] < c->to_stride[d] * unit; at--) {
            s.dim[at] = s.dim[at - 1];
            s.to_stride[at] = s.to_stride[at - 1];
            s.from_stride[at] = s.from_stride[at - 1];
        }
        s.dim[at] = c->dim[d];
        s.to_stride[at] = c->to_stride[d] * unit;
        s.from_stride[at] = c->from_stride[d] * unit;
        count *= c->dim[d];
    }
    if (s.rank == 0) {
        s.rank = 1;
        s.dim[0] = 1;
        s.to_stride[0] = s.from_stride[0] = unit;
    }
    int last = 0;
    for (int d = 1; d < s.rank; d++) {
        bool merge = s.to_stride[last] == s.to_stride[d] * s.dim[d] &&
                     s.from_stride[last] == s.from_stride[d] * s.dim[d];
        if (!merge) last++;
        s.dim[last] = merge ? s.dim[last] * s.dim[d] : s.dim[d];
        s.to_stride[last] = s.to_stride[d];
        s.from_stride[last] = s.from_stride[d];
    }
    s.rank = last + 1;
    s.across = -1;
    if (s.to_stride[last] == unit && s.from_stride[last] != unit)
        for (int d = 0; d < last; d++)
            if (s.from_stride[d] == unit) s.across = d;
    s.outer = 1;
    for (int d = 0; d < last; d++)
        if (d != s.across) s.outer *= s.dim[d];
    gpunn_parallel(gpunn__cpu_threads(cpu, count), gpunn__copy_task, &s);
}

/* Forward: copies a view of operand i to a view of the result. Backward: copies or adds the same views in
 * reverse. A view is an offset and strides, in elements, over the dimensions of `shape`. */
static void gpunn__cpu_move(gpunn__cpu *cpu, const gpunn_step *step, int i, const gpunn_value *shape,
                            int64_t out_offset, const int64_t *out_stride, int64_t in_offset,
                            const int64_t *in_stride)
{
    gpunn__copy c;
    c.rank = shape->rank;
    c.size = gpunn_dtype_size(shape->dtype);
    c.add = step->backward && step->accumulate[i];
    size_t length = (size_t)shape->rank * sizeof *c.dim;
    memcpy(c.dim, shape->dim, length);
    memcpy(step->backward ? c.from_stride : c.to_stride, out_stride, length);
    memcpy(step->backward ? c.to_stride : c.from_stride, in_stride, length);
    if (step->backward) {
        c.to = (char *)step->grad_in[i].data + in_offset * (int64_t)c.size;
        c.from = (const char *)step->grad_out.data + out_offset * (int64_t)c.size;
    } else {
        c.to = (char *)step->out.data + out_offset * (int64_t)c.size;
        c.from = (const char *)step->in[i].data + in_offset * (int64_t)c.size;
    }
    gpunn__copy_run(cpu, &c);
}

/* n copies of one element. */
static void gpunn__fill(void *to, const void *element, size_t size, int64_t n)
{
    size_t bytes = (size_t)n * size, done = size;
    memcpy(to, element, size);
    while (done < bytes) { /* doubles the filled part, up to the size of the first-level cache */
        size_t part = done < 16384 ? done : 16384;
        if (part > bytes - done) part = bytes - done;
        memcpy((char *)to + done, to, part);
        done += part;
    }
}

/* Distances in memory between neighbours along each axis. */
static void gpunn__memory_strides(const gpunn_value *value, int64_t stride[GPUNN_MAX_RANK])
{
    gpunn__strides(value, stride);
    if (!value->channels_last) return;
    stride[1] = 1;
    stride[3] = value->dim[1];
    stride[2] = stride[3] * value->dim[3];
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_permute(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    const gpunn_value *out = &step->out;
    const gpunn_value *in = &step->in[0];
    int64_t            in_stride[GPUNN_MAX_RANK] = {0}, out_stride[GPUNN_MAX_RANK], stride[GPUNN_MAX_RANK];
    gpunn__memory_strides(out, out_stride);
    gpunn__memory_strides(in, in_stride);
    for (int d = 0; d < out->rank; d++) stride[d] = in_stride[step->attr->order[d]];
    gpunn__cpu_move(cpu, step, 0, out, 0, out_stride, 0, stride);
    return GPUNN_OK;
}

/* Copies runs of `bytes`; runs start so many bytes apart. Callers pass small sizes as constants. */
GPUNN__INLINE void gpunn__copy_runs(char *to, int64_t to_row, const char *from, int64_t from_row,
                                    int64_t runs, size_t bytes)
{
    for (; runs > 0; runs--, to += to_row, from += from_row) memcpy(to, from, bytes);
}

/* Forward of ops along an axis: copies axis elements of each line of operand i, from element `first` on, to
 * element `at` of the result's. Few numbers in plain layout only, which one thread copies. */
static bool gpunn__move_few(const gpunn_step *step, int i, int64_t first, int64_t at)
{
    enum { FEW = 4096 }; /* numbers */
    const gpunn_value *in = &step->in[i], *out = &step->out;
    int64_t            run = (int64_t)gpunn_dtype_size(in->dtype), lines = 1;
    if (step->backward || in->count > FEW || in->channels_last || out->channels_last) return false;
    for (int d = 0; d < step->attr->axis; d++) lines *= in->dim[d];
    for (int d = step->attr->axis + 1; d < in->rank; d++) run *= in->dim[d];
    const int64_t from_row = in->dim[step->attr->axis] * run, to_row = out->dim[step->attr->axis] * run;
    char         *to = (char *)out->data + at * run;
    const char   *from = (const char *)in->data + first * run;
    const int64_t bytes = gpunn__least(from_row, to_row);
    if (bytes == 4)
        gpunn__copy_runs(to, to_row, from, from_row, lines, 4);
    else if (bytes == 8)
        gpunn__copy_runs(to, to_row, from, from_row, lines, 8);
    else
        gpunn__copy_runs(to, to_row, from, from_row, lines, (size_t)bytes);
    return true;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_concat(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    const int axis = step->attr->axis;
    int64_t   in_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK], at = 0;
    for (int i = 0; i < step->input_count; at += step->in[i++].dim[axis]) {
        if (gpunn__move_few(step, i, 0, at) || (step->backward && !step->grad_in[i].data)) continue;
        gpunn__memory_strides(&step->out, out_stride);
        gpunn__memory_strides(&step->in[i], in_stride);
        gpunn__cpu_move(cpu, step, i, &step->in[i], at * out_stride[axis], out_stride, 0, in_stride);
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_slice(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    const gpunn_value *out = &step->out;
    const gpunn_value *in = &step->in[0];
    int                axis = step->attr->axis;
    int64_t            in_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK];
    if (step->attr->step == 1 && gpunn__move_few(step, 0, step->attr->start, 0)) return GPUNN_OK;
    gpunn__memory_strides(out, out_stride);
    gpunn__memory_strides(in, in_stride);
    int64_t offset = step->attr->start * in_stride[axis];
    in_stride[axis] *= step->attr->step;
    if (step->backward && !step->accumulate[0] && out->count < in->count)
        memset(step->grad_in[0].data, 0, (size_t)in->count * sizeof(float));
    gpunn__cpu_move(cpu, step, 0, out, 0, out_stride, offset, in_stride);
    return GPUNN_OK;
}

/* Converts a number to one element of dtype. */
static void gpunn__element(gpunn_dtype dtype, float value, void *element)
{
    int64_t integer = gpunn__to_i64(value);
    uint8_t flag = value != 0;
    if (dtype == GPUNN_F32)
        memcpy(element, &value, sizeof value);
    else if (dtype == GPUNN_BOOL)
        memcpy(element, &flag, 1);
    else
        memcpy(element, &integer, gpunn_dtype_size(dtype)); /* little-endian */
}

/* ---- padding with elements of x: lines along the last padded axis, whose elements are blocks of `inner`
 * floats -- */

typedef struct gpunn__padding {
    int             rank, mode;           /* rank: number of axes up to the last padded one */
    gpunn__pad_axis axis[GPUNN_MAX_RANK]; /* strides in lines */
    int64_t         lines, inner;
    bool            accumulate;
    const float    *from;
    float          *to;
} gpunn__padding;

GPUNN__INLINE int64_t gpunn__padded(const gpunn__pad_axis *a)
{
    return a->before + a->n + a->after;
}

static void gpunn__pad_task(void *arg, int index, int threads)
{
    const gpunn__padding  *p = (const gpunn__padding *)arg;
    const gpunn__pad_axis *a = p->axis, *last = &a[p->rank - 1];
    const int64_t          n = last->n, out = gpunn__padded(last), inner = p->inner;
    int64_t                line, end;
    gpunn__cpu_part(p->lines, 1, threads, index, &line, &end);
    for (; line < end; line++) {
        int64_t rest = line, source = 0, step = 1;
        for (int d = p->rank - 2; d >= 0; d--) {
            source += step * gpunn__pad_source(p->mode, rest % gpunn__padded(&a[d]) - a[d].before, a[d].n);
            rest /= gpunn__padded(&a[d]);
            step *= a[d].n;
        }
        const float *from = p->from + source * n * inner;
        float       *to = p->to + line * out * inner;
        for (int64_t i = 0; i < out; i++) {
            int64_t blocks = i == last->before ? n : 1; /* all elements of x in one copy */
            memcpy(to + i * inner, from + gpunn__pad_source(p->mode, i - last->before, n) * inner,
                   (size_t)(blocks * inner) * sizeof *to);
            i += blocks - 1;
        }
    }
}

/* Each line of x's gradient sums the lines of the result that copy it. */
static void gpunn__pad_back_task(void *arg, int index, int threads)
{
    const gpunn__padding  *p = (const gpunn__padding *)arg;
    const gpunn__pad_axis *a = p->axis, *last = &a[p->rank - 1];
    const int64_t          n = last->n, out = gpunn__padded(last), inner = p->inner;
    int64_t                line, end, low;
    gpunn__cpu_part(p->lines, 1, threads, index, &line, &end);
    for (; line < end; line++) {
        int64_t rest = line, all = 1;
        float  *to = p->to + line * n * inner;
        for (int d = p->rank - 2; d >= 0; d--) {
            all *= gpunn__pad_copies(p->mode, &a[d], rest % a[d].n, &low);
            rest /= a[d].n;
        }
        if (!p->accumulate) memset(to, 0, (size_t)(n * inner) * sizeof *to);
        for (int64_t copy = 0; copy < all; copy++) {
            int64_t which = copy, at = 0;
            rest = line;
            for (int d = p->rank - 2; d >= 0; d--) {
                int64_t i = rest % a[d].n, copies = gpunn__pad_copies(p->mode, &a[d], i, &low);
                at += gpunn__pad_copy(p->mode, &a[d], i, which % copies, low) * a[d].stride;
                which /= copies;
                rest /= a[d].n;
            }
            const float *from = p->from + at * out * inner;
            for (int64_t i = 0; i < out; i++) {
                int64_t blocks = i == last->before ? n : 1;
                float  *sum = to + gpunn__pad_source(p->mode, i - last->before, n) * inner;
                GPUNN__IVDEP
                for (int64_t k = 0; k < blocks * inner; k++) sum[k] += from[i * inner + k];
                i += blocks - 1;
            }
        }
    }
}

static GPUNN__STATUS gpunn__cpu_pad_own(gpunn__cpu *cpu, const gpunn_step *step)
{
    const gpunn_value *x = &step->in[0], *y = step->backward ? &step->grad_out : &step->out;
    gpunn__padding     p;
    memset(&p, 0, sizeof p);
    p.rank = x->rank;
    p.mode = step->attr->mode;
    p.lines = p.inner = 1;
    while (p.rank > 1 && x->dim[p.rank - 1] == y->dim[p.rank - 1]) p.inner *= x->dim[--p.rank];
    for (int64_t d = p.rank - 1, stride = 1; d >= 0; d--) {
        gpunn__pad_axis *a = &p.axis[d];
        a->n = x->dim[d];
        a->before = step->attr->before[d];
        a->after = y->dim[d] - a->n - a->before;
        a->stride = stride;
        if (d == p.rank - 1) continue;
        stride *= y->dim[d];
        p.lines *= step->backward ? a->n : y->dim[d];
    }
    if (p.rank == 0) p.axis[p.rank++].n = 1; /* a single number */
    p.from = (const float *)(step->backward ? y->data : x->data);
    p.to = (float *)(step->backward ? step->grad_in[0].data : y->data);
    p.accumulate = step->backward && step->accumulate[0];
    gpunn_parallel(gpunn__cpu_threads(cpu, y->count), step->backward ? gpunn__pad_back_task : gpunn__pad_task,
                   &p);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_pad(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    if (step->attr->mode != GPUNN_PAD_CONSTANT) return gpunn__cpu_pad_own(cpu, step);
    const gpunn_value *out = &step->out;
    const gpunn_value *in = &step->in[0];
    int64_t            in_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK], offset = 0;
    gpunn__strides(out, out_stride);
    gpunn__strides(in, in_stride);
    for (int d = 0; d < out->rank; d++) offset += step->attr->before[d] * out_stride[d];
    if (!step->backward && out->count > in->count) {
        char element[8];
        gpunn__element(out->dtype, step->attr->fill, element);
        gpunn__fill(out->data, element, gpunn_dtype_size(out->dtype), out->count);
    }
    gpunn__cpu_move(cpu, step, 0, in, offset, out_stride, 0, in_stride);
    return GPUNN_OK;
}

/* ---- expand: a multiplication by 1; for integers, a copy ----------------------------------------------- */

static GPUNN__STATUS gpunn__cpu_expand_integers(gpunn__cpu *cpu, const gpunn_step *step)
{
    const gpunn_value *in = &step->in[0], *out = &step->out;
    int64_t            in_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK], stride[GPUNN_MAX_RANK];
    gpunn__strides(in, in_stride);
    gpunn__strides(out, out_stride);
    for (int d = 0; d < out->rank; d++) {
        const int from = d - (out->rank - in->rank);
        stride[d] = from < 0 || in->dim[from] == 1 ? 0 : in_stride[from];
    }
    gpunn__cpu_move(cpu, step, 0, out, 0, out_stride, 0, stride);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_expand(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (step->in[0].dtype != GPUNN_F32)
        return action == GPUNN__FORWARD ? gpunn__cpu_expand_integers(cpu, step) : GPUNN_OK;
    gpunn_attributes once = gpunn__no_attributes();
    gpunn_step       map = *step;
    once.value[0] = 1;
    map.attr = &once;
    gpunn_status status = gpunn__cpu_mul_scalar(cpu, &map, action);
    if (action == GPUNN__PREPARE) step->workspace_bytes = map.workspace_bytes;
    return status;
}

/* ---- assign -------------------------------------------------------------------------------------------- */

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_assign(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *position = &step->in[2];
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    const gpunn__assign_shape c = gpunn__assign_shape_of(step);
    for (int64_t i = 0; position->data && i < position->count; i++) {
        const int64_t at = gpunn__integer(position->data, position->dtype, i);
        if (at < 0 || at > c.capacity - c.rows)
            return gpunn__cpu_fail(
                cpu, GPUNN_ERR_ARGUMENT,
                "writing %lld at position %lld exceeds the state's %lld; check the position",
                (long long)c.rows, (long long)at, (long long)c.capacity);
    }
    for (int64_t line = 0; line < c.lines; line++) {
        const int64_t at = position->data ? gpunn__integer(position->data, position->dtype, line / c.sample)
                                          : 0;
        memmove((float *)step->out.data + (line * c.capacity + at) * c.inner,
                (const float *)step->in[1].data + line * c.rows * c.inner,
                (size_t)(c.rows * c.inner) * sizeof(float));
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_relayout(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    (void)step;
    (void)action;
    return gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED,
                           "the CPU's convolutions need no other layout of the filters");
}
