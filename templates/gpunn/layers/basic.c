#include "layers/basic.h"
#include "base/tables.h"
#include "base/shapes.h"
#include "base/model.h"
#include "base/text.h"
#include "graph/nodes.h"
#include "graph/expr.h"

/* ---- layers -------------------------------------------------------------------------------------------- */

/* Applies the default of one argument and checks its range. */
static bool gpunn__apply_default(const gpunn__call *call, const gpunn__argument *a, void *at)
{
    const char  *range = NULL;
    const double usual = a->otherwise;
    if (a->kind <= GPUNN__K_INTEGER) {
        int low = a->kind == GPUNN__K_COUNT ? 1 : 0, *value = (int *)at;
        if (a->kind == GPUNN__K_INTEGER) low = INT32_MIN;
        *value = gpunn__default_int(*value, usual > GPUNN__NEEDED ? (int)usual : 0);
        if (*value < low)
            (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "%s is %d; set .%s to %d or more", a->name,
                                   *value, a->field, low);
        else if (a->kind == GPUNN__K_CELLS && *value > 0 && *value % 2 == 0)
            (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                                   "%s is %d; use an odd number, or 0 for the whole image", a->name, *value);
        else if (a->kind == GPUNN__K_BYTE && *value > 255)
            (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "%s is %d; set .%s to 255 or less", a->name,
                                   *value, a->field);
        else
            return true;
        return false;
    }
    if (a->kind >= GPUNN__K_NUMBER && a->kind <= GPUNN__K_EXTENDED) {
        float *value = (float *)at;
        *value = gpunn__default_float(*value, usual > GPUNN__NEEDED ? (float)usual : 0);
        if (a->kind == GPUNN__K_POSITIVE && !(*value > 0 && isfinite(*value)))
            range = "a positive number";
        else if (a->kind == GPUNN__K_SHARE && !(*value >= 0 && *value <= 1))
            range = "a number from 0 to 1";
        else if (a->kind == GPUNN__K_SCALE && !(*value >= 0 && isfinite(*value)))
            range = "a finite number from 0 on";
        else if (a->kind == GPUNN__K_NUMBER ? !isfinite(*value) : *value != *value)
            range = "a finite number";
        if (range)
            (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "%s is %g; use %s", a->name, (double)*value,
                                   range);
    } else if (a->kind >= GPUNN__K_REDUCTION && a->kind <= GPUNN__K_PAD_MODE) {
        const gpunn__choice *of = gpunn__choice_of(a->kind);
        const int            value = *(const int *)at;
        if (value < 0 || value >= of->count) range = of->in_c;
        if (range)
            (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "%s is %d; use %s", a->name, value, range);
    }
    return range == NULL;
}

/* Whether an argument differs from 0. */
static bool gpunn__is_nonzero(const gpunn__argument *a, const void *args)
{
    static const char nothing[sizeof(void *)] = {0};
    const bool        flag = (a->kind >= GPUNN__K_FLAG && a->kind <= GPUNN__K_NO_BIAS) ||
                      a->kind == GPUNN__K_ACTIVATION;
    const bool pointer = a->kind == GPUNN__K_REFERENCE || a->kind == GPUNN__K_BIAS;
    if (a->kind >= GPUNN__K_AXES ? !pointer : a->kind >= GPUNN__K_WINDOW && a->kind <= GPUNN__K_COUNTS)
        return false;
    const size_t size = pointer ? sizeof(void *) : sizeof(int);
    return memcmp((const char *)args + a->member, nothing, flag ? sizeof(bool) : size) != 0;
}

GPUNN__INTERNAL bool gpunn__apply_defaults(const gpunn__call *call, void *args)
{
    const gpunn__row *row = gpunn__row_called(call->op);
    for (int i = 0; i < GPUNN__ROW_COUNT; i++) {
        const gpunn__row *other = &gpunn__rows[i];
        if (other == row || strcmp(other->args, row->args) != 0) continue;
        for (const gpunn__argument *a = other->arguments; *a->name; a++) {
            const gpunn__argument *own = row->arguments;
            while (*own->name && own->member != a->member) own++;
            if (*own->name || !gpunn__is_nonzero(a, args)) continue;
            (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, ".%s is for %s, not used here; leave it out",
                                   a->field, other->name);
            return false;
        }
    }
    for (const gpunn__argument *a = row->arguments; *a->name; a++)
        if (a->otherwise != GPUNN__NONE && !gpunn__apply_default(call, a, (char *)args + a->member))
            return false;
    return true;
}

GPUNN__INTERNAL bool gpunn__layer_is_new(const gpunn__call *call, const char *name)
{
    const char *fault = NULL;
    if (call->layer == NULL)
        fault = "the layer needs a name, since the names of its parameters begin with it";
    else if (strlen(name) >= GPUNN__NAME_SIZE - 16)
        fault = "the name is too long; 239 bytes are allowed";
    else if (gpunn__index_find(call->model, GPUNN__BY_LAYER, name))
        fault = "the name is taken by another layer; names are unique in a model";
    if (fault) (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "%s", fault);
    return fault == NULL;
}

enum { GPUNN__NEW_NAME = 40 };
/* The name of a layer or, if it has none and takes existing parameters alone, a new one. */
static const char *gpunn__name_or_new(const gpunn_tensor *weight, bool alone, const char *op,
                                      const char *name, char new_name[GPUNN__NEW_NAME])
{
    if (weight == NULL || !alone || (name && *name)) return name;
    gpunn_model *model = weight->model;
    int          number = model->tensor_count;
    do (void)snprintf(new_name, GPUNN__NEW_NAME, "%s%d", op, number++);
    while (gpunn__index_find(model, GPUNN__BY_LAYER, new_name) ||
           gpunn__index_find(model, GPUNN__BY_NAME, new_name));
    return new_name;
}

GPUNN__INTERNAL bool gpunn__begin_layer(gpunn__call *call, const char *op, const char *name, gpunn_tensor *x)
{
    return gpunn__begin_x(call, op, name, x, true) && gpunn__layer_is_new(call, name);
}

GPUNN__INTERNAL gpunn_tensor *gpunn__layer_weight(const gpunn__call *call, gpunn__kind kind,
                                                  const char *suffix, int rank, const int64_t *dim,
                                                  gpunn_init_kind init_kind, float a)
{
    char       name[GPUNN__NAME_SIZE];
    gpunn_init init = {init_kind, a, init_kind == GPUNN_INIT_NORMAL ? 1.0f : 0};
    (void)snprintf(name, sizeof name, "%s.%s", call->layer, suffix);
    return gpunn__set_layer(call, gpunn__weight(call, kind, name, rank, dim, init));
}

GPUNN__INTERNAL bool gpunn__is_own(const gpunn_tensor *layer, const gpunn_tensor *weight)
{
    return weight->layer && strcmp(weight->layer, layer->layer) == 0;
}

/* Makes the node of a linear or convolution layer. weight NULL: creates one. With `bias` the layer has a bias
 * [out], created if own_bias is NULL. */
static gpunn_tensor *gpunn__affine(const gpunn__call *call, const gpunn__operation *operation,
                                   const gpunn_attributes *attr, gpunn_tensor *x, gpunn_tensor *weight,
                                   int weight_rank, const int64_t *weight_dim, gpunn_tensor *own_bias,
                                   bool bias, int64_t out)
{
    float fan_in = 1;
    for (int i = 1; i < weight_rank; i++) fan_in *= (float)weight_dim[i];
    gpunn_tensor *operands[3] = {x, weight, own_bias};
    if (weight == NULL)
        operands[1] = gpunn__layer_weight(call, GPUNN__PARAMETER, "weight", weight_rank, weight_dim,
                                          GPUNN_INIT_KAIMING_UNIFORM, fan_in);
    if (operands[1] && bias && own_bias == NULL)
        operands[2] = gpunn__layer_weight(call, GPUNN__PARAMETER, "bias", 1, &out, GPUNN_INIT_KAIMING_UNIFORM,
                                          fan_in);
    if (operands[1] == NULL || (bias && operands[2] == NULL)) return NULL;
    return gpunn__node(call, operation, attr, operands, 3);
}

GPUNN__INTERNAL bool gpunn__are_indices(const gpunn__call *call, const gpunn_tensor *t, const char *name)
{
    bool fits = t->dtype == GPUNN_I64 || t->dtype == GPUNN_I32;
    if (!fits)
        (void)gpunn__call_fail(call, GPUNN_ERR_DTYPE, "%s is %s, but integers are needed; use i64 or i32",
                               name, gpunn_dtype_name(t->dtype));
    return fits;
}

/* Checks a weight [rows, columns] that the layer does not own. dim holds the required
 * sizes; a 0 there is set to the weight's size. */
static bool gpunn__shared_weight(const gpunn__call *call, const gpunn_tensor *weight, const char *rows,
                                 const char *columns, int64_t dim[2])
{
    char text[128];
    if (!gpunn__operand(call, weight, ".weight", true)) return false;
    for (int i = 0; i < 2; i++) {
        const char *what = i == 0 ? rows : columns;
        bool        fits = weight->rank == 2 && weight->dim[i] > 0 && weight->dim[i] <= INT32_MAX;
        if (fits && dim[i] == 0) dim[i] = weight->dim[i];
        if (fits && weight->dim[i] == dim[i]) continue;
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               ".weight is %s, but [%s, %s] is needed, where %s is %lld",
                               gpunn__shape_text(weight, text), rows, columns, what, (long long)dim[i]);
        return false;
    }
    return true;
}

/* Fails if a bias that the layer does not own does not fit. NULL fits. */
static bool gpunn__shared_bias(const gpunn__call *call, const gpunn_tensor *bias, bool no_bias, int64_t out)
{
    char text[128];
    if (bias == NULL) return true;
    if (!gpunn__operand(call, bias, ".bias", true)) return false;
    if (!no_bias && bias->kind == GPUNN__PARAMETER && bias->rank == 1 && bias->dim[0] == out) return true;
    (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                           ".bias is %s, but must be a parameter [%lld], and excludes .no_bias",
                           gpunn__shape_text(bias, text), (long long)out);
    return false;
}

GPUNN_API gpunn_tensor *gpunn_linear_(gpunn_tensor *x, const char *name, gpunn_linear_args args)
{
    gpunn__call call;
    char        new_name[GPUNN__NEW_NAME];
    name = gpunn__name_or_new(args.weight, args.bias || args.no_bias, "linear", name, new_name);
    if (!gpunn__begin_layer(&call, "linear", name, x) ||
        !gpunn__has_rank(&call, gpunn__meta_of(x), 1, GPUNN_MAX_RANK, "[..., features]") ||
        !gpunn__axes_are_fixed(&call, gpunn__meta_of(x), x->rank - 1, x->rank - 1))
        return NULL;
    const gpunn_attributes attr = gpunn__no_attributes();
    int64_t                weight_dim[2];
    weight_dim[0] = args.out_features;
    weight_dim[1] = x->dim[x->rank - 1];
    if (args.weight && !gpunn__shared_weight(&call, args.weight, "out_features", "x's features", weight_dim))
        return NULL;
    if (args.weight && args.weight->kind != GPUNN__PARAMETER)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                ".weight is not a parameter; use gpunn_matmul with .transpose_b");
    args.out_features = (int)weight_dim[0];
    if (!gpunn__apply_defaults(&call, &args) ||
        !gpunn__shared_bias(&call, args.bias, args.no_bias, weight_dim[0]))
        return NULL;
    return gpunn__affine(&call, &gpunn__operation_linear, &attr, x, args.weight, 2, weight_dim, args.bias,
                         !args.no_bias, weight_dim[0]);
}

GPUNN__INTERNAL void gpunn__set_sparse(gpunn_tensor *table, bool sparse)
{
    if (table == NULL || !sparse) return;
    table->sparse = true;
    table->model->has_sparse = true;
}

GPUNN_API gpunn_tensor *gpunn_embedding_(gpunn_tensor *tokens, const char *name, gpunn_embedding_args args)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    char             new_name[GPUNN__NEW_NAME];
    name = gpunn__name_or_new(args.weight, true, "embedding", name, new_name);
    if (!gpunn__begin_x(&call, "embedding", name, tokens, false) || !gpunn__layer_is_new(&call, name) ||
        !gpunn__are_indices(&call, tokens, "tokens"))
        return NULL;
    int64_t weight_dim[2];
    weight_dim[0] = args.num_embeddings;
    weight_dim[1] = args.embedding_dim;
    if (args.weight &&
        !gpunn__shared_weight(&call, args.weight, "num_embeddings", "embedding_dim", weight_dim))
        return NULL;
    if (args.sparse && args.weight && !args.weight->sparse)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                ".sparse needs a table of its own, or that of another embedding with .sparse "
                                "in .weight; leave one of the two out");
    args.num_embeddings = (int)weight_dim[0];
    args.embedding_dim = (int)weight_dim[1];
    if (!gpunn__apply_defaults(&call, &args)) return NULL;
    int64_t padding = gpunn__default_int(args.padding_idx, -1);
    if (args.padding_idx < 0 && args.padding_idx != GPUNN_ZERO) padding += weight_dim[0];
    if (args.padding_idx != 0 && (padding < 0 || padding >= weight_dim[0]))
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                "padding_idx is %d, but there are %lld rows; use -%lld to %lld",
                                args.padding_idx, (long long)weight_dim[0], (long long)weight_dim[0],
                                (long long)weight_dim[0] - 1);
    gpunn_tensor *operands[] = {tokens, args.weight};
    if (args.weight == NULL) {
        operands[1] = gpunn__layer_weight(&call, GPUNN__PARAMETER, "weight", 2, weight_dim, GPUNN_INIT_NORMAL,
                                          0);
        if (operands[1] == NULL) return NULL;
        operands[1]->padding = padding + 1;
        gpunn__set_sparse(operands[1], args.sparse);
    }
    attr.ignore_index = padding;
    attr.sparse = operands[1]->sparse;
    return gpunn__node(&call, &gpunn__operation_embedding, &attr, operands, 2);
}

GPUNN__INTERNAL bool gpunn__window_setting(const gpunn__call *call, int axes, const char *one,
                                           const char *many, int all, const int *each, const int *otherwise,
                                           int lowest, int *result)
{
    for (int i = axes; i < 3; i++) {
        if (each[i] == 0) continue;
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               "%s[%d] is set, but the window has %d ax%s; leave it out", many, i, axes,
                               axes == 1 ? "is" : "es");
        return false;
    }
    for (int i = 0; i < axes; i++) {
        result[i] = each[i] ? gpunn__default_int(each[i], 0) : gpunn__default_int(all, otherwise[i]);
        if (result[i] >= lowest) continue;
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               "%s is %d; set .%s, or .%s for each axis, to %d or more", one, result[i], one,
                               many, lowest);
        return false;
    }
    return true;
}

GPUNN__INTERNAL gpunn_tensor *gpunn__ordinals(gpunn_model *model, int64_t size)
{
    static const float one = 1;
    const gpunn_shape  scalar = {{0}};
    return gpunn_cumsum(gpunn_expand(gpunn_constant(model, scalar, &one), GPUNN_SHAPE(size)), 0);
}

/* ---- states of sequences whose number varies ----------------------------------------------------------- */

GPUNN__INTERNAL int64_t gpunn__held_sequences(const gpunn__call *call, const gpunn_tensor *x, int64_t n,
                                              int capacity)
{
    char text[128];
    if (x->rank == 3 && n < 0 && capacity > 0) return capacity;
    if (x->rank == 3 && n > 0 && capacity == 0) return n;
    (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                           "x is %s and capacity %d; .stateful needs three axes and a fixed number of "
                           "sequences, or else their largest number as .capacity",
                           gpunn__shape_text(x, text), capacity);
    return 0;
}

/* 0 .. size - 1 as I64. */
static gpunn_tensor *gpunn__numbers(gpunn_model *model, int64_t size)
{
    return gpunn_cast(gpunn_add_scalar(gpunn__ordinals(model, size), -1), GPUNN_I64);
}

GPUNN__INTERNAL bool gpunn__held_places(gpunn_model *model, int64_t lines, int64_t n, int64_t held,
                                        gpunn_tensor **places)
{
    *places = NULL;
    if (n == held) return true;
    gpunn_tensor *first = gpunn_integer_scalar(GPUNN_INTEGER_MUL, gpunn__numbers(model, lines), held);
    *places = gpunn_add(gpunn_reshape(first, GPUNN_SHAPE(lines, 1)), gpunn__numbers(model, n));
    return *places != NULL;
}

GPUNN__INTERNAL gpunn_tensor *gpunn__held_rows(gpunn_tensor *state, int axis, gpunn_tensor *places)
{
    gpunn_shape          shape = gpunn_tensor_shape(state);
    gpunn_embedding_args table;
    int64_t              row = 1, lines = shape.dim[axis];
    if (places == NULL) return state;
    for (int d = axis + 1; d < state->rank; d++) row *= shape.dim[d];
    for (int d = 0; d < axis; d++) lines *= shape.dim[d];
    memset(&table, 0, sizeof table);
    table.weight = gpunn_reshape(state, GPUNN_SHAPE(lines, row));
    shape.dim[axis] = places->dim[1];
    return table.weight ? gpunn_reshape(gpunn_embedding_(places, NULL, table), shape) : NULL;
}

GPUNN__INTERNAL bool gpunn__hold_rows(gpunn_tensor *state, int axis, gpunn_tensor *value)
{
    static const float zero = 0;
    const gpunn_shape  scalar = {{0}};
    if (state->dim[axis] == value->dim[axis]) return gpunn_assign(state, value, .in_training = true) != NULL;
    gpunn_tensor *first = gpunn_cast(gpunn_constant(state->model, scalar, &zero), GPUNN_I64);
    return first && gpunn_assign_at(state, axis, first, value, .in_training = true) != NULL;
}

/* Pads the spatial axes of x and sets `before` to 0. Returns NULL on failure. */
static gpunn_tensor *gpunn__pad_sides(gpunn_tensor *x, int *before, const int *after, float value)
{
    gpunn_pad_args args;
    memset(&args, 0, sizeof args);
    args.value = value;
    for (int i = 2; i < x->rank; i++) {
        args.before[i] = before[i - 2], args.after[i] = after[i - 2];
        before[i - 2] = 0;
    }
    return gpunn_pad_(x, args);
}

static bool gpunn__check_output_padding(const gpunn__call *call, const gpunn_attributes *attr, int axes,
                                        bool transposed)
{
    for (int i = 0; i < axes; i++) {
        const int more = attr->output_padding[i];
        if (more == 0 || (transposed && (more < attr->stride[i] || more < attr->dilation[i]))) continue;
        if (!transposed)
            (void)gpunn__call_fail(
                call, GPUNN_ERR_ARGUMENT,
                "output_padding is %d, but only transposed convolutions have one; leave it out", more);
        else
            (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                                   "output_padding is %d along axis %d; it must be less than the stride, "
                                   "%d, or the dilation, %d",
                                   more, 2 + i, attr->stride[i], attr->dilation[i]);
        return false;
    }
    return true;
}

/* Fails if a weight that the layer does not own is not of shape dim. NULL fits. */
static bool gpunn__shared_filter(const gpunn__call *call, const gpunn_tensor *weight, int rank,
                                 const int64_t *dim)
{
    char text[128], needed[128];
    if (weight == NULL) return true;
    if (!gpunn__operand(call, weight, ".weight", true)) return false;
    if (weight->rank == rank && memcmp(weight->dim, dim, (size_t)rank * sizeof *dim) == 0) return true;
    (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE, ".weight is %s, but %s is needed",
                           gpunn__shape_text(weight, text), gpunn__dims_text(call->model, rank, dim, needed));
    return false;
}

static gpunn_tensor *gpunn__conv_node(const gpunn__operation *operation, gpunn_tensor *x, const char *name,
                                      gpunn_conv_args *args)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    const int        axes = gpunn__conv_axes(operation->op);
    const bool       transposed = gpunn__op_is(operation->op, GPUNN__TRANSPOSED);
    int              ends[3] = {0, 0, 0};
    char             new_name[GPUNN__NEW_NAME];
    name = gpunn__name_or_new(args->weight, args->bias || args->no_bias, gpunn_op_name(operation->op), name,
                              new_name);
    if (!gpunn__begin_layer(&call, gpunn_op_name(operation->op), name, x) ||
        !gpunn__has_axes(&call, gpunn__meta_of(x), axes) ||
        !gpunn__window_setting(&call, axes, "kernel_size", "kernel_shape", args->kernel_size,
                               args->kernel_shape, gpunn__zeros, 1, attr.kernel) ||
        !gpunn__window_setting(&call, axes, "stride", "strides", args->stride, args->strides, gpunn__ones, 1,
                               attr.stride) ||
        !gpunn__window_setting(&call, axes, "padding", "paddings", args->padding, args->paddings,
                               gpunn__zeros, 0, attr.padding) ||
        !gpunn__window_setting(&call, axes, "padding_end", "paddings_end", args->padding_end,
                               args->paddings_end, attr.padding, 0, ends) ||
        !gpunn__window_setting(&call, axes, "dilation", "dilations", args->dilation, args->dilations,
                               gpunn__ones, 1, attr.dilation) ||
        !gpunn__window_setting(&call, axes, "output_padding", "output_paddings", args->output_padding,
                               args->output_paddings, gpunn__zeros, 0, attr.output_padding) ||
        !gpunn__check_output_padding(&call, &attr, axes, transposed))
        return NULL;
    const bool uneven = memcmp(ends, attr.padding, sizeof ends) != 0;
    if (args->stateful || args->capacity)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "%s; leave it out",
                                args->stateful ? "stateful is for gpunn_conv1d"
                                               : "capacity is for .stateful of gpunn_conv1d");
    if (uneven && transposed)
        return gpunn__call_fail(
            &call, GPUNN_ERR_ARGUMENT,
            "padding_end is not used by transposed convolutions; leave it out and gpunn_slice the result");
    if (!gpunn__apply_defaults(&call, args)) return NULL;
    attr.groups = args->groups;
    if (x->dim[1] % attr.groups != 0 || args->out_channels % attr.groups != 0)
        return gpunn__call_fail(
            &call, GPUNN_ERR_ARGUMENT,
            "groups is %d, but the input has %d channels and out_channels is %d; it must divide both",
            attr.groups, (int)x->dim[1], args->out_channels);
    const int64_t out = args->out_channels;
    int64_t       weight_dim[5];
    weight_dim[0] = transposed ? x->dim[1] : out;
    weight_dim[1] = (transposed ? out : x->dim[1]) / attr.groups;
    for (int i = 0; i < axes; i++) weight_dim[2 + i] = attr.kernel[i];
    if (!gpunn__shared_filter(&call, args->weight, x->rank, weight_dim) ||
        !gpunn__shared_bias(&call, args->bias, args->no_bias, out))
        return NULL;
    if (uneven && (x = gpunn__pad_sides(x, attr.padding, ends, 0)) == NULL) return gpunn__undo(&call);
    return gpunn__affine(&call, operation, &attr, x, args->weight, x->rank, weight_dim, args->bias,
                         !args->no_bias, out);
}

/* The number of elements that a streaming convolution keeps. Returns -1 on failure. */
static int64_t gpunn__conv_past(const gpunn__call *call, const gpunn_conv_args *args)
{
    const int64_t kernel = args->kernel_shape[0] ? args->kernel_shape[0] : args->kernel_size;
    const int64_t dilation = args->dilations[0] ? args->dilations[0] : gpunn__default_int(args->dilation, 1);
    const int     stride = args->strides[0] ? args->strides[0] : gpunn__default_int(args->stride, 1);
    if (call->layer == NULL)
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               "with .stateful give the layer a name, since its state's name begins with it");
    else if (kernel < 1 || dilation < 1 || stride != 1)
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               "kernel_size is %lld, dilation %lld and stride %d, but .stateful needs 1 or "
                               "more and a stride of 1",
                               (long long)kernel, (long long)dilation, stride);
    else if (args->padding || args->paddings[0] || args->padding_end || args->paddings_end[0])
        (void)gpunn__call_fail(
            call, GPUNN_ERR_ARGUMENT,
            "padding is not used with .stateful, whose state stands before x; leave it out");
    else
        return dilation * (kernel - 1);
    return -1;
}

/* Makes a convolution that continues the sequence of the previous run. */
static gpunn_tensor *gpunn__conv_stream(gpunn_tensor *x, const char *name, gpunn_conv_args args)
{
    const gpunn_init zeros = {GPUNN_INIT_ZEROS, 0, 0};
    gpunn_tensor    *both[2] = {NULL, x}, *last = NULL, *state, *places;
    char             own_name[GPUNN__TEXT_SIZE];
    gpunn__call      call;
    if (!gpunn__begin_x(&call, "conv1d", name, x, true)) return NULL;
    const int64_t held = gpunn__held_sequences(&call, x, x->dim[0], args.capacity),
                  past = held ? gpunn__conv_past(&call, &args) : -1;
    if (past < 0) return NULL;
    args.stateful = false, args.capacity = 0;
    if (past == 0) return gpunn__conv_node(&gpunn__operation_conv1d, x, name, &args);
    (void)snprintf(own_name, sizeof own_name, "%s.past", name);
    state = gpunn_state(x->model, own_name, GPUNN_SHAPE(held, x->dim[1], past), zeros);
    if (state && gpunn__held_places(x->model, 1, x->dim[0], held, &places))
        both[0] = gpunn__held_rows(state, 0, places);
    gpunn_tensor *whole = both[0] ? gpunn_concat(both, 2, 2) : NULL;
    gpunn_tensor *y = whole ? gpunn__conv_node(&gpunn__operation_conv1d, whole, name, &args) : NULL;
    if (y) last = gpunn_slice(whole, 2, x->dim[2], GPUNN_END_OF_AXIS, 1);
    return gpunn__call_finish(&call, last && gpunn__hold_rows(state, 0, last) ? y : NULL);
}

GPUNN_API gpunn_tensor *gpunn_conv1d_(gpunn_tensor *x, const char *name, gpunn_conv_args args)
{
    if (args.stateful) return gpunn__conv_stream(x, name, args);
    return gpunn__conv_node(&gpunn__operation_conv1d, x, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_conv2d_(gpunn_tensor *x, const char *name, gpunn_conv_args args)
{
    return gpunn__conv_node(&gpunn__operation_conv2d, x, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_conv3d_(gpunn_tensor *x, const char *name, gpunn_conv_args args)
{
    return gpunn__conv_node(&gpunn__operation_conv3d, x, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_conv_transpose1d_(gpunn_tensor *x, const char *name, gpunn_conv_args args)
{
    return gpunn__conv_node(&gpunn__operation_conv_transpose1d, x, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_conv_transpose2d_(gpunn_tensor *x, const char *name, gpunn_conv_args args)
{
    return gpunn__conv_node(&gpunn__operation_conv_transpose2d, x, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_conv_transpose3d_(gpunn_tensor *x, const char *name, gpunn_conv_args args)
{
    return gpunn__conv_node(&gpunn__operation_conv_transpose3d, x, name, &args);
}

/* Makes the node of a pool. 1-d input is pooled as an image of height 1. */
static gpunn_tensor *gpunn__pool_result(const gpunn__call *call, const gpunn__operation *operation,
                                        const gpunn_attributes *attr, gpunn_tensor *x)
{
    gpunn__meta out;
    if (x->rank > 3) return gpunn__node(call, operation, attr, &x, 1);
    if (!gpunn__infer_node(call, operation, attr, &x, 1, &out)) return NULL;
    const gpunn_shape image = {{x->dim[0], x->dim[1], 1, x->dim[2]}},
                      row = {{out.dim[0], out.dim[1], out.dim[2]}};
    gpunn_attributes flat = *attr;
    flat.kernel[1] = attr->kernel[0], flat.stride[1] = attr->stride[0], flat.padding[1] = attr->padding[0];
    flat.dilation[1] = attr->dilation[0], flat.size[1] = attr->size[0];
    flat.kernel[0] = flat.stride[0] = flat.dilation[0] = flat.size[0] = 1, flat.padding[0] = 0;
    gpunn_tensor *y = gpunn_reshape(x, image);
    if (y) y = gpunn__node(call, operation, &flat, &y, 1);
    if (y) y = gpunn_reshape(y, row);
    return gpunn__call_finish(call, y);
}

/* Max-pools one axis of x [n, c, ...] with dilation. The cells of each window are placed along an axis of
 * their own, whose maximum is taken. Called from the last axis on, so that of equal values the first
 * counts. */
static gpunn_tensor *gpunn__dilated_axis(const gpunn_attributes *attr, gpunn_tensor *x, int axis,
                                         int64_t windows)
{
    const int       kernel = attr->kernel[axis - 2];
    const int64_t   stride = attr->stride[axis - 2];
    gpunn_tensor   *parts[GPUNN_MAX_OPERANDS];
    gpunn_shape     shape = gpunn_tensor_shape(x), apart = GPUNN_SHAPE(x->dim[0], x->dim[1], 1, 1);
    gpunn_pool_args window;
    int             count = 0;
    memset(&window, 0, sizeof window);
    window.kernel_shape[0] = kernel, window.kernel_shape[1] = 1;
    shape.dim[axis] = windows;
    for (int i = 2; i < x->rank; i++) apart.dim[3] *= shape.dim[i];
    for (int k = 0; k < kernel; k++) {
        const int64_t start = (int64_t)k * attr->dilation[axis - 2];
        if (count == GPUNN_MAX_OPERANDS) parts[0] = gpunn_concat(parts, count, 2), count = 1;
        parts[count++] = gpunn_reshape(
            gpunn_slice(x, axis, start, start + (windows - 1) * stride + 1, stride), apart);
    }
    x = gpunn_max_pool2d_(gpunn_concat(parts, count, 2), window);
    return x ? gpunn_reshape(x, shape) : NULL;
}

/* Makes a pool with dilation or with unequal padding at the two ends. x is padded first. */
static gpunn_tensor *gpunn__pool_of_padded(const gpunn__call *call, const gpunn__operation *operation,
                                           gpunn_attributes *attr, gpunn_tensor *x, int *ends)
{
    static const float one = 1;
    const gpunn_shape  scalar = {{0}};
    const bool         maximum = gpunn__op_is(operation->op, GPUNN__MAX_POOL),
               excludes = !maximum && attr->count_exclude_pad;
    bool        dilated = false;
    int64_t     windows[3] = {0, 0, 0};
    int         starts[3];
    gpunn_shape cells = GPUNN_SHAPE(1, 1);
    char        text[128];
    memcpy(starts, attr->padding, sizeof starts);
    for (int i = 0; i < x->rank - 2; i++) dilated = dilated || attr->dilation[i] > 1;
    if ((dilated || attr->ceil_mode) && !gpunn__axes_are_fixed(call, gpunn__meta_of(x), 2, x->rank - 1))
        return NULL;
    for (int i = 0; i < x->rank - 2; i++) {
        const int64_t size = cells.dim[2 + i] = x->dim[2 + i],
                      span = (int64_t)attr->dilation[i] * (attr->kernel[i] - 1) + 1;
        const int64_t padded = size + starts[i] + ends[i];
        if (!dilated && !attr->ceil_mode) continue;
        windows[i] = gpunn__windows(padded, attr->kernel[i], attr->stride[i], 0, attr->dilation[i],
                                    attr->ceil_mode);
        if (windows[i] < 1)
            return gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                                    "the window spans %lld along axis %d, but the padded input only %lld "
                                    "(input %s); use a smaller kernel or more padding",
                                    (long long)span, 2 + i, (long long)padded, gpunn__shape_text(x, text));
        if (attr->ceil_mode && (windows[i] - 1) * attr->stride[i] >= size + starts[i]) windows[i]--;
        if (dilated && (windows[i] - 1) * attr->stride[i] + span > padded)
            ends[i] = (int)((windows[i] - 1) * attr->stride[i] + span - size - starts[i]);
    }
    gpunn_tensor *y = gpunn__pad_sides(x, attr->padding, ends, maximum ? -INFINITY : 0);
    if (dilated) {
        for (int axis = x->rank - 1; axis >= 2 && y; axis--)
            y = gpunn__dilated_axis(attr, y, axis, windows[axis - 2]);
        return gpunn__call_finish(call, y);
    }
    attr->count_exclude_pad = false;
    if (y) y = gpunn__pool_result(call, operation, attr, y);
    if (y && excludes) {
        gpunn_tensor *share = gpunn_expand(gpunn_constant(call->model, scalar, &one), cells);
        if (share) share = gpunn__pad_sides(share, starts, ends, 0);
        if (share) share = gpunn__pool_result(call, operation, attr, share);
        y = share ? gpunn_div(y, share) : NULL;
    }
    for (int i = 0; i < x->rank - 2 && y && attr->ceil_mode; i++) y = gpunn_slice(y, 2 + i, 0, windows[i], 1);
    return gpunn__call_finish(call, y);
}

/* Makes a pool whose args have their defaults. */
static gpunn_tensor *gpunn__pool_node(const gpunn__call *call, const gpunn__operation *operation, int axes,
                                      gpunn_tensor *x, const gpunn_pool_args *args)
{
    gpunn_attributes attr = gpunn__no_attributes();
    int              ends[3] = {0, 0, 0};
    bool             apart = false;
    if (!gpunn__has_axes(call, gpunn__meta_of(x), axes) ||
        !gpunn__window_setting(call, axes, "kernel_size", "kernel_shape", args->kernel_size,
                               args->kernel_shape, gpunn__zeros, 1, attr.kernel) ||
        !gpunn__window_setting(call, axes, "stride", "strides", args->stride, args->strides, attr.kernel, 1,
                               attr.stride) ||
        !gpunn__window_setting(call, axes, "padding", "paddings", args->padding, args->paddings, gpunn__zeros,
                               0, attr.padding) ||
        !gpunn__window_setting(call, axes, "padding_end", "paddings_end", args->padding_end,
                               args->paddings_end, attr.padding, 0, ends) ||
        !gpunn__window_setting(call, axes, "dilation", "dilations", args->dilation, args->dilations,
                               gpunn__ones, 1, attr.dilation))
        return NULL;
    attr.groups = 1;
    attr.ceil_mode = args->ceil_mode;
    attr.count_exclude_pad = args->count_exclude_pad;
    for (int i = 0; i < axes; i++) {
        const int64_t span = (int64_t)attr.dilation[i] * (attr.kernel[i] - 1) + 1;
        const int     most = attr.padding[i] > ends[i] ? attr.padding[i] : ends[i];
        if (most > span / 2)
            return gpunn__call_fail(
                call, GPUNN_ERR_ARGUMENT,
                "padding is %d, more than half of the kernel's %lld; use a smaller padding", most,
                (long long)span);
        if (attr.dilation[i] > 1 && !gpunn__op_is(operation->op, GPUNN__MAX_POOL))
            return gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                                    "dilation is %d, but only max_pool has one; leave it out",
                                    attr.dilation[i]);
        apart = apart || attr.dilation[i] > 1 || ends[i] != attr.padding[i];
    }
    if (apart && x->dtype == GPUNN_U8)
        return gpunn__call_fail(call, GPUNN_ERR_DTYPE,
                                "x is u8, for which dilation is 1 and padding_end is padding; convert "
                                "it with gpunn_dequantize");
    return apart ? gpunn__pool_of_padded(call, operation, &attr, x, ends)
                 : gpunn__pool_result(call, operation, &attr, x);
}

/* Computes (mean of x^p * cells of the window)^(1/p). */
static gpunn_tensor *gpunn__lp_pool(const char *name, const gpunn__operation *operation, int axes,
                                    gpunn_tensor *x, const gpunn_lp_pool_args *args)
{
    static const char *const names[] = {"cells", "power"};
    const float              p = gpunn__default_float(args->norm_type, 2);
    double                   numbers[] = {1, 1 / (double)p};
    gpunn_pool_args          window;
    gpunn__call              call;
    memset(&window, 0, sizeof window);
    if (!gpunn__begin_x(&call, name, NULL, x, true)) return NULL;
    if (!(p > 0 && isfinite(p)))
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "norm_type is %g; use a positive number",
                                (double)p);
    window.kernel_size = args->kernel_size, window.stride = args->stride, window.ceil_mode = args->ceil_mode;
    memcpy(window.kernel_shape, args->kernel_shape, sizeof window.kernel_shape);
    memcpy(window.strides, args->strides, sizeof window.strides);
    for (int i = 0; i < axes; i++)
        numbers[0] *= args->kernel_shape[i] ? args->kernel_shape[i] : args->kernel_size;
    gpunn_tensor *y = gpunn_pow_scalar(x, p);
    if (y) y = gpunn__pool_node(&call, operation, axes, y, &window);
    if (y)
        y = gpunn__expr("m = cells * x; (1 if m == 0 else m) ** power if m != 0 else 0", NULL, &y, 1, names,
                        numbers, 2, NULL);
    return gpunn__call_finish(&call, y);
}

/* Whether x is one of images of 8-bit numbers, of which only maxima are pooled. */
static bool gpunn__pools_bytes(gpunn_op op, int axes, const gpunn_tensor *x)
{
    return op == GPUNN_OP_MAX_POOL2D && axes == 2 && x && x->dtype == GPUNN_U8;
}

#define GPUNN__X(name, operation, axes)                                                             \
    GPUNN_API gpunn_tensor *gpunn_##name##_(gpunn_tensor *x, gpunn_pool_args args)                  \
    {                                                                                               \
        const bool  bytes = gpunn__pools_bytes((operation).op, axes, x);                            \
        gpunn__call call;                                                                           \
        if (!gpunn__begin_x(&call, #name, NULL, x, !bytes) || !gpunn__apply_defaults(&call, &args)) \
            return NULL;                                                                            \
        return gpunn__pool_node(&call, &operation, axes, x, &args);                                 \
    }
GPUNN__X(max_pool1d, gpunn__operation_max_pool2d, 1)
GPUNN__X(max_pool2d, gpunn__operation_max_pool2d, 2)
GPUNN__X(max_pool3d, gpunn__operation_max_pool3d, 3)
GPUNN__X(avg_pool1d, gpunn__operation_avg_pool2d, 1)
GPUNN__X(avg_pool2d, gpunn__operation_avg_pool2d, 2)
GPUNN__X(avg_pool3d, gpunn__operation_avg_pool3d, 3)
#undef GPUNN__X

GPUNN_API gpunn_tensor *gpunn_lp_pool1d_(gpunn_tensor *x, gpunn_lp_pool_args args)
{
    return gpunn__lp_pool("lp_pool1d", &gpunn__operation_avg_pool2d, 1, x, &args);
}

GPUNN_API gpunn_tensor *gpunn_lp_pool2d_(gpunn_tensor *x, gpunn_lp_pool_args args)
{
    return gpunn__lp_pool("lp_pool2d", &gpunn__operation_avg_pool2d, 2, x, &args);
}

GPUNN_API gpunn_tensor *gpunn_lp_pool3d_(gpunn_tensor *x, gpunn_lp_pool_args args)
{
    return gpunn__lp_pool("lp_pool3d", &gpunn__operation_avg_pool3d, 3, x, &args);
}

static gpunn_tensor *gpunn__adaptive_pool(const char *name, const gpunn__operation *operation, int axes,
                                          gpunn_tensor *x, int first, int second, int third)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    const int        out[3] = {first, second, third};
    if (!gpunn__begin_x(&call, name, NULL, x, true) || !gpunn__has_axes(&call, gpunn__meta_of(x), axes))
        return NULL;
    for (int i = 0; i < axes; i++) {
        if (out[i] < 1)
            return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                    "the result's size along axis %d is %d; it must be 1 or more", 2 + i,
                                    out[i]);
        attr.size[i] = out[i];
    }
    return gpunn__pool_result(&call, operation, &attr, x);
}

GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool1d(gpunn_tensor *x, int out)
{
    return gpunn__adaptive_pool("adaptive_max_pool1d", &gpunn__operation_adaptive_max_pool2d, 1, x, out, 0,
                                0);
}

GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool2d(gpunn_tensor *x, int out_h, int out_w)
{
    return gpunn__adaptive_pool("adaptive_max_pool2d", &gpunn__operation_adaptive_max_pool2d, 2, x, out_h,
                                out_w, 0);
}

GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool3d(gpunn_tensor *x, int out_d, int out_h, int out_w)
{
    return gpunn__adaptive_pool("adaptive_max_pool3d", &gpunn__operation_adaptive_max_pool3d, 3, x, out_d,
                                out_h, out_w);
}

GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool1d(gpunn_tensor *x, int out)
{
    return gpunn__adaptive_pool("adaptive_avg_pool1d", &gpunn__operation_adaptive_avg_pool2d, 1, x, out, 0,
                                0);
}

GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool2d(gpunn_tensor *x, int out_h, int out_w)
{
    return gpunn__adaptive_pool("adaptive_avg_pool2d", &gpunn__operation_adaptive_avg_pool2d, 2, x, out_h,
                                out_w, 0);
}

GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool3d(gpunn_tensor *x, int out_d, int out_h, int out_w)
{
    return gpunn__adaptive_pool("adaptive_avg_pool3d", &gpunn__operation_adaptive_avg_pool3d, 3, x, out_d,
                                out_h, out_w);
}

GPUNN_API gpunn_tensor *gpunn_grid_sample_(gpunn_tensor *x, gpunn_tensor *grid, gpunn_grid_args args)
{
    gpunn_tensor    *operands[] = {x, grid};
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_op(&call, "grid_sample", GPUNN_OP_GRID_SAMPLE, operands, 2, 3) ||
        !gpunn__apply_defaults(&call, &args))
        return NULL;
    attr.mode = (int)args.mode;
    attr.padding_mode = (int)args.padding_mode;
    attr.align_corners = args.align_corners;
    return gpunn__node(&call, &gpunn__operation_grid_sample, &attr, operands, 2);
}

GPUNN_API gpunn_tensor *gpunn_roi_align_(gpunn_tensor *x, gpunn_tensor *boxes, gpunn_roi_args args)
{
    gpunn_tensor    *operands[] = {x, boxes};
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_op(&call, "roi_align", GPUNN_OP_ROI_ALIGN, operands, 2, 3) ||
        !gpunn__has_axes(&call, gpunn__meta_of(x), 2) ||
        !gpunn__window_setting(&call, 2, "output_size", "output_shape", args.output_size, args.output_shape,
                               gpunn__zeros, 1, attr.size) ||
        !gpunn__apply_defaults(&call, &args))
        return NULL;
    attr.scale = args.spatial_scale;
    attr.k = args.sampling_ratio;
    attr.align_corners = args.aligned;
    return gpunn__node(&call, &gpunn__operation_roi_align, &attr, operands, 2);
}

/* Takes the kernel's size from a weight [out, in / groups, kh, kw]. */
static bool gpunn__quantized_filter(const gpunn__call *call, const gpunn_tensor *weight, int kernel[3])
{
    char text[128];
    for (int i = 0; i < 4; i++) {
        if (weight->rank == 4 && weight->dim[i] > 0 && weight->dim[i] <= INT32_MAX) continue;
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               "weight is %s, but [out, in / groups, kh, kw] is needed",
                               gpunn__shape_text(weight, text));
        return false;
    }
    for (int i = 0; i < 2; i++) kernel[i] = (int)weight->dim[2 + i];
    return true;
}

GPUNN_API gpunn_tensor *gpunn_quantized_conv2d_(gpunn_tensor *x, gpunn_tensor *weight,
                                                gpunn_tensor *weight_scale, gpunn_tensor *bias,
                                                gpunn_quantized_conv_args args)
{
    gpunn_tensor    *operands[] = {x, weight, weight_scale, bias};
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_op(&call, "quantized_conv2d", GPUNN_OP_QUANTIZED_CONV2D, operands, 4, 14) ||
        !gpunn__has_axes(&call, gpunn__meta_of(x), 2) ||
        !gpunn__quantized_filter(&call, weight, attr.kernel) ||
        !gpunn__window_setting(&call, 2, "stride", "strides", args.stride, args.strides, gpunn__ones, 1,
                               attr.stride) ||
        !gpunn__window_setting(&call, 2, "padding", "paddings", args.padding, args.paddings, gpunn__zeros, 0,
                               attr.padding) ||
        !gpunn__window_setting(&call, 2, "dilation", "dilations", args.dilation, args.dilations, gpunn__ones,
                               1, attr.dilation) ||
        !gpunn__apply_defaults(&call, &args))
        return NULL;
    attr.groups = args.groups;
    attr.x_scale = args.x_scale;
    attr.x_zero_point = args.x_zero_point;
    attr.scale = args.scale;
    attr.zero_point = args.zero_point;
    attr.quant_min = args.quant_min;
    attr.quant_max = args.quant_max;
    return gpunn__node(&call, &gpunn__operation_quantized_conv2d, &attr, operands, 4);
}

GPUNN_API gpunn_tensor *gpunn_affine_grid(gpunn_tensor *theta, gpunn_shape size, bool align_corners)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_op(&call, "affine_grid", GPUNN_OP_AFFINE_GRID, &theta, 1, 1) ||
        gpunn__rank_of(&call, &size, 0) < 0)
        return NULL;
    attr.shape = size;
    attr.align_corners = align_corners;
    return gpunn__node(&call, &gpunn__operation_affine_grid, &attr, &theta, 1);
}

/* The formula floor(size * scale) for a variable size. 0 if the scale is no multiple of 1/k for any k up to
 * 64, or the size cannot be represented. */
static int64_t gpunn__scaled_size(gpunn_model *model, int64_t size, double scale)
{
    int64_t divisor = 1;
    while (divisor < 64 && floor(scale * (double)divisor) != scale * (double)divisor) divisor++;
    const double factor = scale * (double)divisor;
    if (floor(factor) != factor || factor > 1e9) return 0;
    const gpunn__sum one = gpunn__sum_of(model, size);
    const gpunn__sum sum = gpunn__sum_quotient(
        model, gpunn__sum_plus(gpunn__sum_number(0), &one, (int64_t)factor), divisor);
    return gpunn__dim_of_sum(model, &sum);
}

/* Sets up resizing of a variable axis, or to a variable size. size and ratio follow in
 * each run, except a ratio given by a scale. */
static bool gpunn__resize_sized(const gpunn__call *call, gpunn_attributes *attr, int i, int64_t in,
                                int64_t size, bool align_corners, double scale)
{
    attr->size[i] = size > 0 ? (int)size : 0;
    attr->ratio[i] = scale > 0 && !align_corners ? (float)(1 / scale) : 0;
    if (size <= 0) attr->shape.dim[i] = size ? size : gpunn__scaled_size(call->model, in, scale);
    if (size || attr->shape.dim[i]) return true;
    (void)gpunn__call_fail(
        call, GPUNN_ERR_SHAPE,
        "scale_factor %g gives no formula for axis %d, which varies; use a multiple of 1/64, or .size", scale,
        2 + i);
    return false;
}

GPUNN_API gpunn_tensor *gpunn_interpolate_(gpunn_tensor *x, gpunn_interpolate_args args)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    char             text[128];
    if (!gpunn__begin_x(&call, "interpolate", NULL, x, true) ||
        !gpunn__has_rank(
            &call, gpunn__meta_of(x), 3, 5,
            "[n, channels, length], [n, channels, height, width] or [n, channels, depth, height, width]") ||
        !gpunn__image_fits(&call, gpunn__meta_of(x)))
        return NULL;
    if (!gpunn__apply_defaults(&call, &args)) return NULL;
    if (args.align_corners && args.mode != GPUNN_INTERPOLATE_LINEAR && args.mode != GPUNN_INTERPOLATE_CUBIC)
        return gpunn__call_fail(
            &call, GPUNN_ERR_ARGUMENT,
            ".align_corners is used by GPUNN_INTERPOLATE_LINEAR and _CUBIC alone; leave it out");
    if (args.mode == GPUNN_INTERPOLATE_CUBIC && x->rank != 4)
        return gpunn__call_fail(
            &call, GPUNN_ERR_SHAPE,
            "x is %s, but GPUNN_INTERPOLATE_CUBIC needs [n, channels, height, width]; gpunn_reshape it",
            gpunn__shape_text(x, text));
    int axes = x->rank - 2;
    for (int i = 0; i < 3; i++) {
        double scale = i < axes ? args.scale_factor : 0;
        if (args.scale_factors[i] != 0) scale = args.scale_factors[i];
        if (i >= axes && (args.size[i] != 0 || scale != 0))
            return gpunn__call_fail(
                &call, GPUNN_ERR_ARGUMENT,
                "size[%d] or scale_factors[%d] is set, but x has %d spatial ax%s; leave it out", i, i, axes,
                axes == 1 ? "is" : "es");
        if (i >= axes) break;
        const bool sized = gpunn__size_place(call.model, args.size[i]) != 0;
        if (!(scale == 0 || (scale >= 1e-9 && scale <= 1e9)) || (args.size[i] < 0 && !sized) ||
            args.size[i] > INT32_MAX || (scale == 0 && args.size[i] == 0))
            return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                    "size is %lld and scale_factor %g along axis %d; set .size to 1 to 2^31 "
                                    "- 1 or .scale_factor to 1e-9 to 1e9",
                                    (long long)args.size[i], scale, 2 + i);
        if (sized || gpunn__is_sized(x->dim[2 + i])) {
            if (!gpunn__resize_sized(&call, &attr, i, x->dim[2 + i], args.size[i], args.align_corners, scale))
                return NULL;
            continue;
        }
        double size = args.size[i] ? (double)args.size[i] : floor((double)x->dim[2 + i] * scale);
        if (size < 1 || size > (double)INT32_MAX)
            return gpunn__call_fail(
                &call, GPUNN_ERR_SHAPE,
                "scale_factor %g gives size %g for the %lld along axis %d; use another factor", scale, size,
                (long long)x->dim[2 + i], 2 + i);
        attr.size[i] = (int)size;
        attr.ratio[i] = gpunn__resize_ratio(x->dim[2 + i], attr.size[i], args.align_corners, scale);
    }
    if (args.mode == GPUNN_INTERPOLATE_AREA)
        return gpunn__pool_result(
            &call, axes == 3 ? &gpunn__operation_adaptive_avg_pool3d : &gpunn__operation_adaptive_avg_pool2d,
            &attr, x);
    attr.mode = (int)args.mode;
    attr.align_corners = args.align_corners;
    return gpunn__node(&call, &gpunn__operation_interpolate, &attr, &x, 1);
}

/* Makes a norm with running statistics. affine: with weight and bias. */
static gpunn_tensor *gpunn__statistics_node(const gpunn__call *call, const gpunn__operation *operation,
                                            const gpunn_attributes *attr, gpunn_tensor *x, bool affine)
{
    static const struct {
        const char *suffix;
        float       value;
        gpunn__kind kind;
    } parts[4] = {{"weight", 1, GPUNN__PARAMETER},
                  {"bias", 0, GPUNN__PARAMETER},
                  {"running_mean", 0, GPUNN__BUFFER},
                  {"running_var", 1, GPUNN__BUFFER}};
    gpunn_tensor *operands[5] = {x, NULL, NULL, NULL, NULL};
    for (int i = affine ? 0 : 2; i < 4; i++) {
        operands[1 + i] = gpunn__layer_weight(call, parts[i].kind, parts[i].suffix, 1, &x->dim[1],
                                              GPUNN_INIT_CONSTANT, parts[i].value);
        if (operands[1 + i] == NULL) return NULL;
    }
    return gpunn__node(call, operation, attr, operands, 5);
}

/* Makes a group norm. affine: with weight and bias. */
static gpunn_tensor *gpunn__group_norm_node(const gpunn__call *call, gpunn_tensor *x, int64_t groups,
                                            float eps, bool affine)
{
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__axes_are_fixed(call, gpunn__meta_of(x), 1, 1)) return NULL;
    attr.groups = (int)groups;
    attr.eps = eps;
    gpunn_tensor *operands[3] = {x, NULL, NULL};
    for (int i = 0; i < 2 && affine; i++) {
        operands[1 + i] = gpunn__layer_weight(call, GPUNN__PARAMETER, i == 0 ? "weight" : "bias", 1,
                                              &x->dim[1], GPUNN_INIT_CONSTANT, i == 0 ? 1.0f : 0.0f);
        if (operands[1 + i] == NULL) return NULL;
    }
    return gpunn__node(call, &gpunn__operation_group_norm, &attr, operands, 3);
}

/* Makes a batch norm without running statistics. x [n, c, ...] becomes one sample [1, c,
 * n * ...], and the result is turned back. */
static gpunn_tensor *gpunn__norm_of_batch(const gpunn__call *call, gpunn_tensor *x, float eps, bool affine)
{
    gpunn_axes swap = GPUNN_AXES(1, 0);
    for (int i = 2; i < GPUNN_MAX_RANK + 1; i++) swap.axis[i] = i < x->rank ? i : GPUNN_END;
    gpunn_tensor *turned = gpunn_permute(x, swap), *y = gpunn_flatten(turned);
    if (y) y = gpunn_reshape(y, GPUNN_SHAPE(1, y->dim[0], y->dim[1]));
    if (y) y = gpunn__group_norm_node(call, y, x->dim[1], eps, affine);
    if (y) y = gpunn_reshape(y, gpunn_tensor_shape(turned));
    return gpunn__call_finish(call, gpunn_permute(y, swap));
}

static gpunn_tensor *gpunn__batch_norm_node(const char *op, gpunn_tensor *x, const char *name,
                                            gpunn_batch_norm_args *args, int lowest_rank, int highest_rank,
                                            const char *layout)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_layer(&call, op, name, x) ||
        !gpunn__has_rank(&call, gpunn__meta_of(x), lowest_rank, highest_rank, layout) ||
        !gpunn__axes_are_fixed(&call, gpunn__meta_of(x), 1, 1) || !gpunn__apply_defaults(&call, args))
        return NULL;
    attr.eps = args->eps;
    attr.momentum = args->momentum;
    attr.sync = args->sync;
    if (!args->no_running_stats)
        return gpunn__statistics_node(&call, &gpunn__operation_batch_norm, &attr, x, !args->no_affine);
    if (args->sync)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                ".sync needs running statistics; leave out .sync or .no_running_stats");
    return gpunn__norm_of_batch(&call, x, args->eps, !args->no_affine);
}

GPUNN_API gpunn_tensor *gpunn_batch_norm1d_(gpunn_tensor *x, const char *name, gpunn_batch_norm_args args)
{
    return gpunn__batch_norm_node("batch_norm1d", x, name, &args, 2, 3,
                                  "[n, channels] or [n, channels, length]");
}

GPUNN_API gpunn_tensor *gpunn_batch_norm2d_(gpunn_tensor *x, const char *name, gpunn_batch_norm_args args)
{
    return gpunn__batch_norm_node("batch_norm2d", x, name, &args, 4, 4, "[n, channels, height, width]");
}

GPUNN_API gpunn_tensor *gpunn_batch_norm3d_(gpunn_tensor *x, const char *name, gpunn_batch_norm_args args)
{
    return gpunn__batch_norm_node("batch_norm3d", x, name, &args, 5, 5,
                                  "[n, channels, depth, height, width]");
}

GPUNN_API gpunn_tensor *gpunn_group_norm_(gpunn_tensor *x, const char *name, gpunn_group_norm_args args)
{
    gpunn__call call;
    return gpunn__begin_layer(&call, "group_norm", name, x) &&
                   gpunn__has_rank(&call, gpunn__meta_of(x), 2, GPUNN_MAX_RANK, "[n, channels, ...]") &&
                   gpunn__apply_defaults(&call, &args)
               ? gpunn__group_norm_node(&call, x, args.num_groups, args.eps, !args.no_affine)
               : NULL;
}

static gpunn_tensor *gpunn__instance_norm_node(const char *op, gpunn_tensor *x, const char *name,
                                               gpunn_instance_norm_args *args, int rank, const char *layout)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    char             text[128];
    bool             one = true;
    if (!gpunn__begin_layer(&call, op, name, x) ||
        !gpunn__has_rank(&call, gpunn__meta_of(x), rank, rank, layout) || !gpunn__apply_defaults(&call, args))
        return NULL;
    for (int i = 2; i < rank; i++) one = one && x->dim[i] == 1;
    if (one)
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE,
                                "x is %s: one value per channel cannot be normalised; use larger images",
                                gpunn__shape_text(x, text));
    if (!args->track_running_stats)
        return gpunn__group_norm_node(&call, x, x->dim[1], args->eps, args->affine);
    if (!gpunn__axes_are_fixed(&call, gpunn__meta_of(x), 1, 1)) return NULL;
    attr.groups = (int)x->dim[1];
    attr.eps = args->eps;
    attr.momentum = args->momentum;
    return gpunn__statistics_node(&call, &gpunn__operation_instance_norm, &attr, x, args->affine);
}

GPUNN_API gpunn_tensor *gpunn_instance_norm1d_(gpunn_tensor *x, const char *name,
                                               gpunn_instance_norm_args args)
{
    return gpunn__instance_norm_node("instance_norm1d", x, name, &args, 3, "[n, channels, length]");
}

GPUNN_API gpunn_tensor *gpunn_instance_norm2d_(gpunn_tensor *x, const char *name,
                                               gpunn_instance_norm_args args)
{
    return gpunn__instance_norm_node("instance_norm2d", x, name, &args, 4, "[n, channels, height, width]");
}

GPUNN_API gpunn_tensor *gpunn_instance_norm3d_(gpunn_tensor *x, const char *name,
                                               gpunn_instance_norm_args args)
{
    return gpunn__instance_norm_node("instance_norm3d", x, name, &args, 5,
                                     "[n, channels, depth, height, width]");
}

static gpunn_tensor *gpunn__layer_norm_node(const gpunn__operation *operation, gpunn_tensor *x,
                                            const char *name, gpunn_layer_norm_args *args, bool bias)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    char             text[128];
    if (!gpunn__begin_layer(&call, gpunn_op_name(operation->op), name, x) ||
        !gpunn__apply_defaults(&call, args))
        return NULL;
    const int dims = args->dims;
    if (dims > x->rank)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                "dims is %d, but x is %s; use a number from 1 to its rank, %d", dims,
                                gpunn__shape_text(x, text), x->rank);
    attr.axis = x->rank - dims;
    if (!gpunn__axes_are_fixed(&call, gpunn__meta_of(x), attr.axis, x->rank - 1)) return NULL;
    attr.eps = args->eps;
    gpunn_tensor *operands[3] = {x, NULL, NULL};
    const int     parts = args->no_affine ? 0 : 1 + (bias && !args->no_bias);
    for (int i = 0; i < parts; i++) {
        operands[1 + i] = gpunn__layer_weight(&call, GPUNN__PARAMETER, i == 0 ? "weight" : "bias", dims,
                                              x->dim + attr.axis, GPUNN_INIT_CONSTANT, i == 0 ? 1.0f : 0.0f);
        if (operands[1 + i] == NULL) return NULL;
    }
    return gpunn__node(&call, operation, &attr, operands, 3);
}

GPUNN_API gpunn_tensor *gpunn_layer_norm_(gpunn_tensor *x, const char *name, gpunn_layer_norm_args args)
{
    return gpunn__layer_norm_node(&gpunn__operation_layer_norm, x, name, &args, true);
}

GPUNN_API gpunn_tensor *gpunn_rms_norm_(gpunn_tensor *x, const char *name, gpunn_layer_norm_args args)
{
    return gpunn__layer_norm_node(&gpunn__operation_rms_norm, x, name, &args, false);
}

GPUNN_API gpunn_tensor *gpunn_local_response_norm_(gpunn_tensor *x, gpunn_local_response_norm_args args)
{
    static const char *const names[] = {"k", "alpha", "power"};
    gpunn__call              call;
    if (!gpunn__begin_x(&call, "local_response_norm", NULL, x, true) ||
        !gpunn__has_rank(&call, gpunn__meta_of(x), 3, GPUNN_MAX_RANK, "[n, channels, ...]") ||
        !gpunn__axes_are_fixed(&call, gpunn__meta_of(x), 1, x->rank - 1) ||
        !gpunn__apply_defaults(&call, &args))
        return NULL;
    const double    numbers[] = {(double)args.k, (double)args.alpha, -(double)args.beta};
    gpunn_pool_args window;
    gpunn_pad_args  around = {0, {0}, {0}, GPUNN_PAD_CONSTANT, 0};
    gpunn_shape     column = {{x->dim[0], 1, x->dim[1], 1}};
    memset(&window, 0, sizeof window);
    window.kernel_shape[0] = args.size, window.kernel_shape[1] = window.strides[0] = window.strides[1] = 1;
    around.before[2] = args.size / 2;
    around.after[2] = (args.size - 1) / 2;
    for (int i = 2; i < x->rank; i++) column.dim[3] *= x->dim[i];
    gpunn_tensor *squares = gpunn_reshape(gpunn_square(x), column);
    squares = gpunn_avg_pool2d_(gpunn_pad_(squares, around), window);
    gpunn_tensor *operands[] = {x, gpunn_reshape(squares, gpunn_tensor_shape(x))};
    gpunn_tensor *y = operands[1]
                          ? gpunn__expr(GPUNN__LOCAL_RESPONSE, NULL, operands, 2, names, numbers, 3, NULL)
                          : NULL;
    return gpunn__call_finish(&call, y);
}

GPUNN_API gpunn_tensor *gpunn_bilinear_(gpunn_tensor *x1, gpunn_tensor *x2, const char *name,
                                        gpunn_bilinear_args args)
{
    gpunn__call call;
    char        one[128], other[128];
    if (!gpunn__begin_layer(&call, "bilinear", name, x1) || !gpunn__operand(&call, x2, "x2", true))
        return NULL;
    const int last = x1->rank - 1;
    if (x1->rank < 1 || x1->rank >= GPUNN_MAX_RANK || x2->rank != x1->rank ||
        memcmp(x1->dim, x2->dim, (size_t)last * sizeof *x1->dim) != 0)
        return gpunn__call_fail(
            &call, GPUNN_ERR_SHAPE,
            "x1 is %s and x2 is %s; both need 1 to %d axes, with equal sizes except for the last axis",
            gpunn__shape_text(x1, one), gpunn__shape_text(x2, other), GPUNN_MAX_RANK - 1);
    if (!gpunn__axes_are_fixed(&call, gpunn__meta_of(x1), last, last) ||
        !gpunn__axes_are_fixed(&call, gpunn__meta_of(x2), last, last))
        return NULL;
    const int64_t out = args.out_features, in[] = {x1->dim[last], x2->dim[last]}, dim[] = {out, in[0], in[1]};
    if (out < 1 || out * in[0] > (int64_t)INT32_MAX / in[1])
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                "out_features is %d for inputs of %lld and %lld features; set .out_features "
                                "to 1 or more, so that there are at most 2^31 weights",
                                args.out_features, (long long)in[0], (long long)in[1]);
    const float   bound = 1 / sqrtf((float)in[0]);
    gpunn_init    init = {GPUNN_INIT_UNIFORM, -bound, bound};
    gpunn_shape   column = gpunn_tensor_shape(x1), row = gpunn_tensor_shape(x2), flat = column;
    gpunn_tensor *parts[2] = {NULL, NULL};
    column.dim[last + 1] = 1, row.dim[last] = 1, row.dim[last + 1] = in[1], flat.dim[last] = in[0] * in[1];
    for (int i = 0; i < (args.no_bias ? 1 : 2); i++) {
        char own[GPUNN__NAME_SIZE + 8];
        (void)snprintf(own, sizeof own, "%s.%s", call.layer, i ? "bias" : "weight");
        parts[i] = gpunn__weight(&call, GPUNN__PARAMETER, own, i ? 1 : 3, dim, init);
        if (parts[i] == NULL) return NULL;
    }
    const gpunn_matmul_args turned = {0, false, true};
    gpunn_tensor *y = gpunn_reshape(gpunn_mul(gpunn_reshape(x1, column), gpunn_reshape(x2, row)), flat);
    y = gpunn_matmul_(y, gpunn_reshape(parts[0], GPUNN_SHAPE(out, in[0] * in[1])), turned);
    return gpunn__call_finish(&call, parts[1] ? gpunn_add(y, parts[1]) : y);
}
