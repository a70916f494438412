#ifndef GPUNN__PLAN_PLAN_H
#define GPUNN__PLAN_PLAN_H
#include "plan/storage.h"

/* ==== >>plan/plan ======================================================================================= */
/* Makes plans, lays out their memory and the model's, and binds steps to it. A new plan is made when the
 * outputs, the mode, the batch size or other sizes have not been planned before. */

/* Fails for an inference-only model. `what` names the caller's purpose in the message. */
GPUNN__INTERNAL bool gpunn__may_train(const gpunn_model *model, const char *what);

/* Returns NULL on failure and frees everything it made. */
GPUNN__INTERNAL gpunn__plan *gpunn__plan_make(gpunn_model *model, const gpunn__request *request,
                                              int64_t batch);

/* The gradient of a loss with respect to itself: the constant 1, or the loss scale in F16 training. */
GPUNN__INTERNAL float *gpunn__loss_gradient(const gpunn_model *model);

typedef struct gpunn__layout { /* counts of floats; see gpunn_model */
    int64_t weight_count, wide_count, gradient_count, sparse_count;
} gpunn__layout;

/* Assigns offsets in the model's weights to new parameters, buffers and constants, range by range. With apply
 * false it only returns the counts. */
GPUNN__INTERNAL gpunn__layout gpunn__lay_out(gpunn_model *model, bool apply);

/* Compares two tensors, given by pointers to their pointers, by their offsets. */
GPUNN__INTERNAL int gpunn__by_offset(const void *a, const void *b);

/* Memory of a parameter, buffer or constant: user-owned or in the model's weights. */
GPUNN__INTERNAL float *gpunn__weights(const gpunn_tensor *t);

/* Copies bound weights from user-owned memory to their place in the model's weights, or back. Used by
 * operations on all weights at once. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__copy_user_weights(gpunn_model *model, bool back);

/* Updates the 16-bit copies of weights that have changed. Weights in user-owned memory are always converted,
 * since the program may change them unnoticed. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__round_weights(gpunn_model *model);

/* Copies bytes from the host to the weights on the device. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__upload_weights(gpunn_model *model, void *to, const void *host,
                                                    size_t bytes);

enum { GPUNN__STAGING = 1 << 18 }; /* floats in one transfer to the device */

/* Uploads elements [at, at + count) of a weight stored at `to`. Overwrites `values` if the weight has 16-bit
 * storage. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__upload_part(const gpunn_tensor *t, float *to, int64_t at, float *values,
                                                 int64_t count);

/* Writes the initial values of a parameter or buffer to its memory `to`. staging: GPUNN__STAGING floats. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__fill_tensor(const gpunn_tensor *t, float *to, float *staging);

/* Allocates memory for the weights of new tensors. With draw they get initial
 * values; otherwise the caller writes them. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__commit_as(gpunn_model *model, bool draw);

/* Like gpunn__commit_as, with initial values. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__commit(gpunn_model *model);

/* Undoes a model's first commit. */
GPUNN__INTERNAL void gpunn__uncommit(gpunn_model *model);

/* Makes the device's counts equal to host[count]. With with_replays, first adds to host
 * what the device counted in replayed runs. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__counts_sync(gpunn_device *dev, gpunn_count *counts, uint64_t *host,
                                                 int count, bool with_replays);

/* Allocates zeroed counts if there are none and the program can
 * capture runs, which needs a stream of its own. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__counts_prepare(gpunn_device *dev, gpunn_count **counts, int count);

/* Applies gpunn__counts_sync to the counters that key a model's random numbers. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__keys_sync(gpunn_model *model, bool with_replays);

/* Address of a slot: in user-owned memory or in the arena. */
GPUNN__INTERNAL void *gpunn__slot_memory(const gpunn_model *model, gpunn__plan *plan, int index);

/* Allocates memory for a plan and sets its pointers. After a failure the next run tries again. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__plan_bind(gpunn_model *model, gpunn__plan *plan);

#endif /* GPUNN__PLAN_PLAN_H */
