/* simple_nn.c - a small network on random data: is the sum of 20 numbers positive?
 *
 * Shows: a model from end to end: inputs, layers, loss, optimizer, batches, training steps, evaluation;
 *        fused kernels.
 * Build: cc -O3 -march=native -I. examples/simple_nn.c -o simple_nn -lm
 *        nvcc -O3 -arch=native -I. examples/simple_nn.c examples/kernels/simple_nn_kernels.cu gpunn_cuda.cu \
 *            -o simple_nn
 * Run:   ./simple_nn
 *        ./simple_nn SPEC.json only writes the model's spec, from which python3 -m generator makes
 *            examples/kernels/simple_nn_*.
 * Expect: the loss falls every 10 epochs; an accuracy well above 90 % at the end.
 * Time:  less than a second on two cores.
 * Next:  more layers in main(), and their kernels by generator/README.md; csv.h reads tables of your own. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#define SIMPLE_NN_KERNELS_IMPLEMENTATION
#include "kernels/simple_nn_kernels.h"
#include "options.h"

#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 1000, FEATURES = 20, HIDDEN = 50, BATCH = 32, EPOCHS = 100 };

static float samples[SAMPLES][FEATURES], targets[SAMPLES];

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user;
    if (level != GPUNN_LOG_ERROR) fprintf(stderr, "%s\n", message); /* main tells errors */
}

static void make_data(void)
{
    srand(42);
    for (int i = 0; i < SAMPLES; i++) {
        float sum = 0;
        for (int j = 0; j < FEATURES; j++) {
            samples[i][j] = 2 * (float)rand() / (float)RAND_MAX - 1;
            sum += samples[i][j];
        }
        targets[i] = sum > 0;
    }
}

static gpunn_status train(gpunn_optimizer *sgd, gpunn_tensor *loss, gpunn_loader *loader)
{
    for (int epoch = 1; epoch <= EPOCHS; epoch++) {
        double sum = 0;
        while (gpunn_next(loader)) {
            gpunn_status status = gpunn_train_step(sgd, loss);
            if (status != GPUNN_OK) return status;
            sum += (double)gpunn_item(loss) * gpunn_loader_batch_size(loader);
        }
        if (epoch % 10 == 0) printf("epoch %3d: loss %.4f\n", epoch, sum / SAMPLES);
    }
    return GPUNN_OK;
}

int main(int argc, char **argv)
{
    const char  *spec = NULL;
    const option known[] = {
        {"SPEC.json", "only writes the model's spec, for python3 -m generator", .text = &spec}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    make_data();
    gpunn_device *dev = gpunn_device_open(.seed = 42, .log_fn = log_line);
    if (dev == NULL) {
        fprintf(stderr, "%s\n", gpunn_error(NULL));
        return 1;
    }
    gpunn_model     *model = gpunn_model_create(dev);
    gpunn_tensor    *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, FEATURES));
    gpunn_tensor    *y = gpunn_input(model, "y", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    gpunn_tensor    *h = gpunn_relu(gpunn_linear(x, "fc1", .out_features = HIDDEN));
    gpunn_tensor    *p = gpunn_sigmoid(gpunn_linear(h, "fc2", .out_features = 1));
    gpunn_tensor    *loss = gpunn_bce_loss(p, y);
    gpunn_tensor    *accuracy = gpunn_binary_accuracy(p, y);
    gpunn_optimizer *sgd = gpunn_sgd(model, .lr = 0.01f);
    gpunn_loader    *loader = gpunn_loader_create(
           model, .fields = {{.input = x, .samples = samples}, {.input = y, .samples = targets}},
           .count = SAMPLES, .batch_size = BATCH, .shuffle = true);
    gpunn_status status = gpunn_last_status(dev); /* of all the calls above */
    float        mean_loss = 0, mean_accuracy = 0;
    if (status == GPUNN_OK && spec)
        status = gpunn_spec_save(model, spec, .outputs = {p, accuracy}, .loss = loss, .optimizer = sgd);
    else if (status == GPUNN_OK) {
        status = gpunn_use_kernels(model, &simple_nn_kernels);
        if (status == GPUNN_OK) status = train(sgd, loss, loader);
        if (status == GPUNN_OK) status = gpunn_evaluate(loader, loss, accuracy, &mean_loss, &mean_accuracy);
        if (status == GPUNN_OK)
            printf("loss %.4f, accuracy %.1f %%\n", (double)mean_loss, 100 * (double)mean_accuracy);
    }
    if (status != GPUNN_OK) fprintf(stderr, "%s\n", gpunn_error(dev));
    gpunn_loader_destroy(loader);
    gpunn_optimizer_destroy(sgd);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return status == GPUNN_OK ? 0 : 1;
}
