#ifndef GPUNN__TRAIN_SCHEDULE_H
#define GPUNN__TRAIN_SCHEDULE_H
#include "base/structs.h"

/* ==== >>train/schedule ============================================================================================= */
#define GPUNN__COUNTER (INT64_MAX / 2) /* the largest number of steps, so that counting on cannot overflow */

/* Puts the defaults in and checks all that a checkpoint keeps, be it read by the type or not. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__schedule_check(gpunn_device *dev, gpunn_schedule_args *s);

#endif /* GPUNN__TRAIN_SCHEDULE_H */
