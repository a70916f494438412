/* ---- networks ---- *
 * A block keeps a tile of samples in shared memory, PITCH floats from one sample to the next. Rows of weights
 * have such a pitch, too. Pitches are odd multiples of 4, so that neighbouring threads can read 16 bytes each
 * of their own rows without bank conflicts. */

__host__ __device__ constexpr int pitch_of(int count)
{
    return (count + 3) / 4 * 4 + ((count + 3) / 4 % 2 == 0 ? 4 : 0);
}

//@if tiles
/* The type of TF32 products, which round their operands to 10 mantissa bits. */
struct tf32 {
    unsigned bits;
};

/* x rounded to TF32: to nearest, ties away from 0. */
__host__ __device__ __forceinline__ float rounded_tf32(float x)
{
    unsigned bits;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#else
    memcpy(&bits, &x, sizeof bits);
    bits = x - x == 0 ? (bits + 0x1000u) & 0xFFFFE000u : bits;
#endif
    memcpy(&x, &bits, sizeof x);
    return x;
}
//@end

/* The k extent of one tensor-core instruction: the numbers of a row that it multiplies, in 8 words. 0: no
 * tensor cores. */
__host__ __device__ constexpr int chunk_of(float)
{
    return 0;
}
//@if tiles
__host__ __device__ constexpr int chunk_of(tf32)
{
    return 8;
}
template <typename T> __host__ __device__ constexpr int chunk_of(T)
{
    return 16;
}
//@end

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
//@if tiles
__device__ __forceinline__ float stored_as(tf32, float x)
{
    return x;
}
template <typename T> __device__ __forceinline__ float stored_as(T, float x)
{
    T two[2];
    put(two, x, 0);
    return number(two[0]);
}
//@end

/* Word i of a row x of `count` factors; 0 beyond them. ALL: no word asked for is beyond them. A word of two
 * 16-bit factors holds numbers k and k + 4, with k = 0 1 2 3 8 9 10 11 16 ... for i = 0, 1, 2, ... This way
 * neighbouring threads read neighbouring numbers. Any order is valid if both operands of a product use it. */
template <bool ALL> __device__ __forceinline__ float factor_word(float, const float *x, int i, int)
{
    return x[i];
}
//@if tiles
template <bool ALL> __device__ __forceinline__ float factor_word(tf32, const float *x, int i, int count)
{
    return rounded_tf32(ALL || i < count ? x[i] : 0);
}
template <bool ALL, typename T>
__device__ __forceinline__ float factor_word(T, const float *x, int i, int count)
{
    const int k = i / 4 * 8 + i % 4;
    return __uint_as_float(two_halves(T(), ALL || k < count ? x[k] : 0, ALL || k + 4 < count ? x[k + 4] : 0));
}
//@end

/* Copies `rows` rows of w[][K] into shared memory, each followed by its bias. b may be NULL (zeros). */
template <typename T, int K>
__device__ __forceinline__ void stage(float *to, const float *w, const float *b, int rows)
{
    const int WORDS = words_of<T>(K), STEP = step_of<T>(K);
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * WORDS; i += ${threads})
        to[i / WORDS * STEP + i % WORDS] = factor_word<false>(T(), w + i / WORDS * K, i % WORDS, K);
    for (int i = threadIdx.x; i < rows; i += ${threads}) to[i * STEP + WORDS] = b ? stored_as(T(), b[i]) : 0;
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
    const int SLOTS = SAMPLES < 32 ? SAMPLES : 32, OWN = SAMPLES / SLOTS, TEAMS = ${threads} / SLOTS,
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
#pragma unroll ${unroll}
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

//@if tiles
#ifndef GPUNN__MMA
/* d += a b by tensor cores. HALF: an instruction that takes half a chunk. */
#define GPUNN__MMA(instruction, d, a, b)                                            \
    asm volatile("mma.sync.aligned." instruction                                    \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define GPUNN__MMA_HALF(instruction, d, a0, a1, b)                                                      \
    asm volatile("mma.sync.aligned." instruction " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
                 : "r"(a0), "r"(a1), "r"(b))
#endif

/* d += a b for 16 rows by 8 columns, with one chunk of k. Lane l holds words l % 4 and l % 4 + 4 of row l / 4
 * of a, in a[0] and a[2], and of row l / 4 + 8, in a[1] and a[3]. It holds the same words of column l / 4 of
 * b. Of d it holds columns l % 4 * 2 and l % 4 * 2 + 1 of both rows. Source: PTX ISA, matrix fragments for
 * mma.m16n8k16 and mma.m16n8k8. */
__device__ __forceinline__ void multiply_add(bf16, float (&d)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap(); /* never launched: forms of the kernel name their least architecture */
#else
    GPUNN__MMA("m16n8k16.row.col.f32.bf16.bf16.f32", d, a, b);
#endif
}
__device__ __forceinline__ void multiply_add(tf32, float (&d)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    GPUNN__MMA("m16n8k8.row.col.f32.tf32.tf32.f32", d, a, b);
#endif
}
__device__ __forceinline__ void multiply_add(f16, float (&d)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 750
    __trap();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    GPUNN__MMA_HALF("m16n8k8.row.col.f32.f16.f16.f32", d, a[0], a[1], b[0]);
    GPUNN__MMA_HALF("m16n8k8.row.col.f32.f16.f16.f32", d, a[2], a[3], b[1]);
#else
    GPUNN__MMA("m16n8k16.row.col.f32.f16.f16.f32", d, a, b);
#endif
}

/* Adds chunk i / 8 of k to the sums of EACH tiles. x: the lane's first sample. row: its columns of the
 * weights. */
template <typename T, int PITCH, int K, bool ALL, int EACH>
__device__ __forceinline__ void multiply_chunk(float (&sum)[EACH][4], const float *x,
                                               const float *const (&row)[EACH], int i)
{
    unsigned a[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        a[j] = __float_as_uint(
            factor_word<ALL>(T(), x + j % 2 * 8 * PITCH, i + threadIdx.x % 4 + j / 2 * 4, K));
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const unsigned b[2] = {__float_as_uint(row[j][i]), __float_as_uint(row[j][i + 4])};
        multiply_add(T(), sum[j], a, b);
    }
}

/* The same by tensor cores. A warp computes up to eight tiles of eight columns, for 16 samples. Each sum
 * starts with the bias and adds the chunks in ascending order. */
template <int SAMPLES, int PITCH, int K, int EACH, bool, typename T>
__device__ __forceinline__ void multiply(T, float *y, const float *x, const float *w, int columns)
{
    const int SLOTS = SAMPLES / 16, TEAMS = ${threads} / 32 / SLOTS, STEP = step_of<T>(K),
              WORDS = words_of<T>(K);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = lane % 4;
    x += (warp % SLOTS * 16 + lane / 4) * PITCH;
    y += (warp % SLOTS * 16 + lane / 4) * PITCH;
#pragma unroll 1
    for (int first = warp / SLOTS; first * 8 < columns; first += TEAMS * EACH) {
        float        sum[EACH][4];
        const float *row[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int column = (first + j * TEAMS) * 8;
            row[j] = w + min(column + lane / 4, columns - 1) * STEP + own;
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[j][i] = w[min(column + own * 2 + i % 2, columns - 1) * STEP + WORDS];
        }
#pragma unroll ${unroll}
        for (int i = 0; i < K / chunk_of(T()) * 8; i += 8) multiply_chunk<T, PITCH, K, true>(sum, x, row, i);
        if constexpr (K % chunk_of(T()) > 0) multiply_chunk<T, PITCH, K, false>(sum, x, row, WORDS - 8);
#pragma unroll
        for (int j = 0; j < EACH; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int column = (first + j * TEAMS) * 8 + own * 2 + i % 2;
                if (column < columns) y[i / 2 * 8 * PITCH + column] = stored_as(T(), sum[j][i]);
            }
    }
}
//@end

/* y = x w^T + b for ROWS rows per sample: x [ROWS][K], y [ROWS][OUT]. WHOLE: the weights are already in
 * shared memory, at `staged`; otherwise they are copied there now, piece by piece. T: the type of the
 * factors. Ends with a barrier. */
template <typename T, int SAMPLES, int PITCH, int K, int OUT, int ROWS, bool ALIGNED, bool WHOLE, int FLOATS>
__device__ __forceinline__ void linear(float *y, const float *x, float *staged, const float *w,
                                       const float *b)
{
    constexpr bool TILED = chunk_of(T()) > 0;
    const int TEAMS = TILED ? ${threads} / 32 / (SAMPLES / 16) : ${threads} / (SAMPLES < 32 ? SAMPLES : 32);
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

/* Divides `count` items evenly into as few turns as possible, of at most `most` items. Returns the items per
 * turn. */
__host__ __device__ constexpr int even(int count, int most)
{
    return (count + (count + most - 1) / most - 1) / ((count + most - 1) / most);
}

/* A linear layer with long rows. All threads share each sum, for some columns and samples at a time. Each
 * warp writes the total of its lanes to the sample's `parts`; the warps are then added in ascending order,
 * after the bias. The weights are read from global memory. */
template <int SAMPLES, int PITCH, int K, int OUT, int ROWS>
__device__ __forceinline__ void long_linear(float *y, const float *x, float *parts, const float *w,
                                            const float *b)
{
    constexpr int WARPS = ${threads} / 32, EACH = even(OUT, ${columns}),
                  OWN = SAMPLES < ${rows} ? SAMPLES : ${rows};
    constexpr int TILES = SAMPLES / OWN, TURNS = (OUT + EACH - 1) / EACH * ROWS * TILES;
#pragma unroll 1
    for (int turn = 0; turn < TURNS; turn++) {
        const int sample = turn % TILES * OWN, row = turn / TILES % ROWS,
                  first = turn / (TILES * ROWS) * EACH;
        const float *own = x + sample * PITCH + row * K;
        float        total[EACH][OWN] = {};
#pragma unroll 4
        for (int k = threadIdx.x; k < K; k += ${threads}) {
            float number[OWN];
#pragma unroll
            for (int m = 0; m < OWN; m++) number[m] = own[m * PITCH + k];
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const float factor = w[min(first + j, OUT - 1) * K + k];
#pragma unroll
                for (int m = 0; m < OWN; m++) total[j][m] += number[m] * factor;
            }
        }
#pragma unroll
        for (int j = 0; j < EACH; j++)
#pragma unroll
            for (int m = 0; m < OWN; m++) {
                const float part = reduce<32>(total[j][m], sum());
                if (threadIdx.x % 32 == 0) parts[(sample + m) * PITCH + threadIdx.x / 32 * EACH + j] = part;
            }
        __syncthreads();
        for (int i = threadIdx.x; i < OWN * EACH; i += ${threads}) {
            const int column = first + i % EACH, at = (sample + i / EACH) * PITCH;
            float     result = b && column < OUT ? b[column] : 0;
            for (int warp = 0; warp < WARPS; warp++) result += parts[at + warp * EACH + i % EACH];
            if (column < OUT) y[at + row * OUT + column] = result;
        }
        __syncthreads();
    }
}

/* Calls row(to, from, thread, number) for every row; TEAM threads share a row. Thread t of them takes the
 * elements t, t + TEAM, ...; t = N means no element. Row r of a sample has the number sample * ROWS + r. It
 * begins at r / APART * APART * N + r % APART, and its N elements are APART floats apart. Ends with a
 * barrier. */
template <int PITCH, int ROWS, int N, int APART, typename Row>
__device__ __forceinline__ void each_row(int samples, float *y, const float *x, Row row)
{
    const int TEAM = (int)power_of_2(N), thread = threadIdx.x % TEAM;
#pragma unroll 1
    for (int first = 0; first < samples * ROWS; first += ${threads} / TEAM) {
        const int at = first + threadIdx.x / TEAM, r = at % ROWS;
        const int begin = at / ROWS * PITCH + r / APART * APART * N + r % APART;
        row(y + begin, x + begin, at < samples * ROWS ? thread : N, at);
    }
    __syncthreads();
}

/* mean = the row's mean, or 0 if ROOT (rms_norm); scale = 1 / sqrt(mean of (x - mean)^2 + eps). */
template <int TEAM, int N, bool ROOT>
__device__ __forceinline__ void moments(const float *x, int thread, float eps, float &mean, float &scale)
{
    float squares = 0;
    mean = 0;
    if (!ROOT) {
        for (int i = thread; i < N; i += TEAM) mean += x[i];
        mean = reduce<TEAM>(mean, sum()) / N;
    }
    for (int i = thread; i < N; i += TEAM) squares += (x[i] - mean) * (x[i] - mean);
    scale = rsqrtf(reduce<TEAM>(squares, sum()) / N + eps);
}

/* y = layer_norm(x) per row, or rms_norm(x) if ROOT. w[N] and b[N] may be NULL. S: the type y is rounded
 * to. */
template <typename S, int PITCH, int ROWS, int N, bool ROOT>
__device__ __forceinline__ void norm(int samples, float *y, const float *x, const float *w, const float *b,
                                     float eps)
{
    const int TEAM = (int)power_of_2(N);
    each_row<PITCH, ROWS, N, 1>(samples, y, x, [=](float *to, const float *from, int thread, int) {
        float mean, scale;
        moments<TEAM, N, ROOT>(from, thread, eps, mean, scale);
        for (int i = thread; i < N; i += TEAM)
            to[i] = stored_as(S(), (from[i] - mean) * scale * (w ? w[i] : 1) + (b ? b[i] : 0));
    });
}

/* y = softmax(x) per row, or log_softmax(x) if LOG. S: the type y is rounded to. */
template <typename S, int PITCH, int ROWS, int N, int APART, bool LOG>
__device__ __forceinline__ void softmax(int samples, float *y, const float *x)
{
    const int TEAM = (int)power_of_2(N);
    each_row<PITCH, ROWS, N, APART>(samples, y, x, [=](float *to, const float *from, int thread, int) {
        float top = larger::start(), total = 0;
        for (int i = thread; i < N; i += TEAM) top = larger()(top, from[i * APART]);
        top = reduce<TEAM>(top, larger());
        for (int i = thread; i < N; i += TEAM) total += expf(from[i * APART] - top);
        total = reduce<TEAM>(total, sum());
        const float shift = LOG ? top + logf(total) : 1 / total;
        for (int i = thread; i < N; i += TEAM)
            to[i * APART] = stored_as(S(),
                                      LOG ? from[i * APART] - shift : expf(from[i * APART] - top) * shift);
    });
}

/* A sliding window over images [H][W] with results [OH][OW]: kernel size, stride, padding and dilation. KH =
 * 0: the windows of an adaptive pool. `place` is the index of a result. */
template <int H, int W, int OH, int OW, int KH, int KW, int SH, int SW, int PH, int PW, int DH, int DW>
struct window {
    static constexpr int  h = H, w = W, places = OH * OW, kh = KH, kw = KW;
    static constexpr bool padded = PH > 0 || PW > 0;
    static __device__ __forceinline__ int row(int place, int cell)
    {
        return place / OW * SH - PH + cell * DH;
    }
    static __device__ __forceinline__ int column(int place, int cell)
    {
        return place % OW * SW - PW + cell * DW;
    }
    static __device__ __forceinline__ int rows(int place, int *begin, int *end)
    {
        return under<H, OH, KH, SH, PH>(place / OW, begin, end);
    }
    static __device__ __forceinline__ int columns(int place, int *begin, int *end)
    {
        return under<W, OW, KW, SW, PW>(place % OW, begin, end);
    }
    /* Along an axis, the window covers cells *begin to *end - 1. Returns their number, including cells in the
     * padding. */
    template <int IN, int OUT, int CELLS, int STRIDE, int PADDING>
    static __device__ __forceinline__ int under(int o, int *begin, int *end)
    {
        const int first = CELLS ? o * STRIDE - PADDING : o * IN / OUT;
        const int last = CELLS ? min(first + CELLS, IN + PADDING) : ((o + 1) * IN + OUT - 1) / OUT;
        *begin = max(first, 0);
        *end = min(last, IN);
        return last - first;
    }
};

/* Output channels of a convolution's group that a thread computes at once. It is fewer if threads would be
 * idle. */
__host__ __device__ constexpr int channels_of(int samples, int places, int groups, int out)
{
    const int even = samples * places * groups * out / ${threads},
              most = even < 1 ? 1 : even > ${channels} ? ${channels} : even;
    const int parts = (out + (most < out ? most : out) - 1) / (most < out ? most : out);
    return (out + parts - 1) / parts;
}

/* Convolution with GROUPS groups of IN input and OUT output channels; b may be NULL. Neighbouring threads
 * compute neighbouring results. They read neighbouring cells and the same weights, which stay in the L1
 * cache. A thread starts each sum with the bias, and adds in order of channel, row and column. It stores
 * end(sum). */
template <typename G, int SAMPLES, int PITCH, int GROUPS, int IN, int OUT, typename End>
__device__ __forceinline__ void convolve(float *y, const float *x, const float *w, const float *b, End end)
{
    constexpr int EACH = channels_of(SAMPLES, G::places, GROUPS, OUT), PARTS = (OUT + EACH - 1) / EACH,
                  CELLS = G::kh * G::kw;
#pragma unroll 1
    for (int i = threadIdx.x; i < SAMPLES * GROUPS * PARTS * G::places; i += ${threads}) {
        const int place = i % G::places, first = i / G::places % PARTS * EACH,
                  group = i / (G::places * PARTS) % GROUPS;
        const int    sample = i / (G::places * PARTS * GROUPS) * PITCH;
        const float *image = x + sample + group * IN * G::h * G::w, *row[EACH];
        float        sum[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int channel = group * OUT + min(first + j, OUT - 1);
            row[j] = w + channel * IN * CELLS;
            sum[j] = b ? b[channel] : 0;
        }
#pragma unroll 1
        for (int k = 0; k < IN * G::kh; k++) {
            const int at = G::row(place, k % G::kh);
#pragma unroll
            for (int n = 0; n < G::kw; n++) {
                const int  across = G::column(place, n);
                const bool inside = !G::padded || ((unsigned)at < G::h && (unsigned)across < G::w);
                const float own = inside ? image[(k / G::kh * G::h + at) * G::w + across] : 0;
#pragma unroll
                for (int j = 0; j < EACH; j++) sum[j] += own * row[j][k * G::kw + n];
            }
        }
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (first + j < OUT) y[sample + (group * OUT + first + j) * G::places + place] = end(sum[j]);
    }
    __syncthreads();
}

/* Average pool if MEAN, else max pool, of PLANES planes per sample. PADDED: the mean counts cells of the
 * padding. */
template <typename G, int PITCH, int PLANES, bool MEAN, bool PADDED>
__device__ __forceinline__ void pool(int samples, float *y, const float *x)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < samples * PLANES * G::places; i += ${threads}) {
        const int place = i % G::places, plane = i / G::places % PLANES,
                  sample = i / (G::places * PLANES) * PITCH;
        const float *image = x + sample + plane * G::h * G::w;
        float        total = 0, top = larger::start();
        int          top_row, end_row, left, right;
        const int    cells = G::rows(place, &top_row, &end_row) * G::columns(place, &left, &right);
#pragma unroll 1
        for (int j = top_row; j < end_row; j++)
#pragma unroll 1
            for (int k = left; k < right; k++) {
                total += image[j * G::w + k];
                top = larger()(top, image[j * G::w + k]);
            }
        const int counted = PADDED ? cells : (end_row - top_row) * (right - left);
        y[sample + plane * G::places + place] = MEAN ? total / counted : top;
    }
    __syncthreads();
}

/* batch_norm of one element. */
__device__ __forceinline__ float normalized(float x, float weight, float bias, float mean, float variance,
                                            float eps)
{
    return (x - mean) * (rsqrtf(variance + eps) * weight) + bias;
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
