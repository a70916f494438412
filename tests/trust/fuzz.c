/* Every parser under libFuzzer: the first byte chooses which, the rest is the file (or text). Built with
 *     clang -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
 * against a library built with -fsanitize=fuzzer-no-link instead of fuzzer; tests/trust/fuzz.py makes the seeds and runs it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../gpunn.h"

#include "../../examples/bert.h"
#include "../../examples/csv.h"
#include "../../examples/tokenizer.h"

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
    (void)call;
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
    for (size_t i = 0; array->data && i < array->bytes; i++) sum = (unsigned char)(sum + ((unsigned char *)array->data)[i]);
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
        if (gpunn_write_npy(dev, path, &array) != GPUNN_OK || gpunn_read_npy(dev, path, &again) != GPUNN_OK) abort();
        (void)unlink(path);
        if (again.dtype != array.dtype || again.rank != array.rank || again.bytes != array.bytes ||
            memcmp(again.dim, array.dim, sizeof array.dim) != 0 || memcmp(again.data, array.data, array.bytes) != 0)
            abort();
        gpunn_array_free(dev, &again);
    }
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

/* After a failure no weight has changed. */
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

/* What is accepted runs forward and backward. */
static void expression(const uint8_t *data, size_t size)
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
        gpunn_tensor *loss = gpunn_sum(result, GPUNN_ALL, false);
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

static char *saved_spec(gpunn_model *m, const char *path, size_t *size)
{
    if (gpunn_spec_save(m, path, .name = "fuzz") != GPUNN_OK) abort();
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) abort();
    *size = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(*size + 1);
    if (fread(text, 1, *size, file) != *size || fclose(file) != 0) abort();
    return text;
}

/* What is accepted can be saved, loaded and saved again: the same bytes. */
static void spec(const uint8_t *data, size_t size)
{
    static char  path[64];
    gpunn_model *m = gpunn_spec_load(dev, file_of(data, size)), *again;
    verdict(m ? GPUNN_OK : gpunn_last_status(dev));
    if (m == NULL) return;
    (void)snprintf(path, sizeof path, "/dev/shm/gpunn-fuzz-%d.json", (int)getpid());
    size_t first, second;
    char  *text = saved_spec(m, path, &first);
    if ((again = gpunn_spec_load(dev, path)) == NULL) abort();
    char *same = saved_spec(again, path, &second);
    if (first != second || memcmp(text, same, first) != 0) abort();
    (void)unlink(path);
    free(text);
    free(same);
    gpunn_model_destroy(again);
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

/* A vocabulary (of BPE, with merges) and a text. Pieces stand in order; those of BPE are the text, byte by byte. */
static void tokenize(const uint8_t *data, size_t size, bool bpe)
{
    text_error error = {""};
    size_t     bytes, merges_bytes, at = 0;
    char      *vocabulary = part(&data, &size, false, &bytes);
    char      *merges = bpe ? part(&data, &size, false, &merges_bytes) : NULL;
    tokenizer *t = bpe ? tokenizer_bpe_of(vocabulary, "vocab.json", merges, merges_bytes, "merges.txt", &error)
                       : tokenizer_wordpiece_of(vocabulary, bytes, "vocab.txt", size & 1, &error);
    if ((t == NULL) != (error.text[0] != 0)) abort();
    if (t == NULL) return;
    char      *text = part(&data, &size, true, &bytes);
    token_list list = {0};
    if (!tokenizer_encode(t, text, bytes, &list)) abort();
    for (size_t i = 0; i < list.count; i++) {
        const token *token = &list.items[i];
        size_t       length;
        const char  *piece = tokenizer_text(t, token->id, &length);
        if (token->start >= token->end || token->end > bytes || length == 0) abort();
        if (bpe && (token->start != at || token->end - at != length || memcmp(text + at, piece, length) != 0)) abort();
        if (!bpe && i && token->start < token[-1].start) abort();
        at = token->end;
    }
    if (bpe && at != bytes) abort();
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
    if (good && (c.hidden_size < 1 || c.num_attention_heads < 1 || c.hidden_size % c.num_attention_heads)) abort();
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
    case 'e': expression(data, size); break;
    case 'j': spec(data, size); break;
    case 'q': config(data, size); break;
    case 'r': records(data, size); break;
    case 't': tokenize(data, size, false); break;
    case 'T': tokenize(data, size, true); break;
    default: return -1; /* not kept in the corpus */
    }
    return 0;
}
