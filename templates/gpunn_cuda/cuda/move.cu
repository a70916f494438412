#include "base/shared.h"
#include "cuda/elementwise.h"

/* ==== >>cuda/move ======================================================================================== *
 * Ops that only move data, and layout changes of convolution filters. */
/* ---- strided copies: permute, concat, slice and pad are nothing else ----------------------------------- */

/* One axis of a move. Position p reads element (p - begin) / step of `from`, if that is an integer in
 * [0, length). Otherwise p is a hole. */
typedef struct gpunn__axis {
    int64_t size, to_stride, from_stride, begin, step, length;
} gpunn__axis;

/* A move over a block of axes, innermost first: to = or += from, or hole. */
typedef struct gpunn__move {
    void       *to;
    const void *from;
    gpunn_dtype to_dtype, from_dtype;
    float       hole;
    bool        add, packed; /* packed: axis 0 counts packs of 8 */
    int         fill;        /* gpunn_pad_mode: how holes are filled */
    int         rank;
    int64_t     count;
    gpunn__axis axis[GPUNN_MAX_RANK];
} gpunn__move;

/* The elements of `to` and `from` at position i of the axes from `first` on. Returns false for a hole. */
__device__ __forceinline__ bool gpunn__move_place(const gpunn__move &move, int first, int64_t i, int64_t *to,
                                                  int64_t *from)
{
    uint64_t rest = (uint64_t)i;
    bool     there = true;
    *to = *from = 0;
#pragma unroll 1
    for (int d = first; d < move.rank; d++) {
        const gpunn__axis &axis = move.axis[d];
        uint64_t           next = d + 1 < move.rank ? rest / (uint64_t)axis.size : 0;
        int64_t digit = (int64_t)(rest - next * (uint64_t)axis.size), position = digit - axis.begin;
        if (axis.step > 1 && position >= 0) {
            uint64_t element = (uint64_t)position / (uint64_t)axis.step;
            there = there && element * (uint64_t)axis.step == (uint64_t)position;
            position = (int64_t)element;
        }
        if (move.fill != GPUNN_PAD_CONSTANT) position = gpunn__pad_source(move.fill, position, axis.length);
        there = there && position >= 0 && position < axis.length;
        *to += digit * axis.to_stride;
        *from += position * axis.from_stride;
        rest = next;
    }
    return there;
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__move_kernel(const gpunn__move move)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < move.count; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t to, from;
        bool    there = gpunn__move_place(move, 0, i, &to, &from);
        if (move.packed) {
            float v[8] = {move.hole, move.hole, move.hole, move.hole,
                          move.hole, move.hole, move.hole, move.hole};
            if (there) gpunn__load8(move.from, move.from_dtype, from, v);
            gpunn__store_pack(move.to, move.to_dtype, to, GPUNN__PACK, move.add, v);
        } else {
            float x = there ? gpunn__load(move.from, move.from_dtype, from) : move.hole;
            gpunn__store(move.to, move.to_dtype, to,
                         move.add ? gpunn__load(move.to, move.to_dtype, to) + x : x);
        }
    }
}

/* The same for integers. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__move_integers_kernel(const gpunn__move move)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < move.count; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t to, from;
        bool    there = gpunn__move_place(move, 0, i, &to, &from);
        gpunn__put_integer(move.to, move.to_dtype, to,
                           there ? gpunn__integer(move.from, move.from_dtype, from)
                                 : gpunn__to_i64(move.hole));
    }
}

/* For moves without holes that are contiguous along axis 0 in `to` and along axis 1 in `from`. Squares go
 * through shared memory, so that adjacent threads both read and write adjacent elements. */
enum { GPUNN__SQUARE = 32 };
static __global__ void __launch_bounds__(GPUNN__THREADS, 4) gpunn__transpose_kernel(const gpunn__move move)
{
    GPUNN__FOLLOW();
    __shared__ float square[GPUNN__SQUARE][GPUNN__SQUARE + 1];
    int64_t          width = move.axis[0].size, height = move.axis[1].size;
    int64_t          columns = (width + GPUNN__SQUARE - 1) / GPUNN__SQUARE,
            rows = (height + GPUNN__SQUARE - 1) / GPUNN__SQUARE;
    int64_t squares = move.count / (width * height) * rows * columns;
    int     lane = (int)threadIdx.x % GPUNN__SQUARE, line = (int)threadIdx.x / GPUNN__SQUARE;
    for (int64_t i = blockIdx.x; i < squares; i += gridDim.x) {
        int64_t column = i % columns * GPUNN__SQUARE, row = i / columns % rows * GPUNN__SQUARE, to, from;
        (void)gpunn__move_place(move, 2, i / columns / rows, &to, &from);
        for (int k = line; k < GPUNN__SQUARE; k += GPUNN__THREADS / GPUNN__SQUARE)
            if (column + k < width && row + lane < height)
                square[k][lane] = gpunn__load(move.from, move.from_dtype,
                                              from + (column + k) * move.axis[0].from_stride + row + lane);
        __syncthreads();
        for (int k = line; k < GPUNN__SQUARE; k += GPUNN__THREADS / GPUNN__SQUARE)
            if (column + lane < width && row + k < height) {
                int64_t at = to + (row + k) * move.axis[1].to_stride + column + lane;
                float   x = square[lane][k];
                gpunn__store(move.to, move.to_dtype, at,
                             move.add ? gpunn__load(move.to, move.to_dtype, at) + x : x);
            }
        __syncthreads();
    }
}

/* A move between offsets in two values. The caller adds the axes. */
static gpunn__move gpunn__move_of(const gpunn_value *to, int64_t to_offset, const gpunn_value *from,
                                  int64_t from_offset, bool add)
{
    gpunn__move move = {};
    move.to = (char *)to->data + to_offset * (int64_t)gpunn_dtype_size(to->dtype);
    move.to_dtype = to->dtype;
    move.from = (const char *)from->data + from_offset * (int64_t)gpunn_dtype_size(from->dtype);
    move.from_dtype = from->dtype;
    move.add = add;
    move.count = 1;
    return move;
}

/* Adds the next axis outwards, or merges it with the previous one if memory continues. */
static void gpunn__move_axis(gpunn__move *move, int64_t size, int64_t to_stride, int64_t from_stride,
                             int64_t begin, int64_t step, int64_t length)
{
    move->count *= size;
    if (size == 1) return;
    gpunn__axis axis = {size, to_stride, from_stride, begin, step, length};
    if (move->rank > 0) {
        gpunn__axis *last = &move->axis[move->rank - 1];
        /* mirrored axes cannot be merged */
        bool mirrored = move->fill != GPUNN_PAD_CONSTANT && length < size;
        if (last->length == last->size && step == 1 && !mirrored &&
            to_stride == last->to_stride * last->size && from_stride == last->from_stride * last->size) {
            gpunn__axis merged = {
                size * last->size,  last->to_stride, last->from_stride, begin * last->size, 1,
                length * last->size};
            *last = merged;
            return;
        }
    }
    move->axis[move->rank++] = axis;
}

static gpunn_status gpunn__cuda_move(gpunn__cuda *cuda, gpunn__move *move)
{
    if (move->rank == 0) { /* one element */
        gpunn__axis one = {1, 1, 1, 0, 1, 1};
        move->axis[move->rank++] = one;
    }
    if (!gpunn__is_float(move->to_dtype))
        return GPUNN__LAUNCH(cuda, gpunn__move_integers_kernel, gpunn__blocks(cuda, move->count, 1),
                             GPUNN__THREADS, *move);
    gpunn__axis *inner = &move->axis[0];
    int          across = 0; /* the axis along which `from` is contiguous */
    bool         whole = true;
    bool         packed = inner->to_stride == 1 && inner->from_stride == 1 && inner->step == 1 &&
                  inner->size % GPUNN__PACK == 0 && inner->begin % GPUNN__PACK == 0 &&
                  inner->length % GPUNN__PACK == 0 &&
                  (move->fill == GPUNN_PAD_CONSTANT || inner->length == inner->size) &&
                  (uintptr_t)move->to % (GPUNN__PACK * gpunn_dtype_size(move->to_dtype)) == 0 &&
                  (uintptr_t)move->from % (GPUNN__PACK * gpunn_dtype_size(move->from_dtype)) == 0;
    for (int d = 0; d < move->rank; d++) {
        const gpunn__axis *axis = &move->axis[d];
        whole = whole && axis->length == axis->size;
        packed = packed &&
                 (d == 0 || (axis->to_stride % GPUNN__PACK == 0 && axis->from_stride % GPUNN__PACK == 0));
        if (axis->from_stride == 1) across = d;
    }
    if (whole && inner->to_stride == 1 && across > 0 && inner->size >= GPUNN__PACK &&
        move->axis[across].size >= GPUNN__PACK) {
        gpunn__axis axis = move->axis[1];
        move->axis[1] = move->axis[across];
        move->axis[across] = axis;
        return GPUNN__LAUNCH(cuda, gpunn__transpose_kernel,
                             gpunn__blocks(cuda, move->count, GPUNN__SQUARE * GPUNN__SQUARE / GPUNN__THREADS),
                             GPUNN__THREADS, *move);
    }
    if (packed) {
        move->packed = true;
        move->count /= GPUNN__PACK;
        inner->size /= GPUNN__PACK;
        inner->begin /= GPUNN__PACK;
        inner->length /= GPUNN__PACK;
        inner->to_stride = inner->from_stride = GPUNN__PACK;
    }
    return GPUNN__LAUNCH(cuda, gpunn__move_kernel, gpunn__blocks(cuda, move->count, 1), GPUNN__THREADS,
                         *move);
}

/* ---- filters from [k][channels][cells] to [k][cells][channels] or back: many per launch, by tiles in shared
 * memory -- */

enum { GPUNN__RELAYOUT_JOBS = 64, GPUNN__RELAYOUT_TILE = 2048, GPUNN__RELAYOUT_CELLS = 32 };

typedef struct gpunn__relayout_job {
    const void *from;
    void       *to;
    int64_t     tiles; /* tiles of this job and all before it */
    int         channels, cells, tile_channels, tile_cells;
    bool        from_last, to_last, add;
} gpunn__relayout_job;

typedef struct gpunn__relayout_jobs {
    int                 count;
    gpunn_dtype         from_dtype, to_dtype;
    gpunn__relayout_job job[GPUNN__RELAYOUT_JOBS];
} gpunn__relayout_jobs;

/* The memory index of element i of a tile, and in *at its index in shared memory. i runs in memory order, so
 * that adjacent threads access adjacent elements. */
__device__ __forceinline__ int64_t gpunn__relayout_place(const gpunn__relayout_job &job, bool last, int i,
                                                         int channels, int cells, int64_t channel,
                                                         int64_t cell, int *at)
{
    int c = last ? i % channels : i / cells, k = last ? i / channels : i % cells;
    *at = c * (job.tile_cells | 1) + k; /* an odd stride avoids bank conflicts */
    return last ? (cell + k) * job.channels + channel + c : (channel + c) * job.cells + cell + k;
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__relayout_kernel(const gpunn__relayout_jobs jobs)
{
    GPUNN__FOLLOW();
    __shared__ float tile[GPUNN__RELAYOUT_TILE + GPUNN__RELAYOUT_TILE / 2];
    int              which = 0;
    for (int64_t i = blockIdx.x; i < jobs.job[jobs.count - 1].tiles; i += gridDim.x) {
        while (i >= jobs.job[which].tiles) which++;
        const gpunn__relayout_job &job = jobs.job[which];
        const int64_t              columns = (job.cells + job.tile_cells - 1) / job.tile_cells;
        const int64_t              rows = (job.channels + job.tile_channels - 1) / job.tile_channels;
        const int64_t own = i - (which ? jobs.job[which - 1].tiles : 0), filter = own / (rows * columns);
        const int64_t cell = own % columns * job.tile_cells,
                      channel = own / columns % rows * job.tile_channels;
        const int64_t base = filter * job.channels * job.cells;
        const int     cells = (int)min((int64_t)job.tile_cells, job.cells - cell);
        const int     channels = (int)min((int64_t)job.tile_channels, job.channels - channel);
        for (int k = (int)threadIdx.x; k < channels * cells; k += GPUNN__THREADS) {
            int     at;
            int64_t from = gpunn__relayout_place(job, job.from_last, k, channels, cells, channel, cell, &at);
            tile[at] = gpunn__load(job.from, jobs.from_dtype, base + from);
        }
        __syncthreads();
        for (int k = (int)threadIdx.x; k < channels * cells; k += GPUNN__THREADS) {
            int     at;
            int64_t to = base +
                         gpunn__relayout_place(job, job.to_last, k, channels, cells, channel, cell, &at);
            float x = job.add ? gpunn__load(job.to, jobs.to_dtype, to) + tile[at] : tile[at];
            gpunn__store(job.to, jobs.to_dtype, to, x);
        }
        __syncthreads();
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_relayout(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    for (int first = 0; first < step->input_count && action != GPUNN__PREPARE;
         first += GPUNN__RELAYOUT_JOBS) {
        gpunn__relayout_jobs jobs;
        int64_t              tiles = 0;
        memset(&jobs, 0, sizeof jobs);
        jobs.from_dtype = step->in[first].dtype;
        jobs.to_dtype = step->grad_in[first].dtype;
        for (int i = first; i < step->input_count && jobs.count < GPUNN__RELAYOUT_JOBS; i++) {
            const gpunn_value   *from = &step->in[i], *to = &step->grad_in[i];
            gpunn__relayout_job *job = &jobs.job[jobs.count];
            if (from->data == NULL) continue;
            job->from = from->data;
            job->to = to->data;
            job->add = step->accumulate[i];
            job->from_last = from->channels_last;
            job->to_last = to->channels_last;
            job->channels = (int)from->dim[1];
            job->cells = (int)(from->dim[2] * from->dim[3]);
            job->tile_cells = job->cells < GPUNN__RELAYOUT_CELLS ? job->cells : (int)GPUNN__RELAYOUT_CELLS;
            job->tile_channels = GPUNN__RELAYOUT_TILE / job->tile_cells;
            if (job->tile_channels > job->channels) job->tile_channels = job->channels;
            tiles += from->dim[0] * ((job->channels + job->tile_channels - 1) / job->tile_channels) *
                     ((job->cells + job->tile_cells - 1) / job->tile_cells);
            job->tiles = tiles;
            jobs.count++;
        }
        if (tiles > 0)
            GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__relayout_kernel,
                                     (unsigned)(tiles < (int64_t)cuda->multiprocessors * 16
                                                    ? tiles
                                                    : (int64_t)cuda->multiprocessors * 16),
                                     GPUNN__THREADS, jobs));
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_permute(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    const gpunn_value *to = step->backward ? &step->grad_in[0] : &step->out;
    const gpunn_value *from = step->backward ? &step->grad_out : &step->in[0];
    int64_t            to_stride[GPUNN_MAX_RANK], from_stride[GPUNN_MAX_RANK], stride[GPUNN_MAX_RANK];
    gpunn__strides(to, to_stride);
    gpunn__strides(from, from_stride);
    for (int d = 0; d < to->rank; d++) {
        int axis = step->attr->order[d];
        stride[step->backward ? axis : d] = from_stride[step->backward ? d : axis];
    }
    gpunn__move move = gpunn__move_of(to, 0, from, 0, step->backward && step->accumulate[0]);
    for (int d = to->rank - 1; d >= 0; d--)
        gpunn__move_axis(&move, to->dim[d], to_stride[d], stride[d], 0, 1, to->dim[d]);
    return gpunn__cuda_move(cuda, &move);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_concat(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    int64_t part_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK], offset = 0;
    gpunn__strides(&step->out, out_stride);
    for (int i = 0; i < step->input_count; i++) {
        const gpunn_value *in = &step->in[i];
        gpunn__strides(in, part_stride);
        if (!step->backward || step->grad_in[i].data) {
            gpunn__move move = step->backward ? gpunn__move_of(&step->grad_in[i], 0, &step->grad_out, offset,
                                                               step->accumulate[i])
                                              : gpunn__move_of(&step->out, offset, in, 0, false);
            for (int d = in->rank - 1; d >= 0; d--)
                gpunn__move_axis(&move, in->dim[d], step->backward ? part_stride[d] : out_stride[d],
                                 step->backward ? out_stride[d] : part_stride[d], 0, 1, in->dim[d]);
            GPUNN__TRY(gpunn__cuda_move(cuda, &move));
        }
        offset += in->dim[step->attr->axis] * out_stride[step->attr->axis];
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_expand(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *in = &step->in[0], *out = &step->out;
    if (step->backward && action == GPUNN__PREPARE)
        step->workspace_bytes = gpunn__cuda_sum_to_workspace(cuda, &step->grad_out, &step->grad_in[0]);
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    if (step->backward)
        return gpunn__cuda_sum_to(cuda, &step->grad_out, &step->grad_in[0], step->accumulate[0],
                                  step->workspace);
    gpunn__move move = gpunn__move_of(out, 0, in, 0, false);
    int64_t     in_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK];
    gpunn__strides(in, in_stride);
    gpunn__strides(out, out_stride);
    for (int d = out->rank - 1; d >= 0; d--) {
        int from = d - (out->rank - in->rank);
        gpunn__move_axis(&move, out->dim[d], out_stride[d],
                         from < 0 || in->dim[from] == 1 ? 0 : in_stride[from], 0, 1, out->dim[d]);
    }
    return gpunn__cuda_move(cuda, &move);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_slice(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    const gpunn_value *in = &step->in[0], *out = &step->out;
    int                cut = step->attr->axis;
    int64_t            in_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK], start = step->attr->start,
                                                                   every = step->attr->step;
    gpunn__strides(in, in_stride);
    gpunn__strides(out, out_stride);
    int64_t     offset = start * in_stride[cut];
    gpunn__move move;
    if (step->backward && !step->accumulate[0]) { /* writes all of grad_in, with 0 in the holes */
        move = gpunn__move_of(&step->grad_in[0], 0, &step->grad_out, 0, false);
        for (int d = in->rank - 1; d >= 0; d--)
            gpunn__move_axis(&move, in->dim[d], in_stride[d], out_stride[d], d == cut ? start : 0,
                             d == cut ? every : 1, out->dim[d]);
        return gpunn__cuda_move(cuda, &move);
    }
    in_stride[cut] *= every;
    move = step->backward ? gpunn__move_of(&step->grad_in[0], offset, &step->grad_out, 0, true)
                          : gpunn__move_of(out, 0, in, offset, false);
    for (int d = out->rank - 1; d >= 0; d--)
        gpunn__move_axis(&move, out->dim[d], step->backward ? in_stride[d] : out_stride[d],
                         step->backward ? out_stride[d] : in_stride[d], 0, 1, out->dim[d]);
    return gpunn__cuda_move(cuda, &move);
}

/* ---- gradient of pads that repeat the input: a thread per input element gathers ------------------------ */

typedef struct gpunn__padding {
    int             rank, mode;
    int64_t         count;
    bool            accumulate;
    const void     *from;
    void           *to;
    gpunn_dtype     from_dtype, to_dtype;
    gpunn__pad_axis axis[GPUNN_MAX_RANK];
} gpunn__padding;

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__pad_back_kernel(const gpunn__padding p)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; i < p.count; i += step) {
        int64_t all = 1, rest = i, low;
#pragma unroll 1
        for (int d = p.rank - 1; d >= 0; d--, rest /= p.axis[d + 1].n)
            all *= gpunn__pad_copies(p.mode, &p.axis[d], rest % p.axis[d].n, &low);
        float sum = p.accumulate ? gpunn__load(p.to, p.to_dtype, i) : 0;
        for (int64_t k = 0; k < all; k++) {
            int64_t which = k, from = 0;
            rest = i;
#pragma unroll 1
            for (int d = p.rank - 1; d >= 0; d--) {
                const gpunn__pad_axis &axis = p.axis[d];
                int64_t at = rest % axis.n, copies = gpunn__pad_copies(p.mode, &axis, at, &low);
                from += gpunn__pad_copy(p.mode, &axis, at, which % copies, low) * axis.stride;
                which /= copies;
                rest /= axis.n;
            }
            sum += gpunn__load(p.from, p.from_dtype, from);
        }
        gpunn__store(p.to, p.to_dtype, i, sum);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_pad(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    const gpunn_value *in = &step->in[0], *out = &step->out;
    const int64_t     *before = step->attr->before;
    int64_t            in_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK], offset = 0;
    gpunn__strides(in, in_stride);
    gpunn__strides(out, out_stride);
    if (step->backward && step->attr->mode != GPUNN_PAD_CONSTANT) {
        const gpunn_value *to = &step->grad_in[0];
        gpunn__padding     p = {};
        p.rank = in->rank;
        p.mode = step->attr->mode;
        p.count = in->count;
        p.accumulate = step->accumulate[0];
        p.from = step->grad_out.data, p.from_dtype = step->grad_out.dtype;
        p.to = to->data, p.to_dtype = to->dtype;
        for (int d = 0; d < in->rank; d++) {
            gpunn__pad_axis axis = {in->dim[d], before[d], out->dim[d] - in->dim[d] - before[d],
                                    out_stride[d]};
            p.axis[d] = axis;
        }
        return GPUNN__LAUNCH(cuda, gpunn__pad_back_kernel, gpunn__blocks(cuda, p.count, 1), GPUNN__THREADS,
                             p);
    }
    for (int d = 0; d < out->rank; d++) offset += before[d] * out_stride[d];
    gpunn__move move = step->backward ? gpunn__move_of(&step->grad_in[0], 0, &step->grad_out, offset,
                                                       step->accumulate[0])
                                      : gpunn__move_of(out, 0, in, 0, false);
    move.hole = step->attr->fill;
    move.fill = step->attr->mode;
    for (int d = out->rank - 1; d >= 0; d--) {
        if (step->backward)
            gpunn__move_axis(&move, in->dim[d], in_stride[d], out_stride[d], 0, 1, in->dim[d]);
        else
            gpunn__move_axis(&move, out->dim[d], out_stride[d], in_stride[d], before[d], 1, in->dim[d]);
    }
    return gpunn__cuda_move(cuda, &move);
}

/* ---- assign: a thread per element of the value --------------------------------------------------------- */

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__assign_kernel(const gpunn__assign_shape c, const gpunn_value value, const void *position,
                         gpunn_dtype position_type, float *to)
{
    GPUNN__FOLLOW();
    const int64_t block = c.rows * c.inner;
    int64_t       i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < value.count; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = gpunn__quotient(i, block);
        const int64_t at = position ? gpunn__integer(position, position_type, gpunn__quotient(row, c.sample))
                                    : 0;
        if (at < 0 || at > c.capacity - c.rows) continue;
        to[(row * c.capacity + at) * c.inner + (i - row * block)] = gpunn__load(value.data, value.dtype, i);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_assign(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__assign_kernel, gpunn__blocks(cuda, step->in[1].count, 1),
                         GPUNN__THREADS, gpunn__assign_shape_of(step), step->in[1], step->in[2].data,
                         step->in[2].dtype, (float *)step->out.data);
}
