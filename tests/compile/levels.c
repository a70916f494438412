/* What the kernels compute, to the last bit. Prints the device, then a line of hash and loss for each model
 * after three steps. Programs whose kernels are of the same level print the same. */
#define GPUNN_NO_IMPLEMENTATION
#include "gpunn.h"
#include "../bench/workloads.h"

enum { BF16 = 10 }; /* the model of that precision */

static uint64_t hash(uint64_t state, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) state = (state ^ ((const unsigned char *)bytes)[i]) * 0x100000001B3u;
    return state;
}

/* Loops of the elementwise ops, reductions, norms and what draws or sums along an axis. */
static void make_ops(workload *w)
{
    gpunn_tensor *x = input(w, "x", 5, GPUNN_SHAPE(GPUNN_BATCH, 12, 37));
    gpunn_tensor *h = gpunn_group_norm(x, "norm", .num_groups = 3),
                 *positive = gpunn_add(gpunn_exp(h), gpunn_softplus(h, 1, 20));
    h = gpunn_add(gpunn_mul(gpunn_gelu(h), gpunn_tanh(h)), gpunn_mish(gpunn_log(positive)));
    h = gpunn_dropout(gpunn_softmax(gpunn_cumsum(h, -1), -1), 0.3f);
    h = gpunn_add(h, gpunn_div(x, gpunn_add(gpunn_max(positive, GPUNN_AXES(1), true),
                                            gpunn_sum(positive, GPUNN_AXES(2), true))));
    w->loss = gpunn_mean(gpunn_mul(h, gpunn_sqrt(positive)), GPUNN_ALL, false);
    w->opt = gpunn_adamw(w->model, .lr = 0.01f);
}

static void make(workload *w, int number)
{
    switch (number) {
    case 0: make_ops(w); break;
    case 1: make_mlp20(w); break;
    case 2: make_lenet(w, 4); break;
    case 3: make_mlp784(w, 33, 50, 20); break;
    case 4: make_rnn(w, false); break;
    case 5: make_rnn(w, true); break;
    case 6: make_resnet(w, 2, 40, 10, true); break;
    case 7: make_bert(w, 2, (transformer){.layers = 1, .width = 96, .heads = 3, .rows = 21}); break;
    case 8:
        make_gpt(w, 2, (transformer){.layers = 1, .width = 24, .heads = 3, .rows = 40, .tokens = 50});
        break;
    case 9: make_cnn3d(w, 1); break;
    default: make_bert(w, 2, (transformer){.layers = 1, .width = 96, .heads = 3, .rows = 17}); break;
    }
}

static uint64_t add(uint64_t state, const workload *w, gpunn_tensor *t, int64_t batch)
{
    size_t bytes = (size_t)elements(t, batch) * sizeof(float);
    float *values = (float *)room(elements(t, batch), sizeof *values);
    if (gpunn_read(t, values, bytes) != GPUNN_OK) die(w);
    state = hash(state, values, bytes);
    free(values);
    return state;
}

int main(void)
{
    for (int number = 0; number <= BF16; number++) {
        workload w = {0};
        uint64_t state = 0xCBF29CE484222325u;
        w.dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1, .threads = 2);
        if (w.dev == NULL) die(&w);
        w.model = gpunn_model_create(w.dev, .precision = number == BF16 ? GPUNN_PRECISION_BF16
                                                                        : GPUNN_PRECISION_F32);
        if (number == 0) printf("%s\n", gpunn_device_name(w.dev));
        make(&w, number);
        if (gpunn_last_status(w.dev) != GPUNN_OK) die(&w);
        for (int i = 0; i < 3; i++) run(&w);
        if (w.output) state = add(state, &w, w.output, 2);
        for (int i = 0; i < gpunn_parameter_count(w.model); i++)
            state = add(state, &w, gpunn_parameter_at(w.model, i), 1);
        printf("%d %016llx %a\n", number, (unsigned long long)state, w.loss ? (double)gpunn_item(w.loss) : 0);
        gpunn_model_destroy(w.model);
        gpunn_device_close(w.dev);
    }
    return 0;
}
