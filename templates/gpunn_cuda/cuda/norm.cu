#include "base/ranks.h"
#include "base/shared.h"
#include "cuda/reduce.h"

/* ==== >>cuda/norm ======================================================================================= */
/* batch_norm, layer_norm, rms_norm, group_norm and instance_norm. */
/* ---- batch_norm: x[n][channels][inner] ------------------------------------------------------------------ *
 * y = (x - mean) *
 * invstd * weight + bias. In the backward pass let m = n * inner be the values per channel, or infinity with
 * running statistics, and h = x - mean. Then
 *    dbias = sum g, dweight = invstd * sum(g h),
 *    dx = weight * invstd * (g - sum g / m - h * invstd^2 * sum(g h) / m).
 * In training the same passes add a residual to y and apply a relu. g is then the gradient after the relu's
 * derivative, which is also the residual's gradient; the summing pass writes it. The relu's derivative
 * follows from the result or, without a residual, from x.
 * A block works on a tile. A tile is one channel, whose rows of `inner` elements all threads read in packs
 * of eight. If rows are short, it is the channels of `width` columns, and each column's threads read it
 * down the images. A tile consists of items of eight elements, which its threads share. If tiles are few,
 * several blocks share a tile, each with one part of it. Then a first launch leaves the sums of each part in
 * partial, and a second one combines them and applies the result.
 * If a multiple of eight channels is contiguous (channels last, or rows of one element), separate kernels
 * read packs of eight channels. A tile is then `width` packs, and a thread reads one of them in each of its
 * rows. */

enum { GPUNN__NORM_SUM = 1, GPUNN__NORM_APPLY = 2 }; /* bits of phase: which passes a launch does */

/* Blocks that share the registers of a multiprocessor. From sm_100 on, F32 packs take more registers at
 * once. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define GPUNN__NORM_BLOCKS(count) ((count)-1)
#else
#define GPUNN__NORM_BLOCKS(count) (count)
#endif

typedef struct gpunn__norm {
    int64_t n, channels, inner, count;
    int     width, rows; /* the threads of a block: `rows` rows of `width`, a power of 2 */
    int     columns;     /* columns per channel in a block */
    int     packs;       /* most packs that one line may touch */
    int64_t tile;        /* channels per block */
    /* between the elements of an item, or between a thread's packs of channels; 1: packs of a line */
    int64_t     stride;
    int64_t     items;
    int         part_items, parts;
    bool        packs_of_channels;
    int64_t     part_rows; /* rows per part; used with packs of channels */
    int         phase;
    bool        training, relu; /* training: normalize by the batch's moments */
    const void *x, *g;          /* g: backward only */
    const void *more;           /* like g, is added to it; NULL: none */
    /* NULL: none. result, backward only: the relu's result; NULL: no relu, or x determines its derivative */
    const void  *residual, *result;
    void        *y;         /* y, or the gradient of x; NULL: not wanted */
    void        *dresidual; /* NULL: not wanted */
    gpunn_dtype  x_dtype, g_dtype, residual_dtype, result_dtype, y_dtype, dresidual_dtype;
    const float *weight, *bias;
    /* saved: the mean, then 1 / deviation, of all channels */
    float *running_mean, *running_var, *saved;
    float *dweight, *dbias;
    bool   add, add_weight, add_bias, add_residual;
    float  eps, momentum;
    /* [channels][parts] of gpunn__moments; backward: of the sums of g and g h. With packs of channels
     * [parts][channels] of mean and square; backward: of the same sums. */
    void *partial;
    /* [tiles], with packs of channels: the last block of a tile joins its parts into part 0; NULL: it does
     * not */
    unsigned *counters;
} gpunn__norm;

typedef struct gpunn__norm_place { /* where a thread works */
    int64_t channel, start;        /* start: of what it reads in image 0 */
    int     row, part, item, end;  /* its items are item, item + rows, .. < end */
    bool    used, first, leads;    /* first: in the channel's first column; leads: also in the first row */
} gpunn__norm_place;

__device__ __forceinline__ gpunn__norm_place gpunn__norm_start(const gpunn__norm &b)
{
    gpunn__norm_place place;
    unsigned          tile = blockIdx.x / (unsigned)b.parts;
    int               x = (int)threadIdx.x % b.width;
    place.row = (int)threadIdx.x / b.width;
    place.part = (int)(blockIdx.x - tile * (unsigned)b.parts);
    place.channel = tile * b.tile + x / b.columns;
    place.used = x < b.tile * b.columns && place.channel < b.channels;
    place.first = place.used && x % b.columns == 0;
    place.leads = place.first && place.row == 0;
    place.start = place.channel * b.inner + x % b.columns;
    place.item = place.part * b.part_items + place.row;
    place.end = place.used ? (int)min((place.part + 1) * (int64_t)b.part_items, b.items) : 0;
    return place;
}

/* Locates item q: its elements are at, at + stride, .. for the bits set in *mask. */
__device__ __forceinline__ int64_t gpunn__norm_item(const gpunn__norm &b, const gpunn__norm_place &place,
                                                    int q, unsigned *mask)
{
    if (b.stride == 1) {
        int     image = q / b.packs, pack = q - image * b.packs;
        int64_t row = image * b.channels * b.inner + place.start,
                at = (row & ~(int64_t)7) + pack * GPUNN__PACK;
        int begin = (int)max(row - at, (int64_t)0), end = (int)min(row + b.inner - at, (int64_t)GPUNN__PACK);
        *mask = end > begin ? 0xFFu << begin & 0xFFu >> (GPUNN__PACK - end) : 0;
        return at;
    }
    int64_t image = (int64_t)(q - place.row) * GPUNN__PACK + place.row;
    *mask = 0;
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) *mask |= (unsigned)(image + j * b.rows < b.n) << j;
    return image * b.channels * b.inner + place.start;
}

/* Loads an item. Values outside the mask are undefined. PACKS: the mask is full and the elements are
 * contiguous. alone: reads nothing outside the mask, because other blocks may be writing there. */
template <bool PACKS>
__device__ __forceinline__ void gpunn__norm_load(const gpunn__norm &b, const void *data, gpunn_dtype dtype,
                                                 int64_t at, unsigned mask, float v[8], bool alone = false)
{
    if (PACKS || (b.stride == 1 && (alone ? mask == 0xFF : at + GPUNN__PACK <= b.count)))
        gpunn__load8(data, dtype, at, v);
    else {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++)
            v[j] = mask >> j & 1 ? gpunn__load(data, dtype, at + j * b.stride) : 0;
    }
}

/* Stores v, or adds it to the previous values. */
template <bool PACKS>
__device__ __forceinline__ void gpunn__norm_store(const gpunn__norm &b, void *data, gpunn_dtype dtype,
                                                  int64_t at, unsigned mask, bool add, float v[8])
{
    if (add) {
        float old[8];
        gpunn__norm_load<PACKS>(b, data, dtype, at, mask, old, true);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] += old[j];
    }
    if (PACKS || (b.stride == 1 && mask == 0xFF))
        gpunn__store8(data, dtype, at, v);
    else {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++)
            if (mask >> j & 1) gpunn__store(data, dtype, at + j * b.stride, v[j]);
    }
}

/* Both backward passes compute this value bit for bit as the forward pass does. */
__device__ __forceinline__ float gpunn__norm_value(float x, float mean, float scale, float shift)
{
    return fmaf(x - mean, scale, shift);
}

/* Adds the residual to the normalized values v, applies the relu and stores them to y. */
template <bool PACKS>
__device__ __forceinline__ void gpunn__norm_finish(const gpunn__norm &b, int64_t at, unsigned mask,
                                                   float v[8])
{
    if (b.residual) {
        float residual[8];
        gpunn__norm_load<PACKS>(b, b.residual, b.residual_dtype, at, mask, residual);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] += residual[j];
    }
    if (b.relu) {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] = v[j] <= 0 ? 0 : v[j];
    }
    gpunn__norm_store<PACKS>(b, b.y, b.y_dtype, at, mask, false, v);
}

/* Loads g and applies the relu's derivative if it follows from the result. summed: the earlier pass has
 * stored exactly that as the residual's gradient, which is read instead. */
template <bool PACKS>
__device__ __forceinline__ void gpunn__norm_gradient(const gpunn__norm &b, int64_t at, unsigned mask,
                                                     bool summed, float g[8])
{
    if (summed && b.dresidual && !b.add_residual) {
        gpunn__norm_load<PACKS>(b, b.dresidual, b.dresidual_dtype, at, mask, g, true);
        return;
    }
    gpunn__norm_load<PACKS>(b, b.g, b.g_dtype, at, mask, g, true);
    float other[8];
    if (b.more) {
        gpunn__norm_load<PACKS>(b, b.more, b.g_dtype, at, mask, other, true);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) g[j] += other[j];
    }
    if (b.result == NULL) return;
    gpunn__norm_load<PACKS>(b, b.result, b.result_dtype, at, mask, other);
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) g[j] = other[j] <= 0 ? 0 : g[j];
}

/* Stores or adds the residual's gradient. */
template <bool PACKS>
__device__ __forceinline__ void gpunn__norm_hand_on(const gpunn__norm &b, int64_t at, unsigned mask,
                                                    const float g[8])
{
    if (b.dresidual == NULL) return;
    float v[8];
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) v[j] = g[j];
    gpunn__norm_store<PACKS>(b, b.dresidual, b.dresidual_dtype, at, mask, b.add_residual, v);
}

/* The sum over all threads of the same channel, as a tree. Each of these threads gets the result. */
__device__ __forceinline__ float2 gpunn__norm_sum(const gpunn__norm &b, float2 value)
{
    __shared__ float2 part[GPUNN__THREADS];
    int               t = (int)threadIdx.x, column = t % b.width, first = column - column % b.columns;
    part[t] = value;
    for (int half = GPUNN__THREADS / 2; half >= b.width; half /= 2) {
        __syncthreads();
        if (t < half) part[t] = make_float2(part[t].x + part[t + half].x, part[t].y + part[t + half].y);
    }
    __syncthreads();
    value = part[first];
    for (int i = 1; i < b.columns && first + i < b.width; i++) {
        value.x += part[first + i].x;
        value.y += part[first + i].y;
    }
    __syncthreads(); /* part may be reused */
    return value;
}

/* Moments of values minus a number near them, which keeps rounding errors small. */
typedef struct gpunn__moments {
    /* mean and sum of (value - mean)^2; backward: sums of g and of g h */
    float count, mean_or_sum, squares_or_products;
} gpunn__moments;

__device__ __forceinline__ void gpunn__moments_join(gpunn__moments *a, float count, float mean, float square)
{
    float delta = mean - a->mean_or_sum, total = a->count + count, share = __fdividef(count, total);
    a->mean_or_sum += delta * share;
    a->squares_or_products += square + delta * delta * a->count * share;
    a->count = total;
}

/* A number near a channel's values: the median of three of them, so that one outlier does no harm. */
__device__ __forceinline__ float gpunn__norm_near(const gpunn__norm &b, int64_t channel)
{
    float first = gpunn__load(b.x, b.x_dtype, channel * b.inner);
    float middle = gpunn__load(b.x, b.x_dtype, (b.n / 2 * b.channels + channel) * b.inner + b.inner / 2);
    float last = gpunn__load(b.x, b.x_dtype, ((b.n - 1) * b.channels + channel + 1) * b.inner - 1);
    return fmaxf(fminf(first, middle), fminf(fmaxf(first, middle), last));
}

/* The same for eight adjacent channels with rows of one element. */
__device__ __forceinline__ void gpunn__norm_near_pack(const gpunn__norm &b, int64_t channel, float v[8])
{
    float middle[8], last[8];
    gpunn__load8(b.x, b.x_dtype, channel, v);
    gpunn__load8(b.x, b.x_dtype, b.n / 2 * b.channels + channel, middle);
    gpunn__load8(b.x, b.x_dtype, (b.n - 1) * b.channels + channel, last);
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++)
        v[j] = fmaxf(fminf(v[j], middle[j]), fminf(fmaxf(v[j], middle[j]), last[j]));
}

/* Updates the running statistics and saves the mean and 1 / deviation. center is the channel's mean minus
 * near_by. */
__device__ __forceinline__ void gpunn__norm_note(const gpunn__norm &b, int64_t c, double values,
                                                 float near_by, float center, float square)
{
    double share = (double)b.momentum, unbiased = (double)square / (values - 1);
    if (b.running_mean) {
        b.running_mean[c] = (float)((1 - share) * (double)b.running_mean[c] +
                                    share * ((double)near_by + (double)center));
        b.running_var[c] = (float)((1 - share) * (double)b.running_var[c] + share * unbiased);
    }
    b.saved[c] = near_by + center;
    b.saved[b.channels + c] = 1 / sqrtf(square / (float)values + b.eps);
}

/* Writes or adds dweight and dbias. sum: of g and g h. */
__device__ __forceinline__ void gpunn__norm_note_gradients(const gpunn__norm &b, int64_t c, float2 sum)
{
    if (b.dweight) b.dweight[c] = (b.add_weight ? b.dweight[c] : 0) + b.saved[b.channels + c] * sum.y;
    if (b.dbias) b.dbias[c] = (b.add_bias ? b.dbias[c] : 0) + sum.x;
}

/* The moments of the thread's items. */
__device__ __forceinline__ gpunn__moments gpunn__norm_moments(const gpunn__norm       &b,
                                                              const gpunn__norm_place &place, float near_by)
{
    gpunn__moments all = {0, 0, 0};
    for (int q = place.item; q < place.end; q += b.rows) {
        float    v[8], sum = 0, square = 0;
        unsigned mask;
        int64_t  at = gpunn__norm_item(b, place, q, &mask);
        if (mask == 0) continue;
        gpunn__norm_load<false>(b, b.x, b.x_dtype, at, mask, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            v[j] = mask >> j & 1 ? v[j] - near_by : 0;
            sum += v[j];
        }
        float count = (float)__popc(mask), mean = __fdividef(sum, count);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++)
            if (mask >> j & 1) square += (v[j] - mean) * (v[j] - mean);
        gpunn__moments_join(&all, count, mean, square);
    }
    return all;
}

/* The forward pass for rows and columns. */
static __global__ void __launch_bounds__(GPUNN__THREADS, GPUNN__NORM_BLOCKS(4))
    gpunn__norm_kernel(const gpunn__norm b)
{
    GPUNN__FOLLOW();
    gpunn__norm_place place = gpunn__norm_start(b);
    float             mean = 0, variance = 0;
    if (b.training) {
        float           near_by = place.used ? gpunn__norm_near(b, place.channel) : 0;
        gpunn__moments  own = {0, 0, 0};
        gpunn__moments *partial = gpunn__beyond((gpunn__moments *)b.partial, place.channel * b.parts);
        if (b.phase & GPUNN__NORM_SUM)
            own = gpunn__norm_moments(b, place, near_by);
        else if (place.first)
            for (int i = place.row; i < b.parts; i += b.rows)
                gpunn__moments_join(&own, partial[i].count, partial[i].mean_or_sum,
                                    partial[i].squares_or_products);
        float2 sum = gpunn__norm_sum(b, make_float2(own.count, own.count * own.mean_or_sum));
        float  center = sum.y / sum.x, delta = own.mean_or_sum - center;
        float  square =
            gpunn__norm_sum(b, make_float2(own.squares_or_products + own.count * delta * delta, 0)).x;
        if (!(b.phase & GPUNN__NORM_APPLY)) {
            if (place.leads) partial[place.part] = {sum.x, center, square};
            return;
        }
        mean = near_by + center;
        variance = square / sum.x;
        if (place.leads && place.part == 0)
            gpunn__norm_note(b, place.channel, (double)b.n * (double)b.inner, near_by, center, square);
    } else if (place.used) {
        mean = b.running_mean[place.channel];
        variance = b.running_var[place.channel];
        if (b.saved && place.leads && place.part == 0) {
            b.saved[place.channel] = mean;
            b.saved[b.channels + place.channel] = 1 / sqrtf(variance + b.eps);
        }
    }
    float scale = 1 / sqrtf(variance + b.eps), shift = 0;
    if (place.used && b.weight) scale *= b.weight[place.channel];
    if (place.used && b.bias) shift = b.bias[place.channel];
    for (int q = place.item; q < place.end; q += b.rows) {
        float    v[8];
        unsigned mask;
        int64_t  at = gpunn__norm_item(b, place, q, &mask);
        if (mask == 0) continue;
        gpunn__norm_load<false>(b, b.x, b.x_dtype, at, mask, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] = gpunn__norm_value(v[j], mean, scale, shift);
        gpunn__norm_finish<false>(b, at, mask, v);
    }
}

/* The backward pass for rows and columns. */
static __global__ void __launch_bounds__(GPUNN__THREADS, 4) gpunn__norm_back_kernel(const gpunn__norm b)
{
    GPUNN__FOLLOW();
    gpunn__norm_place place = gpunn__norm_start(b);
    float2           *partial = gpunn__beyond((float2 *)b.partial, place.channel * b.parts), sum = {0, 0};
    float             mean = place.used ? b.saved[place.channel] : 0;
    float             invstd = place.used ? b.saved[b.channels + place.channel] : 0;
    float             scale = place.used && b.weight ? invstd * b.weight[place.channel] : invstd;
    float             bias = place.used && b.bias ? b.bias[place.channel] : 0;
    bool              by_x = b.relu && b.result == NULL;
    if (b.phase & GPUNN__NORM_SUM) {
        for (int q = place.item; q < place.end; q += b.rows) {
            float    x[8], g[8];
            float2   pack = {0, 0};
            unsigned mask;
            int64_t  at = gpunn__norm_item(b, place, q, &mask);
            if (mask == 0) continue;
            gpunn__norm_load<false>(b, b.x, b.x_dtype, at, mask, x);
            gpunn__norm_gradient<false>(b, at, mask, false, g);
#pragma unroll
            for (int j = 0; j < GPUNN__PACK; j++) {
                if (by_x && gpunn__norm_value(x[j], mean, scale, bias) <= 0) g[j] = 0;
                if (mask >> j & 1) {
                    pack.x += g[j];
                    pack.y += g[j] * (x[j] - mean);
                }
            }
            sum.x += pack.x;
            sum.y += pack.y;
            gpunn__norm_hand_on<false>(b, at, mask, g);
        }
    } else if (place.first)
        for (int i = place.row; i < b.parts; i += b.rows) {
            sum.x += partial[i].x;
            sum.y += partial[i].y;
        }
    sum = gpunn__norm_sum(b, sum);
    if (!(b.phase & GPUNN__NORM_APPLY)) {
        if (place.leads) partial[place.part] = sum;
        return;
    }
    if (place.leads && place.part == 0) gpunn__norm_note_gradients(b, place.channel, sum);
    if (b.y == NULL) return;
    float values = b.training ? (float)b.n * (float)b.inner : INFINITY, shift = sum.x / values,
          proj_scale = invstd * invstd * sum.y / values;
    for (int q = place.item; q < place.end; q += b.rows) {
        float    x[8], g[8];
        unsigned mask;
        int64_t  at = gpunn__norm_item(b, place, q, &mask);
        if (mask == 0) continue;
        gpunn__norm_load<false>(b, b.x, b.x_dtype, at, mask, x);
        gpunn__norm_gradient<false>(b, at, mask, true, g);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            if (by_x && gpunn__norm_value(x[j], mean, scale, bias) <= 0) g[j] = 0;
            g[j] = (g[j] - shift - (x[j] - mean) * proj_scale) * scale;
        }
        gpunn__norm_store<false>(b, b.y, b.y_dtype, at, mask, b.add, g);
    }
}

/* ---- packs of channels ---- */

typedef struct gpunn__norm_pack { /* where a thread works */
    int     column, row, part, channel;
    int64_t first, end; /* its packs are at first, first + stride, .. < end */
    bool    used;
} gpunn__norm_pack;

__device__ __forceinline__ gpunn__norm_pack gpunn__norm_pack_start(const gpunn__norm &b)
{
    gpunn__norm_pack place;
    unsigned         tile = blockIdx.x / (unsigned)b.parts;
    place.column = (int)threadIdx.x % b.width;
    place.row = (int)threadIdx.x / b.width;
    place.part = (int)(blockIdx.x - tile * (unsigned)b.parts);
    place.channel = (int)(tile * b.tile) + place.column * GPUNN__PACK;
    place.used = place.channel < b.channels;
    place.first = (place.part * b.part_rows + place.row) * b.channels + place.channel;
    place.end = place.used ? min((place.part + 1) * b.part_rows, b.n) * b.channels : 0;
    return place;
}

/* One number for each of the pack's eight channels; `without` if data is NULL. */
__device__ __forceinline__ void gpunn__norm_channels(const float *data, const gpunn__norm_pack &place,
                                                     float without, float v[8])
{
    if (data && place.used) {
        gpunn__load8(data, GPUNN_F32, place.channel, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) v[j] = without;
}

/* One pair per thread. */
typedef float2 gpunn__norm_pairs[GPUNN__THREADS];

/* Combines the values of all threads of a column in a tree. Returns shared memory [channel of the
 * pack][column]. The values are two sums or, with MOMENTS, the mean and square of `count` values. */
template <bool MOMENTS>
__device__ __forceinline__ const gpunn__norm_pairs *gpunn__norm_join(const gpunn__norm &b, float count,
                                                                     const float2 v[8])
{
    __shared__ gpunn__norm_pairs part[GPUNN__PACK];
    __shared__ float             counts[MOMENTS ? GPUNN__THREADS : 1];
    int                          t = (int)threadIdx.x;
    if (MOMENTS) counts[t] = count;
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) part[j][t] = v[j];
    for (int half = GPUNN__THREADS / 2; half >= b.width; half /= 2) {
        __syncthreads();
        if (t >= half || (MOMENTS && counts[t + half] == 0)) continue;
        float share = MOMENTS ? __fdividef(counts[t + half], counts[t] + counts[t + half]) : 0;
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            float2 own = part[j][t], other = part[j][t + half];
            float  delta = other.x - own.x;
            part[j][t] = MOMENTS ? make_float2(own.x + delta * share,
                                               own.y + other.y + delta * delta * counts[t] * share)
                                 : make_float2(own.x + other.x, own.y + other.y);
        }
        if (MOMENTS) counts[t] += counts[t + half];
    }
    __syncthreads();
    return part;
}

/* The end of the parts that the thread combines. */
__device__ __forceinline__ int gpunn__norm_parts(const gpunn__norm &b, const gpunn__norm_pack &place)
{
    if (!place.used) return 0;
    return b.counters && !(b.phase & GPUNN__NORM_SUM) ? 1 : b.parts;
}

/* The combined moments of the thread's parts. Returns the number of values. */
__device__ __forceinline__ float gpunn__norm_pack_join(const gpunn__norm &b, const gpunn__norm_pack &place,
                                                       float2 own[8])
{
    const int parts = gpunn__norm_parts(b, place);
    float     count = 0;
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) own[j] = make_float2(0, 0);
#pragma unroll 1
    for (int part = place.row; part < parts; part += b.rows) {
        float rows = (float)(parts == 1 ? b.n : min((part + 1) * b.part_rows, b.n) - part * b.part_rows),
              share = __fdividef(rows, count + rows);
#pragma unroll
        for (int k = 0; k < GPUNN__PACK; k += 4) {
            float pair[8];
            gpunn__load8(b.partial, GPUNN_F32, 2 * (part * b.channels + place.channel + k), pair);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float2 &all = own[k + j];
                float   delta = pair[2 * j] - all.x;
                all = make_float2(all.x + delta * share,
                                  all.y + pair[2 * j + 1] + delta * delta * count * share);
            }
        }
        count += rows;
    }
    return count;
}

/* The sums of the thread's parts, added to sum. */
__device__ __forceinline__ void gpunn__norm_pack_add(const gpunn__norm &b, const gpunn__norm_pack &place,
                                                     float2 sum[8])
{
    const int parts = gpunn__norm_parts(b, place);
#pragma unroll 1
    for (int part = place.row; part < parts; part += b.rows) {
#pragma unroll
        for (int k = 0; k < GPUNN__PACK; k += 4) {
            float pair[8];
            gpunn__load8(b.partial, GPUNN_F32, 2 * (part * b.channels + place.channel + k), pair);
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum[k + j] = make_float2(sum[k + j].x + pair[2 * j], sum[k + j].y + pair[2 * j + 1]);
        }
    }
}

/* Whether this block is to join the parts of its tile, all of which are written. */
__device__ __forceinline__ bool gpunn__norm_joins(const gpunn__norm &b)
{
    return b.counters && gpunn__is_last_block(&b.counters[blockIdx.x / (unsigned)b.parts], (unsigned)b.parts);
}

/* The mean and square of what the thread reads, minus near_by. Returns the number of values. */
__device__ __forceinline__ float gpunn__norm_pack_moments(const gpunn__norm &b, const gpunn__norm_pack &place,
                                                          const float near_by[8], float2 own[8])
{
    float count = 0;
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) own[j] = make_float2(0, 0);
#pragma unroll 2
    for (int64_t at = place.first; at < place.end; at += b.stride) {
        float v[8], share = __fdividef(1, count += 1);
        gpunn__load8(b.x, b.x_dtype, at, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            float value = v[j] - near_by[j], delta = value - own[j].x;
            own[j].x = fmaf(delta, share, own[j].x);
            own[j].y = fmaf(delta, value - own[j].x, own[j].y);
        }
    }
    return count;
}

/* The forward pass for packs of channels. */
static __global__ void __launch_bounds__(GPUNN__THREADS, GPUNN__NORM_BLOCKS(4))
    gpunn__norm_packs_kernel(const gpunn__norm b)
{
    GPUNN__FOLLOW();
    const gpunn__norm_pack place = gpunn__norm_pack_start(b);
    /* the channel whose results this thread writes */
    const int  channel = place.channel - place.column * GPUNN__PACK + (int)threadIdx.x;
    const bool tells = (int)threadIdx.x < b.tile && channel < b.channels;
    float      mean[8], scale[8], shift[8], v[8];
    if (b.training) {
        float2 own[8];
        gpunn__norm_channels(NULL, place, 0, mean);
        if (place.used) gpunn__norm_near_pack(b, place.channel, mean);
        const gpunn__norm_pairs *all;
        for (bool joins = !(b.phase & GPUNN__NORM_SUM);; joins = true) {
            const float count = joins ? gpunn__norm_pack_join(b, place, own)
                                      : gpunn__norm_pack_moments(b, place, mean, own);
            all = gpunn__norm_join<true>(b, count, own);
            if (b.phase & GPUNN__NORM_APPLY) break;
            if (tells)
                ((float2 *)b.partial)[(joins ? 0 : place.part) * b.channels + channel] =
                    all[threadIdx.x % GPUNN__PACK][threadIdx.x / GPUNN__PACK];
            if (joins || !gpunn__norm_joins(b)) return;
        }
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            mean[j] += all[j][place.column].x;
            scale[j] = all[j][place.column].y / (float)b.n;
        }
        if (tells && place.part == 0) {
            float2 moments = all[threadIdx.x % GPUNN__PACK][threadIdx.x / GPUNN__PACK];
            gpunn__norm_note(b, channel, (double)b.n, gpunn__norm_near(b, channel), moments.x, moments.y);
        }
    } else {
        gpunn__norm_channels(b.running_mean, place, 0, mean);
        gpunn__norm_channels(b.running_var, place, 1, scale);
        if (b.saved && tells && place.part == 0) {
            b.saved[channel] = b.running_mean[channel];
            b.saved[b.channels + channel] = 1 / sqrtf(b.running_var[channel] + b.eps);
        }
    }
    gpunn__norm_channels(b.weight, place, 1, v);
    gpunn__norm_channels(b.bias, place, 0, shift);
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) scale[j] = 1 / sqrtf(scale[j] + b.eps) * v[j];
    for (int64_t at = place.first; at < place.end; at += b.stride) {
        gpunn__load8(b.x, b.x_dtype, at, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] = gpunn__norm_value(v[j], mean[j], scale[j], shift[j]);
        gpunn__norm_finish<true>(b, at, 0xFF, v);
    }
}

/* BY_X: x determines the relu's derivative; there is no residual. */
template <bool BY_X>
static __global__ void __launch_bounds__(GPUNN__THREADS, GPUNN__NORM_BLOCKS(3))
    gpunn__norm_packs_back_kernel(const gpunn__norm b)
{
    GPUNN__FOLLOW();
    const gpunn__norm_pack place = gpunn__norm_pack_start(b);
    /* the channel whose results this thread writes */
    const int  channel = place.channel - place.column * GPUNN__PACK + (int)threadIdx.x;
    const bool tells = (int)threadIdx.x < b.tile && channel < b.channels;
    float      mean[8], scale[8], bias[8], x[8], g[8];
    float2     sum[8];
    gpunn__norm_channels(b.saved, place, 0, mean);
    gpunn__norm_channels(b.saved + b.channels, place, 0, scale);
    gpunn__norm_channels(b.weight, place, 1, x);
    gpunn__norm_channels(b.bias, place, 0, bias);
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) {
        scale[j] *= x[j];
        sum[j] = make_float2(0, 0);
    }
    if (b.phase & GPUNN__NORM_SUM)
        for (int64_t at = place.first; at < place.end; at += b.stride) {
            if (BY_X)
                gpunn__load8(b.g, b.g_dtype, at, g);
            else
                gpunn__norm_gradient<true>(b, at, 0xFF, false, g);
            gpunn__load8(b.x, b.x_dtype, at, x);
#pragma unroll
            for (int j = 0; j < GPUNN__PACK; j++) {
                if (BY_X && gpunn__norm_value(x[j], mean[j], scale[j], bias[j]) <= 0) g[j] = 0;
                sum[j] = make_float2(sum[j].x + g[j], fmaf(g[j], x[j] - mean[j], sum[j].y));
            }
            if (!BY_X) gpunn__norm_hand_on<true>(b, at, 0xFF, g);
        }
    else
        gpunn__norm_pack_add(b, place, sum);
    const gpunn__norm_pairs *all = gpunn__norm_join<false>(b, 0, sum);
    const int                pair = (int)threadIdx.x % GPUNN__PACK, column = (int)threadIdx.x / GPUNN__PACK;
    if (!(b.phase & GPUNN__NORM_APPLY)) {
        float2 *const partial = (float2 *)b.partial + channel;
        if (tells) partial[place.part * b.channels] = all[pair][column];
        if (!gpunn__norm_joins(b)) return;
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) sum[j] = make_float2(0, 0);
        gpunn__norm_pack_add(b, place, sum);
        all = gpunn__norm_join<false>(b, 0, sum);
        if (tells) *partial = all[pair][column];
        return;
    }
    if (tells && place.part == 0) gpunn__norm_note_gradients(b, channel, all[pair][column]);
    if (b.y == NULL) return;
    const float values = b.training ? (float)b.n : INFINITY;
    float       shift[8], proj_scale[8];
    gpunn__norm_channels(b.saved + b.channels, place, 0, x);
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) {
        shift[j] = all[j][place.column].x / values;
        proj_scale[j] = x[j] * x[j] * all[j][place.column].y / values;
    }
    for (int64_t at = place.first; at < place.end; at += b.stride) {
        if (BY_X)
            gpunn__load8(b.g, b.g_dtype, at, g);
        else
            gpunn__norm_gradient<true>(b, at, 0xFF, true, g);
        gpunn__load8(b.x, b.x_dtype, at, x);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            if (BY_X && gpunn__norm_value(x[j], mean[j], scale[j], bias[j]) <= 0) g[j] = 0;
            g[j] = (g[j] - shift[j] - (x[j] - mean[j]) * proj_scale[j]) * scale[j];
        }
        gpunn__norm_store<true>(b, b.y, b.y_dtype, at, 0xFF, b.add, g);
    }
}

/* ---- sums over all ranks ---- */

/* The index of part `part` of a channel in partial. */
__device__ __forceinline__ int64_t gpunn__norm_slot(const gpunn__norm &b, int64_t channel, int part)
{
    return b.packs_of_channels ? part * b.channels + channel : channel * b.parts + part;
}

/* Combines a channel's parts: this rank's moments, or the count and the sums of its gradients. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__norm_own_kernel(const gpunn__norm b, gpunn__moments *own)
{
    GPUNN__FOLLOW();
    const int64_t  c = (int64_t)blockIdx.x * GPUNN__THREADS + threadIdx.x;
    gpunn__moments all = {0, 0, 0};
    if (c >= b.channels) return;
    for (int part = 0; part < b.parts; part++) {
        const int64_t slot = gpunn__norm_slot(b, c, part);
        if (b.g || b.packs_of_channels) {
            const float2 pair = ((const float2 *)b.partial)[slot];
            const float  rows = (float)(min((part + 1) * b.part_rows, b.n) - part * b.part_rows);
            if (b.g)
                all.mean_or_sum += pair.x, all.squares_or_products += pair.y;
            else
                gpunn__moments_join(&all, rows, pair.x, pair.y);
        } else {
            const gpunn__moments other = ((const gpunn__moments *)b.partial)[slot];
            gpunn__moments_join(&all, other.count, other.mean_or_sum, other.squares_or_products);
        }
    }
    if (b.g) {
        gpunn__norm_note_gradients(b, c, make_float2(all.mean_or_sum, all.squares_or_products));
        all.count = (float)b.n * (float)b.inner;
    } else
        all.mean_or_sum += gpunn__norm_near(b, c);
    own[c] = all;
}

/* Combines the moments of all ranks, in rank order. Forward: writes mean and variance. Backward: writes to
 * partial, scaled to this rank's number of values. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__norm_ranks_kernel(const gpunn__norm b, const gpunn__moments *ranks, int size, float *mean,
                             float *variance)
{
    GPUNN__FOLLOW();
    const int64_t c = (int64_t)blockIdx.x * GPUNN__THREADS + threadIdx.x;
    if (c >= b.channels) return;
    gpunn__moments all = ranks[c];
    for (int rank = 1; rank < size; rank++) {
        const gpunn__moments other = ranks[rank * b.channels + c];
        if (b.g)
            all.count += other.count, all.mean_or_sum += other.mean_or_sum,
                all.squares_or_products += other.squares_or_products;
        else
            gpunn__moments_join(&all, other.count, other.mean_or_sum, other.squares_or_products);
    }
    if (b.g) {
        const float share = (float)b.n * (float)b.inner / all.count;
        for (int part = 0; part < b.parts; part++)
            ((float2 *)b.partial)[gpunn__norm_slot(b, c, part)] = part ? make_float2(0, 0)
                                                                       : make_float2(all.mean_or_sum * share,
                                                                                     all.squares_or_products *
                                                                                         share);
    } else {
        gpunn__norm_note(b, c, (double)all.count, 0, all.mean_or_sum, all.squares_or_products);
        mean[c] = all.mean_or_sum;
        variance[c] = all.squares_or_products / all.count;
    }
}

/* Decides how blocks and threads share the work. It depends only on shape and device. */
static gpunn__norm gpunn__norm_shape(const gpunn__cuda *cuda, const gpunn_value *x, bool backward)
{
    gpunn__norm b;
    memset(&b, 0, sizeof b);
    b.n = x->dim[0];
    b.channels = x->dim[1];
    b.count = x->count;
    b.inner = b.count / (b.n * b.channels);
    if (x->channels_last) b.n *= b.inner, b.inner = 1;
    b.width = b.columns = 1;
    b.tile = b.stride = 1;
    b.packs_of_channels = b.inner == 1 && b.channels % GPUNN__PACK == 0;
    if (b.packs_of_channels) {
        while (b.width < 8 && b.width * GPUNN__PACK < b.channels) b.width *= 2;
        b.tile = b.width * GPUNN__PACK;
        b.stride = GPUNN__THREADS / b.width * b.channels;
    } else if (b.inner < 16) {
        b.columns = (int)b.inner;
        while (b.width < 32 && b.width < b.channels * b.inner) b.width *= 2;
        b.tile = b.width / b.columns;
        b.stride = GPUNN__THREADS / b.width * b.channels * b.inner;
    }
    b.rows = GPUNN__THREADS / b.width;
    b.packs = (int)((b.inner % GPUNN__PACK == 0 ? b.inner : b.inner + 2 * GPUNN__PACK - 2) / GPUNN__PACK);
    const int64_t of_round = b.packs_of_channels || b.stride == 1 ? b.rows : b.rows * GPUNN__PACK,
                  lines = !b.packs_of_channels && b.stride == 1 ? b.n * b.packs : b.n,
                  rounds = (lines + of_round - 1) / of_round;
    b.items = b.stride == 1 ? b.n * b.packs : rounds * b.rows;
    const int blocks = (b.packs_of_channels && backward ? 3 : 4) -
                       (b.packs_of_channels && cuda->architecture >= 100);
    int64_t tiles = (b.channels + b.tile - 1) / b.tile,
            parts = (int64_t)cuda->multiprocessors * blocks / tiles;
    if (parts > rounds / 4) parts = rounds / 4; /* at least four rounds of all threads */
    if (parts < 1) parts = 1;
    b.part_rows = (rounds + parts - 1) / parts * b.rows;
    if (b.packs_of_channels) {
        b.parts = (int)((b.n + b.part_rows - 1) / b.part_rows);
        return b;
    }
    b.part_items = (int)b.part_rows;
    b.parts = (int)((b.items + b.part_items - 1) / b.part_items);
    return b;
}

static gpunn_status gpunn__norm_launch(gpunn__cuda *cuda, const gpunn__norm &b, unsigned blocks)
{
    if (b.g == NULL && b.packs_of_channels)
        return GPUNN__LAUNCH(cuda, gpunn__norm_packs_kernel, blocks, GPUNN__THREADS, b);
    if (b.g == NULL) return GPUNN__LAUNCH(cuda, gpunn__norm_kernel, blocks, GPUNN__THREADS, b);
    if (b.packs_of_channels && b.relu && b.result == NULL)
        return GPUNN__LAUNCH(cuda, (gpunn__norm_packs_back_kernel<true>), blocks, GPUNN__THREADS, b);
    if (b.packs_of_channels)
        return GPUNN__LAUNCH(cuda, (gpunn__norm_packs_back_kernel<false>), blocks, GPUNN__THREADS, b);
    return GPUNN__LAUNCH(cuda, gpunn__norm_back_kernel, blocks, GPUNN__THREADS, b);
}

/* Bytes for `count` moments per channel. */
static size_t gpunn__norm_bytes(const gpunn__norm *b, int count)
{
    return (size_t)b->channels * (size_t)count * sizeof(gpunn__moments);
}

/* Replaces the sums of the parts by those over all ranks, so that b then applies them. In the forward pass, b
 * then normalizes by a given mean and variance. */
static gpunn_status gpunn__norm_combine_ranks(gpunn__cuda *cuda, const gpunn_ranks *ranks, gpunn__norm *b)
{
    const unsigned blocks = (unsigned)((b->channels + GPUNN__THREADS - 1) / GPUNN__THREADS);
    const int64_t  count = (int64_t)(sizeof(gpunn__moments) / sizeof(float)) * b->channels;
    float         *mean = (float *)((char *)b->partial + gpunn__norm_bytes(b, b->parts)),
          *variance = mean + b->channels;
    gpunn__moments *all = (gpunn__moments *)mean + b->channels;
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__norm_own_kernel, blocks, GPUNN__THREADS, *b,
                             all + ranks->rank * b->channels));
    GPUNN__TRY(ranks->joined ? gpunn__ranks_gather(cuda, ranks, (float *)all, count)
                             : gpunn__ranks_gather_host(cuda, ranks, (float *)all, count));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__norm_ranks_kernel, blocks, GPUNN__THREADS, *b, all, ranks->size,
                             mean, variance));
    b->dweight = b->dbias = NULL; /* already added */
    if (b->g) return GPUNN_OK;
    b->training = false;
    b->running_mean = mean;
    b->running_var = variance;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_batch_norm(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *in = step->in;
    gpunn__norm        b = gpunn__norm_shape(cuda, &in[0], step->backward);
    bool               forward = action == GPUNN__FORWARD;
    if (action == GPUNN__PREPARE) {
        if (step->training && !step->evaluates && step->ranks == NULL && b.n * b.inner == 1)
            return gpunn__cuda_fail(
                cuda, GPUNN_ERR_SHAPE,
                "expected more than 1 value per channel when training; use a larger batch");
        if (b.channels > INT32_MAX || b.n * b.inner > (int64_t)1 << 33)
            return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                    "there are more than 2^31 channels, or more than 2^33 values in one; "
                                    "split the input into smaller ones");
        if (step->training && !step->backward) step->saved_bytes = 2 * (size_t)b.channels * sizeof(float);
        if (step->training && (b.parts > 1 || step->ranks))
            step->workspace_bytes = gpunn__norm_bytes(&b, b.parts);
        if (step->ranks) step->workspace_bytes += gpunn__norm_bytes(&b, 1 + step->ranks->size);
        return GPUNN_OK;
    }
    b.training = step->training && !step->evaluates;
    b.eps = step->attr->eps;
    b.momentum = step->attr->momentum;
    b.x = in[0].data, b.x_dtype = in[0].dtype;
    b.weight = (const float *)in[1].data;
    b.bias = (const float *)in[2].data;
    b.running_mean = (float *)in[3].data;
    b.running_var = (float *)in[4].data;
    b.saved = (float *)step->saved;
    b.partial = step->workspace;
    b.relu = step->fused->relu;
    const gpunn_value *y = forward ? &step->out : &step->grad_in[0];
    b.y = y->data, b.y_dtype = y->dtype;
    if (forward)
        b.residual = step->fused->residual.data, b.residual_dtype = step->fused->residual.dtype;
    else {
        b.g = step->grad_out.data, b.g_dtype = step->grad_out.dtype;
        b.more = step->fused->more.data;
        b.dweight = (float *)step->grad_in[1].data;
        b.dbias = (float *)step->grad_in[2].data;
        b.add = step->accumulate[0];
        b.add_weight = step->accumulate[1];
        b.add_bias = step->accumulate[2];
        b.result = step->out.data, b.result_dtype = step->out.dtype;
        if (step->input_count > 5) {
            b.dresidual = step->grad_in[5].data, b.dresidual_dtype = step->grad_in[5].dtype;
            b.add_residual = step->accumulate[5];
        }
    }
    const unsigned tiles = (unsigned)((b.channels + b.tile - 1) / b.tile), blocks = tiles * (unsigned)b.parts;
    if (b.packs_of_channels && step->ranks == NULL && tiles * sizeof(unsigned) <= gpunn__counters_bytes(cuda))
        b.counters = cuda->counters;
    if (step->ranks || ((b.training || !forward) && b.parts > 1)) {
        b.phase = GPUNN__NORM_SUM;
        GPUNN__TRY(gpunn__norm_launch(cuda, b, blocks));
    }
    if (step->ranks) GPUNN__TRY(gpunn__norm_combine_ranks(cuda, step->ranks, &b));
    b.phase = b.phase ? GPUNN__NORM_APPLY : GPUNN__NORM_SUM | GPUNN__NORM_APPLY;
    return gpunn__norm_launch(cuda, b, blocks);
}

/* ---- layer_norm and rms_norm: x[rows][n] --------------------------------------------------------------- *
 * y = h * rstd * weight +
 * bias with h = x - mean of the row; rms_norm: h = x. In the backward pass, with k = g * weight:
 *    dbias = sum g, dweight = sum(g h rstd) over the rows,
 *    dx = rstd * (k - mean of k - h * rstd^2 * mean of k h); rms_norm: without the mean of k.
 * A row is read twice, the second time from a cache. The sums over the rows are a reduction that keeps the
 * columns. It is like sum's, but of two values at once. If there are several chunks, the block that finishes
 * the last one of a tile adds up all of them. */

typedef struct gpunn__row_norm {
    gpunn__along along; /* inner 1 */
    bool         packs; /* n is a multiple of 8, so packs of x and of weight and bias align */
    const float *weight, *bias;
    float       *rstd, *mean; /* [rows], saved; NULL: not wanted; rms_norm has no mean */
    float        eps;
    void        *half; /* a 16-bit copy of along.out, of half_type; NULL: not wanted */
    gpunn_dtype  half_type;
    float       *sums[2];    /* [n], dweight and dbias; NULL: not wanted */
    float       *partial[2]; /* [chunks][n] of each, if there are several chunks */
    unsigned    *counters;   /* [tiles] */
    bool         add[2];
} gpunn__row_norm;

/* Loads elements c .. c + N - 1 of weight or bias. */
template <int N>
__device__ __forceinline__ void gpunn__row_parameter(const gpunn__row_norm &b, const float *data, int64_t c,
                                                     float *v)
{
    if (N == 8 && b.packs) {
        gpunn__load8(data, GPUNN_F32, c, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = data[c + j];
}

/* Stores N elements of the result or of dx, which may accumulate, and of the 16-bit copy. */
template <int N>
__device__ __forceinline__ void gpunn__row_store(const gpunn__row_norm &b, int64_t i, float *v)
{
    const gpunn__along &a = b.along;
    if (b.half && a.add) {
        float old[N];
        gpunn__strided_load<N>(a.out, a.out_type, i, 1, old);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] += old[j];
    }
    gpunn__strided_store<N>(a.out, a.out_type, i, 1, v, a.add && !b.half);
    if (b.half) gpunn__strided_store<N>(b.half, b.half_type, i, 1, v, false);
}

template <bool CENTERED> struct gpunn__row_moments { /* not CENTERED: moments about 0 */
    const gpunn__along &a;
    gpunn__moments      own;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float v[N], sum[N], mean = 0;
        gpunn__strided_load<N>(a.x, a.x_type, i, 1, v);
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] = v[j];
        if (CENTERED) mean = gpunn__pack_reduce<N>(sum, gpunn__add()) / N;
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = (v[j] - mean) * (v[j] - mean);
        float square = gpunn__pack_reduce<N>(v, gpunn__add());
        if (CENTERED)
            gpunn__moments_join(&own, N, mean, square);
        else
            own.squares_or_products += square;
    }
};

struct gpunn__row_apply {
    const gpunn__row_norm &b;
    float                  mean, rstd;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float v[N], parameter[N];
        gpunn__strided_load<N>(b.along.x, b.along.x_type, i, 1, v);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = (v[j] - mean) * rstd;
        if (b.weight) {
            gpunn__row_parameter<N>(b, b.weight, c, parameter);
#pragma unroll
            for (int j = 0; j < N; j++) v[j] *= parameter[j];
        }
        if (b.bias) {
            gpunn__row_parameter<N>(b, b.bias, c, parameter);
#pragma unroll
            for (int j = 0; j < N; j++) v[j] += parameter[j];
        }
        gpunn__row_store<N>(b, i, v);
    }
};

template <bool CENTERED>
static __global__ void __launch_bounds__(GPUNN__THREADS, 4) gpunn__row_norm_kernel(const gpunn__row_norm b)
{
    GPUNN__FOLLOW();
    const gpunn__along &a = b.along;
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row           row = gpunn__along_row(a, first);
        gpunn__row_moments<CENTERED> visit = {a, {0, 0, 0}};
        gpunn__strided_visit(row, visit);
        float n = (float)a.n, mean = 0, square = visit.own.squares_or_products;
        if (CENTERED) {
            mean = gpunn__lanes_reduce(visit.own.mean_or_sum * (visit.own.count / n), gpunn__add(), a.lanes);
            square += visit.own.count * (visit.own.mean_or_sum - mean) * (visit.own.mean_or_sum - mean);
        }
        gpunn__row_apply apply = {b, mean,
                                  1 / sqrtf(gpunn__lanes_reduce(square, gpunn__add(), a.lanes) / n + b.eps)};
        gpunn__strided_visit(row, apply);
        if (row.index < a.rows && row.thread == 0) {
            /* one value equals its mean: no gradient */
            if (b.rstd) b.rstd[row.index] = CENTERED && a.n == 1 ? 0 : apply.rstd;
            if (b.mean) b.mean[row.index] = mean;
        }
    }
}

/* Loads N elements of h and k. */
template <int N>
__device__ __forceinline__ void gpunn__row_gradients(const gpunn__row_norm &b, int64_t i, int64_t c,
                                                     float mean, float *h, float *k)
{
    gpunn__strided_load<N>(b.along.x, b.along.x_type, i, 1, h);
    gpunn__strided_load<N>(b.along.gradient, b.along.gradient_type, i, 1, k);
#pragma unroll
    for (int j = 0; j < N; j++) h[j] -= mean;
    if (b.weight == NULL) return;
    float weight[N];
    gpunn__row_parameter<N>(b, b.weight, c, weight);
#pragma unroll
    for (int j = 0; j < N; j++) k[j] *= weight[j];
}

struct gpunn__row_gradient_sums { /* sums of k and k h */
    const gpunn__row_norm &b;
    float                  mean, sum, product;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float h[N], k[N];
        gpunn__row_gradients<N>(b, i, c, mean, h, k);
#pragma unroll
        for (int j = 0; j < N; j++) h[j] *= k[j];
        sum += gpunn__pack_reduce<N>(k, gpunn__add());
        product += gpunn__pack_reduce<N>(h, gpunn__add());
    }
};

struct gpunn__row_dx_apply {
    const gpunn__row_norm &b;
    float                  mean, rstd, shift, proj_scale;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float h[N], k[N];
        gpunn__row_gradients<N>(b, i, c, mean, h, k);
#pragma unroll
        for (int j = 0; j < N; j++) k[j] = (k[j] - shift - h[j] * proj_scale) * rstd;
        gpunn__row_store<N>(b, i, k);
    }
};

__device__ __forceinline__ void gpunn__row_norm_dx(const gpunn__row_norm &b)
{
    const gpunn__along &a = b.along;
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row       row = gpunn__along_row(a, first);
        bool                     there = row.index < a.rows;
        float                    n = (float)a.n, mean = b.mean && there ? b.mean[row.index] : 0;
        float                    rstd = there ? b.rstd[row.index] : 0;
        gpunn__row_gradient_sums sums = {b, mean, 0, 0};
        gpunn__strided_visit(row, sums);
        float shift = b.mean ? gpunn__lanes_reduce(sums.sum, gpunn__add(), a.lanes) / n : 0;
        float proj_scale = gpunn__lanes_reduce(sums.product, gpunn__add(), a.lanes) / n * rstd * rstd;
        gpunn__row_dx_apply apply = {b, mean, rstd, shift, proj_scale};
        gpunn__strided_visit(row, apply);
    }
}

/* Adds up both sums over the rows of a unit. Its first `lanes` threads write them: to partial, or for chunk
 * -1 to the gradients. */
template <int N>
__device__ __forceinline__ void gpunn__row_norm_join(const gpunn__reduction &r, const gpunn__row_norm &b,
                                                     int64_t chunk, int64_t column, bool there,
                                                     float (*sum)[N])
{
    __shared__ float part[N][GPUNN__THREADS];
    int              thread = threadIdx.x & (r.span - 1);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        for (int distance = r.span / 2; distance >= r.lanes; distance /= 2) {
            __syncthreads();
#pragma unroll
            for (int j = 0; j < N; j++) part[j][threadIdx.x] = sum[k][j];
            __syncthreads();
#pragma unroll
            for (int j = 0; j < N; j++)
                if (thread < distance) sum[k][j] += part[j][threadIdx.x + distance];
        }
        if (!there || thread >= r.lanes || !b.sums[k]) continue;
        if (chunk < 0)
            gpunn__strided_store<N>(b.sums[k], GPUNN_F32, column, 1, sum[k], b.add[k]);
        else
            gpunn__strided_store<N>(b.partial[k], GPUNN_F32, chunk * r.columns + column, 1, sum[k], false);
    }
}

/* A unit's threads: `lanes` across the columns, span / lanes down the runs. With several chunks a unit is a
 * whole block. */
template <int N>
__device__ __forceinline__ void gpunn__row_norm_columns(const gpunn__reduction &r, const gpunn__row_norm &b)
{
    const gpunn__along &a = b.along;
    int                 thread = threadIdx.x & (r.span - 1), per_block = blockDim.x / r.span;
    int64_t             units = r.chunks * r.tiles;
    for (int64_t first = (int64_t)blockIdx.x * per_block; first < units;
         first += (int64_t)gridDim.x * per_block) {
        int64_t unit = first + threadIdx.x / r.span, chunk = gpunn__quotient(unit, r.tiles),
                tile = unit - chunk * r.tiles;
        int64_t column = (tile * r.lanes + (thread & (r.lanes - 1))) * N;
        bool    there = unit < units && column < r.columns;
        float   sum[2][N];
#pragma unroll
        for (int j = 0; j < N; j++) sum[0][j] = sum[1][j] = 0;
        if (there) {
            int64_t end = min((chunk + 1) * r.chunk_runs, r.runs);
            for (int64_t run = chunk * r.chunk_runs + thread / r.lanes; run < end; run += r.span / r.lanes) {
                float x[N], g[N], rstd = b.rstd[run], mean = b.mean ? b.mean[run] : 0;
                gpunn__strided_load<N>(a.x, a.x_type, run * r.columns + column, 1, x);
                gpunn__strided_load<N>(a.gradient, a.gradient_type, run * r.columns + column, 1, g);
#pragma unroll
                for (int j = 0; j < N; j++) {
                    sum[0][j] += g[j] * ((x[j] - mean) * rstd);
                    sum[1][j] += g[j];
                }
            }
        }
        gpunn__row_norm_join<N>(r, b, r.chunks > 1 ? chunk : -1, column, there, sum);
        if (r.chunks == 1 || !gpunn__is_last_block(&b.counters[tile], (unsigned)r.chunks)) continue;
#pragma unroll
        for (int j = 0; j < N; j++) sum[0][j] = sum[1][j] = 0;
#pragma unroll
        for (int k = 0; k < 2; k++)
            for (chunk = thread / r.lanes; there && b.sums[k] && chunk < r.chunks;
                 chunk += r.span / r.lanes) {
                float v[N];
                gpunn__strided_load<N>(b.partial[k], GPUNN_F32, chunk * r.columns + column, 1, v);
#pragma unroll
                for (int j = 0; j < N; j++) sum[k][j] += v[j];
            }
        gpunn__row_norm_join<N>(r, b, -1, column, there, sum);
    }
}

template <int N>
static __global__ void __launch_bounds__(GPUNN__THREADS, 3)
    gpunn__row_norm_back_kernel(const gpunn__reduction r, const gpunn__row_norm b)
{
    GPUNN__FOLLOW();
    if (b.along.out) gpunn__row_norm_dx(b);
    gpunn__row_norm_columns<N>(r, b);
}

/* Computes all gradients. PREPARE sizes the workspace for those of weight and bias. */
static gpunn_status gpunn__row_norm_backward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action,
                                             gpunn__row_norm *b)
{
    const bool       columns = step->grad_in[1].data || step->grad_in[2].data;
    gpunn__reduction r;
    memset(&r, 0, sizeof r);
    r.by_column = true;
    r.kept = r.planes = 1;
    r.rows = b->along.rows;
    r.columns = b->along.n;
    gpunn__reduction_cut(cuda, &r, false);
    const size_t each = (gpunn__reduction_workspace(&r) + 63) / 64 * 64;
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = columns ? 2 * each : 0;
        return GPUNN_OK;
    }
    for (int k = 0; k < 2; k++) {
        b->sums[k] = (float *)step->grad_in[1 + k].data;
        b->add[k] = step->accumulate[1 + k];
        b->partial[k] = (float *)((char *)step->workspace + (size_t)k * each);
    }
    b->counters = cuda->counters;
    if (!columns) r.chunks = 0;
    unsigned       blocks = gpunn__blocks(cuda, r.chunks * r.tiles * r.span, 1);
    const unsigned rows = b->along.out ? gpunn__along_blocks(cuda, &b->along) : 0;
    if (blocks < rows) blocks = rows;
    if (r.pack == 8)
        return GPUNN__LAUNCH(cuda, (gpunn__row_norm_back_kernel<8>), blocks, GPUNN__THREADS, r, *b);
    return GPUNN__LAUNCH(cuda, (gpunn__row_norm_back_kernel<1>), blocks, GPUNN__THREADS, r, *b);
}

static gpunn_status gpunn__row_norm_step(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action,
                                         bool centered)
{
    gpunn__row_norm b;
    memset(&b, 0, sizeof b);
    b.along = gpunn__along_axis(cuda, step, step->attr->axis);
    b.along.n *= b.along.inner;
    b.along.inner = 1;
    b.along.rows = step->in[0].count / b.along.n;
    b.along.lanes = gpunn__lanes_of(cuda, b.along.rows, b.along.n, 1);
    b.packs = b.along.n % GPUNN__PACK == 0;
    b.weight = (const float *)step->in[1].data;
    b.bias = (const float *)step->in[2].data;
    b.rstd = (float *)step->saved;
    if (centered && b.rstd) b.mean = b.rstd + b.along.rows;
    b.half = step->fused->half.data;
    b.half_type = step->fused->half.dtype;
    b.eps = step->attr->eps;
    if (step->backward) return gpunn__row_norm_backward(cuda, step, action, &b);
    if (action == GPUNN__PREPARE) {
        if (step->training) step->saved_bytes = (centered ? 2 : 1) * (size_t)b.along.rows * sizeof(float);
        return GPUNN_OK;
    }
    unsigned blocks = gpunn__along_blocks(cuda, &b.along);
    if (centered) return GPUNN__LAUNCH(cuda, (gpunn__row_norm_kernel<true>), blocks, GPUNN__THREADS, b);
    return GPUNN__LAUNCH(cuda, (gpunn__row_norm_kernel<false>), blocks, GPUNN__THREADS, b);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_layer_norm(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__row_norm_step(cuda, step, action, true);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_rms_norm(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__row_norm_step(cuda, step, action, false);
}

/* ---- group_norm: x[n][channels][inner], rows of `group` channels --------------------------------------- *
 * Like layer_norm of the rows, with a weight
 * and a bias per channel. In the backward pass, a first launch sums g and g h rstd of each channel of each
 * sample into sums. A second one computes dx from them, and a reduction over the samples gives dbias and
 * dweight. */

typedef struct gpunn__group_norm {
    gpunn__along along; /* inner 1 */
    int64_t      channels, group, inner;
    const float *weight, *bias;
    float       *rstd, *mean; /* per row, saved; NULL: not wanted */
    float       *sums[2];     /* [n][channels], sums of g h rstd and of g */
    float        eps;
} gpunn__group_norm;

/* The channel of position c in a row. *left receives how many positions are left in that channel. */
__device__ __forceinline__ int64_t gpunn__group_norm_channel(const gpunn__group_norm &b, int64_t first,
                                                             int64_t c, int64_t *left)
{
    int64_t channel = gpunn__quotient(c, b.inner);
    *left = (channel + 1) * b.inner - c;
    return first + channel;
}

struct gpunn__group_norm_apply {
    const gpunn__group_norm &b;
    int64_t                  first; /* first channel */
    float                    mean, rstd;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float   v[N];
        int64_t left, channel = gpunn__group_norm_channel(b, first, c, &left);
        gpunn__strided_load<N>(b.along.x, b.along.x_type, i, 1, v);
#pragma unroll
        for (int j = 0; j < N; j++) {
            v[j] = (v[j] - mean) * rstd;
            if (b.weight) v[j] *= b.weight[channel];
            if (b.bias) v[j] += b.bias[channel];
            if (--left == 0) channel++, left = b.inner;
        }
        gpunn__strided_store<N>(b.along.out, b.along.out_type, i, 1, v, false);
    }
};

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__group_norm_kernel(const gpunn__group_norm b)
{
    GPUNN__FOLLOW();
    const gpunn__along &a = b.along;
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row       row = gpunn__along_row(a, first);
        gpunn__row_moments<true> visit = {a, {0, 0, 0}};
        gpunn__strided_visit(row, visit);
        float n = (float)a.n, mean = gpunn__lanes_reduce(visit.own.mean_or_sum * (visit.own.count / n),
                                                         gpunn__add(), a.lanes);
        float square = visit.own.squares_or_products +
                       visit.own.count * (visit.own.mean_or_sum - mean) * (visit.own.mean_or_sum - mean);
        float rstd = 1 / sqrtf(gpunn__lanes_reduce(square, gpunn__add(), a.lanes) / n + b.eps);
        gpunn__group_norm_apply apply = {b, row.index * b.group % b.channels, mean, rstd};
        gpunn__strided_visit(row, apply);
        if (row.index < a.rows && row.thread == 0) {
            if (b.rstd) b.rstd[row.index] = a.n == 1 ? 0 : rstd; /* as in row_norm */
            if (b.mean) b.mean[row.index] = mean;
        }
    }
}

/* Accumulates the sums of g and of g (x - mean). */
struct gpunn__group_norm_sums {
    const gpunn__along &a;
    float               mean, sum, product;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float x[N], g[N];
        gpunn__strided_load<N>(a.x, a.x_type, i, 1, x);
        gpunn__strided_load<N>(a.gradient, a.gradient_type, i, 1, g);
#pragma unroll
        for (int j = 0; j < N; j++) x[j] = g[j] * (x[j] - mean);
        sum += gpunn__pack_reduce<N>(g, gpunn__add());
        product += gpunn__pack_reduce<N>(x, gpunn__add());
    }
};

/* Each row of a is one channel of one sample. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__group_norm_sums_kernel(const gpunn__group_norm b, const gpunn__along a)
{
    GPUNN__FOLLOW();
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row     row = gpunn__along_row(a, first);
        bool                   there = row.index < a.rows;
        int64_t                group = gpunn__quotient(there ? row.index : 0, b.group);
        gpunn__group_norm_sums visit = {a, b.mean[group], 0, 0};
        gpunn__strided_visit(row, visit);
        float sum = gpunn__lanes_reduce(visit.sum, gpunn__add(), a.lanes);
        float product = gpunn__lanes_reduce(visit.product, gpunn__add(), a.lanes) * b.rstd[group];
        if (there && row.thread == 0) {
            b.sums[0][row.index] = product;
            b.sums[1][row.index] = sum;
        }
    }
}

struct gpunn__group_norm_dx_visit {
    const gpunn__group_norm &b;
    int64_t                  first; /* first channel */
    float                    mean, rstd, shift, proj_scale;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float   x[N], g[N];
        int64_t left, channel = gpunn__group_norm_channel(b, first, c, &left);
        gpunn__strided_load<N>(b.along.x, b.along.x_type, i, 1, x);
        gpunn__strided_load<N>(b.along.gradient, b.along.gradient_type, i, 1, g);
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (b.weight) g[j] *= b.weight[channel];
            g[j] = (g[j] - shift - (x[j] - mean) * proj_scale) * rstd;
            if (--left == 0) channel++, left = b.inner;
        }
        gpunn__strided_store<N>(b.along.out, b.along.out_type, i, 1, g, b.along.add);
    }
};

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__group_norm_back_kernel(const gpunn__group_norm b)
{
    GPUNN__FOLLOW();
    const gpunn__along &a = b.along;
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row row = gpunn__along_row(a, first);
        bool               there = row.index < a.rows;
        int64_t            begin = row.index * b.group, channel = begin % b.channels;
        float              sum = 0, product = 0, n = (float)a.n;
        for (int64_t c = row.thread; there && c < b.group; c += a.lanes) {
            float weight = b.weight ? b.weight[channel + c] : 1;
            product += weight * b.sums[0][begin + c];
            sum += weight * b.sums[1][begin + c];
        }
        sum = gpunn__lanes_reduce(sum, gpunn__add(), a.lanes);
        product = gpunn__lanes_reduce(product, gpunn__add(), a.lanes);
        float                      rstd = there ? b.rstd[row.index] : 0, mean = there ? b.mean[row.index] : 0;
        gpunn__group_norm_dx_visit dx_visit = {b, channel, mean, rstd, sum / n, rstd * product / n};
        gpunn__strided_visit(row, dx_visit);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_group_norm(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *in = step->in;
    gpunn__group_norm  b;
    memset(&b, 0, sizeof b);
    b.channels = in[0].dim[1];
    b.group = b.channels / step->attr->groups;
    b.inner = in[0].count / (in[0].dim[0] * b.channels);
    b.along = gpunn__along_axis(cuda, step, 1);
    b.along.n = b.group * b.inner;
    b.along.inner = 1;
    b.along.rows = in[0].count / b.along.n;
    b.along.lanes = gpunn__lanes_of(cuda, b.along.rows, b.along.n, 1);
    b.weight = (const float *)in[1].data;
    b.bias = (const float *)in[2].data;
    b.rstd = (float *)step->saved;
    if (b.rstd) b.mean = b.rstd + b.along.rows;
    b.eps = step->attr->eps;
    size_t each = ((size_t)(in[0].dim[0] * b.channels) * sizeof(float) + 63) / 64 * 64;
    if (action == GPUNN__PREPARE) {
        if (step->training && !step->backward) step->saved_bytes = 2 * (size_t)b.along.rows * sizeof(float);
        if (step->backward)
            step->workspace_bytes = 2 * each +
                                    gpunn__cuda_channel_sums_workspace(cuda, in[0].dim[0], b.channels, 1);
        return GPUNN_OK;
    }
    unsigned blocks = gpunn__along_blocks(cuda, &b.along);
    if (!step->backward) return GPUNN__LAUNCH(cuda, gpunn__group_norm_kernel, blocks, GPUNN__THREADS, b);
    for (int k = 0; k < 2; k++) b.sums[k] = (float *)((char *)step->workspace + (size_t)k * each);
    gpunn__along single = b.along;
    single.n = b.inner;
    single.rows = in[0].dim[0] * b.channels;
    single.lanes = gpunn__lanes_of(cuda, single.rows, single.n, 1);
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__group_norm_sums_kernel, gpunn__along_blocks(cuda, &single),
                             GPUNN__THREADS, b, single));
    if (b.along.out)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__group_norm_back_kernel, blocks, GPUNN__THREADS, b));
    for (int k = 0; k < 2; k++)
        if (step->grad_in[1 + k].data)
            GPUNN__TRY(gpunn__cuda_channel_sums(cuda, b.sums[k], GPUNN_F32, in[0].dim[0], b.channels, 1,
                                                (float *)step->grad_in[1 + k].data, step->accumulate[1 + k],
                                                (char *)step->workspace + 2 * each));
    return GPUNN_OK;
}

/* ---- instance_norm with running statistics ----
 * In training this is group_norm of each channel; the mean and 1 / deviation of each sample update the
 * running statistics. Elsewhere it is batch_norm by the running statistics. */

typedef struct gpunn__instances {
    int64_t      n, channels, cells;
    const float *rstd, *mean; /* [n][channels] */
    float       *running_mean, *running_var;
    float        eps, momentum;
} gpunn__instances;

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__instance_norm_kernel(const gpunn__instances b)
{
    GPUNN__FOLLOW();
    const int64_t c = (int64_t)blockIdx.x * GPUNN__THREADS + threadIdx.x;
    const double  share = (double)b.momentum, unbiased = (double)b.cells / (double)(b.cells - 1);
    double        center = 0, variance = 0;
    if (c >= b.channels) return;
    for (int64_t i = c; i < b.n * b.channels; i += b.channels) {
        center += (double)b.mean[i];
        variance += fmax(1 / ((double)b.rstd[i] * (double)b.rstd[i]) - (double)b.eps, 0.0);
    }
    b.running_mean[c] = (float)((1 - share) * (double)b.running_mean[c] + share * center / (double)b.n);
    b.running_var[c] = (float)((1 - share) * (double)b.running_var[c] +
                               share * unbiased * variance / (double)b.n);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_instance_norm(gpunn__cuda *cuda, gpunn_step *step,
                                                       gpunn__action action)
{
    const gpunn_value *in = step->in;
    if (!step->training || step->evaluates) return gpunn__cuda_batch_norm(cuda, step, action);
    GPUNN__TRY(gpunn__cuda_group_norm(cuda, step, action));
    if (action != GPUNN__FORWARD || in[3].data == NULL) return GPUNN_OK;
    const int64_t          n = in[0].dim[0], channels = in[0].dim[1];
    const float           *rstd = (const float *)step->saved;
    const gpunn__instances b = {n,
                                channels,
                                in[0].count / (n * channels),
                                rstd,
                                rstd + n * channels,
                                (float *)in[3].data,
                                (float *)in[4].data,
                                step->attr->eps,
                                step->attr->momentum};
    return GPUNN__LAUNCH(cuda, gpunn__instance_norm_kernel,
                         (unsigned)((channels + GPUNN__THREADS - 1) / GPUNN__THREADS), GPUNN__THREADS, b);
}
