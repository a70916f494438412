/* custom_op_kernels.cu - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.1, templates a9785fb6116f
 * spec sha256 69bb937185aec3d159faf1a70e32abe348f18e4ba8597249bdae8eda85061087
 * renew it with: python3 -m generator examples/kernels/custom_op.json -o examples/kernels/custom_op
 */
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#define CUSTOM_OP_KERNELS_CUDA
#include "custom_op_kernels.h"
#if CUSTOM_OP_KERNELS_STAMP != 0x8dba7cd83e5989b7ull
#error "custom_op_kernels.h and custom_op_kernels.cu were not written together; renew both with the command in their first lines"
#endif

#ifndef GPUNN__LAUNCH_ON
#define GPUNN__LAUNCH_ON(stream, kernel, blocks, threads, ...) \
    kernel<<<(blocks), (threads), 0, (cudaStream_t)(stream)>>>(__VA_ARGS__)
#endif

/* What the kernels are made of. Tensors are read and written by packs of V neighbouring elements, which move in one access of
 * 128 bits where V elements are as long, and are numbered by i. The kernels' orders of summation are fixed. */
namespace custom_op_cuda {

const size_t MOST = 0xF0000000u; /* packs that an unsigned counts with room for a last step beyond them */

__host__ __device__ constexpr unsigned power_of_2(unsigned count) /* the least that is no less, at most 32 */
{
    unsigned power = 1;
    while (power < count && power < 32) power *= 2;
    return power;
}

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

/* Zeros where it is not there. */
template <int V, typename T, typename I> __device__ __forceinline__ pack<V, T> load_if(bool there, const T *data, I i)
{
    if (there) return load<V>(data, i);
    return pack<V, T>();
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

/* Teams of TEAM threads hold sums for packs thread + k * TEAM of a row; to[pack] = those of the whole block. */
template <int THREADS, int TEAM, int K, int V>
__device__ __forceinline__ void reduce_teams(numbers<V> (&value)[K], float *to, unsigned first, unsigned packs)
{
    const int           WARPS = TEAM < 32 ? THREADS / 32 : THREADS / TEAM;
    const unsigned      thread = threadIdx.x % TEAM, warp = threadIdx.x / (THREADS / WARPS);
    const bool          takes_part = threadIdx.x % (THREADS / WARPS) < TEAM;
    __shared__ float    part[WARPS > 1 ? K * V * TEAM : 1];
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int j = 0; j < V; j++)
#pragma unroll
            for (int distance = TEAM; distance < 32; distance *= 2)
                value[k][j] += __shfl_xor_sync(0xFFFFFFFFu, value[k][j], distance);
    __syncthreads(); /* of an earlier call: everybody has read part */
    for (unsigned w = 0; w < WARPS; w++) {
        if (w == warp && takes_part) {
#pragma unroll
            for (int k = 0; k < K; k++) {
#pragma unroll
                for (int j = 0; j < V; j++) {
                    float &shared = part[WARPS > 1 ? (k * V + j) * TEAM + (int)thread : 0];
                    if (w > 0) value[k][j] += shared;
                    if (w + 1 < WARPS) shared = value[k][j];
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        const unsigned i = first + thread + (unsigned)(k * TEAM);
        if (warp + 1 == WARPS && takes_part && i < packs) store<V>(to, i, value[k]);
    }
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

/* custom_op_g0_evaluation_0: t10 = fc1 + square(sin(a1 * fc1)) / a1; reads 4 and writes 4 bytes for each element. */
struct custom_op_g0_evaluation_0_kernel_operands {
    const float *fc1;
    const float *a1;
    float *t10;
};

/* Packs first, first + step, ... : U of them, all loads before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void custom_op_g0_evaluation_0_kernel_at(const custom_op_g0_evaluation_0_kernel_operands &o, I first, I step, I packs)
{
    if (first >= packs) return;
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    pack<V, float> in_fc1[U];
    load_each(in_fc1, o.fc1, at);
    numbers<V> in_a1[U];
    narrow_each<1, 32, 1>(in_a1, o.a1, at);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
        numbers<V> out_t10;
#pragma unroll
        for (int j = 0; j < V; j++) {
            custom_op_g0_evaluation_0(in_fc1[u][j], in_a1[u][j], &out_t10[j]);
        }
        store(o.t10, i, out_t10);
    }
}

template <int V>
static __global__ void __launch_bounds__(256) custom_op_g0_evaluation_0_kernel(const custom_op_g0_evaluation_0_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 2;
    custom_op_g0_evaluation_0_kernel_at<V, 2, unsigned>(o, blockIdx.x * tile + threadIdx.x, 256, packs);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        custom_op_g0_evaluation_0_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX);
}

/* g0, evaluation: t10 = fc1 + square(sin(a1 * fc1)) / a1 */
static int custom_op_g0_evaluation(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    {
        const size_t n = (size_t)batch * 32;
        custom_op_g0_evaluation_0_kernel_operands o = {};
        o.fc1 = (const float *)call->data[1];
        o.a1 = (const float *)call->data[0];
        o.t10 = (float *)call->data[2];
        const bool wide = aligned(o.fc1, 16) && aligned(o.a1, 16) && aligned(o.t10, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const size_t packs = wide ? n / 4 : n;
        const unsigned blocks = (unsigned)clamped(at_least(packs, 512), MOST);
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, custom_op_g0_evaluation_0_kernel<4>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 4));
        else
            GPUNN__LAUNCH_ON(call->stream, custom_op_g0_evaluation_0_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
    }
    return -(int)cudaGetLastError();
}

static size_t custom_op_g0_evaluation_workspace(int64_t batch, int multiprocessors)
{
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch * 32;
        if (n / 4 > MOST) return SIZE_MAX;
    }
    return 0;
}

/* custom_op_g0_forward_0: t10 = fc1 + square(sin(a1 * fc1)) / a1; reads 4 and writes 4 bytes for each element. */
struct custom_op_g0_forward_0_kernel_operands {
    const float *fc1;
    const float *a1;
    float *t10;
};

/* Packs first, first + step, ... : U of them, all loads before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void custom_op_g0_forward_0_kernel_at(const custom_op_g0_forward_0_kernel_operands &o, I first, I step, I packs)
{
    if (first >= packs) return;
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    pack<V, float> in_fc1[U];
    load_each(in_fc1, o.fc1, at);
    numbers<V> in_a1[U];
    narrow_each<1, 32, 1>(in_a1, o.a1, at);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
        numbers<V> out_t10;
#pragma unroll
        for (int j = 0; j < V; j++) {
            custom_op_g0_forward_0(in_fc1[u][j], in_a1[u][j], &out_t10[j]);
        }
        store(o.t10, i, out_t10);
    }
}

template <int V>
static __global__ void __launch_bounds__(256) custom_op_g0_forward_0_kernel(const custom_op_g0_forward_0_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 2;
    custom_op_g0_forward_0_kernel_at<V, 2, unsigned>(o, blockIdx.x * tile + threadIdx.x, 256, packs);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        custom_op_g0_forward_0_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX);
}

/* g0, forward: t10 = fc1 + square(sin(a1 * fc1)) / a1 */
static int custom_op_g0_forward(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    {
        const size_t n = (size_t)batch * 32;
        custom_op_g0_forward_0_kernel_operands o = {};
        o.fc1 = (const float *)call->data[1];
        o.a1 = (const float *)call->data[0];
        o.t10 = (float *)call->data[2];
        const bool wide = aligned(o.fc1, 16) && aligned(o.a1, 16) && aligned(o.t10, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const size_t packs = wide ? n / 4 : n;
        const unsigned blocks = (unsigned)clamped(at_least(packs, 512), MOST);
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, custom_op_g0_forward_0_kernel<4>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 4));
        else
            GPUNN__LAUNCH_ON(call->stream, custom_op_g0_forward_0_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
    }
    return -(int)cudaGetLastError();
}

static size_t custom_op_g0_forward_workspace(int64_t batch, int multiprocessors)
{
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch * 32;
        if (n / 4 > MOST) return SIZE_MAX;
    }
    return 0;
}

/* custom_op_g0_backward_0: t10 = fc1 + square(sin(a1 * fc1)) / a1; reads 8 and writes 4 bytes for each element. */
struct custom_op_g0_backward_0_kernel_operands {
    const float *grad_t10;
    const float *a1;
    const float *fc1;
    float *grad_fc1;
    float *grad_a1;
    bool add_grad_fc1;
    bool add_grad_a1;
    float *partial; /* [slice][sum][32] */
    unsigned *counters;
};

/* Sums over the rows of a matrix of 32 columns. A thread keeps its pack of columns; the rows go round the teams of all
 * blockIdx.y, whose sums are the slices. */
template <int V> static __global__ void __launch_bounds__(256) custom_op_g0_backward_0_kernel(const custom_op_g0_backward_0_kernel_operands o, unsigned rows)
{
    const unsigned PACKS = 32 / V, TEAM = power_of_2(PACKS), TEAMS = 256 / TEAM;
    const unsigned first = blockIdx.x * TEAM, column = first + threadIdx.x % TEAM;
    numbers<V> sum0[1] = {};
    numbers<V> sum1[1] = {};
    if (column < PACKS) {
        const pack<V, float> in_a1 = load<V>(o.a1, column);
#pragma unroll 1
        for (unsigned row = blockIdx.y * TEAMS + threadIdx.x / TEAM; row < rows; row += gridDim.y * TEAMS) {
            const unsigned i = row * PACKS + column;
            const pack<V, float> in_grad_t10 = load<V>(o.grad_t10, i);
            const pack<V, float> in_fc1 = load<V>(o.fc1, i);
            const pack<V, float> old_grad_fc1 = load_if<V>(o.add_grad_fc1, o.grad_fc1, i);
            numbers<V> out_grad_fc1;
#pragma unroll
            for (int j = 0; j < V; j++) {
                float add0, add1;
                custom_op_g0_backward_0(in_grad_t10[j], in_a1[j], in_fc1[j], &out_grad_fc1[j], &add0, &add1);
                sum0[0][j] += add0;
                sum1[0][j] += add1;
            }
            if (o.grad_fc1) store(o.grad_fc1, i, plus_if(o.add_grad_fc1, out_grad_fc1, old_grad_fc1));
        }
    }
    reduce_teams<256, TEAM, 1, V>(sum0, o.partial + ((size_t)blockIdx.y * 2 + 0) * 32, first, PACKS);
    reduce_teams<256, TEAM, 1, V>(sum1, o.partial + ((size_t)blockIdx.y * 2 + 1) * 32, first, PACKS);
    if (gathered<256, 64>(o.partial, blockIdx.y, gridDim.y, gridDim.x, o.counters)) {
        for (unsigned place = threadIdx.x; place < 32; place += 256) {
            const float total0 = o.partial[0 + place];
            const float total1 = o.partial[32 + place];
            float out_grad_a1;
            custom_op_g0_backward_0_final(total0, total1, &out_grad_a1);
            if (o.grad_a1) store_one(o.add_grad_a1, o.grad_a1, place, out_grad_a1);
        }
    }
}

/* g0, backward: t10 = fc1 + square(sin(a1 * fc1)) / a1 */
static int custom_op_g0_backward(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    const int multiprocessors = call->multiprocessors;
    char *const workspace = (char *)call->workspace;
    const size_t partials = 0;
    {
        const size_t n = (size_t)batch * 32;
        custom_op_g0_backward_0_kernel_operands o = {};
        o.grad_t10 = (const float *)call->data[4];
        o.a1 = (const float *)call->data[0];
        o.fc1 = (const float *)call->data[1];
        o.grad_fc1 = (float *)call->data[3];
        o.grad_a1 = (float *)call->data[2];
        o.add_grad_fc1 = o.grad_fc1 && call->accumulate[3] != 0;
        o.add_grad_a1 = o.grad_a1 && call->accumulate[2] != 0;
        const bool wide = aligned(o.grad_t10, 16) && aligned(o.a1, 16) && aligned(o.fc1, 16) && aligned(o.grad_fc1, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const unsigned slices = (unsigned)clamped(at_least(n / 32, 32), at_least((size_t)multiprocessors * 8, 1));
        o.partial = (float *)(workspace + partials);
        o.counters = call->counters;
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, custom_op_g0_backward_0_kernel<4>, dim3(1, slices), 256, o, (unsigned)(n / 32));
        else
            GPUNN__LAUNCH_ON(call->stream, custom_op_g0_backward_0_kernel<1>, dim3(1, slices), 256, o, (unsigned)(n / 32));
    }
    return -(int)cudaGetLastError();
}

static size_t custom_op_g0_backward_workspace(int64_t batch, int multiprocessors)
{
    const size_t partials = 0;
    size_t most = 0; /* of any of the launches */
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch * 32;
        if (n / 4 > MOST) return SIZE_MAX;
        const unsigned slices = (unsigned)clamped(at_least(n / 32, 32), at_least((size_t)multiprocessors * 8, 1));
        most = larger_of(most, area((size_t)slices * 64));
    }
    return partials + most;
}

/* custom_op_g1_evaluation_0: t24 = mean(squared_error(fc3, t)); reads 8 and writes 0 bytes for each element. */
struct custom_op_g1_evaluation_0_kernel_operands {
    const float *fc3;
    const float *t;
    float *t24;
    float count0;
    float *scalars; /* [block][sum] */
    unsigned *counters;
};

/* Packs first, first + step, ... : U of them, all loads before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void custom_op_g1_evaluation_0_kernel_at(const custom_op_g1_evaluation_0_kernel_operands &o, I first, I step, I packs, float *sums)
{
    if (first >= packs) return;
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    pack<V, float> in_fc3[U];
    load_each(in_fc3, o.fc3, at);
    pack<V, float> in_t[U];
    load_each(in_t, o.t, at);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
#pragma unroll
        for (int j = 0; j < V; j++) {
            float add0;
            custom_op_g1_evaluation_0(in_fc3[u][j], in_t[u][j], &add0);
            sums[0] += add0;
        }
    }
}

template <int V>
static __global__ void __launch_bounds__(256) custom_op_g1_evaluation_0_kernel(const custom_op_g1_evaluation_0_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 1;
    float sums[1] = {};
    for (unsigned first = blockIdx.x * tile + threadIdx.x; first < packs; first += gridDim.x * tile)
        custom_op_g1_evaluation_0_kernel_at<V, 1, unsigned>(o, first, 256, packs, sums);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        custom_op_g1_evaluation_0_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX, sums);
#pragma unroll
    for (int s = 0; s < 1; s++) {
        const float total = reduce<256>(sums[s], sum());
        if (threadIdx.x == 0) o.scalars[(size_t)blockIdx.x * 1 + s] = total;
    }
    if (is_last_block(o.counters, gridDim.x)) {
        const float total0 = total_of<256>(o.scalars + 0, 1, gridDim.x);
        for (unsigned place = threadIdx.x; place < 1; place += 256) {
            float out_t24;
            custom_op_g1_evaluation_0_final(total0, o.count0, &out_t24);
            store_one(false, o.t24, place, out_t24);
        }
    }
}

/* g1, evaluation: t24 = mean(squared_error(fc3, t)) */
static int custom_op_g1_evaluation(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    const int multiprocessors = call->multiprocessors;
    char *const workspace = (char *)call->workspace;
    const size_t partials = 0;
    {
        const size_t n = (size_t)batch;
        custom_op_g1_evaluation_0_kernel_operands o = {};
        o.fc3 = (const float *)call->data[0];
        o.t = (const float *)call->data[1];
        o.t24 = (float *)call->data[2];
        o.count0 = (float)((size_t)batch);
        const bool wide = aligned(o.fc3, 16) && aligned(o.t, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const unsigned blocks = (unsigned)clamped(at_least(n, 1024), (size_t)multiprocessors * 8);
        o.scalars = (float *)(workspace + partials);
        o.counters = call->counters;
        const size_t packs = wide ? n / 4 : n;
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, custom_op_g1_evaluation_0_kernel<4>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 4));
        else
            GPUNN__LAUNCH_ON(call->stream, custom_op_g1_evaluation_0_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
    }
    return -(int)cudaGetLastError();
}

static size_t custom_op_g1_evaluation_workspace(int64_t batch, int multiprocessors)
{
    const size_t partials = 0;
    size_t most = 0; /* of any of the launches */
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch;
        if (n / 4 > MOST) return SIZE_MAX;
        const unsigned blocks = (unsigned)clamped(at_least(n, 1024), (size_t)multiprocessors * 8);
        most = larger_of(most, area((size_t)blocks * 1));
    }
    return partials + most;
}

/* custom_op_g1_forward_0: t24 = mean(squared_error(fc3, t)); reads 8 and writes 8 bytes for each element. */
struct custom_op_g1_forward_0_kernel_operands {
    const float *fc3;
    const float *t;
    const float *grad_t24;
    float *grad_fc3;
    float *grad_t;
    float *t24;
    bool add_grad_fc3;
    bool add_grad_t;
    float count0;
    float *scalars; /* [block][sum] */
    unsigned *counters;
};

/* Packs first, first + step, ... : U of them, all loads before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void custom_op_g1_forward_0_kernel_at(const custom_op_g1_forward_0_kernel_operands &o, I first, I step, I packs, float *sums)
{
    if (first >= packs) return;
    const float in_grad_t24 = number(o.grad_t24[0]);
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    pack<V, float> in_fc3[U];
    load_each(in_fc3, o.fc3, at);
    pack<V, float> in_t[U];
    load_each(in_t, o.t, at);
    pack<V, float> old_grad_fc3[U] = {};
    if (o.add_grad_fc3) load_each(old_grad_fc3, o.grad_fc3, at);
    pack<V, float> old_grad_t[U] = {};
    if (o.add_grad_t) load_each(old_grad_t, o.grad_t, at);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
        numbers<V> out_grad_fc3;
        numbers<V> out_grad_t;
#pragma unroll
        for (int j = 0; j < V; j++) {
            float add0;
            custom_op_g1_forward_0(in_fc3[u][j], in_t[u][j], in_grad_t24, o.count0, &out_grad_fc3[j], &out_grad_t[j], &add0);
            sums[0] += add0;
        }
        if (o.grad_fc3) store(o.grad_fc3, i, plus_if(o.add_grad_fc3, out_grad_fc3, old_grad_fc3[u]));
        if (o.grad_t) store(o.grad_t, i, plus_if(o.add_grad_t, out_grad_t, old_grad_t[u]));
    }
}

template <int V>
static __global__ void __launch_bounds__(256) custom_op_g1_forward_0_kernel(const custom_op_g1_forward_0_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 1;
    float sums[1] = {};
    for (unsigned first = blockIdx.x * tile + threadIdx.x; first < packs; first += gridDim.x * tile)
        custom_op_g1_forward_0_kernel_at<V, 1, unsigned>(o, first, 256, packs, sums);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        custom_op_g1_forward_0_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX, sums);
#pragma unroll
    for (int s = 0; s < 1; s++) {
        const float total = reduce<256>(sums[s], sum());
        if (threadIdx.x == 0) o.scalars[(size_t)blockIdx.x * 1 + s] = total;
    }
    if (is_last_block(o.counters, gridDim.x)) {
        const float total0 = total_of<256>(o.scalars + 0, 1, gridDim.x);
        for (unsigned place = threadIdx.x; place < 1; place += 256) {
            float out_t24;
            custom_op_g1_forward_0_final(total0, o.count0, &out_t24);
            store_one(false, o.t24, place, out_t24);
        }
    }
}

/* g1, forward: t24 = mean(squared_error(fc3, t)) */
static int custom_op_g1_forward(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    const int multiprocessors = call->multiprocessors;
    char *const workspace = (char *)call->workspace;
    const size_t partials = 0;
    {
        const size_t n = (size_t)batch;
        custom_op_g1_forward_0_kernel_operands o = {};
        o.fc3 = (const float *)call->data[0];
        o.t = (const float *)call->data[1];
        o.grad_t24 = (const float *)call->data[5];
        o.grad_fc3 = (float *)call->data[3];
        o.grad_t = (float *)call->data[4];
        o.t24 = (float *)call->data[2];
        o.add_grad_fc3 = o.grad_fc3 && call->accumulate[3] != 0;
        o.add_grad_t = o.grad_t && call->accumulate[4] != 0;
        o.count0 = (float)((size_t)batch);
        const bool wide = aligned(o.fc3, 16) && aligned(o.t, 16) && aligned(o.grad_fc3, 16) && aligned(o.grad_t, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const unsigned blocks = (unsigned)clamped(at_least(n, 1024), (size_t)multiprocessors * 8);
        o.scalars = (float *)(workspace + partials);
        o.counters = call->counters;
        const size_t packs = wide ? n / 4 : n;
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, custom_op_g1_forward_0_kernel<4>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 4));
        else
            GPUNN__LAUNCH_ON(call->stream, custom_op_g1_forward_0_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
    }
    return -(int)cudaGetLastError();
}

static size_t custom_op_g1_forward_workspace(int64_t batch, int multiprocessors)
{
    const size_t partials = 0;
    size_t most = 0; /* of any of the launches */
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch;
        if (n / 4 > MOST) return SIZE_MAX;
        const unsigned blocks = (unsigned)clamped(at_least(n, 1024), (size_t)multiprocessors * 8);
        most = larger_of(most, area((size_t)blocks * 1));
    }
    return partials + most;
}

/* adam: torch.optim's formulas, as >>update in gpunn_cuda.cu has them. */
template <int V>
__device__ __forceinline__ void custom_op_update0_at(const gpunn_update &u, const gpunn_update_numbers &n, float limit, size_t i)
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
    custom_op_update0_kernel(const gpunn_update u, const gpunn_update_numbers *in_memory)
{
    const gpunn_update_numbers n = *in_memory;
    const float                limit = u.gradient_limit > 0 ? u.gradient_limit : INFINITY;
    const size_t               i = blockIdx.x * (size_t)256 + threadIdx.x, packs = (size_t)u.count / V;
    if (!n.go) return;
    if (i < packs) custom_op_update0_at<V>(u, n, limit, i);
    if (V > 1 && i < (size_t)u.count % V) custom_op_update0_at<1>(u, n, limit, packs * V + i);
}

static int custom_op_update0(const gpunn_update *u, const gpunn_update_numbers *in_memory, void *stream)
{
    const bool wide = aligned(u->parameter, 16) && aligned(u->gradient, 16) && aligned(u->state[0], 16) && aligned(u->state[1], 16);
    const unsigned blocks = (unsigned)at_least((size_t)u->count, wide ? 1024 : 256);
    if (wide)
        GPUNN__LAUNCH_ON(stream, custom_op_update0_kernel<4>, blocks, 256, *u, in_memory);
    else
        GPUNN__LAUNCH_ON(stream, custom_op_update0_kernel<1>, blocks, 256, *u, in_memory);
    return -(int)cudaGetLastError();
}

static const gpunn_kernel_launch custom_op_launches[][GPUNN_KERNEL_DIRECTIONS] = {
    {{custom_op_g0_evaluation, custom_op_g0_evaluation_workspace}, {custom_op_g0_forward, custom_op_g0_forward_workspace}, {custom_op_g0_backward, custom_op_g0_backward_workspace}},
    {{custom_op_g1_evaluation, custom_op_g1_evaluation_workspace}, {custom_op_g1_forward, custom_op_g1_forward_workspace}, {NULL, NULL}},
};
static const gpunn_kernel_update_launch custom_op_updates[] = {
    custom_op_update0,
};

} // namespace custom_op_cuda

extern "C" const gpunn_kernel_cuda custom_op_kernels_cuda = {
    GPUNN_KERNELS_ABI,
    CUSTOM_OP_KERNELS_STAMP,
    custom_op_cuda::custom_op_launches,
    custom_op_cuda::custom_op_updates,
};
