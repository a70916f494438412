/* ---- tiles in a warp's registers ---- *
 * A tensor of 16 M samples with N numbers each is a tile in the registers of a warp. It consists of pieces of
 * 16 samples by 8 numbers, in the layout of mma's accumulators: lane l holds two neighbouring numbers, from l
 * % 4 * 2 on, of sample l / 4, then those of sample l / 4 + 8. Numbers at and beyond N are undefined. */
__device__ __forceinline__ int lane_of_warp()
{
    return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32);
}

template <int M, int N> struct tile {
    static constexpr int pieces = (N + 7) / 8, count = M * pieces * 4;
    float                part[M][pieces][4];
    __device__ __forceinline__ float &operator[](int i)
    {
        return part[i / (pieces * 4)][i / 4 % pieces][i % 4];
    }
    __device__ __forceinline__ float operator[](int i) const
    {
        return part[i / (pieces * 4)][i / 4 % pieces][i % 4];
    }
    /* Index of this lane's number k of its row r. A lane holds pieces * 2 numbers of each of 2 M rows. */
    static __device__ __forceinline__ int place(int r, int k)
    {
        return (r / 2 * pieces + k / 2) * 4 + r % 2 * 2 + k % 2;
    }
    /* The column, in its sample, of this lane's element i. */
    static __device__ __forceinline__ int column(int i)
    {
        return i / 4 % pieces * 8 + lane_of_warp() % 4 * 2 + i % 2;
    }
    /* there(): whether element i is a column below N. within(): that column, or else the last one. */
    static __device__ __forceinline__ bool there(int i)
    {
        return i / 4 % pieces * 8 + 8 <= N || column(i) < N;
    }
    static __device__ __forceinline__ int within(int i)
    {
        return there(i) ? column(i) : N - 1;
    }
};

/* Rotates v: element j of the result is element (j + by) % 4 of v. */
__device__ __forceinline__ float4 turned(float4 v, int by)
{
    if (by & 1) v = make_float4(v.y, v.z, v.w, v.x);
    if (by & 2) v = make_float4(v.z, v.w, v.x, v.y);
    return v;
}

/* Transposes among four lanes: element j of the result is element `wanted` of v in lane first + j * apart.
 * own: this lane's position among its four. In each shuffle, all lanes that read the same lane need the same
 * element of it. */
__device__ __forceinline__ float4 exchanged(float4 v, int own, int first, int apart, int wanted)
{
    v = turned(v, own);
    v.x = __shfl_sync(0xFFFFFFFFu, v.x, first + wanted * apart);
    v.w = __shfl_sync(0xFFFFFFFFu, v.w, first + (wanted + 1) % 4 * apart);
    v.z = __shfl_sync(0xFFFFFFFFu, v.z, first + (wanted + 2) % 4 * apart);
    v.y = __shfl_sync(0xFFFFFFFFu, v.y, first + (wanted + 3) % 4 * apart);
    return turned(make_float4(v.x, v.w, v.z, v.y), 4 - wanted);
}

/* Makes a tile of the samples: each lane passes a pointer to its own sample, x[N]. */
template <int M, int N> __device__ __forceinline__ void gather(tile<M, N> &to, const float *x)
{
    const int lane = lane_of_warp();
#pragma unroll
    for (int k = 0; k < to.pieces * 2; k++) {
        const int    at = k / 2 * 8 + k % 2;
        const float4 own = make_float4(at < N ? x[at] : 0, at + 2 < N ? x[at + 2] : 0,
                                       at + 4 < N ? x[at + 4] : 0, at + 6 < N ? x[at + 6] : 0);
        const float4 got = exchanged(own, lane / 8, lane / 4, 8, lane % 4);
        to[to.place(0, k)] = got.x;
        to[to.place(1, k)] = got.y;
        if (M > 1) to[to.place(M * 2 - 2, k)] = got.z;
        if (M > 1) to[to.place(M * 2 - 1, k)] = got.w;
    }
}

/* The inverse of gather: each lane gets its own sample y[N] of the tile. */
template <int M, int N> __device__ __forceinline__ void scatter(float *y, const tile<M, N> &from)
{
    const int lane = lane_of_warp();
#pragma unroll
    for (int k = 0; k < from.pieces * 2; k++) {
        const int    at = k / 2 * 8 + k % 2;
        const float4 own = make_float4(from[from.place(0, k)], from[from.place(1, k)],
                                       from[from.place(M * 2 - 2, k)], from[from.place(M * 2 - 1, k)]);
        const float4 got = exchanged(own, lane % 4, lane % 8 * 4, 1, lane / 8);
        if (at < N) y[at] = got.x;
        if (at + 2 < N) y[at + 2] = got.y;
        if (at + 4 < N) y[at + 4] = got.z;
        if (at + 6 < N) y[at + 6] = got.w;
    }
}

/* This lane's element i of a piece of samples 16 m to 16 m + 15; 0 for columns at and beyond N. */
template <int M, int N>
__device__ __forceinline__ float number_of(const tile<M, N> &x, int m, int piece, int i)
{
    const int at = (m * x.pieces + piece) * 4 + i;
    return piece < x.pieces && x.there(at) ? x[at] : 0;
}

/* a = chunk c of samples 16 m to 16 m + 15, as the operand A of multiply_add. */
//@if tf32
template <int M, int K>
__device__ __forceinline__ void factors(tf32, unsigned (&a)[4], const tile<M, K> &x, int m, int c)
{
#pragma unroll
    for (int j = 0; j < 4; j++) a[j] = __float_as_uint(rounded_tf32(number_of(x, m, c, j % 2 * 2 + j / 2)));
}
//@end
//@if !tf32
template <typename T, int M, int K>
__device__ __forceinline__ void factors(T, unsigned (&a)[4], const tile<M, K> &x, int m, int c)
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        a[j] = two_halves(T(), number_of(x, m, c * 2 + j / 2, j % 2 * 2),
                          number_of(x, m, c * 2 + j / 2, j % 2 * 2 + 1));
}
//@end

/* y = x w^T + b, x [16 M][K], y [16 M][N]. w: packed by arrange(). b: padded to whole pieces, or NULL. Each
 * sum starts with the bias and adds the chunks in ascending order. */
template <typename T, int M, int K, int N, typename W>
__device__ __forceinline__ void product(tile<M, N> &y, const tile<M, K> &x, const W *w, const float *b)
{
    const int    CHUNKS = (K + chunk_of(T()) - 1) / chunk_of(T());
    const uint2 *lanes = (const uint2 *)w + lane_of_warp();
    unsigned     a[CHUNKS][M][4];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int m = 0; m < M; m++) factors(T(), a[c][m], x, m, c);
#pragma unroll
    for (int i = 0; i < y.count; i++) y[i] = b ? b[y.column(i)] : 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int n = 0; n < y.pieces; n++) {
            const uint2    two = lanes[(c * y.pieces + n) * 32];
            const unsigned words[2] = {two.x, two.y};
#pragma unroll
            for (int m = 0; m < M; m++) multiply_add(T(), y.part[m][n], a[c][m], words);
        }
}

/* Packs w[N][K] for product(): to[chunk][piece][lane] holds the lane's two words, with zeros beyond N and K.
 * Threads `first` of `step` share the work. */
template <typename T, int K, int N, typename W>
__host__ __device__ void arrange(W *to, const float *w, int first, int step)
{
    const int EACH = chunk_of(T()) / 4, PIECES = (N + 7) / 8,
              CHUNKS = (K + chunk_of(T()) - 1) / chunk_of(T());
    for (int i = first; i < CHUNKS * PIECES * 32 * EACH; i += step) {
        const int lane = i / EACH % 32, row = i / (EACH * 32) % PIECES * 8 + lane / 4;
        const int k = i / (EACH * 32 * PIECES) * chunk_of(T()) + i % EACH / 2 * 8 + lane % 4 * 2 + i % 2;
        to[i] = ${rounded}(row < N && k < K ? w[row * K + k] : 0);
    }
}

/* y = layer_norm(x) per sample; ROOT: rms_norm. w[N] and b[N] may be NULL. Four lanes share a row. */
template <bool ROOT, int M, int N>
__device__ __forceinline__ void norm_rows(tile<M, N> &y, const tile<M, N> &x, const float *w, const float *b,
                                          float eps)
{
#pragma unroll
    for (int r = 0; r < M * 2; r++) {
        float mean = 0, squares = 0;
#pragma unroll
        for (int k = 0; k < x.pieces * 2; k++)
            if (!ROOT && x.there(x.place(r, k))) mean += x[x.place(r, k)];
        mean = ROOT ? 0 : reduce<4>(mean, sum()) / N;
#pragma unroll
        for (int k = 0; k < x.pieces * 2; k++) {
            const float off = x.there(x.place(r, k)) ? x[x.place(r, k)] - mean : 0;
            squares += off * off;
        }
        const float scale = rsqrtf(reduce<4>(squares, sum()) / N + eps);
#pragma unroll
        for (int k = 0; k < x.pieces * 2; k++) {
            const int i = x.place(r, k), at = x.within(i);
            y[i] = (x[i] - mean) * scale * (w ? w[at] : 1) + (b ? b[at] : 0);
        }
    }
}

/* y = softmax(x) per sample; LOG: log_softmax. */
template <bool LOG, int M, int N>
__device__ __forceinline__ void softmax_rows(tile<M, N> &y, const tile<M, N> &x)
{
#pragma unroll
    for (int r = 0; r < M * 2; r++) {
        float top = larger::start(), total = 0;
#pragma unroll
        for (int k = 0; k < x.pieces * 2; k++)
            if (x.there(x.place(r, k))) top = larger()(top, x[x.place(r, k)]);
        top = reduce<4>(top, larger());
#pragma unroll
        for (int k = 0; k < x.pieces * 2; k++)
            if (x.there(x.place(r, k))) total += expf(x[x.place(r, k)] - top);
        total = reduce<4>(total, sum());
        const float shift = LOG ? top + logf(total) : 1 / total;
#pragma unroll
        for (int k = 0; k < x.pieces * 2; k++) {
            const int i = x.place(r, k);
            y[i] = LOG ? x[i] - shift : expf(x[i] - top) * shift;
        }
    }
}
