/* confusion.h - what a classifier takes for what: a table of its classes, a picture of its worst mistakes.
 *
 *     confusion c = {.classes = 10, .names = names};
 *     confusion_add(&c, index, label, probabilities);     for each sample; index: its place among the images
 *     confusion_print(&c, stdout);                        up to 11 classes fit into 80 columns
 *     confusion_draw(&c, "mistakes.svg", images, channels, height, width)     false: it cannot be written
 *
 * and, when gpunn.h was included before, for all samples of a loader that does not shuffle:
 *
 *     confusion_count(&c, logits, loader, labels)         a gpunn_status
 *
 * images is U8 [n, channels, height, width] with 1 or 3 channels. Labels are 0 to classes - 1, and there are
 * at most CONFUSION_CLASSES. The worst mistakes are those with the highest probability. Names hold neither &
 * nor <. Writes with stb_image_write (Debian: libstb-dev). */
#ifndef CONFUSION_H
#define CONFUSION_H
#ifndef STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb/stb_image_write.h>
#endif

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { CONFUSION_CLASSES = 100, CONFUSION_MISTAKES = 20, CONFUSION_COLUMNS = 4 };

typedef struct confusion__mistake {
    int64_t index;
    int     label, guess;
    float   probability; /* of the guess */
} confusion__mistake;

typedef struct confusion {
    int                classes;
    const char *const *names;
    int                count[CONFUSION_CLASSES][CONFUSION_CLASSES]; /* label, guess */
    int                mistakes;
    confusion__mistake worst[CONFUSION_MISTAKES]; /* the highest probability first */
} confusion;

static inline void confusion_add(confusion *c, int64_t index, int label, const float *probabilities)
{
    int guess = 0;
    for (int i = 1; i < c->classes; i++)
        if (probabilities[i] > probabilities[guess]) guess = i;
    c->count[label][guess]++;
    const float probability = probabilities[guess];
    int         place = c->mistakes;
    while (place > 0 && c->worst[place - 1].probability < probability) place--;
    if (guess == label || place == CONFUSION_MISTAKES) return;
    if (c->mistakes < CONFUSION_MISTAKES) c->mistakes++;
    for (int i = c->mistakes - 1; i > place; i--) c->worst[i] = c->worst[i - 1];
    c->worst[place].index = index;
    c->worst[place].label = label;
    c->worst[place].guess = guess;
    c->worst[place].probability = probability;
}

static inline void confusion_print(const confusion *c, FILE *file)
{
    (void)fprintf(file, "\n  class       accuracy  taken for\n%24s", "");
    for (int j = 0; j < c->classes; j++) (void)fprintf(file, "%5d", j);
    for (int i = 0; i < c->classes; i++) {
        int total = 0;
        for (int j = 0; j < c->classes; j++) total += c->count[i][j];
        (void)fprintf(file, "\n%-2d%-11.11s %6.1f %%  ", i, c->names[i],
                      100.0 * c->count[i][i] / (total ? total : 1));
        for (int j = 0; j < c->classes; j++) (void)fprintf(file, "%5d", c->count[i][j]);
    }
    (void)fprintf(file, "\n\n");
}

/* Bytes as base64, for stb_image_write, which calls this once for a file. */
static inline void confusion__base64(void *file, void *data, int size)
{
    static const char    digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *bytes = (const unsigned char *)data;
    for (int i = 0; i < size; i += 3) {
        unsigned bits = 0;
        for (int k = 0; k < 3; k++) bits = bits << 8 | (i + k < size ? bytes[i + k] : 0);
        for (int k = 0; k < 4; k++)
            (void)fputc(i + k <= size ? digits[bits >> (18 - 6 * k) & 63] : '=', (FILE *)file);
    }
}

/* One image as PNG, its channels beside each other; false: out of memory. */
static inline bool confusion__image(FILE *file, const uint8_t *image, int channels, int height, int width)
{
    const int pixels = height * width;
    uint8_t  *row = (uint8_t *)malloc((size_t)pixels * (size_t)channels);
    for (int i = 0; row && i < pixels * channels; i++) row[i] = image[i % channels * pixels + i / channels];
    const bool good = row &&
                      stbi_write_png_to_func(confusion__base64, file, width, height, channels, row, 0) != 0;
    free(row);
    return good;
}

static inline void confusion__head(FILE *file, int mistakes, int height)
{
    (void)fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 456 %d\" ", height);
    (void)fprintf(file, "width=\"456\" height=\"%d\">\n<style>\n", height);
    (void)fputs(
        "text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1f2328; text-anchor: middle }\n"
        ".title { font-weight: bold; text-anchor: start } .guess { fill: #bc4c00 } image { image-rendering: "
        "pixelated }\n"
        "@media (prefers-color-scheme: dark) {\n"
        "text { fill: #e6edf3 } .guess { fill: #f0883e } }\n</style>\n",
        file);
    (void)fprintf(file, "<text class=\"title\" x=\"12\" y=\"20\">The %d worst mistakes: ", mistakes);
    (void)fputs("the class, and what it is taken for</text>\n", file);
}

static inline void confusion__captions(const confusion *c, FILE *file, const confusion__mistake *m, int x,
                                       int y)
{
    (void)fprintf(file, "<text x=\"%d\" y=\"%d\">%s</text>\n", x, y, c->names[m->label]);
    (void)fprintf(file, "<text class=\"guess\" x=\"%d\" y=\"%d\">%s %.0f %%</text>\n", x, y + 17,
                  c->names[m->guess], 100 * (double)m->probability);
}

static inline bool confusion_draw(const confusion *c, const char *path, const uint8_t *images, int channels,
                                  int height, int width)
{
    const int rows = (c->mistakes + CONFUSION_COLUMNS - 1) / CONFUSION_COLUMNS,
              bytes = channels * height * width;
    FILE *file = fopen(path, "wb");
    bool  good = true;
    if (file == NULL) return false;
    confusion__head(file, c->mistakes, 36 + 128 * rows);
    for (int i = 0; i < c->mistakes && good; i++) {
        const int middle = 57 + i % CONFUSION_COLUMNS * 114, top = 36 + i / CONFUSION_COLUMNS * 128;
        (void)fprintf(file, "<image x=\"%d\" y=\"%d\" width=\"72\" height=\"72\" ", middle - 36, top);
        (void)fputs("href=\"data:image/png;base64,", file);
        good = confusion__image(file, images + c->worst[i].index * bytes, channels, height, width);
        (void)fputs("\"/>\n", file);
        confusion__captions(c, file, &c->worst[i], middle, top + 88);
    }
    (void)fputs("</svg>\n", file);
    good = good && !ferror(file);
    return fclose(file) == 0 && good;
}

#ifdef GPUNN_H
/* Counts the samples of one epoch: the classes of logits [batch, classes] against the labels, in the loader's order. */
static inline gpunn_status confusion_count(confusion *c, gpunn_tensor *logits, gpunn_loader *loader,
                                           const uint8_t *labels)
{
    gpunn_tensor *probabilities = gpunn_softmax(logits, 1);
    gpunn_status  status = GPUNN_OK;
    for (int64_t done = 0; status == GPUNN_OK && gpunn_next(loader);) {
        const int    n = gpunn_loader_batch_size(loader);
        const size_t bytes = (size_t)n * (size_t)c->classes * sizeof(float);
        float       *read = (float *)malloc(bytes);
        status = read ? gpunn_forward(&probabilities, 1) : GPUNN_ERR_MEMORY;
        if (status == GPUNN_OK) status = gpunn_read(probabilities, read, bytes);
        for (int i = 0; i < n && status == GPUNN_OK; i++, done++)
            confusion_add(c, done, labels[done], read + i * c->classes);
        free(read);
    }
    return status;
}
#endif

#endif
