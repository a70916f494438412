/* Weights and specs that come from elsewhere than one file of the model's own: memory, a program's pak file,
 * under other names, in shards. */
#include "../test.h"

#include <fcntl.h>

/* ---- models ---- */
static gpunn_model *two_layers(fixture *f)
{
    gpunn_model  *model = gpunn_model_create(f->dev);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 4));
    MADE(f->dev, gpunn_linear(gpunn_batch_norm1d(gpunn_linear(x, "fc1", .out_features = 3), "bn"), "fc2",
                              .out_features = 2));
    return model;
}

/* Puts start, start + 1, ... into all weights. */
static void number_weights(fixture *f, gpunn_model *model, float start)
{
    float values[64];
    for (int i = 0; i < gpunn_parameter_count(model); i++) {
        gpunn_tensor *t = gpunn_parameter_at(model, i);
        for (size_t k = 0; k < gpunn_tensor_bytes(t) / sizeof(float); k++) values[k] = start++;
        OK(f->dev, gpunn_write(t, values, gpunn_tensor_bytes(t)));
    }
}

static void check_numbers(fixture *f, gpunn_model *model, float start)
{
    float values[64];
    for (int i = 0; i < gpunn_parameter_count(model); i++) {
        gpunn_tensor *t = gpunn_parameter_at(model, i);
        OK(f->dev, gpunn_read(t, values, gpunn_tensor_bytes(t)));
        for (size_t k = 0; k < gpunn_tensor_bytes(t) / sizeof(float); k++)
            if (values[k] != start++) fail_msg("%s[%zu] is %g", gpunn_tensor_name(t), k, (double)values[k]);
    }
}

/* ---- memory ---- */
static void weights_in_memory(void **state)
{
    fixture     *f = *state;
    const char  *path = test_path(f, "w.safetensors");
    gpunn_model *model = two_layers(f);
    gpunn_array  bytes;
    size_t       size;
    number_weights(f, model, 1);
    OK(f->dev, gpunn_save(model, path));
    OK(f->dev, gpunn_save_memory(model, &bytes));
    unsigned char *file = file_read(path, &size);
    assert_true(bytes.dtype == GPUNN_U8 && bytes.rank == 1 && bytes.bytes == size &&
                bytes.dim[0] == (int64_t)size);
    assert_memory_equal(bytes.data, file, size);
    free(file);

    number_weights(f, model, 100);
    /* in a block that ends there: a sanitizer sees a byte too many */
    for (size_t cut = 0; cut < size; cut++) {
        void *part = malloc(cut + 1);
        memcpy(part, bytes.data, cut);
        part = realloc(part, cut ? cut : 1);
        FAILS(f->dev, gpunn_load_memory(model, part, cut), GPUNN_ERR_FORMAT, "'memory'");
        free(part);
    }
    check_numbers(f, model, 100);
    OK(f->dev, gpunn_load_memory(model, bytes.data, bytes.bytes));
    check_numbers(f, model, 1);
    const char *const skip[] = {"fc1.", "bn.", NULL};
    number_weights(f, model, 100);
    OK(f->dev, gpunn_load_memory(model, bytes.data, bytes.bytes, .skip = skip));
    float bias[2];
    OK(f->dev, gpunn_read(gpunn_find(model, "fc2.bias"), bias, sizeof bias));
    assert_true(bias[0] == 34 && bias[1] == 35);

    FAILS(f->dev, gpunn_load_memory(model, NULL, 8), GPUNN_ERR_ARGUMENT, "gpunn_load_memory", "NULL");
    FAILS(f->dev, gpunn_save_memory(model, NULL), GPUNN_ERR_ARGUMENT, "gpunn_save_memory", "NULL");
    for (long n = 1, done = 0; !done; n++) { /* what fails leaves nothing */
        gpunn_array  more;
        const size_t held = f->memory.bytes;
        f->memory.fail_at = f->memory.calls + n;
        gpunn_status status = gpunn_save_memory(model, &more);
        f->memory.fail_at = 0;
        done = status == GPUNN_OK;
        assert_true((more.data != NULL) == done);
        if (!done) check_sentence(f->dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
        gpunn_array_free(f->dev, &more);
        assert_int_equal(f->memory.bytes, held);
    }
    gpunn_array_free(f->dev, &bytes);
    gpunn_model_destroy(model);
    assert_int_equal(unlink(path), 0);
}

/* A first load draws the weights that it does not read: skipped ones, those of other shapes, and those that
 * the file lacks. */
static void first_load_draws(void **state)
{
    enum { READ, SKIPPED, WIDER, NEW, TENSORS };
    static const char *const names[TENSORS] = {"read", "skipped", "wider", "new"};
    const char *const        skip[] = {"skipped", NULL};
    const gpunn_init         three = {GPUNN_INIT_CONSTANT, 3, 0}, seven = {GPUNN_INIT_CONSTANT, 7, 0};
    fixture                 *f = *state;
    gpunn_model             *model = gpunn_model_create(f->dev);
    gpunn_array              bytes;
    for (int i = 0; i < NEW; i++) MADE(f->dev, gpunn_parameter(model, names[i], GPUNN_SHAPE(2), three));
    OK(f->dev, gpunn_save_memory(model, &bytes));
    gpunn_model_destroy(model);
    for (int i = 0; i < TENSORS; i++)
        MADE(f->dev, gpunn_parameter(f->model, names[i], GPUNN_SHAPE(i == WIDER ? 5 : 2), seven));
    OK(f->dev, gpunn_load_memory(f->model, bytes.data, bytes.bytes, .skip = skip, .partial = true));
    for (int i = 0; i < TENSORS; i++) {
        int64_t n;
        float  *values = read_floats(f->dev, gpunn_parameter_at(f->model, i), &n);
        for (int64_t k = 0; k < n; k++)
            if (values[k] != (i == READ ? 3 : 7)) fail_msg("%s is %g", names[i], (double)values[k]);
        free(values);
    }
    gpunn_array_free(f->dev, &bytes);
}

static const char spec_text[] =
    "{\"gpunn_spec\": 1, \"tensors\": [{\"op\": \"input\", \"name\": \"x\", \"shape\": [\"N\", 4]}, {\"op\": "
    "\"linear\", \"name\": \"fc\", \"inputs\": [\"x\"], \"out_features\": 2}]}";

static void spec_in_memory(void **state)
{
    fixture     *f = *state;
    gpunn_model *model = MADE(f->dev, gpunn_spec_load_memory(f->dev, spec_text, sizeof spec_text - 1));
    assert_non_null(gpunn_find(model, "fc.weight"));
    gpunn_model_destroy(model);
    for (size_t cut = 0; cut < sizeof spec_text - 1; cut++) {
        assert_null(gpunn_spec_load_memory(f->dev, spec_text, cut));
        check_sentence(f->dev, GPUNN_ERR_FORMAT, __FILE__, __LINE__, "memory:1:", (const char *)NULL);
    }
    assert_null(gpunn_spec_load_memory(f->dev, NULL, 3));
    check_sentence(f->dev, GPUNN_ERR_ARGUMENT, __FILE__, __LINE__, "gpunn_spec_load_memory", "NULL",
                   (const char *)NULL);
}

/* ---- a pak file: files by name, in one block of memory ---- */
typedef enum fault { NONE, NO_SIZE, NO_READ, MUCH, SHRINKS, GROWS } fault;
typedef struct pak_file {
    const char *name;
    const void *data;
    int64_t     size;
} pak_file;
typedef struct pak {
    const pak_file *files;
    int             count, opened, closed;
    size_t          piece; /* a read gives so many bytes at most; 0: all */
    fault           fault;
} pak;
typedef struct pak_place {
    const pak_file *file;
    int64_t         at;
} pak_place;

static void *pak_open(void *user, const char *path)
{
    pak *p = user;
    for (int i = 0; i < p->count; i++)
        if (strcmp(p->files[i].name, path) == 0) {
            pak_place *place = calloc(1, sizeof *place);
            place->file = &p->files[i];
            p->opened++;
            return place;
        }
    return NULL;
}

static int64_t pak_size(void *user, void *file)
{
    const pak *p = user;
    return p->fault == NO_SIZE
               ? -5
               : ((pak_place *)file)->file->size + (p->fault == SHRINKS) - (p->fault == GROWS);
}

static int64_t pak_read(void *user, void *file, void *to, size_t bytes)
{
    const pak *p = user;
    pak_place *place = file;
    if (p->fault == NO_READ && place->at > 0) return -3;
    if (p->fault == MUCH) return (int64_t)bytes + 1;
    int64_t part = place->file->size - place->at;
    if (part > (int64_t)bytes) part = (int64_t)bytes;
    if (p->piece && part > (int64_t)p->piece) part = (int64_t)p->piece;
    memcpy(to, (const char *)place->file->data + place->at, (size_t)part);
    place->at += part;
    return part;
}

static void pak_close(void *user, void *file)
{
    ((pak *)user)->closed++;
    free(file);
}

static gpunn_io pak_io(pak *p)
{
    return (gpunn_io){pak_open, pak_size, pak_read, pak_close, p};
}

static void weights_in_pak(void **state)
{
    fixture     *f = *state;
    gpunn_model *model = two_layers(f);
    gpunn_array  bytes;
    number_weights(f, model, 1);
    OK(f->dev, gpunn_save_memory(model, &bytes));
    const pak_file files[] = {{"net/weights", bytes.data, (int64_t)bytes.bytes},
                              {"net/spec", spec_text, sizeof spec_text - 1}};
    pak            p = {.files = files, .count = 2};
    gpunn_io       io = pak_io(&p);
    number_weights(f, model, 50);
    for (size_t piece = 0; piece < 4; piece++) {
        p.piece = piece;
        number_weights(f, model, 50);
        OK(f->dev, gpunn_load(model, "net/weights", .io = &io));
        check_numbers(f, model, 1);
    }
    gpunn_model *made = MADE(f->dev, gpunn_spec_load(f->dev, "net/spec", .io = &io));
    gpunn_model_destroy(made);
    assert_true(p.opened == 5 && p.closed == 5);

    static const struct {
        fault        fault;
        gpunn_status status;
        const char  *word;
    } faults[] = {{NO_SIZE, GPUNN_ERR_IO, "size returned -5"},
                  {NO_READ, GPUNN_ERR_IO, "read returned -3"},
                  {MUCH, GPUNN_ERR_IO, "read returned"},
                  {SHRINKS, GPUNN_ERR_FORMAT, "write or download it again"},
                  {GROWS, GPUNN_ERR_FORMAT, "write or download it again"}};
    number_weights(f, model, 50);
    p.piece = 100;
    for (int i = 0; i < COUNT(faults); i++) {
        p.fault = faults[i].fault;
        FAILS(f->dev, gpunn_load(model, "net/weights", .io = &io), faults[i].status, "'net/weights'",
              faults[i].word);
        if (p.fault == SHRINKS || p.fault == GROWS) continue;
        p.piece = 1;
        assert_null(gpunn_spec_load(f->dev, "net/spec", .io = &io));
        check_sentence(f->dev, faults[i].status, __FILE__, __LINE__, "'net/spec'", faults[i].word,
                       (const char *)NULL);
    }
    p.fault = NONE;
    FAILS(f->dev, gpunn_load(model, "net/none", .io = &io), GPUNN_ERR_IO, "'net/none'", "open",
          "check the path");
    FAILS(f->dev, gpunn_load(model, "", .io = &io), GPUNN_ERR_ARGUMENT, "path");
    io.size = NULL;
    FAILS(f->dev, gpunn_load(model, "net/weights", .io = &io), GPUNN_ERR_ARGUMENT, ".io lacks a function");
    check_numbers(f, model, 50);
    assert_int_equal(p.opened, p.closed);
    gpunn_array_free(f->dev, &bytes);
    gpunn_model_destroy(model);
}

/* ---- renamed ---- */
static void check_renamed(fixture *f, const gpunn_array *bytes, const char *from, const char *to,
                          const char *expected)
{
    const gpunn_rename map[] = {{from, to}, {NULL, NULL}};
    gpunn_model       *model = gpunn_model_create(f->dev);
    const gpunn_init   zero = {GPUNN_INIT_ZEROS, 0, 0};
    float              value = 0;
    MADE(f->dev, gpunn_parameter(model, expected, GPUNN_SHAPE(1), zero));
    gpunn_status status = gpunn_load_memory(model, bytes->data, bytes->bytes, .map = map);
    if (status != GPUNN_OK) fail_msg("%s to %s: %s", from, to, gpunn_error(f->dev));
    OK(f->dev, gpunn_read(gpunn_parameter_at(model, 0), &value, sizeof value));
    assert_true(value == 7);
    gpunn_model_destroy(model);
}

/* One name, of a file and of a pattern, beside what becomes of it. */
static void weights_renamed(void **state)
{
    static const struct {
        const char *name, *from, *to, *expected;
    } cases[] = {
        {"a", "a", "b", "b"},
        {"a.b", "a", "c", "a.b"},
        {"a", "a.b", "c", "a"},
        {"bert.x.y", "bert.*", "*", "x.y"},
        {"x.gamma", "*.gamma", "*.weight", "x.weight"},
        {"x.gamma.gamma", "*.gamma", "*.weight", "x.gamma.weight"},
        {"h.3.attn.c.w", "h.*.attn.*", "layer.*.attention.*", "layer.3.attention.c.w"},
        {"h.3.attn.c.w", "*attn*", "*-*", "h.3.-.c.w"},
        {"aaab", "*a*b", "[*|*]", "[|aa]"},
        {"ab", "*", "x*", "xab"},
        {"ab", "**", "*|*", "|ab"},
        {"abc", "a*c*", "*+*", "b+"},
        {"abcabd", "*ab*d", "*,*", ",cab"},
        {"abc", "*d", "x", "abc"},
        {"abc", "a*", "one", "one"},
        {"\xc3\xa9*", "\xc3\xa9*", "e*", "e*"},
    };
    fixture *f = *state;
    for (int i = 0; i < COUNT(cases); i++) {
        gpunn_model     *model = gpunn_model_create(f->dev);
        const gpunn_init seven = {GPUNN_INIT_CONSTANT, 7, 0};
        gpunn_array      bytes;
        MADE(f->dev, gpunn_parameter(model, cases[i].name, GPUNN_SHAPE(1), seven));
        OK(f->dev, gpunn_save_memory(model, &bytes));
        check_renamed(f, &bytes, cases[i].from, cases[i].to, cases[i].expected);
        gpunn_array_free(f->dev, &bytes);
        gpunn_model_destroy(model);
    }
}

static void take_line(void *user, const char *line)
{
    strcat(strcat(user, line), "\n");
}

static void maps(void **state)
{
    fixture          *f = *state;
    gpunn_model      *model = two_layers(f);
    gpunn_array       bytes;
    const char *const skip[] = {"two.bias", "bn", NULL};
    char              lines[1000] = "";
    number_weights(f, model, 1);
    OK(f->dev, gpunn_save_memory(model, &bytes));
    number_weights(f, model, 50);
    gpunn_rename map[] = {/* the first that fits */
                          {"fc1.weight", "first"},
                          {"fc1.*", "one.*"},
                          {"fc2.*", "two.*"},
                          {NULL, NULL}};
    OK(f->dev, gpunn_load_memory(model, bytes.data, bytes.bytes, .map = map, .partial = true, .skip = skip,
                                 .report = take_line, .user = lines));
    assert_string_equal(
        lines, "fc1.weight: in the model only\nfc1.bias: in the model only\nfc2.weight: in the model only\n"
               "fc2.bias: in the model only\nfirst: in the file only\none.bias: in the file only\n"
               "two.weight: in the file only\n");
    check_numbers(f, model, 50);

    const gpunn_rename swap[] = {{"fc1.bias", "bn.bias"}, {"bn.bias", "fc1.bias"}, {NULL, NULL}};
    const float        first[3] = {13, 14, 15}, second[3] = {19, 20, 21};
    float              values[3];
    for (long n = 1, done = 0; !done; n++) {
        const size_t held = f->memory.bytes;
        f->memory.fail_at = f->memory.calls + n;
        done = gpunn_load_memory(model, bytes.data, bytes.bytes, .map = swap) == GPUNN_OK;
        f->memory.fail_at = 0;
        if (!done) check_sentence(f->dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
        assert_int_equal(f->memory.bytes, held);
    }
    OK(f->dev, gpunn_read(gpunn_find(model, "bn.bias"), values, sizeof values));
    assert_memory_equal(values, first, sizeof values);
    OK(f->dev, gpunn_read(gpunn_find(model, "fc1.bias"), values, sizeof values));
    assert_memory_equal(values, second, sizeof values);

    const gpunn_rename bad[][2] = {{{"*.bias", "bias"}, {NULL, NULL}},
                                   {{"a", NULL}, {NULL, NULL}},
                                   {{"a", "b*"}, {NULL, NULL}},
                                   {{"*********", ""}, {NULL, NULL}}};
    const char *const  words[] = {"gives two tensors of 'memory' the name 'bias'", "'a', 'NULL'", "'a', 'b*'",
                                  "'*********', ''"};
    for (int i = 0; i < COUNT(bad); i++)
        FAILS(f->dev, gpunn_load_memory(model, bytes.data, bytes.bytes, .map = bad[i]), GPUNN_ERR_ARGUMENT,
              ".map", words[i]);
    gpunn_array_free(f->dev, &bytes);
    gpunn_model_destroy(model);
}

/* ---- shards ---- */
static void put_text(const char *path, const char *text)
{
    file_write(path, text, strlen(text));
}

/* A file of one tensor [2] or, with more, two. */
static void put_shard(fixture *f, const char *path, const char *name, const char *more, float value)
{
    float             values[2] = {value, value + 1};
    const gpunn_array array = {GPUNN_F32, 1, {2}, sizeof values, values}, arrays[2] = {array, array};
    const char *const names[2] = {name, more};
    OK(f->dev, gpunn_write_safetensors(f->dev, path, names, arrays, more ? 2 : 1));
}

static float first_of(fixture *f, const char *name)
{
    float values[2];
    OK(f->dev, gpunn_read(gpunn_find(f->model, name), values, sizeof values));
    assert_true(values[1] == values[0] + 1);
    return values[0];
}

#define MAP(pairs) "{\"metadata\": {\"total_size\": 24}, \"weight_map\": {" pairs "}}"

static void shards(void **state)
{
    static const struct {
        const char  *index, *word[2];
        gpunn_status status;
    } bad[] = {
        {MAP("\"a\": \"x-1.safetensors\", \"b\": \"none.safetensors\""),
         {"none.safetensors", "No such file"},
         GPUNN_ERR_IO},
        {MAP("\"a\": \"x-1.safetensors\", \"c\": \"x-1.safetensors\""),
         {"'c'", "which lacks it"},
         GPUNN_ERR_FORMAT},
        {MAP("\"a\": \"x-1.safetensors\", \"b\": \"1.safetensors\""),
         {"1.safetensors", "No such file"},
         GPUNN_ERR_IO},
        {MAP("\"a\": \"x-2.safetensors\", \"b\": \"x-1.safetensors\""),
         {"'a'", "which lacks it"},
         GPUNN_ERR_FORMAT},
        {MAP("\"a\": \"x-1.safetensors\", \"b\": \"x-3.safetensors\""),
         {"'a'", "another shard has too"},
         GPUNN_ERR_FORMAT},
        {MAP("\"a\": \"../x-1.safetensors\""), {"../x-1.safetensors", "beside the index"}, GPUNN_ERR_FORMAT},
        {MAP("\"a\": \"/etc/passwd\""), {"/etc/passwd", "beside the index"}, GPUNN_ERR_FORMAT},
        {MAP("\"a\": \"d\\\\x-1.safetensors\""), {"x-1.safetensors", "beside the index"}, GPUNN_ERR_FORMAT},
        {MAP("\"a\": \"c:x-1.safetensors\""), {"c:x-1.safetensors", "beside the index"}, GPUNN_ERR_FORMAT},
        {MAP("\"a\": \"..\""), {"..", "beside the index"}, GPUNN_ERR_FORMAT},
        {MAP("\"a\": \"\""), {"index", "beside the index"}, GPUNN_ERR_FORMAT},
        {MAP("\"a\": \"x-1.safetensors\\u0000\""), {"index", "beside the index"}, GPUNN_ERR_FORMAT},
        {MAP("\"a\": 1"), {"1:54", "does not name a file"}, GPUNN_ERR_FORMAT},
        {MAP("\"a\": \"index.json\""), {"index.json", "not a safetensors file"}, GPUNN_ERR_FORMAT},
        {"{\"weight_map\": []}", {"weight_map"}, GPUNN_ERR_FORMAT},
        {"[]", {"weight_map"}, GPUNN_ERR_FORMAT},
        {"{\"weight_map\": {}", {"index.json:1:", "JSON"}, GPUNN_ERR_FORMAT},
        {MAP(""), {"b: in the model only", ".partial"}, GPUNN_ERR_FORMAT},
    };
    fixture         *f = *state;
    const char      *index = test_path(f, "index.json"), *file[3];
    const gpunn_init normal = {GPUNN_INIT_NORMAL, 0, 1};
    gpunn_array      array;
    MADE(f->dev, gpunn_parameter(f->model, "b", GPUNN_SHAPE(2), normal));
    MADE(f->dev, gpunn_parameter(f->model, "a", GPUNN_SHAPE(2), normal));
    put_shard(f, file[0] = test_path(f, "x-1.safetensors"), "a", NULL, 5);
    put_shard(f, file[1] = test_path(f, "x-2.safetensors"), "d", "b", 8);
    put_shard(f, file[2] = test_path(f, "x-3.safetensors"), "a", "b", 1);
    put_text(index, MAP("\"a\": \"x-1.safetensors\", \"b\": \"x-2.safetensors\""));
    FAILS(f->dev, gpunn_load(f->model, index), GPUNN_ERR_FORMAT, "index.json", "d: in the file only");
    const gpunn_rename map[] = {{"d", "b"}, {"b", "d"}, {NULL, NULL}};
    const char *const  skip[] = {"d", NULL};
    OK(f->dev, gpunn_load(f->model, index, .skip = skip));
    assert_true(first_of(f, "a") == 5 && first_of(f, "b") == 8);
    put_shard(f, file[1], "d", "b", 20);
    OK(f->dev, gpunn_load(f->model, index, .map = map, .skip = skip));
    assert_true(first_of(f, "b") == 20);
    OK(f->dev, gpunn_read_safetensors(f->dev, index, "a", &array));
    assert_true(array.bytes == 8 && *(float *)array.data == 5);
    gpunn_array_free(f->dev, &array);

    number_weights(f, f->model, 30);
    for (int i = 0; i < COUNT(bad); i++) {
        put_text(index, bad[i].index);
        FAILS(f->dev, gpunn_load(f->model, index), bad[i].status, bad[i].word[0],
              bad[i].word[1] ? bad[i].word[1] : "");
    }
    put_text(index, MAP("\"a\": \"x-1.safetensors\", \"b\": \"x-2.safetensors\""));
    for (long n = 1, done = 0; !done; n++) {
        const size_t held = f->memory.bytes;
        f->memory.fail_at = f->memory.calls + n;
        done = gpunn_load(f->model, index, .skip = skip) == GPUNN_OK;
        f->memory.fail_at = 0;
        if (!done) check_numbers(f, f->model, 30);
        if (!done) check_sentence(f->dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
        assert_int_equal(f->memory.bytes, held);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(unlink(file[i]), 0);
    assert_int_equal(unlink(index), 0);
}

/* The index and its shards in a pak file, each of them opened and closed once. */
static void shards_in_pak(void **state)
{
    fixture         *f = *state;
    const gpunn_init zero = {GPUNN_INIT_ZEROS, 0, 0};
    gpunn_array      bytes[2];
    for (int i = 0; i < 2; i++) {
        gpunn_model     *model = gpunn_model_create(f->dev);
        const gpunn_init constant = {GPUNN_INIT_CONSTANT, (float)i + 2, 0};
        MADE(f->dev, gpunn_parameter(model, i ? "b" : "a", GPUNN_SHAPE(2), constant));
        MADE(f->dev, gpunn_parameter(f->model, i ? "b" : "a", GPUNN_SHAPE(2), zero));
        OK(f->dev, gpunn_save_memory(model, &bytes[i]));
        gpunn_model_destroy(model);
    }
    static const char index[] = MAP("\"a\": \"1\", \"b\": \"2\"");
    const pak_file    files[] = {{"net/2", bytes[1].data, (int64_t)bytes[1].bytes},
                                 {"net/1", bytes[0].data, (int64_t)bytes[0].bytes},
                                 {"net/index.json", index, sizeof index - 1}};
    pak               p = {.files = files, .count = 3};
    const gpunn_io    io = pak_io(&p);
    float             values[2];
    OK(f->dev, gpunn_load(f->model, "net/index.json", .io = &io));
    assert_true(p.opened == 3 && p.closed == 3);
    OK(f->dev, gpunn_read(gpunn_find(f->model, "a"), values, sizeof values));
    assert_true(values[0] == 2 && values[1] == 2);
    OK(f->dev, gpunn_read(gpunn_find(f->model, "b"), values, sizeof values));
    assert_true(values[0] == 3 && values[1] == 3);
    p.count = 2; /* without the index */
    FAILS(f->dev, gpunn_load(f->model, "net/index.json", .io = &io), GPUNN_ERR_IO, "net/index.json");
    for (int i = 0; i < 2; i++) gpunn_array_free(f->dev, &bytes[i]);
}

/* ---- how much memory loading takes ---- */
enum { LARGE = 1 << 21 }; /* floats */

/* A parameter of more than the pieces in which weights are made and read, with a neighbour that no file
 * has. */
static gpunn_model *large_model(fixture *f)
{
    gpunn_model     *model = gpunn_model_create(f->dev);
    const gpunn_init normal = {GPUNN_INIT_NORMAL, 0, 1};
    MADE(f->dev, gpunn_parameter(model, "large", GPUNN_SHAPE(LARGE), normal));
    MADE(f->dev, gpunn_parameter(model, "other", GPUNN_SHAPE(LARGE / 4 + 3), normal));
    return model;
}

static float *values_of(fixture *f, gpunn_model *model, const char *name)
{
    gpunn_tensor *t = gpunn_find(model, name);
    float        *values = malloc(gpunn_tensor_bytes(t));
    OK(f->dev, gpunn_read(t, values, gpunn_tensor_bytes(t)));
    return values;
}

static void loaded_in_pieces(void **state)
{
    fixture          *f = *state;
    const char       *path = test_path(f, "large.safetensors");
    float            *given = malloc(LARGE * sizeof *given);
    const gpunn_array array = {GPUNN_F32, 1, {LARGE}, LARGE * sizeof *given, given};
    const char *const name = "large";
    for (int i = 0; i < LARGE; i++) given[i] = (float)i;
    OK(f->dev, gpunn_write_safetensors(f->dev, path, &name, &array, 1));
    gpunn_model *twin = large_model(f), *model = large_model(f);
    float       *drawn = values_of(f, twin, "large"), *other = values_of(f, twin, "other");
    const size_t held = f->memory.peak = f->memory.bytes, weights = 4 * (LARGE + LARGE / 4);
    OK(f->dev, gpunn_load(model, path, .partial = true));
    /* two pieces of 1 MiB, and what holds the file's header */
    assert_in_range(f->memory.peak - held, 0, weights + (5 << 19));
    float *read = values_of(f, model, "large"), *left = values_of(f, model, "other");
    assert_memory_equal(read, given, LARGE * sizeof *given);
    assert_memory_equal(left, other, gpunn_tensor_bytes(gpunn_find(model, "other")));
    free(read), free(left);

    /* A file that breaks off, or memory that fails, leaves a model that can still be loaded, or is as it was
     * drawn. */
    size_t         size;
    unsigned char *file = file_read(path, &size);
    const pak_file files[] = {{"large", file, (int64_t)size}};
    pak            p = {.files = files, .count = 1, .piece = 1 << 20, .fault = SHRINKS};
    const gpunn_io io = pak_io(&p);
    gpunn_model   *second = large_model(f);
    p.fault = NO_READ;
    FAILS(f->dev, gpunn_load(second, "large", .io = &io, .partial = true), GPUNN_ERR_IO, "read returned -3");
    FAILS(f->dev, gpunn_load(second, path), GPUNN_ERR_FORMAT, "other: in the model only");
    for (long n = 1, done = 0; !done; n++) {
        const size_t before = f->memory.bytes;
        f->memory.fail_at = f->memory.calls + n;
        done = gpunn_load(second, path, .partial = true) == GPUNN_OK;
        f->memory.fail_at = 0;
        if (!done) assert_int_equal(f->memory.bytes, before);
        if (!done) check_sentence(f->dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
    }
    gpunn_model *third = large_model(f);
    FAILS(f->dev, gpunn_load(third, "large", .io = &io, .partial = true), GPUNN_ERR_IO, "read returned -3");
    read = values_of(f, second, "large");
    assert_memory_equal(read, given, LARGE * sizeof *given);
    free(read);
    read = values_of(f, third, "large");
    assert_memory_equal(read, drawn, LARGE * sizeof *drawn);
    free(read), free(drawn), free(other), free(given), free(file);
    gpunn_model_destroy(twin), gpunn_model_destroy(model), gpunn_model_destroy(second),
        gpunn_model_destroy(third);
    assert_int_equal(unlink(path), 0);
}

/* Two numbers behind 4.5 GiB that lie nowhere: the disk holds what was written alone. */
static void beyond_4_gib(void **state)
{
    enum { HEADER = 192 };
    const int64_t    hole = (int64_t)9 << 29, size = 8 + HEADER + hole + 8;
    const float      values[2] = {3, 4};
    const uint64_t   length = HEADER;
    const gpunn_init zero = {GPUNN_INIT_ZEROS, 0, 0};
    fixture         *f = *state;
    const char      *path = test_path(f, "big.safetensors");
    char             header[HEADER + 1];
    const int        used = snprintf(
               header, sizeof header,
               "{\"hole\":{\"dtype\":\"U8\",\"shape\":[%lld],\"data_offsets\":[0,%lld]},\"tail\":{\"dtype\":"
                      "\"F32\",\"shape\":[2],\"data_offsets\":[%lld,%lld]}}",
               (long long)hole, (long long)hole, (long long)hole, (long long)hole + 8);
    memset(header + used, ' ', (size_t)(HEADER - used));
    const int  fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    const bool room = fd >= 0 && ftruncate(fd, size) == 0 && pwrite(fd, &length, 8, 0) == 8 &&
                      pwrite(fd, header, HEADER, 8) == HEADER && pwrite(fd, values, 8, size - 8) == 8;
    if (fd >= 0) (void)close(fd);
    const char *const skip[] = {"hole", NULL};
    gpunn_tensor     *tail = MADE(f->dev, gpunn_parameter(f->model, "tail", GPUNN_SHAPE(2), zero));
    gpunn_status      status = room ? gpunn_load(f->model, path, .skip = skip) : GPUNN_OK;
    (void)unlink(path);
    if (!room) SKIP("no room for a file of 4.5 GiB with a hole");
    float read[2];
    OK(f->dev, status);
    OK(f->dev, gpunn_read(tail, read, sizeof read));
    assert_memory_equal(read, values, sizeof read);
}

/* ---- models that are only evaluated ---- */
/* The results of two layers, and what their model holds behind a batch of 32. */
static size_t evaluate(fixture *f, bool inference, float *results)
{
    enum { WIDE = 512, ROWS = 32 };
    static float     x[ROWS * WIDE];
    const gpunn_init normal = {GPUNN_INIT_NORMAL, 0, 1};
    gpunn_model     *model = gpunn_model_create(f->dev, .inference = inference);
    gpunn_tensor    *input = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, WIDE)), *weight;
    gpunn_tensor    *y = gpunn_linear(gpunn_linear(input, "fc1", .out_features = WIDE), "fc2",
                                      .out_features = WIDE);
    for (int i = 0; i < ROWS * WIDE; i++) x[i] = (float)(i % 37) / 37;
    OK(f->dev, gpunn_set_init(weight = gpunn_find(model, "fc1.weight"), normal));
    OK(f->dev, gpunn_write(input, x, sizeof x));
    OK(f->dev, gpunn_forward(&y, 1));
    OK(f->dev, gpunn_read(y, results, sizeof x));
    size_t bytes = gpunn_memory_allocated(f->dev), told = 0;
    OK(f->dev, gpunn_model_summary(model, .batch_size = ROWS, .outputs = {y}, .bytes = &told));
    assert_true(told <= bytes);
    if (inference) {
        gpunn_tensor *loss = gpunn_mean(y, GPUNN_ALL, false);
        FAILS(f->dev, gpunn_backward(loss), GPUNN_ERR_STATE, "a training step", ".inference = true",
              "create it without");
        FAILS(f->dev, gpunn_model_summary(model, .loss = loss, .bytes = &told), GPUNN_ERR_STATE,
              ".inference = true");
        assert_null(gpunn_adam(model));
        check_sentence(f->dev, GPUNN_ERR_STATE, __FILE__, __LINE__, "gpunn_adam", ".inference = true",
                       (const char *)NULL);
        OK(f->dev, gpunn_forward(&y, 1)); /* it still works */
        assert_int_equal(gpunn_memory_allocated(f->dev), bytes);
    }
    gpunn_model_destroy(model);
    return bytes;
}

static void evaluated_only(void **state)
{
    fixture     *f = *state;
    float       *usual = malloc(32 * 512 * sizeof *usual), *lean = malloc(32 * 512 * sizeof *lean);
    const size_t more = evaluate(f, false, usual), less = evaluate(f, true, lean);
    check_close(lean, usual, 32 * 512, 1e-5, 1e-4);
    if (gpunn_device_type(f->dev) == GPUNN_DEVICE_CPU)
        assert_in_range(more - less, 2 * 512 * 512 * 4, 2 * 512 * 512 * 5);
    free(usual), free(lean);

    static const char trained[] = "{\"gpunn_spec\": 1, \"tensors\": [{\"op\": \"input\", \"name\": \"x\", "
                                  "\"shape\": [\"N\", 4]}, {\"op\": "
                                  "\"linear\", \"name\": \"fc\", \"inputs\": [\"x\"], \"out_features\": 1}, "
                                  "{\"op\": \"mean\", \"name\": \"l\", "
                                  "\"inputs\": [\"fc\"], \"dims\": [0, 1]}], \"loss\": \"l\", \"optimizer\": "
                                  "{\"type\": \"sgd\", \"lr\": 0.1}}";
    gpunn_model      *model = MADE(f->dev,
                                   gpunn_spec_load_memory(f->dev, trained, sizeof trained - 1, .inference = true));
    assert_null(gpunn_spec_optimizer(model));
    check_sentence(f->dev, GPUNN_ERR_STATE, __FILE__, __LINE__, "gpunn_sgd", ".inference = true",
                   (const char *)NULL);
    gpunn_model_destroy(model);
}

/* ---- weights in 16 bits ---- */
enum { WORDS = 11, BATCH = 7, FULL = 1000 };
/* A tied embedding, a layer of `wide` features but where these are many, a convolution of them; their weights
 * are multiples of 2^-20 below 1/8. */
static gpunn_model *two_ways(fixture *f, gpunn_precision precision, bool inference, int wide,
                             gpunn_tensor **words, gpunn_tensor **y)
{
    gpunn_model  *model = gpunn_model_create(f->dev, .precision = precision, .inference = inference);
    gpunn_tensor *h = *words = gpunn_input(model, "words", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, 1));
    h = gpunn_embedding(h, "words", .num_embeddings = WORDS, .embedding_dim = wide);
    h = gpunn_tanh(wide <= FULL ? gpunn_linear(h, "fc", .out_features = wide) : h);
    h = gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 1, 1, wide));
    h = gpunn_conv2d(h, "conv", .out_channels = 2, .kernel_size = 1);
    h = gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 2, wide));
    *y = MADE(f->dev,
              gpunn_linear(h, "head", .out_features = WORDS, .weight = gpunn_find(model, "words.weight")));
    return model;
}

static void write_weights(fixture *f, gpunn_model *model)
{
    uint32_t draw = 1;
    for (int i = 0; i < gpunn_parameter_count(model); i++) {
        gpunn_tensor *t = gpunn_parameter_at(model, i);
        const size_t  count = gpunn_tensor_bytes(t) / sizeof(float);
        float        *values = malloc(gpunn_tensor_bytes(t));
        for (size_t k = 0; k < count; k++) {
            draw = draw * 1664525u + 1013904223u;
            values[k] = ldexpf((float)(draw >> 14) - 131072, -20);
        }
        OK(f->dev, gpunn_write(t, values, gpunn_tensor_bytes(t)));
        free(values);
    }
}

/* All weights of one model, as the program sees them, into the other; returns how many differ from what was
 * there. */
static int copy_weights(fixture *f, gpunn_model *from, gpunn_model *to)
{
    int changed = 0;
    for (int i = 0; i < gpunn_parameter_count(from); i++) {
        gpunn_tensor *t = gpunn_parameter_at(from, i), *other = gpunn_parameter_at(to, i);
        const size_t  bytes = gpunn_tensor_bytes(t);
        float        *values = malloc(bytes), *before = malloc(bytes);
        OK(f->dev, gpunn_read(t, values, bytes));
        OK(f->dev, gpunn_read(other, before, bytes));
        for (size_t k = 0; k < bytes / sizeof(float); k++) changed += values[k] != before[k];
        OK(f->dev, gpunn_write(other, values, bytes));
        free(values), free(before);
    }
    return changed;
}

static void run_words(fixture *f, gpunn_tensor *words, gpunn_tensor *y, int batch, float *results)
{
    int64_t word[BATCH];
    for (int i = 0; i < batch; i++) word[i] = (i * 5 + 3) % WORDS;
    OK(f->dev, gpunn_write(words, word, (size_t)batch * sizeof *word));
    OK(f->dev, gpunn_forward(&y, 1));
    OK(f->dev, gpunn_read(y, results, (size_t)batch * 2 * WORDS * sizeof *results));
}

static void weights_in_16_bits(void **state)
{
    static const int widths[] = {1, 2, 3, 31, 64, 130, 4100};
    fixture         *f = *state;
    const bool       cpu = gpunn_device_type(f->dev) == GPUNN_DEVICE_CPU;
    for (int i = 0; i < 2 * (int)(sizeof widths / sizeof *widths); i++) {
        const int             wide = widths[i / 2];
        const gpunn_precision precision = i % 2 ? GPUNN_PRECISION_F16 : GPUNN_PRECISION_BF16;
        gpunn_tensor         *words, *y, *other_words, *other_y;
        gpunn_model          *model = two_ways(f, precision, true, wide, &words, &y);
        gpunn_model *usual = two_ways(f, cpu ? GPUNN_PRECISION_F32 : precision, cpu, wide, &other_words,
                                      &other_y);
        float        results[BATCH * 2 * WORDS], expected[BATCH * 2 * WORDS];
        write_weights(f, model);
        write_weights(f, usual);
        const int rounded = (WORDS + (wide <= FULL ? wide : 0)) * wide;
        assert_true(copy_weights(f, model, usual) > rounded / 2); /* and are so in both now */
        assert_int_equal(copy_weights(f, usual, model), 0);
        for (int batch = 1; batch <= BATCH; batch += 2) {
            run_words(f, words, y, batch, results);
            run_words(f, other_words, other_y, batch, expected);
            if (precision == GPUNN_PRECISION_BF16 && strstr(gpunn_device_name(f->dev), "BF16"))
                check_close(results, expected, batch * 2 * WORDS, 0.02, 0.02); /* x is rounded, too */
            else /* sums may have another order */
                check_close(results, expected, batch * 2 * WORDS, 2e-5, 2e-5);
        }
        gpunn_model_destroy(model);
        gpunn_model_destroy(usual);
    }
}

/* Every kind of number, rounded as PyTorch's .to(dtype) rounds it. */
static void rounding(void **state)
{
    static const float given[] = {1.00390625f, 1.01171875f, 3.4e38f,  65519.0f, 65520.0f, -65520.0f,
                                  6e-8f,       2.9e-8f,     3.1e-8f,  1.5e-5f,  6.1e-5f,  -0.0f,
                                  2049.0f,     2051.0f,     INFINITY, -1e-41f};
    static const float in_bf16[] = {1,
                                    1.015625f,
                                    INFINITY,
                                    65536,
                                    65536,
                                    -65536,
                                    6.00703061e-08f,
                                    2.89874151e-08f,
                                    3.09664756e-08f,
                                    1.50203705e-05f,
                                    6.10351562e-05f,
                                    -0.0f,
                                    2048,
                                    2048,
                                    INFINITY,
                                    0};
    static const float in_f16[] = {
        1.00390625f,     1.01171875f,     INFINITY,        65504, INFINITY, -INFINITY, 5.96046448e-08f, 0,
        5.96046448e-08f, 1.50203705e-05f, 6.09755516e-05f, -0.0f, 2048,     2052,      INFINITY,        0};
    enum { COUNT = sizeof given / sizeof *given };
    fixture *f = *state;
    float    read[COUNT + 1], nan[COUNT + 1];
    for (int i = 0; i < 2; i++) {
        gpunn_model *model = gpunn_model_create(
            f->dev, .precision = i ? GPUNN_PRECISION_F16 : GPUNN_PRECISION_BF16, .inference = true);
        gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, COUNT + 1));
        MADE(f->dev, gpunn_linear(x, "fc", .out_features = 1));
        memcpy(nan, given, sizeof given);
        nan[COUNT] = NAN;
        OK(f->dev, gpunn_write(gpunn_find(model, "fc.weight"), nan, sizeof nan));
        OK(f->dev, gpunn_read(gpunn_find(model, "fc.weight"), read, sizeof read));
        for (int k = 0; k < COUNT; k++) { /* a float below 1.2e-38 may count as 0 */
            const float right = i ? in_f16[k] : in_bf16[k];
            if (k == COUNT - 1 ? !(fabsf(read[k]) < 1.2e-38f) : memcmp(&read[k], &right, sizeof right) != 0)
                fail_msg("%.9g became %.9g, not %.9g", (double)given[k], (double)read[k], (double)right);
        }
        assert_true(read[COUNT] != read[COUNT]);
        gpunn_model_destroy(model);
    }
}

static void files_of_16_bits(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *words, *y;
    gpunn_array   wide, narrow, again;
    gpunn_model  *model = two_ways(f, GPUNN_PRECISION_F32, false, 33, &words, &y);
    write_weights(f, model);
    OK(f->dev, gpunn_save_memory(model, &wide));
    gpunn_model *first = two_ways(f, GPUNN_PRECISION_BF16, true, 33, &words, &y);
    OK(f->dev, gpunn_load_memory(first, wide.data, wide.bytes));
    OK(f->dev, gpunn_save_memory(first, &narrow));
    assert_true(narrow.bytes < wide.bytes - 2 * 33 * (33 + WORDS) + 64);
    OK(f->dev, gpunn_load_memory(first, wide.data, wide.bytes)); /* over what is there */
    OK(f->dev, gpunn_save_memory(first, &again));
    assert_true(again.bytes == narrow.bytes && memcmp(again.data, narrow.data, narrow.bytes) == 0);
    gpunn_array_free(f->dev, &again);
    gpunn_model *second = two_ways(f, GPUNN_PRECISION_BF16, true, 33, &words, &y);
    OK(f->dev, gpunn_load_memory(second, narrow.data, narrow.bytes));
    assert_int_equal(copy_weights(f, first, second), 0);
    OK(f->dev, gpunn_load_memory(model, narrow.data, narrow.bytes));
    assert_int_equal(copy_weights(f, second, model), 0);
    for (size_t cut = 0; cut < narrow.bytes; cut += 97)
        FAILS(f->dev, gpunn_load_memory(second, narrow.data, cut), GPUNN_ERR_FORMAT, "'memory'");
    assert_int_equal(copy_weights(f, model, second), 0);
    gpunn_array_free(f->dev, &wide);
    gpunn_array_free(f->dev, &narrow);
    gpunn_model_destroy(model), gpunn_model_destroy(first), gpunn_model_destroy(second);
}

/* What a model for evaluation holds, and what its narrow weights refuse. */
static void narrow_weights(void **state)
{
    enum { WIDE = 256 };
    fixture      *f = *state;
    gpunn_tensor *words, *y;
    float         results[2 * WORDS], memory[WIDE * WIDE] = {0};
    const size_t  before = gpunn_memory_allocated(f->dev);
    size_t        told = 0;
    gpunn_model  *model = two_ways(f, GPUNN_PRECISION_BF16, true, WIDE, &words, &y);
    OK(f->dev, gpunn_model_summary(model, .outputs = {y}, .bytes = &told));
    run_words(f, words, y, 1, results);
    assert_in_range(gpunn_memory_allocated(f->dev) - before, 2 * WIDE * WIDE, 3 * WIDE * WIDE);
    assert_in_range(told, 2 * WIDE * WIDE, 3 * WIDE * WIDE);
    gpunn_tensor *weight = gpunn_find(model, "fc.weight");
    assert_null(gpunn_data(weight));
    check_sentence(f->dev, GPUNN_ERR_STATE, __FILE__, __LINE__, "gpunn_data 'fc.weight'", "bf16",
                   (const char *)NULL);
    FAILS(f->dev, gpunn_bind(weight, memory, sizeof memory), GPUNN_ERR_STATE, "'fc.weight'", "in bf16",
          "bind it before");
    gpunn_tensor *sum = MADE(f->dev, gpunn_sum(weight, GPUNN_ALL, false));
    FAILS(f->dev, gpunn_forward(&sum, 1), GPUNN_ERR_UNSUPPORTED, "sum", "'fc.weight' in bf16",
          "before its weights");
    run_words(f, words, y, 1, results); /* it still works */
    OK(f->dev, gpunn_forward(&weight, 1));
    gpunn_model_destroy(model);
    if (gpunn_device_type(f->dev) != GPUNN_DEVICE_CPU) return;

    model = two_ways(f, GPUNN_PRECISION_BF16, true, WIDE, &words, &y);
    OK(f->dev, gpunn_bind(gpunn_find(model, "fc.weight"), memory, sizeof memory));
    run_words(f, words, y, 1, results);
    assert_ptr_equal(gpunn_data(gpunn_find(model, "fc.weight")), memory);
    gpunn_model_destroy(model);
}

/* To a CPU, which has no 16-bit weights of convolutions, and back. */
static void narrow_weights_move(void **state)
{
    fixture      *f = *state;
    gpunn_device *cpu = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 2, .realloc_fn = hook_realloc,
                                          .user = &f->memory);
    gpunn_tensor *words, *y;
    float         before[2 * 2 * WORDS], after[2 * 2 * WORDS];
    gpunn_model  *model = two_ways(f, GPUNN_PRECISION_BF16, true, 34, &words, &y);
    write_weights(f, model);
    run_words(f, words, y, 2, before);
    OK(cpu, gpunn_model_to(model, cpu));
    if (gpunn_device_type(f->dev) == GPUNN_DEVICE_CPU) {
        OK(cpu, gpunn_forward(&y, 1));
        OK(cpu, gpunn_read(y, after, sizeof after));
        assert_memory_equal(after, before, sizeof after);
    } else
        FAILS(cpu, gpunn_forward(&y, 1), GPUNN_ERR_UNSUPPORTED,
              "conv: .inference = true keeps 'conv.weight' in bf16", "conv2d cannot read on",
              "build the whole model");
    OK(f->dev, gpunn_model_to(model, f->dev));
    run_words(f, words, y, 2, after);
    assert_memory_equal(after, before, sizeof after);
    gpunn_model_destroy(model);
    gpunn_device_close(cpu);
}

/* ---- GGUF ---- */
typedef struct gguf {
    unsigned char at[1024];
    size_t        size;
} gguf;

/* What a file says. It has the tensors "a" of [2, 3], "b" of [3] and "c" of [2, 32]. */
typedef struct gguf_claims {
    uint64_t    version, tensors, values, key_bytes, value_type, elements, depth, alignment_type, alignment;
    const char *b; /* its name */
    uint64_t    rank, dim, type, offset;
} gguf_claims;
static const gguf_claims gguf_sound = {3, 3, 4, 4, 5, 2, 1, 4, 32, "b", 1, 3, 1, 32};

static void put(gguf *g, uint64_t number, int bytes)
{
    for (int i = 0; i < bytes; i++) g->at[g->size++] = (unsigned char)(i < 8 ? number >> 8 * i : 0);
}

static void put_string(gguf *g, const char *text, uint64_t bytes)
{
    put(g, bytes, 8);
    for (; *text; text++) put(g, (unsigned char)*text, 1);
}

static void put_float(gguf *g, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(g, bits, 4);
}

static void put_values(gguf *g, const gguf_claims *c)
{
    put_string(g, "name", c->key_bytes);
    put(g, 8, 4);
    put_string(g, "a \"\xC3\xA9\"\n\xFF", 8);
    put_string(g, "list", 4);
    put(g, 9, 4);
    for (uint64_t i = 1; i < c->depth; i++) put(g, 9, 4), put(g, 1, 8);
    put(g, c->value_type, 4);
    put(g, c->elements, 8);
    put(g, (uint64_t)-7, 4);
    put(g, 5, 4);
    put_string(g, "real", 4);
    put(g, 6, 4);
    put_float(g, 0.1f);
    put_string(g, "general.alignment", 17);
    put(g, c->alignment_type, 4);
    put(g, c->alignment, 4);
}

/* 0, -1 and infinity as F16; 1 to 6 as F32; a scale of 0.5 and the numbers -8 to 7 twice as Q4_0. */
static void put_gguf(gguf *g, const gguf_claims *c)
{
    g->size = 0;
    put(g, 0x46554747, 4);
    put(g, c->version, 4);
    put(g, c->tensors, 8);
    put(g, c->values, 8);
    put_values(g, c);
    put_string(g, "a", 1), put(g, 2, 4), put(g, 3, 8), put(g, 2, 8), put(g, 0, 4), put(g, 64, 8);
    put_string(g, c->b, 1), put(g, c->rank, 4), put(g, c->dim, 8), put(g, c->type, 4), put(g, c->offset, 8);
    put_string(g, "c", 1), put(g, 2, 4), put(g, 32, 8), put(g, 2, 8), put(g, 2, 4), put(g, 128, 8);
    while (g->size % 32) put(g, 0, 1);
    for (int i = 0; i < 32; i++) put(g, 0xEE, 1);
    put(g, 0, 2), put(g, 0xBC00, 2), put(g, 0x7C00, 2);
    for (int i = 0; i < 26; i++) put(g, 0xEE, 1);
    for (int i = 1; i < 7; i++) put_float(g, (float)i);
    for (int i = 0; i < 40; i++) put(g, 0xEE, 1);
    for (int row = 0; row < 2; row++) {
        put(g, 0x3800, 2);
        for (unsigned i = 0; i < 16; i++) put(g, i | i << 4, 1);
    }
    put(g, 0, 28); /* as llama.cpp ends a file */
}

static gpunn_model *gguf_model(fixture *f)
{
    gpunn_model     *model = gpunn_model_create(f->dev);
    const gpunn_init zero = {GPUNN_INIT_ZEROS, 0, 0};
    MADE(f->dev, gpunn_parameter(model, "a", GPUNN_SHAPE(2, 3), zero));
    MADE(f->dev, gpunn_parameter(model, "b", GPUNN_SHAPE(3), zero));
    MADE(f->dev, gpunn_parameter(model, "c", GPUNN_SHAPE(2, 32), zero));
    return model;
}

static void check_gguf(fixture *f, gpunn_model *model)
{
    float a[6], b[3], c[64];
    OK(f->dev, gpunn_read(gpunn_find(model, "a"), a, sizeof a));
    OK(f->dev, gpunn_read(gpunn_find(model, "b"), b, sizeof b));
    OK(f->dev, gpunn_read(gpunn_find(model, "c"), c, sizeof c));
    for (int i = 0; i < 6; i++) assert_true(a[i] == (float)(i + 1));
    assert_true(b[0] == 0 && b[1] == -1 && isinf(b[2]) && b[2] > 0);
    for (int i = 0; i < 64; i++) assert_true(c[i] == 0.5f * (float)(i % 16 - 8));
}

/* Into a model without weights, over weights, and one tensor: from a file and from memory. */
static void gguf_weights(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "w.gguf");
    gguf        g;
    gpunn_array array;
    put_gguf(&g, &gguf_sound);
    file_write(path, g.at, g.size);
    for (int again = 0; again < 2; again++) {
        gpunn_model *model = gguf_model(f);
        OK(f->dev, again ? gpunn_load_memory(model, g.at, g.size) : gpunn_load(model, path));
        check_gguf(f, model);
        number_weights(f, model, 1);
        OK(f->dev, again ? gpunn_load_memory(model, g.at, g.size) : gpunn_load(model, path));
        check_gguf(f, model);
        gpunn_model_destroy(model);
    }
    gguf_claims  deep = gguf_sound;
    gpunn_model *model = gguf_model(f);
    deep.depth = 4; /* as deep as arrays may be */
    put_gguf(&g, &deep);
    OK(f->dev, gpunn_load_memory(model, g.at, g.size));
    check_gguf(f, model);
    gpunn_model_destroy(model);
    OK(f->dev, gpunn_read_safetensors_as(f->dev, path, "c", GPUNN_F64, &array));
    for (int i = 0; i < 64; i++) assert_true(((double *)array.data)[i] == 0.5 * (i % 16 - 8));
    gpunn_array_free(f->dev, &array);
    FAILS_NULL(f->dev, gpunn_model_load(f->dev, path), GPUNN_ERR_FORMAT, "has weights, but no model");
    assert_int_equal(unlink(path), 0);
}

/* An evaluation model of the same parameters. A linear layer reads c, and a sum reads a. */
static gpunn_model *evaluated_gguf(fixture *f, gpunn_tensor **x, gpunn_tensor **y)
{
    const gpunn_init zero = {GPUNN_INIT_ZEROS, 0, 0};
    gpunn_model     *model = gpunn_model_create(f->dev, .inference = true);
    *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 32));
    gpunn_tensor *c = gpunn_parameter(model, "c", GPUNN_SHAPE(2, 32), zero);
    gpunn_tensor *a = gpunn_sum(gpunn_parameter(model, "a", GPUNN_SHAPE(2, 3), zero), GPUNN_ALL, false);
    MADE(f->dev, gpunn_parameter(model, "b", GPUNN_SHAPE(3), zero));
    *y = MADE(f->dev, gpunn_add(gpunn_linear(*x, "c", .out_features = 2, .weight = c, .no_bias = true), a));
    return model;
}

/* Mapped, or copied from memory. The blocks are those of the file, and the other tensors are floats. */
static void gguf_blocks(void **state)
{
    fixture      *f = *state;
    const char   *path = test_path(f, "w.gguf");
    gguf          g;
    gpunn_tensor *x, *y;
    unsigned char blocks[36];
    float         ones[32], results[2];
    for (int i = 0; i < 32; i++) ones[i] = i < 16 ? 1 : -0.5f;
    put_gguf(&g, &gguf_sound);
    file_write(path, g.at, g.size);
    for (int copied = 0; copied < 2; copied++) {
        gpunn_model *model = evaluated_gguf(f, &x, &y);
        gguf_claims  other = gguf_sound;
        gguf         bad;
        other.dim = 4;
        put_gguf(&bad, &other);
        if (!copied) file_write(path, bad.at, bad.size);
        FAILS(f->dev,
              copied ? gpunn_load_memory(model, bad.at, bad.size, .keep_blocks = true)
                     : gpunn_load(model, path, .keep_blocks = true),
              GPUNN_ERR_SHAPE, "b: file [4], model [3]");
        file_write(path, g.at, g.size);
        OK(f->dev, copied ? gpunn_load_memory(model, g.at, g.size, .keep_blocks = true)
                          : gpunn_load(model, path, .keep_blocks = true));
        OK(f->dev, gpunn_read_as(gpunn_find(model, "c"), GPUNN_Q4_0, blocks, sizeof blocks));
        assert_memory_equal(blocks, g.at + g.size - 28 - sizeof blocks, sizeof blocks);
        check_gguf(f, model);
        OK(f->dev, gpunn_write(x, ones, sizeof ones));
        OK(f->dev, gpunn_forward(&y, 1));
        OK(f->dev, gpunn_read(y, results, sizeof results)); /* 21 is the sum of a, c's rows sum to -4 twice */
        assert_true(fabsf(results[0] - 19) < 0.1f && results[1] == results[0]);
        FAILS(f->dev, gpunn_load(model, path, .keep_blocks = true), GPUNN_ERR_STATE, "no weights yet");
        gpunn_model_destroy(model);
    }
    for (long n = 1, done = 0; !done; n++) { /* what fails leaves nothing */
        gpunn_model *model = evaluated_gguf(f, &x, &y);
        const size_t held = f->memory.bytes;
        f->memory.fail_at = f->memory.calls + n;
        done = gpunn_load_memory(model, g.at, g.size, .keep_blocks = true) == GPUNN_OK;
        f->memory.fail_at = 0;
        if (!done) check_sentence(f->dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
        assert_true(done || f->memory.bytes == held);
        gpunn_model_destroy(model);
    }
    assert_int_equal(unlink(path), 0);
}

enum { PARTS = 3, PART_BYTES = 288 };
typedef struct gguf_part {
    unsigned char at[PART_BYTES];
    size_t        size;
    const char   *path; /* of a copy */
} gguf_part;

/* Reads the parts that tests/golden/gguf_parts.py has written. */
static void parts_read(fixture *f, gguf_part parts[PARTS])
{
    for (int i = 0; i < PARTS; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "tests/golden/gguf_parts-0000%d-of-00003.gguf", i + 1);
        unsigned char *file = file_read(name, &parts[i].size);
        assert_in_range(parts[i].size, 1, PART_BYTES);
        memcpy(parts[i].at, file, parts[i].size);
        free(file);
        parts[i].path = test_path(f, strrchr(name, '/') + 1);
        file_write(parts[i].path, parts[i].at, parts[i].size);
    }
}

/* The byte behind the first place of a text in a file. */
static unsigned char *part_behind(gguf_part *part, const char *text)
{
    unsigned char *at = part->at;
    while (memcmp(at, text, strlen(text)) != 0) at++;
    return at + strlen(text);
}

/* Changes a byte of a part's copy, sees that loading fails so, and changes it back. */
#define PART_FAILS(part, byte, value, ...)                                              \
    do {                                                                                \
        const unsigned char was = *(byte);                                              \
        *(byte) = (value);                                                              \
        file_write((part)->path, (part)->at, (part)->size);                             \
        FAILS(f->dev, gpunn_load(model, parts[0].path), GPUNN_ERR_FORMAT, __VA_ARGS__); \
        *(byte) = was;                                                                  \
        file_write((part)->path, (part)->at, (part)->size);                             \
    } while (0)

/* A model that is split over files is one: mapped, or as floats. */
static void gguf_parts(void **state)
{
    fixture      *f = *state;
    gguf_part     parts[PARTS];
    gpunn_tensor *x, *y;
    unsigned char blocks[36];
    gpunn_array   header;
    parts_read(f, parts);
    const char *first = parts[0].path;
    for (int evaluated = 0; evaluated < 2; evaluated++) {
        gpunn_model *model = evaluated ? evaluated_gguf(f, &x, &y) : gguf_model(f);
        OK(f->dev, gpunn_load(model, first, .keep_blocks = evaluated));
        check_gguf(f, model);
        if (evaluated) OK(f->dev, gpunn_read_as(gpunn_find(model, "c"), GPUNN_Q4_0, blocks, sizeof blocks));
        if (evaluated) assert_memory_equal(blocks, parts[2].at + 160, sizeof blocks);
        gpunn_model_destroy(model);
    }
    OK(f->dev, gpunn_read_header(f->dev, first, &header));
    assert_non_null(strstr(header.data, "\"general.name\":\"parts\""));
    assert_non_null(strstr(header.data, "\"c\":{\"dtype\":\"Q4_0\",\"shape\":[2,32]}"));
    gpunn_array_free(f->dev, &header);
    for (long n = 1, done = 0; !done; n++) { /* what fails leaves nothing */
        gpunn_model *model = evaluated_gguf(f, &x, &y);
        const size_t held = f->memory.bytes;
        f->memory.fail_at = f->memory.calls + n;
        done = gpunn_load(model, first, .keep_blocks = true) == GPUNN_OK;
        f->memory.fail_at = 0;
        if (!done) check_sentence(f->dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
        assert_true(done || f->memory.bytes == held);
        gpunn_model_destroy(model);
    }
    for (int i = 0; i < PARTS; i++) assert_int_equal(unlink(parts[i].path), 0);
}

/* Parts that are missing, have other names or belong to other models. */
static void damaged_parts(void **state)
{
    fixture     *f = *state;
    gguf_part    parts[PARTS];
    gpunn_model *model = gguf_model(f);
    const char  *renamed = test_path(f, "w.gguf");
    parts_read(f, parts);
    FAILS(f->dev, gpunn_load(model, parts[1].path), GPUNN_ERR_ARGUMENT, "00002-of-00003", "first part");
    FAILS(f->dev, gpunn_load_memory(model, parts[0].at, parts[0].size), GPUNN_ERR_ARGUMENT, "'memory'",
          "00001-of-00003.gguf");
    file_write(renamed, parts[0].at, parts[0].size);
    FAILS(f->dev, gpunn_load(model, renamed), GPUNN_ERR_ARGUMENT, "w.gguf", "00001-of-00003.gguf", "rename");
    PART_FAILS(&parts[0], part_behind(&parts[0], "split.tensors.count") + 4, 4, "4 tensors, but they have 3");
    PART_FAILS(&parts[2], part_behind(&parts[2], "split.no") + 4, 1, "00003-of-00003", "not part 3 of the 3");
    PART_FAILS(&parts[2], part_behind(&parts[2], "split.count") + 4, 4, "not part 3 of the 3 parts");
    PART_FAILS(&parts[2], part_behind(&parts[2], "split.tensors.count") + 16, 'b', "'b'", "another shard");
    assert_int_equal(unlink(parts[2].path), 0);
    FAILS(f->dev, gpunn_load(model, parts[0].path), GPUNN_ERR_IO, "gguf_parts-00003-of-00003.gguf");
    file_write(parts[2].path, parts[1].at, parts[1].size);
    FAILS(f->dev, gpunn_load(model, parts[0].path), GPUNN_ERR_FORMAT, "not part 3 of the 3 parts");
    for (int i = 0; i < PARTS; i++) assert_int_equal(unlink(parts[i].path), 0);
    assert_int_equal(unlink(renamed), 0);
    gpunn_model_destroy(model);
}

static void headers(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "w.gguf");
    gguf        g;
    gpunn_array text;
    put_gguf(&g, &gguf_sound);
    file_write(path, g.at, g.size);
    OK(f->dev, gpunn_read_header(f->dev, path, &text));
    assert_string_equal(text.data, "{\"__metadata__\":{\"general.alignment\":32,\"list\":[-7,5],\"name\":"
                                   "\"a \\\"\xC3\xA9\\\"\\u000a\xEF\xBF\xBD\",\"real\":0.1},"
                                   "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3]},"
                                   "\"b\":{\"dtype\":\"F16\",\"shape\":[3]},"
                                   "\"c\":{\"dtype\":\"Q4_0\",\"shape\":[2,32]}}");
    assert_true(text.dtype == GPUNN_U8 && text.rank == 1 && text.bytes == strlen(text.data) + 1);
    gpunn_array_free(f->dev, &text);
    for (long n = 1, done = 0; !done; n++) { /* what fails leaves nothing */
        const size_t held = f->memory.bytes;
        f->memory.fail_at = f->memory.calls + n;
        done = gpunn_read_header(f->dev, path, &text) == GPUNN_OK;
        f->memory.fail_at = 0;
        if (!done) check_sentence(f->dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
        gpunn_array_free(f->dev, &text);
        assert_int_equal(f->memory.bytes, held);
    }
    gpunn_model *model = two_layers(f);
    OK(f->dev, gpunn_save(model, path));
    OK(f->dev, gpunn_read_header(f->dev, path, &text));
    assert_ptr_equal(strstr(text.data, "{\"__metadata__\":{\"format\":\"pt\"},\"bn.bias\":"), text.data);
    gpunn_array_free(f->dev, &text);
    FAILS(f->dev, gpunn_read_header(f->dev, path, NULL), GPUNN_ERR_ARGUMENT, "gpunn_read_header",
          "array is NULL");
    FAILS(NULL, gpunn_read_header(NULL, path, &text), GPUNN_ERR_ARGUMENT, "device is NULL");
    gpunn_model_destroy(model);
    assert_int_equal(unlink(path), 0);
    FAILS(f->dev, gpunn_read_header(f->dev, path, &text), GPUNN_ERR_IO, "w.gguf");
}

/* The values of a GGUF file of each type, the least of signed ones. */
static void types_of_values(void **state)
{
    static const struct {
        int         type, bytes;
        uint64_t    bits;
        const char *text;
    } values[] = {{0, 1, 0xFE, "254"},
                  {1, 1, 0x80, "-128"},
                  {2, 2, 0xFFFE, "65534"},
                  {3, 2, 0x8000, "-32768"},
                  {4, 4, 0xFFFFFFFE, "4294967294"},
                  {5, 4, 0x80000000, "-2147483648"},
                  {6, 4, 0x3F000000, "0.5"},
                  {7, 1, 0, "false"},
                  {7, 1, 1, "true"},
                  {10, 8, UINT64_MAX, "18446744073709551615"},
                  {11, 8, UINT64_C(1) << 63, "-9223372036854775808"},
                  {12, 8, UINT64_C(0x3FD0000000000000), "0.25"}};
    fixture    *f = *state;
    const char *path = test_path(f, "w.gguf");
    gpunn_array text;
    gguf        g = {.size = 0};
    char        wanted[1024] = "{\"__metadata__\":{";
    put(&g, 0x46554747, 4), put(&g, 3, 4), put(&g, 0, 8), put(&g, COUNT(values), 8);
    for (int i = 0; i < COUNT(values); i++) {
        const char   name[] = {(char)('a' + i), 0};
        const size_t used = strlen(wanted);
        put_string(&g, name, 1);
        put(&g, (uint64_t)values[i].type, 4), put(&g, values[i].bits, values[i].bytes);
        (void)snprintf(wanted + used, sizeof wanted - used, "\"%s\":%s%s", name, values[i].text,
                       i + 1 < COUNT(values) ? "," : "}}");
    }
    file_write(path, g.at, g.size);
    OK(f->dev, gpunn_read_header(f->dev, path, &text));
    assert_string_equal(text.data, wanted);
    gpunn_array_free(f->dev, &text);
    assert_int_equal(unlink(path), 0);
}

/* Files that are cut, that differ in one byte, and that make false claims. */
static void hostile_gguf(void **state)
{
    static const struct {
        size_t      field;
        uint64_t    value;
        const char *sentence;
    } lies[] = {
        {offsetof(gguf_claims, version), 1, "GGUF of version 1, or big-endian"},
        {offsetof(gguf_claims, version), 0x03000000, "or big-endian"},
        {offsetof(gguf_claims, tensors), UINT64_MAX, "is beyond the end of the file"},
        {offsetof(gguf_claims, values), UINT64_MAX / 2, "is beyond the end of the file"},
        {offsetof(gguf_claims, key_bytes), UINT64_MAX - 3, "value '...' is beyond the end of the file"},
        {offsetof(gguf_claims, value_type), 13, "value 'list' has a type that no version knows"},
        {offsetof(gguf_claims, value_type), 8, "value 'list' is beyond the end of the file"},
        {offsetof(gguf_claims, elements), UINT64_MAX / 4 + 2, "'list' has more elements than bytes follow"},
        {offsetof(gguf_claims, depth), 5, "'list' has arrays that are too deep"},
        {offsetof(gguf_claims, alignment_type), 5, "'general.alignment' is not a power of two"},
        {offsetof(gguf_claims, alignment), 48, "'general.alignment' is not a power of two"},
        {offsetof(gguf_claims, alignment), 0, "'general.alignment' is not a power of two"},
        {offsetof(gguf_claims, alignment), 0x80000000, "tensor 'a' has an offset that is not aligned"},
        {offsetof(gguf_claims, rank), 9, "tensor 'b' has more than 8 dimensions"},
        {offsetof(gguf_claims, rank), UINT32_MAX, "tensor 'b' has more than 8 dimensions"},
        {offsetof(gguf_claims, dim), UINT64_MAX, "tensor 'b' has a shape that is too large"},
        {offsetof(gguf_claims, dim), INT64_MAX, "tensor 'b' has data beyond the end of the file"},
        {offsetof(gguf_claims, dim), 1000, "tensor 'b' has data beyond the end of the file"},
        {offsetof(gguf_claims, dim), 100, "tensor 'b' has data beyond the end of the file"},
        {offsetof(gguf_claims, dim), 17, "tensor 'a' shares data with another"},
        {offsetof(gguf_claims, type), 8, "tensor 'b' has rows that are no whole number of blocks"},
        {offsetof(gguf_claims, type), UINT32_MAX, "tensor 'b' has a type that no version knows"},
        {offsetof(gguf_claims, type), 16, "b: file IQ2_XXS, model f32"},
        {offsetof(gguf_claims, type), 99, "b: file unknown here, model f32"},
        {offsetof(gguf_claims, offset), 33, "tensor 'b' has an offset that is not aligned"},
        {offsetof(gguf_claims, offset), 64, "shares data with another"},
        {offsetof(gguf_claims, offset), UINT64_MAX - 31, "tensor 'b' has data beyond the end of the file"}};
    fixture     *f = *state;
    gpunn_model *model = gguf_model(f);
    gguf_claims  claims = gguf_sound;
    gguf         g;
    for (int i = 0; i <= COUNT(lies); i++) {
        gguf_claims lie = gguf_sound;
        if (i < COUNT(lies)) memcpy((char *)&lie + lies[i].field, &lies[i].value, sizeof lies[i].value);
        if (i == COUNT(lies)) lie.b = "a";
        put_gguf(&g, &lie);
        number_weights(f, model, 1);
        const gpunn_status status = gpunn_load_memory(model, g.at, g.size);
        assert_true(status == GPUNN_ERR_FORMAT || status == GPUNN_ERR_UNSUPPORTED ||
                    status == GPUNN_ERR_DTYPE);
        check_sentence(f->dev, status, __FILE__, __LINE__, "'memory'",
                       i < COUNT(lies) ? lies[i].sentence : "has 'a' twice", (const char *)NULL);
        check_numbers(f, model, 1);
    }
    put_gguf(&g, &claims);
    for (size_t cut = 0; cut + 28 < g.size; cut++) { /* 28: padding behind the last tensor */
        unsigned char *part = malloc(cut + 1);
        memcpy(part + 1, g.at, cut);
        FAILS(f->dev, gpunn_load_memory(model, part + 1, cut), GPUNN_ERR_FORMAT, "'memory'");
        free(part);
    }
    for (size_t i = 0; i < g.size; i++)
        for (int bit = 0; bit < 8; bit++) {
            g.at[i] ^= (unsigned char)(1 << bit);
            const gpunn_status status = gpunn_load_memory(model, g.at, g.size);
            assert_true((*gpunn_error(f->dev) == 0) == (status == GPUNN_OK));
            gpunn_clear_error(f->dev);
            g.at[i] ^= (unsigned char)(1 << bit);
        }
    gpunn_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test_with_device(weights_in_memory),
        test_with_device(first_load_draws),
        test_with_device(spec_in_memory),
        test_with_device(weights_in_pak),
        test_with_device(weights_renamed),
        test_with_device(maps),
        test_with_device(shards),
        test_with_device(shards_in_pak),
        test_with_device(gguf_weights),
        test_with_device(gguf_blocks),
        test_with_device(gguf_parts),
        test_with_device(damaged_parts),
        test_with_device(headers),
        test_with_device(types_of_values),
        test_with_device(hostile_gguf),
        test_with_device(loaded_in_pieces),
        test_with_device(beyond_4_gib),
        test_with_device(evaluated_only),
        test_with_device(weights_in_16_bits),
        test_with_device(rounding),
        test_with_device(files_of_16_bits),
        test_with_device(narrow_weights),
        test_with_device(narrow_weights_move),
    };
    return cmocka_run_group_tests_name("load", tests, NULL, NULL);
}
