#include "graph/tensors.h"
#include "base/forward_declarations.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/tables.h"
#include "base/shapes.h"
#include "base/model.h"
#include "common/traits.h"

GPUNN__INTERNAL gpunn_tensor *gpunn__undo(const gpunn__call *call)
{
    gpunn_model *model = call->model;
    while (model && model->tensor_count > call->mark) {
        gpunn_tensor *t = model->tensors[--model->tensor_count];
        gpunn__index_remove(t, GPUNN__BY_NAME);
        gpunn__index_remove(t, GPUNN__BY_LAYER);
        gpunn__tensor_free(model->dev, t);
    }
    return NULL;
}

GPUNN__INTERNAL gpunn_tensor *gpunn__call_finish(const gpunn__call *call, gpunn_tensor *result)
{
    if (result == NULL) return gpunn__undo(call);
    if (result->id >= call->mark) result->built_by = call->op;
    return result;
}
GPUNN__INTERNAL gpunn_tensor *gpunn__call_fail(const gpunn__call *call, gpunn_status status,
                                               const char *format, ...)
{
    char    text[GPUNN__ERROR_SIZE], layer[GPUNN__ERROR_SIZE];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    (void)gpunn__fail(call->model ? call->model->dev : NULL, status, "%s%s: %s", call->op,
                      gpunn__quoted(call->layer, layer), text);
    return gpunn__undo(call);
}

GPUNN__INTERNAL gpunn__call gpunn__call_of(gpunn_model *model, const char *op, const char *layer)
{
    gpunn__call call = {model, op, layer && layer[0] ? layer : NULL, model ? model->tensor_count : 0};
    return call;
}

GPUNN__INTERNAL bool gpunn__is_non_null(const gpunn__call *call, const void *ptr, const char *name)
{
    gpunn_device *dev = call->model ? call->model->dev : NULL;
    if (ptr == NULL && gpunn_last_status(dev) == GPUNN_OK && (dev || !gpunn__failed_here))
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "%s is NULL", name);
    return ptr != NULL;
}

GPUNN__INTERNAL bool gpunn__begin_model(gpunn__call *call, gpunn_model *model, const char *op,
                                        const char *layer)
{
    *call = gpunn__call_of(model, op, layer);
    return gpunn__is_non_null(call, model, "the model");
}

GPUNN__INTERNAL bool gpunn__operand(const gpunn__call *call, const gpunn_tensor *t, const char *name,
                                    bool f32)
{
    if (!gpunn__is_non_null(call, t, name)) return false;
    if (t->model != call->model)
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               "%s belongs to another model; all operands must belong to one", name);
    else if (f32 && t->dtype != GPUNN_F32)
        (void)gpunn__call_fail(call, GPUNN_ERR_DTYPE,
                               "%s is %s, but f32 is needed; convert it with gpunn_cast", name,
                               gpunn_dtype_name(t->dtype));
    else
        return true;
    return false;
}

static gpunn_model *gpunn__model_of(gpunn_tensor *const *operands, int count)
{
    gpunn_model *model = NULL;
    for (int i = count - 1; i >= 0; i--)
        if (operands[i]) model = operands[i]->model;
    return model;
}

GPUNN__INTERNAL bool gpunn__begin(gpunn__call *call, const char *op, const char *layer,
                                  const char *const *names, gpunn_tensor *const *operands, int count,
                                  int f32_count)
{
    *call = gpunn__call_of(gpunn__model_of(operands, count), op, layer);
    for (int i = 0; i < count; i++) {
        char numbered[32];
        (void)snprintf(numbered, sizeof numbered, "tensors[%d]", i);
        if (!gpunn__operand(call, operands[i], names ? names[i] : numbered, i < f32_count)) return false;
    }
    return true;
}

GPUNN__INTERNAL bool gpunn__begin_x(gpunn__call *call, const char *op, const char *layer, gpunn_tensor *x,
                                    bool f32)
{
    return gpunn__begin(call, op, layer, gpunn__x_name, &x, 1, f32);
}

GPUNN__INTERNAL bool gpunn__begin_op(gpunn__call *call, const char *function, gpunn_op op,
                                     gpunn_tensor *const *operands, int count, int f32)
{
    char name[GPUNN__OPERAND_SIZE];
    *call = gpunn__call_of(gpunn__model_of(operands, count), function, NULL);
    for (int i = 0; i < count; i++)
        if (!gpunn__operand(call, operands[i], gpunn__operand_name(op, i, name), f32 >> i & 1)) return false;
    return true;
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

GPUNN__INTERNAL gpunn_tensor *gpunn__append(const gpunn__call *call, gpunn__kind kind, gpunn_dtype dtype,
                                            int rank, const int64_t *dim)
{
    gpunn_model *model = call->model;
    int64_t      factor;
    int          power;
    if (!gpunn__measure(rank, dim, &factor, &power)) {
        char text[128];
        return gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                                "shape %s has more than 2^59 elements; use smaller sizes",
                                gpunn__dims_text(model, rank, dim, text));
    }
    if (model->tensor_count >= model->tensor_limit)
        return gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                                "the model would have more than %d tensors; make a smaller one",
                                model->tensor_limit);
    if (model->tensor_count == model->tensor_capacity) {
        size_t         item = sizeof *model->tensors, old_size = (size_t)model->tensor_capacity * item;
        int            capacity = model->tensor_capacity ? 2 * model->tensor_capacity : 32;
        gpunn_tensor **grown = (gpunn_tensor **)gpunn__realloc(model->dev, model->tensors, old_size,
                                                               (size_t)capacity * item);
        if (grown == NULL) return gpunn__undo(call);
        model->tensors = grown;
        model->tensor_capacity = capacity;
    }
    gpunn_tensor *t = (gpunn_tensor *)gpunn__calloc(model->dev, sizeof *t);
    if (t == NULL) return gpunn__undo(call);
    t->model = model;
    t->id = model->tensor_count;
    t->kind = kind;
    t->dtype = dtype;
    t->rank = rank;
    memcpy(t->dim, dim, (size_t)rank * sizeof *dim);
    t->lr_scale = 1;
    t->trainable = t->decay = kind == GPUNN__PARAMETER;
    t->offset = -1;
    model->tensors[model->tensor_count++] = t;
    return t;
}

GPUNN__INTERNAL gpunn_tensor *gpunn__set_layer(const gpunn__call *call, gpunn_tensor *t)
{
    if (t == NULL || call->layer == NULL) return t ? t : gpunn__undo(call);
    if (!gpunn__index_grow(call->model, GPUNN__BY_LAYER) ||
        (t->layer = gpunn__strdup(call->model->dev, call->layer)) == NULL)
        return gpunn__undo(call);
    gpunn__index_add(t, GPUNN__BY_LAYER);
    return t;
}

/* Names t. On an error it undoes the call, which frees t if the call appended it, and returns false. */
static bool gpunn__give_name(const gpunn__call *call, gpunn_tensor *t, const char *name)
{
    const gpunn_tensor *other = gpunn_find(call->model, name);
    const char         *fault = NULL;
    if (name == NULL || name[0] == 0)
        fault = "missing; pass one";
    else if (strlen(name) >= GPUNN__NAME_SIZE)
        fault = "longer than 255 bytes; choose another";
    else if (strcmp(name, "__metadata__") == 0)
        fault = "reserved in safetensors files; choose another";
    else if (other && other != t)
        fault = "already taken; names are unique in a model";
    if (fault) {
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               name && name[0] ? "the name '%.64s' is %s" : "the name%s is %s",
                               name && name[0] ? name : "", fault);
        return false;
    }
    if (other == t) return true;
    char *copy = gpunn__index_grow(call->model, GPUNN__BY_NAME) ? gpunn__strdup(call->model->dev, name)
                                                                : NULL;
    if (copy == NULL) {
        (void)gpunn__undo(call);
        return false;
    }
    gpunn__index_remove(t, GPUNN__BY_NAME);
    gpunn__free_text(call->model->dev, t->name);
    t->name = copy;
    gpunn__index_add(t, GPUNN__BY_NAME);
    return true;
}

GPUNN__INTERNAL int gpunn__rank_of(const gpunn__call *call, const gpunn_shape *shape, int batches)
{
    int rank = 0, found = 0, end = GPUNN_MAX_RANK;
    while (rank < GPUNN_MAX_RANK && shape->dim[rank] != 0) rank++;
    while (end > 0 && shape->dim[end - 1] == 0) end--;
    char text[128];
    (void)gpunn__dims_text(call->model, end, shape->dim, text);
    if (end != rank) {
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE, "shape %s has a dimension 0; the smallest is 1", text);
        return -1;
    }
    for (int i = 0; i < rank; i++) {
        const bool sized = gpunn__is_sized(shape->dim[i]);
        found += shape->dim[i] < 0 && !sized;
        if (shape->dim[i] > 0 ||
            (sized ? batches && gpunn__size_place(call->model, shape->dim[i]) : batches == 2) ||
            (batches == 1 && !sized && shape->dim[i] < 0 && found == 1))
            continue;
        const char *rule = batches ? "one of them may be GPUNN_BATCH or a multiple of it"
                                   : "none may be GPUNN_BATCH";
        if (sized)
            rule =
                batches
                    ? "a size that varies must come from gpunn_size of this model, without C arithmetic on it"
                    : "none may vary between runs";
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               "shape %s is not allowed here; dimensions are 1 or more, and %s", text, rule);
        return -1;
    }
    return rank;
}

GPUNN__INTERNAL int64_t gpunn__parse_size(gpunn__size_formula *formula)
{
    const gpunn__sum sum = gpunn__parse_sum(formula);
    int64_t          dim = 0;
    if (!formula->fault && gpunn__formula_next(formula)) formula->fault = "it has extra text at its end";
    if (!formula->fault && (dim = gpunn__dim_of_sum(formula->model, &sum)) == 0)
        formula->fault = "it is never a valid size, or it is too long";
    return dim;
}

/* Adds a named size. Returns its dimension, or 0 on an error. */
static int64_t gpunn__new_size(const gpunn__call *call, const char *name, const gpunn_size_args *args)
{
    gpunn_model  *model = call->model;
    const int64_t min = args->min ? args->min : 1, multiple = args->multiple ? args->multiple : 1;
    gpunn__size   size;
    memset(&size, 0, sizeof size);
    size.multiple = multiple;
    size.min = (min + multiple - 1) / multiple * multiple;
    size.max = args->max / multiple * multiple;
    if (args->min < 0 || args->max < 0 || args->multiple < 0 || min > GPUNN__MAX_COUNT ||
        multiple > GPUNN__MAX_COUNT || (args->max && size.max < size.min)) {
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               ".min %lld, .max %lld and .multiple %lld allow no size; use other values",
                               (long long)args->min, (long long)args->max, (long long)args->multiple);
        return 0;
    }
    size.value = size.min / multiple;
    if (strcmp(name, "N") == 0) {
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               "the name N means the batch in specs; choose another");
        return 0;
    }
    if ((size.name = gpunn__strdup(model->dev, name)) == NULL) return 0;
    const int        place = gpunn__size_append(model, &size);
    const gpunn__sum sum = gpunn__sum_atom(place, multiple);
    if (place == 0) gpunn__free_text(model->dev, size.name);
    return place ? gpunn__dim_of_sum(model, &sum) : 0;
}

GPUNN_API int64_t gpunn_size_(gpunn_model *model, const char *text, gpunn_size_args args)
{
    gpunn__call call;
    int64_t     dim = 0;
    if (!gpunn__begin_model(&call, model, "size", text) || !gpunn__is_non_null(&call, text, "the text"))
        return GPUNN__FIRST_SIZE;
    const size_t length = gpunn__size_name(text);
    const bool   named = length > 0 && text[length] == 0,
               is_new = named && !gpunn__size_find(model, text, length);
    gpunn__size_formula formula = {model, text, NULL, 0};
    if (strlen(text) >= GPUNN__SIZE_TEXT)
        (void)gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "the text is longer than %d bytes",
                               GPUNN__SIZE_TEXT - 1);
    else if (!is_new && (args.min || args.max || args.multiple))
        (void)gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                               ".min, .max and .multiple can be set only when a name is new");
    else if (is_new)
        dim = gpunn__new_size(&call, text, &args);
    else if ((dim = gpunn__parse_size(&formula)) == 0)
        (void)gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "%s (at byte %d)", formula.fault,
                               (int)(formula.at - text));
    return dim ? dim : GPUNN__FIRST_SIZE;
}

GPUNN_API gpunn_tensor *gpunn_input(gpunn_model *model, const char *name, gpunn_dtype dtype,
                                    gpunn_shape shape)
{
    gpunn__call call;
    if (!gpunn__begin_model(&call, model, "input", name)) return NULL;
    if (dtype == GPUNN_DTYPE_DEFAULT) dtype = GPUNN_F32;
    if (gpunn_dtype_size(dtype) == 0 || dtype == GPUNN_F16 || dtype == GPUNN_BF16)
        return gpunn__call_fail(&call, GPUNN_ERR_DTYPE,
                                "an input cannot have dtype %s; use f32, f64, i64, i32, u8 or bool",
                                gpunn_dtype_name(dtype));
    int rank = gpunn__rank_of(&call, &shape, 1);
    if (rank < 0) return NULL;
    const bool    doubles = dtype == GPUNN_F64;
    gpunn_tensor *t = gpunn__append(&call, GPUNN__INPUT, doubles ? GPUNN_F32 : dtype, rank, shape.dim);
    if (t) t->doubles = doubles;
    return t && gpunn__give_name(&call, t, name) ? t : NULL;
}

static bool gpunn__init_is_sound(const gpunn__call *call, gpunn_init init, int rank)
{
    const char *fault = NULL;
    if ((int)init.kind < 0 || init.kind > GPUNN_INIT_KAIMING_UNIFORM)
        fault = "the kind is unknown; use one of gpunn_init_kind";
    else if (!isfinite(init.a) || !isfinite(init.b))
        fault = "a or b is not finite; use finite numbers";
    else if (init.kind == GPUNN_INIT_UNIFORM && init.a > init.b)
        fault = "a is above b; a is the lower bound";
    else if (init.kind == GPUNN_INIT_NORMAL && init.b < 0)
        fault = "b is negative; it is the standard deviation";
    else if (init.kind == GPUNN_INIT_KAIMING_UNIFORM && init.a < 0)
        fault = "a is negative; it is the fan-in, 0 to take it from the shape";
    else if (init.kind == GPUNN_INIT_KAIMING_UNIFORM && init.a == 0 && rank < 2)
        fault = "a shape of rank below 2 has no fan-in; set .a to the fan-in";
    if (fault) (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "initial values: %s", fault);
    return fault == NULL;
}

GPUNN__INTERNAL gpunn_tensor *gpunn__weight(const gpunn__call *call, gpunn__kind kind, const char *name,
                                            int rank, const int64_t *dim, gpunn_init init)
{
    gpunn_tensor *t = gpunn__append(call, kind, GPUNN_F32, rank, dim);
    if (t == NULL || !gpunn__give_name(call, t, name)) return NULL;
    t->init = init;
    return t;
}

GPUNN_API gpunn_tensor *gpunn_parameter(gpunn_model *model, const char *name, gpunn_shape shape,
                                        gpunn_init init)
{
    gpunn__call call;
    if (!gpunn__begin_model(&call, model, "parameter", name)) return NULL;
    int rank = gpunn__rank_of(&call, &shape, 0);
    if (rank < 0 || !gpunn__init_is_sound(&call, init, rank)) return NULL;
    return gpunn__weight(&call, GPUNN__PARAMETER, name, rank, shape.dim, init);
}

GPUNN_API gpunn_tensor *gpunn_state(gpunn_model *model, const char *name, gpunn_shape shape, gpunn_init init)
{
    gpunn__call call;
    if (!gpunn__begin_model(&call, model, "state", name)) return NULL;
    int rank = gpunn__rank_of(&call, &shape, 0);
    if (rank < 0 || !gpunn__init_is_sound(&call, init, rank)) return NULL;
    gpunn_tensor *t = gpunn__weight(&call, GPUNN__BUFFER, name, rank, shape.dim, init);
    if (t) t->state = true;
    return t;
}

GPUNN_API gpunn_tensor *gpunn_constant(gpunn_model *model, gpunn_shape shape, const float *values)
{
    gpunn__call call;
    if (!gpunn__begin_model(&call, model, "constant", NULL)) return NULL;
    int rank = gpunn__rank_of(&call, &shape, 0);
    if (rank < 0) return NULL;
    if (values == NULL)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                "values is NULL; pass as many floats as the shape has elements");
    gpunn_tensor *t = gpunn__append(&call, GPUNN__CONSTANT, GPUNN_F32, rank, shape.dim);
    size_t        size = 0;
    if (t == NULL) return NULL;
    if ((uint64_t)gpunn__count(t, 1) > SIZE_MAX ||
        !gpunn__mul((size_t)gpunn__count(t, 1), sizeof *t->constant, &size))
        return gpunn__call_fail(&call, GPUNN_ERR_MEMORY,
                                "that many elements do not fit in this machine's memory");
    t->constant = (float *)gpunn__realloc(model->dev, NULL, 0, size);
    if (t->constant == NULL) return gpunn__undo(&call);
    memcpy(t->constant, values, size);
    return t;
}

/* ---- queries and settings ------------------------------------------------------------------------------ */

GPUNN_API gpunn_tensor *gpunn_find(gpunn_model *model, const char *name)
{
    return model && name ? gpunn__index_find(model, GPUNN__BY_NAME, name) : NULL;
}

GPUNN_API gpunn_tensor *gpunn_set_name(gpunn_tensor *t, const char *name)
{
    gpunn__call call;
    return gpunn__begin_x(&call, "gpunn_set_name", NULL, t, false) && gpunn__give_name(&call, t, name) ? t
                                                                                                       : NULL;
}

GPUNN_API const char *gpunn_tensor_name(const gpunn_tensor *t)
{
    return t && t->name ? t->name : "";
}

GPUNN_API gpunn_shape gpunn_tensor_shape(const gpunn_tensor *t)
{
    gpunn_shape shape;
    memset(&shape, 0, sizeof shape);
    if (t) memcpy(shape.dim, t->dim, sizeof shape.dim);
    return shape;
}

GPUNN_API gpunn_dtype gpunn_tensor_dtype(const gpunn_tensor *t)
{
    if (t == NULL) return GPUNN_DTYPE_DEFAULT;
    return t->doubles ? GPUNN_F64 : t->dtype;
}

GPUNN_API gpunn_status gpunn_set_dtype(gpunn_tensor *t, gpunn_dtype dtype)
{
    gpunn__call  call;
    gpunn_status status = GPUNN_OK;
    if (!gpunn__begin_x(&call, "gpunn_set_dtype", t ? t->name : NULL, t, true))
        return t ? t->model->dev->error.status : GPUNN_ERR_ARGUMENT;
    if ((t->kind != GPUNN__INPUT && t->kind != GPUNN__VALUE) || (dtype != GPUNN_F32 && dtype != GPUNN_F64))
        (void)gpunn__call_fail(&call, status = GPUNN_ERR_DTYPE,
                               "only inputs and computed values can be held as f32 or f64");
    else if (t->user_memory[0].data || t->user_memory[1].data)
        (void)gpunn__call_fail(&call, status = GPUNN_ERR_STATE,
                               "the tensor or its gradient is bound; unbind it first");
    else
        t->doubles = dtype == GPUNN_F64;
    return status;
}

GPUNN__INTERNAL int64_t gpunn__held_count(const gpunn_tensor *t)
{
    int64_t count = t->batch != 0;
    for (int i = 0; i < t->rank; i++) count *= t->held[i];
    return count;
}

GPUNN_API gpunn_shape gpunn_tensor_sizes(const gpunn_tensor *t)
{
    gpunn_shape shape = gpunn_tensor_shape(t);
    for (int i = 0; t && i < t->rank; i++)
        shape.dim[i] = t->kind == GPUNN__INPUT ? t->held[i]
                                               : gpunn__dim(t->model, t->dim[i], t->model->batch);
    return shape;
}

GPUNN_API size_t gpunn_tensor_bytes(const gpunn_tensor *t)
{
    if (t == NULL) return 0;
    int64_t count = t->kind == GPUNN__INPUT ? gpunn__held_count(t) : gpunn__count(t, t->model->batch);
    return count < 0 ? 0 : (size_t)count * gpunn_dtype_size(gpunn_tensor_dtype(t));
}

GPUNN__INTERNAL bool gpunn__is_saved(const gpunn_tensor *t)
{
    return t->kind == GPUNN__PARAMETER || (t->kind == GPUNN__BUFFER && (!t->state || t->saved));
}

GPUNN_API gpunn_status gpunn_set_saved(gpunn_tensor *state, bool saved)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "gpunn_set_saved", NULL, state, false)) return GPUNN_ERR_ARGUMENT;
    if (!state->state) {
        (void)gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                               "the tensor is not a state; use the result of gpunn_state");
        return GPUNN_ERR_ARGUMENT;
    }
    state->saved = saved;
    return GPUNN_OK;
}

GPUNN_API int gpunn_parameter_count(const gpunn_model *model)
{
    int count = 0;
    for (int i = 0; model && i < model->tensor_count; i++) count += gpunn__is_saved(model->tensors[i]);
    return count;
}

GPUNN_API gpunn_tensor *gpunn_parameter_at(gpunn_model *model, int index)
{
    for (int i = 0; model && i < model->tensor_count; i++)
        if (gpunn__is_saved(model->tensors[i]) && index-- == 0) return model->tensors[i];
    return NULL;
}

GPUNN_API gpunn_tensor *gpunn_input_at(gpunn_model *model, int index)
{
    for (int i = 0; model && i < model->tensor_count; i++)
        if (model->tensors[i]->kind == GPUNN__INPUT && index-- == 0) return model->tensors[i];
    return NULL;
}

/* Opens a call that changes a parameter's setting. */
static bool gpunn__begin_setting(gpunn__call *call, gpunn_tensor *t, const char *function)
{
    if (!gpunn__begin_x(call, function, t ? t->name : NULL, t, false)) return false;
    if (t->kind != GPUNN__PARAMETER)
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               "the tensor is not a parameter; only parameters have this setting");
    return t->kind == GPUNN__PARAMETER;
}

GPUNN__INTERNAL int64_t gpunn__fan_in(const gpunn_tensor *t)
{
    int64_t factor = 1;
    int     power;
    if (t->rank > 1) (void)gpunn__measure(t->rank - 1, t->dim + 1, &factor, &power);
    return factor;
}

/* The next tensor from `id` on that reads t; NULL: there are no more. place: receives which operand it is. */
static const gpunn_tensor *gpunn__next_reader(const gpunn_tensor *t, int id, int *place)
{
    for (; id < t->model->tensor_count; id++) {
        const gpunn_tensor *reader = t->model->tensors[id];
        for (*place = 0; *place < reader->input_count; ++*place)
            if (reader->inputs[*place] == t) return reader;
    }
    return NULL;
}

GPUNN__INTERNAL gpunn_tensor *gpunn__row_scale(const gpunn_tensor *weight)
{
    gpunn_tensor *scale = NULL;
    int           place;
    if (weight->kind != GPUNN__PARAMETER || weight->rank < 2) return NULL;
    for (const gpunn_tensor *t = gpunn__next_reader(weight, weight->id + 1, &place); t;
         t = gpunn__next_reader(weight, t->id + 1, &place)) {
        if (!gpunn__op_is(t->op, GPUNN__INTEGER) || place != 1 || (scale && scale != t->inputs[2]))
            return NULL;
        scale = t->inputs[2];
    }
    return scale && scale->kind == GPUNN__PARAMETER ? scale : NULL;
}

static gpunn_drawing gpunn__drawing_of(const gpunn_tensor *t, const gpunn_init *init, int64_t first,
                                       int64_t count)
{
    gpunn_drawing drawing;
    drawing.init = *init;
    drawing.seed = t->model->state.seed - t->model->salt;
    drawing.id = (uint32_t)t->id;
    drawing.fan_in = gpunn__fan_in(t);
    drawing.first = first;
    drawing.count = count;
    return drawing;
}

/* Elements of a row, of which one may start as 0. */
static int64_t gpunn__row_of(const gpunn_tensor *t)
{
    return t->rank > 1 ? gpunn__count(t, 1) / t->dim[0] : 1;
}

GPUNN__INTERNAL void gpunn__draw_tensor(const gpunn_tensor *t, const gpunn_init *init, int64_t first,
                                        int64_t count, float *values)
{
    const gpunn_drawing drawing = gpunn__drawing_of(t, init, first, count);
    int64_t             row = gpunn__row_of(t), zero = t->padding ? (t->padding - 1) * row - first : count;
    gpunn__draw(&drawing, values);
    for (int64_t i = zero > 0 ? zero : 0; i < count && i < zero + row; i++) values[i] = 0;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__draw_on_device(const gpunn_tensor *t, float *to)
{
    const gpunn_device *dev = t->model->dev;
    const gpunn_drawing drawing = gpunn__drawing_of(t, &t->init, 0, gpunn__count(t, 1));
    const int64_t       row = gpunn__row_of(t);
    const gpunn_status  status = dev->backend->draw(dev->context, &drawing, to);
    if (status != GPUNN_OK || t->padding == 0) return status;
    return dev->backend->fill(dev->context, to + (t->padding - 1) * row, 0, (size_t)row * sizeof *to);
}

GPUNN_API gpunn_status gpunn_set_init(gpunn_tensor *parameter, gpunn_init init)
{
    gpunn__call call;
    if (!gpunn__begin_setting(&call, parameter, "gpunn_set_init") ||
        !gpunn__init_is_sound(&call, init, parameter->rank))
        return GPUNN_ERR_ARGUMENT;
    gpunn_status status = GPUNN_OK;
    if (parameter->offset >= 0) { /* it has values already */
        gpunn_model *model = parameter->model;
        size_t       size = (size_t)gpunn__count(parameter, 1) * sizeof(float);
        float       *values = (float *)gpunn__realloc(model->dev, NULL, 0, size);
        if (values == NULL) return GPUNN_ERR_MEMORY;
        gpunn__draw_tensor(parameter, &init, 0, gpunn__count(parameter, 1), values);
        status = gpunn_write(parameter, values, size);
        gpunn__free(model->dev, values, size);
    }
    if (status == GPUNN_OK) parameter->init = init;
    return status;
}

/* Makes a weight that gpunn_lora froze one like others again, before optimizers have left it out. */
static GPUNN__STATUS gpunn__release_base(const gpunn__call *call, gpunn_tensor *parameter)
{
    const gpunn_model *model = parameter->model;
    const bool         narrow = parameter->storage && (parameter->offset >= 0 || parameter->bound);
    if (model->optimizers)
        (void)gpunn__call_fail(call, GPUNN_ERR_STATE,
                               "gpunn_lora froze it, so the optimizer has no state for it; unfreeze it "
                               "before the optimizer is created");
    else if (narrow)
        (void)gpunn__call_fail(
            call, GPUNN_ERR_STATE,
            "its values are stored as %s, which is not trained; unfreeze it before weights "
            "are written, loaded or run",
            gpunn_dtype_name(parameter->storage));
    if (model->optimizers || narrow) return GPUNN_ERR_STATE;
    const size_t   bytes = (size_t)model->tensor_count * sizeof *model->tensors;
    gpunn_tensor **scratch = (gpunn_tensor **)gpunn__realloc(model->dev, NULL, 0, bytes);
    if (scratch == NULL) return GPUNN_ERR_MEMORY;
    parameter->base = false;
    parameter->storage = GPUNN_DTYPE_DEFAULT;
    gpunn__place_gradients(parameter->model, scratch);
    gpunn__free(model->dev, scratch, bytes);
    return GPUNN_OK;
}

GPUNN__INTERNAL void gpunn__freeze(gpunn_tensor *parameter)
{
    parameter->trainable = false;
    parameter->base = true;
    parameter->model->has_base = true;
}

GPUNN_API gpunn_status gpunn_set_trainable(gpunn_tensor *parameter, bool trainable)
{
    gpunn__call call;
    if (!gpunn__begin_setting(&call, parameter, "gpunn_set_trainable")) return GPUNN_ERR_ARGUMENT;
    if (parameter->base && trainable) {
        const gpunn_status status = gpunn__release_base(&call, parameter);
        if (status != GPUNN_OK) return status;
    }
    if (parameter->trainable != trainable) gpunn__invalidate(parameter->model);
    parameter->trainable = trainable;
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_freeze_statistics(gpunn_tensor *t, bool frozen)
{
    gpunn__call   call;
    gpunn_tensor *mean = NULL;
    if (!gpunn__begin_x(&call, "gpunn_freeze_statistics", NULL, t, true)) return GPUNN_ERR_ARGUMENT;
    for (int id = 0; id < t->model->tensor_count && mean == NULL; id++) {
        const gpunn_tensor *norm = t->model->tensors[id];
        if (gpunn__has_statistics(norm->op) && (norm == t || norm->inputs[3] == t)) mean = norm->inputs[3];
    }
    if (mean == NULL) {
        (void)gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                               "the tensor is neither the result of a norm with running statistics nor a "
                               "running_mean; use gpunn_find(model, \"name.running_mean\")");
        return GPUNN_ERR_ARGUMENT;
    }
    if (mean->frozen != frozen) gpunn__invalidate(t->model);
    mean->frozen = frozen;
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_set_lr_scale(gpunn_tensor *parameter, float scale)
{
    gpunn__call call;
    if (!gpunn__begin_setting(&call, parameter, "gpunn_set_lr_scale")) return GPUNN_ERR_ARGUMENT;
    if (!isfinite(scale) || scale < 0) {
        (void)gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "scale is %g; use 0 or a positive number",
                               (double)scale);
        return GPUNN_ERR_ARGUMENT;
    }
    parameter->lr_scale = scale;
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_set_decay(gpunn_tensor *parameter, bool decay)
{
    gpunn__call call;
    if (!gpunn__begin_setting(&call, parameter, "gpunn_set_decay")) return GPUNN_ERR_ARGUMENT;
    parameter->decay = decay;
    return GPUNN_OK;
}

GPUNN_API gpunn_tensor *gpunn_keep(gpunn_tensor *t)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "gpunn_keep", NULL, t, false)) return NULL;
    if (!t->keep) gpunn__invalidate(t->model);
    t->keep = true;
    return t;
}

GPUNN_API gpunn_tensor *gpunn_retain_grad(gpunn_tensor *t)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "gpunn_retain_grad", NULL, t, true)) return NULL;
    if (!t->retain_grad) gpunn__invalidate(t->model);
    t->retain_grad = true;
    return t;
}
