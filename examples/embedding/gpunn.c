/* The library: compile this once; other files just include gpunn.h. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
