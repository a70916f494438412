#ifndef GPUNN__CPU_THREADS_H
#define GPUNN__CPU_THREADS_H
#include "base/structs.h"

/* ==== >>cpu/threads ====================================================================================== *
 * Locks and threads, for data loaders and for CPU devices, and the thread pool of a CPU device. */
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
#define GPUNN__MONITOR_OPEN(m) \
    (InitializeCriticalSection(&(m)->mutex), InitializeConditionVariable(&(m)->changed))
#define GPUNN__MONITOR_CLOSE(m) DeleteCriticalSection(&(m)->mutex)
#define GPUNN__LOCK(m) EnterCriticalSection(&(m)->mutex)
#define GPUNN__UNLOCK(m) LeaveCriticalSection(&(m)->mutex)
#define GPUNN__WAIT(m) ((void)SleepConditionVariableCS(&(m)->changed, &(m)->mutex, INFINITE))
#define GPUNN__WAKE(m) WakeAllConditionVariable(&(m)->changed)
#define GPUNN__THREAD_MAIN unsigned __stdcall
#define GPUNN__THREAD_END return 0
#define GPUNN__THREAD_START(t, main, arg) \
    ((*(t) = (HANDLE)_beginthreadex(NULL, 0, main, arg, 0, NULL)) != NULL)
#define GPUNN__THREAD_JOIN(t) ((void)WaitForSingleObject(t, INFINITE), (void)CloseHandle(t))
#else
typedef struct gpunn__monitor {
    pthread_mutex_t mutex;
    pthread_cond_t  changed;
} gpunn__monitor;
typedef pthread_t gpunn__thread;
#define GPUNN__MONITOR_OPEN(m) (pthread_mutex_init(&(m)->mutex, NULL), pthread_cond_init(&(m)->changed, NULL))
#define GPUNN__MONITOR_CLOSE(m) \
    ((void)pthread_cond_destroy(&(m)->changed), (void)pthread_mutex_destroy(&(m)->mutex))
#define GPUNN__LOCK(m) ((void)pthread_mutex_lock(&(m)->mutex))
#define GPUNN__UNLOCK(m) ((void)pthread_mutex_unlock(&(m)->mutex))
#define GPUNN__WAIT(m) ((void)pthread_cond_wait(&(m)->changed, &(m)->mutex))
#define GPUNN__WAKE(m) ((void)pthread_cond_broadcast(&(m)->changed))
#define GPUNN__THREAD_MAIN void *
#define GPUNN__THREAD_END return NULL
#define GPUNN__THREAD_START(t, main, arg) (pthread_create(t, NULL, main, arg) == 0)
#define GPUNN__THREAD_JOIN(t) ((void)pthread_join(t, NULL))
#endif

/* Gradients and momenta that decay become denormal floats, which cost about a hundred times the work of
 * others. While the backend computes, denormals count as zero. Returns the processor's previous mode, for
 * gpunn__restore_denormals. */
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

/* The reverse of gpunn__flush_denormals, for values that must be the same in every thread. */
GPUNN__INLINE unsigned gpunn__keep_denormals(void)
{
    const unsigned mode = gpunn__flush_denormals();
    gpunn__restore_denormals(mode & ~0x8040u);
    return mode;
}

typedef struct gpunn__thread_pool gpunn__thread_pool;
typedef struct gpunn__worker { /* a worker thread of the pool, in cache lines of its own */
    gpunn__thread_pool *pool;
    gpunn__thread       thread;
    int                 index;
    uint32_t            turn; /* incremented for each task that this worker takes part in */
    char                apart[104];
} gpunn__worker;
struct gpunn__thread_pool {
    int            threads, started; /* maximum threads, the caller's included; workers started */
    int            process;          /* id of the process that started the workers */
    gpunn__worker *member;           /* [threads - 1]: worker i runs index i + 1 of a task */
    gpunn__monitor monitor;          /* for threads that sleep */
    bool           ending;
    /* the current task, run by the first `members` threads */
    void (*task)(void *arg, int index, int threads);
    void *arg;
    int   members;
    /* done: tasks; arrived: threads at the barrier; phase: barriers passed */
    uint32_t sleepers, working, done, arrived, phase;
    /* whether a thread slept at this barrier; at the last one */
    uint32_t slept, late;
    /* Used if the program supplies the threads: */
    /* NULL: the pool's own workers */
    void (*parallel_fn)(void *user, int count, void (*run)(void *arg), void *arg);
    void *user;
    /* wanted, joined: threads for the task, threads that came; begun: tasks */
    uint32_t wanted, joined, begun;
};

/* The pool of the device that computes in this thread, and the number of threads that share the current task.
 * The number is 0 outside a task. */
GPUNN__DECLARE(GPUNN__THREAD_LOCAL gpunn__thread_pool *gpunn__current_pool)
GPUNN__DECLARE(GPUNN__THREAD_LOCAL int gpunn__task_threads)

/* members: memory for threads - 1 workers, owned by the caller. No worker starts before the first task that
 * needs it. */
GPUNN__INTERNAL void gpunn__thread_pool_open(gpunn__thread_pool *pool, gpunn__worker *members, int threads,
                                             const gpunn_device_args *args);

/* Ends the workers. The next task starts new ones. */
GPUNN__INTERNAL void gpunn__thread_pool_stop(gpunn__thread_pool *pool);

GPUNN__INTERNAL void gpunn__thread_pool_close(gpunn__thread_pool *pool);

/* Called inside a task: waits for all its threads. Returns the same value to each of them: whether any of
 * them waited so long that it slept. */
GPUNN__INTERNAL bool gpunn__thread_barrier(void);

/* Number of threads of a pool: `asked` if it is positive, else OMP_NUM_THREADS, else the processors that this
 * process may use. */
GPUNN__INTERNAL int gpunn__thread_count(int asked);

#endif /* GPUNN__CPU_THREADS_H */
