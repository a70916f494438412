#ifndef GPUNN__LAYERS_SHAPES_H
#define GPUNN__LAYERS_SHAPES_H
#include "graph/tensors.h"

/* ==== >>layers/shapes ============================================================================================== */
/* The one dimension that several together are, within the limit; false: the batch stands there twice, or it is none. */
GPUNN__INTERNAL bool gpunn__joined(gpunn_model *model, int rank, const int64_t *dim, int64_t *joined);

/* An axis of x counted from 0, or -1 after an error. */
GPUNN__INTERNAL int gpunn__axis_of(const gpunn__call *call, const gpunn_tensor *x, int axis);

/* Resolves a list of different axes of x; their number, or -1 after an error. */
GPUNN__INTERNAL int gpunn__axis_list(const gpunn__call *call, const gpunn_tensor *x, const gpunn_axes *axes, int *order);

/* A reshape by rank and sizes. */
GPUNN__INTERNAL gpunn_tensor *gpunn__reshape_to(gpunn_tensor *x, int rank, const int64_t *dim);

/* Opens a call along an axis of x whose size is a number: the axis, or -1 after an error. */
GPUNN__INTERNAL int gpunn__begin_along(gpunn__call *call, const char *op, gpunn_tensor *x, int axis, bool f32);

/* All windows of x [n, c, ...] that meet a convolution's results of these sizes: [n, kernel cells * c, sizes]. */
GPUNN__INTERNAL gpunn_tensor *gpunn__unfold(gpunn_tensor *x, const gpunn_attributes *attr, const int64_t *sizes);

#endif /* GPUNN__LAYERS_SHAPES_H */
