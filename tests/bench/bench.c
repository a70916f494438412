/* bench.c - one workload of gpunn, timed. tests/bench/run.py runs it alternately with its twin in bench_torch.py.
 *
 * Usage: bench NAME THREADS      prints: NAME THREADS median-ms minimum-ms peak-RSS-MiB
 * Names: sgemm1024 sgemm256 mlp20 lenet4 lenet128 mlp784 resnet_forward resnet_train adam */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct workload {
    gpunn_device    *dev;
    gpunn_model     *model;
    gpunn_tensor    *output; /* of a forward pass */
    gpunn_tensor    *loss;   /* of a training step */
    gpunn_optimizer *opt;
} workload;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* MiB of this program's own; getrusage would count what stood in the process before exec. */
static double peak_memory(void)
{
    long  kib = 0;
    char  line[128];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
    if (file) fclose(file);
    return (double)kib / 1024;
}

static void die(const workload *w)
{
    fprintf(stderr, "%s\n", gpunn_error(w->dev));
    exit(1);
}

static float *noise(int64_t count)
{
    float *values = (float *)aligned_alloc(64, ((size_t)count * sizeof(float) + 63) / 64 * 64);
    if (values == NULL) exit(1);
    uint32_t state = 12345;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(state >> 8) / 8388608.0f - 1;
    }
    return values;
}

static gpunn_tensor *input(workload *w, const char *name, int64_t batch, gpunn_shape shape)
{
    gpunn_tensor *t = gpunn_input(w->model, name, GPUNN_F32, shape);
    int64_t       count = batch;
    for (int i = 0; i < GPUNN_MAX_RANK && shape.dim[i]; i++) count *= shape.dim[i] < 0 ? 1 : shape.dim[i];
    float *values = noise(count);
    if (gpunn_write(t, values, (size_t)count * sizeof(float)) != GPUNN_OK) die(w);
    free(values);
    return t;
}

static gpunn_tensor *labels(workload *w, int64_t batch, int classes)
{
    gpunn_tensor *t = gpunn_input(w->model, "label", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    int64_t       values[128];
    for (int64_t i = 0; i < batch; i++) values[i] = i * 7 % classes;
    if (gpunn_write(t, values, (size_t)batch * sizeof *values) != GPUNN_OK) die(w);
    return t;
}

static void make_sgemm(workload *w, int n)
{
    gpunn_tensor *a = input(w, "a", 1, GPUNN_SHAPE(n, n)), *b = input(w, "b", 1, GPUNN_SHAPE(n, n));
    w->output = gpunn_matmul(a, b);
}

static void make_mlp20(workload *w)
{
    gpunn_tensor *x = input(w, "x", 32, GPUNN_SHAPE(GPUNN_BATCH, 20)), *t = input(w, "t", 32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    float         targets[32];
    for (int i = 0; i < 32; i++) targets[i] = (float)(i & 1);
    if (gpunn_write(t, targets, sizeof targets) != GPUNN_OK) die(w);
    gpunn_tensor *h = gpunn_relu(gpunn_linear(x, "fc1", .out_features = 50));
    w->loss = gpunn_bce_loss(gpunn_sigmoid(gpunn_linear(h, "fc2", .out_features = 1)), t);
    w->opt = gpunn_sgd(w->model, .lr = 0.01f);
}

static void make_lenet(workload *w, int64_t batch)
{
    gpunn_tensor *h = input(w, "x", batch, GPUNN_SHAPE(GPUNN_BATCH, 3, 32, 32));
    h = gpunn_max_pool2d(gpunn_relu(gpunn_conv2d(h, "conv1", .out_channels = 6, .kernel_size = 5)), .kernel_size = 2);
    h = gpunn_max_pool2d(gpunn_relu(gpunn_conv2d(h, "conv2", .out_channels = 16, .kernel_size = 5)), .kernel_size = 2);
    h = gpunn_relu(gpunn_linear(gpunn_flatten(h), "fc1", .out_features = 120));
    h = gpunn_relu(gpunn_linear(h, "fc2", .out_features = 84));
    w->loss = gpunn_cross_entropy(gpunn_linear(h, "fc3", .out_features = 10), labels(w, batch, 10));
    w->opt = gpunn_sgd(w->model, .lr = 0.001f, .momentum = 0.9f);
}

static void make_mlp784(workload *w)
{
    gpunn_tensor *h = input(w, "x", 128, GPUNN_SHAPE(GPUNN_BATCH, 784));
    h = gpunn_relu(gpunn_linear(h, "fc1", .out_features = 256));
    h = gpunn_relu(gpunn_linear(h, "fc2", .out_features = 128));
    w->loss = gpunn_cross_entropy(gpunn_linear(h, "fc3", .out_features = 10), labels(w, 128, 10));
    w->opt = gpunn_adam(w->model, .lr = 0.001f);
}

static gpunn_tensor *conv_bn(gpunn_tensor *x, const char *name, int channels, int kernel, int stride, int padding)
{
    char layer[64];
    snprintf(layer, sizeof layer, "%s.conv", name);
    x = gpunn_conv2d(x, layer, .out_channels = channels, .kernel_size = kernel, .stride = stride, .padding = padding,
                     .no_bias = true);
    snprintf(layer, sizeof layer, "%s.bn", name);
    return gpunn_batch_norm2d(x, layer);
}

static void make_resnet(workload *w, int64_t batch, bool train)
{
    gpunn_tensor *h = input(w, "x", batch, GPUNN_SHAPE(GPUNN_BATCH, 3, 64, 64));
    h = gpunn_max_pool2d(gpunn_relu(conv_bn(h, "stem", 64, 7, 2, 3)), .kernel_size = 3, .stride = 2, .padding = 1);
    int channels = 64;
    for (int stage = 0; stage < 4; stage++)
        for (int block = 0; block < 2; block++) {
            int  width = 64 << stage, stride = stage > 0 && block == 0 ? 2 : 1;
            char name[3][32];
            for (int i = 0; i < 3; i++) snprintf(name[i], sizeof name[i], "layer%d.%d.%d", stage + 1, block, i);
            gpunn_tensor *skip = width != channels ? conv_bn(h, name[2], width, 1, stride, 0) : h;
            h = gpunn_relu(conv_bn(h, name[0], width, 3, stride, 1));
            h = gpunn_relu(gpunn_add(conv_bn(h, name[1], width, 3, 1, 1), skip));
            channels = width;
        }
    h = gpunn_linear(gpunn_flatten(gpunn_adaptive_avg_pool2d(h, 1, 1)), "fc", .out_features = 5);
    if (!train) {
        w->output = h;
        return;
    }
    w->loss = gpunn_cross_entropy(h, labels(w, batch, 5));
    w->opt = gpunn_sgd(w->model, .lr = 0.001f, .momentum = 0.9f);
}

/* 64 parameters of 10 million floats together, and a gradient for each. */
static void make_adam(workload *w)
{
    gpunn_tensor *sum = NULL;
    for (int i = 0; i < 64; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        gpunn_init    init = {GPUNN_INIT_UNIFORM, -1, 1};
        gpunn_tensor *p = gpunn_parameter(w->model, name, GPUNN_SHAPE(10000000 / 64), init);
        gpunn_tensor *total = gpunn_sum(gpunn_square(p), GPUNN_ALL, false);
        sum = sum ? gpunn_add(sum, total) : total;
    }
    w->opt = gpunn_adam(w->model, .lr = 0.001f);
    if (gpunn_backward(sum) != GPUNN_OK) die(w);
}

static void run(workload *w)
{
    gpunn_status status = GPUNN_OK;
    if (w->loss)
        status = gpunn_train_step(w->opt, w->loss);
    else if (w->output)
        status = gpunn_forward(&w->output, 1);
    else
        status = gpunn_optimizer_step(w->opt);
    if (status != GPUNN_OK) die(w);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc != 3 || atoi(argv[2]) < 1) {
        fprintf(stderr, "usage: %s NAME THREADS\n", argv[0]);
        return 2;
    }
    const char *name = argv[1];
    workload    w;
    memset(&w, 0, sizeof w);
    int threads = atoi(argv[2]);
    w.dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1, .threads = threads);
    if (w.dev == NULL) die(&w);
    w.model = gpunn_model_create(w.dev);
    if (strcmp(name, "sgemm1024") == 0)
        make_sgemm(&w, 1024);
    else if (strcmp(name, "sgemm256") == 0)
        make_sgemm(&w, 256);
    else if (strcmp(name, "mlp20") == 0)
        make_mlp20(&w);
    else if (strcmp(name, "lenet4") == 0)
        make_lenet(&w, 4);
    else if (strcmp(name, "lenet128") == 0)
        make_lenet(&w, 128);
    else if (strcmp(name, "mlp784") == 0)
        make_mlp784(&w);
    else if (strcmp(name, "resnet_forward") == 0)
        make_resnet(&w, 10, false);
    else if (strcmp(name, "resnet_train") == 0)
        make_resnet(&w, 32, true);
    else if (strcmp(name, "adam") == 0)
        make_adam(&w);
    else {
        fprintf(stderr, "no workload %s\n", name);
        return 2;
    }
    if (gpunn_last_status(w.dev) != GPUNN_OK) die(&w);

    enum { REPEATS = 9 };
    double  times[REPEATS], begin;
    int64_t calls = 0;
    for (begin = now(); now() - begin < 0.3 || calls < 3; calls++) run(&w); /* warm-up; then repeats of 0.2 s */
    calls = (int64_t)(0.2 / ((now() - begin) / (double)calls)) + 1;
    for (int i = 0; i < REPEATS; i++) {
        begin = now();
        for (int64_t j = 0; j < calls; j++) run(&w);
        times[i] = (now() - begin) / (double)calls;
    }
    qsort(times, REPEATS, sizeof *times, compare);
    printf("%s %d %.6f %.6f %.1f\n", name, threads, 1e3 * times[REPEATS / 2], 1e3 * times[0], peak_memory());
    gpunn_optimizer_destroy(w.opt);
    gpunn_model_destroy(w.model);
    gpunn_device_close(w.dev);
    return 0;
}
