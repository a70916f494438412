/* gpu_bench.c - gpunn's side of the benchmarks on a GPU: does what tests/bench/gpu.py asks for on stdin, one command a line.
 *
 * open NAME    makes the workload and warms it up       "ok"
 * time         runs it for about 50 ms                  "ok" and the milliseconds of one run
 * close        frees it                                 "ok", bytes held in tensors, bytes taken from the GPU, result
 * spec NAME FILE   writes the workload's spec, from which gpu_kernels.py has kernels generated
 * result: the loss of the eighth training step, or what a forward pass computes as one number, or nan. A failure is a sentence on
 * stderr, and the end. To try it where there is no GPU: --cpu, and --small for sizes that take no time.
 * Build: nvcc -O3 -I. tests/bench/gpu_bench.c gpunn_cuda.cu -o gpu_bench; gpu_kernels.py builds it with generated kernels */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"

#include "workloads.h"

#ifdef BENCH_KERNELS
#include BENCH_KERNELS
#else
#define BENCH_SETS(X)
#endif

static gpunn_tensor *stream(workload *w, const char *name, bool small) /* 256 MiB */
{
    return input(w, name, 64, GPUNN_SHAPE(GPUNN_BATCH, small ? 1 << 10 : 1 << 20));
}

/* The 8 of "bert8_f16". */
static int number_in(const char *name)
{
    return atoi(name + strcspn(name, "0123456789"));
}

static void make(workload *w, const char *name, bool small)
{
    transformer bert = {.layers = 12, .width = 768, .heads = 12, .rows = 128};
    transformer gpt2 = {.layers = 12, .width = 768, .heads = 12, .rows = 1024, .tokens = 50304}; /* a multiple of 128 */
    transformer tiny = {.layers = 2, .width = 64, .heads = 2, .rows = 16, .tokens = 128};
    int         number = number_in(name);
    if (strcmp(name, "mlp20") == 0)
        make_mlp20(w);
    else if (strncmp(name, "lenet", 5) == 0)
        make_lenet(w, small ? 4 : number);
    else if (strncmp(name, "mlp784", 6) == 0)
        make_mlp784(w, small ? 16 : 512, small ? 32 : 1024, small ? 32 : 1024);
    else if (strncmp(name, "resnet18", 8) == 0)
        make_resnet(w, small ? 2 : 64, small ? 64 : 224, 1000, true);
    else if (strncmp(name, "bert", 4) == 0)
        make_bert(w, small ? 2 : number, small ? tiny : bert);
    else if (strncmp(name, "gpt2", 4) == 0)
        make_gpt(w, small ? 2 : 8, small ? tiny : gpt2);
    else if (strncmp(name, "register", 8) == 0)
        make_register(w, small ? 8 : number);
    else if (strcmp(name, "relu") == 0)
        w->output = gpunn_relu(stream(w, "a", small));
    else if (strcmp(name, "gelu") == 0)
        w->output = gpunn_gelu(stream(w, "a", small));
    else if (strcmp(name, "add") == 0)
        w->output = gpunn_add(stream(w, "a", small), stream(w, "b", small));
    else if (strcmp(name, "adamw") == 0) {
        w->opt = gpunn_adamw(w->model, .lr = 0.001f);
        make_parameters(w, small ? 100000 : 100000000, 1);
    } else {
        fprintf(stderr, "there is no workload %s\n", name);
        exit(2);
    }
    if (gpunn_last_status(w->dev) != GPUNN_OK) die(w);
}

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

static void make_model(workload *w, gpunn_device_type type, const char *name, bool small)
{
    static const char *const suffixes[] = {"_f32", "_tf32", "_bf16", "_f16"}; /* as in gpunn_precision */
    int                      precision = 3;
    while (precision > 0 && strstr(name, suffixes[precision]) == NULL) precision--;
    memset(w, 0, sizeof *w);
    w->dev = gpunn_device_open(.type = type, .seed = 1, .benchmark = true);
    if (w->dev == NULL) die(w);
    w->model = gpunn_model_create(w->dev, .precision = (gpunn_precision)precision);
    make(w, name, small);
}

static void use_kernels(workload *w, const char *name)
{
    (void)w, (void)name;
#define X(set)                                                                                                              \
    if (strcmp(name, #set) == 0 && gpunn_use_kernels(w->model, &set##_kernels, .policy = GPUNN_KERNELS_STRICT) != GPUNN_OK) \
        die(w);
    BENCH_SETS(X)
#undef X
}

static void free_workload(workload *w)
{
    gpunn_optimizer_destroy(w->opt);
    gpunn_model_destroy(w->model);
    gpunn_device_close(w->dev);
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
            if (gpunn_spec_save(w.model, path, .outputs = {w.output}, .loss = w.loss, .optimizer = w.opt) != GPUNN_OK) die(&w);
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
