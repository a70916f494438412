/* vae.c - a variational autoencoder: learns to write pictures of Fashion-MNIST as 20 numbers, and to draw
 * new ones from such.
 *
 * Shows: gpunn_randn, a layer that draws new numbers in every run; two losses in one pass, each readable;
 *        weights that two networks share; a picture grid.
 * Build: cc -O3 -march=native -DGPUNN_ZLIB -I. examples/vae.c -o vae -lz -lm
 *        with stb_image_write.h (apt-get install libstb-dev)
 *        nvcc -O3 -arch=native -DGPUNN_ZLIB -I. examples/vae.c gpunn_cuda.cu -o vae -lz
 * Data:  apt-get install dataset-fashion-mnist     (or --data FOLDER with the idx files, .gz or not)
 * Run:   ./vae [--epochs N]                        (--help explains all options)
 * Expect: in 10 epochs the loss of the test images falls to about 245 nats an image, less is better;
 *         vae.png in out/ has rows of test images, of what comes of their 20 numbers, and of new images.
 * Time:  about ten seconds on two cores.
 * Next:  --epochs 30; gan.c makes images in another way. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "curves.h"
#include "fashion.h"
#include "grid.h"
#include "options.h"

#include <stdio.h>
#include <time.h>

enum { SIDE = 28, PIXELS = SIDE * SIDE, HIDDEN = 400, CODE = 20, COLUMNS = 16, BATCH = 128 };

typedef struct network {
    gpunn_model  *model;
    gpunn_tensor *image, *drawn;                /* [batch, PIXELS], 0 to 1; what comes of an image */
    gpunn_tensor *made;                         /* [COLUMNS, PIXELS], of numbers that no image has given */
    gpunn_tensor *likeness, *divergence, *loss; /* nats an image; the sum of both */
} network;

static gpunn_tensor *decode(gpunn_model *model, gpunn_tensor *code, const char *first, const char *last)
{
    gpunn_tensor *h = gpunn_linear(code, first, .out_features = HIDDEN,
                                   .weight = gpunn_find(model, "decode1.weight"),
                                   .bias = gpunn_find(model, "decode1.bias"));
    return gpunn_linear(gpunn_relu(h), last, .out_features = PIXELS,
                        .weight = gpunn_find(model, "decode2.weight"),
                        .bias = gpunn_find(model, "decode2.bias"));
}

static network build(gpunn_device *dev)
{
    network net = {.model = gpunn_model_create(dev)};
    net.image = gpunn_input(net.model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, PIXELS));
    gpunn_tensor *h = gpunn_relu(gpunn_linear(net.image, "encode", .out_features = HIDDEN));
    gpunn_tensor *mean = gpunn_linear(h, "mean", .out_features = CODE);
    gpunn_tensor *log_variance = gpunn_linear(h, "log_variance", .out_features = CODE);
    gpunn_tensor *of[] = {mean, log_variance, gpunn_randn_like(mean)};
    gpunn_tensor *logits = decode(net.model, gpunn_expr("x + exp(y / 2) * z", of, 3), "decode1", "decode2");
    net.drawn = gpunn_sigmoid(logits);
    net.likeness = gpunn_mul_scalar(gpunn_bce_with_logits(logits, net.image),
                                    PIXELS); /* the mean over pixels, times their number */
    net.divergence = gpunn_mul_scalar(gpunn_expr("mean(x ** 2 + exp(y) - 1 - y)", of, 2), CODE / 2.0f);
    net.loss = gpunn_add(gpunn_keep(net.likeness), gpunn_keep(net.divergence));
    net.made = gpunn_sigmoid(
        decode(net.model, gpunn_randn(net.model, GPUNN_SHAPE(COLUMNS, CODE)), "again1", "again2"));
    return net;
}

static gpunn_loader *load(const network *net, const gpunn_array *images, int count, bool shuffle)
{
    return gpunn_loader_create(
        net->model, .fields = {{.input = net->image, .samples = images->data, .dtype = GPUNN_U8}},
        .count = count, .batch_size = BATCH, .shuffle = shuffle, .drop_last = true, .workers = 1);
}

static double seconds(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Adds the three losses of each batch; step: trains it. *batches counts them. */
static gpunn_status pass(const network *net, gpunn_loader *loader, gpunn_optimizer *adam, double sum[3],
                         int *batches)
{
    gpunn_tensor *losses[] = {net->loss, net->likeness, net->divergence};
    gpunn_status  status = GPUNN_OK;
    for (*batches = 0, sum[0] = sum[1] = sum[2] = 0; status == GPUNN_OK && gpunn_next(loader); ++*batches) {
        status = adam ? gpunn_train_step(adam, net->loss) : gpunn_forward(losses, 3);
        for (int i = 0; i < 3 && status == GPUNN_OK; i++) sum[i] += (double)gpunn_item(losses[i]);
    }
    for (int i = 0; i < 3; i++) sum[i] /= *batches ? *batches : 1;
    return status;
}

/* Rows of test images, of what the network makes of them, and of new ones. */
static gpunn_status write_pictures(const network *net, gpunn_loader *tester, const char *path)
{
    static float  pictures[5][COLUMNS][PIXELS], drawn[BATCH][PIXELS], images[BATCH][PIXELS];
    gpunn_tensor *outputs[] = {net->drawn, net->made};
    gpunn_status  status = gpunn_next(tester) ? gpunn_forward(outputs, 2) : GPUNN_ERR_STATE;
    if (status == GPUNN_OK) status = gpunn_read(net->image, images, sizeof images);
    if (status == GPUNN_OK) status = gpunn_read(net->drawn, drawn, sizeof drawn);
    memcpy(pictures[0], images, sizeof pictures[0]);
    memcpy(pictures[1], drawn, sizeof pictures[1]);
    for (int row = 2; row < 5 && status == GPUNN_OK; row++) {
        status = gpunn_forward(&outputs[1], 1);
        if (status == GPUNN_OK) status = gpunn_read(net->made, pictures[row], sizeof pictures[row]);
    }
    if (status == GPUNN_OK && !grid_write(path, pictures[0][0], 5 * COLUMNS, SIDE, SIDE, COLUMNS, 0, 1)) {
        fprintf(stderr, "vae: '%s' cannot be written\n", path);
        return GPUNN_ERR_IO;
    }
    return status;
}

static gpunn_status train(const network *net, gpunn_loader *trainer, gpunn_loader *tester,
                          gpunn_optimizer *adam, int epochs)
{
    gpunn_status status = GPUNN_OK;
    double       sum[3];
    int          batches;
    curves       by_epoch = {.title = "loss"};
    for (int epoch = 1; epoch <= epochs && status == GPUNN_OK; epoch++) {
        const double start = seconds();
        status = pass(net, trainer, adam, sum, &batches);
        const double spent = (seconds() - start) * 1e3 / (batches ? batches : 1), trained = sum[0];
        if (status == GPUNN_OK) status = pass(net, tester, NULL, sum, &batches);
        if (status == GPUNN_OK)
            printf("epoch %d: loss %.2f, %.3f ms a step; test images %.2f, of which likeness %.2f, "
                   "divergence %.2f\n",
                   epoch, trained, spent, sum[0], sum[1], sum[2]);
        curves_add(&by_epoch, (float)trained, (float)sum[0]);
    }
    curves_show(&by_epoch, 1);
    return status;
}

int main(int argc, char **argv)
{
    int          epochs = 10, images = 60000, seed = 1, threads = 0;
    const char  *data = FASHION_FOLDER, *out = "out";
    char         path[1024];
    const option known[] = {
        {"--epochs N", "passes over the training images", .number = &epochs, .lowest = 1},
        {"--images N", "of the 60000 that are trained on", .number = &images, .lowest = BATCH,
         .highest = 60000},
        {"--seed N", "of initial weights and all that is drawn", .number = &seed},
        {"--threads N", "of the CPU; default: all processors", .number = &threads, .highest = 1024},
        {"--data FOLDER", "folder of the idx files, .gz or not", .text = &data},
        {"--out FOLDER", "folder for vae.png, made where there is none", .text = &out}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    (void)snprintf(path, sizeof path, "%s/vae.png", out);
    gpunn_device *dev = gpunn_device_open(.seed = (uint64_t)seed, .threads = threads);
    gpunn_array   files[2] = {{0}, {0}};
    gpunn_status  status = fashion_read(dev, data, "train-images-idx3-ubyte", PIXELS, &files[0]);
    if (status == GPUNN_OK) status = fashion_read(dev, data, "t10k-images-idx3-ubyte", PIXELS, &files[1]);
    if (status == GPUNN_OK && !options_make_folder(argv[0], out)) status = GPUNN_ERR_IO;
    if (status == GPUNN_OK) {
        const network    net = build(dev);
        gpunn_optimizer *adam = gpunn_adam(net.model, .lr = 1e-3f);
        const int64_t    most = files[0].dim[0];
        gpunn_loader    *trainer = load(&net, &files[0], images < most ? images : (int)most, true);
        gpunn_loader    *tester = load(&net, &files[1], (int)files[1].dim[0], false);
        status = gpunn_last_status(dev);
        if (status == GPUNN_OK) status = train(&net, trainer, tester, adam, epochs);
        if (status == GPUNN_OK) status = write_pictures(&net, tester, path);
        if (status == GPUNN_OK) printf("wrote %s\n", path);
        gpunn_loader_destroy(trainer);
        gpunn_loader_destroy(tester);
        gpunn_optimizer_destroy(adam);
        gpunn_model_destroy(net.model);
    }
    if (gpunn_last_status(dev) != GPUNN_OK) fprintf(stderr, "vae: %s\n", gpunn_error(dev));
    for (int i = 0; i < 2; i++) gpunn_array_free(dev, &files[i]);
    gpunn_device_close(dev);
    return status != GPUNN_OK;
}
