/* fashion_mnist_deep_kernels.cu - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.1, templates a9785fb6116f
 * spec sha256 f8f54a05be877c22a8c4c2494bdec66f3e43956e5d613102e611bfd4fff81448
 * renew it with: python3 -m generator examples/kernels/fashion_mnist_deep.json -o examples/kernels/fashion_mnist_deep
 */
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#define FASHION_MNIST_DEEP_KERNELS_CUDA
#include "fashion_mnist_deep_kernels.h"
#if FASHION_MNIST_DEEP_KERNELS_STAMP != 0x309fffab6ad44227ull
#error "fashion_mnist_deep_kernels.h and fashion_mnist_deep_kernels.cu were not written together; renew both with the command in their first lines"
#endif

#ifndef GPUNN__LAUNCH_ON
#define GPUNN__LAUNCH_ON(stream, kernel, blocks, threads, ...) \
    kernel<<<(blocks), (threads), 0, (cudaStream_t)(stream)>>>(__VA_ARGS__)
#endif

/* What the kernels are made of. Tensors are read and written by packs of V neighbouring elements, which move in one access of
 * 128 bits where V elements are as long, and are numbered by i. The kernels' orders of summation are fixed. */
namespace fashion_mnist_deep_cuda {

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

template <int V, typename T> __device__ __forceinline__ numbers<V> numbers_of(const pack<V, T> &p)
{
    numbers<V> n;
#pragma unroll
    for (int j = 0; j < V; j++) n[j] = p[j];
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

/* Of a smaller tensor: STRIDE * (e / DIV % MOD) for the elements e of pack i; MOD 0 is none. */
template <int V, uint64_t DIV, uint64_t MOD, uint64_t STRIDE = 1, typename T, typename I>
__device__ __forceinline__ numbers<V> narrow(const T *data, I i)
{
    if constexpr (DIV % V == 0) {
        I at = i / (I)(DIV / V);
        if constexpr (MOD > 0) at %= (I)MOD;
        return same<V>(number(data[(size_t)at * STRIDE]));
    } else if constexpr (DIV == 1 && STRIDE == 1 && MOD > 0 && MOD % V == 0)
        return numbers_of<V>(load<V>(data, i % (I)(MOD / V)));
    else {
        numbers<V> n;
#pragma unroll
        for (int j = 0; j < V; j++) {
            size_t at = ((size_t)i * V + j) / DIV;
            if constexpr (MOD > 0) at %= MOD;
            n[j] = number(data[at * STRIDE]);
        }
        return n;
    }
}

template <uint64_t DIV, uint64_t MOD, uint64_t STRIDE, int V, typename T, typename I, int N>
__device__ __forceinline__ void narrow_each(numbers<V> (&n)[N], const T *data, const I (&i)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) n[k] = narrow<V, DIV, MOD, STRIDE>(data, i[k]);
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

/* The sums of `count` slices, which begin `step` floats apart, in the place of the first one. */
template <int THREADS, unsigned FLOATS> __device__ __forceinline__ void add_slices(float *slice, size_t step, unsigned count)
{
    const int V = FLOATS % 4 == 0 ? 4 : 1;
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < FLOATS / V; i += THREADS) {
        numbers<V> total = {};
#pragma unroll 6
        for (unsigned k = 0; k < count; k++) {
            const pack<V, float> part = load<V>(slice + k * step, i);
#pragma unroll
            for (int j = 0; j < V; j++) total[j] += part[j];
        }
        store(slice, i, total);
    }
}

/* Called by the blocks when they have left their sums in partial[slice][FLOATS]: `beside` of them in each slice. The last block of a
 * group of slices adds these up, and the last of all the groups: true for that one, which finds the totals in the first slice. */
template <int THREADS, unsigned FLOATS>
__device__ __noinline__ bool gathered(float *partial, unsigned slice, unsigned slices, unsigned beside, unsigned *counters)
{
    const unsigned group = (unsigned)ceilf(sqrtf((float)slices)), first = slice / group * group;
    const unsigned members = min(group, slices - first), groups = (slices + group - 1) / group;
    if (!is_last_block(counters + 1 + slice / group, members * beside)) return false;
    add_slices<THREADS, FLOATS>(partial + (size_t)first * FLOATS, FLOATS, members);
    if (!is_last_block(counters, groups)) return false;
    add_slices<THREADS, FLOATS>(partial, (size_t)group * FLOATS, groups);
    __syncthreads();
    return true;
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

/* fashion_mnist_deep_g0_forward_0: t10 = relu(batch_norm(conv1, bn1_weight, bn1_bias, bn1_running_mean, bn1_running_var)); reads
 * 4 and writes 0 bytes for each element. */
struct fashion_mnist_deep_g0_forward_0_kernel_operands {
    const float *conv1;
    const float *conv1_2;
    float *bn1_running_mean;
    float *bn1_running_var;
    float *kept0;
    float *kept1;
    float count0;
    float *partial; /* [slice][sum][32] */
    unsigned *counters;
};

/* Sums over all planes of 784 elements that belong to the same of 32 channels: blockIdx.x. Its packs go round the
 * blocks of all blockIdx.y, whose sums are the slices. */
template <int V> static __global__ void __launch_bounds__(256) fashion_mnist_deep_g0_forward_0_kernel(const fashion_mnist_deep_g0_forward_0_kernel_operands o, unsigned images)
{
    const unsigned PACKS = 784 / V, channel = blockIdx.x, packs = images * PACKS;
    const float in_conv1_2 = number(o.conv1_2[(size_t)(channel) * 784]);
    float sum0 = 0;
    float sum1 = 0;
#pragma unroll 2
    for (unsigned at = blockIdx.y * 256 + threadIdx.x; at < packs; at += gridDim.y * 256) {
        const unsigned i = (at / PACKS * 32 + channel) * PACKS + at % PACKS;
        const pack<V, float> in_conv1 = load<V>(o.conv1, i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float add0, add1;
            fashion_mnist_deep_g0_forward_0(in_conv1[j], in_conv1_2, &add0, &add1);
            sum0 += add0;
            sum1 += add1;
        }
    }
    sum0 = reduce<256>(sum0, sum());
    if (threadIdx.x == 0) o.partial[((size_t)blockIdx.y * 2 + 0) * 32 + channel] = sum0;
    sum1 = reduce<256>(sum1, sum());
    if (threadIdx.x == 0) o.partial[((size_t)blockIdx.y * 2 + 1) * 32 + channel] = sum1;
    if (gathered<256, 64>(o.partial, blockIdx.y, gridDim.y, gridDim.x, o.counters)) {
        for (unsigned place = threadIdx.x; place < 32; place += 256) {
            const float total0 = o.partial[0 + place];
            const float total1 = o.partial[32 + place];
            float out_kept0, out_kept1, out_bn1_running_mean, out_bn1_running_var;
            const float in_conv1_2 = number(o.conv1_2[(size_t)(place) * 784]);
            const float in_bn1_running_mean = number(o.bn1_running_mean[place]);
            const float in_bn1_running_var = number(o.bn1_running_var[place]);
            fashion_mnist_deep_g0_forward_0_final(total0, o.count0, in_conv1_2, total1, in_bn1_running_mean, in_bn1_running_var, &out_kept0,
                                                  &out_kept1, &out_bn1_running_mean, &out_bn1_running_var);
            store_one(false, o.kept0, place, out_kept0);
            store_one(false, o.kept1, place, out_kept1);
            store_one(false, o.bn1_running_mean, place, out_bn1_running_mean);
            store_one(false, o.bn1_running_var, place, out_bn1_running_var);
        }
    }
}

/* fashion_mnist_deep_g0_forward_1: t10 = relu(batch_norm(conv1, bn1_weight, bn1_bias, bn1_running_mean, bn1_running_var)); reads
 * 4 and writes 4 bytes for each element. */
struct fashion_mnist_deep_g0_forward_1_kernel_operands {
    const float *bn1_bias;
    const float *bn1_weight;
    const float *kept1;
    const float *conv1;
    const float *kept0;
    float *t10;
};

/* Packs first, first + step, ... : U of them, all loads before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void fashion_mnist_deep_g0_forward_1_kernel_at(const fashion_mnist_deep_g0_forward_1_kernel_operands &o, I first, I step, I packs)
{
    if (first >= packs) return;
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    numbers<V> in_bn1_bias[U];
    narrow_each<784, 32, 1>(in_bn1_bias, o.bn1_bias, at);
    numbers<V> in_bn1_weight[U];
    narrow_each<784, 32, 1>(in_bn1_weight, o.bn1_weight, at);
    numbers<V> in_kept1[U];
    narrow_each<784, 32, 1>(in_kept1, o.kept1, at);
    pack<V, float> in_conv1[U];
    load_each(in_conv1, o.conv1, at);
    numbers<V> in_kept0[U];
    narrow_each<784, 32, 1>(in_kept0, o.kept0, at);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
        numbers<V> out_t10;
#pragma unroll
        for (int j = 0; j < V; j++) {
            fashion_mnist_deep_g0_forward_1(in_bn1_bias[u][j], in_bn1_weight[u][j], in_kept1[u][j], in_conv1[u][j], in_kept0[u][j],
                                            &out_t10[j]);
        }
        store(o.t10, i, out_t10);
    }
}

template <int V>
static __global__ void __launch_bounds__(256) fashion_mnist_deep_g0_forward_1_kernel(const fashion_mnist_deep_g0_forward_1_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 2;
    fashion_mnist_deep_g0_forward_1_kernel_at<V, 2, unsigned>(o, blockIdx.x * tile + threadIdx.x, 256, packs);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        fashion_mnist_deep_g0_forward_1_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX);
}

/* g0, forward: t10 = relu(batch_norm(conv1, bn1_weight, bn1_bias, bn1_running_mean, bn1_running_var)) */
static int fashion_mnist_deep_g0_forward(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    const int multiprocessors = call->multiprocessors;
    char *const workspace = (char *)call->workspace;
    const size_t partials = 0;
    {
        const size_t n = (size_t)batch * 25088;
        fashion_mnist_deep_g0_forward_0_kernel_operands o = {};
        o.conv1 = (const float *)call->data[0];
        o.conv1_2 = (const float *)call->data[1];
        o.bn1_running_mean = (float *)call->data[4];
        o.bn1_running_var = (float *)call->data[5];
        o.kept0 = (float *)call->data[7];
        o.kept1 = (float *)call->data[8];
        o.count0 = (float)((size_t)batch * 784);
        const bool wide = aligned(o.conv1, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const unsigned slices = (unsigned)clamped(at_least(n / 25088 * 196, 256), at_least((size_t)multiprocessors * 8, 32));
        o.partial = (float *)(workspace + partials);
        o.counters = call->counters;
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g0_forward_0_kernel<4>, dim3(32, slices), 256, o, (unsigned)(n / 25088));
        else
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g0_forward_0_kernel<1>, dim3(32, slices), 256, o, (unsigned)(n / 25088));
    }
    {
        const size_t n = (size_t)batch * 25088;
        fashion_mnist_deep_g0_forward_1_kernel_operands o = {};
        o.bn1_bias = (const float *)call->data[3];
        o.bn1_weight = (const float *)call->data[2];
        o.kept1 = (const float *)call->data[8];
        o.conv1 = (const float *)call->data[0];
        o.kept0 = (const float *)call->data[7];
        o.t10 = (float *)call->data[6];
        const bool wide = aligned(o.conv1, 16) && aligned(o.t10, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const size_t packs = wide ? n / 4 : n;
        const unsigned blocks = (unsigned)clamped(at_least(packs, 512), MOST);
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g0_forward_1_kernel<4>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 4));
        else
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g0_forward_1_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
    }
    return -(int)cudaGetLastError();
}

static size_t fashion_mnist_deep_g0_forward_workspace(int64_t batch, int multiprocessors)
{
    const size_t partials = 0;
    size_t most = 0; /* of any of the launches */
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch * 25088;
        if (n / 4 > MOST) return SIZE_MAX;
        const unsigned slices = (unsigned)clamped(at_least(n / 25088 * 196, 256), at_least((size_t)multiprocessors * 8, 32));
        most = larger_of(most, area((size_t)slices * 64));
    }
    {
        const size_t n = (size_t)batch * 25088;
        if (n / 4 > MOST) return SIZE_MAX;
    }
    return partials + most;
}

/* fashion_mnist_deep_g0_backward_0: t10 = relu(batch_norm(conv1, bn1_weight, bn1_bias, bn1_running_mean, bn1_running_var));
 * reads 8 and writes 0 bytes for each element. */
struct fashion_mnist_deep_g0_backward_0_kernel_operands {
    const float *bn1_bias;
    const float *conv1;
    const float *kept0;
    const float *bn1_weight;
    const float *kept1;
    const float *grad_t10;
    float *stat0;
    float *stat1;
    float *grad_bn1_weight;
    float *grad_bn1_bias;
    bool add_grad_bn1_weight;
    bool add_grad_bn1_bias;
    float count0;
    float *partial; /* [slice][sum][32] */
    unsigned *counters;
};

/* Sums over all planes of 784 elements that belong to the same of 32 channels: blockIdx.x. Its packs go round the
 * blocks of all blockIdx.y, whose sums are the slices. */
template <int V> static __global__ void __launch_bounds__(256) fashion_mnist_deep_g0_backward_0_kernel(const fashion_mnist_deep_g0_backward_0_kernel_operands o, unsigned images)
{
    const unsigned PACKS = 784 / V, channel = blockIdx.x, packs = images * PACKS;
    const float in_bn1_bias = number(o.bn1_bias[channel]);
    const float in_kept0 = number(o.kept0[channel]);
    const float in_bn1_weight = number(o.bn1_weight[channel]);
    const float in_kept1 = number(o.kept1[channel]);
    float sum0 = 0;
    float sum1 = 0;
#pragma unroll 2
    for (unsigned at = blockIdx.y * 256 + threadIdx.x; at < packs; at += gridDim.y * 256) {
        const unsigned i = (at / PACKS * 32 + channel) * PACKS + at % PACKS;
        const pack<V, float> in_conv1 = load<V>(o.conv1, i);
        const pack<V, float> in_grad_t10 = load<V>(o.grad_t10, i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float add0, add1;
            fashion_mnist_deep_g0_backward_0(in_bn1_bias, in_conv1[j], in_kept0, in_bn1_weight, in_kept1, in_grad_t10[j], &add0, &add1);
            sum0 += add0;
            sum1 += add1;
        }
    }
    sum0 = reduce<256>(sum0, sum());
    if (threadIdx.x == 0) o.partial[((size_t)blockIdx.y * 2 + 0) * 32 + channel] = sum0;
    sum1 = reduce<256>(sum1, sum());
    if (threadIdx.x == 0) o.partial[((size_t)blockIdx.y * 2 + 1) * 32 + channel] = sum1;
    if (gathered<256, 64>(o.partial, blockIdx.y, gridDim.y, gridDim.x, o.counters)) {
        for (unsigned place = threadIdx.x; place < 32; place += 256) {
            const float total0 = o.partial[0 + place];
            const float total1 = o.partial[32 + place];
            float out_stat0, out_stat1, out_grad_bn1_weight, out_grad_bn1_bias;
            const float in_kept1 = number(o.kept1[place]);
            fashion_mnist_deep_g0_backward_0_final(total0, o.count0, total1, in_kept1, &out_stat0, &out_stat1, &out_grad_bn1_weight,
                                                   &out_grad_bn1_bias);
            store_one(false, o.stat0, place, out_stat0);
            store_one(false, o.stat1, place, out_stat1);
            if (o.grad_bn1_weight) store_one(o.add_grad_bn1_weight, o.grad_bn1_weight, place, out_grad_bn1_weight);
            if (o.grad_bn1_bias) store_one(o.add_grad_bn1_bias, o.grad_bn1_bias, place, out_grad_bn1_bias);
        }
    }
}

/* fashion_mnist_deep_g0_backward_1: t10 = relu(batch_norm(conv1, bn1_weight, bn1_bias, bn1_running_mean, bn1_running_var));
 * reads 8 and writes 4 bytes for each element. */
struct fashion_mnist_deep_g0_backward_1_kernel_operands {
    const float *bn1_weight;
    const float *kept1;
    const float *bn1_bias;
    const float *conv1;
    const float *kept0;
    const float *grad_t10;
    const float *stat0;
    const float *stat1;
    float *grad_conv1;
    bool add_grad_conv1;
};

/* Packs first, first + step, ... : U of them, all loads before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void fashion_mnist_deep_g0_backward_1_kernel_at(const fashion_mnist_deep_g0_backward_1_kernel_operands &o, I first, I step, I packs)
{
    if (first >= packs) return;
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    numbers<V> in_bn1_weight[U];
    narrow_each<784, 32, 1>(in_bn1_weight, o.bn1_weight, at);
    numbers<V> in_kept1[U];
    narrow_each<784, 32, 1>(in_kept1, o.kept1, at);
    numbers<V> in_bn1_bias[U];
    narrow_each<784, 32, 1>(in_bn1_bias, o.bn1_bias, at);
    pack<V, float> in_conv1[U];
    load_each(in_conv1, o.conv1, at);
    numbers<V> in_kept0[U];
    narrow_each<784, 32, 1>(in_kept0, o.kept0, at);
    pack<V, float> in_grad_t10[U];
    load_each(in_grad_t10, o.grad_t10, at);
    numbers<V> in_stat0[U];
    narrow_each<784, 32, 1>(in_stat0, o.stat0, at);
    numbers<V> in_stat1[U];
    narrow_each<784, 32, 1>(in_stat1, o.stat1, at);
    pack<V, float> old_grad_conv1[U] = {};
    if (o.add_grad_conv1) load_each(old_grad_conv1, o.grad_conv1, at);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
        numbers<V> out_grad_conv1;
#pragma unroll
        for (int j = 0; j < V; j++) {
            fashion_mnist_deep_g0_backward_1(in_bn1_weight[u][j], in_kept1[u][j], in_bn1_bias[u][j], in_conv1[u][j], in_kept0[u][j],
                                             in_grad_t10[u][j], in_stat0[u][j], in_stat1[u][j], &out_grad_conv1[j]);
        }
        if (o.grad_conv1) store(o.grad_conv1, i, plus_if(o.add_grad_conv1, out_grad_conv1, old_grad_conv1[u]));
    }
}

template <int V>
static __global__ void __launch_bounds__(256) fashion_mnist_deep_g0_backward_1_kernel(const fashion_mnist_deep_g0_backward_1_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 1;
    fashion_mnist_deep_g0_backward_1_kernel_at<V, 1, unsigned>(o, blockIdx.x * tile + threadIdx.x, 256, packs);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        fashion_mnist_deep_g0_backward_1_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX);
}

/* g0, backward: t10 = relu(batch_norm(conv1, bn1_weight, bn1_bias, bn1_running_mean, bn1_running_var)) */
static int fashion_mnist_deep_g0_backward(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    const int multiprocessors = call->multiprocessors;
    char *const workspace = (char *)call->workspace;
    const size_t at_stat0 = 0;
    const size_t at_stat1 = at_stat0 + area((size_t)32);
    const size_t partials = at_stat1 + area((size_t)32);
    {
        const size_t n = (size_t)batch * 25088;
        fashion_mnist_deep_g0_backward_0_kernel_operands o = {};
        o.bn1_bias = (const float *)call->data[2];
        o.conv1 = (const float *)call->data[0];
        o.kept0 = (const float *)call->data[7];
        o.bn1_weight = (const float *)call->data[1];
        o.kept1 = (const float *)call->data[8];
        o.grad_t10 = (const float *)call->data[6];
        o.stat0 = (float *)(workspace + at_stat0);
        o.stat1 = (float *)(workspace + at_stat1);
        o.grad_bn1_weight = (float *)call->data[4];
        o.grad_bn1_bias = (float *)call->data[5];
        o.add_grad_bn1_weight = o.grad_bn1_weight && call->accumulate[4] != 0;
        o.add_grad_bn1_bias = o.grad_bn1_bias && call->accumulate[5] != 0;
        o.count0 = (float)((size_t)batch * 784);
        const bool wide = aligned(o.conv1, 16) && aligned(o.grad_t10, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const unsigned slices = (unsigned)clamped(at_least(n / 25088 * 196, 256), at_least((size_t)multiprocessors * 8, 32));
        o.partial = (float *)(workspace + partials);
        o.counters = call->counters;
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g0_backward_0_kernel<4>, dim3(32, slices), 256, o, (unsigned)(n / 25088));
        else
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g0_backward_0_kernel<1>, dim3(32, slices), 256, o, (unsigned)(n / 25088));
    }
    {
        const size_t n = (size_t)batch * 25088;
        fashion_mnist_deep_g0_backward_1_kernel_operands o = {};
        o.bn1_weight = (const float *)call->data[1];
        o.kept1 = (const float *)call->data[8];
        o.bn1_bias = (const float *)call->data[2];
        o.conv1 = (const float *)call->data[0];
        o.kept0 = (const float *)call->data[7];
        o.grad_t10 = (const float *)call->data[6];
        o.stat0 = (const float *)(workspace + at_stat0);
        o.stat1 = (const float *)(workspace + at_stat1);
        o.grad_conv1 = (float *)call->data[3];
        o.add_grad_conv1 = o.grad_conv1 && call->accumulate[3] != 0;
        const bool wide = aligned(o.conv1, 16) && aligned(o.grad_t10, 16) && aligned(o.grad_conv1, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const size_t packs = wide ? n / 4 : n;
        const unsigned blocks = (unsigned)clamped(at_least(packs, 256), MOST);
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g0_backward_1_kernel<4>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 4));
        else
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g0_backward_1_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
    }
    return -(int)cudaGetLastError();
}

static size_t fashion_mnist_deep_g0_backward_workspace(int64_t batch, int multiprocessors)
{
    const size_t at_stat0 = 0;
    const size_t at_stat1 = at_stat0 + area((size_t)32);
    const size_t partials = at_stat1 + area((size_t)32);
    size_t most = 0; /* of any of the launches */
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch * 25088;
        if (n / 4 > MOST) return SIZE_MAX;
        const unsigned slices = (unsigned)clamped(at_least(n / 25088 * 196, 256), at_least((size_t)multiprocessors * 8, 32));
        most = larger_of(most, area((size_t)slices * 64));
    }
    {
        const size_t n = (size_t)batch * 25088;
        if (n / 4 > MOST) return SIZE_MAX;
    }
    return partials + most;
}

/* fashion_mnist_deep_g1_forward_0: t20 = relu(batch_norm(conv2, bn2_weight, bn2_bias, bn2_running_mean, bn2_running_var)); reads
 * 4 and writes 0 bytes for each element. */
struct fashion_mnist_deep_g1_forward_0_kernel_operands {
    const float *conv2;
    const float *conv2_2;
    float *bn2_running_mean;
    float *bn2_running_var;
    float *kept0;
    float *kept1;
    float count0;
    float *partial; /* [slice][sum][64] */
    unsigned *counters;
};

/* Sums over all planes of 196 elements that belong to the same of 64 channels: blockIdx.x. Its packs go round the
 * blocks of all blockIdx.y, whose sums are the slices. */
template <int V> static __global__ void __launch_bounds__(256) fashion_mnist_deep_g1_forward_0_kernel(const fashion_mnist_deep_g1_forward_0_kernel_operands o, unsigned images)
{
    const unsigned PACKS = 196 / V, channel = blockIdx.x, packs = images * PACKS;
    const float in_conv2_2 = number(o.conv2_2[(size_t)(channel) * 196]);
    float sum0 = 0;
    float sum1 = 0;
#pragma unroll 2
    for (unsigned at = blockIdx.y * 256 + threadIdx.x; at < packs; at += gridDim.y * 256) {
        const unsigned i = (at / PACKS * 64 + channel) * PACKS + at % PACKS;
        const pack<V, float> in_conv2 = load<V>(o.conv2, i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float add0, add1;
            fashion_mnist_deep_g1_forward_0(in_conv2[j], in_conv2_2, &add0, &add1);
            sum0 += add0;
            sum1 += add1;
        }
    }
    sum0 = reduce<256>(sum0, sum());
    if (threadIdx.x == 0) o.partial[((size_t)blockIdx.y * 2 + 0) * 64 + channel] = sum0;
    sum1 = reduce<256>(sum1, sum());
    if (threadIdx.x == 0) o.partial[((size_t)blockIdx.y * 2 + 1) * 64 + channel] = sum1;
    if (gathered<256, 128>(o.partial, blockIdx.y, gridDim.y, gridDim.x, o.counters)) {
        for (unsigned place = threadIdx.x; place < 64; place += 256) {
            const float total0 = o.partial[0 + place];
            const float total1 = o.partial[64 + place];
            float out_kept0, out_kept1, out_bn2_running_mean, out_bn2_running_var;
            const float in_conv2_2 = number(o.conv2_2[(size_t)(place) * 196]);
            const float in_bn2_running_mean = number(o.bn2_running_mean[place]);
            const float in_bn2_running_var = number(o.bn2_running_var[place]);
            fashion_mnist_deep_g1_forward_0_final(total0, o.count0, in_conv2_2, total1, in_bn2_running_mean, in_bn2_running_var, &out_kept0,
                                                  &out_kept1, &out_bn2_running_mean, &out_bn2_running_var);
            store_one(false, o.kept0, place, out_kept0);
            store_one(false, o.kept1, place, out_kept1);
            store_one(false, o.bn2_running_mean, place, out_bn2_running_mean);
            store_one(false, o.bn2_running_var, place, out_bn2_running_var);
        }
    }
}

/* fashion_mnist_deep_g1_forward_1: t20 = relu(batch_norm(conv2, bn2_weight, bn2_bias, bn2_running_mean, bn2_running_var)); reads
 * 4 and writes 4 bytes for each element. */
struct fashion_mnist_deep_g1_forward_1_kernel_operands {
    const float *bn2_bias;
    const float *bn2_weight;
    const float *kept1;
    const float *conv2;
    const float *kept0;
    float *t20;
};

/* Packs first, first + step, ... : U of them, all loads before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void fashion_mnist_deep_g1_forward_1_kernel_at(const fashion_mnist_deep_g1_forward_1_kernel_operands &o, I first, I step, I packs)
{
    if (first >= packs) return;
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    numbers<V> in_bn2_bias[U];
    narrow_each<196, 64, 1>(in_bn2_bias, o.bn2_bias, at);
    numbers<V> in_bn2_weight[U];
    narrow_each<196, 64, 1>(in_bn2_weight, o.bn2_weight, at);
    numbers<V> in_kept1[U];
    narrow_each<196, 64, 1>(in_kept1, o.kept1, at);
    pack<V, float> in_conv2[U];
    load_each(in_conv2, o.conv2, at);
    numbers<V> in_kept0[U];
    narrow_each<196, 64, 1>(in_kept0, o.kept0, at);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
        numbers<V> out_t20;
#pragma unroll
        for (int j = 0; j < V; j++) {
            fashion_mnist_deep_g1_forward_1(in_bn2_bias[u][j], in_bn2_weight[u][j], in_kept1[u][j], in_conv2[u][j], in_kept0[u][j],
                                            &out_t20[j]);
        }
        store(o.t20, i, out_t20);
    }
}

template <int V>
static __global__ void __launch_bounds__(256) fashion_mnist_deep_g1_forward_1_kernel(const fashion_mnist_deep_g1_forward_1_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 2;
    fashion_mnist_deep_g1_forward_1_kernel_at<V, 2, unsigned>(o, blockIdx.x * tile + threadIdx.x, 256, packs);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        fashion_mnist_deep_g1_forward_1_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX);
}

/* g1, forward: t20 = relu(batch_norm(conv2, bn2_weight, bn2_bias, bn2_running_mean, bn2_running_var)) */
static int fashion_mnist_deep_g1_forward(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    const int multiprocessors = call->multiprocessors;
    char *const workspace = (char *)call->workspace;
    const size_t partials = 0;
    {
        const size_t n = (size_t)batch * 12544;
        fashion_mnist_deep_g1_forward_0_kernel_operands o = {};
        o.conv2 = (const float *)call->data[0];
        o.conv2_2 = (const float *)call->data[1];
        o.bn2_running_mean = (float *)call->data[4];
        o.bn2_running_var = (float *)call->data[5];
        o.kept0 = (float *)call->data[7];
        o.kept1 = (float *)call->data[8];
        o.count0 = (float)((size_t)batch * 196);
        const bool wide = aligned(o.conv2, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const unsigned slices = (unsigned)clamped(at_least(n / 12544 * 49, 256), at_least((size_t)multiprocessors * 8, 64));
        o.partial = (float *)(workspace + partials);
        o.counters = call->counters;
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g1_forward_0_kernel<4>, dim3(64, slices), 256, o, (unsigned)(n / 12544));
        else
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g1_forward_0_kernel<1>, dim3(64, slices), 256, o, (unsigned)(n / 12544));
    }
    {
        const size_t n = (size_t)batch * 12544;
        fashion_mnist_deep_g1_forward_1_kernel_operands o = {};
        o.bn2_bias = (const float *)call->data[3];
        o.bn2_weight = (const float *)call->data[2];
        o.kept1 = (const float *)call->data[8];
        o.conv2 = (const float *)call->data[0];
        o.kept0 = (const float *)call->data[7];
        o.t20 = (float *)call->data[6];
        const bool wide = aligned(o.conv2, 16) && aligned(o.t20, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const size_t packs = wide ? n / 4 : n;
        const unsigned blocks = (unsigned)clamped(at_least(packs, 512), MOST);
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g1_forward_1_kernel<4>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 4));
        else
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g1_forward_1_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
    }
    return -(int)cudaGetLastError();
}

static size_t fashion_mnist_deep_g1_forward_workspace(int64_t batch, int multiprocessors)
{
    const size_t partials = 0;
    size_t most = 0; /* of any of the launches */
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch * 12544;
        if (n / 4 > MOST) return SIZE_MAX;
        const unsigned slices = (unsigned)clamped(at_least(n / 12544 * 49, 256), at_least((size_t)multiprocessors * 8, 64));
        most = larger_of(most, area((size_t)slices * 128));
    }
    {
        const size_t n = (size_t)batch * 12544;
        if (n / 4 > MOST) return SIZE_MAX;
    }
    return partials + most;
}

/* fashion_mnist_deep_g1_backward_0: t20 = relu(batch_norm(conv2, bn2_weight, bn2_bias, bn2_running_mean, bn2_running_var));
 * reads 8 and writes 0 bytes for each element. */
struct fashion_mnist_deep_g1_backward_0_kernel_operands {
    const float *bn2_bias;
    const float *conv2;
    const float *kept0;
    const float *bn2_weight;
    const float *kept1;
    const float *grad_t20;
    float *stat0;
    float *stat1;
    float *grad_bn2_weight;
    float *grad_bn2_bias;
    bool add_grad_bn2_weight;
    bool add_grad_bn2_bias;
    float count0;
    float *partial; /* [slice][sum][64] */
    unsigned *counters;
};

/* Sums over all planes of 196 elements that belong to the same of 64 channels: blockIdx.x. Its packs go round the
 * blocks of all blockIdx.y, whose sums are the slices. */
template <int V> static __global__ void __launch_bounds__(256) fashion_mnist_deep_g1_backward_0_kernel(const fashion_mnist_deep_g1_backward_0_kernel_operands o, unsigned images)
{
    const unsigned PACKS = 196 / V, channel = blockIdx.x, packs = images * PACKS;
    const float in_bn2_bias = number(o.bn2_bias[channel]);
    const float in_kept0 = number(o.kept0[channel]);
    const float in_bn2_weight = number(o.bn2_weight[channel]);
    const float in_kept1 = number(o.kept1[channel]);
    float sum0 = 0;
    float sum1 = 0;
#pragma unroll 2
    for (unsigned at = blockIdx.y * 256 + threadIdx.x; at < packs; at += gridDim.y * 256) {
        const unsigned i = (at / PACKS * 64 + channel) * PACKS + at % PACKS;
        const pack<V, float> in_conv2 = load<V>(o.conv2, i);
        const pack<V, float> in_grad_t20 = load<V>(o.grad_t20, i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float add0, add1;
            fashion_mnist_deep_g1_backward_0(in_bn2_bias, in_conv2[j], in_kept0, in_bn2_weight, in_kept1, in_grad_t20[j], &add0, &add1);
            sum0 += add0;
            sum1 += add1;
        }
    }
    sum0 = reduce<256>(sum0, sum());
    if (threadIdx.x == 0) o.partial[((size_t)blockIdx.y * 2 + 0) * 64 + channel] = sum0;
    sum1 = reduce<256>(sum1, sum());
    if (threadIdx.x == 0) o.partial[((size_t)blockIdx.y * 2 + 1) * 64 + channel] = sum1;
    if (gathered<256, 128>(o.partial, blockIdx.y, gridDim.y, gridDim.x, o.counters)) {
        for (unsigned place = threadIdx.x; place < 64; place += 256) {
            const float total0 = o.partial[0 + place];
            const float total1 = o.partial[64 + place];
            float out_stat0, out_stat1, out_grad_bn2_weight, out_grad_bn2_bias;
            const float in_kept1 = number(o.kept1[place]);
            fashion_mnist_deep_g1_backward_0_final(total0, o.count0, total1, in_kept1, &out_stat0, &out_stat1, &out_grad_bn2_weight,
                                                   &out_grad_bn2_bias);
            store_one(false, o.stat0, place, out_stat0);
            store_one(false, o.stat1, place, out_stat1);
            if (o.grad_bn2_weight) store_one(o.add_grad_bn2_weight, o.grad_bn2_weight, place, out_grad_bn2_weight);
            if (o.grad_bn2_bias) store_one(o.add_grad_bn2_bias, o.grad_bn2_bias, place, out_grad_bn2_bias);
        }
    }
}

/* fashion_mnist_deep_g1_backward_1: t20 = relu(batch_norm(conv2, bn2_weight, bn2_bias, bn2_running_mean, bn2_running_var));
 * reads 8 and writes 4 bytes for each element. */
struct fashion_mnist_deep_g1_backward_1_kernel_operands {
    const float *bn2_weight;
    const float *kept1;
    const float *bn2_bias;
    const float *conv2;
    const float *kept0;
    const float *grad_t20;
    const float *stat0;
    const float *stat1;
    float *grad_conv2;
    bool add_grad_conv2;
};

/* Packs first, first + step, ... : U of them, all loads before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void fashion_mnist_deep_g1_backward_1_kernel_at(const fashion_mnist_deep_g1_backward_1_kernel_operands &o, I first, I step, I packs)
{
    if (first >= packs) return;
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    numbers<V> in_bn2_weight[U];
    narrow_each<196, 64, 1>(in_bn2_weight, o.bn2_weight, at);
    numbers<V> in_kept1[U];
    narrow_each<196, 64, 1>(in_kept1, o.kept1, at);
    numbers<V> in_bn2_bias[U];
    narrow_each<196, 64, 1>(in_bn2_bias, o.bn2_bias, at);
    pack<V, float> in_conv2[U];
    load_each(in_conv2, o.conv2, at);
    numbers<V> in_kept0[U];
    narrow_each<196, 64, 1>(in_kept0, o.kept0, at);
    pack<V, float> in_grad_t20[U];
    load_each(in_grad_t20, o.grad_t20, at);
    numbers<V> in_stat0[U];
    narrow_each<196, 64, 1>(in_stat0, o.stat0, at);
    numbers<V> in_stat1[U];
    narrow_each<196, 64, 1>(in_stat1, o.stat1, at);
    pack<V, float> old_grad_conv2[U] = {};
    if (o.add_grad_conv2) load_each(old_grad_conv2, o.grad_conv2, at);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
        numbers<V> out_grad_conv2;
#pragma unroll
        for (int j = 0; j < V; j++) {
            fashion_mnist_deep_g1_backward_1(in_bn2_weight[u][j], in_kept1[u][j], in_bn2_bias[u][j], in_conv2[u][j], in_kept0[u][j],
                                             in_grad_t20[u][j], in_stat0[u][j], in_stat1[u][j], &out_grad_conv2[j]);
        }
        if (o.grad_conv2) store(o.grad_conv2, i, plus_if(o.add_grad_conv2, out_grad_conv2, old_grad_conv2[u]));
    }
}

template <int V>
static __global__ void __launch_bounds__(256) fashion_mnist_deep_g1_backward_1_kernel(const fashion_mnist_deep_g1_backward_1_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 1;
    fashion_mnist_deep_g1_backward_1_kernel_at<V, 1, unsigned>(o, blockIdx.x * tile + threadIdx.x, 256, packs);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        fashion_mnist_deep_g1_backward_1_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX);
}

/* g1, backward: t20 = relu(batch_norm(conv2, bn2_weight, bn2_bias, bn2_running_mean, bn2_running_var)) */
static int fashion_mnist_deep_g1_backward(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    const int multiprocessors = call->multiprocessors;
    char *const workspace = (char *)call->workspace;
    const size_t at_stat0 = 0;
    const size_t at_stat1 = at_stat0 + area((size_t)64);
    const size_t partials = at_stat1 + area((size_t)64);
    {
        const size_t n = (size_t)batch * 12544;
        fashion_mnist_deep_g1_backward_0_kernel_operands o = {};
        o.bn2_bias = (const float *)call->data[2];
        o.conv2 = (const float *)call->data[0];
        o.kept0 = (const float *)call->data[7];
        o.bn2_weight = (const float *)call->data[1];
        o.kept1 = (const float *)call->data[8];
        o.grad_t20 = (const float *)call->data[6];
        o.stat0 = (float *)(workspace + at_stat0);
        o.stat1 = (float *)(workspace + at_stat1);
        o.grad_bn2_weight = (float *)call->data[4];
        o.grad_bn2_bias = (float *)call->data[5];
        o.add_grad_bn2_weight = o.grad_bn2_weight && call->accumulate[4] != 0;
        o.add_grad_bn2_bias = o.grad_bn2_bias && call->accumulate[5] != 0;
        o.count0 = (float)((size_t)batch * 196);
        const bool wide = aligned(o.conv2, 16) && aligned(o.grad_t20, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const unsigned slices = (unsigned)clamped(at_least(n / 12544 * 49, 256), at_least((size_t)multiprocessors * 8, 64));
        o.partial = (float *)(workspace + partials);
        o.counters = call->counters;
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g1_backward_0_kernel<4>, dim3(64, slices), 256, o, (unsigned)(n / 12544));
        else
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g1_backward_0_kernel<1>, dim3(64, slices), 256, o, (unsigned)(n / 12544));
    }
    {
        const size_t n = (size_t)batch * 12544;
        fashion_mnist_deep_g1_backward_1_kernel_operands o = {};
        o.bn2_weight = (const float *)call->data[1];
        o.kept1 = (const float *)call->data[8];
        o.bn2_bias = (const float *)call->data[2];
        o.conv2 = (const float *)call->data[0];
        o.kept0 = (const float *)call->data[7];
        o.grad_t20 = (const float *)call->data[6];
        o.stat0 = (const float *)(workspace + at_stat0);
        o.stat1 = (const float *)(workspace + at_stat1);
        o.grad_conv2 = (float *)call->data[3];
        o.add_grad_conv2 = o.grad_conv2 && call->accumulate[3] != 0;
        const bool wide = aligned(o.conv2, 16) && aligned(o.grad_t20, 16) && aligned(o.grad_conv2, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const size_t packs = wide ? n / 4 : n;
        const unsigned blocks = (unsigned)clamped(at_least(packs, 256), MOST);
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g1_backward_1_kernel<4>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 4));
        else
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g1_backward_1_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
    }
    return -(int)cudaGetLastError();
}

static size_t fashion_mnist_deep_g1_backward_workspace(int64_t batch, int multiprocessors)
{
    const size_t at_stat0 = 0;
    const size_t at_stat1 = at_stat0 + area((size_t)64);
    const size_t partials = at_stat1 + area((size_t)64);
    size_t most = 0; /* of any of the launches */
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch * 12544;
        if (n / 4 > MOST) return SIZE_MAX;
        const unsigned slices = (unsigned)clamped(at_least(n / 12544 * 49, 256), at_least((size_t)multiprocessors * 8, 64));
        most = larger_of(most, area((size_t)slices * 128));
    }
    {
        const size_t n = (size_t)batch * 12544;
        if (n / 4 > MOST) return SIZE_MAX;
    }
    return partials + most;
}

/* fashion_mnist_deep_g2_forward_0: t32 = cross_entropy(fc, label); reads 1 and writes 0 bytes for each element. */
struct fashion_mnist_deep_g2_forward_0_kernel_operands {
    const uint8_t *label;
    const float *grad_t32;
    float *stat0;
    float *stat1;
    float *scalars; /* [block][sum] */
    unsigned *counters;
};

/* Packs first, first + step, ... : U of them, all loads before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void fashion_mnist_deep_g2_forward_0_kernel_at(const fashion_mnist_deep_g2_forward_0_kernel_operands &o, I first, I step, I packs, float *sums)
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
            fashion_mnist_deep_g2_forward_0(in_label[u][j], &add0);
            sums[0] += add0;
        }
    }
}

template <int V>
static __global__ void __launch_bounds__(256) fashion_mnist_deep_g2_forward_0_kernel(const fashion_mnist_deep_g2_forward_0_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 2;
    float sums[1] = {};
    for (unsigned first = blockIdx.x * tile + threadIdx.x; first < packs; first += gridDim.x * tile)
        fashion_mnist_deep_g2_forward_0_kernel_at<V, 2, unsigned>(o, first, 256, packs, sums);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        fashion_mnist_deep_g2_forward_0_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX, sums);
#pragma unroll
    for (int s = 0; s < 1; s++) {
        const float total = reduce<256>(sums[s], sum());
        if (threadIdx.x == 0) o.scalars[(size_t)blockIdx.x * 1 + s] = total;
    }
    if (is_last_block(o.counters, gridDim.x)) {
        const float total0 = total_of<256>(o.scalars + 0, 1, gridDim.x);
        for (unsigned place = threadIdx.x; place < 1; place += 256) {
            float out_stat0, out_stat1;
            const float in_grad_t32 = number(o.grad_t32[0]);
            fashion_mnist_deep_g2_forward_0_final(total0, in_grad_t32, &out_stat0, &out_stat1);
            store_one(false, o.stat0, place, out_stat0);
            store_one(false, o.stat1, place, out_stat1);
        }
    }
}
/* The same by each block of the launch that needs it, where the elements are few. */
template <int THREADS>
__device__ __forceinline__ void fashion_mnist_deep_g2_forward_0_kernel_alone(const fashion_mnist_deep_g2_forward_0_kernel_operands &o, unsigned elements, float &out_stat0, float &out_stat1)
{
    float sums[1] = {};
    for (unsigned at = threadIdx.x; at < elements; at += THREADS) fashion_mnist_deep_g2_forward_0_kernel_at<1, 1, unsigned>(o, at, 0, elements, sums);
    const float total0 = reduce<THREADS>(sums[0], sum());
    const float in_grad_t32 = number(o.grad_t32[0]);
    fashion_mnist_deep_g2_forward_0_final(total0, in_grad_t32, &out_stat0, &out_stat1);
}

/* fashion_mnist_deep_g2_forward_1: t32 = cross_entropy(fc, label); reads 4 and writes 4 bytes for each element. */
struct fashion_mnist_deep_g2_forward_1_kernel_operands {
    const uint8_t *label_2;
    const float *fc;
    const float *stat1;
    const float *stat0;
    float *grad_fc;
    float *t32;
    bool add_grad_fc;
    float *scalars; /* [block][sum] */
    unsigned *counters;
    fashion_mnist_deep_g2_forward_0_kernel_operands ahead;
    unsigned ahead_count; /* 0: its results are there */
};

/* Rows of 10 elements: each is held in the registers of 8 threads. */
template <int V> static __global__ void __launch_bounds__(256) fashion_mnist_deep_g2_forward_1_kernel(const fashion_mnist_deep_g2_forward_1_kernel_operands o, unsigned rows)
{
    const unsigned PACKS = 10 / V, TEAM = 8, TEAMS = 256 / TEAM;
    enum { K = (PACKS + TEAM - 1) / TEAM };
    const unsigned thread = threadIdx.x % TEAM, team = threadIdx.x / TEAM;
    float in_stat0, in_stat1;
    if (o.ahead_count > 0)
        fashion_mnist_deep_g2_forward_0_kernel_alone<256>(o.ahead, o.ahead_count, in_stat0, in_stat1);
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
        pack<V, float> in_fc[K];
        load_each(in_fc, o.fc, at);
        pack<V, float> old_grad_fc[K] = {};
        if (o.add_grad_fc) load_each(old_grad_fc, o.grad_fc, at);
        float row0, row1, row2;
        fashion_mnist_deep_g2_forward_1_row0(in_label_2, &row0, &row1, &row2);
        float reduced0 = larger::start();
        #pragma unroll
        for (int k = 0; k < K; k++) {
            const unsigned column = thread + (unsigned)k * TEAM;
            if (column >= PACKS) break;
            #pragma unroll
            for (int j = 0; j < V; j++) {
                float part0;
                fashion_mnist_deep_g2_forward_1_stage1(in_fc[k][j], &part0);
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
                fashion_mnist_deep_g2_forward_1_stage2(in_fc[k][j], reduced0, at_label_2 == (int64_t)column * V + j ? 1.0f : 0.0f, &part1,
                                                       &part2);
                reduced1 = sum()(reduced1, part1);
                reduced2 = sum()(reduced2, part2);
            }
        }
        reduced1 = reduce<8>(reduced1, sum());
        reduced2 = reduce<8>(reduced2, sum());
        float row3, add0;
        fashion_mnist_deep_g2_forward_1_row2(in_stat1, reduced1, row0, row1, row2, reduced2, &row3, &add0);
        if (thread == 0 && live) {
            sum0 += add0;
        }
        if (live) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                const unsigned column = thread + (unsigned)k * TEAM;
                const size_t i = (size_t)row * PACKS + column;
                if (column >= PACKS) break;
                numbers<V> out_grad_fc;
#pragma unroll
                for (int j = 0; j < V; j++) {
                    fashion_mnist_deep_g2_forward_1(row0, row1, row2, at_label_2 == (int64_t)column * V + j ? 1.0f : 0.0f, in_fc[k][j], reduced0,
                                                    row3, in_stat1, &out_grad_fc[j]);
                }
                if (o.grad_fc) store(o.grad_fc, i, plus_if(o.add_grad_fc, out_grad_fc, old_grad_fc[k]));
            }
        }
    }
    sum0 = reduce<256>(sum0, sum());
    if (threadIdx.x == 0) o.scalars[(size_t)blockIdx.x * 1 + 0] = sum0;
    if (is_last_block(o.counters, gridDim.x)) {
        const float total0 = total_of<256>(o.scalars + 0, 1, gridDim.x);
        for (unsigned place = threadIdx.x; place < 1; place += 256) {
            float out_t32;
            fashion_mnist_deep_g2_forward_1_final(total0, in_stat0, &out_t32);
            store_one(false, o.t32, place, out_t32);
        }
    }
}

/* g2, forward: t32 = cross_entropy(fc, label) */
static int fashion_mnist_deep_g2_forward(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    const int multiprocessors = call->multiprocessors;
    char *const workspace = (char *)call->workspace;
    const size_t at_stat0 = 0;
    const size_t at_stat1 = at_stat0 + area((size_t)1);
    const size_t partials = at_stat1 + area((size_t)1);
    fashion_mnist_deep_g2_forward_0_kernel_operands ahead = {};
    const size_t ahead_count = (size_t)batch;
    const bool alone = ahead_count <= 4096;
    {
        const size_t n = (size_t)batch;
        fashion_mnist_deep_g2_forward_0_kernel_operands &o = ahead;
        o.label = (const uint8_t *)call->data[1];
        o.grad_t32 = (const float *)call->data[5];
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
                GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g2_forward_0_kernel<8>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 8));
            else
                GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g2_forward_0_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
        }
    }
    {
        const size_t n = (size_t)batch * 10;
        fashion_mnist_deep_g2_forward_1_kernel_operands o = {};
        o.label_2 = (const uint8_t *)call->data[2];
        o.fc = (const float *)call->data[0];
        o.stat1 = (const float *)(workspace + at_stat1);
        o.stat0 = (const float *)(workspace + at_stat0);
        o.grad_fc = (float *)call->data[4];
        o.t32 = (float *)call->data[3];
        o.add_grad_fc = o.grad_fc && call->accumulate[4] != 0;
        o.ahead = ahead;
        o.ahead_count = alone ? (unsigned)ahead_count : 0;
        const bool wide = aligned(o.fc, 8) && aligned(o.grad_fc, 8);
        const unsigned blocks = (unsigned)clamped(at_least(n / 10, 32), (size_t)multiprocessors * 4);
        o.scalars = (float *)(workspace + partials);
        o.counters = call->counters;
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g2_forward_1_kernel<2>, blocks, 256, o, (unsigned)(n / 10));
        else
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g2_forward_1_kernel<1>, blocks, 256, o, (unsigned)(n / 10));
    }
    return -(int)cudaGetLastError();
}

static size_t fashion_mnist_deep_g2_forward_workspace(int64_t batch, int multiprocessors)
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

/* fashion_mnist_deep_g3_evaluation_0: t36 = eq(cast(t33), cast(label)); reads 9 and writes 4 bytes for each element. */
struct fashion_mnist_deep_g3_evaluation_0_kernel_operands {
    const int64_t *t33;
    const uint8_t *label;
    float *t36;
};

/* Packs first, first + step, ... : U of them, all loads before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void fashion_mnist_deep_g3_evaluation_0_kernel_at(const fashion_mnist_deep_g3_evaluation_0_kernel_operands &o, I first, I step, I packs)
{
    if (first >= packs) return;
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    pack<V, int64_t> in_t33[U];
    load_each(in_t33, o.t33, at);
    pack<V, uint8_t> in_label[U];
    load_each(in_label, o.label, at);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
        numbers<V> out_t36;
#pragma unroll
        for (int j = 0; j < V; j++) {
            fashion_mnist_deep_g3_evaluation_0(in_t33[u][j], in_label[u][j], &out_t36[j]);
        }
        store(o.t36, i, out_t36);
    }
}

template <int V>
static __global__ void __launch_bounds__(256) fashion_mnist_deep_g3_evaluation_0_kernel(const fashion_mnist_deep_g3_evaluation_0_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 1;
    fashion_mnist_deep_g3_evaluation_0_kernel_at<V, 1, unsigned>(o, blockIdx.x * tile + threadIdx.x, 256, packs);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        fashion_mnist_deep_g3_evaluation_0_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX);
}

/* g3, evaluation: t36 = eq(cast(t33), cast(label)) */
static int fashion_mnist_deep_g3_evaluation(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    {
        const size_t n = (size_t)batch;
        fashion_mnist_deep_g3_evaluation_0_kernel_operands o = {};
        o.t33 = (const int64_t *)call->data[0];
        o.label = (const uint8_t *)call->data[1];
        o.t36 = (float *)call->data[2];
        const bool wide = aligned(o.t33, 16) && aligned(o.label, 8) && aligned(o.t36, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const size_t packs = wide ? n / 8 : n;
        const unsigned blocks = (unsigned)clamped(at_least(packs, 256), MOST);
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g3_evaluation_0_kernel<8>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 8));
        else
            GPUNN__LAUNCH_ON(call->stream, fashion_mnist_deep_g3_evaluation_0_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
    }
    return -(int)cudaGetLastError();
}

static size_t fashion_mnist_deep_g3_evaluation_workspace(int64_t batch, int multiprocessors)
{
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch;
        if (n / 8 > MOST) return SIZE_MAX;
    }
    return 0;
}

/* adam: torch.optim's formulas, as >>update in gpunn_cuda.cu has them. */
template <int V>
__device__ __forceinline__ void fashion_mnist_deep_update0_at(const gpunn_update &u, const gpunn_update_numbers &n, float limit, size_t i)
{
    const pack<V, float> in_parameter = load<V>(u.parameter, i), in_gradient = load<V>(u.gradient, i);
    const pack<V, float> in_m = load<V>(u.state[0], i);
    const pack<V, float> in_v = load<V>(u.state[1], i);
    numbers<V> parameter;
    numbers<V> m, v;
#pragma unroll
    for (int j = 0; j < V; j++) {
        float p = in_parameter[j], g = in_gradient[j] * n.scale;
        g = g > limit ? limit : g < -limit ? -limit : g;
        g += u.weight_decay * p;
        m[j] = 0.9f * in_m[j] + 0.1f * g;
        v[j] = 0.999f * in_v[j] + 0.001f * g * g;
        p = p - n.rate * (m[j] / (sqrtf(v[j]) * n.root_scale + 1e-08f));
        parameter[j] = p;
    }
    store(u.parameter, i, parameter);
    store(u.state[0], i, m);
    store(u.state[1], i, v);
}

template <int V>
static __global__ void __launch_bounds__(256)
    fashion_mnist_deep_update0_kernel(const gpunn_update u, const gpunn_update_numbers *in_memory)
{
    const gpunn_update_numbers n = *in_memory;
    const float                limit = u.gradient_limit > 0 ? u.gradient_limit : INFINITY;
    const size_t               i = blockIdx.x * (size_t)256 + threadIdx.x, packs = (size_t)u.count / V;
    if (!n.go) return;
    if (i < packs) fashion_mnist_deep_update0_at<V>(u, n, limit, i);
    if (V > 1 && i < (size_t)u.count % V) fashion_mnist_deep_update0_at<1>(u, n, limit, packs * V + i);
}

static int fashion_mnist_deep_update0(const gpunn_update *u, const gpunn_update_numbers *in_memory, void *stream)
{
    const bool wide = aligned(u->parameter, 16) && aligned(u->gradient, 16) && aligned(u->state[0], 16) && aligned(u->state[1], 16);
    const unsigned blocks = (unsigned)at_least((size_t)u->count, wide ? 1024 : 256);
    if (wide)
        GPUNN__LAUNCH_ON(stream, fashion_mnist_deep_update0_kernel<4>, blocks, 256, *u, in_memory);
    else
        GPUNN__LAUNCH_ON(stream, fashion_mnist_deep_update0_kernel<1>, blocks, 256, *u, in_memory);
    return -(int)cudaGetLastError();
}

static const gpunn_kernel_launch fashion_mnist_deep_launches[][GPUNN_KERNEL_DIRECTIONS] = {
    {{NULL, NULL}, {fashion_mnist_deep_g0_forward, fashion_mnist_deep_g0_forward_workspace}, {fashion_mnist_deep_g0_backward, fashion_mnist_deep_g0_backward_workspace}},
    {{NULL, NULL}, {fashion_mnist_deep_g1_forward, fashion_mnist_deep_g1_forward_workspace}, {fashion_mnist_deep_g1_backward, fashion_mnist_deep_g1_backward_workspace}},
    {{NULL, NULL}, {fashion_mnist_deep_g2_forward, fashion_mnist_deep_g2_forward_workspace}, {NULL, NULL}},
    {{fashion_mnist_deep_g3_evaluation, fashion_mnist_deep_g3_evaluation_workspace}, {NULL, NULL}, {NULL, NULL}},
};
static const gpunn_kernel_update_launch fashion_mnist_deep_updates[] = {
    fashion_mnist_deep_update0,
};

} // namespace fashion_mnist_deep_cuda

extern "C" const gpunn_kernel_cuda fashion_mnist_deep_kernels_cuda = {
    GPUNN_KERNELS_ABI,
    FASHION_MNIST_DEEP_KERNELS_STAMP,
    fashion_mnist_deep_cuda::fashion_mnist_deep_launches,
    fashion_mnist_deep_cuda::fashion_mnist_deep_updates,
};
