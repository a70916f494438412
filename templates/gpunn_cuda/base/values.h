#ifndef GPUNN__CUDA_BASE_VALUES_H
#define GPUNN__CUDA_BASE_VALUES_H
#include "base/context.h"

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

#endif /* GPUNN__CUDA_BASE_VALUES_H */
