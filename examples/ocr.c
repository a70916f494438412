/* ocr.c - reads lines of text: learns to read digits of all widths and distances, or decodes what another
 * model says of a line.
 *
 * Shows: gpunn_ctc_loss with targets of any length, a bidirectional GRU over the columns of an image,
 *        decoding by ctc.h.
 * Build: cc -O3 -march=native -I. examples/ocr.c -o ocr -lm
 *        nvcc -O3 -arch=native -I. examples/ocr.c gpunn_cuda.cu -o ocr
 * Data:  none. Of another model, such as PP-OCR's recognition by generator.import_onnx, run_model writes
 *        what each step says.
 * Run:   ./ocr [--epochs N] ...                                        (--help explains all options)
 *        run_model.c writes Y.safetensors, what NAME.json says of LINES.safetensors
 *        ./ocr --probabilities Y.safetensors --alphabet KEYS.txt
 *            the class after the blank is KEYS.txt's first line
 * Expect: over 95 % of the lines of 3 to 8 digits that it has not learnt from, every digit of them right.
 * Time:  about five seconds on two cores.
 * Next:  --width 1, where the search keeps one text; PP-OCR's model by --probabilities. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "ctc.h"
#include "curves.h"
#include "json.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEIGHT = 12,
    WIDTH = 80,
    STEPS = WIDTH / 2,
    MOST = 8,
    CLASSES = 11,
    LINES = 4096,
    TESTED = 512,
    BATCH = 32
};

typedef struct network {
    gpunn_model  *model;
    gpunn_tensor *image, *labels, *steps, *length, *log_probabilities,
        *loss; /* [batch, 1, HEIGHT, WIDTH] ... [batch, STEPS, CLASSES] */
} network;

/* 5 x 7 pixels, a row in each octal pair of digits, the topmost first. */
static const char *const font[10] = {"16212325312116", "04140404040416", "16210102041037", "37020402012116",
                                     "02061222370202", "37203601012116", "06102036212116", "37010204101010",
                                     "16212116212116", "16212117010214"};

static uint32_t drawn(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static float noise(uint32_t *state)
{
    return (float)drawn(state) / (1 << 24);
}

/* Line `index`: digits 1.0 times or 1.5 times as wide as drawn, at distances of 1 to 3, over noise; class 1
 * is the digit 0. */
static gpunn_status draw_line(void *user, int64_t index, void *const *sample)
{
    float   *image = (float *)sample[0];
    int64_t *labels = (int64_t *)sample[1], *steps = (int64_t *)sample[2], *length = (int64_t *)sample[3];
    uint32_t state = (uint32_t)(index + *(const int64_t *)user) * 2654435761u + 1;
    int      x = 1 + (int)(drawn(&state) % 6), count = 3 + (int)(drawn(&state) % (MOST - 2));
    for (int i = 0; i < HEIGHT * WIDTH; i++) image[i] = 0.4f * noise(&state);
    memset(labels, 0, MOST * sizeof *labels);
    *steps = STEPS;
    *length = 0;
    while (*length < count) {
        const int digit = (int)(drawn(&state) % 10), width = drawn(&state) % 2 ? 7 : 5,
                  top = (int)(drawn(&state) % 5);
        if (x + width >= WIDTH) break;
        for (int i = 0; i < 7 * width; i++) {
            const char *row = font[digit] + i / width * 2;
            const int   bits = (row[0] - '0') * 8 + row[1] - '0';
            if (bits >> (4 - i % width * 5 / width) & 1)
                image[(top + i / width) * WIDTH + x + i % width] += 0.6f;
        }
        x += width + 1 + (int)(drawn(&state) % 3);
        labels[(*length)++] = digit + 1;
    }
    return GPUNN_OK;
}

/* Two convolutions, and a GRU both ways over the columns that they leave. */
static network build(gpunn_device *dev)
{
    network net = {.model = gpunn_model_create(dev)};
    net.image = gpunn_input(net.model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, HEIGHT, WIDTH));
    net.labels = gpunn_input(net.model, "labels", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, MOST));
    net.steps = gpunn_input(net.model, "steps", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    net.length = gpunn_input(net.model, "length", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *x = gpunn_relu(gpunn_batch_norm2d(
        gpunn_conv2d(net.image, "conv1", .out_channels = 16, .kernel_size = 3, .padding = 1), "bn1"));
    x = gpunn_max_pool2d(x, .kernel_size = 2);
    x = gpunn_relu(gpunn_batch_norm2d(
        gpunn_conv2d(x, "conv2", .out_channels = 32, .kernel_size = 3, .padding = 1), "bn2"));
    x = gpunn_max_pool2d(x, .kernel_shape = {2, 1});
    x = gpunn_reshape(gpunn_permute(x, GPUNN_AXES(0, 3, 1, 2)),
                      GPUNN_SHAPE(GPUNN_BATCH, STEPS, 32 * HEIGHT / 4));
    x = gpunn_gru(x, "gru", .hidden_size = 64, .batch_first = true, .bidirectional = true);
    net.log_probabilities = gpunn_log_softmax(gpunn_linear(x, "out", .out_features = CLASSES), 2);
    net.loss = gpunn_ctc_loss(net.log_probabilities, net.labels, net.steps, net.length, .batch_first = true);
    return net;
}

static gpunn_loader *load(const network *net, int64_t *first, int count, bool train)
{
    return gpunn_loader_create(net->model,
                               .fields = {{.input = net->image},
                                          {.input = net->labels},
                                          {.input = net->steps},
                                          {.input = net->length}},
                               .count = count, .batch_size = BATCH, .shuffle = train, .workers = 1,
                               .load = draw_line, .user = first);
}

/* How many lines of the tester are right, by the best class of each step and by the search. */
static gpunn_status test(const network *net, gpunn_loader *tester, int width, int right[2])
{
    static float   said[BATCH][STEPS][CLASSES];
    static int64_t labels[BATCH][MOST], length[BATCH];
    gpunn_status   status = GPUNN_OK;
    right[0] = right[1] = 0;
    while (status == GPUNN_OK && gpunn_next(tester)) {
        const size_t  n = (size_t)gpunn_loader_batch_size(tester);
        gpunn_tensor *out = net->log_probabilities;
        status = gpunn_forward(&out, 1);
        if (status == GPUNN_OK) status = gpunn_read(out, said, n * sizeof *said);
        if (status == GPUNN_OK) status = gpunn_read(net->labels, labels, n * sizeof *labels);
        if (status == GPUNN_OK) status = gpunn_read(net->length, length, n * sizeof *length);
        for (size_t i = 0; status == GPUNN_OK && i < n; i++)
            for (int search = 0; search < 2; search++) {
                int  found[STEPS];
                int  count = search ? ctc_beam_search(said[i][0], STEPS, CLASSES, 0, width, found, NULL)
                                    : ctc_greedy(said[i][0], STEPS, CLASSES, 0, found);
                bool same = count == length[i];
                for (int k = 0; k < count && same; k++) same = found[k] == labels[i][k];
                right[search] += same;
            }
    }
    return status;
}

static gpunn_status learn(gpunn_device *dev, int epochs, int width, int right[2])
{
    const network net = build(dev);
    int64_t       first[2] = {0, LINES}; /* the lines' numbers */
    gpunn_loader *trainer = load(&net, &first[0], LINES, true),
                 *tester = load(&net, &first[1], TESTED, false);
    gpunn_optimizer *adam = gpunn_adam(net.model, .lr = 1e-2f);
    gpunn_status     status = gpunn_last_status(dev);
    curves           by_epoch = {.title = "loss"};
    if (status == GPUNN_OK)
        status = gpunn_set_schedule(adam, .type = GPUNN_SCHEDULE_COSINE, .total_steps = epochs);
    if (status == GPUNN_OK)
        status = gpunn_fit(adam, .loss = net.loss, .train = trainer, .epochs = epochs,
                           .on_progress = curves_progress, .user = &by_epoch);
    if (status == GPUNN_OK) status = test(&net, tester, width, right);
    gpunn_optimizer_destroy(adam);
    gpunn_loader_destroy(trainer);
    gpunn_loader_destroy(tester);
    gpunn_model_destroy(net.model);
    return status;
}

/* ---- what another model says --------------------------------------------------------------------------- */
/* Line `number` of the alphabet; PP-OCR's has the space behind its last one. */
static void print_label(const char *alphabet, int number)
{
    while (*alphabet && --number > 0) {
        alphabet += strcspn(alphabet, "\n");
        alphabet += *alphabet == '\n';
    }
    const size_t bytes = strcspn(alphabet, "\r\n");
    printf("%.*s", bytes ? (int)bytes : 1, bytes ? alphabet : " ");
}

static void print_labels(const char *alphabet, const int *labels, int count)
{
    for (int i = 0; i < count; i++) print_label(alphabet, labels[i]);
}

/* Probabilities, or their logarithms, [lines, steps, classes]: of each line the text that the search finds,
 * the logarithm of its probability, and the text of the best classes. */
static void print_lines(gpunn_array *said, const char *alphabet, int width)
{
    const int rank = said->rank, steps = (int)said->dim[rank - 2], classes = (int)said->dim[rank - 1];
    float    *at = (float *)said->data, most = -1;
    int      *found = (int *)malloc((size_t)steps * sizeof *found);
    for (size_t i = 0; i < said->bytes / sizeof *at; i++) most = at[i] > most ? at[i] : most;
    for (size_t i = 0; most > 0 && i < said->bytes / sizeof *at; i++) at[i] = logf(fmaxf(at[i], 1e-30f));
    for (size_t line = 0; found && line < said->bytes / sizeof *at / (size_t)steps / (size_t)classes;
         line++, at += steps * classes) {
        double score = 0;
        print_labels(alphabet, found, ctc_beam_search(at, steps, classes, 0, width, found, &score));
        printf("\t%.6f\t", score);
        print_labels(alphabet, found, ctc_greedy(at, steps, classes, 0, found));
        printf("\n");
    }
    free(found);
}

static bool decode(gpunn_device *dev, const char *path, const char *alphabet, int width)
{
    text_error  error;
    size_t      bytes;
    gpunn_array said;
    char       *text = text_read(alphabet, (size_t)1 << 24, &bytes, &error);
    bool        good = text != NULL;
    if (!good) fprintf(stderr, "ocr: %s\n", error.text);
    if (good && gpunn_read_safetensors(dev, path, NULL, &said) != GPUNN_OK) {
        fprintf(stderr, "ocr: %s\n", gpunn_error(dev));
        good = false;
    } else if (good) {
        good = said.dtype == GPUNN_F32 && said.rank >= 2 && said.dim[said.rank - 1] > 1 && said.bytes > 0;
        if (good)
            print_lines(&said, text, width);
        else
            fprintf(stderr, "ocr: '%s' does not hold probabilities [lines, steps, classes]\n", path);
        gpunn_array_free(dev, &said);
    }
    free(text);
    return good;
}

int main(int argc, char **argv)
{
    int          epochs = 4, width = 16, seed = 1, threads = 0, right[2] = {0, 0};
    const char  *probabilities = NULL, *alphabet = NULL;
    const option known[] = {
        {"--epochs N", "passes over the lines", .number = &epochs, .lowest = 1},
        {"--width N", "texts that the search keeps", .number = &width, .lowest = 1, .highest = 1000},
        {"--seed N", "of initial weights", .number = &seed},
        {"--threads N", "of the CPU; default: all processors", .number = &threads, .highest = 1024},
        {"--probabilities FILE",
         "safetensors with what another model says, class 0 the blank: decoded in place of learning",
         .text = &probabilities},
        {"--alphabet FILE", "with it, a line for each class from 1 on", .text = &alphabet}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    gpunn_device *dev = gpunn_device_open(.seed = (uint64_t)seed, .threads = threads);
    gpunn_status  status = gpunn_last_status(dev);
    bool          good = true;
    if (probabilities && alphabet)
        good = decode(dev, probabilities, alphabet, width);
    else
        status = learn(dev, epochs, width, right);
    if (status != GPUNN_OK)
        fprintf(stderr, "ocr: %s\n", gpunn_error(dev));
    else if (!(probabilities && alphabet))
        printf("%d lines: %.1f %% right by the best class of each step, %.1f %% by the search\n", TESTED,
               100.0 * right[0] / TESTED, 100.0 * right[1] / TESTED);
    gpunn_device_close(dev);
    return status != GPUNN_OK || !good;
}
