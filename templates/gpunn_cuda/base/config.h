#ifndef GPUNN__CUDA_BASE_CONFIG_H
#define GPUNN__CUDA_BASE_CONFIG_H

/* ==== >>base/config ===================================================================================== */
/* Includes, constants and the macros for launching kernels and passing on failures. */

#define GPUNN__COMPANION /* includes the >>common parts of gpunn.h */
#include "gpunn.h"

#include <chrono>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <system_error>
#include <thread>
#include <utility>
#if CUDART_VERSION < 12000
#error \
    "gpunn_cuda.cu needs CUDA 12.0 or later: install a newer toolkit, or leave this file out and compute " \
    "on the CPU"
#endif
#if CUDART_VERSION < 12050
#define cudaGetDriverEntryPointByVersion(name, function, version, flags) \
    cudaGetDriverEntryPoint((name), (function), (flags))
#endif
#if __has_include(<nvtx3/nvToolsExt.h>) && !defined(GPUNN_NO_NVTX)
#include <nvtx3/nvToolsExt.h>
#define GPUNN__NVTX 1
#endif

#if defined(__GNUC__)
#define GPUNN__UNUSED __attribute__((unused))
#else
#define GPUNN__UNUSED
#endif
/* Marks functions shared between the parts of templates/gpunn_cuda. They are private to this file, or to a
 * library whose parts are compiled separately. */
#if defined(GPUNN__PARTS)
#define GPUNN__INTERNAL __attribute__((visibility("hidden")))
#else
#define GPUNN__INTERNAL GPUNN__UNUSED static
#endif

enum {
    GPUNN__THREADS = 256,      /* threads per block, unless a kernel says otherwise */
    GPUNN__PACK = 8,           /* elements that a thread loads at once */
    GPUNN__MAX_UPDATES = 1024, /* maximum ranges of parameters with their own settings in one run */
    GPUNN__PARTIALS = 1024,    /* partial sums in the first stage of a norm */
    GPUNN__TRUST_BLOCKS = 256, /* blocks in the first stage of a trust ratio's norms, two sums each */
    GPUNN__PARTIALS_BYTES = (GPUNN__PARTIALS + 2 * GPUNN__TRUST_BLOCKS) * (int)sizeof(double),
};

/* GPUNN__LAUNCH(cuda, kernel, blocks, threads, arguments...) launches a kernel and returns a status. kernel
 * may be a template instance in parentheses. */
#ifndef GPUNN__LAUNCH
#define GPUNN__LAUNCH(cuda, kernel, blocks, threads, ...) \
    gpunn__cuda_launched((cuda), gpunn__launch((cuda), (kernel), (blocks), (threads), __VA_ARGS__), #kernel)
#endif
/* The first statement of each kernel (programmatic dependent launch). From Hopper on, a kernel's blocks are
 * set up while the previous kernel is still ending. They wait here until it has finished and its writes are
 * visible. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GPUNN__FOLLOW() cudaGridDependencySynchronize()
#else
#define GPUNN__FOLLOW() ((void)0)
#endif
/* Returns the status of call from the current function if it is a failure. */
#define GPUNN__TRY(call)                         \
    do {                                         \
        gpunn_status status_ = (call);           \
        if (status_ != GPUNN_OK) return status_; \
    } while (0)
/* The same for a call of the CUDA runtime. The error message contains the call's name and CUDA's text. */
#define GPUNN__CUDA(cuda, call) GPUNN__TRY(gpunn__cuda_check((cuda), (call), #call))

#endif /* GPUNN__CUDA_BASE_CONFIG_H */
