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

/* Two numbers in 16 bits each, to the nearest, ties to even; the first is the low half. */
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

/* Dropout's factors of pack i, 0 or 65536 / KEPT, as in gpunn_cuda.cu: eight elements share one number of Philox4x32-10, whose
 * key is the seed and whose counter is {elements / 8, site, step}. random: seed, step. */
template <int V, unsigned KEPT, typename I>
__device__ __forceinline__ numbers<V> kept(const uint64_t *random, unsigned site, I i)
{
    const uint64_t eighth = (uint64_t)i * V / 8, seed = random[0], step = random[1];
    const unsigned within = V == 8 ? 0 : (unsigned)((uint64_t)i * V % 8);
    unsigned       k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
    unsigned       c0 = (unsigned)eighth, c1 = site ^ (unsigned)(eighth >> 32) << 16;
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
__device__ __forceinline__ void kept_each(numbers<V> (&n)[N], const uint64_t *random, unsigned site, const I (&i)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) n[k] = kept<V, KEPT>(random, site, i[k]);
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

/* For the columns of a block, threadIdx.x: the sum of partial[slice * step + column] over all slices, dealt to threadIdx.y. */
__device__ __forceinline__ double reduce_slices(const float *partial, size_t step, unsigned slices, unsigned column,
                                                unsigned columns)
{
    __shared__ double part[1024];
    const unsigned    at = threadIdx.y * blockDim.x + threadIdx.x;
    double            total = 0;
    if (column < columns)
        for (unsigned slice = threadIdx.y; slice < slices; slice += blockDim.y) total += (double)partial[slice * step + column];
    __syncthreads(); /* of an earlier call: everybody has read part */
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

/* For reduce_slices: columns lie beside each other. */
inline dim3 final_threads(unsigned columns, unsigned slices)
{
    dim3 threads(power_of_2(columns));
    while (threads.y < slices && threads.x * threads.y < 1024) threads.y *= 2;
    return threads;
}

