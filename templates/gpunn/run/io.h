#ifndef GPUNN__RUN_IO_H
#define GPUNN__RUN_IO_H
#include "base/structs.h"

/* ==== >>run/io ========================================================================================== */
/* Copies values between the program and a model: gpunn_read, gpunn_write and gpunn_item. */

/* The dtype in which the last run stored a value or gradient. */
GPUNN__INTERNAL gpunn_dtype gpunn__stored_as(const gpunn_tensor *t, bool gradient);

/* Whether the last run stored it with channels last. */
GPUNN__INTERNAL bool gpunn__stored_channels_last(const gpunn_tensor *t, bool gradient);

/* Whether the program's memory is the device's own, which the host cannot read. */
GPUNN__INTERNAL bool gpunn__is_on_device(const gpunn_device *dev, const void *memory);

/* Whether t is an input that is bound to doubles. Its own memory then holds floats, which each run converts
 * anew. */
GPUNN__INTERNAL bool gpunn__is_bound_to_doubles(const gpunn_tensor *t);

/* Makes an input's own memory large enough. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__reserve_own(gpunn_tensor *t, size_t bytes);

/* gpunn_write_shape of elements of `dtype`. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__write_shape_as(gpunn_tensor *t, const char *caller, gpunn_dtype dtype,
                                                    const void *host, gpunn_shape shape);

/* Derives the shape *held from bytes in this dtype, where at most one dimension varies. caller: name for
 * messages. Fails if the bytes do not fit. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__shape_of(const gpunn_tensor *t, const char *caller, gpunn_dtype dtype,
                                              size_t bytes, int64_t *held);

/* Fails unless the rows of a parameter are whole blocks. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__fits_blocks(const gpunn_tensor *t, const char *caller,
                                                 gpunn_dtype format);

/* Records the shape of an input's contents, and its batch. */
GPUNN__INTERNAL void gpunn__hold(gpunn_tensor *t, const int64_t *held);

/* Makes an input's memory large enough for new contents, and records
 * their shape. Fails if it is bound to less. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__reserve_input(gpunn_tensor *t, const char *caller, size_t bytes,
                                                   const int64_t *held);

#endif /* GPUNN__RUN_IO_H */
