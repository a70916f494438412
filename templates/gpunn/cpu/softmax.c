#include "cpu/softmax.h"
#include "cpu/reduce.h"
#include "cpu/vectors.h"

#ifdef GPUNN__VECTORS
/* gpunn__exp_down of whole vectors, by fused multiply-adds. Numbers below -87 are computed as 0. */
#define GPUNN__EXP_KERNEL(isa, TARGET, LANES)                                                         \
    TARGET GPUNN__INLINE gpunn__##isa gpunn__##isa##_exp(gpunn__##isa x)                              \
    {                                                                                                 \
        const gpunn__##isa        magic = gpunn__##isa##_set(12582912); /* see gpunn__nearest */      \
        const gpunn__##isa##_bits low = x < -87;                                                      \
        x = (gpunn__##isa)((gpunn__##isa##_bits)x & ~low);                                            \
        const gpunn__##isa near = gpunn__##isa##_fma(x, gpunn__##isa##_set(1.44269504f), magic);      \
        const gpunn__##isa n = near - magic;                                                          \
        gpunn__##isa       r = gpunn__##isa##_fma(n, gpunn__##isa##_set(-0.693359375f), x);           \
        r = gpunn__##isa##_fma(n, gpunn__##isa##_set(2.12194440e-4f), r);                             \
        const gpunn__##isa square = r * r;                                                            \
        const gpunn__##isa high = gpunn__##isa##_fma(gpunn__##isa##_set(0.00139465544f), r,           \
                                                     gpunn__##isa##_set(0.00836664438f));             \
        gpunn__##isa       p = gpunn__##isa##_fma(gpunn__##isa##_set(0.0416662805f), r,               \
                                                  gpunn__##isa##_set(0.16666542f));                   \
        p = gpunn__##isa##_fma(gpunn__##isa##_fma(high, square, p), r, gpunn__##isa##_set(0.5f));     \
        p = gpunn__##isa##_fma(p, square, r) + 1;                                                     \
        p *= (gpunn__##isa)(((gpunn__##isa##_bits)near << 23) + (127 << 23));                         \
        return (gpunn__##isa)((gpunn__##isa##_bits)p & ~low);                                         \
    }                                                                                                 \
    TARGET GPUNN__NOINLINE float gpunn__##isa##_exp_line(float *x, int64_t n, float shift)            \
    {                                                                                                 \
        gpunn__##isa sum[2] = {gpunn__##isa##_set(0), gpunn__##isa##_set(0)};                         \
        for (int64_t i = 0; i < n; i += 2 * LANES) {                                                  \
            GPUNN__UNROLL                                                                             \
            for (int u = 0; u < 2; u++) {                                                             \
                gpunn__##isa##_memory *const at = (gpunn__##isa##_memory *)(x + i + u * LANES);       \
                const gpunn__##isa           e = gpunn__##isa##_exp(*at - gpunn__##isa##_set(shift)); \
                *at = e;                                                                              \
                sum[u] += e;                                                                          \
            }                                                                                         \
        }                                                                                             \
        const gpunn__quad q = gpunn__##isa##_fold(sum[0] + sum[1]);                                   \
        return (q[0] + q[2]) + (q[1] + q[3]);                                                         \
    }
#ifdef GPUNN__AVX512
GPUNN__EXP_KERNEL(v16, GPUNN__AVX512, 16)
#endif
#ifdef GPUNN__AVX2
GPUNN__EXP_KERNEL(v8, GPUNN__AVX2, 8)
#endif
#ifdef GPUNN__BASELINE
GPUNN__EXP_KERNEL(v4, GPUNN__BASELINE, 4)
#endif
#undef GPUNN__EXP_KERNEL

GPUNN__INTERNAL float gpunn__exp_values(float *x, int64_t n, float shift)
{
#if defined(GPUNN__LEVELS)
    const int level = gpunn__level();
    if (level == GPUNN__LEVEL_AVX512) return gpunn__v16_exp_line(x, n, shift);
    if (level == GPUNN__LEVEL_AVX2) return gpunn__v8_exp_line(x, n, shift);
    return gpunn__v4_exp_line(x, n, shift);
#elif defined(GPUNN__AVX512)
    return gpunn__v16_exp_line(x, n, shift);
#elif defined(GPUNN__AVX2)
    return gpunn__v8_exp_line(x, n, shift);
#else
    return gpunn__v4_exp_line(x, n, shift);
#endif
}
#else
GPUNN__INTERNAL float gpunn__exp_values(float *GPUNN__RESTRICT x, int64_t n, float shift)
{
    float lane[GPUNN__EXP_LANES] = {0};
    for (int64_t i = 0; i < n; i += GPUNN__EXP_LANES)
        for (int j = 0; j < GPUNN__EXP_LANES; j++) {
            x[i + j] = gpunn__exp_down(x[i + j] - shift);
            lane[j] += x[i + j];
        }
    for (int j = 0; j < 16; j++) lane[j] += lane[16 + j];
    return gpunn__join_lanes(GPUNN__SUM, lane);
}
#endif

/* top[j] = max over i of x[i * stride + j]; sum[j] = sum over i of exp(x[i * stride + j] - top[j]). 1 <=
 * width <= GPUNN__COLUMNS. The terms of the sum are stored to e unless it is NULL. */
GPUNN__INLINE void gpunn__exp_columns(const float *GPUNN__RESTRICT x, int64_t n, int64_t stride,
                                      int64_t width, float *GPUNN__RESTRICT top, float *GPUNN__RESTRICT sum,
                                      float *GPUNN__RESTRICT e)
{
    float buffer[GPUNN__COLUMNS];
    for (int64_t j = 0; j < width; j++) {
        top[j] = x[j];
        sum[j] = 0;
    }
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = 0; j < width; j++) top[j] = gpunn__join(GPUNN__TOP, top[j], x[i * stride + j], 0);
    for (int64_t i = 0; i < n; i++) {
        float *const term = e ? e + i * stride : buffer;
        for (int64_t j = 0; j < width; j++) {
            term[j] = gpunn__exp_down(x[i * stride + j] - top[j]);
            sum[j] += term[j];
        }
    }
}

/* The same for one contiguous row. Returns the sum. */
GPUNN__INLINE float gpunn__exp_row(const float *GPUNN__RESTRICT x, int64_t n, float *top,
                                   float *GPUNN__RESTRICT e)
{
    enum { BLOCK = 512 };
    double total = 0;
    float  buffer[BLOCK], largest = *top = (float)gpunn__reduce_row(GPUNN__TOP, x, n, 0);
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t      count = gpunn__least(n - i, BLOCK);
        float *const term = e ? e + i : buffer;
        for (int64_t k = 0; k < count; k++) term[k] = gpunn__exp_down(x[i + k] - largest);
        total += gpunn__sum_row(term, count);
    }
    return (float)total;
}

GPUNN__INTERNAL void gpunn__exp_sum(const float *x, int64_t n, int64_t inner, int64_t width, float *top,
                                    float *sum, float *e)
{
    if (inner == 1)
        *sum = gpunn__exp_row(x, n, top, e);
    else
        gpunn__exp_columns(x, n, inner, width, top, sum, e);
}

/* Number of units of work: outer x tiles of columns. With inner 1, each row is one tile. */
GPUNN__INLINE int64_t gpunn__along_units(const gpunn__along *a, int64_t *tiles)
{
    *tiles = (a->inner + GPUNN__COLUMNS - 1) / GPUNN__COLUMNS;
    return a->outer * *tiles;
}

/* *at = offset of a unit. Returns its width. */
GPUNN__INLINE int64_t gpunn__along_tile(const gpunn__along *a, int64_t unit, int64_t tiles, int64_t *at)
{
    int64_t outer = tiles > 1 ? unit / tiles : unit, column = (unit - outer * tiles) * GPUNN__COLUMNS;
    *at = outer * a->n * a->inner + column;
    return gpunn__least(a->inner - column, GPUNN__COLUMNS);
}

GPUNN__VECTORIZED(gpunn__softmax_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__along *a = (const gpunn__along *)arg;
    int64_t             begin, end, tiles, units = gpunn__along_units(a, &tiles), n = a->n, inner = a->inner;
    gpunn__cpu_part(units, 1, threads, thread, &begin, &end);
    for (int64_t unit = begin; unit < end; unit++) {
        float                  top[GPUNN__COLUMNS], sum[GPUNN__COLUMNS];
        int64_t                at, width = gpunn__along_tile(a, unit, tiles, &at);
        const float           *x = a->x + at;
        float *GPUNN__RESTRICT y = a->out + at;
        gpunn__exp_sum(x, n, inner, width, top, sum, a->log ? NULL : y);
        for (int64_t j = 0; j < width; j++) sum[j] = a->log ? gpunn__log(sum[j]) : 1 / sum[j];
        float first = top[0], second = sum[0];
        if (inner == 1 && a->log)
            for (int64_t i = 0; i < n; i++) y[i] = x[i] - first - second;
        else if (inner == 1)
            for (int64_t i = 0; i < n; i++) y[i] *= second;
        else if (a->log)
            for (int64_t i = 0; i < n; i++, x += inner, y += inner)
                for (int64_t j = 0; j < width; j++) y[j] = x[j] - top[j] - sum[j];
        else
            for (int64_t i = 0; i < n; i++, y += inner)
                for (int64_t j = 0; j < width; j++) y[j] *= sum[j];
    }
}

/* softmax: dx (+)= y (g - sum g y). log_softmax: dx (+)= g - exp(y) sum g. */
GPUNN__INLINE void gpunn__softmax_dx(float *GPUNN__RESTRICT dx, const float *GPUNN__RESTRICT y,
                                     const float *GPUNN__RESTRICT g, const float *sum, bool single, int64_t n,
                                     bool log, bool add)
{
    float sum0 = sum[0];
    for (int64_t i = 0; i < n; i++) {
        float s = single ? sum0 : sum[i], value = log ? g[i] - gpunn__exp_down(y[i]) * s : y[i] * (g[i] - s);
        dx[i] = add ? dx[i] + value : value;
    }
}

GPUNN__INLINE void gpunn__softmax_gradient(const gpunn__along *a, int64_t begin, int64_t end, int64_t tiles,
                                           bool log)
{
    int64_t n = a->n, inner = a->inner;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t      at, width = gpunn__along_tile(a, unit, tiles, &at);
        const float *y = a->y + at, *g = a->gradient + at;
        float       *dx = a->out + at;
        if (inner == 1) {
            enum { LANES = 16 };
            float   lane[LANES] = {0}, sum = 0;
            int64_t i = 0;
            for (; i + LANES <= n; i += LANES)
                for (int j = 0; j < LANES; j++) lane[j] += log ? g[i + j] : g[i + j] * y[i + j];
            for (; i < n; i++) sum += log ? g[i] : g[i] * y[i];
            sum += gpunn__join_lanes(GPUNN__SUM, lane);
            GPUNN__FIXED(a->add, gpunn__softmax_dx, dx, y, g, &sum, true, n, log);
        } else {
            float sum[GPUNN__COLUMNS];
            for (int64_t j = 0; j < width; j++) sum[j] = 0;
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < width; j++)
                    sum[j] += log ? g[i * inner + j] : g[i * inner + j] * y[i * inner + j];
            for (int64_t i = 0; i < n; i++, y += inner, g += inner, dx += inner)
                GPUNN__FIXED(a->add, gpunn__softmax_dx, dx, y, g, sum, false, width, log);
        }
    }
}

GPUNN__VECTORIZED(gpunn__softmax_gradient_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__along *a = (const gpunn__along *)arg;
    int64_t             begin, end, tiles, units = gpunn__along_units(a, &tiles);
    gpunn__cpu_part(units, 1, threads, thread, &begin, &end);
    GPUNN__FIXED(a->log, gpunn__softmax_gradient, a, begin, end, tiles);
}

static GPUNN__STATUS gpunn__softmax_run(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action, bool log)
{
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    gpunn__along a;
    gpunn__along_axis(&a, &step->in[0], step->attr->axis);
    a.x = (const float *)step->in[0].data;
    a.y = (const float *)step->out.data;
    a.gradient = (const float *)step->grad_out.data;
    a.out = (float *)(step->backward ? step->grad_in[0].data : step->out.data);
    a.add = step->backward && step->accumulate[0];
    a.log = log;
    gpunn_parallel(gpunn__cpu_threads(cpu, 3 * step->in[0].count),
                   step->backward ? gpunn__softmax_gradient_task : gpunn__softmax_task, &a);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_softmax(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__softmax_run(cpu, step, action, false);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_log_softmax(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__softmax_run(cpu, step, action, true);
}

/* ---- logcumsumexp ---------------------------------------------------------------------------------------
 * y[i] is the log of the sum of exp(x[j]) over j <= i, and dx[i] is exp(x[i]) times the sum of
 * g[j] exp(-y[j]) over j >= i. Both passes sum w exp(t) in units of exp(top), where top is the largest t so
 * far. Forward t is x and w is 1, backward t is -y and w is g. If t equals top, exp(t - top) is 1, also of
 * infinities. */

/* Adds w exp(t) to a sum of such terms in units of exp(*top). */
GPUNN__INLINE double gpunn__add_exp(double sum, float *top, float t, double w)
{
    const bool   higher = t > *top;
    const double e = (double)gpunn__exp_down(
        gpunn__select(t == *top, 0, gpunn__select(higher, *top - t, t - *top)));
    *top = gpunn__select(higher, t, *top);
    return higher ? sum * e + w : sum + w * e;
}

GPUNN__INLINE void gpunn__logcumsumexp_row(const gpunn__along *a, int64_t at, int64_t width, float *top,
                                           double *sum)
{
    for (int64_t j = 0; j < width; j++) {
        sum[j] = gpunn__add_exp(sum[j], &top[j], a->x[at + j], 1);
        a->out[at + j] = top[j] + gpunn__log((float)sum[j]);
    }
}

/* The gradient of an x of -inf is 0. */
GPUNN__INLINE void gpunn__logcumsumexp_back(const gpunn__along *a, int64_t at, int64_t width, float *top,
                                            double *sum)
{
    for (int64_t j = 0; j < width; j++) {
        const float x = a->x[at + j], y = a->y[at + j];
        sum[j] = gpunn__add_exp(sum[j], &top[j], -y, (double)a->gradient[at + j]);
        const float share = x == y ? (x < -FLT_MAX ? 0 : 1) : gpunn__exp_down(x - y),
                    dx = share * (float)sum[j];
        a->out[at + j] = a->add ? a->out[at + j] + dx : dx;
    }
}

GPUNN__VECTORIZED(gpunn__logcumsumexp_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__along *a = (const gpunn__along *)arg;
    int64_t             unit, end, tiles, units = gpunn__along_units(a, &tiles);
    gpunn__cpu_part(units, 1, threads, thread, &unit, &end);
    for (; unit < end; unit++) {
        float   top[GPUNN__COLUMNS];
        double  sum[GPUNN__COLUMNS] = {0};
        int64_t at, width = gpunn__along_tile(a, unit, tiles, &at);
        for (int64_t j = 0; j < width; j++) top[j] = -INFINITY;
        for (int64_t i = 0; i < a->n; i++)
            if (a->gradient)
                gpunn__logcumsumexp_back(a, at + (a->n - 1 - i) * a->inner, width, top, sum);
            else
                gpunn__logcumsumexp_row(a, at + i * a->inner, width, top, sum);
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_logcumsumexp(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__along a;
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    gpunn__along_axis(&a, &step->in[0], step->attr->axis);
    a.x = (const float *)step->in[0].data;
    a.y = (const float *)step->out.data;
    a.gradient = step->backward ? (const float *)step->grad_out.data : NULL;
    a.out = (float *)(step->backward ? step->grad_in[0].data : step->out.data);
    a.add = step->backward && step->accumulate[0];
    gpunn_parallel(gpunn__cpu_threads(cpu, 4 * step->in[0].count), gpunn__logcumsumexp_task, &a);
    return GPUNN_OK;
}
