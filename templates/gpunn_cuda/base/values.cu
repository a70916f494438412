#include "base/values.h"

GPUNN__INTERNAL size_t gpunn__bytes(gpunn_dtype dtype, int64_t count)
{
    return (size_t)count * (dtype == GPUNN_F32 ? 4 : 2);
}
