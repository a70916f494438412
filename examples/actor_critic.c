/* actor_critic.c - learns to balance a pole on a cart by proximal policy optimization (PPO; Schulman et
 * al. 2017).
 *
 * Shows: an actor that draws its actions in the graph (gpunn_rand), a critic beside it, three losses in
 *        one pass, each readable; short runs in turn with the program's own simulation.
 * Build: cc -O3 -march=native -I. examples/actor_critic.c -o actor_critic -lm
 *        nvcc -O3 -arch=native -I. examples/actor_critic.c gpunn_cuda.cu -o actor_critic
 * Run:   ./actor_critic [--steps N] ...      (--help explains all options)
 * Expect: the last 100 episodes reach a mean of 475 of 500 steps, Gymnasium's mark for CartPole-v1, after
 *         60,000 to 90,000 steps of the cart, in about a second; where they do not, it ends with status 1.
 * Time:  about a second on two cores.
 * Next:  put a simulation of your own in the place of cart_reset and cart_push (cart.h). */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "cart.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define GAMMA 0.98f /* what a reward is worth a step later */
#define LAMBDA 0.8f /* of generalized advantage estimation */
enum {
    CARTS = 8,
    HORIZON = 32,
    SAMPLES = CARTS * HORIZON,
    STATE = CART_STATE,
    HIDDEN = 64,
    EPOCHS = 20,
    LONGEST = CART_LONGEST,
    LAST = 100
};

/* ---- the cart ---- */
typedef struct cart {
    float state[STATE];
    int   steps;
} cart;

static float uniform(float low, float high)
{
    return low + (high - low) * (float)rand() / (float)RAND_MAX;
}

static void cart_reset(cart *c)
{
    c->steps = 0;
    for (int i = 0; i < STATE; i++) c->state[i] = uniform(-0.05f, 0.05f);
}

/* ---- the network ---- */
typedef struct network {
    gpunn_model *model;
    /* [batch, 4]; all others [batch, 1], taken i64 */
    gpunn_tensor *state, *taken, *before, *advantage, *target;
    /* acting: an action that is drawn, its log-probability */
    gpunn_tensor *chosen, *likelihood, *value;
    gpunn_tensor *policy, *critic, *entropy, *loss;
} network;

static gpunn_tensor *layers(gpunn_tensor *x, const char *const names[3], int out)
{
    for (int i = 0; i < 2; i++) x = gpunn_tanh(gpunn_linear(x, names[i], .out_features = HIDDEN));
    return gpunn_linear(x, names[2], .out_features = out);
}

static gpunn_tensor *column(gpunn_model *model, const char *name, gpunn_dtype dtype)
{
    return gpunn_input(model, name, dtype, GPUNN_SHAPE(GPUNN_BATCH, 1));
}

static network build(gpunn_device *dev)
{
    static const char *const actor[] = {"actor.0", "actor.1", "actor.2"}, *const critic[] = {"critic.0",
                                                                                             "critic.1",
                                                                                             "critic.2"};
    network net = {.model = gpunn_model_create(dev)};
    net.state = gpunn_input(net.model, "state", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, STATE));
    net.taken = column(net.model, "taken", GPUNN_I64), net.before = column(net.model, "before", GPUNN_F32);
    net.advantage = column(net.model, "advantage", GPUNN_F32),
    net.target = column(net.model, "target", GPUNN_F32);
    gpunn_tensor *logp = gpunn_log_softmax(layers(net.state, actor, 2), 1);
    net.value = layers(net.state, critic, 1);
    /* the winner is drawn by the probabilities (Gumbel) */
    gpunn_tensor *race[] = {logp, gpunn_rand_like(logp)};
    net.chosen = gpunn_argmax(gpunn_expr("x - log(-log(y))", race, 2), 1, true);
    net.likelihood = gpunn_gather(logp, 1, net.chosen);
    gpunn_tensor *now[] = {gpunn_gather(logp, 1, net.taken), net.before, net.advantage};
    net.policy = gpunn_keep(gpunn_expr("r = exp(x - y); -mean(min(r * z, clamp(r, 0.8, 1.2) * z))", now, 3));
    net.critic = gpunn_keep(gpunn_mse_loss(net.value, net.target));
    net.entropy = gpunn_keep(gpunn_expr("-mean(sum(exp(x) * x, 1))", &logp, 1));
    gpunn_tensor *all[] = {net.policy, net.critic, net.entropy};
    net.loss = gpunn_expr("x + 0.5 * y - 0.001 * z", all, 3);
    return net;
}

/* ---- what the carts go through ---- */
typedef struct rollout {
    float state[HORIZON][CARTS][STATE], likelihood[HORIZON][CARTS], value[HORIZON + 1][CARTS],
        reward[HORIZON][CARTS];
    int64_t taken[HORIZON][CARTS];
    bool    ended[HORIZON][CARTS];
    float   advantage[HORIZON][CARTS], target[HORIZON][CARTS];
} rollout;

typedef struct record {
    int    lengths[LAST], episodes;
    double mean; /* of the last 100 */
} record;

static void record_add(record *r, int length)
{
    double sum = 0;
    int    count = ++r->episodes < LAST ? r->episodes : LAST;
    r->lengths[(r->episodes - 1) % LAST] = length;
    for (int i = 0; i < count; i++) sum += r->lengths[i];
    r->mean = sum / count;
}

/* What the critic expects from states; with chosen, also what the actor does there. */
static gpunn_status ask(const network *net, const float *state, int count, float *value, int64_t *chosen,
                        float *likelihood)
{
    gpunn_tensor *outputs[] = {net->value, net->chosen, net->likelihood};
    gpunn_status  status = gpunn_write(net->state, state, (size_t)count * STATE * sizeof *state);
    if (status == GPUNN_OK) status = gpunn_forward(outputs, chosen ? 3 : 1);
    if (status == GPUNN_OK) status = gpunn_read(net->value, value, (size_t)count * sizeof *value);
    if (status == GPUNN_OK && chosen)
        status = gpunn_read(net->chosen, chosen, (size_t)count * sizeof *chosen);
    return status == GPUNN_OK && chosen
               ? gpunn_read(net->likelihood, likelihood, (size_t)count * sizeof *likelihood)
               : status;
}

/* Every step is worth 1; where only the time is over, also what the critic expects to come. */
static gpunn_status push(const network *net, cart *c, rollout *r, int t, int i, record *past)
{
    gpunn_status status = GPUNN_OK;
    const bool   fell = cart_push(c->state, r->taken[t][i]);
    float        rest = 0;
    c->steps++;
    r->ended[t][i] = fell || c->steps == LONGEST;
    if (r->ended[t][i] && !fell) status = ask(net, c->state, 1, &rest, NULL, NULL);
    r->reward[t][i] = 1 + GAMMA * rest;
    if (!r->ended[t][i]) return status;
    record_add(past, c->steps);
    cart_reset(c);
    return status;
}

static void states_of(const cart carts[CARTS], float state[CARTS][STATE])
{
    for (int i = 0; i < CARTS; i++) memcpy(state[i], carts[i].state, sizeof state[i]);
}

static gpunn_status act(const network *net, cart carts[CARTS], rollout *r, record *past)
{
    gpunn_status status = GPUNN_OK;
    float        last[CARTS][STATE];
    for (int t = 0; t < HORIZON && status == GPUNN_OK; t++) {
        states_of(carts, r->state[t]);
        status = ask(net, r->state[t][0], CARTS, r->value[t], r->taken[t], r->likelihood[t]);
        for (int i = 0; i < CARTS && status == GPUNN_OK; i++) status = push(net, &carts[i], r, t, i, past);
    }
    states_of(carts, last);
    return status == GPUNN_OK ? ask(net, last[0], CARTS, r->value[HORIZON], NULL, NULL) : status;
}

/* How much better than the critic expected each action was, by generalized advantage estimation, and what it
 * should expect. */
static void judge(rollout *r)
{
    double sum = 0, square = 0;
    for (int i = 0; i < CARTS; i++) {
        float advantage = 0;
        for (int t = HORIZON - 1; t >= 0; t--) {
            const float on = r->ended[t][i] ? 0 : GAMMA;
            advantage = r->reward[t][i] + on * r->value[t + 1][i] - r->value[t][i] + on * LAMBDA * advantage;
            r->advantage[t][i] = advantage, r->target[t][i] = advantage + r->value[t][i];
            sum += (double)advantage, square += (double)advantage * (double)advantage;
        }
    }
    const double mean = sum / SAMPLES, deviation = sqrt(fmax(0, square / SAMPLES - mean * mean)) + 1e-8;
    for (int t = 0; t < HORIZON; t++)
        for (int i = 0; i < CARTS; i++)
            r->advantage[t][i] = (float)(((double)r->advantage[t][i] - mean) / deviation);
}

static gpunn_status learn(const network *net, gpunn_optimizer *adam, const rollout *r)
{
    gpunn_status status = gpunn_write(net->state, r->state, sizeof r->state);
    if (status == GPUNN_OK) status = gpunn_write(net->taken, r->taken, sizeof r->taken);
    if (status == GPUNN_OK) status = gpunn_write(net->before, r->likelihood, sizeof r->likelihood);
    if (status == GPUNN_OK) status = gpunn_write(net->advantage, r->advantage, sizeof r->advantage);
    if (status == GPUNN_OK) status = gpunn_write(net->target, r->target, sizeof r->target);
    for (int epoch = 0; epoch < EPOCHS && status == GPUNN_OK; epoch++)
        status = gpunn_train_step(adam, net->loss);
    return status;
}

static double seconds(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void report(const network *net, const record *past, int steps, double spent)
{
    printf("step %6d, episode %4d: %5.1f of %d steps on the average of the last 100; losses %.4f, %.2f, "
           "entropy %.3f; %.1f s\n",
           steps, past->episodes, past->mean, LONGEST, (double)gpunn_item(net->policy),
           (double)gpunn_item(net->critic), (double)gpunn_item(net->entropy), spent);
}

int main(int argc, char **argv)
{
    static rollout r;
    static cart    carts[CARTS];
    record         past = {{0}, 0, 0};
    int            most = 300000, seed = 1, threads = 1, steps = 0;
    double         spent[2] = {0, 0};
    const option   known[] = {
          {"--steps N", "of the carts, at most", .number = &most, .lowest = 1},
          {"--seed N", "of initial weights, actions and where the carts start", .number = &seed},
          {"--threads N", "of the CPU", .number = &threads, .lowest = 1, .highest = 1024}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    srand((unsigned)seed);
    gpunn_device    *dev = gpunn_device_open(.seed = (uint64_t)seed, .threads = threads);
    const network    net = build(dev);
    gpunn_optimizer *adam = gpunn_adam(net.model, .lr = 1e-3f);
    gpunn_status     status = gpunn_last_status(dev);
    gpunn_set_clip_norm(adam, 0.5f);
    for (int i = 0; i < CARTS; i++) cart_reset(&carts[i]);
    while (status == GPUNN_OK && steps < most && (past.mean < 475 || past.episodes < LAST)) {
        const double start = seconds();
        status = act(&net, carts, &r, &past);
        const double acted = seconds();
        judge(&r);
        if (status == GPUNN_OK) status = learn(&net, adam, &r);
        spent[0] += acted - start, spent[1] += seconds() - acted;
        steps += SAMPLES;
        if (status == GPUNN_OK && steps / SAMPLES % 40 == 0) report(&net, &past, steps, spent[0] + spent[1]);
    }
    const int rounds = steps / SAMPLES;
    if (status != GPUNN_OK)
        fprintf(stderr, "actor_critic: %s\n", gpunn_error(dev));
    else
        printf("%.1f of %d after %d steps; %.3f ms to act and %.3f ms to learn from %d steps\n", past.mean,
               LONGEST, steps, spent[0] * 1e3 / rounds, spent[1] * 1e3 / rounds, SAMPLES);
    gpunn_optimizer_destroy(adam);
    gpunn_model_destroy(net.model);
    gpunn_device_close(dev);
    return status != GPUNN_OK || past.mean < 475;
}
