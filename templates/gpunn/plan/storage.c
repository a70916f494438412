#include "plan/storage.h"
#include "base/errors.h"
#include "base/blocks.h"
#include "base/model.h"
#include "base/shapes.h"
#include "base/tables.h"
#include "base/text.h"
#include "graph/nodes.h"

GPUNN__INTERNAL gpunn_dtype gpunn__half_of(const gpunn_model *model)
{
    return model->precision == GPUNN_PRECISION_F16 ? GPUNN_F16 : GPUNN_BF16;
}

/* Whether node t can read operand i, a weight, in 16 bits or blocks. */
static bool gpunn__takes_storage(const gpunn_tensor *t, int i, gpunn_dtype dtype)
{
    const gpunn_backend_info *info = &t->model->dev->info;
    const bool                everywhere = t->op == GPUNN_OP_LINEAR || t->op == GPUNN_OP_EMBEDDING;
    if (i != 1) return false;
    if (gpunn__is_blocks(dtype)) return everywhere && info->blocks;
    if (everywhere && info->type == GPUNN_DEVICE_CPU) return true;
    return info->half && (everywhere || gpunn__op_is(t->op, GPUNN__PRODUCT));
}

/* The format of whole blocks for rows of this length: the requested one, or what llama.cpp takes for rows
 * that are no multiple of 256. GPUNN_DTYPE_DEFAULT: there is none. */
static gpunn_dtype gpunn__whole_blocks(gpunn_dtype requested, int64_t row)
{
    if (row % gpunn__block_length(requested) == 0) return requested;
    if (row % GPUNN__GROUP) return GPUNN_DTYPE_DEFAULT;
    return requested == GPUNN_Q4_K ? GPUNN_Q5_0 : requested == GPUNN_Q5_K ? GPUNN_Q5_1 : GPUNN_Q8_0;
}

/* The dtype in which a weight is stored if all its readers take it. */
static gpunn_dtype gpunn__wanted_storage(const gpunn_tensor *weight)
{
    const gpunn_model *model = weight->model;
    const gpunn_dtype  requested = weight->requested_storage ? weight->requested_storage : model->storage;
    if ((model->inference || weight->base) && requested && weight->rank > 0) {
        const gpunn_dtype whole = gpunn__whole_blocks(requested, weight->dim[weight->rank - 1]);
        if (whole) return whole;
    }
    return gpunn__precision_of(model) >= GPUNN_PRECISION_BF16 ? gpunn__half_of(model) : GPUNN_F32;
}

/* Whether a weight has storage of its own dtype if its readers and its wanted dtype allow it. */
static bool gpunn__may_have_storage(const gpunn_tensor *weight)
{
    return weight->kind == GPUNN__PARAMETER && (weight->model->inference || weight->base) &&
           weight->offset < 0 && !weight->bound;
}

GPUNN__INTERNAL const char *gpunn__storage_cause(const gpunn_model *model)
{
    return model->inference ? ".inference = true" : "gpunn_lora";
}

GPUNN__INTERNAL void gpunn__find_storage(gpunn_model *model)
{
    const bool some = model->inference || model->has_base;
    if (!some || model->laid_out == model->tensor_count) return;
    for (int pass = 0; pass < 2; pass++)
        for (int id = 0; id < model->tensor_count; id++)
            for (int i = 0; i < model->tensors[id]->input_count; i++) {
                gpunn_tensor *weight = model->tensors[id]->inputs[i];
                if (weight == NULL || !gpunn__may_have_storage(weight)) continue;
                const gpunn_dtype wanted = gpunn__wanted_storage(weight);
                if (wanted != GPUNN_F32 && gpunn__takes_storage(model->tensors[id], i, wanted) == (pass == 0))
                    weight->storage = pass == 0 ? wanted : GPUNN_DTYPE_DEFAULT;
            }
}

GPUNN__INTERNAL gpunn_dtype gpunn__weight_dtype(const gpunn_tensor *t)
{
    return t->storage ? t->storage : t->dtype;
}

GPUNN__INTERNAL size_t gpunn__weight_bytes(const gpunn_tensor *t)
{
    return gpunn__block_bytes(gpunn__weight_dtype(t), gpunn__count(t, 1));
}

GPUNN__INTERNAL bool gpunn__has_bound_blocks(const gpunn_tensor *t)
{
    return t->bound && t->storage;
}

GPUNN__INTERNAL bool gpunn__is_released(const gpunn_tensor *t)
{
    return t->model->adapter_count && !t->model->inference && !t->base;
}

GPUNN__INTERNAL bool gpunn__takes_blocks(const gpunn_tensor *t)
{
    const gpunn_model *model = t->model;
    int                readers = 0;
    if (t->kind != GPUNN__PARAMETER || t->id < model->laid_out || t->bound || gpunn__is_released(t))
        return false;
    for (int id = 0; id < model->tensor_count; id++)
        for (int i = 0; i < model->tensors[id]->input_count; i++) {
            if (model->tensors[id]->inputs[i] != t) continue;
            if (!gpunn__takes_storage(model->tensors[id], i, GPUNN_Q8_0)) return false;
            readers++;
        }
    return readers > 0;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__check_storage(const gpunn__builder *b)
{
    const bool some = b->model->inference || b->model->has_base;
    for (int id = 0; id < b->plan->tensor_count && some; id++) {
        const gpunn_tensor *t = b->model->tensors[id];
        for (int i = 0; b->needed[id] && i < t->input_count; i++)
            if (t->inputs[i] && t->inputs[i]->storage && !gpunn__takes_storage(t, i, t->inputs[i]->storage))
                return gpunn__fail(
                    b->model->dev, GPUNN_ERR_UNSUPPORTED,
                    "%s: %s keeps '%s' in %s, which %s cannot read on %s; build the whole "
                    "model, on the device that runs it, before its weights are written or loaded",
                    t->layer ? t->layer : gpunn_op_name(t->op), gpunn__storage_cause(b->model),
                    gpunn__called(t->inputs[i]), gpunn_dtype_name(t->inputs[i]->storage),
                    gpunn_op_name(t->op), b->model->dev->info.name);
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL void gpunn__count_readers(const gpunn__builder *b, const gpunn_tensor *t, int *products,
                                          int *others)
{
    *others += gpunn__is_visible(b->plan, t);
    for (int k = gpunn__list_begin(&b->readers, t->id); k < b->readers.end[t->id]; k++) {
        const gpunn_tensor *reader = b->model->tensors[b->readers.items[k]];
        for (int i = 0; b->needed[reader->id] && i < reader->input_count; i++) {
            if (reader->inputs[i] != t) continue;
            if (gpunn__is_alias(b->plan, reader))
                gpunn__count_readers(b, reader, products, others);
            else
                ++*(gpunn__op_is(reader->op, GPUNN__PRODUCT) && i < 3 ? products : others);
        }
    }
}

/* Whether an F32 value makes the results of ops that read it F32. In an inference-only model inputs do
 * not. */
static bool gpunn__widens(const gpunn__plan *plan, const gpunn_tensor *t)
{
    if ((t->kind != GPUNN__VALUE && t->kind != GPUNN__INPUT) || plan->tensors[t->id].storage != GPUNN_F32)
        return false;
    while (gpunn__is_alias(plan, t)) t = t->inputs[0];
    return t->kind != GPUNN__INPUT || !t->model->inference;
}

static gpunn_dtype gpunn__storage_of(const gpunn__plan *plan, const gpunn_tensor *t)
{
    if (t->dtype != GPUNN_F32 || t->kind != GPUNN__VALUE) return gpunn__weight_dtype(t);
    if (gpunn__op_is(t->op, GPUNN__PRODUCT)) return gpunn__half_of(t->model);
    if (gpunn__op_is(t->op, GPUNN__KEEPS_F32)) return GPUNN_F32;
    if (t->op == GPUNN_OP_EMBEDDING && t->inputs[1]->storage) return gpunn__half_of(t->model);
    gpunn_dtype result = GPUNN_F32;
    for (int i = 0; i < t->input_count; i++) {
        const gpunn_tensor *input = t->inputs[i];
        if (input == NULL) continue;
        if (gpunn__widens(plan, input)) return GPUNN_F32;
        const gpunn_dtype storage = plan->tensors[input->id].storage;
        if (input->kind == GPUNN__VALUE && input->dtype == GPUNN_F32 && storage != GPUNN_F32)
            result = storage;
    }
    return result;
}

GPUNN__INTERNAL bool gpunn__reads_any_layout(const gpunn__plan *plan, const gpunn_tensor *t)
{
    return !plan->training && t->model->dev->info.any_layout &&
           (t->op == GPUNN_OP_CONCAT || t->op == GPUNN_OP_SLICE || t->op == GPUNN_OP_PERMUTE);
}

GPUNN__INTERNAL bool gpunn__reads_few_planes(const gpunn__plan *plan, const gpunn_tensor *t)
{
    const gpunn_tensor *x = t->inputs[0];
    return !plan->training && t->model->dev->info.any_layout && x->dim[1] < 8 && t->attr.groups == 1 &&
           !plan->tensors[plan->tensors[x->id].root].channels_last;
}

/* Whether the operand has one value for each channel of t, or of each of its samples. */
static bool gpunn__is_per_channel(const gpunn_tensor *operand, const gpunn_tensor *t)
{
    return operand->rank == 4 && operand->dim[1] == t->dim[1] && operand->dim[2] == 1 &&
           operand->dim[3] == 1 && (operand->dim[0] == 1 || operand->dim[0] == t->dim[0]);
}

GPUNN__INTERNAL bool gpunn__broadcasts_channels(const gpunn_tensor *t)
{
    bool broadcasts = false;
    for (int i = 0; gpunn__op_elementwise(t->op) && i < t->input_count; i++)
        broadcasts = broadcasts ||
                     (!gpunn__same_shape(t->inputs[i], t) && gpunn__is_per_channel(t->inputs[i], t));
    return broadcasts;
}

/* Whether t is stored with channels last. Convolutions produce such values where the backend prefers them,
 * quantised ones always. So do norms, pools and elementwise ops whose operands are such values. Other ops
 * read a copy. */
static bool gpunn__is_channels_last(const gpunn__plan *plan, const gpunn_tensor *t)
{
    if (t->kind != GPUNN__VALUE || t->rank != 4) return false;
    if (t->op == GPUNN_OP_QUANTIZED_CONV2D) return true;
    if (t->dtype == GPUNN_U8)
        return gpunn__op_is(t->op, GPUNN__LOCAL) && plan->tensors[t->inputs[0]->id].channels_last;
    if (!plan->channels_last || t->dtype != GPUNN_F32) return false;
    if (gpunn__op_is(t->op, GPUNN__CONVOLUTION)) return true;
    if (gpunn__reads_any_layout(plan, t)) {
        bool some = false;
        for (int i = 0; i < t->input_count; i++) some = some || plan->tensors[t->inputs[i]->id].channels_last;
        return some && t->op != GPUNN_OP_PERMUTE;
    }
    bool local = gpunn__op_is(t->op, GPUNN__LOCAL) || gpunn__is_alias(plan, t);
    if (local) return t->op != GPUNN_OP_RESHAPE && plan->tensors[t->inputs[0]->id].channels_last;
    bool last = false;
    if (!gpunn__op_elementwise(t->op)) return false;
    for (int i = 0; i < t->input_count; i++) {
        const gpunn_tensor *input = t->inputs[i];
        bool                whole = gpunn__same_shape(input, t) &&
                     plan->tensors[input->id].storage == plan->tensors[t->id].storage;
        if (!whole && gpunn__count(input, 1) != 1 && (plan->training || !gpunn__is_per_channel(input, t)))
            return false;
        last = last || (whole && plan->tensors[input->id].channels_last);
    }
    return last;
}

/* The convolutions of images that the plan computes. */
static gpunn_images gpunn__images_of(const gpunn__builder *b)
{
    gpunn_images images = {b->plan->training, gpunn__precision_of(b->model), 0, 0, 0, false};
    for (int id = 0; id < b->plan->tensor_count && b->has.convolutions; id++) {
        const gpunn_tensor *t = b->model->tensors[id];
        const bool          integer = t->op == GPUNN_OP_QUANTIZED_CONV2D;
        if (!b->needed[id] || !(integer || gpunn__op_is(t->op, GPUNN__CONVOLUTION)) || t->rank != 4) continue;
        const int64_t count = gpunn__count(t, b->plan->batch), groups = t->attr.groups,
                      in = t->inputs[0]->dim[1] / groups, out = t->dim[1] / groups;
        const double products = (double)count * (double)in * t->attr.kernel[0] * t->attr.kernel[1];
        images.largest = count > images.largest ? count : images.largest;
        images.products += products;
        if (integer || (in == out ? in == 1 || in >= 16 : in >= 16 && out >= 16)) images.wide += products;
    }
    return images;
}

GPUNN__INTERNAL void gpunn__mark_storage(gpunn__builder *b)
{
    gpunn__plan        *plan = b->plan;
    gpunn_model        *model = b->model;
    const gpunn_device *dev = model->dev;
    gpunn_images        images = gpunn__images_of(b);
    plan->half = images.precision >= GPUNN_PRECISION_BF16 && dev->info.half;
    plan->channels_last = images.largest > 0 && dev->backend->channels_last &&
                          dev->backend->channels_last(dev->context, &images);
    plan->filters_last = plan->channels_last && images.filters;
    for (int id = 0; id < plan->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        plan->tensors[id].storage = plan->half ? gpunn__storage_of(plan, t) : gpunn__weight_dtype(t);
        plan->tensors[id].channels_last = gpunn__is_channels_last(plan, t);
        int products = 0, others = 0;
        if (!plan->half || !b->needed[id] || !gpunn__op_is(t->op, GPUNN__ROW_NORM) || t->kind != GPUNN__VALUE)
            continue;
        gpunn__count_readers(b, t, &products, &others);
        if (products > 0 && others == 0) plan->tensors[id].storage = gpunn__half_of(model);
    }
}
