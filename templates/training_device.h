/* ---- training steps of networks ---- *
 * Beside a tile's values, PITCH floats from sample to sample, lie their gradients. All begin at multiples of 16 bytes, and what is
 * behind a row's end is read and written with it and means nothing. */

__device__ __forceinline__ void add_to(float *to, float x, bool first)
{
    *to = first ? x : *to + x;
}

/* Of y = x w^T + b, w[OUT][K]: the gradient of x from that of y, added to what is there or, `first`, in its place. A thread has four
 * neighbouring columns of up to two samples. Each sum is one thread's, by rising row of w. */
template <int SAMPLES, int PITCH, int K, int OUT>
__device__ __forceinline__ void operand_gradient(float *to, const float *y, const float *w, bool first)
{
    const int SLOTS = SAMPLES < 32 ? SAMPLES : 32, OWN = SAMPLES / SLOTS, TEAMS = ${threads} / SLOTS, STEP = pitch_of(K + 1);
    const int slot = threadIdx.x % SLOTS;
    to += slot * PITCH;
    y += slot * PITCH;
#pragma unroll 1
    for (int k = threadIdx.x / SLOTS * 4; k < K; k += TEAMS * 4) {
        float4 sum[OWN];
#pragma unroll
        for (int m = 0; m < OWN; m++) sum[m] = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int row = 0; row < OUT; row++) {
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

/* The gradient of w, of the samples that are there, added to the block's sums or, `first`, in their place. A thread has ROWS rows of
 * four neighbouring columns. Each sum is one thread's, by rising sample. */
template <int PITCH, int K, int OUT, int ROWS>
__device__ __forceinline__ void weight_gradient(float *sums, const float *y, const float *x, int samples, bool first)
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

/* And that of b. */
template <int PITCH, int OUT>
__device__ __forceinline__ void bias_gradient(float *sums, const float *y, int samples, bool first)
{
    for (int i = threadIdx.x; i < OUT; i += ${threads}) {
        float sum = 0;
        for (int s = 0; s < samples; s++) sum += y[s * PITCH + i];
        add_to(sums + i, sum, first);
    }
}

/* Of y = norm of x: the gradient of x (DX: it is wanted) from that of y, and each row's mean and 1 / deviation, for what follows. With
 * k = dy w and the row h that has been normalized: (k - mean of k - h mean of k h) / deviation, ROOT: without the mean of k. */
template <int PITCH, int ROWS, int N, bool ROOT, bool DX>
__device__ __forceinline__ void norm_gradient(int samples, float *dx, const float *dy, const float *x, const float *w, float *kept,
                                              float eps, bool first)
{
    const int TEAM = (int)power_of_2(N);
    each_row<PITCH, ROWS, N, 1>(samples, dx, x, [=](float *to, const float *from, int thread, int row) {
        const float *slope = from + (dy - x);
        float       *own = kept + row / ROWS * PITCH + row % ROWS * 2;
        float        mean, scale, sums = 0, products = 0;
        moments<TEAM, N, ROOT>(from, thread, eps, mean, scale);
        if (thread == 0) own[0] = mean, own[1] = scale;
        for (int i = thread; DX && i < N; i += TEAM) {
            const float k = slope[i] * (w ? w[i] : 1);
            sums += k;
            products += k * (from[i] - mean) * scale;
        }
        if (DX) sums = ROOT ? 0 : reduce<TEAM>(sums, sum()) / N;
        if (DX) products = reduce<TEAM>(products, sum()) / N;
        for (int i = thread; DX && i < N; i += TEAM)
            add_to(to + i, scale * (slope[i] * (w ? w[i] : 1) - sums - (from[i] - mean) * scale * products), first);
    });
}

/* And those of w and b, of the samples that are there, added to the block's sums or, `first`, in their place; NULL: not wanted. */
template <int PITCH, int ROWS, int N>
__device__ __forceinline__ void norm_weight_gradient(float *dw, float *db, const float *dy, const float *x, const float *kept,
                                                     int samples, bool first)
{
    for (int i = threadIdx.x; i < N; i += ${threads}) {
        float weight = 0, bias = 0;
        for (int row = 0; row < samples * ROWS; row++) {
            const int    place = row / ROWS * PITCH + row % ROWS * N + i;
            const float *own = kept + row / ROWS * PITCH + row % ROWS * 2;
            weight += dy[place] * (x[place] - own[0]) * own[1];
            bias += dy[place];
        }
        if (dw) add_to(dw + i, weight, first);
        if (db) add_to(db + i, bias, first);
    }
}

/* Of y = softmax of x, LOG: its logarithm. */
template <int PITCH, int ROWS, int N, int APART, bool LOG>
__device__ __forceinline__ void softmax_gradient(int samples, float *dx, const float *dy, const float *y, bool first)
{
    const int TEAM = (int)power_of_2(N);
    each_row<PITCH, ROWS, N, APART>(samples, dx, y, [=](float *to, const float *from, int thread, int) {
        const float *slope = from + (dy - y);
        float        total = 0;
        for (int i = thread; i < N; i += TEAM) total += LOG ? slope[i * APART] : slope[i * APART] * from[i * APART];
        total = reduce<TEAM>(total, sum());
        for (int i = thread; i < N; i += TEAM) {
            const float value = from[i * APART], own = slope[i * APART];
            add_to(to + i * APART, LOG ? own - expf(value) * total : value * (own - total), first);
        }
    });
}

/* A loss that tells N classes apart, from logits x, or SOFTMAX false: from their logarithms of probabilities. Adds each sample's cost
 * and its label's weight to loss and divisor, and leaves `seed` times the cost's gradient at y. A sample's label lies LABEL floats from
 * x; w: of the classes; NULL: ones. As PyTorch has it, but that a label that is no class makes the loss NaN. */
template <int PITCH, int N, int LABEL, bool SOFTMAX>
__device__ __forceinline__ void class_loss(int samples, float *y, const float *x, const float *w, float ignored, float smoothing,
                                           float seed, float &loss, float &divisor)
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
        const float weight = w ? w[own] : 1, sharp = (1 - smoothing) * weight, flat = smoothing / N, spread = logf(total);
        if (thread == 0) {
            const float cost = sharp * (spread - (from[own] - top)) + (smoothing > 0 ? flat * (weights * spread - others) : 0);
            loss += is_class ? cost : label == ignored ? 0 : NAN;
            divisor += is_class ? weight : 0;
        }
        const float all = SOFTMAX ? (sharp + (smoothing > 0 ? flat * weights : 0)) / total : 0;
        for (int i = thread; i < N; i += TEAM) {
            const float power = SOFTMAX ? expf(from[i] - top) * all : 0;
            const float slope = power - (i == own ? sharp : 0) - flat * (w ? w[i] : 1);
            to[i] = is_class ? seed * slope : 0;
        }
    });
}

/* A form of a step's kernel: samples of a tile, bytes of shared memory, and clocks of a multiprocessor, by arithmetic, for a tile. */
struct step_form {
    int    samples, bytes;
    double tile;
};

/* What it should cost on any card beside its tiles: clocks to begin and end, and to add a block's sums to another's; clocks of the
 * steps by themselves more than one launch has to begin, and for each sample of a multiprocessor. */
struct step_costs {
    double fixed, adding, apart, each;
};

inline size_t step_blocks(const step_form &form, int64_t batch, int multiprocessors)
{
    return clamped(at_least((size_t)batch, (size_t)form.samples), (size_t)multiprocessors);
}

/* The quickest form for this GPU and batch; -1: none fits, or steps by themselves should be quicker. */
inline int step_form_for(const step_form *forms, int count, const step_costs &costs, int64_t batch, int multiprocessors)
{
    int device = 0, room = 0, best = -1;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return -1;
    double least = costs.apart + costs.each * (double)batch / multiprocessors;
    for (int i = 0; i < count; i++) {
        const double blocks = (double)step_blocks(forms[i], batch, multiprocessors);
        const double tiles = ceil((double)at_least((size_t)batch, (size_t)forms[i].samples) / blocks);
        const double clocks = costs.fixed + tiles * forms[i].tile + 2 * ceil(sqrt(blocks)) * costs.adding;
        if (forms[i].bytes + ${static_bytes} > room || clocks > least || (best >= 0 && clocks == least)) continue;
        best = i;
        least = clocks;
    }
    return best;
}
