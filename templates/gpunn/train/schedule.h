#ifndef GPUNN__TRAIN_SCHEDULE_H
#define GPUNN__TRAIN_SCHEDULE_H
#include "base/structs.h"

/* ==== >>train/schedule ================================================================================== */
/* Learning-rate schedules (gpunn_set_schedule, gpunn_schedule_step). */

#define GPUNN__COUNTER (INT64_MAX / 2) /* the largest number of steps; counters stay below overflow */

/* Fills in defaults and checks everything that a checkpoint stores, even fields that the type does not
 * read. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__schedule_check(gpunn_device *dev, gpunn_schedule_args *s);

#endif /* GPUNN__TRAIN_SCHEDULE_H */
