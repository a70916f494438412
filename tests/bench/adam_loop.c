/* adam_loop.c - the floor of the Adam step: its arithmetic over 10 million parameters as one plain loop,
 * compiled with -ffast-math.
 *
 * Usage: adam_loop NAME THREADS      prints the same as bench.c, without memory */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { COUNT = 10000000, REPEATS = 9, CALLS = 20 };

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

int main(int argc, char **argv)
{
    int    threads = argc == 3 ? atoi(argv[2]) : 1, step = 0;
    float *part[4];
    for (int i = 0; i < 4; i++) {
        part[i] = (float *)aligned_alloc(64, COUNT * sizeof(float));
        if (part[i] == NULL || threads < 1) return 1;
        for (int j = 0; j < COUNT; j++) part[i][j] = i < 2 ? (float)(j % 1000) / 500 - 1 : 0;
    }
    float *restrict p = part[0], *restrict g = part[1], *restrict m = part[2], *restrict v = part[3];
    double times[REPEATS + 1];
    for (int r = 0; r <= REPEATS; r++) { /* the first warms up */
        double begin = now();
        for (int call = 0; call < CALLS; call++) {
            step++;
            float rate = 1e-3f / (1 - powf(0.9f, (float)step)),
                  scale = 1 / sqrtf(1 - powf(0.999f, (float)step));
#pragma omp parallel for simd schedule(static) num_threads(threads)
            for (int i = 0; i < COUNT; i++) {
                m[i] = 0.9f * m[i] + 0.1f * g[i];
                v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
                p[i] -= rate * m[i] / (sqrtf(v[i]) * scale + 1e-8f);
            }
        }
        times[r] = (now() - begin) / CALLS;
    }
    qsort(times + 1, REPEATS, sizeof *times, compare);
    printf("adam_loop %d %.6f %.6f 0\n", threads, 1e3 * times[1 + REPEATS / 2], 1e3 * times[1]);
    for (int i = 0; i < 4; i++) free(part[i]);
    return 0;
}
