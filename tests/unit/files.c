/* Weights, checkpoints and dataset readers: round trips, damaged files, failing disks and failing memory.
 * Build it with
 * -DGPUNN_ZLIB when the library is: then .gz files are made and read too. */
#include "../test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#ifdef GPUNN_ZLIB
#include <zlib.h>
#endif

/* ---- files made by hand ---- */
/* A safetensors file of this header, padded to pad bytes (0: as it is), and size bytes of data. */
static void put_archive(const char *path, const char *header, const void *data, size_t size)
{
    size_t         length = strlen(header);
    unsigned char *file = malloc(8 + length + size);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(file + 8, header, length);
    if (size) memcpy(file + 8 + length, data, size);
    file_write(path, file, 8 + length + size);
    free(file);
}

/* The model of most tests here: a [2, 3], b [4], bn's four and a scalar. */
static void small_model(fixture *f)
{
    gpunn_init    normal = {GPUNN_INIT_NORMAL, 0, 1};
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 4));
    MADE(f->dev, gpunn_parameter(f->model, "a", GPUNN_SHAPE(2, 3), normal));
    MADE(f->dev, gpunn_parameter(f->model, "b", GPUNN_SHAPE(4), normal));
    MADE(f->dev, gpunn_batch_norm1d(x, "bn"));
    MADE(f->dev, gpunn_parameter(f->model, "scalar", GPUNN_SHAPE(0), normal));
}

/* All parameters and buffers, one after another. */
static float *all_weights(fixture *f, size_t *bytes)
{
    float *values = NULL;
    *bytes = 0;
    for (int i = 0; i < gpunn_parameter_count(f->model); i++) {
        gpunn_tensor *t = gpunn_parameter_at(f->model, i);
        size_t        more = gpunn_tensor_bytes(t);
        values = realloc(values, *bytes + more);
        OK(f->dev, gpunn_read(t, (char *)values + *bytes, more));
        *bytes += more;
    }
    return values;
}

static void check_weights(fixture *f, const float *expected)
{
    size_t bytes;
    float *values = all_weights(f, &bytes);
    assert_memory_equal(values, expected, bytes);
    free(values);
}

/* Every bit pattern that a careless conversion would change. */
static const uint32_t odd_bits[6] = {0x7fc12345u, 0xff800001u, 0x80000000u,
                                     0x00000001u, 0x7f800000u, 0x3f800001u};

static void set_odd(fixture *f)
{
    OK(f->dev, gpunn_write(gpunn_find(f->model, "a"), odd_bits, sizeof odd_bits));
}

/* ---- weights ---- */
static void weights_round_trip(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "w.safetensors");
    size_t      bytes;
    small_model(f);
    set_odd(f);
    OK(f->dev, gpunn_save(f->model, path));
    float *before = all_weights(f, &bytes), zero[6] = {0};
    OK(f->dev, gpunn_write(gpunn_find(f->model, "a"), zero, sizeof zero));
    OK(f->dev, gpunn_load(f->model, path));
    check_weights(f, before);

    size_t         size;
    unsigned char *file = file_read(path, &size);
    uint64_t       header;
    memcpy(&header, file, 8);
    assert_int_equal(header % 8, 0); /* tensors are aligned */
    assert_int_equal(8 + header + bytes, size);
    assert_memory_equal(file + 8,
                        "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],"
                        "\"data_offsets\":[0,24]}",
                        87);
    free(file);
    free(before);
    assert_int_equal(unlink(path), 0);
}

static void weights_odd_names(void **state)
{
    static const char *const names[] = {
        "quote\"", "back\\slash", "control\x01\n\x1f", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", " ", "/",
        "a",       "a.",          "__metadata"};
    fixture    *f = *state;
    const char *path = test_path(f, "n.safetensors");
    for (int i = 0; i < COUNT(names); i++) {
        gpunn_init init = {GPUNN_INIT_CONSTANT, (float)i + 1, 0};
        MADE(f->dev, gpunn_parameter(f->model, names[i], GPUNN_SHAPE(2), init));
    }
    OK(f->dev, gpunn_save(f->model, path));
    float zero[2] = {0}, value[2];
    for (int i = 0; i < COUNT(names); i++)
        OK(f->dev, gpunn_write(gpunn_parameter_at(f->model, i), zero, sizeof zero));
    OK(f->dev, gpunn_load(f->model, path));
    for (int i = 0; i < COUNT(names); i++) {
        OK(f->dev, gpunn_read(gpunn_parameter_at(f->model, i), value, sizeof value));
        assert_true(value[0] == (float)i + 1 && value[1] == (float)i + 1);
    }
    assert_int_equal(unlink(path), 0);
    gpunn_init none = {GPUNN_INIT_ZEROS, 0, 0};
    MADE(f->dev, gpunn_parameter(f->model, "latin\xe9", GPUNN_SHAPE(2), none));
    FAILS(f->dev, gpunn_save(f->model, path), GPUNN_ERR_ARGUMENT, "UTF-8", "rename");
}

static void weights_dtypes(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "d.safetensors");
    gpunn_init  zero = {GPUNN_INIT_ZEROS, 0, 0};
    MADE(f->dev, gpunn_parameter(f->model, "h", GPUNN_SHAPE(8), zero));
    MADE(f->dev, gpunn_parameter(f->model, "b", GPUNN_SHAPE(4), zero));
    MADE(f->dev, gpunn_parameter(f->model, "d", GPUNN_SHAPE(4), zero));
    struct {
        double   d[4];
        uint16_t h[8], b[4];
    } data = {{1.0 / 3, -0.0, 1e300, 1e-60},
              {0x3c00, 0xc000, 0x0001, 0x03ff, 0x0400, 0x7bff, 0xfc00, 0x7e01},
              {0x3f80, 0xc000, 0x7f80, 0x0001}};
    put_archive(
        path,
        "{\"h\":{\"dtype\":\"F16\",\"shape\":[8],\"data_offsets\":[32,48]}, \"d\" : {\"shape\" : [ 4 ], "
        "\"data_offsets\":[0 ,32],"
        "\"dtype\":\"F64\"},\n\t\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[48,56]}}   ",
        &data, 56);
    OK(f->dev, gpunn_load(f->model, path));
    const float h[8] = {1, -2, 5.9604645e-8f, 6.0975552e-5f, 6.1035156e-5f, 65504, -INFINITY, NAN},
                b[4] = {1, -2, INFINITY, 9.1835496e-41f}, d[4] = {1.0f / 3, -0.0f, INFINITY, 0};
    float value[8];
    OK(f->dev, gpunn_read(gpunn_find(f->model, "h"), value, 32));
    check_close(value, h, 8, 0, 0);
    OK(f->dev, gpunn_read(gpunn_find(f->model, "b"), value, 16));
    check_close(value, b, 4, 0, 0);
    OK(f->dev, gpunn_read(gpunn_find(f->model, "d"), value, 16));
    check_close(value, d, 4, 0, 0);
    assert_true(signbit(value[1]));
    put_archive(path, "{\"h\":{\"dtype\":\"I7\",\"shape\":[8],\"data_offsets\":[0,16]}}", &data, 16);
    FAILS(f->dev, gpunn_load(f->model, path), GPUNN_ERR_DTYPE, "h: file I7, model f32", "2 more");
    assert_int_equal(unlink(path), 0);
}

/* ---- weights of other types ---- */
typedef struct stored {
    const char *type;
    int         bytes;
    bool        is_signed;
} stored;
static const stored stored_types[] = {{"F8_E4M3", 1, false}, {"F8_E5M2", 1, false}, {"I8", 1, true},
                                      {"I16", 2, true},      {"I32", 4, true},      {"I64", 8, true},
                                      {"U8", 1, false},      {"U16", 2, false},     {"U32", 4, false},
                                      {"U64", 8, false},     {"BOOL", 1, false}};

/* sign * 2^exponent * mantissa; E4M3 has a bias of 7 and E5M2 one of 15. */
static double value_of_f8(bool e5m2, int byte)
{
    const int    bits = e5m2 ? 2 : 3, field = byte >> bits & (e5m2 ? 31 : 15), rest = byte & (e5m2 ? 3 : 7);
    const double sign = byte & 128 ? -1.0 : 1.0;
    if (e5m2 && field == 31) return rest ? (double)NAN : sign * (double)INFINITY;
    if (!e5m2 && (byte & 127) == 127) return (double)NAN;
    return sign * ldexp((field ? 1 : 0) + ldexp(rest, -bits), (field ? field : 1) - (e5m2 ? 15 : 7));
}

/* The nearest float, ties to even: of 64 bits, rounded by hand. */
static float nearest_float(bool negative, uint64_t magnitude)
{
    uint64_t kept = magnitude;
    int      dropped = 0;
    while (kept >> 24) kept >>= 1, dropped++;
    const uint64_t rest = magnitude - (kept << dropped), half = dropped ? UINT64_C(1) << (dropped - 1) : 1;
    kept += rest > half || (rest == half && kept & 1 && dropped);
    return (negative ? -1.0f : 1.0f) * ldexpf((float)kept, dropped);
}

static float value_stored(const stored *type, uint64_t bits)
{
    if (type->type[0] == 'F') return (float)value_of_f8(type->type[4] == '5', (int)bits);
    if (type->type[0] == 'B') return bits != 0;
    const bool negative = type->is_signed && bits >> (8 * type->bytes - 1) & 1;
    return nearest_float(negative, negative ? (UINT64_MAX >> (64 - 8 * type->bytes)) - bits + 1 : bits);
}

/* Element i: all patterns of 8 bits and, of wider types, what rounds in each way. */
static uint64_t pattern_of(const stored *type, int i)
{
    static const uint64_t odd[] = {0x1000001,          0x1000002,          0x1000003,
                                   0x7fffffffffffffff, 0x8000000000000000, 0x8000008000000000,
                                   0x8000008000000001, 0xffffff7fffffffff, 0xffffffffffffffff,
                                   0xffffff8000000000, 0x7fffffbf00000000};
    const uint64_t        wide = i < COUNT(odd) ? odd[i] : (uint64_t)i * 0x9e3779b97f4a7c15u;
    return type->bytes == 1   ? (uint64_t)i
           : type->bytes == 8 ? wide
                              : wide & ((UINT64_C(1) << 8 * type->bytes) - 1);
}

/* a row of all patterns, and one of an odd length, whose next tensor is not aligned */
enum { PATTERNS = 256, TAIL = 5 };

/* A file with the tensors "w0", ... of one stored type each: [2, 128], behind [5] of the next type. */
static void put_stored(const char *path)
{
    unsigned char data[COUNT(stored_types) * (PATTERNS + TAIL) * 8];
    char          header[4096] = "{";
    size_t        at = 0;
    for (int k = 0; k < 2 * COUNT(stored_types); k++) {
        const stored *type = &stored_types[k / 2];
        const int     count = k % 2 ? TAIL : PATTERNS;
        const size_t  begin = at;
        for (int i = 0; i < count; i++)
            for (int b = 0; b < type->bytes; b++) data[at++] = (unsigned char)(pattern_of(type, i) >> 8 * b);
        (void)snprintf(header + strlen(header), sizeof header - strlen(header),
                       "%s\"w%d\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", k ? "," : "",
                       k, type->type, k % 2 ? "[5]" : "[2,128]", begin, at);
    }
    strcat(header, "}");
    put_archive(path, header, data, at);
}

/* Weights for put_stored's file; those of an even number are matrices of products, which 16-bit models keep
 * in 16 bits. */
static void stored_model(gpunn_device *dev, gpunn_model *model)
{
    gpunn_init    normal = {GPUNN_INIT_NORMAL, 0, 1};
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 128));
    char          name[8];
    for (int k = 0; k < 2 * COUNT(stored_types); k++) {
        (void)snprintf(name, sizeof name, "w%d", k);
        gpunn_tensor *w = MADE(
            dev, gpunn_parameter(model, name, k % 2 ? GPUNN_SHAPE(5) : GPUNN_SHAPE(2, 128), normal));
        if (k % 2 == 0) MADE(dev, gpunn_linear(x, name, .out_features = 2, .weight = w, .no_bias = true));
    }
}

/* rounding: of the 16-bit kind that the model keeps; 0: none. */
static void check_stored(gpunn_device *dev, gpunn_model *model, double rounding, double largest)
{
    char name[8];
    for (int k = 0; k < 2 * COUNT(stored_types); k++) {
        int64_t n;
        (void)snprintf(name, sizeof name, "w%d", k);
        float *value = read_floats(dev, gpunn_find(model, name), &n);
        assert_int_equal(n, k % 2 ? TAIL : PATTERNS);
        for (int i = 0; i < n; i++) {
            const float expected = value_stored(&stored_types[k / 2], pattern_of(&stored_types[k / 2], i));
            const bool  same = isnan(expected)
                                   ? isnan(value[i])
                                   : value[i] == expected && !signbit(value[i]) == !signbit(expected);
            const bool  near = rounding > 0 &&
                              fabs((double)value[i] - (double)expected) <= rounding * fabs((double)expected);
            const bool over = rounding > 0 && fabs((double)expected) > largest && isinf(value[i]);
            if (!same && !near && !over)
                fail_msg("%s, element %d: %.9g instead of %.9g", stored_types[k / 2].type, i,
                         (double)value[i], (double)expected);
        }
        free(value);
    }
}

typedef struct warnings {
    int  count;
    char last[256];
} warnings;

static void take_warning(void *user, gpunn_log_level level, const char *text)
{
    warnings *w = user;
    if (level != GPUNN_LOG_WARNING || strstr(text, "became floats") == NULL) return;
    w->count++;
    (void)snprintf(w->last, sizeof w->last, "%s", text);
}

static void other_dtypes(void **state)
{
    static const struct {
        gpunn_precision precision;
        double          rounding, largest;
    } kinds[] = {{GPUNN_PRECISION_F32, 0, 0},
                 {GPUNN_PRECISION_BF16, 0x1p-8, 3.4e38},
                 {GPUNN_PRECISION_F16, 0x1p-11, 65504}};
    fixture    *f = *state;
    const char *path = test_path(f, "t.safetensors");
    warnings    heard = {0, ""};
    put_stored(path);
    for (int i = 0; i < COUNT(kinds); i++) {
        gpunn_device *dev = MADE(f->dev,
                                 gpunn_device_open(ON(f->backend), .log_fn = take_warning, .user = &heard));
        gpunn_model  *model = gpunn_model_create(dev, .precision = kinds[i].precision, .inference = i > 0);
        stored_model(dev, model);
        for (int again = 0; again < 2; again++) { /* piece by piece to the device, then over weights in use */
            OK(dev, gpunn_load(model, path));
            check_stored(dev, model, kinds[i].rounding, kinds[i].largest);
            assert_int_equal(heard.count, 2 * i + again + 1);
            assert_non_null(strstr(heard.last, "t.safetensors': 22 tensors became floats without a scale; "
                                               "the first is 'w0' of type F8_E4M3"));
        }
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
    }
    assert_int_equal(unlink(path), 0);
}

/* The reader of one tensor converts where that is exact. */
static void arrays_other_dtypes(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "t.safetensors");
    char        name[8];
    put_stored(path);
    for (int k = 0; k < 2 * COUNT(stored_types); k++) {
        const stored *type = &stored_types[k / 2];
        gpunn_array   array;
        (void)snprintf(name, sizeof name, "w%d", k);
        if (strcmp(type->type, "U64") == 0) {
            FAILS(f->dev, gpunn_read_safetensors(f->dev, path, name, &array), GPUNN_ERR_UNSUPPORTED,
                  "has type U64");
            continue;
        }
        OK(f->dev, gpunn_read_safetensors(f->dev, path, name, &array));
        for (int i = 0; i < (k % 2 ? TAIL : PATTERNS); i++) {
            const uint64_t bits = pattern_of(type, i);
            if (type->type[0] == 'F') {
                const float expected = value_stored(type, bits), value = ((float *)array.data)[i];
                assert_true(array.dtype == GPUNN_F32 && (isnan(expected) ? isnan(value) : value == expected));
            } else if (strcmp(type->type, "U32") == 0)
                assert_true(array.dtype == GPUNN_I64 && ((int64_t *)array.data)[i] == (int64_t)bits);
        }
        gpunn_array_free(f->dev, &array);
        OK(f->dev, gpunn_read_safetensors_as(f->dev, path, name, GPUNN_F64, &array));
        for (int i = 0; i < (k % 2 ? TAIL : PATTERNS); i++) {
            const float  expected = value_stored(type, pattern_of(type, i));
            const double value = ((double *)array.data)[i];
            assert_true(array.dtype == GPUNN_F64 &&
                        (isnan(expected) ? isnan(value) : (float)value == expected));
        }
        gpunn_array_free(f->dev, &array);
    }
    assert_int_equal(unlink(path), 0);
}

/* Doubles stay as they are in both formats. */
static void arrays_of_doubles(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "d.npy"), *const name = "d";
    double            values[2][3] = {{0.1, 1e300, -1e-300}, {1.0 / 3, 16777217, 0}};
    const gpunn_array array = {GPUNN_F64, 2, {2, 3}, sizeof values, values};
    gpunn_array       read;
    OK(f->dev, gpunn_write_npy(f->dev, path, &array));
    OK(f->dev, gpunn_read_npy_as(f->dev, path, GPUNN_F64, &read));
    assert_true(read.dtype == GPUNN_F64 && read.rank == 2 && read.dim[1] == 3 && read.bytes == sizeof values);
    assert_memory_equal(read.data, values, sizeof values);
    gpunn_array_free(f->dev, &read);
    OK(f->dev, gpunn_read_npy(f->dev, path, &read));
    assert_true(read.dtype == GPUNN_F32 && ((float *)read.data)[0] == 0.1f);
    gpunn_array_free(f->dev, &read);
    FAILS(f->dev, gpunn_read_npy_as(f->dev, path, GPUNN_I64, &read), GPUNN_ERR_DTYPE, "i64");
    OK(f->dev, gpunn_write_safetensors(f->dev, path, &name, &array, 1));
    OK(f->dev, gpunn_read_safetensors_as(f->dev, path, NULL, GPUNN_F64, &read));
    assert_memory_equal(read.data, values, sizeof values);
    gpunn_array_free(f->dev, &read);
    assert_int_equal(unlink(path), 0);
}

typedef struct lines {
    int  count;
    char text[16][200];
} lines;

static void take_line(void *user, const char *line)
{
    lines *l = user;
    if (l->count < 16) (void)snprintf(l->text[l->count], sizeof l->text[0], "%s", line);
    l->count++;
}

static void weights_partial(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "p.safetensors");
    float       data[16], value[6], kept[4];
    size_t      bytes;
    for (int i = 0; i < 16; i++) data[i] = (float)i;
    small_model(f);
    put_archive(path,
                "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"b\":{\"dtype\":\"F32\","
                "\"shape\":[2,2],"
                "\"data_offsets\":[24,40]},"
                "\"bn.num_batches_tracked\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[40,48]},"
                "\"bn.weight\":{\"dtype\":\"C64\",\"shape\":[2],\"data_offsets\":[48,64]},"
                "\"new\\u001b\\u00e9\":{\"dtype\":"
                "\"F7\",\"shape\":[0,1,2,3,4,5,6,7,8,9],"
                "\"data_offsets\":[64,64]}}",
                data, 64);
    float *before = all_weights(f, &bytes);
    FAILS(f->dev, gpunn_load(f->model, path), GPUNN_ERR_SHAPE, "b: file [2, 2], model [4]", "and 6 more",
          ".partial = true");
    check_weights(f, before);

    lines l = {0, {""}};
    OK(f->dev, gpunn_load(f->model, path, .partial = true, .report = take_line, .user = &l));
    const char *const expected[] = {"b: file [2, 2], model [4]",         "bn.weight: file C64, model f32",
                                    "bn.bias: in the model only",        "bn.running_mean: in the model only",
                                    "bn.running_var: in the model only", "scalar: in the model only",
                                    "new?\xc3\xa9: in the file only"};
    assert_int_equal(l.count, COUNT(expected));
    for (int i = 0; i < l.count; i++) assert_string_equal(l.text[i], expected[i]);
    OK(f->dev, gpunn_read(gpunn_find(f->model, "a"), value, sizeof value));
    assert_memory_equal(value, data, sizeof value);
    OK(f->dev, gpunn_read(gpunn_find(f->model, "b"), kept, sizeof kept));
    assert_memory_equal(kept, before + 6, sizeof kept);

    const char *const skip[] = {"b", "scalar", "new", "a", NULL};
    l.count = 0;
    memset(data, 0, sizeof data);
    OK(f->dev, gpunn_write(gpunn_find(f->model, "a"), data, sizeof value));
    OK(f->dev, gpunn_load(f->model, path, .skip = skip, .report = take_line, .user = &l));
    assert_int_equal(l.count, 0);
    OK(f->dev, gpunn_read(gpunn_find(f->model, "a"), value, sizeof value));
    assert_memory_equal(value, data, sizeof value);
    free(before);
    assert_int_equal(unlink(path), 0);
}

/* Headers over 24 bytes of data; every one is refused, in a sentence that names the file. */
#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
static const char *const bad_headers[] = {
    "",
    "{",
    "}",
    "[]",
    "null",
    " {" A "}",
    "{" A,
    "{" A "}}",
    "{" A "} x",
    "{" A ",}",
    "{," A "}",
    "{" A "," A "}",
    "{" A ",\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[24,24]}}",
    "{\"a\" {\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24],\"x\":1,}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24],\"x\":[1,{}}}",
    "{\"__metadata__\":nul," A "}",
    "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"a\":{\"dtype\":1,\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,25]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[1,25]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[24,0]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24,0]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[-24,0]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[0,20]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[0,24]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2,-3],\"data_offsets\":[0,24]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0,3],\"data_offsets\":[0,24]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[02,3],\"data_offsets\":[0,24]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3,],\"data_offsets\":[0,24]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[6e0],\"data_offsets\":[0,24]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,24]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387910],\"data_offsets\":[0,24]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,6],\"data_offsets\":[0,24]}}",
    "{\"a\":{\"dtype\":\"X\",\"shape\":[2,3],\"data_offsets\":[0,9223372036854775807]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},\"c\":{\"dtype\":\"F32\",\"shape\":[2],"
    "\"data_offsets\":["
    "16,24]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},\"c\":{\"dtype\":\"F32\",\"shape\":[4],"
    "\"data_offsets\":[8,"
    "24]}}",
    "{\"__metadata__\":{\"a\":1}," A "}",
    "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}," A "}",
    "{\"__metadata__\":{},\"__metadata__\":{}," A "}",
    "{\"__metadata__\":[]," A "}",
    "{\"__metadata__\":{\"a\":\"1\",}," A "}",
    "{\"a\\x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"\\ud800\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"\\ud800\\u0041\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"\\udc00\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"\\u00g0\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"\xff\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"\xc0\x80\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"\xed\xa0\x80\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"\xf4\x90\x80\x80\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"\xe2\x82\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"a\n\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"a:{",
    "{\"a\\",
    "{\"a\\u12",
};

/* What the safetensors library reads, too. */
static const char *const good_headers[] = {
    "{\"__metadata__\":null," A "}",
    "{\"a\":{\"note\":{\"b\":[1.5,{},[],null]},\"dtype\":\"F32\",\"shape\":[2,3],\"x\":true,\"data_offsets\":"
    "[0,24]}}",
    "{" A "}",
};

static void weights_bad_headers(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "bad.safetensors");
    float       data[6] = {1, 2, 3, 4, 5, 6};
    size_t      bytes;
    gpunn_init  normal = {GPUNN_INIT_NORMAL, 0, 1};
    MADE(f->dev, gpunn_parameter(f->model, "a", GPUNN_SHAPE(2, 3), normal));
    for (int i = 0; i < COUNT(good_headers); i++) {
        put_archive(path, good_headers[i], data, sizeof data);
        OK(f->dev, gpunn_load(f->model, path));
    }
    float *before = all_weights(f, &bytes);
    for (int i = 0; i < COUNT(bad_headers); i++) {
        put_archive(path, bad_headers[i], data, sizeof data);
        if (gpunn_load(f->model, path, .partial = true) != GPUNN_ERR_FORMAT)
            fail_msg("accepted: %s", bad_headers[i]);
        check_sentence(f->dev, GPUNN_ERR_FORMAT, __FILE__, __LINE__, "bad.safetensors", "; ",
                       (const char *)NULL);
        check_weights(f, before);
    }
    file_write(path, "PK\3\4 is how a zip file begins", 28);
    FAILS(f->dev, gpunn_load(f->model, path), GPUNN_ERR_FORMAT, "torch.save", "safetensors.torch.save_file");
    file_write(path, "version https://git-lfs.github.com/spec/v1\n", 43);
    FAILS(f->dev, gpunn_load(f->model, path), GPUNN_ERR_FORMAT, "Git LFS", "git lfs pull");
    free(before);
    assert_int_equal(unlink(path), 0);
}

/* load(f, path) fails for each shorter file and either fails or succeeds, without a trace of damage, for each
 * flipped bit of the first `head` bytes. */
static void cut_and_flip(fixture *f, const char *path, size_t head,
                         gpunn_status (*load)(fixture *f, const char *path))
{
    size_t         size;
    unsigned char *file = file_read(path, &size);
    const size_t   held = f->memory.peak = f->memory.bytes;
    assert_int_equal(load(f, path), GPUNN_OK);
    const size_t enough = f->memory.peak - held + 100000; /* no size is believed that the file cannot hold */
    for (size_t cut = 0; cut < size; cut++) {
        file_write(path, file, cut);
        f->memory.peak = f->memory.bytes;
        gpunn_status status = load(f, path);
        assert_in_range(f->memory.peak - f->memory.bytes, 0, enough);
        if (status == GPUNN_OK) fail_msg("a file cut to %zu of %zu bytes was accepted", cut, size);
        assert_true(gpunn_error(f->dev)[0] != 0);
        gpunn_clear_error(f->dev);
    }
    file[size] = 0; /* file_read leaves room */
    file_write(path, file, size + 1);
    assert_int_not_equal(load(f, path), GPUNN_OK);
    gpunn_clear_error(f->dev);
    for (size_t bit = 0; bit < 8 * (head < size ? head : size); bit++) {
        file[bit / 8] ^= (unsigned char)(1u << bit % 8);
        file_write(path, file, size);
        f->memory.peak = f->memory.bytes;
        gpunn_status status = load(f, path);
        assert_true(status == GPUNN_OK || gpunn_error(f->dev)[0] != 0);
        assert_in_range(f->memory.peak - f->memory.bytes, 0, enough);
        assert_true(status != GPUNN_ERR_MEMORY);
        gpunn_clear_error(f->dev);
        file[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    file_write(path, file, size);
    free(file);
}

static gpunn_status load_strict(fixture *f, const char *path)
{
    size_t       bytes;
    float       *before = all_weights(f, &bytes);
    gpunn_status status = gpunn_load(f->model, path);
    if (status != GPUNN_OK) check_weights(f, before);
    free(before);
    return status;
}

static void weights_damaged(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "c.safetensors");
    small_model(f);
    OK(f->dev, gpunn_save(f->model, path));
    cut_and_flip(f, path, 500, load_strict);
    assert_int_equal(unlink(path), 0);
}

static void other_dtypes_damaged(void **state)
{
    static const unsigned char data[7] = {0x7e, 0x81, 0x80, 0xff, 0xff, 0, 2};
    fixture                   *f = *state;
    const char                *path = test_path(f, "u.safetensors");
    gpunn_init                 normal = {GPUNN_INIT_NORMAL, 0, 1};
    MADE(f->dev, gpunn_parameter(f->model, "w", GPUNN_SHAPE(3), normal));
    MADE(f->dev, gpunn_parameter(f->model, "v", GPUNN_SHAPE(2), normal));
    put_archive(path,
                "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[0,3]},"
                "\"v\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[3,7]}}",
                data, sizeof data);
    cut_and_flip(f, path, 140, load_strict);
    OK(f->dev, gpunn_load(f->model, path));
    float value[3];
    OK(f->dev, gpunn_read(gpunn_find(f->model, "w"), value, sizeof value));
    assert_true(value[0] == 448 && value[1] == -0x1p-9f && value[2] == 0 && signbit(value[2]));
    OK(f->dev, gpunn_read(gpunn_find(f->model, "v"), value, 2 * sizeof *value));
    assert_true(value[0] == -1 && value[1] == 512);
    assert_int_equal(unlink(path), 0);
}

/* ---- disks ---- */
static bool is_device(const char *path)
{
    struct stat there;
    return stat(path, &there) == 0 && S_ISCHR(there.st_mode);
}
static void disk_failures(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "w.safetensors"), *folder = test_path(f, "folder"),
               *inside = test_path(f, "missing/w");
    size_t size, later;
    small_model(f);
    FAILS(f->dev, gpunn_save(f->model, inside), GPUNN_ERR_IO, "missing/w", "No such file",
          "create its directory");
    FAILS(f->dev, gpunn_load(f->model, path), GPUNN_ERR_IO, "w.safetensors", "No such file",
          "check the path");
    FAILS(f->dev, gpunn_save(f->model, ""), GPUNN_ERR_ARGUMENT, "path");
    FAILS(f->dev, gpunn_save(f->model, NULL), GPUNN_ERR_ARGUMENT, "path");
    FAILS(f->dev, gpunn_load(f->model, NULL), GPUNN_ERR_ARGUMENT, "path");
    assert_int_equal(mkdir(folder, 0700), 0);
    FAILS(f->dev, gpunn_save(f->model, folder), GPUNN_ERR_IO, "folder", "not a directory");
    FAILS(f->dev, gpunn_load(f->model, folder), GPUNN_ERR_IO, "folder", "not a directory");
    assert_int_equal(rmdir(folder), 0);
    const bool devices = is_device("/dev/null") && is_device("/dev/full");
    if (devices) {
        OK(f->dev, gpunn_save(f->model, "/dev/null"));
        assert_true(is_device("/dev/null")); /* still */
        FAILS(f->dev, gpunn_load(f->model, "/dev/null"), GPUNN_ERR_IO, "regular file");
        FAILS(f->dev, gpunn_save(f->model, "/dev/full"), GPUNN_ERR_IO, "/dev/full", "No space left",
              "make room");
    }

    /* A disk that is full after n bytes: the old file stays, no other is left (teardown looks). */
    OK(f->dev, gpunn_save(f->model, path));
    assert_int_equal(chmod(path, 0600), 0);
    unsigned char *before = file_read(path, &size);
    struct rlimit  limit, old;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    limit = old;
    float b[4] = {1, 2, 3, 4};
    OK(f->dev, gpunn_write(gpunn_find(f->model, "b"), b, sizeof b));
    for (rlim_t n = 0; n < size; n += 37) {
        limit.rlim_cur = n;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        gpunn_status status = gpunn_save(f->model, path);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(status, GPUNN_ERR_IO);
        check_sentence(f->dev, GPUNN_ERR_IO, __FILE__, __LINE__, "w.safetensors", "make room",
                       (const char *)NULL);
        unsigned char *after = file_read(path, &later);
        assert_int_equal(later, size);
        assert_memory_equal(after, before, size);
        free(after);
    }
    OK(f->dev, gpunn_save(f->model, path));
    struct stat info;
    assert_true(stat(path, &info) == 0 && (info.st_mode & 0777) == 0600); /* no more readable than it was */
    unsigned char *after = file_read(path, &later);
    assert_true(later == size && memcmp(after, before, size) != 0);
    free(after);
    free(before);
    assert_int_equal(unlink(path), 0);
    if (!devices) SKIP("/dev/null or /dev/full is no device");
}

/* ---- names and neighbours of what is saved ---- */
static bool is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

static void saved_through_links(void **state)
{
    fixture    *f = *state;
    const char *file = test_path(f, "w.safetensors"), *link = test_path(f, "link"),
               *far = test_path(f, "folder/far"), *new_link = test_path(f, "new"),
               *made = test_path(f, "made"), *hard = test_path(f, "hard"), *folder = test_path(f, "folder");
    struct stat info;
    size_t      size;
    small_model(f);
    file_write(file, "old", 3);
    assert_int_equal(mkdir(folder, 0700) | symlink("w.safetensors", link) | symlink("../link", far) |
                         symlink(made, new_link),
                     0);
    assert_int_equal(chmod(file, 0666), 0); /* more than umask lets be made */
    OK(f->dev, gpunn_save(f->model, far));  /* relative links, one behind the other */
    free(file_read(file, &size));
    assert_true(size > 3 && is_link(link) && is_link(far));
    assert_true(stat(file, &info) == 0 && (info.st_mode & 0777) == 0666);
    OK(f->dev, gpunn_load(f->model, far));
    OK(f->dev, gpunn_save(f->model, new_link)); /* to what is not there yet */
    assert_true(is_link(new_link));
    OK(f->dev, gpunn_load(f->model, made));
    assert_int_equal(unlink(new_link) | symlink("new", new_link), 0);
    FAILS(f->dev, gpunn_save(f->model, new_link), GPUNN_ERR_IO, "new", "symbolic links");
    file_write(file, "old", 3);
    assert_int_equal(linkat(AT_FDCWD, file, AT_FDCWD, hard, 0), 0);
    OK(f->dev, gpunn_save(f->model, file)); /* under the other name stays what was there */
    free(file_read(hard, &size));
    assert_int_equal(size, 3);
    assert_int_equal(unlink(file) | unlink(link) | unlink(far) | unlink(new_link) | unlink(made) |
                         unlink(hard) | rmdir(folder),
                     0);
}

/* New files that saves have left. */
static int stale_count(const char *folder)
{
    int  count = 0;
    DIR *directory = opendir(folder);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += strncmp(entry->d_name, ".gpunn-", 7) == 0;
    (void)closedir(directory);
    return count;
}

static void killed_saves(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "w.safetensors"), *living = test_path(f, ".gpunn-0123456789abcdef.tmp"),
               *other = test_path(f, ".gpunn-0123456789abcdeg.tmp");
    char          longest[512];
    struct rlimit limit;
    small_model(f);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = 100;
    (void)fflush(NULL);
    for (int i = 0; i < 3; i++) {
        int   status;
        pid_t child = fork();
        if (child == 0) {
            fixture own = {.dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 1)};
            own.model = gpunn_model_create(own.dev);
            small_model(&own);
            (void)signal(SIGXFSZ, SIG_DFL);
            (void)setrlimit(RLIMIT_FSIZE, &limit);
            (void)gpunn_save(own.model, path); /* which the signal ends */
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
    }
    assert_int_equal(stale_count(f->folder), 1); /* each has removed the one before */
    file_write(living, "a", 1);
    file_write(other, "b", 1);
    int fd = open(living, O_RDWR); /* another save at work */
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    OK(f->dev, gpunn_save(f->model, path));
    assert_int_equal(access(living, F_OK) | access(other, F_OK), 0);
    assert_int_equal(stale_count(f->folder), 2);
    (void)close(fd);
    int used = snprintf(longest, sizeof longest, "%s/", f->folder);
    memset(longest + used, 'n', 250);
    longest[used + 250] = 0;
    OK(f->dev, gpunn_save(f->model, longest));
    assert_int_equal(stale_count(f->folder), 1);
    assert_int_equal(unlink(path) | unlink(longest) | unlink(other), 0);
}

/* ---- checkpoints ---- */
typedef struct training {
    gpunn_device    *dev;
    gpunn_model     *model;
    gpunn_tensor    *loss;
    gpunn_optimizer *opt;
    gpunn_loader    *loader;
} training;

enum { SAMPLES = 26, KINDS = 11 }; /* the last batch of 4 holds 2, as batch_norm needs */

static gpunn_optimizer *make_optimizer(gpunn_model *model, int kind)
{
    switch (kind) {
    case 0: return gpunn_sgd(model, .lr = 0.05f, .momentum = 0.9f, .nesterov = true);
    case 1: return gpunn_adam(model, .lr = 0.01f);
    case 2: return gpunn_adamw(model, .lr = 0.01f, .beta1 = 0.8f);
    case 3: return gpunn_rmsprop(model, .lr = 0.01f, .momentum = 0.5f, .centered = true);
    case 4: return gpunn_adagrad(model, .lr = 0.1f, .initial_accumulator_value = 0.1f);
    case 5: return gpunn_adamax(model, .lr = 0.01f);
    case 6:
        return gpunn_nadam(model, .lr = 0.01f, .momentum_decay = 0.02f, .decoupled_weight_decay = true,
                           .weight_decay = 0.1f);
    case 7: return gpunn_radam(model, .lr = 0.01f, .beta2 = 0.9f); /* takes to roots on the way */
    case 8: return gpunn_lamb(model, .lr = 0.01f, .trust_clip = 2);
    case 9: return gpunn_muon(model, .lr = 0.01f, .adamw_lr = 0.02f);
    default: return gpunn_lion(model, .lr = 0.01f, .weight_decay = 0.1f);
    }
}

/* A network with all that has state: dropout, batch norm, a schedule, a shuffling loader. */
static training start_training(const fixture *f, int kind, uint64_t seed, int workers)
{
    static float samples[SAMPLES * 6], targets[SAMPLES * 2];
    uint32_t     random = 7;
    for (int i = 0; i < SAMPLES * 6; i++) samples[i] = test_random(&random);
    for (int i = 0; i < SAMPLES * 2; i++) targets[i] = test_random(&random);
    training t;
    t.dev = gpunn_device_open(ON(f->backend), .seed = seed, .threads = 2);
    assert_non_null(t.dev);
    t.model = gpunn_model_create(t.dev);
    gpunn_tensor *x = gpunn_input(t.model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 6));
    gpunn_tensor *y = gpunn_input(t.model, "y", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *h = gpunn_batch_norm1d(gpunn_linear(x, "fc1", .out_features = 10), "bn");
    h = gpunn_dropout(gpunn_relu(h), 0.3f);
    t.loss = MADE(t.dev, gpunn_mse_loss(gpunn_linear(h, "fc2", .out_features = 2), y));
    t.opt = MADE(t.dev, make_optimizer(t.model, kind));
    OK(t.dev, kind % 2
                  ? gpunn_set_schedule(t.opt, .type = GPUNN_SCHEDULE_PLATEAU, .patience = 1, .factor = 0.5f)
                  : gpunn_set_schedule(t.opt, .type = GPUNN_SCHEDULE_ONE_CYCLE, .total_steps = 40));
    gpunn_set_clip_norm(t.opt, 0.7f);
    if (kind % 2) OK(t.dev, gpunn_set_ema(t.opt, 0.8f));
    t.loader = MADE(t.dev, gpunn_loader_create(
                               t.model,
                               .fields = {{.input = x, .samples = samples}, {.input = y, .samples = targets}},
                               .count = SAMPLES, .batch_size = 4, .shuffle = true, .workers = workers));
    return t;
}

/* steps training steps; an epoch that ends is followed by the next. */
static void train(training *t, int steps)
{
    while (steps > 0) {
        if (!gpunn_next(t->loader)) {
            OK(t->dev, gpunn_last_status(t->dev));
            continue;
        }
        OK(t->dev, gpunn_train_step(t->opt, t->loss));
        OK(t->dev, gpunn_schedule_step(t->opt, gpunn_item(t->loss)));
        steps--;
    }
}

static void stop_training(training *t)
{
    gpunn_loader_destroy(t->loader);
    gpunn_optimizer_destroy(t->opt);
    gpunn_model_destroy(t->model);
    gpunn_device_close(t->dev);
}

static void resume_equals_uninterrupted(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "c.safetensors"), *one = test_path(f, "one"), *two = test_path(f, "two");
    for (int kind = 0; kind < KINDS; kind++) {
        /* at the beginning, in the middle of an epoch, in the next one */
        for (int at = 0; at <= 8; at += 4) {
            training a = start_training(f, kind, 3, at ? 2 : 0);
            train(&a, at);
            OK(a.dev, gpunn_checkpoint_save(a.opt, a.loader, path));
            train(&a, 12);
            OK(a.dev, gpunn_checkpoint_save(a.opt, a.loader, one));
            stop_training(&a);

            training b = start_training(f, kind, 99, 0); /* another seed: the file's counts */
            train(&b, kind);                             /* whatever it did before */
            OK(b.dev, gpunn_checkpoint_load(b.opt, b.loader, path));
            train(&b, 12);
            OK(b.dev, gpunn_checkpoint_save(b.opt, b.loader, two));
            stop_training(&b);
            size_t         size1, size2;
            unsigned char *file1 = file_read(one, &size1), *file2 = file_read(two, &size2);
            assert_int_equal(size1, size2);
            assert_memory_equal(file1, file2, size1); /* weights, state, counters, all of it */
            free(file1);
            free(file2);
        }
    }
    assert_int_equal(unlink(path) | unlink(one) | unlink(two), 0);
}

static void checkpoint_mismatches(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "c.safetensors"), *weights = test_path(f, "w.safetensors");
    size_t      bytes;
    small_model(f);
    gpunn_optimizer *adam = MADE(f->dev, gpunn_adam(f->model)), *sgd = MADE(f->dev, gpunn_sgd(f->model)),
                    *momentum = MADE(f->dev, gpunn_sgd(f->model, .momentum = 0.5f));
    float *before = all_weights(f, &bytes);
    OK(f->dev, gpunn_save(f->model, weights));
    OK(f->dev, gpunn_checkpoint_save(adam, NULL, path));
    OK(f->dev, gpunn_checkpoint_load(adam, NULL, path));
    OK(f->dev, gpunn_load(f->model, path)); /* just its weights */
    FAILS(f->dev, gpunn_checkpoint_load(adam, NULL, weights), GPUNN_ERR_FORMAT, "no checkpoint",
          "gpunn_load");
    FAILS(f->dev, gpunn_checkpoint_load(sgd, NULL, path), GPUNN_ERR_STATE, "gpunn_adam", "gpunn_sgd");
    OK(f->dev, gpunn_checkpoint_save(sgd, NULL, path));
    FAILS(f->dev, gpunn_checkpoint_load(momentum, NULL, path), GPUNN_ERR_STATE, "momentum 0", "momentum 0.5");
    FAILS(NULL, gpunn_checkpoint_save(NULL, NULL, path), GPUNN_ERR_ARGUMENT, "NULL");
    FAILS(NULL, gpunn_checkpoint_load(NULL, NULL, path), GPUNN_ERR_ARGUMENT, "NULL");
    gpunn_init zero = {GPUNN_INIT_ZEROS, 0, 0};
    OK(f->dev, gpunn_checkpoint_save(adam, NULL, path));
    check_weights(f, before);
    free(before);
    MADE(f->dev, gpunn_parameter(f->model, "later", GPUNN_SHAPE(3), zero));
    FAILS(f->dev, gpunn_checkpoint_load(adam, NULL, path), GPUNN_ERR_FORMAT, "later: in the model only",
          "and 3 more");
    MADE(f->dev, gpunn_parameter(f->model, "optimizer.x", GPUNN_SHAPE(3), zero));
    FAILS(f->dev, gpunn_checkpoint_save(adam, NULL, path), GPUNN_ERR_ARGUMENT, "optimizer.x", "rename");
    gpunn_optimizer_destroy(adam);
    gpunn_optimizer_destroy(sgd);
    gpunn_optimizer_destroy(momentum);
    assert_int_equal(unlink(path) | unlink(weights), 0);
}

/* A file with averages needs an optimizer with them; a file without starts them anew. */
static void checkpoint_averages(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "c.safetensors"), *with = test_path(f, "with.safetensors");
    training    a = start_training(f, 4, 3, 0);
    OK(a.dev, gpunn_checkpoint_save(a.opt, a.loader, path));
    OK(a.dev, gpunn_set_ema(a.opt, 0.5f));
    train(&a, 3);
    OK(a.dev, gpunn_checkpoint_save(a.opt, a.loader, with));
    OK(a.dev, gpunn_set_ema(a.opt, 0.9f));
    OK(a.dev, gpunn_checkpoint_load(a.opt, a.loader, path));
    gpunn_tensor *weight = gpunn_find(a.model, "fc1.weight");
    /* what the file holds, after one step the weights, then no longer */
    for (int step = 0; step < 3; step++) {
        float *weights = read_floats(a.dev, weight, NULL);
        OK(a.dev, gpunn_ema_swap(a.opt));
        float *averages = read_floats(a.dev, weight, NULL);
        OK(a.dev, gpunn_ema_swap(a.opt));
        assert_int_equal(memcmp(weights, averages, 60 * sizeof *weights) == 0, step < 2);
        free(weights), free(averages);
        train(&a, 1);
    }
    OK(a.dev, gpunn_load(a.model, with)); /* just its weights */
    OK(a.dev, gpunn_set_ema(a.opt, 0));
    FAILS(a.dev, gpunn_checkpoint_load(a.opt, a.loader, with), GPUNN_ERR_STATE, "gpunn_adagrad",
          "gpunn_set_ema");
    OK(a.dev, gpunn_set_ema(a.opt, 0.9f));
    OK(a.dev, gpunn_checkpoint_load(a.opt, a.loader, with));
    stop_training(&a);
    assert_int_equal(unlink(path) | unlink(with), 0);
}

static gpunn_optimizer *the_optimizer;
static gpunn_status     load_checkpoint(fixture *f, const char *path)
{
    size_t       bytes;
    float       *before = all_weights(f, &bytes), lr = gpunn_get_lr(the_optimizer);
    gpunn_status status = gpunn_checkpoint_load(the_optimizer, NULL, path);
    if (status != GPUNN_OK) {
        check_weights(f, before);
        assert_true(gpunn_get_lr(the_optimizer) == lr || lr != lr);
    } else
        (void)gpunn_schedule_step(the_optimizer, 1); /* whatever was let in does no harm */
    free(before);
    return status;
}

static void checkpoint_damaged(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "c.safetensors");
    gpunn_init  normal = {GPUNN_INIT_NORMAL, 0, 1};
    MADE(f->dev, gpunn_parameter(f->model, "a", GPUNN_SHAPE(2), normal));
    for (int type = GPUNN_SCHEDULE_STEP; type <= GPUNN_SCHEDULE_PLATEAU; type += 6) {
        the_optimizer = MADE(f->dev, gpunn_adam(f->model));
        OK(f->dev, gpunn_set_schedule(the_optimizer, .type = (gpunn_schedule_type)type, .step_size = 3,
                                      .total_steps = 9));
        OK(f->dev, gpunn_checkpoint_save(the_optimizer, NULL, path));
        cut_and_flip(f, path, 2000, load_checkpoint);
        gpunn_optimizer_destroy(the_optimizer);
    }
    assert_int_equal(unlink(path), 0);
}

/* What gpunn_set_schedule takes, a checkpoint gives back. */
static void checkpoint_schedules(void **state)
{
    static const int64_t counts[] = {-1, INT64_MAX / 2, INT64_MAX / 2 + 1, INT64_MIN};
    static const int     calls[] = {-1, INT32_MAX / 2, INT32_MAX / 2 + 1, INT32_MIN};
    fixture             *f = *state;
    const char          *path = test_path(f, "c.safetensors");
    int                  taken = 0, refused = 0;
    MADE(f->dev, gpunn_parameter(f->model, "a", GPUNN_SHAPE(2), (gpunn_init){GPUNN_INIT_ZEROS, 0, 0}));
    the_optimizer = MADE(f->dev, gpunn_sgd(f->model));
    for (int type = GPUNN_SCHEDULE_CONSTANT; type <= GPUNN_SCHEDULE_PLATEAU; type++)
        for (int field = 0; field < 7; field++)
            for (int i = 0; i < (field < 5 ? COUNT(counts) : COUNT(calls)); i++) {
                gpunn_schedule_args args = {
                    .type = (gpunn_schedule_type)type, .total_steps = 9, .step_size = 3, .milestones = {5}};
                int64_t *count[] = {&args.total_steps, &args.step_size, &args.warmup_steps,
                                    &args.milestones[0], &args.milestones[2]};
                if (field < 5)
                    *count[field] = counts[i];
                else
                    *(field == 5 ? &args.patience : &args.cooldown) = calls[i];
                if (gpunn_set_schedule_(the_optimizer, args) != GPUNN_OK) {
                    check_sentence(f->dev, GPUNN_ERR_ARGUMENT, __FILE__, __LINE__, "gpunn_set_schedule",
                                   "must be", (const char *)NULL);
                    gpunn_clear_error(f->dev);
                    refused++;
                    continue;
                }
                for (int step = 0; step < 4; step++) OK(f->dev, gpunn_schedule_step(the_optimizer, 1));
                OK(f->dev, gpunn_checkpoint_save(the_optimizer, NULL, path));
                OK(f->dev, gpunn_checkpoint_load(the_optimizer, NULL, path));
                taken++;
            }
    assert_true(taken > 40 && refused > 150);
    gpunn_optimizer_destroy(the_optimizer);
    assert_int_equal(unlink(path), 0);
}

/* ---- memory that fails ---- */
static void memory_failures(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "m.safetensors"), *npy = test_path(f, "m.npy");
    size_t      bytes, size;
    small_model(f);
    gpunn_optimizer *adam = MADE(f->dev, gpunn_adam(f->model));
    OK(f->dev, gpunn_checkpoint_save(adam, NULL, path));
    float         *before = all_weights(f, &bytes);
    unsigned char *file = file_read(path, &size);
    float          values[6] = {1, 2, 3, 4, 5, 6};
    gpunn_array    array = {GPUNN_F32, 2, {2, 3}, sizeof values, values}, got;
    OK(f->dev, gpunn_write_npy(f->dev, npy, &array));
    for (int call = 0; call < 6; call++) {
        gpunn_status status = GPUNN_ERR_MEMORY;
        for (long n = 1; status != GPUNN_OK; n++) {
            long   blocks = f->memory.blocks;
            size_t held = f->memory.bytes;
            f->memory.fail_at = f->memory.calls + n;
            memset(&got, 0, sizeof got);
            status = call == 0   ? gpunn_load(f->model, path)
                     : call == 1 ? gpunn_save(f->model, path)
                     : call == 2 ? gpunn_checkpoint_save(adam, NULL, path)
                     : call == 3 ? gpunn_checkpoint_load(adam, NULL, path)
                     : call == 4 ? gpunn_read_npy(f->dev, npy, &got)
                                 : gpunn_write_npy(f->dev, npy, &array);
            f->memory.fail_at = 0;
            if (call == 4 && status == GPUNN_OK) gpunn_array_free(f->dev, &got);
            if (status != GPUNN_OK) {
                assert_int_equal(status, GPUNN_ERR_MEMORY);
                check_sentence(f->dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
                check_weights(f, before);
            }
            assert_int_equal(f->memory.blocks, blocks);
            assert_int_equal(f->memory.bytes, held);
            assert_true(n < 100);
        }
        if (call == 2) { /* the same file as before all the failures */
            size_t         later;
            unsigned char *again = file_read(path, &later);
            assert_int_equal(later, size);
            assert_memory_equal(again, file, size);
            free(again);
        }
    }
    free(before);
    free(file);
    gpunn_optimizer_destroy(adam);
    assert_int_equal(unlink(path) | unlink(npy), 0);
}

/* ---- IDX ---- */
static gpunn_status load_idx(fixture *f, const char *path)
{
    gpunn_array  array;
    gpunn_status status = gpunn_read_idx(f->dev, path, &array);
    assert_true((status == GPUNN_OK) == (array.data != NULL));
    gpunn_array_free(f->dev, &array);
    return status;
}

static void idx_types(void **state)
{
    static const struct {
        unsigned char type, size;
        unsigned char element[8]; /* the same value, -2 (u8: 254), in each type */
        gpunn_dtype   dtype;
    } types[] = {
        {0x08, 1, {254}, GPUNN_U8},
        {0x09, 1, {254}, GPUNN_I32},
        {0x0B, 2, {0xff, 0xfe}, GPUNN_I32},
        {0x0C, 4, {0xff, 0xff, 0xff, 0xfe}, GPUNN_I32},
        {0x0D, 4, {0xc0, 0, 0, 0}, GPUNN_F32},
        {0x0E, 8, {0xc0, 0, 0, 0, 0, 0, 0, 0}, GPUNN_F32},
    };
    fixture    *f = *state;
    const char *path = test_path(f, "x.idx");
    for (int i = 0; i < COUNT(types); i++) {
        unsigned char file[64] = {0, 0, types[i].type, 2, 0, 0, 0, 2, 0, 0, 0, 3};
        gpunn_array   array;
        for (int k = 0; k < 6; k++) memcpy(file + 12 + k * types[i].size, types[i].element, types[i].size);
        file_write(path, file, 12 + 6 * (size_t)types[i].size);
        OK(f->dev, gpunn_read_idx(f->dev, path, &array));
        assert_true(array.dtype == types[i].dtype && array.rank == 2 && array.dim[0] == 2 &&
                    array.dim[1] == 3);
        assert_int_equal(array.bytes, 6 * gpunn_dtype_size(array.dtype));
        for (int k = 0; k < 6; k++) {
            const unsigned char *element = (unsigned char *)array.data +
                                           (size_t)k * gpunn_dtype_size(array.dtype);
            float   real;
            int32_t integer;
            memcpy(&real, element, array.dtype == GPUNN_U8 ? 1 : sizeof real);
            memcpy(&integer, element, array.dtype == GPUNN_U8 ? 1 : sizeof integer);
            assert_true(array.dtype == GPUNN_U8    ? *element == 254
                        : array.dtype == GPUNN_F32 ? real == -2
                                                   : integer == -2);
        }
        gpunn_array_free(f->dev, &array);
        cut_and_flip(f, path, 12, load_idx);
    }
    unsigned char huge[20] = {0,    0,    8,    3,    0xff, 0xff, 0xff, 0xff,
                              0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    file_write(path, huge, sizeof huge);
    FAILS(f->dev, load_idx(f, path), GPUNN_ERR_FORMAT, "more elements than the file can hold");
    unsigned char empty[8] = {0, 0, 8, 1, 0, 0, 0, 0};
    file_write(path, empty, sizeof empty);
    FAILS(f->dev, load_idx(f, path), GPUNN_ERR_FORMAT, "no elements");
    file_write(path, "GIF89a..", 8);
    FAILS(f->dev, load_idx(f, path), GPUNN_ERR_FORMAT, "not an IDX file", "47 49 46 38");
    FAILS(NULL, gpunn_read_idx(NULL, path, &(gpunn_array){0}), GPUNN_ERR_ARGUMENT, "device");
    FAILS(f->dev, gpunn_read_idx(f->dev, path, NULL), GPUNN_ERR_ARGUMENT, "NULL");
    FAILS(f->dev, gpunn_read_idx(f->dev, NULL, &(gpunn_array){0}), GPUNN_ERR_ARGUMENT, "NULL");
    assert_int_equal(unlink(path), 0);
}

static void idx_compressed(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "x.idx.gz");
#ifdef GPUNN_ZLIB
    enum { N = 50000 };
    unsigned char *data = malloc(N + 8);
    uint32_t       random = 5;
    for (int i = 0; i < N + 8; i++) data[i] = (unsigned char)((int)(test_random(&random) * 4) & 255);
    memcpy(data, "\0\0\10\1\0\0\303\120", 8);
    for (int members = 1; members <= 3; members++) { /* as `cat a.gz b.gz` makes them */
        (void)unlink(path);
        for (int m = 0; m < members; m++) {
            gzFile gz = gzopen(path, "ab6");
            int    from = (N + 8) / members * m, to = m == members - 1 ? N + 8 : (N + 8) / members * (m + 1);
            assert_int_equal(gzwrite(gz, data + from, (unsigned)(to - from)), to - from);
            assert_int_equal(gzclose(gz), Z_OK);
        }
        gpunn_array array;
        OK(f->dev, gpunn_read_idx(f->dev, path, &array));
        assert_true(array.rank == 1 && array.dim[0] == N && array.bytes == N);
        assert_memory_equal(array.data, data + 8, N);
        gpunn_array_free(f->dev, &array);
    }
    (void)unlink(path);
    memcpy(data, "\0\0\10\1\0\0\0\144", 8); /* 100: short enough to try each cut and each bit */
    gzFile gz = gzopen(path, "wb");
    assert_int_equal(gzwrite(gz, data, 108), 108);
    assert_int_equal(gzclose(gz), Z_OK);
    cut_and_flip(f, path, 1000, load_idx);
    gz = gzopen(path, "wb"); /* 16 MiB of zeros in 16 KiB, of which the header speaks of 100 */
    memset(data, 0, N);
    memcpy(data, "\0\0\10\1\0\0\0\144", 8);
    for (int i = 0; i < 300; i++) {
        assert_int_equal(gzwrite(gz, data, N), N);
        memset(data, 0, 8);
    }
    assert_int_equal(gzclose(gz), Z_OK);
    FAILS(f->dev, load_idx(f, path), GPUNN_ERR_FORMAT, "has more bytes after the end");
    for (long n = 1;; n++) { /* zlib's memory comes from the hook too */
        f->memory.fail_at = f->memory.calls + n;
        gpunn_status status = load_idx(f, path);
        f->memory.fail_at = 0;
        if (status == GPUNN_ERR_FORMAT) break;
        assert_int_equal(status, GPUNN_ERR_MEMORY);
        gpunn_clear_error(f->dev);
    }
    free(data);
#else
    static const unsigned char gz[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3};
    file_write(path, gz, sizeof gz);
    FAILS(f->dev, load_idx(f, path), GPUNN_ERR_UNSUPPORTED, "x.idx.gz' is compressed", "-DGPUNN_ZLIB and -lz",
          "gunzip");
#endif
    gpunn_clear_error(f->dev);
    assert_int_equal(unlink(path), 0);
}

/* ---- CIFAR ---- */
static void cifar(void **state)
{
    fixture             *f = *state;
    const char *const    paths[2] = {test_path(f, "1.bin"), test_path(f, "2.bin")};
    static unsigned char file[3 * 3074];
    gpunn_array          images, labels;
    for (int classes = 10; classes <= 100; classes += 90) {
        size_t head = classes == 100 ? 2 : 1, record = 3072 + head;
        for (size_t i = 0; i < sizeof file; i++) file[i] = (unsigned char)(i * 7 + i / 256);
        for (size_t i = 0; i < 3; i++) file[i * record + head - 1] = (unsigned char)((size_t)classes - 1 - i);
        file_write(paths[0], file, 3 * record);
        file_write(paths[1], file + record, record);
        OK(f->dev, gpunn_read_cifar(f->dev, paths, 2, classes, &images, &labels));
        assert_true(images.dtype == GPUNN_U8 && images.rank == 4 && images.dim[0] == 4 &&
                    images.dim[1] == 3 && images.dim[2] == 32 && images.dim[3] == 32 &&
                    images.bytes == 4 * 3072 && labels.rank == 1 && labels.dim[0] == 4 && labels.bytes == 4);
        for (size_t i = 0; i < 4; i++) {
            size_t from = i == 3 ? 1 : i;
            assert_int_equal(((unsigned char *)labels.data)[i], classes - 1 - (int)from);
            assert_memory_equal((char *)images.data + i * 3072, file + from * record + head, 3072);
        }
        gpunn_array_free(f->dev, &images);
        gpunn_array_free(f->dev, &labels);
        file_write(paths[1], file, record + 1);
        FAILS(f->dev, gpunn_read_cifar(f->dev, paths, 2, classes, &images, &labels), GPUNN_ERR_FORMAT,
              "2.bin", "multiple");
        file[head - 1] = (unsigned char)classes;
        file_write(paths[1], file, record);
        FAILS(f->dev, gpunn_read_cifar(f->dev, paths, 2, classes, &images, &labels), GPUNN_ERR_FORMAT,
              "2.bin", "label");
        file_write(paths[1], file, 0);
        FAILS(f->dev, gpunn_read_cifar(f->dev, paths, 2, classes, &images, &labels), GPUNN_ERR_FORMAT,
              "2.bin", "empty");
        assert_true(images.data == NULL && labels.data == NULL);
        for (long n = 1;; n++) {
            f->memory.fail_at = f->memory.calls + n;
            gpunn_status status = gpunn_read_cifar(f->dev, paths, 1, classes, &images, &labels);
            f->memory.fail_at = 0;
            if (status == GPUNN_OK) break;
            assert_int_equal(status, GPUNN_ERR_MEMORY);
            gpunn_clear_error(f->dev);
        }
        gpunn_array_free(f->dev, &images);
        gpunn_array_free(f->dev, &labels);
    }
    FAILS(f->dev, gpunn_read_cifar(f->dev, paths, 1, 20, &images, &labels), GPUNN_ERR_ARGUMENT, "10 or 100");
    FAILS(f->dev, gpunn_read_cifar(f->dev, paths, 0, 10, &images, &labels), GPUNN_ERR_ARGUMENT, "path");
    FAILS(f->dev, gpunn_read_cifar(f->dev, NULL, 1, 10, &images, &labels), GPUNN_ERR_ARGUMENT, "NULL");
    assert_int_equal(unlink(paths[0]) | unlink(paths[1]), 0);
}

/* ---- .npy ---- */
static gpunn_status load_npy(fixture *f, const char *path)
{
    gpunn_array  array;
    gpunn_status status = gpunn_read_npy(f->dev, path, &array);
    assert_true((status == GPUNN_OK) == (array.data != NULL));
    gpunn_array_free(f->dev, &array);
    return status;
}

static void put_npy(const char *path, int version, const char *header, const void *data, size_t size)
{
    unsigned char file[1024] = "\x93NUMPY";
    size_t        length = strlen(header), at = 8;
    file[6] = (unsigned char)version;
    for (size_t i = 0; i < (version == 1 ? 2 : 4); i++) file[at++] = (unsigned char)(length >> (8 * i));
    memcpy(file + at, header, length);
    if (size) memcpy(file + at + length, data, size);
    file_write(path, file, at + length + size);
}

static void npy_round_trip(void **state)
{
    static const gpunn_dtype dtypes[] = {GPUNN_F32, GPUNN_I64, GPUNN_I32, GPUNN_U8, GPUNN_BOOL};
    static const char        sizes[] = "2, 3, 4, 1, 1, 1, 1, 1";
    fixture                 *f = *state;
    const char              *path = test_path(f, "x.npy");
    unsigned char            data[8 * 24];
    for (int i = 0; i < COUNT(dtypes); i++) {
        for (int rank = 0; rank <= GPUNN_MAX_RANK; rank++) {
            gpunn_array array = {dtypes[i], rank, {0}, gpunn_dtype_size(dtypes[i]), data}, got;
            for (int k = 0; k < rank; k++) {
                array.dim[k] = k < 3 ? k + 2 : 1;
                array.bytes *= (size_t)array.dim[k];
            }
            for (size_t k = 0; k < sizeof data; k++)
                data[k] = (unsigned char)(dtypes[i] == GPUNN_BOOL ? k % 3 == 0 : k * 5 + 1);
            OK(f->dev, gpunn_write_npy(f->dev, path, &array));
            size_t size;
            char   tuple[32], *file = (char *)file_read(path, &size);
            assert_int_equal((size - array.bytes) % 64, 0);
            (void)snprintf(tuple, sizeof tuple, "(%.*s%s)", rank ? 3 * rank - 2 : 0, sizes,
                           rank == 1 ? ", " : ""); /* Python reads (2) as a number */
            assert_non_null(strstr(file + 10, tuple));
            free(file);
            OK(f->dev, gpunn_read_npy(f->dev, path, &got));
            assert_true(got.dtype == array.dtype && got.rank == rank && got.bytes == array.bytes);
            assert_memory_equal(got.dim, array.dim, sizeof got.dim);
            assert_memory_equal(got.data, data, got.bytes);
            gpunn_array_free(f->dev, &got);
        }
        if (i == 0) cut_and_flip(f, path, 128, load_npy);
    }
    gpunn_array half = {GPUNN_F16, 1, {4}, 8, data}, wrong = {GPUNN_F32, 1, {4}, 8, data},
                bf16 = {GPUNN_BF16, 1, {4}, 8, data}, got;
    const uint16_t bits[4] = {0x3c00, 0xc000, 0x7c00, 0x8000};
    memcpy(data, bits, sizeof bits);
    OK(f->dev, gpunn_write_npy(f->dev, path, &half));
    OK(f->dev, gpunn_read_npy(f->dev, path, &got));
    const float values[4] = {1, -2, INFINITY, -0.0f};
    assert_memory_equal(got.data, values, sizeof values);
    gpunn_array_free(f->dev, &got);
    FAILS(f->dev, gpunn_write_npy(f->dev, path, &wrong), GPUNN_ERR_SHAPE, "bytes is 8");
    FAILS(f->dev, gpunn_write_npy(f->dev, path, &bf16), GPUNN_ERR_DTYPE, "convert");
    FAILS(f->dev, gpunn_write_npy(f->dev, path, NULL), GPUNN_ERR_ARGUMENT, "NULL");
    FAILS(NULL, gpunn_write_npy(NULL, path, &half), GPUNN_ERR_ARGUMENT, "device");
    assert_int_equal(unlink(path), 0);
}

static void npy_headers(void **state)
{
    fixture          *f = *state;
    const char       *path = test_path(f, "x.npy");
    float             data[6] = {1, 2, 3, 4, 5, 6};
    gpunn_array       got;
    const char *const good[] = {
        "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }          \n",
        "{\"shape\":(2,3),\"descr\":\"<f4\",\"fortran_order\":True}",
        " { 'fortran_order' : True , 'shape' : ( 2L , 3L , ) , 'descr' : '=f4' , } \n",
    };
    for (int version = 1; version <= 3; version++) {
        for (int i = 0; i < COUNT(good); i++) {
            const float expected[6] = {1, 3, 5, 2, 4, 6};
            put_npy(path, version, good[i], data, sizeof data);
            OK(f->dev, gpunn_read_npy(f->dev, path, &got));
            assert_true(got.rank == 2 && got.dim[0] == 2 && got.dim[1] == 3);
            assert_memory_equal(got.data, expected, sizeof expected);
            gpunn_array_free(f->dev, &got);
        }
    }
    const unsigned char big[8] = {0x3f, 0xf0, 0, 0, 0, 0, 0, 0};
    put_npy(path, 1, "{'descr': '>f8', 'fortran_order': False, 'shape': ()}", big, 8);
    OK(f->dev, gpunn_read_npy(f->dev, path, &got));
    assert_true(got.rank == 0 && got.dtype == GPUNN_F32 && *(float *)got.data == 1);
    gpunn_array_free(f->dev, &got);
    put_npy(path, 1, "{'descr': '>u4', 'fortran_order': False, 'shape': (1,)}", "\xff\0\0\1", 4);
    OK(f->dev, gpunn_read_npy(f->dev, path, &got));
    assert_true(got.rank == 1 && got.dtype == GPUNN_I64 && *(int64_t *)got.data == 0xff000001);
    gpunn_array_free(f->dev, &got);

    const struct {
        const char  *header;
        gpunn_status status;
        const char  *words;
    } bad[] = {
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (3,)}", GPUNN_ERR_UNSUPPORTED, "<c8"},
        {"{'descr': '<u8', 'fortran_order': False, 'shape': (3,)}", GPUNN_ERR_UNSUPPORTED, "astype"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (6,)}", GPUNN_ERR_UNSUPPORTED, "|O"},
        {"{'descr': '?f4', 'fortran_order': False, 'shape': (6,)}", GPUNN_ERR_UNSUPPORTED, "?f4"},
        {"{'descr': '', 'fortran_order': False, 'shape': (6,)}", GPUNN_ERR_UNSUPPORTED, "''"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}", GPUNN_ERR_FORMAT, "no elements"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-6,)}", GPUNN_ERR_FORMAT, "no elements"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (7,)}", GPUNN_ERR_FORMAT, "cut short"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", GPUNN_ERR_FORMAT,
         "more bytes after the end"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 6)}", GPUNN_ERR_FORMAT,
         "more elements"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,6)}", GPUNN_ERR_FORMAT,
         "dimensions"},
        {"{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (6,)}", GPUNN_ERR_FORMAT, "records"},
        {"{'descr': '<f4', 'fortran_order': false, 'shape': (6,)}", GPUNN_ERR_FORMAT, "True or False"},
        {"{'descr': '<f4', 'fortran_order': F", GPUNN_ERR_FORMAT, "True or False"},
        {"{'descr': '<f4', 'shape': (6,)}", GPUNN_ERR_FORMAT, "lacks"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", GPUNN_ERR_FORMAT,
         "twice"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} x", GPUNN_ERR_FORMAT, "text after its end"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,", GPUNN_ERR_FORMAT, "header"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 6}", GPUNN_ERR_FORMAT, "shape"},
        {"{'descr': '<f4", GPUNN_ERR_FORMAT, "unterminated string"},
        {"", GPUNN_ERR_FORMAT, "dictionary"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        put_npy(path, 1, bad[i].header, data, sizeof data);
        gpunn_status status = gpunn_read_npy(f->dev, path, &got);
        if (status != bad[i].status) fail_msg("%s: %s", bad[i].header, gpunn_status_name(status));
        check_sentence(f->dev, bad[i].status, __FILE__, __LINE__, "x.npy", bad[i].words, (const char *)NULL);
        assert_null(got.data);
    }
    put_npy(path, 4, good[0], data, sizeof data);
    FAILS(f->dev, load_npy(f, path), GPUNN_ERR_FORMAT, "version 1 to 3");
    assert_int_equal(unlink(path), 0);
}

/* ---- files that numpy, gzip and torch wrote (tests/golden/make_golden.py) ---- */
static void files_of_others(void **state)
{
    fixture *f = *state;
    golden   g = golden_open("tests/golden/files.safetensors");
    for (int i = 0; i < g.count; i++) {
        const golden_tensor *file = &g.tensors[i];
        char                *slash = strchr(file->name, '/');
        if (strcmp(slash, "/file") != 0) continue;
        const char          *path = test_path(f, "other");
        const int            length = (int)(slash - file->name);
        const golden_tensor *expected = golden_find(&g, "%.*s/expected", length, file->name);
        gpunn_array          array;
        file_write(path, file->data, file->bytes);
#ifndef GPUNN_ZLIB
        if (strncmp(file->name, "idx_gz", 6) == 0) {
            assert_int_equal(unlink(path), 0);
            continue;
        }
#endif
        OK(f->dev, file->name[0] == 'n' ? gpunn_read_npy(f->dev, path, &array)
                                        : gpunn_read_idx(f->dev, path, &array));
        if (array.dtype != expected->dtype || array.rank != shape_rank(expected->shape) ||
            array.bytes != expected->bytes || memcmp(array.data, expected->data, array.bytes) != 0)
            fail_msg("%.*s is not what was written", length, file->name);
        for (int k = 0; k < array.rank; k++) assert_int_equal(array.dim[k], expected->shape.dim[k]);
        gpunn_array_free(f->dev, &array);
        assert_int_equal(unlink(path), 0);
    }
    golden_close(&g);
}

static void dtypes_of_torch(void **state)
{
    static const struct {
        const char *name;
        double      rounding;
    } kinds[] = {{"half", 0x1p-11}, {"bfloat", 0x1p-8}, {"double", 0}};
    fixture   *f = *state;
    golden     g = golden_open("tests/golden/dtypes.safetensors");
    gpunn_init zero = {GPUNN_INIT_ZEROS, 0, 0};
    float      value[15];
    for (int i = 0; i < COUNT(kinds); i++)
        MADE(f->dev, gpunn_parameter(f->model, kinds[i].name, GPUNN_SHAPE(3, 5), zero));
    MADE(f->dev, gpunn_parameter(f->model, "single", GPUNN_SHAPE(3, 5), zero));
    OK(f->dev, gpunn_load(f->model, "tests/golden/dtypes.safetensors"));
    for (int i = 0; i < COUNT(kinds); i++) {
        OK(f->dev, gpunn_read(gpunn_find(f->model, kinds[i].name), value, sizeof value));
        check_close_at(value, golden_get(&g, "single")->data, 15, kinds[i].rounding, 1e-6, kinds[i].name,
                       __FILE__, __LINE__);
    }
    golden_close(&g);
}

/* What is asked for without a model, a place or a file that fits. */
static void files_refused(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "c.safetensors"), *json = test_path(f, "long.json");
    gpunn_array array = {GPUNN_F32, -1, {0}, 4, (void *)"abc"};
    training    t = start_training(f, 0, 1, 0);
    FAILS(NULL, gpunn_save_memory(NULL, &array), GPUNN_ERR_ARGUMENT, "gpunn_save_memory", "model is NULL");
    FAILS(t.dev, gpunn_save_memory(t.model, NULL), GPUNN_ERR_ARGUMENT, "array is NULL");
    FAILS(NULL, gpunn_set_metadata(NULL, "k", "v"), GPUNN_ERR_ARGUMENT, "model is NULL");
    FAILS(t.dev, gpunn_set_metadata(t.model, NULL, "v"), GPUNN_ERR_ARGUMENT, "key is NULL");
    FAILS(t.dev, gpunn_write_npy(t.dev, path, &array), GPUNN_ERR_SHAPE, "rank is -1");
    FAILS(NULL, gpunn_write_safetensors(NULL, path, NULL, NULL, 0), GPUNN_ERR_ARGUMENT, "device is NULL");
    OK(t.dev, gpunn_checkpoint_save(t.opt, NULL, path));
    FAILS(t.dev, gpunn_checkpoint_load(t.opt, t.loader, path), GPUNN_ERR_STATE, "saved without a loader");
    assert_true(gpunn_next(t.loader));
    OK(t.dev, gpunn_train_step(t.opt, t.loss, .accumulate = 2));
    FAILS(t.dev, gpunn_checkpoint_save(t.opt, NULL, path), GPUNN_ERR_STATE, "accumulated 1 part of its");
    stop_training(&t);
    file_write(json, "{}", 2);
    assert_int_equal(truncate(json, ((off_t)64 << 20) + 1), 0);
    FAILS_NULL(f->dev, gpunn_spec_load(f->dev, json), GPUNN_ERR_FORMAT, "long.json", "64 MiB");
    (void)unlink(path), (void)unlink(json);
}

/* Sentences show the last 240 characters of a path. */
static void long_path(void **state)
{
    fixture    *f = *state;
    const char *folder = test_path(f, "");
    char        path[242], shown[300];
    gpunn_array array;
    memset(path, '/', sizeof path); /* more slashes than one are as one */
    memcpy(path, folder, strlen(folder));
    memcpy(path + 241 - 5, "x.idx", 6);
    file_write(path, "words", 5);
    (void)snprintf(shown, sizeof shown, "'%s' is not an IDX file", path + 1);
    FAILS(f->dev, gpunn_read_idx(f->dev, path, &array), GPUNN_ERR_FORMAT, shown);
    (void)unlink(path);
}

/* A checkpoint of two optimizers does not fit one of them alone. */
static void checkpoint_of_two(void **state)
{
    fixture      *f = *state;
    const char   *path = test_path(f, "c.safetensors");
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *h = gpunn_linear(x, "a", .out_features = 2);
    (void)MADE(f->dev, gpunn_linear(h, "b", .out_features = 2));
    gpunn_optimizer *a = MADE(f->dev, gpunn_sgd(f->model, .prefix = "a.")),
                    *b = MADE(f->dev, gpunn_sgd(f->model, .prefix = "b."));
    OK(f->dev, gpunn_checkpoint_save(a, NULL, path));
    gpunn_optimizer_destroy(b);
    FAILS(f->dev, gpunn_checkpoint_load(a, NULL, path), GPUNN_ERR_STATE, "holds 2 optimizers",
          "the model has 1");
    OK(f->dev, gpunn_checkpoint_save(a, NULL, path));
    b = MADE(f->dev, gpunn_sgd(f->model, .prefix = "b."));
    FAILS(f->dev, gpunn_checkpoint_load(a, NULL, path), GPUNN_ERR_STATE, "holds 1 optimizer,",
          "the model has 2");
    gpunn_optimizer_destroy(a), gpunn_optimizer_destroy(b);
    (void)unlink(path);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        test_with_device(weights_round_trip),    test_with_device(weights_odd_names),
        test_with_device(weights_dtypes),        test_with_device(weights_partial),
        test_with_device(weights_bad_headers),   test_with_device(weights_damaged),
        test_with_device(disk_failures),         test_with_device(saved_through_links),
        test_with_device(killed_saves),          test_with_device(resume_equals_uninterrupted),
        test_with_device(checkpoint_mismatches), test_with_device(checkpoint_averages),
        test_with_device(checkpoint_damaged),    test_with_device(checkpoint_schedules),
        test_with_device(memory_failures),       test_with_device(idx_types),
        test_with_device(idx_compressed),        test_with_device(cifar),
        test_with_device(npy_round_trip),        test_with_device(npy_headers),
        test_with_device(files_of_others),       test_with_device(dtypes_of_torch),
        test_with_device(other_dtypes),          test_with_device(other_dtypes_damaged),
        test_with_device(arrays_other_dtypes),   test_with_device(arrays_of_doubles),
        test_with_device(files_refused),         test_with_device(long_path),
        test_with_device(checkpoint_of_two),
    };
    return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}
