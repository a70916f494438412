/* Weights and specs that come from elsewhere than one file of the model's own: memory, a program's pak file, under other
 * names. */
#include "../test.h"

/* ---- models ---- */
static gpunn_model *two_layers(fixture *f)
{
    gpunn_model  *model = gpunn_model_create(f->dev);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 4));
    MADE(f->dev, gpunn_linear(gpunn_batch_norm1d(gpunn_linear(x, "fc1", .out_features = 3), "bn"), "fc2", .out_features = 2));
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
    assert_true(bytes.dtype == GPUNN_U8 && bytes.rank == 1 && bytes.bytes == size && bytes.dim[0] == (int64_t)size);
    assert_memory_equal(bytes.data, file, size);
    free(file);

    number_weights(f, model, 100);
    for (size_t cut = 0; cut < size; cut++) { /* in a block that ends there: a sanitizer sees a byte too many */
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
    check_sentence(f->dev, GPUNN_ERR_ARGUMENT, __FILE__, __LINE__, "gpunn_spec_load_memory", "NULL", (const char *)NULL);
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
    return p->fault == NO_SIZE ? -5 : ((pak_place *)file)->file->size + (p->fault == SHRINKS) - (p->fault == GROWS);
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
    const pak_file files[] = {{"net/weights", bytes.data, (int64_t)bytes.bytes}, {"net/spec", spec_text, sizeof spec_text - 1}};
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
        FAILS(f->dev, gpunn_load(model, "net/weights", .io = &io), faults[i].status, "'net/weights'", faults[i].word);
        if (p.fault == SHRINKS || p.fault == GROWS) continue;
        p.piece = 1;
        assert_null(gpunn_spec_load(f->dev, "net/spec", .io = &io));
        check_sentence(f->dev, faults[i].status, __FILE__, __LINE__, "'net/spec'", faults[i].word, (const char *)NULL);
    }
    p.fault = NONE;
    FAILS(f->dev, gpunn_load(model, "net/none", .io = &io), GPUNN_ERR_IO, "'net/none'", "open", "check the path");
    FAILS(f->dev, gpunn_load(model, "", .io = &io), GPUNN_ERR_ARGUMENT, "path");
    io.size = NULL;
    FAILS(f->dev, gpunn_load(model, "net/weights", .io = &io), GPUNN_ERR_ARGUMENT, ".io lacks a function");
    check_numbers(f, model, 50);
    assert_int_equal(p.opened, p.closed);
    gpunn_array_free(f->dev, &bytes);
    gpunn_model_destroy(model);
}

/* ---- renamed ---- */
static void check_renamed(fixture *f, const gpunn_array *bytes, const char *from, const char *to, const char *expected)
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
    gpunn_rename map[] = {
        {"fc1.weight", "first"}, {"fc1.*", "one.*"}, {"fc2.*", "two.*"}, {NULL, NULL}}; /* the first that fits */
    OK(f->dev, gpunn_load_memory(model, bytes.data, bytes.bytes, .map = map, .partial = true, .skip = skip, .report = take_line,
                                 .user = lines));
    assert_string_equal(lines, "fc1.weight: in the model only\nfc1.bias: in the model only\nfc2.weight: in the model only\n"
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
    const char *const  words[] = {"gives two tensors of 'memory' the name 'bias'", "'a', 'NULL'", "'a', 'b*'", "'*********', ''"};
    for (int i = 0; i < COUNT(bad); i++)
        FAILS(f->dev, gpunn_load_memory(model, bytes.data, bytes.bytes, .map = bad[i]), GPUNN_ERR_ARGUMENT, ".map", words[i]);
    gpunn_array_free(f->dev, &bytes);
    gpunn_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test_with_device(weights_in_memory), test_with_device(spec_in_memory), test_with_device(weights_in_pak),
        test_with_device(weights_renamed),   test_with_device(maps),
    };
    return cmocka_run_group_tests_name("load", tests, NULL, NULL);
}
