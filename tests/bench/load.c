/* What loading weights takes: seconds, and the most memory that the process had, beside the weights' own
 * size.
 *
 * Build: ninja build/load
 * Run:   build/load /tmp/w.safetensors 400       writes a file of so many MiB, loads it, and leaves it there
 * Shows: a model that is new takes its weights piece by piece; one whose weights are in use holds them twice
 * for a moment; one for
 *        evaluation keeps them in 16 bits, of which the file then has as many.
 *
 * Each line is a process of its own, since the most that a process had never falls. */
#define _GNU_SOURCE
#include "gpunn.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef enum job { SAVE, LOAD, LOAD_AGAIN, LOAD_NARROW, SAVE_NARROW, JOBS } job;

/* Parameters of so many MiB in F32, each of which begins with its number if they are to be saved, else with
 * 0. */
static gpunn_model *model_of(gpunn_device *dev, long mib, job what)
{
    const bool   narrow = what == LOAD_NARROW || what == SAVE_NARROW;
    gpunn_model *model = gpunn_model_create(
        dev, .precision = narrow ? GPUNN_PRECISION_BF16 : GPUNN_PRECISION_F32, .inference = narrow);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(1, 1024));
    for (int i = 0; i < 8; i++) {
        char       name[16], layer[16];
        gpunn_init init = {GPUNN_INIT_CONSTANT, what == SAVE ? (float)i : 0, 0};
        (void)snprintf(name, sizeof name, "weight%d", i);
        (void)snprintf(layer, sizeof layer, "layer%d", i);
        (void)gpunn_linear(x, layer,
                           .weight = gpunn_parameter(model, name, GPUNN_SHAPE(mib * 32, 1024), init),
                           .no_bias = true);
    }
    return model;
}

/* Whether the last parameter, which stands last in the file too, is what was saved. */
static bool is_right(gpunn_model *model)
{
    gpunn_tensor *last = gpunn_parameter_at(model, 7);
    size_t        bytes = gpunn_tensor_bytes(last);
    float        *values = malloc(bytes);
    bool          right = values && gpunn_read(last, values, bytes) == GPUNN_OK;
    for (size_t i = 0; right && i < bytes / sizeof *values; i++) right = values[i] == 7;
    free(values);
    return right;
}

static int measure(job what, const char *path, long mib)
{
    static const char *const names[] = {"gpunn_save", "gpunn_load, a new model", "gpunn_load, weights in use",
                                        "gpunn_load as BF16", "gpunn_save of BF16"};
    gpunn_device            *dev = gpunn_device_open(.seed = 1);
    gpunn_model             *model = model_of(dev, mib, what);
    const bool               saves = what == SAVE || what == SAVE_NARROW;
    gpunn_status status = what == LOAD_AGAIN || what == SAVE_NARROW ? gpunn_load(model, path) : GPUNN_OK;
    const double start = now();
    if (status == GPUNN_OK) status = saves ? gpunn_save(model, path) : gpunn_load(model, path);
    const double  seconds = now() - start;
    struct rusage used;
    (void)getrusage(RUSAGE_SELF, &used);
    const double peak = (double)used.ru_maxrss / 1024;
    if (status != GPUNN_OK || !is_right(model))
        printf("%s: %s\n", names[what], status ? gpunn_error(dev) : "wrong values");
    if (status == GPUNN_OK)
        printf("%-27s %6.2f s   %6.0f MiB, %.2f times the weights\n", names[what], seconds, peak,
               peak / (double)mib);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return status != GPUNN_OK;
}

int main(int argc, char **argv)
{
    const long mib = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
    int        failed = 0;
    if (mib < 1) {
        (void)fprintf(stderr, "usage: load FILE MIB\n");
        return 2;
    }
    for (int what = SAVE; what < JOBS && !failed; what++) {
        (void)fflush(stdout);
        const pid_t child = fork();
        if (child == 0) return measure((job)what, argv[1], mib);
        if (child < 0 || waitpid(child, &failed, 0) != child) failed = 1;
    }
    return failed != 0;
}
