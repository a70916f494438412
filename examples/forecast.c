/* forecast.c - forecasts a series a day ahead with a GRU, against persistence: all stays as it is, or as
 * it was a day before.
 *
 * Shows: gpunn_gru over windows of a series; a loader whose function cuts each sample out of it;
 *        gpunn_fit; a schedule.
 * Build: cc -O3 -march=native -I. examples/forecast.c -o forecast -lm
 *        nvcc -O3 -arch=native -I. examples/forecast.c gpunn_cuda.cu -o forecast
 * Data:  a CSV file whose last column is the series, --data FILE; without one a year of hourly numbers is
 *        made: the day, the week and the season, a weather that stays for some days, and noise.
 * Run:   ./forecast [--epochs N] ...      (--help explains all options)
 * Expect: on the made series' last fifth, which is not trained on, the mean absolute error of the next 24
 *         hours is about half of persistence's.
 * Time:  about five seconds on two cores.
 * Next:  --data FILE with a series of your own; --hidden 64. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "curves.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { HOURS = 24 * 364, SEEN = 96, AHEAD = 24 };

typedef struct series {
    float *value; /* standardized by the part that is trained on */
    int    count, trained;
    double mean, deviation;
} series;

typedef struct part { /* windows that begin at first, first + 1, ... */
    const series *s;
    int           first, count;
} part;

typedef struct network {
    gpunn_model  *model;
    gpunn_tensor *seen, *next, *forecast, *loss; /* [batch, SEEN, 1], [batch, AHEAD] */
} network;

static float uniform(void)
{
    return (float)rand() / (float)RAND_MAX - 0.5f;
}

static void series_make(series *s)
{
    float weather = 0;
    for (int i = 0; i < s->count; i++) {
        const double day = i / 24.0, hour = i % 24;
        const float  work = (i / 24) % 7 < 5 ? 1.0f : 0.6f, season = (float)(2 * cos(day * 6.2831853 / 364));
        weather = 0.99f * weather + 0.5f * uniform();
        s->value[i] = season + weather +
                      work * (float)(sin((hour - 9) * 6.2831853 / 24) + 0.5 * sin(hour * 6.2831853 / 12)) +
                      0.2f * uniform();
    }
}

/* The last column of each line that ends with a number. */
static bool series_read(series *s, const char *path)
{
    char  line[4096];
    FILE *file = fopen(path, "r");
    s->count = 0;
    while (file && fgets(line, sizeof line, file)) {
        const char *comma = strrchr(line, ','), *from = comma ? comma + 1 : line;
        char       *end;
        const float value = (float)gpunn_strtod(from, &end);
        if (end == from) continue;
        float *grown = (float *)realloc(s->value, (size_t)(s->count + 1) * sizeof *grown);
        if (grown == NULL) break;
        s->value = grown;
        s->value[s->count++] = value;
    }
    if (file) fclose(file);
    return file != NULL;
}

static void series_standardize(series *s)
{
    s->trained = s->count * 4 / 5;
    for (int i = 0; i < s->trained; i++) s->mean += (double)s->value[i] / s->trained;
    for (int i = 0; i < s->trained; i++) s->deviation += pow((double)s->value[i] - s->mean, 2) / s->trained;
    s->deviation = sqrt(s->deviation) + 1e-12;
    for (int i = 0; i < s->count; i++) s->value[i] = (float)(((double)s->value[i] - s->mean) / s->deviation);
}

static gpunn_status cut(void *user, int64_t index, void *const *sample)
{
    const part  *p = (const part *)user;
    const float *from = p->s->value + p->first + index;
    memcpy(sample[0], from, SEEN * sizeof *from);
    memcpy(sample[1], from + SEEN, AHEAD * sizeof *from);
    return GPUNN_OK;
}

/* What it adds to the last number that is seen. */
static network build(gpunn_device *dev, int hidden)
{
    network       net = {.model = gpunn_model_create(dev)};
    gpunn_tensor *state = NULL;
    net.seen = gpunn_input(net.model, "seen", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, SEEN, 1));
    net.next = gpunn_input(net.model, "next", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, AHEAD));
    /* [1, batch, hidden] */
    (void)gpunn_gru(net.seen, "gru", .hidden_size = hidden, .batch_first = true, .h_n = &state);
    state = gpunn_reshape(state, GPUNN_SHAPE(GPUNN_BATCH, hidden));
    gpunn_tensor *last = gpunn_reshape(gpunn_slice(net.seen, 1, SEEN - 1, SEEN, 1),
                                       GPUNN_SHAPE(GPUNN_BATCH, 1));
    net.forecast = gpunn_add(gpunn_linear(state, "out", .out_features = AHEAD), last);
    net.loss = gpunn_l1_loss(net.forecast, net.next);
    return net;
}

/* The mean absolute errors of the forecasts that every hour is as the last one, and as the same hour of the
 * day before. */
static void persistence(const part *p, double error[2])
{
    error[0] = error[1] = 0;
    for (int i = 0; i < p->count; i++)
        for (int h = 0; h < AHEAD; h++) {
            const float *now = p->s->value + p->first + i + SEEN;
            error[0] += fabs((double)(now[h] - now[-1])) / AHEAD / p->count;
            error[1] += fabs((double)(now[h] - now[h - 24])) / AHEAD / p->count;
        }
}

static gpunn_loader *load(const network *net, part *p, bool shuffle)
{
    return gpunn_loader_create(net->model, .fields = {{.input = net->seen}, {.input = net->next}},
                               .count = p->count, .batch_size = 64, .shuffle = shuffle, .drop_last = shuffle,
                               .workers = 1, .load = cut, .user = p);
}

static double seconds(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Trains and prints the errors in the series' own units; *ratio: of persistence's to the network's. */
static gpunn_status run(gpunn_device *dev, const series *s, int hidden, int epochs, double *ratio)
{
    const int        windows = s->trained - SEEN - AHEAD + 1;
    part             parts[2] = {{s, 0, windows}, {s, s->trained - SEEN, s->count - s->trained - AHEAD + 1}};
    const network    net = build(dev, hidden);
    gpunn_loader    *trainer = load(&net, &parts[0], true), *tester = load(&net, &parts[1], false);
    gpunn_optimizer *adam = gpunn_adam(net.model, .lr = 3e-3f);
    gpunn_status     status = gpunn_last_status(dev);
    double           simple[2], start = seconds();
    float            error = 0;
    curves           by_epoch = {.title = "loss"};
    persistence(&parts[1], simple);
    if (status == GPUNN_OK)
        status = gpunn_set_schedule(adam, .type = GPUNN_SCHEDULE_COSINE, .total_steps = epochs);
    if (status == GPUNN_OK)
        status = gpunn_fit(adam, .loss = net.loss, .train = trainer, .epochs = epochs,
                           .on_progress = curves_progress, .user = &by_epoch);
    const double spent = seconds() - start;
    if (status == GPUNN_OK) status = gpunn_evaluate(tester, net.loss, NULL, &error, NULL);
    if (status == GPUNN_OK)
        printf("%.2f ms a step; mean absolute error of %d steps ahead: %.4f; all as the last one %.4f, as 24 "
               "before %.4f\n",
               spent * 1e3 / (epochs * (windows / 64)), AHEAD, (double)error * s->deviation,
               simple[0] * s->deviation, simple[1] * s->deviation);
    *ratio = simple[0] / (double)error;
    gpunn_optimizer_destroy(adam);
    gpunn_loader_destroy(trainer);
    gpunn_loader_destroy(tester);
    gpunn_model_destroy(net.model);
    return status;
}

int main(int argc, char **argv)
{
    int          epochs = 10, hidden = 32, seed = 1, threads = 0;
    const char  *data = NULL;
    double       ratio = 0;
    const option known[] = {
        {"--epochs N", "passes over the series", .number = &epochs, .lowest = 1},
        {"--hidden N", "numbers of the GRU's state", .number = &hidden, .lowest = 1, .highest = 1024},
        {"--seed N", "of initial weights and the made series", .number = &seed},
        {"--threads N", "of the CPU; default: all processors", .number = &threads, .highest = 1024},
        {"--data FILE", "CSV file whose last column is the series", .text = &data}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    srand((unsigned)seed);
    series s = {(float *)malloc(HOURS * sizeof *s.value), HOURS, 0, 0, 0};
    if (s.value && data == NULL) series_make(&s);
    if (data && !series_read(&s, data)) fprintf(stderr, "forecast: '%s' cannot be read\n", data);
    if (s.value == NULL || s.count < 10 * (SEEN + AHEAD)) {
        fprintf(stderr, "forecast: %d numbers are too few; give %d and more\n", s.value ? s.count : 0,
                10 * (SEEN + AHEAD));
        free(s.value);
        return 1;
    }
    series_standardize(&s);
    gpunn_device *dev = gpunn_device_open(.seed = (uint64_t)seed, .threads = threads);
    gpunn_status  status = run(dev, &s, hidden, epochs, &ratio);
    if (status != GPUNN_OK)
        fprintf(stderr, "forecast: %s\n", gpunn_error(dev));
    else
        printf("%.2f times better than persistence\n", ratio);
    gpunn_device_close(dev);
    free(s.value);
    return status != GPUNN_OK;
}
