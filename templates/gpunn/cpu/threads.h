#ifndef GPUNN__CPU_THREADS_H
#define GPUNN__CPU_THREADS_H
#include "base/structs.h"

/* ==== >>cpu/threads ================================================================================================ *
 * Locks and threads, of loaders and of the CPU's devices. */
#if defined(GPUNN_NO_THREADS)
typedef int gpunn__monitor, gpunn__thread;
#define GPUNN__MONITOR_OPEN(m) ((void)(m))
#define GPUNN__MONITOR_CLOSE(m) ((void)(m))
#define GPUNN__LOCK(m) ((void)(m))
#define GPUNN__UNLOCK(m) ((void)(m))
#define GPUNN__WAIT(m) ((void)(m))
#define GPUNN__WAKE(m) ((void)(m))
#define GPUNN__THREAD_MAIN void
#define GPUNN__THREAD_END return
#define GPUNN__THREAD_START(t, main, arg) ((void)(t), (void)(main), (void)(arg), false)
#define GPUNN__THREAD_JOIN(t) ((void)(t))
#elif defined(_WIN32)
typedef struct gpunn__monitor {
    CRITICAL_SECTION   mutex;
    CONDITION_VARIABLE changed;
} gpunn__monitor;
typedef HANDLE gpunn__thread;
#define GPUNN__MONITOR_OPEN(m) (InitializeCriticalSection(&(m)->mutex), InitializeConditionVariable(&(m)->changed))
#define GPUNN__MONITOR_CLOSE(m) DeleteCriticalSection(&(m)->mutex)
#define GPUNN__LOCK(m) EnterCriticalSection(&(m)->mutex)
#define GPUNN__UNLOCK(m) LeaveCriticalSection(&(m)->mutex)
#define GPUNN__WAIT(m) ((void)SleepConditionVariableCS(&(m)->changed, &(m)->mutex, INFINITE))
#define GPUNN__WAKE(m) WakeAllConditionVariable(&(m)->changed)
#define GPUNN__THREAD_MAIN unsigned __stdcall
#define GPUNN__THREAD_END return 0
#define GPUNN__THREAD_START(t, main, arg) ((*(t) = (HANDLE)_beginthreadex(NULL, 0, main, arg, 0, NULL)) != NULL)
#define GPUNN__THREAD_JOIN(t) ((void)WaitForSingleObject(t, INFINITE), (void)CloseHandle(t))
#else
typedef struct gpunn__monitor {
    pthread_mutex_t mutex;
    pthread_cond_t  changed;
} gpunn__monitor;
typedef pthread_t gpunn__thread;
#define GPUNN__MONITOR_OPEN(m) (pthread_mutex_init(&(m)->mutex, NULL), pthread_cond_init(&(m)->changed, NULL))
#define GPUNN__MONITOR_CLOSE(m) ((void)pthread_cond_destroy(&(m)->changed), (void)pthread_mutex_destroy(&(m)->mutex))
#define GPUNN__LOCK(m) ((void)pthread_mutex_lock(&(m)->mutex))
#define GPUNN__UNLOCK(m) ((void)pthread_mutex_unlock(&(m)->mutex))
#define GPUNN__WAIT(m) ((void)pthread_cond_wait(&(m)->changed, &(m)->mutex))
#define GPUNN__WAKE(m) ((void)pthread_cond_broadcast(&(m)->changed))
#define GPUNN__THREAD_MAIN void *
#define GPUNN__THREAD_END return NULL
#define GPUNN__THREAD_START(t, main, arg) (pthread_create(t, NULL, main, arg) == 0)
#define GPUNN__THREAD_JOIN(t) ((void)pthread_join(t, NULL))
#endif

/* Denormal floats, which gradients and momenta that fade away become, cost a hundred times the work of others: while the backend
 * computes they count as zero. Returns the processor's mode before, for gpunn__restore_denormals. */
GPUNN__INLINE unsigned gpunn__flush_denormals(void)
{
#if defined(__SSE__) && defined(__GNUC__)
    unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8040u); /* flush to zero, denormals are zero */
    return mode;
#else
    return 0;
#endif
}

GPUNN__INLINE void gpunn__restore_denormals(unsigned mode)
{
#if defined(__SSE__) && defined(__GNUC__)
    __builtin_ia32_ldmxcsr(mode);
#else
    (void)mode;
#endif
}

typedef struct gpunn__team gpunn__team;
typedef struct gpunn__teammate { /* one of ours; each in cache lines of its own */
    gpunn__team  *team;
    gpunn__thread thread;
    int           index;
    uint32_t      turn; /* raised by one for each task that wants this member */
    char          apart[104];
} gpunn__teammate;
struct gpunn__team {
    int              threads, started; /* at most, the program's included; of ours */
    int              process;          /* in which ours were started */
    gpunn__teammate *member;           /* [threads - 1]: number i is index i + 1 of a task */
    gpunn__monitor   monitor;          /* of those who sleep */
    bool             ending;
    void (*task)(void *arg, int index, int threads); /* the present one, on its first `members` threads */
    void    *arg;
    int      members;
    uint32_t sleepers, working, done, arrived, phase; /* done: tasks; arrived at the barrier; phase: barriers passed */
    uint32_t slept, late;                             /* at this barrier; at the last one */
    /* Threads of the program's instead: */
    void (*parallel_fn)(void *user, int count, void (*run)(void *arg), void *arg); /* NULL: ours */
    void    *user;
    uint32_t wanted, joined, begun; /* threads for the task, those that came; begun: tasks */
};

/* The team of the device that computes in this thread, and how many share the present task; 0: none does. */
GPUNN__DECLARE(GPUNN__THREAD_LOCAL gpunn__team *gpunn__team_here)
GPUNN__DECLARE(GPUNN__THREAD_LOCAL int gpunn__team_members)

GPUNN__INTERNAL void gpunn__team_open(gpunn__team *team, gpunn__teammate *members, int threads, const gpunn_device_args *args);

/* Ends its threads; the next task starts others. */
GPUNN__INTERNAL void gpunn__team_rest(gpunn__team *team);

GPUNN__INTERNAL void gpunn__team_close(gpunn__team *team);

/* Inside a task: waits for all its threads, which learn alike whether one of them kept another waiting so long that it slept. */
GPUNN__INTERNAL bool gpunn__team_barrier(void);

/* Threads of a team: what was asked for; 0: what OMP_NUM_THREADS says, or the processors that this process may use. */
GPUNN__INTERNAL int gpunn__thread_count(int asked);

#endif /* GPUNN__CPU_THREADS_H */
