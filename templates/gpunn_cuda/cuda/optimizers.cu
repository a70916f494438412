#include "cuda/optimizers.h"
#include "base/errors.h"
#include "base/ranks.h"

/* clang-format off */
/* The columns states, step and move of the optimizer table: the number of states, and how one element
 * changes. */
template <int KIND> struct gpunn__rule;
#define where(condition, yes, no) ((condition) != 0 ? (float)(yes) : (float)(no))
#define sqrt(x) sqrtf(x)
#define max(p, q) gpunn__float_max(p, q)
#define abs(p) fabsf(p)
#define GPUNN__NUMBER(kind, key, usual) const float key = *setting++; (void)key;
#define GPUNN__FLAG(key) GPUNN__NUMBER(, key, )
#define GPUNN__STATE(setting) +1
#define GPUNN__ONCE(name, value) const float name = *once++; (void)name;
#define GPUNN__STEP(states, settings, numbers, text)                                                        \
    static constexpr int STATES = 0 states;                                                                 \
    static __device__ __forceinline__ void step(const float *setting, const float *once, float &p, float g, \
    float &s0,                                                                                              \
                                                float &s1, float &s2)                                       \
    {                                                                                                       \
        settings                                                                                            \
        numbers                                                                                             \
        text                                                                                                \
        (void)once, (void)p, (void)s0, (void)s1, (void)s2;                                                  \
    }
#define GPUNN__X(ENUM, name, settings, states, numbers, text) \
    template <> struct gpunn__rule<GPUNN_UPDATE_##ENUM> { GPUNN__STEP(states, settings, numbers, text) };
#define GPUNN__TRUST(ENUM, name, settings, states, numbers, text, direction, ratio)                    \
    template <> struct gpunn__rule<GPUNN_UPDATE_##ENUM> {                                              \
        GPUNN__STEP(states, settings, numbers, text)                                                   \
        static __device__ __forceinline__ float move(const float *setting, const float *once, float p, \
        float s0, float s1,                                                                            \
                                                     float s2)                                         \
        {                                                                                              \
            settings                                                                                   \
            numbers                                                                                    \
            (void)s2;                                                                                  \
            return direction;                                                                          \
        }                                                                                              \
    };
GPUNN_UPDATES(GPUNN__X, GPUNN__TRUST, GPUNN__NUMBER, GPUNN__FLAG, GPUNN__STATE, GPUNN__ONCE)
#undef where
#undef sqrt
#undef max
#undef abs
#undef GPUNN__NUMBER
#undef GPUNN__FLAG
#undef GPUNN__STATE
#undef GPUNN__ONCE
#undef GPUNN__STEP
#undef GPUNN__X
#undef GPUNN__TRUST
/* clang-format on */

/* Records the first non-finite value, until the host takes it. The host looks at bad[0] first, so it is
 * written last. */
__device__ __forceinline__ void gpunn__note_bad(uint64_t *bad, const float *value, uint64_t what)
{
    volatile uint64_t *note = bad;
    if (note[0] != 0) return;
    note[1] = __float_as_uint(*value);
    note[2] = (uint64_t)(uintptr_t)value;
    __threadfence_system();
    note[0] = what;
}

/* The sum of all partials, the same in every thread of every block. */
__device__ __forceinline__ double gpunn__partials_sum(const double *partials, int count)
{
    double sum = 0;
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) sum += partials[i];
    return gpunn__block_reduce(sum, gpunn__add());
}

__device__ __forceinline__ bool gpunn__is_finite(float value)
{
    return value - value == 0;
}

/* Gradient number i of the few that the update's blocks check. */
__device__ __forceinline__ const float *gpunn__few_at(const gpunn__update_job &job, int i)
{
    return i < job.few_count[0] ? job.few[0] + i : job.few[1] + (i - job.few_count[0]);
}

/* What an update's decision depends on, the same in every thread. squares is the sum of the squares of all
 * gradients that are clipped together. bad_place is as in gpunn__device_state. */
struct gpunn__verdict {
    double                     squares;
    unsigned long long         bad_place;
    __device__ __forceinline__ gpunn__verdict(const gpunn__update_job &job)
    {
        float first = 0; /* count - its index */
        squares = job.u.clip_norm > 0 ? gpunn__partials_sum(job.partials + job.own_first, job.own_count) : 0;
        bad_place = job.state->bad_place;
        if (job.few_count[0] == 0) return;
        const int count = job.few_count[0] + job.few_count[1];
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x)
            if (!gpunn__is_finite(*gpunn__few_at(job, i)) && first == 0) first = (float)(count - i);
        first = gpunn__block_reduce(first, gpunn__larger());
        if (first == 0) return;
        const unsigned long long place = ~(unsigned long long)(uintptr_t)gpunn__few_at(job,
                                                                                       count - (int)first);
        if (place > bad_place) bad_place = place;
    }
};

__device__ __forceinline__ bool gpunn__has_bad_loss(const gpunn__update_job &job)
{
    return job.loss && !gpunn__is_finite(*job.loss);
}

/* Whether a step that must not be made is an error. Otherwise it is skipped and counted. */
__device__ __forceinline__ bool gpunn__is_rejected(const gpunn__update_job &job)
{
    return !job.skips && (!job.scales || gpunn__has_bad_loss(job));
}

/* Whether the step may be made. If not, one thread of the launch (tells) reports it. */
__device__ __forceinline__ bool gpunn__may_go(const gpunn__update_job &job, unsigned long long bad_place,
                                              bool tells)
{
    const float   *gradient = (const float *)(uintptr_t)~bad_place;
    const uint64_t step = job.state->step + 1;
    const bool     bad_loss = gpunn__has_bad_loss(job);
    if (!bad_loss && bad_place == 0) return true;
    if (tells && gpunn__is_rejected(job))
        gpunn__note_bad(job.bad, bad_loss ? job.loss : gradient,
                        bad_loss ? step : step | GPUNN__BAD_GRADIENT);
    return false;
}

/* By one thread of the launch: an update that is rejected counts nowhere. */
__device__ __forceinline__ void gpunn__count_rejected(const gpunn__update_job &job)
{
    if (job.rejected == NULL || !gpunn__is_rejected(job)) return;
    if (job.reports) job.rejected[0]++;
    for (int i = job.u.first; i < job.u.last; i++) job.rejected[i]++;
}

/* Fills in all numbers but those of the kind's row, for which setting and *at receive the settings and the
 * step. One thread runs it. */
__device__ __forceinline__ void gpunn__update_decide(const gpunn__update_job &job,
                                                     const gpunn__verdict    &verdict,
                                                     gpunn_update_numbers *numbers, double *setting,
                                                     double *at)
{
    const gpunn_update &u = job.u;
    float               unscale = job.loss_scale ? 1 / job.loss_scale[0] : 1, clip = 1;
    int64_t step = job.state->update_step[job.index] - (job.loss_scale ? (int64_t)job.loss_scale[2] : 0);
    numbers->go = gpunn__may_go(job, verdict.bad_place, job.reports && blockIdx.x == 0);
    if (job.doubt && job.reports && blockIdx.x == 0) *job.doubt = verdict.bad_place;
    if (!numbers->go && blockIdx.x == 0) gpunn__count_rejected(job);
    if (!numbers->go) return;
    if (job.rejected) step -= job.rejected[u.first];
    if (u.clip_norm > 0) {
        double ratio = (double)u.clip_norm /
                       (sqrt(verdict.squares) * (double)fabsf(u.gradient_scale * unscale) + 1e-6);
        if (ratio < 1) clip = (float)ratio;
    }
    numbers->scale = u.kind == GPUNN_UPDATE_AVERAGE ? 1 : u.gradient_scale * clip * unscale;
    numbers->lr = job.state->lr[job.index];
    for (int i = 0; i < GPUNN_SETTINGS; i++) setting[i] = i ? job.setting[i] : (double)numbers->lr;
    *at = (double)(step < 1 ? 1 : step);
}

/* Kinds whose numbers are too costly to compute in every block. An earlier kernel computes them, as for
 * updates of more than one kernel. */
__host__ __device__ constexpr bool gpunn__decided_apart(int kind)
{
    return kind == GPUNN_UPDATE_NADAM || kind == GPUNN_UPDATE_MUON;
}

/* The numbers of an update, the same in every thread of every block. */
template <int KIND>
__device__ __forceinline__ gpunn_update_numbers gpunn__update_numbers(const gpunn__update_job &job)
{
    __shared__ gpunn_update_numbers shared;
    if (gpunn__decided_apart(KIND)) return *job.numbers;
    const gpunn__verdict verdict(job);
    if (threadIdx.x == 0) {
        double setting[GPUNN_SETTINGS], step;
        gpunn__update_decide(job, verdict, &shared, setting, &step);
        if (shared.go) gpunn__update_once((gpunn_update_kind)KIND, setting, step, shared.once);
    }
    __syncthreads();
    if (!shared.go && job.reports) gpunn__kept_copy(job.kept, job.kept_count, true, blockIdx.x, gridDim.x);
    return shared;
}

/* Decides for the kernels that follow. */
static __global__ void gpunn__decide_kernel(const gpunn__update_job job, gpunn_update_numbers *numbers)
{
    GPUNN__FOLLOW();
    const gpunn__verdict verdict(job);
    double               setting[GPUNN_SETTINGS], step;
    if (threadIdx.x == 0) {
        gpunn__update_decide(job, verdict, numbers, setting, &step);
        if (numbers->go) gpunn__update_once(job.u.kind, setting, step, numbers->once);
    }
    __syncthreads();
    if (!numbers->go && job.reports) gpunn__kept_copy(job.kept, job.kept_count, true, 0, 1);
}

/* NaN stays. */
__device__ __forceinline__ float gpunn__clipped(float g, float limit)
{
    if (g > limit) return limit;
    return g < -limit ? -limit : g;
}

/* The elements that a thread works on at once. */
struct gpunn__elements {
    float p[8], g[8], s[3][8];
};

/* Loads elements. Absent states read as 0. */
template <int KIND>
__device__ __forceinline__ void gpunn__elements_load(gpunn__elements *e, const gpunn_update &u, float scale,
                                                     int64_t i)
{
    const float limit = u.gradient_limit > 0 ? u.gradient_limit : INFINITY;
    gpunn__load_quads(u.gradient, GPUNN_F32, i, GPUNN__APART, u.count, e->g);
    gpunn__load_quads(u.parameter, GPUNN_F32, i, GPUNN__APART, u.count, e->p);
#pragma unroll
    for (int k = 0; k < gpunn__rule<KIND>::STATES; k++) {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) e->s[k][j] = 0;
        if (u.state[k]) gpunn__load_quads(u.state[k], GPUNN_F32, i, GPUNN__APART, u.count, e->s[k]);
    }
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) {
        e->g[j] = gpunn__clipped(e->g[j] * scale, limit);
    }
}

template <int KIND>
__device__ __forceinline__ void gpunn__states_store(gpunn__elements *e, const gpunn_update &u, int64_t i)
{
#pragma unroll
    for (int k = 0; k < gpunn__rule<KIND>::STATES; k++)
        if (u.state[k]) gpunn__store_quads(u.state[k], GPUNN_F32, i, GPUNN__APART, u.count, false, e->s[k]);
}

__device__ __forceinline__ void gpunn__parameters_store(gpunn__elements *e, const gpunn_update &u, int64_t i)
{
    if (u.half) {
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) e->g[j] = e->p[j];
        gpunn__store_quads(u.half, u.half_dtype, i, GPUNN__APART, u.count, false, e->g);
    }
    gpunn__store_quads(u.parameter, GPUNN_F32, i, GPUNN__APART, u.count, false, e->p);
}

/* An update's settings, with the lr of this run. */
struct gpunn__settings {
    float                      value[GPUNN_SETTINGS];
    __device__ __forceinline__ gpunn__settings(const gpunn_update &u, float lr)
    {
#pragma unroll
        for (int i = 0; i < GPUNN_SETTINGS; i++) value[i] = i ? u.setting[i] : lr;
    }
};

/* The work of an update, by all blocks of a launch. */
template <int KIND> __device__ __forceinline__ void gpunn__update_make(const gpunn__update_job &job)
{
    const gpunn_update_numbers k = gpunn__update_numbers<KIND>(job);
    const gpunn__settings      setting(job.u, k.lr);
    int64_t                    i = gpunn__pack_first(GPUNN__APART, blockIdx.x);
    if (!k.go) return;
    for (; i < job.u.count; i += gpunn__packs_step(gridDim.x)) {
        gpunn__elements e;
        gpunn__elements_load<KIND>(&e, job.u, k.scale, i);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++)
            gpunn__rule<KIND>::step(setting.value, k.once, e.p[j], e.g[j], e.s[0][j], e.s[1][j], e.s[2][j]);
        gpunn__states_store<KIND>(&e, job.u, i);
        gpunn__parameters_store(&e, job.u, i);
    }
}

/* Three blocks per multiprocessor. Left to its own choice of registers, ptxas spills one kind on sm_90. */
template <int KIND>
static __global__ void __launch_bounds__(GPUNN__THREADS, 3) gpunn__update_kernel(const gpunn__update_job job)
{
    GPUNN__FOLLOW();
    gpunn__update_make<KIND>(job);
}

/* Updates the rows of a sparse gradient. A thread takes one element of each. */
template <int KIND> __device__ __forceinline__ void gpunn__rows_make(const gpunn__update_job &job)
{
    const gpunn_update_numbers k = gpunn__update_numbers<KIND>(job);
    const gpunn__settings      setting(job.u, k.lr);
    const gpunn_update        &u = job.u;
    const float                limit = u.gradient_limit > 0 ? u.gradient_limit : INFINITY;
    int64_t                    i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (!k.go) return;
    for (; i < u.count; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t entry = gpunn__quotient(i, u.columns), row = u.rows[entry],
                      at = row * u.columns + (i - entry * u.columns);
        if (row < 0) continue;
        const float g = gpunn__clipped(u.gradient[i] * k.scale, limit);
        float       p = u.parameter[at], s[3] = {0, 0, 0};
#pragma unroll
        for (int n = 0; n < gpunn__rule<KIND>::STATES; n++)
            if (u.state[n]) s[n] = u.state[n][at];
        gpunn__rule<KIND>::step(setting.value, k.once, p, g, s[0], s[1], s[2]);
#pragma unroll
        for (int n = 0; n < gpunn__rule<KIND>::STATES; n++)
            if (u.state[n]) u.state[n][at] = s[n];
        u.parameter[at] = p;
        if (u.half) gpunn__store(u.half, u.half_dtype, at, p);
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__rows_update_kernel(const gpunn__update_job job)
{
    GPUNN__FOLLOW();
    switch (job.u.kind) {
    case GPUNN_UPDATE_SGD: gpunn__rows_make<GPUNN_UPDATE_SGD>(job); break;
    case GPUNN_UPDATE_ADAGRAD: gpunn__rows_make<GPUNN_UPDATE_ADAGRAD>(job); break;
    case GPUNN_UPDATE_SPARSE_ADAM: gpunn__rows_make<GPUNN_UPDATE_SPARSE_ADAM>(job); break;
    default: break;
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS, 1)
    gpunn__short_training_kernel(const __grid_constant__ gpunn__short_training training)
{
    GPUNN__FOLLOW();
    gpunn__short_make(training.step, training.count);
    switch (training.job.u.kind) {
#define GPUNN__X(ENUM, ...) \
    case GPUNN_UPDATE_##ENUM: gpunn__update_make<GPUNN_UPDATE_##ENUM>(training.job); break;
        GPUNN_OPTIMIZERS(GPUNN__X, , , , )
#undef GPUNN__X
    default: break;
    }
}

/* The first kernel of a trust ratio: updates the states and sums squares. Block i leaves its two sums at
 * sums + 2 i. */
template <int KIND>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__norms_kernel(const gpunn__update_job job)
{
    GPUNN__FOLLOW();
    const gpunn_update_numbers k = *job.numbers;
    const gpunn__settings      setting(job.u, k.lr);
    double                     squares = 0, moves = 0;
    int64_t                    i = gpunn__pack_first(GPUNN__APART, blockIdx.x);
    if (!k.go) return;
    for (; i < job.u.count; i += gpunn__packs_step(gridDim.x)) {
        gpunn__elements e;
        gpunn__elements_load<KIND>(&e, job.u, k.scale, i);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            gpunn__rule<KIND>::step(setting.value, k.once, e.p[j], e.g[j], e.s[0][j], e.s[1][j], e.s[2][j]);
            const float move = gpunn__rule<KIND>::move(setting.value, k.once, e.p[j], e.s[0][j], e.s[1][j],
                                                       e.s[2][j]);
            if (gpunn__pack_place(i, GPUNN__APART, j) < job.u.count) {
                squares += (double)e.p[j] * (double)e.p[j];
                moves += (double)move * (double)move;
            }
        }
        gpunn__states_store<KIND>(&e, job.u, i);
    }
    squares = gpunn__block_reduce(squares, gpunn__add());
    moves = gpunn__block_reduce(moves, gpunn__add());
    if (threadIdx.x == 0) {
        job.sums[2 * blockIdx.x] = squares;
        job.sums[2 * blockIdx.x + 1] = moves;
    }
}

/* The second kernel of a trust ratio: updates the parameters. */
template <int KIND>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__trust_kernel(const gpunn__update_job job)
{
    GPUNN__FOLLOW();
    const gpunn_update_numbers k = *job.numbers;
    const gpunn__settings      setting(job.u, k.lr);
    double                     squares = 0, moves = 0;
    int64_t                    i = gpunn__pack_first(GPUNN__APART, blockIdx.x);
    if (!k.go) return;
    for (int at = (int)threadIdx.x; at < job.sum_count; at += (int)blockDim.x) {
        squares += job.sums[2 * at];
        moves += job.sums[2 * at + 1];
    }
    squares = gpunn__block_reduce(squares, gpunn__add());
    moves = gpunn__block_reduce(moves, gpunn__add());
    const double norms = squares > 0 && moves > 0 ? sqrt(squares / moves) : 1;
    const float  rate = (float)((double)k.lr *
                               gpunn__update_ratio((gpunn_update_kind)KIND, job.setting, norms));
    for (; i < job.u.count; i += gpunn__packs_step(gridDim.x)) {
        gpunn__elements e;
        gpunn__elements_load<KIND>(&e, job.u, k.scale, i);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++)
            e.p[j] -= rate *
                      gpunn__rule<KIND>::move(setting.value, k.once, e.p[j], e.s[0][j], e.s[1][j], e.s[2][j]);
        gpunn__parameters_store(&e, job.u, i);
    }
}

/* x /= max(norm, eps). sums has the squares of x in parts. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__muon_normalize_kernel(float *x, int64_t count, const double *sums, int sum_count, double eps)
{
    GPUNN__FOLLOW();
    const float scale = (float)(1 / fmax(sqrt(gpunn__partials_sum(sums, sum_count)), eps));
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x)
        x[i] *= scale;
}

/* y = scale x + diagonal I, for square matrices. y may be x. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__muon_shift_kernel(float *y, const float *x, int64_t size, float scale, float diagonal)
{
    GPUNN__FOLLOW();
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < size * size;
         i += (int64_t)gridDim.x * blockDim.x)
        y[i] = scale * x[i] + (i % (size + 1) == 0 ? diagonal : 0);
}

/* The last pass of Muon: p = p * shrink - lr * ratio * x. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__muon_kernel(const gpunn__update_job job, const float *x, double ratio)
{
    GPUNN__FOLLOW();
    const gpunn_update_numbers k = *job.numbers;
    const float                rate = (float)((double)k.lr * ratio);
    if (!k.go) return;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < job.u.count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const float p = job.u.parameter[i] * k.once[0] - rate * x[i];
        job.u.parameter[i] = p;
        if (job.u.half) gpunn__store(job.u.half, job.u.half_dtype, i, p);
    }
}

/* Records the lowest address of a non-finite gradient in *bad_place. v has the values at x, x + 1, ... */
__device__ __forceinline__ void gpunn__find_bad(const float *v, const float *x, unsigned long long *bad_place)
{
#pragma unroll
    for (int j = GPUNN__PACK - 1; j >= 0; j--)
        if (!gpunn__is_finite(v[j])) (void)atomicMax(bad_place, ~(unsigned long long)(uintptr_t)(x + j));
}

/* Checks gradients, unless *doubt says that they are finite. Successive ranges start at different blocks, so
 * that short ones are spread over the device. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__finite_kernel(unsigned long long *bad_place, const uint64_t *doubt,
                         const gpunn__gradients gradients)
{
    GPUNN__FOLLOW();
    if (doubt && *doubt == 0) return;
    const int64_t step = (int64_t)gridDim.x * blockDim.x * GPUNN__PACK;
    for (int r = 0; r < gradients.count; r++) {
        const float  *x = gradients.values[r];
        const int64_t count = gradients.length[r];
        int64_t       i = ((blockIdx.x + (unsigned)r) % gridDim.x * (int64_t)blockDim.x + threadIdx.x) *
                    GPUNN__PACK;
        for (; i < count; i += step) {
            float v[8];
            gpunn__load_pack(x, GPUNN_F32, i, gpunn__pack_size(count, i), v);
            gpunn__find_bad(v, x + i, bad_place);
        }
    }
}

/* Block i leaves the sum of the squares of what it reads in partials[i]. state: for gpunn__find_bad, or
 * NULL. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__squares_kernel(const float *x, int64_t count, double *partials, gpunn__device_state *state)
{
    GPUNN__FOLLOW();
    double  sum = 0;
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * GPUNN__PACK;
    for (; i < count; i += (int64_t)gridDim.x * blockDim.x * GPUNN__PACK) {
        float v[8];
        gpunn__load_pack(x, GPUNN_F32, i, gpunn__pack_size(count, i), v);
        if (state) gpunn__find_bad(v, x + i, &state->bad_place);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) sum += (double)v[j] * (double)v[j];
    }
    sum = gpunn__block_reduce(sum, gpunn__add());
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__scale_kernel(float *x, int64_t count, float scale, float limit)
{
    GPUNN__FOLLOW();
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * GPUNN__PACK;
    for (; i < count; i += (int64_t)gridDim.x * blockDim.x * GPUNN__PACK) {
        float v[8];
        int   n = gpunn__pack_size(count, i);
        gpunn__load_pack(x, GPUNN_F32, i, n, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            v[j] = gpunn__clipped(v[j] * scale, limit);
        }
        gpunn__store_pack(x, GPUNN_F32, i, n, false, v);
    }
}

/* Counts a skipped step and updates the loss scale as torch's GradScaler does. The scale is halved after
 * non-finite gradients and doubled after 2000 updates in a row. */
static __global__ void gpunn__loss_scale_kernel(const gpunn__update_job job, float *loss_scale)
{
    GPUNN__FOLLOW();
    const bool bad_loss = gpunn__has_bad_loss(job), overflow = !bad_loss && job.state->bad_place;
    if ((overflow || bad_loss) && !gpunn__is_rejected(job)) loss_scale[2] += 1;
    if (!job.scales || bad_loss) return;
    loss_scale[1] = overflow ? 0 : loss_scale[1] + 1;
    if (overflow) {
        loss_scale[0] = fmaxf(loss_scale[0] * 0.5f, 1);
    } else if (loss_scale[1] >= 2000) {
        loss_scale[0] = fminf(loss_scale[0] * 2, 16777216);
        loss_scale[1] = 0;
    }
}

/* Checks the loss of a run without updates. */
static __global__ void gpunn__check_loss_kernel(const gpunn__update_job job)
{
    GPUNN__FOLLOW();
    if (!gpunn__is_finite(*job.loss)) gpunn__kept_copy(job.kept, job.kept_count, true, 0, 1);
    if (threadIdx.x == 0) (void)gpunn__may_go(job, 0, true);
}

/* Blocks of the first stage for `count` of the `total` elements in `ranges` ranges. The number depends only
 * on these; all ranges together get at most GPUNN__PARTIALS. */
static int gpunn__squares_blocks(int64_t count, int64_t total, int ranges)
{
    const int64_t each = 4 * GPUNN__THREADS * GPUNN__PACK;
    int64_t       most = 1 + count * (GPUNN__PARTIALS - ranges) / total, wanted = (count + each - 1) / each;
    return (int)(wanted < most ? wanted : most);
}

/* The short steps that end the run, and its update. */
static gpunn_status gpunn__short_training_launch(gpunn__cuda *cuda, const gpunn__update_job *job)
{
    gpunn__short_steps    shorts;
    gpunn__short_training training;
    (void)gpunn__short_gather(cuda, cuda->with_update, &shorts);
    memcpy(training.step, shorts.step, (size_t)shorts.count * sizeof *shorts.step);
    training.count = shorts.count;
    training.job = *job;
    return GPUNN__LAUNCH(cuda, gpunn__short_training_kernel, 1, GPUNN__THREADS, training);
}

/* The kernels of an update's row. */
static gpunn_status gpunn__update_kernels_launch(gpunn__cuda *cuda, const gpunn__update_job *job,
                                                 unsigned blocks)
{
    switch (job->u.kind) {
#define GPUNN__X(ENUM, ...)   \
    case GPUNN_UPDATE_##ENUM: \
        return GPUNN__LAUNCH(cuda, (gpunn__update_kernel<GPUNN_UPDATE_##ENUM>), blocks, GPUNN__THREADS, *job);
#define GPUNN__TRUST(ENUM, ...)                                                                              \
    case GPUNN_UPDATE_##ENUM:                                                                                \
        GPUNN__TRY(GPUNN__LAUNCH(cuda, (gpunn__norms_kernel<GPUNN_UPDATE_##ENUM>), (unsigned)job->sum_count, \
                                 GPUNN__THREADS, *job));                                                     \
        return GPUNN__LAUNCH(cuda, (gpunn__trust_kernel<GPUNN_UPDATE_##ENUM>), blocks, GPUNN__THREADS, *job);
        GPUNN_UPDATES(GPUNN__X, GPUNN__TRUST, , , , )
#undef GPUNN__X
#undef GPUNN__TRUST
    default: return GPUNN_OK;
    }
}

/* d[m][n] = a[m][k] b[k][n] in F32, all contiguous. */
static gpunn_status gpunn__muon_product(gpunn__cuda *cuda, int64_t m, int64_t n, int64_t k, const float *a,
                                        bool transpose_a, const float *b, bool transpose_b, float *d)
{
    gpunn__product p;
    memset(&p, 0, sizeof p);
    p.m = m, p.n = p.ldd = n, p.k = k, p.batch = 1;
    p.transpose_a = transpose_a, p.transpose_b = transpose_b;
    p.lda = transpose_a ? m : k, p.ldb = transpose_b ? k : n;
    p.dtype = p.d_dtype = GPUNN_F32, p.precision = GPUNN_PRECISION_F32;
    p.a = a, p.b = b, p.d = d;
    return gpunn__products(cuda, &p, 1, GPUNN__FORWARD);
}

static gpunn_status gpunn__muon_shift(gpunn__cuda *cuda, float *y, const float *x, int64_t size, float scale,
                                      float diagonal)
{
    return GPUNN__LAUNCH(cuda, gpunn__muon_shift_kernel, gpunn__blocks(cuda, size * size, 1), GPUNN__THREADS,
                         y, x, size, scale, diagonal);
}

/* One step of Muon's iteration, as on the CPU: x becomes a x + b (x x^T) x + c (x x^T)^2 x, in y. */
static gpunn_status gpunn__muon_step(gpunn__cuda *cuda, const gpunn__muon *m, const float *x, float *y,
                                     float *gram)
{
    const int64_t k = m->least, longer = m->rows + m->columns - k;
    float *const mixed = gram + k * k, *const poly = mixed + k * k;
    GPUNN__TRY(gpunn__muon_product(cuda, k, k, longer, x, m->tall, x, !m->tall, gram));
    GPUNN__TRY(gpunn__muon_shift(cuda, mixed, gram, k, m->c, m->b));
    GPUNN__TRY(gpunn__muon_product(cuda, k, k, k, gram, false, mixed, false, poly));
    GPUNN__TRY(gpunn__muon_shift(cuda, poly, poly, k, 1, m->a));
    return gpunn__muon_product(cuda, m->rows, m->columns, k, m->tall ? x : poly, false, m->tall ? poly : x,
                               false, y);
}

/* Orthogonalizes the matrix that the first pass has left in state 1, and makes the step along it. If the
 * update is rejected, the matrix is an old one and the last pass does nothing. */
static gpunn_status gpunn__muon_launch(gpunn__cuda *cuda, const gpunn__update_job *job, unsigned blocks)
{
    const gpunn_update *u = &job->u;
    const gpunn__muon   m = gpunn__muon_of(job->setting, u->count / u->columns, u->columns);
    float *x = u->state[1], *y = (float *)u->workspace, *const gram = y + u->count;
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__squares_kernel, (unsigned)job->sum_count, GPUNN__THREADS, x,
                             u->count, job->sums, (gpunn__device_state *)NULL));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__muon_normalize_kernel, blocks, GPUNN__THREADS, x, u->count,
                             job->sums, job->sum_count, m.eps));
    for (int step = 0; step < m.steps; step++) {
        GPUNN__TRY(gpunn__muon_step(cuda, &m, x, y, gram));
        float *const result = y;
        y = x;
        x = result;
    }
    return GPUNN__LAUNCH(cuda, gpunn__muon_kernel, blocks, GPUNN__THREADS, *job, x, m.ratio);
}

static gpunn_status gpunn__cuda_update_launch(gpunn__cuda *cuda, gpunn__update_job *job)
{
    const gpunn_update *u = &job->u;
    bool                apart = gpunn__decided_apart(u->kind);
    unsigned            blocks = gpunn__blocks(cuda, u->count, GPUNN__PACK);
#define GPUNN__X(ENUM, ...) apart = apart || u->kind == GPUNN_UPDATE_##ENUM;
    GPUNN_TRUST_OPTIMIZERS(GPUNN__X, , , , )
#undef GPUNN__X
    for (int i = 0; i < GPUNN_SETTINGS; i++) job->setting[i] = gpunn__as_written(u->setting[i]);
    if (cuda->with_update) return gpunn__short_training_launch(cuda, job);
    if (u->rows)
        return GPUNN__LAUNCH(cuda, gpunn__rows_update_kernel, gpunn__blocks(cuda, u->count, 1),
                             GPUNN__THREADS, *job);
    if (apart) {
        job->numbers = &cuda->state->numbers[job->index];
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__decide_kernel, 1, GPUNN__THREADS, *job, job->numbers));
        /* Other kinds decide within the update. A generated kernel would need an extra launch for it. */
        if (u->fused_launch) {
            gpunn__cuda_clear();
            return gpunn__cuda_check(cuda, (cudaError_t)-u->fused_launch(u, job->numbers, cuda->stream),
                                     "a generated update");
        }
    }
    job->sums = cuda->partials + GPUNN__PARTIALS;
    job->sum_count = blocks < GPUNN__TRUST_BLOCKS ? (int)blocks : (int)GPUNN__TRUST_BLOCKS;
    GPUNN__TRY(gpunn__update_kernels_launch(cuda, job, blocks));
    return u->kind == GPUNN_UPDATE_MUON ? gpunn__muon_launch(cuda, job, blocks) : GPUNN_OK;
}

/* Blocks that sum the squares of an update's gradients. An average has none. */
static int gpunn__squares_of(const gpunn_run *run, const gpunn_update *u)
{
    int64_t total = 0;
    for (int i = 0; i < run->update_count; i++) total += run->updates[i].count;
    return u->kind == GPUNN_UPDATE_AVERAGE ? 0 : gpunn__squares_blocks(u->count, total, run->update_count);
}

/* Sums the squares of a clip group's gradients into the partials after those of earlier clip groups. */
static gpunn_status gpunn__cuda_squares(gpunn__cuda *cuda, const gpunn_run *run, gpunn__update_job *job,
                                        int clip_group)
{
    for (int i = 0; i < run->update_count; i++) {
        const gpunn_update *u = &run->updates[i];
        const int           blocks = u->clip_group == clip_group ? gpunn__squares_of(run, u) : 0;
        if (blocks == 0) continue;
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__squares_kernel, (unsigned)blocks, GPUNN__THREADS, u->gradient,
                                 u->count, cuda->partials + job->partial_count, cuda->state));
        job->partial_count += blocks;
    }
    return GPUNN_OK;
}

/* Whether this rank holds an update's gradients. With a loss scale, it holds those of other ranks' shares,
 * too. */
static bool gpunn__has_gradients(const gpunn_run *run, const gpunn_update *u)
{
    return u->kind != GPUNN_UPDATE_AVERAGE && (u->parameter || run->loss_scale);
}

/* ---- checks of gradients -------------------------------------------------------------------------------- *
 * No update
 * may use a gradient that is not finite. Kernels on a second stream, a branch of the run's graph, look at
 * gradients right behind the step that wrote them last, while the second-level cache holds them. Where that
 * is not possible a kernel reads all of them before the update. The last few are left to the update's own
 * blocks. */

enum {
    GPUNN__CHECK_TOGETHER = 1 << 19, /* floats: gradients wait for others until a kernel has so many */
    GPUNN__BETWEEN_GRADIENTS = 16,   /* fewer floats, all 0, lie between neighbours: gpunn_run's gradients */
};

/* Whether blocks of the run's update can look at so many gradients by themselves. */
static bool gpunn__are_few(const gpunn_run *run, int64_t count)
{
    return run->update_count == 1 && count <= GPUNN__FEW_GRADIENTS && run->loss_scale == NULL &&
           run->exchange_count == 0;
}

/* Whether checks follow the run's steps. They do not if norms of all gradients or other ranks' gradients are
 * needed. */
static bool gpunn__is_checked(const gpunn_run *run)
{
    bool checked = run->gradients && run->exchange_count == 0 && (run->update_count > 0 || run->doubt);
    if (run->update_count == 1 && gpunn__are_few(run, run->updates->count)) checked = false;
    for (int i = 0; i < run->update_count && checked; i++) checked = !(run->updates[i].clip_norm > 0);
    return checked;
}

GPUNN__INTERNAL bool gpunn__joins_steps(const gpunn__cuda *cuda, const gpunn_run *run)
{
    const gpunn_update *u = run->updates;
    if (cuda->plain || run->update_count != 1 || u->count > GPUNN__FEW_GRADIENTS || u->parameter == NULL)
        return false;
    if (u->rows || run->loss_scale || run->exchange_count > 0 || u->clip_norm > 0 ||
        gpunn__decided_apart(u->kind))
        return false;
#define GPUNN__X(ENUM, ...) \
    if (u->kind == GPUNN_UPDATE_##ENUM) return true;
    GPUNN_OPTIMIZERS(GPUNN__X, , , , )
#undef GPUNN__X
    return false;
}

/* The gradient of a parameter that operand i of a step receives; NULL: none. */
static const float *gpunn__written_by(const gpunn_run *run, const gpunn_step *step, int i)
{
    const float *values = (const float *)step->grad_in[i].data;
    const bool   writes = (step->backward || step->op == GPUNN_OP_FUSION) && values &&
                        step->grad_in[i].dtype == GPUNN_F32;
    return writes && values >= run->gradients && values < run->gradients + run->gradient_count ? values
                                                                                               : NULL;
}

/* Whether the run's updates read any of that. What a run without updates writes, a later one does. */
static bool gpunn__is_read(const gpunn_run *run, const gpunn__check *check)
{
    bool reads = run->update_count == 0;
    for (int i = 0; i < run->update_count && !reads; i++) {
        const gpunn_update *u = &run->updates[i];
        reads = gpunn__has_gradients(run, u) && check->values < u->gradient + u->count &&
                u->gradient < check->values + check->count;
    }
    return reads;
}

/* Adds what operand `first` of step s writes, unless all of it is written again later. */
static void gpunn__checks_add(gpunn__checks *checks, const gpunn_run *run, int s, int first)
{
    gpunn__check check = {gpunn__written_by(run, &run->steps[s], first), run->steps[s].grad_in[first].count,
                          s + 1};
    for (int t = s, i = first + 1; t < run->step_count && check.values; t++, i = 0)
        for (; i < run->steps[t].input_count; i++) {
            const float  *later = gpunn__written_by(run, &run->steps[t], i);
            const int64_t count = run->steps[t].grad_in[i].count;
            if (later == NULL || later >= check.values + check.count || check.values >= later + count)
                continue;
            if (later <= check.values && later + count >= check.values + check.count) return;
            check.after = t + 1;
        }
    if (check.values && gpunn__is_read(run, &check)) checks->list[checks->count++] = check;
}

static int gpunn__check_order(const void *a, const void *b)
{
    const gpunn__check *x = (const gpunn__check *)a, *y = (const gpunn__check *)b;
    if (x->after != y->after) return x->after < y->after ? -1 : 1;
    return (x->values > y->values) - (x->values < y->values);
}

/* Makes room for all gradients that the run's steps write. */
static gpunn_status gpunn__checks_reserve(gpunn__cuda *cuda, const gpunn_run *run)
{
    int capacity = 0;
    for (int s = 0; s < run->step_count; s++)
        for (int i = 0; i < run->steps[s].input_count; i++)
            capacity += gpunn__written_by(run, &run->steps[s], i) != NULL;
    if (capacity <= cuda->check_capacity) return GPUNN_OK;
    gpunn__host_free(cuda, cuda->checks, (size_t)cuda->check_capacity * sizeof *cuda->checks);
    cuda->checks = (gpunn__check *)gpunn__host_alloc(cuda, (size_t)capacity * sizeof *cuda->checks);
    cuda->check_capacity = cuda->checks ? capacity : 0;
    return cuda->checks ? GPUNN_OK : GPUNN_ERR_MEMORY;
}

GPUNN__INTERNAL gpunn_status gpunn__checks_begin(gpunn__cuda *cuda, const gpunn_run *run,
                                                 gpunn__checks *checks)
{
    memset(checks, 0, sizeof *checks);
    checks->bad_place = run->update_count > 0 ? &cuda->state->bad_place : (unsigned long long *)run->doubt;
    if (!gpunn__is_checked(run)) return GPUNN_OK;
    GPUNN__TRY(gpunn__checks_reserve(cuda, run));
    checks->list = cuda->checks;
    for (int s = 0; s < run->step_count; s++)
        for (int i = 0; i < run->steps[s].input_count; i++) gpunn__checks_add(checks, run, s, i);
    if (checks->count > 1)
        qsort(checks->list, (size_t)checks->count, sizeof *checks->list, gpunn__check_order);
    return GPUNN_OK;
}

/* Launches a kernel for the ranges, if there are any, and empties the list. */
static gpunn_status gpunn__gradients_check(gpunn__cuda *cuda, gpunn__gradients *gradients,
                                           unsigned long long *bad_place, const uint64_t *doubt)
{
    const unsigned blocks = gpunn__blocks(cuda, gradients->total, GPUNN__PACK);
    if (gradients->count == 0) return GPUNN_OK;
    GPUNN__TRY(
        GPUNN__LAUNCH(cuda, gpunn__finite_kernel, blocks, GPUNN__THREADS, bad_place, doubt, *gradients));
    gradients->count = 0;
    gradients->total = 0;
    return GPUNN_OK;
}

/* Adds a range, and launches a kernel for all of them if no more fit. */
static gpunn_status gpunn__gradients_add(gpunn__cuda *cuda, gpunn__gradients *gradients, const float *values,
                                         int64_t count, unsigned long long *bad_place, const uint64_t *doubt)
{
    gradients->values[gradients->count] = values;
    gradients->length[gradients->count] = count;
    gradients->total += count;
    if (++gradients->count < GPUNN__GRADIENT_RANGES) return GPUNN_OK;
    return gpunn__gradients_check(cuda, gradients, bad_place, doubt);
}

/* Launches kernels for the checks before `end`, on the context's stream. */
static gpunn_status gpunn__checks_launch(gpunn__cuda *cuda, gpunn__checks *checks, int end)
{
    gpunn__gradients gradients = {};
    for (; checks->next < end; checks->next++) {
        const gpunn__check *check = &checks->list[checks->next];
        GPUNN__TRY(
            gpunn__gradients_add(cuda, &gradients, check->values, check->count, checks->bad_place, NULL));
    }
    return gpunn__gradients_check(cuda, &gradients, checks->bad_place, NULL);
}

/* The same on the second stream, beside what the first one does from now on. */
static gpunn_status gpunn__checks_launch_beside(gpunn__cuda *cuda, gpunn__checks *checks, int end)
{
    const cudaStream_t stream = cuda->stream;
    const bool         overlaps = cuda->overlaps;
    GPUNN__CUDA(cuda, cudaEventRecord(cuda->side_from, stream));
    GPUNN__CUDA(cuda, cudaStreamWaitEvent(cuda->side, cuda->side_from, 0));
    checks->beside = true;
    cuda->stream = cuda->side;
    cuda->overlaps = false;
    const gpunn_status status = gpunn__checks_launch(cuda, checks, end);
    cuda->stream = stream;
    cuda->overlaps = overlaps;
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__checks_after(gpunn__cuda *cuda, gpunn__checks *checks, int steps)
{
    const int last = checks->count > 0 ? checks->list[checks->count - 1].after : 0;
    int       end = checks->next;
    int64_t   floats = 0;
    if (cuda->plain || cuda->marks) return GPUNN_OK;
    for (; end < checks->count && checks->list[end].after <= steps && checks->list[end].after < last; end++)
        floats += checks->list[end].count;
    if (floats == 0 || (floats < GPUNN__CHECK_TOGETHER && checks->list[end].after < last)) return GPUNN_OK;
    return gpunn__checks_launch_beside(cuda, checks, end);
}

/* The stream goes on behind all checks; those that are left follow its last step. */
static gpunn_status gpunn__checks_end(gpunn__cuda *cuda, gpunn__checks *checks)
{
    GPUNN__TRY(gpunn__checks_launch(cuda, checks, checks->count));
    if (!checks->beside) return GPUNN_OK;
    GPUNN__CUDA(cuda, cudaEventRecord(cuda->side_to, cuda->side));
    return gpunn__cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, cuda->side_to, 0),
                             "cudaStreamWaitEvent");
}

/* Whether there are checks of all gradients that an update reads, between which there are zeros. */
static bool gpunn__checks_cover(const gpunn__checks *checks, const gpunn_update *u)
{
    const float *at = u->gradient, *const end = at + u->count;
    for (int i = 0; i < checks->count && at < end; i++) {
        const gpunn__check *check = &checks->list[i];
        if (check->values >= at + GPUNN__BETWEEN_GRADIENTS || check->values + check->count <= at) continue;
        at = check->values + check->count;
        i = -1;
    }
    return at >= end;
}

static bool gpunn__checks_cover_all(const gpunn_run *run, const gpunn__checks *checks)
{
    bool all = checks->count > 0;
    for (int i = 0; i < run->update_count && all; i++)
        all = !gpunn__has_gradients(run, &run->updates[i]) || gpunn__checks_cover(checks, &run->updates[i]);
    return all;
}

/* Leaves the gradients that come last, a weight's and a bias's, to the update's blocks, if these can look at
 * them. */
static void gpunn__checks_leave(const gpunn_run *run, gpunn__checks *checks, gpunn__update_job *job)
{
    const int left = checks->count - checks->next;
    int64_t   total = 0;
    for (int i = checks->next; i < checks->count; i++) total += checks->list[i].count;
    if (left > GPUNN__FEW_RANGES || !gpunn__are_few(run, total)) return;
    for (int i = 0; i < left; i++, checks->next++) {
        job->few[i] = checks->list[checks->next].values;
        job->few_count[i] = (int)checks->list[checks->next].count;
    }
}

/* Before updates: what the checks beside the steps have left, or all. */
static gpunn_status gpunn__cuda_check_gradients(gpunn__cuda *cuda, const gpunn_run *run,
                                                gpunn__checks *checks, gpunn__update_job *job)
{
    gpunn__gradients      gradients = {};
    const uint64_t *const doubt = run->is_checked ? run->doubt : NULL;
    if (gpunn__checks_cover_all(run, checks)) {
        gpunn__checks_leave(run, checks, job);
        return gpunn__checks_end(cuda, checks);
    }
    checks->next = checks->count;
    GPUNN__TRY(gpunn__checks_end(cuda, checks));
    if (run->update_count == 1 && gpunn__has_gradients(run, run->updates) &&
        gpunn__are_few(run, run->updates->count)) {
        job->few[0] = run->updates->gradient;
        job->few_count[0] = (int)run->updates->count;
        return GPUNN_OK;
    }
    for (int i = 0; i < run->update_count; i++) {
        const gpunn_update *u = &run->updates[i];
        if (!gpunn__has_gradients(run, u)) continue;
        GPUNN__TRY(
            gpunn__gradients_add(cuda, &gradients, u->gradient, u->count, &cuda->state->bad_place, doubt));
    }
    return gpunn__gradients_check(cuda, &gradients, &cuda->state->bad_place, doubt);
}

/* For ranks that see only their share of the gradients. A bad gradient turns the loss into NaN, which the
 * following average carries to all ranks. */
static __global__ void gpunn__report_in_loss_kernel(const gpunn__update_job job, float *loss)
{
    GPUNN__FOLLOW();
    unsigned long long bad_place = job.state->bad_place;
    if (bad_place == 0 || !gpunn__is_finite(*loss)) return;
    (void)gpunn__may_go(job, bad_place, true);
    *loss = NAN;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_updates(gpunn__cuda *cuda, const gpunn_run *run,
                                                 gpunn__checks *checks, int *begun)
{
    int               clip_groups = 1, updated = 0;
    bool              squares = false;
    gpunn__update_job job;
    memset(&job, 0, sizeof job);
    job.loss = run->loss;
    job.loss_scale = run->loss_scale;
    job.partials = cuda->partials;
    job.state = cuda->state;
    job.bad = cuda->bad_device;
    job.skips = run->skips;
    job.scales = run->scales;
    job.kept = run->kept;
    job.kept_count = run->kept_count;
    job.rejected = run->rejected;
    job.doubt = run->step_count == 0 ? run->doubt : NULL;
    if (run->update_count == 0) {
        GPUNN__TRY(gpunn__checks_end(cuda, checks));
        if (run->loss == NULL) return GPUNN_OK;
        return GPUNN__LAUNCH(cuda, gpunn__check_loss_kernel, 1, GPUNN__THREADS, job);
    }
    const gpunn__range range("update");
    for (int i = 0; i < run->update_count; i++) {
        squares = squares || run->updates[i].clip_norm > 0;
        if (run->updates[i].clip_group >= clip_groups) clip_groups = run->updates[i].clip_group + 1;
    }
    for (int clip_group = 0; squares && clip_group < clip_groups; clip_group++)
        GPUNN__TRY(gpunn__cuda_squares(cuda, run, &job, clip_group));
    if (!squares) GPUNN__TRY(gpunn__cuda_check_gradients(cuda, run, checks, &job));
    if (*begun < run->exchange_count && run->exchanges[*begun].after == GPUNN_AFTER_CHECK) {
        GPUNN__TRY(
            GPUNN__LAUNCH(cuda, gpunn__report_in_loss_kernel, 1, 1, job, run->exchanges[*begun].values));
        GPUNN__TRY(gpunn__exchanges_after(cuda, run, GPUNN_AFTER_CHECK, begun));
        GPUNN__TRY(gpunn__exchanges_end(cuda, 1));
    }
    for (int clip_group = 0, first = 0; clip_group < clip_groups; clip_group++, first += job.own_count) {
        job.own_first = first;
        job.own_count = 0;
        for (int i = 0; squares && i < run->update_count; i++)
            if (run->updates[i].clip_group == clip_group)
                job.own_count += gpunn__squares_of(run, &run->updates[i]);
        for (job.index = 0; job.index < run->update_count; job.index++) {
            job.u = run->updates[job.index];
            if (job.u.clip_group != clip_group || job.u.parameter == NULL) continue;
            job.reports = updated == 0;
            GPUNN__TRY(gpunn__cuda_update_launch(cuda, &job));
            updated++;
        }
    }
    if (updated == 0 && run->loss)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__check_loss_kernel, 1, GPUNN__THREADS, job));
    if (!run->loss_scale) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__loss_scale_kernel, 1, 1, job, run->loss_scale);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_sum_of_squares(void *context, const float *values, int64_t count,
                                                        double *result)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    double       part[GPUNN__PARTIALS];
    int          blocks = gpunn__squares_blocks(count, count, 1);
    *result = 0;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__outside_capture(cuda, "copy to the host"));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__squares_kernel, (unsigned)blocks, GPUNN__THREADS, values, count,
                             cuda->partials, (gpunn__device_state *)NULL));
    GPUNN__CUDA(cuda, cudaMemcpyAsync(part, cuda->partials, (size_t)blocks * sizeof *part,
                                      cudaMemcpyDeviceToHost, cuda->stream));
    GPUNN__TRY(gpunn__stream_wait(cuda));
    for (int i = 0; i < blocks; i++) *result += part[i];
    return GPUNN_OK;
}

/* Statistics of the values that a block reads, classified by their bits. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__value_sums_kernel(const void *x, gpunn_dtype dtype, int64_t count, gpunn_value_sums *parts)
{
    GPUNN__FOLLOW();
    double kinds[6] = {0}; /* counts of finite, zeros, NaN and infinities; sum, sum of squares */
    float  least = INFINITY, most = -INFINITY;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const float    value = gpunn__load(x, dtype, i);
        const unsigned size = __float_as_uint(value) & 0x7FFFFFFF;
        kinds[1] += size == 0;
        kinds[2] += size > 0x7F800000;
        kinds[3] += size == 0x7F800000;
        if (size >= 0x7F800000) continue;
        kinds[0] += 1;
        kinds[4] += (double)value;
        kinds[5] += (double)value * (double)value;
        least = fminf(least, value);
        most = fmaxf(most, value);
    }
    for (int k = 0; k < 6; k++) kinds[k] = gpunn__block_reduce(kinds[k], gpunn__add());
    most = gpunn__block_reduce(most, gpunn__larger());
    least = -gpunn__block_reduce(-least, gpunn__larger());
    if (threadIdx.x == 0)
        parts[blockIdx.x] = {kinds[0], kinds[1], kinds[2],      kinds[3],
                             kinds[4], kinds[5], (double)least, (double)most};
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_value_sums(void *context, const void *values, gpunn_dtype dtype,
                                                    int64_t count, gpunn_value_sums parts[GPUNN_SUM_PARTS])
{
    gpunn__cuda   *cuda = (gpunn__cuda *)context;
    const unsigned most = gpunn__blocks(cuda, count, 1),
                   blocks = most < GPUNN_SUM_PARTS ? most : GPUNN_SUM_PARTS;
    static_assert(sizeof(gpunn_value_sums) * GPUNN_SUM_PARTS <= GPUNN__PARTIALS_BYTES,
                  "they stand in cuda->partials");
    memset(parts, 0, GPUNN_SUM_PARTS * sizeof *parts);
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__outside_capture(cuda, "copy to the host"));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__value_sums_kernel, blocks, GPUNN__THREADS, values, dtype, count,
                             (gpunn_value_sums *)(void *)cuda->partials));
    GPUNN__CUDA(cuda, cudaMemcpyAsync(parts, cuda->partials, blocks * sizeof *parts, cudaMemcpyDeviceToHost,
                                      cuda->stream));
    GPUNN__CUDA(cuda, cudaStreamSynchronize(cuda->stream));
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_scale(void *context, float *values, int64_t count, float scale,
                                               float limit)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    return GPUNN__LAUNCH(cuda, gpunn__scale_kernel, gpunn__blocks(cuda, count, GPUNN__PACK), GPUNN__THREADS,
                         values, count, scale, limit > 0 ? limit : INFINITY);
}
