#ifndef GPUNN__BASE_SHAPES_H
#define GPUNN__BASE_SHAPES_H
#include "base/structs.h"

/* ==== >>base/shapes ====================================================================================== *
 * Arithmetic and texts of shapes. A dimension that varies has a value only in a run (>>base/sizes). Shape
 * rules therefore compare such dimensions with each other, never with numbers. */
/* Text of one dimension for messages, such as "8", "batch" or "T + 1". */
GPUNN__INTERNAL const char *gpunn__dim_text(const gpunn_model *model, int64_t dim, char text[32]);

/* Text of a shape: "[batch, 3, 32, 32]". */
GPUNN__INTERNAL const char *gpunn__dims_text(const gpunn_model *model, int rank, const int64_t *dim,
                                             char text[128]);

/* The same for a tensor's shape. */
GPUNN__INTERNAL const char *gpunn__shape_text(const gpunn_tensor *t, char text[128]);

/* Writes the element count as factor * batch^power, counting named sizes as 1. False: factor exceeds the
 * limit. */
GPUNN__INTERNAL bool gpunn__measure(int rank, const int64_t *dim, int64_t *factor, int *power);

/* Number of elements with that batch size, in the sizes of the run whose values can be read; -1: too
 * large. */
GPUNN__INTERNAL int64_t gpunn__count(const gpunn_tensor *t, int64_t batch);

/* Whether any of the dimensions is a named size or a formula. */
GPUNN__INTERNAL bool gpunn__any_sized(int rank, const int64_t *dim);

/* The dimension a + factor * b + number; 0 if that is not a dimension. */
GPUNN__INTERNAL int64_t gpunn__dim_plus(gpunn_model *model, int64_t a, int64_t b, int64_t factor,
                                        int64_t number);

/* The product of dimensions; 0 if that is not a dimension. */
GPUNN__INTERNAL int64_t gpunn__dim_product(gpunn_model *model, int rank, const int64_t *dim);

/* Number of windows along one axis. A window that starts in the padding after the axis does not count
 * (torch's rule for ceil_mode). */
GPUNN__INTERNAL int64_t gpunn__windows(int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                                       int64_t dilation, bool ceil_mode);

/* The same for a size that varies; 0 if that is not a dimension. */
GPUNN__INTERNAL int64_t gpunn__windows_of(gpunn_model *model, int64_t size, int64_t kernel, int64_t stride,
                                          int64_t padding, int64_t dilation, bool ceil_mode);

#endif /* GPUNN__BASE_SHAPES_H */
