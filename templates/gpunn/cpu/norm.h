#ifndef GPUNN__CPU_NORM_H
#define GPUNN__CPU_NORM_H
#include "base/structs.h"

/* ==== >>cpu/norm ======================================================================================== */
/* Normalization layers: batch_norm, layer_norm, rms_norm, group_norm and instance_norm. This is the number of
 * columns, or of partial sums, that they process side by side. */
#define GPUNN__NORM_WIDTH 64

#endif /* GPUNN__CPU_NORM_H */
