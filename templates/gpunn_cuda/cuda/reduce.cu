#include "cuda/reduce.h"
#include "base/shared.h"
#include "cuda/elementwise.h"

GPUNN__INTERNAL int gpunn__power_of_2(int64_t n, int most)
{
    int power = 1;
    while (power < n && power < most) power *= 2;
    return power;
}

/* Threads for n contiguous elements. Adjacent threads read adjacent elements, in packs of 8 if n is large
 * enough. */
static int gpunn__lanes(int64_t n, int most)
{
    return gpunn__power_of_2(n < 64 ? n : n / 16 + 1, most);
}

GPUNN__INTERNAL int gpunn__lanes_of(const gpunn__cuda *cuda, int64_t rows, int64_t n, int64_t stride)
{
    int64_t device = cuda->multiprocessors;
    int     lanes = gpunn__lanes(n, 32);
    while (stride > 1 && lanes > 1 && rows * lanes > device * 1024) lanes /= 2;
    return lanes == 32 && n >= (rows > device * 16 ? 8192 : 2048) ? GPUNN__THREADS : lanes;
}

/* ---- sum and max over any set of axes ------------------------------------------------------------------- *
 * Adjacent axes that are
 * all kept or all reduced are merged. The rest is kept x planes x rows x columns. There are `kept` results
 * (or rows of results), each from `planes` contiguous blocks of rows * columns elements. If columns are
 * reduced too, columns is 1 and rows holds the length; otherwise each column has its own result. A result's
 * elements are read run by run. A run is a row or, if columns are kept, one element of each column. If
 * results are few, the runs are split into chunks, whose results a second launch reduces. */

enum { GPUNN__SUM, GPUNN__MAX, GPUNN__COUNT /* elements that equal the maximum */ };

GPUNN__INTERNAL void gpunn__reduction_cut(const gpunn__cuda *cuda, gpunn__reduction *r, bool whole)
{
    int64_t length = r->planes * r->rows, blocks, device = cuda->multiprocessors;
    if (r->by_column) {
        r->pack = r->columns % 8 == 0 ? 8 : 1;
        r->lanes = gpunn__power_of_2((r->columns + r->pack - 1) / r->pack, 32);
        while (r->lanes > 8 && r->columns >= r->lanes * r->pack &&
               r->kept * r->columns < device * r->lanes * r->pack)
            r->lanes /= 2;
        r->span = r->lanes * gpunn__power_of_2(length, GPUNN__THREADS / r->lanes);
        r->tiles = (r->columns + r->lanes * r->pack - 1) / (r->lanes * r->pack);
        while (r->span > r->lanes && length * r->lanes < r->span * 8 &&
               r->kept * r->tiles * r->span > device * 4096)
            r->span /= 2;
    } else {
        r->pack = 1;
        r->tiles = 1;
        r->span = gpunn__lanes_of(cuda, r->kept, length, 1);
    }
    blocks = (r->kept * r->tiles * r->span + GPUNN__THREADS - 1) / GPUNN__THREADS;
    r->chunks = r->kept * length * r->columns / blocks / 16384;
    if (r->chunks > 4 * device / blocks) r->chunks = 4 * device / blocks;
    if (whole || r->chunks < 1) r->chunks = 1;
    if (r->by_column) {
        r->pieces = r->rows;
        r->step = r->columns;
        r->length = 1;
    } else {
        int64_t parts = (r->chunks + r->planes - 1) / r->planes;
        r->length = r->step = parts > 1 ? (r->rows / parts + 8) & ~(int64_t)7 : r->rows;
        r->pieces = (r->rows + r->step - 1) / r->step;
    }
    r->runs = r->planes * r->pieces;
    r->chunk_runs = (r->runs + r->chunks - 1) / r->chunks;
    r->chunks = (r->runs + r->chunk_runs - 1) / r->chunk_runs;
    const int most = r->span < 32 ? r->span : 32;
    if (!r->by_column)
        r->lanes = r->chunk_runs == 1 || r->length >= 8192 ? r->span : gpunn__lanes(r->length, most);
}

/* Describes a plain sum of `in` over axes (a bit set) in F32. whole: in a single chunk. */
static void gpunn__reduction_shape(const gpunn__cuda *cuda, gpunn__reduction *r, const gpunn_value *in,
                                   uint32_t axes, bool whole)
{
    const gpunn__walk all = gpunn__axes_reduced(in, axes);
    int               next = 0;
    memset(r, 0, sizeof *r);
    r->by_column = all.rank > 0 && all.stride[1][0] != 0;
    r->columns = r->by_column ? all.dim[next++] : 1;
    r->rows = next < all.rank ? all.dim[next++] : 1;
    r->planes = gpunn__axes_select(&all, next, true, &r->plane_rank, r->plane_dim, r->plane_stride);
    r->kept = gpunn__axes_select(&all, next, false, &r->kept_rank, r->kept_dim, r->kept_stride);
    r->x = in->data;
    r->x_type = in->dtype;
    r->y_type = GPUNN_F32;
    r->divisor = 1;
    gpunn__reduction_cut(cuda, r, whole);
}

GPUNN__INTERNAL size_t gpunn__reduction_workspace(const gpunn__reduction *r)
{
    return r->chunks == 1 ? 0 : (size_t)(r->chunks * r->kept * r->columns) * sizeof(float);
}

template <int KIND> struct gpunn__fold {
    __device__ static float start()
    {
        return KIND == GPUNN__MAX ? -INFINITY : 0;
    }
    __device__ float operator()(float a, float b) const
    {
        return KIND == GPUNN__MAX ? gpunn__larger()(a, b) : a + b;
    }
};

template <int KIND> struct gpunn__fold_visit {
    const void *x;
    gpunn_dtype x_type, reference_type;
    float       reference, value;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t)
    {
        float v[N];
        gpunn__strided_load<N>(x, x_type, i, 1, v);
#pragma unroll
        for (int j = 0; j < N; j++)
            if (KIND == GPUNN__COUNT) v[j] = gpunn__rounded(v[j], reference_type) == reference ? 1.0f : 0.0f;
        value = gpunn__fold<KIND>()(value, gpunn__pack_reduce<N>(v, gpunn__fold<KIND>()));
    }
};

/* The offset of a run of a result from the result's own start. *rest receives the number of elements from
 * there to the plane's end. */
__device__ __forceinline__ int64_t gpunn__reduction_run(const gpunn__reduction &r, int64_t run, int64_t *rest)
{
    int64_t plane = r.planes == 1 ? 0 : gpunn__quotient(run, r.pieces),
            row = (run - plane * r.pieces) * r.step;
    *rest = r.rows - row;
    return gpunn__offset(plane, r.plane_rank, r.plane_dim, r.plane_stride) + row;
}

template <int KIND>
static __global__ void __launch_bounds__(GPUNN__THREADS, 4)
    gpunn__reduce_rows_kernel(const gpunn__reduction r)
{
    GPUNN__FOLLOW();
    int     thread = threadIdx.x & (r.span - 1), per_block = blockDim.x / r.span;
    int64_t units = r.kept * r.chunks;
    for (int64_t first = (int64_t)blockIdx.x * per_block; first < units;
         first += (int64_t)gridDim.x * per_block) {
        int64_t                 unit = first + threadIdx.x / r.span;
        gpunn__fold_visit<KIND> fold = {r.x, r.x_type, r.reference_type, 0, gpunn__fold<KIND>::start()};
        if (unit < units) {
            int64_t chunk = gpunn__quotient(unit, r.kept), result = unit - chunk * r.kept,
                    run = chunk * r.chunk_runs;
            int64_t at = gpunn__offset(result, r.kept_rank, r.kept_dim, r.kept_stride);
            int64_t end = run + r.chunk_runs < r.runs ? run + r.chunk_runs : r.runs;
            if (KIND == GPUNN__COUNT) fold.reference = gpunn__load(r.reference, r.reference_type, result);
            for (run += thread / r.lanes; run < end; run += r.span / r.lanes) {
                int64_t            rest, begin = at + gpunn__reduction_run(r, run, &rest);
                gpunn__strided_row row = {
                    run, begin, 1, rest < r.length ? rest : r.length, thread & (r.lanes - 1), r.lanes};
                gpunn__strided_visit(row, fold);
            }
        }
        float value = gpunn__lanes_reduce(fold.value, gpunn__fold<KIND>(), r.span) / r.divisor;
        if (unit < units && thread == 0) gpunn__strided_store<1>(r.y, r.y_type, unit, 1, &value, r.add);
    }
}

/* A unit's threads: `lanes` across the columns, span / lanes down the runs. */
template <int KIND, int N>
static __global__ void __launch_bounds__(GPUNN__THREADS, 4)
    gpunn__reduce_columns_kernel(const gpunn__reduction r)
{
    GPUNN__FOLLOW();
    __shared__ float part[N][GPUNN__THREADS];
    int              thread = threadIdx.x & (r.span - 1), per_block = blockDim.x / r.span;
    int64_t          units = r.chunks * r.kept * r.tiles;
    for (int64_t first = (int64_t)blockIdx.x * per_block; first < units;
         first += (int64_t)gridDim.x * per_block) {
        /* result: counted over all chunks */
        int64_t unit = first + threadIdx.x / r.span, result = gpunn__quotient(unit, r.tiles);
        int64_t column = ((unit - result * r.tiles) * r.lanes + (thread & (r.lanes - 1))) * N;
        bool    there = unit < units && column < r.columns;
        float   value[N];
#pragma unroll
        for (int j = 0; j < N; j++) value[j] = gpunn__fold<KIND>::start();
        if (there) {
            int64_t chunk = gpunn__quotient(result, r.kept), kept = result - chunk * r.kept,
                    run = chunk * r.chunk_runs;
            int64_t at = gpunn__offset(kept, r.kept_rank, r.kept_dim, r.kept_stride) + column;
            int64_t end = run + r.chunk_runs < r.runs ? run + r.chunk_runs : r.runs;
            float   reference[N];
            if (KIND == GPUNN__COUNT)
                gpunn__strided_load<N>(r.reference, r.reference_type, kept * r.columns + column, 1,
                                       reference);
            for (run += thread / r.lanes; run < end; run += r.span / r.lanes) {
                int64_t rest;
                float   v[N];
                gpunn__strided_load<N>(r.x, r.x_type, at + gpunn__reduction_run(r, run, &rest), 1, v);
#pragma unroll
                for (int j = 0; j < N; j++) {
                    if (KIND == GPUNN__COUNT)
                        v[j] = gpunn__rounded(v[j], r.reference_type) == reference[j] ? 1.0f : 0.0f;
                    value[j] = gpunn__fold<KIND>()(value[j], v[j]);
                }
            }
        }
        for (int distance = r.span / 2; distance >= r.lanes; distance /= 2) {
            __syncthreads();
#pragma unroll
            for (int j = 0; j < N; j++) part[j][threadIdx.x] = value[j];
            __syncthreads();
#pragma unroll
            for (int j = 0; j < N; j++)
                if (thread < distance)
                    value[j] = gpunn__fold<KIND>()(value[j], part[j][threadIdx.x + distance]);
        }
#pragma unroll
        for (int j = 0; j < N; j++) value[j] /= r.divisor;
        if (there && thread < r.lanes)
            gpunn__strided_store<N>(r.y, r.y_type, result * r.columns + column, 1, value, r.add);
    }
}

template <int KIND>
static gpunn_status gpunn__reduction_launch_kind(gpunn__cuda *cuda, const gpunn__reduction *r)
{
    unsigned blocks = gpunn__blocks(cuda, r->chunks * r->kept * r->tiles * r->span, 1);
    if (!r->by_column)
        return GPUNN__LAUNCH(cuda, (gpunn__reduce_rows_kernel<KIND>), blocks, GPUNN__THREADS, *r);
    if (r->pack == 8)
        return GPUNN__LAUNCH(cuda, (gpunn__reduce_columns_kernel<KIND, 8>), blocks, GPUNN__THREADS, *r);
    return GPUNN__LAUNCH(cuda, (gpunn__reduce_columns_kernel<KIND, 1>), blocks, GPUNN__THREADS, *r);
}

static gpunn_status gpunn__reduction_launch(gpunn__cuda *cuda, const gpunn__reduction *r)
{
    if (r->kind == GPUNN__SUM) return gpunn__reduction_launch_kind<GPUNN__SUM>(cuda, r);
    if (r->kind == GPUNN__MAX) return gpunn__reduction_launch_kind<GPUNN__MAX>(cuda, r);
    return gpunn__reduction_launch_kind<GPUNN__COUNT>(cuda, r);
}

static gpunn_value gpunn__rank_3(const void *data, gpunn_dtype dtype, int64_t a, int64_t b, int64_t c)
{
    gpunn_value value;
    memset(&value, 0, sizeof value);
    value.data = (void *)data;
    value.dtype = dtype;
    value.rank = 3;
    value.dim[0] = a;
    value.dim[1] = b;
    value.dim[2] = c;
    value.count = a * b * c;
    return value;
}

/* Runs a reduction, in two launches if it has several chunks. gpunn__reduction_shape describes a plain F32
 * sum; the caller has set y and whatever else differs. */
static gpunn_status gpunn__reduction_run(gpunn__cuda *cuda, const gpunn__reduction *r, void *workspace)
{
    if (r->chunks == 1) return gpunn__reduction_launch(cuda, r);
    gpunn__reduction first = *r, second;
    gpunn_value      partial = gpunn__rank_3(workspace, GPUNN_F32, r->chunks, r->kept, r->columns);
    first.y = workspace;
    first.y_type = GPUNN_F32;
    first.divisor = 1;
    first.add = false;
    gpunn__reduction_shape(cuda, &second, &partial, 1, true);
    second.kind = r->kind == GPUNN__COUNT ? GPUNN__SUM : r->kind;
    second.y = r->y;
    second.y_type = r->y_type;
    second.divisor = r->divisor;
    second.add = r->add;
    GPUNN__TRY(gpunn__reduction_launch(cuda, &first));
    return gpunn__reduction_launch(cuda, &second);
}

GPUNN__INTERNAL size_t gpunn__cuda_channel_sums_workspace(const gpunn__cuda *cuda, int64_t n,
                                                          int64_t channels, int64_t inner)
{
    gpunn_value      value = gpunn__rank_3(NULL, GPUNN_F32, n, channels, inner);
    gpunn__reduction r;
    gpunn__reduction_shape(cuda, &r, &value, 5, false);
    return gpunn__reduction_workspace(&r);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_channel_sums(gpunn__cuda *cuda, const void *x, gpunn_dtype dtype,
                                                      int64_t n, int64_t channels, int64_t inner, float *out,
                                                      bool accumulate, void *workspace)
{
    gpunn_value      value = gpunn__rank_3(x, dtype, n, channels, inner);
    gpunn__reduction r;
    gpunn__reduction_shape(cuda, &r, &value, 5, false);
    r.y = out;
    r.add = accumulate;
    return gpunn__reduction_run(cuda, &r, workspace);
}

/* The axes of `from` along which `to` was broadcast. */
static uint32_t gpunn__broadcast_axes(const gpunn_value *from, const gpunn_value *to)
{
    uint32_t axes = 0;
    int      added = from->rank - to->rank;
    for (int d = 0; d < from->rank; d++)
        if (d < added || to->dim[d - added] != from->dim[d]) axes |= 1u << d;
    return axes;
}

GPUNN__INTERNAL size_t gpunn__cuda_sum_to_workspace(const gpunn__cuda *cuda, const gpunn_value *from,
                                                    const gpunn_value *to)
{
    gpunn__reduction r;
    gpunn__reduction_shape(cuda, &r, from, gpunn__broadcast_axes(from, to), false);
    return gpunn__reduction_workspace(&r);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_sum_to(gpunn__cuda *cuda, const gpunn_value *from,
                                                const gpunn_value *to, bool accumulate, void *workspace)
{
    gpunn__reduction r;
    gpunn__reduction_shape(cuda, &r, from, gpunn__broadcast_axes(from, to), false);
    r.y = to->data;
    r.y_type = to->dtype;
    r.add = accumulate;
    return gpunn__reduction_run(cuda, &r, workspace);
}

/* The backward pass of SUM and MAX: a thread writes a pack of dx from the values of its results. */
typedef struct gpunn__spread {
    int rank;
    /* merged axes, last first; stride: of the results, or 0 */
    int64_t      dim[GPUNN_MAX_RANK], stride[GPUNN_MAX_RANK];
    int64_t      count;
    const void  *gradient, *x, *y; /* sum: x and y are NULL */
    const float *equal;            /* max: number of elements that equal it */
    void        *dx;
    gpunn_dtype  gradient_type, x_type, y_type, dx_type;
    float        divisor;
    bool         add;
} gpunn__spread;

template <int N>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__spread_kernel(const gpunn__spread s)
{
    GPUNN__FOLLOW();
    int64_t step = (int64_t)gridDim.x * blockDim.x * N;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < s.count; i += step) {
        int64_t row = gpunn__quotient(i, s.dim[0]), stride = s.stride[0];
        int64_t result = (i - row * s.dim[0]) * stride +
                         gpunn__offset(row, s.rank - 1, s.dim + 1, s.stride + 1);
        float v[N];
        gpunn__strided_load<N>(s.gradient, s.gradient_type, result, stride, v);
        if (s.x) { /* as torch's mask * g / equal: all NaN if the maximum is NaN */
            float x[N], y[N], equal[N];
            gpunn__strided_load<N>(s.x, s.x_type, i, 1, x);
            gpunn__strided_load<N>(s.y, s.y_type, result, stride, y);
            gpunn__strided_load<N>(s.equal, GPUNN_F32, result, stride, equal);
#pragma unroll
            for (int j = 0; j < N; j++)
                v[j] = (gpunn__rounded(x[j], s.y_type) == y[j] ? v[j] : v[j] * 0) / equal[j];
        } else {
#pragma unroll
            for (int j = 0; j < N; j++) v[j] /= s.divisor;
        }
        gpunn__strided_store<N>(s.dx, s.dx_type, i, 1, v, s.add);
    }
}

/* Forward of SUM and MAX: out = the sums, means or maxima. Backward: dx = or += the gradient / divisor. The
 * gradient of a maximum is shared by the elements that equal it. */
static gpunn_status gpunn__reduction_step(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action, int kind)
{
    const gpunn_value *in = &step->in[0];
    gpunn__reduction   r;
    gpunn__reduction_shape(cuda, &r, in, step->attr->axes, false);
    size_t partial_bytes = (gpunn__reduction_workspace(&r) + 63) / 64 * 64;
    if (action == GPUNN__PREPARE) {
        bool count = step->backward && kind == GPUNN__MAX;
        step->workspace_bytes = count || !step->backward ? partial_bytes : 0;
        if (count) step->workspace_bytes += (size_t)step->out.count * sizeof(float);
        return GPUNN_OK;
    }
    float divisor = step->attr->mean ? (float)(in->count / step->out.count) : 1;
    if (action == GPUNN__FORWARD) {
        r.kind = kind;
        r.y = step->out.data;
        r.y_type = step->out.dtype;
        r.divisor = divisor;
        return gpunn__reduction_run(cuda, &r, step->workspace);
    }
    if (!step->grad_in[0].data) return GPUNN_OK;
    gpunn__spread s;
    memset(&s, 0, sizeof s);
    if (kind == GPUNN__MAX) {
        r.kind = GPUNN__COUNT;
        r.reference = step->out.data;
        r.reference_type = step->out.dtype;
        r.y = (char *)step->workspace + partial_bytes;
        GPUNN__TRY(gpunn__reduction_run(cuda, &r, step->workspace));
        s.x = in->data;
        s.x_type = in->dtype;
        s.y = step->out.data;
        s.y_type = step->out.dtype;
        s.equal = (const float *)r.y;
    }
    const gpunn__walk all = gpunn__axes_reduced(in, step->attr->axes);
    s.rank = all.rank > 0 ? all.rank : 1;
    memcpy(s.dim, all.dim, sizeof s.dim);
    memcpy(s.stride, all.stride[1], sizeof s.stride);
    if (all.rank == 0) s.dim[0] = s.stride[0] = 1;
    s.count = in->count;
    s.gradient = step->grad_out.data;
    s.gradient_type = step->grad_out.dtype;
    s.dx = step->grad_in[0].data;
    s.dx_type = step->grad_in[0].dtype;
    s.divisor = divisor;
    s.add = step->accumulate[0];
    if (s.dim[0] % 8 == 0)
        return GPUNN__LAUNCH(cuda, (gpunn__spread_kernel<8>), gpunn__blocks(cuda, s.count, 8), GPUNN__THREADS,
                             s);
    return GPUNN__LAUNCH(cuda, (gpunn__spread_kernel<1>), gpunn__blocks(cuda, s.count, 1), GPUNN__THREADS, s);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_sum(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (!gpunn__is_float(step->in[0].dtype)) return gpunn__cuda_integer(cuda, step, action);
    return gpunn__reduction_step(cuda, step, action, GPUNN__SUM);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_max(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (!gpunn__is_float(step->in[0].dtype)) return gpunn__cuda_integer(cuda, step, action);
    return gpunn__reduction_step(cuda, step, action, GPUNN__MAX);
}

/* ---- gradient_energy: the sum over some axes of the mean squared difference of neighbours -------------- */

typedef struct gpunn__energy {
    int64_t     n;
    int         count; /* number of axes, without those of one element */
    int64_t     size[GPUNN_MAX_RANK], stride[GPUNN_MAX_RANK];
    float       share[GPUNN_MAX_RANK]; /* weight of one difference in the mean along that axis */
    const void *x;
    gpunn_dtype dtype;
    void       *dx; /* of x's dtype */
    const void *dy;
    gpunn_dtype dy_dtype;
    bool        accumulate;
} gpunn__energy;

/* The position of element i along axis k of these axes. */
__device__ __forceinline__ int64_t gpunn__energy_at(const gpunn__energy &e, int k, int64_t i)
{
    int64_t place = gpunn__quotient(i, e.stride[k]);
    return place - gpunn__quotient(place, e.size[k]) * e.size[k];
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__energy_kernel(const gpunn__energy e, double *partials)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    double  sum = 0;
    for (; i < e.n; i += step) {
        float v = gpunn__load(e.x, e.dtype, i), energy = 0;
        for (int k = 0; k < e.count; k++) {
            if (gpunn__energy_at(e, k, i) == e.size[k] - 1) continue;
            float difference = gpunn__load(e.x, e.dtype, i + e.stride[k]) - v;
            energy += e.share[k] * difference * difference;
        }
        sum += energy;
    }
    sum = gpunn__block_reduce(sum, gpunn__add());
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/* One block adds up the partial sums. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__energy_finish_kernel(const double *partials, int count, void *y, gpunn_dtype dtype)
{
    GPUNN__FOLLOW();
    double sum = 0;
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) sum += partials[i];
    sum = gpunn__block_reduce(sum, gpunn__add());
    if (threadIdx.x == 0) gpunn__store(y, dtype, 0, (float)sum);
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__energy_back_kernel(const gpunn__energy e)
{
    GPUNN__FOLLOW();
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    float   dy = 2 * gpunn__load(e.dy, e.dy_dtype, 0);
    for (; i < e.n; i += step) {
        float v = gpunn__load(e.x, e.dtype, i), sum = 0;
        for (int k = 0; k < e.count; k++) {
            int64_t at = gpunn__energy_at(e, k, i);
            float   gradient = at > 0 ? v - gpunn__load(e.x, e.dtype, i - e.stride[k]) : 0;
            if (at < e.size[k] - 1) gradient -= gpunn__load(e.x, e.dtype, i + e.stride[k]) - v;
            sum += e.share[k] * gradient;
        }
        sum *= dy;
        gpunn__store(e.dx, e.dtype, i, e.accumulate ? gpunn__load(e.dx, e.dtype, i) + sum : sum);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_gradient_energy(gpunn__cuda *cuda, gpunn_step *step,
                                                         gpunn__action action)
{
    const gpunn_value *x = &step->in[0];
    gpunn__energy      e;
    double             share[GPUNN_MAX_RANK];
    unsigned           blocks = gpunn__blocks(cuda, x->count, 4);
    if (action == GPUNN__PREPARE) {
        if (!step->backward) step->workspace_bytes = blocks * sizeof(double);
        return GPUNN_OK;
    }
    memset(&e, 0, sizeof e);
    e.n = x->count;
    e.count = gpunn__energy_axes(step, e.size, e.stride, share);
    for (int k = 0; k < e.count; k++) e.share[k] = (float)share[k];
    e.x = x->data;
    e.dtype = x->dtype;
    if (action == GPUNN__FORWARD) {
        double *partials = (double *)step->workspace;
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__energy_kernel, blocks, GPUNN__THREADS, e, partials));
        return GPUNN__LAUNCH(cuda, gpunn__energy_finish_kernel, 1, GPUNN__THREADS, partials, (int)blocks,
                             step->out.data, step->out.dtype);
    }
    e.dy = step->grad_out.data;
    e.dy_dtype = step->grad_out.dtype;
    e.dx = step->grad_in[0].data;
    e.accumulate = step->accumulate[0];
    return GPUNN__LAUNCH(cuda, gpunn__energy_back_kernel, blocks, GPUNN__THREADS, e);
}

/* ---- along one axis: x[outer][n][inner] ---------------------------------------------------------------- */

GPUNN__INTERNAL gpunn__along gpunn__along_axis(const gpunn__cuda *cuda, const gpunn_step *step, int axis)
{
    gpunn__along       a;
    const gpunn_value *in = &step->in[0], *out = step->backward ? &step->grad_in[0] : &step->out;
    memset(&a, 0, sizeof a);
    a.n = in->rank ? in->dim[axis] : 1;
    a.inner = 1;
    for (int d = axis + 1; d < in->rank; d++) a.inner *= in->dim[d];
    a.rows = in->count / a.n;
    a.lanes = gpunn__lanes_of(cuda, a.rows, a.n, a.inner);
    a.x = in->data;
    a.x_type = in->dtype;
    a.y = step->out.data;
    a.y_type = step->out.dtype;
    a.gradient = step->grad_out.data;
    a.gradient_type = step->grad_out.dtype;
    a.out = out->data;
    a.out_type = out->dtype;
    a.add = step->backward && step->accumulate[0];
    return a;
}

GPUNN__INTERNAL unsigned gpunn__along_blocks(const gpunn__cuda *cuda, const gpunn__along *a)
{
    return gpunn__blocks(cuda, a->rows * a->lanes, 1);
}

/* ---- cumsum: along a row, in the backward pass from its end -------------------------------------------- *
 * Many rows use one thread each.
 * Otherwise a block scans a row piece by piece, one element per thread, and carries the sum over. A long
 * row that would leave the device idle is cut into parts, which an earlier launch has summed. */

enum { GPUNN__CUMSUM_PART = 8 * GPUNN__THREADS };
typedef struct gpunn__cumsum {
    gpunn__along along; /* x: or the gradient */
    bool         reverse;
    int64_t      part, parts; /* elements per part; parts per row */
    float       *sums;        /* [rows][parts]; NULL: there is one part */
} gpunn__cumsum;

__device__ __forceinline__ void gpunn__cumsum_store(const gpunn__cumsum &k, int64_t at, float sum)
{
    if (k.along.add) sum += gpunn__load(k.along.out, k.along.out_type, at);
    gpunn__store(k.along.out, k.along.out_type, at, sum);
}

/* One thread per row. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__cumsum_rows_kernel(const gpunn__cumsum k)
{
    GPUNN__FOLLOW();
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; row < k.along.rows; row += (int64_t)gridDim.x * blockDim.x) {
        float sum = 0;
        for (int64_t i = 0; i < k.along.n; i++) {
            int64_t at = gpunn__along_place(k.along, row, i, k.reverse);
            sum += gpunn__load(k.along.x, k.along.x_type, at);
            gpunn__cumsum_store(k, at, sum);
        }
    }
}

/* The sum of each part. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__cumsum_sums_kernel(const gpunn__cumsum k)
{
    GPUNN__FOLLOW();
    for (int64_t unit = blockIdx.x; unit < k.along.rows * k.parts; unit += gridDim.x) {
        const int64_t row = gpunn__quotient(unit, k.parts), begin = (unit - row * k.parts) * k.part,
                      end = begin + k.part;
        float sum = 0;
        for (int64_t i = begin + threadIdx.x; i < end && i < k.along.n; i += GPUNN__THREADS)
            sum += gpunn__load(k.along.x, k.along.x_type, gpunn__along_place(k.along, row, i, k.reverse));
        sum = gpunn__block_reduce(sum, gpunn__add());
        if (threadIdx.x == 0) k.sums[unit] = sum;
    }
}

/* The sum of the parts before this one. */
__device__ __forceinline__ float gpunn__cumsum_before(const gpunn__cumsum &k, int64_t row, int64_t part)
{
    float sum = 0;
    if (!k.sums) return 0;
    for (int64_t number = threadIdx.x; number < part; number += GPUNN__THREADS)
        sum += k.sums[row * k.parts + number];
    return gpunn__block_reduce(sum, gpunn__add());
}

/* One block per part: a Hillis-Steele scan over GPUNN__THREADS elements at a time. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__cumsum_block_kernel(const gpunn__cumsum k)
{
    GPUNN__FOLLOW();
    __shared__ float sums[GPUNN__THREADS];
    int              t = (int)threadIdx.x;
    for (int64_t unit = blockIdx.x; unit < k.along.rows * k.parts; unit += gridDim.x) {
        const int64_t row = gpunn__quotient(unit, k.parts), part = unit - row * k.parts;
        const int64_t end = (part + 1) * k.part < k.along.n ? (part + 1) * k.part : k.along.n;
        float         before = gpunn__cumsum_before(k, row, part);
        for (int64_t start = part * k.part; start < end; start += GPUNN__THREADS) {
            int64_t at = start + t < end ? gpunn__along_place(k.along, row, start + t, k.reverse) : -1;
            float   sum = at >= 0 ? gpunn__load(k.along.x, k.along.x_type, at) : 0;
            for (int distance = 1; distance < GPUNN__THREADS; distance *= 2) {
                __syncthreads(); /* the previous contents of sums have been read */
                sums[t] = sum;
                __syncthreads();
                if (t >= distance) sum += sums[t - distance];
            }
            __syncthreads();
            sums[t] = sum;
            __syncthreads();
            if (at >= 0) gpunn__cumsum_store(k, at, before + sum);
            before += sums[GPUNN__THREADS - 1];
        }
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_cumsum(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    gpunn__cumsum k;
    memset(&k, 0, sizeof k);
    k.along = gpunn__along_axis(cuda, step, step->attr->axis);
    const bool cut = k.along.n > GPUNN__CUMSUM_PART && k.along.rows < (int64_t)cuda->multiprocessors * 4;
    k.reverse = step->backward;
    k.part = cut ? (int64_t)GPUNN__CUMSUM_PART : k.along.n;
    k.parts = (k.along.n + k.part - 1) / k.part;
    if (step->backward && !step->grad_in[0].data) return GPUNN_OK;
    if (action == GPUNN__PREPARE) {
        if (cut) step->workspace_bytes = (size_t)(k.along.rows * k.parts) * sizeof *k.sums;
        return GPUNN_OK;
    }
    if (step->backward) {
        k.along.x = k.along.gradient;
        k.along.x_type = k.along.gradient_type;
    }
    if (k.along.n <= 32 || k.along.rows >= (int64_t)cuda->multiprocessors * 256)
        return GPUNN__LAUNCH(cuda, gpunn__cumsum_rows_kernel, gpunn__blocks(cuda, k.along.rows, 1),
                             GPUNN__THREADS, k);
    const unsigned blocks = gpunn__blocks(cuda, k.along.rows * k.parts * GPUNN__THREADS, 1);
    k.sums = cut ? (float *)step->workspace : NULL;
    if (cut) GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__cumsum_sums_kernel, blocks, GPUNN__THREADS, k));
    return GPUNN__LAUNCH(cuda, gpunn__cumsum_block_kernel, blocks, GPUNN__THREADS, k);
}

/* ---- cross: vector products of the 3 elements along an axis: x[outer][3][inner] ------------------------ */

typedef struct gpunn__cross {
    gpunn_value a, b, y;
    int64_t     count, inner; /* count: vectors */
    bool        add;
} gpunn__cross;

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__cross_kernel(const gpunn__cross c)
{
    GPUNN__FOLLOW();
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at < c.count; at += (int64_t)gridDim.x * blockDim.x) {
        const int64_t first = at + 2 * c.inner * gpunn__quotient(at, c.inner);
        float         a[3], b[3];
        for (int k = 0; k < 3; k++) {
            a[k] = gpunn__load(c.a.data, c.a.dtype, first + k * c.inner);
            b[k] = gpunn__load(c.b.data, c.b.dtype, first + k * c.inner);
        }
        for (int k = 0; k < 3; k++) {
            const int     p = (k + 1) % 3, q = (k + 2) % 3;
            const int64_t place = first + k * c.inner;
            const float   old = c.add ? gpunn__load(c.y.data, c.y.dtype, place) : 0;
            gpunn__store(c.y.data, c.y.dtype, place, old + (a[p] * b[q] - a[q] * b[p]));
        }
    }
}

static gpunn_status gpunn__cross_run(gpunn__cuda *cuda, const gpunn_step *step, const gpunn_value *a,
                                     const gpunn_value *b, const gpunn_value *y, bool add)
{
    gpunn__cross c = {*a, *b, *y, a->count / 3, 1, add};
    for (int d = step->attr->axis + 1; d < a->rank; d++) c.inner *= a->dim[d];
    return y->data
               ? GPUNN__LAUNCH(cuda, gpunn__cross_kernel, gpunn__blocks(cuda, c.count, 1), GPUNN__THREADS, c)
               : GPUNN_OK;
}

/* da = b x g, db = g x a. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_cross(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *a = &step->in[0], *b = &step->in[1], *g = &step->grad_out;
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    if (action == GPUNN__FORWARD) return gpunn__cross_run(cuda, step, a, b, &step->out, false);
    GPUNN__TRY(gpunn__cross_run(cuda, step, b, g, &step->grad_in[0], step->accumulate[0]));
    return gpunn__cross_run(cuda, step, g, a, &step->grad_in[1], step->accumulate[1]);
}
