/* Shared by the C tests: golden files, comparison, a memory hook that counts, fails and detects leaks,
 * devices. Programs run from the repository's root and print TAP lines (tests/run.py reads them). */
#ifndef GPUNN_TEST_H
#define GPUNN_TEST_H
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpunn.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- memory: every block carries its size, so that a wrong old_size, a double free and a leak are seen
 * -- */
typedef struct test_memory {
    pthread_mutex_t lock;
    long            calls;   /* allocations and enlargements asked for */
    long            fail_at; /* this one fails, and with fail_on all later ones too; 0: none */
    bool            fail_on;
    long            blocks;
    size_t          bytes, peak; /* set peak to bytes to begin anew */
    const char     *fault;
} test_memory;

typedef union test_block {
    struct {
        size_t   size;
        uint64_t mark;
    } head;
    long double align;
} test_block;
#define TEST_MARK UINT64_C(0x6770756e6e626c6b)

static inline void *hook_realloc(void *user, void *ptr, size_t old_size, size_t new_size)
{
    test_memory *memory = user;
    test_block  *block = ptr ? (test_block *)ptr - 1 : NULL;
    void        *result = NULL;
    pthread_mutex_lock(&memory->lock);
    if (block && block->head.mark != TEST_MARK)
        memory->fault = "a pointer that was never handed out, or freed twice";
    else if ((block ? block->head.size : 0) != old_size)
        memory->fault = "old_size is not the block's size";
    else if (new_size == 0) {
        if (block) {
            memory->blocks--;
            memory->bytes -= old_size;
            block->head.mark = 0;
            free(block);
        }
    } else {
        memory->calls++;
        bool fails = memory->fail_at != 0 &&
                     (memory->fail_on ? memory->calls >= memory->fail_at : memory->calls == memory->fail_at);
        test_block *grown = fails || new_size > SIZE_MAX / 4 ? NULL
                                                             : realloc(block, sizeof *grown + new_size);
        if (grown) {
            grown->head.size = new_size;
            grown->head.mark = TEST_MARK;
            memory->blocks += block == NULL;
            memory->bytes += new_size - old_size;
            if (memory->bytes > memory->peak) memory->peak = memory->bytes;
            result = grown + 1;
            /* nobody may count on zeros */
            if (new_size > old_size) memset((char *)result + old_size, 0xA5, new_size - old_size);
        }
    }
    pthread_mutex_unlock(&memory->lock);
    return result;
}

static inline void test_memory_init(test_memory *memory)
{
    memset(memory, 0, sizeof *memory);
    pthread_mutex_init(&memory->lock, NULL);
}

static inline void test_memory_check(const test_memory *memory)
{
    if (memory->fault) fail_msg("memory hook: %s", memory->fault);
    if (memory->blocks) fail_msg("leak: %ld blocks, %zu bytes", memory->blocks, memory->bytes);
}

/* ---- devices: every test runs on each backend that is there ---- *
 * A program that has the emulated GPU linked runs on that alone. GPUNN_TEST_DEVICE names the one backend to
 * run on, GPUNN_TEST_FILTER the tests ("*conv*"). */
typedef struct test_backend {
    const char          *name;
    gpunn_device_type    type;
    const gpunn_backend *table; /* NULL: the device's own */
} test_backend;
extern const gpunn_backend gpunn_emulator_backend __attribute__((weak));
static const test_backend  backends[] = {{"cpu", GPUNN_DEVICE_CPU, NULL},
                                         {"cuda", GPUNN_DEVICE_CUDA, NULL},
                                         {"emulator", GPUNN_DEVICE_CUDA, &gpunn_emulator_backend}};

static inline bool is_emulated(const test_backend *backend)
{
    return backend == &backends[2];
}
/* Of so many cases, those that are run where each access of the emulated kernels is followed, which takes
 * five times as long. */
static inline int followed(int cases)
{
#ifdef EMULATOR_RACES
    return (cases + 3) / 4;
#else
    return cases;
#endif
}
static inline bool backend_wanted(const test_backend *backend)
{
    const char *only = getenv("GPUNN_TEST_DEVICE");
    return only ? strcmp(only, backend->name) == 0
                : (&gpunn_emulator_backend != NULL) == is_emulated(backend);
}
static inline bool backend_available(const test_backend *backend)
{
    return backend->type == GPUNN_DEVICE_CPU ||
           (is_emulated(backend) ? &gpunn_emulator_backend != NULL : gpunn_cuda_device_count() > 0);
}
/* The one of tests that need no more; the one that is asked for, even if it is there no more. */
static inline const test_backend *first_backend(void)
{
    for (int b = 0; b < COUNT(backends); b++)
        if (backend_wanted(&backends[b]) && (getenv("GPUNN_TEST_DEVICE") || backend_available(&backends[b])))
            return &backends[b];
    return &backends[0];
}
#define ON(backend_) .type = (backend_)->type, .backend = (backend_)->table

__attribute__((constructor)) static void filter_tests(void)
{
    const char *pattern = getenv("GPUNN_TEST_FILTER");
    if (pattern) cmocka_set_test_filter(pattern);
}

/* One device with its memory, as cmocka's state of a test. */
typedef struct fixture {
    test_memory         memory;
    const test_backend *backend;
    const void         *data; /* the test's own */
    gpunn_device       *dev;
    gpunn_model        *model;
    char                folder[160]; /* of temporary files; "" until test_path */
    bool                abandoned;
} fixture;

static inline void fixture_open(fixture *f)
{
    test_memory_init(&f->memory);
    f->dev = gpunn_device_open(ON(f->backend), .seed = 1, .threads = 2, .realloc_fn = hook_realloc,
                               .user = &f->memory);
    if (f->dev == NULL) fail_msg("gpunn_device_open: %s", gpunn_error(NULL));
    f->model = gpunn_model_create(f->dev);
    assert_non_null(f->model);
}

static inline void fixture_close(fixture *f)
{
    gpunn_model_destroy(f->model);
    gpunn_device_close(f->dev);
    f->model = NULL;
    f->dev = NULL;
    test_memory_check(&f->memory);
}

/* Says why a test does not run; run.py prints it beside the count. */
#define SKIP(...)                              \
    do {                                       \
        print_message("# skip: " __VA_ARGS__); \
        print_message("\n");                   \
        skip();                                \
    } while (0)

/* A test was skipped in its middle. It has freed nothing. */
static bool abandoned;

/* Makes the folder of a test's files in TMPDIR. The test is skipped if that has no room for them. */
static inline void make_folder(fixture *f)
{
    enum { ROOM = 16 << 20 };
    const char    *base = getenv("TMPDIR");
    struct statvfs disk;
    (void)snprintf(f->folder, sizeof f->folder, "%.120s/gpunn-test-XXXXXX", base ? base : "/tmp");
    const bool made = mkdtemp(f->folder) != NULL;
    if (made && (statvfs(f->folder, &disk) != 0 || disk.f_blocks == 0 || /* a system that does not count */
                 (uint64_t)disk.f_bavail * disk.f_frsize >= ROOM))
        return;
    if (made) (void)rmdir(f->folder);
    abandoned = f->abandoned = true;
    if (made) SKIP("TMPDIR is full");
    SKIP("TMPDIR holds no new folder");
}

/* A name in a folder of this test's own; the folder must hold nothing but what the test removes. */
static inline const char *test_path(fixture *f, const char *name)
{
    static char paths[8][224]; /* the last few stay valid */
    static int  next;
    if (f->folder[0] == 0) make_folder(f);
    char *path = paths[next++ % 8];
    (void)snprintf(path, sizeof paths[0], "%s/%s", f->folder, name);
    return path;
}

static inline int fixture_setup(void **state)
{
    fixture *start = *state, *f = calloc(1, sizeof *f);
    f->backend = start ? start->backend : first_backend();
    f->data = start ? start->data : NULL;
    fixture_open(f);
    *state = f;
    return 0;
}

static inline int fixture_teardown(void **state)
{
    fixture *f = *state;
    if (f->abandoned) return 0;
    fixture_close(f);
    /* An unexpected file left behind (a temporary one of the library's, say) makes this fail, and that is a
     * finding. */
    if (f->folder[0] && rmdir(f->folder) != 0) fail_msg("files are left in %s", f->folder);
    free(f);
    return 0;
}
static inline void backend_missing(void **state)
{
    const test_backend *backend = *state;
    SKIP("no %s device", backend->name);
}
/* One test's entry for each backend; returns how many were added at `tests`. labels: room for the names. */
static inline int each_backend(struct CMUnitTest *tests, const char *name, CMUnitTestFunction function,
                               const void *data)
{
    int count = 0;
    for (int b = 0; b < COUNT(backends); b++) {
        if (!backend_wanted(&backends[b]) || !backend_available(&backends[b])) continue;
        fixture *start = calloc(1, sizeof *start); /* lives as long as the program, as its name does */
        char    *label = malloc(strlen(backends[b].name) + strlen(name) + 3);
        (void)sprintf(label, "%s: %s", backends[b].name, name);
        start->backend = &backends[b];
        start->data = data;
        struct CMUnitTest test = {label, function, fixture_setup, fixture_teardown, start};
        tests[count++] = test;
    }
    return count;
}
/* One counted skip for each backend that is not there. */
static inline int missing_backends(struct CMUnitTest *tests)
{
    int count = 0;
    for (int b = 0; b < COUNT(backends); b++) {
        if (!backend_wanted(&backends[b]) || backend_available(&backends[b])) continue;
        struct CMUnitTest test = {backends[b].name, backend_missing, NULL, NULL,
                                  (void *)(uintptr_t)&backends[b]};
        tests[count++] = test;
    }
    return count;
}
#define test_with_device(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)

/* ---- a program that is started again behind a test in which it ended: tests/run.py --resume ---- *
 * GPUNN_TEST_FROM=n leaves out the first n tests and tells of each before it begins; GPUNN_TEST_COUNT=n runs
 * n at most. GPUNN_TEST_SECONDS=n ends the program, by SIGALRM, in a test that takes longer. No device of a
 * process recovers from a fault of the GPU: the program ends before the next test, whose verdict would not be
 * its own. */
typedef struct watched_test {
    const struct CMUnitTest *test;
    int                      number;
} watched_test;
static const watched_test *watched;
static bool                watched_passed = true;

static inline long test_setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : otherwise;
}

/* Where what is drawn by chance begins: GPUNN_TEST_SEED, printed so that a failure can be repeated. */
static inline uint32_t test_seed(void)
{
    const uint32_t seed = (uint32_t)test_setting("GPUNN_TEST_SEED", 1);
    print_message("# GPUNN_TEST_SEED=%u\n", (unsigned)seed);
    return seed;
}

/* Whether a device can still be opened and does what it is told. */
static inline bool device_lives(void)
{
    gpunn_device *dev = gpunn_device_open(ON(first_backend()));
    if (dev == NULL) return false; /* gpunn_error(NULL) says why */
    gpunn_model  *model = gpunn_model_create(dev);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(1)), *y = gpunn_relu(x);
    float         value = 1, result = 0;
    bool lives = gpunn_write(x, &value, sizeof value) == GPUNN_OK && gpunn_forward(&y, 1) == GPUNN_OK &&
                 gpunn_read(y, &result, sizeof result) == GPUNN_OK && result == value;
    gpunn_device_close(dev);
    return lives;
}

static inline int watched_setup(void **state)
{
    watched = *state;
    (void)alarm(0);
    if (!watched_passed && !device_lives()) {
        printf("Bail out! after a failed test no device works in this process: %s\n", gpunn_error(NULL));
        exit(3);
    }
    watched_passed = false;
    printf("# test %d %s\n", watched->number, watched->test->name);
    (void)alarm((unsigned)test_setting("GPUNN_TEST_SECONDS", 0));
    *state = watched->test->initial_state;
    return watched->test->setup_func ? watched->test->setup_func(state) : 0;
}

static inline void watched_run(void **state)
{
    watched->test->test_func(state);
    watched_passed = true;
}

/* The status of the program. After an abandoned test it ends here: a leak checker need not see that. */
static inline int end_program(int failed)
{
    if (!abandoned) return failed;
    (void)fflush(NULL);
    _exit(failed);
}

static inline int run_watched(const char *name, const struct CMUnitTest *tests, size_t count,
                              CMFixtureFunction setup, CMFixtureFunction teardown)
{
    if (!backend_wanted(first_backend()) || !backend_available(first_backend())) {
        printf("1..1\nnot ok 1 - there is no %s device, which GPUNN_TEST_DEVICE asks for\n",
               getenv("GPUNN_TEST_DEVICE"));
        return 1;
    }
    if (getenv("GPUNN_TEST_FROM") == NULL)
        return end_program(_cmocka_run_group_tests(name, tests, count, setup, teardown));
    size_t from = (size_t)test_setting("GPUNN_TEST_FROM", 0),
           most = (size_t)test_setting("GPUNN_TEST_COUNT", (long)count), kept = 0;
    struct CMUnitTest *part = calloc(count + 1, sizeof *part);
    watched_test      *each = calloc(count + 1, sizeof *each);
    for (size_t i = from; i < count && kept < most; i++, kept++) {
        struct CMUnitTest test = {tests[i].name, watched_run, watched_setup, tests[i].teardown_func,
                                  &each[kept]};
        each[kept].test = &tests[i];
        each[kept].number = (int)i;
        part[kept] = test;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* what is printed is not lost with the program */
    if (kept == 0) printf("1..0\n");
    int failed = kept ? _cmocka_run_group_tests(name, part, kept, setup, teardown) : 0;
    (void)alarm(0);
    free(part), free(each);
    return end_program(failed);
}
#define _cmocka_run_group_tests run_watched

/* ---- statuses and sentences ---- */
static inline void check_ok(const gpunn_device *dev, gpunn_status status, const char *call, const char *file,
                            int line)
{
    if (status == GPUNN_OK) return;
    print_error("%s gave %s\n%s\n", call, gpunn_status_name(status), gpunn_error(dev));
    _fail(file, line);
}
#define OK(dev, call) check_ok((dev), (call), #call, __FILE__, __LINE__)

/* A training step's status once the device has done it: a GPU may report a loss that is not finite only when
 * somebody waits. */
static inline gpunn_status settled(gpunn_device *dev, gpunn_status status)
{
    return status == GPUNN_OK ? gpunn_synchronize(dev) : status;
}

/* A builder or other call that returns a pointer. */
static inline void *check_made(const gpunn_device *dev, void *result, const char *call, const char *file,
                               int line)
{
    if (result) return result;
    print_error("%s gave NULL\n%s\n", call, gpunn_error(dev));
    _fail(file, line);
    return NULL;
}
#define MADE(dev, call) check_made((dev), (call), #call, __FILE__, __LINE__)

/* The device's first failure has this status and its sentence holds all the words (ending with NULL); then it
 * is cleared. */
static inline void check_sentence(gpunn_device *dev, gpunn_status status, const char *file, int line, ...)
{
    const char *text = gpunn_error(dev), *word;
    bool        good = gpunn_last_status(dev) == status && strchr(text, '\n') == NULL;
    va_list     words;
    va_start(words, line);
    while ((word = va_arg(words, const char *)) != NULL) {
        if (strstr(text, word) == NULL) {
            print_error("missing in the sentence: \"%s\"\n", word);
            good = false;
        }
    }
    va_end(words);
    if (!good) {
        print_error("expected %s, got %s: \"%s\"\n", gpunn_status_name(status),
                    gpunn_status_name(gpunn_last_status(dev)), text);
        _fail(file, line);
    }
    gpunn_clear_error(dev);
}
#define FAILS(dev, call, status, ...)                                                         \
    do {                                                                                      \
        assert_int_equal((call), (status));                                                   \
        check_sentence((dev), (status), __FILE__, __LINE__, __VA_ARGS__, (const char *)NULL); \
    } while (0)
#define FAILS_NULL(dev, call, status, ...)                                                    \
    do {                                                                                      \
        assert_null((call));                                                                  \
        check_sentence((dev), (status), __FILE__, __LINE__, __VA_ARGS__, (const char *)NULL); \
    } while (0)

/* ---- comparison ---- */
/* |actual - expected| <= atol + rtol |expected|, element by element; NaN matches only NaN, an infinity only
 * itself. */
static inline void check_close_at(const float *actual, const float *expected, int64_t n, double rtol,
                                  double atol, const char *what, const char *file, int line)
{
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        double a = actual[i], e = expected[i];
        bool   same;
        if (isnan(a) || isnan(e))
            same = isnan(a) && isnan(e);
        else if (isinf(a) || isinf(e))
            same = a == e;
        else
            same = !(fabs(a - e) > atol + rtol * fabs(e));
        if (!same && bad++ < 5) print_error("%s[%lld]: %.9g, expected %.9g\n", what, (long long)i, a, e);
    }
    if (bad) {
        print_error("%s: %lld of %lld values differ\n", what, (long long)bad, (long long)n);
        _fail(file, line);
    }
}
#define check_close(actual, expected, n, rtol, atol) \
    check_close_at((actual), (expected), (n), (rtol), (atol), #actual, __FILE__, __LINE__)

/* Numbers for tests: the same on every machine, in [-1, 1). */
static inline float test_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)(*state & 0xFFFFFF00u) / 2147483648.0f;
}
static inline float *test_randoms(int64_t n, uint32_t seed, float scale)
{
    float *values = malloc((size_t)n * sizeof *values + 1);
    for (int64_t i = 0; i < n; i++) values[i] = scale * test_random(&seed);
    return values;
}

static inline int shape_rank(gpunn_shape shape)
{
    int rank = 0;
    while (rank < GPUNN_MAX_RANK && shape.dim[rank] != 0) rank++;
    return rank;
}

static inline gpunn_status write_floats(gpunn_tensor *t, const float *values, int64_t n)
{
    return gpunn_write(t, values, (size_t)n * sizeof *values);
}
/* The value of t, allocated; its elements in *n. */
static inline float *read_floats(gpunn_device *dev, gpunn_tensor *t, int64_t *n)
{
    size_t bytes = gpunn_tensor_bytes(t);
    float *values = malloc(bytes + 1);
    OK(dev, gpunn_read(t, values, bytes));
    if (n) *n = (int64_t)(bytes / sizeof *values);
    return values;
}

/* ---- a small network that has everything: convolution, norm, dropout, pooling, shared value, class labels
 * -- */
typedef struct net {
    gpunn_tensor *x, *t, *logits, *loss, *accuracy;
} net;
#define NET_X 36 /* floats of a sample of x */

static inline net net_make(gpunn_model *model)
{
    net n = {NULL, NULL, NULL, NULL, NULL};
    n.x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 6, 6));
    n.t = gpunn_input(model, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *h = gpunn_conv2d(n.x, "conv1", .out_channels = 4, .kernel_size = 3, .padding = 1);
    h = gpunn_relu(gpunn_batch_norm2d(h, "bn1"));
    gpunn_tensor *skip_path = h;
    h = gpunn_conv2d(h, "conv2", .out_channels = 4, .kernel_size = 3, .padding = 1, .no_bias = true);
    h = gpunn_relu(gpunn_add(gpunn_batch_norm2d(h, "bn2"), skip_path));
    h = gpunn_dropout(gpunn_flatten(gpunn_max_pool2d(h, .kernel_size = 2)), 0.25f);
    n.logits = gpunn_linear(gpunn_tanh(gpunn_linear(h, "fc1", .out_features = 7)), "fc2", .out_features = 3);
    n.loss = gpunn_cross_entropy(n.logits, n.t);
    n.accuracy = gpunn_accuracy(n.logits, n.t);
    return n;
}

/* count samples for it that can be learnt: three classes of pictures, with noise */
static inline void net_data(int64_t count, uint32_t seed, float **x, int64_t **t)
{
    *x = test_randoms(count * NET_X, seed, 0.4f);
    *t = malloc((size_t)count * sizeof **t);
    for (int64_t i = 0; i < count; i++) {
        (*t)[i] = (i * 7 + seed) % 3;
        for (int64_t k = 0; k < NET_X; k++)
            (*x)[i * NET_X + k] += (*t)[i] == 0   ? (float)(k / 6 < 3)
                                   : (*t)[i] == 1 ? (float)(k % 6 < 3)
                                                  : 0.0f;
    }
}

static inline void net_write(gpunn_device *dev, net n, int64_t batch, uint32_t seed)
{
    float   *x;
    int64_t *t;
    net_data(batch, seed, &x, &t);
    OK(dev, write_floats(n.x, x, batch * NET_X));
    OK(dev, gpunn_write(n.t, t, (size_t)batch * sizeof *t));
    free(x), free(t);
}

/* All parameters and buffers, one after another. */
static inline float *read_weights(gpunn_device *dev, gpunn_model *model, int64_t *total)
{
    float *all = NULL;
    *total = 0;
    for (int i = 0; i < gpunn_parameter_count(model); i++) {
        int64_t n;
        float  *values = read_floats(dev, gpunn_parameter_at(model, i), &n);
        all = realloc(all, (size_t)(*total + n) * sizeof *all);
        memcpy(all + *total, values, (size_t)n * sizeof *all);
        *total += n;
        free(values);
    }
    return all;
}
static inline void check_same_weights(gpunn_device *dev_a, gpunn_model *a, gpunn_device *dev_b,
                                      gpunn_model *b)
{
    int64_t na, nb;
    float  *wa = read_weights(dev_a, a, &na), *wb = read_weights(dev_b, b, &nb);
    assert_int_equal(na, nb);
    assert_memory_equal(wa, wb, (size_t)na * sizeof *wa); /* bit for bit */
    free(wa), free(wb);
}

/* ---- files ---- */
static inline unsigned char *file_read(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail_msg("cannot open %s (run from the repository's root)", path);
    (void)fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = malloc(*size + 1);
    assert_int_equal(fread(data, 1, *size, file), *size);
    data[*size] = 0;
    (void)fclose(file);
    return data;
}

static inline void file_write(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* ---- safetensors, read without the library: what make_golden.py and gpunn_save write, nothing more ---- */
typedef struct golden_tensor {
    char        name[96];
    gpunn_dtype dtype;
    gpunn_shape shape;
    int64_t     count;
    size_t      bytes;
    const void *data;
} golden_tensor;
typedef struct golden {
    unsigned char *data;
    golden_tensor *tensors;
    int            count;
} golden;

static inline golden golden_open(const char *path)
{
    static const char *const names[] = {"",
#define X(id, text, file_name, bytes) file_name,
                                        GPUNN_DTYPE_LIST(X)
#undef X
    };
    golden         g = {NULL, NULL, 0};
    size_t         size;
    uint64_t       header;
    unsigned char *file = file_read(path, &size);
    assert_true(size >= 8);
    memcpy(&header, file, 8);
    assert_true(header <= size - 8);
    size_t data_size = size - 8 - (size_t)header;
    g.data = malloc(data_size + 1);
    memcpy(g.data, file + 8 + header, data_size);
    file[8 + header] = 0;
    /* "name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]} in this order, without spaces */
    for (char *p = (char *)file + 8; (p = strstr(p, "{\"dtype\":\"")) != NULL;) {
        g.tensors = realloc(g.tensors, (size_t)(g.count + 1) * sizeof *g.tensors);
        golden_tensor *t = &g.tensors[g.count++];
        memset(t, 0, sizeof *t);
        char *end = p - 2, *start = end; /* at the quote that ends the name */
        while (start[-1] != '"') start--;
        assert_true((size_t)(end - start) < sizeof t->name);
        memcpy(t->name, start, (size_t)(end - start));
        p += 10;
        size_t length = strcspn(p, "\"");
        for (int i = 1; i < GPUNN_DTYPE_COUNT; i++)
            if (strlen(names[i]) == length && strncmp(names[i], p, length) == 0) t->dtype = (gpunn_dtype)i;
        p = strchr(p, '[') + 1;
        t->count = 1;
        for (int i = 0; *p != ']'; i++) {
            t->shape.dim[i] = strtoll(p, &p, 10);
            t->count *= t->shape.dim[i];
            if (*p == ',') p++;
        }
        p = strchr(p + 1, '[') + 1;
        size_t from = (size_t)strtoull(p, &p, 10), to = (size_t)strtoull(p + 1, &p, 10);
        assert_true(from <= to && to <= data_size);
        t->bytes = to - from;
        t->data = g.data + from;
    }
    free(file);
    return g;
}

static inline void golden_close(golden *g)
{
    free(g->tensors);
    free(g->data);
}

/* NULL when there is none. */
static inline const golden_tensor *golden_find(const golden *g, const char *format, ...) GPUNN__PRINTF(2, 3);
static inline const golden_tensor *golden_find(const golden *g, const char *format, ...)
{
    char    name[160];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(name, sizeof name, format, list);
    va_end(list);
    for (int i = 0; i < g->count; i++)
        if (strcmp(g->tensors[i].name, name) == 0) return &g->tensors[i];
    return NULL;
}

static inline const golden_tensor *golden_get(const golden *g, const char *name)
{
    const golden_tensor *t = golden_find(g, "%s", name);
    if (t == NULL) fail_msg("no golden tensor %s", name);
    return t;
}
#endif
