/* ---- networks ---- *
 * Values of a tile's samples lie PITCH floats apart in shared memory, and rows of weights alike: odd multiples of 4, so that
 * neighbouring threads read 16 bytes each of their own row without a conflict of banks. */

__host__ __device__ constexpr int pitch_of(int count)
{
    return (count + 3) / 4 * 4 + ((count + 3) / 4 % 2 == 0 ? 4 : 0);
}

//@if tiles
/* Of products that round their operands to 10 bits of mantissa. */
struct tf32 {
    unsigned bits;
};

/* x as such a product takes it: the nearest, ties away from 0. */
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

/* How many numbers of a row one instruction of tensor cores multiplies, which take 8 words; 0: there is no such instruction. */
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

/* Words of a row of `count` factors, filled up with zeros to whole chunks. */
template <typename T> __host__ __device__ constexpr int words_of(int count)
{
    if constexpr (chunk_of(T()) > 0)
        return (count + chunk_of(T()) - 1) / chunk_of(T()) * 8;
    else
        return count;
}

/* Words from one row of a weight to the next, each with its bias. */
template <typename T> __host__ __device__ constexpr int step_of(int count)
{
    return pitch_of(words_of<T>(count) + 1);
}

/* Rows of a weight [OUT][K] that are in FLOATS of shared memory at once; tiles take eight columns each. */
template <typename T, int K, int OUT, bool WHOLE, int FLOATS> __host__ __device__ constexpr int rows_at_once()
{
    const int WIDE = chunk_of(T()) > 0 ? 8 : 1, ROOM = FLOATS / step_of<T>(K);
    return WHOLE || ROOM >= OUT ? OUT : ROOM / WIDE * WIDE;
}

/* A number as memory has it that stores numbers as T. */
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

/* Word i of a row x of factors, of which there are `count`; ALL: at least as many as are asked for. Words of 16 bits hold numbers k and
 * k + 4, with k = 0 1 2 3 8 9 10 11 16 ..., so that neighbouring threads read neighbouring numbers: any order will do in which both
 * factors of a product have their numbers. */
template <bool ALL> __device__ __forceinline__ float factor_word(float, const float *x, int i, int)
{
    return x[i];
}
//@if tiles
template <bool ALL> __device__ __forceinline__ float factor_word(tf32, const float *x, int i, int count)
{
    return rounded_tf32(ALL || i < count ? x[i] : 0);
}
template <bool ALL, typename T> __device__ __forceinline__ float factor_word(T, const float *x, int i, int count)
{
    const int k = i / 4 * 8 + i % 4;
    return __uint_as_float(two_halves(T(), ALL || k < count ? x[k] : 0, ALL || k + 4 < count ? x[k + 4] : 0));
}
//@end

/* Rows of w[][K] and behind each row its bias; b may be NULL. */
template <typename T, int K> __device__ __forceinline__ void stage(float *to, const float *w, const float *b, int rows)
{
    const int WORDS = words_of<T>(K), STEP = step_of<T>(K);
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * WORDS; i += ${threads})
        to[i / WORDS * STEP + i % WORDS] = factor_word<false>(T(), w + i / WORDS * K, i % WORDS, K);
    for (int i = threadIdx.x; i < rows; i += ${threads}) to[i * STEP + WORDS] = b ? stored_as(T(), b[i]) : 0;
}

/* Four numbers of a row. ALIGNED: to 16 bytes. */
template <bool ALIGNED> __device__ __forceinline__ float4 four(const float *x)
{
    float4 v;
    if constexpr (ALIGNED)
        v = *(const float4 *)x;
    else
        v.x = x[0], v.y = x[1], v.z = x[2], v.w = x[3];
    return v;
}

/* y = x w^T + b for `columns` rows of w: a thread has up to eight columns of up to two samples. Each sum is one thread's, from the
 * bias on, by rising k. */
template <int SAMPLES, int PITCH, int K, int EACH, bool ALIGNED>
__device__ __forceinline__ void multiply(float, float *y, const float *x, const float *w, int columns)
{
    const int SLOTS = SAMPLES < 32 ? SAMPLES : 32, OWN = SAMPLES / SLOTS, TEAMS = ${threads} / SLOTS, STEP = step_of<float>(K);
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
/* d += a b by tensor cores; HALF: of half a chunk. */
#define GPUNN__MMA(instruction, d, a, b)                                                                              \
    asm volatile("mma.sync.aligned." instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"   \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define GPUNN__MMA_HALF(instruction, d, a0, a1, b)                                                                    \
    asm volatile("mma.sync.aligned." instruction " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"               \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                     \
                 : "r"(a0), "r"(a1), "r"(b))
#endif

/* d += a b, of 16 rows by 8 columns, a chunk of factors each. Lane l has of a the words l % 4 and l % 4 + 4 of rows l / 4 and, in odd
 * places, l / 4 + 8; of b those words of column l / 4; of d columns l % 4 * 2 and the next one of both rows. (PTX ISA, matrix
 * fragments for mma.m16n8k16 and mma.m16n8k8.) */
__device__ __forceinline__ void multiply_add(bf16, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap(); /* no form of a kernel is for it */
#else
    GPUNN__MMA("m16n8k16.row.col.f32.bf16.bf16.f32", d, a, b);
#endif
}
__device__ __forceinline__ void multiply_add(tf32, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    GPUNN__MMA("m16n8k8.row.col.f32.tf32.tf32.f32", d, a, b);
#endif
}
__device__ __forceinline__ void multiply_add(f16, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
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

/* The sums of EACH tiles, of chunk i / 8 more: x is a lane's first sample, row its columns of the weights. */
template <typename T, int PITCH, int K, bool ALL, int EACH>
__device__ __forceinline__ void multiply_chunk(float (&sum)[EACH][4], const float *x, const float *const (&row)[EACH], int i)
{
    unsigned a[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        a[j] = __float_as_uint(factor_word<ALL>(T(), x + j % 2 * 8 * PITCH, i + threadIdx.x % 4 + j / 2 * 4, K));
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const unsigned b[2] = {__float_as_uint(row[j][i]), __float_as_uint(row[j][i + 4])};
        multiply_add(T(), sum[j], a, b);
    }
}

/* The same by tensor cores: a warp has up to eight times eight columns of 16 samples. Each sum goes from the bias on by rising chunks. */
template <int SAMPLES, int PITCH, int K, int EACH, bool, typename T>
__device__ __forceinline__ void multiply(T, float *y, const float *x, const float *w, int columns)
{
    const int SLOTS = SAMPLES / 16, TEAMS = ${threads} / 32 / SLOTS, STEP = step_of<T>(K), WORDS = words_of<T>(K);
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
            for (int i = 0; i < 4; i++) sum[j][i] = w[min(column + own * 2 + i % 2, columns - 1) * STEP + WORDS];
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

/* A linear layer of ROWS rows a sample. Its weights are staged already, at `staged`, or are, piece by piece, now. T: of its factors. */
template <typename T, int SAMPLES, int PITCH, int K, int OUT, int ROWS, bool ALIGNED, bool WHOLE, int FLOATS>
__device__ __forceinline__ void linear(float *y, const float *x, float *staged, const float *w, const float *b)
{
    constexpr bool TILED = chunk_of(T()) > 0;
    const int      TEAMS = TILED ? ${threads} / 32 / (SAMPLES / 16) : ${threads} / (SAMPLES < 32 ? SAMPLES : 32);
    const int      PIECE = rows_at_once<T, K, OUT, WHOLE, FLOATS>(), TILES = TILED ? (PIECE + 7) / 8 : PIECE;
    const int      EACH = TILES > 4 * TEAMS ? 8 : TILES > 2 * TEAMS ? 4 : TILES > TEAMS ? 2 : 1;
#pragma unroll 1
    for (int first = 0; first < OUT; first += PIECE) {
        const int columns = min(PIECE, OUT - first);
        if constexpr (!WHOLE) {
            stage<T, K>(staged, w + first * K, b ? b + first : b, columns);
            __syncthreads();
        }
#pragma unroll 1
        for (int row = 0; row < ROWS; row++)
            multiply<SAMPLES, PITCH, K, EACH, ALIGNED>(T(), y + row * OUT + first, x + row * K, staged, columns);
        __syncthreads();
    }
}

/* At most `most` at once of so many, so that turns are alike. */
__host__ __device__ constexpr int even(int count, int most)
{
    return (count + (count + most - 1) / most - 1) / ((count + most - 1) / most);
}

/* The same of long rows: all threads have a part of each sum, of some columns and samples at once. Warps leave what their lanes'
 * parts add up to in the samples' own `parts`. The weights are read where the call has them. */
template <int SAMPLES, int PITCH, int K, int OUT, int ROWS>
__device__ __forceinline__ void long_linear(float *y, const float *x, float *parts, const float *w, const float *b)
{
    constexpr int WARPS = ${threads} / 32, EACH = even(OUT, ${columns}), OWN = SAMPLES < ${rows} ? SAMPLES : ${rows};
    constexpr int TILES = SAMPLES / OWN, TURNS = (OUT + EACH - 1) / EACH * ROWS * TILES;
#pragma unroll 1
    for (int turn = 0; turn < TURNS; turn++) {
        const int    sample = turn % TILES * OWN, row = turn / TILES % ROWS, first = turn / (TILES * ROWS) * EACH;
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

/* One row for each TEAM of threads, which take its elements thread, thread + TEAM, ...; N: none. Row r of a sample, number
 * sample * ROWS + r, begins at r / APART * APART * N + r % APART, and its N elements lie APART apart. */
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

/* Of a row: its mean (ROOT, rms_norm: 0) and 1 / its deviation. */
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

/* w and b: NULL, where there are none. ROOT: rms_norm. S: as what y is stored. */
template <typename S, int PITCH, int ROWS, int N, bool ROOT>
__device__ __forceinline__ void norm(int samples, float *y, const float *x, const float *w, const float *b, float eps)
{
    const int TEAM = (int)power_of_2(N);
    each_row<PITCH, ROWS, N, 1>(samples, y, x, [=](float *to, const float *from, int thread, int) {
        float mean, scale;
        moments<TEAM, N, ROOT>(from, thread, eps, mean, scale);
        for (int i = thread; i < N; i += TEAM)
            to[i] = stored_as(S(), (from[i] - mean) * scale * (w ? w[i] : 1) + (b ? b[i] : 0));
    });
}

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
            to[i * APART] = stored_as(S(), LOG ? from[i * APART] - shift : expf(from[i * APART] - top) * shift);
    });
}

/* How windows slide over images [H][W] to results [OH][OW]: with these cells, strides, paddings and dilations. KH 0: an adaptive pool's,
 * which cover the image evenly. */
template <int H, int W, int OH, int OW, int KH, int KW, int SH, int SW, int PH, int PW, int DH, int DW> struct window {
    static constexpr int h = H, w = W, places = OH * OW, kh = KH, kw = KW;
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
    /* The cells of a pool's window along an axis, begin .. end - 1; their number with those of the padding. */
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

/* Results of a group of a convolution that a thread has at once: fewer, where threads are left over. */
__host__ __device__ constexpr int channels_of(int samples, int places, int groups, int out)
{
    const int even = samples * places * groups * out / ${threads}, most = even < 1 ? 1 : even > ${channels} ? ${channels} : even;
    const int parts = (out + (most < out ? most : out) - 1) / (most < out ? most : out);
    return (out + parts - 1) / parts;
}

/* y = x * w + b of GROUPS groups of IN channels to OUT; b may be NULL. Neighbouring threads have neighbouring places, so that they read
 * neighbouring cells and the same weights, which stay in the first-level cache. Each sum is one thread's, from the bias on, by rising
 * channel, row and column; end() of it is stored. */
template <typename G, int SAMPLES, int PITCH, int GROUPS, int IN, int OUT, typename End>
__device__ __forceinline__ void convolve(float *y, const float *x, const float *w, const float *b, End end)
{
    constexpr int EACH = channels_of(SAMPLES, G::places, GROUPS, OUT), PARTS = (OUT + EACH - 1) / EACH, CELLS = G::kh * G::kw;
#pragma unroll 1
    for (int i = threadIdx.x; i < SAMPLES * GROUPS * PARTS * G::places; i += ${threads}) {
        const int    place = i % G::places, first = i / G::places % PARTS * EACH, group = i / (G::places * PARTS) % GROUPS;
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

/* MEAN, or the largest. PADDED: cells of the padding count in the mean. */
template <typename G, int PITCH, int PLANES, bool MEAN, bool PADDED>
__device__ __forceinline__ void pool(int samples, float *y, const float *x)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < samples * PLANES * G::places; i += ${threads}) {
        const int    place = i % G::places, plane = i / G::places % PLANES, sample = i / (G::places * PLANES) * PITCH;
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
__device__ __forceinline__ float normalized(float x, float weight, float bias, float mean, float variance, float eps)
{
    return (x - mean) * (rsqrtf(variance + eps) * weight) + bias;
}

/* The architecture that a kernel's code for GPU `device` was compiled for, 10 * major + minor: __CUDA_ARCH__ / 10 in that code. The GPU
 * may be newer: then the driver compiled the kernel's PTX. 0: there is no code. One answer holds for all kernels of this file. */
inline int architecture_of(const void *kernel, int device)
{
    static thread_local int known = -1, architecture = 0; /* the runtime takes longer to answer than to launch a kernel */
    cudaFuncAttributes      code;
    if (device == known) return architecture;
    if (cudaFuncGetAttributes(&code, kernel) != cudaSuccess) return 0;
    known = device;
    architecture = code.ptxVersion;
    return architecture;
}

/* A form of a network's kernel. capability: the least architecture its code may be compiled for. fills: for batches alone of which each
 * multiprocessor gets a tile. Clocks of a multiprocessor, by arithmetic: before the first tile, for each, and for each sample where
 * steps are by themselves. */
struct network_form {
    int    samples, bytes, capability;
    bool   fills;
    double staging, tile, each;
};

/* The form for this GPU and batch, where `kernel` is one of them; -1: none fits, or steps by themselves should take less than it, with
 * `apart` clocks before their first sample. */
inline int form_for(const network_form *forms, int count, const void *kernel, int64_t batch, int multiprocessors, double apart)
{
    int device = 0, room = 0, i = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return -1;
    const int architecture = architecture_of(kernel, device);
    while (i < count && (forms[i].bytes > room || forms[i].capability > architecture ||
                         (forms[i].fills && batch < (int64_t)multiprocessors * forms[i].samples)))
        i++;
    if (i == count) return -1;
    const double tiles = ceil((double)batch / ((double)multiprocessors * forms[i].samples));
    return forms[i].staging + tiles * forms[i].tile <= apart + forms[i].each * (double)batch / multiprocessors ? i : -1;
}
