#ifndef GPUNN__LAYERS_BASIC_H
#define GPUNN__LAYERS_BASIC_H
#include "graph/arguments.h"
#include "graph/tensors.h"

/* ==== >>layers/basic ===================================================================================== *
 * Builders with code of their own: linear, convolution, pooling, normalization and resizing layers, and
 * helpers for all builders. They check their arguments. The rules for shapes are in >>graph/infer. */
/* Applies the row's defaults to args, turns GPUNN_ZERO into 0 and checks ranges. Fails if an argument belongs
 * to another builder that shares this struct. */
GPUNN__INTERNAL bool gpunn__apply_defaults(const gpunn__call *call, void *args);

/* Fails unless the layer has a name that no other layer of the model has. */
GPUNN__INTERNAL bool gpunn__layer_is_new(const gpunn__call *call, const char *name);

/* Starts a builder call that makes a layer with parameters. Fails unless x is F32 and the name is new. */
GPUNN__INTERNAL bool gpunn__begin_layer(gpunn__call *call, const char *op, const char *name, gpunn_tensor *x);

/* Makes the parameter or buffer name.suffix of the layer. */
GPUNN__INTERNAL gpunn_tensor *gpunn__layer_weight(const gpunn__call *call, gpunn__kind kind,
                                                  const char *suffix, int rank, const int64_t *dim,
                                                  gpunn_init_kind init_kind, float a);

/* Gives a layer's new table a sparse gradient; NULL is allowed. */
GPUNN__INTERNAL void gpunn__set_sparse(gpunn_tensor *table, bool sparse);

/* Whether the layer created the weight, rather than sharing one given to it. */
GPUNN__INTERNAL bool gpunn__is_own(const gpunn_tensor *layer, const gpunn_tensor *weight);

/* Fails unless t has an integer dtype for indices, I64 or I32. */
GPUNN__INTERNAL bool gpunn__are_indices(const gpunn__call *call, const gpunn_tensor *t, const char *name);

/* Resolves a setting of a window with `axes` axes: each[i] if set, else all, else otherwise[i]. one, many:
 * names of the fields for messages. Fails if a value is below `lowest`. */
GPUNN__INTERNAL bool gpunn__window_setting(const gpunn__call *call, int axes, const char *one,
                                           const char *many, int all, const int *each, const int *otherwise,
                                           int lowest, int *result);

/* A tensor with 1, 2, ... along an axis of this size, which may be variable. */
GPUNN__INTERNAL gpunn_tensor *gpunn__ordinals(gpunn_model *model, int64_t size);

/* Sequences that a layer with .stateful holds states for, if x has n: n, or capacity where n varies. 0 on
 * failure. */
GPUNN__INTERNAL int64_t gpunn__held_sequences(const gpunn__call *call, const gpunn_tensor *x, int64_t n,
                                              int capacity);

/* The first n places of each line of `held`, [lines, n]; NULL if the state holds n. Returns false on
 * failure. */
GPUNN__INTERNAL bool gpunn__held_places(gpunn_model *model, int64_t lines, int64_t n, int64_t held,
                                        gpunn_tensor **places);

/* The state's rows along an axis at these places. The axes before it are the lines. places NULL: all. */
GPUNN__INTERNAL gpunn_tensor *gpunn__held_rows(gpunn_tensor *state, int axis, gpunn_tensor *places);

/* Assigns the first rows along an axis, as many as the value has, in training too. */
GPUNN__INTERNAL bool gpunn__hold_rows(gpunn_tensor *state, int axis, gpunn_tensor *value);

GPUNN__PRIVATE const int gpunn__zeros[3] = {0, 0, 0}, gpunn__ones[3] = {1, 1, 1};

#endif /* GPUNN__LAYERS_BASIC_H */
