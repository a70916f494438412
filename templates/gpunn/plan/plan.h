#ifndef GPUNN__PLAN_PLAN_H
#define GPUNN__PLAN_PLAN_H
#include "plan/steps.h"

/* ==== >>plan/plan ================================================================================================== */
GPUNN__INTERNAL bool gpunn__may_train(const gpunn_model *model, const char *what);

/* NULL after a failure; nothing is left behind then. */
GPUNN__INTERNAL gpunn__plan *gpunn__plan_make(gpunn_model *model, const gpunn__request *request, int64_t batch);

/* The gradient of a loss. */
GPUNN__INTERNAL float *gpunn__loss_gradient(const gpunn_model *model);

typedef struct gpunn__layout { /* see gpunn_model */
    int64_t weight_count, wide_count, gradient_count;
} gpunn__layout;

/* Gives every parameter, buffer and constant that has none its offset, by their ranges. With apply false it only tells how many
 * floats there would be. */
GPUNN__INTERNAL gpunn__layout gpunn__lay_out(gpunn_model *model, bool apply);

GPUNN__INTERNAL float *gpunn__weights(const gpunn_tensor *t);

/* Copies weights between the program's memory and their place in ours: for what goes over all weights at once. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__fetch_lent(gpunn_model *model, bool back);

/* Weights in 16 bits, where they have changed. Nobody tells of those in the program's memory. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__round_weights(gpunn_model *model);

GPUNN__INTERNAL GPUNN__STATUS gpunn__upload_weights(gpunn_model *model, void *to, const void *host, size_t bytes);

enum { GPUNN__STAGING = 1 << 18 }; /* floats on their way to the device */

/* Elements at .. at + count of a weight whose memory is `to`; values is written over where it is narrow. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__upload_part(const gpunn_tensor *t, float *to, int64_t at, float *values, int64_t count);

/* Initial values of a parameter or buffer; to: its memory. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__fill_tensor(const gpunn_tensor *t, float *to, float *staging);

/* Memory for the weights of new tensors; without draw the caller gives them their values. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__commit_as(gpunn_model *model, bool draw);

GPUNN__INTERNAL GPUNN__STATUS gpunn__commit(gpunn_model *model);

/* Takes back the first commit of a model. */
GPUNN__INTERNAL void gpunn__uncommit(gpunn_model *model);

/* Makes the device's counts those of the host, [count]. with_replays: after adding to these what the device has counted alone. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__counts_settle(gpunn_device *dev, gpunn_count *counts, uint64_t *host, int count,
                                                   bool with_replays);

/* Zeroed memory for them, where there is none and the program can capture runs: on a stream of its own. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__counts_prepare(gpunn_device *dev, gpunn_count **counts, int count);

/* gpunn__counts_settle of what keys a model's random numbers. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__keys_settle(gpunn_model *model, bool with_replays);

GPUNN__INTERNAL void *gpunn__slot_memory(const gpunn_model *model, gpunn__plan *plan, int index);

/* Memory for a plan and its pointers. After a failure the plan is as it was: the next run tries again. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__plan_bind(gpunn_model *model, gpunn__plan *plan);

#endif /* GPUNN__PLAN_PLAN_H */
