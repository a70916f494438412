#include "base/text.h"
#include "base/tables.h"
#include "base/shapes.h"
#include "base/json.h"

GPUNN__INTERNAL void gpunn__put(gpunn__text_buffer *text, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text->at + text->used, text->size - text->used, format, list);
    va_end(list);
    size_t available = text->size - text->used - 1;
    text->used += (size_t)length < available ? (size_t)length : available;
}

GPUNN__INTERNAL void gpunn__put_float(gpunn__text_buffer *text, float value, int digits)
{
    char printed[48], plain[48];
    int  used = 0;
    (void)snprintf(printed, sizeof printed, "%.*g", digits, (double)value);
    for (const char *c = printed; *c; c++)
        if (isalnum((unsigned char)*c) || *c == '-' || *c == '+')
            plain[used++] = *c;
        else if (used == 0 || plain[used - 1] != '.')
            plain[used++] = '.';
    plain[used] = 0;
    gpunn__put(text, "%s", plain);
}

GPUNN__INTERNAL void gpunn__put_number(gpunn__text_buffer *text, float value)
{
    const char *quote = isfinite(value) ? "" : "\"";
    size_t      used = text->used;
    for (int digits = 6; digits <= 9; digits++) {
        double back = 0;
        text->used = used;
        gpunn__put(text, "%s", quote);
        gpunn__slice number = {text->at + text->used, 0};
        gpunn__put_float(text, value, digits);
        number.length = (size_t)(text->at + text->used - number.at);
        if (!isfinite(value) || (gpunn__json_double(&number, &back) && (float)back == value)) break;
    }
    gpunn__put(text, "%s", quote);
}

GPUNN__INTERNAL void gpunn__put_dim(gpunn__text_buffer *text, const gpunn_model *model, int64_t dim,
                                    const char *quote)
{
    char buffer[GPUNN__SIZE_BUFFER];
    if (dim >= 0)
        gpunn__put(text, "%lld", (long long)dim);
    else if (gpunn__is_sized(dim))
        gpunn__put(text, "%s%s%s", quote, gpunn__size_text(model, dim, buffer), quote);
    else if (dim == GPUNN_BATCH)
        gpunn__put(text, "%sN%s", quote, quote);
    else
        gpunn__put(text, "%s%lldN%s", quote, -(long long)dim, quote);
}

static void gpunn__put_dims(gpunn__text_buffer *text, const gpunn_tensor *t)
{
    for (int i = 0; i < t->rank; i++) {
        if (i) gpunn__put(text, ",");
        gpunn__put_dim(text, t->model, t->dim[i], "");
    }
}

GPUNN__INTERNAL bool gpunn__all_equal(const int *values, int count)
{
    for (int i = 1; i < count; i++)
        if (values[i] != values[0]) return false;
    return true;
}

GPUNN__INTERNAL int64_t gpunn__attribute_size(const gpunn_tensor *t, const gpunn__attribute *a)
{
    const int           operand = (int)(a->place / 16) - 1, axis = (int)(a->place % 16) - 8;
    const gpunn_tensor *x = NULL;
    if (a->kind == GPUNN__A_ALONG)
        return t->dim[*(const int *)(const void *)((const char *)&t->attr + a->place)];
    if (a->kind == GPUNN__A_SAME_RANK) return t->rank == t->inputs[0]->rank;
    x = operand < 0 ? t : t->inputs[operand];
    if (a->kind == GPUNN__A_EXISTS) return x || t->inputs[operand - 1] == NULL;
    if (a->kind == GPUNN__A_COUNT) return gpunn__count(x, 1);
    return x->dim[axis < 0 ? x->rank + axis : axis];
}

/* Sizes of the result's axes, starting at the attribute's first one. */
static const int *gpunn__attribute_sizes(const gpunn_tensor *t, const gpunn__attribute *a,
                                         int sizes[GPUNN_MAX_RANK])
{
    const int first = (int)(a->place % 16) - 8;
    for (int i = first; i < t->rank; i++) sizes[i - first] = (int)t->dim[i];
    return sizes;
}

static void gpunn__put_floats(gpunn__text_buffer *text, const char *from, int count, const char *between)
{
    for (int i = 0; i < count; i++) {
        gpunn__put(text, "%s", i ? between : "");
        gpunn__put_float(text, ((const float *)(const void *)from)[i], 9);
    }
}

GPUNN__INTERNAL void gpunn__put_attribute(gpunn__text_buffer *text, const gpunn_tensor *t,
                                          const gpunn__attribute *a, bool json)
{
    const char *from = (const char *)&t->attr + a->place, *between = json ? ", " : ",",
               *quote = json ? "\"" : "";
    const bool     *flag = (const bool *)from;
    const int      *ints = (const int *)(const void *)from;
    const int64_t  *wide = (const int64_t *)(const void *)from;
    const uint32_t *bits = (const uint32_t *)(const void *)from;
    int             count = t->inputs[0]->rank;
    gpunn__key_kind kind = GPUNN__K_CLASS_REDUCTION;
    bool            list = a->kind >= GPUNN__A_ORDER && a->kind <= GPUNN__A_AXES;
    int             sizes[GPUNN_MAX_RANK];
    if (a->kind == GPUNN__A_SPATIAL) ints = gpunn__attribute_sizes(t, a, sizes);
    if (a->kind == GPUNN__A_WINDOW || a->kind == GPUNN__A_SPATIAL) {
        count = t->rank - 2;
        list = !gpunn__all_equal(ints, count);
        if (json && !list) count = 1;
    }
    if (json && list) gpunn__put(text, "[");
    switch (a->kind) {
    case GPUNN__A_BOOL:
    case GPUNN__A_NOT: {
        const bool set = *flag != (a->kind == GPUNN__A_NOT);
        if (json)
            gpunn__put(text, "%s", set ? "true" : "false");
        else
            gpunn__put(text, "%d", set);
        break;
    }
    case GPUNN__A_INT: gpunn__put(text, "%d", *ints); break;
    case GPUNN__A_LAST: gpunn__put(text, "%d", t->rank - *ints); break;
    case GPUNN__A_DIM: gpunn__put_dim(text, t->model, *wide, quote); break;
    case GPUNN__A_INT64:
    case GPUNN__A_ROW: gpunn__put(text, "%lld", (long long)*wide); break;
    case GPUNN__A_FLOAT:
        if (json)
            gpunn__put_number(text, *(const float *)(const void *)from);
        else
            gpunn__put_float(text, *(const float *)(const void *)from, 9);
        break;
    case GPUNN__A_SIZE:
    case GPUNN__A_COUNT:
    case GPUNN__A_ALONG: gpunn__put(text, "%lld", (long long)gpunn__attribute_size(t, a)); break;
    case GPUNN__A_EXISTS:
    case GPUNN__A_SAME_RANK: gpunn__put(text, "%s", gpunn__attribute_size(t, a) ? "true" : "false"); break;
    case GPUNN__A_WINDOW:
    case GPUNN__A_SPATIAL:
    case GPUNN__A_ORDER:
        for (int i = 0; i < count; i++) gpunn__put(text, "%s%d", i ? between : "", ints[i]);
        break;
    case GPUNN__A_SIZES:
        for (int i = 0; i < count; i++) gpunn__put(text, "%s%lld", i ? between : "", (long long)wide[i]);
        break;
    case GPUNN__A_AXES:
        for (int i = 0, found = 0; i < count; i++)
            if (*bits >> i & 1) gpunn__put(text, "%s%d", found++ ? between : "", i);
        break;
    case GPUNN__A_CUSTOM:
        gpunn__put(text, "%s", (*(const gpunn_custom_op *const *)(const void *)from)->name);
        break;
    case GPUNN__A_NUMBERS: gpunn__put_floats(text, from, GPUNN_CUSTOM_NUMBERS, between); break;
    case GPUNN__A_CLASS_REDUCTION:
    case GPUNN__A_GRID_MODE:
    case GPUNN__A_GRID_PADDING:
    case GPUNN__A_INTERPOLATE_MODE:
    case GPUNN__A_PAD_MODE:
    case GPUNN__A_INTEGER_OP:
        kind = (gpunn__key_kind)((int)kind + (int)a->kind - (int)GPUNN__A_CLASS_REDUCTION);
        gpunn__put(text, "%s%s%s", quote, gpunn__choice_of(kind)->words[*ints], quote);
        break;
    case GPUNN__A_RATIOS: gpunn__put_floats(text, from, t->rank - 2, between); break;
    }
    if (json && list) gpunn__put(text, "]");
}

GPUNN__INTERNAL void gpunn__external_text(const gpunn_tensor *t, char *out, size_t size)
{
    gpunn__text_buffer text = {out, size, 0};
    gpunn__put(&text, "%s [", gpunn_dtype_name(t->dtype));
    gpunn__put_dims(&text, t);
    gpunn__put(&text, "]");
}

GPUNN__INTERNAL void gpunn__node_text(const gpunn_tensor *t, char *out, size_t size)
{
    static const char *const kinds[] = {"", "input", "parameter", "buffer", "constant"};
    gpunn__text_buffer       text = {out, size, 0};
    const char              *source = t->kind == GPUNN__VALUE ? gpunn_op_name(t->op) : kinds[t->kind];
    gpunn__put(&text, "%s", t->state ? "state" : source);
    for (int i = 0; i < gpunn__op_attribute_count(t->op); i++) {
        gpunn__put(&text, " %s=", gpunn__op_infos[t->op].attribute[i]);
        gpunn__put_float(&text, t->attr.value[i], 9);
    }
    for (const gpunn__attribute *a = gpunn__attributes_of(t->op); a->name; a++) {
        gpunn__put(&text, " %s=", a->name);
        gpunn__put_attribute(&text, t, a, false);
    }
    gpunn__put(&text, " ");
    gpunn__external_text(t, out + text.used, size - text.used);
}

/* Writes the canonical text of the first `count` tensors, piece by piece. */
static void gpunn__model_text(const gpunn_model *model, int                                      count,
                              void (*write)(void *user, const char *piece, size_t length), void *user)
{
    char               line[GPUNN__TEXT_SIZE];
    gpunn__text_buffer text = {line, sizeof line, 0};
    gpunn__put(&text, "gpunn 1 %s\n", gpunn__precision_names[model->precision]);
    write(user, line, text.used);
    for (int i = 0; i < count; i++) {
        const gpunn_tensor *t = model->tensors[i];
        gpunn__node_text(t, line, sizeof line);
        write(user, line, strlen(line));
        if (t->kind == GPUNN__VALUE) write(user, " <-", 3);
        for (int k = 0; k < t->input_count; k++) {
            text.used = 0;
            if (t->inputs[k])
                gpunn__put(&text, " %d", t->inputs[k]->id);
            else
                gpunn__put(&text, " -");
            write(user, line, text.used);
        }
        write(user, "\n", 1);
    }
}

/* ---- SHA-256 (FIPS 180-4) ------------------------------------------------------------------------------ */

typedef struct gpunn__sha256 {
    uint32_t      state[8];
    uint64_t      bytes;
    unsigned char block[64];
} gpunn__sha256;

static const uint32_t gpunn__sha256_start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static uint32_t gpunn__rotate_right(uint32_t x, int count)
{
    return x >> count | x << (32 - count);
}

static void gpunn__sha256_block(gpunn__sha256 *sha)
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)sha->block[4 * i] << 24 | (uint32_t)sha->block[4 * i + 1] << 16 |
               (uint32_t)sha->block[4 * i + 2] << 8 | sha->block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (gpunn__rotate_right(a, 7) ^ gpunn__rotate_right(a, 18) ^ a >> 3) +
               (gpunn__rotate_right(b, 17) ^ gpunn__rotate_right(b, 19) ^ b >> 10);
    }
    memcpy(v, sha->state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t t1 = v[7] +
                      (gpunn__rotate_right(e, 6) ^ gpunn__rotate_right(e, 11) ^ gpunn__rotate_right(e, 25)) +
                      ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        uint32_t t2 = (gpunn__rotate_right(a, 2) ^ gpunn__rotate_right(a, 13) ^ gpunn__rotate_right(a, 22)) +
                      ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) sha->state[i] += v[i];
}

static void gpunn__sha256_add(void *user, const char *piece, size_t length)
{
    gpunn__sha256 *sha = (gpunn__sha256 *)user;
    for (size_t i = 0; i < length; i++) {
        sha->block[sha->bytes++ % 64] = (unsigned char)piece[i];
        if (sha->bytes % 64 == 0) gpunn__sha256_block(sha);
    }
}

static void gpunn__sha256_begin(gpunn__sha256 *sha)
{
    memcpy(sha->state, gpunn__sha256_start, sizeof sha->state);
    sha->bytes = 0;
}

static void gpunn__sha256_end(gpunn__sha256 *sha, char hex[65])
{
    uint64_t bits = sha->bytes * 8;
    char     length[8];
    gpunn__sha256_add(sha, "\x80", 1);
    while (sha->bytes % 64 != 56) gpunn__sha256_add(sha, "", 1);
    for (int i = 0; i < 8; i++) length[i] = (char)(unsigned char)(bits >> (56 - 8 * i));
    gpunn__sha256_add(sha, length, sizeof length);
    for (int i = 0; i < 8; i++) (void)snprintf(hex + 8 * i, 9, "%08x", (unsigned)sha->state[i]);
}

GPUNN__INTERNAL void gpunn__model_sha256(const gpunn_model *model, int count, char hex[65])
{
    gpunn__sha256 sha;
    gpunn__sha256_begin(&sha);
    gpunn__model_text(model, count, gpunn__sha256_add, &sha);
    gpunn__sha256_end(&sha, hex);
}
