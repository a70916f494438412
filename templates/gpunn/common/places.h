#ifndef GPUNN__COMMON_PLACES_H
#define GPUNN__COMMON_PLACES_H
#include "common/numbers.h"

/* ==== >>common/places =================================================================================== */
/* Where elements are in memory: strides and walks over axes, padding, pool windows, and sizes of matmul and
 * attention. Shared by the CPU and the GPU. */
/* Strides of a row-major value, in elements. */
GPUNN__COMMON void gpunn__strides(const gpunn_value *value, int64_t stride[GPUNN_MAX_RANK])
{
    int64_t step = 1;
    for (int d = value->rank - 1; d >= 0; d--) {
        stride[d] = step;
        step *= value->dim[d];
    }
}

/* a / b for numbers >= 0, in 32-bit arithmetic if they fit. */
GPUNN__SHARED int64_t gpunn__quotient(int64_t a, int64_t b)
{
    return (uint64_t)(a | b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}

/* Offset of element `index` of axes that are listed from the last to the first. */
GPUNN__SHARED int64_t gpunn__offset(int64_t index, int rank, const int64_t *dim, const int64_t *stride)
{
    int64_t offset = 0;
    GPUNN__ROLLED
    for (int d = 0; d < rank; d++) {
        int64_t rest = d + 1 < rank ? gpunn__quotient(index, dim[d]) : 0;
        offset += (index - rest * dim[d]) * stride[d];
        index = rest;
    }
    return offset;
}

/* Axes over which up to three values are walked together, innermost first. */
typedef struct gpunn__walk {
    int     rank;
    int64_t dim[GPUNN_MAX_RANK], stride[3][GPUNN_MAX_RANK]; /* stride 0: that value lacks the axis */
} gpunn__walk;

/* Adds an axis outside those present. It merges with the outermost one if it continues that in every
 * value. */
GPUNN__COMMON void gpunn__axes_add(gpunn__walk *all, int64_t dim, int64_t stride_a, int64_t stride_b,
                                   int64_t stride_c)
{
    const int64_t stride[3] = {stride_a, stride_b, stride_c};
    const int     last = all->rank - 1;
    bool          merge = last >= 0;
    if (dim == 1) return;
    for (int i = 0; merge && i < 3; i++) merge = stride[i] == all->dim[last] * all->stride[i][last];
    if (merge) {
        all->dim[last] *= dim;
        return;
    }
    all->dim[all->rank] = dim;
    for (int i = 0; i < 3; i++) all->stride[i][all->rank] = stride[i];
    all->rank++;
}

/* Number of elements of a walk. */
GPUNN__COMMON int64_t gpunn__axes_count(const gpunn__walk *all)
{
    int64_t count = 1;
    for (int d = 0; d < all->rank; d++) count *= all->dim[d];
    return count;
}

/* Collects the axes of shape except its last `inner`. A value may lack an axis or have size 1 there. Axes of
 * the last of three values go to *kept, the others to *summed; both may be the same walk. */
GPUNN__COMMON void gpunn__axes_of(const gpunn_value *shape, int inner, const gpunn_value *const *value,
                                  int values, gpunn__walk *kept, gpunn__walk *summed)
{
    int64_t size[3] = {1, 1, 1};
    memset(kept, 0, sizeof *kept);
    memset(summed, 0, sizeof *summed);
    for (int back = 1; back <= shape->rank; back++) {
        int64_t stride[3] = {0, 0, 0};
        for (int i = 0; i < values; i++) {
            const int64_t own = back <= value[i]->rank ? value[i]->dim[value[i]->rank - back] : 1;
            stride[i] = own > 1 ? size[i] : 0;
            size[i] *= own;
        }
        if (back > inner)
            gpunn__axes_add(stride[2] ? kept : summed, shape->dim[shape->rank - back], stride[0], stride[1],
                            stride[2]);
    }
}

/* The axes of a value and, as the second walked value, of its result when `axes` are reduced. */
GPUNN__COMMON gpunn__walk gpunn__axes_reduced(const gpunn_value *value, uint32_t axes)
{
    gpunn__walk all;
    int64_t     size = 1, left = 1;
    memset(&all, 0, sizeof all);
    for (int d = value->rank - 1; d >= 0; d--) {
        const bool reduced = (axes >> d & 1) != 0;
        gpunn__axes_add(&all, value->dim[d], size, reduced ? 0 : left, 0);
        size *= value->dim[d];
        if (!reduced) left *= value->dim[d];
    }
    return all;
}

/* Selects the axes from `first` on that are reduced, or those that are not. Returns their number of
 * elements. */
GPUNN__COMMON int64_t gpunn__axes_select(const gpunn__walk *all, int first, bool reduced, int *rank,
                                         int64_t *dim, int64_t *stride)
{
    int64_t count = 1;
    *rank = 0;
    for (int d = first; d < all->rank; d++) {
        if ((all->stride[1][d] == 0) != reduced) continue;
        dim[*rank] = all->dim[d];
        stride[(*rank)++] = all->stride[0][d];
        count *= all->dim[d];
    }
    return count;
}

/* An elementwise integer op, or a reduction by one. Result i is computed from the operands' elements at its
 * place or, in a reduction, from element 0 with all others folded into it. */
typedef struct gpunn__integers {
    int         op, operands; /* gpunn_integer_op */
    int64_t     number;       /* last operand, if it is not a tensor */
    int64_t     count;        /* of results */
    gpunn__walk walk;         /* of the results in the operands */
    int         fold_rank;
    /* folded: elements per result; 0: no reduction */
    int64_t     folded, fold_dim[GPUNN_MAX_RANK], fold_stride[GPUNN_MAX_RANK];
    const void *in[3];
    void       *out;
    gpunn_dtype in_dtype[3], out_dtype;
} gpunn__integers;

/* Computes one result. Returns false if it divides by 0. */
GPUNN__SHARED bool gpunn__integers_at(const gpunn__integers *p, int64_t i)
{
    const int64_t place = gpunn__offset(i, p->walk.rank, p->walk.dim, p->walk.stride[0]);
    int64_t       a = gpunn__integer(p->in[0], p->in_dtype[0], place), b = p->number, c = b;
    for (int64_t k = 1; k < p->folded; k++) {
        const int64_t at = place + gpunn__offset(k, p->fold_rank, p->fold_dim, p->fold_stride);
        a = gpunn__integer_value(p->op, a, gpunn__integer(p->in[0], p->in_dtype[0], at), 0);
    }
    if (p->operands > 1)
        b = gpunn__integer(p->in[1], p->in_dtype[1],
                           gpunn__offset(i, p->walk.rank, p->walk.dim, p->walk.stride[1]));
    if (p->operands > 2)
        c = gpunn__integer(p->in[2], p->in_dtype[2],
                           gpunn__offset(i, p->walk.rank, p->walk.dim, p->walk.stride[2]));
    gpunn__put_integer(p->out, p->out_dtype, i, p->folded ? a : gpunn__integer_value(p->op, a, b, c));
    return b != 0 || !gpunn__integer_divides(p->op);
}

/* Parameters of INTEGER, and of SUM and MAX over integers. */
GPUNN__COMMON gpunn__integers gpunn__integers_of(const gpunn_step *step)
{
    const gpunn_value *in[3] = {NULL, NULL, NULL};
    gpunn__integers    p;
    memset(&p, 0, sizeof p);
    p.operands = step->input_count;
    p.number = step->attr->number;
    p.count = step->out.count;
    p.out = step->out.data;
    p.out_dtype = step->out.dtype;
    for (int k = 0; k < p.operands; k++) {
        in[k] = &step->in[k];
        p.in[k] = in[k]->data;
        p.in_dtype[k] = in[k]->dtype;
    }
    if (step->op == GPUNN_OP_INTEGER) {
        p.op = step->attr->mode;
        gpunn__axes_of(&step->out, 0, in, p.operands, &p.walk, &p.walk);
        return p;
    }
    const gpunn__walk all = gpunn__axes_reduced(in[0], step->attr->axes);
    p.op = step->op == GPUNN_OP_SUM ? GPUNN_INTEGER_ADD : GPUNN_INTEGER_MAXIMUM;
    p.folded = gpunn__axes_select(&all, 0, true, &p.fold_rank, p.fold_dim, p.fold_stride);
    (void)gpunn__axes_select(&all, 0, false, &p.walk.rank, p.walk.dim, p.walk.stride[0]);
    return p;
}

/* One axis of a value that is padded with its own elements. */
typedef struct gpunn__pad_axis {
    int64_t n, before, after, stride; /* stride: in the padded value */
} gpunn__pad_axis;

/* Index of the element that fills position i, which may be outside. */
GPUNN__SHARED int64_t gpunn__pad_source(int mode, int64_t i, int64_t n)
{
    if (i >= 0 && i < n) return i;
    if (mode == GPUNN_PAD_REPLICATE) return i < 0 ? 0 : n - 1;
    if (mode == GPUNN_PAD_CIRCULAR) return i < 0 ? i + n : i - n;
    return i < 0 ? -i : 2 * (n - 1) - i;
}

/* Number of copies of element i along an axis; *low receives how many of them are before its own place. */
GPUNN__SHARED int64_t gpunn__pad_copies(int mode, const gpunn__pad_axis *a, int64_t i, int64_t *low)
{
    if (mode == GPUNN_PAD_REPLICATE) {
        *low = i == 0 ? a->before : 0;
        return *low + 1 + (i == a->n - 1 ? a->after : 0);
    }
    bool    mirror = mode == GPUNN_PAD_REFLECT;
    int64_t left = mirror ? i : a->n - i, right = mirror ? a->n - 1 - i : i + 1; /* distance outside */
    *low = left >= 1 && left <= a->before;
    return *low + 1 + (right >= 1 && right <= a->after);
}

/* Position of copy k of element i. */
GPUNN__SHARED int64_t gpunn__pad_copy(int mode, const gpunn__pad_axis *a, int64_t i, int64_t k, int64_t low)
{
    if (mode == GPUNN_PAD_REPLICATE) return a->before + i + k - low;
    if (mode == GPUNN_PAD_CIRCULAR) return a->before + i + (k - low) * a->n;
    if (k < low) return a->before - i;
    return a->before + (k > low ? 2 * (a->n - 1) - i : i);
}

/* Sort key of an element for topk; larger keys come first. The high 32 bits order the values as floats, with
 * NaN above all. The low 32 bits prefer the earlier place. */
GPUNN__SHARED uint64_t gpunn__topk_code(float x, int64_t i, bool largest)
{
    uint32_t bits;
    x += 0.0f; /* turns -0 into 0 */
    memcpy(&bits, &x, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    if (x != x) bits = 0xFFFFFFFFu;
    return (uint64_t)(largest ? bits : ~bits) << 32 | (0xFFFFFFFFu - (uint32_t)i);
}

/* ---- sample --------------------------------------------------------------------------------------------- *
 * A class has a key, which orders as its logit does, and a weight: its probability over the largest one,
 * in units of 2^-32. All sums of weights are integers, so that neither their order nor the device changes
 * what is drawn. */
/* of a key: digits from the highest on; their values */
enum { GPUNN__NUCLEUS_LEVELS = 4, GPUNN__NUCLEUS_DIGITS = 256 };

GPUNN__SHARED uint32_t gpunn__nucleus_key(float logit)
{
    return (uint32_t)(gpunn__topk_code(logit, 0, true) >> 32);
}

GPUNN__SHARED bool gpunn__nucleus_is_finite(uint32_t key)
{
    return key >= 0x00800000u && key < 0xFF800000u;
}

GPUNN__SHARED float gpunn__nucleus_logit(uint32_t key)
{
    const uint32_t bits = key >> 31 ? key & 0x7FFFFFFFu : ~key;
    float          logit;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

/* 2^(32 - (logit of most - logit of key) * scale), rounded. The polynomial is 1 - 2^-f within 2^-28 for f
 * from 0 to 1, both in units of 2^-32: a fit in the least maximal error. */
GPUNN__SHARED uint32_t gpunn__nucleus_weight(uint32_t key, uint32_t most, float scale)
{
    const float power = (gpunn__nucleus_logit(most) - gpunn__nucleus_logit(key)) * scale;
    if (key == most) return UINT32_MAX;
    if (!gpunn__nucleus_is_finite(key) || !gpunn__nucleus_is_finite(most) || !(power < 33)) return 0;
    const uint64_t fixed = (uint64_t)(power * 4294967296.0f), f = fixed & UINT32_MAX,
                   whole = fixed >> 32 & 63;
    uint64_t fall = 468251;
    fall = 5475002 - (fall * f >> 32);
    fall = 41142264 - (fall * f >> 32);
    fall = 238330987 - (fall * f >> 32);
    fall = 1031755804 - (fall * f >> 32);
    fall = 2977043973u - (fall * f >> 32);
    fall = UINT32_MAX - (fall * f >> 32);
    return (uint32_t)((fall + ((uint64_t)1 << whole >> 1)) >> whole);
}

/* A share of a sum of weights, rounded down. */
GPUNN__SHARED uint64_t gpunn__nucleus_share(uint64_t sum, float share)
{
    if (!(share > 0)) return 0;
    const uint64_t part = (uint64_t)((share < 1 ? share : 1) * 4294967296.0f);
    return (sum >> 32) * part + ((sum & UINT32_MAX) * part >> 32);
}

/* In falling order the nucleus ends with the class at which the sum of weights passes this. */
GPUNN__SHARED uint64_t gpunn__nucleus_end(uint64_t sum, float top_p)
{
    const uint64_t share = gpunn__nucleus_share(sum, top_p);
    return share > 0 ? share - 1 : 0;
}

/* Drawn is the class at which the sum of weights passes this; kept: that of the nucleus. The first class,
 * where a logit is infinite or no number. */
GPUNN__SHARED uint64_t gpunn__nucleus_draw(uint64_t kept, float draw, uint32_t most)
{
    if (!gpunn__nucleus_is_finite(most)) return 0;
    const uint64_t share = gpunn__nucleus_share(kept, draw);
    return share < kept ? share : kept - 1;
}

/* log2(e) / temperature */
GPUNN__COMMON inline float gpunn__nucleus_scale(float temperature)
{
    return (float)(1.44269504088896340736 / (double)temperature);
}

/* Coordinate of cell i of n, from -1 to 1. */
GPUNN__SHARED float gpunn__affine_coordinate(gpunn__extent i, gpunn__extent n, bool align_corners)
{
    if (n == 1) return 0;
    return (float)(2 * (int64_t)i + 1 - n) / (float)(align_corners ? n - 1 : n);
}

/* ---- resizing and recurrent layers --------------------------------------------------------------------- */
/* Cells of an axis that one cell of its resized axis reads. mode: gpunn_interpolate_mode. */
GPUNN__COMMON int gpunn__resize_taps(int mode, int64_t in, int64_t out)
{
    if (mode == GPUNN_INTERPOLATE_CUBIC) return 4;
    return mode == GPUNN_INTERPOLATE_LINEAR && in > 1 && in != out ? 2 : 1;
}

/* Number of gates of a recurrent layer: blocks of hidden_size rows in its weights. */
GPUNN__COMMON int gpunn__gates_of(gpunn_op op)
{
    if (op == GPUNN_OP_LSTM) return 4;
    return op == GPUNN_OP_GRU ? 3 : 1;
}

/* Operand indices of a recurrent node. From GPUNN__WEIGHTS on there are four for each direction. */
enum {
    GPUNN__LENGTHS = 1,
    GPUNN__H_0,
    GPUNN__C_0,
    GPUNN__RESET,
    GPUNN__WEIGHTS,
    GPUNN__RECURRENT_OPERANDS = GPUNN__WEIGHTS + 8
};

/* ---- windows of a pool --------------------------------------------------------------------------------- */
typedef struct gpunn__pool_axis {
    gpunn__extent n, out, kernel, stride, padding; /* kernel 0: adaptive */
    gpunn__extent span;                            /* cells of the largest window */
} gpunn__pool_axis;

/* Axis i of the op's settings. An adaptive pool whose windows are all equal becomes a plain one. */
GPUNN__COMMON gpunn__pool_axis gpunn__pool_axis_of(const gpunn_step *step, int i, int64_t n, int64_t out)
{
    gpunn__pool_axis axis = {(gpunn__extent)n, (gpunn__extent)out, 0, 0, 0, (gpunn__extent)(n / out) + 2};
    if (!gpunn__op_is(step->op, GPUNN__ADAPTIVE_POOL)) {
        axis.kernel = step->attr->kernel[i];
        axis.stride = step->attr->stride[i];
        axis.padding = step->attr->padding[i];
    } else if (n % out == 0) {
        axis.kernel = axis.stride = (gpunn__extent)(n / out);
    }
    if (axis.kernel) axis.span = axis.kernel;
    return axis;
}

/* The three axes of a pool; an image is a volume of depth 1. */
GPUNN__COMMON void gpunn__pool_axes(const gpunn_step *step, gpunn__pool_axis *z, gpunn__pool_axis *y,
                                    gpunn__pool_axis *x)
{
    const gpunn__pool_axis flat = {1, 1, 1, 1, 0, 1};
    const int64_t         *from = step->in[0].dim, *to = step->backward ? step->grad_out.dim : step->out.dim;
    const int              deep = step->in[0].rank - 4; /* 1: x has a depth axis, described by setting 0 */
    *z = deep ? gpunn__pool_axis_of(step, 0, from[2], to[2]) : flat;
    *y = gpunn__pool_axis_of(step, deep, from[2 + deep], to[2 + deep]);
    *x = gpunn__pool_axis_of(step, 1 + deep, from[3 + deep], to[3 + deep]);
}

/* The window of output i covers cells [*begin, *end). Returns its length including the padding that it
 * covers. */
GPUNN__SHARED gpunn__extent gpunn__pool_window(const gpunn__pool_axis *a, gpunn__extent i,
                                               gpunn__extent *begin, gpunn__extent *end)
{
    /* torch's i n / out and (i + 1) n / out rounded up, computed in parts that fit 32 bits */
    if (a->kernel == 0) {
        const gpunn__unsigned n = (gpunn__unsigned)a->n, out = (gpunn__unsigned)a->out,
                              at = (gpunn__unsigned)i;
        const gpunn__unsigned whole = n / out, rest = n - whole * out;
        *begin = (gpunn__extent)(at * whole + at * rest / out);
        *end = (gpunn__extent)((at + 1) * whole + ((at + 1) * rest + out - 1) / out);
        return *end - *begin;
    }
    const gpunn__extent first = i * a->stride - a->padding, most = a->n + a->padding;
    const gpunn__extent last = first + a->kernel < most ? first + a->kernel : most;
    *begin = first > 0 ? first : 0;
    *end = last < a->n ? last : a->n;
    return last - first;
}

/* First position of window i, inside or in the padding. The window covers cells from `begin` on. */
GPUNN__SHARED gpunn__extent gpunn__pool_corner(const gpunn__pool_axis *a, gpunn__extent i,
                                               gpunn__extent begin)
{
    return a->kernel == 0 ? begin : i * a->stride - a->padding;
}

/* Stores which cell of the window was the maximum of output i. */
GPUNN__SHARED void gpunn__pool_mark(void *marks, int bytes, int64_t i, gpunn__extent cell)
{
    if (bytes == 1)
        ((uint8_t *)marks)[i] = (uint8_t)cell;
    else if (bytes)
        ((int32_t *)marks)[i] = (int32_t)cell;
}

/* ---- steps --------------------------------------------------------------------------------------------- */
/* Sizes of matmul's c = op(a) op(b); in backward c is the gradient of the result. If one b serves all
 * samples, the leading axes of a become rows. */
GPUNN__COMMON void gpunn__matmul_sizes(const gpunn_step *step, gpunn_value *a, gpunn_value *b, gpunn_value *c,
                                       int64_t *m, int64_t *n, int64_t *k)
{
    const bool ta = step->attr->transpose_a, tb = step->attr->transpose_b;
    *a = step->in[0];
    *b = step->in[1];
    *c = step->backward ? step->grad_out : step->out;
    *m = c->dim[c->rank - 2];
    *n = c->dim[c->rank - 1];
    *k = a->dim[a->rank - (ta ? 2 : 1)];
    if (ta || b->count != *n * *k) return;
    *m = a->count / *k;
    a->rank = b->rank = c->rank = 2;
    a->dim[0] = c->dim[0] = *m;
    a->dim[1] = *k;
    c->dim[1] = *n;
    b->dim[0] = tb ? *n : *k;
    b->dim[1] = tb ? *k : *n;
}

/* A step of an activation: y = f(x) or, with a gradient, gradient *= f'(x) in place. The caller provides
 * zeroed none and accumulate. */
GPUNN__COMMON gpunn_step gpunn__activation_step(gpunn_op op, gpunn_value *x, const gpunn_value *y,
                                                gpunn_value *gradient, const gpunn_attributes *none,
                                                bool *accumulate)
{
    gpunn_step step;
    memset(&step, 0, sizeof step);
    step.op = op;
    step.attr = none;
    step.input_count = 1;
    step.in = x;
    step.out = *y;
    if (gradient == NULL) return step;
    step.backward = true;
    step.grad_in = gradient;
    step.grad_out = *gradient;
    step.accumulate = accumulate;
    return step;
}

/* Lists the axes of gradient_energy with more than one element: sizes, strides in elements, and the weight of
 * one difference in the mean along the axis. Returns their number. */
GPUNN__COMMON int gpunn__energy_axes(const gpunn_step *step, int64_t *size, int64_t *stride, double *share)
{
    const gpunn_value *x = &step->in[0];
    int64_t            strides[GPUNN_MAX_RANK];
    int                count = 0;
    gpunn__strides(x, strides);
    for (int d = 0; d < x->rank; d++) {
        if (!(step->attr->axes >> d & 1) || x->dim[d] == 1) continue;
        size[count] = x->dim[d];
        stride[count] = strides[d];
        share[count++] = 1 / ((double)(x->count / x->dim[d]) * (double)(x->dim[d] - 1));
    }
    return count;
}

/* An assignment copies `lines` times `rows` rows of `inner` elements into lines of `capacity` rows; a sample
 * has `sample` lines. */
typedef struct gpunn__assign_shape {
    int64_t lines, sample, rows, capacity, inner;
} gpunn__assign_shape;

GPUNN__COMMON gpunn__assign_shape gpunn__assign_shape_of(const gpunn_step *step)
{
    const gpunn_value  *state = &step->in[0], *value = &step->in[1];
    const bool          part = step->in[2].data != NULL;
    const int           axis = step->attr->axis;
    gpunn__assign_shape c = {1, 1, part ? value->dim[axis] : 1, part ? state->dim[axis] : 1, 1};
    for (int d = 0; part && d < axis; d++) c.lines *= state->dim[d];
    c.inner = value->count / (c.lines * c.rows);
    c.sample = step->in[2].count > 1 ? c.lines / state->dim[0] : c.lines;
    return c;
}

/* Sizes of an attention step: samples, heads, rows l and s, and features e of q and k, ev of v. */
typedef struct gpunn__attention_shape {
    int64_t n, heads, kv_heads, l, s, e, ev;
    bool    packed, last; /* packed: q, k and v in one value, [n, l, 3, heads, e] */
} gpunn__attention_shape;

GPUNN__COMMON gpunn__attention_shape gpunn__attention_shape_of(const gpunn_step *step)
{
    const gpunn_value     *in = step->in, *y = step->backward ? &step->grad_out : &step->out;
    gpunn__attention_shape c;
    c.packed = in[0].rank == 5;
    c.last = c.packed || step->attr->heads_last;
    const int head_axis = c.last ? 2 : 1, row_axis = c.last ? 1 : 2;
    c.n = y->dim[0];
    c.heads = y->dim[head_axis];
    c.l = y->dim[row_axis];
    c.ev = y->dim[3];
    c.e = in[0].dim[in[0].rank - 1];
    c.s = c.packed ? c.l : in[1].dim[row_axis];
    c.kv_heads = c.packed ? c.heads : in[1].dim[head_axis];
    return c;
}

/* Layout of per-head rows: q, k, v, the result, their gradients, or one matrix per head of q. Element
 * (sample, head, row, i) is at sample * samples + head * heads + row * rows + i. */
typedef struct gpunn__heads {
    void       *data; /* NULL: none */
    gpunn_dtype dtype;
    int64_t     samples, heads, rows;
} gpunn__heads;

/* Layout of a value. part 0, 1, 2: q, k, v or their gradients; 3: the result. */
GPUNN__COMMON gpunn__heads gpunn__attention_heads(const gpunn__attention_shape *c, const gpunn_value *value,
                                                  int part)
{
    const bool    of_keys = part == 1 || part == 2;
    const int64_t heads = of_keys ? c->kv_heads : c->heads, rows = of_keys ? c->s : c->l;
    const int64_t e = part < 2 ? c->e : c->ev, whole = (c->packed && part < 3 ? 3 : 1) * heads * e;
    gpunn__heads  h = {value->data, value->dtype, rows * whole, c->last ? e : rows * e, c->last ? whole : e};
    if (c->packed && part < 3 && h.data)
        h.data = (char *)h.data + part * heads * e * (int64_t)gpunn_dtype_size(h.dtype);
    return h;
}

/* Number of valid keys of each sample; data NULL: all. */
typedef struct gpunn__lengths {
    const void *data;
    gpunn_dtype dtype;
    bool        one; /* one number for all samples */
} gpunn__lengths;

GPUNN__COMMON gpunn__lengths gpunn__attention_lengths(const gpunn_step *step)
{
    gpunn__lengths lengths = {NULL, GPUNN_I64, true};
    if (step->input_count < 5) return lengths;
    lengths.data = step->in[4].data;
    lengths.dtype = step->in[4].dtype;
    lengths.one = step->in[4].count == 1;
    return lengths;
}

/* Number of valid keys of one sample, or `all`. */
GPUNN__SHARED int64_t gpunn__length_of(const gpunn__lengths *lengths, int64_t sample, int64_t all)
{
    if (lengths->data == NULL) return all;
    return gpunn__integer(lengths->data, lengths->dtype, lengths->one ? 0 : sample);
}

/* Number of keys that row i of l sees, for a sample with `length` keys. */
GPUNN__SHARED int64_t gpunn__keys_seen(const gpunn__lengths *lengths, int64_t length, bool causal, int64_t i,
                                       int64_t l)
{
    const int64_t last = i + 1 + (lengths->data ? length - l : 0);
    return causal && last < length ? last : length;
}

/* Strides of a mask along samples, heads, rows and keys; 0 where one entry serves all. */
GPUNN__COMMON void gpunn__attention_mask_steps(const gpunn_value *mask, int64_t step[4])
{
    int64_t stride = 1;
    for (int d = mask->rank - 1, to = 3; d >= 0; d--, to--) {
        if (mask->dim[d] > 1) step[to] = stride;
        stride *= mask->dim[d];
    }
}

/* Weight of a sample's loss in the result of ctc_loss. */
GPUNN__SHARED double gpunn__ctc_share(double loss, int64_t length, int64_t samples, gpunn_reduction reduction,
                                      bool zero_infinity)
{
    if (zero_infinity && isinf(loss)) return 0;
    if (reduction != GPUNN_REDUCE_MEAN) return 1;
    return 1 / ((double)samples * (double)(length > 1 ? length : 1));
}

#endif /* GPUNN__COMMON_PLACES_H */
