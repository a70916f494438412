/* online.c - a network learns the heat flux of a gas from the solver that computes it, while it runs.
 *
 * Shows: learning inside a solver whose fields never leave the device: one source for the CPU and for CUDA,
 *        the solver's stream (gpunn_device_open(.stream)), a loader of its memory (.on_device).
 * Build: cc -O3 -march=native -I. examples/online.c -o online -lm
 *        nvcc -O3 -arch=native -std=c++17 -I. -x cu examples/online.c gpunn_cuda.cu -o online
 * Run:   ./online [--steps N] ...      (--help explains all options)
 * Expect: at first the network misses all of the flux, after 400 steps of the solver less than 10 % of it.
 * Time:  about a second on one core.
 * Next:  a solver of your own: its arrays to the loader, its stream to gpunn_device_open. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { CELLS = 256, SPEEDS = 32, MOMENTS = 4, SEEN = 5, THREADS = 64, BLOCKS = CELLS / THREADS, BATCH = 64 };
/* Of a particle; between two collisions of it; of a step. The domain is [0, 1) and periodic. */
#define FASTEST 6.0f
#define COLLISION 0.02f
#define STEP (0.5f / (FASTEST * CELLS))

/* ---- the solver: Boltzmann's equation with BGK's collisions, f_t + v f_x = (M - f) / COLLISION ---- */
typedef struct solver { /* all arrays are memory of the device */
    float *f, *next;    /* [CELLS][SPEEDS]: density of particles by place and velocity */
    float *moments;     /* [CELLS][MOMENTS]: density, velocity, temperature, heat flux */
    float *seen;        /* [CELLS][SEEN]: what the network sees: three moments and the slopes of two */
    float *flux;        /* [CELLS]: what it learns, heat flux / COLLISION */
    void  *stream;
} solver;

#if defined(__CUDACC__) || defined(ONLINE_CUDA)
#include <cuda_runtime.h>
#define DEVICE GPUNN_DEVICE_CUDA
#define EACH_CELL(name)                                                \
    static __global__ void name(solver s)                              \
    {                                                                  \
        name##_cell(&s, (int)(blockIdx.x * blockDim.x + threadIdx.x)); \
    }
#define RUN(name, s) name<<<BLOCKS, THREADS, 0, (cudaStream_t)(s)->stream>>>(*(s))
#define CELL static __device__ void
#define SHARED static __device__

static bool take(float **memory, size_t count)
{
    return cudaMalloc((void **)memory, count * sizeof **memory) == cudaSuccess;
}

static void give(float *memory)
{
    (void)cudaFree(memory);
}

static bool stream_make(solver *s)
{
    return cudaStreamCreateWithFlags((cudaStream_t *)&s->stream, cudaStreamNonBlocking) == cudaSuccess;
}

static void stream_end(const solver *s)
{
    if (s->stream) (void)cudaStreamDestroy((cudaStream_t)s->stream);
}
#else
#define DEVICE GPUNN_DEVICE_CPU
#define EACH_CELL(name)                                     \
    static void name(solver s)                              \
    {                                                       \
        for (int i = 0; i < CELLS; i++) name##_cell(&s, i); \
    }
#define RUN(name, s) name(*(s))
#define CELL static void
#define SHARED static

static bool take(float **memory, size_t count)
{
    *memory = (float *)calloc(count, sizeof **memory);
    return *memory != NULL;
}

static void give(float *memory)
{
    free(memory);
}

static bool stream_make(solver *s)
{
    s->stream = NULL;
    return true;
}

static void stream_end(const solver *s)
{
    (void)s;
}
#endif

SHARED float velocity(int k)
{
    return FASTEST * (2.0f * (float)k + 1 - SPEEDS) / SPEEDS;
}

SHARED float maxwellian(const float *m, float v)
{
    return m[0] / sqrtf(6.2831853f * m[2]) * expf(-(v - m[1]) * (v - m[1]) / (2 * m[2]));
}

/* A gas at rest, denser here and hotter there. */
CELL begin_cell(const solver *s, int i)
{
    const float x = 6.2831853f * (float)i / CELLS;
    const float m[3] = {1 + 0.3f * sinf(x), 0.2f * sinf(2 * x), 1 + 0.3f * cosf(x)};
    for (int k = 0; k < SPEEDS; k++) s->f[i * SPEEDS + k] = maxwellian(m, velocity(k));
}

CELL measure_cell(const solver *s, int i)
{
    const float *f = s->f + i * SPEEDS, width = 2 * FASTEST / SPEEDS;
    float        sum[3] = {0, 0, 0}, *m = s->moments + i * MOMENTS;
    for (int k = 0; k < SPEEDS; k++) sum[0] += f[k] * width, sum[1] += f[k] * width * velocity(k);
    m[0] = sum[0], m[1] = sum[1] / sum[0], m[2] = m[3] = 0;
    for (int k = 0; k < SPEEDS; k++) {
        const float c = velocity(k) - m[1];
        m[2] += f[k] * width * c * c / m[0], m[3] += f[k] * width * c * c * c / 2;
    }
}

/* Streams, upwind, and collides. */
CELL advance_cell(const solver *s, int i)
{
    const float *m = s->moments + i * MOMENTS;
    for (int k = 0; k < SPEEDS; k++) {
        const float v = velocity(k), f = s->f[i * SPEEDS + k];
        const int   from = v > 0 ? (i + CELLS - 1) % CELLS : (i + 1) % CELLS;
        const float slope = fabsf(v) * (f - s->f[from * SPEEDS + k]) * CELLS;
        s->next[i * SPEEDS + k] = f + STEP * ((maxwellian(m, v) - f) / COLLISION - slope);
    }
}

CELL show_cell(const solver *s, int i)
{
    const float *before = s->moments + (i + CELLS - 1) % CELLS * MOMENTS, *m = s->moments + i * MOMENTS,
                *after = s->moments + (i + 1) % CELLS * MOMENTS;
    float *seen = s->seen + i * SEEN;
    for (int k = 0; k < 3; k++) seen[k] = m[k];
    for (int k = 1; k < 3; k++) seen[2 + k] = (after[k] - before[k]) * (CELLS / 2);
    s->flux[i] = m[3] / COLLISION;
}

EACH_CELL(begin)
EACH_CELL(measure)
EACH_CELL(advance)
EACH_CELL(show)

static bool solver_make(solver *s)
{
    memset(s, 0, sizeof *s);
    if (!stream_make(s) || !take(&s->f, CELLS * SPEEDS) || !take(&s->next, CELLS * SPEEDS) ||
        !take(&s->moments, CELLS * MOMENTS) || !take(&s->seen, CELLS * SEEN) || !take(&s->flux, CELLS))
        return false;
    RUN(begin, s);
    RUN(measure, s);
    return true;
}

static void solver_step(solver *s)
{
    float *const last = s->f;
    RUN(advance, s);
    s->f = s->next, s->next = last;
    RUN(measure, s);
    RUN(show, s);
}

static void solver_free(const solver *s)
{
    float *const all[] = {s->f, s->next, s->moments, s->seen, s->flux};
    for (int i = 0; i < 5; i++) give(all[i]);
    stream_end(s);
}

/* ---- the network that learns beside it ---- */
typedef struct learner {
    gpunn_model     *model;
    gpunn_tensor    *loss, *missed; /* missed: share of the batch's squared flux */
    gpunn_loader    *cells;
    gpunn_optimizer *optimizer;
} learner;

static learner learner_make(gpunn_device *dev, const solver *s, float lr)
{
    learner       l = {gpunn_model_create(dev), NULL, NULL, NULL, NULL};
    gpunn_tensor *seen = gpunn_input(l.model, "seen", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, SEEN)), *h = seen;
    gpunn_tensor *flux = gpunn_input(l.model, "flux", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    h = gpunn_tanh(gpunn_linear(h, "0", .out_features = 32));
    h = gpunn_tanh(gpunn_linear(h, "1", .out_features = 32));
    gpunn_tensor *both[] = {gpunn_linear(h, "2", .out_features = 1), flux};
    l.loss = gpunn_mse_loss(both[0], flux);
    l.missed = gpunn_keep(gpunn_expr("sum((x - y) * (x - y)) / sum(y * y)", both, 2));
    l.cells = gpunn_loader_create(
        l.model, .fields = {{.input = seen, .samples = s->seen}, {.input = flux, .samples = s->flux}},
        .count = CELLS, .batch_size = BATCH, .shuffle = true, .on_device = true);
    l.optimizer = gpunn_adam(l.model, .lr = lr);
    return l;
}

/* Learns once from each cell as it is after the solver's step. */
static gpunn_status learn(const learner *l, gpunn_device *dev)
{
    gpunn_status status = GPUNN_OK;
    while (status == GPUNN_OK && gpunn_next(l->cells)) status = gpunn_train_step(l->optimizer, l->loss);
    return status == GPUNN_OK ? gpunn_last_status(dev) : status;
}

int main(int argc, char **argv)
{
    int          steps = 400, threads = 0;
    float        lr = 0.003f;
    solver       s;
    const option known[] = {{"--steps N", "of the solver", .number = &steps, .lowest = 1},
                            {"--lr RATE", "of Adam", .real = &lr, .lowest = 0},
                            {"--threads N", "of the CPU", .number = &threads, .lowest = 0}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    if (!solver_make(&s)) return fprintf(stderr, "online: no memory for the solver\n"), solver_free(&s), 1;
    gpunn_device *dev = gpunn_device_open(.type = DEVICE, .threads = threads, .stream = s.stream);
    const learner l = learner_make(dev, &s, lr);
    gpunn_status  status = gpunn_last_status(dev);
    for (int step = 1; step <= steps && status == GPUNN_OK; step++) {
        solver_step(&s);
        status = learn(&l, dev);
        if (status == GPUNN_OK && (step == 1 || step * 8 % steps < 8))
            printf("step %4d: misses %.1f %% of the flux\n", step, 100 * sqrt((double)gpunn_item(l.missed)));
    }
    if (status != GPUNN_OK) fprintf(stderr, "online: %s\n", gpunn_error(dev));
    gpunn_loader_destroy(l.cells);
    gpunn_optimizer_destroy(l.optimizer);
    gpunn_model_destroy(l.model);
    gpunn_device_close(dev);
    solver_free(&s);
    return status != GPUNN_OK;
}
