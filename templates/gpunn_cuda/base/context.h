#ifndef GPUNN__CUDA_BASE_CONTEXT_H
#define GPUNN__CUDA_BASE_CONTEXT_H
#include "base/config.h"

/* ==== >>base/context ==================================================================================== */
/* The state of an open device, and functions that all parts use. */

/* Values that change from run to run. They are in device memory, so that a captured graph reads the current
 * ones. */
typedef struct gpunn__device_state {
    uint64_t seed, step, draw; /* keys of dropout and random numbers */
    /* ~ of the lowest address of a non-finite gradient; 0: none */
    unsigned long long bad_place;
    float              lr[GPUNN__MAX_UPDATES];          /* of each update */
    int64_t            update_step[GPUNN__MAX_UPDATES]; /* 1 for the first; skipped updates are counted */
    /* for updates whose numbers are computed by a kernel of their own */
    gpunn_update_numbers numbers[GPUNN__MAX_UPDATES];
} gpunn__device_state;

typedef struct gpunn__mark_at {
    cudaEvent_t event;
    bool        set; /* recorded in this run */
} gpunn__mark_at;

typedef struct gpunn__libraries gpunn__libraries; /* >>base/libraries */
typedef struct gpunn__cached    gpunn__cached;    /* >>base/memory */
typedef struct gpunn__staging   gpunn__staging;   /* >>base/memory */
typedef struct gpunn__nccl      gpunn__nccl;      /* >>base/ranks */
typedef struct gpunn__check     gpunn__check;     /* >>cuda/optimizers */

/* A GPU's primary context, with functions of the driver. Their results have the numbers of cudaError_t. */
typedef struct gpunn__context {
    void *handle;  /* NULL: none */
    int   process; /* id of the process that retained it; a forked child makes no CUDA calls */
    int (*push)(void *handle);
    int (*pop)(void **handle);
} gpunn__context;

typedef struct gpunn__cuda {
    int            device;
    gpunn__context context;
    cudaStream_t   stream;           /* orders all work: the program's stream, or `own` */
    cudaStream_t   own, copy_stream; /* own: also the stream on which runs are captured */
    /* for kernels that run beside a run's steps: checks (>>run/run) */
    cudaStream_t  side;
    cudaEvent_t   side_from, side_to; /* what they wait for; what waits for them */
    gpunn__check *checks;             /* [check_capacity], of the run that is being launched */
    int           check_capacity;
    int           multiprocessors, capability; /* capability: 10 * major + minor */
    /* that the kernels were compiled for, __CUDA_ARCH__ / 10; the GPU may be newer */
    int architecture;
    /* no memory of its own; uses the host's page tables for host memory */
    int      integrated, pageable;
    char     name[160];
    uint64_t identity; /* a hash of the GPU's UUID */
    /* as opened: hooks, deterministic, benchmark, workspace_limit (with its default filled in) */
    gpunn_device_args    args;
    bool                 plain;     /* GPUNN_PLAIN: no capture; wait after each step */
    gpunn__mark_at      *marks;     /* gpunn_profile: [steps + 2]; NULL: not profiling */
    bool                 overlaps;  /* kernels are launched with programmatic dependent launch */
    bool                 replayed;  /* the program has captured a run; a replay may change weights unseen */
    gpunn_status         dead;      /* sticky: after a device fault every call returns this */
    char                 text[512]; /* message of the last failure */
    cudaMemPool_t        pool;
    gpunn__device_state *state;    /* device memory; written at the start of each run */
    double              *partials; /* device memory, [GPUNN__PARTIALS + 2 * GPUNN__TRUST_BLOCKS] */
    unsigned            *counters; /* device memory for gpunn__is_last_block; size: gpunn__counters_bytes */
    gpunn__libraries    *libraries;
    unsigned             slower; /* kinds of ops logged as not done by cuDNN: one bit per gpunn__dnn_kind */
    gpunn__cached       *cached;
    gpunn__staging      *staging;
    /* steps of the current launch after the one at work, which may fuse with them */
    gpunn_step *next, *end;
    /* the first of the short steps that share the launch of the run's update; NULL: none */
    gpunn_step *with_update;
    /* the convolution whose bias gradient was computed before its own step */
    const gpunn_step *summed;
    /* pinned: [0] 1 + the step with a bad loss (| GPUNN__BAD_GRADIENT), [1] its bits, [2] its address */
    volatile uint64_t *bad;
    uint64_t          *bad_device; /* the same memory at its device address */
    gpunn__nccl       *nccl;       /* NULL: no group has needed it yet */
} gpunn__cuda;

/* Records an error message and returns status. After a fault of the device it returns that fault and keeps
 * its message. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_fail(gpunn__cuda *cuda, gpunn_status status, const char *format,
                                              ...);
/* Return GPUNN_OK, or record the error of a CUDA call, or of a kernel launch. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_check(gpunn__cuda *cuda, cudaError_t error, const char *call);
GPUNN__INTERNAL gpunn_status gpunn__cuda_launched(gpunn__cuda *cuda, cudaError_t error, const char *kernel);
/* Make the host wait for all work that the stream has so far, or for an event. If ranks have joined, waiting
 * fails after their timeout. */
GPUNN__INTERNAL gpunn_status gpunn__stream_wait(gpunn__cuda *cuda);
GPUNN__INTERNAL gpunn_status gpunn__event_wait(gpunn__cuda *cuda, cudaEvent_t event);
/* to = or += from; each of them F32, F16 or BF16. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_copy(gpunn__cuda *cuda, void *to, gpunn_dtype to_dtype,
                                              const void *from, gpunn_dtype from_dtype, int64_t count,
                                              bool accumulate);
/* As gpunn_cast converts; F32, F16 and BF16 also to one another. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_cast_values(gpunn__cuda *cuda, void *to, gpunn_dtype to_dtype,
                                                     const void *from, gpunn_dtype from_dtype, int64_t count);
GPUNN__INTERNAL gpunn_status gpunn__cuda_scale(void *context, float *values, int64_t count, float scale,
                                               float limit); /* see gpunn_backend */

#ifndef GPUNN__EMULATOR
template <typename... P, typename... A>
static cudaError_t gpunn__launch(const gpunn__cuda *cuda, void (*kernel)(P...), dim3 blocks, dim3 threads,
                                 A &&...arguments)
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

/* Returns host memory that lives until the device is closed and is found again by its key: descriptors and
 * chosen algorithms. On the first call for a key, it is zeroed and *fresh is true. destroy (may be NULL) is
 * called on closing. Returns NULL if memory runs out. The first bytes of the key identify its use. The key
 * must have no uninitialized padding. */
GPUNN__INTERNAL void *gpunn__cuda_cached(gpunn__cuda *cuda, const void *key, size_t key_bytes,
                                         size_t value_bytes, void (*destroy)(gpunn__cuda *cuda, void *value),
                                         bool  *fresh);

/* Number of blocks for n items if each thread takes `each` at a time, limited to 16 blocks per
 * multiprocessor. */
GPUNN__INTERNAL unsigned gpunn__blocks(const gpunn__cuda *cuda, int64_t n, int64_t each);

/* Blocks of which each thread does `each` elements once. Loads of the next block then begin before the last
 * one's stores have ended: up to 1.08 times as fast for what only moves memory. */
GPUNN__INTERNAL unsigned gpunn__single_blocks(int64_t n, int64_t each);

/* Whether what the step keeps of its weights is not that of the present ones. */
GPUNN__INTERNAL bool gpunn__cuda_is_stale(const gpunn__cuda *cuda, const gpunn_step *step);

/* Bytes of cuda->counters. */
GPUNN__INTERNAL size_t gpunn__counters_bytes(const gpunn__cuda *cuda);

#endif /* GPUNN__CUDA_BASE_CONTEXT_H */
