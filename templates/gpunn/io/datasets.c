#include "base/errors.h"
#include "base/memory.h"
#include "graph/expr.h"
#include "io/save.h"

/* ==== >>io/datasets ===================================================================================== */
/* Reads and writes arrays: IDX (MNIST), .npy, CIFAR and safetensors files. */

GPUNN_API void gpunn_array_free(gpunn_device *dev, gpunn_array *array)
{
    if (dev == NULL || array == NULL) return;
    gpunn__free(dev, array->data, array->bytes);
    memset(array, 0, sizeof *array);
}

#ifndef GPUNN_NO_LOADERS
/* Argument checks that all readers share. Afterwards out is empty. */
static GPUNN__STATUS gpunn__array_begin(gpunn_device *dev, const char *function, bool arguments,
                                        gpunn_array *out)
{
    if (dev == NULL) return gpunn__fail_null(NULL, function, "device");
    if (out == NULL || !arguments)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: an argument is NULL", function);
    memset(out, 0, sizeof *out);
    return GPUNN_OK;
}

/* Allocates out for the sizes that a header claims, with its dtype or, if it has none, the encoding's. Fails
 * if the file cannot hold that many elements. */
static GPUNN__STATUS gpunn__array_alloc(const gpunn__reader *r, const gpunn__encoding *encoding, int rank,
                                        const int64_t *dim, gpunn_array *out)
{
    gpunn_device *dev = r->dev;
    const char   *path = gpunn__tail(r->path);
    size_t        count = 1, bytes = 0;
    bool          fits = true;
    for (int i = 0; i < rank; i++) {
        if (dim[i] < 1)
            return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                               "'%s' holds no elements: dimension %d is %lld; there is nothing to read", path,
                               i, (long long)dim[i]);
        fits = fits && (uint64_t)dim[i] <= SIZE_MAX && gpunn__mul(count, (size_t)dim[i], &count);
    }
    fits = fits && gpunn__mul(count / gpunn__encoding_length(encoding), encoding->bytes, &bytes);
    if (!fits || bytes > r->limit)
        return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                           "'%s' is damaged or cut short: its header promises more elements than the file "
                           "can hold; download it again",
                           path);
    if (out->dtype == GPUNN_DTYPE_DEFAULT) out->dtype = encoding->dtype;
    if (!gpunn__mul(count, gpunn_dtype_size(out->dtype), &bytes))
        return gpunn__fail(dev, GPUNN_ERR_MEMORY, "'%s' is too large", path);
    out->data = gpunn__realloc(dev, NULL, 0, bytes);
    if (out->data == NULL) return GPUNN_ERR_MEMORY;
    out->bytes = bytes;
    out->rank = rank;
    for (int i = 0; i < rank; i++) out->dim[i] = dim[i];
    return GPUNN_OK;
}

static size_t gpunn__array_count(const gpunn_array *array)
{
    return array->bytes / gpunn_dtype_size(array->dtype);
}

/* IDX: bytes 0, 0, type, rank, then rank dimensions and the elements, all big-endian
 * (yann.lecun.com/exdb/mnist). */
static GPUNN__STATUS gpunn__idx_body(gpunn__reader *r, gpunn_array *out)
{
    unsigned char          head[4], raw[4 * GPUNN_MAX_RANK];
    int64_t                dim[GPUNN_MAX_RANK];
    const gpunn__encoding *encoding = NULL;
    gpunn_status           status = gpunn__reader_read(r, head, sizeof head);
    if (status != GPUNN_OK) return status;
    for (int i = 0; i < GPUNN__ENCODING_COUNT; i++)
        if (gpunn__encodings[i].idx && gpunn__encodings[i].idx == head[2]) encoding = &gpunn__encodings[i];
    int rank = head[3];
    if (head[0] || head[1] || encoding == NULL || rank < 1 || rank > GPUNN_MAX_RANK)
        return gpunn__fail(
            r->dev, GPUNN_ERR_FORMAT,
            "'%s' is not an IDX file: it begins with %02x %02x %02x %02x, not with 00 00, a type and a rank",
            gpunn__tail(r->path), head[0], head[1], head[2], head[3]);
    status = gpunn__reader_read(r, raw, 4 * (size_t)rank);
    if (status != GPUNN_OK) return status;
    for (int i = 0; i < rank; i++) {
        const unsigned char *b = raw + 4 * i;
        dim[i] = (int64_t)((uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3]);
    }
    status = gpunn__array_alloc(r, encoding, rank, dim, out);
    return status == GPUNN_OK
               ? gpunn__read_elements(r, encoding, out->dtype, true, gpunn__array_count(out), out->data)
               : status;
}

/* Makes `dtype` that of the empty array: F32, F64, or 0 for the file's. */
static GPUNN__STATUS gpunn__array_begin_as(gpunn_device *dev, const char *function, bool arguments,
                                           gpunn_dtype dtype, gpunn_array *out)
{
    gpunn_status status = gpunn__array_begin(dev, function, arguments, out);
    if (status != GPUNN_OK) return status;
    if (dtype != GPUNN_DTYPE_DEFAULT && dtype != GPUNN_F32 && dtype != GPUNN_F64)
        return gpunn__fail(dev, GPUNN_ERR_DTYPE,
                           "%s: files are read as f32 or f64, not as %s; pass one of them", function,
                           gpunn_dtype_name(dtype));
    out->dtype = dtype;
    return GPUNN_OK;
}

/* Opens a file and calls body to read it into out, as `dtype` or, if that is 0, as the file's. After a
 * failure out is empty. */
static GPUNN__STATUS gpunn__array_read(gpunn_device *dev, const char *function, const char *path,
                                       gpunn_dtype dtype,
                                       gpunn_status (*body)(gpunn__reader *r, gpunn_array *out),
                                       gpunn_array *out)
{
    gpunn__reader r;
    gpunn_status  status = gpunn__array_begin_as(dev, function, path != NULL, dtype, out);
    if (status == GPUNN_OK) status = gpunn__reader_open(dev, NULL, path, true, &r);
    if (status != GPUNN_OK) return status;
    status = body(&r, out);
    if (status == GPUNN_OK) status = gpunn__reader_end(&r);
    gpunn__reader_close(&r);
    if (status != GPUNN_OK) gpunn_array_free(dev, out);
    return status;
}

GPUNN_API gpunn_status gpunn_read_idx(gpunn_device *dev, const char *path, gpunn_array *out)
{
    return gpunn__array_read(dev, "gpunn_read_idx", path, GPUNN_DTYPE_DEFAULT, gpunn__idx_body, out);
}

/* Parses {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } with the keys in any order. */
static bool gpunn__npy_header(gpunn__json *j, gpunn__slice *type, bool *fortran, int *rank, int64_t *dim)
{
    int types = 0, orders = 0, shapes = 0;
    if (!gpunn__json_expect(j, '{', "is not a dictionary")) return false;
    while (!gpunn__json_peek(j, '}')) {
        gpunn__slice key;
        if (!gpunn__json_string(j, &key) || !gpunn__json_expect(j, ':', "lacks a colon")) return false;
        if (gpunn__slice_is(&key, "descr") && !types++) {
            if (gpunn__json_peek(j, '['))
                return gpunn__json_fail(j, "has records, which a gpunn_array cannot hold");
            if (!gpunn__json_string(j, type)) return false;
        } else if (gpunn__slice_is(&key, "fortran_order") && !orders++) {
            *fortran = gpunn__json_peek(j, 'T');
            const char *word = *fortran ? "True" : "False";
            if ((size_t)(j->end - j->at) < strlen(word) || memcmp(j->at, word, strlen(word)) != 0)
                return gpunn__json_fail(j, "lacks True or False after fortran_order");
            j->at += strlen(word);
        } else if (gpunn__slice_is(&key, "shape") && !shapes++) {
            if (!gpunn__json_expect(j, '(', "lacks a shape")) return false;
            while (!gpunn__json_peek(j, ')')) {
                if (*rank == GPUNN_MAX_RANK) return gpunn__json_fail(j, "has more than 8 dimensions");
                if (!gpunn__json_integer(j, &dim[(*rank)++])) return false;
                (void)gpunn__json_take(j, 'L'); /* written by Python 2 */
                if (!gpunn__json_take(j, ',') && !gpunn__json_peek(j, ')'))
                    return gpunn__json_fail(j, "has an unterminated shape");
            }
            j->at++;
        } else
            return gpunn__json_fail(
                j, "has a key other than descr, fortran_order and shape, or one of them twice");
        if (!gpunn__json_take(j, ',') && !gpunn__json_peek(j, '}')) return gpunn__json_fail(j, "has no end");
    }
    j->at++;
    (void)gpunn__json_peek(j, 0);
    if (j->at != j->end) return gpunn__json_fail(j, "has text after its end");
    return (types && orders && shapes) || gpunn__json_fail(j, "lacks descr, fortran_order or shape");
}

/* Reads elements whose first dimension varies fastest in the file, and stores them in row-major order. */
static GPUNN__STATUS gpunn__npy_fortran(gpunn__reader *r, const gpunn__encoding *encoding, bool swapped,
                                        gpunn_array *out)
{
    unsigned char chunk[8192];
    size_t        wide = gpunn_dtype_size(out->dtype), left = gpunn__array_count(out), stride[GPUNN_MAX_RANK],
           at = 0;
    int64_t index[GPUNN_MAX_RANK] = {0};
    for (int i = out->rank - 1; i >= 0; i--)
        stride[i] = i == out->rank - 1 ? 1 : stride[i + 1] * (size_t)out->dim[i + 1];
    while (left > 0) {
        size_t       part = left < sizeof chunk / wide ? left : sizeof chunk / wide;
        gpunn_status status = gpunn__read_elements(r, encoding, out->dtype, swapped, part, chunk);
        if (status != GPUNN_OK) return status;
        for (size_t k = 0; k < part; k++) {
            memcpy((char *)out->data + at * wide, chunk + k * wide, wide);
            for (int i = 0; i < out->rank; i++) {
                at += stride[i];
                if (++index[i] < out->dim[i]) break;
                at -= stride[i] * (size_t)out->dim[i];
                index[i] = 0;
            }
        }
        left -= part;
    }
    return GPUNN_OK;
}

/* .npy: "\x93NUMPY", version, length of the header (2 bytes, from version 2 on 4), the header
 * (numpy.lib.format). */
static GPUNN__STATUS gpunn__npy_body(gpunn__reader *r, gpunn_array *out)
{
    char          header[16384], shown[128];
    unsigned char head[12] = {0};
    const char   *path = gpunn__tail(r->path);
    gpunn_status  status = gpunn__reader_read(r, head, 10);
    if (status == GPUNN_OK && memcmp(head, "\x93NUMPY", 6) == 0 && head[6] > 1)
        status = gpunn__reader_read(r, head + 10, 2);
    if (status != GPUNN_OK) return status;
    uint32_t length = (uint32_t)head[8] | (uint32_t)head[9] << 8 | (uint32_t)head[10] << 16 |
                      (uint32_t)head[11] << 24;
    if (memcmp(head, "\x93NUMPY", 6) != 0 || head[6] < 1 || head[6] > 3 || length > sizeof header)
        return gpunn__fail(r->dev, GPUNN_ERR_FORMAT,
                           "'%s' is not a .npy file of version 1 to 3; write it with numpy.save", path);
    status = gpunn__reader_read(r, header, length);
    if (status != GPUNN_OK) return status;

    gpunn__json  json = gpunn__json_of(header, length, true);
    gpunn__slice type = {header, 0};
    int64_t      dim[GPUNN_MAX_RANK];
    int          rank = 0;
    bool         fortran = false;
    if (!gpunn__npy_header(&json, &type, &fortran, &rank, dim))
        return gpunn__fail(r->dev, GPUNN_ERR_FORMAT,
                           "'%s' is damaged: its header %s; write it again with numpy.save", path,
                           json.problem);
    const gpunn__encoding *encoding = NULL;
    for (int i = 0; i < GPUNN__ENCODING_COUNT; i++) {
        const gpunn__encoding *e = &gpunn__encodings[i];
        if (e->dtype && *e->npy && type.length == 3 && memcmp(type.at + 1, e->npy, 2) == 0) encoding = e;
    }
    if (encoding == NULL || strchr("<>=|", *type.at) == NULL)
        return gpunn__fail(r->dev, GPUNN_ERR_UNSUPPORTED,
                           "'%s' has elements of type '%s'; convert it in Python: x.astype('f4')", path,
                           gpunn__printable(&type, shown));
    status = gpunn__array_alloc(r, encoding, rank, dim, out);
    if (status != GPUNN_OK) return status;
    bool swapped = *type.at == '>';
    return fortran
               ? gpunn__npy_fortran(r, encoding, swapped, out)
               : gpunn__read_elements(r, encoding, out->dtype, swapped, gpunn__array_count(out), out->data);
}

GPUNN_API gpunn_status gpunn_read_npy(gpunn_device *dev, const char *path, gpunn_array *out)
{
    return gpunn__array_read(dev, "gpunn_read_npy", path, GPUNN_DTYPE_DEFAULT, gpunn__npy_body, out);
}

GPUNN_API gpunn_status gpunn_read_npy_as(gpunn_device *dev, const char *path, gpunn_dtype dtype,
                                         gpunn_array *out)
{
    return gpunn__array_read(dev, "gpunn_read_npy_as", path, dtype, gpunn__npy_body, out);
}

GPUNN_API gpunn_status gpunn_write_npy(gpunn_device *dev, const char *path, const gpunn_array *array)
{
    static const char        function[] = "gpunn_write_npy";
    static const char *const names[] = {"",
#define GPUNN__X(id, text, file_name, bytes) file_name,
                                        GPUNN_DTYPE_LIST(GPUNN__X)
#undef GPUNN__X
    };
    if (dev == NULL || array == NULL || array->data == NULL)
        return gpunn__fail_null(dev, function, dev == NULL ? "device" : "array or its data");
    const char *type = "";
    size_t      bytes = gpunn_dtype_size(array->dtype);
    for (int i = 0; i < GPUNN__ENCODING_COUNT && bytes; i++)
        if (strcmp(gpunn__encodings[i].safetensors, names[array->dtype]) == 0) type = gpunn__encodings[i].npy;
    if (*type == 0)
        return gpunn__fail(dev, GPUNN_ERR_DTYPE,
                           "%s: .npy files have no type for dtype %d; convert the array", function,
                           (int)array->dtype);
    if (array->rank < 0 || array->rank > GPUNN_MAX_RANK)
        return gpunn__fail(dev, GPUNN_ERR_SHAPE, "%s: the rank is %d; it must be 0 to 8", function,
                           array->rank);
    /* 10 bytes, then the header, with up to 8 dimensions of up to 20 characters */
    char text[320] = "\x93NUMPY\1";
    int  available = (int)sizeof text,
        used = 10 + snprintf(text + 10, sizeof text - 10,
                             "{'descr': '%c%s', 'fortran_order': False, 'shape': (", bytes > 1 ? '<' : '|',
                             type);
    bool fits = true;
    for (int i = 0; i < array->rank; i++) {
        fits = fits && array->dim[i] > 0 && (uint64_t)array->dim[i] <= SIZE_MAX &&
               gpunn__mul(bytes, (size_t)array->dim[i], &bytes);
        used += snprintf(text + used, (size_t)(available - used), "%lld%s", (long long)array->dim[i],
                         i + 1 < array->rank || i == 0 ? ", " : "");
    }
    if (!fits || bytes != array->bytes)
        return gpunn__fail(dev, GPUNN_ERR_SHAPE,
                           "%s: bytes is %zu, which does not match dtype %s and the dimensions; correct it",
                           function, array->bytes, gpunn_dtype_name(array->dtype));
    used += snprintf(text + used, (size_t)(available - used), "), }");
    /* the elements begin at a multiple of 64, after spaces and a newline */
    int end = (used + 1 + 63) / 64 * 64;
    memset(text + used, ' ', (size_t)(end - used));
    text[end - 1] = '\n';
    text[8] = (char)((end - 10) & 255);
    text[9] = (char)((end - 10) >> 8);
    gpunn__file  file;
    gpunn_status status = gpunn__file_open(dev, path, &file);
    if (status != GPUNN_OK) return status;
    (void)gpunn__file_write(&file, text, (size_t)end);
    (void)gpunn__file_write(&file, array->data, bytes);
    return gpunn__file_commit(&file);
}

/* Grows an array of n items, `item` bytes each, so that one more fits. */
static GPUNN__STATUS gpunn__array_grow(gpunn_device *dev, gpunn_array *array, size_t n, size_t item)
{
    size_t wanted = n ? 2 * n : 1024, bytes;
    if ((n + 1) * item <= array->bytes) return GPUNN_OK;
    if (!gpunn__mul(wanted, item, &bytes))
        return gpunn__fail(dev, GPUNN_ERR_MEMORY, "gpunn_read_cifar: the files are too large");
    void *data = gpunn__realloc(dev, array->data, array->bytes, bytes);
    if (data == NULL) return GPUNN_ERR_MEMORY;
    array->data = data;
    array->bytes = bytes;
    return GPUNN_OK;
}

/* Appends the records of one CIFAR file. A record is, for 100 classes, a coarse label, which is skipped; a
 * label; 3072 bytes of image. */
static GPUNN__STATUS gpunn__cifar_file(gpunn_device *dev, const char *path, int classes, gpunn_array *images,
                                       gpunn_array *labels, size_t *n)
{
    enum { IMAGE = 3 * 32 * 32 };
    unsigned char record[IMAGE + 2];
    size_t labels_bytes = classes == 100 ? 2 : 1, record_bytes = IMAGE + labels_bytes, got = 0, first = *n;
    gpunn__reader r;
    gpunn_status  status = gpunn__reader_open(dev, NULL, path, true, &r);
    if (status != GPUNN_OK) return status;
    for (;;) {
        status = gpunn__reader_some(&r, record, record_bytes, &got);
        if (status != GPUNN_OK || got == 0) break;
        int label = record[labels_bytes - 1];
        if (got < record_bytes)
            status = gpunn__fail(dev, GPUNN_ERR_FORMAT,
                                 "'%s' is cut short or does not have %d classes: its size is not a multiple "
                                 "of %zu; download it again",
                                 gpunn__tail(path), classes, record_bytes);
        else if (label >= classes)
            status = gpunn__fail(
                dev, GPUNN_ERR_FORMAT,
                "'%s' is damaged or does not have %d classes: image %zu has the label %d; download it again",
                gpunn__tail(path), classes, *n - first, label);
        if (status != GPUNN_OK) break;
        status = gpunn__array_grow(dev, images, *n, IMAGE);
        if (status == GPUNN_OK) status = gpunn__array_grow(dev, labels, *n, 1);
        if (status != GPUNN_OK) break;
        memcpy((char *)images->data + *n * IMAGE, record + labels_bytes, IMAGE);
        ((unsigned char *)labels->data)[(*n)++] = (unsigned char)label;
    }
    gpunn__reader_close(&r);
    if (status == GPUNN_OK && *n == first)
        status = gpunn__fail(dev, GPUNN_ERR_FORMAT, "'%s' is empty; download it again", gpunn__tail(path));
    return status;
}

GPUNN_API gpunn_status gpunn_read_cifar(gpunn_device *dev, const char *const *paths, int path_count,
                                        int classes, gpunn_array *images, gpunn_array *labels)
{
    static const char function[] = "gpunn_read_cifar";
    gpunn_status      status = gpunn__array_begin(dev, function, paths != NULL && labels != NULL, images);
    if (status != GPUNN_OK) return status;
    memset(labels, 0, sizeof *labels);
    if (path_count < 1 || (classes != 10 && classes != 100))
        return gpunn__fail(
            dev, GPUNN_ERR_ARGUMENT,
            "%s: path_count is %d and classes %d; give at least one path, and 10 or 100 classes", function,
            path_count, classes);
    size_t n = 0;
    for (int i = 0; i < path_count && status == GPUNN_OK; i++)
        status = gpunn__cifar_file(dev, paths[i], classes, images, labels, &n);
    gpunn_array *arrays[2] = {images, labels};
    for (int i = 0; i < 2 && status == GPUNN_OK; i++) { /* shrink the memory to the final size */
        static const int64_t dim[4] = {0, 3, 32, 32};
        gpunn_array         *a = arrays[i];
        size_t               bytes = n * (i ? 1 : 3 * 32 * 32);
        void                *data = gpunn__realloc(dev, a->data, a->bytes, bytes);
        if (data == NULL) {
            status = GPUNN_ERR_MEMORY;
            break;
        }
        a->data = data;
        a->bytes = bytes;
        a->dtype = GPUNN_U8;
        a->rank = i ? 1 : 4;
        memcpy(a->dim, dim, sizeof dim);
        a->dim[0] = (int64_t)n;
        if (i) a->dim[1] = a->dim[2] = a->dim[3] = 0;
    }
    if (status != GPUNN_OK) {
        gpunn_array_free(dev, images);
        gpunn_array_free(dev, labels);
    }
    return status;
}

/* ---- safetensors files of arrays ----------------------------------------------------------------------- */

/* The first names of a file's tensors, for a message. */
static const char *gpunn__names_held(const gpunn__table *tensors, char text[440])
{
    char shown[128];
    int  used = snprintf(text, 440, "%s", tensors->count ? "" : "none"), i = 0;
    for (; i < tensors->count && i < 3; i++)
        used += snprintf(text + used, 440 - (size_t)used, "%s'%s'", i ? ", " : "",
                         gpunn__printable(&tensors->items[i].name, shown));
    if (i < tensors->count)
        (void)snprintf(text + used, 440 - (size_t)used, " and %d more", tensors->count - i);
    return text;
}

static GPUNN__STATUS gpunn__safetensors_read(gpunn_device *dev, const char *function, const char *path,
                                             const char *name, gpunn_dtype dtype, gpunn_array *out)
{
    gpunn__archive archive;
    gpunn_status   status = gpunn__array_begin_as(dev, function, path != NULL, dtype, out);
    if (status == GPUNN_OK) status = gpunn__archive_open(dev, NULL, path, &archive);
    if (status != GPUNN_OK) return status;
    char          shown[128], held[440];
    gpunn__entry *item = name                         ? gpunn__table_find(&archive.tensors, "", name)
                         : archive.tensors.count == 1 ? archive.tensors.items
                                                      : NULL;
    gpunn__expr_quote(shown, sizeof shown, name ? name : "", SIZE_MAX);
    if (item == NULL)
        status = name ? gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                                    "%s: '%s' holds no tensor '%s'; the names in it: %s", function,
                                    gpunn__tail(path), shown, gpunn__names_held(&archive.tensors, held))
                      : gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: '%s' holds %d tensors; name one of %s",
                                    function, gpunn__tail(path), archive.tensors.count,
                                    gpunn__names_held(&archive.tensors, held));
    else if (item->encoding == NULL || item->encoding->dtype == GPUNN_DTYPE_DEFAULT ||
             item->rank > GPUNN_MAX_RANK)
        status = gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                             "%s: in '%s' the tensor '%s' has type %s and rank %d; convert it to F32 or I64 "
                             "with a rank of at most 8",
                             function, gpunn__tail(path), gpunn__printable(&item->name, shown),
                             item->encoding ? item->encoding->safetensors : "unknown here", item->rank);
    if (status == GPUNN_OK)
        status = gpunn__array_alloc(&item->file->reader, item->encoding, item->rank, item->dim, out);
    if (status == GPUNN_OK) {
        item->to = out->data;
        item->as = out->dtype;
        status = gpunn__archive_read(&archive, NULL);
    }
    gpunn__archive_close(&archive);
    if (status != GPUNN_OK) gpunn_array_free(dev, out);
    return status;
}

GPUNN_API gpunn_status gpunn_read_safetensors(gpunn_device *dev, const char *path, const char *name,
                                              gpunn_array *out)
{
    return gpunn__safetensors_read(dev, "gpunn_read_safetensors", path, name, GPUNN_DTYPE_DEFAULT, out);
}

GPUNN_API gpunn_status gpunn_read_safetensors_as(gpunn_device *dev, const char *path, const char *name,
                                                 gpunn_dtype dtype, gpunn_array *out)
{
    return gpunn__safetensors_read(dev, "gpunn_read_safetensors_as", path, name, dtype, out);
}

typedef struct gpunn__named_arrays {
    const char *const *names;
    const gpunn_array *arrays;
    int                count;
} gpunn__named_arrays;

static void gpunn__emit_arrays(gpunn__writer *w, gpunn__pass pass, const void *what)
{
    const gpunn__named_arrays *all = (const gpunn__named_arrays *)what;
    gpunn__emit_begin(w, pass, NULL, 0);
    if (pass != GPUNN__TENSORS) gpunn__emit(w, "}", 1);
    for (int i = 0; i < all->count; i++) {
        const gpunn_array *array = &all->arrays[i];
        if (pass == GPUNN__TENSORS)
            (void)gpunn__file_write(w->file, array->data, array->bytes);
        else
            gpunn__emit_entry(w, "", all->names[i], array->dtype, array->rank, array->dim, array->bytes);
    }
    if (pass != GPUNN__TENSORS) gpunn__emit(w, "}", 1);
}

GPUNN_API gpunn_status gpunn_write_safetensors(gpunn_device *dev, const char *path, const char *const *names,
                                               const gpunn_array *arrays, int count)
{
    static const char function[] = "gpunn_write_safetensors";
    if (dev == NULL) return gpunn__fail_null(NULL, function, "device");
    if (count < 0 || (count > 0 && (names == NULL || arrays == NULL)))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: count is negative, or names or arrays is NULL",
                           function);
    for (int i = 0; i < count; i++) {
        const gpunn_array *array = &arrays[i];
        size_t             bytes = gpunn_dtype_size(array->dtype);
        bool sound = names[i] && *names[i] && strcmp(names[i], "__metadata__") != 0, fits = bytes > 0;
        for (int k = 0; k < i && sound; k++) sound = strcmp(names[k], names[i]) != 0;
        if (!sound)
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                               "%s: name %d is missing, \"__metadata__\" or a repetition; choose another",
                               function, i);
        for (int k = 0; k < array->rank && fits; k++)
            fits = array->dim[k] > 0 && (uint64_t)array->dim[k] <= SIZE_MAX &&
                   gpunn__mul(bytes, (size_t)array->dim[k], &bytes);
        if (!fits || array->rank < 0 || array->rank > GPUNN_MAX_RANK || bytes != array->bytes ||
            array->data == NULL)
            return gpunn__fail(dev, GPUNN_ERR_SHAPE,
                               "%s: '%.120s' has no data, or a dtype, rank, dimensions and bytes that do not "
                               "agree; correct it",
                               function, names[i]);
    }
    gpunn__named_arrays all = {names, arrays, count};
    return gpunn__archive_write(dev, path, NULL, gpunn__emit_arrays, &all);
}
#endif /* GPUNN_NO_LOADERS */
