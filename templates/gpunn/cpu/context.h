#ifndef GPUNN__CPU_CONTEXT_H
#define GPUNN__CPU_CONTEXT_H
#include "base/forward_declarations.h"
#include "cpu/threads.h"

/* ==== >>cpu/context ================================================================================================ *
 * What the CPU backend's sections share. Every op of GPUNN_OTHER_OPS is one function gpunn__cpu_<name>(cpu, step, action), its
 * forward and backward beside each other; the elementwise ops come from their tables (>>cpu/elementwise). */
struct gpunn__cpu {
    int          threads, room; /* room: of the team's memory */
    unsigned     blocks;        /* large ones that it has given so far */
    gpunn__team  team;
    gpunn__error error;
    void *(*realloc_fn)(void *user, void *ptr, size_t old_size, size_t new_size);
    void *user;
};

/* While the backend computes: its team is at hand, and denormals count as zero. */
typedef struct gpunn__cpu_before {
    unsigned     denormals;
    gpunn__team *team;
} gpunn__cpu_before;

GPUNN__INTERNAL gpunn__cpu_before gpunn__cpu_begin(void *context);

GPUNN__INTERNAL void gpunn__cpu_end(gpunn__cpu_before before);

/* Sets the sentence that the core completes with op, layer and shapes. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_fail(gpunn__cpu *cpu, gpunn_status status, const char *format, ...) GPUNN__PRINTF(3, 4);

/* Threads worth using for so many units of work (about one float read, computed and written each; a flop of a product counts
 * 1/16). Each costs the others a little, so that few want less work for each than many do. */
GPUNN__INLINE int gpunn__cpu_threads_for(const gpunn__cpu *cpu, double work)
{
    const double few = sqrt(work / 4096), many = work / 65536, useful = few > many ? few : many;
    return useful >= cpu->threads ? cpu->threads : useful > 1 ? (int)useful : 1;
}

GPUNN__INLINE int gpunn__cpu_threads(const gpunn__cpu *cpu, int64_t work)
{
    return gpunn__cpu_threads_for(cpu, (double)work);
}

GPUNN__INLINE int64_t gpunn__least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The part of n items, in multiples of grain, that thread `index` of `threads` takes. */
GPUNN__INLINE void gpunn__cpu_part(int64_t n, int64_t grain, int threads, int index, int64_t *begin, int64_t *end)
{
    int64_t blocks = (n + grain - 1) / grain;
    *begin = blocks * index / threads * grain;
    *end = blocks * (index + 1) / threads * grain;
    if (*begin > n) *begin = n;
    if (*end > n) *end = n;
}

/* function(..., flag) with the flag a constant: a choice inside a loop may keep it from becoming vector code. */
#define GPUNN__FIXED(flag, function, ...) \
    do {                                  \
        if (flag)                         \
            function(__VA_ARGS__, true);  \
        else                              \
            function(__VA_ARGS__, false); \
    } while (0)

#endif /* GPUNN__CPU_CONTEXT_H */
