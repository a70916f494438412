/* networks.c - evaluations of a small network with its generated kernel and without, in turns.
 * tests/bench/networks.py builds it.
 *
 * Usage: networks SPEC.json THREADS BATCH...     prints for each batch: the least microseconds without and
 * with it, and the median over rounds of their ratio */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "gpunn.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef KERNELS
#include KERNELS
#define SET (&KERNEL_SET)
#else
#define SET NULL
#endif

enum { ROUNDS = 9 };

typedef struct net {
    gpunn_device *dev;
    gpunn_tensor *x, *y;
    double        last, best; /* seconds of an evaluation */
} net;

static void fail(const gpunn_device *dev)
{
    fprintf(stderr, "networks: %s\n", gpunn_error(dev));
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static net open_net(const char *path, int threads, const gpunn_kernel_set *set)
{
    net n = {gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = threads, .seed = 1), NULL, NULL, 0,
             INFINITY};
    gpunn_model *model = gpunn_spec_load(n.dev, path);
    if (model == NULL || gpunn_use_kernels(model, set, .policy = GPUNN_KERNELS_STRICT) != GPUNN_OK)
        fail(n.dev);
    n.x = gpunn_input_at(model, 0);
    n.y = gpunn_spec_output(model, 0);
    return n;
}

static void fill(net *n, int64_t batch)
{
    const int64_t count = batch * gpunn_tensor_shape(n->x).dim[1];
    float        *x = (float *)malloc((size_t)count * sizeof *x);
    for (int64_t i = 0; x && i < count; i++) x[i] = (float)(i * 37 % 101) / 50 - 1;
    if (x == NULL || gpunn_write(n->x, x, (size_t)count * sizeof *x) != GPUNN_OK) fail(n->dev);
    free(x);
    n->best = INFINITY;
}

/* Seconds of one evaluation, of as many as take about 20 ms. */
static void measure(net *n)
{
    int    count = 1;
    double seconds = 0;
    while (seconds < 0.02) {
        const double start = now();
        for (int i = 0; i < count; i++)
            if (gpunn_forward(&n->y, 1) != GPUNN_OK) fail(n->dev);
        seconds = now() - start;
        n->last = seconds / count;
        count *= 2;
    }
    if (n->last < n->best) n->best = n->last;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc < 4) return fprintf(stderr, "usage: networks SPEC.json THREADS BATCH...\n"), 2;
    net plain = open_net(argv[1], atoi(argv[2]), NULL), whole = open_net(argv[1], atoi(argv[2]), SET);
    for (int i = 3; i < argc; i++) {
        fill(&plain, atoi(argv[i]));
        fill(&whole, atoi(argv[i]));
        double ratio[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            measure(round % 2 ? &plain : &whole);
            measure(round % 2 ? &whole : &plain);
            ratio[round] = plain.last / whole.last;
        }
        qsort(ratio, ROUNDS, sizeof *ratio, by_size);
        printf("%s %.4g %.4g %.2f\n", argv[i], 1e6 * plain.best, 1e6 * whole.best, ratio[ROUNDS / 2]);
    }
    return 0;
}
