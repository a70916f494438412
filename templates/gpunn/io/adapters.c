#include "base/errors.h"
#include "base/memory.h"
#include "base/shapes.h"
#include "base/text.h"
#include "io/save.h"
#include "io/safetensors.h"
#include "train/lora.h"

/* ==== >>io/adapters ====================================================================================== *
 * Adapters as PEFT keeps them: a folder with adapter_model.safetensors and adapter_config.json. */
static const char gpunn__peft_prefix[] = "base_model.model.";

enum { GPUNN__PATH = 4096 };

/* folder/name; fails if that is too long. */
static GPUNN__STATUS gpunn__path_in(gpunn_device *dev, const char *function, const char *folder,
                                    const char *name, char path[GPUNN__PATH])
{
    const int length = snprintf(path, GPUNN__PATH, "%s/%s", folder, name);
    if (length < GPUNN__PATH) return GPUNN_OK;
    return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: the path of the folder is too long; use a shorter one",
                       function);
}

/* The name in a file of the matrix `which` of a layer, without the prefix. */
static const char *gpunn__matrix_name(const char *layer, bool table, char which,
                                      char name[GPUNN__NAME_SIZE + 32])
{
    (void)snprintf(name, GPUNN__NAME_SIZE + 32, "%s.%s_%c%s", layer, table ? "lora_embedding" : "lora", which,
                   table ? "" : ".weight");
    return name;
}

static bool gpunn__is_table(const gpunn_tensor *layer)
{
    return layer->op == GPUNN_OP_EMBEDDING;
}

/* Copies a matrix [rows, columns] as [columns, rows]. */
static void gpunn__transpose(const float *from, int64_t rows, int64_t columns, float *to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[j * rows + i] = from[i * columns + j];
}

/* ---- saving -------------------------------------------------------------------------------------------- */

typedef struct gpunn__saved_adapter {
    const gpunn__adapter *adapter;
    float                *values; /* A and B of each branch, as in the file */
} gpunn__saved_adapter;

static int64_t gpunn__branch_floats(const gpunn__branch *branch)
{
    return gpunn__count(gpunn__lora_a(branch), 1) + gpunn__count(gpunn__lora_b(branch), 1);
}

/* The largest A of a table, which is transposed on its way. */
static int64_t gpunn__largest_table(const gpunn__adapter *adapter)
{
    int64_t most = 0;
    for (int k = 0; k < adapter->branch_count; k++) {
        const gpunn__branch *branch = &adapter->branches[k];
        const int64_t        count = gpunn__count(gpunn__lora_a(branch), 1);
        if (gpunn__is_table(branch->product) && count > most) most = count;
    }
    return most;
}

static int64_t gpunn__adapter_floats(const gpunn__adapter *adapter)
{
    int64_t count = 0;
    for (int k = 0; k < adapter->branch_count; k++) count += gpunn__branch_floats(&adapter->branches[k]);
    return count;
}

/* Reads the matrices of a branch to `to`. scratch: as much as A of a table. */
static GPUNN__STATUS gpunn__branch_read(const gpunn__branch *branch, float *to, float *scratch)
{
    gpunn_tensor *a = gpunn__lora_a(branch), *b = gpunn__lora_b(branch);
    const bool    table = gpunn__is_table(branch->product);
    gpunn_status  status = gpunn_read(a, table ? scratch : to, gpunn_tensor_bytes(a));
    if (status == GPUNN_OK && table) gpunn__transpose(scratch, a->dim[0], a->dim[1], to);
    return status == GPUNN_OK ? gpunn_read(b, to + gpunn__count(a, 1), gpunn_tensor_bytes(b)) : status;
}

/* The same in the other direction, from values as they are in a file. */
static GPUNN__STATUS gpunn__branch_write(const gpunn__branch *branch, const float *from, float *scratch)
{
    gpunn_tensor *a = gpunn__lora_a(branch), *b = gpunn__lora_b(branch);
    const bool    table = gpunn__is_table(branch->product);
    if (table) gpunn__transpose(from, a->dim[1], a->dim[0], scratch);
    gpunn_status status = gpunn_write(a, table ? scratch : from, gpunn_tensor_bytes(a));
    return status == GPUNN_OK ? gpunn_write(b, from + gpunn__count(a, 1), gpunn_tensor_bytes(b)) : status;
}

static void gpunn__emit_matrix(gpunn__writer *w, const gpunn__branch *branch, char which, int64_t rows,
                               int64_t columns)
{
    char          name[GPUNN__NAME_SIZE + 32];
    const int64_t dim[] = {rows, columns};
    (void)gpunn__matrix_name(branch->product->layer, gpunn__is_table(branch->product), which, name);
    gpunn__emit_entry(w, gpunn__peft_prefix, name, GPUNN_F32, 2, dim,
                      (size_t)(rows * columns) * sizeof(float));
}

static void gpunn__emit_adapter(gpunn__writer *w, gpunn__pass pass, const void *what)
{
    const gpunn__saved_adapter *saved = (const gpunn__saved_adapter *)what;
    const gpunn__adapter       *adapter = saved->adapter;
    gpunn__emit_begin(w, pass, NULL, 0);
    if (pass == GPUNN__TENSORS) {
        (void)gpunn__file_write(w->file, saved->values,
                                (size_t)gpunn__adapter_floats(adapter) * sizeof *saved->values);
        return;
    }
    gpunn__emit(w, "}", 1);
    for (int k = 0; k < adapter->branch_count; k++) {
        const gpunn__branch *branch = &adapter->branches[k];
        const int64_t        rank = adapter->rank, in = gpunn__count(gpunn__lora_a(branch), 1) / rank,
                      out = gpunn__lora_b(branch)->dim[0];
        gpunn__emit_matrix(w, branch, 'A', rank, in);
        gpunn__emit_matrix(w, branch, 'B', out, rank);
    }
    gpunn__emit(w, "}", 1);
}

/* Emits ,"key": and a text or null. */
static void gpunn__emit_text(gpunn__writer *w, const char *key, const char *text)
{
    gpunn__emitf(w, ",\n  \"%s\": ", key);
    if (text)
        gpunn__emit_name(w, "", text);
    else
        gpunn__emit(w, "null", 4);
}

static void gpunn__emit_setting(gpunn__writer *w, const char *key, float value)
{
    char               number[64];
    gpunn__text_buffer text = {number, sizeof number, 0};
    gpunn__put_number(&text, value);
    gpunn__emitf(w, ",\n  \"%s\": %s", key, number);
}

static void gpunn__emit_config(gpunn__writer *w, const gpunn__adapter *adapter,
                               const gpunn_lora_save_args *args)
{
    static const char start[] = "{\n  \"peft_type\": \"LORA\"";
    static const char rest[] = ",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": false,\n"
                               "  \"inference_mode\": true,\n  \"init_lora_weights\": true,\n"
                               "  \"modules_to_save\": null,\n  \"target_modules\": [";
    gpunn__emit(w, start, sizeof start - 1);
    gpunn__emit_text(w, "base_model_name_or_path", args->base_model_name_or_path);
    gpunn__emit_text(w, "task_type", args->task_type);
    gpunn__emitf(w, ",\n  \"r\": %d", adapter->rank);
    gpunn__emit_setting(w, "lora_alpha", adapter->alpha);
    gpunn__emit_setting(w, "lora_dropout", adapter->dropout);
    gpunn__emit(w, rest, sizeof rest - 1);
    for (int k = 0; k < adapter->branch_count; k++) {
        gpunn__emitf(w, "%s\n    ", k ? "," : "");
        gpunn__emit_name(w, "", adapter->branches[k].product->layer);
    }
    gpunn__emitf(w, "\n  ]\n}\n");
}

static GPUNN__STATUS gpunn__config_write(gpunn_device *dev, const char *path, const gpunn__adapter *adapter,
                                         const gpunn_lora_save_args *args)
{
    gpunn__file   file;
    gpunn__writer w;
    memset(&w, 0, sizeof w);
    w.dev = dev;
    w.file = &file;
    w.pass = GPUNN__HEADER;
    w.status = gpunn__file_open(dev, path, &file);
    if (w.status != GPUNN_OK) return w.status;
    gpunn__emit_config(&w, adapter, args);
    if (w.status == GPUNN_OK) w.status = gpunn__file_commit(&file);
    gpunn__file_discard(&file);
    return w.status;
}

static GPUNN__STATUS gpunn__adapter_write(gpunn_model *model, const gpunn__adapter *adapter,
                                          const char *weights, const char *config,
                                          const gpunn_lora_save_args *args)
{
    gpunn_device *dev = model->dev;
    const int64_t count = gpunn__adapter_floats(adapter);
    const size_t  bytes = (size_t)(count + gpunn__largest_table(adapter)) * sizeof(float);
    float        *values = (float *)gpunn__realloc(dev, NULL, 0, bytes), *at = values;
    gpunn_status  status = values ? GPUNN_OK : GPUNN_ERR_MEMORY;
    for (int k = 0; k < adapter->branch_count && status == GPUNN_OK; k++) {
        status = gpunn__branch_read(&adapter->branches[k], at, values + count);
        at += gpunn__branch_floats(&adapter->branches[k]);
    }
    const gpunn__saved_adapter saved = {adapter, values};
    if (status == GPUNN_OK) status = gpunn__archive_write(dev, weights, NULL, gpunn__emit_adapter, &saved);
    if (status == GPUNN_OK) status = gpunn__config_write(dev, config, adapter, args);
    gpunn__free(dev, values, bytes);
    return status;
}

GPUNN_API gpunn_status gpunn_lora_save_(gpunn_model *model, const char *folder, gpunn_lora_save_args args)
{
    static const char function[] = "gpunn_lora_save";
    char              weights[GPUNN__PATH], config[GPUNN__PATH];
    if (model == NULL || folder == NULL) return gpunn__fail_null_model(model, function, "folder");
    if (model->enabled == 0)
        return gpunn__fail(model->dev, GPUNN_ERR_STATE,
                           "%s: no adapter is enabled; choose one with gpunn_lora_enable", function);
    gpunn_status status = gpunn__path_in(model->dev, function, folder, "adapter_model.safetensors", weights);
    if (status == GPUNN_OK)
        status = gpunn__path_in(model->dev, function, folder, "adapter_config.json", config);
    if (status != GPUNN_OK) return status;
    gpunn__make_folder(folder);
    return gpunn__adapter_write(model, &model->adapters[model->enabled - 1], weights, config, &args);
}

/* ---- file ------------------------------------------------------------------------------------------- */

/* Whether a value of the configuration is as if its key were missing. */
static bool gpunn__is_unset(const gpunn__document *config, int at)
{
    const gpunn__item *item = &config->items.at[at];
    return item->kind == GPUNN__J_NULL || item->kind == GPUNN__J_FALSE ||
           (item->kind == GPUNN__J_STRING && gpunn__slice_is(&item->text, "none")) ||
           ((item->kind == GPUNN__J_LIST || item->kind == GPUNN__J_OBJECT) && item->next == at + 1);
}

/* Reads a number of the configuration, if its key is there. Returns false if it is no number. */
static bool gpunn__config_number(const gpunn__document *config, const char *key, double *value)
{
    const int at = gpunn__document_find(config, 0, key);
    return at == 0 || (config->items.at[at].kind == GPUNN__J_NUMBER &&
                       gpunn__json_double(&config->items.at[at].text, value));
}

/* Takes rank, alpha and dropout from a configuration, and refuses other kinds of adapters by name. */
static GPUNN__STATUS gpunn__config_take(gpunn_device *dev, const char *path, const gpunn__document *config,
                                        gpunn_lora_args *args)
{
    static const char *const unsupported[] = {
        "use_dora",         "use_rslora",    "use_qalora",        "use_bdlora",
        "lora_bias",        "bias",          "fan_in_fan_out",    "modules_to_save",
        "rank_pattern",     "alpha_pattern", "layer_replication", "trainable_token_indices",
        "target_parameters"};
    const int type = gpunn__document_find(config, 0, "peft_type");
    double    rank = 0, alpha = 8, dropout = 0;
    if (type == 0 || !gpunn__slice_is(&config->items.at[type].text, "LORA"))
        return gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                           "gpunn_lora_load: \"peft_type\" in '%s' is not \"LORA\", the only one supported",
                           gpunn__tail(path));
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
        const int at = gpunn__document_find(config, 0, unsupported[i]);
        if (at && !gpunn__is_unset(config, at))
            return gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                               "gpunn_lora_load: '%s' sets \"%s\", which is not supported; train the adapter "
                               "without it",
                               gpunn__tail(path), unsupported[i]);
    }
    if (!gpunn__config_number(config, "r", &rank) || !gpunn__config_number(config, "lora_alpha", &alpha) ||
        !gpunn__config_number(config, "lora_dropout", &dropout) ||
        !(rank >= 1 && rank <= INT32_MAX && rank == floor(rank)) || !isfinite((float)alpha) ||
        !(dropout >= 0 && dropout < 1))
        return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                           "gpunn_lora_load: \"r\", \"lora_alpha\" or \"lora_dropout\" in '%s' is missing or "
                           "out of range",
                           gpunn__tail(path));
    args->rank = (int)rank;
    args->alpha = alpha == 0 ? (float)GPUNN_ZERO : (float)alpha;
    args->dropout = (float)dropout;
    return GPUNN_OK;
}

static GPUNN__STATUS gpunn__config_read(gpunn_device *dev, const char *path, gpunn_lora_args *args)
{
    gpunn__document config;
    gpunn_status    status = gpunn__document_read(dev, NULL, path, &config);
    if (status == GPUNN_OK) status = gpunn__config_take(dev, path, &config, args);
    gpunn__document_free(dev, &config);
    return status;
}

static gpunn__entry *gpunn__matrix_entry(const gpunn__archive *a, const char *layer, bool table, char which)
{
    char name[GPUNN__NAME_SIZE + 32];
    return gpunn__table_find(&a->tensors, gpunn__peft_prefix, gpunn__matrix_name(layer, table, which, name));
}

static bool gpunn__archive_wants(const void *archive, const char *layer)
{
    const gpunn__archive *a = (const gpunn__archive *)archive;
    return gpunn__matrix_entry(a, layer, false, 'A') || gpunn__matrix_entry(a, layer, true, 'A');
}

/* Checks a matrix in the file. With values non-NULL also sets where it is read to, and advances *values. */
static GPUNN__STATUS gpunn__matrix_match(gpunn__archive *a, const gpunn_tensor *layer, char which,
                                         int64_t rows, int64_t columns, float **values)
{
    gpunn__entry *item = gpunn__matrix_entry(a, layer->layer, gpunn__is_table(layer), which);
    char          name[GPUNN__NAME_SIZE + 32];
    (void)gpunn__matrix_name(layer->layer, gpunn__is_table(layer), which, name);
    if (item == NULL || item->encoding == NULL || item->encoding->dtype != GPUNN_F32)
        return gpunn__fail(a->reader.dev, GPUNN_ERR_FORMAT,
                           "gpunn_lora_load: '%s' lacks '%s%.120s' or does not hold it as floats; save the "
                           "adapter again",
                           gpunn__tail(a->reader.path), gpunn__peft_prefix, name);
    if (item->rank != 2 || item->dim[0] != rows || item->dim[1] != columns)
        return gpunn__fail(a->reader.dev, GPUNN_ERR_SHAPE,
                           "gpunn_lora_load: '%.120s' in '%s' is not [%lld, %lld], as \"r\" and the layer "
                           "need; use the adapter with its own model",
                           name, gpunn__tail(a->reader.path), (long long)rows, (long long)columns);
    item->matched = true;
    item->as = GPUNN_F32;
    item->to = *values;
    *values += rows * columns;
    return GPUNN_OK;
}

/* Layers of the model that a file has adapters for, and the values of these. */
typedef struct gpunn__lora_file {
    gpunn_device *dev;
    const char  **layers; /* names, in the order of the graph */
    int           count, capacity;
    float        *values; /* as in the file; behind them scratch for gpunn__branch_write */
    int64_t       floats, scratch;
} gpunn__lora_file;

static bool gpunn__lora_file_wants(const void *what, const char *layer)
{
    const gpunn__lora_file *file = (const gpunn__lora_file *)what;
    for (int i = 0; i < file->count; i++)
        if (strcmp(file->layers[i], layer) == 0) return true;
    return false;
}

static void gpunn__lora_file_free(gpunn__lora_file *file)
{
    gpunn__free(file->dev, (void *)file->layers, (size_t)file->capacity * sizeof *file->layers);
    if (file->values == NULL) return;
    gpunn__free(file->dev, file->values, (size_t)(file->floats + file->scratch) * sizeof *file->values);
}

/* Lists the layers that the file has adapters for, and counts their floats. */
static GPUNN__STATUS gpunn__lora_file_list(gpunn__lora_file *file, const gpunn_model *model,
                                           const gpunn__lora_wanted *wanted, int rank)
{
    const gpunn_tensor *layer;
    for (int id = 0; (layer = gpunn__lora_next(model, wanted, id)) != NULL; id = layer->id + 1) {
        const char **grown = (const char **)gpunn__grow(file->dev, (void *)file->layers, file->count,
                                                        &file->capacity, sizeof *grown);
        if (grown == NULL) return GPUNN_ERR_MEMORY;
        file->layers = grown;
        grown[file->count++] = layer->layer;
        const int64_t *dim = layer->inputs[1]->dim;
        file->floats += rank * (dim[0] + dim[1]);
        if (gpunn__is_table(layer) && rank * dim[0] > file->scratch) file->scratch = rank * dim[0];
    }
    return GPUNN_OK;
}

/* Fails if the file has a tensor that no layer takes. The weight of a layer itself, which peft adds to the
 * adapters of embeddings, is left alone. */
static GPUNN__STATUS gpunn__check_all_matched(const gpunn__archive *a)
{
    static const char base[] = ".base_layer.weight";
    char              shown[128];
    for (int i = 0; i < a->tensors.count; i++) {
        const gpunn__entry *item = &a->tensors.items[i];
        const size_t        length = item->name.length, end = sizeof base - 1;
        if (item->matched || (length > end && memcmp(item->name.at + length - end, base, end) == 0)) continue;
        return gpunn__fail(a->reader.dev, GPUNN_ERR_FORMAT,
                           "gpunn_lora_load: '%s' holds '%s', but the model has no linear layer or embedding "
                           "of that name; use the adapter with its own model",
                           gpunn__tail(a->reader.path), gpunn__printable(&item->name, shown));
    }
    return GPUNN_OK;
}

/* Checks the file against the model and reads its values to host memory. */
static GPUNN__STATUS gpunn__lora_file_read(gpunn__lora_file *file, gpunn__archive *a,
                                           const gpunn_model *model, int rank)
{
    const gpunn__lora_wanted wanted = {gpunn__archive_wants, a};
    const gpunn_tensor      *layer;
    gpunn_status             status = gpunn__lora_file_list(file, model, &wanted, rank);
    if (status != GPUNN_OK) return status;
    if (file->count == 0)
        return gpunn__fail(
            file->dev, GPUNN_ERR_FORMAT,
            "gpunn_lora_load: '%s' has no adapter of a linear layer or embedding of the model; "
            "the layers' names must be those of the file after \"%s\"",
            gpunn__tail(a->reader.path), gpunn__peft_prefix);
    const size_t bytes = (size_t)(file->floats + file->scratch) * sizeof *file->values;
    file->values = (float *)gpunn__realloc(file->dev, NULL, 0, bytes);
    if (file->values == NULL) return GPUNN_ERR_MEMORY;
    float *at = file->values;
    for (int id = 0; status == GPUNN_OK && (layer = gpunn__lora_next(model, &wanted, id)) != NULL;
         id = layer->id + 1) {
        const bool     table = gpunn__is_table(layer);
        const int64_t *dim = layer->inputs[1]->dim;
        status = gpunn__matrix_match(a, layer, 'A', rank, dim[!table], &at);
        if (status == GPUNN_OK) status = gpunn__matrix_match(a, layer, 'B', dim[table], rank, &at);
    }
    if (status == GPUNN_OK) status = gpunn__check_all_matched(a);
    return status == GPUNN_OK ? gpunn__archive_read(a, NULL) : status;
}

/* Whether an adapter of the model is of the file's kind, so that it can take the values. */
static bool gpunn__lora_file_fits(const gpunn__lora_file *file, const gpunn__adapter *adapter,
                                  const gpunn_lora_args *args)
{
    bool fits = adapter->rank == args->rank && adapter->alpha == args->alpha &&
                adapter->branch_count == file->count;
    for (int k = 0; fits && k < file->count; k++)
        fits = gpunn__lora_file_wants(file, adapter->branches[k].product->layer);
    return fits;
}

/* Writes the values into the adapter of that name, which is added if there is none. */
static GPUNN__STATUS gpunn__lora_file_apply(const gpunn__lora_file *file, gpunn_model *model,
                                            gpunn_lora_args *args)
{
    static const char        function[] = "gpunn_lora_load";
    const gpunn__lora_wanted wanted = {gpunn__lora_file_wants, file};
    const gpunn__adapter    *adapter = gpunn__adapter_called(model, args->name);
    const bool               is_new = adapter == NULL;
    gpunn_status             status = GPUNN_OK;
    if (adapter && !gpunn__lora_file_fits(file, adapter, args))
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                           "%s: the model's adapter '%.64s' has another rank, alpha or other layers than the "
                           "file; choose another .name",
                           function, args->name);
    if (is_new) status = gpunn__lora_settle(model, function, args);
    if (status == GPUNN_OK && is_new) status = gpunn__lora_add(model, function, args, &wanted);
    if (status != GPUNN_OK) return status;
    adapter = gpunn__adapter_called(model, args->name);
    const float *at = file->values;
    for (int k = 0; k < adapter->branch_count && status == GPUNN_OK; k++) {
        status = gpunn__branch_write(&adapter->branches[k], at, file->values + file->floats);
        at += gpunn__branch_floats(&adapter->branches[k]);
    }
    if (status != GPUNN_OK && is_new) gpunn__lora_pop(model);
    return status == GPUNN_OK ? gpunn_lora_enable(model, args->name) : status;
}

GPUNN_API gpunn_status gpunn_lora_load_(gpunn_model *model, const char *folder, gpunn_lora_load_args args)
{
    static const char function[] = "gpunn_lora_load";
    char              weights[GPUNN__PATH], config[GPUNN__PATH];
    gpunn_lora_args   lora;
    gpunn__archive    archive;
    gpunn__lora_file  file;
    if (model == NULL || folder == NULL) return gpunn__fail_null_model(model, function, "folder");
    memset(&lora, 0, sizeof lora);
    memset(&file, 0, sizeof file);
    file.dev = model->dev;
    lora.name = args.name ? args.name : "default";
    gpunn_status status = gpunn__path_in(model->dev, function, folder, "adapter_model.safetensors", weights);
    if (status == GPUNN_OK)
        status = gpunn__path_in(model->dev, function, folder, "adapter_config.json", config);
    if (status == GPUNN_OK) status = gpunn__config_read(model->dev, config, &lora);
    if (status == GPUNN_OK) status = gpunn__archive_open(model->dev, NULL, weights, &archive);
    if (status != GPUNN_OK) return status;
    status = gpunn__lora_file_read(&file, &archive, model, lora.rank);
    gpunn__archive_close(&archive);
    if (status == GPUNN_OK) status = gpunn__lora_file_apply(&file, model, &lora);
    gpunn__lora_file_free(&file);
    return status;
}
