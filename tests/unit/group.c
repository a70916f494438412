/* Ranks that are threads of this process, with an engine of the test's own; tests/group has them as processes
 * over MPI. On a GPU all share the first one; with GPUNN_TEST_NCCL in the environment each has its own, and
 * NCCL carries gradients. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "../test.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "../group/checks.h"

enum { MOST = 4 };
extern void    emulator_set(const char *name, const char *value) __attribute__((weak));
extern int64_t emulator_reduced_bytes(void) __attribute__((weak));
extern int     emulator_faults(void) __attribute__((weak));
extern void   *caller_stream(void) __attribute__((weak)); /* tests/emulator/caller.h */
extern void    caller_end(void *stream) __attribute__((weak));
extern void    caller_set_device(int device) __attribute__((weak));
extern void    caller_begin_capture(void *stream) __attribute__((weak));
extern void   *caller_end_capture(void *stream) __attribute__((weak));
extern void    caller_launch(void *graph, void *stream) __attribute__((weak));
extern void    caller_forget_graph(void *graph) __attribute__((weak));

/* ---- an engine: each rank shows its memory, and all read that of all ---- */
typedef struct world {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    int             size, arrived;
    int64_t         round;
    double          timeout;  /* of this engine */
    double          patience; /* .timeout of the group */
    bool            here[MOST];
    void           *memory[MOST];
    const char     *folder;
    const char     *store; /* NULL: the folder */
    bool (*run)(const ranks *r);
    bool                 shard, bf16;  /* of the group */
    bool                 more;         /* the engine has what an engine may have */
    bool                 mixed;        /* every second rank's device is a CPU */
    bool                 captures;     /* the ranks' devices work on streams that the program captures */
    size_t               bucket_bytes; /* 0: 100 */
    gpunn_precision      precision;
    const gpunn_backend *backend; /* NULL: as all tests have */
} world;
typedef struct place {
    world      *world;
    int         rank;
    bool        good;
    char        why[WHY], error[64];
    int64_t     reduced, scattered; /* bytes that it gave for sums; calls */
    int64_t     heard;              /* bytes that it got from a socket or files in check_wide's step */
    void       *stream;             /* with world.captures, of its device */
    test_memory memory;
    pthread_t   thread;
} place;

/* Until all ranks are here; false: one is missing. memory: what is shown to them; NULL: the same as
 * before. */
static bool meet(place *p, void *memory)
{
    world          *w = p->world;
    struct timespec until;
    bool            all = true;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)w->timeout;
    until.tv_nsec += (long)((w->timeout - floor(w->timeout)) * 1e9);
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&w->lock);
    const int64_t round = w->round;
    if (memory) w->memory[p->rank] = memory;
    w->here[p->rank] = true;
    if (++w->arrived == w->size) {
        w->arrived = 0;
        w->round++;
        memset(w->here, 0, sizeof w->here);
        pthread_cond_broadcast(&w->changed);
    }
    while (w->round == round && all) all = pthread_cond_timedwait(&w->changed, &w->lock, &until) == 0;
    for (int rank = 0; rank < w->size && !all; rank++)
        if (!w->here[rank]) (void)snprintf(p->error, sizeof p->error, "rank %d is missing", rank);
    pthread_mutex_unlock(&w->lock);
    return all;
}

static gpunn_status all_reduce(void *user, float *values, int64_t count)
{
    place *p = user;
    world *w = p->world;
    float *sums = malloc((size_t)count * sizeof *sums);
    bool   good = meet(p, values);
    p->reduced += count * (int64_t)sizeof *values;
    for (int64_t i = 0; i < count && good; i++) {
        sums[i] = 0;
        for (int rank = 0; rank < w->size; rank++) sums[i] += ((const float *)w->memory[rank])[i];
    }
    good = good && meet(p, NULL);
    if (good) memcpy(values, sums, (size_t)count * sizeof *sums);
    free(sums);
    return good ? GPUNN_OK : GPUNN_ERR_DEVICE;
}

/* Only what it should be is; the rest is spoilt. */
static gpunn_status reduce_scatter(void *user, float *values, const int64_t *counts)
{
    place  *p = user;
    int64_t begin = 0, sum = 0;
    p->scattered++;
    for (int rank = 0; rank < p->world->size; sum += counts[rank++])
        if (rank == p->rank) begin = sum;
    const gpunn_status status = all_reduce(user, values, sum);
    for (int64_t i = 0; i < sum; i++)
        if (i < begin || i >= begin + counts[p->rank]) values[i] = NAN;
    return status;
}

static gpunn_status all_reduce_bf16(void *user, uint16_t *values, int64_t count)
{
    float *wide = calloc((size_t)count, sizeof *wide);
    for (int64_t i = 0; i < count; i++) memcpy((char *)&wide[i] + 2, &values[i], sizeof *values);
    const gpunn_status status = all_reduce(user, wide, count);
    for (int64_t i = 0; i < count; i++) {
        const float sum = as_bf16(wide[i]);
        memcpy(&values[i], (const char *)&sum + 2, sizeof *values);
    }
    ((place *)user)->reduced -= count * (int64_t)sizeof *values;
    free(wide);
    return status;
}

static gpunn_status all_gather(void *user, void *parts, size_t bytes)
{
    place *p = user;
    world *w = p->world;
    bool   good = meet(p, parts);
    p->reduced += bytes > 64 && w->bf16 ? (int64_t)bytes : 0; /* not votes */
    for (int rank = 0; rank < w->size && good; rank++)
        if (rank != p->rank)
            memcpy((char *)parts + (size_t)rank * bytes, (char *)w->memory[rank] + (size_t)rank * bytes,
                   bytes);
    return good && meet(p, NULL) ? GPUNN_OK : GPUNN_ERR_DEVICE;
}

static gpunn_status broadcast(void *user, void *memory, size_t bytes, int root)
{
    place *p = user;
    bool   good = meet(p, memory);
    if (good && p->rank != root) memcpy(memory, p->world->memory[root], bytes);
    return good && meet(p, NULL) ? GPUNN_OK : GPUNN_ERR_DEVICE;
}

static const char *engine_error(void *user)
{
    return ((const place *)user)->error;
}

static bool gather(void *user, void *parts, size_t bytes)
{
    const int64_t before = ((place *)user)->reduced;
    const bool    good = all_gather(user, parts, bytes) == GPUNN_OK;
    ((place *)user)->reduced = before;
    return good;
}

#define ENGINE(p)                                                                                    \
    .rank = (p)->rank, .size = (p)->world->size, .all_reduce = all_reduce, .all_gather = all_gather, \
    .broadcast = broadcast, .error = engine_error,                                                   \
    .reduce_scatter = (p)->world->more ? reduce_scatter : NULL,                                      \
    .all_reduce_bf16 = (p)->world->more ? all_reduce_bf16 : NULL, .user = (p)

/* GPUs that have a rank each; 0: all ranks share one. */
static int own_gpus(void)
{
    const gpunn_backend *table = first_backend()->table;
    if (getenv("GPUNN_TEST_NCCL") == NULL) return 0;
    return table ? table->device_count() : gpunn_cuda_device_count();
}

static gpunn_device *rank_device(place *p)
{
    test_memory_init(&p->memory);
    if (p->world->mixed && p->rank % 2 == 0)
        return gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1, .threads = 1,
                                 .realloc_fn = hook_realloc, .user = &p->memory);
    const gpunn_backend *backend = p->world->backend ? p->world->backend : first_backend()->table;
    if (p->world->captures) {
        caller_set_device(p->rank);
        p->stream = caller_stream();
    }
    return gpunn_device_open(.type = first_backend()->type, .index = own_gpus() ? p->rank : 0, .seed = 1,
                             .threads = 1, .realloc_fn = hook_realloc, .user = &p->memory, .backend = backend,
                             .stream = p->stream);
}

/* The same ranks, which meet in the store. */
static gpunn_group *stored_group(const place *p, gpunn_device *dev, bool shard)
{
    return gpunn_group_open(dev, .store = p->world->store ? p->world->store : p->world->folder,
                            .rank = p->rank, .size = p->world->size, .timeout = p->world->patience,
                            .share_gpu = true, .shard = shard, .type = GPUNN_GROUP_HOST,
                            .bf16_gradients = p->world->bf16);
}

static void *stored_main(void *user)
{
    place        *p = user;
    gpunn_device *dev = rank_device(p);
    gpunn_group  *group = stored_group(p, dev, p->world->shard);
    const ranks   r = {dev, group, p->world->folder, p->why, gather, p};
    p->good = EXPECT(&r, group != NULL) && p->world->run(&r);
    gpunn_group_close(group);
    gpunn_device_close(dev);
    return NULL;
}

static void *rank_main(void *user)
{
    place        *p = user;
    gpunn_device *dev = rank_device(p);
    gpunn_group  *group = gpunn_group_open(
         dev, ENGINE(p), .timeout = p->world->patience, .share_gpu = own_gpus() == 0,
         .bucket_bytes = p->world->bucket_bytes ? p->world->bucket_bytes : 100,
         .type = own_gpus() ? GPUNN_GROUP_NCCL : GPUNN_GROUP_AUTO, .shard = p->world->shard,
         .bf16_gradients = p->world->bf16);
    const ranks r = {dev, group, p->world->folder, p->why, gather, p};
    p->good = EXPECT(&r, group != NULL) && p->world->run(&r);
    gpunn_group_close(group);
    gpunn_device_close(dev);
    if (p->stream) caller_end(p->stream);
    return NULL;
}

static bool        check_wide(const ranks *r);
static const char *folder_of(fixture *f)
{
    (void)test_path(f, "");
    return f->folder;
}

/* Runs a check on the world's ranks, each in `main`; a skip where there are fewer GPUs. */
static void run_world(fixture *f, world w, void *(*main)(void *place))
{
    const int size = w.size;
    place     places[MOST] = {{0}};
    w.folder = folder_of(f);
    rounds = w.bf16;
    mixes = w.mixed;
    shards = w.shard;
    assert_int_equal(pthread_mutex_init(&w.lock, NULL) | pthread_cond_init(&w.changed, NULL), 0);
    if (own_gpus() && size > own_gpus()) SKIP("%d ranks need as many GPUs", size);
    for (int rank = 0; rank < size; rank++) {
        places[rank].world = &w;
        places[rank].rank = rank;
        assert_int_equal(pthread_create(&places[rank].thread, NULL, main, &places[rank]), 0);
    }
    for (int rank = 0; rank < size; rank++) assert_int_equal(pthread_join(places[rank].thread, NULL), 0);
    for (int rank = 0; rank < size; rank++) {
        if (!places[rank].good) fail_msg("rank %d of %d: %s", rank, size, places[rank].why);
        test_memory_check(&places[rank].memory);
    }
}

static void run_ranks_in(fixture *f, void *(*main)(void *place), bool (*run)(const ranks *r), int size,
                         double timeout, double patience)
{
    run_world(f, (world){.size = size, .timeout = timeout, .patience = patience, .run = run}, main);
}

/* Exchanges that begin before backward has ended, of all ranks' runs. */
static int          early;
static gpunn_status watch_execute(void *context, gpunn_run *run)
{
    for (int i = 0; i < run->exchange_count; i++)
        (void)__atomic_add_fetch(&early, run->exchanges[i].after < run->step_count, __ATOMIC_RELAXED);
    return gpunn_emulator_backend.execute(context, run);
}

static void run_ranks(fixture *f, bool (*run)(const ranks *r), int size, double timeout)
{
    run_ranks_in(f, rank_main, run, size, timeout, 60);
}

static void test_check(void **state)
{
    fixture     *f = *state;
    const check *c = f->data;
    char         path[2][224];
    (void)snprintf(path[0], sizeof path[0], "%s", test_path(f, "fit.ckpt"));
    (void)snprintf(path[1], sizeof path[1], "%s", test_path(f, "best.safetensors"));
    for (int size = 1; size <= MOST && (size <= own_gpus() || !own_gpus()); size++)
        run_ranks(f, c->run, size, 60);
    for (int i = 0; i < 2; i++) (void)unlink(path[i]);
}

static void remove_all(fixture *f, const char *const *names, int count)
{
    for (int i = 0; i < count; i++) (void)unlink(test_path(f, names[i]));
}

/* Of the gradients of two layers, those of the last travel while the first's are made. */
static void test_overlap(void **state)
{
    if (emulator_set == NULL || own_gpus() == 0) SKIP("no NCCL that is emulated");
    gpunn_backend watched = gpunn_emulator_backend;
    watched.execute = watch_execute;
    early = 0;
    run_world(*state,
              (world){.size = 2, .timeout = 60, .patience = 60, .run = check_sgd, .backend = &watched},
              rank_main);
    assert_int_equal(early, 2 * 2 * STEPS); /* ranks and turns of the check; one bucket */
}

static void test_store(void **state)
{
    static const char *const names[] = {"fit.ckpt", "best.safetensors"};
    for (int i = 0; i < 2 * COUNT(checks); i++)
        run_world(*state,
                  (world){.size = 2 + i % 3,
                          .timeout = 60,
                          .patience = 60,
                          .run = checks[i / 2].run,
                          .shard = i % 2 == 1},
                  stored_main);
    remove_all(*state, names, COUNT(names));
}

/* ---- TCP ---- */
static struct sockaddr_in here(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/* "tcp://127.0.0.1:port" of a port that nobody has. */
static const char *free_port(char store[32])
{
    struct sockaddr_in address = here(0);
    socklen_t          size = sizeof address;
    const int          line = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(line, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(line, (struct sockaddr *)&address, &size), 0);
    (void)close(line);
    (void)snprintf(store, 32, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    return store;
}

/* Why the ranks cannot meet there, or NULL. */
static const char *no_tcp(const fixture *f)
{
    struct sockaddr_in address = here(9);
    const int          line = socket(AF_INET, SOCK_DGRAM, 0);
    const bool         network = connect(line, (struct sockaddr *)&address, sizeof address) == 0,
               made = gpunn_group_open(f->dev, .store = "tcp://host", .size = 2) == NULL &&
                      gpunn_last_status(f->dev) != GPUNN_ERR_UNSUPPORTED;
    (void)close(line);
    gpunn_clear_error(f->dev);
    return !made ? "no TCP with -std=c99" : !network ? "no network, not even within this machine" : NULL;
}

static void need_tcp(const fixture *f)
{
    const char *why = no_tcp(f);
    if (why) SKIP("%s", why);
}

static void test_tcp(void **state)
{
    need_tcp(*state);
    static const char *const names[] = {"fit.ckpt", "best.safetensors"};
    char                     store[32];
    for (int i = 0; i < 2 * COUNT(checks); i++)
        run_world(*state,
                  (world){.size = 2 + i % 3,
                          .patience = 60,
                          .run = checks[i / 2].run,
                          .store = free_port(store),
                          .timeout = 60,
                          .shard = i % 2 == 1},
                  stored_main);
    remove_all(*state, names, COUNT(names));
}

/* Rank 0 sends those who are no ranks of this run away. */
static bool sent_away(int port, const void *said, size_t bytes)
{
    const struct sockaddr_in address = here(port);
    char                     heard;
    int                      line = -1;
    for (int tries = 0; tries < 20000 && line < 0; tries++) { /* until rank 0 listens */
        line = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(line, (const struct sockaddr *)&address, sizeof address) == 0) break;
        (void)close(line);
        (void)usleep(1000);
        line = -1;
    }
    const bool sent = send(line, said, bytes, MSG_NOSIGNAL) == (ssize_t)bytes,
               away = recv(line, &heard, 1, 0) <= 0;
    (void)close(line);
    return sent && away;
}

static void *hostile_main(void *user)
{
    struct {
        char    magic[16];
        int32_t rank, size;
    } hello[] = {{"GET / HTTP/1.1", 1, 2},
                 {"gpunn ranks 1", 0, 2},
                 {"gpunn ranks 1", 2, 2},
                 {"gpunn ranks 1", -1, 2},
                 {"gpunn ranks 1", 1, 3}};
    place    *p = user;
    const int port = atoi(strrchr(p->world->store, ':') + 1);
    bool      away = true;
    for (int i = 0; i < COUNT(hello) && p->rank == 1; i++)
        away = sent_away(port, &hello[i], sizeof hello[i]) && away;
    (void)stored_main(p);
    if (!away) (void)snprintf(p->why, sizeof p->why, "a stranger was let in");
    p->good = p->good && away;
    return NULL;
}

static void test_tcp_strangers(void **state)
{
    need_tcp(*state);
    static const char *const names[] = {"fit.ckpt"};
    char                     store[32];
    run_world(*state,
              (world){.size = 2, .patience = 60, .run = check_sgd, .store = free_port(store), .timeout = 60},
              hostile_main);
    remove_all(*state, names, COUNT(names));
}

/* A rank leaves: the others are told which. */
static bool check_tcp_left(const ranks *r)
{
    const task task = {.optimizer = 1};
    ranked     n = ranked_open(r->dev, &task);
    bool       good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK);
    if (gpunn_group_rank(r->group) < 2)
        good = good && EXPECT(r, gpunn_optimizer_step(n.opt) == GPUNN_ERR_DEVICE) &&
               EXPECT(r, strstr(gpunn_error(r->dev), "rank 2 has left: "));
    gpunn_clear_error(r->dev);
    ranked_close(&n);
    return good;
}

static void test_tcp_faults(void **state)
{
    need_tcp(*state);
    fixture *f = *state;
    char     store[32];
    run_world(
        f,
        (world){.size = 3, .patience = 60, .run = check_tcp_left, .store = free_port(store), .timeout = 60},
        stored_main);
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .store = store, .size = 3, .timeout = 0.05), GPUNN_ERR_DEVICE,
               "rank 1 has not arrived within 0.05 seconds");
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .store = store, .rank = 1, .size = 3, .timeout = 0.05),
               GPUNN_ERR_DEVICE, "no rank 0 of 3 ranks has answered at '127.0.0.1'", "0.05 seconds");
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .store = "tcp://[::1]:70000", .size = 2), GPUNN_ERR_ARGUMENT,
               "tcp://[::1]:70000");
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .store = "tcp://host", .size = 2), GPUNN_ERR_ARGUMENT,
               "tcp://HOST:PORT");
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .store = "tcp://[]:1", .size = 2), GPUNN_ERR_ARGUMENT,
               "tcp://HOST:PORT");
}

/* Rank 0 knows as soon as it is out of sockets, or another rank is, what has to be raised. */
static void *knock_main(void *user)
{
    const int               *line = user;
    const struct sockaddr_in address = here(line[1]);
    for (int tries = 0;
         tries < 60000 && connect(line[0], (const struct sockaddr *)&address, sizeof address) != 0; tries++)
        (void)usleep(1000);
    return NULL;
}

static void test_tcp_sockets(void **state)
{
    need_tcp(*state);
    fixture      *f = *state;
    char          store[32];
    struct rlimit before, low;
    pthread_t     thread;
    int           line[2] = {socket(AF_INET, SOCK_STREAM, 0), atoi(strrchr(free_port(store), ':') + 1)};
    const int     next = dup(line[0]);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    (void)close(next);
    low = before;
    low.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .store = store, .size = 3, .timeout = 60), GPUNN_ERR_IO,
               "rank 0 has no more sockets", "raise ulimit -n, on rank 0 by more than the 3 ranks");
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .store = store, .rank = 1, .size = 3, .timeout = 60),
               GPUNN_ERR_IO, "rank 1 has no more sockets", "raise ulimit -n");
    low.rlim_cur++; /* for the one at which rank 0 listens */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    assert_int_equal(pthread_create(&thread, NULL, knock_main, line), 0);
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .store = store, .size = 3, .timeout = 60), GPUNN_ERR_IO,
               "rank 0 has no more sockets", "raise ulimit -n, on rank 0 by more than the 3 ranks");
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    (void)close(line[0]);
}

/* ---- processors ---- */
static void hear_sharing(void *user, gpunn_log_level level, const char *message)
{
    if (level == GPUNN_LOG_INFO && strstr(message, "threads of this rank: ")) ((test_memory *)user)->calls++;
}

/* Ranks of one process have the same processors, and a part of them each unless its user has said how many;
 * what has run before runs on fewer as it did. */
static void *processors_main(void *user)
{
    enum { ROWS = 256, COLUMNS = 512 };
    place        *p = user;
    const bool    says = p->world->more || getenv("OMP_NUM_THREADS");
    static float  x[ROWS][COLUMNS], out[MOST][2][ROWS][COLUMNS];
    test_memory   heard = {.calls = 0};
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = p->world->more ? 3 : 0,
                                          .log_fn = hear_sharing, .user = &heard);
    const int     before = gpunn_device_threads(dev), part = before / p->world->size,
              own = says   ? before
                    : part ? part
                           : 1;
    gpunn_model  *model = gpunn_model_create(dev);
    gpunn_tensor *in = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, COLUMNS));
    gpunn_tensor *y = gpunn_softmax(gpunn_linear(in, "fc", .out_features = COLUMNS), 1);
    gpunn_group  *group = NULL;
    const ranks   r = {dev, NULL, p->world->folder, p->why, gather, p};
    p->good = EXPECT(&r, gpunn_write(in, x, sizeof x) == GPUNN_OK);
    for (int i = 0; i < 2 && p->good; i++) {
        p->good = EXPECT(&r, gpunn_forward(&y, 1) == GPUNN_OK) &&
                  EXPECT(&r, gpunn_read(y, out[p->rank][i], sizeof out[0][0]) == GPUNN_OK);
        if (i == 0) group = gpunn_group_open(dev, ENGINE(p));
    }
    p->good = p->good && EXPECT(&r, group) && EXPECT(&r, gpunn_device_threads(dev) == own) &&
              EXPECT(&r, memcmp(out[p->rank][0], out[p->rank][1], sizeof out[0][0]) == 0) &&
              EXPECT(&r, heard.calls == (own < before));
    gpunn_model_destroy(model);
    gpunn_group_close(group);
    gpunn_device_close(dev);
    return NULL;
}

static void test_processors(void **state)
{
    char       before[32] = "";
    const bool said = getenv("OMP_NUM_THREADS") != NULL;
    if (own_gpus()) SKIP("the ranks are CPUs");
    if (said) (void)snprintf(before, sizeof before, "%s", getenv("OMP_NUM_THREADS"));
    for (int i = 0; i < 6; i++) {
        (void)unsetenv("OMP_NUM_THREADS");
        if (i == 5) (void)setenv("OMP_NUM_THREADS", "3", 1);
        run_world(*state, (world){.size = 1 + i % 4, .timeout = 60, .patience = 60, .more = i == 4},
                  processors_main);
    }
    if (said)
        (void)setenv("OMP_NUM_THREADS", before, 1);
    else
        (void)unsetenv("OMP_NUM_THREADS");
}

/* ---- shares of the states ---- */
/* All checks with groups whose ranks have a share each, by engines that scatter and others. */
static void test_shares(void **state)
{
    static const char *const names[] = {"fit.ckpt", "best.safetensors"};
    for (int i = 0; i < 2 * COUNT(checks); i++)
        run_world(*state,
                  (world){.size = 2 + i % 3,
                          .timeout = 60,
                          .patience = 60,
                          .run = checks[i / 2].run,
                          .shard = true,
                          .more = i % 2 == 0},
                  rank_main);
    remove_all(*state, names, COUNT(names));
}

/* ---- CPUs and GPUs in one group ---- */
/* What rounding has made of a rank's weights ends with the next update. */
static bool check_drift(const ranks *r)
{
    const task    task = {.optimizer = 1};
    float         losses[STEPS], values[NUMBERS] = {0}, moved[HIDDEN * IN];
    ranked        n = ranked_open(r->dev, &task);
    gpunn_tensor *weight = gpunn_find(n.model, "fc1.weight");
    bool good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) && steps(r, &n, &task, 0, losses) &&
                EXPECT(r, gpunn_read(weight, moved, sizeof moved) == GPUNN_OK);
    for (int i = 0; i < HIDDEN * IN && gpunn_group_rank(r->group) == 1; i++) moved[i] *= 1 + 1e-6f;
    good = good && EXPECT(r, gpunn_write(weight, moved, sizeof moved) == GPUNN_OK) &&
           EXPECT(r, gpunn_group_size(r->group) == 1 || !same_on_all(r, moved, sizeof moved)) &&
           steps(r, &n, &task, STEPS, losses) && weights(r, &n, values) &&
           EXPECT(r, same_on_all(r, values, sizeof values));
    ranked_close(&n);
    return good;
}

/* A GPU scales its F16 gradients and a CPU, which has none, does not. */
static bool check_scaled(const ranks *r)
{
    const task task = {.precision = GPUNN_PRECISION_F16};
    ranked     n = ranked_open(r->dev, &task);
    const bool good = refused(r, gpunn_distribute(n.opt, r->group), "the ranks differ", "a loss scale");
    ranked_close(&n);
    return good;
}

/* All checks: plain, with shares, and with BF16; rank 0, whose weights and statistics all take, is a CPU. */
static void test_mixed(void **state)
{
    if (emulator_set == NULL || own_gpus()) SKIP("no emulated GPU beside the CPU");
    static const char *const names[] = {"fit.ckpt", "best.safetensors"};
    for (int i = 0; i < 4 * COUNT(checks); i++)
        run_world(*state,
                  (world){.size = 2 + i % 3,
                          .timeout = 60,
                          .patience = 60,
                          .run = checks[i / 4].run,
                          .mixed = true,
                          .shard = i % 4 == 1,
                          .bf16 = i % 4 == 2,
                          .more = i % 4 == 3},
                  rank_main);
    for (int i = 0; i < 4; i++)
        run_world(*state,
                  (world){.size = 2 + i % 2,
                          .timeout = 60,
                          .patience = 60,
                          .run = i == 3 ? check_drift : check_wide,
                          .mixed = true,
                          .shard = i == 1,
                          .bf16 = i == 2,
                          .more = i % 2 > 0},
                  rank_main);
    run_world(*state, (world){.size = 2, .timeout = 60, .patience = 60, .run = check_scaled, .mixed = true},
              rank_main);
    remove_all(*state, names, COUNT(names));
}

/* ---- gradients as BF16 ---- */
/* All checks, with engines that know of it and others, and with shares. */
static void test_bf16(void **state)
{
    static const char *const names[] = {"fit.ckpt", "best.safetensors"};
    for (int i = 0; i < 2 * COUNT(checks); i++)
        run_world(*state,
                  (world){.size = 2 + i % 3,
                          .timeout = 60,
                          .patience = 60,
                          .run = checks[i / 2].run,
                          .shard = i / 2 % 2 == 1,
                          .bf16 = true,
                          .more = i % 2 == 0},
                  rank_main);
    remove_all(*state, names, COUNT(names));
}

static void test_bf16_stored(void **state)
{
    static const char *const names[] = {"fit.ckpt", "best.safetensors"};
    bool (*const runs[])(const ranks *r) = {check_means, check_adam_clipped};
    char store[32];
    for (int i = 0; i < 4 && (i < 2 || no_tcp(*state) == NULL); i++)
        run_world(*state,
                  (world){.size = 2 + i % 2,
                          .timeout = 60,
                          .patience = 60,
                          .run = runs[i % 2],
                          .bf16 = true,
                          .store = i < 2 ? NULL : free_port(store)},
                  stored_main);
    remove_all(*state, names, COUNT(names));
}

/* What this thread has got from sockets and files, but for the 8 bytes by which it asks whether these are
 * complete. */
static __thread int64_t heard;
/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): the C library's names are reserved
 * ones */
ssize_t recv(int line, void *memory, size_t bytes, int flags)
{
    ssize_t (*real)(int, void *, size_t, int) = dlsym(RTLD_NEXT, "recv");
    const ssize_t got = real(line, memory, bytes, flags);
    heard += got > 0 ? got : 0;
    return got;
}
size_t fread(void *memory, size_t size, size_t count, FILE *file)
{
    size_t (*real)(void *, size_t, size_t, FILE *) = dlsym(RTLD_NEXT, "fread");
    const size_t got = real(memory, size, count, file);
    heard += size > sizeof(uint64_t) ? (int64_t)(got * size) : 0;
    return got;
}
/* What this thread does with gradients: rank LEAVES goes as soon as rank WAITS is blocked in sending its
 * own. */
static __thread enum { TALKS, LEAVES, WAITS } manner;
static int blocked;
int        poll(struct pollfd *lines, nfds_t count, int milliseconds)
{
    int (*real)(struct pollfd *, nfds_t, int) = dlsym(RTLD_NEXT, "poll");
    if (manner == WAITS && count == 1 && (lines->events & POLLOUT) && real(lines, count, 0) == 0)
        __atomic_store_n(&blocked, 1, __ATOMIC_RELEASE);
    return real(lines, count, milliseconds);
}
ssize_t send(int line, const void *memory, size_t bytes, int flags)
{
    enum { SMALL = 1 << 16 };
    ssize_t (*real)(int, const void *, size_t, int) = dlsym(RTLD_NEXT, "send");
    const int small = SMALL;
    if (manner == WAITS && bytes > SMALL) (void)setsockopt(line, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    if (manner == LEAVES && bytes > SMALL) {
        for (int tries = 0; tries < 60000 && !__atomic_load_n(&blocked, __ATOMIC_ACQUIRE); tries++)
            (void)usleep(1000);
        (void)shutdown(line, SHUT_RDWR);
    }
    return real(line, memory, bytes, flags);
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */

/* Gradients of more values than travel at once. */
enum { ROWS = 550, COLUMNS = 2011 };
static bool check_wide(const ranks *r)
{
    const size_t     bytes = sizeof(float) * ROWS * COLUMNS;
    const int        rank = gpunn_group_rank(r->group), size = gpunn_group_size(r->group);
    float           *x = calloc(1, bytes), *got = calloc(1, bytes);
    gpunn_model     *model = gpunn_model_create(r->dev);
    gpunn_tensor    *w = gpunn_parameter(model, "w", GPUNN_SHAPE(ROWS, COLUMNS),
                                         (gpunn_init){GPUNN_INIT_ZEROS, 0, 0});
    gpunn_tensor    *in = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(ROWS, COLUMNS));
    gpunn_tensor    *loss = gpunn_sum(gpunn_mul(w, in), GPUNN_ALL, false);
    gpunn_optimizer *opt = gpunn_sgd(model, .lr = 1);
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(i % 251) * (float)(rank + 1) / 7;
    bool good = EXPECT(r, gpunn_distribute(opt, r->group) == GPUNN_OK) &&
                EXPECT(r, gpunn_write(in, x, bytes) == GPUNN_OK);
    heard = 0;
    good = good && EXPECT(r, gpunn_train_step(opt, loss) == GPUNN_OK);
    ((place *)r->user)->heard = heard;
    good = good && EXPECT(r, gpunn_read(w, got, bytes) == GPUNN_OK);
    for (int i = 0; i < ROWS * COLUMNS && good; i++) {
        float sum = 0;
        for (int other = 0; other < size; other++) {
            const float part = (float)(i % 251) * (float)(other + 1) / 7;
            sum += rounds ? as_bf16(part) : part;
        }
        const float mean = (rounds ? as_bf16(sum) : sum) * (1 / (float)size);
        good = EXPECT(r, rounds || own_gpus() == 0 ? got[i] == -mean : fabsf(got[i] + mean) <= 1e-4f);
    }
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    free(x), free(got);
    return good;
}

static void test_wide(void **state)
{
    for (int i = 0; i < 6; i++)
        run_world(*state,
                  (world){.size = 2 + i % 2,
                          .timeout = 60,
                          .patience = 60,
                          .run = check_wide,
                          .shard = i > 3,
                          .bf16 = i < 4,
                          .more = i % 4 >= 1,
                          .bucket_bytes = 1 << 20},
                  rank_main);
}

/* A rank leaves while another sends what rank 0, which waits for the first, does not take: it is told at
 * once. */
static bool check_tcp_blocked(const ranks *r)
{
    const int rank = gpunn_group_rank(r->group);
    manner = rank == 1 ? LEAVES : rank == 2 ? WAITS : TALKS;
    return EXPECT(r, !check_wide(r)) && EXPECT(r, __atomic_load_n(&blocked, __ATOMIC_ACQUIRE)) &&
           EXPECT(r, rank == 1 || strstr(gpunn_error(r->dev), "rank 1 has left: "));
}

static void test_tcp_blocked(void **state)
{
    need_tcp(*state);
    char store[32];
    for (int i = 0; i < 3; i++) {
        blocked = 0;
        run_world(*state,
                  (world){.size = 3,
                          .patience = 600,
                          .timeout = 600,
                          .run = check_tcp_blocked,
                          .shard = i == 1,
                          .bf16 = i == 2,
                          .store = free_port(store)},
                  stored_main);
    }
}

/* Ranks that share states out hear, over TCP and by files, the sums of their own part of the gradients alone,
 * and the others' parameters; over TCP rank 0 hears all gradients, by files each its part of all ranks'. */
static void *heard_main(void *user)
{
    enum { VOTES = 8192 };
    place        *p = user;
    const int64_t size = p->world->size, all = (int64_t)sizeof(float) * ROWS * COLUMNS,
                  least = all / size - 64;
    const bool tells = p->world->store && p->rank == 0, shard = p->world->shard;
    (void)stored_main(user);
    const int64_t sums = tells             ? (size - 1) * all
                         : p->world->store ? (shard ? all / size : all)
                         : shard           ? all
                                           : size * all;
    const int64_t most = sums + (shard ? all - least : 0) + VOTES;
    if (!p->good || (p->heard >= sums - size * 64 && p->heard <= most)) return NULL;
    (void)snprintf(p->why, sizeof p->why, "%lld bytes heard of at most %lld", (long long)p->heard,
                   (long long)most);
    p->good = false;
    return NULL;
}

static void test_heard(void **state)
{
    char store[32];
    for (int i = 0; i < 6 && (i < 3 || no_tcp(*state) == NULL); i++)
        run_world(*state,
                  (world){.size = 2 + i % 3,
                          .timeout = 60,
                          .patience = 60,
                          .run = check_wide,
                          .shard = i % 3 > 0,
                          .store = i < 3 ? NULL : free_port(store)},
                  heard_main);
}

/* What a step gives for sums is half of what it is in F32. */
static int64_t reduced[2];
static void   *bytes_main(void *user)
{
    place *p = user;
    (void)rank_main(user);
    (void)__atomic_add_fetch(&reduced[p->world->bf16], p->reduced, __ATOMIC_RELAXED);
    return NULL;
}

static void test_bf16_bytes(void **state)
{
    for (int size = 2; size <= 3; size++)
        for (int more = 0; more < 2; more++) {
            memset(reduced, 0, sizeof reduced);
            for (int bf16 = 0; bf16 < 2; bf16++) {
                if (emulator_reduced_bytes) (void)emulator_reduced_bytes();
                run_world(*state,
                          (world){.size = size,
                                  .timeout = 60,
                                  .patience = 60,
                                  .run = check_sgd,
                                  .bf16 = bf16 > 0,
                                  .more = more > 0},
                          bytes_main);
                if (own_gpus()) /* without the means of losses, of two turns */
                    reduced[bf16] = emulator_reduced_bytes() - 2 * STEPS * size * (int64_t)sizeof(float);
            }
            assert_true(reduced[0] > 2 * STEPS * size * HIDDEN * IN * (int64_t)sizeof(float));
            assert_int_equal(reduced[0], 2 * reduced[1]);
        }
}

/* A copy, or what else a device does in a step, that fails on one rank is told to all, at once and with its
 * words. */
static __thread int64_t left;   /* what this rank's device does until something fails; 0: nothing does */
static int              failed; /* whether anything has */
static gpunn_status     fails(void)
{
    if (left == 0 || --left > 0) return GPUNN_OK;
    __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
    return GPUNN_ERR_DEVICE;
}
static gpunn_status failing_upload(void *context, void *to, const void *from, size_t bytes)
{
    const gpunn_status status = fails();
    return status == GPUNN_OK ? gpunn_emulator_backend.upload(context, to, from, bytes) : status;
}
static gpunn_status failing_download(void *context, void *to, const void *from, size_t bytes)
{
    const gpunn_status status = fails();
    return status == GPUNN_OK ? gpunn_emulator_backend.download(context, to, from, bytes) : status;
}
static gpunn_status failing_execute(void *context, gpunn_run *run)
{
    const gpunn_status status = fails();
    return status == GPUNN_OK ? gpunn_emulator_backend.execute(context, run) : status;
}
static gpunn_status failing_scale(void *context, float *values, int64_t count, float factor, float limit)
{
    const gpunn_status status = fails();
    return status == GPUNN_OK ? gpunn_emulator_backend.scale(context, values, count, factor, limit) : status;
}

static int64_t fails_at;
static bool    check_copies(const ranks *r)
{
    enum { EACH = WHOLE / 3 };
    const int    rank = gpunn_group_rank(r->group);
    const task   task = {.optimizer = 1, .clip = rounds ? 1.0f : 0, .norm = true};
    ranked       n = ranked_open(r->dev, &task);
    int64_t      more = rank == 1 ? fails_at : 0, t[WHOLE];
    gpunn_status status = GPUNN_OK;
    float        x[WHOLE][IN];
    samples(x, t, WHOLE, 1);
    for (int step = -1; step < 2 && status == GPUNN_OK; step++) {
        if (step >= 0) status = gpunn_write(n.x, x[rank * EACH], EACH * sizeof x[0]);
        if (step >= 0 && status == GPUNN_OK) status = gpunn_write(n.t, t + rank * EACH, EACH * sizeof t[0]);
        if (!EXPECT(r, status == GPUNN_OK)) break;
        left = more; /* what is common to all ranks */
        status = step < 0 ? gpunn_distribute(n.opt, r->group) : gpunn_train_step(n.opt, n.loss);
        more = left;
        left = 0;
    }
    const bool bad = __atomic_load_n(&failed, __ATOMIC_RELAXED) != 0;
    const bool good = EXPECT(r, status == (bad ? GPUNN_ERR_DEVICE : GPUNN_OK)) &&
                      EXPECT(r, !bad || rank == 1 || strncmp(gpunn_error(r->dev), "rank 1: ", 8) == 0);
    ranked_close(&n);
    return good;
}

static void test_copies(void **state)
{
    if (emulator_set == NULL || own_gpus()) SKIP("no emulated GPU whose gradients go through host memory");
    gpunn_backend failing = gpunn_emulator_backend;
    failing.upload = failing_upload;
    failing.download = failing_download;
    failing.scale = failing_scale;
    failing.execute = failing_execute;
    for (int i = 0; i < 4; i++) {
        fails_at = 1;
        do {
            failed = 0;
            run_world(*state,
                      (world){.size = 3,
                              .timeout = 10,
                              .patience = 60,
                              .run = check_copies,
                              .backend = &failing,
                              .shard = i % 2 == 1,
                              .more = i != 3,
                              .bf16 = i == 2},
                      rank_main);
            fails_at++;
        } while (failed);
        assert_true(fails_at > 20); /* the last one had nothing to fail at */
    }
}

/* The ranks' groups are to be alike. */
static void *unlike_main(void *user)
{
    place        *p = user;
    gpunn_device *dev = rank_device(p);
    const ranks   r = {dev, NULL, p->world->folder, p->why, gather, p};
    p->good = EXPECT(&r, gpunn_group_open(dev, ENGINE(p), .share_gpu = true, .type = GPUNN_GROUP_HOST,
                                          .bf16_gradients = p->rank == 1) == NULL) &&
              refused(&r, gpunn_last_status(dev), "the ranks differ", "gradients as BF16");
    gpunn_device_close(dev);
    return NULL;
}

static void test_unlike(void **state)
{
    run_ranks_in(*state, unlike_main, NULL, 2, 60, 60);
}

/* Layers that come later have no share before the optimizer is distributed again; outside the group the
 * states are whole. */
static bool check_later_layers(const ranks *r, ranked *n, const task *task, int64_t missing)
{
    float        losses[STEPS];
    const size_t before = gpunn_memory_allocated(r->dev);
    bool         good = EXPECT(r, gpunn_distribute(n->opt, NULL) == GPUNN_OK) &&
                EXPECT(r, gpunn_memory_allocated(r->dev) - before == (size_t)missing) &&
                EXPECT(r, gpunn_distribute(n->opt, r->group) == GPUNN_OK) &&
                EXPECT(r, gpunn_memory_allocated(r->dev) == before) && steps(r, n, task, STEPS, losses);
    (void)gpunn_linear(n->hidden, "late", .out_features = 9);
    good = good &&
           refused(r, gpunn_train_step(n->opt, n->loss), "layers have been added",
                   "gpunn_distribute again") &&
           EXPECT(r, gpunn_distribute(n->opt, r->group) == GPUNN_OK) && steps(r, n, task, 2 * STEPS, losses);
    return good;
}

/* The bits are those of ranks that have all states each, and a rank has the memory of its share alone. */
static void *shares_main(void *user)
{
    /* places of the model's parameters; Adam's two, averages */
    enum { FLOATS = 80 + 16 + 48 + 16, STATE_COUNT = 3 };
    place        *p = user;
    const task    task = {.optimizer = 1, .average = 0.8f, .precision = p->world->precision};
    gpunn_device *dev = rank_device(p);
    const int  size = p->world->size, each = (FLOATS / size + 15) / 16 * 16, left = FLOATS - p->rank * each;
    const bool scatters = p->world->more && own_gpus() == 0, stored = p->world->patience > 0;
    const int64_t missing = (int64_t)sizeof(float) * STATE_COUNT * (FLOATS - (left < each ? left : each));
    float         values[2][2 * NUMBERS] = {{0}}, losses[2][STEPS];
    size_t        bytes[2] = {0, 0};
    p->good = true;
    for (int i = 0; i < 2 && p->good; i++) {
        gpunn_group *group = stored
                                 ? stored_group(p, dev, i == 1)
                                 : gpunn_group_open(dev, ENGINE(p), .timeout = 60,
                                                    .share_gpu = own_gpus() == 0, .shard = i == 1,
                                                    .type = own_gpus() ? GPUNN_GROUP_NCCL : GPUNN_GROUP_HOST);
        const ranks  r = {dev, group, p->world->folder, p->why, gather, p};
        ranked       n = ranked_open(dev, &task);
        p->good = EXPECT(&r, group) && EXPECT(&r, gpunn_distribute(n.opt, group) == GPUNN_OK) &&
                  steps(&r, &n, &task, 0, losses[i]) && weights(&r, &n, values[i]) &&
                  EXPECT(&r, gpunn_ema_swap(n.opt) == GPUNN_OK) && weights(&r, &n, values[i] + NUMBERS) &&
                  EXPECT(&r, gpunn_ema_swap(n.opt) == GPUNN_OK);
        bytes[i] = gpunn_memory_allocated(dev);
        if (i == 1)
            p->good = p->good && EXPECT(&r, memcmp(values[0], values[1], sizeof values[0]) == 0) &&
                      EXPECT(&r, memcmp(losses[0], losses[1], sizeof losses[0]) == 0) &&
                      EXPECT(&r, p->scattered == (scatters ? STEPS : 0)) &&
                      EXPECT(&r, bytes[0] - bytes[1] == (size_t)missing) &&
                      check_later_layers(&r, &n, &task, missing);
        ranked_close(&n);
        gpunn_group_close(group);
        if (stored) p->good = meet(p, NULL) && p->good; /* rank 0 has cleared the folder */
    }
    gpunn_device_close(dev);
    return NULL;
}

static void test_shared_memory(void **state)
{
    char store[32];
    for (int i = 0; i < 6; i++)
        run_world(*state,
                  (world){.size = 2 + i / 2,
                          .timeout = 60,
                          .more = i % 2 > 0,
                          .precision = i / 2 == 1 ? GPUNN_PRECISION_BF16 : GPUNN_PRECISION_F32},
                  shares_main);
    for (int i = 0; i < 6 && (i < 3 || no_tcp(*state) == NULL); i++)
        run_world(
            *state,
            (world){
                .size = 2 + i % 3, .timeout = 60, .patience = 60, .store = i < 3 ? NULL : free_port(store)},
            shares_main);
}

static bool check_trust(const ranks *r)
{
    const task       task = {.optimizer = 0};
    ranked           n = ranked_open(r->dev, &task);
    gpunn_optimizer *lamb = gpunn_lamb(n.model, .lr = 0.01f);
    const bool       good = EXPECT(r, gpunn_distribute(lamb, r->group) == GPUNN_ERR_UNSUPPORTED) &&
                      EXPECT(r, strstr(gpunn_error(r->dev), "gpunn_lamb has a trust ratio"));
    gpunn_optimizer_destroy(lamb);
    gpunn_clear_error(r->dev);
    gpunn_optimizer *muon = gpunn_muon(n.model, .lr = 0.01f);
    const bool       also = EXPECT(r, gpunn_distribute(muon, r->group) == GPUNN_ERR_UNSUPPORTED) &&
                      EXPECT(r, strstr(gpunn_error(r->dev), "gpunn_muon has matrix updates"));
    gpunn_optimizer_destroy(muon);
    ranked_close(&n);
    return good && also;
}

static void test_trust(void **state)
{
    run_world(*state, (world){.size = 2, .timeout = 60, .patience = 60, .run = check_trust, .shard = true},
              rank_main);
}

/* One of two processes, whose ranks are in the environment. A forked process cannot use a real GPU, so the CPU
 * takes its place. */
static bool train_alone_and_together(fixture *f, int rank)
{
    const test_backend *backend = strcmp(f->backend->name, "cuda") == 0 ? &backends[0] : f->backend;
    char                why[WHY] = "", number[2] = {(char)('0' + rank), 0};
    float               values[2][NUMBERS] = {{0}}, losses[STEPS];
    const task          task = {.optimizer = 0};
    gpunn_device       *dev = gpunn_device_open(ON(backend), .seed = 1, .threads = 1);
    (void)setenv("RANK", number, 1);
    gpunn_group *group = gpunn_group_open(dev, .share_gpu = true, .timeout = 60);
    const ranks  r = {dev, group, f->folder, why, NULL, NULL}, one = {dev, NULL, f->folder, why, NULL, NULL};
    const bool   good = EXPECT(&r, gpunn_group_size(group) == 2 && gpunn_group_rank(group) == rank) &&
                      train(&r, &task, values[0], losses) && train(&one, &task, values[1], losses) &&
                      EXPECT(&r, close_to(values[0], values[1], NUMBERS, 2e-5));
    if (!good) print_message("# rank %d: %s\n", rank, why);
    gpunn_group_close(group);
    gpunn_device_close(dev);
    return good;
}

static void two_processes(fixture *f)
{
    int         ended = -1;
    const pid_t other = fork();
    if (other == 0) _exit(train_alone_and_together(f, 1) ? 0 : 1);
    const bool good = train_alone_and_together(f, 0);
    assert_int_equal(waitpid(other, &ended, 0), other);
    assert_true(good);
    assert_int_equal(ended, 0);
}

static void test_environment(void **state)
{
    fixture *f = *state;
    char     store[32];
    (void)setenv("WORLD_SIZE", "2", 1);
    FAILS_NULL(f->dev, gpunn_group_open(f->dev), GPUNN_ERR_STATE, "WORLD_SIZE is 2", "GPUNN_STORE");
    (void)unsetenv("WORLD_SIZE");
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                                        "SLURM_STEP_NUM_TASKS"};
    for (int i = 0; i < 4; i++) { /* ranks of which each would be alone, with the first's rank and files */
        (void)setenv(sizes[i], "3", 1);
        FAILS_NULL(f->dev, gpunn_group_open(f->dev), GPUNN_ERR_STATE, sizes[i], "is 3", "-DGPUNN_MPI");
        (void)setenv("WORLD_SIZE", "1", 1); /* one process that torchrun has started within those */
        gpunn_group *alone = gpunn_group_open(f->dev);
        assert_int_equal(gpunn_group_size(alone), 1);
        gpunn_group_close(alone);
        (void)unsetenv("WORLD_SIZE");
        (void)unsetenv(sizes[i]);
    }
    (void)setenv("SLURM_NTASKS", "4", 1); /* as in sbatch's script, which is one process */
    (void)setenv("SLURM_PROCID", "0", 1);
    gpunn_group *script = gpunn_group_open(f->dev);
    assert_int_equal(gpunn_group_size(script), 1);
    gpunn_group_close(script);
    (void)unsetenv("SLURM_NTASKS");
    (void)unsetenv("SLURM_PROCID");
    (void)setenv("WORLD_SIZE", "2", 1);
    (void)setenv("GPUNN_STORE", folder_of(f), 1);
    two_processes(f);
    (void)unsetenv("GPUNN_STORE");
    const bool tcp = no_tcp(f) == NULL;
    (void)setenv("MASTER_ADDR", "localhost", 1);
    (void)setenv("MASTER_PORT", strrchr(free_port(store), ':') + 1, 1);
    if (tcp) two_processes(f);
    (void)unsetenv("MASTER_ADDR");
    (void)unsetenv("MASTER_PORT");
    (void)unsetenv("RANK");
    (void)unsetenv("WORLD_SIZE");
}

/* ---- faults ---- */
/* Such as an earlier run has left; and a folder that is none. */
static void test_store_used(void **state)
{
    static const char *const names[] = {"0.0"};
    fixture                 *f = *state;
    FILE                    *file = fopen(test_path(f, "0.0"), "wb");
    assert_non_null(file);
    (void)fclose(file);
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .store = f->folder), GPUNN_ERR_STATE,
               "files of rank 0 of another run");
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .store = "no such folder"), GPUNN_ERR_IO, "rank 0's file",
               "no such folder");
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .store = f->folder, .rank = 2, .size = 2), GPUNN_ERR_ARGUMENT,
               "rank is 2");
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .store = f->folder, .type = (gpunn_group_type)9),
               GPUNN_ERR_ARGUMENT, "type 9 is unknown");
    remove_all(f, names, 1);
    if (f->backend->type == GPUNN_DEVICE_CPU)
        FAILS_NULL(f->dev, gpunn_group_open(f->dev, .store = f->folder, .size = 1, .type = GPUNN_GROUP_NCCL),
                   GPUNN_ERR_UNSUPPORTED, "NCCL works between GPUs");
}

static bool check_store_missing(const ranks *r)
{
    const task task = {.optimizer = 1};
    ranked     n = ranked_open(r->dev, &task);
    bool       good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK);
    if (gpunn_group_rank(r->group) < 2)
        good = good && EXPECT(r, gpunn_optimizer_step(n.opt) == GPUNN_ERR_DEVICE) &&
               EXPECT(r, strstr(gpunn_error(r->dev), "rank 2 has not arrived within 0.2 seconds"));
    gpunn_clear_error(r->dev);
    ranked_close(&n);
    return good;
}

static void test_store_missing(void **state)
{
    static const char *const names[] = {"0.0", "0.1", "1.0", "1.1", "2.0", "2.1"};
    run_ranks_in(*state, stored_main, check_store_missing, 3, 60, 0.2);
    remove_all(*state, names, COUNT(names));
}
/* The last rank does not come: the others are told so, now and whenever they ask again, and everything
 * closes. */
static bool check_missing(const ranks *r)
{
    const task task = {.optimizer = 1};
    float      losses[STEPS];
    ranked     n = ranked_open(r->dev, &task);
    bool good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) && steps(r, &n, &task, 0, losses);
    for (int turn = 0; turn < 2 && good && gpunn_group_rank(r->group) < gpunn_group_size(r->group) - 1;
         turn++) {
        good = EXPECT(r, gpunn_train_step(n.opt, n.loss) == GPUNN_ERR_DEVICE) &&
               EXPECT(r, strstr(gpunn_error(r->dev), turn ? "failed before" : "rank 2 is missing"));
        gpunn_clear_error(r->dev);
    }
    ranked_close(&n);
    return good;
}

static void test_missing(void **state)
{
    run_ranks(*state, check_missing, 3, 0.5);
}

/* What a rank's GPU waits for does not come: whoever waits for the GPU is told so, then and later, and
 * everything closes, although graphs hold the communicator: the library's own and, with a stream of the
 * program's, one of that. */
static bool check_stuck(const ranks *r)
{
    const task task = {.optimizer = 1};
    float      losses[STEPS];
    int        here[MOST] = {0};
    void      *stream = ((place *)r->user)->stream, *graph = NULL;
    ranked     n = ranked_open(r->dev, &task);
    bool good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) && steps(r, &n, &task, 0, losses) &&
                EXPECT(r, gpunn_synchronize(r->dev) == GPUNN_OK);
    if (stream && good) {
        caller_begin_capture(stream);
        good = EXPECT(r, gpunn_train_step(n.opt, n.loss) == GPUNN_OK);
        graph = caller_end_capture(stream);
    }
    good = good && r->gather(r->user, here, sizeof *here);
    emulator_set("EMULATOR_NCCL", "-1");
    good = good && r->gather(r->user, here, sizeof *here);
    if (graph) caller_launch(graph, stream);
    good = good && EXPECT(r, graph || gpunn_train_step(n.opt, n.loss) == GPUNN_OK) &&
           EXPECT(r, gpunn_synchronize(r->dev) == GPUNN_ERR_DEVICE) &&
           /* the first that gives up */
           EXPECT(r, strstr(gpunn_error(r->dev), "a rank has not arrived within 2 seconds") ||
                         strstr(gpunn_error(r->dev), "NCCL reports remote process exited"));
    gpunn_clear_error(r->dev);
    good = good && EXPECT(r, gpunn_train_step(n.opt, n.loss) == GPUNN_ERR_DEVICE) &&
           EXPECT(r, strstr(gpunn_error(r->dev), "restart from the last checkpoint"));
    emulator_set("EMULATOR_NCCL", "1");
    ranked_close(&n);
    if (graph) caller_forget_graph(graph);
    return good;
}

static void test_stuck(void **state)
{
    if (emulator_set == NULL || own_gpus() == 0) SKIP("no NCCL that is emulated");
    const int faults = emulator_faults();
    for (int captures = 0; captures < (caller_stream ? 2 : 1); captures++)
        run_world(
            *state,
            (world){.size = 3, .timeout = 60, .patience = 2, .run = check_stuck, .captures = captures > 0},
            rank_main);
    assert_int_equal(emulator_faults(), faults);
}

/* A rank whose runs are new each time captures none, while the others replay theirs: the same numbers all the
 * same. */
static __thread bool forgets;
static gpunn_status  forgetful_execute(void *context, gpunn_run *run)
{
    const gpunn_status status = gpunn_emulator_backend.execute(context, run);
    if (forgets && run->captured) gpunn_emulator_backend.forget(context, run->captured);
    if (forgets) run->captured = NULL;
    return status;
}

static bool check_forgets(const ranks *r)
{
    forgets = gpunn_group_rank(r->group) == 1;
    return check_sgd(r);
}

static void test_captured_by_some(void **state)
{
    if (emulator_set == NULL || own_gpus() == 0) SKIP("no NCCL that is emulated");
    const int     faults = emulator_faults();
    gpunn_backend forgetful = gpunn_emulator_backend;
    forgetful.execute = forgetful_execute;
    run_world(*state,
              (world){.size = 3, .timeout = 60, .patience = 60, .run = check_forgets, .backend = &forgetful},
              rank_main);
    assert_int_equal(emulator_faults(), faults);
}

/* One whose run fails behind the vote on it: the others, whose GPUs wait for its part, hear of it with their
 * next one, and all close. */
static bool check_late(const ranks *r)
{
    const task task = {.optimizer = 1, .norm = true, .sync = true};
    const int  rank = gpunn_group_rank(r->group);
    float      losses[STEPS];
    ranked     n = ranked_open(r->dev, &task);
    bool good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) && steps(r, &n, &task, 0, losses);
    gpunn_status status = GPUNN_OK;
    left = rank == 1 ? fails_at : 0;
    for (int step = 0; step < 3 && good && status == GPUNN_OK; step++)
        status = gpunn_train_step(n.opt, n.loss);
    left = 0;
    good = good && EXPECT(r, status == GPUNN_ERR_DEVICE) &&
           EXPECT(r, rank == 1 || strncmp(gpunn_error(r->dev), "rank 1: ", 8) == 0);
    gpunn_clear_error(r->dev);
    good = good && EXPECT(r, gpunn_train_step(n.opt, n.loss) == GPUNN_ERR_DEVICE) &&
           EXPECT(r, strstr(gpunn_error(r->dev), "restart from the last checkpoint"));
    ranked_close(&n);
    return good;
}

static void test_late(void **state)
{
    if (emulator_set == NULL || own_gpus() == 0) SKIP("no NCCL that is emulated");
    gpunn_backend failing = gpunn_emulator_backend;
    failing.execute = failing_execute;
    for (fails_at = 1; fails_at <= 4; fails_at++) /* before a vote, behind it */
        run_world(*state,
                  (world){.size = 3, .timeout = 600, .patience = 120, .run = check_late, .backend = &failing},
                  rank_main);
}

/* Two ranks that have opened the same GPU without saying that they mean to. */
static void *refused_main(void *user)
{
    place *p = user;
    test_memory_init(&p->memory);
    gpunn_device *dev = gpunn_device_open(ON(first_backend()), .index = p->rank ? GPUNN_LOCAL_RANK : 0,
                                          .threads = 1, .realloc_fn = hook_realloc, .user = &p->memory);
    const ranks   r = {dev, NULL, p->world->folder, p->why, gather, p};
    p->good = EXPECT(&r, gpunn_group_open(dev, ENGINE(p)) == NULL) &&
              refused(&r, gpunn_last_status(dev), "ranks 0 and 1 are on the same GPU", "GPUNN_LOCAL_RANK");
    gpunn_device_close(dev);
    return NULL;
}

static void test_same_gpu(void **state)
{
    fixture *f = *state;
    char     count[16];
    if (f->backend->type != GPUNN_DEVICE_CUDA) SKIP("no GPU that ranks could share");
    (void)snprintf(count, sizeof count, "%d", own_gpus()); /* the first GPU again */
    (void)setenv("LOCAL_RANK", count, 1);
    run_ranks_in(f, refused_main, NULL, 2, 60, 60);
    (void)unsetenv("LOCAL_RANK");
}

/* One that has no memory for gpunn_profile's own tells the others, who are in the next run. */
static bool check_profile(const ranks *r)
{
    const task   task = {.norm = true, .sync = true};
    test_memory *memory = &((place *)r->user)->memory;
    const int    last = gpunn_group_size(r->group) - 1;
    float        losses[STEPS];
    char         who[32];
    ranked       n = ranked_open(r->dev, &task);
    bool good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) && steps(r, &n, &task, 0, losses);
    (void)snprintf(who, sizeof who, "rank %d: ", last);
    for (int turn = 0; turn < 4 && good; turn++) { /* in turns 0 and 1 all else gets its memory */
        gpunn_optimizer *opt = turn % 2 ? n.opt : NULL;
        if (turn >= 2 && gpunn_group_rank(r->group) == last) memory->fail_at = memory->calls + 1;
        const gpunn_status status = gpunn_profile(n.model, .loss = n.loss, .optimizer = opt, .runs = 2,
                                                  .peak_flops = 1, .peak_bytes = 1);
        memory->fail_at = 0;
        good = EXPECT(r, status == (turn < 2 ? GPUNN_OK : GPUNN_ERR_MEMORY)) &&
               EXPECT(r, turn < 2 || gpunn_group_rank(r->group) == last ||
                             strncmp(gpunn_error(r->dev), who, strlen(who)) == 0);
        gpunn_clear_error(r->dev);
    }
    good = good && steps(r, &n, &task, 0, losses);
    ranked_close(&n);
    return good;
}

static void test_profile(void **state)
{
    run_ranks(*state, check_profile, 3, 20);
}

/* A file that only some ranks could load stops all, with the reason. */
static bool check_lost_file(const ranks *r)
{
    const task task = {.optimizer = 1};
    ranked     n = ranked_open(r->dev, &task);
    char       path[300];
    (void)snprintf(path, sizeof path, "%s/%s", r->folder,
                   gpunn_group_rank(r->group) == 1 ? "nowhere" : "fit.ckpt");
    bool good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) &&
                EXPECT(r, gpunn_checkpoint_save(n.opt, NULL, path) == GPUNN_OK) &&
                EXPECT(r, gpunn_checkpoint_load(n.opt, NULL, path) == GPUNN_ERR_IO) &&
                EXPECT(r, strstr(gpunn_error(r->dev), "nowhere"));
    ranked_close(&n);
    return good;
}

static void test_lost_file(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "fit.ckpt");
    run_ranks(f, check_lost_file, 2, 60);
    (void)unlink(path);
}

/* A checkpoint of two ranks goes on with three, and with one that is none of a group. */
static bool check_part(const ranks *r)
{
    enum { COUNT = 5 * WHOLE };
    const task task = {.optimizer = 1};
    float      x[COUNT][IN];
    int64_t    t[COUNT];
    char       path[300];
    ranked     n = ranked_open(r->dev, &task);
    (void)snprintf(path, sizeof path, "%s/fit.ckpt", r->folder);
    samples(x, t, COUNT, 3);
    gpunn_loader *loader = fit_loader(r, &n, x[0], t, COUNT);
    const bool    first = access(path, R_OK) != 0;
    bool good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) && EXPECT(r, loader != NULL) &&
                (first || EXPECT(r, gpunn_checkpoint_load(n.opt, loader, path) == GPUNN_OK)) &&
                EXPECT(r, gpunn_fit(n.opt, .loss = n.loss, .train = loader, .epochs = 2) == GPUNN_OK) &&
                EXPECT(r, gpunn_checkpoint_save(n.opt, loader, path) == GPUNN_OK) &&
                EXPECT(r, gpunn_step_count(n.opt) == (first ? 10 : 20));
    gpunn_loader_destroy(loader);
    ranked_close(&n);
    return good;
}

/* The same in the middle of an epoch: what two ranks have seen of its order is not seen again, and all else
 * is. */
static bool check_middle(const ranks *r)
{
    enum { EACH = 2, COUNT = 24, SEEN = 12 };
    const task   task = {.optimizer = 0};
    const int    rank = gpunn_group_rank(r->group), size = gpunn_group_size(r->group);
    float        x[COUNT][IN], order[COUNT], got[EACH][IN];
    int64_t      t[COUNT];
    char         path[300];
    gpunn_group *groups[2] = {NULL, r->group}; /* one rank tells the order */
    ranked       n = ranked_open(r->dev, &task);
    bool         good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK);
    (void)snprintf(path, sizeof path, "%s/fit.ckpt", r->folder);
    samples(x, t, COUNT, 3);
    for (int i = 0; i < COUNT; i++) x[i][0] = (float)i;
    const bool first = access(path, R_OK) != 0;
    for (int together = 0; together < 2 && good; together++) {
        gpunn_loader *loader = gpunn_loader_create(
            n.model, .fields = {{.input = n.x, .samples = x}, {.input = n.t, .samples = t}}, .count = COUNT,
            .batch_size = EACH, .shuffle = true, .seed = 5, .group = groups[together]);
        good = EXPECT(r, loader != NULL);
        if (together && good && !first)
            good = EXPECT(r, gpunn_checkpoint_load(n.opt, loader, path) == GPUNN_OK);
        const int begin = together && !first ? SEEN : 0, end = together && first ? SEEN : COUNT;
        const int ranks = together ? size : 1, own = together ? rank : 0;
        for (int at = begin; at < end && good; at += EACH * ranks) {
            good = EXPECT(r, gpunn_next(loader)) && EXPECT(r, gpunn_read(n.x, got, sizeof got) == GPUNN_OK);
            for (int i = 0; i < EACH && good; i++) {
                if (!together) order[at + i] = got[i][0];
                good = EXPECT(r, got[i][0] == order[at + own * EACH + i]);
            }
        }
        if (together && good && first)
            good = EXPECT(r, gpunn_checkpoint_save(n.opt, loader, path) == GPUNN_OK);
        if (together && good && !first) good = EXPECT(r, !gpunn_next(loader));
        gpunn_loader_destroy(loader);
    }
    gpunn_loader *odd = gpunn_loader_create(
        n.model, .fields = {{.input = n.x, .samples = x}, {.input = n.t, .samples = t}}, .count = COUNT,
        .batch_size = 5, .shuffle = true, .seed = 5);
    good = good && EXPECT(r, gpunn_checkpoint_load(n.opt, odd, path) == GPUNN_ERR_STATE) &&
           EXPECT(r, strstr(gpunn_error(r->dev),
                            "had read 3 batches of 4 samples on all ranks, where no batch of 5 begins"));
    gpunn_loader_destroy(odd);
    ranked_close(&n);
    return good;
}

static void test_other_count(void **state)
{
    fixture *f = *state;
    for (int size = 1; size <= 3; size++) {
        const char *path = test_path(f, "fit.ckpt");
        world       w = {.size = 2, .timeout = 60, .patience = 60, .run = check_middle};
        run_world(f, w, rank_main);
        w.size = size;
        run_world(f, w, rank_main);
        (void)unlink(path);
    }
    for (int size = 1; size <= 3; size++) {
        const char *path = test_path(f, "fit.ckpt");
        world       w = {.size = 2, .timeout = 60, .patience = 60, .run = check_part, .shard = size > 1};
        run_world(f, w, rank_main);
        w.size = size;
        w.shard = size == 2;
        run_world(f, w, rank_main);
        (void)unlink(path);
    }
}

static void test_arguments(void **state)
{
    fixture     *f = *state;
    const task   task = {.optimizer = 0};
    gpunn_group *group = NULL;
    FAILS_NULL(NULL, gpunn_group_open(NULL), GPUNN_ERR_ARGUMENT, "device");
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .rank = 1), GPUNN_ERR_ARGUMENT, "all_reduce");
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .timeout = -1), GPUNN_ERR_ARGUMENT, "timeout", "-1");
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .all_reduce = all_reduce), GPUNN_ERR_ARGUMENT, "all of them");
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .reduce_scatter = reduce_scatter), GPUNN_ERR_ARGUMENT,
               "all of them");
    FAILS_NULL(f->dev, gpunn_group_open(f->dev, .all_reduce_bf16 = all_reduce_bf16), GPUNN_ERR_ARGUMENT,
               "all of them");
    FAILS_NULL(f->dev,
               gpunn_group_open(f->dev, .rank = 2, .size = 2, .all_reduce = all_reduce,
                                .all_gather = all_gather, .broadcast = broadcast),
               GPUNN_ERR_ARGUMENT, "rank is 2 and size 2");
    FAILS(NULL, gpunn_distribute(NULL, NULL), GPUNN_ERR_ARGUMENT, "optimizer");
    assert_int_equal(gpunn_group_size(NULL), 1);
    group = MADE(f->dev, gpunn_group_open(f->dev));
    assert_int_equal(gpunn_group_size(group), 1);
    assert_int_equal(gpunn_group_rank(group), 0);
    ranked n = ranked_open(f->dev, &task);
    OK(f->dev, gpunn_distribute(n.opt, group));
    OK(f->dev, gpunn_distribute(n.opt, NULL));
    OK(f->dev, gpunn_distribute(n.opt, group));
    gpunn_group_close(group); /* the optimizer has it still */
    float   x[2][IN] = {{1}, {2}};
    int64_t t[2] = {0, 1};
    OK(f->dev, gpunn_write(n.x, x, sizeof x));
    OK(f->dev, gpunn_write(n.t, t, sizeof t));
    OK(f->dev, gpunn_train_step(n.opt, n.loss));
    ranked_close(&n);
}

/* An engine of two ranks of which the other one says the same. user: counts the calls. */
static gpunn_status echo_reduce(void *user, float *values, int64_t count)
{
    ++*(int *)user;
    for (int64_t i = 0; i < count; i++) values[i] *= 2;
    return GPUNN_OK;
}
static gpunn_status echo_gather(void *user, void *parts, size_t bytes)
{
    ++*(int *)user;
    memcpy((char *)parts + bytes, parts, bytes);
    return GPUNN_OK;
}
static gpunn_status echo_broadcast(void *user, void *memory, size_t bytes, int root)
{
    (void)memory, (void)bytes, (void)root;
    ++*(int *)user;
    return GPUNN_OK;
}

/* A process that is forked from a rank is none: it says nothing to the others, also where it closes the
 * group. */
static void test_forked_rank(void **state)
{
    (void)state;
    const task    task = {.optimizer = 0};
    int           calls = 0, before, ended = -1;
    const float   x[2][IN] = {{1}, {2}};
    const int64_t t[2] = {0, 1};
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 1);
    gpunn_group  *group = MADE(dev, gpunn_group_open(dev, .size = 2, .all_reduce = echo_reduce,
                                                     .all_gather = echo_gather, .broadcast = echo_broadcast,
                                                     .user = &calls));
    ranked        n = ranked_open(dev, &task);
    OK(dev, gpunn_distribute(n.opt, group));
    OK(dev, gpunn_write(n.x, x, sizeof x));
    OK(dev, gpunn_write(n.t, t, sizeof t));
    OK(dev, gpunn_train_step(n.opt, n.loss));
    before = calls;
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        (void)alarm(60);
        const bool refused = gpunn_train_step(n.opt, n.loss) == GPUNN_ERR_STATE &&
                             strstr(gpunn_error(dev), "forked from rank 0");
        ranked_close(&n);
        gpunn_group_close(group);
        gpunn_device_close(dev);
        _exit(refused && calls == before ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_int_equal(ended, 0);
    OK(dev, gpunn_train_step(n.opt, n.loss));
    assert_true(calls > before);
    ranked_close(&n);
    gpunn_group_close(group);
    gpunn_device_close(dev);
}

static void test_local_rank(void **state)
{
    (void)state;
    (void)setenv("SLURM_LOCALID", "0", 1); /* srun starts one torchrun on each machine, and that the ranks */
    (void)setenv("LOCAL_RANK", "3", 1);
    assert_int_equal(gpunn_local_rank(), 3);
    (void)unsetenv("LOCAL_RANK");
    (void)setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    assert_int_equal(gpunn_local_rank(), 1);
    (void)unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
    assert_int_equal(gpunn_local_rank(), 0);
    (void)unsetenv("SLURM_LOCALID");
    assert_int_equal(gpunn_local_rank(), 0);
}

int main(void)
{
    static struct CMUnitTest tests[3 * COUNT(checks) + 33];
    int                      count = 0;
    for (int i = 0; i < COUNT(checks); i++)
        count += each_backend(tests + count, checks[i].name, test_check, &checks[i]);
    const struct CMUnitTest others[] = {test_with_device(test_bf16),
                                        test_with_device(test_bf16_stored),
                                        test_with_device(test_bf16_bytes),
                                        test_with_device(test_wide),
                                        test_with_device(test_unlike),
                                        test_with_device(test_profile),
                                        test_with_device(test_shares),
                                        test_with_device(test_shared_memory),
                                        test_with_device(test_trust),
                                        test_with_device(test_overlap),
                                        test_with_device(test_store),
                                        test_with_device(test_environment),
                                        test_with_device(test_tcp),
                                        test_with_device(test_tcp_strangers),
                                        test_with_device(test_tcp_faults),
                                        test_with_device(test_store_used),
                                        test_with_device(test_store_missing),
                                        test_with_device(test_missing),
                                        test_with_device(test_stuck),
                                        test_with_device(test_late),
                                        test_with_device(test_same_gpu),
                                        test_with_device(test_lost_file),
                                        test_with_device(test_copies),
                                        test_with_device(test_other_count),
                                        test_with_device(test_arguments),
                                        test_with_device(test_processors),
                                        test_with_device(test_heard),
                                        test_with_device(test_mixed),
                                        test_with_device(test_tcp_blocked),
                                        test_with_device(test_tcp_sockets),
                                        test_with_device(test_captured_by_some),
                                        cmocka_unit_test(test_local_rank),
                                        cmocka_unit_test(test_forked_rank)};
    for (int i = 0; i < COUNT(others); i++) tests[count++] = others[i];
    return _cmocka_run_group_tests("group", tests, (size_t)count, NULL, NULL);
}
