#ifndef GPUNN__CPU_NORM_H
#define GPUNN__CPU_NORM_H
#include "base/structs.h"

/* ==== >>cpu/norm =================================================================================================== */
#define GPUNN__NORM_WIDTH 64

#endif /* GPUNN__CPU_NORM_H */
