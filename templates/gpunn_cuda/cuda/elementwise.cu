#include "cuda/elementwise.h"
#include "base/shared.h"

/* An operand addressed by the index i of a result element. i has the digits i % size[0],
 * i / size[0] % size[1], ...: one per dimension of the result, innermost first, with adjacent dimensions
 * merged. An operand of the result's shape and a scalar have one digit; common broadcasts have two or three.
 * A pack costs one division per digit but the last, in 32 bits where that suffices. */
typedef struct gpunn__operand {
    const void *data; /* NULL: absent */
    gpunn_dtype dtype;
    bool        is_broadcast;
    int         rank;
    int64_t     size[GPUNN_MAX_RANK], stride[GPUNN_MAX_RANK]; /* stride[0]: 1, or 0 where broadcast */
} gpunn__operand;

/* The index of the operand's value for element i. *left receives the number of elements from i on before the
 * first digit wraps. */
__device__ __forceinline__ int64_t gpunn__operand_place(const gpunn__operand &operand, int64_t i,
                                                        int64_t *left)
{
    uint64_t rest = (uint64_t)i;
    int64_t  place = 0;
#pragma unroll 1
    for (int d = 0; d < operand.rank; d++) {
        uint64_t size = (uint64_t)operand.size[d], next = d + 1 < operand.rank ? rest / size : 0;
        int64_t  digit = (int64_t)(rest - next * size);
        if (d == 0) *left = operand.size[0] - digit;
        place += digit * operand.stride[d];
        rest = next;
    }
    return place;
}

/* Loads the pack of a broadcast operand, quad by quad. */
__device__ __forceinline__ void gpunn__operand_load(const gpunn__operand &operand, int64_t i, int apart,
                                                    int64_t count, float v[8])
{
#pragma unroll
    for (int q = 0; q < GPUNN__PACK; q += GPUNN__QUAD) {
        const int64_t at = gpunn__pack_place(i, apart, q), stride = operand.stride[0];
        int64_t       left = 0, place = gpunn__operand_place(operand, at, &left);
        if (at >= count) {
#pragma unroll
            for (int j = 0; j < GPUNN__QUAD; j++) v[q + j] = 0;
            continue;
        }
        if (left >= GPUNN__QUAD && stride == 1 && place % GPUNN__QUAD == 0) {
            gpunn__load4(operand.data, operand.dtype, place, v + q);
            continue;
        }
        if (left >= GPUNN__QUAD && stride == 0) {
            const float value = gpunn__load(operand.data, operand.dtype, place);
#pragma unroll
            for (int j = 0; j < GPUNN__QUAD; j++) v[q + j] = value;
            continue;
        }
#pragma unroll 1
        for (int j = 0; j < GPUNN__QUAD; j++, left--, place += stride) {
            if (left == 0) place = gpunn__operand_place(operand, at + j, &left);
#pragma unroll
            for (int k = 0; k < GPUNN__QUAD - 1; k++) v[q + k] = v[q + k + 1];
            v[q + GPUNN__QUAD - 1] = at + j < count ? gpunn__load(operand.data, operand.dtype, place) : 0;
        }
    }
}

typedef struct gpunn__map_job {
    gpunn__operand from[GPUNN__FROM_COUNT]; /* what the op's functions read */
    void          *to[3];                   /* the result, or the gradient of each operand */
    gpunn_dtype    to_dtype[3];
    bool           add[3];
    float          attr[2];
    int            apart; /* as in gpunn__load_quads */
    int64_t        count;
} gpunn__map_job;

/* Unary operands, results and their gradients are never broadcast; gpunn__cuda_map checks it. */
__device__ __forceinline__ void gpunn__map_load(bool broadcasts, const gpunn__map_job &job,
                                                const gpunn__operand &operand, int64_t i, float v[8])
{
    if (broadcasts && operand.is_broadcast)
        gpunn__operand_load(operand, i, job.apart, job.count, v);
    else
        gpunn__load_quads(operand.data, operand.dtype, i, job.apart, job.count, v);
}

template <typename Op>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__map_forward_kernel(const gpunn__map_job job)
{
    GPUNN__FOLLOW();
    int64_t i = gpunn__pack_first(job.apart, blockIdx.x);
    for (; i < job.count; i += gpunn__packs_step(gridDim.x)) {
        float v[3][8] = {}, result[8];
#pragma unroll
        for (int k = 0; k < Op::OPERANDS; k++) gpunn__map_load(Op::OPERANDS > 1, job, job.from[k], i, v[k]);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) {
            const float from[GPUNN__FROM_COUNT] = {v[0][j], v[1][j], v[2][j], 0, 0};
            result[j] = Op::forward(from, job.attr);
        }
        gpunn__store_quads(job.to[0], job.to_dtype[0], i, job.apart, job.count, false, result);
    }
}

template <typename Op>
static __global__ void __launch_bounds__(GPUNN__THREADS, 3)
    gpunn__map_backward_kernel(const gpunn__map_job job)
{
    GPUNN__FOLLOW();
    int64_t i = gpunn__pack_first(job.apart, blockIdx.x);
    for (; i < job.count; i += gpunn__packs_step(gridDim.x)) {
        float v[GPUNN__FROM_COUNT][8] = {};
#pragma unroll
        for (int k = 0; k < GPUNN__FROM_COUNT; k++)
            if ((Op::READ >> k & 1) && job.from[k].data)
                gpunn__map_load(Op::OPERANDS > 1 && k < GPUNN__FROM_RESULT, job, job.from[k], i, v[k]);
#pragma unroll
        for (int d = 0; d < 3; d++) {
            if (!(Op::DERIVATIVES >> d & 1) || !job.to[d]) continue;
            float result[8];
#pragma unroll
            for (int j = 0; j < GPUNN__PACK; j++) {
                const float from[GPUNN__FROM_COUNT] = {v[0][j], v[1][j], v[2][j], v[3][j], v[4][j]};
                result[j] = Op::derivative(d, from, job.attr);
            }
            gpunn__store_quads(job.to[d], job.to_dtype[d], i, job.apart, job.count, job.add[d], result);
        }
    }
}

/* The kernels in the order of gpunn_op, whose first members are the elementwise ops. */
static const struct {
    void (*forward)(gpunn__map_job job);
    void (*backward)(gpunn__map_job job);
    gpunn__map_facts facts;
} gpunn__map_ops[] = {{NULL, NULL, {}},
#define GPUNN__X(ENUM, name, ...)                                                               \
    {gpunn__map_forward_kernel<gpunn__op_##name>, gpunn__map_backward_kernel<gpunn__op_##name>, \
     gpunn__op_##name::FACTS},
                      GPUNN__ELEMENTWISE_OPS(GPUNN__X)
#undef GPUNN__X
};

GPUNN__INTERNAL const gpunn__map_facts *gpunn__map_facts_for(gpunn_op op)
{
    return &gpunn__map_ops[op].facts;
}

static gpunn__operand gpunn__operand_of(const gpunn_value *value, const gpunn_value *result)
{
    gpunn__operand operand = {value->data, value->dtype, false, 1, {1}, {1}};
    gpunn__walk    axes;
    gpunn__axes_of(result, 0, &value, 1, &axes, &axes);
    if (axes.rank == 0) return operand;
    operand.rank = axes.rank;
    memcpy(operand.size, axes.dim, sizeof operand.size);
    memcpy(operand.stride, axes.stride[0], sizeof operand.stride);
    operand.is_broadcast = operand.rank > 1 || operand.stride[0] != 1;
    return operand;
}

static gpunn_status gpunn__map_launch(gpunn__cuda *cuda, void (*kernel)(gpunn__map_job), gpunn__map_job *job)
{
    job->apart = GPUNN__QUAD;
    for (int k = 0; k < GPUNN__FROM_COUNT; k++)
        if (job->from[k].data && job->from[k].dtype == GPUNN_F32) job->apart = GPUNN__APART;
    for (int i = 0; i < 3; i++)
        if (job->to[i] && job->to_dtype[i] == GPUNN_F32) job->apart = GPUNN__APART;
    return GPUNN__LAUNCH(cuda, kernel, gpunn__single_blocks(job->count, GPUNN__PACK), GPUNN__THREADS, *job);
}

static gpunn_status gpunn__map_backward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__map_facts *facts = &gpunn__map_ops[step->op].facts;
    /* gradients of broadcast operands at the result's size: grad_out, or computed */
    gpunn_value  full[3] = {};
    bool         sums[3] = {}; /* whether full[i] is then summed to the operand's shape */
    gpunn__arena arena = {(char *)step->workspace, 0};
    size_t       workspace = 0;
    unsigned     computed = 0;
    for (int i = 0; i < step->input_count; i++) {
        if (step->grad_in[i].data == NULL) continue;
        sums[i] = step->in[i].count != step->out.count;
        if (!sums[i] || !(facts->passed >> i & 1)) computed |= 1u << i;
        if (!sums[i]) continue;
        full[i] = step->grad_out;
        if (computed >> i & 1) {
            full[i].dtype = GPUNN_F32;
            full[i].data = gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, full[i].count));
        }
        size_t bytes = gpunn__cuda_sum_to_workspace(cuda, &full[i], &step->grad_in[i]);
        if (bytes > workspace) workspace = bytes;
    }
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = arena.bytes + workspace;
        return GPUNN_OK;
    }

    void *const    sum_workspace = gpunn__arena_take(&arena, workspace);
    gpunn__map_job job = {};
    job.count = step->out.count;
    memcpy(job.attr, step->attr->value, sizeof job.attr);
    for (int i = 0; i < step->input_count; i++) {
        job.from[i] = gpunn__operand_of(&step->in[i], &step->out);
        if (!(computed >> i & 1)) continue;
        const gpunn_value *to = sums[i] ? &full[i] : &step->grad_in[i];
        job.to[i] = to->data;
        job.to_dtype[i] = to->dtype;
        job.add[i] = !sums[i] && step->accumulate[i];
    }
    job.from[GPUNN__FROM_RESULT] = gpunn__operand_of(&step->out, &step->out);
    job.from[GPUNN__FROM_GRADIENT] = gpunn__operand_of(&step->grad_out, &step->out);
    for (int k = 0; k < GPUNN__FROM_COUNT; k++)
        if (!(facts->readers[k] & computed)) job.from[k].data = NULL;
    if (computed) GPUNN__TRY(gpunn__map_launch(cuda, gpunn__map_ops[step->op].backward, &job));
    for (int i = 0; i < step->input_count; i++)
        if (sums[i])
            GPUNN__TRY(
                gpunn__cuda_sum_to(cuda, &full[i], &step->grad_in[i], step->accumulate[i], sum_workspace));
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_map(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (step->input_count == 1 && step->in[0].count != step->out.count)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "the only operand and the result have different sizes; use gpunn_expand");
    if (step->backward) return gpunn__map_backward(cuda, step, action);
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    gpunn__map_job job = {};
    job.count = step->out.count;
    memcpy(job.attr, step->attr->value, sizeof job.attr);
    for (int i = 0; i < step->input_count; i++) job.from[i] = gpunn__operand_of(&step->in[i], &step->out);
    job.to[0] = step->out.data;
    job.to_dtype[0] = step->out.dtype;
    return gpunn__map_launch(cuda, gpunn__map_ops[step->op].forward, &job);
}

/* ---- copies and casts ---------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__copy_kernel(void *to, gpunn_dtype to_dtype, const void *from, gpunn_dtype from_dtype,
                       int64_t count, bool add)
{
    GPUNN__FOLLOW();
    gpunn__copy_part(to, to_dtype, from, from_dtype, count, add, blockIdx.x, gridDim.x);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_copy(gpunn__cuda *cuda, void *to, gpunn_dtype to_dtype,
                                              const void *from, gpunn_dtype from_dtype, int64_t count,
                                              bool accumulate)
{
    return GPUNN__LAUNCH(cuda, gpunn__copy_kernel, gpunn__single_blocks(count, GPUNN__PACK), GPUNN__THREADS,
                         to, to_dtype, from, from_dtype, count, accumulate);
}

/* A number as an integer, INT64_MIN or INT32_MIN if out of range. */
template <typename Whole> __device__ __forceinline__ Whole gpunn__whole_of(float x)
{
    return (Whole)(sizeof(Whole) == 8 ? gpunn__to_i64(x) : gpunn__to_i32(x));
}
template <typename Whole> __device__ __forceinline__ Whole gpunn__whole_of(double x)
{
    return (Whole)(sizeof(Whole) == 8 ? gpunn__double_to_i64(x) : gpunn__double_to_i32(x));
}

/* Conversion as in C, except that BOOL is x != 0. Real is double if one of the dtypes is F64. */
template <typename Real>
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__cast_kernel(void *to, gpunn_dtype to_dtype, const void *from, gpunn_dtype from_dtype,
                       int64_t count)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        Real    x = 0;
        int64_t whole = 0;
        bool    is_whole = true;
        switch (from_dtype) {
        case GPUNN_I64: whole = ((const int64_t *)from)[i]; break;
        case GPUNN_I32: whole = ((const int32_t *)from)[i]; break;
        case GPUNN_U8:
        case GPUNN_BOOL: whole = ((const uint8_t *)from)[i]; break;
        case GPUNN_F64: x = (Real)((const double *)from)[i], is_whole = false; break;
        default: x = gpunn__load(from, from_dtype, i), is_whole = false;
        }
        int64_t narrow = is_whole ? whole : gpunn__whole_of<int32_t>(x);
        switch (to_dtype) {
        case GPUNN_I64: ((int64_t *)to)[i] = is_whole ? whole : gpunn__whole_of<int64_t>(x); break;
        case GPUNN_I32: ((int32_t *)to)[i] = (int32_t)narrow; break;
        case GPUNN_U8: ((uint8_t *)to)[i] = (uint8_t)narrow; break;
        case GPUNN_BOOL: ((uint8_t *)to)[i] = is_whole ? whole != 0 : x != 0; break;
        case GPUNN_F64: ((double *)to)[i] = is_whole ? (double)whole : (double)x; break;
        default: gpunn__store(to, to_dtype, i, is_whole ? (float)whole : (float)x);
        }
    }
}

GPUNN__INTERNAL bool gpunn__is_float(gpunn_dtype dtype)
{
    return dtype == GPUNN_F32 || dtype == GPUNN_F16 || dtype == GPUNN_BF16;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_cast_values(gpunn__cuda *cuda, void *to, gpunn_dtype to_dtype,
                                                     const void *from, gpunn_dtype from_dtype, int64_t count)
{
    if (gpunn__is_float(from_dtype) && gpunn__is_float(to_dtype))
        return gpunn__cuda_copy(cuda, to, to_dtype, from, from_dtype, count, false);
    return GPUNN__LAUNCH(cuda,
                         to_dtype == GPUNN_F64 || from_dtype == GPUNN_F64 ? gpunn__cast_kernel<double>
                                                                          : gpunn__cast_kernel<float>,
                         gpunn__blocks(cuda, count, 1), GPUNN__THREADS, to, to_dtype, from, from_dtype,
                         count);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_cast(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return gpunn__cuda_cast_values(cuda, step->out.data, step->out.dtype, step->in[0].data, step->in[0].dtype,
                                   step->out.count);
}

/* ---- integers: one thread per result ------------------------------------------------------------------- */

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__integers_kernel(const gpunn__integers p)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < p.count; i += (int64_t)gridDim.x * blockDim.x) (void)gpunn__integers_at(&p, i);
}

/* INTEGER, and SUM and MAX of integers. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_integer(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action != GPUNN__FORWARD) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__integers_kernel, gpunn__blocks(cuda, step->out.count, 1),
                         GPUNN__THREADS, gpunn__integers_of(step));
}

/* ---- dropout ------------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__dropout_kernel(const void *x, gpunn_dtype x_dtype, void *y, gpunn_dtype y_dtype, int64_t count,
                          bool add, const gpunn__device_state *state, unsigned random_stream, unsigned keep,
                          float scale)
{
    GPUNN__FOLLOW();
    int64_t pack = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    for (; pack * GPUNN__PACK < count; pack += (int64_t)gridDim.x * blockDim.x) {
        int64_t  i = pack * GPUNN__PACK;
        int      n = gpunn__pack_size(count, i);
        float    v[8];
        uint32_t word[4];
        gpunn__drop_draw(state, random_stream, (uint64_t)pack, word);
        gpunn__load_pack(x, x_dtype, i, n, v);
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j++) v[j] *= gpunn__drop_factor(word, j, keep, scale);
        gpunn__store_pack(y, y_dtype, i, n, add, v);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_dropout(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *from = step->backward ? &step->grad_out : &step->in[0];
    const gpunn_value *to = step->backward ? &step->grad_in[0] : &step->out;
    bool               add = step->backward && step->accumulate[0];
    unsigned           keep = gpunn__drop_keep(step);
    if (action == GPUNN__PREPARE || to->data == NULL) return GPUNN_OK;
    if (keep == 65536) {
        if (!add && to->data == from->data) return GPUNN_OK;
        return gpunn__cuda_copy(cuda, to->data, to->dtype, from->data, from->dtype, to->count, add);
    }
    return GPUNN__LAUNCH(cuda, gpunn__dropout_kernel, gpunn__blocks(cuda, to->count, GPUNN__PACK),
                         GPUNN__THREADS, from->data, from->dtype, to->data, to->dtype, to->count, add,
                         cuda->state, step->attr->random_stream, keep, gpunn__drop_scale(keep));
}

/* ---- random numbers ------------------------------------------------------------------------------------ */

template <bool NORMAL> __device__ __forceinline__ void gpunn__random_pack(const uint32_t word[4], float v[4])
{
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        if (NORMAL) {
            const float radius = sqrtf(-2 * logf(gpunn__unit(word[j]))), angle = gpunn__angle(word[j + 1]);
            v[j] = radius * gpunn__float_sin(angle, 1);
            v[j + 1] = radius * gpunn__float_sin(angle, 0);
        } else {
            v[j] = gpunn__uniform(word[j]);
            v[j + 1] = gpunn__uniform(word[j + 1]);
        }
    }
}

template <bool NORMAL>
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__random_kernel(float *y, int64_t count, const gpunn__device_state *state, unsigned random_stream)
{
    GPUNN__FOLLOW();
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * GPUNN__PACK;
    for (; i < count; i += (int64_t)gridDim.x * blockDim.x * GPUNN__PACK) {
        float v[8];
#pragma unroll
        for (int j = 0; j < GPUNN__PACK; j += 4) {
            uint32_t word[4];
            gpunn__draw_pack(state->seed, state->draw, random_stream, (uint64_t)(i + j) / 4, word);
            gpunn__random_pack<NORMAL>(word, v + j);
        }
        gpunn__store_pack(y, GPUNN_F32, i, gpunn__pack_size(count, i), false, v);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_rand_like(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const int64_t count = step->out.count;
    if (action != GPUNN__FORWARD) return GPUNN_OK;
    return GPUNN__LAUNCH(
        cuda, step->op == GPUNN_OP_RAND_LIKE ? gpunn__random_kernel<false> : gpunn__random_kernel<true>,
        gpunn__blocks(cuda, count, GPUNN__PACK), GPUNN__THREADS, (float *)step->out.data, count, cuda->state,
        step->attr->random_stream);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_randn_like(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__cuda_rand_like(cuda, step, action);
}
