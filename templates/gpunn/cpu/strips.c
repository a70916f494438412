#include "cpu/conv.h"

/* ==== >>cpu/strips ======================================================================================= *
 * Convolutions that follow each other, computed together in strips: a few rows of the last result at a time.
 * Of the results between them only the rows that the strip needs exist, so they stay in the cache. */
enum { GPUNN__STAGES = 8 }; /* convolutions that are computed together, at most */

/* Rows of an image. */
typedef struct gpunn__lines {
    int64_t begin, end;
} gpunn__lines;

/* One of the convolutions. */
typedef struct gpunn__stage {
    gpunn__conv v;
    float      *packed;   /* weights */
    float      *result;   /* [thread][capacity][ow][oc]; unused by the last one */
    int64_t     capacity; /* rows */
} gpunn__stage;

typedef struct gpunn__strips {
    gpunn__stage stage[GPUNN__STAGES];
    int          last;   /* index of the last stage */
    int64_t      height; /* rows of the last result in a strip */
    int64_t      count;  /* strips of an image */
} gpunn__strips;

/* Rows of x under these rows of the result. */
static gpunn__lines gpunn__lines_under(const gpunn__conv *v, gpunn__lines y)
{
    gpunn__lines x = {y.begin * v->sh - v->ph, (y.end - 1) * v->sh - v->ph + (v->kh - 1) * v->dh + 1};
    if (x.begin < 0) x.begin = 0;
    if (x.end > v->h) x.end = v->h;
    return x;
}

static int64_t gpunn__row_floats(const gpunn__conv *v)
{
    return v->ow * v->oc;
}

/* A thread's rows of a stage's result. */
static float *gpunn__stage_result(const gpunn__stage *s, int index)
{
    return s->result + index * s->capacity * gpunn__row_floats(&s->v);
}

/* Moves the rows that the next strip needs too to the front. Returns those that are still to be computed. */
static gpunn__lines gpunn__stage_keep(const gpunn__stage *s, int index, gpunn__lines held,
                                      gpunn__lines wanted)
{
    const int64_t row = gpunn__row_floats(&s->v);
    float *const  to = gpunn__stage_result(s, index);
    gpunn__lines  missing = wanted;
    if (held.end <= wanted.begin) return missing;
    memmove(to, to + (wanted.begin - held.begin) * row,
            (size_t)((held.end - wanted.begin) * row) * sizeof *to);
    missing.begin = held.end;
    return missing;
}

static void gpunn__stage_compute(const gpunn__stage *s, const gpunn__conv *v, gpunn__lines rows)
{
    if (!gpunn__conv_is_depthwise(v)) {
        gpunn__pointwise_rows(v, s->packed, rows.begin, rows.end);
        return;
    }
    for (int64_t line = rows.begin; line < rows.end; line++)
        gpunn__depthwise_line(v, s->packed, line, 0, v->ow);
}

/* Computes the rows of one stage that a strip needs. rows: by stage; held: those of its last strip. */
static void gpunn__stage_run(const gpunn__strips *all, int i, int index, int64_t image,
                             const gpunn__lines *rows, const gpunn__lines *held)
{
    const gpunn__stage *s = &all->stage[i];
    const int64_t       pixels = s->v.oh * s->v.ow;
    gpunn__conv         v = s->v;
    gpunn__lines        missing = rows[i];
    v.x += image * v.h * v.w * v.c;
    if (v.residual) v.residual += image * pixels * v.oc;
    if (i > 0) v.x = gpunn__stage_result(s - 1, index), v.x_first = rows[i - 1].begin;
    if (i == all->last) {
        v.y += image * pixels * v.oc;
    } else {
        missing = gpunn__stage_keep(s, index, held[i], rows[i]);
        v.y = gpunn__stage_result(s, index), v.y_first = rows[i].begin;
    }
    gpunn__stage_compute(s, &v, missing);
}

/* A thread's share: strips that follow each other. */
static void gpunn__strips_task(void *arg, int index, int threads)
{
    const gpunn__strips *all = (const gpunn__strips *)arg;
    const gpunn__conv   *end = &all->stage[all->last].v;
    gpunn__lines         rows[GPUNN__STAGES], held[GPUNN__STAGES];
    int64_t              strip, strip_end;
    memset(held, 0, sizeof held);
    gpunn__cpu_part(end->n * all->count, 1, threads, index, &strip, &strip_end);
    for (; strip < strip_end; strip++) {
        const int64_t first = strip % all->count * all->height;
        if (first == 0) memset(held, 0, sizeof held);
        rows[all->last].begin = first, rows[all->last].end = gpunn__least(first + all->height, end->oh);
        for (int i = all->last; i > 0; i--) rows[i - 1] = gpunn__lines_under(&all->stage[i].v, rows[i]);
        for (int i = 0; i <= all->last; i++) gpunn__stage_run(all, i, index, strip / all->count, rows, held);
        memcpy(held, rows, sizeof held);
    }
}

/* Sets the capacities for strips of `height` rows, and returns the floats of all results of a thread. */
static int64_t gpunn__strips_of(gpunn__strips *all, int64_t height)
{
    int64_t floats = 0, rows = height;
    all->height = height;
    all->count = (all->stage[all->last].v.oh + height - 1) / height;
    for (int i = all->last; i > 0; i--) {
        const gpunn__conv *v = &all->stage[i].v;
        rows = gpunn__least((rows - 1) * v->sh + (v->kh - 1) * v->dh + 1, v->h);
        all->stage[i - 1].capacity = rows;
        floats += rows * gpunn__row_floats(&all->stage[i - 1].v);
    }
    return floats;
}

/* Chooses the most rows for which the results stay in a part of the cache. */
static void gpunn__strips_choose(gpunn__strips *all)
{
    enum { CACHED = 96 << 10 }; /* floats */
    int64_t height = 1;
    while (height < all->stage[all->last].v.oh && gpunn__strips_of(all, height + 1) <= CACHED) height++;
    (void)gpunn__strips_of(all, height);
}

/* Describes the convolution of a step. Its cache keeps the packed weights. */
static void gpunn__stage_open(gpunn__stage *s, gpunn__cpu *cpu, gpunn_step *step, gpunn__space *space)
{
    s->v = gpunn__conv_shape(cpu, step);
    gpunn__conv_epilogue(step, &s->v, space);
    s->packed = (float *)step->cache;
    step->cache_bytes = gpunn__conv_is_depthwise(&s->v)
                            ? (size_t)gpunn__depthwise_floats(&s->v) * sizeof(float)
                            : gpunn__gemm_packed_b_bytes(s->v.c, s->v.oc);
    if (space->base == NULL || step->cache_version == step->state->weights_version) return;
    (gpunn__conv_is_depthwise(&s->v) ? gpunn__depthwise_pack : gpunn__pointwise_pack)(&s->v, s->packed);
    step->cache_version = step->state->weights_version;
}

GPUNN__INTERNAL void gpunn__cpu_run_strips(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const bool    run = action != GPUNN__PREPARE, inner = step->fused->strips < 0;
    gpunn__strips all;
    gpunn__cpu    alone;
    gpunn__space  space = {run ? (float *)step->workspace : NULL, 0};
    int           threads = 1;
    if (run && inner) return; /* a later step computes it */
    memset(&alone, 0, sizeof alone);
    alone.threads = 1;
    all.last = inner ? 0 : step->fused->strips;
    for (int i = 0; i <= all.last; i++) {
        gpunn__stage_open(&all.stage[i], cpu, step - all.last + i, &space);
        all.stage[i].v.cpu = &alone;
        if (all.stage[i].v.threads > threads) threads = all.stage[i].v.threads;
    }
    gpunn__strips_choose(&all);
    for (gpunn__stage *s = all.stage; s < all.stage + all.last; s++)
        s->result = gpunn__take(&space, threads * s->capacity * gpunn__row_floats(&s->v));
    if (run) gpunn_parallel(threads, gpunn__strips_task, &all);
    step->workspace_bytes = inner ? 0 : space.bytes;
}

/* Whether strips of a step's convolution can be computed. */
static bool gpunn__has_strips(const gpunn__cpu *cpu, const gpunn_step *step)
{
    if (step->op != GPUNN_OP_CONV2D || step->backward || step->training) return false;
    const gpunn__conv v = gpunn__conv_shape(cpu, step);
    return v.last && !v.planes && v.dh == 1 && v.ph < v.kh &&
           (gpunn__conv_is_depthwise(&v) || (gpunn__conv_is_pointwise(&v) && v.groups == 1));
}

GPUNN__INTERNAL bool gpunn__cpu_strips(void *context, const gpunn_step *steps)
{
    enum { LARGE = 1 << 18 }; /* floats that a thread's cache would not keep */
    const gpunn__cpu *cpu = (const gpunn__cpu *)context;
    return gpunn__has_strips(cpu, &steps[0]) && gpunn__has_strips(cpu, &steps[1]) &&
           steps[0].fused->strips + 2 <= GPUNN__STAGES && !steps[0].fused->residual.data &&
           steps[0].out.count >= (int64_t)LARGE * cpu->threads;
}
