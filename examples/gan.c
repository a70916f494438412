/* gan.c - a DCGAN on Fashion-MNIST: one network makes pictures from noise, another tells them from real
 * ones, each trained against the other.
 *
 * Shows: two optimizers over one model, each with its parameters by a prefix; gpunn_randn; layers that
 *        share weights; gpunn_detach.
 * Build: cc -O3 -march=native -DGPUNN_ZLIB -I. examples/gan.c -o gan -lz -lm
 *        with stb_image_write.h (apt-get install libstb-dev)
 *        nvcc -O3 -arch=native -DGPUNN_ZLIB -I. examples/gan.c gpunn_cuda.cu -o gan -lz
 * Data:  apt-get install dataset-fashion-mnist     (or --data FOLDER with the idx files, .gz or not)
 * Run:   ./gan [--epochs N]                        (--help explains all options)
 * Expect: after 5 epochs gan.png in out/ shows clothes. The mean and the deviation of each pixel over 1024
 *         made pictures come close to those of real ones: 0.04 apart, on the average, where black and
 *         white are 2 apart.
 * Time:  about a minute and a half on two cores.
 * Next:  --epochs 20; vae.c makes images in another way. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "fashion.h"
#include "grid.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum { SIDE = 28, PIXELS = SIDE * SIDE, NOISE = 64, WIDTH = 32, BATCH = 64, COLUMNS = 16, COMPARED = 1024 };

typedef struct network {
    gpunn_model     *model;
    gpunn_tensor    *real, *made; /* [batch, 1, 28, 28], -1 to 1 */
    gpunn_tensor    *loss[2];     /* the judge's, the maker's */
    gpunn_optimizer *adam[2];
} network;

/* "maker." and "judge." begin the names of their parameters. */
static gpunn_tensor *make(gpunn_model *model)
{
    gpunn_tensor *h = gpunn_randn(model, GPUNN_SHAPE(GPUNN_BATCH, NOISE));
    h = gpunn_linear(h, "maker.fc", .out_features = 2 * WIDTH * 7 * 7, .no_bias = true);
    h = gpunn_relu(
        gpunn_batch_norm2d(gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 2 * WIDTH, 7, 7)), "maker.bn1"));
    h = gpunn_conv_transpose2d(h, "maker.up1", .out_channels = WIDTH, .kernel_size = 4, .stride = 2,
                               .padding = 1, .no_bias = true);
    h = gpunn_relu(gpunn_batch_norm2d(h, "maker.bn2"));
    return gpunn_tanh(gpunn_conv_transpose2d(h, "maker.up2", .out_channels = 1, .kernel_size = 4, .stride = 2,
                                             .padding = 1));
}

/* The logits of being real, from the second time on with the weights of the first. */
static gpunn_tensor *judge(gpunn_model *model, gpunn_tensor *x, const char *const names[3])
{
    gpunn_tensor *weight[3], *bias = gpunn_find(model, "judge.fc.bias");
    const char   *own[3] = {"judge.conv1.weight", "judge.conv2.weight", "judge.fc.weight"};
    for (int i = 0; i < 3; i++) weight[i] = gpunn_find(model, own[i]);
    for (int i = 0; i < 2; i++)
        x = gpunn_leaky_relu(gpunn_conv2d(x, names[i], .out_channels = (i + 1) * WIDTH, .kernel_size = 4,
                                          .stride = 2, .padding = 1, .no_bias = true, .weight = weight[i]),
                             0.2f);
    return gpunn_linear(gpunn_flatten(x), names[2], .out_features = 1, .weight = weight[2], .bias = bias);
}

/* Of logits against a 1 or a 0 for each: -log(sigmoid(x)), -log(1 - sigmoid(x)). */
static gpunn_tensor *against(gpunn_tensor *logits, bool real)
{
    return gpunn_mean(gpunn_softplus(real ? gpunn_neg(logits) : logits, 1, 20), GPUNN_ALL, false);
}

static network build(gpunn_device *dev)
{
    static const char *const own[] = {"judge.conv1", "judge.conv2", "judge.fc"};
    static const char *const of_made[] = {"of_made.conv1", "of_made.conv2", "of_made.fc"};
    static const char *const for_maker[] = {"for_maker.conv1", "for_maker.conv2", "for_maker.fc"};
    network                  net = {.model = gpunn_model_create(dev)};
    net.real = gpunn_input(net.model, "real", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, SIDE, SIDE));
    net.made = make(net.model);
    gpunn_tensor *of_real = judge(net.model, net.real, own); /* first: it makes the weights */
    gpunn_tensor *of_fake = judge(net.model, gpunn_detach(net.made), of_made);
    net.loss[0] = gpunn_add(against(of_real, true), against(of_fake, false));
    net.loss[1] = against(judge(net.model, net.made, for_maker), true);
    net.adam[0] = gpunn_adam(net.model, .lr = 2e-4f, .beta1 = 0.5f, .prefix = "judge.");
    net.adam[1] = gpunn_adam(net.model, .lr = 2e-4f, .beta1 = 0.5f, .prefix = "maker.");
    return net;
}

static double seconds(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static gpunn_status train(const network *net, gpunn_loader *loader, int epochs)
{
    gpunn_status status = GPUNN_OK;
    for (int epoch = 1; epoch <= epochs && status == GPUNN_OK; epoch++) {
        double sum[2] = {0, 0}, start = seconds();
        int    batches = 0;
        for (; status == GPUNN_OK && gpunn_next(loader); batches++)
            for (int turn = 0; turn < 2 && status == GPUNN_OK; turn++) {
                status = gpunn_train_step(net->adam[turn], net->loss[turn]);
                if (status == GPUNN_OK) sum[turn] += (double)gpunn_item(net->loss[turn]);
            }
        if (status == GPUNN_OK)
            printf("epoch %d: judge %.3f, maker %.3f; %.2f ms for a step of both\n", epoch, sum[0] / batches,
                   sum[1] / batches, (seconds() - start) * 1e3 / batches);
    }
    return status;
}

/* Of new noise. */
static gpunn_status make_pictures(const network *net, float (*pictures)[PIXELS])
{
    gpunn_tensor *made = net->made;
    gpunn_status  status = GPUNN_OK;
    for (int i = 0; i < COMPARED && status == GPUNN_OK; i += BATCH) {
        status = gpunn_forward(&made, 1);
        if (status == GPUNN_OK) status = gpunn_read(made, pictures[i], BATCH * sizeof *pictures);
    }
    return status;
}

/* How far the mean and the deviation of a pixel over made pictures are from those over real ones, both
 * averaged over the pixels. */
static double distance(float (*made)[PIXELS], const uint8_t *real)
{
    double sum = 0;
    for (int k = 0; k < PIXELS; k++) {
        double mean[2] = {0, 0}, square[2] = {0, 0};
        for (int i = 0; i < COMPARED; i++) {
            const double value[2] = {(double)made[i][k], real[i * PIXELS + k] / 127.5 - 1};
            for (int j = 0; j < 2; j++)
                mean[j] += value[j] / COMPARED, square[j] += value[j] * value[j] / COMPARED;
        }
        sum += fabs(mean[0] - mean[1]);
        sum += fabs(sqrt(fmax(0, square[0] - mean[0] * mean[0])) -
                    sqrt(fmax(0, square[1] - mean[1] * mean[1])));
    }
    return sum / (2 * PIXELS);
}

static gpunn_status run(gpunn_device *dev, const gpunn_array *file, int epochs, int images, const char *path)
{
    static float   pictures[COMPARED][PIXELS];
    const network  net = build(dev);
    const uint8_t *samples = (const uint8_t *)file->data;
    gpunn_field    field = {
           .input = net.real, .samples = samples, .dtype = GPUNN_U8, .mean = {0.5f}, .std = {0.5f}};
    gpunn_loader *loader = gpunn_loader_create(net.model, .fields = {field}, .count = images,
                                               .batch_size = BATCH, .shuffle = true, .drop_last = true,
                                               .workers = 1);
    gpunn_status  status = gpunn_last_status(dev);
    if (status == GPUNN_OK) status = train(&net, loader, epochs);
    if (status == GPUNN_OK) status = make_pictures(&net, pictures);
    if (status == GPUNN_OK) {
        printf("pixels of made and of real pictures: %.3f apart\n", distance(pictures, samples));
        status = grid_write(path, pictures[0], COLUMNS * COLUMNS / 2, SIDE, SIDE, COLUMNS, -1, 1)
                     ? GPUNN_OK
                     : GPUNN_ERR_IO;
        (void)fprintf(status == GPUNN_OK ? stdout : stderr,
                      status == GPUNN_OK ? "wrote %s\n" : "'%s' cannot be written\n", path);
    }
    gpunn_loader_destroy(loader);
    for (int turn = 0; turn < 2; turn++) gpunn_optimizer_destroy(net.adam[turn]);
    gpunn_model_destroy(net.model);
    return status;
}

int main(int argc, char **argv)
{
    int          epochs = 5, images = 60000, seed = 1, threads = 0;
    const char  *data = FASHION_FOLDER, *out = "out";
    char         path[1024];
    const option known[] = {
        {"--epochs N", "passes over the images", .number = &epochs, .lowest = 1},
        {"--images N", "of the 60000 that are trained on", .number = &images, .lowest = COMPARED,
         .highest = 60000},
        {"--seed N", "of initial weights and noise", .number = &seed},
        {"--threads N", "of the CPU; default: all processors", .number = &threads, .highest = 1024},
        {"--data FOLDER", "folder of the idx files, .gz or not", .text = &data},
        {"--out FOLDER", "folder for gan.png, made where there is none", .text = &out}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    (void)snprintf(path, sizeof path, "%s/gan.png", out);
    gpunn_device *dev = gpunn_device_open(.seed = (uint64_t)seed, .threads = threads);
    gpunn_array   file = {0};
    gpunn_status  status = fashion_read(dev, data, "train-images-idx3-ubyte", PIXELS, &file);
    if (status == GPUNN_OK && file.dim[0] < images) images = (int)file.dim[0];
    if (status == GPUNN_OK && !options_make_folder(argv[0], out)) status = GPUNN_ERR_IO;
    if (status == GPUNN_OK) status = run(dev, &file, epochs, images, path);
    if (gpunn_last_status(dev) != GPUNN_OK) fprintf(stderr, "gan: %s\n", gpunn_error(dev));
    gpunn_array_free(dev, &file);
    gpunn_device_close(dev);
    return status != GPUNN_OK;
}
