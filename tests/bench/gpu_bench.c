/* gpu_bench.c - gpunn's side of the benchmarks on a GPU: does what tests/bench/gpu.py asks for on stdin, one
 * command a line.
 *
 * open NAME    makes the workload and warms it up       "ok"
 * time         runs it for about 50 ms                  "ok" and the milliseconds of one run
 * close        frees it                                 "ok", bytes held in tensors, bytes taken from the
 * GPU, result spec NAME FILE   writes the workload's spec, from which gpu_kernels.py has kernels generated
 * result: the loss of the eighth training step, or what a forward pass computes as one number, or nan. A
 * failure is a sentence on stderr, and the end. To try it where there is no GPU: --cpu, and --small for sizes
 * that take no time. Build: nvcc -O3 -arch=native -I. tests/bench/gpu_bench.c gpunn_cuda.cu -o gpu_bench;
 * gpu_kernels.py builds it with generated kernels */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"

#include "gpu_workloads.h"

#ifdef BENCH_KERNELS
#include BENCH_KERNELS
#else
#define BENCH_SETS(X)
#endif

/* The loss, or the sum of the output times noise, which takes in each of its values. */
static double result(workload *w)
{
    if (w->loss) return (double)gpunn_item(w->loss);
    if (w->output == NULL) return (double)NAN;
    size_t bytes = gpunn_tensor_bytes(w->output), count = bytes / sizeof(float);
    float *values = (float *)room((int64_t)count, sizeof *values);
    double sum = 0;
    if (gpunn_read(w->output, values, bytes) != GPUNN_OK) die(w);
    for (size_t i = 0; i < count; i++) sum += (double)values[i] * (double)noise((int64_t)i, 1000);
    free(values);
    return sum / sqrt((double)count);
}

/* Seconds that the runs take, up to the end of the last one's work. */
static double repeat(workload *w, int64_t runs)
{
    double begin = now();
    for (int64_t i = 0; i < runs; i++) run(w);
    if (gpunn_synchronize(w->dev) != GPUNN_OK) die(w);
    return now() - begin;
}

static void use_kernels(workload *w, const char *name)
{
    (void)w, (void)name;
#define X(set)                                                                                   \
    if (strcmp(name, #set) == 0 &&                                                               \
        gpunn_use_kernels(w->model, &set##_kernels, .policy = GPUNN_KERNELS_STRICT) != GPUNN_OK) \
        die(w);
    BENCH_SETS(X)
#undef X
}

/* Returns how many runs take about 50 ms. */
static int64_t open_workload(workload *w, gpunn_device_type type, const char *name, bool small, double *value)
{
    make_model(w, type, name, small);
    use_kernels(w, name);
    write_weights(w);
    (void)repeat(w, 8); /* plans, captures, warms up */
    *value = result(w);
    int64_t runs = 4;
    double  seconds;
    while ((seconds = repeat(w, runs)) < 0.2) runs *= 2;
    return (int64_t)(0.05 * (double)runs / seconds) + 1;
}

int main(int argc, char **argv)
{
    gpunn_device_type type = GPUNN_DEVICE_CUDA;
    bool              small = false;
    workload          w;
    int64_t           runs = 1;
    double            value = 0;
    char              line[512], name[64], path[256];
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--cpu") == 0) type = GPUNN_DEVICE_CPU;
        if (strcmp(argv[i], "--small") == 0) small = true;
    }
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "open %63s", name) == 1) {
            runs = open_workload(&w, type, name, small, &value);
            printf("ok\n");
        } else if (sscanf(line, "spec %63s %255s", name, path) == 2) {
            make_model(&w, type, name, small);
            if (gpunn_spec_save(w.model, path, .outputs = {w.output}, .loss = w.loss, .optimizer = w.opt) !=
                GPUNN_OK)
                die(&w);
            free_workload(&w);
            printf("ok\n");
        } else if (strcmp(line, "time\n") == 0)
            printf("ok %.9f\n", 1e3 * repeat(&w, runs) / (double)runs);
        else {
            printf("ok %zu %zu %.6g\n", gpunn_memory_allocated(w.dev), gpunn_memory_reserved(w.dev),
                   value); /* a run takes no more */
            free_workload(&w);
        }
        (void)fflush(stdout);
    }
    return 0;
}
