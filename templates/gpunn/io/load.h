#ifndef GPUNN__IO_LOAD_H
#define GPUNN__IO_LOAD_H
#include "io/safetensors.h"

/* ==== >>io/load ==================================================================================================== */
/* The optimizers that a checkpoint of opt holds, one after another: itself and, where it has been told what to train, all
 * such. */
GPUNN__INTERNAL gpunn_optimizer *gpunn__partner(const gpunn_optimizer *opt, const gpunn_optimizer *before);

/* What a file changes, put together in host memory before the first weight changes: the steps of the optimizers' parameters, then
 * copies of the model's weights and of each state that an optimizer uses. opt NULL: only the weights. */
GPUNN__INTERNAL size_t gpunn__stage_steps(const gpunn_optimizer *opt);

GPUNN__INTERNAL size_t gpunn__stage_bytes(const gpunn_model *model, const gpunn_optimizer *opt);

/* Copies between the stage and the device. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__stage_copy(gpunn_model *model, gpunn_optimizer *opt, char *stage, bool upload);

/* The names of an optimizer's tensors in a checkpoint are one of these and the parameter's. */
GPUNN__PRIVATE const char *const gpunn__state_prefix[] = {"optimizer.0.", "optimizer.1.", "optimizer.2.", "optimizer.average."};
GPUNN__PRIVATE const char        gpunn__step_prefix[] = "optimizer.step.";

/* What a checkpoint notes of its index-th optimizer; of all but the first with their number before it: "1:optimizer.lr". */
GPUNN__INTERNAL const gpunn__entry *gpunn__note(const gpunn__archive *a, int index, const char *name, const char *rest);

/* Whether a checkpoint was saved with averages. */
GPUNN__INTERNAL bool gpunn__has_averages(const gpunn__archive *a, int index);

GPUNN__INTERNAL bool gpunn__is_checkpoint(const gpunn__archive *a);

/* Fills a stage (NULL: nothing to load) with what the file has for model and optimizer, all of it read. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__stage_fill(gpunn__archive *a, gpunn_model *model, gpunn_optimizer *opt,
                                                const gpunn_load_args *args, const char *function, char **stage);

#endif /* GPUNN__IO_LOAD_H */
