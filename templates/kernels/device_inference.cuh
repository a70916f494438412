${opening}
#ifndef ${NAME}_DEVICE_CUH
#define ${NAME}_DEVICE_CUH

//@if bfloat
#include <cuda_bf16.h>
//@end
//@if half
#include <cuda_fp16.h>
//@end
//@if integers
#include <stdint.h>
//@end

/* The model as a device function. Each thread evaluates one sample, inside any kernel. nvcc compiles it
 * without any other file. A call takes ${products} multiplications:
 *
 *     __global__ void values(${parameters}, int n)
 *     {
 *         const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
 *         if (i < n) ${name}_forward(${arguments});
 *     }
//@if warp
 *     __global__ void values_by_warps(const ${name}_weights_warp *weights, ${of_warp}, int n)
 *     {
 *         const int thread = (int)(blockIdx.x * blockDim.x + threadIdx.x), lane = thread % 32;
 *         const int i = thread / 32 * ${NAME}_WARP_SAMPLES + lane;
 *         ${name}_forward_warp(weights, ${places}, lane < ${NAME}_WARP_SAMPLES && i < n);
 *     }
//@end
 *
 ${facts}
 */
${declarations}

#define ${NAME}_FN static __device__ __forceinline__

${library}

${functions}
${definitions}
#endif
