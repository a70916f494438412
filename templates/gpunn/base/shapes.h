#ifndef GPUNN__BASE_SHAPES_H
#define GPUNN__BASE_SHAPES_H
#include "base/structs.h"

/* ==== >>base/shapes ================================================================================================ *
 * Only the run knows the value of a dimension that varies (>>base/sizes). Rules compare such dimensions with each other, never
 * with numbers. */
GPUNN__INTERNAL const char *gpunn__dim_text(const gpunn_model *model, int64_t dim, char text[32]);

GPUNN__INTERNAL const char *gpunn__dims_text(const gpunn_model *model, int rank, const int64_t *dim, char text[128]);

GPUNN__INTERNAL const char *gpunn__shape_text(const gpunn_tensor *t, char text[128]);

/* The element count is factor * batch^power, with named sizes as 1; false: factor is over the limit. */
GPUNN__INTERNAL bool gpunn__measure(int rank, const int64_t *dim, int64_t *factor, int *power);

GPUNN__INTERNAL int64_t gpunn__count(const gpunn_tensor *t, int64_t batch);

GPUNN__INTERNAL bool gpunn__any_sized(int rank, const int64_t *dim);

/* a + factor * b + number, of dimensions; 0 where that is none. */
GPUNN__INTERNAL int64_t gpunn__dim_plus(gpunn_model *model, int64_t a, int64_t b, int64_t factor, int64_t number);

/* The product of dimensions; 0 where that is none. */
GPUNN__INTERNAL int64_t gpunn__dim_product(gpunn_model *model, int rank, const int64_t *dim);

/* Cells of a sliding window along one axis; a window that starts in the padding behind does not count (torch's rule for ceil). */
GPUNN__INTERNAL int64_t gpunn__windows(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                                       bool ceil_mode);

/* The same of a size that varies; 0 where that is none. */
GPUNN__INTERNAL int64_t gpunn__windows_of(gpunn_model *model, int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                                          int64_t dilation, bool ceil_mode);

#endif /* GPUNN__BASE_SHAPES_H */
