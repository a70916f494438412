#ifndef GPUNN__TRAIN_OPTIMIZER_H
#define GPUNN__TRAIN_OPTIMIZER_H
#include "graph/arguments.h"

/* ==== >>train/optimizer ================================================================================= */
/* Creates optimizers, allocates their states, keeps averages of the weights
 * (EMA), and moves models between devices. */

/* Fails unless low <= value < high. With high INFINITY any finite value from low on is valid. */
GPUNN__INTERNAL bool gpunn__check_range(gpunn_device *dev, const char *function, const char *field,
                                        float value, float low, float high);

/* Whether an update kind with these settings has state k. */
GPUNN__INTERNAL bool gpunn__has_state(gpunn_update_kind kind, const float *setting, int k);

/* Whether an update needs a whole parameter: for a trust ratio or a matrix. */
GPUNN__INTERNAL bool gpunn__takes_whole(gpunn_update_kind kind);

typedef struct gpunn__selection {
    GPUNN__SELECTION
} gpunn__selection;

/* Creates an optimizer from resolved settings. selection NULL: it trains
 * all parameters. Returns NULL on failure. */
GPUNN__INTERNAL gpunn_optimizer *gpunn__optimizer_create(gpunn_model *model, gpunn_update_kind kind,
                                                         const float            *setting,
                                                         const gpunn__selection *selection);

GPUNN__INTERNAL void gpunn__states_free(gpunn_device *dev, gpunn__states *states);

/* Allocates those states that the optimizer uses. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__states_alloc(const gpunn_optimizer *opt, gpunn__states *states);

/* Finds the part [from, to) of the `count` floats at `place` that these
 * states hold. Returns whether it is non-empty. */
GPUNN__INTERNAL bool gpunn__states_overlap(const gpunn__states *states, int64_t place, int64_t count,
                                           int64_t *from, int64_t *to);

/* Address of state k at a place. NULL: the optimizer does not use it. */
GPUNN__INTERNAL float *gpunn__state_at(const gpunn_optimizer *opt, int k, int64_t place);

/* Floats of a rank's share. All shares but the last have this size. */
GPUNN__INTERNAL int64_t gpunn__share_of(const gpunn_optimizer *opt);

/* The range of this rank's share, without memory. */
GPUNN__INTERNAL gpunn__states gpunn__own_share(const gpunn_optimizer *opt);

/* Resets the optimizer to its state before the first gpunn__optimizer_prepare. */
GPUNN__INTERNAL void gpunn__optimizer_forget(gpunn_optimizer *opt);

/* Discards the optimizer's captured runs. If it leaves a group whose devices exchange
 * directly, also those of the model's plans. */
GPUNN__INTERNAL void gpunn__forget_runs(gpunn_optimizer *opt, const gpunn_group *leaves);

/* Sets the model's ranks to those of its first optimizer with a group. */
GPUNN__INTERNAL void gpunn__update_ranks(gpunn_model *model);

/* Whether training uses a loss scale: with precision F16 on a device with 16-bit compute. */
GPUNN__INTERNAL bool gpunn__scales_loss(const gpunn_optimizer *opt);

/* Copies loss scale and skip count between the device and kept_scale:
 * from the device with of_device, else to it. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__scale_sync(gpunn_optimizer *opt, bool of_device);

/* Synchronizes the loss scale and the counts of steps. With with_replays
 * the device's values count, else the host's. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__counted_sync(gpunn_optimizer *opt, bool with_replays);

GPUNN__INTERNAL GPUNN__STATUS gpunn__spread_shares(gpunn_optimizer *opt); /* in >>train/ranks */

/* Fails if the optimizer cannot update a sparse table that it trains. In >>train/step. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__check_sparse(const gpunn_optimizer *opt);

/* Restarts the averages: after the next update they equal the parameters. */
GPUNN__INTERNAL void gpunn__average_start(gpunn_optimizer *opt);

#endif /* GPUNN__TRAIN_OPTIMIZER_H */
