#include "io/save.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/blocks.h"
#include "base/math.h"
#include "base/shapes.h"
#include "base/text.h"
#include "ranks/group.h"
#include "graph/tensors.h"
#include "plan/plan.h"
#include "train/optimizer.h"
#include "train/ranks.h"
#include "train/loader.h"
#include "io/load.h"

static void gpunn__emit_plain(gpunn__writer *w, const char *text, size_t length)
{
    w->length += length;
    if (w->pass == GPUNN__HEADER) (void)gpunn__file_write(w->file, text, length);
}

GPUNN__INTERNAL void gpunn__emit(gpunn__writer *w, const char *text, size_t length)
{
    for (size_t i = 0; w->quoted && i < length; i++) {
        const bool escaped = text[i] == '"' || text[i] == '\\' || text[i] == '\n';
        if (escaped) gpunn__emit_plain(w, "\\", 1);
        gpunn__emit_plain(w, text[i] == '\n' ? "n" : text + i, 1);
    }
    if (!w->quoted) gpunn__emit_plain(w, text, length);
}

GPUNN__INTERNAL void gpunn__emitf(gpunn__writer *w, const char *format, ...)
{
    char    text[256];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    gpunn__emit(w, text, (size_t)length);
}

GPUNN__INTERNAL bool gpunn__emit_escaped(gpunn__writer *w, const char *text, size_t length)
{
    bool good = true;
    for (size_t size; length > 0; text += size, length -= size) {
        const unsigned char c = (unsigned char)*text;
        size = gpunn__utf8_size(text, length);
        good = good && size > 0;
        if (size == 0) {
            gpunn__emit(w, "\xEF\xBF\xBD", 3);
            size = 1;
        } else if (c < 0x20)
            gpunn__emitf(w, "\\u%04x", c);
        else {
            if (c == '"' || c == '\\') gpunn__emit(w, "\\", 1);
            gpunn__emit(w, text, size);
        }
    }
    return good;
}

GPUNN__INTERNAL void gpunn__emit_number(gpunn__writer *w, const char *separator, float value)
{
    char               number[48];
    gpunn__text_buffer line = {number, sizeof number, 0};
    gpunn__put_number(&line, value);
    gpunn__emitf(w, "%s%s", separator, number);
}

GPUNN__INTERNAL void gpunn__emit_name(gpunn__writer *w, const char *prefix, const char *name)
{
    gpunn__emitf(w, "\"%s", prefix);
    if (!gpunn__emit_escaped(w, name, strlen(name)) && w->status == GPUNN_OK)
        w->status = gpunn__fail(w->dev, GPUNN_ERR_ARGUMENT,
                                "the name '%.120s' is not UTF-8, so no file can hold it; rename the layer",
                                name);
    gpunn__emit(w, "\"", 1);
}

static void gpunn__emit_floats(gpunn__writer *w, const float *from, size_t bytes)
{
    for (size_t at = 0; at < bytes && w->status == GPUNN_OK; at += GPUNN__CHUNK) {
        size_t part = bytes - at < (size_t)GPUNN__CHUNK ? bytes - at : (size_t)GPUNN__CHUNK;
        w->status = w->dev->backend->download(w->dev->context, w->chunk, (const char *)from + at, part);
        if (w->status != GPUNN_OK)
            w->status = gpunn__backend_fail(w->dev, "saving weights", w->status);
        else
            w->status = gpunn__file_write(w->file, w->chunk, part);
    }
}

/* Writes a parameter that is stored as blocks, as floats. The last half of the chunk holds the blocks. */
static void gpunn__emit_blocks(gpunn__writer *w, const gpunn_tensor *t)
{
    enum { MOST = GPUNN__CHUNK / 8 };
    char *const half = w->chunk + GPUNN__CHUNK / 2;
    for (int64_t at = 0, count = gpunn__count(t, 1), part; at < count && w->status == GPUNN_OK; at += part) {
        part = count - at < MOST ? count - at : (int64_t)MOST;
        const char *from = (const char *)gpunn__weights(t) + gpunn__block_bytes(t->storage, at);
        w->status = w->dev->backend->download(w->dev->context, half, from,
                                              gpunn__block_bytes(t->storage, part));
        if (w->status != GPUNN_OK) {
            w->status = gpunn__backend_fail(w->dev, "saving weights", w->status);
            return;
        }
        gpunn__dequantize(t->storage, half, (float *)(void *)w->chunk, part);
        w->status = gpunn__file_write(w->file, w->chunk, (size_t)part * sizeof(float));
    }
}

GPUNN__INTERNAL void gpunn__emit_entry(gpunn__writer *w, const char *prefix, const char *name,
                                       gpunn_dtype dtype, int rank, const int64_t *dim, size_t bytes)
{
    static const char *const types[] = {"",
#define GPUNN__X(id, text, file_name, bytes) file_name,
                                        GPUNN_DTYPE_LIST(GPUNN__X)
#undef GPUNN__X
                                            "I8"};
    gpunn__emit(w, ",", 1);
    gpunn__emit_name(w, prefix, name);
    gpunn__emitf(w, ":{\"dtype\":\"%s\",\"shape\":[", types[dtype]);
    for (int i = 0; i < rank; i++) gpunn__emitf(w, "%s%lld", i ? "," : "", (long long)dim[i]);
    gpunn__emitf(w, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)w->offset,
                 (unsigned long long)(w->offset + bytes));
    w->offset += bytes;
}

/* Writes elements [at, at + count) of a weight, which the last half of the chunk holds, as integers. */
static void gpunn__emit_rounded(gpunn__writer *w, const float *scale, int64_t each, int64_t at, int64_t count)
{
    const float *weight = (const float *)(void *)(w->chunk + GPUNN__CHUNK / 2);
    for (int64_t i = 0; i < count; i++)
        w->chunk[i] = (char)(int8_t)gpunn__rounded_weight(weight[i], scale[(at + i) / each]);
    w->status = gpunn__file_write(w->file, w->chunk, (size_t)count);
}

/* Copies count floats from device memory to `to`. */
static bool gpunn__fetch(gpunn__writer *w, const float *from, int64_t count, void *to)
{
    const gpunn_status status = w->dev->backend->download(w->dev->context, to, from,
                                                          (size_t)count * sizeof *from);
    if (status != GPUNN_OK) w->status = gpunn__backend_fail(w->dev, "saving weights", status);
    return status == GPUNN_OK;
}

/* Writes a weight as integers. */
static void gpunn__emit_integers(gpunn__writer *w, const gpunn_tensor *t, const gpunn_tensor *scale)
{
    enum { MOST = GPUNN__CHUNK / 8 };
    const int64_t count = gpunn__count(t, 1), rows = t->dim[0];
    const size_t  bytes = (size_t)rows * sizeof(float);
    float        *scales = (float *)gpunn__realloc(w->dev, NULL, 0, bytes);
    if (scales == NULL) w->status = GPUNN_ERR_MEMORY;
    if (w->status == GPUNN_OK) (void)gpunn__fetch(w, gpunn__weights(scale), rows, scales);
    for (int64_t at = 0, part; at < count && w->status == GPUNN_OK; at += part) {
        part = count - at < MOST ? count - at : (int64_t)MOST;
        if (gpunn__fetch(w, gpunn__weights(t) + at, part, w->chunk + GPUNN__CHUNK / 2))
            gpunn__emit_rounded(w, scales, count / rows, at, part);
    }
    gpunn__free(w->dev, scales, bytes);
}

/* The scales of a parameter that is written as integers; NULL: it is not. */
static const gpunn_tensor *gpunn__integer_scale(const gpunn__writer *w, const gpunn_tensor *t)
{
    return w->blocks && !t->storage ? gpunn__row_scale(t) : NULL;
}

/* Emits a tensor: either floats in device memory, with t's shape, or, if number is non-NULL, one number. */
static void gpunn__emit_tensor(gpunn__writer *w, const char *prefix, const gpunn_tensor *t,
                               const float *floats, const int64_t *number)
{
    const bool          blocks = floats && gpunn__is_blocks(t->storage), widened = blocks && !w->blocks;
    const gpunn_tensor *scale = floats ? gpunn__integer_scale(w, t) : NULL;
    gpunn_dtype         dtype = gpunn__weight_dtype(t);
    int64_t             dim[GPUNN_MAX_RANK];
    if (blocks) dtype = widened ? GPUNN_F32 : GPUNN_U8;
    if (scale) dtype = (gpunn_dtype)GPUNN__INT8, prefix = gpunn__int8_prefix;
    if (number) dtype = GPUNN_I64;
    memcpy(dim, t->dim, sizeof dim);
    if (blocks && !widened) dim[t->rank - 1] = (int64_t)gpunn__block_bytes(t->storage, dim[t->rank - 1]);
    size_t bytes = number ? sizeof *number : scale ? sizeof(int8_t) : gpunn_dtype_size(dtype);
    for (int i = 0; i < t->rank && !number; i++) bytes *= (size_t)dim[i];
    if (w->pass == GPUNN__TENSORS) {
        if (number)
            (void)gpunn__file_write(w->file, number, bytes);
        else if (widened)
            gpunn__emit_blocks(w, t);
        else if (scale)
            gpunn__emit_integers(w, t, scale);
        else
            gpunn__emit_floats(w, floats, bytes);
        return;
    }
    gpunn__emit_entry(w, prefix, t->name, dtype, number ? 0 : t->rank, dim, bytes);
}

static void gpunn__emit_resume(gpunn__writer *w, const gpunn__resume *resume, int number)
{
    char tag[16] = "";
    if (number) (void)snprintf(tag, sizeof tag, "%d:", number);
    gpunn__emitf(w, ",\"%soptimizer\":\"%s\"", tag, resume->opt.name);
    for (int f = number ? GPUNN__RUN_FIELDS : 0;
         f < gpunn__resume_field_count(resume->opt.uses[GPUNN__AVERAGE]); f++) {
        const gpunn__resume_field *field = &gpunn__resume_fields[f];
        for (int i = 0; i < field->count; i++) {
            char    index[16];
            int64_t value = 0;
            memcpy(&value, (const char *)resume + field->offset + (size_t)i * field->size, field->size);
            gpunn__emitf(w, ",\"%s%s%s\":\"%lld\"", tag, field->name, gpunn__resume_index(field, i, index),
                         (long long)value);
        }
    }
    for (int64_t at = 0; at < (int64_t)resume->opt.fit.epochs * GPUNN__EPOCH_NOTES; at++)
        gpunn__emitf(w, ",\"%sfit.history.%lld\":\"%lld\"", tag, (long long)at,
                     (long long)gpunn__epoch_note(&resume->opt.fit.history[at / GPUNN__EPOCH_NOTES],
                                                  (int)(at % GPUNN__EPOCH_NOTES)));
}

GPUNN__INTERNAL void gpunn__emit_begin(gpunn__writer *w, gpunn__pass pass, const gpunn__resume *resume,
                                       int count)
{
    w->pass = pass;
    w->length = w->offset = 0;
    if (pass == GPUNN__TENSORS) return;
    gpunn__emitf(w, "{\"__metadata__\":{\"format\":\"%s\"", count ? "gpunn-checkpoint" : "pt");
    if (count) gpunn__emitf(w, ",\"version\":\"" GPUNN__CHECKPOINT_VERSION "\"");
    if (count > 1) gpunn__emitf(w, ",\"optimizers\":\"%d\"", count);
    for (int i = 0; i < count; i++) gpunn__emit_resume(w, &resume[i], i);
}

typedef struct gpunn__saved {
    const gpunn_model   *model;
    const gpunn__resume *resume; /* one per optimizer */
    int                  count;  /* 0: weights only */
} gpunn__saved;

static void gpunn__emit_states(gpunn__writer *w, const gpunn_optimizer *opt)
{
    for (int k = 0; k < GPUNN__STATES; k++)
        for (int i = 0; opt->uses[k] && i < opt->parameter_count; i++)
            gpunn__emit_tensor(w, gpunn__state_prefix[k], opt->parameters[i],
                               gpunn__state_at(opt, k, opt->places[i]), NULL);
}

GPUNN__INTERNAL void gpunn__emit_values(gpunn__writer *w, const gpunn_model *model)
{
    /* 16-bit weights and blocks, whose bytes are even, then integers of 8 bits, so that all stay aligned */
    for (int last = 0; last < 3; last++)
        for (int i = 0; i < model->tensor_count; i++) {
            const gpunn_tensor *t = model->tensors[i];
            if (!gpunn__is_saved(t)) continue;
            const bool even = gpunn__is_blocks(t->storage) ? w->blocks : gpunn_dtype_size(t->storage) == 2;
            if ((gpunn__integer_scale(w, t) ? 2 : even) == last)
                gpunn__emit_tensor(w, "", t, gpunn__weights(t), NULL);
        }
}

static void gpunn__emit_model(gpunn__writer *w, gpunn__pass pass, const void *what)
{
    const gpunn__saved  *saved = (const gpunn__saved *)what;
    const gpunn__resume *resume = saved->resume;
    gpunn__emit_begin(w, pass, resume, saved->count);
    if (pass != GPUNN__TENSORS) gpunn__emit(w, "}", 1);
    for (int k = 0; k < saved->count; k++)
        for (int i = 0; i < resume[k].opt.parameter_count; i++) /* first, so that they stay aligned */
            gpunn__emit_tensor(w, gpunn__step_prefix, resume[k].opt.parameters[i], NULL,
                               &resume[k].opt.steps[i]);
    gpunn__emit_values(w, saved->model);
    for (int i = 0; i < saved->count; i++) gpunn__emit_states(w, &saved->resume[i].opt);
    if (pass != GPUNN__TENSORS) gpunn__emit(w, "}", 1);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__array_of_bytes(gpunn_device *dev, uint64_t bytes, gpunn_array *out)
{
    if (bytes > SIZE_MAX)
        return gpunn__fail(dev, GPUNN_ERR_MEMORY, "%llu bytes do not fit memory", (unsigned long long)bytes);
    out->data = gpunn__realloc(dev, NULL, 0, (size_t)bytes);
    if (out->data == NULL) return GPUNN_ERR_MEMORY;
    out->bytes = (size_t)bytes;
    out->dtype = GPUNN_U8;
    out->rank = 1;
    out->dim[0] = (int64_t)bytes;
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__text_write(gpunn_device *dev, gpunn_array *out,
                                                void (*emit)(gpunn__writer *w, const void *what),
                                                const void *what)
{
    gpunn__file   file;
    gpunn__writer w;
    memset(out, 0, sizeof *out);
    memset(&w, 0, sizeof w);
    w.dev = dev;
    w.file = &file;
    emit(&w, what); /* measures */
    if (w.status == GPUNN_OK) w.status = gpunn__array_of_bytes(dev, w.length, out);
    if (w.status == GPUNN_OK) {
        gpunn__file_to_memory(dev, out->data, &file);
        w.pass = GPUNN__HEADER;
        emit(&w, what);
        if (w.status == GPUNN_OK) w.status = gpunn__file_commit(&file);
        gpunn__file_discard(&file);
    }
    if (w.status != GPUNN_OK) gpunn_array_free(dev, out);
    return w.status;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__archive_write(gpunn_device *dev, const char *path, gpunn_array *memory,
                                                   void (*emit)(gpunn__writer *w, gpunn__pass pass,
                                                                const void *what),
                                                   const void *what)
{
    gpunn__file   file;
    gpunn__writer w;
    memset(&w, 0, sizeof w);
    w.dev = dev;
    w.file = &file;
    w.status = GPUNN_OK;
    emit(&w, GPUNN__MEASURE, what);
    if (w.status != GPUNN_OK) return w.status;
    size_t        padding = (size_t)(7 - (w.length + 7) % 8); /* the tensors begin at a multiple of 8 */
    uint64_t      length = w.length + padding;
    unsigned char head[8];
    for (int i = 0; i < 8; i++) head[i] = (unsigned char)(length >> (8 * i));
    w.status = memory ? gpunn__array_of_bytes(dev, sizeof head + length + w.offset, memory)
                      : gpunn__file_open(dev, path, &file);
    if (w.status != GPUNN_OK) return w.status;
    if (memory) gpunn__file_to_memory(dev, memory->data, &file);
    w.chunk = (char *)gpunn__realloc(dev, NULL, 0, GPUNN__CHUNK);
    w.status = w.chunk ? gpunn__file_write(&file, head, sizeof head) : GPUNN_ERR_MEMORY;
    if (w.status == GPUNN_OK) {
        emit(&w, GPUNN__HEADER, what);
        (void)gpunn__file_write(&file, "       ", padding);
        emit(&w, GPUNN__TENSORS, what);
    }
    if (w.status == GPUNN_OK) w.status = gpunn__file_commit(&file);
    gpunn__file_discard(&file);
    gpunn__free(dev, w.chunk, GPUNN__CHUNK);
    return w.status;
}

GPUNN_API gpunn_status gpunn_save(gpunn_model *model, const char *path)
{
    if (model == NULL) return gpunn__fail_null(NULL, "gpunn_save", "model");
    gpunn__saved saved = {model, NULL, 0};
    gpunn_status status = gpunn__commit(model);
    return status == GPUNN_OK ? gpunn__archive_write(model->dev, path, NULL, gpunn__emit_model, &saved)
                              : status;
}

GPUNN_API gpunn_status gpunn_save_memory(gpunn_model *model, gpunn_array *out)
{
    if (model == NULL || out == NULL) return gpunn__fail_null_model(model, "gpunn_save_memory", "array");
    gpunn__saved saved = {model, NULL, 0};
    memset(out, 0, sizeof *out);
    gpunn_status status = gpunn__commit(model);
    if (status == GPUNN_OK) status = gpunn__archive_write(model->dev, NULL, out, gpunn__emit_model, &saved);
    if (status != GPUNN_OK) gpunn_array_free(model->dev, out);
    return status;
}

/* Collects a checkpoint's metadata, one record per optimizer. opt must be prepared. Returns NULL if memory
 * runs out. */
static gpunn__resume *gpunn__resume_make(gpunn_optimizer *opt, int *count)
{
    gpunn__resume *list;
    *count = 0;
    for (const gpunn_optimizer *o = gpunn__partner(opt, NULL); o; o = gpunn__partner(opt, o)) ++*count;
    list = (gpunn__resume *)gpunn__calloc(opt->model->dev, (size_t)*count * sizeof *list);
    if (list == NULL) return NULL;
    *count = 0;
    for (const gpunn_optimizer *o = gpunn__partner(opt, NULL); o; o = gpunn__partner(opt, o)) {
        gpunn__resume *resume = &list[(*count)++];
        resume->opt = *o;
        resume->opt.parts = 0;
        resume->schedule_type = (int)o->schedule.type;
        resume->state = opt->model->state;
    }
    return list;
}

/* Calls gpunn__counted_sync for all optimizers of a checkpoint, and gpunn__keys_sync for their model. */
static GPUNN__STATUS gpunn__partners_sync(gpunn_optimizer *opt, bool with_replays)
{
    gpunn_status status = gpunn__keys_sync(opt->model, with_replays);
    for (gpunn_optimizer *o = gpunn__partner(opt, NULL); o && status == GPUNN_OK; o = gpunn__partner(opt, o))
        status = gpunn__counted_sync(o, with_replays);
    return status;
}

/* Prepares all optimizers of a checkpoint for saving. */
static GPUNN__STATUS gpunn__partners_prepare(gpunn_optimizer *opt)
{
    gpunn_status status = GPUNN_OK;
    for (gpunn_optimizer *o = gpunn__partner(opt, NULL); o && status == GPUNN_OK; o = gpunn__partner(opt, o))
        status = gpunn__optimizer_prepare(o);
    return status == GPUNN_OK ? gpunn__partners_sync(opt, true) : status;
}

static GPUNN__STATUS gpunn__checkpoint_write(gpunn_optimizer *opt, const gpunn_loader *loader,
                                             const char *path)
{
    gpunn_model *model = opt->model;
    int          count;
    gpunn_status status = gpunn__partners_prepare(opt);
    for (const gpunn_optimizer *o = gpunn__partner(opt, NULL); o && status == GPUNN_OK;
         o = gpunn__partner(opt, o))
        if (o->parts > 0)
            status = gpunn__fail(
                model->dev, GPUNN_ERR_STATE,
                "gpunn_checkpoint_save: %s has accumulated %d part%s of its next update, which a checkpoint "
                "cannot hold; first finish the update with gpunn_train_step or gpunn_optimizer_step",
                o->name, o->parts, o->parts == 1 ? "" : "s");
    if (status != GPUNN_OK) return status;
    for (int i = 0; i < model->tensor_count; i++) {
        const gpunn_tensor *t = model->tensors[i];
        if (gpunn__is_saved(t) && strncmp(t->name, "optimizer.", 10) == 0)
            return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                               "gpunn_checkpoint_save: names that begin with 'optimizer.' belong to the "
                               "optimizer; rename '%.120s'",
                               t->name);
    }
    gpunn__resume *resume = gpunn__resume_make(opt, &count);
    if (resume == NULL) return GPUNN_ERR_MEMORY;
    resume->loader = loader != NULL;
#ifndef GPUNN_NO_LOADERS
    if (loader) {
        gpunn__loader_state(loader, &resume->epoch, &resume->position);
        resume->batch = gpunn__loader_batch(loader);
        resume->seed = loader->args.seed;
        /* the number of batches may differ next time */
        if (loader->args.group && resume->position == loader->batches) {
            resume->epoch++;
            resume->position = 0;
        }
    }
#endif
    gpunn__saved saved = {model, resume, count};
    status = gpunn__archive_write(model->dev, path, NULL, gpunn__emit_model, &saved);
    gpunn__free(model->dev, resume, (size_t)count * sizeof *resume);
    return status;
}

GPUNN_API gpunn_status gpunn_checkpoint_save(gpunn_optimizer *opt, gpunn_loader *loader, const char *path)
{
    if (opt == NULL) return gpunn__fail_null(NULL, "gpunn_checkpoint_save", "optimizer");
    static const char function[] = "gpunn_checkpoint_save";
    gpunn_status      collected = GPUNN_OK, status = GPUNN_OK;
    for (gpunn_optimizer *o = gpunn__partner(opt, NULL); o && collected == GPUNN_OK;
         o = gpunn__partner(opt, o))
        if (o->shares) collected = gpunn__states_collect(o, false, function);
    if (collected == GPUNN_OK && gpunn_group_rank(opt->group) == 0)
        status = gpunn__checkpoint_write(opt, loader, path);
    for (gpunn_optimizer *o = gpunn__partner(opt, NULL); o; o = gpunn__partner(opt, o))
        gpunn__states_return(o);
    if (collected != GPUNN_OK || opt->group == NULL) return collected == GPUNN_OK ? status : collected;
    return gpunn__all_reduce_status(opt->group, status, NULL, "%s after update %lld", function,
                                    (long long)opt->step_count);
}

/* Reads the metadata of all optimizers. Fails if the file has another number of them. */
static GPUNN__STATUS gpunn__resume_read_all(const gpunn__archive *a, gpunn__resume *list, int count)
{
    gpunn_device       *dev = a->reader.dev;
    const gpunn__entry *note = gpunn__table_find(&a->notes, "", "optimizers");
    int64_t             saved = 1;
    gpunn_status        status = GPUNN_OK;
    for (int i = 0; i < count; i++) list[i].opt.fit.capacity = 0;
    if (note && !gpunn__slice_integer(&note->text, &saved)) saved = 0;
    if (saved != count && gpunn__is_checkpoint(a))
        return gpunn__fail(dev, GPUNN_ERR_STATE,
                           "gpunn_checkpoint_load: '%s' holds %lld optimizer%s, but the model has %d that "
                           "share its parameters; create those that were saved",
                           gpunn__tail(a->reader.path), (long long)saved, saved == 1 ? "" : "s", count);
    for (int i = 0; i < count && status == GPUNN_OK; i++) {
        status = gpunn__resume_read(a, i, &list[i]);
        if (status == GPUNN_OK) status = gpunn__resume_history(a, i, &list[i].opt.fit);
    }
    return status;
}

/* Checks the step counts in a stage. Averages that the file does not contain start as copies of the
 * weights. */
static GPUNN__STATUS gpunn__stage_complete(const gpunn__archive *a, const gpunn_optimizer *opt, char *stage)
{
    const gpunn_model *model = opt->model;
    const float       *weights = (float *)(void *)(stage + gpunn__stage_steps(opt));
    float             *at = (float *)(void *)(stage + gpunn__stage_steps(opt)) + model->weight_count;
    int                index = 0;
    for (const gpunn_optimizer *o = gpunn__partner(opt, NULL); o; o = gpunn__partner(opt, o), index++) {
        for (int i = 0; i < o->parameter_count; i++, stage += sizeof *o->steps) {
            int64_t steps;
            memcpy(&steps, stage, sizeof steps);
            if (steps < 0 || steps > GPUNN__COUNTER)
                return gpunn__fail(
                    model->dev, GPUNN_ERR_FORMAT,
                    "gpunn_checkpoint_load: '%s' is damaged: %s%.120s is %lld; use an older checkpoint",
                    gpunn__tail(a->reader.path), gpunn__step_prefix, o->parameters[i]->name,
                    (long long)steps);
        }
        for (int k = 0; k < GPUNN__STATES; k++) {
            for (int i = 0; k == GPUNN__AVERAGE && o->uses[k] && !gpunn__has_averages(a, index) &&
                            i < o->parameter_count;
                 i++)
                memcpy(at + o->places[i], weights + o->parameters[i]->offset,
                       (size_t)gpunn__count(o->parameters[i], 1) * sizeof *at);
            at += o->uses[k] ? o->state_count : 0;
        }
    }
    return GPUNN_OK;
}

/* Applies the loaded metadata and step counts to the model and the optimizers. */
static void gpunn__resume_apply(gpunn_optimizer *opt, gpunn__resume *list, const char *stage)
{
    gpunn_model *model = opt->model;
    model->state.seed = list->state.seed + model->salt;
    model->state.step = list->state.step;
    model->state.draw = list->state.step << 24;
    for (gpunn_optimizer *o = gpunn__partner(opt, NULL); o; o = gpunn__partner(opt, o), list++) {
        size_t            bytes = (size_t)o->parameter_count * sizeof *o->steps;
        gpunn__fit_record before = o->fit;
        if (bytes) memcpy(o->steps, stage, bytes);
        stage += bytes;
        *o = list->opt;
        gpunn_array_free(model->dev, &o->fit.kept);
        list->opt.fit = before;
    }
}

static GPUNN__STATUS gpunn__checkpoint_read(gpunn_optimizer *opt, gpunn_loader *loader, const char *path)
{
    gpunn_model    *model = opt->model;
    gpunn_device   *dev = model->dev;
    gpunn_load_args args;
    gpunn__archive  archive;
    gpunn__resume  *list;
    int             count;
    char           *stage = NULL;
    gpunn_status    status = gpunn__partners_prepare(opt);
    if (status == GPUNN_OK) status = gpunn__archive_open(dev, NULL, path, &archive);
    if (status != GPUNN_OK) return status;
    memset(&args, 0, sizeof args);
    list = gpunn__resume_make(opt, &count);
    status = list ? gpunn__resume_read_all(&archive, list, count) : GPUNN_ERR_MEMORY;
    if (status == GPUNN_OK && loader && !list->loader)
        status = gpunn__fail(
            dev, GPUNN_ERR_STATE,
            "gpunn_checkpoint_load: '%s' was saved without a loader; pass NULL for the loader",
            gpunn__tail(path));
    if (status == GPUNN_OK)
        status = gpunn__stage_fill(&archive, model, opt, &args, "gpunn_checkpoint_load", &stage);
    if (status == GPUNN_OK) status = gpunn__stage_complete(&archive, opt, stage);
    gpunn__archive_close(&archive);
#ifndef GPUNN_NO_LOADERS
    if (loader && status == GPUNN_OK)
        status = gpunn__loader_set_state(loader, list->epoch, list->position, list->batch);
    if (loader && status == GPUNN_OK) {
        loader->args.seed = list->seed;
        loader->ordered_epoch = -1;
    }
#endif
    if (status == GPUNN_OK) {
        status = gpunn__stage_copy(model, opt, stage, true);
        GPUNN__WEIGHTS_CHANGED(model);
    }
    if (status == GPUNN_OK) {
        gpunn__resume_apply(opt, list, stage);
        status = gpunn__partners_sync(opt, false);
    }
    for (int i = 0; list && i < count; i++)
        if (list[i].opt.fit.capacity)
            gpunn__free(dev, list[i].opt.fit.history,
                        (size_t)list[i].opt.fit.capacity * sizeof *list[i].opt.fit.history);
    gpunn__free(dev, list, (size_t)count * sizeof *list);
    gpunn__free(dev, stage, gpunn__stage_bytes(model, opt));
    return status;
}

GPUNN_API gpunn_status gpunn_checkpoint_load(gpunn_optimizer *opt, gpunn_loader *loader, const char *path)
{
    if (opt == NULL) return gpunn__fail_null(NULL, "gpunn_checkpoint_load", "optimizer");
    gpunn_status status = gpunn__checkpoint_read(opt, loader, path);
    return opt->group
               ? gpunn__all_reduce_status(opt->group, status, NULL, "gpunn_checkpoint_load of update %lld",
                                          (long long)opt->step_count)
               : status;
}
