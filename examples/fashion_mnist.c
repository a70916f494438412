/* fashion_mnist.c - trains a convolutional network on the 60,000 images of Fashion-MNIST and tests it on
 * the other 10,000.
 *
 * Shows: readers, loaders, gpunn_fit with progress, curves and early results, accuracy per class, saving
 *        and loading, fused kernels of two models, quantisation to 8-bit integers.
 * First: python3 -m generator examples/kernels/fashion_mnist_simple.json \
 *             -o examples/kernels/fashion_mnist_simple
 *        python3 -m generator examples/kernels/fashion_mnist_deep.json -o examples/kernels/fashion_mnist_deep
 * Build: cc -O3 -march=native -DGPUNN_ZLIB -I. examples/fashion_mnist.c -o fashion_mnist -lz -lm
 *        with stb_image_write.h (apt-get install libstb-dev)
 *        nvcc -O3 -arch=native -DGPUNN_ZLIB -I. examples/fashion_mnist.c \
 *             examples/kernels/fashion_mnist_simple_kernels.cu \
 *             examples/kernels/fashion_mnist_deep_kernels.cu gpunn_cuda.cu -o fashion_mnist -lz
 * Data:  apt-get install dataset-fashion-mnist     (or --data FOLDER with the four idx files, .gz or not)
 * Run:   ./fashion_mnist [--model simple|deep] [--epochs N]    (--help explains all options)
 *        --quantize also makes and tests a model of 8-bit integers, on the CPU.
 *        --spec FILE only writes the model's spec, examples/kernels/fashion_mnist_simple.json or _deep.json.
 *        Several processes: build with mpicc -DGPUNN_MPI in the place of cc, and mpirun -n 2 ./fashion_mnist.
 * Expect: about 90 % for the simple network, 91.5 % for the deep one; curves, the worst mistakes, history and
 *         weights in out/.
 * Time:  about half a minute on two cores, the deep network about a minute.
 * Next:  --model deep; your own images in the four idx files; generator/README.md on what the kernels
 *        save. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "confusion.h"
#include "curves.h"
#include "fashion.h"
#define FASHION_MNIST_SIMPLE_KERNELS_IMPLEMENTATION
#define FASHION_MNIST_DEEP_KERNELS_IMPLEMENTATION
#include "kernels/fashion_mnist_deep_kernels.h"
#include "kernels/fashion_mnist_simple_kernels.h"
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = 10 };
static const char *const class_names[CLASSES] = {"T-shirt", "Trouser", "Pullover", "Dress", "Coat",
                                                 "Sandal",  "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};

typedef struct options {
    const char *data, *out, *spec;
    int         deep, epochs, batch, threads;
    bool        quantize;
} options;

typedef struct network {
    gpunn_model  *model;
    gpunn_tensor *image, *label, *logits, *loss, *accuracy;
} network;

static network build(gpunn_device *dev, bool deep)
{
    network net;
    net.model = gpunn_model_create(dev);
    net.image = gpunn_input(net.model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 28, 28));
    net.label = gpunn_input(net.model, "label", GPUNN_U8, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *h = gpunn_conv2d(net.image, "conv1", .out_channels = 32, .kernel_size = 3,
                                   .padding = deep ? 1 : 0);
    if (deep) h = gpunn_batch_norm2d(h, "bn1");
    h = gpunn_max_pool2d(gpunn_relu(h), .kernel_size = 2);
    if (deep) {
        h = gpunn_conv2d(h, "conv2", .out_channels = 64, .kernel_size = 3, .padding = 1);
        h = gpunn_max_pool2d(gpunn_relu(gpunn_batch_norm2d(h, "bn2")), .kernel_size = 2);
        h = gpunn_dropout(gpunn_relu(gpunn_linear(gpunn_flatten(h), "fc1", .out_features = 128)), 0.4f);
    }
    net.logits = gpunn_linear(gpunn_flatten(h), "fc", .out_features = CLASSES);
    net.loss = gpunn_cross_entropy(net.logits, net.label);
    net.accuracy = gpunn_accuracy(net.logits, net.label);
    return net;
}

/* group: whose ranks share the samples out; NULL: each takes all, as they come. */
static gpunn_loader *make_loader(const network *net, const gpunn_array *images, const gpunn_array *labels,
                                 int batch, gpunn_group *group)
{
    gpunn_loader_args args = {
        .batch_size = batch, .shuffle = group != NULL, .workers = 1, .count = images->dim[0], .group = group};
    args.fields[0] = (gpunn_field){
        .input = net->image, .samples = images->data, .dtype = GPUNN_U8, .mean = {0.286f}, .std = {0.353f}};
    args.fields[1] = (gpunn_field){.input = net->label, .samples = labels->data, .dtype = GPUNN_U8};
    return gpunn_loader_create_(net->model, args);
}

static gpunn_status write_spec(gpunn_device *dev, const options *opt)
{
    network          net = build(dev, opt->deep);
    gpunn_optimizer *adam = gpunn_adam(net.model, .lr = 1e-3f);
    gpunn_status     status = gpunn_last_status(dev);
    if (status == GPUNN_OK)
        status = gpunn_spec_save(net.model, opt->spec,
                                 .name = opt->deep ? "fashion_mnist_deep" : "fashion_mnist_simple",
                                 .outputs = {net.logits, net.accuracy}, .loss = net.loss, .optimizer = adam);
    if (status != GPUNN_OK) fprintf(stderr, "%s\n", gpunn_error(dev));
    gpunn_optimizer_destroy(adam);
    gpunn_model_destroy(net.model);
    return status;
}

/* Prints how often each class is taken for each, and draws the worst mistakes. */
static gpunn_status show_mistakes(const network *net, gpunn_loader *loader, const gpunn_array *images,
                                  const gpunn_array *labels, const char *path)
{
    static confusion c;
    c.classes = CLASSES;
    c.names = class_names;
    gpunn_status status = confusion_count(&c, net->logits, loader, (const uint8_t *)labels->data);
    if (status != GPUNN_OK) return status;
    confusion_print(&c, stdout);
    if (confusion_draw(&c, path, (const uint8_t *)images->data, 1, 28, 28)) return GPUNN_OK;
    fprintf(stderr, "%s cannot be written\n", path);
    return GPUNN_ERR_IO;
}

static void print_layer(void *user, const gpunn_quantized_layer *layer)
{
    (void)user;
    printf("%-8s %-6s %-6s %8.2f to %5.2f %8.1f dB, of its own %.1f dB\n", layer->op, layer->layer,
           layer->wide ? "f32" : "8 bits", (double)layer->low, (double)layer->high, layer->total_snr,
           layer->snr);
}

/* The accuracy of a quantised model. */
static gpunn_status test_quantized(gpunn_model *model, const gpunn_array *images, const gpunn_array *labels,
                                   float *accuracy)
{
    float   loss;
    network net = {
        .model = model, .image = gpunn_find(model, "image"), .logits = gpunn_spec_output(model, 0)};
    net.label = gpunn_input(model, "label", GPUNN_U8, GPUNN_SHAPE(GPUNN_BATCH));
    net.loss = gpunn_cross_entropy(net.logits, net.label);
    net.accuracy = gpunn_accuracy(net.logits, net.label);
    gpunn_loader *tester = make_loader(&net, images, labels, 1000, NULL);
    gpunn_status  status = tester ? gpunn_evaluate(tester, net.loss, net.accuracy, &loss, accuracy)
                                  : GPUNN_ERR_STATE;
    gpunn_loader_destroy(tester);
    return status;
}

/* Makes a model of 8-bit integers: training images show the ranges of the network's values. */
static gpunn_status quantize(const network *net, gpunn_loader *trainer, const gpunn_array *images,
                             const gpunn_array *labels, const char *path)
{
    float        accuracy = 0;
    gpunn_status status = gpunn_calibrate(net->model, .outputs = {net->logits}, .loader = trainer,
                                          .batches = 4);
    if (status != GPUNN_OK) return status;
    gpunn_model *small = gpunn_quantize(net->model, .report = print_layer);
    if (small == NULL) return GPUNN_ERR_STATE;
    status = gpunn_model_save(small, path);
    if (status == GPUNN_OK) status = test_quantized(small, images, labels, &accuracy);
    if (status == GPUNN_OK)
        printf("test accuracy in 8 bits %.2f %%; wrote %s\n", 100 * (double)accuracy, path);
    gpunn_model_destroy(small);
    return status;
}

static gpunn_status train(gpunn_device *dev, const options *opt, const gpunn_array data[4])
{
    const gpunn_array *images = &data[0], *labels = &data[1], *test_images = &data[2],
                      *test_labels = &data[3];
    char drawn[1024], history[1024], mistakes[1024], weights[1024], small[1024];
    snprintf(drawn, sizeof drawn, "%s/fashion_mnist_curves.svg", opt->out);
    snprintf(mistakes, sizeof mistakes, "%s/fashion_mnist_mistakes.svg", opt->out);
    snprintf(history, sizeof history, "%s/fashion_mnist_history.csv", opt->out);
    snprintf(weights, sizeof weights, "%s/fashion_mnist.safetensors", opt->out);
    snprintf(small, sizeof small, "%s/fashion_mnist_int8.safetensors", opt->out);

    /* the second one takes the saved weights */
    network net = build(dev, opt->deep), copy = build(dev, opt->deep);
    /* one process, or those that mpirun started */
    gpunn_group     *group = gpunn_group_open(dev);
    const int        ranks = gpunn_group_size(group), share = opt->batch >= ranks ? opt->batch / ranks : 1;
    const bool       first = gpunn_group_rank(group) == 0;
    gpunn_optimizer *adam = gpunn_adam(net.model, .lr = 1e-3f);
    gpunn_loader    *trainer = make_loader(&net, images, labels, share, group);
    gpunn_loader    *tester = make_loader(&net, test_images, test_labels, 1000, NULL);
    gpunn_loader    *copy_tester = make_loader(&copy, test_images, test_labels, 1000, NULL);
    float            accuracy = 0, again = 0, loss = 0;
    curves           by_epoch = {.title = "loss"};
    gpunn_status     status = gpunn_last_status(dev); /* of all the calls above */
    if (first && ranks > 1) printf("%d ranks\n", ranks);
    if (first)
        printf("%s\n%lld training and %lld test images, %s network, %d epochs\n", gpunn_device_name(dev),
               (long long)images->dim[0], (long long)test_images->dim[0], opt->deep ? "deep" : "simple",
               opt->epochs);
    if (status == GPUNN_OK)
        status = gpunn_use_kernels(net.model,
                                   opt->deep ? &fashion_mnist_deep_kernels : &fashion_mnist_simple_kernels);
    if (status == GPUNN_OK)
        status = gpunn_set_schedule(adam, .type = GPUNN_SCHEDULE_COSINE, .total_steps = opt->epochs,
                                    .min_lr = 1e-5f);
    if (status == GPUNN_OK) status = gpunn_distribute(adam, group);
    if (status == GPUNN_OK)
        status = gpunn_fit(adam, .loss = net.loss, .metric = net.accuracy, .train = trainer,
                           .validation = tester, .epochs = opt->epochs, .on_progress = curves_progress,
                           .user = &by_epoch, .history_csv = history, .history_svg = drawn);
    if (status == GPUNN_OK && first)
        status = gpunn_evaluate(tester, net.loss, net.accuracy, &loss, &accuracy);
    if (status == GPUNN_OK && first) status = show_mistakes(&net, tester, test_images, test_labels, mistakes);
    if (status == GPUNN_OK && first) status = gpunn_save(net.model, weights);
    if (status == GPUNN_OK && first) status = gpunn_load(copy.model, weights);
    if (status == GPUNN_OK && first)
        status = gpunn_evaluate(copy_tester, copy.loss, copy.accuracy, &loss, &again);
    if (status == GPUNN_OK && first) {
        printf("test accuracy %.2f %%, loss %.4f; the same network reloaded: %.2f %%%s\n",
               100 * (double)accuracy, (double)loss, 100 * (double)again,
               accuracy == again ? "" : " (NOT the same)");
        printf("wrote %s\n      %s\n      %s\n      %s\n", drawn, history, mistakes, weights);
    }
    if (status == GPUNN_OK && first && opt->quantize)
        status = quantize(&net, trainer, test_images, test_labels, small);
    gpunn_loader_destroy(trainer);
    gpunn_loader_destroy(tester);
    gpunn_loader_destroy(copy_tester);
    gpunn_optimizer_destroy(adam);
    gpunn_model_destroy(net.model);
    gpunn_model_destroy(copy.model);
    gpunn_group_close(group);
    if (status != GPUNN_OK) fprintf(stderr, "%s\n", gpunn_error(dev));
    return status == GPUNN_OK && accuracy != again ? GPUNN_ERR_NUMERIC : status;
}

/* Training images and labels, test images and labels. */
static gpunn_status read_data(gpunn_device *dev, const char *folder, gpunn_array data[4])
{
    static const char *const names[4] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                         "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
    gpunn_status             status = GPUNN_OK;
    for (int i = 0; i < 4 && status == GPUNN_OK; i++)
        status = fashion_read(dev, folder, names[i], i % 2 ? 1 : 28 * 28, &data[i]);
    if (status != GPUNN_OK && gpunn_last_status(dev) != GPUNN_OK) fprintf(stderr, "%s\n", gpunn_error(dev));
    for (int i = 0; i < 4 && status == GPUNN_OK; i += 2)
        if (data[i].dim[0] != data[i + 1].dim[0]) {
            fprintf(stderr, "%s and %s in %s do not have the same number of items\n", names[i], names[i + 1],
                    folder);
            status = GPUNN_ERR_SHAPE;
        }
    return status;
}

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user;
    if (level != GPUNN_LOG_ERROR) fprintf(stderr, "%s\n", message); /* main tells errors */
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* in a log, in step with the progress on stderr */
    options      opt = {FASHION_FOLDER, "out", NULL, 0, 5, 128, 0, false};
    const option known[] = {
        {"--model simple|deep", "one convolution, or two with batch norm and dropout", .choice = &opt.deep},
        {"--epochs N", "passes over the training images", .number = &opt.epochs, .lowest = 1},
        {"--batch N", "images of a step", .number = &opt.batch, .lowest = 1},
        {"--threads N", "of the CPU; default: all processors", .number = &opt.threads, .lowest = 1},
        {"--quantize", "also makes and tests a model of 8-bit integers, on the CPU", .flag = &opt.quantize},
        {"--data FOLDER", "folder of the four idx files, .gz or not", .text = &opt.data},
        {"--out FOLDER", "folder for curves, history and weights, made where there is none",
         .text = &opt.out},
        {"--spec FILE", "only writes the model's spec, for python3 -m generator", .text = &opt.spec}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    gpunn_device *dev = gpunn_device_open(.type = opt.quantize ? GPUNN_DEVICE_CPU : GPUNN_DEVICE_AUTO,
                                          .index = GPUNN_LOCAL_RANK, .seed = 1, .threads = opt.threads,
                                          .log_fn = log_line);
    if (dev == NULL) {
        fprintf(stderr, "%s\n", gpunn_error(NULL));
        return 1;
    }
    gpunn_array  data[4] = {{0}, {0}, {0}, {0}};
    gpunn_status status = opt.spec ? write_spec(dev, &opt) : read_data(dev, opt.data, data);
    if (status == GPUNN_OK && !opt.spec)
        status = options_make_folder(argv[0], opt.out) ? train(dev, &opt, data) : GPUNN_ERR_IO;
    for (int i = 0; i < 4; i++) gpunn_array_free(dev, &data[i]);
    gpunn_device_close(dev);
    return status == GPUNN_OK ? 0 : 1;
}
