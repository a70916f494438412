/* The models that the benchmarks time, the same on the CPU (bench.c) and on a GPU (gpu_bench.c). Include
 * gpunn.h before. */
#ifndef BENCH_WORKLOADS_H
#define BENCH_WORKLOADS_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct workload {
    gpunn_device    *dev;
    gpunn_model     *model;
    gpunn_tensor    *output;           /* of a forward pass */
    gpunn_tensor    *loss;             /* of a training step */
    gpunn_optimizer *opt;              /* alone: an update */
    uint32_t         inputs;           /* so far */
    bool             recomputes;       /* each block's values in the backward pass */
    void (*renew)(struct workload *w); /* writes other inputs before each run; NULL: they stay */
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
    if (w->renew) w->renew(w);
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
    void *values;
    if (posix_memalign(&values, 64, (size_t)count * size) != 0) exit(1);
    return values;
}

/* Number i of a row of numbers between -1 and 1, which gpu_torch.py draws too. */
static inline float noise(int64_t i, uint32_t row)
{
    uint32_t h = (uint32_t)i + row * 0x9E3779B9u;
    h = (h ^ h >> 16) * 0x7FEB352Du;
    h = (h ^ h >> 15) * 0x846CA68Bu;
    return (float)((h ^ h >> 16) >> 8) / 8388608.0f - 1;
}

static inline int64_t elements(const gpunn_tensor *t, int64_t batch)
{
    gpunn_shape shape = gpunn_tensor_shape(t);
    int64_t     count = 1;
    for (int i = 0; i < GPUNN_MAX_RANK && shape.dim[i]; i++)
        count *= shape.dim[i] < 0 ? -shape.dim[i] * batch : shape.dim[i];
    return count;
}

static inline void write_noise(workload *w, gpunn_tensor *t, int64_t count, uint32_t row, float bound)
{
    float *values = (float *)room(count, sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = bound * noise(i, row);
    if (gpunn_write(t, values, (size_t)count * sizeof *values) != GPUNN_OK) die(w);
    free(values);
}

static inline gpunn_tensor *input(workload *w, const char *name, int64_t batch, gpunn_shape shape)
{
    gpunn_tensor *t = gpunn_input(w->model, name, GPUNN_F32, shape);
    if (t == NULL) die(w);
    write_noise(w, t, elements(t, batch), w->inputs++, 1);
    return t;
}

/* The values that gpu_torch.py gives its parameters: to weights noise up to 1 / sqrt(inputs), a row for each
 * in their order; to biases 0. */
static inline void write_weights(workload *w)
{
    uint32_t weights = 0;
    for (int i = 0; i < gpunn_parameter_count(w->model); i++) {
        gpunn_tensor *p = gpunn_parameter_at(w->model, i);
        gpunn_shape   shape = gpunn_tensor_shape(p);
        const char   *name = gpunn_tensor_name(p), *end = strrchr(name, '.');
        int64_t       count = elements(p, 1);
        if (shape.dim[1])
            write_noise(w, p, count, 16 + weights++, 1 / sqrtf((float)(count / shape.dim[0])));
        else if (end && strcmp(end, ".bias") == 0)
            write_noise(w, p, count, 0, 0);
    }
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

/* Ends a block that began behind x. */
static inline void end_block(workload *w, gpunn_tensor *x, gpunn_tensor *end)
{
    if (w->recomputes && gpunn_recompute(x, end) != GPUNN_OK) die(w);
}

static inline void make_mlp20(workload *w)
{
    gpunn_tensor *x = input(w, "x", 32, GPUNN_SHAPE(GPUNN_BATCH, 20)),
                 *t = input(w, "t", 32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    float targets[32];
    for (int i = 0; i < 32; i++) targets[i] = (float)(i & 1);
    if (gpunn_write(t, targets, sizeof targets) != GPUNN_OK) die(w);
    gpunn_tensor *h = gpunn_relu(gpunn_linear(x, "fc1", .out_features = 50));
    w->loss = gpunn_bce_loss(gpunn_sigmoid(gpunn_linear(h, "fc2", .out_features = 1)), t);
    w->opt = gpunn_sgd(w->model, .lr = 0.01f);
}

/* 4-16-3 */
static inline void make_iris(workload *w)
{
    gpunn_tensor *x = input(w, "x", 32, GPUNN_SHAPE(GPUNN_BATCH, 4));
    gpunn_tensor *h = gpunn_relu(gpunn_linear(x, "fc1", .out_features = 16));
    w->loss = gpunn_cross_entropy(gpunn_linear(h, "fc2", .out_features = 3), labels(w, 32, 3));
    w->opt = gpunn_adam(w->model, .lr = 0.01f);
}

static inline void make_lenet(workload *w, int64_t batch)
{
    gpunn_tensor *h = input(w, "x", batch, GPUNN_SHAPE(GPUNN_BATCH, 3, 32, 32));
    h = gpunn_max_pool2d(gpunn_relu(gpunn_conv2d(h, "conv1", .out_channels = 6, .kernel_size = 5)),
                         .kernel_size = 2);
    h = gpunn_max_pool2d(gpunn_relu(gpunn_conv2d(h, "conv2", .out_channels = 16, .kernel_size = 5)),
                         .kernel_size = 2);
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

static inline gpunn_tensor *conv_bn(gpunn_tensor *x, const char *name, int channels, int kernel, int stride,
                                    int padding)
{
    char layer[64];
    snprintf(layer, sizeof layer, "%s.conv", name);
    x = gpunn_conv2d(x, layer, .out_channels = channels, .kernel_size = kernel, .stride = stride,
                     .padding = padding, .no_bias = true);
    snprintf(layer, sizeof layer, "%s.bn", name);
    return gpunn_batch_norm2d(x, layer);
}

/* ResNet-18's scores of images h. */
static inline gpunn_tensor *resnet(workload *w, gpunn_tensor *h, int classes)
{
    h = gpunn_max_pool2d(gpunn_relu(conv_bn(h, "stem", 64, 7, 2, 3)), .kernel_size = 3, .stride = 2,
                         .padding = 1);
    int channels = 64;
    for (int stage = 0; stage < 4; stage++)
        for (int block = 0; block < 2; block++) {
            int  width = 64 << stage, stride = stage > 0 && block == 0 ? 2 : 1;
            char name[3][32];
            for (int i = 0; i < 3; i++)
                snprintf(name[i], sizeof name[i], "layer%d.%d.%d", stage + 1, block, i);
            gpunn_tensor *inner = gpunn_relu(conv_bn(h, name[0], width, 3, stride, 1)), *first = h;
            inner = conv_bn(inner, name[1], width, 3, 1, 1);
            h = gpunn_relu(
                gpunn_add(inner, width != channels ? conv_bn(h, name[2], width, 1, stride, 0) : h));
            end_block(w, first, h);
            channels = width;
        }
    return gpunn_linear(gpunn_flatten(gpunn_adaptive_avg_pool2d(h, 1, 1)), "fc", .out_features = classes);
}

/* The same for images of side x side. */
static inline void make_resnet(workload *w, int64_t batch, int side, int classes, bool train)
{
    gpunn_tensor *h = resnet(w, input(w, "x", batch, GPUNN_SHAPE(GPUNN_BATCH, 3, side, side)), classes);
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

typedef struct transformer {
    int layers, width, heads, rows, tokens; /* rows: positions of a sequence */
} transformer;

/* BERT's encoder, forward, without embeddings. */
static inline void make_bert(workload *w, int64_t batch, transformer m)
{
    gpunn_shape heads = GPUNN_SHAPE(GPUNN_BATCH, m.rows, m.heads, m.width / m.heads),
                flat = GPUNN_SHAPE(GPUNN_BATCH, m.rows, m.width);
    gpunn_tensor *x = input(w, "x", batch, flat);
    for (int i = 0; i < m.layers; i++) {
        gpunn_tensor *q = gpunn_reshape(named_linear(x, i, "q", m.width), heads);
        gpunn_tensor *k = gpunn_reshape(named_linear(x, i, "k", m.width), heads);
        gpunn_tensor *v = gpunn_reshape(named_linear(x, i, "v", m.width), heads);
        gpunn_tensor *h = gpunn_scaled_dot_product_attention(q, k, v, .heads_last = true);
        x = named_norm(gpunn_add(named_linear(gpunn_reshape(h, flat), i, "o", m.width), x), i, "n1", 1e-12f);
        h = named_linear(gpunn_gelu(named_linear(x, i, "f1", 4 * m.width)), i, "f2", m.width);
        x = named_norm(gpunn_add(h, x), i, "n2", 1e-12f);
    }
    w->output = x;
}

/* A GPT-2, whose table of tokens is the head's too, trained by AdamW. */
static inline void make_gpt(workload *w, int64_t batch, transformer m)
{
    gpunn_shape   heads = GPUNN_SHAPE(GPUNN_BATCH, m.rows, 3, m.heads, m.width / m.heads);
    gpunn_shape   flat = GPUNN_SHAPE(GPUNN_BATCH, m.rows, m.width);
    gpunn_tensor *tokens = gpunn_input(w->model, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, m.rows));
    gpunn_tensor *targets = gpunn_input(w->model, "targets", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, m.rows));
    int64_t       count = batch * m.rows, *values = (int64_t *)room(count, sizeof *values);
    size_t        bytes = (size_t)count * sizeof *values;
    for (int64_t i = 0; i < count; i++) values[i] = i * 7 % m.tokens;
    if (gpunn_write(tokens, values, bytes) != GPUNN_OK || gpunn_write(targets, values, bytes) != GPUNN_OK)
        die(w);
    free(values);
    gpunn_init    normal = {GPUNN_INIT_NORMAL, 0, 0.02f};
    gpunn_tensor *x = gpunn_embedding(tokens, "wte", .num_embeddings = m.tokens, .embedding_dim = m.width);
    x = gpunn_add(x, gpunn_parameter(w->model, "wpe", GPUNN_SHAPE(m.rows, m.width), normal));
    for (int i = 0; i < m.layers; i++) {
        gpunn_tensor *first = x;
        gpunn_tensor *h = gpunn_reshape(named_linear(named_norm(x, i, "n1", 1e-5f), i, "qkv", 3 * m.width),
                                        heads);
        h = gpunn_reshape(gpunn_scaled_dot_product_attention(h, NULL, NULL, .is_causal = true), flat);
        x = gpunn_add(named_linear(h, i, "o", m.width), x);
        h = gpunn_gelu_tanh(named_linear(named_norm(x, i, "n2", 1e-5f), i, "f1", 4 * m.width));
        x = gpunn_add(named_linear(h, i, "f2", m.width), x);
        end_block(w, first, x);
    }
    x = gpunn_reshape(gpunn_layer_norm(x, "n"), GPUNN_SHAPE(GPUNN_BATCH * m.rows, m.width));
    x = gpunn_linear(x, "head", .no_bias = true, .weight = gpunn_find(w->model, "wte.weight"));
    w->loss = gpunn_cross_entropy(x, gpunn_reshape(targets, GPUNN_SHAPE(GPUNN_BATCH * m.rows)));
    w->opt = gpunn_adamw(w->model, .lr = 1e-4f, .weight_decay = GPUNN_ZERO);
}

/* A step of examples/register3d.c: the displacements, in voxels, of a volume side x side x side are fitted to
 * another. */
static inline void make_register(workload *w, int side)
{
    static const float identity[12] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0};
    float              unit[3];
    for (int i = 0; i < 3; i++) unit[i] = 2 / (float)side;
    gpunn_shape   volume = GPUNN_SHAPE(1, 1, side, side, side);
    gpunn_init    zeros = {GPUNN_INIT_ZEROS, 0, 0};
    gpunn_tensor *moving = input(w, "moving", 1, volume), *fixed = input(w, "fixed", 1, volume);
    gpunn_tensor *field = gpunn_parameter(w->model, "field", GPUNN_SHAPE(1, side, side, side, 3), zeros);
    gpunn_tensor *grid = gpunn_constant(w->model, GPUNN_SHAPE(1, 3, 4), identity);
    grid = gpunn_affine_grid(grid, GPUNN_SHAPE(side, side, side), false);
    grid = gpunn_add(grid, gpunn_mul(field, gpunn_constant(w->model, GPUNN_SHAPE(3), unit)));
    gpunn_tensor *warped = gpunn_grid_sample(moving, grid, .padding_mode = GPUNN_GRID_BORDER);
    gpunn_tensor *energy = gpunn_gradient_energy(field, GPUNN_AXES(1, 2, 3));
    w->loss = gpunn_add(gpunn_ncc_loss(warped, fixed), gpunn_mul_scalar(energy, 0.01f));
    w->opt = gpunn_adam(w->model, .lr = 0.1f);
}

/* Volumes of 1 x 32 x 32 x 32 in 10 classes. */
static inline void make_cnn3d(workload *w, int64_t batch)
{
    gpunn_tensor *h = input(w, "x", batch, GPUNN_SHAPE(GPUNN_BATCH, 1, 32, 32, 32));
    for (int i = 0; i < 3; i++) {
        char name[2][16];
        snprintf(name[0], sizeof name[0], "conv%d", i + 1);
        snprintf(name[1], sizeof name[1], "bn%d", i + 1);
        h = gpunn_conv3d(h, name[0], .out_channels = 16 << i, .kernel_size = 3, .padding = 1,
                         .no_bias = true);
        h = gpunn_max_pool3d(gpunn_relu(gpunn_batch_norm3d(h, name[1])), .kernel_size = 2);
    }
    h = gpunn_linear(gpunn_flatten(gpunn_adaptive_avg_pool3d(h, 1, 1, 1)), "fc", .out_features = 10);
    w->loss = gpunn_cross_entropy(h, labels(w, batch, 10));
    w->opt = gpunn_sgd(w->model, .lr = 0.001f, .momentum = 0.9f);
}

/* Parameters of `count` floats together in `pieces`, and a gradient for each; the optimizer is the
 * caller's. */
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
