#ifndef GPUNN__CUDA_BASE_ERRORS_H
#define GPUNN__CUDA_BASE_ERRORS_H
#include "base/context.h"

/* ==== >>base/errors ===================================================================================== */
/* Error messages, and checks at the entry of every call. */

GPUNN__INTERNAL void gpunn__cuda_log(const gpunn__cuda *cuda, gpunn_log_level level, const char *text);

/* Whether this process was forked from the one that retained the context. */
GPUNN__INTERNAL bool gpunn__is_forked(const gpunn__context *context);

GPUNN__INTERNAL bool gpunn__cuda_is_forked(const gpunn__cuda *cuda);

/* While an object of this type lives, the context is current (if its handle is non-NULL). Its destructor
 * makes the program's context, and so the program's device, current again. It also restores whether a CUDA
 * error was pending. But CUDA keeps only one error, so a failing call of ours replaces the program's.
 * cudaSetDevice is no alternative: it would create the primary context of a device that the program never
 * used, which takes about 0.5 GB there. */
struct gpunn__current {
    gpunn__context context;
    bool           is_forked;      /* forked from the process that retained the context: does nothing */
    cudaError_t    pending, error; /* error: why the context could not be made current */
    explicit gpunn__current(const gpunn__context &given = {})
        : context(given), is_forked(gpunn__is_forked(&given)), pending(cudaSuccess), error(cudaSuccess)
    {
        if (is_forked) return;
        pending = cudaPeekAtLastError();
        if (context.handle) error = (cudaError_t)context.push(context.handle);
    }
    ~gpunn__current()
    {
        void *popped;
        if (is_forked) return;
        if (context.handle && error == cudaSuccess) (void)context.pop(&popped);
        if (cudaPeekAtLastError() != pending) (void)cudaGetLastError();
    }
    gpunn__current(const gpunn__current &) = delete;
    gpunn__current &operator=(const gpunn__current &) = delete;
};

/* Retains the device's primary context, creating it if necessary. */
GPUNN__INTERNAL cudaError_t gpunn__context_retain(gpunn__context *context, int device);

/* Releases the primary context. It is destroyed with its last reference. */
GPUNN__INTERNAL void gpunn__context_release(gpunn__context *context, int device);

/* Fails if the device is dead, the context could not be made current, or this process is a fork. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_entered(gpunn__cuda *cuda, const gpunn__current *current);

/* Whether the program is capturing its stream. */
GPUNN__INTERNAL bool gpunn__cuda_capturing(void *context);

/* Fails if the program is capturing its stream. For functions that wait or allocate, which would invalidate
 * the capture. */
GPUNN__INTERNAL gpunn_status gpunn__outside_capture(gpunn__cuda *cuda, const char *what);

/* The first statement of every backend function that returns a status. */
#define GPUNN__ENTER(cuda)                          \
    const gpunn__current current_((cuda)->context); \
    GPUNN__TRY(gpunn__cuda_entered((cuda), &current_))

/* Clears CUDA's last error. Call it before functions that return cudaGetLastError(), so that earlier errors
 * are not attributed to them. */
GPUNN__INTERNAL void gpunn__cuda_clear(void);

/* Zeroed host memory; NULL if memory runs out, after recording the failure. */
GPUNN__INTERNAL void *gpunn__host_alloc(gpunn__cuda *cuda, size_t bytes);

GPUNN__INTERNAL void gpunn__host_free(gpunn__cuda *cuda, void *ptr, size_t bytes);

#endif /* GPUNN__CUDA_BASE_ERRORS_H */
