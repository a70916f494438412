#include "cpu/vectors.h"
#include "cpu/context.h"

/* ==== >>cpu/pool ========================================================================================= *
 * Pooling of volumes [d, h, w] -> [od, oh, ow], one per image and channel; a plane is a volume of depth 1.
 * Windows that lie wholly inside are computed eight neighbours of a row at a time, the others one by one. */
typedef struct gpunn__pool {
    int64_t          volumes, channels;
    bool             last; /* x and y have channels last */
    gpunn__pool_axis z, y, x;
    /* global: one window that covers the whole volume */
    bool         average, global, count_exclude_pad, accumulate;
    int          at_bytes; /* bytes per saved maximum: its index in the largest window; 0: not saved */
    void        *at;
    const float *from; /* x, or the gradient of y */
    float       *to;   /* y, or the gradient of x */
} gpunn__pool;

/* Makes one row of the rows of a volume where no window covers two of them, so that short rows fill the
 * vectors as well. */
static void gpunn__pool_join_rows(gpunn__pool *p)
{
    const bool apart = p->y.kernel == 1 && p->y.stride == 1 && p->y.padding == 0 && p->x.padding == 0;
    if (!apart || p->x.kernel > p->x.stride || p->x.n != p->x.out * p->x.stride || p->x.out > 4 ||
        p->volumes < 64)
        return;
    p->x.n *= p->y.n;
    p->x.out *= p->y.n;
    p->y.n = p->y.out = 1;
}

static gpunn__pool gpunn__pool_shape(const gpunn_step *step)
{
    const gpunn_value *x = &step->in[0], *y = step->backward ? &step->grad_out : &step->out;
    gpunn__pool        p;
    memset(&p, 0, sizeof p);
    p.volumes = x->dim[0] * x->dim[1], p.channels = x->dim[1];
    p.last = x->channels_last || y->channels_last;
    gpunn__pool_axes(step, &p.z, &p.y, &p.x);
    p.average = !gpunn__op_is(step->op, GPUNN__MAX_POOL);
    p.count_exclude_pad = gpunn__op_is(step->op, GPUNN__ADAPTIVE_POOL) || step->attr->count_exclude_pad;
    p.global = p.z.kernel == p.z.n && p.y.kernel == p.y.n && p.x.kernel == p.x.n && y->count == p.volumes &&
               p.z.padding + p.y.padding + p.x.padding == 0;
    if (!p.average && step->training && x->dtype != GPUNN_U8)
        p.at_bytes = p.z.span * p.y.span * p.x.span <= 256 ? 1 : 4;
    p.at = step->saved;
    if (step->backward) {
        p.from = (const float *)step->grad_out.data, p.to = (float *)step->grad_in[0].data;
        p.accumulate = step->accumulate[0];
    } else {
        p.from = (const float *)x->data, p.to = (float *)step->out.data;
    }
    if (!p.last) gpunn__pool_join_rows(&p);
    return p;
}

/* Start of the window of output i, which may lie in the padding. */
GPUNN__INLINE int64_t gpunn__pool_start(const gpunn__pool_axis *a, int64_t i)
{
    int64_t begin, end;
    (void)gpunn__pool_window(a, i, &begin, &end);
    return gpunn__pool_corner(a, i, begin);
}

/* Outputs [*begin, *end) of an axis have windows that lie wholly inside. */
GPUNN__INLINE void gpunn__pool_inner(const gpunn__pool_axis *a, int64_t *begin, int64_t *end)
{
    *begin = *end = 0;
    if (a->kernel == 0 || a->n + a->padding < a->kernel) return;
    *begin = (a->padding + a->stride - 1) / a->stride;
    *end = (a->n + a->padding - a->kernel) / a->stride + 1;
    if (*end > a->out) *end = a->out;
    if (*begin > *end) *begin = *end;
}

/* Pools the depth x rows x columns cells that begin at x and stores the result to element `to`. first: index
 * of the first cell within the whole window, nonzero if an edge cuts the window. As in torch, NaN wins, also
 * over an earlier NaN. */
GPUNN__NOINLINE void gpunn__pool_one(const gpunn__pool *p, bool average, const float *x, int64_t depth,
                                     int64_t rows, int64_t columns, int64_t first, float scale, int64_t to)
{
    float   best = average ? 0 : -INFINITY;
    int64_t at = first;
    for (int64_t z = 0; z < depth; z++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++) {
                float v = x[(z * p->y.n + r) * p->x.n + c];
                if (average)
                    best += v;
                else if (v > best || v != v)
                    best = v, at = first + (z * p->y.span + r) * p->x.span + c;
            }
    p->to[to] = average ? best * scale : best;
    gpunn__pool_mark(p->at, p->at_bytes, to, at);
}

#if defined(__GNUC__) && !defined(GPUNN_NO_SIMD)
typedef float   gpunn__f8 __attribute__((vector_size(32)));
typedef int32_t gpunn__i8 __attribute__((vector_size(32)));
typedef uint8_t gpunn__b8 __attribute__((vector_size(8)));

/* Elements 0, 2, 4, 6 of low, then elements 0, 2, 4, 6 of high, or 1, 3, 5, 7 of high if odd. */
#if defined(__clang__)
#define GPUNN__EVEN(low, high, odd) \
    __builtin_shufflevector(low, high, 0, 2, 4, 6, 8 + (odd), 10 + (odd), 12 + (odd), 14 + (odd))
#else
#define GPUNN__EVEN(low, high, odd) \
    __builtin_shuffle(              \
        low, high,                  \
        __extension__(const gpunn__i8){0, 2, 4, 6, 8 + (odd), 10 + (odd), 12 + (odd), 14 + (odd)})
#endif

/* Loads cells 0, 2, ... 14. */
GPUNN__INLINE void gpunn__pool_even(const float *cell, gpunn__f8 *even)
{
    gpunn__f8 low, high; /* cells 0 .. 7 and 7 .. 14 */
    memcpy(&low, cell, sizeof low);
    memcpy(&high, cell + 7, sizeof high);
    *even = GPUNN__EVEN(low, high, 1);
}

/* Cells 0, 4, ... 28. */
GPUNN__INLINE void gpunn__pool_fourth(const float *cell, gpunn__f8 *fourth)
{
    gpunn__f8 low, high;
    gpunn__pool_even(cell, &low);
    gpunn__pool_even(cell + 16, &high);
    *fourth = GPUNN__EVEN(low, high, 0);
}

/* Cells 0, stride, ... 7 * stride. */
GPUNN__INLINE void gpunn__pool_strided(const float *cell, int64_t stride, gpunn__f8 *cells)
{
    GPUNN__UNROLL
    for (int i = 0; i < 8; i++) (*cells)[i] = cell[i * stride];
}

/* Pools eight neighbouring whole windows, `stride` apart, and stores the first `count`. Reads up to 8 *
 * stride cells per row. */
GPUNN__INLINE void gpunn__pool_eight(const gpunn__pool *p, bool average, const float *x, int64_t depth,
                                     int64_t rows, int64_t columns, int64_t stride, float scale, int64_t to,
                                     int64_t count)
{
    gpunn__f8 best = {0}, v = {0};
    gpunn__i8 at = {0};
    if (!average) best -= INFINITY;
    for (int64_t z = 0; z < depth; z++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++) {
                const float *cell = x + (z * p->y.n + r) * p->x.n + c;
                if (stride == 2)
                    gpunn__pool_even(cell, &v);
                else if (stride == 1)
                    memcpy(&v, cell, sizeof v);
                else if (stride == 4)
                    gpunn__pool_fourth(cell, &v);
                else
                    gpunn__pool_strided(cell, stride, &v);
                if (average) {
                    best += v;
                } else {
                    gpunn__i8 take = (v > best) | (v != v),
                              index = at * 0 + (int32_t)((z * rows + r) * columns + c);
                    best = (gpunn__f8)((take & (gpunn__i8)v) | (~take & (gpunn__i8)best));
                    at = (take & index) | (~take & at);
                }
            }
    if (average) best *= scale;
    if (count == 8)
        memcpy(p->to + to, &best, sizeof best);
    else
        for (int i = 0; i < count; i++) p->to[to + i] = best[i];
    if (p->at_bytes == 1 && count == 8) {
        gpunn__b8 narrow = __builtin_convertvector(at, gpunn__b8);
        memcpy((uint8_t *)p->at + to, &narrow, sizeof narrow);
    } else if (p->at_bytes) {
        for (int i = 0; i < count; i++) gpunn__pool_mark(p->at, p->at_bytes, to + i, at[i]);
    }
}
#endif

/* Computes output rows [row, row_end) of all volumes. depth, rows, columns, stride: of a whole window;
 * constants in common cases. */
GPUNN__INLINE void gpunn__pool_rows(const gpunn__pool *p, bool average, int64_t depth, int64_t rows,
                                    int64_t columns, int64_t stride, int64_t row, int64_t row_end)
{
    int64_t inner, inner_end, size = p->y.n * p->x.n;
    int64_t oy = row % p->y.out, oz = row / p->y.out % p->z.out, volume = row / p->y.out / p->z.out;
    gpunn__pool_inner(&p->x, &inner, &inner_end);
    for (; row < row_end; row++) {
        int64_t z0, z1, ox = 0, deep = gpunn__pool_window(&p->z, oz, &z0, &z1);
        int64_t y0, y1, height = gpunn__pool_window(&p->y, oy, &y0, &y1);
        int64_t skipped = (z0 - gpunn__pool_corner(&p->z, oz, z0)) * p->y.span + y0 -
                          gpunn__pool_corner(&p->y, oy, y0);
        const float *x = p->from + (volume * p->z.n + z0) * size + y0 * p->x.n;
        while (ox < p->x.out) {
#if defined(__GNUC__) && !defined(GPUNN_NO_SIMD)
            if (stride <= 8 && ox == inner && y1 - y0 == rows && z1 - z0 == depth) {
                for (; ox < inner_end; ox += 8) {
                    /* the last 8 may overlap */
                    int64_t      from = inner_end - inner < 8 || ox <= inner_end - 8 ? ox : inner_end - 8;
                    const float *cell = x - p->x.padding + from * stride;
                    int64_t      count = inner_end - from < 8 ? inner_end - from : 8;
                    if (p->from + p->volumes * p->z.n * size - cell <
                        (depth - 1) * size + (rows - 1) * p->x.n + columns + 8 * stride)
                        break;
                    gpunn__pool_eight(p, average, cell, depth, rows, columns, stride,
                                      1 / (float)(depth * rows * columns), row * p->x.out + from, count);
                }
                if (ox > inner_end) ox = inner_end;
                if (ox == p->x.out) break;
            }
#else
            (void)depth, (void)rows, (void)columns, (void)stride;
#endif
            int64_t x0, x1, width = gpunn__pool_window(&p->x, ox, &x0, &x1);
            int64_t cells = p->count_exclude_pad ? (z1 - z0) * (y1 - y0) * (x1 - x0) : deep * height * width;
            int64_t first = skipped * p->x.span + x0 - gpunn__pool_corner(&p->x, ox, x0);
            gpunn__pool_one(p, average, x + x0, z1 - z0, y1 - y0, x1 - x0, first, 1 / (float)cells,
                            row * p->x.out + ox);
            ox++;
        }
        if (++oy < p->y.out) continue;
        oy = 0;
        if (++oz == p->z.out) oz = 0, volume++;
    }
}

/* Pools one window, the whole volume x, in 16 lanes. */
GPUNN__INLINE void gpunn__pool_whole(const gpunn__pool *p, const float *x, int64_t to)
{
    int64_t cells = p->z.n * p->y.n * p->x.n, i = 0;
    float   lane[16];
    int32_t at[16];
    for (int l = 0; l < 16; l++) lane[l] = p->average ? 0 : -INFINITY, at[l] = 0;
    if (p->average) {
        float sum = 0;
        for (; i + 16 <= cells; i += 16) {
            GPUNN__UNROLL
            for (int l = 0; l < 16; l++) lane[l] += x[i + l];
        }
        for (int l = 0; i > 0 && l < 16; l++) sum += lane[l];
        for (; i < cells; i++) sum += x[i];
        p->to[to] = sum / (float)cells;
        return;
    }
    for (; i < cells; i += 16) {
        int lanes = cells - i < 16 ? (int)(cells - i) : 16;
        for (int l = 0; l < lanes; l++) {
            float v = x[i + l];
            bool  take = (v > lane[l]) | (v != v);
            lane[l] = take ? v : lane[l];
            at[l] = take ? (int32_t)i + l : at[l];
        }
    }
    for (int l = 1; l < 16; l++) { /* of equal cells the first wins, of NaN the last */
        bool earlier = at[l] < at[0], none = lane[0] == lane[0];
        if (lane[l] != lane[l] ? none || !earlier : lane[l] > lane[0] || (lane[l] == lane[0] && earlier))
            lane[0] = lane[l], at[0] = at[l];
    }
    p->to[to] = lane[0];
    gpunn__pool_mark(p->at, p->at_bytes, to, at[0]);
}

/* Channels [c, c_end) of result `at` of images with channels last, in the order of the cells. */
static void gpunn__pool_pixel(const gpunn__pool *p, int64_t at, int64_t c, int64_t c_end)
{
    int64_t       y0, y1, x0, x1;
    const int64_t height = gpunn__pool_window(&p->y, at / p->x.out % p->y.out, &y0, &y1),
                  width = gpunn__pool_window(&p->x, at % p->x.out, &x0, &x1), count = c_end - c;
    const float           *image = p->from + at / p->x.out / p->y.out * p->y.n * p->x.n * p->channels + c;
    float *GPUNN__RESTRICT to = p->to + at * p->channels + c;
    for (int64_t i = 0; i < count; i++) to[i] = p->average ? 0 : -INFINITY;
    for (int64_t y = y0; y < y1; y++)
        for (int64_t x = x0; x < x1; x++) {
            const float *from = image + (y * p->x.n + x) * p->channels;
            if (p->average)
                for (int64_t i = 0; i < count; i++) to[i] += from[i];
            else /* NaN wins */
                for (int64_t i = 0; i < count; i++)
                    to[i] = from[i] > to[i] || from[i] != from[i] ? from[i] : to[i];
        }
    const float scale = 1 / (float)(p->count_exclude_pad ? (y1 - y0) * (x1 - x0) : height * width);
    for (int64_t i = 0; i < count && p->average; i++) to[i] *= scale;
}

/* Images with channels last. The threads share strips of 16 channels, since there may be fewer results. */
GPUNN__VECTORIZED(gpunn__pool_last, (void *arg, int index, int threads), (arg, index, threads))
{
    enum { STRIP = 16 };
    const gpunn__pool *p = (const gpunn__pool *)arg;
    const int64_t      strips = (p->channels + STRIP - 1) / STRIP;
    int64_t            at, end, count;
    gpunn__cpu_part(p->volumes / p->channels * p->y.out * p->x.out * strips, 1, threads, index, &at, &end);
    for (; at < end; at += count) {
        const int64_t strip = at % strips;
        count = gpunn__least(strips - strip, end - at);
        gpunn__pool_pixel(p, at / strips, strip * STRIP, gpunn__least((strip + count) * STRIP, p->channels));
    }
}

/* One window covers each volume. */
GPUNN__VECTORIZED_AVX2(gpunn__pool_global, (void *arg, int index, int threads), (arg, index, threads))
{
    const gpunn__pool *p = (const gpunn__pool *)arg;
    const int64_t      cells = p->z.n * p->y.n * p->x.n;
    int64_t            volume, end;
    gpunn__cpu_part(p->volumes, 1, threads, index, &volume, &end);
    for (; volume < end; volume++) gpunn__pool_whole(p, p->from + volume * cells, volume);
}

GPUNN__VECTORIZED(gpunn__pool_forward, (void *arg, int index, int threads), (arg, index, threads))
{
    const gpunn__pool *p = (const gpunn__pool *)arg;
    const int64_t      kd = p->z.kernel, kh = p->y.kernel, kw = p->x.kernel, stride = p->x.stride;
    const bool         flat = p->z.n == 1 && kd == 1, halves = flat && stride == 2;
    int64_t            row, end;
    gpunn__cpu_part(p->volumes * p->z.out * p->y.out, 1, threads, index, &row, &end);
    if (p->average && halves && kh == 2 && kw == 2)
        gpunn__pool_rows(p, true, 1, 2, 2, 2, row, end);
    else if (p->average && flat)
        gpunn__pool_rows(p, true, 1, kh, kw, stride, row, end);
    else if (p->average)
        gpunn__pool_rows(p, true, kd, kh, kw, stride, row, end);
    else if (halves && kh == 2 && kw == 2)
        gpunn__pool_rows(p, false, 1, 2, 2, 2, row, end);
    else if (halves && kh == 3 && kw == 3)
        gpunn__pool_rows(p, false, 1, 3, 3, 2, row, end);
    else if (flat)
        gpunn__pool_rows(p, false, 1, kh, kw, stride, row, end);
    else
        gpunn__pool_rows(p, false, kd, kh, kw, stride, row, end);
}

/* Adds one row of gradients of maxima to the cells of these. The windows begin in row `corner` of dx. */
GPUNN__INLINE void gpunn__pool_hand_back(const gpunn__pool *p, bool adaptive, const float *dy, int64_t row,
                                         const int64_t *offset, float *corner)
{
    for (int64_t i = 0; i < p->x.out; i++) {
        int64_t from = adaptive ? gpunn__pool_start(&p->x, i) : i * p->x.stride - p->x.padding, at;
        if (offset) {
            at = offset[((const uint8_t *)p->at)[row + i]];
        } else {
            at = ((const int32_t *)p->at)[row + i];
            int64_t line = at / p->x.span;
            at = (line / p->y.span * p->y.n + line % p->y.span) * p->x.n + at % p->x.span;
        }
        corner[from + at] += dy[i];
    }
}

/* dx = share or, if add, += share. */
GPUNN__VECTORIZED(gpunn__pool_fill, (float *dx, int64_t cells, float share, bool add),
                  (dx, cells, share, add))
{
    if (add)
        for (int64_t i = 0; i < cells; i++) dx[i] += share;
    else
        for (int64_t i = 0; i < cells; i++) dx[i] = share;
}

static void gpunn__pool_backward(void *arg, int index, int threads)
{
    const gpunn__pool *p = (const gpunn__pool *)arg;
    int64_t volume, end, outputs = p->z.out * p->y.out * p->x.out, cells = p->z.n * p->y.n * p->x.n,
                         offset[256];
    for (int64_t i = 0; p->at_bytes == 1 && i < p->z.span * p->y.span * p->x.span; i++)
        offset[i] = (i / p->x.span / p->y.span * p->y.n + i / p->x.span % p->y.span) * p->x.n + i % p->x.span;
    gpunn__cpu_part(p->volumes, 1, threads, index, &volume, &end);
    for (; volume < end; volume++) {
        float       *dx = p->to + volume * cells;
        const float *dy = p->from + volume * outputs;
        if (p->global && p->average) {
            gpunn__pool_fill(dx, cells, dy[0] / (float)cells, p->accumulate);
            continue;
        }
        if (!p->accumulate) memset(dx, 0, (size_t)cells * sizeof *dx);
        for (int64_t line = 0; line < p->z.out * p->y.out; line++, dy += p->x.out) {
            int64_t oz = line / p->y.out, oy = line % p->y.out;
            /* from the window's first cell, which may lie outside the volume, to the maximum, which lies
             * inside */
            if (!p->average) {
                int64_t row = (volume * p->z.out * p->y.out + line) * p->x.out;
                int64_t corner = (gpunn__pool_start(&p->z, oz) * p->y.n + gpunn__pool_start(&p->y, oy)) *
                                 p->x.n;
                if (p->at_bytes == 1 && p->x.kernel)
                    gpunn__pool_hand_back(p, false, dy, row, offset, dx + corner);
                else
                    gpunn__pool_hand_back(p, true, dy, row, p->at_bytes == 1 ? offset : NULL, dx + corner);
                continue;
            }
            int64_t z0, z1, deep = gpunn__pool_window(&p->z, oz, &z0, &z1);
            int64_t y0, y1, height = gpunn__pool_window(&p->y, oy, &y0, &y1);
            for (int64_t ox = 0; ox < p->x.out; ox++) {
                int64_t x0, x1, width = gpunn__pool_window(&p->x, ox, &x0, &x1);
                int64_t all = p->count_exclude_pad ? (z1 - z0) * (y1 - y0) * (x1 - x0)
                                                   : deep * height * width;
                float   share = dy[ox] / (float)all;
                for (int64_t z = z0; z < z1; z++)
                    for (int64_t y = y0; y < y1; y++)
                        for (int64_t x = x0; x < x1; x++) dx[(z * p->y.n + y) * p->x.n + x] += share;
            }
        }
    }
}

/* ---- maxima of bytes ----------------------------------------------------------------------------------- */

/* The maximum of each of n bytes and to[i]. */
GPUNN__VECTORIZED(gpunn__most_bytes, (const uint8_t *from, int64_t n, uint8_t *to), (from, n, to))
{
    for (int64_t i = 0; i < n; i++) to[i] = from[i] > to[i] ? from[i] : to[i];
}

/* A plane is an image of one channel. */
static void gpunn__pool_bytes(void *arg, int index, int threads)
{
    const gpunn__pool *p = (const gpunn__pool *)arg;
    const int64_t      channels = p->last ? p->channels : 1;
    int64_t            at, end, y0, y1, x0, x1;
    gpunn__cpu_part(p->volumes / channels * p->y.out * p->x.out, 64, threads, index, &at, &end);
    for (; at < end; at++) {
        const uint8_t *image = (const uint8_t *)p->from +
                               at / p->x.out / p->y.out * p->y.n * p->x.n * channels;
        uint8_t *to = (uint8_t *)p->to + at * channels;
        (void)gpunn__pool_window(&p->y, at / p->x.out % p->y.out, &y0, &y1);
        (void)gpunn__pool_window(&p->x, at % p->x.out, &x0, &x1);
        memset(to, 0, (size_t)channels);
        for (int64_t y = y0; y < y1; y++)
            for (int64_t x = x0; x < x1; x++)
                gpunn__most_bytes(image + (y * p->x.n + x) * channels, channels, to);
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_pool(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__pool p = gpunn__pool_shape(step);
    int64_t     outputs = p.volumes * p.z.out * p.y.out * p.x.out, cells = p.volumes * p.z.n * p.y.n * p.x.n;
    if (action == GPUNN__PREPARE) {
        if (p.z.span * p.y.span > INT32_MAX / p.x.span)
            return gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED,
                                   "a window has more than 2^31 cells; use smaller windows");
        if (!step->backward) step->saved_bytes = (size_t)p.at_bytes * (size_t)outputs;
    } else if (action == GPUNN__FORWARD) {
        int64_t    window = p.z.kernel * p.y.kernel * p.x.kernel;
        const bool bytes = step->out.dtype == GPUNN_U8;
        void (*const floats)(void *, int, int) = p.last     ? gpunn__pool_last
                                                 : p.global ? gpunn__pool_global
                                                            : gpunn__pool_forward;
        gpunn_parallel(
            gpunn__cpu_threads_for(cpu, (double)outputs * (1 + (double)window / 4) + (double)cells / 4),
            bytes ? gpunn__pool_bytes : floats, &p);
    } else if (p.to) {
        gpunn_parallel(gpunn__cpu_threads(cpu, cells + outputs), gpunn__pool_backward, &p);
    }
    return GPUNN_OK;
}

#define GPUNN__X(name)                                                                         \
    GPUNN__INTERNAL gpunn_status name(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action) \
    {                                                                                          \
        return gpunn__cpu_pool(cpu, step, action);                                             \
    }
GPUNN__X(gpunn__cpu_max_pool2d)
GPUNN__X(gpunn__cpu_max_pool3d)
GPUNN__X(gpunn__cpu_avg_pool2d)
GPUNN__X(gpunn__cpu_avg_pool3d)
GPUNN__X(gpunn__cpu_adaptive_avg_pool2d)
GPUNN__X(gpunn__cpu_adaptive_avg_pool3d)
GPUNN__X(gpunn__cpu_adaptive_max_pool2d)
GPUNN__X(gpunn__cpu_adaptive_max_pool3d)
#undef GPUNN__X
