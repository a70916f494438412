#ifndef GPUNN__BASE_MEMORY_H
#define GPUNN__BASE_MEMORY_H
#include "base/structs.h"

/* ==== >>base/memory ===================================================================================== */
/* Allocation of host memory (realloc_fn) and of backend memory. */
/* Removes const, for a structure whose pointer is not const. Nothing is written to that memory. */
GPUNN__INTERNAL void *gpunn__unconst(const void *given);

/* Host memory from realloc_fn. Freeing needs the size again. Returns NULL after recording
 * GPUNN_ERR_MEMORY. */
GPUNN__INTERNAL void *gpunn__realloc(gpunn_device *dev, void *ptr, size_t old_size, size_t new_size);
GPUNN__INTERNAL void *gpunn__calloc(gpunn_device *dev, size_t size); /* zeroed */
GPUNN__INTERNAL void  gpunn__free(gpunn_device *dev, void *ptr, size_t size);
GPUNN__INTERNAL char *gpunn__strdup(gpunn_device *dev, const char *text); /* free it with gpunn__free_text */
/* Records the failure of a backend function that belongs to no step. Returns status. */
GPUNN__INTERNAL gpunn_status gpunn__backend_fail(gpunn_device *dev, const char *what, gpunn_status status);
/* Backend memory, counted against memory_limit. Returns NULL after recording an error. */
GPUNN__INTERNAL void *gpunn__device_alloc(gpunn_device *dev, size_t size);
GPUNN__INTERNAL void  gpunn__device_free(gpunn_device *dev, void *ptr, size_t size);
/* False on overflow. */
GPUNN__INTERNAL bool gpunn__mul(size_t a, size_t b, size_t *result);
GPUNN__INTERNAL bool gpunn__add(size_t a, size_t b, size_t *result);

/* The default realloc_fn: realloc and free. */
GPUNN__INTERNAL void *gpunn__system_realloc(void *user, void *ptr, size_t old_size, size_t new_size);

/* Frees a text of strlen + 1 bytes; NULL is allowed. */
GPUNN__INTERNAL void gpunn__free_text(gpunn_device *dev, char *text);

/* Returns the array with space for one more item: doubles the capacity if it is full. NULL on failure. */
GPUNN__INTERNAL void *gpunn__grow(gpunn_device *dev, void *array, int count, int *capacity, size_t item);

#endif /* GPUNN__BASE_MEMORY_H */
