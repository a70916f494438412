#include "cuda/pool.h"
#include "base/values.h"

/* The windows that cover any of the cells [from, to) are [*begin, *end). */
__device__ __forceinline__ void gpunn__pool_windows(const gpunn__pool_axis &a, int from, int to, int *begin,
                                                    int *end)
{
    if (a.kernel == 0) { /* search from an estimate that may be off by one */
        int low, high;
        *begin = max((int)((float)from * (float)a.out / (float)a.n) - 1, 0);
        while ((void)gpunn__pool_window(&a, *begin, &low, &high), high <= from) ++*begin;
        *end = *begin + 1;
        while (*end < a.out && ((void)gpunn__pool_window(&a, *end, &low, &high), low < to)) ++*end;
        return;
    }
    int before = from + a.padding - a.kernel; /* windows that begin at or before this one have ended */
    *begin = before < 0 ? 0 : before / a.stride + 1;
    *end = min((to - 1 + a.padding) / a.stride + 1, a.out);
}

typedef struct gpunn__pool_place { /* one output */
    int   z0, z1, y0, y1, x0, x1;  /* its window is cells [z0, z1) x [y0, y1) x [x0, x1) */
    int   skipped;                 /* index of its first cell in the unclipped window */
    float share;                   /* weight of one cell in an average */
} gpunn__pool_place;

/* The weight of one cell in the average over a window. depth, rows and columns include padding; the cell
 * counts do not. */
template <bool deep>
__device__ __forceinline__ float gpunn__pool_share(const gpunn__pool &p, int depth, int rows, int columns,
                                                   int deep_cells, int row_cells, int column_cells)
{
    float cells = p.count_exclude_pad ? (float)row_cells * (float)column_cells : (float)rows * (float)columns;
    if (deep) cells *= (float)(p.count_exclude_pad ? deep_cells : depth);
    return 1 / cells;
}

/* index: of the output in its volume. */
template <bool deep>
__device__ __forceinline__ gpunn__pool_place gpunn__pool_at(const gpunn__pool &p, int index)
{
    gpunn__pool_place place;
    int row = index / p.x.out, x = index - row * p.x.out, z = deep ? row / p.y.out : 0, y = row - z * p.y.out;
    int depth = 1, height = gpunn__pool_window(&p.y, y, &place.y0, &place.y1);
    int width = gpunn__pool_window(&p.x, x, &place.x0, &place.x1);
    place.z0 = 0, place.z1 = 1, place.skipped = 0;
    if (deep) {
        depth = gpunn__pool_window(&p.z, z, &place.z0, &place.z1);
        place.skipped = (place.z0 - gpunn__pool_corner(&p.z, z, place.z0)) * p.y.span;
    }
    place.skipped += place.y0 - gpunn__pool_corner(&p.y, y, place.y0);
    place.skipped = place.skipped * p.x.span + place.x0 - gpunn__pool_corner(&p.x, x, place.x0);
    place.share = gpunn__pool_share<deep>(p, depth, height, width, place.z1 - place.z0, place.y1 - place.y0,
                                          place.x1 - place.x0);
    return place;
}

__device__ __forceinline__ int gpunn__pool_marked(const gpunn__pool &p, int64_t i)
{
    return p.at_bytes == 1 ? ((const unsigned char *)p.at)[i] : ((const int *)p.at)[i];
}

/* A NaN wins, even over an earlier NaN. Of equal cells the first wins. */
template <bool deep>
static __global__ void __launch_bounds__(GPUNN__THREADS, 4) gpunn__pool_kernel(const gpunn__pool p)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    int     size = (deep ? p.z.out : 1) * p.y.out * p.x.out;
    for (; i < p.results; i += step) {
        int64_t           volume = i / size;
        gpunn__pool_place place = gpunn__pool_at<deep>(p, (int)(i - volume * size));
        int               at = place.skipped;
        float             best = p.average ? 0 : -INFINITY;
        for (int z = place.z0; z < place.z1; z++)
            for (int y = place.y0; y < place.y1; y++) {
                int64_t row = ((deep ? volume * p.z.n + z : volume) * p.y.n + y) * p.x.n;
                int     here = place.skipped + ((z - place.z0) * p.y.span + y - place.y0) * p.x.span;
#pragma unroll(deep ? 1 : 4)
                for (int x = place.x0; x < place.x1; x++, here++) {
                    float v = gpunn__load(p.from, p.from_dtype, row + x);
                    if (p.average)
                        best += v;
                    else if (v > best || v != v)
                        best = v, at = here;
                }
            }
        gpunn__store(p.to, p.to_dtype, i, p.average ? best * place.share : best);
        gpunn__pool_mark(p.at, p.at_bytes, i, at);
    }
}

/* A sort key: the cell with the larger key is the maximum. */
__device__ __forceinline__ unsigned long long gpunn__pool_rank(float v, unsigned at)
{
    unsigned bits = __float_as_uint(v + 0.0f); /* makes -0 equal to 0 */
    if (v != v) return 0xFFFFFFFFull << 32 | at;
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (unsigned long long)bits << 32 | ~at;
}

typedef struct gpunn__most {
    __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const
    {
        return a > b ? a : b;
    }
} gpunn__most;

/* One block, of any number of whole warps, per output. */
template <bool deep>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__pool_large_kernel(const gpunn__pool p)
{
    GPUNN__FOLLOW();
    int size = (deep ? p.z.out : 1) * p.y.out * p.x.out;
    for (int64_t i = blockIdx.x; i < p.results; i += gridDim.x) {
        int64_t           volume = i / size;
        gpunn__pool_place place = gpunn__pool_at<deep>(p, (int)(i - volume * size));
        int columns = place.x1 - place.x0, rows = place.y1 - place.y0, threads = (int)blockDim.x;
        /* lines: rows of all slices */
        int                line = (int)threadIdx.x / columns, x = (int)threadIdx.x % columns;
        int                down = threads / columns, along = threads % columns;
        float              sum = 0;
        unsigned long long best = 0;
        while (line < (place.z1 - place.z0) * rows) {
            int     z = deep ? line / rows : 0;
            int64_t slice = deep ? volume * p.z.n + place.z0 + z : volume;
            float   v = gpunn__load(p.from, p.from_dtype,
                                    (slice * p.y.n + place.y0 + line - z * rows) * p.x.n + place.x0 + x);
            if (p.average)
                sum += v;
            else
                best = gpunn__most()(best,
                                     gpunn__pool_rank(v, (unsigned)line * (unsigned)columns + (unsigned)x));
            line += down;
            x += along;
            if (x >= columns) x -= columns, line++;
        }
        if (p.average) {
            sum = gpunn__block_reduce(sum, gpunn__add());
            if (threadIdx.x == 0) gpunn__store(p.to, p.to_dtype, i, sum * place.share);
            continue;
        }
        best = gpunn__block_reduce(best, gpunn__most());
        if (threadIdx.x > 0) continue;
        unsigned at = best >> 32 == 0xFFFFFFFFu ? (unsigned)best : ~(unsigned)best;
        line = (int)at / columns;
        x = (int)at % columns;
        int     z = deep ? line / rows : 0, y = line - z * rows;
        int64_t slice = deep ? volume * p.z.n + place.z0 + z : volume;
        gpunn__store(
            p.to, p.to_dtype, i,
            gpunn__load(p.from, p.from_dtype, (slice * p.y.n + place.y0 + y) * p.x.n + place.x0 + x));
        gpunn__pool_mark(p.at, p.at_bytes, i, place.skipped + (z * p.y.span + y) * p.x.span + x);
    }
}

template <bool deep>
static __global__ void __launch_bounds__(GPUNN__THREADS, deep ? 3 : 4)
    gpunn__pool_back_kernel(const gpunn__pool p)
{
    GPUNN__FOLLOW();
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * GPUNN__PACK;
    int64_t step = (int64_t)gridDim.x * blockDim.x * GPUNN__PACK;
    int     size = (deep ? p.z.n : 1) * p.y.n * p.x.n;
    for (; i < p.cells; i += step) {
        int64_t volume = i / size;
        int     index = (int)(i - volume * size), row = index / p.x.n, x = index - row * p.x.n;
        int     z = deep ? row / p.y.n : 0, y = row - z * p.y.n, count = gpunn__pack_size(p.cells, i);
        float   v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (p.accumulate) gpunn__load_pack(p.to, p.to_dtype, i, count, v);
        for (int done = 0, n; done < count; done += n, x = 0) { /* one row of cells after another */
            int oz = 0, oz_end = 1, oy_begin, oy_end, ox_begin, ox_end;
            n = min(count - done, p.x.n - x);
            if (deep) gpunn__pool_windows(p.z, z, z + 1, &oz, &oz_end);
            gpunn__pool_windows(p.y, y, y + 1, &oy_begin, &oy_end);
            gpunn__pool_windows(p.x, x, x + n, &ox_begin, &ox_end);
            for (; oz < oz_end; oz++) {
                int z0 = 0, z1 = 1, depth = deep ? gpunn__pool_window(&p.z, oz, &z0, &z1) : 1;
                for (int oy = oy_begin; oy < oy_end; oy++) {
                    int     y0, y1, height = gpunn__pool_window(&p.y, oy, &y0, &y1);
                    int64_t row = ((deep ? volume * p.z.out + oz : volume) * p.y.out + oy) * p.x.out;
                    /* index of this row's first cell in that window */
                    int marked = y - gpunn__pool_corner(&p.y, oy, y0);
                    if (deep) marked += (z - gpunn__pool_corner(&p.z, oz, z0)) * p.y.span;
                    marked *= p.x.span;
                    /* adds its share to cells [begin, end) of this row */
                    for (int ox = ox_begin; ox < ox_end; ox++) {
                        int   begin, end, width = gpunn__pool_window(&p.x, ox, &begin, &end);
                        float share = 1;
                        if (p.average) {
                            share = gpunn__pool_share<deep>(p, depth, height, width, z1 - z0, y1 - y0,
                                                            end - begin);
                        } else {
                            int column = gpunn__pool_marked(p, row + ox) - marked;
                            begin = gpunn__pool_corner(&p.x, ox, begin) + column;
                            end = column >= 0 && column < p.x.span ? begin + 1 : begin;
                        }
                        begin = max(begin, x) - x + done;
                        end = min(end, x + n) - x + done;
                        if (begin >= end) continue;
                        share *= gpunn__load(p.from, p.from_dtype, row + ox);
#pragma unroll
                        for (int j = 0; j < GPUNN__PACK; j++)
                            if (j >= begin && j < end) v[j] += share;
                    }
                }
            }
            if (++y < p.y.n) continue;
            y = 0;
            if (!deep || ++z == p.z.n) z = 0, volume++;
        }
        gpunn__store_pack(p.to, p.to_dtype, i, count, false, v);
    }
}

/* Channels c .. c + n - 1, starting at element i. n < 8 only for the last channels. */
__device__ __forceinline__ void gpunn__pool_load(const gpunn__pool &p, const void *data, gpunn_dtype dtype,
                                                 int64_t i, int n, float v[8])
{
    if (p.channels % GPUNN__PACK == 0) {
        gpunn__load8(data, dtype, i, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) v[j] = j < n ? gpunn__load(data, dtype, i + j) : 0;
}

__device__ __forceinline__ void gpunn__pool_store(const gpunn__pool &p, int64_t i, int n, const float v[8])
{
    if (p.channels % GPUNN__PACK == 0) {
        gpunn__store8(p.to, p.to_dtype, i, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++)
        if (j < n) gpunn__store(p.to, p.to_dtype, i + j, v[j]);
}

/* The marked cells of channels c .. c + n - 1. Marks of one byte are accessed 8 at a time. */
__device__ __forceinline__ void gpunn__pool_load_marks(const gpunn__pool &p, int64_t i, int n, int at[8])
{
    if (p.at_bytes != 1 || p.channels % GPUNN__PACK != 0) {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) at[j] = j < n ? gpunn__pool_marked(p, i + j) : -1;
        return;
    }
    const uint2    pack = *(const uint2 *)((const unsigned char *)p.at + i);
    const unsigned word[2] = {pack.x, pack.y};
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) at[j] = (int)(word[j / 4] >> 8 * (j % 4) & 255);
}

__device__ __forceinline__ void gpunn__pool_store_marks(const gpunn__pool &p, int64_t i, int n,
                                                        const int at[8])
{
    if (p.at_bytes != 1 || p.channels % GPUNN__PACK != 0) {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++)
            if (j < n) gpunn__pool_mark(p.at, p.at_bytes, i + j, at[j]);
        return;
    }
    unsigned word[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) word[j / 4] |= (unsigned)at[j] << 8 * (j % 4);
    *(uint2 *)((unsigned char *)p.at + i) = make_uint2(word[0], word[1]);
}

/* For planes only, as is the next kernel. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__pool_channels_last_kernel(const gpunn__pool p)
{
    GPUNN__FOLLOW();
    int items = p.y.out * p.x.out * p.packs, step = (int)(gridDim.x * blockDim.x);
    for (int64_t image = blockIdx.y; image < p.images; image += gridDim.y)
        for (int item = (int)(blockIdx.x * blockDim.x + threadIdx.x); item < items; item += step) {
            int index = item / p.packs;
            int c = (item - index * p.packs) * GPUNN__PACK, n = min(p.channels - c, (int)GPUNN__PACK), at[8];
            gpunn__pool_place place = gpunn__pool_at<false>(p, index);
            float             best[8], v[8];
#pragma unroll
            for (int j = 0; j < GPUNN__PACK; j++) best[j] = p.average ? 0 : -INFINITY, at[j] = place.skipped;
            for (int y = place.y0; y < place.y1; y++)
#pragma unroll 2
                for (int x = place.x0; x < place.x1; x++) {
                    int here = place.skipped + (y - place.y0) * p.x.span + x - place.x0;
                    gpunn__pool_load(p, p.from, p.from_dtype,
                                     ((image * p.y.n + y) * p.x.n + x) * p.channels + c, n, v);
#pragma unroll
                    for (int j = 0; j < GPUNN__PACK; j++)
                        if (p.average)
                            best[j] += v[j];
                        else if (v[j] > best[j] || v[j] != v[j])
                            best[j] = v[j], at[j] = here;
                }
            int64_t i = (image * (p.y.out * p.x.out) + index) * p.channels + c;
#pragma unroll
            for (int j = 0; j < GPUNN__PACK; j++)
                if (p.average) best[j] *= place.share;
            gpunn__pool_store_marks(p, i, n, at);
            gpunn__pool_store(p, i, n, best);
        }
}

static __global__ void __launch_bounds__(GPUNN__THREADS, 4)
    gpunn__pool_channels_last_back_kernel(const gpunn__pool p)
{
    GPUNN__FOLLOW();
    int items = p.y.n * p.x.n * p.packs, step = (int)(gridDim.x * blockDim.x);
    for (int64_t image = blockIdx.y; image < p.images; image += gridDim.y)
        for (int item = (int)(blockIdx.x * blockDim.x + threadIdx.x); item < items; item += step) {
            int     cell = item / p.packs, y = cell / p.x.n, x = cell - y * p.x.n;
            int     c = (item - cell * p.packs) * GPUNN__PACK, n = min(p.channels - c, (int)GPUNN__PACK);
            int     oy, oy_end, ox_begin, ox_end;
            int64_t to = (image * (p.y.n * p.x.n) + cell) * p.channels + c;
            float   v[8] = {0, 0, 0, 0, 0, 0, 0, 0}, g[8];
            int     at[8];
            if (p.accumulate) gpunn__pool_load(p, p.to, p.to_dtype, to, n, v);
            gpunn__pool_windows(p.y, y, y + 1, &oy, &oy_end);
            gpunn__pool_windows(p.x, x, x + 1, &ox_begin, &ox_end);
            for (; oy < oy_end; oy++) {
                int y0, y1, height = gpunn__pool_window(&p.y, oy, &y0, &y1);
                int row = (y - gpunn__pool_corner(&p.y, oy, y0)) * p.x.span;
                for (int ox = ox_begin; ox < ox_end; ox++) {
                    int     x0, x1, width = gpunn__pool_window(&p.x, ox, &x0, &x1);
                    int     index = row + x - gpunn__pool_corner(&p.x, ox, x0);
                    float   share = p.average
                                        ? gpunn__pool_share<false>(p, 1, height, width, 1, y1 - y0, x1 - x0)
                                        : 1;
                    int64_t i = ((image * p.y.out + oy) * p.x.out + ox) * p.channels + c;
                    gpunn__pool_load(p, p.from, p.from_dtype, i, n, g);
                    if (!p.average) gpunn__pool_load_marks(p, i, n, at);
#pragma unroll
                    for (int j = 0; j < GPUNN__PACK; j++)
                        if (p.average || at[j] == index) v[j] += g[j] * share;
                }
            }
            gpunn__pool_store(p, to, n, v);
        }
}

/* Maxima of bytes. A thread computes four channels of a result; a plane is an image of one channel. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__pool_bytes_kernel(const gpunn__pool p)
{
    GPUNN__FOLLOW();
    const int size = p.y.out * p.x.out;
    int64_t   i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    for (; i < p.images * size * p.packs; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t           cell = i / p.packs, image = cell / size;
        const int               first = (int)(i - cell * p.packs) * 4;
        const gpunn__pool_place place = gpunn__pool_at<false>(p, (int)(cell - image * size));
        int                     best[4] = {0, 0, 0, 0};
        for (int y = place.y0; y < place.y1; y++)
            for (int x = place.x0; x < place.x1; x++) {
                const int64_t  at = (image * p.y.n + y) * p.x.n + x;
                const uint32_t four = gpunn__load_channels(p.from, at * p.channels, first, p.channels);
#pragma unroll
                for (int j = 0; j < 4; j++) best[j] = max(best[j], gpunn__byte_at(four, j));
            }
        gpunn__store_channels(p.to, cell * p.channels, first, p.channels,
                              (uint32_t)(best[0] | best[1] << 8 | best[2] << 16) | (uint32_t)best[3] << 24);
    }
}

enum { GPUNN__POOL_MOST = 1 << 30 }; /* most values of an image, or cells of a window */

/* Cells of the largest window. The result exceeds GPUNN__POOL_MOST if there are too many. */
static int64_t gpunn__pool_cells(const gpunn__pool *p)
{
    int64_t plane = (int64_t)p->y.span * p->x.span;
    return plane > GPUNN__POOL_MOST ? plane : p->z.span * plane;
}

GPUNN__INTERNAL gpunn__pool gpunn__pool_of(const gpunn_step *step)
{
    const gpunn_value *x = &step->in[0], *y = step->backward ? &step->grad_out : &step->out;
    const gpunn_value *from = step->backward ? y : x, *to = step->backward ? &step->grad_in[0] : y;
    gpunn__pool        p;
    memset(&p, 0, sizeof p);
    gpunn__pool_axes(step, &p.z, &p.y, &p.x);
    p.average = !gpunn__op_is(step->op, GPUNN__MAX_POOL);
    if (!p.average && step->training && x->dtype != GPUNN_U8)
        p.at_bytes = gpunn__pool_cells(&p) <= 256 ? 1 : 4;
    p.results = y->count, p.cells = x->count;
    p.count_exclude_pad = gpunn__op_is(step->op, GPUNN__ADAPTIVE_POOL) || step->attr->count_exclude_pad;
    p.at = step->saved;
    p.from = from->data, p.from_dtype = from->dtype;
    p.to = to->data, p.to_dtype = to->dtype;
    p.accumulate = step->backward && step->accumulate[0];
    return p;
}

GPUNN__INTERNAL bool gpunn__pool_tiles(const gpunn_step *step, const gpunn__pool *p)
{
    return step->op == GPUNN_OP_MAX_POOL2D && !step->in[0].channels_last && p->y.stride == p->y.kernel &&
           p->x.stride == p->x.kernel && p->y.padding + p->x.padding == 0 &&
           p->y.out * p->y.kernel == p->y.n && p->x.out * p->x.kernel == p->x.n && gpunn__pool_cells(p) < 32;
}

typedef struct gpunn__pool_relu {
    gpunn__pool p; /* `to` is the gradient of relu's argument */
    int         images, channels;
    const void *y; /* relu's result */
    gpunn_dtype y_dtype;
    float      *sums; /* [channels] = or += the channel sums of the gradient; NULL: not wanted */
    bool        add;
} gpunn__pool_relu;

/* A block per channel, a thread per window. */
static __global__ void __launch_bounds__(1024) gpunn__pool_relu_back_kernel(const gpunn__pool_relu r)
{
    GPUNN__FOLLOW();
    const gpunn__pool &p = r.p;
    const int          size = p.y.out * p.x.out;
    float              sum = 0;
    for (int item = (int)threadIdx.x; item < r.images * size; item += (int)blockDim.x) {
        int image = item / size, index = item - image * size, row = index / p.x.out,
            column = index - row * p.x.out;
        int64_t volume = (int64_t)image * r.channels + blockIdx.x, i = volume * size + index;
        int64_t corner = (volume * p.y.n + row * p.y.kernel) * p.x.n + column * p.x.kernel;
        int     at = gpunn__pool_marked(p, i);
        float   g = gpunn__load(p.from, p.from_dtype, i);
        for (int cell = 0; cell < p.y.kernel * p.x.kernel; cell++) {
            int64_t place = corner + cell / p.x.kernel * p.x.n + cell % p.x.kernel;
            float   gradient = cell != at || gpunn__load(r.y, r.y_dtype, place) <= 0
                                   ? 0
                                   : gpunn__rounded(g, p.to_dtype);
            gpunn__store(p.to, p.to_dtype, place, gradient);
            sum += gradient;
        }
    }
    if (r.sums == NULL) return;
    sum = gpunn__block_reduce(sum, gpunn__add());
    if (threadIdx.x == 0) r.sums[blockIdx.x] = r.add ? r.sums[blockIdx.x] + sum : sum;
}

/* Merges a max pooling's backward step with that of the relu before it. If a convolution's backward step
 * follows, it also computes the gradient of its bias. */
static gpunn_status gpunn__pool_relu_back(gpunn__cuda *cuda, const gpunn_step *step, const gpunn__pool *p,
                                          bool *taken)
{
    const gpunn_step *relu = cuda->next, *conv = cuda->next + 1;
    const int64_t     channels = step->in[0].dim[1];
    gpunn__pool_relu  r;
    *taken = cuda->next < cuda->end && gpunn__pool_tiles(step, p) && p->results / channels <= 4 * 1024 &&
             !p->accumulate && relu->op == GPUNN_OP_RELU && relu->backward && relu->grad_out.data == p->to &&
             relu->grad_in[0].data == p->to && !relu->accumulate[0] && relu->grad_in[0].dtype == p->to_dtype;
    if (!*taken) return GPUNN_OK;
    memset(&r, 0, sizeof r);
    r.p = *p;
    r.images = (int)step->in[0].dim[0];
    r.channels = (int)channels;
    r.y = relu->out.data, r.y_dtype = relu->out.dtype;
    if (conv < cuda->end && conv->op == GPUNN_OP_CONV2D && conv->backward && conv->grad_out.data == p->to) {
        r.sums = (float *)conv->grad_in[2].data;
        r.add = conv->accumulate[2];
        cuda->summed = conv;
    }
    cuda->next++;
    return GPUNN__LAUNCH(cuda, gpunn__pool_relu_back_kernel, (unsigned)channels, 1024, r);
}

static gpunn_status gpunn__cuda_pool(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *x = &step->in[0], *y = step->backward ? &step->grad_out : &step->out;
    const int64_t      most = GPUNN__POOL_MOST;
    gpunn__pool        p = gpunn__pool_of(step);
    const int          deep = x->rank - 4;
    const int64_t      window = gpunn__pool_cells(&p);
    bool               taken;
    if (action == GPUNN__PREPARE) {
        const gpunn__pool_axis *axes[3] = {&p.z, &p.y, &p.x};
        int64_t                 images = x->dim[0] * (x->channels_last ? 1 : x->dim[1]);
        for (int i = 0; i < 3; i++)
            if (axes[i]->kernel == 0 && axes[i]->out > 65536)
                return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                        "%d windows along an axis are more than 65536; use fewer",
                                        axes[i]->out);
        if (x->count / images > most || y->count / images > most || window > most)
            return gpunn__cuda_fail(
                cuda, GPUNN_ERR_UNSUPPORTED,
                "an image or window has more than 2^30 values; split the images into smaller ones");
        if (!step->backward) step->saved_bytes = (size_t)p.at_bytes * (size_t)y->count;
        return GPUNN_OK;
    }
    if (p.to == NULL) return GPUNN_OK;
    if (x->dtype == GPUNN_U8) {
        p.channels = x->channels_last ? (int)x->dim[1] : 1;
        p.images = x->dim[0] * x->dim[1] / p.channels;
        p.packs = (p.channels + 3) / 4;
        return GPUNN__LAUNCH(cuda, gpunn__pool_bytes_kernel,
                             gpunn__blocks(cuda, y->count / p.channels * p.packs, 1), GPUNN__THREADS, p);
    }
    if (x->channels_last) {
        p.images = x->dim[0];
        p.channels = (int)x->dim[1];
        p.packs = (p.channels + GPUNN__PACK - 1) / GPUNN__PACK;
        dim3     grid(gpunn__blocks(cuda, (step->backward ? x : y)->count / x->dim[0], GPUNN__PACK));
        unsigned rows = (unsigned)cuda->multiprocessors * 16 / grid.x + 1;
        grid.y = p.images < rows ? (unsigned)p.images : rows;
        if (action == GPUNN__BACKWARD)
            return GPUNN__LAUNCH(cuda, gpunn__pool_channels_last_back_kernel, grid, GPUNN__THREADS, p);
        return GPUNN__LAUNCH(cuda, gpunn__pool_channels_last_kernel, grid, GPUNN__THREADS, p);
    }
    if (action == GPUNN__BACKWARD) {
        unsigned blocks = gpunn__blocks(cuda, p.cells, 8);
        GPUNN__TRY(gpunn__pool_relu_back(cuda, step, &p, &taken));
        if (taken) return GPUNN_OK;
        if (deep) return GPUNN__LAUNCH(cuda, gpunn__pool_back_kernel<true>, blocks, GPUNN__THREADS, p);
        return GPUNN__LAUNCH(cuda, gpunn__pool_back_kernel<false>, blocks, GPUNN__THREADS, p);
    }
    if (window < 32) {
        unsigned blocks = gpunn__blocks(cuda, p.results, 1);
        if (deep) return GPUNN__LAUNCH(cuda, gpunn__pool_kernel<true>, blocks, GPUNN__THREADS, p);
        return GPUNN__LAUNCH(cuda, gpunn__pool_kernel<false>, blocks, GPUNN__THREADS, p);
    }
    int64_t  blocks = (int64_t)cuda->multiprocessors * 32;
    unsigned threads = window < 1024 ? 32 : GPUNN__THREADS;
    if (blocks > p.results) blocks = p.results;
    if (deep) return GPUNN__LAUNCH(cuda, gpunn__pool_large_kernel<true>, (unsigned)blocks, threads, p);
    return GPUNN__LAUNCH(cuda, gpunn__pool_large_kernel<false>, (unsigned)blocks, threads, p);
}

#define GPUNN__X(name)                                                                           \
    GPUNN__INTERNAL gpunn_status name(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action) \
    {                                                                                            \
        return gpunn__cuda_pool(cuda, step, action);                                             \
    }
GPUNN__X(gpunn__cuda_max_pool2d)
GPUNN__X(gpunn__cuda_max_pool3d)
GPUNN__X(gpunn__cuda_avg_pool2d)
GPUNN__X(gpunn__cuda_avg_pool3d)
GPUNN__X(gpunn__cuda_adaptive_max_pool2d)
GPUNN__X(gpunn__cuda_adaptive_max_pool3d)
GPUNN__X(gpunn__cuda_adaptive_avg_pool2d)
GPUNN__X(gpunn__cuda_adaptive_avg_pool3d)
#undef GPUNN__X
