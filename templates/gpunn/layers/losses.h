#ifndef GPUNN__LAYERS_LOSSES_H
#define GPUNN__LAYERS_LOSSES_H
#include "graph/tensors.h"

/* ==== >>layers/losses ============================================================================================== */
GPUNN__INTERNAL bool gpunn__shapes_are_equal(const gpunn__call *call, const gpunn_tensor *input, const gpunn_tensor *target);

/* A factor of each element, broadcast to the input's shape; may be left out. */
GPUNN__INTERNAL bool gpunn__loss_factor(const gpunn__call *call, const gpunn_tensor *factor, const char *name,
                                        const gpunn_tensor *input);

GPUNN__INTERNAL gpunn_tensor *gpunn__reduce_loss(gpunn_tensor *loss, gpunn_reduction reduction);

/* Whether logits [n, classes, ...] and integer labels [n, ...] fit. */
GPUNN__INTERNAL bool gpunn__labels_fit(const gpunn__call *call, const gpunn_tensor *logits, const gpunn_tensor *labels);

/* Opens a call on them. */
GPUNN__INTERNAL bool gpunn__begin_classes(gpunn__call *call, const char *op, gpunn_tensor *logits, gpunn_tensor *labels);

#endif /* GPUNN__LAYERS_LOSSES_H */
