/* cifar10_kernels.cu - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.1, templates a9785fb6116f
 * spec sha256 f4d67ba069e420a2298823f907f2e6dd291294fc98a1fd9de083ba27d7ff5933
 * renew it with: python3 -m generator examples/kernels/cifar10.json -o examples/kernels/cifar10
 */
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#define CIFAR10_KERNELS_CUDA
#include "cifar10_kernels.h"
#if CIFAR10_KERNELS_STAMP != 0x85f9d2e4cf0c9ad6ull
#error "cifar10_kernels.h and cifar10_kernels.cu were not written together; renew both with the command in their first lines"
#endif

#ifndef GPUNN__LAUNCH_ON
#define GPUNN__LAUNCH_ON(stream, kernel, blocks, threads, ...) \
    kernel<<<(blocks), (threads), 0, (cudaStream_t)(stream)>>>(__VA_ARGS__)
#endif

/* What the kernels are made of. Tensors are read and written by packs of V neighbouring elements, which move in one access of
 * 128 bits where V elements are as long, and are numbered by i. The kernels' orders of summation are fixed. */
namespace cifar10_cuda {

const size_t MOST = 0xF0000000u; /* packs that an unsigned counts with room for a last step beyond them */

struct bf16 {
    unsigned short bits;
};
struct f16 {
    unsigned short bits;
};
struct boolean {
    unsigned char byte;
};

__device__ __forceinline__ float number(float x)
{
    return x;
}
__device__ __forceinline__ float number(bf16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}
__device__ __forceinline__ float number(f16 x)
{
    return __half2float(__ushort_as_half(x.bits));
}
__device__ __forceinline__ float number(boolean x)
{
    return x.byte != 0 ? 1.0f : 0.0f;
}
template <typename T> __device__ __forceinline__ float number(T integer)
{
    return (float)integer;
}

/* As it lies in memory, held in registers until its numbers are needed. */
template <int V, typename T> struct pack {
    alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) T element[V];
    __device__ __forceinline__ float operator[](int j) const
    {
        return number(element[j]);
    }
};

template <int V> struct numbers {
    float element[V];
    __device__ __forceinline__ float &operator[](int j)
    {
        return element[j];
    }
    __device__ __forceinline__ float operator[](int j) const
    {
        return element[j];
    }
};

template <int V> __device__ __forceinline__ numbers<V> same(float x)
{
    numbers<V> n;
#pragma unroll
    for (int j = 0; j < V; j++) n[j] = x;
    return n;
}

template <int V, typename T, typename I> __device__ __forceinline__ pack<V, T> load(const T *data, I i)
{
    return *(const pack<V, T> *)(data + (size_t)i * V);
}

/* N packs at once. */
template <int V, typename T, typename I, int N>
__device__ __forceinline__ void load_each(pack<V, T> (&p)[N], const T *data, const I (&i)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) p[k] = load<V>(data, i[k]);
}

/* Two numbers, each to the nearest, ties to even. */
__device__ __forceinline__ void put(float *to, float x, float y)
{
    to[0] = x;
    to[1] = y;
}
__device__ __forceinline__ void put(bf16 *to, float x, float y)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
#else
    unsigned low = __float_as_uint(x), high = __float_as_uint(y), both;
    low = x != x ? 0x7FFFu : (low + 0x7FFFu + (low >> 16 & 1)) >> 16;
    high = y != y ? 0x7FFF0000u : high + 0x7FFFu + (high >> 16 & 1);
    both = low | (high & 0xFFFF0000u);
#endif
    to[0].bits = (unsigned short)both;
    to[1].bits = (unsigned short)(both >> 16);
}
__device__ __forceinline__ void put(f16 *to, float x, float y)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    to[0].bits = (unsigned short)both;
    to[1].bits = (unsigned short)(both >> 16);
#else
    to[0].bits = __half_as_ushort(__float2half_rn(x));
    to[1].bits = __half_as_ushort(__float2half_rn(y));
#endif
}

template <int V, typename T, typename I> __device__ __forceinline__ void store(T *data, I i, numbers<V> n)
{
    pack<V, T> p;
    T          two[2];
#pragma unroll
    for (int j = 0; j < V; j += 2) {
        put(two, n[j], V > 1 ? n[j + 1] : 0);
        p.element[j] = two[0];
        if (V > 1) p.element[j + 1] = two[1];
    }
    *(pack<V, T> *)(data + (size_t)i * V) = p;
}

/* n, or where `add` says so, old + n. */
template <int V, typename T> __device__ __forceinline__ numbers<V> plus_if(bool add, const numbers<V> &n, const pack<V, T> &old)
{
    numbers<V> sum;
#pragma unroll
    for (int j = 0; j < V; j++) sum[j] = add ? old[j] + n[j] : n[j];
    return sum;
}

template <typename T> __device__ __forceinline__ void store_one(bool add, T *data, size_t i, float x)
{
    store<1>(data, i, same<1>(add ? number(data[i]) + x : x));
}

struct sum {
    static __device__ __forceinline__ float start()
    {
        return 0;
    }
    __device__ __forceinline__ float operator()(float a, float b) const
    {
        return a + b;
    }
};
struct larger { /* NaN wins */
    static __device__ __forceinline__ float start()
    {
        return -INFINITY;
    }
    __device__ __forceinline__ float operator()(float a, float b) const
    {
        return a != a || a > b ? a : b;
    }
};

/* Over teams of TEAM neighbouring threads: 1, 2, 4 .. 32, or whole warps, TEAMS of which are the block. All threads call it, and get
 * the result. */
template <int TEAM, int TEAMS = 1, typename Op> __device__ __forceinline__ float reduce(float value, Op op)
{
#pragma unroll
    for (int distance = (TEAM < 32 ? TEAM : 32) / 2; distance > 0; distance /= 2)
        value = op(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
    if (TEAM <= 32) return value;
    __shared__ float part[32];
    __syncthreads(); /* of an earlier call: everybody has read part */
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    const unsigned first = TEAMS > 1 ? threadIdx.x / TEAM * (TEAM / 32) : 0;
    float          result = part[first];
    for (int warp = 1; warp < TEAM / 32; warp++) result = op(result, part[first + warp]);
    return result;
}

/* Whether this block is the last of `count` to come here; then it sees what the others wrote before. counter is 0 before the first
 * block and after the last. */
__device__ __forceinline__ bool is_last_block(unsigned *counter, unsigned count)
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

/* The sum of one of `sums` numbers that every block has left. */
template <int THREADS> __device__ __forceinline__ float total_of(const float *scalars, unsigned sums, unsigned blocks)
{
    float total = 0;
    for (unsigned block = threadIdx.x; block < blocks; block += THREADS) total += scalars[(size_t)block * sums];
    return reduce<THREADS>(total, sum());
}

/* ---- on the host ---- */
inline bool aligned(const void *data, size_t bytes)
{
    return (uintptr_t)data % bytes == 0;
}

inline size_t at_least(size_t count, size_t each)
{
    return (count + each - 1) / each;
}

inline size_t larger_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

inline size_t clamped(size_t wanted, size_t most) /* from 1 on */
{
    return wanted < 1 || most < 1 ? 1 : wanted < most ? wanted : most;
}

inline size_t area(size_t floats) /* in bytes; what follows is aligned again */
{
    return (floats * sizeof(float) + 255) / 256 * 256;
}

/* cifar10_g0_forward_0: t24 = cross_entropy(fc3, label); reads 1 and writes 0 bytes for each element. */
struct cifar10_g0_forward_0_kernel_operands {
    const uint8_t *label;
    const float *grad_t24;
    float *stat0;
    float *stat1;
    float *scalars; /* [block][sum] */
    unsigned *counters;
};

/* Packs first, first + step, ... : U of them, all loads before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void cifar10_g0_forward_0_kernel_at(const cifar10_g0_forward_0_kernel_operands &o, I first, I step, I packs, float *sums)
{
    if (first >= packs) return;
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    pack<V, uint8_t> in_label[U];
    load_each(in_label, o.label, at);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
#pragma unroll
        for (int j = 0; j < V; j++) {
            float add0;
            cifar10_g0_forward_0(in_label[u][j], &add0);
            sums[0] += add0;
        }
    }
}

template <int V>
static __global__ void __launch_bounds__(256) cifar10_g0_forward_0_kernel(const cifar10_g0_forward_0_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 2;
    float sums[1] = {};
    for (unsigned first = blockIdx.x * tile + threadIdx.x; first < packs; first += gridDim.x * tile)
        cifar10_g0_forward_0_kernel_at<V, 2, unsigned>(o, first, 256, packs, sums);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        cifar10_g0_forward_0_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX, sums);
#pragma unroll
    for (int s = 0; s < 1; s++) {
        const float total = reduce<256>(sums[s], sum());
        if (threadIdx.x == 0) o.scalars[(size_t)blockIdx.x * 1 + s] = total;
    }
    if (is_last_block(o.counters, gridDim.x)) {
        const float total0 = total_of<256>(o.scalars + 0, 1, gridDim.x);
        for (unsigned place = threadIdx.x; place < 1; place += 256) {
            float out_stat0, out_stat1;
            const float in_grad_t24 = number(o.grad_t24[0]);
            cifar10_g0_forward_0_final(total0, in_grad_t24, &out_stat0, &out_stat1);
            store_one(false, o.stat0, place, out_stat0);
            store_one(false, o.stat1, place, out_stat1);
        }
    }
}
/* The same by each block of the launch that needs it, where the elements are few. */
template <int THREADS>
__device__ __forceinline__ void cifar10_g0_forward_0_kernel_alone(const cifar10_g0_forward_0_kernel_operands &o, unsigned elements, float &out_stat0, float &out_stat1)
{
    float sums[1] = {};
    for (unsigned at = threadIdx.x; at < elements; at += THREADS) cifar10_g0_forward_0_kernel_at<1, 1, unsigned>(o, at, 0, elements, sums);
    const float total0 = reduce<THREADS>(sums[0], sum());
    const float in_grad_t24 = number(o.grad_t24[0]);
    cifar10_g0_forward_0_final(total0, in_grad_t24, &out_stat0, &out_stat1);
}

/* cifar10_g0_forward_1: t24 = cross_entropy(fc3, label); reads 4 and writes 4 bytes for each element. */
struct cifar10_g0_forward_1_kernel_operands {
    const uint8_t *label_2;
    const float *fc3;
    const float *stat1;
    const float *stat0;
    float *grad_fc3;
    float *t24;
    bool add_grad_fc3;
    float *scalars; /* [block][sum] */
    unsigned *counters;
    cifar10_g0_forward_0_kernel_operands ahead;
    unsigned ahead_count; /* 0: its results are there */
};

/* Rows of 10 elements: each is held in the registers of 8 threads. */
template <int V> static __global__ void __launch_bounds__(256) cifar10_g0_forward_1_kernel(const cifar10_g0_forward_1_kernel_operands o, unsigned rows)
{
    const unsigned PACKS = 10 / V, TEAM = 8, TEAMS = 256 / TEAM;
    enum { K = (PACKS + TEAM - 1) / TEAM };
    const unsigned thread = threadIdx.x % TEAM, team = threadIdx.x / TEAM;
    float in_stat0, in_stat1;
    if (o.ahead_count > 0)
        cifar10_g0_forward_0_kernel_alone<256>(o.ahead, o.ahead_count, in_stat0, in_stat1);
    else {
        in_stat0 = number(o.stat0[0]);
        in_stat1 = number(o.stat1[0]);
    }
    float sum0 = 0;
    for (unsigned first = blockIdx.x * TEAMS; first < rows; first += gridDim.x * TEAMS) {
        const bool     live = first + team < rows;
        const unsigned row = live ? first + team : rows - 1;
        const int64_t at_label_2 = (int64_t)o.label_2[row];
        const float in_label_2 = number(o.label_2[row]);
        size_t at[K];
#pragma unroll
        for (int k = 0; k < K; k++) at[k] = (size_t)row * PACKS + min(thread + (unsigned)k * TEAM, PACKS - 1);
        pack<V, float> in_fc3[K];
        load_each(in_fc3, o.fc3, at);
        pack<V, float> old_grad_fc3[K] = {};
        if (o.add_grad_fc3) load_each(old_grad_fc3, o.grad_fc3, at);
        float row0, row1, row2;
        cifar10_g0_forward_1_row0(in_label_2, &row0, &row1, &row2);
        float reduced0 = larger::start();
        #pragma unroll
        for (int k = 0; k < K; k++) {
            const unsigned column = thread + (unsigned)k * TEAM;
            if (column >= PACKS) break;
            #pragma unroll
            for (int j = 0; j < V; j++) {
                float part0;
                cifar10_g0_forward_1_stage1(in_fc3[k][j], &part0);
                reduced0 = larger()(reduced0, part0);
            }
        }
        reduced0 = reduce<8>(reduced0, larger());
        float reduced1 = sum::start();
        float reduced2 = sum::start();
        #pragma unroll
        for (int k = 0; k < K; k++) {
            const unsigned column = thread + (unsigned)k * TEAM;
            if (column >= PACKS) break;
            #pragma unroll
            for (int j = 0; j < V; j++) {
                float part1, part2;
                cifar10_g0_forward_1_stage2(in_fc3[k][j], reduced0, at_label_2 == (int64_t)column * V + j ? 1.0f : 0.0f, &part1, &part2);
                reduced1 = sum()(reduced1, part1);
                reduced2 = sum()(reduced2, part2);
            }
        }
        reduced1 = reduce<8>(reduced1, sum());
        reduced2 = reduce<8>(reduced2, sum());
        float row3, add0;
        cifar10_g0_forward_1_row2(in_stat1, reduced1, row0, row1, row2, reduced2, &row3, &add0);
        if (thread == 0 && live) {
            sum0 += add0;
        }
        if (live) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                const unsigned column = thread + (unsigned)k * TEAM;
                const size_t i = (size_t)row * PACKS + column;
                if (column >= PACKS) break;
                numbers<V> out_grad_fc3;
#pragma unroll
                for (int j = 0; j < V; j++) {
                    cifar10_g0_forward_1(row0, row1, row2, at_label_2 == (int64_t)column * V + j ? 1.0f : 0.0f, in_fc3[k][j], reduced0, row3,
                                         in_stat1, &out_grad_fc3[j]);
                }
                if (o.grad_fc3) store(o.grad_fc3, i, plus_if(o.add_grad_fc3, out_grad_fc3, old_grad_fc3[k]));
            }
        }
    }
    sum0 = reduce<256>(sum0, sum());
    if (threadIdx.x == 0) o.scalars[(size_t)blockIdx.x * 1 + 0] = sum0;
    if (is_last_block(o.counters, gridDim.x)) {
        const float total0 = total_of<256>(o.scalars + 0, 1, gridDim.x);
        for (unsigned place = threadIdx.x; place < 1; place += 256) {
            float out_t24;
            cifar10_g0_forward_1_final(total0, in_stat0, &out_t24);
            store_one(false, o.t24, place, out_t24);
        }
    }
}

/* g0, forward: t24 = cross_entropy(fc3, label) */
static int cifar10_g0_forward(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    const int multiprocessors = call->multiprocessors;
    char *const workspace = (char *)call->workspace;
    const size_t at_stat0 = 0;
    const size_t at_stat1 = at_stat0 + area((size_t)1);
    const size_t partials = at_stat1 + area((size_t)1);
    cifar10_g0_forward_0_kernel_operands ahead = {};
    const size_t ahead_count = (size_t)batch;
    const bool alone = ahead_count <= 4096;
    {
        const size_t n = (size_t)batch;
        cifar10_g0_forward_0_kernel_operands &o = ahead;
        o.label = (const uint8_t *)call->data[1];
        o.grad_t24 = (const float *)call->data[5];
        o.stat0 = (float *)(workspace + at_stat0);
        o.stat1 = (float *)(workspace + at_stat1);
        if (!alone) {
            const bool wide = aligned(o.label, 8);
            if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
            const unsigned blocks = (unsigned)clamped(at_least(n, 4096), (size_t)multiprocessors * 8);
            o.scalars = (float *)(workspace + partials);
            o.counters = call->counters;
            const size_t packs = wide ? n / 8 : n;
            if (wide)
                GPUNN__LAUNCH_ON(call->stream, cifar10_g0_forward_0_kernel<8>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 8));
            else
                GPUNN__LAUNCH_ON(call->stream, cifar10_g0_forward_0_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
        }
    }
    {
        const size_t n = (size_t)batch * 10;
        cifar10_g0_forward_1_kernel_operands o = {};
        o.label_2 = (const uint8_t *)call->data[2];
        o.fc3 = (const float *)call->data[0];
        o.stat1 = (const float *)(workspace + at_stat1);
        o.stat0 = (const float *)(workspace + at_stat0);
        o.grad_fc3 = (float *)call->data[4];
        o.t24 = (float *)call->data[3];
        o.add_grad_fc3 = o.grad_fc3 && call->accumulate[4] != 0;
        o.ahead = ahead;
        o.ahead_count = alone ? (unsigned)ahead_count : 0;
        const bool wide = aligned(o.fc3, 8) && aligned(o.grad_fc3, 8);
        const unsigned blocks = (unsigned)clamped(at_least(n / 10, 32), (size_t)multiprocessors * 4);
        o.scalars = (float *)(workspace + partials);
        o.counters = call->counters;
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, cifar10_g0_forward_1_kernel<2>, blocks, 256, o, (unsigned)(n / 10));
        else
            GPUNN__LAUNCH_ON(call->stream, cifar10_g0_forward_1_kernel<1>, blocks, 256, o, (unsigned)(n / 10));
    }
    return -(int)cudaGetLastError();
}

static size_t cifar10_g0_forward_workspace(int64_t batch, int multiprocessors)
{
    const size_t at_stat0 = 0;
    const size_t at_stat1 = at_stat0 + area((size_t)1);
    const size_t partials = at_stat1 + area((size_t)1);
    size_t most = 0; /* of any of the launches */
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch;
        if (n / 8 > MOST) return SIZE_MAX;
        const unsigned blocks = (unsigned)clamped(at_least(n, 4096), (size_t)multiprocessors * 8);
        most = larger_of(most, area((size_t)blocks * 1));
    }
    {
        const size_t n = (size_t)batch * 10;
        if (n / 10 > MOST) return SIZE_MAX;
        const unsigned blocks = (unsigned)clamped(at_least(n / 10, 32), (size_t)multiprocessors * 4);
        most = larger_of(most, area((size_t)blocks * 1));
    }
    return partials + most;
}

/* sgd: torch.optim's formulas, as >>update in gpunn_cuda.cu has them. */
template <int V>
__device__ __forceinline__ void cifar10_update0_at(const gpunn_update &u, const gpunn_update_numbers &n, float limit, size_t i)
{
    const pack<V, float> in_parameter = load<V>(u.parameter, i), in_gradient = load<V>(u.gradient, i);
    const pack<V, float> in_m = load<V>(u.state[0], i);
    numbers<V> parameter;
    numbers<V> m;
#pragma unroll
    for (int j = 0; j < V; j++) {
        float p = in_parameter[j], g = in_gradient[j] * n.scale;
        g = g > limit ? limit : g < -limit ? -limit : g;
        g += u.weight_decay * p;
        m[j] = n.first ? g : 0.9f * in_m[j] + 1 * g;
        g = m[j];
        p -= n.rate * g;
        parameter[j] = p;
    }
    store(u.parameter, i, parameter);
    store(u.state[0], i, m);
}

template <int V>
static __global__ void __launch_bounds__(256)
    cifar10_update0_kernel(const gpunn_update u, const gpunn_update_numbers *in_memory)
{
    const gpunn_update_numbers n = *in_memory;
    const float                limit = u.gradient_limit > 0 ? u.gradient_limit : INFINITY;
    const size_t               i = blockIdx.x * (size_t)256 + threadIdx.x, packs = (size_t)u.count / V;
    if (!n.go) return;
    if (i < packs) cifar10_update0_at<V>(u, n, limit, i);
    if (V > 1 && i < (size_t)u.count % V) cifar10_update0_at<1>(u, n, limit, packs * V + i);
}

static int cifar10_update0(const gpunn_update *u, const gpunn_update_numbers *in_memory, void *stream)
{
    const bool wide = aligned(u->parameter, 16) && aligned(u->gradient, 16) && aligned(u->state[0], 16);
    const unsigned blocks = (unsigned)at_least((size_t)u->count, wide ? 1024 : 256);
    if (wide)
        GPUNN__LAUNCH_ON(stream, cifar10_update0_kernel<4>, blocks, 256, *u, in_memory);
    else
        GPUNN__LAUNCH_ON(stream, cifar10_update0_kernel<1>, blocks, 256, *u, in_memory);
    return -(int)cudaGetLastError();
}

static const gpunn_kernel_launch cifar10_launches[][GPUNN_KERNEL_DIRECTIONS] = {
    {{NULL, NULL}, {cifar10_g0_forward, cifar10_g0_forward_workspace}, {NULL, NULL}},
};
static const gpunn_kernel_update_launch cifar10_updates[] = {
    cifar10_update0,
};

} // namespace cifar10_cuda

extern "C" const gpunn_kernel_cuda cifar10_kernels_cuda = {
    GPUNN_KERNELS_ABI,
    CIFAR10_KERNELS_STAMP,
    cifar10_cuda::cifar10_launches,
    cifar10_cuda::cifar10_updates,
};
