/* How much the graph of a run launches on a GPU with as many multiprocessors as an H200 has: kernels of ours,
 * calls of the libraries, fills and copies of a training step or forward pass of the benchmarks' workloads,
 * from the third on. Nothing is computed, and sizes are the real ones. With names as arguments: what each of
 * these workloads launches, by name; +NAME: with generated kernels.
 * --trace FOLDER NAME...: writes gpunn_profile's trace of each to FOLDER/NAME.json, in which a launch takes
 * 125 us; none for a workload that is an update alone. */
#include "../test.h"

#include "../bench/gpu_workloads.h"
#include "emulator/counted_sets.h" /* of the workloads that have generated kernels here: bench_sets.py */
#include "emulator.h"

static void run_thrice(workload *w)
{
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gpunn_synchronize(w->dev), GPUNN_OK);
        emulator_forget_launches();
        run(w);
    }
    assert_int_equal(gpunn_synchronize(w->dev), GPUNN_OK);
}

static void count(workload *w, const char *name)
{
    const bool fused = name[0] == '+';
    make_model(w, GPUNN_DEVICE_CUDA, name + fused, false);
#define X(workload_name, set)                                                                            \
    if (fused && strcmp(name + 1, #workload_name) == 0) {                                                \
        assert_int_equal(gpunn_use_kernels(w->model, &(set), .policy = GPUNN_KERNELS_STRICT), GPUNN_OK); \
    }
    BENCH_SETS(X)
#undef X
    run_thrice(w);
}

/* One kernel, which brings the run's numbers, stands before the graph. */
static long in_graph(void)
{
    return emulator_launches() - 1;
}

/* row: how many of them follow one another; beside these gradients are checked. */
static const struct limit {
    const char *name;
    long        most, row;
} limits[] = {{"mlp20", 1, 1},
              {"+mlp20", 2, 2},
              {"iris", 1, 1},
              {"+iris", 2, 2},
              {"lenet4", 16, 15},
              {"+lenet4", 16, 15},
              {"bert8_f16", 96, 96},
              {"+bert8_f16", 96, 96},
              {"resnet18_bf16", 155, 154},
              {"+resnet18_bf16", 154, 153},
              {"gpt2_bf16", 283, 234},
              {"+gpt2_bf16", 282, 233}};

static void test_launches(void **state)
{
    const struct limit *limit = *state;
    workload            w;
    count(&w, limit->name);
    if (in_graph() < 1 || in_graph() > limit->most || emulator_row() > limit->row)
        fail_msg("%ld launches and %ld in a row, and %ld and %ld are allowed", in_graph(), emulator_row(),
                 limit->most, limit->row);
    free_workload(&w);
}

/* What orders, draws from and adds to long lines: launches of a pass, and MB that the device holds for it. */
typedef enum pick { TOPK, SORT, SAMPLE, SCATTER, SORT_BACKWARD, SELECT, INDEX_ADD, SELECT_BACKWARD } pick;
static const struct picking {
    const char *name;
    pick        pick;
    int64_t     lines, n;
    int         k; /* largest, or indices of a line, or of all */
    long        launches;
    double      megabytes;
} pickings[] = {
    {"40 of 50257", TOPK, 1, 50257, 40, 2, 0.22},
    {"40 of 131072", TOPK, 1, 131072, 40, 3, 0.56},
    {"40 of 262144", TOPK, 1, 262144, 40, 3, 1.1},
    {"40 of 50257, 256 times", TOPK, 256, 50257, 40, 1, 52},
    {"sort 50257", SORT, 1, 50257, 0, 9, 1.5},
    {"sort 131072", SORT, 1, 131072, 0, 9, 3.9},
    {"sort 262144", SORT, 1, 262144, 0, 9, 7.7},
    {"sample from 40 of 50257", SAMPLE, 1, 50257, 40, 5, 0.22},
    {"sample from 1024", SAMPLE, 1, 1024, 0, 1, 0.01},
    {"sample from 50257", SAMPLE, 1, 50257, 0, 10, 0.23},
    {"sample from 131072", SAMPLE, 1, 131072, 0, 10, 0.55},
    {"sample from 262144", SAMPLE, 1, 262144, 0, 10, 1.1},
    {"sample from 50257, 256 times", SAMPLE, 256, 50257, 0, 10, 56},
    {"add at 1000000", SCATTER, 1, 1000000, 1000000, 9, 37},
    {"add at 1000, 64 times", SCATTER, 64, 5000, 1000, 3, 3.4},
    {"select 3000 of 5000 rows of 256", SELECT, 5000, 256, 3000, 2, 8.3},
    {"add 3000 to 5000 rows of 256", INDEX_ADD, 5000, 256, 3000, 7, 13.4},
    {"backward of selecting 3000 of 5000 rows of 256", SELECT_BACKWARD, 5000, 256, 3000, 15, 24.7},
    {"backward of sort 131072", SORT_BACKWARD, 1, 131072, 0, 25, 5.4},
    {"backward of sort 1024, 4096 times", SORT_BACKWARD, 4096, 1024, 0, 11, 118}};

static void make_pick(workload *w, const struct picking *p)
{
    gpunn_tensor *x = input(w, "x", p->lines, GPUNN_SHAPE(p->lines, p->n));
    if (p->pick == TOPK) w->output = gpunn_topk_indices(x, p->k, 1, true);
    if (p->pick == SORT) w->output = gpunn_argsort(x, 1, true);
    if (p->pick == SAMPLE)
        w->output = gpunn_sample(x, input(w, "draw", p->lines, GPUNN_SHAPE(p->lines)), .top_k = p->k,
                                 .top_p = 0.9f);
    if (p->pick == SCATTER) {
        gpunn_tensor *src = input(w, "src", p->lines, GPUNN_SHAPE(p->lines, p->k));
        w->output = gpunn_scatter_add(x, 1, gpunn_cast(src, GPUNN_I64), src);
    }
    gpunn_tensor *rows = p->pick >= SELECT ? input(w, "rows", p->k, GPUNN_SHAPE(p->k)) : NULL;
    if (p->pick == SELECT) w->output = gpunn_index_select(x, 0, gpunn_cast(rows, GPUNN_I64));
    if (p->pick == INDEX_ADD)
        w->output = gpunn_index_add(x, 0, gpunn_cast(rows, GPUNN_I64),
                                    input(w, "src", p->k, GPUNN_SHAPE(p->k, p->n)));
    if (p->pick == SELECT_BACKWARD) {
        gpunn_tensor *weight = gpunn_parameter(w->model, "weight", GPUNN_SHAPE(p->lines, p->n),
                                               (gpunn_init){0});
        gpunn_tensor *picked = gpunn_index_select(weight, 0, gpunn_cast(rows, GPUNN_I64));
        w->loss = gpunn_sum(gpunn_mul(picked, picked), GPUNN_ALL, false);
        w->opt = gpunn_sgd(w->model, .lr = 0.1f);
    }
    if (p->pick == SORT_BACKWARD) {
        gpunn_tensor *weight = gpunn_parameter(w->model, "weight", GPUNN_SHAPE(p->lines, p->n),
                                               (gpunn_init){0});
        w->loss = gpunn_sum(gpunn_mul(gpunn_sort(weight, 1, true, NULL), x), GPUNN_ALL, false);
        w->opt = gpunn_sgd(w->model, .lr = 0.1f);
    }
}

static void count_pick(workload *w, const struct picking *p)
{
    memset(w, 0, sizeof *w);
    w->dev = gpunn_device_open(.type = GPUNN_DEVICE_CUDA, .seed = 1);
    if (w->dev == NULL) die(w);
    w->model = gpunn_model_create(w->dev);
    make_pick(w, p);
    if (gpunn_last_status(w->dev) != GPUNN_OK) die(w);
    run_thrice(w);
}

static void test_picks(void **state)
{
    const struct picking *p = *state;
    workload              w;
    count_pick(&w, p);
    const double megabytes = (double)gpunn_memory_allocated(w.dev) * 1e-6;
    if (in_graph() != p->launches || !(megabytes <= p->megabytes))
        fail_msg("%ld launches and %.2f MB; %ld and at most %.2f MB are right", in_graph(), megabytes,
                 p->launches, p->megabytes);
    free_workload(&w);
}

/* Gradients of 4 MiB each are checked behind the kernel that writes them, those that come last before the
 * update; one of a layer's bias waits for the next ones. */
static void test_checks(void **state)
{
    (void)state;
    static const char *const sought[] = {"gpunn__finite_kernel", "product"}, *const names[] = {"fc1", "fc2",
                                                                                               "fc3", "fc4"};
    workload w;
    int      checks = 0;
    emulator_set("EMULATOR_STREAMS", "eager");
    memset(&w, 0, sizeof w);
    w.dev = gpunn_device_open(.type = GPUNN_DEVICE_CUDA, .seed = 1);
    if (w.dev == NULL) die(&w);
    w.model = gpunn_model_create(w.dev);
    gpunn_tensor *h = input(&w, "x", 512, GPUNN_SHAPE(GPUNN_BATCH, 1024));
    for (int i = 0; i < 4; i++) h = gpunn_linear(h, names[i], .out_features = 1024);
    w.loss = gpunn_mean(gpunn_square(h), GPUNN_ALL, false);
    w.opt = gpunn_adam(w.model);
    if (w.opt == NULL || w.loss == NULL) die(&w);
    emulator_forget_launches();
    run(&w);
    for (long i = 1; emulator_ran(i); i++) {
        if (strcmp(emulator_ran(i), sought[0]) != 0) continue;
        checks++;
        if (strncmp(emulator_ran(i - 1), sought[1], strlen(sought[1])) != 0)
            fail_msg("a check follows %s", emulator_ran(i - 1));
    }
    assert_int_equal(checks, 4);
    free_workload(&w);
    emulator_set("EMULATOR_STREAMS", "late");
    count(&w, "lenet4"); /* its first layer's are few: the update's blocks look at them */
    assert_int_equal(in_graph() - emulator_row(), 1);
    free_workload(&w);
}

static void trace(const workload *w, const char *folder, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s.json", folder, name);
    if (gpunn_profile(w->model, .loss = w->loss, .outputs = {w->output}, .optimizer = w->opt, .runs = 1,
                      .peak_flops = 1, .peak_bytes = 1, .trace = path) != GPUNN_OK)
        die(w);
}

int main(int argc, char **argv)
{
    const char *folder = argc > 2 && strcmp(argv[1], "--trace") == 0 ? argv[2] : NULL;
    emulator_set("EMULATOR_MULTIPROCESSORS", "132");
    emulator_set("EMULATOR_RUN", "0");
    emulator_set("EMULATOR_MEMORY", "140000000000");
    for (int i = folder ? 3 : 1; i < argc; i++) {
        workload    w;
        const char *name;
        count(&w, argv[i]);
        printf("%s: %ld launches, %ld in a row, bytes of gradients:", argv[i], in_graph(),
               w.opt ? emulator_row() : in_graph());
        for (int k = 0; w.opt && k < gpunn_parameter_count(w.model); k++)
            printf(" %lld", 4 * (long long)elements(gpunn_parameter_at(w.model, k), 1));
        printf("\n");
        for (int k = 0; emulator_launched(k, &name); k++)
            printf("%6ld %s\n", emulator_launched(k, &name), name);
        if (folder && (w.loss || w.output)) trace(&w, folder, argv[i]);
        free_workload(&w);
    }
    if (argc > 1) return 0;
    struct CMUnitTest tests[COUNT(limits) + COUNT(pickings) + 1];
    for (int i = 0; i < COUNT(limits); i++)
        tests[i] = (struct CMUnitTest){limits[i].name, test_launches, NULL, NULL, (void *)&limits[i]};
    for (int i = 0; i < COUNT(pickings); i++)
        tests[COUNT(limits) + i] = (struct CMUnitTest){pickings[i].name, test_picks, NULL, NULL,
                                                       (void *)&pickings[i]};
    tests[COUNT(limits) + COUNT(pickings)] = (struct CMUnitTest)cmocka_unit_test(test_checks);
    return cmocka_run_group_tests_name("launches", tests, NULL, NULL);
}
