/* A whole program - build, fit, validate, save, load, resume - with allocation number n failing, for every n,
 * with GPUNN_TEST_ALLOCATIONS=k every k-th: each time a status and a sentence, no leak, no half-written file,
 * no crash. On the emulated GPU the same for the backend's calls; unit/kernels.c has those of the CPU. */
#include "backend.h"

#include <sys/stat.h>

typedef struct files {
    const char *checkpoint, *weights, *csv, *svg, *npy;
} files;

/* The first call that does not return GPUNN_OK ends the program. */
#define FAILED(call) ((status = (call)) != GPUNN_OK)

/* GPUNN_OK, or what the first call that fails returns. */
static gpunn_status program(gpunn_device *dev, const files *path, float *x, int64_t *t)
{
    gpunn_loader    *train = NULL, *validation = NULL;
    gpunn_optimizer *opt = NULL;
    gpunn_array   array = {GPUNN_F32, 1, {NET_X}, NET_X * sizeof *x, x}, again = {GPUNN_F32, 0, {0}, 0, NULL};
    gpunn_model  *model = gpunn_model_create(dev), *second = NULL, *third = NULL;
    net           n = net_make(model);
    gpunn_tensor *extra = gpunn_expr("x * sigmoid(1.702 * x) + 0.5", &n.logits, 1);
    float         values[12];
    gpunn_status  status = GPUNN_OK;
    if (n.loss == NULL || n.accuracy == NULL || extra == NULL) goto end;
    if (gpunn_set_name(extra, "extra") == NULL) goto end;
    opt = gpunn_adamw(model, .lr = 0.01f);
    train = gpunn_loader_create(model, .fields = {{.input = n.x, .samples = x}, {.input = n.t, .samples = t}},
                                .count = 10, .batch_size = 4, .shuffle = true, .workers = 1,
                                .validation_share = 0.4f, .validation = &validation);
    if (opt == NULL || train == NULL || validation == NULL) goto end;
    if (FAILED(gpunn_set_schedule(opt, .type = GPUNN_SCHEDULE_COSINE, .total_steps = 9))) goto end;
    if (FAILED(gpunn_model_summary(model, .batch_size = 4, .loss = n.loss))) goto end;
    if (FAILED(gpunn_fit(opt, .loss = n.loss, .metric = n.accuracy, .train = train, .validation = validation,
                         .epochs = 2, .history_csv = path->csv, .history_svg = path->svg,
                         .best_weights = path->weights, .restore_best = true,
                         .checkpoint = path->checkpoint)))
        goto end;
    if (FAILED(gpunn_forward(&extra, 1)) || FAILED(gpunn_read(extra, values, gpunn_tensor_bytes(extra))))
        goto end;
    if (FAILED(gpunn_save(model, path->weights)) || FAILED(gpunn_load(model, path->weights))) goto end;
    if (FAILED(gpunn_set_metadata(model, "key", "value")) || FAILED(gpunn_model_save(model, path->weights)))
        goto end;
    if ((third = gpunn_model_load(dev, path->weights)) == NULL) goto end;
    if (FAILED(gpunn_checkpoint_load(opt, train, path->checkpoint))) goto end;
    if (FAILED(gpunn_write_npy(dev, path->npy, &array)) || FAILED(gpunn_read_npy(dev, path->npy, &again)))
        goto end;
    second = gpunn_model_create(dev);
    if (net_make(second).accuracy == NULL || FAILED(gpunn_load(second, path->weights))) goto end;
    gpunn_empty_cache(dev);
    if (FAILED(gpunn_evaluate(validation, n.loss, NULL, &values[0], NULL))) goto end;
end:
    gpunn_array_free(dev, &again);
    gpunn_loader_destroy(train);
    gpunn_loader_destroy(validation);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    gpunn_model_destroy(second);
    gpunn_model_destroy(third);
    return status != GPUNN_OK ? status : gpunn_last_status(dev);
}

static void remove_all(const files *path)
{
    (void)unlink(path->checkpoint), (void)unlink(path->weights), (void)unlink(path->csv),
        (void)unlink(path->svg), (void)unlink(path->npy);
}

/* Fails one allocation, or (from_then_on) all from the n-th. */
static void every_allocation(bool from_then_on)
{
    fixture     f = {.backend = first_backend()}; /* for the folder only */
    const files path = {test_path(&f, "c"), test_path(&f, "w"), test_path(&f, "csv"), test_path(&f, "svg"),
                        test_path(&f, "npy")};
    float      *x;
    int64_t    *t;
    long        failed = 0, step = test_setting("GPUNN_TEST_ALLOCATIONS", 1);
    net_data(10, 1, &x, &t);
    for (long n = 1;; n += step) {
        test_memory memory;
        test_memory_init(&memory);
        memory.fail_at = n;
        memory.fail_on = from_then_on;
        gpunn_clear_error(NULL);
        gpunn_device *dev = gpunn_device_open(ON(first_backend()), .realloc_fn = hook_realloc,
                                              .user = &memory, .threads = 2, .seed = 1);
        gpunn_status  status = dev ? program(dev, &path, x, t) : gpunn_last_status(NULL);
        const char   *text = gpunn_error(dev);
        if (memory.calls < n) { /* nothing failed any more */
            assert_int_equal(status, GPUNN_OK);
            gpunn_device_close(dev);
            test_memory_check(&memory);
            break;
        }
        failed++;
        if ((dev && status != GPUNN_ERR_MEMORY) || status == GPUNN_OK || gpunn_last_status(dev) != status ||
            strstr(text, "memory") == NULL)
            fail_msg("allocation %ld failed: %s \"%s\"", n, gpunn_status_name(status), text);
        gpunn_device_close(dev);
        if (memory.fault || memory.blocks) print_error("after allocation %ld of the program failed:\n", n);
        test_memory_check(&memory);
        remove_all(&path);
        if (rmdir(f.folder) != 0)
            fail_msg("a temporary file is left in %s after allocation %ld failed", f.folder, n);
        assert_int_equal(mkdir(f.folder, 0700), 0);
    }
    print_message("# %ld allocations failed, one by one\n", failed);
    assert_true(failed > 100 / step);
    remove_all(&path);
    assert_int_equal(rmdir(f.folder), 0);
    free(x), free(t);
}
static void test_one_fails(void **state)
{
    (void)state;
    every_allocation(false);
}
static void test_all_fail_from(void **state)
{
    (void)state;
    every_allocation(true);
}

static void test_backend_fails(void **state)
{
    const gpunn_backend *table = first_backend()->table;
    (void)state;
    if (table == NULL) SKIP("no emulated GPU");
    every_backend_call(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_fails), cmocka_unit_test(test_all_fail_from),
                                       cmocka_unit_test(test_backend_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
