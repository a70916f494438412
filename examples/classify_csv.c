/* classify_csv.c - learns a class from the numbers in a CSV file, and tells the class of rows that it has not
 * seen.
 *
 * Shows: csv.h; rows in random order, a part of them kept for the test; a norm that standardizes inputs;
 *        gpunn_fit; a model in files.
 * Build: cc -O3 -march=native -I. examples/classify_csv.c -o classify_csv -lm
 *        nvcc -O3 -arch=native -I. examples/classify_csv.c gpunn_cuda.cu -o classify_csv
 * Data:  a table whose first row names the columns, separated by commas, semicolons or tabs. Without one,
 *        lengths and widths of flowers are made.
 * Run:   ./classify_csv TABLE.csv [--class COLUMN] ...     (--help explains all options)
 * Expect: the accuracy on a fifth of the rows, which is not trained on: above 90 % for the made flowers.
 *         Five of these rows with their class and the network's. The model as a spec and weights in out/.
 * Time:  less than a second on two cores.
 * Next:  a table of your own; more layers in build(). generator/README.md makes plain C of the model. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "csv.h"
#include "curves.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLOWERS = 300, FLOWER_BYTES = 64, SHOWN = 5, MAX_BYTES = 1 << 30 };

typedef struct arguments {
    const char *path, *class_column, *without, *out;
    int         epochs, hidden, seed, threads;
} arguments;

typedef struct table {
    char       *text, *header; /* header: memory of the names */
    const char *names[CSV_MAX_COLUMNS];
    int         columns;
    size_t      rows, classes;
    float      *x;     /* [rows, columns] */
    int64_t    *label; /* [rows] */
    char      **class_names;
} table;

typedef struct network {
    gpunn_model  *model;
    gpunn_tensor *x, *label, *loss, *accuracy, *probability;
} network;

static void table_free(table *t)
{
    free(t->text);
    free(t->header);
    free(t->x);
    free(t->label);
    free(t->class_names);
}

/* A random number around the middle. */
static double around(double middle)
{
    for (int i = 0; i < 3; i++) middle += ((double)rand() / RAND_MAX - 0.5) / 2;
    return middle;
}

/* A table of three species. */
static char *make_flowers(void)
{
    static const char *const name[] = {"clover", "daisy", "poppy"};
    char                    *text = (char *)malloc(FLOWERS * FLOWER_BYTES);
    int                      used = text ? sprintf(text, "length,width,species\n") : 0;
    for (int i = 0; text && i < FLOWERS; i++)
        used += sprintf(text + used, "%.2f,%.2f,%s\n", around(1 + i % 3), around(2 - i % 3 / 2.0),
                        name[i % 3]);
    return text;
}

/* Finds the columns of numbers besides the class, which is the last column where none is named. */
static bool find_columns(table *t, const char **class_column, const char *without, text_error *error)
{
    static csv_field field[CSV_MAX_COLUMNS];
    csv              c = csv_begin(t->header);
    c.separator = csv_separator(t->text);
    const int width = csv_next(&c, field, CSV_MAX_COLUMNS);
    if (width < 2 || width > CSV_MAX_COLUMNS)
        return text_fail(error, "the first row must name 2 to %d columns", CSV_MAX_COLUMNS);
    for (int i = 0; i < width; i++) {
        field[i] = csv_trimmed(field[i]);
        field[i].text[field[i].bytes] = 0;
    }
    if (*class_column == NULL) *class_column = field[width - 1].text;
    for (int i = 0; i < width; i++) {
        const char *name = field[i].text;
        if (strcmp(name, *class_column) == 0 || (without && strcmp(name, without) == 0)) continue;
        float *numbers = csv_floats(t->text, &name, 1, &t->rows, error);
        if (numbers)
            t->names[t->columns++] = name;
        else
            fprintf(stderr, "classify_csv: column left out: %s\n", error->text);
        free(numbers);
    }
    return t->columns > 0 || text_fail(error, "no column has numbers besides '%s'", *class_column);
}

/* Whether every row has all numbers. */
static bool is_complete(const table *t, text_error *error)
{
    for (size_t i = 0; i < t->rows * (size_t)t->columns; i++)
        if (isnan(t->x[i]))
            return text_fail(error, "row %zu after the header lacks its '%s'; fill it or remove the row",
                             i / (size_t)t->columns + 1, t->names[i % (size_t)t->columns]);
    return true;
}

static bool table_read(table *t, const arguments *a, text_error *error)
{
    size_t      bytes;
    const char *class_column = a->class_column;
    t->text = a->path ? text_read(a->path, MAX_BYTES, &bytes, error) : make_flowers();
    t->header = t->text ? (char *)malloc(strlen(t->text) + 1) : NULL;
    if (t->header == NULL) return a->path && t->text == NULL ? false : text_fail(error, "out of memory");
    strcpy(t->header, t->text);
    return find_columns(t, &class_column, a->without, error) &&
           (t->x = csv_floats(t->text, t->names, t->columns, &t->rows, error)) != NULL &&
           is_complete(t, error) &&
           (t->label = csv_classes(t->text, class_column, &t->class_names, &t->classes, &t->rows, error)) !=
               NULL;
}

/* Puts the rows into random order, since tables are often sorted. */
static void shuffle(table *t)
{
    const size_t columns = (size_t)t->columns;
    for (size_t i = t->rows - 1; i > 0; i--) {
        const size_t  j = (size_t)rand() % (i + 1);
        const int64_t label = t->label[i];
        t->label[i] = t->label[j];
        t->label[j] = label;
        for (size_t k = 0; k < columns; k++) {
            const float x = t->x[i * columns + k];
            t->x[i * columns + k] = t->x[j * columns + k];
            t->x[j * columns + k] = x;
        }
    }
}

static network build(gpunn_device *dev, const table *t, int hidden)
{
    network n = {.model = gpunn_model_create(dev)};
    n.x = gpunn_input(n.model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, t->columns));
    n.label = gpunn_input(n.model, "label", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *h = gpunn_batch_norm1d(n.x, "norm"); /* columns may be of very different size */
    h = gpunn_relu(gpunn_linear(h, "fc1", .out_features = hidden));
    h = gpunn_relu(gpunn_linear(h, "fc2", .out_features = hidden));
    gpunn_tensor *logits = gpunn_linear(h, "fc3", .out_features = (int)t->classes);
    n.loss = gpunn_cross_entropy(logits, n.label);
    n.accuracy = gpunn_accuracy(logits, n.label);
    n.probability = gpunn_softmax(logits, 1);
    return n;
}

/* The rows from `first` on. */
static gpunn_loader *load(const network *n, const table *t, size_t first, size_t count, bool training)
{
    return gpunn_loader_create(n->model,
                               .fields = {{.input = n->x, .samples = t->x + first * (size_t)t->columns},
                                          {.input = n->label, .samples = t->label + first}},
                               .count = (int64_t)count, .batch_size = count < 32 ? (int)count : 32,
                               .shuffle = training, .drop_last = training);
}

/* Prints what the network says of the first rows that it has not seen. */
static gpunn_status show(const network *n, const table *t, size_t first)
{
    const size_t  rows = t->rows - first < SHOWN ? t->rows - first : SHOWN, columns = (size_t)t->columns;
    float        *p = (float *)malloc(rows * t->classes * sizeof *p);
    gpunn_status  status = p ? gpunn_write(n->x, t->x + first * columns, rows * columns * sizeof *t->x)
                             : GPUNN_ERR_MEMORY;
    gpunn_tensor *probability = n->probability;
    if (status == GPUNN_OK) status = gpunn_forward(&probability, 1);
    if (status == GPUNN_OK) status = gpunn_read(probability, p, rows * t->classes * sizeof *p);
    for (size_t i = 0; i < rows && status == GPUNN_OK; i++) {
        size_t best = 0;
        for (size_t k = 1; k < t->classes; k++)
            if (p[i * t->classes + k] > p[i * t->classes + best]) best = k;
        printf("%-20s taken for %-20s %5.1f %%\n", t->class_names[t->label[first + i]], t->class_names[best],
               100 * (double)p[i * t->classes + best]);
    }
    free(p);
    return status;
}

static gpunn_status save(const network *n, gpunn_optimizer *adam, const char *out)
{
    char         spec[1024], weights[1024];
    gpunn_status status;
    (void)snprintf(spec, sizeof spec, "%s/classify_csv.json", out);
    (void)snprintf(weights, sizeof weights, "%s/classify_csv.safetensors", out);
    status = gpunn_spec_save(n->model, spec, .outputs = {n->probability}, .loss = n->loss, .optimizer = adam);
    if (status == GPUNN_OK) status = gpunn_save(n->model, weights);
    if (status == GPUNN_OK) printf("wrote %s\n      %s\n", spec, weights);
    return status;
}

static gpunn_status run(gpunn_device *dev, const table *t, const arguments *a)
{
    const size_t     trained = t->rows - t->rows / 5;
    const network    n = build(dev, t, a->hidden);
    gpunn_loader    *trainer = load(&n, t, 0, trained, true);
    gpunn_loader    *tester = load(&n, t, trained, t->rows - trained, false);
    gpunn_optimizer *adam = gpunn_adam(n.model, .lr = 0.01f);
    curves           by_epoch = {.title = "loss"};
    float            loss = 0, accuracy = 0;
    gpunn_status     status = gpunn_last_status(dev); /* of all the calls above */
    printf("%zu rows, %zu classes, columns:", t->rows, t->classes);
    for (int i = 0; i < t->columns; i++) printf(" %s", t->names[i]);
    printf("\n");
    if (status == GPUNN_OK)
        status = gpunn_fit(adam, .loss = n.loss, .metric = n.accuracy, .train = trainer, .validation = tester,
                           .epochs = a->epochs, .on_progress = curves_progress, .user = &by_epoch);
    if (status == GPUNN_OK) status = gpunn_evaluate(tester, n.loss, n.accuracy, &loss, &accuracy);
    if (status == GPUNN_OK)
        printf("accuracy on %zu rows that were not trained on: %.1f %%\n", t->rows - trained,
               100 * (double)accuracy);
    if (status == GPUNN_OK) status = show(&n, t, trained);
    if (status == GPUNN_OK) status = save(&n, adam, a->out);
    gpunn_loader_destroy(trainer);
    gpunn_loader_destroy(tester);
    gpunn_optimizer_destroy(adam);
    gpunn_model_destroy(n.model);
    return status;
}

int main(int argc, char **argv)
{
    arguments    a = {.out = "out", .epochs = 50, .hidden = 32, .seed = 1};
    table        t = {.text = NULL};
    text_error   error;
    const option known[] = {
        {"TABLE.csv", "the table; default: flowers are made", .text = &a.path},
        {"--class COLUMN", "name of the column to learn; default: the last one", .text = &a.class_column},
        {"--without COLUMN", "leave a column out, such as the number of the row", .text = &a.without},
        {"--epochs N", "passes over the rows", .number = &a.epochs, .lowest = 1},
        {"--hidden N", "features of the hidden layers", .number = &a.hidden, .lowest = 1, .highest = 65536},
        {"--seed N", "of initial weights and the order of rows", .number = &a.seed},
        {"--threads N", "of the CPU; default: all processors", .number = &a.threads, .highest = 1024},
        {"--out DIR", "folder of the spec and the weights", .text = &a.out}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    if (!options_make_folder(argv[0], a.out)) return 1;
    srand((unsigned)a.seed);
    bool good = table_read(&t, &a, &error);
    if (good && (t.rows < 10 || t.classes < 2))
        good = text_fail(&error, "%zu rows of %zu classes are too few; give 10 rows of 2 classes and more",
                         t.rows, t.classes);
    if (!good) fprintf(stderr, "classify_csv: %s\n", error.text);
    if (good) shuffle(&t);
    gpunn_device *dev = good ? gpunn_device_open(.seed = (uint64_t)a.seed, .threads = a.threads) : NULL;
    gpunn_status  status = dev ? run(dev, &t, &a) : GPUNN_ERR_ARGUMENT;
    if (good && status != GPUNN_OK) fprintf(stderr, "classify_csv: %s\n", gpunn_error(dev));
    gpunn_device_close(dev);
    table_free(&t);
    return status != GPUNN_OK;
}
