#ifndef GPUNN__BASE_MEMORY_H
#define GPUNN__BASE_MEMORY_H
#include "base/structs.h"

/* ==== >>base/memory ================================================================================================ */
/* What the program gave as const, for a structure whose pointer is not; nothing is written there. */
GPUNN__INTERNAL void *gpunn__unconst(const void *given);

/* Host memory through the user's hook. Sizes are needed again at release. NULL after recording GPUNN_ERR_MEMORY. */
GPUNN__INTERNAL void *gpunn__realloc(gpunn_device *dev, void *ptr, size_t old_size, size_t new_size);
GPUNN__INTERNAL void *gpunn__calloc(gpunn_device *dev, size_t size); /* zeroed */
GPUNN__INTERNAL void  gpunn__free(gpunn_device *dev, void *ptr, size_t size);
GPUNN__INTERNAL char *gpunn__strdup(gpunn_device *dev, const char *text); /* free with strlen + 1 */
/* A failure of a backend function that works on no step. */
GPUNN__INTERNAL gpunn_status gpunn__backend_fail(gpunn_device *dev, const char *what, gpunn_status status);
/* Backend memory, counted against the limit. NULL: the device's error says why. */
GPUNN__INTERNAL void *gpunn__device_alloc(gpunn_device *dev, size_t size);
GPUNN__INTERNAL void  gpunn__device_free(gpunn_device *dev, void *ptr, size_t size);
/* False when the result does not fit. */
GPUNN__INTERNAL bool gpunn__mul(size_t a, size_t b, size_t *result);
GPUNN__INTERNAL bool gpunn__add(size_t a, size_t b, size_t *result);

GPUNN__INTERNAL void *gpunn__system_realloc(void *user, void *ptr, size_t old_size, size_t new_size);

GPUNN__INTERNAL void gpunn__free_text(gpunn_device *dev, char *text);

GPUNN__INTERNAL void *gpunn__grow(gpunn_device *dev, void *array, int count, int *capacity, size_t item);

#endif /* GPUNN__BASE_MEMORY_H */
