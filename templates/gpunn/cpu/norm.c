#include "cpu/norm.h"
#include "cpu/levels.h"
#include "cpu/reduce.h"

/* ---- batch_norm: x[n][channels][inner] ------------------------------------------------------------------ *
 * y = (x - mean) *
 * invstd * weight + bias. Backward, with h = x - mean and m = n * inner values per channel (m is infinite if
 * running statistics are used):
 *     dbias = sum g, dweight = invstd * sum(g h), dx = weight * invstd * (g - sum g / m - h * invstd^2 *
 *     sum(g h) / m).
 * A unit of work is one channel, read in lines of `inner` floats. If lines are short, a unit is as many
 * channels as fit GPUNN__NORM_WIDTH columns, read row by row. Moments are computed per block about the
 * running mean and merged in double by Chan's formula. Where the running mean is far off, the variance is
 * large anyway. */

typedef struct gpunn__moments {
    /* mean and sum of (x - mean)^2; backward: sums of g and of g h */
    double count, mean_or_sum, squares_or_products;
} gpunn__moments;

typedef struct gpunn__norm {
    int64_t      n, channels, inner, group; /* group: channels per unit */
    bool         by_row, training, add;     /* training: use the batch's moments */
    const float *x, *g, *weight, *bias;
    float       *y;                                          /* or dx; NULL: not needed */
    float       *running_mean, *running_var, *mean, *invstd; /* mean, invstd: saved for backward */
    float       *dweight, *dbias;
    bool         add_weight, add_bias;
    double       eps, momentum;
    /* [channels]; own: receives this rank's sums alone; all: sums over all ranks; NULL: not used */
    gpunn__moments *own, *all;
} gpunn__norm;

GPUNN__INLINE void gpunn__moments_join(gpunn__moments *a, double count, double mean, double square)
{
    double delta = mean - a->mean_or_sum, total = a->count + count;
    a->mean_or_sum += delta * count / total;
    a->squares_or_products += square + delta * delta * a->count * count / total;
    a->count = total;
}

/* sums[0] = sum of a - p, sums[1] = sum of (a - p) (b - q), over `lines` lines of n floats, with 64 partial
 * sums side by side. */
GPUNN__VECTORIZED(gpunn__norm_block,
                  (const float *GPUNN__RESTRICT a, float p, const float *GPUNN__RESTRICT b, float q,
                   int64_t n, int64_t lines, int64_t stride, double sums[2]),
                  (a, p, b, q, n, lines, stride, sums))
{
    float sum[GPUNN__NORM_WIDTH] = {0}, product[GPUNN__NORM_WIDTH] = {0};
    for (; lines > 0; lines--, a += stride, b += stride)
        for (int64_t i = 0; i < n; i += GPUNN__NORM_WIDTH) {
            int64_t width = gpunn__least(n - i, GPUNN__NORM_WIDTH);
            for (int64_t j = 0; j < width; j++) {
                sum[j] += a[i + j] - p;
                product[j] += (a[i + j] - p) * (b[i + j] - q);
            }
        }
    sums[0] = gpunn__sum_row(sum, GPUNN__NORM_WIDTH);
    sums[1] = gpunn__sum_row(product, GPUNN__NORM_WIDTH);
}

/* Processes one channel in blocks of about 2048 floats: several whole lines, or a piece of a longer line.
 * Returns its moments, or, if g is non-NULL, computes sums = {sum g, sum g (x - center)}. */
static gpunn__moments gpunn__channel_moments(const gpunn__norm *b, int64_t channel, const float *g,
                                             float center, double sums[2])
{
    const int64_t  block = 2048, stride = b->channels * b->inner;
    gpunn__moments all = {0, 0, 0};
    const float   *start = b->x + channel * b->inner;
    int64_t        lines = b->inner < block ? block / b->inner : 1, length = gpunn__least(b->inner, block);
    if (!g) center = (float)(gpunn__sum_row(start, length) / (double)length);
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < b->n; i += lines)
        for (int64_t at = 0; at < b->inner; at += block) {
            int64_t offset = i * stride + at, count = gpunn__least(b->n - i, lines),
                    n = gpunn__least(b->inner - at, block);
            const float *x = start + offset;
            double       part[2];
            if (g) {
                gpunn__norm_block(g + channel * b->inner + offset, 0, x, center, n, count, stride, part);
                sums[0] += part[0];
                sums[1] += part[1];
            } else {
                gpunn__norm_block(x, center, x, center, n, count, stride, part);
                double values = (double)(n * count), off = part[0] / values;
                gpunn__moments_join(&all, values, (double)center + off, part[1] - part[0] * off);
                center = (float)all.mean_or_sum;
            }
        }
    return all;
}

/* The same for `count` channels from `first` on, in blocks of rows. */
static void gpunn__norm_rows(const gpunn__norm *b, int64_t first, int64_t count, const float *g,
                             const float *mean, gpunn__moments *moments, double sums[][2])
{
    const int64_t block = 64, stride = b->channels * b->inner, start = first * b->inner,
                  width = count * b->inner;
    gpunn__moments all[GPUNN__NORM_WIDTH];
    double         total[GPUNN__NORM_WIDTH][2];
    float          center[GPUNN__NORM_WIDTH];
    memset(all, 0, sizeof all);
    memset(total, 0, sizeof total);
    for (int64_t j = 0; j < width; j++) center[j] = g ? mean[j / b->inner] : b->x[start + j];
    for (int64_t i = 0; i < b->n; i += block) {
        int64_t rows = gpunn__least(b->n - i, block);
        float   sum[GPUNN__NORM_WIDTH] = {0}, product[GPUNN__NORM_WIDTH] = {0};
        for (int64_t k = 0; k < rows; k++) {
            const float *x = b->x + start + (i + k) * stride, *dy = g ? g + start + (i + k) * stride : NULL;
            if (dy)
                for (int64_t j = 0; j < width; j++) {
                    sum[j] += dy[j];
                    product[j] += dy[j] * (x[j] - center[j]);
                }
            else
                for (int64_t j = 0; j < width; j++) {
                    sum[j] += x[j] - center[j];
                    product[j] += (x[j] - center[j]) * (x[j] - center[j]);
                }
        }
        for (int64_t j = 0; j < width; j++)
            if (g) {
                total[j][0] += (double)sum[j];
                total[j][1] += (double)product[j];
            } else {
                double off = (double)sum[j] / (double)rows;
                gpunn__moments_join(&all[j], (double)rows, (double)center[j] + off,
                                    (double)product[j] - (double)sum[j] * off);
                center[j] = (float)all[j].mean_or_sum;
            }
    }
    for (int64_t c = 0; c < count; c++) {
        int64_t at = c * b->inner;
        for (int64_t j = at + 1; j < at + b->inner; j++) {
            total[at][0] += total[j][0];
            total[at][1] += total[j][1];
            if (!g)
                gpunn__moments_join(&all[at], all[j].count, all[j].mean_or_sum, all[j].squares_or_products);
        }
        moments[c] = all[at];
        sums[c][0] = total[at][0];
        sums[c][1] = total[at][1];
    }
}

/* Forward: y = (x - mean) * scale + shift. Backward: dx (+)= (g - shift - (x - mean) * proj_scale) * scale.
 * Constants are per column, or (single) one for all columns. */
typedef struct gpunn__norm_constants {
    float mean[GPUNN__NORM_WIDTH], scale[GPUNN__NORM_WIDTH], shift[GPUNN__NORM_WIDTH],
        proj_scale[GPUNN__NORM_WIDTH];
} gpunn__norm_constants;

GPUNN__INLINE void gpunn__norm_row(const gpunn__norm_constants *k, const float *GPUNN__RESTRICT x,
                                   float *GPUNN__RESTRICT y, int64_t n, bool single)
{
    float mean = k->mean[0], scale = k->scale[0], shift = k->shift[0];
    for (int64_t i = 0; i < n; i++)
        y[i] = single ? (x[i] - mean) * scale + shift : (x[i] - k->mean[i]) * k->scale[i] + k->shift[i];
}

GPUNN__INLINE void gpunn__norm_dx(const gpunn__norm_constants *k, const float *GPUNN__RESTRICT x,
                                  const float *GPUNN__RESTRICT g, float *GPUNN__RESTRICT dx, int64_t n,
                                  bool single, bool add)
{
    float mean = k->mean[0], scale = k->scale[0], shift = k->shift[0], proj_scale = k->proj_scale[0];
    for (int64_t i = 0; i < n; i++) {
        float value = single ? (g[i] - shift - (x[i] - mean) * proj_scale) * scale
                             : (g[i] - k->shift[i] - (x[i] - k->mean[i]) * k->proj_scale[i]) * k->scale[i];
        dx[i] = add ? dx[i] + value : value;
    }
}

static void gpunn__norm_apply(const gpunn__norm *b, int64_t first, int64_t count, gpunn__norm_constants *k)
{
    int64_t stride = b->channels * b->inner, at = first * b->inner, width = count * b->inner;
    if (b->by_row) /* expand from one constant per channel to one per column, from the end */
        for (int64_t j = width - 1; j >= 0; j--) {
            k->mean[j] = k->mean[j / b->inner];
            k->scale[j] = k->scale[j / b->inner];
            k->shift[j] = k->shift[j / b->inner];
            k->proj_scale[j] = k->proj_scale[j / b->inner];
        }
    for (int64_t i = 0; i < b->n; i++, at += stride)
        if (!b->g)
            GPUNN__FIXED(!b->by_row, gpunn__norm_row, k, b->x + at, b->y + at, width);
        else if (b->by_row)
            GPUNN__FIXED(b->add, gpunn__norm_dx, k, b->x + at, b->g + at, b->y + at, width, false);
        else
            GPUNN__FIXED(b->add, gpunn__norm_dx, k, b->x + at, b->g + at, b->y + at, width, true);
}

static void gpunn__norm_moments(const gpunn__norm *b, int64_t first, int64_t count, gpunn__moments *moments)
{
    double unused[GPUNN__NORM_WIDTH][2];
    if (b->all)
        memcpy(moments, b->all + first, (size_t)count * sizeof *moments);
    else if (b->by_row)
        gpunn__norm_rows(b, first, count, NULL, NULL, moments, unused);
    else
        moments[0] = gpunn__channel_moments(b, first, NULL, 0, unused[0]);
}

static void gpunn__norm_forward_unit(const gpunn__norm *b, int64_t first, int64_t count)
{
    gpunn__moments        moments[GPUNN__NORM_WIDTH];
    gpunn__norm_constants k;
    if (b->training) gpunn__norm_moments(b, first, count, moments);
    for (int64_t i = 0; i < count; i++) {
        int64_t c = first + i;
        double  mean, variance;
        if (b->training) {
            mean = moments[i].mean_or_sum;
            variance = moments[i].squares_or_products / moments[i].count;
            double unbiased = moments[i].squares_or_products / (moments[i].count - 1);
            if (b->running_mean)
                b->running_mean[c] = (float)((1 - b->momentum) * (double)b->running_mean[c] +
                                             b->momentum * mean);
            if (b->running_var)
                b->running_var[c] = (float)((1 - b->momentum) * (double)b->running_var[c] +
                                            b->momentum * unbiased);
        } else {
            mean = (double)b->running_mean[c];
            variance = (double)b->running_var[c];
        }
        double invstd = 1 / sqrt(variance + b->eps);
        if (b->mean) {
            b->mean[c] = (float)mean;
            b->invstd[c] = (float)invstd;
        }
        k.mean[i] = (float)mean;
        k.scale[i] = (float)(invstd * (b->weight ? (double)b->weight[c] : 1));
        k.shift[i] = b->bias ? b->bias[c] : 0;
        k.proj_scale[i] = 0;
    }
    gpunn__norm_apply(b, first, count, &k);
}

/* Computes the sums of backward, and from them the gradients of weight and bias. All are of this rank
 * alone. */
static void gpunn__norm_sums(const gpunn__norm *b, int64_t first, int64_t count, gpunn__moments *all)
{
    gpunn__moments unused[GPUNN__NORM_WIDTH];
    double         sums[GPUNN__NORM_WIDTH][2];
    if (b->by_row)
        gpunn__norm_rows(b, first, count, b->g, b->mean + first, unused, sums);
    else
        (void)gpunn__channel_moments(b, first, b->g, b->mean[first], sums[0]);
    for (int64_t i = 0; i < count; i++) {
        int64_t c = first + i;
        float   dweight = (float)((double)b->invstd[c] * sums[i][1]), dbias = (float)sums[i][0];
        if (b->dweight) b->dweight[c] = (b->add_weight ? b->dweight[c] : 0) + dweight;
        if (b->dbias) b->dbias[c] = (b->add_bias ? b->dbias[c] : 0) + dbias;
        all[i].count = b->training ? (double)(b->n * b->inner) : INFINITY;
        all[i].mean_or_sum = sums[i][0];
        all[i].squares_or_products = sums[i][1];
    }
}

static void gpunn__norm_backward_unit(const gpunn__norm *b, int64_t first, int64_t count)
{
    gpunn__norm_constants k;
    gpunn__moments        sums[GPUNN__NORM_WIDTH];
    if (b->all)
        memcpy(sums, b->all + first, (size_t)count * sizeof *sums);
    else
        gpunn__norm_sums(b, first, count, sums);
    for (int64_t i = 0; i < count; i++) {
        int64_t c = first + i;
        double  invstd = (double)b->invstd[c];
        k.mean[i] = b->mean[c];
        k.scale[i] = (float)(invstd * (b->weight ? (double)b->weight[c] : 1));
        k.shift[i] = (float)(sums[i].mean_or_sum / sums[i].count);
        k.proj_scale[i] = (float)(invstd * invstd * sums[i].squares_or_products / sums[i].count);
    }
    if (b->y) gpunn__norm_apply(b, first, count, &k);
}

GPUNN__VECTORIZED(gpunn__norm_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__norm *b = (const gpunn__norm *)arg;
    int64_t            begin, end;
    gpunn__cpu_part(b->channels, b->group, threads, thread, &begin, &end);
    for (; begin < end; begin += b->group) {
        int64_t count = gpunn__least(end - begin, b->group);
        if (b->own && b->g)
            gpunn__norm_sums(b, begin, count, b->own + begin);
        else if (b->own)
            gpunn__norm_moments(b, begin, count, b->own + begin);
        else if (b->g)
            gpunn__norm_backward_unit(b, begin, count);
        else
            gpunn__norm_forward_unit(b, begin, count);
    }
}

/* Exchanges each rank's moments or sums and merges them in rank order, so that all ranks get the same
 * bits. */
static GPUNN__STATUS gpunn__norm_combine_ranks(gpunn__cpu *cpu, const gpunn_step *step, gpunn__norm *b,
                                               int threads)
{
    const gpunn_ranks *ranks = step->ranks;
    gpunn__moments    *all = (gpunn__moments *)step->workspace;
    b->own = all + ranks->rank * b->channels;
    gpunn_parallel(threads, gpunn__norm_task, b);
    b->own = NULL;
    const gpunn_status status = ranks->gather(ranks->user, all, (size_t)b->channels * sizeof *all);
    if (status != GPUNN_OK) return gpunn__cpu_fail(cpu, status, "the exchange between the ranks failed");
    for (int64_t i = b->channels; i < ranks->size * b->channels; i++) {
        gpunn__moments *sum = &all[i % b->channels];
        if (!b->g) {
            gpunn__moments_join(sum, all[i].count, all[i].mean_or_sum, all[i].squares_or_products);
            continue;
        }
        sum->count += all[i].count;
        sum->mean_or_sum += all[i].mean_or_sum;
        sum->squares_or_products += all[i].squares_or_products;
    }
    b->all = all;
    return GPUNN_OK;
}

/* Channels per unit, at most `most`. Threads share the units evenly, and a unit is whole lines of 16. */
static int64_t gpunn__norm_group(int64_t channels, int64_t most, int threads)
{
    const int64_t units = ((channels + most - 1) / most + threads - 1) / threads * threads;
    return gpunn__least(((channels + units - 1) / units + 15) / 16 * 16, most);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_batch_norm(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *in = step->in;
    gpunn__norm        b;
    b.n = in[0].dim[0];
    b.channels = in[0].dim[1];
    b.inner = in[0].count / (b.n * b.channels);
    if (in[0].channels_last) b.n *= b.inner, b.inner = 1;
    if (action == GPUNN__PREPARE) {
        if (step->training && !step->evaluates && step->ranks == NULL && b.n * b.inner == 1)
            return gpunn__cpu_fail(
                cpu, GPUNN_ERR_SHAPE,
                "expected more than 1 value per channel when training; use a larger batch");
        if (step->training && !step->backward) step->saved_bytes = 2 * (size_t)b.channels * sizeof(float);
        if (step->ranks)
            step->workspace_bytes = (size_t)(step->ranks->size * b.channels) * sizeof(gpunn__moments);
        return GPUNN_OK;
    }
    b.by_row = b.inner < 16;
    const int threads = gpunn__cpu_threads(cpu, in[0].count);
    b.group = b.by_row ? gpunn__norm_group(b.channels, GPUNN__NORM_WIDTH / b.inner, threads) : 1;
    b.training = step->training && !step->evaluates;
    b.eps = (double)step->attr->eps;
    b.momentum = (double)step->attr->momentum;
    b.x = (const float *)in[0].data;
    b.weight = (const float *)in[1].data;
    b.bias = (const float *)in[2].data;
    b.running_mean = (float *)in[3].data;
    b.running_var = (float *)in[4].data;
    b.mean = (float *)step->saved;
    b.invstd = b.mean ? b.mean + b.channels : NULL;
    b.g = NULL;
    b.own = b.all = NULL;
    b.y = (float *)step->out.data;
    b.add = false;
    if (action == GPUNN__BACKWARD) {
        b.g = (const float *)step->grad_out.data;
        b.y = (float *)step->grad_in[0].data;
        b.dweight = (float *)step->grad_in[1].data;
        b.dbias = (float *)step->grad_in[2].data;
        b.add = step->accumulate[0];
        b.add_weight = step->accumulate[1];
        b.add_bias = step->accumulate[2];
    }
    gpunn_status status = step->ranks ? gpunn__norm_combine_ranks(cpu, step, &b, threads) : GPUNN_OK;
    if (status == GPUNN_OK) gpunn_parallel(threads, gpunn__norm_task, &b);
    return status;
}

/* ---- layer_norm and rms_norm: x[rows][n] ---------------------------------------------------------------- *
 * y = h * rstd * weight +
 * bias, with h = x - mean of the row; for rms_norm, h = x. Backward, with k = g * weight:
 *     dbias = sum g, dweight = sum(g h rstd) over the rows, dx = rstd * (k - mean of k - h * rstd^2 * mean of
 *     k h);
 * rms_norm omits the mean of k. Rows are distributed over slices, whose number depends on the shape alone.
 * Each slice sums dweight and dbias of its rows: up to 64 rows in float, then in double. The sums of the
 * slices are added in order. */

enum { GPUNN__ROW_BLOCK = 4 }; /* rows whose gradients are computed together */

typedef struct gpunn__row_norm {
    int64_t      rows, n, slices;
    bool         centered, add, add_weight, add_bias; /* centered: layer_norm */
    const float *x, *g, *weight, *bias;               /* g: in backward; weight and bias may be NULL */
    float       *y;                                   /* or dx; NULL: not needed */
    /* [rows], saved for backward; NULL: not needed. rms_norm has no mean */
    float *rstd, *mean;
    float *dweight, *dbias;
    /* affine: [slices][each]; the first [2][n] of a slice are its sums of dweight and dbias */
    double *partial;
    int64_t each;
    double  eps;
} gpunn__row_norm;

typedef enum gpunn__row_term {
    GPUNN__ROW_MOMENTS, /* x - center */
    GPUNN__ROW_PLAIN,   /* g */
    GPUNN__ROW_SCALED   /* g * weight */
} gpunn__row_term;

/* sums[0] = sum of the terms, sums[1] = sum of term * (x - center). 32 partial sums run side by side over at
 * most 2048 elements; their total is added in double. */
GPUNN__INLINE void gpunn__row_sums(gpunn__row_term kind, const float *GPUNN__RESTRICT x,
                                   const float *GPUNN__RESTRICT g, const float *GPUNN__RESTRICT weight,
                                   float center, int64_t n, double sums[2])
{
    enum { LANES = 32, FEW = 8, BLOCK = 2048 };
#define GPUNN__TERM(at) \
    (kind == GPUNN__ROW_MOMENTS ? x[at] - center : kind == GPUNN__ROW_PLAIN ? g[at] : g[at] * weight[at])
    sums[0] = sums[1] = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t end = gpunn__least(n, start + BLOCK), i = start;
        float   sum[LANES] = {0}, product[LANES] = {0};
        for (; i + LANES <= end; i += LANES) {
            GPUNN__UNROLL
            for (int j = 0; j < LANES; j++) {
                float term = GPUNN__TERM(i + j);
                sum[j] += term;
                product[j] += term * (x[i + j] - center);
            }
        }
        for (; i + FEW <= end; i += FEW)
            for (int j = 0; j < FEW; j++) {
                float term = GPUNN__TERM(i + j);
                sum[j] += term;
                product[j] += term * (x[i + j] - center);
            }
        for (int j = 0; i < end; i++, j++) {
            float term = GPUNN__TERM(i);
            sum[j] += term;
            product[j] += term * (x[i] - center);
        }
        if (end - start >= LANES)
            for (int j = 0; j < FEW; j++) {
                sum[j] += (sum[j + FEW] + sum[j + 2 * FEW]) + sum[j + 3 * FEW];
                product[j] += (product[j + FEW] + product[j + 2 * FEW]) + product[j + 3 * FEW];
            }
        for (int half = FEW / 2; half > 0; half /= 2)
            for (int j = 0; j < half; j++) {
                sum[j] += sum[j + half];
                product[j] += product[j + half];
            }
        sums[0] += (double)sum[0];
        sums[1] += (double)product[0];
    }
#undef GPUNN__TERM
}

GPUNN__VECTORIZED(gpunn__row_gradient_sums,
                  (const float *x, const float *g, const float *weight, float mean, int64_t n,
                   double sums[2]),
                  (x, g, weight, mean, n, sums))
{
    if (weight)
        gpunn__row_sums(GPUNN__ROW_SCALED, x, g, weight, mean, n, sums);
    else
        gpunn__row_sums(GPUNN__ROW_PLAIN, x, g, NULL, mean, n, sums);
}

GPUNN__INLINE void gpunn__row_apply(const float *GPUNN__RESTRICT x, const float *GPUNN__RESTRICT weight,
                                    const float *GPUNN__RESTRICT bias, float *GPUNN__RESTRICT y, float mean,
                                    float rstd, int64_t n, bool affine, bool shifted)
{
    for (int64_t i = 0; i < n; i++) {
        float value = (x[i] - mean) * rstd;
        if (affine) value *= weight[i];
        y[i] = shifted ? value + bias[i] : value;
    }
}

/* Inputs and constants for the gradients of a group of rows. */
typedef struct gpunn__row_block {
    const float *x[GPUNN__ROW_BLOCK], *g[GPUNN__ROW_BLOCK];
    float       *dx[GPUNN__ROW_BLOCK];
    float        mean[GPUNN__ROW_BLOCK], rstd[GPUNN__ROW_BLOCK], shift[GPUNN__ROW_BLOCK],
        proj_scale[GPUNN__ROW_BLOCK];
} gpunn__row_block;

/* Computes dx of the group, or (single) of its first row. affine: also adds their contributions to dweight
 * and dbias to sums[2][n]. */
GPUNN__INLINE void gpunn__row_gradients(const gpunn__row_block *k, const float *weight, float *sums,
                                        int64_t n, bool single, bool affine, bool add)
{
    gpunn__row_block r = *k;
#define GPUNN__ROW(j)                                                                            \
    {                                                                                            \
        float h = r.x[j][i] - r.mean[j], g = r.g[j][i];                                          \
        float value = ((affine ? g * scale : g) - r.shift[j] - h * r.proj_scale[j]) * r.rstd[j]; \
        dweight += g * (h * r.rstd[j]);                                                          \
        dbias += g;                                                                              \
        r.dx[j][i] = add ? r.dx[j][i] + value : value;                                           \
    }
    GPUNN__IVDEP
    for (int64_t i = 0; i < n; i++) {
        float scale = affine ? weight[i] : 1, dweight = 0, dbias = 0;
        GPUNN__ROW(0)
        if (!single) GPUNN__ROW(1)
        if (!single) GPUNN__ROW(2)
        if (!single) GPUNN__ROW(3)
        if (affine) {
            sums[i] += dweight;
            sums[n + i] += dbias;
        }
    }
#undef GPUNN__ROW
}

static void gpunn__row_norm_forward(const gpunn__row_norm *b, int64_t row)
{
    const float *x = b->x + row * b->n;
    float       *y = b->y + row * b->n, center = 0;
    double       sums[2], mean = 0, n = (double)b->n;
    if (b->centered) center = (float)(gpunn__sum_row(x, b->n) / n);
    gpunn__row_sums(GPUNN__ROW_MOMENTS, x, NULL, NULL, center, b->n, sums);
    if (b->centered) { /* corrects for the difference between center and the mean */
        mean = sums[0] / n;
        sums[1] -= sums[0] * mean;
        mean += (double)center;
    }
    float rstd = (float)(1 / sqrt(sums[1] / n + b->eps));
    /* a single value equals its mean and has no gradient */
    if (b->rstd) b->rstd[row] = b->centered && b->n == 1 ? 0 : rstd;
    if (b->mean) b->mean[row] = (float)mean;
    if (b->weight)
        GPUNN__FIXED(b->bias, gpunn__row_apply, x, b->weight, b->bias, y, (float)mean, rstd, b->n, true);
    else
        gpunn__row_apply(x, NULL, NULL, y, (float)mean, rstd, b->n, false, false);
}

/* Backward of the group that starts at `row`, or (single) of that row alone. sums is as above.
 * scratch[GPUNN__ROW_BLOCK][n] receives dx if dx is not needed. */
GPUNN__INLINE void gpunn__row_norm_backward(const gpunn__row_norm *b, int64_t row, bool single, float *sums,
                                            float *scratch)
{
    gpunn__row_block k;
    double           part[2], n = (double)b->n;
    memset(&k, 0, sizeof k);
    for (int j = 0; j < (single ? 1 : GPUNN__ROW_BLOCK); j++) {
        int64_t at = (row + j) * b->n;
        k.x[j] = b->x + at;
        k.g[j] = b->g + at;
        k.dx[j] = b->y ? b->y + at : scratch + j * b->n;
        k.mean[j] = b->mean ? b->mean[row + j] : 0;
        k.rstd[j] = b->rstd[row + j];
        gpunn__row_gradient_sums(k.x[j], k.g[j], b->weight, k.mean[j], b->n, part);
        k.shift[j] = b->centered ? (float)(part[0] / n) : 0;
        k.proj_scale[j] = (float)((double)k.rstd[j] * (double)k.rstd[j] * part[1] / n);
    }
    if (b->weight)
        GPUNN__FIXED(b->add, gpunn__row_gradients, &k, b->weight, sums, b->n, single, true);
    else
        GPUNN__FIXED(b->add, gpunn__row_gradients, &k, NULL, NULL, b->n, single, false);
}

GPUNN__VECTORIZED(gpunn__row_norm_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__row_norm *b = (const gpunn__row_norm *)arg;
    int64_t                slice, end, from, to;
    if (!b->g) {
        gpunn__cpu_part(b->rows, 1, threads, thread, &from, &to);
        for (; from < to; from++) gpunn__row_norm_forward(b, from);
        return;
    }
    gpunn__cpu_part(b->slices, 1, threads, thread, &slice, &end);
    for (; slice < end; slice++) {
        double *total = b->partial ? b->partial + slice * b->each : NULL;
        float  *sums = total ? (float *)(void *)(total + 2 * b->n) : NULL,
              *scratch = total ? sums + 2 * b->n : NULL;
        if (total) memset(total, 0, 2 * (size_t)b->n * sizeof *total);
        gpunn__cpu_part(b->rows, GPUNN__ROW_BLOCK, (int)b->slices, (int)slice, &from, &to);
        while (from < to) {
            int64_t rest = gpunn__least(to, from + 64);
            if (total) memset(sums, 0, 2 * (size_t)b->n * sizeof *sums);
            for (; from + GPUNN__ROW_BLOCK <= rest; from += GPUNN__ROW_BLOCK)
                gpunn__row_norm_backward(b, from, false, sums, scratch);
            for (; from < rest; from++) gpunn__row_norm_backward(b, from, true, sums, scratch);
            for (int64_t j = 0; total && j < 2 * b->n; j++) total[j] += (double)sums[j];
        }
    }
}

/* Adds the sums of the slices. */
GPUNN__VECTORIZED(gpunn__row_norm_finish, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__row_norm *b = (const gpunn__row_norm *)arg;
    int64_t                begin, end, n = b->n;
    gpunn__cpu_part(n, 64, threads, thread, &begin, &end);
    for (int part = 0; part < 2; part++) {
        float  *out = part == 0 ? b->dweight : b->dbias;
        bool    add = part == 0 ? b->add_weight : b->add_bias;
        double *total = b->partial + part * n;
        if (!out) continue;
        for (int64_t slice = 1; slice < b->slices; slice++)
            for (int64_t j = begin; j < end; j++) total[j] += total[slice * b->each + j];
        for (int64_t j = begin; j < end; j++) out[j] = (add ? out[j] : 0) + (float)total[j];
    }
}

static GPUNN__STATUS gpunn__row_norm_step(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action,
                                          bool centered)
{
    const gpunn_value *in = step->in;
    gpunn__row_norm    b;
    memset(&b, 0, sizeof b);
    b.n = 1;
    for (int d = step->attr->axis; d < in[0].rank; d++) b.n *= in[0].dim[d];
    b.rows = in[0].count / b.n;
    b.slices = gpunn__least((b.rows + 15) / 16, 32);
    bool affine = step->backward && in[1].data;
    if (affine) b.each = (step->grad_in[0].data ? 3 : 3 + GPUNN__ROW_BLOCK / 2) * b.n;
    if (action == GPUNN__PREPARE) {
        if (step->training && !step->backward)
            step->saved_bytes = (centered ? 2 : 1) * (size_t)b.rows * sizeof(float);
        if (affine) step->workspace_bytes = (size_t)(b.slices * b.each) * sizeof(double);
        return GPUNN_OK;
    }
    b.centered = centered;
    b.eps = (double)step->attr->eps;
    b.x = (const float *)in[0].data;
    b.weight = (const float *)in[1].data;
    b.bias = (const float *)in[2].data;
    b.rstd = (float *)step->saved;
    b.mean = centered && b.rstd ? b.rstd + b.rows : NULL;
    b.y = (float *)step->out.data;
    if (action == GPUNN__BACKWARD) {
        b.g = (const float *)step->grad_out.data;
        b.y = (float *)step->grad_in[0].data;
        b.dweight = (float *)step->grad_in[1].data;
        b.dbias = (float *)step->grad_in[2].data;
        b.partial = affine ? (double *)step->workspace : NULL;
        b.add = step->accumulate[0];
        b.add_weight = step->accumulate[1];
        b.add_bias = step->accumulate[2];
    }
    gpunn_parallel(gpunn__cpu_threads(cpu, in[0].count), gpunn__row_norm_task, &b);
    if (b.partial) gpunn_parallel(gpunn__cpu_threads(cpu, b.slices * b.n), gpunn__row_norm_finish, &b);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_layer_norm(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__row_norm_step(cpu, step, action, true);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_rms_norm(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__row_norm_step(cpu, step, action, false);
}

/* ---- group_norm: x[n][channels][inner], rows of `group` channels ---------------------------------------- *
 * Like layer_norm of the rows, but with a weight
 * and a bias per channel: y = h * rstd * weight + bias. Backward, with g = dy:
 *     dbias = sum g, dweight = sum(g h rstd) over n and inner,
 *     dx = rstd * (weight g - mean of weight g - h * rstd^2 * mean of weight g h), means over the row. */

typedef struct gpunn__group_norm {
    int64_t      n, channels, group, inner;
    bool         add, add_weight, add_bias;
    const float *x, *g, *weight, *bias; /* g: in backward; weight and bias may be NULL */
    float       *y;                     /* or dx; NULL: not needed */
    float       *rstd, *mean;           /* of each row, saved for backward; NULL: not needed */
    float       *dweight, *dbias;
    double      *partial; /* backward: [n][channels][2], the sums over inner of g and of g h rstd */
    double       eps;
} gpunn__group_norm;

static void gpunn__group_norm_forward(const gpunn__group_norm *b, int64_t row)
{
    int64_t      size = b->group * b->inner, first = row * b->group % b->channels;
    const float *x = b->x + row * size;
    float       *y = b->y + row * size, center = (float)(gpunn__sum_row(x, size) / (double)size);
    double       sums[2];
    gpunn__row_sums(GPUNN__ROW_MOMENTS, x, NULL, NULL, center, size, sums);
    double off = sums[0] / (double)size, rstd = 1 / sqrt((sums[1] - sums[0] * off) / (double)size + b->eps);
    float  mean = (float)((double)center + off);
    if (b->rstd) b->rstd[row] = size == 1 ? 0 : (float)rstd; /* as in layer_norm */
    if (b->mean) b->mean[row] = mean;
    for (int64_t c = 0; c < b->group; c++) {
        float scale = (float)(b->weight ? rstd * (double)b->weight[first + c] : rstd),
              shift = b->bias ? b->bias[first + c] : 0;
        for (int64_t i = c * b->inner; i < (c + 1) * b->inner; i++) y[i] = (x[i] - mean) * scale + shift;
    }
}

GPUNN__INLINE void gpunn__group_norm_dx(const float *GPUNN__RESTRICT x, const float *GPUNN__RESTRICT g,
                                        float *GPUNN__RESTRICT dx, int64_t n, const float k[5], bool add)
{
    float mean = k[0], rstd = k[1], weight = k[2], shift = k[3], proj_scale = k[4];
    for (int64_t i = 0; i < n; i++) {
        float value = (g[i] * weight - shift - (x[i] - mean) * proj_scale) * rstd;
        dx[i] = add ? dx[i] + value : value;
    }
}

static void gpunn__group_norm_backward(const gpunn__group_norm *b, int64_t row)
{
    int64_t start = row * b->group * b->inner, first = row * b->group % b->channels;
    double  sum = 0, product = 0, size = (double)(b->group * b->inner), rstd = (double)b->rstd[row];
    float   mean = b->mean[row];
    for (int64_t c = 0; c < b->group; c++) {
        const float *x = b->x + start + c * b->inner, *g = b->g + start + c * b->inner;
        double       weight = b->weight ? (double)b->weight[first + c] : 1,
               *sums = b->partial + 2 * (row * b->group + c);
        if (b->inner < 16) {
            sums[0] = sums[1] = 0;
            for (int64_t i = 0; i < b->inner; i++) {
                sums[0] += (double)g[i];
                sums[1] += (double)(g[i] * (x[i] - mean));
            }
        } else
            gpunn__row_sums(GPUNN__ROW_PLAIN, x, g, NULL, mean, b->inner, sums);
        sums[1] *= rstd;
        sum += weight * sums[0];
        product += weight * sums[1];
    }
    for (int64_t c = 0; c < b->group && b->y; c++) {
        int64_t at = start + c * b->inner;
        float   k[5] = {mean, (float)rstd, b->weight ? b->weight[first + c] : 1, (float)(sum / size),
                        (float)(rstd * product / size)};
        GPUNN__FIXED(b->add, gpunn__group_norm_dx, b->x + at, b->g + at, b->y + at, b->inner, k);
    }
}

GPUNN__VECTORIZED(gpunn__group_norm_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__group_norm *b = (const gpunn__group_norm *)arg;
    int64_t                  row, end;
    gpunn__cpu_part(b->n * (b->channels / b->group), 1, threads, thread, &row, &end);
    for (; row < end; row++)
        if (b->g)
            gpunn__group_norm_backward(b, row);
        else
            gpunn__group_norm_forward(b, row);
    if (!b->g) return;
    (void)gpunn__thread_barrier();
    gpunn__cpu_part(b->channels, 16, threads, thread, &row, &end);
    for (int64_t c = row; c < end; c++) {
        double sums[2] = {0, 0};
        for (int64_t i = 0; i < b->n; i++) {
            sums[0] += b->partial[2 * (i * b->channels + c)];
            sums[1] += b->partial[2 * (i * b->channels + c) + 1];
        }
        if (b->dbias) b->dbias[c] = (b->add_bias ? b->dbias[c] : 0) + (float)sums[0];
        if (b->dweight) b->dweight[c] = (b->add_weight ? b->dweight[c] : 0) + (float)sums[1];
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_group_norm(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *in = step->in;
    gpunn__group_norm  b;
    memset(&b, 0, sizeof b);
    b.n = in[0].dim[0];
    b.channels = in[0].dim[1];
    b.group = b.channels / step->attr->groups;
    b.inner = in[0].count / (b.n * b.channels);
    int64_t rows = b.n * step->attr->groups;
    if (action == GPUNN__PREPARE) {
        if (step->training && !step->backward) step->saved_bytes = 2 * (size_t)rows * sizeof(float);
        if (step->backward) step->workspace_bytes = 2 * (size_t)(b.n * b.channels) * sizeof(double);
        return GPUNN_OK;
    }
    b.eps = (double)step->attr->eps;
    b.x = (const float *)in[0].data;
    b.weight = (const float *)in[1].data;
    b.bias = (const float *)in[2].data;
    b.rstd = (float *)step->saved;
    b.mean = b.rstd ? b.rstd + rows : NULL;
    b.y = (float *)step->out.data;
    if (action == GPUNN__BACKWARD) {
        b.g = (const float *)step->grad_out.data;
        b.y = (float *)step->grad_in[0].data;
        b.dweight = (float *)step->grad_in[1].data;
        b.dbias = (float *)step->grad_in[2].data;
        b.partial = (double *)step->workspace;
        b.add = step->accumulate[0];
        b.add_weight = step->accumulate[1];
        b.add_bias = step->accumulate[2];
    }
    gpunn_parallel(gpunn__cpu_threads(cpu, in[0].count), gpunn__group_norm_task, &b);
    return GPUNN_OK;
}

/* ---- instance_norm with running statistics -------------------------------------------------------------- *
 * In training it is
 * group_norm with one channel per group. The saved mean and 1 / deviation of each sample update the running
 * statistics. Evaluation uses the running statistics, as batch_norm does. */

static void gpunn__instance_norm_note(const gpunn_step *step)
{
    const int64_t n = step->in[0].dim[0], channels = step->in[0].dim[1],
                  cells = step->in[0].count / (n * channels);
    const float *rstd = (const float *)step->saved, *mean = rstd + n * channels;
    float       *running_mean = (float *)step->in[3].data, *running_var = (float *)step->in[4].data;
    const double share = (double)step->attr->momentum, unbiased = (double)cells / (double)(cells - 1);
    for (int64_t c = 0; c < channels && running_mean; c++) {
        double center = 0, variance = 0;
        for (int64_t i = c; i < n * channels; i += channels) {
            center += (double)mean[i];
            variance += fmax(1 / ((double)rstd[i] * (double)rstd[i]) - (double)step->attr->eps, 0);
        }
        running_mean[c] = (float)((1 - share) * (double)running_mean[c] + share * center / (double)n);
        running_var[c] = (float)((1 - share) * (double)running_var[c] +
                                 share * unbiased * variance / (double)n);
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_instance_norm(gpunn__cpu *cpu, gpunn_step *step,
                                                       gpunn__action action)
{
    if (!step->training || step->evaluates) return gpunn__cpu_batch_norm(cpu, step, action);
    const gpunn_status status = gpunn__cpu_group_norm(cpu, step, action);
    if (status == GPUNN_OK && action == GPUNN__FORWARD) gpunn__instance_norm_note(step);
    return status;
}
