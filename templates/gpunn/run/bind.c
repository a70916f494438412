#include "base/errors.h"
#include "base/memory.h"
#include "base/sizes.h"
#include "base/shapes.h"
#include "base/blocks.h"
#include "base/model.h"
#include "plan/plan.h"
#include "run/run.h"
#include "run/io.h"

/* ==== >>run/bind ======================================================================================== */
/* Binds tensors to user-owned memory (gpunn_bind, gpunn_bind_grad, DLPack) and
 * switches a model's states between sessions. */

/* Fails unless the device reaches the memory, at an address aligned as the device or else the elements
 * require. */
static GPUNN__STATUS gpunn__check_reach(const gpunn_tensor *t, const char *caller, const void *memory,
                                        size_t bytes, size_t element)
{
    gpunn_device *dev = t->model->dev;
    const size_t  alignment = dev->info.alignment ? (size_t)dev->info.alignment : element;
    if ((uintptr_t)memory % alignment != 0)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s '%s': the memory is not aligned to %zu bytes", caller,
                           gpunn__called(t), alignment);
    if (dev->backend->reaches == NULL) return GPUNN_OK;
    gpunn_status status = dev->backend->reaches(dev->context, memory, bytes);
    if (status == GPUNN_OK) return GPUNN_OK;
    return gpunn__fail(dev, status, "%s '%s': %s", caller, gpunn__called(t),
                       dev->backend->error(dev->context));
}

/* Whether the memory is large enough, aligned and reachable for t or its gradient. *held: its shape, which
 * bytes determine if it is not known yet. */
static GPUNN__STATUS gpunn__check_user_memory(const gpunn_tensor *t, const char *caller, const void *memory,
                                              size_t bytes, bool gradient, int64_t *held)
{
    const gpunn_dtype dtype = gradient && !t->doubles ? GPUNN_F32 : gpunn_tensor_dtype(t);
    const bool        known = held[0] != 0 ||
                       (gpunn__any_sized(t->rank, t->dim) && (gradient || t->kind != GPUNN__INPUT));
    const gpunn_status fits = known ? GPUNN_OK : gpunn__shape_of(t, caller, dtype, bytes, held);
    if (fits != GPUNN_OK) return fits;
    return gpunn__check_reach(t, caller, memory, bytes, gpunn_dtype_size(dtype));
}

/* Makes user-owned memory an input's memory, or removes it. Beside doubles the input keeps memory for
 * floats. */
static GPUNN__STATUS gpunn__set_input_memory(gpunn_tensor *t, const gpunn__user_memory *user_memory,
                                             const int64_t *held)
{
    const bool bound = t->user_memory[0].data != NULL;
    if (t->doubles) {
        gpunn_status status = gpunn__reserve_own(t, user_memory->bytes / 2);
        if (status != GPUNN_OK) return status;
        t->model->user_doubles += (user_memory->data != NULL) - bound;
    } else {
        if (!bound) gpunn__device_free(t->model->dev, t->data, t->capacity);
        t->data = user_memory->data;
        t->capacity = user_memory->bytes;
    }
    t->batch = 0;
    if (user_memory->data) gpunn__hold(t, held);
    return GPUNN_OK;
}

/* Binds a parameter or buffer. Its values are copied only when it returns to the model's own memory. */
static GPUNN__STATUS gpunn__set_weight_memory(gpunn_tensor *t, const gpunn__user_memory *user_memory)
{
    gpunn_model *model = t->model;
    if (t->offset < 0) {
        t->bound = true;
        t->storage = GPUNN_DTYPE_DEFAULT;
    }
    gpunn_status status = gpunn__commit(model);
    if (status == GPUNN_OK && user_memory->data == NULL) status = gpunn__copy_user_weights(model, false);
    if (status != GPUNN_OK) return status;
    model->user_weights += (user_memory->data != NULL) - (t->user_memory[0].data != NULL);
    GPUNN__WEIGHTS_CHANGED(model);
    return GPUNN_OK;
}

/* Binds t or its gradient to memory, or unbinds it with NULL. shape: shape of
 * the contents; NULL: determined by bytes. */
static GPUNN__STATUS gpunn__bind_memory(gpunn_tensor *t, const char *caller, void *memory, size_t bytes,
                                        bool gradient, const int64_t *shape)
{
    if (t == NULL) return gpunn__fail_null(NULL, caller, "tensor");
    gpunn_model        *model = t->model;
    gpunn__user_memory *own = &t->user_memory[gradient], user_memory;
    gpunn_status        status = GPUNN_OK;
    int64_t             held[GPUNN_MAX_RANK] = {0};
    if (shape) memcpy(held, shape, (size_t)t->rank * sizeof *held);
    user_memory.data = memory;
    user_memory.bytes = memory ? bytes : 0;
    if (memory == NULL && own->data == NULL) return GPUNN_OK;
    if (t->kind == GPUNN__CONSTANT)
        return gpunn__fail(model->dev, GPUNN_ERR_STATE,
                           "%s '%s': it is a constant; make it an input or a parameter", caller,
                           gpunn__called(t));
    if (gradient && t->sparse)
        return gpunn__fail(model->dev, GPUNN_ERR_UNSUPPORTED,
                           "%s '%s': its gradient is sparse and has no dense memory; leave .sparse out",
                           caller, gpunn__called(t));
    if (!gradient && gpunn__has_bound_blocks(t))
        return gpunn__fail(model->dev, GPUNN_ERR_STATE,
                           "%s '%s': its blocks have no other memory; give gpunn_bind_as other blocks",
                           caller, gpunn__called(t));
    if (!gradient && t->storage && t->offset >= 0)
        return gpunn__fail(model->dev, GPUNN_ERR_STATE,
                           "%s '%s': %s keeps it in %s; bind it before weights are written, loaded or run",
                           caller, gpunn__called(t), gpunn__storage_cause(model),
                           gpunn_dtype_name(gpunn__weight_dtype(t)));
    if (memory) status = gpunn__check_user_memory(t, caller, memory, bytes, gradient, held);
    if (status != GPUNN_OK) return status;
    if (gradient && t->kind != GPUNN__PARAMETER && gpunn_retain_grad(t) == NULL)
        return model->dev->error.status;
    if (!gradient && (t->kind == GPUNN__PARAMETER || t->kind == GPUNN__BUFFER))
        status = gpunn__set_weight_memory(t, &user_memory);
    if (status != GPUNN_OK) return status;
    if ((own->data == NULL) != (memory == NULL)) gpunn__invalidate(model);
    if (!gradient && t->kind == GPUNN__INPUT) status = gpunn__set_input_memory(t, &user_memory, held);
    if (status != GPUNN_OK) return status;
    if (gradient) t->grad_reached = false;
    *own = user_memory;
    model->user_memory_version++;
    model->written_gradients++;
    if (!gradient) gpunn__dlpack_release(model->dev, t);
    return GPUNN_OK;
}

/* ---- sessions ---- */

static size_t gpunn__state_bytes(const gpunn_tensor *t)
{
    return ((size_t)gpunn__count(t, 1) * sizeof(float) + GPUNN__ALIGN - 1) / GPUNN__ALIGN * GPUNN__ALIGN;
}

/* Returns the next state from tensor *id on and advances *id behind it. NULL: there is none. */
static gpunn_tensor *gpunn__next_state(const gpunn_model *model, int *id)
{
    while (*id < model->tensor_count) {
        gpunn_tensor *t = model->tensors[(*id)++];
        if (t->state) return t;
    }
    return NULL;
}

/* Fills a session with the current states or with their initial values. */
static GPUNN__STATUS gpunn__session_fill(gpunn_session *session, bool as_now)
{
    gpunn_device *dev = session->model->dev;
    gpunn_status  status = GPUNN_OK;
    float        *staging = (float *)gpunn__realloc(dev, NULL, 0, GPUNN__STAGING * sizeof(float));
    if (staging == NULL) return GPUNN_ERR_MEMORY;
    char *at = session->memory;
    int   id = 0;
    for (gpunn_tensor *t; status == GPUNN_OK && (t = gpunn__next_state(session->model, &id)) != NULL;
         at += gpunn__state_bytes(t)) {
        if (!as_now)
            status = gpunn__fill_tensor(t, (float *)(void *)at, staging);
        else if ((status = dev->backend->convert(dev->context, at, GPUNN_F32, gpunn__weights(t), GPUNN_F32,
                                                 gpunn__count(t, 1))) != GPUNN_OK)
            status = gpunn__backend_fail(dev, "copying states", status);
    }
    gpunn__free(dev, staging, GPUNN__STAGING * sizeof(float));
    return status;
}

static gpunn_session *gpunn__session_make(gpunn_model *model, bool as_now)
{
    gpunn_device  *dev = model->dev;
    gpunn_session *session = (gpunn_session *)gpunn__calloc(dev, sizeof *session);
    if (session == NULL) return NULL;
    int id = 0;
    session->model = model;
    for (const gpunn_tensor *t; (t = gpunn__next_state(model, &id)) != NULL; session->states++)
        session->bytes += gpunn__state_bytes(t);
    gpunn_status status = gpunn__commit(model);
    if (status == GPUNN_OK) session->memory = (char *)gpunn__device_alloc(dev, session->bytes);
    if (session->memory && gpunn__session_fill(session, as_now) == GPUNN_OK) return session;
    gpunn__session_free(dev, session);
    return NULL;
}

GPUNN_API gpunn_session *gpunn_session_create(gpunn_model *model)
{
    if (model == NULL) {
        (void)gpunn__fail_null(NULL, "gpunn_session_create", "model");
        return NULL;
    }
    int id = 0;
    if (gpunn__next_state(model, &id) == NULL)
        return GPUNN__FAIL_NULL(model->dev, GPUNN_ERR_STATE,
                                "gpunn_session_create: the model has no states; create them first");
    gpunn_session *session = gpunn__session_make(model, false);
    model->children += session != NULL;
    return session;
}

/* Fails unless the session has all states of the model and none of them is bound to memory of the program. */
static GPUNN__STATUS gpunn__session_check(gpunn_model *model, const gpunn_session *session)
{
    static const char caller[] = "gpunn_use_session";
    int               id = 0, states = 0;
    if (session->model != model)
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT, "%s: the session belongs to another model",
                           caller);
    for (const gpunn_tensor *t; (t = gpunn__next_state(model, &id)) != NULL;) {
        if (++states > session->states)
            return gpunn__fail(
                model->dev, GPUNN_ERR_STATE,
                "%s: the state '%s' is newer than the session; create sessions after all states of the model",
                caller, gpunn__called(t));
        if (model->own == NULL && t->user_memory[0].data)
            return gpunn__fail(model->dev, GPUNN_ERR_STATE,
                               "%s: the state '%s' is bound to the program's memory; unbind it first", caller,
                               gpunn__called(t));
    }
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_use_session(gpunn_model *model, gpunn_session *session)
{
    if (model == NULL) return gpunn__fail_null(NULL, "gpunn_use_session", "model");
    if (session == NULL && model->own == NULL) return GPUNN_OK;
    gpunn_status status = gpunn__session_check(model, session ? session : model->own);
    if (status != GPUNN_OK) return status;
    if (model->own == NULL && (model->own = gpunn__session_make(model, true)) == NULL)
        return model->dev->error.status;
    model->session = session ? session : model->own;
    char *at = model->session->memory;
    int   id = 0;
    for (gpunn_tensor *t; status == GPUNN_OK && (t = gpunn__next_state(model, &id)) != NULL;
         at += gpunn__state_bytes(t))
        status = gpunn__bind_memory(t, "gpunn_use_session", at, (size_t)gpunn__count(t, 1) * sizeof(float),
                                    false, NULL);
    model->written++;
    return status;
}

GPUNN_API void gpunn_session_destroy(gpunn_session *session)
{
    if (session == NULL) return;
    gpunn_model *model = session->model;
    if (model->session == session && gpunn_use_session(model, NULL) != GPUNN_OK) model->session = NULL;
    gpunn__session_free(model->dev, session);
    model->children--;
    gpunn__model_release(model);
}

/* Fails unless t can be stored in this dtype from now on. trained: it may be trained. */
static GPUNN__STATUS gpunn__may_store_as(const gpunn_tensor *t, const char *caller, gpunn_dtype format,
                                         bool trained)
{
    const gpunn_model *model = t->model;
    if (t->kind != GPUNN__PARAMETER)
        return gpunn__fail(model->dev, GPUNN_ERR_DTYPE,
                           "%s '%s': it is no parameter, so it cannot be stored as %s", caller,
                           gpunn__called(t), gpunn_dtype_name(format));
    if (gpunn__is_blocks(format) && trained)
        return gpunn__fail(
            model->dev, GPUNN_ERR_STATE,
            "%s '%s': numbers of %s cannot be trained; call it for a parameter that gpunn_lora "
            "has frozen, or create the model with .inference = true",
            caller, gpunn__called(t), gpunn_dtype_name(format));
    if (gpunn__is_blocks(format) && !model->dev->info.blocks)
        return gpunn__fail(model->dev, GPUNN_ERR_UNSUPPORTED,
                           "%s '%s': %s computes with no blocks of %s; use another device or dtype", caller,
                           gpunn__called(t), model->dev->info.name, gpunn_dtype_name(format));
    if (t->id < model->laid_out && !gpunn__has_bound_blocks(t) && gpunn__weight_dtype(t) != format)
        return gpunn__fail(
            model->dev, GPUNN_ERR_STATE,
            "%s '%s': it is already stored as %s; call it before weights are written, loaded or run", caller,
            gpunn__called(t), gpunn_dtype_name(gpunn__weight_dtype(t)));
    return gpunn__fits_blocks(t, caller, format);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__bind_blocks(gpunn_tensor *t, gpunn_dtype format, void *memory,
                                                 size_t bytes)
{
    static const char caller[] = "gpunn_bind_as";
    gpunn_status      status = gpunn__may_store_as(t, caller, format, gpunn__is_released(t));
    if (status != GPUNN_OK) return status;
    const size_t expected = gpunn__block_bytes(format, gpunn__count(t, 1));
    char         text[128];
    if (bytes != expected)
        return gpunn__fail(t->model->dev, GPUNN_ERR_SHAPE, "%s '%s': %zu bytes given, but %s %s takes %zu",
                           caller, gpunn__called(t), bytes, gpunn_dtype_name(format),
                           gpunn__shape_text(t, text), expected);
    status = gpunn__check_reach(t, caller, memory, bytes, 1);
    if (status != GPUNN_OK) return status;
    t->bound = true;
    t->storage = format;
    t->user_memory[0].data = memory;
    t->user_memory[0].bytes = bytes;
    t->model->user_memory_version++;
    gpunn__invalidate(t->model);
    GPUNN__WEIGHTS_CHANGED(t->model);
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_set_storage(gpunn_tensor *parameter, gpunn_dtype dtype)
{
    static const char caller[] = "gpunn_set_storage";
    if (parameter == NULL) return gpunn__fail_null(NULL, caller, "tensor");
    const gpunn_status known = gpunn__check_blocks(parameter->model->dev, caller, gpunn__called(parameter),
                                                   dtype);
    if (known != GPUNN_OK) return known;
    if (dtype != GPUNN_F32 && !gpunn__is_blocks(dtype))
        return gpunn__fail(parameter->model->dev, GPUNN_ERR_DTYPE,
                           "%s '%s': nothing can be stored as %s; use f32 or blocks, such as Q4_K", caller,
                           gpunn__called(parameter), gpunn_dtype_name(dtype));
    if (parameter->bound)
        return gpunn__fail(parameter->model->dev, GPUNN_ERR_STATE, "%s '%s': it is bound, as %s", caller,
                           gpunn__called(parameter), gpunn_dtype_name(gpunn__weight_dtype(parameter)));
    const gpunn_status status = gpunn__may_store_as(parameter, caller, dtype,
                                                    !parameter->model->inference && !parameter->base);
    if (status != GPUNN_OK || parameter->id < parameter->model->laid_out) return status;
    parameter->requested_storage = dtype;
    parameter->storage = GPUNN_DTYPE_DEFAULT;
    gpunn__invalidate(parameter->model);
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_bind(gpunn_tensor *t, void *memory, size_t bytes)
{
    if (t && t->state && t->model->own)
        return gpunn__fail(t->model->dev, GPUNN_ERR_STATE, "gpunn_bind '%s': a session holds it",
                           gpunn__called(t));
    return gpunn__bind_memory(t, "gpunn_bind", memory, bytes, false, NULL);
}

GPUNN_API gpunn_status gpunn_bind_as(gpunn_tensor *t, gpunn_dtype dtype, void *memory, size_t bytes)
{
    const gpunn_dtype own = gpunn_tensor_dtype(t);
    if (t && memory && gpunn__is_blocks(dtype)) {
        const gpunn_status status = gpunn__bind_blocks(t, dtype, memory, bytes);
        if (status == GPUNN_OK && !t->model->inference) gpunn__freeze(t);
        return status;
    }
    const gpunn_status known = t ? gpunn__check_blocks(t->model->dev, "gpunn_bind_as", gpunn__called(t),
                                                       dtype)
                                 : GPUNN_OK;
    if (known != GPUNN_OK) return known;
    if (t && memory && dtype != own)
        return gpunn__fail(t->model->dev, GPUNN_ERR_DTYPE,
                           "gpunn_bind_as '%s': the memory holds %s, but the tensor is %s; %s",
                           gpunn__called(t), gpunn_dtype_name(dtype), gpunn_dtype_name(own),
                           dtype == GPUNN_F64 ? "call gpunn_set_dtype first" : "bind memory of that dtype");
    return gpunn_bind(t, memory, bytes);
}

GPUNN_API gpunn_status gpunn_bind_grad(gpunn_tensor *t, void *memory, size_t bytes)
{
    return gpunn__bind_memory(t, "gpunn_bind_grad", memory, bytes, true, NULL);
}

static const void *gpunn__data(gpunn_tensor *t, const char *caller, bool gradient)
{
    size_t bytes;
    if (t == NULL) {
        (void)gpunn__fail_null(NULL, caller, "tensor");
        return NULL;
    }
    const void *memory = gpunn__memory_of(t, gradient, &bytes);
    if (memory == NULL) return NULL;
    if (gradient && t->sparse)
        return GPUNN__FAIL_NULL(t->model->dev, GPUNN_ERR_UNSUPPORTED,
                                "%s '%s': its gradient is sparse; copy it with gpunn_read_grad", caller,
                                gpunn__called(t));
    if (t->user_memory[gradient].data) return t->user_memory[gradient].data;
    if (gpunn__stored_as(t, gradient) == gpunn_tensor_dtype(t) && !gpunn__stored_channels_last(t, gradient))
        return memory;
    return GPUNN__FAIL_NULL(t->model->dev, GPUNN_ERR_STATE,
                            "%s '%s': the run stores it as %s%s; bind it to your own memory with gpunn_bind, "
                            "or copy it with gpunn_read",
                            caller, gpunn__called(t), gpunn_dtype_name(gpunn__stored_as(t, gradient)),
                            gpunn__stored_channels_last(t, gradient) ? " with its channels last" : "");
}

GPUNN_API const void *gpunn_data(gpunn_tensor *t)
{
    return gpunn__data(t, "gpunn_data", false);
}

GPUNN_API const void *gpunn_data_grad(gpunn_tensor *t)
{
    return gpunn__data(t, "gpunn_data_grad", true);
}

/* ---- DLPack ---- */

typedef struct gpunn__exported {
    gpunn_dlpack managed;
    int64_t      shape[GPUNN_MAX_RANK], stride[GPUNN_MAX_RANK];
    void *(*realloc_fn)(void *user, void *ptr, size_t old_size, size_t new_size);
    void *user;
} gpunn__exported;

static void gpunn__exported_free(struct DLManagedTensorVersioned *self)
{
    gpunn__exported *exported = (gpunn__exported *)(void *)self;
    (void)exported->realloc_fn(exported->user, exported, sizeof *exported, 0);
}

static uint8_t gpunn__dlpack_code(gpunn_dtype dtype)
{
    switch (dtype) {
    case GPUNN_F32:
    case GPUNN_F64: return GPUNN_DLPACK_FLOAT;
    case GPUNN_U8: return GPUNN_DLPACK_UINT;
    case GPUNN_BOOL: return GPUNN_DLPACK_BOOL;
    default: return GPUNN_DLPACK_INT;
    }
}

GPUNN_API struct DLManagedTensorVersioned *gpunn_to_dlpack(gpunn_tensor *t)
{
    const void *data = gpunn__data(t, "gpunn_to_dlpack", false);
    if (data == NULL) return NULL;
    gpunn_device    *dev = t->model->dev;
    gpunn__exported *exported = (gpunn__exported *)gpunn__calloc(dev, sizeof *exported);
    if (exported == NULL) return NULL;
    gpunn_dlpack     *managed = &exported->managed;
    const gpunn_shape shape = gpunn_tensor_sizes(t);
    int64_t           stride = 1;
    exported->realloc_fn = dev->args.realloc_fn;
    exported->user = dev->args.user;
    managed->major = 1;
    managed->deleter = gpunn__exported_free;
    managed->data = gpunn__unconst(data);
    managed->device_type = dev->info.type == GPUNN_DEVICE_CUDA ? GPUNN_DLPACK_CUDA : GPUNN_DLPACK_CPU;
    managed->device_id = dev->info.type == GPUNN_DEVICE_CUDA ? dev->args.index : 0;
    managed->rank = t->rank;
    managed->dtype_code = gpunn__dlpack_code(gpunn_tensor_dtype(t));
    managed->dtype_bits = (uint8_t)(8 * gpunn_dtype_size(gpunn_tensor_dtype(t)));
    managed->lanes = 1;
    managed->shape = exported->shape;
    managed->stride = exported->stride;
    for (int axis = t->rank - 1; axis >= 0; axis--) {
        exported->shape[axis] = shape.dim[axis];
        exported->stride[axis] = stride;
        stride *= exported->shape[axis];
    }
    return (struct DLManagedTensorVersioned *)(void *)managed;
}

/* Why the DLPack tensor cannot be bound to t, judged by its description.
 * NULL: it can. *count: its number of elements. */
static const char *gpunn__dlpack_fault(const gpunn_tensor *t, const gpunn_dlpack *managed, int64_t *count)
{
    const gpunn_device *dev = t->model->dev;
    const bool          gpu = dev->info.type == GPUNN_DEVICE_CUDA;
    const int32_t       type = managed->device_type;
    *count = 1;
    if (managed->major != 1) return "its version is not DLPack 1.x";
    const bool managed_memory = type == GPUNN_DLPACK_CUDA_MANAGED;
    if (gpu && type != GPUNN_DLPACK_CUDA && !managed_memory) return "its memory is not on a GPU";
    if (!gpu && type != GPUNN_DLPACK_CPU && type != GPUNN_DLPACK_CUDA_HOST && !managed_memory)
        return "its memory is not on the host";
    if (gpu && type == GPUNN_DLPACK_CUDA && managed->device_id != dev->args.index)
        return "its memory is on another GPU";
    if (managed->dtype_code != gpunn__dlpack_code(gpunn_tensor_dtype(t)) ||
        managed->dtype_bits != 8 * gpunn_dtype_size(gpunn_tensor_dtype(t)) || managed->lanes != 1)
        return "its dtype differs";
    if ((managed->flags & GPUNN_DLPACK_READ_ONLY) && t->kind != GPUNN__INPUT)
        return "it is read-only, but the tensor is not an input";
    if (managed->rank != t->rank) return "its rank differs";
    for (int axis = t->rank - 1; axis >= 0; axis--) {
        const bool    sized = gpunn__is_sized(t->dim[axis]);
        const int64_t length = managed->shape[axis], dim = sized ? 1 : t->dim[axis],
                      unit = dim < 0 ? -dim : dim;
        if (length < 1 || (t->dim[axis] < 0 ? length % unit != 0 : length != unit))
            return "its shape differs";
        if (managed->stride && length > 1 && managed->stride[axis] != *count) return "it is not row-major";
        *count *= length;
    }
    return NULL;
}

GPUNN_API gpunn_status gpunn_bind_dlpack(gpunn_tensor *t, struct DLManagedTensorVersioned *managed)
{
    static const char caller[] = "gpunn_bind_dlpack";
    gpunn_dlpack     *own = (gpunn_dlpack *)(void *)managed;
    int64_t           count;
    if (t == NULL || managed == NULL) return gpunn__fail_null_tensor(t, caller, "DLPack");
    const char *fault = gpunn__dlpack_fault(t, own, &count);
    if (fault) {
        char text[128];
        return gpunn__fail(t->model->dev, GPUNN_ERR_ARGUMENT, "%s '%s': %s; it must hold %s %s on %s", caller,
                           gpunn__called(t), fault, gpunn_dtype_name(gpunn_tensor_dtype(t)),
                           gpunn__shape_text(t, text), t->model->dev->info.name);
    }
    gpunn_status status = gpunn__bind_memory(t, caller, (char *)own->data + own->byte_offset,
                                             (size_t)count * gpunn_dtype_size(gpunn_tensor_dtype(t)), false,
                                             own->shape);
    if (status == GPUNN_OK) t->managed = own;
    return status;
}
