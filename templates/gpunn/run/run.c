#include "run/run.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/shapes.h"
#include "base/device.h"
#include "ranks/group.h"
#include "base/text.h"
#include "plan/plan.h"
#include "plan/sparse.h"
#include "graph/tensors.h"

/* ---- sizes of a run ---- */

/* Derives a size from the length of an input's axis. Works only where the axis is a named size times a
 * factor, plus a constant. Returns false on failure. */
static bool gpunn__find_size(gpunn_model *model, const gpunn_tensor *t, int axis)
{
    const gpunn__sum       sum = gpunn__sum_of(model, t->dim[axis]);
    const gpunn__size_term first = sum.term[0];
    gpunn__size           *size = &model->sizes[first.atom[0]];
    const bool             number_behind = sum.count == 2 && sum.term[1].atom[0] == 0;
    const int64_t          scaled = t->held[axis] - (number_behind ? sum.term[1].factor : 0),
                  value = scaled / first.factor;
    if (size->name == NULL || first.atom[1] || (sum.count > 1 && !number_behind)) return true;
    const char *fault = NULL;
    if (scaled % first.factor || value < 1)
        fault = "cannot have that value";
    else if (value * size->multiple < size->min)
        fault = "would be below its .min";
    else if (size->max && value * size->multiple > size->max)
        fault = "would be above its .max";
    char text[32];
    (void)gpunn__dim_text(model, t->dim[axis], text);
    if (fault)
        (void)gpunn__fail(model->dev, GPUNN_ERR_SHAPE,
                          "input '%s' has %lld along axis %d, but its size '%s' %s (.min %lld, .max %lld or "
                          "0 for none, .multiple %lld)",
                          t->name, (long long)t->held[axis], axis, text, fault, (long long)size->min,
                          (long long)size->max, (long long)size->multiple);
    else if (size->found && size->found != value)
        (void)gpunn__fail(model->dev, GPUNN_ERR_SHAPE,
                          "input '%s' has %lld along axis %d, so '%s' is %lld, but input '%s' makes it %lld; "
                          "write the same into all",
                          t->name, (long long)t->held[axis], axis, size->name,
                          (long long)(value * size->multiple), size->found_by,
                          (long long)(size->found * size->multiple));
    else {
        size->found = value;
        size->found_by = t->name;
        return true;
    }
    return false;
}

/* Whether an axis of an input has the length that the found sizes imply. Fails if not. */
static bool gpunn__fits_sizes(gpunn_model *model, const gpunn_tensor *t, int axis, int64_t batch)
{
    const gpunn__sum sum = gpunn__sum_of(model, t->dim[axis]);
    const int64_t    size = gpunn__sum_value(model, &sum, batch, true);
    char             text[32];
    if (size == t->held[axis]) return true;
    (void)gpunn__fail(model->dev, GPUNN_ERR_SHAPE,
                      "input '%s' has %lld along axis %d, but '%s' is %lld in the other inputs", t->name,
                      (long long)t->held[axis], axis, gpunn__dim_text(model, t->dim[axis], text),
                      (long long)size);
    return false;
}

/* Finds sizes that no input of the run determines in other inputs that have been written. */
static bool gpunn__find_written_sizes(gpunn_model *model)
{
    for (int i = 0; i < model->tensor_count; i++) {
        const gpunn_tensor *t = model->tensors[i];
        for (int axis = 0; t->kind == GPUNN__INPUT && t->batch && axis < t->rank; axis++) {
            const gpunn__sum sum = gpunn__sum_of(model, t->dim[axis]);
            if (!gpunn__is_sized(t->dim[axis]) || model->sizes[sum.term[0].atom[0]].found) continue;
            if (!gpunn__find_size(model, t, axis)) return false;
        }
    }
    return true;
}

/* Finds all sizes but the batch in the inputs of a plan, or in the marked tensors. Returns false on
 * failure. */
static bool gpunn__find_sizes(gpunn_model *model, const gpunn__plan *plan, const bool *needed, int64_t batch)
{
    const int count = plan ? plan->input_count : model->tensor_count;
    for (int i = 0; i < model->size_count; i++) model->sizes[i].found = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < count; i++) {
            const gpunn_tensor *t = model->tensors[plan ? plan->inputs[i] : i];
            if (t->kind != GPUNN__INPUT || (needed && !needed[i])) continue;
            for (int axis = 0; axis < t->rank; axis++)
                if (gpunn__is_sized(t->dim[axis]) &&
                    !(pass ? gpunn__fits_sizes(model, t, axis, batch) : gpunn__find_size(model, t, axis)))
                    return false;
        }
        if (pass == 0 && !gpunn__find_written_sizes(model)) return false;
    }
    return true;
}

GPUNN__INTERNAL void gpunn__take_found(gpunn_model *model)
{
    for (int i = 0; i < model->size_count; i++) model->sizes[i].value = model->sizes[i].found;
}

GPUNN__INTERNAL void gpunn__take_sizes(gpunn_model *model, const gpunn__plan *plan)
{
    for (int i = 0; plan && i < plan->size_count; i++) model->sizes[i].value = plan->sizes[i];
}

/* Whether a plan was made for the sizes found in the inputs. */
static bool gpunn__has_sizes(const gpunn_model *model, const gpunn__plan *plan)
{
    for (int i = 0; i < plan->size_count; i++)
        if (plan->sizes[i] != model->sizes[i].found) return false;
    return true;
}

static bool gpunn__is_batched(const gpunn_tensor *t)
{
    bool batched = false;
    for (int axis = 0; axis < t->rank; axis++)
        batched = batched || (t->dim[axis] < 0 && !gpunn__is_sized(t->dim[axis]));
    return batched;
}

/* The batch of some written input, for runs that read no input with a batch. 1 if there is none. */
static int64_t gpunn__written_batch(const gpunn_model *model)
{
    for (int i = 0; i < model->tensor_count; i++) {
        const gpunn_tensor *t = model->tensors[i];
        if (t->kind == GPUNN__INPUT && t->batch && gpunn__is_batched(t)) return t->batch;
    }
    return 1;
}

/* The batch that the inputs of a plan, or the marked tensors, hold now. Returns 0 on failure. */
static int64_t gpunn__batch_of(gpunn_model *model, const gpunn__plan *plan, const bool *needed)
{
    const gpunn_tensor *leader = NULL;
    int                 count = plan ? plan->input_count : model->tensor_count;
    for (int i = 0; i < count; i++) {
        const gpunn_tensor *t = model->tensors[plan ? plan->inputs[i] : i];
        if (t->kind != GPUNN__INPUT || (needed && !needed[i])) continue;
        if (t->batch == 0) {
            (void)gpunn__fail(
                model->dev, GPUNN_ERR_STATE,
                "input '%s' has not been written; call gpunn_write or gpunn_next before the run", t->name);
            return 0;
        }
        if (!gpunn__is_batched(t)) continue;
        if (leader && leader->batch != t->batch) {
            (void)gpunn__fail(
                model->dev, GPUNN_ERR_SHAPE,
                "input '%s' holds %lld samples and input '%s' %lld; write the same batch into all",
                leader->name, (long long)leader->batch, t->name, (long long)t->batch);
            return 0;
        }
        leader = t;
    }
    const int64_t batch = leader ? leader->batch : gpunn__written_batch(model);
    return model->size_count && !gpunn__find_sizes(model, plan, needed, batch) ? 0 : batch;
}

static bool gpunn__is_bound(const gpunn_model *model, const gpunn__plan *plan)
{
    return plan->generation == model->generation && model->laid_out == model->tensor_count;
}

/* Whether a plan has run before and needs no more memory than is allocated. */
static bool gpunn__is_ready(const gpunn_model *model, const gpunn__plan *plan)
{
    return plan && plan->passes[0].captured && model->laid_out == model->tensor_count &&
           model->arena_bytes >= plan->arena_bytes &&
           (!plan->training || plan->forward_only || model->gradient_capacity >= model->gradient_count) &&
           (!plan->half || model->half_capacity >= model->wide_count);
}

GPUNN__INTERNAL int64_t gpunn__batch_for(gpunn_model *model, const gpunn__request *request)
{
    size_t bytes = (size_t)model->tensor_count * sizeof(bool);
    bool  *needed = (bool *)gpunn__calloc(model->dev, bytes);
    if (needed == NULL) return 0;
    for (int i = 0; i < request->output_count; i++) needed[request->outputs[i]->id] = true;
    gpunn__mark_operands(model, needed);
    int64_t batch = gpunn__batch_of(model, NULL, needed);
    gpunn__free(model->dev, needed, bytes);
    return batch;
}

/* Whether a plan fits the request, at any batch size. */
static bool gpunn__serves(const gpunn__plan *plan, const gpunn__request *request)
{
    bool same = plan->training == request->training && plan->seeded == request->seeded &&
                plan->forward_only == request->forward_only && plan->evaluates == request->evaluates &&
                plan->scope == gpunn__scope(request) && plan->output_count == request->output_count;
    for (int i = 0; same && i < plan->output_count; i++) same = plan->outputs[i] == request->outputs[i];
    return same;
}

/* Converts the inputs of a plan that are bound to doubles. */
static GPUNN__STATUS gpunn__narrow_inputs(gpunn_model *model, const gpunn__plan *plan)
{
    gpunn_device *dev = model->dev;
    gpunn_status  status = GPUNN_OK;
    for (int i = 0; i < plan->input_count && status == GPUNN_OK; i++) {
        const gpunn_tensor *t = model->tensors[plan->inputs[i]];
        if (t->doubles && t->user_memory[0].data)
            status = dev->backend->convert(dev->context, t->data, GPUNN_F32, t->user_memory[0].data,
                                           GPUNN_F64, gpunn__held_count(t));
    }
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, "converting inputs", status);
}

/* Finds or makes the plan for the request and the current inputs. It becomes the first in the model's list
 * and is bound. Returns NULL on failure. */
static gpunn__plan *gpunn__plan_for(gpunn_model *model, const gpunn__request *request)
{
    gpunn_device *dev = model->dev;
    int64_t       batch = 0;
    gpunn__plan **link = &model->plans;
    for (; *link; link = &(*link)->next) {
        gpunn__plan *plan = *link;
        if (!gpunn__serves(plan, request)) continue;
        if (batch == 0 && (batch = gpunn__batch_of(model, plan, NULL)) == 0) return NULL;
        if (plan->batch == batch && gpunn__has_sizes(model, plan) && gpunn__fits_sparse(plan, request)) break;
    }
    gpunn__plan *plan = *link;
    if (!gpunn__is_ready(model, plan) && dev->backend->capturing && dev->backend->capturing(dev->context)) {
        (void)gpunn__fail(dev, GPUNN_ERR_STATE,
                          "the program's stream is being captured, and this run has not been planned; run "
                          "the same outputs, mode and batch once before the capture");
        return NULL;
    }
    if (gpunn__counts_prepare(dev, &model->state.counts, GPUNN_RUN_COUNTS) != GPUNN_OK) return NULL;
    if (plan == NULL) {
        if ((batch = gpunn__batch_for(model, request)) == 0) return NULL;
        gpunn__take_found(model);
        plan = gpunn__plan_make(model, request, batch);
        gpunn__take_sizes(model, model->last);
        if (plan == NULL) return NULL;
        plan->next = model->plans;
        model->plans = plan;
        gpunn__limit_plans(model);
    } else {
        *link = plan->next;
        plan->next = model->plans;
        model->plans = plan;
    }
    if (!gpunn__is_bound(model, plan) || plan->user_memory_version != model->user_memory_version)
        if (gpunn__plan_bind(model, plan) != GPUNN_OK) return NULL;
    if (model->user_weights || plan->packs_anew) model->state.weights_version++;
    if (plan->half && gpunn__round_weights(model) != GPUNN_OK) return NULL;
    if (model->user_doubles && gpunn__narrow_inputs(model, plan) != GPUNN_OK) return NULL;
    model->batch = batch;
    model->last = plan;
    gpunn__take_sizes(model, plan);
    return plan;
}

GPUNN__INTERNAL bool gpunn__writes_gradients(const gpunn_step *step)
{
    return step->backward || step->op == GPUNN_OP_FUSION;
}

/* Checks the parameter gradients that a step has just written for infinity and
 * NaN, while they are in the CPU's caches. */
static void gpunn__watch_gradients(gpunn_model *model, const gpunn_step *step)
{
    const gpunn_backend *backend = model->dev->backend;
    for (int i = 0; i < step->input_count && !model->doubtful; i++) {
        const float *values = (const float *)step->grad_in[i].data;
        const bool   dense = model->gradients && values >= model->gradients &&
                           values < model->gradients + model->gradient_capacity;
        if (values == NULL || !(dense || (model->has_sparse && step->attr->sparse))) continue;
        model->doubtful = backend->finite == NULL ||
                          !backend->finite(model->dev->context, values, step->grad_in[i].count);
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__run_steps(gpunn_device *dev, gpunn__plan *plan, int from, int to)
{
    if (dev->timing) {
        gpunn_run run;
        memset(&run, 0, sizeof run);
        run.steps = plan->steps + from;
        run.step_count = to - from;
        gpunn_status status = dev->backend->time(dev->context, &run, dev->timing + from);
        plan->outputs[0]->model->doubtful = true;
        return status == GPUNN_OK ? GPUNN_OK : gpunn__run_fail(dev, &run, "gpunn_profile", status);
    }
    while (from < to) {
        const gpunn_step *failed = NULL;
        const int         begin = from++;
        while (from < to && !gpunn__writes_gradients(&plan->steps[from - 1])) from++;
        gpunn_status status = dev->backend->run(dev->context, &plan->steps[begin], from - begin, &failed);
        if (status != GPUNN_OK) return gpunn__step_fail(dev, failed ? failed : &plan->steps[begin], status);
        if (gpunn__writes_gradients(&plan->steps[from - 1]))
            gpunn__watch_gradients(plan->outputs[0]->model, &plan->steps[from - 1]);
    }
    return GPUNN_OK;
}

/* Describes a whole pass for backends that execute runs as one unit. */
static gpunn_run gpunn__whole_run(gpunn_model *model, gpunn__plan *plan, const gpunn__backpass *pass)
{
    gpunn_run run;
    memset(&run, 0, sizeof run);
    run.steps = plan->steps + pass->begin;
    run.step_count = pass->end - pass->begin;
    run.state = &model->state;
    run.captured = pass->captured;
    run.signature = plan->signature;
    for (int i = pass->reached_begin; i < pass->reached_end; i++) /* FNV-1a */
        run.signature = (run.signature ^ (uint64_t)(*plan->first_write[i] ? 2 : 1)) * UINT64_C(0x100000001B3);
    return run;
}

static GPUNN__STATUS gpunn__check_outputs(gpunn_model *model, const char *caller,
                                          gpunn_tensor *const *outputs, int count)
{
    for (int i = 1; i < count; i++)
        if (outputs[i] == NULL || outputs[i]->model != model)
            return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT, "%s: output %d %s", caller, i,
                               outputs[i] ? "belongs to another model than output 0; run each model by itself"
                                          : "is NULL; check the call that made it");
    return GPUNN_OK;
}

/* Counts the start of a training step or of an evaluation. */
static void gpunn__count_step(gpunn_model *model, bool trains)
{
    model->state.step += trains;
    model->state.draw = trains ? model->state.step << 24 : model->state.draw + 1;
    model->state.weights_version += trains; /* training changes running statistics */
}

/* Undoes the count of a run that was only captured. Its replays count instead. */
static void gpunn__count_back(gpunn_model *model, const gpunn_run *run, const gpunn_run_state *before)
{
    if (!run->captured_only) return;
    model->state.step = before->step;
    model->state.draw = before->draw;
}

GPUNN__INTERNAL gpunn_group *gpunn__communicating_group(const gpunn_model *model)
{
    bool communicates = false;
    for (int id = 0; id < model->tensor_count && model->ranks.size > 1 && !communicates; id++)
        communicates = model->tensors[id]->attr.sync;
    return communicates ? (gpunn_group *)model->ranks.user : NULL;
}

GPUNN__INTERNAL gpunn_status gpunn__report_to_ranks(gpunn_group *group, int64_t reductions,
                                                    gpunn_status status)
{
    if (group == NULL || status == GPUNN_OK || gpunn__has_reported(group, reductions)) return status;
    if (!group->joined || group->reductions == reductions)
        return gpunn__all_reduce_status(group, status, NULL, "a run that fails");
    return status == GPUNN_ERR_NUMERIC
               ? status
               : gpunn__all_reduce_status(group, status, NULL, GPUNN__LATE); /* all GPUs see such a value */
}

/* Ranks agree before a run whose devices exchange directly, since they cannot report a failure during the
 * run. A step of an optimizer has agreed already. */
static GPUNN__STATUS gpunn__before_communication(gpunn_model *model, const gpunn__plan *plan,
                                                 const char *caller)
{
    if (!plan->communicates || !model->ranks.joined) return GPUNN_OK;
    return gpunn__all_reduce_status((gpunn_group *)model->ranks.user, gpunn__earlier_runs(model->dev, caller),
                                    NULL, "%s", caller);
}

/* Copies everything that runs of a training plan change in place to the kept copies, or back. */
static GPUNN__STATUS gpunn__kept_copy(gpunn_device *dev, const gpunn__plan *plan, bool back)
{
    gpunn_status status = GPUNN_OK;
    for (int i = 0; i < plan->kept_count && status == GPUNN_OK; i++) {
        const gpunn_kept *kept = &plan->kept[i];
        float *const      from = back ? kept->copy : kept->values;
        status = dev->backend->convert(dev->context, back ? kept->values : kept->copy, GPUNN_F32, from,
                                       GPUNN_F32, kept->count);
    }
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, "keeping what a step changes", status);
}

/* Keeps copies before a run on a CPU, which gpunn__put_back restores after a failure. */
static GPUNN__STATUS gpunn__keep(gpunn_model *model, gpunn__plan *plan)
{
    model->undo = plan;
    return gpunn__kept_copy(model->dev, plan, false);
}

GPUNN__INTERNAL gpunn_status gpunn__put_back(gpunn_model *model, gpunn_status status)
{
    const gpunn__plan *plan = model->undo;
    model->undo = NULL;
    if (status != GPUNN_OK && plan) (void)!gpunn__kept_copy(model->dev, plan, true);
    return status;
}

/* The plan for outputs of a model. Returns NULL on failure. */
static gpunn__plan *gpunn__forward_plan(gpunn_tensor *const *outputs, int count, const char *caller,
                                        gpunn__aim aim)
{
    gpunn_model *model = outputs[0]->model;
    if (gpunn__check_outputs(model, caller, outputs, count) != GPUNN_OK) return NULL;
    gpunn__request request = gpunn__request_of(outputs, count, aim);
    return gpunn__plan_for(model, &request);
}

static GPUNN__STATUS gpunn__forward_run(gpunn_tensor *const *outputs, int count, const char *caller,
                                        gpunn__aim aim)
{
    gpunn_model  *model = outputs[0]->model;
    gpunn__plan  *plan = gpunn__forward_plan(outputs, count, caller, aim);
    gpunn_device *dev = model->dev;
    if (plan == NULL) return dev->error.status;
    gpunn_status status = gpunn__before_communication(model, plan, caller);
    if (status != GPUNN_OK) return status;
    const gpunn_run_state before = model->state;
    gpunn__count_step(model, plan->training);
    if (dev->backend->execute == NULL) {
        status = gpunn__keep(model, plan);
        return gpunn__put_back(model, status == GPUNN_OK ? gpunn__run_steps(dev, plan, 0, plan->step_count)
                                                         : status);
    }
    gpunn_run run = gpunn__whole_run(model, plan, &plan->passes[0]);
    run.trains = plan->training;
    status = gpunn__execute(dev, &run, caller);
    gpunn__count_back(model, &run, &before);
    plan->passes[0].captured = run.captured;
    return status;
}

static GPUNN__STATUS gpunn__check_first_output(gpunn_tensor *const *outputs, int count, const char *caller)
{
    if (outputs == NULL || count < 1)
        return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "%s: there are no outputs; pass at least one", caller);
    return outputs[0] ? GPUNN_OK : gpunn__fail_null(NULL, caller, "first output");
}

static GPUNN__STATUS gpunn__forward(gpunn_tensor *const *outputs, int count, const char *caller,
                                    gpunn__aim aim)
{
    const gpunn_status fault = gpunn__check_first_output(outputs, count, caller);
    if (fault != GPUNN_OK) return fault;
    gpunn_group  *group = aim == GPUNN__TRAIN_FORWARD ? gpunn__communicating_group(outputs[0]->model) : NULL;
    const int64_t reductions = group ? group->reductions : 0;
    return gpunn__report_to_ranks(group, reductions, gpunn__forward_run(outputs, count, caller, aim));
}

GPUNN_API gpunn_status gpunn_forward(gpunn_tensor *const *outputs, int count)
{
    return gpunn__forward(outputs, count, "gpunn_forward", GPUNN__EVALUATE);
}

GPUNN_API gpunn_status gpunn_forward_prepare(gpunn_tensor *const *outputs, int count)
{
    static const char *const caller = "gpunn_forward_prepare";
    const gpunn_status       fault = gpunn__check_first_output(outputs, count, caller);
    if (fault != GPUNN_OK) return fault;
    gpunn_model *model = outputs[0]->model;
    if (gpunn__forward_plan(outputs, count, caller, GPUNN__EVALUATE) == NULL) return model->dev->error.status;
    model->last = NULL; /* nothing can be read until a run */
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_forward_training(gpunn_tensor *const *outputs, int count)
{
    return gpunn__forward(outputs, count, "gpunn_forward_training", GPUNN__TRAIN_FORWARD);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__read_loss(gpunn_tensor *loss, float *value)
{
    gpunn_status status = gpunn_read_as(loss, GPUNN_F32, value, sizeof *value);
    const char  *fault = gpunn__not_finite(value, sizeof *value);
    if (status != GPUNN_OK || fault == NULL) return status;
    return gpunn__fail(loss->model->dev, GPUNN_ERR_NUMERIC, GPUNN__BAD_VALUE, "loss", fault,
                       (unsigned long long)loss->model->state.step);
}

/* Runs forward steps, checks the loss, then runs backward steps. */
static GPUNN__STATUS gpunn__run_training(gpunn_tensor *loss, gpunn__plan *plan, const gpunn__backpass *pass)
{
    gpunn_device *dev = loss->model->dev;
    const int     backward = pass->begin ? pass->begin : plan->forward_count;
    gpunn_status  status = gpunn__run_steps(dev, plan, pass->begin, backward);
    if (status != GPUNN_OK) return status;
    float value = 0;
    status = gpunn__read_loss(loss, &value);
    return status == GPUNN_OK ? gpunn__run_steps(dev, plan, backward, pass->end) : status;
}

GPUNN__INTERNAL bool gpunn__is_among(const gpunn__chosen *chosen, const gpunn_tensor *parameter)
{
    if (chosen->prefix && strncmp(parameter->name, chosen->prefix, strlen(chosen->prefix)) == 0) return true;
    for (int i = 0; i < chosen->count; i++)
        if (chosen->list[i] == parameter) return true;
    return false;
}

GPUNN__INTERNAL bool gpunn__is_chosen(const gpunn_optimizer *opt, const gpunn_tensor *t)
{
    return t->kind == GPUNN__PARAMETER && !t->base && (opt->scope == 0 || gpunn__is_among(&opt->chosen, t));
}

static const char *gpunn__why_unreached(const gpunn_model *model, const gpunn_backward_args *args)
{
    int there = 0, trainable = 0;
    for (int i = 0; i < model->tensor_count && !args->inputs_only; i++) {
        const gpunn_tensor *t = model->tensors[i];
        bool                counts = t->kind == GPUNN__PARAMETER &&
                      (!args->optimizer || gpunn__is_chosen(args->optimizer, t));
        there += counts;
        trainable += counts && t->trainable;
    }
    if (args->optimizer && there == 0)
        return "the optimizer trains none; check that the parameters' names begin with its .prefix";
    return there > trainable && trainable == 0
               ? "every parameter is frozen; unfreeze one with gpunn_set_trainable"
               : "it depends on none of them, or only through ops without a gradient, such as comparisons";
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__resolve_writes(gpunn_model *model, gpunn__plan *plan,
                                                    const gpunn__backpass *pass)
{
    gpunn_device *dev = model->dev;
    for (int i = pass->reached_begin; i < pass->reached_end; i++) *plan->first_write[i] = false;
    for (int i = pass->reached_begin; i < pass->reached_end; i++) {
        plan->was_reached[i] = model->tensors[plan->reached[i]]->grad_reached;
        *plan->first_write[i] |= plan->was_reached[i];
    }
    for (int i = pass->reached_begin; i < pass->reached_end; i++) {
        const gpunn_tensor *t = model->tensors[plan->reached[i]];
        if (*plan->first_write[i] == plan->was_reached[i]) continue;
        gpunn_status status = dev->backend->fill(dev->context, gpunn__gradient_of(t), 0,
                                                 gpunn_tensor_bytes(t));
        if (status != GPUNN_OK) return gpunn__backend_fail(dev, "clearing gradients", status);
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__check_loss(const gpunn_tensor *loss, const char *caller)
{
    char text[128];
    if (loss == NULL) return gpunn__fail_null(NULL, caller, "loss");
    if (loss->dtype == GPUNN_F32 && loss->kind == GPUNN__VALUE && gpunn__count(loss, 1) == 1 &&
        gpunn__count(loss, 2) == 1)
        return GPUNN_OK;
    return gpunn__fail(
        loss->model->dev, GPUNN_ERR_SHAPE,
        "the loss is %s %s; it must be one computed f32 number: reduce it with gpunn_mean or gpunn_sum",
        gpunn_dtype_name(loss->dtype), gpunn__shape_text(loss, text));
}

/* Notes that a pass has run, so that its gradients of intermediate values can be read. */
static void gpunn__note_pass(gpunn_model *model, gpunn__plan *plan, int number)
{
    const int *gradients = plan->passes[number].gradients;
    for (int id = 0; id < plan->tensor_count && gradients; id++)
        plan->tensors[id].gradient_slot = gradients[id];
    plan->passed = number;
    if (number > 0) return;
    plan->written = model->written;
    plan->weights_version = model->state.weights_version;
}

/* Resets what is known about non-finite gradients when a pass begins. The program may
 * have written to gradients that it bound. */
static void gpunn__begin_doubts(gpunn_model *model, const gpunn__plan *plan, const gpunn__backpass *pass,
                                const gpunn_optimizer *opt)
{
    if (opt && opt->parts == 0 && opt->scope == 0) model->doubtful = false;
    for (int i = pass->reached_begin; i < pass->reached_end; i++)
        model->doubtful = model->doubtful || model->tensors[plan->reached[i]]->user_memory[1].data;
}

static GPUNN__STATUS gpunn__fail_unreached(const gpunn__plan *plan, const gpunn_tensor *loss,
                                           const gpunn_backward_args *args)
{
    const gpunn_model *model = plan->outputs[0]->model;
    const char        *parameters = plan->scope ? "trainable parameter of the optimizer or to a "
                                                : "trainable parameter or to a ";
    return gpunn__fail(
        model->dev, GPUNN_ERR_STATE, "no gradient flows from the %s to a %stensor of gpunn_retain_grad: %s",
        loss ? "loss" : "outputs", args->inputs_only ? "" : parameters, gpunn__why_unreached(model, args));
}

/* Runs a pass of a training step on a backend that executes single steps. */
static GPUNN__STATUS gpunn__train_by_steps(gpunn__plan *plan, int number, gpunn_tensor *loss)
{
    gpunn_model     *model = plan->outputs[0]->model;
    gpunn__backpass *pass = &plan->passes[number];
    gpunn_status     status = number == 0 ? gpunn__keep(model, plan) : GPUNN_OK;
    if (status == GPUNN_OK)
        status = loss ? gpunn__run_training(loss, plan, pass)
                      : gpunn__run_steps(model->dev, plan, 0, plan->step_count);
    if (status != GPUNN_OK && number == 0) plan->passed = -1;
    for (int i = pass->reached_begin; i < pass->reached_end && status == GPUNN_OK; i++)
        model->tensors[plan->reached[i]]->grad_reached = true;
    return status;
}

/* Runs the forward and backward pass of one training step, or a later pass of it. With opt (prepared)
 * gradients start anew, unless parts have been accumulated. With updates, clipping and the update follow.
 * loss is NULL if the program gave output gradients. */
static GPUNN__STATUS gpunn__train(gpunn__plan *plan, int number, gpunn_tensor *loss,
                                  const gpunn_backward_args *args, gpunn_optimizer *opt, bool updates)
{
    gpunn_model     *model = plan->outputs[0]->model;
    gpunn_device    *dev = model->dev;
    gpunn__backpass *pass = &plan->passes[number];
    if (pass->reached_begin == pass->reached_end && !pass->differentiates)
        return gpunn__fail_unreached(plan, loss, args);
    /* Not earlier: a run that fails above leaves gradients unchanged. */
    for (int i = 0; opt && opt->parts == 0 && i < opt->parameter_count; i++)
        opt->parameters[i]->grad_reached = false;
    gpunn__begin_doubts(model, plan, pass, opt);
    model->written_gradients++;
    gpunn_status status = gpunn__resolve_writes(model, plan, pass);
    if (number == 0) gpunn__count_sparse(plan);
    if (status == GPUNN_OK && opt == NULL)
        status = gpunn__before_communication(model, plan, "gpunn_backward");
    if (status != GPUNN_OK) return status;
    const gpunn_run_state before = model->state;
    if (number == 0) gpunn__count_step(model, !plan->evaluates);
    gpunn__note_pass(model, plan, number);
    if (dev->backend->execute == NULL) {
        status = gpunn__train_by_steps(plan, number, loss);
        return status == GPUNN_OK && updates ? gpunn__optimizer_update(opt, opt->parts + 1, true, true)
                                             : status;
    }
    gpunn_run run = gpunn__whole_run(model, plan, pass);
    size_t    bytes;
    run.trains = !plan->evaluates;
    if (loss && (!(opt && opt->group) || gpunn__in_ranks(opt->group, dev)))
        run.loss = (const float *)gpunn__memory_of(loss, false, &bytes);
    if (loss && model->precision == GPUNN_PRECISION_F16) run.loss_gradient = gpunn__loss_gradient(model);
    if (number == 0) {
        run.kept = (const gpunn_kept *)((const char *)plan->kept_memory + plan->kept_bytes) -
                   plan->kept_count;
        run.kept_count = plan->kept_count;
    }
    run.gradients = model->gradients;
    run.gradient_count = model->gradient_capacity;
    if (opt == NULL) run.doubt = gpunn__doubt_before(model);
    for (int i = pass->reached_begin; i < pass->reached_end; i++)
        model->tensors[plan->reached[i]]->grad_reached = true;
    if (opt) status = gpunn__optimizer_collect(opt, &run, loss, updates);
    const char *backward = loss ? "gpunn_backward" : "gpunn_backward_from";
    if (status == GPUNN_OK) status = gpunn__execute(dev, &run, opt ? "gpunn_train_step" : backward);
    if (run.doubt && status == GPUNN_OK) model->optimizers->checked = model->written_gradients;
    pass->captured = run.captured;
    /* the host still has to check the loss */
    if (status == GPUNN_OK && loss && run.loss == NULL) model->undo = plan;
    if (status == GPUNN_ERR_MEMORY || (status != GPUNN_OK && number == 0)) plan->passed = number - 1;
    for (int i = pass->reached_begin; i < pass->reached_end && status != GPUNN_OK; i++)
        model->tensors[plan->reached[i]]->grad_reached = plan->was_reached[i];
    /* a retry gets the same dropout */
    if (status == GPUNN_ERR_MEMORY && number == 0) model->state.step -= !plan->evaluates;
    gpunn__count_back(model, &run, &before);
    if (updates && status == GPUNN_OK) gpunn__optimizer_advance(opt, &run);
    return status;
}

/* The index of a loss among the plan's passes after the one that ran last. 0: not found. */
static int gpunn__pass_of(const gpunn__plan *plan, const gpunn_tensor *loss)
{
    for (int i = plan->passed + 1; i < plan->pass_count; i++)
        if (plan->outputs[i] == loss) return i;
    return 0;
}

/* Finds the pass of a loss that can continue from the last forward pass. Returns 0 on failure. */
static int gpunn__retained_pass(gpunn_tensor *loss, const gpunn__request *request)
{
    gpunn_model       *model = loss->model;
    gpunn_device      *dev = model->dev;
    const gpunn__plan *plan = model->last;
    const char        *fault = NULL;
    bool               named = false;
    for (const gpunn__plan *any = model->plans; any; any = any->next)
        for (int i = 1; i < any->pass_count; i++) named = named || any->outputs[i] == loss;
    if (!named)
        fault = "no gpunn_backward has named it in .then since the model was built or changed";
    else if (plan == NULL || plan->pass_count == 1 || plan->generation != model->generation)
        fault = "another run has overwritten its saved values";
    else if (plan->written != model->written || plan->weights_version != model->state.weights_version ||
             plan->user_memory_version != model->user_memory_version)
        fault = "an input, a parameter or a state has changed since";
    else if (plan->passed < 0)
        fault = "it has failed";
    else if (gpunn__pass_of(plan, loss) == 0)
        fault = "its gradients, or those of a later loss in .then, have already been computed";
    else if (dev->backend->capturing && dev->backend->capturing(dev->context))
        fault = "the program's stream is being captured";
    else if (plan->scope != gpunn__scope(request) || plan->evaluates != request->evaluates)
        fault = "its .mode, .optimizer or .inputs_only was different";
    if (fault == NULL) return gpunn__pass_of(plan, loss);
    (void)gpunn__fail(dev, GPUNN_ERR_STATE,
                      "gpunn_backward: '%s' has no forward pass that can be continued: %s; leave .retained "
                      "out, or name the loss in .then of the gpunn_backward right before",
                      gpunn__called(loss), fault);
    return 0;
}

static GPUNN__STATUS gpunn__gradients_run(gpunn_tensor *loss, const gpunn_backward_args *args,
                                          gpunn_optimizer *opt, bool updates)
{
    static const char caller[] = "gpunn_backward";
    gpunn_tensor     *losses[1 + GPUNN_MAX_LOSSES] = {loss};
    int               count = 1, number = 0;
    gpunn_status      status = gpunn__check_loss(loss, caller);
    for (; status == GPUNN_OK && count <= GPUNN_MAX_LOSSES && args->then[count - 1]; count++)
        status = gpunn__check_loss(losses[count] = args->then[count - 1], caller);
    if (status != GPUNN_OK) return status;
    gpunn_model   *model = loss->model;
    gpunn_device  *dev = model->dev;
    gpunn__request request = gpunn__request_of(losses, count, GPUNN__TRAIN);
    request.opt = args->optimizer;
    request.renews = opt && opt->parts == 0;
    request.inputs_only = args->inputs_only;
    request.evaluates = args->mode == GPUNN_MODE_EVALUATION;
    if (gpunn__check_outputs(model, caller, losses, count) != GPUNN_OK) return dev->error.status;
    if (args->retained && (number = gpunn__retained_pass(loss, &request)) == 0) return dev->error.status;
    gpunn__plan *plan = args->retained ? model->last : gpunn__plan_for(model, &request);
    return plan ? gpunn__train(plan, number, loss, args, opt, updates) : dev->error.status;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__gradients(gpunn_tensor *loss, const gpunn_backward_args *args,
                                               gpunn_optimizer *opt, bool updates)
{
    gpunn_group  *group = loss && args->mode == GPUNN_MODE_TRAINING ? gpunn__communicating_group(loss->model)
                                                                    : NULL;
    const int64_t reductions = group ? group->reductions : 0;
    return gpunn__report_to_ranks(group, reductions, gpunn__gradients_run(loss, args, opt, updates));
}

GPUNN_API gpunn_status gpunn_backward_(gpunn_tensor *loss, gpunn_backward_args args)
{
    static const char function[] = "gpunn_backward";
    gpunn_device     *dev = loss ? loss->model->dev : NULL;
    gpunn_status      status = GPUNN_OK;
    if ((int)args.mode < GPUNN_MODE_TRAINING || args.mode > GPUNN_MODE_EVALUATION)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, GPUNN__BAD_MODE, function, (int)args.mode);
    if (args.optimizer && args.inputs_only)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: optimizer and inputs_only exclude each other; give one of them", function);
    if (args.optimizer && loss && args.optimizer->model != loss->model)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: the loss and the optimizer belong to different models", function);
    if (args.retained && args.then[0])
        return gpunn__fail(
            dev, GPUNN_ERR_ARGUMENT,
            "%s: retained and then exclude each other; the first gpunn_backward names all losses in then",
            function);
    if (args.optimizer) status = gpunn__optimizer_prepare(args.optimizer);
    if (status == GPUNN_OK) status = gpunn__gradients(loss, &args, NULL, false);
    return loss ? gpunn__put_back(loss->model, status) : status;
}

static size_t gpunn__whole_cache_lines(size_t bytes)
{
    return (bytes + GPUNN__ALIGN - 1) / GPUNN__ALIGN * GPUNN__ALIGN;
}

/* Sets the plan's seeds to the gradients that the program gave. Gradients in
 * host memory are first copied to the device. */
static GPUNN__STATUS gpunn__seed(gpunn_model *model, gpunn__plan *plan, const char *caller,
                                 const void *const *gradients)
{
    gpunn_device        *dev = model->dev;
    const gpunn_backend *backend = dev->backend;
    size_t               whole = 0, used = 0;
    for (int i = 0; i < plan->output_count; i++)
        whole += gpunn__whole_cache_lines((size_t)gpunn__count(plan->outputs[i], plan->batch) *
                                          sizeof(float));
    for (int i = 0; i < plan->output_count; i++) {
        const size_t      bytes = (size_t)gpunn__count(plan->outputs[i], plan->batch) * sizeof(float);
        const gpunn_dtype dtype = gpunn_tensor_dtype(plan->outputs[i]);
        const bool        direct = dtype == GPUNN_F32 &&
                            (backend->on_device == NULL || backend->on_device(dev->context, gradients[i]));
        gpunn_status status = direct && backend->reaches ? backend->reaches(dev->context, gradients[i], bytes)
                                                         : GPUNN_OK;
        void        *own = direct ? gpunn__unconst(gradients[i]) : NULL;
        if (status != GPUNN_OK) return gpunn__backend_fail(dev, caller, status);
        if (!direct && plan->seed_memory == NULL) {
            plan->seed_memory = gpunn__device_alloc(dev, whole);
            if (plan->seed_memory == NULL) return dev->error.status;
            plan->seed_bytes = whole;
        }
        if (!direct)
            status = gpunn__copy_in(dev, caller, own = (char *)plan->seed_memory + used, GPUNN_F32,
                                    gradients[i], dtype, (int64_t)(bytes / sizeof(float)));
        if (status != GPUNN_OK) return status;
        plan->seed[i].data = own;
        plan->seed[i].bytes = bytes;
        used += gpunn__whole_cache_lines(bytes);
    }
    return gpunn__plan_bind(model, plan);
}

static GPUNN__STATUS gpunn__backward_from(gpunn_tensor *const *outputs, const void *const *gradients,
                                          int count, const char *caller)
{
    gpunn_model  *model = outputs[0]->model;
    gpunn_device *dev = model->dev;
    gpunn_status  status = gpunn__check_outputs(model, caller, outputs, count);
    if (status != GPUNN_OK) return status;
    for (int i = 0; i < count; i++) {
        if (outputs[i]->kind != GPUNN__VALUE || outputs[i]->dtype != GPUNN_F32)
            return gpunn__fail(dev, GPUNN_ERR_DTYPE,
                               "%s: output %d, '%s', is %s; give f32 values that the model computes", caller,
                               i, gpunn__called(outputs[i]), gpunn_dtype_name(outputs[i]->dtype));
        if (gradients[i] == NULL)
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                               "%s: the gradient of output %d, '%s', is NULL; leave the output out", caller,
                               i, gpunn__called(outputs[i]));
    }
    gpunn__request request = gpunn__request_of(outputs, count, GPUNN__TRAIN_FROM);
    gpunn__plan   *plan = gpunn__plan_for(model, &request);
    if (plan == NULL) return dev->error.status;
    status = gpunn__seed(model, plan, caller, gradients);
    gpunn_backward_args args;
    memset(&args, 0, sizeof args);
    return status == GPUNN_OK ? gpunn__train(plan, 0, NULL, &args, NULL, false) : status;
}

GPUNN_API gpunn_status gpunn_backward_from(gpunn_tensor *const *outputs, const void *const *gradients,
                                           int count)
{
    static const char caller[] = "gpunn_backward_from";
    if (outputs == NULL || gradients == NULL || count < 1)
        return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT,
                           "%s: there are no outputs or no gradients; pass one gradient for each output",
                           caller);
    if (outputs[0] == NULL) return gpunn__fail_null(NULL, caller, "first output");
    gpunn_group  *group = gpunn__communicating_group(outputs[0]->model);
    const int64_t reductions = group ? group->reductions : 0;
    gpunn_status  status = gpunn__report_to_ranks(group, reductions,
                                                  gpunn__backward_from(outputs, gradients, count, caller));
    return gpunn__put_back(outputs[0]->model, status);
}

GPUNN_API gpunn_status gpunn_zero_grad(gpunn_model *model)
{
    if (model == NULL) return gpunn__fail_null(NULL, "gpunn_zero_grad", "model");
    for (int id = 0; id < model->tensor_count; id++) model->tensors[id]->grad_reached = false;
    for (gpunn_optimizer *opt = model->optimizers; opt; opt = opt->next) opt->parts = 0;
    model->doubtful = false;
    return GPUNN_OK;
}

/* ---- generated kernels --------------------------------------------------------------------------------- */

/* Whether the kernel's pattern occurs in the model. If not, *missing becomes the text of its first node that
 * occurs nowhere, and stays NULL if there is none. missing may be NULL. */
static bool gpunn__kernel_occurs(const gpunn_model *model, const gpunn_kernel *kernel, const char **missing)
{
    int ids[2 * GPUNN__LEFT_OUT];
    for (int id = 0; id < model->tensor_count; id++)
        if (gpunn__find_pattern(model, kernel, model->tensors[id], ids)) return true;
    for (int k = 0; k < kernel->node_count && missing && *missing == NULL; k++) {
        char text[GPUNN__TEXT_SIZE];
        bool there = false;
        for (int id = 0; id < model->tensor_count && !there; id++) {
            gpunn__node_text(model->tensors[id], text, sizeof text);
            there = strcmp(text, kernel->nodes[k].text) == 0;
        }
        if (!there) *missing = kernel->nodes[k].text;
    }
    return false;
}

/* Reports how many kernels of a set made for another model fit this one. This is a
 * warning, or an error under the strict policy. */
static GPUNN__STATUS gpunn__report_stale(gpunn_model *model, const gpunn_kernel_set *set,
                                         gpunn_kernel_policy policy)
{
    gpunn_device       *dev = model->dev;
    int                 found = 0;
    const gpunn_kernel *stale = NULL;
    const char         *missing = NULL;
    char                why[GPUNN__ERROR_SIZE - 128] = "", text[GPUNN__ERROR_SIZE];
    for (int i = 0; i < set->kernel_count; i++) {
        bool occurs = gpunn__kernel_occurs(model, &set->kernels[i], stale ? NULL : &missing);
        found += occurs;
        if (!occurs && stale == NULL) stale = &set->kernels[i];
    }
    if (stale && missing)
        (void)snprintf(why, sizeof why, " %s (%s) does not find '%s' in this model;", stale->name,
                       stale->formula, missing);
    else if (stale)
        (void)snprintf(why, sizeof why, " %s (%s) finds its nodes connected differently;", stale->name,
                       stale->formula);
    (void)snprintf(
        text, sizeof text,
        "%s_kernels.h was generated for another model: %d of its %d kernels fit this one;%s renew it: %s",
        set->name, found, set->kernel_count, why, set->command);
    if (policy == GPUNN_KERNELS_STRICT)
        return gpunn__fail(dev, GPUNN_ERR_STATE, "gpunn_use_kernels: %s", text);
    if (dev->args.log_fn) dev->args.log_fn(dev->args.user, GPUNN_LOG_WARNING, text);
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_use_kernels_(gpunn_model *model, const gpunn_kernel_set *set,
                                          gpunn_kernels_args args)
{
    if (model == NULL) return gpunn__fail_null(NULL, "gpunn_use_kernels", "model");
    gpunn_device *dev = model->dev;
    const char   *environment = getenv("GPUNN_KERNELS");
    char          hash[65] = "";
    if ((int)args.policy < GPUNN_KERNELS_AUTO || args.policy > GPUNN_KERNELS_OFF)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_use_kernels: policy %d is unknown; use GPUNN_KERNELS_AUTO, _STRICT or _OFF",
                           (int)args.policy);
    if (args.policy == GPUNN_KERNELS_OFF || (environment && strcmp(environment, "off") == 0)) set = NULL;
    int abi = set ? set->abi : GPUNN_KERNELS_ABI;
    if (set && set->cuda && abi == GPUNN_KERNELS_ABI) abi = set->cuda->abi;
    if (abi != GPUNN_KERNELS_ABI)
        return gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                           "gpunn_use_kernels: these kernels need kernel ABI %d, but this gpunn.h has %d; "
                           "renew them with the generator of the same version",
                           abi, GPUNN_KERNELS_ABI);
    if (set && set->cuda && set->cuda->stamp != set->stamp)
        return gpunn__fail(dev, GPUNN_ERR_STATE,
                           "gpunn_use_kernels: %s_kernels.cu was compiled with another %s_kernels.h than "
                           "this program; compile both again",
                           set->name, set->name);
    if (set && set->tensor_count <= model->tensor_count) gpunn__model_sha256(model, set->tensor_count, hash);
    bool         exact = set && strcmp(hash, set->spec_sha256) == 0;
    gpunn_status status = set && !exact ? gpunn__report_stale(model, set, args.policy) : GPUNN_OK;
    if (status != GPUNN_OK) return status;
    if (set && set->cuda == NULL && dev->info.type == GPUNN_DEVICE_CUDA) {
        char text[GPUNN__ERROR_SIZE];
        (void)snprintf(text, sizeof text,
                       "%s_kernels.cu is not linked, so the GPU runs single ops; add it to the compile line",
                       set->name);
        if (args.policy == GPUNN_KERNELS_STRICT)
            return gpunn__fail(dev, GPUNN_ERR_STATE, "gpunn_use_kernels: %s", text);
        if (dev->args.log_fn) dev->args.log_fn(dev->args.user, GPUNN_LOG_WARNING, text);
    }
    gpunn__invalidate(model);
    model->kernels = set;
    model->kernels_exact = exact;
    return GPUNN_OK;
}
