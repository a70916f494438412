/* pinn.c - a physics-informed network: solves Burgers' equation u_t + u u_x = v u_xx without a grid and
 * without data inside.
 *
 * Shows: gpunn_laplacian and the gradient that it makes on the way, second and first derivatives of a
 *        network by its inputs in a loss that is trained; two losses, each readable; layers that share
 *        weights; a schedule.
 * Build: cc -O3 -march=native -I. examples/pinn.c -o pinn -lm
 *        nvcc -O3 -arch=native -I. examples/pinn.c gpunn_cuda.cu -o pinn
 * Run:   ./pinn [--steps N] ...      (--help explains all options)
 * Expect: the residual falls; in the end the largest error against the known solution, a wave that travels
 *         at speed 1/2, is below 0.02 where the solution goes from 0 to 1.
 * Time:  about five seconds on two cores.
 * Next:  an equation of your own: its residual stands in build(), its solution in solution(). */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define VISCOSITY 0.05f
enum { LAYERS = 4, POINTS = 256, GRID = 41 };

typedef struct problem {
    gpunn_tensor *inside, *edge, *edge_u; /* [batch, 2]: x from -1 to 1 and t from 0 to 1; [batch, 1] */
    /* inside; the mean square of what the equation leaves, and of the error at the edge */
    gpunn_tensor *u, *residual, *boundary;
    gpunn_tensor *loss;
} problem;

static float solution(float x, float t)
{
    return 0.5f - 0.5f * tanhf((x - 0.5f * t) / (4 * VISCOSITY));
}

/* The network at points; the second time with the weights of the first. */
static gpunn_tensor *network(gpunn_model *model, gpunn_tensor *points, const char *name, int hidden)
{
    char          layer[32], shared[2][32];
    gpunn_tensor *h = points;
    for (int i = 0; i < LAYERS; i++) {
        (void)snprintf(layer, sizeof layer, "%s%d", name, i);
        (void)snprintf(shared[0], sizeof shared[0], "u%d.weight", i);
        (void)snprintf(shared[1], sizeof shared[1], "u%d.bias", i);
        h = gpunn_linear(h, layer, .out_features = i + 1 < LAYERS ? hidden : 1,
                         .weight = gpunn_find(model, shared[0]), .bias = gpunn_find(model, shared[1]));
        if (i + 1 < LAYERS) h = gpunn_tanh(h);
    }
    return h;
}

static problem build(gpunn_model *model, int hidden)
{
    problem p;
    p.inside = gpunn_input(model, "inside", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    p.edge = gpunn_input(model, "edge", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    p.edge_u = gpunn_input(model, "edge_u", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    p.u = network(model, p.inside, "u", hidden);
    /* by x, not by t */
    gpunn_tensor *slope, *u_xx = gpunn_laplacian(p.u, p.inside, .coordinates = 1, .gradient = &slope);
    gpunn_tensor *u_x = gpunn_slice(slope, 1, 0, 1, 1), *u_t = gpunn_slice(slope, 1, 1, 2, 1);
    gpunn_tensor *left = gpunn_sub(gpunn_add(u_t, gpunn_mul(p.u, u_x)), gpunn_mul_scalar(u_xx, VISCOSITY));
    p.residual = gpunn_keep(gpunn_mean(gpunn_square(left), GPUNN_ALL, false));
    p.boundary = gpunn_keep(gpunn_mse_loss(network(model, p.edge, "edge", hidden), p.edge_u));
    p.loss = gpunn_add(p.residual, p.boundary);
    return p;
}

/* Marsaglia's xorshift: rand() takes a lock for each number, 6 % of a step of so small a network. */
static uint32_t random_state = 2463534242u;

static float uniform(float low, float high)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return low + (high - low) * (float)(random_state >> 8) / 16777216.0f;
}

/* New random points: inside, and where u is given, at t = 0 and at x = -1 and 1. */
static gpunn_status write_points(const problem *p)
{
    static float inside[POINTS][2], edge[POINTS][2], u[POINTS];
    for (int i = 0; i < POINTS; i++) {
        inside[i][0] = uniform(-1, 1), inside[i][1] = uniform(0, 1);
        edge[i][0] = i % 2 ? uniform(-1, 1) : i % 4 ? 1.0f : -1.0f, edge[i][1] = i % 2 ? 0 : uniform(0, 1);
        u[i] = solution(edge[i][0], edge[i][1]);
    }
    gpunn_status status = gpunn_write(p->inside, inside, sizeof inside);
    if (status == GPUNN_OK) status = gpunn_write(p->edge, edge, sizeof edge);
    return status == GPUNN_OK ? gpunn_write(p->edge_u, u, sizeof u) : status;
}

/* Of a training step with its points, in milliseconds, over all steps but the first, which plans. */
static gpunn_status train(gpunn_optimizer *adam, const problem *p, int steps, double *milliseconds)
{
    struct timespec from, to;
    gpunn_status    status = GPUNN_OK;
    (void)timespec_get(&from, TIME_UTC);
    for (int step = 1; step <= steps && status == GPUNN_OK; step++) {
        status = write_points(p);
        if (status == GPUNN_OK) status = gpunn_train_step(adam, p->loss);
        if (status == GPUNN_OK) status = gpunn_schedule_step(adam, 0);
        if (step == 1) (void)timespec_get(&from, TIME_UTC);
        if (status == GPUNN_OK && step * 10 % steps == 0)
            printf("step %5d: residual %.2e, edge %.2e\n", step, (double)gpunn_item(p->residual),
                   (double)gpunn_item(p->boundary));
    }
    (void)timespec_get(&to, TIME_UTC);
    *milliseconds = 1e3 * ((double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec)) /
                    (steps > 1 ? steps - 1 : 1);
    return status;
}

/* The largest error over a grid of all x and t; NaN after a failure. */
static float error_of(const problem *p)
{
    static float  points[GRID * GRID][2], u[GRID * GRID];
    float         largest = 0;
    gpunn_tensor *output = p->u;
    for (int i = 0; i < GRID * GRID; i++) {
        points[i][0] = 2.0f * (float)(i % GRID) / (GRID - 1) - 1;
        points[i][1] = (float)(i / GRID) / (GRID - 1);
    }
    if (gpunn_write(p->inside, points, sizeof points) != GPUNN_OK || gpunn_forward(&output, 1) != GPUNN_OK ||
        gpunn_read(output, u, sizeof u) != GPUNN_OK)
        return NAN;
    for (int i = 0; i < GRID * GRID; i++)
        largest = fmaxf(largest, fabsf(u[i] - solution(points[i][0], points[i][1])));
    return largest;
}

int main(int argc, char **argv)
{
    int          steps = 4000, hidden = 32, seed = 1, threads = 0;
    double       milliseconds = 0;
    const option known[] = {
        {"--steps N", "training steps", .number = &steps, .lowest = 1, .highest = 1e7},
        {"--hidden N", "features of a layer", .number = &hidden, .lowest = 1, .highest = 4096},
        {"--seed N", "of initial weights and points", .number = &seed},
        {"--threads N", "of the CPU; default 0: all processors", .number = &threads, .highest = 1024}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    random_state ^= (uint32_t)seed << 8; /* never 0, where it would stay */
    gpunn_device    *dev = gpunn_device_open(.seed = (uint64_t)seed, .threads = threads);
    gpunn_model     *model = gpunn_model_create(dev);
    const problem    p = build(model, hidden);
    gpunn_optimizer *adam = gpunn_adam(model, .lr = 3e-3f);
    gpunn_status     status = gpunn_set_schedule(adam, .type = GPUNN_SCHEDULE_COSINE, .total_steps = steps);
    if (status == GPUNN_OK) status = train(adam, &p, steps, &milliseconds);
    const float error = status == GPUNN_OK ? error_of(&p) : NAN;
    if (isnan(error))
        fprintf(stderr, "pinn: %s\n", gpunn_error(dev));
    else
        printf("%.3f ms a step; largest error %.4f\n", milliseconds, (double)error);
    gpunn_optimizer_destroy(adam);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return isnan(error);
}
