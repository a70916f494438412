#ifndef GPUNN__TRAIN_RANKS_H
#define GPUNN__TRAIN_RANKS_H
#include "base/structs.h"

/* ==== >>train/ranks ===================================================================================== */
/* Training with several ranks: averages gradients, applies updates and distributes the results. With .shard
 * each rank holds a share of the optimizer's states and updates only its share of the parameters. Also
 * contains gpunn_train_step and the other calls on optimizers for a single rank. */

/* Collects all states on rank 0, or on every rank. The share is kept aside. All ranks
 * must call it; its failure is common to them. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__states_collect(gpunn_optimizer *opt, bool everywhere,
                                                    const char *caller);

/* Returns to the share after gpunn__states_collect. */
GPUNN__INTERNAL void gpunn__states_return(gpunn_optimizer *opt);

#endif /* GPUNN__TRAIN_RANKS_H */
