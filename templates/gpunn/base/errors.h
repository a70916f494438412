#ifndef GPUNN__BASE_ERRORS_H
#define GPUNN__BASE_ERRORS_H
#include "base/structs.h"

/* ==== >>base/errors ===================================================================================== */
/* Records errors per device, or per thread if there is no device. */
/* Records the first failure of a device and returns its status, so that failing is one expression: return
 * gpunn__fail(dev, ...). log_fn receives every failure. dev may be NULL. */
GPUNN__INTERNAL gpunn_status gpunn__fail(gpunn_device *dev, gpunn_status status, const char *format, ...)
    GPUNN__PRINTF(3, 4);
/* The same for builders: records the failure and returns NULL. */
#ifdef __cplusplus
#define GPUNN__FAIL_NULL(...) ((void)gpunn__fail(__VA_ARGS__), nullptr)
#else
#define GPUNN__FAIL_NULL(...) ((void)gpunn__fail(__VA_ARGS__), (void *)0)
#endif
GPUNN__DECLARE(GPUNN__THREAD_LOCAL bool gpunn__failed_here)

#endif /* GPUNN__BASE_ERRORS_H */
