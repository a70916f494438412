#ifndef GPUNN__RUN_RUN_H
#define GPUNN__RUN_RUN_H
#include "plan/steps.h"

/* ==== >>run/run ==================================================================================================== */
/* Takes the sizes as they were found for those of the run. */
GPUNN__INTERNAL void gpunn__take_found(gpunn_model *model);

/* The sizes of the run whose values can be read. */
GPUNN__INTERNAL void gpunn__take_sizes(gpunn_model *model, const gpunn__plan *plan);

/* The batch that a plan asked for would have now; 0 after a failure. */
GPUNN__INTERNAL int64_t gpunn__batch_for(gpunn_model *model, const gpunn__request *request);

/* Whether a step may write gradients of parameters: a loss's fused kernel does ahead of the way back. */
GPUNN__INTERNAL bool gpunn__writes_gradients(const gpunn_step *step);

GPUNN__INTERNAL GPUNN__STATUS gpunn__run_steps(gpunn_device *dev, gpunn__plan *plan, int from, int to);

/* The group that a model's runs in training mode meet; NULL: none. */
GPUNN__INTERNAL gpunn_group *gpunn__met_by(const gpunn_model *model);

/* Hands a failure to the ranks that this one was to meet, unless they have voted since. */
GPUNN__INTERNAL gpunn_status gpunn__tell_ranks(gpunn_group *group, int64_t agreed, gpunn_status status);

/* The end of a call whose run may have changed statistics and states: after a failure they are as they were. */
GPUNN__INTERNAL gpunn_status gpunn__put_back(gpunn_model *model, gpunn_status status);

/* Backend memory of a tensor and its bytes now, as the program counts them; NULL after a failure. */
GPUNN__INTERNAL void *gpunn__memory_of(gpunn_tensor *t, bool gradient, size_t *bytes);

/* The loss of the training step that has just run, which must be finite. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__read_loss(gpunn_tensor *loss, float *value);

GPUNN__INTERNAL bool gpunn__is_among(const gpunn__chosen *chosen, const gpunn_tensor *parameter);

/* Whether an optimizer trains t. */
GPUNN__INTERNAL bool gpunn__is_chosen(const gpunn_optimizer *opt, const gpunn_tensor *t);

/* Which gradients the steps add to. Where one step writes several, of which some have been reached before, the others begin at
 * 0. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__settle_writes(gpunn_model *model, gpunn__plan *plan, const gpunn__backpass *pass);

/* Whether gradients can begin there. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__check_loss(const gpunn_tensor *loss);

GPUNN__INTERNAL GPUNN__STATUS gpunn__gradients(gpunn_tensor *loss, const gpunn_backward_args *args, gpunn_optimizer *opt,
                                               bool updates);

#define GPUNN__BAD_MODE "%s: mode %d is none; use GPUNN_MODE_TRAINING or GPUNN_MODE_EVALUATION"

#endif /* GPUNN__RUN_RUN_H */
