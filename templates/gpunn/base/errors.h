#ifndef GPUNN__BASE_ERRORS_H
#define GPUNN__BASE_ERRORS_H
#include "base/structs.h"

/* ==== >>base/errors ===================================================================================== */
/* Records errors per device, or per thread if there is no device. */
/* Records the first failure of a device and returns its status, so that failing is one expression: return
 * gpunn__fail(dev, ...). log_fn receives every failure. dev may be NULL. */
GPUNN__INTERNAL gpunn_status gpunn__fail(gpunn_device *dev, gpunn_status status, const char *format, ...)
    GPUNN__PRINTF(3, 4);
/* Fails because an object is NULL: "function: the what is NULL". dev is NULL if no other argument has a
 * device. The sentence then also names this thread's earlier failure, from which the NULL may come. */
GPUNN__INTERNAL gpunn_status gpunn__fail_null(gpunn_device *dev, const char *function, const char *what);
/* The same for a function of a model or tensor and one more argument, named `other`: the first of the two
 * that is NULL. */
GPUNN__INTERNAL gpunn_status gpunn__fail_null_model(gpunn_model *model, const char *function,
                                                    const char *other);
GPUNN__INTERNAL gpunn_status gpunn__fail_null_tensor(gpunn_tensor *t, const char *function,
                                                     const char *other);
/* " 'name'" for an error sentence, or "" if name is NULL or empty. */
GPUNN__INTERNAL const char *gpunn__quoted(const char *name, char text[GPUNN__ERROR_SIZE]);
/* The same as gpunn__fail for builders: records the failure and returns NULL. */
#ifdef __cplusplus
#define GPUNN__FAIL_NULL(...) ((void)gpunn__fail(__VA_ARGS__), nullptr)
#else
#define GPUNN__FAIL_NULL(...) ((void)gpunn__fail(__VA_ARGS__), (void *)0)
#endif
GPUNN__DECLARE(GPUNN__THREAD_LOCAL bool gpunn__failed_here)

#endif /* GPUNN__BASE_ERRORS_H */
