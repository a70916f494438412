#ifndef GPUNN__IO_LOAD_H
#define GPUNN__IO_LOAD_H
#include "io/safetensors.h"

/* ==== >>io/load ========================================================================================= */
/* Loads weights and checkpoints from safetensors files. Names, shapes and dtypes are checked before anything
 * changes. */

/* Iterates over the optimizers that a checkpoint of opt contains: opt itself, or, if opt trains a subset of
 * the parameters, all such optimizers of the model. Returns the one after `before` (NULL: the first), or NULL
 * at the end. */
GPUNN__INTERNAL gpunn_optimizer *gpunn__partner(const gpunn_optimizer *opt, const gpunn_optimizer *before);

/* A stage is host memory that collects the contents of a file before the first weight changes. It holds the
 * step counts of the optimizers' parameters, then copies of the model's weights and of each state that an
 * optimizer uses. opt NULL: only the weights. This is the size of the first part. */
GPUNN__INTERNAL size_t gpunn__stage_steps(const gpunn_optimizer *opt);

/* Bytes of the whole stage. */
GPUNN__INTERNAL size_t gpunn__stage_bytes(const gpunn_model *model, const gpunn_optimizer *opt);

/* Copies weights and states from the stage to the device (upload) or back. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__stage_copy(gpunn_model *model, gpunn_optimizer *opt, char *stage,
                                                bool upload);

/* Prefixes of the names of an optimizer's tensors in a checkpoint. The parameter's name follows. */
GPUNN__PRIVATE const char *const gpunn__state_prefix[] = {"optimizer.0.", "optimizer.1.", "optimizer.2.",
                                                          "optimizer.average."};
GPUNN__PRIVATE const char        gpunn__step_prefix[] = "optimizer.step.";

/* The metadata entry `name` + `rest` of optimizer number `index`, or NULL. All but the first have their
 * number in front: "1:optimizer.lr". */
GPUNN__INTERNAL const gpunn__entry *gpunn__note(const gpunn__archive *a, int index, const char *name,
                                                const char *rest);

/* Whether a checkpoint was saved with averages of the weights. */
GPUNN__INTERNAL bool gpunn__has_averages(const gpunn__archive *a, int index);

GPUNN__INTERNAL bool gpunn__is_checkpoint(const gpunn__archive *a);

/* Allocates a stage (NULL if there is nothing to load) and fills it with the file's data for the model and
 * the optimizers. The whole file is read. On failure *stage is NULL. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__stage_fill(gpunn__archive *a, gpunn_model *model, gpunn_optimizer *opt,
                                                const gpunn_load_args *args, const char *function,
                                                char **stage);

/* Loads into a model without weights, straight from the file. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__load_first(gpunn__archive *a, gpunn_model *model,
                                                const gpunn_load_args *args, const char *function);

/* Binds parameters to the file's blocks: mapped, or in memory of the device into which they will be read. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__keep_blocks(gpunn_model *model, gpunn__archive *a,
                                                 const gpunn_load_args *args);

#endif /* GPUNN__IO_LOAD_H */
