/* How much the graph of a run launches on a GPU with as many multiprocessors as an H200 has: kernels of ours, calls of the libraries,
 * fills and copies of a training step or forward pass of the benchmarks' workloads, from the third on. Nothing is computed, and sizes
 * are the real ones. With names as arguments: what each of these workloads launches, by name; +NAME: with generated kernels. */
#include "../test.h"

#include "../bench/gpu_workloads.h"
#include "emulator/counted_sets.h" /* of the workloads that have generated kernels here: bench_sets.py */
#include "emulator.h"

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
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gpunn_synchronize(w->dev), GPUNN_OK);
        emulator_forget_launches();
        run(w);
    }
    assert_int_equal(gpunn_synchronize(w->dev), GPUNN_OK);
}

/* One kernel, which brings the run's numbers, stands before the graph. */
static long in_graph(void)
{
    return emulator_launches() - 1;
}

static const struct limit {
    const char *name;
    long        most;
} limits[] = {{"mlp20", 5},           {"+mlp20", 2},           {"iris", 4},        {"+iris", 2},
              {"lenet4", 16},         {"+lenet4", 16},         {"bert8_f16", 96},  {"+bert8_f16", 96},
              {"resnet18_bf16", 153}, {"+resnet18_bf16", 152}, {"gpt2_bf16", 233}, {"+gpt2_bf16", 232}};

static void test_launches(void **state)
{
    const struct limit *limit = *state;
    workload            w;
    count(&w, limit->name);
    if (in_graph() < 1 || in_graph() > limit->most) fail_msg("%ld launches, and %ld are allowed", in_graph(), limit->most);
    free_workload(&w);
}

int main(int argc, char **argv)
{
    emulator_set("EMULATOR_MULTIPROCESSORS", "132");
    emulator_set("EMULATOR_RUN", "0");
    emulator_set("EMULATOR_MEMORY", "140000000000");
    for (int i = 1; i < argc; i++) {
        workload    w;
        const char *name;
        count(&w, argv[i]);
        printf("%s: %ld launches\n", argv[i], in_graph());
        for (int k = 0; emulator_launched(k, &name); k++) printf("%6ld %s\n", emulator_launched(k, &name), name);
        free_workload(&w);
    }
    if (argc > 1) return 0;
    struct CMUnitTest tests[COUNT(limits)];
    for (int i = 0; i < COUNT(limits); i++)
        tests[i] = (struct CMUnitTest){limits[i].name, test_launches, NULL, NULL, (void *)&limits[i]};
    return cmocka_run_group_tests_name("launches", tests, NULL, NULL);
}
