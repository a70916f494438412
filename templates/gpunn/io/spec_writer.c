#include "io/spec_writer.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/tables.h"
#include "base/shapes.h"
#include "base/model.h"
#include "common/blocks.h"
#include "plan/storage.h"
#include "base/text.h"
#include "graph/infer.h"
#include "layers/basic.h"
#include "cpu/optimizers.h"
#include "io/save.h"

/* ---- saving -------------------------------------------------------------------------------------------- */

static const char *const gpunn__init_names[] = {"zeros",   "zeros",  "constant",
                                                "uniform", "normal", "kaiming_uniform"};

GPUNN__INTERNAL const char *gpunn__kind_name(gpunn_update_kind kind)
{
    return gpunn__rules[kind].function + sizeof "gpunn_" - 1;
}

GPUNN__INTERNAL const gpunn__setting_list *gpunn__setting_list_of(const char *first)
{
    static const gpunn__setting_list lists[] = {{"beta1", "betas", "two", 2},
                                                {"ns_a", "ns_coefficients", "three", 3}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (strcmp(first, lists[i].first) == 0) return &lists[i];
    return NULL;
}

/* The name of the layer whose entry contains this value. Recurrent layers return NULL: several may share a
 * name, so their entries list their parameters. */
static const char *gpunn__entry_layer(const gpunn_tensor *t)
{
    return gpunn__op_is(t->op, GPUNN__RECURRENT) ? NULL : t->layer;
}

/* The id of a tensor in the file: its name, else its layer's name if no tensor has that, else a new one from
 * its number. */
static const char *gpunn__id_of(const gpunn_tensor *t, char text[GPUNN__NAME_SIZE])
{
    gpunn_model *model = t->model;
    if (t->name) return t->name;
    if (gpunn__entry_layer(t) && gpunn_find(model, t->layer) == NULL) return t->layer;
    int used = snprintf(text, GPUNN__NAME_SIZE, "t%d", t->id);
    for (bool taken = true; taken;) {
        taken = gpunn_find(model, text) || gpunn__index_find(model, GPUNN__BY_LAYER, text);
        if (taken) text[used++] = '_', text[used] = 0;
    }
    return text;
}

static void gpunn__emit_id(gpunn__writer *w, const gpunn_tensor *t)
{
    char text[GPUNN__NAME_SIZE];
    gpunn__emit_name(w, "", gpunn__id_of(t, text));
}

static void gpunn__emit_float(gpunn__writer *w, const char *separator, const char *key, float value)
{
    gpunn__emitf(w, "%s\"%s\": ", separator, key);
    gpunn__emit_number(w, "", value);
}

static void gpunn__emit_dim(gpunn__writer *w, const char *separator, const gpunn_model *model, int64_t dim)
{
    char               value[GPUNN__SIZE_BUFFER + 8];
    gpunn__text_buffer line = {value, sizeof value, 0};
    gpunn__put_dim(&line, model, dim, "\"");
    gpunn__emitf(w, "%s%s", separator, value);
}

static void gpunn__emit_shape(gpunn__writer *w, const gpunn_tensor *t)
{
    gpunn__emitf(w, ", \"shape\": [");
    for (int i = 0; i < t->rank; i++) gpunn__emit_dim(w, i ? ", " : "", t->model, t->dim[i]);
    gpunn__emitf(w, "]");
}

/* Emits the named sizes and their bounds. */
static void gpunn__emit_named_sizes(gpunn__writer *w, const gpunn_model *model)
{
    int count = 0;
    for (int i = 0; i < model->size_count; i++) {
        const gpunn__size *size = &model->sizes[i];
        const struct {
            const char *key;
            int64_t     value, usual;
        } bounds[] = {
            {"min", size->min, size->multiple}, {"max", size->max, 0}, {"multiple", size->multiple, 1}};
        const char *separator = "";
        if (size->name == NULL) continue;
        gpunn__emitf(w, "%s\"%s\": {", count++ ? ", " : ",\n  \"sizes\": {", size->name);
        for (int k = 0; k < 3; k++) {
            if (bounds[k].value == bounds[k].usual) continue;
            gpunn__emitf(w, "%s\"%s\": %lld", separator, bounds[k].key, (long long)bounds[k].value);
            separator = ", ";
        }
        gpunn__emitf(w, "}");
    }
    if (count) gpunn__emitf(w, "}");
}

/* The initial values that a layer's builder gives to its parameter. */
static gpunn_init gpunn__usual_init(const gpunn_tensor *layer, const gpunn_tensor *parameter)
{
    gpunn_init init = {GPUNN_INIT_DEFAULT, 0, 0};
    if (layer == NULL) return init;
    if (layer->op == GPUNN_OP_LINEAR || gpunn__op_is(layer->op, GPUNN__CONVOLUTION)) {
        init.kind = GPUNN_INIT_KAIMING_UNIFORM;
        init.a = 1;
        for (int i = 1; i < layer->inputs[1]->rank; i++) init.a *= (float)layer->inputs[1]->dim[i];
    } else if (layer->op == GPUNN_OP_EMBEDDING) {
        init.kind = GPUNN_INIT_NORMAL;
        init.b = 1;
    } else {
        init.kind = GPUNN_INIT_CONSTANT;
        init.a = parameter == layer->inputs[1] ? 1 : 0;
        if (layer->op == GPUNN_OP_PARAMETRIC_RELU) init.a = parameter->init.a;
    }
    return init;
}

static bool gpunn__inits_differ(gpunn_init a, gpunn_init b)
{
    if (a.kind == GPUNN_INIT_ZEROS) a.kind = GPUNN_INIT_DEFAULT;
    if (b.kind == GPUNN_INIT_ZEROS) b.kind = GPUNN_INIT_DEFAULT;
    return a.kind != b.kind || a.a != b.a || a.b != b.b;
}

/* Emits the settings of a parameter that differ from the defaults. separator: the text before the first
 * one. */
static void gpunn__emit_settings(gpunn__writer *w, const char *separator, const gpunn_tensor *layer,
                                 const gpunn_tensor *t, bool frozen)
{
    if (gpunn__inits_differ(t->init, gpunn__usual_init(layer, t))) {
        gpunn__emitf(w, "%s\"init\": {\"kind\": \"%s\"", separator, gpunn__init_names[t->init.kind]);
        if (t->init.a != 0) gpunn__emit_float(w, ", ", "a", t->init.a);
        if (t->init.b != 0) gpunn__emit_float(w, ", ", "b", t->init.b);
        gpunn__emitf(w, "}");
        separator = ", ";
    }
    if (t->state) return;
    if (!t->trainable && !frozen) {
        gpunn__emitf(w, t->base ? "%s\"frozen\": true" : "%s\"trainable\": false", separator);
        separator = ", ";
    }
    if (!t->decay) {
        gpunn__emitf(w, "%s\"decay\": false", separator);
        separator = ", ";
    }
    if (t->lr_scale != 1) {
        gpunn__emit_float(w, separator, "lr_scale", t->lr_scale);
        separator = ", ";
    }
    const gpunn_dtype storage = gpunn__is_blocks(t->storage) ? t->storage : t->requested_storage;
    if (storage) gpunn__emitf(w, "%s\"storage\": \"%s\"", separator, gpunn_dtype_name(storage));
}

/* An attribute as a number, for comparison with a default; NAN if it is not a single number. */
static double gpunn__attribute_number(const gpunn_tensor *t, const gpunn__attribute *a)
{
    const void *from = (const char *)&t->attr + a->place;
    const int  *ints = (const int *)from;
    switch (a->kind) {
    case GPUNN__A_SIZE:
    case GPUNN__A_COUNT:
    case GPUNN__A_ALONG:
    case GPUNN__A_EXISTS:
    case GPUNN__A_SAME_RANK: return (double)gpunn__attribute_size(t, a);
    case GPUNN__A_BOOL: return *(const bool *)from;
    case GPUNN__A_NOT: return !*(const bool *)from;
    case GPUNN__A_LAST: return t->rank - *ints;
    case GPUNN__A_DIM:
    case GPUNN__A_INT64: return (double)*(const int64_t *)from;
    case GPUNN__A_FLOAT: return (double)*(const float *)from;
    case GPUNN__A_WINDOW: return gpunn__all_equal(ints, t->rank - 2) ? *ints : (double)NAN;
    case GPUNN__A_INT:
    case GPUNN__A_CLASS_REDUCTION:
    case GPUNN__A_GRID_MODE:
    case GPUNN__A_GRID_PADDING:
    case GPUNN__A_INTERPOLATE_MODE:
    case GPUNN__A_PAD_MODE:
    case GPUNN__A_INTEGER_OP: return *ints;
    default: return (double)NAN;
    }
}

/* Whether an entry may omit this attribute because its builder infers the same value. */
static bool gpunn__attribute_is_default(const gpunn_tensor *t, const gpunn__attribute *a,
                                        const gpunn__argument *key)
{
    if (a->kind == GPUNN__A_AXES) return t->attr.axes == (1u << t->inputs[0]->rank) - 1;
    if (a->kind == GPUNN__A_ROW) return t->attr.ignore_index < 0;
    if (gpunn__op_is(t->op, GPUNN__POOL) && strcmp(a->name, "stride") == 0)
        return memcmp(t->attr.stride, t->attr.kernel, sizeof t->attr.stride) == 0;
    return gpunn__attribute_number(t, a) ==
           (a->kind == GPUNN__A_FLOAT ? (double)(float)key->otherwise : key->otherwise);
}

/* The tensor that a key refers to; NULL if there is none or it belongs to the layer itself. */
static const gpunn_tensor *gpunn__attribute_operand(const gpunn_tensor *t, const gpunn__row *row,
                                                    const gpunn__argument *key)
{
    const int           i = (int)key->otherwise;
    const gpunn_tensor *x = i < t->input_count ? t->inputs[i] : NULL;
    return x && (row->kind != GPUNN__LAYER || !gpunn__is_own(t, x)) ? x : NULL;
}

/* The scale factor of axis i if it cannot be computed from the sizes; 0 if it can. */
static float gpunn__attribute_scale(const gpunn_tensor *t, int i)
{
    const int64_t in = t->inputs[0]->dim[2 + i], out = t->dim[2 + i];
    const bool    sized = gpunn__is_sized(in) || gpunn__is_sized(out);
    const float   usual = sized ? 0 : gpunn__resize_ratio(in, out, t->attr.align_corners, 0);
    return memcmp(&usual, &t->attr.ratio[i], sizeof usual) != 0 ? 1 / t->attr.ratio[i] : 0;
}

/* Emits the sizes of an interpolation. */
static void gpunn__emit_sizes(gpunn__writer *w, const gpunn_tensor *t, const char *key)
{
    const int64_t *size = t->dim + 2;
    const int      axes = t->rank - 2;
    bool           list = false;
    for (int i = 0; i < axes; i++) list = list || size[i] != size[0];
    gpunn__emitf(w, ", \"%s\": %s", key, list ? "[" : "");
    for (int i = 0; i < (list ? axes : 1); i++) gpunn__emit_dim(w, i ? ", " : "", t->model, size[i]);
    gpunn__emitf(w, list ? "]" : "");
}

/* Emits its scale factors if they cannot be computed from the sizes. */
static void gpunn__emit_factors(gpunn__writer *w, const gpunn_tensor *t, const char *key)
{
    const int axes = t->rank - 2;
    bool      scaled = false;
    for (int i = 0; i < axes; i++) scaled = scaled || gpunn__attribute_scale(t, i) != 0;
    for (int i = 0; scaled && i < axes; i++) {
        char               value[64];
        gpunn__text_buffer line = {value, sizeof value, 0};
        gpunn__put_float(&line, gpunn__attribute_scale(t, i), 9);
        if (i == 0) gpunn__emitf(w, ", \"%s\": [", key);
        gpunn__emitf(w, "%s%s", i ? ", " : "", value);
    }
    if (scaled) gpunn__emitf(w, "]");
}

/* Emits the end of a slice, exclusive, unless it is the end of the axis. */
static void gpunn__emit_end(gpunn__writer *w, const gpunn_tensor *t, const char *key)
{
    const int     axis = t->attr.axis;
    const int64_t from = t->attr.start, size = t->inputs[0]->dim[axis],
                  last = from + (t->dim[axis] - 1) * t->attr.step;
    const bool sized = gpunn__is_sized(size) || gpunn__is_sized(from) || gpunn__is_sized(t->attr.end);
    if (sized ? t->attr.end == size : last + t->attr.step >= size) return;
    gpunn__emitf(w, ", \"%s\": ", key);
    gpunn__emit_dim(w, "", t->model, sized ? t->attr.end : last + 1);
}

static void gpunn__emit_list(gpunn__writer *w, const char *key, const int64_t *values, int count)
{
    gpunn__emitf(w, ", \"%s\": [", key);
    for (int i = 0; i < count; i++) gpunn__emitf(w, "%s%lld", i ? ", " : "", (long long)values[i]);
    gpunn__emitf(w, "]");
}

/* Emits the numbers of a custom op, without trailing zeros. */
static void gpunn__emit_numbers(gpunn__writer *w, const float *numbers, const char *key)
{
    int count = GPUNN_CUSTOM_NUMBERS;
    while (count > 0 && numbers[count - 1] == 0) count--;
    for (int i = 0; i < count; i++) {
        if (i == 0) gpunn__emitf(w, ", \"%s\": [", key);
        gpunn__emit_number(w, i ? ", " : "", numbers[i]);
    }
    if (count) gpunn__emitf(w, "]");
}

/* Emits the references to the weights of a recurrent node. */
static void gpunn__emit_weights(gpunn__writer *w, const gpunn_tensor *t, const char *key)
{
    gpunn__emitf(w, ", \"%s\": [", key);
    for (int i = GPUNN__WEIGHTS; i < t->input_count; i++) {
        if (t->inputs[i] == NULL) continue;
        gpunn__emitf(w, i > GPUNN__WEIGHTS ? ", " : "");
        gpunn__emit_id(w, t->inputs[i]);
    }
    gpunn__emitf(w, "]");
}

/* Emits a key that corresponds to no attribute, unless it has its default. */
static void gpunn__emit_key(gpunn__writer *w, const gpunn_tensor *t, const gpunn__row *row,
                            const gpunn__argument *key)
{
    const char         *name = key->name, *word = NULL;
    const gpunn_tensor *x;
    switch (key->kind) {
    case GPUNN__K_SIZES: gpunn__emit_sizes(w, t, name); break;
    case GPUNN__K_FACTORS: gpunn__emit_factors(w, t, name); break;
    case GPUNN__K_END: gpunn__emit_end(w, t, name); break;
    case GPUNN__K_SHAPE:
    case GPUNN__K_RESULT: gpunn__emit_shape(w, t); break;
    case GPUNN__K_COUNTS: gpunn__emit_list(w, name, t->dim + 1, t->rank - 2); break;
    case GPUNN__K_NUMBER: /* initial value of prelu's weight */
        x = t->inputs[1]->kind == GPUNN__VALUE ? t->inputs[1]->inputs[0] : t->inputs[1];
        if (x->init.kind == GPUNN_INIT_CONSTANT && x->init.a != (float)key->otherwise)
            gpunn__emit_float(w, ", ", name, x->init.a);
        break;
    case GPUNN__K_DTYPE: word = gpunn_dtype_name(t->dtype); break;
    case GPUNN__K_BIAS:
    case GPUNN__K_REFERENCE:
        x = gpunn__attribute_operand(t, row, key);
        if (x == NULL) break;
        gpunn__emitf(w, ", \"%s\": ", name);
        gpunn__emit_id(w, x);
        break;
    case GPUNN__K_REFERENCES: gpunn__emit_weights(w, t, name); break;
    case GPUNN__K_NUMBERS: gpunn__emit_numbers(w, t->attr.numbers, name); break;
    case GPUNN__K_NAME: word = t->op == GPUNN_OP_CUSTOM ? t->attr.custom->name : t->layer; break;
    default: break;
    }
    if (word == NULL) return;
    gpunn__emitf(w, ", \"%s\": ", name);
    gpunn__emit_name(w, "", word);
}

/* The list's element for a key; the list's end if there is none. */
static const gpunn__attribute *gpunn__attribute_as(const gpunn__attribute *a, const gpunn__argument *key)
{
    while (a->name && (key->kind == GPUNN__K_BIAS || strcmp(key->name, a->name) != 0)) a++;
    return a;
}

/* Emits the attributes of an elementwise op, or the keys of any other op's row, unless they have their
 * defaults. */
static void gpunn__emit_arguments(gpunn__writer *w, const gpunn_tensor *t, const gpunn__row *row)
{
    for (int i = 0; i < gpunn__op_attribute_count(t->op); i++) {
        float usual = gpunn__op_attribute_default(t->op, i);
        if (memcmp(&t->attr.value[i], &usual, sizeof usual) != 0) /* -0 differs from 0 */
            gpunn__emit_float(w, ", ", gpunn__op_infos[t->op].attribute[i], t->attr.value[i]);
    }
    for (const gpunn__argument *key = row ? row->arguments : NULL; key && *key->name; key++) {
        char                    value[GPUNN__TEXT_SIZE];
        gpunn__text_buffer      line = {value, sizeof value, 0};
        const gpunn__attribute *a = gpunn__attribute_as(row->attributes, key);
        if (a->name == NULL) a = gpunn__attribute_as(gpunn__shown[row - gpunn__rows], key);
        if (a->name == NULL || key->kind >= GPUNN__K_INIT) {
            gpunn__emit_key(w, t, row, key);
        } else if (!gpunn__attribute_is_default(t, a, key)) {
            gpunn__put_attribute(&line, t, a, true);
            gpunn__emitf(w, ", \"%s\": ", key->name);
            gpunn__emit(w, value, line.used);
        }
    }
}

/* Emits the settings of a layer's own tensors, first .. t->id - 1. */
static void gpunn__emit_layer_settings(gpunn__writer *w, const gpunn_tensor *t, int first)
{
    gpunn_tensor *const *tensors = t->model->tensors;
    size_t               length = strlen(t->layer);
    int                  parameters = 0, frozen = 0, base = 0, shown = 0;
    for (int i = first; i < t->id; i++) {
        parameters += tensors[i]->kind == GPUNN__PARAMETER;
        frozen += tensors[i]->kind == GPUNN__PARAMETER && !tensors[i]->trainable;
        base += tensors[i]->kind == GPUNN__PARAMETER && tensors[i]->base;
        if (!gpunn__is_saved(tensors[i])) continue;
        if ((strncmp(tensors[i]->name, t->layer, length) != 0 || tensors[i]->name[length] != '.') &&
            w->status == GPUNN_OK)
            w->status = gpunn__fail(
                w->dev, GPUNN_ERR_UNSUPPORTED,
                "gpunn_spec_save: '%.200s' belongs to layer '%.200s', but has been renamed; restore its name",
                tensors[i]->name, t->layer);
    }
    bool all = parameters > 0 && frozen == parameters && (base == 0 || base == frozen);
    if (all) gpunn__emitf(w, base ? ", \"frozen\": true" : ", \"trainable\": false");
    for (int i = first; i < t->id; i++) {
        if (tensors[i]->kind != GPUNN__PARAMETER) continue;
        gpunn__writer measure = *w;
        measure.pass = GPUNN__MEASURE;
        measure.length = 0;
        gpunn__emit_settings(&measure, "", t, tensors[i], all);
        if (measure.length == 0) continue;
        gpunn__emitf(w, shown++ ? ", " : ", \"parameters\": {");
        gpunn__emit_name(w, "", tensors[i]->name + length + 1);
        gpunn__emitf(w, ": {");
        gpunn__emit_settings(w, "", t, tensors[i], all);
        gpunn__emitf(w, "}");
    }
    if (shown) gpunn__emitf(w, "}");
}

/* The last value of the layer to which parameter or buffer t belongs; NULL if it belongs to none. */
static const gpunn_tensor *gpunn__layer_of(const gpunn_tensor *t)
{
    const gpunn_model *model = t->model;
    for (int i = t->id + 1; t->layer && i < model->tensor_count; i++) {
        const gpunn_tensor *value = model->tensors[i];
        if (value->kind == GPUNN__VALUE && value->layer && gpunn__is_own(value, t)) return value;
    }
    return NULL;
}

/* Emits the entry of tensor t. If t is a layer's value, the entry covers everything that the layer created:
 * first .. t->id - 1. */
static void gpunn__emit_tensor_entry(gpunn__writer *w, const gpunn_tensor *t, int first)
{
    static const char *const sources[] = {"", "input", "parameter", "state", "constant"};
    static const char *const batch_norms[] = {"batch_norm1d", "batch_norm1d", "batch_norm2d", "batch_norm3d"};
    static const char *const instance_norms[] = {"instance_norm1d", "instance_norm1d", "instance_norm2d",
                                                 "instance_norm3d"};
    const int                spatial = t->rank - 2; /* axes after samples and channels */
    const char              *op = t->kind == GPUNN__VALUE ? gpunn_op_name(t->op) : sources[t->kind];
    char                     text[GPUNN__NAME_SIZE];
    const char              *id = gpunn__id_of(t, text), *layer = gpunn__entry_layer(t);
    switch ((int)t->op) {
    case GPUNN_OP_BATCH_NORM: op = batch_norms[spatial]; break;
    case GPUNN_OP_INSTANCE_NORM: op = instance_norms[spatial]; break;
    case GPUNN_OP_SUM: op = t->attr.mean ? "mean" : "sum"; break;
    case GPUNN_OP_NLL: op = "nll_loss"; break;
    case GPUNN_OP_PARAMETRIC_RELU: op = t->layer ? "prelu" : op; break;
    default: break;
    }
    const gpunn__row *row = gpunn__row_called(op);
    int               operands = row && row->operands >= 0 ? row->operands : t->input_count;
    if (t->op == GPUNN_OP_ATTENTION) operands = t->inputs[1] ? 3 : 1;
    gpunn__emitf(w, "{\"op\": \"%s\"", op);
    if (t->kind == GPUNN__INPUT || t->kind == GPUNN__PARAMETER || t->state) {
        gpunn__emitf(w, ", \"name\": ");
        gpunn__emit_name(w, "", t->name);
    } else if (layer) {
        gpunn__emitf(w, ", \"name\": ");
        gpunn__emit_name(w, "", layer);
    }
    if (t->kind == GPUNN__CONSTANT ||
        (t->kind == GPUNN__VALUE && (layer == NULL || strcmp(layer, id) != 0))) {
        gpunn__emitf(w, ", \"id\": ");
        gpunn__emit_name(w, "", id);
    }
    for (int i = 0; i < operands; i++) {
        gpunn__emitf(w, i ? ", " : ", \"inputs\": [");
        gpunn__emit_id(w, t->inputs[i]);
    }
    if (operands) gpunn__emitf(w, "]");
    if (t->kind == GPUNN__VALUE) {
        gpunn__emit_arguments(w, t, row);
        if (layer) gpunn__emit_layer_settings(w, t, first);
    } else {
        if (t->kind == GPUNN__INPUT && gpunn_tensor_dtype(t) != GPUNN_F32)
            gpunn__emitf(w, ", \"dtype\": \"%s\"", gpunn_dtype_name(gpunn_tensor_dtype(t)));
        gpunn__emit_shape(w, t);
        if (t->kind == GPUNN__PARAMETER || t->state) gpunn__emit_settings(w, ", ", NULL, t, false);
        if (t->saved) gpunn__emitf(w, ", \"saved\": true");
    }
    for (int64_t i = 0; t->constant && i < gpunn__count(t, 1); i++)
        gpunn__emit_number(w, i ? ", " : ", \"values\": [", t->constant[i]);
    gpunn__emitf(w, t->constant ? "]}" : "}");
}

static void gpunn__emit_tensors(gpunn__writer *w, const gpunn_model *model)
{
    gpunn__emitf(w, ",\n  \"tensors\": [");
    for (int i = 0; i < model->tensor_count; i++) {
        const gpunn_tensor *t = model->tensors[i], *layer = gpunn__is_saved(t) ? gpunn__layer_of(t) : NULL;
        gpunn__emitf(w, i ? ",\n    " : "\n    ");
        gpunn__emit_tensor_entry(w, layer ? layer : t, i);
        if (layer) i = layer->id;
    }
    gpunn__emitf(w, "\n  ]");
}

static void gpunn__recipe_of(const gpunn_optimizer *opt, gpunn__recipe *recipe)
{
    recipe->is_set = true;
    recipe->kind = opt->rule.kind;
    memcpy(recipe->setting, opt->rule.setting, sizeof recipe->setting);
    recipe->setting[0] = opt->lr;
    recipe->clip_norm = opt->clip_norm;
    recipe->clip_value = opt->clip_value;
    recipe->average_decay = opt->average_decay;
}

/* Emits a list of settings if one of them is not the default. */
static void gpunn__emit_setting_list(gpunn__writer *w, const gpunn__setting_list *list,
                                     const gpunn__setting *setting, const float *value)
{
    bool usual = true;
    for (int i = 0; i < list->count; i++) usual = usual && value[i] == setting[i].usual;
    if (usual) return;
    gpunn__emitf(w, ", \"%s\": ", list->name);
    for (int i = 0; i < list->count; i++) gpunn__emit_number(w, i ? ", " : "[", value[i]);
    gpunn__emitf(w, "]");
}

static void gpunn__emit_recipe(gpunn__writer *w, const gpunn__recipe *recipe)
{
    const gpunn__rule *rule = &gpunn__rules[recipe->kind];
    gpunn__emitf(w, ",\n  \"optimizer\": {\"type\": \"%s\"", gpunn__kind_name(recipe->kind));
    for (int i = 0; rule->setting[i].key; i++) {
        const gpunn__setting      *setting = &rule->setting[i];
        const float                value = recipe->setting[i];
        const gpunn__setting_list *list = gpunn__setting_list_of(setting->key);
        if (list) {
            gpunn__emit_setting_list(w, list, setting, &recipe->setting[i]);
            i += list->count - 1;
        } else if (setting->flag && value != 0)
            gpunn__emitf(w, ", \"%s\": true", setting->key);
        else if (!setting->flag && (value != setting->usual || i == 0)) /* lr is always written */
            gpunn__emit_float(w, ", ", setting->key, value);
    }
    gpunn__emitf(w, "}");
    if (recipe->clip_norm != 0) gpunn__emit_float(w, ",\n  ", "clip_grad_norm", recipe->clip_norm);
    if (recipe->clip_value != 0) gpunn__emit_float(w, ",\n  ", "clip_grad_value", recipe->clip_value);
    if (recipe->average_decay != 0) gpunn__emit_float(w, ",\n  ", "ema_decay", recipe->average_decay);
}

/* Emits the last component of a path, without its extension. */
static void gpunn__emit_file_name(gpunn__writer *w, const char *path)
{
    char        name[GPUNN__NAME_SIZE];
    const char *from = path;
    for (const char *c = path; *c; c++)
        if (*c == '/' || *c == '\\') from = c + 1;
    const char *end = strrchr(from, '.');
    size_t      length = end && end > from ? (size_t)(end - from) : strlen(from);
    (void)snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), from);
    gpunn__emit_name(w, "", name);
}

GPUNN__INTERNAL int gpunn__unread(const gpunn_model *model, gpunn_tensor **out)
{
    int count = 0;
    for (int i = 0; i < model->tensor_count; i++) {
        gpunn_tensor *t = model->tensors[i];
        out[i] = t->kind == GPUNN__VALUE && t->op != GPUNN_OP_ASSIGN && !t->adapter ? t : NULL;
        for (int k = 0; k < t->input_count; k++)
            if (t->inputs[k]) out[t->inputs[k]->id] = NULL;
    }
    for (int i = 0; i < model->tensor_count; i++)
        if (out[i]) out[count++] = out[i];
    return count;
}

static void gpunn__emit_outputs(gpunn__writer *w, gpunn_tensor *const *outputs, int count)
{
    for (int i = 0; i < count; i++) {
        gpunn__emitf(w, i ? ", " : ",\n  \"outputs\": [");
        gpunn__emit_id(w, outputs[i]);
    }
    if (count) gpunn__emitf(w, "]");
}

/* Emits the outputs given, else the spec's, else the values that no op reads. */
static void gpunn__emit_results(gpunn__writer *w, const gpunn_model *model, const gpunn_spec_args *args)
{
    gpunn_device  *dev = model->dev;
    const size_t   bytes = (size_t)model->tensor_count * sizeof(gpunn_tensor *);
    int            given = 0;
    gpunn_tensor **unread;
    while (given < 8 && args->outputs[given]) given++;
    if (given || model->spec.output_count) {
        gpunn__emit_outputs(w, given ? args->outputs : model->spec.outputs,
                            given ? given : model->spec.output_count);
        return;
    }
    if (w->status != GPUNN_OK || bytes == 0) return;
    if ((unread = (gpunn_tensor **)gpunn__realloc(dev, NULL, 0, bytes)) == NULL) {
        w->status = GPUNN_ERR_MEMORY;
        return;
    }
    gpunn__emit_outputs(w, unread, gpunn__unread(model, unread));
    gpunn__free(dev, unread, bytes);
}

GPUNN__INTERNAL void gpunn__emit_spec(gpunn__writer *w, const gpunn_model *model, const char *path,
                                      const gpunn_spec_args *args)
{
    const gpunn__spec  *spec = &model->spec;
    gpunn__recipe       recipe = spec->recipe;
    const gpunn_tensor *loss = args->loss ? args->loss : spec->loss;
    if (args->optimizer) gpunn__recipe_of(args->optimizer, &recipe);
    gpunn__emitf(w, "{\n  \"gpunn_spec\": 1,\n  \"name\": ");
    if (args->name || spec->name)
        gpunn__emit_name(w, "", args->name ? args->name : spec->name);
    else
        gpunn__emit_file_name(w, path);
    gpunn__emitf(w, ",\n  \"precision\": \"%s\"", gpunn__precision_names[model->precision]);
    gpunn__emit_named_sizes(w, model);
    gpunn__emit_tensors(w, model);
    gpunn__emit_results(w, model, args);
    if (loss) {
        gpunn__emitf(w, ",\n  \"loss\": ");
        gpunn__emit_id(w, loss);
    }
    if (recipe.is_set) gpunn__emit_recipe(w, &recipe);
    gpunn__emitf(w, "\n}\n");
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__check_spec(const gpunn_model *model, const char *caller,
                                                const gpunn_spec_args *args)
{
    if (model == NULL) return gpunn__fail_null(NULL, caller, "model");
    bool ours = (args->loss == NULL || args->loss->model == model) &&
                (args->optimizer == NULL || args->optimizer->model == model);
    for (int i = 0; i < 8 && args->outputs[i]; i++) ours = ours && args->outputs[i]->model == model;
    if (ours) return GPUNN_OK;
    return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                       "%s: the loss, an output or the optimizer belongs to another model; use those of this "
                       "model",
                       caller);
}

GPUNN_API gpunn_status gpunn_spec_save_(gpunn_model *model, const char *path, gpunn_spec_args args)
{
    gpunn_status  status = gpunn__check_spec(model, "gpunn_spec_save", &args);
    gpunn__file   file;
    gpunn__writer w;
    if (status != GPUNN_OK) return status;
    memset(&w, 0, sizeof w);
    w.dev = model->dev;
    w.file = &file;
    w.pass = GPUNN__HEADER;
    w.status = gpunn__file_open(model->dev, path, &file);
    if (w.status != GPUNN_OK) return w.status;
    gpunn__find_storage(model);
    gpunn__emit_spec(&w, model, path, &args);
    if (w.status == GPUNN_OK) w.status = gpunn__file_commit(&file);
    gpunn__file_discard(&file);
    return w.status;
}

typedef struct gpunn__spec_text {
    const gpunn_model     *model;
    const gpunn_spec_args *args;
} gpunn__spec_text;

static void gpunn__emit_spec_text(gpunn__writer *w, const void *what)
{
    const gpunn__spec_text *text = (const gpunn__spec_text *)what;
    gpunn__emit_spec(w, text->model, "model", text->args);
}

GPUNN_API gpunn_status gpunn_spec_save_memory_(gpunn_model *model, gpunn_array *out, gpunn_spec_args args)
{
    static const char caller[] = "gpunn_spec_save_memory";
    gpunn_status      status = gpunn__check_spec(model, caller, &args);
    gpunn__spec_text  text = {model, &args};
    if (status == GPUNN_OK && out == NULL) return gpunn__fail_null(model->dev, caller, "array");
    if (status == GPUNN_OK) gpunn__find_storage(model);
    return status == GPUNN_OK ? gpunn__text_write(model->dev, out, gpunn__emit_spec_text, &text) : status;
}
