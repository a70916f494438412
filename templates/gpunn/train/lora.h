#ifndef GPUNN__TRAIN_LORA_H
#define GPUNN__TRAIN_LORA_H
#include "graph/tensors.h"

/* ==== >>train/lora ======================================================================================= *
 * Low-rank adapters: gpunn_lora adds nodes to a built graph, gpunn_lora_merge removes them. The tensor by
 * which the program knows a layer's result stays the result, with the adapter's part in it. */

/* Whether the pattern matches a layer's name, or the end of it that follows a dot. */
GPUNN__INTERNAL bool gpunn__pattern_wants(const void *pattern, const char *layer);

/* What is wrong with a pattern; NULL: nothing. */
GPUNN__INTERNAL const char *gpunn__pattern_fault(const char *pattern);

/* Which layers get an adapter. */
typedef struct gpunn__lora_wanted {
    bool (*wants)(const void *what, const char *layer);
    const void *what;
} gpunn__lora_wanted;

/* The first tensor from `id` on that can get an adapter and that is wanted: the result of a linear layer or
 * of an embedding. NULL: there are no more. */
GPUNN__INTERNAL gpunn_tensor *gpunn__lora_next(const gpunn_model *model, const gpunn__lora_wanted *wanted,
                                               int id);

/* The adapter of that name; NULL: there is none. */
GPUNN__INTERNAL gpunn__adapter *gpunn__adapter_called(const gpunn_model *model, const char *name);

/* Fills the default of what is 0, and fails if a value is not possible. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__lora_settle(gpunn_model *model, const char *function,
                                                 gpunn_lora_args *args);

/* Adds adapters to all layers that are wanted, of which there must be one, and enables them. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__lora_add(gpunn_model *model, const char *function,
                                              const gpunn_lora_args *args, const gpunn__lora_wanted *wanted);

/* Removes the adapter that was added last, with its tensors. */
GPUNN__INTERNAL void gpunn__lora_pop(gpunn_model *model);

/* The matrices of a branch: A [rank, in], B [out, rank]. A of an embedding is stored as [in, rank]. */
GPUNN__INTERNAL gpunn_tensor *gpunn__lora_a(const gpunn__branch *branch);
GPUNN__INTERNAL gpunn_tensor *gpunn__lora_b(const gpunn__branch *branch);

#endif /* GPUNN__TRAIN_LORA_H */
