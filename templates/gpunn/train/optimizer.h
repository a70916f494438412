#ifndef GPUNN__TRAIN_OPTIMIZER_H
#define GPUNN__TRAIN_OPTIMIZER_H
#include "base/structs.h"

/* ==== >>train/optimizer ============================================================================================ */
/* For fields where 0 stands for the default and GPUNN_ZERO for 0. */
GPUNN__INLINE float gpunn__default(float value, float standard)
{
    return value == 0 ? standard : value == (float)GPUNN_ZERO ? 0 : value;
}

GPUNN__INLINE int gpunn__default_int(int value, int standard)
{
    return value == 0 ? standard : value == GPUNN_ZERO ? 0 : value;
}

/* Whether low <= value < high; high INFINITY: any finite value from low on. */
GPUNN__INTERNAL bool gpunn__check_range(gpunn_device *dev, const char *function, const char *field, float value, float low,
                                        float high);

/* Whether a kind with these settings has state k. */
GPUNN__INTERNAL bool gpunn__has_state(gpunn_update_kind kind, const float *setting, int k);

typedef struct gpunn__selection {
    GPUNN__SELECTION
} gpunn__selection;

/* selection NULL: all parameters. */
GPUNN__INTERNAL gpunn_optimizer *gpunn__optimizer_create(gpunn_model *model, gpunn_update_kind kind, const float *setting,
                                                         const gpunn__selection *selection);

GPUNN__INTERNAL void gpunn__states_free(gpunn_device *dev, gpunn__states *states);

/* Memory for those states that the optimizer uses. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__states_alloc(const gpunn_optimizer *opt, gpunn__states *states);

/* What of a place and `count` floats behind it is here: [from, to) of them. Whether that is anything. */
GPUNN__INTERNAL bool gpunn__states_meet(const gpunn__states *states, int64_t place, int64_t count, int64_t *from, int64_t *to);

/* State k of a place; NULL: it is not used. */
GPUNN__INTERNAL float *gpunn__state_at(const gpunn_optimizer *opt, int k, int64_t place);

/* Floats of a rank's share; all but the last one's are as many. */
GPUNN__INTERNAL int64_t gpunn__share_of(const gpunn_optimizer *opt);

/* This rank's, still without memory. */
GPUNN__INTERNAL gpunn__states gpunn__own_share(const gpunn_optimizer *opt);

/* As if it had never been prepared. */
GPUNN__INTERNAL void gpunn__optimizer_forget(gpunn_optimizer *opt);

/* Captured runs; also those of the model's plans, of which exchanges are part when the optimizer leaves a group. */
GPUNN__INTERNAL void gpunn__forget_runs(gpunn_optimizer *opt, const gpunn_group *leaves);

/* The model's ranks are those of the first of its optimizers that has any. */
GPUNN__INTERNAL void gpunn__settle_ranks(gpunn_model *model);

GPUNN__INTERNAL bool gpunn__scales_loss(const gpunn_optimizer *opt);

/* Makes kept_scale and the device's loss scale the same, that of the device or that of the host. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__scale_settle(gpunn_optimizer *opt, bool of_device);

/* Makes the loss scale and the counts the same on host and device. with_replays: the device's hold; else the host's. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__counted_settle(gpunn_optimizer *opt, bool with_replays);

GPUNN__INTERNAL GPUNN__STATUS gpunn__spread_shares(gpunn_optimizer *opt); /* below: ranks */

/* They start anew: with the next update they are the parameters. */
GPUNN__INTERNAL void gpunn__average_start(gpunn_optimizer *opt);

#endif /* GPUNN__TRAIN_OPTIMIZER_H */
