#include "cuda/loss.h"

static __global__ void __launch_bounds__(1024) gpunn__class_loss_kernel(const gpunn__class_loss l)
{
    GPUNN__FOLLOW();
    gpunn__class_loss_make(l);
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__class_loss_total_kernel(const gpunn__class_loss l, int parts)
{
    GPUNN__FOLLOW();
    double loss = 0, weights = 0;
    for (int i = threadIdx.x; i < parts; i += blockDim.x) {
        loss += l.partial[i].x;
        weights += l.partial[i].y;
    }
    loss = gpunn__block_reduce(loss, gpunn__add());
    weights = gpunn__block_reduce(weights, gpunn__add());
    if (threadIdx.x == 0) gpunn__class_loss_total(l, loss, weights);
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__class_loss_backward_kernel(const gpunn__class_loss l)
{
    GPUNN__FOLLOW();
    gpunn__class_loss_dx(l);
}

/* Blocks and threads of the forward kernel. It uses a single block where that is fast, since a single block
 * needs no second launch. */
static unsigned gpunn__class_loss_blocks(const gpunn__cuda *cuda, const gpunn__along *a, unsigned *threads)
{
    int64_t wanted = (a->rows * a->lanes + 31) / 32 * 32;
    *threads = GPUNN__THREADS;
    if (a->lanes > 32 || wanted > 4 * 1024) return gpunn__along_blocks(cuda, a);
    *threads = wanted < 1024 ? (unsigned)wanted : 1024;
    return 1;
}

GPUNN__INTERNAL gpunn__class_loss gpunn__class_loss_of(const gpunn__cuda *cuda, const gpunn_step *step)
{
    const gpunn_value *in = step->in;
    const bool         softmax = step->op == GPUNN_OP_CROSS_ENTROPY;
    gpunn__class_loss  l;
    memset(&l, 0, sizeof l);
    l.along = gpunn__along_axis(cuda, step, in[0].rank > 1 ? 1 : 0);
    if (!softmax && !step->backward) l.along.lanes = 1; /* reads one element of each row */
    l.softmax = softmax;
    l.reduction = step->attr->reduction;
    l.labels = in[1].data;
    l.label_type = in[1].dtype;
    if (step->input_count > 2) {
        l.weight = in[2].data;
        l.weight_type = in[2].dtype;
    }
    l.smoothing = softmax ? step->attr->label_smoothing : 0;
    l.ignore = step->attr->ignore_index;
    l.saved = (float2 *)step->saved;
    l.partial = (float2 *)step->workspace;
    return l;
}

static gpunn_status gpunn__class_loss_step(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__class_loss l = gpunn__class_loss_of(cuda, step);
    unsigned                threads, blocks = gpunn__class_loss_blocks(cuda, &l.along, &threads);
    if (action == GPUNN__PREPARE) {
        if (!step->backward) {
            step->saved_bytes = (size_t)(l.softmax ? l.along.rows + 1 : 1) * sizeof(float2);
            step->workspace_bytes = blocks > 1 ? blocks * sizeof(float2) : 0;
        }
        return GPUNN_OK;
    }
    if (action == GPUNN__BACKWARD) {
        if (!step->grad_in[0].data) return GPUNN_OK;
        return GPUNN__LAUNCH(cuda, gpunn__class_loss_backward_kernel, gpunn__along_blocks(cuda, &l.along),
                             GPUNN__THREADS, l);
    }
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__class_loss_kernel, blocks, threads, l));
    if (blocks == 1 || l.reduction == GPUNN_REDUCE_NONE) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__class_loss_total_kernel, 1, GPUNN__THREADS, l, (int)blocks);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_cross_entropy(gpunn__cuda *cuda, gpunn_step *step,
                                                       gpunn__action action)
{
    return gpunn__class_loss_step(cuda, step, action);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_nll(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__class_loss_step(cuda, step, action);
}

/* ---- ctc_loss ------------------------------------------------------------------------------------------- *
 * *
 * gpunn.h's formulas, with one block per sample and one thread per position of a row. A label or length out
 * of range costs NaN, which the check of the loss reports, and has no gradient. The saved data is losses,
 * offsets, then for each sample the rows of a, and skip; evaluation keeps it in the workspace. The backward
 * pass's workspace holds two rows of b, the terms of a row, and the next position with each position's
 * class. */

typedef struct gpunn__ctc {
    const void *x, *targets, *input_lengths, *target_lengths;
    void       *out;
    const void *gradient;
    gpunn_dtype x_type, target_type, input_type, length_type, out_type, gradient_type;
    double     *loss, *offset;
    float      *rows, *skip, *back, *terms;
    /* per position the next one with its label, 0: none; ~ of that where the position is not the first */
    int            *next;
    int64_t         times, samples, count, most, row, row_count, time_stride, sample_stride;
    int             blank;
    bool            zero_infinity, training, accumulate;
    gpunn_reduction reduction;
} gpunn__ctc;

/* The class of position s. */
__device__ __forceinline__ int64_t gpunn__ctc_class(const gpunn__ctc &c, int64_t sample, int64_t s)
{
    return s % 2 ? gpunn__integer(c.targets, c.target_type, sample * c.most + s / 2) : c.blank;
}

/* The number of positions of a sample. 0: its lengths are out of range. */
__device__ __forceinline__ int64_t gpunn__ctc_places(const gpunn__ctc &c, int64_t sample, int64_t *times)
{
    int64_t length = gpunn__integer(c.target_lengths, c.length_type, sample);
    *times = gpunn__integer(c.input_lengths, c.input_type, sample);
    return *times >= 0 && *times <= c.times && length >= 0 && length <= c.most ? 2 * length + 1 : 0;
}

__device__ __forceinline__ float gpunn__log_add(float a, float b, float c)
{
    float top = fmaxf(fmaxf(a, b), c);
    if (top == -INFINITY) return a + b + c;
    return top + logf(expf(a - top) + expf(b - top) + expf(c - top));
}

__device__ __forceinline__ double gpunn__ctc_share_of(const gpunn__ctc &c, int64_t sample)
{
    /* Loaded before the loss: this saves a register around the division on sm_100. */
    const int64_t length = gpunn__integer(c.target_lengths, c.length_type, sample);
    return gpunn__ctc_share(c.loss[sample], length, c.samples, c.reduction, c.zero_infinity);
}

static __global__ void __launch_bounds__(512) gpunn__ctc_forward_kernel(const gpunn__ctc c)
{
    GPUNN__FOLLOW();
    const int64_t sample = blockIdx.x;
    int64_t       times, n = gpunn__ctc_places(c, sample, &times);
    float *skip = c.skip + sample * c.row, *first = c.rows + sample * c.row_count * c.row + 2, *row = first;
    float  bad = n == 0, most = 0;
    double offset = 0;
    for (int64_t s = threadIdx.x; s < n + 2; s += blockDim.x) {
        int64_t label = s < n ? gpunn__ctc_class(c, sample, s) : 0;
        if (label < 0 || label >= c.count) bad = 1;
        skip[s] = s < n && s % 2 && s > 1 && label != gpunn__ctc_class(c, sample, s - 2) ? 0 : -INFINITY;
    }
    for (int64_t k = threadIdx.x; k < c.row_count; k += blockDim.x)
        first[k * c.row - 1] = first[k * c.row - 2] = -INFINITY;
    if (gpunn__block_reduce(bad, gpunn__add()) > 0) {
        if (threadIdx.x == 0) c.loss[sample] = NAN;
        return;
    }
    for (int64_t t = 0; t < times; t++) {
        const float  *before = row;
        const int64_t at = t * c.time_stride + sample * c.sample_stride;
        float         top = -INFINITY;
        row = first + t % c.row_count * c.row;
        for (int64_t s = threadIdx.x; s < n; s += blockDim.x) {
            float emit = gpunn__load(c.x, c.x_type, at + gpunn__ctc_class(c, sample, s)),
                  value = s < 2 ? emit : -INFINITY;
            if (t > 0)
                value = gpunn__log_add(before[s], before[s - 1], before[s - 2] + skip[s]) + (emit - most);
            row[s] = value;
            top = gpunn__larger()(top, value);
        }
        offset += (double)most;
        if (c.training && threadIdx.x == 0) c.offset[sample * c.times + t] = offset;
        top = gpunn__block_reduce(top, gpunn__larger());
        most = top == -INFINITY ? 0 : top;
    }
    if (threadIdx.x > 0) return;
    if (times == 0)
        c.loss[sample] = n == 1 ? 0 : INFINITY;
    else
        c.loss[sample] = -offset -
                         (double)gpunn__log_add(row[n - 1], n > 1 ? row[n - 2] : -INFINITY, -INFINITY);
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__ctc_total_kernel(const gpunn__ctc c)
{
    GPUNN__FOLLOW();
    double total = 0;
    for (int64_t i = threadIdx.x; i < c.samples; i += blockDim.x) {
        double share = gpunn__ctc_share_of(c, i), cost = share == 0 ? 0 : share * c.loss[i];
        if (c.reduction == GPUNN_REDUCE_NONE) gpunn__store(c.out, c.out_type, i, (float)cost);
        total += cost;
    }
    total = gpunn__block_reduce(total, gpunn__add());
    if (threadIdx.x == 0 && c.reduction != GPUNN_REDUCE_NONE)
        gpunn__store(c.out, c.out_type, 0, (float)total);
}

static __global__ void __launch_bounds__(512) gpunn__ctc_backward_kernel(const gpunn__ctc c)
{
    GPUNN__FOLLOW();
    const int64_t sample = blockIdx.x;
    int64_t       times, n = gpunn__ctc_places(c, sample, &times);
    const float  *skip = c.skip + sample * c.row, *first = c.rows + sample * c.row_count * c.row + 2;
    float        *row = c.back + 2 * sample * c.row, *terms = c.terms + sample * c.row, most = 0;
    int          *next = c.next + sample * c.row;
    double offset = c.loss[sample], share = n > 0 && offset == offset ? gpunn__ctc_share_of(c, sample) : 0;
    const float gradient = gpunn__load(c.gradient, c.gradient_type,
                                       c.reduction == GPUNN_REDUCE_NONE ? sample : 0);
    const float scale = (float)(share * (double)gradient);
    for (int64_t i = threadIdx.x; i < c.times * c.count && !c.accumulate; i += blockDim.x)
        gpunn__store(c.out, c.out_type, i / c.count * c.time_stride + sample * c.sample_stride + i % c.count,
                     0);
    for (int64_t s = threadIdx.x; s < n && share != 0; s += blockDim.x) {
        int64_t label = gpunn__ctc_class(c, sample, s), before = s - 2, after = s + 2;
        if (label == c.blank) continue;
        while (before > 0 && gpunn__ctc_class(c, sample, before) != label) before -= 2;
        while (after < n && gpunn__ctc_class(c, sample, after) != label) after += 2;
        next[s] = after < n ? (int)after : 0;
        if (before > 0) next[s] = ~next[s];
    }
    __syncthreads();
    if (share == 0) return;
    for (int64_t t = times - 1; t >= 0; t--) {
        const float  *before = row, *forth = first + t * c.row;
        const int64_t at = t * c.time_stride + sample * c.sample_stride;
        const float   shift = (float)(offset + (double)most + c.offset[sample * c.times + t]);
        float         top = -INFINITY, blanks = 0;
        offset += (double)most;
        row = c.back + (2 * sample + t % 2) * c.row;
        for (int64_t s = threadIdx.x; s < n + 2; s += blockDim.x) {
            if (s >= n) {
                row[s] = -INFINITY;
                continue;
            }
            float emit = gpunn__load(c.x, c.x_type, at + gpunn__ctc_class(c, sample, s)),
                  value = s > n - 3 ? emit : -INFINITY;
            if (t < times - 1)
                value = gpunn__log_add(before[s], before[s + 1], before[s + 2] + skip[s + 2]) + (emit - most);
            row[s] = value;
            top = gpunn__larger()(top, value);
            float both = forth[s] + value;
            terms[s] = both == -INFINITY ? 0 : scale * expf(both - emit + shift);
        }
        top = gpunn__block_reduce(top, gpunn__larger());
        most = top == -INFINITY ? 0 : top;
        for (int64_t s = threadIdx.x; s < n; s += blockDim.x) {
            int64_t label = gpunn__ctc_class(c, sample, s);
            if (label == c.blank) {
                blanks += terms[s];
                continue;
            }
            if (next[s] < 0) continue;
            float sum = terms[s];
            for (int k = next[s]; k > 0; k = ~next[k]) sum += terms[k];
            gpunn__store(c.out, c.out_type, at + label,
                         (c.accumulate ? gpunn__load(c.out, c.out_type, at + label) : 0) - sum);
        }
        blanks = gpunn__block_reduce(blanks, gpunn__add());
        if (threadIdx.x == 0)
            gpunn__store(c.out, c.out_type, at + c.blank,
                         (c.accumulate ? gpunn__load(c.out, c.out_type, at + c.blank) : 0) - blanks);
    }
}

/* The sizes of a step, without its pointers. */
static gpunn__ctc gpunn__ctc_sizes(const gpunn_step *step)
{
    const gpunn_value *in = step->in;
    const int          sample = step->attr->batch_first ? 0 : 1;
    gpunn__ctc         c;
    memset(&c, 0, sizeof c);
    c.times = in[0].dim[1 - sample];
    c.samples = in[0].dim[sample];
    c.count = in[0].dim[2];
    c.most = in[1].dim[1];
    c.row = 2 * c.most + 3;
    c.row_count = step->training ? c.times : 2;
    c.time_stride = sample ? c.samples * c.count : c.count;
    c.sample_stride = sample ? c.count : c.times * c.count;
    return c;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_ctc_loss(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *in = step->in;
    gpunn__ctc         c = gpunn__ctc_sizes(step);
    const int64_t      doubles = c.samples * (step->training ? 1 + c.times : 1), scratch = c.samples * c.row;
    const size_t       kept = (size_t)doubles * sizeof(double) +
                        (size_t)(scratch * (c.row_count + 1)) * sizeof(float);
    if (action == GPUNN__PREPARE) {
        if (c.samples > INT32_MAX || c.most > INT32_MAX / 4)
            return gpunn__cuda_fail(
                cuda, GPUNN_ERR_UNSUPPORTED,
                "there are more than 2^31 - 1 samples, or more than 2^29 - 1 labels in one");
        if (!step->backward) step->saved_bytes = step->training ? kept : 0;
        if (step->backward)
            step->workspace_bytes = (size_t)scratch * 4 * sizeof(float);
        else
            step->workspace_bytes = step->training ? 0 : kept;
        return GPUNN_OK;
    }
    c.x = in[0].data;
    c.x_type = in[0].dtype;
    c.targets = in[1].data;
    c.target_type = in[1].dtype;
    c.input_lengths = in[2].data;
    c.input_type = in[2].dtype;
    c.target_lengths = in[3].data;
    c.length_type = in[3].dtype;
    c.training = step->training;
    c.reduction = step->attr->reduction;
    c.blank = step->attr->blank;
    c.zero_infinity = step->attr->zero_infinity;
    c.loss = (double *)(step->training ? step->saved : step->workspace);
    c.offset = c.loss + c.samples;
    c.rows = (float *)(c.loss + doubles);
    c.skip = c.rows + scratch * c.row_count;
    unsigned threads = c.row > 512 ? 512 : (unsigned)(c.row + 31) / 32 * 32;
    if (action == GPUNN__BACKWARD) {
        if (!step->grad_in[0].data) return GPUNN_OK;
        c.out = step->grad_in[0].data;
        c.out_type = step->grad_in[0].dtype;
        c.gradient = step->grad_out.data;
        c.gradient_type = step->grad_out.dtype;
        c.accumulate = step->accumulate[0];
        c.back = (float *)step->workspace;
        c.terms = c.back + 2 * scratch;
        c.next = (int *)(c.terms + scratch);
        return GPUNN__LAUNCH(cuda, gpunn__ctc_backward_kernel, (unsigned)c.samples, threads, c);
    }
    c.out = step->out.data;
    c.out_type = step->out.dtype;
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__ctc_forward_kernel, (unsigned)c.samples, threads, c));
    return GPUNN__LAUNCH(cuda, gpunn__ctc_total_kernel, 1, GPUNN__THREADS, c);
}
