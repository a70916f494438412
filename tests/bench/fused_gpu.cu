/* Times the kernels of fused_gpu_kernels.cu on a GPU, for fused_gpu.py: a line "name|microseconds|bytes" for
 * each program of fused_gpu_cases.h, for an optimizer's step and for a copy. Each is captured into a CUDA
 * graph, so that the host's work for its launches does not count; the median of RUNS. */
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "gpunn.h"

extern "C" const gpunn_kernel_cuda fused_gpu_kernels_cuda;

enum { RUNS = 25, MEGA = 1 << 20 };
struct block {
    size_t bytes;
    bool   floats;
};

#define CHECK(call)                                                               \
    do {                                                                          \
        cudaError_t error_ = (call);                                              \
        if (error_ != cudaSuccess) {                                              \
            (void)fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_)); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

static cudaStream_t stream;

/* 16-bit halves of floats between 1/2 and 1, of either sign; as F32 the same. */
static __global__ void fill(uint16_t *halves, size_t count)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        unsigned hash = (unsigned)i * 2654435761u;
        halves[i] = (uint16_t)(0x3F00u | (hash >> 16 & 0x807Fu));
    }
}

static void *allocate(block one)
{
    void *data;
    CHECK(cudaMalloc(&data, one.bytes + 256));
    CHECK(cudaMemsetAsync(data, 0, one.bytes, stream));
    if (one.floats) fill<<<1024, 256, 0, stream>>>((uint16_t *)data, one.bytes / 2);
    CHECK(cudaGetLastError());
    return data;
}

static void time_of(const char *name, double bytes, const std::function<int(void)> &launch)
{
    cudaGraph_t        graph;
    cudaGraphExec_t    exec;
    cudaEvent_t        begin, end;
    std::vector<float> times;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK((cudaError_t)-launch());
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < RUNS + 3; i++) {
        float ms;
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 3) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    printf("%s|%.3f|%.0f\n", name, 1e3 * (double)times[RUNS / 2], bytes);
    (void)fflush(stdout);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
}

static void program(const char *name, int kernel, int direction, int64_t batch, double bytes,
                    const std::vector<block> &blocks, int multiprocessors)
{
    const gpunn_kernel_launch &launch = fused_gpu_kernels_cuda.launch[kernel][direction];
    std::vector<void *>        data, half(blocks.size());
    std::vector<unsigned char> accumulate(blocks.size());
    std::vector<uint32_t>      random_streams(8);
    for (const block &one : blocks) data.push_back(allocate(one));
    void *random = allocate({16, false}),
         *workspace = allocate({launch.workspace(batch, multiprocessors), false});
    void             *counters = allocate({GPUNN_KERNEL_COUNTERS * sizeof(unsigned), false});
    gpunn_kernel_call call = {};
    call.data = data.data();
    call.accumulate = accumulate.data();
    call.half = half.data();
    call.batch = batch;
    call.random_streams = random_streams.data();
    call.random = (const uint64_t *)random;
    call.workspace = workspace;
    call.multiprocessors = multiprocessors;
    call.counters = (unsigned *)counters;
    call.stream = stream;
    time_of(name, bytes, [&] { return launch.run(&call); });
    for (void *one : data) CHECK(cudaFree(one));
    CHECK(cudaFree(random));
    CHECK(cudaFree(workspace));
    CHECK(cudaFree(counters));
}

static void adamw(int64_t count)
{
    gpunn_update         update = {};
    gpunn_update_numbers numbers = {true, 1, 0.001f, {0.1f, 0.001f, 0.9999f, 0.001f, 1}};
    update.count = count;
    update.parameter = (float *)allocate({4 * (size_t)count, true});
    update.gradient = (const float *)allocate({4 * (size_t)count, true});
    for (int i = 0; i < 2; i++) update.state[i] = (float *)allocate({4 * (size_t)count, false});
    update.half = allocate({2 * (size_t)count, false});
    void *in_memory = allocate({sizeof numbers, false});
    CHECK(cudaMemcpyAsync(in_memory, &numbers, sizeof numbers, cudaMemcpyHostToDevice, stream));
    CHECK(cudaStreamSynchronize(stream));
    time_of("adamw with a BF16 copy", 30.0 * (double)count, [&] {
        return fused_gpu_kernels_cuda.update[0](&update, (const gpunn_update_numbers *)in_memory, stream);
    });
    for (void *one : {(void *)update.parameter, (void *)update.gradient, (void *)update.state[0],
                      (void *)update.state[1], update.half, in_memory})
        CHECK(cudaFree(one));
}

int main(int argc, char **argv)
{
    if (argc > 1) return printf("usage: %s    fused_gpu.py runs it\n", argv[0]) < 0;
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const size_t half = 256 * (size_t)MEGA;
    void        *from = allocate({half, true}), *to = allocate({half, false});
    time_of("copy", 2.0 * (double)half,
            [&] { return -(int)cudaMemcpyAsync(to, from, half, cudaMemcpyDeviceToDevice, stream); });
    CHECK(cudaFree(from));
    CHECK(cudaFree(to));
#define CASE(name, kernel, direction, batch, bytes, ...) \
    program(name, kernel, direction, batch, bytes, {__VA_ARGS__}, properties.multiProcessorCount);
#include "fused_gpu_cases.h"
    adamw(100 * (int64_t)MEGA);
    return 0;
}
