#ifndef GPUNN__LAYERS_LOSSES_H
#define GPUNN__LAYERS_LOSSES_H
#include "graph/tensors.h"

/* ==== >>layers/losses =================================================================================== */
/* Losses over classes, custom ops, and helpers for losses. */

/* Fails unless input and target have the same shape. */
GPUNN__INTERNAL bool gpunn__shapes_are_equal(const gpunn__call *call, const gpunn_tensor *input,
                                             const gpunn_tensor *target);

/* Checks an optional factor that must broadcast to the input's shape. NULL is allowed. */
GPUNN__INTERNAL bool gpunn__loss_factor(const gpunn__call *call, const gpunn_tensor *factor, const char *name,
                                        const gpunn_tensor *input);

/* Reduces a loss by mean, sum or batch mean. Passes NULL on. */
GPUNN__INTERNAL gpunn_tensor *gpunn__reduce_loss(gpunn_tensor *loss, gpunn_reduction reduction);

/* Fails unless logits [n, classes, ...] and integer labels [n, ...] match. */
GPUNN__INTERNAL bool gpunn__labels_fit(const gpunn__call *call, const gpunn_tensor *logits,
                                       const gpunn_tensor *labels);

/* Starts a builder call on logits and labels. */
GPUNN__INTERNAL bool gpunn__begin_classes(gpunn__call *call, const char *op, gpunn_tensor *logits,
                                          gpunn_tensor *labels);

#endif /* GPUNN__LAYERS_LOSSES_H */
