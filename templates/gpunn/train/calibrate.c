#include "train/calibrate.h"
#include "base/forward_declarations.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/shapes.h"
#include "base/tables.h"
#include "common/traits.h"
#include "graph/nodes.h"
#include "plan/steps.h"
#include "train/loader.h"

/* ---- histograms ---------------------------------------------------------------------------------------- */

/* Makes the bins twice as wide. */
static void gpunn__merge_bins(gpunn__observed *o)
{
    int64_t *above = o->bins + GPUNN__SIDE_BINS, *below = above - 1;
    for (int i = 0; i < GPUNN__SIDE_BINS; i++) {
        const bool old = 2 * i < GPUNN__SIDE_BINS;
        above[i] = old ? above[2 * i] + above[2 * i + 1] : 0;
        below[-i] = old ? below[-2 * i] + below[-2 * i - 1] : 0;
    }
    o->width *= 2;
}

/* Makes the bins wide enough for the range. */
static void gpunn__fit_bins(gpunn__observed *o)
{
    int power;
    (void)frexp(o->high > -o->low ? (double)o->high : -(double)o->low, &power);
    const double width = ldexp(1.0 / (int)GPUNN__SIDE_BINS, power);
    if (o->width == 0) o->width = width;
    while (o->width < width) gpunn__merge_bins(o);
}

/* Adds n numbers. False if one of them is not finite; the record is then of no use. */
static bool gpunn__observe(gpunn__observed *o, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) return false;
        o->low = x[i] < o->low ? x[i] : o->low;
        o->high = x[i] > o->high ? x[i] : o->high;
    }
    if (o->low == o->high) return true;
    gpunn__fit_bins(o);
    const double inverse = 1 / o->width;
    for (int64_t i = 0; i < n; i++)
        if (x[i] != 0) o->bins[GPUNN__SIDE_BINS + (int)floor((double)x[i] * inverse)]++;
    return true;
}

static int64_t gpunn__sum_bins(const int64_t *bins, int count)
{
    int64_t sum = 0;
    for (int i = 0; i < count; i++) sum += bins[i];
    return sum;
}

/* The Kullback-Leibler divergence sum p log(p / q) between the histogram p of the numbers clipped to the
 * range of the bins [first, first + n), and what is left of them on GPUNN__BYTE_MAX levels: q is level where
 * p is not 0. As in NVIDIA's 8-bit inference with TensorRT (Migacz, 2017), q lacks what is clipped. A small
 * share of a uniform distribution is mixed into q, so that q is nowhere 0. */
static double gpunn__divergence(const gpunn__observed *o, int first, int n)
{
    const int64_t *bins = o->bins + first;
    const int64_t  left = gpunn__sum_bins(o->bins, first), inside = gpunn__sum_bins(bins, n),
                  right = gpunn__sum_bins(bins + n, 2 * GPUNN__SIDE_BINS - first - n);
    const double share = 1e-3;
    double       sum = 0;
    if (inside == 0) return HUGE_VAL;
    for (int level = 0, i = 0; level < GPUNN__BYTE_MAX; level++) {
        const int end = (level + 1) * n / GPUNN__BYTE_MAX;
        int64_t   count = 0, used = 0;
        for (int k = i; k < end; k++) count += bins[k], used += bins[k] > 0;
        for (; i < end; i++) {
            const int64_t whole = bins[i] + (i == 0 ? left : 0) + (i == n - 1 ? right : 0);
            const double  p = (double)whole / (double)(left + inside + right);
            const double  q = bins[i] ? (double)count / (double)used / (double)inside : 0;
            if (whole) sum += p * log(p / ((1 - share) * q + share / n));
        }
    }
    return sum;
}

GPUNN__INTERNAL double gpunn__entropy_bound(const gpunn__observed *o)
{
    const double most = o->high > -o->low ? (double)o->high : -(double)o->low;
    const int    below = o->width > 0 ? (int)ceil(-(double)o->low / o->width) : 0,
              above = o->width > 0 && o->high > 0 ? (int)floor((double)o->high / o->width) + 1 : 0;
    const int all = below > above ? below : above;
    double    least = HUGE_VAL, bound = most;
    const int step = all / 128 + 1;
    for (int i = all; i > 0; i -= step) {
        const int    a = i < below ? i : below, b = i < above ? i : above;
        const double found = a + b > GPUNN__BYTE_MAX ? gpunn__divergence(o, GPUNN__SIDE_BINS - a, a + b)
                                                     : HUGE_VAL;
        if (found >= least) continue;
        least = found;
        bound = i == all ? most : i * o->width;
    }
    return bound;
}

/* ---- what can be computed in 8 bits -------------------------------------------------------------------- */

GPUNN__INTERNAL GPUNN__STATUS gpunn__check_floats(const gpunn_model *model, const char *function)
{
    if (model->adapter_count)
        return gpunn__fail(model->dev, GPUNN_ERR_STATE,
                           "%s: the model has adapters of gpunn_lora; merge them first with gpunn_lora_merge",
                           function);
    for (int id = 0; id < model->tensor_count; id++)
        if (gpunn__op_is(model->tensors[id]->op, GPUNN__INTEGER))
            return gpunn__fail(model->dev, GPUNN_ERR_STATE,
                               "%s: the model has ops of 8-bit numbers already, such as %s; use the model of "
                               "floats from which it was made",
                               function, gpunn_op_name(model->tensors[id]->op));
    return GPUNN_OK;
}

GPUNN__INTERNAL bool gpunn__moves_elements(const gpunn_tensor *t)
{
    return t->op == GPUNN_OP_RESHAPE || t->op == GPUNN_OP_PERMUTE || t->op == GPUNN_OP_SLICE ||
           t->op == GPUNN_OP_DROPOUT || t->op == GPUNN_OP_MAX_POOL2D;
}

GPUNN__INTERNAL const gpunn_tensor *gpunn__range_root(const gpunn_tensor *t)
{
    while (t->kind == GPUNN__VALUE && (gpunn__moves_elements(t) || t->op == GPUNN_OP_ADAPTIVE_MAX_POOL2D))
        t = t->inputs[0];
    return t;
}

GPUNN__INTERNAL int gpunn__unit_operands(const gpunn__node_unit *unit)
{
    return unit->first->op == GPUNN_OP_ADD ? 2 : 1;
}

/* Whether a value that varies between runs. */
static bool gpunn__varies(const gpunn_tensor *t)
{
    const gpunn__kind kind = gpunn__range_root(t)->kind;
    return t->dtype == GPUNN_F32 && (kind == GPUNN__VALUE || kind == GPUNN__INPUT);
}

GPUNN__INTERNAL bool gpunn__joins_elements(const gpunn_tensor *t)
{
    bool all = t->op == GPUNN_OP_CONCAT;
    for (int i = 0; all && i < t->input_count; i++) all = gpunn__varies(t->inputs[i]);
    return all;
}

static bool gpunn__is_parameter(const gpunn_tensor *t, bool optional)
{
    return t ? t->kind == GPUNN__PARAMETER || t->kind == GPUNN__BUFFER : optional;
}

enum { GPUNN__LONGEST_SUM = 32768 }; /* products, see gpunn_quantized_linear */

static bool gpunn__is_unit(const gpunn_tensor *t)
{
    const gpunn_tensor *x = t->kind == GPUNN__VALUE ? t->inputs[0] : NULL;
    if (t->op == GPUNN_OP_ADD)
        return t->dtype == GPUNN_F32 && gpunn__same_shape(x, t) && gpunn__same_shape(t->inputs[1], t) &&
               gpunn__varies(x) && gpunn__varies(t->inputs[1]);
    if ((t->op != GPUNN_OP_LINEAR && t->op != GPUNN_OP_CONV2D) || !gpunn__varies(x) ||
        !gpunn__is_parameter(t->inputs[1], false) || !gpunn__is_parameter(t->inputs[2], true) ||
        gpunn__fan_in(t->inputs[1]) > GPUNN__LONGEST_SUM)
        return false;
    return t->op == GPUNN_OP_LINEAR || (x->dim[1] > 0 && x->dim[2] > 0 && x->dim[3] > 0);
}

/* Whether t is a batch norm with running statistics of the channels of `product`. */
static bool gpunn__is_norm_of(const gpunn_tensor *t, const gpunn_tensor *product)
{
    bool whole = t->op == GPUNN_OP_BATCH_NORM && t->input_count == 5 && t->inputs[0] == product &&
                 (product->op == GPUNN_OP_CONV2D || (product->op == GPUNN_OP_LINEAR && product->rank == 2));
    for (int i = 1; whole && i < 5; i++) whole = gpunn__is_parameter(t->inputs[i], i < 3);
    return whole;
}

/* Takes the bounds of a relu, for example. */
static bool gpunn__take_bounds(gpunn__node_unit *unit, const gpunn_tensor *t)
{
    if (t->op != GPUNN_OP_RELU && t->op != GPUNN_OP_RELU6 && t->op != GPUNN_OP_HARDTANH &&
        t->op != GPUNN_OP_CLAMP)
        return false;
    const bool own = t->op == GPUNN_OP_HARDTANH || t->op == GPUNN_OP_CLAMP;
    unit->low = own ? t->attr.value[0] : 0;
    unit->high = own ? t->attr.value[1] : t->op == GPUNN_OP_RELU6 ? 6 : INFINITY;
    return true;
}

/* The unit that begins with a tensor. */
static gpunn__node_unit gpunn__unit_of(const gpunn__network *network, gpunn_tensor *t)
{
    gpunn_tensor *const *tensors = network->model->tensors;
    gpunn__node_unit     unit = {t, NULL, t, -INFINITY, INFINITY};
    int                  next = network->reader[t->id];
    if (next >= 0 && t->op != GPUNN_OP_ADD && gpunn__is_norm_of(tensors[next], t)) {
        unit.norm = unit.end = tensors[next];
        next = network->reader[next];
    }
    if (next >= 0 && gpunn__take_bounds(&unit, tensors[next])) unit.end = tensors[next];
    return unit;
}

/* Finds the only readers. A result has none, as the program reads it. */
static void gpunn__find_readers(gpunn__network *network, gpunn_tensor *const *outputs, int count)
{
    enum { NONE = -1, SEVERAL = -2 };
    const gpunn_model *model = network->model;
    int               *reader = network->reader;
    for (int id = 0; id < model->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        reader[id] = NONE;
        for (int i = 0; network->needed[id] && i < t->input_count; i++)
            if (t->inputs[i]) {
                int *of = &reader[t->inputs[i]->id];
                *of = *of == NONE ? id : SEVERAL;
            }
    }
    for (int i = 0; i < count; i++) reader[outputs[i]->id] = SEVERAL;
}

GPUNN__INTERNAL void gpunn__network_free(gpunn__network *network)
{
    gpunn_device *dev = network->model->dev;
    const size_t  count = (size_t)network->model->tensor_count;
    gpunn__free(dev, network->needed, count * sizeof *network->needed);
    gpunn__free(dev, network->shown, count * sizeof *network->shown);
    gpunn__free(dev, network->reader, count * sizeof *network->reader);
    gpunn__free(dev, network->units, count * sizeof *network->units);
}

/* Marks what a unit reads and computes. */
static void gpunn__show_unit(const gpunn__node_unit *unit, bool *shown)
{
    shown[unit->end->id] = true;
    for (int i = 0; i < gpunn__unit_operands(unit); i++)
        shown[unit->first->inputs[i]->id] = shown[gpunn__range_root(unit->first->inputs[i])->id] = true;
}

/* Marks what has the range of a concat. */
static void gpunn__show_joined(const gpunn_tensor *t, bool *shown)
{
    for (int i = 0; i < t->input_count && gpunn__joins_elements(t); i++)
        shown[gpunn__range_root(t->inputs[i])->id] = true;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__network_find(gpunn_model *model, gpunn_tensor *const *outputs, int count,
                                                  gpunn__network *network)
{
    const size_t  tensors = (size_t)model->tensor_count;
    gpunn_device *dev = model->dev;
    memset(network, 0, sizeof *network);
    network->model = model;
    network->needed = (bool *)gpunn__calloc(dev, tensors * sizeof(bool));
    network->shown = (bool *)gpunn__calloc(dev, tensors * sizeof(bool));
    network->reader = (int *)gpunn__calloc(dev, tensors * sizeof(int));
    network->units = (gpunn__node_unit *)gpunn__calloc(dev, tensors * sizeof(gpunn__node_unit));
    if (!network->needed || !network->shown || !network->reader || !network->units) return GPUNN_ERR_MEMORY;
    for (int i = 0; i < count; i++) network->needed[outputs[i]->id] = true;
    gpunn__mark_operands(model, network->needed);
    gpunn__mark_assigns(model, false, network->needed, network->shown);
    gpunn__find_readers(network, outputs, count);
    memset(network->shown, 0, tensors * sizeof(bool));
    for (int id = 0; id < model->tensor_count; id++)
        if (network->needed[id] && gpunn__is_unit(model->tensors[id]))
            network->units[network->unit_count++] = gpunn__unit_of(network, model->tensors[id]);
    for (int i = 0; i < network->unit_count; i++) gpunn__show_unit(&network->units[i], network->shown);
    for (int id = model->tensor_count - 1; id >= 0; id--)
        if (network->shown[id]) gpunn__show_joined(model->tensors[id], network->shown);
    return GPUNN_OK;
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

GPUNN__INTERNAL GPUNN__STATUS gpunn__run_shown(const gpunn__network *network)
{
    gpunn_model   *model = network->model;
    const size_t   bytes = (size_t)model->tensor_count * sizeof(gpunn_tensor *);
    gpunn_tensor **list = (gpunn_tensor **)gpunn__realloc(model->dev, NULL, 0, bytes);
    int            count = 0;
    if (list == NULL) return GPUNN_ERR_MEMORY;
    for (int id = 0; id < model->tensor_count; id++)
        if (network->shown[id] && model->tensors[id]->kind == GPUNN__VALUE)
            list[count++] = model->tensors[id];
    const gpunn_status status = gpunn_forward(list, count);
    gpunn__free(model->dev, list, bytes);
    return status;
}

GPUNN__INTERNAL float *gpunn__read_floats(gpunn_tensor *t, int64_t *count)
{
    gpunn_device *dev = t->model->dev;
    *count = (int64_t)(gpunn_tensor_bytes(t) / gpunn_dtype_size(gpunn_tensor_dtype(t)));
    const size_t bytes = (size_t)*count * sizeof(float);
    float       *values = (float *)gpunn__realloc(dev, NULL, 0, bytes);
    if (values == NULL || gpunn_read_as(t, GPUNN_F32, values, bytes) == GPUNN_OK) return values;
    gpunn__free(dev, values, bytes);
    return NULL;
}

GPUNN__INTERNAL const gpunn__observed *gpunn__observed_of(const gpunn_model *model, const gpunn_tensor *t)
{
    const gpunn__calibration *c = model->calibration;
    for (int i = 0; i < c->count; i++)
        if (c->observed[i].of == t) return &c->observed[i];
    return NULL;
}

GPUNN__INTERNAL bool gpunn__is_calibrated(const gpunn_model *model)
{
    /* each run may have other weights if they are in the program's memory */
    return model->calibration &&
           (model->user_weights || model->calibration->version == model->state.weights_version);
}

GPUNN__INTERNAL void gpunn__calibration_free(gpunn_device *dev, gpunn__calibration *c)
{
    if (c == NULL) return;
    gpunn__free(dev, c->outputs, (size_t)c->output_count * sizeof *c->outputs);
    gpunn__free(dev, c->observed, (size_t)c->count * sizeof *c->observed);
    gpunn__free(dev, c, sizeof *c);
}

/* Whether what was recorded before still counts. */
static bool gpunn__continues(const gpunn_model *model, gpunn_tensor *const *outputs, int count)
{
    const gpunn__calibration *old = model->calibration;
    return gpunn__is_calibrated(model) && old->output_count == count &&
           memcmp(old->outputs, outputs, (size_t)count * sizeof *outputs) == 0;
}

/* A calibration with what was recorded before, or with empty records. NULL: failed. */
static gpunn__calibration *gpunn__calibration_make(const gpunn__network *network,
                                                   gpunn_tensor *const *outputs, int count)
{
    gpunn_model        *model = network->model;
    const bool          continues = gpunn__continues(model, outputs, count);
    gpunn__calibration *c = (gpunn__calibration *)gpunn__calloc(model->dev, sizeof *c);
    if (c == NULL) return NULL;
    for (int id = 0; id < model->tensor_count; id++) c->count += network->shown[id];
    c->output_count = count;
    c->outputs = (gpunn_tensor **)gpunn__calloc(model->dev, (size_t)count * sizeof *c->outputs);
    c->observed = (gpunn__observed *)gpunn__calloc(model->dev, (size_t)c->count * sizeof *c->observed);
    if (c->outputs == NULL || c->observed == NULL) {
        gpunn__calibration_free(model->dev, c);
        return NULL;
    }
    memcpy(c->outputs, outputs, (size_t)count * sizeof *outputs);
    gpunn__observed *o = c->observed;
    for (int id = 0; id < model->tensor_count; id++) {
        if (!network->shown[id]) continue;
        const gpunn__observed *old = continues ? gpunn__observed_of(model, model->tensors[id]) : NULL;
        if (old) *o = *old;
        o++->of = model->tensors[id];
    }
    return c;
}

/* Adds what a tensor holds after a run. */
static GPUNN__STATUS gpunn__record_values(gpunn__observed *o)
{
    gpunn_tensor *t = o->of;
    gpunn_device *dev = t->model->dev;
    char          layer[GPUNN__ERROR_SIZE];
    int64_t       count;
    float        *values = gpunn__read_floats(t, &count);
    if (values == NULL) return dev->error.status;
    const bool finite = gpunn__observe(o, values, count);
    gpunn__free(dev, values, (size_t)count * sizeof *values);
    if (finite) return GPUNN_OK;
    return gpunn__fail(dev, GPUNN_ERR_NUMERIC,
                       "gpunn_calibrate: %s%s has a NaN or infinite number, for which there is no range; "
                       "leave such samples out",
                       t->kind == GPUNN__INPUT ? "input" : gpunn_op_name(t->op),
                       gpunn__quoted(t->layer ? t->layer : t->name, layer));
}

/* Adds the values of a run. */
static GPUNN__STATUS gpunn__record_run(const gpunn__network *network, gpunn__calibration *c)
{
    gpunn_status status = gpunn__run_shown(network);
    for (int i = 0; status == GPUNN_OK && i < c->count; i++) status = gpunn__record_values(&c->observed[i]);
    return status;
}

/* Adds the values of the loader's batches. */
static GPUNN__STATUS gpunn__record_batches(const gpunn__network *network, gpunn__calibration *c,
                                           gpunn_loader *loader, int64_t batches)
{
    gpunn_device *dev = network->model->dev;
#ifdef GPUNN_NO_LOADERS
    (void)c, (void)loader, (void)batches;
    return gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                       "gpunn_calibrate: this build has no loaders; write each batch and call it without "
                       ".loader");
#else
    const int64_t all = gpunn_loader_batches(loader), most = batches && batches < all ? batches : all;
    int64_t       batch = 0;
    gpunn_status  status = GPUNN_OK;
    if (loader->model != network->model)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_calibrate: .loader belongs to another model; use one of this model");
    gpunn_loader_rewind(loader);
    for (; status == GPUNN_OK && batch < most && gpunn_next(loader); batch++)
        status = gpunn__record_run(network, c);
    if (status == GPUNN_OK && batch < most) status = gpunn_last_status(dev);
    gpunn_loader_rewind(loader);
    return status;
#endif
}

/* Fails unless the outputs are values of the model. */
static GPUNN__STATUS gpunn__check_results(const gpunn_model *model, gpunn_tensor *const *outputs, int count)
{
    if (count == 0)
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_calibrate: there are no outputs; name the network's results in .outputs");
    for (int i = 0; i < count; i++)
        if (outputs[i]->model != model || outputs[i]->kind != GPUNN__VALUE)
            return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                               "gpunn_calibrate: output %d is not a computed value of this model; name the "
                               "network's results",
                               i);
    return GPUNN_OK;
}

/* Records the runs, all or nothing. */
static GPUNN__STATUS gpunn__calibrate(const gpunn__network *network, gpunn_tensor *const *outputs, int count,
                                      const gpunn_calibrate_args *args)
{
    gpunn_model *model = network->model;
    if (network->unit_count == 0)
        return gpunn__fail(model->dev, GPUNN_ERR_UNSUPPORTED,
                           "gpunn_calibrate: the outputs depend on no linear layer, conv2d or sum of values "
                           "that 8 bits can compute; name other .outputs");
    gpunn__calibration *c = gpunn__calibration_make(network, outputs, count);
    if (c == NULL) return GPUNN_ERR_MEMORY;
    const gpunn_status  status = args->loader ? gpunn__record_batches(network, c, args->loader, args->batches)
                                              : gpunn__record_run(network, c);
    gpunn__calibration *unused = status == GPUNN_OK ? model->calibration : c;
    c->version = model->state.weights_version;
    if (status == GPUNN_OK) model->calibration = c;
    gpunn__calibration_free(model->dev, unused);
    return status;
}

GPUNN_API gpunn_status gpunn_calibrate_(gpunn_model *model, gpunn_calibrate_args args)
{
    static const char    caller[] = "gpunn_calibrate";
    gpunn_tensor *const *outputs = args.outputs;
    int                  count = 0;
    gpunn__network       network;
    if (model == NULL) return gpunn__fail_null(NULL, caller, "model");
    while (count < 8 && args.outputs[count]) count++;
    if (count == 0) outputs = model->spec.outputs, count = model->spec.output_count;
    gpunn_status status = gpunn__check_results(model, outputs, count);
    if (status == GPUNN_OK) status = gpunn__check_floats(model, caller);
    if (status == GPUNN_OK && args.batches < 0)
        status = gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                             "gpunn_calibrate: .batches is %lld; use 1 or more, or 0 for all",
                             (long long)args.batches);
    if (status != GPUNN_OK) return status;
    status = gpunn__network_find(model, outputs, count, &network);
    if (status == GPUNN_OK) status = gpunn__calibrate(&network, outputs, count, &args);
    gpunn__network_free(&network);
    return status;
}
