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
    const int SLOTS = SAMPLES < 32 ? SAMPLES : 32, OWN = SAMPLES / SLOTS, TEAMS = ${threads} / SLOTS,
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

//@if tiles
/* Word i of a column x of factors, one per sample, for `count` samples; 0 beyond them. A word of two 16-bit
 * factors holds two neighbouring samples. With this order, and with that of TF32, neighbouring lanes read
 * without bank conflicts. */
template <int PITCH> __device__ __forceinline__ unsigned sample_word(tf32, const float *x, int i, int count)
{
    const int sample = i / 8 * 8 + i % 4 * 2 + i / 4 % 2;
    return __float_as_uint(rounded_tf32(sample < count ? x[sample * PITCH] : 0));
}
template <int PITCH, typename T>
__device__ __forceinline__ unsigned sample_word(T, const float *x, int i, int count)
{
    return two_halves(T(), i * 2 < count ? x[i * 2 * PITCH] : 0,
                      i * 2 + 1 < count ? x[(i * 2 + 1) * PITCH] : 0);
}

/* Word i of a column w of staged weights, in the order of factor_word. Rows are STEP words apart. upper: a
 * 16-bit factor is in the upper half of the staged word. */
template <int STEP> __device__ __forceinline__ unsigned row_word(tf32, const float *w, bool, int i, int rows)
{
    return __float_as_uint(w[min(i, rows - 1) * STEP]);
}
template <int STEP, typename T>
__device__ __forceinline__ unsigned row_word(T, const float *w, bool upper, int i, int rows)
{
    const int      row = i / 4 * 8 + i % 4, shift = upper ? 16 : 0;
    const unsigned one = __float_as_uint(w[min(row, rows - 1) * STEP]) >> shift;
    const unsigned other = __float_as_uint(w[min(row + 4, rows - 1) * STEP]) >> shift;
    return (one & 0xFFFF) | other << 16;
}

/* add_rows by tensor cores. A warp computes up to eight tiles of eight columns, for 16 samples. It adds the
 * chunks in ascending order. */
template <int SAMPLES, int PITCH, int K, typename T>
__device__ __forceinline__ void add_rows(T, float *to, const float *y, const float *w, int rows, bool first)
{
    constexpr int SLOTS = SAMPLES / 16, TEAMS = ${threads} / 32 / SLOTS, STEP = step_of<T>(K),
                  CHUNK = chunk_of(T());
    constexpr int TILES = (K + 7) / 8,
                  EACH = TILES > 4 * TEAMS ? 8 : TILES > 2 * TEAMS ? 4 : TILES > TEAMS ? 2 : 1;
    const int     warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = lane % 4;
    const bool    upper = CHUNK == 16 && lane / 16 > 0;
    to += (warp % SLOTS * 16 + lane / 4) * PITCH;
    y += (warp % SLOTS * 16 + lane / 4) * PITCH;
#pragma unroll 1
    for (int tile = warp / SLOTS; tile < TILES; tile += TEAMS * EACH) {
        float        sum[EACH][4] = {};
        const float *column[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int at = min(tile + j * TEAMS, TILES - 1);
            column[j] = w + (CHUNK == 16 ? at * 4 + lane / 4 % 4 : at * 8 + lane / 4);
        }
#pragma unroll 1
        for (int row = 0; row < rows; row += CHUNK) {
            unsigned a[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                a[j] = __float_as_uint(
                    factor_word<false>(T(), y + j % 2 * 8 * PITCH + row, own + j / 2 * 4, rows - row));
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const unsigned b[2] = {
                    row_word<STEP>(T(), column[j] + row * STEP, upper, own, rows - row),
                    row_word<STEP>(T(), column[j] + row * STEP, upper, own + 4, rows - row)};
                multiply_add(T(), sum[j], a, b);
            }
        }
#pragma unroll
        for (int j = 0; j < EACH; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = (tile + j * TEAMS) * 8 + own * 2 + i % 2;
                if (at < K) add_to(to + i / 2 * 8 * PITCH + at, sum[j][i], first);
            }
    }
}
//@end

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
    for (int i = threadIdx.x; i < FOURS * ((OUT + ROWS - 1) / ROWS); i += ${threads}) {
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

//@if tiles
/* The same by tensor cores. A warp computes up to eight tiles of eight columns, for 16 rows. It adds chunks
 * of samples in ascending order. */
template <int PITCH, int K, int OUT, int, typename T>
__device__ __forceinline__ void weight_gradient(T, float *sums, const float *y, const float *x, int samples,
                                                bool first)
{
    constexpr int WARPS = ${threads} / 32, CHUNK = chunk_of(T()), TILES = (K + 7) / 8, ROWS = (OUT + 15) / 16,
                  ALL = TILES * ROWS;
    constexpr int EACH = ALL > 4 * WARPS ? 8 : ALL > 2 * WARPS ? 4 : ALL > WARPS ? 2 : 1,
                  GROUPS = (TILES + EACH - 1) / EACH;
    const int     lane = threadIdx.x % 32, own = lane % 4;
#pragma unroll 1
    for (int task = threadIdx.x / 32; task < ROWS * GROUPS; task += WARPS) {
        const int    row = task / GROUPS * 16 + lane / 4, tile = task % GROUPS * EACH;
        const float *of_y[2] = {y + min(row, OUT - 1), y + min(row + 8, OUT - 1)}, *of_x[EACH];
        float        sum[EACH][4] = {};
#pragma unroll
        for (int j = 0; j < EACH; j++) of_x[j] = x + min((tile + j) * 8 + lane / 4, K - 1);
#pragma unroll 1
        for (int s = 0; s < samples; s += CHUNK) {
            unsigned a[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                a[j] = sample_word<PITCH>(T(), of_y[j % 2] + s * PITCH, own + j / 2 * 4, samples - s);
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const unsigned b[2] = {sample_word<PITCH>(T(), of_x[j] + s * PITCH, own, samples - s),
                                       sample_word<PITCH>(T(), of_x[j] + s * PITCH, own + 4, samples - s)};
                multiply_add(T(), sum[j], a, b);
            }
        }
#pragma unroll
        for (int j = 0; j < EACH; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int to = row + i / 2 * 8, k = (tile + j) * 8 + own * 2 + i % 2;
                if (to < OUT && k < K) add_to(sums + to * K + k, sum[j][i], first);
            }
    }
}
//@end

/* The gradient of b[OUT]: sums += the column sums of y; if `first`, sums = them. Samples are added in
 * ascending order. */
template <int PITCH, int OUT>
__device__ __forceinline__ void bias_gradient(float *sums, const float *y, int samples, bool first)
{
    for (int i = threadIdx.x; i < OUT; i += ${threads}) {
        float sum = 0;
        for (int s = 0; s < samples; s++) sum += y[s * PITCH + i];
        add_to(sums + i, sum, first);
    }
}

/* Dropout of COUNT elements per sample, forward and backward: y += x * factors; if `first`, y = x * factors.
 * begin: the index in the batch of the tile's first sample. S: the type the products are rounded to. */
template <typename S, int SAMPLES, int PITCH, int COUNT, unsigned KEPT>
__device__ __forceinline__ void dropped(float *y, const float *x, const uint64_t *random,
                                        unsigned random_stream, int64_t begin, bool first)
{
    const int64_t at = begin * COUNT;
#pragma unroll 1
    for (int64_t i = at / 8 + threadIdx.x; i * 8 < at + SAMPLES * COUNT; i += ${threads}) {
        const numbers<8> factor = kept<8, KEPT>(random, random_stream, i);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int own = (int)(i * 8 - at) + j, place = own / COUNT * PITCH + own % COUNT;
            if (own >= 0 && own < SAMPLES * COUNT)
                add_to(y + place, stored_as(S(), x[place] * factor[j]), first);
        }
    }
}

/* The gradient of x for y = layer_norm(x), or rms_norm(x) if ROOT: dx += (k - mean(k) - h mean(k h)) * scale;
 * if `first`, dx = that. Here scale = 1 / deviation, h = (x - mean) * scale, k = dy w; rms_norm omits
 * mean(k). kept = each row's mean and scale, for norm_weight_gradient. If DX is false, only `kept` is
 * written. */
template <int PITCH, int ROWS, int N, bool ROOT, bool DX>
__device__ __forceinline__ void norm_gradient(int samples, float *dx, const float *dy, const float *x,
                                              const float *w, float *kept, float eps, bool first)
{
    const int TEAM = (int)power_of_2(N);
    each_row<PITCH, ROWS, N, 1>(samples, dx, x, [=](float *to, const float *from, int thread, int row) {
        const float *gradient = from + (dy - x);
        float       *own = kept + row / ROWS * PITCH + row % ROWS * 2;
        float        mean, scale, sums = 0, products = 0;
        moments<TEAM, N, ROOT>(from, thread, eps, mean, scale);
        if (thread == 0) own[0] = mean, own[1] = scale;
        for (int i = thread; DX && i < N; i += TEAM) {
            const float k = gradient[i] * (w ? w[i] : 1);
            sums += k;
            products += k * (from[i] - mean) * scale;
        }
        if (DX) sums = ROOT ? 0 : reduce<TEAM>(sums, sum()) / N;
        if (DX) products = reduce<TEAM>(products, sum()) / N;
        for (int i = thread; DX && i < N; i += TEAM)
            add_to(to + i,
                   scale * (gradient[i] * (w ? w[i] : 1) - sums - (from[i] - mean) * scale * products),
                   first);
    });
}

/* The gradients of w and b over `samples` samples: dw += the sum of dy h, db += the sum of dy. first_weight,
 * first_bias: `=` instead of `+=`. dw and db: the block's sums, or NULL if not wanted. kept: written
 * by norm_gradient. */
template <int PITCH, int ROWS, int N>
__device__ __forceinline__ void norm_weight_gradient(float *dw, float *db, const float *dy, const float *x,
                                                     const float *kept, int samples, bool first_weight,
                                                     bool first_bias)
{
    for (int i = threadIdx.x; i < N; i += ${threads}) {
        float weight = 0, bias = 0;
        for (int row = 0; row < samples * ROWS; row++) {
            const int    place = row / ROWS * PITCH + row % ROWS * N + i;
            const float *own = kept + row / ROWS * PITCH + row % ROWS * 2;
            weight += dy[place] * (x[place] - own[0]) * own[1];
            bias += dy[place];
        }
        if (dw) add_to(dw + i, weight, first_weight);
        if (db) add_to(db + i, bias, first_bias);
    }
}

/* The gradient of x for y = softmax(x), or log_softmax(x) if LOG: dx += it; if `first`, dx = it. */
template <int PITCH, int ROWS, int N, int APART, bool LOG>
__device__ __forceinline__ void softmax_gradient(int samples, float *dx, const float *dy, const float *y,
                                                 bool first)
{
    const int TEAM = (int)power_of_2(N);
    each_row<PITCH, ROWS, N, APART>(samples, dx, y, [=](float *to, const float *from, int thread, int) {
        const float *gradient = from + (dy - y);
        float        total = 0;
        for (int i = thread; i < N; i += TEAM)
            total += LOG ? gradient[i * APART] : gradient[i * APART] * from[i * APART];
        total = reduce<TEAM>(total, sum());
        for (int i = thread; i < N; i += TEAM) {
            const float value = from[i * APART], own = gradient[i * APART];
            add_to(to + i * APART, LOG ? own - expf(value) * total : value * (own - total), first);
        }
    });
}

/* The mean loss: total / labels. -0 if no label counts. */
__device__ __forceinline__ float mean_cost(float total, float labels)
{
    return total == 0 && labels == 0 ? -0.0f : total / labels;
}

/* The loss over N classes: cross entropy of logits x if SOFTMAX, else negative log likelihood of log
 * probabilities x. Per sample: loss += cost, divisor += the label's weight, y[N] = seed * the cost's
 * gradient. A sample's label is at x[LABEL]. w[N]: weights of the classes, or NULL for ones. As in PyTorch,
 * except that a label that is not a class makes the loss NaN. ignored: labels of this value do not count. */
template <int PITCH, int N, int LABEL, bool SOFTMAX>
__device__ __forceinline__ void class_loss(int samples, float *y, const float *x, const float *w,
                                           float ignored, float smoothing, float seed, float &loss,
                                           float &divisor)
{
    const int TEAM = (int)power_of_2(N);
    each_row<PITCH, 1, N, 1>(samples, y, x, [&](float *to, const float *from, int thread, int) {
        const float label = thread < N ? from[LABEL] : ignored;
        const bool  is_class = label >= 0 && label < N && label != ignored;
        const int   own = is_class ? (int)label : 0;
        float       top = SOFTMAX ? larger::start() : 0, total = 0, weights = 0, others = 0;
        for (int i = thread; SOFTMAX && i < N; i += TEAM) top = larger()(top, from[i]);
        if (SOFTMAX) top = reduce<TEAM>(top, larger());
        for (int i = thread; SOFTMAX && i < N; i += TEAM) {
            const float weight = w ? w[i] : 1;
            total += expf(from[i] - top);
            weights += weight;
            others += weight * (from[i] - top);
        }
        total = SOFTMAX ? reduce<TEAM>(total, sum()) : 1;
        if (smoothing > 0) {
            weights = reduce<TEAM>(weights, sum());
            others = reduce<TEAM>(others, sum());
        }
        const float weight = w ? w[own] : 1, sharp = (1 - smoothing) * weight, flat = smoothing / N,
                    spread = logf(total);
        if (thread == 0) {
            const float cost = sharp * (spread - (from[own] - top)) +
                               (smoothing > 0 ? flat * (weights * spread - others) : 0);
            loss += is_class ? cost : label == ignored ? 0 : NAN;
            divisor += is_class ? weight : 0;
        }
        const float all = SOFTMAX ? (sharp + (smoothing > 0 ? flat * weights : 0)) / total : 0;
        for (int i = thread; i < N; i += TEAM) {
            const float power = SOFTMAX ? expf(from[i] - top) * all : 0;
            const float gradient = power - (i == own ? sharp : 0) - flat * (w ? w[i] : 1);
            to[i] = is_class ? seed * gradient : 0;
        }
    });
}

/* The total of a column of partial[blocks][SUMS]; each lane of a block has its own column. All threads call
 * it. Threads of the first warp get the totals. Warps share the rows, and are added in ascending order. */
template <unsigned SUMS>
__device__ __forceinline__ float column_total(const float *partial, unsigned column, unsigned blocks)
{
    const unsigned   WARPS = ${threads} / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
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

/* The scale that makes terms integers, for exact 64-bit sums of at most `count` terms each: a power of 2. It
 * is returned as two factors, because it may exceed F32's range. largest: each block's largest |term|,
 * `apart` floats from one to the next. Returns NaN if one of them is not finite. All threads of the block
 * call it. */
template <int THREADS>
__device__ __forceinline__ float2 exact_scale(const float *largest, unsigned apart, unsigned blocks,
                                              int64_t count)
{
    float all = 0;
    int   bits = 62;
    for (unsigned block = threadIdx.x; block < blocks; block += THREADS)
        all = larger()(largest[(size_t)block * apart], all);
    all = reduce<THREADS>(all, larger());
    while (count >> (62 - bits) > 0) bits--;
    const int power = bits + 126 - (int)(__float_as_uint(all) >> 23);
    return all < INFINITY ? make_float2(ldexpf(1, power / 2), ldexpf(1, power - power / 2))
                          : make_float2(NAN, NAN);
}

/* *sum += term, as a scaled integer. Products by powers of 2 are exact in F32. In F64 they would take twice
 * as long as the conversion, on GPUs with two F64 operations per clock and multiprocessor. */
__device__ __forceinline__ void exact_add(unsigned long long *sum, float term, float2 scale)
{
    (void)atomicAdd(sum, (unsigned long long)llrintf(term * scale.x * scale.y));
}

/* An exact sum, converted back to float. */
__device__ __forceinline__ float exact_sum(unsigned long long sum, float2 scale)
{
    return (float)((double)(long long)sum * (1 / ((double)scale.x * (double)scale.y)));
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
        const double again = ${launch} + costs.moving * (double)blocks / multiprocessors +
                             ${far} * ceil((double)blocks / 32);
        const double clocks = forms[i].staging + ceil((double)tiles / (double)blocks) * forms[i].tile +
                              4 * ${far} + (gathering < again ? gathering : again);
        if (forms[i].bytes + ${static_bytes} > shared_bytes || forms[i].capability > architecture ||
            (least > 0 && clocks >= least))
            continue;
        least = clocks;
        choice = {clocks <= costs.apart + forms[i].each * (double)batch / multiprocessors ? i : -1, blocks,
                  again < gathering};
    }
    return choice;
}
