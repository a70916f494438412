#ifndef GPUNN__BASE_TIME_H
#define GPUNN__BASE_TIME_H
#include "base/structs.h"

/* ==== >>base/time ======================================================================================= */
/* The monotonic clock. */
/* Seconds since an arbitrary start. */
GPUNN__INTERNAL double gpunn__seconds(void);

#endif /* GPUNN__BASE_TIME_H */
