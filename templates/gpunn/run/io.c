#include "run/io.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/math.h"
#include "base/blocks.h"
#include "base/shapes.h"
#include "base/device.h"
#include "base/model.h"
#include "graph/tensors.h"
#include "plan/plan.h"
#include "run/run.h"

GPUNN__INTERNAL bool gpunn__is_bound_to_doubles(const gpunn_tensor *t)
{
    return t->kind == GPUNN__INPUT && t->doubles && t->user_memory[0].data;
}

GPUNN__INTERNAL void *gpunn__memory_of(gpunn_tensor *t, bool gradient, size_t *bytes)
{
    gpunn_model  *model = t->model;
    gpunn_device *dev = model->dev;
    gpunn__plan  *plan = model->last;
    int64_t       batch = plan && t->kind == GPUNN__VALUE ? plan->batch : 1;
    const char   *name = gpunn__called(t);
    *bytes = (size_t)(t->kind == GPUNN__INPUT ? gpunn__held_count(t) : gpunn__count(t, batch)) *
             gpunn_dtype_size(t->dtype);
    if (t->kind == GPUNN__PARAMETER || t->kind == GPUNN__BUFFER || t->kind == GPUNN__CONSTANT) {
        if (gpunn__commit(model) != GPUNN_OK) return NULL;
        if (!gradient) return gpunn__weights(t);
        if (t->kind == GPUNN__PARAMETER && t->grad_reached) return gpunn__gradient_of(t);
        return GPUNN__FAIL_NULL(
            dev, GPUNN_ERR_STATE,
            "'%s' has no gradient; call gpunn_backward or gpunn_train_step on a loss that depends on it",
            name);
    }
    if (gradient) {
        int slot = plan && plan->training && t->id < plan->tensor_count && t->retain_grad
                       ? plan->tensors[plan->tensors[t->id].gradient_root].gradient_slot
                       : -1;
        if (slot >= 0) return gpunn__slot_memory(model, plan, slot);
        return GPUNN__FAIL_NULL(
            dev, GPUNN_ERR_STATE, "'%s' has no gradient: %s", name,
            t->retain_grad ? "the loss of the last run does not depend on it, or there was no gpunn_backward"
                           : "call gpunn_retain_grad on it before gpunn_backward");
    }
    if (t->kind == GPUNN__INPUT) {
        if (t->batch) return gpunn__is_bound_to_doubles(t) ? t->user_memory[0].data : t->data;
        return GPUNN__FAIL_NULL(dev, GPUNN_ERR_STATE, "input '%s' has not been written", name);
    }
    if (plan && t->id < plan->tensor_count) {
        const gpunn_tensor *root = model->tensors[plan->tensors[t->id].root];
        int                 slot = plan->tensors[root->id].value_slot;
        if (root->kind != GPUNN__VALUE && gpunn__is_visible(plan, t))
            return root->kind == GPUNN__INPUT ? root->data : (void *)gpunn__weights(root);
        if (slot >= 0 && gpunn__is_visible(plan, t)) return gpunn__slot_memory(model, plan, slot);
    }
    if (plan == NULL)
        return GPUNN__FAIL_NULL(dev, GPUNN_ERR_STATE,
                                "'%s' has not been computed: the model has not run since it was built or "
                                "changed; first call gpunn_forward or gpunn_train_step",
                                name);
    return GPUNN__FAIL_NULL(dev, GPUNN_ERR_STATE,
                            "'%s' was not an output of the last run, so its memory has been used again; pass "
                            "it to gpunn_forward, or call gpunn_keep on it before the run",
                            name);
}

/* Copies a sparse gradient to host memory as a dense one. */
static GPUNN__STATUS gpunn__read_sparse(const gpunn_tensor *t, void *host, size_t bytes)
{
    gpunn_device *dev = t->model->dev;
    const size_t  row = (size_t)t->dim[1] * sizeof(float), all = gpunn__compact_bytes(t, t->compact.capacity);
    char         *copy = (char *)gpunn__realloc(dev, NULL, 0, all);
    if (copy == NULL) return GPUNN_ERR_MEMORY;
    gpunn_status   status = dev->backend->download(dev->context, copy, t->compact.values, all);
    const int64_t *rows = gpunn__sparse_rows(copy, gpunn__gradient_count(t));
    memset(host, 0, bytes);
    for (int64_t i = 0; i < t->compact.capacity && status == GPUNN_OK; i++)
        if (rows[i] >= 0) memcpy((char *)host + (size_t)rows[i] * row, copy + (size_t)i * row, row);
    gpunn__free(dev, copy, all);
    return status;
}

GPUNN__INTERNAL gpunn_dtype gpunn__stored_as(const gpunn_tensor *t, bool gradient)
{
    const gpunn__plan *plan = t->model->last;
    if (plan == NULL || t->id >= plan->tensor_count) return gpunn__weight_dtype(t);
    return plan->tensors[gradient ? plan->tensors[t->id].gradient_root : plan->tensors[t->id].root].storage;
}

GPUNN__INTERNAL bool gpunn__stored_channels_last(const gpunn_tensor *t, bool gradient)
{
    const gpunn__plan *plan = t->model->last;
    if (plan == NULL || t->id >= plan->tensor_count || !gpunn__has_layouts(t)) return false;
    return plan->tensors[gradient ? plan->tensors[t->id].gradient_root : plan->tensors[t->id].root]
        .channels_last;
}

/* Reorders images in place from channels last to channels first. */
static GPUNN__STATUS gpunn__channels_first(const gpunn_tensor *t, void *host, size_t bytes)
{
    const size_t size = gpunn_dtype_size(t->dtype);
    char        *copy = (char *)gpunn__realloc(t->model->dev, NULL, 0, bytes);
    if (copy == NULL) return GPUNN_ERR_MEMORY;
    memcpy(copy, host, bytes);
    const gpunn_shape shape = gpunn_tensor_sizes(t);
    int64_t           channels = shape.dim[1], area = shape.dim[2] * shape.dim[3],
            images = (int64_t)(bytes / size) / (channels * area);
    for (int64_t n = 0; n < images; n++)
        for (int64_t i = 0; i < area; i++)
            for (int64_t c = 0; c < channels; c++)
                memcpy((char *)host + (size_t)((n * channels + c) * area + i) * size,
                       copy + (size_t)((n * area + i) * channels + c) * size, size);
    gpunn__free(t->model->dev, copy, bytes);
    return GPUNN_OK;
}

/* Copies a value or gradient to the program's device memory, in the
 * tensor's own dtype and with channels first. */
static GPUNN__STATUS gpunn__read_on_device(gpunn_tensor *t, bool gradient, void *to, const void *memory,
                                           size_t bytes)
{
    const gpunn_device  *dev = t->model->dev;
    const gpunn_backend *backend = dev->backend;
    const gpunn_dtype    stored = gpunn__stored_as(t, gradient);
    const int64_t        count = (int64_t)(bytes / gpunn_dtype_size(t->dtype));
    gpunn_attributes     attr;
    gpunn_value          in;
    gpunn_step           step;
    const gpunn_step    *failed;
    if (!gpunn__stored_channels_last(t, gradient) && stored == t->dtype)
        return backend->download(dev->context, to, memory, bytes);
    if (!gpunn__stored_channels_last(t, gradient))
        return backend->convert(dev->context, to, t->dtype, memory, stored, count);
    memset(&attr, 0, sizeof attr);
    memset(&step, 0, sizeof step);
    gpunn__describe(t->model->last, &in, t);
    in.dtype = stored;
    in.data = gpunn__unconst(memory);
    gpunn__set_operation(&step, &gpunn__operation_permute);
    step.name = "";
    step.attr = &attr;
    step.input_count = 1;
    step.in = &in;
    step.out = in;
    step.out.channels_last = false;
    step.out.dtype = t->dtype;
    step.out.data = to;
    step.state = &t->model->state;
    gpunn__as_stored(&in, true);
    memcpy(attr.order, gpunn__to_first, sizeof gpunn__to_first);
    return backend->run(dev->context, &step, 1, &failed);
}

/* Copies a parameter that is stored as blocks to host memory: the blocks, or its numbers as floats. */
static GPUNN__STATUS gpunn__read_blocks(const gpunn_tensor *t, bool as_floats, void *host)
{
    gpunn_device *dev = t->model->dev;
    const size_t  bytes = gpunn__weight_bytes(t);
    void         *copy = as_floats ? gpunn__realloc(dev, NULL, 0, bytes) : host;
    if (copy == NULL) return GPUNN_ERR_MEMORY;
    gpunn_status status = dev->backend->download(dev->context, copy, gpunn__weights(t), bytes);
    if (status == GPUNN_OK && as_floats)
        gpunn__dequantize(t->storage, copy, (float *)host, gpunn__count(t, 1));
    if (as_floats) gpunn__free(dev, copy, bytes);
    return status;
}

/* Copies a value or gradient to memory of the program, or beside it, without a conversion of the dtype. */
static GPUNN__STATUS gpunn__read_own(gpunn_tensor *t, bool gradient, void *to, bool near, const void *memory,
                                     size_t bytes)
{
    gpunn_device *dev = t->model->dev;
    if (!gradient && gpunn__is_bound_to_doubles(t))
        return dev->backend->download(dev->context, to, memory, bytes);
    if (gradient && t->sparse) return gpunn__read_sparse(t, to, bytes);
    if (!gradient && !near && gpunn__is_blocks(t->storage)) return gpunn__read_blocks(t, true, to);
    if (near) return gpunn__read_on_device(t, gradient, to, memory, bytes);
    gpunn_dtype stored = gpunn__stored_as(t, gradient);
    size_t      stored_bytes = stored == t->dtype ? bytes : bytes / 2;
    /* 16-bit values land at the end and are widened from the front */
    char        *at = (char *)to + (bytes - stored_bytes);
    gpunn_status status = dev->backend->download(dev->context, at, memory, stored_bytes);
    if (status != GPUNN_OK) return status;
    if (stored != t->dtype) gpunn__widen_floats(stored, at, (int64_t)(stored_bytes / 2), (float *)to);
    return gpunn__stored_channels_last(t, gradient) ? gpunn__channels_first(t, to, bytes) : GPUNN_OK;
}

/* Memory where the program's is: of the device, or of the host. */
static void *gpunn__take_beside(gpunn_device *dev, bool near, size_t bytes)
{
    return near ? gpunn__device_alloc(dev, bytes) : gpunn__realloc(dev, NULL, 0, bytes);
}

static void gpunn__free_beside(gpunn_device *dev, bool near, void *memory, size_t bytes)
{
    if (near)
        gpunn__device_free(dev, memory, bytes);
    else
        gpunn__free(dev, memory, bytes);
}

/* Converts between memory of the program and memory beside it. */
static GPUNN__STATUS gpunn__cast_beside(gpunn_device *dev, bool near, void *to, gpunn_dtype to_dtype,
                                        const void *from, gpunn_dtype from_dtype, int64_t count)
{
    if (near) return dev->backend->convert(dev->context, to, to_dtype, from, from_dtype, count);
    gpunn__cast_values(to, to_dtype, from, from_dtype, 0, count);
    return GPUNN_OK;
}

/* Fails unless the program's memory can hold elements of this dtype. */
static GPUNN__STATUS gpunn__check_as(const gpunn_tensor *t, const char *caller, gpunn_dtype dtype)
{
    if (gpunn_dtype_size(dtype) && dtype != GPUNN_F16 && dtype != GPUNN_BF16) return GPUNN_OK;
    const gpunn_status status = gpunn__check_blocks(t->model->dev, caller, gpunn__called(t), dtype);
    if (status != GPUNN_OK) return status;
    return gpunn__fail(
        t->model->dev, GPUNN_ERR_DTYPE,
        "%s '%s': elements of dtype %s cannot be converted; use f32, f64, i64, i32, u8 or bool", caller,
        gpunn__called(t), gpunn_dtype_name(dtype));
}

GPUNN__INTERNAL bool gpunn__is_on_device(const gpunn_device *dev, const void *memory)
{
    return dev->backend->on_device && dev->backend->on_device(dev->context, memory);
}

/* Copies `count` values or gradients to the program's memory as elements of `dtype`. */
static GPUNN__STATUS gpunn__read_count(gpunn_tensor *t, bool gradient, gpunn_dtype dtype, void *host,
                                       const void *memory, int64_t count)
{
    gpunn_device     *dev = t->model->dev;
    const bool        near = gpunn__is_on_device(dev, host);
    const gpunn_dtype own = !gradient && gpunn__is_bound_to_doubles(t) ? GPUNN_F64 : t->dtype;
    const size_t      bytes = (size_t)count * gpunn_dtype_size(own);
    gpunn_status      status = GPUNN_OK;
    if (near) status = dev->backend->reaches(dev->context, host, (size_t)count * gpunn_dtype_size(dtype));
    if (status != GPUNN_OK || dtype == own)
        return status == GPUNN_OK ? gpunn__read_own(t, gradient, host, near, memory, bytes) : status;
    void *copy = gpunn__take_beside(dev, near, bytes);
    if (copy == NULL) return GPUNN_ERR_MEMORY;
    status = gpunn__read_own(t, gradient, copy, near, memory, bytes);
    if (status == GPUNN_OK) status = gpunn__cast_beside(dev, near, host, dtype, copy, own, count);
    gpunn__free_beside(dev, near, copy, bytes);
    return status;
}

/* Copies a parameter that is stored in this format to host memory, as blocks. */
static GPUNN__STATUS gpunn__read_as_blocks(gpunn_tensor *t, gpunn_dtype format, void *host, size_t bytes,
                                           const char *caller)
{
    gpunn_device *dev = t->model->dev;
    gpunn_status  status = gpunn__commit(t->model);
    if (status != GPUNN_OK) return status;
    if (gpunn__is_on_device(dev, host))
        return gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED, "%s '%s': blocks are read to host memory only", caller,
                           gpunn__called(t));
    if (t->storage != format)
        return gpunn__fail(dev, GPUNN_ERR_DTYPE, "%s '%s': it is stored as %s, not as %s", caller,
                           gpunn__called(t), gpunn_dtype_name(gpunn__weight_dtype(t)),
                           gpunn_dtype_name(format));
    if (bytes != gpunn__weight_bytes(t))
        return gpunn__fail(dev, GPUNN_ERR_SHAPE, "%s '%s': %zu bytes asked for, but it holds %zu", caller,
                           gpunn__called(t), bytes, gpunn__weight_bytes(t));
    status = gpunn__read_blocks(t, false, host);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, caller, status);
}

static GPUNN__STATUS gpunn__read(gpunn_tensor *t, bool gradient, gpunn_dtype dtype, void *host, size_t bytes,
                                 const char *caller)
{
    if (t == NULL || host == NULL) return gpunn__fail_null_tensor(t, caller, "host pointer");
    gpunn_device *dev = t->model->dev;
    size_t        own_bytes;
    if (!gradient && gpunn__is_blocks(dtype)) return gpunn__read_as_blocks(t, dtype, host, bytes, caller);
    gpunn_status status = gpunn__check_as(t, caller, dtype);
    if (status != GPUNN_OK) return status;
    const void *memory = gpunn__memory_of(t, gradient, &own_bytes);
    if (memory == NULL) return dev->error.status;
    const int64_t count = (int64_t)(own_bytes / gpunn_dtype_size(t->dtype));
    if (bytes != (size_t)count * gpunn_dtype_size(dtype)) {
        char text[128];
        return gpunn__fail(dev, GPUNN_ERR_SHAPE,
                           "%s '%s': %zu bytes asked for, but it holds %zu (%s %s); see gpunn_tensor_bytes",
                           caller, gpunn__called(t), bytes, (size_t)count * gpunn_dtype_size(dtype),
                           gpunn_dtype_name(dtype), gpunn__shape_text(t, text));
    }
    if (gradient && t->sparse && gpunn__is_on_device(dev, host))
        return gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                           "%s '%s': its gradient is sparse and can only be read to host memory", caller,
                           gpunn__called(t));
    status = gpunn__read_count(t, gradient, dtype, host, memory, count);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, caller, status);
}

GPUNN_API gpunn_status gpunn_read(gpunn_tensor *t, void *host, size_t bytes)
{
    return gpunn__read(t, false, gpunn_tensor_dtype(t), host, bytes, "gpunn_read");
}

GPUNN_API gpunn_status gpunn_read_as(gpunn_tensor *t, gpunn_dtype dtype, void *host, size_t bytes)
{
    return gpunn__read(t, false, dtype, host, bytes, "gpunn_read_as");
}

GPUNN_API gpunn_status gpunn_read_grad(gpunn_tensor *t, void *host, size_t bytes)
{
    return gpunn__read(t, true, gpunn_tensor_dtype(t), host, bytes, "gpunn_read_grad");
}

GPUNN_API gpunn_status gpunn_read_grad_as(gpunn_tensor *t, gpunn_dtype dtype, void *host, size_t bytes)
{
    return gpunn__read(t, true, dtype, host, bytes, "gpunn_read_grad_as");
}

GPUNN_API float gpunn_item(gpunn_tensor *t)
{
    float   value = NAN;
    int64_t integer = 0;
    if (t && t->dtype == GPUNN_I64)
        return gpunn__read(t, false, GPUNN_I64, &integer, sizeof integer, "gpunn_item") == GPUNN_OK
                   ? (float)integer
                   : NAN;
    if (t && t->dtype != GPUNN_F32)
        (void)gpunn__fail(t->model->dev, GPUNN_ERR_DTYPE,
                          "gpunn_item '%s': it is %s; only f32, f64 and i64 can be read", gpunn__called(t),
                          gpunn_dtype_name(t->dtype));
    else if (gpunn__read(t, false, GPUNN_F32, &value, sizeof value, "gpunn_item") != GPUNN_OK)
        value = NAN;
    return value;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__shape_of(const gpunn_tensor *t, const char *caller, gpunn_dtype dtype,
                                              size_t bytes, int64_t *held)
{
    int    varying = 0, axis = 0;
    size_t sample = gpunn_dtype_size(dtype);
    for (int i = 0; i < t->rank; i++) {
        const bool varies = t->dim[i] < 0;
        /* of a plain dimension: k times the batch */
        const bool multiple = varies && !gpunn__is_sized(t->dim[i]);
        held[i] = varies ? 1 : t->dim[i];
        if (multiple) held[i] = -t->dim[i];
        sample *= (size_t)held[i];
        varying += varies;
        if (varies) axis = i;
    }
    char text[128];
    if (varying > 1 && gpunn__any_sized(t->rank, t->dim))
        return gpunn__fail(t->model->dev, GPUNN_ERR_SHAPE,
                           "%s '%s': the number of bytes does not determine the %d dimensions of %s that "
                           "vary; use gpunn_write_shape or gpunn_bind_dlpack",
                           caller, gpunn__called(t), varying, gpunn__shape_text(t, text));
    if (varying ? bytes == 0 || bytes % sample != 0 : bytes != sample)
        return gpunn__fail(t->model->dev, GPUNN_ERR_SHAPE, "%s '%s': %zu bytes given, but %s %s takes %s%zu",
                           caller, gpunn__called(t), bytes, gpunn_dtype_name(dtype),
                           gpunn__shape_text(t, text), varying ? "a positive multiple of " : "", sample);
    if (varying) held[axis] *= (int64_t)(bytes / sample);
    return GPUNN_OK;
}

GPUNN__INTERNAL void gpunn__hold(gpunn_tensor *t, const int64_t *held)
{
    t->model->written++;
    t->batch = 1;
    for (int i = 0; i < t->rank; i++) {
        t->held[i] = held[i];
        if (t->dim[i] > 0 || gpunn__is_sized(t->dim[i])) continue;
        t->batch = held[i] / -t->dim[i];
        if (t->model->last == NULL) t->model->batch = t->batch;
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__reserve_own(gpunn_tensor *t, size_t bytes)
{
    gpunn_device *dev = t->model->dev;
    if (t->capacity >= bytes) return GPUNN_OK;
    gpunn__device_free(dev, t->data, t->capacity);
    t->capacity = 0;
    t->batch = 0;
    t->model->generation++;
    t->data = gpunn__device_alloc(dev, bytes);
    if (t->data == NULL) return dev->error.status;
    t->capacity = bytes;
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__reserve_input(gpunn_tensor *t, const char *caller, size_t bytes,
                                                   const int64_t *held)
{
    const gpunn__user_memory *bound = &t->user_memory[0];
    if (bound->data && bound->bytes < bytes)
        return gpunn__fail(t->model->dev, GPUNN_ERR_SHAPE,
                           "%s '%s': %zu bytes given, but the memory that it is bound to has %zu; bind it to "
                           "more, or unbind it",
                           caller, t->name, bytes, bound->bytes);
    gpunn_status status = bound->data ? GPUNN_OK : gpunn__reserve_own(t, bytes);
    if (status == GPUNN_OK) gpunn__hold(t, held);
    return status;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__copy_in(gpunn_device *dev, const char *caller, void *to,
                                             gpunn_dtype to_dtype, const void *from, gpunn_dtype from_dtype,
                                             int64_t count)
{
    const gpunn_backend *backend = dev->backend;
    const size_t         bytes = (size_t)count * gpunn_dtype_size(to_dtype);
    const bool           converts = to_dtype != from_dtype, near = gpunn__is_on_device(dev, from);
    gpunn_status         status = GPUNN_OK;
    void                *copy = NULL;
    if (converts && near) {
        status = backend->reaches(dev->context, from, (size_t)count * gpunn_dtype_size(from_dtype));
        if (status == GPUNN_OK)
            status = backend->convert(dev->context, to, to_dtype, from, from_dtype, count);
    } else if (converts) {
        if ((copy = gpunn__realloc(dev, NULL, 0, bytes)) == NULL) return GPUNN_ERR_MEMORY;
        gpunn__cast_values(copy, to_dtype, from, from_dtype, 0, count);
    }
    if (!(converts && near)) status = backend->upload(dev->context, to, copy ? copy : from, bytes);
    gpunn__free(dev, copy, bytes);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, caller, status);
}

/* Writes elements of `dtype` to an input, or to the doubles that it is bound to. */
static GPUNN__STATUS gpunn__write_input(gpunn_tensor *t, const char *caller, gpunn_dtype dtype,
                                        const void *host, int64_t count, const int64_t *held)
{
    const gpunn_dtype own = gpunn__is_bound_to_doubles(t) ? GPUNN_F64 : t->dtype;
    gpunn_status      status = gpunn__reserve_input(t, caller, (size_t)count * gpunn_dtype_size(own), held);
    void             *to = own == GPUNN_F64 ? t->user_memory[0].data : t->data;
    return status == GPUNN_OK ? gpunn__copy_in(t->model->dev, caller, to, own, host, dtype, count) : status;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__write_shape_as(gpunn_tensor *t, const char *caller, gpunn_dtype dtype,
                                                    const void *host, gpunn_shape shape)
{
    int     rank = 0;
    int64_t count = 1;
    bool    fits = t->kind == GPUNN__INPUT;
    while (rank < GPUNN_MAX_RANK && shape.dim[rank] != 0) rank++;
    for (int i = 0; i < rank && fits; i++) {
        fits = rank == t->rank && shape.dim[i] > 0 &&
               (gpunn__is_sized(t->dim[i]) || t->dim[i] == shape.dim[i] ||
                (t->dim[i] < 0 && shape.dim[i] % -t->dim[i] == 0)) &&
               shape.dim[i] <= GPUNN__MAX_COUNT / count;
        count *= shape.dim[i];
    }
    if (!fits || rank != t->rank || (uint64_t)count > SIZE_MAX / 8) {
        char given[128], own[128];
        return gpunn__fail(t->model->dev, GPUNN_ERR_SHAPE, "%s '%s': %s is given, but %s is needed", caller,
                           gpunn__called(t), gpunn__dims_text(t->model, rank, shape.dim, given),
                           t->kind == GPUNN__INPUT ? gpunn__shape_text(t, own) : "an input");
    }
    return gpunn__write_input(t, caller, dtype, host, count, shape.dim);
}

GPUNN_API gpunn_status gpunn_write_shape(gpunn_tensor *t, const void *host, gpunn_shape shape)
{
    static const char caller[] = "gpunn_write_shape";
    if (t == NULL || host == NULL) return gpunn__fail_null_tensor(t, caller, "host pointer");
    return gpunn__write_shape_as(t, caller, gpunn_tensor_dtype(t), host, shape);
}

GPUNN_API gpunn_status gpunn_reset_states(gpunn_model *model)
{
    if (model == NULL) return gpunn__fail_null(NULL, "gpunn_reset_states", "model");
    gpunn_status status = gpunn__commit(model);
    if (status != GPUNN_OK) return status;
    float *staging = (float *)gpunn__realloc(model->dev, NULL, 0, GPUNN__STAGING * sizeof(float));
    if (staging == NULL) return GPUNN_ERR_MEMORY;
    model->written++;
    for (int id = 0; id < model->tensor_count && status == GPUNN_OK; id++)
        if (model->tensors[id]->state)
            status = gpunn__fill_tensor(model->tensors[id], gpunn__weights(model->tensors[id]), staging);
    gpunn__free(model->dev, staging, GPUNN__STAGING * sizeof(float));
    return status;
}

/* Writes host values of `dtype` to a weight, piece by piece in its form. */
static GPUNN__STATUS gpunn__write_pieces(const gpunn_tensor *t, gpunn_dtype dtype, const void *host)
{
    gpunn_device *dev = t->model->dev;
    float        *staging = (float *)gpunn__realloc(dev, NULL, 0, GPUNN__STAGING * sizeof(float));
    gpunn_status  status = staging ? GPUNN_OK : GPUNN_ERR_MEMORY;
    for (int64_t at = 0, count = gpunn__count(t, 1), part; at < count && status == GPUNN_OK; at += part) {
        part = count - at < GPUNN__STAGING ? count - at : (int64_t)GPUNN__STAGING;
        const char *from = (const char *)host + gpunn__block_bytes(dtype, at);
        if (gpunn__is_blocks(dtype))
            gpunn__dequantize(dtype, from, staging, part);
        else
            gpunn__cast_values(staging, GPUNN_F32, from, dtype, 0, part);
        status = gpunn__upload_part(t, gpunn__weights(t), at, staging, part);
    }
    if (staging) gpunn__free(dev, staging, GPUNN__STAGING * sizeof(float));
    return status;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__fits_blocks(const gpunn_tensor *t, const char *caller,
                                                 gpunn_dtype format)
{
    const int64_t row = t->rank > 0 ? t->dim[t->rank - 1] : 1, length = gpunn__block_length(format);
    if (row % length == 0) return GPUNN_OK;
    return gpunn__fail(t->model->dev, GPUNN_ERR_SHAPE,
                       "%s '%s': its rows of %lld numbers are no multiple of the %lld in a block of %s",
                       caller, gpunn__called(t), (long long)row, (long long)length, gpunn_dtype_name(format));
}

/* Copies blocks to a parameter, or their numbers if it is stored otherwise. */
static GPUNN__STATUS gpunn__write_blocks(const gpunn_tensor *t, gpunn_dtype format, const void *host,
                                         size_t bytes)
{
    if (t->storage == format) return gpunn__upload_weights(t->model, gpunn__weights(t), host, bytes);
    return gpunn__write_pieces(t, format, host);
}

static GPUNN__STATUS gpunn__write(gpunn_tensor *t, gpunn_dtype dtype, const void *host, size_t bytes,
                                  const char *caller)
{
    if (t == NULL || host == NULL) return gpunn__fail_null_tensor(t, caller, "host pointer");
    gpunn_device *dev = t->model->dev;
    const bool    blocks = gpunn__is_blocks(dtype) && t->kind == GPUNN__PARAMETER;
    gpunn_status  status = blocks ? gpunn__fits_blocks(t, caller, dtype) : gpunn__check_as(t, caller, dtype);
    if (status != GPUNN_OK) return status;
    if (t->kind == GPUNN__INPUT) {
        int64_t held[GPUNN_MAX_RANK];
        status = gpunn__shape_of(t, caller, dtype, bytes, held);
        return status == GPUNN_OK ? gpunn__write_input(t, caller, dtype, host,
                                                       (int64_t)(bytes / gpunn_dtype_size(dtype)), held)
                                  : status;
    }
    if (t->kind != GPUNN__PARAMETER && t->kind != GPUNN__BUFFER)
        return gpunn__fail(dev, GPUNN_ERR_STATE,
                           "%s '%s': only inputs, parameters, buffers and states can be written", caller,
                           gpunn__called(t));
    size_t expected = gpunn__block_bytes(dtype, gpunn__count(t, 1));
    if (bytes != expected) {
        char text[128];
        return gpunn__fail(dev, GPUNN_ERR_SHAPE, "%s '%s': %zu bytes given, but %s %s takes %zu", caller,
                           t->name, bytes, gpunn_dtype_name(dtype), gpunn__shape_text(t, text), expected);
    }
    status = gpunn__commit(t->model);
    if (status != GPUNN_OK) return status;
    if (gpunn__has_bound_blocks(t))
        return gpunn__fail(dev, GPUNN_ERR_STATE, "%s '%s': it is bound to blocks, which are only read",
                           caller, gpunn__called(t));
    if ((blocks || gpunn__is_blocks(t->storage)) && gpunn__is_on_device(dev, host))
        return gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED, "%s '%s': blocks are written from host memory only",
                           caller, gpunn__called(t));
    t->model->written += t->state;
    if (!t->state) GPUNN__WEIGHTS_CHANGED(t->model);
    if (blocks) return gpunn__write_blocks(t, dtype, host, bytes);
    if ((t->storage || dtype != GPUNN_F32) && !gpunn__is_on_device(dev, host))
        return gpunn__write_pieces(t, dtype, host);
    return gpunn__copy_in(dev, "writing weights", gpunn__weights(t), gpunn__weight_dtype(t), host, dtype,
                          gpunn__count(t, 1));
}

GPUNN_API gpunn_status gpunn_write(gpunn_tensor *t, const void *host, size_t bytes)
{
    return gpunn__write(t, gpunn_tensor_dtype(t), host, bytes, "gpunn_write");
}

GPUNN_API gpunn_status gpunn_write_as(gpunn_tensor *t, gpunn_dtype dtype, const void *host, size_t bytes)
{
    return gpunn__write(t, dtype, host, bytes, "gpunn_write_as");
}
