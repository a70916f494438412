/* The CPU's work on threads of the program's (.parallel_fn): the same bits as on ours, whatever the pool
 * does. TSan runs this too. */
#include "../test.h"

#include <dirent.h>

/* ---- a pool as programs have them: a queue of calls, and workers ---- */
enum { WORKERS = 3, MOST_CALLS = 64 };
typedef struct pool_call {
    void (*run)(void *arg);
    void *arg;
    int  *left;
} pool_call;
typedef struct pool {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    pthread_t       thread[WORKERS];
    pool_call       queue[MOST_CALLS];
    int             count;
    bool            ending;
    long            tasks; /* asked for so far */
} pool;

static void pool_work_off(pool *p)
{
    pool_call call = p->queue[--p->count];
    pthread_mutex_unlock(&p->lock);
    call.run(call.arg);
    pthread_mutex_lock(&p->lock);
    --*call.left;
    pthread_cond_broadcast(&p->changed);
}

static void *pool_worker(void *arg)
{
    pool *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->ending)
        if (p->count > 0)
            pool_work_off(p);
        else
            pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void pool_open(pool *p)
{
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    for (int i = 0; i < WORKERS; i++)
        assert_int_equal(pthread_create(&p->thread[i], NULL, pool_worker, p), 0);
}

static void pool_close(pool *p)
{
    pthread_mutex_lock(&p->lock);
    p->ending = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < WORKERS; i++) pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
}

/* What a program gives to gpunn: the calling thread works too, on whatever the queue holds. */
static void pool_parallel(void *user, int count, void (*run)(void *arg), void *arg)
{
    pool *p = user;
    int   left = count;
    pthread_mutex_lock(&p->lock);
    p->tasks++;
    for (int i = 0; i < count && p->count < MOST_CALLS; i++)
        p->queue[p->count++] = (pool_call){run, arg, &left};
    pthread_cond_broadcast(&p->changed);
    while (left > 0)
        if (p->count > 0)
            pool_work_off(p);
        else
            pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* Pools that do no more than the contract asks for. */
static void one_after_another(void *user, int count, void (*run)(void *arg), void *arg)
{
    (void)user;
    for (int i = 0; i < count; i++) run(arg);
}
typedef struct solo {
    void (*run)(void *arg);
    void *arg;
    int   count;
} solo;
static void *run_all(void *arg)
{
    const solo *s = arg;
    one_after_another(NULL, s->count, s->run, s->arg);
    return NULL;
}
static void on_another_thread(void *user, int count, void (*run)(void *arg), void *arg)
{
    (void)user;
    pthread_t thread;
    solo      s = {run, arg, count};
    assert_int_equal(pthread_create(&thread, NULL, run_all, &s), 0);
    pthread_join(thread, NULL);
}
static void never(void *user, int count, void (*run)(void *arg), void *arg)
{
    (void)user, (void)count, (void)run, (void)arg;
}

/* ---- a network in whose ops threads wait for each other: convolutions of three kinds, group_norm,
 * grid_sample, embedding -- */
enum { BATCH = 2, CHANNELS = 16, SIDE = 48, TOKENS = 4096, STEPS = 2 };
typedef struct outcome {
    float  loss[STEPS];
    float *weights;
    size_t bytes;
} outcome;

static float   images[BATCH * CHANNELS * SIDE * SIDE], grid[BATCH * SIDE * SIDE * 2];
static int64_t tokens[BATCH * TOKENS];
static void    make_data(void)
{
    for (int i = 0; i < COUNT(images); i++) images[i] = sinf((float)i);
    for (int i = 0; i < COUNT(grid); i++) grid[i] = sinf(0.37f * (float)i);
    for (int i = 0; i < COUNT(tokens); i++) tokens[i] = i * 7 % 50;
}

static gpunn_tensor *network(gpunn_device *dev, gpunn_model *model)
{
    gpunn_tensor *x = MADE(
        dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, CHANNELS, SIDE, SIDE)));
    gpunn_tensor *at = MADE(dev,
                            gpunn_input(model, "grid", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, SIDE, SIDE, 2)));
    gpunn_tensor *words = MADE(dev, gpunn_input(model, "words", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, TOKENS)));
    gpunn_tensor *h = gpunn_conv2d(x, "winograd", .out_channels = 32, .kernel_size = 3, .padding = 1);
    h = gpunn_group_norm(h, "norm", .num_groups = 4);
    h = gpunn_conv2d(gpunn_relu(h), "direct", .out_channels = 8, .kernel_size = 5, .padding = 2);
    h = gpunn_grid_sample(h, at);
    h = gpunn_conv2d(h, "lowered", .out_channels = 12, .kernel_size = 3, .stride = 2, .groups = 4);
    gpunn_tensor *e = gpunn_embedding(words, "table", .num_embeddings = 50, .embedding_dim = 32);
    gpunn_tensor *sum = gpunn_add(gpunn_mean(gpunn_mul(h, h), GPUNN_ALL, false),
                                  gpunn_mean(gpunn_tanh(e), GPUNN_ALL, false));
    OK(dev, gpunn_write(x, images, sizeof images));
    OK(dev, gpunn_write(at, grid, sizeof grid));
    OK(dev, gpunn_write(words, tokens, sizeof tokens));
    return MADE(dev, sum);
}

static outcome train_on(gpunn_device *dev)
{
    outcome          o = {{0}, NULL, 0};
    gpunn_model     *model = gpunn_model_create(dev);
    gpunn_tensor    *loss = network(dev, model);
    gpunn_optimizer *opt = gpunn_sgd(model, .lr = 0.1f);
    for (int step = 0; step < STEPS; step++) {
        OK(dev, gpunn_train_step(opt, loss));
        o.loss[step] = gpunn_item(loss);
        assert_true(isfinite(o.loss[step]));
    }
    for (int i = 0; i < gpunn_parameter_count(model); i++) {
        gpunn_tensor *p = gpunn_parameter_at(model, i);
        o.weights = realloc(o.weights, o.bytes + gpunn_tensor_bytes(p));
        OK(dev, gpunn_read(p, (char *)o.weights + o.bytes, gpunn_tensor_bytes(p)));
        o.bytes += gpunn_tensor_bytes(p);
    }
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    return o;
}

static void same(const outcome *o, const outcome *expected)
{
    assert_memory_equal(o->loss, expected->loss, sizeof o->loss);
    assert_int_equal(o->bytes, expected->bytes);
    assert_memory_equal(o->weights, expected->weights, o->bytes);
    free(o->weights);
}

static outcome alone(void)
{
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 1, .seed = 5);
    outcome       o = train_on(dev);
    gpunn_device_close(dev);
    return o;
}

static int thread_count(void)
{
    int            count = 0;
    struct dirent *entry;
    DIR           *folder = opendir("/proc/self/task");
    if (folder == NULL) return 0;
    while ((entry = readdir(folder)) != NULL) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void test_pools(void **state)
{
    (void)state;
    outcome expected = alone();
    pool    p;
    pool_open(&p);
    const int before = thread_count();
    int       threads = 0;
    const struct {
        void (*parallel_fn)(void *user, int count, void (*run)(void *arg), void *arg);
        int threads;
    } cases[] = {{pool_parallel, WORKERS + 1}, {pool_parallel, 2},     {pool_parallel, 9},
                 {one_after_another, 4},       {on_another_thread, 4}, {never, 4}};
    for (int i = 0; i < COUNT(cases); i++) {
        gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = cases[i].threads,
                                              .seed = 5, .parallel_fn = cases[i].parallel_fn, .user = &p);
        threads = gpunn_device_threads(dev);
        outcome o = train_on(dev);
        /* none of ours */
        if (cases[i].parallel_fn == pool_parallel) assert_int_equal(thread_count(), before);
        same(&o, &expected);
        gpunn_device_close(dev);
    }
    assert_int_equal(p.tasks > 3 * STEPS * 10, threads > 1); /* a build without threads asks for nothing */
    pool_close(&p);
    free(expected.weights);
}

/* Two devices on one pool that is too small for both. */
static void *train_beside(void *arg)
{
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = WORKERS + 1, .seed = 5,
                                          .parallel_fn = pool_parallel, .user = arg);
    outcome      *o = malloc(sizeof *o);
    *o = train_on(dev);
    gpunn_device_close(dev);
    return o;
}
static void test_shared(void **state)
{
    (void)state;
    outcome   expected = alone();
    pthread_t thread;
    pool      p;
    pool_open(&p);
    void *there, *here;
    assert_int_equal(pthread_create(&thread, NULL, train_beside, &p), 0);
    here = train_beside(&p);
    pthread_join(thread, &there);
    same(here, &expected);
    same(there, &expected);
    free(here), free(there);
    pool_close(&p);
    free(expected.weights);
}

/* A function of the program's is told how many came, each of them once. */
enum { TEAM = 4, ROUNDS = 200, MOST_ROUNDS = 1000 * ROUNDS };
typedef struct counts {
    int  ran[TEAM], threads, most, rounds;
    bool right;
} counts;
static void count_task(void *arg, int index, int threads)
{
    counts *c = arg;
    __atomic_fetch_add(&c->ran[index], 1, __ATOMIC_SEQ_CST);
    if (index == 0) c->threads = threads;
}
static int count_forward(const gpunn_custom_call *call)
{
    counts *c = call->user;
    for (; c->rounds < ROUNDS || (c->most < 2 && c->rounds < MOST_ROUNDS); c->rounds++) {
        memset(c->ran, 0, sizeof c->ran);
        gpunn_parallel(TEAM, count_task, c);
        for (int i = 0; i < TEAM; i++) c->right = c->right && c->ran[i] == (i < c->threads);
        if (c->threads > c->most) c->most = c->threads;
    }
    memcpy(call->out->data, call->in[0].data, (size_t)call->out->count * sizeof(float));
    return 0;
}
static void test_each_once(void **state)
{
    (void)state;
    pool p;
    pool_open(&p);
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = TEAM,
                                          .parallel_fn = pool_parallel, .user = &p);
    if (gpunn_device_threads(dev) == 1) {
        gpunn_device_close(dev);
        pool_close(&p);
        SKIP("built without threads");
    }
    gpunn_model          *model = gpunn_model_create(dev);
    counts                c = {.right = true};
    const gpunn_custom_op op = {.name = "counts", .inputs = 1, .forward = count_forward, .user = &c};
    gpunn_tensor         *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(1)),
                 *y = MADE(dev, gpunn_custom(&op, &x));
    OK(dev, gpunn_write(x, (float[]){1}, sizeof(float)));
    OK(dev, gpunn_forward(&y, 1));
    assert_true(c.right);
    /* in the best of all rounds: on a busy machine all but the first may come late for long */
    assert_in_range(c.most, 2, TEAM);
    assert_int_equal(p.tasks, c.rounds);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    pool_close(&p);
}

/* Ours end with gpunn_empty_cache, and come back. */
static void test_rest(void **state)
{
    (void)state;
    const int     before = thread_count();
    outcome       expected = alone();
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 3, .seed = 5);
    if (gpunn_device_threads(dev) == 1) {
        gpunn_device_close(dev);
        free(expected.weights);
        SKIP("built without threads");
    }
    outcome o = train_on(dev);
    same(&o, &expected);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(thread_count(), before + 2);
        gpunn_empty_cache(dev);
        const struct timespec moment = {0, 1000000}; /* joined threads may be listed for a moment */
        for (int tries = 0; thread_count() != before && tries < 10000; tries++) nanosleep(&moment, NULL);
        assert_int_equal(thread_count(), before);
        gpunn_model  *model = gpunn_model_create(dev);
        gpunn_tensor *loss = network(dev, model);
        OK(dev, gpunn_backward(loss));
        const float value = gpunn_item(loss);
        assert_true(isfinite(value));
        gpunn_model_destroy(model);
    }
    gpunn_device_close(dev);
    free(expected.weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pools), cmocka_unit_test(test_shared),
                                       cmocka_unit_test(test_each_once), cmocka_unit_test(test_rest)};
    make_data();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
