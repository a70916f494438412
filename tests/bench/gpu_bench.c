/* gpu_bench.c - gpunn's side of the benchmarks on a GPU: does what tests/bench/gpu.py asks for on stdin, one command a line.
 *
 * open NAME    makes the workload and warms it up       "ok"
 * time         runs it for about 50 ms                  "ok" and the milliseconds of one run
 * close        frees it                                 "ok", peak bytes of tensors, peak bytes taken from the GPU, loss (or nan)
 * A failure is a sentence on stderr, and the end. With --cpu it works on the CPU: to try it where there is no GPU.
 * Build: nvcc -O3 -I. tests/bench/gpu_bench.c gpunn_cuda.cu -o gpu_bench */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"

#include "workloads.h"

static gpunn_tensor *stream(workload *w, const char *name) /* 256 MiB */
{
    return input(w, name, 64, GPUNN_SHAPE(GPUNN_BATCH, 1 << 20));
}

static void make(workload *w, const char *name)
{
    if (strcmp(name, "mlp20") == 0)
        make_mlp20(w);
    else if (strncmp(name, "lenet", 5) == 0)
        make_lenet(w, atoi(name + 5));
    else if (strncmp(name, "mlp784", 6) == 0)
        make_mlp784(w, 512, 1024, 1024);
    else if (strncmp(name, "resnet18", 8) == 0)
        make_resnet(w, 64, 224, 1000, true);
    else if (strcmp(name, "relu") == 0)
        w->output = gpunn_relu(stream(w, "a"));
    else if (strcmp(name, "gelu") == 0)
        w->output = gpunn_gelu(stream(w, "a"));
    else if (strcmp(name, "add") == 0)
        w->output = gpunn_add(stream(w, "a"), stream(w, "b"));
    else if (strcmp(name, "adamw") == 0) {
        w->opt = gpunn_adamw(w->model, .lr = 0.001f);
        make_parameters(w, 100000000, 1);
    } else {
        fprintf(stderr, "there is no workload %s\n", name);
        exit(2);
    }
    if (gpunn_last_status(w->dev) != GPUNN_OK) die(w);
}

/* Seconds that the runs take, up to the end of the last one's work. */
static double repeat(workload *w, int64_t runs)
{
    double begin = now();
    for (int64_t i = 0; i < runs; i++) run(w);
    if (gpunn_synchronize(w->dev) != GPUNN_OK) die(w);
    return now() - begin;
}

/* Returns how many runs take about 50 ms. */
static int64_t open_workload(workload *w, gpunn_device_type type, const char *name)
{
    static const char *const suffixes[] = {"_f32", "_tf32", "_bf16", "_f16"}; /* as in gpunn_precision */
    int                      precision = 3;
    while (precision > 0 && strstr(name, suffixes[precision]) == NULL) precision--;
    memset(w, 0, sizeof *w);
    w->dev = gpunn_device_open(.type = type, .seed = 1, .benchmark = true);
    if (w->dev == NULL) die(w);
    w->model = gpunn_model_create(w->dev, .precision = (gpunn_precision)precision);
    make(w, name);
    int64_t runs = 4;
    double  seconds = repeat(w, runs); /* plans, captures, warms up */
    while ((seconds = repeat(w, runs)) < 0.2) runs *= 2;
    return (int64_t)(0.05 * (double)runs / seconds) + 1;
}

int main(int argc, char **argv)
{
    gpunn_device_type type = argc > 1 && strcmp(argv[1], "--cpu") == 0 ? GPUNN_DEVICE_CPU : GPUNN_DEVICE_CUDA;
    workload          w;
    int64_t           runs = 1;
    char              line[128], name[64];
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "open %63s", name) == 1) {
            runs = open_workload(&w, type, name);
            printf("ok\n");
        } else if (strcmp(line, "time\n") == 0)
            printf("ok %.9f\n", 1e3 * repeat(&w, runs) / (double)runs);
        else {
            printf("ok %zu %zu %.6g\n", gpunn_memory_peak(w.dev), gpunn_memory_reserved_peak(w.dev),
                   w.loss ? (double)gpunn_item(w.loss) : (double)NAN);
            gpunn_optimizer_destroy(w.opt);
            gpunn_model_destroy(w.model);
            gpunn_device_close(w.dev);
        }
        (void)fflush(stdout);
    }
    return 0;
}
