/* The emulator by mutation: a row sum, a scaled copy and uses of the runtime, each right and with one thing
 * broken, and every broken one must be found. Built twice: under the address sanitizer, and with race.cpp
 * following each access (EMULATOR_RACES). Each case runs in a process of its own, whose report is
 * compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
enum { ROWS = 5, COLUMNS = 77, THREADS = 64, N = ROWS * COLUMNS };

/* What GPUNN__LAUNCH needs of a context. */
struct context {
    cudaStream_t stream, other;
};
static cudaError_t gpunn__cuda_launched(context *, cudaError_t error, const char *)
{
    return error;
}
static void check(cudaError_t error)
{
    if (error == cudaSuccess) return;
    (void)fprintf(stderr, "status: %s\n", cudaGetErrorName(error));
    exit(2);
}

enum mutation {
    RIGHT,
    NO_BARRIER,        /* between writing and reading shared memory */
    NO_SECOND_BARRIER, /* before the next use of that memory */
    RACE,              /* two threads add to one number */
    SAME_VALUE_RACE,   /* all threads write the same value */
    UNINITIALISED,     /* shared memory is read that nobody wrote */
    EARLY_RETURN,      /* before the barrier */
    DIVERGENT_BARRIER, /* a different one in each half of the block */
    DIVERGENT_SHUFFLE, /* half a warp does not take part */
    HALF_MASK,
    HALF_WARP,       /* 48 threads and a shuffle */
    SHARED_OVERFLOW, /* part[THREADS] */
    WRONG_TAIL,      /* the last columns are left out */
    ONE_TOO_MANY,    /* one column beyond the last row's end is read */
    WRITE_BEYOND,
    BLOCKS_RACE,     /* two blocks write one result */
    STRAY_POINTER,   /* a kernel writes the host's memory */
    NO_FENCE,        /* before a block counts itself */
    NO_SECOND_FENCE, /* before the last block reads what others wrote */
    EARLY_LAST,      /* the last but one takes itself for the last */
    TWO_STAGES,      /* no mutation: the last blocks of two groups count at a second counter */
    NO_FENCE_BETWEEN /* these two */
};

/* sums[r] = three times the sum of x[r][0 .. columns), one row a block: once and twice the row through the
 * same shared memory. */
__global__ void row_sums(const float *x, float *sums, int columns, mutation broken)
{
    __shared__ float part[THREADS];
    const float     *row = x + (size_t)blockIdx.x * columns;
    int              t = (int)threadIdx.x, end = broken == WRONG_TAIL ? columns / THREADS * THREADS : columns;
    float            total = 0;
    if (broken == EARLY_RETURN && t == THREADS - 1) return;
    for (int round = 1; round <= 2; round++) {
        float sum = 0;
        for (int i = t; i < end + (broken == ONE_TOO_MANY); i += THREADS) sum += (float)round * row[i];
        if (broken != UNINITIALISED || t != 40) part[t + (broken == SHARED_OVERFLOW)] = sum;
        if (broken == DIVERGENT_BARRIER && t >= 32)
            __syncthreads();
        else if (broken != NO_BARRIER)
            __syncthreads();
        if (t < 32) {
            sum = part[t] + part[t + 32];
            for (int distance = 16; distance > 0; distance /= 2) {
                if (broken == DIVERGENT_SHUFFLE && t >= 16) continue;
                sum += __shfl_xor_sync(broken == HALF_MASK ? 0xFFFFu : 0xFFFFFFFFu, sum, distance);
            }
            total += sum;
        }
        if (broken != NO_SECOND_BARRIER) __syncthreads();
    }
    if (t == 0) sums[broken == BLOCKS_RACE ? 0 : blockIdx.x + (broken == WRITE_BEYOND)] = total;
    if (broken == RACE && t < 2) sums[blockIdx.x] = t == 0 ? total : sums[blockIdx.x] + 1;
    if (broken == SAME_VALUE_RACE) sums[blockIdx.x] = (float)columns;
}
/* The sum of all, by the block that comes last. */
__global__ void total_kernel(const float *x, float *parts, unsigned *counter, float *total, mutation broken)
{
    __shared__ bool last;
    int             t = (int)threadIdx.x;
    float           sum = 0;
    for (int i = t; i < COLUMNS; i += THREADS) sum += x[(int)blockIdx.x * COLUMNS + i];
    parts[(int)blockIdx.x * THREADS + t] = sum;
    if (broken != NO_BARRIER) __syncthreads();
    if (t == 0) {
        if (broken != NO_FENCE) __threadfence();
        if (broken >= TWO_STAGES) {
            const unsigned second = blockIdx.x / 3, most = second ? ROWS - 4 : 2;
            last = atomicInc(counter + 1 + second, most) == most;
            if (broken != NO_FENCE_BETWEEN) __threadfence();
            last = last && atomicInc(counter, 1) == 1;
        } else
            last = atomicInc(counter, ROWS - 1) == ROWS - (broken == EARLY_LAST ? 2 : 1);
        if (broken != NO_SECOND_FENCE) __threadfence();
    }
    if (broken != NO_SECOND_BARRIER) __syncthreads();
    if (t != 1 || !last) return;
    sum = 0;
    for (int i = 0; i < ROWS * THREADS; i++) sum += parts[i];
    *total = sum;
}
__global__ void half_warp_kernel(float *out)
{
    float x = __shfl_down_sync(0xFFFFFFFFu, (float)threadIdx.x, 1);
    out[threadIdx.x] = x;
}
__global__ void stray_kernel(float *host)
{
    *host = 1;
}
__global__ void scale_kernel(float *y, const float *x, float factor, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        y[i] = factor * x[i];
}

static void fill(float *x)
{
    for (int i = 0; i < N; i++) x[i] = (float)(i % 13 - 4);
}

/* Exit status 0: the result is right. 1: it is wrong. 2: the runtime said so. */
static int run_rows(mutation broken)
{
    context c;
    float   x[N], result[ROWS], of_host, *dx, *ds;
    int     wrong = 0;
    fill(x);
    check(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking));
    check(cudaMalloc(&dx, sizeof x));
    check(cudaMalloc(&ds, sizeof result));
    check(cudaMemcpyAsync(dx, x, sizeof x, cudaMemcpyHostToDevice, c.stream));
    check(GPUNN__LAUNCH(&c, row_sums, ROWS, THREADS, dx, ds, COLUMNS, broken));
    if (broken == HALF_WARP) check(GPUNN__LAUNCH(&c, half_warp_kernel, 1, 48, dx));
    if (broken == STRAY_POINTER) check(GPUNN__LAUNCH(&c, stray_kernel, 1, 1, &of_host));
    check(cudaMemcpyAsync(result, ds, sizeof result, cudaMemcpyDeviceToHost, c.stream));
    check(cudaStreamSynchronize(c.stream));
    for (int r = 0; r < ROWS; r++) {
        float sum = 0;
        for (int i = 0; i < COLUMNS; i++) sum += x[r * COLUMNS + i];
        wrong += !(fabsf(result[r] - 3 * sum) <= 1e-3f);
    }
    check(cudaFree(dx));
    check(cudaFree(ds));
    check(cudaStreamDestroy(c.stream));
    if (emulator_held() != 0) (void)fprintf(stderr, "held: %ld\n", emulator_held());
    return wrong != 0;
}

static int run_total(mutation broken)
{
    context   c;
    float     x[N], result, expected = 0, *dx, *parts, *total;
    unsigned *counter;
    int       wrong = 0;
    fill(x);
    for (int i = 0; i < N; i++) expected += x[i];
    check(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking));
    check(cudaMalloc(&dx, sizeof x));
    check(cudaMalloc(&parts, ROWS * THREADS * sizeof *parts));
    check(cudaMalloc(&total, sizeof *total));
    check(cudaMalloc(&counter, 3 * sizeof *counter));
    check(cudaMemcpyAsync(dx, x, sizeof x, cudaMemcpyHostToDevice, c.stream));
    check(cudaMemsetAsync(counter, 0, 3 * sizeof *counter, c.stream));
    for (int run = 0; run < 2; run++) { /* the counter begins anew by itself */
        check(cudaMemsetAsync(parts, 0, ROWS * THREADS * sizeof *parts, c.stream));
        check(cudaMemsetAsync(total, 0, sizeof *total, c.stream));
        check(GPUNN__LAUNCH(&c, total_kernel, ROWS, THREADS, dx, parts, counter, total, broken));
        check(cudaMemcpyAsync(&result, total, sizeof result, cudaMemcpyDeviceToHost, c.stream));
        check(cudaStreamSynchronize(c.stream));
        wrong += !(fabsf(result - expected) <= 1e-3f);
    }
    check(cudaFree(dx));
    check(cudaFree(parts));
    check(cudaFree(total));
    check(cudaFree(counter));
    check(cudaStreamDestroy(c.stream));
    return wrong != 0;
}

enum misuse {
    PROPER,
    NO_EVENT_WAIT, /* the second stream reads what the first has not yet copied */
    REUSED_HOST,   /* pinned memory is overwritten before the copy from it was waited for */
    NO_WAIT_FOR_RESULT,
    READ_ON_HOST,    /* the host looks into device memory */
    USED_AFTER_FREE, /* in stream order */
    FREED_TWICE,
    COPY_BEYOND,
    WRONG_KIND,
    SYNCHRONISED_IN_CAPTURE,
    ALLOCATED_IN_CAPTURE,
    UNJOINED_CAPTURE,
    TOO_MANY_THREADS,
    LOST_ALLOCATION,
};
/* y = 2 x by way of two streams, and again by a graph. */
static int run_streams(misuse broken)
{
    context     c, other;
    cudaEvent_t copied, scaled;
    float      *pinned, *dx, *dy, *late;
    int         wrong = 0;
    check(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking));
    check(cudaStreamCreateWithFlags(&other.stream, cudaStreamNonBlocking));
    check(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    check(cudaEventCreateWithFlags(&scaled, cudaEventDisableTiming));
    check(cudaHostAlloc(&pinned, 2 * N * sizeof *pinned, cudaHostAllocDefault));
    check(cudaMalloc(&dx, N * sizeof *dx));
    check(cudaMalloc(&dy, N * sizeof *dy));
    fill(pinned);
    check(cudaMemcpyAsync(dx, pinned, (N + (broken == COPY_BEYOND)) * sizeof *dx,
                          broken == WRONG_KIND ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                          other.stream));
    check(cudaEventRecord(copied, other.stream));
    if (broken != NO_EVENT_WAIT) check(cudaStreamWaitEvent(c.stream, copied, 0));
    if (broken == REUSED_HOST) memset(pinned, 0, N * sizeof *pinned);
    check(GPUNN__LAUNCH(&c, scale_kernel, 3, broken == TOO_MANY_THREADS ? 2048 : 32, dy, dx, 2, N));
    check(cudaMemcpyAsync(pinned + N, dy, N * sizeof *dy, cudaMemcpyDeviceToHost, c.stream));
    if (broken != NO_WAIT_FOR_RESULT) check(cudaStreamSynchronize(c.stream));
    for (int i = 0; i < N; i++) wrong += !(pinned[N + i] == 2 * (float)(i % 13 - 4));
    if (broken == READ_ON_HOST) wrong += dy[0] == 1;
    check(cudaStreamSynchronize(c.stream));
    check(cudaStreamSynchronize(other.stream));

    cudaGraph_t     graph;
    cudaGraphExec_t exec;
    check(cudaStreamBeginCapture(c.stream, cudaStreamCaptureModeThreadLocal));
    check(cudaEventRecord(copied, c.stream));
    check(cudaStreamWaitEvent(other.stream, copied, 0));
    check(GPUNN__LAUNCH(&other, scale_kernel, 1, 32, dy, dx, 3, N));
    check(cudaEventRecord(scaled, other.stream));
    if (broken == SYNCHRONISED_IN_CAPTURE) check(cudaStreamSynchronize(c.stream));
    if (broken == ALLOCATED_IN_CAPTURE) check(cudaMalloc(&late, 4));
    if (broken != UNJOINED_CAPTURE) check(cudaStreamWaitEvent(c.stream, scaled, 0));
    check(GPUNN__LAUNCH(&c, scale_kernel, 1, 32, dx, dy, 1, N)); /* x = y */
    check(cudaStreamEndCapture(c.stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
    check(cudaGraphDestroy(graph));
    for (int i = 0; i < 2; i++) check(cudaGraphLaunch(exec, c.stream)); /* 9 x */
    check(cudaMemcpyAsync(pinned, dx, N * sizeof *dx, cudaMemcpyDeviceToHost, c.stream));
    check(cudaStreamSynchronize(c.stream));
    for (int i = 0; i < N; i++) wrong += !(pinned[i] == 9 * (float)(i % 13 - 4));
    check(cudaGraphExecDestroy(exec));

    check(cudaFreeAsync(dx, c.stream));
    if (broken == USED_AFTER_FREE) check(GPUNN__LAUNCH(&c, scale_kernel, 1, 32, dy, dx, 1, N));
    check(cudaStreamSynchronize(c.stream));
    if (broken == FREED_TWICE) check(cudaFreeAsync(dx, c.stream));
    if (broken != LOST_ALLOCATION) check(cudaFree(dy));
    check(cudaFreeHost(pinned));
    check(cudaEventDestroy(copied));
    check(cudaEventDestroy(scaled));
    check(cudaStreamDestroy(other.stream));
    check(cudaStreamDestroy(c.stream));
    if (emulator_held() != 0) (void)fprintf(stderr, "held: %ld\n", emulator_held());
    return wrong != 0;
}

/* Every call fails in its turn: the program above sees it as a status, and a device fault stays. */
static int run_failures(int error)
{
    cudaStream_t stream;
    void        *memory;
    for (long n = 1; n <= 3; n++) {
        emulator_fail(n, error);
        cudaError_t first = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaError_t second = first ? first : cudaMalloc((char **)&memory, 100);
        cudaError_t third = second ? second : cudaMemsetAsync(memory, 0, 100, stream);
        if ((n == 1) != (first == error) || (n <= 2) != (second == error) || third != error) return 1;
        bool stays = error == cudaErrorLaunchFailure;
        if ((cudaGetLastError() != error) || (cudaGetLastError() == error) != stays) return 1;
        if (second == cudaSuccess) (void)cudaFree(memory);
        if (first == cudaSuccess) (void)cudaStreamDestroy(stream);
        if (emulator_held() != 0) return 1;
        emulator_forget_faults();
    }
    return 0;
}

/* ---- cases ---- */
struct fault_case {
    const char *name;
    int (*run)(int kind);
    int         kind;
    const char *plain,
        *races; /* what is reported under the address sanitizer, and by race.cpp: NULL: nothing; "": a wrong result */
};
static int rows(int kind)
{
    return run_rows((mutation)kind);
}
static int total(int kind)
{
    return run_total((mutation)kind);
}
static int use(int kind)
{
    return run_streams((misuse)kind);
}
static const char       race[] = "race at byte";
static const fault_case cases[] = {
    {"rows", rows, RIGHT, NULL, NULL},
    {"missing barrier", rows, NO_BARRIER, "", race},
    {"missing barrier before reuse", rows, NO_SECOND_BARRIER, "", race},
    {"race on a sum", rows, RACE, "", race},
    {"race of equal values", rows, SAME_VALUE_RACE, "", race},
    {"uninitialised shared memory", rows, UNINITIALISED, "", ""},
    {"return before a barrier", rows, EARLY_RETURN, "divergent barrier: thread", "divergent barrier: thread"},
    {"two barriers", rows, DIVERGENT_BARRIER, "waits at", "waits at"},
    {"half a warp shuffles", rows, DIVERGENT_SHUFFLE, "divergent barrier", "divergent barrier"},
    {"half a mask", rows, HALF_MASK, "mask 0xffff", "mask 0xffff"},
    {"half a warp", rows, HALF_WARP, "16 threads of a warp", "16 threads of a warp"},
    {"beyond shared memory", rows, SHARED_OVERFLOW, "out of bounds", "not the device's"},
    {"wrong tail", rows, WRONG_TAIL, "", ""},
    {"reads one too many", rows, ONE_TOO_MANY, "heap-buffer-overflow", "not the device's"},
    {"writes beyond", rows, WRITE_BEYOND, "heap-buffer-overflow", "not the device's"},
    {"two blocks write one", rows, BLOCKS_RACE, "", race},
    {"host's pointer", rows, STRAY_POINTER, NULL, "not the device's"},
    {"last block", total, RIGHT, NULL, NULL},
    {"counted before all have written", total, NO_BARRIER, NULL, race},
    {"counted without a fence", total, NO_FENCE, NULL, race},
    {"read without a fence", total, NO_SECOND_FENCE, NULL, race},
    {"read by a thread that did not wait", total, NO_SECOND_BARRIER, "", race},
    {"last but one", total, EARLY_LAST, "", race},
    {"last of the last blocks of groups", total, TWO_STAGES, NULL, NULL},
    {"no fence between two counters", total, NO_FENCE_BETWEEN, NULL, race},
    {"streams", use, PROPER, NULL, NULL},
    {"no wait for an event", use, NO_EVENT_WAIT, "", ""},
    {"host memory reused early", use, REUSED_HOST, "", ""},
    {"result not waited for", use, NO_WAIT_FOR_RESULT, "", ""},
    {"host reads device memory", use, READ_ON_HOST, "use-after-poison", NULL},
    {"used after free", use, USED_AFTER_FREE, "heap-use-after-free", "not the device's"},
    {"freed twice", use, FREED_TWICE, "freed twice", "freed twice"},
    {"copy beyond", use, COPY_BEYOND, "leaves its allocation", "leaves its allocation"},
    {"copy of a wrong kind", use, WRONG_KIND, "kind does not fit", "kind does not fit"},
    {"synchronised in a capture", use, SYNCHRONISED_IN_CAPTURE, "StreamCaptureUnsupported",
     "StreamCaptureUnsupported"},
    {"allocated in a capture", use, ALLOCATED_IN_CAPTURE, "StreamCaptureUnsupported",
     "StreamCaptureUnsupported"},
    {"unjoined capture", use, UNJOINED_CAPTURE, "StreamCaptureUnjoined", "StreamCaptureUnjoined"},
    {"too many threads", use, TOO_MANY_THREADS, "InvalidConfiguration", "InvalidConfiguration"},
    {"lost allocation", use, LOST_ALLOCATION, "held: 1", "held: 1"},
    {"calls fail", run_failures, cudaErrorMemoryAllocation, NULL, NULL},
    {"device fails", run_failures, cudaErrorLaunchFailure, NULL, NULL},
};

/* The exit status of the case, and what it printed. */
static int run_apart(const fault_case *c, const char *order, char *text, size_t size)
{
    int    ends[2], status = 0;
    size_t length = 0;
    assert_int_equal(pipe(ends), 0);
    (void)fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)dup2(ends[1], 2);
        (void)close(ends[0]);
        emulator_set("EMULATOR_ORDER", order);
        _exit(c->run(c->kind));
    }
    (void)close(ends[1]);
    for (ssize_t got; length + 1 < size && (got = read(ends[0], text + length, size - 1 - length)) > 0;)
        length += (size_t)got;
    text[length] = 0;
    (void)close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
static void test_case(void **state)
{
    const fault_case        *c = (const fault_case *)*state;
    static const char *const orders[] = {"random", "ascending", "descending"};
    static char              text[1 << 16];
#ifdef EMULATOR_RACES
    const char *expected = c->races;
#else
    const char *expected = c->plain;
#endif
    int found = 0;
    for (int i = 0; i < COUNT(orders); i++) {
        int  status = run_apart(c, orders[i], text, sizeof text);
        bool good = expected == NULL ? status == 0 && text[0] == 0
                    : expected[0]    ? strstr(text, expected) != NULL
                                     : status == 1;
        found += good;
        if (!good && (expected == NULL || expected[0]))
            fail_msg("%s, %s: status %d, \"%.600s\"", c->name, orders[i], status, text);
    }
    /* one order that shows it is enough */
    if (found == 0) fail_msg("%s: the result is right in every order", c->name);
}

int main(void)
{
    static CMUnitTest tests[COUNT(cases)];
    for (int i = 0; i < COUNT(cases); i++)
        tests[i] = {cases[i].name, test_case, NULL, NULL, (void *)&cases[i]};
    return _cmocka_run_group_tests("faults", tests, COUNT(cases), NULL, NULL);
}
