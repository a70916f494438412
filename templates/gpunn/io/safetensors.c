#include "io/safetensors.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/math.h"
#include "base/blocks.h"
#include "base/device.h"

enum { GPUNN__MAX_HEADER = 100000000 }; /* as in the safetensors library */

GPUNN__INTERNAL gpunn__entry *gpunn__table_add(gpunn_device *dev, gpunn__table *table,
                                               const gpunn__slice *name)
{
    gpunn__entry *items = (gpunn__entry *)gpunn__grow(dev, table->items, table->count, &table->capacity,
                                                      sizeof *items);
    if (items == NULL) return NULL;
    table->items = items;
    gpunn__entry *item = &items[table->count++];
    memset(item, 0, sizeof *item);
    item->name = *name;
    return item;
}

/* Compares name with the concatenation of the two parts. Returns a number < 0, 0 or > 0. */
static int gpunn__compare_name(const gpunn__slice *name, const char *part, size_t part_length,
                               const char *rest, size_t rest_length)
{
    size_t head = name->length < part_length ? name->length : part_length, tail = name->length - head;
    int    order = memcmp(name->at, part, head);
    if (order == 0 && head < part_length) order = -1;
    if (order == 0) order = memcmp(name->at + head, rest, tail < rest_length ? tail : rest_length);
    if (order) return order;
    return (tail > rest_length) - (tail < rest_length);
}

static int gpunn__entry_by_name(const void *a, const void *b)
{
    const gpunn__slice *x = &((const gpunn__entry *)a)->name, *y = &((const gpunn__entry *)b)->name;
    return gpunn__compare_name(x, y->at, y->length, "", 0);
}

static int gpunn__entry_by_offset(const void *a, const void *b)
{
    const gpunn__entry *x = (const gpunn__entry *)a, *y = (const gpunn__entry *)b;
    if (x->file->number != y->file->number) return x->file->number < y->file->number ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static void gpunn__table_sort(gpunn__table *table, int (*compare)(const void *a, const void *b))
{
    if (table->count > 1) qsort(table->items, (size_t)table->count, sizeof *table->items, compare);
}

GPUNN__INTERNAL void gpunn__sort_by_offset(gpunn__table *table)
{
    gpunn__table_sort(table, gpunn__entry_by_offset);
}

GPUNN__INTERNAL gpunn__entry *gpunn__table_find(const gpunn__table *table, const char *prefix,
                                                const char *name)
{
    size_t prefix_length = strlen(prefix), name_length = strlen(name);
    for (int low = 0, high = table->count; low < high;) {
        int           middle = low + (high - low) / 2;
        gpunn__entry *item = &table->items[middle];
        int           order = gpunn__compare_name(&item->name, prefix, prefix_length, name, name_length);
        if (order == 0) return item;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* Skips a value of any kind. Fails like gpunn__json_item. */
static bool gpunn__json_pass(gpunn_device *dev, gpunn__json *j)
{
    gpunn__items items = {NULL, 0, 0};
    const bool   passed = gpunn__json_item(dev, j, &items, 0);
    gpunn__free(dev, items.at, (size_t)items.capacity * sizeof *items.at);
    return passed;
}

/* Parses {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} with the keys in any order. Other keys
 * are ignored, as in the safetensors library. If it returns false and j->problem is NULL, memory ran out. */
static bool gpunn__parse_tensor(gpunn_device *dev, gpunn__json *j, gpunn__entry *item)
{
    size_t elements = 1, bytes = 0;
    bool   fits = true;
    int    dtypes = 0, shapes = 0, offsets = 0;
    if (!gpunn__json_expect(j, '{', "lacks the description of a tensor")) return false;
    do {
        gpunn__slice key;
        if (!gpunn__json_string(j, &key) || !gpunn__json_expect(j, ':', "lacks a colon")) return false;
        if (gpunn__slice_is(&key, "dtype") && !dtypes++) {
            if (!gpunn__json_string(j, &item->text)) return false;
            for (int i = 0; i < GPUNN__ENCODING_COUNT; i++)
                if (gpunn__slice_is(&item->text, gpunn__encodings[i].safetensors) &&
                    !gpunn__blocks_of(&gpunn__encodings[i]))
                    item->encoding = &gpunn__encodings[i];
        } else if (gpunn__slice_is(&key, "shape") && !shapes++) {
            if (!gpunn__json_expect(j, '[', "lacks a shape")) return false;
            if (!gpunn__json_take(j, ']')) {
                do {
                    int64_t dim;
                    if (!gpunn__json_integer(j, &dim)) return false;
                    if (dim < 0) return gpunn__json_fail(j, "has a negative dimension");
                    fits = fits && (uint64_t)dim <= SIZE_MAX && gpunn__mul(elements, (size_t)dim, &elements);
                    if (item->rank < GPUNN_MAX_RANK) item->dim[item->rank] = dim;
                    item->rank++; /* stays below GPUNN__MAX_HEADER */
                } while (gpunn__json_take(j, ','));
                if (!gpunn__json_expect(j, ']', "has an unterminated shape")) return false;
            }
        } else if (gpunn__slice_is(&key, "data_offsets") && !offsets++) {
            int64_t begin = 0, end = 0;
            if (!gpunn__json_expect(j, '[', "lacks data_offsets") || !gpunn__json_integer(j, &begin) ||
                !gpunn__json_expect(j, ',', "lacks data_offsets") || !gpunn__json_integer(j, &end) ||
                !gpunn__json_expect(j, ']', "lacks data_offsets"))
                return false;
            if (begin < 0 || end < begin) return gpunn__json_fail(j, "has data_offsets that are not a range");
            item->begin = (uint64_t)begin;
            item->end = (uint64_t)end;
        } else if (dtypes > 1 || shapes > 1 || offsets > 1)
            return gpunn__json_fail(j, "has dtype, shape or data_offsets twice");
        else if (!gpunn__json_pass(dev, j))
            return false;
    } while (gpunn__json_take(j, ','));
    if (!gpunn__json_expect(j, '}', "has an unterminated description of a tensor")) return false;
    if (!dtypes || !shapes || !offsets)
        return gpunn__json_fail(j, "lacks a tensor's dtype, shape or data_offsets");
    if (item->encoding &&
        !(fits && gpunn__mul(elements, item->encoding->bytes, &bytes) && bytes == item->end - item->begin))
        return gpunn__json_fail(j, "has a shape that disagrees with its data_offsets");
    return true;
}

/* If it returns false and j->problem is NULL, memory ran out. */
static bool gpunn__parse_header(gpunn_device *dev, gpunn__json *j, gpunn__table *tensors, gpunn__table *notes)
{
    bool         metadata = false;
    gpunn__slice name;
    /* not even spaces may precede it */
    if (*j->at++ != '{') return gpunn__json_fail(j, "does not begin with {");
    if (!gpunn__json_take(j, '}')) {
        do {
            if (!gpunn__json_string(j, &name) || !gpunn__json_expect(j, ':', "lacks a colon")) return false;
            if (!gpunn__slice_is(&name, "__metadata__")) {
                gpunn__entry *item = gpunn__table_add(dev, tensors, &name);
                if (item == NULL || !gpunn__parse_tensor(dev, j, item)) return false;
                continue;
            }
            if (metadata) return gpunn__json_fail(j, "has __metadata__ twice");
            metadata = true;
            if (gpunn__json_peek(j, 'n')) { /* null: none */
                if (!gpunn__json_pass(dev, j)) return false;
                continue;
            }
            if (!gpunn__json_expect(j, '{', "lacks an object after __metadata__")) return false;
            if (gpunn__json_take(j, '}')) continue;
            do {
                if (!gpunn__json_string(j, &name)) return false;
                gpunn__entry *item = gpunn__table_add(dev, notes, &name);
                if (item == NULL || !gpunn__json_expect(j, ':', "lacks a colon") ||
                    !gpunn__json_string(j, &item->text))
                    return false;
            } while (gpunn__json_take(j, ','));
            if (!gpunn__json_expect(j, '}', "has an unterminated __metadata__")) return false;
        } while (gpunn__json_take(j, ','));
        if (!gpunn__json_expect(j, '}', "has no end")) return false;
    }
    (void)gpunn__json_peek(j, 0);
    return j->at == j->end || gpunn__json_fail(j, "has text after its end");
}

GPUNN__INTERNAL void gpunn__archive_close(gpunn__archive *a)
{
    gpunn_device *dev = a->reader.dev;
    for (int i = 0; i < a->shard_count; i++) {
        gpunn__archive_close(a->shards[i]);
        gpunn__free(dev, a->shards[i], sizeof *a->shards[i]);
    }
    gpunn__free(dev, a->shards, (size_t)a->shard_capacity * sizeof *a->shards);
    gpunn__free_text(dev, a->path);
    gpunn__free(dev, a->tensors.items, (size_t)a->tensors.capacity * sizeof *a->tensors.items);
    gpunn__free(dev, a->notes.items, (size_t)a->notes.capacity * sizeof *a->notes.items);
    gpunn__free(dev, a->header, a->header_bytes);
    gpunn__free(dev, a->names, a->names_bytes);
    gpunn__reader_close(&a->reader);
}

/* Sorts the table by name. Returns an entry whose name occurs twice; NULL if there is none. */
static const gpunn__entry *gpunn__table_sort_names(gpunn__table *table)
{
    gpunn__table_sort(table, gpunn__entry_by_name);
    for (int i = 1; i < table->count; i++)
        if (gpunn__entry_by_name(&table->items[i - 1], &table->items[i]) == 0) return &table->items[i];
    return NULL;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__sort_by_name(gpunn__archive *a)
{
    const gpunn__entry *twice = gpunn__table_sort_names(&a->notes);
    char                shown[128];
    if (twice == NULL) twice = gpunn__table_sort_names(&a->tensors);
    if (twice == NULL) return GPUNN_OK;
    return gpunn__fail(a->reader.dev, GPUNN_ERR_FORMAT,
                       "'%s' is damaged: its header has '%s' twice; write it again",
                       gpunn__tail(a->reader.path), gpunn__printable(&twice->name, shown));
}

/* The blocks of that name. NULL: there are none. */
static const gpunn__encoding *gpunn__blocks_called(const gpunn__slice *name)
{
    for (int i = 0; i < GPUNN__ENCODING_COUNT; i++)
        if (gpunn__blocks_of(&gpunn__encodings[i]) && gpunn__slice_is(name, gpunn__encodings[i].safetensors))
            return &gpunn__encodings[i];
    return NULL;
}

/* Makes a tensor of bytes one of blocks. */
static bool gpunn__take_blocks(gpunn__entry *item, const gpunn__slice *format)
{
    const gpunn__encoding *blocks = gpunn__blocks_called(format);
    int64_t               *row = item && item->rank > 0 ? &item->dim[item->rank - 1] : NULL;
    if (row == NULL || blocks == NULL || item->encoding == NULL || item->encoding->id != GPUNN__U8 ||
        *row % (int64_t)blocks->bytes)
        return false;
    *row = *row / (int64_t)blocks->bytes * (int64_t)gpunn__encoding_length(blocks);
    item->encoding = blocks;
    item->text = *format;
    return true;
}

/* Takes the formats of blocks from the metadata. */
static GPUNN__STATUS gpunn__find_formats(gpunn__archive *a)
{
    const size_t prefix = sizeof gpunn__blocks_key - 1;
    char         shown[128], format[128];
    for (int i = 0; i < a->notes.count; i++) {
        gpunn__entry *note = &a->notes.items[i];
        gpunn__slice  name = {note->name.at + prefix, note->name.length - prefix};
        if (note->name.length <= prefix || memcmp(note->name.at, gpunn__blocks_key, prefix) != 0) continue;
#ifdef GPUNN_NO_GGUF
        return gpunn__fail(a->reader.dev, GPUNN_ERR_UNSUPPORTED,
                           "'%s' has blocks of %s, which this program leaves out; compile it without "
                           "GPUNN_NO_GGUF",
                           gpunn__tail(a->reader.path), gpunn__printable(&note->text, format));
#endif
        if (!gpunn__take_blocks(gpunn__table_find(&a->tensors, "", name.at), &note->text))
            return gpunn__fail(a->reader.dev, GPUNN_ERR_FORMAT,
                               "'%s' is damaged: its metadata says that '%s' has blocks of '%s', which its "
                               "bytes cannot be; write it again",
                               gpunn__tail(a->reader.path), gpunn__printable(&name, shown),
                               gpunn__printable(&note->text, format));
    }
    return GPUNN_OK;
}

/* Fails if a file begins as one of another format. */
static GPUNN__STATUS gpunn__reject_format(gpunn_device *dev, const char *path, const unsigned char head[8])
{
#ifdef GPUNN_NO_GGUF
    if (memcmp(head, "GGUF", 4) == 0)
        return gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                           "'%s' is a GGUF file, which this program does not read; compile it without "
                           "GPUNN_NO_GGUF",
                           path);
#endif
    if (memcmp(head, "PK\3\4", 4) == 0)
        return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                           "'%s' is a torch.save archive; convert it in Python: "
                           "safetensors.torch.save_file(torch.load(...), ...)",
                           path);
    if (memcmp(head, "version ", 8) == 0)
        return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                           "'%s' is not a safetensors file, but looks like a pointer of Git LFS; fetch the "
                           "file with git lfs pull",
                           path);
    return GPUNN_OK;
}

/* Fails unless the tensors of the header, sorted by offset, fill the data without gaps. */
static GPUNN__STATUS gpunn__check_offsets(const gpunn__archive *a)
{
    gpunn_device *dev = a->reader.dev;
    const char   *path = gpunn__tail(a->reader.path);
    uint64_t      end = 0;
    char          shown[128];
    for (int i = 0; i < a->tensors.count; i++) {
        const gpunn__entry *item = &a->tensors.items[i];
        if (item->begin != end || item->end > a->bytes)
            return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                               "'%s' is damaged: its header puts tensor '%s' at bytes %llu to %llu, but the "
                               "one before ends at %llu and the data at %llu; write or download it again",
                               path, gpunn__printable(&item->name, shown), (unsigned long long)item->begin,
                               (unsigned long long)item->end, (unsigned long long)end,
                               (unsigned long long)a->bytes);
        end = item->end;
    }
    if (end != a->bytes)
        return gpunn__fail(
            dev, GPUNN_ERR_FORMAT,
            "'%s' is damaged: its tensors have %llu bytes, the file %llu; write or download it again", path,
            (unsigned long long)end, (unsigned long long)a->bytes);
    return GPUNN_OK;
}

/* Reads and checks the header. */
static GPUNN__STATUS gpunn__archive_header(gpunn__archive *a)
{
    gpunn__reader *r = &a->reader;
    gpunn_device  *dev = r->dev;
    const char    *path = gpunn__tail(r->path);
    unsigned char  head[8];
    uint64_t       length = 0;
    gpunn_status   status = gpunn__reader_read(r, head, sizeof head);
    if (status != GPUNN_OK) return status;
#ifndef GPUNN_NO_GGUF
    if (memcmp(head, "GGUF", 4) == 0) return gpunn__gguf_header(a, head);
#endif
    status = gpunn__reject_format(dev, path, head);
    if (status != GPUNN_OK) return status;
    for (int i = 0; i < 8; i++) length |= (uint64_t)head[i] << (8 * i);
    if (length > GPUNN__MAX_HEADER || length < 2 || r->limit < sizeof head + length)
        return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                           "'%s' is not a safetensors file, or is cut short: its header would have %llu "
                           "bytes, the file has %llu; write or download it again",
                           path, (unsigned long long)length, (unsigned long long)r->limit);
    a->header_bytes = (size_t)length;
    a->header = (char *)gpunn__realloc(dev, NULL, 0, a->header_bytes);
    if (a->header == NULL) return GPUNN_ERR_MEMORY;
    status = gpunn__reader_read(r, a->header, a->header_bytes);
    if (status != GPUNN_OK) return status;

    gpunn__json json = gpunn__json_of(a->header, a->header_bytes, false);
    bool        parsed = gpunn__parse_header(dev, &json, &a->tensors, &a->notes);
    if (!parsed && json.problem == NULL) return GPUNN_ERR_MEMORY;
    if (!parsed)
        return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                           "'%s' is damaged or not a safetensors file: its header %s (byte %lld); write or "
                           "download it again",
                           path, json.problem, (long long)(json.at - a->header) + 8);

    a->bytes = r->limit - sizeof head - length;
    for (int i = 0; i < a->tensors.count; i++) a->tensors.items[i].file = a;
    gpunn__sort_by_offset(&a->tensors);
    status = gpunn__check_offsets(a);
    if (status == GPUNN_OK) status = gpunn__sort_by_name(a);
    return status == GPUNN_OK ? gpunn__find_formats(a) : status;
}

/* ---- shards
 * ----------------------------------------------------------------------------------------------------------
 * * An index is {"metadata": {...}, "weight_map": {"a tensor": "model-00001-of-00002.safetensors", ...}}. */

/* The path of file `name` in the directory of `path`. */
static char *gpunn__beside(gpunn_device *dev, const char *path, const char *name)
{
    size_t head = (size_t)(gpunn__file_name(path) - path), tail = strlen(name) + 1;
    char  *beside = (char *)gpunn__realloc(dev, NULL, 0, head + tail);
    if (beside == NULL) return NULL;
    memcpy(beside, path, head);
    memcpy(beside + head, name, tail);
    return beside;
}

/* Whether text is a plain file name, not a path to another directory or to a Windows device. */
static bool gpunn__is_file_name(const gpunn__slice *text)
{
    return text->length > 0 && strlen(text->at) == text->length && *text->at != '.' &&
           strpbrk(text->at, "/\\:") == NULL;
}

/* The open shard of that name; NULL: none. */
static gpunn__archive *gpunn__shard_find(const gpunn__archive *a, const gpunn__slice *name)
{
    for (int i = a->shard_count - 1; i >= 0; i--)
        if (gpunn__slice_is(name, gpunn__file_name(a->shards[i]->path))) return a->shards[i];
    return NULL;
}

/* Opens one more shard and adds its tensors to the archive's table. */
static GPUNN__STATUS gpunn__shard_open(gpunn__archive *a, const gpunn_io *io, const char *name)
{
    gpunn_device    *dev = a->reader.dev;
    gpunn__archive **shards = (gpunn__archive **)gpunn__grow(dev, a->shards, a->shard_count,
                                                             &a->shard_capacity, sizeof(gpunn__archive *));
    if (shards == NULL) return GPUNN_ERR_MEMORY;
    a->shards = shards;
    gpunn__archive *shard = (gpunn__archive *)gpunn__calloc(dev, sizeof *shard);
    if (shard == NULL) return GPUNN_ERR_MEMORY;
    shard->reader.dev = dev;
    shard->reader.fd = -1;
    shard->number = a->shard_count;
    shards[a->shard_count++] = shard;
    shard->path = gpunn__beside(dev, a->reader.path, name);
    if (shard->path == NULL) return GPUNN_ERR_MEMORY;
    gpunn_status status = gpunn__reader_open(dev, io, shard->path, false, &shard->reader);
    if (status == GPUNN_OK) status = gpunn__archive_header(shard);
    for (int i = 0; i < shard->tensors.count && status == GPUNN_OK; i++) {
        gpunn__entry *item = gpunn__table_add(dev, &a->tensors, &shard->tensors.items[i].name);
        if (item == NULL) return GPUNN_ERR_MEMORY;
        *item = shard->tensors.items[i];
    }
    return status;
}

/* Fails if two shards have a tensor of one name. Sorts the tensors by name. */
static GPUNN__STATUS gpunn__check_shards(gpunn__archive *a)
{
    char                shown[128];
    const gpunn__entry *twice = gpunn__table_sort_names(&a->tensors);
    if (twice == NULL) return GPUNN_OK;
    return gpunn__fail(a->reader.dev, GPUNN_ERR_FORMAT,
                       "'%s' has the tensor '%s', which another shard has too; download them again",
                       gpunn__tail(twice->file->path), gpunn__printable(&twice->name, shown));
}

/* Opens every shard that the weight_map names. Checks that each tensor is in the shard that the map says, and
 * in no other. */
static GPUNN__STATUS gpunn__shards_open(gpunn__archive *a, const gpunn_io *io,
                                        const gpunn__document *document)
{
    gpunn_device      *dev = a->reader.dev;
    const gpunn__item *item = document->items.at;
    const char        *path = gpunn__tail(a->reader.path);
    int                map = gpunn__document_find(document, 0, "weight_map");
    char               shown[128], file[128];
    gpunn_status       status = GPUNN_OK;
    if (map == 0 || item[map].kind != GPUNN__J_OBJECT)
        return gpunn__fail(
            dev, GPUNN_ERR_FORMAT,
            "'%s' is not an index of shards: it has no \"weight_map\"; load the file that holds the weights",
            path);
    for (int i = map + 1; i < item[map].next && status == GPUNN_OK; i = item[i + 1].next) {
        const gpunn__slice *name = &item[i + 1].text;
        if (item[i + 1].kind != GPUNN__J_STRING || !gpunn__is_file_name(name))
            return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                               "%s:%d:%d: the shard is %s, which does not name a file beside the index; put "
                               "all shards into its folder",
                               path, item[i + 1].line, item[i + 1].column,
                               name->at ? gpunn__printable(name, shown) : "no string");
        if (gpunn__shard_find(a, name) == NULL) status = gpunn__shard_open(a, io, name->at);
    }
    if (status == GPUNN_OK) status = gpunn__check_shards(a);
    if (status != GPUNN_OK) return status;
    for (int i = map + 1; i < item[map].next; i = item[i + 1].next) {
        const gpunn__entry *entry = gpunn__table_find(&a->tensors, "", item[i].text.at);
        if (entry == NULL || entry->file != gpunn__shard_find(a, &item[i + 1].text))
            return gpunn__fail(
                dev, GPUNN_ERR_FORMAT,
                "'%s' says that the tensor '%s' is in '%s', which lacks it; download them again", path,
                gpunn__printable(&item[i].text, shown), gpunn__printable(&item[i + 1].text, file));
    }
    return GPUNN_OK;
}

#ifndef GPUNN_NO_GGUF
/* Opens part `number` of `count`, counted from 0. `length`: of the name before the numbers. */
static GPUNN__STATUS gpunn__part_open(gpunn__archive *a, const gpunn_io *io, int length, int64_t number,
                                      int64_t count)
{
    const char *path = a->reader.path;
    char        name[512];
    (void)snprintf(name, sizeof name, "%.*s%05lld-of-%05lld.gguf", length, gpunn__file_name(path),
                   (long long)number + 1, (long long)count);
    gpunn_status status = gpunn__shard_open(a, io, name);
    if (status != GPUNN_OK) return status;
    const gpunn__archive *part = a->shards[a->shard_count - 1];
    const int64_t         own = part->gguf ? gpunn__gguf_integer(part, "split.no", 0) : -1;
    if (own == number && gpunn__gguf_integer(part, "split.count", 1) == count) return GPUNN_OK;
    return gpunn__fail(a->reader.dev, GPUNN_ERR_FORMAT,
                       "'%s' is not part %lld of the %lld parts of '%s', as its name says; download it again",
                       gpunn__tail(part->path), (long long)number + 1, (long long)count, gpunn__tail(path));
}

/* llama.cpp splits a model over files NAME-00001-of-00003.gguf. The archive is the first of `count`, with the
 * metadata. It becomes one of all parts. */
static GPUNN__STATUS gpunn__parts_open(gpunn__archive *a, const gpunn_io *io, int64_t count)
{
    gpunn_device *dev = a->reader.dev;
    const char   *path = gpunn__tail(a->reader.path), *name = gpunn__file_name(a->reader.path);
    const int64_t tensors = gpunn__gguf_integer(a, "split.tensors.count", -1);
    char          end[40];
    const int     length = snprintf(end, sizeof end, "00001-of-%05lld.gguf", (long long)count);
    const size_t  before = strlen(name) < (size_t)length ? 0 : strlen(name) - (size_t)length;
    gpunn_status  status = GPUNN_OK;
    if (gpunn__gguf_integer(a, "split.no", 0) != 0)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "'%s' is a later one of the %lld parts of a model; load its first part", path,
                           (long long)count);
    if (before > 400 || strcmp(name + before, end) != 0)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "'%s' is the first of %lld parts, but its name does not end in %s, by which the "
                           "others are found; rename it",
                           path, (long long)count, end);
    gpunn__reader_close(&a->reader);
    a->tensors.count = 0;
    for (int64_t i = 0; i < count && status == GPUNN_OK; i++)
        status = gpunn__part_open(a, io, (int)before, i, count);
    if (status == GPUNN_OK) status = gpunn__check_shards(a);
    if (status != GPUNN_OK || tensors < 0 || tensors == a->tensors.count) return status;
    return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                       "'%s' says that its parts have %lld tensors, but they have %d; download them again",
                       path, (long long)tensors, a->tensors.count);
}
#endif

GPUNN__INTERNAL GPUNN__STATUS gpunn__archive_open(gpunn_device *dev, const gpunn_io *io, const char *path,
                                                  gpunn__archive *a)
{
    size_t       length = path ? strlen(path) : 0;
    gpunn_status status;
    memset(a, 0, sizeof *a);
    a->reader.dev = dev;
    a->reader.path = path;
    a->reader.fd = -1;
    if (length > 5 && strcmp(path + length - 5, ".json") == 0) {
        gpunn__document document;
        status = gpunn__document_read(dev, io, path, &document);
        if (status == GPUNN_OK) status = gpunn__shards_open(a, io, &document);
        gpunn__document_free(dev, &document);
    } else {
        status = gpunn__reader_open(dev, io, path, false, &a->reader);
        if (status == GPUNN_OK) status = gpunn__archive_header(a);
#ifndef GPUNN_NO_GGUF
        const int64_t parts = status == GPUNN_OK && a->gguf ? gpunn__gguf_integer(a, "split.count", 1) : 1;
        if (parts > 1) status = gpunn__parts_open(a, io, parts);
#endif
    }
    if (status != GPUNN_OK) gpunn__archive_close(a);
    return status;
}

/* ---- renaming ------------------------------------------------------------------------------------------ */

enum { GPUNN__STARS = 8 };

static int gpunn__count_stars(const char *pattern)
{
    int stars = 0;
    for (; *pattern; pattern++) stars += *pattern == '*';
    return stars;
}

/* Whether the pattern matches the name. star receives what each * stands for. */
static bool gpunn__pattern_fits(const char *pattern, const gpunn__slice *name,
                                gpunn__slice star[GPUNN__STARS])
{
    /* behind: after the last star of the pattern */
    const char   *at = name->at, *end = name->at + name->length, *behind = NULL;
    gpunn__slice *last = NULL;
    for (;;) {
        if (*pattern == '*') {
            last = last ? last + 1 : star;
            last->at = (char *)gpunn__unconst(at);
            last->length = 0;
            behind = ++pattern;
        } else if (at < end && *pattern && *pattern == *at)
            pattern++, at++;
        else if (at == end && *pattern == 0)
            return true;
        else if (last && last->at + last->length < end) { /* it matches one more character */
            at = last->at + ++last->length;
            pattern = behind;
        } else
            return false;
    }
}

/* Substitutes the stars in `to` and writes the new name to out, unless out is NULL. Returns its length. */
static size_t gpunn__pattern_fill(const char *to, const gpunn__slice *star, char *out)
{
    size_t length = 0;
    for (; *to; to++) {
        gpunn__slice        letter = {(char *)gpunn__unconst(to), 1};
        const gpunn__slice *part = *to == '*' ? star++ : &letter;
        if (out) memcpy(out + length, part->at, part->length);
        length += part->length;
    }
    return length;
}

static GPUNN__STATUS gpunn__check_map(gpunn_device *dev, const gpunn_rename *map)
{
    for (; map->from; map++) {
        int stars = gpunn__count_stars(map->from);
        if (map->to == NULL || stars > GPUNN__STARS || gpunn__count_stars(map->to) > stars)
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                               "gpunn_load: .map has the pair '%.120s', '%.120s'; the first may have up to 8 "
                               "*, and the second no more than the first",
                               map->from, map->to ? map->to : "NULL");
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__archive_rename(gpunn__archive *a, const gpunn_rename *map)
{
    gpunn_device *dev = a->reader.dev;
    gpunn__slice  star[GPUNN__STARS];
    char          shown[128];
    gpunn_status  status = gpunn__check_map(dev, map);
    if (status != GPUNN_OK) return status;
    for (int pass = 0; pass < 2; pass++) {
        size_t used = 0;
        for (int i = 0; i < a->tensors.count; i++) {
            gpunn__slice       *name = &a->tensors.items[i].name;
            const gpunn_rename *rule = map;
            while (rule->from && !gpunn__pattern_fits(rule->from, name, star)) rule++;
            if (rule->from == NULL) continue;
            char  *to = pass ? a->names + used : NULL;
            size_t length = gpunn__pattern_fill(rule->to, star, to);
            used += length + 1;
            if (to == NULL) continue;
            to[length] = 0;
            name->at = to;
            name->length = length;
        }
        if (used == 0) return GPUNN_OK;
        if (pass == 0 && (a->names = (char *)gpunn__realloc(dev, NULL, 0, used)) == NULL)
            return GPUNN_ERR_MEMORY;
        a->names_bytes = used;
    }
    const gpunn__entry *twice = gpunn__table_sort_names(&a->tensors);
    return twice
               ? gpunn__fail(
                     dev, GPUNN_ERR_ARGUMENT,
                     "gpunn_load: .map gives two tensors of '%s' the name '%s'; choose another name for one",
                     gpunn__tail(a->reader.path), gpunn__printable(&twice->name, shown))
               : GPUNN_OK;
}

/* Skips bytes of an uncompressed file. */
static GPUNN__STATUS gpunn__reader_skip(gpunn__reader *r, uint64_t bytes)
{
    gpunn_status status = GPUNN_OK;
    size_t       have = r->end - r->at, known = bytes < have ? (size_t)bytes : have;
    r->at += known;
    bytes -= known;
    if (bytes > 0 && r->fd >= 0 && gpunn__seek(r->fd, (int64_t)bytes)) return GPUNN_OK;
    while (bytes > 0 && status == GPUNN_OK) {
        unsigned char skipped[16384];
        size_t        part = bytes < sizeof skipped ? (size_t)bytes : sizeof skipped;
        status = gpunn__reader_read(r, skipped, part);
        bytes -= part;
    }
    return status;
}

/* Reads the next count elements of a tensor to `to`, as item->as: the encoding's dtype, a float type or
 * blocks. Of blocks, count and the piece are whole ones. */
static GPUNN__STATUS gpunn__read_as(gpunn__reader *r, const gpunn__entry *item, size_t count, void *to)
{
    float      piece[2048];
    const bool half = item->as == GPUNN_F16 || item->as == GPUNN_BF16, blocks = gpunn__is_blocks(item->as);
    const bool same = item->encoding->id == (item->as == GPUNN_F16 ? GPUNN__F16 : GPUNN__BF16);
    char      *at = (char *)to;
    if (blocks && gpunn__blocks_of(item->encoding) == item->as)
        return gpunn__reader_read(r, to, gpunn__block_bytes(item->as, (int64_t)count));
    if (!half && !blocks) return gpunn__read_elements(r, item->encoding, item->as, false, count, to);
    if (same && half) return gpunn__reader_read(r, to, count * 2);
    for (size_t part; count > 0; count -= part, at += gpunn__block_bytes(item->as, (int64_t)part)) {
        part = count < sizeof piece / sizeof *piece ? count : sizeof piece / sizeof *piece;
        gpunn_status status = gpunn__read_elements(r, item->encoding, GPUNN_F32, false, part, piece);
        if (status != GPUNN_OK) return status;
        gpunn__convert_values(item->as, piece, at, (int64_t)part);
    }
    return GPUNN_OK;
}

/* Reads count elements of a tensor into device memory, through a chunk of host memory. */
static GPUNN__STATUS gpunn__read_upload(gpunn__reader *r, const gpunn__entry *item, size_t count, void *chunk)
{
    const size_t  size = gpunn__is_blocks(item->as) ? sizeof(float) : gpunn_dtype_size(item->as);
    char         *to = (char *)item->to;
    gpunn_device *dev = r->dev;
    gpunn_status  status = GPUNN_OK;
    for (size_t part, bytes; count > 0 && status == GPUNN_OK; count -= part, to += bytes) {
        part = count < GPUNN__CHUNK / size ? count : GPUNN__CHUNK / size;
        bytes = gpunn__block_bytes(item->as, (int64_t)part);
        status = gpunn__read_as(r, item, part, chunk);
        if (status != GPUNN_OK) return status;
        status = dev->backend->upload(dev->context, to, chunk, bytes);
        if (status != GPUNN_OK) status = gpunn__backend_fail(dev, "loading weights", status);
    }
    return status;
}

/* Whether a tensor is converted to floats from a type that is unusual for weights: F8, integers or BOOL. */
static bool gpunn__is_converted(const gpunn__entry *item)
{
    if (item->to == NULL || item->rounded) return false;
    return item->encoding->dtype == GPUNN_F32 ? item->encoding->bytes == 1
                                              : item->as != item->encoding->dtype;
}

/* Emits one warning for all converted tensors of a file. The table must be sorted by offset. */
static void gpunn__log_conversions(const gpunn__archive *a)
{
    const gpunn__entry *first = NULL;
    char                text[GPUNN__ERROR_SIZE], shown[128];
    int                 count = 0;
    for (int i = a->tensors.count - 1; i >= 0; i--) {
        if (!gpunn__is_converted(&a->tensors.items[i])) continue;
        first = &a->tensors.items[i];
        count++;
    }
    if (first == NULL) return;
    (void)snprintf(text, sizeof text,
                   "'%s': %d tensor%s became floats without a scale; the first is '%s' of type %s",
                   gpunn__tail(a->reader.path), count, count == 1 ? "" : "s",
                   gpunn__printable(&first->name, shown), first->encoding->safetensors);
    gpunn__warn(a->reader.dev, text);
}

/* Moves the reader to a place behind the header. */
static GPUNN__STATUS gpunn__archive_go(gpunn__archive *a, uint64_t to)
{
    const uint64_t bytes = to - a->at;
    a->at = to;
    return gpunn__reader_skip(&a->reader, bytes);
}

/* Reads a tensor to its destination. */
static GPUNN__STATUS gpunn__read_tensor(const gpunn__entry *item, void *chunk)
{
    const gpunn__encoding *encoding = item->encoding;
    const size_t           count = (size_t)(item->end - item->begin) / encoding->bytes *
                         gpunn__encoding_length(encoding);
    gpunn__reader *r = &item->file->reader;
    gpunn_status   status = gpunn__archive_go(item->file, item->begin);
    if (status == GPUNN_OK)
        status = chunk ? gpunn__read_upload(r, item, count, chunk) : gpunn__read_as(r, item, count, item->to);
    item->file->at = item->end;
    return status;
}

/* Checks that a file ends where its header says. */
static GPUNN__STATUS gpunn__archive_end(gpunn__archive *a)
{
    gpunn_status status = gpunn__archive_go(a, a->bytes);
    return status == GPUNN_OK ? gpunn__reader_end(&a->reader) : status;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__archive_read(gpunn__archive *a, void *chunk)
{
    gpunn_status status = GPUNN_OK;
    gpunn__sort_by_offset(&a->tensors);
    for (int i = 0; i < a->tensors.count && status == GPUNN_OK; i++) {
        const gpunn__entry *item = &a->tensors.items[i];
        if (item->to) status = gpunn__read_tensor(item, chunk);
    }
    for (int i = 0; i < a->shard_count && status == GPUNN_OK; i++) status = gpunn__archive_end(a->shards[i]);
    if (status == GPUNN_OK && a->shard_count == 0) status = gpunn__archive_end(a);
    if (status == GPUNN_OK) gpunn__log_conversions(a);
    return status;
}
