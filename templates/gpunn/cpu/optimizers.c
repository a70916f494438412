#include "cpu/optimizers.h"
#include "cpu/levels.h"
#include "cpu/elementwise.h"
#include "cpu/reduce.h"
#include "cpu/gemm.h"
#include "cpu/norm.h"
#include "cpu/softmax.h"

enum { GPUNN__PIECE = 256 }; /* maximum elements at a time */

/* Prefetching 64 floats ahead reaches full memory speed, since the hardware prefetcher stops at each page
 * boundary. place: a pointer to floats. */
#if defined(GPUNN__VECTORS)
#define GPUNN__AHEAD(place) __builtin_prefetch((place) + 64);
#else
#define GPUNN__AHEAD(place) (void)(place);
#endif

#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define GPUNN__OPTIMIZED
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif

/* clang-format off */
/* The language of the table columns step and move. The macros map it to C. */
#define K(number) number##f
#define where(condition, yes, no) gpunn__select((condition) != 0, (float)(yes), (float)(no))
#define sqrt(p) gpunn__sqrt(p)
#define max(p, q) gpunn__max(p, q)
#define abs(p) fabsf(p)
#define GPUNN__NUMBER(kind, key, usual) const float key = *setting++; (void)key;
#define GPUNN__FLAG(key) GPUNN__NUMBER(, key, )
#define GPUNN__ONCE(name, value) const float name = *once++; (void)name;
/* Counts states: 16 for each, plus 1 for each that is ALWAYS present (these come first). With all = false,
 * GPUNN__HAS covers only the latter. */
#define GPUNN__STATE(setting) + (#setting[0] == 'A' ? 17 : 16)
#define GPUNN__HAS(k, all) ((k) < ((all) ? count / 16 : count % 16))
#define GPUNN__PASS(all, text, result)                                                 \
    for (int at = 0; at < elements; at += GPUNN__LANES) {                              \
        GPUNN__AHEAD(gradient + at)                                                    \
        GPUNN__AHEAD(part[0] + at)                                                     \
        if (GPUNN__HAS(0, all)) GPUNN__AHEAD(part[1] + at)                             \
        if (GPUNN__HAS(1, all)) GPUNN__AHEAD(part[2] + at)                             \
        if (GPUNN__HAS(2, all)) GPUNN__AHEAD(part[3] + at)                             \
        GPUNN__IVDEP                                                                   \
        for (int i = at; i < at + GPUNN__LANES; i++) {                                 \
            const bool ALL = all;                                                      \
            float p = part[0][i], s0 = GPUNN__HAS(0, ALL) ? part[1][i] : 0,            \
            s1 = GPUNN__HAS(1, ALL) ? part[2][i] : 0,                                  \
                  s2 = GPUNN__HAS(2, ALL) ? part[3][i] : 0, g = gradient[i] * scale;   \
            g = gpunn__select(g > limit, limit, gpunn__select(g < -limit, -limit, g)); \
            text                                                                       \
            (void)p, (void)s0, (void)s1, (void)s2;                                     \
            result                                                                     \
        }                                                                              \
    }
#define GPUNN__LOOP(function, settings, states, numbers, text, result)                                      \
    GPUNN__VECTORIZED(function, (const gpunn__update_job *j, const float *gradient, float *const *part,     \
      int lines),                                                                                           \
                      (j, gradient, part, lines))                                                           \
    {                                                                                                       \
        const float *setting = j->u->setting, *once = j->n.once, scale = j->n.scale, limit = j->limit;      \
        const int    elements = lines * GPUNN__LANES, count = 0 states;                                     \
        bool         all = false;                                                                           \
        settings                                                                                            \
        numbers                                                                                             \
        (void)once;                                                                                         \
        for (int k = 0; k < 3; k++) all = all || (GPUNN__HAS(k, 1) && !GPUNN__HAS(k, 0) && j->u->state[k]); \
        if (all) {                                                                                          \
            GPUNN__PASS(1, text, result)                                                                    \
        } else {                                                                                            \
            GPUNN__PASS(0, text, result)                                                                    \
        }                                                                                                   \
    }
#define GPUNN__X(ENUM, name, settings, states, numbers, text)        \
    GPUNN__LOOP(gpunn__step_##name, settings, states, numbers, text, \
                if (GPUNN__HAS(2, ALL)) part[3][i] = s2;             \
                if (GPUNN__HAS(1, ALL)) part[2][i] = s1;             \
                if (GPUNN__HAS(0, ALL)) part[1][i] = s0;             \
                part[0][i] = p;)
#define GPUNN__TRUST(ENUM, name, settings, states, numbers, text, direction, ratio) \
    GPUNN__X(ENUM, name, settings, states, numbers, text)                           \
    GPUNN__LOOP(gpunn__move_##name, settings, states, numbers, g = direction;, part[4][i] = g;)
GPUNN_UPDATES(GPUNN__X, GPUNN__TRUST, GPUNN__NUMBER, GPUNN__FLAG, GPUNN__STATE, GPUNN__ONCE)
#undef where
#undef sqrt
#undef max
#undef abs
#undef GPUNN__NUMBER
#undef GPUNN__FLAG
#undef GPUNN__STATE
#undef GPUNN__ONCE
#undef GPUNN__HAS
#undef GPUNN__AHEAD
#undef GPUNN__PASS
#undef GPUNN__LOOP
#undef GPUNN__X
#undef GPUNN__TRUST
#ifdef GPUNN__OPTIMIZED
#pragma GCC pop_options
#undef GPUNN__OPTIMIZED
#endif

GPUNN__INTERNAL const gpunn__rule gpunn__rules[GPUNN_UPDATE_COUNT] = {
#define GPUNN__SIZE 0, INFINITY
#define GPUNN__SHARE 0, 1
#define GPUNN__ANY -FLT_MAX, INFINITY
#define GPUNN__COUNT 0, 100
#define GPUNN__CHOICE 0, 3
#define GPUNN__NUMBER(kind, key, usual) {#key, false, GPUNN__##kind, usual},
#define GPUNN__FLAG(key) {#key, true, GPUNN__SIZE, 0},
#define GPUNN__END {NULL, false, 0, 0, 0}
#define GPUNN__STATE(setting) #setting,
#define GPUNN__X(ENUM, name, settings, states, ...) \
    {"gpunn_" #name, {settings GPUNN__END}, {states NULL}, gpunn__step_##name, NULL},
#define GPUNN__TRUST(ENUM, name, settings, states, ...) \
    {"gpunn_" #name, {settings GPUNN__END}, {states NULL}, gpunn__step_##name, gpunn__move_##name},
    GPUNN_UPDATES(GPUNN__X, GPUNN__TRUST, GPUNN__NUMBER, GPUNN__FLAG, GPUNN__STATE, )
#undef K
#undef GPUNN__SIZE
#undef GPUNN__SHARE
#undef GPUNN__ANY
#undef GPUNN__COUNT
#undef GPUNN__CHOICE
#undef GPUNN__NUMBER
#undef GPUNN__FLAG
#undef GPUNN__END
#undef GPUNN__STATE
#undef GPUNN__X
#undef GPUNN__TRUST
};
/* clang-format on */

GPUNN__INTERNAL int gpunn__setting_at(gpunn_update_kind kind, const char *key)
{
    const gpunn__setting *setting = gpunn__rules[kind].setting;
    int                   i = 0;
    while (setting[i].key && strcmp(setting[i].key, key) != 0) i++;
    return setting[i].key ? i : -1;
}

GPUNN__INTERNAL float gpunn__setting_of(gpunn_update_kind kind, const float *setting, const char *key)
{
    int at = gpunn__setting_at(kind, key);
    return at < 0 ? 0 : setting[at];
}

/* Working memory for one piece of an update. The pointers refer to the tensors themselves or, for less than a
 * line, to copies in rest. missing stands in for absent states, moved receives the output of `move`. */
typedef struct gpunn__piece {
    const float *gradient;
    float       *part[5], rest[5][GPUNN__LANES], missing[3][GPUNN__PIECE], moved[GPUNN__PIECE];
    int          lines;
} gpunn__piece;

static void gpunn__piece_begin(gpunn__piece *piece, const gpunn_update *u)
{
    for (int k = 0; k < 3; k++)
        if (gpunn__rules[u->kind].state[k] && u->state[k] == NULL)
            memset(piece->missing[k], 0, sizeof piece->missing[k]);
}

/* Elements in the next piece: whole lines, or a remainder of less than a line. */
static int64_t gpunn__piece_count(int64_t left)
{
    return left < GPUNN__LANES ? left : gpunn__least(left - left % GPUNN__LANES, GPUNN__PIECE);
}

static void gpunn__piece_take(gpunn__piece *piece, const gpunn_update *u, int64_t at, int64_t n)
{
    const bool whole = n >= GPUNN__LANES;
    piece->lines = whole ? (int)n / GPUNN__LANES : 1;
    piece->gradient = whole ? u->gradient + at : piece->rest[4];
    piece->part[0] = whole ? u->parameter + at : piece->rest[0];
    for (int k = 0; k < 3; k++) {
        float *const state = u->state[k] ? u->state[k] + at : piece->missing[k];
        piece->part[k + 1] = whole ? state : piece->rest[k + 1];
    }
    piece->part[4] = piece->moved;
    if (whole) return;
    const float *const of[] = {u->parameter, u->state[0], u->state[1], u->state[2], u->gradient};
    memset(piece->rest, 0, sizeof piece->rest);
    for (int k = 0; k < 5; k++)
        if (of[k]) memcpy(piece->rest[k], of[k] + at, (size_t)n * sizeof(float));
}

static void gpunn__piece_give(const gpunn__piece *piece, const gpunn_update *u, int64_t at, int64_t n)
{
    float *const to[] = {u->parameter, u->state[0], u->state[1], u->state[2]};
    for (int k = 0; k < 4 && n < GPUNN__LANES; k++)
        if (to[k]) memcpy(to[k] + at, piece->rest[k], (size_t)n * sizeof(float));
}

static void gpunn__update_task(void *arg, int thread, int threads)
{
    const gpunn__update_job *j = (const gpunn__update_job *)arg;
    const gpunn_update      *u = j->u;
    gpunn__piece             piece;
    int64_t                  begin, end;
    gpunn__piece_begin(&piece, u);
    gpunn__cpu_part(u->count, 1024, threads, thread, &begin, &end);
    for (int64_t at = begin, n; at < end; at += n) {
        n = gpunn__piece_count(end - at);
        gpunn__piece_take(&piece, u, at, n);
        gpunn__rules[u->kind].step(j, piece.gradient, piece.part, piece.lines);
        gpunn__piece_give(&piece, u, at, n);
    }
}

/* Begins to load the row of an entry. Rows of a large table are in no cache. */
static void gpunn__row_ahead(const gpunn_update *u, int64_t entry)
{
#if defined(GPUNN__VECTORS)
    if (entry >= u->count / u->columns || u->rows[entry] < 0) return;
    const int64_t at = u->rows[entry] * u->columns;
    __builtin_prefetch(u->parameter + at);
    for (int k = 0; k < 3; k++)
        if (u->state[k]) __builtin_prefetch(u->state[k] + at);
#else
    (void)u, (void)entry;
#endif
}

/* Copies n elements of rows, those of the gradient's elements from `at` on, to part, or back. */
static void gpunn__rows_copy(const gpunn_update *u, int64_t at, int n, float (*part)[GPUNN__PIECE], bool back)
{
    enum { AHEAD = 16 };
    float *const of[] = {u->parameter, u->state[0], u->state[1], u->state[2]};
    int64_t      entry = at / u->columns, column = at - entry * u->columns;
    for (int i = 0, length; i < n; i += length, entry++, column = 0) {
        length = (int)gpunn__least(n - i, u->columns - column);
        if (!back) gpunn__row_ahead(u, entry + AHEAD);
        if (u->rows[entry] < 0) continue;
        for (int k = 0; k < 4; k++) {
            if (of[k] == NULL) continue;
            float *const row = of[k] + u->rows[entry] * u->columns + column, *const own = part[k] + i;
            memcpy(back ? row : own, back ? own : row, (size_t)length * sizeof *row);
        }
    }
}

/* Updates the rows of a sparse gradient, copied together. */
static void gpunn__update_rows_task(void *arg, int thread, int threads)
{
    const gpunn__update_job *j = (const gpunn__update_job *)arg;
    float                    part[4][GPUNN__PIECE] = {{0}};
    float *const             parts[] = {part[0], part[1], part[2], part[3], NULL};
    int64_t                  begin, end;
    gpunn__cpu_part(j->u->count, GPUNN__PIECE, threads, thread, &begin, &end);
    for (; begin < end; begin += GPUNN__PIECE) {
        const int n = (int)gpunn__least(end - begin, GPUNN__PIECE);
        gpunn__rows_copy(j->u, begin, n, part, false);
        gpunn__rules[j->u->kind].step(j, j->u->gradient + begin, parts,
                                      (n + GPUNN__LANES - 1) / GPUNN__LANES);
        gpunn__rows_copy(j->u, begin, n, part, true);
    }
}

static void gpunn__trust_task(void *arg, int thread, int threads)
{
    const gpunn__update_job *j = (const gpunn__update_job *)arg;
    const gpunn_update      *u = j->u;
    const gpunn__rule       *rule = &gpunn__rules[u->kind];
    gpunn__trust            *trust = j->trust;
    gpunn__piece             piece;
    float *const            *part = piece.part;
    int64_t                  begin, end;
    gpunn__piece_begin(&piece, u);
    gpunn__cpu_part((u->count + trust->part - 1) / trust->part, 1, threads, thread, &begin, &end);
    for (int64_t number = begin; number < end; number++) {
        int64_t at = number * trust->part, stop = gpunn__least(u->count, at + trust->part);
        double  squares = 0, moves = 0;
        for (int64_t n; at < stop; at += n) {
            n = gpunn__piece_count(stop - at);
            gpunn__piece_take(&piece, u, at, n);
            if (!trust->last) rule->step(j, piece.gradient, part, piece.lines);
            rule->move(j, piece.gradient, part, piece.lines);
            for (int64_t i = 0; i < n && trust->last; i++) part[0][i] -= trust->rate * part[4][i];
            for (int64_t i = 0; i < n && !trust->last; i++) {
                squares += (double)part[0][i] * (double)part[0][i];
                moves += (double)part[4][i] * (double)part[4][i];
            }
            gpunn__piece_give(&piece, u, at, n);
        }
        if (trust->last) continue;
        trust->parameter[number] = squares;
        trust->move[number] = moves;
    }
}

static void gpunn__cpu_trust(gpunn__update_job j, const double *setting, int threads)
{
    const gpunn_update *u = j.u;
    gpunn__trust        trust;
    double              squares = 0, moves = 0;
    j.trust = &trust;
    trust.last = false;
    trust.part = u->count > GPUNN__TRUST_PARTS * 4096
                     ? (u->count + GPUNN__TRUST_PARTS - 1) / GPUNN__TRUST_PARTS
                     : 4096;
    gpunn_parallel(threads, gpunn__trust_task, &j);
    for (int64_t part = 0; part * trust.part < u->count; part++) {
        squares += trust.parameter[part];
        moves += trust.move[part];
    }
    trust.last = true;
    trust.rate = (float)(setting[0] *
                         gpunn__update_ratio(u->kind, setting,
                                             squares > 0 && moves > 0 ? sqrt(squares / moves) : 1));
    gpunn_parallel(threads, gpunn__trust_task, &j);
}

/* Memory of Muon's iteration: a matrix, its result, three square matrices, and scratch of the products. */
typedef struct gpunn__muon_memory {
    float *x, *y, *gram, *mixed, *poly, *scratch;
} gpunn__muon_memory;

/* The products of an iteration's step: gram = x x^T, or x^T x if x is tall, poly = gram mixed, and y. */
typedef struct gpunn__muon_products {
    gpunn__gemm gram, poly, next;
} gpunn__muon_products;

static gpunn__muon_products gpunn__muon_products_of(const gpunn__muon *m, const gpunn__muon_memory *at)
{
    const int64_t              k = m->least, longer = m->rows + m->columns - k;
    const float               *left = m->tall ? at->x : at->poly, *right = m->tall ? at->poly : at->x;
    const gpunn__muon_products all = {
        gpunn__gemm_make(k, k, longer, at->x, m->tall, at->x, !m->tall, at->gram, false),
        gpunn__gemm_make(k, k, k, at->gram, false, at->mixed, false, at->poly, false),
        gpunn__gemm_make(m->rows, m->columns, k, left, false, right, false, at->y, false)};
    return all;
}

GPUNN__INTERNAL size_t gpunn__muon_bytes(int64_t rows, int64_t columns, int threads)
{
    const double               none[GPUNN_SETTINGS] = {0};
    const gpunn__muon_memory   nowhere = {NULL, NULL, NULL, NULL, NULL, NULL};
    const gpunn__muon          m = gpunn__muon_of(none, rows, columns);
    const gpunn__muon_products all = gpunn__muon_products_of(&m, &nowhere);
    const gpunn__gemm *const   each[] = {&all.gram, &all.poly, &all.next};
    size_t                     scratch = 0;
    for (int i = 0; i < 3; i++) {
        const size_t needed = gpunn__gemm_workspace(each[i], threads);
        if (needed > scratch) scratch = needed;
    }
    return (size_t)(rows * columns + 3 * m.least * m.least) * sizeof(float) + scratch;
}

/* One step: y = a x + b (x x^T) x + c (x x^T)^2 x. */
static void gpunn__muon_step(const gpunn__cpu *cpu, const gpunn__muon *m, const gpunn__muon_memory *at)
{
    const int64_t        k = m->least;
    gpunn__muon_products p = gpunn__muon_products_of(m, at);
    gpunn__gemm_run(&p.gram, gpunn__gemm_threads(cpu, &p.gram), at->scratch);
    for (int64_t i = 0; i < k * k; i++) at->mixed[i] = m->c * at->gram[i];
    for (int64_t i = 0; i < k; i++) at->mixed[i * k + i] += m->b;
    gpunn__gemm_run(&p.poly, gpunn__gemm_threads(cpu, &p.poly), at->scratch);
    for (int64_t i = 0; i < k; i++) at->poly[i * k + i] += m->a;
    gpunn__gemm_run(&p.next, gpunn__gemm_threads(cpu, &p.next), at->scratch);
}

/* The last pass: p = p * shrink - rate * x. */
typedef struct gpunn__muon_pass {
    float       *p;
    const float *x;
    int64_t      count;
    float        shrink, rate;
} gpunn__muon_pass;

GPUNN__VECTORIZED(gpunn__muon_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    const gpunn__muon_pass *pass = (const gpunn__muon_pass *)arg;
    int64_t                 begin, end;
    gpunn__cpu_part(pass->count, 1024, threads, thread, &begin, &end);
    for (int64_t i = begin; i < end; i++) pass->p[i] = pass->p[i] * pass->shrink - pass->rate * pass->x[i];
}

/* Orthogonalizes the matrix that the first pass has left in state 1, and makes the step along it. */
static GPUNN__STATUS gpunn__cpu_muon(void *context, const gpunn__update_job *j, const double *setting,
                                     int threads)
{
    const gpunn_update *u = j->u;
    const gpunn__muon   m = gpunn__muon_of(setting, u->count / u->columns, u->columns);
    const int64_t       square = m.least * m.least;
    double              squares = 0;
    gpunn__muon_memory  at = {u->state[1], (float *)u->workspace, NULL, NULL, NULL, NULL};
    at.gram = at.y + u->count, at.mixed = at.gram + square;
    at.poly = at.mixed + square, at.scratch = at.poly + square;
    gpunn_status status = gpunn__cpu_sum_of_squares(context, at.x, u->count, &squares);
    const double norm = fmax(sqrt(squares), m.eps);
    if (status == GPUNN_OK) status = gpunn__cpu_scale(context, at.x, u->count, (float)(1 / norm), 0);
    if (status != GPUNN_OK) return status;
    for (int step = 0; step < m.steps; step++) {
        gpunn__muon_step((const gpunn__cpu *)context, &m, &at);
        float *const result = at.y;
        at.y = at.x;
        at.x = result;
    }
    gpunn__muon_pass pass = {u->parameter, at.x, u->count, j->n.once[0], (float)(setting[0] * m.ratio)};
    gpunn_parallel(threads, gpunn__muon_task, &pass);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_update(void *context, const gpunn_update *u)
{
    gpunn__update_job j;
    double            setting[GPUNN_SETTINGS];
    j.u = u;
    for (int i = 0; i < GPUNN_SETTINGS; i++)
        setting[i] = i ? gpunn__as_written(u->setting[i]) : (double)u->setting[i];
    j.n.go = true;
    j.n.scale = u->gradient_scale;
    j.n.lr = u->setting[0];
    gpunn__update_once(u->kind, setting, (double)u->step, j.n.once);
    j.limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    j.trust = NULL;
    gpunn__cpu_before before = gpunn__cpu_begin(context);
    int               threads = gpunn__cpu_threads((const gpunn__cpu *)context, 2 * u->count);
    if (u->fused)
        (void)u->fused->cpu(u, &j.n, threads, gpunn__widest_vector());
    else if (gpunn__rules[u->kind].move)
        gpunn__cpu_trust(j, setting, threads);
    else
        gpunn_parallel(threads, u->rows ? gpunn__update_rows_task : gpunn__update_task, &j);
    gpunn_status status = GPUNN_OK;
    if (u->kind == GPUNN_UPDATE_MUON) status = gpunn__cpu_muon(context, &j, setting, threads);
    gpunn__cpu_end(before);
    return status;
}

typedef struct gpunn__span { /* floats, split into parts that depend only on the count */
    const float *x;
    float       *y;
    int64_t      count, part;
    float        scale, limit;
    double       sum[128];
} gpunn__span;

GPUNN__VECTORIZED(gpunn__squares_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    gpunn__span *s = (gpunn__span *)arg;
    int64_t      begin, end;
    gpunn__cpu_part((s->count + s->part - 1) / s->part, 1, threads, thread, &begin, &end);
    for (int64_t part = begin; part < end; part++) {
        enum { LANES = 16 };
        const float *x = s->x + part * s->part;
        int64_t      n = gpunn__least(s->count - part * s->part, s->part), i = 0;
        double       lane[LANES] = {0}, rest = 0;
        for (; i + LANES <= n; i += LANES)
            for (int j = 0; j < LANES; j++) lane[j] += (double)x[i + j] * (double)x[i + j];
        for (; i < n; i++) rest += (double)x[i] * (double)x[i];
        for (int j = 0; j < LANES; j++) rest += lane[j];
        s->sum[part] = rest;
    }
}

typedef struct gpunn__counted {
    const float      *x;
    int64_t           count, part;
    gpunn_value_sums *sums;
} gpunn__counted;

/* Classifies values by their bits, which recognizes NaN even if the compiler assumes that there is none. */
static gpunn_value_sums gpunn__sum_values(const float *x, int64_t count)
{
    gpunn_value_sums s = {0, 0, 0, 0, 0, 0, INFINITY, -INFINITY};
    for (int64_t i = 0; i < count; i++) {
        const uint32_t size = gpunn__bits_of(x[i]) & 0x7FFFFFFF;
        const double   value = (double)x[i];
        s.zeros += size == 0;
        s.nans += size > 0x7F800000;
        s.infinities += size == 0x7F800000;
        if (size >= 0x7F800000) continue;
        s.finite++;
        s.sum += value;
        s.squares += value * value;
        s.min = value < s.min ? value : s.min;
        s.max = value > s.max ? value : s.max;
    }
    return s;
}

static void gpunn__value_sums_task(void *arg, int thread, int threads)
{
    const gpunn__counted *c = (const gpunn__counted *)arg;
    int64_t               begin, end;
    gpunn__cpu_part(GPUNN_SUM_PARTS, 1, threads, thread, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int64_t left = c->count - i * c->part;
        c->sums[i] = gpunn__sum_values(c->x + i * c->part, left < 0 ? 0 : gpunn__least(left, c->part));
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_value_sums(void *context, const void *values, gpunn_dtype dtype,
                                                    int64_t count, gpunn_value_sums parts[GPUNN_SUM_PARTS])
{
    gpunn__counted c = {(const float *)values, count, (count + GPUNN_SUM_PARTS - 1) / GPUNN_SUM_PARTS, parts};
    gpunn__cpu_before before = gpunn__cpu_begin(context);
    (void)dtype; /* F32 */
    gpunn_parallel(gpunn__cpu_threads((const gpunn__cpu *)context, count), gpunn__value_sums_task, &c);
    gpunn__cpu_end(before);
    return GPUNN_OK;
}

/* sum[part] = whether the part contains an infinity or NaN, detected by the exponent. */
GPUNN__VECTORIZED(gpunn__finite_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    gpunn__span *s = (gpunn__span *)arg;
    int64_t      begin, end;
    gpunn__cpu_part((s->count + s->part - 1) / s->part, 1, threads, thread, &begin, &end);
    for (int64_t part = begin; part < end; part++) {
        const float  *x = s->x + part * s->part;
        const int64_t n = gpunn__least(s->count - part * s->part, s->part);
        int32_t       most = 0;
        for (int64_t i = 0; i < n; i++) {
            const int32_t size = (int32_t)(gpunn__bits_of(x[i]) & 0x7FFFFFFF);
            most = size > most ? size : most;
        }
        s->sum[part] = most >= 0x7F800000;
    }
}

/* Runs the task over parts of the values and returns the sum of its per-part results. */
static double gpunn__span_sum(void        *context, void (*task)(void *arg, int thread, int threads),
                              const float *values, int64_t count)
{
    gpunn__span s;
    double      sum = 0;
    s.x = values;
    s.count = count;
    s.part = count > 128 * 16384 ? (count + 127) / 128 : 16384;
    gpunn__cpu_before before = gpunn__cpu_begin(context);
    gpunn_parallel(gpunn__cpu_threads((const gpunn__cpu *)context, count), task, &s);
    gpunn__cpu_end(before);
    for (int64_t part = 0; part * s.part < count; part++) sum += s.sum[part];
    return sum;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_sum_of_squares(void *context, const float *values, int64_t count,
                                                        double *result)
{
    *result = gpunn__span_sum(context, gpunn__squares_task, values, count);
    return GPUNN_OK;
}

GPUNN__INTERNAL bool gpunn__cpu_finite(void *context, const float *values, int64_t count)
{
    return gpunn__span_sum(context, gpunn__finite_task, values, count) == 0;
}

GPUNN__VECTORIZED(gpunn__scale_task, (void *arg, int thread, int threads), (arg, thread, threads))
{
    gpunn__span *s = (gpunn__span *)arg;
    int64_t      begin, end;
    gpunn__cpu_part(s->count, 1024, threads, thread, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        float y = s->y[i] * s->scale;
        s->y[i] = gpunn__select(y > s->limit, s->limit, gpunn__select(y < -s->limit, -s->limit, y));
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_scale(void *context, float *values, int64_t count, float scale,
                                               float limit)
{
    gpunn__span s;
    s.y = values;
    s.count = count;
    s.scale = scale;
    s.limit = limit > 0 ? limit : INFINITY;
    gpunn__cpu_before before = gpunn__cpu_begin(context);
    gpunn_parallel(gpunn__cpu_threads((const gpunn__cpu *)context, count), gpunn__scale_task, &s);
    gpunn__cpu_end(before);
    return GPUNN_OK;
}
#undef GPUNN__FIXED
#undef GPUNN__PIECE
#undef GPUNN__NORM_WIDTH
#undef GPUNN__COLUMNS
#undef GPUNN__TILE
