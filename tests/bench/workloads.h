/* The models that the benchmarks time, the same on the CPU (bench.c) and on a GPU (gpu_bench.c). Include gpunn.h before. */
#ifndef BENCH_WORKLOADS_H
#define BENCH_WORKLOADS_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct workload {
    gpunn_device    *dev;
    gpunn_model     *model;
    gpunn_tensor    *output; /* of a forward pass */
    gpunn_tensor    *loss;   /* of a training step */
    gpunn_optimizer *opt;    /* alone: an update */
} workload;

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void die(const workload *w)
{
    fprintf(stderr, "%s\n", gpunn_error(w->dev));
    exit(1);
}

static inline void run(workload *w)
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

static inline void *room(int64_t count, size_t size)
{
    void *values = aligned_alloc(64, ((size_t)count * size + 63) / 64 * 64);
    if (values == NULL) exit(1);
    return values;
}

static inline gpunn_tensor *input(workload *w, const char *name, int64_t batch, gpunn_shape shape)
{
    gpunn_tensor *t = gpunn_input(w->model, name, GPUNN_F32, shape);
    int64_t       count = batch;
    for (int i = 0; i < GPUNN_MAX_RANK && shape.dim[i]; i++) count *= shape.dim[i] < 0 ? 1 : shape.dim[i];
    float   *values = (float *)room(count, sizeof *values);
    uint32_t state = 12345;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(state >> 8) / 8388608.0f - 1;
    }
    if (gpunn_write(t, values, (size_t)count * sizeof *values) != GPUNN_OK) die(w);
    free(values);
    return t;
}

static inline gpunn_tensor *labels(workload *w, int64_t batch, int classes)
{
    gpunn_tensor *t = gpunn_input(w->model, "label", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    int64_t      *values = (int64_t *)room(batch, sizeof *values);
    for (int64_t i = 0; i < batch; i++) values[i] = i * 7 % classes;
    if (gpunn_write(t, values, (size_t)batch * sizeof *values) != GPUNN_OK) die(w);
    free(values);
    return t;
}

static inline void make_mlp20(workload *w)
{
    gpunn_tensor *x = input(w, "x", 32, GPUNN_SHAPE(GPUNN_BATCH, 20)), *t = input(w, "t", 32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    float         targets[32];
    for (int i = 0; i < 32; i++) targets[i] = (float)(i & 1);
    if (gpunn_write(t, targets, sizeof targets) != GPUNN_OK) die(w);
    gpunn_tensor *h = gpunn_relu(gpunn_linear(x, "fc1", .out_features = 50));
    w->loss = gpunn_bce_loss(gpunn_sigmoid(gpunn_linear(h, "fc2", .out_features = 1)), t);
    w->opt = gpunn_sgd(w->model, .lr = 0.01f);
}

static inline void make_lenet(workload *w, int64_t batch)
{
    gpunn_tensor *h = input(w, "x", batch, GPUNN_SHAPE(GPUNN_BATCH, 3, 32, 32));
    h = gpunn_max_pool2d(gpunn_relu(gpunn_conv2d(h, "conv1", .out_channels = 6, .kernel_size = 5)), .kernel_size = 2);
    h = gpunn_max_pool2d(gpunn_relu(gpunn_conv2d(h, "conv2", .out_channels = 16, .kernel_size = 5)), .kernel_size = 2);
    h = gpunn_relu(gpunn_linear(gpunn_flatten(h), "fc1", .out_features = 120));
    h = gpunn_relu(gpunn_linear(h, "fc2", .out_features = 84));
    w->loss = gpunn_cross_entropy(gpunn_linear(h, "fc3", .out_features = 10), labels(w, batch, 10));
    w->opt = gpunn_sgd(w->model, .lr = 0.001f, .momentum = 0.9f);
}

/* 784-a-b-10 */
static inline void make_mlp784(workload *w, int64_t batch, int a, int b)
{
    gpunn_tensor *h = input(w, "x", batch, GPUNN_SHAPE(GPUNN_BATCH, 784));
    h = gpunn_relu(gpunn_linear(h, "fc1", .out_features = a));
    h = gpunn_relu(gpunn_linear(h, "fc2", .out_features = b));
    w->loss = gpunn_cross_entropy(gpunn_linear(h, "fc3", .out_features = 10), labels(w, batch, 10));
    w->opt = gpunn_adam(w->model, .lr = 0.001f);
}

/* 32 sequences of 64 steps, 128 features, 256 hidden; the last step is classified. */
static inline void make_rnn(workload *w, bool gru)
{
    gpunn_tensor *h = input(w, "x", 32, GPUNN_SHAPE(64, GPUNN_BATCH, 128));
    h = gru ? gpunn_gru(h, "rnn", .hidden_size = 256) : gpunn_lstm(h, "rnn", .hidden_size = 256);
    h = gpunn_reshape(gpunn_slice(h, 0, 63, 64, 1), GPUNN_SHAPE(GPUNN_BATCH, 256));
    w->loss = gpunn_cross_entropy(gpunn_linear(h, "fc", .out_features = 10), labels(w, 32, 10));
    w->opt = gpunn_sgd(w->model, .lr = 0.01f);
}

static inline gpunn_tensor *conv_bn(gpunn_tensor *x, const char *name, int channels, int kernel, int stride, int padding)
{
    char layer[64];
    snprintf(layer, sizeof layer, "%s.conv", name);
    x = gpunn_conv2d(x, layer, .out_channels = channels, .kernel_size = kernel, .stride = stride, .padding = padding,
                     .no_bias = true);
    snprintf(layer, sizeof layer, "%s.bn", name);
    return gpunn_batch_norm2d(x, layer);
}

/* ResNet-18 on images of side x side */
static inline void make_resnet(workload *w, int64_t batch, int side, int classes, bool train)
{
    gpunn_tensor *h = input(w, "x", batch, GPUNN_SHAPE(GPUNN_BATCH, 3, side, side));
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
    h = gpunn_linear(gpunn_flatten(gpunn_adaptive_avg_pool2d(h, 1, 1)), "fc", .out_features = classes);
    if (!train) {
        w->output = h;
        return;
    }
    w->loss = gpunn_cross_entropy(h, labels(w, batch, classes));
    w->opt = gpunn_sgd(w->model, .lr = 0.001f, .momentum = 0.9f);
}

static inline gpunn_tensor *named_linear(gpunn_tensor *x, int layer, const char *part, int out)
{
    char name[32];
    snprintf(name, sizeof name, "%d.%s", layer, part);
    return gpunn_linear(x, name, .out_features = out);
}

static inline gpunn_tensor *named_norm(gpunn_tensor *x, int layer, const char *part, float eps)
{
    char name[32];
    snprintf(name, sizeof name, "%d.%s", layer, part);
    return gpunn_layer_norm(x, name, .eps = eps);
}

/* BERT's encoder of 12 layers, width 768 and 12 heads, forward, without embeddings. */
static inline void make_bert(workload *w, int64_t batch, int rows)
{
    const int     width = 768;
    gpunn_shape   heads = GPUNN_SHAPE(GPUNN_BATCH, rows, 12, width / 12), flat = GPUNN_SHAPE(GPUNN_BATCH, rows, width);
    gpunn_tensor *x = input(w, "x", batch, flat);
    for (int i = 0; i < 12; i++) {
        gpunn_tensor *q = gpunn_reshape(named_linear(x, i, "q", width), heads);
        gpunn_tensor *k = gpunn_reshape(named_linear(x, i, "k", width), heads);
        gpunn_tensor *v = gpunn_reshape(named_linear(x, i, "v", width), heads);
        gpunn_tensor *h = gpunn_scaled_dot_product_attention(q, k, v, .heads_last = true);
        x = named_norm(gpunn_add(named_linear(gpunn_reshape(h, flat), i, "o", width), x), i, "n1", 1e-12f);
        h = named_linear(gpunn_gelu(named_linear(x, i, "f1", 4 * width)), i, "f2", width);
        x = named_norm(gpunn_add(h, x), i, "n2", 1e-12f);
    }
    w->output = x;
}

/* A GPT-2 of 6 layers, width 384 and 6 heads over 1024 tokens, 4 x 128 of them a step of AdamW, whose table is the head's too. */
static inline void make_gpt(workload *w)
{
    enum { ROWS = 128, WIDTH = 384, TOKENS = 1024, BATCH = 4 };
    gpunn_shape   heads = GPUNN_SHAPE(GPUNN_BATCH, ROWS, 3, 6, WIDTH / 6), flat = GPUNN_SHAPE(GPUNN_BATCH, ROWS, WIDTH);
    gpunn_tensor *tokens = gpunn_input(w->model, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, ROWS));
    gpunn_tensor *targets = gpunn_input(w->model, "targets", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, ROWS));
    int64_t       values[BATCH * ROWS];
    for (int i = 0; i < BATCH * ROWS; i++) values[i] = i * 7 % TOKENS;
    if (gpunn_write(tokens, values, sizeof values) != GPUNN_OK || gpunn_write(targets, values, sizeof values) != GPUNN_OK) die(w);
    gpunn_init    normal = {GPUNN_INIT_NORMAL, 0, 0.02f};
    gpunn_tensor *places = gpunn_parameter(w->model, "wpe", GPUNN_SHAPE(ROWS, WIDTH), normal);
    gpunn_tensor *x = gpunn_add(gpunn_embedding(tokens, "wte", .num_embeddings = TOKENS, .embedding_dim = WIDTH), places);
    for (int i = 0; i < 6; i++) {
        gpunn_tensor *h = gpunn_reshape(named_linear(named_norm(x, i, "n1", 1e-5f), i, "qkv", 3 * WIDTH), heads);
        h = gpunn_reshape(gpunn_scaled_dot_product_attention(h, NULL, NULL, .is_causal = true), flat);
        x = gpunn_add(named_linear(h, i, "o", WIDTH), x);
        h = gpunn_gelu_tanh(named_linear(named_norm(x, i, "n2", 1e-5f), i, "f1", 4 * WIDTH));
        x = gpunn_add(named_linear(h, i, "f2", WIDTH), x);
    }
    x = gpunn_reshape(gpunn_layer_norm(x, "n"), GPUNN_SHAPE(GPUNN_BATCH * ROWS, WIDTH));
    x = gpunn_linear(x, "head", .no_bias = true, .weight = gpunn_find(w->model, "wte.weight"));
    w->loss = gpunn_cross_entropy(x, gpunn_reshape(targets, GPUNN_SHAPE(GPUNN_BATCH * ROWS)));
    w->opt = gpunn_adamw(w->model, .lr = 1e-4f, .weight_decay = GPUNN_ZERO);
}

/* Parameters of `count` floats together in `pieces`, and a gradient for each; the optimizer is the caller's. */
static inline void make_parameters(workload *w, int64_t count, int pieces)
{
    gpunn_tensor *sum = NULL;
    for (int i = 0; i < pieces; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        gpunn_init    init = {GPUNN_INIT_UNIFORM, -1, 1};
        gpunn_tensor *p = gpunn_parameter(w->model, name, GPUNN_SHAPE(count / pieces), init);
        gpunn_tensor *total = gpunn_sum(gpunn_square(p), GPUNN_ALL, false);
        sum = sum ? gpunn_add(sum, total) : total;
    }
    if (gpunn_backward(sum) != GPUNN_OK) die(w);
}
#endif
