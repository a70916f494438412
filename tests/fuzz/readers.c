/* Every parser under libFuzzer, and the models that come out of specs: the first byte chooses which, the rest
 * is the file (or text). Built with
 *     clang -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
 * against a library built with -fsanitize=fuzzer-no-link instead of fuzzer; tests/fuzz/readers.py makes the
 * seeds and runs it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpunn.h"

#include "../../examples/bert.h"
#include "../../examples/csv.h"
#include "../../examples/gguf.h"
#include "../../examples/volume.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void *bounded_realloc(void *user, void *ptr, size_t old_size, size_t new_size)
{
    (void)user;
    (void)old_size;
    if (new_size == 0) {
        free(ptr);
        return NULL;
    }
    if (new_size > (size_t)1 << 30) abort(); /* inputs are a few KiB, so somebody believed a header */
    return realloc(ptr, new_size);
}

static gpunn_device    *dev;
static gpunn_model     *model;
static gpunn_optimizer *opt;
static gpunn_tensor    *parameter[2];

/* An op that specs may name. */
static int own_forward(const gpunn_custom_call *call)
{
    memset(call->out->data, 0, (size_t)call->out->count * sizeof(float));
    return 0;
}
static const gpunn_custom_op own = {.name = "own", .inputs = 2, .forward = own_forward};

static void open_once(void)
{
    if (dev) return;
    const gpunn_init zero = {GPUNN_INIT_ZEROS, 0, 0};
    dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 1, .realloc_fn = bounded_realloc);
    model = gpunn_model_create(dev);
    parameter[0] = gpunn_parameter(model, "a", GPUNN_SHAPE(2, 2), zero);
    parameter[1] = gpunn_parameter(model, "b", GPUNN_SHAPE(3), zero);
    opt = gpunn_sgd(model, .momentum = 0.9f);
    if (opt == NULL || gpunn_register_custom(dev, &own) != GPUNN_OK) abort();
}

/* A path that opens these bytes. */
static const char *file_of(const void *data, size_t size)
{
    static int  fd = -1;
    static char path[64];
    if (fd < 0) fd = memfd_create("fuzz", 0);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

/* A failure has its sentence, success has none. */
static void verdict(gpunn_status status)
{
    const char *text = gpunn_error(dev);
    if ((status == GPUNN_OK) != (*text == 0) || gpunn_last_status(dev) != status) abort();
    for (; *text; text++)
        if ((unsigned char)*text < 0x20) abort();
    gpunn_clear_error(dev);
}

/* Reads every byte of what was read, so that the sanitizers see it. */
static void check_array(gpunn_status status, gpunn_array *array)
{
    static volatile unsigned char sum;
    size_t                        bytes = gpunn_dtype_size(array->dtype);
    if ((status == GPUNN_OK) != (array->data != NULL)) abort();
    for (int i = 0; i < array->rank; i++) bytes *= (size_t)array->dim[i];
    if (array->data && bytes != array->bytes) abort();
    for (size_t i = 0; array->data && i < array->bytes; i++)
        sum = (unsigned char)(sum + ((unsigned char *)array->data)[i]);
    gpunn_array_free(dev, array);
}

static void idx(const uint8_t *data, size_t size)
{
    gpunn_array  array;
    gpunn_status status = gpunn_read_idx(dev, file_of(data, size), &array);
    verdict(status);
    check_array(status, &array);
}

/* What is accepted can be written and read again. */
static void npy(const uint8_t *data, size_t size)
{
    gpunn_array  array, again;
    gpunn_status status = gpunn_read_npy(dev, file_of(data, size), &array);
    verdict(status);
    if (status == GPUNN_OK) {
        static char path[64];
        (void)snprintf(path, sizeof path, "/dev/shm/gpunn-fuzz-%d.npy", (int)getpid());
        if (gpunn_write_npy(dev, path, &array) != GPUNN_OK || gpunn_read_npy(dev, path, &again) != GPUNN_OK)
            abort();
        (void)unlink(path);
        if (again.dtype != array.dtype || again.rank != array.rank || again.bytes != array.bytes ||
            memcmp(again.dim, array.dim, sizeof array.dim) != 0 ||
            memcmp(again.data, array.data, array.bytes) != 0)
            abort();
        gpunn_array_free(dev, &again);
    }
    check_array(status, &array);
    if (gpunn_read_npy_as(dev, file_of(data, size), GPUNN_F64, &array) != status) abort();
    gpunn_clear_error(dev);
    check_array(status, &array);
}

static void cifar(const uint8_t *data, size_t size, int classes)
{
    gpunn_array  images, labels;
    const char  *path = file_of(data, size);
    gpunn_status status = gpunn_read_cifar(dev, &path, 1, classes, &images, &labels);
    verdict(status);
    check_array(status, &images);
    check_array(status, &labels);
}

static void report(void *user, const char *line)
{
    (void)user;
    for (; *line; line++)
        if ((unsigned char)*line < 0x20) abort();
}

/* The same bytes at the end of a block: a sanitizer sees what is read behind them. */
static gpunn_status load_memory(const uint8_t *data, size_t size, bool partial)
{
    /* which changes no name */
    static const gpunn_rename map[] = {{"*e*a*", "*e*a*"}, {"*b", "*b"}, {NULL, NULL}};
    uint8_t                  *copy = malloc(size + 1);
    if (size) memcpy(copy + 1, data, size);
    const gpunn_status status = gpunn_load_memory(model, copy + 1, size, .partial = partial, .map = map);
    free(copy);
    return status;
}

/* ---- an index of shards: "index.json" is the input, "1" and "2" have one tensor each ---- */
typedef struct block {
    const uint8_t *at;
    size_t         left;
} block;

static void *shard_open(void *user, const char *path)
{
    static const char *const headers[2] = {
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}",
        "{\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}    "};
    static uint8_t file[2][8 + 64 + 16];
    const block   *input = user;
    block         *opened = malloc(sizeof *opened);
    const int      i = *path == '2';
    *opened = *input;
    if (strcmp(path, "index.json") == 0) return opened;
    opened->at = file[i];
    opened->left = 8 + strlen(headers[i]) + (i ? 12 : 16);
    file[i][0] = (uint8_t)strlen(headers[i]);
    memcpy(file[i] + 8, headers[i], strlen(headers[i]));
    if (strcmp(path, "1") == 0 || strcmp(path, "2") == 0) return opened;
    free(opened);
    return NULL;
}

static int64_t shard_size(void *user, void *file)
{
    (void)user;
    return (int64_t)((block *)file)->left;
}

static int64_t shard_read(void *user, void *file, void *to, size_t bytes)
{
    block       *b = file;
    const size_t n = bytes < b->left ? bytes : b->left;
    (void)user;
    if (n) memcpy(to, b->at, n);
    b->at += n, b->left -= n;
    return (int64_t)n;
}

static void shard_close(void *user, void *file)
{
    (void)user;
    free(file);
}

static void shards(const uint8_t *data, size_t size)
{
    block          input = {data, size};
    const gpunn_io io = {shard_open, shard_size, shard_read, shard_close, &input};
    verdict(gpunn_load(model, "index.json", .io = &io, .partial = true));
}

/* After a failure no weight has changed. What memory holds is what a file holds. */
static void weights(const uint8_t *data, size_t size, bool checkpoint, bool partial)
{
    float before[7], after[7];
    if (gpunn_read(parameter[0], before, 16) || gpunn_read(parameter[1], before + 4, 12)) abort();
    const char  *path = file_of(data, size);
    gpunn_status status = checkpoint ? gpunn_checkpoint_load(opt, NULL, path)
                                     : gpunn_load(model, path, .partial = partial, .report = report);
    verdict(status);
    if (gpunn_read(parameter[0], after, 16) || gpunn_read(parameter[1], after + 4, 12)) abort();
    if (status != GPUNN_OK && memcmp(before, after, sizeof before) != 0) abort();
    if (!checkpoint) {
        if (load_memory(data, size, partial) != status) abort();
        gpunn_clear_error(dev);
        if (gpunn_read(parameter[0], before, 16) || gpunn_read(parameter[1], before + 4, 12)) abort();
        if (memcmp(before, after, sizeof before) != 0) abort();
    }
    if (checkpoint && status == GPUNN_OK) { /* whatever was let in does no harm */
        (void)gpunn_schedule_step(opt, 1);
        (void)gpunn_get_lr(opt);
        gpunn_clear_error(dev);
    }
}

/* A header alone; its length and 256 bytes of data are added, so that the fuzzer need not keep them right. */
static void header(const uint8_t *data, size_t size, bool partial)
{
    uint64_t length = size;
    uint8_t *file = malloc(8 + size + 256);
    memcpy(file, &length, 8);
    memcpy(file + 8, data, size);
    memset(file + 8 + size, 1, 256);
    weights(file, 8 + size + 256, false, partial);
    free(file);
}

/* A product with blocks in a mapped file. */
static void mapped_blocks(const char *path)
{
    const gpunn_init zero = {GPUNN_INIT_ZEROS, 0, 0};
    float            values[32] = {1};
    gpunn_model     *m = gpunn_model_create(dev, .inference = true);
    gpunn_tensor    *x = gpunn_input(m, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 32));
    gpunn_tensor    *c = gpunn_parameter(m, "c", GPUNN_SHAPE(2, 32), zero);
    gpunn_tensor    *y = gpunn_linear(x, "y", .out_features = 2, .weight = c, .no_bias = true);
    verdict(gpunn_load(m, path, .keep_blocks = true, .partial = true));
    if (gpunn_write(x, values, sizeof values) || gpunn_forward(&y, 1) || gpunn_read(y, values, 8)) abort();
    gpunn_model_destroy(m);
}

/* The header of a file of tensors, which is JSON; NULL: it cannot be read. */
static char *header_of(const char *path)
{
    gpunn_array        header;
    text_error         error = {""};
    const gpunn_status status = gpunn_read_header(dev, path, &header);
    verdict(status);
    if (status != GPUNN_OK) return NULL;
    char *text = malloc(header.bytes), *again = malloc(header.bytes);
    memcpy(text, header.data, header.bytes), memcpy(again, header.data, header.bytes);
    check_array(status, &header);
    json j = json_begin("header", text, &error);
    json_skip(&j);
    if (!json_end(&j)) abort();
    free(text);
    return again;
}

/* The header says a tokenizer or why there is none. */
static void gguf_file(const uint8_t *data, size_t size)
{
    text_error error = {""};
    weights(data, size, false, true);
    mapped_blocks(file_of(data, size));
    char *text = header_of(file_of(data, size));
    if (text == NULL) return;
    tokenizer *t = gguf_tokenizer(text, "header", &error);
    if ((t == NULL) != (error.text[0] != 0)) abort();
    tokenizer_free(t);
}

/* One tensor of a file, by its name or as the only one, and the header. */
static void one_tensor(const uint8_t *data, size_t size)
{
    const char *path = file_of(data, size);
    gpunn_array array;
    for (int i = 0; i < 4; i++) {
        const gpunn_dtype  dtype = i % 2 ? GPUNN_F64 : GPUNN_F32;
        const gpunn_status status = gpunn_read_safetensors_as(dev, path, i < 2 ? "a" : NULL, dtype, &array);
        verdict(status);
        check_array(status, &array);
    }
    free(header_of(path));
}

/* What is accepted runs forward and backward. */
static void formula(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = 0;
    gpunn_model  *m = gpunn_model_create(dev);
    gpunn_tensor *args[2] = {gpunn_input(m, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3)),
                             gpunn_input(m, "y", GPUNN_F32, GPUNN_SHAPE(3))};
    gpunn_tensor *result = gpunn_expr(text, args, 2);
    verdict(result ? GPUNN_OK : gpunn_last_status(dev));
    if (result) {
        const float   values[6] = {0, 1, -2, 3.5f, -0.25f, 1e30f};
        gpunn_tensor *loss = gpunn_sum(gpunn_cast(result, GPUNN_F32), GPUNN_ALL, false);
        (void)gpunn_retain_grad(args[0]);
        if (gpunn_write(args[0], values, 24) || gpunn_write(args[1], values, 12)) abort();
        gpunn_status status = gpunn_forward(&result, 1);
        if (status == GPUNN_OK) status = gpunn_backward(loss);
        if (status != GPUNN_OK && status != GPUNN_ERR_NUMERIC && status != GPUNN_ERR_STATE)
            abort(); /* STATE: nothing depends on x */
        gpunn_clear_error(dev);
    }
    gpunn_model_destroy(m);
    free(text);
}

/* Runs a model of such a size at most; a larger one takes too long here. */
enum { LARGEST = 1 << 20 };

/* A run ends well or for a reason that lies in the model or its values. */
static bool ran(gpunn_status status)
{
    verdict(status);
    if (status != GPUNN_OK && status != GPUNN_ERR_NUMERIC && status != GPUNN_ERR_ARGUMENT &&
        status != GPUNN_ERR_SHAPE && status != GPUNN_ERR_STATE && status != GPUNN_ERR_UNSUPPORTED)
        abort();
    return status == GPUNN_OK;
}

/* Element k of input i. */
static float input_value(int i, size_t k)
{
    return (float)((k * 37 + (size_t)i) % 17) / 8 - 1;
}

/* Small numbers into each input, for a batch of 2 and 6 of every other size that varies; false: one is too
 * large or cannot be written. */
static bool fill_inputs(gpunn_model *m)
{
    gpunn_tensor *t;
    for (int i = 0; (t = gpunn_input_at(m, i)) != NULL; i++) {
        gpunn_shape       shape = gpunn_tensor_shape(t);
        const gpunn_dtype dtype = gpunn_tensor_dtype(t);
        const size_t      size = gpunn_dtype_size(dtype);
        size_t            count = 1;
        for (int k = 0; k < GPUNN_MAX_RANK && shape.dim[k] != 0; k++) {
            int64_t *dim = &shape.dim[k];
            if (*dim < 0) *dim = *dim < -((int64_t)1 << 60) ? 6 : -2 * *dim;
            if ((size_t)*dim > LARGEST / size / count) return false; /* an input that no output needs */
            count *= (size_t)*dim;
        }
        unsigned char *values = calloc(count, size);
        for (size_t k = 0; k < count; k++) {
            const float number = input_value(i, k);
            if (dtype == GPUNN_F32)
                memcpy(values + k * size, &number, sizeof number);
            else
                values[k * size] = (unsigned char)(dtype == GPUNN_BOOL ? k % 2 : k % 3); /* little-endian */
        }
        const gpunn_status status = gpunn_write_shape(t, values, shape);
        free(values);
        if (!ran(status)) return false;
    }
    return true;
}

/* The values, or the weights, one after another. */
static unsigned char *values_of(gpunn_model *m, gpunn_tensor *const *outputs, int count, size_t *bytes)
{
    unsigned char *all = malloc(1);
    *bytes = 0;
    for (int i = 0; i < count; i++) {
        gpunn_tensor *t = outputs ? outputs[i] : gpunn_parameter_at(m, i);
        const size_t  size = gpunn_tensor_bytes(t);
        all = realloc(all, *bytes + size + 1);
        if (gpunn_read(t, all + *bytes, size) != GPUNN_OK) abort();
        *bytes += size;
    }
    return all;
}

/* Forward twice, the same bits but where each run draws numbers; then one training step, which changes no
 * weight if it fails, and forward again. */
static void run_model(gpunn_model *m, bool draws)
{
    gpunn_tensor    *outputs[8], *loss = gpunn_spec_loss(m);
    gpunn_optimizer *opt = NULL;
    size_t           bytes = 0, first, second;
    int              count = 0;
    while (count < 8 && (outputs[count] = gpunn_spec_output(m, count)) != NULL) count++;
    if (!ran(gpunn_model_summary(m, .batch_size = 2, .loss = loss, .bytes = &bytes)) || bytes > LARGEST)
        return;
    if (!ran(gpunn_model_summary(m, .batch_size = 2, .bytes = &bytes)) || bytes > LARGEST || !fill_inputs(m))
        return;
    if (count && ran(gpunn_forward(outputs, count))) {
        unsigned char *values = values_of(m, outputs, count, &first);
        if (!ran(gpunn_reset_states(m)) || !ran(gpunn_forward(outputs, count))) abort();
        unsigned char *same = values_of(m, outputs, count, &second);
        if (first != second || (!draws && memcmp(values, same, first) != 0)) abort();
        free(values), free(same);
    }
    if (loss && (opt = gpunn_spec_optimizer(m)) == NULL) {
        gpunn_clear_error(dev);
        opt = gpunn_sgd(m, .lr = 0.01f);
    }
    if (opt == NULL) {
        gpunn_clear_error(dev);
        return;
    }
    unsigned char *before = values_of(m, NULL, gpunn_parameter_count(m), &first);
    const bool     trained = ran(gpunn_train_step(opt, loss));
    unsigned char *after = values_of(m, NULL, gpunn_parameter_count(m), &second);
    if (first != second || (!trained && memcmp(before, after, first) != 0)) abort();
    if (trained && !ran(gpunn_forward(&loss, 1))) abort();
    free(before), free(after);
    gpunn_optimizer_destroy(opt);
}

static char *saved_spec(gpunn_model *m, const char *path, size_t *size)
{
    if (gpunn_spec_save(m, path, .name = "fuzz") != GPUNN_OK) abort();
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) abort();
    *size = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(*size + 1);
    if (fread(text, 1, *size, file) != *size || fclose(file) != 0) abort();
    text[*size] = 0;
    return text;
}

/* What is accepted can be saved, loaded and saved again: the same bytes; and it runs. */
static void spec(const uint8_t *data, size_t size)
{
    static char  path[64];
    gpunn_model *m = gpunn_spec_load(dev, file_of(data, size)), *again;
    verdict(m ? GPUNN_OK : gpunn_last_status(dev));
    again = gpunn_spec_load_memory(dev, (const char *)data, size);
    verdict(again ? GPUNN_OK : gpunn_last_status(dev));
    if ((m == NULL) != (again == NULL)) abort();
    gpunn_model_destroy(again);
    if (m == NULL) return;
    (void)snprintf(path, sizeof path, "/dev/shm/gpunn-fuzz-%d.json", (int)getpid());
    size_t first, second;
    char  *text = saved_spec(m, path, &first);
    if ((again = gpunn_spec_load(dev, path)) == NULL) abort();
    char *same = saved_spec(again, path, &second);
    if (first != second || memcmp(text, same, first) != 0) abort();
    const bool draws = strstr(text, "\"rand_like\"") || strstr(text, "\"randn_like\"");
    (void)unlink(path);
    free(text);
    free(same);
    gpunn_model_destroy(again);
    run_model(m, draws);
    gpunn_model_destroy(m);
}

/* The same of a model's file. */
static void model_file(const uint8_t *data, size_t size)
{
    gpunn_model *m = gpunn_model_load(dev, file_of(data, size)), *again;
    gpunn_array  first, second;
    verdict(m ? GPUNN_OK : gpunn_last_status(dev));
    if (m == NULL) return;
    if (gpunn_model_save_memory(m, &first, .name = "fuzz") != GPUNN_OK) abort();
    if ((again = gpunn_model_load_memory(dev, first.data, first.bytes)) == NULL) abort();
    if (gpunn_model_save_memory(again, &second) != GPUNN_OK || first.bytes != second.bytes ||
        memcmp(first.data, second.data, first.bytes) != 0)
        abort();
    gpunn_array_free(dev, &first);
    gpunn_array_free(dev, &second);
    gpunn_model_destroy(again);
    run_model(m, true);
    gpunn_model_destroy(m);
}

/* Parts that a 0 ends, each with memory of its own and a 0 behind; the last one takes the rest. */
static char *part(const uint8_t **data, size_t *size, bool last, size_t *bytes)
{
    const uint8_t *end = *size && !last ? memchr(*data, 0, *size) : NULL;
    *bytes = end ? (size_t)(end - *data) : *size;
    char *text = malloc(*bytes + 1);
    if (*bytes) memcpy(text, *data, *bytes);
    text[*bytes] = 0;
    *data += *bytes + (end != NULL);
    *size -= *bytes + (end != NULL);
    return text;
}

static const char *write_part(const char *folder, const char *name, const void *data, size_t size)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, size, file) != size || fclose(file) != 0) abort();
    return path;
}

/* A folder with an adapter_config.json, before a 0, and an adapter_model.safetensors. A failure changes no
 * result; what is accepted runs and is merged. */
static void adapter(const uint8_t *data, size_t size)
{
    static char   folder[64];
    const float   values[4] = {1, -2, 0.5f, 3};
    float         before[4], after[4];
    size_t        bytes;
    char         *config_text = part(&data, &size, false, &bytes);
    gpunn_model  *m = gpunn_model_create(dev);
    gpunn_tensor *x = gpunn_input(m, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *y = gpunn_linear(gpunn_linear(x, "h.a", .out_features = 3), "h.b", .out_features = 2);
    if (gpunn_write(x, values, 16) || gpunn_forward(&y, 1) || gpunn_read(y, before, 16)) abort();
    (void)snprintf(folder, sizeof folder, "/dev/shm/gpunn-fuzz-%d", (int)getpid());
    (void)mkdir(folder, 0700);
    (void)write_part(folder, "adapter_config.json", config_text, bytes);
    const char        *path = write_part(folder, "adapter_model.safetensors", data, size);
    const gpunn_status status = gpunn_lora_load(m, folder);
    verdict(status);
    if (gpunn_forward(&y, 1) || gpunn_read(y, after, 16)) abort();
    if (status != GPUNN_OK && memcmp(before, after, sizeof before) != 0) abort();
    if (status == GPUNN_OK && (gpunn_lora_merge(m) || gpunn_forward(&y, 1))) abort();
    (void)unlink(path);
    (void)unlink(write_part(folder, "adapter_config.json", "", 0));
    (void)rmdir(folder);
    gpunn_model_destroy(m);
    free(config_text);
}

/* ---- einsum by its definition: labels are letters, and for the axes of "..." the digits up to '8', the last
 * axis -- */
typedef struct labels {
    char at[32];
    int  count;
} labels;

/* Of one tensor, up to ',' or '-'; dots: how many axes "..." stands for. */
static const char *read_labels(const char *text, labels *l, int dots)
{
    l->count = 0;
    for (; *text && *text != ',' && *text != '-'; text++) {
        if (*text == '.') {
            for (int i = 0; i < dots; i++) l->at[l->count++] = (char)('9' - dots + i);
            text += 2;
        } else if (*text != ' ')
            l->at[l->count++] = *text;
    }
    return text;
}

/* Whether result, for a batch of 2, is what the equation says. All numbers are small multiples of 1/64: sums
 * are exact. */
static void check_einsum(const char *equation, gpunn_tensor *const *tensors, int count, gpunn_tensor *result)
{
    labels      l[3];
    int         size[128] = {0}, place[128] = {0}, used = 0, most = 0;
    char        order[64];
    int64_t     dim[2][GPUNN_MAX_RANK], total = 1;
    const char *text = equation;
    for (int i = 0; i < count; i++) {
        const gpunn_shape shape = gpunn_tensor_shape(tensors[i]);
        int               rank = 0, letters = 0;
        for (; rank < GPUNN_MAX_RANK && shape.dim[rank]; rank++)
            dim[i][rank] = shape.dim[rank] < 0 ? 2 : shape.dim[rank];
        for (const char *c = text; *c && *c != ',' && *c != '-'; c++) letters += *c != ' ' && *c != '.';
        text = read_labels(text, &l[i], rank - letters);
        if (l[i].count != rank || (i + 1 < count && *text++ != ',')) abort();
        if (rank - letters > most) most = rank - letters;
        for (int k = 0; k < rank; k++) {
            const unsigned char label = (unsigned char)l[i].at[k];
            if (size[label] == 0) order[used++] = (char)label;
            if (dim[i][k] > size[label]) size[label] = (int)dim[i][k];
        }
    }
    if (*text == '-')
        (void)read_labels(text + 2, &l[count], most);
    else { /* the axes of "...", then the letters that occur once */
        l[count].count = 0;
        for (int label = '1'; label <= 'z'; label++) {
            int times = 0;
            for (int i = 0; i < count; i++)
                for (int k = 0; k < l[i].count; k++) times += l[i].at[k] == label;
            if (times == 1 || (times > 1 && label <= '9')) l[count].at[l[count].count++] = (char)label;
        }
    }
    for (int k = 0; k < used; k++)
        if ((total *= size[(int)order[k]]) > 1 << 14) return;
    const size_t bytes = gpunn_tensor_bytes(result);
    float       *actual = malloc(bytes), *expected = calloc(bytes, 1);
    if (gpunn_read(result, actual, bytes) != GPUNN_OK) abort();
    for (int64_t n = 0; n < total; n++) {
        float   product = 1;
        int64_t left = n, to = 0;
        for (int k = 0; k < used; k++) {
            place[(int)order[k]] = (int)(left % size[(int)order[k]]);
            left /= size[(int)order[k]];
        }
        for (int i = 0; i < count; i++) {
            int64_t from = 0;
            for (int k = 0; k < l[i].count; k++)
                from = from * dim[i][k] + (dim[i][k] == 1 ? 0 : place[(int)l[i].at[k]]);
            product *= input_value(i, (size_t)from);
        }
        for (int k = 0; k < l[count].count; k++)
            to = to * size[(int)l[count].at[k]] + place[(int)l[count].at[k]];
        if ((size_t)to >= bytes / sizeof *expected) abort();
        expected[to] += product;
    }
    if (memcmp(actual, expected, bytes) != 0)
        for (size_t i = 0; i < bytes / sizeof *actual; i++)
            if (actual[i] != expected[i]) abort();
    free(actual), free(expected);
}

/* An equation, a 0, and for one or two tensors a number of axes and their sizes (0: the batch). What is
 * accepted runs forward, with the right values, and backward. */
static void einsum(const uint8_t *data, size_t size)
{
    gpunn_tensor *tensors[2] = {NULL, NULL};
    gpunn_model  *m = gpunn_model_create(dev);
    size_t        bytes;
    int           count = 0;
    char         *equation = part(&data, &size, false, &bytes);
    for (; count < 2 && size > 0; count++) {
        gpunn_shape shape = GPUNN_SHAPE(0);
        bool        batch = false;
        int         rank = *data++ % (GPUNN_MAX_RANK + 1);
        size--;
        for (int i = 0; i < rank; i++) {
            const int dim = size > 0 ? (size--, *data++ % 6) : 1;
            shape.dim[i] = dim ? dim : batch ? 1 : GPUNN_BATCH;
            batch |= dim == 0;
        }
        tensors[count] = gpunn_input(m, count ? "b" : "a", GPUNN_F32, shape);
    }
    gpunn_tensor *result = gpunn_einsum(equation, tensors, count);
    verdict(result ? GPUNN_OK : gpunn_last_status(dev));
    size_t needs = 0;
    if (result && ran(gpunn_model_summary(m, .batch_size = 2, .bytes = &needs)) && needs <= LARGEST &&
        fill_inputs(m)) {
        gpunn_tensor *loss = gpunn_sum(gpunn_square(result), GPUNN_ALL, false);
        (void)gpunn_retain_grad(tensors[0]);
        if (!ran(gpunn_forward(&result, 1))) abort();
        check_einsum(equation, tensors, count, result);
        if (!ran(gpunn_backward(loss))) abort();
    }
    gpunn_model_destroy(m);
    free(equation);
}

/* A NIfTI file, or raw voxels behind three sizes and a type. What is accepted can be written and read
 * again. */
static void volumes(const uint8_t *data, size_t size, bool raw)
{
    static char path[64];
    volume      v = {.size = {0}}, again = {.size = {0}};
    volume_type type = VOLUME_F32;
    if (raw && size < 4) return;
    if (raw) {
        for (int i = 0; i < 3; i++) v.size[i] = 1 + data[i];
        type = (volume_type)(data[3] % VOLUME_TYPES);
        data += 4, size -= 4;
    }
    if (!volume_read(file_of(data, size), &v, type)) {
        if (v.voxels) abort();
        return;
    }
    for (int i = 0; i < 3; i++)
        if (v.size[i] < 1 || v.voxels == NULL) abort();
    (void)snprintf(path, sizeof path, "/dev/shm/gpunn-fuzz-%d.nii", (int)getpid());
    if (!volume_write(path, &v, v.voxels, 1) || !volume_read(path, &again, VOLUME_F32)) abort();
    (void)unlink(path);
    if (memcmp(v.size, again.size, sizeof v.size) != 0) abort();
    for (int64_t i = 0; i < volume_count(&v); i++)
        if (!isfinite(v.voxels[i]) || v.voxels[i] != again.voxels[i]) abort();
    free(v.voxels), free(again.voxels);
}

/* A tokenizer.json, or a vocabulary (of BPE, with merges), and a text. Pieces stand in it; those of BPE are
 * the text, byte by byte. */
static void tokenize(const uint8_t *data, size_t size, char kind)
{
    text_error error = {""};
    const bool bpe = kind == 'T', file = kind == 'y';
    size_t     bytes, merges_bytes, said_bytes, at = 0;
    char      *vocabulary = part(&data, &size, false, &bytes);
    char      *merges = bpe ? part(&data, &size, false, &merges_bytes) : NULL;
    tokenizer *t = file  ? tokenizer_json_of(vocabulary, "tokenizer.json", &error)
                   : bpe ? tokenizer_bpe_of(vocabulary, "vocab.json", merges, merges_bytes, "merges.txt",
                                            &error)
                         : tokenizer_wordpiece_of(vocabulary, bytes, "vocab.txt", size & 1, &error);
    if ((t == NULL) != (error.text[0] != 0)) abort();
    if (t == NULL) return;
    char      *text = part(&data, &size, true, &bytes);
    token_list list = {0};
    if (!tokenizer_encode_all(t, text, bytes, &list)) abort();
    for (size_t i = 0; i < list.count; i++) {
        const token *token = &list.items[i];
        size_t       length;
        const char  *piece = tokenizer_text(t, token->id, &length);
        if (token->start > token->end || token->end > bytes || token->id < 0 || token->id >= t->count)
            abort();
        if (!file && (token->start == token->end || length == 0)) abort();
        if (bpe && (token->start != at || token->end - at != length || memcmp(text + at, piece, length) != 0))
            abort();
        if (!bpe && !file && i && token->start < token[-1].start) abort();
        at = token->end;
    }
    if (bpe && at != bytes) abort();
    char *said = tokenizer_decode(t, list.items, list.count, size & 1, &said_bytes);
    if (said == NULL || said[said_bytes]) abort();
    free(said);
    token_list_free(&list);
    tokenizer_free(t);
    free(text);
}

static void config(const uint8_t *data, size_t size)
{
    text_error  error = {""};
    bert_config c;
    bool        good = bert_read_config(file_of(data, size), "bert", &c, &error);
    if (good != (error.text[0] == 0)) abort();
    if (good && (c.hidden_size < 1 || c.num_attention_heads < 1 || c.hidden_size % c.num_attention_heads))
        abort();
}

static void records(const uint8_t *data, size_t size)
{
    size_t    bytes;
    char     *text = part(&data, &size, true, &bytes);
    csv       c = csv_begin(text);
    csv_field field[2];
    char     *end = text + strlen(text);
    for (int n, line = 0; (n = csv_next(&c, field, 2)) != 0; line = c.line) {
        if (c.line < line || c.at > end) abort();
        for (int i = 0; i < n && i < 2; i++)
            if (field[i].text < text || field[i].text + field[i].bytes > c.at) abort();
    }
    if (*c.at) abort();
    free(text);
}

static void classes_of(const char *text)
{
    text_error error = {""};
    size_t     rows, classes;
    char     **name;
    int64_t   *label = csv_classes(text, "a", &name, &classes, &rows, &error);
    if ((label != NULL) != (rows > 0) || (name != NULL) != (classes > 0) || classes > rows) abort();
    if ((label == NULL) != (name == NULL) || (label == NULL) != (error.text[0] != 0)) abort();
    for (size_t i = 0; i < rows; i++)
        if (label[i] < 0 || label[i] >= (int64_t)classes) abort();
    for (size_t i = 1; i < classes; i++)
        if (strcmp(name[i - 1], name[i]) >= 0) abort();
    free(label);
    free(name);
}

static void table(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"a", "b"};
    text_error               error = {""};
    size_t                   bytes, rows;
    char                    *text = part(&data, &size, true, &bytes);
    float                   *numbers = csv_floats(text, names, 2, &rows, &error);
    if ((numbers != NULL) != (rows > 0) || (numbers == NULL) != (error.text[0] != 0)) abort();
    for (size_t i = 0; i < 2 * rows; i++)
        if (isinf(numbers[i])) abort();
    free(numbers);
    classes_of(text);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    open_once();
    if (size < 1) return 0;
    const uint8_t kind = *data++;
    size--;
    switch (kind) {
    case 'i': idx(data, size); break;
    case 'n': npy(data, size); break;
    case 'c': cifar(data, size, 10); break;
    case 'C': cifar(data, size, 100); break;
    case 'h': header(data, size, false); break;
    case 'H': header(data, size, true); break;
    case 's': weights(data, size, false, false); break;
    case 'k': weights(data, size, true, false); break;
    case 'g': gguf_file(data, size); break;
    case 'S': one_tensor(data, size); break;
    case 'a': adapter(data, size); break;
    case 'w': shards(data, size); break;
    case 'e': formula(data, size); break;
    case 'j': spec(data, size); break;
    case 'o': model_file(data, size); break;
    case 'm': einsum(data, size); break;
    case 'v': volumes(data, size, false); break;
    case 'V': volumes(data, size, true); break;
    case 'q': config(data, size); break;
    case 'r': records(data, size); break;
    case 'R': table(data, size); break;
    case 't':
    case 'T':
    case 'y': tokenize(data, size, (char)kind); break;
    default: return -1; /* not kept in the corpus */
    }
    return 0;
}
