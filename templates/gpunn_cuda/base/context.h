#ifndef GPUNN__CUDA_BASE_CONTEXT_H
#define GPUNN__CUDA_BASE_CONTEXT_H
#include "base/config.h"

/* ==== >>base/context =============================================================================================== */
/* What changes from run to run, in device memory, so that a captured graph finds it there. */
typedef struct gpunn__device_state {
    uint64_t             seed, step, draw;                /* key dropout and random numbers */
    unsigned long long   bad_place;                       /* ~ of the lowest address of a gradient that is not finite; 0: none */
    float                lr[GPUNN__MAX_UPDATES];          /* of each update */
    int64_t              update_step[GPUNN__MAX_UPDATES]; /* 1 for the first, updates that were skipped counted in */
    gpunn_update_numbers numbers[GPUNN__MAX_UPDATES];     /* for updates that are decided apart */
} gpunn__device_state;

typedef struct gpunn__mark_at {
    cudaEvent_t event;
    bool        set; /* recorded in this run */
} gpunn__mark_at;

typedef struct gpunn__libraries gpunn__libraries; /* >>base/libraries */
typedef struct gpunn__cached    gpunn__cached;    /* >>base/memory */
typedef struct gpunn__staging   gpunn__staging;   /* >>base/memory */
typedef struct gpunn__nccl      gpunn__nccl;      /* >>base/ranks */

/* A GPU's primary context, by the driver's calls, whose results are cudaError_t's numbers. */
typedef struct gpunn__context {
    void *handle;  /* NULL: none */
    int   process; /* that retained it; in one forked from that, no call of CUDA is made */
    int (*push)(void *handle);
    int (*pop)(void **handle);
} gpunn__context;

typedef struct gpunn__cuda {
    int               device;
    gpunn__context    context;
    cudaStream_t      stream;                      /* in whose order all work is: the program's, or our own */
    cudaStream_t      own, copy_stream;            /* own: on which runs are captured, too */
    int               multiprocessors, capability; /* capability: 10 * major + minor */
    int               architecture; /* that the kernels' code was compiled for, __CUDA_ARCH__ / 10; the GPU may be newer */
    int               integrated, pageable; /* whether it has no memory of its own; reads all of the host's by its page tables */
    char              name[160];
    uint64_t          identity;  /* a hash of the GPU's UUID */
    gpunn_device_args args;      /* as opened: hooks, deterministic, benchmark, workspace_limit (default in place) */
    bool              plain;     /* GPUNN_PLAIN: nothing is captured, and each step is waited for */
    gpunn__mark_at   *marks;     /* gpunn_profile: [steps + 2]; NULL: nobody asks */
    bool              overlaps;  /* kernels are set up while those before them end */
    gpunn_status      dead;      /* sticky: after a fault of the device every call gives this */
    char              text[512]; /* the last failure's sentence */
    cudaMemPool_t     pool;
    gpunn__device_state *state;    /* device memory; written at the start of each run */
    double              *partials; /* device memory, [GPUNN__PARTIALS + 2 * GPUNN__TRUST_BLOCKS] */
    unsigned            *counters; /* device memory, see gpunn__counters_bytes, for gpunn__is_last_block */
    gpunn__libraries    *libraries;
    unsigned             slower; /* kinds of ops of which was said that cuDNN does not do one: a bit for each gpunn__dnn_kind */
    gpunn__cached       *cached;
    gpunn__staging      *staging;
    gpunn_step        *next, *end; /* of the run that is being launched: what follows the step at work, which may take it over */
    const gpunn_step  *summed;     /* the convolution whose gradient of the bias is there before its own step */
    volatile uint64_t *bad; /* pinned: [0] a training step with a bad loss (GPUNN__BAD_GRADIENT), [1] its bits, [2] its address */
    uint64_t          *bad_device; /* the same memory, as kernels see it */
    gpunn__nccl       *nccl;       /* NULL: no group has asked for it */
} gpunn__cuda;

GPUNN__INTERNAL gpunn_status gpunn__cuda_fail(gpunn__cuda *cuda, gpunn_status status, const char *format, ...);
GPUNN__INTERNAL gpunn_status gpunn__cuda_check(gpunn__cuda *cuda, cudaError_t error, const char *call);
GPUNN__INTERNAL gpunn_status gpunn__cuda_launched(gpunn__cuda *cuda, cudaError_t error, const char *kernel);
/* The host waits, for what the stream has by now or has recorded; of ranks that have joined, no longer than for the others. */
GPUNN__INTERNAL gpunn_status gpunn__stream_wait(gpunn__cuda *cuda);
GPUNN__INTERNAL gpunn_status gpunn__event_wait(gpunn__cuda *cuda, cudaEvent_t event);
/* to = or += from, any of F32, F16, BF16. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_copy(gpunn__cuda *cuda, void *to, gpunn_dtype to_dtype, const void *from,
                                              gpunn_dtype from_dtype, int64_t count, bool accumulate);
GPUNN__INTERNAL gpunn_status gpunn__cuda_scale(void *context, float *values, int64_t count, float scale,
                                               float limit); /* gpunn_backend */

#ifndef GPUNN__EMULATOR
template <typename... P, typename... A>
static cudaError_t gpunn__launch(const gpunn__cuda *cuda, void (*kernel)(P...), dim3 blocks, dim3 threads, A &&...arguments)
{
    cudaLaunchConfig_t  config = {};
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = blocks;
    config.blockDim = threads;
    config.stream = cuda->stream;
    config.attrs = &overlap;
    config.numAttrs = cuda->overlaps ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, std::forward<A>(arguments)...);
}
#endif

/* Host memory that lives until the device is closed, found again by its key: descriptors and chosen algorithms. The first time
 * it comes zeroed and *fresh is true. destroy (may be NULL) is called at closing. NULL: out of memory. key's first bytes tell
 * one use from another; it must have no unset padding. */
GPUNN__INTERNAL void *gpunn__cuda_cached(gpunn__cuda *cuda, const void *key, size_t key_bytes, size_t value_bytes,
                                         void (*destroy)(gpunn__cuda *cuda, void *value), bool *fresh);

/* Blocks for n items when each thread takes `each` of them: enough to fill the device, and no more than that many times. */
GPUNN__INTERNAL unsigned gpunn__blocks(const gpunn__cuda *cuda, int64_t n, int64_t each);

GPUNN__INTERNAL size_t gpunn__counters_bytes(const gpunn__cuda *cuda);

#endif /* GPUNN__CUDA_BASE_CONTEXT_H */
