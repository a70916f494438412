#ifndef GPUNN__LAYERS_SHAPES_H
#define GPUNN__LAYERS_SHAPES_H
#include "graph/tensors.h"

/* ==== >>layers/shapes =================================================================================== */
/* Builders that change shapes or move elements: reshape, permute, slice,
 * concat, pad, gather, scatter, fold and others. */

/* Joins dimensions into one of their product. Returns false if more than one contains the
 * batch, or if the product is not representable. */
GPUNN__INTERNAL bool gpunn__joined(gpunn_model *model, int rank, const int64_t *dim, int64_t *joined);

/* Resolves an axis of x to one counted from 0. Returns -1 on failure. */
GPUNN__INTERNAL int gpunn__axis_of(const gpunn__call *call, const gpunn_tensor *x, int axis);

/* Resolves a list of distinct axes of x. Returns their number, or -1 on failure. */
GPUNN__INTERNAL int gpunn__axis_list(const gpunn__call *call, const gpunn_tensor *x, const gpunn_axes *axes,
                                     int *order);

/* Reshapes to given rank and sizes. */
GPUNN__INTERNAL gpunn_tensor *gpunn__reshape_to(gpunn_tensor *x, int rank, const int64_t *dim);

/* Starts a builder call along an axis of x, which must have a fixed size. Returns the axis, or -1 on
 * failure. */
GPUNN__INTERNAL int gpunn__begin_along(gpunn__call *call, const char *op, gpunn_tensor *x, int axis,
                                       bool f32);

/* Extracts the windows that a convolution of x [n, c, ...] with results of these
 * sizes reads: [n, kernel cells * c, sizes]. */
GPUNN__INTERNAL gpunn_tensor *gpunn__unfold(gpunn_tensor *x, const gpunn_attributes *attr,
                                            const int64_t *sizes);

#endif /* GPUNN__LAYERS_SHAPES_H */
