/* sdf.c - learns the signed distance to a surface, a ring, from points on it alone (implicit geometric
 * regularization; Gropp et al. 2020).
 *
 * Shows: gpunn_grad: the gradient of a network by its input in a loss, which asks that it be 1 long
 *        everywhere (the eikonal equation) and along the surface's normals on it; three losses in one
 *        pass, each readable; a picture.
 * Build: cc -O3 -march=native -I. examples/sdf.c -o sdf -lm
 *            with stb_image_write.h (apt-get install libstb-dev)
 *        nvcc -O3 -arch=native -I. examples/sdf.c gpunn_cuda.cu -o sdf
 * Run:   ./sdf [--steps N] ...      (--help explains all options)
 * Expect: after 2000 steps the mean error against the ring's known distance is below 0.02 in a cube of
 *         side 2; sdf.png in out/ shows lines of equal distance in the slice through its middle.
 * Time:  about five seconds on two cores.
 * Next:  points and normals of a surface of your own in write_points. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "grid.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define RADIUS 0.55f /* of the ring, */
#define TUBE 0.25f   /* and of what it is bent from */
enum { LAYERS = 4, POINTS = 512, SIDE = 256, CHECKED = 4096 };

typedef struct problem {
    gpunn_tensor *surface, *normal, *anywhere; /* [batch, 3] */
    gpunn_tensor *distance;                    /* [batch, 1], of anywhere */
    gpunn_tensor *on_surface, *along, *eikonal, *loss;
} problem;

/* The network at points; the second time with the weights of the first. */
static gpunn_tensor *network(gpunn_model *model, gpunn_tensor *points, const char *name, int hidden)
{
    char          layer[32], shared[2][32];
    gpunn_tensor *h = points;
    for (int i = 0; i < LAYERS; i++) {
        (void)snprintf(layer, sizeof layer, "%s%d", name, i);
        (void)snprintf(shared[0], sizeof shared[0], "f%d.weight", i);
        (void)snprintf(shared[1], sizeof shared[1], "f%d.bias", i);
        h = gpunn_linear(h, layer, .out_features = i + 1 < LAYERS ? hidden : 1,
                         .weight = gpunn_find(model, shared[0]), .bias = gpunn_find(model, shared[1]));
        if (i + 1 < LAYERS) h = gpunn_softplus(h, 10, 20);
    }
    return h;
}

static gpunn_tensor *points(gpunn_model *model, const char *name)
{
    return gpunn_input(model, name, GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
}

static problem build(gpunn_model *model, int hidden)
{
    problem       p = {.surface = points(model, "surface"),
                       .normal = points(model, "normal"),
                       .anywhere = points(model, "anywhere")};
    gpunn_tensor *at_surface = network(model, p.surface, "f", hidden),
                 *slope = gpunn_grad(at_surface, p.surface);
    p.distance = network(model, p.anywhere, "g", hidden);
    gpunn_tensor *beside[] = {slope, p.normal}, *steepness = gpunn_grad(p.distance, p.anywhere);
    p.on_surface = gpunn_keep(gpunn_expr("mean(abs(x))", &at_surface, 1));
    p.along = gpunn_keep(gpunn_expr("mean(sum((x - y) ** 2, 1))", beside, 2));
    p.eikonal = gpunn_keep(gpunn_expr("mean((sqrt(sum(x ** 2, 1) + 1e-12) - 1) ** 2)", &steepness, 1));
    gpunn_tensor *all[] = {p.on_surface, p.along, p.eikonal};
    p.loss = gpunn_expr("10 * x + y + z", all, 3);
    return p;
}

static float uniform(float low, float high)
{
    return low + (high - low) * (float)rand() / (float)RAND_MAX;
}

/* To the ring, negative inside. */
static float distance(const float x[3])
{
    return hypotf(hypotf(x[0], x[1]) - RADIUS, x[2]) - TUBE;
}

/* New points on the ring with their normals, and others: each second one near the ring, the rest in the whole
 * cube. */
static gpunn_status write_points(const problem *p)
{
    static float surface[POINTS][3], normal[POINTS][3], anywhere[POINTS][3];
    for (int i = 0; i < POINTS; i++) {
        const float around = uniform(0, 6.2831853f), about = uniform(0, 6.2831853f),
                    far = RADIUS + TUBE * cosf(about);
        const float n[3] = {cosf(about) * cosf(around), cosf(about) * sinf(around), sinf(about)};
        const float x[3] = {far * cosf(around), far * sinf(around), TUBE * sinf(about)};
        for (int k = 0; k < 3; k++) {
            surface[i][k] = x[k], normal[i][k] = n[k];
            anywhere[i][k] = i % 2 ? x[k] + uniform(-0.1f, 0.1f) : uniform(-1, 1);
        }
    }
    gpunn_status status = gpunn_write(p->surface, surface, sizeof surface);
    if (status == GPUNN_OK) status = gpunn_write(p->normal, normal, sizeof normal);
    return status == GPUNN_OK ? gpunn_write(p->anywhere, anywhere, sizeof anywhere) : status;
}

static double seconds(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Of a training step with its points, in milliseconds, over all steps but the first, which plans. */
static gpunn_status train(gpunn_optimizer *adam, const problem *p, int steps, double *milliseconds)
{
    gpunn_status status = GPUNN_OK;
    double       start = seconds();
    for (int step = 1; step <= steps && status == GPUNN_OK; step++) {
        status = write_points(p);
        if (status == GPUNN_OK) status = gpunn_train_step(adam, p->loss);
        if (status == GPUNN_OK) status = gpunn_schedule_step(adam, 0);
        if (step == 1) start = seconds();
        if (status == GPUNN_OK && step * 10 % steps == 0)
            printf("step %5d: on the surface %.2e, normals %.2e, eikonal %.2e\n", step,
                   (double)gpunn_item(p->on_surface), (double)gpunn_item(p->along),
                   (double)gpunn_item(p->eikonal));
    }
    *milliseconds = (seconds() - start) * 1e3 / (steps > 1 ? steps - 1 : 1);
    return status;
}

static gpunn_status distances(const problem *p, float (*at)[3], int count, float *values)
{
    gpunn_tensor *output = p->distance;
    gpunn_status  status = gpunn_write(p->anywhere, at, (size_t)count * sizeof *at);
    if (status == GPUNN_OK) status = gpunn_forward(&output, 1);
    return status == GPUNN_OK ? gpunn_read(output, values, (size_t)count * sizeof *values) : status;
}

/* The mean error over random points of the cube. */
static gpunn_status error_of(const problem *p, double *error)
{
    static float at[CHECKED][3], values[CHECKED];
    for (int i = 0; i < CHECKED; i++)
        for (int k = 0; k < 3; k++) at[i][k] = uniform(-1, 1);
    gpunn_status status = distances(p, at, CHECKED, values);
    *error = 0;
    for (int i = 0; i < CHECKED; i++) *error += fabs((double)(values[i] - distance(at[i]))) / CHECKED;
    return status;
}

/* The slice where z is 0: darker inside, with a line at each tenth and a black one at 0. */
static gpunn_status write_slice(const problem *p, const char *path)
{
    static float at[SIDE * SIDE][3], values[SIDE * SIDE];
    for (int i = 0; i < SIDE * SIDE; i++) {
        at[i][0] = 2 * ((float)(i % SIDE) + 0.5f) / SIDE - 1;
        at[i][1] = 1 - 2 * ((float)(i / SIDE) + 0.5f) / SIDE;
    }
    gpunn_status status = distances(p, at, SIDE * SIDE, values);
    for (int i = 0; i < SIDE * SIDE; i++) {
        const float line = fabsf(values[i] * 10 - rintf(values[i] * 10)) / 10;
        values[i] = fabsf(values[i]) < 0.012f ? 0 : (values[i] < 0 ? 0.6f : 1) - (line < 0.006f ? 0.25f : 0);
    }
    if (status != GPUNN_OK || grid_write(path, values, 1, SIDE, SIDE, 1, 0, 1)) return status;
    fprintf(stderr, "sdf: '%s' cannot be written\n", path);
    return GPUNN_ERR_IO;
}

int main(int argc, char **argv)
{
    int          steps = 2000, hidden = 64, seed = 1, threads = 0;
    double       milliseconds = 0, error = 0;
    const char  *out = "out";
    char         path[1024];
    const option known[] = {
        {"--steps N", "training steps", .number = &steps, .lowest = 1, .highest = 1e7},
        {"--hidden N", "features of a layer", .number = &hidden, .lowest = 1, .highest = 4096},
        {"--seed N", "of initial weights and points", .number = &seed},
        {"--threads N", "of the CPU; default 0: all processors", .number = &threads, .highest = 1024},
        {"--out FOLDER", "folder for sdf.png, made where there is none", .text = &out}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    if (!options_make_folder(argv[0], out)) return 1;
    (void)snprintf(path, sizeof path, "%s/sdf.png", out);
    srand((unsigned)seed);
    gpunn_device    *dev = gpunn_device_open(.seed = (uint64_t)seed, .threads = threads);
    gpunn_model     *model = gpunn_model_create(dev);
    const problem    p = build(model, hidden);
    gpunn_optimizer *adam = gpunn_adam(model, .lr = 2e-3f);
    gpunn_status     status = gpunn_set_schedule(adam, .type = GPUNN_SCHEDULE_COSINE, .total_steps = steps);
    if (status == GPUNN_OK) status = train(adam, &p, steps, &milliseconds);
    if (status == GPUNN_OK) status = error_of(&p, &error);
    if (status == GPUNN_OK) printf("%.3f ms a step; mean error %.4f\n", milliseconds, error);
    if (status == GPUNN_OK) status = write_slice(&p, path);
    if (status == GPUNN_OK) printf("wrote %s\n", path);
    if (gpunn_last_status(dev) != GPUNN_OK) fprintf(stderr, "sdf: %s\n", gpunn_error(dev));
    gpunn_optimizer_destroy(adam);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return status != GPUNN_OK;
}
