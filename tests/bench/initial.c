/* What initial values cost: gpunn_set_init of a parameter beside a plain loop over the same numbers, in turns.
 *
 * Build: ninja build/initial
 * Run:   build/initial [MILLIONS]
 * Shows: for normal and uniform numbers the medians of both, in seconds for 160 million numbers of one core,
 *        and the median over the rounds of their ratio. Both also write their numbers to the parameter. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "gpunn.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 9 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

/* Philox4x32-10 of counter i / 4, then Box-Muller or a product. */
static void plain_loop(gpunn_init init, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i += 4) {
        uint32_t c[4] = {(uint32_t)(i / 4), 0, 0, 0x80000000u}, k[2] = {1, 0};
        for (int round = 0; round < 10; round++, k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u) {
            const uint64_t p = (uint64_t)0xD2511F53u * c[0], q = (uint64_t)0xCD9E8D57u * c[2];
            c[0] = (uint32_t)(q >> 32) ^ c[1] ^ k[0];
            c[1] = (uint32_t)q;
            c[2] = (uint32_t)(p >> 32) ^ c[3] ^ k[1];
            c[3] = (uint32_t)p;
        }
        for (int j = 0; j < 4; j += init.kind == GPUNN_INIT_NORMAL ? 2 : 1) {
            if (init.kind == GPUNN_INIT_UNIFORM) {
                out[i + j] = (float)(init.a + (init.b - init.a) * ((double)(c[j] >> 8) / 16777216.0));
                continue;
            }
            const double radius = sqrt(-2 * log(((double)c[j] + 1) / 4294967296.0));
            const double angle = (double)c[j + 1] * (6.283185307179586 / 4294967296.0);
            out[i + j] = (float)(init.a + init.b * radius * cos(angle));
            out[i + j + 1] = (float)(init.a + init.b * radius * sin(angle));
        }
    }
}

static int compare(const char *name, gpunn_init init, int64_t count)
{
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1, .threads = 1);
    gpunn_model  *model = gpunn_model_create(dev);
    gpunn_tensor *p = gpunn_parameter(model, "p", GPUNN_SHAPE(count), (gpunn_init){GPUNN_INIT_ZEROS, 0, 0});
    float        *values = malloc((size_t)count * sizeof *values);
    double        plain[ROUNDS], ours[ROUNDS], ratio[ROUNDS];
    const double  scale = 160e6 / (double)count;
    bool          good = values && gpunn_read(p, values, (size_t)count * sizeof *values) == GPUNN_OK;
    for (int i = 0; i < ROUNDS && good; i++) {
        const double begin = now();
        plain_loop(init, count, values);
        good = gpunn_write(p, values, (size_t)count * sizeof *values) == GPUNN_OK;
        const double between = now();
        good = good && gpunn_set_init(p, init) == GPUNN_OK;
        plain[i] = scale * (between - begin);
        ours[i] = scale * (now() - between);
        ratio[i] = plain[i] / ours[i];
    }
    if (good)
        printf("%-8s plain loop %.3f s, gpunn_set_init %.3f s, ratio %.2f\n", name, median(plain),
               median(ours), median(ratio));
    else
        fprintf(stderr, "initial: %s\n", gpunn_error(dev));
    free(values);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    const int64_t count = (argc > 1 ? atoll(argv[1]) : 16) * 1000000;
    return compare("normal", (gpunn_init){GPUNN_INIT_NORMAL, 0, 1}, count) ||
           compare("uniform", (gpunn_init){GPUNN_INIT_UNIFORM, -1, 1}, count);
}
