#include "cpu/conv.h"

/* ==== >>cpu/depthwise ==================================================================================== *
 * Depthwise convolutions of images with channels last: vectors run over channels. A tile is a few
 * neighbouring pixels of a row of the result. Their windows overlap, so each cell of x is loaded once for all
 * of them. Windows that the border cuts are computed one by one. */
enum { GPUNN__DEPTHWISE_TILE = 4 }; /* pixels */

/* The rows of windows that lie inside the image, for one tile. */
typedef struct gpunn__depthwise {
    const float *x;                /* first cell of the first row */
    const float *w;                /* [ky][kx][channel], from the first row on */
    const float *shift, *residual; /* NULL: 0 */
    float       *y;
    bool         relu;
    int64_t      channels, rows, columns; /* columns: of the windows */
    int64_t      x_row, x_column, w_row;  /* distances */
} gpunn__depthwise;

/* tile: B windows of K columns, S cells apart, wholly inside a row. window: one window of any size. */
#define GPUNN__DEPTHWISE_KERNELS(isa, TARGET, LANES)                                                     \
    TARGET GPUNN__INLINE void gpunn__##isa##_depthwise_store(const gpunn__depthwise *d, int64_t at,      \
                                                             int64_t c, gpunn__##isa v, const int lanes) \
    {                                                                                                    \
        if (d->residual) v += gpunn__##isa##_load(d->residual + at, lanes);                              \
        if (d->shift) v += gpunn__##isa##_load(d->shift + c, lanes);                                     \
        if (d->relu) v = gpunn__##isa##_relu(v);                                                         \
        gpunn__##isa##_store(d->y + at, lanes, v);                                                       \
    }                                                                                                    \
    TARGET GPUNN__INLINE void gpunn__##isa##_depthwise_cells(                                            \
        const gpunn__depthwise *d, int64_t c, const int lanes, const int K, const int S, const int B)    \
    {                                                                                                    \
        gpunn__##isa sum[8], factor[8];                                                                  \
        const float *x = d->x + c, *w = d->w + c;                                                        \
        GPUNN__UNROLL                                                                                    \
        for (int j = 0; j < B; j++) sum[j] = gpunn__##isa##_set(0);                                      \
        for (int64_t row = 0; row < d->rows; row++, x += d->x_row, w += d->w_row) {                      \
            GPUNN__UNROLL                                                                                \
            for (int k = 0; k < K; k++) factor[k] = gpunn__##isa##_load(w + k * d->channels, lanes);     \
            GPUNN__UNROLL                                                                                \
            for (int i = 0; i < (B - 1) * S + K; i++) {                                                  \
                const gpunn__##isa cell = gpunn__##isa##_load(x + i * d->x_column, lanes);               \
                GPUNN__UNROLL                                                                            \
                for (int j = 0; j < B; j++)                                                              \
                    if (i >= j * S && i - j * S < K)                                                     \
                        sum[j] = gpunn__##isa##_fma(cell, factor[i - j * S], sum[j]);                    \
            }                                                                                            \
        }                                                                                                \
        GPUNN__UNROLL                                                                                    \
        for (int j = 0; j < B; j++)                                                                      \
            gpunn__##isa##_depthwise_store(d, j * d->channels + c, c, sum[j], lanes);                    \
    }                                                                                                    \
    TARGET GPUNN__INLINE void gpunn__##isa##_depthwise_tile(const gpunn__depthwise *d, const int K,      \
                                                            const int S)                                 \
    {                                                                                                    \
        int64_t c = 0;                                                                                   \
        for (; c + LANES <= d->channels; c += LANES)                                                     \
            gpunn__##isa##_depthwise_cells(d, c, LANES, K, S, GPUNN__DEPTHWISE_TILE);                    \
        if (c < d->channels)                                                                             \
            gpunn__##isa##_depthwise_cells(d, c, (int)(d->channels - c), K, S, GPUNN__DEPTHWISE_TILE);   \
    }                                                                                                    \
    TARGET GPUNN__NOINLINE void gpunn__##isa##_depthwise_tiles(const gpunn__depthwise *d, int kernel,    \
                                                               int stride)                               \
    {                                                                                                    \
        if (kernel == 3 && stride == 1)                                                                  \
            gpunn__##isa##_depthwise_tile(d, 3, 1);                                                      \
        else if (kernel == 3)                                                                            \
            gpunn__##isa##_depthwise_tile(d, 3, 2);                                                      \
        else if (kernel == 5 && stride == 1)                                                             \
            gpunn__##isa##_depthwise_tile(d, 5, 1);                                                      \
        else if (kernel == 5)                                                                            \
            gpunn__##isa##_depthwise_tile(d, 5, 2);                                                      \
        else                                                                                             \
            gpunn__##isa##_depthwise_tile(d, 7, 1);                                                      \
    }                                                                                                    \
    TARGET GPUNN__NOINLINE void gpunn__##isa##_depthwise_window(const gpunn__depthwise *d, int kernel,   \
                                                                int stride)                              \
    {                                                                                                    \
        (void)kernel, (void)stride;                                                                      \
        for (int64_t c = 0; c < d->channels; c += LANES) {                                               \
            const int    lanes = d->channels - c < LANES ? (int)(d->channels - c) : LANES;               \
            gpunn__##isa sum = gpunn__##isa##_set(0);                                                    \
            for (int64_t row = 0; row < d->rows; row++)                                                  \
                for (int64_t k = 0; k < d->columns; k++)                                                 \
                    sum = gpunn__##isa##_fma(                                                            \
                        gpunn__##isa##_load(d->x + row * d->x_row + k * d->x_column + c, lanes),         \
                        gpunn__##isa##_load(d->w + row * d->w_row + k * d->channels + c, lanes), sum);   \
            gpunn__##isa##_depthwise_store(d, c, c, sum, lanes);                                         \
        }                                                                                                \
    }                                                                                                    \
    static const gpunn__depthwise_kernels gpunn__##isa##_depthwise = {gpunn__##isa##_depthwise_tiles,    \
                                                                      gpunn__##isa##_depthwise_window};

/* The kernels for one vector type. kernel, stride: sides of the windows of a tile. */
typedef struct gpunn__depthwise_kernels {
    void (*tile)(const gpunn__depthwise *d, int kernel, int stride);
    void (*window)(const gpunn__depthwise *d, int kernel, int stride);
} gpunn__depthwise_kernels;

#ifndef GPUNN__VECTORS
GPUNN__DEPTHWISE_KERNELS(v1, , 1)
#endif
#ifdef GPUNN__AVX512
GPUNN__DEPTHWISE_KERNELS(v16, GPUNN__AVX512, 16)
#endif
#ifdef GPUNN__AVX2
GPUNN__DEPTHWISE_KERNELS(v8, GPUNN__AVX2, 8)
#endif
#ifdef GPUNN__BASELINE
GPUNN__DEPTHWISE_KERNELS(v4, GPUNN__BASELINE, 4)
#endif
#undef GPUNN__DEPTHWISE_KERNELS

static const gpunn__depthwise_kernels *gpunn__depthwise_choose(void)
{
#ifndef GPUNN__VECTORS
    return &gpunn__v1_depthwise;
#elif defined(GPUNN__LEVELS)
    static const gpunn__depthwise_kernels *const level[] = {NULL, &gpunn__v4_depthwise, &gpunn__v8_depthwise,
                                                            &gpunn__v16_depthwise};
    return level[gpunn__level()];
#elif defined(GPUNN__AVX512)
    return &gpunn__v16_depthwise;
#elif defined(GPUNN__AVX2)
    return &gpunn__v8_depthwise;
#else
    return &gpunn__v4_depthwise;
#endif
}

/* Whether there is a tile for these windows. */
static bool gpunn__depthwise_tiled(const gpunn__conv *v)
{
    const bool near = v->dw == 1 && (v->kw == 3 || v->kw == 5 || v->kw == 7);
    return near && (v->sw == 1 || (v->sw == 2 && v->kw < 7));
}

/* Packs weight [channel][tap] as [tap][channel], multiplied by the scale of the channel. */
static void gpunn__depthwise_pack(const gpunn__conv *v, float *packed)
{
    for (int64_t c = 0; c < v->c; c++)
        for (int64_t tap = 0; tap < v->taps; tap++)
            packed[tap * v->c + c] = v->weight[c * v->taps + tap] * (v->scale ? v->scale[c] : 1);
}

/* Cells [*begin, *end) of a window that starts at `start` lie inside the axis of n cells. */
static void gpunn__depthwise_inside(int64_t start, int64_t kernel, int64_t dilation, int64_t n,
                                    int64_t *begin, int64_t *end)
{
    *begin = start < 0 ? (-start + dilation - 1) / dilation : 0;
    *end = start >= n ? 0 : (n - start + dilation - 1) / dilation;
    if (*end > kernel) *end = kernel;
    if (*begin > *end) *begin = *end;
}

typedef struct gpunn__depthwise_job {
    const gpunn__conv *v;
    const float       *packed;
} gpunn__depthwise_job;

/* Computes row y of an image of the result. */
static void gpunn__depthwise_line(const gpunn__depthwise_job *job, int64_t image, int64_t y)
{
    const gpunn__conv              *v = job->v;
    const gpunn__depthwise_kernels *kernels = gpunn__depthwise_choose();
    const bool                      tiled = gpunn__depthwise_tiled(v);
    const int64_t                   span = (GPUNN__DEPTHWISE_TILE - 1) * v->sw + v->kw;
    const int64_t                   top = y * v->sh - v->ph, at = (image * v->oh + y) * v->ow * v->oc;
    int64_t                         first, last, begin, end;
    gpunn__depthwise                d;
    gpunn__depthwise_inside(top, v->kh, v->dh, v->h, &first, &last);
    memset(&d, 0, sizeof d);
    d.shift = v->shift, d.relu = v->relu, d.channels = v->c, d.rows = last - first;
    d.x_row = v->dh * v->w * v->c, d.x_column = v->dw * v->c, d.w_row = v->kw * v->c;
    const float *row = v->x + (image * v->h + top + first * v->dh) * v->w * v->c;
    for (int64_t x = 0, step; x < v->ow; x += step) {
        const int64_t left = x * v->sw - v->pw;
        const bool    tile = tiled && left >= 0 && left + span <= v->w && x + GPUNN__DEPTHWISE_TILE <= v->ow;
        gpunn__depthwise_inside(left, v->kw, v->dw, v->w, &begin, &end);
        d.x = row + (left + begin * v->dw) * v->c;
        d.w = job->packed + first * d.w_row + begin * v->c;
        d.columns = end - begin;
        d.y = v->y + at + x * v->oc;
        d.residual = v->residual ? v->residual + at + x * v->oc : NULL;
        (tile ? kernels->tile : kernels->window)(&d, (int)v->kw, (int)v->sw);
        step = tile ? GPUNN__DEPTHWISE_TILE : 1;
    }
    gpunn__conv_activate(v, v->y + at, v->ow * v->oc);
}

static void gpunn__depthwise_task(void *arg, int index, int threads)
{
    const gpunn__depthwise_job *job = (const gpunn__depthwise_job *)arg;
    int64_t                     line, end;
    gpunn__cpu_part(job->v->n * job->v->oh, 1, threads, index, &line, &end);
    for (; line < end; line++) gpunn__depthwise_line(job, line / job->v->oh, line % job->v->oh);
}

GPUNN__INTERNAL void gpunn__depthwise_run(const gpunn__conv *v, float *packed, bool ready)
{
    gpunn__depthwise_job job = {v, packed};
    if (!ready) gpunn__depthwise_pack(v, packed);
    gpunn_parallel(v->threads, gpunn__depthwise_task, &job);
}
