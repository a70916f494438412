#ifndef GPUNN__TRAIN_RANKS_H
#define GPUNN__TRAIN_RANKS_H
#include "base/structs.h"

/* ==== >>train/ranks ================================================================================================ */
/* Brings all states together, on rank 0 or everywhere; the shares are kept aside. Common to all ranks, as is its failure. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__states_collect(gpunn_optimizer *opt, bool everywhere, const char *caller);

/* Back to the share, where all states have been collected. */
GPUNN__INTERNAL void gpunn__states_return(gpunn_optimizer *opt);

#endif /* GPUNN__TRAIN_RANKS_H */
