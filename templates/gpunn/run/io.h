#ifndef GPUNN__RUN_IO_H
#define GPUNN__RUN_IO_H
#include "base/structs.h"

/* ==== >>run/io ===================================================================================================== */
/* The dtype in which the last run left a value or a gradient. */
GPUNN__INTERNAL gpunn_dtype gpunn__stored_as(const gpunn_tensor *t, bool gradient);

GPUNN__INTERNAL bool gpunn__stored_channels_last(const gpunn_tensor *t, bool gradient);

/* The shape in which so many elements of t lie, which tell one dimension that varies; bytes are those given, of the caller's. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__shape_of(const gpunn_tensor *t, const char *caller, gpunn_dtype dtype, size_t bytes,
                                              int64_t *held);

/* Notes the shape of what an input holds, and its batch. */
GPUNN__INTERNAL void gpunn__hold(gpunn_tensor *t, const int64_t *held);

/* Memory for what an input is to hold from now on. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__input_room(gpunn_tensor *t, const char *caller, size_t bytes, const int64_t *held);

#endif /* GPUNN__RUN_IO_H */
