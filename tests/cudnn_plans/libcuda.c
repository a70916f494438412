/* A driver library with no driver behind it. Before cuDNN makes a plan it wants to see libcuda.so.1 and these
 * functions in it; all it learns from them here is that there is no GPU. check.py builds it into build/ and
 * shows it to this one test only. */
int cuInit(unsigned flags)
{
    (void)flags;
    return 100; /* CUDA_ERROR_NO_DEVICE */
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

int cuDeviceGetCount(int *count)
{
    *count = 0;
    return 0;
}

#define ABSENT(name)                               \
    int name(void)                                 \
    {                                              \
        return 801; /* CUDA_ERROR_NOT_SUPPORTED */ \
    }
ABSENT(cuDeviceGet)
ABSENT(cuGetErrorString)
ABSENT(cuGetErrorName)
ABSENT(cuCtxGetCurrent)
ABSENT(cuCtxPushCurrent)
ABSENT(cuCtxPopCurrent)
ABSENT(cuCtxGetLimit)
ABSENT(cuStreamGetCtx)
ABSENT(cuLibraryLoadData)
ABSENT(cuLibraryLoadFromFile)
ABSENT(cuLibraryUnload)
ABSENT(cuLibraryGetKernel)
ABSENT(cuKernelGetAttribute)
ABSENT(cuKernelGetFunction)
ABSENT(cuKernelSetAttribute)
ABSENT(cuOccupancyMaxActiveBlocksPerMultiprocessor)
ABSENT(cuOccupancyMaxPotentialClusterSize)
ABSENT(cuLaunchKernel)
ABSENT(cuLaunchKernelEx)
ABSENT(cuLaunchCooperativeKernel)
ABSENT(cuLinkCreate)
ABSENT(cuLinkAddData)
ABSENT(cuLinkComplete)
ABSENT(cuLinkDestroy)
ABSENT(cuTensorMapEncodeTiled)
