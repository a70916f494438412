#include "base/forward_declarations.h"
#include "base/errors.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/model.h"
#include "base/shapes.h"
#include "graph/nodes.h"
#include "run/io.h"
#include "train/calibrate.h"
#include "train/lora.h"

/* ==== >>train/quantize =================================================================================== *
 * Makes a model of 8-bit integers from a calibrated one. Each unit is tried alone first, in a small model.
 * Then the graph is copied. A tensor of the graph becomes one of floats, one of bytes, or both. */

/* What the bytes of a tensor stand for. */
typedef struct gpunn__byte_range {
    float low, high, scale;
    int   zero;
} gpunn__byte_range;

/* A unit, and what becomes of it. */
typedef struct gpunn__quantized_unit {
    const gpunn__node_unit *unit;
    gpunn_tensor           *weight, *scale, *bias, *result; /* in the new model; weight NULL: a sum */
    bool                    apart;                          /* a sum of floats only, which is left alone */
    gpunn_quantized_layer   report;
} gpunn__quantized_unit;

/* What becomes of a tensor. */
typedef struct gpunn__converted {
    gpunn_tensor          *wide, *bytes; /* in the new model; NULL: not wanted there */
    gpunn__byte_range      range;        /* of a tensor that is shown */
    gpunn__quantized_unit *unit;         /* that begins here */
    bool                   native;       /* it is computed as bytes */
    bool                   inside;       /* it is the result of a quantised unit that began before */
    bool                   wants_wide, wants_bytes;
} gpunn__converted;

typedef struct gpunn__conversion {
    const gpunn_quantization_args *args;
    gpunn__network                 network;
    gpunn_model                   *from, *to;
    gpunn__quantized_unit         *units; /* [network.unit_count] */
    gpunn__converted              *at;    /* [tensor_count] of `from` */
} gpunn__conversion;

/* ---- ranges -------------------------------------------------------------------------------------------- */

/* The scale is one that rounds 0 to itself. */
static gpunn__byte_range gpunn__range_between(double low, double high)
{
    gpunn__byte_range range = {(float)low, (float)high, (float)((high - low) / (int)GPUNN__BYTE_MAX), 0};
    if (!(range.scale >= 1e-30f)) range.scale = 1.0f / (int)GPUNN__BYTE_MAX; /* zeros only */
    range.zero = (int)nearbyint(fmin(-low / (double)range.scale, GPUNN__BYTE_MAX));
    return range;
}

static gpunn__byte_range gpunn__range_of_record(const gpunn__observed *o, gpunn_range_method method)
{
    const double bound = method == GPUNN_RANGE_ENTROPY ? gpunn__entropy_bound(o) : HUGE_VAL;
    return gpunn__range_between(fmax((double)o->low, -bound), fmin((double)o->high, bound));
}

static gpunn__byte_range *gpunn__range_of(const gpunn__conversion *c, const gpunn_tensor *t)
{
    return &c->at[gpunn__range_root(t)->id].range;
}

/* Takes a range into another. */
static void gpunn__join_range(gpunn__byte_range *range, const gpunn__byte_range *other)
{
    const float low = fminf(range->low, other->low), high = fmaxf(range->high, other->high);
    *range = gpunn__range_between((double)low, (double)high);
}

/* Gives a concat and its operands one range. Returns whether one has grown. */
static bool gpunn__join_ranges(const gpunn__conversion *c, const gpunn_tensor *t)
{
    gpunn__byte_range all = *gpunn__range_of(c, t);
    bool              grown = false;
    for (int i = 0; i < t->input_count; i++) gpunn__join_range(&all, gpunn__range_of(c, t->inputs[i]));
    for (int i = -1; i < t->input_count; i++) {
        gpunn__byte_range *own = gpunn__range_of(c, i < 0 ? t : t->inputs[i]);
        grown = grown || own->low > all.low || own->high < all.high;
        *own = all;
    }
    return grown;
}

/* Repeats it, as concats may share operands. */
static void gpunn__join_all(const gpunn__conversion *c)
{
    bool grown = true;
    while (grown) {
        grown = false;
        for (int id = 0; id < c->from->tensor_count; id++) {
            const gpunn_tensor *t = c->from->tensors[id];
            if (c->network.shown[id] && gpunn__joins_elements(t)) grown |= gpunn__join_ranges(c, t);
        }
    }
}

static GPUNN__STATUS gpunn__find_ranges(gpunn__conversion *c)
{
    for (int id = 0; id < c->from->tensor_count; id++) {
        if (!c->network.shown[id]) continue;
        const gpunn__observed *o = gpunn__observed_of(c->from, c->from->tensors[id]);
        if (o == NULL)
            return gpunn__fail(c->from->dev, GPUNN_ERR_STATE,
                               "gpunn_quantize: the graph has changed since the calibration; call "
                               "gpunn_calibrate again");
        c->at[id].range = gpunn__range_of_record(o, c->args->method);
    }
    gpunn__join_all(c);
    return GPUNN_OK;
}

/* A bound of floats as a byte. */
static int gpunn__bound_byte(float x, const gpunn__byte_range *range, int usual)
{
    if (!isfinite(x)) return usual;
    const double byte = nearbyint((double)x / (double)range->scale) + range->zero;
    return (int)fmin(fmax(byte, 0), GPUNN__BYTE_MAX);
}

/* A value of a field whose 0 means a default. */
static int gpunn__or_zero(int value)
{
    return value ? value : GPUNN_ZERO;
}

/* ---- ops of bytes -------------------------------------------------------------------------------------- */

static gpunn_tensor *gpunn__to_bytes(gpunn_tensor *x, const gpunn__byte_range *range)
{
    const gpunn_quantize_args args = {0, range->scale, range->zero};
    return gpunn_quantize_per_tensor_(x, args);
}

static gpunn_tensor *gpunn__to_floats(gpunn_tensor *x, const gpunn__byte_range *range)
{
    const gpunn_quantize_args args = {0, range->scale, range->zero};
    return gpunn_dequantize_(x, args);
}

/* Makes a parameter, named as one of the layer's, with a suffix. If there is such a tensor, other than that
 * one, a number follows. */
static gpunn_tensor *gpunn__quantized_parameter(const gpunn__conversion *c, gpunn_model *to,
                                                const gpunn_tensor *named, const char *suffix,
                                                const gpunn_tensor *weight, int rank)
{
    const gpunn_init zeros = {GPUNN_INIT_ZEROS, 0, 0};
    char             name[GPUNN__NAME_SIZE];
    gpunn_shape      shape;
    memset(&shape, 0, sizeof shape);
    memcpy(shape.dim, weight->dim, (size_t)rank * sizeof *shape.dim);
    (void)snprintf(name, sizeof name, "%.200s%s", named->name, suffix);
    for (int n = 2; gpunn_find(to, name) || (gpunn_find(c->from, name) && strcmp(name, named->name) != 0);
         n++)
        (void)snprintf(name, sizeof name, "%.200s%s_%d", named->name, suffix, n);
    return gpunn_parameter(to, name, shape, zeros);
}

static gpunn_tensor *gpunn__quantized_sum(const gpunn__conversion *c, const gpunn__node_unit *unit,
                                          gpunn_tensor *const *x, const gpunn__byte_range *y, int low,
                                          int high)
{
    const gpunn__byte_range *a = gpunn__range_of(c, unit->first->inputs[0]),
                            *b = gpunn__range_of(c, unit->first->inputs[1]);
    const gpunn_quantized_add_args args = {0,        a->scale, b->scale, a->zero, b->zero,
                                           y->scale, y->zero,  low,      high};
    return gpunn_quantized_add_(x[0], x[1], args);
}

static gpunn_tensor *gpunn__quantized_product(const gpunn__conversion *c, const gpunn__quantized_unit *q,
                                              gpunn_tensor *x, const gpunn__byte_range *y, int low, int high)
{
    const gpunn_tensor               *first = q->unit->first;
    const gpunn__byte_range          *of_x = gpunn__range_of(c, first->inputs[0]);
    const gpunn_quantized_linear_args linear = {0, of_x->scale, of_x->zero, y->scale, y->zero, low, high};
    gpunn_quantized_conv_args         conv;
    if (first->op == GPUNN_OP_LINEAR) return gpunn_quantized_linear_(x, q->weight, q->scale, q->bias, linear);
    memset(&conv, 0, sizeof conv);
    memcpy(conv.strides, first->attr.stride, 2 * sizeof(int));
    memcpy(conv.paddings, first->attr.padding, 2 * sizeof(int));
    memcpy(conv.dilations, first->attr.dilation, 2 * sizeof(int));
    conv.groups = first->attr.groups;
    conv.x_scale = of_x->scale, conv.x_zero_point = of_x->zero;
    conv.scale = y->scale, conv.zero_point = y->zero;
    conv.quant_min = low, conv.quant_max = high;
    return gpunn_quantized_conv2d_(x, q->weight, q->scale, q->bias, conv);
}

/* Makes the unit's op, with its parameters, from operands of bytes. False on failure. */
static bool gpunn__make_unit(const gpunn__conversion *c, gpunn_model *to, gpunn__quantized_unit *q,
                             gpunn_tensor *const *x)
{
    const gpunn__node_unit  *unit = q->unit;
    const gpunn__byte_range *y = gpunn__range_of(c, unit->end);
    const int                low = gpunn__bound_byte(unit->low, y, 0),
              high = gpunn__or_zero(gpunn__bound_byte(unit->high, y, GPUNN__BYTE_MAX));
    if (unit->first->op == GPUNN_OP_ADD) {
        q->result = gpunn__quantized_sum(c, unit, x, y, low, high);
        return q->result != NULL;
    }
    const gpunn_tensor *weight = unit->first->inputs[1], *bias = unit->first->inputs[2];
    q->weight = gpunn__quantized_parameter(c, to, weight, "", weight, weight->rank);
    q->scale = gpunn__quantized_parameter(c, to, weight, "_scale", weight, 1);
    q->bias = gpunn__quantized_parameter(c, to, bias ? bias : weight, bias ? "" : "_bias", weight, 1);
    q->result = gpunn__quantized_product(c, q, x[0], y, low, high);
    return q->result != NULL;
}

/* ---- weights ------------------------------------------------------------------------------------------- */

typedef struct gpunn__weight_rows { /* of a weight, of whose elements there are out * each */
    float  *weight, *bias, *scale;
    int64_t out, each;
} gpunn__weight_rows;

/* Folds y = (x - mean) / sqrt(var + eps) gamma + beta into the rows. */
static GPUNN__STATUS gpunn__fold_batch_norm(const gpunn_tensor *norm, const gpunn__weight_rows *rows)
{
    gpunn_device *dev = norm->model->dev;
    float        *part[4] = {NULL, NULL, NULL, NULL}; /* gamma, beta, mean, var */
    int64_t       count;
    gpunn_status  status = GPUNN_OK;
    for (int i = 0; i < 4 && status == GPUNN_OK; i++)
        if (norm->inputs[1 + i] && (part[i] = gpunn__read_floats(norm->inputs[1 + i], &count)) == NULL)
            status = dev->error.status;
    for (int64_t o = 0; o < rows->out && status == GPUNN_OK; o++) {
        const double factor = (part[0] ? (double)part[0][o] : 1) /
                              sqrt((double)part[3][o] + (double)norm->attr.eps);
        const double beta = part[1] ? (double)part[1][o] : 0;
        for (int64_t k = 0; k < rows->each; k++)
            rows->weight[o * rows->each + k] = (float)((double)rows->weight[o * rows->each + k] * factor);
        rows->bias[o] = (float)(((double)rows->bias[o] - (double)part[2][o]) * factor + beta);
    }
    for (int i = 0; i < 4; i++) gpunn__free(dev, part[i], (size_t)rows->out * sizeof *part[i]);
    return status;
}

/* Rounds each row to multiples of its scale, from -127 to 127 times it. The scale is large enough for the
 * bias, which is rounded to multiples of x_scale scale: those up to 2^22 are exact. */
static void gpunn__round_rows(const gpunn__weight_rows *rows, float x_scale)
{
    for (int64_t o = 0; o < rows->out; o++) {
        float *row = rows->weight + o * rows->each, most = 0;
        for (int64_t k = 0; k < rows->each; k++) most = fmaxf(most, fabsf(row[k]));
        const float least = fabsf(rows->bias[o]) / ((float)(1 << 22) * x_scale), scale = most / 127;
        rows->scale[o] = scale > least ? scale : least;
        if (!(rows->scale[o] > 0)) rows->scale[o] = 1;
        for (int64_t k = 0; k < rows->each; k++)
            row[k] = (float)gpunn__rounded_weight(row[k], rows->scale[o]) * rows->scale[o];
    }
}

/* Takes a layer's weight and bias, with its batch norm folded in. */
static GPUNN__STATUS gpunn__read_rows(const gpunn__node_unit *unit, gpunn__weight_rows *rows)
{
    gpunn_device *dev = unit->first->model->dev;
    gpunn_tensor *weight = unit->first->inputs[1], *bias = unit->first->inputs[2];
    int64_t       count;
    rows->out = weight->dim[0];
    rows->each = gpunn__fan_in(weight);
    const size_t bytes = (size_t)rows->out * sizeof(float);
    rows->weight = gpunn__read_floats(weight, &count);
    rows->scale = (float *)gpunn__calloc(dev, bytes);
    rows->bias = bias ? gpunn__read_floats(bias, &count) : (float *)gpunn__calloc(dev, bytes);
    if (!rows->weight || !rows->scale || !rows->bias) return dev->error.status;
    return unit->norm ? gpunn__fold_batch_norm(unit->norm, rows) : GPUNN_OK;
}

/* Writes the parameters of a unit. */
static GPUNN__STATUS gpunn__write_unit(const gpunn__conversion *c, const gpunn__quantized_unit *q)
{
    gpunn__weight_rows rows;
    if (q->weight == NULL) return GPUNN_OK;
    memset(&rows, 0, sizeof rows);
    gpunn_status status = gpunn__read_rows(q->unit, &rows);
    const size_t bytes = (size_t)rows.out * sizeof(float), all = (size_t)rows.each * bytes;
    if (status == GPUNN_OK) {
        gpunn__round_rows(&rows, gpunn__range_of(c, q->unit->first->inputs[0])->scale);
        status = gpunn_write_as(q->weight, GPUNN_F32, rows.weight, all);
    }
    if (status == GPUNN_OK) status = gpunn_write_as(q->scale, GPUNN_F32, rows.scale, bytes);
    if (status == GPUNN_OK) status = gpunn_write_as(q->bias, GPUNN_F32, rows.bias, bytes);
    gpunn__free(c->from->dev, rows.weight, all);
    gpunn__free(c->from->dev, rows.scale, bytes);
    gpunn__free(c->from->dev, rows.bias, bytes);
    return status;
}

/* ---- errors -------------------------------------------------------------------------------------------- */

/* The signal-to-noise ratio of a result, in decibels: `made` of bytes or floats instead of `exact`. */
static GPUNN__STATUS gpunn__measure_noise(const gpunn__conversion *c, gpunn_tensor *exact, gpunn_tensor *made,
                                          double *decibels)
{
    const gpunn__byte_range *range = gpunn__range_of(c, exact);
    const double             zero = made->dtype == GPUNN_U8 ? range->zero : 0,
                 scale = made->dtype == GPUNN_U8 ? (double)range->scale : 1;
    gpunn_device *dev = c->from->dev;
    int64_t       count = 0, same = 0;
    float        *y = gpunn__read_floats(exact, &count), *found = gpunn__read_floats(made, &same);
    double        signal = 0, noise = 0;
    for (int64_t i = 0; y && found && i < count; i++) {
        const double error = ((double)found[i] - zero) * scale - (double)y[i];
        signal += (double)y[i] * (double)y[i];
        noise += error * error;
    }
    *decibels = noise > 0 ? 10 * log10(signal / noise) : HUGE_VAL;
    const gpunn_status status = y && found ? GPUNN_OK : dev->error.status;
    gpunn__free(dev, y, (size_t)count * sizeof *y);
    gpunn__free(dev, found, (size_t)same * sizeof *found);
    return status;
}

/* Copies what an input or value holds now to an input of the same dtype. */
static GPUNN__STATUS gpunn__copy_input(gpunn_tensor *from, gpunn_tensor *to)
{
    gpunn_device *dev = from->model->dev;
    const size_t  bytes = gpunn_tensor_bytes(from);
    void         *host = gpunn__realloc(dev, NULL, 0, bytes);
    if (host == NULL) return GPUNN_ERR_MEMORY;
    const gpunn_dtype dtype = gpunn_tensor_dtype(from);
    gpunn_status      status = gpunn_read_as(from, dtype, host, bytes);
    if (status == GPUNN_OK)
        status = gpunn__write_shape_as(to, "gpunn_quantize", dtype, host, gpunn_tensor_sizes(from));
    gpunn__free(dev, host, bytes);
    return status;
}

/* Runs a unit alone, in a model of its own, on what its operands hold now. */
static GPUNN__STATUS gpunn__try_unit(const gpunn__conversion *c, gpunn_model *alone, gpunn__quantized_unit *q)
{
    static const char *const names[] = {"a", "b"};
    gpunn_tensor *input[2], *x[2], *const *operands = q->unit->first->inputs;
    const int count = gpunn__unit_operands(q->unit);
    for (int i = 0; i < count; i++) {
        input[i] = gpunn_input(alone, names[i], gpunn_tensor_dtype(operands[i]),
                               gpunn_tensor_sizes(operands[i]));
        x[i] = gpunn__to_bytes(input[i], gpunn__range_of(c, operands[i]));
        if (x[i] == NULL) return c->from->dev->error.status;
    }
    gpunn_status status = gpunn__make_unit(c, alone, q, x) ? gpunn__write_unit(c, q)
                                                           : c->from->dev->error.status;
    for (int i = 0; i < count && status == GPUNN_OK; i++) status = gpunn__copy_input(operands[i], input[i]);
    if (status == GPUNN_OK) status = gpunn_forward(&q->result, 1);
    return status == GPUNN_OK ? gpunn__measure_noise(c, q->unit->end, q->result, &q->report.snr) : status;
}

static GPUNN__STATUS gpunn__measure_unit(const gpunn__conversion *c, gpunn__quantized_unit *q)
{
    gpunn_model_args args;
    memset(&args, 0, sizeof args);
    args.inference = true;
    gpunn_model *alone = gpunn_model_create_(c->from->dev, args);
    if (alone == NULL) return c->from->dev->error.status;
    const gpunn_status status = gpunn__try_unit(c, alone, q);
    gpunn_model_destroy(alone);
    return status;
}

/* ---- which units are quantised ------------------------------------------------------------------------- */

/* Whether the op moves or joins elements, as bytes if one of its operands is bytes. */
static bool gpunn__moves_bytes(const gpunn__conversion *c, const gpunn_tensor *t)
{
    return t->kind == GPUNN__VALUE &&
           (gpunn__moves_elements(t) || (c->network.shown[t->id] && gpunn__joins_elements(t)));
}

static bool gpunn__is_named(const gpunn_quantization_args *args, const char *layer)
{
    for (int i = 0; args->wide && args->wide[i]; i++)
        if (gpunn__pattern_wants(args->wide[i], layer)) return true;
    return false;
}

static void gpunn__take_unit(gpunn__conversion *c, gpunn__quantized_unit *q)
{
    const gpunn__node_unit *unit = q->unit;
    c->at[unit->first->id].unit = q;
    c->at[unit->end->id].inside = unit->end != unit->first;
    c->at[unit->end->id].native = true;
}

/* Decides about a unit, whose operands have been decided. */
static GPUNN__STATUS gpunn__decide_unit(gpunn__conversion *c, gpunn__quantized_unit *q)
{
    const gpunn_tensor *first = q->unit->first;
    q->apart = first->op == GPUNN_OP_ADD && !c->at[first->inputs[0]->id].native &&
               !c->at[first->inputs[1]->id].native;
    if (q->apart) return GPUNN_OK;
    if (gpunn__is_named(c->args, q->report.layer)) {
        q->report.wide = "named";
        return GPUNN_OK;
    }
    const gpunn_status status = gpunn__measure_unit(c, q);
    if (c->args->min_snr != 0 && !(q->report.snr >= (double)c->args->min_snr))
        q->report.wide = "error";
    else if (status == GPUNN_OK)
        gpunn__take_unit(c, q);
    return status;
}

static void gpunn__begin_unit(const gpunn__conversion *c, const gpunn__node_unit *unit,
                              gpunn__quantized_unit *q)
{
    const gpunn_tensor      *first = unit->first;
    const gpunn__byte_range *range = gpunn__range_of(c, unit->end);
    q->unit = unit;
    q->report.op = gpunn_op_name(first->op);
    q->report.layer = first->layer ? first->layer : first->name ? first->name : "";
    q->report.low = range->low, q->report.high = range->high;
    q->report.snr = q->report.total_snr = NAN;
}

/* Decides about all units. What moves bytes is native, too. */
static GPUNN__STATUS gpunn__decide(gpunn__conversion *c)
{
    gpunn_status status = GPUNN_OK;
    int          next = 0;
    for (int id = 0; id < c->from->tensor_count && status == GPUNN_OK; id++) {
        const gpunn_tensor *t = c->from->tensors[id];
        if (next < c->network.unit_count && c->network.units[next].first == t) {
            gpunn__begin_unit(c, &c->network.units[next], &c->units[next]);
            status = gpunn__decide_unit(c, &c->units[next++]);
        } else
            for (int i = 0; i < t->input_count && gpunn__moves_bytes(c, t); i++)
                c->at[id].native |= c->at[t->inputs[i]->id].native;
    }
    return status;
}

/* Fails if no unit is quantised. */
static GPUNN__STATUS gpunn__check_some(const gpunn__conversion *c)
{
    int named = 0, errors = 0;
    for (int i = 0; i < c->network.unit_count; i++) {
        const gpunn__quantized_unit *q = &c->units[i];
        if (!q->apart && q->report.wide == NULL) return GPUNN_OK;
        if (q->report.wide) *(strcmp(q->report.wide, "named") == 0 ? &named : &errors) += 1;
    }
    return gpunn__fail(c->from->dev, GPUNN_ERR_ARGUMENT,
                       "gpunn_quantize: no layer is left to quantise: %d are named in .wide, and %d have "
                       "less than .min_snr; name fewer, or lower it",
                       named, errors);
}

/* ---- the new model ------------------------------------------------------------------------------------- */

/* Finds in which forms each tensor is wanted. */
static void gpunn__find_wants(gpunn__conversion *c)
{
    const gpunn__calibration *calibration = c->from->calibration;
    for (int i = 0; i < calibration->output_count; i++) c->at[calibration->outputs[i]->id].wants_wide = true;
    for (int id = c->from->tensor_count - 1; id >= 0; id--) {
        const gpunn_tensor *t = c->from->tensors[id];
        gpunn__converted   *at = &c->at[id];
        const bool          moves = gpunn__moves_bytes(c, t), drops = t->op == GPUNN_OP_DROPOUT,
                   wanted = at->wants_wide || at->wants_bytes ||
                            (c->network.needed[id] && t->op == GPUNN_OP_ASSIGN);
        if (at->inside || !(wanted || at->unit)) continue;
        for (int i = 0; i < (at->unit ? gpunn__unit_operands(at->unit->unit) : t->input_count); i++) {
            gpunn__converted *in = t->inputs[i] ? &c->at[t->inputs[i]->id] : NULL;
            const bool        bytes = drops ? at->wants_bytes : at->unit || (moves && at->native);
            const bool        wide = drops ? at->wants_wide : !bytes;
            if (in) in->wants_bytes |= bytes, in->wants_wide |= wide;
        }
    }
}

/* Copies the table of sizes, so that dimensions mean the same in both models. */
static GPUNN__STATUS gpunn__copy_sizes(const gpunn_model *from, gpunn_model *to)
{
    for (int i = GPUNN__BATCH_ATOM + 1; i < from->size_count; i++) {
        gpunn__size size = from->sizes[i];
        size.name = size.name ? gpunn__strdup(to->dev, size.name) : NULL;
        size.text = size.text ? gpunn__strdup(to->dev, size.text) : NULL;
        size.found_by = NULL;
        const bool whole = !from->sizes[i].name == !size.name && !from->sizes[i].text == !size.text;
        if (whole && gpunn__size_append(to, &size) != 0) continue;
        gpunn__free_text(to->dev, size.name);
        gpunn__free_text(to->dev, size.text);
        return to->dev->error.status;
    }
    return GPUNN_OK;
}

/* Copies a tensor that no op computes. */
static gpunn_tensor *gpunn__copy_source(const gpunn__call *call, const gpunn_tensor *t)
{
    gpunn_tensor *copy;
    if (t->kind == GPUNN__CONSTANT) return gpunn_constant(call->model, gpunn_tensor_shape(t), t->constant);
    if (t->kind == GPUNN__INPUT)
        return gpunn_input(call->model, t->name, gpunn_tensor_dtype(t), gpunn_tensor_shape(t));
    copy = gpunn__set_layer(call, gpunn__weight(call, t->kind, t->name, t->rank, t->dim, t->init));
    if (copy) copy->state = t->state, copy->saved = t->saved;
    return copy;
}

/* Copies a tensor whose operands have been copied. bytes: computes it with bytes. */
static gpunn_tensor *gpunn__copy_tensor(const gpunn__conversion *c, const gpunn_tensor *t, bool bytes)
{
    const gpunn__call call = gpunn__call_of(c->to, "gpunn_quantize", t->layer);
    gpunn_tensor     *operands[GPUNN_MAX_OPERANDS];
    if (t->kind != GPUNN__VALUE) return gpunn__copy_source(&call, t);
    for (int i = 0; i < t->input_count; i++) {
        const gpunn__converted *in = t->inputs[i] ? &c->at[t->inputs[i]->id] : NULL;
        operands[i] = in ? bytes ? in->bytes : in->wide : NULL;
    }
    gpunn_tensor *copy = gpunn__node(&call, t->operation, &t->attr, operands, t->input_count);
    if (copy) copy->built_by = t->built_by;
    return copy;
}

/* Names the floats of a tensor as before, or else its bytes. The program holds the floats as before. */
static bool gpunn__keep_border(const gpunn__converted *at, const gpunn_tensor *t)
{
    gpunn_tensor *to = at->wide ? at->wide : at->bytes;
    if (at->wide && t->doubles) at->wide->doubles = true;
    return t->name == NULL || to->name || gpunn_set_name(to, t->name) != NULL;
}

/* Makes the other form of a tensor, if both are wanted, and keeps its name and dtype. False on failure. */
static bool gpunn__complete(const gpunn__conversion *c, const gpunn_tensor *t)
{
    gpunn__converted        *at = &c->at[t->id];
    const gpunn__byte_range *range = gpunn__range_of(c, t);
    if (at->bytes && at->wants_wide && (at->wide = gpunn__to_floats(at->bytes, range)) == NULL) return false;
    if (!at->bytes && at->wants_bytes && (at->bytes = gpunn__to_bytes(at->wide, range)) == NULL) return false;
    return gpunn__keep_border(at, t);
}

/* Gives the bytes of a layer its name, for reports and specs, if it is free. */
static bool gpunn__name_unit(const gpunn__conversion *c, const gpunn__quantized_unit *q)
{
    const char *layer = q->unit->first->layer;
    return layer == NULL || gpunn_find(c->from, layer) || gpunn_find(c->to, layer) ||
           gpunn_set_name(q->result, layer) != NULL;
}

/* Makes the unit that begins here. */
static bool gpunn__convert_unit(const gpunn__conversion *c, gpunn__quantized_unit *q)
{
    gpunn_tensor *x[2] = {NULL, NULL};
    for (int i = 0; i < gpunn__unit_operands(q->unit); i++) x[i] = c->at[q->unit->first->inputs[i]->id].bytes;
    if (!gpunn__make_unit(c, c->to, q, x) || !gpunn__name_unit(c, q)) return false;
    c->at[q->unit->end->id].bytes = q->result;
    return gpunn__complete(c, q->unit->end);
}

/* Makes what becomes of a tensor. False on failure. */
static bool gpunn__convert_tensor(const gpunn__conversion *c, const gpunn_tensor *t)
{
    gpunn__converted *at = &c->at[t->id];
    const bool        assigns = c->network.needed[t->id] && t->op == GPUNN_OP_ASSIGN,
               moves = gpunn__moves_bytes(c, t);
    if (at->unit) return gpunn__convert_unit(c, at->unit);
    if (at->inside || !(at->wants_wide || at->wants_bytes || assigns)) return true;
    if (t->op == GPUNN_OP_DROPOUT) {
        at->wide = c->at[t->inputs[0]->id].wide;
        at->bytes = c->at[t->inputs[0]->id].bytes;
        return gpunn__keep_border(at, t);
    }
    gpunn_tensor *copy = gpunn__copy_tensor(c, t, moves && at->native);
    if (copy) *(moves && at->native ? &at->bytes : &at->wide) = copy;
    return copy && gpunn__complete(c, t);
}

/* Copies the values of weights, or of states alone. */
static GPUNN__STATUS gpunn__copy_values(const gpunn__conversion *c, bool states)
{
    gpunn_status status = GPUNN_OK;
    for (int id = 0; id < c->from->tensor_count && status == GPUNN_OK; id++) {
        gpunn_tensor *t = c->from->tensors[id], *to = c->at[id].wide;
        if (to == NULL || (t->kind != GPUNN__PARAMETER && t->kind != GPUNN__BUFFER) || (states && !t->state))
            continue;
        int64_t      count;
        float       *values = gpunn__read_floats(t, &count);
        const size_t bytes = (size_t)count * sizeof *values;
        status = values ? gpunn_write_as(to, GPUNN_F32, values, bytes) : c->from->dev->error.status;
        gpunn__free(c->from->dev, values, bytes);
    }
    return status;
}

/* Copies the program's texts. */
static GPUNN__STATUS gpunn__copy_metadata(const gpunn__conversion *c)
{
    gpunn_status status = GPUNN_OK;
#ifdef GPUNN_NO_SPECS
    (void)c;
#else
    const gpunn__spec *spec = &c->from->spec;
    for (int i = 0; i < spec->metadata_count && status == GPUNN_OK; i++)
        status = gpunn_set_metadata(c->to, spec->metadata[i].key, spec->metadata[i].value);
#endif
    return status;
}

/* Makes the calibrated outputs those of the new model's spec. */
static GPUNN__STATUS gpunn__set_results(const gpunn__conversion *c)
{
    const gpunn__calibration *calibration = c->from->calibration;
    gpunn__spec              *spec = &c->to->spec;
    spec->outputs = (gpunn_tensor **)gpunn__calloc(c->to->dev,
                                                   (size_t)calibration->output_count * sizeof *spec->outputs);
    if (spec->outputs == NULL) return GPUNN_ERR_MEMORY;
    spec->output_capacity = calibration->output_count;
    for (; spec->output_count < calibration->output_count; spec->output_count++)
        spec->outputs[spec->output_count] = c->at[calibration->outputs[spec->output_count]->id].wide;
    return GPUNN_OK;
}

static GPUNN__STATUS gpunn__build_quantized(gpunn__conversion *c)
{
    gpunn_device *dev = c->from->dev;
    gpunn_status  status = gpunn__copy_sizes(c->from, c->to);
    gpunn__find_wants(c);
    for (int id = 0; id < c->from->tensor_count && status == GPUNN_OK; id++)
        if (!gpunn__convert_tensor(c, c->from->tensors[id])) status = dev->error.status;
    for (int i = 0; i < c->network.unit_count && status == GPUNN_OK; i++)
        if (c->at[c->units[i].unit->first->id].unit) status = gpunn__write_unit(c, &c->units[i]);
    if (status == GPUNN_OK) status = gpunn__copy_values(c, false);
    if (status == GPUNN_OK) status = gpunn__copy_metadata(c);
    return status == GPUNN_OK ? gpunn__set_results(c) : status;
}

/* The result of a unit in the new model. */
static gpunn_tensor *gpunn__unit_result(const gpunn__conversion *c, const gpunn__quantized_unit *q)
{
    const gpunn__converted *at = &c->at[q->unit->end->id];
    return at->native ? at->bytes : at->wide;
}

/* Runs the new model on the same inputs, and measures all units. list: room for unit_count tensors. */
static GPUNN__STATUS gpunn__measure_all(gpunn__conversion *c, gpunn_tensor **list)
{
    gpunn_status status = GPUNN_OK;
    int          count = 0;
    for (int id = 0; id < c->from->tensor_count && status == GPUNN_OK; id++)
        if (c->from->tensors[id]->kind == GPUNN__INPUT && c->at[id].wide)
            status = gpunn__copy_input(c->from->tensors[id], c->at[id].wide);
    for (int i = 0; i < c->network.unit_count; i++)
        if (!c->units[i].apart) list[count++] = gpunn__unit_result(c, &c->units[i]);
    if (status == GPUNN_OK) status = gpunn_forward(list, count);
    for (int i = 0; i < c->network.unit_count && status == GPUNN_OK; i++) {
        gpunn__quantized_unit *q = &c->units[i];
        if (!q->apart)
            status = gpunn__measure_noise(c, q->unit->end, gpunn__unit_result(c, q), &q->report.total_snr);
    }
    return status == GPUNN_OK ? gpunn__copy_values(c, true) : status;
}

static GPUNN__STATUS gpunn__check_wide(const gpunn_model *model, const char *const *wide)
{
    for (int i = 0; wide && wide[i]; i++) {
        const char *fault = gpunn__pattern_fault(wide[i]);
        if (fault)
            return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                               "gpunn_quantize: '%.64s' in .wide is no pattern: %s", wide[i], fault);
    }
    return GPUNN_OK;
}

/* Fails if the model or the arguments do not allow it. */
static GPUNN__STATUS gpunn__check_quantize(const gpunn_model *model, const gpunn_quantization_args *args)
{
    const gpunn_status status = gpunn__check_floats(model, "gpunn_quantize");
    if (status != GPUNN_OK) return status;
    if (!gpunn__is_calibrated(model))
        return gpunn__fail(model->dev, GPUNN_ERR_STATE,
                           "gpunn_quantize: %s; call gpunn_calibrate with samples first",
                           model->calibration ? "the weights have changed since the calibration"
                                              : "there are no ranges of the model's values");
    if ((int)args->method < GPUNN_RANGE_MIN_MAX || args->method > GPUNN_RANGE_ENTROPY ||
        args->min_snr != args->min_snr)
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_quantize: .method %d or .min_snr %g is not possible; use a "
                           "gpunn_range_method, and a number",
                           (int)args->method, (double)args->min_snr);
    return gpunn__check_wide(model, args->wide);
}

/* Decides, builds and measures. list: room for unit_count tensors. */
static GPUNN__STATUS gpunn__quantize_network(gpunn__conversion *c, gpunn_tensor **list)
{
    gpunn_status status = gpunn__find_ranges(c);
    if (status == GPUNN_OK) status = gpunn__run_shown(&c->network);
    if (status == GPUNN_OK) status = gpunn__decide(c);
    if (status == GPUNN_OK) status = gpunn__check_some(c);
    if (status == GPUNN_OK) status = gpunn__build_quantized(c);
    if (status == GPUNN_OK) status = gpunn__measure_all(c, list);
    for (int i = 0; i < c->network.unit_count && status == GPUNN_OK; i++)
        if (c->args->report && !c->units[i].apart) c->args->report(c->args->user, &c->units[i].report);
    return status;
}

/* Allocates what the conversion of a network needs, and makes it. */
static GPUNN__STATUS gpunn__quantize_found(gpunn__conversion *c)
{
    gpunn_device *dev = c->from->dev;
    const size_t  tensors = (size_t)c->from->tensor_count * sizeof *c->at,
                 count = (size_t)c->network.unit_count, units = count * sizeof *c->units;
    gpunn_tensor **list = (gpunn_tensor **)gpunn__calloc(dev, count * sizeof(gpunn_tensor *));
    gpunn_status   status = GPUNN_ERR_MEMORY;
    c->at = (gpunn__converted *)gpunn__calloc(dev, tensors);
    c->units = (gpunn__quantized_unit *)gpunn__calloc(dev, units);
    if (list && c->at && c->units) status = gpunn__quantize_network(c, list);
    gpunn__free(dev, list, count * sizeof(gpunn_tensor *));
    gpunn__free(dev, c->at, tensors);
    gpunn__free(dev, c->units, units);
    return status;
}

static GPUNN__STATUS gpunn__quantize_into(gpunn__conversion *c)
{
    const gpunn__calibration *calibration = c->from->calibration;
    gpunn_status status = gpunn__network_find(c->from, calibration->outputs, calibration->output_count,
                                              &c->network);
    if (status == GPUNN_OK) status = gpunn__quantize_found(c);
    gpunn__network_free(&c->network);
    return status;
}

GPUNN_API gpunn_model *gpunn_quantize_(gpunn_model *model, gpunn_quantization_args args)
{
    gpunn__conversion c;
    gpunn_model_args  inference;
    memset(&c, 0, sizeof c);
    memset(&inference, 0, sizeof inference);
    inference.inference = true;
    if (model == NULL) (void)gpunn__fail_null(NULL, "gpunn_quantize", "model");
    if (model == NULL || gpunn__check_quantize(model, &args) != GPUNN_OK) return NULL;
    c.args = &args;
    c.from = model;
    c.to = gpunn_model_create_(model->dev, inference);
    if (c.to && gpunn__quantize_into(&c) == GPUNN_OK) return c.to;
    gpunn_model_destroy(c.to);
    return NULL;
}
