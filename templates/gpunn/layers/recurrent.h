#ifndef GPUNN__LAYERS_RECURRENT_H
#define GPUNN__LAYERS_RECURRENT_H
#include "base/forward_declarations.h"

/* ==== >>layers/recurrent =========================================================================================== */
/* 1, 2, ... along an axis of that size, which may vary. */
GPUNN__INTERNAL gpunn_tensor *gpunn__ordinals(gpunn_model *model, int64_t size);

/* With an axis of 1 behind so many. */
GPUNN__INTERNAL gpunn_tensor *gpunn__unsqueeze(gpunn_tensor *x, int axis);

GPUNN__INTERNAL gpunn_tensor *gpunn__recurrent(const gpunn__operation *operation, gpunn_tensor *x, const char *name,
                                               const gpunn_rnn_args *args);

#endif /* GPUNN__LAYERS_RECURRENT_H */
