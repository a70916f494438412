#include "base/model.h"
#include "base/forward_declarations.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/blocks.h"
#include "base/shapes.h"
#include "base/device.h"

/* Whether the GPU supports F16 products but not BF16. A BF16 model then computes in F32: F16 would need a
 * loss scale, which the program did not request. */
static bool gpunn__lacks_precision(const gpunn_model *model)
{
    return model->precision == GPUNN_PRECISION_BF16 && model->dev->info.half && !model->dev->info.bf16;
}

GPUNN__INTERNAL gpunn_precision gpunn__precision_of(const gpunn_model *model)
{
    return gpunn__lacks_precision(model) ? GPUNN_PRECISION_F32 : model->precision;
}

GPUNN__INTERNAL void gpunn__log_precision(const gpunn_model *model)
{
    const gpunn_device *dev = model->dev;
    char                text[GPUNN__ERROR_SIZE];
    if (!gpunn__lacks_precision(model) || dev->args.log_fn == NULL) return;
    (void)snprintf(text, sizeof text,
                   "%s has no matrix products in BF16, so this model computes in F32; GPUNN_PRECISION_F16 "
                   "would compute in 16 bits",
                   dev->info.name);
    dev->args.log_fn(dev->args.user, GPUNN_LOG_WARNING, text);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__check_blocks(gpunn_device *dev, const char *caller, const char *name,
                                                  gpunn_dtype dtype)
{
    if (gpunn__is_blocks(dtype) || !gpunn__names_blocks(dtype)) return GPUNN_OK;
    return gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                       "%s '%s': this program leaves out blocks of %s; compile it without GPUNN_NO_GGUF",
                       caller, name, gpunn_dtype_name(dtype));
}

GPUNN__INTERNAL bool gpunn__weights_fit(gpunn_device *dev, const char *caller, const gpunn_model_args *args)
{
    const char *const name = gpunn_dtype_name(args->weights);
    if (args->weights == GPUNN_DTYPE_DEFAULT || args->weights == GPUNN_F32) return true;
    if (gpunn__check_blocks(dev, caller, ".weights", args->weights) != GPUNN_OK) return false;
    if (!gpunn__is_blocks(args->weights))
        (void)gpunn__fail(dev, GPUNN_ERR_DTYPE,
                          "%s: .weights cannot be %s; use GPUNN_F32 or blocks, such as GPUNN_Q4_K", caller,
                          name);
    else if (!dev->info.blocks)
        (void)gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                          "%s: %s computes with no weights of %s; use another device, or leave .weights out",
                          caller, dev->info.name, name);
    else
        return true;
    return false;
}

GPUNN_API gpunn_model *gpunn_model_create_(gpunn_device *dev, gpunn_model_args args)
{
    if (dev == NULL) { /* keeps the message of an earlier failed gpunn_device_open */
        if (gpunn_last_status(NULL) == GPUNN_OK) (void)gpunn__fail_null(NULL, "gpunn_model_create", "device");
        return NULL;
    }
    if (!gpunn__weights_fit(dev, "gpunn_model_create", &args)) return NULL;
    gpunn_model *model = (gpunn_model *)gpunn__calloc(dev, sizeof *model);
    if (model == NULL) return NULL;
    if ((int)args.precision < GPUNN_PRECISION_F32 || args.precision > GPUNN_PRECISION_F16) {
        gpunn__free(dev, model, sizeof *model);
        return GPUNN__FAIL_NULL(
            dev, GPUNN_ERR_ARGUMENT,
            "gpunn_model_create: precision %d is unknown; use GPUNN_PRECISION_F32, _TF32, _BF16 or _F16",
            (int)args.precision);
    }
    model->dev = dev;
    model->precision = args.precision;
    model->inference = args.inference;
    model->storage = args.weights;
    model->max_plans = GPUNN__MAX_PLANS;
    model->tensor_limit = GPUNN__MOST_TENSORS;
    model->state.seed = dev->args.seed;
    model->state.weights_version = 1;
    model->next = dev->models;
    dev->models = model;
    gpunn__log_precision(model);
    return model;
}

/* ---- index of tensors by name and layer ---- */

static const char *gpunn__key_of(const gpunn_tensor *t, gpunn__key key)
{
    return key == GPUNN__BY_NAME ? t->name : t->layer;
}

GPUNN__INTERNAL uint32_t gpunn__hash(const char *text)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *c = text; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
    return hash;
}

/* Link to the tensor with that name or layer, or the place where it would go; NULL: the table is empty. */
static gpunn_tensor **gpunn__index_link(gpunn_model *model, gpunn__key key, const char *text)
{
    gpunn__index  *index = &model->index[key];
    gpunn_tensor **link = index->capacity ? &index->chains[gpunn__hash(text) & (index->capacity - 1)] : NULL;
    while (link && *link && strcmp(gpunn__key_of(*link, key), text) != 0) link = &(*link)->next[key];
    return link;
}

GPUNN__INTERNAL gpunn_tensor *gpunn__index_find(gpunn_model *model, gpunn__key key, const char *text)
{
    gpunn_tensor **link = gpunn__index_link(model, key, text);
    return link ? *link : NULL;
}

GPUNN__INTERNAL bool gpunn__index_grow(gpunn_model *model, gpunn__key key)
{
    gpunn__index *index = &model->index[key], old = *index;
    if (old.count < old.capacity) return true;
    size_t         capacity = old.capacity ? 2 * old.capacity : 32;
    gpunn_tensor **chains = (gpunn_tensor **)gpunn__calloc(model->dev, capacity * sizeof(gpunn_tensor *));
    if (chains == NULL) return false;
    index->chains = chains;
    index->capacity = capacity;
    for (size_t i = 0; i < old.capacity; i++)
        for (gpunn_tensor *t = old.chains[i], *next; t; t = next) {
            gpunn_tensor **first = &chains[gpunn__hash(gpunn__key_of(t, key)) & (capacity - 1)];
            next = t->next[key];
            t->next[key] = *first;
            *first = t;
        }
    gpunn__free(model->dev, old.chains, old.capacity * sizeof(gpunn_tensor *));
    return true;
}

GPUNN__INTERNAL void gpunn__index_add(gpunn_tensor *t, gpunn__key key)
{
    gpunn_tensor **link = gpunn__index_link(t->model, key, gpunn__key_of(t, key));
    if (*link) return;
    *link = t;
    t->next[key] = NULL;
    t->model->index[key].count++;
}

GPUNN__INTERNAL void gpunn__index_remove(gpunn_tensor *t, gpunn__key key)
{
    const char    *text = gpunn__key_of(t, key);
    gpunn_tensor **link = text ? gpunn__index_link(t->model, key, text) : NULL;
    if (link == NULL || *link != t) return;
    *link = t->next[key];
    t->model->index[key].count--;
}

GPUNN__INTERNAL void gpunn__dlpack_release(gpunn_device *dev, gpunn_tensor *t)
{
    gpunn_dlpack *managed = t->managed;
    t->managed = NULL;
    if (managed == NULL || managed->deleter == NULL) return;
    (void)dev->backend->synchronize(dev->context);
    managed->deleter((struct DLManagedTensorVersioned *)(void *)managed);
}

GPUNN__INTERNAL size_t gpunn__compact_bytes(const gpunn_tensor *t, int64_t capacity)
{
    const size_t floats = (size_t)(capacity * t->dim[1]) * sizeof(float);
    return (floats + GPUNN__ALIGN - 1) / GPUNN__ALIGN * GPUNN__ALIGN + (size_t)capacity * sizeof(int64_t);
}

GPUNN__INTERNAL size_t gpunn__gathered_bytes(const gpunn_tensor *t, int64_t entries)
{
    return (gpunn__compact_bytes(t, entries) + GPUNN__ALIGN - 1) / GPUNN__ALIGN * GPUNN__ALIGN;
}

GPUNN__INTERNAL void gpunn__compact_free(gpunn_device *dev, gpunn_tensor *t)
{
    if (t->compact.values)
        gpunn__device_free(dev, t->compact.values, gpunn__compact_bytes(t, t->compact.capacity));
    gpunn__device_free(dev, t->compact.gathered, t->compact.gathered_bytes);
    memset(&t->compact, 0, sizeof t->compact);
}

GPUNN__INTERNAL void gpunn__tensor_free(gpunn_device *dev, gpunn_tensor *t)
{
    gpunn__compact_free(dev, t);
    gpunn__dlpack_release(dev, t);
    gpunn__free_text(dev, t->name);
    gpunn__free_text(dev, t->layer);
    gpunn__free(dev, t->inputs, (size_t)t->input_count * sizeof *t->inputs);
    if (t->constant) gpunn__free(dev, t->constant, (size_t)gpunn__count(t, 1) * sizeof *t->constant);
    if (t->data != t->user_memory[0].data) gpunn__device_free(dev, t->data, t->capacity);
    gpunn__free(dev, t, sizeof *t);
}

GPUNN__INTERNAL void gpunn__session_free(gpunn_device *dev, gpunn_session *session)
{
    if (session == NULL) return;
    gpunn__device_free(dev, session->memory, session->bytes);
    gpunn__free(dev, session, sizeof *session);
}

GPUNN__INTERNAL void gpunn__adapter_free(gpunn_device *dev, gpunn__adapter *adapter)
{
    gpunn__free_text(dev, adapter->name);
    gpunn__free(dev, adapter->branches, (size_t)adapter->capacity * sizeof *adapter->branches);
}

GPUNN__INTERNAL void gpunn__model_release(gpunn_model *model)
{
    if (!model->closed || model->optimizers || model->children) return;
    gpunn_device *dev = model->dev;
    gpunn_model **link = &dev->models;
    while (*link != model) link = &(*link)->next;
    *link = model->next;
    gpunn__invalidate(model);
    for (int i = 0; i < model->tensor_count; i++) gpunn__tensor_free(dev, model->tensors[i]);
    gpunn__free(dev, model->tensors, (size_t)model->tensor_capacity * sizeof *model->tensors);
    for (int i = 0; i < model->size_count; i++) {
        gpunn__free_text(dev, model->sizes[i].name);
        gpunn__free_text(dev, model->sizes[i].text);
    }
    gpunn__free(dev, model->sizes, (size_t)model->size_capacity * sizeof *model->sizes);
    for (int i = 0; i < model->adapter_count; i++) gpunn__adapter_free(dev, &model->adapters[i]);
    gpunn__free(dev, model->adapters, (size_t)model->adapter_capacity * sizeof *model->adapters);
    for (int key = 0; key < 2; key++)
        gpunn__free(dev, model->index[key].chains,
                    model->index[key].capacity * sizeof *model->index[key].chains);
    gpunn__device_free(dev, model->arena, model->arena_bytes);
    gpunn__device_free(dev, model->weights, (size_t)model->weight_capacity * sizeof(float));
    gpunn__device_free(dev, model->gradients, (size_t)model->gradient_capacity * sizeof(float));
    gpunn__device_free(dev, model->half, (size_t)model->half_capacity * 2);
    gpunn__device_free(dev, model->state.counts, GPUNN_RUN_COUNTS * sizeof(gpunn_count));
    gpunn__session_free(dev, model->own);
    gpunn__free_text(dev, model->spec.name);
    gpunn__free_kept(model);
    for (int i = 0; i < model->spec.metadata_count; i++) {
        gpunn__free_text(dev, model->spec.metadata[i].key);
        gpunn__free_text(dev, model->spec.metadata[i].value);
    }
    gpunn__free(dev, model->spec.metadata,
                (size_t)model->spec.metadata_capacity * sizeof *model->spec.metadata);
    gpunn__free(dev, model->spec.outputs, (size_t)model->spec.output_capacity * sizeof *model->spec.outputs);
    gpunn__calibration_free(dev, model->calibration);
    gpunn__free(dev, model, sizeof *model);
    gpunn__device_release(dev);
}

GPUNN_API void gpunn_model_destroy(gpunn_model *model)
{
    if (model == NULL || model->closed) return;
    model->closed = true;
    if (model->optimizers || model->children)
        gpunn__warn(model->dev, "gpunn_model_destroy: the model still has optimizers, loaders or sessions; "
                                "it is freed with the last of them");
    gpunn__model_release(model);
}
