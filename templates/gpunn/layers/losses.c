#include "layers/losses.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/tables.h"
#include "base/shapes.h"
#include "graph/nodes.h"
#include "graph/expr.h"
#include "layers/basic.h"
#include "layers/shapes.h"

static const gpunn_axes gpunn__all_axes = {{GPUNN_END}};

GPUNN__INTERNAL bool gpunn__shapes_are_equal(const gpunn__call *call, const gpunn_tensor *input,
                                             const gpunn_tensor *target)
{
    char one[128], other[128];
    if (input->rank == target->rank && memcmp(input->dim, target->dim, sizeof input->dim) == 0) return true;
    (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                           "input %s and target %s need the same shape, since this loss does not broadcast; "
                           "gpunn_reshape one of them",
                           gpunn__shape_text(input, one), gpunn__shape_text(target, other));
    return false;
}

GPUNN__INTERNAL bool gpunn__loss_factor(const gpunn__call *call, const gpunn_tensor *factor, const char *name,
                                        const gpunn_tensor *input)
{
    if (factor == NULL) return true;
    return gpunn__operand(call, factor, name, true) &&
           gpunn__broadcasts_to(call, factor, name, input, "input");
}

GPUNN__INTERNAL gpunn_tensor *gpunn__reduce_loss(gpunn_tensor *loss, gpunn_reduction reduction)
{
    if (loss == NULL || reduction == GPUNN_REDUCE_NONE) return loss;
    if (reduction == GPUNN_REDUCE_BATCHMEAN && loss->rank > 1) { /* sum of each sample, mean over axis 0 */
        gpunn_axes inner = {{0}};
        for (int i = 1; i < loss->rank; i++) inner.axis[i - 1] = i;
        inner.axis[loss->rank - 1] = GPUNN_END;
        loss = gpunn_sum(loss, inner, false);
    }
    return reduction == GPUNN_REDUCE_SUM ? gpunn_sum(loss, gpunn__all_axes, false)
                                         : gpunn_mean(loss, gpunn__all_axes, false);
}

GPUNN__INTERNAL bool gpunn__labels_fit(const gpunn__call *call, const gpunn_tensor *logits,
                                       const gpunn_tensor *labels)
{
    if (labels->dtype == GPUNN_I64 || labels->dtype == GPUNN_I32 || labels->dtype == GPUNN_U8)
        return gpunn__classes_fit(call, gpunn__meta_of(logits), gpunn__meta_of(labels));
    (void)gpunn__call_fail(call, GPUNN_ERR_DTYPE,
                           "labels is %s, but class numbers are needed; use i64, i32 or u8",
                           gpunn_dtype_name(labels->dtype));
    return false;
}

GPUNN__INTERNAL bool gpunn__begin_classes(gpunn__call *call, const char *op, gpunn_tensor *logits,
                                          gpunn_tensor *labels)
{
    gpunn_tensor *operands[] = {logits, labels};
    return gpunn__begin_op(call, op, GPUNN_OP_CROSS_ENTROPY, operands, 2, 1) &&
           gpunn__labels_fit(call, logits, labels);
}

/* Checks an optional weight [classes]. */
static bool gpunn__class_weight_fits(const gpunn__call *call, const gpunn_tensor *weight,
                                     const gpunn_tensor *logits)
{
    char text[128];
    if (weight == NULL) return true;
    if (!gpunn__operand(call, weight, ".weight", true)) return false;
    if (weight->rank == 1 && weight->dim[0] == logits->dim[1]) return true;
    (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                           ".weight is %s, but one number for each of the %lld classes is needed",
                           gpunn__shape_text(weight, text), (long long)logits->dim[1]);
    return false;
}

static gpunn_tensor *gpunn__class_loss_node(const char *name, const gpunn__operation *operation,
                                            gpunn_tensor *logits, gpunn_tensor *labels,
                                            gpunn_class_loss_args *args)
{
    gpunn__call call;
    if (!gpunn__begin_classes(&call, name, logits, labels) || !gpunn__apply_defaults(&call, args))
        return NULL;
    if (!gpunn__class_weight_fits(&call, args->weight, logits)) return NULL;
    gpunn_attributes attr = gpunn__no_attributes();
    attr.reduction = args->reduction;
    attr.ignore_index = args->ignore_index;
    attr.label_smoothing = args->label_smoothing;
    gpunn_tensor *operands[] = {logits, labels, args->weight};
    return gpunn__node(&call, operation, &attr, operands, 3);
}

GPUNN_API gpunn_tensor *gpunn_cross_entropy_(gpunn_tensor *logits, gpunn_tensor *labels,
                                             gpunn_class_loss_args args)
{
    return gpunn__class_loss_node("cross_entropy", &gpunn__operation_cross_entropy, logits, labels, &args);
}

GPUNN_API gpunn_tensor *gpunn_nll_loss_(gpunn_tensor *log_probabilities, gpunn_tensor *labels,
                                        gpunn_class_loss_args args)
{
    return gpunn__class_loss_node("nll_loss", &gpunn__operation_nll, log_probabilities, labels, &args);
}

/* A constant with the class indices 0, 1, ... */
static gpunn_tensor *gpunn__class_numbers(gpunn_model *model, int64_t classes)
{
    size_t        bytes = (size_t)classes * sizeof(float);
    gpunn_shape   shape = {{classes}};
    float        *numbers = (float *)gpunn__realloc(model->dev, NULL, 0, bytes);
    gpunn_tensor *t = NULL;
    for (int64_t i = 0; numbers && i < classes; i++) numbers[i] = (float)i;
    if (numbers) t = gpunn_constant(model, shape, numbers);
    gpunn__free(model->dev, numbers, bytes);
    return t;
}

GPUNN_API gpunn_tensor *gpunn_multi_margin_loss_(gpunn_tensor *x, gpunn_tensor *labels,
                                                 gpunn_margin_args args)
{
    static const char *const operands[] = {"x", "own", "label", "classes", "weight"}, *const numbers[] = {
                                                                                          "margin", "p"};
    gpunn_class_loss_args plain;
    gpunn__call           call;
    if (!gpunn__begin_classes(&call, "multi_margin_loss", x, labels) || !gpunn__apply_defaults(&call, &args))
        return NULL;
    if (x->rank != 2)
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE, "x has %d axes, but [n, classes] is needed", x->rank);
    if (x->dim[1] > 1 << 24)
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE, "x has %lld classes; up to 2^24 are possible",
                                (long long)x->dim[1]);
    const double values[] = {(double)args.margin, (double)args.p};
    if (args.p != 1 && args.p != 2)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, ".p is %g; use 1 or 2", values[1]);
    if (!gpunn__class_weight_fits(&call, args.weight, x)) return NULL;
    const int64_t column[] = {labels->dim[0], 1};
    memset(&plain, 0, sizeof plain);
    plain.reduction = GPUNN_REDUCE_NONE;
    gpunn_tensor *in[] = {x, NULL, NULL, NULL, args.weight};
    in[1] = gpunn_nll_loss_(x, labels, plain); /* -x[label]; this also checks the labels */
    in[2] = in[1] ? gpunn_cast(labels, GPUNN_F32) : NULL;
    in[1] = in[2] ? gpunn__reshape_to(in[1], 2, column) : NULL;
    in[2] = in[1] ? gpunn__reshape_to(in[2], 2, column) : NULL;
    in[3] = in[2] ? gpunn__class_numbers(call.model, x->dim[1]) : NULL;
    in[0] = in[3] ? gpunn__expr(GPUNN__MULTI_MARGIN, operands, in, 4, numbers, values, 2, NULL) : NULL;
    if (in[0] && args.weight)
        in[0] = gpunn__expr(GPUNN__MULTI_MARGIN_WEIGHTED, operands, in, 5, NULL, NULL, 0, NULL);
    gpunn_axes    last = {{1, GPUNN_END}};
    gpunn_tensor *loss = gpunn__reduce_loss(in[0] ? gpunn_mean(in[0], last, false) : NULL, args.reduction);
    return gpunn__call_finish(&call, loss);
}

GPUNN_API gpunn_tensor *gpunn_ctc_loss_(gpunn_tensor *log_probabilities, gpunn_tensor *targets,
                                        gpunn_tensor *input_lengths, gpunn_tensor *target_lengths,
                                        gpunn_ctc_args args)
{
    gpunn_tensor *x = log_probabilities, *operands[] = {x, targets, input_lengths, target_lengths};
    char          name[GPUNN__OPERAND_SIZE];
    gpunn__call   call;
    if (!gpunn__begin_op(&call, "ctc_loss", GPUNN_OP_CTC_LOSS, operands, 4, 1)) return NULL;
    for (int i = 1; i < 4; i++)
        if (operands[i]->dtype != GPUNN_I64 && operands[i]->dtype != GPUNN_I32)
            return gpunn__call_fail(&call, GPUNN_ERR_DTYPE, "%s is %s, but i64 or i32 is needed",
                                    gpunn__operand_name(GPUNN_OP_CTC_LOSS, i, name),
                                    gpunn_dtype_name(operands[i]->dtype));
    gpunn__meta      out;
    gpunn_attributes attr = gpunn__no_attributes();
    attr.batch_first = args.batch_first;
    if (!gpunn__infer_node(&call, &gpunn__operation_ctc_loss, &attr, operands, 4, &out)) return NULL;
    if (!gpunn__apply_defaults(&call, &args)) return NULL;
    if (args.blank >= x->dim[2])
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "blank is %d; use one of the %lld classes",
                                args.blank, (long long)x->dim[2]);
    attr.reduction = args.reduction;
    attr.blank = args.blank;
    attr.zero_infinity = args.zero_infinity;
    return gpunn__node(&call, &gpunn__operation_ctc_loss, &attr, operands, 4);
}

/* What is wrong with a custom op; NULL: nothing. */
static const char *gpunn__custom_fault(const gpunn_custom_op *op)
{
    size_t length = 0;
    if (op == NULL) return "the op is NULL";
    for (; op->name && op->name[length]; length++)
        if (!isalnum((unsigned char)op->name[length]) && strchr("_.-", op->name[length]) == NULL) break;
    if (op->name == NULL || length == 0 || length > 63 || op->name[length])
        return "the op's .name must have 1 to 63 letters, digits, '_', '.' or '-'";
    if (op->inputs < 1 || op->inputs > GPUNN_CUSTOM_INPUTS) return "the op's .inputs must be 1 to 16";
    return op->forward ? NULL : "the op's .forward is NULL; a CPU function is always needed";
}

GPUNN_API gpunn_tensor *gpunn_custom_(const gpunn_custom_op *op, gpunn_tensor *const *inputs,
                                      gpunn_custom_args args)
{
    const char *fault = gpunn__custom_fault(op);
    gpunn__call call = gpunn__call_of(NULL, "custom", fault ? NULL : op->name);
    if (fault) return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "%s", fault);
    if (!gpunn__is_non_null(&call, inputs, "inputs") ||
        !gpunn__begin(&call, "custom", op->name, NULL, inputs, op->inputs, 0))
        return NULL;
    for (int i = 0; i < GPUNN_CUSTOM_NUMBERS; i++)
        if (!isfinite(args.numbers[i]))
            return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, ".numbers[%d] is %g; use finite numbers", i,
                                    (double)args.numbers[i]);
    gpunn_attributes attr = gpunn__no_attributes();
    attr.custom = op;
    /* turns -0 into 0 */
    for (int i = 0; i < GPUNN_CUSTOM_NUMBERS; i++) attr.numbers[i] = args.numbers[i] + 0.0f;
    gpunn__meta out;
    if (!gpunn__infer_node(&call, &gpunn__operation_custom, &attr, inputs, op->inputs, &out)) return NULL;
    call.layer = NULL; /* it has no parameters */
    return gpunn__node(&call, &gpunn__operation_custom, &attr, inputs, op->inputs);
}

GPUNN_API const gpunn_custom_op *gpunn_find_custom(const gpunn_device *dev, const char *name)
{
    for (int i = 0; dev && name && i < dev->custom_count; i++)
        if (strcmp(dev->customs[i]->name, name) == 0) return dev->customs[i];
    return NULL;
}

GPUNN_API gpunn_status gpunn_register_custom(gpunn_device *dev, const gpunn_custom_op *op)
{
    const char *fault = gpunn__custom_fault(op);
    if (dev == NULL) return gpunn__fail_null(NULL, "gpunn_register_custom", "device");
    if (fault) return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "gpunn_register_custom: %s", fault);
    const gpunn_custom_op *known = gpunn_find_custom(dev, op->name);
    if (known == op) return GPUNN_OK;
    if (known)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_register_custom: another op is called '%s'; names are unique on a device",
                           op->name);
    size_t                  bytes = (size_t)dev->custom_count * sizeof *dev->customs;
    const gpunn_custom_op **grown = (const gpunn_custom_op **)gpunn__realloc(dev, dev->customs, bytes,
                                                                             bytes + sizeof *grown);
    if (grown == NULL) return GPUNN_ERR_MEMORY;
    grown[dev->custom_count++] = op;
    dev->customs = grown;
    return GPUNN_OK;
}
