#include "cpu/levels.h"
#include "cpu/context.h"
#include "cpu/indexing.h"

/* ==== >>cpu/sampling ===================================================================================== *
 * grid_sample and affine_grid; also roi_align, hash_grid_encoding and interpolate. Along each axis a point
 * lies between two cells, each with a weight that is 0 outside the image. A 2-d image is a volume of one
 * slice, whose z axis is skipped. Points are processed in chunks: first the cells and weights of a chunk
 * along each axis, then the values, channel by channel.
 *
 * For the gradient of x, a thread owns some rows of cells and adds contributions to these, point after point.
 * So each cell sums in the order of the points, whatever the number of threads. The rows that a chunk touches
 * are found first; a thread skips chunks that touch none of its rows. */
enum { GPUNN__POINTS = 64 };

typedef struct gpunn__sampling {
    int                axes; /* 2 or 3 */
    int64_t            samples, channels;
    int64_t            cells, points, chunks; /* per sample and channel */
    int32_t            size[3];               /* of x along x, y, z; 1 if there is no z */
    gpunn_grid_mode    mode;
    gpunn_grid_padding padding;
    bool               align_corners, add_x, add_grid; /* add_x, add_grid: += instead of = for the gradient */
    const float       *x, *grid, *dy;
    float             *y, *dx, *dgrid;
    /* [samples][chunks][2]: first cells of the first and the last row that a chunk touches */
    int32_t *touched;
} gpunn__sampling;

typedef struct gpunn__places { /* of a chunk's points along one axis */
    int32_t cell[2][GPUNN__POINTS];
    float   weight[2][GPUNN__POINTS];
    float   derivative[2][GPUNN__POINTS]; /* derivative of weight with respect to the coordinate */
} gpunn__places;

typedef struct gpunn__corners { /* of a chunk's points: two cells in each of up to four rows */
    gpunn__places x, y, z;
    int32_t       row[4][GPUNN__POINTS]; /* its first cell */
    float         weight[4][GPUNN__POINTS], derivative_y[4][GPUNN__POINTS], derivative_z[4][GPUNN__POINTS];
    int32_t       inside[GPUNN__POINTS]; /* 0: outside all cells; ignore the cells and weights */
} gpunn__corners;

static gpunn__sampling gpunn__sampling_of(const gpunn_step *step)
{
    const gpunn_value *x = &step->in[0], *grid = &step->in[1];
    gpunn__sampling    s;
    memset(&s, 0, sizeof s);
    s.axes = x->rank - 2;
    s.samples = x->dim[0];
    s.channels = x->dim[1];
    for (int i = 0; i < 3; i++) s.size[i] = i < s.axes ? (int32_t)x->dim[x->rank - 1 - i] : 1;
    s.cells = (int64_t)s.size[0] * s.size[1] * s.size[2];
    s.points = grid->count / (s.samples * s.axes);
    s.chunks = (s.points + GPUNN__POINTS - 1) / GPUNN__POINTS;
    s.mode = (gpunn_grid_mode)step->attr->mode;
    s.padding = (gpunn_grid_padding)step->attr->padding_mode;
    s.align_corners = step->attr->align_corners;
    s.x = (const float *)x->data;
    s.grid = (const float *)grid->data;
    s.y = (float *)step->out.data;
    if (step->backward) {
        s.dy = (const float *)step->grad_out.data;
        s.dx = (float *)step->grad_in[0].data;
        s.dgrid = (float *)step->grad_in[1].data;
        s.add_x = step->accumulate[0];
        s.add_grid = step->accumulate[1];
        s.touched = (int32_t *)step->workspace;
    }
    return s;
}

/* Reflects coordinates at low and low + span until they lie in between. Each reflection negates the
 * derivative. */
static void gpunn__reflect(float low, float span, int count, float *at, float *derivative)
{
    GPUNN__IVDEP
    for (int i = 0; i < count; i++) {
        float away = fabsf(at[i] - low), times = floorf(away / span), rest = away - times * span;
        bool  odd = times - 2 * floorf(times / 2) != 0;
        derivative[i] = (at[i] < low) != odd ? -derivative[i] : derivative[i];
        at[i] = (odd ? span - rest : rest) + low;
    }
}

/* Finds the cells and weights of points along one axis. Coordinates are `stride` floats apart. */
static void gpunn__find_places(const gpunn__sampling *s, const float *coordinate, int stride, int count,
                               int32_t size, gpunn__places *p, int32_t *inside)
{
    bool  zeros = s->padding == GPUNN_GRID_ZEROS;
    float span = (float)(s->align_corners ? size - 1 : size), shift = s->align_corners ? 0 : 0.5f;
    float low = zeros ? -2.0f : 0.0f, high = (float)(zeros ? size + 1 : size - 1);
    float at[GPUNN__POINTS], derivative[GPUNN__POINTS];
    GPUNN__IVDEP
    for (int i = 0; i < count; i++) {
        at[i] = (coordinate[i * stride] + 1) / 2 * span - shift;
        derivative[i] = span / 2;
    }
    if (s->padding == GPUNN_GRID_REFLECTION) gpunn__reflect(-shift, span, count, at, derivative);
    GPUNN__IVDEP
    for (int i = 0; i < count; i++) {
        float near = at[i] > low ? at[i] : low; /* NaN becomes low */
        near = near < high ? near : high;
        float   turn = at[i] > low && at[i] < high ? derivative[i] : 0; /* 0 beyond a border */
        int32_t cell = (int32_t)near;
        cell -= (float)cell > near; /* floor */
        float   part = near - (float)cell;
        int32_t next = cell + 1, has = cell >= 0 && cell < size, has_next = next >= 0 && next < size;
        p->cell[0][i] = has ? cell : has_next ? next : 0;
        p->cell[1][i] = has_next ? next : p->cell[0][i];
        p->weight[0][i] = has ? 1 - part : 0;
        p->weight[1][i] = has_next ? part : 0;
        p->derivative[0][i] = has ? -turn : 0;
        p->derivative[1][i] = has_next ? turn : 0;
        inside[i] &= has | has_next;
    }
    for (int i = 0; s->mode == GPUNN_GRID_NEAREST && i < count; i++) {
        float   near = at[i] > low ? at[i] : low;
        int32_t cell = (int32_t)nearbyintf(near < high ? near : high);
        bool    has = cell >= 0 && cell < size;
        p->cell[0][i] = has ? cell : 0;
        p->weight[0][i] = 1;
        inside[i] = has && inside[i];
    }
}

/* Finds cells and weights of points first .. first + count - 1 of a sample. */
static void gpunn__find_corners(const gpunn__sampling *s, int64_t sample, int64_t first, int count,
                                gpunn__corners *c)
{
    const float *grid = s->grid + (sample * s->points + first) * s->axes;
    for (int i = 0; i < count; i++) c->inside[i] = 1;
    gpunn__find_places(s, grid, s->axes, count, s->size[0], &c->x, c->inside);
    gpunn__find_places(s, grid + 1, s->axes, count, s->size[1], &c->y, c->inside);
    if (s->axes == 3) gpunn__find_places(s, grid + 2, s->axes, count, s->size[2], &c->z, c->inside);
    for (int r = 0; r < 2; r++) {
        GPUNN__IVDEP
        for (int i = 0; i < count; i++) {
            c->row[r][i] = c->y.cell[r][i] * s->size[0];
            c->weight[r][i] = c->y.weight[r][i];
            c->derivative_y[r][i] = c->y.derivative[r][i];
        }
    }
    if (s->axes == 2) return;
    int32_t slice = s->size[0] * s->size[1];
    for (int r = 3; r >= 0; r--) { /* rows 0 and 1 last: the others are computed from them */
        GPUNN__IVDEP
        for (int i = 0; i < count; i++) {
            float weight = c->weight[r & 1][i], z = c->z.weight[r >> 1][i];
            c->row[r][i] = c->row[r & 1][i] + c->z.cell[r >> 1][i] * slice;
            c->derivative_z[r][i] = weight * c->z.derivative[r >> 1][i];
            c->derivative_y[r][i] = c->derivative_y[r & 1][i] * z;
            c->weight[r][i] = weight * z;
        }
    }
}

/* Number of rows that contribute: one in mode nearest, else all. */
static int gpunn__corner_rows(const gpunn__sampling *s)
{
    if (s->mode == GPUNN_GRID_NEAREST) return 1;
    return s->axes == 2 ? 2 : 4;
}

/* Values of one channel at the points of a chunk. Here and below, callers pass a constant for rows. */
GPUNN__INLINE void gpunn__sample_chunk(const gpunn__corners *c, int rows, int count, const float *x, float *y)
{
    GPUNN__IVDEP
    for (int i = 0; i < count; i++) {
        float sum = 0;
        for (int r = 0; r < rows; r++) {
            const float *row = x + c->row[r][i];
            float        low = row[c->x.cell[0][i]];
            if (rows > 1)
                low = c->weight[r][i] * (low * c->x.weight[0][i] + row[c->x.cell[1][i]] * c->x.weight[1][i]);
            sum = rows > 1 ? sum + low : low;
        }
        y[i] = c->inside[i] ? sum : 0;
    }
}

/* Adds the contribution of one channel to the gradients of the coordinates x, y, z. */
GPUNN__INLINE void gpunn__sample_chunk_dgrid(const gpunn__corners *c, int rows, int count, const float *x,
                                             const float *dy, float sum[3][GPUNN__POINTS])
{
    GPUNN__IVDEP
    for (int i = 0; i < count; i++) {
        float derivative[3] = {0, 0, 0}, g = c->inside[i] ? dy[i] : 0;
        for (int r = 0; r < rows; r++) {
            const float *row = x + c->row[r][i];
            float        low = row[c->x.cell[0][i]], high = row[c->x.cell[1][i]];
            float        value = low * c->x.weight[0][i] + high * c->x.weight[1][i];
            derivative[0] += c->weight[r][i] * (low * c->x.derivative[0][i] + high * c->x.derivative[1][i]);
            derivative[1] += c->derivative_y[r][i] * value;
            if (rows == 4) derivative[2] += c->derivative_z[r][i] * value;
        }
        for (int k = 0; k < (rows == 4 ? 3 : 2); k++) sum[k][i] += g * derivative[k];
    }
}

/* Adds to those cells of one channel's gradient whose rows begin in [begin, end). */
GPUNN__INLINE void gpunn__sample_chunk_back(const gpunn__corners *c, int rows, int count, int32_t begin,
                                            int32_t end, const float *dy, float *dx)
{
    for (int i = 0; i < count; i++) {
        int32_t low = c->x.cell[0][i], high = c->x.cell[1][i];
        for (int r = 0; r < rows && c->inside[i]; r++) {
            int32_t row = c->row[r][i];
            float   g = dy[i] * c->weight[r][i];
            if (row < begin || row >= end) continue;
            if (rows == 1) {
                dx[row + low] += dy[i];
                continue;
            }
            dx[row + low] += g * c->x.weight[0][i];
            dx[row + high] += g * c->x.weight[1][i];
        }
    }
}

static int gpunn__chunk_points(const gpunn__sampling *s, int64_t chunk)
{
    return (int)gpunn__least(GPUNN__POINTS, s->points - chunk * GPUNN__POINTS);
}

/* Computes the values, or the gradient of the grid. */
GPUNN__VECTORIZED(gpunn__sample_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__sampling *s = (const gpunn__sampling *)arg;
    int                    rows = gpunn__corner_rows(s);
    int64_t                begin, end;
    gpunn__corners         c;
    gpunn__cpu_part(s->samples * s->chunks, 1, threads, thread, &begin, &end);
    for (; begin < end; begin++) {
        int64_t sample = begin / s->chunks, chunk = begin % s->chunks, first = chunk * GPUNN__POINTS;
        int     count = gpunn__chunk_points(s, chunk);
        float   sum[3][GPUNN__POINTS] = {{0}};
        if (rows > 1 || s->dgrid == NULL) gpunn__find_corners(s, sample, first, count, &c);
        for (int64_t channel = sample * s->channels; channel < (sample + 1) * s->channels; channel++) {
            const float *x = s->x + channel * s->cells;
            int64_t      at = channel * s->points + first;
            if (s->dgrid && rows == 4)
                gpunn__sample_chunk_dgrid(&c, 4, count, x, s->dy + at, sum);
            else if (s->dgrid && rows == 2)
                gpunn__sample_chunk_dgrid(&c, 2, count, x, s->dy + at, sum);
            else if (s->dgrid)
                break;
            else if (rows == 4)
                gpunn__sample_chunk(&c, 4, count, x, s->y + at);
            else if (rows == 2)
                gpunn__sample_chunk(&c, 2, count, x, s->y + at);
            else
                gpunn__sample_chunk(&c, 1, count, x, s->y + at);
        }
        float *to = s->dgrid ? s->dgrid + (sample * s->points + first) * s->axes : NULL;
        for (int k = 0; s->dgrid && k < s->axes; k++)
            for (int i = 0; i < count; i++)
                to[i * s->axes + k] = s->add_grid ? to[i * s->axes + k] + sum[k][i] : sum[k][i];
    }
}

static void gpunn__sample_find_touched(const gpunn__sampling *s, int thread, int threads)
{
    int64_t        begin, end;
    gpunn__corners c;
    gpunn__cpu_part(s->samples * s->chunks, 1, threads, thread, &begin, &end);
    for (; begin < end; begin++) {
        int64_t chunk = begin % s->chunks;
        int     count = gpunn__chunk_points(s, chunk), last = gpunn__corner_rows(s) - 1;
        int32_t low = INT32_MAX, high = -1;
        gpunn__find_corners(s, begin / s->chunks, chunk * GPUNN__POINTS, count, &c);
        for (int i = 0; i < count; i++) {
            if (!c.inside[i]) continue;
            low = c.row[0][i] < low ? c.row[0][i] : low;
            high = c.row[last][i] > high ? c.row[last][i] : high;
        }
        s->touched[2 * begin] = low;
        s->touched[2 * begin + 1] = high;
    }
}

/* Computes the gradient of x. */
GPUNN__VECTORIZED(gpunn__sample_back_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__sampling *s = (const gpunn__sampling *)arg;
    int                    rows = gpunn__corner_rows(s);
    int64_t                row, row_end, lines = s->cells / s->size[0];
    gpunn__corners         c;
    if (threads > 1) {
        gpunn__sample_find_touched(s, thread, threads);
        (void)gpunn__thread_barrier();
    }
    gpunn__cpu_part(s->samples * lines, 1, threads, thread, &row, &row_end);
    while (row < row_end) {
        int64_t sample = row / lines, from = row % lines, to = gpunn__least(lines, from + row_end - row);
        int32_t begin = (int32_t)(from * s->size[0]), end = (int32_t)(to * s->size[0]);
        float  *dx = s->dx + sample * s->channels * s->cells;
        for (int64_t channel = 0; channel < s->channels && !s->add_x; channel++)
            memset(dx + channel * s->cells + begin, 0, (size_t)(end - begin) * sizeof *dx);
        for (int64_t chunk = 0; chunk < s->chunks; chunk++) {
            const int32_t *touched = s->touched + 2 * (sample * s->chunks + chunk);
            int            count = gpunn__chunk_points(s, chunk);
            if (threads > 1 && (touched[0] >= end || touched[1] < begin)) continue;
            gpunn__find_corners(s, sample, chunk * GPUNN__POINTS, count, &c);
            for (int64_t channel = 0; channel < s->channels; channel++) {
                const float *dy = s->dy + (sample * s->channels + channel) * s->points +
                                  chunk * GPUNN__POINTS;
                if (rows == 4)
                    gpunn__sample_chunk_back(&c, 4, count, begin, end, dy, dx + channel * s->cells);
                else if (rows == 2)
                    gpunn__sample_chunk_back(&c, 2, count, begin, end, dy, dx + channel * s->cells);
                else
                    gpunn__sample_chunk_back(&c, 1, count, begin, end, dy, dx + channel * s->cells);
            }
        }
        row += to - from;
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_grid_sample(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__sampling s = gpunn__sampling_of(step);
    const double    reads = (2 + (double)s.channels) * (s.axes == 3 ? 4 : 2); /* per point */
    int             threads = gpunn__cpu_threads_for(cpu, (double)s.samples * (double)s.points * reads);
    if (action == GPUNN__PREPARE) {
        if (step->backward && s.dx)
            step->workspace_bytes = (size_t)(2 * s.samples * s.chunks) * sizeof *s.touched;
        return GPUNN_OK;
    }
    if (action == GPUNN__FORWARD || s.dgrid) gpunn_parallel(threads, gpunn__sample_task, &s);
    if (s.dx) gpunn_parallel(threads, gpunn__sample_back_task, &s);
    return GPUNN_OK;
}

/* ---- roi_align: for each bin, first the weights of its cells, then the values channel by channel -------- *
 * The weights along an axis are the sum over the bin's samples. For the gradient
 * of x, a thread owns some channels and adds contributions to these, bin after bin. */

enum { GPUNN__ROI_CHANNELS = 32 }; /* channels whose cells in a box fit the cache */
typedef struct gpunn__rois {
    gpunn__roi_shape shape;
    int64_t          cells; /* per channel */
    bool             add;
    const float     *x, *boxes, *dy;
    float           *y, *dx;
} gpunn__rois;

/* of a bin along one axis: `low` .. `end` - 1; weight holds `count` of them, from `first` on */
typedef struct gpunn__roi_cells {
    gpunn__roi_samples line;
    int                low, end, first, count;
    float              weight[GPUNN__POINTS];
} gpunn__roi_cells;

static void gpunn__roi_reach(gpunn__roi_cells *c)
{
    int   cell[2];
    float weight[2];
    c->low = INT32_MAX;
    c->end = 0;
    for (int i = c->line.begin; i < c->line.end; i++) {
        if (!gpunn__roi_find(&c->line, i, cell, weight)) continue;
        c->low = cell[0] < c->low ? cell[0] : c->low;
        c->end = cell[1] >= c->end ? cell[1] + 1 : c->end;
    }
    if (c->end == 0) c->low = 0;
}

static void gpunn__roi_weigh(gpunn__roi_cells *c)
{
    int   cell[2];
    float weight[2];
    c->count = c->end - c->first < GPUNN__POINTS ? c->end - c->first : GPUNN__POINTS;
    memset(c->weight, 0, (size_t)c->count * sizeof *c->weight);
    for (int i = c->line.begin; i < c->line.end; i++) {
        if (!gpunn__roi_find(&c->line, i, cell, weight)) continue;
        for (int k = 0; k < 2; k++)
            if (cell[k] >= c->first && cell[k] - c->first < c->count)
                c->weight[cell[k] - c->first] += weight[k];
    }
}

static void gpunn__roi_begin(const gpunn__rois *r, int64_t box, int bin, gpunn__roi_cells c[2])
{
    const float            *at = r->boxes + 5 * box;
    const gpunn__roi_shape *s = &r->shape;
    c[0].line = gpunn__roi_samples_of(s, 0, at[2], at[4], bin / s->bins[1]);
    c[1].line = gpunn__roi_samples_of(s, 1, at[1], at[3], bin % s->bins[1]);
    for (int axis = 0; axis < 2; axis++) gpunn__roi_reach(&c[axis]);
    c[0].first = c[0].low - GPUNN__POINTS;
    c[1].first = c[1].end;
}

/* Computes the weights of the next cells. Returns false if there are none. */
static bool gpunn__roi_next(gpunn__roi_cells c[2])
{
    c[1].first += GPUNN__POINTS;
    if (c[1].first >= c[1].end) {
        c[1].first = c[1].low;
        c[0].first += GPUNN__POINTS;
        if (c[0].first >= c[0].end) return false;
        gpunn__roi_weigh(&c[0]);
    }
    gpunn__roi_weigh(&c[1]);
    return true;
}

static float gpunn__roi_sum(const gpunn__roi_cells c[2], const float *x)
{
    float sum = 0;
    x += (int64_t)c[0].first * c[1].line.size + c[1].first;
    for (int j = 0; j < c[0].count; j++, x += c[1].line.size) {
        float row = 0;
        for (int i = 0; i < c[1].count; i++) row += c[1].weight[i] * x[i];
        sum += c[0].weight[j] * row;
    }
    return sum;
}

static void gpunn__roi_spread(const gpunn__roi_cells c[2], float g, float *dx)
{
    dx += (int64_t)c[0].first * c[1].line.size + c[1].first;
    for (int j = 0; j < c[0].count; j++, dx += c[1].line.size) {
        const float row = g * c[0].weight[j];
        GPUNN__IVDEP
        for (int i = 0; i < c[1].count; i++) dx[i] += row * c[1].weight[i];
    }
}

/* Processes the bins of a box in channels from .. to - 1 of its sample: values, or the gradient of x. */
static void gpunn__roi_box(const gpunn__rois *r, int64_t box, int64_t from, int64_t to)
{
    const gpunn__roi_shape *s = &r->shape;
    const int64_t           sample = (int64_t)r->boxes[5 * box] * s->channels;
    const int               bins = s->bins[0] * s->bins[1];
    gpunn__roi_cells        c[2];
    for (int bin = 0; bin < bins; bin++) {
        const int64_t at = box * s->channels * bins + bin;
        gpunn__roi_begin(r, box, bin, c);
        const float count = gpunn__roi_count(&c[0].line, &c[1].line);
        for (int64_t i = from; i < to && r->y; i++) r->y[at + i * bins] = 0;
        while (gpunn__roi_next(c))
            for (int64_t i = from; i < to; i++) {
                if (r->y)
                    r->y[at + i * bins] += gpunn__roi_sum(c, r->x + (sample + i) * r->cells) / count;
                else
                    gpunn__roi_spread(c, r->dy[at + i * bins] / count, r->dx + (sample + i) * r->cells);
            }
    }
}

static void gpunn__roi_task(void *arg, int thread, int threads)
{
    const gpunn__rois *r = (const gpunn__rois *)arg;
    const int64_t      channels = r->shape.channels,
                  tiles = (channels + GPUNN__ROI_CHANNELS - 1) / GPUNN__ROI_CHANNELS;
    int64_t unit, end;
    gpunn__cpu_part(r->shape.boxes * tiles, 1, threads, thread, &unit, &end);
    for (; unit < end; unit++) {
        const int64_t from = unit % tiles * GPUNN__ROI_CHANNELS;
        gpunn__roi_box(r, unit / tiles, from, gpunn__least(channels, from + GPUNN__ROI_CHANNELS));
    }
}

static void gpunn__roi_back_task(void *arg, int thread, int threads)
{
    const gpunn__rois *r = (const gpunn__rois *)arg;
    const int64_t      channels = r->shape.channels;
    int64_t            plane, end;
    gpunn__cpu_part(r->shape.samples * channels, 1, threads, thread, &plane, &end);
    if (plane < end && !r->add)
        memset(r->dx + plane * r->cells, 0, (size_t)((end - plane) * r->cells) * sizeof *r->dx);
    while (plane < end) {
        const int64_t sample = plane / channels, from = plane % channels;
        const int64_t to = gpunn__least(gpunn__least(channels, from + end - plane),
                                        from + GPUNN__ROI_CHANNELS);
        for (int64_t box = 0; box < r->shape.boxes; box++)
            if ((int64_t)r->boxes[5 * box] == sample) gpunn__roi_box(r, box, from, to);
        plane += to - from;
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_roi_align(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *x = &step->in[0];
    gpunn__rois        r;
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    memset(&r, 0, sizeof r);
    r.shape = gpunn__roi_shape_of(step->attr, x, &step->in[1]);
    r.cells = x->dim[2] * x->dim[3];
    r.x = (const float *)x->data;
    r.boxes = (const float *)step->in[1].data;
    if (step->backward) {
        r.dy = (const float *)step->grad_out.data;
        r.dx = (float *)step->grad_in[0].data;
        r.add = step->accumulate[0];
    } else
        r.y = (float *)step->out.data;
    for (int64_t box = 0; box < r.shape.boxes; box++) {
        const float sample = r.boxes[5 * box];
        if (!(sample >= 0 && sample < (float)r.shape.samples))
            return gpunn__cpu_fail(
                cpu, GPUNN_ERR_ARGUMENT,
                "box %lld has sample number %g, which is outside 0 .. %lld; check the boxes", (long long)box,
                (double)sample, (long long)(r.shape.samples - 1));
    }
    const double work = (double)r.shape.boxes * r.shape.bins[0] * r.shape.bins[1] * (r.shape.channels + 4) *
                        16;
    gpunn_parallel(gpunn__cpu_threads_for(cpu, work), step->backward ? gpunn__roi_back_task : gpunn__roi_task,
                   &r);
    return GPUNN_OK;
}

/* ---- affine_grid: grid[n][z][y][x][k] = theta[n][k] . (x, y, z, 1) ------------------------------------- */

typedef struct gpunn__affine_points {
    int          axes;
    int64_t      samples, lines; /* lines: per sample */
    int64_t      size[3];        /* along x, y, z; 1 if there is no z */
    bool         align_corners;
    const float *theta, *dgrid;
    /* sums: [samples][lines][2][axes], the sums of a line's gradients and of these times x */
    float *grid, *sums;
} gpunn__affine_points;

GPUNN__VECTORIZED(gpunn__affine_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__affine_points *a = (const gpunn__affine_points *)arg;
    int64_t                     line, end, width = a->size[0];
    int                         axes = a->axes;
    gpunn__cpu_part(a->samples * a->lines, 1, threads, thread, &line, &end);
    for (; line < end; line++) {
        int64_t      at = line % a->lines;
        float        y = gpunn__affine_coordinate(at % a->size[1], a->size[1], a->align_corners);
        float        z = gpunn__affine_coordinate(at / a->size[1], a->size[2], a->align_corners);
        const float *theta = a->theta + line / a->lines * (axes * (axes + 1));
        for (int k = 0; k < axes; k++) {
            float base = theta[1] * y + (axes == 3 ? theta[2] * z : 0) + theta[axes],
                  *grid = a->grid + line * width * axes + k;
            for (int64_t i = 0; i < width; i++)
                grid[i * axes] = theta[0] * gpunn__affine_coordinate(i, width, a->align_corners) + base;
            theta += axes + 1;
        }
    }
}

GPUNN__VECTORIZED(gpunn__affine_back_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__affine_points *a = (const gpunn__affine_points *)arg;
    int64_t                     line, end, width = a->size[0];
    gpunn__cpu_part(a->samples * a->lines, 1, threads, thread, &line, &end);
    for (; line < end; line++) {
        const float *g = a->dgrid + line * width * a->axes;
        double       sum[2][3] = {{0}};
        for (int64_t i = 0; i < width; i++) {
            float x = gpunn__affine_coordinate(i, width, a->align_corners);
            for (int k = 0; k < a->axes; k++, g++) {
                sum[0][k] += *g;
                sum[1][k] += *g * x;
            }
        }
        for (int j = 0; j < 2; j++)
            for (int k = 0; k < a->axes; k++) a->sums[(2 * line + j) * a->axes + k] = (float)sum[j][k];
    }
}

/* ---- hash_grid_encoding -------------------------------------------------------------------------------- */

typedef struct gpunn__hash_points {
    gpunn__hash_grid grid;
    int64_t          points;
    const float     *x, *table, *dy;
    float           *y, *dx, *dtable;
    bool             add_x, add_table;
    /* of a sparse gradient: row and terms of each corner of each level of each point */
    int64_t *rows;
    float   *terms;
} gpunn__hash_points;

static void gpunn__hash_task(void *arg, int index, int threads)
{
    const gpunn__hash_points *h = (const gpunn__hash_points *)arg;
    const gpunn__hash_grid   *grid = &h->grid;
    int64_t                   begin, end;
    gpunn__cpu_part(h->points, 1, threads, index, &begin, &end);
    for (int64_t p = begin; p < end; p++)
        for (int l = 0; l < grid->levels; l++)
            gpunn__hash_features(grid->axes, &grid->level[l], h->x + p * grid->axes, h->table, grid->features,
                                 h->y + (p * grid->levels + l) * grid->features);
}

static void gpunn__hash_dx_task(void *arg, int index, int threads)
{
    const gpunn__hash_points *h = (const gpunn__hash_points *)arg;
    const int                 axes = h->grid.axes;
    int64_t                   begin, end;
    gpunn__cpu_part(h->points, 1, threads, index, &begin, &end);
    for (int64_t p = begin; p < end; p++) {
        float derivative[GPUNN__HASH_AXES] = {0};
        for (int l = 0; l < h->grid.levels; l++)
            gpunn__hash_dx(axes, &h->grid.level[l], h->x + p * axes, h->table, h->grid.features,
                           h->dy + (p * h->grid.levels + l) * h->grid.features, derivative);
        for (int i = 0; i < axes; i++)
            h->dx[p * axes + i] = h->add_x ? h->dx[p * axes + i] + derivative[i] : derivative[i];
    }
}

/* One thread owns all rows of a level and adds point after point. */
static void gpunn__hash_back_task(void *arg, int index, int threads)
{
    const gpunn__hash_points *h = (const gpunn__hash_points *)arg;
    const gpunn__hash_grid   *grid = &h->grid;
    for (int l = index; l < grid->levels; l += threads) {
        const gpunn__hash_level *level = &grid->level[l];
        if (!h->add_table)
            memset(h->dtable + level->first * grid->features, 0,
                   (size_t)level->rows * (size_t)grid->features * sizeof(float));
        for (int64_t p = 0; p < h->points; p++) {
            const gpunn__hash_place place = gpunn__hash_find(grid->axes, level, h->x + p * grid->axes);
            const float            *dy = h->dy + (p * grid->levels + l) * grid->features;
            for (int corner = 0; corner < 1 << grid->axes; corner++) {
                const float weight = gpunn__hash_weight(grid->axes, &place, corner, -1);
                float *row = h->dtable + gpunn__hash_row(grid->axes, level, &place, corner) * grid->features;
                for (int f = 0; f < grid->features; f++) row[f] += weight * dy[f];
            }
        }
    }
}

/* What the corners of a level add to their rows. */
static void gpunn__hash_terms(const gpunn__hash_points *h, int64_t point, int l)
{
    const int               axes = h->grid.axes, features = h->grid.features;
    const gpunn__hash_place place = gpunn__hash_find(axes, &h->grid.level[l], h->x + point * axes);
    const float            *dy = h->dy + (point * h->grid.levels + l) * features;
    for (int corner = 0; corner < 1 << axes; corner++) {
        const float   weight = gpunn__hash_weight(axes, &place, corner, -1);
        const int64_t at = ((point * h->grid.levels + l) << axes) + corner;
        h->rows[at] = gpunn__hash_row(axes, &h->grid.level[l], &place, corner);
        for (int f = 0; f < features; f++) h->terms[at * features + f] = weight * dy[f];
    }
}

static void gpunn__hash_terms_task(void *arg, int index, int threads)
{
    const gpunn__hash_points *h = (const gpunn__hash_points *)arg;
    int64_t                   begin, end;
    gpunn__cpu_part(h->points, 1, threads, index, &begin, &end);
    for (int64_t p = begin; p < end; p++)
        for (int l = 0; l < h->grid.levels; l++) gpunn__hash_terms(h, p, l);
}

static GPUNN__STATUS gpunn__hash_sparse_back(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action,
                                             gpunn__hash_points *h)
{
    gpunn__arena arena = {(char *)step->workspace, 0};
    gpunn_value  rows;
    gpunn__pick  p;
    memset(&rows, 0, sizeof rows);
    memset(&p, 0, sizeof p);
    p.m = h->points * h->grid.levels << h->grid.axes;
    p.inner = h->grid.features;
    p.padding = -1;
    h->rows = (int64_t *)gpunn__arena_take(&arena, (size_t)p.m * sizeof *h->rows);
    h->terms = (float *)gpunn__arena_take(&arena, (size_t)(p.m * p.inner) * sizeof *h->terms);
    rows.data = h->rows;
    rows.dtype = GPUNN_I64;
    p.index = &rows;
    p.from = h->terms;
    if (action == GPUNN__BACKWARD)
        gpunn_parallel(gpunn__cpu_threads(cpu, p.m * p.inner), gpunn__hash_terms_task, h);
    return gpunn__sparse_back(cpu, step, action, &p, &arena);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_hash_grid_encoding(gpunn__cpu *cpu, gpunn_step *step,
                                                            gpunn__action action)
{
    const gpunn_value *x = &step->in[0], *weight = &step->in[1];
    const int          axes = (int)x->dim[x->rank - 1];
    gpunn__hash_points h;
    const bool         sparse = step->backward && step->attr->sparse && step->grad_in[1].data;
    if (action == GPUNN__PREPARE && !sparse) return GPUNN_OK;
    memset(&h, 0, sizeof h);
    (void)gpunn__hash_grid_of(step->attr, axes, (int)weight->dim[1], &h.grid);
    h.points = x->count / axes;
    if (action == GPUNN__PREPARE) return gpunn__hash_sparse_back(cpu, step, action, &h);
    h.x = (const float *)x->data;
    h.table = (const float *)weight->data;
    const int threads = gpunn__cpu_threads(cpu, h.points * h.grid.levels * h.grid.features << axes);
    if (action == GPUNN__FORWARD) {
        h.y = (float *)step->out.data;
        gpunn_parallel(threads, gpunn__hash_task, &h);
        return GPUNN_OK;
    }
    h.dy = (const float *)step->grad_out.data;
    h.dx = (float *)step->grad_in[0].data;
    h.dtable = (float *)step->grad_in[1].data;
    h.add_x = step->accumulate[0];
    h.add_table = step->accumulate[1];
    if (h.dx) gpunn_parallel(threads, gpunn__hash_dx_task, &h);
    if (sparse) return gpunn__hash_sparse_back(cpu, step, action, &h);
    if (h.dtable) gpunn_parallel(threads, gpunn__hash_back_task, &h);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_affine_grid(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_value   *grid = step->backward ? &step->grad_out : &step->out;
    gpunn__affine_points a;
    memset(&a, 0, sizeof a);
    a.axes = grid->rank - 2;
    a.samples = grid->dim[0];
    for (int i = 0; i < 3; i++) a.size[i] = i < a.axes ? grid->dim[a.axes - i] : 1;
    a.lines = a.size[1] * a.size[2];
    a.align_corners = step->attr->align_corners;
    if (action == GPUNN__PREPARE) {
        if (step->backward)
            step->workspace_bytes = (size_t)(a.samples * a.lines * 2 * a.axes) * sizeof *a.sums;
        return GPUNN_OK;
    }
    int threads = gpunn__cpu_threads(cpu, grid->count * 2);
    if (action == GPUNN__FORWARD) {
        a.theta = (const float *)step->in[0].data;
        a.grid = (float *)grid->data;
        gpunn_parallel(threads, gpunn__affine_task, &a);
        return GPUNN_OK;
    }
    a.dgrid = (const float *)grid->data;
    a.sums = (float *)step->workspace;
    gpunn_parallel(threads, gpunn__affine_back_task, &a);
    float *dtheta = (float *)step->grad_in[0].data;
    for (int64_t n = 0; n < a.samples; n++) {
        double total[3][4] = {{0}};
        for (int64_t line = 0; line < a.lines; line++) {
            const float *sum = a.sums + (n * a.lines + line) * 2 * a.axes;
            float        y = gpunn__affine_coordinate(line % a.size[1], a.size[1], a.align_corners);
            float        z = gpunn__affine_coordinate(line / a.size[1], a.size[2], a.align_corners);
            for (int k = 0; k < a.axes; k++, sum++) {
                total[k][0] += sum[a.axes];
                total[k][1] += *sum * y;
                total[k][2] += *sum * z;
                total[k][3] += *sum;
            }
        }
        for (int k = 0; k < a.axes; k++)
            for (int j = 0; j <= a.axes; j++, dtheta++) {
                float g = (float)total[k][j == a.axes ? 3 : j];
                *dtheta = step->accumulate[0] ? *dtheta + g : g;
            }
    }
    return GPUNN_OK;
}

/* ---- interpolate ---------------------------------------------------------------------------------------- *
 * A
 * volume is one image and channel. A plane has depth 1; a line also has height 1. Along an axis, output o is
 * cell first[o] of x (nearest), a weighted sum of it and the next cell (linear), or of these and one more on
 * each side (cubic). Positions beyond an end use the cell at the end. Tables of first cells and weights are
 * computed up front. A row of outputs is computed from a weighted sum of rows of x, then along that row. The
 * gradient of a row of x gathers the rows of outputs that read it. */

typedef struct gpunn__resize_axis {
    int64_t  in, out;
    int      taps;   /* cells that an output reads: 1, 2 or 4 */
    int32_t *first;  /* [out]; -1 before the first cell */
    int32_t *begin;  /* [in + 1]: the first output whose first cell is this one or a later one */
    float   *weight; /* [out][taps] */
} gpunn__resize_axis;

typedef struct gpunn__resize {
    int64_t            volumes;
    gpunn__resize_axis z, y, x;
    bool               accumulate;
    const float       *from; /* x, or the gradient of y */
    float             *to;   /* y, or the gradient of x */
    float             *row;  /* [threads][max of x.in and x.out] */
} gpunn__resize;

/* Weight of a tap of an axis, `at` cells behind the first one. */
static float gpunn__resize_tap(int taps, float at, int tap)
{
    if (taps == 4) return gpunn__cubic(at + 1 - (float)tap);
    if (taps == 1) return 1;
    return tap ? at : 1 - at;
}

/* Computes the tables of an axis by torch's rules. */
static void gpunn__resize_tables(gpunn__resize_axis *a, const gpunn_attributes *attr, float ratio)
{
    int64_t o = 0;
    for (; o < a->out; o++) {
        float at = ratio *
                   ((float)o + (attr->mode == GPUNN_INTERPOLATE_NEAREST || attr->align_corners ? 0 : 0.5f));
        if (attr->mode == GPUNN_INTERPOLATE_LINEAR && !attr->align_corners) at = at > 0.5f ? at - 0.5f : 0;
        if (attr->mode == GPUNN_INTERPOLATE_LINEAR && a->in == a->out) at = (float)o;
        if (attr->mode == GPUNN_INTERPOLATE_CUBIC && !attr->align_corners) at -= 0.5f;
        a->first[o] = at < (float)(a->in - 1) ? (int32_t)floorf(at) : (int32_t)(a->in - 1);
        at -= (float)a->first[o];
        at = at < 1 ? at : 1;
        for (int tap = 0; tap < a->taps; tap++)
            a->weight[o * a->taps + tap] = gpunn__resize_tap(a->taps, at, tap);
    }
    for (int64_t i = a->in; i >= 0; i--) {
        while (o > 0 && a->first[o - 1] >= i) o--;
        a->begin[i] = (int32_t)o;
    }
}

/* The cell that output o reads through a tap. */
GPUNN__INLINE int64_t gpunn__resize_cell(const gpunn__resize_axis *a, int64_t o, int tap)
{
    const int64_t i = a->first[o] - (a->taps - 1) / 2 + tap;
    return i < 0 ? 0 : gpunn__least(i, a->in - 1);
}

/* The weight of cell i in output o. Only outputs gpunn__resize_from(a, i) .. gpunn__resize_to(a, i) - 1 read
 * the cell. */
GPUNN__INLINE float gpunn__resize_weight(const gpunn__resize_axis *a, int64_t o, int64_t i)
{
    float sum = 0;
    for (int tap = 0; tap < a->taps; tap++)
        sum += gpunn__resize_cell(a, o, tap) == i ? a->weight[o * a->taps + tap] : 0;
    return sum;
}

GPUNN__INLINE int64_t gpunn__resize_from(const gpunn__resize_axis *a, int64_t i)
{
    return i >= a->taps / 2 ? a->begin[i - a->taps / 2] : 0;
}

GPUNN__INLINE int64_t gpunn__resize_to(const gpunn__resize_axis *a, int64_t i)
{
    return a->begin[gpunn__least(i + 1 + a->taps / 4, a->in)];
}

/* row = or += weight * from. */
GPUNN__INLINE void gpunn__resize_add(float *row, const float *from, int64_t n, float weight, bool add)
{
    GPUNN__IVDEP
    for (int64_t i = 0; i < n; i++) row[i] = add ? row[i] + weight * from[i] : weight * from[i];
}

static void gpunn__resize_forward(void *arg, int index, int threads)
{
    const gpunn__resize      *r = (const gpunn__resize *)arg;
    const gpunn__resize_axis *x = &r->x;
    int64_t                   line, end, lines = r->y.out * r->z.out, plane = r->y.in * x->in;
    float                    *row = r->row + index * (x->in > x->out ? x->in : x->out);
    gpunn__cpu_part(r->volumes * lines, 1, threads, index, &line, &end);
    for (; line < end; line++) {
        const float *volume = r->from + line / lines * r->z.in * plane, *cells = row;
        float       *to = r->to + line * x->out;
        int64_t      oz = line % lines / r->y.out, oy = line % r->y.out;
        if (r->z.taps * r->y.taps == 1) cells = volume + r->z.first[oz] * plane + r->y.first[oy] * x->in;
        for (int tap = 0; cells == row && tap < r->z.taps * r->y.taps; tap++) {
            int     front = tap / r->y.taps, top = tap % r->y.taps;
            float   weight = r->z.weight[oz * r->z.taps + front] * r->y.weight[oy * r->y.taps + top];
            int64_t at = gpunn__resize_cell(&r->z, oz, front) * plane +
                         gpunn__resize_cell(&r->y, oy, top) * x->in;
            gpunn__resize_add(row, volume + at, x->in, weight, tap > 0);
        }
        if (x->taps == 1) {
            for (int64_t o = 0; o < x->out; o++) to[o] = cells[x->first[o]];
        } else if (x->taps == 2) {
            for (int64_t o = 0; o < x->out; o++) {
                int32_t i = x->first[o], next = i < x->in - 1 ? i + 1 : i;
                to[o] = x->weight[2 * o] * cells[i] + x->weight[2 * o + 1] * cells[next];
            }
        } else {
            for (int64_t o = 0; o < x->out; o++) {
                float sum = 0;
                for (int tap = 0; tap < 4; tap++)
                    sum += x->weight[4 * o + tap] * cells[gpunn__resize_cell(x, o, tap)];
                to[o] = sum;
            }
        }
    }
}

GPUNN__VECTORIZED_AVX2(gpunn__resize_backward, (void *arg, int index, int threads), (arg, index, threads))
{
    const gpunn__resize      *r = (const gpunn__resize *)arg;
    const gpunn__resize_axis *x = &r->x;
    int64_t                   line, end, lines = r->y.in * r->z.in;
    float                    *row = r->row + index * (x->in > x->out ? x->in : x->out);
    gpunn__cpu_part(r->volumes * lines, 1, threads, index, &line, &end);
    for (; line < end; line++) {
        const float *volume = r->from + line / lines * r->z.out * r->y.out * x->out;
        float       *to = r->to + line * x->in;
        int64_t      z = line % lines / r->y.in, y = line % r->y.in;
        bool         any = false;
        for (int64_t oz = gpunn__resize_from(&r->z, z); oz < gpunn__resize_to(&r->z, z); oz++)
            for (int64_t oy = gpunn__resize_from(&r->y, y); oy < gpunn__resize_to(&r->y, y); oy++, any = true)
                gpunn__resize_add(row, volume + (oz * r->y.out + oy) * x->out, x->out,
                                  gpunn__resize_weight(&r->z, oz, z) * gpunn__resize_weight(&r->y, oy, y),
                                  any);
        if (!r->accumulate) memset(to, 0, (size_t)x->in * sizeof *to);
        for (int64_t o = 0; any && o < x->out; o++)
            for (int tap = 0; tap < x->taps; tap++)
                to[gpunn__resize_cell(x, o, tap)] += x->weight[o * x->taps + tap] * row[o];
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_interpolate(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_value      *x = &step->in[0], *y = step->backward ? &step->grad_out : &step->out;
    const gpunn_attributes *attr = step->attr;
    gpunn__resize           r;
    gpunn__resize_axis     *axes[3] = {&r.z, &r.y, &r.x};
    int64_t                 tables = 0, threads = gpunn__cpu_threads(cpu, 2 * (x->count + y->count));
    int                     missing = 5 - x->rank;
    memset(&r, 0, sizeof r);
    r.volumes = x->dim[0] * x->dim[1];
    for (int i = 0; i < 3; i++) {
        axes[i]->in = i < missing ? 1 : x->dim[2 + i - missing];
        axes[i]->out = i < missing ? 1 : y->dim[2 + i - missing];
        axes[i]->taps = i < missing ? 1 : gpunn__resize_taps(attr->mode, axes[i]->in, axes[i]->out);
        tables += (1 + axes[i]->taps) * axes[i]->out + axes[i]->in + 1;
    }
    int64_t row = r.x.in > r.x.out ? r.x.in : r.x.out;
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = (size_t)(tables + threads * row) * 4;
        return GPUNN_OK;
    }
    if (step->backward && step->grad_in[0].data == NULL) return GPUNN_OK;
    r.row = (float *)step->workspace;
    float *next = r.row + threads * row;
    for (int i = 0; i < 3; i++) {
        axes[i]->weight = next;
        axes[i]->first = (int32_t *)(void *)(next + axes[i]->taps * axes[i]->out);
        axes[i]->begin = axes[i]->first + axes[i]->out;
        next += (1 + axes[i]->taps) * axes[i]->out + axes[i]->in + 1;
        gpunn__resize_tables(axes[i], attr, i < missing ? 1 : attr->ratio[i - missing]);
    }
    if (action == GPUNN__FORWARD) {
        r.from = (const float *)x->data, r.to = (float *)y->data;
        gpunn_parallel((int)threads, gpunn__resize_forward, &r);
    } else {
        r.from = (const float *)y->data, r.to = (float *)step->grad_in[0].data;
        r.accumulate = step->accumulate[0];
        gpunn_parallel((int)threads, gpunn__resize_backward, &r);
    }
    return GPUNN_OK;
}
