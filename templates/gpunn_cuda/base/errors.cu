#include "base/errors.h"

/* The first fault of the device is kept, since later errors only follow from it. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_fail(gpunn__cuda *cuda, gpunn_status status, const char *format, ...)
{
    if (cuda->dead) return cuda->dead;
    va_list list;
    va_start(list, format);
    (void)vsnprintf(cuda->text, sizeof cuda->text, format, list);
    va_end(list);
    return status;
}

/* Faults after which the driver returns the same error to every call of the process on this device. The
 * numbers are those of cudaErrorContained and cudaErrorTensorMemoryLeak, which the headers of CUDA 12.0
 * lack. */
static bool gpunn__cuda_is_fatal(cudaError_t error)
{
    switch ((int)error) {
    case 226:
    case 721:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice: return true;
    default: return false;
    }
}

static gpunn_status gpunn__cuda_error(gpunn__cuda *cuda, cudaError_t error, const char *what, int length)
{
    if (error == cudaSuccess) return GPUNN_OK;
    (void)cudaGetLastError(); /* so that the next launch does not report it */
    const char *name = cudaGetErrorName(error), *text = cudaGetErrorString(error);
    if (error == cudaErrorMemoryAllocation)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_MEMORY,
                                "%.*s: the GPU has no memory left (%s); use a smaller batch or model, call "
                                "gpunn_empty_cache, or end other programs on this GPU",
                                length, what, name);
    const bool  fatal = gpunn__cuda_is_fatal(error);
    const char *search =
        cuda->plain
            ? "under compute-sanitizer"
            : "with GPUNN_PLAIN=1 in the environment, which finds the step, or under compute-sanitizer";
    gpunn_status status = gpunn__cuda_fail(
        cuda, GPUNN_ERR_DEVICE, "%.*s: %s, %s%s%s", length, what, name, text,
        fatal ? "; the device is no longer usable: close it, and run the program " : "", fatal ? search : "");
    if (fatal) cuda->dead = status;
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_check(gpunn__cuda *cuda, cudaError_t error, const char *call)
{
    return gpunn__cuda_error(cuda, error, call, (int)strcspn(call, "("));
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_launched(gpunn__cuda *cuda, cudaError_t error, const char *kernel)
{
    return gpunn__cuda_error(cuda, error, kernel, (int)strlen(kernel));
}

GPUNN__INTERNAL void gpunn__cuda_log(const gpunn__cuda *cuda, gpunn_log_level level, const char *text)
{
    if (cuda->args.log_fn) cuda->args.log_fn(cuda->args.user, level, text);
}

GPUNN__INTERNAL bool gpunn__is_forked(const gpunn__context *context)
{
    return context->handle && context->process != GPUNN__PROCESS();
}

GPUNN__INTERNAL bool gpunn__cuda_is_forked(const gpunn__cuda *cuda)
{
    return gpunn__is_forked(&cuda->context);
}

/* A function of the driver, in its CUDA 12.0 version; NULL if there is none. The driver's library is not
 * linked. */
static void *gpunn__driver_function(const char *name)
{
    void *function = NULL;
    return cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault) == cudaSuccess
               ? function
               : NULL;
}

GPUNN__INTERNAL cudaError_t gpunn__context_retain(gpunn__context *context, int device)
{
    int (*const retain)(void **,
                        int) = (int (*)(void **, int))gpunn__driver_function("cuDevicePrimaryCtxRetain");
    context->push = (int (*)(void *))gpunn__driver_function("cuCtxPushCurrent");
    context->pop = (int (*)(void **))gpunn__driver_function("cuCtxPopCurrent");
    if (retain == NULL || context->push == NULL || context->pop == NULL) return cudaErrorInsufficientDriver;
    context->process = GPUNN__PROCESS();
    return (cudaError_t)retain(&context->handle, device);
}

GPUNN__INTERNAL void gpunn__context_release(gpunn__context *context, int device)
{
    int (*const release)(int) = (int (*)(int))gpunn__driver_function("cuDevicePrimaryCtxRelease");
    if (context->handle && release) (void)release(device);
    context->handle = NULL;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_entered(gpunn__cuda *cuda, const gpunn__current *current)
{
    if (cuda->dead) return cuda->dead;
    if (!current->is_forked) return gpunn__cuda_check(cuda, current->error, "cuCtxPushCurrent");
    return cuda->dead = gpunn__cuda_fail(
               cuda, GPUNN_ERR_DEVICE,
               "this process was forked after the device was opened, but a CUDA context does not survive a "
               "fork; open the device after the fork, or start the process with exec");
}

GPUNN__INTERNAL bool gpunn__cuda_capturing(void *context)
{
    const gpunn__cuda      *cuda = (const gpunn__cuda *)context;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cuda->stream == cuda->own) return false;
    const gpunn__current current(cuda->context);
    return !current.is_forked && cudaStreamIsCapturing(cuda->stream, &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
}

GPUNN__INTERNAL gpunn_status gpunn__outside_capture(gpunn__cuda *cuda, const char *what)
{
    if (!gpunn__cuda_capturing(cuda)) return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_STATE,
                            "the program's stream is being captured, which does not allow this: %s; do "
                            "it before or after the capture",
                            what);
}

GPUNN__INTERNAL void gpunn__cuda_clear(void)
{
    (void)cudaGetLastError();
}

GPUNN__INTERNAL void *gpunn__host_alloc(gpunn__cuda *cuda, size_t bytes)
{
    void *ptr = cuda->args.realloc_fn(cuda->args.user, NULL, 0, bytes);
    if (ptr)
        memset(ptr, 0, bytes);
    else
        (void)gpunn__cuda_fail(cuda, GPUNN_ERR_MEMORY, "out of host memory: allocating %zu bytes failed",
                               bytes);
    return ptr;
}

GPUNN__INTERNAL void gpunn__host_free(gpunn__cuda *cuda, void *ptr, size_t bytes)
{
    if (ptr) (void)cuda->args.realloc_fn(cuda->args.user, ptr, bytes, 0);
}
