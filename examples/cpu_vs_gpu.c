/* cpu_vs_gpu.c - the same work on the CPU and on the GPU, with the way there and back shown apart.
 *
 * Shows: one program for both devices; what a transfer costs beside the computation; when a GPU pays.
 * Build: cc -O3 -march=native -I. examples/cpu_vs_gpu.c -o cpu_vs_gpu -lm
 *        nvcc -O3 -arch=native -Xcompiler -march=native -I. examples/cpu_vs_gpu.c gpunn_cuda.cu -o cpu_vs_gpu
 * Run:   ./cpu_vs_gpu [--precision bf16] [--quick]    (--help explains all options)
 * Expect: a line for each work: milliseconds to write its inputs, to compute, to read its result, on
 *         either device.
 * Time:  about a quarter of a minute on two cores.
 * Next:  --only NAME --seconds 5 for one work, --threads 1, or a work of your own in the table. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_INPUTS = 4 };

/* What a builder below makes: inputs to be filled with numbers, and either a result to read or a loss to
 * train by. */
typedef struct graph {
    gpunn_model     *model;
    gpunn_tensor    *inputs[MAX_INPUTS], *output, *loss;
    gpunn_optimizer *optimizer;
    int              input_count;
    int64_t          batch;
} graph;

static gpunn_tensor *input(graph *g, const char *name, gpunn_dtype dtype, gpunn_shape shape)
{
    return g->inputs[g->input_count++] = gpunn_input(g->model, name, dtype, shape);
}

static void train_classifier(graph *g, gpunn_tensor *logits)
{
    g->output = g->loss = gpunn_cross_entropy(logits, input(g, "label", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH)));
    g->optimizer = gpunn_sgd(g->model, .lr = 0.001f, .momentum = 0.9f);
}

static void vector_add(graph *g, int count)
{
    gpunn_tensor *x = input(g, "x", GPUNN_F32, GPUNN_SHAPE(count));
    g->output = gpunn_add(x, input(g, "y", GPUNN_F32, GPUNN_SHAPE(count)));
}

static void matmul(graph *g, int size)
{
    gpunn_tensor *a = input(g, "a", GPUNN_F32, GPUNN_SHAPE(size, size));
    g->output = gpunn_matmul(a, input(g, "b", GPUNN_F32, GPUNN_SHAPE(size, size)));
}

static void mlp(graph *g, int width)
{
    gpunn_tensor *h = input(g, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 784));
    h = gpunn_relu(gpunn_linear(h, "fc1", .out_features = width));
    h = gpunn_relu(gpunn_linear(h, "fc2", .out_features = width));
    train_classifier(g, gpunn_linear(h, "fc3", .out_features = 10));
}

static void cnn(graph *g, int channels)
{
    gpunn_tensor *h = input(g, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3, 32, 32));
    h = gpunn_relu(gpunn_conv2d(h, "conv1", .out_channels = channels, .kernel_size = 3, .padding = 1));
    h = gpunn_max_pool2d(h, .kernel_size = 2);
    h = gpunn_relu(gpunn_conv2d(h, "conv2", .out_channels = 2 * channels, .kernel_size = 3, .padding = 1));
    h = gpunn_flatten(gpunn_max_pool2d(h, .kernel_size = 2));
    train_classifier(g, gpunn_linear(h, "fc", .out_features = 10));
}

static gpunn_tensor *conv_norm(gpunn_tensor *x, const char *block, int number, int channels, int kernel,
                               int stride)
{
    char name[48];
    snprintf(name, sizeof name, "%s.conv%d", block, number);
    x = gpunn_conv2d(x, name, .out_channels = channels, .kernel_size = kernel, .stride = stride,
                     .padding = kernel / 2, .no_bias = true);
    snprintf(name, sizeof name, "%s.bn%d", block, number);
    return gpunn_batch_norm2d(x, name);
}

static gpunn_tensor *resnet18(graph *g, int side)
{
    gpunn_tensor *h = input(g, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3, side, side));
    h = gpunn_max_pool2d(gpunn_relu(conv_norm(h, "stem", 1, 64, 7, 2)), .kernel_size = 3, .stride = 2,
                         .padding = 1);
    for (int i = 0; i < 8; i++) {
        int  width = 64 << i / 2, stride = i > 0 && i % 2 == 0 ? 2 : 1;
        char block[16];
        snprintf(block, sizeof block, "block%d", i);
        gpunn_tensor *skip = stride == 2 ? conv_norm(h, block, 3, width, 1, 2) : h;
        h = gpunn_relu(conv_norm(h, block, 1, width, 3, stride));
        h = gpunn_relu(gpunn_add(conv_norm(h, block, 2, width, 3, 1), skip));
    }
    return gpunn_linear(gpunn_flatten(gpunn_adaptive_avg_pool2d(h, 1, 1)), "fc", .out_features = 5);
}

static void resnet18_forward(graph *g, int side)
{
    g->output = resnet18(g, side);
}

static void resnet18_train(graph *g, int side)
{
    train_classifier(g, resnet18(g, side));
}

static void bert_layer(graph *g, int length)
{
    gpunn_tensor *x = input(g, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, length, 768));
    g->output = gpunn_transformer_encoder_layer(x, "layer", .nhead = 12, .dim_feedforward = 3072,
                                                .gelu = true, .batch_first = true);
}

/* One step of fitting a displacement field, in voxels, that carries the moving volume onto the fixed one. */
static void registration(graph *g, int side)
{
    gpunn_tensor *fixed = input(g, "fixed", GPUNN_F32, GPUNN_SHAPE(1, 1, side, side, side));
    gpunn_tensor *moving = input(g, "moving", GPUNN_F32, GPUNN_SHAPE(1, 1, side, side, side));
    gpunn_init    zeros = {GPUNN_INIT_CONSTANT, 0, 0};
    gpunn_tensor *field = gpunn_parameter(g->model, "field", GPUNN_SHAPE(1, side, side, side, 3), zeros);
    float         identity[12] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0};
    gpunn_tensor *theta = gpunn_constant(g->model, GPUNN_SHAPE(1, 3, 4), identity);
    gpunn_tensor *grid = gpunn_add(gpunn_affine_grid(theta, GPUNN_SHAPE(side, side, side), false), field);
    gpunn_tensor *likeness = gpunn_mse_loss(gpunn_grid_sample(moving, grid), fixed);
    g->output = g->loss = gpunn_add(likeness, gpunn_gradient_energy(field, GPUNN_AXES(1, 2, 3)));
    g->optimizer = gpunn_adam(g->model, .lr = 0.01f);
}

static const struct work {
    const char *name, *what;
    void (*build)(graph *g, int size);
    int size, quick_size;
    int batch, quick_batch;
} works[] = {
    {"vector_add", "x + y, n numbers", vector_add, 1 << 24, 1 << 16, 1, 1},
    {"matmul", "n x n matrices", matmul, 2048, 128, 1, 1},
    {"mlp", "784-n-n-10, training step", mlp, 1024, 32, 256, 8},
    {"cnn", "two convolutions of n, 2n channels, 32 x 32, training step", cnn, 64, 4, 128, 4},
    {"resnet18", "images of n x n, forward", resnet18_forward, 64, 32, 10, 1},
    {"resnet18_train", "images of n x n, training step", resnet18_train, 64, 32, 32, 2},
    {"bert_layer", "one layer of BERT-base, n tokens, forward", bert_layer, 128, 8, 8, 1},
    {"registration", "displacement field of n^3 voxels, one step", registration, 96, 12, 1, 1},
};
enum { WORKS = sizeof works / sizeof works[0] };

typedef struct times {
    double in, compute, out; /* seconds */
} times;

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Numbers for one input: a smooth wave, or labels from 0 to 9. */
static void *make_values(gpunn_tensor *t, size_t bytes)
{
    void *values = malloc(bytes);
    if (values == NULL) return NULL;
    if (gpunn_tensor_dtype(t) == GPUNN_I64)
        for (size_t i = 0; i < bytes / sizeof(int64_t); i++) ((int64_t *)values)[i] = (int64_t)(i % 5);
    else
        for (size_t i = 0; i < bytes / sizeof(float); i++) ((float *)values)[i] = sinf(0.37f * (float)i);
    return values;
}

static size_t bytes_of(const gpunn_tensor *t, int64_t batch)
{
    gpunn_shape shape = gpunn_tensor_shape(t);
    size_t      bytes = gpunn_dtype_size(gpunn_tensor_dtype(t));
    for (int i = 0; i < GPUNN_MAX_RANK && shape.dim[i] != 0; i++)
        bytes *= (size_t)(shape.dim[i] < 0 ? -shape.dim[i] * batch : shape.dim[i]);
    return bytes;
}

/* Repeats the action until `seconds` have gone by, at least twice after two to warm up; seconds for one,
 * waiting included. */
static gpunn_status repeat(gpunn_device *dev, graph *g, void **values, void *result, int action,
                           double seconds, double *each)
{
    gpunn_status status = GPUNN_OK;
    double       begin = now();
    int          count = 0;
    for (int i = 0; status == GPUNN_OK && (i < 4 || now() - begin < seconds); i++) {
        if (i == 2) {
            status = gpunn_synchronize(dev);
            begin = now();
            count = 0;
        }
        if (action == 0)
            for (int k = 0; k < g->input_count && status == GPUNN_OK; k++)
                status = gpunn_write(g->inputs[k], values[k], bytes_of(g->inputs[k], g->batch));
        else if (action == 1)
            status = g->loss ? gpunn_train_step(g->optimizer, g->loss) : gpunn_forward(&g->output, 1);
        else
            status = gpunn_read(g->output, result, bytes_of(g->output, g->batch));
        count++;
        if (i > 2 && (count & 15) == 0 && status == GPUNN_OK) status = gpunn_synchronize(dev);
    }
    if (status == GPUNN_OK) status = gpunn_synchronize(dev);
    *each = (now() - begin) / count;
    return status;
}

static bool measure(gpunn_device *dev, const struct work *work, gpunn_precision precision, bool quick,
                    double seconds, times *result)
{
    graph g = {.model = gpunn_model_create(dev, .precision = precision),
               .batch = quick ? work->quick_batch : work->batch};
    work->build(&g, quick ? work->quick_size : work->size);
    void *values[MAX_INPUTS] = {NULL}, *output = NULL;
    bool  memory = true;
    if (g.output) {
        output = malloc(bytes_of(g.output, g.batch));
        memory = output != NULL;
        for (int k = 0; k < g.input_count; k++) {
            values[k] = make_values(g.inputs[k], bytes_of(g.inputs[k], g.batch));
            memory = memory && values[k];
        }
    }
    gpunn_status status = gpunn_last_status(dev);
    double      *parts[3] = {&result->in, &result->compute, &result->out};
    for (int action = 0; action < 3 && status == GPUNN_OK && memory; action++)
        status = repeat(dev, &g, values, output, action, seconds / 3, parts[action]);
    if (!memory)
        fprintf(stderr, "%s: out of host memory\n", work->name);
    else if (status != GPUNN_OK)
        fprintf(stderr, "%s: %s\n", work->name, gpunn_error(dev));
    gpunn_clear_error(dev);
    for (int k = 0; k < MAX_INPUTS; k++) free(values[k]);
    free(output);
    gpunn_optimizer_destroy(g.optimizer);
    gpunn_model_destroy(g.model);
    return memory && status == GPUNN_OK;
}

static void print_times(const times *t)
{
    if (t->compute > 0)
        printf("  %9.3f %9.3f %9.3f", 1e3 * t->in, 1e3 * t->compute, 1e3 * t->out);
    else
        printf("  %9s %9s %9s", "-", "-", "-");
}

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user;
    if (level != GPUNN_LOG_ERROR) fprintf(stderr, "%s\n", message); /* errors are told where they are met */
}

int main(int argc, char **argv)
{
    const char  *only = NULL;
    float        seconds = 1;
    int          threads = 0, precision = 0; /* as gpunn_precision counts them */
    bool         quick = false, found = false, good = true;
    const option known[] = {
        {"--only NAME", "one work, by the name in its line", .text = &only},
        {"--seconds X", "how long each time is measured", .real = &seconds, .lowest = 0.001},
        {"--threads N", "of the CPU; default: all processors", .number = &threads, .lowest = 1},
        {"--precision f32|tf32|bf16|f16", "how the GPU computes", .choice = &precision},
        {"--quick", "small sizes", .flag = &quick}};
    options_read(known, sizeof known / sizeof *known, argc, argv);

    gpunn_device *cpu = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1, .threads = threads,
                                          .log_fn = log_line);
    if (cpu == NULL) {
        fprintf(stderr, "%s\n", gpunn_error(NULL));
        return 1;
    }
    gpunn_device *gpu = gpunn_device_open(.type = GPUNN_DEVICE_CUDA, .seed = 1, .log_fn = log_line);
    printf("CPU: %s\nGPU: %s\n\n", gpunn_device_name(cpu), gpu ? gpunn_device_name(gpu) : gpunn_error(NULL));
    printf("%-14s  %29s  %29s  %9s %9s\n", "", "CPU, milliseconds", "GPU, milliseconds", "CPU / GPU", "with");
    printf("%-14s  %9s %9s %9s  %9s %9s %9s  %9s %9s\n", "", "in", "compute", "out", "in", "compute", "out",
           "computing", "transfers");
    for (int i = 0; i < WORKS; i++) {
        if (only && strcmp(only, works[i].name) != 0) continue;
        found = true;
        times on_cpu = {0, 0, 0}, on_gpu = {0, 0, 0};
        if (!measure(cpu, &works[i], GPUNN_PRECISION_F32, quick, (double)seconds, &on_cpu))
            on_cpu.compute = 0, good = false;
        if (gpu && !measure(gpu, &works[i], (gpunn_precision)precision, quick, (double)seconds, &on_gpu))
            on_gpu.compute = 0, good = false;
        printf("%-14s", works[i].name);
        print_times(&on_cpu);
        print_times(&on_gpu);
        if (on_cpu.compute > 0 && on_gpu.compute > 0)
            printf("  %9.2f %9.2f", on_cpu.compute / on_gpu.compute,
                   on_cpu.compute / (on_gpu.in + on_gpu.compute + on_gpu.out));
        printf("  %s, n = %d", works[i].what, quick ? works[i].quick_size : works[i].size);
        if (works[i].batch > 1) printf(", batch %d", quick ? works[i].quick_batch : works[i].batch);
        printf("\n");
        fflush(stdout);
    }
    gpunn_device_close(gpu);
    gpunn_device_close(cpu);
    if (!found) {
        fprintf(stderr, "there is no work '%s'; the works are", only);
        for (int i = 0; i < WORKS; i++) fprintf(stderr, " %s", works[i].name);
        fprintf(stderr, "\n");
    }
    return found && good ? 0 : 1;
}
