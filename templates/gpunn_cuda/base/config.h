#ifndef GPUNN__CUDA_BASE_CONFIG_H
#define GPUNN__CUDA_BASE_CONFIG_H

/* ==== >>base/config ================================================================================================ */
#define GPUNN__COMPANION /* gpunn.h's >>common is wanted */
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
#error "gpunn_cuda.cu needs CUDA 12.0 or later: install a newer toolkit, or leave this file out and compute on the CPU"
#endif
#if CUDART_VERSION < 12050
#define cudaGetDriverEntryPointByVersion(name, function, version, flags) cudaGetDriverEntryPoint((name), (function), (flags))
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
/* What parts of templates/gpunn_cuda share: private to this file, or to a library whose parts are compiled apart. */
#if defined(GPUNN__PARTS)
#define GPUNN__INTERNAL __attribute__((visibility("hidden")))
#else
#define GPUNN__INTERNAL GPUNN__UNUSED static
#endif

enum {
    GPUNN__THREADS = 256,      /* of a block, unless a kernel says otherwise */
    GPUNN__PACK = 8,           /* elements that a thread loads at once */
    GPUNN__MAX_UPDATES = 1024, /* ranges of parameters with numbers of their own in one run */
    GPUNN__PARTIALS = 1024,    /* sums of the first stage of a norm */
    GPUNN__TRUST_BLOCKS = 256, /* of the first stage of a trust ratio's norms: two sums each */
    GPUNN__PARTIALS_BYTES = (GPUNN__PARTIALS + 2 * GPUNN__TRUST_BLOCKS) * (int)sizeof(double),
};

/* GPUNN__LAUNCH(cuda, kernel, blocks, threads, arguments...): a status. kernel may be a template's instance in parentheses. */
#ifndef GPUNN__LAUNCH
#define GPUNN__LAUNCH(cuda, kernel, blocks, threads, ...) \
    gpunn__cuda_launched((cuda), gpunn__launch((cuda), (kernel), (blocks), (threads), __VA_ARGS__), #kernel)
#endif
/* The first statement of each kernel: from Hopper on, its blocks are set up while what was launched before still ends
 * (programmatic dependent launch), and wait here until all of that is done and to be seen. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GPUNN__FOLLOW() cudaGridDependencySynchronize()
#else
#define GPUNN__FOLLOW() ((void)0)
#endif
/* return TRY(...): hands on a failure. */
#define GPUNN__TRY(call)                         \
    do {                                         \
        gpunn_status status_ = (call);           \
        if (status_ != GPUNN_OK) return status_; \
    } while (0)
/* The same for a call of the CUDA runtime, whose code and text go into the sentence. */
#define GPUNN__CUDA(cuda, call) GPUNN__TRY(gpunn__cuda_check((cuda), (call), #call))

#endif /* GPUNN__CUDA_BASE_CONFIG_H */
