#include "layers/states.h"
#include "base/shapes.h"
#include "graph/nodes.h"
#include "layers/basic.h"
#include "layers/shapes.h"

GPUNN__INTERNAL gpunn_tensor *gpunn__state_of(gpunn_tensor *t)
{
    while (t->op == GPUNN_OP_ASSIGN) t = t->inputs[0];
    return t->state ? t : NULL;
}

GPUNN__INTERNAL gpunn_tensor *gpunn__assign(const char *function, gpunn_tensor *state, int axis,
                                            gpunn_tensor *position, gpunn_tensor *value, int count,
                                            bool in_training)
{
    static const char *const names[] = {"the state", "the value", "the position"};
    gpunn_tensor            *operands[] = {state, value, position};
    gpunn__call              call;
    gpunn_attributes         attr = gpunn__no_attributes();
    if (!gpunn__begin(&call, function, NULL, names, operands, count, 2)) return NULL;
    if (gpunn__state_of(state) == NULL)
        return gpunn__call_fail(
            &call, GPUNN_ERR_ARGUMENT,
            "the target of the assignment is not a state; use the result of gpunn_state or of an assignment");
    if (position && (attr.axis = gpunn__axis_of(&call, state, axis)) < 0) return NULL;
    attr.in_training = in_training;
    return gpunn__node(&call, &gpunn__operation_assign, &attr, operands, 3);
}

GPUNN_API gpunn_tensor *gpunn_assign_(gpunn_tensor *state, gpunn_tensor *value, gpunn_assign_args args)
{
    return gpunn__assign("assign", state, 0, NULL, value, 2, args.in_training);
}

GPUNN_API gpunn_tensor *gpunn_assign_at_(gpunn_tensor *state, int axis, gpunn_tensor *position,
                                         gpunn_tensor *value, gpunn_assign_args args)
{
    return gpunn__assign("assign_at", state, axis, position, value, 3, args.in_training);
}

/* ---- sampling ------------------------------------------------------------------------------------------ */

static bool gpunn__sample_fits(const gpunn__call *call, const gpunn_tensor *logits, const gpunn_tensor *draw,
                               const gpunn_sample_args *args)
{
    char one[128], other[128];
    if (logits->rank != 2 || logits->dim[1] < 1)
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               "logits is %s, but [n, classes] is needed; gpunn_reshape it",
                               gpunn__shape_text(logits, one));
    else if (draw && (draw->rank != 1 || draw->dim[0] != logits->dim[0]))
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               "draw is %s and logits is %s; draw needs one number for each row, [n]",
                               gpunn__shape_text(draw, one), gpunn__shape_text(logits, other));
    else if (!(args->temperature >= 0 && isfinite(args->temperature)) || args->top_k < 0 ||
             !(args->top_p > 0 && args->top_p <= 1))
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               "temperature is %g, top_k %d and top_p %g; temperature and top_k must be 0 or "
                               "more, and top_p above 0 and at most 1",
                               (double)args->temperature, args->top_k, (double)args->top_p);
    else
        return true;
    return false;
}

GPUNN_API gpunn_tensor *gpunn_sample_(gpunn_tensor *logits, gpunn_tensor *draw, gpunn_sample_args args)
{
    static const char *const names[] = {"logits", "draw"};
    gpunn__call              call;
    gpunn_attributes         attr = gpunn__no_attributes();
    gpunn_tensor            *in[2] = {logits, draw}, *places = NULL;
    args.temperature = gpunn__default_float(args.temperature, 1);
    args.top_p = gpunn__default_float(args.top_p, 1);
    if (!gpunn__begin(&call, "sample", NULL, names, in, args.temperature == 0 && draw == NULL ? 1 : 2, 2) ||
        !gpunn__sample_fits(&call, logits, draw, &args))
        return NULL;
    if (args.temperature == 0) return gpunn__call_finish(&call, gpunn_argmax(logits, 1, false));
    attr.temperature = args.temperature;
    attr.top_p = args.top_p;
    const bool few = args.top_k > 0 && args.top_k < logits->dim[1];
    if (few) in[0] = gpunn_topk(logits, args.top_k, 1, true, &places);
    gpunn_tensor *drawn = gpunn__node(&call, &gpunn__operation_sample, &attr, in, 2);
    if (!few || drawn == NULL) return drawn;
    const int64_t column[2] = {logits->dim[0], 1};
    return gpunn__call_finish(
        &call, gpunn__reshape_to(gpunn_gather(places, 1, gpunn__reshape_to(drawn, 2, column)), 1, column));
}
