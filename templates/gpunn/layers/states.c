#include "layers/states.h"
#include "base/shapes.h"
#include "graph/nodes.h"
#include "graph/expr.h"
#include "layers/basic.h"
#include "layers/shapes.h"

GPUNN__INTERNAL gpunn_tensor *gpunn__state_of(gpunn_tensor *t)
{
    while (t->op == GPUNN_OP_ASSIGN) t = t->inputs[0];
    return t->state ? t : NULL;
}

GPUNN__INTERNAL gpunn_tensor *gpunn__assign(const char *function, gpunn_tensor *state, int axis, gpunn_tensor *position,
                                            gpunn_tensor *value, int count, bool in_training)
{
    static const char *const names[] = {"the state", "the value", "the position"};
    gpunn_tensor            *operands[] = {state, value, position};
    gpunn__call              call;
    gpunn_attributes         attr = gpunn__no_attributes();
    if (!gpunn__begin(&call, function, NULL, names, operands, count, 2)) return NULL;
    if (gpunn__state_of(state) == NULL)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT,
                             "what is assigned to is no state; use what gpunn_state or an assignment gave");
    if (position && (attr.axis = gpunn__axis_of(&call, state, axis)) < 0) return NULL;
    attr.in_training = in_training;
    return gpunn__node(&call, &gpunn__operation_assign, &attr, operands, 3);
}

GPUNN_API gpunn_tensor *gpunn_assign_(gpunn_tensor *state, gpunn_tensor *value, gpunn_assign_args args)
{
    return gpunn__assign("assign", state, 0, NULL, value, 2, args.in_training);
}

GPUNN_API gpunn_tensor *gpunn_assign_at_(gpunn_tensor *state, int axis, gpunn_tensor *position, gpunn_tensor *value,
                                         gpunn_assign_args args)
{
    return gpunn__assign("assign_at", state, axis, position, value, 3, args.in_training);
}

/* ---- sampling -------------------------------------------------------------------------------------------------------- */

static bool gpunn__sample_fits(const gpunn__call *call, const gpunn_tensor *logits, const gpunn_tensor *draw,
                               const gpunn_sample_args *args)
{
    char one[128], other[128];
    if (logits->rank != 2 || logits->dim[1] < 1)
        (void)gpunn__refuse(call, GPUNN_ERR_SHAPE, "logits is %s, but [n, classes] is needed; gpunn_reshape it",
                            gpunn__shape_text(logits, one));
    else if (draw && (draw->rank != 1 || draw->dim[0] != logits->dim[0]))
        (void)gpunn__refuse(call, GPUNN_ERR_SHAPE, "draw is %s and logits %s; one number a row, [n], is needed",
                            gpunn__shape_text(draw, one), gpunn__shape_text(logits, other));
    else if (!(args->temperature >= 0 && isfinite(args->temperature)) || args->top_k < 0 ||
             !(args->top_p > 0 && args->top_p <= 1))
        (void)gpunn__refuse(call, GPUNN_ERR_ARGUMENT,
                            "temperature is %g, top_k %d and top_p %g; 0 or more, 0 or more, and above 0 to 1 are possible",
                            (double)args->temperature, args->top_k, (double)args->top_p);
    else
        return true;
    return false;
}

GPUNN_API gpunn_tensor *gpunn_sample_(gpunn_tensor *logits, gpunn_tensor *draw, gpunn_sample_args args)
{
    static const char *const operand_names[] = {"logits", "draw"}, *const number_names[] = {"scale", "top_p"};
    /* For each row: the place in falling order where the cumulative probability exceeds the number drawn. */
    static const char formula[] = "p = softmax(x * scale, 1); kept = p * (cumsum(p, 1) - p < top_p);"
                                  "passed = sum(cumsum(kept, 1) <= y * sum(kept, 1, keepdim=True), 1, keepdim=True);"
                                  "max(min(passed, sum(kept > 0, 1, keepdim=True) - 1), 0)";
    gpunn__call       call;
    gpunn_tensor     *in[2] = {logits, draw}, *places = NULL;
    args.temperature = gpunn__float_setting(args.temperature, 1);
    args.top_p = gpunn__float_setting(args.top_p, 1);
    if (!gpunn__begin(&call, "sample", NULL, operand_names, in, args.temperature == 0 && draw == NULL ? 1 : 2, 2) ||
        !gpunn__sample_fits(&call, logits, draw, &args))
        return NULL;
    if (args.temperature == 0) return gpunn__made(&call, gpunn_argmax(logits, 1, false));
    const int     classes = (int)logits->dim[1], kept = args.top_k > 0 && args.top_k < classes ? args.top_k : classes;
    const double  numbers[2] = {1 / (double)args.temperature, (double)args.top_p};
    const int64_t column[2] = {logits->dim[0], 1};
    in[0] = gpunn_topk(logits, kept, 1, true, &places);
    in[1] = gpunn__reshape_to(draw, 2, column);
    gpunn_tensor *place = gpunn_cast(gpunn__expr(formula, NULL, in, 2, number_names, numbers, 2, NULL), GPUNN_I64);
    gpunn_tensor *taken = gpunn_gather(gpunn_cast(places, GPUNN_F32), 1, place);
    return gpunn__made(&call, gpunn_cast(gpunn__reshape_to(taken, 1, column), GPUNN_I64));
}
