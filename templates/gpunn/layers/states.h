#ifndef GPUNN__LAYERS_STATES_H
#define GPUNN__LAYERS_STATES_H
#include "base/structs.h"

/* ==== >>layers/states =================================================================================== */
/* States and assignments, and gpunn_sample. */

/* The state that t stands for: its value when the run began, or after an assignment. NULL: t is no state. */
GPUNN__INTERNAL gpunn_tensor *gpunn__state_of(gpunn_tensor *t);

/* Makes an assignment to a state, or to the slices that position selects along
 * an axis. position NULL: the whole state. */
GPUNN__INTERNAL gpunn_tensor *gpunn__assign(const char *function, gpunn_tensor *state, int axis,
                                            gpunn_tensor *position, gpunn_tensor *value, int count,
                                            bool in_training);

#endif /* GPUNN__LAYERS_STATES_H */
