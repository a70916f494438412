/* Runs kernels of a generated file on the emulated GPU, for test_emit_cuda.py. Cases come on stdin and
 * results go to stdout, in numbers of 8 bytes: kernel, direction (3: an update), batch, seed, step, streams:
 * their number and each; operands: their number, and of each whether it is added to, its bytes (-1: NULL),
 * those of its 16-bit form (-1: not wanted), how far from an aligned address it lies, and its memory.
 * Results: what the function returned, then the memory of all operands, each with its 16-bit form. Those of
 * an update are gpunn_update_numbers, gradient_limit with weight_decay's place and value, parameter,
 * gradient, three states and the 16-bit copy; batch is the number of its elements. With CAPTURE in the
 * environment groups are captured into a CUDA graph, and that is launched. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>
#include <vector>

#include "gpunn.h"

extern "C" const gpunn_kernel_cuda KERNELS;

static bool take(void *to, size_t bytes)
{
    return bytes == 0 || fread(to, bytes, 1, stdin) == 1;
}
static int64_t number(void)
{
    int64_t value = 0;
    if (!take(&value, sizeof value)) exit(2);
    return value;
}
static void give(const void *from, size_t bytes)
{
    if (bytes > 0 && fwrite(from, bytes, 1, stdout) != 1) exit(2);
}

struct operand {
    char   *block, *data, *half_block, *half;
    int64_t bytes, half_bytes;
};

static int group(int64_t kernel, int64_t direction, int64_t batch, void **data,
                 const unsigned char *accumulate, void **half, const uint32_t *random_streams,
                 const uint64_t *random, cudaStream_t stream)
{
    const gpunn_kernel_launch &launch = KERNELS.launch[kernel][direction];
    gpunn_kernel_call          call = {};
    call.data = data;
    call.accumulate = accumulate;
    call.half = half;
    call.batch = batch;
    call.random_streams = random_streams;
    call.random = random;
    const char *multiprocessors = getenv("EMULATOR_MULTIPROCESSORS");
    call.multiprocessors = multiprocessors ? atoi(multiprocessors) : 2;
    std::vector<unsigned> counters(GPUNN_KERNEL_COUNTERS);
    call.counters = counters.data();
    call.stream = stream;
    size_t bytes = launch.workspace(batch, call.multiprocessors);
    call.workspace = malloc(bytes);
    memset(call.workspace, 0xFF, bytes);
    cudaGraph_t     graph;
    cudaGraphExec_t exec;
    bool            captured = getenv("CAPTURE") != NULL;
    if (captured) (void)cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    int result = launch.run(&call);
    if (captured && cudaStreamEndCapture(stream, &graph) + cudaGraphInstantiate(&exec, graph, 0) +
                            cudaGraphLaunch(exec, stream) ==
                        cudaSuccess)
        (void)(cudaGraphDestroy(graph) + cudaGraphExecDestroy(exec));
    (void)cudaStreamSynchronize(stream);
    free(call.workspace);
    for (unsigned counter : counters)
        if (counter != 0) return 1002;
    return result;
}

static int update(int64_t which, int64_t count, void **data, cudaStream_t stream)
{
    gpunn_update u = {};
    u.count = count;
    u.gradient_limit = ((const float *)data[1])[0];
    u.setting[((const int *)data[1])[1]] = ((const float *)data[1])[2];
    u.parameter = (float *)data[2];
    u.gradient = (const float *)data[3];
    for (int i = 0; i < 3; i++) u.state[i] = (float *)data[4 + i];
    u.half = data[7];
    return KERNELS.update[which](&u, (const gpunn_update_numbers *)data[0], stream);
}

int main(void)
{
    cudaStream_t stream;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 2;
    for (int64_t kernel; take(&kernel, sizeof kernel);) {
        int64_t               direction = number(), batch = number(), result;
        uint64_t              random[2] = {(uint64_t)number(), (uint64_t)number()};
        std::vector<uint32_t> random_streams((size_t)number());
        for (uint32_t &random_stream : random_streams) random_stream = (uint32_t)number();
        std::vector<operand>       operands((size_t)number());
        std::vector<void *>        data, half;
        std::vector<unsigned char> accumulate;
        for (operand &one : operands) {
            accumulate.push_back((unsigned char)number());
            one.bytes = number();
            one.half_bytes = number();
            int64_t offset = number();
            one.block = one.data = one.half_block = one.half = NULL;
            if (one.bytes >= 0) {
                one.block = (char *)malloc((size_t)(offset + one.bytes)); /* at a multiple of 16 */
                one.data = one.block + offset;
                if (!take(one.data, (size_t)one.bytes)) return 2;
            }
            if (one.half_bytes >= 0) {
                one.half_block = (char *)malloc((size_t)(offset + one.half_bytes));
                one.half = one.half_block + offset;
            }
            data.push_back(one.data);
            half.push_back(one.half);
        }
        result = direction == 3 ? update(kernel, batch, data.data(), stream)
                                : group(kernel, direction, batch, data.data(), accumulate.data(), half.data(),
                                        random_streams.data(), random, stream);
        if (cudaStreamSynchronize(stream) != cudaSuccess) result = 1000;
        if (emulator_faults()) result = 1001;
        give(&result, sizeof result);
        for (operand &one : operands) {
            if (one.bytes >= 0) give(one.data, (size_t)one.bytes);
            if (one.half_bytes >= 0) give(one.half, (size_t)one.half_bytes);
            free(one.block);
            free(one.half_block);
        }
    }
    return cudaStreamDestroy(stream) == cudaSuccess ? 0 : 2;
}
