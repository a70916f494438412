#ifndef GPUNN__CPU_NORM_H
#define GPUNN__CPU_NORM_H
#include "base/structs.h"

/* ==== >>cpu/norm =================================================================================================== */
/* Columns, or partial sums, that the norms process side by side. */
#define GPUNN__NORM_WIDTH 64

#endif /* GPUNN__CPU_NORM_H */
