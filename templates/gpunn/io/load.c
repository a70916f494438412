#include "io/load.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/blocks.h"
#include "base/shapes.h"
#include "graph/tensors.h"
#include "plan/plan.h"

typedef struct gpunn__mismatches {
    const gpunn_load_args *args;
    int                    count;
    gpunn_status           status; /* of the first mismatch */
    char                   first[448];
} gpunn__mismatches;

static void gpunn__mismatch(gpunn__mismatches *m, gpunn_status status, const char *format, ...)
    GPUNN__PRINTF(3, 4);
static void gpunn__mismatch(gpunn__mismatches *m, gpunn_status status, const char *format, ...)
{
    char    line[sizeof m->first];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (m->args->report) m->args->report(m->args->user, line);
    if (m->count++ == 0) {
        m->status = status;
        strcpy(m->first, line);
    }
}

static bool gpunn__begins_with(const gpunn__slice *name, const char *start)
{
    size_t length = strlen(start);
    return name->length >= length && memcmp(name->at, start, length) == 0;
}

static bool gpunn__is_skipped(const gpunn_load_args *args, const gpunn__slice *name)
{
    for (const char *const *skip = args->skip; skip && *skip; skip++)
        if (gpunn__begins_with(name, *skip)) return true;
    return false;
}

static const char *gpunn__entry_shape(const gpunn__entry *item, char text[192])
{
    int used = snprintf(text, 192, "[");
    for (int i = 0; i < item->rank && i < GPUNN_MAX_RANK; i++)
        used += snprintf(text + used, 192 - (size_t)used, "%s%lld", i ? ", " : "", (long long)item->dim[i]);
    (void)snprintf(text + used, 192 - (size_t)used, "%s", item->rank > GPUNN_MAX_RANK ? ", ...]" : "]");
    return text;
}

/* Whether a tensor with that encoding (NULL: unknown) can be read as dtype. Any number can become a float. */
static bool gpunn__reads_as(const gpunn__encoding *encoding, gpunn_dtype dtype)
{
    return encoding && (encoding->dtype == dtype || (dtype == GPUNN_F32 && encoding->id != GPUNN__C64));
}

/* The integers of a weight of ops of 8-bit numbers; NULL: the file has none. */
static gpunn__entry *gpunn__find_integers(const gpunn__archive *a, const gpunn_tensor *t)
{
    gpunn__entry *item = gpunn__table_find(&a->tensors, gpunn__int8_prefix, t->name);
    if (item == NULL || item->encoding == NULL || item->encoding->id != GPUNN__I8 || t->storage ||
        gpunn__row_scale(t) == NULL)
        return NULL;
    item->rounded = t;
    return item;
}

/* Multiplies the rows of a weight by their scales. Both are in host memory. */
static void gpunn__multiply_rows(float *weight, const float *scale, int64_t rows, int64_t each)
{
    for (int64_t i = 0; i < rows * each; i++) weight[i] *= scale[i / each];
}

/* The same for a weight and scales in device memory. */
static GPUNN__STATUS gpunn__multiply_there(gpunn_device *dev, float *weight, const float *scale, int64_t rows,
                                           int64_t each)
{
    const size_t bytes = (size_t)rows * sizeof(float), all = (size_t)each * bytes;
    float       *host = (float *)gpunn__realloc(dev, NULL, 0, all + bytes);
    if (host == NULL) return GPUNN_ERR_MEMORY;
    float *const scales = host + rows * each;
    gpunn_status status = dev->backend->download(dev->context, host, weight, all);
    if (status == GPUNN_OK) status = dev->backend->download(dev->context, scales, scale, bytes);
    if (status == GPUNN_OK) {
        gpunn__multiply_rows(host, scales, rows, each);
        status = dev->backend->upload(dev->context, weight, host, all);
    }
    gpunn__free(dev, host, all + bytes);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, "loading weights", status);
}

/* Makes weights of the integers that have been read. base: the model's weights, or a copy of all of them. */
static GPUNN__STATUS gpunn__scale_integers(const gpunn__archive *a, float *base, bool on_device)
{
    gpunn_status status = GPUNN_OK;
    for (int i = 0; i < a->tensors.count && status == GPUNN_OK; i++) {
        const gpunn__entry *item = &a->tensors.items[i];
        const gpunn_tensor *t = item->rounded;
        if (t == NULL || item->to == NULL) continue;
        const float  *scale = base + gpunn__row_scale(t)->offset;
        const int64_t rows = t->dim[0], each = gpunn__count(t, 1) / rows;
        if (on_device)
            status = gpunn__multiply_there(a->reader.dev, (float *)item->to, scale, rows, each);
        else
            gpunn__multiply_rows((float *)item->to, scale, rows, each);
    }
    return status;
}

/* Finds the tensor named prefix + t's name. If it has t's shape (scalar: rank 0) and can be read as dtype,
 * sets its destination. Otherwise reports a mismatch. */
static void gpunn__match(gpunn__archive *a, gpunn__mismatches *m, const char *prefix, const gpunn_tensor *t,
                         bool scalar, gpunn_dtype dtype, void *to)
{
    gpunn__entry *item = gpunn__table_find(&a->tensors, prefix, t->name);
    gpunn__slice  name = {t->name, strlen(t->name)};
    char          shown[128], type[128];
    if (item == NULL && *prefix == 0) item = gpunn__find_integers(a, t);
    (void)gpunn__printable(&name, shown);
    if (item) item->matched = true;
    if (item && item->kept) return;
    if (gpunn__has_bound_blocks(t))
        gpunn__mismatch(m, GPUNN_ERR_STATE, "%s%s: bound to blocks, which are only read", prefix, shown);
    else if (item == NULL)
        gpunn__mismatch(m, GPUNN_ERR_FORMAT, "%s%s: in the model only", prefix, shown);
    else if (gpunn__table_find(&a->tensors, t->name, ".quant_state.bitsandbytes__nf4"))
        gpunn__mismatch(m, GPUNN_ERR_UNSUPPORTED,
                        "%s%s: NF4 of bitsandbytes, which generator.quantize --to nf4 converts", prefix,
                        shown);
    else if (!gpunn__reads_as(item->encoding, dtype))
        gpunn__mismatch(m, GPUNN_ERR_DTYPE, "%s%s: file %s, model %s", prefix, shown,
                        gpunn__printable(&item->text, type), gpunn_dtype_name(dtype));
    else if (item->rank != (scalar ? 0 : t->rank) ||
             memcmp(item->dim, t->dim, (size_t)item->rank * sizeof *t->dim) != 0) {
        char file[192], model[128];
        gpunn__mismatch(m, GPUNN_ERR_SHAPE, "%s%s: file %s, model %s", prefix, shown,
                        gpunn__entry_shape(item, file), scalar ? "[]" : gpunn__shape_text(t, model));
    } else {
        item->to = to;
        item->as = t->storage ? t->storage : dtype;
    }
}

GPUNN__INTERNAL gpunn_optimizer *gpunn__partner(const gpunn_optimizer *opt, const gpunn_optimizer *before)
{
    gpunn_optimizer *other = opt ? opt->model->optimizers : NULL;
    if (before) other = before->next;
    while (other && other != opt && (opt->scope == 0 || other->scope == 0)) other = other->next;
    return other;
}

GPUNN__INTERNAL size_t gpunn__stage_steps(const gpunn_optimizer *opt)
{
    size_t bytes = 0;
    for (const gpunn_optimizer *o = gpunn__partner(opt, NULL); o; o = gpunn__partner(opt, o))
        bytes += (size_t)o->parameter_count * sizeof *o->steps;
    return bytes;
}

GPUNN__INTERNAL size_t gpunn__stage_bytes(const gpunn_model *model, const gpunn_optimizer *opt)
{
    size_t floats = (size_t)model->weight_count;
    for (const gpunn_optimizer *o = gpunn__partner(opt, NULL); o; o = gpunn__partner(opt, o))
        for (int k = 0; k < GPUNN__STATES; k++) floats += o->uses[k] ? (size_t)o->state_count : 0;
    return gpunn__stage_steps(opt) + floats * sizeof(float);
}

/* Copies count floats between the device and *stage, and advances *stage. */
static GPUNN__STATUS gpunn__stage_block(gpunn_device *dev, float *block, int64_t count, char **stage,
                                        bool upload)
{
    size_t bytes = (size_t)count * sizeof *block;
    if (bytes == 0) return GPUNN_OK;
    gpunn_status status = upload ? dev->backend->upload(dev->context, block, *stage, bytes)
                                 : dev->backend->download(dev->context, *stage, block, bytes);
    *stage += bytes;
    if (status == GPUNN_OK) return GPUNN_OK;
    return gpunn__backend_fail(dev, upload ? "loading weights" : "reading weights", status);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__stage_copy(gpunn_model *model, gpunn_optimizer *opt, char *stage,
                                                bool upload)
{
    stage += gpunn__stage_steps(opt);
    gpunn_status status = upload ? GPUNN_OK : gpunn__copy_user_weights(model, false);
    if (status == GPUNN_OK)
        status = gpunn__stage_block(model->dev, model->weights, model->weight_count, &stage, upload);
    for (gpunn_optimizer *o = gpunn__partner(opt, NULL); o; o = gpunn__partner(opt, o))
        for (int k = 0; k < GPUNN__STATES && status == GPUNN_OK; k++) {
            char *own = stage + (size_t)o->states.begin * sizeof(float); /* all, or one rank's slice */
            if (!o->uses[k]) continue;
            status = gpunn__stage_block(model->dev, o->states.data[k], o->states.count, &own, upload);
            stage += (size_t)o->state_count * sizeof(float);
        }
    return status == GPUNN_OK && upload ? gpunn__copy_user_weights(model, true) : status;
}

GPUNN__INTERNAL const gpunn__entry *gpunn__note(const gpunn__archive *a, int index, const char *name,
                                                const char *rest)
{
    char tag[16] = "", whole[80];
    if (index) (void)snprintf(tag, sizeof tag, "%d:", index);
    (void)snprintf(whole, sizeof whole, "%s%s", tag, name);
    return gpunn__table_find(&a->notes, whole, rest);
}

GPUNN__INTERNAL bool gpunn__has_averages(const gpunn__archive *a, int index)
{
    return gpunn__note(a, index, "average.decay", "") != NULL;
}

/* Sets destinations for an optimizer's tensors: its step counts at steps, its states at *at, which is
 * advanced. */
static void gpunn__match_optimizer(gpunn__archive *a, gpunn__mismatches *m, const gpunn_optimizer *opt,
                                   int index, char *steps, float **at)
{
    for (int i = 0; i < opt->parameter_count; i++)
        gpunn__match(a, m, gpunn__step_prefix, opt->parameters[i], true, GPUNN_I64,
                     steps + (size_t)i * sizeof *opt->steps);
    for (int k = 0; k < GPUNN__STATES; k++) {
        if (!opt->uses[k]) continue;
        for (int i = 0; (k < GPUNN__AVERAGE || gpunn__has_averages(a, index)) && i < opt->parameter_count;
             i++)
            gpunn__match(a, m, gpunn__state_prefix[k], opt->parameters[i], false, GPUNN_F32,
                         *at + opt->places[i]);
        *at += opt->state_count;
    }
}

/* Sets destinations in the stage for all tensors of the model and the optimizers. */
static void gpunn__match_all(gpunn__archive *a, gpunn__mismatches *m, const gpunn_model *model,
                             const gpunn_optimizer *opt, char *stage)
{
    float *at = (float *)(void *)(stage + gpunn__stage_steps(opt));
    int    index = 0;
    for (int i = 0; i < model->tensor_count; i++) {
        const gpunn_tensor *t = model->tensors[i];
        if (!gpunn__is_saved(t)) continue;
        gpunn__slice name = {t->name, strlen(t->name)};
        const bool   optional = t->adapter && opt == NULL &&
                              gpunn__table_find(&a->tensors, "", t->name) == NULL;
        if (!optional && !gpunn__is_skipped(m->args, &name))
            gpunn__match(a, m, "", t, false, GPUNN_F32, at + t->offset);
    }
    at += model->weight_count;
    for (const gpunn_optimizer *o = gpunn__partner(opt, NULL); o; o = gpunn__partner(opt, o)) {
        gpunn__match_optimizer(a, m, o, index++, stage, &at);
        stage += (size_t)o->parameter_count * sizeof *o->steps;
    }
}

/* Reports tensors that are only in the file. A checkpoint's optimizer tensors and torch's counters of
 * batch_norm calls are ignored. */
static void gpunn__match_rest(gpunn__archive *a, gpunn__mismatches *m, bool checkpoint)
{
    static const char counter[] = ".num_batches_tracked";
    for (int i = 0; i < a->tensors.count; i++) {
        const gpunn__entry *item = &a->tensors.items[i];
        size_t              length = item->name.length, suffix = sizeof counter - 1;
        if (item->matched || gpunn__is_skipped(m->args, &item->name) ||
            (checkpoint && gpunn__begins_with(&item->name, "optimizer.")))
            continue;
        if (length > suffix && memcmp(item->name.at + length - suffix, counter, suffix) == 0) continue;
        char shown[128];
        gpunn__mismatch(m, GPUNN_ERR_FORMAT, "%s: in the file only", gpunn__printable(&item->name, shown));
    }
}

GPUNN__INTERNAL bool gpunn__is_checkpoint(const gpunn__archive *a)
{
    const gpunn__entry *format = gpunn__table_find(&a->notes, "", "format");
    return format && gpunn__slice_is(&format->text, "gpunn-checkpoint");
}

/* Sets destinations in `stage` for all tensors of the model and the optimizers. Fails if anything does not
 * match, unless args->partial. */
static GPUNN__STATUS gpunn__match_file(gpunn__archive *a, const gpunn_model *model,
                                       const gpunn_optimizer *opt, const gpunn_load_args *args,
                                       const char *function, char *stage)
{
    gpunn__mismatches mismatches;
    char              more[48] = "";
    mismatches.args = args;
    mismatches.count = 0;
    gpunn__match_all(a, &mismatches, model, opt, stage);
    gpunn__match_rest(a, &mismatches, opt == NULL && gpunn__is_checkpoint(a));
    if (mismatches.count == 0 || args->partial) return GPUNN_OK;
    if (mismatches.count > 1) (void)snprintf(more, sizeof more, " (and %d more)", mismatches.count - 1);
    return gpunn__fail(model->dev, mismatches.status, "%s: '%s' does not fit the model: %s%s; %s", function,
                       gpunn__tail(a->reader.path), mismatches.first, more,
                       opt ? "build the model and the optimizer as they were when it was saved"
                           : "build the model as it was, or load with .partial = true to take what fits");
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__stage_fill(gpunn__archive *a, gpunn_model *model, gpunn_optimizer *opt,
                                                const gpunn_load_args *args, const char *function,
                                                char **stage)
{
    size_t bytes = gpunn__stage_bytes(model, opt);
    *stage = bytes ? (char *)gpunn__realloc(model->dev, NULL, 0, bytes) : NULL;
    if (bytes && *stage == NULL) return GPUNN_ERR_MEMORY;
    gpunn_status status = gpunn__match_file(a, model, opt, args, function, *stage);
    if (status == GPUNN_OK) status = gpunn__stage_copy(model, opt, *stage, false);
    if (status == GPUNN_OK) status = gpunn__archive_read(a, NULL);
    if (status == GPUNN_OK)
        status = gpunn__scale_integers(a, (float *)(void *)(*stage + gpunn__stage_steps(opt)), false);
    if (status == GPUNN_OK) return status;
    gpunn__free(model->dev, *stage, bytes);
    *stage = NULL;
    return status;
}

/* On failure the new weights are dropped, so no copy is needed. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__load_first(gpunn__archive *a, gpunn_model *model,
                                                const gpunn_load_args *args, const char *function)
{
    gpunn_device *dev = model->dev;
    gpunn_status  status = gpunn__commit_as(model, false);
    void         *chunk = NULL;
    if (status == GPUNN_OK && (chunk = gpunn__realloc(dev, NULL, 0, GPUNN__CHUNK)) == NULL)
        status = GPUNN_ERR_MEMORY;
    if (status == GPUNN_OK)
        status = gpunn__match_file(a, model, NULL, args, function, (char *)model->weights);
    for (int i = 0; i < model->tensor_count && status == GPUNN_OK; i++) {
        const gpunn_tensor *t = model->tensors[i];
        const gpunn__entry *item = gpunn__is_saved(t) ? gpunn__table_find(&a->tensors, "", t->name) : NULL;
        if ((t->kind == GPUNN__PARAMETER || t->kind == GPUNN__BUFFER) && !gpunn__has_bound_blocks(t) &&
            (item == NULL || item->to == NULL))
            status = gpunn__fill_tensor(t, model->weights + t->offset, (float *)chunk);
    }
    if (status == GPUNN_OK) status = gpunn__archive_read(a, chunk);
    if (status == GPUNN_OK) status = gpunn__scale_integers(a, model->weights, true);
    gpunn__free(dev, chunk, GPUNN__CHUNK);
    if (status != GPUNN_OK) gpunn__uncommit(model);
    return status;
}

/* ---- blocks that stay as they are in the file ---------------------------------------------------------- */
GPUNN__INTERNAL void gpunn__free_kept(gpunn_model *model)
{
    for (int i = 0; i < model->kept_count; i++) {
        const gpunn__kept *kept = &model->kept[i];
        if (kept->mapped)
            gpunn__unmap(kept->at, kept->bytes);
        else if (kept->at)
            gpunn__device_free(model->dev, kept->at, kept->bytes);
    }
    gpunn__free(model->dev, model->kept, (size_t)model->kept_count * sizeof *model->kept);
    model->kept = NULL;
    model->kept_count = 0;
}

/* The parameters become as they were before gpunn__keep_blocks. */
static void gpunn__return_blocks(gpunn_model *model, const gpunn__archive *a)
{
    for (int i = 0; i < model->tensor_count; i++) {
        gpunn_tensor       *t = model->tensors[i];
        const gpunn__entry *item = t->name ? gpunn__table_find(&a->tensors, "", t->name) : NULL;
        if (item == NULL || !item->kept || !gpunn__has_bound_blocks(t)) continue;
        t->bound = false;
        t->storage = GPUNN_DTYPE_DEFAULT;
        memset(&t->user_memory[0], 0, sizeof t->user_memory[0]);
    }
    gpunn__free_kept(model);
}

/* Freezes parameters of a model that trains if they are bound to blocks. */
static void gpunn__freeze_kept(const gpunn_model *model)
{
    for (int i = 0; i < model->tensor_count && !model->inference; i++)
        if (gpunn__has_bound_blocks(model->tensors[i])) gpunn__freeze(model->tensors[i]);
}

/* Bytes of the tensor's copy, with its padding. */
static size_t gpunn__kept_size(const gpunn__entry *item)
{
    return ((size_t)(item->end - item->begin) + GPUNN__ALIGN - 1) / GPUNN__ALIGN * GPUNN__ALIGN;
}

/* Marks the blocks that parameters can be bound to. Adds the bytes of a copy to those of each file. */
static void gpunn__find_blocks(const gpunn_model *model, gpunn__archive *a, const gpunn_load_args *args)
{
    for (int i = 0; i < model->tensor_count; i++) {
        const gpunn_tensor *t = model->tensors[i];
        gpunn__slice        name = {t->name, t->name ? strlen(t->name) : 0};
        gpunn__entry       *item = t->name ? gpunn__table_find(&a->tensors, "", t->name) : NULL;
        if (item == NULL || gpunn__is_skipped(args, &name) || item->encoding == NULL) continue;
        item->as = gpunn__blocks_of(item->encoding);
        item->kept = item->as && item->rank == t->rank &&
                     memcmp(item->dim, t->dim, (size_t)t->rank * sizeof *t->dim) == 0 &&
                     gpunn__takes_blocks(t);
        if (item->kept) model->kept[item->file->number].bytes += gpunn__kept_size(item);
    }
}

/* Maps a file or, where that is not possible, allocates memory for kept->bytes bytes of its blocks. */
static GPUNN__STATUS gpunn__keep_file(gpunn_device *dev, const gpunn__archive *file, gpunn__kept *kept)
{
    void *mapped = dev->backend->reaches || kept->bytes == 0 ? NULL : gpunn__reader_map(&file->reader);
    if (kept->bytes == 0) return GPUNN_OK;
    kept->mapped = mapped != NULL;
    kept->at = (char *)(mapped ? mapped : gpunn__device_alloc(dev, kept->bytes));
    if (mapped) kept->bytes = (size_t)file->reader.limit;
    return kept->at ? GPUNN_OK : dev->error.status;
}

/* Binds a parameter to the blocks of the file, or to memory into which they will be read. */
static GPUNN__STATUS gpunn__keep_tensor(gpunn_tensor *t, gpunn__entry *item, gpunn__kept *kept)
{
    const uint64_t begin = item->file->reader.limit - item->file->bytes + item->begin;
    char *const    at = kept->at + (kept->mapped ? begin : kept->used);
    if (!kept->mapped) item->to = at;
    kept->used += gpunn__kept_size(item);
    return gpunn__bind_blocks(t, item->as, at, (size_t)(item->end - item->begin));
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__keep_blocks(gpunn_model *model, gpunn__archive *a,
                                                 const gpunn_load_args *args)
{
    gpunn_status status = GPUNN_OK;
    const int    files = a->shard_count ? a->shard_count : 1;
    model->kept = (gpunn__kept *)gpunn__calloc(model->dev, (size_t)files * sizeof *model->kept);
    if (model->kept == NULL) return GPUNN_ERR_MEMORY;
    model->kept_count = files;
    gpunn__find_blocks(model, a, args);
    for (int i = 0; i < files && status == GPUNN_OK; i++)
        status = gpunn__keep_file(model->dev, a->shard_count ? a->shards[i] : a, &model->kept[i]);
    for (int i = 0; i < model->tensor_count && status == GPUNN_OK; i++) {
        gpunn_tensor *t = model->tensors[i];
        gpunn__entry *item = t->name ? gpunn__table_find(&a->tensors, "", t->name) : NULL;
        if (item == NULL || !item->kept || t->kind != GPUNN__PARAMETER) continue;
        status = gpunn__keep_tensor(t, item, &model->kept[item->file->number]);
    }
    return status;
}

/* Loads into a model that has weights. The whole file is read before any weight changes. */
static GPUNN__STATUS gpunn__load_over(gpunn__archive *a, gpunn_model *model, const gpunn_load_args *args)
{
    char        *stage;
    gpunn_status status = gpunn__commit(model);
    if (status == GPUNN_OK) status = gpunn__stage_fill(a, model, NULL, args, "gpunn_load", &stage);
    if (status != GPUNN_OK) return status;
    status = gpunn__stage_copy(model, NULL, stage, true);
    GPUNN__WEIGHTS_CHANGED(model);
    gpunn__free(model->dev, stage, gpunn__stage_bytes(model, NULL));
    return status;
}

GPUNN_API gpunn_status gpunn_load_(gpunn_model *model, const char *path, gpunn_load_args args)
{
    if (model == NULL) return gpunn__fail_null(NULL, "gpunn_load", "model");
    if (args.keep_blocks && (model->weight_count || model->kept))
        return gpunn__fail(
            model->dev, GPUNN_ERR_STATE,
            "gpunn_load: with .keep_blocks a model must have no weights yet; load it before it "
            "runs and before weights are written");
    gpunn__archive archive;
    gpunn_status   status = gpunn__archive_open(model->dev, args.io, path, &archive);
    if (status != GPUNN_OK) return status;
    if (args.map) status = gpunn__archive_rename(&archive, args.map);
    if (status == GPUNN_OK && args.keep_blocks) status = gpunn__keep_blocks(model, &archive, &args);
    if (status == GPUNN_OK)
        status = model->weight_count ? gpunn__load_over(&archive, model, &args)
                                     : gpunn__load_first(&archive, model, &args, "gpunn_load");
    if (status != GPUNN_OK && args.keep_blocks) gpunn__return_blocks(model, &archive);
    if (status == GPUNN_OK && args.keep_blocks) gpunn__freeze_kept(model);
    gpunn__archive_close(&archive);
    return status;
}

GPUNN_API gpunn_status gpunn_load_memory_(gpunn_model *model, const void *data, size_t size,
                                          gpunn_load_args args)
{
    gpunn__memory memory = {(const char *)data, size};
    gpunn_io      io = gpunn__memory_io(&memory);
    args.io = &io;
    if (model && data == NULL)
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_load_memory: data is NULL; give the bytes of a safetensors file");
    return gpunn_load_(model, "memory", args);
}
