/* unet.c - a U-Net (Ronneberger et al. 2015) finds disks, squares and triangles in noisy pictures: the
 * class of every pixel.
 *
 * Shows: skip connections; an image's height and width as named sizes, so that one network takes pictures
 *        of any size; a loss of cross entropy and Dice over pixels; an argmax on the device; the
 *        intersection over union of each class.
 * Build: cc -O3 -march=native -I. examples/unet.c -o unet -lm
 *        nvcc -O3 -arch=native -I. examples/unet.c gpunn_cuda.cu -o unet
 * Run:   ./unet [--steps N] ...      (--help explains all options)
 *        In PyTorch the same network is tests/examples/make_unet.py's, whose weights --weights takes and
 *        --save gives.
 * Expect: after 1000 steps a mean intersection over union of about 0.9 on new pictures, of other sizes
 *         than the 64 x 64 of training too; unet.ppm in out/ has pictures, what is in them and what the
 *         network says.
 * Time:  about half a minute on two cores.
 * Next:  pictures and labels of your own in the place of draw_picture; --width 32. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BACKGROUND, DISK, SQUARE, TRIANGLE, CLASSES };
enum {
    DEPTH = 3,
    SMALLEST = 1 << DEPTH,
    SIDE = 64,
    BATCH = 8,
    TESTED = 48,
    SHOWN = 8,
    MOST_PIXELS = 128 * 128
};

typedef struct network {
    gpunn_model *model;
    /* [batch, 1, height, width]; the class of each pixel, [batch, height, width] */
    gpunn_tensor *image, *label;
    /* [batch, CLASSES, height, width]; of each pixel the class of the largest */
    gpunn_tensor *logits, *best;
    gpunn_tensor *cross_entropy, *dice, *loss; /* the sum of both */
} network;

static float   images[TESTED * MOST_PIXELS];
static int64_t labels[TESTED * MOST_PIXELS], found[TESTED * MOST_PIXELS];

/* ---- pictures, made of whole numbers: the same on every machine, and in make_unet.py ---- */
typedef struct shape {
    int kind, x, y, radius, turn, shade;
} shape;

static uint32_t drawn; /* so many numbers */

/* From low to below high. */
static int draw(int low, int high)
{
    uint32_t x = drawn++ * 0x9E3779B1u;
    x = (x ^ x >> 15) * 0x85EBCA77u;
    x = (x ^ x >> 13) * 0xC2B2AE3Du;
    return low + (int)((x ^ x >> 16) % (uint32_t)(high - low));
}

static bool covers(const shape *s, int x, int y)
{
    /* a^2 + b^2 = c^2 */
    static const int turns[][3] = {{1, 0, 1}, {3, 4, 5}, {4, 3, 5}, {5, 12, 13}, {-12, 5, 13}, {-4, 3, 5}};
    const int       *t = turns[s->turn], reach = s->radius * t[2];
    const int u = abs(t[0] * (x - s->x) + t[1] * (y - s->y)), v = t[0] * (y - s->y) - t[1] * (x - s->x);
    if (s->kind == DISK) return u * u + v * v < reach * reach;
    if (s->kind == SQUARE) return 8 * u < 7 * reach && 8 * abs(v) < 7 * reach;
    return 8 * v < 5 * reach && 7 * u - 4 * v < 5 * reach;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* One to three shapes, darker or lighter than what is behind them; a later one covers the earlier. */
static void draw_picture(int height, int width, float *image, int64_t *label)
{
    const int behind = draw(96, 160), count = draw(1, 4), side = smaller(height, width);
    shape     shapes[3];
    for (int i = 0; i < count; i++) {
        shape *s = &shapes[i];
        s->kind = draw(DISK, CLASSES);
        s->radius = draw(smaller(8, side / 4), smaller(17, side / 2 - 1));
        s->x = draw(s->radius, width - s->radius);
        s->y = draw(s->radius, height - s->radius);
        s->turn = draw(0, 6);
        s->shade = draw(48, 112) * (draw(0, 2) ? 1 : -1);
    }
    for (int p = 0; p < height * width; p++) {
        int level = behind + draw(-16, 17), shade = 0;
        label[p] = BACKGROUND;
        for (int i = 0; i < count; i++)
            if (covers(&shapes[i], p % width, p / width)) label[p] = shapes[i].kind, shade = shapes[i].shade;
        level += shade;
        image[p] = (float)((level < 0 ? 0 : level > 255 ? 255 : level) - 128) / 64;
    }
}

/* ---- the network ---- */
/* Twice a convolution, a norm and a relu, with the numbers that these have in an nn.Sequential. */
static gpunn_tensor *double_conv(gpunn_tensor *x, const char *name, int channels)
{
    char layer[64];
    for (int i = 0; i < 6; i += 3) {
        (void)snprintf(layer, sizeof layer, "%s.double_conv.%d", name, i);
        x = gpunn_conv2d(x, layer, .out_channels = channels, .kernel_size = 3, .padding = 1, .no_bias = true);
        (void)snprintf(layer, sizeof layer, "%s.double_conv.%d", name, i + 1);
        x = gpunn_relu(gpunn_batch_norm2d(x, layer));
    }
    return x;
}

/* A skip connection: what comes from below beside what went down, at the size of that: twice the half of an
 * odd one is one less. */
static gpunn_tensor *beside(gpunn_tensor *skip, gpunn_tensor *x)
{
    const gpunn_shape shape = gpunn_tensor_shape(skip);
    gpunn_tensor     *both[] = {skip, gpunn_interpolate(x, .size = {shape.dim[2], shape.dim[3]})};
    return gpunn_concat(both, 2, 1);
}

static gpunn_tensor *unet(gpunn_tensor *x, int width)
{
    gpunn_tensor *skip[DEPTH];
    char          name[16];
    x = double_conv(x, "inc", width);
    for (int i = 0; i < DEPTH; i++) {
        skip[i] = x;
        (void)snprintf(name, sizeof name, "down%d", i + 1);
        x = double_conv(gpunn_max_pool2d(x, .kernel_size = 2), name, width << (i + 1));
    }
    for (int i = 0; i < DEPTH; i++) {
        (void)snprintf(name, sizeof name, "up%d", i + 1);
        x = double_conv(beside(skip[DEPTH - 1 - i], x), name, width << (DEPTH - 1 - i));
    }
    return gpunn_conv2d(x, "outc", .out_channels = CLASSES, .kernel_size = 1);
}

static network build(gpunn_device *dev, int width)
{
    network       net = {.model = gpunn_model_create(dev)};
    const int64_t high = gpunn_size(net.model, "height", .min = SMALLEST),
                  wide = gpunn_size(net.model, "width", .min = SMALLEST);
    net.image = gpunn_input(net.model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, high, wide));
    net.label = gpunn_input(net.model, "label", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, high, wide));
    net.logits = unet(net.image, width);
    net.best = gpunn_argmax(net.logits, 1, false);
    gpunn_tensor *truth = gpunn_permute(gpunn_one_hot(net.label, CLASSES), GPUNN_AXES(0, 3, 1, 2));
    net.cross_entropy = gpunn_keep(gpunn_cross_entropy(net.logits, net.label));
    net.dice = gpunn_keep(gpunn_dice_loss(gpunn_softmax(net.logits, 1), truth, .batch = true));
    net.loss = gpunn_add(net.cross_entropy, net.dice);
    return net;
}

/* ---- work ---- */
/* New pictures to the device. */
static gpunn_status write_pictures(const network *net, int count, int height, int width)
{
    const int pixels = height * width;
    for (int i = 0; i < count; i++) draw_picture(height, width, images + i * pixels, labels + i * pixels);
    gpunn_status status = gpunn_write_shape(net->image, images, GPUNN_SHAPE(count, 1, height, width));
    return status == GPUNN_OK ? gpunn_write_shape(net->label, labels, GPUNN_SHAPE(count, height, width))
                              : status;
}

/* What the network says of new pictures: found beside labels. */
static gpunn_status segment(network *net, int count, int height, int width)
{
    gpunn_status status = write_pictures(net, count, height, width);
    if (status == GPUNN_OK) status = gpunn_forward(&net->best, 1);
    return status == GPUNN_OK ? gpunn_read(net->best, found, (size_t)(count * height * width) * sizeof *found)
                              : status;
}

static double seconds(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Prints milliseconds of a step with its pictures, over all but the first, which plans. */
static gpunn_status train(gpunn_optimizer *adam, const network *net, int steps)
{
    gpunn_status status = GPUNN_OK;
    double       start = seconds();
    for (int step = 1; step <= steps && status == GPUNN_OK; step++) {
        status = write_pictures(net, BATCH, SIDE, SIDE);
        if (status == GPUNN_OK) status = gpunn_train_step(adam, net->loss);
        if (status == GPUNN_OK) status = gpunn_schedule_step(adam, 0);
        if (status == GPUNN_OK && (step <= 5 || step * 10 % steps == 0))
            printf("step %d: loss %.6f, of which cross entropy %.6f, dice %.6f\n", step,
                   (double)gpunn_item(net->loss), (double)gpunn_item(net->cross_entropy),
                   (double)gpunn_item(net->dice));
        if (step == 1) start = seconds();
    }
    if (status == GPUNN_OK && steps > 1) printf("%.2f ms a step\n", (seconds() - start) * 1e3 / (steps - 1));
    return status;
}

/* Of each class the pixels that are both found and there, as a share of those that are either. */
static void print_iou(int height, int width, int pixels)
{
    static const char *const names[CLASSES] = {"background", "disk", "square", "triangle"};
    int64_t                  both[CLASSES] = {0}, either[CLASSES] = {0};
    double                   mean = 0;
    for (int p = 0; p < pixels; p++) {
        both[labels[p]] += labels[p] == found[p];
        either[labels[p]]++;
        if (labels[p] != found[p]) either[found[p]]++;
    }
    printf("%3d x %-3d", height, width);
    for (int k = 0; k < CLASSES; k++) {
        const double iou = either[k] ? (double)both[k] / (double)either[k] : 1;
        mean += iou / CLASSES;
        printf("  %s %.3f", names[k], iou);
    }
    printf("  mean %.3f\n", mean);
}

static gpunn_status evaluate(network *net)
{
    static const int sizes[][2] = {{SIDE, SIDE}, {96, 128}, {127, 61}, {33, 90}};
    gpunn_status     status = GPUNN_OK;
    printf("intersection over union of %d new pictures each\n", TESTED);
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes) && status == GPUNN_OK; i++) {
        status = segment(net, TESTED, sizes[i][0], sizes[i][1]);
        if (status == GPUNN_OK) print_iou(sizes[i][0], sizes[i][1], TESTED * sizes[i][0] * sizes[i][1]);
    }
    return status;
}

/* Rows of pictures, of what is in them, and of what the network finds, as a portable pixmap. */
static gpunn_status write_ppm(network *net, const char *path)
{
    static const unsigned char colors[CLASSES][3] = {
        {32, 32, 32}, {230, 159, 0}, {86, 180, 233}, {0, 158, 115}};
    gpunn_status status = segment(net, SHOWN, SIDE, SIDE);
    FILE        *file = status == GPUNN_OK ? fopen(path, "wb") : NULL;
    if (file) fprintf(file, "P6 %d %d 255\n", SHOWN * SIDE, 3 * SIDE);
    for (int i = 0; i < 3 * SIDE * SHOWN * SIDE && file; i++) {
        const int           row = i / (SHOWN * SIDE), column = i % (SHOWN * SIDE);
        const int           p = (column / SIDE * SIDE + row % SIDE) * SIDE + column % SIDE;
        const unsigned char level = (unsigned char)(images[p] * 64 + 128), gray[3] = {level, level, level};
        fwrite(row < SIDE ? gray : colors[row < 2 * SIDE ? labels[p] : found[p]], 1, 3, file);
    }
    const bool written = file && ferror(file) == 0;
    if (status != GPUNN_OK || (file && fclose(file) == 0 && written)) return status;
    fprintf(stderr, "unet: '%s' cannot be written\n", path);
    return GPUNN_ERR_IO;
}

/* Of the first pictures of ten sizes, in turn. */
static gpunn_status write_logits(gpunn_device *dev, network *net, const char *path)
{
    enum { COUNT = 10 };
    static const int   sizes[COUNT][2] = {{8, 8},   {9, 8},   {8, 15}, {17, 23}, {33, 20},
                                          {47, 50}, {64, 64}, {31, 9}, {12, 40}, {65, 19}};
    static const char *names[COUNT] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
    gpunn_array        all[COUNT] = {{0}};
    gpunn_status       status = GPUNN_OK;
    for (int i = 0; i < COUNT && status == GPUNN_OK; i++) {
        const int height = sizes[i][0], width = sizes[i][1];
        all[i] = (gpunn_array){.dtype = GPUNN_F32, .rank = 3, .dim = {CLASSES, height, width}};
        all[i].bytes = (size_t)(CLASSES * height * width) * sizeof(float);
        all[i].data = malloc(all[i].bytes);
        status = all[i].data ? write_pictures(net, 1, height, width) : GPUNN_ERR_MEMORY;
        if (status == GPUNN_OK) status = gpunn_forward(&net->logits, 1);
        if (status == GPUNN_OK) status = gpunn_read(net->logits, all[i].data, all[i].bytes);
    }
    if (status == GPUNN_OK) status = gpunn_write_safetensors(dev, path, names, all, COUNT);
    for (int i = 0; i < COUNT; i++) free(all[i].data);
    return status;
}

typedef struct options {
    const char *weights, *save, *logits, *out;
    int         steps, width, seed, threads;
} options;

static gpunn_status run(gpunn_device *dev, const options *o)
{
    char             path[1024];
    network          net = build(dev, o->width);
    gpunn_optimizer *adam = gpunn_adam(net.model, .lr = 1e-3f);
    gpunn_status     status = gpunn_set_schedule(adam, .type = GPUNN_SCHEDULE_COSINE,
                                                 .total_steps = o->steps ? o->steps : 1);
    if (status == GPUNN_OK && o->weights) status = gpunn_load(net.model, o->weights);
    if (status == GPUNN_OK && o->logits) status = write_logits(dev, &net, o->logits);
    if (status == GPUNN_OK) status = train(adam, &net, o->steps);
    if (status == GPUNN_OK) status = evaluate(&net);
    if (status == GPUNN_OK && o->save) status = gpunn_save(net.model, o->save);
    (void)snprintf(path, sizeof path, "%s/unet.ppm", o->out);
    if (status == GPUNN_OK) status = write_ppm(&net, path);
    if (status == GPUNN_OK) printf("wrote %s\n", path);
    gpunn_optimizer_destroy(adam);
    gpunn_model_destroy(net.model);
    return status;
}

int main(int argc, char **argv)
{
    options      o = {.out = "out", .steps = 1000, .width = 16, .seed = 1};
    const option known[] = {
        {"--steps N", "training steps of 8 pictures", .number = &o.steps, .highest = 1e6},
        {"--width N", "channels of the first layers", .number = &o.width, .lowest = 1, .highest = 256},
        {"--seed N", "of initial weights", .number = &o.seed},
        {"--threads N", "of the CPU; default 0: all processors", .number = &o.threads, .highest = 1024},
        {"--weights FILE", "to begin with (safetensors); default: random ones", .text = &o.weights},
        {"--save FILE", "where the trained weights go (safetensors)", .text = &o.save, .written = true},
        {"--logits FILE", "also writes the first logits, of ten sizes (safetensors)", .text = &o.logits,
         .written = true},
        {"--out FOLDER", "folder for unet.ppm, made where there is none", .text = &o.out}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    if (!options_make_folder(argv[0], o.out)) return 1;
    gpunn_device *dev = gpunn_device_open(.seed = (uint64_t)o.seed, .threads = o.threads);
    gpunn_status  status = run(dev, &o);
    if (gpunn_last_status(dev) != GPUNN_OK) fprintf(stderr, "unet: %s\n", gpunn_error(dev));
    gpunn_device_close(dev);
    return status != GPUNN_OK;
}
