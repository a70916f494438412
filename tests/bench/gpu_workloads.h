/* The workloads of the benchmarks on a GPU by their names in gpu.py, for gpu_bench.c and
 * tests/emulator/launches.c. Include gpunn.h before. */
#ifndef GPU_WORKLOADS_H
#define GPU_WORKLOADS_H
#include "workloads.h"

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
    /* a multiple of 128 */
    transformer gpt2 = {.layers = 12, .width = 768, .heads = 12, .rows = 1024, .tokens = 50304};
    transformer tiny = {.layers = 2, .width = 64, .heads = 2, .rows = 16, .tokens = 128};
    int         number = number_in(name);
    if (strcmp(name, "mlp20") == 0)
        make_mlp20(w);
    else if (strcmp(name, "iris") == 0)
        make_iris(w);
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

static void make_model(workload *w, gpunn_device_type type, const char *name, bool small)
{
    static const char *const suffixes[] = {"_f32", "_tf32", "_bf16", "_f16"}; /* as in gpunn_precision */
    int                      precision = 3;
    while (precision > 0 && strstr(name, suffixes[precision]) == NULL) precision--;
    memset(w, 0, sizeof *w);
    w->dev = gpunn_device_open(.type = type, .seed = 1, .benchmark = true);
    if (w->dev == NULL) die(w);
    w->recomputes = strstr(name, "_recompute") != NULL;
    w->model = gpunn_model_create(w->dev, .precision = (gpunn_precision)precision,
                                  .inference = strncmp(name, "bert", 4) == 0);
    make(w, name, small);
}

static void free_workload(workload *w)
{
    gpunn_optimizer_destroy(w->opt);
    gpunn_model_destroy(w->model);
    gpunn_device_close(w->dev);
}
#endif
