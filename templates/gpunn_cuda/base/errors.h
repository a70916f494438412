#ifndef GPUNN__CUDA_BASE_ERRORS_H
#define GPUNN__CUDA_BASE_ERRORS_H
#include "base/context.h"

/* ==== >>base/errors ================================================================================================ */
GPUNN__INTERNAL void gpunn__cuda_log(const gpunn__cuda *cuda, gpunn_log_level level, const char *text);

/* Whether this process was forked from the one that retained the context. */
GPUNN__INTERNAL bool gpunn__is_forked(const gpunn__context *context);

GPUNN__INTERNAL bool gpunn__cuda_is_forked(const gpunn__cuda *cuda);

/* While one lives, the context is current, if one is given. At its end the program's context, and with it the program's device,
 * is current again, and its pending CUDA error is as it was; but CUDA keeps one error only, so a call of ours that fails takes
 * the program's with it. cudaSetDevice would not do: it makes the primary context of a device that the program never used,
 * which takes about 0.5 GB there. */
struct gpunn__current {
    gpunn__context context;
    bool           is_forked;      /* from the process that retained the context: nothing is done */
    cudaError_t    pending, error; /* error: the context could not be made current */
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

/* Makes the device's primary context, or takes a share in the one that there is. */
GPUNN__INTERNAL cudaError_t gpunn__context_retain(gpunn__context *context, int device);

/* Gives the share back. The context ends with the last one. */
GPUNN__INTERNAL void gpunn__context_release(gpunn__context *context, int device);

GPUNN__INTERNAL gpunn_status gpunn__cuda_entered(gpunn__cuda *cuda, const gpunn__current *current);

/* Whether the program is capturing its stream. */
GPUNN__INTERNAL bool gpunn__cuda_capturing(void *context);

/* For what waits or allocates, before it would end the program's capture. */
GPUNN__INTERNAL gpunn_status gpunn__outside_capture(gpunn__cuda *cuda, const char *what);

/* The first statement of every entry of the backend that gives a status. */
#define GPUNN__ENTER(cuda)                          \
    const gpunn__current current_((cuda)->context); \
    GPUNN__TRY(gpunn__cuda_entered((cuda), &current_))

/* Before functions that return cudaGetLastError(): what is pending already is not theirs. */
GPUNN__INTERNAL void gpunn__cuda_clear(void);

/* Host memory, zeroed; NULL after a failure. */
GPUNN__INTERNAL void *gpunn__host_alloc(gpunn__cuda *cuda, size_t bytes);

GPUNN__INTERNAL void gpunn__host_free(gpunn__cuda *cuda, void *ptr, size_t bytes);

#endif /* GPUNN__CUDA_BASE_ERRORS_H */
