/* Most packs of a launch whose index is an `unsigned`: a last step beyond them does not overflow. */
const size_t MOST = 0xF0000000u;

/* The smallest power of 2 >= count, at most 32. */
__host__ __device__ constexpr unsigned power_of_2(unsigned count)
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

/* Loads the N packs i[0], i[1], ... */
template <int V, typename T, typename I, int N>
__device__ __forceinline__ void load_each(pack<V, T> (&p)[N], const T *data, const I (&i)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) p[k] = load<V>(data, i[k]);
}

/* Returns zeros, and reads nothing, if `there` is false. */
template <int V, typename T, typename I>
__device__ __forceinline__ pack<V, T> load_if(bool there, const T *data, I i)
{
    if (there) return load<V>(data, i);
    return pack<V, T>();
}

/* Reads a broadcast operand: element e of pack i is data[STRIDE * (e / DIV % MOD)]. MOD = 0: no modulo. */
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

/* Dropout factors of pack i, 0 or 65536 / KEPT, as in gpunn_cuda.cu. KEPT / 65536 is the probability to keep
 * an element. Eight elements share one 128-bit output of Philox4x32-10, 16 bits each. The key is the seed;
 * the counter is {element / 8, random_stream, step}. random: {seed, step}. */
template <int V, unsigned KEPT, typename I>
__device__ __forceinline__ numbers<V> kept(const uint64_t *random, unsigned random_stream, I i)
{
    const uint64_t eighth = (uint64_t)i * V / 8, seed = random[0], step = random[1];
    const unsigned within = V == 8 ? 0 : (unsigned)((uint64_t)i * V % 8);
    unsigned       k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
    unsigned       c0 = (unsigned)eighth, c1 = random_stream ^ (unsigned)(eighth >> 32) << 16;
    unsigned       c2 = (unsigned)step, c3 = (unsigned)(step >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const unsigned high0 = __umulhi(0xD2511F53u, c0), high2 = __umulhi(0xCD9E8D57u, c2);
        const unsigned low0 = 0xD2511F53u * c0, low2 = 0xCD9E8D57u * c2;
        c0 = high2 ^ c1 ^ k0, c1 = low2, c2 = high0 ^ c3 ^ k1, c3 = low0;
    }
    numbers<V> n;
#pragma unroll
    for (int j = 0; j < V; j++) {
        const unsigned at = within + (unsigned)j, pair = at < 4 ? (at < 2 ? c0 : c1) : (at < 6 ? c2 : c3);
        n[j] = (pair >> 16 * (at % 2) & 0xFFFF) < KEPT ? 65536.0f / (float)KEPT : 0;
    }
    return n;
}

template <unsigned KEPT, int V, typename I, int N>
__device__ __forceinline__ void kept_each(numbers<V> (&n)[N], const uint64_t *random, unsigned random_stream,
                                          const I (&i)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) n[k] = kept<V, KEPT>(random, random_stream, i[k]);
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

/* Adds partial sums by column over the groups of TEAM threads of a block. Thread t of a group holds those of
 * packs first + t + k * TEAM. to[pack] = the block's sums. The warps are added in ascending order. */
template <int THREADS, int TEAM, int K, int V>
__device__ __forceinline__ void reduce_teams(numbers<V> (&value)[K], float *to, unsigned first,
                                             unsigned packs)
{
    const int        WARPS = TEAM < 32 ? THREADS / 32 : THREADS / TEAM;
    const unsigned   thread = threadIdx.x % TEAM, warp = threadIdx.x / (THREADS / WARPS);
    const bool       takes_part = threadIdx.x % (THREADS / WARPS) < TEAM;
    __shared__ float part[WARPS > 1 ? K * V * TEAM : 1];
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int j = 0; j < V; j++)
#pragma unroll
            for (int distance = TEAM; distance < 32; distance *= 2)
                value[k][j] += __shfl_xor_sync(0xFFFFFFFFu, value[k][j], distance);
    __syncthreads(); /* all threads have read `part` of an earlier call */
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

/* The sum of partial[slice * step + column] over all slices, in double. threadIdx.x is the column within the
 * block; threadIdx.y takes every blockDim.y-th slice. All threads of a column get its sum. */
__device__ __forceinline__ double reduce_slices(const float *partial, size_t step, unsigned slices,
                                                unsigned column, unsigned columns)
{
    __shared__ double part[1024];
    const unsigned    at = threadIdx.y * blockDim.x + threadIdx.x;
    double            total = 0;
    if (column < columns)
        for (unsigned slice = threadIdx.y; slice < slices; slice += blockDim.y)
            total += (double)partial[slice * step + column];
    __syncthreads(); /* all threads have read `part` of an earlier call */
    part[at] = total;
    for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half) part[at] += part[at + half * blockDim.x];
    }
    __syncthreads();
    return part[threadIdx.x];
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

/* The block for reduce_slices: x are neighbouring columns, y divides the slices. */
inline dim3 final_threads(unsigned columns, unsigned slices)
{
    dim3 threads(power_of_2(columns));
    while (threads.y < slices && threads.x * threads.y < 1024) threads.y *= 2;
    return threads;
}

