#ifndef GPUNN__TRAIN_STEP_H
#define GPUNN__TRAIN_STEP_H
#include "base/structs.h"

/* ==== >>train/step ====================================================================================== */
/* Turns gradients into updates: splits parameters into ranges, clips gradients and applies the optimizer.
 * Adjacent parameters with equal settings share one update. */

/* Parameters that are adjacent in memory: floats [begin, end) of the flat buffers. It includes the zeros that
 * align one parameter after another. A sparse table is a range of its own, with as many floats as its
 * gradient. */
typedef struct gpunn__range {
    int     first, next; /* in the list of parameters; next must start as 0 */
    int64_t begin, end;
} gpunn__range;

/* Whether t is a trainable parameter whose gradient has been written. */
GPUNN__INTERNAL bool gpunn__has_gradient(const gpunn_tensor *t);

/* Whether parameter i of the list begins where the range ends. With opt it must also share all settings of an
 * update. Parameters with a trust ratio never share, since their norms are separate. */
GPUNN__INTERNAL bool gpunn__goes_on(const gpunn__range *range, gpunn_tensor *const *list, int i,
                                    const gpunn_optimizer *opt);

/* Moves to the next range of the list that has gradients. Returns false at the end. */
GPUNN__INTERNAL bool gpunn__next_range(gpunn__range *range, gpunn_tensor *const *list, int count,
                                       const gpunn_optimizer *opt);

/* Computes the 2-norm of all gradients. Fails if it is not finite. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__gradient_norm(gpunn_model *model, const char *function, double *norm);

/* The factor max_norm / (norm + 1e-6), at most 1, as torch's clip_coef. */
GPUNN__INTERNAL float gpunn__clip_scale(float max_norm, double norm);

/* The learning rate of the current step of the schedule, from the rate `base`. */
GPUNN__INTERNAL double gpunn__scheduled_lr(const gpunn_optimizer *opt, float base);

/* Whether parameter i of the list is adjacent to the one before it, which ends at `end`, including
 * padding. */
GPUNN__INTERNAL bool gpunn__follows_in_memory(const gpunn_optimizer *opt, int i, int64_t end);

/* Fills opt->updates and returns their number. There is one update for each range of
 * parameters with gradients, which are the sum of `parts` backward passes. Averages follow,
 * including the padding between parameters. */
GPUNN__INTERNAL int gpunn__optimizer_updates(gpunn_optimizer *opt, int parts, bool clips);

/* Skips a step that the host rejected for non-finite values. Clears the error if it is the first. All
 * counters advance, as on a GPU. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__skip_step(gpunn_optimizer *opt, bool first);

/* Applies the first `count` of opt->updates in order. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__optimizer_apply(gpunn_optimizer *opt, int count);

/* Clips the gradients of the first `count` of opt->updates to the norm limit of their group. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__clip_updates(gpunn_optimizer *opt, int count);

/* Fails with GPUNN_ERR_NUMERIC if a gradient of this rank's share is not finite. The message names the
 * first. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__check_gradients(gpunn_optimizer *opt);

#endif /* GPUNN__TRAIN_STEP_H */
