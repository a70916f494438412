#ifndef GPUNN__CUDA_RUN_RUN_H
#define GPUNN__CUDA_RUN_RUN_H
#include "cuda/elementwise.h"
#include "cuda/optimizers.h"

/* ==== >>run/run ========================================================================================== *
 * Executes runs. A run that comes back unchanged is captured the second time and replayed as one graph from
 * then on. Values that vary between its runs are passed in the arguments of a kernel, which stores them to
 * cuda->state before the run. */
enum { GPUNN__NUMBERS = 180 }; /* maximum updates whose numbers fit a kernel's arguments */

typedef struct gpunn__numbers {
    uint64_t     seed, step, draw;
    const float *loss_scale;    /* NULL: 1 */
    float       *loss_gradient; /* NULL: not needed */
    int          first, count;  /* of the updates in these arguments */
    gpunn_count *run_counts;    /* counts of seed, step and draw; NULL: use the host's */
    gpunn_count *counts;        /* counts of the updates; NULL: use the host's */
    uint64_t    *doubt;         /* set to 0 before gradients are checked; NULL: no checks */
    int          counted;       /* end of the range of counts used */
    int64_t      update;        /* number of this update in counts[0] */
    bool         replayed;      /* replayed by the program: the counts advance by themselves */
    bool         runs, trains;  /* runs: has steps; trains: they are a training step */
    float        lr[GPUNN__NUMBERS];
    int64_t      update_step[GPUNN__NUMBERS];
    int          from[GPUNN__NUMBERS], to[GPUNN__NUMBERS]; /* the range of counts of an update */
    /* the input of the run's first step if that only rounds to 16 bits */
    const void *wide;
    void       *half;
    gpunn_dtype half_dtype;
    int64_t     half_count;

    unsigned          rounding; /* number of blocks for that rounding */
    const gpunn_kept *kept;     /* as in gpunn_run, for the blocks after those */
    int               kept_count;
} gpunn__numbers;

/* The value of a count in this run: the host's plus earlier replays, or in a replay `by` more than before. */
__device__ __forceinline__ uint64_t gpunn__counted(gpunn_count *count, uint64_t host, bool replayed,
                                                   uint64_t by)
{
    count->now += replayed ? by : host - count->host;
    if (!replayed) count->host = host;
    return count->now;
}

/* Called by one thread. */
__device__ __forceinline__ void gpunn__count_run(gpunn__device_state *state, const gpunn__numbers &numbers)
{
    gpunn_count *counts = numbers.run_counts;
    state->seed = numbers.seed;
    state->step = numbers.step;
    state->draw = numbers.draw;
    if (counts == NULL) return;
    const bool replayed = numbers.replayed;
    state->seed = gpunn__counted(counts + GPUNN_COUNT_SEED, numbers.seed, replayed, 0);
    state->step = gpunn__counted(counts + GPUNN_COUNT_STEP, numbers.step, replayed, numbers.trains);
    state->draw = gpunn__counted(counts + GPUNN_COUNT_DRAW, numbers.draw, replayed, numbers.runs);
    if (numbers.trains) state->draw = counts[GPUNN_COUNT_DRAW].now = state->step << 24;
}

/* Called by a whole block; each count is handled by one of its threads. The ranges of counts of the updates
 * are ascending. */
__device__ __forceinline__ void gpunn__count_updates(const gpunn__numbers &numbers)
{
    if (threadIdx.x == 0 && numbers.first == 0)
        (void)gpunn__counted(numbers.counts, (uint64_t)numbers.update, numbers.replayed, 1);
    for (int c = 1 + (int)threadIdx.x, i = 0; c < numbers.counted; c += (int)blockDim.x) {
        while (i < numbers.count && numbers.to[i] <= c) i++;
        if (i < numbers.count && numbers.from[i] <= c)
            (void)gpunn__counted(numbers.counts + c, (uint64_t)numbers.update_step[i], numbers.replayed, 1);
    }
    __syncthreads();
}

static __global__ void gpunn__numbers_kernel(gpunn__device_state *state, const gpunn__numbers numbers)
{
    GPUNN__FOLLOW();
    const unsigned other = numbers.rounding + 1;
    if (blockIdx.x >= other) {
        gpunn__kept_copy(numbers.kept, numbers.kept_count, false, blockIdx.x - other, gridDim.x - other);
        return;
    }
    if (blockIdx.x > 0) {
        gpunn__copy_part(numbers.half, numbers.half_dtype, numbers.wide, GPUNN_F32, numbers.half_count, false,
                         blockIdx.x - 1, numbers.rounding);
        return;
    }
    if (threadIdx.x == 0 && numbers.first == 0) gpunn__count_run(state, numbers);
    if (threadIdx.x == 0) state->bad_place = 0;
    if (threadIdx.x == 0 && numbers.doubt) *numbers.doubt = 0;
    if (threadIdx.x == 0 && numbers.loss_gradient)
        *numbers.loss_gradient = numbers.loss_scale ? *numbers.loss_scale : 1;
    if (numbers.counts) gpunn__count_updates(numbers);
    for (int i = (int)threadIdx.x; i < numbers.count; i += (int)blockDim.x) {
        int64_t step = numbers.update_step[i];
        if (numbers.counts && numbers.from[i] > 0) step = (int64_t)numbers.counts[numbers.from[i]].now;
        if (numbers.counts && numbers.from[i] == 0) step += (int64_t)numbers.counts->now - numbers.update;
        state->lr[numbers.first + i] = numbers.lr[i];
        state->update_step[numbers.first + i] = step;
    }
}

/* Launches the kernel that stores the run's numbers to cuda->state. */
GPUNN__INTERNAL gpunn_status gpunn__run_numbers(gpunn__cuda *cuda, const gpunn_run *run, bool replayed);

/* Calls the function of the step's op. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_dispatch(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action);

/* Launches everything of a run except its numbers. Even after a failure, what follows on the stream waits for
 * the checks, which read memory that may be freed. */
GPUNN__INTERNAL gpunn_status gpunn__run_launch(gpunn__cuda *cuda, gpunn_run *run);

/* The functions below are entries of gpunn_backend, which >>backend in gpunn.h describes. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_time(void *context, gpunn_run *run, double *seconds);

GPUNN__INTERNAL gpunn_status gpunn__cuda_execute(void *context, gpunn_run *run);

GPUNN__INTERNAL void gpunn__cuda_forget(void *context, void *kept);

#endif /* GPUNN__CUDA_RUN_RUN_H */
