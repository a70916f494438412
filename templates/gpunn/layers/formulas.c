#include "layers/formulas.h"
#include "base/shapes.h"
#include "graph/nodes.h"
#include "graph/expr.h"
#include "layers/basic.h"
#include "layers/recurrent.h"
#include "layers/shapes.h"
#include "layers/losses.h"

/* Defines a check of a formula's operands and arguments. args: after gpunn__apply_defaults. */
#define GPUNN__FITS(name)                                                                       \
    static bool gpunn__fits_##name(const gpunn__call *call, gpunn_tensor *const *in, int count, \
                                   const void *args)

GPUNN__FITS(SAME)
{
    (void)args;
    for (int i = 1; i < count; i++)
        if (!gpunn__shapes_are_equal(call, in[0], in[i])) return false;
    return true;
}

GPUNN__FITS(ANY) /* the formula's ops report what does not broadcast */
{
    (void)call, (void)in, (void)count, (void)args;
    return true;
}

GPUNN__FITS(VARIANCE)
{
    return gpunn__fits_SAME(call, in, count - 1, args) && gpunn__loss_factor(call, in[2], "var", in[0]);
}

GPUNN__FITS(CLASSES)
{
    (void)args, (void)count;
    return gpunn__labels_fit(call, in[0], in[1]);
}

GPUNN__FITS(IMAGES)
{
    return gpunn__fits_SAME(call, in, count, args) &&
           gpunn__has_rank(call, gpunn__meta_of(in[0]), 3, 5,
                           "[n, channels, ...] of one to three more axes") &&
           gpunn__axes_are_fixed(call, gpunn__meta_of(in[0]), 1, in[0]->rank - 1);
}

GPUNN__FITS(CHANNELS)
{
    const bool batch = ((const gpunn_dice_args *)args)->batch;
    if (!gpunn__fits_SAME(call, in, count, args)) return false;
    if (in[0]->rank < (batch ? 2 : 3))
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE, "x has %d axes; [n, classes, ...] is needed%s",
                               in[0]->rank, batch ? "" : "; for [n, classes] set .batch = true");
    return in[0]->rank >= (batch ? 2 : 3);
}

GPUNN__FITS(TRIPLET)
{
    const float p = ((const gpunn_margin_args *)args)->p;
    if (!gpunn__fits_SAME(call, in, count, args)) return false;
    if (in[0]->rank < 1)
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               "the anchor is a scalar; give it a last axis of features");
    else if (!(p > 0))
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, ".p is %g; use a number above 0", (double)p);
    return in[0]->rank > 0 && p > 0;
}

GPUNN__FITS(PAIRS)
{
    const gpunn_tensor *x1 = in[0], *target = in[2];
    char                one[128], other[128];
    if (!gpunn__fits_SAME(call, in, count - 1, args)) return false;
    if ((x1->rank == 1 && target->rank == 0) ||
        (x1->rank == 2 && target->rank == 1 && target->dim[0] == x1->dim[0]))
        return true;
    (void)gpunn__call_fail(
        call, GPUNN_ERR_SHAPE,
        "x1 %s and target %s do not fit; [n, features] and [n], or [features] and [], are needed",
        gpunn__shape_text(x1, one), gpunn__shape_text(target, other));
    return false;
}

GPUNN__FITS(ALONG)
{
    const gpunn_tensor *x1 = in[0], *x2 = in[count - 1];
    char                one[128], other[128];
    const int           axis = gpunn__axis_of(call, x1, ((const gpunn__plain_args *)args)->axis);
    if (axis < 0 || (x1->rank == x2->rank && x1->dim[axis] == x2->dim[axis])) return axis >= 0;
    (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                           "x1 %s and x2 %s need the same number of axes, and the same size of axis %d",
                           gpunn__shape_text(x1, one), gpunn__shape_text(x2, other), axis);
    return false;
}

#define GPUNN__NAMES1(a) #a
#define GPUNN__NAMES2(a, b) #a, #b
#define GPUNN__NAMES3(a, b, c) #a, #b, #c
#define GPUNN__X(X, row, count, names, fits, keys, args, form, formula, about) \
    GPUNN__INTERNAL const gpunn__formula_row gpunn__formula_of_##row = {       \
        #row, formula, count, gpunn__fits_##fits, {GPUNN__NAMES##count names}};
GPUNN__FORMULAS(GPUNN__X, )
#undef GPUNN__X

/* The value of an argument as a number in the formula. */
static double gpunn__argument_number(const gpunn__argument *a, const void *at)
{
    if (a->kind <= GPUNN__K_AXIS) return *(const int *)at;
    if (a->kind <= GPUNN__K_EXTENDED) return (double)*(const float *)at;
    return *(const bool *)at == (a->kind == GPUNN__K_FLAG);
}

GPUNN__INTERNAL gpunn_tensor *gpunn__composite(const gpunn__formula_row *row, gpunn_tensor *const *in,
                                               void *args)
{
    gpunn_reduction reduction = GPUNN_REDUCE_NONE;
    gpunn__call     call;
    gpunn__formula  f;
    char            field[32];
    const int       floats = row->fits == gpunn__fits_CLASSES ? 1 : row->count,
              integer = gpunn__integer_meant(row->name, in, row->count);
    if (integer >= 0) return gpunn__integer_node((gpunn_integer_op)integer, in, row->count, 0);
    if (!gpunn__begin(&call, row->name, NULL, row->operands, in, row->count, floats) ||
        !gpunn__apply_defaults(&call, args) || !row->fits(&call, in, row->count, args))
        return NULL;
    f.call = gpunn__call_of(call.model, "gpunn_expr", NULL);
    bool ok = gpunn__expr_open(&f, row->formula) && gpunn__expr_add_number(&f, "rank", in[0]->rank);
    for (int i = 0; i < row->count && ok; i++) ok = gpunn__expr_add_tensor(&f, row->operands[i], in[i]);
    for (const gpunn__argument *a = gpunn__row_called(row->name)->arguments; *a->name && ok; a++) {
        const void *at = (const char *)args + a->member;
        (void)snprintf(field, sizeof field, ".%s", a->field);
        if (a->kind == GPUNN__K_REDUCTION || a->kind == GPUNN__K_CLASS_REDUCTION)
            reduction = *(const gpunn_reduction *)at;
        else if (a->kind == GPUNN__K_REFERENCE)
            ok = gpunn__loss_factor(&call, *(gpunn_tensor *const *)at, field, in[0]) &&
                 gpunn__expr_add_tensor(&f, a->name, *(gpunn_tensor *const *)at);
        else
            ok = gpunn__expr_add_number(&f, a->name, gpunn__argument_number(a, at));
    }
    gpunn_tensor *y = ok ? gpunn__reduce_loss(gpunn__expr_value(&f), reduction) : NULL;
    return gpunn__call_finish(&call, y);
}

/* Copies the arguments that a node keeps to its attributes. These are flags, or have 4 bytes. */
static bool gpunn__take_arguments(const gpunn__call *call, const gpunn__row *row, const void *args,
                                  gpunn_tensor *x, gpunn_attributes *attr)
{
    for (const gpunn__attribute *to = row->attributes; to->name; to++) {
        const gpunn__argument *a = row->arguments;
        int                    axis;
        while (strcmp(a->name, to->name) != 0) a++;
        const void *from = (const char *)args + a->member;
        if (a->kind == GPUNN__K_AXIS) {
            if ((axis = gpunn__axis_of(call, x, *(const int *)from)) < 0) return false;
            from = &axis;
        }
        memcpy((char *)attr + to->place, from, to->kind == GPUNN__A_BOOL ? sizeof(bool) : sizeof(int));
    }
    return true;
}

GPUNN__INTERNAL gpunn_tensor *gpunn__signature_node(const gpunn__operation *operation,
                                                    gpunn_tensor *const *in, void *args)
{
    const gpunn__row *row = gpunn__row_called(gpunn_op_name(operation->op));
    gpunn_attributes  attr = gpunn__no_attributes();
    gpunn__call       call;
    if (!gpunn__begin_op(&call, row->name, operation->op, in, row->operands, 0) ||
        !gpunn__apply_defaults(&call, args) || !gpunn__take_arguments(&call, row, args, in[0], &attr))
        return NULL;
    return gpunn__node(&call, operation, &attr, in, row->operands);
}

#define GPUNN__LIST1(a) a
#define GPUNN__LIST2(a, b) a, b
#define GPUNN__LIST3(a, b, c) a, b, c
#define GPUNN__LIST4(a, b, c, d) a, b, c, d
#define GPUNN__OPERANDS1(a) gpunn_tensor *a
#define GPUNN__OPERANDS2(a, b) gpunn_tensor *a, gpunn_tensor *b
#define GPUNN__OPERANDS3(a, b, c) gpunn_tensor *a, gpunn_tensor *b, gpunn_tensor *c
#define GPUNN__OPERANDS4(a, b, c, d) gpunn_tensor *a, gpunn_tensor *b, gpunn_tensor *c, gpunn_tensor *d
/* The builders of rows. call: the expression that makes a result from the operands `in` and from args. */
#define GPUNN__BUILDER_ARGS(row, count, names, struct_, call)                                         \
    GPUNN_API gpunn_tensor *gpunn_##row##_(GPUNN__OPERANDS##count names, gpunn_##struct_##_args args) \
    {                                                                                                 \
        gpunn_tensor *in[] = {GPUNN__LIST##count names};                                              \
        return call;                                                                                  \
    }
#define GPUNN__BUILDER_PLAIN(row, count, names, struct_, call)        \
    GPUNN_API gpunn_tensor *gpunn_##row(GPUNN__OPERANDS##count names) \
    {                                                                 \
        gpunn_tensor          *in[] = {GPUNN__LIST##count names};     \
        gpunn_##struct_##_args args;                                  \
        memset(&args, 0, sizeof args);                                \
        return call;                                                  \
    }
#define GPUNN__BUILDER_AXIS(row, count, names, struct_, call)                   \
    GPUNN_API gpunn_tensor *gpunn_##row(GPUNN__OPERANDS##count names, int axis) \
    {                                                                           \
        gpunn_tensor          *in[] = {GPUNN__LIST##count names};               \
        gpunn_##struct_##_args args;                                            \
        memset(&args, 0, sizeof args);                                          \
        args.axis = axis;                                                       \
        return call;                                                            \
    }
#define GPUNN__BUILDER_OWN(row, count, names, struct_, call)
#define GPUNN__X(X, row, count, names, fits, keys, args_, form, formula, about) \
    GPUNN__BUILDER_##form(row, count, names, args_, gpunn__composite(&gpunn__formula_of_##row, in, &args))
GPUNN__FORMULAS(GPUNN__X, )
#undef GPUNN__X
#define GPUNN__S(X, ENUM, row, count, names, reads, reads_out, backward, traits, signature, keys, args_, \
                 form, about)                                                                            \
    GPUNN__BUILDER_##form(row, count, names, args_, gpunn__signature_node(&gpunn__operation_##row, in, &args))
GPUNN_SIGNATURE_OPS(GPUNN__S, )
#undef GPUNN__S

/* Evaluates a formula of x and one or two numbers. other: 0 if there is only one. */
static gpunn_tensor *gpunn__composite_of(const gpunn__formula_row *row, gpunn_tensor *x, float number,
                                         float other)
{
    gpunn__plain_args args;
    memset(&args, 0, sizeof args);
    args.number = number == 0 ? (float)GPUNN_ZERO : number;
    args.other = other;
    return gpunn__composite(row, &x, &args);
}

GPUNN_API gpunn_tensor *gpunn_softshrink(gpunn_tensor *x, float lambd)
{
    return gpunn__composite_of(&gpunn__formula_of_softshrink, x, lambd, 0);
}

GPUNN_API gpunn_tensor *gpunn_threshold(gpunn_tensor *x, float threshold, float value)
{
    return gpunn__composite_of(&gpunn__formula_of_threshold, x, threshold,
                               value == 0 ? (float)GPUNN_ZERO : value);
}

GPUNN_API gpunn_tensor *gpunn_logit(gpunn_tensor *x, float eps)
{
    return gpunn__composite_of(&gpunn__formula_of_logit, x, eps, 0);
}

GPUNN_API gpunn_tensor *gpunn_cosine_similarity(gpunn_tensor *x1, gpunn_tensor *x2, int axis, float eps)
{
    gpunn_tensor     *in[] = {x1, x2};
    gpunn__plain_args args;
    memset(&args, 0, sizeof args);
    args.axis = axis;
    args.number = eps;
    return gpunn__composite(&gpunn__formula_of_cosine_similarity, in, &args);
}

GPUNN_API gpunn_tensor *gpunn_top_k_accuracy(gpunn_tensor *logits, gpunn_tensor *labels, int k)
{
    gpunn__call call;
    if (!gpunn__begin_classes(&call, "top_k_accuracy", logits, labels)) return NULL;
    gpunn_tensor *places = gpunn_cast(gpunn_topk_indices(logits, k, 1, true), GPUNN_F32);
    /* an axis of 1 in the place of the classes */
    gpunn_tensor *truth = gpunn_cast(gpunn__unsqueeze(labels, 1), GPUNN_F32);
    gpunn_tensor *hits = gpunn_sum(gpunn_eq(places, truth), GPUNN_AXES(1), false);
    return gpunn__call_finish(&call, gpunn__reduce_loss(hits, GPUNN_REDUCE_MEAN));
}
