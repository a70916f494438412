/* ---- networks ---- *
 * Values of a tile's samples lie PITCH floats apart in shared memory, and rows of weights alike: odd multiples of 4, so that
 * neighbouring threads read 16 bytes each of their own row without a conflict of banks. */

__host__ __device__ constexpr int pitch_of(int count)
{
    return (count + 3) / 4 * 4 + ((count + 3) / 4 % 2 == 0 ? 4 : 0);
}

/* Rows of w[][K] and behind each row its bias; b may be NULL. */
template <int K> __device__ __forceinline__ void stage(float *to, const float *w, const float *b, int rows)
{
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * K; i += ${threads}) to[i / K * pitch_of(K + 1) + i % K] = w[i];
    for (int i = threadIdx.x; i < rows; i += ${threads}) to[i * pitch_of(K + 1) + K] = b ? b[i] : 0;
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
__device__ __forceinline__ void multiply(float *y, const float *x, const float *w, int columns)
{
    const int SLOTS = SAMPLES < 32 ? SAMPLES : 32, OWN = SAMPLES / SLOTS, TEAMS = ${threads} / SLOTS, STEP = pitch_of(K + 1);
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

/* A linear layer of ROWS rows a sample. Its weights are staged already, at `staged`, or are, piece by piece, now. */
template <int SAMPLES, int PITCH, int K, int OUT, int ROWS, bool ALIGNED, bool WHOLE, int FLOATS>
__device__ __forceinline__ void linear(float *y, const float *x, float *staged, const float *w, const float *b)
{
    const int TEAMS = ${threads} / (SAMPLES < 32 ? SAMPLES : 32), ROOM = FLOATS / pitch_of(K + 1);
    const int PIECE = WHOLE || ROOM > OUT ? OUT : ROOM;
    const int EACH = PIECE > 4 * TEAMS ? 8 : PIECE > 2 * TEAMS ? 4 : PIECE > TEAMS ? 2 : 1;
#pragma unroll 1
    for (int first = 0; first < OUT; first += PIECE) {
        const int columns = min(PIECE, OUT - first);
        if constexpr (!WHOLE) {
            stage<K>(staged, w + first * K, b ? b + first : b, columns);
            __syncthreads();
        }
#pragma unroll 1
        for (int row = 0; row < ROWS; row++)
            multiply<SAMPLES, PITCH, K, EACH, ALIGNED>(y + row * OUT + first, x + row * K, staged, columns);
        __syncthreads();
    }
}

/* One row for each TEAM of threads, which take its elements thread, thread + TEAM, ...; N: none. Row r of a sample begins at
 * r / APART * APART * N + r % APART, and its N elements lie APART apart. */
template <int PITCH, int ROWS, int N, int APART, typename Row>
__device__ __forceinline__ void each_row(int samples, float *y, const float *x, Row row)
{
    const int TEAM = (int)power_of_2(N), thread = threadIdx.x % TEAM;
#pragma unroll 1
    for (int first = 0; first < samples * ROWS; first += ${threads} / TEAM) {
        const int at = first + threadIdx.x / TEAM, r = at % ROWS;
        const int begin = at / ROWS * PITCH + r / APART * APART * N + r % APART;
        row(y + begin, x + begin, at < samples * ROWS ? thread : N);
    }
    __syncthreads();
}

/* w and b: NULL, where there are none. ROOT: rms_norm. */
template <int PITCH, int ROWS, int N, bool ROOT>
__device__ __forceinline__ void norm(int samples, float *y, const float *x, const float *w, const float *b, float eps)
{
    const int TEAM = (int)power_of_2(N);
    each_row<PITCH, ROWS, N, 1>(samples, y, x, [=](float *to, const float *from, int thread) {
        float mean = 0, squares = 0;
        if (!ROOT) {
            for (int i = thread; i < N; i += TEAM) mean += from[i];
            mean = reduce<TEAM>(mean, sum()) / N;
        }
        for (int i = thread; i < N; i += TEAM) squares += (from[i] - mean) * (from[i] - mean);
        const float scale = rsqrtf(reduce<TEAM>(squares, sum()) / N + eps);
        for (int i = thread; i < N; i += TEAM) to[i] = (from[i] - mean) * scale * (w ? w[i] : 1) + (b ? b[i] : 0);
    });
}

template <int PITCH, int ROWS, int N, int APART, bool LOG>
__device__ __forceinline__ void softmax(int samples, float *y, const float *x)
{
    const int TEAM = (int)power_of_2(N);
    each_row<PITCH, ROWS, N, APART>(samples, y, x, [=](float *to, const float *from, int thread) {
        float top = larger::start(), total = 0;
        for (int i = thread; i < N; i += TEAM) top = larger()(top, from[i * APART]);
        top = reduce<TEAM>(top, larger());
        for (int i = thread; i < N; i += TEAM) total += expf(from[i * APART] - top);
        total = reduce<TEAM>(total, sum());
        const float shift = LOG ? top + logf(total) : 1 / total;
        for (int i = thread; i < N; i += TEAM)
            to[i * APART] = LOG ? from[i * APART] - shift : expf(from[i * APART] - top) * shift;
    });
}

/* A form of a network's kernel. fills: for batches alone of which each multiprocessor gets a tile. Clocks of a multiprocessor, by
 * arithmetic: before the first tile, and for each. */
struct network_form {
    int    samples, bytes;
    bool   fills;
    double staging, tile;
};

/* The form for this GPU and batch; -1: none fits, or steps by themselves should take less than it, which is `apart` clocks and
 * `each` for each sample of a multiprocessor. */
inline int form_for(const network_form *forms, int count, int64_t batch, int multiprocessors, double apart, double each)
{
    int device = 0, room = 0, i = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return -1;
    while (i < count && (forms[i].bytes > room || (forms[i].fills && batch < (int64_t)multiprocessors * forms[i].samples))) i++;
    if (i == count) return -1;
    const double tiles = ceil((double)batch / ((double)multiprocessors * forms[i].samples));
    return forms[i].staging + tiles * forms[i].tile <= apart + each * (double)batch / multiprocessors ? i : -1;
}
