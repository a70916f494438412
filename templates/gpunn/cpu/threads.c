#include "cpu/threads.h"
#include "base/device.h"
#include "base/time.h"

/* ---- threads: a lock with one condition variable ("something has changed"), thread start and join ------ */

/* ---- thread pools that share the work of a CPU device --------------------------------------------------- *
 * A pool is the program's thread plus
 * worker threads. The first task that is large enough starts the workers; they end with the device. A waiting
 * thread polls the word that it waits for during GPUNN__SPIN_SECONDS, which spans the time from one op to the
 * next. Then it sleeps, so that on a busy machine the processor goes to threads that have work, including
 * those of this pool. */

#define GPUNN__SPIN_SECONDS 30e-6 /* seconds */

#if defined(__GNUC__)
#define GPUNN__LOAD(word) __atomic_load_n((word), __ATOMIC_SEQ_CST)
#define GPUNN__STORE(word, value) __atomic_store_n((word), (value), __ATOMIC_SEQ_CST)
#define GPUNN__ADD_TO(word, value) __atomic_add_fetch((word), (uint32_t)(value), __ATOMIC_SEQ_CST)
#if defined(__x86_64__) || defined(__i386__)
#define GPUNN__PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define GPUNN__PAUSE() __asm__ volatile("yield")
#else
#define GPUNN__PAUSE() ((void)0)
#endif
#else
#define GPUNN__LOAD(word) ((uint32_t)InterlockedOr((volatile LONG *)(word), 0))
#define GPUNN__STORE(word, value) ((void)InterlockedExchange((volatile LONG *)(word), (LONG)(value)))
#define GPUNN__ADD_TO(word, value) ((uint32_t)InterlockedAdd((volatile LONG *)(word), (LONG)(value)))
#define GPUNN__PAUSE() YieldProcessor()
#endif

GPUNN__INTERNAL GPUNN__THREAD_LOCAL gpunn__thread_pool *gpunn__current_pool;

GPUNN__INTERNAL GPUNN__THREAD_LOCAL int gpunn__task_threads;

/* Initializes a pool without threads. In a forked child, locks that the parent's threads held are abandoned
 * as they are. */
static void gpunn__thread_pool_begin(gpunn__thread_pool *pool)
{
    pool->started = 0;
    pool->process = GPUNN__PROCESS();
    pool->ending = false;
    pool->sleepers = pool->arrived = pool->slept = 0;
    GPUNN__MONITOR_OPEN(&pool->monitor);
}

#ifndef GPUNN_NO_THREADS
/* After poll 1, 2, ... of a word: whether to poll again. Returns false once GPUNN__SPIN_SECONDS has passed
 * since the first poll. */
static bool gpunn__look_again(int look, double *end)
{
    enum { LOOKS = 64 }; /* polls between two readings of the clock: about a microsecond */
    GPUNN__PAUSE();
    if (look % LOOKS) return true;
    const double now = gpunn__seconds();
    if (look == LOOKS) *end = now + GPUNN__SPIN_SECONDS;
    return now < *end;
}

/* Returns when *word differs from `old`. slept: NULL, or a word that is set to 1 before the thread sleeps. */
static void gpunn__thread_pool_wait(gpunn__thread_pool *pool, const uint32_t *word, uint32_t old,
                                    uint32_t *slept)
{
    double end = 0;
    for (int look = 1; GPUNN__LOAD(word) == old; look++) {
        if (gpunn__look_again(look, &end)) continue;
        if (slept) GPUNN__STORE(slept, 1);
        GPUNN__LOCK(&pool->monitor);
        (void)GPUNN__ADD_TO(&pool->sleepers, 1);
        while (GPUNN__LOAD(word) == old) GPUNN__WAIT(&pool->monitor);
        (void)GPUNN__ADD_TO(&pool->sleepers, -1);
        GPUNN__UNLOCK(&pool->monitor);
        return;
    }
}

/* Wakes the sleeping threads. Called after a word that others wait for has changed. */
static void gpunn__thread_pool_wake(gpunn__thread_pool *pool)
{
    if (GPUNN__LOAD(&pool->sleepers) == 0) return;
    GPUNN__LOCK(&pool->monitor);
    GPUNN__WAKE(&pool->monitor);
    GPUNN__UNLOCK(&pool->monitor);
}

static GPUNN__THREAD_MAIN gpunn__worker_main(void *arg)
{
    gpunn__worker      *me = (gpunn__worker *)arg;
    gpunn__thread_pool *pool = me->pool;
    gpunn__current_pool = pool;
    (void)gpunn__flush_denormals();
    for (uint32_t turn = 0;; turn++) {
        gpunn__thread_pool_wait(pool, &me->turn, turn, NULL);
        if (pool->ending) break;
        gpunn__task_threads = pool->members;
        pool->task(pool->arg, me->index, pool->members);
        if (GPUNN__ADD_TO(&pool->working, -1) > 0) continue;
        (void)GPUNN__ADD_TO(&pool->done, 1);
        gpunn__thread_pool_wake(pool);
    }
    GPUNN__THREAD_END;
}

/* In the child of a fork, forgets the parent's threads, which do not exist there. */
static void gpunn__thread_pool_after_fork(gpunn__thread_pool *pool)
{
    if (pool->process != GPUNN__PROCESS()) gpunn__thread_pool_begin(pool);
}

/* Starts workers until there are `threads` threads. Returns how many there are, the program's included. */
static int gpunn__thread_pool_start(gpunn__thread_pool *pool, int threads)
{
    if (threads > pool->threads) threads = pool->threads;
    gpunn__thread_pool_after_fork(pool);
    while (pool->started < threads - 1) {
        gpunn__worker *next = &pool->member[pool->started];
        next->pool = pool;
        next->index = pool->started + 1;
        next->turn = 0;
        if (!GPUNN__THREAD_START(&next->thread, gpunn__worker_main, next)) return pool->started + 1;
        pool->started++;
    }
    return threads;
}

/* Runs in the program's threads. The first thread to arrive waits briefly for the others, then begins without
 * those that are late. Late threads find nothing to do and return, so no thread waits for one that does not
 * run. */
static void gpunn__thread_pool_join(void *arg)
{
    enum { CLOSED = 1 << 16 }; /* a flag in `joined`: the task has begun */
    gpunn__thread_pool *pool = (gpunn__thread_pool *)arg, *pool_before = gpunn__current_pool;
    const int           members_before = gpunn__task_threads;
    const uint32_t      begun = GPUNN__LOAD(&pool->begun), place = GPUNN__ADD_TO(&pool->joined, 1);
    double              end = 0;
    if (place > pool->wanted) return;
    if (place == 1) {
        for (int look = 1; GPUNN__LOAD(&pool->joined) < pool->wanted && gpunn__look_again(look, &end);
             look++) {}
        const uint32_t came = GPUNN__ADD_TO(&pool->joined, CLOSED) - CLOSED;
        pool->members = (int)(came < pool->wanted ? came : pool->wanted);
        (void)GPUNN__ADD_TO(&pool->begun, 1);
        gpunn__thread_pool_wake(pool);
    } else
        gpunn__thread_pool_wait(pool, &pool->begun, begun, NULL);
    const unsigned denormals = gpunn__flush_denormals();
    gpunn__current_pool = pool;
    gpunn__task_threads = pool->members;
    pool->task(pool->arg, (int)place - 1, pool->members);
    gpunn__task_threads = members_before;
    gpunn__current_pool = pool_before;
    gpunn__restore_denormals(denormals);
}

/* Runs the task on the program's threads, or in this thread if none of them comes. */
static void gpunn__thread_pool_delegate(gpunn__thread_pool *pool, int threads)
{
    pool->wanted = (uint32_t)(threads < pool->threads ? threads : pool->threads);
    GPUNN__STORE(&pool->joined, 0);
    pool->parallel_fn(pool->user, (int)pool->wanted, gpunn__thread_pool_join, pool);
    gpunn__thread_pool_join(pool);
}
#endif

GPUNN__INTERNAL void gpunn__thread_pool_open(gpunn__thread_pool *pool, gpunn__worker *members, int threads,
                                             const gpunn_device_args *args)
{
    memset(pool, 0, sizeof *pool);
    pool->threads = threads;
    pool->parallel_fn = args->parallel_fn;
    pool->user = args->user;
    pool->member = members;
    if (threads > 1) memset(members, 0, (size_t)(threads - 1) * sizeof *members);
    gpunn__thread_pool_begin(pool);
}

GPUNN__INTERNAL void gpunn__thread_pool_stop(gpunn__thread_pool *pool)
{
#ifndef GPUNN_NO_THREADS
    gpunn__thread_pool_after_fork(pool);
    pool->ending = true;
    for (int i = 0; i < pool->started; i++) (void)GPUNN__ADD_TO(&pool->member[i].turn, 1);
    gpunn__thread_pool_wake(pool);
    for (int i = 0; i < pool->started; i++) GPUNN__THREAD_JOIN(pool->member[i].thread);
    pool->started = 0;
    pool->ending = false;
#else
    (void)pool;
#endif
}

GPUNN__INTERNAL void gpunn__thread_pool_close(gpunn__thread_pool *pool)
{
    gpunn__thread_pool_stop(pool);
    GPUNN__MONITOR_CLOSE(&pool->monitor);
}

GPUNN_API void gpunn_parallel(int threads, void (*task)(void *arg, int index, int threads), void *arg)
{
    const int outer = gpunn__task_threads;
#ifndef GPUNN_NO_THREADS
    gpunn__thread_pool *pool = gpunn__current_pool;
    if (threads > 1 && outer == 0 && pool) {
        pool->task = task;
        pool->arg = arg;
        if (pool->parallel_fn) {
            gpunn__thread_pool_delegate(pool, threads);
            return;
        }
        threads = gpunn__thread_pool_start(pool, threads);
        const uint32_t done = pool->done;
        pool->members = threads;
        GPUNN__STORE(&pool->working, (uint32_t)threads - 1);
        for (int i = 0; i < threads - 1; i++) (void)GPUNN__ADD_TO(&pool->member[i].turn, 1);
        gpunn__thread_pool_wake(pool);
        gpunn__task_threads = threads;
        task(arg, 0, threads);
        gpunn__task_threads = 0;
        if (threads > 1) gpunn__thread_pool_wait(pool, &pool->done, done, NULL);
        return;
    }
#endif
    (void)threads;
    gpunn__task_threads = 1;
    task(arg, 0, 1);
    gpunn__task_threads = outer;
}

GPUNN__INTERNAL bool gpunn__thread_barrier(void)
{
#ifndef GPUNN_NO_THREADS
    if (gpunn__task_threads < 2) return false;
    gpunn__thread_pool *pool = gpunn__current_pool;
    const uint32_t      phase = GPUNN__LOAD(&pool->phase);
    if (GPUNN__ADD_TO(&pool->arrived, 1) < (uint32_t)gpunn__task_threads) {
        gpunn__thread_pool_wait(pool, &pool->phase, phase, &pool->slept);
        return GPUNN__LOAD(&pool->late) != 0;
    }
    const uint32_t late = GPUNN__LOAD(&pool->slept);
    GPUNN__STORE(&pool->arrived, 0);
    GPUNN__STORE(&pool->slept, 0);
    GPUNN__STORE(&pool->late, late);
    (void)GPUNN__ADD_TO(&pool->phase, 1);
    gpunn__thread_pool_wake(pool);
    return late != 0;
#else
    return false;
#endif
}

GPUNN__INTERNAL int gpunn__thread_count(int asked)
{
#ifdef GPUNN_NO_THREADS
    (void)asked;
    return 1;
#else
    char      set[1024];
    const int count = asked > 0 ? asked : gpunn__omp_threads();
    if (count == 0) return gpunn__processors(set);
    return count < GPUNN__MOST_THREADS ? count : GPUNN__MOST_THREADS;
#endif
}
