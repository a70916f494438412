/* What a size that varies costs: the plan of a size that has not been run yet, and going back to one that
 * has.
 *
 * Build: ninja build/plans
 * Run:   build/plans
 *        with BENCH_BRIEF in the environment once each, a test that it runs
 * Shows: both for the 12 encoder layers of BERT-base, whose plan has as many steps at any width: at 12
 * features a run is so short that
 *        the rest is seen. Medians over the sizes, of the first run of each less the second, and, of 3 to 63
 *        sizes in turn, of a run behind one of another size less a run behind one of the same. */
#define _POSIX_C_SOURCE 200809L
#include "gpunn.h"
#include "workloads.h"

enum { SIZES = 64, ROUNDS = 200, WIDTH = 12 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, by_value);
    return times[count / 2];
}

/* Seconds of a run of T tokens. */
static double seconds_of(workload *w, gpunn_tensor *x, int64_t T)
{
    static const float zeros[SIZES * WIDTH];
    const double       begin = now();
    if (gpunn_write(x, zeros, (size_t)(T * WIDTH) * sizeof *zeros) != GPUNN_OK) die(w);
    run(w);
    return now() - begin;
}

int main(void)
{
    static double times[SIZES * ROUNDS];
    const int     rounds = getenv("BENCH_BRIEF") ? 1 : ROUNDS;
    workload      w;
    memset(&w, 0, sizeof w);
    w.dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 1);
    if (w.dev == NULL) die(&w);
    w.model = gpunn_model_create(w.dev);
    gpunn_tensor *x = gpunn_input(w.model, "x", GPUNN_F32, GPUNN_SHAPE(1, gpunn_size(w.model, "T"), WIDTH));
    w.output = x;
    for (int i = 0; i < 12; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "layer%d", i);
        w.output = gpunn_transformer_encoder_layer(w.output, name, .nhead = 2, .dim_feedforward = 4 * WIDTH,
                                                   .dropout = 0);
    }
    if (w.output == NULL || gpunn_set_plan_limit(w.model, SIZES, 0) != GPUNN_OK) die(&w);
    (void)seconds_of(&w, x, SIZES); /* the weights' first use */
    for (int T = 1; T < SIZES; T++) {
        const double first = seconds_of(&w, x, T);
        times[T - 1] = first - seconds_of(&w, x, T);
    }
    printf("a new size      %8.3f ms\n", 1e3 * median(times, SIZES - 1));
    for (int sizes = 4; sizes <= SIZES; sizes *= 2) {
        int count = 0;
        for (int round = 0; round < rounds; round++)
            for (int T = 1; T < sizes; T++) {
                const double behind_another = seconds_of(&w, x, T);
                times[count++] = behind_another - seconds_of(&w, x, T);
            }
        printf("one of %2d sizes %8.3f us\n", sizes - 1, 1e6 * median(times, count));
    }
    gpunn_model_destroy(w.model);
    gpunn_device_close(w.dev);
    return 0;
}
