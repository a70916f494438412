${opening}
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#define ${upper}_KERNELS_CUDA
#include "${name}_kernels.h"
#if ${upper}_KERNELS_STAMP != ${stamp}
#error "${name}_kernels.h and ${name}_kernels.cu do not match: renew both (see their first lines)"
#endif

#ifndef GPUNN__LAUNCH_ON
#define GPUNN__LAUNCH_ON(stream, kernel, blocks, threads, ...) \
    kernel<<<(blocks), (threads), 0, (cudaStream_t)(stream)>>>(__VA_ARGS__)
#endif
//@if has_network
#ifndef GPUNN__LAUNCH_SHARED
/* Dynamic shared memory of `floats` floats. Above 48 KiB a kernel must ask for it by cudaFuncSetAttribute. */
#define GPUNN__BLOCK_SHARED(name, floats) extern __shared__ __align__(16) float name[]
#define GPUNN__LAUNCH_SHARED(stream, bytes, kernel, blocks, threads, ...)                                   \
    (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes)) == cudaSuccess \
         ? (kernel<<<(blocks), (threads), (bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__))                  \
         : (void)0)
#endif
//@end

/* Building blocks of the kernels. Tensors are read and written in packs of V neighbouring elements; i is a
 * pack's index. A pack moves in one access, of up to 128 bits. Every kernel adds in a fixed order. */
namespace ${name}_cuda {

${device}

${kernels}

//@if has_kernels
static const gpunn_kernel_launch ${name}_launches[][GPUNN_KERNEL_DIRECTIONS] = {
    ${launches}
};
//@end
//@if has_updates
static const gpunn_kernel_update_launch ${name}_updates[] = {
    ${updates}
};
//@end

} // namespace ${name}_cuda

extern "C" const gpunn_kernel_cuda ${name}_kernels_cuda = {
    GPUNN_KERNELS_ABI,
    ${upper}_KERNELS_STAMP,
    //@if has_kernels
    ${name}_cuda::${name}_launches,
    //@end
    //@if !has_kernels
    NULL,
    //@end
    //@if has_updates
    ${name}_cuda::${name}_updates,
    //@end
    //@if !has_updates
    NULL,
    //@end
};
