/* resnet18.c - torchvision's ResNet-18: weights of another task, a new head for five classes, inference,
 * training, saliency, times.
 *
 * Shows: residual blocks, torchvision's weights by their names, a replaced head, frozen layers, batches to
 *        the device and results back, gradients of the images alone, sizes that vary, the same model on
 *        CPU and GPU.
 * Build: cc -O3 -march=native -I. examples/resnet18.c -o resnet18 -lm
 *        nvcc -O3 -arch=native -I. examples/resnet18.c gpunn_cuda.cu -o resnet18
 * Data:  python3 -c "import torchvision, safetensors.torch as s; s.save_file(
 *            torchvision.models.resnet18(weights='DEFAULT').state_dict(), 'resnet18.safetensors')"
 *        writes weights trained on ImageNet; the images are simulated.
 * Run:   ./resnet18 [--weights resnet18.safetensors] [--train 40] [--all]    (--help explains all options)
 *        A head of other than five classes in the file is replaced by a new one. --saliency FILE.pgm shows
 *        which pixels the ten images' classes depend on. --size any is the same network for images of any
 *        size, tried on parts of the first one.
 * Expect: scores of ten images; a loss that falls; milliseconds a batch on the CPU and, where there is
 *         one, on a GPU.
 * Time:  about three seconds on two cores.
 * Next:  --weights and --saliency; --all trains every layer; your own images in the place of
 *        simulate_images. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"

#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { IMAGES = 1000, CHANNELS = 3, SIDE = 64, PIXELS = CHANNELS * SIDE * SIDE, CLASSES = 5 };
enum { BATCH = 10, TRAIN_BATCH = 32, TEST_IMAGES = 200, RUNS = 9 };

typedef struct options {
    const char *weights, *save, *saliency;
    int         steps, width, any_size;
    float       lr;
    bool        all, no_times;
} options;

typedef struct network {
    gpunn_model *model;
    /* best: of each image the highest score, summed up */
    gpunn_tensor *image, *label, *logits, *best, *loss, *accuracy;
} network;

static float   images[IMAGES][PIXELS];
static int64_t labels[IMAGES];

/* ---- images: stripes whose direction tells the class, under noise ---- */
static uint32_t hash(uint32_t x)
{
    x *= 0x9E3779B1u;
    x = (x ^ x >> 15) * 0x85EBCA77u;
    x = (x ^ x >> 13) * 0xC2B2AE3Du;
    return x ^ x >> 16;
}

static void simulate_images(void)
{
    static const int directions[CLASSES][2] = {{1, 0}, {0, 1}, {1, 1}, {2, 1}, {1, 2}};
    for (int i = 0; i < IMAGES; i++) {
        const int *direction = directions[i % CLASSES];
        labels[i] = i % CLASSES;
        for (int p = 0; p < PIXELS; p++) {
            int   row = p / SIDE % SIDE, column = p % SIDE;
            float noise = (float)(hash((uint32_t)(i * PIXELS + p)) >> 16) / 65536 - 0.5f;
            images[i][p] = noise + ((row * direction[0] + column * direction[1]) / 8 % 2 ? 0.5f : -0.5f);
        }
    }
}

/* ---- the network ---- */
static gpunn_tensor *conv_bn(gpunn_tensor *x, const char *block, const char *conv, const char *bn,
                             int channels, int kernel, int stride)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s", block, conv);
    x = gpunn_conv2d(x, name, .out_channels = channels, .kernel_size = kernel, .stride = stride,
                     .padding = kernel / 2, .no_bias = true);
    snprintf(name, sizeof name, "%s%s", block, bn);
    return gpunn_batch_norm2d(x, name);
}

/* torchvision's BasicBlock; the first one of a stage halves the image and widens its channels. */
static gpunn_tensor *basic_block(gpunn_tensor *x, int stage, int index, int width)
{
    char block[32];
    int  stride = stage > 0 && index == 0 ? 2 : 1;
    snprintf(block, sizeof block, "layer%d.%d.", stage + 1, index);
    gpunn_tensor *skip = stride == 1 ? x
                                     : conv_bn(x, block, "downsample.0", "downsample.1", width, 1, stride);
    gpunn_tensor *y = gpunn_relu(conv_bn(x, block, "conv1", "bn1", width, 3, stride));
    return gpunn_relu(gpunn_add(conv_bn(y, block, "conv2", "bn2", width, 3, 1), skip));
}

static network build(gpunn_device *dev, int width, bool any_size)
{
    network net;
    net.model = gpunn_model_create(dev);
    int64_t height = any_size ? gpunn_size(net.model, "height", .max = SIDE) : SIDE;
    int64_t breadth = any_size ? gpunn_size(net.model, "width", .max = SIDE) : SIDE;
    net.image = gpunn_input(net.model, "image", GPUNN_F32,
                            GPUNN_SHAPE(GPUNN_BATCH, CHANNELS, height, breadth));
    net.label = gpunn_input(net.model, "label", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *h = gpunn_relu(conv_bn(net.image, "", "conv1", "bn1", width, 7, 2));
    h = gpunn_max_pool2d(h, .kernel_size = 3, .stride = 2, .padding = 1);
    for (int stage = 0; stage < 4; stage++)
        for (int index = 0; index < 2; index++) h = basic_block(h, stage, index, width << stage);
    h = gpunn_flatten(gpunn_adaptive_avg_pool2d(h, 1, 1));
    net.logits = gpunn_linear(h, "fc", .out_features = CLASSES);
    net.best = gpunn_sum(gpunn_max(net.logits, GPUNN_AXES(1), false), GPUNN_ALL, false);
    net.loss = gpunn_cross_entropy(net.logits, net.label);
    net.accuracy = gpunn_accuracy(net.logits, net.label);
    return net;
}

/* The file's head too, if it is one of five classes. */
static gpunn_status load(gpunn_device *dev, const network *net, const char *path)
{
    gpunn_array  head;
    gpunn_status status = gpunn_read_safetensors(dev, path, "fc.weight", &head);
    if (status != GPUNN_OK) return status;
    int64_t classes = head.dim[0];
    gpunn_array_free(dev, &head);
    if (classes == CLASSES) return gpunn_load(net->model, path);
    const char *const skip[] = {"fc.", NULL};
    status = gpunn_load(net->model, path, .skip = skip);
    if (status == GPUNN_OK)
        printf("%s: its head of %lld classes is replaced by a new one of %d\n", path, (long long)classes,
               CLASSES);
    return status;
}

static gpunn_status freeze_all_but_head(const network *net)
{
    for (int i = 0; i < gpunn_parameter_count(net->model); i++) {
        gpunn_tensor *t = gpunn_parameter_at(net->model, i);
        const char   *name = gpunn_tensor_name(t);
        if (strncmp(name, "fc.", 3) == 0 || strstr(name, ".running_")) continue;
        gpunn_status status = gpunn_set_trainable(t, false);
        if (status != GPUNN_OK) return status;
    }
    return GPUNN_OK;
}

/* ---- work ---- */
static gpunn_status write_batch(const network *net, int first, int count)
{
    gpunn_status status = gpunn_write_shape(net->image, images[first],
                                            GPUNN_SHAPE(count, CHANNELS, SIDE, SIDE));
    return status == GPUNN_OK ? gpunn_write(net->label, &labels[first], (size_t)count * sizeof labels[0])
                              : status;
}

/* A batch to the device, through the network, the scores back. */
static gpunn_status infer(const network *net, int first, float scores[BATCH][CLASSES])
{
    gpunn_status status = write_batch(net, first, BATCH);
    if (status == GPUNN_OK) status = gpunn_forward(&net->logits, 1);
    return status == GPUNN_OK ? gpunn_read(net->logits, scores, sizeof(float[BATCH][CLASSES])) : status;
}

static void print_scores(const char *name, const float scores[CLASSES])
{
    printf("%s:", name);
    for (int k = 0; k < CLASSES; k++) printf(" %9.6f", (double)scores[k]);
    printf("\n");
}

static gpunn_status show_scores(const network *net)
{
    float        scores[BATCH][CLASSES];
    char         name[16];
    gpunn_status status = infer(net, 0, scores);
    for (int i = 0; i < BATCH && status == GPUNN_OK; i++) {
        (void)snprintf(name, sizeof name, "image %d", i);
        print_scores(name, scores[i]);
    }
    return status;
}

/* ---- saliency ---- */
/* Gray levels of one row of an image, then, behind it, of the largest of its channels' gradients. most: of
 * all its gradients. */
static void saliency_row(const float *image, const float *slopes, float most, unsigned char *gray)
{
    for (int x = 0; x < SIDE; x++) {
        float light = 0, slope = 0;
        for (int c = 0; c < CHANNELS; c++) {
            light += (image[c * SIDE * SIDE + x] + 1) / (2 * CHANNELS);
            slope = fmaxf(slope, fabsf(slopes[c * SIDE * SIDE + x]));
        }
        gray[x] = (unsigned char)(255 * light + 0.5f);
        gray[SIDE + x] = (unsigned char)(most > 0 ? 255 * slope / most + 0.5f : 0);
    }
}

/* How each image's highest score depends on its pixels, as a portable graymap. Parameters have no part in
 * that, nor has training. */
static gpunn_status write_saliency(const network *net, const char *path)
{
    static float slopes[BATCH][PIXELS];
    gpunn_status status = gpunn_retain_grad(net->image) ? write_batch(net, 0, BATCH) : GPUNN_ERR_MEMORY;
    if (status == GPUNN_OK)
        status = gpunn_backward(net->best, .mode = GPUNN_MODE_EVALUATION, .inputs_only = true);
    if (status == GPUNN_OK) status = gpunn_read_grad(net->image, slopes, sizeof slopes);
    FILE *file = status == GPUNN_OK ? fopen(path, "wb") : NULL;
    if (file) fprintf(file, "P5 %d %d 255\n", 2 * SIDE, BATCH * SIDE);
    for (int i = 0; i < BATCH && file; i++) {
        unsigned char gray[2 * SIDE];
        float         most = 0;
        for (int p = 0; p < PIXELS; p++) most = fmaxf(most, fabsf(slopes[i][p]));
        for (int y = 0; y < SIDE; y++) {
            saliency_row(images[i] + y * SIDE, slopes[i] + y * SIDE, most, gray);
            fwrite(gray, 1, sizeof gray, file);
        }
    }
    const bool written = file && ferror(file) == 0;
    if (status != GPUNN_OK || (file && fclose(file) == 0 && written)) return status;
    fprintf(stderr, "resnet18: '%s' cannot be written\n", path);
    return GPUNN_ERR_IO;
}

/* The first image's scores, and those of parts of it: each size is planned at its first run. */
static gpunn_status show_sizes(const network *net)
{
    static const int sizes[][2] = {{64, 64}, {33, 64}, {64, 33}, {47, 50}, {32, 32},
                                   {51, 37}, {17, 60}, {8, 9},   {3, 64},  {1, 1}};
    static float     part[PIXELS];
    float            scores[CLASSES];
    char             name[48];
    gpunn_status     status = GPUNN_OK;
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes) && status == GPUNN_OK; i++) {
        const int height = sizes[i][0], width = sizes[i][1], pixels = height * width;
        for (int p = 0; p < CHANNELS * pixels; p++)
            part[p] = images[0][p / pixels * SIDE * SIDE + p % pixels / width * SIDE + p % width];
        status = gpunn_write_shape(net->image, part, GPUNN_SHAPE(1, CHANNELS, height, width));
        if (status == GPUNN_OK) status = gpunn_forward(&net->logits, 1);
        if (status == GPUNN_OK) status = gpunn_read(net->logits, scores, sizeof scores);
        (void)snprintf(name, sizeof name, "image 0, %d x %d", height, width);
        if (status == GPUNN_OK) print_scores(name, scores);
    }
    return status;
}

static gpunn_status train_step(const network *net, gpunn_optimizer *sgd, int step)
{
    gpunn_status status = write_batch(net, step % (IMAGES / TRAIN_BATCH) * TRAIN_BATCH, TRAIN_BATCH);
    return status == GPUNN_OK ? gpunn_train_step(sgd, net->loss) : status;
}

static gpunn_status train(const network *net, gpunn_optimizer *sgd, int steps)
{
    gpunn_status status = GPUNN_OK;
    for (int step = 0; step < steps && status == GPUNN_OK; step++) {
        status = train_step(net, sgd, step);
        if (status == GPUNN_OK) printf("step %2d: loss %.6f\n", step + 1, (double)gpunn_item(net->loss));
    }
    if (status == GPUNN_OK) status = write_batch(net, 0, TEST_IMAGES);
    if (status == GPUNN_OK) status = gpunn_forward(&net->accuracy, 1);
    if (status == GPUNN_OK)
        printf("accuracy on %d images: %.1f %%\n", TEST_IMAGES, 100 * (double)gpunn_item(net->accuracy));
    return status;
}

/* ---- times ---- */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { INFERENCE, FORWARD, TRAINING, TIMES };

/* Milliseconds of each, the median of some runs after two that do not count. */
static gpunn_status measure(const network *net, gpunn_optimizer *sgd, gpunn_device *dev, double ms[TIMES])
{
    float        scores[BATCH][CLASSES];
    gpunn_status status = GPUNN_OK;
    for (int what = 0; what < TIMES; what++) {
        double took[RUNS];
        for (int run = -2; run < RUNS && status == GPUNN_OK; run++) {
            double begin = now();
            status = what == INFERENCE ? infer(net, 0, scores)
                     : what == FORWARD ? gpunn_forward(&net->logits, 1)
                                       : train_step(net, sgd, run + 2);
            if (status == GPUNN_OK) status = gpunn_synchronize(dev);
            if (run >= 0) took[run] = 1e3 * (now() - begin);
        }
        if (status != GPUNN_OK) return status;
        qsort(took, RUNS, sizeof took[0], compare);
        ms[what] = took[RUNS / 2];
    }
    return status;
}

/* The same network on the CPU; there its errors are told. */
static gpunn_status measure_on_cpu(const options *o, double ms[TIMES], char *name, size_t size)
{
    gpunn_device *cpu = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1);
    if (cpu == NULL) {
        fprintf(stderr, "%s\n", gpunn_error(NULL));
        return GPUNN_ERR_MEMORY;
    }
    network          net = build(cpu, o->width, o->any_size);
    gpunn_optimizer *sgd = gpunn_sgd(net.model, .lr = o->lr, .momentum = 0.9f);
    gpunn_status     status = gpunn_last_status(cpu);
    if (status == GPUNN_OK && !o->all) status = freeze_all_but_head(&net);
    if (status == GPUNN_OK) status = measure(&net, sgd, cpu, ms);
    if (status != GPUNN_OK) fprintf(stderr, "%s\n", gpunn_error(cpu));
    snprintf(name, size, "%s", gpunn_device_name(cpu));
    gpunn_optimizer_destroy(sgd);
    gpunn_model_destroy(net.model);
    gpunn_device_close(cpu);
    return status;
}

static gpunn_status show_times(const network *net, gpunn_optimizer *sgd, gpunn_device *dev, const options *o)
{
    static const char *const what[TIMES] = {"forward, images there and scores back", "forward alone",
                                            "training step"};
    const int                sizes[TIMES] = {BATCH, BATCH, TRAIN_BATCH};
    const bool               gpu = gpunn_device_type(dev) == GPUNN_DEVICE_CUDA;
    double                   ms[TIMES], cpu_ms[TIMES];
    char                     cpu[160];
    gpunn_status             status = measure(net, sgd, dev, ms);
    if (status == GPUNN_OK && gpu) status = measure_on_cpu(o, cpu_ms, cpu, sizeof cpu);
    if (status != GPUNN_OK) return status;
    printf("\nCPU: %s\n", gpu ? cpu : gpunn_device_name(dev));
    printf("GPU: %s\n", gpu ? gpunn_device_name(dev) : "none here, or built without gpunn_cuda.cu");
    printf("%-40s %5s %11s%s\n", "milliseconds", "batch", "CPU", gpu ? "         GPU  CPU / GPU" : "");
    for (int i = 0; i < TIMES; i++) {
        printf("%-40s %5d %11.2f", what[i], sizes[i], gpu ? cpu_ms[i] : ms[i]);
        if (gpu) printf(" %11.2f %10.1f", ms[i], cpu_ms[i] / ms[i]);
        printf("\n");
    }
    return GPUNN_OK;
}

static gpunn_status run(gpunn_device *dev, const options *o)
{
    network          net = build(dev, o->width, o->any_size);
    gpunn_optimizer *sgd = gpunn_sgd(net.model, .lr = o->lr, .momentum = 0.9f);
    gpunn_status     status = gpunn_last_status(dev); /* of all the calls above */
    if (status == GPUNN_OK && o->weights) status = load(dev, &net, o->weights);
    if (status == GPUNN_OK && !o->all) status = freeze_all_but_head(&net);
    if (status == GPUNN_OK) status = show_scores(&net);
    if (status == GPUNN_OK && o->any_size) status = show_sizes(&net);
    if (status == GPUNN_OK && o->steps) status = train(&net, sgd, o->steps);
    if (status == GPUNN_OK && o->save) status = gpunn_save(net.model, o->save);
    if (status == GPUNN_OK && o->saliency) status = write_saliency(&net, o->saliency);
    if (status == GPUNN_OK && !o->no_times) status = show_times(&net, sgd, dev, o);
    gpunn_optimizer_destroy(sgd);
    gpunn_model_destroy(net.model);
    return status;
}

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user;
    if (level != GPUNN_LOG_ERROR) fprintf(stderr, "%s\n", message); /* main tells errors */
}

static void read_options(options *o, int argc, char **argv)
{
    const option known[] = {
        {"--weights FILE", "torchvision's (safetensors), with any number of classes; default: random ones",
         .text = &o->weights},
        {"--train STEPS", "training steps; 0: none", .number = &o->steps},
        {"--all", "trains every layer, not the head alone", .flag = &o->all},
        {"--lr X", "SGD's learning rate", .real = &o->lr, .lowest = 1e-9},
        {"--save FILE", "where the trained weights go (safetensors)", .text = &o->save, .written = true},
        {"--saliency FILE", "where the images and what their classes depend on go (PGM)",
         .text = &o->saliency, .written = true},
        {"--size 64|any", "of the images that the network takes", .choice = &o->any_size},
        {"--width N", "channels of the first layer", .number = &o->width, .lowest = 1, .highest = 1024},
        {"--no-times", "does not time CPU and GPU", .flag = &o->no_times}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
}

int main(int argc, char **argv)
{
    options o = {.steps = 40, .width = 64, .lr = 0.01f};
    read_options(&o, argc, argv);
    simulate_images();
    gpunn_device *dev = gpunn_device_open(.seed = 1, .log_fn = log_line);
    if (dev == NULL) {
        fprintf(stderr, "%s\n", gpunn_error(NULL));
        return 1;
    }
    gpunn_status status = run(dev, &o);
    if (status != GPUNN_OK) fprintf(stderr, "%s\n", gpunn_error(dev));
    gpunn_device_close(dev);
    return status == GPUNN_OK ? 0 : 1;
}
