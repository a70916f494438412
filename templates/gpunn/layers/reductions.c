#include "base/shapes.h"
#include "graph/nodes.h"
#include "graph/expr.h"
#include "layers/basic.h"
#include "layers/recurrent.h"
#include "layers/shapes.h"

/* ==== >>layers/reductions =============================================================================== */
/* Reductions and scans: sum, mean, max, variance, norms, products, cumulative ops, argmax and others. */

static gpunn_tensor *gpunn__reduce_node(const char *name, const gpunn__operation *operation, bool mean,
                                        gpunn_tensor *x, const gpunn_axes *axes, bool keepdim)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    int              list[GPUNN_MAX_RANK + 1];
    if (!gpunn__begin_x(&call, name, NULL, x, mean)) return NULL;
    int count = gpunn__axis_list(&call, x, axes, list);
    if (count < 0) return NULL;
    attr.mean = mean;
    attr.keepdim = keepdim;
    attr.axes = count == 0 ? (1u << x->rank) - 1 : 0; /* no axis given: all axes */
    while (count > 0) attr.axes |= 1u << list[--count];
    if (attr.axes == 0) operation = &gpunn__operation_reshape; /* a scalar is its own sum */
    return gpunn__node(&call, operation, &attr, &x, 1);
}

GPUNN_API gpunn_tensor *gpunn_sum(gpunn_tensor *x, gpunn_axes axes, bool keepdim)
{
    return gpunn__reduce_node("sum", &gpunn__operation_sum, false, x, &axes, keepdim);
}

GPUNN_API gpunn_tensor *gpunn_mean(gpunn_tensor *x, gpunn_axes axes, bool keepdim)
{
    return gpunn__reduce_node("mean", &gpunn__operation_sum, true, x, &axes, keepdim);
}

GPUNN_API gpunn_tensor *gpunn_max(gpunn_tensor *x, gpunn_axes axes, bool keepdim)
{
    return gpunn__reduce_node("max", &gpunn__operation_max, false, x, &axes, keepdim);
}

/* -x for F32. For integers -1 - x, since -x may overflow. Reverses the order of values. */
static gpunn_tensor *gpunn__reversed(gpunn_tensor *x)
{
    if (x && x->dtype == GPUNN_BOOL) return gpunn_logical_not(x);
    return x == NULL || x->dtype == GPUNN_F32 ? gpunn_neg(x)
                                              : gpunn_integer_scalar(GPUNN_INTEGER_ADD, gpunn_neg(x), -1);
}

GPUNN_API gpunn_tensor *gpunn_min(gpunn_tensor *x, gpunn_axes axes, bool keepdim)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "min", NULL, x, false)) return NULL;
    return gpunn__call_finish(&call, gpunn__reversed(gpunn_max(gpunn__reversed(x), axes, keepdim)));
}

/* x^p for x >= 0, with derivative 0 at 0. */
static gpunn_tensor *gpunn__power_of(gpunn_tensor *x, double p)
{
    static const char *const names[] = {"p"};
    return gpunn__expr("t = where(x == 0, 1, x); where(x == 0, 0, sqrt(t) if p == 0.5 else t ** p)", NULL, &x,
                       1, names, &p, 1, NULL);
}

GPUNN_API gpunn_tensor *gpunn_var(gpunn_tensor *x, gpunn_axes axes, int correction, bool keepdim)
{
    gpunn__call call;
    char        text[128];
    int         list[GPUNN_MAX_RANK + 1];
    int64_t     count = 1;
    if (!gpunn__begin_x(&call, "var", NULL, x, true)) return NULL;
    const int listed = gpunn__axis_list(&call, x, &axes, list), all = listed == 0;
    if (listed < 0) return NULL;
    for (int i = 0; i < (all ? x->rank : listed); i++) {
        const int64_t size = x->dim[all ? i : list[i]];
        count = size < 0 || count < 0 ? -1 : count * size;
    }
    if (correction && count <= correction)
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE,
                                "correction is %d, but along these axes of %s %s; use correction 0",
                                correction, gpunn__shape_text(x, text),
                                count < 0 ? "the number of elements varies" : "there are not more elements");
    gpunn_tensor *y = gpunn_mean(gpunn_square(gpunn_sub(x, gpunn_mean(x, axes, true))), axes, keepdim);
    if (correction) y = gpunn_mul_scalar(y, (float)((double)count / (double)(count - correction)));
    return gpunn__call_finish(&call, y);
}

GPUNN_API gpunn_tensor *gpunn_std(gpunn_tensor *x, gpunn_axes axes, int correction, bool keepdim)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "std", NULL, x, true)) return NULL;
    return gpunn__call_finish(&call, gpunn__power_of(gpunn_var(x, axes, correction, keepdim), 0.5));
}

GPUNN_API gpunn_tensor *gpunn_norm(gpunn_tensor *x, float p, gpunn_axes axes, bool keepdim)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "norm", NULL, x, true)) return NULL;
    if (!(p > 0))
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "p is %g; use a number above 0, or INFINITY",
                                (double)p);
    gpunn_tensor *y = p == 2 ? gpunn_square(x) : gpunn_abs(x);
    if (p > FLT_MAX) return gpunn__call_finish(&call, gpunn_max(y, axes, keepdim));
    if (p != 1 && p != 2) y = gpunn__power_of(y, p);
    y = gpunn_sum(y, axes, keepdim);
    return gpunn__call_finish(&call, p == 1 ? y : gpunn__power_of(y, 1 / (double)p));
}

GPUNN_API gpunn_tensor *gpunn_pairwise_distance(gpunn_tensor *x1, gpunn_tensor *x2, float p, float eps)
{
    static const char *const names[] = {"x1", "x2"};
    gpunn__call              call;
    gpunn_tensor            *operands[] = {x1, x2};
    if (!gpunn__begin(&call, "pairwise_distance", NULL, names, operands, 2, 2)) return NULL;
    gpunn_tensor *apart = gpunn_add_scalar(gpunn_sub(x1, x2), eps);
    return gpunn__call_finish(&call, gpunn_norm(apart, p, GPUNN_AXES(-1), false));
}

GPUNN_API gpunn_tensor *gpunn_cdist(gpunn_tensor *x1, gpunn_tensor *x2, float p)
{
    static const char *const names[] = {"x1", "x2"};
    gpunn__call              call;
    gpunn_tensor            *operands[] = {x1, x2};
    char                     one[128], other[128];
    if (!gpunn__begin(&call, "cdist", NULL, names, operands, 2, 2)) return NULL;
    const int d1 = x1->rank - 1, d2 = x2->rank - 1;
    if (d1 < 1 || d2 < 1 || d1 + 2 > GPUNN_MAX_RANK || d2 + 2 > GPUNN_MAX_RANK || x1->dim[d1] != x2->dim[d2])
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE,
                                "x1 is %s and x2 is %s, but [..., m, d] and [..., n, d] with the same d and "
                                "at most 7 axes are needed",
                                gpunn__shape_text(x1, one), gpunn__shape_text(x2, other));
    gpunn_tensor *apart = gpunn_sub(gpunn__unsqueeze(x1, d1), gpunn__unsqueeze(x2, d2 - 1));
    return gpunn__call_finish(&call, gpunn_norm(apart, p, GPUNN_AXES(-1), false));
}

GPUNN_API gpunn_tensor *gpunn_logsumexp(gpunn_tensor *x, gpunn_axes axes, bool keepdim)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "logsumexp", NULL, x, true)) return NULL;
    gpunn_tensor *top = gpunn_max(x, axes, true);
    if (top) top = gpunn_detach(gpunn_expr("where(abs(x) <= 3.4028235e38, x, 0)", &top, 1));
    gpunn_tensor *y = gpunn_log(gpunn_sum(gpunn_exp(gpunn_sub(x, top)), axes, keepdim));
    return gpunn__call_finish(&call, y ? gpunn_add(y, gpunn_reshape(top, gpunn_tensor_shape(y))) : NULL);
}

GPUNN_API gpunn_tensor *gpunn_prod(gpunn_tensor *x, int axis, bool keepdim)
{
    gpunn__call   call;
    gpunn_tensor *y = x;
    if ((axis = gpunn__begin_along(&call, "prod", x, axis, false)) < 0) return NULL;
    for (int64_t size = x->dim[axis]; size > 1; size -= size / 2) { /* multiplies one half by the other */
        gpunn_tensor *both[] = {
            gpunn_mul(gpunn_slice(y, axis, 0, size / 2, 1), gpunn_slice(y, axis, size / 2, size / 2 * 2, 1)),
            NULL};
        if (size % 2) both[1] = gpunn_slice(y, axis, size - 1, size, 1);
        y = size % 2 ? gpunn_concat(both, 2, axis) : both[0];
    }
    return gpunn__call_finish(&call, keepdim || y == NULL ? y : gpunn_sum(y, GPUNN_AXES(axis), false));
}

/* Scans along an axis: combines each element with all before it by `both`. */
static gpunn_tensor *gpunn__running(const char *name, gpunn_tensor *x, int axis,
                                    gpunn_tensor *(*both)(gpunn_tensor *, gpunn_tensor *))
{
    gpunn__call   call;
    gpunn_tensor *y = x;
    if ((axis = gpunn__begin_along(&call, name, x, axis, false)) < 0) return NULL;
    /* each element now combines 2 * step elements */
    for (int64_t step = 1, size = x->dim[axis]; step < size; step *= 2) {
        gpunn_tensor *ahead = gpunn_slice(y, axis, 0, size - step, 1),
                     *parts[2] = {gpunn_slice(y, axis, 0, step, 1), NULL};
        parts[1] = both(gpunn_slice(y, axis, step, size, 1), ahead);
        y = gpunn_concat(parts, 2, axis);
    }
    return gpunn__call_finish(&call, y);
}

GPUNN_API gpunn_tensor *gpunn_cumprod(gpunn_tensor *x, int axis)
{
    return gpunn__running("cumprod", x, axis, gpunn_mul);
}

GPUNN_API gpunn_tensor *gpunn_cummax(gpunn_tensor *x, int axis)
{
    return gpunn__running("cummax", x, axis, gpunn_maximum);
}

GPUNN_API gpunn_tensor *gpunn_cummin(gpunn_tensor *x, int axis)
{
    return gpunn__running("cummin", x, axis, gpunn_minimum);
}

/* Scans for extremes and also finds where each stands: the last place where the extreme up to there
 * occurs. */
static gpunn_tensor *gpunn__running_places(const char *name, gpunn_tensor *x, int axis,
                                           gpunn_tensor **indices,
                                           gpunn_tensor *(*both)(gpunn_tensor *, gpunn_tensor *))
{
    gpunn__call call;
    if ((axis = gpunn__begin_along(&call, name, x, axis, false)) < 0) return NULL;
    gpunn_tensor *place = gpunn_add_scalar(gpunn__ordinals(call.model, x->dim[axis]), -1);
    gpunn_shape   line = {{x->dim[axis]}};
    for (int i = axis + 1; i < x->rank; i++) line.dim[i - axis] = 1;
    place = gpunn_reshape(gpunn_cast(place, GPUNN_I64), line);
    gpunn_tensor *here = gpunn_eq(x, gpunn__running(name, x, axis, both));
    if (x->dtype == GPUNN_F32) here = gpunn_maximum(here, gpunn_ne(x, x)); /* NaN counts as the extreme */
    gpunn_tensor *if_here[] = {here, place};
    place = gpunn__running(name, gpunn__integer_node(GPUNN_INTEGER_WHERE, if_here, 2, 0), axis,
                           gpunn_maximum);
    gpunn_tensor *values = gpunn_gather(x, axis, place);
    if (values && indices) *indices = place;
    return gpunn__call_finish(&call, values);
}

GPUNN_API gpunn_tensor *gpunn_cummax_with_indices(gpunn_tensor *x, int axis, gpunn_tensor **indices)
{
    return gpunn__running_places("cummax_with_indices", x, axis, indices, gpunn_maximum);
}

GPUNN_API gpunn_tensor *gpunn_cummin_with_indices(gpunn_tensor *x, int axis, gpunn_tensor **indices)
{
    return gpunn__running_places("cummin_with_indices", x, axis, indices, gpunn_minimum);
}

GPUNN_API gpunn_tensor *gpunn_gradient_energy(gpunn_tensor *x, gpunn_axes axes)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    int              list[GPUNN_MAX_RANK + 1];
    if (!gpunn__begin_x(&call, "gradient_energy", NULL, x, true)) return NULL;
    int count = gpunn__axis_list(&call, x, &axes, list);
    if (count < 0) return NULL;
    attr.axes = count == 0 ? (1u << x->rank) - 1 : 0; /* no axis given: all axes */
    while (count > 0) attr.axes |= 1u << list[--count];
    return gpunn__node(&call, &gpunn__operation_gradient_energy, &attr, &x, 1);
}

GPUNN_API gpunn_tensor *gpunn_argmax(gpunn_tensor *x, int axis, bool keepdim)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_x(&call, "argmax", NULL, x, false) || (attr.axis = gpunn__axis_of(&call, x, axis)) < 0)
        return NULL;
    if (x->dtype != GPUNN_F32) {
        gpunn_tensor *largest = gpunn_eq(x, gpunn_max(x, GPUNN_AXES(axis), true));
        return gpunn__call_finish(&call, gpunn_argmax(gpunn_cast(largest, GPUNN_F32), axis, keepdim));
    }
    attr.keepdim = keepdim;
    return gpunn__node(&call, &gpunn__operation_argmax, &attr, &x, 1);
}

GPUNN_API gpunn_tensor *gpunn_argmin(gpunn_tensor *x, int axis, bool keepdim)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "argmin", NULL, x, false) || gpunn__axis_of(&call, x, axis) < 0) return NULL;
    return gpunn__call_finish(&call, gpunn_argmax(gpunn__reversed(x), axis, keepdim));
}

/* Finds an extreme of x along an axis by `arg`, and its index. */
static gpunn_tensor *gpunn__extreme(const char *name, gpunn_tensor *x, int axis, bool keepdim,
                                    gpunn_tensor **indices, gpunn_tensor *(*arg)(gpunn_tensor *, int, bool))
{
    gpunn__call call;
    gpunn__meta shape;
    if (!gpunn__begin_x(&call, name, NULL, x, false) || (axis = gpunn__axis_of(&call, x, axis)) < 0)
        return NULL;
    gpunn_tensor *places = arg(x, axis, true), *values = gpunn_gather(x, axis, places);
    if (values == NULL) return gpunn__undo(&call);
    if (!keepdim) {
        shape = gpunn__meta_of(values);
        memmove(shape.dim + axis, shape.dim + axis + 1, (size_t)(shape.rank - axis - 1) * sizeof *shape.dim);
        places = gpunn__reshape_to(places, shape.rank - 1, shape.dim);
        values = gpunn__reshape_to(values, shape.rank - 1, shape.dim);
    }
    if (values && places && indices) *indices = places;
    return gpunn__call_finish(&call, places ? values : NULL);
}

GPUNN_API gpunn_tensor *gpunn_max_with_indices(gpunn_tensor *x, int axis, bool keepdim,
                                               gpunn_tensor **indices)
{
    return gpunn__extreme("max_with_indices", x, axis, keepdim, indices, gpunn_argmax);
}

GPUNN_API gpunn_tensor *gpunn_min_with_indices(gpunn_tensor *x, int axis, bool keepdim,
                                               gpunn_tensor **indices)
{
    return gpunn__extreme("min_with_indices", x, axis, keepdim, indices, gpunn_argmin);
}

GPUNN_API gpunn_tensor *gpunn_topk_indices(gpunn_tensor *x, int k, int axis, bool largest)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_x(&call, "topk_indices", NULL, x, true) ||
        (attr.axis = gpunn__axis_of(&call, x, axis)) < 0)
        return NULL;
    attr.k = k;
    attr.largest = largest;
    return gpunn__node(&call, &gpunn__operation_topk_indices, &attr, &x, 1);
}

GPUNN_API gpunn_tensor *gpunn_topk(gpunn_tensor *x, int k, int axis, bool largest, gpunn_tensor **indices)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "topk", NULL, x, true)) return NULL;
    gpunn_tensor *places = gpunn_topk_indices(x, k, axis, largest), *values = gpunn_gather(x, axis, places);
    if (values && indices) *indices = places;
    return gpunn__call_finish(&call, values);
}

GPUNN_API gpunn_tensor *gpunn_sort(gpunn_tensor *x, int axis, bool descending, gpunn_tensor **indices)
{
    gpunn__call call;
    if ((axis = gpunn__begin_along(&call, "sort", x, axis, true)) < 0) return NULL;
    return gpunn__call_finish(&call, gpunn_topk(x, (int)x->dim[axis], axis, descending, indices));
}

GPUNN_API gpunn_tensor *gpunn_argsort(gpunn_tensor *x, int axis, bool descending)
{
    gpunn__call call;
    if ((axis = gpunn__begin_along(&call, "argsort", x, axis, true)) < 0) return NULL;
    return gpunn__call_finish(&call, gpunn_topk_indices(x, (int)x->dim[axis], axis, descending));
}

GPUNN_API gpunn_tensor *gpunn_bucketize_(gpunn_tensor *x, gpunn_tensor *boundaries,
                                         gpunn_searchsorted_args args)
{
    static const char *const names[] = {"x", "boundaries"};
    gpunn_tensor            *in[] = {x, boundaries};
    gpunn__call              call;
    char                     text[128];
    if (!gpunn__begin(&call, "bucketize", NULL, names, in, 2, 0)) return NULL;
    int64_t count;
    if (!gpunn__joined(call.model, x->rank, x->dim, &count))
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE, "the axes of x %s cannot be joined; gpunn_reshape it",
                                gpunn__shape_text(x, text));
    gpunn_tensor *places = gpunn_searchsorted_(boundaries, gpunn_reshape(x, GPUNN_SHAPE(count)), args);
    return gpunn__call_finish(&call, places ? gpunn_reshape(places, gpunn_tensor_shape(x)) : NULL);
}

GPUNN_API gpunn_tensor *gpunn_cumsum(gpunn_tensor *x, int axis)
{
    if (x && x->dtype != GPUNN_F32)
        return gpunn__running("cumsum", gpunn_cast(x, GPUNN_I64), axis, gpunn_add);
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_x(&call, "cumsum", NULL, x, true) || (attr.axis = gpunn__axis_of(&call, x, axis)) < 0)
        return NULL;
    return gpunn__node(&call, &gpunn__operation_cumsum, &attr, &x, 1);
}

GPUNN_API gpunn_tensor *gpunn_sequence_mask(gpunn_tensor *lengths, int64_t size)
{
    gpunn__call call;
    char        text[128];
    if (!gpunn__begin_x(&call, "sequence_mask", NULL, lengths, false)) return NULL;
    if (lengths->rank != 1 || (lengths->dtype != GPUNN_I64 && lengths->dtype != GPUNN_I32))
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE, "lengths is %s of %s, but I64 or I32 [n] is needed",
                                gpunn__shape_text(lengths, text), gpunn_dtype_name(lengths->dtype));
    if (size == 0) return gpunn__call_fail(&call, GPUNN_ERR_SHAPE, "size is 0; at least 1 is needed");
    gpunn_tensor *most = gpunn_reshape(gpunn_cast(lengths, GPUNN_F32), GPUNN_SHAPE(lengths->dim[0], 1));
    return gpunn__call_finish(&call, gpunn_le(gpunn__ordinals(call.model, size), most));
}

GPUNN_API gpunn_tensor *gpunn_matmul_(gpunn_tensor *a, gpunn_tensor *b, gpunn_matmul_args args)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    gpunn_tensor    *operands[] = {a, b};
    if (!gpunn__begin_op(&call, "matmul", GPUNN_OP_MATMUL, operands, 2, 3)) return NULL;
    attr.transpose_a = args.transpose_a;
    attr.transpose_b = args.transpose_b;
    return gpunn__node(&call, &gpunn__operation_matmul, &attr, operands, 2);
}
