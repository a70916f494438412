#ifndef GPUNN__LAYERS_BASIC_H
#define GPUNN__LAYERS_BASIC_H
#include "graph/tensors.h"

/* ==== >>layers/basic =============================================================================================== *
 * Every builder that is more than a row of the elementwise tables: layers, reductions, losses, metrics. They check what they are
 * given; what sizes must be is said in >>graph/infer. */
/* Puts the defaults of the builder's row into its arguments, in which 0 is 0 from now on, and checks their ranges, and that none
 * is given which only others with such arguments take; false after an error. */
GPUNN__INTERNAL bool gpunn__settle(const gpunn__call *call, void *args);

/* A field of an argument struct that has no row: 0 stands for the default, GPUNN_ZERO for 0. */
GPUNN__INTERNAL int gpunn__int_setting(int given, int otherwise);

GPUNN__INTERNAL float gpunn__float_setting(float given, float otherwise);

/* A layer's name must be new; false after an error. */
GPUNN__INTERNAL bool gpunn__layer_is_new(const gpunn__call *call, const char *name);

/* Opens a call that makes a layer with parameters: x must be F32, the name new. */
GPUNN__INTERNAL bool gpunn__begin_layer(gpunn__call *call, const char *op, const char *name, gpunn_tensor *x);

/* A parameter or buffer of the layer: name.suffix. */
GPUNN__INTERNAL gpunn_tensor *gpunn__layer_weight(const gpunn__call *call, gpunn__kind kind, const char *suffix, int rank,
                                                  const int64_t *dim, gpunn_init_kind init_kind, float a);

/* Whether a weight is the layer's own, or was given to it. */
GPUNN__INTERNAL bool gpunn__is_own(const gpunn_tensor *layer, const gpunn_tensor *weight);

/* Whether tensor t holds integers that pick elements. */
GPUNN__INTERNAL bool gpunn__are_indices(const gpunn__call *call, const gpunn_tensor *t, const char *name);

/* Resolves one setting of a window of so many axes: each[i], else all, else otherwise[i]; lowest: the least allowed. */
GPUNN__INTERNAL bool gpunn__window_setting(const gpunn__call *call, int axes, const char *one, const char *many, int all,
                                           const int *each, const int *otherwise, int lowest, int *result);

GPUNN__PRIVATE const int gpunn__zeros[3] = {0, 0, 0}, gpunn__ones[3] = {1, 1, 1};

#endif /* GPUNN__LAYERS_BASIC_H */
