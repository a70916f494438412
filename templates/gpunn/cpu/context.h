#ifndef GPUNN__CPU_CONTEXT_H
#define GPUNN__CPU_CONTEXT_H
#include "base/forward_declarations.h"
#include "cpu/threads.h"

/* ==== >>cpu/context ====================================================================================== *
 * What the sections of the CPU backend share. Each op of GPUNN_OTHER_OPS is one function
 * gpunn__cpu_<name>(cpu, step, action), which holds both its forward and its backward. Elementwise ops are
 * generated from their tables (>>cpu/elementwise). */
struct gpunn__cpu {
    int                threads, capacity; /* capacity: threads that the pool's memory was allocated for */
    unsigned           blocks;            /* number of large blocks allocated so far */
    gpunn__thread_pool pool;
    gpunn__error       error;
    void *(*realloc_fn)(void *user, void *ptr, size_t old_size, size_t new_size);
    void *user;
};

/* The state before gpunn__cpu_begin, for gpunn__cpu_end. Between the two calls the backend's thread pool is
 * current in this thread, and denormals count as zero. */
typedef struct gpunn__cpu_before {
    unsigned            denormals;
    gpunn__thread_pool *pool;
} gpunn__cpu_before;

GPUNN__INTERNAL gpunn__cpu_before gpunn__cpu_begin(void *context);

GPUNN__INTERNAL void gpunn__cpu_end(gpunn__cpu_before before);

/* Records an error and returns its status. The text is one sentence, to which the core adds the op, the layer
 * and the shapes. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_fail(gpunn__cpu *cpu, gpunn_status status, const char *format, ...)
    GPUNN__PRINTF(3, 4);

/* Number of threads worth using for `work` units. A unit is about one float read, computed and written; a
 * flop of a matrix product counts 1/16. Each thread adds overhead to the others, so the work needed per
 * thread grows with the number of threads, up to 65536 units. */
GPUNN__INLINE int gpunn__cpu_threads_for(const gpunn__cpu *cpu, double work)
{
    const double few = sqrt(work / 4096), many = work / 65536, useful = few > many ? few : many;
    if (useful >= cpu->threads) return cpu->threads;
    return useful > 1 ? (int)useful : 1;
}

GPUNN__INLINE int gpunn__cpu_threads(const gpunn__cpu *cpu, int64_t work)
{
    return gpunn__cpu_threads_for(cpu, (double)work);
}

GPUNN__INLINE int64_t gpunn__least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Thread `index` of `threads` takes items *begin .. *end of n. The boundaries are multiples of grain. */
GPUNN__INLINE void gpunn__cpu_part(int64_t n, int64_t grain, int threads, int index, int64_t *begin,
                                   int64_t *end)
{
    int64_t blocks = (n + grain - 1) / grain;
    *begin = blocks * index / threads * grain;
    *end = blocks * (index + 1) / threads * grain;
    if (*begin > n) *begin = n;
    if (*end > n) *end = n;
}

/* Calls function(..., flag) with the flag as a constant. A condition inside a loop may keep the compiler from
 * vectorizing it. */
#define GPUNN__FIXED(flag, function, ...) \
    do {                                  \
        if (flag)                         \
            function(__VA_ARGS__, true);  \
        else                              \
            function(__VA_ARGS__, false); \
    } while (0)

#endif /* GPUNN__CPU_CONTEXT_H */
