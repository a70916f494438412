${opening}
#ifndef ${NAME}_DEVICE_CUH
#define ${NAME}_DEVICE_CUH
#include <stdint.h>

/* The model for one sample a thread, to be called within any kernel; compiled by nvcc, it needs no other file. The program fills
 * ${name}_weights, each array as PyTorch has the tensor that its comment names, and copies it to the GPU as it is: global, shared and
 * constant memory will do. A call takes ${products} multiplications.
//@if picks
 * Where an index is none of its embedding's rows, these are NaN, as in gpunn's own kernels.
//@end
 */
${declarations}

#define ${NAME}_FN static __device__ __forceinline__

${library}

${functions}
${definitions}
#endif
