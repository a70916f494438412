#include "cpu/threads.h"
#include "base/device.h"
#include "base/time.h"

/* ---- threads: a lock with one condition variable ("something has changed"), thread start and join -------------------- */

/* ---- teams: thread pools that share the work of a CPU device --------------------------------------------------------- *
 * A team is the program's thread plus worker threads. The first task that is large enough starts the workers;
 * they end with the device. A waiting thread polls the word that it waits for during GPUNN__PATIENCE, which
 * spans the time from one op to the next. Then it sleeps, so that on a busy machine the processor goes to
 * threads that have work, including those of this team. */

#define GPUNN__PATIENCE 30e-6 /* seconds */

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

GPUNN__INTERNAL GPUNN__THREAD_LOCAL gpunn__team *gpunn__team_here;

GPUNN__INTERNAL GPUNN__THREAD_LOCAL int gpunn__team_members;

/* Initializes a team without threads. In a forked child, locks that the parent's threads held are abandoned
 * as they are. */
static void gpunn__team_begin(gpunn__team *team)
{
    team->started = 0;
    team->process = GPUNN__PROCESS();
    team->ending = false;
    team->sleepers = team->arrived = team->slept = 0;
    GPUNN__MONITOR_OPEN(&team->monitor);
}

#ifndef GPUNN_NO_THREADS
/* After poll 1, 2, ... of a word: whether to poll again. Returns false once GPUNN__PATIENCE has passed since
 * the first poll. */
static bool gpunn__look_again(int look, double *end)
{
    enum { LOOKS = 64 }; /* polls between two readings of the clock: about a microsecond */
    GPUNN__PAUSE();
    if (look % LOOKS) return true;
    const double now = gpunn__seconds();
    if (look == LOOKS) *end = now + GPUNN__PATIENCE;
    return now < *end;
}

/* Returns when *word differs from `old`. slept: NULL, or a word that is set to 1 before the thread sleeps. */
static void gpunn__team_wait(gpunn__team *team, const uint32_t *word, uint32_t old, uint32_t *slept)
{
    double end = 0;
    for (int look = 1; GPUNN__LOAD(word) == old; look++) {
        if (gpunn__look_again(look, &end)) continue;
        if (slept) GPUNN__STORE(slept, 1);
        GPUNN__LOCK(&team->monitor);
        (void)GPUNN__ADD_TO(&team->sleepers, 1);
        while (GPUNN__LOAD(word) == old) GPUNN__WAIT(&team->monitor);
        (void)GPUNN__ADD_TO(&team->sleepers, -1);
        GPUNN__UNLOCK(&team->monitor);
        return;
    }
}

/* Wakes the sleeping threads. Called after a word that others wait for has changed. */
static void gpunn__team_tell(gpunn__team *team)
{
    if (GPUNN__LOAD(&team->sleepers) == 0) return;
    GPUNN__LOCK(&team->monitor);
    GPUNN__WAKE(&team->monitor);
    GPUNN__UNLOCK(&team->monitor);
}

static GPUNN__THREAD_MAIN gpunn__team_main(void *arg)
{
    gpunn__teammate *me = (gpunn__teammate *)arg;
    gpunn__team     *team = me->team;
    gpunn__team_here = team;
    (void)gpunn__flush_denormals();
    for (uint32_t turn = 0;; turn++) {
        gpunn__team_wait(team, &me->turn, turn, NULL);
        if (team->ending) break;
        gpunn__team_members = team->members;
        team->task(team->arg, me->index, team->members);
        if (GPUNN__ADD_TO(&team->working, -1) > 0) continue;
        (void)GPUNN__ADD_TO(&team->done, 1);
        gpunn__team_tell(team);
    }
    GPUNN__THREAD_END;
}

/* In the child of a fork, forgets the parent's threads, which do not exist there. */
static void gpunn__team_outlive_fork(gpunn__team *team)
{
    if (team->process != GPUNN__PROCESS()) gpunn__team_begin(team);
}

/* Starts workers until there are `threads` threads. Returns how many there are, the program's included. */
static int gpunn__team_start(gpunn__team *team, int threads)
{
    if (threads > team->threads) threads = team->threads;
    gpunn__team_outlive_fork(team);
    while (team->started < threads - 1) {
        gpunn__teammate *next = &team->member[team->started];
        next->team = team;
        next->index = team->started + 1;
        next->turn = 0;
        if (!GPUNN__THREAD_START(&next->thread, gpunn__team_main, next)) return team->started + 1;
        team->started++;
    }
    return threads;
}

/* Runs in the program's threads. The first thread to arrive waits briefly for the others, then begins without
 * those that are late. Late threads find nothing to do and return, so no thread waits for one that does not
 * run. */
static void gpunn__team_join(void *arg)
{
    enum { CLOSED = 1 << 16 }; /* a flag in `joined`: the task has begun */
    gpunn__team   *team = (gpunn__team *)arg, *team_before = gpunn__team_here;
    const int      members_before = gpunn__team_members;
    const uint32_t begun = GPUNN__LOAD(&team->begun), place = GPUNN__ADD_TO(&team->joined, 1);
    double         end = 0;
    if (place > team->wanted) return;
    if (place == 1) {
        for (int look = 1; GPUNN__LOAD(&team->joined) < team->wanted && gpunn__look_again(look, &end); look++) {}
        const uint32_t came = GPUNN__ADD_TO(&team->joined, CLOSED) - CLOSED;
        team->members = (int)(came < team->wanted ? came : team->wanted);
        (void)GPUNN__ADD_TO(&team->begun, 1);
        gpunn__team_tell(team);
    } else
        gpunn__team_wait(team, &team->begun, begun, NULL);
    const unsigned denormals = gpunn__flush_denormals();
    gpunn__team_here = team;
    gpunn__team_members = team->members;
    team->task(team->arg, (int)place - 1, team->members);
    gpunn__team_members = members_before;
    gpunn__team_here = team_before;
    gpunn__restore_denormals(denormals);
}

/* Runs the task on the program's threads, or in this thread if none of them comes. */
static void gpunn__team_lend(gpunn__team *team, int threads)
{
    team->wanted = (uint32_t)(threads < team->threads ? threads : team->threads);
    GPUNN__STORE(&team->joined, 0);
    team->parallel_fn(team->user, (int)team->wanted, gpunn__team_join, team);
    gpunn__team_join(team);
}
#endif

GPUNN__INTERNAL void gpunn__team_open(gpunn__team *team, gpunn__teammate *members, int threads, const gpunn_device_args *args)
{
    memset(team, 0, sizeof *team);
    team->threads = threads;
    team->parallel_fn = args->parallel_fn;
    team->user = args->user;
    team->member = members;
    if (threads > 1) memset(members, 0, (size_t)(threads - 1) * sizeof *members);
    gpunn__team_begin(team);
}

GPUNN__INTERNAL void gpunn__team_rest(gpunn__team *team)
{
#ifndef GPUNN_NO_THREADS
    gpunn__team_outlive_fork(team);
    team->ending = true;
    for (int i = 0; i < team->started; i++) (void)GPUNN__ADD_TO(&team->member[i].turn, 1);
    gpunn__team_tell(team);
    for (int i = 0; i < team->started; i++) GPUNN__THREAD_JOIN(team->member[i].thread);
    team->started = 0;
    team->ending = false;
#else
    (void)team;
#endif
}

GPUNN__INTERNAL void gpunn__team_close(gpunn__team *team)
{
    gpunn__team_rest(team);
    GPUNN__MONITOR_CLOSE(&team->monitor);
}

GPUNN_API void gpunn_parallel(int threads, void (*task)(void *arg, int index, int threads), void *arg)
{
    const int outer = gpunn__team_members;
#ifndef GPUNN_NO_THREADS
    gpunn__team *team = gpunn__team_here;
    if (threads > 1 && outer == 0 && team) {
        team->task = task;
        team->arg = arg;
        if (team->parallel_fn) {
            gpunn__team_lend(team, threads);
            return;
        }
        threads = gpunn__team_start(team, threads);
        const uint32_t done = team->done;
        team->members = threads;
        GPUNN__STORE(&team->working, (uint32_t)threads - 1);
        for (int i = 0; i < threads - 1; i++) (void)GPUNN__ADD_TO(&team->member[i].turn, 1);
        gpunn__team_tell(team);
        gpunn__team_members = threads;
        task(arg, 0, threads);
        gpunn__team_members = 0;
        if (threads > 1) gpunn__team_wait(team, &team->done, done, NULL);
        return;
    }
#endif
    (void)threads;
    gpunn__team_members = 1;
    task(arg, 0, 1);
    gpunn__team_members = outer;
}

GPUNN__INTERNAL bool gpunn__team_barrier(void)
{
#ifndef GPUNN_NO_THREADS
    if (gpunn__team_members < 2) return false;
    gpunn__team   *team = gpunn__team_here;
    const uint32_t phase = GPUNN__LOAD(&team->phase);
    if (GPUNN__ADD_TO(&team->arrived, 1) < (uint32_t)gpunn__team_members) {
        gpunn__team_wait(team, &team->phase, phase, &team->slept);
        return GPUNN__LOAD(&team->late) != 0;
    }
    const uint32_t late = GPUNN__LOAD(&team->slept);
    GPUNN__STORE(&team->arrived, 0);
    GPUNN__STORE(&team->slept, 0);
    GPUNN__STORE(&team->late, late);
    (void)GPUNN__ADD_TO(&team->phase, 1);
    gpunn__team_tell(team);
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
    const int count = asked > 0 ? asked : gpunn__threads_said();
    return count == 0 ? gpunn__processors(set) : count < GPUNN__MOST_THREADS ? count : GPUNN__MOST_THREADS;
#endif
}
