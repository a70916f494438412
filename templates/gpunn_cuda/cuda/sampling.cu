#include "base/values.h"
#include "cuda/indexing.h"

/* ==== >>cuda/sampling ==================================================================================== *
 * grid_sample, roi_align, affine_grid, hash_grid_encoding and interpolate, as in gpunn.h's >>cpu/sampling,
 * with one thread per point.
 * Points that touch the same cell add to its gradient in any order. To stay reproducible they add integers:
 * each term is rounded to a multiple of a power of two. Let P be the number of points of a sample. The power
 * is so small that P terms as large as the largest gradient of y just fit 63 bits. For 192^3 points it is
 * 2^-38 of the largest, finer than an F32 sum of such terms. Rows of a hash grid are summed the same way. */
typedef struct gpunn__exact {
    unsigned long long *sums;    /* [count] */
    float              *largest; /* [blocks]: the largest |dy| that each block found; NaN wins */
    int                 blocks;
    int64_t             count, terms, dy_count; /* terms: most terms of one sum */
    const void         *dy;
    gpunn_dtype         dy_dtype;
} gpunn__exact;

typedef struct gpunn__sampling {
    int                channels, size[3];      /* size: of x along x, y and z */
    int64_t            samples, cells, points; /* cells, points: per sample and channel */
    gpunn_grid_mode    mode;
    gpunn_grid_padding padding;
    bool               align_corners, add_x, add_grid;
    const void        *x, *grid, *dy;
    void              *y, *dx, *dgrid;
    gpunn_dtype        x_dtype, grid_dtype, y_dtype;
    gpunn__exact       exact; /* for the gradient of x */
} gpunn__sampling;

/* one point along one axis: two cells, their weights and the weights' derivatives */
typedef struct gpunn__cell_pair {
    int   cell[2];
    float weight[2], derivative[2];
    bool  inside;
} gpunn__cell_pair;

__device__ __forceinline__ gpunn__cell_pair gpunn__find_place(const gpunn__sampling &s, float coordinate,
                                                              int size)
{
    bool  zeros = s.padding == GPUNN_GRID_ZEROS;
    float span = (float)(s.align_corners ? size - 1 : size), shift = s.align_corners ? 0 : 0.5f;
    float low = zeros ? -2.0f : 0.0f, high = (float)(zeros ? size + 1 : size - 1);
    float at = (coordinate + 1) / 2 * span - shift, derivative = span / 2;
    if (s.padding == GPUNN_GRID_REFLECTION) {
        float away = fabsf(at + shift), times = floorf(away / span), rest = away - times * span;
        bool  odd = times - 2 * floorf(times / 2) != 0;
        if ((at < -shift) != odd) derivative = -derivative;
        at = (odd ? span - rest : rest) - shift;
    }
    if (!(at > low && at < high)) derivative = 0; /* no gradient at a border */
    at = at > low ? at : low;                     /* NaN becomes low */
    at = at < high ? at : high;
    bool             nearest = s.mode == GPUNN_GRID_NEAREST;
    int              cell = (int)(nearest ? rintf(at) : floorf(at)), next = cell + 1;
    float            part = nearest ? 0 : at - (float)cell;
    bool             has = cell >= 0 && cell < size, has_next = !nearest && next >= 0 && next < size;
    gpunn__cell_pair p;
    p.inside = has || has_next;
    const int other = has_next ? next : 0;
    p.cell[0] = has ? cell : other;
    p.cell[1] = has_next ? next : p.cell[0];
    p.weight[0] = has ? 1 - part : 0;
    p.weight[1] = has_next ? part : 0;
    p.derivative[0] = has ? -derivative : 0;
    p.derivative[1] = has_next ? derivative : 0;
    return p;
}

/* The cells of a point along x, y and z. point counts through all samples. Returns false if the point is
 * outside. */
template <int AXES>
__device__ __forceinline__ bool gpunn__find_places(const gpunn__sampling &s, int64_t point,
                                                   gpunn__cell_pair place[AXES])
{
    bool inside = true;
#pragma unroll
    for (int k = 0; k < AXES; k++) {
        place[k] = gpunn__find_place(s, gpunn__load(s.grid, s.grid_dtype, point * AXES + k), s.size[k]);
        inside = inside && place[k].inside;
    }
    return inside;
}

/* The index in its channel of cell number `corner` (bit k: the second one along axis k), and its weight. */
template <int AXES>
__device__ __forceinline__ int gpunn__corner(const gpunn__sampling &s, const gpunn__cell_pair place[AXES],
                                             int corner, float *weight)
{
    int cell = 0;
    *weight = 1;
#pragma unroll
    for (int k = AXES - 1; k >= 0; k--) {
        int which = corner >> k & 1;
        cell = cell * s.size[k] + place[k].cell[which];
        *weight *= place[k].weight[which];
    }
    return cell;
}

/* nearest uses only the first corner. */
__device__ __forceinline__ bool gpunn__takes_corner(const gpunn__sampling &s, int corner)
{
    return corner == 0 || s.mode == GPUNN_GRID_BILINEAR;
}

template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__sample_kernel(const gpunn__sampling s)
{
    GPUNN__FOLLOW();
    int64_t point = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; point < s.samples * s.points; point += step) {
        gpunn__cell_pair place[AXES];
        bool             inside = gpunn__find_places<AXES>(s, point, place);
        int64_t          sample = point / s.points;
        for (int c = (int)blockIdx.y; c < s.channels; c += (int)gridDim.y) {
            int64_t channel = sample * s.channels + c;
            float   sum = 0, weight;
#pragma unroll
            for (int corner = 0; corner < 1 << AXES; corner++) {
                if (!gpunn__takes_corner(s, corner)) continue;
                int cell = gpunn__corner<AXES>(s, place, corner, &weight);
                sum += weight * gpunn__load(s.x, s.x_dtype, channel * s.cells + cell);
            }
            gpunn__store(s.y, s.y_dtype, channel * s.points + point - sample * s.points, inside ? sum : 0);
        }
    }
}

/* The gradient of the grid. */
template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__sample_dgrid_kernel(const gpunn__sampling s)
{
    GPUNN__FOLLOW();
    int64_t point = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; point < s.samples * s.points; point += step) {
        gpunn__cell_pair place[AXES];
        bool             inside = gpunn__find_places<AXES>(s, point, place) && s.mode == GPUNN_GRID_BILINEAR;
        int64_t          sample = point / s.points;
        float            sum[AXES] = {0};
        for (int c = 0; c < s.channels && inside; c++) {
            int64_t channel = sample * s.channels + c;
            float   g = gpunn__load(s.dy, s.y_dtype, channel * s.points + point - sample * s.points);
#pragma unroll
            for (int corner = 0; corner < 1 << AXES; corner++) {
                float unused;
                int   cell = gpunn__corner<AXES>(s, place, corner, &unused);
                float v = g * gpunn__load(s.x, s.x_dtype, channel * s.cells + cell);
#pragma unroll
                for (int k = 0; k < AXES; k++) {
                    float derivative = place[k].derivative[corner >> k & 1];
#pragma unroll
                    for (int j = 0; j < AXES; j++)
                        if (j != k) derivative *= place[j].weight[corner >> j & 1];
                    sum[k] += v * derivative;
                }
            }
        }
#pragma unroll
        for (int k = 0; k < AXES; k++) {
            int64_t i = point * AXES + k;
            gpunn__store(s.dgrid, s.grid_dtype, i,
                         s.add_grid ? gpunn__load(s.dgrid, s.grid_dtype, i) + sum[k] : sum[k]);
        }
    }
}

/* Clears the sums and finds the largest gradient. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__exact_clear_kernel(const gpunn__exact e)
{
    GPUNN__FOLLOW();
    int64_t first = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    float   largest = 0;
    for (int64_t i = first; i < e.count; i += step) e.sums[i] = 0;
    for (int64_t i = first; i < e.dy_count; i += step)
        largest = gpunn__larger()(fabsf(gpunn__load(e.dy, e.dy_dtype, i)), largest);
    largest = gpunn__block_reduce(largest, gpunn__larger());
    if (threadIdx.x == 0) e.largest[blockIdx.x] = largest;
}

/* The factor that turns gradients into integers, as two powers of two, since their product may exceed F32's
 * range. NaN: a gradient is not finite. All threads of the block must call it. */
__device__ __forceinline__ float2 gpunn__exact_scale(const gpunn__exact &e)
{
    float largest = 0;
    for (int i = (int)threadIdx.x; i < e.blocks; i += (int)blockDim.x)
        largest = gpunn__larger()(e.largest[i], largest);
    largest = gpunn__block_reduce(largest, gpunn__larger());
    int bits = 62;
    while (e.terms >> (62 - bits) > 0) bits--; /* terms < 2^(62 - bits) */
    const int power = bits + 126 - (int)(__float_as_uint(largest) >> 23);
    return largest < INFINITY ? make_float2(ldexpf(1, power / 2), ldexpf(1, power - power / 2))
                              : make_float2(NAN, NAN);
}

/* Products with powers of two are exact in F32. Some GPUs do only two F64 operations per clock and
 * multiprocessor. There, F64 products would take twice as long as the conversion. */
__device__ __forceinline__ void gpunn__exact_add(const gpunn__exact &e, int64_t i, float term, float2 scale)
{
    (void)atomicAdd(&e.sums[i], (unsigned long long)llrintf(term * scale.x * scale.y));
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__exact_finish_kernel(const gpunn__exact e, void *to, gpunn_dtype dtype, bool add)
{
    GPUNN__FOLLOW();
    int64_t      i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    const float2 scale = gpunn__exact_scale(e);
    const double unit = 1 / ((double)scale.x * (double)scale.y);
    for (; i < e.count; i += step) {
        float sum = (float)((double)(long long)e.sums[i] * unit);
        gpunn__store(to, dtype, i, add ? gpunn__load(to, dtype, i) + sum : sum);
    }
}

/* The bytes of workspace for the sums; gpunn__exact_of places them in it. */
static size_t gpunn__exact_bytes(const gpunn__cuda *cuda, int64_t count)
{
    return (size_t)count * sizeof(unsigned long long) + (size_t)cuda->multiprocessors * 8 * sizeof(float);
}

static gpunn__exact gpunn__exact_of(const gpunn__cuda *cuda, const gpunn_step *step, int64_t count,
                                    int64_t terms)
{
    gpunn__exact e;
    e.sums = (unsigned long long *)step->workspace;
    e.largest = (float *)(void *)(e.sums + count);
    e.blocks = cuda->multiprocessors * 8;
    e.count = count;
    e.terms = terms;
    e.dy = step->grad_out.data;
    e.dy_dtype = step->grad_out.dtype;
    e.dy_count = step->grad_out.count;
    return e;
}

template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__sample_back_kernel(const gpunn__sampling s)
{
    GPUNN__FOLLOW();
    int64_t point = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    const float2 scale = gpunn__exact_scale(s.exact);
    if (scale.x != scale.x) return;
    for (; point < s.samples * s.points; point += step) {
        gpunn__cell_pair place[AXES];
        int64_t          sample = point / s.points;
        if (!gpunn__find_places<AXES>(s, point, place)) continue;
        for (int c = (int)blockIdx.y; c < s.channels; c += (int)gridDim.y) {
            int64_t channel = sample * s.channels + c;
            float   g = gpunn__load(s.dy, s.y_dtype, channel * s.points + point - sample * s.points);
#pragma unroll
            for (int corner = 0; corner < 1 << AXES; corner++) {
                float weight;
                int   cell = gpunn__corner<AXES>(s, place, corner, &weight);
                if (!gpunn__takes_corner(s, corner) || g * weight == 0) continue;
                gpunn__exact_add(s.exact, channel * s.cells + cell, g * weight, scale);
            }
        }
    }
}

/* Blocks for the points, and several rows of blocks for the channels if the points alone do not fill the
 * device. */
static dim3 gpunn__sample_blocks(const gpunn__cuda *cuda, const gpunn__sampling *s)
{
    dim3     grid(gpunn__blocks(cuda, s->samples * s->points, 1));
    unsigned rows = (unsigned)cuda->multiprocessors * 16 / grid.x + 1;
    grid.y = (unsigned)s->channels < rows ? (unsigned)s->channels : rows;
    return grid;
}

template <int AXES>
static gpunn_status gpunn__cuda_sample_grid(gpunn__cuda *cuda, const gpunn__sampling *s, gpunn__action action)
{
    dim3 grid = gpunn__sample_blocks(cuda, s);
    if (action == GPUNN__FORWARD)
        return GPUNN__LAUNCH(cuda, (gpunn__sample_kernel<AXES>), grid, GPUNN__THREADS, *s);
    if (s->dgrid)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, (gpunn__sample_dgrid_kernel<AXES>), grid.x, GPUNN__THREADS, *s));
    if (s->dx == NULL) return GPUNN_OK;
    GPUNN__TRY(
        GPUNN__LAUNCH(cuda, gpunn__exact_clear_kernel, (unsigned)s->exact.blocks, GPUNN__THREADS, s->exact));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, (gpunn__sample_back_kernel<AXES>), grid, GPUNN__THREADS, *s));
    return GPUNN__LAUNCH(cuda, gpunn__exact_finish_kernel, gpunn__blocks(cuda, s->exact.count, 4),
                         GPUNN__THREADS, s->exact, s->dx, s->x_dtype, s->add_x);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_grid_sample(gpunn__cuda *cuda, gpunn_step *step,
                                                     gpunn__action action)
{
    const gpunn_value *x = &step->in[0], *grid = &step->in[1],
                      *y = step->backward ? &step->grad_out : &step->out;
    gpunn__sampling s;
    memset(&s, 0, sizeof s);
    if (action == GPUNN__PREPARE) {
        if (step->backward && step->grad_in[0].data)
            step->workspace_bytes = gpunn__exact_bytes(cuda, x->count);
        return GPUNN_OK;
    }
    int axes = x->rank - 2;
    s.samples = x->dim[0];
    s.channels = (int)x->dim[1];
    for (int i = 0; i < 3; i++) s.size[i] = i < axes ? (int)x->dim[x->rank - 1 - i] : 1;
    s.cells = (int64_t)s.size[0] * s.size[1] * s.size[2];
    s.points = grid->count / (s.samples * axes);
    s.mode = (gpunn_grid_mode)step->attr->mode;
    s.padding = (gpunn_grid_padding)step->attr->padding_mode;
    s.align_corners = step->attr->align_corners;
    s.x = x->data;
    s.grid = grid->data;
    s.y_dtype = y->dtype;
    s.x_dtype = x->dtype;
    s.grid_dtype = grid->dtype;
    if (step->backward) {
        s.dy = y->data;
        s.dx = step->grad_in[0].data;
        s.dgrid = step->grad_in[1].data;
        s.add_x = step->accumulate[0];
        s.add_grid = step->accumulate[1];
        s.exact = gpunn__exact_of(cuda, step, x->count, s.points);
    } else
        s.y = y->data;
    return axes == 3 ? gpunn__cuda_sample_grid<3>(cuda, &s, action)
                     : gpunn__cuda_sample_grid<2>(cuda, &s, action);
}

/* ---- roi_align: a thread per value of the result ------------------------------------------------------- */

typedef struct gpunn__rois {
    gpunn__roi_shape shape;
    int64_t          count; /* number of results */
    const void      *x, *boxes, *dy;
    void            *y, *dx;
    gpunn_dtype      x_dtype, boxes_dtype, y_dtype;
    bool             add;
    gpunn__exact     exact; /* for the gradient of x */
} gpunn__rois;

typedef struct gpunn__roi_bin {
    gpunn__roi_samples y, x;
    int64_t            first; /* first cell of its channel; -1: the box belongs to no sample */
} gpunn__roi_bin;

__device__ __forceinline__ gpunn__roi_bin gpunn__roi_bin_of(const gpunn__rois &r, int64_t i)
{
    const gpunn__roi_shape &s = r.shape;
    const int64_t           row = gpunn__quotient(i, s.bins[1]), plane = gpunn__quotient(row, s.bins[0]);
    const int64_t           box = gpunn__quotient(plane, s.channels);
    float                   at[5];
#pragma unroll
    for (int k = 0; k < 5; k++) at[k] = gpunn__load(r.boxes, r.boxes_dtype, 5 * box + k);
    gpunn__roi_bin b;
    b.y = gpunn__roi_samples_of(&s, 0, at[2], at[4], (int)(row - plane * s.bins[0]));
    b.x = gpunn__roi_samples_of(&s, 1, at[1], at[3], (int)(i - row * s.bins[1]));
    const bool there = at[0] >= 0 && at[0] < (float)s.samples;
    b.first = there ? ((int64_t)at[0] * s.channels + plane - box * s.channels) * s.size[0] * s.size[1] : -1;
    return b;
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__roi_kernel(const gpunn__rois r)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; i < r.count; i += step) {
        const gpunn__roi_bin b = gpunn__roi_bin_of(r, i);
        float                sum = b.first < 0 ? NAN : 0;
        for (int j = b.y.begin; j < b.y.end && b.first >= 0; j++) {
            int   row[2], column[2];
            float up[2], left[2];
            if (!gpunn__roi_find(&b.y, j, row, up)) continue;
            const int64_t at[2] = {b.first + (int64_t)row[0] * b.x.size,
                                   b.first + (int64_t)row[1] * b.x.size};
            for (int k = b.x.begin; k < b.x.end; k++) {
                if (!gpunn__roi_find(&b.x, k, column, left)) continue;
#pragma unroll
                for (int corner = 0; corner < 4; corner++)
                    sum += up[corner >> 1] * left[corner & 1] *
                           gpunn__load(r.x, r.x_dtype, at[corner >> 1] + column[corner & 1]);
            }
        }
        gpunn__store(r.y, r.y_dtype, i, sum / gpunn__roi_count(&b.y, &b.x));
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__roi_back_kernel(const gpunn__rois r)
{
    GPUNN__FOLLOW();
    int64_t      i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    const float2 scale = gpunn__exact_scale(r.exact);
    if (scale.x != scale.x) return;
    for (; i < r.count; i += step) {
        const gpunn__roi_bin b = gpunn__roi_bin_of(r, i);
        const float          g = gpunn__load(r.dy, r.y_dtype, i) / gpunn__roi_count(&b.y, &b.x);
        for (int j = b.y.begin; j < b.y.end && b.first >= 0 && g != 0; j++) {
            int   row[2], column[2];
            float up[2], left[2];
            if (!gpunn__roi_find(&b.y, j, row, up)) continue;
            const int64_t at[2] = {b.first + (int64_t)row[0] * b.x.size,
                                   b.first + (int64_t)row[1] * b.x.size};
            for (int k = b.x.begin; k < b.x.end; k++) {
                if (!gpunn__roi_find(&b.x, k, column, left)) continue;
#pragma unroll
                for (int corner = 0; corner < 4; corner++) {
                    const float term = g * (up[corner >> 1] * left[corner & 1]);
                    if (term != 0)
                        gpunn__exact_add(r.exact, at[corner >> 1] + column[corner & 1], term, scale);
                }
            }
        }
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_roi_align(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *x = &step->in[0], *boxes = &step->in[1],
                      *y = step->backward ? &step->grad_out : &step->out;
    gpunn__rois r;
    if (action == GPUNN__PREPARE) {
        if (step->backward && step->grad_in[0].data)
            step->workspace_bytes = gpunn__exact_bytes(cuda, x->count);
        return GPUNN_OK;
    }
    memset(&r, 0, sizeof r);
    r.shape = gpunn__roi_shape_of(step->attr, x, boxes);
    r.count = y->count;
    r.x = x->data;
    r.boxes = boxes->data;
    r.x_dtype = x->dtype;
    r.boxes_dtype = boxes->dtype;
    r.y_dtype = y->dtype;
    const unsigned blocks = gpunn__blocks(cuda, r.count, 1);
    if (!step->backward) {
        r.y = y->data;
        return GPUNN__LAUNCH(cuda, gpunn__roi_kernel, blocks, GPUNN__THREADS, r);
    }
    r.dy = y->data;
    r.dx = step->grad_in[0].data;
    r.add = step->accumulate[0];
    r.exact = gpunn__exact_of(cuda, step, x->count, boxes->dim[0] * r.shape.bins[0] * r.shape.bins[1]);
    GPUNN__TRY(
        GPUNN__LAUNCH(cuda, gpunn__exact_clear_kernel, (unsigned)r.exact.blocks, GPUNN__THREADS, r.exact));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__roi_back_kernel, blocks, GPUNN__THREADS, r));
    return GPUNN__LAUNCH(cuda, gpunn__exact_finish_kernel, gpunn__blocks(cuda, r.exact.count, 4),
                         GPUNN__THREADS, r.exact, r.dx, r.x_dtype, r.add);
}

/* ---- hash_grid_encoding -------------------------------------------------------------------------------- */

typedef struct gpunn__hashing {
    gpunn__hash_grid grid;
    int64_t          points;
    const void      *x;
    void            *dx;
    gpunn_dtype      x_dtype;
    const float     *table, *dy;
    float           *y;
    bool             add_x;
    gpunn__exact     exact; /* for the gradient of the table */
    /* for its sparse gradient: row and terms of each corner of each level of each point */
    int64_t *rows;
    float   *terms;
} gpunn__hashing;

template <int AXES>
__device__ __forceinline__ void gpunn__hash_point(const gpunn__hashing &h, int64_t point, float x[AXES])
{
#pragma unroll
    for (int k = 0; k < AXES; k++) x[k] = gpunn__load(h.x, h.x_dtype, point * AXES + k);
}

/* A thread computes one level of a point. */
template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__hash_kernel(const gpunn__hashing h)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; i < h.points * h.grid.levels; i += step) {
        int64_t point = gpunn__quotient(i, h.grid.levels);
        float   x[AXES];
        gpunn__hash_point<AXES>(h, point, x);
        gpunn__hash_features(AXES, &h.grid.level[i - point * h.grid.levels], x, h.table, h.grid.features,
                             h.y + i * h.grid.features);
    }
}

/* The gradient of x. A thread computes one point. */
template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__hash_dx_kernel(const gpunn__hashing h)
{
    GPUNN__FOLLOW();
    int64_t point = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; point < h.points; point += step) {
        float        x[AXES], derivative[AXES] = {};
        const float *dy = h.dy + point * h.grid.levels * h.grid.features;
        gpunn__hash_point<AXES>(h, point, x);
        for (int l = 0; l < h.grid.levels; l++, dy += h.grid.features)
            gpunn__hash_dx(AXES, &h.grid.level[l], x, h.table, h.grid.features, dy, derivative);
#pragma unroll
        for (int k = 0; k < AXES; k++) {
            int64_t i = point * AXES + k;
            gpunn__store(h.dx, h.x_dtype, i,
                         h.add_x ? gpunn__load(h.dx, h.x_dtype, i) + derivative[k] : derivative[k]);
        }
    }
}

template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__hash_back_kernel(const gpunn__hashing h)
{
    GPUNN__FOLLOW();
    int64_t      i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    const float2 scale = gpunn__exact_scale(h.exact);
    if (scale.x != scale.x) return;
    for (; i < h.points * h.grid.levels; i += step) {
        int64_t                  point = gpunn__quotient(i, h.grid.levels);
        const gpunn__hash_level *level = &h.grid.level[i - point * h.grid.levels];
        float                    x[AXES];
        gpunn__hash_point<AXES>(h, point, x);
        const gpunn__hash_place place = gpunn__hash_find(AXES, level, x);
#pragma unroll
        for (int corner = 0; corner < 1 << AXES; corner++) {
            float   weight = gpunn__hash_weight(AXES, &place, corner, -1);
            int64_t row = gpunn__hash_row(AXES, level, &place, corner) * h.grid.features;
#pragma unroll 1
            for (int f = 0; f < h.grid.features; f++)
                gpunn__exact_add(h.exact, row + f, weight * h.dy[i * h.grid.features + f], scale);
        }
    }
}

/* What the corners of a level add to their rows. A thread takes one level of a point. */
template <int AXES>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__hash_terms_kernel(const gpunn__hashing h)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; i < h.points * h.grid.levels; i += step) {
        int64_t                  point = gpunn__quotient(i, h.grid.levels);
        const gpunn__hash_level *level = &h.grid.level[i - point * h.grid.levels];
        float                    x[AXES];
        gpunn__hash_point<AXES>(h, point, x);
        const gpunn__hash_place place = gpunn__hash_find(AXES, level, x);
#pragma unroll
        for (int corner = 0; corner < 1 << AXES; corner++) {
            float   weight = gpunn__hash_weight(AXES, &place, corner, -1);
            int64_t at = (i << AXES) + corner;
            h.rows[at] = gpunn__hash_row(AXES, level, &place, corner);
#pragma unroll 1
            for (int f = 0; f < h.grid.features; f++)
                h.terms[at * h.grid.features + f] = weight * h.dy[i * h.grid.features + f];
        }
    }
}

template <int AXES>
static gpunn_status gpunn__hash_sparse_back(gpunn__cuda *cuda, gpunn_step *step, gpunn__hashing *h,
                                            bool prepares)
{
    gpunn__arena  arena = {(char *)step->workspace, 0};
    const int64_t levels = h->points * h->grid.levels, count = levels << AXES;
    h->rows = (int64_t *)gpunn__arena_take(&arena, (size_t)count * sizeof *h->rows);
    h->terms = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, count * h->grid.features));
    if (!prepares)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__hash_terms_kernel<AXES>, gpunn__blocks(cuda, levels, 1),
                                 GPUNN__THREADS, *h));
    return gpunn__cuda_add_rows(cuda, step, h->rows, h->terms, count, &arena, prepares);
}

template <int AXES>
static gpunn_status gpunn__hash_back(gpunn__cuda *cuda, gpunn_step *step, gpunn__hashing *h)
{
    gpunn_value *table = &step->grad_in[1];
    unsigned     blocks = gpunn__blocks(cuda, h->points * h->grid.levels, 1);
    if (h->dx)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__hash_dx_kernel<AXES>, gpunn__blocks(cuda, h->points, 1),
                                 GPUNN__THREADS, *h));
    if (table->data == NULL) return GPUNN_OK;
    if (step->attr->sparse) return gpunn__hash_sparse_back<AXES>(cuda, step, h, false);
    GPUNN__TRY(
        GPUNN__LAUNCH(cuda, gpunn__exact_clear_kernel, (unsigned)h->exact.blocks, GPUNN__THREADS, h->exact));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__hash_back_kernel<AXES>, blocks, GPUNN__THREADS, *h));
    return GPUNN__LAUNCH(cuda, gpunn__exact_finish_kernel, gpunn__blocks(cuda, h->exact.count, 4),
                         GPUNN__THREADS, h->exact, table->data, table->dtype, step->accumulate[1]);
}

template <int AXES> static gpunn_status gpunn__hash_forward(gpunn__cuda *cuda, const gpunn__hashing *h)
{
    return GPUNN__LAUNCH(cuda, gpunn__hash_kernel<AXES>, gpunn__blocks(cuda, h->points * h->grid.levels, 1),
                         GPUNN__THREADS, *h);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_hash_grid_encoding(gpunn__cuda *cuda, gpunn_step *step,
                                                            gpunn__action action)
{
    const gpunn_value *x = &step->in[0], *weight = &step->in[1];
    int                axes = (int)x->dim[x->rank - 1];
    gpunn__hashing     h;
    memset(&h, 0, sizeof h);
    (void)gpunn__hash_grid_of(step->attr, axes, (int)weight->dim[1], &h.grid);
    h.points = x->count / axes;
    if (action == GPUNN__PREPARE) {
        if (!step->backward || step->grad_in[1].data == NULL) return GPUNN_OK;
        if (step->attr->sparse)
            return axes == 3 ? gpunn__hash_sparse_back<3>(cuda, step, &h, true)
                             : gpunn__hash_sparse_back<2>(cuda, step, &h, true);
        step->workspace_bytes = gpunn__exact_bytes(cuda, weight->count);
        return GPUNN_OK;
    }
    h.x = x->data;
    h.x_dtype = x->dtype;
    h.table = (const float *)weight->data;
    if (action == GPUNN__FORWARD) {
        h.y = (float *)step->out.data;
        return axes == 3 ? gpunn__hash_forward<3>(cuda, &h) : gpunn__hash_forward<2>(cuda, &h);
    }
    h.dy = (const float *)step->grad_out.data;
    h.dx = step->grad_in[0].data;
    h.add_x = step->accumulate[0];
    if (!step->attr->sparse) h.exact = gpunn__exact_of(cuda, step, weight->count, h.points << axes);
    return axes == 3 ? gpunn__hash_back<3>(cuda, step, &h) : gpunn__hash_back<2>(cuda, step, &h);
}

/* ---- affine_grid: grid[n][z][y][x][k] = theta[n][k] . (x, y, z, 1) -------------------------------------- *
 * In the backward pass each block sums a part of a
 * sample's points. A second launch adds up the parts in order. */

typedef struct gpunn__affine_points {
    int         axes, size[3];         /* size: along x, y and z; 1 if there is no z */
    int64_t     samples, points, each; /* points: per sample; each: per part */
    int         parts;
    bool        align_corners, accumulate;
    const void *theta, *dgrid;
    void       *grid, *dtheta;
    gpunn_dtype theta_dtype, grid_dtype;
    float      *sums; /* [samples][parts][3][4] */
} gpunn__affine_points;

/* Computes (x, y, z, 1) of point i of its sample. */
__device__ __forceinline__ void gpunn__affine_at(const gpunn__affine_points &a, int64_t i, float at[4])
{
    int64_t row = i / a.size[0], slice = row / a.size[1];
    at[0] = gpunn__affine_coordinate((int)(i - row * a.size[0]), a.size[0], a.align_corners);
    at[1] = gpunn__affine_coordinate((int)(row - slice * a.size[1]), a.size[1], a.align_corners);
    at[2] = gpunn__affine_coordinate((int)slice, a.size[2], a.align_corners);
    at[3] = 1;
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__affine_kernel(const gpunn__affine_points a)
{
    GPUNN__FOLLOW();
    int64_t point = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; point < a.samples * a.points; point += step) {
        int64_t sample = point / a.points, row = sample * a.axes * (a.axes + 1);
        float   at[4];
        gpunn__affine_at(a, point - sample * a.points, at);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            if (k >= a.axes) continue;
            float sum = gpunn__load(a.theta, a.theta_dtype, row + k * (a.axes + 1) + a.axes);
#pragma unroll
            for (int j = 0; j < 3; j++)
                if (j < a.axes)
                    sum += gpunn__load(a.theta, a.theta_dtype, row + k * (a.axes + 1) + j) * at[j];
            gpunn__store(a.grid, a.grid_dtype, point * a.axes + k, sum);
        }
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__affine_back_kernel(const gpunn__affine_points a)
{
    GPUNN__FOLLOW();
    for (int64_t part = blockIdx.x; part < a.samples * a.parts; part += gridDim.x) {
        int64_t sample = part / a.parts, first = (part - sample * a.parts) * a.each;
        int64_t end = first + a.each < a.points ? first + a.each : a.points;
        float   sum[3][4] = {{0}};
        for (int64_t i = first + threadIdx.x; i < end; i += blockDim.x) {
            float at[4];
            gpunn__affine_at(a, i, at);
#pragma unroll
            for (int k = 0; k < 3; k++) {
                float g = k < a.axes
                              ? gpunn__load(a.dgrid, a.grid_dtype, (sample * a.points + i) * a.axes + k)
                              : 0;
#pragma unroll
                for (int j = 0; j < 4; j++) sum[k][j] += g * at[j];
            }
        }
#pragma unroll
        for (int i = 0; i < 12; i++) {
            float whole = gpunn__block_reduce(sum[i / 4][i % 4], gpunn__add());
            if (threadIdx.x == 0) a.sums[part * 12 + i] = whole;
        }
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__affine_finish_kernel(const gpunn__affine_points a)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    int     columns = a.axes + 1;
    for (; i < a.samples * a.axes * columns; i += step) {
        int64_t sample = i / (a.axes * columns);
        int     at = (int)(i - sample * a.axes * columns), k = at / columns, j = at - k * columns;
        double  sum = 0;
        for (int part = 0; part < a.parts; part++)
            sum += a.sums[(sample * a.parts + part) * 12 + k * 4 + (j == a.axes ? 3 : j)];
        gpunn__store(a.dtheta, a.theta_dtype, i,
                     a.accumulate ? gpunn__load(a.dtheta, a.theta_dtype, i) + (float)sum : (float)sum);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_affine_grid(gpunn__cuda *cuda, gpunn_step *step,
                                                     gpunn__action action)
{
    const gpunn_value   *theta = &step->in[0], *grid = step->backward ? &step->grad_out : &step->out;
    gpunn__affine_points a;
    memset(&a, 0, sizeof a);
    a.axes = grid->rank - 2;
    a.samples = grid->dim[0];
    a.points = grid->count / (a.samples * a.axes);
    int64_t parts = a.points / 4096 + 1, most = (int64_t)cuda->multiprocessors * 4;
    a.parts = (int)(parts < most ? parts : most);
    a.each = (a.points + a.parts - 1) / a.parts;
    if (action == GPUNN__PREPARE) {
        for (int i = 1; i <= a.axes; i++)
            if (grid->dim[i] > INT32_MAX)
                return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                        "a size is larger than 2^31 - 1; use smaller sizes");
        if (step->backward) step->workspace_bytes = (size_t)(a.samples * a.parts * 12) * sizeof *a.sums;
        return GPUNN_OK;
    }
    for (int i = 0; i < 3; i++) a.size[i] = i < a.axes ? (int)grid->dim[a.axes - i] : 1;
    a.align_corners = step->attr->align_corners;
    a.theta_dtype = theta->dtype;
    a.grid_dtype = grid->dtype;
    if (action == GPUNN__FORWARD) {
        a.theta = theta->data;
        a.grid = grid->data;
        return GPUNN__LAUNCH(cuda, gpunn__affine_kernel, gpunn__blocks(cuda, a.samples * a.points, 1),
                             GPUNN__THREADS, a);
    }
    a.dgrid = grid->data;
    a.dtheta = step->grad_in[0].data;
    a.accumulate = step->accumulate[0];
    a.sums = (float *)step->workspace;
    int64_t blocks = a.samples * a.parts, limit = (int64_t)cuda->multiprocessors * 16;
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__affine_back_kernel, (unsigned)(blocks < limit ? blocks : limit),
                             GPUNN__THREADS, a));
    return GPUNN__LAUNCH(cuda, gpunn__affine_finish_kernel, gpunn__blocks(cuda, theta->count, 1),
                         GPUNN__THREADS, a);
}

/* ---- interpolate, as in gpunn.h's >>cpu/sampling: a thread per output; backward a thread or block per cell
 * -- */

typedef struct gpunn__resize_axis {
    int   in, out;
    float ratio;
    int   taps; /* cells that contribute to an output: nearest 1, linear 2, cubic 4 */
} gpunn__resize_axis;

typedef struct gpunn__resize {
    int64_t            cells, results;
    gpunn__resize_axis z, y, x;
    int                mode;
    bool               align_corners, accumulate;
    const void        *from; /* x, or the gradient of y */
    void              *to;   /* y, or the gradient of x */
    gpunn_dtype        from_dtype, to_dtype;
} gpunn__resize;

/* The cell at or before the position of output o. In cubic mode it is -1 before the first cell. *share
 * receives the distance of the output from it. */
__device__ __forceinline__ int gpunn__resize_first(const gpunn__resize &r, const gpunn__resize_axis &a, int o,
                                                   float *share)
{
    bool  centre = r.mode != GPUNN_INTERPOLATE_NEAREST && !r.align_corners;
    float at = a.ratio * ((float)o + (centre ? 0.5f : 0.0f));
    if (r.mode == GPUNN_INTERPOLATE_LINEAR && centre) at = fmaxf(fmaf(a.ratio, (float)o + 0.5f, -0.5f), 0.0f);
    if (r.mode == GPUNN_INTERPOLATE_LINEAR && a.in == a.out) at = (float)o;
    if (r.mode == GPUNN_INTERPOLATE_CUBIC && centre) at = fmaf(a.ratio, (float)o + 0.5f, -0.5f);
    int first = at < (float)(a.in - 1) ? (int)floorf(at) : a.in - 1;
    *share = fminf(at - (float)first, 1.0f);
    return first;
}

/* The cell of a tap, clamped to the ends of the axis. The next function gives its weight. */
__device__ __forceinline__ int gpunn__resize_cell(const gpunn__resize_axis &a, int first, int tap)
{
    return max(0, min(first - (a.taps - 1) / 2 + tap, a.in - 1));
}

__device__ __forceinline__ float gpunn__resize_tap(const gpunn__resize_axis &a, float share, int tap)
{
    if (a.taps == 4) return gpunn__cubic(share + 1 - (float)tap);
    if (a.taps == 1) return 1;
    return tap ? share : 1 - share;
}

/* The first output whose first cell is i or later. */
__device__ __forceinline__ int gpunn__resize_begin(const gpunn__resize &r, const gpunn__resize_axis &a, int i)
{
    if (i < 0 || (i == 0 && a.taps < 4)) return 0;
    float shift = r.mode == GPUNN_INTERPOLATE_LINEAR || r.mode == GPUNN_INTERPOLATE_CUBIC ? 0.5f : 0.0f,
          share;
    float guess = r.mode == GPUNN_INTERPOLATE_NEAREST || r.align_corners
                      ? (float)i / a.ratio
                      : ((float)i + shift) / a.ratio - 0.5f;
    int   o = guess < (float)a.out ? max((int)guess, 0) : a.out; /* infinite if the ratio is 0 */
    while (o > 0 && gpunn__resize_first(r, a, o - 1, &share) >= i) o--;
    while (o < a.out && gpunn__resize_first(r, a, o, &share) < i) o++;
    return o;
}

/* The number of outputs to which cell i contributes, from *begin on. */
__device__ __forceinline__ int gpunn__resize_seen(const gpunn__resize &r, const gpunn__resize_axis &a, int i,
                                                  int *begin)
{
    *begin = gpunn__resize_begin(r, a, i - a.taps / 2);
    return gpunn__resize_begin(r, a, min(i + 1 + a.taps / 4, a.in)) - *begin;
}

/* The weight of cell i in output o, to which it contributes. */
__device__ __forceinline__ float gpunn__resize_weight(const gpunn__resize &r, const gpunn__resize_axis &a,
                                                      int o, int i)
{
    float share, sum = 0;
    int   first = gpunn__resize_first(r, a, o, &share);
    if (a.taps < 4 && first < i) return share;
    if (a.taps < 4) return i == a.in - 1 || a.taps == 1 ? 1 : 1 - share;
    for (int tap = 0; tap < 4; tap++)
        sum += gpunn__resize_cell(a, first, tap) == i ? gpunn__resize_tap(a, share, tap) : 0;
    return sum;
}

static __global__ void __launch_bounds__(GPUNN__THREADS, 4) gpunn__resize_kernel(const gpunn__resize r)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    int     size = r.z.out * r.y.out * r.x.out;
    for (; i < r.results; i += step) {
        int64_t volume = i / size;
        int     index = (int)(i - volume * size), line = index / r.x.out;
        int     ox = index - line * r.x.out, oz = line / r.y.out, oy = line - oz * r.y.out;
        float   share_z, share_y, share_x, sum = 0;
        int     z = gpunn__resize_first(r, r.z, oz, &share_z), y = gpunn__resize_first(r, r.y, oy, &share_y);
        int     x = gpunn__resize_first(r, r.x, ox, &share_x);
        for (int k = 0; k < r.z.taps; k++)
            for (int j = 0; j < r.y.taps; j++) {
                int64_t plane = volume * r.z.in + gpunn__resize_cell(r.z, z, k);
                int64_t row = (plane * r.y.in + gpunn__resize_cell(r.y, y, j)) * r.x.in;
                float   v = 0;
                for (int tap = 0; tap < r.x.taps; tap++) {
                    float cell = gpunn__load(r.from, r.from_dtype, row + gpunn__resize_cell(r.x, x, tap));
                    v += gpunn__resize_tap(r.x, share_x, tap) * cell;
                }
                sum += v * gpunn__resize_tap(r.y, share_y, j) * gpunn__resize_tap(r.z, share_z, k);
            }
        gpunn__store(r.to, r.to_dtype, i, sum);
    }
}

/* block: a whole block computes one cell, to which many outputs contribute. Otherwise a thread does. */
template <bool block>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__resize_back_kernel(const gpunn__resize r)
{
    GPUNN__FOLLOW();
    int64_t i = block ? blockIdx.x : blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int64_t step = block ? gridDim.x : (int64_t)gridDim.x * blockDim.x;
    int     size = r.z.in * r.y.in * r.x.in;
    for (; i < r.cells; i += step) {
        int64_t volume = i / size;
        int     index = (int)(i - volume * size), line = index / r.x.in;
        int     x = index - line * r.x.in, z = line / r.y.in, y = line - z * r.y.in;
        int     oz, oy, ox, deep = gpunn__resize_seen(r, r.z, z, &oz);
        int     high = gpunn__resize_seen(r, r.y, y, &oy), wide = gpunn__resize_seen(r, r.x, x, &ox);
        float   sum = 0;
        for (int at = block ? (int)threadIdx.x : 0; at < deep * high * wide;
             at += block ? (int)blockDim.x : 1) {
            int   row = at / wide, column = ox + at - row * wide, slice = row / high;
            float weight = gpunn__resize_weight(r, r.z, oz + slice, z) *
                           gpunn__resize_weight(r, r.x, column, x);
            int64_t from = (volume * r.z.out + oz + slice) * r.y.out + oy + row - slice * high;
            weight *= gpunn__resize_weight(r, r.y, oy + row - slice * high, y);
            sum += weight * gpunn__load(r.from, r.from_dtype, from * r.x.out + column);
        }
        if (block) {
            sum = gpunn__block_reduce(sum, gpunn__add());
            if (threadIdx.x > 0) continue;
        }
        gpunn__store(r.to, r.to_dtype, i, r.accumulate ? gpunn__load(r.to, r.to_dtype, i) + sum : sum);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_interpolate(gpunn__cuda *cuda, gpunn_step *step,
                                                     gpunn__action action)
{
    const gpunn_value  *x = &step->in[0], *y = step->backward ? &step->grad_out : &step->out;
    const int64_t       most = (int64_t)1 << 30, volumes = x->dim[0] * x->dim[1];
    gpunn__resize       r;
    gpunn__resize_axis *axes[3] = {&r.z, &r.y, &r.x};
    int                 missing = 5 - x->rank;
    memset(&r, 0, sizeof r);
    if (action == GPUNN__PREPARE) {
        if (x->count / volumes > most || y->count / volumes > most)
            return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                    "a channel has more than 2^30 values; use smaller sizes");
        return GPUNN_OK;
    }
    r.cells = x->count, r.results = y->count;
    r.mode = step->attr->mode;
    r.align_corners = step->attr->align_corners;
    for (int i = 0; i < 3; i++) {
        axes[i]->in = i < missing ? 1 : (int)x->dim[2 + i - missing];
        axes[i]->out = i < missing ? 1 : (int)y->dim[2 + i - missing];
        axes[i]->ratio = i < missing ? 1 : step->attr->ratio[i - missing];
        axes[i]->taps = i < missing ? 1 : gpunn__resize_taps(r.mode, axes[i]->in, axes[i]->out);
    }
    const gpunn_value *from = action == GPUNN__FORWARD ? x : y,
                      *to = action == GPUNN__FORWARD ? y : &step->grad_in[0];
    r.from = from->data, r.from_dtype = from->dtype;
    r.to = to->data, r.to_dtype = to->dtype;
    if (action == GPUNN__FORWARD)
        return GPUNN__LAUNCH(cuda, gpunn__resize_kernel, gpunn__blocks(cuda, r.results, 1), GPUNN__THREADS,
                             r);
    if (r.to == NULL) return GPUNN_OK;
    r.accumulate = step->accumulate[0];
    if (r.results / r.cells < 64)
        return GPUNN__LAUNCH(cuda, gpunn__resize_back_kernel<false>, gpunn__blocks(cuda, r.cells, 1),
                             GPUNN__THREADS, r);
    int64_t blocks = (int64_t)cuda->multiprocessors * 32;
    return GPUNN__LAUNCH(cuda, gpunn__resize_back_kernel<true>,
                         (unsigned)(blocks < r.cells ? blocks : r.cells), GPUNN__THREADS, r);
}
