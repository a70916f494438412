/* ppo.c - proximal policy optimization (Schulman et al. 2017) in many environments at once.
 *
 * Shows: 1,024 environments, stepped by threads of the program; a network that acts in all of them in one
 *        run; masks of actions that are not allowed; continuous actions; minibatches of what happened; with
 *        --recurrent a GRU that remembers, with a state for each environment that starts anew with it;
 *        self-play against snapshots of the network, each a model of its own.
 * Build: cc -O3 -march=native -I. examples/ppo.c -o ppo -lm -lpthread
 *        nvcc -O3 -arch=native -I. examples/ppo.c gpunn_cuda.cu -o ppo
 * Run:   ./ppo [--world cart|maze|pendulum|blind|duel] ... (--help explains all options)
 *        ./ppo --environments 128 --horizon 64 --batch 1024      (solves the cart in 150,000 steps)
 * Expect: the last 100 carts keep their poles for all 500 steps after about 1,200,000 steps of all
 *         environments; the maze is left with a mean return of 0.75 after 1,700,000; the pendulum swings up
 *         with a mean return above -170 after 4,000,000. With --recurrent the blind cart keeps its pole for
 *         450 steps after 1,000,000; without a memory it never gets beyond 60. In the duel a return is 1 for
 *         a win against the network as it began: 0.95 after 300,000 steps.
 * Time:  about 3, 5 and 9 seconds on one core; for the blind cart less than 30, for the duel 3.
 * Next:  add a world of your own to `worlds`: how it begins, what an action does, what can be seen. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "cart.h"
#include "curves.h"
#include "options.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { STATE = 8, SEEN = 16, CHOICES = 4, HIDDEN = 64, LAST = 100, STEPPERS = 64, RIVALS = 4 };

/* ---- the worlds ---- */
typedef struct world {
    const char *name;
    int         seen;              /* numbers of an observation */
    int         choices, controls; /* actions to choose from, or numbers of a continuous action */
    int         longest;           /* steps of an episode */
    float       gamma, lambda;     /* discount of rewards, and of generalized advantage estimation */
    float       lr, entropy;       /* entropy: its weight in the loss */
    float       scale;             /* of rewards, for the critic */
    float       goal;              /* mean return at which training ends */
    void (*reset)(float *state, uint32_t *random);
    /* Makes one step and returns its reward. control: of a continuous world. */
    float (*step)(float *state, int64_t choice, const float *control, bool *ended);
    /* allowed[choices]: 1 or 0 */
    void (*look)(const float *state, float *seen, float *allowed);
    /* What the other player sees, who chooses state[RIVAL]; NULL: there is none. */
    void (*look_rival)(const float *state, float *seen, float *allowed);
} world;
enum { RIVAL = STATE - 1 };

static float uniform(uint32_t *random, float low, float high)
{
    *random ^= *random << 13, *random ^= *random >> 17, *random ^= *random << 5;
    return low + (high - low) * (float)(*random >> 8) / 16777216.0f;
}

static void cart_reset(float *state, uint32_t *random)
{
    for (int i = 0; i < CART_STATE; i++) state[i] = uniform(random, -0.05f, 0.05f);
}

static float cart_step(float *state, int64_t choice, const float *control, bool *ended)
{
    (void)control;
    *ended = cart_push(state, choice);
    return 1;
}

static void cart_look(const float *state, float *seen, float *allowed)
{
    memcpy(seen, state, CART_STATE * sizeof *seen);
    allowed[0] = allowed[1] = 1;
}

/* A cart whose speeds cannot be seen. A network needs a memory to balance it. */
static void blind_look(const float *state, float *seen, float *allowed)
{
    seen[0] = state[0], seen[1] = state[2];
    allowed[0] = allowed[1] = 1;
}

/* A maze of rooms: fetch the key, then leave by the door. State: column and row of the walker, the key and
 * the door; whether the key is held. A step costs 0.02, the key and the door are worth 0.5 each. */
enum { MAZE = 9 };
static const char maze[MAZE][MAZE + 1] = {"....#....", "....#....", ".........", "....#....", "##.###.##",
                                          "....#....", ".........", "....#....", "....#...."};

static bool maze_open(float column, float row)
{
    return column >= 0 && row >= 0 && column < MAZE && row < MAZE && maze[(int)row][(int)column] == '.';
}

static void maze_reset(float *state, uint32_t *random)
{
    for (int i = 0; i < 6; i += 2) do {
            state[i] = floorf(uniform(random, 0, MAZE));
            state[i + 1] = floorf(uniform(random, 0, MAZE));
        } while (!maze_open(state[i], state[i + 1]));
    state[6] = 0;
}

static const float ways[CHOICES][2] = {{1, 0}, {-1, 0}, {0, 1}, {0, -1}};

static float maze_step(float *state, int64_t choice, const float *control, bool *ended)
{
    (void)control;
    state[0] += ways[choice][0], state[1] += ways[choice][1];
    const bool at_key = state[6] == 0 && state[0] == state[2] && state[1] == state[3];
    if (at_key) state[6] = 1;
    *ended = state[6] == 1 && state[0] == state[4] && state[1] == state[5];
    return (at_key ? 0.5f : 0) + (*ended ? 0.5f : 0) - 0.02f;
}

static void maze_look(const float *state, float *seen, float *allowed)
{
    memcpy(seen, state, 7 * sizeof *seen);
    const float *next = state[6] == 1 ? state + 4 : state + 2;
    seen[7] = next[0] - state[0], seen[8] = next[1] - state[1];
    for (int i = 0; i < CHOICES; i++) {
        allowed[i] = maze_open(state[0] + ways[i][0], state[1] + ways[i][1]);
        seen[9 + i] = allowed[i];
    }
}

/* Pendulum-v1 of Gymnasium. State: angle, 0 at the top, and its speed. */
static void pendulum_reset(float *state, uint32_t *random)
{
    state[0] = uniform(random, -3.1415927f, 3.1415927f);
    state[1] = uniform(random, -1, 1);
}

static float pendulum_step(float *state, int64_t choice, const float *control, bool *ended)
{
    const float torque = fmaxf(-2, fminf(2, 2 * control[0])), angle = remainderf(state[0], 6.2831853f);
    const float cost = angle * angle + 0.1f * state[1] * state[1] + 0.001f * torque * torque;
    (void)choice;
    state[1] = fmaxf(-8, fminf(8, state[1] + 0.05f * (15 * sinf(angle) + 3 * torque)));
    state[0] = angle + 0.05f * state[1];
    *ended = false;
    return -cost;
}

static void pendulum_look(const float *state, float *seen, float *allowed)
{
    (void)allowed;
    seen[0] = cosf(state[0]), seen[1] = sinf(state[0]), seen[2] = state[1];
}

/* A race to a coin by two players, who move at the same time. If both want the same place, they stay. State:
 * columns and rows of the player, of the other one, and of the coin; the other's choice. */
enum { FIELD = 7 };

static void duel_reset(float *state, uint32_t *random)
{
    do
        for (int i = 0; i < 6; i++) state[i] = floorf(uniform(random, 0, FIELD));
    while ((state[0] == state[2] && state[1] == state[3]) || (state[0] == state[4] && state[1] == state[5]) ||
           (state[2] == state[4] && state[3] == state[5]));
}

static float duel_step(float *state, int64_t choice, const float *control, bool *ended)
{
    const int64_t choices[2] = {choice, (int64_t)state[RIVAL]};
    float         to[4];
    (void)control;
    for (int i = 0; i < 4; i++) to[i] = state[i] + ways[choices[i / 2]][i % 2];
    if (to[0] != to[2] || to[1] != to[3]) memcpy(state, to, sizeof to);
    const bool won = state[0] == state[4] && state[1] == state[5];
    *ended = won || (state[2] == state[4] && state[3] == state[5]);
    return won ? 1 : 0;
}

/* own: where the player's place is in the state. */
static void duel_view(const float *state, int own, float *seen, float *allowed)
{
    const float *me = state + own, *other = state + 2 - own;
    for (int i = 0; i < 2; i++)
        seen[i] = me[i], seen[2 + i] = other[i] - me[i], seen[4 + i] = state[4 + i] - me[i];
    for (int i = 0; i < CHOICES; i++) {
        const float column = me[0] + ways[i][0], row = me[1] + ways[i][1];
        allowed[i] = column >= 0 && row >= 0 && column < FIELD && row < FIELD;
    }
}

static void duel_look(const float *state, float *seen, float *allowed)
{
    duel_view(state, 0, seen, allowed);
}

static void duel_look_rival(const float *state, float *seen, float *allowed)
{
    duel_view(state, 2, seen, allowed);
}

static const world worlds[] = {{.name = "cart",
                                .seen = CART_STATE,
                                .choices = 2,
                                .longest = CART_LONGEST,
                                .gamma = 0.99f,
                                .lambda = 0.95f,
                                .lr = 3e-3f,
                                .entropy = 0.001f,
                                .scale = 0.02f,
                                .goal = 500,
                                .reset = cart_reset,
                                .step = cart_step,
                                .look = cart_look},
                               {.name = "maze",
                                .seen = 13,
                                .choices = 4,
                                .longest = 100,
                                .gamma = 0.97f,
                                .lambda = 0.95f,
                                .lr = 3e-3f,
                                .entropy = 0.003f,
                                .scale = 1,
                                .goal = 0.75f,
                                .reset = maze_reset,
                                .step = maze_step,
                                .look = maze_look},
                               {.name = "pendulum",
                                .seen = 3,
                                .controls = 1,
                                .longest = 200,
                                .gamma = 0.95f,
                                .lambda = 0.9f,
                                .lr = 2e-3f,
                                .scale = 0.02f,
                                .goal = -170,
                                .reset = pendulum_reset,
                                .step = pendulum_step,
                                .look = pendulum_look},
                               {.name = "duel",
                                .seen = 6,
                                .choices = 4,
                                .longest = 30,
                                .gamma = 0.95f,
                                .lambda = 0.95f,
                                .lr = 3e-3f,
                                .entropy = 0.01f,
                                .scale = 1,
                                .goal = 0.95f,
                                .reset = duel_reset,
                                .step = duel_step,
                                .look = duel_look,
                                .look_rival = duel_look_rival}};

/* The world of that number. The fourth is the cart whose speeds cannot be seen. */
static world world_at(int number)
{
    world w = worlds[number == 4 ? 3 : number % 3];
    if (number == 3) w.name = "blind", w.seen = 2, w.goal = 450, w.look = blind_look;
    return w;
}

/* ---- the network ---- */
typedef struct network {
    const world *w;
    gpunn_model *model;
    int64_t      length; /* of the sequences of a recurrent network, of a size that varies; else 0 */
    /* [batch, ...], or [length, batch, ...]: what is seen; 1 for the choices allowed there. For learning,
     * [batch, 1] but `taken`: what was done, its log-probability and the value expected before, its
     * advantage, the return. anew: 1 where an episode begins. */
    gpunn_tensor *seen, *allowed, *taken, *before, *expected, *advantage, *target, *anew;
    gpunn_tensor *memory;                             /* [1, environments, HIDDEN]; NULL: not recurrent */
    gpunn_tensor *value, *chosen, *likelihood, *loss; /* chosen: an action that is drawn */
} network;

static gpunn_tensor *layers(gpunn_tensor *x, const char *const names[3], int out)
{
    for (int i = 0; i < 2; i++) x = gpunn_tanh(gpunn_linear(x, names[i], .out_features = HIDDEN));
    return gpunn_linear(x, names[2], .out_features = out);
}

static gpunn_tensor *columns(const network *net, const char *name, gpunn_dtype dtype, int count)
{
    return gpunn_input(net->model, name, dtype,
                       net->length ? GPUNN_SHAPE(net->length, GPUNN_BATCH, count)
                                   : GPUNN_SHAPE(GPUNN_BATCH, count));
}

/* The steps of all sequences, one a row. */
static gpunn_tensor *rows_of(const network *net, gpunn_tensor *x)
{
    if (net->length == 0) return x;
    return gpunn_reshape(x, GPUNN_SHAPE(gpunn_size(net->model, "T * batch"), gpunn_tensor_shape(x).dim[2]));
}

/* What is remembered of all that was seen in the episode. Each environment has a row of the state. */
static gpunn_tensor *remember(network *net, int envs)
{
    net->anew = columns(net, "anew", GPUNN_F32, 1);
    gpunn_tensor *reset = gpunn_reshape(net->anew, GPUNN_SHAPE(net->length, GPUNN_BATCH));
    gpunn_tensor *y = gpunn_gru(net->seen, "memory", .hidden_size = HIDDEN, .stateful = true, .reset = reset,
                                .capacity = envs);
    net->memory = gpunn_find(net->model, "memory.h");
    return rows_of(net, y);
}

/* Draws by the probabilities (Gumbel). Returns the log-probability of `taken`. *entropy is [batch, 1]. */
static gpunn_tensor *choose(network *net, gpunn_tensor *logits, gpunn_tensor **entropy)
{
    gpunn_tensor *masked[] = {logits, rows_of(net, net->allowed)};
    gpunn_tensor *logp = gpunn_log_softmax(gpunn_expr("x + (y - 1) * 1e9", masked, 2), 1);
    gpunn_tensor *race[] = {logp, gpunn_rand_like(logp)};
    net->chosen = gpunn_argmax(gpunn_expr("x - log(-log(y))", race, 2), 1, true);
    net->likelihood = gpunn_gather(logp, 1, net->chosen);
    *entropy = gpunn_neg(gpunn_sum(gpunn_expr("exp(x) * x", &logp, 1), GPUNN_AXES(1), true));
    return gpunn_gather(logp, 1, rows_of(net, net->taken));
}

static gpunn_tensor *gaussian(gpunn_tensor *action, gpunn_tensor *mean, gpunn_tensor *log_std)
{
    gpunn_tensor *in[] = {action, mean, log_std};
    return gpunn_sum(gpunn_expr("d = (x - y) * exp(-z); -0.5 * d * d - z - 0.9189385", in, 3), GPUNN_AXES(1),
                     true);
}

/* The same for a normal distribution, whose deviations are parameters. */
static gpunn_tensor *control(network *net, gpunn_tensor *mean, gpunn_tensor **entropy)
{
    const gpunn_init start = {GPUNN_INIT_CONSTANT, -0.5f, 0};
    gpunn_tensor *log_std = gpunn_parameter(net->model, "log_std", GPUNN_SHAPE(1, net->w->controls), start);
    gpunn_tensor *draw[] = {mean, log_std, gpunn_randn_like(mean)};
    net->chosen = gpunn_expr("x + exp(y) * z", draw, 3);
    net->likelihood = gaussian(net->chosen, mean, log_std);
    *entropy = gpunn_sum(gpunn_add_scalar(log_std, 1.4189385f), GPUNN_AXES(1), true);
    return gaussian(rows_of(net, net->taken), mean, log_std);
}

static network build(gpunn_device *dev, const world *w, bool recurrent, int envs)
{
    static const char *const actor[] = {"actor.0", "actor.1", "actor.2"}, *const critic[] = {"critic.0",
                                                                                             "critic.1",
                                                                                             "critic.2"};
    network       net = {.w = w, .model = gpunn_model_create(dev)};
    gpunn_tensor *entropy = NULL;
    const int     actions = w->choices ? w->choices : w->controls;
    if (recurrent) net.length = gpunn_size(net.model, "T");
    net.seen = columns(&net, "seen", GPUNN_F32, w->seen);
    if (w->choices) net.allowed = columns(&net, "allowed", GPUNN_F32, w->choices);
    net.taken = columns(&net, "taken", w->choices ? GPUNN_I64 : GPUNN_F32, w->choices ? 1 : w->controls);
    net.before = columns(&net, "before", GPUNN_F32, 1);
    net.expected = columns(&net, "expected", GPUNN_F32, 1);
    net.advantage = columns(&net, "advantage", GPUNN_F32, 1);
    net.target = columns(&net, "target", GPUNN_F32, 1);
    gpunn_tensor *known = recurrent ? remember(&net, envs) : net.seen;
    net.value = layers(known, critic, 1);
    gpunn_tensor *policy = layers(known, actor, actions),
                 *now = w->choices ? choose(&net, policy, &entropy) : control(&net, policy, &entropy);
    gpunn_tensor *kept[] = {now, rows_of(&net, net.before), rows_of(&net, net.advantage)};
    gpunn_tensor *worth[] = {net.value, rows_of(&net, net.expected), rows_of(&net, net.target)};
    gpunn_tensor *losses[] = {
        gpunn_expr("r = exp(x - y); -mean(min(r * z, clamp(r, 0.8, 1.2) * z))", kept, 3),
        gpunn_expr("a = x - z; b = y + clamp(x - y, -0.2, 0.2) - z; mean(max(a * a, b * b))", worth, 3),
        gpunn_mul_scalar(gpunn_mean(entropy, GPUNN_ALL, false), w->entropy)};
    net.loss = gpunn_expr("x + 0.5 * y - z", losses, 3);
    return net;
}

/* ---- what happens, in `envs` environments over `horizon` steps ---- */
typedef struct rollout {
    const world *w;
    int          envs, horizon;
    float       *state;                                        /* [envs][STATE] */
    uint32_t    *random;                                       /* [envs] */
    int         *steps;                                        /* [envs]: of the episode; -1: it has ended */
    float       *sum;                                          /* [envs]: return of the episode */
    float       *seen;                                         /* [horizon + 1][envs][w->seen], normalized */
    float       *allowed;                                      /* [horizon + 1][envs][w->choices] */
    int64_t     *choice;                                       /* [horizon][envs] */
    float       *control;                                      /* [horizon][envs][w->controls] */
    float       *before, *value, *reward, *advantage, *target; /* [horizon + 1][envs] */
    float       *anew;     /* [horizon + 1][envs]: 1 where an episode begins */
    float *memory, *later; /* [envs][HIDDEN]: what is remembered at the first and at the last observation */
    unsigned char *ended;  /* [horizon][envs]: one of the constants below */
    /* [horizon * envs]: the steps to learn from, or the environments, in the order of minibatches; the steps
     * of a minibatch */
    int   *order, *picked;
    double mean[SEEN], squares[SEEN], count; /* of what has been seen */
} rollout;
enum { GOES_ON, ENDED, OUT_OF_TIME, BEGINS }; /* BEGINS: no step was made, a new episode began */

static void *reserve(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL) fprintf(stderr, "ppo: out of memory\n"), exit(1);
    return memory;
}

static rollout rollout_make(const world *w, int envs, int horizon, int seed)
{
    const size_t rows = ((size_t)horizon + 1) * (size_t)envs, each = (size_t)envs;
    rollout      r = {.w = w, .envs = envs, .horizon = horizon};
    r.state = (float *)reserve(each * STATE, sizeof(float)), r.sum = (float *)reserve(each, sizeof(float));
    r.random = (uint32_t *)reserve(each, sizeof(uint32_t)), r.steps = (int *)reserve(each, sizeof(int));
    r.seen = (float *)reserve(rows * (size_t)w->seen, sizeof(float));
    r.allowed = (float *)reserve(rows * CHOICES, sizeof(float));
    r.choice = (int64_t *)reserve(rows, sizeof(int64_t));
    r.control = (float *)reserve(rows * (size_t)w->controls, sizeof(float));
    float **const each_step[] = {&r.before, &r.value, &r.reward, &r.advantage, &r.target};
    for (int i = 0; i < 5; i++) *each_step[i] = (float *)reserve(rows, sizeof(float));
    r.ended = (unsigned char *)reserve(rows, 1), r.order = (int *)reserve(rows, sizeof(int));
    r.picked = (int *)reserve(rows, sizeof(int)), r.anew = (float *)reserve(rows, sizeof(float));
    r.memory = (float *)reserve(each * HIDDEN, sizeof(float));
    r.later = (float *)reserve(each * HIDDEN, sizeof(float));
    for (int i = 0; i < envs; i++) {
        r.random[i] = (uint32_t)(seed + 1) * 2654435761u ^ (uint32_t)(i + 1) * 2246822519u;
        w->reset(r.state + (size_t)i * STATE, &r.random[i]);
        w->look(r.state + (size_t)i * STATE, r.seen + i * w->seen, r.allowed + i * w->choices);
    }
    return r;
}

static void rollout_free(rollout *r)
{
    void *const all[] = {r->state,   r->sum,    r->random, r->steps,  r->seen,      r->allowed, r->choice,
                         r->control, r->before, r->value,  r->reward, r->advantage, r->target,  r->ended,
                         r->order,   r->picked, r->anew,   r->memory, r->later};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Environment i makes step t, or begins anew, and looks around. */
static void rollout_step(rollout *r, int t, int i)
{
    const world *w = r->w;
    const int    at = t * r->envs + i, next = at + r->envs;
    float *const state = r->state + (size_t)i * STATE;
    bool         ended = false;
    if (r->steps[i] < 0) {
        w->reset(state, &r->random[i]);
        r->steps[i] = 0, r->sum[i] = 0, r->reward[at] = 0, r->ended[at] = BEGINS;
    } else {
        const float reward = w->step(state, r->choice[at], r->control + at * w->controls, &ended);
        r->sum[i] += reward, r->steps[i]++, r->reward[at] = reward * w->scale;
        r->ended[at] = ended ? ENDED : r->steps[i] == w->longest ? OUT_OF_TIME : GOES_ON;
        if (r->ended[at] != GOES_ON) r->steps[i] = -1;
    }
    r->anew[next] = r->ended[at] == BEGINS;
    w->look(state, r->seen + next * w->seen, r->allowed + next * w->choices);
}

/* ---- the threads that step ---- */
typedef struct steppers {
    rollout        *r;
    int             count, t, round, busy;
    bool            ends;
    pthread_t       thread[STEPPERS];
    pthread_mutex_t lock;
    pthread_cond_t  begin, done;
} steppers;
typedef struct stepper {
    steppers *all;
    int       index;
} stepper;

static void steppers_part(const steppers *all, int index)
{
    const int64_t envs = all->r->envs;
    for (int i = (int)(envs * index / all->count); i < (int)(envs * (index + 1) / all->count); i++)
        rollout_step(all->r, all->t, i);
}

static void *stepper_main(void *user)
{
    stepper        *own = (stepper *)user;
    steppers *const all = own->all;
    for (int round = 0;;) {
        pthread_mutex_lock(&all->lock);
        while (all->round == round && !all->ends) pthread_cond_wait(&all->begin, &all->lock);
        round = all->round;
        const bool ends = all->ends;
        pthread_mutex_unlock(&all->lock);
        if (ends) return NULL;
        steppers_part(all, own->index);
        pthread_mutex_lock(&all->lock);
        if (--all->busy == 0) pthread_cond_signal(&all->done);
        pthread_mutex_unlock(&all->lock);
    }
}

/* This thread steps the first part. */
static void steppers_begin(steppers *all, stepper *own, rollout *r, int count)
{
    all->r = r, all->count = count;
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->begin, NULL), pthread_cond_init(&all->done, NULL);
    for (int i = 1; i < count; i++) {
        own[i].all = all, own[i].index = i;
        if (pthread_create(&all->thread[i], NULL, stepper_main, &own[i]) != 0)
            fprintf(stderr, "ppo: no thread %d of %d\n", i + 1, count), exit(1);
    }
}

static void steppers_run(steppers *all, int t)
{
    pthread_mutex_lock(&all->lock);
    all->t = t, all->busy = all->count - 1, all->round++;
    pthread_cond_broadcast(&all->begin);
    pthread_mutex_unlock(&all->lock);
    steppers_part(all, 0);
    pthread_mutex_lock(&all->lock);
    while (all->busy > 0) pthread_cond_wait(&all->done, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

static void steppers_end(steppers *all)
{
    pthread_mutex_lock(&all->lock);
    all->ends = true;
    pthread_cond_broadcast(&all->begin);
    pthread_mutex_unlock(&all->lock);
    for (int i = 1; i < all->count; i++) pthread_join(all->thread[i], NULL);
}

/* ---- acting ---- */
typedef struct record {
    float  sums[LAST];
    long   episodes;
    double mean; /* return of the last LAST episodes */
} record;

static void record_add(record *past, float sum)
{
    const long count = ++past->episodes < LAST ? past->episodes : LAST;
    past->sums[(past->episodes - 1) % LAST] = sum;
    past->mean = 0;
    for (long i = 0; i < count; i++) past->mean += (double)past->sums[i] / (double)count;
}

/* Subtracts the mean of everything seen so far and divides by its deviation. */
static void standardize(const rollout *r, float *seen)
{
    const int n = r->w->seen;
    for (int k = 0; k < n; k++) {
        const double mean = r->mean[k] / r->count, variance = r->squares[k] / r->count - mean * mean;
        const double deviation = sqrt(fmax(variance, 0) + 1e-8);
        for (int i = 0; i < r->envs; i++) {
            const double x = ((double)seen[i * n + k] - mean) / deviation;
            seen[i * n + k] = (float)fmax(-10, fmin(10, x));
        }
    }
}

static void normalize(rollout *r, int t)
{
    const int    n = r->w->seen;
    float *const seen = r->seen + (size_t)t * (size_t)r->envs * (size_t)n;
    r->count += r->envs;
    for (int i = 0; i < r->envs * n; i++) {
        const double x = (double)seen[i];
        r->mean[i % n] += x, r->squares[i % n] += x * x;
    }
    standardize(r, seen);
}

/* Writes rows of an input, of sequences of that length. */
static gpunn_status put(const network *net, gpunn_tensor *to, const void *from, int rows, int length)
{
    const gpunn_shape shape = gpunn_tensor_shape(to);
    return gpunn_write_shape(to, from,
                             net->length ? GPUNN_SHAPE(length, rows / length, shape.dim[2])
                                         : GPUNN_SHAPE(rows, shape.dim[1]));
}

/* The values of step t and, but for the last, what is done there. */
static gpunn_status ask(const network *net, rollout *r, int t)
{
    const world  *w = net->w;
    const size_t  rows = (size_t)r->envs, at = (size_t)t * rows;
    gpunn_tensor *outputs[] = {net->value, net->chosen, net->likelihood};
    const int     count = t < r->horizon ? 3 : 1;
    gpunn_status  status = put(net, net->seen, r->seen + at * (size_t)w->seen, r->envs, 1);
    if (status == GPUNN_OK && net->allowed)
        status = put(net, net->allowed, r->allowed + at * (size_t)w->choices, r->envs, 1);
    if (status == GPUNN_OK && net->anew) status = put(net, net->anew, r->anew + at, r->envs, 1);
    if (status == GPUNN_OK) status = gpunn_forward(outputs, count);
    if (status == GPUNN_OK) status = gpunn_read(net->value, r->value + at, rows * sizeof(float));
    if (status != GPUNN_OK || count == 1) return status;
    status = gpunn_read(net->likelihood, r->before + at, rows * sizeof(float));
    if (status != GPUNN_OK) return status;
    return w->choices ? gpunn_read(net->chosen, r->choice + at, rows * sizeof(int64_t))
                      : gpunn_read(net->chosen, r->control + at * (size_t)w->controls,
                                   rows * (size_t)w->controls * sizeof(float));
}

/* ---- self-play: the other player is an earlier state of the network ---- */
typedef struct rivals {
    gpunn_device *dev;
    network       net[RIVALS]; /* [0]: as it began, the others: the latest snapshots */
    long          made;        /* snapshots */
    float        *seen, *allowed;
    int64_t      *choice;
} rivals;

/* Copies the network to the oldest snapshot but the first. */
static gpunn_status rivals_add(rivals *all, const network *net)
{
    gpunn_array  bytes = {0};
    const long   place = all->made == 0 ? 0 : 1 + (all->made - 1) % (RIVALS - 1);
    gpunn_status status = gpunn_save_memory(net->model, &bytes);
    if (status == GPUNN_OK) status = gpunn_load_memory(all->net[place].model, bytes.data, bytes.bytes);
    gpunn_array_free(all->dev, &bytes);
    all->made++;
    return status;
}

static gpunn_status rivals_begin(rivals *all, gpunn_device *dev, const network *net, int envs)
{
    all->dev = dev;
    for (int k = 0; k < RIVALS; k++) all->net[k] = build(dev, net->w, false, envs);
    all->seen = (float *)reserve((size_t)envs * SEEN, sizeof(float));
    all->allowed = (float *)reserve((size_t)envs * CHOICES, sizeof(float));
    all->choice = (int64_t *)reserve((size_t)envs, sizeof(int64_t));
    return rivals_add(all, net);
}

static void rivals_end(rivals *all)
{
    for (int k = 0; k < RIVALS; k++) gpunn_model_destroy(all->net[k].model);
    free(all->seen), free(all->allowed), free(all->choice);
}

/* The choices of snapshot k in environments begin .. end. */
static gpunn_status rival_ask(const rivals *all, int k, int begin, int end)
{
    const network *net = &all->net[k];
    const size_t   rows = (size_t)(end - begin);
    gpunn_status   status = put(net, net->seen, all->seen + begin * net->w->seen, end - begin, 1);
    if (status == GPUNN_OK)
        status = put(net, net->allowed, all->allowed + begin * net->w->choices, end - begin, 1);
    if (status == GPUNN_OK) status = gpunn_forward(&net->chosen, 1);
    return status == GPUNN_OK ? gpunn_read(net->chosen, all->choice + begin, rows * sizeof(int64_t)) : status;
}

/* Environments of the first rival, then as many of the second, ... */
static int rival_first(int envs, int k)
{
    return (int)((int64_t)envs * k / RIVALS);
}

static gpunn_status rivals_choose(const rivals *all, const rollout *r)
{
    const int    last = all->made < RIVALS ? (int)all->made - 1 : RIVALS - 1, n = r->w->seen;
    gpunn_status status = GPUNN_OK;
    for (int i = 0; i < r->envs; i++)
        r->w->look_rival(r->state + (size_t)i * STATE, all->seen + i * n, all->allowed + i * r->w->choices);
    standardize(r, all->seen);
    for (int k = 0; k < RIVALS && status == GPUNN_OK; k++) {
        const int begin = rival_first(r->envs, k), end = rival_first(r->envs, k + 1);
        if (begin < end) status = rival_ask(all, k < last ? k : last, begin, end);
    }
    for (int i = 0; i < r->envs; i++) r->state[(size_t)i * STATE + RIVAL] = (float)all->choice[i];
    return status;
}

static gpunn_status keep_memory(const network *net, const rollout *r, float *memory)
{
    return net->memory ? gpunn_read(net->memory, memory, (size_t)r->envs * HIDDEN * sizeof(float)) : GPUNN_OK;
}

/* Continues from the last observation of the previous rollout. Records the returns of episodes, with rivals
 * those against the first. others: NULL without rivals. */
static gpunn_status act(const network *net, const rivals *others, rollout *r, steppers *threads, record *past)
{
    const int    counted = others ? rival_first(r->envs, 1) : r->envs;
    gpunn_status status = keep_memory(net, r, r->memory);
    if (r->count == 0) normalize(r, 0);
    for (int t = 0; t < r->horizon && status == GPUNN_OK; t++) {
        status = ask(net, r, t);
        if (status == GPUNN_OK && others) status = rivals_choose(others, r);
        if (status != GPUNN_OK) return status;
        steppers_run(threads, t);
        normalize(r, t + 1);
        for (int i = 0; i < counted; i++) {
            const int how = r->ended[t * r->envs + i];
            if (how == ENDED || how == OUT_OF_TIME) record_add(past, r->sum[i]);
        }
    }
    if (status == GPUNN_OK) status = keep_memory(net, r, r->later);
    return status == GPUNN_OK ? ask(net, r, r->horizon) : status;
}

/* ---- learning ---- */
/* Generalized advantage estimation: how much better than expected each action was. Lists the steps to learn
 * from and returns their number. */
static int judge(rollout *r)
{
    int    count = 0;
    double sum = 0, square = 0;
    for (int i = 0; i < r->envs; i++) {
        float advantage = 0;
        for (int at = (r->horizon - 1) * r->envs + i; at >= 0; at -= r->envs) {
            const float on = r->ended[at] == ENDED ? 0 : r->w->gamma;
            if (r->ended[at] != GOES_ON) advantage = 0;
            advantage = r->reward[at] + on * (r->value[at + r->envs] + r->w->lambda * advantage) -
                        r->value[at];
            const bool made = r->ended[at] != BEGINS;
            r->advantage[at] = made ? advantage : 0, r->target[at] = r->value[at] + r->advantage[at];
            if (!made) continue;
            r->order[count++] = at;
            sum += (double)advantage, square += (double)advantage * (double)advantage;
        }
    }
    const double mean = sum / count, deviation = sqrt(fmax(0, square / count - mean * mean)) + 1e-8;
    for (int k = 0; k < count; k++)
        r->advantage[r->order[k]] = (float)(((double)r->advantage[r->order[k]] - mean) / deviation);
    return count;
}

/* Copies the rows of a minibatch, each of `bytes` bytes. */
static const void *gather(const void *from, size_t bytes, const int *rows, int count, char *part)
{
    for (int k = 0; k < count; k++)
        memcpy(part + (size_t)k * bytes, (const char *)from + (size_t)rows[k] * bytes, bytes);
    return part;
}

/* The steps of these environments. Their memories at the first of them become the first rows of the state. */
static gpunn_status recall(const network *net, rollout *r, const int *envs, int count, char *part)
{
    const size_t each = HIDDEN * sizeof(float);
    for (int t = 0; t < r->horizon; t++)
        for (int k = 0; k < count; k++) r->picked[t * count + k] = t * r->envs + envs[k];
    (void)gather(r->memory, each, envs, count, part);
    return gpunn_write(net->memory, part, (size_t)r->envs * each);
}

static gpunn_status minibatch(const network *net, gpunn_optimizer *opt, const rollout *r, const int *rows,
                              int count, char *part)
{
    const world *w = net->w;
    const size_t one = sizeof(float);
    const struct {
        gpunn_tensor *to;
        const void   *from;
        size_t        bytes;
    } all[] = {{net->seen, r->seen, (size_t)w->seen * one},
               {net->taken, w->choices ? (void *)r->choice : r->control,
                w->choices ? sizeof(int64_t) : (size_t)w->controls * one},
               {net->before, r->before, one},
               {net->expected, r->value, one},
               {net->advantage, r->advantage, one},
               {net->target, r->target, one},
               {net->anew, r->anew, one},
               {net->allowed, r->allowed, (size_t)w->choices * one}};
    gpunn_status status = GPUNN_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && status == GPUNN_OK; i++)
        if (all[i].to)
            status = put(net, all[i].to, gather(all[i].from, all[i].bytes, rows, count, part), count,
                         r->horizon);
    return status == GPUNN_OK ? gpunn_train_step(opt, net->loss) : status;
}

/* Epochs over the rollout in minibatches of `size` steps, each epoch in an order of its own. A recurrent
 * network learns from all steps of some environments. */
static gpunn_status learn(const network *net, gpunn_optimizer *opt, rollout *r, int epochs, int size,
                          uint32_t *random, char *part)
{
    const bool   whole = net->memory != NULL;
    const int    made = judge(r), count = whole ? r->envs : made;
    gpunn_status status = GPUNN_OK;
    if (whole) size = size > r->horizon ? size / r->horizon : 1;
    for (int i = 0; i < count && whole; i++) r->order[i] = i;
    for (int epoch = 0; epoch < epochs && status == GPUNN_OK; epoch++) {
        for (int k = count - 1; k > 0; k--) {
            const int other = (int)uniform(random, 0, (float)(k + 1)) % (k + 1), kept = r->order[k];
            r->order[k] = r->order[other], r->order[other] = kept;
        }
        for (int at = 0; at + size <= count && status == GPUNN_OK; at += size) {
            if (whole) status = recall(net, r, r->order + at, size, part);
            if (status == GPUNN_OK)
                status = minibatch(net, opt, r, whole ? r->picked : r->order + at,
                                   whole ? size * r->horizon : size, part);
        }
    }
    return status;
}

/* The last observation becomes the first. */
static gpunn_status turn(const network *net, rollout *r)
{
    const size_t rows = (size_t)r->envs, last = (size_t)r->horizon * rows, n = (size_t)r->w->seen;
    memcpy(r->seen, r->seen + last * n, rows * n * sizeof(float));
    memcpy(r->allowed, r->allowed + last * (size_t)r->w->choices,
           rows * (size_t)r->w->choices * sizeof(float));
    memcpy(r->anew, r->anew + (size_t)r->horizon * rows, rows * sizeof(float));
    return net->memory ? gpunn_write(net->memory, r->later, rows * HIDDEN * sizeof(float)) : GPUNN_OK;
}

/* ---- the program ---- */
typedef struct settings {
    int         world, envs, horizon, epochs, batch, steps, seed, threads, optimizer, snapshot;
    float       goal; /* 0: the world's */
    bool        recurrent;
    const char *curve;
} settings;

static double seconds(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Trains to the goal, or for all steps. *steps: how many were made. */
static gpunn_status train(const settings *s, const network *net, rivals *others, gpunn_optimizer *opt,
                          rollout *r, record *past, long *steps)
{
    static stepper  own[STEPPERS];
    static steppers threads;
    static curves   returns = {.title = "mean return of the last 100 episodes"};
    FILE *const     file = s->curve ? fopen(s->curve, "w") : NULL;
    uint32_t        random = (uint32_t)s->seed + 1;
    char *const     part = (char *)reserve((size_t)s->batch * SEEN + (size_t)s->envs * HIDDEN, sizeof(float));
    double          spent[2] = {0, 0};
    gpunn_status    status = GPUNN_OK;
    if (s->curve && file == NULL) fprintf(stderr, "ppo: cannot write '%s'\n", s->curve), exit(1);
    const double goal = (double)(s->goal != 0 ? s->goal : net->w->goal);
    steppers_begin(&threads, own, r, s->threads);
    for (int round = 1; *steps < s->steps && (past->episodes < LAST || past->mean < goal); round++) {
        const double start = seconds();
        status = act(net, others, r, &threads, past);
        const double acted = seconds();
        if (status == GPUNN_OK) status = learn(net, opt, r, s->epochs, s->batch, &random, part);
        if (status == GPUNN_OK) status = turn(net, r);
        if (status == GPUNN_OK && others && round % s->snapshot == 0) status = rivals_add(others, net);
        if (status != GPUNN_OK) break;
        *steps += (long)r->envs * r->horizon;
        spent[0] += acted - start, spent[1] += seconds() - acted;
        if (past->episodes == 0) continue;
        returns.each = (long)r->envs * r->horizon;
        curves_add(&returns, (float)past->mean, NAN);
        if (file) fprintf(file, "%ld,%.4f\n", *steps, past->mean);
        if (round % 10 == 0)
            printf("step %8ld, episode %6ld: mean return %.2f; %.0f steps/s, %.0f %% of the time to act\n",
                   *steps, past->episodes, past->mean, (double)*steps / (spent[0] + spent[1]),
                   100 * spent[0] / (spent[0] + spent[1]));
    }
    steppers_end(&threads);
    curves_show(&returns, 1);
    if (file) (void)fclose(file);
    free(part);
    return status;
}

int main(int argc, char **argv)
{
    settings     s = {.envs = 1024,
                      .horizon = 32,
                      .epochs = 4,
                      .batch = 4096,
                      .steps = 20000000,
                      .seed = 1,
                      .threads = 2,
                      .snapshot = 10};
    const option known[] = {
        {"--world cart|maze|pendulum|blind|duel",
         "to act in; blind: a cart without its speeds; duel: two players race for a coin",
         .choice = &s.world},
        {"--recurrent", "a network with a GRU, which remembers", .flag = &s.recurrent},
        {"--environments N", "stepped together", .number = &s.envs, .lowest = 1, .highest = 1e6},
        {"--horizon N", "steps of each between two updates", .number = &s.horizon, .lowest = 1,
         .highest = 1e4},
        {"--epochs N", "over the steps of an update", .number = &s.epochs, .lowest = 1},
        {"--batch N", "steps in a minibatch", .number = &s.batch, .lowest = 1},
        {"--optimizer adam|muon", "of the network", .choice = &s.optimizer},
        {"--steps N", "of all environments together, at most", .number = &s.steps, .lowest = 1},
        {"--goal RETURN", "mean return at which training ends; left out, the world's", .real = &s.goal,
         .lowest = -1e9},
        {"--snapshot N", "updates after which another snapshot of the network becomes a rival",
         .number = &s.snapshot, .lowest = 1},
        {"--curve FILE", "for steps and mean returns, as CSV", .text = &s.curve, .written = true},
        {"--seed N", "of weights, actions and environments", .number = &s.seed},
        {"--threads N", "of the CPU, for network and environments", .number = &s.threads, .lowest = 1,
         .highest = STEPPERS}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
    const world chosen = world_at(s.world), *const w = &chosen;
    if (w->look_rival && s.recurrent) return fprintf(stderr, "ppo: the duel has no --recurrent rivals\n"), 2;
    gpunn_device *dev = gpunn_device_open(.seed = (uint64_t)s.seed, .threads = s.threads);
    const network net = build(dev, w, s.recurrent, s.envs);
    rollout       r = rollout_make(w, s.envs, s.horizon, s.seed);
    record        past = {{0}, 0, 0};
    long          steps = 0;
    rivals others = {0}, *const duel = w->look_rival ? &others : NULL;
    const double     start = seconds();
    gpunn_optimizer *opt = s.optimizer ? gpunn_muon(net.model, .lr = 0.01f, .adamw_lr = w->lr,
                                                    .weight_decay = GPUNN_ZERO)
                                       : gpunn_adam(net.model, .lr = w->lr, .eps = 1e-5f);
    gpunn_status     status = gpunn_last_status(dev);
    gpunn_set_clip_norm(opt, 0.5f);
    if (status == GPUNN_OK && duel) status = rivals_begin(duel, dev, &net, s.envs);
    if (status == GPUNN_OK) status = train(&s, &net, duel, opt, &r, &past, &steps);
    if (status != GPUNN_OK)
        fprintf(stderr, "ppo: %s\n", gpunn_error(dev));
    else
        printf("%s: mean return %.2f of %ld episodes' last %d after %ld steps, %.0f in a second\n", w->name,
               past.mean, past.episodes, LAST, steps, (double)steps / (seconds() - start));
    rivals_end(&others);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(net.model);
    gpunn_device_close(dev);
    rollout_free(&r);
    return status != GPUNN_OK;
}
