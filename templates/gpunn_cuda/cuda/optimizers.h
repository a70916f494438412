#ifndef GPUNN__CUDA_CUDA_OPTIMIZERS_H
#define GPUNN__CUDA_CUDA_OPTIMIZERS_H
#include "cuda/short.h"

/* ==== >>cuda/optimizers ================================================================================== *
 * The optimizers of gpunn.h's table as kernels, each in one pass over parameter, gradient and state. The
 * inputs of a run's decisions are in device memory: whether the loss is finite, the gradient norm, the loss
 * scale, lr and step. Every block evaluates them itself, in the same order. */
#define GPUNN__BAD_GRADIENT \
    ((uint64_t)1 << 63) /* flag in bad[0], beside the step: a gradient is bad, not the loss */
enum {
    /* up to so many gradient elements, in so many ranges, every block of an update checks all of them
     * itself */
    GPUNN__FEW_GRADIENTS = 4096,
    GPUNN__FEW_RANGES = 2,
    GPUNN__GRADIENT_RANGES = 160, /* most ranges that fit a kernel's arguments */
};

typedef struct gpunn__update_job {
    /* its lr and step are those of the captured run and are not read */
    gpunn_update  u;
    double        setting[GPUNN_SETTINGS]; /* the decimal numbers that the caller wrote */
    const float  *loss, *loss_scale;
    const double *partials;             /* sums of squares of all gradients of the run */
    int           partial_count, index; /* index: of this update in the run */
    /* this update reports non-finite values: the first one of the run that changes anything */
    bool reports;
    bool skips, scales; /* as in gpunn_run */
    /* partials of the updates that are clipped together with this one */
    int own_first, own_count;
    /* gradients that state->bad_place does not cover */
    const float               *few[GPUNN__FEW_RANGES];
    int                        few_count[GPUNN__FEW_RANGES];
    const gpunn_kept          *kept; /* as in gpunn_run */
    int                        kept_count;
    const gpunn__device_state *state;
    uint64_t                  *bad;
    gpunn_update_numbers      *numbers; /* decided by an earlier kernel; NULL: still to be decided */
    /* trust ratio: per block, the sums of squares of parameter and move */
    double   *sums;
    int       sum_count;
    int64_t  *rejected; /* as in gpunn_run */
    uint64_t *doubt;    /* as in gpunn_run; updates set it */
} gpunn__update_job;

/* Copies the values that a run changes in place aside, or back. One block copies ranges first,
 * first + blocks, ... */
__device__ __forceinline__ void gpunn__kept_copy(const gpunn_kept *kept, int count, bool back, unsigned first,
                                                 unsigned blocks)
{
    for (unsigned k = first; k < (unsigned)count; k += blocks) {
        float *const from = back ? kept[k].copy : kept[k].values, *const to = back ? kept[k].values
                                                                                   : kept[k].copy;
        for (int64_t i = threadIdx.x; i < kept[k].count; i += blockDim.x) to[i] = from[i];
    }
}

/* A small network's training: the steps that end a run and its update of few parameters, made by one
 * block. */
typedef struct gpunn__short_training {
    gpunn__short      step[GPUNN__SHORT_BEFORE_UPDATE];
    int               count;
    gpunn__update_job job;
} gpunn__short_training;

/* Gradients as ranges of F32 values; length is in elements. */
typedef struct gpunn__gradients {
    int          count;
    int64_t      total; /* of all ranges */
    const float *values[GPUNN__GRADIENT_RANGES];
    int64_t      length[GPUNN__GRADIENT_RANGES];
} gpunn__gradients;

/* A gradient that steps of a run write, complete after so many of them. */
struct gpunn__check {
    const float *values;
    int64_t      count;
    int          after;
};

struct gpunn__checks {
    gpunn__check       *list;        /* by rising `after`, then by place */
    int                 count, next; /* next: the first that no kernel has been launched for */
    unsigned long long *bad_place;
    bool                beside; /* kernels have been launched on the second stream */
};

/* Whether one block can make the run's only update behind its last steps. */
GPUNN__INTERNAL bool gpunn__joins_steps(const gpunn__cuda *cuda, const gpunn_run *run);

/* Finds out what the run's steps write, and when. */
GPUNN__INTERNAL gpunn_status gpunn__checks_begin(gpunn__cuda *cuda, const gpunn_run *run,
                                                 gpunn__checks *checks);

/* For gradients that are complete after so many steps, but not those that come last: see gpunn__checks_end.
 * They wait until they are many, or only those are left. In a profile, and with GPUNN_PLAIN, all are last. */
GPUNN__INTERNAL gpunn_status gpunn__checks_after(gpunn__cuda *cuda, gpunn__checks *checks, int steps);

/* The sum of the squares of `count` values, copied to the host. An entry of gpunn_backend. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_sum_of_squares(void *context, const float *values, int64_t count,
                                                        double *result);

/* Statistics of `count` values, as up to GPUNN_SUM_PARTS partial results on the host; unused parts are 0. An
 * entry of gpunn_backend. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_value_sums(void *context, const void *values, gpunn_dtype dtype,
                                                    int64_t count, gpunn_value_sums parts[GPUNN_SUM_PARTS]);

#endif /* GPUNN__CUDA_CUDA_OPTIMIZERS_H */
