#if defined(GPUNN_CUDA) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda ${name}_kernels_cuda;
#elif defined(GPUNN_CUDA)
extern const gpunn_kernel_cuda ${name}_kernels_cuda;
#elif defined(__GNUC__) && defined(__ELF__) && defined(__cplusplus)
extern "C" const gpunn_kernel_cuda ${name}_kernels_cuda __attribute__((weak));
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_kernel_cuda ${name}_kernels_cuda __attribute__((weak));
#endif
const gpunn_kernel_set ${name}_kernels = {
    GPUNN_KERNELS_ABI,
    ${NAME}_KERNELS_STAMP,
    "${name}",
    ${version},
    ${sha256},
    ${command},
    ${kernels},
    ${kernel_count},
    ${tensor_count},
    ${evaluation},
    ${training},
    ${evaluation_count},
    ${training_count},
    ${updates},
    ${update_count},
#if defined(GPUNN_CUDA) || (defined(__GNUC__) && defined(__ELF__))
    &${name}_kernels_cuda,
#else
    NULL,
#endif
};
