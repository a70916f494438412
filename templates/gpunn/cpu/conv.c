#include "cpu/conv.h"

/* ==== >>cpu/conv ========================================================================================= *
 * Convolutions in three ways; gpunn__conv_choose_way selects one by shape. Lowered: any convolution, as a
 * product of windows and weights. Winograd: 3 x 3 with stride 1, in a quarter of the multiplications. Direct:
 * few channels or many groups. The first two convert images to pixel-major layout, [pixel][channel]. So
 * vectors run over channels for any window, and the left operand of every product is read in place. */
typedef enum gpunn__conv_use { GPUNN__CONV_FORWARD, GPUNN__CONV_DX, GPUNN__CONV_DW } gpunn__conv_use;
typedef enum gpunn__conv_way {
    GPUNN__CONV_LOWERED,
    GPUNN__CONV_WINOGRAD,
    GPUNN__CONV_DIRECT
} gpunn__conv_way;

GPUNN__INLINE int64_t gpunn__to_multiple(int64_t n, int64_t grain)
{
    return (n + grain - 1) / grain * grain;
}

GPUNN__INLINE gpunn__gemm gpunn__conv_gemm(int64_t m, int64_t n, int64_t k)
{
    gpunn__gemm g;
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k;
    return g;
}

/* How y or dx is stored. */
GPUNN__INLINE gpunn__planes gpunn__conv_planes(const gpunn__conv *v, float *dst, int64_t plane, bool add)
{
    gpunn__planes to;
    to.dst = dst, to.plane = plane, to.add = add;
    to.scale = v->scale, to.shift = v->shift, to.residual = v->residual, to.relu = v->relu;
    to.last = v->last;
    return to;
}

/* ---- lowered (im2col): windows laid out as rows of a matrix; any kernel, stride, dilation and groups --- */

typedef struct gpunn__lowered {
    const gpunn__conv *v;
    bool               pointwise; /* windows are single pixels */
    bool               want_dx, want_dweight;
    int64_t            rows;          /* per block */
    float             *xt, *dyt, *wt; /* [n d h w][c], [n od oh ow][oc], [oc][tap][cg] */
    const float       *images;        /* xt, or x with channels last */
    float             *packed;        /* forward: weights as right operands, one per group */
    int64_t            packed_floats; /* per group */
    bool               ready;         /* packed already holds them */
    float             *dwt, *dxt;     /* same layouts as wt and xt */
    float             *columns;       /* windows [rows][tap][cg]; in forward, one per thread */
    float             *out;           /* forward: results [rows][og], one per thread */
    float             *panels;        /* of the products, one per thread */
    int64_t            panel;         /* floats per thread */
} gpunn__lowered;

static gpunn__lowered gpunn__lowered_plan(const gpunn__conv *v, bool backward, bool want_dx,
                                          bool want_dweight, bool cached, float *cache, gpunn__space *space)
{
    gpunn__lowered l;
    memset(&l, 0, sizeof l);
    l.v = v, l.want_dx = want_dx, l.want_dweight = want_dweight;
    l.pointwise = gpunn__conv_is_pointwise(v);
    l.rows = gpunn__clamp((backward ? 524288 : 65536) / v->k / 8 * 8, 128, 512);
    if (l.rows > v->pixels) l.rows = gpunn__to_multiple(v->pixels, 8);
    l.panel = backward ? gpunn__gemm_choose()->depth * 3 * gpunn__gemm_choose()->lanes : 0;
    l.panels = gpunn__take(space, v->threads * l.panel);
    l.packed_floats = (int64_t)(gpunn__gemm_packed_b_bytes(v->k, v->og) / sizeof(float));
    if (!backward) l.packed = cached ? cache : gpunn__take(space, v->groups * l.packed_floats);
    l.columns = gpunn__take(space, (l.pointwise ? 0 : backward ? 1 : v->threads) * l.rows * v->k);
    if (backward ? want_dweight : !v->last) l.xt = gpunn__take(space, v->n * v->d * v->h * v->w * v->c);
    l.images = v->last ? v->x : l.xt;
    if (want_dx) l.wt = gpunn__take(space, v->oc * v->k);
    if (!backward) l.out = gpunn__take(space, v->last ? 0 : v->threads * l.rows * v->og);
    if (backward) l.dyt = gpunn__take(space, v->pixels * v->oc);
    if (want_dweight) l.dwt = gpunn__take(space, v->oc * v->k);
    if (want_dx) l.dxt = gpunn__take(space, v->n * v->d * v->h * v->w * v->c);
    return l;
}

/* Coordinates of an output pixel. */
typedef struct gpunn__lowered_pixel {
    int64_t image, z, y, x;
} gpunn__lowered_pixel;

GPUNN__INLINE gpunn__lowered_pixel gpunn__lowered_at(const gpunn__conv *v, int64_t p)
{
    gpunn__lowered_pixel at;
    at.x = p % v->ow, p /= v->ow;
    at.y = p % v->oh, p /= v->oh;
    at.z = p % v->od, at.image = p / v->od;
    return at;
}

GPUNN__INLINE void gpunn__lowered_next(const gpunn__conv *v, gpunn__lowered_pixel *at)
{
    if (++at->x < v->ow) return;
    at->x = 0;
    if (++at->y < v->oh) return;
    at->y = 0;
    if (++at->z < v->od) return;
    at->z = 0, at->image++;
}

/* Index of the input pixel under a tap; -1: padding. */
GPUNN__INLINE int64_t gpunn__lowered_under(const gpunn__conv *v, const gpunn__lowered_pixel *at, int64_t kz,
                                           int64_t ky, int64_t kx)
{
    int64_t z = at->z * v->sd - v->pd + kz * v->dd, y = at->y * v->sh - v->ph + ky * v->dh,
            x = at->x * v->sw - v->pw + kx * v->dw;
    if (z < 0 || z >= v->d || y < 0 || y >= v->h || x < 0 || x >= v->w) return -1;
    return ((at->image * v->d + z) * v->h + y) * v->w + x;
}

/* Copies the windows of output pixels [p, p + rows) of group g to columns[row][tap][channel]. */
static void gpunn__lowered_windows(const gpunn__lowered *l, int64_t g, int64_t p, int64_t rows,
                                   float *columns)
{
    const gpunn__conv   *v = l->v;
    const float         *images = l->images + g * v->cg;
    gpunn__lowered_pixel at = gpunn__lowered_at(v, p);
    for (; rows > 0; rows--, gpunn__lowered_next(v, &at))
        for (int64_t kz = 0; kz < v->kd; kz++)
            for (int64_t ky = 0; ky < v->kh; ky++)
                for (int64_t kx = 0; kx < v->kw; kx++, columns += v->cg) {
                    int64_t from = gpunn__lowered_under(v, &at, kz, ky, kx);
                    if (from < 0)
                        memset(columns, 0, (size_t)v->cg * sizeof(float));
                    else
                        memcpy(columns, images + from * v->c, (size_t)v->cg * sizeof(float));
                }
}

/* The adjoint: adds columns [row][tap][channel], channels [c0, c1) of group g, to dxt. */
static void gpunn__lowered_add(const gpunn__lowered *l, int64_t g, int64_t p, int64_t rows, int64_t c0,
                               int64_t c1, const float *columns)
{
    const gpunn__conv   *v = l->v;
    float               *images = l->dxt + g * v->cg;
    gpunn__lowered_pixel at = gpunn__lowered_at(v, p);
    for (; rows > 0; rows--, gpunn__lowered_next(v, &at))
        for (int64_t kz = 0; kz < v->kd; kz++)
            for (int64_t ky = 0; ky < v->kh; ky++)
                for (int64_t kx = 0; kx < v->kw; kx++, columns += v->cg) {
                    int64_t under = gpunn__lowered_under(v, &at, kz, ky, kx);
                    if (under < 0) continue;
                    float *GPUNN__RESTRICT to = images + under * v->c;
                    for (int64_t i = c0; i < c1; i++) to[i] += columns[i];
                }
}

/* Multiplies columns of a strip of packed weights by the scale of their channel. */
static void gpunn__lowered_scale(float strip[][4], int64_t rows, const float *scale, int64_t columns)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < columns; i++) strip[row][i] *= scale[i];
}

/* Packs weight [oc][cg][tap] as a right operand [tap][cg][og] per group. */
static void gpunn__lowered_pack(const gpunn__lowered *l, int index, int threads)
{
    const gpunn__conv *v = l->v;
    const int64_t      lanes = gpunn__gemm_choose()->lanes, panels = (v->og + 3 * lanes - 1) / (3 * lanes);
    int64_t            unit, end;
    gpunn__cpu_part(v->groups * panels, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        const int64_t group = unit / panels, j = unit % panels * 3 * lanes,
                      columns = v->og - j < 3 * lanes ? v->og - j : 3 * lanes;
        const float *from = v->weight + (group * v->og + j) * v->k;
        float       *to = l->packed + group * l->packed_floats;
        int64_t      width;
        for (int64_t p = 0; p < v->k && columns % lanes; p++) { /* zeros after the last column */
            float *row = to + gpunn__gemm_packed_at(v->k, v->og, lanes, p, j, &width);
            memset(row, 0, (size_t)width * sizeof *row);
        }
        for (int64_t p = 0; p < v->k; p += 64) { /* few rows at a time, which stay in the cache */
            const int64_t count = v->k - p < 64 ? v->k - p : 64;
            int64_t       row[64];
            for (int64_t x = 0; x < count; x++)
                row[x] = gpunn__gemm_packed_at(v->k, v->og, lanes,
                                               (p + x) % v->taps * v->cg + (p + x) / v->taps, j, &width);
            for (int64_t i = 0; i < columns; i += 4) {
                float square[64][4];
                if (columns - i < 4) memset(square, 0, sizeof square);
                gpunn__to_pixels(from + i * v->k + p, v->k, columns - i < 4 ? columns - i : 4, count,
                                 square[0], 4);
                if (v->last && v->scale)
                    gpunn__lowered_scale(square, count, v->scale + group * v->og + j + i,
                                         columns - i < 4 ? columns - i : 4);
                for (int64_t x = 0; x < count; x++) memcpy(to + row[x] + i, square[x], sizeof square[x]);
            }
        }
    }
}

/* Converts weight [oc][cg][tap] to wt [oc][tap][cg]. */
static void gpunn__lowered_weights(const gpunn__lowered *l, int index, int threads)
{
    const gpunn__conv *v = l->v;
    int64_t            o, end;
    gpunn__cpu_part(v->oc, 1, threads, index, &o, &end);
    for (; o < end; o++)
        gpunn__to_pixels(v->weight + o * v->k, v->taps, v->cg, v->taps, l->wt + o * v->k, v->cg);
}

/* The product's result is y itself, from pixel p on. The packed weights hold the scale. */
static void gpunn__lowered_in_place(const gpunn__conv *v, int64_t p, int64_t group, gpunn__gemm *g)
{
    const int64_t at = p * v->oc + group * v->og;
    g->c = v->y + at, g->c_row = v->oc;
    g->shift_col = v->shift ? v->shift + group * v->og : NULL;
    g->residual = v->residual ? v->residual + at : NULL;
    g->relu = v->relu, g->most = v->most;
}

/* Stores columns [c, c_end) of a group's results, pixels [p, p + count), to the planes of y. */
static void gpunn__lowered_store(const gpunn__lowered *l, int64_t group, int64_t p, int64_t count, int64_t c,
                                 int64_t c_end, const float *out)
{
    const gpunn__conv *v = l->v;
    const int64_t      area = v->od * v->oh * v->ow, channel = group * v->og + c;
    for (int64_t done = 0, part; done < count; done += part) { /* one image at a time */
        const int64_t image = (p + done) / area, at = (p + done) % area;
        gpunn__planes to = gpunn__conv_planes(v, v->y, area, v->add_y);
        part = area - at < count - done ? area - at : count - done;
        to = gpunn__planes_from(to, channel, (image * v->oc + channel) * area + at);
        gpunn__from_pixels(out + done * v->og + c, v->og, c_end - c, part, &to);
    }
}

/* Computes columns [j0, j1) of each group's results for pixels [p, p + count). */
static void gpunn__lowered_block(const gpunn__lowered *l, int64_t p, int64_t count, int64_t j0, int64_t j1,
                                 float *columns, float *out)
{
    const gpunn__conv *v = l->v;
    for (int64_t group = 0; group < v->groups; group++) {
        gpunn__gemm g = gpunn__conv_gemm(v->pixels, v->og, v->k);
        g.a = l->pointwise ? l->images + p * v->c + group * v->cg : columns;
        g.a_row = l->pointwise ? v->c : v->k, g.a_col = 1;
        g.packed_b = l->packed + group * l->packed_floats;
        g.c = out, g.c_row = v->og;
        if (!l->pointwise) gpunn__lowered_windows(l, group, p, count, columns);
        if (v->last) gpunn__lowered_in_place(v, p, group, &g);
        gpunn__gemm_block(&g, gpunn__gemm_choose(), 0, count, j0, j1, NULL);
        if (!v->last) gpunn__lowered_store(l, group, p, count, j0, j1, out);
    }
}

GPUNN__INTERNAL void gpunn__pointwise_pack(const gpunn__conv *v, float *packed)
{
    gpunn__lowered l;
    memset(&l, 0, sizeof l);
    l.v = v, l.packed = packed;
    gpunn__lowered_pack(&l, 0, 1);
}

GPUNN__INTERNAL void gpunn__pointwise_rows(const gpunn__conv *v, float *packed, int64_t begin, int64_t end)
{
    const int64_t pixels = (end - begin) * v->ow;
    gpunn__gemm   g = gpunn__conv_gemm(v->pixels, v->oc, v->c);
    g.a = v->x + (begin - v->x_first) * v->w * v->c, g.a_row = v->c, g.a_col = 1;
    g.packed_b = packed;
    g.c = v->y + (begin - v->y_first) * v->ow * v->oc, g.c_row = v->oc;
    g.shift_col = v->shift, g.relu = v->relu, g.most = v->most;
    g.residual = v->residual ? v->residual + begin * v->ow * v->oc : NULL;
    gpunn__gemm_block(&g, gpunn__gemm_choose(), 0, pixels, 0, v->oc, NULL);
    gpunn__conv_activate(v, g.c, pixels * v->oc);
}

/* A thread's share of y, in blocks of pixels of about the same size. Where threads share the channels of a
 * pixel, the activation follows when all of them are done. */
static void gpunn__lowered_forward(void *arg, int index, int threads)
{
    const gpunn__lowered *l = (const gpunn__lowered *)arg;
    const gpunn__conv    *v = l->v;
    if (!v->last) gpunn__images_to_pixels(v->x, v->n, v->c, v->d * v->h * v->w, l->xt, index, threads);
    if (!l->ready) gpunn__lowered_pack(l, index, threads);
    if (threads > 1 && !(v->last && l->ready)) (void)gpunn__thread_barrier();
    gpunn__gemm_share own = gpunn__gemm_part(v->pixels, v->og, 3 * gpunn__gemm_choose()->lanes, threads,
                                             index);
    const int64_t     pixels = own.i1 - own.i0, blocks = (pixels + l->rows - 1) / l->rows;
    const int64_t     rows = blocks ? gpunn__to_multiple((pixels + blocks - 1) / blocks, 8) : 0;
    for (int64_t p = own.i0; p < own.i1 && own.j0 < own.j1; p += rows) {
        const int64_t count = gpunn__least(rows, own.i1 - p);
        gpunn__lowered_block(l, p, count, own.j0, own.j1, l->columns + index * l->rows * v->k,
                             l->out + index * l->rows * v->og);
        if (own.across == 1) gpunn__conv_activate(v, v->y + p * v->oc, count * v->oc);
    }
    if (own.across == 1 || v->activation == NULL) return;
    (void)gpunn__thread_barrier();
    gpunn__cpu_part(v->pixels * v->oc, 16, threads, index, &own.i0, &own.i1);
    gpunn__conv_activate(v, v->y + own.i0, own.i1 - own.i0);
}

/* dwt[og][k] += dyt^T columns, for pixels [p, p + count). Windows that are pixels are read in place. */
static void gpunn__lowered_dweight(const gpunn__lowered *l, int64_t group, int64_t p, int64_t count,
                                   int index, int threads)
{
    const gpunn__conv         *v = l->v;
    const gpunn__gemm_kernels *kernels = gpunn__gemm_choose();
    int64_t                    begin, end;
    gpunn__cpu_part(count, 1, threads, index, &begin, &end);
    if (!l->pointwise) gpunn__lowered_windows(l, group, p + begin, end - begin, l->columns + begin * v->k);
    if (!l->pointwise && threads > 1) (void)gpunn__thread_barrier();
    gpunn__gemm g = gpunn__conv_gemm(v->og, v->k, count);
    g.a = l->dyt + p * v->oc + group * v->og, g.a_row = 1, g.a_col = v->oc;
    g.b = l->pointwise ? l->xt + p * v->c + group * v->cg : l->columns;
    g.b_row = l->pointwise ? v->c : v->k, g.b_col = 1;
    g.c = l->dwt + group * v->og * v->k, g.c_row = v->k, g.accumulate = p > 0;
    const gpunn__gemm_share own = gpunn__gemm_part(v->og, v->k, 3 * kernels->lanes, threads, index);
    if (own.i0 < own.i1 && own.j0 < own.j1)
        gpunn__gemm_block(&g, kernels, own.i0, own.i1, own.j0, own.j1, l->panels + index * l->panel);
    if (!l->pointwise && threads > 1) (void)gpunn__thread_barrier();
}

/* columns = dyt wt, added into dxt, for pixels [p, p + count). Windows that are pixels are dxt itself. */
static void gpunn__lowered_dx(const gpunn__lowered *l, int64_t group, int64_t p, int64_t count, int index,
                              int threads)
{
    const gpunn__conv *v = l->v;
    int64_t            begin, end;
    gpunn__gemm        g = gpunn__conv_gemm(count, v->k, v->og);
    g.a = l->dyt + p * v->oc + group * v->og, g.a_row = v->oc, g.a_col = 1;
    g.b = l->wt + group * v->og * v->k, g.b_row = v->k, g.b_col = 1;
    g.c = l->pointwise ? l->dxt + p * v->c + group * v->cg : l->columns;
    g.c_row = l->pointwise ? v->c : v->k;
    gpunn__cpu_part(count, 8, threads, index, &begin, &end);
    if (begin < end)
        gpunn__gemm_block(&g, gpunn__gemm_choose(), begin, end, 0, v->k, l->panels + index * l->panel);
    if (l->pointwise) return;
    if (threads > 1) (void)gpunn__thread_barrier();
    gpunn__cpu_part(v->cg, 16, threads, index, &begin, &end);
    if (begin < end) gpunn__lowered_add(l, group, p, count, begin, end, l->columns);
    if (threads > 1) (void)gpunn__thread_barrier();
}

/* Converts dxt and dwt to the layouts of dx and dweight. */
static void gpunn__lowered_gradients(const gpunn__lowered *l, int index, int threads)
{
    const gpunn__conv *v = l->v;
    const int64_t      cells = v->d * v->h * v->w;
    int64_t            begin, end;
    gpunn__cpu_part(v->n, 1, threads, index, &begin, &end);
    for (; l->want_dx && begin < end; begin++) {
        gpunn__planes to = gpunn__planes_from(gpunn__conv_planes(v, v->dx, cells, v->add_dx), 0,
                                              begin * v->c * cells);
        gpunn__from_pixels(l->dxt + begin * v->c * cells, v->c, v->c, cells, &to);
    }
    gpunn__cpu_part(v->oc, 1, threads, index, &begin, &end);
    for (; l->want_dweight && begin < end; begin++) {
        gpunn__planes to;
        memset(&to, 0, sizeof to);
        to.dst = v->dweight + begin * v->k, to.plane = v->taps, to.add = v->add_dweight;
        gpunn__from_pixels(l->dwt + begin * v->k, v->cg, v->cg, v->taps, &to);
    }
}

/* All threads share each block of pixels, so a weight's sum has one order, whatever the number of threads. */
static void gpunn__lowered_backward(void *arg, int index, int threads)
{
    const gpunn__lowered *l = (const gpunn__lowered *)arg;
    const gpunn__conv    *v = l->v;
    const int64_t         cells = v->d * v->h * v->w;
    int64_t               begin, end;
    gpunn__images_to_pixels(v->dy, v->n, v->oc, v->od * v->oh * v->ow, l->dyt, index, threads);
    if (l->want_dweight) gpunn__images_to_pixels(v->x, v->n, v->c, cells, l->xt, index, threads);
    if (l->want_dx) gpunn__lowered_weights(l, index, threads);
    gpunn__cpu_part(v->n * cells * v->c, 16, threads, index, &begin, &end);
    if (l->want_dx && !l->pointwise) memset(l->dxt + begin, 0, (size_t)(end - begin) * sizeof(float));
    if (threads > 1) (void)gpunn__thread_barrier();
    for (int64_t group = 0; group < v->groups; group++)
        for (int64_t p = 0; p < v->pixels; p += l->rows) {
            const int64_t count = gpunn__least(l->rows, v->pixels - p);
            if (l->want_dweight) gpunn__lowered_dweight(l, group, p, count, index, threads);
            if (l->want_dx) gpunn__lowered_dx(l, group, p, count, index, threads);
        }
    if (l->pointwise && threads > 1) (void)gpunn__thread_barrier();
    gpunn__lowered_gradients(l, index, threads);
}

/* ---- Winograd's F(4 x 4, 3 x 3) (Lavin and Gray 2016): 36 products for 16 outputs instead of 144 -------- *
 * y = A' [(G w G') (B' x B)] A. The elementwise products, summed over channels, are
 * 36 matrix products. The adjoint gives dw = G' [(B' x B) (A dy A')] G. Every transform is one map of a
 * column, applied first to columns, then to rows. */

enum gpunn__winograd_map {
    GPUNN__WINOGRAD_INPUT,
    GPUNN__WINOGRAD_OUTPUT,
    GPUNN__WINOGRAD_WEIGHT,
    GPUNN__WINOGRAD_DOUTPUT,
    GPUNN__WINOGRAD_DWEIGHT
};

/* `count` transforms of n x n cells at src (rows si, columns sj apart) to m x m cells at dst. Each cell is a
 * run of channels. */
typedef struct gpunn__winograd_job {
    const float *src;
    int64_t      si, sj, src_step;
    float       *dst;
    int64_t      di, dj, dst_step;
    int64_t      count, channels;
} gpunn__winograd_job;

/* ---- direct: few channels ------------------------------------------------------------------------------- *
 * Vectors run
 * over the pixels of a padded copy of the image, across row ends, so each tap is one shifted load. Results
 * that fall into the padding between rows are dropped. */

typedef struct gpunn__direct_job {
    const float   *x, *y; /* padded copies; y is a copy of dy with zeros in the gaps */
    const int64_t *offset;
    int64_t        taps, count; /* taps: channels * taps; count: pixels, rounded up to whole tiles */
    const float   *w;           /* [tap][row] */
    float         *out;
    int64_t        out_row, y_row, images, x_image, y_image;
} gpunn__direct_job;

/* The kernels for one vector type. */
typedef struct gpunn__conv_kernels {
    int     wide;                                            /* rows of the third kind of tile */
    int64_t lanes, v1, v6, vw;                               /* vectors per tile of 1, 6 and `wide` rows */
    void (*winograd)(const gpunn__winograd_job *w, int map); /* NULL: not available */
    void (*direct)(const gpunn__direct_job *d, int rows);
    void (*gradient)(const gpunn__direct_job *d, int rows);
    void (*finish)(const float *x, float *y, const float *residual, int64_t n, float scale, float shift,
                   bool add, bool relu);
    void (*silu)(float *y, int64_t n); /* in place; NULL: not faster */
} gpunn__conv_kernels;

#if defined(__GNUC__) && !defined(GPUNN_NO_SIMD)
#if defined(GPUNN__AVX512)
#define GPUNN__VECTOR gpunn__v16
#define GPUNN__VECTOR_LANES 16
#define GPUNN__TARGET GPUNN__AVX512
#define GPUNN__DIRECT_V1 4
#define GPUNN__DIRECT_V6 4
#define GPUNN__DIRECT_WIDE 8
#define GPUNN__DIRECT_VW 3
#define GPUNN__DIRECT_ROWS 6
#define GPUNN__DIRECT_WINOGRAD gpunn__v16_winograd
#include "cpu/conv_winograd.inc"
#include "cpu/conv_direct.inc"
#endif
#if defined(GPUNN__AVX2)
#define GPUNN__VECTOR gpunn__v8
#define GPUNN__VECTOR_LANES 8
#define GPUNN__TARGET GPUNN__AVX2
#define GPUNN__DIRECT_V1 4
#define GPUNN__DIRECT_V6 2
#define GPUNN__DIRECT_WIDE 4
#define GPUNN__DIRECT_VW 3
#define GPUNN__DIRECT_ROWS 3
#define GPUNN__DIRECT_WINOGRAD gpunn__v8_winograd
#include "cpu/conv_winograd.inc"
#include "cpu/conv_direct.inc"
#endif
#if defined(GPUNN__BASELINE) && defined(__aarch64__)
#define GPUNN__VECTOR gpunn__v4
#define GPUNN__VECTOR_LANES 4
#define GPUNN__TARGET GPUNN__BASELINE
#define GPUNN__DIRECT_V1 8
#define GPUNN__DIRECT_V6 4
#define GPUNN__DIRECT_WIDE 8
#define GPUNN__DIRECT_VW 3
#define GPUNN__DIRECT_ROWS 6
#define GPUNN__DIRECT_WINOGRAD gpunn__v4_winograd
#include "cpu/conv_winograd.inc"
#include "cpu/conv_direct.inc"
#elif defined(GPUNN__BASELINE)
/* no Winograd: its tile does not fit 16 registers of 4 lanes, and the code would be long */
#define GPUNN__VECTOR gpunn__v4
#define GPUNN__VECTOR_LANES 4
#define GPUNN__TARGET GPUNN__BASELINE
#define GPUNN__DIRECT_V1 8
#define GPUNN__DIRECT_V6 2
#define GPUNN__DIRECT_WIDE 8
#define GPUNN__DIRECT_VW 1
#define GPUNN__DIRECT_ROWS 2
#define GPUNN__DIRECT_WINOGRAD NULL
#include "cpu/conv_direct.inc"
#endif
#else
#define GPUNN__VECTOR gpunn__v1
#define GPUNN__VECTOR_LANES 1
#define GPUNN__TARGET
#define GPUNN__DIRECT_V1 8
#define GPUNN__DIRECT_V6 2
#define GPUNN__DIRECT_WIDE 8
#define GPUNN__DIRECT_VW 1
#define GPUNN__DIRECT_ROWS 2
#define GPUNN__DIRECT_WINOGRAD gpunn__v1_winograd
#include "cpu/conv_winograd.inc"
#include "cpu/conv_direct.inc"
#endif

GPUNN__INLINE const gpunn__conv_kernels *gpunn__conv_choose(void)
{
#if !defined(__GNUC__) || defined(GPUNN_NO_SIMD)
    return &gpunn__v1_conv;
#elif defined(GPUNN__LEVELS)
    static const gpunn__conv_kernels *const level[] = {NULL, &gpunn__v4_conv, &gpunn__v8_conv,
                                                       &gpunn__v16_conv};
    return level[gpunn__level()];
#elif defined(GPUNN__AVX512)
    return &gpunn__v16_conv;
#elif defined(GPUNN__AVX2)
    return &gpunn__v8_conv;
#else
    return &gpunn__v4_conv;
#endif
}

GPUNN__INTERNAL void gpunn__conv_activate(const gpunn__conv *v, float *y, int64_t count)
{
    if (v->activation == NULL) return;
    if (v->activation->op == GPUNN_OP_SILU && gpunn__conv_choose()->silu) {
        gpunn__conv_choose()->silu(y, count);
        return;
    }
    gpunn_value value;
    memset(&value, 0, sizeof value);
    value.data = y, value.dtype = GPUNN_F32, value.rank = 1, value.dim[0] = value.count = count;
    gpunn_step step = gpunn__activation_step(v->activation->op, &value, &value, NULL, v->activation_attr,
                                             NULL);
    (void)v->activation->cpu(v->cpu, &step, GPUNN__FORWARD); /* cannot fail */
}

/* One Winograd convolution, src [n][ci][d][h][w] to [n][co][od][oh][ow]. The unit of work is a row of tiles,
 * numbered through all planes. Depth is not transformed: the kd planes that a plane of the result reads count
 * as kd * ci channels. */
typedef struct gpunn__winograd {
    const gpunn__conv         *conv;
    const gpunn__gemm_kernels *kernels;
    int64_t                    n, ci, d, h, w, pd, ph, pw, co, od, oh, ow, kd;
    int64_t                    depth; /* kd * ci */
    const float               *src;
    bool                       last; /* src has channels last */
    gpunn__planes              to;   /* for the whole batch */
    const float               *weight;
    int64_t                    w_co, w_ci;   /* distances between channels */
    bool                       turned;       /* weights are reversed along all axes */
    bool                       ready;        /* u already holds the weights */
    int64_t                    across, down; /* tiles per row, rows of tiles per image */
    int64_t                    group;        /* rows of tiles multiplied together, at most */
    int64_t                    groups;       /* forward: groups of about the same size */
    /* all threads share one group at a time; otherwise each thread has its own */
    bool   shared;
    float *u; /* [36] packed right operands */
    /* [36][tile][depth], followed by the products, or A dy A', [36][tile][co] */
    float *v;
    /* for the gradient of the weight: [36][depth][co]; right operands, per thread */
    float       *du, *panels;
    const float *dy;      /* [n][co][od][oh][ow] */
    float       *dweight; /* [co][ci][kd][tap] */
    bool         add;
    /* per thread: 6 rows of a strip of channels, pixel-major */
    float  *pixels;
    int64_t u_plane, v_group, strip; /* floats of one u, of a group's v, of pixels */
} gpunn__winograd;

#define GPUNN__WINOGRAD_STRIP ((int64_t)64) /* channels transformed together */

/* u = G w G', with vectors of output channels. */
static void gpunn__winograd_weights(const gpunn__winograd *w, int index, int threads)
{
    float         taps[16 * 9 * 16]; /* [ci][tap][co] */
    const int64_t lanes = w->kernels->lanes, chunks = (w->ci + 15) / 16, blocks = (w->co + lanes - 1) / lanes;
    int64_t       unit, end;
    gpunn__cpu_part(w->kd * chunks * blocks, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        int64_t p = unit % chunks * 16, count = w->ci - p < 16 ? w->ci - p : 16, z = unit / chunks % w->kd;
        int64_t j = unit / chunks / w->kd * lanes, columns = w->co - j < lanes ? w->co - j : lanes;
        const float *from = w->weight + j * w->w_co + p * w->w_ci + 9 * (w->turned ? w->kd - 1 - z : z);
        memset(taps, 0, sizeof taps);
        gpunn__winograd_job job;
        job.si = 3 * lanes, job.sj = lanes, job.src_step = 9 * lanes, job.src = taps;
        if (w->turned) job.si = -job.si, job.sj = -job.sj, job.src = taps + 8 * lanes;
        if (w->w_ci == 9) {
            gpunn__to_pixels(from, w->w_co, columns, count * 9, taps, lanes);
        } else {
            for (int64_t i = 0; i < count; i++)
                gpunn__to_pixels(from + i * w->w_ci, w->w_co, columns, 9, taps + i * 9 * lanes, lanes);
        }
        int64_t width, at = gpunn__gemm_packed_at(w->depth, w->co, lanes, z * w->ci + p, j, &width);
        job.dst = w->u + at, job.dst_step = width, job.di = 6 * w->u_plane, job.dj = w->u_plane;
        job.count = count, job.channels = lanes;
        gpunn__conv_choose()->winograd(&job, GPUNN__WINOGRAD_WEIGHT);
    }
}

/* Source of a transform: planes [n][channels][d][h][w]. A tile's first cell is (4 ty - ph, 4 tx - pw) of
 * planes z - pd .. z - pd + kd - 1. Cells outside are 0. A tile has size x size cells: 6 for B' x B, 4 for A
 * dy A'. */
typedef struct gpunn__winograd_side {
    const float *src;
    bool         last; /* src is [n][d][h][w][channels] */
    int64_t      channels, d, h, w, kd, pd, ph, pw, size;
} gpunn__winograd_side;

/* Transforms rows of tiles [t, t_end) into dst [36][tile][kd][channels]. */
static void gpunn__winograd_gather(const gpunn__winograd *w, const gpunn__winograd_side *s, int64_t t,
                                   int64_t t_end, float *dst, int index, int threads, float *pixels)
{
    const int64_t strips = (s->channels + GPUNN__WINOGRAD_STRIP - 1) / GPUNN__WINOGRAD_STRIP,
                  row = w->across * 4 + s->size - 4;
    const int64_t depth = s->kd * s->channels, plane = (t_end - t) * w->across * depth, cells = s->h * s->w;
    int64_t       unit, end, first = t;
    gpunn__cpu_part((t_end - t) * s->kd * strips, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        int64_t c = unit % strips * GPUNN__WINOGRAD_STRIP, kz = unit / strips % s->kd,
                count = s->channels - c < GPUNN__WINOGRAD_STRIP ? s->channels - c : GPUNN__WINOGRAD_STRIP;
        t = first + unit / strips / s->kd;
        int64_t y0 = t % w->down * 4 - s->ph, image = t / w->down / w->od,
                z = t / w->down % w->od - s->pd + kz;
        /* cells of a row; zeros before and after */
        int64_t      inside = row - s->pw < s->w ? row - s->pw : s->w;
        const float *from = s->last ? s->src + (image * s->d + z) * cells * s->channels + c
                                    : s->src + ((image * s->channels + c) * s->d + z) * cells;
        for (int64_t i = 0; i < s->size; i++) {
            float  *to = pixels + i * row * count;
            int64_t y = y0 + i;
            if (z < 0 || z >= s->d || y < 0 || y >= s->h) {
                memset(to, 0, (size_t)(row * count) * sizeof *to);
                continue;
            }
            memset(to, 0, (size_t)(s->pw * count) * sizeof *to);
            if (s->last)
                for (int64_t x = 0; x < inside; x++)
                    memcpy(to + (s->pw + x) * count, from + (y * s->w + x) * s->channels,
                           (size_t)count * sizeof *to);
            else
                gpunn__to_pixels(from + y * s->w, s->d * cells, count, inside, to + s->pw * count, count);
            memset(to + (s->pw + inside) * count, 0, (size_t)((row - s->pw - inside) * count) * sizeof *to);
        }
        gpunn__winograd_job job;
        job.src = pixels, job.si = row * count, job.sj = count, job.src_step = 4 * count;
        job.dst = dst + (t - first) * w->across * depth + kz * s->channels + c;
        job.di = 6 * plane, job.dj = plane, job.dst_step = depth;
        job.count = w->across, job.channels = count;
        gpunn__conv_choose()->winograd(&job, s->size == 6 ? GPUNN__WINOGRAD_INPUT : GPUNN__WINOGRAD_DOUTPUT);
    }
}

GPUNN__INLINE gpunn__winograd_side gpunn__winograd_input(const gpunn__winograd *w)
{
    gpunn__winograd_side side = {w->src, w->last, w->ci, w->d, w->h, w->w, w->kd, w->pd, w->ph, w->pw, 6};
    return side;
}

/* Stores y = A' m A for rows of tiles [t, t_end). m is [36][tile][co]. */
static void gpunn__winograd_scatter(const gpunn__winograd *w, int64_t t, int64_t t_end, const float *m,
                                    int64_t plane, int index, int threads, float *pixels)
{
    const int64_t strips = (w->co + GPUNN__WINOGRAD_STRIP - 1) / GPUNN__WINOGRAD_STRIP, row = w->across * 4;
    int64_t       unit, end, first = t;
    gpunn__cpu_part((t_end - t) * strips, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        int64_t c = unit % strips * GPUNN__WINOGRAD_STRIP,
                count = w->co - c < GPUNN__WINOGRAD_STRIP ? w->co - c : GPUNN__WINOGRAD_STRIP;
        t = first + unit / strips;
        gpunn__winograd_job job;
        job.src = m + (t - first) * w->across * w->co + c, job.si = 6 * plane, job.sj = plane,
        job.src_step = w->co;
        job.dst = pixels, job.di = row * count, job.dj = count, job.dst_step = 4 * count;
        job.count = w->across, job.channels = count;
        gpunn__conv_choose()->winograd(&job, GPUNN__WINOGRAD_OUTPUT);
        for (int64_t i = 0, y = t % w->down * 4; i < 4 && y < w->oh; i++, y++) {
            int64_t       image = t / w->down / w->od, z = t / w->down % w->od;
            int64_t       at = w->last ? (((image * w->od + z) * w->oh + y) * w->ow) * w->co + c
                                       : (((image * w->co + c) * w->od + z) * w->oh + y) * w->ow;
            gpunn__planes to = gpunn__planes_from(w->to, c, at);
            bool          whole = i == 0 && row == w->ow && y + 4 <= w->oh; /* the four rows are contiguous */
            gpunn__from_pixels(pixels + i * row * count, count, count, whole ? 4 * row : w->ow, &to);
            if (whole) break;
        }
    }
}

/* Applies the activation that follows to rows of tiles [t, t_end). */
static void gpunn__winograd_activate(const gpunn__winograd *w, int64_t t, int64_t t_end, int index,
                                     int threads)
{
    int64_t unit, end;
    gpunn__cpu_part(t_end - t, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        const int64_t at = t + unit, y = at % w->down * 4, rows = w->oh - y < 4 ? w->oh - y : 4;
        gpunn__conv_activate(w->conv, w->to.dst + (at / w->down * w->oh + y) * w->ow * w->co,
                             rows * w->ow * w->co);
    }
}

static void gpunn__winograd_run(void *arg, int index, int threads)
{
    const gpunn__winograd *w = (const gpunn__winograd *)arg;
    if (!w->ready) {
        gpunn__winograd_weights(w, index, threads);
        if (threads > 1) (void)gpunn__thread_barrier();
    }
    const int64_t rows = w->n * w->od * w->down, groups = w->groups;
    const bool    wait = w->shared && threads > 1;
    float        *pixels = w->pixels + index * w->strip;
    float *v = w->v + (w->shared ? 0 : index * w->v_group), *m = v + 36 * w->group * w->across * w->depth;

    const gpunn__winograd_side input = gpunn__winograd_input(w);
    int64_t                    group = 0, end = groups, from, to;
    if (!w->shared) gpunn__cpu_part(groups, 1, threads, index, &group, &end);
    if (!w->shared) index = 0, threads = 1;
    for (; group < end; group++) {
        const int64_t t = rows * group / groups, t_end = rows * (group + 1) / groups,
                      tiles = (t_end - t) * w->across;
        gpunn__winograd_gather(w, &input, t, t_end, v, index, threads, pixels);
        if (wait) (void)gpunn__thread_barrier();
        gpunn__gemm g = gpunn__conv_gemm(rows * w->across, w->co, w->depth);
        g.a_row = w->depth, g.a_col = 1, g.c_row = w->co;
        gpunn__cpu_part(36, 1, threads, index, &from, &to);
        for (; from < to; from++) {
            g.a = v + from * tiles * w->depth, g.packed_b = w->u + from * w->u_plane,
            g.c = m + from * tiles * w->co;
            gpunn__gemm_block(&g, w->kernels, 0, tiles, 0, w->co, NULL);
        }
        if (wait) (void)gpunn__thread_barrier();
        gpunn__winograd_scatter(w, t, t_end, m, tiles * w->co, index, threads, pixels);
        if (wait) (void)gpunn__thread_barrier();
        gpunn__winograd_activate(w, t, t_end, index, threads);
    }
}

/* dw = G' du G with du = v' (A dy A'), one group of tiles after another. Threads share the 36 products. */
static void gpunn__winograd_dweight(void *arg, int index, int threads)
{
    const gpunn__winograd *w = (const gpunn__winograd *)arg;
    const int64_t          rows = w->n * w->od * w->down, lanes = w->kernels->lanes;
    float  *pixels = w->pixels + index * w->strip, *panel = w->panels + index * 3 * lanes * w->kernels->depth;
    float  *m = w->v + 36 * w->group * w->across * w->depth;
    int64_t from, to;

    const gpunn__winograd_side input = gpunn__winograd_input(w),
                               doutput = {w->dy, false, w->co, w->od, w->oh, w->ow, 1, 0, 0, 0, 4};
    for (int64_t t = 0; t < rows; t += w->group) {
        int64_t t_end = t + w->group < rows ? t + w->group : rows, tiles = (t_end - t) * w->across;
        gpunn__winograd_gather(w, &input, t, t_end, w->v, index, threads, pixels);
        gpunn__winograd_gather(w, &doutput, t, t_end, m, index, threads, pixels);
        if (threads > 1) (void)gpunn__thread_barrier();
        gpunn__gemm g = gpunn__conv_gemm(w->depth, w->co, tiles);
        g.a_row = 1, g.a_col = w->depth, g.b_row = w->co, g.b_col = 1, g.c_row = w->co, g.accumulate = t > 0;
        gpunn__cpu_part(36, 1, threads, index, &from, &to);
        for (; from < to; from++) {
            g.a = w->v + from * tiles * w->depth, g.b = m + from * tiles * w->co,
            g.c = w->du + from * w->depth * w->co;
            gpunn__gemm_block(&g, w->kernels, 0, w->depth, 0, w->co, panel);
        }
        if (threads > 1) (void)gpunn__thread_barrier();
    }
    float         taps[16 * 9 * 16]; /* [ci][tap][co] */
    const int64_t chunks = (w->ci + 15) / 16, blocks = (w->co + lanes - 1) / lanes;
    gpunn__cpu_part(w->kd * chunks * blocks, 1, threads, index, &from, &to);
    for (; from < to; from++) {
        int64_t p = from % chunks * 16, count = w->ci - p < 16 ? w->ci - p : 16, z = from / chunks % w->kd;
        int64_t j = from / chunks / w->kd * lanes, columns = w->co - j < lanes ? w->co - j : lanes;

        gpunn__winograd_job job;
        job.src = w->du + (z * w->ci + p) * w->co + j, job.si = 6 * w->depth * w->co,
        job.sj = w->depth * w->co;
        job.src_step = w->co;
        job.dst = taps, job.di = 3 * lanes, job.dj = lanes, job.dst_step = 9 * lanes;
        job.count = count, job.channels = columns;
        gpunn__conv_choose()->winograd(&job, GPUNN__WINOGRAD_DWEIGHT);
        gpunn__planes planes;
        memset(&planes, 0, sizeof planes);
        planes.dst = w->dweight + ((j * w->ci + p) * w->kd + z) * 9, planes.plane = w->depth * 9,
        planes.add = w->add;
        const int64_t run = w->kd == 1 ? count : 1; /* channels with adjacent taps */
        for (int64_t i = 0; i < count; i += run, planes.dst += w->kd * 9)
            gpunn__from_pixels(taps + i * 9 * lanes, lanes, columns, run * 9, &planes);
    }
}

/* With cached, u is stored in the cache, otherwise in the workspace. */
static gpunn__winograd gpunn__winograd_plan(const gpunn__conv *v, gpunn__conv_use use, bool cached,
                                            float *cache, gpunn__space *space)
{
    gpunn__winograd w;
    memset(&w, 0, sizeof w);
    w.conv = v;
    w.kernels = gpunn__gemm_choose();
    w.n = v->n;
    if (use == GPUNN__CONV_DX) { /* a convolution of dy with the weights rotated by 180 degrees */
        w.ci = v->oc, w.d = v->od, w.h = v->oh, w.w = v->ow, w.co = v->c, w.od = v->d, w.oh = v->h,
        w.ow = v->w;
        w.pd = v->kd - 1 - v->pd, w.ph = 2 - v->ph, w.pw = 2 - v->pw;
        w.src = v->dy, w.weight = v->weight, w.w_co = v->taps, w.w_ci = v->k, w.turned = true;
        w.to = gpunn__conv_planes(v, v->dx, w.od * w.oh * w.ow, v->add_dx);
    } else {
        w.ci = v->c, w.d = v->d, w.h = v->h, w.w = v->w, w.co = v->oc, w.od = v->od, w.oh = v->oh,
        w.ow = v->ow;
        w.pd = v->pd, w.ph = v->ph, w.pw = v->pw;
        w.src = v->x, w.weight = v->weight, w.w_co = v->k, w.w_ci = v->taps;
        w.to = gpunn__conv_planes(v, v->y, v->last ? w.co : w.od * w.oh * w.ow, v->add_y);
        w.last = v->last;
        w.dy = v->dy, w.dweight = v->dweight, w.add = v->add_dweight;
    }
    w.kd = v->kd, w.depth = w.kd * w.ci;
    w.across = (w.ow + 3) / 4, w.down = (w.oh + 3) / 4;
    const int64_t rows = w.n * w.od * w.down, cells = 36 * (w.depth + w.co);
    int64_t       tiles = (use == GPUNN__CONV_DW ? 1048576 : 262144) / cells,
            least = use == GPUNN__CONV_DW ? 64 : 32;
    if (tiles < least) tiles = least;
    w.group = (tiles + w.across - 1) / w.across;
    w.shared = use == GPUNN__CONV_DW || (v->threads > 1 && rows * w.across < v->threads * least);
    w.groups = (rows + w.group - 1) / w.group;
    if (!w.shared) w.groups = gpunn__to_multiple(w.groups, v->threads);
    w.group = gpunn__least(w.group, (rows + w.groups - 1) / w.groups);
    w.strip = 6 * (4 * w.across + 2) * GPUNN__WINOGRAD_STRIP;
    w.pixels = gpunn__take(space, v->threads * w.strip);
    w.v_group = w.group * w.across * cells;
    w.v = gpunn__take(space, (w.shared ? 1 : v->threads) * w.v_group);
    w.u_plane = (int64_t)(gpunn__gemm_packed_b_bytes(w.depth, w.co) / sizeof(float));
    if (use == GPUNN__CONV_DW) {
        w.du = gpunn__take(space, 36 * w.depth * w.co);
        w.panels = gpunn__take(space, v->threads * w.kernels->depth * 3 * w.kernels->lanes);
    } else {
        w.u = cached ? cache : gpunn__take(space, 36 * w.u_plane);
    }
    return w;
}

/* One convolution of few channels: src [n][groups * ci][d][h][w] to [n][groups * co][od][oh][ow]. If up > 1,
 * zeros are inserted between the cells of src. That also serves the backward pass to dx: dy, spread by the
 * stride, is convolved with the reversed weights. Work proceeds by planes of the result, in bands of rows for
 * large planes. The kd planes of src that one plane reads count as channels. */
typedef struct gpunn__direct {
    const gpunn__conv         *conv;
    const gpunn__conv_kernels *kernels;
    int64_t                    n, groups, ci, co, d, h, w, od, oh, ow, up_d, up_h, up_w;
    /* padding before; negative: cells cut off */
    int64_t       front, top, left;
    int64_t       kd, kh, kw, sd, sh, sw, dd, dh, dw, taps; /* taps: ci * kd * kh * kw */
    const float  *src, *dy;
    gpunn__planes to;
    const float  *weight;
    bool          turned;
    float        *dweight;
    bool          add;
    int           rows;         /* output channels computed together: 1, 6 or kernels->wide */
    int64_t       lines, bands; /* rows of the result per band; bands per plane */
    int64_t       blocks;       /* per group, of `rows` channels each */
    /* plane: a channel's copy, all phases of qh x qw; pixels: computed, in whole tiles */
    int64_t  qh, qw, plane, pixels;
    int64_t *offset; /* [taps + 3] */
    /* weights [group][block][tap][row]; per thread: the copy, results [row][pixel] */
    float  *packed, *copies, *out;
    int64_t copy; /* floats per thread */
    /* dweight: planes copied together; partial sums that are added at the end */
    int64_t batch, parts;
    float  *sums; /* [part][group * blocks][row][taps rounded up to a multiple of 4] */
} gpunn__direct;

/* Splits n floats: src[0], src[2], .. to even and src[1], src[3], .. to odd. */
GPUNN__INLINE void gpunn__part_pairs(const float *src, int64_t n, float *GPUNN__RESTRICT even,
                                     float *GPUNN__RESTRICT odd)
{
    int64_t i = 0;
#if defined(__GNUC__) && !defined(GPUNN_NO_SIMD)
    for (; 2 * i + 8 <= n; i += 4) {
        const gpunn__quad a = *(const gpunn__quad_memory *)(src + 2 * i),
                          b = *(const gpunn__quad_memory *)(src + 2 * i + 4);
        *(gpunn__quad_memory *)(even + i) = GPUNN__SHUFFLE(a, b, 0, 2, 4, 6);
        *(gpunn__quad_memory *)(odd + i) = GPUNN__SHUFFLE(a, b, 1, 3, 5, 7);
    }
#endif
    for (; 2 * i + 1 < n; i++) even[i] = src[2 * i], odd[i] = src[2 * i + 1];
    if (2 * i < n) even[i] = src[2 * i];
}

/* Copies the input of one group of plane `at` of the result (numbered through all images), from line `from`
 * on, into the padded layout [channel][kd][phase][qh][qw]. The phases of a stride are separate, so the taps
 * of neighbouring outputs are neighbours. On entry, `to` holds zeros where no cell is ever stored; elsewhere
 * it may hold an earlier band. */
static void gpunn__direct_copy(const gpunn__direct *d, int64_t group, int64_t at, int64_t from, float *to)
{
    const int64_t top = d->top - from * d->sh, above = top < 0 ? (-top + d->up_h - 1) / d->up_h : 0;
    const int64_t first = above * d->up_h + top;
    const int64_t skip = d->left < 0 ? (-d->left + d->up_w - 1) / d->up_w : 0, phase = d->qh * d->qw;
    int64_t       count = (d->qw * d->sw - d->left + d->up_w - 1) / d->up_w;
    if (count > d->w) count = d->w;
    /* whether lines follow each other as in the source */
    const bool whole = d->left == 0 && d->w == d->qw && d->sw == 1 && d->sh == 1 && d->up_w == 1 &&
                       d->up_h == 1;
    if (d->bands > 1) memset(to, 0, (size_t)(d->ci * d->kd * d->plane) * sizeof *to);
    for (int64_t i = 0; i < d->ci * d->kd; i++, to += d->plane) {
        int64_t channel = (at / d->od * d->groups + group) * d->ci + i / d->kd;
        int64_t z = at % d->od * d->sd + i % d->kd * d->dd - d->front;
        if (z < 0 || z % d->up_d != 0 || z / d->up_d >= d->d) {
            memset(to, 0, (size_t)d->plane * sizeof *to);
            continue;
        }
        const float *plane = d->src + (channel * d->d + z / d->up_d) * d->h * d->w;
        int64_t      line = first / d->sh, part = first % d->sh;
        if (whole) {
            const int64_t lines = gpunn__least(d->h - above, d->qh - line);
            if (lines > 0)
                memcpy(to + line * d->qw, plane + above * d->w, (size_t)(lines * d->w) * sizeof *to);
            continue;
        }
        for (int64_t y = above; y < d->h && line < d->qh; y++) {
            const float *src = plane + y * d->w;
            float       *row = to + part * d->sw * phase + line * d->qw;
            for (part += d->up_h; part >= d->sh; part -= d->sh) line++;
            if (d->sw == 1 && d->up_w == 1) {
                if (count > skip)
                    memcpy(row + skip + d->left, src + skip, (size_t)(count - skip) * sizeof *row);
            } else if (d->sw == 1) {
                for (int64_t x = skip; x < count; x++) row[x * d->up_w + d->left] = src[x];
            } else if (d->sw == 2) { /* up is 1 */
                const int64_t x = skip + d->left;
                gpunn__part_pairs(src + skip, count - skip, row + x % 2 * phase + x / 2,
                                  row + (x + 1) % 2 * phase + (x + 1) / 2);
            } else {
                for (int64_t x = skip, end = skip + d->sw < count ? skip + d->sw : count; x < end; x++) {
                    float *cell = row + (x + d->left) % d->sw * phase + (x + d->left) / d->sw;
                    for (int64_t k = x; k < count; k += d->sw) *cell++ = src[k];
                }
            }
        }
    }
}

/* Offset of plane `at` of a channel, in the result or in dy. */
GPUNN__INLINE int64_t gpunn__direct_plane(const gpunn__direct *d, int64_t channel, int64_t at)
{
    return ((at / d->od * d->groups * d->co + channel) * d->od + at % d->od) * d->oh * d->ow;
}

static void gpunn__direct_offsets(const gpunn__direct *d)
{
    int64_t *offset = d->offset;
    for (int64_t c = 0; c < d->ci * d->kd; c++)
        for (int64_t ky = 0; ky < d->kh; ky++)
            for (int64_t kx = 0; kx < d->kw; kx++) {
                int64_t y = ky * d->dh, x = kx * d->dw;
                *offset++ = c * d->plane + ((y % d->sh * d->sw + x % d->sw) * d->qh + y / d->sh) * d->qw +
                            x / d->sw;
            }
    for (int i = 0; i < 3; i++, offset++) *offset = offset[-1];
}

/* Stores rows of channels, from channel o on, as lines of an image with channels last. */
static void gpunn__direct_last(const gpunn__direct *d, float *rows, int64_t plane, int64_t first,
                               int64_t lines, int64_t o)
{
    const int64_t count = d->co - o < d->rows ? d->co - o : d->rows;
    for (int64_t i = 0; i < count; i++) {
        float *row = rows + i * d->pixels;
        d->kernels->finish(row, row, NULL, d->pixels, d->to.scale ? d->to.scale[o + i] : 1,
                           d->to.shift ? d->to.shift[o + i] : 0, false, d->to.relu);
    }
    gpunn__conv_activate(d->conv, rows, count * d->pixels);
    for (int64_t r = 0; r < lines; r++)
        gpunn__to_pixels(rows + r * d->qw, d->pixels, count, d->ow,
                         d->to.dst + (plane * d->oh + first + r) * d->ow * d->co + o, d->co);
}

static void gpunn__direct_run(void *arg, int index, int threads)
{
    const gpunn__direct *d = (const gpunn__direct *)arg;
    const int64_t        cells = d->taps / d->ci, packed = d->taps * d->rows;
    int64_t              unit, end;
    gpunn__cpu_part(d->groups * d->blocks, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        int64_t group = unit / d->blocks, o = unit % d->blocks * d->rows,
                count = d->co - o < d->rows ? d->co - o : d->rows;
        float *to = d->packed + unit * packed;
        if (count < d->rows) memset(to, 0, (size_t)packed * sizeof *to);
        if (!d->turned) {
            gpunn__to_pixels(d->weight + (group * d->co + o) * d->taps, d->taps, count, d->taps, to, d->rows);
            continue;
        }
        for (int64_t i = 0; i < d->ci; i++) /* weight[group * ci + i][o + j][cells - 1 - t] */
            for (int64_t t = 0; t < cells; t++)
                for (int64_t j = 0; j < count; j++)
                    to[(i * cells + t) * d->rows + j] =
                        d->weight[((group * d->ci + i) * d->co + o + j + 1) * cells - 1 - t];
    }
    gpunn__direct_job job;
    memset(&job, 0, sizeof job);
    float *copy = d->copies + index * d->copy;
    memset(copy, 0, (size_t)d->copy * sizeof *copy);
    if (threads > 1) (void)gpunn__thread_barrier();
    job.x = copy, job.offset = d->offset, job.taps = d->taps, job.count = d->pixels;
    job.out = d->out + index * d->rows * d->pixels, job.out_row = d->pixels;
    int64_t now = -1;
    gpunn__cpu_part(d->n * d->od * d->bands * d->groups * d->blocks, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        /* part: band and group */
        int64_t part = unit / d->blocks, group = part % d->groups, o = unit % d->blocks * d->rows;
        int64_t plane = part / d->groups / d->bands, first = part / d->groups % d->bands * d->lines;
        int64_t lines = d->oh - first < d->lines ? d->oh - first : d->lines;
        if (part != now) gpunn__direct_copy(d, group, plane, first, copy);
        now = part;
        job.w = d->packed + (group * d->blocks + unit % d->blocks) * packed;
        d->kernels->direct(&job, d->rows);
        if (d->to.last) {
            gpunn__direct_last(d, job.out, plane, first, lines, o);
            continue;
        }
        for (int64_t i = 0; i < d->rows && o + i < d->co; i++) {
            const int64_t channel = group * d->co + o + i,
                          at = gpunn__direct_plane(d, channel, plane) + first * d->ow;
            const float scale = d->to.scale ? d->to.scale[channel] : 1,
                        shift = d->to.shift ? d->to.shift[channel] : 0;
            const float *from = job.out + i * d->pixels,
                        *residual = d->to.residual ? d->to.residual + at : NULL;
            float *y = d->to.dst + at;
            for (int64_t r = 0; r < lines; r++, from += d->qw, y += d->ow)
                d->kernels->finish(from, y, residual ? residual + r * d->ow : NULL, d->ow, scale, shift,
                                   d->to.add, d->to.relu);
        }
    }
}

/* The gradient of the weight. Each part sums over its own planes. The parts do not depend on the number of
 * threads. */
static void gpunn__direct_dweight(void *arg, int index, int threads)
{
    const gpunn__direct *d = (const gpunn__direct *)arg;
    const int64_t        x_image = d->ci * d->kd * d->plane, y_image = d->rows * d->pixels,
                  width = gpunn__to_multiple(d->taps, 4), tile = d->rows * width;
    float            *x = d->copies + index * d->copy, *y = x + d->copy - d->batch * y_image;
    int64_t           unit, end;
    gpunn__direct_job job;
    memset(&job, 0, sizeof job);
    memset(x, 0, (size_t)d->copy * sizeof *x);
    job.x = x, job.y = y, job.offset = d->offset, job.taps = d->taps, job.count = d->pixels;
    job.out_row = width, job.y_row = d->pixels, job.x_image = x_image, job.y_image = y_image;
    /* per unit */
    const int64_t splits = d->parts * d->groups < 2 * threads ? d->blocks : 1, blocks = d->blocks / splits;
    gpunn__cpu_part(d->parts * d->groups * splits, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        int64_t part = unit / (d->groups * splits), group = unit / splits % d->groups,
                first = unit % splits * blocks, plane, last;
        float *sums = d->sums + ((part * d->groups + group) * d->blocks + first) * tile;
        memset(sums, 0, (size_t)(blocks * tile) * sizeof *sums);
        gpunn__cpu_part(d->n * d->od, d->batch, (int)d->parts, (int)part, &plane, &last);
        for (; plane < last; plane += job.images) {
            job.images = last - plane < d->batch ? last - plane : d->batch;
            for (int64_t i = 0; i < job.images; i++)
                gpunn__direct_copy(d, group, plane + i, 0, x + i * x_image);
            for (int64_t block = 0; block < blocks; block++) {
                int64_t o = (first + block) * d->rows, count = d->co - o < d->rows ? d->co - o : d->rows;
                for (int64_t i = 0; i < job.images; i++) {
                    float *to = y + i * y_image;
                    for (int64_t j = 0; j < count; j++) {
                        const float *dy = d->dy + gpunn__direct_plane(d, group * d->co + o + j, plane + i);
                        for (int64_t r = 0; r < d->oh; r++, dy += d->ow)
                            memcpy(to + j * d->pixels + r * d->qw, dy, (size_t)d->ow * sizeof *dy);
                    }
                }
                job.out = sums + block * tile;
                d->kernels->gradient(&job, d->rows);
            }
        }
    }
    if (threads > 1) (void)gpunn__thread_barrier();
    const int64_t all = d->groups * d->blocks * tile;
    gpunn__cpu_part(d->groups * d->co, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        const float *sums = d->sums + unit / d->co * d->blocks * tile + unit % d->co * width;
        float       *dw = d->dweight + unit * d->taps;
        for (int64_t t = 0; t < d->taps; t++) {
            float sum = sums[t];
            for (int64_t part = 1; part < d->parts; part++) sum += sums[part * all + t];
            dw[t] = d->add ? dw[t] + sum : sum;
        }
    }
}

/* Number of the oh lines of a plane of the result to compute together so that their input fits the cache of
 * one core. The input per channel and phase of a stride is as many lines of `pitch` cells, plus `halo` lines.
 * 0 or less if none fits. */
static double gpunn__direct_lines(double channels, double oh, double pitch, double phases, double halo)
{
    const double most = 65536 / (channels * pitch);
    return oh < most ? oh : floor(most / phases) - halo;
}

/* Vectors per tile. */
static int64_t gpunn__direct_vectors(const gpunn__direct *d, gpunn__conv_use use)
{
    if (use == GPUNN__CONV_DW) return 1;
    if (d->rows == 1) return d->kernels->v1;
    return d->rows == 6 ? d->kernels->v6 : d->kernels->vw;
}

/* The operands and sizes of a use. dx is a convolution of dy. */
static gpunn__direct gpunn__direct_shape(const gpunn__conv *v, gpunn__conv_use use)
{
    gpunn__direct d;
    memset(&d, 0, sizeof d);
    d.conv = v;
    d.kernels = gpunn__conv_choose();
    d.n = v->n, d.groups = v->groups, d.weight = v->weight;
    d.kd = v->kd, d.kh = v->kh, d.kw = v->kw, d.dd = v->dd, d.dh = v->dh, d.dw = v->dw;
    if (use == GPUNN__CONV_DX) {
        d.ci = v->og, d.co = v->cg, d.d = v->od, d.h = v->oh, d.w = v->ow, d.od = v->d, d.oh = v->h,
        d.ow = v->w;
        d.up_d = v->sd, d.up_h = v->sh, d.up_w = v->sw, d.sd = d.sh = d.sw = 1;
        d.front = v->dd * (v->kd - 1) - v->pd, d.top = v->dh * (v->kh - 1) - v->ph,
        d.left = v->dw * (v->kw - 1) - v->pw;
        d.src = v->dy, d.turned = true;
        d.to = gpunn__conv_planes(v, v->dx, d.oh * d.ow, v->add_dx);
    } else {
        d.ci = v->cg, d.co = v->og, d.d = v->d, d.h = v->h, d.w = v->w, d.od = v->od, d.oh = v->oh,
        d.ow = v->ow;
        d.up_d = d.up_h = d.up_w = 1, d.sd = v->sd, d.sh = v->sh, d.sw = v->sw;
        d.front = v->pd, d.top = v->ph, d.left = v->pw, d.src = v->x;
        d.to = gpunn__conv_planes(v, v->y, d.oh * d.ow, v->add_y);
        d.dy = v->dy, d.dweight = v->dweight, d.add = v->add_dweight;
    }
    return d;
}

static gpunn__direct gpunn__direct_plan(const gpunn__conv *v, gpunn__conv_use use, gpunn__space *space)
{
    gpunn__direct d = gpunn__direct_shape(v, use);
    d.taps = d.ci * d.kd * d.kh * d.kw;
    const bool six = use == GPUNN__CONV_DW ||
                     gpunn__to_multiple(d.co, 6) < gpunn__to_multiple(d.co, d.kernels->wide);
    d.rows = six ? 6 : d.kernels->wide;
    if (d.co <= 2) d.rows = 1;
    d.blocks = (d.co + d.rows - 1) / d.rows;
    const int64_t halo = d.dh * (d.kh - 1) / d.sh;
    d.qw = d.ow + d.dw * (d.kw - 1) / d.sw;
    d.lines = (int64_t)gpunn__direct_lines((double)(d.ci * d.kd), (double)d.oh, (double)d.qw,
                                           (double)(d.sh * d.sw), (double)halo);
    d.bands = (d.oh + d.lines - 1) / d.lines;
    const bool shared = use != GPUNN__CONV_DW && d.n * d.od * d.groups < v->threads;
    if (d.bands > 1 || shared) { /* a multiple of the threads */
        d.bands = gpunn__to_multiple(d.bands, v->threads);
        d.lines = (d.oh + d.bands - 1) / d.bands;
        d.bands = (d.oh + d.lines - 1) / d.lines;
    }
    d.qh = d.lines + halo, d.plane = d.sh * d.sw * d.qh * d.qw;
    const int64_t grain = d.kernels->lanes * gpunn__direct_vectors(&d, use);
    d.pixels = gpunn__to_multiple((d.lines - 1) * d.qw + d.ow, grain);
    d.offset = (int64_t *)(void *)gpunn__take(space, 2 * (d.taps + 3));
    d.copy = d.ci * d.kd * d.plane + grain;
    if (use == GPUNN__CONV_DW) {
        int64_t image = d.ci * d.kd * d.plane + d.rows * d.pixels, planes = d.n * d.od;
        d.batch = 10000 / image;
        if (d.batch > (planes + 1) / 2) d.batch = (planes + 1) / 2;
        if (d.batch < 1) d.batch = 1;
        d.parts = (planes + d.batch - 1) / d.batch;
        if (d.parts > 16) d.parts = 16;
        d.copy = d.batch * image + 2 * grain;
        d.sums = gpunn__take(space, d.parts * d.groups * d.blocks * d.rows * (d.taps + 3));
    } else {
        d.packed = gpunn__take(space, d.groups * d.blocks * d.taps * d.rows);
        d.out = gpunn__take(space, v->threads * d.rows * d.pixels);
    }
    d.copy = gpunn__to_multiple(d.copy, 16);
    d.copies = gpunn__take(space, v->threads * d.copy);
    if (space->base) gpunn__direct_offsets(&d);
    return d;
}

/* ---- the op -------------------------------------------------------------------------------------------- */

/* The gradient of a bias: dy [n][channels][cells] summed per channel. */
typedef struct gpunn__conv_bias {
    const float *dy;
    float       *dbias;
    int64_t      n, channels, cells;
    bool         add;
} gpunn__conv_bias;

GPUNN__VECTORIZED(gpunn__conv_dbias, (void *arg, int index, int threads), (arg, index, threads))
{
    const gpunn__conv_bias *b = (const gpunn__conv_bias *)arg;
    int64_t                 o, end;
    gpunn__cpu_part(b->channels, 1, threads, index, &o, &end);
    for (; o < end; o++) {
        float lane[16] = {0}, sum = 0;
        for (int64_t image = 0; image < b->n; image++) {
            const float *dy = b->dy + (image * b->channels + o) * b->cells;
            int64_t      i = 0;
            for (; i + 16 <= b->cells; i += 16)
                for (int l = 0; l < 16; l++) lane[l] += dy[i + l];
            for (; i < b->cells; i++) lane[i % 16] += dy[i];
        }
        for (int l = 0; l < 16; l++) sum += lane[l];
        b->dbias[o] = b->add ? b->dbias[o] + sum : sum;
    }
}

/* Lets the kernels that can do so apply an activation that clamps to [0, most]. */
static void gpunn__conv_clamp(gpunn__conv *v)
{
    const bool able = v->last && !v->planes &&
                      (gpunn__conv_is_depthwise(v) || (gpunn__conv_is_pointwise(v) && v->groups == 1));
    if (v->activation == NULL || !able) return;
    const gpunn_op op = v->activation->op;
    const float   *range = v->activation_attr->value, most = op == GPUNN_OP_RELU6 ? 6 : range[1];
    if (op != GPUNN_OP_RELU6 && !((op == GPUNN_OP_HARDTANH || op == GPUNN_OP_CLAMP) && range[0] == 0)) return;
    if (!(most > 0)) return;
    v->relu = true, v->most = most;
    v->activation = NULL;
}

GPUNN__INTERNAL gpunn__conv gpunn__conv_shape(const gpunn__cpu *cpu, const gpunn_step *step)
{
    const gpunn_attributes *attr = step->attr;
    const bool              transposed = gpunn__op_is(step->op, GPUNN__TRANSPOSED);
    const gpunn_value      *in = &step->in[0], *out = step->backward ? &step->grad_out : &step->out;
    const gpunn_value      *x = transposed ? out : in, *y = transposed ? in : out;
    const int               axes = x->rank - 2;
    gpunn__conv             v;
    memset(&v, 0, sizeof v);
    v.n = x->dim[0], v.c = x->dim[1], v.oc = y->dim[1];
    v.groups = attr->groups, v.cg = v.c / v.groups, v.og = v.oc / v.groups;
    int64_t *const axis[3][6] = {{&v.d, &v.od, &v.kd, &v.sd, &v.pd, &v.dd},
                                 {&v.h, &v.oh, &v.kh, &v.sh, &v.ph, &v.dh},
                                 {&v.w, &v.ow, &v.kw, &v.sw, &v.pw, &v.dw}};
    for (int i = 0; i < 3; i++) {
        const int  from = i - 3 + axes; /* the first axes may be missing */
        const bool there = from >= 0;
        *axis[i][0] = there ? x->dim[2 + from] : 1, *axis[i][1] = there ? y->dim[2 + from] : 1;
        *axis[i][2] = there ? attr->kernel[from] : 1, *axis[i][3] = there ? attr->stride[from] : 1;
        *axis[i][4] = there ? attr->padding[from] : 0, *axis[i][5] = there ? attr->dilation[from] : 1;
    }
    v.last = x->channels_last || y->channels_last;
    v.planes = v.last && !in->channels_last && v.c > 1 && in->count > v.n * v.c;
    v.taps = v.kd * v.kh * v.kw, v.k = v.taps * v.cg, v.pixels = v.n * v.od * v.oh * v.ow;
    /* Reading the weights counts where there are few pixels. A depthwise product counts as much as a read. */
    const double products = (double)v.oc * (double)v.k, pixels = (double)v.pixels;
    v.threads = gpunn__cpu_threads_for(
        cpu, products * (gpunn__conv_is_depthwise(&v) ? pixels / 4 : pixels / 16 + 0.25));
    v.weight = (const float *)step->in[1].data;
    *(transposed ? &v.dy : &v.x) = (const float *)in->data;
    if (step->backward) {
        *(transposed ? &v.x : &v.dy) = (const float *)out->data;
        *(transposed ? &v.y : &v.dx) = (float *)step->grad_in[0].data;
        *(transposed ? &v.add_y : &v.add_dx) = step->accumulate[0];
        v.dweight = (float *)step->grad_in[1].data, v.add_dweight = step->accumulate[1];
    } else {
        *(transposed ? &v.dx : &v.y) = (float *)out->data;
        v.relu = step->fused->relu, v.residual = (const float *)step->fused->residual.data;
        v.activation = step->fused->activation, v.activation_attr = step->fused->activation_attr;
        gpunn__conv_clamp(&v);
    }
    return v;
}

GPUNN__INTERNAL void gpunn__conv_epilogue(const gpunn_step *step, gpunn__conv *v, gpunn__space *space)
{
    const float  *bias = (const float *)step->in[2].data;
    const int64_t channels = step->out.dim[1];
    v->shift = gpunn__take(space, channels);
    v->scale = gpunn__take(space, channels);
    if (space->base == NULL) return;
    if (step->fused->norm) {
        gpunn__fold_norm(step, bias, channels, v->scale, v->shift);
        return;
    }
    v->scale = NULL;
    if (bias == NULL)
        v->shift = NULL;
    else
        memcpy(v->shift, bias, (size_t)channels * sizeof *bias);
}

/* Selects Winograd where its tiles fit (and, with kd > 1, its chunks of 16 channels). Otherwise it selects
 * the smaller of two cost estimates, in multiplications of one vector lane. They are doubles because the
 * function is also called for sizes too large to compute. */
static gpunn__conv_way gpunn__conv_choose_way(const gpunn__conv *v, gpunn__conv_use use)
{
    const bool    dx = use == GPUNN__CONV_DX;
    const int64_t ci = dx ? v->og : v->cg, co = dx ? v->cg : v->og;
    const int64_t od = dx ? v->d : v->od, oh = dx ? v->h : v->oh, ow = dx ? v->w : v->ow;
    const int64_t lanes = gpunn__gemm_choose()->lanes;
    const double  planes = (double)v->n * (double)od,
                 tiles = planes * (double)((oh + 3) / 4) * (double)((ow + 3) / 4);
    const bool dense = (v->sd | v->sh | v->sw | v->dd | v->dh | v->dw | v->groups) == 1;
    if (dense && v->kh == 3 && v->kw == 3 && v->ph <= 2 && v->pw <= 2 && ci >= 16 && co >= 16 &&
        (v->kd == 1 || ci % 16 == 0) && tiles >= 8 &&
        tiles * 16 * 5 <= planes * (double)oh * (double)ow * 8 && gpunn__conv_choose()->winograd)
        return GPUNN__CONV_WINOGRAD;
    int64_t pitch = ow + v->dw * (v->kw - 1) / (dx ? 1 : v->sw),
            rows = co <= 2 ? 1 : gpunn__to_multiple(co, 6);
    double taps = (double)v->taps * (double)ci;
    if (use != GPUNN__CONV_DW && gpunn__to_multiple(co, 8) < rows) rows = gpunn__to_multiple(co, 8);
    double grain = (double)(rows == 1 ? 4 * lanes : 3 * lanes),
           rolled = (double)(oh - 1) * (double)pitch + (double)ow;
    double direct = (double)od * ceil(rolled / grain) * grain * taps * (double)rows;
    double lowered = (double)v->od * (double)v->oh * (double)v->ow * (double)v->taps *
                     ((double)v->cg * (double)gpunn__to_multiple(v->og, lanes) + 8 * (double)v->cg + 192);
    if (v->last) return v->planes ? GPUNN__CONV_DIRECT : GPUNN__CONV_LOWERED;
    double lines = gpunn__direct_lines((double)ci * (double)v->kd, (double)oh, (double)pitch,
                                       dx ? 1 : (double)v->sh * (double)v->sw,
                                       floor((double)v->dh * (double)(v->kh - 1) / (dx ? 1 : (double)v->sh)));
    bool   whole = lines >= (double)oh, banded = use != GPUNN__CONV_DW && lines >= 4;
    return (whole && direct < lowered) || (banded && 1.5 * direct < lowered) ? GPUNN__CONV_DIRECT
                                                                             : GPUNN__CONV_LOWERED;
}

/* Whether there are kernels that read and write channels last. */
static bool gpunn__conv_reads_last(const gpunn__conv *v)
{
    if (v->planes) return v->y && v->groups == 1 && !v->residual;
    return v->y && (v->groups == 1 || gpunn__conv_is_depthwise(v) || (v->cg >= 8 && v->og >= 8));
}

static GPUNN__STATUS gpunn__conv_by_planes(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action,
                                           const gpunn__conv *v);

static void gpunn__conv_bias_gradient(gpunn__cpu *cpu, const gpunn_step *step)
{
    const gpunn_value *dy = &step->grad_out;
    gpunn__conv_bias   bias = {(const float *)dy->data,
                               (float *)step->grad_in[2].data,
                               dy->dim[0],
                               dy->dim[1],
                               dy->count / (dy->dim[0] * dy->dim[1]),
                               step->accumulate[2]};
    gpunn_parallel(gpunn__cpu_threads(cpu, dy->count), gpunn__conv_dbias, &bias);
}

/* A step needs y or dx as its result, or one or two of y, dx and dweight as its gradients. They are computed
 * one after the other in the same workspace. Lowered dx and dweight are computed together. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_conv(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__cpu   alone;
    gpunn__conv  v = gpunn__conv_shape(cpu, step);
    const bool   run = action != GPUNN__PREPARE, cached = !step->backward && !step->training;
    const bool   ready = run && cached && step->cache_version == step->state->weights_version;
    bool         wanted[3] = {v.y != NULL, v.dx != NULL, v.dweight != NULL};
    float       *cache = (float *)step->cache;
    gpunn__space space = {run ? (float *)step->workspace : NULL, 0};
    if (step->fused->strips) {
        gpunn__cpu_run_strips(cpu, step, action);
        return GPUNN_OK;
    }
    memset(&alone, 0, sizeof alone);
    alone.threads = 1, v.cpu = &alone;
    if (v.last && !gpunn__conv_reads_last(&v)) return gpunn__conv_by_planes(cpu, step, action, &v);
    if (!step->backward) gpunn__conv_epilogue(step, &v, &space);
    const size_t kept = space.bytes;
    size_t       most = kept;
    for (int i = GPUNN__CONV_FORWARD; i <= GPUNN__CONV_DW; i++) {
        const gpunn__conv_use use = (gpunn__conv_use)i;
        const gpunn__conv_way way = gpunn__conv_choose_way(&v, use);
        if (!wanted[use] || (way == GPUNN__CONV_LOWERED && use != GPUNN__CONV_FORWARD)) continue;
        wanted[use] = false;
        if (gpunn__conv_is_depthwise(&v)) {
            float *packed = cached ? cache : gpunn__take(&space, gpunn__depthwise_floats(&v));
            if (!run && cached) step->cache_bytes = (size_t)gpunn__depthwise_floats(&v) * sizeof(float);
            if (run) gpunn__depthwise_run(&v, packed, ready);
        } else if (way == GPUNN__CONV_WINOGRAD) {
            gpunn__winograd w = gpunn__winograd_plan(&v, use, cached, cache, &space);
            w.ready = ready;
            if (!run && cached) step->cache_bytes = 36 * (size_t)w.u_plane * sizeof(float);
            if (run)
                gpunn_parallel(v.threads,
                               use == GPUNN__CONV_DW ? gpunn__winograd_dweight : gpunn__winograd_run, &w);
        } else if (way == GPUNN__CONV_DIRECT) {
            gpunn__direct d = gpunn__direct_plan(&v, use, &space);
            if (run)
                gpunn_parallel(v.threads, use == GPUNN__CONV_DW ? gpunn__direct_dweight : gpunn__direct_run,
                               &d);
        } else {
            gpunn__lowered l = gpunn__lowered_plan(&v, false, false, false, cached, cache, &space);
            l.ready = ready;
            if (!run && cached) step->cache_bytes = (size_t)(v.groups * l.packed_floats) * sizeof(float);
            if (run) gpunn_parallel(v.threads, gpunn__lowered_forward, &l);
        }
        most = most > space.bytes ? most : space.bytes, space.bytes = kept;
    }
    if (wanted[GPUNN__CONV_DX] || wanted[GPUNN__CONV_DW]) {
        gpunn__lowered l = gpunn__lowered_plan(&v, true, wanted[GPUNN__CONV_DX], wanted[GPUNN__CONV_DW],
                                               false, NULL, &space);
        if (run) gpunn_parallel(v.threads, gpunn__lowered_backward, &l);
        most = most > space.bytes ? most : space.bytes;
    }
    if (run && cached) step->cache_version = step->state->weights_version;
    step->workspace_bytes = most;
    if (run && step->backward && step->grad_in[2].data) gpunn__conv_bias_gradient(cpu, step);
    return GPUNN_OK;
}

/* A convolution of images with channels last by the kernels for planes: copies of x, the residual and y. */
static GPUNN__STATUS gpunn__conv_by_planes(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action,
                                           const gpunn__conv *v)
{
    const bool       run = action != GPUNN__PREPARE;
    gpunn_value      in[3] = {step->in[0], step->in[1], step->in[2]};
    gpunn_step       planes = *step;
    gpunn_step_fused fused = *step->fused;
    gpunn__space     space = {run ? (float *)step->workspace : NULL, 0};
    float           *x = gpunn__take(&space, in[0].count), *y = gpunn__take(&space, step->out.count);
    float           *residual = step->fused->residual.data ? gpunn__take(&space, step->out.count) : NULL;
    planes.in = in;
    planes.fused = &fused;
    fused.activation = NULL;
    in[0].channels_last = planes.out.channels_last = fused.residual.channels_last = false;
    if (run) {
        if (step->in[0].channels_last)
            gpunn__copy_images(&in[0], (const float *)in[0].data, x, true);
        else
            x = (float *)in[0].data;
        if (residual)
            gpunn__copy_images(&step->out, (const float *)step->fused->residual.data, residual, true);
        in[0].data = x, planes.out.data = y, fused.residual.data = residual;
        planes.workspace = (char *)step->workspace + space.bytes;
    }
    const gpunn_status status = gpunn__cpu_conv(cpu, &planes, action);
    step->cache_bytes = planes.cache_bytes, step->cache_version = planes.cache_version;
    if (run) {
        gpunn__copy_images(&step->out, y, (float *)step->out.data, false);
        gpunn__conv_activate(v, (float *)step->out.data, step->out.count);
    } else
        step->workspace_bytes = space.bytes + planes.workspace_bytes;
    return status;
}

/* Whether conv1d has one window, as a convolution with states that gets one element at a time: its weight has
 * the layout of a linear layer's. */
static bool gpunn__conv_is_row(const gpunn_step *step)
{
    const gpunn_value *x = &step->in[0];
    return step->out.count == step->out.dim[1] && step->attr->groups == 1 && step->attr->padding[0] == 0 &&
           x->dim[2] == (step->attr->kernel[0] - 1) * step->attr->dilation[0] + 1 && gpunn__fits_row(step);
}

/* workspace: the window's elements, if dilation spreads them. */
static GPUNN__STATUS gpunn__conv_row(gpunn_step *step, gpunn__action action)
{
    const int64_t kernel = step->attr->kernel[0], dilation = step->attr->dilation[0],
                  channels = step->in[0].dim[1], length = step->in[0].dim[2];
    const float *x = (const float *)step->in[0].data;
    float       *row = (float *)step->workspace;
    if (action == GPUNN__PREPARE) {
        gpunn__prepare_row(step, dilation > 1 ? channels * kernel : 0);
        return GPUNN_OK;
    }
    for (int64_t c = 0; c < channels && dilation > 1; c++)
        for (int64_t k = 0; k < kernel; k++) row[c * kernel + k] = x[c * length + k * dilation];
    gpunn__run_row(step, dilation > 1 ? row : x);
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cpu_conv1d(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__conv_is_row(step) ? gpunn__conv_row(step, action) : gpunn__cpu_conv(cpu, step, action);
}

#define GPUNN__X(name)                                                                         \
    GPUNN__INTERNAL gpunn_status name(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action) \
    {                                                                                          \
        return gpunn__cpu_conv(cpu, step, action);                                             \
    }
GPUNN__X(gpunn__cpu_conv2d)
GPUNN__X(gpunn__cpu_conv3d)
GPUNN__X(gpunn__cpu_conv_transpose1d)
GPUNN__X(gpunn__cpu_conv_transpose2d)
GPUNN__X(gpunn__cpu_conv_transpose3d)
#undef GPUNN__X
#undef GPUNN__WINOGRAD_STRIP
