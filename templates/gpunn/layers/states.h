#ifndef GPUNN__LAYERS_STATES_H
#define GPUNN__LAYERS_STATES_H
#include "base/structs.h"

/* ==== >>layers/states ============================================================================================== */
/* The state that t is, as it was when a run began or as an assignment has left it; NULL: none. */
GPUNN__INTERNAL gpunn_tensor *gpunn__state_of(gpunn_tensor *t);

/* position: NULL for the whole of the state. */
GPUNN__INTERNAL gpunn_tensor *gpunn__assign(const char *function, gpunn_tensor *state, int axis, gpunn_tensor *position,
                                            gpunn_tensor *value, int count, bool in_training);

#endif /* GPUNN__LAYERS_STATES_H */
