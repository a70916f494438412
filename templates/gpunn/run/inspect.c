#include "run/inspect.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/shapes.h"
#include "graph/tensors.h"
#include "plan/plan.h"
#include "plan/sparse.h"
#include "run/run.h"

typedef struct gpunn__inspection {
    gpunn_model              *model;
    gpunn__plan              *plan;
    const gpunn_inspect_args *args;
    bool                      ended; /* on_layer stopped the inspection */
} gpunn__inspection;

/* Reports statistics of a float value in device memory to on_layer. Other dtypes are skipped. */
static GPUNN__STATUS gpunn__report_value(gpunn__inspection *in, const char *op, const char *layer,
                                         const char *gradient_of, const void *data, gpunn_dtype dtype,
                                         int64_t count)
{
    gpunn_device          *dev = in->model->dev;
    gpunn_value_sums       parts[GPUNN_SUM_PARTS];
    gpunn_layer_statistics s;
    double                 sum = 0, squares = 0;
    if (data == NULL || (dtype != GPUNN_F32 && dtype != GPUNN_F16 && dtype != GPUNN_BF16) || in->ended)
        return GPUNN_OK;
    gpunn_status status = dev->backend->value_sums(dev->context, data, dtype, count, parts);
    if (status != GPUNN_OK) return gpunn__backend_fail(dev, "gpunn_inspect", status);
    memset(&s, 0, sizeof s);
    s.op = op;
    s.layer = layer;
    s.gradient_of = gradient_of;
    s.count = count;
    s.min = s.max = NAN;
    for (int i = 0; i < GPUNN_SUM_PARTS; i++) {
        const gpunn_value_sums *part = &parts[i];
        s.zeros += (int64_t)part->zeros;
        s.nans += (int64_t)part->nans;
        s.infinities += (int64_t)part->infinities;
        sum += part->sum;
        squares += part->squares;
        if (part->finite > 0 && !(s.min <= part->min)) s.min = part->min;
        if (part->finite > 0 && !(s.max >= part->max)) s.max = part->max;
    }
    const double finite = (double)(count - s.nans - s.infinities), mean = sum / finite,
                 variance = squares / finite - mean * mean;
    s.mean = finite > 0 ? mean : NAN;
    s.deviation = finite > 0 ? sqrt(fmax(variance, 0)) : NAN;
    in->ended = !in->args->on_layer(in->args->user, &s);
    return GPUNN_OK;
}

/* Reports the inputs, parameters and buffers that the loss depends on. */
static GPUNN__STATUS gpunn__report_sources(gpunn__inspection *in, const gpunn_tensor *loss)
{
    gpunn_model *model = in->model;
    gpunn_status status = GPUNN_OK;
    size_t       bytes = (size_t)model->tensor_count * sizeof(bool);
    bool        *needed = (bool *)gpunn__calloc(model->dev, bytes);
    if (needed == NULL) return GPUNN_ERR_MEMORY;
    needed[loss->id] = true;
    gpunn__mark_operands(model, needed);
    for (int id = 0; id < in->plan->tensor_count && status == GPUNN_OK; id++) {
        const gpunn_tensor *t = model->tensors[id];
        if (!needed[id] || t->kind == GPUNN__VALUE || t->kind == GPUNN__CONSTANT) continue;
        const int64_t count = gpunn__count(t, in->plan->batch);
        const char   *kind = t->kind == GPUNN__PARAMETER ? "parameter" : "buffer";
        if (t->kind == GPUNN__INPUT)
            status = gpunn__report_value(in, "input", t->name, NULL, t->data, t->dtype, count);
        else
            status = gpunn__report_value(in, kind, t->name, NULL, gpunn__weights(t), t->dtype, count);
    }
    gpunn__free(model->dev, needed, bytes);
    return status;
}

/* Reports the result or the gradients that a step has just computed. */
static GPUNN__STATUS gpunn__report_step(gpunn__inspection *in, const gpunn_step *step)
{
    const char         *op = gpunn_op_name(step->op);
    const gpunn_tensor *node = NULL;
    gpunn_status        status = GPUNN_OK;
    if (!step->backward)
        return gpunn__report_value(in, op, step->name, NULL, step->out.data, step->out.dtype,
                                   step->out.count);
    for (int id = 0; id < in->plan->tensor_count && node == NULL; id++)
        if (&in->model->tensors[id]->attr == step->attr || in->plan->tensors[id].attr == step->attr)
            node = in->model->tensors[id];
    for (int i = 0; i < step->input_count && status == GPUNN_OK; i++) {
        const gpunn_tensor *target = node && i < node->input_count ? node->inputs[i] : NULL;
        status = gpunn__report_value(in, op, step->name, target && target->name ? target->name : "",
                                     step->grad_in[i].data, step->grad_in[i].dtype, step->grad_in[i].count);
    }
    return status;
}

static GPUNN__STATUS gpunn__inspect_steps(gpunn__inspection *in, const gpunn_tensor *loss)
{
    gpunn_device *dev = in->model->dev;
    gpunn_status  status = gpunn__plan_bind(in->model, in->plan);
    in->model->last = NULL;
    if (status == GPUNN_OK && in->plan->half) status = gpunn__round_weights(in->model);
    if (status == GPUNN_OK && !in->args->forward_only) status = gpunn_zero_grad(in->model);
    if (status == GPUNN_OK) status = gpunn__resolve_writes(in->model, in->plan, &in->plan->passes[0]);
    if (status == GPUNN_OK) status = gpunn__report_sources(in, loss);
    for (int i = 0; i < in->plan->step_count && status == GPUNN_OK && !in->ended; i++) {
        status = gpunn__run_steps(dev, in->plan, i, i + 1);
        const bool repeated = i >= in->plan->forward_count && !in->plan->steps[i].backward;
        if (status == GPUNN_OK && !repeated) status = gpunn__report_step(in, &in->plan->steps[i]);
    }
    return status;
}

/* Copies all buffers, such as running statistics, to host memory, or back. */
static GPUNN__STATUS gpunn__keep_buffers(gpunn_model *model, float *host, bool back)
{
    gpunn_device *dev = model->dev;
    gpunn_status  status = GPUNN_OK;
    for (int id = 0; id < model->tensor_count && status == GPUNN_OK; id++) {
        const gpunn_tensor *t = model->tensors[id];
        size_t              bytes = (size_t)gpunn__count(t, 1) * sizeof *host;
        if (t->kind != GPUNN__BUFFER) continue;
        status = back ? dev->backend->upload(dev->context, gpunn__weights(t), host, bytes)
                      : dev->backend->download(dev->context, host, gpunn__weights(t), bytes);
        host += gpunn__count(t, 1);
    }
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, "gpunn_inspect", status);
}

/* Runs the inspection and then restores the buffers, such as running statistics. */
static GPUNN__STATUS gpunn__inspect_apart(gpunn__inspection *in, const gpunn_tensor *loss)
{
    gpunn_model *model = in->model;
    int64_t      count = 1;
    gpunn_status status = gpunn__commit(model);
    for (int id = 0; id < model->tensor_count; id++)
        count += model->tensors[id]->kind == GPUNN__BUFFER ? gpunn__count(model->tensors[id], 1) : 0;
    float *kept = (float *)gpunn__realloc(model->dev, NULL, 0, (size_t)count * sizeof *kept);
    if (kept == NULL) return GPUNN_ERR_MEMORY;
    if (status == GPUNN_OK) status = gpunn__keep_buffers(model, kept, false);
    if (status == GPUNN_OK) {
        status = gpunn__inspect_steps(in, loss);
        gpunn_status back = gpunn__keep_buffers(model, kept, true);
        if (status == GPUNN_OK) status = back;
        model->state.weights_version++;
    }
    gpunn__free(model->dev, kept, (size_t)count * sizeof *kept);
    return status;
}

GPUNN_API gpunn_status gpunn_inspect_(gpunn_tensor *loss, gpunn_inspect_args args)
{
    gpunn_status status = loss && args.forward_only ? GPUNN_OK : gpunn__check_loss(loss, "gpunn_inspect");
    if (status != GPUNN_OK) return status;
    gpunn_model  *model = loss->model;
    gpunn_device *dev = model->dev;
    if (args.on_layer == NULL)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_inspect: on_layer is NULL; pass the function that receives the statistics");
    if ((int)args.mode < GPUNN_MODE_TRAINING || args.mode > GPUNN_MODE_EVALUATION)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, GPUNN__BAD_MODE, "gpunn_inspect", (int)args.mode);
    const gpunn_kernel_set *kernels = model->kernels;
    gpunn__request          request = gpunn__request_of(&loss, 1,
                                               args.forward_only ? GPUNN__TRAIN_FORWARD : GPUNN__TRAIN);
    request.evaluates = args.mode == GPUNN_MODE_EVALUATION;
    const int64_t batch = gpunn__batch_for(model, &request);
    if (batch == 0) return dev->error.status;
    gpunn__take_found(model);
    const gpunn_ranks ranks = model->ranks;
    model->kernels = NULL; /* single ops, so that each layer is reported */
    model->ranks.size = 0; /* this rank alone */
    gpunn__plan *plan = gpunn__plan_make(model, &request, batch);
    model->kernels = kernels;
    model->ranks = ranks;
    if (plan == NULL) {
        gpunn__take_sizes(model, model->last);
        return dev->error.status;
    }
    gpunn__inspection inspection = {model, plan, &args, false};
    status = gpunn__inspect_apart(&inspection, loss);
    gpunn__plan_free(dev, plan);
    for (int id = 0; id < model->tensor_count && !args.forward_only; id++)
        model->tensors[id]->grad_reached = false;
    return status;
}

/* on_layer of gpunn_check_nan. Copies the statistics of the first non-finite value to `user`, a
 * gpunn_layer_statistics, and stops there. */
static bool gpunn__is_finite(void *user, const gpunn_layer_statistics *layer)
{
    bool finite = layer->nans == 0 && layer->infinities == 0;
    if (!finite) *(gpunn_layer_statistics *)user = *layer;
    return finite;
}

GPUNN_API gpunn_status gpunn_check_nan(gpunn_tensor *loss)
{
    gpunn_layer_statistics found;
    memset(&found, 0, sizeof found);
    gpunn_status status = gpunn_inspect(loss, .on_layer = gpunn__is_finite, .user = &found);
    if (status != GPUNN_OK || found.op == NULL) return status;
    const char *of = found.gradient_of;
    char        layer[GPUNN__NAME_SIZE + 4] = "", verb[GPUNN__NAME_SIZE + 32] = "has";
    if (found.layer[0]) (void)snprintf(layer, sizeof layer, " '%s'", found.layer);
    if (of && of[0])
        (void)snprintf(verb, sizeof verb, "gives a gradient of '%s' with", of);
    else if (of)
        (void)snprintf(verb, sizeof verb, "gives a gradient with");
    return gpunn__fail(
        loss->model->dev, GPUNN_ERR_NUMERIC,
        "gpunn_check_nan: %s%s %s %lld NaN and %lld infinite of %lld numbers; everything before it is finite",
        found.op, layer, verb, (long long)found.nans, (long long)found.infinities, (long long)found.count);
}

/* ---- summary ------------------------------------------------------------------------------------------- */
GPUNN__INTERNAL void gpunn__text_line(const gpunn__text *out, const char *format, ...)
{
    char    line[256];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (out->write) out->write(out->user, line);
}

static void gpunn__summary_rows(const gpunn_model *model, const gpunn__plan *plan, const gpunn__text *out)
{
    char shape[128], row[160];
    gpunn__text_line(out, "%-36s %-28s %12s\n", "layer", "shape", "parameters");
    int64_t total = 0, trainable = 0;
    for (int id = 0; id < plan->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        bool                computed = t->kind == GPUNN__VALUE &&
                        (plan->tensors[id].root != id || plan->tensors[id].value_slot >= 0 ||
                         gpunn__is_alias(plan, t));
        bool read = false;
        for (int i = 0; i < plan->input_count; i++) read = read || plan->inputs[i] == id;
        if (!computed && !read) continue;
        int64_t own = 0;
        for (int i = 0; i < t->input_count; i++) {
            const gpunn_tensor *p = t->inputs[i];
            if (p == NULL || p->kind != GPUNN__PARAMETER) continue;
            own += gpunn__count(p, 1);
            trainable += p->trainable ? gpunn__count(p, 1) : 0;
        }
        total += own;
        const char *name = t->layer ? t->layer : t->name;
        (void)snprintf(row, sizeof row, "%s%s%s", read ? "input" : gpunn_op_name(t->op), name ? " " : "",
                       name ? name : "");
        gpunn__text_line(out, "%-36.60s %-28s %12lld\n", row, gpunn__shape_text(t, shape), (long long)own);
    }
    gpunn__text_line(out, "parameters %lld, of which %lld train\n", (long long)total, (long long)trainable);
}

GPUNN__INTERNAL gpunn__footprint gpunn__footprint_of(gpunn_model *model, const gpunn__plan *plan,
                                                     bool gradients, size_t least_arena)
{
    gpunn__footprint    f;
    const gpunn__layout layout = gpunn__lay_out(model, false);
    memset(&f, 0, sizeof f);
    f.weights = (size_t)layout.weight_count * sizeof(float) +
                (plan->half ? (size_t)layout.wide_count * 2 : 0);
    f.gradients = (size_t)(gradients ? layout.gradient_count : model->gradient_capacity) * sizeof(float);
    f.gradients += gpunn__sparse_bytes(model, plan);
    f.arena = plan->arena_bytes > least_arena ? plan->arena_bytes : least_arena;
    f.cache = plan->cache_bytes + plan->kept_bytes;
    for (int i = 0; i < plan->input_count; i++) {
        const gpunn_tensor *t = model->tensors[plan->inputs[i]];
        const size_t        bytes = (size_t)gpunn__count(t, plan->batch) * gpunn_dtype_size(t->dtype);
        if (t->user_memory[0].data == NULL || t->doubles)
            f.inputs += bytes > t->capacity ? bytes : t->capacity;
    }
    f.together = f.weights + f.gradients + f.inputs + f.arena + f.cache;
    return f;
}

/* Writes the summary of one plan at the model's current sizes. */
static GPUNN__STATUS gpunn__summarize(gpunn_model *model, const gpunn__request *request, int64_t batch,
                                      const gpunn_summary_args *args)
{
    gpunn__plan *plan = gpunn__plan_make(model, request, batch);
    if (plan == NULL) return model->dev->error.status;
    const gpunn__footprint f = gpunn__footprint_of(model, plan, args->loss != NULL, model->arena_bytes);
    gpunn__text            out;
    out.write = args->write;
    out.user = args->user;
    gpunn__summary_rows(model, plan, &out);
    gpunn__text_line(
        &out,
        "bytes at batch %lld: weights %zu, gradients %zu, inputs %zu, arena %zu, cache %zu, together %zu\n",
        (long long)batch, f.weights, f.gradients, f.inputs, f.arena, f.cache, f.together);
    if (args->bytes) *args->bytes = f.together;
    gpunn__plan_free(model->dev, plan);
    return GPUNN_OK;
}

GPUNN__INTERNAL void gpunn__take_largest(gpunn_model *model)
{
    for (int i = 0; i < model->size_count; i++) {
        gpunn__size *size = &model->sizes[i];
        size->found = size->value;
        if (size->max) size->value = size->max / size->multiple;
    }
}

GPUNN_API gpunn_status gpunn_model_summary_(gpunn_model *model, gpunn_summary_args args)
{
    if (model == NULL) return gpunn__fail_null(NULL, "gpunn_model_summary", "model");
    gpunn_device *dev = model->dev;
    int64_t       batch = args.batch_size ? args.batch_size : 1;
    int           count = 0;
    gpunn_tensor *outputs[8] = {args.loss};
    if (args.loss)
        count = 1;
    else
        for (; count < 8 && args.outputs[count]; count++) outputs[count] = args.outputs[count];
    for (int id = model->tensor_count - 1;
         id >= 0 && args.outputs[0] == NULL && args.loss == NULL && count < 8; id--) {
        gpunn_tensor *t = model->tensors[id];
        bool          is_read = t->kind != GPUNN__VALUE || t->adapter;
        for (int other = id + 1; other < model->tensor_count && !is_read; other++)
            for (int i = 0; i < model->tensors[other]->input_count; i++)
                is_read = is_read || model->tensors[other]->inputs[i] == t;
        if (!is_read) outputs[count++] = t;
    }
    if (count == 0 || batch < 1)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "gpunn_model_summary: %s",
                           batch < 1 ? "batch_size is negative" : "the model computes nothing yet");
    for (int i = 0; i < count; i++)
        if (outputs[i]->model != model)
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                               "gpunn_model_summary: output %d belongs to another model", i);
    gpunn__request request = gpunn__request_of(outputs, count, args.loss ? GPUNN__TRAIN : GPUNN__EVALUATE);
    gpunn__take_largest(model);
    gpunn_status status = gpunn__summarize(model, &request, batch, &args);
    gpunn__take_found(model);
    return status;
}
