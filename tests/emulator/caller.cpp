/* caller.h by the runtime's functions. */
extern "C" {
#include "caller.h"
}
#include <cuda_runtime.h>
#include <stdio.h>

static void check(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) (void)fprintf(stderr, "caller: %s: %s\n", what, cudaGetErrorName(error));
}
#define CHECK(call) check(call, #call)

static __global__ void scale(float *values, size_t count, float factor)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < count) values[i] *= factor;
}

extern "C" void *caller_stream(void)
{
    cudaStream_t stream = NULL;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}
extern "C" void *caller_legacy_stream(void)
{
    return cudaStreamLegacy;
}
extern "C" void caller_end(void *stream)
{
    CHECK(cudaStreamDestroy((cudaStream_t)stream));
}
extern "C" int caller_device(void)
{
    int device = -1;
    CHECK(cudaGetDevice(&device));
    return device;
}
extern "C" void caller_set_device(int device)
{
    CHECK(cudaSetDevice(device));
}
extern "C" void caller_err(void)
{
    (void)cudaSetDevice(-5);
}
extern "C" int caller_pending(void)
{
    return cudaPeekAtLastError();
}
extern "C" void caller_forget(void)
{
    (void)cudaGetLastError();
}
extern "C" void *caller_malloc(size_t bytes)
{
    void *memory = NULL;
    CHECK(cudaMalloc(&memory, bytes));
    return memory;
}
extern "C" void *caller_pinned(size_t bytes)
{
    void *memory = NULL;
    CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
    return memory;
}
extern "C" bool caller_is_pinned(const void *memory)
{
    cudaPointerAttributes where;
    CHECK(cudaPointerGetAttributes(&where, memory));
    return where.type == cudaMemoryTypeHost;
}
extern "C" void caller_free(void *memory)
{
    cudaPointerAttributes where;
    CHECK(cudaPointerGetAttributes(&where, memory));
    CHECK(where.type == cudaMemoryTypeHost ? cudaFreeHost(memory) : cudaFree(memory));
}
extern "C" void caller_put(void *to, const void *host, size_t bytes, void *stream)
{
    CHECK(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream));
}
extern "C" void caller_get(void *host, const void *from, size_t bytes, void *stream)
{
    CHECK(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)stream));
    CHECK(cudaStreamSynchronize((cudaStream_t)stream));
}
extern "C" void caller_scale(float *values, size_t count, float factor, void *stream)
{
    CHECK(GPUNN__LAUNCH_ON(stream, scale, (unsigned)(count + 63) / 64, 64, values, count, factor));
}
extern "C" void caller_begin_capture(void *stream)
{
    CHECK(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal));
}
extern "C" void *caller_end_capture(void *stream)
{
    cudaGraph_t     graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t     error = cudaStreamEndCapture((cudaStream_t)stream, &graph);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&exec, graph, 0);
    check(error, "the program's capture");
    if (graph) CHECK(cudaGraphDestroy(graph));
    return exec;
}
extern "C" void caller_launch(void *graph, void *stream)
{
    CHECK(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream));
}
extern "C" void caller_forget_graph(void *graph)
{
    CHECK(cudaGraphExecDestroy((cudaGraphExec_t)graph));
}
