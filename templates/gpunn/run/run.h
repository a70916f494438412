#ifndef GPUNN__RUN_RUN_H
#define GPUNN__RUN_RUN_H
#include "plan/steps.h"

/* ==== >>run/run ========================================================================================= */
/* Runs plans: gpunn_forward, gpunn_backward and the gradients of a training step. For each call it finds the
 * batch and other sizes in the inputs, then finds or makes the plan for them. */

/* Makes the sizes found in the inputs the sizes of the run. */
GPUNN__INTERNAL void gpunn__take_found(gpunn_model *model);

/* Restores the sizes of the plan's run, whose values can be read. */
GPUNN__INTERNAL void gpunn__take_sizes(gpunn_model *model, const gpunn__plan *plan);

/* The batch size that the inputs of this request hold now. Returns 0 on failure. */
GPUNN__INTERNAL int64_t gpunn__batch_for(gpunn_model *model, const gpunn__request *request);

/* Whether a step may write gradients of parameters. The fused kernel of a loss does so in the forward
 * pass. */
GPUNN__INTERNAL bool gpunn__writes_gradients(const gpunn_step *step);

/* Runs steps [from, to) one by one, or times them if device->timing is set. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__run_steps(gpunn_device *dev, gpunn__plan *plan, int from, int to);

/* The group that the model's training runs communicate with, or NULL. */
GPUNN__INTERNAL gpunn_group *gpunn__communicating_group(const gpunn_model *model);

/* Reports a failure to the other ranks, unless they know it already. reductions: group->reductions when the
 * call began. Returns the status common to the ranks. */
GPUNN__INTERNAL gpunn_status gpunn__report_to_ranks(gpunn_group *group, int64_t reductions,
                                                    gpunn_status status);

/* Ends a call whose run may have changed running statistics and states. After a
 * failure it restores them. Returns status. */
GPUNN__INTERNAL gpunn_status gpunn__put_back(gpunn_model *model, gpunn_status status);

/* Memory of a value or gradient on the device. *bytes: its current size in the
 * tensor's own dtype. Returns NULL on failure. */
GPUNN__INTERNAL void *gpunn__memory_of(gpunn_tensor *t, bool gradient, size_t *bytes);

/* Copies count values from the program's memory, on the host or the device, to device memory, and converts
 * them. caller: name for messages. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__copy_in(gpunn_device *dev, const char *caller, void *to,
                                             gpunn_dtype to_dtype, const void *from, gpunn_dtype from_dtype,
                                             int64_t count);

/* Reads the loss of the last training step. Fails with GPUNN_ERR_NUMERIC if it is not finite. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__read_loss(gpunn_tensor *loss, float *value);

/* Whether the list or the name prefix selects this parameter. */
GPUNN__INTERNAL bool gpunn__is_among(const gpunn__chosen *chosen, const gpunn_tensor *parameter);

/* Whether t is a parameter that the optimizer trains. */
GPUNN__INTERNAL bool gpunn__is_chosen(const gpunn_optimizer *opt, const gpunn_tensor *t);

/* Sets the accumulate flags: whether the first write to each gradient is = or +=. If one step writes several
 * gradients and only some were written before, the others are set to 0 and accumulate too. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__resolve_writes(gpunn_model *model, gpunn__plan *plan,
                                                    const gpunn__backpass *pass);

/* Fails unless the loss is a single computed F32 number. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__check_loss(const gpunn_tensor *loss, const char *caller);

/* Runs the forward and backward pass of a loss. With opt (prepared) gradients
 * start anew; with updates its update follows. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__gradients(gpunn_tensor *loss, const gpunn_backward_args *args,
                                               gpunn_optimizer *opt, bool updates);

#define GPUNN__BAD_MODE "%s: mode %d is unknown; use GPUNN_MODE_TRAINING or GPUNN_MODE_EVALUATION"

#endif /* GPUNN__RUN_RUN_H */
