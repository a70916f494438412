#ifndef GPUNN__LAYERS_RECURRENT_H
#define GPUNN__LAYERS_RECURRENT_H
#include "base/forward_declarations.h"

/* ==== >>layers/recurrent ================================================================================ */
/* Recurrent layers (RNN, LSTM, GRU) and cells, with their states and projections. */

/* Inserts an axis of 1 into x at position `axis`. */
GPUNN__INTERNAL gpunn_tensor *gpunn__unsqueeze(gpunn_tensor *x, int axis);

/* Makes a recurrent layer. Returns its output, or NULL on failure. */
GPUNN__INTERNAL gpunn_tensor *gpunn__recurrent(const gpunn__operation *operation, gpunn_tensor *x,
                                               const char *name, const gpunn_rnn_args *args);

#endif /* GPUNN__LAYERS_RECURRENT_H */
