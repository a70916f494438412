#include "base/errors.h"
#include "base/memory.h"
#include "base/shapes.h"
#include "base/device.h"
#include "base/time.h"
#include "ranks/group.h"
#include "run/run.h"
#include "run/io.h"
#include "io/files.h"
#include "train/loader.h"

/* ==== >>train/fit ======================================================================================= */
/* Implements gpunn_fit, the training loop over epochs, with validation, history files, checkpoints and early
 * stopping. Also gpunn_evaluate, gpunn_evaluate_classes and gpunn_progress_bar. */

/* ---- means over batches -------------------------------------------------------------------------------- */

/* Means over batches, weighted by their samples, so that a smaller last batch counts less. */
/* Backends that execute whole runs are not waited for after each
 * batch. Their results collect in device memory. */
enum { GPUNN__LOGGED = 256, GPUNN__MEASURES = 2 + GPUNN_MAX_METRICS };
typedef struct gpunn__mean {
    gpunn_tensor *measure[GPUNN__MEASURES]; /* the loss, then metrics */
    int           count;
    double        sum[GPUNN__MEASURES], samples;
    float         last_loss;
    bool          skips; /* ignores batches whose loss is not finite */
    float        *log;   /* device memory: results of batches not yet read */
    int           waiting, waiting_samples[GPUNN__LOGGED];
} gpunn__mean;

/* Starts the means of loss, metric unless NULL, and `more` up to the first NULL. */
static void gpunn__mean_begin(gpunn__mean *mean, gpunn_tensor *loss, gpunn_tensor *metric,
                              gpunn_tensor *const *more)
{
    memset(mean, 0, sizeof *mean);
    mean->measure[mean->count++] = loss;
    if (metric) mean->measure[mean->count++] = metric;
    for (int i = 0; more && i < GPUNN_MAX_METRICS && more[i]; i++) mean->measure[mean->count++] = more[i];
}

/* Adds one batch. A batch without labels, whose loss is -0, does not
 * count, nor does one whose step was skipped. */
static void gpunn__mean_count(gpunn__mean *mean, const float *values, int samples)
{
    const bool empty = values[0] == 0 && signbit(values[0]);
    if (empty || (mean->skips && gpunn__not_finite(values, sizeof *values))) return;
    mean->last_loss = values[0];
    for (int i = 0; i < mean->count; i++) mean->sum[i] += (double)values[i] * samples;
    mean->samples += samples;
}

/* Reads the results of batches that wait on the device and adds them. */
static GPUNN__STATUS gpunn__mean_flush(gpunn__mean *mean)
{
    float         values[GPUNN__MEASURES * GPUNN__LOGGED];
    gpunn_device *dev = mean->measure[0]->model->dev;
    if (mean->waiting == 0) return GPUNN_OK;
    gpunn_status status = dev->backend->download(dev->context, values, mean->log,
                                                 (size_t)(mean->waiting * mean->count) * sizeof *values);
    if (status != GPUNN_OK) return gpunn__backend_fail(dev, "reading the loss", status);
    for (int i = 0; i < mean->waiting; i++)
        gpunn__mean_count(mean, values + mean->count * i, mean->waiting_samples[i]);
    mean->waiting = 0;
    return GPUNN_OK;
}

static GPUNN__STATUS gpunn__mean_log(gpunn__mean *mean, int column)
{
    size_t        bytes;
    gpunn_tensor *t = mean->measure[column];
    gpunn_device *dev = t->model->dev;
    const void   *memory = gpunn__memory_of(t, false, &bytes);
    if (memory == NULL) return dev->error.status;
    gpunn_status status = dev->backend->convert(dev->context,
                                                mean->log + mean->count * mean->waiting + column, GPUNN_F32,
                                                memory, gpunn__stored_as(t, false), 1);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, "keeping the loss", status);
}

/* Replaces the sums by those over all ranks after the last batch. Reports this rank's
 * failure to the others unless they know it. */
static GPUNN__STATUS gpunn__mean_join(gpunn__mean *mean, gpunn_group *group, gpunn_status status)
{
    typedef struct part {
        double sum[GPUNN__MEASURES], samples;
    } part;
    if (group == NULL || (status != GPUNN_OK && group->reported)) return status;
    gpunn_device *dev = group->dev;
    const int     size = gpunn_group_size(group);
    part         *parts = (part *)gpunn__calloc(dev, (size_t)size * sizeof *parts);
    if (parts == NULL) status = GPUNN_ERR_MEMORY;
    status = gpunn__all_reduce_status(group, status, NULL, "the end of an epoch with %d means", mean->count);
    if (status == GPUNN_OK) {
        part *own = parts + gpunn_group_rank(group);
        memcpy(own->sum, mean->sum, sizeof own->sum);
        own->samples = mean->samples;
        status = gpunn__exchange_host(group, GPUNN__ALL_GATHER, parts, sizeof *parts, 0);
        memset(mean->sum, 0, sizeof mean->sum);
        mean->samples = 0;
        for (int rank = 0; rank < size; rank++) {
            for (int i = 0; i < mean->count; i++) mean->sum[i] += parts[rank].sum[i];
            mean->samples += parts[rank].samples;
        }
    }
    gpunn__free(dev, parts, parts ? (size_t)size * sizeof *parts : 0);
    return status;
}

static size_t gpunn__mean_bytes(const gpunn__mean *mean)
{
    return (size_t)(mean->count * GPUNN__LOGGED) * sizeof *mean->log;
}

/* Adds the results of the last run for a batch. */
static GPUNN__STATUS gpunn__mean_add(gpunn__mean *mean, int samples)
{
    gpunn_device *dev = mean->measure[0]->model->dev;
    gpunn_status  status = GPUNN_OK;
    if (dev->backend->execute == NULL) {
        float values[GPUNN__MEASURES];
        for (int i = 0; i < mean->count && status == GPUNN_OK; i++)
            status = gpunn_read_as(mean->measure[i], GPUNN_F32, &values[i], sizeof values[i]);
        if (status == GPUNN_OK) gpunn__mean_count(mean, values, samples);
        return status;
    }
    if (mean->log == NULL) mean->log = (float *)gpunn__device_alloc(dev, gpunn__mean_bytes(mean));
    if (mean->log == NULL) return dev->error.status;
    for (int i = 0; i < mean->count && status == GPUNN_OK; i++) status = gpunn__mean_log(mean, i);
    mean->waiting_samples[mean->waiting] = samples;
    mean->waiting += status == GPUNN_OK;
    return status == GPUNN_OK && mean->waiting == GPUNN__LOGGED ? gpunn__mean_flush(mean) : status;
}

/* Reads remaining results after the last batch and frees the log. */
static GPUNN__STATUS gpunn__mean_end(gpunn__mean *mean)
{
    gpunn_status status = gpunn__mean_flush(mean);
    if (mean->log) gpunn__device_free(mean->measure[0]->model->dev, mean->log, gpunn__mean_bytes(mean));
    mean->log = NULL;
    return status;
}

/* Gets the means of loss, metric and other measures; NaN where there is none. */
static void gpunn__mean_get(const gpunn__mean *mean, bool metric, float *loss_mean, float *metric_mean,
                            float *others)
{
    float value[GPUNN__MEASURES];
    for (int i = 0; i < GPUNN__MEASURES; i++)
        value[i] = i < mean->count && mean->samples > 0 ? (float)(mean->sum[i] / mean->samples) : NAN;
    *loss_mean = value[0];
    *metric_mean = metric ? value[1] : NAN;
    memcpy(others, value + 1 + metric, GPUNN_MAX_METRICS * sizeof *others);
}

/* Fails unless t is a single F32 number of the model. what: its name in messages. */
static GPUNN__STATUS gpunn__check_number(const gpunn_model *model, const gpunn_tensor *t,
                                         const char *function, const char *what)
{
    char text[128];
    if (t->model != model)
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                           "%s: the %s and the loader belong to different models", function, what);
    if (t->dtype != GPUNN_F32 || gpunn__count(t, 1) != 1 || gpunn__count(t, 2) != 1)
        return gpunn__fail(
            model->dev, GPUNN_ERR_SHAPE,
            "%s: the %s is %s %s; it must be one f32 number: reduce it with gpunn_mean or gpunn_sum",
            function, what, gpunn_dtype_name(t->dtype), gpunn__shape_text(t, text));
    return GPUNN_OK;
}

/* Computes the measures of `mean` over one epoch of the loader. */
static GPUNN__STATUS gpunn__mean_evaluate(gpunn__mean *mean, gpunn_loader *loader)
{
    int64_t      batch = 0;
    gpunn_status status = GPUNN_OK;
    if (loader->position) gpunn_loader_rewind(loader);
    for (; status == GPUNN_OK && gpunn_next(loader); batch++) {
        status = gpunn_forward(mean->measure, mean->count);
        if (status == GPUNN_OK) status = gpunn__mean_add(mean, gpunn_loader_batch_size(loader));
    }
    if (status == GPUNN_OK && batch < gpunn_loader_batches(loader))
        status = gpunn_last_status(loader->model->dev);
    gpunn_status ended = gpunn__mean_end(mean);
    return status == GPUNN_OK ? ended : status;
}

GPUNN_API gpunn_status gpunn_evaluate(gpunn_loader *loader, gpunn_tensor *loss, gpunn_tensor *metric,
                                      float *loss_mean, float *metric_mean)
{
    static const char function[] = "gpunn_evaluate";
    gpunn_device     *dev = loss ? loss->model->dev : NULL;
    if (loader) dev = loader->model->dev;
    if (loader == NULL || loss == NULL) return gpunn__fail_null(dev, function, loader ? "loss" : "loader");
    gpunn_status status = gpunn__check_number(loader->model, loss, function, "loss");
    if (status == GPUNN_OK && metric) status = gpunn__check_number(loader->model, metric, function, "metric");
    if (status != GPUNN_OK) return status;
    gpunn__mean mean;
    gpunn__mean_begin(&mean, loss, metric, NULL);
    if (loader->args.group) loader->args.group->reported = false;
    status = gpunn__mean_join(&mean, loader->args.group, gpunn__mean_evaluate(&mean, loader));
    float means[2], others[GPUNN_MAX_METRICS];
    gpunn__mean_get(&mean, metric != NULL, &means[0], &means[1], others);
    if (status == GPUNN_OK && loss_mean) *loss_mean = means[0];
    if (status == GPUNN_OK && metric_mean) *metric_mean = means[1];
    return status;
}

/* ---- class scores -------------------------------------------------------------------------------------- */

typedef struct gpunn__classes { /* all in host memory */
    gpunn_tensor *logits, *labels;
    int64_t       classes, count, *confusion;
    float        *probability; /* [count][classes]; NULL: not requested */
    int64_t      *truth;       /* [count] */
} gpunn__classes;

static int64_t gpunn__label_at(const void *values, gpunn_dtype dtype, int64_t i)
{
    if (dtype == GPUNN_I64) return ((const int64_t *)values)[i];
    return dtype == GPUNN_I32 ? ((const int32_t *)values)[i] : ((const uint8_t *)values)[i];
}

static void gpunn__classes_count(gpunn__classes *c, const float *logits, int64_t label)
{
    int64_t best = 0;
    double  sum = 0;
    if (label < 0 || label >= c->classes) return;
    for (int64_t k = 1; k < c->classes; k++)
        if (logits[k] > logits[best]) best = k;
    c->confusion[label * c->classes + best]++;
    if (c->probability) {
        float *row = c->probability + c->count * c->classes;
        for (int64_t k = 0; k < c->classes; k++) sum += exp((double)logits[k] - (double)logits[best]);
        for (int64_t k = 0; k < c->classes; k++)
            row[k] = (float)(exp((double)logits[k] - (double)logits[best]) / sum);
        c->truth[c->count] = label;
    }
    c->count++;
}

/* Adds the last run's batch of `samples` samples. */
static GPUNN__STATUS gpunn__classes_add(gpunn__classes *c, int samples)
{
    gpunn_device *dev = c->logits->model->dev;
    const size_t  first = gpunn_tensor_bytes(c->labels), second = (first + 7) / 8 * 8, /* aligned */
        bytes = gpunn_tensor_bytes(c->logits) >> c->logits->doubles;
    char *host = (char *)gpunn__realloc(dev, NULL, 0, second + bytes);
    if (host == NULL) return GPUNN_ERR_MEMORY;
    gpunn_status status = gpunn_read(c->labels, host, first);
    if (status == GPUNN_OK) status = gpunn_read_as(c->logits, GPUNN_F32, host + second, bytes);
    for (int64_t i = 0; i < samples && status == GPUNN_OK; i++)
        gpunn__classes_count(c, (const float *)(const void *)(host + second) + i * c->classes,
                             gpunn__label_at(host, c->labels->dtype, i));
    gpunn__free(dev, host, second + bytes);
    return status;
}

typedef struct gpunn__ranked {
    float probability;
    bool  positive;
} gpunn__ranked;

static int gpunn__by_probability(const void *a, const void *b)
{
    float x = ((const gpunn__ranked *)a)->probability, y = ((const gpunn__ranked *)b)->probability;
    return (x > y) - (x < y);
}

/* The area under the ROC curve, from ranks. Equal values share the mean of their ranks.
 * NaN unless there are samples of both kinds. */
static double gpunn__area(gpunn__ranked *list, int64_t count)
{
    double ranks = 0, positives = 0;
    qsort(list, (size_t)count, sizeof *list, gpunn__by_probability);
    for (int64_t i = 0, end; i < count; i = end) {
        for (end = i; end < count && list[end].probability == list[i].probability; end++) {}
        for (int64_t k = i; k < end; k++) {
            positives += list[k].positive;
            ranks += list[k].positive ? (double)(i + 1 + end) / 2 : 0;
        }
    }
    return (ranks - positives * (positives + 1) / 2) / (positives * ((double)count - positives));
}

static GPUNN__STATUS gpunn__classes_areas(const gpunn__classes *c, float *mean)
{
    gpunn_device  *dev = c->logits->model->dev;
    size_t         bytes = (size_t)c->count * sizeof(gpunn__ranked);
    gpunn__ranked *list = (gpunn__ranked *)gpunn__realloc(dev, NULL, 0, bytes ? bytes : 1);
    double         sum = 0, areas = 0;
    if (list == NULL) return GPUNN_ERR_MEMORY;
    for (int64_t k = 0; k < c->classes; k++) {
        for (int64_t i = 0; i < c->count; i++) {
            list[i].probability = c->probability[i * c->classes + k];
            list[i].positive = c->truth[i] == k;
        }
        double area = gpunn__area(list, c->count);
        if (area != area) continue;
        sum += area;
        areas++;
    }
    *mean = areas > 0 ? (float)(sum / areas) : NAN;
    gpunn__free(dev, list, bytes ? bytes : 1);
    return GPUNN_OK;
}

/* Computes all scores except the areas. */
static void gpunn__classes_scores(const gpunn__classes *c, gpunn_class_scores *scores)
{
    double hits = 0, precision = 0, recall = 0, f1 = 0, there = 0;
    for (int64_t k = 0; k < c->classes; k++) {
        double hit = (double)c->confusion[k * c->classes + k], labels = 0, guesses = 0;
        for (int64_t j = 0; j < c->classes; j++) {
            labels += (double)c->confusion[k * c->classes + j];
            guesses += (double)c->confusion[j * c->classes + k];
        }
        hits += hit;
        there += labels + guesses > 0;
        precision += guesses > 0 ? hit / guesses : 0;
        recall += labels > 0 ? hit / labels : 0;
        f1 += labels + guesses > 0 ? 2 * hit / (labels + guesses) : 0;
    }
    scores->samples = c->count;
    scores->accuracy = (float)(hits / (double)c->count);
    scores->precision = (float)(precision / there);
    scores->recall = (float)(recall / there);
    scores->f1 = (float)(f1 / there);
}

static GPUNN__STATUS gpunn__classes_run(gpunn__classes *c, gpunn_loader *loader)
{
    int64_t       batch = 0;
    gpunn_tensor *outputs[2];
    gpunn_status  status = GPUNN_OK;
    outputs[0] = c->logits;
    outputs[1] = c->labels;
    if (loader->position) gpunn_loader_rewind(loader);
    for (; status == GPUNN_OK && gpunn_next(loader); batch++) {
        status = gpunn_forward(outputs, c->labels->kind == GPUNN__VALUE ? 2 : 1);
        if (status == GPUNN_OK) status = gpunn__classes_add(c, gpunn_loader_batch_size(loader));
    }
    return status == GPUNN_OK && batch < gpunn_loader_batches(loader) ? gpunn_last_status(loader->model->dev)
                                                                      : status;
}

/* Gathers the samples of all ranks, in order of rank. */
static GPUNN__STATUS gpunn__classes_spread(gpunn__classes *c, gpunn_group *group, int64_t *counts)
{
    const int    rank = gpunn_group_rank(group), size = gpunn_group_size(group);
    const size_t each = (size_t)c->classes * sizeof *c->probability;
    size_t       at = 0;
    gpunn_status status = gpunn__exchange_host(group, GPUNN__ALL_GATHER, counts, sizeof *counts, 0);
    for (int r = 0; r < rank && status == GPUNN_OK; r++) at += (size_t)counts[r];
    if (status == GPUNN_OK && c->probability) {
        memmove((char *)c->probability + at * each, c->probability, (size_t)counts[rank] * each);
        memmove(c->truth + at, c->truth, (size_t)counts[rank] * sizeof *c->truth);
    }
    c->count = 0;
    for (int root = 0; root < size && status == GPUNN_OK; c->count += counts[root++]) {
        const size_t count = (size_t)counts[root];
        if (count == 0 || c->probability == NULL) continue;
        status = gpunn__exchange_host(group, GPUNN__BROADCAST, c->probability + c->count * c->classes,
                                      count * each, root);
        if (status == GPUNN_OK)
            status = gpunn__exchange_host(group, GPUNN__BROADCAST, c->truth + c->count,
                                          count * sizeof *c->truth, root);
    }
    return status;
}

/* Combines the counts of all ranks. On failure reports it to the other ranks. */
static GPUNN__STATUS gpunn__classes_join(gpunn__classes *c, gpunn_group *group, gpunn_status status)
{
    gpunn_device *dev = c->logits->model->dev;
    const size_t  bytes = (size_t)(c->classes * c->classes) * sizeof *c->confusion,
                 all = (size_t)gpunn_group_size(group) * sizeof(int64_t);
    if (status != GPUNN_OK && group->reported) return status;
    int64_t *sum = status == GPUNN_OK ? (int64_t *)gpunn__calloc(dev, bytes) : NULL;
    int64_t *part = sum ? (int64_t *)gpunn__realloc(dev, NULL, 0, bytes) : NULL;
    int64_t *counts = part ? (int64_t *)gpunn__calloc(dev, all) : NULL;
    if (status == GPUNN_OK && counts == NULL) status = GPUNN_ERR_MEMORY;
    status = gpunn__all_reduce_status(group, status, NULL, "gpunn_evaluate_classes of %lld classes%s",
                                      (long long)c->classes, c->probability ? " with their areas" : "");
    for (int root = 0; root < gpunn_group_size(group) && status == GPUNN_OK; root++) {
        memcpy(part, c->confusion, bytes);
        status = gpunn__exchange_host(group, GPUNN__BROADCAST, part, bytes, root);
        for (int64_t i = 0; i < c->classes * c->classes; i++) sum[i] += part[i];
    }
    if (status == GPUNN_OK) {
        memcpy(c->confusion, sum, bytes);
        counts[gpunn_group_rank(group)] = c->count;
        status = gpunn__classes_spread(c, group, counts);
    }
    gpunn__free(dev, sum, sum ? bytes : 0);
    gpunn__free(dev, part, part ? bytes : 0);
    gpunn__free(dev, counts, counts ? all : 0);
    return status;
}

GPUNN_API gpunn_status gpunn_evaluate_classes_(gpunn_loader *loader, gpunn_tensor *logits,
                                               gpunn_tensor *labels, gpunn_class_scores *scores,
                                               gpunn_class_scores_args args)
{
    static const char function[] = "gpunn_evaluate_classes";
    if (loader == NULL || logits == NULL || labels == NULL || scores == NULL)
        return gpunn__fail_null(loader ? loader->model->dev : NULL, function,
                                loader == NULL   ? "loader"
                                : logits == NULL ? "tensor of logits"
                                : labels == NULL ? "tensor of labels"
                                                 : "place for the scores");
    gpunn_device *dev = loader->model->dev;
    if (logits->model != loader->model || labels->model != loader->model)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: the %s and the loader belong to different models",
                           function, logits->model != loader->model ? "logits" : "labels");
    if (logits->rank != 2 || logits->dtype != GPUNN_F32 || labels->rank != 1 ||
        labels->dim[0] != logits->dim[0] ||
        (labels->dtype != GPUNN_I64 && labels->dtype != GPUNN_I32 && labels->dtype != GPUNN_U8)) {
        char text[2][128];
        return gpunn__fail(
            dev, GPUNN_ERR_SHAPE,
            "%s: logits are %s %s and labels %s %s; f32 [n, classes] and integers [n] are needed", function,
            gpunn_dtype_name(logits->dtype), gpunn__shape_text(logits, text[0]),
            gpunn_dtype_name(labels->dtype), gpunn__shape_text(labels, text[1]));
    }
    gpunn__classes c = {logits, labels, logits->dim[1], 0, NULL, NULL, NULL};
    const size_t   confusion = (size_t)(c.classes * c.classes) * sizeof *c.confusion,
                 truth = (size_t)loader->args.count * sizeof *c.truth,
                 probability = (size_t)(loader->args.count * c.classes) * sizeof *c.probability;
    gpunn_status status = (c.confusion = (int64_t *)gpunn__calloc(dev, confusion)) ? GPUNN_OK
                                                                                   : GPUNN_ERR_MEMORY;
    if (args.auc) {
        c.truth = (int64_t *)gpunn__realloc(dev, NULL, 0, truth);
        c.probability = (float *)gpunn__realloc(dev, NULL, 0, probability);
        if (c.truth == NULL || c.probability == NULL) status = GPUNN_ERR_MEMORY;
    }
    gpunn_class_scores found;
    memset(&found, 0, sizeof found);
    found.auc = NAN;
    if (loader->args.group) loader->args.group->reported = false;
    if (status == GPUNN_OK) status = gpunn__classes_run(&c, loader);
    if (loader->args.group) status = gpunn__classes_join(&c, loader->args.group, status);
    if (status == GPUNN_OK && args.auc) status = gpunn__classes_areas(&c, &found.auc);
    if (status == GPUNN_OK) {
        gpunn__classes_scores(&c, &found);
        *scores = found;
        if (args.confusion) memcpy(args.confusion, c.confusion, confusion);
    }
    gpunn__free(dev, c.confusion, confusion);
    gpunn__free(dev, c.truth, truth);
    gpunn__free(dev, c.probability, probability);
    return status;
}

/* ---- history ------------------------------------------------------------------------------------------- */

static void gpunn__print(gpunn__file *f, const char *format, ...) GPUNN__PRINTF(2, 3);
static void gpunn__print(gpunn__file *f, const char *format, ...)
{
    char    text[512];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (length > 0)
        (void)gpunn__file_write(f, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}

/* Formats a number as "%.{digits}g" with a point in every locale. Gives "" for NaN and infinities. */
static const char *gpunn__number(char text[32], double value, int digits)
{
    char local[40], *out = text;
    (void)snprintf(local, sizeof local, "%.*g", digits, value);
    for (const char *in = local; *in && isfinite(value); in++) {
        bool plain = strchr("0123456789+-e", *in) != NULL;
        if (plain || out == text || out[-1] != '.') /* a locale's decimal separator may have several bytes */
            *out++ = plain ? *in : '.';
    }
    *out = 0;
    return text;
}

static GPUNN__STATUS gpunn__write_csv(gpunn_device *dev, const char *path, const gpunn__epoch *epochs,
                                      int count)
{
    gpunn__file  file;
    gpunn_status status = gpunn__file_open(dev, path, &file);
    if (status != GPUNN_OK) return status;
    gpunn__print(&file, "epoch,train_loss,train_metric,validation_loss,validation_metric,lr,seconds\n");
    for (int i = 0; i < count; i++) {
        char text[32];
        gpunn__print(&file, "%d,", i + 1);
        for (int c = 0; c < GPUNN__CURVES; c++)
            gpunn__print(&file, "%s,", gpunn__number(text, (double)epochs[i].value[c], 7));
        gpunn__print(&file, "%s,", gpunn__number(text, (double)epochs[i].lr, 7));
        gpunn__print(&file, "%s\n", gpunn__number(text, epochs[i].seconds, 6));
    }
    return gpunn__file_commit(&file);
}

/* The distance between round ticks on an axis: at most about `most` of them over span > 0. */
static double gpunn__tick(double span, int most)
{
    double power = pow(10, floor(log10(span / most))), digit = span / most / power;
    if (digit <= 1) return power;
    if (digit <= 2) return power * 2;
    return power * (digit <= 5 ? 5 : 10);
}

/* The box of a panel: pixels of its corners, the values at y0 and y1, and the epoch at x1. */
typedef struct gpunn__svg_box {
    double x0, x1, y0, y1, low, high;
    int    last;
} gpunn__svg_box;

/* Draws value[c] of the epochs in the box, in pieces where a value is not finite. last: the last finite
 * value, at which a point stands. Returns false if there is none. */
static bool gpunn__svg_curve(gpunn__file *f, const char *name, const gpunn__epoch *epochs, int count, int c,
                             const gpunn__svg_box *box, double *last)
{
    double x = 0, y = 0;
    bool   drawn = false, line = false;
    for (int i = 0; i < count; i++) {
        bool there = isfinite(epochs[i].value[c]);
        if (there) {
            const double value = *last = (double)epochs[i].value[c];
            x = box->x0 + (box->x1 - box->x0) * i / (box->last - 1);
            y = box->y0 + (box->y1 - box->y0) * (value - box->low) / (box->high - box->low);
            if (!line) gpunn__print(f, "%s", drawn ? "M" : "<path class=\"curve ");
            if (!line && !drawn) gpunn__print(f, "%s\" d=\"M", name);
            gpunn__print(f, "%s%.0f %.0f", line ? "L" : "", x, y);
            drawn = true;
        }
        line = there;
    }
    if (drawn) gpunn__print(f, "\"/><path class=\"curve end %s\" d=\"M%.0f %.0fh0\"/>\n", name, x, y);
    return drawn;
}

/* Draws one panel. Lengths are in tenths of a pixel, so that coordinates are whole numbers in every locale.
 * The two curves are value[kind] and value[kind + 2]. */
static void gpunn__svg_panel(gpunn__file *f, int top, const char *title, const gpunn__epoch *epochs,
                             int count, int kind)
{
    static const char *const names[] = {"train", "validation"};
    const double             x0 = 700, x1 = 4400, y0 = top + 3050, y1 = top + 620;
    double                   low = INFINITY, high = -INFINITY;
    char                     text[32];
    for (int i = 0; i < count; i++)
        for (int c = kind; c < GPUNN__CURVES; c += 2) {
            double value = (double)epochs[i].value[c];
            if (isfinite(value) && value < low) low = value;
            if (isfinite(value) && value > high) high = value;
        }
    if (low > high) low = 0, high = 1;
    double margin = low != 0 ? fabs(low) / 10 : 1;
    if (high > low) margin = 0;
    double step = gpunn__tick(high - low + 2 * margin, 5);
    low = floor((low - margin) / step) * step;
    high = ceil((high + margin) / step) * step;
    int last = count > 2 ? count : 2, every = (int)ceil(gpunn__tick(last - 1, 8));
    gpunn__print(f, "<text class=\"title\" x=\"%.0f\" y=\"%d\">", x0, top + 360);
    for (const char *c = title; *c; c++)
        gpunn__print(f, strchr("<>&", *c) ? "&#%d;" : "%c", (unsigned char)*c < 32 ? '?' : *c);
    gpunn__print(f, "</text>\n");
    for (int i = 0; i <= (int)floor((high - low) / step + 0.5); i++) {
        double value = low + i * step, y = y0 + (y1 - y0) * i * step / (high - low);
        gpunn__print(f,
                     "<path class=\"grid\" d=\"M%.0f %.0fH%.0f\"/><text x=\"%.0f\" y=\"%.0f\" "
                     "text-anchor=\"end\">%s</text>\n",
                     x0, y, x1, x0 - 80, y + 40, gpunn__number(text, fabs(value) < step / 2 ? 0 : value, 5));
    }
    for (int epoch = every; epoch <= last; epoch += every)
        gpunn__print(f, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">%d</text>\n",
                     x0 + (x1 - x0) * (epoch - 1) / (last - 1), y0 + 180, epoch);
    gpunn__print(f, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">epoch</text>\n", (x0 + x1) / 2,
                 y0 + 380);
    const gpunn__svg_box box = {x0, x1, y0, y1, low, high, last};
    double               key = x1;
    /* training is drawn last, so on top; the key grows to the left */
    for (int c = kind + 2; c >= kind; c -= 2) {
        const char *name = names[c / 2];
        double      value = 0;
        if (!gpunn__svg_curve(f, name, epochs, count, c, &box, &value)) continue;
        double width = c < 2 ? 1280 : 1600;
        key -= width;
        gpunn__print(f,
                     "<path class=\"curve %s\" d=\"M%.0f %dh220\"/><text x=\"%.0f\" y=\"%d\">%s %s</text>\n",
                     name, key, top + 320, key + 280, top + 360, name, gpunn__number(text, value, 4));
    }
}

static GPUNN__STATUS gpunn__write_svg(gpunn_device *dev, const char *path, const gpunn__epoch *epochs,
                                      int count, const char *metric)
{
    gpunn__file  file;
    gpunn_status status = gpunn__file_open(dev, path, &file);
    if (status != GPUNN_OK) return status;
    int height = metric ? 7200 : 3600; /* one panel below the other: readable on a phone */
    gpunn__print(
        &file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"470\" height=\"%d\" viewBox=\"0 0 4700 %d\">\n",
        height / 10, height);
    gpunn__print(&file, "<title>Training history, %d epoch%s</title>\n<style>\n", count,
                 count == 1 ? "" : "s");
    gpunn__print(
        &file,
        "text{fill:#59636e;font:130px "
        "system-ui,sans-serif}.title{fill:#1f2328;font-size:150px;font-weight:600}\n"
        ".curve{fill:none;stroke-width:20;stroke-linejoin:round;stroke-linecap:round}.end{stroke-width:70}\n"
        ".page{fill:#fff}.grid{stroke:#d1d9e0;stroke-width:8}.train{stroke:#0969da}.validation{stroke:#"
        "d4570b}\n");
    gpunn__print(&file, "@media(prefers-color-scheme:dark){text{fill:#9198a1}.title{fill:#f0f6fc}\n"
                        ".page{fill:#0d1117}.grid{stroke:#2f353d}.train{stroke:#58a6ff}.validation{stroke:#"
                        "f0883e}}\n</style>\n");
    gpunn__print(&file, "<rect class=\"page\" width=\"100%%\" height=\"100%%\"/>\n");
    gpunn__svg_panel(&file, 0, "loss", epochs, count, 0);
    if (metric) gpunn__svg_panel(&file, 3600, metric, epochs, count, 1);
    gpunn__print(&file, "</svg>\n");
    return gpunn__file_commit(&file);
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

typedef struct gpunn__fit {
    gpunn_device         *dev;
    gpunn_optimizer      *opt;
    const gpunn_fit_args *args;
    gpunn_progress        progress;
    double                began;
    gpunn__fit_record    *record; /* in the optimizer */
} gpunn__fit;

/* Calls one of the program's functions, unless it is NULL. Fails with
 * GPUNN_ERR_CANCELLED if it returns false. */
static GPUNN__STATUS gpunn__fit_call(gpunn__fit *fit, const char *name,
                                     bool (*function)(void *, const gpunn_progress *))
{
    gpunn_progress *p = &fit->progress;
    p->seconds = gpunn__seconds() - fit->began;
    if (function == fit->args->on_progress && gpunn_group_rank(fit->opt->group) != 0) return GPUNN_OK;
    if (function == NULL || function(fit->args->user, p)) return GPUNN_OK;
    return gpunn__fail(fit->dev, GPUNN_ERR_CANCELLED,
                       "gpunn_fit: %s cancelled it in epoch %d, %s batch %lld of %lld", name, p->epoch,
                       function == fit->args->on_batch_begin ? "before" : "after", (long long)p->batch,
                       (long long)p->batches);
}

/* Trains on the batches left in the training loader's epoch. */
static GPUNN__STATUS gpunn__fit_batches(gpunn__fit *fit)
{
    const gpunn_fit_args *args = fit->args;
    gpunn_progress       *p = &fit->progress;
    gpunn__mean           mean;
    gpunn_status          status = GPUNN_OK;
    double                reported = 0;
    gpunn__mean_begin(&mean, args->loss, args->metric, args->metrics);
    mean.skips = fit->opt->skips;
    if (args->train->position == args->train->batches)
        (void)gpunn_next(args->train); /* ends an epoch whose batches were all delivered */
    p->batch = args->train->position;
    status = gpunn__fit_call(fit, "on_epoch_begin", args->on_epoch_begin);
    while (status == GPUNN_OK && gpunn_next(args->train)) {
        p->lr = gpunn_get_lr(fit->opt);
        p->batch++;
        status = gpunn__fit_call(fit, "on_batch_begin", args->on_batch_begin);
        if (status == GPUNN_OK)
            status = gpunn_train_step(fit->opt, args->loss,
                                      .accumulate = p->batch < p->batches ? args->accumulate : 1);
        if (status == GPUNN_OK) status = gpunn__mean_add(&mean, gpunn_loader_batch_size(args->train));
        bool due = p->batch == p->batches ||
                   (args->schedule_per_batch && fit->opt->schedule.type == GPUNN_SCHEDULE_PLATEAU) ||
                   (args->on_progress && gpunn__seconds() - reported > 0.05);
        if (status == GPUNN_OK && due) {
            status = gpunn__mean_flush(&mean);
            reported = gpunn__seconds();
        }
        if (status == GPUNN_OK && args->schedule_per_batch && fit->opt->parts == 0)
            status = gpunn_schedule_step(fit->opt, mean.last_loss);
        gpunn__mean_get(&mean, args->metric != NULL, &p->loss, &p->metric, p->metrics);
        if (status == GPUNN_OK) status = gpunn__fit_call(fit, "on_progress", args->on_progress);
    }
    gpunn_status ended = gpunn__mean_end(&mean);
    if (status == GPUNN_OK && p->batch < p->batches) status = gpunn_last_status(fit->dev);
    if (status == GPUNN_OK) status = ended;
    if (status == GPUNN_OK) status = gpunn_synchronize(fit->dev); /* reports a loss that was not finite */
    status = gpunn__mean_join(&mean, fit->opt->group, status);
    gpunn__mean_get(&mean, args->metric != NULL, &p->loss, &p->metric, p->metrics);
    return status;
}

/* Writes the history's files. */
static GPUNN__STATUS gpunn__fit_files(gpunn__fit *fit)
{
    const gpunn_fit_args    *args = fit->args;
    const gpunn__fit_record *record = fit->record;
    gpunn_status             status = GPUNN_OK;
    if (gpunn_group_rank(fit->opt->group) != 0) return GPUNN_OK;
    if (args->history_csv)
        status = gpunn__write_csv(fit->dev, args->history_csv, record->history, record->epochs);
    if (status == GPUNN_OK && args->history_svg)
        status = gpunn__write_svg(fit->dev, args->history_svg, record->history, record->epochs,
                                  fit->progress.metric_name);
    return status;
}

/* Whether this epoch is the best so far. */
static bool gpunn__fit_is_best(const gpunn__fit *fit, float watched)
{
    return watched < fit->record->best && fit->progress.epoch > fit->args->min_epochs;
}

/* Stores the weights of the best epoch so far. */
static GPUNN__STATUS gpunn__fit_keep(gpunn__fit *fit)
{
    gpunn_status status = GPUNN_OK;
    if (fit->args->best_weights && gpunn_group_rank(fit->opt->group) == 0)
        status = gpunn_save(fit->opt->model, fit->args->best_weights);
    if (status != GPUNN_OK || !fit->args->restore_best) return status;
    gpunn_array_free(fit->dev, &fit->record->kept);
    return gpunn_save_memory(fit->opt->model, &fit->record->kept);
}

/* Runs validation and saves the weights if they are the best so far. Uses
 * the averages if the optimizer keeps them. */
static GPUNN__STATUS gpunn__fit_validate(gpunn__fit *fit, float *watched)
{
    const gpunn_fit_args *args = fit->args;
    gpunn_progress       *p = &fit->progress;
    const bool            averages = fit->opt->uses[GPUNN__AVERAGE] && !args->no_ema &&
                          (args->validation || args->best_weights || args->restore_best);
    gpunn_status status = averages ? gpunn_ema_swap(fit->opt) : GPUNN_OK, back = GPUNN_OK;
    if (status != GPUNN_OK) return status;
    if (args->validation) {
        gpunn__mean mean;
        gpunn__mean_begin(&mean, args->loss, args->metric, args->metrics);
        status = gpunn__mean_join(&mean, fit->opt->group, gpunn__mean_evaluate(&mean, args->validation));
        if (status == GPUNN_OK)
            gpunn__mean_get(&mean, args->metric != NULL, &p->validation_loss, &p->validation_metric,
                            p->validation_metrics);
    }
    *watched = args->validation ? p->validation_loss : p->loss;
    if (status == GPUNN_OK && gpunn__fit_is_best(fit, *watched)) status = gpunn__fit_keep(fit);
    if (averages) back = gpunn_ema_swap(fit->opt);
    return status == GPUNN_OK ? back : status;
}

static bool gpunn__fit_is_over(const gpunn__fit *fit)
{
    const gpunn__fit_record *record = fit->record;
    const int first = fit->args->min_epochs, best = record->best_epoch, from = best > first ? best : first;
    return fit->args->patience > 0 && record->epochs - from >= fit->args->patience;
}

/* Ends an epoch: validation, schedule, history, files, checkpoint. */
static GPUNN__STATUS gpunn__fit_epoch_end(gpunn__fit *fit)
{
    const gpunn_fit_args *args = fit->args;
    gpunn_progress       *p = &fit->progress;
    gpunn__fit_record    *record = fit->record;
    float                 watched = NAN;
    gpunn_status          status = gpunn__fit_validate(fit, &watched);
    if (status == GPUNN_OK && !args->schedule_per_batch) status = gpunn_schedule_step(fit->opt, watched);
    if (status != GPUNN_OK) return status;
    gpunn__epoch *row = &record->history[record->epochs++];
    row->value[0] = p->loss;
    row->value[1] = p->metric;
    row->value[2] = p->validation_loss;
    row->value[3] = p->validation_metric;
    row->lr = p->lr;
    row->seconds = gpunn__seconds() - fit->began;
    if (gpunn__fit_is_best(fit, watched)) {
        record->best = watched;
        record->best_epoch = p->epoch;
    }
    p->best_epoch = record->best_epoch;
    p->epoch_done = true;
    p->stopped_early = gpunn__fit_is_over(fit) && p->epoch < p->epochs;
    status = gpunn__fit_files(fit);
    if (status == GPUNN_OK && args->checkpoint)
        status = gpunn_checkpoint_save(fit->opt, args->train, args->checkpoint);
    if (status != GPUNN_OK) return status;
    if (args->epochs_run) ++*args->epochs_run;
    return gpunn__fit_call(fit, "on_progress", args->on_progress);
}

/* Loads the best weights once the epochs from `before` on have run. Returns the status that gpunn_fit
 * ends with. */
static GPUNN__STATUS gpunn__fit_restore(const gpunn__fit *fit, int before, gpunn_status status)
{
    const gpunn__fit_record *record = fit->record;
    const bool               ended = status == GPUNN_OK || status == GPUNN_ERR_CANCELLED;
    if (!fit->args->restore_best || !ended || record->kept.data == NULL || record->epochs == before)
        return status;
    const gpunn_status loaded = gpunn_load_memory(fit->opt->model, record->kept.data, record->kept.bytes);
    return status == GPUNN_OK ? loaded : status;
}

/* Continues the optimizer's record of this loss or starts a new one.
 * Allocates history for the epochs to come. */
static GPUNN__STATUS gpunn__fit_begin(gpunn__fit *fit)
{
    const gpunn_fit_args *args = fit->args;
    gpunn__fit_record    *record = fit->record;
    if (record->loss != args->loss->id + 1 || record->validation != (args->validation != NULL)) {
        record->loss = args->loss->id + 1;
        record->validation = args->validation != NULL;
        record->best = INFINITY;
        record->epochs = record->best_epoch = 0;
        gpunn_array_free(fit->dev, &record->kept);
    }
    if (args->epochs > INT32_MAX / 2 - record->epochs)
        return gpunn__fail(fit->dev, GPUNN_ERR_ARGUMENT, "gpunn_fit: %d epochs after %d are too many",
                           args->epochs, record->epochs);
    if (record->epochs + args->epochs > record->capacity) {
        int           capacity = record->epochs + args->epochs;
        gpunn__epoch *grown = (gpunn__epoch *)gpunn__realloc(fit->dev, record->history,
                                                             (size_t)record->capacity * sizeof *grown,
                                                             (size_t)capacity * sizeof *grown);
        if (grown == NULL) return GPUNN_ERR_MEMORY;
        record->history = grown;
        record->capacity = capacity;
    }
    return args->epochs > 0 ? gpunn__fit_files(fit) : GPUNN_OK; /* an invalid path fails before training */
}

static GPUNN__STATUS gpunn__fit_check(gpunn_optimizer *opt, const gpunn_fit_args *args)
{
    static const char function[] = "gpunn_fit";
    gpunn_device     *dev = opt->model->dev;
    if (args->loss == NULL || args->train == NULL)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: .%s is NULL; set it, and check the call that made it", function,
                           args->loss ? "train" : "loss");
    if (args->train->model != opt->model || (args->validation && args->validation->model != opt->model))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: the %s loader and the optimizer belong to different models", function,
                           args->train->model != opt->model ? "train" : "validation");
    if (args->epochs == 0)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: .epochs is 0 or left out; set the number of epochs, or GPUNN_ZERO for none",
                           function);
    if ((args->epochs < 0 && args->epochs != GPUNN_ZERO) || args->patience < 0 || args->accumulate < 0 ||
        args->min_epochs < 0)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: epochs is %d, patience %d, accumulate %d and min_epochs %d; none may be "
                           "negative",
                           function, args->epochs, args->patience, args->accumulate, args->min_epochs);
    gpunn_status status = gpunn__check_number(opt->model, args->loss, function, "loss");
    if (status == GPUNN_OK && args->metric)
        status = gpunn__check_number(opt->model, args->metric, function, "metric");
    if (status == GPUNN_OK && args->metric && gpunn_keep(args->metric) == NULL)
        status = gpunn_last_status(dev);
    for (int i = 0; status == GPUNN_OK && i < GPUNN_MAX_METRICS && args->metrics[i]; i++) {
        status = gpunn__check_number(opt->model, args->metrics[i], function, "metric");
        if (status == GPUNN_OK && gpunn_keep(args->metrics[i]) == NULL) status = gpunn_last_status(dev);
    }
    return status;
}

GPUNN_API gpunn_status gpunn_fit_(gpunn_optimizer *opt, gpunn_fit_args args)
{
    if (args.epochs_run) *args.epochs_run = 0;
    if (opt == NULL) return gpunn__fail_null(NULL, "gpunn_fit", "optimizer");
    gpunn_status status = gpunn__fit_check(opt, &args);
    if (args.epochs == GPUNN_ZERO) args.epochs = 0;
    if (opt->group)
        status = gpunn__all_reduce_status(opt->group, status, NULL, "gpunn_fit of %d epochs of %lld batches",
                                          args.epochs, (long long)gpunn_loader_batches(args.train));
    if (status != GPUNN_OK) return status;
    gpunn__fit fit;
    memset(&fit, 0, sizeof fit);
    fit.dev = opt->model->dev;
    fit.opt = opt;
    fit.args = &args;
    fit.record = &opt->fit;
    gpunn_progress *p = &fit.progress;
    p->batches = gpunn_loader_batches(args.train);
    p->validation_loss = p->validation_metric = NAN;
    for (int i = 0; i < GPUNN_MAX_METRICS; i++) p->metrics[i] = p->validation_metrics[i] = NAN;
    p->metric_name = args.metric ? gpunn__called(args.metric) : NULL;
    status = gpunn__fit_begin(&fit);
    const int before = opt->fit.epochs;
    p->epochs = before + args.epochs;
    p->best_epoch = opt->fit.best_epoch;
    for (p->epoch = before + 1; status == GPUNN_OK && p->epoch <= p->epochs && !gpunn__fit_is_over(&fit);
         p->epoch++) {
        fit.began = gpunn__seconds();
        p->epoch_done = false;
        status = gpunn__fit_batches(&fit);
        if (status == GPUNN_OK) status = gpunn__fit_epoch_end(&fit);
    }
    status = gpunn__fit_restore(&fit, before, status);
    if (opt->group && (status == GPUNN_OK || !opt->group->reported))
        status = gpunn__all_reduce_status(opt->group, status, NULL, "the end of gpunn_fit");
    return status;
}

/* ---- progress ------------------------------------------------------------------------------------------ */

/* Appends to a line and drops what does not fit. */
static void gpunn__line_add(char *line, size_t size, const char *format, ...) GPUNN__PRINTF(3, 4);
static void gpunn__line_add(char *line, size_t size, const char *format, ...)
{
    size_t  used = strlen(line);
    va_list list;
    va_start(list, format);
    (void)vsnprintf(line + used, size - used, format, list);
    va_end(list);
}

/* Columns of the terminal on stderr, or 0 if stderr is no terminal. */
static int gpunn__terminal_width(void)
{
    const char *columns = getenv("COLUMNS");
    int         width = columns ? atoi(columns) : 0;
#ifdef _WIN32
    CONSOLE_SCREEN_BUFFER_INFO screen;
    if (!_isatty(2)) return 0;
    if (GetConsoleScreenBufferInfo(GetStdHandle(STD_ERROR_HANDLE), &screen))
        width = screen.srWindow.Right - screen.srWindow.Left + 1;
#else
    if (!isatty(2)) return 0;
#ifdef TIOCGWINSZ
    struct winsize size;
    if (ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) width = size.ws_col;
#endif
#endif
    return width > 0 ? width : 80;
}

static void gpunn__line_add_metric(char *line, size_t size, const gpunn_progress *p, float value)
{
    char name[32];
    int  n = 0;
    if (value != value) return;
    for (const char *c = p->metric_name ? p->metric_name : "metric"; *c && n < (int)sizeof name - 1; c++)
        /* a name must not send control codes to the terminal */
        name[n++] = (unsigned char)*c < 32 || *c == 127 ? '?' : *c;
    name[n] = 0;
    gpunn__line_add(line, size, " %s %.4f", name, (double)value);
}

/* Keeps no state. It draws a batch if a tenth of a second ended within the
 * batch's share of the epoch's time so far. */
GPUNN_API bool gpunn_progress_bar(void *user, const gpunn_progress *progress)
{
    (void)user;
    if (progress == NULL) return true;
    const gpunn_progress *p = progress;
    double                share = p->batch > 0 ? p->seconds / (double)p->batch : 0;
    bool due = p->epoch_done || p->batch == 1 || floor(p->seconds * 10) > floor((p->seconds - share) * 10);
    const int width = due ? gpunn__terminal_width() : 0;
    if (!due || (width == 0 && !p->epoch_done)) return true;
    char line[256] = "", rest[224] = "", bar[21] = "";
    gpunn__line_add(line, sizeof line, "Epoch %d/%d ", p->epoch, p->epochs);
    gpunn__line_add(rest, sizeof rest, "%lld/%lld loss %.4g", (long long)p->batch, (long long)p->batches,
                    (double)p->loss);
    gpunn__line_add_metric(rest, sizeof rest, p, p->metric);
    if (p->epoch_done && p->validation_loss == p->validation_loss)
        gpunn__line_add(rest, sizeof rest, " validation %.4g", (double)p->validation_loss);
    if (p->epoch_done) gpunn__line_add_metric(rest, sizeof rest, p, p->validation_metric);
    if (p->epoch_done)
        gpunn__line_add(rest, sizeof rest, " %.0fs", p->seconds);
    else
        gpunn__line_add(rest, sizeof rest, " %.0fs left", share * (double)(p->batches - p->batch));
    /* a line as wide as the terminal would wrap */
    int available = width - 1 - (int)strlen(line) - (int)strlen(rest) - 3;
    int cells = available < (int)sizeof bar - 1 ? available : (int)sizeof bar - 1;
    for (int i = 0, done = (int)(p->batches > 0 ? cells * p->batch / p->batches : cells); i < cells; i++) {
        bar[i] = i < done ? '=' : ' ';
        if (i == done) bar[i] = '>';
    }
    if (cells >= 5) gpunn__line_add(line, sizeof line, "[%s] ", bar);
    gpunn__line_add(line, sizeof line, "%s", rest);
    if (width == 0)
        (void)fprintf(stderr, "%s\n", line);
    else
        (void)fprintf(stderr, "\r%-*.*s%s", width - 1, width - 1, line, p->epoch_done ? "\n" : "");
    if (p->stopped_early) (void)fprintf(stderr, "stopped early, epoch %d was best\n", p->best_epoch);
    return true;
}
