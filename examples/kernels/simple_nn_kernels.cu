/* simple_nn_kernels.cu - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates c9514ad691f1
 * spec sha256 f747829dacd7b34a0908812bd8cf3afc76481dcc0a213d6ff68a5a714731227d
 * renew it with: python3 -m generator examples/kernels/simple_nn.json -o examples/kernels/simple_nn
 */
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#define SIMPLE_NN_KERNELS_CUDA
#include "simple_nn_kernels.h"
#if SIMPLE_NN_KERNELS_STAMP != 0x6ccc8dd8acd8e9ffull
#error "simple_nn_kernels.h and simple_nn_kernels.cu do not match: renew both (see their first lines)"
#endif

#ifndef GPUNN__LAUNCH_ON
#define GPUNN__LAUNCH_ON(stream, kernel, blocks, threads, ...) \
    kernel<<<(blocks), (threads), 0, (cudaStream_t)(stream)>>>(__VA_ARGS__)
#endif
#ifndef GPUNN__LAUNCH_SHARED
/* Dynamic shared memory of `floats` floats. Above 48 KiB a kernel must ask for it by cudaFuncSetAttribute. */
#define GPUNN__BLOCK_SHARED(name, floats) extern __shared__ __align__(16) float name[]
#define GPUNN__LAUNCH_SHARED(stream, bytes, kernel, blocks, threads, ...)                                   \
    (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes)) == cudaSuccess \
         ? (kernel<<<(blocks), (threads), (bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__))                  \
         : (void)0)
#endif

/* Building blocks of the kernels. Tensors are read and written in packs of V neighbouring elements; i is a
 * pack's index. A pack moves in one access, of up to 128 bits. Every kernel adds in a fixed order. */
namespace simple_nn_cuda {

/* Most packs of a launch whose index is an `unsigned`: a last step beyond them does not overflow. */
const size_t MOST = 0xF0000000u;

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

/* V neighbouring elements in registers, in the type T of memory. operator[] converts an element to float. */
template <int V, typename T> struct pack {
    alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) T element[V];
    __device__ __forceinline__ float operator[](int j) const
    {
        return number(element[j]);
    }
};

/* The same V elements as floats. */
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

/* Loads the N packs i[0], i[1], ... */
template <int V, typename T, typename I, int N>
__device__ __forceinline__ void load_each(pack<V, T> (&p)[N], const T *data, const I (&i)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) p[k] = load<V>(data, i[k]);
}

/* Rounds x and y to 16 bits, to nearest even. x becomes the low half of the word, y the high half. */
__device__ __forceinline__ unsigned two_halves(bf16, float x, float y)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
    return bits;
#else
    unsigned low = __float_as_uint(x), high = __float_as_uint(y);
    low = x != x ? 0x7FFFu : (low + 0x7FFFu + (low >> 16 & 1)) >> 16;
    high = y != y ? 0x7FFF0000u : high + 0x7FFFu + (high >> 16 & 1);
    return low | (high & 0xFFFF0000u);
#endif
}
__device__ __forceinline__ unsigned two_halves(f16, float x, float y)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
    return bits;
#else
    return __half_as_ushort(__float2half_rn(x)) | (unsigned)__half_as_ushort(__float2half_rn(y)) << 16;
#endif
}

/* Stores x and y, converted to the type of memory, at to[0] and to[1]. */
__device__ __forceinline__ void put(float *to, float x, float y)
{
    to[0] = x;
    to[1] = y;
}
template <typename T> __device__ __forceinline__ void put(T *to, float x, float y)
{
    const unsigned bits = two_halves(T(), x, y);
    to[0].bits = (unsigned short)bits;
    to[1].bits = (unsigned short)(bits >> 16);
}

/* Pack i of data = n, rounded to T. */
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

/* Returns old + n if `add` is true, else n. */
template <int V, typename T>
__device__ __forceinline__ numbers<V> plus_if(bool add, const numbers<V> &n, const pack<V, T> &old)
{
    numbers<V> sum;
#pragma unroll
    for (int j = 0; j < V; j++) sum[j] = add ? old[j] + n[j] : n[j];
    return sum;
}

/* data[i] += x if `add` is true, else data[i] = x. */
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

/* Reduces `value` over groups of TEAM neighbouring threads. TEAM is 1, 2, 4, ..., 32, or a multiple of 32; in
 * the latter case the block has TEAMS groups. All threads of the block must call it, and all get their
 * group's result. The order is fixed: a butterfly in each warp, then the warps in ascending order. */
template <int TEAM, int TEAMS = 1, typename Op> __device__ __forceinline__ float reduce(float value, Op op)
{
#pragma unroll
    for (int distance = (TEAM < 32 ? TEAM : 32) / 2; distance > 0; distance /= 2)
        value = op(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
    if (TEAM <= 32) return value;
    __shared__ float part[32];
    __syncthreads(); /* all threads have read `part` of an earlier call */
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    const unsigned first = TEAMS > 1 ? threadIdx.x / TEAM * (TEAM / 32) : 0;
    float          result = part[first];
    for (int warp = 1; warp < TEAM / 32; warp++) result = op(result, part[first + warp]);
    return result;
}

/* Returns whether this block is the last of `count` blocks to call this. The last block sees all that the
 * others wrote before their calls. `counter` must be 0 before the first call, and is 0 again after the
 * last. */
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

/* Adds up `count` slices of FLOATS sums, `step` floats apart, in ascending order. The first slice is
 * overwritten with the totals. */
template <int THREADS, unsigned FLOATS>
__device__ __forceinline__ void add_slices(float *slice, size_t step, unsigned count)
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

/* Adds up the blocks' sums in partial[slice][FLOATS], to which `beside` blocks contribute per slice. Each
 * block calls this after it has written its part. The last block of a group of about sqrt(slices) slices adds
 * the group's slices; the last block of all adds the groups. Returns true in that block only; the totals are
 * then in the first slice. */
template <int THREADS, unsigned FLOATS>
__device__ __noinline__ bool gathered(float *partial, unsigned slice, unsigned slices, unsigned beside,
                                      unsigned *counters)
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

/* The sum over all blocks of one scalar: scalars[block * sums] for block = 0, 1, ... */
template <int THREADS>
__device__ __forceinline__ float total_of(const float *scalars, unsigned sums, unsigned blocks)
{
    float total = 0;
    for (unsigned block = threadIdx.x; block < blocks; block += THREADS)
        total += scalars[(size_t)block * sums];
    return reduce<THREADS>(total, sum());
}

/* ---- on the host ---- */
inline bool aligned(const void *data, size_t bytes)
{
    return (uintptr_t)data % bytes == 0;
}

/* ceil(count / each). */
inline size_t at_least(size_t count, size_t each)
{
    return (count + each - 1) / each;
}

inline size_t larger_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* `wanted`, but at least 1 and at most `most`. */
inline size_t clamped(size_t wanted, size_t most)
{
    return wanted < 1 || most < 1 ? 1 : wanted < most ? wanted : most;
}

/* Bytes of workspace for so many floats: a multiple of 256, so that the next area is aligned, too. */
inline size_t area(size_t floats)
{
    return (floats * sizeof(float) + 255) / 256 * 256;
}

/* ---- networks ---- *
 * A block keeps a tile of samples in shared memory, PITCH floats from one sample to the next. Rows of weights
 * have such a pitch, too. Pitches are odd multiples of 4, so that neighbouring threads can read 16 bytes each
 * of their own rows without bank conflicts. */

__host__ __device__ constexpr int pitch_of(int count)
{
    return (count + 3) / 4 * 4 + ((count + 3) / 4 % 2 == 0 ? 4 : 0);
}

/* The k extent of one tensor-core instruction: the numbers of a row that it multiplies, in 8 words. 0: no
 * tensor cores. */
__host__ __device__ constexpr int chunk_of(float)
{
    return 0;
}

/* Words of a row of `count` factors, padded with zeros to whole chunks. */
template <typename T> __host__ __device__ constexpr int words_of(int count)
{
    if constexpr (chunk_of(T()) > 0)
        return (count + chunk_of(T()) - 1) / chunk_of(T()) * 8;
    else
        return count;
}

/* Words from one staged row of a weight to the next. A row is followed by its bias. */
template <typename T> __host__ __device__ constexpr int step_of(int count)
{
    return pitch_of(words_of<T>(count) + 1);
}

/* Rows of a weight [OUT][K] that fit into FLOATS floats of shared memory. With tensor cores it is OUT
 * or a multiple of 8. */
template <typename T, int K, int OUT, bool WHOLE, int FLOATS> __host__ __device__ constexpr int rows_at_once()
{
    const int WIDE = chunk_of(T()) > 0 ? 8 : 1, FIT = FLOATS / step_of<T>(K);
    return WHOLE || FIT >= OUT ? OUT : FIT / WIDE * WIDE;
}

/* x rounded to the type T that memory stores. */
__device__ __forceinline__ float stored_as(float, float x)
{
    return x;
}

/* Word i of a row x of `count` factors; 0 beyond them. ALL: no word asked for is beyond them. A word of two
 * 16-bit factors holds numbers k and k + 4, with k = 0 1 2 3 8 9 10 11 16 ... for i = 0, 1, 2, ... This way
 * neighbouring threads read neighbouring numbers. Any order is valid if both operands of a product use it. */
template <bool ALL> __device__ __forceinline__ float factor_word(float, const float *x, int i, int)
{
    return x[i];
}

/* Copies `rows` rows of w[][K] into shared memory, each followed by its bias. b may be NULL (zeros). */
template <typename T, int K>
__device__ __forceinline__ void stage(float *to, const float *w, const float *b, int rows)
{
    const int WORDS = words_of<T>(K), STEP = step_of<T>(K);
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * WORDS; i += 256)
        to[i / WORDS * STEP + i % WORDS] = factor_word<false>(T(), w + i / WORDS * K, i % WORDS, K);
    for (int i = threadIdx.x; i < rows; i += 256) to[i * STEP + WORDS] = b ? stored_as(T(), b[i]) : 0;
}

/* Four numbers of a row. ALIGNED: x is 16-byte aligned. */
template <bool ALIGNED> __device__ __forceinline__ float4 four(const float *x)
{
    float4 v;
    if constexpr (ALIGNED)
        v = *(const float4 *)x;
    else
        v.x = x[0], v.y = x[1], v.z = x[2], v.w = x[3];
    return v;
}

/* y = x w^T + b for `columns` staged rows of w, without tensor cores. A thread computes up to eight columns
 * of up to two samples. It starts each sum with the bias and adds in order of k. */
template <int SAMPLES, int PITCH, int K, int EACH, bool ALIGNED>
__device__ __forceinline__ void multiply(float, float *y, const float *x, const float *w, int columns)
{
    const int SLOTS = SAMPLES < 32 ? SAMPLES : 32, OWN = SAMPLES / SLOTS, TEAMS = 256 / SLOTS,
              STEP = step_of<float>(K);
    const int slot = threadIdx.x % SLOTS;
    x += slot * PITCH;
    y += slot * PITCH;
#pragma unroll 1
    for (int first = threadIdx.x / SLOTS; first < columns; first += TEAMS * EACH) {
        float        sum[OWN][EACH];
        const float *row[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            row[j] = w + min(first + j * TEAMS, columns - 1) * STEP;
#pragma unroll
            for (int m = 0; m < OWN; m++) sum[m][j] = row[j][K];
        }
#pragma unroll 2
        for (int k = 0; k < K / 4 * 4; k += 4) {
            float4 own[OWN];
#pragma unroll
            for (int m = 0; m < OWN; m++) own[m] = four<ALIGNED>(x + m * SLOTS * PITCH + k);
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const float4 factor = four<true>(row[j] + k);
#pragma unroll
                for (int m = 0; m < OWN; m++) {
                    sum[m][j] += own[m].x * factor.x;
                    sum[m][j] += own[m].y * factor.y;
                    sum[m][j] += own[m].z * factor.z;
                    sum[m][j] += own[m].w * factor.w;
                }
            }
        }
#pragma unroll
        for (int k = K / 4 * 4; k < K; k++)
#pragma unroll
            for (int j = 0; j < EACH; j++)
#pragma unroll
                for (int m = 0; m < OWN; m++) sum[m][j] += x[m * SLOTS * PITCH + k] * row[j][k];
#pragma unroll
        for (int j = 0; j < EACH; j++)
#pragma unroll
            for (int m = 0; m < OWN; m++)
                if (first + j * TEAMS < columns) y[m * SLOTS * PITCH + first + j * TEAMS] = sum[m][j];
    }
}

/* y = x w^T + b for ROWS rows per sample: x [ROWS][K], y [ROWS][OUT]. WHOLE: the weights are already in
 * shared memory, at `staged`; otherwise they are copied there now, piece by piece. T: the type of the
 * factors. Ends with a barrier. */
template <typename T, int SAMPLES, int PITCH, int K, int OUT, int ROWS, bool ALIGNED, bool WHOLE, int FLOATS>
__device__ __forceinline__ void linear(float *y, const float *x, float *staged, const float *w,
                                       const float *b)
{
    constexpr bool TILED = chunk_of(T()) > 0;
    const int TEAMS = TILED ? 256 / 32 / (SAMPLES / 16) : 256 / (SAMPLES < 32 ? SAMPLES : 32);
    const int PIECE = rows_at_once<T, K, OUT, WHOLE, FLOATS>(), TILES = TILED ? (PIECE + 7) / 8 : PIECE;
    const int EACH = TILES > 4 * TEAMS ? 8 : TILES > 2 * TEAMS ? 4 : TILES > TEAMS ? 2 : 1;
#pragma unroll 1
    for (int first = 0; first < OUT; first += PIECE) {
        const int columns = min(PIECE, OUT - first);
        if constexpr (!WHOLE) {
            stage<T, K>(staged, w + first * K, b ? b + first : b, columns);
            __syncthreads();
        }
#pragma unroll 1
        for (int row = 0; row < ROWS; row++)
            multiply<SAMPLES, PITCH, K, EACH, ALIGNED>(T(), y + row * OUT + first, x + row * K, staged,
                                                       columns);
        __syncthreads();
    }
}

/* The architecture, 10 * major + minor, that the kernel's code for GPU `device` was compiled for:
 * __CUDA_ARCH__ / 10 in that code. The GPU may be newer; then the driver compiled the kernel's PTX. Returns 0
 * if there is no code for it. The result is the same for all kernels of this file. */
inline int architecture_of(const void *kernel, int device)
{
    /* Cached, because cudaFuncGetAttributes takes longer than a kernel launch. */
    static thread_local int known = -1, architecture = 0;
    cudaFuncAttributes      code;
    if (device == known) return architecture;
    if (cudaFuncGetAttributes(&code, kernel) != cudaSuccess) return 0;
    known = device;
    architecture = code.ptxVersion;
    return architecture;
}

/* A form of a network's kernel. samples: of a tile. bytes: of shared memory. capability: the least
 * architecture that its code may be compiled for. fills: only for batches with at least a tile per
 * multiprocessor. Estimated clocks of a multiprocessor: staging: before the first tile; tile: per tile; each:
 * per sample if the steps are separate launches. */
struct network_form {
    int    samples, bytes, capability;
    bool   fills;
    double staging, tile, each;
};

/* Returns the form to use for this GPU and batch, or -1 if none fits or if separate launches are estimated to
 * be faster. kernel: any form's kernel. apart: clocks of separate launches before the first sample. */
inline int form_for(const network_form *forms, int count, const void *kernel, int64_t batch,
                    int multiprocessors, double apart)
{
    int device = 0, shared_bytes = 0, i = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return -1;
    const int architecture = architecture_of(kernel, device);
    while (i < count && (forms[i].bytes > shared_bytes || forms[i].capability > architecture ||
                         (forms[i].fills && batch < (int64_t)multiprocessors * forms[i].samples)))
        i++;
    if (i == count) return -1;
    const double tiles = ceil((double)batch / ((double)multiprocessors * forms[i].samples));
    return forms[i].staging + tiles * forms[i].tile <= apart + forms[i].each * (double)batch / multiprocessors
               ? i
               : -1;
}

/* ---- training steps of networks ---- *
 * A tile's gradients are in shared memory beside its values, PITCH floats from sample to sample. All are
 * 16-byte aligned. Rows are read and written in groups of four floats; floats beyond a row's end are
 * undefined. */

/* *to += x; if `first`, *to = x. */
__device__ __forceinline__ void add_to(float *to, float x, bool first)
{
    *to = first ? x : *to + x;
}

/* to += y w for `rows` staged rows of w[rows][K]; if `first`, to = y w. Without tensor cores: a thread
 * computes four neighbouring columns of up to two samples, and adds the rows in ascending order. */
template <int SAMPLES, int PITCH, int K>
__device__ __forceinline__ void add_rows(float, float *to, const float *y, const float *w, int rows,
                                         bool first)
{
    const int SLOTS = SAMPLES < 32 ? SAMPLES : 32, OWN = SAMPLES / SLOTS, TEAMS = 256 / SLOTS,
              STEP = step_of<float>(K);
    const int slot = threadIdx.x % SLOTS;
    to += slot * PITCH;
    y += slot * PITCH;
#pragma unroll 1
    for (int k = threadIdx.x / SLOTS * 4; k < K; k += TEAMS * 4) {
        float4 sum[OWN];
#pragma unroll
        for (int m = 0; m < OWN; m++) sum[m] = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int row = 0; row < rows; row++) {
            const float4 factor = four<true>(w + row * STEP + k);
#pragma unroll
            for (int m = 0; m < OWN; m++) {
                const float own = y[m * SLOTS * PITCH + row];
                sum[m].x += own * factor.x;
                sum[m].y += own * factor.y;
                sum[m].z += own * factor.z;
                sum[m].w += own * factor.w;
            }
        }
#pragma unroll
        for (int m = 0; m < OWN; m++) {
            float *const place = to + m * SLOTS * PITCH + k;
            if (!first) {
                const float4 old = four<true>(place);
                sum[m].x += old.x, sum[m].y += old.y, sum[m].z += old.z, sum[m].w += old.w;
            }
            *(float4 *)place = sum[m];
        }
    }
}

/* The gradient of x for y = x w^T + b, w[OUT][K]: to += y w, where y holds the gradient of y; if `first`, to
 * = y w. WHOLE: the weights are already in shared memory, at `staged`; otherwise they are copied there now,
 * piece by piece. T: the type of the factors. */
template <typename T, int SAMPLES, int PITCH, int K, int OUT, bool WHOLE, int FLOATS>
__device__ __forceinline__ void operand_gradient(float *to, const float *y, float *staged, const float *w,
                                                 bool first)
{
    const int PIECE = rows_at_once<T, K, OUT, WHOLE, FLOATS>();
#pragma unroll 1
    for (int row = 0; row < OUT; row += PIECE) {
        const int rows = min(PIECE, OUT - row);
        if constexpr (!WHOLE) {
            stage<T, K>(staged, w + row * K, NULL, rows);
            __syncthreads();
        }
        add_rows<SAMPLES, PITCH, K>(T(), to, y + row, staged, rows, first && row == 0);
        if constexpr (!WHOLE) __syncthreads();
    }
}

/* The gradient of w[OUT][K] over `samples` samples: sums += y^T x; if `first`, sums = y^T x. sums: the
 * block's own. A thread computes ROWS rows of four neighbouring columns, and adds the samples in ascending
 * order. */
template <int PITCH, int K, int OUT, int ROWS>
__device__ __forceinline__ void weight_gradient(float, float *sums, const float *y, const float *x,
                                                int samples, bool first)
{
    const int FOURS = (K + 3) / 4;
#pragma unroll 1
    for (int i = threadIdx.x; i < FOURS * ((OUT + ROWS - 1) / ROWS); i += 256) {
        const int k = i % FOURS * 4, row = i / FOURS * ROWS;
        float4    sum[ROWS];
#pragma unroll
        for (int j = 0; j < ROWS; j++) sum[j] = make_float4(0, 0, 0, 0);
#pragma unroll 2
        for (int s = 0; s < samples; s++) {
            const float4 own = four<true>(x + s * PITCH + k);
#pragma unroll
            for (int j = 0; j < ROWS; j++) {
                const float factor = y[s * PITCH + min(row + j, OUT - 1)];
                sum[j].x += factor * own.x;
                sum[j].y += factor * own.y;
                sum[j].z += factor * own.z;
                sum[j].w += factor * own.w;
            }
        }
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const float parts[4] = {sum[j].x, sum[j].y, sum[j].z, sum[j].w};
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (row + j < OUT && k + c < K) add_to(sums + (row + j) * K + k + c, parts[c], first);
        }
    }
}

/* The gradient of b[OUT]: sums += the column sums of y; if `first`, sums = them. Samples are added in
 * ascending order. */
template <int PITCH, int OUT>
__device__ __forceinline__ void bias_gradient(float *sums, const float *y, int samples, bool first)
{
    for (int i = threadIdx.x; i < OUT; i += 256) {
        float sum = 0;
        for (int s = 0; s < samples; s++) sum += y[s * PITCH + i];
        add_to(sums + i, sum, first);
    }
}

/* The total of a column of partial[blocks][SUMS]; each lane of a block has its own column. All threads call
 * it. Threads of the first warp get the totals. Warps share the rows, and are added in ascending order. */
template <unsigned SUMS>
__device__ __forceinline__ float column_total(const float *partial, unsigned column, unsigned blocks)
{
    const unsigned   WARPS = 256 / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __shared__ float part[WARPS][32];
    float            total = 0;
#pragma unroll 4
    for (unsigned block = warp; block < blocks && column < SUMS; block += WARPS)
        total += partial[(size_t)block * SUMS + column];
    part[warp][lane] = total;
    __syncthreads();
    for (unsigned other = 1; other < WARPS && warp == 0; other++) total += part[other][lane];
    return total;
}

/* A form of a training step's kernel. samples: of a tile. bytes: of shared memory. capability: the least
 * architecture that its code may be compiled for. Estimated clocks of a multiprocessor: staging: before the
 * first tile; tile: per tile; each: per sample if the steps are separate launches. */
struct step_form {
    int    samples, bytes, capability;
    double staging, tile, each;
};

/* Other estimated clocks. apart: what separate launches cost before the first sample, beyond one launch.
 * adding: to add a block's sums to another's. moving: to read a block's sums from memory, in a second
 * launch. */
struct step_costs {
    double apart, adding, moving;
};

struct step_choice {
    int    form; /* -1: none fits, or separate launches are estimated to be faster */
    size_t blocks;
    bool   again; /* a second launch adds the blocks' sums */
};

/* The form with the fewest estimated clocks for this GPU and batch. kernel: any form's kernel. */
inline step_choice step_choice_for(const step_form *forms, int count, const step_costs &costs,
                                   const void *kernel, int64_t batch, int multiprocessors)
{
    step_choice choice = {-1, 0, false};
    int         device = 0, shared_bytes = 0;
    double      least = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return choice;
    const int architecture = architecture_of(kernel, device);
    for (int i = 0; i < count; i++) {
        const size_t tiles = at_least((size_t)batch, (size_t)forms[i].samples),
                     blocks = clamped(tiles, (size_t)multiprocessors);
        const double gathering = 2 * ceil(sqrt((double)blocks)) * costs.adding;
        const double again = 4250 + costs.moving * (double)blocks / multiprocessors +
                             600 * ceil((double)blocks / 32);
        const double clocks = forms[i].staging + ceil((double)tiles / (double)blocks) * forms[i].tile +
                              4 * 600 + (gathering < again ? gathering : again);
        if (forms[i].bytes + 1024 > shared_bytes || forms[i].capability > architecture ||
            (least > 0 && clocks >= least))
            continue;
        least = clocks;
        choice = {clocks <= costs.apart + forms[i].each * (double)batch / multiprocessors ? i : -1, blocks,
                  again < gathering};
    }
    return choice;
}

/* network: a block evaluates tiles of SAMPLES samples in shared memory. T: the type of the products'
 * factors. WHOLE: shared memory holds the weights of all products at once; otherwise it holds one piece of a
 * weight at a time. */
struct simple_nn_network_evaluation_operands {
    const float *x_;
    const float *fc1_weight_;
    const float *fc1_bias_;
    const float *fc2_weight_;
    const float *fc2_bias_;
    float *t9_;
};

template <typename T, int SAMPLES, int FLOATS, bool WHOLE>
static __global__ void __launch_bounds__(256, 1)
    simple_nn_network_evaluation_kernel(const simple_nn_network_evaluation_operands o, int64_t batch)
{
    const int PITCH = 76;
    const int AT1 = step_of<T>(20) * 50;
    GPUNN__BLOCK_SHARED(values, SAMPLES * PITCH + FLOATS);
    float *const weights = values + SAMPLES * PITCH;
    if constexpr (WHOLE) {
        stage<T, 20>(weights, o.fc1_weight_, o.fc1_bias_, 50);
        stage<T, 50>(weights + AT1, o.fc2_weight_, o.fc2_bias_, 1);
        __syncthreads();
    }
    for (int64_t first = (int64_t)blockIdx.x * SAMPLES; first < batch;
         first += (int64_t)gridDim.x * SAMPLES) {
        const unsigned samples = (unsigned)(batch - first < SAMPLES ? batch - first : SAMPLES);
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < SAMPLES * 20; i += 256) {
            const unsigned e = i % 20;
            float *const own = values + i / 20 * PITCH;
            own[e + 52] = i < samples * 20 ? o.x_[first * 20 + i] : 0;
        }
        __syncthreads();
        linear<T, SAMPLES, PITCH, 20, 50, 1, true, WHOLE, FLOATS>(values, values + 52, weights, o.fc1_weight_,
                                                                  o.fc1_bias_);
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < SAMPLES * 50; i += 256) {
            const unsigned e = i % 50;
            float *const own = values + i / 50 * PITCH;
            simple_nn_apply_relu(own[e], &own[e]);
        }
        __syncthreads();
        linear<T, SAMPLES, PITCH, 50, 1, 1, true, WHOLE, FLOATS>(values + 52, values,
                                                                 weights + (WHOLE ? AT1 : 0), o.fc2_weight_,
                                                                 o.fc2_bias_);
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < SAMPLES * 1; i += 256) {
            float *const own = values + i * PITCH;
            simple_nn_apply_sigmoid(own[52], &own[52]);
        }
        __syncthreads();
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < samples * 1; i += 256) {
            float *const own = values + i * PITCH;
            store<1>(o.t9_, first * 1 + i, same<1>(own[52]));
        }
        __syncthreads();
    }
}

static int simple_nn_network_evaluation_form(int64_t batch, int multiprocessors)
{
    static const network_form forms[] = {
        {64, 25264, 0, true, 691, 3944, 34.5714},
        {16, 10672, 0, false, 691, 2319, 34.5714},
    };
    return form_for(forms, 2, (const void *)simple_nn_network_evaluation_kernel<float, 64, 1452, true>, batch, multiprocessors,
                    7650);
}

/* network */
static int simple_nn_network_evaluation(const gpunn_kernel_call *call)
{
    simple_nn_network_evaluation_operands o = {};
    o.x_ = (const float *)call->data[0];
    o.fc1_weight_ = (const float *)call->data[1];
    o.fc1_bias_ = (const float *)call->data[2];
    o.fc2_weight_ = (const float *)call->data[3];
    o.fc2_bias_ = (const float *)call->data[4];
    o.t9_ = (float *)call->data[5];
#define LAUNCH(T, SAMPLES, FLOATS, WHOLE)                                                             \
    GPUNN__LAUNCH_SHARED(                                                                             \
        call->stream, (SAMPLES * 76 + FLOATS) * sizeof(float),                                  \
        (simple_nn_network_evaluation_kernel<T, SAMPLES, FLOATS, WHOLE>),                                              \
        (unsigned)clamped(at_least((size_t)call->batch, SAMPLES), (size_t)call->multiprocessors * 4), \
        256, o, call->batch)
    switch (simple_nn_network_evaluation_form(call->batch, call->multiprocessors)) {
        case 0: LAUNCH(float, 64, 1452, true); break;
        case 1: LAUNCH(float, 16, 1452, true); break;
    default: return -(int)cudaErrorInvalidValue;
    }
#undef LAUNCH
    return -(int)cudaGetLastError();
}

/* No workspace is needed. SIZE_MAX declines the batch, for which separate launches are estimated to be
 * faster. */
static size_t simple_nn_network_evaluation_workspace(int64_t batch, int multiprocessors)
{
    return simple_nn_network_evaluation_form(batch, multiprocessors) < 0 ? SIZE_MAX : 0;
}

/* a training step: a block computes tiles of SAMPLES samples, forward and backward. Each block writes its
 * sums of the weights' gradients and of the loss; the last block, or a second launch, adds them. T: the type of
 * the products' factors. WHOLE: shared memory holds the weights of all products at once; otherwise it holds one
 * piece of a weight at a time. */
struct simple_nn_step_forward_operands {
    const float *x_;
    const float *fc1_weight_;
    const float *fc1_bias_;
    const float *fc2_weight_;
    const float *fc2_bias_;
    const float *y_;
    float *t9_;
    float *t11_;
    const float *grad_t11_;
    float *grad_fc1_weight_;
    bool add_grad_fc1_weight_;
    float *grad_fc1_bias_;
    bool add_grad_fc1_bias_;
    float *grad_fc2_weight_;
    bool add_grad_fc2_weight_;
    float *grad_fc2_bias_;
    bool add_grad_fc2_bias_;
    float    *partial; /* [block][1104] */
    unsigned *counters;
    int64_t   batch;
};

/* Writes the total of sum i to the gradient that it belongs to. */
static __device__ __forceinline__ void simple_nn_step_forward_give(const simple_nn_step_forward_operands &o, unsigned i,
                                                        float total)
{
    if (i < 1000) {
        if (o.grad_fc1_weight_) store_one(o.add_grad_fc1_weight_, o.grad_fc1_weight_, i, total);
    } else if (i < 1050) {
        if (o.grad_fc1_bias_) store_one(o.add_grad_fc1_bias_, o.grad_fc1_bias_, i - 1000, total);
    } else if (i < 1100) {
        if (o.grad_fc2_weight_) store_one(o.add_grad_fc2_weight_, o.grad_fc2_weight_, i - 1050, total);
    } else if (i < 1101) {
        if (o.grad_fc2_bias_) store_one(o.add_grad_fc2_bias_, o.grad_fc2_bias_, i - 1100, total);
    }
}

template <typename T, int SAMPLES, int FLOATS, bool WHOLE>
static __global__ void __launch_bounds__(256, 1)
    simple_nn_step_forward_kernel(const simple_nn_step_forward_operands o, bool gathers)
{
    const int PITCH = 132;
    const int AT1 = step_of<T>(20) * 50;
    GPUNN__BLOCK_SHARED(values, SAMPLES * PITCH + FLOATS);
    float *const weights = values + SAMPLES * PITCH, *const sums = o.partial + (size_t)blockIdx.x * 1104;
    const float  seed = *o.grad_t11_ / (float)o.batch;
    float        loss = 0;
    if constexpr (WHOLE) {
        stage<T, 20>(weights, o.fc1_weight_, o.fc1_bias_, 50);
        stage<T, 50>(weights + AT1, o.fc2_weight_, o.fc2_bias_, 1);
        __syncthreads();
    }
    for (int64_t at = blockIdx.x, first = at * SAMPLES; first < o.batch;
         at += gridDim.x, first = at * SAMPLES) {
        const unsigned samples = (unsigned)(o.batch - first < SAMPLES ? o.batch - first : SAMPLES);
        const bool     is_first = at < gridDim.x;
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < SAMPLES * 20; i += 256) {
            const unsigned e = i % 20;
            float *const own = values + i / 20 * PITCH;
            own[e + 104] = i < samples * 20 ? o.x_[first * 20 + i] : 0;
        }
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < SAMPLES * 1; i += 256) {
            float *const own = values + i * PITCH;
            own[52] = i < samples * 1 ? o.y_[first * 1 + i] : 0;
        }
        __syncthreads();
        linear<T, SAMPLES, PITCH, 20, 50, 1, true, WHOLE, FLOATS>(values, values + 104, weights,
                                                                  o.fc1_weight_, o.fc1_bias_);
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < SAMPLES * 50; i += 256) {
            const unsigned e = i % 50;
            float *const own = values + i / 50 * PITCH;
            simple_nn_step_relu(own[e], &own[e]);
        }
        __syncthreads();
        linear<T, SAMPLES, PITCH, 50, 1, 1, true, WHOLE, FLOATS>(values + 56, values,
                                                                 weights + (WHOLE ? AT1 : 0), o.fc2_weight_,
                                                                 o.fc2_bias_);
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < SAMPLES * 1; i += 256) {
            float *const own = values + i * PITCH;
            simple_nn_step_sigmoid(own[56], &own[56]);
        }
        __syncthreads();
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < SAMPLES * 1; i += 256) {
            float *const own = values + i * PITCH;
            simple_nn_step_binary_cross_entropy(own[52], own[56], &own[60]);
        }
        __syncthreads();
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < samples * 1; i += 256) {
            float *const own = values + i * PITCH;
            store<1>(o.t9_, first * 1 + i, same<1>(own[56]));
        }
        __syncthreads();
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < SAMPLES * 1; i += 256) {
            float *const own = values + i * PITCH;
            if (i < samples * 1) loss += own[60];
            own[124] = seed;
        }
        __syncthreads();
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < SAMPLES * 1; i += 256) {
            float *const own = values + i * PITCH;
            float d0;
            simple_nn_step_binary_cross_entropy_gradient(own[124], own[56], own[52], &d0);
            own[124] = d0;
        }
        __syncthreads();
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < SAMPLES * 1; i += 256) {
            float *const own = values + i * PITCH;
            float d0;
            simple_nn_step_sigmoid_gradient(own[56], own[124], &d0);
            own[124] = d0;
        }
        __syncthreads();
        operand_gradient<T, SAMPLES, PITCH, 50, 1, WHOLE, FLOATS>(values + 52, values + 124,
                                                                  weights + (WHOLE ? AT1 : 0), o.fc2_weight_,
                                                                  true);
        weight_gradient<PITCH, 50, 1, 1>(T(), sums + 1050, values + 124, values, (int)samples, is_first);
        bias_gradient<PITCH, 1>(sums + 1100, values + 124, (int)samples, is_first);
        __syncthreads();
        #pragma unroll 1
        for (unsigned i = threadIdx.x; i < SAMPLES * 50; i += 256) {
            const unsigned e = i % 50;
            float *const own = values + i / 50 * PITCH;
            float d0;
            simple_nn_step_relu_gradient(own[e], own[e + 52], &d0);
            own[e + 52] = d0;
        }
        __syncthreads();
        weight_gradient<PITCH, 20, 50, 1>(T(), sums, values + 52, values + 104, (int)samples, is_first);
        bias_gradient<PITCH, 50>(sums + 1000, values + 52, (int)samples, is_first);
        __syncthreads();
    }
    loss = reduce<256>(loss, sum());
    if (threadIdx.x < 1104 - 1101)
        sums[1101 + threadIdx.x] = threadIdx.x == 0 ? loss : 0;
    if (gathers && gathered<256, 1104>(o.partial, blockIdx.x, gridDim.x, 1, o.counters)) {
        for (unsigned i = threadIdx.x; i < 1101; i += 256)
            simple_nn_step_forward_give(o, i, o.partial[i]);
        if (threadIdx.x == 0) *o.t11_ = o.partial[1101] / (float)o.batch;
    }
}

/* The second launch: each lane of a block adds one sum over all blocks of the first launch. */
static __global__ void __launch_bounds__(256)
    simple_nn_step_forward_sums(const simple_nn_step_forward_operands o, unsigned blocks)
{
    const unsigned i = blockIdx.x * 32 + threadIdx.x % 32;
    const float    total = column_total<1104>(o.partial, i, blocks);
    if (threadIdx.x < 32 && i < 1101) simple_nn_step_forward_give(o, i, total);
    if (threadIdx.x < 32 && i == 1101) *o.t11_ = total / (float)o.batch;
}


/* The form of the kernel for a batch. */
static step_choice simple_nn_step_forward_choice(int64_t batch, int multiprocessors)
{
    static const step_form forms[] = {
        {64, 39600, 0, 691, 11678, 83.7143},
        {32, 22704, 0, 691, 7338, 83.7143},
        {16, 14256, 0, 691, 5306, 83.7143},
    };
    static const step_costs costs = {19550, 100, 315.429};
    return step_choice_for(forms, 3, costs, (const void *)simple_nn_step_forward_kernel<float, 64, 1452, true>, batch,
                           multiprocessors);
}

/* a training step */
static int simple_nn_step_forward(const gpunn_kernel_call *call)
{
    simple_nn_step_forward_operands o = {};
    const step_choice choice = simple_nn_step_forward_choice(call->batch, call->multiprocessors);
    o.x_ = (const float *)call->data[0];
    o.fc1_weight_ = (const float *)call->data[1];
    o.fc1_bias_ = (const float *)call->data[2];
    o.fc2_weight_ = (const float *)call->data[3];
    o.fc2_bias_ = (const float *)call->data[4];
    o.y_ = (const float *)call->data[5];
    o.t9_ = (float *)call->data[6];
    o.t11_ = (float *)call->data[7];
    o.grad_t11_ = (const float *)call->data[8];
    o.grad_fc1_weight_ = (float *)call->data[9];
    o.add_grad_fc1_weight_ = call->accumulate[9] != 0;
    o.grad_fc1_bias_ = (float *)call->data[10];
    o.add_grad_fc1_bias_ = call->accumulate[10] != 0;
    o.grad_fc2_weight_ = (float *)call->data[11];
    o.add_grad_fc2_weight_ = call->accumulate[11] != 0;
    o.grad_fc2_bias_ = (float *)call->data[12];
    o.add_grad_fc2_bias_ = call->accumulate[12] != 0;
    o.partial = (float *)call->workspace;
    o.counters = call->counters;
    o.batch = call->batch;
#define LAUNCH(T, SAMPLES, FLOATS, WHOLE)                                                          \
    GPUNN__LAUNCH_SHARED(call->stream, (SAMPLES * 132 + FLOATS) * sizeof(float),              \
                         (simple_nn_step_forward_kernel<T, SAMPLES, FLOATS, WHOLE>), (unsigned)choice.blocks, \
                         256, o, !choice.again)
    switch (choice.form) {
        case 0: LAUNCH(float, 64, 1452, true); break;
        case 1: LAUNCH(float, 32, 1452, true); break;
        case 2: LAUNCH(float, 16, 1452, true); break;
    default: return -(int)cudaErrorInvalidValue;
    }
#undef LAUNCH
    if (choice.again)
        GPUNN__LAUNCH_ON(call->stream, simple_nn_step_forward_sums, (unsigned)at_least(1101 + 1, 32), 256,
                         o, (unsigned)choice.blocks);
    return -(int)cudaGetLastError();
}

/* Bytes for the blocks' sums and the gradients of tables. SIZE_MAX declines the batch, for which separate
 * launches are estimated to be faster. */
static size_t simple_nn_step_forward_workspace(int64_t batch, int multiprocessors)
{
    const step_choice choice = simple_nn_step_forward_choice(batch, multiprocessors);
    return choice.form < 0 ? SIZE_MAX : area(choice.blocks * 1104);
}

/* simple_nn_g0_forward_0: t9 = sigmoid(fc2); t11 = mean(binary_cross_entropy(t9, y)); reads 8 and writes
 * 12 bytes per element. */
struct simple_nn_g0_forward_0_kernel_operands {
    const float *fc2;
    const float *grad_t11;
    const float *y;
    float *t9;
    float *grad_y;
    float *grad_fc2;
    float *t11;
    bool add_grad_y;
    bool add_grad_fc2;
    float count0;
    float *scalars; /* [block][sum] */
    unsigned *counters;
};

/* Computes U packs: first, first + step, ... All loads are issued before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void simple_nn_g0_forward_0_kernel_at(const simple_nn_g0_forward_0_kernel_operands &o, I first, I step,
                                             I packs, float *sums)
{
    if (first >= packs) return;
    const float in_grad_t11 = number(o.grad_t11[0]);
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    pack<V, float> in_fc2[U];
    load_each(in_fc2, o.fc2, at);
    pack<V, float> in_y[U];
    load_each(in_y, o.y, at);
    pack<V, float> old_grad_y[U] = {};
    if (o.add_grad_y) load_each(old_grad_y, o.grad_y, at);
    pack<V, float> old_grad_fc2[U] = {};
    if (o.add_grad_fc2) load_each(old_grad_fc2, o.grad_fc2, at);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
        numbers<V> out_t9;
        numbers<V> out_grad_y;
        numbers<V> out_grad_fc2;
#pragma unroll
        for (int j = 0; j < V; j++) {
            float add0;
            simple_nn_g0_forward_0(in_fc2[u][j], in_grad_t11, o.count0, in_y[u][j], &out_t9[j], &out_grad_y[j],
                                   &out_grad_fc2[j], &add0);
            sums[0] += add0;
        }
        store(o.t9, i, out_t9);
        if (o.grad_y) store(o.grad_y, i, plus_if(o.add_grad_y, out_grad_y, old_grad_y[u]));
        if (o.grad_fc2) store(o.grad_fc2, i, plus_if(o.add_grad_fc2, out_grad_fc2, old_grad_fc2[u]));
    }
}

template <int V>
static __global__ void __launch_bounds__(256)
    simple_nn_g0_forward_0_kernel(const simple_nn_g0_forward_0_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 1;
    float sums[1] = {};
    for (unsigned first = blockIdx.x * tile + threadIdx.x; first < packs; first += gridDim.x * tile)
        simple_nn_g0_forward_0_kernel_at<V, 1, unsigned>(o, first, 256, packs, sums);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        simple_nn_g0_forward_0_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX, sums);
#pragma unroll
    for (int s = 0; s < 1; s++) {
        const float total = reduce<256>(sums[s], sum());
        if (threadIdx.x == 0) o.scalars[(size_t)blockIdx.x * 1 + s] = total;
    }
    if (is_last_block(o.counters, gridDim.x)) {
        const float total0 = total_of<256>(o.scalars + 0, 1, gridDim.x);
        for (unsigned place = threadIdx.x; place < 1; place += 256) {
            float out_t11;
            simple_nn_g0_forward_0_final(total0, o.count0, &out_t11);
            store_one(false, o.t11, place, out_t11);
        }
    }
}

/* g0, forward: t9 = sigmoid(fc2); t11 = mean(binary_cross_entropy(t9, y)) */
static int simple_nn_g0_forward(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    const int multiprocessors = call->multiprocessors;
    char *const workspace = (char *)call->workspace;
    const size_t partials = 0;
    {
        const size_t n = (size_t)batch;
        simple_nn_g0_forward_0_kernel_operands o = {};
        o.fc2 = (const float *)call->data[0];
        o.grad_t11 = (const float *)call->data[6];
        o.y = (const float *)call->data[1];
        o.t9 = (float *)call->data[2];
        o.grad_y = (float *)call->data[5];
        o.grad_fc2 = (float *)call->data[4];
        o.t11 = (float *)call->data[3];
        o.add_grad_y = o.grad_y && call->accumulate[5] != 0;
        o.add_grad_fc2 = o.grad_fc2 && call->accumulate[4] != 0;
        o.count0 = (float)((size_t)batch);
        const bool wide = aligned(o.fc2, 16) && aligned(o.y, 16) && aligned(o.t9, 16) && aligned(o.grad_y, 16) && aligned(o.grad_fc2, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const unsigned blocks = (unsigned)clamped(at_least(n, 1024), (size_t)multiprocessors * 8);
        o.scalars = (float *)(workspace + partials);
        o.counters = call->counters;
        const size_t packs = wide ? n / 4 : n;
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, simple_nn_g0_forward_0_kernel<4>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 4));
        else
            GPUNN__LAUNCH_ON(call->stream, simple_nn_g0_forward_0_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
    }
    return -(int)cudaGetLastError();
}

static size_t simple_nn_g0_forward_workspace(int64_t batch, int multiprocessors)
{
    const size_t partials = 0;
    size_t most = 0; /* bytes for partial sums: the largest need of any launch */
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch;
        if (n / 4 > MOST) return SIZE_MAX;
        const unsigned blocks = (unsigned)clamped(at_least(n, 1024), (size_t)multiprocessors * 8);
        most = larger_of(most, area((size_t)blocks * 1));
    }
    return partials + most;
}

/* simple_nn_g1_evaluation_0: t11 = mean(binary_cross_entropy(t9, y)); reads 8 and writes 0 bytes per
 * element. */
struct simple_nn_g1_evaluation_0_kernel_operands {
    const float *t9;
    const float *y;
    float *t11;
    float count0;
    float *scalars; /* [block][sum] */
    unsigned *counters;
};

/* Computes U packs: first, first + step, ... All loads are issued before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void simple_nn_g1_evaluation_0_kernel_at(const simple_nn_g1_evaluation_0_kernel_operands &o, I first, I step,
                                             I packs, float *sums)
{
    if (first >= packs) return;
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    pack<V, float> in_t9[U];
    load_each(in_t9, o.t9, at);
    pack<V, float> in_y[U];
    load_each(in_y, o.y, at);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
#pragma unroll
        for (int j = 0; j < V; j++) {
            float add0;
            simple_nn_g1_evaluation_0(in_t9[u][j], in_y[u][j], &add0);
            sums[0] += add0;
        }
    }
}

template <int V>
static __global__ void __launch_bounds__(256)
    simple_nn_g1_evaluation_0_kernel(const simple_nn_g1_evaluation_0_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 1;
    float sums[1] = {};
    for (unsigned first = blockIdx.x * tile + threadIdx.x; first < packs; first += gridDim.x * tile)
        simple_nn_g1_evaluation_0_kernel_at<V, 1, unsigned>(o, first, 256, packs, sums);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        simple_nn_g1_evaluation_0_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX, sums);
#pragma unroll
    for (int s = 0; s < 1; s++) {
        const float total = reduce<256>(sums[s], sum());
        if (threadIdx.x == 0) o.scalars[(size_t)blockIdx.x * 1 + s] = total;
    }
    if (is_last_block(o.counters, gridDim.x)) {
        const float total0 = total_of<256>(o.scalars + 0, 1, gridDim.x);
        for (unsigned place = threadIdx.x; place < 1; place += 256) {
            float out_t11;
            simple_nn_g1_evaluation_0_final(total0, o.count0, &out_t11);
            store_one(false, o.t11, place, out_t11);
        }
    }
}

/* g1, evaluation: t11 = mean(binary_cross_entropy(t9, y)) */
static int simple_nn_g1_evaluation(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    const int multiprocessors = call->multiprocessors;
    char *const workspace = (char *)call->workspace;
    const size_t partials = 0;
    {
        const size_t n = (size_t)batch;
        simple_nn_g1_evaluation_0_kernel_operands o = {};
        o.t9 = (const float *)call->data[0];
        o.y = (const float *)call->data[1];
        o.t11 = (float *)call->data[2];
        o.count0 = (float)((size_t)batch);
        const bool wide = aligned(o.t9, 16) && aligned(o.y, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const unsigned blocks = (unsigned)clamped(at_least(n, 1024), (size_t)multiprocessors * 8);
        o.scalars = (float *)(workspace + partials);
        o.counters = call->counters;
        const size_t packs = wide ? n / 4 : n;
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, simple_nn_g1_evaluation_0_kernel<4>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 4));
        else
            GPUNN__LAUNCH_ON(call->stream, simple_nn_g1_evaluation_0_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
    }
    return -(int)cudaGetLastError();
}

static size_t simple_nn_g1_evaluation_workspace(int64_t batch, int multiprocessors)
{
    const size_t partials = 0;
    size_t most = 0; /* bytes for partial sums: the largest need of any launch */
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch;
        if (n / 4 > MOST) return SIZE_MAX;
        const unsigned blocks = (unsigned)clamped(at_least(n, 1024), (size_t)multiprocessors * 8);
        most = larger_of(most, area((size_t)blocks * 1));
    }
    return partials + most;
}

/* simple_nn_g2_evaluation_0: t15 = eq(gt(t9, t12), gt(y, t12)); reads 8 and writes 4 bytes per element. */
struct simple_nn_g2_evaluation_0_kernel_operands {
    const float *y;
    const float *t12;
    const float *t9;
    float *t15;
};

/* Computes U packs: first, first + step, ... All loads are issued before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void simple_nn_g2_evaluation_0_kernel_at(const simple_nn_g2_evaluation_0_kernel_operands &o, I first, I step,
                                             I packs)
{
    if (first >= packs) return;
    const float in_t12 = number(o.t12[0]);
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    pack<V, float> in_y[U];
    load_each(in_y, o.y, at);
    pack<V, float> in_t9[U];
    load_each(in_t9, o.t9, at);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
        numbers<V> out_t15;
#pragma unroll
        for (int j = 0; j < V; j++) {
            simple_nn_g2_evaluation_0(in_y[u][j], in_t12, in_t9[u][j], &out_t15[j]);
        }
        store(o.t15, i, out_t15);
    }
}

template <int V>
static __global__ void __launch_bounds__(256)
    simple_nn_g2_evaluation_0_kernel(const simple_nn_g2_evaluation_0_kernel_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = 256 * 1;
    simple_nn_g2_evaluation_0_kernel_at<V, 1, unsigned>(o, blockIdx.x * tile + threadIdx.x, 256, packs);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        simple_nn_g2_evaluation_0_kernel_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX);
}

/* g2, evaluation: t15 = eq(gt(t9, t12), gt(y, t12)) */
static int simple_nn_g2_evaluation(const gpunn_kernel_call *call)
{
    const int64_t batch = call->batch;
    {
        const size_t n = (size_t)batch;
        simple_nn_g2_evaluation_0_kernel_operands o = {};
        o.y = (const float *)call->data[2];
        o.t12 = (const float *)call->data[1];
        o.t9 = (const float *)call->data[0];
        o.t15 = (float *)call->data[3];
        const bool wide = aligned(o.y, 16) && aligned(o.t9, 16) && aligned(o.t15, 16);
        if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;
        const size_t packs = wide ? n / 4 : n;
        const unsigned blocks = (unsigned)clamped(at_least(packs, 256), MOST);
        if (wide)
            GPUNN__LAUNCH_ON(call->stream, simple_nn_g2_evaluation_0_kernel<4>, blocks, 256, o, (unsigned)packs, (unsigned)(n % 4));
        else
            GPUNN__LAUNCH_ON(call->stream, simple_nn_g2_evaluation_0_kernel<1>, blocks, 256, o, (unsigned)packs, 0u);
    }
    return -(int)cudaGetLastError();
}

static size_t simple_nn_g2_evaluation_workspace(int64_t batch, int multiprocessors)
{
    (void)batch, (void)multiprocessors;
    {
        const size_t n = (size_t)batch;
        if (n / 4 > MOST) return SIZE_MAX;
    }
    return 0;
}

/* sgd */
template <int V>
__device__ __forceinline__ void simple_nn_update0_at(const gpunn_update &u, const gpunn_update_numbers &n,
                                               float limit, size_t i)
{
    const pack<V, float> in_p = load<V>(u.parameter, i), gradient = load<V>(u.gradient, i);
    const float lr = n.lr;
    const float ahead = n.once[2];
    const float weight_decay = u.setting[3];
    const float behind = n.once[3];
    numbers<V> p;
#pragma unroll
    for (int j = 0; j < V; j++) {
        float g = gradient[j] * n.scale;
        g = g > limit ? limit : g < -limit ? -limit : g;
        simple_nn_update0_step(in_p[j], lr, ahead, g, weight_decay, behind, &p[j]);
    }
    store(u.parameter, i, p);
}

template <int V>
static __global__ void __launch_bounds__(256)
    simple_nn_update0_kernel(const gpunn_update u, const gpunn_update_numbers *in_memory)
{
    const gpunn_update_numbers n = *in_memory;
    const float                limit = u.gradient_limit > 0 ? u.gradient_limit : INFINITY;
    const size_t               i = blockIdx.x * (size_t)256 + threadIdx.x, packs = (size_t)u.count / V;
    if (!n.go) return;
    if (i < packs) simple_nn_update0_at<V>(u, n, limit, i);
    if (V > 1 && i < (size_t)u.count % V) simple_nn_update0_at<1>(u, n, limit, packs * V + i);
}

static int simple_nn_update0(const gpunn_update *u, const gpunn_update_numbers *in_memory, void *stream)
{
    const bool wide = aligned(u->parameter, 16) && aligned(u->gradient, 16);
    const unsigned blocks = (unsigned)at_least((size_t)u->count, wide ? 1024 : 256);
    if (wide)
        GPUNN__LAUNCH_ON(stream, simple_nn_update0_kernel<4>, blocks, 256, *u, in_memory);
    else
        GPUNN__LAUNCH_ON(stream, simple_nn_update0_kernel<1>, blocks, 256, *u, in_memory);
    return -(int)cudaGetLastError();
}

static const gpunn_kernel_launch simple_nn_launches[][GPUNN_KERNEL_DIRECTIONS] = {
    {{simple_nn_network_evaluation, simple_nn_network_evaluation_workspace}, {NULL, NULL}, {NULL, NULL}},
    {{NULL, NULL}, {simple_nn_step_forward, simple_nn_step_forward_workspace}, {NULL, NULL}},
    {{NULL, NULL}, {simple_nn_g0_forward, simple_nn_g0_forward_workspace}, {NULL, NULL}},
    {{simple_nn_g1_evaluation, simple_nn_g1_evaluation_workspace}, {NULL, NULL}, {NULL, NULL}},
    {{simple_nn_g2_evaluation, simple_nn_g2_evaluation_workspace}, {NULL, NULL}, {NULL, NULL}},
};
static const gpunn_kernel_update_launch simple_nn_updates[] = {
    simple_nn_update0,
};

} // namespace simple_nn_cuda

extern "C" const gpunn_kernel_cuda simple_nn_kernels_cuda = {
    GPUNN_KERNELS_ABI,
    SIMPLE_NN_KERNELS_STAMP,
    simple_nn_cuda::simple_nn_launches,
    simple_nn_cuda::simple_nn_updates,
};
