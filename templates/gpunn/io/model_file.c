#include "base/blocks.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/text.h"
#include "graph/tensors.h"
#include "plan/plan.h"
#include "io/load.h"
#include "io/spec_writer.h"

/* ==== >>io/model_file ==================================================================================== *
 * A model as one file: a safetensors file of its weights, whose metadata has the spec under "gpunn_spec" and
 * the program's own keys. */
static const char gpunn__spec_key[] = "gpunn_spec";

/* Whether the key belongs to the file, not to the program. */
static bool gpunn__is_own_key(const char *key)
{
    return strncmp(key, "gpunn_", 6) == 0 || strcmp(key, "format") == 0;
}

/* Whether a text is UTF-8, as JSON demands. */
static bool gpunn__is_utf8(const char *text)
{
    size_t left = strlen(text), size = 1;
    for (; left > 0 && size > 0; text += size, left -= size) size = gpunn__utf8_size(text, left);
    return size > 0;
}

static gpunn__metadata *gpunn__find_metadata(const gpunn_model *model, const char *key)
{
    for (int i = 0; i < model->spec.metadata_count; i++)
        if (strcmp(model->spec.metadata[i].key, key) == 0) return &model->spec.metadata[i];
    return NULL;
}

static void gpunn__drop_metadata(gpunn_model *model, gpunn__metadata *item)
{
    gpunn__metadata *last = &model->spec.metadata[--model->spec.metadata_count];
    gpunn__free_text(model->dev, item->key);
    gpunn__free_text(model->dev, item->value);
    memmove(item, item + 1, (size_t)(last - item) * sizeof *item);
}

/* Appends a key with its value. */
static GPUNN__STATUS gpunn__add_metadata(gpunn_model *model, const char *key, const char *value)
{
    gpunn_device    *dev = model->dev;
    gpunn__spec     *spec = &model->spec;
    gpunn__metadata *items = (gpunn__metadata *)gpunn__grow(dev, spec->metadata, spec->metadata_count,
                                                            &spec->metadata_capacity, sizeof *items);
    if (items == NULL) return GPUNN_ERR_MEMORY;
    spec->metadata = items;
    gpunn__metadata item = {gpunn__strdup(dev, key), gpunn__strdup(dev, value)};
    if (item.key && item.value) {
        items[spec->metadata_count++] = item;
        return GPUNN_OK;
    }
    gpunn__free_text(dev, item.key);
    gpunn__free_text(dev, item.value);
    return GPUNN_ERR_MEMORY;
}

GPUNN_API gpunn_status gpunn_set_metadata(gpunn_model *model, const char *key, const char *value)
{
    static const char caller[] = "gpunn_set_metadata";
    if (model == NULL || key == NULL) return gpunn__fail_null_model(model, caller, "key");
    if (*key == 0 || gpunn__is_own_key(key) || !gpunn__is_utf8(key) || (value && !gpunn__is_utf8(value)))
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                           "%s: key and value must be UTF-8, and the key not empty, \"format\" or one "
                           "that begins with \"gpunn_\"; choose others",
                           caller);
    gpunn__metadata *old = gpunn__find_metadata(model, key);
    gpunn_status     status = value ? gpunn__add_metadata(model, key, value) : GPUNN_OK;
    if (old && status == GPUNN_OK) gpunn__drop_metadata(model, gpunn__find_metadata(model, key));
    return status;
}

GPUNN_API const char *gpunn_get_metadata(const gpunn_model *model, const char *key)
{
    const gpunn__metadata *item = model && key ? gpunn__find_metadata(model, key) : NULL;
    return item ? item->value : NULL;
}

typedef struct gpunn__model_file {
    const gpunn_model     *model;
    const char            *path;
    const gpunn_spec_args *args;
} gpunn__model_file;

/* Emits the formats of parameters that are stored as blocks. */
static void gpunn__emit_formats(gpunn__writer *w, const gpunn_model *model)
{
    for (int i = 0; i < model->tensor_count; i++) {
        const gpunn_tensor *t = model->tensors[i];
        if (!gpunn__is_saved(t) || !gpunn__is_blocks(t->storage)) continue;
        gpunn__emit(w, ",", 1);
        gpunn__emit_name(w, gpunn__blocks_key, t->name);
        gpunn__emitf(w, ":\"%s\"", gpunn_dtype_name(t->storage));
    }
}

static void gpunn__emit_model_file(gpunn__writer *w, gpunn__pass pass, const void *what)
{
    const gpunn__model_file *file = (const gpunn__model_file *)what;
    const gpunn__spec       *spec = &file->model->spec;
    w->blocks = true;
    gpunn__emit_begin(w, pass, NULL, 0);
    if (pass != GPUNN__TENSORS) {
        gpunn__emitf(w, ",\"%s\":\"", gpunn__spec_key);
        w->quoted = true;
        gpunn__emit_spec(w, file->model, file->path, file->args);
        w->quoted = false;
        gpunn__emit(w, "\"", 1);
        gpunn__emit_formats(w, file->model);
        for (int i = 0; i < spec->metadata_count; i++) {
            gpunn__emit(w, ",", 1);
            gpunn__emit_name(w, "", spec->metadata[i].key);
            gpunn__emit(w, ":", 1);
            gpunn__emit_name(w, "", spec->metadata[i].value);
        }
        gpunn__emit(w, "}", 1);
    }
    gpunn__emit_values(w, file->model);
    if (pass != GPUNN__TENSORS) gpunn__emit(w, "}", 1);
}

GPUNN_API gpunn_status gpunn_model_save_(gpunn_model *model, const char *path, gpunn_spec_args args)
{
    gpunn_status      status = gpunn__check_spec(model, "gpunn_model_save", &args);
    gpunn__model_file file = {model, path, &args};
    if (status == GPUNN_OK && path == NULL) return gpunn__fail_null(model->dev, "gpunn_model_save", "path");
    if (status == GPUNN_OK) status = gpunn__commit(model);
    return status == GPUNN_OK ? gpunn__archive_write(model->dev, path, NULL, gpunn__emit_model_file, &file)
                              : status;
}

GPUNN_API gpunn_status gpunn_model_save_memory_(gpunn_model *model, gpunn_array *out, gpunn_spec_args args)
{
    static const char caller[] = "gpunn_model_save_memory";
    gpunn_status      status = gpunn__check_spec(model, caller, &args);
    gpunn__model_file file = {model, "model", &args};
    if (status != GPUNN_OK) return status;
    if (out == NULL) return gpunn__fail_null(model->dev, caller, "array");
    memset(out, 0, sizeof *out);
    status = gpunn__commit(model);
    if (status == GPUNN_OK)
        status = gpunn__archive_write(model->dev, NULL, out, gpunn__emit_model_file, &file);
    if (status != GPUNN_OK) gpunn_array_free(model->dev, out);
    return status;
}

/* Builds the model of an open file, without its weights. NULL: failed. */
static gpunn_model *gpunn__build_from(gpunn_device *dev, const gpunn__archive *a, gpunn_spec_load_args args)
{
    const gpunn__entry *spec = gpunn__table_find(&a->notes, "", gpunn__spec_key);
    if (spec == NULL)
        return GPUNN__FAIL_NULL(dev, GPUNN_ERR_FORMAT,
                                "gpunn_model_load: '%s' has weights, but no model; build the model and call "
                                "gpunn_load, or save the file with gpunn_model_save",
                                gpunn__tail(a->reader.path));
    gpunn__memory memory = {spec->text.at, spec->text.length};
    gpunn_io      io = gpunn__memory_io(&memory);
    args.io = &io;
    return gpunn_spec_load_(dev, a->reader.path, args);
}

/* Takes the program's metadata from a file. */
static GPUNN__STATUS gpunn__take_metadata(gpunn_model *model, const gpunn__archive *a)
{
    gpunn_status status = GPUNN_OK;
    for (int i = 0; i < a->notes.count && status == GPUNN_OK; i++) {
        const gpunn__entry *note = &a->notes.items[i];
        /* a key or a value with a 0 inside is no C string */
        const bool plain = *note->name.at && strlen(note->name.at) == note->name.length &&
                           strlen(note->text.at) == note->text.length;
        if (plain && !gpunn__is_own_key(note->name.at))
            status = gpunn__add_metadata(model, note->name.at, note->text.at);
    }
    return status;
}

GPUNN_API gpunn_model *gpunn_model_load_(gpunn_device *dev, const char *path, gpunn_spec_load_args args)
{
    gpunn__archive  archive;
    gpunn_load_args load;
    if (dev == NULL || path == NULL) {
        (void)gpunn__fail_null(dev, "gpunn_model_load", dev ? "path" : "device");
        return NULL;
    }
    if (gpunn__archive_open(dev, args.io, path, &archive) != GPUNN_OK) return NULL;
    memset(&load, 0, sizeof load);
    gpunn_model *model = gpunn__build_from(dev, &archive, args);
    gpunn_status status = model ? gpunn__take_metadata(model, &archive) : GPUNN_ERR_FORMAT;
    if (status == GPUNN_OK && args.inference) status = gpunn__keep_blocks(model, &archive, &load);
    if (status == GPUNN_OK) status = gpunn__load_first(&archive, model, &load, "gpunn_model_load");
    gpunn__archive_close(&archive);
    if (status == GPUNN_OK) return model;
    gpunn_model_destroy(model);
    return NULL;
}

GPUNN_API gpunn_model *gpunn_model_load_memory_(gpunn_device *dev, const void *data, size_t size,
                                                gpunn_spec_load_args args)
{
    gpunn__memory memory = {(const char *)data, size};
    gpunn_io      io = gpunn__memory_io(&memory);
    args.io = &io;
    if (dev && data == NULL)
        return GPUNN__FAIL_NULL(dev, GPUNN_ERR_ARGUMENT,
                                "gpunn_model_load_memory: data is NULL; give the bytes of a model's file");
    return gpunn_model_load_(dev, "memory", args);
}
