/* gpunn_cuda.cu - v0.2 - the CUDA backend of gpunn.h.                                     MIT or public
 * domain (end of gpunn.h)
 *
 * To use it, put it next to gpunn.h and add it to the compile line. The program's source does not change:
 *     nvcc -O3 -arch=native app.c gpunn_cuda.cu -o app                          no -l: cuBLASLt and cuDNN are
 *     opened at run time
 * -arch=native builds for the GPU of this machine, -arch=all-major for any. With neither, the driver compiles
 * the kernels when the program first starts, which takes seconds. CUDA 12.0 or later is required. cuDNN 9
 * provides fast convolutions, attention and recurrent layers. It is left out if the toolkit lacks its header
 * or if GPUNN_NO_CUDNN is defined.
 *
 * To find the step that causes a GPU fault, set GPUNN_PLAIN=1 in the environment. Then nothing is captured,
 * and each step is waited for and checked. In NVIDIA's profilers each step that is launched by itself appears
 * as a range; the steps of a graph are launched together. Ranges need nvtx3 and are disabled by
 * GPUNN_NO_NVTX.
 *
 * >>toc        grep -n '>>' gpunn_cuda.cu lists all sections. Each section uses only those before it. Each is
 * a
 *              file of templates/gpunn_cuda; `python3 -m generator.amalgamate` writes this file from them.
 *     base/config      includes, constants, launching
 *     base/context     state of an open device
 *     base/values      loads and stores of 8 elements, reductions over a block, random numbers
 *     base/errors      error messages, checks of every call
 *     base/memory      the pool, copies through pinned memory, the cache of descriptors
 *     base/libraries   finding and opening cuBLASLt and cuDNN
 *     base/ranks       GPUs of several processes, through NCCL
 *     base/shared      interfaces between sections
 *     cuda/formulas    gpunn.h's tables of elementwise ops as device functions
 *     cuda/elementwise their kernels; copies; cast; dropout
 *     cuda/move        permute, concat, slice, pad, expand; filters with their channels last
 *     cuda/reduce      sum, max, gradient_energy, argmax, cumsum
 *     cuda/indexing    topk_indices, embedding, gather, assign
 *     cuda/gemm        linear and matmul: cuBLASLt with its epilogues
 *     cuda/blocks      products and embeddings of weights of 4 to 8 bits
 *     cuda/conv        convolutions: cuDNN's graphs, im2col and products, or depthwise kernels
 *     cuda/pool        max, average and adaptive average pooling
 *     cuda/finish      epilogue of a product or convolution, in one pass
 *     cuda/sampling    grid_sample, roi_align, affine_grid, hash_grid_encoding, interpolate
 *     cuda/norm        batch_norm, layer_norm, rms_norm, group_norm, instance_norm
 *     cuda/softmax     softmax, log_softmax
 *     cuda/loss        cross_entropy, nll, ctc_loss
 *     cuda/attention   scaled_dot_product_attention: cuDNN's, or products and a separate kernel
 *     cuda/recurrent   rnn, lstm, gru: cuDNN's, or products and a kernel for each step
 *     cuda/quantized   ops of 8-bit numbers: tensor cores, cuBLASLt for large products
 *     cuda/short       consecutive steps that share a launch because each is too short for its own
 *     cuda/optimizers  updates, norms of gradients, the loss scale
 *     run/run          whole runs: plain, captured, replayed
 *     run/backend      opening, closing, the table
 *
 * Each op is one function gpunn__cuda_<name>(cuda, step, action), which holds both its forward and its
 * backward. Kernels compute in F32. Each operand may be stored as F32, F16 or BF16 independently; parameters
 * and statistics are F32. All sums take two stages in a fixed order, so the same inputs give the same bits.
 * Nothing here allocates or waits while a run is captured. */

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

GPUNN__INTERNAL unsigned gpunn__blocks(const gpunn__cuda *cuda, int64_t n, int64_t each)
{
    int64_t blocks = (n + each * GPUNN__THREADS - 1) / (each * GPUNN__THREADS),
            most = (int64_t)cuda->multiprocessors * 16;
    return (unsigned)gpunn__clamp(blocks, 1, most);
}

GPUNN__INTERNAL unsigned gpunn__single_blocks(int64_t n, int64_t each)
{
    return (unsigned)gpunn__clamp((n + each * GPUNN__THREADS - 1) / (each * GPUNN__THREADS), 1, INT32_MAX);
}

GPUNN__INTERNAL bool gpunn__cuda_is_stale(const gpunn__cuda *cuda, const gpunn_step *step)
{
    return cuda->replayed || step->cache_version != step->state->weights_version;
}

GPUNN__INTERNAL size_t gpunn__counters_bytes(const gpunn__cuda *cuda)
{
    size_t own = (size_t)cuda->multiprocessors * 2;
    return (own > GPUNN_KERNEL_COUNTERS ? own : GPUNN_KERNEL_COUNTERS) * sizeof(unsigned);
}

/* ==== >>base/values ===================================================================================== */
/* Device functions for values: loads and stores of 8 elements, reductions over a block, random numbers. */

/* Converts 16 bits of F16 or BF16. */
__device__ __forceinline__ float gpunn__from_half(unsigned short bits, gpunn_dtype dtype)
{
    return dtype == GPUNN_BF16 ? __uint_as_float((unsigned)bits << 16) : __half2float(__ushort_as_half(bits));
}

/* Rounds to the nearest, ties to even. */
__device__ __forceinline__ unsigned short gpunn__to_half(float x, gpunn_dtype dtype)
{
    if (dtype != GPUNN_BF16) return __half_as_ushort(__float2half_rn(x));
    unsigned bits = __float_as_uint(x);
    return x != x ? (unsigned short)0x7FFF : (unsigned short)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

/* Bytes of count numbers in F32 or 16-bit storage. */
GPUNN__INTERNAL size_t gpunn__bytes(gpunn_dtype dtype, int64_t count);

/* x + n; NULL stays NULL, because adding to NULL is undefined. */
template <class T, class N> __host__ __device__ __forceinline__ T *gpunn__beyond(T *x, N n)
{
    return x ? x + n : NULL;
}

/* Element i of F32, F16 or BF16 storage. */
__device__ __forceinline__ float gpunn__load(const void *data, gpunn_dtype dtype, int64_t i)
{
    return dtype == GPUNN_F32 ? ((const float *)data)[i]
                              : gpunn__from_half(((const unsigned short *)data)[i], dtype);
}

__device__ __forceinline__ void gpunn__store(void *data, gpunn_dtype dtype, int64_t i, float x)
{
    if (dtype == GPUNN_F32)
        ((float *)data)[i] = x;
    else
        ((unsigned short *)data)[i] = gpunn__to_half(x, dtype);
}

/* The value of x after storing it as dtype. */
__device__ __forceinline__ float gpunn__rounded(float x, gpunn_dtype dtype)
{
    return dtype == GPUNN_F32 ? x : gpunn__from_half(gpunn__to_half(x, dtype), dtype);
}

/* Loads and stores eight elements from i on, a multiple of 8. data is aligned to 32 bytes (F32) or 16. Takes
 * one or two accesses of 128 bits, or one of 256 bits on devices that have them. */
typedef struct gpunn__floats8 {
    alignas(32) float v[8];
} gpunn__floats8;
__device__ __forceinline__ void gpunn__load8(const void *data, gpunn_dtype dtype, int64_t i, float v[8])
{
    if (dtype == GPUNN_F32) {
        gpunn__floats8 pack = *(const gpunn__floats8 *)((const float *)data + i);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = pack.v[j];
        return;
    }
    uint4    pack = *(const uint4 *)((const unsigned short *)data + i);
    unsigned word[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = gpunn__from_half((unsigned short)(word[j / 2] >> 16 * (j % 2)), dtype);
}

__device__ __forceinline__ void gpunn__store8(void *data, gpunn_dtype dtype, int64_t i, const float v[8])
{
    if (dtype == GPUNN_F32) {
        gpunn__floats8 pack;
#pragma unroll
        for (int j = 0; j < 8; j++) pack.v[j] = v[j];
        *(gpunn__floats8 *)((float *)data + i) = pack;
        return;
    }
    unsigned word[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        word[j] = (unsigned)gpunn__to_half(v[2 * j], dtype) | (unsigned)gpunn__to_half(v[2 * j + 1], dtype)
                                                                  << 16;
    *(uint4 *)((unsigned short *)data + i) = make_uint4(word[0], word[1], word[2], word[3]);
}

/* Elements in the pack that begins at i: GPUNN__PACK, or fewer at the end. */
__device__ __forceinline__ int gpunn__pack_size(int64_t count, int64_t i)
{
    return count - i < GPUNN__PACK ? (int)(count - i) : GPUNN__PACK;
}

/* Loads elements i .. i + n - 1 of contiguous storage; i is a multiple of 8. The loop for a partial pack
 * rotates v. So v stays in registers although the loop is not unrolled. */
__device__ __forceinline__ void gpunn__load_pack(const void *data, gpunn_dtype dtype, int64_t i, int n,
                                                 float v[8])
{
    if (n == GPUNN__PACK) {
        gpunn__load8(data, dtype, i, v);
        return;
    }
#pragma unroll 1
    for (int j = 0; j < GPUNN__PACK; j++) {
#pragma unroll
        for (int k = 0; k < GPUNN__PACK - 1; k++) v[k] = v[k + 1];
        v[GPUNN__PACK - 1] = j < n ? gpunn__load(data, dtype, i + j) : 0;
    }
}

/* Stores them, or with add adds them to the stored values. v is overwritten. */
__device__ __forceinline__ void gpunn__store_pack(void *data, gpunn_dtype dtype, int64_t i, int n, bool add,
                                                  float v[8])
{
    if (n == GPUNN__PACK) {
        if (add) {
            float old[8];
            gpunn__load8(data, dtype, i, old);
#pragma unroll
            for (int j = 0; j < GPUNN__PACK; j++) v[j] += old[j];
        }
        gpunn__store8(data, dtype, i, v);
        return;
    }
#pragma unroll 1
    for (int j = 0; j < n; j++) {
        gpunn__store(data, dtype, i + j, add ? gpunn__load(data, dtype, i + j) + v[0] : v[0]);
#pragma unroll
        for (int k = 0; k < GPUNN__PACK - 1; k++) v[k] = v[k + 1];
    }
}

/* Kernels that stream through large tensors split a pack into two quads of 4 elements, at i and i + apart.
 * With F32 operands, apart is GPUNN__APART: a warp's accesses of 128 bits are then contiguous, and none takes
 * half of a 32-byte sector, which costs a third of the bandwidth. Without, apart is 4: the pack is contiguous
 * and 16-bit storage is accessed by 128 bits. */
enum { GPUNN__QUAD = 4, GPUNN__APART = 32 * GPUNN__QUAD };
/* The first element of this thread's first pack. Its next one is gpunn__packs_step further. */
__device__ __forceinline__ int64_t gpunn__pack_first(int apart, unsigned block)
{
    const int64_t thread = (int64_t)block * blockDim.x + threadIdx.x;
    return apart == GPUNN__QUAD ? thread * GPUNN__PACK
                                : thread / 32 * 32 * GPUNN__PACK + thread % 32 * GPUNN__QUAD;
}

__device__ __forceinline__ int64_t gpunn__packs_step(unsigned blocks)
{
    return (int64_t)blocks * blockDim.x * GPUNN__PACK;
}

/* The place of element j of the pack that begins at i. */
__device__ __forceinline__ int64_t gpunn__pack_place(int64_t i, int apart, int j)
{
    return i + j / GPUNN__QUAD * apart + j % GPUNN__QUAD;
}

/* Loads and stores 4 elements from i on, a multiple of 4. */
__device__ __forceinline__ void gpunn__load4(const void *data, gpunn_dtype dtype, int64_t i, float *v)
{
    if (dtype == GPUNN_F32) {
        const float4 quad = *(const float4 *)((const float *)data + i);
        v[0] = quad.x, v[1] = quad.y, v[2] = quad.z, v[3] = quad.w;
        return;
    }
    const uint2    quad = *(const uint2 *)((const unsigned short *)data + i);
    const unsigned word[2] = {quad.x, quad.y};
#pragma unroll
    for (int j = 0; j < GPUNN__QUAD; j++)
        v[j] = gpunn__from_half((unsigned short)(word[j / 2] >> 16 * (j % 2)), dtype);
}

__device__ __forceinline__ void gpunn__store4(void *data, gpunn_dtype dtype, int64_t i, const float *v)
{
    if (dtype == GPUNN_F32) {
        *(float4 *)((float *)data + i) = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
    unsigned word[2];
#pragma unroll
    for (int j = 0; j < 2; j++)
        word[j] = (unsigned)gpunn__to_half(v[2 * j], dtype) | (unsigned)gpunn__to_half(v[2 * j + 1], dtype)
                                                                  << 16;
    *(uint2 *)((unsigned short *)data + i) = make_uint2(word[0], word[1]);
}

/* Loads the pack that begins at i, of `count` elements in all. What lies beyond reads as 0. */
__device__ __forceinline__ void gpunn__load_quads(const void *data, gpunn_dtype dtype, int64_t i, int apart,
                                                  int64_t count, float v[8])
{
    if (apart == GPUNN__QUAD && i + GPUNN__PACK <= count) {
        gpunn__load8(data, dtype, i, v);
        return;
    }
#pragma unroll
    for (int q = 0; q < GPUNN__PACK; q += GPUNN__QUAD) {
        const int64_t at = gpunn__pack_place(i, apart, q);
        if (at + GPUNN__QUAD <= count) {
            gpunn__load4(data, dtype, at, v + q);
            continue;
        }
#pragma unroll
        for (int j = 0; j < GPUNN__QUAD; j++)
            v[q + j] = at + j < count ? gpunn__load(data, dtype, at + j) : 0;
    }
}

/* Stores it, or with add adds it to the stored values. v is overwritten. */
__device__ __forceinline__ void gpunn__store_quads(void *data, gpunn_dtype dtype, int64_t i, int apart,
                                                   int64_t count, bool add, float v[8])
{
    if (add) {
        float old[8];
        gpunn__load_quads(data, dtype, i, apart, count, old);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] += old[j];
    }
    if (apart == GPUNN__QUAD && i + GPUNN__PACK <= count) {
        gpunn__store8(data, dtype, i, v);
        return;
    }
#pragma unroll
    for (int q = 0; q < GPUNN__PACK; q += GPUNN__QUAD) {
        const int64_t at = gpunn__pack_place(i, apart, q);
        if (at + GPUNN__QUAD <= count) {
            gpunn__store4(data, dtype, at, v + q);
            continue;
        }
#pragma unroll
        for (int j = 0; j < GPUNN__QUAD; j++)
            if (at + j < count) gpunn__store(data, dtype, at + j, v[q + j]);
    }
}

/* Byte j of a word. */
__device__ __forceinline__ int gpunn__byte_at(uint32_t word, int j)
{
    return (int)(word >> 8 * j & 255);
}

/* Bytes first .. first + 3 of the `channels` bytes of a cell, which begins at `at`. first is a multiple of 4.
 * They lie in one word if the channels are a multiple of 4. */
__device__ __forceinline__ uint32_t gpunn__load_channels(const void *data, int64_t at, int first,
                                                         int channels)
{
    const uint8_t *x = (const uint8_t *)data + at + first;
    uint32_t       word = 0;
    if (channels % 4 == 0) return *(const uint32_t *)x;
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (first + j < channels) word |= (uint32_t)x[j] << 8 * j;
    return word;
}

__device__ __forceinline__ void gpunn__store_channels(void *data, int64_t at, int first, int channels,
                                                      uint32_t word)
{
    uint8_t *y = (uint8_t *)data + at + first;
    if (channels % 4 == 0) *(uint32_t *)y = word;
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (channels % 4 != 0 && first + j < channels) y[j] = (uint8_t)gpunn__byte_at(word, j);
}

/* Whether this block is the last of `count` blocks to arrive here. That block then sees what the others wrote
 * before. All threads must call it. counter is 0 before the first block and after the last. */
__device__ __forceinline__ bool gpunn__is_last_block(unsigned *counter, unsigned count)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicInc(counter, count - 1) == count - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* Reductions over all threads of a block of whole warps. Every thread gets the result. The order is fixed.
 * Calls may follow each other directly. */
typedef struct gpunn__add {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return a + b;
    }
} gpunn__add;
typedef struct gpunn__larger { /* NaN wins */
    __device__ float operator()(float a, float b) const
    {
        return a != a || a > b ? a : b;
    }
} gpunn__larger;
template <typename T, typename Op> __device__ __forceinline__ T gpunn__block_reduce(T value, Op op)
{
    __shared__ T part[32];
    unsigned     lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value = op(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
    __syncthreads(); /* all threads have read part in an earlier call */
    if (lane == 0) part[warp] = value;
    __syncthreads();
    T result = part[0];
    for (unsigned w = 1; w < warps; w++) result = op(result, part[w]);
    return result;
}

/* The random words of a pack in a run. */
__device__ __forceinline__ void gpunn__draw_pack(uint64_t seed, uint64_t run, unsigned random_stream,
                                                 uint64_t pack, uint32_t word[4])
{
    const uint32_t counter[4] = {(uint32_t)pack, random_stream ^ (uint32_t)(pack >> 32) << 16, (uint32_t)run,
                                 (uint32_t)(run >> 32)};
    gpunn__philox(seed, counter, word);
}

/* Each word holds two 16-bit draws for dropout. */
__device__ __forceinline__ void gpunn__drop_draw(const gpunn__device_state *state, unsigned random_stream,
                                                 uint64_t pack, uint32_t word[4])
{
    gpunn__draw_pack(state->seed, state->step, random_stream, pack, word);
}

/* Dropout's factor for element j of the pack. */
__device__ __forceinline__ float gpunn__drop_factor(const uint32_t word[4], int j, unsigned keep, float scale)
{
    return (word[j / 2] >> 16 * (j % 2) & 0xFFFF) < keep ? scale : 0;
}

/* One function per op. */
#define GPUNN__X(ENUM, name, ...)                                                        \
    GPUNN__INTERNAL gpunn_status gpunn__cuda_##name(gpunn__cuda *cuda, gpunn_step *step, \
                                                    gpunn__action action);
GPUNN_OTHER_OPS(GPUNN__X)
#undef GPUNN__X

GPUNN__INTERNAL size_t gpunn__bytes(gpunn_dtype dtype, int64_t count)
{
    return (size_t)count * (dtype == GPUNN_F32 ? 4 : 2);
}

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

/* ==== >>base/memory ====================================================================================== *
 * Device memory comes from one stream-ordered pool per device, which returns memory to the system only on
 * request. Uploads go through pinned memory: the host's memory may be reused on return, and copies overlap
 * the step that is running. */
enum {
    GPUNN__PACKET = 4000,     /* bytes of the largest upload passed in a kernel's arguments */
    GPUNN__SMALL = 64 << 10,  /* bytes of the largest upload through the ring */
    GPUNN__RING = 16,         /* uploads in the ring */
    GPUNN__CHUNK = 1 << 20,   /* bytes copied to pinned memory before their transfer starts */
    GPUNN__STAGED = 64 << 20, /* bytes of the largest staged upload; larger ones are split */
    GPUNN__CUDA_ALIGN = 256,  /* bytes */
};

/* A staged upload: to pinned host memory, from there to device memory while a step runs, then to its target
 * after the step. */
typedef struct gpunn__slot {
    char       *host, *device;
    size_t      host_bytes, device_bytes;
    cudaEvent_t sent, used; /* sent: host may be overwritten; used: device may be overwritten */
} gpunn__slot;

struct gpunn__staging {
    char       *ring; /* pinned, [GPUNN__RING][GPUNN__SMALL], then GPUNN__SMALL for downloads */
    cudaEvent_t ring_sent[GPUNN__RING];
    unsigned    ring_next, slot_next;
    gpunn__slot slot[2];
    size_t      held, peak; /* bytes allocated outside the pool */
};

struct gpunn__cached {
    gpunn__cached *next;
    size_t         key_bytes, value_bytes;
    void (*destroy)(gpunn__cuda *cuda, void *value);
    /* followed by key and value, each aligned to 16 bytes */
};

#define GPUNN__UP(bytes, unit) (((bytes) + (unit)-1) / (unit) * (unit))

/* Before it fails, the pool's unused memory is returned to the system. */
GPUNN__INTERNAL void *gpunn__cuda_alloc(void *context, size_t bytes);

GPUNN__INTERNAL void gpunn__cuda_free(void *context, void *ptr, size_t bytes);

/* Pinned host memory, portable across GPUs. In front of the block is the context that must be current to free
 * it. */
GPUNN__INTERNAL void *gpunn__cuda_host_alloc(void *context, size_t bytes);

GPUNN__INTERNAL void gpunn__cuda_host_free(void *ptr);

/* Waits for the stream, then returns unused memory to the system, including buffers that only speed up
 * uploads. */
GPUNN__INTERNAL void gpunn__cuda_trim(void *context);

GPUNN__INTERNAL void gpunn__cuda_reserved(void *context, size_t *now, size_t *peak);

GPUNN__INTERNAL gpunn_status gpunn__cuda_reaches(void *context, const void *memory, size_t bytes);

GPUNN__INTERNAL bool gpunn__cuda_on_device(void *context, const void *memory);

GPUNN__INTERNAL gpunn_status gpunn__cuda_upload(void *context, void *to, const void *host, size_t bytes);

GPUNN__INTERNAL gpunn_status gpunn__cuda_download(void *context, void *host, const void *from, size_t bytes);

GPUNN__INTERNAL gpunn_status gpunn__cuda_fill(void *context, void *ptr, int byte, size_t bytes);

GPUNN__INTERNAL gpunn_status gpunn__cuda_synchronize(void *context);

/* Needs an open device with its streams. */
GPUNN__INTERNAL gpunn_status gpunn__memory_open(gpunn__cuda *cuda);

/* Called after everything else has been freed. */
GPUNN__INTERNAL void gpunn__memory_close(gpunn__cuda *cuda);

GPUNN__INTERNAL void gpunn__cached_close(gpunn__cuda *cuda);

static cudaError_t gpunn__hook_alloc(gpunn__cuda *cuda, void **ptr, size_t bytes, cudaStream_t stream)
{
    *ptr = cuda->args.cuda_malloc_fn(cuda->args.user, bytes, stream);
    return *ptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

static cudaError_t gpunn__pool_alloc(gpunn__cuda *cuda, void **ptr, size_t bytes, cudaStream_t stream)
{
    if (cuda->pool) return cudaMallocFromPoolAsync(ptr, bytes, cuda->pool, stream);
    cudaError_t error = cuda->args.cuda_malloc_fn ? gpunn__hook_alloc(cuda, ptr, bytes, stream)
                                                  : cudaMalloc(ptr, bytes);
    if (error != cudaSuccess) return error;
    gpunn__staging *staging = cuda->staging;
    staging->held += bytes;
    if (staging->peak < staging->held) staging->peak = staging->held;
    return cudaSuccess;
}

static cudaError_t gpunn__pool_free(gpunn__cuda *cuda, void *ptr, size_t bytes, cudaStream_t stream)
{
    if (ptr == NULL) return cudaSuccess;
    if (cuda->pool) return cudaFreeAsync(ptr, stream);
    cuda->staging->held -= bytes;
    if (cuda->args.cuda_free_fn == NULL) return cudaFree(ptr);
    cuda->args.cuda_free_fn(cuda->args.user, ptr, bytes, stream);
    return cudaSuccess;
}

GPUNN__INTERNAL void *gpunn__cuda_alloc(void *context, size_t bytes)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    void                *ptr = NULL;
    const gpunn__current current(cuda->context);
    if (gpunn__cuda_entered(cuda, &current) != GPUNN_OK ||
        gpunn__outside_capture(cuda, "allocation") != GPUNN_OK)
        return NULL;
    cudaError_t error = gpunn__pool_alloc(cuda, &ptr, bytes, cuda->stream);
    if (error == cudaErrorMemoryAllocation && cuda->pool) {
        (void)cudaGetLastError();
        (void)cudaStreamSynchronize(cuda->stream);
        (void)cudaMemPoolTrimTo(cuda->pool, 0);
        error = gpunn__pool_alloc(cuda, &ptr, bytes, cuda->stream);
    }
    if (gpunn__cuda_check(cuda, error, "cudaMallocFromPoolAsync") != GPUNN_OK) return NULL;
    if ((uintptr_t)ptr % GPUNN__CUDA_ALIGN == 0) return ptr;
    (void)gpunn__cuda_fail(cuda, GPUNN_ERR_ARGUMENT,
                           "cuda_malloc_fn returned memory that is not aligned to %d bytes",
                           (int)GPUNN__CUDA_ALIGN);
    (void)gpunn__pool_free(cuda, ptr, bytes, cuda->stream);
    return NULL;
}

GPUNN__INTERNAL void gpunn__cuda_free(void *context, void *ptr, size_t bytes)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    const gpunn__current current(cuda->context);
    if (current.is_forked) return;
    (void)gpunn__cuda_check(cuda, gpunn__pool_free(cuda, ptr, bytes, cuda->stream), "cudaFreeAsync");
}

GPUNN__INTERNAL void *gpunn__cuda_host_alloc(void *context, size_t bytes)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    void                *ptr = NULL;
    const gpunn__current current(cuda->context);
    if (gpunn__cuda_entered(cuda, &current) != GPUNN_OK || gpunn__cuda_capturing(cuda) ||
        bytes > SIZE_MAX - GPUNN__CUDA_ALIGN ||
        cudaHostAlloc(&ptr, bytes + GPUNN__CUDA_ALIGN, cudaHostAllocPortable) != cudaSuccess)
        return NULL;
    memcpy(ptr, &cuda->context, sizeof cuda->context);
    return (char *)ptr + GPUNN__CUDA_ALIGN;
}

GPUNN__INTERNAL void gpunn__cuda_host_free(void *ptr)
{
    gpunn__context context;
    char *const    start = (char *)ptr - GPUNN__CUDA_ALIGN;
    memcpy(&context, start, sizeof context);
    const gpunn__current current(context);
    (void)cudaFreeHost(start);
}

static void gpunn__slot_release(gpunn__cuda *cuda, gpunn__slot *slot)
{
    (void)gpunn__pool_free(cuda, slot->device, slot->device_bytes, cuda->copy_stream);
    if (slot->host) (void)cudaFreeHost(slot->host);
    slot->host = slot->device = NULL;
    slot->host_bytes = slot->device_bytes = 0;
}

GPUNN__INTERNAL void gpunn__cuda_trim(void *context)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    const gpunn__current current(cuda->context);
    if (gpunn__cuda_entered(cuda, &current) != GPUNN_OK || gpunn__cuda_capturing(cuda)) return;
    if (gpunn__stream_wait(cuda) != GPUNN_OK) return;
    for (int i = 0; i < 2; i++) gpunn__slot_release(cuda, &cuda->staging->slot[i]);
    (void)gpunn__cuda_check(cuda, cudaStreamSynchronize(cuda->copy_stream), "cudaStreamSynchronize");
    if (cuda->pool) (void)gpunn__cuda_check(cuda, cudaMemPoolTrimTo(cuda->pool, 0), "cudaMemPoolTrimTo");
    (void)gpunn__cuda_check(cuda, cudaDeviceGraphMemTrim(cuda->device), "cudaDeviceGraphMemTrim");
}

GPUNN__INTERNAL void gpunn__cuda_reserved(void *context, size_t *now, size_t *peak)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    uint64_t             held = cuda->staging->held, high = cuda->staging->peak;
    const gpunn__current current(cuda->context);
    if (cuda->pool && !current.is_forked) {
        (void)cudaMemPoolGetAttribute(cuda->pool, cudaMemPoolAttrReservedMemCurrent, &held);
        (void)cudaMemPoolGetAttribute(cuda->pool, cudaMemPoolAttrReservedMemHigh, &high);
    }
    *now = (size_t)held;
    *peak = (size_t)high;
}

typedef struct gpunn__packet {
    unsigned word[GPUNN__PACKET / 4];
} gpunn__packet;
/* to[0 .. bytes) = packet; each block copies 128 words. */
static __global__ void gpunn__unpack_kernel(char *to, unsigned bytes, const gpunn__packet packet)
{
    GPUNN__FOLLOW();
    unsigned i = blockIdx.x * 128 + threadIdx.x;
    if (4 * i >= bytes) return;
    unsigned word = packet.word[i];
    if (4 * i + 4 <= bytes)
        ((unsigned *)to)[i] = word;
    else
        for (unsigned j = 4 * i; j < bytes; j++) to[j] = (char)(word >> 8 * (j % 4));
}

/* Waits until the host may write the slot, then grows it. */
static gpunn_status gpunn__slot_reserve(gpunn__cuda *cuda, gpunn__slot *slot, size_t on_host,
                                        size_t on_device)
{
    size_t whole = GPUNN__UP(on_host, GPUNN__CHUNK);
    GPUNN__TRY(gpunn__event_wait(cuda, slot->sent));
    if (slot->host_bytes < on_host) {
        if (slot->host) GPUNN__CUDA(cuda, cudaFreeHost(slot->host));
        slot->host = NULL;
        slot->host_bytes = 0;
        GPUNN__CUDA(cuda, cudaHostAlloc((void **)&slot->host, whole, cudaHostAllocDefault));
        slot->host_bytes = whole;
    }
    if (on_device == 0) return GPUNN_OK;
    whole = GPUNN__UP(on_device, GPUNN__CHUNK);
    GPUNN__CUDA(cuda, cudaStreamWaitEvent(cuda->copy_stream, slot->used, 0));
    if (slot->device_bytes < on_device) {
        GPUNN__CUDA(cuda, gpunn__pool_free(cuda, slot->device, slot->device_bytes, cuda->copy_stream));
        slot->device = NULL;
        slot->device_bytes = 0;
        GPUNN__CUDA(cuda, gpunn__pool_alloc(cuda, (void **)&slot->device, whole, cuda->copy_stream));
        slot->device_bytes = whole;
    }
    return GPUNN_OK;
}

/* Whether the stream has work. The query reports that as a CUDA error. If the program has an error pending,
 * *busy is left unchanged. */
static gpunn_status gpunn__cuda_busy(gpunn__cuda *cuda, bool *busy)
{
    if (cudaPeekAtLastError() != cudaSuccess) return GPUNN_OK;
    cudaError_t state = cudaStreamQuery(cuda->stream);
    *busy = state == cudaErrorNotReady;
    if (!*busy) return gpunn__cuda_check(cuda, state, "cudaStreamQuery");
    gpunn__cuda_clear();
    return GPUNN_OK;
}

/* Copies straight to the target if the device is idle, otherwise through the slot, overlapping the step that
 * is running. Memory that the program has pinned is transferred from where it is, and the call waits for
 * that. GPUNN_ERR_MEMORY: nothing was done, for lack of staging memory. */
static gpunn_status gpunn__cuda_stage(gpunn__cuda *cuda, char *to, const char *host, size_t bytes,
                                      bool pinned)
{
    gpunn__slot *slot = &cuda->staging->slot[cuda->staging->slot_next++ % 2];
    bool         busy = true;
    GPUNN__TRY(gpunn__cuda_busy(cuda, &busy));
    GPUNN__TRY(gpunn__slot_reserve(cuda, slot, pinned ? 0 : bytes, busy ? bytes : 0));
    cudaStream_t stream = busy ? cuda->copy_stream : cuda->stream;
    char        *first_stop = busy ? slot->device : to;
    if (pinned) GPUNN__CUDA(cuda, cudaMemcpyAsync(first_stop, host, bytes, cudaMemcpyHostToDevice, stream));
    for (size_t done = 0, part; done < bytes && !pinned; done += part) {
        part = bytes - done < GPUNN__CHUNK ? bytes - done : (size_t)GPUNN__CHUNK;
        memcpy(slot->host + done, host + done, part);
        GPUNN__CUDA(cuda, cudaMemcpyAsync(first_stop + done, slot->host + done, part, cudaMemcpyHostToDevice,
                                          stream));
    }
    GPUNN__CUDA(cuda, cudaEventRecord(slot->sent, stream));
    if (pinned) GPUNN__TRY(gpunn__event_wait(cuda, slot->sent));
    if (!busy) return GPUNN_OK;
    GPUNN__CUDA(cuda, cudaStreamWaitEvent(cuda->stream, slot->sent, 0));
    GPUNN__CUDA(cuda, cudaMemcpyAsync(to, slot->device, bytes, cudaMemcpyDeviceToDevice, cuda->stream));
    GPUNN__CUDA(cuda, cudaEventRecord(slot->used, cuda->stream));
    return GPUNN_OK;
}

static bool gpunn__is_on_device(const cudaPointerAttributes *where)
{
    return where->type == cudaMemoryTypeDevice || where->type == cudaMemoryTypeManaged;
}

/* Finds where the program's memory is, at its first and at its last byte. Memory of another GPU is an
 * error. */
static gpunn_status gpunn__cuda_locate(gpunn__cuda *cuda, const void *memory, size_t bytes,
                                       cudaPointerAttributes *where)
{
    cudaPointerAttributes last;
    GPUNN__CUDA(cuda, cudaPointerGetAttributes(where, memory));
    if (!gpunn__is_on_device(where)) return GPUNN_OK;
    if (where->type == cudaMemoryTypeDevice && where->device != cuda->device)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_ARGUMENT,
                                "the memory is on GPU %d, but the model is on GPU %d", where->device,
                                cuda->device);
    GPUNN__CUDA(cuda, cudaPointerGetAttributes(&last, (const char *)memory + (bytes ? bytes - 1 : 0)));
    if (gpunn__is_on_device(&last)) return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_SHAPE, "the memory has less than %llu bytes",
                            (unsigned long long)bytes);
}

/* Whether kernels access this host memory as fast as GPU memory. On a GPU without memory of its own, that
 * holds for pinned memory. If the hardware uses the host's page tables, it holds for any. */
static bool gpunn__reads_host(const gpunn__cuda *cuda, const void *memory, const cudaPointerAttributes *where)
{
    return cuda->pageable ||
           (cuda->integrated && where->type == cudaMemoryTypeHost && where->devicePointer == memory);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_reaches(void *context, const void *memory, size_t bytes)
{
    gpunn__cuda          *cuda = (gpunn__cuda *)context;
    cudaPointerAttributes where;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__cuda_locate(cuda, memory, bytes, &where));
    if (gpunn__is_on_device(&where) || gpunn__reads_host(cuda, memory, &where)) return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_ARGUMENT,
                            "the memory is on the host, but the model is on GPU %d; use memory from "
                            "cudaMalloc, or gpunn_write and gpunn_read",
                            cuda->device);
}

GPUNN__INTERNAL bool gpunn__cuda_on_device(void *context, const void *memory)
{
    gpunn__cuda          *cuda = (gpunn__cuda *)context;
    const gpunn__current  current(cuda->context);
    cudaPointerAttributes where;
    return !current.is_forked && cudaPointerGetAttributes(&where, memory) == cudaSuccess &&
           where.type == cudaMemoryTypeDevice;
}

/* Uploads any length in pieces. One piece is copied to pinned memory while the one before is transferred. If
 * staging memory runs out, the driver copies the rest, which waits for all work. */
static gpunn_status gpunn__cuda_send(gpunn__cuda *cuda, char *to, const char *host, size_t bytes, bool pinned)
{
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < GPUNN__STAGED ? bytes - done : (size_t)GPUNN__STAGED;
        gpunn_status status = gpunn__cuda_stage(cuda, to + done, host + done, part, pinned);
        if (status == GPUNN_OK) continue;
        if (status != GPUNN_ERR_MEMORY) return status;
        part = bytes - done;
        GPUNN__CUDA(cuda,
                    cudaMemcpyAsync(to + done, host + done, part, cudaMemcpyHostToDevice, cuda->stream));
        GPUNN__TRY(gpunn__stream_wait(cuda));
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_upload(void *context, void *to, const void *host, size_t bytes)
{
    gpunn__cuda          *cuda = (gpunn__cuda *)context;
    gpunn__staging       *staging = cuda->staging;
    cudaPointerAttributes where;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__cuda_locate(cuda, host, bytes, &where));
    if (where.type == cudaMemoryTypeDevice) {
        GPUNN__CUDA(cuda, cudaMemcpyAsync(to, host, bytes, cudaMemcpyDeviceToDevice, cuda->stream));
        return GPUNN_OK;
    }
    if (where.type == cudaMemoryTypeManaged) /* kernels may still write it */
        GPUNN__TRY(gpunn__stream_wait(cuda));
    if (bytes <= GPUNN__PACKET && (uintptr_t)to % 4 == 0) {
        gpunn__packet packet;
        memcpy(packet.word, host, bytes);
        return GPUNN__LAUNCH(cuda, gpunn__unpack_kernel, (unsigned)(bytes + 511) / 512, 128, (char *)to,
                             (unsigned)bytes, packet);
    }
    GPUNN__TRY(gpunn__outside_capture(cuda, "copy from the host"));
    if (bytes <= GPUNN__SMALL) {
        unsigned i = staging->ring_next++ % GPUNN__RING;
        char    *pinned = staging->ring + (size_t)i * GPUNN__SMALL;
        GPUNN__TRY(gpunn__event_wait(cuda, staging->ring_sent[i]));
        memcpy(pinned, host, bytes);
        GPUNN__CUDA(cuda, cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, cuda->stream));
        GPUNN__CUDA(cuda, cudaEventRecord(staging->ring_sent[i], cuda->stream));
        return GPUNN_OK;
    }
    return gpunn__cuda_send(cuda, (char *)to, (const char *)host, bytes, where.type == cudaMemoryTypeHost);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_download(void *context, void *host, const void *from, size_t bytes)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    char        *pinned = cuda->staging->ring + (size_t)GPUNN__RING * GPUNN__SMALL;
    bool         small = bytes <= GPUNN__SMALL;
    if (gpunn__cuda_on_device(cuda, host)) return gpunn__cuda_upload(cuda, host, from, bytes);
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__outside_capture(cuda, "copy to the host"));
    /* otherwise the driver would wait inside the copy, without a timeout */
    if (!small && cuda->nccl) GPUNN__TRY(gpunn__stream_wait(cuda));
    GPUNN__CUDA(cuda,
                cudaMemcpyAsync(small ? pinned : host, from, bytes, cudaMemcpyDeviceToHost, cuda->stream));
    GPUNN__TRY(gpunn__stream_wait(cuda));
    if (small) memcpy(host, pinned, bytes);
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_fill(void *context, void *ptr, int byte, size_t bytes)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    GPUNN__CUDA(cuda, cudaMemsetAsync(ptr, byte, bytes, cuda->stream));
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_synchronize(void *context)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__outside_capture(cuda, "waiting"));
    GPUNN__TRY(gpunn__stream_wait(cuda));
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__memory_open(gpunn__cuda *cuda)
{
    int pools = 0;
    cuda->staging = (gpunn__staging *)gpunn__host_alloc(cuda, sizeof *cuda->staging);
    if (cuda->staging == NULL) return GPUNN_ERR_MEMORY;
    GPUNN__CUDA(cuda, cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, cuda->device));
    if (pools && cuda->args.cuda_malloc_fn == NULL) {
        cudaMemPoolProps properties;
        uint64_t         keep = UINT64_MAX;
        memset(&properties, 0, sizeof properties);
        properties.allocType = cudaMemAllocationTypePinned;
        properties.location.type = cudaMemLocationTypeDevice;
        properties.location.id = cuda->device;
        GPUNN__CUDA(cuda, cudaMemPoolCreate(&cuda->pool, &properties));
        GPUNN__CUDA(cuda, cudaMemPoolSetAttribute(cuda->pool, cudaMemPoolAttrReleaseThreshold, &keep));
    }
    GPUNN__CUDA(cuda, cudaHostAlloc((void **)&cuda->staging->ring, (size_t)(GPUNN__RING + 1) * GPUNN__SMALL,
                                    cudaHostAllocDefault));
    for (int i = 0; i < GPUNN__RING; i++)
        GPUNN__CUDA(cuda, cudaEventCreateWithFlags(&cuda->staging->ring_sent[i], cudaEventDisableTiming));
    for (int i = 0; i < 2; i++) {
        GPUNN__CUDA(cuda, cudaEventCreateWithFlags(&cuda->staging->slot[i].sent, cudaEventDisableTiming));
        GPUNN__CUDA(cuda, cudaEventCreateWithFlags(&cuda->staging->slot[i].used, cudaEventDisableTiming));
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL void gpunn__memory_close(gpunn__cuda *cuda)
{
    gpunn__staging *staging = cuda->staging;
    if (staging == NULL) return;
    for (int i = 0; i < 2; i++) {
        gpunn__slot_release(cuda, &staging->slot[i]);
        if (staging->slot[i].sent) (void)cudaEventDestroy(staging->slot[i].sent);
        if (staging->slot[i].used) (void)cudaEventDestroy(staging->slot[i].used);
    }
    for (int i = 0; i < GPUNN__RING; i++)
        if (staging->ring_sent[i]) (void)cudaEventDestroy(staging->ring_sent[i]);
    if (staging->ring) (void)cudaFreeHost(staging->ring);
    (void)cudaStreamSynchronize(cuda->copy_stream);
    if (cuda->pool) (void)cudaMemPoolDestroy(cuda->pool);
}

/* ---- cache of descriptors and chosen algorithms -------------------------------------------------------- */

static char *gpunn__cached_key(gpunn__cached *entry)
{
    return (char *)entry + GPUNN__UP(sizeof *entry, 16);
}

static size_t gpunn__cached_bytes(size_t key_bytes, size_t value_bytes)
{
    return GPUNN__UP(sizeof(gpunn__cached), 16) + GPUNN__UP(key_bytes, 16) + value_bytes;
}

GPUNN__INTERNAL void *gpunn__cuda_cached(gpunn__cuda *cuda, const void *key, size_t key_bytes,
                                         size_t value_bytes, void (*destroy)(gpunn__cuda *cuda, void *value),
                                         bool  *fresh)
{
    gpunn__cached *entry = cuda->cached;
    while (entry && (entry->key_bytes != key_bytes || memcmp(gpunn__cached_key(entry), key, key_bytes) != 0))
        entry = entry->next;
    *fresh = entry == NULL;
    if (*fresh) {
        entry = (gpunn__cached *)gpunn__host_alloc(cuda, gpunn__cached_bytes(key_bytes, value_bytes));
        if (entry == NULL) return NULL;
        entry->key_bytes = key_bytes;
        entry->value_bytes = value_bytes;
        entry->destroy = destroy;
        memcpy(gpunn__cached_key(entry), key, key_bytes);
        entry->next = cuda->cached;
        cuda->cached = entry;
    }
    return gpunn__cached_key(entry) + GPUNN__UP(key_bytes, 16);
}

GPUNN__INTERNAL void gpunn__cached_close(gpunn__cuda *cuda)
{
    for (gpunn__cached *entry = cuda->cached, *next; entry; entry = next) {
        next = entry->next;
        if (entry->destroy && !gpunn__cuda_is_forked(cuda))
            entry->destroy(cuda, gpunn__cached_key(entry) + GPUNN__UP(entry->key_bytes, 16));
        gpunn__host_free(cuda, entry, gpunn__cached_bytes(entry->key_bytes, entry->value_bytes));
    }
    cuda->cached = NULL;
}

/* ==== >>base/libraries =================================================================================== *
 * cuBLASLt and cuDNN are opened only after a GPU was found, so a program pays nothing on a machine without
 * one. They stay loaded when the device closes, because unloading them in a living process is not safe. */
#ifndef GPUNN__EMULATOR

#include <cublasLt.h>
#if __has_include(<cudnn.h>) && !defined(GPUNN_NO_CUDNN)
#include <cudnn.h>
#endif
#if defined(CUDNN_MAJOR) && CUDNN_MAJOR == 9
#define GPUNN__CUDNN 1
#else
#define GPUNN__CUDNN 0 /* convolutions are computed as products */
#endif
#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#else
#include <dlfcn.h>
#include <glob.h>
#include <unistd.h>
#endif

/* clang-format off */
#define GPUNN__LT_FUNCTIONS(X)                                                                               \
    X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy)            \
    X(cublasLtMatmulDescSetAttribute) X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy)           \
    X(cublasLtMatrixLayoutSetAttribute) X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy) \
    X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmul)              \
    X(cublasLtGetStatusString)
#define GPUNN__DNN_FUNCTIONS(X)                                                                        \
    X(cudnnCreate) X(cudnnDestroy) X(cudnnSetStream) X(cudnnGetErrorString) X(cudnnGetLastErrorString) \
    X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor) X(cudnnBackendSetAttribute)       \
    X(cudnnBackendGetAttribute) X(cudnnBackendFinalize) X(cudnnBackendExecute)                         \
    X(cudnnCreateRNNDescriptor) X(cudnnDestroyRNNDescriptor) X(cudnnSetRNNDescriptor_v8)               \
    X(cudnnCreateRNNDataDescriptor) X(cudnnDestroyRNNDataDescriptor) X(cudnnSetRNNDataDescriptor)      \
    X(cudnnCreateTensorDescriptor) X(cudnnDestroyTensorDescriptor) X(cudnnSetTensorNdDescriptor)       \
    X(cudnnGetRNNWeightSpaceSize) X(cudnnGetRNNWeightParams) X(cudnnGetRNNTempSpaceSizes)              \
    X(cudnnRNNForward) X(cudnnRNNBackwardData_v8) X(cudnnRNNBackwardWeights_v8)
/* clang-format on */

typedef struct gpunn__module {
    void  *handle; /* NULL: not open */
    char   path[512];
    size_t version;      /* as reported by the library */
    char   failure[320]; /* why a file that exists does not load */
} gpunn__module;

struct gpunn__libraries {
    gpunn__module    lt_module, dnn_module;
    cublasLtHandle_t lt;
    void            *lt_workspace; /* shared by all products */
    size_t           lt_workspace_bytes;
    bool             dnn_sought;
    gpunn_status     dnn_status; /* result of the search */
#define GPUNN__X(name) decltype(&::name) name;
    GPUNN__LT_FUNCTIONS(GPUNN__X)
#if GPUNN__CUDNN
    cudnnHandle_t dnn;
    GPUNN__DNN_FUNCTIONS(GPUNN__X)
#endif
#undef GPUNN__X
};

#ifdef _WIN32
#define GPUNN__LT_FILE "cublasLt64_%d.dll"
#define GPUNN__DNN_FILE "cudnn64_%d.dll"
#define GPUNN__PLACES "the program's folder, PATH, $%s and $CUDA_PATH\\bin"
#else
#define GPUNN__LT_FILE "libcublasLt.so.%d"
#define GPUNN__DNN_FILE "libcudnn.so.%d"
#define GPUNN__PLACES                                                                                      \
    "the loader's path, $%s, $CUDA_HOME, /usr/local/cuda, the program's folder and the nvidia folders of " \
    "Python's site-packages"
#endif

/* Address of a function of the library; NULL if it lacks it. */
GPUNN__INTERNAL void *gpunn__module_symbol(const gpunn__module *module, const char *name);

/* Opens a library. It is searched by name, then in the folder that the environment variable names, next to
 * the toolkit, next to the program, and in Python's wheels. */
GPUNN__INTERNAL bool gpunn__module_find(gpunn__module *module, const char *file, const char *variable);

/* Sets module->path to the path from which the loader has actually loaded it. */
GPUNN__INTERNAL void gpunn__module_locate(gpunn__module *module, const char *function);
/* Loads the files next to the module that match the pattern. */
GPUNN__INTERNAL void gpunn__module_beside(const gpunn__module *module, const char *pattern);

/* Opens cuDNN on the first call; later calls return the first one's result. */
GPUNN__INTERNAL gpunn_status gpunn__libraries_dnn(gpunn__cuda *cuda);
#endif

/* Makes the libraries use cuda->stream. */
GPUNN__INTERNAL gpunn_status gpunn__libraries_stream(gpunn__cuda *cuda);

/* ---- finding the libraries ----------------------------------------------------------------------------- */

#ifndef GPUNN__EMULATOR

GPUNN__INTERNAL void *gpunn__module_symbol(const gpunn__module *module, const char *name)
{
#ifdef _WIN32
    return (void *)GetProcAddress((HMODULE)module->handle, name);
#else
    return dlsym(module->handle, name);
#endif
}

#ifndef _WIN32
/* Keeps what the loader says of a file that is there. A bare name that it finds nowhere begins its
 * sentence. */
static void gpunn__module_fail(gpunn__module *module, const char *path)
{
    const char *why = dlerror();
    if (why && (strchr(path, '/') || strncmp(why, path, strlen(path)) != 0))
        (void)snprintf(module->failure, sizeof module->failure, "%s", why);
}

/* cuDNN 9 aborts when it is asked for anything while its file for graphs does not load. */
static void gpunn__module_need_graphs(gpunn__module *module)
{
    char    file[600];
    Dl_info info;
    void   *symbol = dlsym(module->handle, "cudnnGetVersion");
    if (symbol == NULL || dladdr(symbol, &info) == 0 || info.dli_fname == NULL) return;
    const char *slash = strrchr(info.dli_fname, '/');
    (void)snprintf(file, sizeof file, "%.*slibcudnn_graph.so.9",
                   slash ? (int)(slash + 1 - info.dli_fname) : 0, info.dli_fname);
    if (dlopen(access(file, F_OK) == 0 ? file : "libcudnn_graph.so.9", RTLD_LAZY | RTLD_LOCAL)) return;
    gpunn__module_fail(module, info.dli_fname);
    (void)dlclose(module->handle);
    module->handle = NULL;
}
#endif

static bool gpunn__module_load(gpunn__module *module, const char *path)
{
#ifdef _WIN32
    module->handle = (void *)LoadLibraryExA(
        path, NULL, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS | LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR);
    if (module->handle == NULL) module->handle = (void *)LoadLibraryA(path);
#else
    module->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (module->handle == NULL)
        gpunn__module_fail(module, path);
    else if (strstr(path, "libcudnn.so.9"))
        gpunn__module_need_graphs(module);
#endif
    (void)snprintf(module->path, sizeof module->path, "%s", path);
    return module->handle != NULL;
}

#ifndef _WIN32
/* Lists the files root/rest. rest may contain wildcards; root is taken literally. The caller calls
 * globfree. */
static void gpunn__files(glob_t *found, const char *root, size_t root_length, const char *rest)
{
    char   pattern[1024];
    size_t n = 0;
    for (size_t i = 0; i < root_length && n + 2 < sizeof pattern; i++) {
        if (strchr("*?[\\", root[i])) pattern[n++] = '\\';
        pattern[n++] = root[i];
    }
    (void)snprintf(pattern + n, sizeof pattern - n, "/%s", rest);
    memset(found, 0, sizeof *found);
    (void)glob(pattern, 0, NULL, found);
}
#endif

/* Opens `file` in the folders root/rest. */
static bool gpunn__module_seek(gpunn__module *module, const char *root, const char *rest, const char *file)
{
    char path[1024];
    bool open = false;
    if (root == NULL || *root == 0) return false;
#ifdef _WIN32
    (void)snprintf(path, sizeof path, "%s\\%s%s", root, rest, file);
    open = gpunn__module_load(module, path);
#else
    glob_t found;
    (void)snprintf(path, sizeof path, "%s%s", rest, file);
    gpunn__files(&found, root, strlen(root), path);
    for (size_t i = 0; i < found.gl_pathc && !open; i++) open = gpunn__module_load(module, found.gl_pathv[i]);
    globfree(&found);
#endif
    return open;
}

#ifndef _WIN32
/* Searches the wheels of every Python on the PATH. */
static bool gpunn__module_beside_python(gpunn__module *module, const char *file)
{
    char python[600];
    for (const char *path = getenv("PATH"); path && *path;) {
        int length = (int)strcspn(path, ":");
        (void)snprintf(python, sizeof python, "%.*s/python3", length, path);
        bool there = access(python, X_OK) == 0;
        (void)snprintf(python, sizeof python, "%.*s/..", length, path);
        if (there && gpunn__module_seek(module, python, "lib/python3*/site-packages/nvidia/*/lib/", file))
            return true;
        path += length;
        if (*path == ':') path++;
    }
    return false;
}
#endif

GPUNN__INTERNAL bool gpunn__module_find(gpunn__module *module, const char *file, const char *variable)
{
    module->failure[0] = 0;
    if (gpunn__module_load(module, file)) return true;
#ifdef _WIN32
    return gpunn__module_seek(module, getenv(variable), "", file) ||
           gpunn__module_seek(module, getenv(variable), "bin\\", file) ||
           gpunn__module_seek(module, getenv("CUDA_PATH"), "bin\\", file);
#else
    char    program[512];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = 0;
    char *slash = strrchr(program, '/');
    if (slash) *slash = 0;
    const struct {
        const char *root, *rest;
    } places[] = {
        {getenv(variable), ""},
        {getenv(variable), "lib64/"},
        {getenv(variable), "lib/"},
        {getenv("CUDA_HOME"), "lib64/"},
        {"/usr/local/cuda", "lib64/"},
        {program, ""},
        {getenv("VIRTUAL_ENV"), "lib/python3*/site-packages/nvidia/*/lib/"},
        {getenv("CONDA_PREFIX"), "lib/"},
        {getenv("CONDA_PREFIX"), "lib/python3*/site-packages/nvidia/*/lib/"},
        {getenv("HOME"), ".local/lib/python3*/site-packages/nvidia/*/lib/"},
        {"/usr/local", "lib/python3*/*-packages/nvidia/*/lib/"},
        {"/usr", "lib/python3*/*-packages/nvidia/*/lib/"},
        {"/opt", "*/lib/python3*/*-packages/nvidia/*/lib/"},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (gpunn__module_seek(module, places[i].root, places[i].rest, file)) return true;
    return gpunn__module_beside_python(module, file);
#endif
}

/* "9.19.0"; cuDNN 8 and cuBLAS 11 still counted in thousands. */
static const char *gpunn__version_text(size_t version, char text[32])
{
    unsigned unit = version < 90000 ? 1000 : 10000, v = (unsigned)version;
    (void)snprintf(text, 32, "%u.%u.%u", v / unit, v % unit / 100, v % 100);
    return text;
}

GPUNN__INTERNAL void gpunn__module_locate(gpunn__module *module, const char *function)
{
#ifdef _WIN32
    (void)module, (void)function;
#else
    void   *symbol = gpunn__module_symbol(module, function);
    Dl_info info;
    if (symbol && dladdr(symbol, &info) && info.dli_fname)
        (void)snprintf(module->path, sizeof module->path, "%s", info.dli_fname);
#endif
}

/* Determines its path and version. */
static void gpunn__module_describe(gpunn__module *module, const char *version_function)
{
    size_t (*version)(void) = (size_t(*)(void))gpunn__module_symbol(module, version_function);
    module->version = version ? version() : 0;
    gpunn__module_locate(module, version_function);
}

/* Opens one library of the same major version as the header (`built`). On failure, text says why. */
static bool gpunn__module_open(gpunn__module *module, const char *title, const char *file_format,
                               const char *variable, const char *version_function, size_t built, char *text,
                               size_t text_size)
{
    char file[64], has[32], needs[32];
    int  major = (int)(built / 10000);
    (void)gpunn__version_text(built, needs);
    (void)snprintf(file, sizeof file, file_format, major);
    if (gpunn__module_find(module, file, variable)) {
        gpunn__module_describe(module, version_function);
        if (module->version / 10000 == (size_t)major) return true;
        (void)snprintf(text, text_size,
                       "%.200s is %s %s, but this program was built with %s; install %s %d, or build with "
                       "the header of the other version",
                       module->path, title, gpunn__version_text(module->version, has), needs, title, major);
        return false;
    }
    if (module->failure[0]) {
        (void)snprintf(text, text_size,
                       "%s %d does not load: %s; reinstall it, or set %s to the folder of another copy",
                       title, major, module->failure, variable);
        return false;
    }
    for (int other = major + 1; other >= major - 1; other -= 2) {
        (void)snprintf(file, sizeof file, file_format, other);
        if (!gpunn__module_find(module, file, variable)) continue;
        gpunn__module_describe(module, version_function);
        (void)snprintf(text, text_size,
                       "only %s %s was found (%.200s), but this program was built with %s and needs %d; "
                       "install that, or set %s to its folder",
                       title, gpunn__version_text(module->version, has), module->path, needs, major,
                       variable);
        return false;
    }
    const char *set = getenv(variable);
    (void)snprintf(file, sizeof file, file_format, major);
    int n = snprintf(text, text_size, "%s %d is missing: %s was not found in " GPUNN__PLACES, title, major,
                     file, variable);
    if (n > 0 && (size_t)n < text_size)
        (void)snprintf(text + n, text_size - (size_t)n, "; install it, or set %s (%s%s%s) to its folder",
                       variable, set ? "now '" : "now unset", set ? set : "", set ? "'" : "");
    return false;
}

static bool gpunn__lt_find(gpunn__module *module, char *text, size_t text_size)
{
    return gpunn__module_open(module, "cuBLASLt", GPUNN__LT_FILE, "GPUNN_CUDA_PATH", "cublasLtGetVersion",
                              CUBLAS_VERSION, text, text_size);
}

#if GPUNN__CUDNN
/* Loads the files next to the module that match the pattern. Code that later opens them by name gets the
 * loaded ones. */
GPUNN__INTERNAL void gpunn__module_beside(const gpunn__module *module, const char *pattern)
{
#ifdef _WIN32
    (void)module, (void)pattern;
#else
    const char *slash = strrchr(module->path, '/');
    if (slash) {
        glob_t found;
        gpunn__files(&found, module->path, (size_t)(slash - module->path), pattern);
        for (size_t i = 0; i < found.gl_pathc; i++) (void)dlopen(found.gl_pathv[i], RTLD_LAZY | RTLD_GLOBAL);
        globfree(&found);
    }
#endif
}

/* cuDNN compiles attention at run time with NVRTC, which opens its builtins by name and only on the loader's
 * path. Those in wheels, or in toolkits that the loader does not know, must be loaded before. Without NVRTC
 * attention has no plan, which is logged. */
static void gpunn__nvrtc_open(void)
{
#ifndef _WIN32
    gpunn__module module;
    char          file[32];
    (void)snprintf(file, sizeof file, "libnvrtc.so.%d", CUDART_VERSION / 1000);
    if (!gpunn__module_find(&module, file, "GPUNN_CUDA_PATH")) return;
    gpunn__module_locate(&module, "nvrtcVersion");
    gpunn__module_beside(&module, "libnvrtc-builtins.so.*");
    gpunn__module_beside(&module, file);
#endif
}

static bool gpunn__dnn_find(gpunn__module *module, char *text, size_t text_size)
{
    if (!gpunn__module_open(module, "cuDNN", GPUNN__DNN_FILE, "GPUNN_CUDNN_PATH", "cudnnGetVersion",
                            CUDNN_VERSION, text, text_size))
        return false;
    size_t (*cuda_version)(void) = (size_t(*)(void))gpunn__module_symbol(module, "cudnnGetCudartVersion");
    if (cuda_version && cuda_version() / 1000 != CUDART_VERSION / 1000) {
        (void)snprintf(
            text, text_size,
            "%.200s is cuDNN for CUDA %d, but this program was built with CUDA %d; install cuDNN for that",
            module->path, (int)(cuda_version() / 1000), CUDART_VERSION / 1000);
        return false;
    }
    gpunn__nvrtc_open();
    /* all parts from the folder of the first one; libcudnn_adv is loaded with the first recurrent layer */
    gpunn__module_beside(module, "libcudnn_[!a]*.so.9");
    return true;
}
#endif
#endif

/* ---- opening the libraries ----------------------------------------------------------------------------- */

#ifndef GPUNN__EMULATOR

/* Each function resolves a library's functions and returns the name of the first missing one; NULL: none. */
#define GPUNN__X(function)                                                                        \
    libraries->function = (decltype(libraries->function))gpunn__module_symbol(module, #function); \
    if (libraries->function == NULL) return #function;
static const char *gpunn__lt_bind(gpunn__libraries *libraries, const gpunn__module *module)
{
    GPUNN__LT_FUNCTIONS(GPUNN__X)
    return NULL;
}

#if GPUNN__CUDNN
static const char *gpunn__dnn_bind(gpunn__libraries *libraries, const gpunn__module *module)
{
    GPUNN__DNN_FUNCTIONS(GPUNN__X)
    return NULL;
}
#endif
#undef GPUNN__X

GPUNN__INTERNAL gpunn_status gpunn__libraries_open(gpunn__cuda *cuda)
{
    gpunn__libraries *libraries = cuda->libraries = (gpunn__libraries *)gpunn__host_alloc(cuda,
                                                                                          sizeof *libraries);
    char              text[sizeof cuda->text];
    if (libraries == NULL) return GPUNN_ERR_MEMORY;
    if (!gpunn__lt_find(&libraries->lt_module, text, sizeof text))
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "%s", text);
    const char *missing = gpunn__lt_bind(libraries, &libraries->lt_module);
    if (missing)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "%s lacks %s; install the cuBLAS of CUDA 12 or later",
                                libraries->lt_module.path, missing);
    cublasStatus_t status = libraries->cublasLtCreate(&libraries->lt);
    if (status != CUBLAS_STATUS_SUCCESS)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "cublasLtCreate: %s",
                                libraries->cublasLtGetStatusString(status));
    libraries->lt_workspace_bytes = cuda->capability >= 90 ? (size_t)32 << 20 : (size_t)4 << 20;
    libraries->lt_workspace = gpunn__cuda_alloc(cuda, libraries->lt_workspace_bytes);
    return libraries->lt_workspace ? GPUNN_OK : GPUNN_ERR_MEMORY;
}

#if GPUNN__CUDNN
static gpunn_status gpunn__dnn_open(gpunn__cuda *cuda)
{
    gpunn__libraries *libraries = cuda->libraries;
    char              text[sizeof cuda->text];
    if (!gpunn__dnn_find(&libraries->dnn_module, text, sizeof text))
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "%s", text);
    const char *missing = gpunn__dnn_bind(libraries, &libraries->dnn_module);
    if (missing)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "%s lacks %s; install a later cuDNN %d",
                                libraries->dnn_module.path, missing, CUDNN_MAJOR);
    cudnnStatus_t status = libraries->cudnnCreate(&libraries->dnn);
    if (status == CUDNN_STATUS_SUCCESS) status = libraries->cudnnSetStream(libraries->dnn, cuda->stream);
    if (status == CUDNN_STATUS_SUCCESS) return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "cudnnCreate of %s failed: %s",
                            libraries->dnn_module.path, libraries->cudnnGetErrorString(status));
}
#else
static gpunn_status gpunn__dnn_open(gpunn__cuda *cuda)
{
    return gpunn__cuda_fail(
        cuda, GPUNN_ERR_UNSUPPORTED,
        "this program was built without cuDNN; put the folder of cuDNN 9's cudnn.h on the include path (-I)");
}
#endif

GPUNN__INTERNAL gpunn_status gpunn__libraries_dnn(gpunn__cuda *cuda)
{
    gpunn__libraries *libraries = cuda->libraries;
    if (!libraries->dnn_sought) {
        libraries->dnn_sought = true;
        libraries->dnn_status = gpunn__dnn_open(cuda);
        if (libraries->dnn_status != GPUNN_OK) {
            char text[sizeof cuda->text + 96];
            (void)snprintf(text, sizeof text,
                           "convolutions, attention and recurrent layers use slower kernels: %s", cuda->text);
            gpunn__cuda_log(cuda, GPUNN_LOG_WARNING, text);
        }
    }
    return libraries->dnn_status;
}

GPUNN__INTERNAL gpunn_status gpunn__libraries_stream(gpunn__cuda *cuda)
{
#if GPUNN__CUDNN
    gpunn__libraries *libraries = cuda->libraries;
    if (libraries->dnn && libraries->cudnnSetStream(libraries->dnn, cuda->stream) != CUDNN_STATUS_SUCCESS)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "cudnnSetStream failed");
#endif
    (void)cuda;
    return GPUNN_OK;
}

GPUNN__INTERNAL void gpunn__libraries_close(gpunn__cuda *cuda)
{
    gpunn__libraries *libraries = cuda->libraries;
    if (libraries == NULL) return;
    const bool is_ours = !gpunn__cuda_is_forked(cuda);
#if GPUNN__CUDNN
    if (libraries->dnn && is_ours) (void)libraries->cudnnDestroy(libraries->dnn);
#endif
    if (libraries->lt && is_ours) (void)libraries->cublasLtDestroy(libraries->lt);
    if (libraries->lt_workspace)
        gpunn__cuda_free(cuda, libraries->lt_workspace, libraries->lt_workspace_bytes);
    gpunn__host_free(cuda, libraries, sizeof *libraries);
    cuda->libraries = NULL;
}

GPUNN__INTERNAL void gpunn__libraries_report(void (*write)(void *user, const char *text), void *user)
{
    char          text[640], line[768], has[32], built[32];
    gpunn__module module;
    memset(&module, 0, sizeof module);
    if (gpunn__lt_find(&module, text, sizeof text))
        (void)snprintf(line, sizeof line, "cuBLASLt      %s (built with %s), %s\n",
                       gpunn__version_text(module.version, has), gpunn__version_text(CUBLAS_VERSION, built),
                       module.path);
    else
        (void)snprintf(line, sizeof line, "cuBLASLt      %s\n", text);
    write(user, line);
#if GPUNN__CUDNN
    if (gpunn__dnn_find(&module, text, sizeof text))
        (void)snprintf(line, sizeof line, "cuDNN         %s (built with %s), %s\n",
                       gpunn__version_text(module.version, has), gpunn__version_text(CUDNN_VERSION, built),
                       module.path);
    else
        (void)snprintf(line, sizeof line, "cuDNN         %s; convolutions are computed as matrix products\n",
                       text);
#else
    (void)snprintf(line, sizeof line,
                   "cuDNN         not built in: no cudnn.h of cuDNN 9 was on the include path; convolutions "
                   "are computed as matrix products\n");
#endif
    write(user, line);
}
#endif

/* ==== >>base/ranks ======================================================================================= *
 * NCCL is opened when the first group needs it. The few functions used are declared here, so NCCL's header is
 * not needed (tests/compile/nccl.cpp compares them with it). The communicator is nonblocking, so waiting for
 * other ranks can time out. */
typedef struct gpunn__nccl_id {
    char bytes[GPUNN_RANKS_ID];
} gpunn__nccl_id;
/* the layout of version 2.14, as `version` says; later versions append members */
typedef struct gpunn__nccl_config {
    size_t   size;
    unsigned magic, version;
    int      blocking;
} gpunn__nccl_config;

/* clang-format off */
#define GPUNN__NCCL_FUNCTIONS(X)                                                                          \
    X(int, ncclGetVersion, (int *version))                                                                \
    X(int, ncclGetUniqueId, (gpunn__nccl_id *id))                                                         \
    X(int, ncclCommInitRankConfig, (void **comm, int size, gpunn__nccl_id id, int rank,                   \
      gpunn__nccl_config *config))                                                                        \
    X(int, ncclCommGetAsyncError, (void *comm, int *state))                                               \
    X(int, ncclCommAbort, (void *comm))                                                                   \
    X(int, ncclCommFinalize, (void *comm))                                                                \
    X(int, ncclCommDestroy, (void *comm))                                                                 \
    X(const char *, ncclGetErrorString, (int result))                                                     \
    X(int, ncclGroupStart, (void))                                                                        \
    X(int, ncclGroupEnd, (void))                                                                          \
    X(int, ncclAllReduce, (const void *from, void *to, size_t count, int type, int operation, void *comm, \
      cudaStream_t stream))                                                                               \
    X(int, ncclReduce,                                                                                    \
      (const void *from, void *to, size_t count, int type, int operation, int root, void *comm,           \
      cudaStream_t stream))                                                                               \
    X(int, ncclAllGather, (const void *from, void *to, size_t count, int type, void *comm,                \
      cudaStream_t stream))                                                                               \
    X(int, ncclBroadcast, (const void *from, void *to, size_t count, int type, int root, void *comm,      \
      cudaStream_t stream))
/* clang-format on */

struct gpunn__nccl {
    gpunn_status found;                                   /* result of the search */
    char         text[sizeof((gpunn__cuda *)NULL)->text]; /* why it was not found, or its version and path */
    void        *comm;                                    /* NULL: none, or aborted */
    double       timeout;
    int          rank, size;
    cudaStream_t stream; /* for all exchanges */
    cudaEvent_t  now, begun, done;
#define GPUNN__X(result, name, arguments) result(*name) arguments;
    GPUNN__NCCL_FUNCTIONS(GPUNN__X)
#undef GPUNN__X
};
/* Opens NCCL and resolves its functions. nccl->text receives its version and path, or, if it returns
 * false, the reason. */
GPUNN__INTERNAL bool gpunn__nccl_find(gpunn__nccl *nccl);

/* The functions gpunn__cuda_* of this part are entries of gpunn_backend, which >>backend in gpunn.h
 * describes. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_ranks_id(void *context, char id[GPUNN_RANKS_ID]);

GPUNN__INTERNAL void gpunn__cuda_ranks_leave(void *context, bool waits);

GPUNN__INTERNAL gpunn_status gpunn__cuda_ranks_join(void *context, const char id[GPUNN_RANKS_ID], int rank,
                                                    int size, double timeout);

/* Fails if count > 0 and there is no communicator any more. */
GPUNN__INTERNAL gpunn_status gpunn__ranks_there(gpunn__cuda *cuda, int count);

/* Makes cuda->stream wait for the exchanges that have begun. */
GPUNN__INTERNAL gpunn_status gpunn__exchanges_end(gpunn__cuda *cuda, int count);

/* All-gather: parts [ranks->size] of `count` floats each, of which this rank has its own. All ranks have all
 * parts when the stream continues. */
GPUNN__INTERNAL gpunn_status gpunn__ranks_gather(gpunn__cuda *cuda, const gpunn_ranks *ranks, float *parts,
                                                 int64_t count);

/* The same through host memory, where the ranks' parts are doubles. Used if ranks on CPUs take part. */
GPUNN__INTERNAL gpunn_status gpunn__ranks_gather_host(gpunn__cuda *cuda, const gpunn_ranks *ranks,
                                                      float *parts, int64_t count);

/* Begins the exchanges of the run that are complete after `steps` steps, starting with the first that has not
 * begun. */
GPUNN__INTERNAL gpunn_status gpunn__exchanges_after(gpunn__cuda *cuda, const gpunn_run *run, int steps,
                                                    int *begun);

GPUNN__INTERNAL gpunn_status gpunn__cuda_exchange(void *context, const gpunn_exchange *exchanges, int count);

enum {
    GPUNN__NCCL_IN_PROGRESS = 7,
    GPUNN__NCCL_FLOAT = 7,
    GPUNN__NCCL_BFLOAT16 = 9,
    GPUNN__NCCL_SUM = 0,
    GPUNN__NCCL_AVERAGE = 4
};
#define GPUNN__NCCL_CONFIG                               \
    {                                                    \
        sizeof(gpunn__nccl_config), 0xcafebeef, 21400, 0 \
    }

/* ---- opening NCCL -------------------------------------------------------------------------------------- */

#ifdef GPUNN__EMULATOR /* tests/emulator/nccl.cpp */

#define GPUNN__X(result, name, arguments) extern "C" result name arguments;
GPUNN__NCCL_FUNCTIONS(GPUNN__X)
#undef GPUNN__X

GPUNN__INTERNAL bool gpunn__nccl_find(gpunn__nccl *nccl)
{
#define GPUNN__X(result, name, arguments) nccl->name = ::name;
    GPUNN__NCCL_FUNCTIONS(GPUNN__X)
#undef GPUNN__X
    (void)snprintf(nccl->text, sizeof nccl->text, "NCCL is turned off in the emulator");
    return emulator_nccl() != 0;
}
#else
#define GPUNN__NCCL_FILE "libnccl.so.2" /* NCCL does not exist for Windows */
GPUNN__INTERNAL bool gpunn__nccl_find(gpunn__nccl *nccl)
{
    gpunn__module module;
    const char   *missing = NULL;
    int           version = 0;
    memset(&module, 0, sizeof module);
    if (!gpunn__module_find(&module, GPUNN__NCCL_FILE, "GPUNN_NCCL_PATH")) {
        if (module.failure[0])
            (void)snprintf(nccl->text, sizeof nccl->text, "NCCL does not load: %s; reinstall it",
                           module.failure);
        else
            (void)snprintf(nccl->text, sizeof nccl->text,
                           "NCCL is missing: " GPUNN__NCCL_FILE " was not found in " GPUNN__PLACES
                           "; install it, or set GPUNN_NCCL_PATH to its folder",
                           "GPUNN_NCCL_PATH");
        return false;
    }
#define GPUNN__X(result, name, arguments)                                    \
    nccl->name = (decltype(nccl->name))gpunn__module_symbol(&module, #name); \
    if (nccl->name == NULL && missing == NULL) missing = #name;
    GPUNN__NCCL_FUNCTIONS(GPUNN__X)
#undef GPUNN__X
    gpunn__module_locate(&module, "ncclGetVersion");
    if (missing == NULL) (void)nccl->ncclGetVersion(&version);
    if (missing)
        (void)snprintf(nccl->text, sizeof nccl->text, "%.200s lacks %s; install NCCL 2.14 or later",
                       module.path, missing);
    else
        (void)snprintf(nccl->text, sizeof nccl->text, "%d.%d.%d, %.200s", version / 10000,
                       version / 100 % 100, version % 100, module.path);
    return missing == NULL;
}
#endif

/* Each rank decides by itself whether a run is captured: its memory may have moved, or its capture may have
 * failed. For captured calls, NCCL registers the buffers, for which all ranks of a node synchronize on the
 * host (ncclNvlsGraphRegisterBuffer). It also gives these calls other channels. Without registration,
 * captured and uncaptured calls match. Memory of our pool has no handle that NVLink's registration accepts
 * anyway. */
static void gpunn__nccl_uniform(void)
{
#ifndef _WIN32
    (void)setenv("NCCL_GRAPH_REGISTER", "0", 0);
#endif
}

/* Opens NCCL on the first call; later calls return the first one's result. */
static gpunn_status gpunn__nccl_open(gpunn__cuda *cuda)
{
    if (cuda->nccl == NULL) {
        cuda->nccl = (gpunn__nccl *)gpunn__host_alloc(cuda, sizeof *cuda->nccl);
        if (cuda->nccl == NULL) return GPUNN_ERR_MEMORY;
        gpunn__nccl_uniform();
        cuda->nccl->found = gpunn__nccl_find(cuda->nccl) ? GPUNN_OK : GPUNN_ERR_UNSUPPORTED;
    }
    return cuda->nccl->found == GPUNN_OK ? GPUNN_OK
                                         : gpunn__cuda_fail(cuda, cuda->nccl->found, "%s", cuda->nccl->text);
}

/* ---- waiting ------------------------------------------------------------------------------------------- */

typedef std::chrono::steady_clock::time_point gpunn__instant;

static double gpunn__seconds_since(gpunn__instant began)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/* Aborts the communicator, which ends its kernels. ncclCommAbort returns only when no graph holds an exchange
 * any more, neither one of ours nor one that the program has captured. So it is called by a detached
 * thread. */
static void gpunn__nccl_abort(gpunn__cuda *cuda)
{
    const auto give_up = [end = cuda->nccl->ncclCommAbort, comm = cuda->nccl->comm, device = cuda->device] {
        (void)cudaSetDevice(device);
        (void)end(comm);
    };
    cuda->nccl->comm = NULL;
    try {
        std::thread(give_up).detach();
    } catch (const std::system_error &) { /* no more threads available */
        give_up();
    }
}

/* result: NCCL's error, or GPUNN__NCCL_IN_PROGRESS after a timeout. */
static gpunn_status gpunn__nccl_fail(gpunn__cuda *cuda, const char *what, int result)
{
    gpunn__nccl *nccl = cuda->nccl;
    if (nccl->comm) gpunn__nccl_abort(cuda);
    if (result == GPUNN__NCCL_IN_PROGRESS)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "%s: a rank has not arrived within %g seconds: look for one that has ended, "
                                "or whose GPU or network hangs",
                                what, nccl->timeout);
    return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                            "%s: NCCL reports %s; set NCCL_DEBUG=WARN in the environment for details", what,
                            nccl->ncclGetErrorString(result));
}

/* Waits until NCCL has finished the host's part of a call that returned `result`. */
static gpunn_status gpunn__nccl_done(gpunn__cuda *cuda, const char *what, int result)
{
    gpunn__nccl         *nccl = cuda->nccl;
    const gpunn__instant began = std::chrono::steady_clock::now();
    while (result == GPUNN__NCCL_IN_PROGRESS && gpunn__seconds_since(began) <= nccl->timeout) {
        const int asked = nccl->ncclCommGetAsyncError(nccl->comm, &result);
        if (asked != 0) result = asked;
        std::this_thread::yield();
    }
    return result == 0 ? GPUNN_OK : gpunn__nccl_fail(cuda, what, result);
}

GPUNN__INTERNAL gpunn_status gpunn__event_wait(gpunn__cuda *cuda, cudaEvent_t event)
{
    gpunn__nccl         *nccl = cuda->nccl;
    const gpunn__instant began = std::chrono::steady_clock::now();
    cudaError_t          error;
    if (nccl == NULL || nccl->comm == NULL)
        return gpunn__cuda_check(cuda, cudaEventSynchronize(event), "cudaEventSynchronize");
    while ((error = cudaEventQuery(event)) == cudaErrorNotReady) {
        int result = 0;
        gpunn__cuda_clear();
        (void)nccl->ncclCommGetAsyncError(nccl->comm, &result);
        if (result == 0 && gpunn__seconds_since(began) > nccl->timeout) result = GPUNN__NCCL_IN_PROGRESS;
        if (result != 0) return gpunn__nccl_fail(cuda, "waiting for the GPU", result);
        std::this_thread::yield();
    }
    return gpunn__cuda_check(cuda, error, "cudaEventQuery");
}

GPUNN__INTERNAL gpunn_status gpunn__stream_wait(gpunn__cuda *cuda)
{
    gpunn__nccl *nccl = cuda->nccl;
    if (nccl && nccl->comm) {
        GPUNN__CUDA(cuda, cudaEventRecord(nccl->now, cuda->stream));
        GPUNN__TRY(gpunn__event_wait(cuda, nccl->now));
    }
    return gpunn__cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "cudaStreamSynchronize");
}

/* ---- functions of the backend -------------------------------------------------------------------------- */

GPUNN__INTERNAL gpunn_status gpunn__cuda_ranks_id(void *context, char id[GPUNN_RANKS_ID])
{
    gpunn__cuda   *cuda = (gpunn__cuda *)context;
    gpunn__nccl_id unique;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__nccl_open(cuda));
    if (cuda->nccl->comm)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "the device already belongs to another NCCL group");
    if (id == NULL) return GPUNN_OK;
    const int result = cuda->nccl->ncclGetUniqueId(&unique);
    memcpy(id, unique.bytes, sizeof unique.bytes);
    return result == 0 ? GPUNN_OK : gpunn__nccl_fail(cuda, "ncclGetUniqueId", result);
}

GPUNN__INTERNAL void gpunn__cuda_ranks_leave(void *context, bool waits)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    gpunn__nccl         *nccl = cuda->nccl;
    const gpunn__current current(cuda->context);
    if (current.is_forked) return;
    if (waits && nccl->comm && gpunn__stream_wait(cuda) == GPUNN_OK &&
        gpunn__nccl_done(cuda, "leaving the ranks", nccl->ncclCommFinalize(nccl->comm)) == GPUNN_OK)
        (void)nccl->ncclCommDestroy(nccl->comm);
    else if (nccl->comm)
        gpunn__nccl_abort(cuda);
    nccl->comm = NULL;
    for (cudaEvent_t *event : {&nccl->now, &nccl->begun, &nccl->done}) {
        if (*event) (void)cudaEventDestroy(*event);
        *event = NULL;
    }
    if (nccl->stream) (void)cudaStreamDestroy(nccl->stream);
    nccl->stream = NULL;
}

static gpunn_status gpunn__ranks_begin(gpunn__cuda *cuda, const char id[GPUNN_RANKS_ID])
{
    gpunn__nccl       *nccl = cuda->nccl;
    gpunn__nccl_config config = GPUNN__NCCL_CONFIG;
    gpunn__nccl_id     name;
    memcpy(name.bytes, id, sizeof name.bytes);
    for (cudaEvent_t *event : {&nccl->now, &nccl->begun, &nccl->done})
        GPUNN__CUDA(cuda, cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    GPUNN__CUDA(cuda, cudaStreamCreateWithFlags(&nccl->stream, cudaStreamNonBlocking));
    const int result = nccl->ncclCommInitRankConfig(&nccl->comm, nccl->size, name, nccl->rank, &config);
    return gpunn__nccl_done(cuda, "joining the ranks", result);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_ranks_join(void *context, const char id[GPUNN_RANKS_ID], int rank,
                                                    int size, double timeout)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    cuda->nccl->timeout = timeout;
    cuda->nccl->rank = rank;
    cuda->nccl->size = size;
    const gpunn_status status = gpunn__ranks_begin(cuda, id);
    if (status != GPUNN_OK) gpunn__cuda_ranks_leave(context, false);
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__ranks_there(gpunn__cuda *cuda, int count)
{
    if (count == 0 || cuda->nccl->comm) return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                            "NCCL has failed before; restart from the last checkpoint");
}

/* Starts one exchange of `count` values of that type: the exchange's own values, or BF16 copies of them. */
static int gpunn__exchange_one(gpunn__nccl *nccl, const gpunn_exchange *exchange, void *values, size_t count,
                               int type, int operation)
{
    if (exchange->collects)
        return nccl->ncclReduce(values, values, count, type, operation, exchange->root, nccl->comm,
                                nccl->stream);
    if (exchange->root == GPUNN_MEAN)
        return nccl->ncclAllReduce(values, values, count, type, operation, nccl->comm, nccl->stream);
    return nccl->ncclBroadcast(values, values, count, type, exchange->root, nccl->comm, nccl->stream);
}

/* Exchanges values as BF16, in pieces. Each piece is rounded, exchanged, and, where the result is needed,
 * divided by the number of ranks. Meanwhile cuda->stream is the stream of the exchanges. */
static gpunn_status gpunn__exchange_bf16(gpunn__cuda *cuda, const gpunn_exchange *exchange)
{
    gpunn__nccl *nccl = cuda->nccl;
    const bool   hears = !exchange->collects || exchange->root == nccl->rank;
    for (int64_t at = 0, n; at < exchange->count; at += n) {
        float *const values = exchange->values + at;
        n = exchange->count - at < exchange->bf16_count ? exchange->count - at : exchange->bf16_count;
        GPUNN__TRY(gpunn__cuda_copy(cuda, exchange->bf16, GPUNN_BF16, values, GPUNN_F32, n, false));
        const int result = gpunn__exchange_one(nccl, exchange, exchange->bf16, (size_t)n,
                                               GPUNN__NCCL_BFLOAT16, GPUNN__NCCL_SUM);
        GPUNN__TRY(gpunn__nccl_done(cuda, "exchanging gradients", result));
        if (!hears) continue;
        GPUNN__TRY(gpunn__cuda_copy(cuda, values, GPUNN_F32, exchange->bf16, GPUNN_BF16, n, false));
        GPUNN__TRY(gpunn__cuda_scale(cuda, values, n, 1 / (float)nccl->size, 0));
    }
    return GPUNN_OK;
}

/* Begins exchanges on their own stream. They overlap what cuda->stream does from now on. */
static gpunn_status gpunn__exchanges_begin(gpunn__cuda *cuda, const gpunn_exchange *exchanges, int count)
{
    gpunn__nccl *nccl = cuda->nccl;
    if (count == 0) return GPUNN_OK;
    GPUNN__TRY(gpunn__ranks_there(cuda, count));
    GPUNN__CUDA(cuda, cudaEventRecord(nccl->begun, cuda->stream));
    GPUNN__CUDA(cuda, cudaStreamWaitEvent(nccl->stream, nccl->begun, 0));
    int result = nccl->ncclGroupStart(), narrow = 0;
    for (int i = 0; i < count && (result == 0 || result == GPUNN__NCCL_IN_PROGRESS); i++) {
        narrow += exchanges[i].bf16 != NULL;
        if (exchanges[i].bf16) continue;
        result = gpunn__exchange_one(nccl, &exchanges[i], exchanges[i].values, (size_t)exchanges[i].count,
                                     GPUNN__NCCL_FLOAT, GPUNN__NCCL_AVERAGE);
    }
    const int ended = nccl->ncclGroupEnd();
    GPUNN__TRY(gpunn__nccl_done(cuda, "exchanging gradients",
                                result == 0 || result == GPUNN__NCCL_IN_PROGRESS ? ended : result));
    const cudaStream_t stream = cuda->stream;
    gpunn_status       status = GPUNN_OK;
    cuda->stream = nccl->stream;
    for (int i = 0; i < count && narrow > 0 && status == GPUNN_OK; i++)
        if (exchanges[i].bf16) status = gpunn__exchange_bf16(cuda, &exchanges[i]);
    cuda->stream = stream;
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__exchanges_end(gpunn__cuda *cuda, int count)
{
    if (count == 0) return GPUNN_OK;
    GPUNN__CUDA(cuda, cudaEventRecord(cuda->nccl->done, cuda->nccl->stream));
    return gpunn__cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, cuda->nccl->done, 0),
                             "cudaStreamWaitEvent");
}

GPUNN__INTERNAL gpunn_status gpunn__ranks_gather(gpunn__cuda *cuda, const gpunn_ranks *ranks, float *parts,
                                                 int64_t count)
{
    gpunn__nccl *nccl = cuda->nccl;
    GPUNN__TRY(gpunn__ranks_there(cuda, 1));
    GPUNN__CUDA(cuda, cudaEventRecord(nccl->begun, cuda->stream));
    GPUNN__CUDA(cuda, cudaStreamWaitEvent(nccl->stream, nccl->begun, 0));
    const int result = nccl->ncclAllGather(parts + ranks->rank * count, parts, (size_t)count,
                                           GPUNN__NCCL_FLOAT, nccl->comm, nccl->stream);
    GPUNN__TRY(gpunn__nccl_done(cuda, "exchanging sums", result));
    return gpunn__exchanges_end(cuda, 1);
}

GPUNN__INTERNAL gpunn_status gpunn__ranks_gather_host(gpunn__cuda *cuda, const gpunn_ranks *ranks,
                                                      float *parts, int64_t count)
{
    const int64_t own = ranks->rank * count, all = ranks->size * count;
    const size_t  each = (size_t)count * sizeof(double),
                 bytes = (size_t)all * (sizeof(double) + sizeof(float));
    GPUNN__TRY(gpunn__outside_capture(cuda, "exchange between ranks through host memory"));
    double *host = (double *)gpunn__host_alloc(cuda, bytes);
    if (host == NULL) return GPUNN_ERR_MEMORY;
    float       *narrow = (float *)(host + all);
    gpunn_status status = gpunn__cuda_download(cuda, narrow, parts + own, (size_t)count * sizeof *parts);
    const bool   there = status == GPUNN_OK;
    for (int64_t i = 0; i < count && there; i++) host[own + i] = (double)narrow[i];
    if (there) status = ranks->gather(ranks->user, host, each);
    if (there && status != GPUNN_OK)
        status = gpunn__cuda_fail(cuda, status, "the exchange between the ranks failed");
    for (int64_t i = 0; i < all && status == GPUNN_OK; i++) narrow[i] = (float)host[i];
    if (status == GPUNN_OK) status = gpunn__cuda_upload(cuda, parts, narrow, (size_t)all * sizeof *parts);
    gpunn__host_free(cuda, host, bytes);
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__exchanges_after(gpunn__cuda *cuda, const gpunn_run *run, int steps,
                                                    int *begun)
{
    int end = *begun;
    while (end < run->exchange_count && run->exchanges[end].after <= steps) end++;
    GPUNN__TRY(gpunn__exchanges_begin(cuda, run->exchanges + *begun, end - *begun));
    *begun = end;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_exchange(void *context, const gpunn_exchange *exchanges, int count)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__exchanges_begin(cuda, exchanges, count));
    return gpunn__exchanges_end(cuda, count);
}

/* ==== >>base/shared ===================================================================================== */
/* Interfaces that one part offers to the ops of others: matrix products, cuDNN, sums and the steps'
 * epilogue. */

/* Marks a range, from here to the end of the block, in NVIDIA's profilers. Its name consists of layer and
 * op. */
struct gpunn__range {
#if defined(GPUNN__NVTX)
    explicit gpunn__range(const gpunn_step *step)
    {
        char text[160];
        (void)snprintf(text, sizeof text, "%.100s%s%s%s", step->name, *step->name ? " " : "",
                       gpunn_op_name(step->op), step->backward ? " backward" : "");
        (void)nvtxRangePushA(text);
    }
    explicit gpunn__range(const char *what)
    {
        (void)nvtxRangePushA(what);
    }
    ~gpunn__range()
    {
        (void)nvtxRangePop();
    }
#else
    template <typename T> explicit gpunn__range(T)
    {
    }
#endif
};

/* Row-major d[batch][m][n] = act(op(a)[m][k] op(b)[k][n] + bias[n] + residual), accumulated in F32. */
typedef enum gpunn__activation {
    GPUNN__NO_ACTIVATION = 0,
    GPUNN__RELU,
    GPUNN__GELU_TANH,
    GPUNN__GELU_TANH_DERIVATIVE, /* d = op(a) op(b) * act'(aux) */
    GPUNN__RELU_DERIVATIVE
} gpunn__activation;
typedef struct gpunn__product {
    int64_t m, n, k, batch;
    bool    transpose_a, transpose_b; /* a is stored [k][m]; b is stored [n][k] */
    /* elements between stored rows; residual has the stride of d */
    int64_t lda, ldb, ldd;
    /* elements between products of the batch; 0: shared by all */
    int64_t stride_a, stride_b, stride_d;
    /* of a and b; of d, residual and aux. U8: bytes with a sign, and d is I32; b is transposed, and nothing
     * is fused */
    gpunn_dtype dtype, d_dtype;
    /* F32: exact products; TF32: rounds the operands if dtype is F32 */
    gpunn_precision   precision;
    bool              accumulate; /* d += */
    gpunn__activation activation;
    bool              keep_nan; /* relu must propagate NaN, which the library does not guarantee */
    const void       *a, *b;
    void             *d;
    const void       *bias; /* F32 or d_dtype (bias_dtype); NULL: none */
    gpunn_dtype       bias_dtype;
    const void       *residual; /* NULL: none; never together with accumulate */
    /* layout of d, batch 1. GELU_TANH: receives its argument, if non-NULL. GELU_TANH_DERIVATIVE: that
     * argument. RELU_DERIVATIVE: relu's result. */
    void *aux;
    /* [m], with batch 1 and transpose_a: op(a) summed over k; NULL: not needed; never with bias */
    float *row_sums;
    void  *workspace; /* only with row_sums: what gpunn__cuda_channel_sums needs for [k][m] */
} gpunn__product;
/* The interface to cuBLASLt. prepare checks whether there is an algorithm; it only compares pointers with
 * NULL. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_product_prepare(gpunn__cuda *cuda, const gpunn__product *p);
GPUNN__INTERNAL gpunn_status gpunn__cuda_product(gpunn__cuda *cuda, const gpunn__product *p);

/* Rows of a weight that is stored as blocks. A row out of range is NaN. */
typedef struct gpunn__block_rows {
    const void *blocks, *index; /* index: [count]; NULL: rows 0 .. count - 1 */
    gpunn_dtype index_type, to_type;
    void       *to;              /* [count][width] */
    int64_t     count, n, width; /* n: rows of the weight */
} gpunn__block_rows;
GPUNN__INTERNAL gpunn_status gpunn__cuda_block_rows(gpunn__cuda *cuda, gpunn_dtype format,
                                                    const gpunn__block_rows *r);
/* The first count numbers of blocks. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_block_values(gpunn__cuda *cuda, void *to, gpunn_dtype to_dtype,
                                                      const void *blocks, gpunn_dtype format, int64_t count);
/* The forward step of LINEAR with a weight that is stored as blocks. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_block_linear(gpunn__cuda *cuda, gpunn_step *step,
                                                      gpunn__action action);

/* The interface to cuDNN. All tensors are contiguous and of one dtype, including bias and residual. Shapes
 * are x [n][c][d][h][w], y [n][k][o][p][q] and filters [k][c / groups][kd][kh][kw]. With channels_last they
 * are [n][d][h][w][c], [n][o][p][q][k] and [k][kd][kh][kw][c / groups]. */
enum { GPUNN__CONV_TAG = 0x636F6E76 };
typedef enum gpunn__conv_kind { GPUNN__CONV_FORWARD, GPUNN__CONV_DATA, GPUNN__CONV_FILTER } gpunn__conv_kind;
/* all fields must be set and there is no padding: the key of the plan in the cache */
typedef struct gpunn__convolution {
    int64_t tag;           /* identifies this use of the cache: GPUNN__CONV_TAG */
    int64_t kind;          /* gpunn__conv_kind */
    int64_t dtype;         /* gpunn_dtype of x, w, y */
    int64_t precision;     /* gpunn_precision */
    int64_t axes;          /* 3, or 2: d, and with a single axis also h, has size 1 */
    int64_t n, c, d, h, w; /* x */
    int64_t k, kd, kh, kw; /* filters */
    int64_t o, p, q;       /* y along d, h and w */
    int64_t stride[3], padding[3], dilation[3];
    int64_t groups;
    int64_t bias, residual, relu; /* 0 or 1, forward only: y = relu(conv + residual + bias[k]) */
    int64_t channels_last;        /* 0 or 1 */
} gpunn__convolution;
/* FORWARD: x, w -> y. DATA: w, y -> x. FILTER: x, y -> w. Results are overwritten, never accumulated. */
typedef struct gpunn__conv_data {
    void       *x, *w, *y;
    const void *bias, *residual;
    void       *workspace;
} gpunn__conv_data;

/* cuDNN's fused attention, for 16-bit values with contiguous rows. Strides are in elements: between samples,
 * heads and rows. A mask that is added to the scores is an F32 matrix with s columns. bias holds its number
 * of samples, heads and rows (1: shared by all) and its row stride; 0: no mask. */
enum { GPUNN__ATTENTION_TAG = 0x61747465 };
typedef struct gpunn__dnn_attention { /* all fields must be set and there is no padding: a key of the cache */
    int64_t tag, backward, dtype, n, heads, kv_heads, l, s, e, ev, causal;
    int64_t padded; /* actual numbers of rows and keys are passed, although all samples have l and s */
    /* backward: sums dq in F32 in memory, in no fixed order, rather than keeping l x s matrices */
    int64_t adds;
    int64_t bias[4];
    /* strides of gradients are 0 in a forward pass */
    int64_t q[3], k[3], v[3], y[3], dy[3], dq[3], dk[3], dv[3];
} gpunn__dnn_attention;
/* Forward: q, k, v -> y, lse (F32 [n, heads, l]). Backward: all these and dy -> dq, dk, dv. Results are
 * overwritten. */
typedef struct gpunn__dnn_attention_data {
    void  *q, *k, *v, *y, *lse, *dy, *dq, *dk, *dv;
    void  *sums;    /* backward: buffer of lse's size */
    void  *dq_sums; /* with adds: buffer for F32 [n, heads, l, e] */
    float *bias;
    int   *lengths; /* [2][n]: rows, keys */
    float  scale;
    void  *workspace;
} gpunn__dnn_attention_data;
/* Like gpunn__dnn_prepare and gpunn__dnn_run. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_prepare(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                          size_t *workspace_bytes);
GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_run(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                      const gpunn__dnn_attention_data *data);

/* cuDNN's rnn, lstm and gru: one layer, sequences of equal length, in F32. */
enum { GPUNN__RNN_TAG = 0x726E6E };
typedef struct gpunn__dnn_rnn { /* all fields must be set and there is no padding: a key of the cache */
    int64_t tag, op, relu, precision, training, length, batch, in, hidden, directions, bias;
} gpunn__dnn_rnn;
typedef struct gpunn__dnn_rnn_sizes {
    /* bytes; reserve: kept from the forward pass of training to the backward pass */
    size_t weights, workspace, reserve;
    /* offsets of weight_ih, weight_hh, bias_ih and bias_hh in the weights, per direction, in floats */
    int64_t part[2][4];
} gpunn__dnn_rnn_sizes;
/* Forward: x, h_0, c_0, weights -> y, h_n, c_n, reserve. Backward: these and dy, dh_n, dc_n -> dx, dh_0,
 * dc_0; dweights are accumulated. x [length, batch, in], y [length, batch, directions, hidden], states
 * [directions, batch, hidden]. NULL means a zero state or an output that is not needed; dx and reserve are
 * always needed. */
typedef struct gpunn__dnn_rnn_data {
    bool         backward;
    const float *x, *h_0, *c_0, *weights, *dy;
    float       *y, *h_n, *c_n, *dh_n, *dc_n, *dx, *dh_0, *dc_0, *dweights;
    void        *reserve, *workspace;
} gpunn__dnn_rnn_data;
/* Like gpunn__dnn_prepare and gpunn__dnn_run. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_prepare(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                    gpunn__dnn_rnn_sizes *sizes);
GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_run(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                const gpunn__dnn_rnn_data *data);

/* Whether cuDNN can be used. */
GPUNN__INTERNAL bool   gpunn__dnn_available(gpunn__cuda *cuda);
GPUNN__INTERNAL size_t gpunn__dnn_version(const gpunn__cuda *cuda); /* if available: 92400 is 9.24.0 */
/* Chooses the plan. workspace_bytes: receives the size that a run needs. GPUNN_ERR_UNSUPPORTED: there is no
 * plan; use another algorithm. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_prepare(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                                size_t *workspace_bytes);
GPUNN__INTERNAL gpunn_status gpunn__dnn_run(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                            const gpunn__conv_data *data);

/* cuBLASLt; the first op that needs cuDNN opens it */
GPUNN__INTERNAL gpunn_status gpunn__libraries_open(gpunn__cuda *cuda);
GPUNN__INTERNAL void         gpunn__libraries_close(gpunn__cuda *cuda);
GPUNN__INTERNAL void         gpunn__libraries_report(void (*write)(void *user, const char *text), void *user);

/* out[channels] (F32) = or += x[n][channels][inner] summed over n and inner. */
GPUNN__INTERNAL size_t       gpunn__cuda_channel_sums_workspace(const gpunn__cuda *cuda, int64_t n,
                                                                int64_t channels, int64_t inner);
GPUNN__INTERNAL gpunn_status gpunn__cuda_channel_sums(gpunn__cuda *cuda, const void *x, gpunn_dtype dtype,
                                                      int64_t n, int64_t channels, int64_t inner, float *out,
                                                      bool accumulate, void *workspace);
/* The gradient of a broadcast operand: to = or += from, summed over the axes along which `to` was broadcast
 * to from's shape. */
GPUNN__INTERNAL size_t       gpunn__cuda_sum_to_workspace(const gpunn__cuda *cuda, const gpunn_value *from,
                                                          const gpunn_value *to);
GPUNN__INTERNAL gpunn_status gpunn__cuda_sum_to(gpunn__cuda *cuda, const gpunn_value *from,
                                                const gpunn_value *to, bool accumulate, void *workspace);
/* all elementwise ops */
GPUNN__INTERNAL gpunn_status gpunn__cuda_map(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action);
/* Completes the forward step of LINEAR or a convolution in one pass, after the bare product was stored to y.
 * y (y_dtype) has the shape of step->out, with channels on axis 1, or on the last axis for LINEAR.
 * step->out.data = act(norm(y + bias) + residual). Each part is applied only if its flag is set; bias is
 * step->in[2], the others are in step->fused-> */
GPUNN__INTERNAL gpunn_status gpunn__cuda_finish(gpunn__cuda *cuda, const gpunn_step *step, const void *y,
                                                gpunn_dtype y_dtype, bool bias, bool norm, bool residual,
                                                bool relu);
/* checks of gradients by kernels beside the steps (>>cuda/optimizers) */
typedef struct gpunn__checks gpunn__checks;
/* What follows a run's steps: gradient norm, clipping, finite check, updates, loss scale (>>cuda/optimizers).
 * It only launches kernels. They read the values that vary from run to run from cuda->state: lr[i] and
 * update_step[i] for update i. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_updates(gpunn__cuda *cuda, const gpunn_run *run,
                                                 gpunn__checks *checks, int *begun);

/* ==== >>cuda/formulas ==================================================================================== *
 * Turns gpunn.h's tables of elementwise ops into structs of device functions. Macros give each word of the
 * tables' language its CUDA meaning. */
/* indices in from[], after the operands */
enum { GPUNN__FROM_RESULT = 3, GPUNN__FROM_GRADIENT, GPUNN__FROM_COUNT };

/* min and max as the tables define them, in F32: NaN propagates, which C's fminf and fmaxf do not do. */
__device__ __forceinline__ float gpunn__float_min(float a, float b)
{
    return a < b || a != a ? a : b;
}

__device__ __forceinline__ float gpunn__float_max(float a, float b)
{
    return a > b || a != a ? a : b;
}

__device__ __forceinline__ float gpunn__float_sign(float x)
{
    return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;
}

__device__ __forceinline__ float gpunn__float_sigmoid(float x)
{
    float e = expf(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1 + e);
}

/* Splits x into 2^n m with sqrt(1/2) <= m < sqrt(2). log10(2) is held in two parts, the first with 13 bits.
 * Powers of 10 give exact results, which log10f does not provide. */
__device__ __forceinline__ float gpunn__float_log10(float x)
{
    float normal = x < 1.17549435e-38f ? x * 8388608.0f : x;
    int   exponent = (int)(__float_as_uint(normal) - 0x3f3504f3u) >> 23;
    float m = __uint_as_float(__float_as_uint(normal) - ((unsigned)exponent << 23));
    float n = (float)exponent - (x < 1.17549435e-38f ? 23.0f : 0.0f);
    float y = fmaf(n, 0.301025391f, fmaf(n, 4.60503907e-6f, log10f(m)));
    return x > 0 && x < INFINITY ? y : x == 0 ? -INFINITY : x < 0 ? NAN : x;
}

/* sin(x + quadrants pi / 2). Unlike sinf's, the range reduction of large x needs no local memory.
 * x / (2 pi) is the product of x's 32-bit significand and 96 bits of 1 / (2 pi): those that yield less
 * than whole turns. */
static __device__ const unsigned gpunn__turns[8] = {0,           0x28BE60DBu, 0x9391054Au, 0x7F09D5F4u,
                                                    0x7D4D3770u, 0x36D8A566u, 0x4F10E410u, 0x7F9458EAu};
__device__ __forceinline__ float gpunn__float_sin(float x, int quadrants)
{
    float turned = rintf(x * 0.636619772f), r;
    if (fabsf(x) < 1e5f) { /* pi / 2 in three parts */
        r = fmaf(-turned, 1.57079601f, x);
        r = fmaf(-turned, 3.13916473e-7f, r);
        r = fmaf(-turned, 5.39030253e-15f, r);
        quadrants += (int)turned;
    } else if (fabsf(x) < INFINITY) {
        unsigned bits = __float_as_uint(x), exponent = (bits >> 23 & 0xFF) - 126, word = exponent / 32,
                 shift = exponent % 32;
        uint64_t significand = bits << 8 | 0x80000000u, part[3];
#pragma unroll
        for (unsigned k = 0; k < 3; k++)
            part[k] = ((uint64_t)gpunn__turns[word + k] << 32 | gpunn__turns[word + k + 1]) << shift >> 32;
        uint64_t turns = (significand * part[0] << 32) + significand * part[1] +
                         (significand * part[2] >> 32);
        int quadrant = (int)((turns + (1ull << 61)) >> 62);
        r = (float)(int64_t)(turns - ((uint64_t)quadrant << 62)) * 3.40612167e-19f; /* pi / 2 / 2^62 */
        r = x < 0 ? -r : r;
        quadrants += x < 0 ? -quadrant : quadrant;
    } else
        r = NAN;
    float s = r * r, sine = fmaf(fmaf(fmaf(fmaf(2.86567956e-6f, s, -1.98559923e-4f), s, 8.33338592e-3f), s,
                                      -1.66666672e-1f),
                                 r * s, r);
    float cosine = fmaf(fmaf(fmaf(fmaf(2.44677067e-5f, s, -1.38877297e-3f), s, 4.16666567e-2f), s, -0.5f), s,
                        1.0f);
    float y = quadrants & 1 ? cosine : sine;
    return quadrants & 2 ? -y : y;
}

constexpr bool gpunn__in_name(char letter)
{
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') || letter == '_';
}

/* Whether a formula of the tables mentions a one-letter name. */
constexpr bool gpunn__mentions(const char *text, char name)
{
    for (char before = ' '; *text; before = *text++)
        if (*text == name && !gpunn__in_name(before) && !gpunn__in_name(text[1])) return true;
    return false;
}

/* What the formulas of the derivatives contain. Each is a bit set of derivatives (bit i: of operand i),
 * unless noted. */
typedef struct gpunn__map_facts {
    unsigned present, passed;            /* present: not just 0; passed: just g */
    unsigned readers[GPUNN__FROM_COUNT]; /* the derivatives that mention from[k] */
    unsigned read;                       /* bit k: a derivative reads from[k] */
} gpunn__map_facts;

constexpr gpunn__map_facts gpunn__map_facts_of(int operands, const char *da, const char *db, const char *dc)
{
    gpunn__map_facts  facts = {};
    const char *const text[3] = {da, db, dc};
    const char        name[GPUNN__FROM_COUNT] = {operands == 1 ? 'x' : 'a', 'b', 'c', 'y', 'g'};
    for (int i = 0; i < 3; i++) {
        facts.present |= (unsigned)(text[i][0] != '0' || text[i][1] != 0) << i;
        facts.passed |= (unsigned)(text[i][0] == 'g' && text[i][1] == 0) << i;
        for (int k = 0; k < GPUNN__FROM_COUNT; k++)
            facts.readers[k] |= (unsigned)gpunn__mentions(text[i], name[k]) << i;
    }
    for (int k = 0; k < GPUNN__FROM_COUNT; k++) facts.read |= (unsigned)(facts.readers[k] != 0) << k;
    return facts;
}

/* The tables' language. Every op becomes a struct of functions that read from[] and attr[]. */
#define x from[0]
#define a from[0]
#define b from[1]
#define c from[2]
#define y from[GPUNN__FROM_RESULT]
#define g from[GPUNN__FROM_GRADIENT]
#define K(number) number##f
#define where(condition, yes, no) ((condition) != 0 ? (float)(yes) : (float)(no))
#define min(p, q) gpunn__float_min(p, q)
#define max(p, q) gpunn__float_max(p, q)
#define abs(p) fabsf(p)
#define sign(p) gpunn__float_sign(p)
#define floor(p) floorf(p)
#define exp(p) expf(p)
#define expm1(p) expm1f(p)
#define log(p) logf(p)
#define log1p(p) log1pf(p)
#define sqrt(p) sqrtf(p)
#define tanh(p) tanhf(p)
#define erf(p) erff(p)
#define sigmoid(p) gpunn__float_sigmoid(p)
#define sin(p) gpunn__float_sin(p, 0)
#define cos(p) gpunn__float_sin(p, 1)
#define pow(p, q) powf(p, q)
#define floordiv(p, q) gpunn__floordiv(p, q)
#define exp2(p) exp2f(p)
#define log2(p) log2f(p)
#define log10(p) gpunn__float_log10(p)
#define sinh(p) sinhf(p)
#define cosh(p) coshf(p)
#define atan2(p, q) atan2f(p, q)
#define hypot(p, q) hypotf(p, q)
#define fmod(p, q) fmodf(p, q)
#define remainder(p, q) gpunn__remainder(p, q)

#define GPUNN__CONSTANT(name, i) \
    const float name = attr[i];  \
    (void)name;
/* The derivatives are also passed as unexpanded strings, which gpunn__map_facts_of reads. */
#define GPUNN__MAP(name, operands, constants, f, da, db, dc, ...)                                       \
    struct gpunn__op_##name {                                                                           \
        static constexpr int                    OPERANDS = operands;                                    \
        static constexpr gpunn__map_facts       FACTS = gpunn__map_facts_of(operands, __VA_ARGS__);     \
        static constexpr unsigned               DERIVATIVES = FACTS.present, READ = FACTS.read;         \
        static __device__ __forceinline__ float forward(const float *from, const float *attr)           \
        {                                                                                               \
            constants(void) from, (void)attr;                                                           \
            return (float)(f);                                                                          \
        }                                                                                               \
        static __device__ __forceinline__ float derivative(int i, const float *from, const float *attr) \
        {                                                                                               \
            constants(void) from, (void)attr;                                                           \
            return i == 0 ? (float)(da) : i == 1 ? (float)(db) : (float)(dc);                           \
        }                                                                                               \
    };

#define GPUNN__X(ENUM, name, f, dx) GPUNN__MAP(name, 1, , f, dx, 0, 0, #dx, "0", "0")
GPUNN_UNARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, f, dx) \
    GPUNN__MAP(name, 1, GPUNN__CONSTANT(attr1, 0), f, dx, 0, 0, #dx, "0", "0")
GPUNN_UNARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, attr2, value2, f, dx) \
    GPUNN__MAP(name, 1, GPUNN__CONSTANT(attr1, 0) GPUNN__CONSTANT(attr2, 1), f, dx, 0, 0, #dx, "0", "0")
GPUNN_UNARY2_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, f, da, db) GPUNN__MAP(name, 2, , f, da, db, 0, #da, #db, "0")
GPUNN_BINARY_OPS(GPUNN__X)
GPUNN_LOSS_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, f, da, db) \
    GPUNN__MAP(name, 2, GPUNN__CONSTANT(attr1, 0), f, da, db, 0, #da, #db, "0")
GPUNN_LOSS1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, f, da, db, dc) GPUNN__MAP(name, 3, , f, da, db, dc, #da, #db, #dc)
GPUNN_TERNARY_OPS(GPUNN__X)
#undef GPUNN__X

#undef x
#undef a
#undef b
#undef c
#undef y
#undef g
#undef K
#undef where
#undef min
#undef max
#undef abs
#undef sign
#undef floor
#undef exp
#undef expm1
#undef log
#undef log1p
#undef sqrt
#undef tanh
#undef erf
#undef sigmoid
#undef sin
#undef cos
#undef pow
#undef floordiv
#undef exp2
#undef log2
#undef log10
#undef sinh
#undef cosh
#undef atan2
#undef hypot
#undef fmod
#undef remainder
#undef GPUNN__CONSTANT
#undef GPUNN__MAP

#define GPUNN__X(...) +1
/* elementwise ops are gpunn_op's first members */
enum { GPUNN__MAP_COUNT = 1 GPUNN__ELEMENTWISE_OPS(GPUNN__X) };
#undef GPUNN__X

/* ==== >>cuda/elementwise ================================================================================= *
 * Elementwise ops as kernels made from gpunn.h's tables, one forward and one backward kernel per op. A
 * thread computes packs of 8 elements. It does not load operands that the op's formulas do not mention.
 * Below them are ops that only move data. */
/* Which values the derivatives of an elementwise op read. */
GPUNN__INTERNAL const gpunn__map_facts *gpunn__map_facts_for(gpunn_op op);

/* Block number `block` of `blocks` copies its share: to = or += from. */
__device__ __forceinline__ void gpunn__copy_part(void *to, gpunn_dtype to_dtype, const void *from,
                                                 gpunn_dtype from_dtype, int64_t count, bool add,
                                                 unsigned block, unsigned blocks)
{
    const int apart = from_dtype == GPUNN_F32 || to_dtype == GPUNN_F32 ? GPUNN__APART : GPUNN__QUAD;
    int64_t   i = gpunn__pack_first(apart, block);
    for (; i < count; i += gpunn__packs_step(blocks)) {
        float v[8];
        gpunn__load_quads(from, from_dtype, i, apart, count, v);
        gpunn__store_quads(to, to_dtype, i, apart, count, add, v);
    }
}

/* Whether the dtype is F32, F16 or BF16. */
GPUNN__INTERNAL bool gpunn__is_float(gpunn_dtype dtype);

/* An operand addressed by the index i of a result element. i has the digits i % size[0],
 * i / size[0] % size[1], ...: one per dimension of the result, innermost first, with adjacent dimensions
 * merged. An operand of the result's shape and a scalar have one digit; common broadcasts have two or three.
 * A pack costs one division per digit but the last, in 32 bits where that suffices. */
typedef struct gpunn__operand {
    const void *data; /* NULL: absent */
    gpunn_dtype dtype;
    bool        is_broadcast;
    int         rank;
    int64_t     size[GPUNN_MAX_RANK], stride[GPUNN_MAX_RANK]; /* stride[0]: 1, or 0 where broadcast */
} gpunn__operand;

/* The index of the operand's value for element i. *left receives the number of elements from i on before the
 * first digit wraps. */
__device__ __forceinline__ int64_t gpunn__operand_place(const gpunn__operand &operand, int64_t i,
                                                        int64_t *left)
{
    uint64_t rest = (uint64_t)i;
    int64_t  place = 0;
#pragma unroll 1
    for (int d = 0; d < operand.rank; d++) {
        uint64_t size = (uint64_t)operand.size[d], next = d + 1 < operand.rank ? rest / size : 0;
        int64_t  digit = (int64_t)(rest - next * size);
        if (d == 0) *left = operand.size[0] - digit;
        place += digit * operand.stride[d];
        rest = next;
    }
    return place;
}

/* Loads the pack of a broadcast operand, quad by quad. */
__device__ __forceinline__ void gpunn__operand_load(const gpunn__operand &operand, int64_t i, int apart,
                                                    int64_t count, float v[8])
{
#pragma unroll
    for (int q = 0; q < GPUNN__PACK; q += GPUNN__QUAD) {
        const int64_t at = gpunn__pack_place(i, apart, q), stride = operand.stride[0];
        int64_t       left = 0, place = gpunn__operand_place(operand, at, &left);
        if (at >= count) {
#pragma unroll
            for (int j = 0; j < GPUNN__QUAD; j++) v[q + j] = 0;
            continue;
        }
        if (left >= GPUNN__QUAD && stride == 1 && place % GPUNN__QUAD == 0) {
            gpunn__load4(operand.data, operand.dtype, place, v + q);
            continue;
        }
        if (left >= GPUNN__QUAD && stride == 0) {
            const float value = gpunn__load(operand.data, operand.dtype, place);
#pragma unroll
            for (int j = 0; j < GPUNN__QUAD; j++) v[q + j] = value;
            continue;
        }
#pragma unroll 1
        for (int j = 0; j < GPUNN__QUAD; j++, left--, place += stride) {
            if (left == 0) place = gpunn__operand_place(operand, at + j, &left);
#pragma unroll
            for (int k = 0; k < GPUNN__QUAD - 1; k++) v[q + k] = v[q + k + 1];
            v[q + GPUNN__QUAD - 1] = at + j < count ? gpunn__load(operand.data, operand.dtype, place) : 0;
        }
    }
}

typedef struct gpunn__map_job {
    gpunn__operand from[GPUNN__FROM_COUNT]; /* what the op's functions read */
    void          *to[3];                   /* the result, or the gradient of each operand */
    gpunn_dtype    to_dtype[3];
    bool           add[3];
    float          attr[2];
    int            apart; /* as in gpunn__load_quads */
    int64_t        count;
} gpunn__map_job;

/* Unary operands, results and their gradients are never broadcast; gpunn__cuda_map checks it. */
__device__ __forceinline__ void gpunn__map_load(bool broadcasts, const gpunn__map_job &job,
                                                const gpunn__operand &operand, int64_t i, float v[8])
{
    if (broadcasts && operand.is_broadcast)
        gpunn__operand_load(operand, i, job.apart, job.count, v);
    else
        gpunn__load_quads(operand.data, operand.dtype, i, job.apart, job.count, v);
}

template <typename Op>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__map_forward_kernel(const gpunn__map_job job)
{
    GPUNN__FOLLOW();
    int64_t i = gpunn__pack_first(job.apart, blockIdx.x);
    for (; i < job.count; i += gpunn__packs_step(gridDim.x)) {
        float v[3][8] = {}, result[8];
#pragma unroll
        for (int k = 0; k < Op::OPERANDS; k++) gpunn__map_load(Op::OPERANDS > 1, job, job.from[k], i, v[k]);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            const float from[GPUNN__FROM_COUNT] = {v[0][j], v[1][j], v[2][j], 0, 0};
            result[j] = Op::forward(from, job.attr);
        }
        gpunn__store_quads(job.to[0], job.to_dtype[0], i, job.apart, job.count, false, result);
    }
}

template <typename Op>
static __global__ void __launch_bounds__(GPUNN__THREADS, 3)
    gpunn__map_backward_kernel(const gpunn__map_job job)
{
    GPUNN__FOLLOW();
    int64_t i = gpunn__pack_first(job.apart, blockIdx.x);
    for (; i < job.count; i += gpunn__packs_step(gridDim.x)) {
        float v[GPUNN__FROM_COUNT][8] = {};
#pragma unroll
        for (int k = 0; k < GPUNN__FROM_COUNT; k++)
            if ((Op::READ >> k & 1) && job.from[k].data)
                gpunn__map_load(Op::OPERANDS > 1 && k < GPUNN__FROM_RESULT, job, job.from[k], i, v[k]);
#pragma unroll
        for (int d = 0; d < 3; d++) {
            if (!(Op::DERIVATIVES >> d & 1) || !job.to[d]) continue;
            float result[8];
#pragma unroll
            for (int j = 0; j < GPUNN__PACK; j++) {
                const float from[GPUNN__FROM_COUNT] = {v[0][j], v[1][j], v[2][j], v[3][j], v[4][j]};
                result[j] = Op::derivative(d, from, job.attr);
            }
            gpunn__store_quads(job.to[d], job.to_dtype[d], i, job.apart, job.count, job.add[d], result);
        }
    }
}

/* The kernels in the order of gpunn_op, whose first members are the elementwise ops. */
static const struct {
    void (*forward)(gpunn__map_job job);
    void (*backward)(gpunn__map_job job);
    gpunn__map_facts facts;
} gpunn__map_ops[] = {{NULL, NULL, {}},
#define GPUNN__X(ENUM, name, ...)                                                               \
    {gpunn__map_forward_kernel<gpunn__op_##name>, gpunn__map_backward_kernel<gpunn__op_##name>, \
     gpunn__op_##name::FACTS},
                      GPUNN__ELEMENTWISE_OPS(GPUNN__X)
#undef GPUNN__X
};

GPUNN__INTERNAL const gpunn__map_facts *gpunn__map_facts_for(gpunn_op op)
{
    return &gpunn__map_ops[op].facts;
}

static gpunn__operand gpunn__operand_of(const gpunn_value *value, const gpunn_value *result)
{
    gpunn__operand operand = {value->data, value->dtype, false, 1, {1}, {1}};
    gpunn__walk    axes;
    gpunn__axes_of(result, 0, &value, 1, &axes, &axes);
    if (axes.rank == 0) return operand;
    operand.rank = axes.rank;
    memcpy(operand.size, axes.dim, sizeof operand.size);
    memcpy(operand.stride, axes.stride[0], sizeof operand.stride);
    operand.is_broadcast = operand.rank > 1 || operand.stride[0] != 1;
    return operand;
}

static gpunn_status gpunn__map_launch(gpunn__cuda *cuda, void (*kernel)(gpunn__map_job), gpunn__map_job *job)
{
    job->apart = GPUNN__QUAD;
    for (int k = 0; k < GPUNN__FROM_COUNT; k++)
        if (job->from[k].data && job->from[k].dtype == GPUNN_F32) job->apart = GPUNN__APART;
    for (int i = 0; i < 3; i++)
        if (job->to[i] && job->to_dtype[i] == GPUNN_F32) job->apart = GPUNN__APART;
    return GPUNN__LAUNCH(cuda, kernel, gpunn__single_blocks(job->count, GPUNN__PACK), GPUNN__THREADS, *job);
}

static gpunn_status gpunn__map_backward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__map_facts *facts = &gpunn__map_ops[step->op].facts;
    /* gradients of broadcast operands at the result's size: grad_out, or computed */
    gpunn_value  full[3] = {};
    bool         sums[3] = {}; /* whether full[i] is then summed to the operand's shape */
    gpunn__arena arena = {(char *)step->workspace, 0};
    size_t       workspace = 0;
    unsigned     computed = 0;
    for (int i = 0; i < step->input_count; i++) {
        if (step->grad_in[i].data == NULL) continue;
        sums[i] = step->in[i].count != step->out.count;
        if (!sums[i] || !(facts->passed >> i & 1)) computed |= 1u << i;
        if (!sums[i]) continue;
        full[i] = step->grad_out;
        if (computed >> i & 1) {
            full[i].dtype = GPUNN_F32;
            full[i].data = gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, full[i].count));
        }
        size_t bytes = gpunn__cuda_sum_to_workspace(cuda, &full[i], &step->grad_in[i]);
        if (bytes > workspace) workspace = bytes;
    }
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = arena.bytes + workspace;
        return GPUNN_OK;
    }

    void *const    sum_workspace = gpunn__arena_take(&arena, workspace);
    gpunn__map_job job = {};
    job.count = step->out.count;
    memcpy(job.attr, step->attr->value, sizeof job.attr);
    for (int i = 0; i < step->input_count; i++) {
        job.from[i] = gpunn__operand_of(&step->in[i], &step->out);
        if (!(computed >> i & 1)) continue;
        const gpunn_value *to = sums[i] ? &full[i] : &step->grad_in[i];
        job.to[i] = to->data;
        job.to_dtype[i] = to->dtype;
        job.add[i] = !sums[i] && step->accumulate[i];
    }
    job.from[GPUNN__FROM_RESULT] = gpunn__operand_of(&step->out, &step->out);
    job.from[GPUNN__FROM_GRADIENT] = gpunn__operand_of(&step->grad_out, &step->out);
    for (int k = 0; k < GPUNN__FROM_COUNT; k++)
        if (!(facts->readers[k] & computed)) job.from[k].data = NULL;
    if (computed) GPUNN__TRY(gpunn__map_launch(cuda, gpunn__map_ops[step->op].backward, &job));
    for (int i = 0; i < step->input_count; i++)
        if (sums[i])
            GPUNN__TRY(
                gpunn__cuda_sum_to(cuda, &full[i], &step->grad_in[i], step->accumulate[i], sum_workspace));
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_map(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (step->input_count == 1 && step->in[0].count != step->out.count)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "the only operand and the result have different sizes; use gpunn_expand");
    if (step->backward) return gpunn__map_backward(cuda, step, action);
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    gpunn__map_job job = {};
    job.count = step->out.count;
    memcpy(job.attr, step->attr->value, sizeof job.attr);
    for (int i = 0; i < step->input_count; i++) job.from[i] = gpunn__operand_of(&step->in[i], &step->out);
    job.to[0] = step->out.data;
    job.to_dtype[0] = step->out.dtype;
    return gpunn__map_launch(cuda, gpunn__map_ops[step->op].forward, &job);
}

/* ---- copies and casts ---------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__copy_kernel(void *to, gpunn_dtype to_dtype, const void *from, gpunn_dtype from_dtype,
                       int64_t count, bool add)
{
    GPUNN__FOLLOW();
    gpunn__copy_part(to, to_dtype, from, from_dtype, count, add, blockIdx.x, gridDim.x);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_copy(gpunn__cuda *cuda, void *to, gpunn_dtype to_dtype,
                                              const void *from, gpunn_dtype from_dtype, int64_t count,
                                              bool accumulate)
{
    return GPUNN__LAUNCH(cuda, gpunn__copy_kernel, gpunn__single_blocks(count, GPUNN__PACK), GPUNN__THREADS,
                         to, to_dtype, from, from_dtype, count, accumulate);
}

/* A number as an integer, INT64_MIN or INT32_MIN if out of range. */
template <typename Whole> __device__ __forceinline__ Whole gpunn__whole_of(float x)
{
    return (Whole)(sizeof(Whole) == 8 ? gpunn__to_i64(x) : gpunn__to_i32(x));
}
template <typename Whole> __device__ __forceinline__ Whole gpunn__whole_of(double x)
{
    return (Whole)(sizeof(Whole) == 8 ? gpunn__double_to_i64(x) : gpunn__double_to_i32(x));
}

/* Conversion as in C, except that BOOL is x != 0. Real is double if one of the dtypes is F64. */
template <typename Real>
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__cast_kernel(void *to, gpunn_dtype to_dtype, const void *from, gpunn_dtype from_dtype,
                       int64_t count)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        Real    x = 0;
        int64_t whole = 0;
        bool    is_whole = true;
        switch (from_dtype) {
        case GPUNN_I64: whole = ((const int64_t *)from)[i]; break;
        case GPUNN_I32: whole = ((const int32_t *)from)[i]; break;
        case GPUNN_U8:
        case GPUNN_BOOL: whole = ((const uint8_t *)from)[i]; break;
        case GPUNN_F64: x = (Real)((const double *)from)[i], is_whole = false; break;
        default: x = gpunn__load(from, from_dtype, i), is_whole = false;
        }
        int64_t narrow = is_whole ? whole : gpunn__whole_of<int32_t>(x);
        switch (to_dtype) {
        case GPUNN_I64: ((int64_t *)to)[i] = is_whole ? whole : gpunn__whole_of<int64_t>(x); break;
        case GPUNN_I32: ((int32_t *)to)[i] = (int32_t)narrow; break;
        case GPUNN_U8: ((uint8_t *)to)[i] = (uint8_t)narrow; break;
        case GPUNN_BOOL: ((uint8_t *)to)[i] = is_whole ? whole != 0 : x != 0; break;
        case GPUNN_F64: ((double *)to)[i] = is_whole ? (double)whole : (double)x; break;
        default: gpunn__store(to, to_dtype, i, is_whole ? (float)whole : (float)x);
        }
    }
}

GPUNN__INTERNAL bool gpunn__is_float(gpunn_dtype dtype)
{
    return dtype == GPUNN_F32 || dtype == GPUNN_F16 || dtype == GPUNN_BF16;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_cast_values(gpunn__cuda *cuda, void *to, gpunn_dtype to_dtype,
                                                     const void *from, gpunn_dtype from_dtype, int64_t count)
{
    if (gpunn__is_float(from_dtype) && gpunn__is_float(to_dtype))
        return gpunn__cuda_copy(cuda, to, to_dtype, from, from_dtype, count, false);
    return GPUNN__LAUNCH(cuda,
                         to_dtype == GPUNN_F64 || from_dtype == GPUNN_F64 ? gpunn__cast_kernel<double>
                                                                          : gpunn__cast_kernel<float>,
                         gpunn__blocks(cuda, count, 1), GPUNN__THREADS, to, to_dtype, from, from_dtype,
                         count);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_cast(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return gpunn__cuda_cast_values(cuda, step->out.data, step->out.dtype, step->in[0].data, step->in[0].dtype,
                                   step->out.count);
}

/* ---- integers: one thread per result ------------------------------------------------------------------- */

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__integers_kernel(const gpunn__integers p)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < p.count; i += (int64_t)gridDim.x * blockDim.x) (void)gpunn__integers_at(&p, i);
}

/* INTEGER, and SUM and MAX of integers. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_integer(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action != GPUNN__FORWARD) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__integers_kernel, gpunn__blocks(cuda, step->out.count, 1),
                         GPUNN__THREADS, gpunn__integers_of(step));
}

/* ---- dropout ------------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__dropout_kernel(const void *x, gpunn_dtype x_dtype, void *y, gpunn_dtype y_dtype, int64_t count,
                          bool add, const gpunn__device_state *state, unsigned random_stream, unsigned keep,
                          float scale)
{
    GPUNN__FOLLOW();
    int64_t pack = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    for (; pack * GPUNN__PACK < count; pack += (int64_t)gridDim.x * blockDim.x) {
        int64_t  i = pack * GPUNN__PACK;
        int      n = gpunn__pack_size(count, i);
        float    v[8];
        uint32_t word[4];
        gpunn__drop_draw(state, random_stream, (uint64_t)pack, word);
        gpunn__load_pack(x, x_dtype, i, n, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] *= gpunn__drop_factor(word, j, keep, scale);
        gpunn__store_pack(y, y_dtype, i, n, add, v);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_dropout(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *from = step->backward ? &step->grad_out : &step->in[0];
    const gpunn_value *to = step->backward ? &step->grad_in[0] : &step->out;
    bool               add = step->backward && step->accumulate[0];
    unsigned           keep = gpunn__drop_keep(step);
    if (action == GPUNN__PREPARE || to->data == NULL) return GPUNN_OK;
    if (keep == 65536) {
        if (!add && to->data == from->data) return GPUNN_OK;
        return gpunn__cuda_copy(cuda, to->data, to->dtype, from->data, from->dtype, to->count, add);
    }
    return GPUNN__LAUNCH(cuda, gpunn__dropout_kernel, gpunn__blocks(cuda, to->count, GPUNN__PACK),
                         GPUNN__THREADS, from->data, from->dtype, to->data, to->dtype, to->count, add,
                         cuda->state, step->attr->random_stream, keep, gpunn__drop_scale(keep));
}

/* ---- random numbers ------------------------------------------------------------------------------------ */

template <bool NORMAL> __device__ __forceinline__ void gpunn__random_pack(const uint32_t word[4], float v[4])
{
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        if (NORMAL) {
            const float radius = sqrtf(-2 * logf(gpunn__unit(word[j]))), angle = gpunn__angle(word[j + 1]);
            v[j] = radius * gpunn__float_sin(angle, 1);
            v[j + 1] = radius * gpunn__float_sin(angle, 0);
        } else {
            v[j] = gpunn__uniform(word[j]);
            v[j + 1] = gpunn__uniform(word[j + 1]);
        }
    }
}

template <bool NORMAL>
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__random_kernel(float *y, int64_t count, const gpunn__device_state *state, unsigned random_stream)
{
    GPUNN__FOLLOW();
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * GPUNN__PACK;
    for (; i < count; i += (int64_t)gridDim.x * blockDim.x * GPUNN__PACK) {
        float v[8];
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j += 4) {
            uint32_t word[4];
            gpunn__draw_pack(state->seed, state->draw, random_stream, (uint64_t)(i + j) / 4, word);
            gpunn__random_pack<NORMAL>(word, v + j);
        }
        gpunn__store_pack(y, GPUNN_F32, i, gpunn__pack_size(count, i), false, v);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_rand_like(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const int64_t count = step->out.count;
    if (action != GPUNN__FORWARD) return GPUNN_OK;
    return GPUNN__LAUNCH(
        cuda, step->op == GPUNN_OP_RAND_LIKE ? gpunn__random_kernel<false> : gpunn__random_kernel<true>,
        gpunn__blocks(cuda, count, GPUNN__PACK), GPUNN__THREADS, (float *)step->out.data, count, cuda->state,
        step->attr->random_stream);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_randn_like(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__cuda_rand_like(cuda, step, action);
}

/* ==== >>cuda/move ======================================================================================== *
 * Ops that only move data, and layout changes of convolution filters. */
/* ---- strided copies: permute, concat, slice and pad are nothing else ----------------------------------- */

/* One axis of a move. Position p reads element (p - begin) / step of `from`, if that is an integer in
 * [0, length). Otherwise p is a hole. */
typedef struct gpunn__axis {
    int64_t size, to_stride, from_stride, begin, step, length;
} gpunn__axis;

/* A move over a block of axes, innermost first: to = or += from, or hole. */
typedef struct gpunn__move {
    void       *to;
    const void *from;
    gpunn_dtype to_dtype, from_dtype;
    float       hole;
    bool        add, packed; /* packed: axis 0 counts packs of 8 */
    int         fill;        /* gpunn_pad_mode: how holes are filled */
    int         rank;
    int64_t     count;
    gpunn__axis axis[GPUNN_MAX_RANK];
} gpunn__move;

/* The elements of `to` and `from` at position i of the axes from `first` on. Returns false for a hole. */
__device__ __forceinline__ bool gpunn__move_place(const gpunn__move &move, int first, int64_t i, int64_t *to,
                                                  int64_t *from)
{
    uint64_t rest = (uint64_t)i;
    bool     there = true;
    *to = *from = 0;
#pragma unroll 1
    for (int d = first; d < move.rank; d++) {
        const gpunn__axis &axis = move.axis[d];
        uint64_t           next = d + 1 < move.rank ? rest / (uint64_t)axis.size : 0;
        int64_t digit = (int64_t)(rest - next * (uint64_t)axis.size), position = digit - axis.begin;
        if (axis.step > 1 && position >= 0) {
            uint64_t element = (uint64_t)position / (uint64_t)axis.step;
            there = there && element * (uint64_t)axis.step == (uint64_t)position;
            position = (int64_t)element;
        }
        if (move.fill != GPUNN_PAD_CONSTANT) position = gpunn__pad_source(move.fill, position, axis.length);
        there = there && position >= 0 && position < axis.length;
        *to += digit * axis.to_stride;
        *from += position * axis.from_stride;
        rest = next;
    }
    return there;
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__move_kernel(const gpunn__move move)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < move.count; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t to, from;
        bool    there = gpunn__move_place(move, 0, i, &to, &from);
        if (move.packed) {
            float v[8] = {move.hole, move.hole, move.hole, move.hole,
                          move.hole, move.hole, move.hole, move.hole};
            if (there) gpunn__load8(move.from, move.from_dtype, from, v);
            gpunn__store_pack(move.to, move.to_dtype, to, GPUNN__PACK, move.add, v);
        } else {
            float x = there ? gpunn__load(move.from, move.from_dtype, from) : move.hole;
            gpunn__store(move.to, move.to_dtype, to,
                         move.add ? gpunn__load(move.to, move.to_dtype, to) + x : x);
        }
    }
}

/* The same for integers. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__move_integers_kernel(const gpunn__move move)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < move.count; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t to, from;
        bool    there = gpunn__move_place(move, 0, i, &to, &from);
        gpunn__put_integer(move.to, move.to_dtype, to,
                           there ? gpunn__integer(move.from, move.from_dtype, from)
                                 : gpunn__to_i64(move.hole));
    }
}

/* For moves without holes that are contiguous along axis 0 in `to` and along axis 1 in `from`. Squares go
 * through shared memory, so that adjacent threads both read and write adjacent elements. */
enum { GPUNN__SQUARE = 32 };
static __global__ void __launch_bounds__(GPUNN__THREADS, 4) gpunn__transpose_kernel(const gpunn__move move)
{
    GPUNN__FOLLOW();
    __shared__ float square[GPUNN__SQUARE][GPUNN__SQUARE + 1];
    int64_t          width = move.axis[0].size, height = move.axis[1].size;
    int64_t          columns = (width + GPUNN__SQUARE - 1) / GPUNN__SQUARE,
            rows = (height + GPUNN__SQUARE - 1) / GPUNN__SQUARE;
    int64_t squares = move.count / (width * height) * rows * columns;
    int     lane = (int)threadIdx.x % GPUNN__SQUARE, line = (int)threadIdx.x / GPUNN__SQUARE;
    for (int64_t i = blockIdx.x; i < squares; i += gridDim.x) {
        int64_t column = i % columns * GPUNN__SQUARE, row = i / columns % rows * GPUNN__SQUARE, to, from;
        (void)gpunn__move_place(move, 2, i / columns / rows, &to, &from);
        for (int k = line; k < GPUNN__SQUARE; k += GPUNN__THREADS / GPUNN__SQUARE)
            if (column + k < width && row + lane < height)
                square[k][lane] = gpunn__load(move.from, move.from_dtype,
                                              from + (column + k) * move.axis[0].from_stride + row + lane);
        __syncthreads();
        for (int k = line; k < GPUNN__SQUARE; k += GPUNN__THREADS / GPUNN__SQUARE)
            if (column + lane < width && row + k < height) {
                int64_t at = to + (row + k) * move.axis[1].to_stride + column + lane;
                float   x = square[lane][k];
                gpunn__store(move.to, move.to_dtype, at,
                             move.add ? gpunn__load(move.to, move.to_dtype, at) + x : x);
            }
        __syncthreads();
    }
}

/* A move between offsets in two values. The caller adds the axes. */
static gpunn__move gpunn__move_of(const gpunn_value *to, int64_t to_offset, const gpunn_value *from,
                                  int64_t from_offset, bool add)
{
    gpunn__move move = {};
    move.to = (char *)to->data + to_offset * (int64_t)gpunn_dtype_size(to->dtype);
    move.to_dtype = to->dtype;
    move.from = (const char *)from->data + from_offset * (int64_t)gpunn_dtype_size(from->dtype);
    move.from_dtype = from->dtype;
    move.add = add;
    move.count = 1;
    return move;
}

/* Adds the next axis outwards, or merges it with the previous one if memory continues. */
static void gpunn__move_axis(gpunn__move *move, int64_t size, int64_t to_stride, int64_t from_stride,
                             int64_t begin, int64_t step, int64_t length)
{
    move->count *= size;
    if (size == 1) return;
    gpunn__axis axis = {size, to_stride, from_stride, begin, step, length};
    if (move->rank > 0) {
        gpunn__axis *last = &move->axis[move->rank - 1];
        /* mirrored axes cannot be merged */
        bool mirrored = move->fill != GPUNN_PAD_CONSTANT && length < size;
        if (last->length == last->size && step == 1 && !mirrored &&
            to_stride == last->to_stride * last->size && from_stride == last->from_stride * last->size) {
            gpunn__axis merged = {
                size * last->size,  last->to_stride, last->from_stride, begin * last->size, 1,
                length * last->size};
            *last = merged;
            return;
        }
    }
    move->axis[move->rank++] = axis;
}

static gpunn_status gpunn__cuda_move(gpunn__cuda *cuda, gpunn__move *move)
{
    if (move->rank == 0) { /* one element */
        gpunn__axis one = {1, 1, 1, 0, 1, 1};
        move->axis[move->rank++] = one;
    }
    if (!gpunn__is_float(move->to_dtype))
        return GPUNN__LAUNCH(cuda, gpunn__move_integers_kernel, gpunn__blocks(cuda, move->count, 1),
                             GPUNN__THREADS, *move);
    gpunn__axis *inner = &move->axis[0];
    int          across = 0; /* the axis along which `from` is contiguous */
    bool         whole = true;
    bool         packed = inner->to_stride == 1 && inner->from_stride == 1 && inner->step == 1 &&
                  inner->size % GPUNN__PACK == 0 && inner->begin % GPUNN__PACK == 0 &&
                  inner->length % GPUNN__PACK == 0 &&
                  (move->fill == GPUNN_PAD_CONSTANT || inner->length == inner->size) &&
                  (uintptr_t)move->to % (GPUNN__PACK * gpunn_dtype_size(move->to_dtype)) == 0 &&
                  (uintptr_t)move->from % (GPUNN__PACK * gpunn_dtype_size(move->from_dtype)) == 0;
    for (int d = 0; d < move->rank; d++) {
        const gpunn__axis *axis = &move->axis[d];
        whole = whole && axis->length == axis->size;
        packed = packed &&
                 (d == 0 || (axis->to_stride % GPUNN__PACK == 0 && axis->from_stride % GPUNN__PACK == 0));
        if (axis->from_stride == 1) across = d;
    }
    if (whole && inner->to_stride == 1 && across > 0 && inner->size >= GPUNN__PACK &&
        move->axis[across].size >= GPUNN__PACK) {
        gpunn__axis axis = move->axis[1];
        move->axis[1] = move->axis[across];
        move->axis[across] = axis;
        return GPUNN__LAUNCH(cuda, gpunn__transpose_kernel,
                             gpunn__blocks(cuda, move->count, GPUNN__SQUARE * GPUNN__SQUARE / GPUNN__THREADS),
                             GPUNN__THREADS, *move);
    }
    if (packed) {
        move->packed = true;
        move->count /= GPUNN__PACK;
        inner->size /= GPUNN__PACK;
        inner->begin /= GPUNN__PACK;
        inner->length /= GPUNN__PACK;
        inner->to_stride = inner->from_stride = GPUNN__PACK;
    }
    return GPUNN__LAUNCH(cuda, gpunn__move_kernel, gpunn__blocks(cuda, move->count, 1), GPUNN__THREADS,
                         *move);
}

/* ---- filters from [k][channels][cells] to [k][cells][channels] or back: many per launch, by tiles in shared
 * memory -- */

enum { GPUNN__RELAYOUT_JOBS = 64, GPUNN__RELAYOUT_TILE = 2048, GPUNN__RELAYOUT_CELLS = 32 };

typedef struct gpunn__relayout_job {
    const void *from;
    void       *to;
    int64_t     tiles; /* tiles of this job and all before it */
    int         channels, cells, tile_channels, tile_cells;
    bool        from_last, to_last, add;
} gpunn__relayout_job;

typedef struct gpunn__relayout_jobs {
    int                 count;
    gpunn_dtype         from_dtype, to_dtype;
    gpunn__relayout_job job[GPUNN__RELAYOUT_JOBS];
} gpunn__relayout_jobs;

/* The memory index of element i of a tile, and in *at its index in shared memory. i runs in memory order, so
 * that adjacent threads access adjacent elements. */
__device__ __forceinline__ int64_t gpunn__relayout_place(const gpunn__relayout_job &job, bool last, int i,
                                                         int channels, int cells, int64_t channel,
                                                         int64_t cell, int *at)
{
    int c = last ? i % channels : i / cells, k = last ? i / channels : i % cells;
    *at = c * (job.tile_cells | 1) + k; /* an odd stride avoids bank conflicts */
    return last ? (cell + k) * job.channels + channel + c : (channel + c) * job.cells + cell + k;
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__relayout_kernel(const gpunn__relayout_jobs jobs)
{
    GPUNN__FOLLOW();
    __shared__ float tile[GPUNN__RELAYOUT_TILE + GPUNN__RELAYOUT_TILE / 2];
    int              which = 0;
    for (int64_t i = blockIdx.x; i < jobs.job[jobs.count - 1].tiles; i += gridDim.x) {
        while (i >= jobs.job[which].tiles) which++;
        const gpunn__relayout_job &job = jobs.job[which];
        const int64_t              columns = (job.cells + job.tile_cells - 1) / job.tile_cells;
        const int64_t              rows = (job.channels + job.tile_channels - 1) / job.tile_channels;
        const int64_t own = i - (which ? jobs.job[which - 1].tiles : 0), filter = own / (rows * columns);
        const int64_t cell = own % columns * job.tile_cells,
                      channel = own / columns % rows * job.tile_channels;
        const int64_t base = filter * job.channels * job.cells;
        const int     cells = (int)min((int64_t)job.tile_cells, job.cells - cell);
        const int     channels = (int)min((int64_t)job.tile_channels, job.channels - channel);
        for (int k = (int)threadIdx.x; k < channels * cells; k += GPUNN__THREADS) {
            int     at;
            int64_t from = gpunn__relayout_place(job, job.from_last, k, channels, cells, channel, cell, &at);
            tile[at] = gpunn__load(job.from, jobs.from_dtype, base + from);
        }
        __syncthreads();
        for (int k = (int)threadIdx.x; k < channels * cells; k += GPUNN__THREADS) {
            int     at;
            int64_t to = base +
                         gpunn__relayout_place(job, job.to_last, k, channels, cells, channel, cell, &at);
            float x = job.add ? gpunn__load(job.to, jobs.to_dtype, to) + tile[at] : tile[at];
            gpunn__store(job.to, jobs.to_dtype, to, x);
        }
        __syncthreads();
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_relayout(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    for (int first = 0; first < step->input_count && action != GPUNN__PREPARE;
         first += GPUNN__RELAYOUT_JOBS) {
        gpunn__relayout_jobs jobs;
        int64_t              tiles = 0;
        memset(&jobs, 0, sizeof jobs);
        jobs.from_dtype = step->in[first].dtype;
        jobs.to_dtype = step->grad_in[first].dtype;
        for (int i = first; i < step->input_count && jobs.count < GPUNN__RELAYOUT_JOBS; i++) {
            const gpunn_value   *from = &step->in[i], *to = &step->grad_in[i];
            gpunn__relayout_job *job = &jobs.job[jobs.count];
            if (from->data == NULL) continue;
            job->from = from->data;
            job->to = to->data;
            job->add = step->accumulate[i];
            job->from_last = from->channels_last;
            job->to_last = to->channels_last;
            job->channels = (int)from->dim[1];
            job->cells = (int)(from->dim[2] * from->dim[3]);
            job->tile_cells = job->cells < GPUNN__RELAYOUT_CELLS ? job->cells : (int)GPUNN__RELAYOUT_CELLS;
            job->tile_channels = GPUNN__RELAYOUT_TILE / job->tile_cells;
            if (job->tile_channels > job->channels) job->tile_channels = job->channels;
            tiles += from->dim[0] * ((job->channels + job->tile_channels - 1) / job->tile_channels) *
                     ((job->cells + job->tile_cells - 1) / job->tile_cells);
            job->tiles = tiles;
            jobs.count++;
        }
        if (tiles > 0)
            GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__relayout_kernel,
                                     (unsigned)(tiles < (int64_t)cuda->multiprocessors * 16
                                                    ? tiles
                                                    : (int64_t)cuda->multiprocessors * 16),
                                     GPUNN__THREADS, jobs));
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_permute(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    const gpunn_value *to = step->backward ? &step->grad_in[0] : &step->out;
    const gpunn_value *from = step->backward ? &step->grad_out : &step->in[0];
    int64_t            to_stride[GPUNN_MAX_RANK], from_stride[GPUNN_MAX_RANK], stride[GPUNN_MAX_RANK];
    gpunn__strides(to, to_stride);
    gpunn__strides(from, from_stride);
    for (int d = 0; d < to->rank; d++) {
        int axis = step->attr->order[d];
        stride[step->backward ? axis : d] = from_stride[step->backward ? d : axis];
    }
    gpunn__move move = gpunn__move_of(to, 0, from, 0, step->backward && step->accumulate[0]);
    for (int d = to->rank - 1; d >= 0; d--)
        gpunn__move_axis(&move, to->dim[d], to_stride[d], stride[d], 0, 1, to->dim[d]);
    return gpunn__cuda_move(cuda, &move);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_concat(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    int64_t part_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK], offset = 0;
    gpunn__strides(&step->out, out_stride);
    for (int i = 0; i < step->input_count; i++) {
        const gpunn_value *in = &step->in[i];
        gpunn__strides(in, part_stride);
        if (!step->backward || step->grad_in[i].data) {
            gpunn__move move = step->backward ? gpunn__move_of(&step->grad_in[i], 0, &step->grad_out, offset,
                                                               step->accumulate[i])
                                              : gpunn__move_of(&step->out, offset, in, 0, false);
            for (int d = in->rank - 1; d >= 0; d--)
                gpunn__move_axis(&move, in->dim[d], step->backward ? part_stride[d] : out_stride[d],
                                 step->backward ? out_stride[d] : part_stride[d], 0, 1, in->dim[d]);
            GPUNN__TRY(gpunn__cuda_move(cuda, &move));
        }
        offset += in->dim[step->attr->axis] * out_stride[step->attr->axis];
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_expand(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *in = &step->in[0], *out = &step->out;
    if (step->backward && action == GPUNN__PREPARE)
        step->workspace_bytes = gpunn__cuda_sum_to_workspace(cuda, &step->grad_out, &step->grad_in[0]);
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    if (step->backward)
        return gpunn__cuda_sum_to(cuda, &step->grad_out, &step->grad_in[0], step->accumulate[0],
                                  step->workspace);
    gpunn__move move = gpunn__move_of(out, 0, in, 0, false);
    int64_t     in_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK];
    gpunn__strides(in, in_stride);
    gpunn__strides(out, out_stride);
    for (int d = out->rank - 1; d >= 0; d--) {
        int from = d - (out->rank - in->rank);
        gpunn__move_axis(&move, out->dim[d], out_stride[d],
                         from < 0 || in->dim[from] == 1 ? 0 : in_stride[from], 0, 1, out->dim[d]);
    }
    return gpunn__cuda_move(cuda, &move);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_slice(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    const gpunn_value *in = &step->in[0], *out = &step->out;
    int                cut = step->attr->axis;
    int64_t            in_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK], start = step->attr->start,
                                                                   every = step->attr->step;
    gpunn__strides(in, in_stride);
    gpunn__strides(out, out_stride);
    int64_t     offset = start * in_stride[cut];
    gpunn__move move;
    if (step->backward && !step->accumulate[0]) { /* writes all of grad_in, with 0 in the holes */
        move = gpunn__move_of(&step->grad_in[0], 0, &step->grad_out, 0, false);
        for (int d = in->rank - 1; d >= 0; d--)
            gpunn__move_axis(&move, in->dim[d], in_stride[d], out_stride[d], d == cut ? start : 0,
                             d == cut ? every : 1, out->dim[d]);
        return gpunn__cuda_move(cuda, &move);
    }
    in_stride[cut] *= every;
    move = step->backward ? gpunn__move_of(&step->grad_in[0], offset, &step->grad_out, 0, true)
                          : gpunn__move_of(out, 0, in, offset, false);
    for (int d = out->rank - 1; d >= 0; d--)
        gpunn__move_axis(&move, out->dim[d], step->backward ? in_stride[d] : out_stride[d],
                         step->backward ? out_stride[d] : in_stride[d], 0, 1, out->dim[d]);
    return gpunn__cuda_move(cuda, &move);
}

/* ---- gradient of pads that repeat the input: a thread per input element gathers ------------------------ */

typedef struct gpunn__padding {
    int             rank, mode;
    int64_t         count;
    bool            accumulate;
    const void     *from;
    void           *to;
    gpunn_dtype     from_dtype, to_dtype;
    gpunn__pad_axis axis[GPUNN_MAX_RANK];
} gpunn__padding;

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__pad_back_kernel(const gpunn__padding p)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; i < p.count; i += step) {
        int64_t all = 1, rest = i, low;
#pragma unroll 1
        for (int d = p.rank - 1; d >= 0; d--, rest /= p.axis[d + 1].n)
            all *= gpunn__pad_copies(p.mode, &p.axis[d], rest % p.axis[d].n, &low);
        float sum = p.accumulate ? gpunn__load(p.to, p.to_dtype, i) : 0;
        for (int64_t k = 0; k < all; k++) {
            int64_t which = k, from = 0;
            rest = i;
#pragma unroll 1
            for (int d = p.rank - 1; d >= 0; d--) {
                const gpunn__pad_axis &axis = p.axis[d];
                int64_t at = rest % axis.n, copies = gpunn__pad_copies(p.mode, &axis, at, &low);
                from += gpunn__pad_copy(p.mode, &axis, at, which % copies, low) * axis.stride;
                which /= copies;
                rest /= axis.n;
            }
            sum += gpunn__load(p.from, p.from_dtype, from);
        }
        gpunn__store(p.to, p.to_dtype, i, sum);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_pad(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    const gpunn_value *in = &step->in[0], *out = &step->out;
    const int64_t     *before = step->attr->before;
    int64_t            in_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK], offset = 0;
    gpunn__strides(in, in_stride);
    gpunn__strides(out, out_stride);
    if (step->backward && step->attr->mode != GPUNN_PAD_CONSTANT) {
        const gpunn_value *to = &step->grad_in[0];
        gpunn__padding     p = {};
        p.rank = in->rank;
        p.mode = step->attr->mode;
        p.count = in->count;
        p.accumulate = step->accumulate[0];
        p.from = step->grad_out.data, p.from_dtype = step->grad_out.dtype;
        p.to = to->data, p.to_dtype = to->dtype;
        for (int d = 0; d < in->rank; d++) {
            gpunn__pad_axis axis = {in->dim[d], before[d], out->dim[d] - in->dim[d] - before[d],
                                    out_stride[d]};
            p.axis[d] = axis;
        }
        return GPUNN__LAUNCH(cuda, gpunn__pad_back_kernel, gpunn__blocks(cuda, p.count, 1), GPUNN__THREADS,
                             p);
    }
    for (int d = 0; d < out->rank; d++) offset += before[d] * out_stride[d];
    gpunn__move move = step->backward ? gpunn__move_of(&step->grad_in[0], 0, &step->grad_out, offset,
                                                       step->accumulate[0])
                                      : gpunn__move_of(out, 0, in, 0, false);
    move.hole = step->attr->fill;
    move.fill = step->attr->mode;
    for (int d = out->rank - 1; d >= 0; d--) {
        if (step->backward)
            gpunn__move_axis(&move, in->dim[d], in_stride[d], out_stride[d], 0, 1, in->dim[d]);
        else
            gpunn__move_axis(&move, out->dim[d], out_stride[d], in_stride[d], before[d], 1, in->dim[d]);
    }
    return gpunn__cuda_move(cuda, &move);
}

/* ---- assign: a thread per element of the value --------------------------------------------------------- */

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__assign_kernel(const gpunn__assign_shape c, const gpunn_value value, const void *position,
                         gpunn_dtype position_type, float *to)
{
    GPUNN__FOLLOW();
    const int64_t block = c.rows * c.inner;
    int64_t       i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < value.count; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = gpunn__quotient(i, block);
        const int64_t at = position ? gpunn__integer(position, position_type, gpunn__quotient(row, c.sample))
                                    : 0;
        if (at < 0 || at > c.capacity - c.rows) continue;
        to[(row * c.capacity + at) * c.inner + (i - row * block)] = gpunn__load(value.data, value.dtype, i);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_assign(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__assign_kernel, gpunn__blocks(cuda, step->in[1].count, 1),
                         GPUNN__THREADS, gpunn__assign_shape_of(step), step->in[1], step->in[2].data,
                         step->in[2].dtype, (float *)step->out.data);
}

/* ==== >>cuda/reduce ====================================================================================== *
 * Sums and maxima over axes, and the ops along one axis. All work on rows: elements that are contiguous or
 * a constant stride apart. A row is shared by 1, 2, 4, .. 32 adjacent lanes or by a block. */
typedef struct gpunn__strided_row {
    /* index: among the rows of the op; begin: of the first element; n: elements */
    int64_t index, begin, stride, n;
    int     thread, lanes; /* this thread's index among the lanes; their number */
} gpunn__strided_row;

/* Visits every element of the row once, distributed over the lanes. visit.at<8>(i, c) takes packs of 8,
 * aligned if the stride is 1, and visit.at<1>(i, c) takes the remaining elements. i is the index of the
 * (first) element in memory, c its position in the row. */
template <typename Visit>
__device__ __forceinline__ void gpunn__strided_visit(const gpunn__strided_row &row, Visit &visit)
{
    int64_t head = 0, packed = 0;
    if (row.n >= 8 * row.lanes) {
        head = row.stride == 1 ? -row.begin & 7 : 0;
        packed = (row.n - head) & ~(int64_t)7;
        for (int64_t c = head + 8 * row.thread; c < head + packed; c += 8 * row.lanes)
            visit.template at<8>(row.begin + c * row.stride, c);
    }
    for (int64_t rest = row.thread; rest < row.n - packed; rest += row.lanes) {
        int64_t c = rest < head ? rest : rest + packed;
        visit.template at<1>(row.begin + c * row.stride, c);
    }
}

template <int N>
__device__ __forceinline__ void gpunn__strided_load(const void *data, gpunn_dtype dtype, int64_t i,
                                                    int64_t stride, float *v)
{
    if (N == 8 && stride == 1) {
        gpunn__load8(data, dtype, i, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = gpunn__load(data, dtype, i + j * stride);
}

/* data = or += v. v is overwritten if add. */
template <int N>
__device__ __forceinline__ void gpunn__strided_store(void *data, gpunn_dtype dtype, int64_t i, int64_t stride,
                                                     float *v, bool add)
{
    if (add) {
        float old[N];
        gpunn__strided_load<N>(data, dtype, i, stride, old);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] += old[j];
    }
    if (N == 8 && stride == 1) {
        gpunn__store8(data, dtype, i, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++) gpunn__store(data, dtype, i + j * stride, v[j]);
}

/* Reduces all N values, pairwise. v is overwritten. */
template <int N, typename Op> __device__ __forceinline__ float gpunn__pack_reduce(float *v, Op op)
{
#pragma unroll
    for (int width = N / 2; width > 0; width /= 2)
#pragma unroll
        for (int j = 0; j < width; j++) v[j] = op(v[j], v[j + width]);
    return v[0];
}

/* Reduces over the lanes of a row. Every thread gets the result. All threads of the block must call it. */
template <typename T, typename Op> __device__ __forceinline__ T gpunn__lanes_reduce(T value, Op op, int lanes)
{
    if (lanes > 32) return gpunn__block_reduce(value, op);
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value = op(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
    return value;
}

/* The smallest power of 2 that is at least n, at most `most`. */
GPUNN__INTERNAL int gpunn__power_of_2(int64_t n, int most);

/* The number of threads that share each of `rows` rows. If the stride is not 1, adjacent rows are adjacent
 * in memory. Then their number grows only as far as needed to fill the device. */
GPUNN__INTERNAL int gpunn__lanes_of(const gpunn__cuda *cuda, int64_t rows, int64_t n, int64_t stride);

/* A reduction of x to y; >>cuda/reduce describes its kept axes, planes, rows and columns beside the
 * kernels. */
typedef struct gpunn__reduction {
    int     kind;
    bool    by_column; /* the last axis is kept */
    bool    add;       /* y += */
    int     kept_rank, plane_rank;
    int64_t kept_dim[GPUNN_MAX_RANK / 2], kept_stride[GPUNN_MAX_RANK / 2];
    int64_t plane_dim[GPUNN_MAX_RANK / 2], plane_stride[GPUNN_MAX_RANK / 2];
    int64_t kept, planes, rows, columns;
    /* span: threads per unit (output or column tile, and chunk); lanes: threads across a run */
    int         span, lanes;
    int         pack;                 /* columns per thread, 8 or 1 */
    int64_t     tiles;                /* tiles of lanes * pack columns */
    int64_t     pieces, step, length; /* runs per plane, elements from run to run and per run */
    int64_t     runs, chunk_runs, chunks;
    const void *x, *reference; /* reference: the maxima, for COUNT */
    void       *y;             /* [kept][columns]; of the first of two launches [chunks][kept][columns] */
    gpunn_dtype x_type, reference_type, y_type;
    float       divisor;
} gpunn__reduction;

/* Chooses threads and chunks: enough to fill the device, but no chunk below 16384 elements. whole: a single
 * chunk. */
GPUNN__INTERNAL void gpunn__reduction_cut(const gpunn__cuda *cuda, gpunn__reduction *r, bool whole);

/* Bytes for the partial results of the first launch; 0 if there is a single chunk. */
GPUNN__INTERNAL size_t gpunn__reduction_workspace(const gpunn__reduction *r);

/* An op along one axis of x[outer][n][inner]; rows = outer * inner. */
typedef struct gpunn__along {
    int64_t     rows, n, inner;
    int         lanes;
    const void *x, *y, *gradient;
    void       *out; /* forward: the result; backward: dx */
    gpunn_dtype x_type, y_type, gradient_type, out_type;
    bool        add, log;
} gpunn__along;

/* Describes a step along one axis: its rows, lanes, operand, result and gradients. */
GPUNN__INTERNAL gpunn__along gpunn__along_axis(const gpunn__cuda *cuda, const gpunn_step *step, int axis);

/* The number of blocks for a kernel in which some lanes take each row. */
GPUNN__INTERNAL unsigned gpunn__along_blocks(const gpunn__cuda *cuda, const gpunn__along *a);

/* The lanes of a block, grouped by row, take adjacent rows and advance together: for (first = _first; first
 * < a.rows; first += _step). */
__device__ __forceinline__ int64_t gpunn__along_step(const gpunn__along &a)
{
    return (int64_t)gridDim.x * (blockDim.x / a.lanes);
}

__device__ __forceinline__ int64_t gpunn__along_first(const gpunn__along &a)
{
    return (int64_t)blockIdx.x * (blockDim.x / a.lanes);
}

/* This thread's row. It has no elements if it is beyond the last. */
__device__ __forceinline__ gpunn__strided_row gpunn__along_row(const gpunn__along &a, int64_t first)
{
    int64_t index = first + threadIdx.x / a.lanes,
            outer = a.inner == 1 ? index : gpunn__quotient(index, a.inner);
    gpunn__strided_row row = {index,
                              outer * a.n * a.inner + (index - outer * a.inner),
                              a.inner,
                              index < a.rows ? a.n : 0,
                              (int)(threadIdx.x & (a.lanes - 1)),
                              a.lanes};
    return row;
}

/* Where element i of a line is, counted from the line's end if reverse. */
__device__ __forceinline__ int64_t gpunn__along_place(const gpunn__along &a, int64_t line, int64_t i,
                                                      bool reverse)
{
    const int64_t outer = gpunn__quotient(line, a.inner);
    return (outer * a.n + (reverse ? a.n - 1 - i : i)) * a.inner + (line - outer * a.inner);
}

GPUNN__INTERNAL int gpunn__power_of_2(int64_t n, int most)
{
    int power = 1;
    while (power < n && power < most) power *= 2;
    return power;
}

/* Threads for n contiguous elements. Adjacent threads read adjacent elements, in packs of 8 if n is large
 * enough. */
static int gpunn__lanes(int64_t n, int most)
{
    return gpunn__power_of_2(n < 64 ? n : n / 16 + 1, most);
}

GPUNN__INTERNAL int gpunn__lanes_of(const gpunn__cuda *cuda, int64_t rows, int64_t n, int64_t stride)
{
    int64_t device = cuda->multiprocessors;
    int     lanes = gpunn__lanes(n, 32);
    while (stride > 1 && lanes > 1 && rows * lanes > device * 1024) lanes /= 2;
    return lanes == 32 && n >= (rows > device * 16 ? 8192 : 2048) ? GPUNN__THREADS : lanes;
}

/* ---- sum and max over any set of axes ------------------------------------------------------------------- *
 * Adjacent axes that are
 * all kept or all reduced are merged. The rest is kept x planes x rows x columns. There are `kept` results
 * (or rows of results), each from `planes` contiguous blocks of rows * columns elements. If columns are
 * reduced too, columns is 1 and rows holds the length; otherwise each column has its own result. A result's
 * elements are read run by run. A run is a row or, if columns are kept, one element of each column. If
 * results are few, the runs are split into chunks, whose results a second launch reduces. */

enum { GPUNN__SUM, GPUNN__MAX, GPUNN__COUNT /* elements that equal the maximum */ };

GPUNN__INTERNAL void gpunn__reduction_cut(const gpunn__cuda *cuda, gpunn__reduction *r, bool whole)
{
    int64_t length = r->planes * r->rows, blocks, device = cuda->multiprocessors;
    if (r->by_column) {
        r->pack = r->columns % 8 == 0 ? 8 : 1;
        r->lanes = gpunn__power_of_2((r->columns + r->pack - 1) / r->pack, 32);
        while (r->lanes > 8 && r->columns >= r->lanes * r->pack &&
               r->kept * r->columns < device * r->lanes * r->pack)
            r->lanes /= 2;
        r->span = r->lanes * gpunn__power_of_2(length, GPUNN__THREADS / r->lanes);
        r->tiles = (r->columns + r->lanes * r->pack - 1) / (r->lanes * r->pack);
        while (r->span > r->lanes && length * r->lanes < r->span * 8 &&
               r->kept * r->tiles * r->span > device * 4096)
            r->span /= 2;
    } else {
        r->pack = 1;
        r->tiles = 1;
        r->span = gpunn__lanes_of(cuda, r->kept, length, 1);
    }
    blocks = (r->kept * r->tiles * r->span + GPUNN__THREADS - 1) / GPUNN__THREADS;
    r->chunks = r->kept * length * r->columns / blocks / 16384;
    if (r->chunks > 4 * device / blocks) r->chunks = 4 * device / blocks;
    if (whole || r->chunks < 1) r->chunks = 1;
    if (r->by_column) {
        r->pieces = r->rows;
        r->step = r->columns;
        r->length = 1;
    } else {
        int64_t parts = (r->chunks + r->planes - 1) / r->planes;
        r->length = r->step = parts > 1 ? (r->rows / parts + 8) & ~(int64_t)7 : r->rows;
        r->pieces = (r->rows + r->step - 1) / r->step;
    }
    r->runs = r->planes * r->pieces;
    r->chunk_runs = (r->runs + r->chunks - 1) / r->chunks;
    r->chunks = (r->runs + r->chunk_runs - 1) / r->chunk_runs;
    const int most = r->span < 32 ? r->span : 32;
    if (!r->by_column)
        r->lanes = r->chunk_runs == 1 || r->length >= 8192 ? r->span : gpunn__lanes(r->length, most);
}

/* Describes a plain sum of `in` over axes (a bit set) in F32. whole: in a single chunk. */
static void gpunn__reduction_shape(const gpunn__cuda *cuda, gpunn__reduction *r, const gpunn_value *in,
                                   uint32_t axes, bool whole)
{
    const gpunn__walk all = gpunn__axes_reduced(in, axes);
    int               next = 0;
    memset(r, 0, sizeof *r);
    r->by_column = all.rank > 0 && all.stride[1][0] != 0;
    r->columns = r->by_column ? all.dim[next++] : 1;
    r->rows = next < all.rank ? all.dim[next++] : 1;
    r->planes = gpunn__axes_select(&all, next, true, &r->plane_rank, r->plane_dim, r->plane_stride);
    r->kept = gpunn__axes_select(&all, next, false, &r->kept_rank, r->kept_dim, r->kept_stride);
    r->x = in->data;
    r->x_type = in->dtype;
    r->y_type = GPUNN_F32;
    r->divisor = 1;
    gpunn__reduction_cut(cuda, r, whole);
}

GPUNN__INTERNAL size_t gpunn__reduction_workspace(const gpunn__reduction *r)
{
    return r->chunks == 1 ? 0 : (size_t)(r->chunks * r->kept * r->columns) * sizeof(float);
}

template <int KIND> struct gpunn__fold {
    __device__ static float start()
    {
        return KIND == GPUNN__MAX ? -INFINITY : 0;
    }
    __device__ float operator()(float a, float b) const
    {
        return KIND == GPUNN__MAX ? gpunn__larger()(a, b) : a + b;
    }
};

template <int KIND> struct gpunn__fold_visit {
    const void *x;
    gpunn_dtype x_type, reference_type;
    float       reference, value;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float v[N];
        gpunn__strided_load<N>(x, x_type, i, 1, v);
#pragma unroll
        for (int j = 0; j < N; j++)
            if (KIND == GPUNN__COUNT) v[j] = gpunn__rounded(v[j], reference_type) == reference ? 1.0f : 0.0f;
        value = gpunn__fold<KIND>()(value, gpunn__pack_reduce<N>(v, gpunn__fold<KIND>()));
    }
};

/* The offset of a run of a result from the result's own start. *rest receives the number of elements from
 * there to the plane's end. */
__device__ __forceinline__ int64_t gpunn__reduction_run(const gpunn__reduction &r, int64_t run, int64_t *rest)
{
    int64_t plane = r.planes == 1 ? 0 : gpunn__quotient(run, r.pieces),
            row = (run - plane * r.pieces) * r.step;
    *rest = r.rows - row;
    return gpunn__offset(plane, r.plane_rank, r.plane_dim, r.plane_stride) + row;
}

template <int KIND>
static __global__ void __launch_bounds__(GPUNN__THREADS, 4)
    gpunn__reduce_rows_kernel(const gpunn__reduction r)
{
    GPUNN__FOLLOW();
    int     thread = threadIdx.x & (r.span - 1), per_block = blockDim.x / r.span;
    int64_t units = r.kept * r.chunks;
    for (int64_t first = (int64_t)blockIdx.x * per_block; first < units;
         first += (int64_t)gridDim.x * per_block) {
        int64_t                 unit = first + threadIdx.x / r.span;
        gpunn__fold_visit<KIND> fold = {r.x, r.x_type, r.reference_type, 0, gpunn__fold<KIND>::start()};
        if (unit < units) {
            int64_t chunk = gpunn__quotient(unit, r.kept), result = unit - chunk * r.kept,
                    run = chunk * r.chunk_runs;
            int64_t at = gpunn__offset(result, r.kept_rank, r.kept_dim, r.kept_stride);
            int64_t end = run + r.chunk_runs < r.runs ? run + r.chunk_runs : r.runs;
            if (KIND == GPUNN__COUNT) fold.reference = gpunn__load(r.reference, r.reference_type, result);
            for (run += thread / r.lanes; run < end; run += r.span / r.lanes) {
                int64_t            rest, begin = at + gpunn__reduction_run(r, run, &rest);
                gpunn__strided_row row = {
                    run, begin, 1, rest < r.length ? rest : r.length, thread & (r.lanes - 1), r.lanes};
                gpunn__strided_visit(row, fold);
            }
        }
        float value = gpunn__lanes_reduce(fold.value, gpunn__fold<KIND>(), r.span) / r.divisor;
        if (unit < units && thread == 0) gpunn__strided_store<1>(r.y, r.y_type, unit, 1, &value, r.add);
    }
}

/* A unit's threads: `lanes` across the columns, span / lanes down the runs. */
template <int KIND, int N>
static __global__ void __launch_bounds__(GPUNN__THREADS, 4)
    gpunn__reduce_columns_kernel(const gpunn__reduction r)
{
    GPUNN__FOLLOW();
    __shared__ float part[N][GPUNN__THREADS];
    int              thread = threadIdx.x & (r.span - 1), per_block = blockDim.x / r.span;
    int64_t          units = r.chunks * r.kept * r.tiles;
    for (int64_t first = (int64_t)blockIdx.x * per_block; first < units;
         first += (int64_t)gridDim.x * per_block) {
        /* result: counted over all chunks */
        int64_t unit = first + threadIdx.x / r.span, result = gpunn__quotient(unit, r.tiles);
        int64_t column = ((unit - result * r.tiles) * r.lanes + (thread & (r.lanes - 1))) * N;
        bool    there = unit < units && column < r.columns;
        float   value[N];
#pragma unroll
        for (int j = 0; j < N; j++) value[j] = gpunn__fold<KIND>::start();
        if (there) {
            int64_t chunk = gpunn__quotient(result, r.kept), kept = result - chunk * r.kept,
                    run = chunk * r.chunk_runs;
            int64_t at = gpunn__offset(kept, r.kept_rank, r.kept_dim, r.kept_stride) + column;
            int64_t end = run + r.chunk_runs < r.runs ? run + r.chunk_runs : r.runs;
            float   reference[N];
            if (KIND == GPUNN__COUNT)
                gpunn__strided_load<N>(r.reference, r.reference_type, kept * r.columns + column, 1,
                                       reference);
            for (run += thread / r.lanes; run < end; run += r.span / r.lanes) {
                int64_t rest;
                float   v[N];
                gpunn__strided_load<N>(r.x, r.x_type, at + gpunn__reduction_run(r, run, &rest), 1, v);
#pragma unroll
                for (int j = 0; j < N; j++) {
                    if (KIND == GPUNN__COUNT)
                        v[j] = gpunn__rounded(v[j], r.reference_type) == reference[j] ? 1.0f : 0.0f;
                    value[j] = gpunn__fold<KIND>()(value[j], v[j]);
                }
            }
        }
        for (int distance = r.span / 2; distance >= r.lanes; distance /= 2) {
            __syncthreads();
#pragma unroll
            for (int j = 0; j < N; j++) part[j][threadIdx.x] = value[j];
            __syncthreads();
#pragma unroll
            for (int j = 0; j < N; j++)
                if (thread < distance)
                    value[j] = gpunn__fold<KIND>()(value[j], part[j][threadIdx.x + distance]);
        }
#pragma unroll
        for (int j = 0; j < N; j++) value[j] /= r.divisor;
        if (there && thread < r.lanes)
            gpunn__strided_store<N>(r.y, r.y_type, result * r.columns + column, 1, value, r.add);
    }
}

template <int KIND>
static gpunn_status gpunn__reduction_launch_kind(gpunn__cuda *cuda, const gpunn__reduction *r)
{
    unsigned blocks = gpunn__blocks(cuda, r->chunks * r->kept * r->tiles * r->span, 1);
    if (!r->by_column)
        return GPUNN__LAUNCH(cuda, (gpunn__reduce_rows_kernel<KIND>), blocks, GPUNN__THREADS, *r);
    if (r->pack == 8)
        return GPUNN__LAUNCH(cuda, (gpunn__reduce_columns_kernel<KIND, 8>), blocks, GPUNN__THREADS, *r);
    return GPUNN__LAUNCH(cuda, (gpunn__reduce_columns_kernel<KIND, 1>), blocks, GPUNN__THREADS, *r);
}

static gpunn_status gpunn__reduction_launch(gpunn__cuda *cuda, const gpunn__reduction *r)
{
    if (r->kind == GPUNN__SUM) return gpunn__reduction_launch_kind<GPUNN__SUM>(cuda, r);
    if (r->kind == GPUNN__MAX) return gpunn__reduction_launch_kind<GPUNN__MAX>(cuda, r);
    return gpunn__reduction_launch_kind<GPUNN__COUNT>(cuda, r);
}

static gpunn_value gpunn__rank_3(const void *data, gpunn_dtype dtype, int64_t a, int64_t b, int64_t c)
{
    gpunn_value value;
    memset(&value, 0, sizeof value);
    value.data = (void *)data;
    value.dtype = dtype;
    value.rank = 3;
    value.dim[0] = a;
    value.dim[1] = b;
    value.dim[2] = c;
    value.count = a * b * c;
    return value;
}

/* Runs a reduction, in two launches if it has several chunks. gpunn__reduction_shape describes a plain F32
 * sum; the caller has set y and whatever else differs. */
static gpunn_status gpunn__reduction_run(gpunn__cuda *cuda, const gpunn__reduction *r, void *workspace)
{
    if (r->chunks == 1) return gpunn__reduction_launch(cuda, r);
    gpunn__reduction first = *r, second;
    gpunn_value      partial = gpunn__rank_3(workspace, GPUNN_F32, r->chunks, r->kept, r->columns);
    first.y = workspace;
    first.y_type = GPUNN_F32;
    first.divisor = 1;
    first.add = false;
    gpunn__reduction_shape(cuda, &second, &partial, 1, true);
    second.kind = r->kind == GPUNN__COUNT ? GPUNN__SUM : r->kind;
    second.y = r->y;
    second.y_type = r->y_type;
    second.divisor = r->divisor;
    second.add = r->add;
    GPUNN__TRY(gpunn__reduction_launch(cuda, &first));
    return gpunn__reduction_launch(cuda, &second);
}

GPUNN__INTERNAL size_t gpunn__cuda_channel_sums_workspace(const gpunn__cuda *cuda, int64_t n,
                                                          int64_t channels, int64_t inner)
{
    gpunn_value      value = gpunn__rank_3(NULL, GPUNN_F32, n, channels, inner);
    gpunn__reduction r;
    gpunn__reduction_shape(cuda, &r, &value, 5, false);
    return gpunn__reduction_workspace(&r);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_channel_sums(gpunn__cuda *cuda, const void *x, gpunn_dtype dtype,
                                                      int64_t n, int64_t channels, int64_t inner, float *out,
                                                      bool accumulate, void *workspace)
{
    gpunn_value      value = gpunn__rank_3(x, dtype, n, channels, inner);
    gpunn__reduction r;
    gpunn__reduction_shape(cuda, &r, &value, 5, false);
    r.y = out;
    r.add = accumulate;
    return gpunn__reduction_run(cuda, &r, workspace);
}

/* The axes of `from` along which `to` was broadcast. */
static uint32_t gpunn__broadcast_axes(const gpunn_value *from, const gpunn_value *to)
{
    uint32_t axes = 0;
    int      added = from->rank - to->rank;
    for (int d = 0; d < from->rank; d++)
        if (d < added || to->dim[d - added] != from->dim[d]) axes |= 1u << d;
    return axes;
}

GPUNN__INTERNAL size_t gpunn__cuda_sum_to_workspace(const gpunn__cuda *cuda, const gpunn_value *from,
                                                    const gpunn_value *to)
{
    gpunn__reduction r;
    gpunn__reduction_shape(cuda, &r, from, gpunn__broadcast_axes(from, to), false);
    return gpunn__reduction_workspace(&r);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_sum_to(gpunn__cuda *cuda, const gpunn_value *from,
                                                const gpunn_value *to, bool accumulate, void *workspace)
{
    gpunn__reduction r;
    gpunn__reduction_shape(cuda, &r, from, gpunn__broadcast_axes(from, to), false);
    r.y = to->data;
    r.y_type = to->dtype;
    r.add = accumulate;
    return gpunn__reduction_run(cuda, &r, workspace);
}

/* The backward pass of SUM and MAX: a thread writes a pack of dx from the values of its results. */
typedef struct gpunn__spread {
    int rank;
    /* merged axes, last first; stride: of the results, or 0 */
    int64_t      dim[GPUNN_MAX_RANK], stride[GPUNN_MAX_RANK];
    int64_t      count;
    const void  *gradient, *x, *y; /* sum: x and y are NULL */
    const float *equal;            /* max: number of elements that equal it */
    void        *dx;
    gpunn_dtype  gradient_type, x_type, y_type, dx_type;
    float        divisor;
    bool         add;
} gpunn__spread;

template <int N>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__spread_kernel(const gpunn__spread s)
{
    GPUNN__FOLLOW();
    int64_t step = (int64_t)gridDim.x * blockDim.x * N;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < s.count; i += step) {
        int64_t row = gpunn__quotient(i, s.dim[0]), stride = s.stride[0];
        int64_t result = (i - row * s.dim[0]) * stride +
                         gpunn__offset(row, s.rank - 1, s.dim + 1, s.stride + 1);
        float v[N];
        gpunn__strided_load<N>(s.gradient, s.gradient_type, result, stride, v);
        if (s.x) { /* as torch's mask * g / equal: all NaN if the maximum is NaN */
            float x[N], y[N], equal[N];
            gpunn__strided_load<N>(s.x, s.x_type, i, 1, x);
            gpunn__strided_load<N>(s.y, s.y_type, result, stride, y);
            gpunn__strided_load<N>(s.equal, GPUNN_F32, result, stride, equal);
#pragma unroll
            for (int j = 0; j < N; j++)
                v[j] = (gpunn__rounded(x[j], s.y_type) == y[j] ? v[j] : v[j] * 0) / equal[j];
        } else {
#pragma unroll
            for (int j = 0; j < N; j++) v[j] /= s.divisor;
        }
        gpunn__strided_store<N>(s.dx, s.dx_type, i, 1, v, s.add);
    }
}

/* Forward of SUM and MAX: out = the sums, means or maxima. Backward: dx = or += the gradient / divisor. The
 * gradient of a maximum is shared by the elements that equal it. */
static gpunn_status gpunn__reduction_step(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action, int kind)
{
    const gpunn_value *in = &step->in[0];
    gpunn__reduction   r;
    gpunn__reduction_shape(cuda, &r, in, step->attr->axes, false);
    size_t partial_bytes = (gpunn__reduction_workspace(&r) + 63) / 64 * 64;
    if (action == GPUNN__PREPARE) {
        bool count = step->backward && kind == GPUNN__MAX;
        step->workspace_bytes = count || !step->backward ? partial_bytes : 0;
        if (count) step->workspace_bytes += (size_t)step->out.count * sizeof(float);
        return GPUNN_OK;
    }
    float divisor = step->attr->mean ? (float)(in->count / step->out.count) : 1;
    if (action == GPUNN__FORWARD) {
        r.kind = kind;
        r.y = step->out.data;
        r.y_type = step->out.dtype;
        r.divisor = divisor;
        return gpunn__reduction_run(cuda, &r, step->workspace);
    }
    if (!step->grad_in[0].data) return GPUNN_OK;
    gpunn__spread s;
    memset(&s, 0, sizeof s);
    if (kind == GPUNN__MAX) {
        r.kind = GPUNN__COUNT;
        r.reference = step->out.data;
        r.reference_type = step->out.dtype;
        r.y = (char *)step->workspace + partial_bytes;
        GPUNN__TRY(gpunn__reduction_run(cuda, &r, step->workspace));
        s.x = in->data;
        s.x_type = in->dtype;
        s.y = step->out.data;
        s.y_type = step->out.dtype;
        s.equal = (const float *)r.y;
    }
    const gpunn__walk all = gpunn__axes_reduced(in, step->attr->axes);
    s.rank = all.rank > 0 ? all.rank : 1;
    memcpy(s.dim, all.dim, sizeof s.dim);
    memcpy(s.stride, all.stride[1], sizeof s.stride);
    if (all.rank == 0) s.dim[0] = s.stride[0] = 1;
    s.count = in->count;
    s.gradient = step->grad_out.data;
    s.gradient_type = step->grad_out.dtype;
    s.dx = step->grad_in[0].data;
    s.dx_type = step->grad_in[0].dtype;
    s.divisor = divisor;
    s.add = step->accumulate[0];
    if (s.dim[0] % 8 == 0)
        return GPUNN__LAUNCH(cuda, (gpunn__spread_kernel<8>), gpunn__blocks(cuda, s.count, 8), GPUNN__THREADS,
                             s);
    return GPUNN__LAUNCH(cuda, (gpunn__spread_kernel<1>), gpunn__blocks(cuda, s.count, 1), GPUNN__THREADS, s);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_sum(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (!gpunn__is_float(step->in[0].dtype)) return gpunn__cuda_integer(cuda, step, action);
    return gpunn__reduction_step(cuda, step, action, GPUNN__SUM);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_max(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (!gpunn__is_float(step->in[0].dtype)) return gpunn__cuda_integer(cuda, step, action);
    return gpunn__reduction_step(cuda, step, action, GPUNN__MAX);
}

/* ---- gradient_energy: the sum over some axes of the mean squared difference of neighbours -------------- */

typedef struct gpunn__energy {
    int64_t     n;
    int         count; /* number of axes, without those of one element */
    int64_t     size[GPUNN_MAX_RANK], stride[GPUNN_MAX_RANK];
    float       share[GPUNN_MAX_RANK]; /* weight of one difference in the mean along that axis */
    const void *x;
    gpunn_dtype dtype;
    void       *dx; /* of x's dtype */
    const void *dy;
    gpunn_dtype dy_dtype;
    bool        accumulate;
} gpunn__energy;

/* The position of element i along axis k of these axes. */
__device__ __forceinline__ int64_t gpunn__energy_at(const gpunn__energy &e, int k, int64_t i)
{
    int64_t place = gpunn__quotient(i, e.stride[k]);
    return place - gpunn__quotient(place, e.size[k]) * e.size[k];
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__energy_kernel(const gpunn__energy e, double *partials)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    double  sum = 0;
    for (; i < e.n; i += step) {
        float v = gpunn__load(e.x, e.dtype, i), energy = 0;
        for (int k = 0; k < e.count; k++) {
            if (gpunn__energy_at(e, k, i) == e.size[k] - 1) continue;
            float difference = gpunn__load(e.x, e.dtype, i + e.stride[k]) - v;
            energy += e.share[k] * difference * difference;
        }
        sum += energy;
    }
    sum = gpunn__block_reduce(sum, gpunn__add());
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/* One block adds up the partial sums. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__energy_finish_kernel(const double *partials, int count, void *y, gpunn_dtype dtype)
{
    GPUNN__FOLLOW();
    double sum = 0;
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) sum += partials[i];
    sum = gpunn__block_reduce(sum, gpunn__add());
    if (threadIdx.x == 0) gpunn__store(y, dtype, 0, (float)sum);
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__energy_back_kernel(const gpunn__energy e)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    float   dy = 2 * gpunn__load(e.dy, e.dy_dtype, 0);
    for (; i < e.n; i += step) {
        float v = gpunn__load(e.x, e.dtype, i), sum = 0;
        for (int k = 0; k < e.count; k++) {
            int64_t at = gpunn__energy_at(e, k, i);
            float   gradient = at > 0 ? v - gpunn__load(e.x, e.dtype, i - e.stride[k]) : 0;
            if (at < e.size[k] - 1) gradient -= gpunn__load(e.x, e.dtype, i + e.stride[k]) - v;
            sum += e.share[k] * gradient;
        }
        sum *= dy;
        gpunn__store(e.dx, e.dtype, i, e.accumulate ? gpunn__load(e.dx, e.dtype, i) + sum : sum);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_gradient_energy(gpunn__cuda *cuda, gpunn_step *step,
                                                         gpunn__action action)
{
    const gpunn_value *x = &step->in[0];
    gpunn__energy      e;
    double             share[GPUNN_MAX_RANK];
    unsigned           blocks = gpunn__blocks(cuda, x->count, 4);
    if (action == GPUNN__PREPARE) {
        if (!step->backward) step->workspace_bytes = blocks * sizeof(double);
        return GPUNN_OK;
    }
    memset(&e, 0, sizeof e);
    e.n = x->count;
    e.count = gpunn__energy_axes(step, e.size, e.stride, share);
    for (int k = 0; k < e.count; k++) e.share[k] = (float)share[k];
    e.x = x->data;
    e.dtype = x->dtype;
    if (action == GPUNN__FORWARD) {
        double *partials = (double *)step->workspace;
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__energy_kernel, blocks, GPUNN__THREADS, e, partials));
        return GPUNN__LAUNCH(cuda, gpunn__energy_finish_kernel, 1, GPUNN__THREADS, partials, (int)blocks,
                             step->out.data, step->out.dtype);
    }
    e.dy = step->grad_out.data;
    e.dy_dtype = step->grad_out.dtype;
    e.dx = step->grad_in[0].data;
    e.accumulate = step->accumulate[0];
    return GPUNN__LAUNCH(cuda, gpunn__energy_back_kernel, blocks, GPUNN__THREADS, e);
}

/* ---- along one axis: x[outer][n][inner] ---------------------------------------------------------------- */

GPUNN__INTERNAL gpunn__along gpunn__along_axis(const gpunn__cuda *cuda, const gpunn_step *step, int axis)
{
    gpunn__along       a;
    const gpunn_value *in = &step->in[0], *out = step->backward ? &step->grad_in[0] : &step->out;
    memset(&a, 0, sizeof a);
    a.n = in->rank ? in->dim[axis] : 1;
    a.inner = 1;
    for (int d = axis + 1; d < in->rank; d++) a.inner *= in->dim[d];
    a.rows = in->count / a.n;
    a.lanes = gpunn__lanes_of(cuda, a.rows, a.n, a.inner);
    a.x = in->data;
    a.x_type = in->dtype;
    a.y = step->out.data;
    a.y_type = step->out.dtype;
    a.gradient = step->grad_out.data;
    a.gradient_type = step->grad_out.dtype;
    a.out = out->data;
    a.out_type = out->dtype;
    a.add = step->backward && step->accumulate[0];
    return a;
}

GPUNN__INTERNAL unsigned gpunn__along_blocks(const gpunn__cuda *cuda, const gpunn__along *a)
{
    return gpunn__blocks(cuda, a->rows * a->lanes, 1);
}

/* ---- cumsum: along a row, in the backward pass from its end -------------------------------------------- *
 * Many rows use one thread each.
 * Otherwise a block scans a row piece by piece, one element per thread, and carries the sum over. A long
 * row that would leave the device idle is cut into parts, which an earlier launch has summed. */

enum { GPUNN__CUMSUM_PART = 8 * GPUNN__THREADS };
typedef struct gpunn__cumsum {
    gpunn__along along; /* x: or the gradient */
    bool         reverse;
    int64_t      part, parts; /* elements per part; parts per row */
    float       *sums;        /* [rows][parts]; NULL: there is one part */
} gpunn__cumsum;

__device__ __forceinline__ void gpunn__cumsum_store(const gpunn__cumsum &k, int64_t at, float sum)
{
    if (k.along.add) sum += gpunn__load(k.along.out, k.along.out_type, at);
    gpunn__store(k.along.out, k.along.out_type, at, sum);
}

/* One thread per row. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__cumsum_rows_kernel(const gpunn__cumsum k)
{
    GPUNN__FOLLOW();
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; row < k.along.rows; row += (int64_t)gridDim.x * blockDim.x) {
        float sum = 0;
        for (int64_t i = 0; i < k.along.n; i++) {
            int64_t at = gpunn__along_place(k.along, row, i, k.reverse);
            sum += gpunn__load(k.along.x, k.along.x_type, at);
            gpunn__cumsum_store(k, at, sum);
        }
    }
}

/* The sum of each part. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__cumsum_sums_kernel(const gpunn__cumsum k)
{
    GPUNN__FOLLOW();
    for (int64_t unit = blockIdx.x; unit < k.along.rows * k.parts; unit += gridDim.x) {
        const int64_t row = gpunn__quotient(unit, k.parts), begin = (unit - row * k.parts) * k.part,
                      end = begin + k.part;
        float sum = 0;
        for (int64_t i = begin + threadIdx.x; i < end && i < k.along.n; i += GPUNN__THREADS)
            sum += gpunn__load(k.along.x, k.along.x_type, gpunn__along_place(k.along, row, i, k.reverse));
        sum = gpunn__block_reduce(sum, gpunn__add());
        if (threadIdx.x == 0) k.sums[unit] = sum;
    }
}

/* The sum of the parts before this one. */
__device__ __forceinline__ float gpunn__cumsum_before(const gpunn__cumsum &k, int64_t row, int64_t part)
{
    float sum = 0;
    if (!k.sums) return 0;
    for (int64_t number = threadIdx.x; number < part; number += GPUNN__THREADS)
        sum += k.sums[row * k.parts + number];
    return gpunn__block_reduce(sum, gpunn__add());
}

/* One block per part: a Hillis-Steele scan over GPUNN__THREADS elements at a time. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__cumsum_block_kernel(const gpunn__cumsum k)
{
    GPUNN__FOLLOW();
    __shared__ float sums[GPUNN__THREADS];
    int              t = (int)threadIdx.x;
    for (int64_t unit = blockIdx.x; unit < k.along.rows * k.parts; unit += gridDim.x) {
        const int64_t row = gpunn__quotient(unit, k.parts), part = unit - row * k.parts;
        const int64_t end = (part + 1) * k.part < k.along.n ? (part + 1) * k.part : k.along.n;
        float         before = gpunn__cumsum_before(k, row, part);
        for (int64_t start = part * k.part; start < end; start += GPUNN__THREADS) {
            int64_t at = start + t < end ? gpunn__along_place(k.along, row, start + t, k.reverse) : -1;
            float   sum = at >= 0 ? gpunn__load(k.along.x, k.along.x_type, at) : 0;
            for (int distance = 1; distance < GPUNN__THREADS; distance *= 2) {
                __syncthreads(); /* the previous contents of sums have been read */
                sums[t] = sum;
                __syncthreads();
                if (t >= distance) sum += sums[t - distance];
            }
            __syncthreads();
            sums[t] = sum;
            __syncthreads();
            if (at >= 0) gpunn__cumsum_store(k, at, before + sum);
            before += sums[GPUNN__THREADS - 1];
        }
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_cumsum(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    gpunn__cumsum k;
    memset(&k, 0, sizeof k);
    k.along = gpunn__along_axis(cuda, step, step->attr->axis);
    const bool cut = k.along.n > GPUNN__CUMSUM_PART && k.along.rows < (int64_t)cuda->multiprocessors * 4;
    k.reverse = step->backward;
    k.part = cut ? (int64_t)GPUNN__CUMSUM_PART : k.along.n;
    k.parts = (k.along.n + k.part - 1) / k.part;
    if (step->backward && !step->grad_in[0].data) return GPUNN_OK;
    if (action == GPUNN__PREPARE) {
        if (cut) step->workspace_bytes = (size_t)(k.along.rows * k.parts) * sizeof *k.sums;
        return GPUNN_OK;
    }
    if (step->backward) {
        k.along.x = k.along.gradient;
        k.along.x_type = k.along.gradient_type;
    }
    if (k.along.n <= 32 || k.along.rows >= (int64_t)cuda->multiprocessors * 256)
        return GPUNN__LAUNCH(cuda, gpunn__cumsum_rows_kernel, gpunn__blocks(cuda, k.along.rows, 1),
                             GPUNN__THREADS, k);
    const unsigned blocks = gpunn__blocks(cuda, k.along.rows * k.parts * GPUNN__THREADS, 1);
    k.sums = cut ? (float *)step->workspace : NULL;
    if (cut) GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__cumsum_sums_kernel, blocks, GPUNN__THREADS, k));
    return GPUNN__LAUNCH(cuda, gpunn__cumsum_block_kernel, blocks, GPUNN__THREADS, k);
}

/* ---- cross: vector products of the 3 elements along an axis: x[outer][3][inner] ------------------------ */

typedef struct gpunn__cross {
    gpunn_value a, b, y;
    int64_t     count, inner; /* count: vectors */
    bool        add;
} gpunn__cross;

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__cross_kernel(const gpunn__cross c)
{
    GPUNN__FOLLOW();
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at < c.count; at += (int64_t)gridDim.x * blockDim.x) {
        const int64_t first = at + 2 * c.inner * gpunn__quotient(at, c.inner);
        float         a[3], b[3];
        for (int k = 0; k < 3; k++) {
            a[k] = gpunn__load(c.a.data, c.a.dtype, first + k * c.inner);
            b[k] = gpunn__load(c.b.data, c.b.dtype, first + k * c.inner);
        }
        for (int k = 0; k < 3; k++) {
            const int     p = (k + 1) % 3, q = (k + 2) % 3;
            const int64_t place = first + k * c.inner;
            const float   old = c.add ? gpunn__load(c.y.data, c.y.dtype, place) : 0;
            gpunn__store(c.y.data, c.y.dtype, place, old + (a[p] * b[q] - a[q] * b[p]));
        }
    }
}

static gpunn_status gpunn__cross_run(gpunn__cuda *cuda, const gpunn_step *step, const gpunn_value *a,
                                     const gpunn_value *b, const gpunn_value *y, bool add)
{
    gpunn__cross c = {*a, *b, *y, a->count / 3, 1, add};
    for (int d = step->attr->axis + 1; d < a->rank; d++) c.inner *= a->dim[d];
    return y->data
               ? GPUNN__LAUNCH(cuda, gpunn__cross_kernel, gpunn__blocks(cuda, c.count, 1), GPUNN__THREADS, c)
               : GPUNN_OK;
}

/* da = b x g, db = g x a. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_cross(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *a = &step->in[0], *b = &step->in[1], *g = &step->grad_out;
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    if (action == GPUNN__FORWARD) return gpunn__cross_run(cuda, step, a, b, &step->out, false);
    GPUNN__TRY(gpunn__cross_run(cuda, step, b, g, &step->grad_in[0], step->accumulate[0]));
    return gpunn__cross_run(cuda, step, g, a, &step->grad_in[1], step->accumulate[1]);
}

/* The sparse gradient of a table, grad_in[1]: adds line i of `terms` to row rows[i]. The workspace is taken
 * from the arena. prepares: sets only its size. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_add_rows(gpunn__cuda *cuda, gpunn_step *step, const int64_t *rows,
                                                  const float *terms, int64_t count, gpunn__arena *arena,
                                                  bool prepares);

/* ==== >>cuda/indexing ==================================================================================== *
 * Ops that select elements by integer indices (gather, scatter, embedding), and ops that compute indices
 * (argmax, topk). */
/* ---- argmax: the first maximum, NaN above everything --------------------------------------------------- */

typedef struct gpunn__smaller {
    __device__ int64_t operator()(int64_t a, int64_t b) const
    {
        return a < b ? a : b;
    }
} gpunn__smaller;

struct gpunn__argmax_visit {
    const void *x;
    gpunn_dtype dtype;
    int64_t     stride;
    float       best;
    int64_t     at_best;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float v[N];
        gpunn__strided_load<N>(x, dtype, i, stride, v);
#pragma unroll
        for (int j = 0; j < N; j++) {
            bool more = v[j] > best || (v[j] != v[j] && best == best),
                 same = v[j] == best || (v[j] != v[j] && best != best);
            best = more ? v[j] : best;
            at_best = more || (same && c + j < at_best) ? c + j : at_best;
        }
    }
};

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__argmax_kernel(const gpunn__along a)
{
    GPUNN__FOLLOW();
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row  row = gpunn__along_row(a, first);
        gpunn__argmax_visit visit = {a.x, a.x_type, row.stride, -INFINITY, INT64_MAX};
        gpunn__strided_visit(row, visit);
        float   best = gpunn__lanes_reduce(visit.best, gpunn__larger(), a.lanes);
        bool    mine = visit.best == best || (visit.best != visit.best && best != best);
        int64_t at = gpunn__lanes_reduce(mine ? visit.at_best : INT64_MAX, gpunn__smaller(), a.lanes);
        if (row.index < a.rows && row.thread == 0) ((int64_t *)a.out)[row.index] = at;
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_argmax(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    gpunn__along a = gpunn__along_axis(cuda, step, step->attr->axis);
    return GPUNN__LAUNCH(cuda, gpunn__argmax_kernel, gpunn__along_blocks(cuda, &a), GPUNN__THREADS, a);
}

/* ---- sorting ------------------------------------------------------------------------------------------- *
 * A block sorts up to GPUNN__BLOCK_SORT codes in shared memory. Longer rows are sorted in global memory by
 * a stable radix sort on ascending 32-bit keys, with 8 bits per pass. One launch counts the digits of each
 * part of a row, the next moves its elements. A pass reads the elements twice and writes them once: 24
 * bytes per element. */

enum { GPUNN__BLOCK_SORT = 2048 };

/* Batcher's bitonic sort, descending. size is a power of 2. All threads of the block call it; their number
 * may be any. */
__device__ __forceinline__ void gpunn__block_sort(unsigned long long *code, unsigned size)
{
    for (unsigned width = 2; width <= size; width *= 2)
        for (unsigned distance = width / 2; distance > 0; distance /= 2) {
            __syncthreads();
            for (unsigned i = threadIdx.x; i < size / 2; i += blockDim.x) {
                const unsigned           low = 2 * i - (i & (distance - 1)), high = low + distance;
                const unsigned long long a = code[low], b = code[high];
                if ((a < b) != ((low & width) == 0)) continue;
                code[low] = b;
                code[high] = a;
            }
        }
    __syncthreads();
}

/* The number of parts per row that gives every multiprocessor two blocks. */
static int64_t gpunn__parts_of_row(const gpunn__cuda *cuda, int64_t rows)
{
    const int64_t parts = (int64_t)cuda->multiprocessors * 2 / rows;
    return parts < 1 ? 1 : parts;
}

enum {
    GPUNN__DIGITS = 256, /* also the threads of a block */
    GPUNN__SORT_WARPS = GPUNN__DIGITS / 32,
    GPUNN__SORT_ROUNDS = 4,
    GPUNN__SORT_TILE = GPUNN__DIGITS * GPUNN__SORT_ROUNDS
};

typedef struct gpunn__sorting {
    uint2 *sorted, *other; /* [rows][count]: (key, index) */
    /* [rows][parts][GPUNN__DIGITS]: how many elements of a part have that digit */
    unsigned *digits;
    int64_t   rows, count, part; /* part: elements per block, in whole tiles */
    int64_t   parts;             /* parts per row */
    int       shift;             /* bit position of the current digit */
} gpunn__sorting;

/* The keys of all passes but the first. */
typedef struct gpunn__sorted_keys {
    const uint2     *sorted;
    __device__ uint2 operator()(const gpunn__sorting &s, int64_t row, int64_t i) const
    {
        return sorted[row * s.count + i];
    }
} gpunn__sorted_keys;

typedef struct gpunn__sort_part {
    int64_t row, number, begin, end;
} gpunn__sort_part;

__device__ __forceinline__ gpunn__sort_part gpunn__sort_part_of(const gpunn__sorting &s)
{
    const int64_t row = gpunn__quotient(blockIdx.x, s.parts), number = blockIdx.x - row * s.parts,
                  begin = number * s.part;
    return {row, number, begin, begin + s.part < s.count ? begin + s.part : s.count};
}

/* Counters per warp. The last one is for threads without an element. */
typedef unsigned gpunn__sort_counts[GPUNN__SORT_WARPS][GPUNN__DIGITS + 1];

__device__ __forceinline__ void gpunn__sort_clear(gpunn__sort_counts &counts)
{
    for (int w = 0; w < GPUNN__SORT_WARPS; w++) counts[w][threadIdx.x] = 0;
    __syncthreads();
}

/* How many elements of that digit this warp has met before this one. Updates counts[warp], the number met so
 * far. The whole warp must call it. */
__device__ __forceinline__ unsigned gpunn__sort_rank(unsigned digit, gpunn__sort_counts &counts)
{
    const unsigned lane = threadIdx.x & 31, equals = __match_any_sync(0xFFFFFFFFu, digit);
    const unsigned before = (unsigned)__popc(equals & ((1u << lane) - 1));
    unsigned      *count = &counts[threadIdx.x >> 5][digit];
    const unsigned met = *count;
    __syncwarp();
    if (before == 0) *count = met + (unsigned)__popc(equals);
    __syncwarp();
    return met + before;
}

template <typename Keys>
__device__ __forceinline__ unsigned gpunn__sort_digit(const gpunn__sorting &s, const Keys &keys,
                                                      const gpunn__sort_part &part, int64_t i, uint2 *item)
{
    if (i >= part.end) return GPUNN__DIGITS;
    *item = keys(s, part.row, i);
    return item->x >> s.shift & (GPUNN__DIGITS - 1);
}

template <typename Keys>
static __global__ void __launch_bounds__(GPUNN__DIGITS)
    gpunn__sort_count_kernel(const gpunn__sorting s, const Keys keys)
{
    GPUNN__FOLLOW();
    __shared__ gpunn__sort_counts counts;
    const gpunn__sort_part        part = gpunn__sort_part_of(s);
    uint2                         item;
    gpunn__sort_clear(counts);
    for (int64_t base = part.begin + (threadIdx.x & ~31u); base < part.end; base += GPUNN__DIGITS)
        (void)gpunn__sort_rank(gpunn__sort_digit(s, keys, part, base + (threadIdx.x & 31), &item), counts);
    __syncthreads();
    unsigned found = 0;
    for (int w = 0; w < GPUNN__SORT_WARPS; w++) found += counts[w][threadIdx.x];
    s.digits[(int64_t)blockIdx.x * GPUNN__DIGITS + threadIdx.x] = found;
}

/* Where the part's elements of digit threadIdx.x start: after all smaller digits and after earlier parts. */
__device__ __forceinline__ unsigned gpunn__sort_start(const gpunn__sorting &s, const gpunn__sort_part &part)
{
    __shared__ unsigned total[GPUNN__DIGITS];
    const unsigned     *digits = s.digits + part.row * s.parts * GPUNN__DIGITS + threadIdx.x;
    unsigned            all = 0, at = 0;
#pragma unroll 16 /* keeps 16 loads in flight */
    for (int64_t number = 0; number < s.parts; number++) {
        const unsigned found = digits[number * GPUNN__DIGITS];
        all += found;
        at += number < part.number ? found : 0;
    }
    total[threadIdx.x] = all;
    __syncthreads();
    for (unsigned digit = 0; digit < threadIdx.x; digit++) at += total[digit];
    return at;
}

template <typename Keys>
static __global__ void __launch_bounds__(GPUNN__DIGITS)
    gpunn__sort_move_kernel(const gpunn__sorting s, const Keys keys)
{
    GPUNN__FOLLOW();
    __shared__ gpunn__sort_counts counts;
    const gpunn__sort_part        part = gpunn__sort_part_of(s);
    const unsigned                warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    unsigned                      at = gpunn__sort_start(s, part);
    for (int64_t tile = part.begin; tile < part.end; tile += GPUNN__SORT_TILE) {
        uint2    item[GPUNN__SORT_ROUNDS];
        unsigned digit[GPUNN__SORT_ROUNDS], rank[GPUNN__SORT_ROUNDS];
        gpunn__sort_clear(counts);
#pragma unroll
        for (int j = 0; j < GPUNN__SORT_ROUNDS; j++) {
            digit[j] = gpunn__sort_digit(s, keys, part, tile + (warp * GPUNN__SORT_ROUNDS + j) * 32 + lane,
                                         &item[j]);
            rank[j] = gpunn__sort_rank(digit[j], counts);
        }
        __syncthreads();
        for (int w = 0; w < GPUNN__SORT_WARPS; w++) {
            const unsigned found = counts[w][threadIdx.x];
            counts[w][threadIdx.x] = at;
            at += found;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < GPUNN__SORT_ROUNDS; j++)
            if (digit[j] < GPUNN__DIGITS)
                s.other[part.row * s.count + counts[warp][digit[j]] + rank[j]] = item[j];
        __syncthreads();
    }
}

/* Splits rows into just as many parts as fill the device. The buffers are not set. */
static gpunn__sorting gpunn__sorting_of(const gpunn__cuda *cuda, int64_t rows, int64_t count)
{
    gpunn__sorting s;
    const int64_t  tiles = (count + GPUNN__SORT_TILE - 1) / GPUNN__SORT_TILE,
                  most = gpunn__parts_of_row(cuda, rows);
    memset(&s, 0, sizeof s);
    s.rows = rows;
    s.count = count;
    s.part = (tiles + most - 1) / most * GPUNN__SORT_TILE;
    s.parts = (count + s.part - 1) / s.part;
    return s;
}

static size_t gpunn__sort_workspace(const gpunn__sorting *s)
{
    return (size_t)s->rows *
           (2 * (size_t)s->count * sizeof *s->sorted + (size_t)s->parts * GPUNN__DIGITS * sizeof *s->digits);
}

template <typename Keys>
static gpunn_status gpunn__sort_pass(gpunn__cuda *cuda, gpunn__sorting *s, const Keys &keys)
{
    const unsigned blocks = (unsigned)(s->rows * s->parts);
    GPUNN__TRY(GPUNN__LAUNCH(cuda, (gpunn__sort_count_kernel<Keys>), blocks, GPUNN__DIGITS, *s, keys));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, (gpunn__sort_move_kernel<Keys>), blocks, GPUNN__DIGITS, *s, keys));
    uint2 *sorted = s->other;
    s->other = s->sorted;
    s->sorted = sorted;
    return GPUNN_OK;
}

/* Sorts the pairs (key, value) that keys(s, row, i) returns into s->sorted. largest is the largest possible
 * key. */
template <typename Keys>
static gpunn_status gpunn__sort(gpunn__cuda *cuda, gpunn__sorting *s, void *workspace, const Keys &keys,
                                int64_t largest)
{
    s->sorted = (uint2 *)workspace;
    s->other = s->sorted + s->rows * s->count;
    s->digits = (unsigned *)(s->other + s->rows * s->count);
    GPUNN__TRY(gpunn__sort_pass(cuda, s, keys));
    for (s->shift = 8; largest >> s->shift; s->shift += 8) {
        const gpunn__sorted_keys sorted = {s->sorted};
        GPUNN__TRY(gpunn__sort_pass(cuda, s, sorted));
    }
    return GPUNN_OK;
}

/* ---- topk ---------------------------------------------------------------------------------------------- *
 * topk works in rounds. A block lists the codes of its part of a row that exceed the smallest of the k
 * largest so far. It sorts and cuts the list when it is full and at the end. The next round reads what the
 * blocks kept. If k is above GPUNN__TOPK_FEW and the row longer than the list, the whole row is sorted in
 * memory, in 9 launches. */

enum { GPUNN__TOPK_FEW = 512 };
typedef struct gpunn__topk {
    gpunn__along              along;
    int64_t                   k, n, part, parts; /* n: codes per row in this round; part: codes per block */
    bool                      largest;
    int                       threads; /* threads per block */
    const unsigned long long *from;    /* [rows][n]; NULL: computed from x. 0: no code */
    unsigned long long       *to;      /* [rows][parts][k]; NULL: the result is written */
} gpunn__topk;

/* The code of element i of a row. */
__device__ __forceinline__ unsigned long long gpunn__topk_code_of(const gpunn__topk &t, int64_t row,
                                                                  int64_t i)
{
    const gpunn__along &a = t.along;
    const int64_t       outer = gpunn__quotient(row, a.inner),
                  at = (outer * a.n + i) * a.inner + row - outer * a.inner;
    return gpunn__topk_code(gpunn__load(a.x, a.x_type, at), i, t.largest);
}

/* Writes place as element i of a row of the result. */
__device__ __forceinline__ void gpunn__topk_put(const gpunn__topk &t, int64_t row, int64_t i, unsigned place)
{
    const int64_t inner = t.along.inner, outer = gpunn__quotient(row, inner);
    ((int64_t *)t.along.out)[(outer * t.k + i) * inner + row - outer * inner] = place;
}

/* Sorts the `found` codes of the list and keeps the k largest, padded with 0. Returns the smallest of these
 * k. */
__device__ __forceinline__ unsigned long long gpunn__topk_cut(const gpunn__topk &t, unsigned long long *list,
                                                              unsigned found)
{
    unsigned size = 1;
    while (size < found || size < t.k) size *= 2;
    for (unsigned i = found + threadIdx.x; i < size; i += blockDim.x) list[i] = 0;
    gpunn__block_sort(list, size);
    return list[t.k - 1];
}

static __global__ void __launch_bounds__(GPUNN__BLOCK_SORT / 2, 1) gpunn__topk_kernel(const gpunn__topk t)
{
    GPUNN__FOLLOW();
    __shared__ unsigned long long list[GPUNN__BLOCK_SORT], found;
    for (int64_t unit = blockIdx.x; unit < t.along.rows * t.parts; unit += gridDim.x) {
        const int64_t      row = gpunn__quotient(unit, t.parts), begin = (unit - row * t.parts) * t.part;
        const int64_t      end = begin + t.part < t.n ? begin + t.part : t.n;
        unsigned long long least = 0;
        if (threadIdx.x == 0) found = 0;
        for (int64_t base = begin; base < end; base += blockDim.x) {
            __syncthreads();
            const unsigned before = (unsigned)found;
            __syncthreads();
            if (before + blockDim.x > GPUNN__BLOCK_SORT) {
                least = gpunn__topk_cut(t, list, before);
                if (threadIdx.x == 0) found = (unsigned long long)t.k;
                __syncthreads();
            }
            const int64_t      i = base + threadIdx.x;
            unsigned long long code = 0;
            if (i < end) code = t.from ? t.from[row * t.n + i] : gpunn__topk_code_of(t, row, i);
            if (code > least) list[atomicAdd(&found, 1ull)] = code;
        }
        __syncthreads();
        (void)gpunn__topk_cut(t, list, (unsigned)found);
        for (int64_t i = threadIdx.x; i < t.k; i += blockDim.x)
            if (t.to)
                t.to[unit * t.k + i] = list[i];
            else
                gpunn__topk_put(t, row, i, 0xFFFFFFFFu - (unsigned)list[i]);
        __syncthreads();
    }
}

/* Plans a round over n codes per row: just as many parts as fill the device. */
static void gpunn__topk_round(const gpunn__cuda *cuda, gpunn__topk *t, int64_t n)
{
    const int64_t tiles = (n + GPUNN__BLOCK_SORT - 1) / GPUNN__BLOCK_SORT,
                  most = gpunn__parts_of_row(cuda, t->along.rows);
    t->n = n;
    t->part = (tiles + most - 1) / most * GPUNN__BLOCK_SORT;
    t->parts = (n + t->part - 1) / t->part;
    t->threads = gpunn__power_of_2(n, GPUNN__BLOCK_SORT) / 2;
    if (t->threads < 32) t->threads = 32;
}

static gpunn_status gpunn__topk_rounds(gpunn__cuda *cuda, gpunn__topk *t, unsigned long long *workspace)
{
    gpunn__topk_round(cuda, t, t->along.n);
    for (; t->parts > 1; workspace += t->along.rows * t->n) {
        t->to = workspace;
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__topk_kernel,
                                 gpunn__blocks(cuda, t->along.rows * t->parts * GPUNN__THREADS, 1),
                                 (unsigned)t->threads, *t));
        t->from = t->to;
        gpunn__topk_round(cuda, t, t->parts * t->k);
    }
    t->to = NULL;
    return GPUNN__LAUNCH(cuda, gpunn__topk_kernel, gpunn__blocks(cuda, t->along.rows * GPUNN__THREADS, 1),
                         (unsigned)t->threads, *t);
}

/* Bytes for the codes that all rounds but the last keep. */
static size_t gpunn__topk_workspace(const gpunn__cuda *cuda, const gpunn__topk *t)
{
    gpunn__topk round = *t;
    size_t      kept = 0;
    for (gpunn__topk_round(cuda, &round, t->along.n); round.parts > 1;
         gpunn__topk_round(cuda, &round, round.parts * t->k))
        kept += (size_t)(t->along.rows * round.parts * t->k);
    return kept * sizeof *t->to;
}

/* Ascending keys in topk's order. */
typedef struct gpunn__topk_keys {
    gpunn__topk      t;
    __device__ uint2 operator()(const gpunn__sorting &, int64_t row, int64_t i) const
    {
        return make_uint2(~(unsigned)(gpunn__topk_code_of(t, row, i) >> 32), (unsigned)i);
    }
} gpunn__topk_keys;

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__topk_write_kernel(const gpunn__topk t, const uint2 *sorted)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < t.along.rows * t.k; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = gpunn__quotient(i, t.k), place = i - row * t.k;
        gpunn__topk_put(t, row, place, sorted[row * t.along.n + place].y);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_topk_indices(gpunn__cuda *cuda, gpunn_step *step,
                                                      gpunn__action action)
{
    gpunn__topk t;
    memset(&t, 0, sizeof t);
    t.along = gpunn__along_axis(cuda, step, step->attr->axis);
    t.k = step->out.dim[step->attr->axis];
    t.largest = step->attr->largest;
    gpunn__sorting s = gpunn__sorting_of(cuda, t.along.rows, t.along.n);
    const bool     few = t.along.n <= GPUNN__BLOCK_SORT || t.k <= GPUNN__TOPK_FEW;
    if (action == GPUNN__PREPARE) {
        if (t.along.n > UINT32_MAX)
            return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                    "topk over %lld elements is not possible; the limit is 2^32 - 1",
                                    (long long)t.along.n);
        step->workspace_bytes = few ? gpunn__topk_workspace(cuda, &t) : gpunn__sort_workspace(&s);
        return GPUNN_OK;
    }
    if (few) return gpunn__topk_rounds(cuda, &t, (unsigned long long *)step->workspace);
    const gpunn__topk_keys keys = {t};
    GPUNN__TRY(gpunn__sort(cuda, &s, step->workspace, keys, UINT32_MAX));
    return GPUNN__LAUNCH(cuda, gpunn__topk_write_kernel, gpunn__blocks(cuda, t.along.rows * t.k, 1),
                         GPUNN__THREADS, t, s.sorted);
}

/* ---- sample -------------------------------------------------------------------------------------------- *
 * A block sorts the classes of a short row. Of longer ones each launch sums the weights of the keys that
 * begin with the digits found so far, by their next digit: first for the end of the nucleus, then for the
 * class that is drawn. The fifth digit counts the parts of the row, from the end. */

enum { GPUNN__NUCLEUS_FEW = 1024, GPUNN__NUCLEUS_PASSES = 2 * GPUNN__NUCLEUS_LEVELS };
typedef unsigned long long gpunn__mass;

typedef struct gpunn__search {
    gpunn__mass key;            /* the digits found */
    gpunn__mass before, target; /* the sum of weights of larger keys; which sum is to be passed */
} gpunn__search;

/* Of a row. All is 0 at first. */
typedef struct gpunn__nucleus_row {
    gpunn__mass   most;                          /* key */
    gpunn__search search[GPUNN__NUCLEUS_PASSES]; /* as each pass begins */
    gpunn__mass   sums[GPUNN__NUCLEUS_PASSES][GPUNN__NUCLEUS_DIGITS];
    unsigned      done; /* blocks of the last pass */
} gpunn__nucleus_row;

typedef struct gpunn__nucleus {
    const void         *logits, *draw;
    gpunn_dtype         logits_type, draw_type;
    int64_t            *drawn;
    int64_t             rows, n, part, parts; /* part: classes that a block takes */
    float               scale, top_p;
    gpunn__nucleus_row *row;
} gpunn__nucleus;

typedef struct gpunn__nucleus_part {
    int64_t row, number, begin, end;
} gpunn__nucleus_part;

__device__ __forceinline__ gpunn__nucleus_part gpunn__nucleus_part_of(const gpunn__nucleus &s, int64_t row,
                                                                      int64_t number)
{
    const int64_t begin = number * s.part;
    return {row, number, begin, begin + s.part < s.n ? begin + s.part : s.n};
}

__device__ __forceinline__ gpunn__nucleus_part gpunn__nucleus_own_part(const gpunn__nucleus &s)
{
    const int64_t row = gpunn__quotient(blockIdx.x, s.parts);
    return gpunn__nucleus_part_of(s, row, blockIdx.x - row * s.parts);
}

__device__ __forceinline__ uint32_t gpunn__nucleus_key_of(const gpunn__nucleus &s, int64_t row, int64_t i)
{
    return gpunn__nucleus_key(gpunn__load(s.logits, s.logits_type, row * s.n + i));
}

/* The target of the class that is drawn. */
__device__ __forceinline__ gpunn__mass gpunn__nucleus_target(const gpunn__nucleus &s, int64_t row,
                                                             gpunn__mass kept, uint32_t most)
{
    return gpunn__nucleus_draw(kept, gpunn__load(s.draw, s.draw_type, row), most);
}

/* The sum of the block's values up to this thread's. */
__device__ __forceinline__ gpunn__mass gpunn__block_sums(gpunn__mass value)
{
    __shared__ gpunn__mass part[32];
    const unsigned         lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (unsigned distance = 1; distance < 32; distance *= 2) {
        const gpunn__mass other = __shfl_sync(0xFFFFFFFFu, value, (lane - distance) & 31);
        if (lane >= distance) value += other;
    }
    __syncthreads(); /* of an earlier call: everybody has read part */
    if (lane == 31) part[warp] = value;
    __syncthreads();
    for (unsigned w = 0; w < warp; w++) value += part[w];
    return value;
}

/* Whether a sum that reaches `upto` by this mass passes the target by it. */
__device__ __forceinline__ bool gpunn__passes(gpunn__mass upto, gpunn__mass mass, gpunn__mass target)
{
    return upto > target && upto - mass <= target;
}

static __global__ void __launch_bounds__(GPUNN__NUCLEUS_FEW) gpunn__nucleus_few_kernel(const gpunn__nucleus s)
{
    GPUNN__FOLLOW();
    __shared__ unsigned long long code[GPUNN__NUCLEUS_FEW];
    __shared__ gpunn__mass        kept;
    const unsigned                i = threadIdx.x;
    for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
        code[i] = i < s.n ? gpunn__topk_code(gpunn__load(s.logits, s.logits_type, row * s.n + i), i, true)
                          : 0;
        gpunn__block_sort(code, blockDim.x);
        const uint32_t    key = (uint32_t)(code[i] >> 32), most = (uint32_t)(code[0] >> 32);
        const gpunn__mass weight = i < s.n ? gpunn__nucleus_weight(key, most, s.scale) : 0,
                          upto = gpunn__block_sums(weight);
        if (i == blockDim.x - 1) kept = upto;
        __syncthreads();
        const bool ends = s.top_p < 1 && gpunn__passes(upto, weight, gpunn__nucleus_end(kept, s.top_p));
        __syncthreads();
        if (ends) kept = upto;
        __syncthreads();
        if (gpunn__passes(upto, weight, gpunn__nucleus_target(s, row, kept, most)))
            s.drawn[row] = 0xFFFFFFFFu - (uint32_t)code[i];
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(GPUNN__NUCLEUS_DIGITS)
    gpunn__nucleus_most_kernel(const gpunn__nucleus s)
{
    GPUNN__FOLLOW();
    const gpunn__nucleus_part part = gpunn__nucleus_own_part(s);
    int64_t                   least = 0; /* the negative of the largest key */
    for (int64_t i = part.begin + threadIdx.x; i < part.end; i += blockDim.x) {
        const int64_t key = gpunn__nucleus_key_of(s, part.row, i);
        least = -key < least ? -key : least;
    }
    least = gpunn__block_reduce(least, gpunn__smaller());
    if (threadIdx.x == 0) (void)atomicMax(&s.row[part.row].most, (gpunn__mass)-least);
}

/* Adds the weights of a warp's lanes to its sums, one digit after another. Only lane 0 writes. */
__device__ __forceinline__ void gpunn__nucleus_add(gpunn__mass *sums, unsigned digit, uint32_t weight)
{
    const unsigned lane = threadIdx.x & 31, equals = __match_any_sync(0xFFFFFFFFu, digit);
    unsigned       open = 0xFFFFFFFFu; /* lanes to come */
    while (open) {
        const unsigned first = (unsigned)__popc(~open & (open - 1)),
                       group = __shfl_sync(0xFFFFFFFFu, equals, first);
        const unsigned own = __shfl_sync(0xFFFFFFFFu, digit, first);
        gpunn__mass    sum = group >> lane & 1 ? weight : 0;
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
        if (lane == 0) sums[own] += sum;
        open &= ~group;
    }
}

/* The search one digit further on; thread i has the sum of digit 255 - i. */
__device__ __forceinline__ gpunn__search gpunn__nucleus_digit(const gpunn__search &search,
                                                              const gpunn__mass   *sums)
{
    __shared__ gpunn__search found;
    const unsigned           digit = GPUNN__NUCLEUS_DIGITS - 1 - threadIdx.x;
    const gpunn__mass        mass = sums[digit], upto = search.before + gpunn__block_sums(mass);
    if (gpunn__passes(upto, mass, search.target))
        found = {search.key << 8 | digit, upto - mass, search.target};
    __syncthreads();
    return found;
}

/* The search as a pass begins: goes on with the digits of the pass before, or starts anew with those of all
 * classes. */
__device__ __forceinline__ gpunn__search gpunn__nucleus_begin(const gpunn__nucleus &s, int64_t row, int pass)
{
    const gpunn__nucleus_row &r = s.row[row];
    const uint32_t            most = (uint32_t)r.most;
    if (pass == 0) return {0, 0, 0};
    if (pass != 1 && pass != GPUNN__NUCLEUS_LEVELS)
        return gpunn__nucleus_digit(r.search[pass - 1], r.sums[pass - 1]);
    gpunn__mass kept = gpunn__block_reduce(r.sums[0][threadIdx.x], gpunn__add());
    if (pass == 1) return gpunn__nucleus_digit({0, 0, gpunn__nucleus_end(kept, s.top_p)}, r.sums[0]);
    if (s.top_p < 1) {
        const gpunn__search end = gpunn__nucleus_digit(r.search[pass - 1], r.sums[pass - 1]);
        const gpunn__mass   weight = gpunn__nucleus_weight((uint32_t)end.key, most, s.scale);
        kept = end.before + ((end.target - end.before) / weight + 1) * weight;
    }
    return gpunn__nucleus_digit({0, 0, gpunn__nucleus_target(s, row, kept, most)}, r.sums[0]);
}

/* Of the classes that have the key that was found, the one at which the weights pass the target. */
__device__ __forceinline__ void gpunn__nucleus_write(const gpunn__nucleus &s, int64_t row,
                                                     const gpunn__search &all)
{
    const gpunn__nucleus_row &r = s.row[row];
    const gpunn__search       search = gpunn__nucleus_digit(all, r.sums[GPUNN__NUCLEUS_PASSES - 1]);
    const uint32_t            key = (uint32_t)(search.key >> 8),
                   weight = gpunn__nucleus_weight(key, (uint32_t)r.most, s.scale);
    const gpunn__nucleus_part part = gpunn__nucleus_part_of(
        s, row, GPUNN__NUCLEUS_DIGITS - 1 - (int64_t)(search.key & 0xFF));
    gpunn__mass before = search.before;
    for (int64_t base = part.begin; base < part.end; base += blockDim.x) {
        const int64_t     i = base + threadIdx.x;
        const gpunn__mass mass = i < part.end && gpunn__nucleus_key_of(s, row, i) == key ? weight : 0;
        if (gpunn__passes(before + gpunn__block_sums(mass), mass, search.target)) s.drawn[row] = i;
        before += gpunn__block_reduce(mass, gpunn__add());
    }
}

static __global__ void __launch_bounds__(GPUNN__NUCLEUS_DIGITS)
    gpunn__nucleus_pass_kernel(const gpunn__nucleus s, int pass)
{
    GPUNN__FOLLOW();
    /* the last one: of no class */
    __shared__ gpunn__mass    sums[GPUNN__NUCLEUS_DIGITS / 32][GPUNN__NUCLEUS_DIGITS + 1];
    const gpunn__nucleus_part part = gpunn__nucleus_own_part(s);
    gpunn__nucleus_row       &row = s.row[part.row];
    const gpunn__search       search = gpunn__nucleus_begin(s, part.row, pass);
    const uint32_t            most = (uint32_t)row.most;
    const int                 level = pass < GPUNN__NUCLEUS_LEVELS ? pass : pass - GPUNN__NUCLEUS_LEVELS + 1,
              shift = 32 - 8 * level;
    for (int w = 0; w < GPUNN__NUCLEUS_DIGITS / 32; w++) sums[w][threadIdx.x] = 0;
    __syncthreads();
    if (part.number == 0 && threadIdx.x == 0) row.search[pass] = search;
    for (int64_t base = part.begin; base < part.end; base += blockDim.x) {
        const int64_t     i = base + threadIdx.x;
        const gpunn__mass key = i < part.end ? gpunn__nucleus_key_of(s, part.row, i) : ~(gpunn__mass)0;
        const uint32_t    weight = key >> shift == search.key
                                       ? gpunn__nucleus_weight((uint32_t)key, most, s.scale)
                                       : 0;
        unsigned          digit = GPUNN__NUCLEUS_DIGITS;
        if (weight && level == GPUNN__NUCLEUS_LEVELS) digit -= 1 + (unsigned)part.number;
        if (weight && level < GPUNN__NUCLEUS_LEVELS) digit = key >> (shift - 8) & 0xFF;
        gpunn__nucleus_add(sums[threadIdx.x >> 5], digit, weight);
    }
    __syncthreads();
    gpunn__mass sum = 0;
    for (int w = 0; w < GPUNN__NUCLEUS_DIGITS / 32; w++) sum += sums[w][threadIdx.x];
    if (sum) (void)atomicAdd(&row.sums[pass][threadIdx.x], sum);
    if (pass == GPUNN__NUCLEUS_PASSES - 1 && gpunn__is_last_block(&row.done, (unsigned)s.parts))
        gpunn__nucleus_write(s, part.row, search);
}

static gpunn__nucleus gpunn__nucleus_of(const gpunn__cuda *cuda, const gpunn_step *step)
{
    const gpunn_value *logits = &step->in[0], *draw = &step->in[1];
    gpunn__nucleus     s;
    memset(&s, 0, sizeof s);
    s.logits = logits->data;
    s.logits_type = logits->dtype;
    s.draw = draw->data;
    s.draw_type = draw->dtype;
    s.drawn = (int64_t *)step->out.data;
    s.rows = logits->dim[0];
    s.n = logits->dim[1];
    s.scale = gpunn__nucleus_scale(step->attr->temperature);
    s.top_p = step->attr->top_p;
    s.row = (gpunn__nucleus_row *)step->workspace;
    const int64_t tile = GPUNN__NUCLEUS_DIGITS, tiles = (s.n + tile - 1) / tile,
                  fill = 4 * gpunn__parts_of_row(cuda, s.rows);
    const int64_t most = fill < tile ? fill : tile; /* parts: a digit counts them */
    s.part = (tiles + most - 1) / most * tile;
    s.parts = (s.n + s.part - 1) / s.part;
    return s;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_sample(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__nucleus s = gpunn__nucleus_of(cuda, step);
    const bool           few = s.n <= GPUNN__NUCLEUS_FEW;
    if (action == GPUNN__PREPARE) {
        if (s.n > UINT32_MAX)
            return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                    "sample from %lld classes is not possible; the limit is 2^32 - 1",
                                    (long long)s.n);
        step->workspace_bytes = few ? 0 : (size_t)s.rows * sizeof *s.row;
        return GPUNN_OK;
    }
    if (few) {
        const int size = gpunn__power_of_2(s.n, GPUNN__NUCLEUS_FEW);
        return GPUNN__LAUNCH(cuda, gpunn__nucleus_few_kernel, gpunn__blocks(cuda, s.rows * GPUNN__THREADS, 1),
                             (unsigned)(size < 32 ? 32 : size), s);
    }
    const unsigned blocks = (unsigned)(s.rows * s.parts);
    GPUNN__TRY(gpunn__cuda_fill(cuda, s.row, 0, (size_t)s.rows * sizeof *s.row));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__nucleus_most_kernel, blocks, GPUNN__NUCLEUS_DIGITS, s));
    for (int pass = 0; pass < GPUNN__NUCLEUS_PASSES; pass++)
        if (s.top_p < 1 || pass == 0 || pass >= GPUNN__NUCLEUS_LEVELS)
            GPUNN__TRY(
                GPUNN__LAUNCH(cuda, gpunn__nucleus_pass_kernel, blocks, GPUNN__NUCLEUS_DIGITS, s, pass));
    return GPUNN_OK;
}

/* ---- embedding ------------------------------------------------------------------------------------------ *
 * Forward: a thread copies packs of N columns. Backward: the tokens are radix-sorted together with their
 * positions. Then each row of the weight's gradient is written once. It is the sum of its tokens' gradients,
 * in an order that depends only on the tokens, or 0. Slices are treated the same way. They lie in
 * [outer][rows][width] and have outer * width columns. */

typedef struct gpunn__rows {
    const void *index; /* tokens */
    gpunn_dtype index_type, from_type, to_type;
    const void *from;            /* the weight, or the gradient of the result */
    void       *to;              /* the result, or the gradient of the weight */
    int64_t     count, n, width; /* tokens; rows and columns of the weight */
    int64_t     outer;           /* of slices; 1 for rows */
    int64_t     padding;         /* a row without a gradient; -1: none */
    bool        add, spoils;     /* spoils: a token out of range makes row 0 NaN */
    /* per token (row, position); (n, ..) has no gradient; (0, UINT32_MAX) spoils row 0 */
    const uint2 *sorted;
    /* Sparse gradient: `count` includes its earlier entries, which precede the tokens. `to` has the sums and
     * `rows` their rows. A row's entry is the place of its first element in `sorted`. */
    int64_t       *rows;
    const float   *kept;
    const int64_t *kept_rows;
    int64_t        kept_count;
} gpunn__rows;

/* Where a column of a row stands among `rows` rows. */
__device__ __forceinline__ int64_t gpunn__rows_place(const gpunn__rows &r, int64_t rows, int64_t row,
                                                     int64_t column)
{
    const int64_t o = r.outer == 1 ? 0 : gpunn__quotient(column, r.width);
    return (o * rows + row) * r.width + column - o * r.width;
}

template <int N>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__rows_kernel(const gpunn__rows r)
{
    GPUNN__FOLLOW();
    int64_t packs = r.width / N, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < r.count * packs; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t at = gpunn__quotient(i, packs), column = (i - at * packs) * N,
                row = gpunn__integer(r.index, r.index_type, at);
        bool  there = row >= 0 && row < r.n;
        float v[N];
        gpunn__strided_load<N>(r.from, r.from_type, (there ? row : 0) * r.width + column, 1, v);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = there ? v[j] : NAN;
        gpunn__strided_store<N>(r.to, r.to_type, at * r.width + column, 1, v, false);
    }
}

typedef struct gpunn__row_keys {
    gpunn__rows      r;
    __device__ uint2 operator()(const gpunn__sorting &, int64_t, int64_t i) const
    {
        const int64_t row = gpunn__integer(r.index, r.index_type, i);
        const bool    there = row >= 0 && row < r.n;
        if (r.spoils && !there) return make_uint2(0, UINT32_MAX);
        return make_uint2((unsigned)(there && row != r.padding ? row : r.n), (unsigned)i);
    }
} gpunn__row_keys;

/* The same for a sparse gradient, with its earlier entries first. */
typedef struct gpunn__entry_keys {
    gpunn__rows      r;
    __device__ uint2 operator()(const gpunn__sorting &s, int64_t, int64_t i) const
    {
        if (i < r.kept_count)
            return make_uint2((unsigned)(r.kept_rows[i] < 0 ? r.n : r.kept_rows[i]), (unsigned)i);
        const gpunn__row_keys tokens = {r};
        const uint2           key = tokens(s, 0, i - r.kept_count);
        return make_uint2(key.x, key.y + (unsigned)r.kept_count);
    }
} gpunn__entry_keys;

/* Zeroes the rows that no token refers to. A warp searches for each row. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__rows_zero_kernel(const gpunn__rows r)
{
    GPUNN__FOLLOW();
    unsigned lane = threadIdx.x & 31;
    int64_t  row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) >> 5,
            step = (int64_t)gridDim.x * blockDim.x >> 5;
    for (; row < r.n; row += step) {
        int64_t low = 0, high = r.count;
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if ((int64_t)r.sorted[middle].x < row)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < r.count && (int64_t)r.sorted[low].x == row) continue;
        for (int64_t column = lane; column < r.outer * r.width; column += 32)
            gpunn__store(r.to, r.to_type, gpunn__rows_place(r, r.n, row, column), 0);
    }
}

/* The end of the run of sorted elements that have the same key as element i. */
__device__ __forceinline__ int64_t gpunn__run_end(const uint2 *sorted, int64_t count, int64_t i)
{
    unsigned key = sorted[i].x;
    int64_t  step = 1;
    for (; i + step < count && sorted[i + step].x == key; step *= 2) i += step;
    while (step > 1) {
        step /= 2;
        if (i + step < count && sorted[i + step].x == key) i += step;
    }
    return i + 1;
}

/* v[j] = what element `at` adds to column + j of a sparse gradient. */
template <int N>
__device__ __forceinline__ void gpunn__entry_load(const gpunn__rows &r, int64_t at, int64_t column, float *v)
{
    if (at < r.kept_count)
        gpunn__strided_load<N>(r.kept, GPUNN_F32, at * r.width + column, 1, v);
    else
        gpunn__strided_load<N>(r.from, r.from_type, (at - r.kept_count) * r.width + column, 1, v);
}

/* sum[j] = the sum of the gradients of column + j over `count` tokens: first, first + step, .. */
template <int N, bool SPARSE>
__device__ __forceinline__ void gpunn__rows_add(const gpunn__rows &r, int64_t first, unsigned count,
                                                unsigned step, int64_t column, float *sum)
{
    const uint2 *token = r.sorted + first;
#pragma unroll
    for (int j = 0; j < N; j++) sum[j] = 0;
#pragma unroll(N > 1 ? 2 : 4)
    for (unsigned i = 0; i < count; i++, token += step) {
        float      v[N];
        const bool there = token->y != UINT32_MAX;
        if (SPARSE)
            gpunn__entry_load<N>(r, token->y, column, v);
        else
            gpunn__strided_load<N>(r.from, r.from_type,
                                   gpunn__rows_place(r, r.count, there ? token->y : 0, column), 1, v);
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] += there ? v[j] : NAN;
    }
}

/* A block of gpunn__ROWS_THREADS threads consists of groups of `across` threads, a power of 2, which share a
 * row's columns. It takes one token per group. The first token of a row handles all tokens of that row: with
 * its own group or, if they are many, with all groups together. */
enum { GPUNN__ROWS_THREADS = 512, GPUNN__ROWS_ALONE = 32 };
template <int N, bool SPARSE>
static __global__ void __launch_bounds__(GPUNN__ROWS_THREADS, 2)
    gpunn__rows_sum_kernel(const gpunn__rows r, unsigned across)
{
    GPUNN__FOLLOW();
    __shared__ float part[N][GPUNN__ROWS_THREADS];
    const int64_t    columns = r.outer * r.width;
    unsigned         groups = GPUNN__ROWS_THREADS / across, group = threadIdx.x / across;
    int64_t          start = (int64_t)(threadIdx.x & (across - 1)) * N;
    for (int64_t base = (int64_t)blockIdx.x * groups; base < r.count; base += (int64_t)gridDim.x * groups) {
        for (unsigned g = 0; g < groups && base + g < r.count; g++) {
            int64_t first = base + g, row = r.sorted[first].x;
            if (row == r.n || (first > 0 && r.sorted[first - 1].x == row)) continue;
            unsigned count = (unsigned)(gpunn__run_end(r.sorted, r.count, first) - first);
            float    sum[N];
            if (SPARSE && threadIdx.x == 0) r.rows[first] = row;
            if (count <= GPUNN__ROWS_ALONE) {
                for (int64_t column = start; g == group && column < columns; column += (int64_t)across * N) {
                    gpunn__rows_add<N, SPARSE>(r, first, count, 1, column, sum);
                    gpunn__strided_store<N>(r.to, r.to_type,
                                            gpunn__rows_place(r, r.n, SPARSE ? first : row, column), 1, sum,
                                            r.add);
                }
                continue;
            }
            unsigned own = count / groups + (group < count % groups);
            for (int64_t offset = 0; offset < columns; offset += (int64_t)across * N) {
                int64_t column = offset + start;
                if (column < columns) gpunn__rows_add<N, SPARSE>(r, first + group, own, groups, column, sum);
#pragma unroll
                for (int j = 0; j < N; j++) part[j][threadIdx.x] = column < columns ? sum[j] : 0;
                __syncthreads();
                if (group == 0 && column < columns) {
                    for (unsigned other = 1; other < groups; other++)
#pragma unroll
                        for (int j = 0; j < N; j++) sum[j] += part[j][threadIdx.x + other * across];
                    gpunn__strided_store<N>(r.to, r.to_type,
                                            gpunn__rows_place(r, r.n, SPARSE ? first : row, column), 1, sum,
                                            r.add);
                }
                __syncthreads();
            }
        }
    }
}

template <bool SPARSE> static gpunn_status gpunn__rows_sum(gpunn__cuda *cuda, const gpunn__rows *r)
{
    const int pack = r->width % GPUNN__PACK == 0 ? GPUNN__PACK : 1;
    unsigned  across = 1;
    while (across < GPUNN__ROWS_THREADS && (int64_t)across * pack < r->outer * r->width) across *= 2;
    const unsigned blocks = gpunn__blocks(cuda, r->count * across, 1);
    if (pack > 1)
        return GPUNN__LAUNCH(cuda, (gpunn__rows_sum_kernel<GPUNN__PACK, SPARSE>), blocks, GPUNN__ROWS_THREADS,
                             *r, across);
    return GPUNN__LAUNCH(cuda, (gpunn__rows_sum_kernel<1, SPARSE>), blocks, GPUNN__ROWS_THREADS, *r, across);
}

static gpunn_status gpunn__rows_backward(gpunn__cuda *cuda, gpunn__rows *r, gpunn__sorting *s,
                                         void *workspace)
{
    const gpunn__row_keys keys = {*r};
    GPUNN__TRY(gpunn__sort(cuda, s, workspace, keys, r->n));
    r->sorted = s->sorted;
    if (!r->add)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__rows_zero_kernel, gpunn__blocks(cuda, r->n * 32, 1),
                                 GPUNN__THREADS, *r));
    return gpunn__rows_sum<false>(cuda, r);
}

/* The sparse gradient of a table. Earlier entries that it adds to are first copied to the workspace. */
static gpunn_status gpunn__entries_backward(gpunn__cuda *cuda, gpunn_step *step, gpunn__rows *r,
                                            gpunn__arena *arena, bool prepares)
{
    const gpunn_value *gradient = &step->grad_in[1];
    const int64_t      capacity = gradient->dim[0];
    gpunn__sorting     s = gpunn__sorting_of(cuda, 1, r->count + capacity);
    void *const        sorts = gpunn__arena_take(arena, gpunn__sort_workspace(&s));
    float *const       kept = (float *)gpunn__arena_take(arena, gpunn__bytes(GPUNN_F32, gradient->count));
    int64_t *const     kept_rows = (int64_t *)gpunn__arena_take(arena, (size_t)capacity * sizeof *kept_rows);
    step->workspace_bytes = arena->bytes;
    if (r->count + capacity > UINT32_MAX)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "%lld rows are too many for a sparse gradient; the limit is 2^32 - 1 at once",
                                (long long)r->count);
    if (prepares) return GPUNN_OK;
    r->rows = gpunn__sparse_rows(gradient->data, gradient->count);
    if (r->add) {
        GPUNN__CUDA(cuda, cudaMemcpyAsync(kept, r->to, gpunn__bytes(GPUNN_F32, gradient->count),
                                          cudaMemcpyDeviceToDevice, cuda->stream));
        GPUNN__CUDA(cuda, cudaMemcpyAsync(kept_rows, r->rows, (size_t)capacity * sizeof *kept_rows,
                                          cudaMemcpyDeviceToDevice, cuda->stream));
        r->kept = kept;
        r->kept_rows = kept_rows;
        r->kept_count = capacity;
        r->count += capacity;
        r->add = false;
    }
    GPUNN__CUDA(cuda, cudaMemsetAsync(r->to, 0, gpunn__bytes(GPUNN_F32, gradient->count), cuda->stream));
    GPUNN__CUDA(cuda, cudaMemsetAsync(r->rows, 0xFF, (size_t)capacity * sizeof *r->rows, cuda->stream));
    s = gpunn__sorting_of(cuda, 1, r->count);
    const gpunn__entry_keys keys = {*r};
    GPUNN__TRY(gpunn__sort(cuda, &s, sorts, keys, r->n));
    r->sorted = s.sorted;
    return gpunn__rows_sum<true>(cuda, r);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_add_rows(gpunn__cuda *cuda, gpunn_step *step, const int64_t *rows,
                                                  const float *terms, int64_t count, gpunn__arena *arena,
                                                  bool prepares)
{
    gpunn__rows r;
    memset(&r, 0, sizeof r);
    r.index = rows;
    r.index_type = GPUNN_I64;
    r.from = terms;
    r.from_type = r.to_type = GPUNN_F32;
    r.to = step->grad_in[1].data;
    r.count = count;
    r.n = step->in[1].dim[0];
    r.width = step->in[1].dim[1];
    r.outer = 1;
    r.padding = -1;
    r.add = step->accumulate[1];
    return gpunn__entries_backward(cuda, step, &r, arena, prepares);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_embedding(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *tokens = &step->in[0], *weight = &step->in[1];
    const bool         sparse = step->backward && step->attr->sparse;
    gpunn__sorting     s = gpunn__sorting_of(cuda, 1, tokens->count);
    gpunn__arena       arena = {(char *)step->workspace, 0};
    gpunn__rows        r;
    memset(&r, 0, sizeof r);
    r.count = tokens->count;
    if (action == GPUNN__PREPARE) {
        if (tokens->count > UINT32_MAX)
            return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                    "%lld tokens are too many for the GPU; the limit is 2^32 - 1 at once",
                                    (long long)tokens->count);
        if (sparse) return gpunn__entries_backward(cuda, step, &r, &arena, true);
        if (step->backward) step->workspace_bytes = gpunn__sort_workspace(&s);
        return GPUNN_OK;
    }
    if (gpunn__is_blocks(weight->dtype)) {
        const gpunn__block_rows rows = {weight->data,   tokens->data,  tokens->dtype,  step->out.dtype,
                                        step->out.data, tokens->count, weight->dim[0], weight->dim[1]};
        return gpunn__cuda_block_rows(cuda, weight->dtype, &rows);
    }
    r.index = tokens->data;
    r.index_type = tokens->dtype;
    r.n = weight->dim[0];
    r.width = weight->dim[1];
    r.outer = 1;
    r.padding = step->attr->ignore_index;
    const gpunn_value *from = step->backward ? &step->grad_out : weight,
                      *to = step->backward ? &step->grad_in[1] : &step->out;
    r.from = from->data;
    r.from_type = from->dtype;
    r.to = to->data;
    r.to_type = to->dtype;
    if (step->backward) {
        r.add = step->accumulate[1];
        return sparse ? gpunn__entries_backward(cuda, step, &r, &arena, false)
                      : gpunn__rows_backward(cuda, &r, &s, step->workspace);
    }
    if (r.width % GPUNN__PACK == 0)
        return GPUNN__LAUNCH(cuda, (gpunn__rows_kernel<GPUNN__PACK>),
                             gpunn__blocks(cuda, r.count * r.width, GPUNN__PACK), GPUNN__THREADS, r);
    return GPUNN__LAUNCH(cuda, (gpunn__rows_kernel<1>), gpunn__blocks(cuda, r.count * r.width, 1),
                         GPUNN__THREADS, r);
}

/* ---- gather: y[o][j][i] = x[o][index[o][j][i]][i]; scatter_add is its transpose ------------------------- *
 * The backward pass has four ways. Indices that apply to all
 * rows are sorted once, as an embedding's tokens. If the indices of a row [o][..][i] are few, each element
 * of dx searches them. Otherwise they are sorted: each row by a block or, if longer, all rows together in
 * memory. Then each run of equal indices is summed. Sums follow the order of the indices. In memory, a block
 * sums runs longer than GPUNN__RUN_ALONE, in an order that depends only on the indices. An index out of range
 * yields NaN (0 for integers): in the result of gather, or in an element of the row to which it adds. */

enum { GPUNN__GATHER_FEW = 64, GPUNN__GATHER_ROW = 1024, GPUNN__RUN_ALONE = 32 };
typedef struct gpunn__gather {
    const void *x, *gradient, *index, *base; /* base: what dx adds to; NULL: nothing */
    void       *y, *dx;
    gpunn_dtype x_type, gradient_type, index_type, base_type, y_type, dx_type;
    int64_t     outer, m, n, inner;
    bool        add, whole; /* add: y accumulates; whole: integers */
    bool        slices;     /* index is [m] and applies to all rows */
} gpunn__gather;

/* Index number j of row [o][..][column]. */
__device__ __forceinline__ int64_t gpunn__gather_index(const gpunn__gather &g, int64_t o, int64_t j,
                                                       int64_t column)
{
    return gpunn__integer(g.index, g.index_type, g.slices ? j : (o * g.m + j) * g.inner + column);
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__gather_forward_kernel(const gpunn__gather g)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < g.outer * g.m * g.inner; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = gpunn__quotient(i, g.inner), o = gpunn__quotient(row, g.m), column = i - row * g.inner;
        int64_t at = gpunn__gather_index(g, o, row - o * g.m, column);
        bool    there = at >= 0 && at < g.n;
        int64_t from = (o * g.n + at) * g.inner + column;
        if (g.whole) {
            gpunn__put_integer(g.y, g.y_type, i, there ? gpunn__integer(g.x, g.x_type, from) : 0);
            continue;
        }
        float value = there ? gpunn__load(g.x, g.x_type, from) : NAN;
        gpunn__store(g.y, g.y_type, i, g.add ? gpunn__load(g.y, g.y_type, i) + value : value);
    }
}

/* The initial value of the sum of an element of dx. */
__device__ __forceinline__ float gpunn__gather_base(const gpunn__gather &g, int64_t i)
{
    return g.base ? gpunn__load(g.base, g.base_type, i) : 0;
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__gather_few_kernel(const gpunn__gather g)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < g.outer * g.n * g.inner; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = gpunn__quotient(i, g.inner), o = gpunn__quotient(row, g.n);
        int64_t from = o * g.m * g.inner + (i - row * g.inner);
        float   sum = gpunn__gather_base(g, i);
        for (int64_t j = 0; j < g.m; j++, from += g.inner) {
            int64_t k = gpunn__gather_index(g, o, j, i - row * g.inner);
            if (k < 0 || k >= g.n) sum = NAN;
            if (k == row - o * g.n) sum += gpunn__load(g.gradient, g.gradient_type, from);
        }
        gpunn__store(g.dx, g.dx_type, i, sum);
    }
}

/* The element that index i refers to, or its row's first element if it is out of range (*there is false).
 * *number receives the index's position in its row. */
__device__ __forceinline__ int64_t gpunn__gather_place(const gpunn__gather &g, int64_t i, int64_t *number,
                                                       bool *there)
{
    const int64_t row = gpunn__quotient(i, g.inner), o = gpunn__quotient(row, g.m),
                  at = gpunn__integer(g.index, g.index_type, i);
    *number = row - o * g.m;
    *there = at >= 0 && at < g.n;
    return (o * g.n + (*there ? at : 0)) * g.inner + (i - row * g.inner);
}

/* What index i adds. UINT32_MAX stands for an index out of range. */
__device__ __forceinline__ float gpunn__gather_term(const gpunn__gather &g, unsigned i, int64_t first,
                                                    int64_t stride)
{
    return i == UINT32_MAX ? NAN : gpunn__load(g.gradient, g.gradient_type, first + i * stride);
}

/* A block sorts the indices of a row by (place, number). It sorts complements in descending order. */
static __global__ void __launch_bounds__(GPUNN__GATHER_ROW / 2)
    gpunn__gather_row_kernel(const gpunn__gather g, unsigned size)
{
    GPUNN__FOLLOW();
    __shared__ unsigned long long code[GPUNN__GATHER_ROW];
    for (int64_t unit = blockIdx.x; unit < g.outer * g.inner; unit += gridDim.x) {
        const int64_t o = gpunn__quotient(unit, g.inner), column = unit - o * g.inner;
        const int64_t to = o * g.n * g.inner + column, from = o * g.m * g.inner + column;
        for (unsigned j = threadIdx.x; j < size; j += blockDim.x) {
            const int64_t at = j < g.m ? gpunn__integer(g.index, g.index_type, from + j * g.inner) : 0;
            const bool    there = at >= 0 && at < g.n;
            const unsigned long long key = there ? (unsigned long long)at << 32 | j : UINT32_MAX;
            code[j] = j < g.m ? ~key : 0;
        }
        gpunn__block_sort(code, size);
        for (unsigned j = threadIdx.x; j < g.m; j += blockDim.x) {
            const unsigned at = ~(unsigned)(code[j] >> 32);
            if (j > 0 && ~(unsigned)(code[j - 1] >> 32) == at) continue;
            float sum = gpunn__gather_base(g, to + at * g.inner);
            for (unsigned i = j; i < g.m && ~(unsigned)(code[i] >> 32) == at; i++)
                sum += gpunn__gather_term(g, ~(unsigned)code[i], from, g.inner);
            gpunn__store(g.dx, g.dx_type, to + at * g.inner, sum);
        }
        __syncthreads();
    }
}

/* The pairs of all rows: (element of dx, number of the index). */
typedef struct gpunn__gather_keys {
    gpunn__gather    g;
    __device__ uint2 operator()(const gpunn__sorting &, int64_t, int64_t i) const
    {
        int64_t        number;
        bool           there;
        const unsigned at = (unsigned)gpunn__gather_place(g, i, &number, &there);
        return make_uint2(at, there ? (unsigned)i : UINT32_MAX);
    }
} gpunn__gather_keys;

/* A thread sums the run that its element starts, or leaves a long run to the whole block. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__gather_runs_kernel(const gpunn__gather g, const uint2 *sorted, int64_t count)
{
    GPUNN__FOLLOW();
    __shared__ int64_t            run[GPUNN__THREADS / GPUNN__RUN_ALONE + 1];
    __shared__ unsigned long long runs;
    for (int64_t base = (int64_t)blockIdx.x * blockDim.x; base < count;
         base += (int64_t)gridDim.x * blockDim.x) {
        if (threadIdx.x == 0) runs = 0;
        __syncthreads();
        const int64_t first = base + threadIdx.x;
        const bool    begins = first < count && (first == 0 || sorted[first - 1].x != sorted[first].x);
        const int64_t end = begins ? gpunn__run_end(sorted, count, first) : first;
        if (end - first > GPUNN__RUN_ALONE)
            run[atomicAdd(&runs, 1ull)] = first;
        else if (begins) {
            float sum = gpunn__gather_base(g, sorted[first].x);
            for (int64_t i = first; i < end; i++) sum += gpunn__gather_term(g, sorted[i].y, 0, 1);
            gpunn__store(g.dx, g.dx_type, sorted[first].x, sum);
        }
        __syncthreads();
        for (unsigned r = 0; r < runs; r++) {
            const int64_t last = gpunn__run_end(sorted, count, run[r]), at = sorted[run[r]].x;
            float         sum = 0;
            for (int64_t i = run[r] + threadIdx.x; i < last; i += blockDim.x)
                sum += gpunn__gather_term(g, sorted[i].y, 0, 1);
            sum = gpunn__block_reduce(sum, gpunn__add());
            if (threadIdx.x == 0) gpunn__store(g.dx, g.dx_type, at, gpunn__gather_base(g, at) + sum);
        }
        __syncthreads();
    }
}

/* Describes the rows and indices. The shape is that of gather's result or of scatter_add's src. */
static gpunn__gather gpunn__gather_of(const gpunn_step *step, const gpunn__along *a, const gpunn_value *index)
{
    gpunn__gather g;
    memset(&g, 0, sizeof g);
    g.n = a->n;
    g.inner = a->inner;
    g.outer = a->rows / a->inner;
    g.m = index->dim[step->attr->axis];
    g.slices = index->count < a->rows * g.m;
    g.index = index->data;
    g.index_type = index->dtype;
    return g;
}

/* GPUNN__PREPARE for gpunn__gather_back. */
static gpunn_status gpunn__gather_prepare(gpunn__cuda *cuda, gpunn_step *step, const gpunn__gather *g)
{
    const int64_t count = g->slices ? g->m : g->outer * g->m * g->inner,
                  places = g->slices ? g->n : g->outer * g->n * g->inner;
    if (g->m <= (!g->slices && g->n <= UINT32_MAX ? GPUNN__GATHER_ROW : GPUNN__GATHER_FEW)) return GPUNN_OK;
    if (count > UINT32_MAX || places > UINT32_MAX)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "%lld indices into %lld elements are too many; the GPU can add 2^32 - 1 of "
                                "each at once, so split axis %d",
                                (long long)count, (long long)places, step->attr->axis);
    const gpunn__sorting s = gpunn__sorting_of(cuda, 1, count);
    step->workspace_bytes = gpunn__sort_workspace(&s);
    return GPUNN_OK;
}

/* Adds slices of the gradient to those of dx. */
static gpunn_status gpunn__gather_slices(gpunn__cuda *cuda, const gpunn__gather *g, void *workspace)
{
    gpunn__sorting s = gpunn__sorting_of(cuda, 1, g->m);
    gpunn__rows    r;
    memset(&r, 0, sizeof r);
    r.index = g->index;
    r.index_type = g->index_type;
    r.count = g->m;
    r.n = g->n;
    r.width = g->inner;
    r.outer = g->outer;
    r.padding = -1;
    r.from = g->gradient;
    r.from_type = g->gradient_type;
    r.to = g->dx;
    r.to_type = g->dx_type;
    r.add = g->base != NULL;
    r.spoils = true;
    return gpunn__rows_backward(cuda, &r, &s, workspace);
}

/* dx = base plus what the indices add to it. */
static gpunn_status gpunn__gather_back(gpunn__cuda *cuda, const gpunn__gather *g, void *workspace)
{
    const int64_t rows = g->outer * g->inner, count = rows * g->m;
    const bool    few = g->m <= GPUNN__GATHER_FEW;
    gpunn__gather start = *g;
    if (!few) start.m = 0; /* elements that no index refers to equal the base */
    if (few || (g->base != g->dx && !(g->slices && g->base == NULL)))
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__gather_few_kernel, gpunn__blocks(cuda, rows * g->n, 1),
                                 GPUNN__THREADS, start));
    if (few) return GPUNN_OK;
    if (g->slices) return gpunn__gather_slices(cuda, g, workspace);
    if (g->m <= GPUNN__GATHER_ROW) {
        const int size = gpunn__power_of_2(g->m, GPUNN__GATHER_ROW);
        return GPUNN__LAUNCH(cuda, gpunn__gather_row_kernel, gpunn__blocks(cuda, rows * GPUNN__THREADS, 1),
                             (unsigned)size / 2, *g, (unsigned)size);
    }
    gpunn__sorting           s = gpunn__sorting_of(cuda, 1, count);
    const gpunn__gather_keys keys = {*g};
    GPUNN__TRY(gpunn__sort(cuda, &s, workspace, keys, rows * g->n - 1));
    return GPUNN__LAUNCH(cuda, gpunn__gather_runs_kernel, gpunn__blocks(cuda, count, 1), GPUNN__THREADS, *g,
                         s.sorted, count);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_gather(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    gpunn__along  a = gpunn__along_axis(cuda, step, step->attr->axis);
    gpunn__gather g = gpunn__gather_of(step, &a, &step->in[1]);
    if (action == GPUNN__PREPARE) return step->backward ? gpunn__gather_prepare(cuda, step, &g) : GPUNN_OK;
    if (step->backward) {
        g.gradient = a.gradient;
        g.gradient_type = a.gradient_type;
        g.dx = a.out;
        g.dx_type = g.base_type = a.out_type;
        g.base = a.add ? a.out : NULL;
        return gpunn__gather_back(cuda, &g, step->workspace);
    }
    g.x = a.x;
    g.x_type = a.x_type;
    g.y = a.out;
    g.y_type = a.out_type;
    g.whole = !gpunn__is_float(g.x_type);
    return GPUNN__LAUNCH(cuda, gpunn__gather_forward_kernel, gpunn__blocks(cuda, step->out.count, 1),
                         GPUNN__THREADS, g);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_scatter_add(gpunn__cuda *cuda, gpunn_step *step,
                                                     gpunn__action action)
{
    if (step->backward && step->grad_in[0].data) {
        gpunn_status status = gpunn__cuda_expand(cuda, step, action);
        if (status != GPUNN_OK) return status;
    }
    gpunn__along  a = gpunn__along_axis(cuda, step, step->attr->axis);
    gpunn__gather g = gpunn__gather_of(step, &a, &step->in[1]);
    if (action == GPUNN__PREPARE) return step->backward ? GPUNN_OK : gpunn__gather_prepare(cuda, step, &g);
    if (step->backward) {
        if (!step->grad_in[2].data) return GPUNN_OK;
        g.x = a.gradient;
        g.x_type = a.gradient_type;
        g.y = step->grad_in[2].data;
        g.y_type = step->grad_in[2].dtype;
        g.add = step->accumulate[2];
        return GPUNN__LAUNCH(cuda, gpunn__gather_forward_kernel, gpunn__blocks(cuda, step->in[2].count, 1),
                             GPUNN__THREADS, g);
    }
    g.base = a.x;
    g.base_type = a.x_type;
    g.gradient = step->in[2].data;
    g.gradient_type = step->in[2].dtype;
    g.dx = a.out;
    g.dx_type = a.out_type;
    return gpunn__gather_back(cuda, &g, step->workspace);
}

/* ---- scatter: finds the last index that refers to each element, counted from 1; 0: none ----------------- *
 * An index out of range refers to its row's first element, as the largest
 * number, and makes it NaN (0 for integers). */

typedef unsigned long long gpunn__last;

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__scatter_last_kernel(const gpunn__gather g, gpunn__last *last)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, number;
    bool    there;
    for (; i < g.outer * g.m * g.inner; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t at = gpunn__gather_place(g, i, &number, &there);
        (void)atomicMax(&last[at], there ? (gpunn__last)number + 1 : ~(gpunn__last)0);
    }
}

/* Forward: the result from x and src, which is `gradient`. Backward: x's gradient from that of the result,
 * which is `x`. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__scatter_kernel(const gpunn__gather g, const gpunn__last *last, bool backward)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < g.outer * g.n * g.inner; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = gpunn__quotient(i, g.inner), o = gpunn__quotient(row, g.n),
                      number = (int64_t)last[i] - 1;
        const int64_t from = (o * g.m + number) * g.inner + (i - row * g.inner);
        const bool    bad = last[i] == ~(gpunn__last)0;
        if (g.whole) {
            const int64_t value = bad          ? 0
                                  : number < 0 ? gpunn__integer(g.x, g.x_type, i)
                                               : gpunn__integer(g.gradient, g.gradient_type, from);
            gpunn__put_integer(g.y, g.y_type, i, value);
            continue;
        }
        float value = 0;
        if (bad)
            value = NAN;
        else if (number < 0)
            value = gpunn__load(g.x, g.x_type, i);
        else if (!backward)
            value = gpunn__load(g.gradient, g.gradient_type, from);
        gpunn__store(g.y, g.y_type, i, g.add ? gpunn__load(g.y, g.y_type, i) + value : value);
    }
}

/* The gradient of src. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__scatter_back_kernel(const gpunn__gather g, const gpunn__last *last)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, number;
    bool    there;
    for (; i < g.outer * g.m * g.inner; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t at = gpunn__gather_place(g, i, &number, &there);
        const float value = there && last[at] == (gpunn__last)number + 1 ? gpunn__load(g.x, g.x_type, at) : 0;
        gpunn__store(g.y, g.y_type, i, g.add ? gpunn__load(g.y, g.y_type, i) + value : value);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_scatter(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *x = &step->in[0], *index = &step->in[1], *src = &step->in[2];
    gpunn__along       a = gpunn__along_axis(cuda, step, step->attr->axis);
    gpunn__gather      g = gpunn__gather_of(step, &a, index);
    gpunn__last       *last = (gpunn__last *)step->workspace;
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = (size_t)x->count * sizeof *last;
        return GPUNN_OK;
    }
    GPUNN__TRY(gpunn__cuda_fill(cuda, last, 0, (size_t)x->count * sizeof *last));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__scatter_last_kernel, gpunn__blocks(cuda, index->count, 1),
                             GPUNN__THREADS, g, last));
    g.x = step->backward ? a.gradient : a.x;
    g.x_type = step->backward ? a.gradient_type : a.x_type;
    g.gradient = src->data;
    g.gradient_type = src->dtype;
    g.whole = !gpunn__is_float(x->dtype);
    if (a.out) {
        g.y = a.out;
        g.y_type = a.out_type;
        g.add = a.add;
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__scatter_kernel, gpunn__blocks(cuda, x->count, 1),
                                 GPUNN__THREADS, g, last, step->backward));
    }
    if (!step->backward || !step->grad_in[2].data) return GPUNN_OK;
    g.y = step->grad_in[2].data;
    g.y_type = step->grad_in[2].dtype;
    g.add = step->accumulate[2];
    return GPUNN__LAUNCH(cuda, gpunn__scatter_back_kernel, gpunn__blocks(cuda, index->count, 1),
                         GPUNN__THREADS, g, last);
}

/* ---- searchsorted: places of values[rows][m] in sorted_sequence[rows][n] ------------------------------- */

typedef struct gpunn__sorted {
    gpunn_value sequence, values;
    int64_t    *places, n, m;
    bool        right, whole; /* whole: of integers */
} gpunn__sorted;

/* Whether an element comes before a value; every element comes before NaN. */
__device__ __forceinline__ bool gpunn__sorts_before(const gpunn__sorted &s, int64_t element, int64_t value)
{
    if (!s.whole) {
        const float a = gpunn__load(s.sequence.data, s.sequence.dtype, element);
        const float v = gpunn__load(s.values.data, s.values.dtype, value);
        return s.right ? !(a > v) : !(a >= v);
    }
    const int64_t a = gpunn__integer(s.sequence.data, s.sequence.dtype, element);
    const int64_t v = gpunn__integer(s.values.data, s.values.dtype, value);
    return s.right ? a <= v : a < v;
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__searchsorted_kernel(const gpunn__sorted s)
{
    GPUNN__FOLLOW();
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at < s.values.count; at += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = gpunn__quotient(at, s.m) * s.n;
        int64_t       low = 0, high = s.n;
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if (gpunn__sorts_before(s, row + middle, at))
                low = middle + 1;
            else
                high = middle;
        }
        s.places[at] = low;
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_searchsorted(gpunn__cuda *cuda, gpunn_step *step,
                                                      gpunn__action action)
{
    const gpunn_value *sequence = &step->in[0], *values = &step->in[1];
    gpunn__sorted      s = {*sequence,
                            *values,
                            (int64_t *)step->out.data,
                            sequence->dim[sequence->rank - 1],
                            values->dim[values->rank - 1],
                            step->attr->right,
                            !gpunn__is_float(values->dtype)};
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__searchsorted_kernel, gpunn__blocks(cuda, values->count, 1),
                         GPUNN__THREADS, s);
}

/* ==== >>cuda/gemm ======================================================================================= */
/* Matrix products and linear layers. Products go to cuBLASLt, or to the tiled kernel below if they are small
 * or cuBLASLt does not support them. Bias, residual, activation and row sums are fused where possible. */
enum { GPUNN__TILE = 16, GPUNN__DEPTH = 64 };

/* Loads a tile into shared memory: to[k][i] = x at (i0 + i, k0 + k). x is stored [k][i] if by_k, else [i][k].
 * Elements outside [m][depth] read as 0. The dtype is constant, so that no branch parts a thread's loads.
 * They then wait for memory together. */
template <gpunn_dtype dtype>
__device__ __forceinline__ void gpunn__load_tile_of(float (*to)[GPUNN__TILE + 1], const void *x, bool by_k,
                                                    int64_t start, int64_t ld, int64_t i0, int64_t m,
                                                    int64_t k0, int64_t depth)
{
    float value[GPUNN__TILE * GPUNN__DEPTH / GPUNN__THREADS];
#pragma unroll
    for (int part = 0; part < GPUNN__TILE * GPUNN__DEPTH / GPUNN__THREADS; part++) {
        const int     at = part * GPUNN__THREADS + (int)threadIdx.x;
        const int64_t row = i0 + (by_k ? at % GPUNN__TILE : at / GPUNN__DEPTH),
                      column = k0 + (by_k ? at / GPUNN__TILE : at % GPUNN__DEPTH);
        value[part] = row < m && column < depth
                          ? gpunn__load(x, dtype, start + (by_k ? column * ld + row : row * ld + column))
                          : 0;
    }
#pragma unroll
    for (int part = 0; part < GPUNN__TILE * GPUNN__DEPTH / GPUNN__THREADS; part++) {
        const int at = part * GPUNN__THREADS + (int)threadIdx.x;
        to[by_k ? at / GPUNN__TILE : at % GPUNN__DEPTH][by_k ? at % GPUNN__TILE : at / GPUNN__DEPTH] =
            value[part];
    }
}

__device__ __forceinline__ void gpunn__load_tile(float (*to)[GPUNN__TILE + 1], const void *x,
                                                 gpunn_dtype dtype, bool by_k, int64_t start, int64_t ld,
                                                 int64_t i0, int64_t m, int64_t k0, int64_t depth)
{
    if (dtype == GPUNN_F32)
        gpunn__load_tile_of<GPUNN_F32>(to, x, by_k, start, ld, i0, m, k0, depth);
    else if (dtype == GPUNN_BF16)
        gpunn__load_tile_of<GPUNN_BF16>(to, x, by_k, start, ld, i0, m, k0, depth);
    else
        gpunn__load_tile_of<GPUNN_F16>(to, x, by_k, start, ld, i0, m, k0, depth);
}

/* The activation of one element, or sum times its derivative at aux. The constants are gpunn.h's. */
__device__ __forceinline__ float gpunn__activate(const gpunn__product *p, int64_t at, float sum)
{
    if (p->activation == GPUNN__NO_ACTIVATION) return sum;
    if (p->activation == GPUNN__RELU) return sum <= 0 ? 0 : sum;
    const float x = p->activation == GPUNN__GELU_TANH ? sum : gpunn__load(p->aux, p->d_dtype, at);
    if (p->activation == GPUNN__RELU_DERIVATIVE) return x <= 0 ? 0 : sum;
    const float t = tanhf(0.7978846f * (x + 0.044715f * x * x * x));
    if (p->activation == GPUNN__GELU_TANH) return 0.5f * x * (1 + t);
    return sum * 0.5f * (1 + t) * (1 + x * (1 - t) * 0.7978846f * (1 + 0.134145f * x * x));
}

/* Adds bias, previous value and residual to the sum, applies the activation and stores d at (i, j). row_sum
 * is the sum of row i of op(a). */
__device__ __forceinline__ void gpunn__product_store(const gpunn__product *p, int64_t i, int64_t j,
                                                     int64_t at, float sum, float row_sum)
{
    if (p->row_sums && j == 0) p->row_sums[i] = row_sum;
    if (p->bias) sum += gpunn__load(p->bias, p->bias_dtype, j);
    if (p->accumulate) sum += gpunn__load(p->d, p->d_dtype, at);
    if (p->residual) sum += gpunn__load(p->residual, p->d_dtype, at);
    if (p->activation == GPUNN__GELU_TANH && p->aux) gpunn__store(p->aux, p->d_dtype, at, sum);
    gpunn__store(p->d, p->d_dtype, at, gpunn__activate(p, at, sum));
}

/* Computes a product. A block computes 16 x 16 tiles of d, each thread one element. */
__device__ __forceinline__ void gpunn__product_make(const gpunn__product *p)
{
    __shared__ float a[GPUNN__DEPTH][GPUNN__TILE + 1], b[GPUNN__DEPTH][GPUNN__TILE + 1];
    const int        x = (int)threadIdx.x % GPUNN__TILE, y = (int)threadIdx.x / GPUNN__TILE;
    const int64_t    across = (p->n + GPUNN__TILE - 1) / GPUNN__TILE;
    const int64_t    tiles = across * ((p->m + GPUNN__TILE - 1) / GPUNN__TILE);
    for (int64_t tile = blockIdx.x; tile < tiles * p->batch; tile += gridDim.x) {
        const int64_t batch = tile / tiles, i0 = tile % tiles / across * GPUNN__TILE,
                      j0 = tile % across * GPUNN__TILE;
        float sum = 0, row_sum = 0;
        for (int64_t k0 = 0; k0 < p->k; k0 += GPUNN__DEPTH) {
            __syncthreads(); /* the previous tiles have been read */
            gpunn__load_tile(a, p->a, p->dtype, p->transpose_a, batch * p->stride_a, p->lda, i0, p->m, k0,
                             p->k);
            gpunn__load_tile(b, p->b, p->dtype, !p->transpose_b, batch * p->stride_b, p->ldb, j0, p->n, k0,
                             p->k);
            __syncthreads();
            const int depth = p->k - k0 < GPUNN__DEPTH ? (int)(p->k - k0) : GPUNN__DEPTH;
#pragma unroll 8
            for (int k = 0; k < depth; k++) {
                sum += a[k][y] * b[k][x];
                row_sum += a[k][y];
            }
        }
        const int64_t i = i0 + y, j = j0 + x;
        if (i < p->m && j < p->n)
            gpunn__product_store(p, i, j, batch * p->stride_d + i * p->ldd + j, sum, row_sum);
    }
}

/* The number of 16 x 16 tiles of d, over the whole batch. */
GPUNN__INTERNAL int64_t gpunn__product_tiles(const gpunn__product *p);

/* Whether our own kernel would finish before cuBLASLt's could start: a multiprocessor then has at most two
 * pieces of work. */
GPUNN__INTERNAL bool gpunn__product_is_small(const gpunn__cuda *cuda, const gpunn__product *p);

/* Prepares or runs up to two independent products, with everything fused into them. */
GPUNN__INTERNAL gpunn_status gpunn__products(gpunn__cuda *cuda, const gpunn__product *p, int count,
                                             gpunn__action action);

/* The address of element `index`. */
GPUNN__INTERNAL void *gpunn__element(const void *data, gpunn_dtype dtype, int64_t index);

/* Describes d[m][n] = a[m][k] b[k][n], all contiguous. transpose_a: a is stored [k][m]. transpose_b: b is
 * stored [n][k]. */
GPUNN__INTERNAL gpunn__product gpunn__make_product(const gpunn_step *step, int64_t m, int64_t n, int64_t k,
                                                   const gpunn_value *a, bool transpose_a,
                                                   const gpunn_value *b, bool transpose_b,
                                                   const gpunn_value *d);

/* Checks that the operands share a dtype and that the result has that dtype or F32. Else
 * GPUNN_ERR_UNSUPPORTED. */
GPUNN__INTERNAL gpunn_status gpunn__check_operands(gpunn__cuda *cuda, const gpunn_value *a,
                                                   const gpunn_value *b, const gpunn_value *d);

/* Applies the step's bias, norm, residual and activation to the bare product in y, and stores step->out. */
GPUNN__INTERNAL gpunn_status gpunn__finish_all(gpunn__cuda *cuda, const gpunn_step *step, const void *y,
                                               gpunn_dtype y_dtype);

/* Describes y = x W^T + bias for x [rows, in], with everything fused into the step, as one product. Returns
 * false if one product cannot do all of that. */
GPUNN__INTERNAL bool gpunn__linear_whole(const gpunn_step *step, gpunn__product *whole);

/* The product alone. Its result is the activation's argument, if there is an activation. */
GPUNN__INTERNAL gpunn__product gpunn__linear_bare(gpunn_step *step);

/* What follows that product: bias, norm, residual and activation. */
GPUNN__INTERNAL gpunn_status gpunn__linear_rest(gpunn__cuda *cuda, gpunn_step *step);

/* LINEAR's forward step. Fuses as much into the product as it supports; the rest follows in separate
 * passes. */
GPUNN__INTERNAL gpunn_status gpunn__linear_forward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action);

typedef struct gpunn__linear_gradients {
    gpunn__product product[2];
    int            count;
    /* the argument of the activation that made x; for relu x itself, which determines the derivative as
     * well */
    gpunn_value *before;
    /* whether the products also compute the bias gradient (sums) and the activation's derivative (derived) */
    bool sums, derived;
} gpunn__linear_gradients;

/* The products of LINEAR's backward step. dX = dY W, times the derivative of an activation that made X.
 * dW = dY^T X. dbias is dY summed over its rows, and is fused into the product for dW unless it accumulates.
 * Whether a gradient accumulates may change from run to run. */
GPUNN__INTERNAL gpunn__linear_gradients gpunn__linear_gradients_of(gpunn_step *step);

/* Runs p for every index of the kept axes and sums over the others. The longest kept axis becomes the batch
 * of one call. */
GPUNN__INTERNAL gpunn_status gpunn__repeated_products(gpunn__cuda *cuda, gpunn__product p, gpunn__walk kept,
                                                      const gpunn__walk *summed, gpunn__action action);

/* Whether alternatives may be timed now for .benchmark. Not if the device is deterministic, where results may
 * not vary. Not during a stream capture: the next run outside one does it. */
static gpunn_status gpunn__may_time(gpunn__cuda *cuda, bool *may)
{
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    *may = cuda->args.benchmark && !cuda->args.deterministic;
    if (*may) GPUNN__CUDA(cuda, cudaStreamIsCapturing(cuda->stream, &capture));
    *may = *may && capture == cudaStreamCaptureStatusNone;
    return GPUNN_OK;
}

typedef gpunn_status (*gpunn__timed)(gpunn__cuda *cuda, const void *what);

static gpunn_status gpunn__time_between(gpunn__cuda *cuda, gpunn__timed run, const void *what,
                                        cudaEvent_t begin, cudaEvent_t end, float *milliseconds)
{
    GPUNN__TRY(run(cuda, what)); /* warm-up: loads the kernels */
    GPUNN__CUDA(cuda, cudaEventRecord(begin, cuda->stream));
    for (int repeat = 0; repeat < 4; repeat++) GPUNN__TRY(run(cuda, what));
    GPUNN__CUDA(cuda, cudaEventRecord(end, cuda->stream));
    GPUNN__CUDA(cuda, cudaEventSynchronize(end));
    GPUNN__CUDA(cuda, cudaEventElapsedTime(milliseconds, begin, end));
    return GPUNN_OK;
}

/* Times four runs, after one to warm up. */
static gpunn_status gpunn__time(gpunn__cuda *cuda, gpunn__timed run, const void *what, float *milliseconds)
{
    cudaEvent_t begin, end;
    GPUNN__CUDA(cuda, cudaEventCreate(&begin));
    gpunn_status status = gpunn__cuda_check(cuda, cudaEventCreate(&end), "cudaEventCreate");
    if (status == GPUNN_OK) {
        status = gpunn__time_between(cuda, run, what, begin, end, milliseconds);
        (void)cudaEventDestroy(end);
    }
    (void)cudaEventDestroy(begin);
    return status;
}

#ifdef GPUNN__EMULATOR
#include "reference.h" /* tests/emulator: products and convolutions in plain code */
#else
/* cuBLASLt is column-major, so a row-major matrix is its own transpose there. D = A B becomes D^T = B^T A^T:
 * the operands swap places, and nothing is copied. */
enum { GPUNN__PRODUCT_TAG = 0x70726F64, GPUNN__ALGORITHMS = 8 };

typedef struct gpunn__product_key { /* a key of the cache: no padding */
    int64_t tag, m, n, k, batch, transpose_a, transpose_b, lda, ldb, ldd, stride_a, stride_b, stride_d, dtype,
        d_dtype, precision, accumulate, activation, bias_dtype, residual, aux,
        row_sums;                                                      /* bias_dtype: -1 without a bias */
    int64_t align_a, align_b, align_c, align_d, align_bias, align_aux; /* in bytes */
} gpunn__product_key;

typedef struct gpunn__algorithms {
    cublasLtMatmulDesc_t   operation;
    cublasLtMatrixLayout_t a, b, d; /* as cuBLASLt sees them: a is the product's b */
    cublasLtMatmulAlgo_t   algorithm[GPUNN__ALGORITHMS];
    int                    count, chosen; /* count: 0 if there is none; chosen: index of the one that runs */
    bool                   timed;
} gpunn__algorithms;

static void gpunn__algorithms_free(gpunn__cuda *cuda, void *value)
{
    gpunn__algorithms *all = (gpunn__algorithms *)value;
    if (all->operation) cuda->libraries->cublasLtMatmulDescDestroy(all->operation);
    if (all->a) cuda->libraries->cublasLtMatrixLayoutDestroy(all->a);
    if (all->b) cuda->libraries->cublasLtMatrixLayoutDestroy(all->b);
    if (all->d) cuda->libraries->cublasLtMatrixLayoutDestroy(all->d);
}

static gpunn_status gpunn__algorithms_check(gpunn__cuda *cuda, cublasStatus_t status, const char *call)
{
    if (status == CUBLAS_STATUS_SUCCESS) return GPUNN_OK;
    const bool unsupported = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
                             status == CUBLAS_STATUS_ARCH_MISMATCH;
    gpunn_status meaning = unsupported ? GPUNN_ERR_UNSUPPORTED : GPUNN_ERR_DEVICE;
    if (status == CUBLAS_STATUS_ALLOC_FAILED) meaning = GPUNN_ERR_MEMORY;
    return gpunn__cuda_fail(cuda, meaning, "%s: %s", call, cuda->libraries->cublasLtGetStatusString(status));
}
#define GPUNN__LT(call) GPUNN__TRY(gpunn__algorithms_check(cuda, cuda->libraries->call, #call))
/* Sets an attribute to a value of the given type. */
#define GPUNN__LT_SET(function, object, attribute, type, value)             \
    do {                                                                    \
        const type value_ = (value);                                        \
        GPUNN__LT(function((object), (attribute), &value_, sizeof value_)); \
    } while (0)

static cudaDataType_t gpunn__lt_type(int64_t dtype)
{
    if (dtype == GPUNN_U8) return CUDA_R_8I;
    if (dtype == GPUNN_I32) return CUDA_R_32I;
    if (dtype == GPUNN_F32) return CUDA_R_32F;
    return dtype == GPUNN_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

/* The alignment of a pointer in bytes, at most 64, which is the alignment of values. */
static int64_t gpunn__alignment(const void *pointer)
{
    const uintptr_t bits = (uintptr_t)pointer | 64;
    return (int64_t)(bits & (0 - bits));
}

static gpunn_status gpunn__algorithms_layout(gpunn__cuda *cuda, cublasLtMatrixLayout_t *layout, int64_t dtype,
                                             int64_t rows, int64_t columns, int64_t ld, int64_t batch,
                                             int64_t stride)
{
    GPUNN__LT(
        cublasLtMatrixLayoutCreate(layout, gpunn__lt_type(dtype), (uint64_t)rows, (uint64_t)columns, ld));
    if (batch == 1) return GPUNN_OK;
    GPUNN__LT_SET(cublasLtMatrixLayoutSetAttribute, *layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t,
                  (int32_t)batch);
    GPUNN__LT_SET(cublasLtMatrixLayoutSetAttribute, *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                  int64_t, stride);
    return GPUNN_OK;
}

/* Makes the descriptors of a product, with the epilogue for bias, activation and row sums. */
static gpunn_status gpunn__algorithms_describe(gpunn__cuda *cuda, const gpunn__product_key *key,
                                               gpunn__algorithms *all)
{
    const cublasComputeType_t floats = key->dtype == GPUNN_F32 && key->precision == GPUNN_PRECISION_TF32
                                           ? CUBLAS_COMPUTE_32F_FAST_TF32
                                           : CUBLAS_COMPUTE_32F;
    const bool                ta = key->transpose_a, tb = key->transpose_b, bias = key->bias_dtype >= 0;
    const bool                integers = key->dtype == GPUNN_U8;
    GPUNN__LT(cublasLtMatmulDescCreate(&all->operation, integers ? CUBLAS_COMPUTE_32I : floats,
                                       integers ? CUDA_R_32I : CUDA_R_32F));
    GPUNN__TRY(gpunn__algorithms_layout(cuda, &all->a, key->dtype, tb ? key->k : key->n, tb ? key->n : key->k,
                                        key->ldb, key->batch, key->stride_b));
    GPUNN__TRY(gpunn__algorithms_layout(cuda, &all->b, key->dtype, ta ? key->m : key->k, ta ? key->k : key->m,
                                        key->lda, key->batch, key->stride_a));
    GPUNN__TRY(gpunn__algorithms_layout(cuda, &all->d, key->d_dtype, key->n, key->m, key->ldd, key->batch,
                                        key->stride_d));
#define GPUNN__DESCRIBE(attribute, type, value)                                                           \
    GPUNN__LT_SET(cublasLtMatmulDescSetAttribute, all->operation, CUBLASLT_MATMUL_DESC_##attribute, type, \
                  value)
    GPUNN__DESCRIBE(TRANSA, int32_t, tb ? CUBLAS_OP_T : CUBLAS_OP_N);
    GPUNN__DESCRIBE(TRANSB, int32_t, ta ? CUBLAS_OP_T : CUBLAS_OP_N);
    const uint32_t epilogues[] = {0, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_DGELU};
    uint32_t       epilogue = epilogues[key->activation];
    if (bias) epilogue |= CUBLASLT_EPILOGUE_BIAS;
    if (key->row_sums) epilogue |= CUBLASLT_EPILOGUE_BGRADB;
    if (key->aux && key->activation == GPUNN__GELU_TANH) epilogue |= CUBLASLT_EPILOGUE_GELU_AUX;
    if (epilogue == 0) epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    /* The search uses these pointers only for their alignment. */
    if (bias || key->row_sums) GPUNN__DESCRIBE(BIAS_POINTER, void *, (void *)(uintptr_t)key->align_bias);
    if (key->aux) {
        GPUNN__DESCRIBE(EPILOGUE_AUX_POINTER, void *, (void *)(uintptr_t)key->align_aux);
        GPUNN__DESCRIBE(EPILOGUE_AUX_LD, int64_t, key->ldd);
    }
    GPUNN__DESCRIBE(EPILOGUE, uint32_t, epilogue);
#undef GPUNN__DESCRIBE
    return GPUNN_OK;
}

/* Finds algorithms that sum in F32 and in a fixed order, the one estimated to be fastest first. */
static gpunn_status gpunn__algorithms_search(gpunn__cuda *cuda, const gpunn__product_key *key,
                                             gpunn__algorithms *all, cublasLtMatmulPreference_t preference)
{
#define GPUNN__PREFER(attribute, type, value)                                                               \
    GPUNN__LT_SET(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_##attribute, type, \
                  value)
    GPUNN__PREFER(MAX_WORKSPACE_BYTES, uint64_t, cuda->libraries->lt_workspace_bytes);
    GPUNN__PREFER(REDUCTION_SCHEME_MASK, uint32_t, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    GPUNN__PREFER(MIN_ALIGNMENT_A_BYTES, uint32_t, (uint32_t)key->align_b);
    GPUNN__PREFER(MIN_ALIGNMENT_B_BYTES, uint32_t, (uint32_t)key->align_a);
    GPUNN__PREFER(MIN_ALIGNMENT_C_BYTES, uint32_t, (uint32_t)key->align_c);
    GPUNN__PREFER(MIN_ALIGNMENT_D_BYTES, uint32_t, (uint32_t)key->align_d);
#undef GPUNN__PREFER
    const gpunn__libraries         *libraries = cuda->libraries;
    cublasLtMatmulHeuristicResult_t result[GPUNN__ALGORITHMS];
    int                             count = 0;

    const cublasStatus_t status = libraries->cublasLtMatmulAlgoGetHeuristic(
        libraries->lt, all->operation, all->a, all->b, all->d, all->d, preference, GPUNN__ALGORITHMS, result,
        &count);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; i++)
        if (result[i].state == CUBLAS_STATUS_SUCCESS &&
            result[i].workspaceSize <= libraries->lt_workspace_bytes)
            all->algorithm[all->count++] = result[i].algo;
    return GPUNN_OK;
}

/* Finds or makes the cache entry of a product. placed: p's pointers are those of the run. Otherwise all
 * pointers count as aligned. Returns GPUNN_ERR_UNSUPPORTED if there is no algorithm. */
static gpunn_status gpunn__algorithms_find(gpunn__cuda *cuda, const gpunn__product *p, bool placed,
                                           gpunn__algorithms **found)
{
    gpunn__product_key key;
    memset(&key, 0, sizeof key);
    key.tag = GPUNN__PRODUCT_TAG;
    key.m = p->m, key.n = p->n, key.k = p->k, key.batch = p->batch;
    key.transpose_a = p->transpose_a, key.transpose_b = p->transpose_b;
    key.lda = p->lda, key.ldb = p->ldb, key.ldd = p->ldd;
    key.stride_a = p->stride_a, key.stride_b = p->stride_b, key.stride_d = p->stride_d;
    key.dtype = p->dtype, key.d_dtype = p->d_dtype, key.precision = p->precision;
    key.accumulate = p->accumulate, key.activation = p->activation,
    key.bias_dtype = p->bias ? p->bias_dtype : -1;
    key.residual = p->residual != NULL, key.aux = p->aux != NULL, key.row_sums = p->row_sums != NULL;
    const void *const c = p->residual ? p->residual : p->d, *const bias = p->bias ? p->bias : p->row_sums;
    key.align_a = gpunn__alignment(placed ? p->a : NULL);
    key.align_b = gpunn__alignment(placed ? p->b : NULL);
    key.align_c = gpunn__alignment(placed ? c : NULL);
    key.align_d = gpunn__alignment(placed ? p->d : NULL);
    key.align_bias = gpunn__alignment(placed ? bias : NULL);
    key.align_aux = gpunn__alignment(placed ? p->aux : NULL);
    bool               fresh;
    gpunn__algorithms *all = (gpunn__algorithms *)gpunn__cuda_cached(cuda, &key, sizeof key, sizeof *all,
                                                                     gpunn__algorithms_free, &fresh);
    if (all == NULL)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_MEMORY,
                                "out of host memory for the descriptors of a matrix product");
    /* cuBLASLt takes a bias only in the result's dtype, and relu's derivative only from its own relu's bit
     * mask. */
    const bool known = (p->bias == NULL || p->bias_dtype == p->d_dtype) &&
                       p->activation != GPUNN__RELU_DERIVATIVE;
    if (fresh && known) {
        cublasLtMatmulPreference_t preference;
        GPUNN__TRY(gpunn__algorithms_describe(cuda, &key, all));
        GPUNN__LT(cublasLtMatmulPreferenceCreate(&preference));
        gpunn_status status = gpunn__algorithms_search(cuda, &key, all, preference);
        cuda->libraries->cublasLtMatmulPreferenceDestroy(preference);
        GPUNN__TRY(status);
    }
    *found = all;
    return all->count > 0
               ? GPUNN_OK
               : gpunn__cuda_fail(
                     cuda, GPUNN_ERR_UNSUPPORTED,
                     "cuBLASLt has no algorithm for a matrix product of %lld x %lld by %lld x %lld",
                     (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->n);
}

static gpunn_status gpunn__algorithms_run(gpunn__cuda *cuda, const gpunn__product *p, gpunn__algorithms *all,
                                          int algorithm)
{
    const bool    integers = p->dtype == GPUNN_U8;
    const int32_t unit = 1, none = 0;
    const float   one = 1, beta = p->accumulate || p->residual ? 1 : 0;
    GPUNN__LT(cublasLtMatmul(cuda->libraries->lt, all->operation, integers ? (const void *)&unit : &one, p->b,
                             all->a, p->a, all->b, integers ? (const void *)&none : &beta,
                             p->residual ? p->residual : p->d, all->d, p->d, all->d,
                             &all->algorithm[algorithm], cuda->libraries->lt_workspace,
                             cuda->libraries->lt_workspace_bytes, cuda->stream));
    return GPUNN_OK;
}

typedef struct gpunn__algorithm_run {
    const gpunn__product *p;
    gpunn__algorithms    *all;
    int                   algorithm;
} gpunn__algorithm_run;
static gpunn_status gpunn__algorithm_again(gpunn__cuda *cuda, const void *what)
{
    const gpunn__algorithm_run *run = (const gpunn__algorithm_run *)what;
    return gpunn__algorithms_run(cuda, run->p, run->all, run->algorithm);
}

/* Times all algorithms and keeps the fastest, if gpunn__may_time allows it. */
static gpunn_status gpunn__algorithms_choose(gpunn__cuda *cuda, const gpunn__product *p,
                                             gpunn__algorithms *all)
{
    float best = 0, milliseconds;
    bool  may;
    GPUNN__TRY(gpunn__may_time(cuda, &may));
    if (!may) return GPUNN_OK;
    for (int i = 0; i < all->count; i++) {
        const gpunn__algorithm_run run = {p, all, i};
        GPUNN__TRY(gpunn__time(cuda, gpunn__algorithm_again, &run, &milliseconds));
        if (i > 0 && milliseconds >= best) continue;
        best = milliseconds;
        all->chosen = i;
    }
    all->timed = true;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_product_prepare(gpunn__cuda *cuda, const gpunn__product *p)
{
    gpunn__algorithms *all;
    return gpunn__algorithms_find(cuda, p, false, &all);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_product(gpunn__cuda *cuda, const gpunn__product *p)
{
    gpunn__algorithms *all;
    GPUNN__TRY(gpunn__algorithms_find(cuda, p, true, &all));
    const void *const bias = p->bias ? p->bias : p->row_sums;
    if (bias)
        GPUNN__LT_SET(cublasLtMatmulDescSetAttribute, all->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                      void *, (void *)bias);
    if (p->aux)
        GPUNN__LT_SET(cublasLtMatmulDescSetAttribute, all->operation,
                      CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, void *, p->aux);
    /* Timing writes the result repeatedly, which would be wrong for an accumulating product. */
    if (!all->timed && all->count > 1 && !p->accumulate) GPUNN__TRY(gpunn__algorithms_choose(cuda, p, all));
    return gpunn__algorithms_run(cuda, p, all, all->chosen);
}
#undef GPUNN__LT_SET
#undef GPUNN__LT
#endif

/* ---- our own product, for what is too small for the library's launches or unsupported by it ------------ */

typedef struct gpunn__product_pair {
    gpunn__product p[2];
} gpunn__product_pair;

/* blockIdx.y is the index of the product. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__product_kernel(gpunn__product_pair pair)
{
    GPUNN__FOLLOW();
    gpunn__product_make(&pair.p[blockIdx.y]);
}

GPUNN__INTERNAL int64_t gpunn__product_tiles(const gpunn__product *p)
{
    return (p->m + GPUNN__TILE - 1) / GPUNN__TILE * ((p->n + GPUNN__TILE - 1) / GPUNN__TILE) * p->batch;
}

GPUNN__INTERNAL bool gpunn__product_is_small(const gpunn__cuda *cuda, const gpunn__product *p)
{
    const int64_t pieces = (p->k + GPUNN__DEPTH - 1) / GPUNN__DEPTH;
    /* the library would need a second pass, so a longer sum pays */
    const bool apart = p->activation == GPUNN__RELU && p->keep_nan;
    return pieces <= (apart ? 8 : 2) && gpunn__product_tiles(p) * pieces <= 2 * cuda->multiprocessors;
}

/* Runs one or two products by our own kernel. */
static gpunn_status gpunn__product_own(gpunn__cuda *cuda, const gpunn__product *p, int count)
{
    gpunn__product_pair pair = {{p[0], p[count - 1]}};
    int64_t             blocks = 1, most = (int64_t)cuda->multiprocessors * 16;
    for (int i = 0; i < count; i++)
        if (gpunn__product_tiles(&p[i]) > blocks) blocks = gpunn__product_tiles(&p[i]);
    return GPUNN__LAUNCH(cuda, gpunn__product_kernel,
                         dim3((unsigned)(blocks < most ? blocks : most), (unsigned)count), GPUNN__THREADS,
                         pair);
}

/* ---- what follows a product's sums: in the library's epilogue, or in passes of ours ---- */

static gpunn_status gpunn__apply(gpunn__cuda *cuda, gpunn_op act, gpunn_value *x, const gpunn_value *y,
                                 gpunn_value *gradient)
{
    const gpunn_attributes none = {};
    bool                   accumulate = false;
    gpunn_step             step = gpunn__activation_step(act, x, y, gradient, &none, &accumulate);
    return gpunn__cuda_map(cuda, &step, step.backward ? GPUNN__BACKWARD : GPUNN__FORWARD);
}

/* The product without what separate passes can do after it. */
static gpunn__product gpunn__product_bare(gpunn__product p)
{
    if (p.activation == GPUNN__GELU_TANH && p.aux) p.d = p.aux;
    p.activation = GPUNN__NO_ACTIVATION;
    p.aux = NULL;
    p.row_sums = NULL;
    return p;
}

/* Runs the bare product, then row sums and activation in separate passes. */
static gpunn_status gpunn__product_apart(gpunn__cuda *cuda, const void *what)
{
    const gpunn__product *const p = (const gpunn__product *)what, bare = gpunn__product_bare(*p);
    const bool  relu = p->activation == GPUNN__RELU || p->activation == GPUNN__RELU_DERIVATIVE;
    const bool  backward = p->activation >= GPUNN__GELU_TANH_DERIVATIVE;
    gpunn_value x, d;
    GPUNN__TRY(gpunn__cuda_product(cuda, &bare));
    if (p->row_sums)
        GPUNN__TRY(
            gpunn__cuda_channel_sums(cuda, p->a, p->dtype, p->k, p->m, 1, p->row_sums, false, p->workspace));
    if (p->activation == GPUNN__NO_ACTIVATION) return GPUNN_OK;
    memset(&d, 0, sizeof d);
    d.rank = 1;
    d.dim[0] = d.count = p->m * p->n;
    d.dtype = p->d_dtype;
    d.data = p->d;
    x = d;
    x.data = backward ? p->aux : bare.d;
    return gpunn__apply(cuda, relu ? GPUNN_OP_RELU : GPUNN_OP_GELU_TANH, &x, backward ? &x : &d,
                        backward ? &d : NULL);
}

static gpunn_status gpunn__product_whole(gpunn__cuda *cuda, const void *what)
{
    return gpunn__cuda_product(cuda, (const gpunn__product *)what);
}

enum { GPUNN__CHOICE_TAG = 0x63686F69 };
typedef struct gpunn__choice_key { /* a key of the cache: no padding */
    int64_t tag, m, n, k, transpose_a, transpose_b, dtype, d_dtype, activation, aux, row_sums;
} gpunn__choice_key;
typedef struct gpunn__choice {
    bool timed, whole;
} gpunn__choice;

static gpunn_status gpunn__product_compare(gpunn__cuda *cuda, const gpunn__product *p, gpunn__choice *choice)
{
    float whole, apart;
    GPUNN__TRY(gpunn__time(cuda, gpunn__product_whole, p, &whole));
    GPUNN__TRY(gpunn__time(cuda, gpunn__product_apart, p, &apart));
    choice->whole = whole <= apart;
    choice->timed = true;
    return GPUNN_OK;
}

/* Whether the library's epilogue does all that p needs. On data-centre GPUs since Hopper, activations and row
 * sums are part of its kernels. On others it runs a separate pass for them that is slower than ours
 * (karpathy/llm.c #338, #591, #653). With .benchmark, both ways are timed. */
static gpunn_status gpunn__product_choose(gpunn__cuda *cuda, const gpunn__product *p, gpunn__action action,
                                          bool *whole)
{
    const bool         follows = p->activation != GPUNN__NO_ACTIVATION || p->row_sums;
    const bool         hides = p->activation == GPUNN__RELU && p->keep_nan;
    const gpunn_status status = hides ? GPUNN_ERR_UNSUPPORTED : gpunn__cuda_product_prepare(cuda, p);
    bool               may, fresh;
    *whole = status == GPUNN_OK && (!follows || (cuda->capability >= 90 && cuda->capability < 120));
    if (status != GPUNN_OK) return status == GPUNN_ERR_UNSUPPORTED ? GPUNN_OK : status;
    if (!follows || action == GPUNN__PREPARE || p->accumulate || !cuda->args.benchmark) return GPUNN_OK;
    const gpunn__choice_key key = {GPUNN__CHOICE_TAG,  p->m,     p->n,       p->k,          p->transpose_a,
                                   p->transpose_b,     p->dtype, p->d_dtype, p->activation, p->aux != NULL,
                                   p->row_sums != NULL};
    gpunn__choice *const choice = (gpunn__choice *)gpunn__cuda_cached(cuda, &key, sizeof key, sizeof *choice,
                                                                      NULL, &fresh);
    if (choice == NULL)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_MEMORY,
                                "out of host memory for the choice of a matrix product's passes");
    GPUNN__TRY(gpunn__may_time(cuda, &may));
    const gpunn_status compared = may && !choice->timed ? gpunn__product_compare(cuda, p, choice) : GPUNN_OK;
    if (choice->timed) *whole = choice->whole;
    /* unsupported at these addresses: gpunn__product_run handles it */
    return compared == GPUNN_ERR_UNSUPPORTED ? GPUNN_OK : compared;
}

/* Whether the library or, for small products, our own kernel computes p's sums with bias and residual. */
static gpunn_status gpunn__product_fits(gpunn__cuda *cuda, const gpunn__product *p, bool *fits)
{
    const gpunn__product bare = gpunn__product_bare(*p);
    const gpunn_status   status = gpunn__product_is_small(cuda, p) ? GPUNN_OK
                                                                   : gpunn__cuda_product_prepare(cuda, &bare);
    *fits = status == GPUNN_OK;
    return status == GPUNN_ERR_UNSUPPORTED ? GPUNN_OK : status;
}

/* Runs a product that fits: with the library's epilogue (whole) or with separate passes. The library may have
 * no algorithm for the alignment of these operands, which shows only now. Then our own kernel runs. */
static gpunn_status gpunn__product_run(gpunn__cuda *cuda, const gpunn__product *p, bool whole)
{
    gpunn_status status = whole ? gpunn__cuda_product(cuda, p) : GPUNN_ERR_UNSUPPORTED;
    if (status == GPUNN_ERR_UNSUPPORTED) status = gpunn__product_apart(cuda, p);
    return status == GPUNN_ERR_UNSUPPORTED ? gpunn__product_own(cuda, p, 1) : status;
}

GPUNN__INTERNAL gpunn_status gpunn__products(gpunn__cuda *cuda, const gpunn__product *p, int count,
                                             gpunn__action action)
{
    bool small = true;
    for (int i = 0; i < count; i++) small = small && gpunn__product_is_small(cuda, &p[i]);
    if (small && count > 0) return action == GPUNN__PREPARE ? GPUNN_OK : gpunn__product_own(cuda, p, count);
    for (int i = 0; i < count; i++) {
        const bool own = gpunn__product_is_small(cuda, &p[i]);
        bool       fits, whole = false;
        GPUNN__TRY(gpunn__product_fits(cuda, &p[i], &fits));
        if (fits && !own) GPUNN__TRY(gpunn__product_choose(cuda, &p[i], action, &whole));
        if (action == GPUNN__PREPARE) continue;
        if (own || !fits)
            GPUNN__TRY(gpunn__product_own(cuda, &p[i], 1));
        else
            GPUNN__TRY(gpunn__product_run(cuda, &p[i], whole));
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL void *gpunn__element(const void *data, gpunn_dtype dtype, int64_t index)
{
    return (char *)data + gpunn__bytes(dtype, index);
}

GPUNN__INTERNAL gpunn__product gpunn__make_product(const gpunn_step *step, int64_t m, int64_t n, int64_t k,
                                                   const gpunn_value *a, bool transpose_a,
                                                   const gpunn_value *b, bool transpose_b,
                                                   const gpunn_value *d)
{
    gpunn__product p;
    memset(&p, 0, sizeof p);
    p.m = m, p.n = n, p.k = k, p.batch = 1;
    p.transpose_a = transpose_a, p.transpose_b = transpose_b;
    p.lda = transpose_a ? m : k, p.ldb = transpose_b ? k : n, p.ldd = n;
    p.dtype = a->dtype, p.d_dtype = d->dtype, p.precision = step->precision;
    p.a = a->data, p.b = b->data, p.d = d->data;
    return p;
}

GPUNN__INTERNAL gpunn_status gpunn__check_operands(gpunn__cuda *cuda, const gpunn_value *a,
                                                   const gpunn_value *b, const gpunn_value *d)
{
    if (a->dtype == b->dtype && (d->dtype == a->dtype || d->dtype == GPUNN_F32)) return GPUNN_OK;
    return gpunn__cuda_fail(
        cuda, GPUNN_ERR_UNSUPPORTED,
        "a matrix product needs operands of one dtype, and a result of that dtype or F32; cast an operand");
}

GPUNN__INTERNAL gpunn_status gpunn__finish_all(gpunn__cuda *cuda, const gpunn_step *step, const void *y,
                                               gpunn_dtype y_dtype)
{
    const bool bias = step->in[2].data != NULL, residual = step->fused->residual.data != NULL;
    if (y == step->out.data && !bias && !residual && !step->fused->norm && !step->fused->relu)
        return GPUNN_OK;
    return gpunn__cuda_finish(cuda, step, y, y_dtype, bias, step->fused->norm, residual, step->fused->relu);
}

GPUNN__INTERNAL bool gpunn__linear_whole(const gpunn_step *step, gpunn__product *whole)
{
    const int64_t      in = step->in[1].dim[1], out = step->in[1].dim[0], rows = step->in[0].count / in;
    const gpunn_value *bias = &step->in[2], *residual = &step->fused->residual,
                      *before = &step->fused->before, *y = &step->out;
    *whole = gpunn__make_product(step, rows, out, in, &step->in[0], false, &step->in[1], true, y);
    whole->bias = bias->data;
    whole->bias_dtype = bias->dtype;
    whole->residual = residual->data;
    whole->activation = step->fused->gelu_tanh ? GPUNN__GELU_TANH : GPUNN__NO_ACTIVATION;
    if (step->fused->relu) whole->activation = GPUNN__RELU;
    whole->keep_nan = step->training; /* a bad loss must stay visible */
    whole->aux = before->data;
    return !step->fused->norm && (!before->data || before->dtype == y->dtype) &&
           (!residual->data || residual->dtype == y->dtype);
}

/* Where the argument of the activation is stored. */
static gpunn_value *gpunn__linear_before(gpunn_step *step)
{
    return step->fused->before.data ? &step->fused->before : &step->out;
}

GPUNN__INTERNAL gpunn__product gpunn__linear_bare(gpunn_step *step)
{
    const int64_t in = step->in[1].dim[1], out = step->in[1].dim[0], rows = step->in[0].count / in;
    return gpunn__make_product(step, rows, out, in, &step->in[0], false, &step->in[1], true,
                               gpunn__linear_before(step));
}

GPUNN__INTERNAL gpunn_status gpunn__linear_rest(gpunn__cuda *cuda, gpunn_step *step)
{
    gpunn_value *const before = gpunn__linear_before(step);
    gpunn_step         until = *step;
    until.out = *before;
    GPUNN__TRY(gpunn__finish_all(cuda, &until, before->data, before->dtype));
    return step->fused->gelu_tanh ? gpunn__apply(cuda, GPUNN_OP_GELU_TANH, before, &step->out, NULL)
                                  : GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__linear_forward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__product bare = gpunn__linear_bare(step);
    gpunn__product       whole;
    bool                 fits = false;
    if (gpunn__linear_whole(step, &whole)) GPUNN__TRY(gpunn__product_fits(cuda, &whole, &fits));
    if (action == GPUNN__PREPARE) step->workspace_bytes = 0;
    GPUNN__TRY(gpunn__products(cuda, fits ? &whole : &bare, 1, action));
    return fits || action == GPUNN__PREPARE ? GPUNN_OK : gpunn__linear_rest(cuda, step);
}

GPUNN__INTERNAL gpunn__linear_gradients gpunn__linear_gradients_of(gpunn_step *step)
{
    const int64_t           in = step->in[1].dim[1], out = step->in[1].dim[0], rows = step->in[0].count / in;
    const gpunn_value      *dy = &step->grad_out, *dweight = &step->grad_in[1], *dx = &step->grad_in[0];
    gpunn__linear_gradients g = {};
    gpunn__product         *p = g.product;
    g.before = step->fused->activated == GPUNN_OP_RELU ? &step->in[0] : &step->fused->before;
    g.sums = step->grad_in[2].data && dweight->data && !step->accumulate[2];
    g.derived = step->fused->activated && dx->data && g.before->dtype == dx->dtype;
    if (dweight->data) {
        p[0] = gpunn__make_product(step, out, in, rows, dy, true, &step->in[0], false, dweight);
        p[0].accumulate = step->accumulate[1];
        p[0].row_sums = g.sums ? (float *)step->grad_in[2].data : NULL;
        p[0].workspace = step->workspace;
        g.count++;
    }
    if (dx->data) {
        p[g.count] = gpunn__make_product(step, rows, in, out, dy, false, &step->in[1], false, dx);
        p[g.count].accumulate = step->accumulate[0];
        if (g.derived) {
            p[g.count].activation = step->fused->activated == GPUNN_OP_RELU ? GPUNN__RELU_DERIVATIVE
                                                                            : GPUNN__GELU_TANH_DERIVATIVE;
            p[g.count].aux = g.before->data;
        }
        g.count++;
    }
    return g;
}

static gpunn_status gpunn__linear_backward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const int64_t      in = step->in[1].dim[1], out = step->in[1].dim[0], rows = step->in[0].count / in;
    const gpunn_value *dy = &step->grad_out;
    gpunn_value *const dx = &step->grad_in[0];
    float *const       dbias = (float *)step->grad_in[2].data;
    const gpunn__linear_gradients g = gpunn__linear_gradients_of(step);
    GPUNN__TRY(gpunn__products(cuda, g.product, g.count, action));
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = dbias ? gpunn__cuda_channel_sums_workspace(cuda, rows, out, 1) : 0;
        return GPUNN_OK;
    }
    if (dbias && !g.sums)
        GPUNN__TRY(gpunn__cuda_channel_sums(cuda, dy->data, dy->dtype, rows, out, 1, dbias,
                                            step->accumulate[2], step->workspace));
    return step->fused->activated && dx->data && !g.derived
               ? gpunn__apply(cuda, step->fused->activated, g.before, &step->in[0], dx)
               : GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_linear(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (gpunn__is_blocks(step->in[1].dtype)) return gpunn__cuda_block_linear(cuda, step, action);
    if (!step->backward) {
        GPUNN__TRY(gpunn__check_operands(cuda, &step->in[0], &step->in[1], &step->out));
        return gpunn__linear_forward(cuda, step, action);
    }
    if (step->grad_in[0].data)
        GPUNN__TRY(gpunn__check_operands(cuda, &step->grad_out, &step->in[1], &step->grad_in[0]));
    if (step->grad_in[1].data)
        GPUNN__TRY(gpunn__check_operands(cuda, &step->grad_out, &step->in[0], &step->grad_in[1]));
    return gpunn__linear_backward(cuda, step, action);
}

/* p with its operands moved to repetition `index` of the axes from `first` on. */
static gpunn__product gpunn__repeated(gpunn__product p, const gpunn__walk *all, int first, int64_t index)
{
    const int      rank = all->rank - first;
    const int64_t *dim = all->dim + first;
    if (rank <= 0) return p;
    p.a = gpunn__element(p.a, p.dtype, gpunn__offset(index, rank, dim, all->stride[0] + first));
    p.b = gpunn__element(p.b, p.dtype, gpunn__offset(index, rank, dim, all->stride[1] + first));
    p.d = gpunn__element(p.d, p.d_dtype, gpunn__offset(index, rank, dim, all->stride[2] + first));
    return p;
}

GPUNN__INTERNAL gpunn_status gpunn__repeated_products(gpunn__cuda *cuda, gpunn__product p, gpunn__walk kept,
                                                      const gpunn__walk *summed, gpunn__action action)
{
    const int64_t all = gpunn__axes_count(&kept), terms = gpunn__axes_count(summed);
    int           longest = 0;
    for (int d = 1; d < kept.rank; d++)
        if (kept.dim[d] > kept.dim[longest]) longest = d;
    if (kept.rank > 0) {
        p.batch = kept.dim[longest];
        p.stride_a = kept.stride[0][longest], p.stride_b = kept.stride[1][longest],
        p.stride_d = kept.stride[2][longest];
        kept.dim[longest] = kept.dim[0];
        for (int i = 0; i < 3; i++) kept.stride[i][longest] = kept.stride[i][0];
    }
    if (action == GPUNN__PREPARE) return gpunn__products(cuda, &p, 1, action);
    for (int64_t i = 0; i < all / p.batch; i++) {
        gpunn__product sum = gpunn__repeated(p, &kept, 1, i);
        for (int64_t s = 0; s < terms; s++) {
            const gpunn__product term = gpunn__repeated(sum, summed, 0, s);
            GPUNN__TRY(gpunn__products(cuda, &term, 1, action));
            sum.accumulate = true;
        }
    }
    return GPUNN_OK;
}

/* Runs p for every index of the leading axes of shape. a, b and d may each lack some of them or have size 1
 * there. d is summed over the axes that it lacks: in F32 in the workspace, if d has another dtype. */
static gpunn_status gpunn__broadcast_product(gpunn__cuda *cuda, gpunn_step *step, gpunn__product p,
                                             const gpunn_value *shape, const gpunn_value *a,
                                             const gpunn_value *b, const gpunn_value *d, gpunn__action action)
{
    const gpunn_value *const value[3] = {a, b, d};
    gpunn__walk              kept, summed;
    gpunn__axes_of(shape, 2, value, 3, &kept, &summed);
    const bool accumulate = p.accumulate;
    if (summed.rank == 0 || d->dtype == GPUNN_F32)
        return gpunn__repeated_products(cuda, p, kept, &summed, action);
    const size_t bytes = gpunn__bytes(GPUNN_F32, d->count);
    if (action == GPUNN__PREPARE && step->workspace_bytes < bytes) step->workspace_bytes = bytes;
    p.d = step->workspace;
    p.d_dtype = GPUNN_F32;
    p.accumulate = false;
    GPUNN__TRY(gpunn__repeated_products(cuda, p, kept, &summed, action));
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return gpunn__cuda_copy(cuda, d->data, d->dtype, p.d, GPUNN_F32, d->count, accumulate);
}

/* c = op(a) op(b), da = dc op(b)^T, db = op(a)^T dc. A gradient is transposed if its operand is stored
 * transposed, and summed over the axes along which the operand was broadcast. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_matmul(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const bool  ta = step->attr->transpose_a, tb = step->attr->transpose_b;
    gpunn_value a, b, c;
    int64_t     m, n, k;
    gpunn__matmul_sizes(step, &a, &b, &c, &m, &n, &k);
    if (action == GPUNN__PREPARE) step->workspace_bytes = 0;
    if (!step->backward) {
        GPUNN__TRY(gpunn__check_operands(cuda, &a, &b, &c));
        const gpunn__product p = gpunn__make_product(step, m, n, k, &a, ta, &b, tb, &c);
        return gpunn__broadcast_product(cuda, step, p, &c, &a, &b, &c, action);
    }
    for (int i = 0; i < 2; i++) {
        const gpunn_value *const other = i == 0 ? &b : &a;
        gpunn_value              d = i == 0 ? a : b;
        d.data = step->grad_in[i].data;
        d.dtype = step->grad_in[i].dtype;
        if (d.data == NULL) continue;
        GPUNN__TRY(gpunn__check_operands(cuda, &c, other, &d));
        const bool               c_left = i == 0 ? !ta : tb;
        const gpunn_value *const left = c_left ? &c : other, *const right = c_left ? other : &c;
        gpunn__product p;
        if (i == 0)
            p = ta ? gpunn__make_product(step, k, m, n, left, tb, right, true, &d)
                   : gpunn__make_product(step, m, k, n, left, false, right, !tb, &d);
        else
            p = tb ? gpunn__make_product(step, n, k, m, left, true, right, ta, &d)
                   : gpunn__make_product(step, k, n, m, left, !ta, right, false, &d);
        p.accumulate = step->accumulate[i];
        GPUNN__TRY(gpunn__broadcast_product(cuda, step, p, &c, left, right, &d, action));
    }
    return GPUNN_OK;
}

/* ==== >>cuda/blocks ===================================================================================== */
/* Weights that are stored as blocks of 4 to 8 bits: products and rows of embeddings. Threads unpack eight
 * consecutive numbers at a time into registers. */

/* Numbers i .. i + 7 of blocks, for i a multiple of 8. The blocks stand at an even address. */
template <gpunn_dtype format>
__device__ __forceinline__ void gpunn__block_load8(const void *blocks, int64_t i, float v[8])
{
    const int64_t         length = gpunn__block_length(format), within = i % length;
    const uint8_t        *block = (const uint8_t *)blocks + i / length * gpunn__block_size(format);
    const int             j = (int)within / GPUNN__GROUP, at = (int)within % GPUNN__GROUP;
    const unsigned short *factors = (const unsigned short *)(block + gpunn__block_scale_at(format));
    float scale = format == GPUNN_NF4 ? gpunn__nf4_scale(block) : gpunn__from_half(factors[0], GPUNN_F16),
          minimum = gpunn__block_has_minimums(format) ? gpunn__from_half(factors[1], GPUNN_F16) : 0;
    gpunn__group_factors(format, block, j, at / 16, &scale, &minimum);
#pragma unroll
    for (int part = 0; part < 2; part++) {
        const uint32_t four = gpunn__unpack4(format, block, j, at / 4 + part);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int q = (int)(four >> 8 * k & 255) - gpunn__block_bias(format);
            v[4 * part + k] = scale * gpunn__block_number(format, q) + minimum;
        }
    }
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

template <gpunn_dtype format>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__block_rows_kernel(const gpunn__block_rows r)
{
    GPUNN__FOLLOW();
    const int64_t packs = r.width / GPUNN__PACK;
    int64_t       i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < r.count * packs; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t at = gpunn__quotient(i, packs),
                      row = r.index ? gpunn__integer(r.index, r.index_type, at) : at;
        const bool there = row >= 0 && row < r.n;
        float      v[8];
        gpunn__block_load8<format>(r.blocks, (there ? row : 0) * r.width + (i - at * packs) * GPUNN__PACK, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] = there ? v[j] : NAN;
        gpunn__store8(r.to, r.to_type, i * GPUNN__PACK, v);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_block_rows(gpunn__cuda *cuda, gpunn_dtype format,
                                                    const gpunn__block_rows *r)
{
    const unsigned blocks = gpunn__blocks(cuda, r->count * r->width, GPUNN__PACK);
    switch ((int)format) {
#define GPUNN__X(id, name, length, bytes) \
    case id: return GPUNN__LAUNCH(cuda, (gpunn__block_rows_kernel<id>), blocks, GPUNN__THREADS, *r);
        GPUNN_BLOCK_LIST(GPUNN__X)
#undef GPUNN__X
    default: return GPUNN_ERR_DTYPE;
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_block_values(gpunn__cuda *cuda, void *to, gpunn_dtype to_dtype,
                                                      const void *blocks, gpunn_dtype format, int64_t count)
{
    const int64_t           rows = count / GPUNN__GROUP;
    const gpunn__block_rows r = {blocks, NULL, GPUNN_I64, to_dtype, to, rows, rows, GPUNN__GROUP};
    return gpunn__cuda_block_rows(cuda, format, &r);
}

/* ---- products ------------------------------------------------------------------------------------------ *
 * With few rows of x, a warp computes a column of y for all rows and unpacks its row of W once. The order of
 * a sum depends only on its length. With more rows, W is unpacked into the workspace, as x's dtype. */

enum { GPUNN__BLOCK_ROWS = 16 };

/* sum + the product of w and the eight numbers of a from `at` on. */
__device__ __forceinline__ float gpunn__block_add(const gpunn__product &p, int64_t at, const float w[8],
                                                  float sum)
{
    float x[8];
    gpunn__load8(p.a, p.dtype, at, x);
#pragma unroll
    for (int i = 0; i < GPUNN__PACK; i++) sum += x[i] * w[i];
    return sum;
}

/* d = a b^T with all that is fused into p, for p->m <= ROWS. b [n][k] is in blocks. */
template <gpunn_dtype format, int ROWS>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__block_product_kernel(const gpunn__product p)
{
    GPUNN__FOLLOW();
    const int     lane = (int)threadIdx.x % 32;
    const int64_t warps = (int64_t)gridDim.x * blockDim.x / 32;
    int64_t       j = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (; j < p.n; j += warps) {
        float sum[ROWS] = {}, mine = 0;
        for (int64_t k = lane * GPUNN__PACK; k < p.k; k += 32 * GPUNN__PACK) {
            float w[8];
            gpunn__block_load8<format>(p.b, j * p.k + k, w);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (i < p.m) sum[i] = gpunn__block_add(p, i * p.lda + k, w, sum[i]);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2)
                sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], distance);
            mine = lane == i ? sum[i] : mine;
        }
        if (lane < p.m) gpunn__product_store(&p, lane, j, lane * p.ldd + j, mine, 0);
    }
}

template <gpunn_dtype format>
static gpunn_status gpunn__block_product_of(gpunn__cuda *cuda, const gpunn__product *p)
{
    const unsigned blocks = gpunn__blocks(cuda, p->n * 32, 1);
    if (p->m == 1)
        return GPUNN__LAUNCH(cuda, (gpunn__block_product_kernel<format, 1>), blocks, GPUNN__THREADS, *p);
    if (p->m <= 4)
        return GPUNN__LAUNCH(cuda, (gpunn__block_product_kernel<format, 4>), blocks, GPUNN__THREADS, *p);
    return GPUNN__LAUNCH(cuda, (gpunn__block_product_kernel<format, GPUNN__BLOCK_ROWS>), blocks,
                         GPUNN__THREADS, *p);
}

static gpunn_status gpunn__block_product(gpunn__cuda *cuda, gpunn_dtype format, const gpunn__product *p)
{
    switch ((int)format) {
#define GPUNN__X(id, name, length, bytes) \
    case id: return gpunn__block_product_of<id>(cuda, p);
        GPUNN_BLOCK_LIST(GPUNN__X)
#undef GPUNN__X
    default: return GPUNN_ERR_DTYPE;
    }
}

/* The step with its weight unpacked into the workspace, in the dtype of the rows that it multiplies. The
 * workspace of that step follows, at a multiple of 64 bytes. */
static gpunn_status gpunn__block_unpacked(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *weight = &step->in[1];
    gpunn_value        in[3] = {step->in[0], *weight, step->in[2]};
    gpunn_step         unpacked = *step;
    unpacked.in = in;
    in[1].data = step->workspace;
    in[1].dtype = step->backward ? step->grad_out.dtype : in[0].dtype;
    const size_t bytes = gpunn__bytes(in[1].dtype, weight->count);
    if (action != GPUNN__PREPARE) unpacked.workspace = (char *)step->workspace + bytes;
    if (action != GPUNN__PREPARE && (!step->backward || step->grad_in[0].data))
        GPUNN__TRY(gpunn__cuda_block_values(cuda, in[1].data, in[1].dtype, weight->data, weight->dtype,
                                            weight->count));
    GPUNN__TRY(gpunn__cuda_linear(cuda, &unpacked, action));
    if (action == GPUNN__PREPARE) step->workspace_bytes = bytes + unpacked.workspace_bytes;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_block_linear(gpunn__cuda *cuda, gpunn_step *step,
                                                      gpunn__action action)
{
    gpunn__product p;
    if (step->backward) return gpunn__block_unpacked(cuda, step, action);
    const bool whole = gpunn__linear_whole(step, &p);
    if (p.m > GPUNN__BLOCK_ROWS) return gpunn__block_unpacked(cuda, step, action);
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = 0;
        return GPUNN_OK;
    }
    if (!whole) p = gpunn__linear_bare(step);
    GPUNN__TRY(gpunn__block_product(cuda, step->in[1].dtype, &p));
    return whole ? GPUNN_OK : gpunn__linear_rest(cuda, step);
}

/* ==== >>cuda/conv ======================================================================================== *
 * Convolutions through cuDNN's graph API. A convolution becomes a graph of one to four operations, for which
 * cuDNN's heuristics propose engines, best first. gpunn takes the first engine that the device can run and
 * that meets its guarantees (gpunn__dnn_suits). The choice is made once per gpunn__convolution and cached. */
#if GPUNN__CUDNN

enum {
    GPUNN__DNN_DESCRIPTORS = 256, /* most descriptors of one builder */
    GPUNN__DNN_CONFIGS = 96,      /* most engine configurations of one heuristic */
    GPUNN__DNN_NOTES = 32,        /* most numerical notes of one engine */
    GPUNN__DNN_CANDIDATES = 8,    /* most plans that a benchmark compares */
    GPUNN__DNN_WARM = 1,          /* warm-up runs of a plan before it is timed */
    GPUNN__DNN_TIMED = 4,         /* timed runs of a plan */
};

typedef struct gpunn__dnn_plan {
    cudnnBackendDescriptor_t descriptor;
    int64_t                  workspace;
} gpunn__dnn_plan;

/* The cache entry of a gpunn__convolution: its plans, or why there are none. */
typedef struct gpunn__dnn_choice {
    bool searched;
    /* 0: no plan; above 1: the next run outside a capture compares them */
    int             count;
    gpunn__dnn_plan plans[GPUNN__DNN_CANDIDATES]; /* a run executes the first */
    char            reason[256];                  /* why there is no plan */
} gpunn__dnn_choice;

/* Builds cuDNN descriptors and owns those in `made`. After a failure, which status and text describe, it
 * makes no more calls. */
typedef struct gpunn__dnn_builder {
    gpunn__cuda                *cuda;
    const gpunn__convolution   *conv; /* exactly one of conv and attention is non-NULL */
    const gpunn__dnn_attention *attention;
    gpunn_status                status;
    char                        text[256];
    int                         count;
    cudnnBackendDescriptor_t    descriptors[GPUNN__DNN_DESCRIPTORS];
} gpunn__dnn_builder;

/* Converts a cuDNN status to a gpunn status. On failure, text receives the call's name, cuDNN's name of the
 * error and its detail. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_check(gpunn__cuda *cuda, cudnnStatus_t status, const char *call,
                                              char *text, size_t size);

/* Calls a cuDNN function unless an earlier call has failed. Yields true if the call succeeded. */
#define GPUNN__DNN(builder, function, ...)                                                               \
    ((builder)->status == GPUNN_OK &&                                                                    \
     ((builder)->status = gpunn__dnn_check((builder)->cuda,                                              \
                                           (builder)->cuda->libraries->function(__VA_ARGS__), #function, \
                                           (builder)->text, sizeof(builder)->text)) == GPUNN_OK)

/* Creates a descriptor, which the builder owns. Returns NULL after a failure. */
GPUNN__INTERNAL cudnnBackendDescriptor_t gpunn__dnn_make(gpunn__dnn_builder          *builder,
                                                         cudnnBackendDescriptorType_t type);

/* Sets an attribute to `count` values of the given type. The next three set one integer, data type or
 * descriptor. */
GPUNN__INTERNAL void gpunn__dnn_set(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                    int64_t count, const void *values);

GPUNN__INTERNAL void gpunn__dnn_set_int(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                        cudnnBackendAttributeName_t name, int64_t value);

GPUNN__INTERNAL void gpunn__dnn_set_type(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                         cudnnBackendAttributeName_t name, gpunn_dtype dtype);

GPUNN__INTERNAL void gpunn__dnn_link(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                     cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t other);

/* Fails unless all sizes fit into 32 bits. cuDNN reports a larger one and then divides by 0 (9.14). */
GPUNN__INTERNAL void gpunn__dnn_check_sizes(gpunn__dnn_builder *builder, int64_t count, const int64_t *sizes);

GPUNN__INTERNAL void gpunn__dnn_finalize(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor);

/* Creates the graph of these operations. */
GPUNN__INTERNAL cudnnBackendDescriptor_t gpunn__dnn_operations(gpunn__dnn_builder *builder, int64_t count,
                                                               const cudnnBackendDescriptor_t *operations);

/* Clears GPUNN_ERR_UNSUPPORTED, so that the next candidate can be tried. text keeps the reason. */
GPUNN__INTERNAL void gpunn__dnn_clear_unsupported(gpunn__dnn_builder *builder);

/* Destroys the plans of a gpunn__dnn_choice. */
GPUNN__INTERNAL void gpunn__dnn_forget(gpunn__cuda *cuda, void *value);

/* Reports a failure of cuDNN. GPUNN_ERR_UNSUPPORTED becomes GPUNN_ERR_DEVICE: what was prepared must run. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_fail(gpunn__cuda *cuda, gpunn_status status, const char *text);

/* Fills choice with plans for the graph, or with the reason why there is none; both return GPUNN_OK. Either
 * conv or attention is non-NULL. Nondeterministic engines are tried last, and never if the device is opened
 * as deterministic. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_search(
    gpunn__cuda *cuda, const gpunn__convolution *conv, const gpunn__dnn_attention *attention,
    cudnnBackendDescriptor_t (*make_graph)(gpunn__dnn_builder *builder), gpunn__dnn_choice *choice);

/* Runs a plan on tensors given as ids (names) and device pointers. If there are several plans and the graph
 * is repeatable (no output is also an input), it times them first and keeps the fastest. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_launch(gpunn__cuda *cuda, gpunn__dnn_choice *choice, int64_t count,
                                               const int64_t *names, const void *const *pointers,
                                               void *workspace, bool repeatable);
#endif

#ifndef GPUNN__EMULATOR
GPUNN__INTERNAL bool gpunn__dnn_available(gpunn__cuda *cuda)
{
    return gpunn__libraries_dnn(cuda) == GPUNN_OK;
}

GPUNN__INTERNAL size_t gpunn__dnn_version(const gpunn__cuda *cuda)
{
    return cuda->libraries->dnn_module.version;
}
#endif

typedef enum gpunn__dnn_kind {
    GPUNN__DNN_CONVOLUTION,
    GPUNN__DNN_DEPTHWISE,
    GPUNN__DNN_ATTENTION
} gpunn__dnn_kind;

/* Logs a warning that says why an available cuDNN does not do a step, once per device and kind. */
GPUNN__INTERNAL void gpunn__dnn_slower(gpunn__cuda *cuda, const gpunn_step *step, gpunn__dnn_kind kind,
                                       const char *why);

#if GPUNN__CUDNN

/* A CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR that replaces the machine's device. Plans can be made for it but not
 * run. */
#ifndef GPUNN__DNN_DESCRIBED
#define GPUNN__DNN_DESCRIBED NULL
#endif
/* Ids of a graph's tensors. Those from BETWEEN on are virtual: cuDNN never stores them. */
enum {
    GPUNN__DNN_X = 1,
    GPUNN__DNN_W,
    GPUNN__DNN_Y,
    GPUNN__DNN_BIAS,
    GPUNN__DNN_RESIDUAL,
    GPUNN__DNN_BETWEEN
};

GPUNN__INTERNAL gpunn_status gpunn__dnn_check(gpunn__cuda *cuda, cudnnStatus_t status, const char *call,
                                              char *text, size_t size)
{
    if (status == CUDNN_STATUS_SUCCESS) return GPUNN_OK;
    char detail[160] = "";
    cuda->libraries->cudnnGetLastErrorString(detail, sizeof detail);
    (void)snprintf(text, size, "%s: %s%s%s", call, cuda->libraries->cudnnGetErrorString(status),
                   *detail ? ": " : "", detail);
    if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
        status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
        return GPUNN_ERR_MEMORY;
    bool broken = status < CUDNN_STATUS_BAD_PARAM || status >= CUDNN_STATUS_EXECUTION_FAILED;
    return broken ? GPUNN_ERR_DEVICE : GPUNN_ERR_UNSUPPORTED;
}

GPUNN__INTERNAL cudnnBackendDescriptor_t gpunn__dnn_make(gpunn__dnn_builder          *builder,
                                                         cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    if (GPUNN__DNN(builder, cudnnBackendCreateDescriptor, type, &descriptor))
        builder->descriptors[builder->count++] = descriptor;
    return descriptor;
}

/* Destroys all descriptors but the first `count`. */
static void gpunn__dnn_release(gpunn__dnn_builder *builder, int count)
{
    while (builder->count > count)
        (void)builder->cuda->libraries->cudnnBackendDestroyDescriptor(builder->descriptors[--builder->count]);
}

GPUNN__INTERNAL void gpunn__dnn_set(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                    int64_t count, const void *values)
{
    (void)GPUNN__DNN(builder, cudnnBackendSetAttribute, descriptor, name, type, count, values);
}

GPUNN__INTERNAL void gpunn__dnn_set_int(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                        cudnnBackendAttributeName_t name, int64_t value)
{
    gpunn__dnn_set(builder, descriptor, name, CUDNN_TYPE_INT64, 1, &value);
}

GPUNN__INTERNAL void gpunn__dnn_set_type(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                         cudnnBackendAttributeName_t name, gpunn_dtype dtype)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    if (dtype == GPUNN_F16) type = CUDNN_DATA_HALF;
    if (dtype == GPUNN_BF16) type = CUDNN_DATA_BFLOAT16;
    gpunn__dnn_set(builder, descriptor, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

GPUNN__INTERNAL void gpunn__dnn_link(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                     cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t other)
{
    gpunn__dnn_set(builder, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other);
}

GPUNN__INTERNAL void gpunn__dnn_finalize(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor)
{
    (void)GPUNN__DNN(builder, cudnnBackendFinalize, descriptor);
}

/* Reads an attribute. Writes at most `count` values and returns how many there are. */
static int64_t gpunn__dnn_get(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                              cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                              int64_t count, void *values)
{
    int64_t got = 0;
    (void)GPUNN__DNN(builder, cudnnBackendGetAttribute, descriptor, name, type, count, &got, values);
    return got;
}

GPUNN__INTERNAL void gpunn__dnn_check_sizes(gpunn__dnn_builder *builder, int64_t count, const int64_t *sizes)
{
    for (int64_t i = 0; i < count && builder->status == GPUNN_OK; i++) {
        if (sizes[i] <= INT32_MAX) continue;
        builder->status = GPUNN_ERR_UNSUPPORTED;
        (void)snprintf(builder->text, sizeof builder->text, "it counts in 32 bits");
    }
}

/* A contiguous tensor. shape is n, c, d, h, w; a convolution of two axes omits d. */
static cudnnBackendDescriptor_t gpunn__dnn_tensor(gpunn__dnn_builder *builder, int64_t name,
                                                  const int64_t shape[5])
{
    bool    between = name >= GPUNN__DNN_BETWEEN, last = builder->conv->channels_last != 0;
    int64_t rank = builder->conv->axes + 2, dim[5] = {shape[0], shape[1]}, stride[5];
    for (int64_t i = 2; i < rank; i++) dim[i] = shape[i + 5 - rank];
    stride[rank - 1] = last ? dim[1] : 1;
    for (int64_t i = rank - 2; i > 1; i--) stride[i] = stride[i + 1] * dim[i + 1];
    stride[1] = last ? 1 : stride[2] * dim[2];
    stride[0] = (last ? stride[2] * dim[2] : stride[1] * dim[1]);
    gpunn__dnn_check_sizes(builder, rank, dim);

    cudnnBackendDescriptor_t tensor = gpunn__dnn_make(builder, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    gpunn__dnn_set_type(builder, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE,
                        between ? GPUNN_F32 : (gpunn_dtype)builder->conv->dtype);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, dim);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, stride);
    gpunn__dnn_set_int(builder, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, name);
    gpunn__dnn_set_int(builder, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &between);
    gpunn__dnn_finalize(builder, tensor);
    return tensor;
}

/* The convolution itself. conv->kind decides which of x, w and y it computes. */
static cudnnBackendDescriptor_t gpunn__dnn_convolve(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t x,
                                                    cudnnBackendDescriptor_t w, cudnnBackendDescriptor_t y)
{
    static const struct {
        cudnnBackendDescriptorType_t type;
        cudnnBackendAttributeName_t  x, w, y, window, alpha, beta;
    } kinds[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
    };
    const gpunn__convolution *conv = builder->conv;
    cudnnConvolutionMode_t    mode = CUDNN_CROSS_CORRELATION;
    float                     alpha = 1, beta = 0;
    const int64_t             first = 3 - conv->axes;

    cudnnBackendDescriptor_t window = gpunn__dnn_make(builder, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    gpunn__dnn_set_int(builder, window, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, conv->axes);
    gpunn__dnn_set_type(builder, window, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, GPUNN_F32);
    gpunn__dnn_set(builder, window, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    gpunn__dnn_set(builder, window, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, conv->axes,
                   conv->padding + first);
    gpunn__dnn_set(builder, window, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, conv->axes,
                   conv->padding + first);
    gpunn__dnn_set(builder, window, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, conv->axes,
                   conv->dilation + first);
    gpunn__dnn_set(builder, window, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, conv->axes,
                   conv->stride + first);
    gpunn__dnn_finalize(builder, window);

    cudnnBackendDescriptor_t operation = gpunn__dnn_make(builder, kinds[conv->kind].type);
    gpunn__dnn_link(builder, operation, kinds[conv->kind].x, x);
    gpunn__dnn_link(builder, operation, kinds[conv->kind].w, w);
    gpunn__dnn_link(builder, operation, kinds[conv->kind].y, y);
    gpunn__dnn_link(builder, operation, kinds[conv->kind].window, window);
    gpunn__dnn_set(builder, operation, kinds[conv->kind].alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    gpunn__dnn_set(builder, operation, kinds[conv->kind].beta, CUDNN_TYPE_FLOAT, 1, &beta);
    gpunn__dnn_finalize(builder, operation);
    return operation;
}

/* to = from + other, or to = relu(from) with other NULL. */
static cudnnBackendDescriptor_t gpunn__dnn_pointwise(gpunn__dnn_builder      *builder,
                                                     cudnnBackendDescriptor_t from,
                                                     cudnnBackendDescriptor_t other,
                                                     cudnnBackendDescriptor_t to)
{
    cudnnPointwiseMode_t mode = other ? CUDNN_POINTWISE_ADD : CUDNN_POINTWISE_RELU_FWD;

    cudnnBackendDescriptor_t function = gpunn__dnn_make(builder, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    gpunn__dnn_set(builder, function, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    gpunn__dnn_set_type(builder, function, CUDNN_ATTR_POINTWISE_MATH_PREC, GPUNN_F32);
    gpunn__dnn_finalize(builder, function);

    cudnnBackendDescriptor_t operation = gpunn__dnn_make(builder,
                                                         CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, from);
    if (other) gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, other);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
    gpunn__dnn_finalize(builder, operation);
    return operation;
}

GPUNN__INTERNAL cudnnBackendDescriptor_t gpunn__dnn_operations(gpunn__dnn_builder *builder, int64_t count,
                                                               const cudnnBackendDescriptor_t *operations)
{
    cudnnBackendDescriptor_t graph = gpunn__dnn_make(builder, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    gpunn__dnn_set(builder, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                   operations);
    if (!GPUNN__DNN_DESCRIBED)
        gpunn__dnn_set(builder, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                       &builder->cuda->libraries->dnn);
    gpunn__dnn_finalize(builder, graph);
    return graph;
}

/* The graph x, w -> convolution -> + residual -> + bias -> relu -> y. cuDNN has precompiled engines for this
 * order only. Without a bias it has none for a residual or relu: for NHWC it compiles one at run time, for
 * NCHW it has no plan. */
static cudnnBackendDescriptor_t gpunn__dnn_graph(gpunn__dnn_builder *builder)
{
    const gpunn__convolution *conv = builder->conv;
    int64_t                   x_shape[5] = {conv->n, conv->c, conv->d, conv->h, conv->w};
    int64_t                   w_shape[5] = {conv->k, conv->c / conv->groups, conv->kd, conv->kh, conv->kw};
    int64_t y_shape[5] = {conv->n, conv->k, conv->o, conv->p, conv->q}, bias_shape[5] = {1, conv->k, 1, 1, 1};
    int64_t count = 0, last = conv->residual + conv->bias + conv->relu;
    cudnnBackendDescriptor_t operations[4], y[4], x = gpunn__dnn_tensor(builder, GPUNN__DNN_X, x_shape);
    cudnnBackendDescriptor_t w = gpunn__dnn_tensor(builder, GPUNN__DNN_W, w_shape);
    for (int64_t i = 0; i < last; i++) y[i] = gpunn__dnn_tensor(builder, GPUNN__DNN_BETWEEN + i, y_shape);
    y[last] = gpunn__dnn_tensor(builder, GPUNN__DNN_Y, y_shape);

    operations[count++] = gpunn__dnn_convolve(builder, x, w, y[0]);
    if (conv->residual) {
        cudnnBackendDescriptor_t residual = gpunn__dnn_tensor(builder, GPUNN__DNN_RESIDUAL, y_shape);
        operations[count] = gpunn__dnn_pointwise(builder, y[count - 1], residual, y[count]), count++;
    }
    if (conv->bias) {
        cudnnBackendDescriptor_t bias = gpunn__dnn_tensor(builder, GPUNN__DNN_BIAS, bias_shape);
        operations[count] = gpunn__dnn_pointwise(builder, y[count - 1], bias, y[count]), count++;
    }
    if (conv->relu) operations[count] = gpunn__dnn_pointwise(builder, y[count - 1], NULL, y[count]), count++;

    return gpunn__dnn_operations(builder, count, operations);
}

/* Gets the heuristic's engine configurations for the graph, fastest first. Returns how many. */
static int64_t gpunn__dnn_configs(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t graph,
                                  cudnnBackendHeurMode_t   mode,
                                  cudnnBackendDescriptor_t configs[GPUNN__DNN_CONFIGS])
{
    cudnnBackendDescriptor_t heuristic = gpunn__dnn_make(builder, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    gpunn__dnn_link(builder, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    gpunn__dnn_set(builder, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if CUDNN_VERSION >= 90800
    if (GPUNN__DNN_DESCRIBED)
        gpunn__dnn_link(builder, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, GPUNN__DNN_DESCRIBED);
#endif
    gpunn__dnn_finalize(builder, heuristic);
    int64_t count = gpunn__dnn_get(builder, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, NULL);
    if (count > GPUNN__DNN_CONFIGS) count = GPUNN__DNN_CONFIGS;
    for (int64_t i = 0; i < count; i++)
        configs[i] = gpunn__dnn_make(builder, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t got = gpunn__dnn_get(builder, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, count, configs);
    return got < count ? got : count;
}

/* Whether the engine meets gpunn's guarantees: it sums in F32 and multiplies exactly if F32 precision is set.
 * Unless any_order is set, it also gives the same bits for the same inputs. */
static bool gpunn__dnn_suits(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t config, bool any_order)
{
    const gpunn__convolution *conv = builder->conv;
    bool exact = conv && conv->dtype == GPUNN_F32 && conv->precision == GPUNN_PRECISION_F32;
    cudnnBackendNumericalNote_t notes[GPUNN__DNN_NOTES];
    int                         before = builder->count;
    cudnnBackendDescriptor_t    engine = gpunn__dnn_make(builder, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    (void)gpunn__dnn_get(builder, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                         &engine);
    int64_t count = gpunn__dnn_get(builder, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                   CUDNN_TYPE_NUMERICAL_NOTE, GPUNN__DNN_NOTES, notes);
    gpunn__dnn_release(builder, before);

    bool suits = builder->status == GPUNN_OK && count <= GPUNN__DNN_NOTES;
    for (int64_t i = 0; i < count && suits; i++)
        suits = notes[i] != CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS &&
                notes[i] != CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION &&
                !(notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && exact) &&
                !(notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC && !any_order);
    return suits;
}

GPUNN__INTERNAL void gpunn__dnn_clear_unsupported(gpunn__dnn_builder *builder)
{
    if (builder->status == GPUNN_ERR_UNSUPPORTED) builder->status = GPUNN_OK;
}

/* Fails with GPUNN_ERR_UNSUPPORTED if the workspace exceeds workspace_limit. */
static void gpunn__dnn_limit(gpunn__dnn_builder *builder, int64_t workspace)
{
    const size_t limit = builder->cuda->args.workspace_limit;
    if (builder->status != GPUNN_OK || (uint64_t)workspace <= limit) return;
    builder->status = GPUNN_ERR_UNSUPPORTED;
    (void)snprintf(builder->text, sizeof builder->text,
                   "it needs %lld bytes of workspace, but workspace_limit is %llu", (long long)workspace,
                   (unsigned long long)limit);
}

/* Adds the configuration's plan if the device can run it within workspace_limit. The workspace is queried
 * before the plan is made where cuDNN allows it, because compiling a plan takes up to a second. */
static void gpunn__dnn_add(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t config,
                           gpunn__dnn_choice *choice)
{
    gpunn__libraries *libraries = builder->cuda->libraries;
    int               before = builder->count;
#if CUDNN_VERSION >= 90200
    int64_t needed = 0;
    (void)gpunn__dnn_get(builder, config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &needed);
    gpunn__dnn_clear_unsupported(builder);
    gpunn__dnn_limit(builder, needed);
#endif
    gpunn__dnn_plan plan = {gpunn__dnn_make(builder, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR), 0};
    gpunn__dnn_link(builder, plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (!GPUNN__DNN_DESCRIBED)
        gpunn__dnn_set(builder, plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                       &libraries->dnn);
#if CUDNN_VERSION >= 90800
    if (GPUNN__DNN_DESCRIBED)
        gpunn__dnn_link(builder, plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, GPUNN__DNN_DESCRIBED);
#endif
    gpunn__dnn_finalize(builder, plan.descriptor);
    (void)gpunn__dnn_get(builder, plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                         1, &plan.workspace);
    gpunn__dnn_limit(builder, plan.workspace);
    if (builder->status == GPUNN_OK) {
        choice->plans[choice->count++] = plan;
        builder->count = before;
    }
    gpunn__dnn_release(builder, before);
    gpunn__dnn_clear_unsupported(builder);
}

GPUNN__INTERNAL void gpunn__dnn_forget(gpunn__cuda *cuda, void *value)
{
    gpunn__dnn_choice *choice = (gpunn__dnn_choice *)value;
    while (choice->count > 0)
        (void)cuda->libraries->cudnnBackendDestroyDescriptor(choice->plans[--choice->count].descriptor);
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_fail(gpunn__cuda *cuda, gpunn_status status, const char *text)
{
    return gpunn__cuda_fail(cuda, status == GPUNN_ERR_UNSUPPORTED ? GPUNN_ERR_DEVICE : status, "cuDNN: %s",
                            text);
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_search(
    gpunn__cuda *cuda, const gpunn__convolution *conv, const gpunn__dnn_attention *attention,
    cudnnBackendDescriptor_t (*make_graph)(gpunn__dnn_builder *builder), gpunn__dnn_choice *choice)
{
    static const struct {
        cudnnBackendHeurMode_t mode;
        bool                   any_order;
    } rounds[] = {{CUDNN_HEUR_MODE_A, false},
                  {CUDNN_HEUR_MODE_FALLBACK, false},
                  {CUDNN_HEUR_MODE_A, true},
                  {CUDNN_HEUR_MODE_FALLBACK, true}};

    gpunn__dnn_builder       builder = {cuda, conv, attention, GPUNN_OK, "", 0, {}};
    cudnnBackendDescriptor_t configs[GPUNN__DNN_CONFIGS];
    cudnnBackendDescriptor_t graph = make_graph(&builder);
    int before = builder.count, wanted = cuda->args.benchmark ? GPUNN__DNN_CANDIDATES : 1;
    for (int r = 0;
         r < (cuda->args.deterministic ? 2 : 4) && choice->count == 0 && builder.status == GPUNN_OK; r++) {
        int64_t count = gpunn__dnn_configs(&builder, graph, rounds[r].mode, configs);
        for (int64_t i = 0; i < count && choice->count < wanted; i++)
            if (gpunn__dnn_suits(&builder, configs[i], rounds[r].any_order))
                gpunn__dnn_add(&builder, configs[i], choice);
        gpunn__dnn_release(&builder, before);
        gpunn__dnn_clear_unsupported(&builder);
    }
    gpunn__dnn_release(&builder, 0);
    gpunn__dnn_clear_unsupported(&builder);
    if (builder.status != GPUNN_OK) {
        gpunn__dnn_forget(cuda, choice);
        return gpunn__dnn_fail(cuda, builder.status, builder.text);
    }
    (void)snprintf(choice->reason, sizeof choice->reason, "%s",
                   *builder.text ? builder.text
                                 : "it has none for this shape, dtype and exactness on this GPU");
    choice->searched = true;
    return GPUNN_OK;
}

static gpunn__dnn_choice *gpunn__dnn_entry(gpunn__cuda *cuda, const gpunn__convolution *conv)
{
    bool fresh;
    return (gpunn__dnn_choice *)gpunn__cuda_cached(cuda, conv, sizeof *conv, sizeof(gpunn__dnn_choice),
                                                   gpunn__dnn_forget, &fresh);
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_prepare(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                                size_t *workspace_bytes)
{
    gpunn__dnn_choice *choice = gpunn__dnn_entry(cuda, conv);
    if (!choice) return GPUNN_ERR_MEMORY;
    if (!choice->searched) GPUNN__TRY(gpunn__dnn_search(cuda, conv, NULL, gpunn__dnn_graph, choice));
    if (choice->count == 0)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "cuDNN has no plan for this graph: %s",
                                choice->reason);
    *workspace_bytes = 0;
    for (int i = 0; i < choice->count; i++)
        if ((size_t)choice->plans[i].workspace > *workspace_bytes)
            *workspace_bytes = (size_t)choice->plans[i].workspace;
    return GPUNN_OK;
}

static gpunn_status gpunn__dnn_execute(gpunn__cuda *cuda, cudnnBackendDescriptor_t plan,
                                       cudnnBackendDescriptor_t pack)
{
    char          text[256];
    cudnnStatus_t result = cuda->libraries->cudnnBackendExecute(cuda->libraries->dnn, plan, pack);
    gpunn_status  status = gpunn__dnn_check(cuda, result, "cudnnBackendExecute", text, sizeof text);
    if (status == GPUNN_OK) return GPUNN_OK;
    GPUNN__TRY(gpunn__cuda_check(cuda, cudaGetLastError(), "cudnnBackendExecute"));
    return gpunn__dnn_fail(cuda, status, text);
}

/* Times GPUNN__DNN_TIMED runs of a plan, after GPUNN__DNN_WARM to warm up. */
static gpunn_status gpunn__dnn_time(gpunn__cuda *cuda, cudnnBackendDescriptor_t plan,
                                    cudnnBackendDescriptor_t pack, const cudaEvent_t events[2],
                                    float *milliseconds)
{
    for (int i = 0; i < GPUNN__DNN_WARM; i++) GPUNN__TRY(gpunn__dnn_execute(cuda, plan, pack));
    GPUNN__CUDA(cuda, cudaEventRecord(events[0], cuda->stream));
    for (int i = 0; i < GPUNN__DNN_TIMED; i++) GPUNN__TRY(gpunn__dnn_execute(cuda, plan, pack));
    GPUNN__CUDA(cuda, cudaEventRecord(events[1], cuda->stream));
    GPUNN__CUDA(cuda, cudaEventSynchronize(events[1]));
    GPUNN__CUDA(cuda, cudaEventElapsedTime(milliseconds, events[0], events[1]));
    return GPUNN_OK;
}

/* Times the plans and keeps only the fastest. Does nothing during a stream capture: the next run outside one
 * does it. */
static gpunn_status gpunn__dnn_compare(gpunn__cuda *cuda, gpunn__dnn_choice *choice,
                                       cudnnBackendDescriptor_t pack)
{
    cudaStreamCaptureStatus capture;
    cudaEvent_t             events[2] = {NULL, NULL};
    gpunn_status            status = GPUNN_OK;
    int                     best = 0;
    float                   least = 0, milliseconds = 0;
    GPUNN__CUDA(cuda, cudaStreamIsCapturing(cuda->stream, &capture));
    if (capture != cudaStreamCaptureStatusNone) return GPUNN_OK;
    for (int i = 0; i < 2 && status == GPUNN_OK; i++)
        status = gpunn__cuda_check(cuda, cudaEventCreate(&events[i]), "cudaEventCreate");
    for (int i = 0; i < choice->count && status == GPUNN_OK; i++) {
        status = gpunn__dnn_time(cuda, choice->plans[i].descriptor, pack, events, &milliseconds);
        if (i == 0 || milliseconds < least) least = milliseconds, best = i;
    }
    for (int i = 0; i < 2; i++)
        if (events[i]) (void)cudaEventDestroy(events[i]);
    if (status != GPUNN_OK) return status;
    gpunn__dnn_plan fastest = choice->plans[best];
    choice->plans[best] = choice->plans[--choice->count];
    gpunn__dnn_forget(cuda, choice);
    choice->plans[choice->count++] = fastest;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_launch(gpunn__cuda *cuda, gpunn__dnn_choice *choice, int64_t count,
                                               const int64_t *names, const void *const *pointers,
                                               void *workspace, bool repeatable)
{
    gpunn__dnn_builder       builder = {cuda, NULL, NULL, GPUNN_OK, "", 0, {}};
    cudnnBackendDescriptor_t pack = gpunn__dnn_make(&builder, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    gpunn__dnn_set(&builder, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, names);
    gpunn__dnn_set(&builder, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
                   pointers);
    gpunn__dnn_set(&builder, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    gpunn__dnn_finalize(&builder, pack);

    gpunn_status status = builder.status;
    if (status != GPUNN_OK)
        status = gpunn__dnn_fail(cuda, status, builder.text);
    else if (choice->count > 1 && repeatable)
        status = gpunn__dnn_compare(cuda, choice, pack);
    if (status == GPUNN_OK) status = gpunn__dnn_execute(cuda, choice->plans[0].descriptor, pack);
    gpunn__dnn_release(&builder, 0);
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_run(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                            const gpunn__conv_data *data)
{
    gpunn__dnn_choice *choice = gpunn__dnn_entry(cuda, conv);
    if (!choice) return GPUNN_ERR_MEMORY;
    if (choice->count == 0)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_STATE, "this convolution was not prepared");

    int64_t     count = 3, names[5] = {GPUNN__DNN_X, GPUNN__DNN_W, GPUNN__DNN_Y};
    const void *pointers[5] = {data->x, data->w, data->y};
    if (conv->bias) names[count] = GPUNN__DNN_BIAS, pointers[count++] = data->bias;
    if (conv->residual) names[count] = GPUNN__DNN_RESIDUAL, pointers[count++] = data->residual;
    /* in place, a second run would read the first one's result */
    const bool repeatable = !(conv->residual && data->residual == data->y);
    return gpunn__dnn_launch(cuda, choice, count, names, pointers, data->workspace, repeatable);
}
#elif !defined(GPUNN__EMULATOR) /* no cudnn.h: convolutions use matrix products */
GPUNN__INTERNAL gpunn_status gpunn__dnn_prepare(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                                size_t *workspace_bytes)
{
    (void)conv, (void)workspace_bytes;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                            "gpunn_cuda.cu was compiled where there was no cudnn.h");
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_run(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                            const gpunn__conv_data *data)
{
    (void)data;
    return gpunn__dnn_prepare(cuda, conv, NULL);
}
#endif

/* ---- the ops ------------------------------------------------------------------------------------------- */

static const char *gpunn__op_text(gpunn_op op)
{
    switch (op) {
#define GPUNN__X(ENUM, name, ...) \
    case GPUNN_OP_##ENUM: return #name;
        GPUNN_OTHER_OPS(GPUNN__X)
#undef GPUNN__X
    default: return "op";
    }
}

GPUNN__INTERNAL void gpunn__dnn_slower(gpunn__cuda *cuda, const gpunn_step *step, gpunn__dnn_kind kind,
                                       const char *why)
{
    char text[sizeof cuda->text + 256];
    if (cuda->slower >> kind & 1) return;
    cuda->slower |= 1u << kind;
    (void)snprintf(text, sizeof text, "%s%s%.100s%s%s uses a slower kernel, and perhaps others do: %s",
                   gpunn__op_text(step->op), *step->name ? " '" : "", step->name, *step->name ? "'" : "",
                   step->backward ? ", backward," : "", why);
    gpunn__cuda_log(cuda, GPUNN_LOG_WARNING, text);
}

/* x, w and y of a step. kind says which of them is computed; the other two are read. A transposed convolution
 * is the data gradient of the convolution that gpunn__convolution describes, so its result is x. */
typedef struct gpunn__conv_values {
    gpunn_value x, w, y;
    bool        gradient, accumulate; /* gradient: the result is a gradient; accumulate: it is added to */
} gpunn__conv_values;

static gpunn__conv_values gpunn__conv_values_of(const gpunn_step *step, gpunn__conv_kind kind)
{
    const bool         backward = step->backward, filter = kind == GPUNN__CONV_FILTER;
    const gpunn_value *out = backward ? &step->grad_out : &step->out;
    const gpunn_value *in = backward && !filter ? &step->grad_in[0] : &step->in[0];
    gpunn__conv_values v;
    v.x = gpunn__op_is(step->op, GPUNN__TRANSPOSED) ? *out : *in;
    v.y = gpunn__op_is(step->op, GPUNN__TRANSPOSED) ? *in : *out;
    v.w = filter ? step->grad_in[1] : step->in[1];
    v.gradient = backward;
    v.accumulate = backward && step->accumulate[filter ? 1 : 0];
    return v;
}

/* The one of the three values that is computed. */
static gpunn_value *gpunn__conv_result(gpunn__conv_values *v, gpunn__conv_kind kind)
{
    if (kind == GPUNN__CONV_FORWARD) return &v->y;
    return kind == GPUNN__CONV_DATA ? &v->x : &v->w;
}

/* The bare convolution of a step, without bias, residual and relu. */
static gpunn__convolution gpunn__convolution_of(const gpunn_step *step, gpunn__conv_kind kind)
{
    const gpunn_attributes  *attr = step->attr;
    const gpunn_value *const in = &step->in[0], *const out = step->backward ? &step->grad_out : &step->out;
    const gpunn_value *const        x = gpunn__op_is(step->op, GPUNN__TRANSPOSED) ? out : in,
                             *const y = gpunn__op_is(step->op, GPUNN__TRANSPOSED) ? in : out;
    int64_t                         size[3] = {1, 1, 1}, kernel[3] = {1, 1, 1}, output[3] = {1, 1, 1};
    gpunn__convolution              conv;
    memset(&conv, 0, sizeof conv);
    conv.tag = GPUNN__CONV_TAG;
    conv.kind = kind;
    conv.dtype = step->backward ? out->dtype : in->dtype;
    conv.precision = step->precision;
    conv.axes = x->rank == 5 ? 3 : 2;
    for (int i = 0; i < 3; i++) {
        const int from = i + x->rank - 5; /* axes of a lower rank are the last ones */
        conv.stride[i] = from < 0 ? 1 : attr->stride[from];
        conv.padding[i] = from < 0 ? 0 : attr->padding[from];
        conv.dilation[i] = from < 0 ? 1 : attr->dilation[from];
        if (from >= 0)
            size[i] = x->dim[2 + from], kernel[i] = attr->kernel[from], output[i] = y->dim[2 + from];
    }
    conv.n = x->dim[0], conv.c = x->dim[1], conv.d = size[0], conv.h = size[1], conv.w = size[2];
    conv.k = y->dim[1], conv.kd = kernel[0], conv.kh = kernel[1], conv.kw = kernel[2];
    conv.o = output[0], conv.p = output[1], conv.q = output[2];
    conv.groups = attr->groups;
    const gpunn_value *const w = kind == GPUNN__CONV_FILTER ? &step->grad_in[1] : &step->in[1];
    /* a tensor may look the same in both layouts */
    conv.channels_last = x->channels_last || y->channels_last || w->channels_last;
    return conv;
}

/* Whether the position of the channel axis, dim[1], affects the memory layout. */
static bool gpunn__has_place(const gpunn_value *value)
{
    return value->dim[1] > 1 && value->dim[2] * value->dim[3] > 1;
}

/* to = or += from. Both have the same shape; channels are second in one and last in the other (to_last: in
 * `to`). */
static gpunn_status gpunn__relayout(gpunn__cuda *cuda, const gpunn_value *to, bool to_last,
                                    const gpunn_value *from, bool accumulate)
{
    const int        last[4] = {0, 2, 3, 1}, second[4] = {0, 3, 1, 2};
    gpunn_attributes attr;
    gpunn_step       step;
    gpunn_value      target = *to;
    memset(&attr, 0, sizeof attr);
    memset(&step, 0, sizeof step);
    step.op = GPUNN_OP_PERMUTE;
    step.backward = true;
    step.attr = &attr;
    step.input_count = 1;
    step.grad_in = &target;
    step.grad_out = *from;
    step.accumulate = &accumulate;
    for (int i = 0; i < 4; i++) {
        attr.order[i] = to_last ? second[i] : last[i];
        *(to_last ? &target.dim[i] : &step.grad_out.dim[i]) = to->dim[last[i]];
    }
    target.channels_last = step.grad_out.channels_last = false; /* dim itself has the layout */
    return gpunn__cuda_permute(cuda, &step, GPUNN__BACKWARD);
}

/* im2col: columns[image][c][kd][kh][kw][o][p][q] is what the window at o, p, q reads of x at kd, kh, kw.
 * Padding reads as 0. A thread writes eight elements at a time. */
static __global__ void __launch_bounds__(GPUNN__THREADS, 3)
    gpunn__columns_kernel(gpunn__convolution v, const void *x, void *columns, gpunn_dtype dtype,
                          int64_t count)
{
    GPUNN__FOLLOW();
    const int64_t stride = (int64_t)gridDim.x * blockDim.x * GPUNN__PACK;
    for (int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * GPUNN__PACK; at < count;
         at += stride) {
        const int64_t line = gpunn__quotient(at, v.q), slice = gpunn__quotient(line, v.p),
                      cell = gpunn__quotient(slice, v.o);
        const int64_t row = gpunn__quotient(cell, v.kw), face = gpunn__quotient(row, v.kh);
        int64_t       plane = gpunn__quotient(face, v.kd); /* image * channels + channel */
        int64_t       q = at - line * v.q, p = line - slice * v.p, o = slice - cell * v.o;
        int64_t       s = cell - row * v.kw, r = row - face * v.kh, t = face - plane * v.kd;
        float         value[GPUNN__PACK];
#pragma unroll
        for (int i = 0; i < GPUNN__PACK; i++) {
            const int64_t d = o * v.stride[0] + t * v.dilation[0] - v.padding[0];
            const int64_t h = p * v.stride[1] + r * v.dilation[1] - v.padding[1];
            const int64_t w = q * v.stride[2] + s * v.dilation[2] - v.padding[2];
            const bool inside = at + i < count && d >= 0 && d < v.d && h >= 0 && h < v.h && w >= 0 && w < v.w;
            value[i] = inside ? gpunn__load(x, dtype, ((plane * v.d + d) * v.h + h) * v.w + w) : 0;
            if (++q < v.q) continue;
            q = 0;
            if (++p < v.p) continue;
            p = 0;
            if (++o < v.o) continue;
            o = 0;
            if (++s < v.kw) continue;
            s = 0;
            if (++r < v.kh) continue;
            r = 0;
            if (++t < v.kd) continue;
            t = 0;
            plane++;
        }
        if (at + GPUNN__PACK <= count) {
            gpunn__store8(columns, dtype, at, value);
            continue;
        }
#pragma unroll
        for (int i = 0; i < GPUNN__PACK; i++)
            if (at + i < count) gpunn__store(columns, dtype, at + i, value[i]);
    }
}

/* col2im: x = or += for every element the sum over the windows that cover it, with kd, kh and kw in order. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__gather_kernel(gpunn__convolution v, const float *columns, void *x, gpunn_dtype dtype,
                         int64_t count, bool accumulate)
{
    GPUNN__FOLLOW();
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = at / v.w, slice = row / v.h, plane = slice / v.d;
        const int64_t d = slice - plane * v.d + v.padding[0], h = row - slice * v.h + v.padding[1];
        const int64_t w = at - row * v.w + v.padding[2];
        float         sum = accumulate ? gpunn__load(x, dtype, at) : 0;
        for (int64_t t = 0; t < v.kd; t++) {
            const int64_t front = d - t * v.dilation[0], o = front / v.stride[0];
            if (front < 0 || o >= v.o || o * v.stride[0] != front) continue;
            for (int64_t r = 0; r < v.kh; r++) {
                const int64_t top = h - r * v.dilation[1], p = top / v.stride[1];
                if (top < 0 || p >= v.p || p * v.stride[1] != top) continue;
                for (int64_t s = 0; s < v.kw; s++) {
                    const int64_t left = w - s * v.dilation[2], q = left / v.stride[2];
                    if (left < 0 || q >= v.q || q * v.stride[2] != left) continue;
                    sum +=
                        columns[(((((plane * v.kd + t) * v.kh + r) * v.kw + s) * v.o + o) * v.p + p) * v.q +
                                q];
                }
            }
        }
        gpunn__store(x, dtype, at, sum);
    }
}

/* ---- depthwise: each channel of x has its own conv.k / conv.c filters ---------------- */

static bool gpunn__is_depthwise(const gpunn__convolution *conv)
{
    return conv->groups > 1 && conv->groups == conv->c;
}

/* The shape of one sample of x or y. An element is at first + ((d * h + its h) * w + its w) * step. */
typedef struct gpunn__volumes {
    int64_t c, d, h, w;
    bool    last; /* channels last */
} gpunn__volumes;
typedef struct gpunn__voxel {
    int64_t n, c, d, h, w;
} gpunn__voxel;

__device__ __forceinline__ int64_t gpunn__volume_first(const gpunn__volumes &v, int64_t n, int64_t c)
{
    return v.last ? n * v.d * v.h * v.w * v.c + c : (n * v.c + c) * v.d * v.h * v.w;
}

__device__ __forceinline__ int64_t gpunn__volume_step(const gpunn__volumes &v)
{
    return v.last ? v.c : 1;
}

__device__ __forceinline__ gpunn__voxel gpunn__voxel_of(const gpunn__volumes &v, int64_t at)
{
    const int64_t area = v.d * v.h * v.w, outer = gpunn__quotient(at, v.last ? v.c : area);
    const int64_t inner = at - outer * (v.last ? v.c : area), n = gpunn__quotient(outer, v.last ? area : v.c);
    const int64_t cell = v.last ? outer - n * area : inner, row = gpunn__quotient(cell, v.w),
                  d = gpunn__quotient(row, v.h);
    return {n, v.last ? inner : outer - n * v.c, d, row - d * v.h, cell - row * v.w};
}

typedef struct gpunn__depthwise {
    gpunn__convolution conv;
    gpunn__volumes     x, y;
    void              *x_data, *w_data, *y_data;
    gpunn_dtype        x_dtype, w_dtype, y_dtype;
    int64_t            count; /* elements of the result */
    bool               accumulate;
} gpunn__depthwise;

/* y = or += for every element the sum over its window of x, with kd, kh and kw in order. */
static __global__ void __launch_bounds__(GPUNN__THREADS, 3) gpunn__depthwise_kernel(const gpunn__depthwise v)
{
    GPUNN__FOLLOW();
    const gpunn__convolution &conv = v.conv;
    const int64_t             step = gpunn__volume_step(v.x);
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < v.count;
         at += (int64_t)gridDim.x * blockDim.x) {
        const gpunn__voxel y = gpunn__voxel_of(v.y, at);
        const int64_t      first = gpunn__volume_first(v.x, y.n, gpunn__quotient(y.c * conv.c, conv.k));
        float              sum = v.accumulate ? gpunn__load(v.y_data, v.y_dtype, at) : 0;
#pragma unroll 1
        for (int64_t t = 0; t < conv.kd; t++) {
            const int64_t d = y.d * conv.stride[0] + t * conv.dilation[0] - conv.padding[0];
            if (d < 0 || d >= conv.d) continue;
#pragma unroll 1
            for (int64_t r = 0; r < conv.kh; r++) {
                const int64_t h = y.h * conv.stride[1] + r * conv.dilation[1] - conv.padding[1];
                if (h < 0 || h >= conv.h) continue;
                const int64_t weights = ((y.c * conv.kd + t) * conv.kh + r) * conv.kw;
#pragma unroll 1
                for (int64_t s = 0; s < conv.kw; s++) {
                    const int64_t w = y.w * conv.stride[2] + s * conv.dilation[2] - conv.padding[2];
                    if (w < 0 || w >= conv.w) continue;
                    const int64_t from = first + ((d * conv.h + h) * conv.w + w) * step;
                    sum += gpunn__load(v.x_data, v.x_dtype, from) *
                           gpunn__load(v.w_data, v.w_dtype, weights + s);
                }
            }
        }
        gpunn__store(v.y_data, v.y_dtype, at, sum);
    }
}

/* x = or += for every element the sum over the windows that cover it, filter by filter, with kd, kh and kw in
 * order. */
static __global__ void __launch_bounds__(GPUNN__THREADS, 3)
    gpunn__depthwise_data_kernel(const gpunn__depthwise v)
{
    GPUNN__FOLLOW();
    const gpunn__convolution &conv = v.conv;
    const int64_t             step = gpunn__volume_step(v.y), filters = gpunn__quotient(conv.k, conv.c);
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < v.count;
         at += (int64_t)gridDim.x * blockDim.x) {
        const gpunn__voxel x = gpunn__voxel_of(v.x, at);
        float              sum = v.accumulate ? gpunn__load(v.x_data, v.x_dtype, at) : 0;
#pragma unroll 1
        for (int64_t i = 0; i < filters * conv.kd; i++) {
            const int64_t f = gpunn__quotient(i, conv.kd), t = i - f * conv.kd, k = x.c * filters + f;
            const int64_t front = x.d + conv.padding[0] - t * conv.dilation[0],
                          o = gpunn__quotient(front, conv.stride[0]);
            const int64_t first = gpunn__volume_first(v.y, x.n, k);
            if (front < 0 || o >= conv.o || o * conv.stride[0] != front) continue;
#pragma unroll 1
            for (int64_t r = 0; r < conv.kh; r++) {
                const int64_t top = x.h + conv.padding[1] - r * conv.dilation[1],
                              p = gpunn__quotient(top, conv.stride[1]);
                if (top < 0 || p >= conv.p || p * conv.stride[1] != top) continue;
                const int64_t weights = ((k * conv.kd + t) * conv.kh + r) * conv.kw;
#pragma unroll 1
                for (int64_t s = 0; s < conv.kw; s++) {
                    const int64_t left = x.w + conv.padding[2] - s * conv.dilation[2],
                                  q = gpunn__quotient(left, conv.stride[2]);
                    if (left < 0 || q >= conv.q || q * conv.stride[2] != left) continue;
                    const int64_t from = first + ((o * conv.p + p) * conv.q + q) * step;
                    sum += gpunn__load(v.y_data, v.y_dtype, from) *
                           gpunn__load(v.w_data, v.w_dtype, weights + s);
                }
            }
        }
        gpunn__store(v.x_data, v.x_dtype, at, sum);
    }
}

/* partial[part][k][kd][kh][kw], for channels second. A block sums the products of one weight over one part of
 * the images. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__depthwise_filter_kernel(const gpunn__depthwise v, float *partial, int64_t images)
{
    GPUNN__FOLLOW();
    const gpunn__convolution &conv = v.conv;
    const int64_t             weights = conv.k * conv.kd * conv.kh * conv.kw, area = conv.o * conv.p * conv.q;
    const int64_t part = blockIdx.x / weights, weight = blockIdx.x - part * weights, row = weight / conv.kw;
    const int64_t face = row / conv.kh, k = face / conv.kd, t = face - k * conv.kd, r = row - face * conv.kh;
    const int64_t s = weight - row * conv.kw, first = part * images, c = k * conv.c / conv.k;
    const int64_t count = (first + images < conv.n ? images : conv.n - first) * area;
    float         sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
        const int64_t image = gpunn__quotient(i, area), cell = i - image * area,
                      line = gpunn__quotient(cell, conv.q);
        const int64_t o = gpunn__quotient(line, conv.p), n = first + image;
        const int64_t d = o * conv.stride[0] + t * conv.dilation[0] - conv.padding[0];
        const int64_t h = (line - o * conv.p) * conv.stride[1] + r * conv.dilation[1] - conv.padding[1];
        const int64_t w = (cell - line * conv.q) * conv.stride[2] + s * conv.dilation[2] - conv.padding[2];
        if (d < 0 || d >= conv.d || h < 0 || h >= conv.h || w < 0 || w >= conv.w) continue;
        const int64_t from = (((n * conv.c + c) * conv.d + d) * conv.h + h) * conv.w + w;
        sum += gpunn__load(v.x_data, v.x_dtype, from) *
               gpunn__load(v.y_data, v.y_dtype, (n * conv.k + k) * area + cell);
    }
    sum = gpunn__block_reduce(sum, gpunn__add());
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* Depthwise convolution without cuDNN. FILTER needs channels second. */
static gpunn_status gpunn__conv_depthwise(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                          const gpunn__conv_values *v, gpunn__arena *arena,
                                          gpunn__action action)
{
    const bool    filter = conv->kind == GPUNN__CONV_FILTER, data = conv->kind == GPUNN__CONV_DATA;
    const bool    last = conv->channels_last && !filter;
    const int64_t weights = conv->k * conv->kd * conv->kh * conv->kw,
                  blocks = (int64_t)cuda->multiprocessors * 8;
    const int64_t wanted = (blocks + weights - 1) / weights, images = (conv->n + wanted - 1) / wanted;
    const int64_t parts = (conv->n + images - 1) / images;
    float *const  partial = (float *)gpunn__arena_take(arena,
                                                      filter ? gpunn__bytes(GPUNN_F32, parts * weights) : 0);
    void *const   sums = gpunn__arena_take(
          arena, filter ? gpunn__cuda_channel_sums_workspace(cuda, parts, weights, 1) : 0);
    if (action == GPUNN__PREPARE) return GPUNN_OK;

    gpunn__depthwise d;
    memset(&d, 0, sizeof d);
    d.conv = *conv;
    d.x = {conv->c, conv->d, conv->h, conv->w, last};
    d.y = {conv->k, conv->o, conv->p, conv->q, last};
    d.x_data = v->x.data, d.w_data = v->w.data, d.y_data = v->y.data;
    d.x_dtype = v->x.dtype, d.w_dtype = v->w.dtype, d.y_dtype = v->y.dtype;
    d.count = data ? v->x.count : v->y.count;
    d.accumulate = v->accumulate;
    if (filter) {
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__depthwise_filter_kernel, (unsigned)(parts * weights),
                                 GPUNN__THREADS, d, partial, images));
        return gpunn__cuda_channel_sums(cuda, partial, GPUNN_F32, parts, weights, 1, (float *)v->w.data,
                                        v->accumulate, sums);
    }
    if (data)
        return GPUNN__LAUNCH(cuda, gpunn__depthwise_data_kernel, gpunn__blocks(cuda, d.count, 1),
                             GPUNN__THREADS, d);
    return GPUNN__LAUNCH(cuda, gpunn__depthwise_kernel, gpunn__blocks(cuda, d.count, 1), GPUNN__THREADS, d);
}

/* The product of one image and group, without its matrices. depth: rows of the columns. plain: the columns
 * are the image. */
static gpunn__product gpunn__lowered_product(const gpunn__convolution *conv, const gpunn__conv_values *v,
                                             int64_t depth, bool plain)
{
    const bool     data = conv->kind == GPUNN__CONV_DATA, filter = conv->kind == GPUNN__CONV_FILTER;
    const int64_t  area = conv->o * conv->p * conv->q, out = conv->k / conv->groups;
    gpunn__product p;
    memset(&p, 0, sizeof p);
    p.m = data ? depth : out, p.n = filter ? depth : area, p.k = filter ? area : depth;
    if (data) p.k = out;
    p.batch = 1;
    p.transpose_a = data, p.transpose_b = filter;
    p.lda = filter ? area : depth, p.ldb = area, p.ldd = p.n;
    p.dtype = (gpunn_dtype)conv->dtype;
    p.d_dtype = data ? v->x.dtype : v->y.dtype;
    if (filter || (data && !plain)) p.d_dtype = GPUNN_F32;
    p.precision = (gpunn_precision)conv->precision;
    p.accumulate = !filter && (plain || !data) && v->accumulate;
    return p;
}

/* A convolution without cuDNN, for channels second. It processes as many images at a time as workspace_limit
 * allows. For every image and group, im2col gives columns [c / groups * kd * kh * kw][o * p * q]:
 *    FORWARD  y = w columns
 *    DATA     columns = w^T y, which are then gathered into x
 *    FILTER   w = y columns^T, which are then summed over the images
 * Where windows are single adjacent cells, the columns are x itself. */
static gpunn_status gpunn__conv_lowered(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                        const gpunn__conv_values *v, gpunn__arena *arena,
                                        gpunn__action action)
{
    const bool    data = conv->kind == GPUNN__CONV_DATA, filter = conv->kind == GPUNN__CONV_FILTER;
    const int64_t cells = conv->kd * conv->kh * conv->kw,
                  strides = conv->stride[0] * conv->stride[1] * conv->stride[2];
    const bool    plain = cells * strides == 1 && conv->padding[0] + conv->padding[1] + conv->padding[2] == 0;
    const int64_t area = conv->o * conv->p * conv->q, depth = conv->c / conv->groups * cells,
                  out = conv->k / conv->groups;
    const int64_t x_image = conv->c * conv->d * conv->h * conv->w, y_image = conv->k * area,
                  columns_image = conv->groups * depth * area;
    const int64_t weights = conv->k * depth;

    const gpunn_dtype columns_dtype = data ? GPUNN_F32 : v->x.dtype;
    const size_t      columns_bytes = plain ? 0 : gpunn__bytes(columns_dtype, columns_image);
    const size_t      weights_bytes = filter ? gpunn__bytes(GPUNN_F32, weights) : 0;
    const size_t      images_most = cuda->args.workspace_limit / (columns_bytes + weights_bytes + 1);
    const int64_t     most = images_most < (size_t)conv->n ? (int64_t)images_most : conv->n;
    const int64_t     chunk = most < 1 ? 1 : most;
    void *const       columns = gpunn__arena_take(arena, (size_t)chunk * columns_bytes);
    void *const       partial = gpunn__arena_take(arena, (size_t)chunk * weights_bytes);
    void *const       sums = gpunn__arena_take(
              arena, filter ? gpunn__cuda_channel_sums_workspace(cuda, chunk, weights, 1) : 0);

    gpunn__product p = gpunn__lowered_product(conv, v, depth, plain);
    for (int64_t first = 0; first < conv->n; first += chunk) {
        const int64_t images = conv->n - first < chunk ? conv->n - first : chunk,
                      count = images * columns_image;
        void *const x = gpunn__element(v->x.data, v->x.dtype, first * x_image);
        void *const y = gpunn__element(v->y.data, v->y.dtype, first * y_image);
        void *const seen = plain ? x : columns;
        gpunn__walk kept, summed;
        memset(&kept, 0, sizeof kept);
        memset(&summed, 0, sizeof summed);
        if (filter) {
            p.a = y, p.b = seen, p.d = partial;
            gpunn__axes_add(&kept, conv->groups, out * area, depth * area, out * depth);
            gpunn__axes_add(&kept, images, y_image, columns_image, weights);
        } else if (data) {
            p.a = v->w.data, p.b = y, p.d = seen;
            gpunn__axes_add(&kept, conv->groups, out * depth, out * area, depth * area);
            gpunn__axes_add(&kept, images, 0, y_image, columns_image);
        } else {
            p.a = v->w.data, p.b = seen, p.d = y;
            gpunn__axes_add(&kept, conv->groups, out * depth, depth * area, out * area);
            gpunn__axes_add(&kept, images, 0, columns_image, y_image);
        }
        if (action == GPUNN__PREPARE) return gpunn__repeated_products(cuda, p, kept, &summed, action);
        if (!plain && !data)
            GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__columns_kernel, gpunn__blocks(cuda, count, GPUNN__PACK),
                                     GPUNN__THREADS, *conv, x, columns, v->x.dtype, count));
        GPUNN__TRY(gpunn__repeated_products(cuda, p, kept, &summed, action));
        if (!plain && data)
            GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__gather_kernel, gpunn__blocks(cuda, images * x_image, 1),
                                     GPUNN__THREADS, *conv, (const float *)columns, x, v->x.dtype,
                                     images * x_image, v->accumulate));
        if (filter)
            GPUNN__TRY(gpunn__cuda_channel_sums(cuda, partial, GPUNN_F32, images, weights, 1,
                                                (float *)v->w.data, v->accumulate || first > 0, sums));
    }
    return GPUNN_OK;
}

/* A convolution without cuDNN, for channels second or last. Tensors with channels last, filters included, are
 * converted to channels second, and results back. */
static gpunn_status gpunn__conv_without(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                        const gpunn__conv_values *v, gpunn__arena *arena,
                                        gpunn__action action)
{
    const bool relays_x = conv->channels_last && gpunn__has_place(&v->x),
               relays_y = conv->channels_last && gpunn__has_place(&v->y);
    const bool run = action != GPUNN__PREPARE, depthwise = gpunn__is_depthwise(conv),
               filter = conv->kind == GPUNN__CONV_FILTER;
    /* with one channel per filter both layouts are the same memory */
    const bool other_w = v->w.channels_last && !depthwise;
    const bool relays_w = other_w || (filter && v->w.dtype != GPUNN_F32);
    if (depthwise && !filter) return gpunn__conv_depthwise(cuda, conv, v, arena, action);
    gpunn__conv_values second = *v;
    if (filter) second.w.dtype = GPUNN_F32;
    second.w.channels_last = false;
    if (relays_w) second.w.data = gpunn__arena_take(arena, gpunn__bytes(second.w.dtype, v->w.count));
    if (relays_x) second.x.data = gpunn__arena_take(arena, gpunn__bytes(v->x.dtype, v->x.count));
    if (relays_y) second.y.data = gpunn__arena_take(arena, gpunn__bytes(v->y.dtype, v->y.count));
    second.accumulate = v->accumulate && !(conv->kind == GPUNN__CONV_DATA && relays_x) &&
                        !(conv->kind == GPUNN__CONV_FORWARD && relays_y);
    if (run && relays_x && conv->kind != GPUNN__CONV_DATA)
        GPUNN__TRY(gpunn__relayout(cuda, &second.x, false, &v->x, false));
    if (run && relays_y && conv->kind != GPUNN__CONV_FORWARD)
        GPUNN__TRY(gpunn__relayout(cuda, &second.y, false, &v->y, false));
    if (run && relays_w && !filter) GPUNN__TRY(gpunn__relayout(cuda, &second.w, false, &v->w, false));
    GPUNN__TRY(depthwise ? gpunn__conv_depthwise(cuda, conv, &second, arena, action)
                         : gpunn__conv_lowered(cuda, conv, &second, arena, action));
    if (run && relays_w && filter && !other_w)
        return gpunn__cuda_copy(cuda, v->w.data, v->w.dtype, second.w.data, GPUNN_F32, v->w.count, false);
    if (run && relays_w && filter) return gpunn__relayout(cuda, &v->w, true, &second.w, false);
    if (run && relays_x && conv->kind == GPUNN__CONV_DATA)
        return gpunn__relayout(cuda, &v->x, true, &second.x, v->accumulate);
    if (run && relays_y && conv->kind == GPUNN__CONV_FORWARD)
        return gpunn__relayout(cuda, &v->y, true, &second.y, v->accumulate);
    return GPUNN_OK;
}

/* A convolution by cuDNN with a workspace of `bytes`. cuDNN needs every tensor in conv's dtype, writes
 * without accumulating and, if channels are last, needs channels-last filters too. Whatever differs is staged
 * in the workspace. Whether a gradient accumulates may change from run to run. */
static gpunn_status gpunn__conv_with(gpunn__cuda *cuda, const gpunn__convolution *conv, gpunn__conv_values *v,
                                     const void *bias, const void *residual, size_t bytes,
                                     gpunn__arena *arena, gpunn__action action)
{
    const gpunn__conv_kind kind = (gpunn__conv_kind)conv->kind;
    const bool             filter = kind == GPUNN__CONV_FILTER;
    const bool             relays_w = conv->channels_last && gpunn__has_place(&v->w) && !v->w.channels_last;
    gpunn_value *const     result = gpunn__conv_result(v, kind);
    gpunn_value            aside = *result, w = v->w;
    aside.dtype = w.dtype = (gpunn_dtype)conv->dtype;
    void *const workspace = gpunn__arena_take(arena, bytes);
    if (relays_w && !filter) w.data = gpunn__arena_take(arena, gpunn__bytes(w.dtype, w.count));
    if (v->gradient && !(filter && v->w.channels_last))
        aside.data = gpunn__arena_take(arena, gpunn__bytes(aside.dtype, aside.count));
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    const bool direct = result->dtype == aside.dtype && !v->accumulate && !(filter && relays_w);
    if (direct) aside.data = result->data;
    if (relays_w && !filter) GPUNN__TRY(gpunn__relayout(cuda, &w, true, &v->w, false));
    gpunn__conv_data data = {v->x.data, w.data, v->y.data, bias, residual, workspace};
    if (kind == GPUNN__CONV_FORWARD)
        data.y = aside.data;
    else if (kind == GPUNN__CONV_DATA)
        data.x = aside.data;
    else
        data.w = aside.data;
    GPUNN__TRY(gpunn__dnn_run(cuda, conv, &data));
    if (direct) return GPUNN_OK;
    if (filter && relays_w) return gpunn__relayout(cuda, result, false, &aside, v->accumulate);
    return gpunn__cuda_copy(cuda, result->data, result->dtype, aside.data, aside.dtype, result->count,
                            v->accumulate);
}

/* Whether cuDNN has a plan, and the bytes of workspace that it needs. */
static gpunn_status gpunn__conv_fits(gpunn__cuda *cuda, const gpunn__convolution *conv, size_t *bytes,
                                     bool *fits)
{
    gpunn_status status = GPUNN_ERR_UNSUPPORTED;
    *fits = false;
    if (!gpunn__dnn_available(cuda)) return GPUNN_OK;
    if (gpunn__is_depthwise(conv) && gpunn__dnn_version(cuda) < 92400)
        (void)gpunn__cuda_fail(
            cuda, status, "cuDNN before 9.24 computes depthwise convolutions of alternating sizes wrongly");
    else
        status = gpunn__dnn_prepare(cuda, conv, bytes);
    *fits = status == GPUNN_OK;
    return status == GPUNN_ERR_UNSUPPORTED ? GPUNN_OK : status;
}

/* Logs why the step does not use cuDNN, after gpunn__conv_fits has set the text. */
static void gpunn__conv_slower(gpunn__cuda *cuda, const gpunn_step *step, const gpunn__convolution *conv)
{
    if (gpunn__dnn_available(cuda))
        gpunn__dnn_slower(cuda, step,
                          gpunn__is_depthwise(conv) ? GPUNN__DNN_DEPTHWISE : GPUNN__DNN_CONVOLUTION,
                          cuda->text);
}

/* Runs cuDNN's graph with bias and everything fused into the step, or the bare convolution followed by one
 * pass that does the rest. An F32 bias is rounded to the graph's dtype first. A result of another dtype is
 * staged in the workspace. */
static gpunn_status gpunn__conv_forward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__conv_kind kind = gpunn__op_is(step->op, GPUNN__TRANSPOSED) ? GPUNN__CONV_DATA
                                                                            : GPUNN__CONV_FORWARD;
    const gpunn_value     *bias = &step->in[2], *residual = &step->fused->residual;
    gpunn__convolution     conv = gpunn__convolution_of(step, kind);
    gpunn__conv_values     v = gpunn__conv_values_of(step, kind);
    gpunn_value *const     y = gpunn__conv_result(&v, kind);
    gpunn__arena           arena = {(char *)step->workspace, 0};
    size_t                 bytes = 0;
    const gpunn_dtype      dtype = step->in[0].dtype;
    bool                   whole = !step->fused->norm && y->dtype == dtype &&
                 (residual->data == NULL || residual->dtype == dtype),
         fits = false;
    /* cuDNN's relu may turn NaN into 0, which would hide a bad loss */
    if (step->training && step->fused->relu) whole = false;
    if (kind == GPUNN__CONV_DATA) whole = false;
    if (whole) {
        conv.bias = bias->data != NULL, conv.residual = residual->data != NULL, conv.relu = step->fused->relu;
        GPUNN__TRY(gpunn__conv_fits(cuda, &conv, &bytes, &fits));
        whole = fits;
    }
    if (!whole) {
        conv.bias = conv.residual = conv.relu = 0;
        GPUNN__TRY(gpunn__conv_fits(cuda, &conv, &bytes, &fits));
    }
    if (!fits) gpunn__conv_slower(cuda, step, &conv);
    const bool  round = conv.bias && bias->dtype != dtype;
    const void *rounded = bias->data;
    if (round) rounded = gpunn__arena_take(&arena, gpunn__bytes(dtype, conv.k));
    if (fits && y->dtype != dtype) {
        y->data = gpunn__arena_take(&arena, gpunn__bytes(dtype, y->count));
        y->dtype = dtype;
    }
    if (round && action != GPUNN__PREPARE)
        GPUNN__TRY(gpunn__cuda_copy(cuda, (void *)rounded, dtype, bias->data, bias->dtype, conv.k, false));
    GPUNN__TRY(fits ? gpunn__conv_with(cuda, &conv, &v, rounded, residual->data, bytes, &arena, action)
                    : gpunn__conv_without(cuda, &conv, &v, &arena, action));
    if (action != GPUNN__PREPARE) return whole ? GPUNN_OK : gpunn__finish_all(cuda, step, y->data, y->dtype);
    step->workspace_bytes = arena.bytes;
    return GPUNN_OK;
}

/* One gradient of a backward step: the input's or the filters'. */
static gpunn_status gpunn__conv_gradient(gpunn__cuda *cuda, gpunn_step *step, gpunn__conv_kind kind,
                                         gpunn__action action)
{
    const gpunn__convolution conv = gpunn__convolution_of(step, kind);
    gpunn__conv_values       v = gpunn__conv_values_of(step, kind);
    gpunn__arena             arena = {(char *)step->workspace, 0};
    size_t                   bytes = 0;
    bool                     fits;
    if (gpunn__conv_result(&v, kind)->data == NULL) return GPUNN_OK;
    GPUNN__TRY(gpunn__check_operands(cuda, kind == GPUNN__CONV_FORWARD ? &v.x : &v.y,
                                     kind == GPUNN__CONV_FILTER ? &v.x : &v.w, gpunn__conv_result(&v, kind)));
    GPUNN__TRY(gpunn__conv_fits(cuda, &conv, &bytes, &fits));
    if (!fits) gpunn__conv_slower(cuda, step, &conv);
    GPUNN__TRY(fits ? gpunn__conv_with(cuda, &conv, &v, NULL, NULL, bytes, &arena, action)
                    : gpunn__conv_without(cuda, &conv, &v, &arena, action));
    if (action == GPUNN__PREPARE && step->workspace_bytes < arena.bytes) step->workspace_bytes = arena.bytes;
    return GPUNN_OK;
}

static gpunn_status gpunn__cuda_conv(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) step->workspace_bytes = 0;
    if (!step->backward) {
        GPUNN__TRY(gpunn__check_operands(cuda, &step->in[0], &step->in[1], &step->out));
        return gpunn__conv_forward(cuda, step, action);
    }
    GPUNN__TRY(gpunn__conv_gradient(
        cuda, step, gpunn__op_is(step->op, GPUNN__TRANSPOSED) ? GPUNN__CONV_FORWARD : GPUNN__CONV_DATA,
        action));
    GPUNN__TRY(gpunn__conv_gradient(cuda, step, GPUNN__CONV_FILTER, action));
    const gpunn_value *const dy = &step->grad_out;
    float *const             dbias = (float *)step->grad_in[2].data;
    const int64_t channels = dy->dim[1], area = dy->channels_last ? 1 : dy->count / (dy->dim[0] * channels);
    const int64_t n = dy->count / (channels * area);
    if (dbias == NULL || (action != GPUNN__PREPARE && step == cuda->summed)) return GPUNN_OK;
    if (action != GPUNN__PREPARE)
        return gpunn__cuda_channel_sums(cuda, dy->data, dy->dtype, n, channels, area, dbias,
                                        step->accumulate[2], step->workspace);
    const size_t bytes = gpunn__cuda_channel_sums_workspace(cuda, n, channels, area);
    if (step->workspace_bytes < bytes) step->workspace_bytes = bytes;
    return GPUNN_OK;
}

#define GPUNN__X(name)                                                                           \
    GPUNN__INTERNAL gpunn_status name(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action) \
    {                                                                                            \
        return gpunn__cuda_conv(cuda, step, action);                                             \
    }
GPUNN__X(gpunn__cuda_conv1d)
GPUNN__X(gpunn__cuda_conv2d)
GPUNN__X(gpunn__cuda_conv3d)
GPUNN__X(gpunn__cuda_conv_transpose1d)
GPUNN__X(gpunn__cuda_conv_transpose2d)
GPUNN__X(gpunn__cuda_conv_transpose3d)
#undef GPUNN__X

/* ==== >>cuda/pool ======================================================================================== *
 * Pooling of volumes [d, h, w] -> [od, oh, ow], one per image and channel. A plane is a volume of depth 1;
 * kernels that are not `deep` are specialized for it. The forward pass uses a thread per output, or a block
 * where windows are large. The backward pass gathers: a thread owns eight adjacent cells and adds the
 * contributions of the windows over them, in window order. With channels last, a thread owns eight channels
 * of one output or cell. */
typedef struct gpunn__pool {
    int64_t          results, cells; /* of all volumes */
    gpunn__pool_axis z, y, x;
    int              channels, packs; /* channels last only; packs: packs of eight channels per cell */
    int64_t          images;          /* channels last only */
    bool             average, count_exclude_pad, accumulate;
    /* bytes per saved position of a maximum, an index in the largest window; 0: not saved */
    int         at_bytes;
    void       *at;
    const void *from; /* x, or the gradient of y */
    void       *to;   /* y, or the gradient of x */
    gpunn_dtype from_dtype, to_dtype;
} gpunn__pool;

/* Describes a pooling step. images, channels and packs stay 0. */
GPUNN__INTERNAL gpunn__pool gpunn__pool_of(const gpunn_step *step);

/* Whether the windows of a max pooling lie side by side and cover every cell, each small enough for one
 * thread. */
GPUNN__INTERNAL bool gpunn__pool_tiles(const gpunn_step *step, const gpunn__pool *p);

/* The windows that cover any of the cells [from, to) are [*begin, *end). */
__device__ __forceinline__ void gpunn__pool_windows(const gpunn__pool_axis &a, int from, int to, int *begin,
                                                    int *end)
{
    if (a.kernel == 0) { /* search from an estimate that may be off by one */
        int low, high;
        *begin = max((int)((float)from * (float)a.out / (float)a.n) - 1, 0);
        while ((void)gpunn__pool_window(&a, *begin, &low, &high), high <= from) ++*begin;
        *end = *begin + 1;
        while (*end < a.out && ((void)gpunn__pool_window(&a, *end, &low, &high), low < to)) ++*end;
        return;
    }
    int before = from + a.padding - a.kernel; /* windows that begin at or before this one have ended */
    *begin = before < 0 ? 0 : before / a.stride + 1;
    *end = min((to - 1 + a.padding) / a.stride + 1, a.out);
}

typedef struct gpunn__pool_place { /* one output */
    int   z0, z1, y0, y1, x0, x1;  /* its window is cells [z0, z1) x [y0, y1) x [x0, x1) */
    int   skipped;                 /* index of its first cell in the unclipped window */
    float share;                   /* weight of one cell in an average */
} gpunn__pool_place;

/* The weight of one cell in the average over a window. depth, rows and columns include padding; the cell
 * counts do not. */
template <bool deep>
__device__ __forceinline__ float gpunn__pool_share(const gpunn__pool &p, int depth, int rows, int columns,
                                                   int deep_cells, int row_cells, int column_cells)
{
    float cells = p.count_exclude_pad ? (float)row_cells * (float)column_cells : (float)rows * (float)columns;
    if (deep) cells *= (float)(p.count_exclude_pad ? deep_cells : depth);
    return 1 / cells;
}

/* index: of the output in its volume. */
template <bool deep>
__device__ __forceinline__ gpunn__pool_place gpunn__pool_at(const gpunn__pool &p, int index)
{
    gpunn__pool_place place;
    int row = index / p.x.out, x = index - row * p.x.out, z = deep ? row / p.y.out : 0, y = row - z * p.y.out;
    int depth = 1, height = gpunn__pool_window(&p.y, y, &place.y0, &place.y1);
    int width = gpunn__pool_window(&p.x, x, &place.x0, &place.x1);
    place.z0 = 0, place.z1 = 1, place.skipped = 0;
    if (deep) {
        depth = gpunn__pool_window(&p.z, z, &place.z0, &place.z1);
        place.skipped = (place.z0 - gpunn__pool_corner(&p.z, z, place.z0)) * p.y.span;
    }
    place.skipped += place.y0 - gpunn__pool_corner(&p.y, y, place.y0);
    place.skipped = place.skipped * p.x.span + place.x0 - gpunn__pool_corner(&p.x, x, place.x0);
    place.share = gpunn__pool_share<deep>(p, depth, height, width, place.z1 - place.z0, place.y1 - place.y0,
                                          place.x1 - place.x0);
    return place;
}

__device__ __forceinline__ int gpunn__pool_marked(const gpunn__pool &p, int64_t i)
{
    return p.at_bytes == 1 ? ((const unsigned char *)p.at)[i] : ((const int *)p.at)[i];
}

/* A NaN wins, even over an earlier NaN. Of equal cells the first wins. */
template <bool deep>
static __global__ void __launch_bounds__(GPUNN__THREADS, 4) gpunn__pool_kernel(const gpunn__pool p)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    int     size = (deep ? p.z.out : 1) * p.y.out * p.x.out;
    for (; i < p.results; i += step) {
        int64_t           volume = i / size;
        gpunn__pool_place place = gpunn__pool_at<deep>(p, (int)(i - volume * size));
        int               at = place.skipped;
        float             best = p.average ? 0 : -INFINITY;
        for (int z = place.z0; z < place.z1; z++)
            for (int y = place.y0; y < place.y1; y++) {
                int64_t row = ((deep ? volume * p.z.n + z : volume) * p.y.n + y) * p.x.n;
                int     here = place.skipped + ((z - place.z0) * p.y.span + y - place.y0) * p.x.span;
#pragma unroll(deep ? 1 : 4)
                for (int x = place.x0; x < place.x1; x++, here++) {
                    float v = gpunn__load(p.from, p.from_dtype, row + x);
                    if (p.average)
                        best += v;
                    else if (v > best || v != v)
                        best = v, at = here;
                }
            }
        gpunn__store(p.to, p.to_dtype, i, p.average ? best * place.share : best);
        gpunn__pool_mark(p.at, p.at_bytes, i, at);
    }
}

/* A sort key: the cell with the larger key is the maximum. */
__device__ __forceinline__ unsigned long long gpunn__pool_rank(float v, unsigned at)
{
    unsigned bits = __float_as_uint(v + 0.0f); /* makes -0 equal to 0 */
    if (v != v) return 0xFFFFFFFFull << 32 | at;
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (unsigned long long)bits << 32 | ~at;
}

typedef struct gpunn__most {
    __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const
    {
        return a > b ? a : b;
    }
} gpunn__most;

/* One block, of any number of whole warps, per output. */
template <bool deep>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__pool_large_kernel(const gpunn__pool p)
{
    GPUNN__FOLLOW();
    int size = (deep ? p.z.out : 1) * p.y.out * p.x.out;
    for (int64_t i = blockIdx.x; i < p.results; i += gridDim.x) {
        int64_t           volume = i / size;
        gpunn__pool_place place = gpunn__pool_at<deep>(p, (int)(i - volume * size));
        int columns = place.x1 - place.x0, rows = place.y1 - place.y0, threads = (int)blockDim.x;
        /* lines: rows of all slices */
        int                line = (int)threadIdx.x / columns, x = (int)threadIdx.x % columns;
        int                down = threads / columns, along = threads % columns;
        float              sum = 0;
        unsigned long long best = 0;
        while (line < (place.z1 - place.z0) * rows) {
            int     z = deep ? line / rows : 0;
            int64_t slice = deep ? volume * p.z.n + place.z0 + z : volume;
            float   v = gpunn__load(p.from, p.from_dtype,
                                    (slice * p.y.n + place.y0 + line - z * rows) * p.x.n + place.x0 + x);
            if (p.average)
                sum += v;
            else
                best = gpunn__most()(best,
                                     gpunn__pool_rank(v, (unsigned)line * (unsigned)columns + (unsigned)x));
            line += down;
            x += along;
            if (x >= columns) x -= columns, line++;
        }
        if (p.average) {
            sum = gpunn__block_reduce(sum, gpunn__add());
            if (threadIdx.x == 0) gpunn__store(p.to, p.to_dtype, i, sum * place.share);
            continue;
        }
        best = gpunn__block_reduce(best, gpunn__most());
        if (threadIdx.x > 0) continue;
        unsigned at = best >> 32 == 0xFFFFFFFFu ? (unsigned)best : ~(unsigned)best;
        line = (int)at / columns;
        x = (int)at % columns;
        int     z = deep ? line / rows : 0, y = line - z * rows;
        int64_t slice = deep ? volume * p.z.n + place.z0 + z : volume;
        gpunn__store(
            p.to, p.to_dtype, i,
            gpunn__load(p.from, p.from_dtype, (slice * p.y.n + place.y0 + y) * p.x.n + place.x0 + x));
        gpunn__pool_mark(p.at, p.at_bytes, i, place.skipped + (z * p.y.span + y) * p.x.span + x);
    }
}

template <bool deep>
static __global__ void __launch_bounds__(GPUNN__THREADS, deep ? 3 : 4)
    gpunn__pool_back_kernel(const gpunn__pool p)
{
    GPUNN__FOLLOW();
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * GPUNN__PACK;
    int64_t step = (int64_t)gridDim.x * blockDim.x * GPUNN__PACK;
    int     size = (deep ? p.z.n : 1) * p.y.n * p.x.n;
    for (; i < p.cells; i += step) {
        int64_t volume = i / size;
        int     index = (int)(i - volume * size), row = index / p.x.n, x = index - row * p.x.n;
        int     z = deep ? row / p.y.n : 0, y = row - z * p.y.n, count = gpunn__pack_size(p.cells, i);
        float   v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (p.accumulate) gpunn__load_pack(p.to, p.to_dtype, i, count, v);
        for (int done = 0, n; done < count; done += n, x = 0) { /* one row of cells after another */
            int oz = 0, oz_end = 1, oy_begin, oy_end, ox_begin, ox_end;
            n = min(count - done, p.x.n - x);
            if (deep) gpunn__pool_windows(p.z, z, z + 1, &oz, &oz_end);
            gpunn__pool_windows(p.y, y, y + 1, &oy_begin, &oy_end);
            gpunn__pool_windows(p.x, x, x + n, &ox_begin, &ox_end);
            for (; oz < oz_end; oz++) {
                int z0 = 0, z1 = 1, depth = deep ? gpunn__pool_window(&p.z, oz, &z0, &z1) : 1;
                for (int oy = oy_begin; oy < oy_end; oy++) {
                    int     y0, y1, height = gpunn__pool_window(&p.y, oy, &y0, &y1);
                    int64_t row = ((deep ? volume * p.z.out + oz : volume) * p.y.out + oy) * p.x.out;
                    /* index of this row's first cell in that window */
                    int marked = y - gpunn__pool_corner(&p.y, oy, y0);
                    if (deep) marked += (z - gpunn__pool_corner(&p.z, oz, z0)) * p.y.span;
                    marked *= p.x.span;
                    /* adds its share to cells [begin, end) of this row */
                    for (int ox = ox_begin; ox < ox_end; ox++) {
                        int   begin, end, width = gpunn__pool_window(&p.x, ox, &begin, &end);
                        float share = 1;
                        if (p.average) {
                            share = gpunn__pool_share<deep>(p, depth, height, width, z1 - z0, y1 - y0,
                                                            end - begin);
                        } else {
                            int column = gpunn__pool_marked(p, row + ox) - marked;
                            begin = gpunn__pool_corner(&p.x, ox, begin) + column;
                            end = column >= 0 && column < p.x.span ? begin + 1 : begin;
                        }
                        begin = max(begin, x) - x + done;
                        end = min(end, x + n) - x + done;
                        if (begin >= end) continue;
                        share *= gpunn__load(p.from, p.from_dtype, row + ox);
#pragma unroll
                        for (int j = 0; j < GPUNN__PACK; j++)
                            if (j >= begin && j < end) v[j] += share;
                    }
                }
            }
            if (++y < p.y.n) continue;
            y = 0;
            if (!deep || ++z == p.z.n) z = 0, volume++;
        }
        gpunn__store_pack(p.to, p.to_dtype, i, count, false, v);
    }
}

/* Channels c .. c + n - 1, starting at element i. n < 8 only for the last channels. */
__device__ __forceinline__ void gpunn__pool_load(const gpunn__pool &p, const void *data, gpunn_dtype dtype,
                                                 int64_t i, int n, float v[8])
{
    if (p.channels % GPUNN__PACK == 0) {
        gpunn__load8(data, dtype, i, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) v[j] = j < n ? gpunn__load(data, dtype, i + j) : 0;
}

__device__ __forceinline__ void gpunn__pool_store(const gpunn__pool &p, int64_t i, int n, const float v[8])
{
    if (p.channels % GPUNN__PACK == 0) {
        gpunn__store8(p.to, p.to_dtype, i, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++)
        if (j < n) gpunn__store(p.to, p.to_dtype, i + j, v[j]);
}

/* The marked cells of channels c .. c + n - 1. Marks of one byte are accessed 8 at a time. */
__device__ __forceinline__ void gpunn__pool_load_marks(const gpunn__pool &p, int64_t i, int n, int at[8])
{
    if (p.at_bytes != 1 || p.channels % GPUNN__PACK != 0) {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) at[j] = j < n ? gpunn__pool_marked(p, i + j) : -1;
        return;
    }
    const uint2    pack = *(const uint2 *)((const unsigned char *)p.at + i);
    const unsigned word[2] = {pack.x, pack.y};
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) at[j] = (int)(word[j / 4] >> 8 * (j % 4) & 255);
}

__device__ __forceinline__ void gpunn__pool_store_marks(const gpunn__pool &p, int64_t i, int n,
                                                        const int at[8])
{
    if (p.at_bytes != 1 || p.channels % GPUNN__PACK != 0) {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++)
            if (j < n) gpunn__pool_mark(p.at, p.at_bytes, i + j, at[j]);
        return;
    }
    unsigned word[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) word[j / 4] |= (unsigned)at[j] << 8 * (j % 4);
    *(uint2 *)((unsigned char *)p.at + i) = make_uint2(word[0], word[1]);
}

/* For planes only, as is the next kernel. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__pool_channels_last_kernel(const gpunn__pool p)
{
    GPUNN__FOLLOW();
    int items = p.y.out * p.x.out * p.packs, step = (int)(gridDim.x * blockDim.x);
    for (int64_t image = blockIdx.y; image < p.images; image += gridDim.y)
        for (int item = (int)(blockIdx.x * blockDim.x + threadIdx.x); item < items; item += step) {
            int index = item / p.packs;
            int c = (item - index * p.packs) * GPUNN__PACK, n = min(p.channels - c, (int)GPUNN__PACK), at[8];
            gpunn__pool_place place = gpunn__pool_at<false>(p, index);
            float             best[8], v[8];
#pragma unroll
            for (int j = 0; j < GPUNN__PACK; j++) best[j] = p.average ? 0 : -INFINITY, at[j] = place.skipped;
            for (int y = place.y0; y < place.y1; y++)
#pragma unroll 2
                for (int x = place.x0; x < place.x1; x++) {
                    int here = place.skipped + (y - place.y0) * p.x.span + x - place.x0;
                    gpunn__pool_load(p, p.from, p.from_dtype,
                                     ((image * p.y.n + y) * p.x.n + x) * p.channels + c, n, v);
#pragma unroll
                    for (int j = 0; j < GPUNN__PACK; j++)
                        if (p.average)
                            best[j] += v[j];
                        else if (v[j] > best[j] || v[j] != v[j])
                            best[j] = v[j], at[j] = here;
                }
            int64_t i = (image * (p.y.out * p.x.out) + index) * p.channels + c;
#pragma unroll
            for (int j = 0; j < GPUNN__PACK; j++)
                if (p.average) best[j] *= place.share;
            gpunn__pool_store_marks(p, i, n, at);
            gpunn__pool_store(p, i, n, best);
        }
}

static __global__ void __launch_bounds__(GPUNN__THREADS, 4)
    gpunn__pool_channels_last_back_kernel(const gpunn__pool p)
{
    GPUNN__FOLLOW();
    int items = p.y.n * p.x.n * p.packs, step = (int)(gridDim.x * blockDim.x);
    for (int64_t image = blockIdx.y; image < p.images; image += gridDim.y)
        for (int item = (int)(blockIdx.x * blockDim.x + threadIdx.x); item < items; item += step) {
            int     cell = item / p.packs, y = cell / p.x.n, x = cell - y * p.x.n;
            int     c = (item - cell * p.packs) * GPUNN__PACK, n = min(p.channels - c, (int)GPUNN__PACK);
            int     oy, oy_end, ox_begin, ox_end;
            int64_t to = (image * (p.y.n * p.x.n) + cell) * p.channels + c;
            float   v[8] = {0, 0, 0, 0, 0, 0, 0, 0}, g[8];
            int     at[8];
            if (p.accumulate) gpunn__pool_load(p, p.to, p.to_dtype, to, n, v);
            gpunn__pool_windows(p.y, y, y + 1, &oy, &oy_end);
            gpunn__pool_windows(p.x, x, x + 1, &ox_begin, &ox_end);
            for (; oy < oy_end; oy++) {
                int y0, y1, height = gpunn__pool_window(&p.y, oy, &y0, &y1);
                int row = (y - gpunn__pool_corner(&p.y, oy, y0)) * p.x.span;
                for (int ox = ox_begin; ox < ox_end; ox++) {
                    int     x0, x1, width = gpunn__pool_window(&p.x, ox, &x0, &x1);
                    int     index = row + x - gpunn__pool_corner(&p.x, ox, x0);
                    float   share = p.average
                                        ? gpunn__pool_share<false>(p, 1, height, width, 1, y1 - y0, x1 - x0)
                                        : 1;
                    int64_t i = ((image * p.y.out + oy) * p.x.out + ox) * p.channels + c;
                    gpunn__pool_load(p, p.from, p.from_dtype, i, n, g);
                    if (!p.average) gpunn__pool_load_marks(p, i, n, at);
#pragma unroll
                    for (int j = 0; j < GPUNN__PACK; j++)
                        if (p.average || at[j] == index) v[j] += g[j] * share;
                }
            }
            gpunn__pool_store(p, to, n, v);
        }
}

/* Maxima of bytes. A thread computes four channels of a result; a plane is an image of one channel. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__pool_bytes_kernel(const gpunn__pool p)
{
    GPUNN__FOLLOW();
    const int size = p.y.out * p.x.out;
    int64_t   i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    for (; i < p.images * size * p.packs; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t           cell = i / p.packs, image = cell / size;
        const int               first = (int)(i - cell * p.packs) * 4;
        const gpunn__pool_place place = gpunn__pool_at<false>(p, (int)(cell - image * size));
        int                     best[4] = {0, 0, 0, 0};
        for (int y = place.y0; y < place.y1; y++)
            for (int x = place.x0; x < place.x1; x++) {
                const int64_t  at = (image * p.y.n + y) * p.x.n + x;
                const uint32_t four = gpunn__load_channels(p.from, at * p.channels, first, p.channels);
#pragma unroll
                for (int j = 0; j < 4; j++) best[j] = max(best[j], gpunn__byte_at(four, j));
            }
        gpunn__store_channels(p.to, cell * p.channels, first, p.channels,
                              (uint32_t)(best[0] | best[1] << 8 | best[2] << 16) | (uint32_t)best[3] << 24);
    }
}

enum { GPUNN__POOL_MOST = 1 << 30 }; /* most values of an image, or cells of a window */

/* Cells of the largest window. The result exceeds GPUNN__POOL_MOST if there are too many. */
static int64_t gpunn__pool_cells(const gpunn__pool *p)
{
    int64_t plane = (int64_t)p->y.span * p->x.span;
    return plane > GPUNN__POOL_MOST ? plane : p->z.span * plane;
}

GPUNN__INTERNAL gpunn__pool gpunn__pool_of(const gpunn_step *step)
{
    const gpunn_value *x = &step->in[0], *y = step->backward ? &step->grad_out : &step->out;
    const gpunn_value *from = step->backward ? y : x, *to = step->backward ? &step->grad_in[0] : y;
    gpunn__pool        p;
    memset(&p, 0, sizeof p);
    gpunn__pool_axes(step, &p.z, &p.y, &p.x);
    p.average = !gpunn__op_is(step->op, GPUNN__MAX_POOL);
    if (!p.average && step->training && x->dtype != GPUNN_U8)
        p.at_bytes = gpunn__pool_cells(&p) <= 256 ? 1 : 4;
    p.results = y->count, p.cells = x->count;
    p.count_exclude_pad = gpunn__op_is(step->op, GPUNN__ADAPTIVE_POOL) || step->attr->count_exclude_pad;
    p.at = step->saved;
    p.from = from->data, p.from_dtype = from->dtype;
    p.to = to->data, p.to_dtype = to->dtype;
    p.accumulate = step->backward && step->accumulate[0];
    return p;
}

GPUNN__INTERNAL bool gpunn__pool_tiles(const gpunn_step *step, const gpunn__pool *p)
{
    return step->op == GPUNN_OP_MAX_POOL2D && !step->in[0].channels_last && p->y.stride == p->y.kernel &&
           p->x.stride == p->x.kernel && p->y.padding + p->x.padding == 0 &&
           p->y.out * p->y.kernel == p->y.n && p->x.out * p->x.kernel == p->x.n && gpunn__pool_cells(p) < 32;
}

typedef struct gpunn__pool_relu {
    gpunn__pool p; /* `to` is the gradient of relu's argument */
    int         images, channels;
    const void *y; /* relu's result */
    gpunn_dtype y_dtype;
    float      *sums; /* [channels] = or += the channel sums of the gradient; NULL: not wanted */
    bool        add;
} gpunn__pool_relu;

/* A block per channel, a thread per window. */
static __global__ void __launch_bounds__(1024) gpunn__pool_relu_back_kernel(const gpunn__pool_relu r)
{
    GPUNN__FOLLOW();
    const gpunn__pool &p = r.p;
    const int          size = p.y.out * p.x.out;
    float              sum = 0;
    for (int item = (int)threadIdx.x; item < r.images * size; item += (int)blockDim.x) {
        int image = item / size, index = item - image * size, row = index / p.x.out,
            column = index - row * p.x.out;
        int64_t volume = (int64_t)image * r.channels + blockIdx.x, i = volume * size + index;
        int64_t corner = (volume * p.y.n + row * p.y.kernel) * p.x.n + column * p.x.kernel;
        int     at = gpunn__pool_marked(p, i);
        float   g = gpunn__load(p.from, p.from_dtype, i);
        for (int cell = 0; cell < p.y.kernel * p.x.kernel; cell++) {
            int64_t place = corner + cell / p.x.kernel * p.x.n + cell % p.x.kernel;
            float   gradient = cell != at || gpunn__load(r.y, r.y_dtype, place) <= 0
                                   ? 0
                                   : gpunn__rounded(g, p.to_dtype);
            gpunn__store(p.to, p.to_dtype, place, gradient);
            sum += gradient;
        }
    }
    if (r.sums == NULL) return;
    sum = gpunn__block_reduce(sum, gpunn__add());
    if (threadIdx.x == 0) r.sums[blockIdx.x] = r.add ? r.sums[blockIdx.x] + sum : sum;
}

/* Merges a max pooling's backward step with that of the relu before it. If a convolution's backward step
 * follows, it also computes the gradient of its bias. */
static gpunn_status gpunn__pool_relu_back(gpunn__cuda *cuda, const gpunn_step *step, const gpunn__pool *p,
                                          bool *taken)
{
    const gpunn_step *relu = cuda->next, *conv = cuda->next + 1;
    const int64_t     channels = step->in[0].dim[1];
    gpunn__pool_relu  r;
    *taken = cuda->next < cuda->end && gpunn__pool_tiles(step, p) && p->results / channels <= 4 * 1024 &&
             !p->accumulate && relu->op == GPUNN_OP_RELU && relu->backward && relu->grad_out.data == p->to &&
             relu->grad_in[0].data == p->to && !relu->accumulate[0] && relu->grad_in[0].dtype == p->to_dtype;
    if (!*taken) return GPUNN_OK;
    memset(&r, 0, sizeof r);
    r.p = *p;
    r.images = (int)step->in[0].dim[0];
    r.channels = (int)channels;
    r.y = relu->out.data, r.y_dtype = relu->out.dtype;
    if (conv < cuda->end && conv->op == GPUNN_OP_CONV2D && conv->backward && conv->grad_out.data == p->to) {
        r.sums = (float *)conv->grad_in[2].data;
        r.add = conv->accumulate[2];
        cuda->summed = conv;
    }
    cuda->next++;
    return GPUNN__LAUNCH(cuda, gpunn__pool_relu_back_kernel, (unsigned)channels, 1024, r);
}

static gpunn_status gpunn__cuda_pool(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *x = &step->in[0], *y = step->backward ? &step->grad_out : &step->out;
    const int64_t      most = GPUNN__POOL_MOST;
    gpunn__pool        p = gpunn__pool_of(step);
    const int          deep = x->rank - 4;
    const int64_t      window = gpunn__pool_cells(&p);
    bool               taken;
    if (action == GPUNN__PREPARE) {
        const gpunn__pool_axis *axes[3] = {&p.z, &p.y, &p.x};
        int64_t                 images = x->dim[0] * (x->channels_last ? 1 : x->dim[1]);
        for (int i = 0; i < 3; i++)
            if (axes[i]->kernel == 0 && axes[i]->out > 65536)
                return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                        "%d windows along an axis are more than 65536; use fewer",
                                        axes[i]->out);
        if (x->count / images > most || y->count / images > most || window > most)
            return gpunn__cuda_fail(
                cuda, GPUNN_ERR_UNSUPPORTED,
                "an image or window has more than 2^30 values; split the images into smaller ones");
        if (!step->backward) step->saved_bytes = (size_t)p.at_bytes * (size_t)y->count;
        return GPUNN_OK;
    }
    if (p.to == NULL) return GPUNN_OK;
    if (x->dtype == GPUNN_U8) {
        p.channels = x->channels_last ? (int)x->dim[1] : 1;
        p.images = x->dim[0] * x->dim[1] / p.channels;
        p.packs = (p.channels + 3) / 4;
        return GPUNN__LAUNCH(cuda, gpunn__pool_bytes_kernel,
                             gpunn__blocks(cuda, y->count / p.channels * p.packs, 1), GPUNN__THREADS, p);
    }
    if (x->channels_last) {
        p.images = x->dim[0];
        p.channels = (int)x->dim[1];
        p.packs = (p.channels + GPUNN__PACK - 1) / GPUNN__PACK;
        dim3     grid(gpunn__blocks(cuda, (step->backward ? x : y)->count / x->dim[0], GPUNN__PACK));
        unsigned rows = (unsigned)cuda->multiprocessors * 16 / grid.x + 1;
        grid.y = p.images < rows ? (unsigned)p.images : rows;
        if (action == GPUNN__BACKWARD)
            return GPUNN__LAUNCH(cuda, gpunn__pool_channels_last_back_kernel, grid, GPUNN__THREADS, p);
        return GPUNN__LAUNCH(cuda, gpunn__pool_channels_last_kernel, grid, GPUNN__THREADS, p);
    }
    if (action == GPUNN__BACKWARD) {
        unsigned blocks = gpunn__blocks(cuda, p.cells, 8);
        GPUNN__TRY(gpunn__pool_relu_back(cuda, step, &p, &taken));
        if (taken) return GPUNN_OK;
        if (deep) return GPUNN__LAUNCH(cuda, gpunn__pool_back_kernel<true>, blocks, GPUNN__THREADS, p);
        return GPUNN__LAUNCH(cuda, gpunn__pool_back_kernel<false>, blocks, GPUNN__THREADS, p);
    }
    if (window < 32) {
        unsigned blocks = gpunn__blocks(cuda, p.results, 1);
        if (deep) return GPUNN__LAUNCH(cuda, gpunn__pool_kernel<true>, blocks, GPUNN__THREADS, p);
        return GPUNN__LAUNCH(cuda, gpunn__pool_kernel<false>, blocks, GPUNN__THREADS, p);
    }
    int64_t  blocks = (int64_t)cuda->multiprocessors * 32;
    unsigned threads = window < 1024 ? 32 : GPUNN__THREADS;
    if (blocks > p.results) blocks = p.results;
    if (deep) return GPUNN__LAUNCH(cuda, gpunn__pool_large_kernel<true>, (unsigned)blocks, threads, p);
    return GPUNN__LAUNCH(cuda, gpunn__pool_large_kernel<false>, (unsigned)blocks, threads, p);
}

#define GPUNN__X(name)                                                                           \
    GPUNN__INTERNAL gpunn_status name(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action) \
    {                                                                                            \
        return gpunn__cuda_pool(cuda, step, action);                                             \
    }
GPUNN__X(gpunn__cuda_max_pool2d)
GPUNN__X(gpunn__cuda_max_pool3d)
GPUNN__X(gpunn__cuda_avg_pool2d)
GPUNN__X(gpunn__cuda_avg_pool3d)
GPUNN__X(gpunn__cuda_adaptive_max_pool2d)
GPUNN__X(gpunn__cuda_adaptive_max_pool3d)
GPUNN__X(gpunn__cuda_adaptive_avg_pool2d)
GPUNN__X(gpunn__cuda_adaptive_avg_pool3d)
#undef GPUNN__X

/* ==== >>cuda/finish ====================================================================================== *
 * The pass after a product or convolution: bias, norm, residual, relu and max pooling in one kernel. */
typedef struct gpunn__finish {
    int64_t      count, channels, inner;
    const void  *y, *bias, *residual; /* NULL: absent */
    void        *out;
    gpunn_dtype  y_dtype, bias_dtype, residual_dtype, out_dtype;
    const float *scale, *shift, *mean, *variance; /* of the norm; all NULL without one */
    float        eps;
    bool         relu;
} gpunn__finish;

/* The factor x and shift y of channel c: a value v becomes v * x + y. */
__device__ __forceinline__ float2 gpunn__finish_affine(const gpunn__finish &f, int64_t c)
{
    float2 affine = {1, f.bias ? gpunn__load(f.bias, f.bias_dtype, c) : 0};
    if (f.mean == NULL) return affine;
    affine.x = 1 / sqrtf(f.variance[c] + f.eps) * (f.scale ? f.scale[c] : 1);
    affine.y = (affine.y - f.mean[c]) * affine.x + (f.shift ? f.shift[c] : 0);
    return affine;
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__finish_kernel(const gpunn__finish f)
{
    GPUNN__FOLLOW();
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * GPUNN__PACK;
    int64_t step = (int64_t)gridDim.x * blockDim.x * GPUNN__PACK;
    for (; i < f.count; i += step) {
        float   v[8], residual[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        int     n = gpunn__pack_size(f.count, i);
        int64_t row = i / f.inner, left = (row + 1) * f.inner - i, c = row % f.channels;
        gpunn__load_pack(f.y, f.y_dtype, i, n, v);
        if (f.residual) gpunn__load_pack(f.residual, f.residual_dtype, i, n, residual);
        float2 affine = gpunn__finish_affine(f, c);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            if (left-- == 0) {
                c = c + 1 < f.channels ? c + 1 : 0;
                left = f.inner - 1;
                affine = gpunn__finish_affine(f, c);
            }
            v[j] = v[j] * affine.x + affine.y + residual[j];
            if (f.relu && v[j] <= 0) v[j] = 0;
        }
        gpunn__store_pack(f.out, f.out_dtype, i, n, false, v);
    }
}

/* The same with max pooling over the result: one thread per window. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__finish_pool_kernel(const gpunn__finish f, const gpunn__pool p)
{
    GPUNN__FOLLOW();
    const int size = p.y.out * p.x.out;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < p.results;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t volume = i / size;
        int index = (int)(i - volume * size), row = index / p.x.out, column = index - row * p.x.out, at = 0;
        int64_t corner = (volume * p.y.n + row * p.y.kernel) * p.x.n + column * p.x.kernel;
        float2  affine = gpunn__finish_affine(f, volume % f.channels);
        float   best = -INFINITY;
        for (int cell = 0; cell < p.y.kernel * p.x.kernel; cell++) {
            int64_t place = corner + cell / p.x.kernel * p.x.n + cell % p.x.kernel;
            float   v = gpunn__load(f.y, f.y_dtype, place) * affine.x + affine.y;
            v = gpunn__rounded(f.relu && v <= 0 ? 0 : v, f.out_dtype);
            gpunn__store(f.out, f.out_dtype, place, v);
            if (v > best || v != v) best = v, at = cell;
        }
        gpunn__store(p.to, p.to_dtype, i, best);
        gpunn__pool_mark(p.at, p.at_bytes, i, at);
    }
}

/* Whether the next step is a max pooling over f's result that this launch can include, with a thread per
 * window at once. Not if f reads other memory than its result, since the maxima may be written there. */
static bool gpunn__finish_pools(const gpunn__cuda *cuda, const gpunn__finish *f, gpunn__pool *p)
{
    const gpunn_step *pool = cuda->next;
    if (pool == cuda->end || pool->op != GPUNN_OP_MAX_POOL2D || pool->backward ||
        pool->in[0].data != f->out || f->y != f->out || f->residual)
        return false;
    *p = gpunn__pool_of(pool);
    return gpunn__pool_tiles(pool, p) && p->results <= (int64_t)cuda->multiprocessors * 2048;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_finish(gpunn__cuda *cuda, const gpunn_step *step, const void *y,
                                                gpunn_dtype y_dtype, bool bias, bool norm, bool residual,
                                                bool relu)
{
    const gpunn_value *out = &step->out;
    gpunn__finish      f;
    memset(&f, 0, sizeof f);
    f.count = out->count;
    f.channels = out->dim[step->op == GPUNN_OP_LINEAR ? out->rank - 1 : 1];
    f.inner = step->op == GPUNN_OP_LINEAR || out->channels_last ? 1 : out->count / (out->dim[0] * f.channels);
    f.y = y, f.y_dtype = y_dtype;
    f.out = out->data, f.out_dtype = out->dtype;
    if (bias) f.bias = step->in[2].data, f.bias_dtype = step->in[2].dtype;
    if (residual) f.residual = step->fused->residual.data, f.residual_dtype = step->fused->residual.dtype;
    if (norm) {
        f.scale = (const float *)step->fused->scale.data;
        f.shift = (const float *)step->fused->shift.data;
        f.mean = (const float *)step->fused->mean.data;
        f.variance = (const float *)step->fused->variance.data;
        f.eps = step->fused->eps;
    }
    f.relu = relu;
    gpunn__pool p;
    if (gpunn__finish_pools(cuda, &f, &p)) {
        cuda->next++;
        return GPUNN__LAUNCH(cuda, gpunn__finish_pool_kernel, gpunn__blocks(cuda, p.results, 1),
                             GPUNN__THREADS, f, p);
    }
    return GPUNN__LAUNCH(cuda, gpunn__finish_kernel, gpunn__blocks(cuda, f.count, GPUNN__PACK),
                         GPUNN__THREADS, f);
}

/* ==== >>cuda/sampling ==================================================================================== *
 * grid_sample, roi_align, affine_grid, hash_grid_encoding and interpolate, as in gpunn.h's >>cpu/sampling,
 * with one thread per point.
 * Points that touch the same cell add to its gradient in any order. To stay reproducible they add integers:
 * each term is rounded to a multiple of a power of two. Let P be the number of points of a sample. The power
 * is so small that P terms as large as the largest gradient of y just fit 63 bits. For 192^3 points it is
 * 2^-38 of the largest, finer than an F32 sum of such terms. Rows of a hash grid are summed the same way. */
typedef struct gpunn__exact {
    unsigned long long *sums;    /* [count] */
    float              *largest; /* [blocks]: the largest |dy| that each block found; NaN wins */
    int                 blocks;
    int64_t             count, terms, dy_count; /* terms: most terms of one sum */
    const void         *dy;
    gpunn_dtype         dy_dtype;
} gpunn__exact;

typedef struct gpunn__sampling {
    int                channels, size[3];      /* size: of x along x, y and z */
    int64_t            samples, cells, points; /* cells, points: per sample and channel */
    gpunn_grid_mode    mode;
    gpunn_grid_padding padding;
    bool               align_corners, add_x, add_grid;
    const void        *x, *grid, *dy;
    void              *y, *dx, *dgrid;
    gpunn_dtype        x_dtype, grid_dtype, y_dtype;
    gpunn__exact       exact; /* for the gradient of x */
} gpunn__sampling;

/* one point along one axis: two cells, their weights and the weights' derivatives */
typedef struct gpunn__cell_pair {
    int   cell[2];
    float weight[2], derivative[2];
    bool  inside;
} gpunn__cell_pair;

__device__ __forceinline__ gpunn__cell_pair gpunn__find_place(const gpunn__sampling &s, float coordinate,
                                                              int size)
{
    bool  zeros = s.padding == GPUNN_GRID_ZEROS;
    float span = (float)(s.align_corners ? size - 1 : size), shift = s.align_corners ? 0 : 0.5f;
    float low = zeros ? -2.0f : 0.0f, high = (float)(zeros ? size + 1 : size - 1);
    float at = (coordinate + 1) / 2 * span - shift, derivative = span / 2;
    if (s.padding == GPUNN_GRID_REFLECTION) {
        float away = fabsf(at + shift), times = floorf(away / span), rest = away - times * span;
        bool  odd = times - 2 * floorf(times / 2) != 0;
        if ((at < -shift) != odd) derivative = -derivative;
        at = (odd ? span - rest : rest) - shift;
    }
    if (!(at > low && at < high)) derivative = 0; /* no gradient at a border */
    at = at > low ? at : low;                     /* NaN becomes low */
    at = at < high ? at : high;
    bool             nearest = s.mode == GPUNN_GRID_NEAREST;
    int              cell = (int)(nearest ? rintf(at) : floorf(at)), next = cell + 1;
    float            part = nearest ? 0 : at - (float)cell;
    bool             has = cell >= 0 && cell < size, has_next = !nearest && next >= 0 && next < size;
    gpunn__cell_pair p;
    p.inside = has || has_next;
    const int other = has_next ? next : 0;
    p.cell[0] = has ? cell : other;
    p.cell[1] = has_next ? next : p.cell[0];
    p.weight[0] = has ? 1 - part : 0;
    p.weight[1] = has_next ? part : 0;
    p.derivative[0] = has ? -derivative : 0;
    p.derivative[1] = has_next ? derivative : 0;
    return p;
}

/* The cells of a point along x, y and z. point counts through all samples. Returns false if the point is
 * outside. */
template <int AXES>
__device__ __forceinline__ bool gpunn__find_places(const gpunn__sampling &s, int64_t point,
                                                   gpunn__cell_pair place[AXES])
{
    bool inside = true;
#pragma unroll
    for (int k = 0; k < AXES; k++) {
        place[k] = gpunn__find_place(s, gpunn__load(s.grid, s.grid_dtype, point * AXES + k), s.size[k]);
        inside = inside && place[k].inside;
    }
    return inside;
}

/* The index in its channel of cell number `corner` (bit k: the second one along axis k), and its weight. */
template <int AXES>
__device__ __forceinline__ int gpunn__corner(const gpunn__sampling &s, const gpunn__cell_pair place[AXES],
                                             int corner, float *weight)
{
    int cell = 0;
    *weight = 1;
#pragma unroll
    for (int k = AXES - 1; k >= 0; k--) {
        int which = corner >> k & 1;
        cell = cell * s.size[k] + place[k].cell[which];
        *weight *= place[k].weight[which];
    }
    return cell;
}

/* nearest uses only the first corner. */
__device__ __forceinline__ bool gpunn__takes_corner(const gpunn__sampling &s, int corner)
{
    return corner == 0 || s.mode == GPUNN_GRID_BILINEAR;
}

template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__sample_kernel(const gpunn__sampling s)
{
    GPUNN__FOLLOW();
    int64_t point = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; point < s.samples * s.points; point += step) {
        gpunn__cell_pair place[AXES];
        bool             inside = gpunn__find_places<AXES>(s, point, place);
        int64_t          sample = point / s.points;
        for (int c = (int)blockIdx.y; c < s.channels; c += (int)gridDim.y) {
            int64_t channel = sample * s.channels + c;
            float   sum = 0, weight;
#pragma unroll
            for (int corner = 0; corner < 1 << AXES; corner++) {
                if (!gpunn__takes_corner(s, corner)) continue;
                int cell = gpunn__corner<AXES>(s, place, corner, &weight);
                sum += weight * gpunn__load(s.x, s.x_dtype, channel * s.cells + cell);
            }
            gpunn__store(s.y, s.y_dtype, channel * s.points + point - sample * s.points, inside ? sum : 0);
        }
    }
}

/* The gradient of the grid. */
template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__sample_dgrid_kernel(const gpunn__sampling s)
{
    GPUNN__FOLLOW();
    int64_t point = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; point < s.samples * s.points; point += step) {
        gpunn__cell_pair place[AXES];
        bool             inside = gpunn__find_places<AXES>(s, point, place) && s.mode == GPUNN_GRID_BILINEAR;
        int64_t          sample = point / s.points;
        float            sum[AXES] = {0};
        for (int c = 0; c < s.channels && inside; c++) {
            int64_t channel = sample * s.channels + c;
            float   g = gpunn__load(s.dy, s.y_dtype, channel * s.points + point - sample * s.points);
#pragma unroll
            for (int corner = 0; corner < 1 << AXES; corner++) {
                float unused;
                int   cell = gpunn__corner<AXES>(s, place, corner, &unused);
                float v = g * gpunn__load(s.x, s.x_dtype, channel * s.cells + cell);
#pragma unroll
                for (int k = 0; k < AXES; k++) {
                    float derivative = place[k].derivative[corner >> k & 1];
#pragma unroll
                    for (int j = 0; j < AXES; j++)
                        if (j != k) derivative *= place[j].weight[corner >> j & 1];
                    sum[k] += v * derivative;
                }
            }
        }
#pragma unroll
        for (int k = 0; k < AXES; k++) {
            int64_t i = point * AXES + k;
            gpunn__store(s.dgrid, s.grid_dtype, i,
                         s.add_grid ? gpunn__load(s.dgrid, s.grid_dtype, i) + sum[k] : sum[k]);
        }
    }
}

/* Clears the sums and finds the largest gradient. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__exact_clear_kernel(const gpunn__exact e)
{
    GPUNN__FOLLOW();
    int64_t first = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    float   largest = 0;
    for (int64_t i = first; i < e.count; i += step) e.sums[i] = 0;
    for (int64_t i = first; i < e.dy_count; i += step)
        largest = gpunn__larger()(fabsf(gpunn__load(e.dy, e.dy_dtype, i)), largest);
    largest = gpunn__block_reduce(largest, gpunn__larger());
    if (threadIdx.x == 0) e.largest[blockIdx.x] = largest;
}

/* The factor that turns gradients into integers, as two powers of two, since their product may exceed F32's
 * range. NaN: a gradient is not finite. All threads of the block must call it. */
__device__ __forceinline__ float2 gpunn__exact_scale(const gpunn__exact &e)
{
    float largest = 0;
    for (int i = (int)threadIdx.x; i < e.blocks; i += (int)blockDim.x)
        largest = gpunn__larger()(e.largest[i], largest);
    largest = gpunn__block_reduce(largest, gpunn__larger());
    int bits = 62;
    while (e.terms >> (62 - bits) > 0) bits--; /* terms < 2^(62 - bits) */
    const int power = bits + 126 - (int)(__float_as_uint(largest) >> 23);
    return largest < INFINITY ? make_float2(ldexpf(1, power / 2), ldexpf(1, power - power / 2))
                              : make_float2(NAN, NAN);
}

/* Products with powers of two are exact in F32. Some GPUs do only two F64 operations per clock and
 * multiprocessor. There, F64 products would take twice as long as the conversion. */
__device__ __forceinline__ void gpunn__exact_add(const gpunn__exact &e, int64_t i, float term, float2 scale)
{
    (void)atomicAdd(&e.sums[i], (unsigned long long)llrintf(term * scale.x * scale.y));
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__exact_finish_kernel(const gpunn__exact e, void *to, gpunn_dtype dtype, bool add)
{
    GPUNN__FOLLOW();
    int64_t      i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    const float2 scale = gpunn__exact_scale(e);
    const double unit = 1 / ((double)scale.x * (double)scale.y);
    for (; i < e.count; i += step) {
        float sum = (float)((double)(long long)e.sums[i] * unit);
        gpunn__store(to, dtype, i, add ? gpunn__load(to, dtype, i) + sum : sum);
    }
}

/* The bytes of workspace for the sums; gpunn__exact_of places them in it. */
static size_t gpunn__exact_bytes(const gpunn__cuda *cuda, int64_t count)
{
    return (size_t)count * sizeof(unsigned long long) + (size_t)cuda->multiprocessors * 8 * sizeof(float);
}

static gpunn__exact gpunn__exact_of(const gpunn__cuda *cuda, const gpunn_step *step, int64_t count,
                                    int64_t terms)
{
    gpunn__exact e;
    e.sums = (unsigned long long *)step->workspace;
    e.largest = (float *)(void *)(e.sums + count);
    e.blocks = cuda->multiprocessors * 8;
    e.count = count;
    e.terms = terms;
    e.dy = step->grad_out.data;
    e.dy_dtype = step->grad_out.dtype;
    e.dy_count = step->grad_out.count;
    return e;
}

template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__sample_back_kernel(const gpunn__sampling s)
{
    GPUNN__FOLLOW();
    int64_t point = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    const float2 scale = gpunn__exact_scale(s.exact);
    if (scale.x != scale.x) return;
    for (; point < s.samples * s.points; point += step) {
        gpunn__cell_pair place[AXES];
        int64_t          sample = point / s.points;
        if (!gpunn__find_places<AXES>(s, point, place)) continue;
        for (int c = (int)blockIdx.y; c < s.channels; c += (int)gridDim.y) {
            int64_t channel = sample * s.channels + c;
            float   g = gpunn__load(s.dy, s.y_dtype, channel * s.points + point - sample * s.points);
#pragma unroll
            for (int corner = 0; corner < 1 << AXES; corner++) {
                float weight;
                int   cell = gpunn__corner<AXES>(s, place, corner, &weight);
                if (!gpunn__takes_corner(s, corner) || g * weight == 0) continue;
                gpunn__exact_add(s.exact, channel * s.cells + cell, g * weight, scale);
            }
        }
    }
}

/* Blocks for the points, and several rows of blocks for the channels if the points alone do not fill the
 * device. */
static dim3 gpunn__sample_blocks(const gpunn__cuda *cuda, const gpunn__sampling *s)
{
    dim3     grid(gpunn__blocks(cuda, s->samples * s->points, 1));
    unsigned rows = (unsigned)cuda->multiprocessors * 16 / grid.x + 1;
    grid.y = (unsigned)s->channels < rows ? (unsigned)s->channels : rows;
    return grid;
}

template <int AXES>
static gpunn_status gpunn__cuda_sample_grid(gpunn__cuda *cuda, const gpunn__sampling *s, gpunn__action action)
{
    dim3 grid = gpunn__sample_blocks(cuda, s);
    if (action == GPUNN__FORWARD)
        return GPUNN__LAUNCH(cuda, (gpunn__sample_kernel<AXES>), grid, GPUNN__THREADS, *s);
    if (s->dgrid)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, (gpunn__sample_dgrid_kernel<AXES>), grid.x, GPUNN__THREADS, *s));
    if (s->dx == NULL) return GPUNN_OK;
    GPUNN__TRY(
        GPUNN__LAUNCH(cuda, gpunn__exact_clear_kernel, (unsigned)s->exact.blocks, GPUNN__THREADS, s->exact));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, (gpunn__sample_back_kernel<AXES>), grid, GPUNN__THREADS, *s));
    return GPUNN__LAUNCH(cuda, gpunn__exact_finish_kernel, gpunn__blocks(cuda, s->exact.count, 4),
                         GPUNN__THREADS, s->exact, s->dx, s->x_dtype, s->add_x);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_grid_sample(gpunn__cuda *cuda, gpunn_step *step,
                                                     gpunn__action action)
{
    const gpunn_value *x = &step->in[0], *grid = &step->in[1],
                      *y = step->backward ? &step->grad_out : &step->out;
    gpunn__sampling s;
    memset(&s, 0, sizeof s);
    if (action == GPUNN__PREPARE) {
        if (step->backward && step->grad_in[0].data)
            step->workspace_bytes = gpunn__exact_bytes(cuda, x->count);
        return GPUNN_OK;
    }
    int axes = x->rank - 2;
    s.samples = x->dim[0];
    s.channels = (int)x->dim[1];
    for (int i = 0; i < 3; i++) s.size[i] = i < axes ? (int)x->dim[x->rank - 1 - i] : 1;
    s.cells = (int64_t)s.size[0] * s.size[1] * s.size[2];
    s.points = grid->count / (s.samples * axes);
    s.mode = (gpunn_grid_mode)step->attr->mode;
    s.padding = (gpunn_grid_padding)step->attr->padding_mode;
    s.align_corners = step->attr->align_corners;
    s.x = x->data;
    s.grid = grid->data;
    s.y_dtype = y->dtype;
    s.x_dtype = x->dtype;
    s.grid_dtype = grid->dtype;
    if (step->backward) {
        s.dy = y->data;
        s.dx = step->grad_in[0].data;
        s.dgrid = step->grad_in[1].data;
        s.add_x = step->accumulate[0];
        s.add_grid = step->accumulate[1];
        s.exact = gpunn__exact_of(cuda, step, x->count, s.points);
    } else
        s.y = y->data;
    return axes == 3 ? gpunn__cuda_sample_grid<3>(cuda, &s, action)
                     : gpunn__cuda_sample_grid<2>(cuda, &s, action);
}

/* ---- roi_align: a thread per value of the result ------------------------------------------------------- */

typedef struct gpunn__rois {
    gpunn__roi_shape shape;
    int64_t          count; /* number of results */
    const void      *x, *boxes, *dy;
    void            *y, *dx;
    gpunn_dtype      x_dtype, boxes_dtype, y_dtype;
    bool             add;
    gpunn__exact     exact; /* for the gradient of x */
} gpunn__rois;

typedef struct gpunn__roi_bin {
    gpunn__roi_samples y, x;
    int64_t            first; /* first cell of its channel; -1: the box belongs to no sample */
} gpunn__roi_bin;

__device__ __forceinline__ gpunn__roi_bin gpunn__roi_bin_of(const gpunn__rois &r, int64_t i)
{
    const gpunn__roi_shape &s = r.shape;
    const int64_t           row = gpunn__quotient(i, s.bins[1]), plane = gpunn__quotient(row, s.bins[0]);
    const int64_t           box = gpunn__quotient(plane, s.channels);
    float                   at[5];
#pragma unroll
    for (int k = 0; k < 5; k++) at[k] = gpunn__load(r.boxes, r.boxes_dtype, 5 * box + k);
    gpunn__roi_bin b;
    b.y = gpunn__roi_samples_of(&s, 0, at[2], at[4], (int)(row - plane * s.bins[0]));
    b.x = gpunn__roi_samples_of(&s, 1, at[1], at[3], (int)(i - row * s.bins[1]));
    const bool there = at[0] >= 0 && at[0] < (float)s.samples;
    b.first = there ? ((int64_t)at[0] * s.channels + plane - box * s.channels) * s.size[0] * s.size[1] : -1;
    return b;
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__roi_kernel(const gpunn__rois r)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; i < r.count; i += step) {
        const gpunn__roi_bin b = gpunn__roi_bin_of(r, i);
        float                sum = b.first < 0 ? NAN : 0;
        for (int j = b.y.begin; j < b.y.end && b.first >= 0; j++) {
            int   row[2], column[2];
            float up[2], left[2];
            if (!gpunn__roi_find(&b.y, j, row, up)) continue;
            const int64_t at[2] = {b.first + (int64_t)row[0] * b.x.size,
                                   b.first + (int64_t)row[1] * b.x.size};
            for (int k = b.x.begin; k < b.x.end; k++) {
                if (!gpunn__roi_find(&b.x, k, column, left)) continue;
#pragma unroll
                for (int corner = 0; corner < 4; corner++)
                    sum += up[corner >> 1] * left[corner & 1] *
                           gpunn__load(r.x, r.x_dtype, at[corner >> 1] + column[corner & 1]);
            }
        }
        gpunn__store(r.y, r.y_dtype, i, sum / gpunn__roi_count(&b.y, &b.x));
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__roi_back_kernel(const gpunn__rois r)
{
    GPUNN__FOLLOW();
    int64_t      i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    const float2 scale = gpunn__exact_scale(r.exact);
    if (scale.x != scale.x) return;
    for (; i < r.count; i += step) {
        const gpunn__roi_bin b = gpunn__roi_bin_of(r, i);
        const float          g = gpunn__load(r.dy, r.y_dtype, i) / gpunn__roi_count(&b.y, &b.x);
        for (int j = b.y.begin; j < b.y.end && b.first >= 0 && g != 0; j++) {
            int   row[2], column[2];
            float up[2], left[2];
            if (!gpunn__roi_find(&b.y, j, row, up)) continue;
            const int64_t at[2] = {b.first + (int64_t)row[0] * b.x.size,
                                   b.first + (int64_t)row[1] * b.x.size};
            for (int k = b.x.begin; k < b.x.end; k++) {
                if (!gpunn__roi_find(&b.x, k, column, left)) continue;
#pragma unroll
                for (int corner = 0; corner < 4; corner++) {
                    const float term = g * (up[corner >> 1] * left[corner & 1]);
                    if (term != 0)
                        gpunn__exact_add(r.exact, at[corner >> 1] + column[corner & 1], term, scale);
                }
            }
        }
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_roi_align(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *x = &step->in[0], *boxes = &step->in[1],
                      *y = step->backward ? &step->grad_out : &step->out;
    gpunn__rois r;
    if (action == GPUNN__PREPARE) {
        if (step->backward && step->grad_in[0].data)
            step->workspace_bytes = gpunn__exact_bytes(cuda, x->count);
        return GPUNN_OK;
    }
    memset(&r, 0, sizeof r);
    r.shape = gpunn__roi_shape_of(step->attr, x, boxes);
    r.count = y->count;
    r.x = x->data;
    r.boxes = boxes->data;
    r.x_dtype = x->dtype;
    r.boxes_dtype = boxes->dtype;
    r.y_dtype = y->dtype;
    const unsigned blocks = gpunn__blocks(cuda, r.count, 1);
    if (!step->backward) {
        r.y = y->data;
        return GPUNN__LAUNCH(cuda, gpunn__roi_kernel, blocks, GPUNN__THREADS, r);
    }
    r.dy = y->data;
    r.dx = step->grad_in[0].data;
    r.add = step->accumulate[0];
    r.exact = gpunn__exact_of(cuda, step, x->count, boxes->dim[0] * r.shape.bins[0] * r.shape.bins[1]);
    GPUNN__TRY(
        GPUNN__LAUNCH(cuda, gpunn__exact_clear_kernel, (unsigned)r.exact.blocks, GPUNN__THREADS, r.exact));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__roi_back_kernel, blocks, GPUNN__THREADS, r));
    return GPUNN__LAUNCH(cuda, gpunn__exact_finish_kernel, gpunn__blocks(cuda, r.exact.count, 4),
                         GPUNN__THREADS, r.exact, r.dx, r.x_dtype, r.add);
}

/* ---- hash_grid_encoding -------------------------------------------------------------------------------- */

typedef struct gpunn__hashing {
    gpunn__hash_grid grid;
    int64_t          points;
    const void      *x;
    void            *dx;
    gpunn_dtype      x_dtype;
    const float     *table, *dy;
    float           *y;
    bool             add_x;
    gpunn__exact     exact; /* for the gradient of the table */
    /* for its sparse gradient: row and terms of each corner of each level of each point */
    int64_t *rows;
    float   *terms;
} gpunn__hashing;

template <int AXES>
__device__ __forceinline__ void gpunn__hash_point(const gpunn__hashing &h, int64_t point, float x[AXES])
{
#pragma unroll
    for (int k = 0; k < AXES; k++) x[k] = gpunn__load(h.x, h.x_dtype, point * AXES + k);
}

/* A thread computes one level of a point. */
template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__hash_kernel(const gpunn__hashing h)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; i < h.points * h.grid.levels; i += step) {
        int64_t point = gpunn__quotient(i, h.grid.levels);
        float   x[AXES];
        gpunn__hash_point<AXES>(h, point, x);
        gpunn__hash_features(AXES, &h.grid.level[i - point * h.grid.levels], x, h.table, h.grid.features,
                             h.y + i * h.grid.features);
    }
}

/* The gradient of x. A thread computes one point. */
template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__hash_dx_kernel(const gpunn__hashing h)
{
    GPUNN__FOLLOW();
    int64_t point = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; point < h.points; point += step) {
        float        x[AXES], derivative[AXES] = {};
        const float *dy = h.dy + point * h.grid.levels * h.grid.features;
        gpunn__hash_point<AXES>(h, point, x);
        for (int l = 0; l < h.grid.levels; l++, dy += h.grid.features)
            gpunn__hash_dx(AXES, &h.grid.level[l], x, h.table, h.grid.features, dy, derivative);
#pragma unroll
        for (int k = 0; k < AXES; k++) {
            int64_t i = point * AXES + k;
            gpunn__store(h.dx, h.x_dtype, i,
                         h.add_x ? gpunn__load(h.dx, h.x_dtype, i) + derivative[k] : derivative[k]);
        }
    }
}

template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__hash_back_kernel(const gpunn__hashing h)
{
    GPUNN__FOLLOW();
    int64_t      i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    const float2 scale = gpunn__exact_scale(h.exact);
    if (scale.x != scale.x) return;
    for (; i < h.points * h.grid.levels; i += step) {
        int64_t                  point = gpunn__quotient(i, h.grid.levels);
        const gpunn__hash_level *level = &h.grid.level[i - point * h.grid.levels];
        float                    x[AXES];
        gpunn__hash_point<AXES>(h, point, x);
        const gpunn__hash_place place = gpunn__hash_find(AXES, level, x);
#pragma unroll
        for (int corner = 0; corner < 1 << AXES; corner++) {
            float   weight = gpunn__hash_weight(AXES, &place, corner, -1);
            int64_t row = gpunn__hash_row(AXES, level, &place, corner) * h.grid.features;
#pragma unroll 1
            for (int f = 0; f < h.grid.features; f++)
                gpunn__exact_add(h.exact, row + f, weight * h.dy[i * h.grid.features + f], scale);
        }
    }
}

/* What the corners of a level add to their rows. A thread takes one level of a point. */
template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__hash_terms_kernel(const gpunn__hashing h)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; i < h.points * h.grid.levels; i += step) {
        int64_t                  point = gpunn__quotient(i, h.grid.levels);
        const gpunn__hash_level *level = &h.grid.level[i - point * h.grid.levels];
        float                    x[AXES];
        gpunn__hash_point<AXES>(h, point, x);
        const gpunn__hash_place place = gpunn__hash_find(AXES, level, x);
#pragma unroll
        for (int corner = 0; corner < 1 << AXES; corner++) {
            float   weight = gpunn__hash_weight(AXES, &place, corner, -1);
            int64_t at = (i << AXES) + corner;
            h.rows[at] = gpunn__hash_row(AXES, level, &place, corner);
#pragma unroll 1
            for (int f = 0; f < h.grid.features; f++)
                h.terms[at * h.grid.features + f] = weight * h.dy[i * h.grid.features + f];
        }
    }
}

template <int AXES>
static gpunn_status gpunn__hash_sparse_back(gpunn__cuda *cuda, gpunn_step *step, gpunn__hashing *h,
                                            bool prepares)
{
    gpunn__arena  arena = {(char *)step->workspace, 0};
    const int64_t levels = h->points * h->grid.levels, count = levels << AXES;
    h->rows = (int64_t *)gpunn__arena_take(&arena, (size_t)count * sizeof *h->rows);
    h->terms = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, count * h->grid.features));
    if (!prepares)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__hash_terms_kernel<AXES>, gpunn__blocks(cuda, levels, 1),
                                 GPUNN__THREADS, *h));
    return gpunn__cuda_add_rows(cuda, step, h->rows, h->terms, count, &arena, prepares);
}

template <int AXES>
static gpunn_status gpunn__hash_back(gpunn__cuda *cuda, gpunn_step *step, gpunn__hashing *h)
{
    gpunn_value *table = &step->grad_in[1];
    unsigned     blocks = gpunn__blocks(cuda, h->points * h->grid.levels, 1);
    if (h->dx)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__hash_dx_kernel<AXES>, gpunn__blocks(cuda, h->points, 1),
                                 GPUNN__THREADS, *h));
    if (table->data == NULL) return GPUNN_OK;
    if (step->attr->sparse) return gpunn__hash_sparse_back<AXES>(cuda, step, h, false);
    GPUNN__TRY(
        GPUNN__LAUNCH(cuda, gpunn__exact_clear_kernel, (unsigned)h->exact.blocks, GPUNN__THREADS, h->exact));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__hash_back_kernel<AXES>, blocks, GPUNN__THREADS, *h));
    return GPUNN__LAUNCH(cuda, gpunn__exact_finish_kernel, gpunn__blocks(cuda, h->exact.count, 4),
                         GPUNN__THREADS, h->exact, table->data, table->dtype, step->accumulate[1]);
}

template <int AXES> static gpunn_status gpunn__hash_forward(gpunn__cuda *cuda, const gpunn__hashing *h)
{
    return GPUNN__LAUNCH(cuda, gpunn__hash_kernel<AXES>, gpunn__blocks(cuda, h->points * h->grid.levels, 1),
                         GPUNN__THREADS, *h);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_hash_grid_encoding(gpunn__cuda *cuda, gpunn_step *step,
                                                            gpunn__action action)
{
    const gpunn_value *x = &step->in[0], *weight = &step->in[1];
    int                axes = (int)x->dim[x->rank - 1];
    gpunn__hashing     h;
    memset(&h, 0, sizeof h);
    (void)gpunn__hash_grid_of(step->attr, axes, (int)weight->dim[1], &h.grid);
    h.points = x->count / axes;
    if (action == GPUNN__PREPARE) {
        if (!step->backward || step->grad_in[1].data == NULL) return GPUNN_OK;
        if (step->attr->sparse)
            return axes == 3 ? gpunn__hash_sparse_back<3>(cuda, step, &h, true)
                             : gpunn__hash_sparse_back<2>(cuda, step, &h, true);
        step->workspace_bytes = gpunn__exact_bytes(cuda, weight->count);
        return GPUNN_OK;
    }
    h.x = x->data;
    h.x_dtype = x->dtype;
    h.table = (const float *)weight->data;
    if (action == GPUNN__FORWARD) {
        h.y = (float *)step->out.data;
        return axes == 3 ? gpunn__hash_forward<3>(cuda, &h) : gpunn__hash_forward<2>(cuda, &h);
    }
    h.dy = (const float *)step->grad_out.data;
    h.dx = step->grad_in[0].data;
    h.add_x = step->accumulate[0];
    if (!step->attr->sparse) h.exact = gpunn__exact_of(cuda, step, weight->count, h.points << axes);
    return axes == 3 ? gpunn__hash_back<3>(cuda, step, &h) : gpunn__hash_back<2>(cuda, step, &h);
}

/* ---- affine_grid: grid[n][z][y][x][k] = theta[n][k] . (x, y, z, 1) -------------------------------------- *
 * In the backward pass each block sums a part of a
 * sample's points. A second launch adds up the parts in order. */

typedef struct gpunn__affine_points {
    int         axes, size[3];         /* size: along x, y and z; 1 if there is no z */
    int64_t     samples, points, each; /* points: per sample; each: per part */
    int         parts;
    bool        align_corners, accumulate;
    const void *theta, *dgrid;
    void       *grid, *dtheta;
    gpunn_dtype theta_dtype, grid_dtype;
    float      *sums; /* [samples][parts][3][4] */
} gpunn__affine_points;

/* Computes (x, y, z, 1) of point i of its sample. */
__device__ __forceinline__ void gpunn__affine_at(const gpunn__affine_points &a, int64_t i, float at[4])
{
    int64_t row = i / a.size[0], slice = row / a.size[1];
    at[0] = gpunn__affine_coordinate((int)(i - row * a.size[0]), a.size[0], a.align_corners);
    at[1] = gpunn__affine_coordinate((int)(row - slice * a.size[1]), a.size[1], a.align_corners);
    at[2] = gpunn__affine_coordinate((int)slice, a.size[2], a.align_corners);
    at[3] = 1;
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__affine_kernel(const gpunn__affine_points a)
{
    GPUNN__FOLLOW();
    int64_t point = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; point < a.samples * a.points; point += step) {
        int64_t sample = point / a.points, row = sample * a.axes * (a.axes + 1);
        float   at[4];
        gpunn__affine_at(a, point - sample * a.points, at);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            if (k >= a.axes) continue;
            float sum = gpunn__load(a.theta, a.theta_dtype, row + k * (a.axes + 1) + a.axes);
#pragma unroll
            for (int j = 0; j < 3; j++)
                if (j < a.axes)
                    sum += gpunn__load(a.theta, a.theta_dtype, row + k * (a.axes + 1) + j) * at[j];
            gpunn__store(a.grid, a.grid_dtype, point * a.axes + k, sum);
        }
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__affine_back_kernel(const gpunn__affine_points a)
{
    GPUNN__FOLLOW();
    for (int64_t part = blockIdx.x; part < a.samples * a.parts; part += gridDim.x) {
        int64_t sample = part / a.parts, first = (part - sample * a.parts) * a.each;
        int64_t end = first + a.each < a.points ? first + a.each : a.points;
        float   sum[3][4] = {{0}};
        for (int64_t i = first + threadIdx.x; i < end; i += blockDim.x) {
            float at[4];
            gpunn__affine_at(a, i, at);
#pragma unroll
            for (int k = 0; k < 3; k++) {
                float g = k < a.axes
                              ? gpunn__load(a.dgrid, a.grid_dtype, (sample * a.points + i) * a.axes + k)
                              : 0;
#pragma unroll
                for (int j = 0; j < 4; j++) sum[k][j] += g * at[j];
            }
        }
#pragma unroll
        for (int i = 0; i < 12; i++) {
            float whole = gpunn__block_reduce(sum[i / 4][i % 4], gpunn__add());
            if (threadIdx.x == 0) a.sums[part * 12 + i] = whole;
        }
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__affine_finish_kernel(const gpunn__affine_points a)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    int     columns = a.axes + 1;
    for (; i < a.samples * a.axes * columns; i += step) {
        int64_t sample = i / (a.axes * columns);
        int     at = (int)(i - sample * a.axes * columns), k = at / columns, j = at - k * columns;
        double  sum = 0;
        for (int part = 0; part < a.parts; part++)
            sum += a.sums[(sample * a.parts + part) * 12 + k * 4 + (j == a.axes ? 3 : j)];
        gpunn__store(a.dtheta, a.theta_dtype, i,
                     a.accumulate ? gpunn__load(a.dtheta, a.theta_dtype, i) + (float)sum : (float)sum);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_affine_grid(gpunn__cuda *cuda, gpunn_step *step,
                                                     gpunn__action action)
{
    const gpunn_value   *theta = &step->in[0], *grid = step->backward ? &step->grad_out : &step->out;
    gpunn__affine_points a;
    memset(&a, 0, sizeof a);
    a.axes = grid->rank - 2;
    a.samples = grid->dim[0];
    a.points = grid->count / (a.samples * a.axes);
    int64_t parts = a.points / 4096 + 1, most = (int64_t)cuda->multiprocessors * 4;
    a.parts = (int)(parts < most ? parts : most);
    a.each = (a.points + a.parts - 1) / a.parts;
    if (action == GPUNN__PREPARE) {
        for (int i = 1; i <= a.axes; i++)
            if (grid->dim[i] > INT32_MAX)
                return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                        "a size is larger than 2^31 - 1; use smaller sizes");
        if (step->backward) step->workspace_bytes = (size_t)(a.samples * a.parts * 12) * sizeof *a.sums;
        return GPUNN_OK;
    }
    for (int i = 0; i < 3; i++) a.size[i] = i < a.axes ? (int)grid->dim[a.axes - i] : 1;
    a.align_corners = step->attr->align_corners;
    a.theta_dtype = theta->dtype;
    a.grid_dtype = grid->dtype;
    if (action == GPUNN__FORWARD) {
        a.theta = theta->data;
        a.grid = grid->data;
        return GPUNN__LAUNCH(cuda, gpunn__affine_kernel, gpunn__blocks(cuda, a.samples * a.points, 1),
                             GPUNN__THREADS, a);
    }
    a.dgrid = grid->data;
    a.dtheta = step->grad_in[0].data;
    a.accumulate = step->accumulate[0];
    a.sums = (float *)step->workspace;
    int64_t blocks = a.samples * a.parts, limit = (int64_t)cuda->multiprocessors * 16;
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__affine_back_kernel, (unsigned)(blocks < limit ? blocks : limit),
                             GPUNN__THREADS, a));
    return GPUNN__LAUNCH(cuda, gpunn__affine_finish_kernel, gpunn__blocks(cuda, theta->count, 1),
                         GPUNN__THREADS, a);
}

/* ---- interpolate, as in gpunn.h's >>cpu/sampling: a thread per output; backward a thread or block per cell
 * -- */

typedef struct gpunn__resize_axis {
    int   in, out;
    float ratio;
    int   taps; /* cells that contribute to an output: nearest 1, linear 2, cubic 4 */
} gpunn__resize_axis;

typedef struct gpunn__resize {
    int64_t            cells, results;
    gpunn__resize_axis z, y, x;
    int                mode;
    bool               align_corners, accumulate;
    const void        *from; /* x, or the gradient of y */
    void              *to;   /* y, or the gradient of x */
    gpunn_dtype        from_dtype, to_dtype;
} gpunn__resize;

/* The cell at or before the position of output o. In cubic mode it is -1 before the first cell. *share
 * receives the distance of the output from it. */
__device__ __forceinline__ int gpunn__resize_first(const gpunn__resize &r, const gpunn__resize_axis &a, int o,
                                                   float *share)
{
    bool  centre = r.mode != GPUNN_INTERPOLATE_NEAREST && !r.align_corners;
    float at = a.ratio * ((float)o + (centre ? 0.5f : 0.0f));
    if (r.mode == GPUNN_INTERPOLATE_LINEAR && centre) at = fmaxf(fmaf(a.ratio, (float)o + 0.5f, -0.5f), 0.0f);
    if (r.mode == GPUNN_INTERPOLATE_LINEAR && a.in == a.out) at = (float)o;
    if (r.mode == GPUNN_INTERPOLATE_CUBIC && centre) at = fmaf(a.ratio, (float)o + 0.5f, -0.5f);
    int first = at < (float)(a.in - 1) ? (int)floorf(at) : a.in - 1;
    *share = fminf(at - (float)first, 1.0f);
    return first;
}

/* The cell of a tap, clamped to the ends of the axis. The next function gives its weight. */
__device__ __forceinline__ int gpunn__resize_cell(const gpunn__resize_axis &a, int first, int tap)
{
    return max(0, min(first - (a.taps - 1) / 2 + tap, a.in - 1));
}

__device__ __forceinline__ float gpunn__resize_tap(const gpunn__resize_axis &a, float share, int tap)
{
    if (a.taps == 4) return gpunn__cubic(share + 1 - (float)tap);
    if (a.taps == 1) return 1;
    return tap ? share : 1 - share;
}

/* The first output whose first cell is i or later. */
__device__ __forceinline__ int gpunn__resize_begin(const gpunn__resize &r, const gpunn__resize_axis &a, int i)
{
    if (i < 0 || (i == 0 && a.taps < 4)) return 0;
    float shift = r.mode == GPUNN_INTERPOLATE_LINEAR || r.mode == GPUNN_INTERPOLATE_CUBIC ? 0.5f : 0.0f,
          share;
    float guess = r.mode == GPUNN_INTERPOLATE_NEAREST || r.align_corners
                      ? (float)i / a.ratio
                      : ((float)i + shift) / a.ratio - 0.5f;
    int   o = guess < (float)a.out ? max((int)guess, 0) : a.out; /* infinite if the ratio is 0 */
    while (o > 0 && gpunn__resize_first(r, a, o - 1, &share) >= i) o--;
    while (o < a.out && gpunn__resize_first(r, a, o, &share) < i) o++;
    return o;
}

/* The number of outputs to which cell i contributes, from *begin on. */
__device__ __forceinline__ int gpunn__resize_seen(const gpunn__resize &r, const gpunn__resize_axis &a, int i,
                                                  int *begin)
{
    *begin = gpunn__resize_begin(r, a, i - a.taps / 2);
    return gpunn__resize_begin(r, a, min(i + 1 + a.taps / 4, a.in)) - *begin;
}

/* The weight of cell i in output o, to which it contributes. */
__device__ __forceinline__ float gpunn__resize_weight(const gpunn__resize &r, const gpunn__resize_axis &a,
                                                      int o, int i)
{
    float share, sum = 0;
    int   first = gpunn__resize_first(r, a, o, &share);
    if (a.taps < 4 && first < i) return share;
    if (a.taps < 4) return i == a.in - 1 || a.taps == 1 ? 1 : 1 - share;
    for (int tap = 0; tap < 4; tap++)
        sum += gpunn__resize_cell(a, first, tap) == i ? gpunn__resize_tap(a, share, tap) : 0;
    return sum;
}

static __global__ void __launch_bounds__(GPUNN__THREADS, 4) gpunn__resize_kernel(const gpunn__resize r)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    int     size = r.z.out * r.y.out * r.x.out;
    for (; i < r.results; i += step) {
        int64_t volume = i / size;
        int     index = (int)(i - volume * size), line = index / r.x.out;
        int     ox = index - line * r.x.out, oz = line / r.y.out, oy = line - oz * r.y.out;
        float   share_z, share_y, share_x, sum = 0;
        int     z = gpunn__resize_first(r, r.z, oz, &share_z), y = gpunn__resize_first(r, r.y, oy, &share_y);
        int     x = gpunn__resize_first(r, r.x, ox, &share_x);
        for (int k = 0; k < r.z.taps; k++)
            for (int j = 0; j < r.y.taps; j++) {
                int64_t plane = volume * r.z.in + gpunn__resize_cell(r.z, z, k);
                int64_t row = (plane * r.y.in + gpunn__resize_cell(r.y, y, j)) * r.x.in;
                float   v = 0;
                for (int tap = 0; tap < r.x.taps; tap++) {
                    float cell = gpunn__load(r.from, r.from_dtype, row + gpunn__resize_cell(r.x, x, tap));
                    v += gpunn__resize_tap(r.x, share_x, tap) * cell;
                }
                sum += v * gpunn__resize_tap(r.y, share_y, j) * gpunn__resize_tap(r.z, share_z, k);
            }
        gpunn__store(r.to, r.to_dtype, i, sum);
    }
}

/* block: a whole block computes one cell, to which many outputs contribute. Otherwise a thread does. */
template <bool block>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__resize_back_kernel(const gpunn__resize r)
{
    GPUNN__FOLLOW();
    int64_t i = block ? blockIdx.x : blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int64_t step = block ? gridDim.x : (int64_t)gridDim.x * blockDim.x;
    int     size = r.z.in * r.y.in * r.x.in;
    for (; i < r.cells; i += step) {
        int64_t volume = i / size;
        int     index = (int)(i - volume * size), line = index / r.x.in;
        int     x = index - line * r.x.in, z = line / r.y.in, y = line - z * r.y.in;
        int     oz, oy, ox, deep = gpunn__resize_seen(r, r.z, z, &oz);
        int     high = gpunn__resize_seen(r, r.y, y, &oy), wide = gpunn__resize_seen(r, r.x, x, &ox);
        float   sum = 0;
        for (int at = block ? (int)threadIdx.x : 0; at < deep * high * wide;
             at += block ? (int)blockDim.x : 1) {
            int   row = at / wide, column = ox + at - row * wide, slice = row / high;
            float weight = gpunn__resize_weight(r, r.z, oz + slice, z) *
                           gpunn__resize_weight(r, r.x, column, x);
            int64_t from = (volume * r.z.out + oz + slice) * r.y.out + oy + row - slice * high;
            weight *= gpunn__resize_weight(r, r.y, oy + row - slice * high, y);
            sum += weight * gpunn__load(r.from, r.from_dtype, from * r.x.out + column);
        }
        if (block) {
            sum = gpunn__block_reduce(sum, gpunn__add());
            if (threadIdx.x > 0) continue;
        }
        gpunn__store(r.to, r.to_dtype, i, r.accumulate ? gpunn__load(r.to, r.to_dtype, i) + sum : sum);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_interpolate(gpunn__cuda *cuda, gpunn_step *step,
                                                     gpunn__action action)
{
    const gpunn_value  *x = &step->in[0], *y = step->backward ? &step->grad_out : &step->out;
    const int64_t       most = (int64_t)1 << 30, volumes = x->dim[0] * x->dim[1];
    gpunn__resize       r;
    gpunn__resize_axis *axes[3] = {&r.z, &r.y, &r.x};
    int                 missing = 5 - x->rank;
    memset(&r, 0, sizeof r);
    if (action == GPUNN__PREPARE) {
        if (x->count / volumes > most || y->count / volumes > most)
            return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                    "a channel has more than 2^30 values; use smaller sizes");
        return GPUNN_OK;
    }
    r.cells = x->count, r.results = y->count;
    r.mode = step->attr->mode;
    r.align_corners = step->attr->align_corners;
    for (int i = 0; i < 3; i++) {
        axes[i]->in = i < missing ? 1 : (int)x->dim[2 + i - missing];
        axes[i]->out = i < missing ? 1 : (int)y->dim[2 + i - missing];
        axes[i]->ratio = i < missing ? 1 : step->attr->ratio[i - missing];
        axes[i]->taps = i < missing ? 1 : gpunn__resize_taps(r.mode, axes[i]->in, axes[i]->out);
    }
    const gpunn_value *from = action == GPUNN__FORWARD ? x : y,
                      *to = action == GPUNN__FORWARD ? y : &step->grad_in[0];
    r.from = from->data, r.from_dtype = from->dtype;
    r.to = to->data, r.to_dtype = to->dtype;
    if (action == GPUNN__FORWARD)
        return GPUNN__LAUNCH(cuda, gpunn__resize_kernel, gpunn__blocks(cuda, r.results, 1), GPUNN__THREADS,
                             r);
    if (r.to == NULL) return GPUNN_OK;
    r.accumulate = step->accumulate[0];
    if (r.results / r.cells < 64)
        return GPUNN__LAUNCH(cuda, gpunn__resize_back_kernel<false>, gpunn__blocks(cuda, r.cells, 1),
                             GPUNN__THREADS, r);
    int64_t blocks = (int64_t)cuda->multiprocessors * 32;
    return GPUNN__LAUNCH(cuda, gpunn__resize_back_kernel<true>,
                         (unsigned)(blocks < r.cells ? blocks : r.cells), GPUNN__THREADS, r);
}

/* ==== >>cuda/norm ======================================================================================= */
/* batch_norm, layer_norm, rms_norm, group_norm and instance_norm. */
/* ---- batch_norm: x[n][channels][inner] ------------------------------------------------------------------ *
 * y = (x - mean) *
 * invstd * weight + bias. In the backward pass let m = n * inner be the values per channel, or infinity with
 * running statistics, and h = x - mean. Then
 *    dbias = sum g, dweight = invstd * sum(g h),
 *    dx = weight * invstd * (g - sum g / m - h * invstd^2 * sum(g h) / m).
 * In training the same passes add a residual to y and apply a relu. g is then the gradient after the relu's
 * derivative, which is also the residual's gradient; the summing pass writes it. The relu's derivative
 * follows from the result or, without a residual, from x.
 * A block works on a tile. A tile is one channel, whose rows of `inner` elements all threads read in packs
 * of eight. If rows are short, it is the channels of `width` columns, and each column's threads read it
 * down the images. A tile consists of items of eight elements, which its threads share. If tiles are few,
 * several blocks share a tile, each with one part of it. Then a first launch leaves the sums of each part in
 * partial, and a second one combines them and applies the result.
 * If a multiple of eight channels is contiguous (channels last, or rows of one element), separate kernels
 * read packs of eight channels. A tile is then `width` packs, and a thread reads one of them in each of its
 * rows. */

enum { GPUNN__NORM_SUM = 1, GPUNN__NORM_APPLY = 2 }; /* bits of phase: which passes a launch does */

/* Blocks that share the registers of a multiprocessor. From sm_100 on, F32 packs take more registers at
 * once. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define GPUNN__NORM_BLOCKS(count) ((count)-1)
#else
#define GPUNN__NORM_BLOCKS(count) (count)
#endif

typedef struct gpunn__norm {
    int64_t n, channels, inner, count;
    int     width, rows; /* the threads of a block: `rows` rows of `width`, a power of 2 */
    int     columns;     /* columns per channel in a block */
    int     packs;       /* most packs that one line may touch */
    int64_t tile;        /* channels per block */
    /* between the elements of an item, or between a thread's packs of channels; 1: packs of a line */
    int64_t     stride;
    int64_t     items;
    int         part_items, parts;
    bool        packs_of_channels;
    int64_t     part_rows; /* rows per part; used with packs of channels */
    int         phase;
    bool        training, relu; /* training: normalize by the batch's moments */
    const void *x, *g;          /* g: backward only */
    const void *more;           /* like g, is added to it; NULL: none */
    /* NULL: none. result, backward only: the relu's result; NULL: no relu, or x determines its derivative */
    const void  *residual, *result;
    void        *y;         /* y, or the gradient of x; NULL: not wanted */
    void        *dresidual; /* NULL: not wanted */
    gpunn_dtype  x_dtype, g_dtype, residual_dtype, result_dtype, y_dtype, dresidual_dtype;
    const float *weight, *bias;
    /* saved: the mean, then 1 / deviation, of all channels */
    float *running_mean, *running_var, *saved;
    float *dweight, *dbias;
    bool   add, add_weight, add_bias, add_residual;
    float  eps, momentum;
    /* [channels][parts] of gpunn__moments; backward: of the sums of g and g h. With packs of channels
     * [parts][channels] of mean and square; backward: of the same sums. */
    void *partial;
    /* [tiles], with packs of channels: the last block of a tile joins its parts into part 0; NULL: it does
     * not */
    unsigned *counters;
} gpunn__norm;

typedef struct gpunn__norm_place { /* where a thread works */
    int64_t channel, start;        /* start: of what it reads in image 0 */
    int     row, part, item, end;  /* its items are item, item + rows, .. < end */
    bool    used, first, leads;    /* first: in the channel's first column; leads: also in the first row */
} gpunn__norm_place;

__device__ __forceinline__ gpunn__norm_place gpunn__norm_start(const gpunn__norm &b)
{
    gpunn__norm_place place;
    unsigned          tile = blockIdx.x / (unsigned)b.parts;
    int               x = (int)threadIdx.x % b.width;
    place.row = (int)threadIdx.x / b.width;
    place.part = (int)(blockIdx.x - tile * (unsigned)b.parts);
    place.channel = tile * b.tile + x / b.columns;
    place.used = x < b.tile * b.columns && place.channel < b.channels;
    place.first = place.used && x % b.columns == 0;
    place.leads = place.first && place.row == 0;
    place.start = place.channel * b.inner + x % b.columns;
    place.item = place.part * b.part_items + place.row;
    place.end = place.used ? (int)min((place.part + 1) * (int64_t)b.part_items, b.items) : 0;
    return place;
}

/* Locates item q: its elements are at, at + stride, .. for the bits set in *mask. */
__device__ __forceinline__ int64_t gpunn__norm_item(const gpunn__norm &b, const gpunn__norm_place &place,
                                                    int q, unsigned *mask)
{
    if (b.stride == 1) {
        int     image = q / b.packs, pack = q - image * b.packs;
        int64_t row = image * b.channels * b.inner + place.start,
                at = (row & ~(int64_t)7) + pack * GPUNN__PACK;
        int begin = (int)max(row - at, (int64_t)0), end = (int)min(row + b.inner - at, (int64_t)GPUNN__PACK);
        *mask = end > begin ? 0xFFu << begin & 0xFFu >> (GPUNN__PACK - end) : 0;
        return at;
    }
    int64_t image = (int64_t)(q - place.row) * GPUNN__PACK + place.row;
    *mask = 0;
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) *mask |= (unsigned)(image + j * b.rows < b.n) << j;
    return image * b.channels * b.inner + place.start;
}

/* Loads an item. Values outside the mask are undefined. PACKS: the mask is full and the elements are
 * contiguous. alone: reads nothing outside the mask, because other blocks may be writing there. */
template <bool PACKS>
__device__ __forceinline__ void gpunn__norm_load(const gpunn__norm &b, const void *data, gpunn_dtype dtype,
                                                 int64_t at, unsigned mask, float v[8], bool alone = false)
{
    if (PACKS || (b.stride == 1 && (alone ? mask == 0xFF : at + GPUNN__PACK <= b.count)))
        gpunn__load8(data, dtype, at, v);
    else {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++)
            v[j] = mask >> j & 1 ? gpunn__load(data, dtype, at + j * b.stride) : 0;
    }
}

/* Stores v, or adds it to the previous values. */
template <bool PACKS>
__device__ __forceinline__ void gpunn__norm_store(const gpunn__norm &b, void *data, gpunn_dtype dtype,
                                                  int64_t at, unsigned mask, bool add, float v[8])
{
    if (add) {
        float old[8];
        gpunn__norm_load<PACKS>(b, data, dtype, at, mask, old, true);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] += old[j];
    }
    if (PACKS || (b.stride == 1 && mask == 0xFF))
        gpunn__store8(data, dtype, at, v);
    else {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++)
            if (mask >> j & 1) gpunn__store(data, dtype, at + j * b.stride, v[j]);
    }
}

/* Both backward passes compute this value bit for bit as the forward pass does. */
__device__ __forceinline__ float gpunn__norm_value(float x, float mean, float scale, float shift)
{
    return fmaf(x - mean, scale, shift);
}

/* Adds the residual to the normalized values v, applies the relu and stores them to y. */
template <bool PACKS>
__device__ __forceinline__ void gpunn__norm_finish(const gpunn__norm &b, int64_t at, unsigned mask,
                                                   float v[8])
{
    if (b.residual) {
        float residual[8];
        gpunn__norm_load<PACKS>(b, b.residual, b.residual_dtype, at, mask, residual);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] += residual[j];
    }
    if (b.relu) {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] = v[j] <= 0 ? 0 : v[j];
    }
    gpunn__norm_store<PACKS>(b, b.y, b.y_dtype, at, mask, false, v);
}

/* Loads g and applies the relu's derivative if it follows from the result. summed: the earlier pass has
 * stored exactly that as the residual's gradient, which is read instead. */
template <bool PACKS>
__device__ __forceinline__ void gpunn__norm_gradient(const gpunn__norm &b, int64_t at, unsigned mask,
                                                     bool summed, float g[8])
{
    if (summed && b.dresidual && !b.add_residual) {
        gpunn__norm_load<PACKS>(b, b.dresidual, b.dresidual_dtype, at, mask, g, true);
        return;
    }
    gpunn__norm_load<PACKS>(b, b.g, b.g_dtype, at, mask, g, true);
    float other[8];
    if (b.more) {
        gpunn__norm_load<PACKS>(b, b.more, b.g_dtype, at, mask, other, true);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) g[j] += other[j];
    }
    if (b.result == NULL) return;
    gpunn__norm_load<PACKS>(b, b.result, b.result_dtype, at, mask, other);
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) g[j] = other[j] <= 0 ? 0 : g[j];
}

/* Stores or adds the residual's gradient. */
template <bool PACKS>
__device__ __forceinline__ void gpunn__norm_hand_on(const gpunn__norm &b, int64_t at, unsigned mask,
                                                    const float g[8])
{
    if (b.dresidual == NULL) return;
    float v[8];
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) v[j] = g[j];
    gpunn__norm_store<PACKS>(b, b.dresidual, b.dresidual_dtype, at, mask, b.add_residual, v);
}

/* The sum over all threads of the same channel, as a tree. Each of these threads gets the result. */
__device__ __forceinline__ float2 gpunn__norm_sum(const gpunn__norm &b, float2 value)
{
    __shared__ float2 part[GPUNN__THREADS];
    int               t = (int)threadIdx.x, column = t % b.width, first = column - column % b.columns;
    part[t] = value;
    for (int half = GPUNN__THREADS / 2; half >= b.width; half /= 2) {
        __syncthreads();
        if (t < half) part[t] = make_float2(part[t].x + part[t + half].x, part[t].y + part[t + half].y);
    }
    __syncthreads();
    value = part[first];
    for (int i = 1; i < b.columns && first + i < b.width; i++) {
        value.x += part[first + i].x;
        value.y += part[first + i].y;
    }
    __syncthreads(); /* part may be reused */
    return value;
}

/* Moments of values minus a number near them, which keeps rounding errors small. */
typedef struct gpunn__moments {
    /* mean and sum of (value - mean)^2; backward: sums of g and of g h */
    float count, mean_or_sum, squares_or_products;
} gpunn__moments;

__device__ __forceinline__ void gpunn__moments_join(gpunn__moments *a, float count, float mean, float square)
{
    float delta = mean - a->mean_or_sum, total = a->count + count, share = __fdividef(count, total);
    a->mean_or_sum += delta * share;
    a->squares_or_products += square + delta * delta * a->count * share;
    a->count = total;
}

/* A number near a channel's values: the median of three of them, so that one outlier does no harm. */
__device__ __forceinline__ float gpunn__norm_near(const gpunn__norm &b, int64_t channel)
{
    float first = gpunn__load(b.x, b.x_dtype, channel * b.inner);
    float middle = gpunn__load(b.x, b.x_dtype, (b.n / 2 * b.channels + channel) * b.inner + b.inner / 2);
    float last = gpunn__load(b.x, b.x_dtype, ((b.n - 1) * b.channels + channel + 1) * b.inner - 1);
    return fmaxf(fminf(first, middle), fminf(fmaxf(first, middle), last));
}

/* The same for eight adjacent channels with rows of one element. */
__device__ __forceinline__ void gpunn__norm_near_pack(const gpunn__norm &b, int64_t channel, float v[8])
{
    float middle[8], last[8];
    gpunn__load8(b.x, b.x_dtype, channel, v);
    gpunn__load8(b.x, b.x_dtype, b.n / 2 * b.channels + channel, middle);
    gpunn__load8(b.x, b.x_dtype, (b.n - 1) * b.channels + channel, last);
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++)
        v[j] = fmaxf(fminf(v[j], middle[j]), fminf(fmaxf(v[j], middle[j]), last[j]));
}

/* Updates the running statistics and saves the mean and 1 / deviation. center is the channel's mean minus
 * near_by. */
__device__ __forceinline__ void gpunn__norm_note(const gpunn__norm &b, int64_t c, double values,
                                                 float near_by, float center, float square)
{
    double share = (double)b.momentum, unbiased = (double)square / (values - 1);
    if (b.running_mean) {
        b.running_mean[c] = (float)((1 - share) * (double)b.running_mean[c] +
                                    share * ((double)near_by + (double)center));
        b.running_var[c] = (float)((1 - share) * (double)b.running_var[c] + share * unbiased);
    }
    b.saved[c] = near_by + center;
    b.saved[b.channels + c] = 1 / sqrtf(square / (float)values + b.eps);
}

/* Writes or adds dweight and dbias. sum: of g and g h. */
__device__ __forceinline__ void gpunn__norm_note_gradients(const gpunn__norm &b, int64_t c, float2 sum)
{
    if (b.dweight) b.dweight[c] = (b.add_weight ? b.dweight[c] : 0) + b.saved[b.channels + c] * sum.y;
    if (b.dbias) b.dbias[c] = (b.add_bias ? b.dbias[c] : 0) + sum.x;
}

/* The moments of the thread's items. */
__device__ __forceinline__ gpunn__moments gpunn__norm_moments(const gpunn__norm       &b,
                                                              const gpunn__norm_place &place, float near_by)
{
    gpunn__moments all = {0, 0, 0};
    for (int q = place.item; q < place.end; q += b.rows) {
        float    v[8], sum = 0, square = 0;
        unsigned mask;
        int64_t  at = gpunn__norm_item(b, place, q, &mask);
        if (mask == 0) continue;
        gpunn__norm_load<false>(b, b.x, b.x_dtype, at, mask, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            v[j] = mask >> j & 1 ? v[j] - near_by : 0;
            sum += v[j];
        }
        float count = (float)__popc(mask), mean = __fdividef(sum, count);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++)
            if (mask >> j & 1) square += (v[j] - mean) * (v[j] - mean);
        gpunn__moments_join(&all, count, mean, square);
    }
    return all;
}

/* The forward pass for rows and columns. */
static __global__ void __launch_bounds__(GPUNN__THREADS, GPUNN__NORM_BLOCKS(4))
    gpunn__norm_kernel(const gpunn__norm b)
{
    GPUNN__FOLLOW();
    gpunn__norm_place place = gpunn__norm_start(b);
    float             mean = 0, variance = 0;
    if (b.training) {
        float           near_by = place.used ? gpunn__norm_near(b, place.channel) : 0;
        gpunn__moments  own = {0, 0, 0};
        gpunn__moments *partial = gpunn__beyond((gpunn__moments *)b.partial, place.channel * b.parts);
        if (b.phase & GPUNN__NORM_SUM)
            own = gpunn__norm_moments(b, place, near_by);
        else if (place.first)
            for (int i = place.row; i < b.parts; i += b.rows)
                gpunn__moments_join(&own, partial[i].count, partial[i].mean_or_sum,
                                    partial[i].squares_or_products);
        float2 sum = gpunn__norm_sum(b, make_float2(own.count, own.count * own.mean_or_sum));
        float  center = sum.y / sum.x, delta = own.mean_or_sum - center;
        float  square =
            gpunn__norm_sum(b, make_float2(own.squares_or_products + own.count * delta * delta, 0)).x;
        if (!(b.phase & GPUNN__NORM_APPLY)) {
            if (place.leads) partial[place.part] = {sum.x, center, square};
            return;
        }
        mean = near_by + center;
        variance = square / sum.x;
        if (place.leads && place.part == 0)
            gpunn__norm_note(b, place.channel, (double)b.n * (double)b.inner, near_by, center, square);
    } else if (place.used) {
        mean = b.running_mean[place.channel];
        variance = b.running_var[place.channel];
        if (b.saved && place.leads && place.part == 0) {
            b.saved[place.channel] = mean;
            b.saved[b.channels + place.channel] = 1 / sqrtf(variance + b.eps);
        }
    }
    float scale = 1 / sqrtf(variance + b.eps), shift = 0;
    if (place.used && b.weight) scale *= b.weight[place.channel];
    if (place.used && b.bias) shift = b.bias[place.channel];
    for (int q = place.item; q < place.end; q += b.rows) {
        float    v[8];
        unsigned mask;
        int64_t  at = gpunn__norm_item(b, place, q, &mask);
        if (mask == 0) continue;
        gpunn__norm_load<false>(b, b.x, b.x_dtype, at, mask, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] = gpunn__norm_value(v[j], mean, scale, shift);
        gpunn__norm_finish<false>(b, at, mask, v);
    }
}

/* The backward pass for rows and columns. */
static __global__ void __launch_bounds__(GPUNN__THREADS, 4) gpunn__norm_back_kernel(const gpunn__norm b)
{
    GPUNN__FOLLOW();
    gpunn__norm_place place = gpunn__norm_start(b);
    float2           *partial = gpunn__beyond((float2 *)b.partial, place.channel * b.parts), sum = {0, 0};
    float             mean = place.used ? b.saved[place.channel] : 0;
    float             invstd = place.used ? b.saved[b.channels + place.channel] : 0;
    float             scale = place.used && b.weight ? invstd * b.weight[place.channel] : invstd;
    float             bias = place.used && b.bias ? b.bias[place.channel] : 0;
    bool              by_x = b.relu && b.result == NULL;
    if (b.phase & GPUNN__NORM_SUM) {
        for (int q = place.item; q < place.end; q += b.rows) {
            float    x[8], g[8];
            float2   pack = {0, 0};
            unsigned mask;
            int64_t  at = gpunn__norm_item(b, place, q, &mask);
            if (mask == 0) continue;
            gpunn__norm_load<false>(b, b.x, b.x_dtype, at, mask, x);
            gpunn__norm_gradient<false>(b, at, mask, false, g);
#pragma unroll
            for (int j = 0; j < GPUNN__PACK; j++) {
                if (by_x && gpunn__norm_value(x[j], mean, scale, bias) <= 0) g[j] = 0;
                if (mask >> j & 1) {
                    pack.x += g[j];
                    pack.y += g[j] * (x[j] - mean);
                }
            }
            sum.x += pack.x;
            sum.y += pack.y;
            gpunn__norm_hand_on<false>(b, at, mask, g);
        }
    } else if (place.first)
        for (int i = place.row; i < b.parts; i += b.rows) {
            sum.x += partial[i].x;
            sum.y += partial[i].y;
        }
    sum = gpunn__norm_sum(b, sum);
    if (!(b.phase & GPUNN__NORM_APPLY)) {
        if (place.leads) partial[place.part] = sum;
        return;
    }
    if (place.leads && place.part == 0) gpunn__norm_note_gradients(b, place.channel, sum);
    if (b.y == NULL) return;
    float values = b.training ? (float)b.n * (float)b.inner : INFINITY, shift = sum.x / values,
          proj_scale = invstd * invstd * sum.y / values;
    for (int q = place.item; q < place.end; q += b.rows) {
        float    x[8], g[8];
        unsigned mask;
        int64_t  at = gpunn__norm_item(b, place, q, &mask);
        if (mask == 0) continue;
        gpunn__norm_load<false>(b, b.x, b.x_dtype, at, mask, x);
        gpunn__norm_gradient<false>(b, at, mask, true, g);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            if (by_x && gpunn__norm_value(x[j], mean, scale, bias) <= 0) g[j] = 0;
            g[j] = (g[j] - shift - (x[j] - mean) * proj_scale) * scale;
        }
        gpunn__norm_store<false>(b, b.y, b.y_dtype, at, mask, b.add, g);
    }
}

/* ---- packs of channels ---- */

typedef struct gpunn__norm_pack { /* where a thread works */
    int     column, row, part, channel;
    int64_t first, end; /* its packs are at first, first + stride, .. < end */
    bool    used;
} gpunn__norm_pack;

__device__ __forceinline__ gpunn__norm_pack gpunn__norm_pack_start(const gpunn__norm &b)
{
    gpunn__norm_pack place;
    unsigned         tile = blockIdx.x / (unsigned)b.parts;
    place.column = (int)threadIdx.x % b.width;
    place.row = (int)threadIdx.x / b.width;
    place.part = (int)(blockIdx.x - tile * (unsigned)b.parts);
    place.channel = (int)(tile * b.tile) + place.column * GPUNN__PACK;
    place.used = place.channel < b.channels;
    place.first = (place.part * b.part_rows + place.row) * b.channels + place.channel;
    place.end = place.used ? min((place.part + 1) * b.part_rows, b.n) * b.channels : 0;
    return place;
}

/* One number for each of the pack's eight channels; `without` if data is NULL. */
__device__ __forceinline__ void gpunn__norm_channels(const float *data, const gpunn__norm_pack &place,
                                                     float without, float v[8])
{
    if (data && place.used) {
        gpunn__load8(data, GPUNN_F32, place.channel, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) v[j] = without;
}

/* One pair per thread. */
typedef float2 gpunn__norm_pairs[GPUNN__THREADS];

/* Combines the values of all threads of a column in a tree. Returns shared memory [channel of the
 * pack][column]. The values are two sums or, with MOMENTS, the mean and square of `count` values. */
template <bool MOMENTS>
__device__ __forceinline__ const gpunn__norm_pairs *gpunn__norm_join(const gpunn__norm &b, float count,
                                                                     const float2 v[8])
{
    __shared__ gpunn__norm_pairs part[GPUNN__PACK];
    __shared__ float             counts[MOMENTS ? GPUNN__THREADS : 1];
    int                          t = (int)threadIdx.x;
    if (MOMENTS) counts[t] = count;
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) part[j][t] = v[j];
    for (int half = GPUNN__THREADS / 2; half >= b.width; half /= 2) {
        __syncthreads();
        if (t >= half || (MOMENTS && counts[t + half] == 0)) continue;
        float share = MOMENTS ? __fdividef(counts[t + half], counts[t] + counts[t + half]) : 0;
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            float2 own = part[j][t], other = part[j][t + half];
            float  delta = other.x - own.x;
            part[j][t] = MOMENTS ? make_float2(own.x + delta * share,
                                               own.y + other.y + delta * delta * counts[t] * share)
                                 : make_float2(own.x + other.x, own.y + other.y);
        }
        if (MOMENTS) counts[t] += counts[t + half];
    }
    __syncthreads();
    return part;
}

/* The end of the parts that the thread combines. */
__device__ __forceinline__ int gpunn__norm_parts(const gpunn__norm &b, const gpunn__norm_pack &place)
{
    if (!place.used) return 0;
    return b.counters && !(b.phase & GPUNN__NORM_SUM) ? 1 : b.parts;
}

/* The combined moments of the thread's parts. Returns the number of values. */
__device__ __forceinline__ float gpunn__norm_pack_join(const gpunn__norm &b, const gpunn__norm_pack &place,
                                                       float2 own[8])
{
    const int parts = gpunn__norm_parts(b, place);
    float     count = 0;
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) own[j] = make_float2(0, 0);
#pragma unroll 1
    for (int part = place.row; part < parts; part += b.rows) {
        float rows = (float)(parts == 1 ? b.n : min((part + 1) * b.part_rows, b.n) - part * b.part_rows),
              share = __fdividef(rows, count + rows);
#pragma unroll
        for (int k = 0; k < GPUNN__PACK; k += 4) {
            float pair[8];
            gpunn__load8(b.partial, GPUNN_F32, 2 * (part * b.channels + place.channel + k), pair);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float2 &all = own[k + j];
                float   delta = pair[2 * j] - all.x;
                all = make_float2(all.x + delta * share,
                                  all.y + pair[2 * j + 1] + delta * delta * count * share);
            }
        }
        count += rows;
    }
    return count;
}

/* The sums of the thread's parts, added to sum. */
__device__ __forceinline__ void gpunn__norm_pack_add(const gpunn__norm &b, const gpunn__norm_pack &place,
                                                     float2 sum[8])
{
    const int parts = gpunn__norm_parts(b, place);
#pragma unroll 1
    for (int part = place.row; part < parts; part += b.rows) {
#pragma unroll
        for (int k = 0; k < GPUNN__PACK; k += 4) {
            float pair[8];
            gpunn__load8(b.partial, GPUNN_F32, 2 * (part * b.channels + place.channel + k), pair);
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum[k + j] = make_float2(sum[k + j].x + pair[2 * j], sum[k + j].y + pair[2 * j + 1]);
        }
    }
}

/* Whether this block is to join the parts of its tile, all of which are written. */
__device__ __forceinline__ bool gpunn__norm_joins(const gpunn__norm &b)
{
    return b.counters && gpunn__is_last_block(&b.counters[blockIdx.x / (unsigned)b.parts], (unsigned)b.parts);
}

/* The mean and square of what the thread reads, minus near_by. Returns the number of values. */
__device__ __forceinline__ float gpunn__norm_pack_moments(const gpunn__norm &b, const gpunn__norm_pack &place,
                                                          const float near_by[8], float2 own[8])
{
    float count = 0;
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) own[j] = make_float2(0, 0);
#pragma unroll 2
    for (int64_t at = place.first; at < place.end; at += b.stride) {
        float v[8], share = __fdividef(1, count += 1);
        gpunn__load8(b.x, b.x_dtype, at, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            float value = v[j] - near_by[j], delta = value - own[j].x;
            own[j].x = fmaf(delta, share, own[j].x);
            own[j].y = fmaf(delta, value - own[j].x, own[j].y);
        }
    }
    return count;
}

/* The forward pass for packs of channels. */
static __global__ void __launch_bounds__(GPUNN__THREADS, GPUNN__NORM_BLOCKS(4))
    gpunn__norm_packs_kernel(const gpunn__norm b)
{
    GPUNN__FOLLOW();
    const gpunn__norm_pack place = gpunn__norm_pack_start(b);
    /* the channel whose results this thread writes */
    const int  channel = place.channel - place.column * GPUNN__PACK + (int)threadIdx.x;
    const bool tells = (int)threadIdx.x < b.tile && channel < b.channels;
    float      mean[8], scale[8], shift[8], v[8];
    if (b.training) {
        float2 own[8];
        gpunn__norm_channels(NULL, place, 0, mean);
        if (place.used) gpunn__norm_near_pack(b, place.channel, mean);
        const gpunn__norm_pairs *all;
        for (bool joins = !(b.phase & GPUNN__NORM_SUM);; joins = true) {
            const float count = joins ? gpunn__norm_pack_join(b, place, own)
                                      : gpunn__norm_pack_moments(b, place, mean, own);
            all = gpunn__norm_join<true>(b, count, own);
            if (b.phase & GPUNN__NORM_APPLY) break;
            if (tells)
                ((float2 *)b.partial)[(joins ? 0 : place.part) * b.channels + channel] =
                    all[threadIdx.x % GPUNN__PACK][threadIdx.x / GPUNN__PACK];
            if (joins || !gpunn__norm_joins(b)) return;
        }
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            mean[j] += all[j][place.column].x;
            scale[j] = all[j][place.column].y / (float)b.n;
        }
        if (tells && place.part == 0) {
            float2 moments = all[threadIdx.x % GPUNN__PACK][threadIdx.x / GPUNN__PACK];
            gpunn__norm_note(b, channel, (double)b.n, gpunn__norm_near(b, channel), moments.x, moments.y);
        }
    } else {
        gpunn__norm_channels(b.running_mean, place, 0, mean);
        gpunn__norm_channels(b.running_var, place, 1, scale);
        if (b.saved && tells && place.part == 0) {
            b.saved[channel] = b.running_mean[channel];
            b.saved[b.channels + channel] = 1 / sqrtf(b.running_var[channel] + b.eps);
        }
    }
    gpunn__norm_channels(b.weight, place, 1, v);
    gpunn__norm_channels(b.bias, place, 0, shift);
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) scale[j] = 1 / sqrtf(scale[j] + b.eps) * v[j];
    for (int64_t at = place.first; at < place.end; at += b.stride) {
        gpunn__load8(b.x, b.x_dtype, at, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] = gpunn__norm_value(v[j], mean[j], scale[j], shift[j]);
        gpunn__norm_finish<true>(b, at, 0xFF, v);
    }
}

/* BY_X: x determines the relu's derivative; there is no residual. */
template <bool BY_X>
static __global__ void __launch_bounds__(GPUNN__THREADS, GPUNN__NORM_BLOCKS(3))
    gpunn__norm_packs_back_kernel(const gpunn__norm b)
{
    GPUNN__FOLLOW();
    const gpunn__norm_pack place = gpunn__norm_pack_start(b);
    /* the channel whose results this thread writes */
    const int  channel = place.channel - place.column * GPUNN__PACK + (int)threadIdx.x;
    const bool tells = (int)threadIdx.x < b.tile && channel < b.channels;
    float      mean[8], scale[8], bias[8], x[8], g[8];
    float2     sum[8];
    gpunn__norm_channels(b.saved, place, 0, mean);
    gpunn__norm_channels(b.saved + b.channels, place, 0, scale);
    gpunn__norm_channels(b.weight, place, 1, x);
    gpunn__norm_channels(b.bias, place, 0, bias);
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) {
        scale[j] *= x[j];
        sum[j] = make_float2(0, 0);
    }
    if (b.phase & GPUNN__NORM_SUM)
        for (int64_t at = place.first; at < place.end; at += b.stride) {
            if (BY_X)
                gpunn__load8(b.g, b.g_dtype, at, g);
            else
                gpunn__norm_gradient<true>(b, at, 0xFF, false, g);
            gpunn__load8(b.x, b.x_dtype, at, x);
#pragma unroll
            for (int j = 0; j < GPUNN__PACK; j++) {
                if (BY_X && gpunn__norm_value(x[j], mean[j], scale[j], bias[j]) <= 0) g[j] = 0;
                sum[j] = make_float2(sum[j].x + g[j], fmaf(g[j], x[j] - mean[j], sum[j].y));
            }
            if (!BY_X) gpunn__norm_hand_on<true>(b, at, 0xFF, g);
        }
    else
        gpunn__norm_pack_add(b, place, sum);
    const gpunn__norm_pairs *all = gpunn__norm_join<false>(b, 0, sum);
    const int                pair = (int)threadIdx.x % GPUNN__PACK, column = (int)threadIdx.x / GPUNN__PACK;
    if (!(b.phase & GPUNN__NORM_APPLY)) {
        float2 *const partial = (float2 *)b.partial + channel;
        if (tells) partial[place.part * b.channels] = all[pair][column];
        if (!gpunn__norm_joins(b)) return;
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) sum[j] = make_float2(0, 0);
        gpunn__norm_pack_add(b, place, sum);
        all = gpunn__norm_join<false>(b, 0, sum);
        if (tells) *partial = all[pair][column];
        return;
    }
    if (tells && place.part == 0) gpunn__norm_note_gradients(b, channel, all[pair][column]);
    if (b.y == NULL) return;
    const float values = b.training ? (float)b.n : INFINITY;
    float       shift[8], proj_scale[8];
    gpunn__norm_channels(b.saved + b.channels, place, 0, x);
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) {
        shift[j] = all[j][place.column].x / values;
        proj_scale[j] = x[j] * x[j] * all[j][place.column].y / values;
    }
    for (int64_t at = place.first; at < place.end; at += b.stride) {
        if (BY_X)
            gpunn__load8(b.g, b.g_dtype, at, g);
        else
            gpunn__norm_gradient<true>(b, at, 0xFF, true, g);
        gpunn__load8(b.x, b.x_dtype, at, x);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            if (BY_X && gpunn__norm_value(x[j], mean[j], scale[j], bias[j]) <= 0) g[j] = 0;
            g[j] = (g[j] - shift[j] - (x[j] - mean[j]) * proj_scale[j]) * scale[j];
        }
        gpunn__norm_store<true>(b, b.y, b.y_dtype, at, 0xFF, b.add, g);
    }
}

/* ---- sums over all ranks ---- */

/* The index of part `part` of a channel in partial. */
__device__ __forceinline__ int64_t gpunn__norm_slot(const gpunn__norm &b, int64_t channel, int part)
{
    return b.packs_of_channels ? part * b.channels + channel : channel * b.parts + part;
}

/* Combines a channel's parts: this rank's moments, or the count and the sums of its gradients. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__norm_own_kernel(const gpunn__norm b, gpunn__moments *own)
{
    GPUNN__FOLLOW();
    const int64_t  c = (int64_t)blockIdx.x * GPUNN__THREADS + threadIdx.x;
    gpunn__moments all = {0, 0, 0};
    if (c >= b.channels) return;
    for (int part = 0; part < b.parts; part++) {
        const int64_t slot = gpunn__norm_slot(b, c, part);
        if (b.g || b.packs_of_channels) {
            const float2 pair = ((const float2 *)b.partial)[slot];
            const float  rows = (float)(min((part + 1) * b.part_rows, b.n) - part * b.part_rows);
            if (b.g)
                all.mean_or_sum += pair.x, all.squares_or_products += pair.y;
            else
                gpunn__moments_join(&all, rows, pair.x, pair.y);
        } else {
            const gpunn__moments other = ((const gpunn__moments *)b.partial)[slot];
            gpunn__moments_join(&all, other.count, other.mean_or_sum, other.squares_or_products);
        }
    }
    if (b.g) {
        gpunn__norm_note_gradients(b, c, make_float2(all.mean_or_sum, all.squares_or_products));
        all.count = (float)b.n * (float)b.inner;
    } else
        all.mean_or_sum += gpunn__norm_near(b, c);
    own[c] = all;
}

/* Combines the moments of all ranks, in rank order. Forward: writes mean and variance. Backward: writes to
 * partial, scaled to this rank's number of values. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__norm_ranks_kernel(const gpunn__norm b, const gpunn__moments *ranks, int size, float *mean,
                             float *variance)
{
    GPUNN__FOLLOW();
    const int64_t c = (int64_t)blockIdx.x * GPUNN__THREADS + threadIdx.x;
    if (c >= b.channels) return;
    gpunn__moments all = ranks[c];
    for (int rank = 1; rank < size; rank++) {
        const gpunn__moments other = ranks[rank * b.channels + c];
        if (b.g)
            all.count += other.count, all.mean_or_sum += other.mean_or_sum,
                all.squares_or_products += other.squares_or_products;
        else
            gpunn__moments_join(&all, other.count, other.mean_or_sum, other.squares_or_products);
    }
    if (b.g) {
        const float share = (float)b.n * (float)b.inner / all.count;
        for (int part = 0; part < b.parts; part++)
            ((float2 *)b.partial)[gpunn__norm_slot(b, c, part)] = part ? make_float2(0, 0)
                                                                       : make_float2(all.mean_or_sum * share,
                                                                                     all.squares_or_products *
                                                                                         share);
    } else {
        gpunn__norm_note(b, c, (double)all.count, 0, all.mean_or_sum, all.squares_or_products);
        mean[c] = all.mean_or_sum;
        variance[c] = all.squares_or_products / all.count;
    }
}

/* Decides how blocks and threads share the work. It depends only on shape and device. */
static gpunn__norm gpunn__norm_shape(const gpunn__cuda *cuda, const gpunn_value *x, bool backward)
{
    gpunn__norm b;
    memset(&b, 0, sizeof b);
    b.n = x->dim[0];
    b.channels = x->dim[1];
    b.count = x->count;
    b.inner = b.count / (b.n * b.channels);
    if (x->channels_last) b.n *= b.inner, b.inner = 1;
    b.width = b.columns = 1;
    b.tile = b.stride = 1;
    b.packs_of_channels = b.inner == 1 && b.channels % GPUNN__PACK == 0;
    if (b.packs_of_channels) {
        while (b.width < 8 && b.width * GPUNN__PACK < b.channels) b.width *= 2;
        b.tile = b.width * GPUNN__PACK;
        b.stride = GPUNN__THREADS / b.width * b.channels;
    } else if (b.inner < 16) {
        b.columns = (int)b.inner;
        while (b.width < 32 && b.width < b.channels * b.inner) b.width *= 2;
        b.tile = b.width / b.columns;
        b.stride = GPUNN__THREADS / b.width * b.channels * b.inner;
    }
    b.rows = GPUNN__THREADS / b.width;
    b.packs = (int)((b.inner % GPUNN__PACK == 0 ? b.inner : b.inner + 2 * GPUNN__PACK - 2) / GPUNN__PACK);
    const int64_t of_round = b.packs_of_channels || b.stride == 1 ? b.rows : b.rows * GPUNN__PACK,
                  lines = !b.packs_of_channels && b.stride == 1 ? b.n * b.packs : b.n,
                  rounds = (lines + of_round - 1) / of_round;
    b.items = b.stride == 1 ? b.n * b.packs : rounds * b.rows;
    const int blocks = (b.packs_of_channels && backward ? 3 : 4) -
                       (b.packs_of_channels && cuda->architecture >= 100);
    int64_t tiles = (b.channels + b.tile - 1) / b.tile,
            parts = (int64_t)cuda->multiprocessors * blocks / tiles;
    if (parts > rounds / 4) parts = rounds / 4; /* at least four rounds of all threads */
    if (parts < 1) parts = 1;
    b.part_rows = (rounds + parts - 1) / parts * b.rows;
    if (b.packs_of_channels) {
        b.parts = (int)((b.n + b.part_rows - 1) / b.part_rows);
        return b;
    }
    b.part_items = (int)b.part_rows;
    b.parts = (int)((b.items + b.part_items - 1) / b.part_items);
    return b;
}

static gpunn_status gpunn__norm_launch(gpunn__cuda *cuda, const gpunn__norm &b, unsigned blocks)
{
    if (b.g == NULL && b.packs_of_channels)
        return GPUNN__LAUNCH(cuda, gpunn__norm_packs_kernel, blocks, GPUNN__THREADS, b);
    if (b.g == NULL) return GPUNN__LAUNCH(cuda, gpunn__norm_kernel, blocks, GPUNN__THREADS, b);
    if (b.packs_of_channels && b.relu && b.result == NULL)
        return GPUNN__LAUNCH(cuda, (gpunn__norm_packs_back_kernel<true>), blocks, GPUNN__THREADS, b);
    if (b.packs_of_channels)
        return GPUNN__LAUNCH(cuda, (gpunn__norm_packs_back_kernel<false>), blocks, GPUNN__THREADS, b);
    return GPUNN__LAUNCH(cuda, gpunn__norm_back_kernel, blocks, GPUNN__THREADS, b);
}

/* Bytes for `count` moments per channel. */
static size_t gpunn__norm_bytes(const gpunn__norm *b, int count)
{
    return (size_t)b->channels * (size_t)count * sizeof(gpunn__moments);
}

/* Replaces the sums of the parts by those over all ranks, so that b then applies them. In the forward pass, b
 * then normalizes by a given mean and variance. */
static gpunn_status gpunn__norm_combine_ranks(gpunn__cuda *cuda, const gpunn_ranks *ranks, gpunn__norm *b)
{
    const unsigned blocks = (unsigned)((b->channels + GPUNN__THREADS - 1) / GPUNN__THREADS);
    const int64_t  count = (int64_t)(sizeof(gpunn__moments) / sizeof(float)) * b->channels;
    float         *mean = (float *)((char *)b->partial + gpunn__norm_bytes(b, b->parts)),
          *variance = mean + b->channels;
    gpunn__moments *all = (gpunn__moments *)mean + b->channels;
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__norm_own_kernel, blocks, GPUNN__THREADS, *b,
                             all + ranks->rank * b->channels));
    GPUNN__TRY(ranks->joined ? gpunn__ranks_gather(cuda, ranks, (float *)all, count)
                             : gpunn__ranks_gather_host(cuda, ranks, (float *)all, count));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__norm_ranks_kernel, blocks, GPUNN__THREADS, *b, all, ranks->size,
                             mean, variance));
    b->dweight = b->dbias = NULL; /* already added */
    if (b->g) return GPUNN_OK;
    b->training = false;
    b->running_mean = mean;
    b->running_var = variance;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_batch_norm(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *in = step->in;
    gpunn__norm        b = gpunn__norm_shape(cuda, &in[0], step->backward);
    bool               forward = action == GPUNN__FORWARD;
    if (action == GPUNN__PREPARE) {
        if (step->training && !step->evaluates && step->ranks == NULL && b.n * b.inner == 1)
            return gpunn__cuda_fail(
                cuda, GPUNN_ERR_SHAPE,
                "expected more than 1 value per channel when training; use a larger batch");
        if (b.channels > INT32_MAX || b.n * b.inner > (int64_t)1 << 33)
            return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                    "there are more than 2^31 channels, or more than 2^33 values in one; "
                                    "split the input into smaller ones");
        if (step->training && !step->backward) step->saved_bytes = 2 * (size_t)b.channels * sizeof(float);
        if (step->training && (b.parts > 1 || step->ranks))
            step->workspace_bytes = gpunn__norm_bytes(&b, b.parts);
        if (step->ranks) step->workspace_bytes += gpunn__norm_bytes(&b, 1 + step->ranks->size);
        return GPUNN_OK;
    }
    b.training = step->training && !step->evaluates;
    b.eps = step->attr->eps;
    b.momentum = step->attr->momentum;
    b.x = in[0].data, b.x_dtype = in[0].dtype;
    b.weight = (const float *)in[1].data;
    b.bias = (const float *)in[2].data;
    b.running_mean = (float *)in[3].data;
    b.running_var = (float *)in[4].data;
    b.saved = (float *)step->saved;
    b.partial = step->workspace;
    b.relu = step->fused->relu;
    const gpunn_value *y = forward ? &step->out : &step->grad_in[0];
    b.y = y->data, b.y_dtype = y->dtype;
    if (forward)
        b.residual = step->fused->residual.data, b.residual_dtype = step->fused->residual.dtype;
    else {
        b.g = step->grad_out.data, b.g_dtype = step->grad_out.dtype;
        b.more = step->fused->more.data;
        b.dweight = (float *)step->grad_in[1].data;
        b.dbias = (float *)step->grad_in[2].data;
        b.add = step->accumulate[0];
        b.add_weight = step->accumulate[1];
        b.add_bias = step->accumulate[2];
        b.result = step->out.data, b.result_dtype = step->out.dtype;
        if (step->input_count > 5) {
            b.dresidual = step->grad_in[5].data, b.dresidual_dtype = step->grad_in[5].dtype;
            b.add_residual = step->accumulate[5];
        }
    }
    const unsigned tiles = (unsigned)((b.channels + b.tile - 1) / b.tile), blocks = tiles * (unsigned)b.parts;
    if (b.packs_of_channels && step->ranks == NULL && tiles * sizeof(unsigned) <= gpunn__counters_bytes(cuda))
        b.counters = cuda->counters;
    if (step->ranks || ((b.training || !forward) && b.parts > 1)) {
        b.phase = GPUNN__NORM_SUM;
        GPUNN__TRY(gpunn__norm_launch(cuda, b, blocks));
    }
    if (step->ranks) GPUNN__TRY(gpunn__norm_combine_ranks(cuda, step->ranks, &b));
    b.phase = b.phase ? GPUNN__NORM_APPLY : GPUNN__NORM_SUM | GPUNN__NORM_APPLY;
    return gpunn__norm_launch(cuda, b, blocks);
}

/* ---- layer_norm and rms_norm: x[rows][n] --------------------------------------------------------------- *
 * y = h * rstd * weight +
 * bias with h = x - mean of the row; rms_norm: h = x. In the backward pass, with k = g * weight:
 *    dbias = sum g, dweight = sum(g h rstd) over the rows,
 *    dx = rstd * (k - mean of k - h * rstd^2 * mean of k h); rms_norm: without the mean of k.
 * A row is read twice, the second time from a cache. The sums over the rows are a reduction that keeps the
 * columns. It is like sum's, but of two values at once. If there are several chunks, the block that finishes
 * the last one of a tile adds up all of them. */

typedef struct gpunn__row_norm {
    gpunn__along along; /* inner 1 */
    bool         packs; /* n is a multiple of 8, so packs of x and of weight and bias align */
    const float *weight, *bias;
    float       *rstd, *mean; /* [rows], saved; NULL: not wanted; rms_norm has no mean */
    float        eps;
    void        *half; /* a 16-bit copy of along.out, of half_type; NULL: not wanted */
    gpunn_dtype  half_type;
    float       *sums[2];    /* [n], dweight and dbias; NULL: not wanted */
    float       *partial[2]; /* [chunks][n] of each, if there are several chunks */
    unsigned    *counters;   /* [tiles] */
    bool         add[2];
} gpunn__row_norm;

/* Loads elements c .. c + N - 1 of weight or bias. */
template <int N>
__device__ __forceinline__ void gpunn__row_parameter(const gpunn__row_norm &b, const float *data, int64_t c,
                                                     float *v)
{
    if (N == 8 && b.packs) {
        gpunn__load8(data, GPUNN_F32, c, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = data[c + j];
}

/* Stores N elements of the result or of dx, which may accumulate, and of the 16-bit copy. */
template <int N>
__device__ __forceinline__ void gpunn__row_store(const gpunn__row_norm &b, int64_t i, float *v)
{
    const gpunn__along &a = b.along;
    if (b.half && a.add) {
        float old[N];
        gpunn__strided_load<N>(a.out, a.out_type, i, 1, old);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] += old[j];
    }
    gpunn__strided_store<N>(a.out, a.out_type, i, 1, v, a.add && !b.half);
    if (b.half) gpunn__strided_store<N>(b.half, b.half_type, i, 1, v, false);
}

template <bool CENTERED> struct gpunn__row_moments { /* not CENTERED: moments about 0 */
    const gpunn__along &a;
    gpunn__moments      own;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float v[N], sum[N], mean = 0;
        gpunn__strided_load<N>(a.x, a.x_type, i, 1, v);
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] = v[j];
        if (CENTERED) mean = gpunn__pack_reduce<N>(sum, gpunn__add()) / N;
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = (v[j] - mean) * (v[j] - mean);
        float square = gpunn__pack_reduce<N>(v, gpunn__add());
        if (CENTERED)
            gpunn__moments_join(&own, N, mean, square);
        else
            own.squares_or_products += square;
    }
};

struct gpunn__row_apply {
    const gpunn__row_norm &b;
    float                  mean, rstd;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float v[N], parameter[N];
        gpunn__strided_load<N>(b.along.x, b.along.x_type, i, 1, v);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = (v[j] - mean) * rstd;
        if (b.weight) {
            gpunn__row_parameter<N>(b, b.weight, c, parameter);
#pragma unroll
            for (int j = 0; j < N; j++) v[j] *= parameter[j];
        }
        if (b.bias) {
            gpunn__row_parameter<N>(b, b.bias, c, parameter);
#pragma unroll
            for (int j = 0; j < N; j++) v[j] += parameter[j];
        }
        gpunn__row_store<N>(b, i, v);
    }
};

template <bool CENTERED>
static __global__ void __launch_bounds__(GPUNN__THREADS, 4) gpunn__row_norm_kernel(const gpunn__row_norm b)
{
    GPUNN__FOLLOW();
    const gpunn__along &a = b.along;
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row           row = gpunn__along_row(a, first);
        gpunn__row_moments<CENTERED> visit = {a, {0, 0, 0}};
        gpunn__strided_visit(row, visit);
        float n = (float)a.n, mean = 0, square = visit.own.squares_or_products;
        if (CENTERED) {
            mean = gpunn__lanes_reduce(visit.own.mean_or_sum * (visit.own.count / n), gpunn__add(), a.lanes);
            square += visit.own.count * (visit.own.mean_or_sum - mean) * (visit.own.mean_or_sum - mean);
        }
        gpunn__row_apply apply = {b, mean,
                                  1 / sqrtf(gpunn__lanes_reduce(square, gpunn__add(), a.lanes) / n + b.eps)};
        gpunn__strided_visit(row, apply);
        if (row.index < a.rows && row.thread == 0) {
            /* one value equals its mean: no gradient */
            if (b.rstd) b.rstd[row.index] = CENTERED && a.n == 1 ? 0 : apply.rstd;
            if (b.mean) b.mean[row.index] = mean;
        }
    }
}

/* Loads N elements of h and k. */
template <int N>
__device__ __forceinline__ void gpunn__row_gradients(const gpunn__row_norm &b, int64_t i, int64_t c,
                                                     float mean, float *h, float *k)
{
    gpunn__strided_load<N>(b.along.x, b.along.x_type, i, 1, h);
    gpunn__strided_load<N>(b.along.gradient, b.along.gradient_type, i, 1, k);
#pragma unroll
    for (int j = 0; j < N; j++) h[j] -= mean;
    if (b.weight == NULL) return;
    float weight[N];
    gpunn__row_parameter<N>(b, b.weight, c, weight);
#pragma unroll
    for (int j = 0; j < N; j++) k[j] *= weight[j];
}

struct gpunn__row_gradient_sums { /* sums of k and k h */
    const gpunn__row_norm &b;
    float                  mean, sum, product;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float h[N], k[N];
        gpunn__row_gradients<N>(b, i, c, mean, h, k);
#pragma unroll
        for (int j = 0; j < N; j++) h[j] *= k[j];
        sum += gpunn__pack_reduce<N>(k, gpunn__add());
        product += gpunn__pack_reduce<N>(h, gpunn__add());
    }
};

struct gpunn__row_dx_apply {
    const gpunn__row_norm &b;
    float                  mean, rstd, shift, proj_scale;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float h[N], k[N];
        gpunn__row_gradients<N>(b, i, c, mean, h, k);
#pragma unroll
        for (int j = 0; j < N; j++) k[j] = (k[j] - shift - h[j] * proj_scale) * rstd;
        gpunn__row_store<N>(b, i, k);
    }
};

__device__ __forceinline__ void gpunn__row_norm_dx(const gpunn__row_norm &b)
{
    const gpunn__along &a = b.along;
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row       row = gpunn__along_row(a, first);
        bool                     there = row.index < a.rows;
        float                    n = (float)a.n, mean = b.mean && there ? b.mean[row.index] : 0;
        float                    rstd = there ? b.rstd[row.index] : 0;
        gpunn__row_gradient_sums sums = {b, mean, 0, 0};
        gpunn__strided_visit(row, sums);
        float shift = b.mean ? gpunn__lanes_reduce(sums.sum, gpunn__add(), a.lanes) / n : 0;
        float proj_scale = gpunn__lanes_reduce(sums.product, gpunn__add(), a.lanes) / n * rstd * rstd;
        gpunn__row_dx_apply apply = {b, mean, rstd, shift, proj_scale};
        gpunn__strided_visit(row, apply);
    }
}

/* Adds up both sums over the rows of a unit. Its first `lanes` threads write them: to partial, or for chunk
 * -1 to the gradients. */
template <int N>
__device__ __forceinline__ void gpunn__row_norm_join(const gpunn__reduction &r, const gpunn__row_norm &b,
                                                     int64_t chunk, int64_t column, bool there,
                                                     float (*sum)[N])
{
    __shared__ float part[N][GPUNN__THREADS];
    int              thread = threadIdx.x & (r.span - 1);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        for (int distance = r.span / 2; distance >= r.lanes; distance /= 2) {
            __syncthreads();
#pragma unroll
            for (int j = 0; j < N; j++) part[j][threadIdx.x] = sum[k][j];
            __syncthreads();
#pragma unroll
            for (int j = 0; j < N; j++)
                if (thread < distance) sum[k][j] += part[j][threadIdx.x + distance];
        }
        if (!there || thread >= r.lanes || !b.sums[k]) continue;
        if (chunk < 0)
            gpunn__strided_store<N>(b.sums[k], GPUNN_F32, column, 1, sum[k], b.add[k]);
        else
            gpunn__strided_store<N>(b.partial[k], GPUNN_F32, chunk * r.columns + column, 1, sum[k], false);
    }
}

/* A unit's threads: `lanes` across the columns, span / lanes down the runs. With several chunks a unit is a
 * whole block. */
template <int N>
__device__ __forceinline__ void gpunn__row_norm_columns(const gpunn__reduction &r, const gpunn__row_norm &b)
{
    const gpunn__along &a = b.along;
    int                 thread = threadIdx.x & (r.span - 1), per_block = blockDim.x / r.span;
    int64_t             units = r.chunks * r.tiles;
    for (int64_t first = (int64_t)blockIdx.x * per_block; first < units;
         first += (int64_t)gridDim.x * per_block) {
        int64_t unit = first + threadIdx.x / r.span, chunk = gpunn__quotient(unit, r.tiles),
                tile = unit - chunk * r.tiles;
        int64_t column = (tile * r.lanes + (thread & (r.lanes - 1))) * N;
        bool    there = unit < units && column < r.columns;
        float   sum[2][N];
#pragma unroll
        for (int j = 0; j < N; j++) sum[0][j] = sum[1][j] = 0;
        if (there) {
            int64_t end = min((chunk + 1) * r.chunk_runs, r.runs);
            for (int64_t run = chunk * r.chunk_runs + thread / r.lanes; run < end; run += r.span / r.lanes) {
                float x[N], g[N], rstd = b.rstd[run], mean = b.mean ? b.mean[run] : 0;
                gpunn__strided_load<N>(a.x, a.x_type, run * r.columns + column, 1, x);
                gpunn__strided_load<N>(a.gradient, a.gradient_type, run * r.columns + column, 1, g);
#pragma unroll
                for (int j = 0; j < N; j++) {
                    sum[0][j] += g[j] * ((x[j] - mean) * rstd);
                    sum[1][j] += g[j];
                }
            }
        }
        gpunn__row_norm_join<N>(r, b, r.chunks > 1 ? chunk : -1, column, there, sum);
        if (r.chunks == 1 || !gpunn__is_last_block(&b.counters[tile], (unsigned)r.chunks)) continue;
#pragma unroll
        for (int j = 0; j < N; j++) sum[0][j] = sum[1][j] = 0;
#pragma unroll
        for (int k = 0; k < 2; k++)
            for (chunk = thread / r.lanes; there && b.sums[k] && chunk < r.chunks;
                 chunk += r.span / r.lanes) {
                float v[N];
                gpunn__strided_load<N>(b.partial[k], GPUNN_F32, chunk * r.columns + column, 1, v);
#pragma unroll
                for (int j = 0; j < N; j++) sum[k][j] += v[j];
            }
        gpunn__row_norm_join<N>(r, b, -1, column, there, sum);
    }
}

template <int N>
static __global__ void __launch_bounds__(GPUNN__THREADS, 3)
    gpunn__row_norm_back_kernel(const gpunn__reduction r, const gpunn__row_norm b)
{
    GPUNN__FOLLOW();
    if (b.along.out) gpunn__row_norm_dx(b);
    gpunn__row_norm_columns<N>(r, b);
}

/* Computes all gradients. PREPARE sizes the workspace for those of weight and bias. */
static gpunn_status gpunn__row_norm_backward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action,
                                             gpunn__row_norm *b)
{
    const bool       columns = step->grad_in[1].data || step->grad_in[2].data;
    gpunn__reduction r;
    memset(&r, 0, sizeof r);
    r.by_column = true;
    r.kept = r.planes = 1;
    r.rows = b->along.rows;
    r.columns = b->along.n;
    gpunn__reduction_cut(cuda, &r, false);
    const size_t each = (gpunn__reduction_workspace(&r) + 63) / 64 * 64;
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = columns ? 2 * each : 0;
        return GPUNN_OK;
    }
    for (int k = 0; k < 2; k++) {
        b->sums[k] = (float *)step->grad_in[1 + k].data;
        b->add[k] = step->accumulate[1 + k];
        b->partial[k] = (float *)((char *)step->workspace + (size_t)k * each);
    }
    b->counters = cuda->counters;
    if (!columns) r.chunks = 0;
    unsigned       blocks = gpunn__blocks(cuda, r.chunks * r.tiles * r.span, 1);
    const unsigned rows = b->along.out ? gpunn__along_blocks(cuda, &b->along) : 0;
    if (blocks < rows) blocks = rows;
    if (r.pack == 8)
        return GPUNN__LAUNCH(cuda, (gpunn__row_norm_back_kernel<8>), blocks, GPUNN__THREADS, r, *b);
    return GPUNN__LAUNCH(cuda, (gpunn__row_norm_back_kernel<1>), blocks, GPUNN__THREADS, r, *b);
}

static gpunn_status gpunn__row_norm_step(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action,
                                         bool centered)
{
    gpunn__row_norm b;
    memset(&b, 0, sizeof b);
    b.along = gpunn__along_axis(cuda, step, step->attr->axis);
    b.along.n *= b.along.inner;
    b.along.inner = 1;
    b.along.rows = step->in[0].count / b.along.n;
    b.along.lanes = gpunn__lanes_of(cuda, b.along.rows, b.along.n, 1);
    b.packs = b.along.n % GPUNN__PACK == 0;
    b.weight = (const float *)step->in[1].data;
    b.bias = (const float *)step->in[2].data;
    b.rstd = (float *)step->saved;
    if (centered && b.rstd) b.mean = b.rstd + b.along.rows;
    b.half = step->fused->half.data;
    b.half_type = step->fused->half.dtype;
    b.eps = step->attr->eps;
    if (step->backward) return gpunn__row_norm_backward(cuda, step, action, &b);
    if (action == GPUNN__PREPARE) {
        if (step->training) step->saved_bytes = (centered ? 2 : 1) * (size_t)b.along.rows * sizeof(float);
        return GPUNN_OK;
    }
    unsigned blocks = gpunn__along_blocks(cuda, &b.along);
    if (centered) return GPUNN__LAUNCH(cuda, (gpunn__row_norm_kernel<true>), blocks, GPUNN__THREADS, b);
    return GPUNN__LAUNCH(cuda, (gpunn__row_norm_kernel<false>), blocks, GPUNN__THREADS, b);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_layer_norm(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__row_norm_step(cuda, step, action, true);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_rms_norm(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__row_norm_step(cuda, step, action, false);
}

/* ---- group_norm: x[n][channels][inner], rows of `group` channels --------------------------------------- *
 * Like layer_norm of the rows, with a weight
 * and a bias per channel. In the backward pass, a first launch sums g and g h rstd of each channel of each
 * sample into sums. A second one computes dx from them, and a reduction over the samples gives dbias and
 * dweight. */

typedef struct gpunn__group_norm {
    gpunn__along along; /* inner 1 */
    int64_t      channels, group, inner;
    const float *weight, *bias;
    float       *rstd, *mean; /* per row, saved; NULL: not wanted */
    float       *sums[2];     /* [n][channels], sums of g h rstd and of g */
    float        eps;
} gpunn__group_norm;

/* The channel of position c in a row. *left receives how many positions are left in that channel. */
__device__ __forceinline__ int64_t gpunn__group_norm_channel(const gpunn__group_norm &b, int64_t first,
                                                             int64_t c, int64_t *left)
{
    int64_t channel = gpunn__quotient(c, b.inner);
    *left = (channel + 1) * b.inner - c;
    return first + channel;
}

struct gpunn__group_norm_apply {
    const gpunn__group_norm &b;
    int64_t                  first; /* first channel */
    float                    mean, rstd;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float   v[N];
        int64_t left, channel = gpunn__group_norm_channel(b, first, c, &left);
        gpunn__strided_load<N>(b.along.x, b.along.x_type, i, 1, v);
#pragma unroll
        for (int j = 0; j < N; j++) {
            v[j] = (v[j] - mean) * rstd;
            if (b.weight) v[j] *= b.weight[channel];
            if (b.bias) v[j] += b.bias[channel];
            if (--left == 0) channel++, left = b.inner;
        }
        gpunn__strided_store<N>(b.along.out, b.along.out_type, i, 1, v, false);
    }
};

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__group_norm_kernel(const gpunn__group_norm b)
{
    GPUNN__FOLLOW();
    const gpunn__along &a = b.along;
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row       row = gpunn__along_row(a, first);
        gpunn__row_moments<true> visit = {a, {0, 0, 0}};
        gpunn__strided_visit(row, visit);
        float n = (float)a.n, mean = gpunn__lanes_reduce(visit.own.mean_or_sum * (visit.own.count / n),
                                                         gpunn__add(), a.lanes);
        float square = visit.own.squares_or_products +
                       visit.own.count * (visit.own.mean_or_sum - mean) * (visit.own.mean_or_sum - mean);
        float rstd = 1 / sqrtf(gpunn__lanes_reduce(square, gpunn__add(), a.lanes) / n + b.eps);
        gpunn__group_norm_apply apply = {b, row.index * b.group % b.channels, mean, rstd};
        gpunn__strided_visit(row, apply);
        if (row.index < a.rows && row.thread == 0) {
            if (b.rstd) b.rstd[row.index] = a.n == 1 ? 0 : rstd; /* as in row_norm */
            if (b.mean) b.mean[row.index] = mean;
        }
    }
}

/* Accumulates the sums of g and of g (x - mean). */
struct gpunn__group_norm_sums {
    const gpunn__along &a;
    float               mean, sum, product;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float x[N], g[N];
        gpunn__strided_load<N>(a.x, a.x_type, i, 1, x);
        gpunn__strided_load<N>(a.gradient, a.gradient_type, i, 1, g);
#pragma unroll
        for (int j = 0; j < N; j++) x[j] = g[j] * (x[j] - mean);
        sum += gpunn__pack_reduce<N>(g, gpunn__add());
        product += gpunn__pack_reduce<N>(x, gpunn__add());
    }
};

/* Each row of a is one channel of one sample. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__group_norm_sums_kernel(const gpunn__group_norm b, const gpunn__along a)
{
    GPUNN__FOLLOW();
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row     row = gpunn__along_row(a, first);
        bool                   there = row.index < a.rows;
        int64_t                group = gpunn__quotient(there ? row.index : 0, b.group);
        gpunn__group_norm_sums visit = {a, b.mean[group], 0, 0};
        gpunn__strided_visit(row, visit);
        float sum = gpunn__lanes_reduce(visit.sum, gpunn__add(), a.lanes);
        float product = gpunn__lanes_reduce(visit.product, gpunn__add(), a.lanes) * b.rstd[group];
        if (there && row.thread == 0) {
            b.sums[0][row.index] = product;
            b.sums[1][row.index] = sum;
        }
    }
}

struct gpunn__group_norm_dx_visit {
    const gpunn__group_norm &b;
    int64_t                  first; /* first channel */
    float                    mean, rstd, shift, proj_scale;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float   x[N], g[N];
        int64_t left, channel = gpunn__group_norm_channel(b, first, c, &left);
        gpunn__strided_load<N>(b.along.x, b.along.x_type, i, 1, x);
        gpunn__strided_load<N>(b.along.gradient, b.along.gradient_type, i, 1, g);
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (b.weight) g[j] *= b.weight[channel];
            g[j] = (g[j] - shift - (x[j] - mean) * proj_scale) * rstd;
            if (--left == 0) channel++, left = b.inner;
        }
        gpunn__strided_store<N>(b.along.out, b.along.out_type, i, 1, g, b.along.add);
    }
};

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__group_norm_back_kernel(const gpunn__group_norm b)
{
    GPUNN__FOLLOW();
    const gpunn__along &a = b.along;
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row row = gpunn__along_row(a, first);
        bool               there = row.index < a.rows;
        int64_t            begin = row.index * b.group, channel = begin % b.channels;
        float              sum = 0, product = 0, n = (float)a.n;
        for (int64_t c = row.thread; there && c < b.group; c += a.lanes) {
            float weight = b.weight ? b.weight[channel + c] : 1;
            product += weight * b.sums[0][begin + c];
            sum += weight * b.sums[1][begin + c];
        }
        sum = gpunn__lanes_reduce(sum, gpunn__add(), a.lanes);
        product = gpunn__lanes_reduce(product, gpunn__add(), a.lanes);
        float                      rstd = there ? b.rstd[row.index] : 0, mean = there ? b.mean[row.index] : 0;
        gpunn__group_norm_dx_visit dx_visit = {b, channel, mean, rstd, sum / n, rstd * product / n};
        gpunn__strided_visit(row, dx_visit);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_group_norm(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *in = step->in;
    gpunn__group_norm  b;
    memset(&b, 0, sizeof b);
    b.channels = in[0].dim[1];
    b.group = b.channels / step->attr->groups;
    b.inner = in[0].count / (in[0].dim[0] * b.channels);
    b.along = gpunn__along_axis(cuda, step, 1);
    b.along.n = b.group * b.inner;
    b.along.inner = 1;
    b.along.rows = in[0].count / b.along.n;
    b.along.lanes = gpunn__lanes_of(cuda, b.along.rows, b.along.n, 1);
    b.weight = (const float *)in[1].data;
    b.bias = (const float *)in[2].data;
    b.rstd = (float *)step->saved;
    if (b.rstd) b.mean = b.rstd + b.along.rows;
    b.eps = step->attr->eps;
    size_t each = ((size_t)(in[0].dim[0] * b.channels) * sizeof(float) + 63) / 64 * 64;
    if (action == GPUNN__PREPARE) {
        if (step->training && !step->backward) step->saved_bytes = 2 * (size_t)b.along.rows * sizeof(float);
        if (step->backward)
            step->workspace_bytes = 2 * each +
                                    gpunn__cuda_channel_sums_workspace(cuda, in[0].dim[0], b.channels, 1);
        return GPUNN_OK;
    }
    unsigned blocks = gpunn__along_blocks(cuda, &b.along);
    if (!step->backward) return GPUNN__LAUNCH(cuda, gpunn__group_norm_kernel, blocks, GPUNN__THREADS, b);
    for (int k = 0; k < 2; k++) b.sums[k] = (float *)((char *)step->workspace + (size_t)k * each);
    gpunn__along single = b.along;
    single.n = b.inner;
    single.rows = in[0].dim[0] * b.channels;
    single.lanes = gpunn__lanes_of(cuda, single.rows, single.n, 1);
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__group_norm_sums_kernel, gpunn__along_blocks(cuda, &single),
                             GPUNN__THREADS, b, single));
    if (b.along.out)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__group_norm_back_kernel, blocks, GPUNN__THREADS, b));
    for (int k = 0; k < 2; k++)
        if (step->grad_in[1 + k].data)
            GPUNN__TRY(gpunn__cuda_channel_sums(cuda, b.sums[k], GPUNN_F32, in[0].dim[0], b.channels, 1,
                                                (float *)step->grad_in[1 + k].data, step->accumulate[1 + k],
                                                (char *)step->workspace + 2 * each));
    return GPUNN_OK;
}

/* ---- instance_norm with running statistics ----
 * In training this is group_norm of each channel; the mean and 1 / deviation of each sample update the
 * running statistics. Elsewhere it is batch_norm by the running statistics. */

typedef struct gpunn__instances {
    int64_t      n, channels, cells;
    const float *rstd, *mean; /* [n][channels] */
    float       *running_mean, *running_var;
    float        eps, momentum;
} gpunn__instances;

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__instance_norm_kernel(const gpunn__instances b)
{
    GPUNN__FOLLOW();
    const int64_t c = (int64_t)blockIdx.x * GPUNN__THREADS + threadIdx.x;
    const double  share = (double)b.momentum, unbiased = (double)b.cells / (double)(b.cells - 1);
    double        center = 0, variance = 0;
    if (c >= b.channels) return;
    for (int64_t i = c; i < b.n * b.channels; i += b.channels) {
        center += (double)b.mean[i];
        variance += fmax(1 / ((double)b.rstd[i] * (double)b.rstd[i]) - (double)b.eps, 0.0);
    }
    b.running_mean[c] = (float)((1 - share) * (double)b.running_mean[c] + share * center / (double)b.n);
    b.running_var[c] = (float)((1 - share) * (double)b.running_var[c] +
                               share * unbiased * variance / (double)b.n);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_instance_norm(gpunn__cuda *cuda, gpunn_step *step,
                                                       gpunn__action action)
{
    const gpunn_value *in = step->in;
    if (!step->training || step->evaluates) return gpunn__cuda_batch_norm(cuda, step, action);
    GPUNN__TRY(gpunn__cuda_group_norm(cuda, step, action));
    if (action != GPUNN__FORWARD || in[3].data == NULL) return GPUNN_OK;
    const int64_t          n = in[0].dim[0], channels = in[0].dim[1];
    const float           *rstd = (const float *)step->saved;
    const gpunn__instances b = {n,
                                channels,
                                in[0].count / (n * channels),
                                rstd,
                                rstd + n * channels,
                                (float *)in[3].data,
                                (float *)in[4].data,
                                step->attr->eps,
                                step->attr->momentum};
    return GPUNN__LAUNCH(cuda, gpunn__instance_norm_kernel,
                         (unsigned)((channels + GPUNN__THREADS - 1) / GPUNN__THREADS), GPUNN__THREADS, b);
}

/* ==== >>cuda/softmax ===================================================================================== *
 * softmax, log_softmax and logcumsumexp. The first two read a line twice, the second time from a cache. The
 * first pass updates the maximum and the sum of exp(x - maximum) together; the second writes the result. NaN
 * appears in the sum, not in the maximum. A line that is all -inf gives NaN, as in torch. */
struct gpunn__exp_sum {
    const void *x;
    gpunn_dtype dtype;
    int64_t     stride;
    float       top, sum;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float v[N], most;
        gpunn__strided_load<N>(x, dtype, i, stride, v);
        most = top;
#pragma unroll
        for (int j = 0; j < N; j++) most = v[j] > most ? v[j] : most;
        sum *= expf(top - most);
        top = most;
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = expf(v[j] - most);
        sum += gpunn__pack_reduce<N>(v, gpunn__add());
    }
};

/* top and sum of a whole row, for each of its lanes. top starts at the lowest finite number, so that
 * x - top is never NaN for x = -inf. */
__device__ __forceinline__ gpunn__exp_sum gpunn__exp_sum_of(const gpunn__along       &a,
                                                            const gpunn__strided_row &row)
{
    gpunn__exp_sum s = {a.x, a.x_type, row.stride, -3.402823466e38f, 0};
    gpunn__strided_visit(row, s);
    float top = gpunn__lanes_reduce(s.top, gpunn__larger(), a.lanes);
    s.sum = gpunn__lanes_reduce(s.sum * expf(s.top - top), gpunn__add(), a.lanes);
    s.top = top;
    return s;
}

struct gpunn__softmax_visit {
    const gpunn__along &a;
    int64_t             stride;
    float               top, factor; /* 1 / sum; log: log(sum) */

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float v[N];
        gpunn__strided_load<N>(a.x, a.x_type, i, stride, v);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = a.log ? v[j] - top - factor : expf(v[j] - top) * factor;
        gpunn__strided_store<N>(a.out, a.out_type, i, stride, v, false);
    }
};

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__softmax_kernel(const gpunn__along a)
{
    GPUNN__FOLLOW();
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row   row = gpunn__along_row(a, first);
        gpunn__exp_sum       s = gpunn__exp_sum_of(a, row);
        gpunn__softmax_visit visit = {a, row.stride, s.top, a.log ? logf(s.sum) : 1 / s.sum};
        gpunn__strided_visit(row, visit);
    }
}

/* Accumulates the sum of g y; for log_softmax the sum of g. */
struct gpunn__softmax_dot_visit {
    const gpunn__along &a;
    int64_t             stride;
    float               sum;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float g[N], y[N];
        gpunn__strided_load<N>(a.gradient, a.gradient_type, i, stride, g);
        if (!a.log) {
            gpunn__strided_load<N>(a.y, a.y_type, i, stride, y);
#pragma unroll
            for (int j = 0; j < N; j++) g[j] *= y[j];
        }
        sum += gpunn__pack_reduce<N>(g, gpunn__add());
    }
};

/* softmax: dx = or += y (g - sum g y). log_softmax: dx = or += g - exp(y) sum g. */
struct gpunn__softmax_dx_visit {
    const gpunn__along &a;
    int64_t             stride;
    float               sum;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float g[N], y[N];
        gpunn__strided_load<N>(a.gradient, a.gradient_type, i, stride, g);
        gpunn__strided_load<N>(a.y, a.y_type, i, stride, y);
#pragma unroll
        for (int j = 0; j < N; j++) g[j] = a.log ? g[j] - expf(y[j]) * sum : y[j] * (g[j] - sum);
        gpunn__strided_store<N>(a.out, a.out_type, i, stride, g, a.add);
    }
};

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__softmax_backward_kernel(const gpunn__along a)
{
    GPUNN__FOLLOW();
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row       row = gpunn__along_row(a, first);
        gpunn__softmax_dot_visit dot = {a, row.stride, 0};
        gpunn__strided_visit(row, dot);
        gpunn__softmax_dx_visit dx_visit = {a, row.stride,
                                            gpunn__lanes_reduce(dot.sum, gpunn__add(), a.lanes)};
        gpunn__strided_visit(row, dx_visit);
    }
}

static gpunn_status gpunn__softmax_step(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action, bool log)
{
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    gpunn__along a = gpunn__along_axis(cuda, step, step->attr->axis);
    a.log = log;
    if (step->backward)
        return GPUNN__LAUNCH(cuda, gpunn__softmax_backward_kernel, gpunn__along_blocks(cuda, &a),
                             GPUNN__THREADS, a);
    return GPUNN__LAUNCH(cuda, gpunn__softmax_kernel, gpunn__along_blocks(cuda, &a), GPUNN__THREADS, a);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_softmax(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__softmax_step(cuda, step, action, false);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_log_softmax(gpunn__cuda *cuda, gpunn_step *step,
                                                     gpunn__action action)
{
    return gpunn__softmax_step(cuda, step, action, true);
}

/* ---- logcumsumexp: see gpunn.h's >>cpu/softmax ------------------------------------------------------------
 * Sums of w exp(t) in units of exp(top). Many lines use one thread each. Otherwise a block scans a line, one
 * element per thread at a time, and carries the sum over. */

typedef struct gpunn__exp_term {
    float top, sum;
} gpunn__exp_term;

__device__ __forceinline__ gpunn__exp_term gpunn__exp_add(gpunn__exp_term a, gpunn__exp_term b)
{
    const bool  higher = b.top > a.top;
    const float e = expf(b.top == a.top ? 0 : higher ? a.top - b.top : b.top - a.top);
    return {higher ? b.top : a.top, higher ? a.sum * e + b.sum : a.sum + b.sum * e};
}

/* Forward the term of element `at` is exp(x), backward g exp(-y). */
__device__ __forceinline__ gpunn__exp_term gpunn__exp_term_of(const gpunn__along &a, bool backward,
                                                              int64_t at)
{
    if (!backward) return {gpunn__load(a.x, a.x_type, at), 1};
    return {-gpunn__load(a.y, a.y_type, at), gpunn__load(a.gradient, a.gradient_type, at)};
}

/* Stores y or, backward, dx. The gradient of an x of -inf is 0. */
__device__ __forceinline__ void gpunn__exp_term_store(const gpunn__along &a, bool backward, int64_t at,
                                                      gpunn__exp_term s)
{
    float value = s.top + logf(s.sum);
    if (backward) {
        const float x = gpunn__load(a.x, a.x_type, at), y = gpunn__load(a.y, a.y_type, at);
        value = (x == y ? (x < -3.402823466e38f ? 0 : 1) : expf(x - y)) * s.sum;
        if (a.add) value += gpunn__load(a.out, a.out_type, at);
    }
    gpunn__store(a.out, a.out_type, at, value);
}

/* One thread per row. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__logcumsumexp_rows_kernel(const gpunn__along a, bool backward)
{
    GPUNN__FOLLOW();
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; row < a.rows; row += (int64_t)gridDim.x * blockDim.x) {
        gpunn__exp_term s = {-INFINITY, 0};
        for (int64_t i = 0; i < a.n; i++) {
            const int64_t at = gpunn__along_place(a, row, i, backward);
            s = gpunn__exp_add(s, gpunn__exp_term_of(a, backward, at));
            gpunn__exp_term_store(a, backward, at, s);
        }
    }
}

/* One block per row: a Hillis-Steele scan over GPUNN__THREADS elements at a time. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__logcumsumexp_block_kernel(const gpunn__along a, bool backward)
{
    GPUNN__FOLLOW();
    __shared__ gpunn__exp_term sums[GPUNN__THREADS];
    const int                  t = (int)threadIdx.x;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        gpunn__exp_term before = {-INFINITY, 0};
        for (int64_t start = 0; start < a.n; start += GPUNN__THREADS) {
            const int64_t   at = start + t < a.n ? gpunn__along_place(a, row, start + t, backward) : -1;
            gpunn__exp_term s = {-INFINITY, 0};
            if (at >= 0) s = gpunn__exp_term_of(a, backward, at);
            for (int distance = 1; distance < GPUNN__THREADS; distance *= 2) {
                __syncthreads(); /* the previous contents of sums have been read */
                sums[t] = s;
                __syncthreads();
                if (t >= distance) s = gpunn__exp_add(sums[t - distance], s);
            }
            __syncthreads();
            sums[t] = s;
            __syncthreads();
            if (at >= 0) gpunn__exp_term_store(a, backward, at, gpunn__exp_add(before, s));
            before = gpunn__exp_add(before, sums[GPUNN__THREADS - 1]);
        }
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_logcumsumexp(gpunn__cuda *cuda, gpunn_step *step,
                                                      gpunn__action action)
{
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    const gpunn__along a = gpunn__along_axis(cuda, step, step->attr->axis);
    if (a.n <= 32 || a.rows >= (int64_t)cuda->multiprocessors * 256)
        return GPUNN__LAUNCH(cuda, gpunn__logcumsumexp_rows_kernel, gpunn__blocks(cuda, a.rows, 1),
                             GPUNN__THREADS, a, step->backward);
    return GPUNN__LAUNCH(cuda, gpunn__logcumsumexp_block_kernel,
                         gpunn__blocks(cuda, a.rows * GPUNN__THREADS, 1), GPUNN__THREADS, a, step->backward);
}

/* ==== >>cuda/loss ======================================================================================== *
 * cross_entropy and nll over x[n][classes][inner], with one label per row and row = n * inner + position.
 * Let l = log_softmax(x) (nll: x itself), w the class weights (1 without) and e the label smoothing (nll:
 * 0). A row that is not ignored costs
 *    (1 - e) w[label] (-l[label]) + e / classes * sum over c of w[c] (-l[c])
 * The mean divides by the sum of w[label]. The gradient is
 *    dx[c] = or += a p[c] - b (c == label) - d w[c]
 * where p = softmax(x) and s = g / divisor. Its factors are b = s (1 - e) w[label], d = s e / classes and
 * a = b + d sum w. For nll, a = d = 0.
 * A label outside 0 .. classes - 1 that is not ignore_index costs NaN, which the check of the loss reports.
 * It has no gradient.
 * The saved data is the divisor and sum w. For cross_entropy each row adds its maximum and
 * 1 / sum exp(x - maximum). */
typedef struct gpunn__class_loss {
    gpunn__along    along; /* out: the losses or dx */
    bool            softmax;
    gpunn_reduction reduction;
    gpunn_dtype     label_type, weight_type;
    const void     *labels, *weight;
    float           smoothing;
    int64_t         ignore;
    float2         *saved;   /* [0]: divisor, sum w; [1 + row]: maximum, 1 / sum */
    float2         *partial; /* per block: the sum of costs and the sum of w[label] */
} gpunn__class_loss;

/* The label of a row. -1: ignored. -2: out of range. */
__device__ __forceinline__ int64_t gpunn__label(const gpunn__class_loss &l, int64_t row)
{
    int64_t label = gpunn__integer(l.labels, l.label_type, row);
    if (label == l.ignore) return -1;
    return label >= 0 && label < l.along.n ? label : -2;
}

__device__ __forceinline__ float gpunn__class_weight(const gpunn__class_loss &l, int64_t c)
{
    return l.weight ? gpunn__load(l.weight, l.weight_type, c) : 1;
}

/* Accumulates, for label smoothing, the sums of w[c] (top - x[c]) and of w[c]. */
struct gpunn__smooth_visit {
    const gpunn__class_loss &l;
    int64_t                  stride;
    float                    top, sum, weights;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float v[N], cost = 0, all = 0;
        gpunn__strided_load<N>(l.along.x, l.along.x_type, i, stride, v);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float weight = gpunn__class_weight(l, c + j);
            cost += weight * (top - v[j]);
            all += weight;
        }
        sum += cost;
        weights += all;
    }
};

/* Stores the reduced loss and saves the divisor. The reduction is MEAN or SUM. */
__device__ __forceinline__ void gpunn__class_loss_total(const gpunn__class_loss &l, double loss,
                                                        double weights)
{
    double divisor = l.reduction == GPUNN_REDUCE_MEAN ? weights : 1;
    l.saved->x = (float)divisor;
    gpunn__store(l.along.out, l.along.out_type, 0,
                 loss == 0 && divisor == 0 ? -0.0f : (float)(loss / divisor));
}

/* The forward pass. With several blocks, each leaves its partial sums for a second launch. */
__device__ __forceinline__ void gpunn__class_loss_make(const gpunn__class_loss &l)
{
    float loss = 0, weights = 0;
    for (int64_t first = gpunn__along_first(l.along); first < l.along.rows;
         first += gpunn__along_step(l.along)) {
        gpunn__strided_row row = gpunn__along_row(l.along, first);
        float              top = 0, spread = 0, smooth = 0, all = 0;
        if (l.softmax) {
            gpunn__exp_sum s = gpunn__exp_sum_of(l.along, row);
            top = s.top;
            spread = logf(s.sum);
            if (row.index < l.along.rows && row.thread == 0)
                l.saved[1 + row.index] = make_float2(top, 1 / s.sum);
        }
        if (l.smoothing > 0) {
            gpunn__smooth_visit visit = {l, row.stride, top, 0, 0};
            gpunn__strided_visit(row, visit);
            float sum = gpunn__lanes_reduce(visit.sum, gpunn__add(), row.lanes);
            all = gpunn__lanes_reduce(visit.weights, gpunn__add(), row.lanes);
            smooth = l.smoothing / (float)row.n * (sum + all * spread);
        }
        if (row.index >= l.along.rows || row.thread != 0) continue;
        if (row.index == 0) l.saved->y = all;
        int64_t label = gpunn__label(l, row.index);
        float   cost = label == -1 ? 0 : NAN;
        if (label >= 0) {
            float weight = gpunn__class_weight(l, label);
            float x = gpunn__load(l.along.x, l.along.x_type, row.begin + label * row.stride);
            cost = (1 - l.smoothing) * weight * (top - x + spread) + smooth;
            weights += weight;
        }
        loss += cost;
        if (l.reduction == GPUNN_REDUCE_NONE) gpunn__store(l.along.out, l.along.out_type, row.index, cost);
    }
    if (l.reduction == GPUNN_REDUCE_NONE) {
        if (blockIdx.x == 0 && threadIdx.x == 0) l.saved->x = 1;
        return;
    }
    loss = gpunn__block_reduce(loss, gpunn__add());
    weights = gpunn__block_reduce(weights, gpunn__add());
    if (threadIdx.x != 0) return;
    if (gridDim.x == 1)
        gpunn__class_loss_total(l, loss, weights);
    else
        l.partial[blockIdx.x] = make_float2(loss, weights);
}

/* exp(x) of an argument up to 0. For 16-bit values a shorter instruction sequence serves: its error is 2^-21
 * for each 1.2 of the argument. */
__device__ __forceinline__ float gpunn__exp(float x, gpunn_dtype dtype)
{
    return dtype == GPUNN_F32 ? expf(x) : __expf(x);
}

/* Writes the gradient of a row. a, b, d and top are those of the formulas above. */
struct gpunn__class_loss_dx_visit {
    const gpunn__class_loss &l;
    int64_t                  stride, label;
    float                    top, a, b, d;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float v[N];
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = 0;
        if (a != 0) {
            gpunn__strided_load<N>(l.along.x, l.along.x_type, i, stride, v);
#pragma unroll
            for (int j = 0; j < N; j++) v[j] = a * gpunn__exp(v[j] - top, l.along.x_type);
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (d != 0) v[j] -= d * gpunn__class_weight(l, c + j);
            v[j] -= label - c == j ? b : 0;
        }
        gpunn__strided_store<N>(l.along.out, l.along.out_type, i, stride, v, l.along.add);
    }
};

/* The backward pass. */
__device__ __forceinline__ void gpunn__class_loss_dx(const gpunn__class_loss &l)
{
    float2 whole = *l.saved;
    for (int64_t first = gpunn__along_first(l.along); first < l.along.rows;
         first += gpunn__along_step(l.along)) {
        gpunn__strided_row row = gpunn__along_row(l.along, first);
        if (row.index >= l.along.rows) continue;
        gpunn__class_loss_dx_visit visit = {l, row.stride, gpunn__label(l, row.index), 0, 0, 0, 0};
        if (visit.label >= 0) {
            int64_t at = l.reduction == GPUNN_REDUCE_NONE ? row.index : 0;
            float   scale = gpunn__load(l.along.gradient, l.along.gradient_type, at) / whole.x;
            visit.b = scale * (1 - l.smoothing) * gpunn__class_weight(l, visit.label);
            if (l.softmax) {
                float2 sums = l.saved[1 + row.index];
                visit.top = sums.x;
                visit.d = scale * l.smoothing / (float)row.n;
                visit.a = (visit.b + visit.d * whole.y) * sums.y;
            }
        }
        gpunn__strided_visit(row, visit);
    }
}

/* Describes a step of cross_entropy or nll, forward or backward. */
GPUNN__INTERNAL gpunn__class_loss gpunn__class_loss_of(const gpunn__cuda *cuda, const gpunn_step *step);

static __global__ void __launch_bounds__(1024) gpunn__class_loss_kernel(const gpunn__class_loss l)
{
    GPUNN__FOLLOW();
    gpunn__class_loss_make(l);
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__class_loss_total_kernel(const gpunn__class_loss l, int parts)
{
    GPUNN__FOLLOW();
    double loss = 0, weights = 0;
    for (int i = threadIdx.x; i < parts; i += blockDim.x) {
        loss += l.partial[i].x;
        weights += l.partial[i].y;
    }
    loss = gpunn__block_reduce(loss, gpunn__add());
    weights = gpunn__block_reduce(weights, gpunn__add());
    if (threadIdx.x == 0) gpunn__class_loss_total(l, loss, weights);
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__class_loss_backward_kernel(const gpunn__class_loss l)
{
    GPUNN__FOLLOW();
    gpunn__class_loss_dx(l);
}

/* Blocks and threads of the forward kernel. It uses a single block where that is fast, since a single block
 * needs no second launch. */
static unsigned gpunn__class_loss_blocks(const gpunn__cuda *cuda, const gpunn__along *a, unsigned *threads)
{
    int64_t wanted = (a->rows * a->lanes + 31) / 32 * 32;
    *threads = GPUNN__THREADS;
    if (a->lanes > 32 || wanted > 4 * 1024) return gpunn__along_blocks(cuda, a);
    *threads = wanted < 1024 ? (unsigned)wanted : 1024;
    return 1;
}

GPUNN__INTERNAL gpunn__class_loss gpunn__class_loss_of(const gpunn__cuda *cuda, const gpunn_step *step)
{
    const gpunn_value *in = step->in;
    const bool         softmax = step->op == GPUNN_OP_CROSS_ENTROPY;
    gpunn__class_loss  l;
    memset(&l, 0, sizeof l);
    l.along = gpunn__along_axis(cuda, step, in[0].rank > 1 ? 1 : 0);
    if (!softmax && !step->backward) l.along.lanes = 1; /* reads one element of each row */
    l.softmax = softmax;
    l.reduction = step->attr->reduction;
    l.labels = in[1].data;
    l.label_type = in[1].dtype;
    if (step->input_count > 2) {
        l.weight = in[2].data;
        l.weight_type = in[2].dtype;
    }
    l.smoothing = softmax ? step->attr->label_smoothing : 0;
    l.ignore = step->attr->ignore_index;
    l.saved = (float2 *)step->saved;
    l.partial = (float2 *)step->workspace;
    return l;
}

static gpunn_status gpunn__class_loss_step(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__class_loss l = gpunn__class_loss_of(cuda, step);
    unsigned                threads, blocks = gpunn__class_loss_blocks(cuda, &l.along, &threads);
    if (action == GPUNN__PREPARE) {
        if (!step->backward) {
            step->saved_bytes = (size_t)(l.softmax ? l.along.rows + 1 : 1) * sizeof(float2);
            step->workspace_bytes = blocks > 1 ? blocks * sizeof(float2) : 0;
        }
        return GPUNN_OK;
    }
    if (action == GPUNN__BACKWARD) {
        if (!step->grad_in[0].data) return GPUNN_OK;
        return GPUNN__LAUNCH(cuda, gpunn__class_loss_backward_kernel, gpunn__along_blocks(cuda, &l.along),
                             GPUNN__THREADS, l);
    }
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__class_loss_kernel, blocks, threads, l));
    if (blocks == 1 || l.reduction == GPUNN_REDUCE_NONE) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__class_loss_total_kernel, 1, GPUNN__THREADS, l, (int)blocks);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_cross_entropy(gpunn__cuda *cuda, gpunn_step *step,
                                                       gpunn__action action)
{
    return gpunn__class_loss_step(cuda, step, action);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_nll(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__class_loss_step(cuda, step, action);
}

/* ---- ctc_loss ------------------------------------------------------------------------------------------- *
 * *
 * gpunn.h's formulas, with one block per sample and one thread per position of a row. A label or length out
 * of range costs NaN, which the check of the loss reports, and has no gradient. The saved data is losses,
 * offsets, then for each sample the rows of a, and skip; evaluation keeps it in the workspace. The backward
 * pass's workspace holds two rows of b, the terms of a row, and the next position with each position's
 * class. */

typedef struct gpunn__ctc {
    const void *x, *targets, *input_lengths, *target_lengths;
    void       *out;
    const void *gradient;
    gpunn_dtype x_type, target_type, input_type, length_type, out_type, gradient_type;
    double     *loss, *offset;
    float      *rows, *skip, *back, *terms;
    /* per position the next one with its label, 0: none; ~ of that where the position is not the first */
    int            *next;
    int64_t         times, samples, count, most, row, row_count, time_stride, sample_stride;
    int             blank;
    bool            zero_infinity, training, accumulate;
    gpunn_reduction reduction;
} gpunn__ctc;

/* The class of position s. */
__device__ __forceinline__ int64_t gpunn__ctc_class(const gpunn__ctc &c, int64_t sample, int64_t s)
{
    return s % 2 ? gpunn__integer(c.targets, c.target_type, sample * c.most + s / 2) : c.blank;
}

/* The number of positions of a sample. 0: its lengths are out of range. */
__device__ __forceinline__ int64_t gpunn__ctc_places(const gpunn__ctc &c, int64_t sample, int64_t *times)
{
    int64_t length = gpunn__integer(c.target_lengths, c.length_type, sample);
    *times = gpunn__integer(c.input_lengths, c.input_type, sample);
    return *times >= 0 && *times <= c.times && length >= 0 && length <= c.most ? 2 * length + 1 : 0;
}

__device__ __forceinline__ float gpunn__log_add(float a, float b, float c)
{
    float top = fmaxf(fmaxf(a, b), c);
    if (top == -INFINITY) return a + b + c;
    return top + logf(expf(a - top) + expf(b - top) + expf(c - top));
}

__device__ __forceinline__ double gpunn__ctc_share_of(const gpunn__ctc &c, int64_t sample)
{
    /* Loaded before the loss: this saves a register around the division on sm_100. */
    const int64_t length = gpunn__integer(c.target_lengths, c.length_type, sample);
    return gpunn__ctc_share(c.loss[sample], length, c.samples, c.reduction, c.zero_infinity);
}

static __global__ void __launch_bounds__(512) gpunn__ctc_forward_kernel(const gpunn__ctc c)
{
    GPUNN__FOLLOW();
    const int64_t sample = blockIdx.x;
    int64_t       times, n = gpunn__ctc_places(c, sample, &times);
    float *skip = c.skip + sample * c.row, *first = c.rows + sample * c.row_count * c.row + 2, *row = first;
    float  bad = n == 0, most = 0;
    double offset = 0;
    for (int64_t s = threadIdx.x; s < n + 2; s += blockDim.x) {
        int64_t label = s < n ? gpunn__ctc_class(c, sample, s) : 0;
        if (label < 0 || label >= c.count) bad = 1;
        skip[s] = s < n && s % 2 && s > 1 && label != gpunn__ctc_class(c, sample, s - 2) ? 0 : -INFINITY;
    }
    for (int64_t k = threadIdx.x; k < c.row_count; k += blockDim.x)
        first[k * c.row - 1] = first[k * c.row - 2] = -INFINITY;
    if (gpunn__block_reduce(bad, gpunn__add()) > 0) {
        if (threadIdx.x == 0) c.loss[sample] = NAN;
        return;
    }
    for (int64_t t = 0; t < times; t++) {
        const float  *before = row;
        const int64_t at = t * c.time_stride + sample * c.sample_stride;
        float         top = -INFINITY;
        row = first + t % c.row_count * c.row;
        for (int64_t s = threadIdx.x; s < n; s += blockDim.x) {
            float emit = gpunn__load(c.x, c.x_type, at + gpunn__ctc_class(c, sample, s)),
                  value = s < 2 ? emit : -INFINITY;
            if (t > 0)
                value = gpunn__log_add(before[s], before[s - 1], before[s - 2] + skip[s]) + (emit - most);
            row[s] = value;
            top = gpunn__larger()(top, value);
        }
        offset += (double)most;
        if (c.training && threadIdx.x == 0) c.offset[sample * c.times + t] = offset;
        top = gpunn__block_reduce(top, gpunn__larger());
        most = top == -INFINITY ? 0 : top;
    }
    if (threadIdx.x > 0) return;
    if (times == 0)
        c.loss[sample] = n == 1 ? 0 : INFINITY;
    else
        c.loss[sample] = -offset -
                         (double)gpunn__log_add(row[n - 1], n > 1 ? row[n - 2] : -INFINITY, -INFINITY);
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__ctc_total_kernel(const gpunn__ctc c)
{
    GPUNN__FOLLOW();
    double total = 0;
    for (int64_t i = threadIdx.x; i < c.samples; i += blockDim.x) {
        double share = gpunn__ctc_share_of(c, i), cost = share == 0 ? 0 : share * c.loss[i];
        if (c.reduction == GPUNN_REDUCE_NONE) gpunn__store(c.out, c.out_type, i, (float)cost);
        total += cost;
    }
    total = gpunn__block_reduce(total, gpunn__add());
    if (threadIdx.x == 0 && c.reduction != GPUNN_REDUCE_NONE)
        gpunn__store(c.out, c.out_type, 0, (float)total);
}

static __global__ void __launch_bounds__(512) gpunn__ctc_backward_kernel(const gpunn__ctc c)
{
    GPUNN__FOLLOW();
    const int64_t sample = blockIdx.x;
    int64_t       times, n = gpunn__ctc_places(c, sample, &times);
    const float  *skip = c.skip + sample * c.row, *first = c.rows + sample * c.row_count * c.row + 2;
    float        *row = c.back + 2 * sample * c.row, *terms = c.terms + sample * c.row, most = 0;
    int          *next = c.next + sample * c.row;
    double offset = c.loss[sample], share = n > 0 && offset == offset ? gpunn__ctc_share_of(c, sample) : 0;
    const float gradient = gpunn__load(c.gradient, c.gradient_type,
                                       c.reduction == GPUNN_REDUCE_NONE ? sample : 0);
    const float scale = (float)(share * (double)gradient);
    for (int64_t i = threadIdx.x; i < c.times * c.count && !c.accumulate; i += blockDim.x)
        gpunn__store(c.out, c.out_type, i / c.count * c.time_stride + sample * c.sample_stride + i % c.count,
                     0);
    for (int64_t s = threadIdx.x; s < n && share != 0; s += blockDim.x) {
        int64_t label = gpunn__ctc_class(c, sample, s), before = s - 2, after = s + 2;
        if (label == c.blank) continue;
        while (before > 0 && gpunn__ctc_class(c, sample, before) != label) before -= 2;
        while (after < n && gpunn__ctc_class(c, sample, after) != label) after += 2;
        next[s] = after < n ? (int)after : 0;
        if (before > 0) next[s] = ~next[s];
    }
    __syncthreads();
    if (share == 0) return;
    for (int64_t t = times - 1; t >= 0; t--) {
        const float  *before = row, *forth = first + t * c.row;
        const int64_t at = t * c.time_stride + sample * c.sample_stride;
        const float   shift = (float)(offset + (double)most + c.offset[sample * c.times + t]);
        float         top = -INFINITY, blanks = 0;
        offset += (double)most;
        row = c.back + (2 * sample + t % 2) * c.row;
        for (int64_t s = threadIdx.x; s < n + 2; s += blockDim.x) {
            if (s >= n) {
                row[s] = -INFINITY;
                continue;
            }
            float emit = gpunn__load(c.x, c.x_type, at + gpunn__ctc_class(c, sample, s)),
                  value = s > n - 3 ? emit : -INFINITY;
            if (t < times - 1)
                value = gpunn__log_add(before[s], before[s + 1], before[s + 2] + skip[s + 2]) + (emit - most);
            row[s] = value;
            top = gpunn__larger()(top, value);
            float both = forth[s] + value;
            terms[s] = both == -INFINITY ? 0 : scale * expf(both - emit + shift);
        }
        top = gpunn__block_reduce(top, gpunn__larger());
        most = top == -INFINITY ? 0 : top;
        for (int64_t s = threadIdx.x; s < n; s += blockDim.x) {
            int64_t label = gpunn__ctc_class(c, sample, s);
            if (label == c.blank) {
                blanks += terms[s];
                continue;
            }
            if (next[s] < 0) continue;
            float sum = terms[s];
            for (int k = next[s]; k > 0; k = ~next[k]) sum += terms[k];
            gpunn__store(c.out, c.out_type, at + label,
                         (c.accumulate ? gpunn__load(c.out, c.out_type, at + label) : 0) - sum);
        }
        blanks = gpunn__block_reduce(blanks, gpunn__add());
        if (threadIdx.x == 0)
            gpunn__store(c.out, c.out_type, at + c.blank,
                         (c.accumulate ? gpunn__load(c.out, c.out_type, at + c.blank) : 0) - blanks);
    }
}

/* The sizes of a step, without its pointers. */
static gpunn__ctc gpunn__ctc_sizes(const gpunn_step *step)
{
    const gpunn_value *in = step->in;
    const int          sample = step->attr->batch_first ? 0 : 1;
    gpunn__ctc         c;
    memset(&c, 0, sizeof c);
    c.times = in[0].dim[1 - sample];
    c.samples = in[0].dim[sample];
    c.count = in[0].dim[2];
    c.most = in[1].dim[1];
    c.row = 2 * c.most + 3;
    c.row_count = step->training ? c.times : 2;
    c.time_stride = sample ? c.samples * c.count : c.count;
    c.sample_stride = sample ? c.count : c.times * c.count;
    return c;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_ctc_loss(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *in = step->in;
    gpunn__ctc         c = gpunn__ctc_sizes(step);
    const int64_t      doubles = c.samples * (step->training ? 1 + c.times : 1), scratch = c.samples * c.row;
    const size_t       kept = (size_t)doubles * sizeof(double) +
                        (size_t)(scratch * (c.row_count + 1)) * sizeof(float);
    if (action == GPUNN__PREPARE) {
        if (c.samples > INT32_MAX || c.most > INT32_MAX / 4)
            return gpunn__cuda_fail(
                cuda, GPUNN_ERR_UNSUPPORTED,
                "there are more than 2^31 - 1 samples, or more than 2^29 - 1 labels in one");
        if (!step->backward) step->saved_bytes = step->training ? kept : 0;
        if (step->backward)
            step->workspace_bytes = (size_t)scratch * 4 * sizeof(float);
        else
            step->workspace_bytes = step->training ? 0 : kept;
        return GPUNN_OK;
    }
    c.x = in[0].data;
    c.x_type = in[0].dtype;
    c.targets = in[1].data;
    c.target_type = in[1].dtype;
    c.input_lengths = in[2].data;
    c.input_type = in[2].dtype;
    c.target_lengths = in[3].data;
    c.length_type = in[3].dtype;
    c.training = step->training;
    c.reduction = step->attr->reduction;
    c.blank = step->attr->blank;
    c.zero_infinity = step->attr->zero_infinity;
    c.loss = (double *)(step->training ? step->saved : step->workspace);
    c.offset = c.loss + c.samples;
    c.rows = (float *)(c.loss + doubles);
    c.skip = c.rows + scratch * c.row_count;
    unsigned threads = c.row > 512 ? 512 : (unsigned)(c.row + 31) / 32 * 32;
    if (action == GPUNN__BACKWARD) {
        if (!step->grad_in[0].data) return GPUNN_OK;
        c.out = step->grad_in[0].data;
        c.out_type = step->grad_in[0].dtype;
        c.gradient = step->grad_out.data;
        c.gradient_type = step->grad_out.dtype;
        c.accumulate = step->accumulate[0];
        c.back = (float *)step->workspace;
        c.terms = c.back + 2 * scratch;
        c.next = (int *)(c.terms + scratch);
        return GPUNN__LAUNCH(cuda, gpunn__ctc_backward_kernel, (unsigned)c.samples, threads, c);
    }
    c.out = step->out.data;
    c.out_type = step->out.dtype;
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__ctc_forward_kernel, (unsigned)c.samples, threads, c));
    return GPUNN__LAUNCH(cuda, gpunn__ctc_total_kernel, 1, GPUNN__THREADS, c);
}

/* ==== >>cuda/attention =================================================================================== *
 * softmax(q k^T scale + mask) v. For 16-bit operands without dropout, cuDNN's fused attention does it.
 * cuDNN's dropout either draws by itself or reads l x s stored draws, but gpunn's dropout must be the same
 * on every backend. The general way is products of all heads with one kernel between them, which scales,
 * masks, applies softmax and drops. The backward pass recomputes the scores. Weights have the operands'
 * dtype, scores are F32. */
/* ---- cuDNN's fused attention: graphs of products, maps and reductions that it recognizes as a whole ---- */

#if GPUNN__CUDNN

enum {
    GPUNN__DNN_Q = 1, /* ids of tensors */
    GPUNN__DNN_K,
    GPUNN__DNN_V,
    GPUNN__DNN_O,
    GPUNN__DNN_LSE,
    GPUNN__DNN_DO,
    GPUNN__DNN_DQ,
    GPUNN__DNN_DK,
    GPUNN__DNN_DV,
    GPUNN__DNN_SUMS,
    GPUNN__DNN_DQ_SUMS,
    GPUNN__DNN_BIASES,
    GPUNN__DNN_ROWS,
    GPUNN__DNN_KEYS,
    GPUNN__DNN_SCALE, /* scalars passed from the host */
    GPUNN__DNN_ONE,
    GPUNN__DNN_MASKED,
    GPUNN__DNN_ATTENTION_BETWEEN, /* ids from here on are virtual tensors, never stored */
    GPUNN__DNN_ATTENTION_OPERATIONS = 32
};

typedef struct gpunn__dnn_flow { /* a graph under construction */
    gpunn__dnn_builder         *builder;
    const gpunn__dnn_attention *a;
    int64_t                     between;    /* the next id of a virtual tensor */
    cudnnBackendDescriptor_t    rows, keys; /* lengths per sample; NULL: all rows and keys */
    int                         count;
    cudnnBackendDescriptor_t    operations[GPUNN__DNN_ATTENTION_OPERATIONS];
} gpunn__dnn_flow;

static cudnnBackendDescriptor_t gpunn__dnn_value(gpunn__dnn_flow *flow, int64_t name, cudnnDataType_t type,
                                                 const int64_t dim[4], const int64_t stride[4])
{
    gpunn__dnn_builder      *builder = flow->builder;
    cudnnBackendDescriptor_t tensor = gpunn__dnn_make(builder, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const bool between = name == 0, number = name >= GPUNN__DNN_SCALE && name <= GPUNN__DNN_MASKED;
    gpunn__dnn_check_sizes(builder, 4, dim);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    gpunn__dnn_set_int(builder, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, between ? flow->between++ : name);
    gpunn__dnn_set_int(builder, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &between);
    if (number)
        gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &number);
    gpunn__dnn_finalize(builder, tensor);
    return tensor;
}

static cudnnDataType_t gpunn__dnn_half(const gpunn__dnn_flow *flow)
{
    return flow->a->dtype == GPUNN_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

/* The rows of each head in memory. transposed: rows and columns exchanged. */
static cudnnBackendDescriptor_t gpunn__dnn_rows(gpunn__dnn_flow *flow, int64_t name, int64_t heads,
                                                int64_t rows, int64_t e, const int64_t step[3],
                                                bool transposed)
{
    const int64_t dim[4] = {flow->a->n, heads, transposed ? e : rows, transposed ? rows : e};
    const int64_t stride[4] = {step[0], step[1], transposed ? 1 : step[2], transposed ? step[2] : 1};
    return gpunn__dnn_value(flow, name, gpunn__dnn_half(flow), dim, stride);
}

/* A virtual matrix per head of q. transposed: [columns, rows] of the same memory. */
static cudnnBackendDescriptor_t gpunn__dnn_matrix(gpunn__dnn_flow *flow, cudnnDataType_t type, int64_t rows,
                                                  int64_t columns, bool transposed)
{
    const int64_t heads = flow->a->heads,
                  dim[4] = {flow->a->n, heads, transposed ? columns : rows, transposed ? rows : columns};
    const int64_t stride[4] = {heads * rows * columns, rows * columns, transposed ? 1 : columns,
                               transposed ? columns : 1};
    return gpunn__dnn_value(flow, 0, type, dim, stride);
}

static cudnnBackendDescriptor_t gpunn__dnn_scores(gpunn__dnn_flow *flow, cudnnDataType_t type)
{
    return gpunn__dnn_matrix(flow, type, flow->a->l, flow->a->s, false);
}

/* One F32 per row of each head of q. */
static cudnnBackendDescriptor_t gpunn__dnn_column(gpunn__dnn_flow *flow, int64_t name)
{
    const int64_t dim[4] = {flow->a->n, flow->a->heads, flow->a->l, 1};
    const int64_t stride[4] = {flow->a->heads * flow->a->l, flow->a->l, 1, 1};
    return gpunn__dnn_value(flow, name, CUDNN_DATA_FLOAT, dim, stride);
}

static cudnnBackendDescriptor_t gpunn__dnn_number(gpunn__dnn_flow *flow, int64_t name)
{
    const int64_t one[4] = {1, 1, 1, 1};
    return gpunn__dnn_value(flow, name, CUDNN_DATA_FLOAT, one, one);
}

/* The number of rows or keys of each sample. NULL: all. */
static cudnnBackendDescriptor_t gpunn__dnn_lengths(gpunn__dnn_flow *flow, int64_t name)
{
    const int64_t dim[4] = {flow->a->n, 1, 1, 1}, stride[4] = {1, 1, 1, 1};
    return flow->a->padded ? gpunn__dnn_value(flow, name, CUDNN_DATA_INT32, dim, stride) : NULL;
}

/* Adds the operation to [m][n] = a [m][k] b [k][n]. The descriptors m, n and k hold the sizes of each sample;
 * NULL: the full size. */
static cudnnBackendDescriptor_t gpunn__dnn_product(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t a,
                                                   cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t m,
                                                   cudnnBackendDescriptor_t n, cudnnBackendDescriptor_t k,
                                                   cudnnBackendDescriptor_t to)
{
    gpunn__dnn_builder      *builder = flow->builder;
    cudnnBackendDescriptor_t product = gpunn__dnn_make(builder, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    gpunn__dnn_set_type(builder, product, CUDNN_ATTR_MATMUL_COMP_TYPE, GPUNN_F32);
    gpunn__dnn_finalize(builder, product);
    cudnnBackendDescriptor_t operation = gpunn__dnn_make(builder, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, product);
    if (m) gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m);
    if (n) gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n);
    if (k) gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k);
    gpunn__dnn_finalize(builder, operation);
    flow->operations[flow->count++] = operation;
    return to;
}

/* Adds the operation to = mode(x), mode(x, b), or, for BINARY_SELECT, t ? x : b. axis: for GEN_INDEX, else
 * -1. */
static cudnnBackendDescriptor_t gpunn__dnn_apply(gpunn__dnn_flow *flow, cudnnPointwiseMode_t mode,
                                                 int64_t axis, cudnnBackendDescriptor_t x,
                                                 cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t t,
                                                 cudnnBackendDescriptor_t to)
{
    gpunn__dnn_builder *builder = flow->builder;
    const bool          choice = mode == CUDNN_POINTWISE_CMP_GE || mode == CUDNN_POINTWISE_CMP_LT ||
                        mode == CUDNN_POINTWISE_LOGICAL_AND;
    const cudnnDataType_t    type = choice ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t function = gpunn__dnn_make(builder, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    gpunn__dnn_set(builder, function, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    gpunn__dnn_set(builder, function, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (axis >= 0) gpunn__dnn_set_int(builder, function, CUDNN_ATTR_POINTWISE_AXIS, axis);
    gpunn__dnn_finalize(builder, function);
    cudnnBackendDescriptor_t operation = gpunn__dnn_make(builder,
                                                         CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b) gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t) gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
    gpunn__dnn_finalize(builder, operation);
    flow->operations[flow->count++] = operation;
    return to;
}

static cudnnBackendDescriptor_t gpunn__dnn_reduce(gpunn__dnn_flow *flow, cudnnReduceTensorOp_t mode,
                                                  cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t to)
{
    gpunn__dnn_builder      *builder = flow->builder;
    cudnnBackendDescriptor_t reduction = gpunn__dnn_make(builder, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    gpunn__dnn_set_type(builder, reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, GPUNN_F32);
    gpunn__dnn_set(builder, reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
                   &mode);
    gpunn__dnn_finalize(builder, reduction);
    cudnnBackendDescriptor_t operation = gpunn__dnn_make(builder,
                                                         CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
    gpunn__dnn_finalize(builder, operation);
    flow->operations[flow->count++] = operation;
    return to;
}

/* Adds an operation that copies x into `to`, which has other strides. */
static cudnnBackendDescriptor_t gpunn__dnn_relayout(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t x,
                                                    cudnnBackendDescriptor_t to)
{
    cudnnBackendDescriptor_t operation = gpunn__dnn_make(flow->builder,
                                                         CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    gpunn__dnn_link(flow->builder, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    gpunn__dnn_link(flow->builder, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to);
    gpunn__dnn_finalize(flow->builder, operation);
    flow->operations[flow->count++] = operation;
    return to;
}

/* The index of each score's row (axis 2) or key (axis 3). */
static cudnnBackendDescriptor_t gpunn__dnn_index(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t x,
                                                 int64_t axis)
{
    return gpunn__dnn_apply(flow, CUDNN_POINTWISE_GEN_INDEX, axis, x, NULL, NULL,
                            gpunn__dnn_scores(flow, CUDNN_DATA_INT32));
}

/* Compares a with b by mode, for each score. */
static cudnnBackendDescriptor_t gpunn__dnn_compare_each(gpunn__dnn_flow *flow, cudnnPointwiseMode_t mode,
                                                        cudnnBackendDescriptor_t a,
                                                        cudnnBackendDescriptor_t b)
{
    return gpunn__dnn_apply(flow, mode, -1, a, b, NULL, gpunn__dnn_scores(flow, CUDNN_DATA_BOOLEAN));
}

/* The scores x, with -inf where seen is false. */
static cudnnBackendDescriptor_t gpunn__dnn_select(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t x,
                                                  cudnnBackendDescriptor_t seen)
{
    return gpunn__dnn_apply(flow, CUDNN_POINTWISE_BINARY_SELECT, -1, x,
                            gpunn__dnn_number(flow, GPUNN__DNN_MASKED), seen,
                            gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
}

/* The scores x, with -inf where the key comes after the row. */
static cudnnBackendDescriptor_t gpunn__dnn_causal(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t x)
{
    if (!flow->a->causal) return x;
    cudnnBackendDescriptor_t row = gpunn__dnn_index(flow, x, 2), key = gpunn__dnn_index(flow, x, 3);
    return gpunn__dnn_select(flow, x, gpunn__dnn_compare_each(flow, CUDNN_POINTWISE_CMP_GE, row, key));
}

/* The scores q k^T scale + bias, with -inf beyond the lengths. k is transposed. */
static cudnnBackendDescriptor_t gpunn__dnn_pairs(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t q,
                                                 cudnnBackendDescriptor_t k, cudnnBackendDescriptor_t scale)
{
    const int64_t *const     has = flow->a->bias;
    cudnnBackendDescriptor_t x = gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT);
    x = gpunn__dnn_product(flow, q, k, flow->rows, flow->keys, NULL, x);
    x = gpunn__dnn_apply(flow, CUDNN_POINTWISE_MUL, -1, x, scale, NULL,
                         gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    if (has[0]) {
        const int64_t            dim[4] = {has[0], has[1], has[2], flow->a->s};
        const int64_t            stride[4] = {has[1] * has[2] * has[3], has[2] * has[3], has[3], 1};
        cudnnBackendDescriptor_t bias = gpunn__dnn_value(flow, GPUNN__DNN_BIASES, CUDNN_DATA_FLOAT, dim,
                                                         stride);
        x = gpunn__dnn_apply(flow, CUDNN_POINTWISE_ADD, -1, x, bias, NULL,
                             gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    }
    if (!flow->a->padded) return x;
    cudnnBackendDescriptor_t row = gpunn__dnn_index(flow, x, 2), key = gpunn__dnn_index(flow, x, 3);
    row = gpunn__dnn_compare_each(flow, CUDNN_POINTWISE_CMP_LT, row, flow->rows);
    key = gpunn__dnn_compare_each(flow, CUDNN_POINTWISE_CMP_LT, key, flow->keys);
    return gpunn__dnn_select(flow, x, gpunn__dnn_compare_each(flow, CUDNN_POINTWISE_LOGICAL_AND, row, key));
}

/* x = mask(q k^T scale), e = exp(x - max x), o = (e / sum e) v, lse = max x + log sum e. */
static void gpunn__dnn_attention_forward(gpunn__dnn_flow *flow)
{
    const gpunn__dnn_attention *a = flow->a;
    cudnnBackendDescriptor_t    q = gpunn__dnn_rows(flow, GPUNN__DNN_Q, a->heads, a->l, a->e, a->q, false);
    cudnnBackendDescriptor_t    k = gpunn__dnn_rows(flow, GPUNN__DNN_K, a->kv_heads, a->s, a->e, a->k, true);
    cudnnBackendDescriptor_t    x = gpunn__dnn_pairs(flow, q, k, gpunn__dnn_number(flow, GPUNN__DNN_SCALE));
    x = gpunn__dnn_causal(flow, x);
    cudnnBackendDescriptor_t top = gpunn__dnn_reduce(flow, CUDNN_REDUCE_TENSOR_MAX, x,
                                                     gpunn__dnn_column(flow, 0));
    x = gpunn__dnn_apply(flow, CUDNN_POINTWISE_SUB, -1, x, top, NULL,
                         gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    x = gpunn__dnn_apply(flow, CUDNN_POINTWISE_EXP, -1, x, NULL, NULL,
                         gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    cudnnBackendDescriptor_t sum = gpunn__dnn_reduce(flow, CUDNN_REDUCE_TENSOR_ADD, x,
                                                     gpunn__dnn_column(flow, 0));
    cudnnBackendDescriptor_t log = gpunn__dnn_apply(flow, CUDNN_POINTWISE_LOG, -1, sum, NULL, NULL,
                                                    gpunn__dnn_column(flow, 0));
    (void)gpunn__dnn_apply(flow, CUDNN_POINTWISE_ADD, -1, top, log, NULL,
                           gpunn__dnn_column(flow, GPUNN__DNN_LSE));
    x = gpunn__dnn_apply(flow, CUDNN_POINTWISE_DIV, -1, x, sum, NULL,
                         gpunn__dnn_scores(flow, gpunn__dnn_half(flow)));
    cudnnBackendDescriptor_t v = gpunn__dnn_rows(flow, GPUNN__DNN_V, a->kv_heads, a->s, a->ev, a->v, false);
    (void)gpunn__dnn_product(flow, x, v, flow->rows, NULL, flow->keys,
                             gpunn__dnn_rows(flow, GPUNN__DNN_O, a->heads, a->l, a->ev, a->y, false));
}

/* The gradient of k or v: left right, summed over the heads of q that share one head of k or v. */
static void gpunn__dnn_shared(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t left,
                              cudnnBackendDescriptor_t right, int64_t name, int64_t e, const int64_t step[3])
{
    const gpunn__dnn_attention *a = flow->a;
    cudnnBackendDescriptor_t    to = gpunn__dnn_rows(flow, name, a->kv_heads, a->s, e, step, false);
    if (a->heads == a->kv_heads) {
        (void)gpunn__dnn_product(flow, left, right, flow->keys, NULL, flow->rows, to);
        return;
    }
    cudnnBackendDescriptor_t each = gpunn__dnn_matrix(flow, gpunn__dnn_half(flow), a->s, e, false);
    (void)gpunn__dnn_product(flow, left, right, flow->keys, NULL, flow->rows, each);
    (void)gpunn__dnn_reduce(flow, CUDNN_REDUCE_TENSOR_ADD, each, to);
}

/* p = exp(mask(q k^T scale - lse)), sums = the row sums of do o, dv = p^T do, ds = p (do v^T - sums) scale,
 * dk = ds^T q, dq = ds k. Without `adds` the result is bitwise reproducible, but the workspace takes 2 bytes
 * per score. With it, dq is summed in F32 in memory: every tile of keys adds to the sum as it ends. From
 * cuDNN 9.6 on, cuDNN sets this sum to 0 itself. */
static void gpunn__dnn_attention_backward(gpunn__dnn_flow *flow)
{
    const gpunn__dnn_attention *a = flow->a;
    const cudnnDataType_t       half = gpunn__dnn_half(flow);
    cudnnBackendDescriptor_t    q = gpunn__dnn_rows(flow, GPUNN__DNN_Q, a->heads, a->l, a->e, a->q, false);
    cudnnBackendDescriptor_t    o = gpunn__dnn_rows(flow, GPUNN__DNN_O, a->heads, a->l, a->ev, a->y, false);
    cudnnBackendDescriptor_t d_o = gpunn__dnn_rows(flow, GPUNN__DNN_DO, a->heads, a->l, a->ev, a->dy, false);
    cudnnBackendDescriptor_t scale = gpunn__dnn_number(flow, GPUNN__DNN_SCALE);
    cudnnBackendDescriptor_t both = gpunn__dnn_apply(
        flow, CUDNN_POINTWISE_MUL, -1, d_o, o, NULL,
        gpunn__dnn_matrix(flow, CUDNN_DATA_FLOAT, a->l, a->ev, false));
    cudnnBackendDescriptor_t sums = gpunn__dnn_reduce(flow, CUDNN_REDUCE_TENSOR_ADD, both,
                                                      gpunn__dnn_column(flow, 0));
    sums = gpunn__dnn_apply(flow, CUDNN_POINTWISE_MUL, -1, sums, gpunn__dnn_number(flow, GPUNN__DNN_ONE),
                            NULL, gpunn__dnn_column(flow, GPUNN__DNN_SUMS));
    cudnnBackendDescriptor_t k = gpunn__dnn_rows(flow, GPUNN__DNN_K, a->kv_heads, a->s, a->e, a->k, true);
    cudnnBackendDescriptor_t p = gpunn__dnn_pairs(flow, q, k, scale);
    p = gpunn__dnn_apply(flow, CUDNN_POINTWISE_SUB, -1, p, gpunn__dnn_column(flow, GPUNN__DNN_LSE), NULL,
                         gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    p = gpunn__dnn_causal(flow, p);
    p = gpunn__dnn_apply(flow, CUDNN_POINTWISE_EXP, -1, p, NULL, NULL,
                         gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    cudnnBackendDescriptor_t transposed = gpunn__dnn_relayout(
        flow, p, gpunn__dnn_matrix(flow, half, a->l, a->s, true));
    gpunn__dnn_shared(flow, transposed, d_o, GPUNN__DNN_DV, a->ev, a->dv);
    cudnnBackendDescriptor_t v = gpunn__dnn_rows(flow, GPUNN__DNN_V, a->kv_heads, a->s, a->ev, a->v, true);
    cudnnBackendDescriptor_t ds = gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT);
    ds = gpunn__dnn_product(flow, d_o, v, flow->rows, flow->keys, NULL, ds);
    ds = gpunn__dnn_apply(flow, CUDNN_POINTWISE_SUB, -1, ds, sums, NULL,
                          gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    ds = gpunn__dnn_apply(flow, CUDNN_POINTWISE_MUL, -1, ds, p, NULL,
                          gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    ds = gpunn__dnn_apply(flow, CUDNN_POINTWISE_MUL, -1, ds, scale, NULL,
                          gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    transposed = gpunn__dnn_relayout(flow, ds, gpunn__dnn_matrix(flow, half, a->l, a->s, true));
    gpunn__dnn_shared(flow, transposed, q, GPUNN__DNN_DK, a->e, a->dk);
    /* strides of the rows in memory: the engine reads k again, by these */
    const int64_t dim[4] = {a->n, a->kv_heads, a->s, a->e}, stride[4] = {a->k[0], a->k[1], a->k[2], 1};
    k = gpunn__dnn_relayout(flow, k, gpunn__dnn_value(flow, 0, CUDNN_DATA_FLOAT, dim, stride));
    cudnnBackendDescriptor_t dq = gpunn__dnn_rows(flow, GPUNN__DNN_DQ, a->heads, a->l, a->e, a->dq, false);
    if (!a->adds) {
        (void)gpunn__dnn_product(flow, ds, k, flow->rows, NULL, flow->keys, dq);
        return;
    }
    const int64_t sum_dim[4] = {a->n, a->heads, a->l, a->e},
                  sum_stride[4] = {a->heads * a->l * a->e, a->l * a->e, a->e, 1};
    cudnnBackendDescriptor_t sum = gpunn__dnn_value(flow, GPUNN__DNN_DQ_SUMS, CUDNN_DATA_FLOAT, sum_dim,
                                                    sum_stride);
    sum = gpunn__dnn_product(flow, ds, k, flow->rows, NULL, flow->keys, sum);
    (void)gpunn__dnn_apply(flow, CUDNN_POINTWISE_IDENTITY, -1, sum, NULL, NULL, dq);
}

static cudnnBackendDescriptor_t gpunn__dnn_attention_graph(gpunn__dnn_builder *builder)
{
    gpunn__dnn_flow flow;
    memset(&flow, 0, sizeof flow);
    flow.builder = builder;
    flow.a = builder->attention;
    flow.between = GPUNN__DNN_ATTENTION_BETWEEN;
    flow.rows = gpunn__dnn_lengths(&flow, GPUNN__DNN_ROWS);
    flow.keys = gpunn__dnn_lengths(&flow, GPUNN__DNN_KEYS);
    if (flow.a->backward)
        gpunn__dnn_attention_backward(&flow);
    else
        gpunn__dnn_attention_forward(&flow);
    return gpunn__dnn_operations(builder, flow.count, flow.operations);
}

static gpunn__dnn_choice *gpunn__dnn_attention_entry(gpunn__cuda *cuda, const gpunn__dnn_attention *a)
{
    bool fresh;
    return (gpunn__dnn_choice *)gpunn__cuda_cached(cuda, a, sizeof *a, sizeof(gpunn__dnn_choice),
                                                   gpunn__dnn_forget, &fresh);
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_prepare(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                          size_t *workspace_bytes)
{
    /* cuDNN ignores lengths up to 9.9 and has errors in 9.10.0 and 9.10.1 */
    if (cuda->libraries->dnn_module.version < 91002)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "attention needs cuDNN 9.10.2 or later");
    gpunn__dnn_choice *choice = gpunn__dnn_attention_entry(cuda, a);
    if (!choice) return GPUNN_ERR_MEMORY;
    if (!choice->searched) GPUNN__TRY(gpunn__dnn_search(cuda, NULL, a, gpunn__dnn_attention_graph, choice));
    if (choice->count == 0)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "cuDNN has no plan for this attention: %s",
                                choice->reason);
    *workspace_bytes = 0;
    for (int i = 0; i < choice->count; i++)
        if ((size_t)choice->plans[i].workspace > *workspace_bytes)
            *workspace_bytes = (size_t)choice->plans[i].workspace;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_run(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                      const gpunn__dnn_attention_data *data)
{
    static const float one = 1, masked = -INFINITY;
    const struct {
        int64_t     name;
        const void *pointer;
        bool        used;
    } all[] = {{GPUNN__DNN_Q, data->q, true},
               {GPUNN__DNN_K, data->k, true},
               {GPUNN__DNN_V, data->v, true},
               {GPUNN__DNN_O, data->y, true},
               {GPUNN__DNN_LSE, data->lse, true},
               {GPUNN__DNN_SCALE, &data->scale, true},
               {GPUNN__DNN_MASKED, &masked, a->causal || a->padded},
               {GPUNN__DNN_BIASES, data->bias, a->bias[0] != 0},
               {GPUNN__DNN_ROWS, data->lengths, a->padded != 0},
               {GPUNN__DNN_KEYS, data->lengths + (a->padded ? a->n : 0), a->padded != 0},
               {GPUNN__DNN_DO, data->dy, a->backward != 0},
               {GPUNN__DNN_DQ, data->dq, a->backward != 0},
               {GPUNN__DNN_DK, data->dk, a->backward != 0},
               {GPUNN__DNN_DV, data->dv, a->backward != 0},
               {GPUNN__DNN_SUMS, data->sums, a->backward != 0},
               {GPUNN__DNN_DQ_SUMS, data->dq_sums, a->adds != 0},
               {GPUNN__DNN_ONE, &one, a->backward != 0}};
    gpunn__dnn_choice *choice = gpunn__dnn_attention_entry(cuda, a);
    if (!choice) return GPUNN_ERR_MEMORY;
    if (choice->count == 0) return gpunn__cuda_fail(cuda, GPUNN_ERR_STATE, "this attention was not prepared");
    int64_t     count = 0, names[sizeof all / sizeof *all];
    const void *pointers[sizeof all / sizeof *all];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].used) names[count] = all[i].name, pointers[count++] = all[i].pointer;
    return gpunn__dnn_launch(cuda, choice, count, names, pointers, data->workspace, true);
}
#elif !defined(GPUNN__EMULATOR) /* no cudnn.h: products and a kernel between them */
GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_prepare(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                          size_t *workspace_bytes)
{
    (void)a, (void)workspace_bytes;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                            "gpunn_cuda.cu was compiled where there was no cudnn.h");
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_run(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                      const gpunn__dnn_attention_data *data)
{
    (void)data;
    return gpunn__dnn_attention_prepare(cuda, a, NULL);
}
#endif
typedef struct gpunn__attention {
    /* rows of s scores, [n, heads, l]. x: the scores q k^T; gradient: dy v^T; out: the weights or ds */
    gpunn__along   a;
    int64_t        heads, l;
    const void    *mask; /* NULL: none */
    bool           choice, causal;
    gpunn__lengths lengths;
    int64_t        mask_step[4]; /* strides over samples, heads, rows and keys */
    float          scale;
    /* per row, the largest score and 1 / the sum of exp (0: it sees no key); NULL: not wanted */
    float2 *sums;
    /* backward: floats per row in sums. 2, or 1 if cuDNN has saved the log of the sum of exp */
    int                        apart;
    void                      *weights; /* backward: receives the weights after dropout, in out's dtype */
    const gpunn__device_state *state;
    unsigned                   random_stream, keep; /* keep 65536: nothing is dropped */
} gpunn__attention;

/* What the scores of one row share. */
typedef struct gpunn__attention_row {
    int64_t mask, end; /* mask: offset of the row's mask; end: number of keys that it sees */
    float   scale;     /* NaN if the length is out of range */
} gpunn__attention_row;

__device__ __forceinline__ gpunn__attention_row gpunn__attention_row_of(const gpunn__attention &t,
                                                                        int64_t                 index)
{
    const int64_t head = gpunn__quotient(index, t.l), sample = gpunn__quotient(head, t.heads),
                  row = index - head * t.l;
    const int64_t        length = index < t.a.rows ? gpunn__length_of(&t.lengths, sample, t.a.n) : t.a.n;
    const bool           fits = length >= 0 && length <= t.a.n;
    gpunn__attention_row own = {
        sample * t.mask_step[0] + (head - sample * t.heads) * t.mask_step[1] + row * t.mask_step[2],
        fits ? gpunn__keys_seen(&t.lengths, length, t.causal, row, t.l) : t.a.n, fits ? t.scale : NAN};
    return own;
}

/* Loads, scales and masks scores i .. i + N - 1, which belong to keys from c on. */
template <int N>
__device__ __forceinline__ void gpunn__attention_scores(const gpunn__attention     &t,
                                                        const gpunn__attention_row &row, int64_t i, int64_t c,
                                                        float *v)
{
    gpunn__strided_load<N>(t.a.x, GPUNN_F32, i, 1, v);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int64_t at = row.mask + (c + j) * t.mask_step[3];
        v[j] *= row.scale;
        if (t.mask && !t.choice) v[j] += ((const float *)t.mask)[at];
        if (c + j >= row.end || (t.mask && t.choice && !((const unsigned char *)t.mask)[at]))
            v[j] = -INFINITY;
    }
}

/* The dropout factors of weights i .. i + N - 1. If N is 8, i is a multiple of 8. */
template <int N>
__device__ __forceinline__ void gpunn__attention_drop(const gpunn__attention &t, int64_t i, float *factor)
{
    const float scale = gpunn__drop_scale(t.keep);
    uint32_t    word[4];
    gpunn__drop_draw(t.state, t.random_stream, (uint64_t)i / GPUNN__PACK, word);
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) {
        const float kept = gpunn__drop_factor(word, j, t.keep, scale);
        if (N == GPUNN__PACK)
            factor[j] = kept;
        else if (j == (int)(i % GPUNN__PACK))
            factor[0] = kept;
    }
}

/* First pass over a row: the largest score and the sum of exp(score - largest). */
struct gpunn__attention_sum {
    const gpunn__attention     &t;
    const gpunn__attention_row &row;
    float                       top, sum;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float v[N], most = top;
        gpunn__attention_scores<N>(t, row, i, c, v);
#pragma unroll
        for (int j = 0; j < N; j++) most = v[j] > most ? v[j] : most;
        sum *= expf(top - most);
        top = most;
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = expf(v[j] - most);
        sum += gpunn__pack_reduce<N>(v, gpunn__add());
    }
};

/* Second pass over a row: writes the weights, after dropout. */
struct gpunn__attention_weigh {
    const gpunn__attention     &t;
    const gpunn__attention_row &row;
    float                       top, factor;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float v[N], kept[N];
        gpunn__attention_scores<N>(t, row, i, c, v);
        if (t.keep < 65536) gpunn__attention_drop<N>(t, i, kept);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = expf(v[j] - top) * factor * (t.keep < 65536 ? kept[j] : 1);
        gpunn__strided_store<N>(t.a.out, t.a.out_type, i, 1, v, false);
    }
};

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__attention_kernel(const gpunn__attention t)
{
    GPUNN__FOLLOW();
    for (int64_t first = gpunn__along_first(t.a); first < t.a.rows; first += gpunn__along_step(t.a)) {
        const gpunn__strided_row   row = gpunn__along_row(t.a, first);
        const gpunn__attention_row own = gpunn__attention_row_of(t, row.index);
        gpunn__attention_sum       s = {t, own, -3.402823466e38f, 0};
        gpunn__strided_visit(row, s);
        const float            top = gpunn__lanes_reduce(s.top, gpunn__larger(), t.a.lanes);
        const float            sum = gpunn__lanes_reduce(s.sum * expf(s.top - top), gpunn__add(), t.a.lanes);
        gpunn__attention_weigh weigh = {t, own, top, sum == 0 ? 0 : 1 / sum};
        gpunn__strided_visit(row, weigh);
        if (t.sums && row.index < t.a.rows && row.thread == 0)
            t.sums[row.index] = make_float2(top, weigh.factor);
    }
}

/* Recomputes p, the weights before dropout, and dp, multiplied by the dropout factors. */
template <int N>
__device__ __forceinline__ void gpunn__attention_again(const gpunn__attention     &t,
                                                       const gpunn__attention_row &row, float2 sums,
                                                       int64_t i, int64_t c, float *p, float *dp, float *kept)
{
    gpunn__attention_scores<N>(t, row, i, c, p);
    gpunn__strided_load<N>(t.a.gradient, GPUNN_F32, i, 1, dp);
    if (t.keep < 65536) gpunn__attention_drop<N>(t, i, kept);
#pragma unroll
    for (int j = 0; j < N; j++) {
        kept[j] = t.keep < 65536 ? kept[j] : 1;
        p[j] = expf(p[j] - sums.x) * sums.y;
        dp[j] *= kept[j];
    }
}

/* First backward pass over a row: the sum of p dp. */
struct gpunn__attention_dot {
    const gpunn__attention     &t;
    const gpunn__attention_row &row;
    float2                      sums;
    float                       sum;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float p[N], dp[N], kept[N];
        gpunn__attention_again<N>(t, row, sums, i, c, p, dp, kept);
#pragma unroll
        for (int j = 0; j < N; j++) dp[j] *= p[j];
        sum += gpunn__pack_reduce<N>(dp, gpunn__add());
    }
};

/* Second backward pass over a row: writes the weights and ds = p (dp - sum) scale. */
struct gpunn__attention_ds_visit {
    const gpunn__attention     &t;
    const gpunn__attention_row &row;
    float2                      sums;
    float                       sum;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float p[N], dp[N], kept[N];
        gpunn__attention_again<N>(t, row, sums, i, c, p, dp, kept);
#pragma unroll
        for (int j = 0; j < N; j++) {
            dp[j] = p[j] * (dp[j] - sum) * t.scale;
            p[j] *= kept[j];
        }
        gpunn__strided_store<N>(t.weights, t.a.out_type, i, 1, p, false);
        gpunn__strided_store<N>(t.a.out, t.a.out_type, i, 1, dp, false);
    }
};

/* The weights and ds may overwrite the scores and dp. */
static __global__ void __launch_bounds__(GPUNN__THREADS, 3)
    gpunn__attention_backward_kernel(const gpunn__attention t)
{
    GPUNN__FOLLOW();
    for (int64_t first = gpunn__along_first(t.a); first < t.a.rows; first += gpunn__along_step(t.a)) {
        const gpunn__strided_row   row = gpunn__along_row(t.a, first);
        const gpunn__attention_row own = gpunn__attention_row_of(t, row.index);
        const float         *saved = (const float *)t.sums + (row.index < t.a.rows ? row.index : 0) * t.apart;
        const float2         sums = make_float2(saved[0], t.apart == 2 ? saved[1] : 1);
        gpunn__attention_dot dot = {t, own, sums, 0};
        gpunn__strided_visit(row, dot);
        gpunn__attention_ds_visit dx_visit = {t, own, sums,
                                              gpunn__lanes_reduce(dot.sum, gpunn__add(), t.a.lanes)};
        gpunn__strided_visit(row, dx_visit);
    }
}

/* d[m][n] (=, +=) a b for every head of q. With sum, d is a head of k: the products of the heads of q that it
 * serves are added up. */
static gpunn_status gpunn__attention_product(gpunn__cuda *cuda, const gpunn_step *step,
                                             const gpunn__attention_shape *c, int64_t m, int64_t n, int64_t k,
                                             const gpunn__heads *a, bool transpose_a, const gpunn__heads *b,
                                             bool transpose_b, const gpunn__heads *d, bool sum,
                                             bool accumulate, gpunn__action action)
{
    const gpunn__heads *const value[3] = {a, b, d};
    const int64_t             heads_per_kv = c->heads / c->kv_heads;
    /* strides between the heads of q that share a head of k, and between heads of k */
    int64_t        inner[3], outer[3];
    gpunn__walk    kept, summed;
    gpunn__product p;
    memset(&p, 0, sizeof p);
    memset(&kept, 0, sizeof kept);
    memset(&summed, 0, sizeof summed);
    p.m = m, p.n = n, p.k = k, p.batch = 1;
    p.transpose_a = transpose_a, p.transpose_b = transpose_b;
    p.lda = a->rows, p.ldb = b->rows, p.ldd = d->rows;
    p.dtype = a->dtype, p.d_dtype = d->dtype, p.precision = step->precision;
    p.a = a->data, p.b = b->data, p.d = d->data;
    p.accumulate = accumulate;
    for (int i = 0; i < 3; i++) {
        const bool shared = i == (sum ? 2 : 1) &&
                            heads_per_kv > 1; /* this operand has a head per head of k */
        inner[i] = shared ? 0 : value[i]->heads;
        outer[i] = shared ? value[i]->heads : heads_per_kv * value[i]->heads;
    }
    gpunn__axes_add(sum ? &summed : &kept, heads_per_kv, inner[0], inner[1], inner[2]);
    gpunn__axes_add(&kept, c->kv_heads, outer[0], outer[1], outer[2]);
    gpunn__axes_add(&kept, c->n, a->samples, b->samples, d->samples);
    return gpunn__repeated_products(cuda, p, kept, &summed, action);
}

/* Workspace for the scores of every head. */
static gpunn__heads gpunn__attention_head_scores(gpunn__arena *arena, const gpunn__attention_shape *c,
                                                 gpunn_dtype dtype)
{
    const int64_t samples = c->heads * c->l * c->s;
    gpunn__heads  h = {(char *)gpunn__arena_take(arena, gpunn__bytes(dtype, c->n * samples)), dtype, samples,
                       c->l * c->s, c->s};
    return h;
}

static gpunn__attention gpunn__attention_of(gpunn__cuda *cuda, const gpunn_step *step,
                                            const gpunn__attention_shape *c)
{
    const gpunn_value *mask = &step->in[3];
    gpunn__attention   t;
    memset(&t, 0, sizeof t);
    t.a.rows = c->n * c->heads * c->l;
    t.a.n = c->s;
    t.a.inner = 1;
    t.a.lanes = gpunn__lanes_of(cuda, t.a.rows, t.a.n, 1);
    t.heads = c->heads;
    t.l = c->l;
    t.mask = mask->data;
    t.choice = mask->dtype == GPUNN_BOOL;
    t.causal = step->attr->is_causal;
    t.lengths = gpunn__attention_lengths(step);
    gpunn__attention_mask_steps(mask, t.mask_step);
    t.scale = step->attr->scale;
    t.sums = step->training ? (float2 *)step->saved : NULL;
    t.apart = step->saved_bytes == (size_t)t.a.rows * sizeof *t.sums ? 2 : 1;
    t.state = cuda->state;
    t.random_stream = step->attr->random_stream;
    t.keep = gpunn__drop_keep(step);
    return t;
}

static void gpunn__attention_steps(int64_t step[3], const gpunn__heads *h)
{
    step[0] = h->samples, step[1] = h->heads, step[2] = h->rows;
}

/* ---- around cuDNN's attention: the mask as added F32 numbers, and rows that see no key ----
 * cuDNN gives NaN for a row that is all -inf. The mask therefore uses large finite numbers, beside which
 * every score vanishes. The log sum exp of a row shows whether it saw nothing but these. */

#define GPUNN__HIDDEN (-2e30f)        /* a key that is not seen */
#define GPUNN__LEAST (-1e30f)         /* a mask's lowest value other than -inf */
enum { GPUNN__ATTENTION_TILE = 128 }; /* rows and keys per tile, the most in cuDNN's kernels */

/* Writes to [rows][pitch] a mask of rows of s or, if mask_s is 1, of one number per row. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__attention_bias_kernel(const void *mask, bool choice, int64_t mask_s, float *to, int64_t rows,
                                 int64_t s, int64_t pitch)
{
    GPUNN__FOLLOW();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * pitch;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = gpunn__quotient(i, pitch), c = i - row * pitch,
                      at = mask_s == 1 ? row : row * mask_s + c;
        float x = GPUNN__HIDDEN;
        if (c < s && choice)
            x = ((const unsigned char *)mask)[at] ? 0 : GPUNN__HIDDEN;
        else if (c < s && ((const float *)mask)[at] != -INFINITY) /* NaN stays NaN */
            x = ((const float *)mask)[at] < GPUNN__LEAST ? GPUNN__LEAST : ((const float *)mask)[at];
        to[i] = x;
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__attention_lengths_kernel(int *to, int64_t n, int rows, int keys)
{
    GPUNN__FOLLOW();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < 2 * n;
         i += (int64_t)gridDim.x * blockDim.x)
        to[i] = i < n ? rows : keys;
}

/* Sets rows that see no key to 0, and their lse so that their weights are 0 in the backward pass, too. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__attention_unseen_kernel(const gpunn__dnn_attention a, float *lse, void *y)
{
    GPUNN__FOLLOW();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.n * a.heads * a.l;
         i += (int64_t)gridDim.x * blockDim.x) {
        if (!(lse[i] < 0.5f * (GPUNN__HIDDEN + GPUNN__LEAST))) continue;
        const int64_t head = gpunn__quotient(i, a.l), sample = gpunn__quotient(head, a.heads),
                      row = i - head * a.l;
        const int64_t first = sample * a.y[0] + (head - sample * a.heads) * a.y[1] + row * a.y[2];
        for (int64_t c = 0; c < a.ev; c++) gpunn__store(y, (gpunn_dtype)a.dtype, first + c, 0);
        lse[i] = -GPUNN__HIDDEN;
    }
}

/* Runs cuDNN's attention, with the kernels that prepare lengths and mask and clear unseen rows. */
static gpunn_status gpunn__attention_run(gpunn__cuda *cuda, const gpunn_value *mask,
                                         const gpunn__dnn_attention *a, const gpunn__dnn_attention_data *data)
{
    const int64_t rows = a->bias[0] * a->bias[1] * a->bias[2], lines = a->n * a->heads * a->l;
    if (a->padded)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__attention_lengths_kernel, gpunn__blocks(cuda, 2 * a->n, 1),
                                 GPUNN__THREADS, data->lengths, a->n, (int)a->l, (int)a->s));
    if (rows)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__attention_bias_kernel,
                                 gpunn__blocks(cuda, rows * a->bias[3], 1), GPUNN__THREADS, mask->data,
                                 mask->dtype == GPUNN_BOOL, mask->rank ? mask->dim[mask->rank - 1] : 1,
                                 data->bias, rows, a->s, a->bias[3]));
    GPUNN__TRY(gpunn__dnn_attention_run(cuda, a, data));
    if (!rows || a->backward) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__attention_unseen_kernel, gpunn__blocks(cuda, lines, 1), GPUNN__THREADS,
                         *a, (float *)data->lse, data->y);
}

/* Chooses a plan. A backward pass prefers the reproducible form. If cuDNN has no plan for it and the device
 * need not be deterministic, it uses the form that adds in memory. On compute capability 10.x the first form
 * does not guarantee reproducibility: an engine adds in a fixed order or in any, as its knobs say, and
 * heuristics choose these (override_heuristics_query in cudnn-frontend's node for attention). */
static gpunn_status gpunn__attention_plan(gpunn__cuda *cuda, gpunn__dnn_attention *key, size_t *bytes)
{
    if (key->backward && cuda->args.deterministic && cuda->capability / 10 == 10)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "on this GPU cuDNN's gradients are not deterministic");
    const gpunn_status status = gpunn__dnn_attention_prepare(cuda, key, bytes);
    if (status != GPUNN_ERR_UNSUPPORTED || !key->backward) return status;
    if (cuda->args.deterministic) {
        char why[sizeof cuda->text];
        (void)snprintf(why, sizeof why, "%s", cuda->text);
        return gpunn__cuda_fail(cuda, status,
                                "%.400s; the plans that need less workspace are not deterministic", why);
    }
    key->adds = 1;
    return gpunn__dnn_attention_prepare(cuda, key, bytes);
}

/* The reason why a 16-bit attention is not given to cuDNN, or NULL if there is none. */
static const char *gpunn__attention_obstacle(const gpunn_step *step, const gpunn__attention_shape *c)
{
    const gpunn_dtype dtype = step->in[0].dtype;
    if ((step->backward ? step->grad_out.dtype : step->out.dtype) != dtype)
        return "its result has another dtype";
    if (step->training && !step->evaluates && step->attr->dropout_p > 0)
        return "cuDNN uses its own random numbers for dropout_p";
    if (c->e % 8 != 0 || c->ev % 8 != 0) return "cuDNN needs head sizes that are multiples of 8";
    if (step->input_count > 4) return "the lengths are known only when it runs";
    if (c->l > INT32_MAX || c->s > INT32_MAX) return "cuDNN counts rows in 32 bits";
    /* Of size 8, cuDNN 9.14 made wrong gradients of q on an H200. */
    if (step->backward && (c->e % 16 != 0 || c->ev % 16 != 0))
        return "cuDNN's backward pass needs head sizes that are multiples of 16";
    if (step->backward && (c->l == 1 || c->s == 1))
        return "cuDNN has no backward pass for sequences of length 1";
    for (int i = 0; step->backward && i < (c->packed ? 1 : 3); i++)
        if (step->grad_in[i].data == NULL || step->grad_in[i].dtype != dtype || step->accumulate[i])
            return "cuDNN overwrites all gradients, in the dtype of the operands, and cannot accumulate";
    return NULL;
}

/* Whether cuDNN runs the step. If so, sets its key, its data and the total workspace bytes. The workspace
 * holds lse (evaluation) or sums (backward), the bias, the lengths, the sum of dq and last cuDNN's own
 * workspace. */
static gpunn_status gpunn__attention_fused(gpunn__cuda *cuda, const gpunn_step *step,
                                           gpunn__dnn_attention *key, gpunn__dnn_attention_data *data,
                                           size_t *bytes, bool *fused)
{
    const gpunn__attention_shape c = gpunn__attention_shape_of(step);
    const gpunn_dtype            dtype = step->in[0].dtype;
    *fused = false;
    if (dtype == GPUNN_F32 || !gpunn__dnn_available(cuda)) return GPUNN_OK;
    const char *obstacle = gpunn__attention_obstacle(step, &c);
    if (obstacle) {
        gpunn__dnn_slower(cuda, step, GPUNN__DNN_ATTENTION, obstacle);
        return GPUNN_OK;
    }
    int64_t *const steps[] = {key->q, key->k, key->v, key->dq, key->dk, key->dv};
    void **const   pointers[] = {&data->q, &data->k, &data->v, &data->dq, &data->dk, &data->dv};
    memset(key, 0, sizeof *key);
    memset(data, 0, sizeof *data);
    key->tag = GPUNN__ATTENTION_TAG;
    key->backward = step->backward;
    key->dtype = dtype;
    key->n = c.n, key->heads = c.heads, key->kv_heads = c.kv_heads, key->l = c.l, key->s = c.s, key->e = c.e,
    key->ev = c.ev;
    key->causal = step->attr->is_causal;
    for (int i = 0; i < (step->backward ? 6 : 3); i++) {
        const gpunn_value *value = (i < 3 ? step->in : step->grad_in) + (c.packed ? 0 : i % 3);
        const gpunn__heads h = gpunn__attention_heads(&c, value, i % 3);
        gpunn__attention_steps(steps[i], &h);
        *pointers[i] = h.data;
    }
    const gpunn__heads out = gpunn__attention_heads(&c, &step->out, 3);
    gpunn__attention_steps(key->y, &out);
    if (step->backward) gpunn__attention_steps(key->dy, &out);
    data->y = step->out.data;
    data->dy = step->grad_out.data;
    data->scale = step->attr->scale;
    /* Backward kernels treat keys of a tile beyond the last one as scores of 0. That gives NaN for rows whose
     * log sum exp is below -88, unless the kernels know the lengths. */
    key->padded = step->backward && (c.l % GPUNN__ATTENTION_TILE != 0 || c.s % GPUNN__ATTENTION_TILE != 0);
    const gpunn_value *mask = &step->in[3];
    for (int d = 0; mask->data && d < 3; d++) {
        const int axis = d + mask->rank - 4;
        key->bias[d] = axis < 0 ? 1 : mask->dim[axis];
        key->bias[3] = (c.s + 15) / 16 * 16;
    }
    const int64_t bias = key->bias[0] * key->bias[1] * key->bias[2] * key->bias[3];
    gpunn__arena  arena = {(char *)step->workspace, 0};
    data->sums = gpunn__arena_take(
        &arena, step->backward || !step->training ? gpunn__bytes(GPUNN_F32, c.n * c.heads * c.l) : 0);
    data->lse = step->training ? step->saved : data->sums;
    data->bias = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, bias));
    data->lengths = (int *)gpunn__arena_take(&arena,
                                             key->padded ? 2 * (size_t)c.n * sizeof *data->lengths : 0);
    const gpunn_status status = gpunn__attention_plan(cuda, key, bytes);
    data->dq_sums = gpunn__arena_take(&arena,
                                      key->adds ? gpunn__bytes(GPUNN_F32, c.n * c.heads * c.l * c.e) : 0);
    data->workspace = gpunn__arena_take(&arena, 0);
    *bytes += arena.bytes;
    *fused = status == GPUNN_OK;
    if (status != GPUNN_ERR_UNSUPPORTED) return status;
    gpunn__dnn_slower(cuda, step, GPUNN__DNN_ATTENTION, cuda->text);
    return GPUNN_OK;
}

/* Fails if the scores cannot fit: the general way stores whole matrices of them. */
static gpunn_status gpunn__attention_check(gpunn__cuda *cuda, const gpunn__attention_shape *c)
{
    const double scores = (double)(c->n * c->heads * c->l) * (double)c->s;
    if (scores < 1e15) return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_MEMORY,
                            "%.0f scores do not fit a GPU's memory; use a smaller batch or shorter rows",
                            scores);
}

static gpunn_status gpunn__attention_forward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__attention_shape c = gpunn__attention_shape_of(step);
    GPUNN__TRY(gpunn__attention_check(cuda, &c));
    gpunn__heads part[3];
    gpunn__arena arena = {(char *)step->workspace, 0};
    for (int i = 0; i < 3; i++) part[i] = gpunn__attention_heads(&c, &step->in[c.packed ? 0 : i], i);
    const gpunn__heads y = gpunn__attention_heads(&c, &step->out, 3);
    const gpunn__heads scores = gpunn__attention_head_scores(&arena, &c, GPUNN_F32);
    const bool         same = part[0].dtype == GPUNN_F32;
    const gpunn__heads weights = same ? scores : gpunn__attention_head_scores(&arena, &c, part[0].dtype);
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = arena.bytes;
        if (step->training) step->saved_bytes = (size_t)(c.n * c.heads * c.l) * sizeof(float2);
    }
    GPUNN__TRY(gpunn__attention_product(cuda, step, &c, c.l, c.s, c.e, &part[0], false, &part[1], true,
                                        &scores, false, false, action));
    if (action != GPUNN__PREPARE) {
        gpunn__attention t = gpunn__attention_of(cuda, step, &c);
        t.a.x = scores.data;
        t.a.out = weights.data;
        t.a.out_type = weights.dtype;
        GPUNN__TRY(
            GPUNN__LAUNCH(cuda, gpunn__attention_kernel, gpunn__along_blocks(cuda, &t.a), GPUNN__THREADS, t));
    }
    return gpunn__attention_product(cuda, step, &c, c.l, c.ev, c.s, &weights, false, &part[2], false, &y,
                                    false, false, action);
}

/* The gradient of k (part 1) or v (part 2). If it is 16-bit and shared by heads of q, it is summed in F32
 * first. */
static gpunn_status gpunn__attention_shared(gpunn__cuda *cuda, gpunn_step *step,
                                            const gpunn__attention_shape *c, int part,
                                            const gpunn__heads *left, const gpunn__heads *right, size_t used,
                                            gpunn__action action)
{
    const int          operand = c->packed ? 0 : part;
    const int64_t      e = part == 1 ? c->e : c->ev;
    const gpunn_value *value = &step->grad_in[operand];
    gpunn__heads       d = gpunn__attention_heads(c, value, part);
    if (value->data == NULL) return GPUNN_OK;
    const bool  wide = value->dtype != GPUNN_F32 && c->heads != c->kv_heads;
    gpunn_value sums = *value;
    sums.data = gpunn__beyond((char *)step->workspace, used);
    sums.dtype = GPUNN_F32;
    if (wide) d = gpunn__attention_heads(c, &sums, part);
    if (wide && action == GPUNN__PREPARE &&
        step->workspace_bytes < used + gpunn__bytes(GPUNN_F32, value->count))
        step->workspace_bytes = used + gpunn__bytes(GPUNN_F32, value->count);
    GPUNN__TRY(gpunn__attention_product(cuda, step, c, c->s, e, c->l, left, true, right, false, &d, true,
                                        !wide && step->accumulate[operand], action));
    if (!wide || action == GPUNN__PREPARE) return GPUNN_OK;
    return gpunn__cuda_copy(cuda, value->data, value->dtype, d.data, GPUNN_F32, value->count,
                            step->accumulate[operand]);
}

static gpunn_status gpunn__attention_backward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__attention_shape c = gpunn__attention_shape_of(step);
    GPUNN__TRY(gpunn__attention_check(cuda, &c));
    gpunn__heads part[3];
    gpunn__arena arena = {(char *)step->workspace, 0};
    for (int i = 0; i < 3; i++) part[i] = gpunn__attention_heads(&c, &step->in[c.packed ? 0 : i], i);
    const bool         same = part[0].dtype == GPUNN_F32;
    const gpunn__heads dy = gpunn__attention_heads(&c, &step->grad_out, 3),
                       dq = gpunn__attention_heads(&c, &step->grad_in[0], 0);
    const gpunn__heads scores = gpunn__attention_head_scores(&arena, &c, GPUNN_F32);
    const gpunn__heads dp = gpunn__attention_head_scores(&arena, &c, GPUNN_F32);
    const gpunn__heads weights = same ? scores : gpunn__attention_head_scores(&arena, &c, part[0].dtype);
    const gpunn__heads ds = same ? dp : gpunn__attention_head_scores(&arena, &c, part[0].dtype);
    if (action == GPUNN__PREPARE) step->workspace_bytes = arena.bytes;
    GPUNN__TRY(gpunn__attention_product(cuda, step, &c, c.l, c.s, c.e, &part[0], false, &part[1], true,
                                        &scores, false, false, action));
    GPUNN__TRY(gpunn__attention_product(cuda, step, &c, c.l, c.s, c.ev, &dy, false, &part[2], true, &dp,
                                        false, false, action));
    if (action != GPUNN__PREPARE) {
        gpunn__attention t = gpunn__attention_of(cuda, step, &c);
        t.a.x = scores.data;
        t.a.gradient = dp.data;
        t.weights = weights.data;
        t.a.out = ds.data;
        t.a.out_type = ds.dtype;
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__attention_backward_kernel, gpunn__along_blocks(cuda, &t.a),
                                 GPUNN__THREADS, t));
    }
    if (dq.data) /* first, since all three may belong to one packed value */
        GPUNN__TRY(gpunn__attention_product(cuda, step, &c, c.l, c.e, c.s, &ds, false, &part[1], false, &dq,
                                            false, step->accumulate[0], action));
    GPUNN__TRY(gpunn__attention_shared(cuda, step, &c, 1, &ds, &part[0], arena.bytes, action));
    return gpunn__attention_shared(cuda, step, &c, 2, &weights, &dy, arena.bytes, action);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_scaled_dot_product_attention(gpunn__cuda *cuda, gpunn_step *step,
                                                                      gpunn__action action)
{
    const gpunn_value *in = step->in, *last = in[0].rank == 5 ? &in[0] : &in[2],
                      *y = step->backward ? &step->grad_out : &step->out;
    for (int i = 0; in[0].rank == 4 && i < 2; i++)
        GPUNN__TRY(gpunn__check_operands(cuda, &in[i], &in[i + 1], &in[i + 1]));
    GPUNN__TRY(gpunn__check_operands(cuda, step->backward ? y : last, last, y));
    gpunn__dnn_attention      key;
    gpunn__dnn_attention_data data;
    size_t                    bytes = 0;
    bool                      fused;
    GPUNN__TRY(gpunn__attention_fused(cuda, step, &key, &data, &bytes, &fused));
    if (fused && action == GPUNN__PREPARE) {
        step->workspace_bytes = bytes;
        if (step->training && !step->backward)
            step->saved_bytes = gpunn__bytes(GPUNN_F32, key.n * key.heads * key.l);
        return GPUNN_OK;
    }
    if (fused) return gpunn__attention_run(cuda, &in[3], &key, &data);
    return step->backward ? gpunn__attention_backward(cuda, step, action)
                          : gpunn__attention_forward(cuda, step, action);
}

/* ==== >>cuda/recurrent =================================================================================== *
 * rnn, lstm and gru: one layer, F32 in all precisions. cuDNN keeps all weights in one buffer, so they are
 * gathered there from PyTorch's layout, and their gradients are scattered back. cuDNN has PyTorch's order of
 * gates (rnn; lstm i f g o; gru r z n, r after the product) and its two biases.
 * Without cuDNN, the algorithm and the saved rows of gates are those of gpunn.h's >>cpu/recurrent. It takes
 * one product over all steps for the input, one for each gradient of a weight, and a product and a kernel
 * per step. */
#if GPUNN__CUDNN

typedef struct gpunn__dnn_rnn_choice { /* the cache entry of a gpunn__dnn_rnn */
    bool                     searched, usable;
    gpunn__dnn_rnn_sizes     sizes;
    cudnnRNNDescriptor_t     rnn;
    cudnnRNNDataDescriptor_t x, y;
    cudnnTensorDescriptor_t  state, matrix, bias;
    char                     reason[256];
} gpunn__dnn_rnn_choice;

static void gpunn__dnn_rnn_forget(gpunn__cuda *cuda, void *value)
{
    gpunn__dnn_rnn_choice   *choice = (gpunn__dnn_rnn_choice *)value;
    gpunn__libraries        *libraries = cuda->libraries;
    cudnnTensorDescriptor_t *tensors[] = {&choice->state, &choice->matrix, &choice->bias};
    if (choice->rnn) (void)libraries->cudnnDestroyRNNDescriptor(choice->rnn);
    if (choice->x) (void)libraries->cudnnDestroyRNNDataDescriptor(choice->x);
    if (choice->y) (void)libraries->cudnnDestroyRNNDataDescriptor(choice->y);
    for (int i = 0; i < 3; i++)
        if (*tensors[i]) (void)libraries->cudnnDestroyTensorDescriptor(*tensors[i]), *tensors[i] = NULL;
    choice->rnn = NULL, choice->x = choice->y = NULL;
}

/* Makes the descriptors, which needs no device. cuDNN 9 reads the sequence lengths here, on the host. */
static void gpunn__dnn_rnn_describe(gpunn__dnn_builder *builder, const gpunn__dnn_rnn *key,
                                    gpunn__dnn_rnn_choice *choice)
{
    const cudnnRNNMode_t mode = key->op == GPUNN_OP_LSTM  ? CUDNN_LSTM
                                : key->op == GPUNN_OP_GRU ? CUDNN_GRU
                                : key->relu               ? CUDNN_RNN_RELU
                                                          : CUDNN_RNN_TANH;
    const int            length = (int)key->length, batch = (int)key->batch, in = (int)key->in,
              hidden = (int)key->hidden;
    const int directions = (int)key->directions, dim[3] = {directions, batch, hidden},
              stride[3] = {batch * hidden, hidden, 1};
    const size_t  bytes = (size_t)batch * sizeof(int);
    int *const    lengths = (int *)gpunn__host_alloc(builder->cuda, bytes);
    const int64_t sizes[] = {key->length, key->batch, key->in, key->directions * key->hidden,
                             key->batch * key->hidden};
    if (lengths == NULL) {
        builder->status = GPUNN_ERR_MEMORY;
        (void)snprintf(builder->text, sizeof builder->text, "out of memory");
        return;
    }
    for (int i = 0; i < batch; i++) lengths[i] = length;
    gpunn__dnn_check_sizes(builder, 5, sizes);
    (void)GPUNN__DNN(builder, cudnnCreateRNNDescriptor, &choice->rnn);
    (void)GPUNN__DNN(builder, cudnnCreateRNNDataDescriptor, &choice->x);
    (void)GPUNN__DNN(builder, cudnnCreateRNNDataDescriptor, &choice->y);
    (void)GPUNN__DNN(builder, cudnnCreateTensorDescriptor, &choice->state);
    (void)GPUNN__DNN(builder, cudnnCreateTensorDescriptor, &choice->matrix);
    (void)GPUNN__DNN(builder, cudnnCreateTensorDescriptor, &choice->bias);
    (void)GPUNN__DNN(builder, cudnnSetRNNDescriptor_v8, choice->rnn, CUDNN_RNN_ALGO_STANDARD, mode,
                     key->bias ? CUDNN_RNN_DOUBLE_BIAS : CUDNN_RNN_NO_BIAS,
                     directions == 2 ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT,
                     CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT,
                     key->precision == GPUNN_PRECISION_TF32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH, in, hidden,
                     hidden, 1, NULL, CUDNN_RNN_PADDED_IO_ENABLED);
    (void)GPUNN__DNN(builder, cudnnSetRNNDataDescriptor, choice->x, CUDNN_DATA_FLOAT,
                     CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, length, batch, in, lengths, NULL);
    (void)GPUNN__DNN(builder, cudnnSetRNNDataDescriptor, choice->y, CUDNN_DATA_FLOAT,
                     CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, length, batch, directions * hidden, lengths,
                     NULL);
    (void)GPUNN__DNN(builder, cudnnSetTensorNdDescriptor, choice->state, CUDNN_DATA_FLOAT, 3, dim, stride);
    gpunn__host_free(builder->cuda, lengths, bytes);
}

/* Finds the offsets of the weights' parts. The gates of one matrix must be contiguous, as in PyTorch;
 * otherwise cuDNN is not used. */
static void gpunn__dnn_rnn_parts(gpunn__dnn_builder *builder, const gpunn__dnn_rnn *key,
                                 gpunn__dnn_rnn_choice *choice)
{
    gpunn__libraries *libraries = builder->cuda->libraries;
    char *const       base = (char *)libraries->lt_workspace; /* any address, since nothing is read from it */
    const int64_t     gates = gpunn__gates_of((gpunn_op)key->op);
    for (int64_t d = 0; d < key->directions; d++)
        for (int64_t g = 0; g < 2 * gates; g++) {
            void         *address[2] = {base, base};
            const int64_t size[2] = {key->hidden * (g < gates ? key->in : key->hidden), key->hidden};
            (void)GPUNN__DNN(builder, cudnnGetRNNWeightParams, libraries->dnn, choice->rnn, (int32_t)d,
                             choice->sizes.weights, base, (int32_t)g, choice->matrix, &address[0],
                             choice->bias, &address[1]);
            for (int i = 0; i < (key->bias ? 2 : 1) && builder->status == GPUNN_OK; i++) {
                int64_t *const first = &choice->sizes.part[d][2 * i + (g >= gates)];
                const int64_t  at = ((char *)address[i] - base) / (int64_t)sizeof(float);
                if (g % gates == 0) *first = at;
                if (at == *first + g % gates * size[i]) continue;
                builder->status = GPUNN_ERR_UNSUPPORTED;
                (void)snprintf(builder->text, sizeof builder->text,
                               "the weights of its gates are not contiguous");
            }
        }
}

static gpunn_status gpunn__dnn_rnn_search(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                          gpunn__dnn_rnn_choice *choice)
{
    gpunn__libraries     *libraries = cuda->libraries;
    gpunn__dnn_rnn_sizes *sizes = &choice->sizes;
    gpunn__dnn_builder    builder = {cuda, NULL, NULL, GPUNN_OK, "", 0, {}};
    gpunn__module_beside(&libraries->dnn_module, "libcudnn_adv.so.9");
    gpunn__dnn_rnn_describe(&builder, key, choice);
    (void)GPUNN__DNN(&builder, cudnnGetRNNWeightSpaceSize, libraries->dnn, choice->rnn, &sizes->weights);
    (void)GPUNN__DNN(&builder, cudnnGetRNNTempSpaceSizes, libraries->dnn, choice->rnn,
                     key->training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, choice->x,
                     &sizes->workspace, &sizes->reserve);
    gpunn__dnn_rnn_parts(&builder, key, choice);
    if (builder.status == GPUNN_OK && sizes->workspace > cuda->args.workspace_limit) {
        builder.status = GPUNN_ERR_UNSUPPORTED;
        (void)snprintf(builder.text, sizeof builder.text,
                       "it needs %llu bytes of workspace, but workspace_limit is %llu",
                       (unsigned long long)sizes->workspace, (unsigned long long)cuda->args.workspace_limit);
    }
    choice->usable = builder.status == GPUNN_OK;
    if (!choice->usable) gpunn__dnn_rnn_forget(cuda, choice);
    gpunn__dnn_clear_unsupported(&builder);
    if (builder.status != GPUNN_OK) return gpunn__dnn_fail(cuda, builder.status, builder.text);
    (void)snprintf(choice->reason, sizeof choice->reason, "%s", builder.text);
    choice->searched = true;
    return GPUNN_OK;
}

static gpunn__dnn_rnn_choice *gpunn__dnn_rnn_entry(gpunn__cuda *cuda, const gpunn__dnn_rnn *key)
{
    bool fresh;
    return (gpunn__dnn_rnn_choice *)gpunn__cuda_cached(cuda, key, sizeof *key, sizeof(gpunn__dnn_rnn_choice),
                                                       gpunn__dnn_rnn_forget, &fresh);
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_prepare(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                    gpunn__dnn_rnn_sizes *sizes)
{
    gpunn__dnn_rnn_choice *choice = gpunn__dnn_rnn_entry(cuda, key);
    if (!choice) return GPUNN_ERR_MEMORY;
    if (!choice->searched) GPUNN__TRY(gpunn__dnn_rnn_search(cuda, key, choice));
    if (!choice->usable)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "cuDNN cannot run this recurrent layer: %s",
                                choice->reason);
    *sizes = choice->sizes;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_run(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                const gpunn__dnn_rnn_data *data)
{
    cudnnHandle_t                handle = cuda->libraries->dnn;
    const gpunn__dnn_rnn_choice *c = gpunn__dnn_rnn_entry(cuda, key);
    gpunn__dnn_builder           builder = {cuda, NULL, NULL, GPUNN_OK, "", 0, {}};
    if (!c) return GPUNN_ERR_MEMORY;
    if (!c->usable) return gpunn__cuda_fail(cuda, GPUNN_ERR_STATE, "this recurrent layer was not prepared");
    const size_t weights = c->sizes.weights, workspace = c->sizes.workspace,
                 reserve = key->training ? c->sizes.reserve : 0;
    if (!data->backward)
        (void)GPUNN__DNN(&builder, cudnnRNNForward, handle, c->rnn,
                         key->training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, NULL, c->x,
                         data->x, c->y, data->y, c->state, data->h_0, data->h_n, c->state, data->c_0,
                         data->c_n, weights, data->weights, workspace, data->workspace, reserve,
                         data->reserve);
    else
        (void)GPUNN__DNN(&builder, cudnnRNNBackwardData_v8, handle, c->rnn, NULL, c->y, data->y, data->dy,
                         c->x, data->dx, c->state, data->h_0, data->dh_n, data->dh_0, c->state, data->c_0,
                         data->dc_n, data->dc_0, weights, data->weights, workspace, data->workspace, reserve,
                         data->reserve);
    if (data->dweights) /* after the previous call, whose reserve it reads */
        (void)GPUNN__DNN(&builder, cudnnRNNBackwardWeights_v8, handle, c->rnn, CUDNN_WGRAD_MODE_ADD, NULL,
                         c->x, data->x, c->state, data->h_0, c->y, data->y, weights, data->dweights,
                         workspace, data->workspace, reserve, data->reserve);
    if (builder.status == GPUNN_OK) return GPUNN_OK;
    GPUNN__TRY(gpunn__cuda_check(cuda, cudaGetLastError(), "cudnnRNN"));
    return gpunn__dnn_fail(cuda, builder.status, builder.text);
}
#elif !defined(GPUNN__EMULATOR) /* no cudnn.h: products and a kernel per step */
GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_prepare(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                    gpunn__dnn_rnn_sizes *sizes)
{
    (void)key, (void)sizes;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                            "gpunn_cuda.cu was compiled where there was no cudnn.h");
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_run(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                const gpunn__dnn_rnn_data *data)
{
    (void)data;
    return gpunn__dnn_rnn_prepare(cuda, key, NULL);
}
#endif
typedef struct gpunn__recurrent {
    int          op; /* gpunn_op */
    bool         relu;
    int64_t      length, batch, in, hidden, gates, width, directions, direction;
    int64_t      step;      /* counted in the order of the direction */
    float       *kept;      /* [length][batch][width] */
    float       *h, *c;     /* [batch][hidden]: the state or its gradient */
    const void  *h_0, *c_0; /* of this direction; NULL: 0 */
    gpunn_dtype  h_0_dtype, c_0_dtype, lengths_dtype;
    const void  *lengths; /* [batch]; NULL: all are `length` */
    const void  *reset;   /* [length][batch]; NULL: never */
    gpunn_dtype  reset_dtype;
    const float *ih, *hh; /* biases; NULL: none */
    float       *y;       /* [length][batch][directions][hidden] */
    const float *dy;
} gpunn__recurrent;

static __device__ __forceinline__ float gpunn__sigmoid_of(float x)
{
    return 1 / (1 + expf(-x));
}

static __device__ __forceinline__ int64_t gpunn__recurrent_time(const gpunn__recurrent &r, int64_t step)
{
    return r.direction ? r.length - 1 - step : step;
}

/* The length of sequence n, or -1 if it is out of range. */
static __device__ __forceinline__ int64_t gpunn__recurrent_length(const gpunn__recurrent &r, int64_t n)
{
    if (r.lengths == NULL) return r.length;
    int64_t length = gpunn__integer(r.lengths, r.lengths_dtype, n);
    return length < 1 || length > r.length ? -1 : length;
}

/* Whether sequence n continues from zeros at step s. Only one direction has resets. */
static __device__ __forceinline__ bool gpunn__recurrent_resets(const gpunn__recurrent &r, int64_t s,
                                                               int64_t n)
{
    return r.reset && s < gpunn__recurrent_length(r, n) &&
           gpunn__load(r.reset, r.reset_dtype, s * r.batch + n) != 0;
}

/* Element k of the state h that sequence n has before step s. */
static __device__ __forceinline__ float gpunn__recurrent_before(const gpunn__recurrent &r, int64_t s,
                                                                int64_t n, int64_t k)
{
    int64_t t = s > 0 ? gpunn__recurrent_time(r, s - 1) : r.length;
    if (gpunn__recurrent_resets(r, s, n)) return 0;
    if (t < gpunn__recurrent_length(r, n))
        return r.y[((t * r.batch + n) * r.directions + r.direction) * r.hidden + k];
    return r.h_0 ? gpunn__load(r.h_0, r.h_0_dtype, n * r.hidden + k) : 0;
}

/* One forward step of a direction: gates, state and y. Sequences that have ended keep their state. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__recurrent_cell_kernel(const gpunn__recurrent r)
{
    GPUNN__FOLLOW();
    const int64_t H = r.hidden, t = gpunn__recurrent_time(r, r.step);
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.batch * H;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t n = i / H, k = i - n * H, length = gpunn__recurrent_length(r, n);
        float  *gate = r.kept + (t * r.batch + n) * r.width + k, x[4], h = r.h[i], c = r.c[i], y = 0;
        if (length < 0) h = c = y = NAN;
        if (t < length) {
#pragma unroll
            for (int g = 0; g < 4; g++) {
                if (g >= r.gates) continue;
                x[g] = gate[g * H];
                if (r.ih) x[g] += r.ih[g * H + k];
                if (r.ih && !(r.op == GPUNN_OP_GRU && g == 2)) x[g] += r.hh[g * H + k];
            }
            if (r.op == GPUNN_OP_RNN) {
                const float positive = x[0] <= 0 ? 0 : x[0];
                h = r.relu ? positive : tanhf(x[0]);
                gate[0] = h;
            } else if (r.op == GPUNN_OP_LSTM) {
                x[0] = gpunn__sigmoid_of(x[0]);
                x[1] = gpunn__sigmoid_of(x[1]);
                x[2] = tanhf(x[2]);
                x[3] = gpunn__sigmoid_of(x[3]);
                c = x[1] * c + x[0] * x[2];
                h = x[3] * tanhf(c);
#pragma unroll
                for (int g = 0; g < 4; g++) gate[g * H] = x[g];
            } else {
                float q = gate[3 * H] + (r.hh ? r.hh[2 * H + k] : 0);
                x[0] = gpunn__sigmoid_of(x[0]);
                x[1] = gpunn__sigmoid_of(x[1]);
                x[2] = tanhf(x[2] + x[0] * q);
                h = x[2] + x[1] * (h - x[2]);
                gate[0] = x[0];
                gate[H] = x[1];
                gate[2 * H] = x[2];
                gate[3 * H] = q;
            }
            y = h;
        }
        if (r.op == GPUNN_OP_LSTM) gate[4 * H] = c;
        const bool anew = gpunn__recurrent_resets(r, r.step + 1, n);
        r.h[i] = anew ? 0 : h;
        r.c[i] = anew ? 0 : c;
        r.y[((t * r.batch + n) * r.directions + r.direction) * H + k] = y;
    }
}

/* One backward step of a direction: replaces the saved gates by their gradients and updates those of the
 * state. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__recurrent_cell_backward_kernel(const gpunn__recurrent r)
{
    GPUNN__FOLLOW();
    const int64_t H = r.hidden, t = gpunn__recurrent_time(r, r.step);
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.batch * H;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t    n = i / H, k = i - n * H, length = gpunn__recurrent_length(r, n);
        float     *gate = r.kept + (t * r.batch + n) * r.width + k;
        const bool cut = gpunn__recurrent_resets(r, r.step + 1, n);
        float      dh = cut ? 0 : r.h[i];
        if (t >= length) {
            for (int g = 0; g < r.width / H - (r.op == GPUNN_OP_LSTM); g++)
                gate[g * H] = length < 0 ? NAN : 0.0f;
            continue;
        }
        dh += r.dy[((t * r.batch + n) * r.directions + r.direction) * H + k];
        if (r.op == GPUNN_OP_RNN) {
            const float y = gate[0], passed = y <= 0 ? 0 : dh;
            gate[0] = r.relu ? passed : dh * (1 - y * y);
            dh = 0;
        } else if (r.op == GPUNN_OP_LSTM) {
            float in = gate[0], forget = gate[H], g = gate[2 * H], out = gate[3 * H],
                  tanh_c = tanhf(gate[4 * H]), before;
            if (gpunn__recurrent_resets(r, r.step, n))
                before = 0;
            else if (r.step > 0)
                before = gate[(r.direction ? r.batch : -r.batch) * r.width + 4 * H];
            else
                before = r.c_0 ? gpunn__load(r.c_0, r.c_0_dtype, i) : 0;
            float dc = (cut ? 0 : r.c[i]) + dh * out * (1 - tanh_c * tanh_c);
            gate[0] = dc * g * in * (1 - in);
            gate[H] = dc * before * forget * (1 - forget);
            gate[2 * H] = dc * in * (1 - g * g);
            gate[3 * H] = dh * tanh_c * out * (1 - out);
            r.c[i] = dc * forget;
            dh = 0;
        } else {
            float reset = gate[0], z = gate[H], g = gate[2 * H], q = gate[3 * H];
            float dn = dh * (1 - z) * (1 - g * g);
            gate[0] = dn * q * reset * (1 - reset);
            gate[H] = dh * (gpunn__recurrent_before(r, r.step, n, k) - g) * z * (1 - z);
            gate[2 * H] = dn;
            gate[3 * H] = dn * reset;
            dh *= z;
        }
        r.h[i] = dh;
    }
}

/* Sets the states, or their gradients, to 0 for sequences that reset at the first step. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__recurrent_reset_kernel(const gpunn__recurrent r)
{
    GPUNN__FOLLOW();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.batch * r.hidden;
         i += (int64_t)gridDim.x * blockDim.x)
        if (gpunn__recurrent_resets(r, 0, i / r.hidden)) r.h[i] = r.c[i] = 0;
}

/* to[time][n][hidden] = the h that each step starts from. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__recurrent_before_kernel(const gpunn__recurrent r, float *to)
{
    GPUNN__FOLLOW();
    int64_t count = r.length * r.batch * r.hidden;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / r.hidden, t = row / r.batch;
        to[i] = gpunn__recurrent_before(r, gpunn__recurrent_time(r, t), row - t * r.batch,
                                        i - row * r.hidden);
    }
}

static gpunn__recurrent gpunn__recurrent_of(const gpunn_step *step)
{
    const gpunn_value *hh = &step->in[GPUNN__WEIGHTS + 1];
    gpunn__recurrent   r;
    memset(&r, 0, sizeof r);
    r.op = step->op;
    r.relu = step->attr->relu;
    r.length = step->in[0].dim[0];
    r.batch = step->in[0].dim[1];
    r.in = step->in[0].dim[2];
    r.hidden = hh->dim[1];
    r.gates = hh->dim[0] / r.hidden;
    r.width = (r.gates + (step->op != GPUNN_OP_RNN)) * r.hidden;
    r.directions = step->attr->bidirectional ? 2 : 1;
    r.lengths = step->in[1].data;
    r.lengths_dtype = step->in[1].dtype;
    r.reset = step->in[GPUNN__RESET].data;
    r.reset_dtype = step->in[GPUNN__RESET].dtype;
    r.y = (float *)step->out.data;
    r.dy = (const float *)step->grad_out.data;
    return r;
}

/* Floats of one direction's saved gates, aligned. */
static int64_t gpunn__recurrent_kept(const gpunn__recurrent *r)
{
    return GPUNN__UP(r->length * r->batch * r->width, 64);
}

/* Selects direction d. */
static void gpunn__recurrent_relayout(gpunn__recurrent *r, const gpunn_step *step, int64_t d)
{
    const int64_t      states = r->batch * r->hidden;
    const gpunn_value *in = step->in + GPUNN__WEIGHTS + 4 * d;
    r->direction = d;
    r->kept = gpunn__beyond((float *)step->saved, d * gpunn__recurrent_kept(r));
    r->h_0 = step->in[2].data ? gpunn__element(step->in[2].data, step->in[2].dtype, d * states) : NULL;
    r->c_0 = step->in[3].data ? gpunn__element(step->in[3].data, step->in[3].dtype, d * states) : NULL;
    r->h_0_dtype = step->in[2].dtype;
    r->c_0_dtype = step->in[3].dtype;
    r->ih = (const float *)in[2].data;
    r->hh = (const float *)in[3].data;
}

/* to[i] = or += from[i], or 0 if from is NULL. Any alignment is possible. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__recurrent_copy_kernel(void *to, gpunn_dtype to_dtype, const void *from, gpunn_dtype from_dtype,
                                 int64_t count, bool add)
{
    GPUNN__FOLLOW();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        float x = from ? gpunn__load(from, from_dtype, i) : 0;
        gpunn__store(to, to_dtype, i, add ? gpunn__load(to, to_dtype, i) + x : x);
    }
}

static gpunn_status gpunn__recurrent_copy(gpunn__cuda *cuda, void *to, gpunn_dtype to_dtype, const void *from,
                                          gpunn_dtype from_dtype, int64_t count, bool add)
{
    return GPUNN__LAUNCH(cuda, gpunn__recurrent_copy_kernel, gpunn__blocks(cuda, count, 1), GPUNN__THREADS,
                         to, to_dtype, from, from_dtype, count, add);
}

/* The products of one step: gates += h W_hh^T, with gru's q separate. Backward: dh += gates W_hh. */
static gpunn_status gpunn__recurrent_step(gpunn__cuda *cuda, const gpunn_step *step,
                                          const gpunn__recurrent *r, gpunn__action action)
{
    const int64_t  H = r->hidden, t = r->direction ? r->length - 1 - r->step : r->step, rows = r->gates * H;
    float *const   gates = gpunn__beyond(r->kept, t * r->batch * r->width);
    const float   *weight = (const float *)step->in[GPUNN__WEIGHTS + 1 + 4 * r->direction].data;
    gpunn__product p[2];
    int            count = r->op == GPUNN_OP_GRU ? 2 : 1;
    for (int i = 0; i < count; i++) {
        memset(&p[i], 0, sizeof p[i]);
        p[i].batch = 1;
        p[i].dtype = p[i].d_dtype = GPUNN_F32;
        p[i].precision = step->precision;
        p[i].m = r->batch;
        p[i].n = p[i].ldd = H;
        p[i].k = i == 0 ? 2 * H : H;
        if (count == 1) p[i].k = rows;
        p[i].lda = r->width;
        p[i].ldb = H;
        p[i].a = gpunn__beyond(gates, 3 * i * H);
        p[i].b = weight + 2 * i * H * H;
        p[i].d = r->h;
        p[i].accumulate = true;
        if (step->backward) continue;
        p[i].n = p[i].k;
        p[i].k = p[i].lda = H;
        p[i].ldd = r->width;
        p[i].transpose_b = true;
        p[i].a = r->h;
        p[i].d = gpunn__beyond(gates, 3 * i * H);
        p[i].accumulate = i == 0;
    }
    for (int i = 0; i < count; i++) GPUNN__TRY(gpunn__products(cuda, &p[i], 1, action));
    return GPUNN_OK;
}

/* Operand i in F32, converted into the workspace if needed. */
static gpunn_status gpunn__recurrent_operand(gpunn__cuda *cuda, const gpunn_step *step, int i,
                                             gpunn__arena *arena, gpunn_value *x)
{
    const gpunn_value *from = &step->in[i];
    *x = *from;
    if (from->data == NULL || from->dtype == GPUNN_F32) return GPUNN_OK;
    x->dtype = GPUNN_F32;
    x->data = gpunn__arena_take(arena, gpunn__bytes(GPUNN_F32, x->count));
    if (x->data == NULL) return GPUNN_OK;
    return gpunn__cuda_copy(cuda, x->data, GPUNN_F32, from->data, from->dtype, x->count, false);
}

static gpunn_status gpunn__recurrent_forward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    gpunn__recurrent r = gpunn__recurrent_of(step);
    gpunn__arena     arena = {(char *)step->workspace, 0};
    const int64_t    states = r.batch * r.hidden, rows = r.gates * r.hidden, kept = gpunn__recurrent_kept(&r);
    const unsigned   blocks = gpunn__blocks(cuda, states, 1);
    const bool       run = action == GPUNN__FORWARD;
    gpunn_value      x, gates;
    r.h = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, states));
    r.c = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, states));
    float *const evaluation = step->training
                                  ? NULL
                                  : (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, kept));
    GPUNN__TRY(gpunn__recurrent_operand(cuda, step, 0, &arena, &x));
    for (int64_t d = 0; d < r.directions; d++) {
        gpunn__recurrent_relayout(&r, step, d);
        if (!step->training) r.kept = evaluation;
        gates = x;
        gates.data = r.kept;
        gpunn__product p = gpunn__make_product(step, r.length * r.batch, rows, r.in, &x, false,
                                               &step->in[GPUNN__WEIGHTS + 4 * d], true, &gates);
        p.ldd = r.width;
        GPUNN__TRY(gpunn__products(cuda, &p, 1, action));
        if (run) GPUNN__TRY(gpunn__recurrent_copy(cuda, r.h, GPUNN_F32, r.h_0, r.h_0_dtype, states, false));
        if (run) GPUNN__TRY(gpunn__recurrent_copy(cuda, r.c, GPUNN_F32, r.c_0, r.c_0_dtype, states, false));
        if (run && r.reset)
            GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__recurrent_reset_kernel, blocks, GPUNN__THREADS, r));
        for (r.step = 0; r.step < (run ? r.length : 1); r.step++) {
            GPUNN__TRY(gpunn__recurrent_step(cuda, step, &r, action));
            if (run) GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__recurrent_cell_kernel, blocks, GPUNN__THREADS, r));
        }
        for (int i = 0; run && step->attr->states && i < (r.op == GPUNN_OP_LSTM ? 2 : 1); i++) {
            float *to = r.y + ((r.length + i) * r.directions + d) * states;
            GPUNN__TRY(gpunn__recurrent_copy(cuda, to, GPUNN_F32, i ? r.c : r.h, GPUNN_F32, states, false));
        }
    }
    if (run) return GPUNN_OK;
    step->workspace_bytes = arena.bytes;
    if (step->training) step->saved_bytes = gpunn__bytes(GPUNN_F32, r.directions * kept);
    return GPUNN_OK;
}

/* The gradients of one direction's weights and its part of dx, from the gradients of the gates. */
static gpunn_status gpunn__recurrent_gradients(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action,
                                               const gpunn__recurrent *r, const gpunn_value *x,
                                               const gpunn_value *dx, float *before, float *sums,
                                               void *workspace)
{
    const int64_t steps = r->length * r->batch, H = r->hidden, rows = r->gates * H,
                  first = GPUNN__WEIGHTS + 4 * r->direction;
    const bool         gru = r->op == GPUNN_OP_GRU, run = action == GPUNN__BACKWARD;
    const gpunn_value *grad = step->grad_in + first;
    const bool        *add = step->accumulate + first;
    gpunn_value        gates = *x, previous = *x;
    gates.data = r->kept;
    previous.data = before;
    if (dx->data) {
        gpunn__product p = gpunn__make_product(step, steps, r->in, rows, &gates, false, &step->in[first],
                                               false, dx);
        p.lda = r->width;
        p.accumulate = r->direction > 0 || (dx->data == step->grad_in[0].data && step->accumulate[0]);
        GPUNN__TRY(gpunn__products(cuda, &p, 1, action));
    }
    if (grad[0].data) {
        gpunn__product p = gpunn__make_product(step, rows, r->in, steps, &gates, true, x, false, &grad[0]);
        p.lda = r->width;
        p.accumulate = add[0];
        GPUNN__TRY(gpunn__products(cuda, &p, 1, action));
    }
    if (grad[1].data && run)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__recurrent_before_kernel, gpunn__blocks(cuda, steps * H, 1),
                                 GPUNN__THREADS, *r, before));
    for (int i = 0; grad[1].data && i < (gru ? 2 : 1); i++) { /* gru: r and z, then q */
        const int64_t  of_gru = i == 0 ? 2 * H : H;
        gpunn__product p = gpunn__make_product(step, gru ? of_gru : rows, H, steps, &gates, true, &previous,
                                               false, &grad[1]);
        p.lda = r->width;
        p.accumulate = add[1];
        p.a = run ? r->kept + 3 * i * H : p.a;
        p.d = run ? (float *)grad[1].data + 2 * i * H * H : p.d;
        GPUNN__TRY(gpunn__products(cuda, &p, 1, action));
    }
    if (!run || (grad[2].data == NULL && grad[3].data == NULL)) return GPUNN_OK;
    GPUNN__TRY(
        gpunn__cuda_channel_sums(cuda, r->kept, GPUNN_F32, steps, r->width, 1, sums, false, workspace));
    for (int i = 2; i < 4; i++) {
        float        *to = (float *)grad[i].data;
        const int64_t both = gru && i == 3 ? 2 * H : rows;
        if (to == NULL) continue;
        GPUNN__TRY(gpunn__recurrent_copy(cuda, to, GPUNN_F32, sums, GPUNN_F32, both, add[i]));
        if (both < rows)
            GPUNN__TRY(gpunn__recurrent_copy(cuda, to + both, GPUNN_F32, sums + 3 * H, GPUNN_F32, H, add[i]));
    }
    return GPUNN_OK;
}

static gpunn_status gpunn__recurrent_backward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    gpunn__recurrent r = gpunn__recurrent_of(step);
    gpunn__arena     arena = {(char *)step->workspace, 0};
    const int64_t    states = r.batch * r.hidden, steps = r.length * r.batch;
    const unsigned   blocks = gpunn__blocks(cuda, states, 1);
    const bool       run = action == GPUNN__BACKWARD, lstm = r.op == GPUNN_OP_LSTM;
    gpunn_value      x, dx = step->grad_in[0];
    r.h = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, states));
    r.c = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, states));
    float *const before = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, steps * r.hidden));
    float *const sums = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, r.width));
    void *const  workspace = gpunn__arena_take(&arena,
                                               gpunn__cuda_channel_sums_workspace(cuda, steps, r.width, 1));
    GPUNN__TRY(gpunn__recurrent_operand(cuda, step, 0, &arena, &x));
    if (dx.data && dx.dtype != GPUNN_F32) {
        void *own = gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, dx.count));
        dx.dtype = GPUNN_F32;
        if (run) dx.data = own;
    }
    for (int64_t d = 0; d < r.directions; d++) {
        gpunn__recurrent_relayout(&r, step, d);
        const float       *final = r.dy + (r.length * r.directions + d) * states;
        const bool         given = step->attr->states;
        const float *const c_n = given && lstm ? final + r.directions * states : NULL;
        if (run) {
            GPUNN__TRY(
                gpunn__recurrent_copy(cuda, r.h, GPUNN_F32, given ? final : NULL, GPUNN_F32, states, false));
            GPUNN__TRY(gpunn__recurrent_copy(cuda, r.c, GPUNN_F32, c_n, GPUNN_F32, states, false));
        }
        for (r.step = run ? r.length - 1 : 0; r.step >= 0; r.step--) {
            if (run)
                GPUNN__TRY(
                    GPUNN__LAUNCH(cuda, gpunn__recurrent_cell_backward_kernel, blocks, GPUNN__THREADS, r));
            if (r.step > 0 || step->grad_in[2].data || !run)
                GPUNN__TRY(gpunn__recurrent_step(cuda, step, &r, action));
        }
        if (run && r.reset)
            GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__recurrent_reset_kernel, blocks, GPUNN__THREADS, r));
        GPUNN__TRY(gpunn__recurrent_gradients(cuda, step, action, &r, &x, &dx, before, sums, workspace));
        for (int i = 2; run && i < 4; i++) {
            const gpunn_value *to = &step->grad_in[i];
            if (to->data)
                GPUNN__TRY(gpunn__recurrent_copy(cuda, gpunn__element(to->data, to->dtype, d * states),
                                                 to->dtype, i == 2 ? r.h : r.c, GPUNN_F32, states,
                                                 step->accumulate[i]));
        }
    }
    if (run && dx.data && dx.data != step->grad_in[0].data)
        return gpunn__cuda_copy(cuda, step->grad_in[0].data, step->grad_in[0].dtype, dx.data, GPUNN_F32,
                                dx.count, step->accumulate[0]);
    if (!run) step->workspace_bytes = arena.bytes;
    return GPUNN_OK;
}

/* ---- by cuDNN ---- */

/* Whether cuDNN runs the step. Not with lengths, which it needs on the host, nor with resets. Not if the
 * device is deterministic, since it runs products on several streams at once. Not relu in training, since it
 * may turn NaN into 0 and hide a bad loss. */
static gpunn_status gpunn__recurrent_fits(gpunn__cuda *cuda, const gpunn_step *step, gpunn__dnn_rnn *key,
                                          gpunn__dnn_rnn_sizes *sizes, bool *fits)
{
    const gpunn__recurrent r = gpunn__recurrent_of(step);
    const bool             relu = r.op == GPUNN_OP_RNN && step->attr->relu;
    const bool             bias = step->in[GPUNN__WEIGHTS + 2].data != NULL;
    *key = {GPUNN__RNN_TAG, r.op,         relu, step->precision, step->training, r.length, r.batch, r.in,
            r.hidden,       r.directions, bias};
    *fits = r.lengths == NULL && r.reset == NULL && !cuda->args.deterministic && !(relu && step->training) &&
            gpunn__dnn_available(cuda);
    if (!*fits) return GPUNN_OK;
    gpunn_status status = gpunn__dnn_rnn_prepare(cuda, key, sizes);
    *fits = status == GPUNN_OK;
    return status == GPUNN_ERR_UNSUPPORTED ? GPUNN_OK : status;
}

typedef struct gpunn__recurrent_parts {
    float *all; /* cuDNN's weights, or their gradients */
    int    count;
    struct {
        float  *own; /* gpunn's weight or gradient */
        int64_t at, count;
        bool    add;
    } part[8];
} gpunn__recurrent_parts;

/* all = own; back: own = or += all. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__recurrent_parts_kernel(const gpunn__recurrent_parts p, bool back)
{
    GPUNN__FOLLOW();
    for (int j = 0; j < p.count; j++) {
        float *const own = p.part[j].own, *const all = p.all + p.part[j].at;
        const bool add = p.part[j].add;
        for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.part[j].count;
             i += (int64_t)gridDim.x * blockDim.x) {
            if (back)
                own[i] = add ? own[i] + all[i] : all[i];
            else
                all[i] = own[i];
        }
    }
}

static gpunn_status gpunn__recurrent_move(gpunn__cuda *cuda, const gpunn_step *step,
                                          const gpunn__dnn_rnn_sizes *sizes, float *all, bool back)
{
    gpunn__recurrent_parts p;
    int64_t                most = 0;
    memset(&p, 0, sizeof p);
    p.all = all;
    for (int i = 0; i < (step->attr->bidirectional ? 8 : 4); i++) {
        const gpunn_value *value = (back ? step->grad_in : step->in) + GPUNN__WEIGHTS + i;
        if (value->data == NULL) continue;
        p.part[p.count].own = (float *)value->data;
        p.part[p.count].at = sizes->part[i / 4][i % 4];
        p.part[p.count].count = value->count;
        p.part[p.count++].add = back && step->accumulate[GPUNN__WEIGHTS + i];
        if (value->count > most) most = value->count;
    }
    return GPUNN__LAUNCH(cuda, gpunn__recurrent_parts_kernel, gpunn__blocks(cuda, most, 1), GPUNN__THREADS, p,
                         back);
}

/* Where cuDNN writes the gradient of operand i: the gradient itself, or a buffer from which gpunn__cuda_copy
 * adds or converts it. */
static float *gpunn__recurrent_aside(const gpunn_step *step, int i, gpunn__arena *arena)
{
    const gpunn_value *to = &step->grad_in[i];
    const bool         direct = to->data && to->dtype == GPUNN_F32 && !step->accumulate[i];
    if (to->data == NULL && i > 0) return NULL;
    return direct ? (float *)to->data
                  : (float *)gpunn__arena_take(arena, gpunn__bytes(GPUNN_F32, step->in[i].count));
}

/* Copies final states of n elements that have a buffer of their own to `to`, or back from there. */
static gpunn_status gpunn__recurrent_finals(gpunn__cuda *cuda, float *const buffer[2], float *to, int64_t n,
                                            bool back)
{
    for (int i = 0; i < 2; i++) {
        float *const place = to + i * n;
        if (buffer[i] == NULL || buffer[i] == place) continue;
        GPUNN__TRY(gpunn__recurrent_copy(cuda, back ? buffer[i] : place, GPUNN_F32, back ? place : buffer[i],
                                         GPUNN_F32, n, false));
    }
    return GPUNN_OK;
}

/* Copies the gradients of x, h_0 and c_0 that gpunn__recurrent_aside put into a buffer. */
static gpunn_status gpunn__recurrent_copy_back(gpunn__cuda *cuda, const gpunn_step *step,
                                               const gpunn__dnn_rnn_data *data)
{
    float *const gradients[4] = {data->dx, NULL, data->dh_0, data->dc_0};
    for (int i = 0; i < 4; i++) {
        const gpunn_value *to = &step->grad_in[i];
        if (gradients[i] && to->data && to->data != gradients[i])
            GPUNN__TRY(gpunn__cuda_copy(cuda, to->data, to->dtype, gradients[i], GPUNN_F32, step->in[i].count,
                                        step->accumulate[i]));
    }
    return GPUNN_OK;
}

static gpunn_status gpunn__recurrent_library(gpunn__cuda *cuda, gpunn_step *step, const gpunn__dnn_rnn *key,
                                             const gpunn__dnn_rnn_sizes *sizes, gpunn__action action)
{
    const int64_t       states = key->directions * key->batch * key->hidden, y = key->length * states;
    const bool          lstm = key->op == GPUNN_OP_LSTM, finals = step->attr->states;
    gpunn__arena        arena = {(char *)step->workspace, 0};
    gpunn__dnn_rnn_data data;
    gpunn_value         in[4];
    memset(&data, 0, sizeof data);
    data.backward = step->backward;
    float *const weights = (float *)gpunn__arena_take(&arena, sizes->weights);
    data.weights = weights;
    data.workspace = gpunn__arena_take(&arena, sizes->workspace);
    data.reserve = step->training ? step->saved : NULL;
    for (int i = 0; i < 4; i++)
        if (i != 1) GPUNN__TRY(gpunn__recurrent_operand(cuda, step, i, &arena, &in[i]));
    data.x = (const float *)in[0].data, data.h_0 = (const float *)in[2].data,
    data.c_0 = (const float *)in[3].data;
    data.y = (float *)step->out.data;
    data.dy = (const float *)step->grad_out.data;
    float *const behind = (float *)(step->backward ? step->grad_out.data : step->out.data) + y,
                 *final[2] = {NULL, NULL};
    /* a state that would be unaligned goes through a buffer of its own */
    for (int i = 0; finals && i < (lstm ? 2 : 1); i++) {
        const bool aligned = (y + i * states) % 4 == 0;
        final[i] = aligned ? behind + i * states
                           : (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, states));
    }
    *(step->backward ? &data.dh_n : &data.h_n) = final[0],
                                    *(step->backward ? &data.dc_n : &data.c_n) = final[1];
    if (step->backward) {
        data.dx = gpunn__recurrent_aside(step, 0, &arena);
        data.dh_0 = gpunn__recurrent_aside(step, 2, &arena);
        data.dc_0 = gpunn__recurrent_aside(step, 3, &arena);
        for (int64_t i = GPUNN__WEIGHTS; i < GPUNN__WEIGHTS + 4 * key->directions; i++)
            if (step->grad_in[i].data && data.dweights == NULL)
                data.dweights = (float *)gpunn__arena_take(&arena, sizes->weights);
    }
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = arena.bytes;
        if (step->training && !step->backward) step->saved_bytes = sizes->reserve;
        return GPUNN_OK;
    }
    GPUNN__TRY(gpunn__recurrent_move(cuda, step, sizes, weights, false));
    if (step->backward) GPUNN__TRY(gpunn__recurrent_finals(cuda, final, behind, states, true));
    if (data.dweights) GPUNN__CUDA(cuda, cudaMemsetAsync(data.dweights, 0, sizes->weights, cuda->stream));
    GPUNN__TRY(gpunn__dnn_rnn_run(cuda, key, &data));
    if (data.dweights) GPUNN__TRY(gpunn__recurrent_move(cuda, step, sizes, data.dweights, true));
    if (!step->backward) GPUNN__TRY(gpunn__recurrent_finals(cuda, final, behind, states, false));
    return gpunn__recurrent_copy_back(cuda, step, &data);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_rnn(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    gpunn__dnn_rnn       key;
    gpunn__dnn_rnn_sizes sizes;
    bool                 fits;
    GPUNN__TRY(gpunn__recurrent_fits(cuda, step, &key, &sizes, &fits));
    if (fits) return gpunn__recurrent_library(cuda, step, &key, &sizes, action);
    return step->backward ? gpunn__recurrent_backward(cuda, step, action)
                          : gpunn__recurrent_forward(cuda, step, action);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_lstm(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__cuda_rnn(cuda, step, action);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_gru(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__cuda_rnn(cuda, step, action);
}

/* ==== >>cuda/quantized =================================================================================== *
 * Ops of 8-bit numbers, with the CPU's results bit for bit. Linear layers and convolutions are products of
 * integers, A B^T. A row of A is what one result reads of x. B is the rounded weight, with a row for each
 * column of the result. Tensor cores multiply x without its zero point. The sums start at the bias minus the
 * zero point times the sum of the column instead. So padding is bytes of the zero point. */

/* ---- rounding ------------------------------------------------------------------------------------------ */

/* x rounded, plus zero, from low to high. A NaN gives low. */
__device__ __forceinline__ int gpunn__byte_of(float x, int zero, int low, int high)
{
    return min(max((int)rintf(fminf(fmaxf(x, -1000), 1000)) + zero, low), high);
}

/* sum times factor, rounded, for results of 8 bits. The product of floats has an error below 0.0002. Only
 * where that matters, doubles are needed, which are slow on many GPUs. */
__device__ __forceinline__ int gpunn__near_product(int sum, float factor)
{
    const float x = fminf(fmaxf((float)sum * factor, -1000), 1000), near = rintf(x);
    if (fabsf(x - near) < 0.4995f) return (int)near;
    return (int)rint((double)sum * (double)factor);
}

/* w / scale, rounded and saturated. */
__device__ __forceinline__ int gpunn__rounded_weight(float w, float scale)
{
    const float quotient = scale != 0 ? __fdiv_rn(w, scale) : 0;
    return quotient == quotient ? min(max((int)rintf(fminf(fmaxf(quotient, -256), 256)), -128), 127) : 0;
}

/* ---- elementwise --------------------------------------------------------------------------------------- */

typedef struct gpunn__rescale {
    const void    *x; /* floats, or bytes */
    const uint8_t *b;
    void          *y;
    gpunn_dtype    dtype; /* of the floats */
    int64_t        count;
    float          x_scale, b_scale, scale;
    int            x_zero, b_zero, zero, low, high;
} gpunn__rescale;

/* Elements i .. i + 3 of count, for i a multiple of 4. What lies beyond reads as 0. */
__device__ __forceinline__ uint32_t gpunn__load_word(const void *data, int64_t i, int64_t count)
{
    const uint8_t *x = (const uint8_t *)data + i;
    uint32_t       word = 0;
    if (i + 4 <= count) return *(const uint32_t *)x;
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (i + j < count) word |= (uint32_t)x[j] << 8 * j;
    return word;
}

__device__ __forceinline__ void gpunn__store_word(void *data, int64_t i, int64_t count, uint32_t word)
{
    uint8_t *y = (uint8_t *)data + i;
    if (i + 4 <= count) {
        *(uint32_t *)y = word;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (i + j < count) y[j] = (uint8_t)(word >> 8 * j);
}

__device__ __forceinline__ void gpunn__load_four(const gpunn__rescale &m, int64_t i, float v[4])
{
    if (i + 4 <= m.count) {
        gpunn__load4(m.x, m.dtype, i, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = i + j < m.count ? gpunn__load(m.x, m.dtype, i + j) : 0;
}

/* Rounds the floats of a block's share. */
__device__ __forceinline__ void gpunn__quantize_share(const gpunn__rescale &m)
{
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    for (; i < m.count; i += (int64_t)gridDim.x * blockDim.x * 4) {
        float    v[4];
        uint32_t word = 0;
        gpunn__load_four(m, i, v);
#pragma unroll
        for (int j = 0; j < 4; j++)
            word |= (uint32_t)gpunn__byte_of(__fdiv_rn(v[j], m.scale), m.zero, 0, 255) << 8 * j;
        gpunn__store_word(m.y, i, m.count, word);
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__quantize_kernel(const gpunn__rescale m)
{
    GPUNN__FOLLOW();
    gpunn__quantize_share(m);
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__dequantize_kernel(const gpunn__rescale m)
{
    GPUNN__FOLLOW();
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    for (; i < m.count; i += (int64_t)gridDim.x * blockDim.x * 4) {
        const uint32_t word = gpunn__load_word(m.x, i, m.count);
        float          v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = __fmul_rn((float)(gpunn__byte_at(word, j) - m.zero), m.scale);
        if (i + 4 <= m.count) gpunn__store4(m.y, m.dtype, i, v);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + 4 > m.count && i + j < m.count) gpunn__store(m.y, m.dtype, i + j, v[j]);
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__quantized_add_kernel(const gpunn__rescale m)
{
    GPUNN__FOLLOW();
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    for (; i < m.count; i += (int64_t)gridDim.x * blockDim.x * 4) {
        const uint32_t a = gpunn__load_word(m.x, i, m.count), b = gpunn__load_word(m.b, i, m.count);
        uint32_t       word = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float sum = __fadd_rn(__fmul_rn((float)(gpunn__byte_at(a, j) - m.x_zero), m.x_scale),
                                        __fmul_rn((float)(gpunn__byte_at(b, j) - m.b_zero), m.b_scale));
            word |= (uint32_t)gpunn__byte_of(__fdiv_rn(sum, m.scale), m.zero, m.low, m.high) << 8 * j;
        }
        gpunn__store_word(m.y, i, m.count, word);
    }
}

static gpunn__rescale gpunn__rescale_of(const gpunn_step *step)
{
    const gpunn_attributes *attr = step->attr;
    gpunn__rescale          m;
    memset(&m, 0, sizeof m);
    m.x = step->in[0].data;
    m.b = step->input_count > 1 ? (const uint8_t *)step->in[1].data : NULL;
    m.y = step->out.data;
    m.dtype = step->out.dtype == GPUNN_U8 ? step->in[0].dtype : step->out.dtype;
    m.count = step->out.count;
    m.x_scale = attr->x_scale, m.b_scale = attr->b_scale, m.scale = attr->scale;
    m.x_zero = attr->x_zero_point, m.b_zero = attr->b_zero_point, m.zero = attr->zero_point;
    m.low = attr->quant_min, m.high = attr->quant_max;
    return m;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_quantize_per_tensor(gpunn__cuda *cuda, gpunn_step *step,
                                                             gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__quantize_kernel, gpunn__blocks(cuda, step->out.count, 4),
                         GPUNN__THREADS, gpunn__rescale_of(step));
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_dequantize(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__dequantize_kernel, gpunn__blocks(cuda, step->out.count, 4),
                         GPUNN__THREADS, gpunn__rescale_of(step));
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_quantized_add(gpunn__cuda *cuda, gpunn_step *step,
                                                       gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__quantized_add_kernel, gpunn__blocks(cuda, step->out.count, 4),
                         GPUNN__THREADS, gpunn__rescale_of(step));
}

/* ---- linear layers and convolutions -------------------------------------------------------------------- */

/* A block computes tiles of 64 rows and 64 columns, over 64 numbers at a time. PITCH: words from a row of a
 * tile to the next in shared memory, such that eight rows lie in different banks. */
enum { GPUNN__BYTE_TILE = 64, GPUNN__BYTE_PITCH = 20, GPUNN__BYTE_THREADS = 128, GPUNN__BYTE_ROWS = 16 };

/* A linear layer is a convolution of images with one cell. */
typedef struct gpunn__int8 {
    int64_t n, rows;              /* rows: n oh ow */
    int     h, w, c, oh, ow, out; /* x [n][h][w][c] -> y [n][oh][ow][out] */
    int     groups, in, columns;  /* in, columns: of a group */
    int     kernel[2], stride[2], padding[2], dilation[2];
    int     k, pitch;  /* numbers of a row of A; bytes from a row of B to the next */
    bool    depthwise; /* B is transposed, [k][pitch] */
    bool    whole;     /* A is x itself */
    int8_t *packed;    /* B */
    /* by column: sum of its weights; where its sums start; what they are multiplied by */
    int           *total, *start;
    float         *factor;
    const uint8_t *x;
    void          *y;    /* U8, or F32 with bias */
    const void    *bias; /* F32 results: is added to them */
    gpunn_dtype    bias_dtype;
    int            x_zero, zero, low, high;
} gpunn__int8;

static int gpunn__whole_tiles(int64_t count)
{
    return (int)((count + GPUNN__BYTE_TILE - 1) / GPUNN__BYTE_TILE);
}

/* The part of g that does not depend on whether it is a convolution. */
static void gpunn__int8_finish(gpunn__int8 *g)
{
    g->in = g->c / g->groups;
    g->columns = g->out / g->groups;
    g->k = g->kernel[0] * g->kernel[1] * g->in;
    g->rows = g->n * g->oh * g->ow;
    g->depthwise = g->in == 1 && g->columns == 1 && g->groups > 1;
    g->pitch = gpunn__whole_tiles(g->depthwise ? g->out : g->k) * GPUNN__BYTE_TILE;
    g->whole = g->k == g->c && g->stride[0] == 1 && g->stride[1] == 1 && g->padding[0] == 0 &&
               g->padding[1] == 0; /* a kernel of one cell, and one group */
}

/* A linear layer of weight [out, in]. */
static gpunn__int8 gpunn__int8_linear(const gpunn_step *step)
{
    const gpunn_value *weight = &step->in[1];
    gpunn__int8        g;
    memset(&g, 0, sizeof g);
    g.h = g.w = g.oh = g.ow = g.groups = 1;
    g.c = (int)weight->dim[1];
    g.out = (int)weight->dim[0];
    g.n = step->in[0].count / g.c;
    for (int i = 0; i < 2; i++) g.kernel[i] = g.stride[i] = g.dilation[i] = 1;
    gpunn__int8_finish(&g);
    return g;
}

static gpunn__int8 gpunn__int8_conv2d(const gpunn_step *step)
{
    const int64_t *x = step->in[0].dim, *y = step->out.dim;
    gpunn__int8    g;
    memset(&g, 0, sizeof g);
    g.n = x[0], g.c = (int)x[1], g.h = (int)x[2], g.w = (int)x[3];
    g.out = (int)y[1], g.oh = (int)y[2], g.ow = (int)y[3];
    g.groups = step->attr->groups;
    memcpy(g.kernel, step->attr->kernel, sizeof g.kernel);
    memcpy(g.stride, step->attr->stride, sizeof g.stride);
    memcpy(g.padding, step->attr->padding, sizeof g.padding);
    memcpy(g.dilation, step->attr->dilation, sizeof g.dilation);
    gpunn__int8_finish(&g);
    return g;
}

/* ---- columns: packed weights, starts and factors ---- */

/* The floats of a layer, of which its columns are made. */
typedef struct gpunn__columns {
    const void  *weight, *scale, *bias; /* weight [out][in][kh][kw], scale [out], bias [out] or NULL */
    gpunn_dtype  weight_dtype, scale_dtype, bias_dtype;
    float        x_scale, y_scale;
    const float *range; /* [ranges][2], of x and 0, both upwards: -least and most; NULL: x_scale is known */
    int          ranges;
} gpunn__columns;

/* Sets start and factor of column o. */
__device__ __forceinline__ void gpunn__set_column(const gpunn__int8 &g, const gpunn__columns &from, int o,
                                                  float x_scale, int x_zero)
{
    const float  unit = __fmul_rn(x_scale, gpunn__load(from.scale, from.scale_dtype, o));
    const float  bias = from.bias && unit != 0 ? __fdiv_rn(gpunn__load(from.bias, from.bias_dtype, o), unit)
                                               : 0;
    const double most = 1 << 30;
    g.start[o] = (int)rint(fmin(fmax((double)bias, -most), most)) - x_zero * g.total[o];
    g.factor[o] = __fdiv_rn(unit, from.y_scale);
}

/* Number k of a column of scale `scale`. k runs over kh, kw, in. */
__device__ __forceinline__ int gpunn__weight_at(const gpunn__int8 &g, const gpunn__columns &from, int o,
                                                int k, float scale)
{
    const int     cells = g.kernel[0] * g.kernel[1], cell = k / g.in;
    const int64_t at = (int64_t)o * g.k + (int64_t)(k - cell * g.in) * cells + cell;
    return gpunn__rounded_weight(gpunn__load(from.weight, from.weight_dtype, at), scale);
}

/* Rounds and packs the weight. A block packs a column after another. */
static __global__ void __launch_bounds__(GPUNN__THREADS, 4)
    gpunn__int8_pack_kernel(const gpunn__int8 g, const gpunn__columns from)
{
    GPUNN__FOLLOW();
    for (int o = (int)blockIdx.x; o < g.out; o += (int)gridDim.x) {
        const float scale = gpunn__load(from.scale, from.scale_dtype, o);
        int         sum = 0;
        for (int k = (int)threadIdx.x; k < (g.depthwise ? g.k : g.pitch); k += (int)blockDim.x) {
            const int q = k < g.k ? gpunn__weight_at(g, from, o, k, scale) : 0;
            g.packed[g.depthwise ? (int64_t)k * g.pitch + o : (int64_t)o * g.pitch + k] = (int8_t)q;
            sum += q;
        }
        sum = gpunn__block_reduce(sum, gpunn__add());
        if (threadIdx.x > 0) continue;
        g.total[o] = sum;
        if (from.range == NULL) gpunn__set_column(g, from, o, from.x_scale, g.x_zero);
    }
}

/* ---- results ---- */

/* Numbers as they are added by 32-bit registers, which wrap around. */
__device__ __forceinline__ int gpunn__wrapped_sum(int a, int b)
{
    return (int)((unsigned)a + (unsigned)b);
}

/* The byte of a sum of column o. */
__device__ __forceinline__ uint32_t gpunn__byte_of_sum(const gpunn__int8 &g, int o, int sum)
{
    const int near = gpunn__near_product(gpunn__wrapped_sum(sum, g.start[o]), g.factor[o]);
    return (uint32_t)min(max(near + g.zero, g.low), g.high);
}

__device__ __forceinline__ void gpunn__store_sum(const gpunn__int8 &g, int64_t row, int o, int sum)
{
    const int64_t at = row * g.out + o;
    if (g.bias)
        ((float *)g.y)[at] = __fadd_rn(__fmul_rn((float)gpunn__wrapped_sum(sum, g.start[o]), g.factor[o]),
                                       gpunn__load(g.bias, g.bias_dtype, o));
    else
        ((uint8_t *)g.y)[at] = (uint8_t)gpunn__byte_of_sum(g, o, sum);
}

/* ---- tiles on tensor cores ---- */

#ifndef GPUNN__MMA_BYTES
/* sum += a b for 16 rows by 8 columns and 32 numbers. Those of a have no sign. Lane l holds words l % 4 and
 * l % 4 + 4 of row l / 4 of a, in a[0] and a[2], and of row l / 4 + 8, in a[1] and a[3]. It holds the same
 * words of column l / 4 of b. Of the sums it holds columns l % 4 * 2 and l % 4 * 2 + 1 of both rows. Source:
 * PTX ISA, matrix fragments for mma.m16n8k32 and mma.m8n8k16. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 750
#define GPUNN__MMA_BYTES(sum, a, b) __trap() /* never launched: such a GPU is refused */
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define GPUNN__MMA_BYTES_HALF(sum, first, a, b)                                                   \
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" \
                 : "+r"(sum[first]), "+r"(sum[first + 1])                                         \
                 : "r"(a), "r"(b))
#define GPUNN__MMA_BYTES(sum, a, b)                \
    do {                                           \
        GPUNN__MMA_BYTES_HALF(sum, 0, a[0], b[0]); \
        GPUNN__MMA_BYTES_HALF(sum, 0, a[2], b[1]); \
        GPUNN__MMA_BYTES_HALF(sum, 2, a[1], b[0]); \
        GPUNN__MMA_BYTES_HALF(sum, 2, a[3], b[1]); \
    } while (0)
#else
#define GPUNN__MMA_BYTES(sum, a, b)                                                                     \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
                 "{%8, %9}, {%0, %1, %2, %3};"                                                          \
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#endif
#endif

/* What a row of A reads of its group. A row outside A has no cell inside the image. */
typedef struct gpunn__image_place {
    const uint8_t *image;
    int            top, left; /* of the kernel's first cell */
} gpunn__image_place;

__device__ __forceinline__ gpunn__image_place gpunn__image_place_of(const gpunn__int8 &g, int64_t row,
                                                                    int group)
{
    const int64_t      line = gpunn__quotient(row, g.ow), image = gpunn__quotient(line, g.oh);
    gpunn__image_place at;
    at.image = g.x + image * g.h * g.w * g.c + group * g.in;
    at.top = row < g.rows ? (int)(line - image * g.oh) * g.stride[0] - g.padding[0] : -(1 << 30);
    at.left = (int)(row - line * g.ow) * g.stride[1] - g.padding[1];
    return at;
}

/* 16 numbers of a row of A from k on. A load takes WIDTH numbers, which lie in one cell. */
template <int WIDTH>
__device__ __forceinline__ uint4 gpunn__load_numbers(const gpunn__int8 &g, const gpunn__image_place &at,
                                                     int k)
{
    const uint32_t outside = (uint32_t)g.x_zero * 0x01010101u;
    int            cell = k / g.in, channel = k - cell * g.in;
    int            ky = cell / g.kernel[1], kx = cell - ky * g.kernel[1];
    uint32_t       word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 16; j += WIDTH) {
        const int     y = at.top + ky * g.dilation[0], x = at.left + kx * g.dilation[1];
        const bool    inside = k + j < g.k && y >= 0 && y < g.h && x >= 0 && x < g.w;
        const int64_t from = ((int64_t)y * g.w + x) * g.c + channel;
        if (WIDTH == 16)
            return inside ? *(const uint4 *)(at.image + from)
                          : make_uint4(outside, outside, outside, outside);
        if (WIDTH == 4)
            word[j / 4] = inside ? *(const uint32_t *)(at.image + from) : outside;
        else
            word[j / 4] |= (inside ? at.image[from] : (uint32_t)g.x_zero) << 8 * (j % 4);
        if ((channel += WIDTH) < g.in) continue;
        channel = 0;
        if (++kx == g.kernel[1]) kx = 0, ky++;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

typedef uint32_t gpunn__byte_tile[GPUNN__BYTE_TILE][GPUNN__BYTE_PITCH];

/* Adds the products of two tiles to a warp's sums, of 32 rows by 32 columns from (i, j) on. */
__device__ __forceinline__ void gpunn__multiply_tiles(const gpunn__byte_tile &a, const gpunn__byte_tile &b,
                                                      int i, int j, int (&sum)[2][4][4])
{
    const int row = (int)threadIdx.x % 32 / 4, word = (int)threadIdx.x % 4;
#pragma unroll
    for (int k = word; k < GPUNN__BYTE_TILE / 4; k += 8) {
        unsigned own[2][4], other[4][2];
#pragma unroll
        for (int m = 0; m < 8; m++)
            own[m / 4][m % 4] = a[i + m / 4 * 16 + m % 2 * 8 + row][k + m % 4 / 2 * 4];
#pragma unroll
        for (int n = 0; n < 8; n++) other[n / 2][n % 2] = b[j + n / 2 * 8 + row][k + n % 2 * 4];
#pragma unroll
        for (int m = 0; m < 8; m++) GPUNN__MMA_BYTES(sum[m / 4][m % 4], own[m / 4], other[m % 4]);
    }
}

/* Calls store(row, column, sum) for each of a warp's sums. */
template <class Store>
__device__ __forceinline__ void gpunn__each_sum(int i, int j, const int (&sum)[2][4][4], Store store)
{
    const int row = (int)threadIdx.x % 32 / 4, column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int e = 0; e < 32; e++)
        store(i + e / 16 * 16 + e % 4 / 2 * 8 + row, j + e / 4 % 4 * 8 + e % 2 + column,
              sum[e / 16][e / 4 % 4][e % 4]);
}

/* Stores the bytes of a tile, which `bytes` holds, from (row, column of the group) on. */
__device__ __forceinline__ void gpunn__store_tile(const gpunn__int8 &g, const gpunn__byte_tile &bytes,
                                                  int64_t row, int group, int column)
{
#pragma unroll
    for (int part = (int)threadIdx.x; part < GPUNN__BYTE_TILE * 4; part += GPUNN__BYTE_THREADS) {
        const int      i = part / 4, j = column + part % 4 * 16, left = g.columns - j;
        const uint8_t *from = (const uint8_t *)&bytes[i][part % 4 * 4];
        uint8_t       *to = (uint8_t *)g.y + (row + i) * g.out + group * g.columns + j;
        if (row + i >= g.rows || left <= 0) continue;
        if (g.columns % 16 == 0)
            *(uint4 *)to = *(const uint4 *)from;
        else
            for (int e = 0; e < 16 && e < left; e++) to[e] = from[e];
    }
}

/* Computes the tile from (first, column of the group) on. */
template <int WIDTH>
__device__ __forceinline__ void gpunn__int8_tile(const gpunn__int8 &g, int64_t first, int group, int column)
{
    __shared__ __align__(16) gpunn__byte_tile a, b;
    const int                                 thread = (int)threadIdx.x, part = thread % 4 * 16;
    const int          i = thread / 64 * 32, j = thread / 32 % 2 * 32; /* of the warp */
    const int8_t      *packed = g.packed + (int64_t)(group * g.columns + column) * g.pitch + part;
    gpunn__image_place place[2];
    uint4              own[2], other[2];
    int                sum[2][4][4] = {};
#pragma unroll
    for (int r = 0; r < 2; r++) place[r] = gpunn__image_place_of(g, first + thread / 4 + r * 32, group);
    const auto load = [&](int k) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int o = thread / 4 + r * 32;
            own[r] = gpunn__load_numbers<WIDTH>(g, place[r], k + part);
            other[r] = column + o < g.columns ? *(const uint4 *)(packed + (int64_t)o * g.pitch + k)
                                              : make_uint4(0, 0, 0, 0);
        }
    };
    load(0);
    for (int k = 0; k < g.pitch; k += GPUNN__BYTE_TILE) {
        __syncthreads(); /* the previous tiles have been read */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            *(uint4 *)&a[thread / 4 + r * 32][part / 4] = own[r];
            *(uint4 *)&b[thread / 4 + r * 32][part / 4] = other[r];
        }
        __syncthreads();
        if (k + GPUNN__BYTE_TILE < g.pitch) load(k + GPUNN__BYTE_TILE);
        gpunn__multiply_tiles(a, b, i, j, sum);
    }
    const int o = group * g.columns + column;
    if (g.bias) {
        gpunn__each_sum(i, j, sum, [&](int r, int q, int value) {
            if (first + r < g.rows && column + q < g.columns) gpunn__store_sum(g, first + r, o + q, value);
        });
        return;
    }
    __syncthreads();
    gpunn__each_sum(i, j, sum, [&](int r, int q, int value) {
        if (column + q < g.columns) ((uint8_t *)a[r])[q] = (uint8_t)gpunn__byte_of_sum(g, o + q, value);
    });
    __syncthreads();
    gpunn__store_tile(g, a, first, group, column);
}

template <int WIDTH>
static __global__ void __launch_bounds__(GPUNN__BYTE_THREADS, WIDTH == 1 ? 2 : 3)
    gpunn__int8_kernel(const gpunn__int8 g, int64_t tiles, int across)
{
    GPUNN__FOLLOW();
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int64_t row = tile / across;
        const int     column = (int)(tile - row * across), each = across / g.groups;
        gpunn__int8_tile<WIDTH>(g, row * GPUNN__BYTE_TILE, column / each, column % each * GPUNN__BYTE_TILE);
    }
}

static gpunn_status gpunn__int8_tiled(gpunn__cuda *cuda, const gpunn__int8 *g)
{
    const int      across = gpunn__whole_tiles(g->columns) * g->groups;
    const int64_t  tiles = (g->rows + GPUNN__BYTE_TILE - 1) / GPUNN__BYTE_TILE * across;
    const unsigned blocks = (unsigned)(tiles < INT32_MAX ? tiles : INT32_MAX);
    if (g->in % 16 == 0)
        return GPUNN__LAUNCH(cuda, (gpunn__int8_kernel<16>), blocks, GPUNN__BYTE_THREADS, *g, tiles, across);
    if (g->in % 4 == 0)
        return GPUNN__LAUNCH(cuda, (gpunn__int8_kernel<4>), blocks, GPUNN__BYTE_THREADS, *g, tiles, across);
    return GPUNN__LAUNCH(cuda, (gpunn__int8_kernel<1>), blocks, GPUNN__BYTE_THREADS, *g, tiles, across);
}

/* ---- few rows: a warp computes a column and reads its weight once ---- */

/* sum + the products of four numbers; those of a have no sign. */
__device__ __forceinline__ int gpunn__dot4(uint32_t a, uint32_t b, int sum)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
#else
    for (int j = 0; j < 4; j++)
        sum = gpunn__wrapped_sum(sum, gpunn__byte_at(a, j) * (int8_t)gpunn__byte_at(b, j));
#endif
    return sum;
}

template <int ROWS>
static __global__ void __launch_bounds__(GPUNN__THREADS, 2) gpunn__int8_few_kernel(const gpunn__int8 g)
{
    GPUNN__FOLLOW();
    const int lane = (int)threadIdx.x % 32, warps = (int)(gridDim.x * blockDim.x / 32);
    for (int o = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32; o < g.out; o += warps) {
        int sum[ROWS] = {}, mine = 0;
#pragma unroll 2
        for (int k = lane * 4; k < g.k; k += 128) {
            const uint32_t w = *(const uint32_t *)(g.packed + (int64_t)o * g.pitch + k);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (i < g.rows) sum[i] = gpunn__dot4(*(const uint32_t *)(g.x + i * g.c + k), w, sum[i]);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2)
                sum[i] = gpunn__wrapped_sum(sum[i], __shfl_xor_sync(0xFFFFFFFFu, sum[i], distance));
            mine = lane == i ? sum[i] : mine;
        }
        if (lane < g.rows) gpunn__store_sum(g, lane, o, mine);
    }
}

static gpunn_status gpunn__int8_few(gpunn__cuda *cuda, const gpunn__int8 *g)
{
    const unsigned blocks = gpunn__blocks(cuda, (int64_t)g->out * 32, 1);
    if (g->rows == 1) return GPUNN__LAUNCH(cuda, (gpunn__int8_few_kernel<1>), blocks, GPUNN__THREADS, *g);
    if (g->rows <= 4) return GPUNN__LAUNCH(cuda, (gpunn__int8_few_kernel<4>), blocks, GPUNN__THREADS, *g);
    return GPUNN__LAUNCH(cuda, (gpunn__int8_few_kernel<GPUNN__BYTE_ROWS>), blocks, GPUNN__THREADS, *g);
}

/* ---- depthwise: a thread computes four channels of one result ---- */

static __global__ void __launch_bounds__(GPUNN__THREADS, 4) gpunn__int8_depthwise_kernel(const gpunn__int8 g)
{
    GPUNN__FOLLOW();
    const int      quads = (g.c + 3) / 4;
    const uint32_t outside = (uint32_t)g.x_zero * 0x01010101u;
    int64_t        i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < g.rows * quads; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t            row = gpunn__quotient(i, quads);
        const int                first = (int)(i - row * quads) * 4;
        const gpunn__image_place at = gpunn__image_place_of(g, row, 0);
        const int8_t            *packed = g.packed + first;
        int                      sum[4] = {0, 0, 0, 0};
        for (int ky = 0; ky < g.kernel[0]; ky++)
            for (int kx = 0; kx < g.kernel[1]; kx++, packed += g.pitch) {
                const int      y = at.top + ky * g.dilation[0], x = at.left + kx * g.dilation[1];
                const bool     inside = y >= 0 && y < g.h && x >= 0 && x < g.w;
                const int64_t  cell = ((int64_t)y * g.w + x) * g.c;
                const uint32_t v = inside ? gpunn__load_channels(at.image, cell, first, g.c) : outside;
                const uint32_t w = *(const uint32_t *)packed;
#pragma unroll
                for (int j = 0; j < 4; j++) sum[j] += gpunn__byte_at(v, j) * (int8_t)gpunn__byte_at(w, j);
            }
        uint32_t word = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (first + j < g.c) word |= gpunn__byte_of_sum(g, first + j, sum[j]) << 8 * j;
        gpunn__store_channels(g.y, row * g.c, first, g.c, word);
    }
}

/* ---- large products: cuBLASLt ---- */

/* Sizes from which it is worth copying x and keeping the sums: an estimate. */
#ifndef GPUNN__LIBRARY_FROM
#define GPUNN__LIBRARY_FROM 512
#endif

/* The memory that such a product needs: x minus 128, which gives its bytes a sign, and the sums. */
typedef struct gpunn__int8_spare {
    int8_t  *x;    /* [rows][c]; NULL: the product is computed by tiles */
    int32_t *sums; /* [rows][out] */
} gpunn__int8_spare;

/* sums = x B^T. Their correction for the 128 follows with the columns' starts. */
static gpunn__product gpunn__int8_product(const gpunn__int8 *g, const gpunn__int8_spare *spare)
{
    gpunn__product p;
    memset(&p, 0, sizeof p);
    p.m = g->rows, p.n = g->out, p.k = g->k, p.batch = 1;
    p.transpose_b = true;
    p.lda = g->k, p.ldb = g->pitch, p.ldd = g->out;
    p.dtype = GPUNN_U8, p.d_dtype = GPUNN_I32;
    p.a = spare->x, p.b = g->packed, p.d = spare->sums;
    return p;
}

/* Whether cuBLASLt may compute it. Its rows have to be multiples of 16 bytes. */
static bool gpunn__int8_is_large(const gpunn__int8 *g)
{
    return g->whole && g->k % 16 == 0 && g->out % 16 == 0 && g->k >= GPUNN__LIBRARY_FROM &&
           g->out >= GPUNN__LIBRARY_FROM && g->rows >= GPUNN__LIBRARY_FROM;
}

static gpunn__int8_spare gpunn__int8_spare_of(const gpunn__int8 *g, gpunn__arena *arena)
{
    gpunn__int8_spare spare = {NULL, NULL};
    if (!gpunn__int8_is_large(g)) return spare;
    spare.x = (int8_t *)gpunn__arena_take(arena, (size_t)(g->rows * g->c));
    spare.sums = (int32_t *)gpunn__arena_take(arena, (size_t)(g->rows * g->out) * sizeof(int32_t));
    return spare;
}

/* count: bytes, a multiple of 16. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__int8_sign_kernel(const uint8_t *x, int8_t *to, int64_t count)
{
    GPUNN__FOLLOW();
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 16;
    for (; i < count; i += (int64_t)gridDim.x * blockDim.x * 16) {
        const uint4 v = *(const uint4 *)(x + i);
        *(uint4 *)(to + i) = make_uint4(v.x ^ 0x80808080u, v.y ^ 0x80808080u, v.z ^ 0x80808080u,
                                        v.w ^ 0x80808080u);
    }
}

/* A thread stores four results of a row. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__int8_finish_kernel(const gpunn__int8 g, const int32_t *sums)
{
    GPUNN__FOLLOW();
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    for (; i < g.rows * g.out; i += (int64_t)gridDim.x * blockDim.x * 4) {
        const int64_t row = gpunn__quotient(i, g.out);
        const int     o = (int)(i - row * g.out);
        const uint4   four = *(const uint4 *)(sums + i);
        const int     sum[4] = {(int)four.x, (int)four.y, (int)four.z, (int)four.w};
        uint32_t      word = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int whole = gpunn__wrapped_sum(sum[j], 128 * g.total[o + j]);
            if (g.bias)
                gpunn__store_sum(g, row, o + j, whole);
            else
                word |= gpunn__byte_of_sum(g, o + j, whole) << 8 * j;
        }
        if (g.bias == NULL) *(uint32_t *)((uint8_t *)g.y + i) = word;
    }
}

/* GPUNN_ERR_UNSUPPORTED if the library has no algorithm. */
static gpunn_status gpunn__int8_by_library(gpunn__cuda *cuda, const gpunn__int8 *g,
                                           const gpunn__int8_spare *spare)
{
    const gpunn__product p = gpunn__int8_product(g, spare);
    const int64_t        count = g->rows * g->c, results = g->rows * g->out;
    GPUNN__TRY(gpunn__cuda_product_prepare(cuda, &p));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__int8_sign_kernel, gpunn__blocks(cuda, count, 16), GPUNN__THREADS,
                             g->x, spare->x, count));
    GPUNN__TRY(gpunn__cuda_product(cuda, &p));
    return GPUNN__LAUNCH(cuda, gpunn__int8_finish_kernel, gpunn__blocks(cuda, results, 4), GPUNN__THREADS, *g,
                         spare->sums);
}

static gpunn_status gpunn__int8_run(gpunn__cuda *cuda, const gpunn__int8 *g, const gpunn__int8_spare *spare)
{
    if (g->depthwise)
        return GPUNN__LAUNCH(cuda, gpunn__int8_depthwise_kernel,
                             gpunn__blocks(cuda, g->rows * ((g->c + 3) / 4), 1), GPUNN__THREADS, *g);
    if (g->whole && g->c % 4 == 0 && g->rows <= GPUNN__BYTE_ROWS) return gpunn__int8_few(cuda, g);
    const gpunn_status status = spare->x ? gpunn__int8_by_library(cuda, g, spare) : GPUNN_ERR_UNSUPPORTED;
    return status == GPUNN_ERR_UNSUPPORTED ? gpunn__int8_tiled(cuda, g) : status;
}

/* ---- steps ---- */

static gpunn_status gpunn__int8_check(gpunn__cuda *cuda, const gpunn__int8 *g)
{
    if (cuda->architecture < 75)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "8-bit products need code for compute capability 7.5 or later, but this GPU "
                                "runs code for %d.%d; open a device of type GPUNN_DEVICE_CPU",
                                cuda->architecture / 10, cuda->architecture % 10);
    if (g->k <= GPUNN__MOST_PRODUCTS) return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                            "a sum of %d products may exceed 32 bits; %d products are possible", g->k,
                            GPUNN__MOST_PRODUCTS);
}

/* Takes what does not change between runs. */
static void gpunn__int8_keep(gpunn__int8 *g, gpunn__arena *arena)
{
    const size_t rows = (size_t)(g->depthwise ? g->k : g->out);
    g->packed = (int8_t *)gpunn__arena_take(arena, rows * (size_t)g->pitch);
    g->total = (int *)gpunn__arena_take(arena, (size_t)g->out * sizeof(int));
}

static void gpunn__int8_take(gpunn__int8 *g, gpunn__arena *arena)
{
    g->start = (int *)gpunn__arena_take(arena, (size_t)g->out * sizeof(int));
    g->factor = (float *)gpunn__arena_take(arena, (size_t)g->out * sizeof(float));
}

static gpunn__columns gpunn__columns_of(const gpunn_step *step)
{
    gpunn__columns from;
    memset(&from, 0, sizeof from);
    from.weight = step->in[1].data, from.weight_dtype = step->in[1].dtype;
    from.scale = step->in[2].data, from.scale_dtype = step->in[2].dtype;
    return from;
}

/* Packs the weight if it may have changed. A run that the program captures packs in each replay. */
static gpunn_status gpunn__int8_pack(gpunn__cuda *cuda, gpunn_step *step, const gpunn__int8 *g,
                                     const gpunn__columns *from)
{
    const unsigned blocks = gpunn__blocks(cuda, (int64_t)g->out * GPUNN__THREADS, 1);
    if (!gpunn__cuda_is_stale(cuda, step)) return GPUNN_OK;
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__int8_pack_kernel, blocks, GPUNN__THREADS, *g, *from));
    if (!cuda->replayed) step->cache_version = step->state->weights_version;
    return GPUNN_OK;
}

/* y of 8 bits. */
static gpunn_status gpunn__int8_step(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action, gpunn__int8 g)
{
    const bool              run = action != GPUNN__PREPARE;
    const gpunn_attributes *attr = step->attr;
    gpunn__arena            kept = {run ? (char *)step->cache : NULL, 0},
                 scratch = {run ? (char *)step->workspace : NULL, 0};
    GPUNN__TRY(gpunn__int8_check(cuda, &g));
    gpunn__int8_keep(&g, &kept);
    gpunn__int8_take(&g, &kept);
    const gpunn__int8_spare spare = gpunn__int8_spare_of(&g, &scratch);
    step->cache_bytes = kept.bytes;
    step->workspace_bytes = scratch.bytes;
    if (!run) return GPUNN_OK;
    gpunn__columns from = gpunn__columns_of(step);
    from.bias = step->in[3].data, from.bias_dtype = step->in[3].dtype;
    from.x_scale = attr->x_scale, from.y_scale = attr->scale;
    g.x = (const uint8_t *)step->in[0].data;
    g.y = step->out.data;
    g.x_zero = attr->x_zero_point;
    g.zero = attr->zero_point, g.low = attr->quant_min, g.high = attr->quant_max;
    GPUNN__TRY(gpunn__int8_pack(cuda, step, &g, &from));
    return gpunn__int8_run(cuda, &g, &spare);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_quantized_linear(gpunn__cuda *cuda, gpunn_step *step,
                                                          gpunn__action action)
{
    return gpunn__int8_step(cuda, step, action, gpunn__int8_linear(step));
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_quantized_conv2d(gpunn__cuda *cuda, gpunn_step *step,
                                                          gpunn__action action)
{
    return gpunn__int8_step(cuda, step, action, gpunn__int8_conv2d(step));
}

/* ---- linear layers of floats that each run rounds ------------------------------------------------------ */

/* The range of each block's share of x, and 0. A NaN makes both ends NaN. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__range_kernel(const gpunn__rescale m, float *range)
{
    GPUNN__FOLLOW();
    float   least = 0, most = 0;
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    for (; i < m.count; i += (int64_t)gridDim.x * blockDim.x * 4) {
        float v[4];
        gpunn__load_four(m, i, v);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            least = gpunn__larger()(least, -v[j]);
            most = gpunn__larger()(most, v[j]);
        }
    }
    least = gpunn__block_reduce(least, gpunn__larger());
    most = gpunn__block_reduce(most, gpunn__larger());
    if (threadIdx.x > 0) return;
    range[2 * blockIdx.x] = least;
    range[2 * blockIdx.x + 1] = most;
}

/* Rounds x to bytes, with scale and zero point as ONNX's DynamicQuantizeLinear, and sets the columns. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__dynamic_kernel(gpunn__rescale m, const gpunn__int8 g, const gpunn__columns from)
{
    GPUNN__FOLLOW();
    const bool  has = (int)threadIdx.x < from.ranges;
    const float least = -gpunn__block_reduce(has ? from.range[2 * threadIdx.x] : 0, gpunn__larger());
    const float most = gpunn__block_reduce(has ? from.range[2 * threadIdx.x + 1] : 0, gpunn__larger());
    m.scale = __fdiv_rn(most == least ? 1 : most - least, 255);
    m.zero = gpunn__byte_of(__fdiv_rn(-least, m.scale), 0, 0, 255);
    gpunn__quantize_share(m);
    for (int o = (int)(blockIdx.x * blockDim.x + threadIdx.x); o < g.out; o += (int)(gridDim.x * blockDim.x))
        gpunn__set_column(g, from, o, m.scale, m.zero);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_quantized_linear_dynamic(gpunn__cuda *cuda, gpunn_step *step,
                                                                  gpunn__action action)
{
    const bool   run = action != GPUNN__PREPARE;
    gpunn__arena kept = {run ? (char *)step->cache : NULL, 0},
                 scratch = {run ? (char *)step->workspace : NULL, 0};
    gpunn__int8    g = gpunn__int8_linear(step);
    gpunn__rescale m = gpunn__rescale_of(step);
    gpunn__columns from = gpunn__columns_of(step);
    m.count = step->in[0].count;
    m.dtype = step->in[0].dtype;
    const unsigned blocks = gpunn__blocks(cuda, m.count, 4);
    GPUNN__TRY(gpunn__int8_check(cuda, &g));
    gpunn__int8_keep(&g, &kept);
    gpunn__int8_take(&g, &scratch);
    m.y = gpunn__arena_take(&scratch, (size_t)m.count);
    from.ranges = (int)min(blocks, (unsigned)GPUNN__THREADS);
    float                  *range = (float *)gpunn__arena_take(&scratch, 2 * GPUNN__THREADS * sizeof *range);
    const gpunn__int8_spare spare = gpunn__int8_spare_of(&g, &scratch);
    step->cache_bytes = kept.bytes;
    step->workspace_bytes = scratch.bytes;
    if (!run) return GPUNN_OK;
    from.range = range;
    from.y_scale = 1;
    g.x = (const uint8_t *)m.y;
    g.y = step->out.data;
    g.bias = step->in[3].data, g.bias_dtype = step->in[3].dtype;
    GPUNN__TRY(gpunn__int8_pack(cuda, step, &g, &from));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__range_kernel, (unsigned)from.ranges, GPUNN__THREADS, m, range));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__dynamic_kernel, blocks, GPUNN__THREADS, m, g, from));
    return gpunn__int8_run(cuda, &g, &spare);
}

/* ==== >>cuda/short ======================================================================================= *
 * Runs several short steps in one launch, because they take longer to launch than to compute. One block does
 * them one after another, forward or backward: small products, elementwise ops, sums to one number and class
 * losses. A product is small if it has one or two tiles, or few multiplications per thread. Eight
 * multiplications of a thread take about 150 clocks, a launch about 4000. */
enum {
    GPUNN__SHORT_STEPS = 16,
    GPUNN__SHORT_BEFORE_UPDATE = 12,
    GPUNN__SHORT_TILES = 2,
    GPUNN__SHORT_EIGHTS = 24
};

/* like gpunn__map_job; each operand has the result's size or is one number */
typedef struct gpunn__short_map {
    gpunn_op    op;
    bool        single[GPUNN__FROM_COUNT], add[3];
    int         count;
    const void *from[GPUNN__FROM_COUNT];
    void       *to[3];
    gpunn_dtype from_dtype[GPUNN__FROM_COUNT], to_dtype[3];
    float       attr[2];
} gpunn__short_map;

typedef struct gpunn__short_sum { /* y = the sum of x / divisor; backward x = or += y / divisor */
    void       *x, *y;
    gpunn_dtype x_type, y_type;
    int         count;
    float       divisor;
    bool        add;
} gpunn__short_sum;

typedef struct gpunn__short {
    gpunn_op op;
    bool     backward, tiled; /* tiled: a product, computed by tiles */
    union {
        gpunn__short_map  map;
        gpunn__short_sum  sum;
        gpunn__product    product;
        gpunn__class_loss loss;
    };
} gpunn__short;

typedef struct gpunn__short_steps {
    gpunn__short step[GPUNN__SHORT_STEPS];
    int          count;
} gpunn__short_steps;
static_assert(sizeof(gpunn__short_steps) <= 4096, "a kernel's arguments");

/* The forward function of any op of the tables. */
__device__ __forceinline__ float gpunn__map_forward_of(gpunn_op op, const float *from, const float *attr)
{
    switch (op) {
#define GPUNN__X(ENUM, name, ...) \
    case GPUNN_OP_##ENUM: return gpunn__op_##name::forward(from, attr);
        GPUNN__ELEMENTWISE_OPS(GPUNN__X)
#undef GPUNN__X
    default: return 0;
    }
}

__device__ __forceinline__ float gpunn__map_derivative_of(gpunn_op op, int i, const float *from,
                                                          const float *attr)
{
    switch (op) {
#define GPUNN__X(ENUM, name, ...) \
    case GPUNN_OP_##ENUM: return gpunn__op_##name::derivative(i, from, attr);
        GPUNN__ELEMENTWISE_OPS(GPUNN__X)
#undef GPUNN__X
    default: return 0;
    }
}

__device__ __forceinline__ void gpunn__short_map_make(const gpunn__short_map &m, bool backward)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < m.count; i += (int)blockDim.x) {
        float from[GPUNN__FROM_COUNT];
#pragma unroll
        for (int k = 0; k < GPUNN__FROM_COUNT; k++)
            from[k] = m.from[k] ? gpunn__load(m.from[k], m.from_dtype[k], m.single[k] ? 0 : i) : 0;
        if (!backward) {
            gpunn__store(m.to[0], m.to_dtype[0], i, gpunn__map_forward_of(m.op, from, m.attr));
            continue;
        }
#pragma unroll 1
        for (int d = 0; d < 3; d++) {
            if (m.to[d] == NULL) continue;
            float gradient = gpunn__map_derivative_of(m.op, d, from, m.attr);
            gpunn__store(m.to[d], m.to_dtype[d], i,
                         m.add[d] ? gpunn__load(m.to[d], m.to_dtype[d], i) + gradient : gradient);
        }
    }
}

__device__ __forceinline__ void gpunn__short_sum_make(const gpunn__short_sum &s, bool backward)
{
    float sum = 0, gradient = backward ? gpunn__load(s.y, s.y_type, 0) / s.divisor : 0;
    for (int i = (int)threadIdx.x; i < s.count; i += (int)blockDim.x)
        if (backward)
            gpunn__store(s.x, s.x_type, i, s.add ? gpunn__load(s.x, s.x_type, i) + gradient : gradient);
        else
            sum += gpunn__load(s.x, s.x_type, i);
    if (backward) return;
    sum = gpunn__block_reduce(sum, gpunn__add());
    if (threadIdx.x == 0) gpunn__store(s.y, s.y_type, 0, sum / s.divisor);
}

/* One thread per element of d. The dtype is constant, so that the loads of 8 steps wait for memory
 * together. */
template <gpunn_dtype dtype> __device__ __forceinline__ void gpunn__short_product_of(const gpunn__product &p)
{
    const int m = (int)p.m, n = (int)p.n, count = (int)p.k;
    const int step_a = p.transpose_a ? (int)p.lda : 1, step_b = p.transpose_b ? 1 : (int)p.ldb;
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < m * n; at += (int)blockDim.x) {
        const int i = at / n, j = at % n;
        int       from_a = p.transpose_a ? i : i * (int)p.lda, from_b = p.transpose_b ? j * (int)p.ldb : j;
        float     sum = 0, row_sum = 0;
#pragma unroll 8
        for (int k = 0; k < count; k++, from_a += step_a, from_b += step_b) {
            const float a = gpunn__load(p.a, dtype, from_a);
            sum += a * gpunn__load(p.b, dtype, from_b);
            row_sum += a;
        }
        gpunn__product_store(&p, i, j, i * p.ldd + j, sum, row_sum);
    }
}

__device__ __forceinline__ void gpunn__short_product_make(const gpunn__product &p)
{
    if (p.dtype == GPUNN_F32)
        gpunn__short_product_of<GPUNN_F32>(p);
    else if (p.dtype == GPUNN_BF16)
        gpunn__short_product_of<GPUNN_BF16>(p);
    else
        gpunn__short_product_of<GPUNN_F16>(p);
}

/* Makes the steps one after another. All threads see the results of a step before the next one begins. */
__device__ __forceinline__ void gpunn__short_make(const gpunn__short *steps, int count)
{
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        const gpunn__short &step = steps[i];
        if (step.tiled)
            gpunn__product_make(&step.product);
        else if (step.op == GPUNN_OP_LINEAR)
            gpunn__short_product_make(step.product);
        else if (step.op == GPUNN_OP_SUM)
            gpunn__short_sum_make(step.sum, step.backward);
        else if (step.op != GPUNN_OP_CROSS_ENTROPY && step.op != GPUNN_OP_NLL)
            gpunn__short_map_make(step.map, step.backward);
        else if (step.backward)
            gpunn__class_loss_dx(step.loss);
        else
            gpunn__class_loss_make(step.loss);
        __syncthreads();
    }
}

/* Whether each node of a generated kernel's group would be a short step by itself. Such a group is run as
 * single steps, so that it shares a launch with its neighbours. */
GPUNN__INTERNAL bool gpunn__short_fused(const gpunn_step *step);

/* Collects the short steps from `step` on. Returns the first step that is not among them. */
GPUNN__INTERNAL gpunn_step *gpunn__short_gather(const gpunn__cuda *cuda, gpunn_step *step,
                                                gpunn__short_steps *shorts);

/* Launches the short steps at cuda->next as one kernel and moves cuda->next past them. Does nothing if there
 * are fewer than two. joins: steps that end the run are left to the launch of its update. */
GPUNN__INTERNAL gpunn_status gpunn__short_run(gpunn__cuda *cuda, bool joins);

#ifndef GPUNN__SHORT
#define GPUNN__SHORT \
    1024 /* most elements of a short step, four per thread; a product may have twice as many */
#endif

static __global__ void __launch_bounds__(GPUNN__THREADS, 1)
    gpunn__short_kernel(const __grid_constant__ gpunn__short_steps steps)
{
    GPUNN__FOLLOW();
    gpunn__short_make(steps.step, steps.count);
}

static bool gpunn__short_map_of(const gpunn_step *step, gpunn__short_map *m)
{
    const gpunn__map_facts *facts = gpunn__map_facts_for(step->op);
    const gpunn_value      *from[GPUNN__FROM_COUNT] = {NULL, NULL, NULL, &step->out, &step->grad_out};
    unsigned                computed = 0;
    memset(m, 0, sizeof *m);
    if (step->out.count > GPUNN__SHORT) return false;
    m->op = step->op;
    m->count = (int)step->out.count;
    memcpy(m->attr, step->attr->value, sizeof m->attr);
    for (int i = 0; i < step->input_count; i++) {
        const gpunn_value *result = i == 0 ? &step->out : NULL,
                          *to = step->backward ? &step->grad_in[i] : result;
        const bool whole = step->in[i].count == step->out.count;
        from[i] = &step->in[i];
        if (!whole && (step->in[i].count != 1 || (step->backward && to->data))) return false;
        if (to == NULL || to->data == NULL) continue;
        computed |= 1u << i;
        m->to[i] = to->data;
        m->to_dtype[i] = to->dtype;
        m->add[i] = step->backward && step->accumulate[i];
    }
    for (int k = 0; k < (step->backward ? (int)GPUNN__FROM_COUNT : step->input_count); k++) {
        if (from[k] == NULL || (step->backward && !(facts->readers[k] & computed))) continue;
        m->from[k] = from[k]->data;
        m->from_dtype[k] = from[k]->dtype;
        m->single[k] = from[k]->count != step->out.count;
    }
    return true;
}

static bool gpunn__short_sum_of(const gpunn_step *step, gpunn__short_sum *s)
{
    const gpunn_value *x = step->backward ? &step->grad_in[0] : &step->in[0],
                      *y = step->backward ? &step->grad_out : &step->out;
    memset(s, 0, sizeof *s);
    if (!gpunn__is_float(step->in[0].dtype) || step->in[0].count > GPUNN__SHORT || step->out.count != 1 ||
        x->data == NULL)
        return false;
    s->x = x->data, s->x_type = x->dtype;
    s->y = y->data, s->y_type = y->dtype;
    s->count = (int)step->in[0].count;
    s->divisor = step->attr->mean ? (float)s->count : 1;
    s->add = step->backward && step->accumulate[0];
    return true;
}

/* Whether one block computes p in less time than a launch takes. */
static bool gpunn__short_product_of(const gpunn__cuda *cuda, const gpunn__product *p, gpunn__short *item)
{
    if (!gpunn__product_is_small(cuda, p) || p->m * p->n > 2 * GPUNN__SHORT) return false;
    const int64_t rounds = (p->m * p->n + GPUNN__THREADS - 1) / GPUNN__THREADS;
    item->op = GPUNN_OP_LINEAR;
    item->product = *p;
    item->tiled = gpunn__product_tiles(p) <= GPUNN__SHORT_TILES;
    return item->tiled || rounds * ((p->k + 7) / 8) <= GPUNN__SHORT_EIGHTS;
}

/* Describes the products of a linear layer, two for a backward step, and returns their number. Returns 0 if
 * they are not short or do not cover the whole step. */
static int gpunn__short_linear_of(const gpunn__cuda *cuda, gpunn_step *step, gpunn__short *item)
{
    gpunn__product whole;
    if (gpunn__is_blocks(step->in[1].dtype)) return 0;
    if (!step->backward)
        return gpunn__linear_whole(step, &whole) && gpunn__short_product_of(cuda, &whole, item);
    const gpunn__linear_gradients g = gpunn__linear_gradients_of(step);
    if ((step->grad_in[2].data && !g.sums) || (step->fused->activated && step->grad_in[0].data && !g.derived))
        return 0;
    for (int i = 0; i < g.count; i++)
        if (!gpunn__short_product_of(cuda, &g.product[i], &item[i])) return 0;
    return g.count;
}

/* Describes how a block computes a step, in one or two items, and returns their number. Returns 0 if it is
 * not short. */
static int gpunn__short_of(const gpunn__cuda *cuda, gpunn_step *step, gpunn__short *item)
{
    item->op = step->op;
    item->backward = step->backward;
    item->tiled = false;
    switch (step->op) {
    case GPUNN_OP_LINEAR: return gpunn__short_linear_of(cuda, step, item);
    case GPUNN_OP_SUM: return gpunn__short_sum_of(step, &item->sum);
    case GPUNN_OP_CROSS_ENTROPY:
    case GPUNN_OP_NLL:
        item->loss = gpunn__class_loss_of(cuda, step);
        return step->in[0].count <= GPUNN__SHORT && item->loss.along.out && item->loss.along.lanes <= 32;
    default: return (int)step->op < GPUNN__MAP_COUNT && gpunn__short_map_of(step, &item->map);
    }
}

GPUNN__INTERNAL bool gpunn__short_fused(const gpunn_step *step)
{
    const gpunn_kernel *kernel = step->fusion->kernel;
    int64_t             largest = 1;
    for (int i = 0; i < step->input_count; i++)
        if (step->in[i].count > largest) largest = step->in[i].count;
    for (int i = 0; i < step->input_count; i++) {
        const gpunn_dtype dtype = step->in[i].dtype;
        if (gpunn__is_float(dtype) && step->in[i].count != 1 && step->in[i].count != largest) return false;
    }
    for (int k = 0; k < kernel->node_count; k++) {
        const char  *text = kernel->nodes[k].text; /* starts with the op's name and ends with the shape */
        const size_t length = strlen(text), word = strcspn(text, " ");
        int          op = 1;
        while (op < GPUNN_OP_COUNT && (strncmp(gpunn_op_name((gpunn_op)op), text, word) != 0 ||
                                       gpunn_op_name((gpunn_op)op)[word] != 0))
            op++;
        const bool number = length >= 2 && strcmp(text + length - 2, "[]") == 0;
        const bool reduces = op == GPUNN_OP_SUM || op == GPUNN_OP_CROSS_ENTROPY || op == GPUNN_OP_NLL;
        if (!(op < GPUNN__MAP_COUNT || (reduces && number))) return false;
    }
    return largest <= GPUNN__SHORT;
}

GPUNN__INTERNAL gpunn_step *gpunn__short_gather(const gpunn__cuda *cuda, gpunn_step *step,
                                                gpunn__short_steps *shorts)
{
    for (shorts->count = 0; shorts->count + 2 <= GPUNN__SHORT_STEPS && step < cuda->end; step++) {
        const int items = gpunn__short_of(cuda, step, &shorts->step[shorts->count]);
        if (items == 0) break;
        shorts->count += items;
    }
    return step;
}

GPUNN__INTERNAL gpunn_status gpunn__short_run(gpunn__cuda *cuda, bool joins)
{
    gpunn__short_steps shorts;
    gpunn_step *const first = cuda->next, *const step = gpunn__short_gather(cuda, first, &shorts);
    if (step - first < 2) return GPUNN_OK;
    cuda->next = step;
    if (joins && step == cuda->end && shorts.count <= GPUNN__SHORT_BEFORE_UPDATE) {
        cuda->with_update = first;
        return GPUNN_OK;
    }
    return GPUNN__LAUNCH(cuda, gpunn__short_kernel, 1, GPUNN__THREADS, shorts);
}

/* ==== >>cuda/optimizers ================================================================================== *
 * The optimizers of gpunn.h's table as kernels, each in one pass over parameter, gradient and state. The
 * inputs of a run's decisions are in device memory: whether the loss is finite, the gradient norm, the loss
 * scale, lr and step. Every block evaluates them itself, in the same order. */
#define GPUNN__BAD_GRADIENT \
    ((uint64_t)1 << 63) /* flag in bad[0], beside the step: a gradient is bad, not the loss */
enum {
    /* up to so many gradient elements, in so many ranges, every block of an update checks all of them
     * itself */
    GPUNN__FEW_GRADIENTS = 4096,
    GPUNN__FEW_RANGES = 2,
    GPUNN__GRADIENT_RANGES = 160, /* most ranges that fit a kernel's arguments */
};

typedef struct gpunn__update_job {
    /* its lr and step are those of the captured run and are not read */
    gpunn_update  u;
    double        setting[GPUNN_SETTINGS]; /* the decimal numbers that the caller wrote */
    const float  *loss, *loss_scale;
    const double *partials;             /* sums of squares of all gradients of the run */
    int           partial_count, index; /* index: of this update in the run */
    /* this update reports non-finite values: the first one of the run that changes anything */
    bool reports;
    bool skips, scales; /* as in gpunn_run */
    /* partials of the updates that are clipped together with this one */
    int own_first, own_count;
    /* gradients that state->bad_place does not cover */
    const float               *few[GPUNN__FEW_RANGES];
    int                        few_count[GPUNN__FEW_RANGES];
    const gpunn_kept          *kept; /* as in gpunn_run */
    int                        kept_count;
    const gpunn__device_state *state;
    uint64_t                  *bad;
    gpunn_update_numbers      *numbers; /* decided by an earlier kernel; NULL: still to be decided */
    /* trust ratio: per block, the sums of squares of parameter and move */
    double   *sums;
    int       sum_count;
    int64_t  *rejected; /* as in gpunn_run */
    uint64_t *doubt;    /* as in gpunn_run; updates set it */
} gpunn__update_job;

/* Copies the values that a run changes in place aside, or back. One block copies ranges first,
 * first + blocks, ... */
__device__ __forceinline__ void gpunn__kept_copy(const gpunn_kept *kept, int count, bool back, unsigned first,
                                                 unsigned blocks)
{
    for (unsigned k = first; k < (unsigned)count; k += blocks) {
        float *const from = back ? kept[k].copy : kept[k].values, *const to = back ? kept[k].values
                                                                                   : kept[k].copy;
        for (int64_t i = threadIdx.x; i < kept[k].count; i += blockDim.x) to[i] = from[i];
    }
}

/* A small network's training: the steps that end a run and its update of few parameters, made by one
 * block. */
typedef struct gpunn__short_training {
    gpunn__short      step[GPUNN__SHORT_BEFORE_UPDATE];
    int               count;
    gpunn__update_job job;
} gpunn__short_training;

/* Gradients as ranges of F32 values; length is in elements. */
typedef struct gpunn__gradients {
    int          count;
    int64_t      total; /* of all ranges */
    const float *values[GPUNN__GRADIENT_RANGES];
    int64_t      length[GPUNN__GRADIENT_RANGES];
} gpunn__gradients;

/* A gradient that steps of a run write, complete after so many of them. */
struct gpunn__check {
    const float *values;
    int64_t      count;
    int          after;
};

struct gpunn__checks {
    gpunn__check       *list;        /* by rising `after`, then by place */
    int                 count, next; /* next: the first that no kernel has been launched for */
    unsigned long long *bad_place;
    bool                beside; /* kernels have been launched on the second stream */
};

/* Whether one block can make the run's only update behind its last steps. */
GPUNN__INTERNAL bool gpunn__joins_steps(const gpunn__cuda *cuda, const gpunn_run *run);

/* Finds out what the run's steps write, and when. */
GPUNN__INTERNAL gpunn_status gpunn__checks_begin(gpunn__cuda *cuda, const gpunn_run *run,
                                                 gpunn__checks *checks);

/* For gradients that are complete after so many steps, but not those that come last: see gpunn__checks_end.
 * They wait until they are many, or only those are left. In a profile, and with GPUNN_PLAIN, all are last. */
GPUNN__INTERNAL gpunn_status gpunn__checks_after(gpunn__cuda *cuda, gpunn__checks *checks, int steps);

/* The sum of the squares of `count` values, copied to the host. An entry of gpunn_backend. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_sum_of_squares(void *context, const float *values, int64_t count,
                                                        double *result);

/* Statistics of `count` values, as up to GPUNN_SUM_PARTS partial results on the host; unused parts are 0. An
 * entry of gpunn_backend. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_value_sums(void *context, const void *values, gpunn_dtype dtype,
                                                    int64_t count, gpunn_value_sums parts[GPUNN_SUM_PARTS]);

/* clang-format off */
/* The columns states, step and move of the optimizer table: the number of states, and how one element
 * changes. */
template <int KIND> struct gpunn__rule;
#define where(condition, yes, no) ((condition) != 0 ? (float)(yes) : (float)(no))
#define sqrt(x) sqrtf(x)
#define max(p, q) gpunn__float_max(p, q)
#define abs(p) fabsf(p)
#define GPUNN__NUMBER(kind, key, usual) const float key = *setting++; (void)key;
#define GPUNN__FLAG(key) GPUNN__NUMBER(, key, )
#define GPUNN__STATE(setting) +1
#define GPUNN__ONCE(name, value) const float name = *once++; (void)name;
#define GPUNN__STEP(states, settings, numbers, text)                                                        \
    static constexpr int STATES = 0 states;                                                                 \
    static __device__ __forceinline__ void step(const float *setting, const float *once, float &p, float g, \
    float &s0,                                                                                              \
                                                float &s1, float &s2)                                       \
    {                                                                                                       \
        settings                                                                                            \
        numbers                                                                                             \
        text                                                                                                \
        (void)once, (void)p, (void)s0, (void)s1, (void)s2;                                                  \
    }
#define GPUNN__X(ENUM, name, settings, states, numbers, text) \
    template <> struct gpunn__rule<GPUNN_UPDATE_##ENUM> { GPUNN__STEP(states, settings, numbers, text) };
#define GPUNN__TRUST(ENUM, name, settings, states, numbers, text, direction, ratio)                    \
    template <> struct gpunn__rule<GPUNN_UPDATE_##ENUM> {                                              \
        GPUNN__STEP(states, settings, numbers, text)                                                   \
        static __device__ __forceinline__ float move(const float *setting, const float *once, float p, \
        float s0, float s1,                                                                            \
                                                     float s2)                                         \
        {                                                                                              \
            settings                                                                                   \
            numbers                                                                                    \
            (void)s2;                                                                                  \
            return direction;                                                                          \
        }                                                                                              \
    };
GPUNN_UPDATES(GPUNN__X, GPUNN__TRUST, GPUNN__NUMBER, GPUNN__FLAG, GPUNN__STATE, GPUNN__ONCE)
#undef where
#undef sqrt
#undef max
#undef abs
#undef GPUNN__NUMBER
#undef GPUNN__FLAG
#undef GPUNN__STATE
#undef GPUNN__ONCE
#undef GPUNN__STEP
#undef GPUNN__X
#undef GPUNN__TRUST
/* clang-format on */

/* Records the first non-finite value, until the host takes it. The host looks at bad[0] first, so it is
 * written last. */
__device__ __forceinline__ void gpunn__note_bad(uint64_t *bad, const float *value, uint64_t what)
{
    volatile uint64_t *note = bad;
    if (note[0] != 0) return;
    note[1] = __float_as_uint(*value);
    note[2] = (uint64_t)(uintptr_t)value;
    __threadfence_system();
    note[0] = what;
}

/* The sum of all partials, the same in every thread of every block. */
__device__ __forceinline__ double gpunn__partials_sum(const double *partials, int count)
{
    double sum = 0;
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) sum += partials[i];
    return gpunn__block_reduce(sum, gpunn__add());
}

__device__ __forceinline__ bool gpunn__is_finite(float value)
{
    return value - value == 0;
}

/* Gradient number i of the few that the update's blocks check. */
__device__ __forceinline__ const float *gpunn__few_at(const gpunn__update_job &job, int i)
{
    return i < job.few_count[0] ? job.few[0] + i : job.few[1] + (i - job.few_count[0]);
}

/* What an update's decision depends on, the same in every thread. squares is the sum of the squares of all
 * gradients that are clipped together. bad_place is as in gpunn__device_state. */
struct gpunn__verdict {
    double                     squares;
    unsigned long long         bad_place;
    __device__ __forceinline__ gpunn__verdict(const gpunn__update_job &job)
    {
        float first = 0; /* count - its index */
        squares = job.u.clip_norm > 0 ? gpunn__partials_sum(job.partials + job.own_first, job.own_count) : 0;
        bad_place = job.state->bad_place;
        if (job.few_count[0] == 0) return;
        const int count = job.few_count[0] + job.few_count[1];
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x)
            if (!gpunn__is_finite(*gpunn__few_at(job, i)) && first == 0) first = (float)(count - i);
        first = gpunn__block_reduce(first, gpunn__larger());
        if (first == 0) return;
        const unsigned long long place = ~(unsigned long long)(uintptr_t)gpunn__few_at(job,
                                                                                       count - (int)first);
        if (place > bad_place) bad_place = place;
    }
};

__device__ __forceinline__ bool gpunn__has_bad_loss(const gpunn__update_job &job)
{
    return job.loss && !gpunn__is_finite(*job.loss);
}

/* Whether a step that must not be made is an error. Otherwise it is skipped and counted. */
__device__ __forceinline__ bool gpunn__is_rejected(const gpunn__update_job &job)
{
    return !job.skips && (!job.scales || gpunn__has_bad_loss(job));
}

/* Whether the step may be made. If not, one thread of the launch (tells) reports it. */
__device__ __forceinline__ bool gpunn__may_go(const gpunn__update_job &job, unsigned long long bad_place,
                                              bool tells)
{
    const float   *gradient = (const float *)(uintptr_t)~bad_place;
    const uint64_t step = job.state->step + 1;
    const bool     bad_loss = gpunn__has_bad_loss(job);
    if (!bad_loss && bad_place == 0) return true;
    if (tells && gpunn__is_rejected(job))
        gpunn__note_bad(job.bad, bad_loss ? job.loss : gradient,
                        bad_loss ? step : step | GPUNN__BAD_GRADIENT);
    return false;
}

/* By one thread of the launch: an update that is rejected counts nowhere. */
__device__ __forceinline__ void gpunn__count_rejected(const gpunn__update_job &job)
{
    if (job.rejected == NULL || !gpunn__is_rejected(job)) return;
    if (job.reports) job.rejected[0]++;
    for (int i = job.u.first; i < job.u.last; i++) job.rejected[i]++;
}

/* Fills in all numbers but those of the kind's row, for which setting and *at receive the settings and the
 * step. One thread runs it. */
__device__ __forceinline__ void gpunn__update_decide(const gpunn__update_job &job,
                                                     const gpunn__verdict    &verdict,
                                                     gpunn_update_numbers *numbers, double *setting,
                                                     double *at)
{
    const gpunn_update &u = job.u;
    float               unscale = job.loss_scale ? 1 / job.loss_scale[0] : 1, clip = 1;
    int64_t step = job.state->update_step[job.index] - (job.loss_scale ? (int64_t)job.loss_scale[2] : 0);
    numbers->go = gpunn__may_go(job, verdict.bad_place, job.reports && blockIdx.x == 0);
    if (job.doubt && job.reports && blockIdx.x == 0) *job.doubt = verdict.bad_place;
    if (!numbers->go && blockIdx.x == 0) gpunn__count_rejected(job);
    if (!numbers->go) return;
    if (job.rejected) step -= job.rejected[u.first];
    if (u.clip_norm > 0) {
        double ratio = (double)u.clip_norm /
                       (sqrt(verdict.squares) * (double)fabsf(u.gradient_scale * unscale) + 1e-6);
        if (ratio < 1) clip = (float)ratio;
    }
    numbers->scale = u.kind == GPUNN_UPDATE_AVERAGE ? 1 : u.gradient_scale * clip * unscale;
    numbers->lr = job.state->lr[job.index];
    for (int i = 0; i < GPUNN_SETTINGS; i++) setting[i] = i ? job.setting[i] : (double)numbers->lr;
    *at = (double)(step < 1 ? 1 : step);
}

/* Kinds whose numbers are too costly to compute in every block. An earlier kernel computes them, as for
 * updates of more than one kernel. */
__host__ __device__ constexpr bool gpunn__decided_apart(int kind)
{
    return kind == GPUNN_UPDATE_NADAM || kind == GPUNN_UPDATE_MUON;
}

/* The numbers of an update, the same in every thread of every block. */
template <int KIND>
__device__ __forceinline__ gpunn_update_numbers gpunn__update_numbers(const gpunn__update_job &job)
{
    __shared__ gpunn_update_numbers shared;
    if (gpunn__decided_apart(KIND)) return *job.numbers;
    const gpunn__verdict verdict(job);
    if (threadIdx.x == 0) {
        double setting[GPUNN_SETTINGS], step;
        gpunn__update_decide(job, verdict, &shared, setting, &step);
        if (shared.go) gpunn__update_once((gpunn_update_kind)KIND, setting, step, shared.once);
    }
    __syncthreads();
    if (!shared.go && job.reports) gpunn__kept_copy(job.kept, job.kept_count, true, blockIdx.x, gridDim.x);
    return shared;
}

/* Decides for the kernels that follow. */
static __global__ void gpunn__decide_kernel(const gpunn__update_job job, gpunn_update_numbers *numbers)
{
    GPUNN__FOLLOW();
    const gpunn__verdict verdict(job);
    double               setting[GPUNN_SETTINGS], step;
    if (threadIdx.x == 0) {
        gpunn__update_decide(job, verdict, numbers, setting, &step);
        if (numbers->go) gpunn__update_once(job.u.kind, setting, step, numbers->once);
    }
    __syncthreads();
    if (!numbers->go && job.reports) gpunn__kept_copy(job.kept, job.kept_count, true, 0, 1);
}

/* NaN stays. */
__device__ __forceinline__ float gpunn__clipped(float g, float limit)
{
    if (g > limit) return limit;
    return g < -limit ? -limit : g;
}

/* The elements that a thread works on at once. */
struct gpunn__elements {
    float p[8], g[8], s[3][8];
};

/* Loads elements. Absent states read as 0. */
template <int KIND>
__device__ __forceinline__ void gpunn__elements_load(gpunn__elements *e, const gpunn_update &u, float scale,
                                                     int64_t i)
{
    const float limit = u.gradient_limit > 0 ? u.gradient_limit : INFINITY;
    gpunn__load_quads(u.gradient, GPUNN_F32, i, GPUNN__APART, u.count, e->g);
    gpunn__load_quads(u.parameter, GPUNN_F32, i, GPUNN__APART, u.count, e->p);
#pragma unroll
    for (int k = 0; k < gpunn__rule<KIND>::STATES; k++) {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) e->s[k][j] = 0;
        if (u.state[k]) gpunn__load_quads(u.state[k], GPUNN_F32, i, GPUNN__APART, u.count, e->s[k]);
    }
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) {
        e->g[j] = gpunn__clipped(e->g[j] * scale, limit);
    }
}

template <int KIND>
__device__ __forceinline__ void gpunn__states_store(gpunn__elements *e, const gpunn_update &u, int64_t i)
{
#pragma unroll
    for (int k = 0; k < gpunn__rule<KIND>::STATES; k++)
        if (u.state[k]) gpunn__store_quads(u.state[k], GPUNN_F32, i, GPUNN__APART, u.count, false, e->s[k]);
}

__device__ __forceinline__ void gpunn__parameters_store(gpunn__elements *e, const gpunn_update &u, int64_t i)
{
    if (u.half) {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) e->g[j] = e->p[j];
        gpunn__store_quads(u.half, u.half_dtype, i, GPUNN__APART, u.count, false, e->g);
    }
    gpunn__store_quads(u.parameter, GPUNN_F32, i, GPUNN__APART, u.count, false, e->p);
}

/* An update's settings, with the lr of this run. */
struct gpunn__settings {
    float                      value[GPUNN_SETTINGS];
    __device__ __forceinline__ gpunn__settings(const gpunn_update &u, float lr)
    {
#pragma unroll
        for (int i = 0; i < GPUNN_SETTINGS; i++) value[i] = i ? u.setting[i] : lr;
    }
};

/* The work of an update, by all blocks of a launch. */
template <int KIND> __device__ __forceinline__ void gpunn__update_make(const gpunn__update_job &job)
{
    const gpunn_update_numbers k = gpunn__update_numbers<KIND>(job);
    const gpunn__settings      setting(job.u, k.lr);
    int64_t                    i = gpunn__pack_first(GPUNN__APART, blockIdx.x);
    if (!k.go) return;
    for (; i < job.u.count; i += gpunn__packs_step(gridDim.x)) {
        gpunn__elements e;
        gpunn__elements_load<KIND>(&e, job.u, k.scale, i);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++)
            gpunn__rule<KIND>::step(setting.value, k.once, e.p[j], e.g[j], e.s[0][j], e.s[1][j], e.s[2][j]);
        gpunn__states_store<KIND>(&e, job.u, i);
        gpunn__parameters_store(&e, job.u, i);
    }
}

/* Three blocks per multiprocessor. Left to its own choice of registers, ptxas spills one kind on sm_90. */
template <int KIND>
static __global__ void __launch_bounds__(GPUNN__THREADS, 3) gpunn__update_kernel(const gpunn__update_job job)
{
    GPUNN__FOLLOW();
    gpunn__update_make<KIND>(job);
}

/* Updates the rows of a sparse gradient. A thread takes one element of each. */
template <int KIND> __device__ __forceinline__ void gpunn__rows_make(const gpunn__update_job &job)
{
    const gpunn_update_numbers k = gpunn__update_numbers<KIND>(job);
    const gpunn__settings      setting(job.u, k.lr);
    const gpunn_update        &u = job.u;
    const float                limit = u.gradient_limit > 0 ? u.gradient_limit : INFINITY;
    int64_t                    i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (!k.go) return;
    for (; i < u.count; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t entry = gpunn__quotient(i, u.columns), row = u.rows[entry],
                      at = row * u.columns + (i - entry * u.columns);
        if (row < 0) continue;
        const float g = gpunn__clipped(u.gradient[i] * k.scale, limit);
        float       p = u.parameter[at], s[3] = {0, 0, 0};
#pragma unroll
        for (int n = 0; n < gpunn__rule<KIND>::STATES; n++)
            if (u.state[n]) s[n] = u.state[n][at];
        gpunn__rule<KIND>::step(setting.value, k.once, p, g, s[0], s[1], s[2]);
#pragma unroll
        for (int n = 0; n < gpunn__rule<KIND>::STATES; n++)
            if (u.state[n]) u.state[n][at] = s[n];
        u.parameter[at] = p;
        if (u.half) gpunn__store(u.half, u.half_dtype, at, p);
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__rows_update_kernel(const gpunn__update_job job)
{
    GPUNN__FOLLOW();
    switch (job.u.kind) {
    case GPUNN_UPDATE_SGD: gpunn__rows_make<GPUNN_UPDATE_SGD>(job); break;
    case GPUNN_UPDATE_ADAGRAD: gpunn__rows_make<GPUNN_UPDATE_ADAGRAD>(job); break;
    case GPUNN_UPDATE_SPARSE_ADAM: gpunn__rows_make<GPUNN_UPDATE_SPARSE_ADAM>(job); break;
    default: break;
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS, 1)
    gpunn__short_training_kernel(const __grid_constant__ gpunn__short_training training)
{
    GPUNN__FOLLOW();
    gpunn__short_make(training.step, training.count);
    switch (training.job.u.kind) {
#define GPUNN__X(ENUM, ...) \
    case GPUNN_UPDATE_##ENUM: gpunn__update_make<GPUNN_UPDATE_##ENUM>(training.job); break;
        GPUNN_OPTIMIZERS(GPUNN__X, , , , )
#undef GPUNN__X
    default: break;
    }
}

/* The first kernel of a trust ratio: updates the states and sums squares. Block i leaves its two sums at
 * sums + 2 i. */
template <int KIND>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__norms_kernel(const gpunn__update_job job)
{
    GPUNN__FOLLOW();
    const gpunn_update_numbers k = *job.numbers;
    const gpunn__settings      setting(job.u, k.lr);
    double                     squares = 0, moves = 0;
    int64_t                    i = gpunn__pack_first(GPUNN__APART, blockIdx.x);
    if (!k.go) return;
    for (; i < job.u.count; i += gpunn__packs_step(gridDim.x)) {
        gpunn__elements e;
        gpunn__elements_load<KIND>(&e, job.u, k.scale, i);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            gpunn__rule<KIND>::step(setting.value, k.once, e.p[j], e.g[j], e.s[0][j], e.s[1][j], e.s[2][j]);
            const float move = gpunn__rule<KIND>::move(setting.value, k.once, e.p[j], e.s[0][j], e.s[1][j],
                                                       e.s[2][j]);
            if (gpunn__pack_place(i, GPUNN__APART, j) < job.u.count) {
                squares += (double)e.p[j] * (double)e.p[j];
                moves += (double)move * (double)move;
            }
        }
        gpunn__states_store<KIND>(&e, job.u, i);
    }
    squares = gpunn__block_reduce(squares, gpunn__add());
    moves = gpunn__block_reduce(moves, gpunn__add());
    if (threadIdx.x == 0) {
        job.sums[2 * blockIdx.x] = squares;
        job.sums[2 * blockIdx.x + 1] = moves;
    }
}

/* The second kernel of a trust ratio: updates the parameters. */
template <int KIND>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__trust_kernel(const gpunn__update_job job)
{
    GPUNN__FOLLOW();
    const gpunn_update_numbers k = *job.numbers;
    const gpunn__settings      setting(job.u, k.lr);
    double                     squares = 0, moves = 0;
    int64_t                    i = gpunn__pack_first(GPUNN__APART, blockIdx.x);
    if (!k.go) return;
    for (int at = (int)threadIdx.x; at < job.sum_count; at += (int)blockDim.x) {
        squares += job.sums[2 * at];
        moves += job.sums[2 * at + 1];
    }
    squares = gpunn__block_reduce(squares, gpunn__add());
    moves = gpunn__block_reduce(moves, gpunn__add());
    const double norms = squares > 0 && moves > 0 ? sqrt(squares / moves) : 1;
    const float  rate = (float)((double)k.lr *
                               gpunn__update_ratio((gpunn_update_kind)KIND, job.setting, norms));
    for (; i < job.u.count; i += gpunn__packs_step(gridDim.x)) {
        gpunn__elements e;
        gpunn__elements_load<KIND>(&e, job.u, k.scale, i);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++)
            e.p[j] -= rate *
                      gpunn__rule<KIND>::move(setting.value, k.once, e.p[j], e.s[0][j], e.s[1][j], e.s[2][j]);
        gpunn__parameters_store(&e, job.u, i);
    }
}

/* x /= max(norm, eps). sums has the squares of x in parts. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__muon_normalize_kernel(float *x, int64_t count, const double *sums, int sum_count, double eps)
{
    GPUNN__FOLLOW();
    const float scale = (float)(1 / fmax(sqrt(gpunn__partials_sum(sums, sum_count)), eps));
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x)
        x[i] *= scale;
}

/* y = scale x + diagonal I, for square matrices. y may be x. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__muon_shift_kernel(float *y, const float *x, int64_t size, float scale, float diagonal)
{
    GPUNN__FOLLOW();
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < size * size;
         i += (int64_t)gridDim.x * blockDim.x)
        y[i] = scale * x[i] + (i % (size + 1) == 0 ? diagonal : 0);
}

/* The last pass of Muon: p = p * shrink - lr * ratio * x. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__muon_kernel(const gpunn__update_job job, const float *x, double ratio)
{
    GPUNN__FOLLOW();
    const gpunn_update_numbers k = *job.numbers;
    const float                rate = (float)((double)k.lr * ratio);
    if (!k.go) return;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < job.u.count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const float p = job.u.parameter[i] * k.once[0] - rate * x[i];
        job.u.parameter[i] = p;
        if (job.u.half) gpunn__store(job.u.half, job.u.half_dtype, i, p);
    }
}

/* Records the lowest address of a non-finite gradient in *bad_place. v has the values at x, x + 1, ... */
__device__ __forceinline__ void gpunn__find_bad(const float *v, const float *x, unsigned long long *bad_place)
{
#pragma unroll
    for (int j = GPUNN__PACK - 1; j >= 0; j--)
        if (!gpunn__is_finite(v[j])) (void)atomicMax(bad_place, ~(unsigned long long)(uintptr_t)(x + j));
}

/* Checks gradients, unless *doubt says that they are finite. Successive ranges start at different blocks, so
 * that short ones are spread over the device. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__finite_kernel(unsigned long long *bad_place, const uint64_t *doubt,
                         const gpunn__gradients gradients)
{
    GPUNN__FOLLOW();
    if (doubt && *doubt == 0) return;
    const int64_t step = (int64_t)gridDim.x * blockDim.x * GPUNN__PACK;
    for (int r = 0; r < gradients.count; r++) {
        const float  *x = gradients.values[r];
        const int64_t count = gradients.length[r];
        int64_t       i = ((blockIdx.x + (unsigned)r) % gridDim.x * (int64_t)blockDim.x + threadIdx.x) *
                    GPUNN__PACK;
        for (; i < count; i += step) {
            float v[8];
            gpunn__load_pack(x, GPUNN_F32, i, gpunn__pack_size(count, i), v);
            gpunn__find_bad(v, x + i, bad_place);
        }
    }
}

/* Block i leaves the sum of the squares of what it reads in partials[i]. state: for gpunn__find_bad, or
 * NULL. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__squares_kernel(const float *x, int64_t count, double *partials, gpunn__device_state *state)
{
    GPUNN__FOLLOW();
    double  sum = 0;
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * GPUNN__PACK;
    for (; i < count; i += (int64_t)gridDim.x * blockDim.x * GPUNN__PACK) {
        float v[8];
        gpunn__load_pack(x, GPUNN_F32, i, gpunn__pack_size(count, i), v);
        if (state) gpunn__find_bad(v, x + i, &state->bad_place);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) sum += (double)v[j] * (double)v[j];
    }
    sum = gpunn__block_reduce(sum, gpunn__add());
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__scale_kernel(float *x, int64_t count, float scale, float limit)
{
    GPUNN__FOLLOW();
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * GPUNN__PACK;
    for (; i < count; i += (int64_t)gridDim.x * blockDim.x * GPUNN__PACK) {
        float v[8];
        int   n = gpunn__pack_size(count, i);
        gpunn__load_pack(x, GPUNN_F32, i, n, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            v[j] = gpunn__clipped(v[j] * scale, limit);
        }
        gpunn__store_pack(x, GPUNN_F32, i, n, false, v);
    }
}

/* Counts a skipped step and updates the loss scale as torch's GradScaler does. The scale is halved after
 * non-finite gradients and doubled after 2000 updates in a row. */
static __global__ void gpunn__loss_scale_kernel(const gpunn__update_job job, float *loss_scale)
{
    GPUNN__FOLLOW();
    const bool bad_loss = gpunn__has_bad_loss(job), overflow = !bad_loss && job.state->bad_place;
    if ((overflow || bad_loss) && !gpunn__is_rejected(job)) loss_scale[2] += 1;
    if (!job.scales || bad_loss) return;
    loss_scale[1] = overflow ? 0 : loss_scale[1] + 1;
    if (overflow) {
        loss_scale[0] = fmaxf(loss_scale[0] * 0.5f, 1);
    } else if (loss_scale[1] >= 2000) {
        loss_scale[0] = fminf(loss_scale[0] * 2, 16777216);
        loss_scale[1] = 0;
    }
}

/* Checks the loss of a run without updates. */
static __global__ void gpunn__check_loss_kernel(const gpunn__update_job job)
{
    GPUNN__FOLLOW();
    if (!gpunn__is_finite(*job.loss)) gpunn__kept_copy(job.kept, job.kept_count, true, 0, 1);
    if (threadIdx.x == 0) (void)gpunn__may_go(job, 0, true);
}

/* Blocks of the first stage for `count` of the `total` elements in `ranges` ranges. The number depends only
 * on these; all ranges together get at most GPUNN__PARTIALS. */
static int gpunn__squares_blocks(int64_t count, int64_t total, int ranges)
{
    const int64_t each = 4 * GPUNN__THREADS * GPUNN__PACK;
    int64_t       most = 1 + count * (GPUNN__PARTIALS - ranges) / total, wanted = (count + each - 1) / each;
    return (int)(wanted < most ? wanted : most);
}

/* The short steps that end the run, and its update. */
static gpunn_status gpunn__short_training_launch(gpunn__cuda *cuda, const gpunn__update_job *job)
{
    gpunn__short_steps    shorts;
    gpunn__short_training training;
    (void)gpunn__short_gather(cuda, cuda->with_update, &shorts);
    memcpy(training.step, shorts.step, (size_t)shorts.count * sizeof *shorts.step);
    training.count = shorts.count;
    training.job = *job;
    return GPUNN__LAUNCH(cuda, gpunn__short_training_kernel, 1, GPUNN__THREADS, training);
}

/* The kernels of an update's row. */
static gpunn_status gpunn__update_kernels_launch(gpunn__cuda *cuda, const gpunn__update_job *job,
                                                 unsigned blocks)
{
    switch (job->u.kind) {
#define GPUNN__X(ENUM, ...)   \
    case GPUNN_UPDATE_##ENUM: \
        return GPUNN__LAUNCH(cuda, (gpunn__update_kernel<GPUNN_UPDATE_##ENUM>), blocks, GPUNN__THREADS, *job);
#define GPUNN__TRUST(ENUM, ...)                                                                              \
    case GPUNN_UPDATE_##ENUM:                                                                                \
        GPUNN__TRY(GPUNN__LAUNCH(cuda, (gpunn__norms_kernel<GPUNN_UPDATE_##ENUM>), (unsigned)job->sum_count, \
                                 GPUNN__THREADS, *job));                                                     \
        return GPUNN__LAUNCH(cuda, (gpunn__trust_kernel<GPUNN_UPDATE_##ENUM>), blocks, GPUNN__THREADS, *job);
        GPUNN_UPDATES(GPUNN__X, GPUNN__TRUST, , , , )
#undef GPUNN__X
#undef GPUNN__TRUST
    default: return GPUNN_OK;
    }
}

/* d[m][n] = a[m][k] b[k][n] in F32, all contiguous. */
static gpunn_status gpunn__muon_product(gpunn__cuda *cuda, int64_t m, int64_t n, int64_t k, const float *a,
                                        bool transpose_a, const float *b, bool transpose_b, float *d)
{
    gpunn__product p;
    memset(&p, 0, sizeof p);
    p.m = m, p.n = p.ldd = n, p.k = k, p.batch = 1;
    p.transpose_a = transpose_a, p.transpose_b = transpose_b;
    p.lda = transpose_a ? m : k, p.ldb = transpose_b ? k : n;
    p.dtype = p.d_dtype = GPUNN_F32, p.precision = GPUNN_PRECISION_F32;
    p.a = a, p.b = b, p.d = d;
    return gpunn__products(cuda, &p, 1, GPUNN__FORWARD);
}

static gpunn_status gpunn__muon_shift(gpunn__cuda *cuda, float *y, const float *x, int64_t size, float scale,
                                      float diagonal)
{
    return GPUNN__LAUNCH(cuda, gpunn__muon_shift_kernel, gpunn__blocks(cuda, size * size, 1), GPUNN__THREADS,
                         y, x, size, scale, diagonal);
}

/* One step of Muon's iteration, as on the CPU: x becomes a x + b (x x^T) x + c (x x^T)^2 x, in y. */
static gpunn_status gpunn__muon_step(gpunn__cuda *cuda, const gpunn__muon *m, const float *x, float *y,
                                     float *gram)
{
    const int64_t k = m->least, longer = m->rows + m->columns - k;
    float *const mixed = gram + k * k, *const poly = mixed + k * k;
    GPUNN__TRY(gpunn__muon_product(cuda, k, k, longer, x, m->tall, x, !m->tall, gram));
    GPUNN__TRY(gpunn__muon_shift(cuda, mixed, gram, k, m->c, m->b));
    GPUNN__TRY(gpunn__muon_product(cuda, k, k, k, gram, false, mixed, false, poly));
    GPUNN__TRY(gpunn__muon_shift(cuda, poly, poly, k, 1, m->a));
    return gpunn__muon_product(cuda, m->rows, m->columns, k, m->tall ? x : poly, false, m->tall ? poly : x,
                               false, y);
}

/* Orthogonalizes the matrix that the first pass has left in state 1, and makes the step along it. If the
 * update is rejected, the matrix is an old one and the last pass does nothing. */
static gpunn_status gpunn__muon_launch(gpunn__cuda *cuda, const gpunn__update_job *job, unsigned blocks)
{
    const gpunn_update *u = &job->u;
    const gpunn__muon   m = gpunn__muon_of(job->setting, u->count / u->columns, u->columns);
    float *x = u->state[1], *y = (float *)u->workspace, *const gram = y + u->count;
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__squares_kernel, (unsigned)job->sum_count, GPUNN__THREADS, x,
                             u->count, job->sums, (gpunn__device_state *)NULL));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__muon_normalize_kernel, blocks, GPUNN__THREADS, x, u->count,
                             job->sums, job->sum_count, m.eps));
    for (int step = 0; step < m.steps; step++) {
        GPUNN__TRY(gpunn__muon_step(cuda, &m, x, y, gram));
        float *const result = y;
        y = x;
        x = result;
    }
    return GPUNN__LAUNCH(cuda, gpunn__muon_kernel, blocks, GPUNN__THREADS, *job, x, m.ratio);
}

static gpunn_status gpunn__cuda_update_launch(gpunn__cuda *cuda, gpunn__update_job *job)
{
    const gpunn_update *u = &job->u;
    bool                apart = gpunn__decided_apart(u->kind);
    unsigned            blocks = gpunn__blocks(cuda, u->count, GPUNN__PACK);
#define GPUNN__X(ENUM, ...) apart = apart || u->kind == GPUNN_UPDATE_##ENUM;
    GPUNN_TRUST_OPTIMIZERS(GPUNN__X, , , , )
#undef GPUNN__X
    for (int i = 0; i < GPUNN_SETTINGS; i++) job->setting[i] = gpunn__as_written(u->setting[i]);
    if (cuda->with_update) return gpunn__short_training_launch(cuda, job);
    if (u->rows)
        return GPUNN__LAUNCH(cuda, gpunn__rows_update_kernel, gpunn__blocks(cuda, u->count, 1),
                             GPUNN__THREADS, *job);
    if (apart) {
        job->numbers = &cuda->state->numbers[job->index];
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__decide_kernel, 1, GPUNN__THREADS, *job, job->numbers));
        /* Other kinds decide within the update. A generated kernel would need an extra launch for it. */
        if (u->fused_launch) {
            gpunn__cuda_clear();
            return gpunn__cuda_check(cuda, (cudaError_t)-u->fused_launch(u, job->numbers, cuda->stream),
                                     "a generated update");
        }
    }
    job->sums = cuda->partials + GPUNN__PARTIALS;
    job->sum_count = blocks < GPUNN__TRUST_BLOCKS ? (int)blocks : (int)GPUNN__TRUST_BLOCKS;
    GPUNN__TRY(gpunn__update_kernels_launch(cuda, job, blocks));
    return u->kind == GPUNN_UPDATE_MUON ? gpunn__muon_launch(cuda, job, blocks) : GPUNN_OK;
}

/* Blocks that sum the squares of an update's gradients. An average has none. */
static int gpunn__squares_of(const gpunn_run *run, const gpunn_update *u)
{
    int64_t total = 0;
    for (int i = 0; i < run->update_count; i++) total += run->updates[i].count;
    return u->kind == GPUNN_UPDATE_AVERAGE ? 0 : gpunn__squares_blocks(u->count, total, run->update_count);
}

/* Sums the squares of a clip group's gradients into the partials after those of earlier clip groups. */
static gpunn_status gpunn__cuda_squares(gpunn__cuda *cuda, const gpunn_run *run, gpunn__update_job *job,
                                        int clip_group)
{
    for (int i = 0; i < run->update_count; i++) {
        const gpunn_update *u = &run->updates[i];
        const int           blocks = u->clip_group == clip_group ? gpunn__squares_of(run, u) : 0;
        if (blocks == 0) continue;
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__squares_kernel, (unsigned)blocks, GPUNN__THREADS, u->gradient,
                                 u->count, cuda->partials + job->partial_count, cuda->state));
        job->partial_count += blocks;
    }
    return GPUNN_OK;
}

/* Whether this rank holds an update's gradients. With a loss scale, it holds those of other ranks' shares,
 * too. */
static bool gpunn__has_gradients(const gpunn_run *run, const gpunn_update *u)
{
    return u->kind != GPUNN_UPDATE_AVERAGE && (u->parameter || run->loss_scale);
}

/* ---- checks of gradients -------------------------------------------------------------------------------- *
 * No update
 * may use a gradient that is not finite. Kernels on a second stream, a branch of the run's graph, look at
 * gradients right behind the step that wrote them last, while the second-level cache holds them. Where that
 * is not possible a kernel reads all of them before the update. The last few are left to the update's own
 * blocks. */

enum {
    GPUNN__CHECK_TOGETHER = 1 << 19, /* floats: gradients wait for others until a kernel has so many */
    GPUNN__BETWEEN_GRADIENTS = 16,   /* fewer floats, all 0, lie between neighbours: gpunn_run's gradients */
};

/* Whether blocks of the run's update can look at so many gradients by themselves. */
static bool gpunn__are_few(const gpunn_run *run, int64_t count)
{
    return run->update_count == 1 && count <= GPUNN__FEW_GRADIENTS && run->loss_scale == NULL &&
           run->exchange_count == 0;
}

/* Whether checks follow the run's steps. They do not if norms of all gradients or other ranks' gradients are
 * needed. */
static bool gpunn__is_checked(const gpunn_run *run)
{
    bool checked = run->gradients && run->exchange_count == 0 && (run->update_count > 0 || run->doubt);
    if (run->update_count == 1 && gpunn__are_few(run, run->updates->count)) checked = false;
    for (int i = 0; i < run->update_count && checked; i++) checked = !(run->updates[i].clip_norm > 0);
    return checked;
}

GPUNN__INTERNAL bool gpunn__joins_steps(const gpunn__cuda *cuda, const gpunn_run *run)
{
    const gpunn_update *u = run->updates;
    if (cuda->plain || run->update_count != 1 || u->count > GPUNN__FEW_GRADIENTS || u->parameter == NULL)
        return false;
    if (u->rows || run->loss_scale || run->exchange_count > 0 || u->clip_norm > 0 ||
        gpunn__decided_apart(u->kind))
        return false;
#define GPUNN__X(ENUM, ...) \
    if (u->kind == GPUNN_UPDATE_##ENUM) return true;
    GPUNN_OPTIMIZERS(GPUNN__X, , , , )
#undef GPUNN__X
    return false;
}

/* The gradient of a parameter that operand i of a step receives; NULL: none. */
static const float *gpunn__written_by(const gpunn_run *run, const gpunn_step *step, int i)
{
    const float *values = (const float *)step->grad_in[i].data;
    const bool   writes = (step->backward || step->op == GPUNN_OP_FUSION) && values &&
                        step->grad_in[i].dtype == GPUNN_F32;
    return writes && values >= run->gradients && values < run->gradients + run->gradient_count ? values
                                                                                               : NULL;
}

/* Whether the run's updates read any of that. What a run without updates writes, a later one does. */
static bool gpunn__is_read(const gpunn_run *run, const gpunn__check *check)
{
    bool reads = run->update_count == 0;
    for (int i = 0; i < run->update_count && !reads; i++) {
        const gpunn_update *u = &run->updates[i];
        reads = gpunn__has_gradients(run, u) && check->values < u->gradient + u->count &&
                u->gradient < check->values + check->count;
    }
    return reads;
}

/* Adds what operand `first` of step s writes, unless all of it is written again later. */
static void gpunn__checks_add(gpunn__checks *checks, const gpunn_run *run, int s, int first)
{
    gpunn__check check = {gpunn__written_by(run, &run->steps[s], first), run->steps[s].grad_in[first].count,
                          s + 1};
    for (int t = s, i = first + 1; t < run->step_count && check.values; t++, i = 0)
        for (; i < run->steps[t].input_count; i++) {
            const float  *later = gpunn__written_by(run, &run->steps[t], i);
            const int64_t count = run->steps[t].grad_in[i].count;
            if (later == NULL || later >= check.values + check.count || check.values >= later + count)
                continue;
            if (later <= check.values && later + count >= check.values + check.count) return;
            check.after = t + 1;
        }
    if (check.values && gpunn__is_read(run, &check)) checks->list[checks->count++] = check;
}

static int gpunn__check_order(const void *a, const void *b)
{
    const gpunn__check *x = (const gpunn__check *)a, *y = (const gpunn__check *)b;
    if (x->after != y->after) return x->after < y->after ? -1 : 1;
    return (x->values > y->values) - (x->values < y->values);
}

/* Makes room for all gradients that the run's steps write. */
static gpunn_status gpunn__checks_reserve(gpunn__cuda *cuda, const gpunn_run *run)
{
    int capacity = 0;
    for (int s = 0; s < run->step_count; s++)
        for (int i = 0; i < run->steps[s].input_count; i++)
            capacity += gpunn__written_by(run, &run->steps[s], i) != NULL;
    if (capacity <= cuda->check_capacity) return GPUNN_OK;
    gpunn__host_free(cuda, cuda->checks, (size_t)cuda->check_capacity * sizeof *cuda->checks);
    cuda->checks = (gpunn__check *)gpunn__host_alloc(cuda, (size_t)capacity * sizeof *cuda->checks);
    cuda->check_capacity = cuda->checks ? capacity : 0;
    return cuda->checks ? GPUNN_OK : GPUNN_ERR_MEMORY;
}

GPUNN__INTERNAL gpunn_status gpunn__checks_begin(gpunn__cuda *cuda, const gpunn_run *run,
                                                 gpunn__checks *checks)
{
    memset(checks, 0, sizeof *checks);
    checks->bad_place = run->update_count > 0 ? &cuda->state->bad_place : (unsigned long long *)run->doubt;
    if (!gpunn__is_checked(run)) return GPUNN_OK;
    GPUNN__TRY(gpunn__checks_reserve(cuda, run));
    checks->list = cuda->checks;
    for (int s = 0; s < run->step_count; s++)
        for (int i = 0; i < run->steps[s].input_count; i++) gpunn__checks_add(checks, run, s, i);
    if (checks->count > 1)
        qsort(checks->list, (size_t)checks->count, sizeof *checks->list, gpunn__check_order);
    return GPUNN_OK;
}

/* Launches a kernel for the ranges, if there are any, and empties the list. */
static gpunn_status gpunn__gradients_check(gpunn__cuda *cuda, gpunn__gradients *gradients,
                                           unsigned long long *bad_place, const uint64_t *doubt)
{
    const unsigned blocks = gpunn__blocks(cuda, gradients->total, GPUNN__PACK);
    if (gradients->count == 0) return GPUNN_OK;
    GPUNN__TRY(
        GPUNN__LAUNCH(cuda, gpunn__finite_kernel, blocks, GPUNN__THREADS, bad_place, doubt, *gradients));
    gradients->count = 0;
    gradients->total = 0;
    return GPUNN_OK;
}

/* Adds a range, and launches a kernel for all of them if no more fit. */
static gpunn_status gpunn__gradients_add(gpunn__cuda *cuda, gpunn__gradients *gradients, const float *values,
                                         int64_t count, unsigned long long *bad_place, const uint64_t *doubt)
{
    gradients->values[gradients->count] = values;
    gradients->length[gradients->count] = count;
    gradients->total += count;
    if (++gradients->count < GPUNN__GRADIENT_RANGES) return GPUNN_OK;
    return gpunn__gradients_check(cuda, gradients, bad_place, doubt);
}

/* Launches kernels for the checks before `end`, on the context's stream. */
static gpunn_status gpunn__checks_launch(gpunn__cuda *cuda, gpunn__checks *checks, int end)
{
    gpunn__gradients gradients = {};
    for (; checks->next < end; checks->next++) {
        const gpunn__check *check = &checks->list[checks->next];
        GPUNN__TRY(
            gpunn__gradients_add(cuda, &gradients, check->values, check->count, checks->bad_place, NULL));
    }
    return gpunn__gradients_check(cuda, &gradients, checks->bad_place, NULL);
}

/* The same on the second stream, beside what the first one does from now on. */
static gpunn_status gpunn__checks_launch_beside(gpunn__cuda *cuda, gpunn__checks *checks, int end)
{
    const cudaStream_t stream = cuda->stream;
    const bool         overlaps = cuda->overlaps;
    GPUNN__CUDA(cuda, cudaEventRecord(cuda->side_from, stream));
    GPUNN__CUDA(cuda, cudaStreamWaitEvent(cuda->side, cuda->side_from, 0));
    checks->beside = true;
    cuda->stream = cuda->side;
    cuda->overlaps = false;
    const gpunn_status status = gpunn__checks_launch(cuda, checks, end);
    cuda->stream = stream;
    cuda->overlaps = overlaps;
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__checks_after(gpunn__cuda *cuda, gpunn__checks *checks, int steps)
{
    const int last = checks->count > 0 ? checks->list[checks->count - 1].after : 0;
    int       end = checks->next;
    int64_t   floats = 0;
    if (cuda->plain || cuda->marks) return GPUNN_OK;
    for (; end < checks->count && checks->list[end].after <= steps && checks->list[end].after < last; end++)
        floats += checks->list[end].count;
    if (floats == 0 || (floats < GPUNN__CHECK_TOGETHER && checks->list[end].after < last)) return GPUNN_OK;
    return gpunn__checks_launch_beside(cuda, checks, end);
}

/* The stream goes on behind all checks; those that are left follow its last step. */
static gpunn_status gpunn__checks_end(gpunn__cuda *cuda, gpunn__checks *checks)
{
    GPUNN__TRY(gpunn__checks_launch(cuda, checks, checks->count));
    if (!checks->beside) return GPUNN_OK;
    GPUNN__CUDA(cuda, cudaEventRecord(cuda->side_to, cuda->side));
    return gpunn__cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, cuda->side_to, 0),
                             "cudaStreamWaitEvent");
}

/* Whether there are checks of all gradients that an update reads, between which there are zeros. */
static bool gpunn__checks_cover(const gpunn__checks *checks, const gpunn_update *u)
{
    const float *at = u->gradient, *const end = at + u->count;
    for (int i = 0; i < checks->count && at < end; i++) {
        const gpunn__check *check = &checks->list[i];
        if (check->values >= at + GPUNN__BETWEEN_GRADIENTS || check->values + check->count <= at) continue;
        at = check->values + check->count;
        i = -1;
    }
    return at >= end;
}

static bool gpunn__checks_cover_all(const gpunn_run *run, const gpunn__checks *checks)
{
    bool all = checks->count > 0;
    for (int i = 0; i < run->update_count && all; i++)
        all = !gpunn__has_gradients(run, &run->updates[i]) || gpunn__checks_cover(checks, &run->updates[i]);
    return all;
}

/* Leaves the gradients that come last, a weight's and a bias's, to the update's blocks, if these can look at
 * them. */
static void gpunn__checks_leave(const gpunn_run *run, gpunn__checks *checks, gpunn__update_job *job)
{
    const int left = checks->count - checks->next;
    int64_t   total = 0;
    for (int i = checks->next; i < checks->count; i++) total += checks->list[i].count;
    if (left > GPUNN__FEW_RANGES || !gpunn__are_few(run, total)) return;
    for (int i = 0; i < left; i++, checks->next++) {
        job->few[i] = checks->list[checks->next].values;
        job->few_count[i] = (int)checks->list[checks->next].count;
    }
}

/* Before updates: what the checks beside the steps have left, or all. */
static gpunn_status gpunn__cuda_check_gradients(gpunn__cuda *cuda, const gpunn_run *run,
                                                gpunn__checks *checks, gpunn__update_job *job)
{
    gpunn__gradients      gradients = {};
    const uint64_t *const doubt = run->is_checked ? run->doubt : NULL;
    if (gpunn__checks_cover_all(run, checks)) {
        gpunn__checks_leave(run, checks, job);
        return gpunn__checks_end(cuda, checks);
    }
    checks->next = checks->count;
    GPUNN__TRY(gpunn__checks_end(cuda, checks));
    if (run->update_count == 1 && gpunn__has_gradients(run, run->updates) &&
        gpunn__are_few(run, run->updates->count)) {
        job->few[0] = run->updates->gradient;
        job->few_count[0] = (int)run->updates->count;
        return GPUNN_OK;
    }
    for (int i = 0; i < run->update_count; i++) {
        const gpunn_update *u = &run->updates[i];
        if (!gpunn__has_gradients(run, u)) continue;
        GPUNN__TRY(
            gpunn__gradients_add(cuda, &gradients, u->gradient, u->count, &cuda->state->bad_place, doubt));
    }
    return gpunn__gradients_check(cuda, &gradients, &cuda->state->bad_place, doubt);
}

/* For ranks that see only their share of the gradients. A bad gradient turns the loss into NaN, which the
 * following average carries to all ranks. */
static __global__ void gpunn__report_in_loss_kernel(const gpunn__update_job job, float *loss)
{
    GPUNN__FOLLOW();
    unsigned long long bad_place = job.state->bad_place;
    if (bad_place == 0 || !gpunn__is_finite(*loss)) return;
    (void)gpunn__may_go(job, bad_place, true);
    *loss = NAN;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_updates(gpunn__cuda *cuda, const gpunn_run *run,
                                                 gpunn__checks *checks, int *begun)
{
    int               clip_groups = 1, updated = 0;
    bool              squares = false;
    gpunn__update_job job;
    memset(&job, 0, sizeof job);
    job.loss = run->loss;
    job.loss_scale = run->loss_scale;
    job.partials = cuda->partials;
    job.state = cuda->state;
    job.bad = cuda->bad_device;
    job.skips = run->skips;
    job.scales = run->scales;
    job.kept = run->kept;
    job.kept_count = run->kept_count;
    job.rejected = run->rejected;
    job.doubt = run->step_count == 0 ? run->doubt : NULL;
    if (run->update_count == 0) {
        GPUNN__TRY(gpunn__checks_end(cuda, checks));
        if (run->loss == NULL) return GPUNN_OK;
        return GPUNN__LAUNCH(cuda, gpunn__check_loss_kernel, 1, GPUNN__THREADS, job);
    }
    const gpunn__range range("update");
    for (int i = 0; i < run->update_count; i++) {
        squares = squares || run->updates[i].clip_norm > 0;
        if (run->updates[i].clip_group >= clip_groups) clip_groups = run->updates[i].clip_group + 1;
    }
    for (int clip_group = 0; squares && clip_group < clip_groups; clip_group++)
        GPUNN__TRY(gpunn__cuda_squares(cuda, run, &job, clip_group));
    if (!squares) GPUNN__TRY(gpunn__cuda_check_gradients(cuda, run, checks, &job));
    if (*begun < run->exchange_count && run->exchanges[*begun].after == GPUNN_AFTER_CHECK) {
        GPUNN__TRY(
            GPUNN__LAUNCH(cuda, gpunn__report_in_loss_kernel, 1, 1, job, run->exchanges[*begun].values));
        GPUNN__TRY(gpunn__exchanges_after(cuda, run, GPUNN_AFTER_CHECK, begun));
        GPUNN__TRY(gpunn__exchanges_end(cuda, 1));
    }
    for (int clip_group = 0, first = 0; clip_group < clip_groups; clip_group++, first += job.own_count) {
        job.own_first = first;
        job.own_count = 0;
        for (int i = 0; squares && i < run->update_count; i++)
            if (run->updates[i].clip_group == clip_group)
                job.own_count += gpunn__squares_of(run, &run->updates[i]);
        for (job.index = 0; job.index < run->update_count; job.index++) {
            job.u = run->updates[job.index];
            if (job.u.clip_group != clip_group || job.u.parameter == NULL) continue;
            job.reports = updated == 0;
            GPUNN__TRY(gpunn__cuda_update_launch(cuda, &job));
            updated++;
        }
    }
    if (updated == 0 && run->loss)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__check_loss_kernel, 1, GPUNN__THREADS, job));
    if (!run->loss_scale) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__loss_scale_kernel, 1, 1, job, run->loss_scale);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_sum_of_squares(void *context, const float *values, int64_t count,
                                                        double *result)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    double       part[GPUNN__PARTIALS];
    int          blocks = gpunn__squares_blocks(count, count, 1);
    *result = 0;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__outside_capture(cuda, "copy to the host"));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__squares_kernel, (unsigned)blocks, GPUNN__THREADS, values, count,
                             cuda->partials, (gpunn__device_state *)NULL));
    GPUNN__CUDA(cuda, cudaMemcpyAsync(part, cuda->partials, (size_t)blocks * sizeof *part,
                                      cudaMemcpyDeviceToHost, cuda->stream));
    GPUNN__TRY(gpunn__stream_wait(cuda));
    for (int i = 0; i < blocks; i++) *result += part[i];
    return GPUNN_OK;
}

/* Statistics of the values that a block reads, classified by their bits. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__value_sums_kernel(const void *x, gpunn_dtype dtype, int64_t count, gpunn_value_sums *parts)
{
    GPUNN__FOLLOW();
    double kinds[6] = {0}; /* counts of finite, zeros, NaN and infinities; sum, sum of squares */
    float  least = INFINITY, most = -INFINITY;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const float    value = gpunn__load(x, dtype, i);
        const unsigned size = __float_as_uint(value) & 0x7FFFFFFF;
        kinds[1] += size == 0;
        kinds[2] += size > 0x7F800000;
        kinds[3] += size == 0x7F800000;
        if (size >= 0x7F800000) continue;
        kinds[0] += 1;
        kinds[4] += (double)value;
        kinds[5] += (double)value * (double)value;
        least = fminf(least, value);
        most = fmaxf(most, value);
    }
    for (int k = 0; k < 6; k++) kinds[k] = gpunn__block_reduce(kinds[k], gpunn__add());
    most = gpunn__block_reduce(most, gpunn__larger());
    least = -gpunn__block_reduce(-least, gpunn__larger());
    if (threadIdx.x == 0)
        parts[blockIdx.x] = {kinds[0], kinds[1], kinds[2],      kinds[3],
                             kinds[4], kinds[5], (double)least, (double)most};
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_value_sums(void *context, const void *values, gpunn_dtype dtype,
                                                    int64_t count, gpunn_value_sums parts[GPUNN_SUM_PARTS])
{
    gpunn__cuda   *cuda = (gpunn__cuda *)context;
    const unsigned most = gpunn__blocks(cuda, count, 1),
                   blocks = most < GPUNN_SUM_PARTS ? most : GPUNN_SUM_PARTS;
    static_assert(sizeof(gpunn_value_sums) * GPUNN_SUM_PARTS <= GPUNN__PARTIALS_BYTES,
                  "they stand in cuda->partials");
    memset(parts, 0, GPUNN_SUM_PARTS * sizeof *parts);
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__outside_capture(cuda, "copy to the host"));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__value_sums_kernel, blocks, GPUNN__THREADS, values, dtype, count,
                             (gpunn_value_sums *)(void *)cuda->partials));
    GPUNN__CUDA(cuda, cudaMemcpyAsync(parts, cuda->partials, blocks * sizeof *parts, cudaMemcpyDeviceToHost,
                                      cuda->stream));
    GPUNN__CUDA(cuda, cudaStreamSynchronize(cuda->stream));
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_scale(void *context, float *values, int64_t count, float scale,
                                               float limit)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    return GPUNN__LAUNCH(cuda, gpunn__scale_kernel, gpunn__blocks(cuda, count, GPUNN__PACK), GPUNN__THREADS,
                         values, count, scale, limit > 0 ? limit : INFINITY);
}

/* ==== >>run/run ========================================================================================== *
 * Executes runs. A run that comes back unchanged is captured the second time and replayed as one graph from
 * then on. Values that vary between its runs are passed in the arguments of a kernel, which stores them to
 * cuda->state before the run. */
enum { GPUNN__NUMBERS = 180 }; /* maximum updates whose numbers fit a kernel's arguments */

typedef struct gpunn__numbers {
    uint64_t     seed, step, draw;
    const float *loss_scale;    /* NULL: 1 */
    float       *loss_gradient; /* NULL: not needed */
    int          first, count;  /* of the updates in these arguments */
    gpunn_count *run_counts;    /* counts of seed, step and draw; NULL: use the host's */
    gpunn_count *counts;        /* counts of the updates; NULL: use the host's */
    uint64_t    *doubt;         /* set to 0 before gradients are checked; NULL: no checks */
    int          counted;       /* end of the range of counts used */
    int64_t      update;        /* number of this update in counts[0] */
    bool         replayed;      /* replayed by the program: the counts advance by themselves */
    bool         runs, trains;  /* runs: has steps; trains: they are a training step */
    float        lr[GPUNN__NUMBERS];
    int64_t      update_step[GPUNN__NUMBERS];
    int          from[GPUNN__NUMBERS], to[GPUNN__NUMBERS]; /* the range of counts of an update */
    /* the input of the run's first step if that only rounds to 16 bits */
    const void *wide;
    void       *half;
    gpunn_dtype half_dtype;
    int64_t     half_count;

    unsigned          rounding; /* number of blocks for that rounding */
    const gpunn_kept *kept;     /* as in gpunn_run, for the blocks after those */
    int               kept_count;
} gpunn__numbers;

/* The value of a count in this run: the host's plus earlier replays, or in a replay `by` more than before. */
__device__ __forceinline__ uint64_t gpunn__counted(gpunn_count *count, uint64_t host, bool replayed,
                                                   uint64_t by)
{
    count->now += replayed ? by : host - count->host;
    if (!replayed) count->host = host;
    return count->now;
}

/* Called by one thread. */
__device__ __forceinline__ void gpunn__count_run(gpunn__device_state *state, const gpunn__numbers &numbers)
{
    gpunn_count *counts = numbers.run_counts;
    state->seed = numbers.seed;
    state->step = numbers.step;
    state->draw = numbers.draw;
    if (counts == NULL) return;
    const bool replayed = numbers.replayed;
    state->seed = gpunn__counted(counts + GPUNN_COUNT_SEED, numbers.seed, replayed, 0);
    state->step = gpunn__counted(counts + GPUNN_COUNT_STEP, numbers.step, replayed, numbers.trains);
    state->draw = gpunn__counted(counts + GPUNN_COUNT_DRAW, numbers.draw, replayed, numbers.runs);
    if (numbers.trains) state->draw = counts[GPUNN_COUNT_DRAW].now = state->step << 24;
}

/* Called by a whole block; each count is handled by one of its threads. The ranges of counts of the updates
 * are ascending. */
__device__ __forceinline__ void gpunn__count_updates(const gpunn__numbers &numbers)
{
    if (threadIdx.x == 0 && numbers.first == 0)
        (void)gpunn__counted(numbers.counts, (uint64_t)numbers.update, numbers.replayed, 1);
    for (int c = 1 + (int)threadIdx.x, i = 0; c < numbers.counted; c += (int)blockDim.x) {
        while (i < numbers.count && numbers.to[i] <= c) i++;
        if (i < numbers.count && numbers.from[i] <= c)
            (void)gpunn__counted(numbers.counts + c, (uint64_t)numbers.update_step[i], numbers.replayed, 1);
    }
    __syncthreads();
}

static __global__ void gpunn__numbers_kernel(gpunn__device_state *state, const gpunn__numbers numbers)
{
    GPUNN__FOLLOW();
    const unsigned other = numbers.rounding + 1;
    if (blockIdx.x >= other) {
        gpunn__kept_copy(numbers.kept, numbers.kept_count, false, blockIdx.x - other, gridDim.x - other);
        return;
    }
    if (blockIdx.x > 0) {
        gpunn__copy_part(numbers.half, numbers.half_dtype, numbers.wide, GPUNN_F32, numbers.half_count, false,
                         blockIdx.x - 1, numbers.rounding);
        return;
    }
    if (threadIdx.x == 0 && numbers.first == 0) gpunn__count_run(state, numbers);
    if (threadIdx.x == 0) state->bad_place = 0;
    if (threadIdx.x == 0 && numbers.doubt) *numbers.doubt = 0;
    if (threadIdx.x == 0 && numbers.loss_gradient)
        *numbers.loss_gradient = numbers.loss_scale ? *numbers.loss_scale : 1;
    if (numbers.counts) gpunn__count_updates(numbers);
    for (int i = (int)threadIdx.x; i < numbers.count; i += (int)blockDim.x) {
        int64_t step = numbers.update_step[i];
        if (numbers.counts && numbers.from[i] > 0) step = (int64_t)numbers.counts[numbers.from[i]].now;
        if (numbers.counts && numbers.from[i] == 0) step += (int64_t)numbers.counts->now - numbers.update;
        state->lr[numbers.first + i] = numbers.lr[i];
        state->update_step[numbers.first + i] = step;
    }
}

/* Launches the kernel that stores the run's numbers to cuda->state. */
GPUNN__INTERNAL gpunn_status gpunn__run_numbers(gpunn__cuda *cuda, const gpunn_run *run, bool replayed);

/* Calls the function of the step's op. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_dispatch(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action);

/* Launches everything of a run except its numbers. Even after a failure, what follows on the stream waits for
 * the checks, which read memory that may be freed. */
GPUNN__INTERNAL gpunn_status gpunn__run_launch(gpunn__cuda *cuda, gpunn_run *run);

/* The functions below are entries of gpunn_backend, which >>backend in gpunn.h describes. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_time(void *context, gpunn_run *run, double *seconds);

GPUNN__INTERNAL gpunn_status gpunn__cuda_execute(void *context, gpunn_run *run);

GPUNN__INTERNAL void gpunn__cuda_forget(void *context, void *kept);

/* Whether the run begins with rounding an F32 input to 16 bits for products. Then the kernel that stores the
 * run's numbers does that as well. */
static bool gpunn__rounds_first(const gpunn__cuda *cuda, const gpunn_run *run)
{
    const gpunn_step *step = run->steps;
    return !cuda->plain && run->step_count > 0 && step->op == GPUNN_OP_CAST && !step->backward &&
           step->in[0].dtype == GPUNN_F32 &&
           (step->out.dtype == GPUNN_F16 || step->out.dtype == GPUNN_BF16) &&
           step->in[0].channels_last == step->out.channels_last;
}

GPUNN__INTERNAL gpunn_status gpunn__run_numbers(gpunn__cuda *cuda, const gpunn_run *run, bool replayed)
{
    gpunn__numbers numbers;
    unsigned       keeping = (unsigned)(run->kept_count < 1024 ? run->kept_count : 1024); /* blocks */
    if (run->update_count > GPUNN__MAX_UPDATES)
        return gpunn__cuda_fail(
            cuda, GPUNN_ERR_UNSUPPORTED,
            "%d ranges of parameters have settings of their own, but a GPU supports %d; set fewer",
            run->update_count, GPUNN__MAX_UPDATES);
    numbers.seed = run->state ? run->state->seed : 0;
    numbers.step = run->state ? run->state->step : 0;
    numbers.draw = run->state ? run->state->draw : 0;
    numbers.run_counts = run->state ? run->state->counts : NULL;
    numbers.counts = run->counts;
    numbers.update = run->update;
    numbers.replayed = replayed;
    numbers.runs = run->step_count > 0;
    numbers.trains = run->trains;
    numbers.loss_scale = run->loss_scale;
    numbers.loss_gradient = run->loss_gradient;
    numbers.doubt = run->update_count == 0 ? run->doubt : NULL;
    numbers.wide = NULL;
    numbers.half = NULL;
    numbers.half_count = 0;
    numbers.rounding = 0;
    numbers.kept = run->kept;
    numbers.kept_count = run->kept_count;
    numbers.first = 0;
    do {
        int left = run->update_count - numbers.first;
        numbers.count = left < GPUNN__NUMBERS ? left : (int)GPUNN__NUMBERS;
        numbers.counted = 0;
        for (int i = 0; i < numbers.count; i++) {
            const gpunn_update *u = &run->updates[numbers.first + i];
            numbers.lr[i] = u->setting[0];
            numbers.update_step[i] = u->step;
            numbers.from[i] = u->parameter ? u->first : 0;
            numbers.to[i] = u->parameter ? u->last : 0;
            if (numbers.to[i] > numbers.counted) numbers.counted = numbers.to[i];
        }
        if (numbers.first == 0 && gpunn__rounds_first(cuda, run)) {
            numbers.wide = run->steps->in[0].data;
            numbers.half = run->steps->out.data;
            numbers.half_dtype = run->steps->out.dtype;
            numbers.half_count = run->steps->out.count;
            numbers.rounding = gpunn__blocks(cuda, numbers.half_count, GPUNN__PACK);
        }
        const unsigned blocks = 1 + numbers.rounding + keeping;
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__numbers_kernel, blocks, blocks > 1 ? GPUNN__THREADS : 32,
                                 cuda->state, numbers));
        numbers.rounding = keeping = 0;
        numbers.first += numbers.count;
    } while (numbers.first < run->update_count);
    return GPUNN_OK;
}

/* Reports a bad loss or gradient that kernels have recorded, once, instead of running; false: there is none.
 * If ranks have joined, the run executes anyway: others wait for it, and some may not know yet. Never
 * waits. */
static bool gpunn__takes_bad(gpunn__cuda *cuda, gpunn_run *run)
{
    uint64_t   noted = cuda->bad[0];
    uint32_t   bits = (uint32_t)cuda->bad[1];
    const bool ranks = cuda->nccl && cuda->nccl->comm && run->step_count + run->update_count > 0;
    if (noted == 0 || ranks) return false;
    run->is_bad = true;
    run->bad_step = (noted & ~GPUNN__BAD_GRADIENT) - 1;
    run->bad_norm = (noted & GPUNN__BAD_GRADIENT) != 0;
    run->bad_gradient = (const float *)(uintptr_t)cuda->bad[2];
    memcpy(&run->bad_value, &bits, sizeof bits);
    cuda->bad[0] = 0;
    return true;
}

/* Runs a fused kernel that the generator has written. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_fusion(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_kernel_operand *operands = step->fusion->kernel->program[step->fusion->direction].operands;
    const gpunn_kernel_launch  *launch = step->fusion->launch;
    void                       *data[GPUNN_KERNEL_OPERANDS];
    gpunn_kernel_call           call;
    memset(&call, 0, sizeof call);
    if (launch == NULL || launch->run == NULL || step->input_count > GPUNN_KERNEL_OPERANDS)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                launch ? "it is for CPUs" : "its CUDA file is not linked");
    if (action == GPUNN__PREPARE) {
        for (int i = 0; i < step->input_count; i++) {
            gpunn_dtype dtype = step->grad_in[i].dtype ? step->grad_in[i].dtype : step->in[i].dtype;
            if (dtype && dtype != (gpunn_dtype)operands[i].dtype)
                return gpunn__cuda_fail(
                    cuda, GPUNN_ERR_UNSUPPORTED,
                    "it was generated for a model of another precision: operand %d is %s here and %s there",
                    i, gpunn_dtype_name(dtype), gpunn_dtype_name((gpunn_dtype)operands[i].dtype));
        }
        if (gpunn__short_fused(step))
            return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                    "its steps are so short that they share a launch with others");
        step->workspace_bytes = launch->workspace(step->fusion->batch, cuda->multiprocessors);
        return step->workspace_bytes == SIZE_MAX
                   ? gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "the kernel does not support that size")
                   : GPUNN_OK;
    }
    for (int i = 0; i < step->input_count; i++)
        data[i] = step->grad_in[i].data ? step->grad_in[i].data : step->in[i].data;
    call.data = data;
    call.accumulate = (const unsigned char *)step->accumulate;
    call.half = step->fusion->half;
    call.batch = step->fusion->batch;
    call.random_streams = step->fusion->random_streams;
    call.random = &cuda->state->seed;
    call.workspace = step->workspace;
    call.multiprocessors = cuda->multiprocessors;
    call.counters = cuda->counters;
    call.stream = cuda->stream;
    gpunn__cuda_clear();
    return gpunn__cuda_check(cuda, (cudaError_t)-launch->run(&call), step->name);
}

/* Copies the results of a custom op that it wrote in F32 in the workspace. */
static gpunn_status gpunn__custom_results(gpunn__cuda *cuda, const gpunn_step *step, const gpunn_value *out,
                                          const gpunn_value *grad_in)
{
    if (!step->backward && out->data != step->out.data)
        return gpunn__cuda_copy(cuda, step->out.data, step->out.dtype, out->data, GPUNN_F32, out->count,
                                false);
    for (int i = 0; i < step->input_count && step->backward; i++)
        if (grad_in[i].data != step->grad_in[i].data)
            GPUNN__TRY(gpunn__cuda_copy(cuda, step->grad_in[i].data, step->grad_in[i].dtype, grad_in[i].data,
                                        GPUNN_F32, grad_in[i].count, step->accumulate[i]));
    return GPUNN_OK;
}

/* Runs a custom op of the program. Its values are F32. Values in 16-bit storage are converted in the
 * workspace before and after. Gradients to be accumulated are computed in the workspace too. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_custom(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_custom_op *op = step->attr->custom;
    gpunn_custom_function  function = step->backward ? op->cuda_backward : op->cuda_forward;
    gpunn_value            in[GPUNN_CUSTOM_INPUTS], grad_in[GPUNN_CUSTOM_INPUTS], out = step->out,
                                                                       grad_out = step->grad_out;
    const bool        run = action != GPUNN__PREPARE;
    gpunn_custom_call call;
    gpunn_value      *values[2 * GPUNN_CUSTOM_INPUTS + 2];
    int               count = 0;
    if (function == NULL)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "op '%s' has no .cuda_%s function; add one, or open a CPU device", op->name,
                                step->backward ? "backward" : "forward");
    memset(&call, 0, sizeof call);
    call.in = in;
    call.out = &out;
    call.grad_out = step->backward ? &grad_out : NULL;
    call.grad_in = step->backward ? grad_in : NULL;
    call.input_count = step->input_count;
    call.numbers = step->attr->numbers;
    call.user = op->user;
    call.stream = cuda->stream;
    for (int i = 0; i < step->input_count; i++) {
        in[i] = step->in[i];
        values[count++] = &in[i];
        if (step->backward) grad_in[i] = step->grad_in[i];
    }
    values[count++] = &out;
    if (step->backward) values[count++] = &grad_out;
    gpunn__arena arena = {(char *)step->workspace, 0};
    void *const  own = gpunn__arena_take(&arena, op->workspace ? op->workspace(&call, step->backward) : 0);
    call.workspace = arena.bytes ? own : NULL;
    for (int i = 0; i < count; i++) {
        gpunn_value *value = values[i];
        if (value->data == NULL || (value->dtype != GPUNN_F16 && value->dtype != GPUNN_BF16)) continue;
        void *wide = gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, value->count));
        if (run && (value != &out || step->backward))
            GPUNN__TRY(
                gpunn__cuda_copy(cuda, wide, GPUNN_F32, value->data, value->dtype, value->count, false));
        if (run) value->data = wide;
        value->dtype = GPUNN_F32;
    }
    for (int i = 0; i < step->input_count && step->backward; i++) {
        if (grad_in[i].data == NULL) continue;
        void *wide = gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, grad_in[i].count));
        if (run && (step->accumulate[i] || grad_in[i].dtype != GPUNN_F32)) grad_in[i].data = wide;
        grad_in[i].dtype = GPUNN_F32;
    }
    if (!run) {
        step->workspace_bytes = arena.bytes;
        return GPUNN_OK;
    }
    gpunn__cuda_clear();
    GPUNN__TRY(gpunn__cuda_check(cuda, (cudaError_t)function(&call), op->name));
    GPUNN__TRY(gpunn__cuda_launched(cuda, cudaGetLastError(), op->name));
    return gpunn__custom_results(cuda, step, &out, grad_in);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_dispatch(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    switch (step->op) {
#define GPUNN__X(ENUM, name, ...) \
    case GPUNN_OP_##ENUM: return gpunn__cuda_##name(cuda, step, action);
        GPUNN_OTHER_OPS(GPUNN__X)
#undef GPUNN__X
    default: return gpunn__cuda_map(cuda, step, action);
    }
}

/* With GPUNN_PLAIN, waits, so that a fault of `what`, launched last, is reported here and not later. */
static gpunn_status gpunn__plain_wait(gpunn__cuda *cuda, const char *what)
{
    return cuda->plain ? gpunn__cuda_check(cuda, cudaStreamSynchronize(cuda->stream), what) : GPUNN_OK;
}

/* gpunn_profile: records the time at which this step, or what follows the last step, begins. */
static gpunn_status gpunn__mark(gpunn__cuda *cuda, int step)
{
    if (cuda->marks == NULL) return GPUNN_OK;
    cuda->marks[step].set = true;
    return gpunn__cuda_check(cuda, cudaEventRecord(cuda->marks[step].event, cuda->stream), "cudaEventRecord");
}

/* What follows the steps. Kernels that follow those of two streams overlap neither. */
static gpunn_status gpunn__run_updates(gpunn__cuda *cuda, const gpunn_run *run, gpunn__checks *checks,
                                       int *begun)
{
    const bool overlaps = cuda->overlaps;
    cuda->overlaps = overlaps && !checks->beside;
    const gpunn_status status = gpunn__cuda_updates(cuda, run, checks, begun);
    cuda->overlaps = overlaps;
    return status;
}

static gpunn_status gpunn__run_launch_checked(gpunn__cuda *cuda, gpunn_run *run, gpunn__checks *checks)
{
    cuda->next = run->steps + gpunn__rounds_first(cuda, run), cuda->end = run->steps + run->step_count;
    int begun = 0;
    cuda->summed = NULL;
    cuda->with_update = NULL;
    while (cuda->next < cuda->end) {
        gpunn_step *const step = cuda->next;
        const bool        backward = step->backward;
        GPUNN__TRY(gpunn__exchanges_after(cuda, run, (int)(step - run->steps), &begun));
        GPUNN__TRY(gpunn__checks_after(cuda, checks, (int)(step - run->steps)));
        run->failed = step;
        const gpunn__range range(step);
        GPUNN__TRY(gpunn__mark(cuda, (int)(step - run->steps)));
        if (!cuda->plain) GPUNN__TRY(gpunn__short_run(cuda, gpunn__joins_steps(cuda, run)));
        if (cuda->next > step) continue;
        cuda->next++;
        GPUNN__TRY(gpunn__cuda_dispatch(cuda, step, backward ? GPUNN__BACKWARD : GPUNN__FORWARD));
        GPUNN__TRY(gpunn__plain_wait(cuda, backward ? "its backward kernels" : "its forward kernels"));
    }
    run->failed = NULL;
    if (cuda->with_update == NULL) GPUNN__TRY(gpunn__mark(cuda, run->step_count));
    GPUNN__TRY(gpunn__exchanges_after(cuda, run, run->step_count, &begun));
    GPUNN__TRY(gpunn__exchanges_end(cuda, begun));
    GPUNN__TRY(gpunn__run_updates(cuda, run, checks, &begun));
    const int before = begun;
    GPUNN__TRY(gpunn__exchanges_after(cuda, run, GPUNN_AFTER_UPDATES, &begun));
    GPUNN__TRY(gpunn__exchanges_end(cuda, begun - before));
    GPUNN__TRY(gpunn__mark(cuda, run->step_count + 1));
    return gpunn__plain_wait(cuda, "the optimizer's kernels");
}

GPUNN__INTERNAL gpunn_status gpunn__run_launch(gpunn__cuda *cuda, gpunn_run *run)
{
    gpunn__checks checks;
    GPUNN__TRY(gpunn__checks_begin(cuda, run, &checks));
    const gpunn_status status = gpunn__run_launch_checked(cuda, run, &checks);
    if (status != GPUNN_OK && checks.beside && cudaEventRecord(cuda->side_to, cuda->side) == cudaSuccess)
        (void)cudaStreamWaitEvent(cuda->stream, cuda->side_to, 0);
    return status;
}

/* The time of each launch is attributed to the first of its steps. */
static gpunn_status gpunn__times(gpunn__cuda *cuda, int count, double *seconds)
{
    int last = -1;
    GPUNN__TRY(gpunn__event_wait(cuda, cuda->marks[count - 1].event));
    for (int i = 0; i < count; i++) {
        float milliseconds = 0;
        if (!cuda->marks[i].set) continue;
        if (last >= 0) {
            GPUNN__CUDA(cuda,
                        cudaEventElapsedTime(&milliseconds, cuda->marks[last].event, cuda->marks[i].event));
            seconds[last] = 1e-3 * (double)milliseconds;
        }
        last = i;
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_time(void *context, gpunn_run *run, double *seconds)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    const int    count = run->step_count + 2; /* before each step, before the updates, after them */
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__outside_capture(cuda, "timing"));
    if (gpunn__takes_bad(cuda, run)) return GPUNN_OK;
    gpunn__mark_at *marks = (gpunn__mark_at *)gpunn__host_alloc(cuda, (size_t)count * sizeof *marks);
    if (marks == NULL) return GPUNN_ERR_MEMORY;
    memset(marks, 0, (size_t)count * sizeof *marks);
    gpunn_status status = gpunn__run_numbers(cuda, run, false);
    for (int i = 0; i < count && status == GPUNN_OK; i++)
        status = gpunn__cuda_check(cuda, cudaEventCreate(&marks[i].event), "cudaEventCreate");
    cuda->marks = marks;
    if (status == GPUNN_OK) status = gpunn__run_launch(cuda, run);
    if (status == GPUNN_OK) status = gpunn__times(cuda, count, seconds);
    cuda->marks = NULL;
    for (int i = 0; i < count && marks[i].event; i++) (void)cudaEventDestroy(marks[i].event);
    gpunn__host_free(cuda, marks, (size_t)count * sizeof *marks);
    return status;
}

/* ---- capture and replay -------------------------------------------------------------------------------- */

/* graphs per plan: first and later gradients, or buffers that the program alternates */
enum { GPUNN__MAX_CAPTURED = 8 };

typedef struct gpunn__captured gpunn__captured;
struct gpunn__captured {
    gpunn__captured *next;  /* the one used before this */
    gpunn_run        run;   /* the run that this entry belongs to; its updates follow this struct */
    bool             warm;  /* has run once, kernel by kernel, which loads the kernels */
    bool             plain; /* cannot or must not be captured */
    bool             keeps; /* some step keeps packed weights, which a graph does not renew */
    cudaGraphExec_t  graph; /* NULL: not captured */
};

/* Whether all arguments of a captured update kernel are the same. */
static bool gpunn__update_same(const gpunn_update *a, const gpunn_update *b)
{
    return a->kind == b->kind && a->count == b->count && a->parameter == b->parameter &&
           a->state[0] == b->state[0] && a->state[1] == b->state[1] && a->state[2] == b->state[2] &&
           a->gradient == b->gradient && a->rows == b->rows && a->half == b->half &&
           a->columns == b->columns && a->workspace == b->workspace && a->half_dtype == b->half_dtype &&
           memcmp(a->setting + 1, b->setting + 1, sizeof a->setting - sizeof(float)) == 0 &&
           a->gradient_scale == b->gradient_scale && a->gradient_limit == b->gradient_limit &&
           a->clip_norm == b->clip_norm && a->clip_group == b->clip_group &&
           a->fused_launch == b->fused_launch;
}

static bool gpunn__run_same(const gpunn_run *a, const gpunn_run *b)
{
    bool same = a->signature == b->signature && a->steps == b->steps && a->step_count == b->step_count &&
                a->loss == b->loss && a->update_count == b->update_count && a->loss_scale == b->loss_scale &&
                a->skips == b->skips && a->rejected == b->rejected && a->doubt == b->doubt &&
                a->is_checked == b->is_checked && a->gradients == b->gradients;
    for (int i = 0; i < a->update_count && same; i++)
        same = gpunn__update_same(&a->updates[i], &b->updates[i]);
    return same;
}

static size_t gpunn__captured_bytes(const gpunn_run *run)
{
    return sizeof(gpunn__captured) + (size_t)run->update_count * sizeof *run->updates;
}

/* Frees an entry and returns the next. */
static gpunn__captured *gpunn__captured_free(gpunn__cuda *cuda, gpunn__captured *captured)
{
    gpunn__captured *next = captured->next;
    if (captured->graph && !gpunn__cuda_is_forked(cuda))
        (void)gpunn__cuda_check(cuda, cudaGraphExecDestroy(captured->graph), "cudaGraphExecDestroy");
    gpunn__host_free(cuda, captured, gpunn__captured_bytes(&captured->run));
    return next;
}

/* Whether the host takes part in the run while it executes. */
static bool gpunn__needs_host(const gpunn_run *run)
{
    bool waits = false;
    for (int i = 0; i < run->step_count && !waits; i++)
        waits = run->steps[i].ranks && !run->steps[i].ranks->joined;
    return waits;
}

static bool gpunn__keeps_weights(const gpunn_run *run)
{
    bool keeps = false;
    for (int i = 0; i < run->step_count && !keeps; i++) keeps = run->steps[i].cache_bytes > 0;
    return keeps;
}

static bool gpunn__has_stale(const gpunn__cuda *cuda, const gpunn_run *run)
{
    bool stale = false;
    for (int i = 0; i < run->step_count && !stale; i++)
        stale = run->steps[i].cache_bytes > 0 && gpunn__cuda_is_stale(cuda, &run->steps[i]);
    return stale;
}

/* Finds or creates the entry of this run and moves it to the front of the list. Returns NULL if memory runs
 * out. */
static gpunn__captured *gpunn__captured_of(gpunn__cuda *cuda, gpunn_run *run)
{
    gpunn__captured *first = (gpunn__captured *)run->captured, **link = &first, *captured;
    for (int count = 1; *link && !gpunn__run_same(&(*link)->run, run); count++)
        if (count < GPUNN__MAX_CAPTURED)
            link = &(*link)->next;
        else
            *link = gpunn__captured_free(cuda, *link);
    captured = *link;
    if (captured)
        *link = captured->next;
    else if ((captured = (gpunn__captured *)gpunn__host_alloc(cuda, gpunn__captured_bytes(run))) != NULL) {
        gpunn_update *updates = (gpunn_update *)(captured + 1);
        for (int i = 0; i < run->update_count; i++) updates[i] = run->updates[i];
        captured->run = *run;
        captured->run.updates = updates;
        captured->plain = cuda->plain || gpunn__needs_host(run);
        captured->keeps = gpunn__keeps_weights(run);
    }
    if (captured) {
        captured->next = first;
        first = captured;
    }
    run->captured = first;
    return captured;
}

static gpunn_status gpunn__use_stream(gpunn__cuda *cuda, cudaStream_t stream)
{
    if (cuda->stream == stream) return GPUNN_OK;
    cuda->stream = stream;
    return gpunn__libraries_stream(cuda);
}

static gpunn_status gpunn__run_capture(gpunn__cuda *cuda, gpunn__captured *captured, gpunn_run *run)
{
    cudaGraph_t graph = NULL;
    /* the program may use its stream meanwhile, or it may not support capture */
    cudaStream_t stream = cuda->stream;
    GPUNN__CUDA(cuda, cudaStreamBeginCapture(cuda->own, cudaStreamCaptureModeThreadLocal));
    gpunn_status status = gpunn__use_stream(cuda, cuda->own);
    if (status == GPUNN_OK) status = gpunn__run_launch(cuda, run);
    cudaError_t        ended = cudaStreamEndCapture(cuda->own, &graph);
    const gpunn_status back = gpunn__use_stream(cuda, stream);
    if (status == GPUNN_OK) status = back;
    if (status != GPUNN_OK)
        (void)cudaGetLastError(); /* the reason for the failure is already recorded */
    else
        status = gpunn__cuda_check(cuda, ended, "cudaStreamEndCapture");
    if (status == GPUNN_OK)
        status = gpunn__cuda_check(cuda, cudaGraphInstantiate(&captured->graph, graph, 0),
                                   "cudaGraphInstantiate");
    if (graph) (void)cudaGraphDestroy(graph);
    return status;
}

/* Captures the run. If a driver cannot capture overlapping kernels, captures it again without overlap. */
static gpunn_status gpunn__run_capture_overlapping(gpunn__cuda *cuda, gpunn__captured *captured,
                                                   gpunn_run *run)
{
    gpunn_status status = gpunn__run_capture(cuda, captured, run);
    if (status == GPUNN_OK || cuda->dead || !cuda->overlaps) return status;
    cuda->overlaps = false;
    return gpunn__run_capture(cuda, captured, run);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_execute(void *context, gpunn_run *run)
{
    gpunn__cuda       *cuda = (gpunn__cuda *)context;
    const gpunn__range range(run->step_count > 0 && run->steps->training ? "gpunn training"
                                                                         : "gpunn evaluation");
    GPUNN__ENTER(cuda);
    if (gpunn__takes_bad(cuda, run) || (run->step_count == 0 && run->update_count == 0)) return GPUNN_OK;
    if (gpunn__cuda_capturing(cuda)) {
        if (cuda->plain) return gpunn__outside_capture(cuda, "wait for each step (GPUNN_PLAIN)");
        run->captured_only = cuda->replayed = true;
        GPUNN__TRY(gpunn__run_numbers(cuda, run, true));
        return gpunn__run_launch(cuda, run);
    }
    GPUNN__TRY(gpunn__ranks_there(cuda, run->exchange_count)); /* a replayed graph would not notice */
    gpunn__captured *captured = gpunn__captured_of(cuda, run);
    if (captured == NULL) return GPUNN_ERR_MEMORY;
    GPUNN__TRY(gpunn__run_numbers(cuda, run, false));
    GPUNN__TRY(gpunn__plain_wait(cuda, "what ran before this"));
    const bool stale = captured->keeps && gpunn__has_stale(cuda, run);
    if (captured->warm && captured->graph == NULL && !captured->plain && !stale &&
        gpunn__run_capture_overlapping(cuda, captured, run) != GPUNN_OK) {
        char text[sizeof cuda->text + 128];
        if (cuda->dead) return cuda->dead;
        (void)snprintf(text, sizeof text,
                       "a run could not be captured and is launched kernel by kernel, which is slower: %s",
                       cuda->text);
        gpunn__cuda_log(cuda, GPUNN_LOG_WARNING, text);
        captured->plain = true;
        run->failed = NULL;
    }
    if (captured->graph && !stale)
        GPUNN__CUDA(cuda, cudaGraphLaunch(captured->graph, cuda->stream));
    else
        GPUNN__TRY(gpunn__run_launch(cuda, run));
    captured->warm = true;
    return GPUNN_OK;
}

GPUNN__INTERNAL void gpunn__cuda_forget(void *context, void *kept)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    const gpunn__current current(cuda->context);
    for (gpunn__captured *captured = (gpunn__captured *)kept; captured;
         captured = gpunn__captured_free(cuda, captured)) {}
}

/* ==== >>run/backend ===================================================================================== */
/* The gpunn_backend table of CUDA, and opening, closing and describing devices. */

static int gpunn__cuda_device_count(void)
{
    int                  count = 0;
    const gpunn__current current;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

/* ---- opening a device ---------------------------------------------------------------------------------- */

/* Counts the GPUs. If there are none, the failure says why. */
static gpunn_status gpunn__cuda_count(gpunn__cuda *cuda, int *count)
{
    int driver = 0, runtime = 0;
    *count = 0;
    cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaSuccess && *count > 0) return GPUNN_OK;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (error == cudaErrorInsufficientDriver && driver == 0)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "there is no NVIDIA driver on this machine; install one to use its GPU");
    if (error == cudaErrorInsufficientDriver)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "the NVIDIA driver is too old: it supports CUDA %d.%d and this program was "
                                "built with CUDA %d.%d; update the driver, or build with CUDA %d",
                                driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
                                driver / 1000);
    if (error == cudaErrorNoDevice || error == cudaSuccess) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        return gpunn__cuda_fail(
            cuda, GPUNN_ERR_DEVICE, "there is an NVIDIA driver but no GPU that it can use%s%s%s",
            visible ? " (CUDA_VISIBLE_DEVICES is '" : "", visible ? visible : "", visible ? "')" : "");
    }
    if (error == cudaErrorInitializationError)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "CUDA does not start in this process; if it was forked from one that had "
                                "used CUDA, fork before that, or start it with exec");
    return gpunn__cuda_check(cuda, error, "cudaGetDeviceCount");
}

/* Retains the device's context. It is never released, because memory that outlives the device may belong to
 * it. */
static gpunn_status gpunn__cuda_reach(gpunn__cuda *cuda)
{
    const cudaError_t error = gpunn__context_retain(&cuda->context, cuda->device);
    if (error == cudaErrorDevicesUnavailable)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "GPU %d is busy: another process uses it exclusively, or it accepts no "
                                "processes; end that process, wait, or use another index",
                                cuda->device);
    return gpunn__cuda_check(cuda, error, "cuDevicePrimaryCtxRetain");
}

/* Queries the device's properties and checks that this binary contains code for it. */
static gpunn_status gpunn__cuda_acquire(gpunn__cuda *cuda)
{
    int index = cuda->device, major = 0, minor = 0, driver = 0;
    GPUNN__CUDA(cuda, cudaDriverGetVersion(&driver));
    GPUNN__CUDA(cuda, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
    GPUNN__CUDA(cuda, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
    GPUNN__CUDA(cuda, cudaDeviceGetAttribute(&cuda->multiprocessors, cudaDevAttrMultiProcessorCount, index));
    GPUNN__CUDA(cuda, cudaDeviceGetAttribute(&cuda->integrated, cudaDevAttrIntegrated, index));
    GPUNN__CUDA(cuda, cudaDeviceGetAttribute(&cuda->pageable,
                                             cudaDevAttrPageableMemoryAccessUsesHostPageTables, index));
    cuda->capability = 10 * major + minor;
    cudaFuncAttributes code;
    const cudaError_t  error = cudaFuncGetAttributes(&code, (const void *)gpunn__numbers_kernel);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
        error == cudaErrorUnsupportedPtxVersion)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "this program has no code for GPU %d, whose compute capability is %d.%d; "
                                "compile it with nvcc -arch=sm_%d, -arch=native or -arch=all-major",
                                index, major, minor, cuda->capability);
    GPUNN__TRY(gpunn__cuda_check(cuda, error, "cudaFuncGetAttributes"));
    cuda->architecture = code.ptxVersion;
    /* See GPUNN__FOLLOW. Drivers before CUDA 12.3 cannot capture such launches, and a failing launch ends the
     * program's own capture. */
    cuda->overlaps = cuda->architecture >= 90 && driver >= 12030 && !cuda->plain;
    return GPUNN_OK;
}

/* Writes "NVIDIA H200, 132 multiprocessors, 139 GiB, compute capability 9.0"; "139 GiB shared" for a GPU that
 * uses host memory. */
static cudaError_t gpunn__cuda_describe(int index, char *name, size_t size, int *capability,
                                        uint64_t *identity)
{
    cudaDeviceProp properties;
    cudaError_t    error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess) return error;
    *capability = 10 * properties.major + properties.minor;
    *identity = UINT64_C(0xCBF29CE484222325);
    for (size_t i = 0; i < sizeof properties.uuid.bytes; i++) /* FNV-1a */
        *identity = (*identity ^ (unsigned char)properties.uuid.bytes[i]) * UINT64_C(0x100000001B3);
    (void)snprintf(name, size, "%.60s, %d multiprocessors, %llu GiB%s, compute capability %d.%d",
                   properties.name, properties.multiProcessorCount,
                   (unsigned long long)(properties.totalGlobalMem >> 30),
                   properties.integrated ? " shared" : "", properties.major, properties.minor);
    return cudaSuccess;
}

/* Uses the program's stream, after checking that it belongs to this device. (Events of one device cannot be
 * recorded on another's stream.) */
static gpunn_status gpunn__cuda_adopt(gpunn__cuda *cuda, cudaStream_t stream)
{
    cudaStreamCaptureStatus capturing;
    cudaEvent_t             event;
    GPUNN__CUDA(cuda, cudaStreamIsCapturing(stream, &capturing));
    if (capturing != cudaStreamCaptureStatusNone)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_STATE,
                                "the stream is being captured; open the device before the capture begins");
    GPUNN__CUDA(cuda, cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    cudaError_t error = cudaEventRecord(event, stream);
    (void)cudaEventDestroy(event);
    if (error == cudaErrorInvalidResourceHandle)
        return gpunn__cuda_fail(
            cuda, GPUNN_ERR_DEVICE,
            "the stream does not belong to GPU %d; use the index of the GPU on which it was created",
            cuda->device);
    GPUNN__TRY(gpunn__cuda_check(cuda, error, "cudaEventRecord"));
    cuda->stream = stream;
    return GPUNN_OK;
}

/* Kernels on the second stream come before those of the first that wait beside them. */
static gpunn_status gpunn__side_open(gpunn__cuda *cuda)
{
    int lowest, highest;
    GPUNN__CUDA(cuda, cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    GPUNN__CUDA(cuda, cudaStreamCreateWithPriority(&cuda->side, cudaStreamNonBlocking, highest));
    for (cudaEvent_t *event : {&cuda->side_from, &cuda->side_to})
        GPUNN__CUDA(cuda, cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    return GPUNN_OK;
}

static gpunn_status gpunn__cuda_begin(gpunn__cuda *cuda)
{
    int count, capability;
    GPUNN__TRY(gpunn__cuda_count(cuda, &count));
    if (cuda->device >= count)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "index is %d, but this machine has %d GPU%s; the first has index 0",
                                cuda->device, count, count == 1 ? "" : "s");
    GPUNN__TRY(gpunn__cuda_reach(cuda));
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__cuda_acquire(cuda));
    GPUNN__CUDA(cuda, gpunn__cuda_describe(cuda->device, cuda->name, sizeof cuda->name, &capability,
                                           &cuda->identity));
    GPUNN__CUDA(cuda, cudaStreamCreateWithFlags(&cuda->own, cudaStreamNonBlocking));
    cuda->stream = cuda->own;
    if (cuda->args.stream) GPUNN__TRY(gpunn__cuda_adopt(cuda, (cudaStream_t)cuda->args.stream));
    GPUNN__CUDA(cuda, cudaStreamCreateWithFlags(&cuda->copy_stream, cudaStreamNonBlocking));
    GPUNN__TRY(gpunn__side_open(cuda));
    GPUNN__TRY(gpunn__memory_open(cuda));
    GPUNN__CUDA(cuda, cudaHostAlloc((void **)&cuda->bad, 3 * sizeof *cuda->bad, cudaHostAllocMapped));
    cuda->bad[0] = cuda->bad[1] = cuda->bad[2] = 0;
    GPUNN__CUDA(cuda, cudaHostGetDevicePointer((void **)&cuda->bad_device, (void *)cuda->bad, 0));
    cuda->state = (gpunn__device_state *)gpunn__cuda_alloc(cuda, sizeof *cuda->state);
    cuda->partials = (double *)gpunn__cuda_alloc(cuda, GPUNN__PARTIALS_BYTES);
    cuda->counters = (unsigned *)gpunn__cuda_alloc(cuda, gpunn__counters_bytes(cuda));
    if (cuda->state == NULL || cuda->partials == NULL || cuda->counters == NULL) return GPUNN_ERR_MEMORY;
    GPUNN__TRY(gpunn__cuda_fill(cuda, cuda->state, 0, sizeof *cuda->state));
    GPUNN__TRY(gpunn__cuda_fill(cuda, cuda->counters, 0, gpunn__counters_bytes(cuda)));
    return gpunn__libraries_open(cuda);
}

/* Frees the device's CUDA resources. */
static void gpunn__cuda_release(gpunn__cuda *cuda)
{
    if (cuda->state) gpunn__cuda_free(cuda, cuda->state, sizeof *cuda->state);
    if (cuda->partials) gpunn__cuda_free(cuda, cuda->partials, GPUNN__PARTIALS_BYTES);
    if (cuda->counters) gpunn__cuda_free(cuda, cuda->counters, gpunn__counters_bytes(cuda));
    if (cuda->bad) (void)cudaFreeHost((void *)cuda->bad);
    gpunn__memory_close(cuda);
    for (cudaEvent_t event : {cuda->side_from, cuda->side_to})
        if (event) (void)cudaEventDestroy(event);
    if (cuda->side) (void)cudaStreamDestroy(cuda->side);
    if (cuda->copy_stream) (void)cudaStreamDestroy(cuda->copy_stream);
    if (cuda->own) (void)cudaStreamDestroy(cuda->own);
}

/* Also closes a partly opened or dead device. In a forked process it frees only host memory. */
static void gpunn__cuda_close(void *context)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    const gpunn__current current(cuda->context);
    if (cuda->stream && !current.is_forked) (void)cudaStreamSynchronize(cuda->stream);
    gpunn__cached_close(cuda);
    gpunn__libraries_close(cuda);
    if (!current.is_forked) gpunn__cuda_release(cuda);
    gpunn__host_free(cuda, cuda->nccl, sizeof *cuda->nccl);
    gpunn__host_free(cuda, cuda->staging, sizeof *cuda->staging);
    gpunn__host_free(cuda, cuda->checks, (size_t)cuda->check_capacity * sizeof *cuda->checks);
    gpunn__host_free(cuda, cuda, sizeof *cuda);
}

static void *gpunn__cuda_open(const gpunn_device_args *args, char *message, size_t message_size)
{
    const gpunn__current current;
    gpunn__cuda         *cuda = (gpunn__cuda *)args->realloc_fn(args->user, NULL, 0, sizeof *cuda);
    if (cuda == NULL) {
        (void)snprintf(message, message_size, "out of host memory");
        return NULL;
    }
    memset(cuda, 0, sizeof *cuda);
    cuda->device = args->index;
    cuda->args = *args;
    if (cuda->args.workspace_limit == 0) cuda->args.workspace_limit = (size_t)256 << 20;
    const char *plain = getenv("GPUNN_PLAIN");
    cuda->plain = plain && *plain && strcmp(plain, "0") != 0;
    if (gpunn__cuda_begin(cuda) == GPUNN_OK) {
        if (cuda->plain)
            gpunn__cuda_log(cuda, GPUNN_LOG_INFO,
                            "GPUNN_PLAIN is set: the host waits for each step of a run, which is slow");
        return cuda;
    }
    (void)snprintf(message, message_size, "%s", cuda->text);
    gpunn__cuda_close(cuda);
    return NULL;
}

static void gpunn__cuda_info(void *context, gpunn_backend_info *info)
{
    const gpunn__cuda *cuda = (const gpunn__cuda *)context;
    info->type = GPUNN_DEVICE_CUDA;
    info->half = info->merged_norm = info->blocks = true;
    info->bf16 = cuda->capability >= 80;
    info->alignment = 64;
    info->identity = cuda->identity;
    (void)snprintf(info->name, sizeof info->name, "%s", cuda->name);
}

/* ---- single steps and updates -------------------------------------------------------------------------- */

static gpunn_status gpunn__cuda_prepare(void *context, gpunn_step *step)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    return gpunn__cuda_dispatch(cuda, step, GPUNN__PREPARE);
}

static gpunn_status gpunn__cuda_run(void *context, gpunn_step *steps, int count, const gpunn_step **failed)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    gpunn_run    run;
    memset(&run, 0, sizeof run);
    run.state = steps->state;
    run.steps = steps;
    run.step_count = count;
    *failed = NULL;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__run_numbers(cuda, &run, false));
    const gpunn_status status = gpunn__run_launch(cuda, &run);
    *failed = run.failed;
    return status;
}

static gpunn_status gpunn__cuda_update(void *context, const gpunn_update *update)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    gpunn_run    run;
    memset(&run, 0, sizeof run);
    run.updates = update;
    run.update_count = 1;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__run_numbers(cuda, &run, false));
    return gpunn__run_launch(cuda, &run);
}

/* Normalizes bytes to floats. This is many times faster than uploading the bytes, so the kernel is kept
 * simple. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__normalize_kernel(float *to, const uint8_t *from, int64_t count, const gpunn_pixels pixels)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        int   c = (int)(gpunn__quotient(i, pixels.plane) % pixels.channels);
        float mean = pixels.mean[0], std = pixels.std[0];
#pragma unroll
        for (int k = 1; k < 4; k++) { /* indexing by c would put the arrays into local memory */
            mean = k == c ? pixels.mean[k] : mean;
            std = k == c ? pixels.std[k] : std;
        }
        to[i] = gpunn__normalized(from[i], mean, std);
    }
}

static gpunn_status gpunn__cuda_normalize(void *context, float *to, const uint8_t *from, int64_t count,
                                          const gpunn_pixels *pixels)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    return GPUNN__LAUNCH(cuda, gpunn__normalize_kernel, gpunn__blocks(cuda, count, 1), GPUNN__THREADS, to,
                         from, count, *pixels);
}

static gpunn_status gpunn__cuda_convert(void *context, void *to, gpunn_dtype to_dtype, const void *from,
                                        gpunn_dtype from_dtype, int64_t count)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    return gpunn__is_blocks(from_dtype)
               ? gpunn__cuda_block_values(cuda, to, to_dtype, from, from_dtype, count)
               : gpunn__cuda_cast_values(cuda, to, to_dtype, from, from_dtype, count);
}

/* Whether images should be stored channels last. Tensor cores need this layout, and only cuDNN has kernels
 * for it. For small images the extra launches do not pay off. */
#ifndef GPUNN__CHANNELS_LAST_FROM
#define GPUNN__CHANNELS_LAST_FROM (1 << 18)
#endif
static bool gpunn__cuda_channels_last(void *context, gpunn_images *images)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    const gpunn__current current(cuda->context);
    images->filters = true;
    return images->precision != GPUNN_PRECISION_F32 && images->largest >= GPUNN__CHANNELS_LAST_FROM &&
           gpunn__cuda_entered(cuda, &current) == GPUNN_OK && gpunn__dnn_available(cuda);
}

static const char *gpunn__cuda_text(void *context)
{
    return ((gpunn__cuda *)context)->text;
}

/* ---- report -------------------------------------------------------------------------------------------- */

static const char *gpunn__tensor_cores(int capability)
{
    return capability >= 100  ? "tensor cores of the 5th generation: F16, BF16, TF32, FP8, FP4"
           : capability >= 89 ? "tensor cores of the 4th generation: F16, BF16, TF32, FP8"
           : capability >= 80 ? "tensor cores of the 3rd generation: F16, BF16, TF32"
           : capability >= 75 ? "tensor cores of the 2nd generation: F16"
           : capability >= 70 ? "tensor cores of the 1st generation: F16"
                              : "no tensor cores";
}

static void gpunn__report_line(void (*write)(void *user, const char *text), void *user, const char *format,
                               ...)
{
    char    line[768];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(line, sizeof line, format, list);
    va_end(list);
    write(user, line);
}

/* Attributes of the kernels' code for a GPU. The context that this needs is released again. */
static cudaError_t gpunn__code_attributes(cudaFuncAttributes *code, int index)
{
    gpunn__context context = {};
    cudaError_t    error = gpunn__context_retain(&context, index);
    if (error == cudaSuccess) {
        const gpunn__current current(context);
        error = current.error;
        if (error == cudaSuccess) error = cudaFuncGetAttributes(code, (const void *)gpunn__numbers_kernel);
    }
    gpunn__context_release(&context, index);
    return error;
}

static void gpunn__report_device(void (*write)(void *user, const char *text), void *user, int index)
{
    char               name[160];
    int                capability = 0;
    cudaFuncAttributes code;
    uint64_t           identity;
    cudaError_t        error = gpunn__cuda_describe(index, name, sizeof name, &capability, &identity);
    if (error == cudaSuccess) {
        gpunn__report_line(write, user, "GPU %d         %s\n              %s\n", index, name,
                           gpunn__tensor_cores(capability));
        error = gpunn__code_attributes(&code, index);
        if (error == cudaSuccess)
            gpunn__report_line(write, user, "              runs the code for sm_%d of this program%s\n",
                               code.binaryVersion,
                               code.binaryVersion == code.ptxVersion && code.binaryVersion != capability
                                   ? ", compiled by the driver"
                                   : "");
    }
    if (error != cudaSuccess)
        gpunn__report_line(write, user, "GPU %d         cannot be used: %s, %s\n", index,
                           cudaGetErrorName(error), cudaGetErrorString(error));
}

static void gpunn__cuda_report(void (*write)(void *user, const char *text), void *user)
{
    const gpunn__current current;
    int                  driver = 0, runtime = 0, count = 0;
    gpunn__cuda          probe; /* only holds an error message */
    memset(&probe, 0, sizeof probe);
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (driver)
        gpunn__report_line(write, user, "driver        for CUDA %d.%d\n", driver / 1000, driver % 1000 / 10);
    else
        gpunn__report_line(write, user, "driver        none\n");
    gpunn__report_line(write, user, "CUDA runtime  %d.%d, built in\n", runtime / 1000, runtime % 1000 / 10);
#ifdef __CUDA_ARCH_LIST__
    static const int built[] = {__CUDA_ARCH_LIST__};
    char             text[256] = "";
    for (size_t i = 0, n = 0; i < sizeof built / sizeof *built && n + 8 < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, " sm_%d", built[i] / 10);
    gpunn__report_line(write, user, "built for    %s\n", text);
#endif
    if (gpunn__cuda_count(&probe, &count) != GPUNN_OK)
        gpunn__report_line(write, user, "GPU           none: %s\n", probe.text);
    for (int i = 0; i < count; i++) gpunn__report_device(write, user, i);
    gpunn__libraries_report(write, user);
    gpunn__nccl nccl;
    memset(&nccl, 0, sizeof nccl);
    (void)gpunn__nccl_find(&nccl);
    gpunn__report_line(write, user, "NCCL          %s\n", nccl.text);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

#ifndef GPUNN__BACKEND_NAME
#define GPUNN__BACKEND_NAME gpunn_cuda_backend
#endif
extern "C" const gpunn_backend GPUNN__BACKEND_NAME;

/* C++ has no designated initializers before C++20. */
static constexpr gpunn_backend gpunn__cuda_backend()
{
    gpunn_backend backend = {};
    backend.abi = GPUNN_BACKEND_ABI;
    backend.device_count = gpunn__cuda_device_count;
    backend.open = gpunn__cuda_open;
    backend.close = gpunn__cuda_close;
    backend.info = gpunn__cuda_info;
    backend.alloc = gpunn__cuda_alloc;
    backend.free = gpunn__cuda_free;
    backend.host_alloc = gpunn__cuda_host_alloc;
    backend.host_free = gpunn__cuda_host_free;
    backend.upload = gpunn__cuda_upload;
    backend.download = gpunn__cuda_download;
    backend.fill = gpunn__cuda_fill;
    backend.normalize = gpunn__cuda_normalize;
    backend.synchronize = gpunn__cuda_synchronize;
    backend.prepare = gpunn__cuda_prepare;
    backend.run = gpunn__cuda_run;
    backend.update = gpunn__cuda_update;
    backend.sum_of_squares = gpunn__cuda_sum_of_squares;
    backend.value_sums = gpunn__cuda_value_sums;
    backend.scale = gpunn__cuda_scale;
    backend.convert = gpunn__cuda_convert;
    backend.channels_last = gpunn__cuda_channels_last;
    backend.execute = gpunn__cuda_execute;
    backend.forget = gpunn__cuda_forget;
    backend.time = gpunn__cuda_time;
    backend.reserved = gpunn__cuda_reserved;
    backend.trim = gpunn__cuda_trim;
    backend.report = gpunn__cuda_report;
    backend.reaches = gpunn__cuda_reaches;
    backend.on_device = gpunn__cuda_on_device;
    backend.capturing = gpunn__cuda_capturing;
    backend.ranks_id = gpunn__cuda_ranks_id;
    backend.ranks_join = gpunn__cuda_ranks_join;
    backend.ranks_leave = gpunn__cuda_ranks_leave;
    backend.exchange = gpunn__cuda_exchange;
    backend.error = gpunn__cuda_text;
    return backend;
}

const gpunn_backend GPUNN__BACKEND_NAME = gpunn__cuda_backend();
