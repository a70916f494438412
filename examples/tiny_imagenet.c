/* tiny_imagenet.c - a convolutional network on a folder of pictures, trained on the CPU and on the GPU
 * alike.
 *
 * Shows: pictures decoded and cut by the loader's threads (pictures.h, stb_image: apt-get install
 *        libstb-dev), batch norm, two devices in one program, curves drawn as an SVG. Ranks:
 *        examples/guides/many_gpus.md.
 * Build: cc -O3 -march=native -fopenmp -I. examples/tiny_imagenet.c -o tiny_imagenet -lm
 *        nvcc -O3 -arch=native -I. examples/tiny_imagenet.c gpunn_cuda.cu -o tiny_imagenet
 * Data:  wget http://cs231n.stanford.edu/tiny-imagenet-200.zip && unzip -q tiny-imagenet-200.zip
 *        or any folder of JPEG and PNG files: train/CLASS/FILE and val/CLASS/FILE; Tiny ImageNet's
 *        train/CLASS/images/FILE and val/val_annotations.txt; or CLASS/FILE alone, of which every tenth
 *        then is for validation.
 * Run:   ./tiny_imagenet [--data tiny-imagenet-200] [--synthetic] [--device cpu]
 *            (--help explains all options)
 * Expect: with --synthetic and 10 epochs more than 90 % of the validation pictures, a table of times, and
 *         in out/ the curves and the weights of each device.
 * Time:  about a quarter of a minute on two cores with --synthetic.
 * Next:  --data FOLDER with pictures of your own; --workers N where decoding is slower than training. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "options.h"
#include "pictures.h"
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb/stb_image_write.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIGURES = 8, FIGURE_COUNT = 100, CURVES = 4 };

typedef struct options {
    const char *data, *out, *weights;
    int         device, epochs, batch, size, width, workers, steps; /* device: 0 both, 1 CPU, 2 GPU */
    float       lr;
    bool        synthetic, skip_broken;
} options;

/* ---- the network ---- */
typedef struct network {
    gpunn_model  *model;
    gpunn_tensor *image, *label, *loss, *accuracy;
} network;

/* Four blocks of two convolutions, each of twice the channels on half the side of the one before. */
static network build(gpunn_device *dev, const options *o, int classes)
{
    network net;
    char    name[32];
    net.model = gpunn_model_create(dev);
    net.image = gpunn_input(net.model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3, o->size, o->size));
    net.label = gpunn_input(net.model, "label", GPUNN_I32, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *h = net.image;
    for (int block = 1; block <= 4; block++) {
        for (int layer = 1; layer <= 2; layer++) {
            snprintf(name, sizeof name, "block%d.conv%d", block, layer);
            h = gpunn_conv2d(h, name, .out_channels = o->width << (block - 1), .kernel_size = 3, .padding = 1,
                             .no_bias = true);
            snprintf(name, sizeof name, "block%d.bn%d", block, layer);
            /* of all ranks, if there are several */
            h = gpunn_relu(gpunn_batch_norm2d(h, name, .sync = true));
        }
        h = gpunn_max_pool2d(h, .kernel_size = 2);
    }
    gpunn_tensor *logits = gpunn_linear(gpunn_flatten(gpunn_adaptive_avg_pool2d(h, 1, 1)), "fc",
                                        .out_features = classes);
    net.loss = gpunn_cross_entropy(logits, net.label);
    net.accuracy = gpunn_accuracy(logits, net.label);
    return net;
}

/* ---- training ---- */
typedef struct history {
    const char *device;
    char        name[256];
    int         epochs;
    float      *curve[CURVES]; /* training loss, validation loss, training accuracy, validation accuracy */
    double      training, all; /* seconds */
} history;

static bool on_progress(void *user, const gpunn_progress *p)
{
    history *h = user;
    if (p->batch == p->batches && !p->epoch_done) h->training += p->seconds;
    if (!p->epoch_done) return true;
    const float now[CURVES] = {p->loss, p->validation_loss, p->metric, p->validation_metric};
    for (int i = 0; i < CURVES; i++) h->curve[i][h->epochs] = now[i];
    h->epochs++;
    h->all += p->seconds;
    printf("%s epoch %d/%d: loss %.4f, accuracy %.1f %%; validation loss %.4f, accuracy %.1f %%; %.1f s\n",
           h->device, p->epoch, p->epochs, (double)p->loss, 100 * (double)p->metric,
           (double)p->validation_loss, 100 * (double)p->validation_metric, p->seconds);
    fflush(stdout);
    return true;
}

/* group: whose ranks share pictures and batches out; NULL: each takes all. */
static gpunn_loader *make_loader(const network *net, const options *o, source *s, bool shuffle,
                                 gpunn_group *group)
{
    const int         ranks = gpunn_group_size(group), share = o->batch >= ranks ? o->batch / ranks : 1;
    gpunn_loader_args args = {
        .count = s->pictures->paths.count, .batch_size = share, .shuffle = shuffle, .group = group};
    args.load = load_picture;
    args.user = s;
    args.workers = o->workers;
    args.fields[0] = (gpunn_field){.input = net->image,
                                   .dtype = GPUNN_U8,
                                   .mean = {0.485f, 0.456f, 0.406f},
                                   .std = {0.229f, 0.224f, 0.225f}};
    args.fields[1] = (gpunn_field){.input = net->label, .dtype = GPUNN_I32};
    return gpunn_loader_create_(net->model, args);
}

static gpunn_status print_steps(gpunn_device *dev, gpunn_optimizer *sgd, const network *net,
                                gpunn_loader *loader, int steps, bool first)
{
    gpunn_status status = GPUNN_OK;
    for (int i = 1; status == GPUNN_OK && i <= steps; i++) {
        /* the first may end an epoch */
        if (!gpunn_next(loader) && !gpunn_next(loader)) return gpunn_last_status(dev);
        status = gpunn_train_step(sgd, net->loss);
        if (status == GPUNN_OK && first) printf("step %d: loss %.9g\n", i, (double)gpunn_item(net->loss));
    }
    return status;
}

/* *ranks: how many train together. */
static gpunn_status train(gpunn_device *dev, const options *o, const dataset *d, history *h, int *ranks)
{
    atomic_uint *draws = calloc((size_t)d->part[0].paths.count, sizeof *draws);
    source       sources[2] = {{&d->part[0], o->size, o->steps ? NULL : draws}, {&d->part[1], o->size, NULL}};
    network      net = build(dev, o, d->classes.count);
    gpunn_group *group = gpunn_group_open(dev); /* one process, or those that mpirun started */
    gpunn_optimizer *sgd = gpunn_sgd(net.model, .lr = o->lr, .momentum = 0.9f, .weight_decay = 5e-4f);
    gpunn_loader    *trainer = make_loader(&net, o, &sources[0], o->steps == 0, group);
    gpunn_loader    *tester = make_loader(&net, o, &sources[1], false, NULL);
    const bool       first = gpunn_group_rank(group) == 0;
    gpunn_status     status = draws ? gpunn_last_status(dev) : GPUNN_ERR_MEMORY;
    *ranks = gpunn_group_size(group);
    if (first && *ranks > 1) printf("%d ranks\n", *ranks);
    snprintf(h->name, sizeof h->name, "%s", gpunn_device_name(dev));
    if (status == GPUNN_OK && o->weights) status = gpunn_load(net.model, o->weights);
    if (status == GPUNN_OK) status = gpunn_distribute(sgd, group);
    if (status == GPUNN_OK && o->steps) {
        status = print_steps(dev, sgd, &net, trainer, o->steps, first);
    } else if (status == GPUNN_OK) {
        status = gpunn_set_schedule(sgd, .type = GPUNN_SCHEDULE_COSINE, .total_steps = o->epochs);
        if (status == GPUNN_OK)
            status = gpunn_fit(sgd, .loss = net.loss, .metric = net.accuracy, .train = trainer,
                               .validation = tester, .epochs = o->epochs, .on_progress = on_progress,
                               .user = h);
        char name[64], *path;
        snprintf(name, sizeof name, "tiny_imagenet_%s.safetensors", h->device);
        path = joined(o->out, name);
        if (status == GPUNN_OK && first) status = gpunn_save(net.model, path);
        free(path);
    }
    if (status != GPUNN_OK) fprintf(stderr, "%s: %s\n", h->device, gpunn_error(dev));
    gpunn_loader_destroy(trainer);
    gpunn_loader_destroy(tester);
    gpunn_optimizer_destroy(sgd);
    gpunn_model_destroy(net.model);
    gpunn_group_close(group);
    free(draws);
    return status;
}

/* ---- tiny_imagenet_curves.svg: losses on the left, accuracies on the right, validation dashed ---- */
static void draw(FILE *file, const history *runs, int count, int panel)
{
    static const char *const colours[2] = {"#1f77b4", "#d62728"}, *const titles[2] = {"loss", "accuracy"};
    const int left = 60 + 440 * panel, top = 40, width = 360, height = 240, epochs = runs[0].epochs;
    float     highest = panel ? 1 : 0;
    for (int r = 0; r < count && !panel; r++)
        for (int i = 0; i < 2 * epochs; i++)
            if (runs[r].curve[i / epochs][i % epochs] > highest)
                highest = runs[r].curve[i / epochs][i % epochs];
    fprintf(file, "<text x=\"%d\" y=\"25\">%s</text>\n", left, titles[panel]);
    for (int i = 0; i <= 4; i++) {
        int y = top + height - height * i / 4;
        fprintf(file,
                "<path d=\"M%d %dh%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%d\" "
                "text-anchor=\"end\">%.2g</text>\n",
                left, y, width, left - 6, y + 4, (double)highest * i / 4);
    }
    fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">epoch %d</text>\n", left + width,
            top + height + 18, epochs);
    for (int r = 0; r < count; r++)
        for (int k = 0; k < 2; k++) {
            fprintf(file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", colours[r],
                    k ? " stroke-dasharray=\"6 4\"" : "");
            for (int i = 0; i < epochs; i++)
                fprintf(file, "%.1f,%.1f ", left + (double)width * (i + 1) / epochs,
                        top + height -
                            (double)height * (double)runs[r].curve[2 * panel + k][i] / (double)highest);
            fprintf(file, "\"/>\n<text x=\"%d\" y=\"%d\" fill=\"%s\">%s %s</text>\n",
                    left + 110 * (2 * r + k), 335, colours[r], runs[r].device,
                    k ? "validation (dashed)" : "training");
        }
}

static bool write_svg(const char *path, const history *runs, int count)
{
    FILE *file = fopen(path, "w");
    if (file == NULL) return false;
    fprintf(
        file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" height=\"350\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<rect width=\"900\" height=\"350\" fill=\"white\"/>\n");
    draw(file, runs, count, 0);
    draw(file, runs, count, 1);
    fprintf(file, "</svg>\n");
    bool good = !ferror(file);
    return fclose(file) == 0 && good;
}

static void print_times(const history *runs, int count, const dataset *d)
{
    printf("\n%-6s %12s %12s %14s %10s %10s  %s\n", "", "training s", "images / s", "validation s",
           "accuracy", "speed-up", "");
    for (int i = 0; i < count; i++) {
        const history *h = &runs[i];
        printf("%-6s %12.2f %12.0f %14.2f %8.1f %% %9.1fx  %s\n", h->device, h->training,
               (double)d->part[0].paths.count * h->epochs / h->training, h->all - h->training,
               100 * (double)h->curve[3][h->epochs - 1], runs[0].training / h->training, h->name);
    }
}

/* ---- --synthetic ---- */
static bool inside(int figure, float x, float y) /* -1 to 1 */
{
    switch (figure) {
    case 0: return x * x + y * y < 0.5f;
    case 1: return x * x < 0.4f && y * y < 0.4f;
    case 2: return y > -0.6f && y < 0.6f && x * x < (y + 0.6f) * (y + 0.6f) / 4;
    case 3: return x * x < 0.04f || y * y < 0.04f;
    case 4: return x * x + y * y < 0.6f && x * x + y * y > 0.25f;
    case 5: return ((int)((x + 1) * 4) & 1) != 0;
    case 6: return ((int)((y + 1) * 4) & 1) != 0;
    default: return (((int)((x + 1) * 3) ^ (int)((y + 1) * 3)) & 1) != 0;
    }
}

static bool write_synthetic(const char *folder, int size)
{
    static const char *const names[FIGURES] = {"disc", "square",  "triangle", "cross",
                                               "ring", "columns", "rows",     "checks"};
    stbi_uc                 *pixels = needed(malloc((size_t)size * (size_t)size * 3));
    bool                     good = true;
    options_mkdir(folder); /* there already: the files say what is wrong, here and below */
    for (int i = 0; good && i < FIGURES * FIGURE_COUNT; i++) {
        int  figure = i % FIGURES, number = i / FIGURES;
        char name[16], whose[32], *part = joined(folder, number < FIGURE_COUNT * 4 / 5 ? "train" : "val");
        char *class = joined(part, names[figure]), *path, *whole;
        uint64_t random = mixed((uint64_t)i);
        float    x0 = (float)(random & 255) / 512 - 0.25f, y0 = (float)(random >> 8 & 255) / 512 - 0.25f;
        for (int k = 0; k < size * size * 3; k++) {
            float x = 2 * ((float)(k / 3 % size) + 0.5f) / (float)size - 1,
                  y = 2 * ((float)(k / 3 / size) + 0.5f) / (float)size - 1;
            bool in = inside(figure, x + x0, y + y0);
            pixels[k] = (stbi_uc)((random >> ((in ? 16 : 40) + 8 * (k % 3)) & 127) + (in ? 96 : 0) +
                                  (mixed(random + (uint64_t)k) & 31));
        }
        snprintf(name, sizeof name, "%03d.png", number);
        /* the other ranks here write the same files */
        snprintf(whose, sizeof whose, "%s.%d", name, gpunn_local_rank());
        whole = joined(class, name);
        path = joined(class, whose);
        options_mkdir(part);
        options_mkdir(class);
        good = stbi_write_png(path, size, size, 3, pixels, 3 * size) != 0 &&
               /* Windows: over no file */
               (rename(path, whole) == 0 || (remove(whole) == 0 && rename(path, whole) == 0));
        if (!good) fprintf(stderr, "cannot write %s\n", path);
        free(part);
        free(class);
        free(path);
        free(whole);
    }
    free(pixels);
    return good;
}

/* ---- the program ---- */
static void read_options(options *o, int argc, char **argv)
{
    const option known[] = {
        {"--data FOLDER", "folder of train/CLASS/FILE and val/CLASS/FILE; default tiny-imagenet-200",
         .text = &o->data},
        {"--out FOLDER", "folder for curves and weights, made where there is none", .text = &o->out},
        {"--synthetic",
         "first writes eight kinds of figures as PNG files, without --data below the folder of --out",
         .flag = &o->synthetic},
        {"--device both|cpu|gpu", "both: one after the other from the same weights; several ranks: the CPU",
         .choice = &o->device},
        {"--epochs N", "passes over the training pictures", .number = &o->epochs, .lowest = 1},
        {"--batch N", "pictures of a step", .number = &o->batch, .lowest = 1},
        {"--lr X", "SGD's highest learning rate; it falls to 0 along a cosine", .real = &o->lr,
         .lowest = 1e-9},
        {"--size N", "side of what the network sees, in pixels", .number = &o->size, .lowest = 16,
         .highest = 4096},
        {"--width N", "channels of the first layer", .number = &o->width, .lowest = 1, .highest = 4096},
        {"--workers N", "threads that decode", .number = &o->workers, .lowest = 1, .highest = 256},
        {"--weights FILE", "weights to start from (safetensors); default: random ones", .text = &o->weights},
        {"--skip-broken", "goes on without the files that cannot be decoded", .flag = &o->skip_broken},
        {"--steps N", "only prints the losses of N steps: no shuffling, no augmentation, no files",
         .number = &o->steps, .lowest = 1}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
}

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user;
    if (level != GPUNN_LOG_ERROR) fprintf(stderr, "tiny_imagenet: %s\n", message);
}

/* Trains on the devices asked for; the number of histories filled, or -1. */
static int train_all(const options *o, const dataset *d, history runs[2])
{
    static const char *const names[2] = {"cpu", "gpu"};
    int                      count = 0, ranks = 1;
    for (int i = 0; i < 2 && ranks == 1; i++) {
        bool both = o->device == 0;
        if (!both && o->device != i + 1) continue;
        gpunn_device *dev = gpunn_device_open(.type = i ? GPUNN_DEVICE_CUDA : GPUNN_DEVICE_CPU,
                                              .index = GPUNN_LOCAL_RANK, .seed = 1, .log_fn = log_line);
        if (dev == NULL && both && i) {
            printf("no GPU: %s\n", gpunn_error(NULL));
            break;
        }
        if (dev == NULL) {
            fprintf(stderr, "%s\n", gpunn_error(NULL));
            return -1;
        }
        runs[count].device = names[i];
        for (int k = 0; k < CURVES; k++) runs[count].curve[k] = calloc((size_t)o->epochs, sizeof(float));
        gpunn_status status = train(dev, o, d, &runs[count++], &ranks);
        gpunn_device_close(dev);
        if (status != GPUNN_OK) return -1;
    }
    return count;
}

int main(int argc, char **argv)
{
    options o = {.out = "out", .epochs = 10, .batch = 64, .size = 64, .width = 32, .workers = 4, .lr = 0.05f};
    dataset d = {0};
    history runs[2] = {0};
    read_options(&o, argc, argv);
    bool  good = !o.synthetic || options_make_folder(argv[0], o.out);
    char *curves = joined(o.out, "tiny_imagenet_curves.svg"),
         *figures = joined(o.out, "tiny_imagenet_synthetic");
    if (o.data == NULL) o.data = o.synthetic ? figures : "tiny-imagenet-200";
    int count = -1;
    good = good && (!o.synthetic || write_synthetic(o.data, o.size));
    if (good && dataset_find(&d, o.data) && dataset_check(&d, o.skip_broken)) {
        if (gpunn_local_rank() == 0)
            printf("%d classes, %d training and %d validation pictures\n", d.classes.count,
                   d.part[0].paths.count, d.part[1].paths.count);
        if (o.steps || options_make_folder(argv[0], o.out)) count = train_all(&o, &d, runs);
    }
    good = count > 0;
    if (good && runs[0].epochs > 0) { /* none on ranks that do not report */
        print_times(runs, count, &d);
        good = write_svg(curves, runs, count);
        if (!good) fprintf(stderr, "cannot write %s\n", curves);
    }
    free(curves);
    free(figures);
    for (int i = 0; i < 2 * CURVES; i++) free(runs[i / CURVES].curve[i % CURVES]);
    dataset_free(&d);
    return good ? 0 : 1;
}
