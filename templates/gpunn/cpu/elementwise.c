#include "cpu/elementwise.h"
#include "base/device.h"
#include "graph/arguments.h"
#include "cpu/levels.h"
#include "cpu/context.h"

/* Computes to[i] = the op, or one of its derivatives, for lines * GPUNN__LANES elements. from[0 .. 2] are the
 * operands, from[3] the result, from[4] its gradient. An entry that the formula does not use may be NULL. to
 * may alias an entry of from. */
typedef void (*gpunn__loop)(int64_t lines, const float *const *from, const float *attr, float *to);

/* gcc vectorizes little below -O3. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define GPUNN__OPTIMIZED
#pragma GCC push_options
#pragma GCC optimize("O2", "tree-vectorize", "vect-cost-model=dynamic")
#endif

/* The language of the ops' tables. The macros map it to C. */
#define x from[0][i]
#define a from[0][i]
#define b from[1][i]
#define c from[2][i]
#define y from[3][i]
#define g from[4][i]
#define K(number) number##f
#define where(condition, yes, no) gpunn__select((condition) != 0, (float)(yes), (float)(no))
#define min(p, q) gpunn__min(p, q)
#define max(p, q) gpunn__max(p, q)
#define abs(p) fabsf(p)
#define sign(p) gpunn__sign(p)
#define floor(p) floorf(p)
#define exp(p) gpunn__exp(p)
#define expm1(p) gpunn__expm1(p)
#define log(p) gpunn__log(p)
#define log1p(p) gpunn__log1p(p)
#define sqrt(p) gpunn__sqrt(p)
#define tanh(p) gpunn__tanh(p)
#define erf(p) gpunn__erf(p)
#define sigmoid(p) gpunn__sigmoid(p)
#define sin(p) sinf(p)
#define cos(p) cosf(p)
#define pow(p, q) powf(p, q)
#define floordiv(p, q) gpunn__floordiv(p, q)
#define exp2(p) gpunn__exp2(p)
#define log2(p) gpunn__log2(p)
#define log10(p) gpunn__log10(p)
#define sinh(p) gpunn__sinh(p)
#define cosh(p) gpunn__cosh(p)
#define atan2(p, q) gpunn__atan2(p, q)
#define hypot(p, q) gpunn__hypot(p, q)
#define fmod(p, q) fmodf(p, q)
#define remainder(p, q) gpunn__remainder(p, q)

#define GPUNN__CONSTANT(name, i) \
    const float name = attr[i];  \
    (void)name;
/* The condition is i != n rather than i < n, which shows gcc that the count is a whole number of vectors. */
#define GPUNN__LOOP(function, constants, text)                                                           \
    GPUNN__VECTORIZED(function, (int64_t lines, const float *const *from, const float *attr, float *to), \
                      (lines, from, attr, to))                                                           \
    {                                                                                                    \
        constants(void) from, (void)attr;                                                                \
        GPUNN__IVDEP                                                                                     \
        for (int64_t i = 0, n = lines * GPUNN__LANES; i != n; ++i) to[i] = (float)(text);                \
    }
#define GPUNN__LOOPS(name, constants, f, dx) \
    GPUNN__LOOP(gpunn__loop_##name, constants, f) GPUNN__LOOP(gpunn__loop_##name##_da, constants, dx)
#define GPUNN__LOOPS2(name, constants, f, da, db) \
    GPUNN__LOOPS(name, constants, f, da) GPUNN__LOOP(gpunn__loop_##name##_db, constants, db)

#define GPUNN__X(ENUM, name, f, dx) GPUNN__LOOPS(name, , f, dx)
GPUNN_UNARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, f, dx) GPUNN__LOOPS(name, GPUNN__CONSTANT(attr1, 0), f, dx)
GPUNN_UNARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, attr2, value2, f, dx) \
    GPUNN__LOOPS(name, GPUNN__CONSTANT(attr1, 0) GPUNN__CONSTANT(attr2, 1), f, dx)
GPUNN_UNARY2_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, f, da, db) GPUNN__LOOPS2(name, , f, da, db)
GPUNN_BINARY_OPS(GPUNN__X)
GPUNN_LOSS_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, f, da, db) \
    GPUNN__LOOPS2(name, GPUNN__CONSTANT(attr1, 0), f, da, db)
GPUNN_LOSS1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, f, da, db, dc) \
    GPUNN__LOOPS2(name, , f, da, db) GPUNN__LOOP(gpunn__loop_##name##_dc, , dc)
GPUNN_TERNARY_OPS(GPUNN__X)
#undef GPUNN__X

#undef x
#undef a
#undef b
#undef c
#undef y
#undef g
#undef K
#undef where
#undef min
#undef max
#undef abs
#undef sign
#undef floor
#undef exp
#undef expm1
#undef log
#undef log1p
#undef sqrt
#undef tanh
#undef erf
#undef sigmoid
#undef sin
#undef cos
#undef pow
#undef floordiv
#undef exp2
#undef log2
#undef log10
#undef sinh
#undef cosh
#undef atan2
#undef hypot
#undef fmod
#undef remainder
#undef GPUNN__CONSTANT
#undef GPUNN__LOOP
#undef GPUNN__LOOPS
#undef GPUNN__LOOPS2

typedef struct gpunn__loops {
    gpunn__loop forward, derivative[3];
} gpunn__loops;

enum {
    GPUNN__MAP_CHUNK = 1024,      /* floats of scratch per operand */
    GPUNN__MAP_PART = 32768,      /* minimum results per part of a sum ... */
    GPUNN__MAP_PARTIALS = 1 << 18 /* ... and maximum partial sums, unless one part has more */
};

typedef struct gpunn__map_job {
    const gpunn_step   *step;
    const gpunn__loops *loops;
    int                 operands;
    bool                broadcast[3]; /* operand i is broadcast */
    /* the gradient of operand i is needed, and is a sum because of the broadcast */
    bool        sums[3];
    gpunn__walk axes; /* of the result, with each operand's strides */
    /* operand i, expanded to the result's shape, repeats after this many elements */
    int64_t period[3];
    int64_t chunk;
    int     parts;      /* of the result, each computed by one thread */
    double *partial[3]; /* [parts][operand's count] */
} gpunn__map_job;

/* Position in the result and in one operand, for a walk along the runs of dim[0]. */
typedef struct gpunn__map_walk {
    int64_t index[GPUNN_MAX_RANK], offset;
} gpunn__map_walk;

static gpunn__map_walk gpunn__map_start(const gpunn__map_job *job, int operand, int64_t at)
{
    gpunn__map_walk walk;
    walk.offset = 0;
    for (int d = 0; d < job->axes.rank; ++d) {
        walk.index[d] = at % job->axes.dim[d];
        walk.offset += walk.index[d] * job->axes.stride[operand][d];
        at /= job->axes.dim[d];
    }
    return walk;
}

/* Elements left in this run, at most n. */
GPUNN__INLINE int64_t gpunn__map_run(const gpunn__map_job *job, const gpunn__map_walk *walk, int64_t n)
{
    int64_t left = job->axes.dim[0] - walk->index[0];
    return left < n ? left : n;
}

GPUNN__INLINE void gpunn__map_advance(const gpunn__map_job *job, int operand, gpunn__map_walk *walk,
                                      int64_t run)
{
    const int64_t *stride = job->axes.stride[operand];
    walk->index[0] += run;
    walk->offset += run * stride[0];
    for (int d = 0; walk->index[d] == job->axes.dim[d] && d + 1 < job->axes.rank; ++d) {
        walk->offset += stride[d + 1] - stride[d] * job->axes.dim[d];
        walk->index[d] = 0;
        ++walk->index[d + 1];
    }
}

/* The broadcast operand's values for result[at .. at + n): in place where contiguous, else copied into
 * scratch. */
static const float *gpunn__map_expand(const gpunn__map_job *job, int operand, int64_t at, int64_t n,
                                      float *scratch)
{
    const float    *data = (const float *)job->step->in[operand].data;
    gpunn__map_walk walk = gpunn__map_start(job, operand, at);
    bool            moves = job->axes.stride[operand][0] != 0;
    for (int64_t done = 0, run; done < n; done += run) {
        const float *from = data + walk.offset;
        run = gpunn__map_run(job, &walk, n - done);
        if (moves && run == n) return from;
        if (moves)
            memcpy(scratch + done, from, (size_t)run * sizeof *from);
        else
            for (int64_t i = 0; i < run; ++i) scratch[done + i] = *from;
        gpunn__map_advance(job, operand, &walk, run);
    }
    return scratch;
}

/* Sums at most one chunk, so float lanes are accurate enough. */
static double gpunn__map_sum(const float *values, int64_t n)
{
    double  sum = 0;
    int64_t i = 0;
    if (n >= 16) {
        float lane[16] = {0};
        for (; i + 16 <= n; i += 16)
            for (int j = 0; j < 16; ++j) lane[j] += values[i + j];
        for (int width = 8; width > 0; width /= 2)
            for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
        sum = lane[0];
    }
    for (; i < n; ++i) sum += values[i];
    return sum;
}

/* The adjoint of expanding: sum += values, which belong to result[at .. at + n). */
static void gpunn__map_fold(const gpunn__map_job *job, int operand, int64_t at, int64_t n,
                            const float *values, double *sum)
{
    gpunn__map_walk walk = gpunn__map_start(job, operand, at);
    for (int64_t done = 0, run; done < n; done += run) {
        double *GPUNN__RESTRICT to = sum + walk.offset;
        run = gpunn__map_run(job, &walk, n - done);
        if (job->axes.stride[operand][0] != 0)
            for (int64_t i = 0; i < run; ++i) to[i] += values[done + i];
        else
            *to += gpunn__map_sum(values + done, run);
        gpunn__map_advance(job, operand, &walk, run);
    }
}

/* Runs the loop on n elements. A last part shorter than a line is copied to a buffer, padded with its first
 * element. */
static void gpunn__map_loop(gpunn__loop loop, int64_t n, const float *const *from, const float *attr,
                            float *to)
{
    const int64_t whole = n - n % GPUNN__LANES, rest = n - whole;
    if (whole) loop(whole / GPUNN__LANES, from, attr, to);
    if (rest == 0) return;
    float        copy[5][GPUNN__LANES], result[GPUNN__LANES];
    const float *of[5];
    for (int i = 0; i < 5; i++) {
        of[i] = copy[i];
        for (int64_t j = 0; from[i] && j < GPUNN__LANES; j++)
            copy[i][j] = from[i][whole + (j < rest ? j : 0)];
    }
    loop(1, of, attr, result);
    memcpy(to + whole, result, (size_t)rest * sizeof *to);
}

static void gpunn__map_part(const gpunn__map_job *job, int part)
{
    const gpunn_step *step = job->step;
    const float      *attr = step->attr->value, *from[5] = {NULL, NULL, NULL, NULL, NULL};
    float             scratch[3][GPUNN__MAP_CHUNK], derivative[GPUNN__MAP_CHUNK];
    int64_t           begin, end;
    gpunn__cpu_part(step->out.count, job->chunk, job->parts, part, &begin, &end);
    for (int64_t at = begin, n; at < end; at += n) {
        n = end - at < job->chunk ? end - at : job->chunk;
        for (int i = 0; i < job->operands; ++i) {
            const float *data = (const float *)step->in[i].data;
            if (data == NULL) continue;
            if (!job->broadcast[i])
                from[i] = data + at;
            else if (at == begin || job->chunk % job->period[i] != 0)
                from[i] = gpunn__map_expand(job, i, at, n, scratch[i]);
        }
        if (!step->backward) {
            gpunn__map_loop(job->loops->forward, n, from, attr, (float *)step->out.data + at);
            continue;
        }
        if (step->out.data) from[3] = (const float *)step->out.data + at;
        from[4] = (const float *)step->grad_out.data + at;
        for (int i = 0; i < job->operands; ++i) {
            float *to = (float *)step->grad_in[i].data;
            if (to == NULL) continue;
            bool direct = !job->sums[i] && !step->accumulate[i];
            gpunn__map_loop(job->loops->derivative[i], n, from, attr, direct ? to + at : derivative);
            if (job->sums[i])
                gpunn__map_fold(job, i, at, n, derivative, job->partial[i] + part * step->in[i].count);
            else if (!direct)
                for (int64_t j = 0; j < n; ++j) to[at + j] += derivative[j];
        }
    }
}

GPUNN__VECTORIZED(gpunn__map_task, (void *arg, int index, int threads), (arg, index, threads))
{
    const gpunn__map_job *job = (const gpunn__map_job *)arg;
    int64_t               begin, end;
    gpunn__cpu_part(job->parts, 1, threads, index, &begin, &end);
    for (; begin < end; ++begin) gpunn__map_part(job, (int)begin);
}

/* Computes axes and period. */
static void gpunn__map_merge(gpunn__map_job *job)
{
    const gpunn_value *value[3] = {NULL, NULL, NULL};
    for (int i = 0; i < job->operands; i++) value[i] = &job->step->in[i];
    gpunn__axes_of(&job->step->out, 0, value, job->operands, &job->axes, &job->axes);
    for (int i = 0; i < job->operands; i++) {
        int64_t total = job->period[i] = 1;
        for (int d = 0; d < job->axes.rank; d++) {
            total *= job->axes.dim[d];
            if (job->axes.stride[i][d] != 0) job->period[i] = total;
        }
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_map(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action,
                                             const gpunn__loops *loops)
{
    gpunn__map_job job;
    int64_t        count = step->out.count, partials = 0;
    bool           broadcast = false, buffered = false;
    job.step = step;
    job.loops = loops;
    job.operands = step->input_count;
    for (int i = 0; i < job.operands; ++i) {
        job.broadcast[i] = step->in[i].count != count;
        job.sums[i] = job.broadcast[i] && step->backward && step->grad_in[i].data != NULL;
        broadcast |= job.broadcast[i];
        buffered |= job.broadcast[i] || (step->backward && step->accumulate[i]);
        if (job.sums[i]) partials += step->in[i].count;
    }
    /* partial sums are split by shape alone, so the number of threads does not change the result */
    if (partials) {
        int64_t parts = count / GPUNN__MAP_PART, most = GPUNN__MAP_PARTIALS / partials;
        if (parts > most) parts = most;
        job.parts = (int)gpunn__clamp(parts, 1, 64);
    } else
        job.parts = gpunn__cpu_threads(cpu, count);
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = (size_t)(job.parts * partials) * sizeof(double);
        return GPUNN_OK;
    }

    job.chunk = buffered ? GPUNN__MAP_CHUNK : 8 * GPUNN__MAP_CHUNK;
    if (broadcast) {
        gpunn__map_merge(&job);
        int64_t longest = 1; /* longest period that fits: chunks of a multiple of it are expanded only once */
        for (int i = 0; i < job.operands; ++i)
            if (job.broadcast[i] && job.period[i] > longest && job.period[i] <= job.chunk)
                longest = job.period[i];
        job.chunk -= job.chunk % longest;
    }
    if (partials) {
        double *free_space = (double *)step->workspace;
        memset(free_space, 0, (size_t)(job.parts * partials) * sizeof *free_space);
        for (int i = 0; i < job.operands; ++i) {
            if (!job.sums[i]) continue;
            job.partial[i] = free_space;
            free_space += job.parts * step->in[i].count;
        }
    }
    int threads = gpunn__cpu_threads(cpu, count);
    gpunn_parallel(threads < job.parts ? threads : job.parts, gpunn__map_task, &job);
    for (int i = 0; i < job.operands; ++i) {
        if (!job.sums[i]) continue;
        float  *to = (float *)step->grad_in[i].data;
        int64_t elements = step->in[i].count;
        for (int64_t j = 0; j < elements; ++j) {
            double sum = step->accumulate[i] ? to[j] : 0;
            for (int part = 0; part < job.parts; ++part) sum += job.partial[i][part * elements + j];
            to[j] = (float)sum;
        }
    }
    return GPUNN_OK;
}

/* One function per op, so that a program contains only the loops of the ops that it uses. */
#define GPUNN__MAP(name, ...)                                                                               \
    GPUNN__INTERNAL gpunn_status gpunn__cpu_##name(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action) \
    {                                                                                                       \
        static const gpunn__loops loops = {gpunn__loop_##name, {__VA_ARGS__}};                              \
        return gpunn__cpu_map(cpu, step, action, &loops);                                                   \
    }
#define GPUNN__X(ENUM, name, ...) GPUNN__MAP(name, gpunn__loop_##name##_da, NULL, NULL)
GPUNN_UNARY_OPS(GPUNN__X)
GPUNN_UNARY1_OPS(GPUNN__X)
GPUNN_UNARY2_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, ...) GPUNN__MAP(name, gpunn__loop_##name##_da, gpunn__loop_##name##_db, NULL)
GPUNN_BINARY_OPS(GPUNN__X)
GPUNN_LOSS_OPS(GPUNN__X)
GPUNN_LOSS1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, ...) \
    GPUNN__MAP(name, gpunn__loop_##name##_da, gpunn__loop_##name##_db, gpunn__loop_##name##_dc)
GPUNN_TERNARY_OPS(GPUNN__X)
#undef GPUNN__X
#undef GPUNN__MAP

#ifdef GPUNN__OPTIMIZED
#pragma GCC pop_options
#undef GPUNN__OPTIMIZED
#endif

/* ---- cast: as in C; BOOL is x != 0 --------------------------------------------------------------------- */

GPUNN__INTERNAL void gpunn__cast_values(void *to, gpunn_dtype to_dtype, const void *from,
                                        gpunn_dtype from_dtype, int64_t begin, int64_t end)
{
#define GPUNN__LOOP(TO, FROM, value)                              \
    {                                                             \
        const FROM *GPUNN__RESTRICT x = (const FROM *)from;       \
        TO *GPUNN__RESTRICT         y = (TO *)to;                 \
        for (int64_t i = begin; i < end; i++) y[i] = (TO)(value); \
        return;                                                   \
    }
#define GPUNN__FROM(FROM, long_value, value)               \
    switch (to_dtype) {                                    \
    case GPUNN_F32: GPUNN__LOOP(float, FROM, x[i])         \
    case GPUNN_F64: GPUNN__LOOP(double, FROM, x[i])        \
    case GPUNN_I64: GPUNN__LOOP(int64_t, FROM, long_value) \
    case GPUNN_I32: GPUNN__LOOP(int32_t, FROM, value)      \
    case GPUNN_U8: GPUNN__LOOP(uint8_t, FROM, value)       \
    default: GPUNN__LOOP(uint8_t, FROM, x[i] != 0)         \
    }
    switch (from_dtype) {
    case GPUNN_F32: GPUNN__FROM(float, gpunn__to_i64(x[i]), gpunn__to_i32(x[i]))
    case GPUNN_F64: GPUNN__FROM(double, gpunn__double_to_i64(x[i]), gpunn__double_to_i32(x[i]))
    case GPUNN_I64: GPUNN__FROM(int64_t, x[i], x[i])
    case GPUNN_I32: GPUNN__FROM(int32_t, x[i], x[i])
    default: GPUNN__FROM(uint8_t, x[i], x[i])
    }
#undef GPUNN__FROM
#undef GPUNN__LOOP
}

typedef struct gpunn__cast_job {
    void       *to;
    const void *from;
    gpunn_dtype to_dtype, from_dtype;
    int64_t     count;
} gpunn__cast_job;

static void gpunn__cast_task(void *arg, int thread, int threads)
{
    const gpunn__cast_job *job = (const gpunn__cast_job *)arg;
    int64_t                begin, end;
    gpunn__cpu_part(job->count, 1024, threads, thread, &begin, &end);
    gpunn__cast_values(job->to, job->to_dtype, job->from, job->from_dtype, begin, end);
}

GPUNN__INTERNAL void gpunn__cpu_cast_values(gpunn__cpu *cpu, void *to, gpunn_dtype to_dtype, const void *from,
                                            gpunn_dtype from_dtype, int64_t count)
{
    gpunn__cast_job job = {to, from, to_dtype, from_dtype, count};
    gpunn_parallel(gpunn__cpu_threads(cpu, count), gpunn__cast_task, &job);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_cast(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    gpunn__cpu_cast_values(cpu, step->out.data, step->out.dtype, step->in[0].data, step->in[0].dtype,
                           step->out.count);
    return GPUNN_OK;
}

/* ---- integers ------------------------------------------------------------------------------------------ */

typedef struct gpunn__integers_job {
    gpunn__integers ops;
    bool            fault[GPUNN__MOST_THREADS]; /* one per thread: a divisor was 0 */
} gpunn__integers_job;

enum { GPUNN__INTEGERS_BLOCK = 512 };

/* Elements place, place + stride, ... of an operand, or the number in its place. */
static void gpunn__integers_take(const gpunn__integers *p, int k, int64_t place, int64_t stride,
                                 int64_t count, int64_t *values)
{
#define GPUNN__TAKE(TYPE) \
    for (int64_t i = 0; i < count; i++) values[i] = ((const TYPE *)p->in[k])[place + i * stride]
    if (k >= p->operands)
        for (int64_t i = 0; i < count; i++) values[i] = p->number;
    else if (p->in_dtype[k] == GPUNN_I64)
        GPUNN__TAKE(int64_t);
    else if (p->in_dtype[k] == GPUNN_I32)
        GPUNN__TAKE(int32_t);
    else
        GPUNN__TAKE(uint8_t);
#undef GPUNN__TAKE
}

/* The op's results for `count` operands x, y, z, written over x; false where one divides by 0. */
static bool gpunn__integers_values(int op, int64_t *x, const int64_t *y, const int64_t *z, int64_t count)
{
    bool sound = true;
    switch (op) {
#define GPUNN__X(ENUM, name, operands, is_bool, value)  \
    case GPUNN_INTEGER_##ENUM:                          \
        for (int64_t i = 0; i < count; i++) {           \
            const int64_t a = x[i], b = y[i], c = z[i]; \
            (void)a, (void)b, (void)c;                  \
            x[i] = (value);                             \
        }                                               \
        break;
        GPUNN_INTEGER_OPS(GPUNN__X)
#undef GPUNN__X
    default: break;
    }
    for (int64_t i = 0; gpunn__integer_divides(op) && i < count; i++) sound = sound && y[i] != 0;
    return sound;
}

/* Results i to `end` at most, as many as lie in a row of the walk and in a block, whose count is returned. */
static int64_t gpunn__integers_row(const gpunn__integers *p, int64_t i, int64_t end, bool *sound)
{
    const gpunn__walk *walk = &p->walk;
    int64_t            values[3][GPUNN__INTEGERS_BLOCK], count = end - i,
                                              left = walk->rank ? walk->dim[0] - i % walk->dim[0] : 1;
    if (count > left) count = left;
    if (count > GPUNN__INTEGERS_BLOCK) count = GPUNN__INTEGERS_BLOCK;
    for (int k = 0; k < 3; k++)
        gpunn__integers_take(p, k, gpunn__offset(i, walk->rank, walk->dim, walk->stride[k]),
                             walk->stride[k][0], count, values[k]);
    *sound = gpunn__integers_values(p->op, values[0], values[1], values[2], count) && *sound;
    if (p->out_dtype == GPUNN_I64)
        memcpy((int64_t *)p->out + i, values[0], (size_t)count * sizeof **values);
    else
        for (int64_t j = 0; j < count; j++) gpunn__put_integer(p->out, p->out_dtype, i + j, values[0][j]);
    return count;
}

static void gpunn__integers_task(void *arg, int thread, int threads)
{
    gpunn__integers_job *job = (gpunn__integers_job *)arg;
    bool                 sound = true;
    int64_t              i, end;
    gpunn__cpu_part(job->ops.count, 64, threads, thread, &i, &end);
    if (job->ops.folded)
        for (; i < end; i++) sound = gpunn__integers_at(&job->ops, i) && sound;
    while (i < end) i += gpunn__integers_row(&job->ops, i, end, &sound);
    job->fault[thread] = !sound;
}

static GPUNN__STATUS gpunn__cpu_integers(gpunn__cpu *cpu, const gpunn_step *step)
{
    gpunn__integers_job job;
    job.ops = gpunn__integers_of(step);
    const int threads = gpunn__cpu_threads(cpu, job.ops.count * (job.ops.folded ? job.ops.folded : 1));
    memset(job.fault, 0, sizeof job.fault);
    gpunn_parallel(threads, gpunn__integers_task, &job);
    for (int i = 0; i < threads; i++)
        if (job.fault[i])
            return gpunn__cpu_fail(cpu, GPUNN_ERR_ARGUMENT,
                                   "%s divides by 0; check the divisors, or take their maximum with 1",
                                   gpunn__integer_names[job.ops.op]);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_integer(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return action == GPUNN__FORWARD ? gpunn__cpu_integers(cpu, step) : GPUNN_OK;
}

/* ---- dropout ------------------------------------------------------------------------------------------- */

static void gpunn__drop_task(void *arg, int thread, int threads)
{
    const gpunn__drop *d = (const gpunn__drop *)arg;
    int64_t            begin, end;
    gpunn__cpu_part(d->count, GPUNN__DROP_BLOCK, threads, thread, &begin, &end);
    for (int64_t i = begin; i < end; i += GPUNN__DROP_BLOCK) {
        float        factor[GPUNN__DROP_BLOCK];
        int64_t      n = gpunn__least(end - i, GPUNN__DROP_BLOCK);
        const float *x = d->x + i;
        float       *y = d->y + i;
        gpunn__drop_factors(d, (uint64_t)i / 8, factor);
        if (d->add)
            for (int64_t j = 0; j < n; j++) y[j] += x[j] * factor[j];
        else
            for (int64_t j = 0; j < n; j++) y[j] = x[j] * factor[j];
    }
}

GPUNN__INTERNAL gpunn__drop gpunn__drop_of(const gpunn_step *step)
{
    gpunn__drop d;
    memset(&d, 0, sizeof d);
    d.keep = gpunn__drop_keep(step);
    d.scale = gpunn__drop_scale(d.keep);
    d.seed = step->state->seed;
    d.step = step->state->step;
    d.random_stream = step->attr->random_stream;
    return d;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_dropout(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    gpunn__drop d = gpunn__drop_of(step);
    d.count = step->in[0].count;
    d.x = (const float *)(step->backward ? step->grad_out.data : step->in[0].data);
    d.y = (float *)(step->backward ? step->grad_in[0].data : step->out.data);
    d.add = step->backward && step->accumulate[0];
    if (d.keep == 65536) {
        if (d.add)
            for (int64_t i = 0; i < d.count; i++) d.y[i] += d.x[i];
        else if (d.y != d.x)
            memcpy(d.y, d.x, (size_t)d.count * sizeof(float));
        return GPUNN_OK;
    }
    gpunn_parallel(gpunn__cpu_threads(cpu, d.count), gpunn__drop_task, &d);
    return GPUNN_OK;
}

/* ---- random numbers ------------------------------------------------------------------------------------ */

enum { GPUNN__RAND_BLOCK = 4 * GPUNN__DROP_PACKS };

GPUNN__NOINLINE void gpunn__uniform_block(uint32_t words[GPUNN__RAND_BLOCK], float y[GPUNN__RAND_BLOCK])
{
    for (int j = 0; j < GPUNN__RAND_BLOCK; j++) y[j] = gpunn__uniform(words[j]);
}

GPUNN__NOINLINE void gpunn__normal_block(uint32_t words[GPUNN__RAND_BLOCK], float y[GPUNN__RAND_BLOCK])
{
    float radius[GPUNN__RAND_BLOCK / 2];
    for (int j = 0; j < GPUNN__RAND_BLOCK / 2; j++)
        radius[j] = gpunn__sqrt(-2 * gpunn__log(gpunn__unit(words[2 * j])));
    for (int j = 0; j < GPUNN__RAND_BLOCK / 2; j++) {
        const float angle = gpunn__angle(words[2 * j + 1]);
        y[2 * j] = radius[j] * cosf(angle);
        y[2 * j + 1] = radius[j] * sinf(angle);
    }
}

typedef struct gpunn__random {
    gpunn__drop draws;
    void (*block)(uint32_t words[GPUNN__RAND_BLOCK], float y[GPUNN__RAND_BLOCK]);
} gpunn__random;

static void gpunn__random_task(void *arg, int thread, int threads)
{
    const gpunn__random *r = (const gpunn__random *)arg;
    int64_t              begin, end;
    gpunn__cpu_part(r->draws.count, GPUNN__RAND_BLOCK, threads, thread, &begin, &end);
    for (int64_t i = begin; i < end; i += GPUNN__RAND_BLOCK) {
        uint32_t words[GPUNN__DROP_PACKS][4];
        float    y[GPUNN__RAND_BLOCK];
        gpunn__draw_packs(&r->draws, (uint64_t)i / 4, words);
        r->block(words[0], y);
        memcpy(r->draws.y + i, y, (size_t)gpunn__least(end - i, GPUNN__RAND_BLOCK) * sizeof *y);
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_rand_like(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (action != GPUNN__FORWARD) return GPUNN_OK;
    gpunn__random r = {gpunn__drop_of(step),
                       step->op == GPUNN_OP_RAND_LIKE ? gpunn__uniform_block : gpunn__normal_block};
    r.draws.step = step->state->draw;
    r.draws.count = step->out.count;
    r.draws.y = (float *)step->out.data;
    gpunn_parallel(gpunn__cpu_threads(cpu, r.draws.count), gpunn__random_task, &r);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_randn_like(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__cpu_rand_like(cpu, step, action);
}
