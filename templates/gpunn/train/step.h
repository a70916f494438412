#ifndef GPUNN__TRAIN_STEP_H
#define GPUNN__TRAIN_STEP_H
#include "base/structs.h"

/* ==== >>train/step ================================================================================================= */
/* Consecutive parameters, [begin, end) of the flat buffers. The zeros that align one parameter after another are run over. */
typedef struct gpunn__range {
    int     first, next; /* in the list of parameters; next starts at 0 */
    int64_t begin, end;
} gpunn__range;

GPUNN__INTERNAL bool gpunn__has_gradient(const gpunn_tensor *t);

/* Whether parameter i of the list goes on where the range ends and, with opt, shares all that an update call reads. Norms of a
 * trust ratio are each parameter's own. */
GPUNN__INTERNAL bool gpunn__goes_on(const gpunn__range *range, gpunn_tensor *const *list, int i, const gpunn_optimizer *opt);

/* Moves on to the next range of the list that has gradients. */
GPUNN__INTERNAL bool gpunn__next_range(gpunn__range *range, gpunn_tensor *const *list, int count, const gpunn_optimizer *opt);

/* The 2-norm of all gradients. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__gradient_norm(gpunn_model *model, const char *function, double *norm);

/* torch's clip_coef. */
GPUNN__INTERNAL float gpunn__clip_scale(float max_norm, double norm);

GPUNN__INTERNAL double gpunn__scheduled_lr(const gpunn_optimizer *opt, float base);

/* Whether parameter i of the list lies where those before it end, with the zeros behind them. */
GPUNN__INTERNAL bool gpunn__follows_in_memory(const gpunn_optimizer *opt, int i, int64_t end);

/* opt->updates: one for each range of parameters that have a gradient, the sum of that many parts; then those of the averages,
 * also of the zeros between parameters. Returns their number. */
GPUNN__INTERNAL int gpunn__optimizer_updates(gpunn_optimizer *opt, int parts, bool clips);

/* A step that the host refuses is skipped, and its error forgotten if it is the first. All counters go on, as on a GPU. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__skip_step(gpunn_optimizer *opt, bool first);

/* The first `count` of opt->updates, one after another. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__optimizer_apply(gpunn_optimizer *opt, int count);

/* Clips the first `count` of opt->updates to the norm of their group. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__clip_updates(gpunn_optimizer *opt, int count);

/* Refuses an update, GPUNN_ERR_NUMERIC, where a gradient of this rank's share is not finite, and names the first. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__check_gradients(gpunn_optimizer *opt);

#endif /* GPUNN__TRAIN_STEP_H */
