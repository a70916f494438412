/* Finds races in kernels that were compiled with -fsanitize=thread: the compiler announces each access to
 * memory, and what is called is not the sanitizer's runtime (the program is linked without it) but the
 * functions here. Two accesses to one byte of shared or device memory, one of them a write, are a race when
 * they are of two threads
 *     - of one block with no __syncthreads between them, nor, in one warp, a __syncwarp or shuffle; or
 *     - of two blocks of one launch, unless both count at one counter (atomicInc) in between: the first one
 *     after a fence, the second
 *       one before a fence; or there are others between these two that follow one another so.
 * That is decided by the order that the barriers give, not by the one that happened, so one run of any order
 * finds it: of each byte the last write and two reads are remembered. Accesses to memory that is not the
 * device's are faults, too. */
#include "race.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

struct access {
    uint32_t interval; /* between barriers, counted through the whole program; 0: none */
    uint16_t thread, warp_interval;
};
struct cell {
    access write, first_read, last_read;
};
struct meeting { /* of blocks, at a counter */
    const void *counter;
    uint32_t    block_start;
    access      last;  /* all up to here has been written by then, of other threads all before the barrier */
    access      since; /* of the block that comes later */
    bool        fenced;
};
enum { PAGE = 4096, WARPS = 32 };
struct page {
    cell cells[PAGE];
};
static std::unordered_map<uintptr_t, page *> pages;
static struct {
    const char *kernel; /* NULL: none runs */
    /* start: the first interval */
    uint32_t interval, launch_start, block_start;
    uint16_t warp_interval[WARPS];
    unsigned block;
    access   now, fence; /* fence: the last one */
    /* by blocks of this launch that counted; by this block */
    std::vector<meeting>                         left, met;
    bool                                         told;   /* a launch reports one fault */
    std::vector<std::pair<uint32_t, unsigned>>   blocks; /* of this launch: first interval, block */
    std::vector<std::pair<emulator_range, bool>> ranges; /* lately used; true: shared memory */
} run;

static void take_now(void)
{
    run.now.interval = run.interval;
    run.now.warp_interval = run.warp_interval[run.now.thread / 32];
}
extern "C" void emulator_race_begin(const char *kernel)
{
    run.kernel = kernel;
    run.launch_start = ++run.interval;
    run.told = false;
    run.blocks.clear();
    run.ranges.clear();
    run.left.clear();
}
extern "C" void emulator_race_end(void)
{
    run.kernel = NULL;
}
extern "C" void emulator_race_barrier(void)
{
    run.interval++;
    memset(run.warp_interval, 0, sizeof run.warp_interval);
    take_now();
}
extern "C" void emulator_race_block(unsigned block)
{
    run.block = block;
    emulator_race_barrier();
    run.block_start = run.interval;
    run.met.clear();
    run.blocks.push_back({run.interval, block});
}
extern "C" void emulator_race_warp_barrier(unsigned warp)
{
    run.warp_interval[warp]++;
    take_now();
}
extern "C" void emulator_race_thread(unsigned thread)
{
    run.now.thread = (uint16_t)thread;
    take_now();
}

static void tell(const void *address, const char *what, const emulator_range *range, const access *other,
                 const char *other_what)
{
    char     text[480];
    unsigned block = run.block;
    if (run.told) return;
    run.told = true;
    if (other == NULL) {
        (void)snprintf(text, sizeof text, "%s: block %u, thread %u %s memory that is not the device's",
                       run.kernel, run.block, run.now.thread, what);
        emulator_race_fault(text);
        return;
    }
    for (auto &start : run.blocks)
        if (start.first <= other->interval) block = start.second;
    (void)snprintf(text, sizeof text,
                   "%s: race at byte %zu of %zu of %s: block %u, thread %u %s, block %u, thread %u %s",
                   run.kernel, (size_t)((char *)address - range->start), range->bytes, range->name, block,
                   other->thread, other_what, run.block, run.now.thread, what);
    emulator_race_fault(text);
}

extern "C" void emulator_race_fence(void)
{
    run.fence = run.now;
    for (meeting &m : run.met)
        if (!m.fenced && m.since.thread == run.now.thread) m.fenced = true;
}
static bool is_past(const meeting &m)
{
    return m.fenced && (run.now.interval > m.since.interval || run.now.thread == m.since.thread);
}
extern "C" void emulator_race_meet(const void *counter)
{
    emulator_range range;
    if (emulator_locate(counter, &range) < EMULATOR_SHARED) tell(counter, "counts at", NULL, NULL, NULL);
    for (const meeting &m : run.left)
        if (m.counter == counter) run.met.push_back({counter, m.block_start, m.last, run.now, false});
    if (run.fence.interval != run.now.interval || run.fence.thread != run.now.thread) return;
    run.left.push_back({counter, run.block_start, run.now, run.now, true});
    for (const meeting &m : run.met)
        if (is_past(m)) run.left.push_back({counter, m.block_start, m.last, run.now, true});
}
static bool met(const access &before)
{
    for (const meeting &m : run.met)
        if (is_past(m) && before.interval >= m.block_start &&
            (before.interval < m.last.interval ||
             (before.interval == m.last.interval && before.thread == m.last.thread)))
            return true;
    return false;
}

static bool unordered(const access &before, bool shared)
{
    if (before.interval < run.launch_start) return false;
    /* another block, whose shared memory was another */
    if (before.interval < run.block_start) return !shared && !met(before);
    return before.thread != run.now.thread && before.interval == run.now.interval &&
           (before.thread / 32 != run.now.thread / 32 || before.warp_interval == run.now.warp_interval);
}

static void touch(const void *address, size_t bytes, bool write)
{
    if (run.kernel == NULL) return;
    const char     *what = write ? "writes" : "reads";
    const uintptr_t at = (uintptr_t)address;
    size_t          found = 0;
    while (found < run.ranges.size() &&
           at - (uintptr_t)run.ranges[found].first.start >= run.ranges[found].first.bytes)
        found++;
    if (found == run.ranges.size()) {
        emulator_range range;
        emulator_place place = emulator_locate(address, &range);
        if (place == EMULATOR_STACK || (place == EMULATOR_CONSTANT && !write)) return;
        if (place < EMULATOR_SHARED) {
            tell(address, what, NULL, NULL, NULL);
            return;
        }
        run.ranges.push_back({range, place == EMULATOR_SHARED});
    }
    std::swap(run.ranges[found], run.ranges[found / 2]); /* what is used often moves to the front */
    const emulator_range range = run.ranges[found / 2].first;
    const bool           shared = run.ranges[found / 2].second;
    page                *p = NULL;
    for (size_t i = 0; i < bytes; i++) {
        if (p == NULL || (at + i) % PAGE == 0) {
            page *&slot = pages[(at + i) / PAGE];
            if (slot == NULL && (slot = (page *)calloc(1, sizeof *slot)) == NULL) abort();
            p = slot;
        }
        cell &c = p->cells[(at + i) % PAGE];
        if (unordered(c.write, shared)) tell((char *)address + i, what, &range, &c.write, "wrote");
        if (!write) {
            bool newer = c.first_read.interval < run.launch_start ||
                         (shared && c.first_read.interval < run.block_start) ||
                         (c.first_read.interval >= run.block_start &&
                          c.first_read.interval < run.now.interval) ||
                         (c.first_read.thread == run.now.thread && c.first_read.interval == run.now.interval);
            (newer ? c.first_read : c.last_read) = run.now;
            continue;
        }
        if (unordered(c.first_read, shared)) tell((char *)address + i, what, &range, &c.first_read, "read");
        if (unordered(c.last_read, shared)) tell((char *)address + i, what, &range, &c.last_read, "read");
        c.write = run.now;
    }
}

/* What gcc and clang call. */
extern "C" {
#define SIZE(bytes)                                    \
    void __tsan_read##bytes(void *p)                   \
    {                                                  \
        touch(p, bytes, false);                        \
    }                                                  \
    void __tsan_write##bytes(void *p)                  \
    {                                                  \
        touch(p, bytes, true);                         \
    }                                                  \
    void __tsan_unaligned_read##bytes(void *p)         \
    {                                                  \
        touch(p, bytes, false);                        \
    }                                                  \
    void __tsan_unaligned_write##bytes(void *p)        \
    {                                                  \
        touch(p, bytes, true);                         \
    }                                                  \
    void __tsan_volatile_read##bytes(void *p)          \
    {                                                  \
        touch(p, bytes, false);                        \
    }                                                  \
    void __tsan_volatile_write##bytes(void *p)         \
    {                                                  \
        touch(p, bytes, true);                         \
    }                                                  \
    void __tsan_read_write##bytes(void *p)             \
    {                                                  \
        touch(p, bytes, false), touch(p, bytes, true); \
    }
SIZE(1) SIZE(2) SIZE(4) SIZE(8) SIZE(16) void __tsan_read_range(void *p, size_t bytes)
{
    touch(p, bytes, false);
}
void __tsan_write_range(void *p, size_t bytes)
{
    touch(p, bytes, true);
}
void __tsan_init(void)
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void)
{
}
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_vptr_read(void **)
{
}
int __tsan_atomic32_fetch_add(volatile int *p, int value, int) /* of the host's shared pointers */
{
    return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
}
/* Atomic accesses do not race with each other; whether plain ones come between them is not looked at. */
unsigned long long __tsan_atomic64_fetch_add(volatile unsigned long long *p, unsigned long long value, int)
{
    emulator_range range;
    if (run.kernel && emulator_locate((const void *)p, &range) < EMULATOR_SHARED)
        tell((const void *)p, "adds to", NULL, NULL, NULL);
    return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
}
void *__tsan_memcpy(void *to, const void *from, size_t bytes)
{
    touch(from, bytes, false), touch(to, bytes, true);
    return memcpy(to, from, bytes);
}
void *__tsan_memmove(void *to, const void *from, size_t bytes)
{
    touch(from, bytes, false), touch(to, bytes, true);
    return memmove(to, from, bytes);
}
void *__tsan_memset(void *to, int byte, size_t bytes)
{
    touch(to, bytes, true);
    return memset(to, byte, bytes);
}
}
