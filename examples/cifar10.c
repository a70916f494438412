/* cifar10.c - PyTorch's "Training a classifier" in C: LeNet on CIFAR-10 with SGD and momentum.
 *
 * Shows: the CIFAR reader, augmentation, a training loop of one's own, saving, loading into a new network,
 *        accuracy per class, fused kernels.
 * First: python3 -m generator examples/kernels/cifar10.json -o examples/kernels/cifar10
 * Build: cc -O3 -march=native -I. examples/cifar10.c -o cifar10 -lm
 *        with stb_image_write.h (apt-get install libstb-dev)
 *        nvcc -O3 -arch=native -I. examples/cifar10.c examples/kernels/cifar10_kernels.cu gpunn_cuda.cu \
 *             -o cifar10
 * Data:  wget https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz && tar xf cifar-10-binary.tar.gz
 * Run:   ./cifar10 [--data cifar-10-batches-bin] [--epochs 2] [--augment] [--synthetic]
 *            (--help explains all options)
 *        ./cifar10 --spec FILE only writes the network's spec, examples/kernels/cifar10.json.
 * Expect: the running loss falls from 2.2 to about 1.25 in two epochs; 55 % on the test images (100 % of
 *         stripes); the worst mistakes as a picture in out/.
 * Time:  about ten seconds on two cores, with --synthetic about three.
 * Next:  --augment --epochs 10. A network of your own in build(), and its kernels by --spec and the line
 *        of First. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#define CIFAR10_KERNELS_IMPLEMENTATION
#include "kernels/cifar10_kernels.h"
#include "confusion.h"
#include "curves.h"
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = 10, BATCH = 4, FILES = 5, SYNTHETIC_IMAGES = 2000, LINE = 2000 };
static const char *const class_names[CLASSES] = {"plane", "car",  "bird",  "cat",  "deer",
                                                 "dog",   "frog", "horse", "ship", "truck"};

typedef struct network {
    gpunn_model  *model;
    gpunn_tensor *image, *label, *logits, *loss;
} network;

static network build(gpunn_device *dev)
{
    network net;
    net.model = gpunn_model_create(dev);
    net.image = gpunn_input(net.model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3, 32, 32));
    net.label = gpunn_input(net.model, "label", GPUNN_U8, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *h = gpunn_conv2d(net.image, "conv1", .out_channels = 6, .kernel_size = 5);
    h = gpunn_max_pool2d(gpunn_relu(h), .kernel_size = 2);
    h = gpunn_conv2d(h, "conv2", .out_channels = 16, .kernel_size = 5);
    h = gpunn_flatten(gpunn_max_pool2d(gpunn_relu(h), .kernel_size = 2));
    h = gpunn_relu(gpunn_linear(h, "fc1", .out_features = 120));
    h = gpunn_relu(gpunn_linear(h, "fc2", .out_features = 84));
    net.logits = gpunn_linear(h, "fc3", .out_features = CLASSES);
    net.loss = gpunn_cross_entropy(net.logits, net.label);
    return net;
}

/* Stripes whose direction, width and colour tell the class, in CIFAR-10's records of a label and 3 x 32 x 32
 * bytes. */
static bool write_synthetic(const char *path, unsigned seed)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL) return false;
    srand(seed);
    bool good = true;
    for (int i = 0; i < SYNTHETIC_IMAGES; i++) {
        uint8_t record[1 + 3 * 32 * 32];
        int     label = rand() % CLASSES, shift = rand() % 16;
        record[0] = (uint8_t)label;
        for (int channel = 0; channel < 3; channel++)
            for (int row = 0; row < 32; row++)
                for (int column = 0; column < 32; column++) {
                    int stripe = ((label & 1 ? row : column) + shift) / (1 + label / 2) % 2;
                    record[1 + (channel * 32 + row) * 32 + column] =
                        (uint8_t)(stripe * 60 * (1 + channel * (label % 3)) / 2 + rand() % 64);
                }
        good = good && fwrite(record, sizeof record, 1, file) == 1;
    }
    return fclose(file) == 0 && good;
}

static gpunn_loader *make_loader(const network *net, const gpunn_array *images, const gpunn_array *labels,
                                 bool shuffle, bool augment)
{
    gpunn_loader_args args = {
        .count = images->dim[0], .batch_size = shuffle ? BATCH : 500, .shuffle = shuffle, .workers = 1};
    args.fields[0] = (gpunn_field){.input = net->image,
                                   .samples = images->data,
                                   .dtype = GPUNN_U8,
                                   .mean = {0.5f, 0.5f, 0.5f},
                                   .std = {0.5f, 0.5f, 0.5f}};
    if (augment) { /* RandomCrop(32, padding=4) and RandomHorizontalFlip() of torchvision */
        args.fields[0].crop_padding = 4;
        args.fields[0].horizontal_flip = 0.5f;
    }
    args.fields[1] = (gpunn_field){.input = net->label, .samples = labels->data};
    return gpunn_loader_create_(net->model, args);
}

static gpunn_status train(const network *net, gpunn_optimizer *sgd, gpunn_loader *loader, int epochs)
{
    curves by_line = {.title = "loss", .each = LINE};
    for (int epoch = 1; epoch <= epochs; epoch++) {
        double running = 0;
        for (int64_t i = 1; gpunn_next(loader); i++) {
            gpunn_status status = gpunn_train_step(sgd, net->loss);
            if (status != GPUNN_OK) return status;
            running += (double)gpunn_item(net->loss);
            if (i % LINE == 0 || i == gpunn_loader_batches(loader)) {
                int64_t steps = i % LINE ? i % LINE : LINE;
                printf("[%d, %5lld] loss: %.3f\n", epoch, (long long)i, running / (double)steps);
                curves_add(&by_line, (float)(running / (double)steps), NAN);
                running = 0;
            }
        }
    }
    curves_show(&by_line, 1);
    return GPUNN_OK;
}

/* Prints the accuracy and how often each class is taken for each, and draws the worst mistakes. */
static gpunn_status test(const network *net, gpunn_loader *loader, const gpunn_array *images,
                         const gpunn_array *labels, const char *path)
{
    static confusion c;
    int64_t          right = 0;
    c.classes = CLASSES;
    c.names = class_names;
    gpunn_status status = confusion_count(&c, net->logits, loader, (const uint8_t *)labels->data);
    if (status != GPUNN_OK) return status;
    for (int i = 0; i < CLASSES; i++) right += c.count[i][i];
    printf("accuracy on %lld test images: %.1f %%\n", (long long)labels->dim[0],
           100.0 * (double)right / (double)labels->dim[0]);
    confusion_print(&c, stdout);
    if (confusion_draw(&c, path, (const uint8_t *)images->data, 3, 32, 32)) return GPUNN_OK;
    fprintf(stderr, "%s cannot be written\n", path);
    return GPUNN_ERR_IO;
}

static gpunn_status write_spec(gpunn_device *dev, const char *path)
{
    network          net = build(dev);
    gpunn_optimizer *sgd = gpunn_sgd(net.model, .lr = 0.001f, .momentum = 0.9f);
    gpunn_status     status = gpunn_last_status(dev);
    if (status == GPUNN_OK)
        status = gpunn_spec_save(net.model, path, .name = "cifar10", .outputs = {net.logits},
                                 .loss = net.loss, .optimizer = sgd);
    gpunn_optimizer_destroy(sgd);
    gpunn_model_destroy(net.model);
    return status;
}

static gpunn_status run(gpunn_device *dev, const char *folder, const char *out, int epochs, bool augment,
                        gpunn_array data[4])
{
    char        mistakes[1024], weights[1024];
    char        names[FILES + 1][1024];
    const char *paths[FILES + 1];
    for (int i = 0; i <= FILES; i++) {
        if (i < FILES)
            snprintf(names[i], sizeof names[i], "%s/data_batch_%d.bin", folder, i + 1);
        else
            snprintf(names[i], sizeof names[i], "%s/test_batch.bin", folder);
        paths[i] = names[i];
    }
    snprintf(mistakes, sizeof mistakes, "%s/cifar10_mistakes.svg", out);
    snprintf(weights, sizeof weights, "%s/cifar10.safetensors", out);
    gpunn_status status = gpunn_read_cifar(dev, paths, FILES, CLASSES, &data[0], &data[1]);
    if (status == GPUNN_OK) status = gpunn_read_cifar(dev, paths + FILES, 1, CLASSES, &data[2], &data[3]);
    if (status != GPUNN_OK) return status;
    if (!options_make_folder("cifar10", out)) return GPUNN_ERR_IO;
    network          net = build(dev), copy = build(dev); /* the second one takes the saved weights */
    gpunn_optimizer *sgd = gpunn_sgd(net.model, .lr = 0.001f, .momentum = 0.9f);
    gpunn_loader    *trainer = make_loader(&net, &data[0], &data[1], true, augment);
    gpunn_loader    *tester = make_loader(&copy, &data[2], &data[3], false, false);
    status = gpunn_last_status(dev);
    if (status == GPUNN_OK) status = gpunn_use_kernels(net.model, &cifar10_kernels);
    if (status == GPUNN_OK) status = train(&net, sgd, trainer, epochs);
    if (status == GPUNN_OK) status = gpunn_save(net.model, weights);
    if (status == GPUNN_OK) status = gpunn_load(copy.model, weights);
    if (status == GPUNN_OK) status = test(&copy, tester, &data[2], &data[3], mistakes);
    if (status == GPUNN_OK) printf("wrote %s and %s\n", mistakes, weights);
    gpunn_loader_destroy(trainer);
    gpunn_loader_destroy(tester);
    gpunn_optimizer_destroy(sgd);
    gpunn_model_destroy(net.model);
    gpunn_model_destroy(copy.model);
    return status;
}

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user;
    if (level != GPUNN_LOG_ERROR) fprintf(stderr, "%s\n", message); /* main tells errors */
}

int main(int argc, char **argv)
{
    const char  *folder = NULL, *out = "out", *spec = NULL;
    char         stripes[512];
    int          epochs = 2;
    bool         synthetic = false, augment = false;
    const option known[] = {
        {"--data FOLDER", "folder of the binary version's six files", .text = &folder},
        {"--epochs N", "passes over the training images", .number = &epochs, .lowest = 1},
        {"--augment", "crops and mirrors the training images at random", .flag = &augment},
        {"--synthetic",
         "first writes a small stand-in (coloured stripes), without --data below the folder of --out",
         .flag = &synthetic},
        {"--out FOLDER", "folder for the trained weights, made where there is none", .text = &out},
        {"--spec FILE", "only writes the network's spec, for python3 -m generator", .text = &spec}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    snprintf(stripes, sizeof stripes, "%s/cifar10_synthetic", out);
    if (folder == NULL) folder = synthetic ? stripes : "cifar-10-batches-bin";
    if (synthetic && (!options_make_folder(argv[0], out) || !options_make_folder(argv[0], folder))) return 1;
    for (int i = 0; synthetic && i <= FILES; i++) {
        char path[1024], name[32] = "test_batch.bin";
        if (i < FILES) snprintf(name, sizeof name, "data_batch_%d.bin", i + 1);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (write_synthetic(path, (unsigned)i + 1)) continue;
        fprintf(stderr, "cannot write %s\n", path);
        return 1;
    }
    gpunn_device *dev = gpunn_device_open(.seed = 1, .log_fn = log_line);
    if (dev == NULL) {
        fprintf(stderr, "%s\n", gpunn_error(NULL));
        return 1;
    }
    gpunn_array  data[4] = {{0}, {0}, {0}, {0}}; /* training images and labels, test images and labels */
    gpunn_status status = spec ? write_spec(dev, spec) : run(dev, folder, out, epochs, augment, data);
    if (gpunn_last_status(dev) != GPUNN_OK) fprintf(stderr, "%s\n", gpunn_error(dev));
    if (status == GPUNN_ERR_IO && spec == NULL && data[2].data == NULL)
        fprintf(stderr, "get the data (163 MB): wget https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz "
                        "&& tar xf cifar-10-binary.tar.gz\nor try --synthetic\n");
    for (int i = 0; i < 4; i++) gpunn_array_free(dev, &data[i]);
    gpunn_device_close(dev);
    return status == GPUNN_OK ? 0 : 1;
}
