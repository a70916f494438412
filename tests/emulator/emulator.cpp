/* The emulated GPU: a runtime whose streams run on the host, and kernels whose threads are fibers. What it
 * catches, each as a fault that is printed, counted and makes the device fail from then on, or as a report of
 * the address sanitizer:
 *     barriers   __syncthreads, __syncwarp and shuffles that some threads of the block or warp never reach,
 *     or that meet at different
 *                lines; masks that are not full
 *     missing barriers   the threads of a block run in random order between barriers, one at a time; shared
 *     memory holds NaNs when a
 *                block starts, so that what is read before it was written shows; race.cpp finds the others
 *     memory     each allocation stands alone, full of NaNs, between the sanitizer's red zones, and is closed
 *     to the host outside
 *                kernels and copies; copies that leave their allocation; what is used after it was freed in
 *                stream order
 *     streams    work runs as late as may be: a missing wait, and host memory reused too early, give wrong
 *     numbers capture    calls that a capture forbids, captured work that never joins
 * All calls may fail on demand (emulator_fail). One kernel runs at a time in the process, whichever thread
 * and device it belongs to. */
#include <elf.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cxxabi.h>
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda_fp16.h"
#include "cuda_runtime.h"
#include "race.h"

/* EMULATOR_ASAN: the program is linked with the address sanitizer. This file itself is fast without. */
#ifdef EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define __asan_poison_memory_region(address, bytes) ((void)(address), (void)(bytes))
#define __asan_unpoison_memory_region(address, bytes) ((void)(address), (void)(bytes))
#define __sanitizer_start_switch_fiber(save, bottom, bytes) ((void)(save), (void)(bottom), (void)(bytes))
#define __sanitizer_finish_switch_fiber(save, bottom, bytes) ((void)(save), (void)(bottom), (void)(bytes))
#endif
/* race.cpp, where it is linked, follows kernels by these. */
extern "C" {
__attribute__((weak)) void emulator_race_begin(const char *kernel);
__attribute__((weak)) void emulator_race_end(void);
__attribute__((weak)) void emulator_race_block(unsigned block);
__attribute__((weak)) void emulator_race_thread(unsigned thread);
__attribute__((weak)) void emulator_race_barrier(void);
__attribute__((weak)) void emulator_race_warp_barrier(unsigned warp);
__attribute__((weak)) void emulator_race_fence(void);
__attribute__((weak)) void emulator_race_meet(const void *counter);
}

/* ==== settings, faults, random choices
 * ================================================================================ */
static std::recursive_mutex lock;  /* of everything here */
static thread_local int     holds; /* how often this thread has it */
struct holding {
    holding()
    {
        lock.lock();
        holds++;
    }
    ~holding()
    {
        holds--;
        lock.unlock();
    }
};
static void let_others_in(void)
{
    for (int i = 0; i < holds; i++) lock.unlock();
    std::this_thread::yield();
    for (int i = 0; i < holds; i++) lock.lock();
}

enum { RANDOM, ASCENDING, DESCENDING };
enum { LATE, EAGER, ANY_TIME };
static struct settings {
    bool read;
    int  devices = 1, order = RANDOM, streams = LATE, cudnn = 1, convolutions = 1, multiprocessors = 2,
        run = 1;
    int nan = 0, capability = 90, code = 0, alignment = 1, driver = 13000, epilogue = 1, short_steps = 1024,
        integrated = 0, nccl = 1;
    int      shared = 232448; /* bytes that a block may have */
    uint64_t random = 1;
    size_t   memory = (size_t)1 << 30, version = 92400, workspace = SIZE_MAX;
} settings;

extern "C" void emulator_set(const char *name, const char *value)
{
    const holding guard;
    std::string   text = value;
    if (!strcmp(name, "EMULATOR_DEVICES")) settings.devices = atoi(value);
    if (!strcmp(name, "EMULATOR_CUDNN")) settings.cudnn = atoi(value);
    if (!strcmp(name, "EMULATOR_NAN")) settings.nan = atoi(value);
    if (!strcmp(name, "EMULATOR_CAPABILITY")) settings.capability = atoi(value);
    if (!strcmp(name, "EMULATOR_ALIGNMENT")) settings.alignment = atoi(value);
    if (!strcmp(name, "EMULATOR_DRIVER")) settings.driver = atoi(value);
    if (!strcmp(name, "EMULATOR_CODE")) settings.code = atoi(value);
    if (!strcmp(name, "EMULATOR_EPILOGUE")) settings.epilogue = atoi(value);
    if (!strcmp(name, "EMULATOR_CONVOLUTIONS")) settings.convolutions = atoi(value);
    if (!strcmp(name, "EMULATOR_MULTIPROCESSORS")) settings.multiprocessors = atoi(value);
    if (!strcmp(name, "EMULATOR_INTEGRATED")) settings.integrated = atoi(value);
    if (!strcmp(name, "EMULATOR_NCCL")) settings.nccl = atoi(value);
    if (!strcmp(name, "EMULATOR_SHARED")) settings.shared = atoi(value);
    if (!strcmp(name, "EMULATOR_RUN")) settings.run = atoi(value);
    if (!strcmp(name, "EMULATOR_VERSION")) settings.version = strtoull(value, NULL, 0);
    if (!strcmp(name, "EMULATOR_WORKSPACE"))
        settings.workspace = text == "none" ? SIZE_MAX : strtoull(value, NULL, 0);
    if (!strcmp(name, "EMULATOR_SHORT")) settings.short_steps = atoi(value);
    if (!strcmp(name, "EMULATOR_SEED")) settings.random = strtoull(value, NULL, 0) * 2654435769u + 1;
    if (!strcmp(name, "EMULATOR_MEMORY")) settings.memory = strtoull(value, NULL, 0);
    if (!strcmp(name, "EMULATOR_ORDER"))
        settings.order = text == "ascending" ? ASCENDING : text == "descending" ? DESCENDING : RANDOM;
    if (!strcmp(name, "EMULATOR_STREAMS"))
        settings.streams = text == "eager" ? EAGER : text == "random" ? ANY_TIME : LATE;
}

/* What kernels were compiled for. */
static int architecture(void)
{
    return settings.code ? settings.code : settings.capability;
}

static void read_settings(void)
{
    if (settings.read) return;
    settings.read = true;
    for (const char *name : {"EMULATOR_DEVICES",    "EMULATOR_CUDNN",     "EMULATOR_VERSION",
                             "EMULATOR_WORKSPACE",  "EMULATOR_SEED",      "EMULATOR_MEMORY",
                             "EMULATOR_ORDER",      "EMULATOR_STREAMS",   "EMULATOR_MULTIPROCESSORS",
                             "EMULATOR_RUN",        "EMULATOR_NAN",       "EMULATOR_CAPABILITY",
                             "EMULATOR_CODE",       "EMULATOR_ALIGNMENT", "EMULATOR_DRIVER",
                             "EMULATOR_EPILOGUE",   "EMULATOR_SHORT",     "EMULATOR_CONVOLUTIONS",
                             "EMULATOR_INTEGRATED", "EMULATOR_NCCL",      "EMULATOR_SHARED"})
        if (const char *value = getenv(name)) emulator_set(name, value);
}

/* What the reference code and tests ask of the settings. */
#define SETTING(type, function, field) \
    type function(void)                \
    {                                  \
        const holding guard;           \
        read_settings();               \
        return settings.field;         \
    }
extern "C" {
SETTING(int, emulator_cudnn, cudnn)
SETTING(int, emulator_nan, nan)
SETTING(int, emulator_nccl, nccl)
SETTING(int, emulator_convolutions, convolutions)
SETTING(int, emulator_epilogue, epilogue)
SETTING(int, emulator_alignment, alignment)
SETTING(size_t, emulator_version, version)
SETTING(size_t, emulator_workspace, workspace)
}
SETTING(int, emulator_short, short_steps)

static thread_local std::vector<std::string> ranges;
static thread_local std::string              deepest;

extern "C" int nvtxRangePushA(const char *text)
{
    ranges.push_back(text);
    deepest.clear();
    for (const std::string &range : ranges) deepest += (deepest.empty() ? "" : " > ") + range;
    return (int)ranges.size() - 1;
}
extern "C" int nvtxRangePop(void)
{
    ranges.pop_back();
    return (int)ranges.size();
}
extern "C" int emulator_ranges(const char **last)
{
    *last = deepest.c_str();
    return (int)ranges.size();
}

static long        cudnn_runs;
static const char *cudnn_ran = "";

extern "C" void emulator_count_cudnn(const char *what)
{
    const holding guard;
    cudnn_runs++;
    cudnn_ran = what;
}

extern "C" const char *emulator_cudnn_ran(void)
{
    const holding guard;
    return cudnn_ran;
}

extern "C" long emulator_cudnn_runs(void)
{
    const holding guard;
    return cudnn_runs;
}

static unsigned random_below(size_t n) /* xorshift64* */
{
    settings.random ^= settings.random >> 12, settings.random ^= settings.random << 25,
        settings.random ^= settings.random >> 27;
    return (unsigned)((settings.random * 2685821657736338717u >> 32) * (uint64_t)n >> 32);
}

struct device {
    cudaError_t sticky = cudaSuccess;
    size_t      used = 0;
    bool        context = false; /* by the runtime: a call that needs the primary context made it */
    int         retained = 0;    /* by the driver's calls */
};
enum { MOST_DEVICES = 8 };
static device                        devices[MOST_DEVICES];
static thread_local int              current;
static thread_local cudaError_t      last_error;
static thread_local std::vector<int> below;          /* current devices below the contexts that were pushed */
static int                           executing = -1; /* the device whose work runs */
static int                           fault_count;
static char                          fault_text[512];

static void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void fault(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    (void)vsnprintf(fault_text, sizeof fault_text, format, list);
    va_end(list);
    fault_count++;
    devices[executing >= 0 ? executing : current].sticky = cudaErrorLaunchFailure;
    (void)fprintf(stderr, "emulator: %s\n", fault_text);
}
extern "C" void emulator_race_fault(const char *text)
{
    fault("%s", text);
}
extern "C" int emulator_faults(void)
{
    return fault_count;
}
extern "C" const char *emulator_fault(void)
{
    return fault_text;
}
extern "C" void emulator_forget_faults(void)
{
    fault_count = 0;
    fault_text[0] = 0;
    for (device &d : devices) d.sticky = cudaSuccess;
    last_error = cudaSuccess;
}

extern "C" bool emulator_context(int device)
{
    const holding guard;
    return devices[device].context || devices[device].retained > 0;
}
extern "C" void emulator_forget_contexts(void)
{
    const holding guard;
    for (device &d : devices) d.context = false, d.retained = 0;
}

/* ==== fibers
 * ========================================================================================================== */
/* Saves the registers that a call keeps and the stack pointer in *from, takes those of `to`. */
extern "C" void emulator_switch(void **from, void *to);
#if defined(__x86_64__)
asm(".text\n.globl emulator_switch\n.type emulator_switch,@function\nemulator_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\nmov %rsp,(%rdi)\n"
    "mov %rsi,%rsp\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size emulator_switch,.-emulator_switch\n");
static void *fresh_stack(char *top, void (*function)(void))
{
    void **p = (void **)((uintptr_t)top & ~(uintptr_t)63) - 2;
    *p = (void *)function; /* where the first switch returns to, with the stack as after a call */
    p[1] = NULL;
    return p - 6;
}
#elif defined(__aarch64__)
asm(".text\n.globl emulator_switch\n.type emulator_switch,%function\nemulator_switch:\n"
    "stp x29,x30,[sp,#-160]!\nstp x19,x20,[sp,#16]\nstp x21,x22,[sp,#32]\nstp x23,x24,[sp,#48]\nstp "
    "x25,x26,[sp,#64]\n"
    "stp x27,x28,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp "
    "d14,d15,[sp,#144]\n"
    "mov x2,sp\nstr x2,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp,#16]\nldp x21,x22,[sp,#32]\nldp x23,x24,[sp,#48]\nldp x25,x26,[sp,#64]\nldp "
    "x27,x28,[sp,#80]\n"
    "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\nldp "
    "x29,x30,[sp],#160\nret\n"
    ".size emulator_switch,.-emulator_switch\n");
static void *fresh_stack(char *top, void (*function)(void))
{
    void **p = (void **)((uintptr_t)top & ~(uintptr_t)63) - 20;
    memset(p, 0, 160);
    p[1] = (void *)function;
    return p;
}
#else
#error "a context switch for this processor is missing"
#endif

/* stacks at multiples of 64 KiB would share the cache's sets */
enum { MOST_THREADS = 1024, STACK = (256 << 10) + 832 };
struct fiber {
    void       *sp, *fake; /* fake: the address sanitizer's */
    char       *stack;
    const void *bottom;
    size_t      bytes;
};
static fiber host; /* the thread that waits for the kernel */
static fiber fibers[MOST_THREADS];
static int   fiber_count, idle[MOST_THREADS], idle_count;
static int   running; /* index of the fiber, -1: the host */
static bool  from_host;

static fiber &fiber_at(int index)
{
    return index < 0 ? host : fibers[index];
}
static void arrived(void *fake)
{
    const void *bottom = NULL;
    size_t      bytes = 0;
    __sanitizer_finish_switch_fiber(fake, &bottom, &bytes);
    if (from_host) host.bottom = bottom, host.bytes = bytes;
    from_host = false;
}
static void switch_to(int index)
{
    fiber &from = fiber_at(running), &to = fiber_at(index);
    from_host = running < 0;
    running = index;
    __sanitizer_start_switch_fiber(&from.fake, to.bottom, to.bytes);
    emulator_switch(&from.sp, to.sp);
    arrived(from.fake);
}

/* ==== one block
 * ======================================================================================================= */
uint3 threadIdx, blockIdx;
dim3  blockDim, gridDim;

struct waiting {
    const char *file; /* NULL: it does not wait */
    int         line;
    bool        warp; /* for its warp only */
};
enum { SLOT = 6 * sizeof(unsigned) }; /* a lane's two factors of tensor cores */
static struct block {
    const emulator_kernel *kernel;
    unsigned               count, done, at_barrier;
    unsigned               at_warp_barrier[MOST_THREADS / 32];
    unsigned               ready[MOST_THREADS], ready_count; /* threads that can go on or begin */
    int                    fiber_of[MOST_THREADS];
    waiting                waits[MOST_THREADS];
    bool                   exited[MOST_THREADS];
    unsigned char          slot[2][MOST_THREADS][SLOT]; /* of shuffles; a lane may be one shuffle ahead */
    bool                   parity[MOST_THREADS];
    unsigned               thread; /* the one that runs */
    bool                   broken;
} block;

static void take_thread(unsigned t)
{
    block.thread = t;
    threadIdx.x = t;
    if (blockDim.x < block.count) {
        threadIdx.x = t % blockDim.x;
        threadIdx.y = t / blockDim.x % blockDim.y;
        threadIdx.z = t / (blockDim.x * blockDim.y);
    }
    if (emulator_race_thread) emulator_race_thread(t);
}
static void make_ready(unsigned first, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        unsigned t = settings.order == ASCENDING ? first + count - 1 - i : first + i;
        block.waits[t].file = NULL;
        block.ready[block.ready_count++] = t;
    }
}
static unsigned pick(void)
{
    if (settings.order == RANDOM)
        std::swap(block.ready[random_below(block.ready_count)], block.ready[block.ready_count - 1]);
    return block.ready[--block.ready_count];
}

static void fiber_main(void);
static int  idle_fiber(void)
{
    if (idle_count > 0) return idle[--idle_count];
    void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                       0);
    if (stack == MAP_FAILED) abort();
    fibers[fiber_count] = {fresh_stack((char *)stack + STACK, fiber_main), NULL, (char *)stack, stack, STACK};
    return fiber_count++;
}
static void fiber_main(void)
{
    arrived(NULL);
    for (;;) {
        unsigned t = block.thread;
        block.fiber_of[t] = running;
        block.kernel->run(block.kernel->arguments.get());
        block.exited[t] = true;
        block.done++;
        if (block.ready_count == 0) {
            idle[idle_count++] = running;
            switch_to(-1);
            continue;
        }
        unsigned next = pick();
        take_thread(next);
        if (block.fiber_of[next] < 0) continue;
        idle[idle_count++] = running;
        switch_to(block.fiber_of[next]);
    }
}
/* The running thread waits until it is ready again. */
static void give_way(void)
{
    unsigned me = block.thread;
    if (block.ready_count == 0) switch_to(-1); /* for good: the block is broken */
    unsigned next = pick();
    if (next != me) {
        take_thread(next);
        switch_to(block.fiber_of[next] < 0 ? idle_fiber() : block.fiber_of[next]);
    }
    take_thread(me);
}

static void same_place(unsigned first, unsigned count)
{
    const waiting &one = block.waits[first];
    for (unsigned t = first + 1; t < first + count && !block.broken; t++) {
        const waiting &other = block.waits[t];
        if (other.line == one.line && (other.file == one.file || strcmp(other.file, one.file) == 0)) continue;
        fault("%s, block %u: thread %u waits at %s:%d and thread %u at %s:%d", block.kernel->name, blockIdx.x,
              first, one.file, one.line, t, other.file, other.line);
        block.broken = true;
    }
}
void emulator_barrier(const char *file, int line)
{
    block.waits[block.thread] = {file, line, false};
    if (++block.at_barrier == block.count) {
        same_place(0, block.count);
        block.at_barrier = 0;
        if (emulator_race_barrier) emulator_race_barrier();
        make_ready(0, block.count);
    }
    give_way();
}
void emulator_warp_barrier(unsigned mask, const char *file, int line)
{
    unsigned warp = block.thread / 32, lanes = std::min(32u, block.count - 32 * warp);
    if ((mask != 0xFFFFFFFFu || lanes < 32) && !block.broken) {
        fault("%s, block %u, thread %u: mask %#x for the %u threads of a warp at %s:%d", block.kernel->name,
              blockIdx.x, block.thread, mask, lanes, file, line);
        block.broken = true;
    }
    block.waits[block.thread] = {file, line, true};
    if (++block.at_warp_barrier[warp] == lanes) {
        same_place(32 * warp, lanes);
        block.at_warp_barrier[warp] = 0;
        if (emulator_race_warp_barrier) emulator_race_warp_barrier(warp);
        make_ready(32 * warp, lanes);
    }
    give_way();
}
void emulator_fence(void)
{
    if (emulator_race_fence) emulator_race_fence();
}
unsigned emulator_increment(unsigned *at, unsigned most)
{
    unsigned old = *at;
    if (emulator_race_meet) emulator_race_meet(at);
    *at = old >= most ? 0 : old + 1;
    return old;
}
/* What the lanes of a warp bring, from the first one on. */
static const unsigned char (*exchanged(unsigned mask, const void *value, size_t bytes, const char *file,
                                       int line))[SLOT]
{
    unsigned t = block.thread;
    bool     side = block.parity[t] = !block.parity[t];
    memcpy(block.slot[side][t], value, bytes);
    emulator_warp_barrier(mask, file, line);
    return block.slot[side] + t / 32 * 32;
}
void emulator_shuffle(unsigned mask, void *value, size_t bytes, int source, const char *file, int line)
{
    const unsigned char(*lanes)[SLOT] = exchanged(mask, value, bytes, file, line);
    if (block.thread / 32 * 32 + (unsigned)source < block.count) memcpy(value, lanes[source], bytes);
}
unsigned emulator_match(unsigned mask, unsigned value, const char *file, int line)
{
    const unsigned char(*lanes)[SLOT] = exchanged(mask, &value, sizeof value, file, line);
    unsigned equals = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        equals |= (unsigned)(memcmp(lanes[lane], &value, sizeof value) == 0) << lane;
    return equals;
}

/* ---- tensor cores, from the PTX ISA's chapters on matrix fragments ---- */
/* Of a lane's registers, element i of A and of B, whose numbers have 16 bits or 32: row or column, place in
 * it, and the register. */
struct fragment_element {
    unsigned line, k, place;
};
static fragment_element element_of_a(bool wide, unsigned lane, unsigned i)
{
    const unsigned group = lane >> 2, in_group = lane % 4;
    if (wide) return {i == 0 || i == 2 ? group : group + 8, i < 2 ? in_group : in_group + 4, i};
    return {i < 2 || (4 <= i && i < 6) ? group : group + 8, in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0), i / 2};
}
static fragment_element element_of_b(bool wide, unsigned lane, unsigned i)
{
    const unsigned group = lane >> 2, in_group = lane % 4;
    if (wide) return {group, i == 0 ? in_group : in_group + 4, i};
    return {group, in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0), i / 2};
}
static double element_value(char type, unsigned word, unsigned i)
{
    const unsigned bits = i % 2 ? word >> 16 : word & 0xFFFF;
    if (type == 't') return __uint_as_float(word & 0xFFFFE000u); /* the lower 13 bits are ignored */
    return type == 'b' ? __uint_as_float(bits << 16) : __half2float(__ushort_as_half((unsigned short)bits));
}
/* Element i of the sum is that of row group or, from 2 on, group + 8, in column in_group * 2 + i % 2. Each
 * lane takes over the fragments of those that hold its two rows of A and its two columns of B. One rounding:
 * products and sums are exact before. */
void emulator_mma(const char *instruction, float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                  const char *file, int line)
{
    const char *const types[] = {"bf16", "f16", "tf32"};
    const unsigned    lane = block.thread % 32, group = lane >> 2, in_group = lane % 4;
    const char       *type = NULL;
    double            rows[2][16] = {}, columns[2][16] = {};
    for (const char *one : types)
        if (instruction ==
            std::string("m16n8k") + (one[0] == 't' ? "8" : "16") + ".row.col.f32." + one + "." + one + ".f32")
            type = one;
    if (type == NULL || architecture() < 80) {
        fault("%s: code for sm_%d has no mma.sync.aligned.%s", block.kernel->name, architecture(),
              instruction);
        return;
    }
    const bool     wide = type[0] == 't';
    const unsigned own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    unsigned       all[32][6];
    memcpy(all, exchanged(0xFFFFFFFFu, own, sizeof own, file, line), sizeof all);
    for (unsigned from = group * 4; from < group * 4 + 4; from++)
        for (unsigned i = 0; i < (wide ? 4 : 8); i++) {
            const fragment_element e = element_of_a(wide, from, i);
            rows[e.line != group][e.k] = element_value(type[0], all[from][e.place], i);
        }
    for (unsigned from = in_group * 8; from < in_group * 8 + 8; from++)
        for (unsigned i = 0; i < (wide ? 2 : 4); i++) {
            const fragment_element e = element_of_b(wide, from, i);
            columns[e.line - in_group * 2][e.k] = element_value(type[0], all[from][4 + e.place], i);
        }
    for (unsigned i = 0; i < 4; i++) {
        double total = sum[i];
        for (unsigned k = 0; k < (wide ? 8 : 16); k++) total += rows[i / 2][k] * columns[i % 2][k];
        sum[i] = (float)total;
    }
}

/* The same of bytes, those of B with a sign, and of sums that wrap around. Word w of a row of A, of 8, is in
 * register w / 4 * 2 of lane w % 4, or in the next register for rows from 8 on; of a column of B in w / 4. */
void emulator_mma_bytes(int (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2], const char *file,
                        int line)
{
    const unsigned group = block.thread % 32 / 4 * 4, column = block.thread % 4 * 8;
    const unsigned own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    unsigned       all[32][6];
    if (architecture() < 75) {
        fault("%s: code for sm_%d has no products of bytes", block.kernel->name, architecture());
        return;
    }
    memcpy(all, exchanged(0xFFFFFFFFu, own, sizeof own, file, line), sizeof all);
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 32; k++) {
            const unsigned x = all[group + k / 4 % 4][k / 16 * 2 + i / 2] >> 8 * (k % 4) & 255,
                           w = all[column + i % 2 * 4 + k / 4 % 4][4 + k / 16] >> 8 * (k % 4);
            sum[i] = (int)((unsigned)sum[i] + x * (unsigned)(signed char)w);
        }
}

/* What kept the threads that have not ended. */
static void report_stuck(void)
{
    unsigned    waiting = 0, other = 0;
    const char *how = NULL;
    while (block.exited[waiting]) waiting++;
    for (other = 0; other < block.count && how == NULL; other++)
        if (block.exited[other]) how = "has ended";
    for (unsigned t = 0; t < block.count && how == NULL; t++)
        if (block.waits[t].line != block.waits[waiting].line ||
            block.waits[t].warp != block.waits[waiting].warp)
            how = "waits elsewhere", other = t + 1;
    fault("%s, block %u: divergent barrier: thread %u waits at %s:%d for others, but thread %u %s",
          block.kernel->name, blockIdx.x, waiting, block.waits[waiting].file, block.waits[waiting].line,
          other - 1, how ? how : "never comes");
}

static void poison_shared(void);
static void run_block(unsigned index)
{
    blockIdx.x = index % gridDim.x;
    blockIdx.y = index / gridDim.x % gridDim.y;
    blockIdx.z = index / gridDim.x / gridDim.y;
    block.count = blockDim.x * blockDim.y * blockDim.z;
    block.done = block.at_barrier = 0;
    memset(block.at_warp_barrier, 0, sizeof block.at_warp_barrier);
    memset(block.exited, 0, block.count);
    std::fill(block.fiber_of, block.fiber_of + block.count, -1);
    block.ready_count = 0;
    make_ready(0, block.count);
    poison_shared();
    if (emulator_race_block) emulator_race_block(index);
    take_thread(pick());
    running = -1;
    switch_to(idle_fiber());
    if (block.done == block.count) return;
    if (!block.broken) report_stuck();
    block.broken = true;
    for (unsigned t = 0; t < block.count; t++) { /* their stacks are thrown away */
        if (block.exited[t] || block.fiber_of[t] < 0) continue;
        fiber &f = fibers[block.fiber_of[t]];
        __asan_unpoison_memory_region(f.stack, STACK);
        f.sp = fresh_stack(f.stack + STACK, fiber_main);
        f.fake = NULL;
        idle[idle_count++] = block.fiber_of[t];
    }
}

/* ticks: the devices' clock, which a launch moves on by one */
static long                        launches, ticks;
static std::map<std::string, long> launched; /* by name */
static std::vector<std::string>    ran;      /* the names in the order of the launches */
static long                        stray;    /* launches until one goes astray; 0: none does */
static void                        count_launch(const char *name, long time = 1)
{
    if (stray > 0 && --stray == 0) fault("%s goes astray", name);
    launches++;
    ticks += time;
    launched[name]++;
    ran.push_back(name);
}
static void run_kernel(const emulator_kernel &kernel, dim3 grid, dim3 threads)
{
    count_launch(kernel.name);
    if (!settings.run) return;
    size_t                count = (size_t)grid.x * grid.y * grid.z;
    std::vector<unsigned> order(count);
    for (size_t i = 0; i < count; i++)
        order[i] = (unsigned)(settings.order == DESCENDING ? count - 1 - i : i);
    if (settings.order == RANDOM)
        for (size_t i = count; i > 1; i--) std::swap(order[i - 1], order[random_below(i)]);
    block.kernel = &kernel;
    threadIdx = {0, 0, 0};
    block.broken = false;
    gridDim = grid;
    blockDim = threads;
    if (emulator_race_begin) emulator_race_begin(kernel.name);
    for (size_t i = 0; i < count && !block.broken; i++) run_block(order[i]);
    if (emulator_race_end) emulator_race_end();
}
extern "C" long emulator_launches(void)
{
    return launches;
}
extern "C" void emulator_stray(long launch)
{
    const holding guard;
    stray = launch;
}
extern "C" long emulator_launched(int i, const char **name)
{
    for (auto &entry : launched)
        if (i-- == 0) return *name = entry.first.c_str(), entry.second;
    return 0;
}
extern "C" const char *emulator_ran(long i)
{
    return i >= 0 && i < (long)ran.size() ? ran[(size_t)i].c_str() : NULL;
}
extern "C" void emulator_forget_launches(void)
{
    ran.clear();
    launches = 0;
    launched.clear();
}

/* Shared memory: the variables of functions that stand in .bss, found in the program's own symbol table. */
struct shared_array {
    char       *start;
    size_t      bytes;
    std::string name, kernel; /* kernel: whose alone it is; empty: not known */
};
static std::vector<shared_array>           shared_arrays;
static std::map<const void *, std::string> kernels; /* names of functions */

/* The name of the function that a symbol is or lies in, where it is called a kernel; or empty. */
static std::string kernel_of(const char *symbol)
{
    char             *text = abi::__cxa_demangle(symbol, NULL, NULL, NULL);
    const std::string whole = text ? text : "", name = whole.substr(0, whole.find_first_of("<("));
    const size_t      end = name.rfind("_kernel");
    free(text);
    return end != std::string::npos && end + 7 == name.size() ? name.substr(name.find_last_of(" ") + 1) : "";
}
static int program_start(struct dl_phdr_info *info, size_t, void *start)
{
    *(uintptr_t *)start = info->dlpi_addr;
    return 1; /* the program comes first */
}
static void find_shared(void)
{
    std::vector<char> file;
    FILE             *f = fopen("/proc/self/exe", "rb");
    if (f == NULL) abort();
    for (size_t got = 1; got > 0;) {
        size_t size = file.size();
        file.resize(size + (1 << 20));
        got = fread(file.data() + size, 1, 1 << 20, f);
        file.resize(size + got);
    }
    (void)fclose(f);
    uintptr_t base = 0;
    (void)dl_iterate_phdr(program_start, &base);
    const ElfW(Ehdr) *head = (const ElfW(Ehdr) *)file.data();
    const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(file.data() + head->e_shoff);
    for (int s = 0; s < head->e_shnum; s++) {
        if (sections[s].sh_type != SHT_SYMTAB) continue;
        const ElfW(Sym) *symbols = (const ElfW(Sym) *)(file.data() + sections[s].sh_offset);
        const char *names = file.data() + sections[sections[s].sh_link].sh_offset;
        for (size_t i = 0; i < sections[s].sh_size / sizeof *symbols; i++) {
            const char *name = names + symbols[i].st_name;
            if ((symbols[i].st_info & 15) == STT_FUNC && strstr(name, "_kernel"))
                kernels[(const void *)(base + symbols[i].st_value)] = kernel_of(name);
            if ((symbols[i].st_info & 15) != STT_OBJECT || strncmp(name, "_ZZ", 3) != 0 ||
                symbols[i].st_shndx >= head->e_shnum || sections[symbols[i].st_shndx].sh_type != SHT_NOBITS)
                continue;
            shared_arrays.push_back(
                {(char *)(base + symbols[i].st_value), symbols[i].st_size, name, kernel_of(name)});
        }
    }
}
/* Not by memset, which sanitizers watch. A program of many kernels has megabytes of arrays, and of those that
 * are one kernel's alone the others' need nothing. */
__attribute__((no_sanitize("address"), no_sanitize("undefined"))) static void poison_shared(void)
{
    typedef uint64_t piece __attribute__((vector_size(64), aligned(1), may_alias));
    const piece      ones = ~piece{};
    if (shared_arrays.empty()) find_shared();
    const std::string own = kernels[block.kernel->function];
    for (const shared_array &array : shared_arrays) {
        if (!own.empty() && !array.kernel.empty() && array.kernel != own) continue;
        char *p = array.start, *const end = p + array.bytes;
        for (; (size_t)(end - p) >= sizeof ones; p += sizeof ones) *(volatile piece *)p = ones;
        for (; p < end; p++) *(volatile char *)p = (char)0xFF;
    }
}

/* ==== memory
 * ========================================================================================================== */
enum kind { ON_DEVICE, PINNED };
struct allocation {
    char                 *start;
    size_t                bytes;
    kind                  where;
    int                   device;
    struct emulator_pool *pool;
};
struct emulator_pool {
    int      device;
    uint64_t used, used_high, reserved, reserved_high;
};
static std::map<uintptr_t, allocation> allocations;
static long                            held; /* objects */

/* For race.cpp: what a kernel's address is. */
static const allocation  *find_allocation(const void *ptr);
extern "C" char           __executable_start, end;
extern "C" emulator_place emulator_locate(const void *address, emulator_range *range)
{
    for (const shared_array &array : shared_arrays)
        if ((char *)address >= array.start && (char *)address < array.start + array.bytes) {
            *range = {array.start, array.bytes, array.name.c_str()};
            return EMULATOR_SHARED;
        }
    const allocation *a = find_allocation(address);
    if (a && (char *)address < a->start + a->bytes) {
        *range = {a->start, a->bytes, a->where == PINNED ? "pinned memory" : "device memory"};
        return EMULATOR_GLOBAL;
    }
    const fiber &f = fiber_at(running);
    if ((char *)address >= f.stack && (char *)address < f.stack + STACK) return EMULATOR_STACK;
    const char *arguments = (const char *)block.kernel->arguments.get();
    if ((char *)address >= arguments && (char *)address < arguments + block.kernel->bytes)
        return EMULATOR_CONSTANT;
    if ((char *)address >= &__executable_start && (char *)address < &end) return EMULATOR_CONSTANT;
    return EMULATOR_NOWHERE;
}

static const allocation *find_allocation(const void *ptr)
{
    auto next = allocations.upper_bound((uintptr_t)ptr);
    if (next == allocations.begin()) return NULL;
    const allocation &a = std::prev(next)->second;
    return (char *)ptr <= a.start + a.bytes ? &a : NULL;
}
static bool within(const void *ptr, size_t bytes, const allocation *a)
{
    return a && (size_t)((char *)ptr - a->start) <= a->bytes &&
           bytes <= a->bytes - (size_t)((char *)ptr - a->start);
}

/* The host may touch device memory only inside kernels and copies. */
static int  open_count;
static void open_memory(bool open)
{
    if (open ? open_count++ > 0 : --open_count > 0) return;
    for (auto &entry : allocations) {
        if (entry.second.where != ON_DEVICE) continue;
        if (open)
            __asan_unpoison_memory_region(entry.second.start, entry.second.bytes);
        else
            __asan_poison_memory_region(entry.second.start, entry.second.bytes);
    }
}

static long        allocations_left; /* until one fails; 0: none does */
static bool        allocations_fail, allocations_fail_on;
static cudaError_t allocate(void **ptr, size_t bytes, kind where, emulator_pool *pool)
{
    *ptr = NULL;
    if (bytes == 0) return cudaSuccess;
    if (allocations_left > 0 && --allocations_left == 0) {
        allocations_fail = allocations_fail_on;
        return cudaErrorMemoryAllocation;
    }
    if (allocations_fail) return cudaErrorMemoryAllocation;
    if (where == ON_DEVICE && (bytes > settings.memory || devices[current].used > settings.memory - bytes))
        return cudaErrorMemoryAllocation;
    void *start = NULL;
    if (posix_memalign(&start, 256, bytes) != 0) return cudaErrorMemoryAllocation;
    if (settings.run) memset(start, 0xFF, bytes);
    if (where == ON_DEVICE) devices[current].used += bytes;
    if (pool) {
        pool->used += bytes;
        pool->used_high = std::max(pool->used_high, pool->used);
        pool->reserved = std::max(pool->reserved, pool->used);
        pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
    }
    allocations[(uintptr_t)start] = {(char *)start, bytes, where, current, pool};
    if (where == ON_DEVICE && open_count == 0) __asan_poison_memory_region(start, bytes);
    *ptr = start;
    return cudaSuccess;
}
static void release(void *ptr)
{
    auto found = allocations.find((uintptr_t)ptr);
    if (found == allocations.end()) return;
    allocation a = found->second;
    if (a.where == ON_DEVICE) devices[a.device].used -= a.bytes;
    if (a.pool) a.pool->used -= a.bytes;
    allocations.erase(found);
    __asan_unpoison_memory_region(a.start, a.bytes);
    free(a.start);
}

/* ==== streams
 * ========================================================================================================= */
struct ticket { /* of one record of an event */
    bool             done;
    emulator_stream *stream;
    long             ticks;
};
struct operation {
    std::function<void()>   run = {};
    std::shared_ptr<ticket> waits_for = {}, completes = {};
    void                   *frees = NULL;
    /* before that it does not run; another device's work brings it about */
    std::function<bool()> ready = {};
};
struct emulator_node {
    operation        work;
    std::vector<int> after; /* nodes before it */
};
struct emulator_graph {
    std::vector<emulator_node> nodes;
};
struct emulator_graph_exec {
    emulator_graph graph;
};
struct capture {
    emulator_graph        graph;
    emulator_stream      *origin;
    cudaStreamCaptureMode mode;
    std::thread::id       thread;
    bool                  invalid;
};
struct emulator_stream {
    int                      device;
    bool                     blocking; /* waits for, and is waited for by, calls without a stream */
    std::deque<operation>    queue;
    std::shared_ptr<capture> captured;
    std::vector<int>         after; /* while captured: the nodes that the next one follows */
};
struct emulator_event {
    int                      device;
    bool                     timing;
    std::shared_ptr<ticket>  last;
    std::shared_ptr<capture> captured; /* recorded in it */
    std::vector<int>         after;
};
static std::vector<emulator_stream *>        streams;
static std::vector<std::shared_ptr<capture>> captures;
static emulator_stream                       legacy[MOST_DEVICES]; /* of calls with stream NULL */

static void execute(int device, const std::function<void()> &work)
{
    if (devices[device].sticky != cudaSuccess) return;
    int before = executing;
    executing = device;
    work();
    executing = before;
}
static bool advance(emulator_stream *stream, bool force);
/* As GPUs go on by themselves, whatever their hosts wait for. */
static void all_progress(void)
{
    for (emulator_stream *s : streams)
        while (!s->queue.empty() && advance(s, false)) {}
}
static bool must_wait(const operation &work)
{
    return (work.waits_for && !work.waits_for->done) || (work.ready && !work.ready());
}
/* Runs the first operation of the stream, unless another thread has meanwhile; false: it waits for another
 * stream. */
static bool advance(emulator_stream *stream, bool force)
{
    while (!stream->queue.empty() && must_wait(stream->queue.front())) {
        if (!force) return false;
        std::shared_ptr<ticket> other = stream->queue.front().waits_for;
        if (other)
            (void)advance(other->stream, true);
        else {
            all_progress();
            if (!stream->queue.empty() && must_wait(stream->queue.front())) let_others_in();
        }
    }
    if (stream->queue.empty()) return true;
    operation work = stream->queue.front();
    stream->queue.pop_front();
    if (work.run) execute(stream->device, work.run);
    if (work.frees) release(work.frees); /* on a device that failed, too */
    if (work.completes) work.completes->done = true, work.completes->ticks = ticks;
    return true;
}
static void drain(emulator_stream *stream)
{
    open_memory(true);
    while (!stream->queue.empty()) (void)advance(stream, true);
    open_memory(false);
}
static void drain_device(int device)
{
    std::vector<emulator_stream *> order;
    for (emulator_stream *s : streams)
        if (s->device == device) order.push_back(s);
    for (; !order.empty(); order.pop_back()) {
        std::swap(order[random_below(order.size())], order.back());
        drain(order.back());
    }
    drain(&legacy[device]);
}
static void some_progress(void)
{
    open_memory(true);
    for (unsigned turns = random_below(4); turns > 0 && !streams.empty(); turns--) {
        emulator_stream *s = streams[random_below(streams.size())];
        for (unsigned n = random_below(8); n > 0 && !s->queue.empty() && advance(s, false); n--) {}
    }
    open_memory(false);
}

static emulator_stream *stream_of(cudaStream_t stream)
{
    if (stream && stream != cudaStreamLegacy) return stream;
    legacy[current].device = current;
    legacy[current].blocking = true;
    return &legacy[current];
}
static void drain_blocking(int device, emulator_stream *self)
{
    for (emulator_stream *s : streams)
        if (s != self && s->device == device && s->blocking) drain(s);
}
static cudaError_t enqueue(emulator_stream *stream, operation work)
{
    if (stream->captured) {
        std::shared_ptr<capture> c = stream->captured;
        if (c->invalid) return cudaErrorStreamCaptureInvalidated;
        if (!work.run) return cudaSuccess;
        c->graph.nodes.push_back({work, stream->after});
        stream->after.assign(1, (int)c->graph.nodes.size() - 1);
        return cudaSuccess;
    }
    if (stream == &legacy[stream->device])
        drain_blocking(stream->device, stream);
    else if (stream->blocking)
        drain(&legacy[stream->device]);
    stream->queue.push_back(work);
    if (settings.streams == EAGER) drain(stream);
    return cudaSuccess;
}

/* ==== every call
 * ====================================================================================================== */
static long        calls, fail_at;
static int         fail_with;
static const char *failed_call = "none";
static bool        is_device_fault(int error)
{
    return error == cudaErrorECCUncorrectable || error == cudaErrorContained ||
           error == cudaErrorTensorMemoryLeak || (error >= 700 && error < 720);
}
static cudaError_t begin(const char *call)
{
    read_settings();
    if (settings.devices == 0) return cudaErrorNoDevice;
    if (settings.streams == ANY_TIME) some_progress();
    if (++calls == fail_at) {
        fail_at = 0;
        failed_call = call;
        if (is_device_fault(fail_with)) devices[current].sticky = (cudaError_t)fail_with;
        return (cudaError_t)fail_with;
    }
    return devices[current].sticky;
}
static cudaError_t finish(cudaError_t error)
{
    if (error == cudaSuccess) error = devices[current].sticky;
    if (error != cudaSuccess) last_error = error;
    return error;
}
/* Makes the current device's primary context, where there is none. */
static void touch(void)
{
    if (devices[current].retained == 0) devices[current].context = true;
}
/* Questions about devices make no context. */
#define BEGIN_QUESTION                                    \
    const holding guard;                                  \
    do {                                                  \
        cudaError_t error_ = begin(__func__);             \
        if (error_ != cudaSuccess) return finish(error_); \
    } while (0)
#define BEGIN       \
    BEGIN_QUESTION; \
    touch()
/* Giving back always works; the error is that of earlier work. */
#define BEGIN_RELEASE                       \
    const holding guard;                    \
    cudaError_t   error_ = begin(__func__); \
    touch()

/* While a stream is captured, its thread may not call what waits or allocates. */
static bool forbidden(emulator_stream *stream)
{
    bool found = false;
    for (auto &c : captures)
        if (c->mode != cudaStreamCaptureModeRelaxed &&
            (c->mode == cudaStreamCaptureModeGlobal || c->thread == std::this_thread::get_id()) && !stream)
            c->invalid = found = true;
    if (stream && stream->captured) stream->captured->invalid = found = true;
    return found;
}
#define NOT_WHILE_CAPTURING(stream) \
    if (forbidden(stream)) return finish(cudaErrorStreamCaptureUnsupported)

extern "C" void emulator_report(const char *sentence)
{
    const holding guard;
    fault("%s", sentence);
}
extern "C" void emulator_fail(long call, int error)
{
    const holding guard;
    fail_at = call > 0 ? calls + call : 0;
    fail_with = error;
}
extern "C" bool emulator_fail_allocation(long allocation, bool on)
{
    const holding guard;
    const bool    awaited = allocations_left > 0;
    allocations_left = allocation;
    allocations_fail_on = on;
    allocations_fail = false;
    return awaited;
}
extern "C" long emulator_calls(void)
{
    return calls;
}
extern "C" const char *emulator_failed_call(void)
{
    return failed_call;
}
static long     waits, captured_runs, host_copies;
extern "C" long emulator_waits(void)
{
    return waits;
}
extern "C" long emulator_captures(void)
{
    return captured_runs;
}
extern "C" long emulator_host_copies(void)
{
    return host_copies;
}
extern "C" long emulator_held(void)
{
    return held + (long)allocations.size();
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define X(name, code, text) \
    case name: return #name;
        EMULATOR_ERRORS(X)
#undef X
    }
    return "unrecognized error code";
}
const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define X(name, code, text) \
    case name: return text;
        EMULATOR_ERRORS(X)
#undef X
    }
    return "unrecognized error code";
}
cudaError_t cudaGetLastError(void)
{
    const holding guard;
    cudaError_t   error = last_error;
    last_error = devices[current].sticky;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    const holding guard;
    return last_error;
}

/* ---- devices ---- */
cudaError_t cudaDriverGetVersion(int *version)
{
    read_settings();
    *version = settings.devices ? settings.driver : 0;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count)
{
    BEGIN_QUESTION;
    *count = settings.devices;
    return finish(cudaSuccess);
}
cudaError_t cudaGetDevice(int *device) /* works on a device that failed, too */
{
    const holding guard;
    read_settings();
    *device = current;
    if (settings.devices == 0) last_error = cudaErrorNoDevice;
    return settings.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaSetDevice(int device)
{
    const holding guard;
    cudaError_t   error_ = begin(__func__); /* a device that failed can be chosen, to free what it holds */
    if (device < 0 || device >= settings.devices || device >= MOST_DEVICES)
        return finish(cudaErrorInvalidDevice);
    current = device;
    touch();
    if (error_ != cudaSuccess && !is_device_fault(error_)) return finish(error_);
    return finish(cudaSuccess);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    BEGIN_QUESTION;
    if (device < 0 || device >= settings.devices) return finish(cudaErrorInvalidDevice);
    memset(properties, 0, sizeof *properties);
    (void)snprintf(properties->name, sizeof properties->name, "emulated GPU %d", device);
    properties->totalGlobalMem = settings.memory;
    properties->major = settings.capability / 10;
    properties->minor = settings.capability % 10;
    properties->multiProcessorCount = settings.multiprocessors;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxThreadsPerBlock = MOST_THREADS;
    properties->l2CacheSize = 1 << 20;
    properties->sharedMemPerBlock = 49152;
    properties->canMapHostMemory = properties->memoryPoolsSupported = 1;
    properties->integrated = settings.integrated > 0;
    properties->uuid.bytes[0] = (char)(1 + device);
    return finish(cudaSuccess);
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    cudaDeviceProp properties;
    cudaError_t    error = cudaGetDeviceProperties(&properties, device);
    if (error != cudaSuccess) return error;
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = settings.shared; break;
    case cudaDevAttrIntegrated: *value = properties.integrated; break;
    case cudaDevAttrPageableMemoryAccessUsesHostPageTables: *value = settings.integrated > 1; break;
    case cudaDevAttrMemoryPoolsSupported: *value = properties.memoryPoolsSupported; break;
    }
    return cudaSuccess;
}
void emulator_shared(size_t bytes)
{
    const holding guard;
    read_settings();
    if (bytes > (size_t)settings.shared)
        fault("a block of %zu bytes of shared memory, and there are %d", bytes, settings.shared);
}
cudaError_t emulator_function_attributes(cudaFuncAttributes *attributes)
{
    BEGIN;
    memset(attributes, 0, sizeof *attributes);
    attributes->binaryVersion = settings.capability;
    attributes->ptxVersion = architecture();
    attributes->maxThreadsPerBlock = MOST_THREADS;
    return finish(cudaSuccess);
}

/* ---- the driver's contexts, whose handles are their devices ---- */
static int context_retain(void **context, int index)
{
    const holding     guard;
    const cudaError_t error = begin("cuDevicePrimaryCtxRetain");
    if (index < 0 || index >= settings.devices) return cudaErrorInvalidDevice;
    if (error != cudaSuccess) return error;
    devices[index].retained++;
    *context = &devices[index];
    return cudaSuccess;
}
static int context_release(int index)
{
    const holding guard;
    devices[index].retained--;
    return begin("cuDevicePrimaryCtxRelease");
}
static int context_push(void *context)
{
    const holding     guard;
    const bool        worked = devices[current].sticky == cudaSuccess;
    const cudaError_t error = begin("cuCtxPushCurrent");
    /* a device that failed before can be chosen, to free what it holds */
    if (error != cudaSuccess && worked) return error;
    below.push_back(current);
    current = (int)((device *)context - devices);
    return cudaSuccess;
}
static int context_pop(void **context) /* never fails, so that emulator_fail need not count it */
{
    const holding guard;
    if (below.empty()) {
        fault("a context is popped, and none was pushed");
        return cudaErrorInvalidValue;
    }
    *context = &devices[current];
    current = below.back();
    below.pop_back();
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned,
                                             unsigned long long)
{
    BEGIN_QUESTION;
    const struct {
        const char *name;
        void       *function;
    } known[] = {{"cuDevicePrimaryCtxRetain", (void *)context_retain},
                 {"cuDevicePrimaryCtxRelease", (void *)context_release},
                 {"cuCtxPushCurrent", (void *)context_push},
                 {"cuCtxPopCurrent", (void *)context_pop}};
    *function = NULL;
    for (const auto &one : known)
        if (!strcmp(one.name, symbol)) *function = one.function;
    return finish(cudaSuccess);
}

/* ---- streams and events ---- */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    BEGIN;
    *stream = new emulator_stream();
    (*stream)->device = current;
    (*stream)->blocking = !(flags & cudaStreamNonBlocking);
    streams.push_back(*stream);
    held++;
    return finish(cudaSuccess);
}
/* Priorities change no result. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest)
{
    BEGIN;
    *lowest = 0;
    *highest = -5;
    return finish(cudaSuccess);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    BEGIN_RELEASE;
    if (stream == NULL) return finish(cudaErrorInvalidResourceHandle);
    if (stream->captured) stream->captured->invalid = true;
    drain(stream);
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    delete stream;
    held--;
    return finish(error_);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    BEGIN;
    emulator_stream *s = stream_of(stream);
    NOT_WHILE_CAPTURING(s);
    waits++;
    drain(s);
    return finish(cudaSuccess);
}
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    BEGIN;
    emulator_stream *s = stream_of(stream);
    NOT_WHILE_CAPTURING(s);
    return finish(s->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    BEGIN;
    emulator_stream *s = stream_of(stream);
    if (event->captured) {
        if (s->captured && s->captured != event->captured) return finish(cudaErrorStreamCaptureIsolation);
        if (!s->captured) s->captured = event->captured, s->after.clear();
        for (int node : event->after)
            if (std::find(s->after.begin(), s->after.end(), node) == s->after.end()) s->after.push_back(node);
        return finish(cudaSuccess);
    }
    if (s->captured) {
        s->captured->invalid = true;
        return finish(cudaErrorStreamCaptureIsolation);
    }
    if (!event->last) return finish(cudaSuccess);
    return finish(enqueue(s, {{}, event->last}));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    BEGIN;
    *event = new emulator_event();
    (*event)->device = current;
    (*event)->timing = !(flags & cudaEventDisableTiming);
    held++;
    return finish(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    BEGIN_RELEASE;
    if (event == NULL) return finish(cudaErrorInvalidResourceHandle);
    delete event;
    held--;
    return finish(error_);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    BEGIN;
    emulator_stream *s = stream_of(stream);
    if (event->device != s->device) return finish(cudaErrorInvalidResourceHandle);
    event->captured = s->captured;
    if (s->captured) {
        event->after = s->after;
        return finish(s->captured->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    }
    event->last = std::make_shared<ticket>(ticket{false, s, 0});
    return finish(enqueue(s, {{}, {}, event->last}));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    BEGIN;
    if (event->captured) return finish(cudaErrorCapturedEvent);
    waits += event->last && !event->last->done;
    open_memory(true);
    while (event->last && !event->last->done) (void)advance(event->last->stream, true);
    open_memory(false);
    return finish(cudaSuccess);
}
cudaError_t cudaEventQuery(cudaEvent_t event) /* who asks again and again lets time pass */
{
    BEGIN;
    if (event->captured) return finish(cudaErrorCapturedEvent);
    open_memory(true);
    all_progress();
    open_memory(false);
    return finish(event->last && !event->last->done ? cudaErrorNotReady : cudaSuccess);
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    BEGIN;
    if (!from->timing || !to->timing) return finish(cudaErrorInvalidResourceHandle);
    if (!from->last || !to->last || !from->last->done || !to->last->done) return finish(cudaErrorNotReady);
    *milliseconds = 0.125f * (float)(to->last->ticks - from->last->ticks);
    return finish(cudaSuccess);
}

cudaError_t emulator_launch(cudaStream_t stream, const emulator_kernel &kernel, dim3 blocks, dim3 threads)
{
    const holding    guard;
    cudaError_t      error = begin(__func__);
    size_t           count = (size_t)threads.x * threads.y * threads.z;
    emulator_stream *s = stream_of(stream);
    if (error == cudaSuccess &&
        (count == 0 || count > MOST_THREADS || blocks.x == 0 || blocks.x > 2147483647u || blocks.y == 0 ||
         blocks.y > 65535 || blocks.z == 0 || blocks.z > 65535))
        error = cudaErrorInvalidConfiguration;
    if (error == cudaSuccess && s->device != current) error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess) error = enqueue(s, {[=] { run_kernel(kernel, blocks, threads); }});
    return finish(error);
}

/* Reference code of the seam, in its stream's turn. */
cudaError_t emulator_call(cudaStream_t stream, const char *name, std::function<void()> function, long time)
{
    const holding guard;
    cudaError_t   error = begin(__func__);
    auto          work = [=] {
        count_launch(name, time);
        if (settings.run) function();
    };
    if (error == cudaSuccess) error = enqueue(stream_of(stream), {work});
    return finish(error);
}

/* The stream goes no further until that holds, in a graph each time. */
cudaError_t emulator_wait(cudaStream_t stream, std::function<bool()> ready)
{
    const holding guard;
    cudaError_t   error = begin(__func__);
    if (error == cudaSuccess) error = enqueue(stream_of(stream), {[] {}, {}, {}, NULL, ready});
    return finish(error);
}

bool emulator_captures(void *stream)
{
    const holding guard;
    return stream_of((cudaStream_t)stream)->captured != NULL;
}

/* ---- memory ---- */
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const cudaMemPoolProps *properties)
{
    BEGIN;
    *pool = new emulator_pool();
    (*pool)->device = properties->location.id;
    held++;
    return finish(cudaSuccess);
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    BEGIN_RELEASE;
    if (pool == NULL) return finish(cudaErrorInvalidValue);
    drain_device(pool->device);
    for (auto &entry : allocations)
        if (entry.second.pool == pool) entry.second.pool = NULL;
    delete pool;
    held--;
    return finish(error_);
}
static uint64_t *pool_number(cudaMemPool_t pool, cudaMemPoolAttr attribute)
{
    switch (attribute) {
    case cudaMemPoolAttrReservedMemCurrent: return &pool->reserved;
    case cudaMemPoolAttrReservedMemHigh: return &pool->reserved_high;
    case cudaMemPoolAttrUsedMemCurrent: return &pool->used;
    case cudaMemPoolAttrUsedMemHigh: return &pool->used_high;
    default: return NULL;
    }
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value)
{
    BEGIN;
    if (attribute == cudaMemPoolAttrReleaseThreshold) return finish(cudaSuccess);
    if (*(uint64_t *)value != 0 ||
        (attribute != cudaMemPoolAttrReservedMemHigh && attribute != cudaMemPoolAttrUsedMemHigh))
        return finish(cudaErrorInvalidValue);
    if (attribute == cudaMemPoolAttrUsedMemHigh)
        pool->used_high = pool->used;
    else
        pool->reserved_high = pool->reserved;
    return finish(cudaSuccess);
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value)
{
    BEGIN;
    const uint64_t *number = pool_number(pool, attribute);
    if (number == NULL) return finish(cudaErrorInvalidValue);
    *(uint64_t *)value = *number;
    return finish(cudaSuccess);
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes)
{
    BEGIN;
    pool->reserved = std::max(pool->used, std::min(pool->reserved, (uint64_t)bytes));
    return finish(cudaSuccess);
}
cudaError_t cudaDeviceGraphMemTrim(int)
{
    BEGIN;
    return finish(cudaSuccess);
}

cudaError_t emulator_malloc(void **ptr, size_t bytes)
{
    BEGIN;
    NOT_WHILE_CAPTURING(NULL);
    return finish(allocate(ptr, bytes, ON_DEVICE, NULL));
}
cudaError_t emulator_malloc_async(void **ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream)
{
    BEGIN;
    NOT_WHILE_CAPTURING(stream_of(stream));
    return finish(allocate(ptr, bytes, ON_DEVICE, pool));
}
cudaError_t emulator_host_alloc(void **ptr, size_t bytes, unsigned)
{
    BEGIN;
    NOT_WHILE_CAPTURING(NULL);
    return finish(allocate(ptr, bytes, PINNED, NULL));
}
cudaError_t emulator_device_pointer(void **device, void *host_ptr)
{
    BEGIN;
    const allocation *a = find_allocation(host_ptr);
    if (a == NULL || a->where != PINNED) return finish(cudaErrorInvalidValue);
    *device = host_ptr;
    return finish(cudaSuccess);
}
static cudaError_t give_back(void *ptr, kind where)
{
    BEGIN_RELEASE;
    if (ptr == NULL) return finish(error_);
    NOT_WHILE_CAPTURING(NULL);
    const allocation *a = find_allocation(ptr);
    if (a == NULL || a->start != ptr || a->where != where) {
        fault("a pointer is freed that was not allocated, or freed twice");
        return finish(cudaErrorInvalidValue);
    }
    waits++;
    drain_device(a->device); /* as the real ones do */
    release(ptr);
    return finish(error_);
}
cudaError_t cudaFree(void *ptr)
{
    return give_back(ptr, ON_DEVICE);
}
cudaError_t cudaFreeHost(void *ptr)
{
    return give_back(ptr, PINNED);
}
cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
    BEGIN_RELEASE;
    if (ptr == NULL) return finish(error_);
    emulator_stream *s = stream_of(stream);
    NOT_WHILE_CAPTURING(s);
    const allocation *a = find_allocation(ptr);
    if (a == NULL || a->start != ptr || a->where != ON_DEVICE) {
        fault("a pointer is freed that was not allocated, or freed twice");
        return finish(cudaErrorInvalidValue);
    }
    (void)enqueue(s, {{}, {}, {}, ptr});
    return finish(error_);
}

/* cudaSuccess when the two ends of a copy are where kind says and inside their allocations. */
static cudaError_t check_copy(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind_)
{
    const allocation *a = find_allocation(to), *b = find_allocation(from);
    bool              to_device = kind_ == cudaMemcpyHostToDevice || kind_ == cudaMemcpyDeviceToDevice;
    bool              from_device = kind_ == cudaMemcpyDeviceToHost || kind_ == cudaMemcpyDeviceToDevice;
    if (kind_ == cudaMemcpyDefault)
        to_device = a && a->where == ON_DEVICE, from_device = b && b->where == ON_DEVICE;
    bool good = (to_device ? a && within(to, bytes, a) : !(a && a->where == ON_DEVICE && within(to, 1, a))) &&
                (from_device ? b && within(from, bytes, b)
                             : !(b && b->where == ON_DEVICE && within(from, 1, b)));
    if (good) return cudaSuccess;
    fault("a copy of %zu bytes leaves its allocation, or its kind does not fit", bytes);
    return cudaErrorInvalidValue;
}
static bool is_on_device(const void *ptr)
{
    const allocation *a = find_allocation(ptr);
    return a && a->where == ON_DEVICE && within(ptr, 1, a);
}
static bool is_pageable(const void *ptr)
{
    const allocation *a = find_allocation(ptr);
    return !(a && within(ptr, 1, a));
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *ptr)
{
    BEGIN;
    const allocation *a = find_allocation(ptr);
    memset(attributes, 0, sizeof *attributes);
    if (!(a && within(ptr, 1, a))) return finish(cudaSuccess); /* the host's own */
    attributes->type = a->where == ON_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->device = a->device;
    attributes->devicePointer = (void *)ptr;
    if (a->where == PINNED) attributes->hostPointer = (void *)ptr;
    return finish(cudaSuccess);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind_,
                            cudaStream_t stream)
{
    BEGIN;
    if (bytes == 0) return finish(cudaSuccess);
    emulator_stream *s = stream_of(stream);
    cudaError_t      error = check_copy(to, from, bytes, kind_);
    if (error != cudaSuccess) return finish(error);
    host_copies += !is_on_device(to) || !is_on_device(from);
    if (!s->captured && is_pageable(from)) { /* taken over before the call returns */
        auto bytes_now = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
        return finish(enqueue(s, {[=] { memcpy(to, bytes_now->data(), bytes); }}));
    }
    auto work = [=] {
        if (kind_ == cudaMemcpyDeviceToDevice) count_launch("memcpy");
        if (settings.run) memcpy(to, from, bytes);
    };
    error = enqueue(s, {work});
    if (!s->captured && is_pageable(to)) drain(s);
    return finish(error);
}
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    BEGIN;
    if (bytes == 0) return finish(cudaSuccess);
    emulator_stream *s = stream_of(stream);
    if (!within(to, bytes, find_allocation(to))) {
        fault("a fill of %zu bytes leaves its allocation", bytes);
        return finish(cudaErrorInvalidValue);
    }
    auto work = [=] {
        count_launch("memset");
        if (settings.run) memset(to, byte, bytes);
    };
    return finish(enqueue(s, {work}));
}

/* ---- graphs ---- */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    BEGIN;
    if (stream == NULL || stream == cudaStreamLegacy) return finish(cudaErrorStreamCaptureUnsupported);
    if (stream->captured) return finish(cudaErrorInvalidValue);
    stream->captured = std::make_shared<capture>();
    stream->captured->origin = stream;
    stream->captured->mode = mode;
    stream->captured->thread = std::this_thread::get_id();
    stream->after.clear();
    captures.push_back(stream->captured);
    captured_runs++;
    return finish(cudaSuccess);
}
static void all_before(const emulator_graph &graph, int node, std::vector<bool> *seen)
{
    if ((*seen)[(size_t)node]) return;
    (*seen)[(size_t)node] = true;
    for (int before : graph.nodes[(size_t)node].after) all_before(graph, before, seen);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    BEGIN_RELEASE; /* the capture ends in any case */
    *graph = NULL;
    std::shared_ptr<capture> c = stream ? stream->captured : NULL;
    if (!c) return finish(error_ != cudaSuccess ? error_ : cudaErrorInvalidValue);
    if (c->origin != stream || c->thread != std::this_thread::get_id())
        return finish(cudaErrorStreamCaptureUnmatched);
    std::vector<bool> joined(c->graph.nodes.size());
    for (int node : stream->after) all_before(c->graph, node, &joined);
    for (emulator_stream *s : streams)
        if (s->captured == c) s->captured = NULL, s->after.clear();
    captures.erase(std::find(captures.begin(), captures.end(), c));
    emulator_graph ended; /* events still know the capture, and keep nothing of the graph */
    std::swap(ended.nodes, c->graph.nodes);
    if (error_ != cudaSuccess) return finish(error_);
    if (c->invalid) return finish(cudaErrorStreamCaptureInvalidated);
    if (std::find(joined.begin(), joined.end(), false) != joined.end())
        return finish(cudaErrorStreamCaptureUnjoined);
    *graph = new emulator_graph(ended);
    held++;
    return finish(cudaSuccess);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    BEGIN;
    emulator_stream *s = stream_of(stream);
    *status = !s->captured           ? cudaStreamCaptureStatusNone
              : s->captured->invalid ? cudaStreamCaptureStatusInvalidated
                                     : cudaStreamCaptureStatusActive;
    return finish(cudaSuccess);
}
/* Nodes of the longest path; each comes behind those that it follows. */
static long row_of(const emulator_graph &graph)
{
    std::vector<long> row;
    for (const auto &node : graph.nodes) {
        long before = 0;
        for (int n : node.after) before = std::max(before, row[(size_t)n]);
        row.push_back(before + 1);
    }
    return row.empty() ? 0 : *std::max_element(row.begin(), row.end());
}
static long     row;
extern "C" long emulator_row(void)
{
    return row;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    BEGIN;
    row = row_of(*graph);
    *exec = new emulator_graph_exec{*graph};
    held++;
    return finish(cudaSuccess);
}
static long     graph_launches;
extern "C" long emulator_graph_launches(void)
{
    return graph_launches;
}
/* Its work, in any order that the edges allow, comes next in the stream. */
static void unfold_graph(const emulator_graph &graph, emulator_stream *stream)
{
    std::vector<int>              open_edges(graph.nodes.size());
    std::vector<std::vector<int>> next(graph.nodes.size());
    std::vector<int>              ready;
    std::vector<operation>        order;
    for (size_t i = 0; i < graph.nodes.size(); i++) {
        for (int before : graph.nodes[i].after) next[(size_t)before].push_back((int)i);
        open_edges[i] = (int)graph.nodes[i].after.size();
        if (open_edges[i] == 0) ready.push_back((int)i);
    }
    while (!ready.empty()) {
        std::swap(ready[random_below(ready.size())], ready.back());
        int node = ready.back();
        ready.pop_back();
        order.push_back(graph.nodes[(size_t)node].work);
        for (int n : next[(size_t)node])
            if (--open_edges[(size_t)n] == 0) ready.push_back(n);
    }
    stream->queue.insert(stream->queue.begin(), order.begin(), order.end());
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    BEGIN;
    emulator_stream *s = stream_of(stream);
    if (s->captured) return finish(cudaErrorStreamCaptureUnsupported);
    auto copy = std::make_shared<emulator_graph>(exec->graph);
    auto work = [=] {
        graph_launches++;
        unfold_graph(*copy, s);
    };
    return finish(enqueue(s, {work}));
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    BEGIN_RELEASE;
    delete exec;
    held--;
    return finish(error_);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    BEGIN_RELEASE;
    delete graph;
    held--;
    return finish(error_);
}
