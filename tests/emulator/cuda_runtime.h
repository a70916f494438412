/* Stands in for the CUDA runtime's header, so that g++ and clang++ compile gpunn_cuda.cu and its kernels run
 * on the CPU: what that file uses of the runtime and of the device language, and nothing more. emulator.cpp
 * has the machinery and says what it catches. */
#ifndef EMULATOR_CUDA_RUNTIME_H
#define EMULATOR_CUDA_RUNTIME_H
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <memory>

#define CUDART_VERSION 13000

/* ---- the device language ---- */
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static /* one block runs at a time, in the whole process */
#define warpSize 32

struct uint2 {
    unsigned x, y;
};
struct uint3 {
    unsigned x, y, z;
};
struct __align__(16) uint4
{
    unsigned x, y, z, w;
};
struct __align__(8) float2
{
    float x, y;
};
struct __align__(16) float4
{
    float x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

extern uint3 threadIdx, blockIdx; /* of the thread that runs now */
extern dim3  blockDim, gridDim;

void emulator_barrier(const char *file, int line);
void emulator_warp_barrier(unsigned mask, const char *file, int line);
/* Hands bytes (at most 16) at value to the other lanes and takes over those of lane `source` of the warp. */
void emulator_shuffle(unsigned mask, void *value, size_t bytes, int source, const char *file, int line);
#define __syncthreads() emulator_barrier(__FILE__, __LINE__)
#define __syncwarp(...) emulator_warp_barrier(0xFFFFFFFFu, __FILE__, __LINE__)
enum emulator_direction { EMULATOR_XOR, EMULATOR_DOWN, EMULATOR_LANE };
template <typename T>
static inline T emulator_shuffled(emulator_direction direction, unsigned mask, T value, int argument,
                                  const char *file, int line)
{
    int lane = (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32);
    int source = direction == EMULATOR_XOR    ? lane ^ argument
                 : direction == EMULATOR_DOWN ? lane + argument
                                              : argument & 31;
    emulator_shuffle(mask, &value, sizeof value, source > 31 ? lane : source, file, line);
    return value;
}
#define __shfl_xor_sync(mask, value, distance) \
    emulator_shuffled(EMULATOR_XOR, (mask), (value), (int)(distance), __FILE__, __LINE__)
#define __shfl_down_sync(mask, value, distance) \
    emulator_shuffled(EMULATOR_DOWN, (mask), (value), (int)(distance), __FILE__, __LINE__)
#define __shfl_sync(mask, value, lane) \
    emulator_shuffled(EMULATOR_LANE, (mask), (value), (int)(lane), __FILE__, __LINE__)

/* The lanes whose value is this lane's. */
unsigned emulator_match(unsigned mask, unsigned value, const char *file, int line);
#define __match_any_sync(mask, value) emulator_match((mask), (value), __FILE__, __LINE__)

/* mma.sync.aligned of that shape and these types: sum += a b, by a warp. */
void emulator_mma(const char *instruction, float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                  const char *file, int line);
#define GPUNN__MMA(instruction, sum, a, b) emulator_mma((instruction), (sum), (a), (b), __FILE__, __LINE__)

/* mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32: sum += a b, by a warp. */
void emulator_mma_bytes(int (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2], const char *file,
                        int line);
#define GPUNN__MMA_BYTES(sum, a, b) emulator_mma_bytes((sum), (a), (b), __FILE__, __LINE__)

template <typename To, typename From> static inline To emulator_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline float __uint_as_float(unsigned bits)
{
    return emulator_bits<float>(bits);
}
static inline unsigned __float_as_uint(float x)
{
    return emulator_bits<unsigned>(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
/* One thread runs at a time: the builtin only tells the race finder what this is. */
static inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
static inline unsigned long long atomicMax(unsigned long long *at, unsigned long long value)
{
    const unsigned long long old = atomicAdd(at, 0);
    if (value > old) (void)atomicAdd(at, value - old);
    return old;
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
/* Rounded to the nearest, and never contracted. */
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
#define __expf expf
static inline float __fdividef(float a, float b)
{
    return a / b;
}
/* What a block wrote before a fence and an increment, another block sees after its own and a fence. */
void               emulator_fence(void);
unsigned           emulator_increment(unsigned *at, unsigned most);
static inline void __threadfence(void)
{
    emulator_fence();
}
static inline unsigned atomicInc(unsigned *at, unsigned most)
{
    return emulator_increment(at, most);
}
static inline void __threadfence_system(void)
{
}
static inline int min(int a, int b)
{
    return a < b ? a : b;
}
static inline int max(int a, int b)
{
    return a > b ? a : b;
}
static inline unsigned min(unsigned a, unsigned b)
{
    return a < b ? a : b;
}
static inline unsigned max(unsigned a, unsigned b)
{
    return a > b ? a : b;
}
static inline int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- errors ---- */
#define EMULATOR_ERRORS(X)                                                                                 \
    X(cudaSuccess, 0, "no error")                                                                          \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                                        \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                                       \
    X(cudaErrorInitializationError, 3, "initialization error")                                             \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                                  \
    X(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version")     \
    X(cudaErrorDevicesUnavailable, 46, "CUDA-capable device(s) is/are busy or unavailable")                \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                        \
    X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                                       \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                               \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device")    \
    X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error encountered")                               \
    X(cudaErrorNvlinkUncorrectable, 220, "uncorrectable NVLink error detected during the execution")       \
    X(cudaErrorUnsupportedPtxVersion, 222, "the provided PTX was compiled with an unsupported toolchain.") \
    X(cudaErrorContained, 226, "Invalid access of peer GPU memory over nvlink or a hardware error")        \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                      \
    X(cudaErrorNotReady, 600, "device not ready")                                                          \
    X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                            \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")                       \
    X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                              \
    X(cudaErrorContextIsDestroyed, 709, "context is destroyed")                                            \
    X(cudaErrorAssert, 710, "device-side assert triggered")                                                \
    X(cudaErrorHardwareStackError, 714, "hardware stack error")                                            \
    X(cudaErrorIllegalInstruction, 715, "an illegal instruction was encountered")                          \
    X(cudaErrorMisalignedAddress, 716, "misaligned address")                                               \
    X(cudaErrorInvalidAddressSpace, 717, "operation not supported on global/shared address space")         \
    X(cudaErrorInvalidPc, 718, "invalid program counter")                                                  \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                           \
    X(cudaErrorTensorMemoryLeak, 721, "Tensor Memory not completely freed")                                \
    X(cudaErrorExternalDevice, 911, "an async error has occured in external entity outside of CUDA")       \
    X(cudaErrorNotPermitted, 800, "operation not permitted")                                               \
    X(cudaErrorNotSupported, 801, "operation not supported")                                               \
    X(cudaErrorMpsClientTerminated, 810, "MPS client has been terminated")                                 \
    X(cudaErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")          \
    X(cudaErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture")   \
    X(cudaErrorStreamCaptureUnmatched, 903, "capture was not ended in the same stream as it began")        \
    X(cudaErrorStreamCaptureUnjoined, 904, "capturing stream has unjoined work")                           \
    X(cudaErrorStreamCaptureIsolation, 905, "dependency created on uncaptured work in another stream")     \
    X(cudaErrorCapturedEvent, 907,                                                                         \
      "operation not permitted on an event last recorded in a capturing stream")                           \
    X(cudaErrorUnknown, 999, "unknown error")
typedef enum cudaError {
#define EMULATOR_X(name, code, text) name = code,
    EMULATOR_ERRORS(EMULATOR_X)
#undef EMULATOR_X
} cudaError_t;

/* ---- launching: arguments are converted and copied now, the kernel runs when its stream does ---- */
typedef struct emulator_stream *cudaStream_t;
struct emulator_kernel {
    const char *name;
    const void *function;
    void (*run)(const void *arguments); /* one thread */
    std::shared_ptr<const void> arguments;
    size_t                      bytes;
};
cudaError_t emulator_launch(cudaStream_t stream, const emulator_kernel &kernel, dim3 blocks, dim3 threads);
/* Host code in the stream's turn, that takes the time of so many launches. */
cudaError_t emulator_call(cudaStream_t stream, const char *name, std::function<void()> function,
                          long time = 1);
cudaError_t emulator_wait(cudaStream_t stream, std::function<bool()> ready);
bool        emulator_captures(void *stream); /* what is called there goes into a graph */
template <typename F> static void emulator_run(const void *arguments)
{
    (*(const F *)arguments)();
}
template <typename F>
static cudaError_t emulator_launch_bound(cudaStream_t stream, const char *name, const void *kernel,
                                         dim3 blocks, dim3 threads, F bound)
{
    return emulator_launch(stream, {name, kernel, emulator_run<F>, std::make_shared<F>(bound), sizeof bound},
                           blocks, threads);
}
template <typename... P> struct emulator_launcher {
    cudaStream_t stream;
    const char  *name;
    dim3         blocks, threads;
    void (*kernel)(P...);
    cudaError_t operator()(P... arguments)
    {
        return emulator_launch_bound(stream, name, (const void *)kernel, blocks, threads,
                                     [function = kernel, arguments...] { function(arguments...); });
    }
};
template <typename... P>
static inline emulator_launcher<P...> emulator_prepare(cudaStream_t stream, const char *name, dim3 blocks,
                                                       dim3 threads, void (*kernel)(P...))
{
    return {stream, name, blocks, threads, kernel};
}
/* reports a fault where a block of the emulated GPU cannot have as much */
void emulator_shared(size_t bytes);
#define GPUNN__LAUNCH_ON(on, kernel, blocks, threads, ...) \
    emulator_prepare((cudaStream_t)(on), #kernel, (blocks), (threads), kernel)(__VA_ARGS__)
#define GPUNN__BLOCK_SHARED(name, floats) static __align__(16) float name[floats]
#define GPUNN__LAUNCH_SHARED(on, bytes, ...) (emulator_shared(bytes), GPUNN__LAUNCH_ON(on, __VA_ARGS__))
#define GPUNN__LAUNCH(cuda, kernel, blocks, threads, ...)                                                \
    gpunn__cuda_launched((cuda), GPUNN__LAUNCH_ON((cuda)->stream, kernel, blocks, threads, __VA_ARGS__), \
                         #kernel)

int emulator_short(void); /* GPUNN__SHORT here: EMULATOR_SHORT's number */

/* ---- the runtime ---- */
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char       name[256];
    cudaUUID_t uuid;
    size_t     totalGlobalMem;
    int major, minor, multiProcessorCount, maxThreadsPerMultiProcessor, maxThreadsPerBlock, l2CacheSize,
        warpSize_, integrated;
    size_t sharedMemPerBlock;
    int    canMapHostMemory, memoryPoolsSupported, pciBusID, pciDeviceID, pciDomainID;
};
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrIntegrated = 18,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
    cudaDevAttrPageableMemoryAccessUsesHostPageTables = 100,
    cudaDevAttrMemoryPoolsSupported = 115
};
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
enum { cudaEnableDefault = 0 };
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);

struct cudaFuncAttributes {
    int binaryVersion, ptxVersion, numRegs, maxThreadsPerBlock;
};
template <typename F> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, F *)
{
    cudaError_t emulator_function_attributes(cudaFuncAttributes *);
    return emulator_function_attributes(attributes);
}

#define cudaStreamLegacy ((cudaStream_t)0x1)
typedef struct emulator_event      *cudaEvent_t;
typedef struct emulator_graph      *cudaGraph_t;
typedef struct emulator_graph_exec *cudaGraphExec_t;
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to);

typedef struct emulator_pool *cudaMemPool_t;
enum cudaMemPoolAttr {
    cudaMemPoolAttrReleaseThreshold = 4,
    cudaMemPoolAttrReservedMemCurrent,
    cudaMemPoolAttrReservedMemHigh,
    cudaMemPoolAttrUsedMemCurrent,
    cudaMemPoolAttrUsedMemHigh
};
enum cudaMemAllocationType { cudaMemAllocationTypeInvalid = 0, cudaMemAllocationTypePinned };
enum cudaMemAllocationHandleType { cudaMemHandleTypeNone = 0 };
enum cudaMemLocationType { cudaMemLocationTypeInvalid = 0, cudaMemLocationTypeDevice };
struct cudaMemLocation {
    cudaMemLocationType type;
    int                 id;
};
struct cudaMemPoolProps {
    cudaMemAllocationType       allocType;
    cudaMemAllocationHandleType handleTypes;
    cudaMemLocation             location;
    void                       *win32SecurityAttributes;
    size_t                      maxSize;
    unsigned short              usage;
    unsigned char               reserved[54];
};
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const cudaMemPoolProps *properties);
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value);
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes);
cudaError_t cudaDeviceGraphMemTrim(int device);

enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
cudaError_t emulator_malloc(void **ptr, size_t bytes);
cudaError_t emulator_malloc_async(void **ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream);
cudaError_t emulator_host_alloc(void **ptr, size_t bytes, unsigned flags);
cudaError_t emulator_device_pointer(void **device, void *host);
template <typename T> static inline cudaError_t cudaMalloc(T **ptr, size_t bytes)
{
    return emulator_malloc((void **)ptr, bytes);
}
template <typename T>
static inline cudaError_t cudaMallocFromPoolAsync(T **ptr, size_t bytes, cudaMemPool_t pool,
                                                  cudaStream_t stream)
{
    return emulator_malloc_async((void **)ptr, bytes, pool, stream);
}
template <typename T> static inline cudaError_t cudaHostAlloc(T **ptr, size_t bytes, unsigned flags)
{
    return emulator_host_alloc((void **)ptr, bytes, flags);
}
template <typename T> static inline cudaError_t cudaHostGetDevicePointer(T **device, void *host, unsigned)
{
    return emulator_device_pointer((void **)device, host);
}
enum cudaMemoryType {
    cudaMemoryTypeUnregistered,
    cudaMemoryTypeHost,
    cudaMemoryTypeDevice,
    cudaMemoryTypeManaged
};
struct cudaPointerAttributes {
    cudaMemoryType type;
    int            device;
    void          *devicePointer, *hostPointer;
};
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *ptr);
cudaError_t cudaFree(void *ptr);
cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream);
cudaError_t cudaFreeHost(void *ptr);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream = nullptr);

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone,
    cudaStreamCaptureStatusActive,
    cudaStreamCaptureStatusInvalidated
};
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

/* ---- the emulator's own, for seams and tests ---- */
extern "C" {
#include "emulator.h"
}
#endif
