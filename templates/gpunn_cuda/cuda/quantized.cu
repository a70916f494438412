#include "base/shared.h"

/* ==== >>cuda/quantized =================================================================================== *
 * Ops of 8-bit numbers, which only the CPU computes. */

static gpunn_status gpunn__refuse_integers(gpunn__cuda *cuda)
{
    return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                            "8-bit numbers are computed on the CPU only; open a device of type "
                            "GPUNN_DEVICE_CPU, or import the model with --floats");
}

#define GPUNN__X(name)                                                                   \
    GPUNN__INTERNAL gpunn_status gpunn__cuda_##name(gpunn__cuda *cuda, gpunn_step *step, \
                                                    gpunn__action action)                \
    {                                                                                    \
        (void)step, (void)action;                                                        \
        return gpunn__refuse_integers(cuda);                                             \
    }
GPUNN__X(quantize_per_tensor)
GPUNN__X(dequantize)
GPUNN__X(quantized_add)
GPUNN__X(quantized_linear)
GPUNN__X(quantized_linear_dynamic)
GPUNN__X(quantized_conv2d)
#undef GPUNN__X
