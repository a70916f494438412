#include "base/errors.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/save.h"

/* ==== >>io/gguf ========================================================================================== *
 * GGUF is the file format of llama.cpp. All numbers are little-endian:
 *     "GGUF", version u32, number of tensors u64, number of values u64
 *     values:  key, type u32, value; an array is type u32, count u64, elements
 *     tensors: name, rank u32, dimensions u64 (the fastest first), type u32, offset u64
 *     padding to a multiple of general.alignment (default 32), data
 * A text is its length as u64 and its bytes. The header has no length of its own, so it is walked twice: the
 * first walk reads it into memory, the second builds the tables. */
enum { GPUNN__GGUF_BOOL = 7, GPUNN__GGUF_TEXT, GPUNN__GGUF_ARRAY, GPUNN__GGUF_TYPES = 13 };
enum { GPUNN__GGUF_DEPTH = 4 }; /* of arrays in arrays */

/* Bytes of a value by its type: u8 i8 u16 i16 u32 i32 f32 bool text array u64 i64 f64. */
static const unsigned char gpunn__gguf_sizes[GPUNN__GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

typedef struct gpunn__gguf {
    gpunn__archive *a;
    bool            second; /* the second walk */
    uint64_t        at;     /* bytes of the header so far, without the first 8 */
    const char     *kind;   /* "value" or "tensor" */
    char            name[128];
    gpunn_status    status;
} gpunn__gguf;

/* Records the first failure. Returns false. */
static bool gpunn__gguf_fail(gpunn__gguf *g, const char *problem)
{
    if (g->status == GPUNN_OK)
        g->status = gpunn__fail(g->a->reader.dev, GPUNN_ERR_FORMAT,
                                "'%s' is damaged or not a GGUF file: its %s '%s' %s (byte %llu); write or "
                                "download it again",
                                gpunn__tail(g->a->reader.path), g->kind, g->name, problem,
                                (unsigned long long)g->at + 8);
    return false;
}

/* Makes room for `bytes` bytes of the header. */
static bool gpunn__gguf_reserve(gpunn__gguf *g, uint64_t bytes)
{
    gpunn__archive *a = g->a;
    const uint64_t  wanted = bytes > 2 * (uint64_t)a->header_bytes ? bytes : 2 * (uint64_t)a->header_bytes;
    if (bytes <= a->header_bytes) return true;
    char *more = wanted <= SIZE_MAX
                     ? (char *)gpunn__realloc(a->reader.dev, a->header, a->header_bytes, (size_t)wanted)
                     : NULL;
    if (more == NULL) {
        g->status = GPUNN_ERR_MEMORY;
        return false;
    }
    a->header = more;
    a->header_bytes = (size_t)wanted;
    return true;
}

/* The next bytes of the header, or NULL. In the first walk they live until the next call. */
static char *gpunn__gguf_take(gpunn__gguf *g, uint64_t bytes)
{
    gpunn__reader *r = &g->a->reader;
    const uint64_t at = g->at;
    if (g->status != GPUNN_OK) return NULL;
    if (bytes > r->limit - 8 - at) {
        (void)gpunn__gguf_fail(g, "is beyond the end of the file");
        return NULL;
    }
    if (!g->second) {
        if (!gpunn__gguf_reserve(g, at + bytes + 1)) return NULL; /* never empty */
        g->status = gpunn__reader_read(r, g->a->header + at, (size_t)bytes);
        if (g->status != GPUNN_OK) return NULL;
    }
    g->at += bytes;
    return g->a->header + at;
}

/* A little-endian number of at most 8 bytes. */
static uint64_t gpunn__little(const char *from, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; from && i < bytes; i++) value |= (uint64_t)(unsigned char)from[i] << 8 * i;
    return value;
}

static bool gpunn__gguf_number(gpunn__gguf *g, size_t bytes, uint64_t *value)
{
    const char *from = gpunn__gguf_take(g, bytes);
    *value = gpunn__little(from, bytes);
    return from != NULL;
}

/* A text. In the second walk it moves over the last byte of its length, so that a 0 fits behind it. */
static bool gpunn__gguf_name(gpunn__gguf *g, const char *kind, gpunn__slice *name)
{
    uint64_t length;
    g->kind = kind;
    strcpy(g->name, "...");
    if (!gpunn__gguf_number(g, 8, &length) || (name->at = gpunn__gguf_take(g, length)) == NULL) return false;
    name->length = (size_t)length;
    (void)gpunn__printable(name, g->name);
    if (!g->second) return true;
    name->at = (char *)memmove(name->at - 1, name->at, name->length);
    name->at[name->length] = 0;
    return true;
}

static bool gpunn__gguf_value(gpunn__gguf *g, uint64_t type, int depth);

static bool gpunn__gguf_array(gpunn__gguf *g, int depth)
{
    uint64_t type, count;
    if (depth == GPUNN__GGUF_DEPTH) return gpunn__gguf_fail(g, "has arrays that are too deep in others");
    if (!gpunn__gguf_number(g, 4, &type) || !gpunn__gguf_number(g, 8, &count)) return false;
    const size_t size = type < GPUNN__GGUF_TYPES ? gpunn__gguf_sizes[type] : 0;
    if (size && count > g->a->reader.limit / size)
        return gpunn__gguf_fail(g, "has more elements than bytes follow");
    if (size) return gpunn__gguf_take(g, count * size) != NULL;
    bool good = true;
    for (uint64_t i = 0; i < count && good; i++) good = gpunn__gguf_value(g, type, depth + 1);
    return good;
}

/* Passes a value. */
static bool gpunn__gguf_value(gpunn__gguf *g, uint64_t type, int depth)
{
    uint64_t length;
    if (type >= GPUNN__GGUF_TYPES) return gpunn__gguf_fail(g, "has a type that no version knows");
    if (type == GPUNN__GGUF_ARRAY) return gpunn__gguf_array(g, depth);
    if (type != GPUNN__GGUF_TEXT) return gpunn__gguf_take(g, gpunn__gguf_sizes[type]) != NULL;
    return gpunn__gguf_number(g, 8, &length) && gpunn__gguf_take(g, length) != NULL;
}

/* The entry of a value or a tensor. Its text begins here. The first walk fills *unused. */
static gpunn__entry *gpunn__gguf_entry(gpunn__gguf *g, gpunn__table *table, const gpunn__slice *name,
                                       gpunn__entry *unused)
{
    gpunn__entry *item = g->second ? gpunn__table_add(g->a->reader.dev, table, name) : unused;
    if (item == NULL) g->status = GPUNN_ERR_MEMORY;
    return item;
}

static bool gpunn__gguf_pair(gpunn__gguf *g)
{
    gpunn__slice key;
    gpunn__entry unused;
    uint64_t     type;
    if (!gpunn__gguf_name(g, "value", &key) || !gpunn__gguf_number(g, 4, &type)) return false;
    const uint64_t begin = g->at;
    if (!gpunn__gguf_value(g, type, 0)) return false;
    gpunn__entry *item = gpunn__gguf_entry(g, &g->a->notes, &key, &unused);
    if (item == NULL) return false;
    item->type = (int)type;
    item->text.at = g->a->header + begin;
    item->text.length = (size_t)(g->at - begin);
    return true;
}

/* Reads the dimensions into item->dim, the slowest first. *elements is their product. */
static bool gpunn__gguf_shape(gpunn__gguf *g, gpunn__entry *item, size_t *elements)
{
    uint64_t rank, dim;
    *elements = 1;
    if (!gpunn__gguf_number(g, 4, &rank)) return false;
    if (rank > GPUNN_MAX_RANK) return gpunn__gguf_fail(g, "has more than 8 dimensions");
    item->rank = (int)rank;
    for (int i = item->rank - 1; i >= 0; i--) {
        if (!gpunn__gguf_number(g, 8, &dim)) return false;
        if (dim > INT64_MAX || dim > SIZE_MAX || !gpunn__mul(*elements, (size_t)dim, elements))
            return gpunn__gguf_fail(g, "has a shape that is too large");
        item->dim[i] = (int64_t)dim;
    }
    return true;
}

static const gpunn__encoding *gpunn__gguf_encoding(uint64_t type)
{
    for (int i = 0; i < GPUNN__ENCODING_COUNT; i++)
        if (gpunn__encodings[i].gguf >= 0 && (uint64_t)gpunn__encodings[i].gguf == type)
            return &gpunn__encodings[i];
    return NULL;
}

/* The name of a tensor's type. */
static gpunn__slice gpunn__gguf_type_name(int type)
{
    static const char *const names[] = {
        "F32",    "F16",   "Q4_0",  "Q4_1",   "",      "",      "Q5_0",    "Q5_1",   "Q8_0",    "Q8_1",
        "Q2_K",   "Q3_K",  "Q4_K",  "Q5_K",   "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
        "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",    "I16",   "I32",     "I64",    "F64",     "IQ1_M",
        "BF16",   "",      "",      "",       "TQ1_0", "TQ2_0", "",        "",       "",        "MXFP4"};
    const bool   known = type < (int)(sizeof names / sizeof names[0]) && *names[type];
    gpunn__slice name = {(char *)gpunn__unconst(known ? names[type] : "unknown here"), 0};
    name.length = strlen(name.at);
    return name;
}

/* Sets item->end to the bytes of a tensor; 0 for an unknown type. */
static bool gpunn__gguf_size(gpunn__gguf *g, gpunn__entry *item, size_t elements)
{
    size_t bytes = 0;
    if (item->encoding) {
        const int64_t length = (int64_t)gpunn__encoding_length(item->encoding);
        const int64_t row = item->rank ? item->dim[item->rank - 1] : 1;
        if (row % length) return gpunn__gguf_fail(g, "has rows that are no whole number of blocks");
        if (!gpunn__mul(elements / (size_t)length, item->encoding->bytes, &bytes))
            return gpunn__gguf_fail(g, "has a shape that is too large");
    }
    item->end = bytes;
    return true;
}

static bool gpunn__gguf_tensor(gpunn__gguf *g)
{
    gpunn__slice name;
    gpunn__entry unused;
    uint64_t     type;
    size_t       elements;
    if (!gpunn__gguf_name(g, "tensor", &name)) return false;
    gpunn__entry *item = gpunn__gguf_entry(g, &g->a->tensors, &name, &unused);
    if (item == NULL || !gpunn__gguf_shape(g, item, &elements) || !gpunn__gguf_number(g, 4, &type) ||
        !gpunn__gguf_number(g, 8, &item->begin))
        return false;
    if (type > INT32_MAX) return gpunn__gguf_fail(g, "has a type that no version knows");
    item->type = (int)type;
    item->text = gpunn__gguf_type_name(item->type);
    item->file = g->a;
    item->encoding = gpunn__gguf_encoding(type);
    return gpunn__gguf_size(g, item, elements);
}

/* Walks over the header. */
static bool gpunn__gguf_walk(gpunn__gguf *g, bool second)
{
    uint64_t tensors, values;
    bool     good = true;
    g->second = second;
    g->at = 0;
    g->kind = "part";
    strcpy(g->name, "header");
    if (!gpunn__gguf_number(g, 8, &tensors) || !gpunn__gguf_number(g, 8, &values)) return false;
    for (uint64_t i = 0; i < values && good; i++) good = gpunn__gguf_pair(g);
    for (uint64_t i = 0; i < tensors && good; i++) good = gpunn__gguf_tensor(g);
    return good;
}

GPUNN__INTERNAL int64_t gpunn__gguf_integer(const gpunn__archive *a, const char *key, int64_t none)
{
    static const unsigned char integer[GPUNN__GGUF_TYPES] = {1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0};
    const gpunn__entry        *note = gpunn__table_find(&a->notes, "", key);
    if (note == NULL || !integer[note->type]) return none;
    return (int64_t)gpunn__little(note->text.at, gpunn__gguf_sizes[note->type]);
}

/* general.alignment, or 0 if it is no power of two. */
static uint64_t gpunn__gguf_alignment(const gpunn__archive *a)
{
    const gpunn__entry *note = gpunn__table_find(&a->notes, "", "general.alignment");
    const uint64_t      alignment = note ? gpunn__little(note->text.at, 4) : 32;
    const bool          valid = (note == NULL || note->type == 4) && (alignment & (alignment - 1)) == 0;
    return valid ? alignment : 0;
}

/* Places the tensors behind the header, and checks that each lies in the file and behind the one before. */
static bool gpunn__gguf_place(gpunn__gguf *g, uint64_t alignment)
{
    gpunn__archive *a = g->a;
    const uint64_t  padding = (0 - (g->at + 8)) & (alignment - 1);
    uint64_t        end = 0;
    g->kind = "tensor";
    a->bytes = a->reader.limit - 8 - g->at;
    for (int i = 0; i < a->tensors.count; i++) { /* until now end is the size */
        gpunn__entry  *item = &a->tensors.items[i];
        const uint64_t bytes = item->end, available = a->bytes < padding ? 0 : a->bytes - padding;
        (void)gpunn__printable(&item->name, g->name);
        if (item->begin & (alignment - 1)) return gpunn__gguf_fail(g, "has an offset that is not aligned");
        if (item->begin > available || bytes > available - item->begin)
            return gpunn__gguf_fail(g, "has data beyond the end of the file");
        item->begin += padding;
        item->end = item->begin + bytes;
    }
    gpunn__sort_by_offset(&a->tensors);
    for (int i = 0; i < a->tensors.count; end = a->tensors.items[i++].end) {
        (void)gpunn__printable(&a->tensors.items[i].name, g->name);
        if (a->tensors.items[i].begin < end) return gpunn__gguf_fail(g, "shares data with another");
    }
    return true;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__gguf_header(gpunn__archive *a, const unsigned char head[8])
{
    gpunn__gguf    g;
    const uint64_t version = gpunn__little((const char *)head + 4, 4);
    memset(&g, 0, sizeof g);
    g.a = a;
    a->gguf = true;
    if (a->reader.limit < 24) /* room for the counts */
        return gpunn__fail(a->reader.dev, GPUNN_ERR_FORMAT,
                           "'%s' is cut short: a GGUF file has a header of 24 bytes; download it again",
                           gpunn__tail(a->reader.path));
    if (version != 2 && version != 3)
        return gpunn__fail(a->reader.dev, GPUNN_ERR_UNSUPPORTED,
                           "'%s' is GGUF of version %llu, or big-endian; only versions 2 and 3 are read; "
                           "convert it again",
                           gpunn__tail(a->reader.path), (unsigned long long)version);
    if (!gpunn__gguf_walk(&g, false) || !gpunn__gguf_walk(&g, true)) return g.status;
    g.status = gpunn__sort_by_name(a);
    const uint64_t alignment = gpunn__gguf_alignment(a);
    g.kind = "value";
    strcpy(g.name, "general.alignment");
    if (g.status == GPUNN_OK && alignment == 0) (void)gpunn__gguf_fail(&g, "is not a power of two");
    if (g.status == GPUNN_OK && gpunn__gguf_place(&g, alignment)) g.status = gpunn__sort_by_name(a);
    return g.status;
}

/* ---- the header as JSON -------------------------------------------------------------------------------- */
static void gpunn__emit_slice(gpunn__writer *w, const char *text, size_t length)
{
    gpunn__emit(w, "\"", 1);
    (void)gpunn__emit_escaped(w, text, length);
    gpunn__emit(w, "\"", 1);
}

/* Emits a number or a boolean. */
static void gpunn__emit_scalar(gpunn__writer *w, int type, const char *from)
{
    const size_t   size = gpunn__gguf_sizes[type];
    const uint64_t bits = gpunn__little(from, size), sign = (uint64_t)1 << (8 * size - 1);
    const uint32_t low = (uint32_t)bits;
    float          narrow;
    double         wide;
    memcpy(&narrow, &low, sizeof narrow);
    memcpy(&wide, &bits, sizeof wide);
    if (type == 6 || type == 12)
        gpunn__emit_number(w, "", type == 6 ? narrow : (float)wide);
    else if (type == GPUNN__GGUF_BOOL)
        gpunn__emitf(w, bits ? "true" : "false");
    else if (type == 1 || type == 3 || type == 5 || type == 11)
        gpunn__emitf(w, "%lld", (long long)((bits ^ sign) - sign));
    else
        gpunn__emitf(w, "%llu", (unsigned long long)bits);
}

/* Emits a value. Returns the place behind it. */
static const char *gpunn__emit_value(gpunn__writer *w, int type, const char *at)
{
    if (type != GPUNN__GGUF_ARRAY && type != GPUNN__GGUF_TEXT) {
        gpunn__emit_scalar(w, type, at);
        return at + gpunn__gguf_sizes[type];
    }
    const int      element = type == GPUNN__GGUF_ARRAY ? (int)gpunn__little(at, 4) : 0;
    const uint64_t count = gpunn__little(at + (type == GPUNN__GGUF_ARRAY ? 4 : 0), 8);
    if (type == GPUNN__GGUF_TEXT) {
        gpunn__emit_slice(w, at + 8, (size_t)count);
        return at + 8 + count;
    }
    at += 12;
    gpunn__emit(w, "[", 1);
    for (uint64_t i = 0; i < count; i++) {
        if (i) gpunn__emit(w, ",", 1);
        at = gpunn__emit_value(w, element, at);
    }
    gpunn__emit(w, "]", 1);
    return at;
}

static void gpunn__emit_kind(gpunn__writer *w, const gpunn__entry *item)
{
    gpunn__emit_slice(w, item->name.at, item->name.length);
    gpunn__emitf(w, ":{\"dtype\":");
    gpunn__emit_slice(w, item->text.at, item->text.length);
    gpunn__emitf(w, ",\"shape\":[");
    for (int i = 0; i < item->rank && i < GPUNN_MAX_RANK; i++)
        gpunn__emitf(w, "%s%lld", i ? "," : "", (long long)item->dim[i]);
    gpunn__emitf(w, "]}");
}

static void gpunn__emit_header(gpunn__writer *w, const void *what)
{
    const gpunn__archive *a = (const gpunn__archive *)what;
    gpunn__emitf(w, "{\"__metadata__\":{");
    for (int i = 0; i < a->notes.count; i++) {
        const gpunn__entry *note = &a->notes.items[i];
        if (i) gpunn__emit(w, ",", 1);
        gpunn__emit_slice(w, note->name.at, note->name.length);
        gpunn__emit(w, ":", 1);
        if (a->gguf)
            (void)gpunn__emit_value(w, note->type, note->text.at);
        else
            gpunn__emit_slice(w, note->text.at, note->text.length);
    }
    gpunn__emit(w, "}", 1);
    for (int i = 0; i < a->tensors.count; i++) {
        gpunn__emit(w, ",", 1);
        gpunn__emit_kind(w, &a->tensors.items[i]);
    }
    gpunn__emit(w, "}", 2); /* and the 0 behind it */
}

GPUNN_API gpunn_status gpunn_read_header(gpunn_device *dev, const char *path, gpunn_array *out)
{
    gpunn__archive archive;
    if (dev == NULL || out == NULL)
        return gpunn__fail_null(dev, "gpunn_read_header", dev ? "array" : "device");
    memset(out, 0, sizeof *out);
    gpunn_status status = gpunn__archive_open(dev, NULL, path, &archive);
    if (status != GPUNN_OK) return status;
    status = gpunn__text_write(dev, out, gpunn__emit_header, &archive);
    gpunn__archive_close(&archive);
    return status;
}
