#include "base/errors.h"
#include "base/memory.h"
#include "base/tables.h"
#include "base/shapes.h"
#include "graph/nodes.h"
#include "graph/expr.h"
#include "layers/basic.h"
#include "layers/recurrent.h"
#include "layers/shapes.h"

/* ==== >>graph/differentiate ============================================================================== *
 * Backward and forward passes as nodes, so that they can be differentiated again. For an elementwise op the
 * derivative is its row in >>ops, read as a formula. For each other op a function here computes the gradient
 * of operand k from the result y and y's gradient g. */
typedef gpunn_tensor *(*gpunn__derivative)(gpunn_tensor *y, gpunn_tensor *g, int k);

static gpunn_tensor *gpunn__filled(gpunn_model *model, float value, gpunn_shape shape)
{
    const gpunn_shape scalar = {{0}};
    return gpunn_expand(gpunn_constant(model, scalar, &value), shape);
}

/* Reshapes t to the shape of x. */
static gpunn_tensor *gpunn__reshape_as(gpunn_tensor *t, const gpunn_tensor *x)
{
    return gpunn_reshape(t, gpunn_tensor_shape(x));
}

/* Sums g over the axes that broadcasting from `shape` added or expanded. */
static gpunn_tensor *gpunn__sum_to(gpunn_tensor *g, gpunn_shape shape)
{
    gpunn_axes axes = {{GPUNN_END}};
    int        count = 0, rank = 0;
    if (g == NULL) return NULL;
    while (rank < GPUNN_MAX_RANK && shape.dim[rank] != 0) rank++;
    for (int i = 0; i < g->rank; i++)
        if (i < g->rank - rank || shape.dim[i - (g->rank - rank)] != g->dim[i]) axes.axis[count++] = i;
    axes.axis[count] = GPUNN_END;
    return count ? gpunn_reshape(gpunn_sum(g, axes, false), shape) : g;
}

/* *joined: the product of dimensions of t. Records an error and returns false if there is none. */
static bool gpunn__join_axes(const gpunn_tensor *t, int rank, const int64_t *dim, int64_t *joined)
{
    char text[128];
    if (gpunn__joined(t->model, rank, dim, joined)) return true;
    (void)gpunn__fail(t->model->dev, GPUNN_ERR_SHAPE,
                      "gpunn_grad: a derivative joins axes of %s, but the batch is on more than one; "
                      "gpunn_reshape the op's input to rows",
                      gpunn__shape_text(t, text));
    return false;
}

/* Reshapes t to a matrix whose columns are its axes from `first` on. */
static gpunn_tensor *gpunn__matrix(gpunn_tensor *t, int first)
{
    gpunn_shape shape = {{0}};
    const bool  joined = t && gpunn__join_axes(t, first, t->dim, &shape.dim[0]) &&
                        gpunn__join_axes(t, t->rank - first, t->dim + first, &shape.dim[1]);
    return joined ? gpunn_reshape(t, shape) : NULL;
}

static gpunn_tensor *gpunn__matmul_of(gpunn_tensor *a, gpunn_tensor *b, bool transpose_a, bool transpose_b)
{
    gpunn_matmul_args args;
    memset(&args, 0, sizeof args);
    args.transpose_a = transpose_a;
    args.transpose_b = transpose_b;
    return gpunn_matmul_(a, b, args);
}

/* ---- elementwise ops ----------------------------------------------------------------------------------- */

/* Applies the derivative of operand k from the op's row in >>ops. It is a product with g. With the operand's
 * tangent instead of g, it gives y's tangent. */
static gpunn_tensor *gpunn__map_derivative(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    const gpunn__op_info *info = &gpunn__op_infos[y->op];
    const char           *names[4];
    gpunn_tensor         *operands[4];
    double                numbers[2];
    int                   count = 0;
    for (; count < info->arity; count++) {
        names[count] = info->arity == 1 ? "x" : gpunn__abc_names[count];
        operands[count] = y->inputs[count];
    }
    names[count] = "y", operands[count++] = y;
    /* replaces clamp's infinities */
    for (int i = 0; i < 2; i++) numbers[i] = (double)fmaxf(-FLT_MAX, fminf(FLT_MAX, y->attr.value[i]));
    return gpunn__expr(info->derivative[k], names, operands, count, info->attribute, numbers,
                       info->attribute_count, g);
}

static gpunn_tensor *gpunn__derive_map(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    return gpunn__sum_to(gpunn__map_derivative(y, g, k), gpunn_tensor_shape(y->inputs[k]));
}

/* ---- products ------------------------------------------------------------------------------------------ */

static gpunn_tensor *gpunn__derive_linear(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    gpunn_tensor *x = y->inputs[0], *rows = gpunn__matrix(g, g->rank - 1);
    if (k == 0) return gpunn__reshape_as(gpunn__matmul_of(rows, y->inputs[1], false, false), x);
    if (k == 1) return gpunn__matmul_of(rows, gpunn__matrix(x, x->rank - 1), true, false);
    return gpunn__sum_to(g, gpunn_tensor_shape(y->inputs[2]));
}

static gpunn_tensor *gpunn__derive_matmul(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    const bool    ta = y->attr.transpose_a, tb = y->attr.transpose_b;
    gpunn_tensor *a = y->inputs[0], *b = y->inputs[1], *d;
    if (k == 0)
        d = ta ? gpunn__matmul_of(b, g, tb, true) : gpunn__matmul_of(g, b, false, !tb);
    else
        d = tb ? gpunn__matmul_of(g, a, true, ta) : gpunn__matmul_of(a, g, !ta, false);
    return gpunn__sum_to(d, gpunn_tensor_shape(y->inputs[k]));
}

/* ---- convolutions -------------------------------------------------------------------------------------- */

/* Shape of one number per channel of x [n, channels, ...], which broadcasts to x. */
static gpunn_shape gpunn__channel_shape(const gpunn_tensor *x)
{
    gpunn_shape shape = {{x->dim[1]}};
    for (int i = 2; i < x->rank; i++) shape.dim[i - 1] = 1;
    return shape;
}

/* Slices x to the sizes of another tensor, from the first element of each axis on. */
static gpunn_tensor *gpunn__cut_to(gpunn_tensor *x, const gpunn_tensor *other)
{
    for (int i = 0; x && i < other->rank; i++)
        if (x->dim[i] != other->dim[i]) x = gpunn_slice(x, i, 0, other->dim[i], 1);
    return x;
}

/* The cells of an axis behind its last window. If its size varies: the most that there can be. */
static int gpunn__cells_behind(const gpunn_attributes *attr, int i, int64_t size, int64_t windows)
{
    const int64_t span = attr->dilation[i] * (attr->kernel[i] - 1) + 1 - 2 * (int64_t)attr->padding[i];
    return gpunn__is_sized(size) ? attr->stride[i] - 1 : (int)(size - (windows - 1) * attr->stride[i] - span);
}

/* Gradient of x: the opposite convolution with the same weight. For a convolution that is the transposed one,
 * and vice versa. If the size of x varies, the transposed one takes the largest that fits and is then cut. */
static gpunn_tensor *gpunn__derive_conv_input(gpunn_tensor *y, gpunn_tensor *g)
{
    const bool                           transposed = gpunn__op_is(y->op, GPUNN__TRANSPOSED);
    static const gpunn__operation *const others[] = {
        &gpunn__operation_conv_transpose1d, &gpunn__operation_conv_transpose2d,
        &gpunn__operation_conv_transpose3d, &gpunn__operation_conv1d,
        &gpunn__operation_conv2d,           &gpunn__operation_conv3d};
    const gpunn__operation *const other = others[y->op - GPUNN_OP_CONV1D];
    gpunn_attributes              attr = y->attr;
    gpunn_tensor                 *x = y->inputs[0], *operands[3] = {g, y->inputs[1], NULL};
    char                          name[32];
    for (int i = 0; i < gpunn__conv_axes(y->op); i++)
        attr.output_padding[i] = transposed ? 0 : gpunn__cells_behind(&attr, i, x->dim[2 + i], g->dim[2 + i]);
    /* in specs convolutions have names */
    (void)snprintf(name, sizeof name, "grad.%d", y->model->tensor_count);
    const gpunn__call call = gpunn__call_of(y->model, gpunn_op_name(other->op), name);
    return gpunn__cut_to(gpunn__node(&call, other, &attr, operands, 3), x);
}

/* Gradient of the weight: for each group, the product of the results' gradients with the windows, summed over
 * samples and places. For a transposed convolution the two operands change roles. */
static gpunn_tensor *gpunn__derive_conv_weight(gpunn_tensor *y, gpunn_tensor *g)
{
    const bool    transposed = gpunn__op_is(y->op, GPUNN__TRANSPOSED);
    gpunn_tensor *weight = y->inputs[1], *x = transposed ? g : y->inputs[0],
                 *out = transposed ? y->inputs[0] : g;
    const int64_t n = out->dim[0], groups = y->attr.groups, rows = weight->dim[0] / groups,
                  channels = weight->dim[1];
    int64_t cells = 1, both[2] = {n, 1}, all = 1;
    for (int i = 2; i < weight->rank; i++) cells *= weight->dim[i];
    if (!gpunn__join_axes(out, out->rank - 2, out->dim + 2, &both[1]) ||
        !gpunn__join_axes(out, 2, both, &all))
        return NULL;
    gpunn_tensor *windows = gpunn__unfold(x, &y->attr, out->dim + 2);
    windows = gpunn_reshape(windows, GPUNN_SHAPE(n, cells, groups, channels, both[1]));
    windows = gpunn_permute(windows, GPUNN_AXES(2, 0, 4, 3, 1));
    windows = gpunn_reshape(windows, GPUNN_SHAPE(groups, all, channels * cells));
    out = gpunn_permute(gpunn_reshape(out, GPUNN_SHAPE(n, groups, rows, both[1])), GPUNN_AXES(1, 2, 0, 3));
    out = gpunn_reshape(out, GPUNN_SHAPE(groups, rows, all));
    return gpunn__reshape_as(gpunn__matmul_of(out, windows, false, false), weight);
}

static gpunn_tensor *gpunn__derive_conv(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    if (k == 0) return gpunn__derive_conv_input(y, g);
    if (k == 1) return gpunn__derive_conv_weight(y, g);
    return gpunn__reshape_as(gpunn__sum_to(g, gpunn__channel_shape(y)), y->inputs[2]);
}

/* ---- reductions ---------------------------------------------------------------------------------------- */

/* Reshapes the result of a reduction so that the reduced axes have size 1. */
static gpunn_tensor *gpunn__keep_axes(gpunn_tensor *t, const gpunn_tensor *y)
{
    gpunn_shape shape = gpunn_tensor_shape(y->inputs[0]);
    for (int i = 0; i < y->inputs[0]->rank; i++)
        if (y->attr.axes >> i & 1) shape.dim[i] = 1;
    return gpunn_reshape(t, shape);
}

/* Divides g by the number of elements behind each element of a mean y. A batch size is counted by a sum of
 * ones. */
static gpunn_tensor *gpunn__divide_by_count(gpunn_tensor *g, const gpunn_tensor *y)
{
    const gpunn_tensor *x = y->inputs[0];
    gpunn_shape         batches = {{0}};
    int                 count = 0;
    double              fixed = 1;
    for (int i = 0; i < x->rank; i++)
        if (y->attr.axes >> i & 1) {
            if (x->dim[i] < 0)
                batches.dim[count++] = x->dim[i];
            else
                fixed *= (double)x->dim[i];
        }
    g = gpunn_mul_scalar(g, (float)(1 / fixed));
    return count ? gpunn_div(g, gpunn_sum(gpunn__filled(y->model, 1, batches), GPUNN_ALL, false)) : g;
}

static gpunn_tensor *gpunn__derive_sum(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    if (y->attr.mean) g = gpunn__divide_by_count(g, y);
    return gpunn_expand(gpunn__keep_axes(g, y), gpunn_tensor_shape(y->inputs[k]));
}

/* Ties share the gradient. */
static gpunn_tensor *gpunn__derive_max(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    gpunn_tensor *mask = gpunn_eq(y->inputs[k], gpunn__keep_axes(y, y));
    gpunn_axes    axes = {{GPUNN_END}};
    for (int i = 0, count = 0; i < y->inputs[k]->rank; i++)
        if (y->attr.axes >> i & 1) axes.axis[count++] = i, axes.axis[count] = GPUNN_END;
    return gpunn_mul(mask, gpunn_div(gpunn__keep_axes(g, y), gpunn_sum(mask, axes, true)));
}

/* Sum of g over each element and those after it. */
static gpunn_tensor *gpunn__derive_cumsum(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    const int axis = y->attr.axis + k;
    return gpunn_add(gpunn_sub(g, gpunn_cumsum(g, axis)), gpunn_sum(g, GPUNN_AXES(axis), true));
}

/* The sum of g[j] exp(x[i] - y[j]) over j >= i, with all pairs in memory: no exponent exceeds 0. */
static gpunn_tensor *gpunn__derive_logcumsum(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    static const char *const names[] = {"x", "y", "i", "j"};
    const int                axis = y->attr.axis;
    gpunn_tensor            *x = y->inputs[k], *pairs[4], *numbers = gpunn__ordinals(y->model, x->dim[axis]);
    gpunn_shape              line = {{x->dim[axis]}};
    for (int i = axis + 1; i < x->rank; i++) line.dim[i - axis] = 1;
    numbers = gpunn_reshape(numbers, line);
    pairs[0] = gpunn__unsqueeze(x, axis + 1), pairs[1] = gpunn__unsqueeze(y, axis);
    pairs[2] = gpunn__unsqueeze(numbers, 1), pairs[3] = gpunn__unsqueeze(numbers, 0);
    g = gpunn__expr("g * where(i <= j, exp(where(i <= j, x - y, 0)), 0)", names, pairs, 4, NULL, NULL, 0,
                    gpunn__unsqueeze(g, axis));
    return gpunn_sum(g, GPUNN_AXES(axis + 1), false);
}

static gpunn_tensor *gpunn__derive_cross(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    const int axis = y->attr.axis;
    return k == 0 ? gpunn_cross(y->inputs[1], g, axis) : gpunn_cross(g, y->inputs[0], axis);
}

static gpunn_tensor *gpunn__derive_softmax(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    const int axis = y->attr.axis + k;
    if (y->op == GPUNN_OP_LOG_SOFTMAX)
        return gpunn_sub(g, gpunn_mul(gpunn_exp(y), gpunn_sum(g, GPUNN_AXES(axis), true)));
    return gpunn_mul(y, gpunn_sub(g, gpunn_sum(gpunn_mul(g, y), GPUNN_AXES(axis), true)));
}

/* ---- shapes -------------------------------------------------------------------------------------------- */

static gpunn_tensor *gpunn__derive_reshape(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    return gpunn__reshape_as(g, y->inputs[k]);
}

static gpunn_tensor *gpunn__derive_expand(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    return gpunn__sum_to(g, gpunn_tensor_shape(y->inputs[k]));
}

static gpunn_tensor *gpunn__derive_permute(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    gpunn_axes    back = {{GPUNN_END}};
    gpunn_tensor *x = y->inputs[k];
    for (int i = 0; i < x->rank; i++) back.axis[y->attr.order[i]] = i;
    back.axis[x->rank] = GPUNN_END;
    return gpunn_permute(g, back);
}

static gpunn_tensor *gpunn__derive_concat(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    const int axis = y->attr.axis;
    int64_t   start = 0;
    if (y->input_count == 1) return g;
    for (int i = 0; i < k; i++) start = gpunn__dim_plus(y->model, start, y->inputs[i]->dim[axis], 1, 0);
    return gpunn_slice(g, axis, start, gpunn__dim_plus(y->model, start, y->inputs[k]->dim[axis], 1, 0), 1);
}

/* Pads one axis with zeros before and after. */
static gpunn_tensor *gpunn__zeros_around(gpunn_tensor *x, int axis, int64_t before, int64_t after)
{
    gpunn_pad_args args;
    memset(&args, 0, sizeof args);
    args.before[axis] = before;
    args.after[axis] = after;
    return before || after ? gpunn_pad_(x, args) : x;
}

/* Adds g to zeros at the places that the slice took. */
static gpunn_tensor *gpunn__derive_slice_of_sizes(gpunn_tensor *y, gpunn_tensor *g, const gpunn_tensor *x)
{
    const gpunn_attributes *attr = &y->attr;
    gpunn_tensor           *places = gpunn_add_scalar(gpunn__ordinals(y->model, x->dim[attr->axis]), -1);
    places = gpunn_cast(gpunn_slice(places, 0, attr->start, attr->end, attr->step), GPUNN_I64);
    return gpunn_index_add(gpunn__filled(y->model, 0, gpunn_tensor_shape(x)), attr->axis, places, g);
}

/* Puts zeros where the slice left out elements: step - 1 after each element, in an axis of its own, then
 * those around them. */
static gpunn_tensor *gpunn__derive_slice(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    const gpunn_attributes *attr = &y->attr;
    const int               axis = attr->axis;
    const int64_t           size = y->inputs[k]->dim[axis], taken = y->dim[axis], step = attr->step;
    if (gpunn__is_sized(size) || gpunn__is_sized(taken))
        return gpunn__derive_slice_of_sizes(y, g, y->inputs[k]);
    if (step > 1) {
        gpunn_tensor *rows = gpunn__matrix(g, axis + 1); /* [.. * taken, ..] */
        gpunn_shape   shape = gpunn_tensor_shape(rows);
        shape.dim[2] = shape.dim[1];
        shape.dim[1] = 1;
        rows = gpunn__zeros_around(gpunn_reshape(rows, shape), 1, 0, step - 1);
        shape = gpunn_tensor_shape(g);
        shape.dim[axis] = taken * step;
        g = gpunn_slice(gpunn_reshape(rows, shape), axis, 0, (taken - 1) * step + 1, 1);
    }
    return gpunn__zeros_around(g, axis, attr->start, size - attr->start - ((taken - 1) * step + 1));
}

static gpunn_tensor *gpunn__derive_pad(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    const gpunn_tensor *x = y->inputs[k];
    for (int i = 0; i < x->rank; i++) {
        const int64_t before = y->attr.before[i];
        if (x->dim[i] != y->dim[i])
            g = gpunn_slice(g, i, before, gpunn__dim_plus(y->model, before, x->dim[i], 1, 0), 1);
    }
    return g;
}

static gpunn_tensor *gpunn__derive_gather(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    const int     axis = y->attr.axis;
    gpunn_tensor *x = y->inputs[k], *index = y->inputs[1];
    gpunn_shape   shape = gpunn_tensor_shape(index);
    shape.dim[axis] = x->dim[axis];
    gpunn_tensor *d = gpunn_scatter_add(gpunn__filled(y->model, 0, shape), axis, index, g);
    for (int i = 0; i < x->rank; i++)
        if (shape.dim[i] != x->dim[i]) d = gpunn__zeros_around(d, i, 0, x->dim[i] - shape.dim[i]);
    return d;
}

static gpunn_tensor *gpunn__derive_scatter_add(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    return k == 0 ? g : gpunn_gather(g, y->attr.axis, y->inputs[1]);
}

/* x gets the gradient of what is not overwritten, src that of what overwrites. If several elements of src
 * name one place, only the last counts; it is found by numbering them. */
static gpunn_tensor *gpunn__derive_scatter(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    const int     axis = y->attr.axis;
    gpunn_tensor *index = y->inputs[1], *zeros = gpunn__filled(y->model, 0, gpunn_tensor_shape(index)),
                 *number;
    const gpunn_shape shape = gpunn_tensor_shape(index);
    gpunn_shape       line = {{shape.dim[axis]}};
    if (k == 0) return gpunn_scatter(g, axis, index, zeros);
    for (int i = axis + 1; i < index->rank; i++) line.dim[i - axis] = 1;
    number = gpunn_expand(gpunn_reshape(gpunn__ordinals(y->model, shape.dim[axis]), line), shape);
    gpunn_tensor *last = gpunn_scatter(gpunn__filled(y->model, 0, gpunn_tensor_shape(y)), axis, index,
                                       number);
    return gpunn_where(gpunn_eq(gpunn_gather(last, axis, index), number), gpunn_gather(g, axis, index),
                       zeros);
}

/* The row of padding gets no gradient. */
static gpunn_tensor *gpunn__derive_embedding(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    gpunn_tensor *weight = y->inputs[k], *rows = gpunn__matrix(g, g->rank - 1), *tokens = y->inputs[0];
    if (rows == NULL) return NULL;
    tokens = gpunn_reshape(tokens, GPUNN_SHAPE(rows->dim[0]));
    if (y->attr.ignore_index >= 0) {
        static const char *const names[] = {"token"}, *const numbers[] = {"padding"};
        const double  padding = (double)y->attr.ignore_index;
        gpunn_tensor *column = gpunn_reshape(gpunn_cast(tokens, GPUNN_F32), GPUNN_SHAPE(rows->dim[0], 1));
        rows = gpunn__expr("g * (token != padding)", names, &column, 1, numbers, &padding, 1, rows);
    }
    return gpunn_index_add(gpunn__filled(y->model, 0, gpunn_tensor_shape(weight)), 0, tokens, rows);
}

/* ---- class losses: own is 1 where a logit, [n, classes, ...], is its label's; counted is 0 where the label
 * is ignored -- */

static gpunn_tensor *gpunn__derive_class_loss(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    static const char *const texts[] = {"g * (p * sum(t, 1, keepdim=True) - t)", "-g * t"};
    static const char *const names[] = {"own", "counted", "w", "p", "t"}, *const numbers[] = {"ignored", "s",
                                                                                              "classes"};
    gpunn_tensor *x = y->inputs[k], *labels = y->inputs[1], *operands[5];
    const double  values[] = {(double)y->attr.ignore_index, (double)y->attr.label_smoothing,
                              (double)x->dim[1]};
    const float   one = 1;
    gpunn_shape   shape = gpunn_tensor_shape(x), scalar = {{0}};
    gpunn_axes    order = {{0, x->rank - 1}};
    for (int i = 2; i < x->rank; i++) order.axis[i] = i - 1;
    order.axis[x->rank] = GPUNN_END;
    shape.dim[1] = 1;
    operands[0] = gpunn_permute(gpunn_one_hot(labels, (int)x->dim[1]), order);
    operands[1] = gpunn_reshape(gpunn_cast(labels, GPUNN_F32), shape);
    operands[1] = gpunn__expr("counted != ignored", names + 1, operands + 1, 1, numbers, values, 1, NULL);
    operands[2] = y->inputs[2] ? gpunn_reshape(y->inputs[2], gpunn__channel_shape(x))
                               : gpunn_constant(y->model, scalar, &one);
    operands[3] = gpunn_softmax(x, 1);
    operands[0] = gpunn__expr("own * counted * w", names, operands, 3, NULL, NULL, 0, NULL);
    operands[4] = gpunn__expr("(1 - s) * own + s / classes * counted * w", names, operands, 3, numbers,
                              values, 3, NULL);
    if (y->attr.reduction == GPUNN_REDUCE_MEAN) g = gpunn_div(g, gpunn_sum(operands[0], GPUNN_ALL, false));
    if (y->attr.reduction == GPUNN_REDUCE_NONE) g = gpunn_reshape(g, shape);
    return gpunn__expr(texts[y->op == GPUNN_OP_NLL], names + 3, operands + 3, 2, NULL, NULL, 0, g);
}

/* ---- norms: h is x normalised along the rows of a matrix, r the factor of that ------------------------- */

#define GPUNN__LAYER_ROWS \
    "c = x - mean(x, 1, keepdim=True); r = rsqrt(mean(c * c, 1, keepdim=True) + eps); h = c * r; "
#define GPUNN__RMS_ROWS "r = rsqrt(mean(x * x, 1, keepdim=True) + eps); h = x * r; "
#define GPUNN__ALONG_H "h * mean(g * h, 1, keepdim=True)"

/* Reshapes t [n, channels, ...] to a matrix with one row per sample and group. */
static gpunn_tensor *gpunn__group_matrix(gpunn_tensor *t, int64_t groups)
{
    gpunn_shape shape = {{t->dim[0], groups, t->dim[1] / groups, 1}};
    return gpunn__join_axes(t, t->rank - 2, t->dim + 2, &shape.dim[3])
               ? gpunn__matrix(gpunn_reshape(t, shape), 2)
               : NULL;
}

static gpunn_tensor *gpunn__derive_norm(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    static const char *const texts[2][2] = {
        {GPUNN__LAYER_ROWS "r * (g - mean(g, 1, keepdim=True) - " GPUNN__ALONG_H ")",
         GPUNN__LAYER_ROWS "g * h"},
        {GPUNN__RMS_ROWS "r * (g - " GPUNN__ALONG_H ")", GPUNN__RMS_ROWS "g * h"}};
    static const char *const names[] = {"x"}, *const numbers[] = {"eps"};
    const bool        grouped = y->op == GPUNN_OP_GROUP_NORM;
    const double      eps = (double)y->attr.eps;
    gpunn_tensor     *x = y->inputs[0], *weight = y->inputs[1], *rows[2];
    const gpunn_shape shape = grouped ? gpunn__channel_shape(x) : gpunn_tensor_shape(weight);
    if (k == 2) return gpunn__reshape_as(gpunn__sum_to(g, shape), y->inputs[2]);
    if (k == 0 && weight) g = gpunn_mul(g, gpunn_reshape(weight, shape));
    rows[0] = x, rows[1] = g;
    for (int i = 0; i < 2 && rows[i]; i++)
        rows[i] = grouped ? gpunn__group_matrix(rows[i], y->attr.groups)
                          : gpunn__matrix(rows[i], y->attr.axis);
    gpunn_tensor *d = gpunn__expr(texts[y->op == GPUNN_OP_RMS_NORM][k], names, rows, 1, numbers, &eps, 1,
                                  rows[1]);
    d = gpunn__reshape_as(d, x);
    return k == 0 ? d : gpunn__reshape_as(gpunn__sum_to(d, shape), weight);
}

/* ---- pools --------------------------------------------------------------------------------------------- */

/* The settings of pool y as those of a plain one. False: an adaptive pool whose windows differ. */
static bool gpunn__plain_pool(const gpunn_tensor *y, gpunn_attributes *attr)
{
    const gpunn_tensor *x = y->inputs[0];
    *attr = y->attr;
    for (int i = 0; i < x->rank - 2 && gpunn__op_is(y->op, GPUNN__ADAPTIVE_POOL); i++) {
        if (x->dim[2 + i] % y->dim[2 + i] != 0) return false;
        attr->kernel[i] = attr->stride[i] = (int)(x->dim[2 + i] / y->dim[2 + i]);
    }
    return true;
}

/* x [n, c, ...] as the windows of a plain pool, [n, cells, c, ...]. Cells outside x are `outside`. */
static gpunn_tensor *gpunn__pool_windows(gpunn_tensor *x, gpunn_attributes attr, const int64_t *windows,
                                         float outside)
{
    gpunn_shape    shape = {{x->dim[0], 1, x->dim[1]}};
    gpunn_pad_args pad;
    memset(&pad, 0, sizeof pad);
    pad.value = outside;
    for (int i = 0; i < x->rank - 2; i++) {
        pad.before[2 + i] = attr.padding[i];
        pad.after[2 + i] = attr.padding[i] + (attr.ceil_mode ? attr.stride[i] - 1 : 0);
        attr.padding[i] = 0, attr.dilation[i] = 1;
        shape.dim[1] *= attr.kernel[i];
        shape.dim[3 + i] = windows[i];
    }
    x = gpunn_pad_(x, pad);
    return x ? gpunn_reshape(gpunn__unfold(x, &attr, windows), shape) : NULL;
}

/* The means of windows. The op's own result for ones tells what each sum is divided by. */
static gpunn_tensor *gpunn__mean_windows(gpunn_tensor *y, gpunn_tensor *windows, gpunn_attributes attr)
{
    const gpunn__call call = gpunn__call_of(y->model, gpunn_op_name(y->op), NULL);
    gpunn_shape       shape = gpunn_tensor_shape(y->inputs[0]);
    shape.dim[0] = shape.dim[1] = 1;
    gpunn_tensor *ones = gpunn__filled(y->model, 1, shape),
                 *means = gpunn__node(&call, y->operation, &y->attr, &ones, 1);
    if (means == NULL) return NULL;
    ones = gpunn_sum(gpunn__pool_windows(ones, attr, means->dim + 2, 0), GPUNN_AXES(1), false);
    return gpunn_mul(gpunn_sum(windows, GPUNN_AXES(1), false), gpunn_div(means, ones));
}

/* The gradient of the same pool made of ops. The first maximum of a window gets its gradient. */
static gpunn_tensor *gpunn__derive_pool(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    const bool       maximum = gpunn__op_is(y->op, GPUNN__MAX_POOL);
    gpunn_tensor    *x = y->inputs[k];
    gpunn_grad_args  args = {0, g};
    gpunn_attributes attr;
    (void)gpunn__plain_pool(y, &attr);
    gpunn_tensor *windows = gpunn__pool_windows(x, attr, y->dim + 2, maximum ? -INFINITY : 0);
    windows = maximum ? gpunn_max_with_indices(windows, 1, false, NULL)
                      : gpunn__mean_windows(y, windows, attr);
    return gpunn_grad_(windows, x, args);
}

/* ---- interpolation ------------------------------------------------------------------------------------- */

/* The weights [in, out] of one axis of interpolation y: its result for the rows of an identity matrix. */
static gpunn_tensor *gpunn__resize_matrix(const gpunn_tensor *y, int axis)
{
    const gpunn_tensor *x = y->inputs[0];
    const gpunn__call   call = gpunn__call_of(y->model, gpunn_op_name(y->op), NULL);
    gpunn_attributes    attr = y->attr;
    gpunn_tensor       *numbers = gpunn__ordinals(y->model, x->dim[axis]);
    gpunn_shape         shape = {{x->dim[axis], 1}};
    for (int i = 2; i < x->rank; i++) {
        shape.dim[i] = i == axis ? x->dim[axis] : 1;
        if (i == axis) continue;
        attr.size[i - 2] = 1, attr.shape.dim[i - 2] = 0;
        attr.ratio[i - 2] = gpunn__resize_ratio(1, 1, attr.align_corners, 0);
    }
    gpunn_tensor *rows = gpunn_eq(gpunn__unsqueeze(numbers, 1), gpunn__unsqueeze(numbers, 0));
    rows = gpunn_reshape(rows, shape);
    if (rows) rows = gpunn__node(&call, y->operation, &attr, &rows, 1);
    return gpunn_reshape(rows, GPUNN_SHAPE(x->dim[axis], y->dim[axis]));
}

/* Resizes one axis of t as interpolation y does, by a product. */
static gpunn_tensor *gpunn__resize_by_product(const gpunn_tensor *y, gpunn_tensor *t, int axis)
{
    gpunn_tensor *matrix = gpunn__resize_matrix(y, axis);
    gpunn_shape   shape = gpunn_tensor_shape(t), rows = shape;
    if (axis == t->rank - 1) return gpunn__matmul_of(t, matrix, false, false);
    memset(rows.dim + axis + 1, 0, sizeof rows.dim - (size_t)(axis + 1) * sizeof *rows.dim);
    if (!gpunn__join_axes(t, t->rank - axis - 1, t->dim + axis + 1, &rows.dim[axis + 1])) return NULL;
    shape.dim[axis] = y->dim[axis];
    return gpunn_reshape(gpunn__matmul_of(matrix, gpunn_reshape(t, rows), true, false), shape);
}

static gpunn_tensor *gpunn__derive_interpolate(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    const gpunn_grad_args args = {0, g};
    gpunn_tensor         *t = y->inputs[k];
    for (int axis = 2; t && axis < y->rank; axis++) t = gpunn__resize_by_product(y, t, axis);
    return t ? gpunn_grad_(t, y->inputs[k], args) : NULL;
}

/* ---- attention ----------------------------------------------------------------------------------------- */

static bool gpunn__is_packed(const gpunn_tensor *y)
{
    return y->inputs[1] == NULL;
}

/* q, k or v of attention y, parts 0 to 2, as [n, heads, rows, e] with q's number of heads. */
static gpunn_tensor *gpunn__heads_of_operand(const gpunn_tensor *y, gpunn_tensor *t, int part, int64_t heads)
{
    if (t == NULL) return NULL;
    gpunn_shape shape = gpunn_tensor_shape(t);
    if (gpunn__is_packed(y)) {
        memmove(shape.dim + 2, shape.dim + 3, 3 * sizeof *shape.dim);
        t = gpunn_reshape(gpunn_slice(t, 2, part, part + 1, 1), shape);
    }
    if (gpunn__is_packed(y) || y->attr.heads_last) t = gpunn_permute(t, GPUNN_AXES(0, 2, 1, 3));
    if (t == NULL || part == 0 || t->dim[1] == heads) return t;
    shape = gpunn_tensor_shape(t);
    shape.dim[1] = heads;
    const gpunn_shape each = {{t->dim[0], t->dim[1], heads / t->dim[1], t->dim[2], t->dim[3]}};
    return gpunn_reshape(gpunn_expand(gpunn__unsqueeze(t, 2), each), shape);
}

/* 1 where a row sees a key, elsewhere 0. It broadcasts with the scores [n, heads, l, s]. NULL: all are seen,
 * or a builder failed. */
static gpunn_tensor *gpunn__seen_keys(const gpunn_tensor *y, const gpunn_tensor *scores)
{
    static const char *const names[] = {"m"}, *const numbers[] = {"lowest"};
    const double  lowest = -FLT_MAX;
    gpunn_tensor *mask = y->inputs[3], *seen = NULL;
    if (y->attr.is_causal)
        seen = gpunn_ge(gpunn__unsqueeze(gpunn__ordinals(y->model, scores->dim[2]), 1),
                        gpunn__ordinals(y->model, scores->dim[3]));
    if (mask == NULL) return seen;
    mask = mask->dtype == GPUNN_BOOL ? gpunn_cast(mask, GPUNN_F32)
                                     : gpunn__expr("m >= lowest", names, &mask, 1, numbers, &lowest, 1, NULL);
    return seen ? gpunn_mul(seen, mask) : mask;
}

/* The weights softmax(q k^T scale + mask). Rows that see no key are 0. */
static gpunn_tensor *gpunn__explicit_weights(gpunn_tensor *y, gpunn_tensor *scores)
{
    static const char *const names[] = {"seen", "s", "m"}, *const numbers[] = {"lowest"};
    const double lowest = -FLT_MAX;
    const bool   masked = y->attr.is_causal || y->inputs[3],
               biased = y->inputs[3] && y->inputs[3]->dtype != GPUNN_BOOL;
    gpunn_tensor *t[3] = {NULL, gpunn_mul_scalar(scores, y->attr.scale), y->inputs[3]};
    if (t[1] == NULL || !masked) return gpunn_softmax(t[1], -1);
    t[0] = gpunn__seen_keys(y, scores);
    t[1] = biased ? gpunn__expr("where(seen, s + where(seen, m, 0), lowest)", names, t, 3, numbers, &lowest,
                                1, NULL)
                  : gpunn__expr("where(seen, s, lowest)", names, t, 2, numbers, &lowest, 1, NULL);
    return gpunn_mul(gpunn_softmax(t[1], -1), t[0]);
}

/* The gradient of the same attention made of ops, which stores its l x s weights. Operand k gets a node of
 * its own, since other operands may depend on it. */
static gpunn_tensor *gpunn__derive_attention(gpunn_tensor *y, gpunn_tensor *g, int k)
{
    const gpunn_grad_args args = {0, g};
    const bool            packed = gpunn__is_packed(y);
    gpunn_tensor         *own = gpunn__reshape_as(y->inputs[k], y->inputs[k]), *t[3];
    int64_t               heads = 0;
    for (int i = 0; i < 3; i++) {
        t[i] = gpunn__heads_of_operand(y, packed || i == k ? own : y->inputs[i], i, heads);
        if (t[i] == NULL) return NULL;
        heads = t[0]->dim[1];
    }
    gpunn_tensor *scores = gpunn__matmul_of(t[0], t[1], false, true);
    if (scores == NULL) return NULL;
    gpunn_tensor *out = gpunn__matmul_of(gpunn__explicit_weights(y, scores), t[2], false, false);
    if (packed || y->attr.heads_last) out = gpunn_permute(out, GPUNN_AXES(0, 2, 1, 3));
    return gpunn_grad_(out, own, args);
}

/* ---- the table of derivatives -------------------------------------------------------------------------- */

/* X(op, function) */
#define GPUNN__DERIVATIVES(X)    \
    X(LINEAR, linear)            \
    X(MATMUL, matmul)            \
    X(CONV1D, conv)              \
    X(CONV2D, conv)              \
    X(CONV3D, conv)              \
    X(CONV_TRANSPOSE1D, conv)    \
    X(CONV_TRANSPOSE2D, conv)    \
    X(CONV_TRANSPOSE3D, conv)    \
    X(SUM, sum)                  \
    X(MAX, max)                  \
    X(CUMSUM, cumsum)            \
    X(LOGCUMSUMEXP, logcumsum)   \
    X(CROSS, cross)              \
    X(SOFTMAX, softmax)          \
    X(LOG_SOFTMAX, softmax)      \
    X(RESHAPE, reshape)          \
    X(EXPAND, expand)            \
    X(PERMUTE, permute)          \
    X(CONCAT, concat)            \
    X(SLICE, slice)              \
    X(PAD, pad)                  \
    X(GATHER, gather)            \
    X(SCATTER_ADD, scatter_add)  \
    X(SCATTER, scatter)          \
    X(EMBEDDING, embedding)      \
    X(CROSS_ENTROPY, class_loss) \
    X(NLL, class_loss)           \
    X(ATTENTION, attention)      \
    X(INTERPOLATE, interpolate)  \
    X(MAX_POOL2D, pool)          \
    X(MAX_POOL3D, pool)          \
    X(AVG_POOL2D, pool)          \
    X(AVG_POOL3D, pool)          \
    X(ADAPTIVE_MAX_POOL2D, pool) \
    X(ADAPTIVE_MAX_POOL3D, pool) \
    X(ADAPTIVE_AVG_POOL2D, pool) \
    X(ADAPTIVE_AVG_POOL3D, pool) \
    X(LAYER_NORM, norm)          \
    X(RMS_NORM, norm)            \
    X(GROUP_NORM, norm)

/* NULL: y's op has none. */
static gpunn__derivative gpunn__derivative_of(const gpunn_tensor *y)
{
    static const struct {
        gpunn_op          op;
        gpunn__derivative derive;
    } rows[] = {
#define GPUNN__X(ENUM, function) {GPUNN_OP_##ENUM, gpunn__derive_##function},
        GPUNN__DERIVATIVES(GPUNN__X)
#undef GPUNN__X
    };
    if (gpunn__op_elementwise(y->op)) return gpunn__derive_map;
    gpunn_attributes pool;
    if (y->op == GPUNN_OP_PAD && y->attr.mode != GPUNN_PAD_CONSTANT) return NULL;
    if (gpunn__op_is(y->op, GPUNN__POOL) && !gpunn__plain_pool(y, &pool)) return NULL;
    if (y->op == GPUNN_OP_ATTENTION && (y->attr.dropout_p > 0 || y->input_count > 4)) return NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].op == y->op) return rows[i].derive;
    return NULL;
}

/* Whether y depends on its operand k. False if the derivative is K(0.0), the zeros that only serve weight
 * decay. */
static bool gpunn__varies_with(const gpunn_tensor *y, int k)
{
    return y->inputs[k] && gpunn__op_has_gradient(y->op, k) &&
           !(gpunn__op_elementwise(y->op) && strcmp(gpunn__op_infos[y->op].derivative[k], "K(0.0)") == 0);
}

/* The derivative of y's op. If there is none, records an error and returns NULL. */
static gpunn__derivative gpunn__required_derivative(const gpunn__call *call, const gpunn_tensor *y)
{
    const gpunn__derivative derive = gpunn__derivative_of(y);
    char                    layer[GPUNN__ERROR_SIZE];
    if (derive == NULL)
        (void)gpunn__call_fail(call, GPUNN_ERR_UNSUPPORTED,
                               "%s%s has no derivative made of ops; replace it by an op in gpunn_grad's list",
                               gpunn_op_name(y->op), gpunn__quoted(y->layer, layer));
    return derive;
}

/* Adds t to *sum, where NULL means 0. False on an error. */
static bool gpunn__add_to(gpunn_tensor **sum, gpunn_tensor *t)
{
    *sum = *sum ? gpunn_add(*sum, t) : t;
    return *sum != NULL;
}

/* ---- forward mode: from the tangents of operands to the tangent of the result -------------------------- */

/* The tangent of a tensor. It may have size 1 where the tensor has a larger size. */
typedef struct gpunn__tangent {
    bool          needed, known;
    gpunn_tensor *value; /* NULL: zeros */
} gpunn__tangent;

static gpunn_tensor *gpunn__expand_as(gpunn_tensor *t, const gpunn_tensor *like)
{
    return t == NULL || gpunn__same_shape(t, like) ? t : gpunn_expand(t, gpunn_tensor_shape(like));
}

/* Tangent through a linear layer. v may have one row for all rows of x; the result has as many rows as v. */
static gpunn_tensor *gpunn__push_rows(const gpunn_tensor *y, gpunn_tensor *v)
{
    gpunn_shape shape = gpunn_tensor_shape(v);
    shape.dim[v->rank - 1] = y->dim[y->rank - 1];
    return gpunn_reshape(gpunn__matmul_of(gpunn__matrix(v, v->rank - 1), y->inputs[1], false, true), shape);
}

/* The part of y's tangent that comes from the tangent v of operand k. For ops without a row in >>ops it
 * transposes the gradient rule. The rule is linear in g, so its gradient with respect to g is its transpose.
 * The zeros that stand for g are never computed. */
static gpunn_tensor *gpunn__push(const gpunn__call *call, gpunn_tensor *y, gpunn_tensor *v, int k)
{
    const gpunn__derivative derive = gpunn__required_derivative(call, y);
    gpunn_grad_args         args = {0, NULL};
    if (derive == NULL) return NULL;
    if (derive == gpunn__derive_map) return gpunn__map_derivative(y, v, k);
    if (y->op == GPUNN_OP_LINEAR && k == 0) return gpunn__push_rows(y, v);
    gpunn_tensor *stand_in = gpunn__filled(call->model, 0, gpunn_tensor_shape(y));
    args.grad_output = gpunn__expand_as(v, y->inputs[k]);
    return stand_in && args.grad_output ? gpunn_grad_(derive(y, stand_in, k), stand_in, args) : NULL;
}

static void gpunn__know(gpunn__tangent *of, const gpunn_tensor *t, gpunn_tensor *v)
{
    of[t->id].known = true;
    of[t->id].value = v;
}

/* Propagates tangents to y and all tensors between it and the known ones; `first` is the smallest id of
 * these. False on an error. */
static bool gpunn__carry(const gpunn__call *call, int first, const gpunn_tensor *y, gpunn__tangent *of)
{
    of[y->id].needed = true;
    for (int id = y->id; id >= first; id--) {
        const gpunn_tensor *t = call->model->tensors[id];
        for (int k = 0; of[id].needed && !of[id].known && k < t->input_count; k++)
            if (gpunn__varies_with(t, k)) of[t->inputs[k]->id].needed = true;
    }
    for (int id = first; id <= y->id; id++) {
        gpunn_tensor *t = call->model->tensors[id];
        for (int k = 0; of[id].needed && !of[id].known && k < t->input_count; k++) {
            gpunn_tensor *v = gpunn__varies_with(t, k) ? of[t->inputs[k]->id].value : NULL;
            if (v == NULL) continue;
            if (!gpunn__add_to(&of[id].value, gpunn__push(call, t, v, k))) return false;
        }
    }
    return true;
}

static gpunn__tangent *gpunn__tangents(const gpunn__call *call, size_t count)
{
    return (gpunn__tangent *)gpunn__calloc(call->model->dev, count * sizeof(gpunn__tangent));
}

static void gpunn__free_tangents(const gpunn__call *call, gpunn__tangent *of, size_t count)
{
    if (of) gpunn__free(call->model->dev, of, count * sizeof *of);
}

/* ---- curvature: d2y / dv2 is the sum over ops of their second derivative along the operands' tangents,
 * times their gradient */

typedef struct gpunn__curvature {
    const gpunn_tensor *x;
    int                 directions;
    size_t              size;     /* number of tensors that have tangents */
    gpunn__tangent     *of;       /* [directions][size] */
    gpunn_tensor       *products; /* products of one shape, added up, not yet summed per sample; NULL: none */
    gpunn_tensor       *rows;     /* the sum so far, [n, 1]; NULL: 0 */
    /* sum of the terms without an axis of samples, to be differentiated by y's gradient; NULL: 0 */
    gpunn_tensor *others;
} gpunn__curvature;

/* The only axis of t that is x's axis of samples; -1: none, or ambiguous. */
static int gpunn__sample_axis(const gpunn_tensor *t, const gpunn_tensor *x)
{
    int axis = -1;
    for (int i = 0; i < t->rank; i++)
        if (t->dim[i] < 0) {
            if (axis >= 0 || t->dim[i] != x->dim[0]) return -1;
            axis = i;
        }
    return axis;
}

/* Sums the collected products per sample. */
static bool gpunn__sum_products(gpunn__curvature *c)
{
    gpunn_tensor *t = c->products;
    if (t == NULL) return true;
    const int   axis = gpunn__sample_axis(t, c->x);
    gpunn_shape shape = gpunn_tensor_shape(t);
    c->products = NULL;
    if (axis < 0) return gpunn__add_to(&c->others, gpunn_sum(t, GPUNN_ALL, false));
    for (int i = 0; i < t->rank; i++)
        if (i != axis) shape.dim[i] = 1;
    return gpunn__add_to(&c->rows, gpunn_reshape(gpunn__sum_to(t, shape), GPUNN_SHAPE(c->x->dim[0], 1)));
}

/* Adds a * b, where a is the tangent of t's gradient and b that of t. a NULL: zeros. */
static bool gpunn__add_product(gpunn__curvature *c, gpunn_tensor *a, gpunn_tensor *b, const gpunn_tensor *t)
{
    if (a == NULL) return true;
    if (c->products && !gpunn__same_shape(c->products, t) && !gpunn__sum_products(c)) return false;
    return gpunn__add_to(&c->products, gpunn__expand_as(gpunn_mul(a, b), t));
}

/* Computes the tangent of d, the gradient that y passes to an operand. y and its operands have their tangents
 * of one direction; y's own gradient g is constant. */
static bool gpunn__carry_around(const gpunn__call *call, gpunn_tensor *y, const gpunn_tensor *g,
                                const gpunn_tensor *d, const gpunn__tangent *of, gpunn__tangent *around)
{
    int first = y->id;
    gpunn__know(around, g, NULL);
    gpunn__know(around, y, of[y->id].value);
    for (int i = 0; i < y->input_count; i++) {
        const gpunn_tensor *x = y->inputs[i];
        if (x == NULL || of[x->id].value == NULL) continue;
        gpunn__know(around, x, of[x->id].value);
        if (x->id < first) first = x->id;
    }
    return gpunn__carry(call, first, d, around);
}

/* Adds y's contribution through d, the gradient that y with its own gradient g passes to operand k: the
 * tangent of d times the tangent of the operand. */
static bool gpunn__add_curvature(const gpunn__call *call, gpunn__curvature *c, gpunn_tensor *y,
                                 const gpunn_tensor *g, const gpunn_tensor *d, int k)
{
    const size_t    count = (size_t)call->model->tensor_count;
    gpunn__tangent *around = gpunn__tangents(call, count);
    bool            ok = around != NULL;
    for (int i = 0; ok && i < c->directions; i++) {
        const gpunn__tangent *of = c->of + (size_t)i * c->size;
        gpunn_tensor         *v = of[y->inputs[k]->id].value;
        if (v == NULL) continue;
        memset(around, 0, count * sizeof *around);
        ok = gpunn__carry_around(call, y, g, d, of, around) &&
             gpunn__add_product(c, around[d->id].value, v, y->inputs[k]);
    }
    gpunn__free_tangents(call, around, count);
    return ok;
}

/* ---- reverse mode -------------------------------------------------------------------------------------- */

typedef struct gpunn__adjoint {
    bool          leads;    /* depends on one of the inputs */
    gpunn_tensor *gradient; /* gradient so far; NULL: none */
} gpunn__adjoint;

/* Marks the tensors between the inputs and y; returns the smallest id of these. */
static int gpunn__mark_path(gpunn_model *model, const gpunn_tensor *y, gpunn_tensor *const *inputs, int count,
                            gpunn__adjoint *of)
{
    int first = y->id + 1;
    for (int i = 0; i < count; i++) {
        if (inputs[i]->id <= y->id) of[inputs[i]->id].leads = true;
        if (inputs[i]->id < first) first = inputs[i]->id;
    }
    for (int id = first; id <= y->id; id++) {
        const gpunn_tensor *t = model->tensors[id];
        for (int k = 0; k < t->input_count && !of[id].leads; k++)
            of[id].leads = gpunn__varies_with(t, k) && of[t->inputs[k]->id].leads;
    }
    return first;
}

/* Adds y's contributions to the gradients of its operands and, if c is not NULL, to c. False on an error. */
static bool gpunn__hand_on(const gpunn__call *call, gpunn_tensor *y, gpunn__adjoint *of, gpunn__curvature *c)
{
    for (int k = 0; k < y->input_count; k++) {
        if (!gpunn__varies_with(y, k) || !of[y->inputs[k]->id].leads) continue;
        gpunn__derivative derive = gpunn__required_derivative(call, y);
        gpunn_tensor     *d = derive ? derive(y, of[y->id].gradient, k) : NULL;
        if (d == NULL || !gpunn__add_to(&of[y->inputs[k]->id].gradient, d)) return false;
        if (c && !gpunn__add_curvature(call, c, y, of[y->id].gradient, d, k)) return false;
    }
    return true;
}

static bool gpunn__differentiate(const gpunn__call *call, gpunn_tensor *y, gpunn_tensor *grad_output,
                                 gpunn_tensor *const *inputs, int count, gpunn_tensor **gradients,
                                 gpunn__curvature *c)
{
    gpunn_model    *model = call->model;
    const size_t    size = (size_t)(y->id + 1) * sizeof(gpunn__adjoint);
    gpunn__adjoint *of = (gpunn__adjoint *)gpunn__calloc(model->dev, size);
    bool            ok = of != NULL && grad_output != NULL;
    const int       first = ok ? gpunn__mark_path(model, y, inputs, count, of) : 0;
    if (ok) of[y->id].gradient = grad_output;
    for (int id = y->id; ok && id >= first; id--)
        ok = !(of[id].gradient && of[id].leads) || gpunn__hand_on(call, model->tensors[id], of, c);
    for (int i = 0; ok && i < count; i++) {
        gpunn_tensor *d = inputs[i]->id <= y->id ? of[inputs[i]->id].gradient : NULL;
        gradients[i] = d && of[inputs[i]->id].leads ? d
                                                    : gpunn__filled(model, 0, gpunn_tensor_shape(inputs[i]));
        ok = gradients[i] != NULL;
    }
    if (of) gpunn__free(model->dev, of, size);
    return ok;
}

/* Opens a call that differentiates y. direction (may be NULL) must have the shape of like. */
static bool gpunn__begin_derivative(gpunn__call *call, const char *op, gpunn_tensor *y,
                                    gpunn_tensor *direction, const gpunn_tensor *like, const char *name)
{
    static const char *const names[] = {"y"};
    char                     one[128], other[128];
    if (!gpunn__begin(call, op, NULL, names, &y, 1, 1)) return false;
    if (direction == NULL) return true;
    if (!gpunn__operand(call, direction, name, true)) return false;
    if (gpunn__same_shape(direction, like)) return true;
    (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE, "%s is %s, but %s is needed", name,
                           gpunn__shape_text(direction, one), gpunn__shape_text(like, other));
    return false;
}

static bool gpunn__begin_grads(gpunn__call *call, gpunn_tensor *y, gpunn_tensor *const *inputs, int count,
                               gpunn_tensor **gradients, gpunn_tensor *grad_output)
{
    char place[32];
    if (!gpunn__begin_derivative(call, "grad", y, grad_output, y, ".grad_output") ||
        !gpunn__is_non_null(call, inputs, "inputs") || !gpunn__is_non_null(call, gradients, "gradients"))
        return false;
    if (count < 1) (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "got %d inputs; pass one or more", count);
    for (int i = 0; i < count; i++) {
        (void)snprintf(place, sizeof place, count > 1 ? "inputs[%d]" : "x", i);
        if (!gpunn__operand(call, inputs[i], place, true)) return false;
    }
    return count > 0;
}

GPUNN_API gpunn_status gpunn_grads_(gpunn_tensor *y, gpunn_tensor *const *inputs, int count,
                                    gpunn_tensor **gradients, gpunn_grad_args args)
{
    gpunn__call call;
    if (gpunn__begin_grads(&call, y, inputs, count, gradients, args.grad_output)) {
        gpunn_tensor *g = args.grad_output ? args.grad_output
                                           : gpunn__filled(call.model, 1, gpunn_tensor_shape(y));
        if (gpunn__differentiate(&call, y, g, inputs, count, gradients, NULL)) return GPUNN_OK;
    }
    for (int i = 0; gradients && i < count; i++) gradients[i] = NULL;
    (void)gpunn__undo(&call);
    const gpunn_status status = gpunn_last_status(call.model ? call.model->dev : NULL);
    return status ? status : GPUNN_ERR_ARGUMENT; /* y is NULL because of an earlier failure on its device */
}

GPUNN_API gpunn_tensor *gpunn_grad_(gpunn_tensor *y, gpunn_tensor *x, gpunn_grad_args args)
{
    gpunn_tensor *gradient = NULL;
    (void)gpunn_grads_(y, &x, 1, &gradient, args);
    return gradient;
}

GPUNN_API gpunn_tensor *gpunn_jvp(gpunn_tensor *y, gpunn_tensor *x, gpunn_tensor *v)
{
    gpunn__call call;
    if (!gpunn__begin_derivative(&call, "jvp", y, v, x, "v") || !gpunn__is_non_null(&call, v, "v"))
        return NULL;
    const size_t    count = (size_t)call.model->tensor_count;
    gpunn__tangent *of = gpunn__tangents(&call, count);
    gpunn_tensor   *tangent = NULL;
    if (of) {
        gpunn__know(of, x, v);
        if (gpunn__carry(&call, x->id, y, of))
            tangent = of[y->id].value ? gpunn__expand_as(of[y->id].value, y)
                                      : gpunn__filled(call.model, 0, gpunn_tensor_shape(y));
    }
    gpunn__free_tangents(&call, of, count);
    return gpunn__call_finish(&call, tangent);
}

GPUNN_API gpunn_tensor *gpunn_hvp(gpunn_tensor *y, gpunn_tensor *x, gpunn_tensor *v)
{
    gpunn__call     call;
    gpunn_grad_args args = {0, NULL};
    if (!gpunn__begin_derivative(&call, "hvp", y, v, x, "v") || !gpunn__is_non_null(&call, v, "v"))
        return NULL;
    gpunn_tensor *gradient = gpunn_grad_(y, x, args);
    return gpunn__call_finish(&call, gradient ? gpunn_jvp(gradient, x, v) : NULL);
}

static bool gpunn__begin_laplacian(gpunn__call *call, gpunn_tensor *y, gpunn_tensor *x, int coordinates)
{
    char one[128], other[128];
    if (!gpunn__begin_derivative(call, "laplacian", y, NULL, NULL, NULL) ||
        !gpunn__operand(call, x, "x", true))
        return false;
    if (x->rank != 2 || x->dim[1] < 1)
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE, "x is %s; it must be [samples, coordinates]",
                               gpunn__shape_text(x, one));
    else if (y->rank < 1 || y->rank > 2 || y->dim[0] != x->dim[0] || (y->rank == 2 && y->dim[1] != 1))
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               "y is %s, but x is %s; y must be one number for each row of x",
                               gpunn__shape_text(y, one), gpunn__shape_text(x, other));
    else if (coordinates < 0 || coordinates > x->dim[1])
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, ".coordinates is %d, but x has %d", coordinates,
                               (int)x->dim[1]);
    else
        return true;
    return false;
}

/* Propagates the tangents along each coordinate of x to y. */
static bool gpunn__carry_coordinates(const gpunn__call *call, const gpunn_tensor *y, gpunn_tensor *x,
                                     gpunn__curvature *c)
{
    for (int i = 0; i < c->directions; i++) {
        const gpunn_shape one = {{1, 1}};
        const float       number = 1;
        gpunn_tensor     *v = gpunn__zeros_around(gpunn_constant(call->model, one, &number), 1, i,
                                                  x->dim[1] - 1 - i);
        gpunn__tangent   *of = c->of + (size_t)i * c->size;
        if (v == NULL) return false;
        gpunn__know(of, x, v);
        if (!gpunn__carry(call, x->id, y, of)) return false;
    }
    return true;
}

/* The sum per sample. Terms without an axis of samples are linear in y's gradient g, so the derivative by
 * element i of g is sample i's part. */
static gpunn_tensor *gpunn__curvature_of(gpunn__curvature *c, gpunn_tensor *g)
{
    const gpunn_shape shape = {{c->x->dim[0], 1}};
    gpunn_grad_args   args = {0, NULL};
    if (!gpunn__sum_products(c)) return NULL;
    if (c->others && !gpunn__add_to(&c->rows, gpunn_reshape(gpunn_grad_(c->others, g, args), shape)))
        return NULL;
    return c->rows ? c->rows : gpunn__filled(c->x->model, 0, shape);
}

GPUNN_API gpunn_tensor *gpunn_laplacian_(gpunn_tensor *y, gpunn_tensor *x, gpunn_laplacian_args args)
{
    gpunn__call      call;
    gpunn__curvature c;
    gpunn_tensor    *sum = NULL, *gradient = NULL;
    memset(&c, 0, sizeof c);
    if (args.gradient) *args.gradient = NULL;
    if (!gpunn__begin_laplacian(&call, y, x, args.coordinates)) return NULL;
    c.x = x;
    c.directions = args.coordinates ? args.coordinates : (int)x->dim[1];
    c.size = (size_t)call.model->tensor_count;
    c.of = gpunn__tangents(&call, (size_t)c.directions * c.size);
    gpunn_tensor *g = gpunn__filled(call.model, 1, gpunn_tensor_shape(y));
    if (c.of && g && gpunn__carry_coordinates(&call, y, x, &c) &&
        gpunn__differentiate(&call, y, g, &x, 1, &gradient, &c))
        sum = gpunn__curvature_of(&c, g);
    gpunn__free_tangents(&call, c.of, (size_t)c.directions * c.size);
    if (sum && args.gradient) *args.gradient = gradient;
    return gpunn__call_finish(&call, sum);
}
