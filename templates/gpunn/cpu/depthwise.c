#include "cpu/conv.h"

/* ==== >>cpu/depthwise ==================================================================================== *
 * Depthwise convolutions of images with channels last: vectors run over channels. A tile is a few
 * neighbouring pixels of a row of the result. Their windows overlap, so each cell of x is loaded once for all
 * of them. */
enum { GPUNN__DEPTHWISE_TILE = 4 }; /* pixels */

/* The rows of windows that lie inside the image, for one tile. */
typedef struct gpunn__depthwise {
    const float *x;                /* first row, from column 0 on */
    const float *w;                /* [ky][kx][channel], from the first row on */
    const float *shift, *residual; /* NULL: 0 */
    float       *y;
    bool         relu;
    float        most;                   /* of the relu */
    int64_t      channels, rows, width;  /* width: of the image */
    int64_t      x_row, x_column, w_row; /* distances */
    int64_t      left;    /* column of the first cell of the tile; negative: left of the image */
    int64_t      columns; /* window: cells that lie inside */
    bool         cut;     /* tile: some cells lie outside, or fewer pixels are wanted */
    int64_t      pixels;  /* of a cut tile */
} gpunn__depthwise;

/* The kernels for one vector type. kernel, stride: sides of the windows of a tile. */
typedef struct gpunn__depthwise_kernels {
    void (*tile)(const gpunn__depthwise *d, int kernel, int stride);
    void (*window)(const gpunn__depthwise *d, int kernel, int stride);
} gpunn__depthwise_kernels;

#ifndef GPUNN__VECTORS
#define GPUNN__VECTOR gpunn__v1
#define GPUNN__VECTOR_LANES 1
#define GPUNN__TARGET
#include "cpu/depthwise_tiles.inc"
#endif
#ifdef GPUNN__AVX512
#define GPUNN__VECTOR gpunn__v16
#define GPUNN__VECTOR_LANES 16
#define GPUNN__TARGET GPUNN__AVX512
#include "cpu/depthwise_tiles.inc"
#endif
#ifdef GPUNN__AVX2
#define GPUNN__VECTOR gpunn__v8
#define GPUNN__VECTOR_LANES 8
#define GPUNN__TARGET GPUNN__AVX2
#include "cpu/depthwise_tiles.inc"
#endif
#ifdef GPUNN__BASELINE
#define GPUNN__VECTOR gpunn__v4
#define GPUNN__VECTOR_LANES 4
#define GPUNN__TARGET GPUNN__BASELINE
#include "cpu/depthwise_tiles.inc"
#endif

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

GPUNN__INTERNAL void gpunn__depthwise_pack(const gpunn__conv *v, float *packed)
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

/* Computes one tile, or one window, from pixel `x` of a line on, and returns the number of pixels. d: all but
 * the place within the line. */
static int64_t gpunn__depthwise_step(const gpunn__conv *v, gpunn__depthwise *d, int64_t x, int64_t x_end)
{
    const gpunn__depthwise_kernels *kernels = gpunn__depthwise_choose();
    const int64_t                   span = (GPUNN__DEPTHWISE_TILE - 1) * v->sw + v->kw;
    int64_t                         begin, end;
    d->left = x * v->sw - v->pw;
    if (!gpunn__depthwise_tiled(v)) {
        gpunn__depthwise one = *d;
        gpunn__depthwise_inside(d->left, v->kw, v->dw, v->w, &begin, &end);
        one.left += begin * v->dw, one.w += begin * v->c, one.columns = end - begin;
        kernels->window(&one, (int)v->kw, (int)v->sw);
        return 1;
    }
    d->pixels = gpunn__least(x_end - x, GPUNN__DEPTHWISE_TILE);
    d->cut = d->left < 0 || d->left + span > v->w || d->pixels < GPUNN__DEPTHWISE_TILE;
    kernels->tile(d, (int)v->kw, (int)v->sw);
    return d->pixels;
}

GPUNN__INTERNAL void gpunn__depthwise_line(const gpunn__conv *v, const float *packed, int64_t line, int64_t x,
                                           int64_t x_end)
{
    const int64_t    image = line / v->oh, top = line % v->oh * v->sh - v->ph, start = x;
    float *const     y = v->y + (line - v->y_first) * v->ow * v->c;
    int64_t          first, last;
    gpunn__depthwise d;
    gpunn__depthwise_inside(top, v->kh, v->dh, v->h, &first, &last);
    memset(&d, 0, sizeof d);
    d.shift = v->shift, d.relu = v->relu, d.most = v->most > 0 ? v->most : INFINITY;
    d.channels = v->c, d.rows = last - first, d.width = v->w;
    d.x_row = v->dh * v->w * v->c, d.x_column = v->dw * v->c, d.w_row = v->kw * v->c;
    d.x = v->x + (image * v->h + top + first * v->dh - v->x_first) * v->w * v->c;
    d.w = packed + first * d.w_row;
    while (x < x_end) {
        d.y = y + x * v->c;
        d.residual = v->residual ? v->residual + (line * v->ow + x) * v->c : NULL;
        x += gpunn__depthwise_step(v, &d, x, x_end);
    }
    gpunn__conv_activate(v, y + start * v->c, (x_end - start) * v->c);
}

static void gpunn__depthwise_task(void *arg, int index, int threads)
{
    const gpunn__depthwise_job *job = (const gpunn__depthwise_job *)arg;
    const int64_t               width = job->v->ow;
    int64_t                     pixel, end;
    gpunn__cpu_part(job->v->pixels, 1, threads, index, &pixel, &end);
    for (int64_t line = pixel / width; pixel < end; pixel = ++line * width)
        gpunn__depthwise_line(job->v, job->packed, line, pixel % width,
                              gpunn__least(end - line * width, width));
}

GPUNN__INTERNAL void gpunn__depthwise_run(const gpunn__conv *v, float *packed, bool ready)
{
    gpunn__depthwise_job job = {v, packed};
    if (!ready) gpunn__depthwise_pack(v, packed);
    gpunn_parallel(v->threads, gpunn__depthwise_task, &job);
}
