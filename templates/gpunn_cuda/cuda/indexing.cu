#include "cuda/indexing.h"
#include "base/memory.h"
#include "cuda/elementwise.h"
#include "cuda/reduce.h"

/* ==== >>cuda/indexing ==================================================================================== *
 * Ops that select elements by integer indices (gather, scatter, embedding), and ops that compute indices
 * (argmax, topk). */
/* ---- argmax: the first maximum, NaN above everything --------------------------------------------------- */

typedef struct gpunn__smaller {
    __device__ int64_t operator()(int64_t a, int64_t b) const
    {
        return a < b ? a : b;
    }
} gpunn__smaller;

struct gpunn__argmax_visit {
    const void *x;
    gpunn_dtype dtype;
    int64_t     stride;
    float       best;
    int64_t     at_best;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float v[N];
        gpunn__strided_load<N>(x, dtype, i, stride, v);
#pragma unroll
        for (int j = 0; j < N; j++) {
            bool more = v[j] > best || (v[j] != v[j] && best == best),
                 same = v[j] == best || (v[j] != v[j] && best != best);
            best = more ? v[j] : best;
            at_best = more || (same && c + j < at_best) ? c + j : at_best;
        }
    }
};

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__argmax_kernel(const gpunn__along a)
{
    GPUNN__FOLLOW();
    for (int64_t first = gpunn__along_first(a); first < a.rows; first += gpunn__along_step(a)) {
        gpunn__strided_row  row = gpunn__along_row(a, first);
        gpunn__argmax_visit visit = {a.x, a.x_type, row.stride, -INFINITY, INT64_MAX};
        gpunn__strided_visit(row, visit);
        float   best = gpunn__lanes_reduce(visit.best, gpunn__larger(), a.lanes);
        bool    mine = visit.best == best || (visit.best != visit.best && best != best);
        int64_t at = gpunn__lanes_reduce(mine ? visit.at_best : INT64_MAX, gpunn__smaller(), a.lanes);
        if (row.index < a.rows && row.thread == 0) ((int64_t *)a.out)[row.index] = at;
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_argmax(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    gpunn__along a = gpunn__along_axis(cuda, step, step->attr->axis);
    return GPUNN__LAUNCH(cuda, gpunn__argmax_kernel, gpunn__along_blocks(cuda, &a), GPUNN__THREADS, a);
}

/* ---- sorting ------------------------------------------------------------------------------------------- *
 * A block sorts up to GPUNN__BLOCK_SORT codes in shared memory. Longer rows are sorted in global memory by
 * a stable radix sort on ascending 32-bit keys, with 8 bits per pass. One launch counts the digits of each
 * part of a row, the next moves its elements. A pass reads the elements twice and writes them once: 24
 * bytes per element. */

enum { GPUNN__BLOCK_SORT = 2048 };

/* Batcher's bitonic sort, descending. size is a power of 2. All threads of the block call it; their number
 * may be any. */
__device__ __forceinline__ void gpunn__block_sort(unsigned long long *code, unsigned size)
{
    for (unsigned width = 2; width <= size; width *= 2)
        for (unsigned distance = width / 2; distance > 0; distance /= 2) {
            __syncthreads();
            for (unsigned i = threadIdx.x; i < size / 2; i += blockDim.x) {
                const unsigned           low = 2 * i - (i & (distance - 1)), high = low + distance;
                const unsigned long long a = code[low], b = code[high];
                if ((a < b) != ((low & width) == 0)) continue;
                code[low] = b;
                code[high] = a;
            }
        }
    __syncthreads();
}

/* The number of parts per row that gives every multiprocessor two blocks. */
static int64_t gpunn__parts_of_row(const gpunn__cuda *cuda, int64_t rows)
{
    const int64_t parts = (int64_t)cuda->multiprocessors * 2 / rows;
    return parts < 1 ? 1 : parts;
}

enum {
    GPUNN__DIGITS = 256, /* also the threads of a block */
    GPUNN__SORT_WARPS = GPUNN__DIGITS / 32,
    GPUNN__SORT_ROUNDS = 4,
    GPUNN__SORT_TILE = GPUNN__DIGITS * GPUNN__SORT_ROUNDS
};

typedef struct gpunn__sorting {
    uint2 *sorted, *other; /* [rows][count]: (key, index) */
    /* [rows][parts][GPUNN__DIGITS]: how many elements of a part have that digit */
    unsigned *digits;
    int64_t   rows, count, part; /* part: elements per block, in whole tiles */
    int64_t   parts;             /* parts per row */
    int       shift;             /* bit position of the current digit */
} gpunn__sorting;

/* The keys of all passes but the first. */
typedef struct gpunn__sorted_keys {
    const uint2     *sorted;
    __device__ uint2 operator()(const gpunn__sorting &s, int64_t row, int64_t i) const
    {
        return sorted[row * s.count + i];
    }
} gpunn__sorted_keys;

typedef struct gpunn__sort_part {
    int64_t row, number, begin, end;
} gpunn__sort_part;

__device__ __forceinline__ gpunn__sort_part gpunn__sort_part_of(const gpunn__sorting &s)
{
    const int64_t row = gpunn__quotient(blockIdx.x, s.parts), number = blockIdx.x - row * s.parts,
                  begin = number * s.part;
    return {row, number, begin, begin + s.part < s.count ? begin + s.part : s.count};
}

/* Counters per warp. The last one is for threads without an element. */
typedef unsigned gpunn__sort_counts[GPUNN__SORT_WARPS][GPUNN__DIGITS + 1];

__device__ __forceinline__ void gpunn__sort_clear(gpunn__sort_counts &counts)
{
    for (int w = 0; w < GPUNN__SORT_WARPS; w++) counts[w][threadIdx.x] = 0;
    __syncthreads();
}

/* How many elements of that digit this warp has met before this one. Updates counts[warp], the number met so
 * far. The whole warp must call it. */
__device__ __forceinline__ unsigned gpunn__sort_rank(unsigned digit, gpunn__sort_counts &counts)
{
    const unsigned lane = threadIdx.x & 31, equals = __match_any_sync(0xFFFFFFFFu, digit);
    const unsigned before = (unsigned)__popc(equals & ((1u << lane) - 1));
    unsigned      *count = &counts[threadIdx.x >> 5][digit];
    const unsigned met = *count;
    __syncwarp();
    if (before == 0) *count = met + (unsigned)__popc(equals);
    __syncwarp();
    return met + before;
}

template <typename Keys>
__device__ __forceinline__ unsigned gpunn__sort_digit(const gpunn__sorting &s, const Keys &keys,
                                                      const gpunn__sort_part &part, int64_t i, uint2 *item)
{
    if (i >= part.end) return GPUNN__DIGITS;
    *item = keys(s, part.row, i);
    return item->x >> s.shift & (GPUNN__DIGITS - 1);
}

template <typename Keys>
static __global__ void __launch_bounds__(GPUNN__DIGITS)
    gpunn__sort_count_kernel(const gpunn__sorting s, const Keys keys)
{
    GPUNN__FOLLOW();
    __shared__ gpunn__sort_counts counts;
    const gpunn__sort_part        part = gpunn__sort_part_of(s);
    uint2                         item;
    gpunn__sort_clear(counts);
    for (int64_t base = part.begin + (threadIdx.x & ~31u); base < part.end; base += GPUNN__DIGITS)
        (void)gpunn__sort_rank(gpunn__sort_digit(s, keys, part, base + (threadIdx.x & 31), &item), counts);
    __syncthreads();
    unsigned found = 0;
    for (int w = 0; w < GPUNN__SORT_WARPS; w++) found += counts[w][threadIdx.x];
    s.digits[(int64_t)blockIdx.x * GPUNN__DIGITS + threadIdx.x] = found;
}

/* Where the part's elements of digit threadIdx.x start: after all smaller digits and after earlier parts. */
__device__ __forceinline__ unsigned gpunn__sort_start(const gpunn__sorting &s, const gpunn__sort_part &part)
{
    __shared__ unsigned total[GPUNN__DIGITS];
    const unsigned     *digits = s.digits + part.row * s.parts * GPUNN__DIGITS + threadIdx.x;
    unsigned            all = 0, at = 0;
#pragma unroll 16 /* keeps 16 loads in flight */
    for (int64_t number = 0; number < s.parts; number++) {
        const unsigned found = digits[number * GPUNN__DIGITS];
        all += found;
        at += number < part.number ? found : 0;
    }
    total[threadIdx.x] = all;
    __syncthreads();
    for (unsigned digit = 0; digit < threadIdx.x; digit++) at += total[digit];
    return at;
}

template <typename Keys>
static __global__ void __launch_bounds__(GPUNN__DIGITS)
    gpunn__sort_move_kernel(const gpunn__sorting s, const Keys keys)
{
    GPUNN__FOLLOW();
    __shared__ gpunn__sort_counts counts;
    const gpunn__sort_part        part = gpunn__sort_part_of(s);
    const unsigned                warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    unsigned                      at = gpunn__sort_start(s, part);
    for (int64_t tile = part.begin; tile < part.end; tile += GPUNN__SORT_TILE) {
        uint2    item[GPUNN__SORT_ROUNDS];
        unsigned digit[GPUNN__SORT_ROUNDS], rank[GPUNN__SORT_ROUNDS];
        gpunn__sort_clear(counts);
#pragma unroll
        for (int j = 0; j < GPUNN__SORT_ROUNDS; j++) {
            digit[j] = gpunn__sort_digit(s, keys, part, tile + (warp * GPUNN__SORT_ROUNDS + j) * 32 + lane,
                                         &item[j]);
            rank[j] = gpunn__sort_rank(digit[j], counts);
        }
        __syncthreads();
        for (int w = 0; w < GPUNN__SORT_WARPS; w++) {
            const unsigned found = counts[w][threadIdx.x];
            counts[w][threadIdx.x] = at;
            at += found;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < GPUNN__SORT_ROUNDS; j++)
            if (digit[j] < GPUNN__DIGITS)
                s.other[part.row * s.count + counts[warp][digit[j]] + rank[j]] = item[j];
        __syncthreads();
    }
}

/* Splits rows into just as many parts as fill the device. The buffers are not set. */
static gpunn__sorting gpunn__sorting_of(const gpunn__cuda *cuda, int64_t rows, int64_t count)
{
    gpunn__sorting s;
    const int64_t  tiles = (count + GPUNN__SORT_TILE - 1) / GPUNN__SORT_TILE,
                  most = gpunn__parts_of_row(cuda, rows);
    memset(&s, 0, sizeof s);
    s.rows = rows;
    s.count = count;
    s.part = (tiles + most - 1) / most * GPUNN__SORT_TILE;
    s.parts = (count + s.part - 1) / s.part;
    return s;
}

static size_t gpunn__sort_workspace(const gpunn__sorting *s)
{
    return (size_t)s->rows *
           (2 * (size_t)s->count * sizeof *s->sorted + (size_t)s->parts * GPUNN__DIGITS * sizeof *s->digits);
}

template <typename Keys>
static gpunn_status gpunn__sort_pass(gpunn__cuda *cuda, gpunn__sorting *s, const Keys &keys)
{
    const unsigned blocks = (unsigned)(s->rows * s->parts);
    GPUNN__TRY(GPUNN__LAUNCH(cuda, (gpunn__sort_count_kernel<Keys>), blocks, GPUNN__DIGITS, *s, keys));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, (gpunn__sort_move_kernel<Keys>), blocks, GPUNN__DIGITS, *s, keys));
    uint2 *sorted = s->other;
    s->other = s->sorted;
    s->sorted = sorted;
    return GPUNN_OK;
}

/* Sorts the pairs (key, value) that keys(s, row, i) returns into s->sorted. largest is the largest possible
 * key. */
template <typename Keys>
static gpunn_status gpunn__sort(gpunn__cuda *cuda, gpunn__sorting *s, void *workspace, const Keys &keys,
                                int64_t largest)
{
    s->sorted = (uint2 *)workspace;
    s->other = s->sorted + s->rows * s->count;
    s->digits = (unsigned *)(s->other + s->rows * s->count);
    GPUNN__TRY(gpunn__sort_pass(cuda, s, keys));
    for (s->shift = 8; largest >> s->shift; s->shift += 8) {
        const gpunn__sorted_keys sorted = {s->sorted};
        GPUNN__TRY(gpunn__sort_pass(cuda, s, sorted));
    }
    return GPUNN_OK;
}

/* ---- topk ---------------------------------------------------------------------------------------------- *
 * topk works in rounds. A block lists the codes of its part of a row that exceed the smallest of the k
 * largest so far. It sorts and cuts the list when it is full and at the end. The next round reads what the
 * blocks kept. If k is above GPUNN__TOPK_FEW and the row longer than the list, the whole row is sorted in
 * memory, in 9 launches. */

enum { GPUNN__TOPK_FEW = 512 };
typedef struct gpunn__topk {
    gpunn__along              along;
    int64_t                   k, n, part, parts; /* n: codes per row in this round; part: codes per block */
    bool                      largest;
    int                       threads; /* threads per block */
    const unsigned long long *from;    /* [rows][n]; NULL: computed from x. 0: no code */
    unsigned long long       *to;      /* [rows][parts][k]; NULL: the result is written */
} gpunn__topk;

/* The code of element i of a row. */
__device__ __forceinline__ unsigned long long gpunn__topk_code_of(const gpunn__topk &t, int64_t row,
                                                                  int64_t i)
{
    const gpunn__along &a = t.along;
    const int64_t       outer = gpunn__quotient(row, a.inner),
                  at = (outer * a.n + i) * a.inner + row - outer * a.inner;
    return gpunn__topk_code(gpunn__load(a.x, a.x_type, at), i, t.largest);
}

/* Writes place as element i of a row of the result. */
__device__ __forceinline__ void gpunn__topk_put(const gpunn__topk &t, int64_t row, int64_t i, unsigned place)
{
    const int64_t inner = t.along.inner, outer = gpunn__quotient(row, inner);
    ((int64_t *)t.along.out)[(outer * t.k + i) * inner + row - outer * inner] = place;
}

/* Sorts the `found` codes of the list and keeps the k largest, padded with 0. Returns the smallest of these
 * k. */
__device__ __forceinline__ unsigned long long gpunn__topk_cut(const gpunn__topk &t, unsigned long long *list,
                                                              unsigned found)
{
    unsigned size = 1;
    while (size < found || size < t.k) size *= 2;
    for (unsigned i = found + threadIdx.x; i < size; i += blockDim.x) list[i] = 0;
    gpunn__block_sort(list, size);
    return list[t.k - 1];
}

static __global__ void __launch_bounds__(GPUNN__BLOCK_SORT / 2, 1) gpunn__topk_kernel(const gpunn__topk t)
{
    GPUNN__FOLLOW();
    __shared__ unsigned long long list[GPUNN__BLOCK_SORT], found;
    for (int64_t unit = blockIdx.x; unit < t.along.rows * t.parts; unit += gridDim.x) {
        const int64_t      row = gpunn__quotient(unit, t.parts), begin = (unit - row * t.parts) * t.part;
        const int64_t      end = begin + t.part < t.n ? begin + t.part : t.n;
        unsigned long long least = 0;
        if (threadIdx.x == 0) found = 0;
        for (int64_t base = begin; base < end; base += blockDim.x) {
            __syncthreads();
            const unsigned before = (unsigned)found;
            __syncthreads();
            if (before + blockDim.x > GPUNN__BLOCK_SORT) {
                least = gpunn__topk_cut(t, list, before);
                if (threadIdx.x == 0) found = (unsigned long long)t.k;
                __syncthreads();
            }
            const int64_t      i = base + threadIdx.x;
            unsigned long long code = 0;
            if (i < end) code = t.from ? t.from[row * t.n + i] : gpunn__topk_code_of(t, row, i);
            if (code > least) list[atomicAdd(&found, 1ull)] = code;
        }
        __syncthreads();
        (void)gpunn__topk_cut(t, list, (unsigned)found);
        for (int64_t i = threadIdx.x; i < t.k; i += blockDim.x)
            if (t.to)
                t.to[unit * t.k + i] = list[i];
            else
                gpunn__topk_put(t, row, i, 0xFFFFFFFFu - (unsigned)list[i]);
        __syncthreads();
    }
}

/* Plans a round over n codes per row: just as many parts as fill the device. */
static void gpunn__topk_round(const gpunn__cuda *cuda, gpunn__topk *t, int64_t n)
{
    const int64_t tiles = (n + GPUNN__BLOCK_SORT - 1) / GPUNN__BLOCK_SORT,
                  most = gpunn__parts_of_row(cuda, t->along.rows);
    t->n = n;
    t->part = (tiles + most - 1) / most * GPUNN__BLOCK_SORT;
    t->parts = (n + t->part - 1) / t->part;
    t->threads = gpunn__power_of_2(n, GPUNN__BLOCK_SORT) / 2;
    if (t->threads < 32) t->threads = 32;
}

static gpunn_status gpunn__topk_rounds(gpunn__cuda *cuda, gpunn__topk *t, unsigned long long *workspace)
{
    gpunn__topk_round(cuda, t, t->along.n);
    for (; t->parts > 1; workspace += t->along.rows * t->n) {
        t->to = workspace;
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__topk_kernel,
                                 gpunn__blocks(cuda, t->along.rows * t->parts * GPUNN__THREADS, 1),
                                 (unsigned)t->threads, *t));
        t->from = t->to;
        gpunn__topk_round(cuda, t, t->parts * t->k);
    }
    t->to = NULL;
    return GPUNN__LAUNCH(cuda, gpunn__topk_kernel, gpunn__blocks(cuda, t->along.rows * GPUNN__THREADS, 1),
                         (unsigned)t->threads, *t);
}

/* Bytes for the codes that all rounds but the last keep. */
static size_t gpunn__topk_workspace(const gpunn__cuda *cuda, const gpunn__topk *t)
{
    gpunn__topk round = *t;
    size_t      kept = 0;
    for (gpunn__topk_round(cuda, &round, t->along.n); round.parts > 1;
         gpunn__topk_round(cuda, &round, round.parts * t->k))
        kept += (size_t)(t->along.rows * round.parts * t->k);
    return kept * sizeof *t->to;
}

/* Ascending keys in topk's order. */
typedef struct gpunn__topk_keys {
    gpunn__topk      t;
    __device__ uint2 operator()(const gpunn__sorting &, int64_t row, int64_t i) const
    {
        return make_uint2(~(unsigned)(gpunn__topk_code_of(t, row, i) >> 32), (unsigned)i);
    }
} gpunn__topk_keys;

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__topk_write_kernel(const gpunn__topk t, const uint2 *sorted)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < t.along.rows * t.k; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = gpunn__quotient(i, t.k), place = i - row * t.k;
        gpunn__topk_put(t, row, place, sorted[row * t.along.n + place].y);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_topk_indices(gpunn__cuda *cuda, gpunn_step *step,
                                                      gpunn__action action)
{
    gpunn__topk t;
    memset(&t, 0, sizeof t);
    t.along = gpunn__along_axis(cuda, step, step->attr->axis);
    t.k = step->out.dim[step->attr->axis];
    t.largest = step->attr->largest;
    gpunn__sorting s = gpunn__sorting_of(cuda, t.along.rows, t.along.n);
    const bool     few = t.along.n <= GPUNN__BLOCK_SORT || t.k <= GPUNN__TOPK_FEW;
    if (action == GPUNN__PREPARE) {
        if (t.along.n > UINT32_MAX)
            return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                    "topk over %lld elements is not possible; the limit is 2^32 - 1",
                                    (long long)t.along.n);
        step->workspace_bytes = few ? gpunn__topk_workspace(cuda, &t) : gpunn__sort_workspace(&s);
        return GPUNN_OK;
    }
    if (few) return gpunn__topk_rounds(cuda, &t, (unsigned long long *)step->workspace);
    const gpunn__topk_keys keys = {t};
    GPUNN__TRY(gpunn__sort(cuda, &s, step->workspace, keys, UINT32_MAX));
    return GPUNN__LAUNCH(cuda, gpunn__topk_write_kernel, gpunn__blocks(cuda, t.along.rows * t.k, 1),
                         GPUNN__THREADS, t, s.sorted);
}

/* ---- sample -------------------------------------------------------------------------------------------- *
 * A block sorts the classes of a short row. Of longer ones each launch sums the weights of the keys that
 * begin with the digits found so far, by their next digit: first for the end of the nucleus, then for the
 * class that is drawn. The fifth digit counts the parts of the row, from the end. */

enum { GPUNN__NUCLEUS_FEW = 1024, GPUNN__NUCLEUS_PASSES = 2 * GPUNN__NUCLEUS_LEVELS };
typedef unsigned long long gpunn__mass;

typedef struct gpunn__search {
    gpunn__mass key;            /* the digits found */
    gpunn__mass before, target; /* the sum of weights of larger keys; which sum is to be passed */
} gpunn__search;

/* Of a row. All is 0 at first. */
typedef struct gpunn__nucleus_row {
    gpunn__mass   most;                          /* key */
    gpunn__search search[GPUNN__NUCLEUS_PASSES]; /* as each pass begins */
    gpunn__mass   sums[GPUNN__NUCLEUS_PASSES][GPUNN__NUCLEUS_DIGITS];
    unsigned      done; /* blocks of the last pass */
} gpunn__nucleus_row;

typedef struct gpunn__nucleus {
    const void         *logits, *draw;
    gpunn_dtype         logits_type, draw_type;
    int64_t            *drawn;
    int64_t             rows, n, part, parts; /* part: classes that a block takes */
    float               scale, top_p;
    gpunn__nucleus_row *row;
} gpunn__nucleus;

typedef struct gpunn__nucleus_part {
    int64_t row, number, begin, end;
} gpunn__nucleus_part;

__device__ __forceinline__ gpunn__nucleus_part gpunn__nucleus_part_of(const gpunn__nucleus &s, int64_t row,
                                                                      int64_t number)
{
    const int64_t begin = number * s.part;
    return {row, number, begin, begin + s.part < s.n ? begin + s.part : s.n};
}

__device__ __forceinline__ gpunn__nucleus_part gpunn__nucleus_own_part(const gpunn__nucleus &s)
{
    const int64_t row = gpunn__quotient(blockIdx.x, s.parts);
    return gpunn__nucleus_part_of(s, row, blockIdx.x - row * s.parts);
}

__device__ __forceinline__ uint32_t gpunn__nucleus_key_of(const gpunn__nucleus &s, int64_t row, int64_t i)
{
    return gpunn__nucleus_key(gpunn__load(s.logits, s.logits_type, row * s.n + i));
}

/* The target of the class that is drawn. */
__device__ __forceinline__ gpunn__mass gpunn__nucleus_target(const gpunn__nucleus &s, int64_t row,
                                                             gpunn__mass kept, uint32_t most)
{
    return gpunn__nucleus_draw(kept, gpunn__load(s.draw, s.draw_type, row), most);
}

/* The sum of the block's values up to this thread's. */
__device__ __forceinline__ gpunn__mass gpunn__block_sums(gpunn__mass value)
{
    __shared__ gpunn__mass part[32];
    const unsigned         lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (unsigned distance = 1; distance < 32; distance *= 2) {
        const gpunn__mass other = __shfl_sync(0xFFFFFFFFu, value, (lane - distance) & 31);
        if (lane >= distance) value += other;
    }
    __syncthreads(); /* of an earlier call: everybody has read part */
    if (lane == 31) part[warp] = value;
    __syncthreads();
    for (unsigned w = 0; w < warp; w++) value += part[w];
    return value;
}

/* Whether a sum that reaches `upto` by this mass passes the target by it. */
__device__ __forceinline__ bool gpunn__passes(gpunn__mass upto, gpunn__mass mass, gpunn__mass target)
{
    return upto > target && upto - mass <= target;
}

static __global__ void __launch_bounds__(GPUNN__NUCLEUS_FEW) gpunn__nucleus_few_kernel(const gpunn__nucleus s)
{
    GPUNN__FOLLOW();
    __shared__ unsigned long long code[GPUNN__NUCLEUS_FEW];
    __shared__ gpunn__mass        kept;
    const unsigned                i = threadIdx.x;
    for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
        code[i] = i < s.n ? gpunn__topk_code(gpunn__load(s.logits, s.logits_type, row * s.n + i), i, true)
                          : 0;
        gpunn__block_sort(code, blockDim.x);
        const uint32_t    key = (uint32_t)(code[i] >> 32), most = (uint32_t)(code[0] >> 32);
        const gpunn__mass weight = i < s.n ? gpunn__nucleus_weight(key, most, s.scale) : 0,
                          upto = gpunn__block_sums(weight);
        if (i == blockDim.x - 1) kept = upto;
        __syncthreads();
        const bool ends = s.top_p < 1 && gpunn__passes(upto, weight, gpunn__nucleus_end(kept, s.top_p));
        __syncthreads();
        if (ends) kept = upto;
        __syncthreads();
        if (gpunn__passes(upto, weight, gpunn__nucleus_target(s, row, kept, most)))
            s.drawn[row] = 0xFFFFFFFFu - (uint32_t)code[i];
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(GPUNN__NUCLEUS_DIGITS)
    gpunn__nucleus_most_kernel(const gpunn__nucleus s)
{
    GPUNN__FOLLOW();
    const gpunn__nucleus_part part = gpunn__nucleus_own_part(s);
    int64_t                   least = 0; /* the negative of the largest key */
    for (int64_t i = part.begin + threadIdx.x; i < part.end; i += blockDim.x) {
        const int64_t key = gpunn__nucleus_key_of(s, part.row, i);
        least = -key < least ? -key : least;
    }
    least = gpunn__block_reduce(least, gpunn__smaller());
    if (threadIdx.x == 0) (void)atomicMax(&s.row[part.row].most, (gpunn__mass)-least);
}

/* Adds the weights of a warp's lanes to its sums, one digit after another. Only lane 0 writes. */
__device__ __forceinline__ void gpunn__nucleus_add(gpunn__mass *sums, unsigned digit, uint32_t weight)
{
    const unsigned lane = threadIdx.x & 31, equals = __match_any_sync(0xFFFFFFFFu, digit);
    unsigned       open = 0xFFFFFFFFu; /* lanes to come */
    while (open) {
        const unsigned first = (unsigned)__popc(~open & (open - 1)),
                       group = __shfl_sync(0xFFFFFFFFu, equals, first);
        const unsigned own = __shfl_sync(0xFFFFFFFFu, digit, first);
        gpunn__mass    sum = group >> lane & 1 ? weight : 0;
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
        if (lane == 0) sums[own] += sum;
        open &= ~group;
    }
}

/* The search one digit further on; thread i has the sum of digit 255 - i. */
__device__ __forceinline__ gpunn__search gpunn__nucleus_digit(const gpunn__search &search,
                                                              const gpunn__mass   *sums)
{
    __shared__ gpunn__search found;
    const unsigned           digit = GPUNN__NUCLEUS_DIGITS - 1 - threadIdx.x;
    const gpunn__mass        mass = sums[digit], upto = search.before + gpunn__block_sums(mass);
    if (gpunn__passes(upto, mass, search.target))
        found = {search.key << 8 | digit, upto - mass, search.target};
    __syncthreads();
    return found;
}

/* The search as a pass begins: goes on with the digits of the pass before, or starts anew with those of all
 * classes. */
__device__ __forceinline__ gpunn__search gpunn__nucleus_begin(const gpunn__nucleus &s, int64_t row, int pass)
{
    const gpunn__nucleus_row &r = s.row[row];
    const uint32_t            most = (uint32_t)r.most;
    if (pass == 0) return {0, 0, 0};
    if (pass != 1 && pass != GPUNN__NUCLEUS_LEVELS)
        return gpunn__nucleus_digit(r.search[pass - 1], r.sums[pass - 1]);
    gpunn__mass kept = gpunn__block_reduce(r.sums[0][threadIdx.x], gpunn__add());
    if (pass == 1) return gpunn__nucleus_digit({0, 0, gpunn__nucleus_end(kept, s.top_p)}, r.sums[0]);
    if (s.top_p < 1) {
        const gpunn__search end = gpunn__nucleus_digit(r.search[pass - 1], r.sums[pass - 1]);
        const gpunn__mass   weight = gpunn__nucleus_weight((uint32_t)end.key, most, s.scale);
        kept = end.before + ((end.target - end.before) / weight + 1) * weight;
    }
    return gpunn__nucleus_digit({0, 0, gpunn__nucleus_target(s, row, kept, most)}, r.sums[0]);
}

/* Of the classes that have the key that was found, the one at which the weights pass the target. */
__device__ __forceinline__ void gpunn__nucleus_write(const gpunn__nucleus &s, int64_t row,
                                                     const gpunn__search &all)
{
    const gpunn__nucleus_row &r = s.row[row];
    const gpunn__search       search = gpunn__nucleus_digit(all, r.sums[GPUNN__NUCLEUS_PASSES - 1]);
    const uint32_t            key = (uint32_t)(search.key >> 8),
                   weight = gpunn__nucleus_weight(key, (uint32_t)r.most, s.scale);
    const gpunn__nucleus_part part = gpunn__nucleus_part_of(
        s, row, GPUNN__NUCLEUS_DIGITS - 1 - (int64_t)(search.key & 0xFF));
    gpunn__mass before = search.before;
    for (int64_t base = part.begin; base < part.end; base += blockDim.x) {
        const int64_t     i = base + threadIdx.x;
        const gpunn__mass mass = i < part.end && gpunn__nucleus_key_of(s, row, i) == key ? weight : 0;
        if (gpunn__passes(before + gpunn__block_sums(mass), mass, search.target)) s.drawn[row] = i;
        before += gpunn__block_reduce(mass, gpunn__add());
    }
}

static __global__ void __launch_bounds__(GPUNN__NUCLEUS_DIGITS)
    gpunn__nucleus_pass_kernel(const gpunn__nucleus s, int pass)
{
    GPUNN__FOLLOW();
    /* the last one: of no class */
    __shared__ gpunn__mass    sums[GPUNN__NUCLEUS_DIGITS / 32][GPUNN__NUCLEUS_DIGITS + 1];
    const gpunn__nucleus_part part = gpunn__nucleus_own_part(s);
    gpunn__nucleus_row       &row = s.row[part.row];
    const gpunn__search       search = gpunn__nucleus_begin(s, part.row, pass);
    const uint32_t            most = (uint32_t)row.most;
    const int                 level = pass < GPUNN__NUCLEUS_LEVELS ? pass : pass - GPUNN__NUCLEUS_LEVELS + 1,
              shift = 32 - 8 * level;
    for (int w = 0; w < GPUNN__NUCLEUS_DIGITS / 32; w++) sums[w][threadIdx.x] = 0;
    __syncthreads();
    if (part.number == 0 && threadIdx.x == 0) row.search[pass] = search;
    for (int64_t base = part.begin; base < part.end; base += blockDim.x) {
        const int64_t     i = base + threadIdx.x;
        const gpunn__mass key = i < part.end ? gpunn__nucleus_key_of(s, part.row, i) : ~(gpunn__mass)0;
        const uint32_t    weight = key >> shift == search.key
                                       ? gpunn__nucleus_weight((uint32_t)key, most, s.scale)
                                       : 0;
        unsigned          digit = GPUNN__NUCLEUS_DIGITS;
        if (weight && level == GPUNN__NUCLEUS_LEVELS) digit -= 1 + (unsigned)part.number;
        if (weight && level < GPUNN__NUCLEUS_LEVELS) digit = key >> (shift - 8) & 0xFF;
        gpunn__nucleus_add(sums[threadIdx.x >> 5], digit, weight);
    }
    __syncthreads();
    gpunn__mass sum = 0;
    for (int w = 0; w < GPUNN__NUCLEUS_DIGITS / 32; w++) sum += sums[w][threadIdx.x];
    if (sum) (void)atomicAdd(&row.sums[pass][threadIdx.x], sum);
    if (pass == GPUNN__NUCLEUS_PASSES - 1 && gpunn__is_last_block(&row.done, (unsigned)s.parts))
        gpunn__nucleus_write(s, part.row, search);
}

static gpunn__nucleus gpunn__nucleus_of(const gpunn__cuda *cuda, const gpunn_step *step)
{
    const gpunn_value *logits = &step->in[0], *draw = &step->in[1];
    gpunn__nucleus     s;
    memset(&s, 0, sizeof s);
    s.logits = logits->data;
    s.logits_type = logits->dtype;
    s.draw = draw->data;
    s.draw_type = draw->dtype;
    s.drawn = (int64_t *)step->out.data;
    s.rows = logits->dim[0];
    s.n = logits->dim[1];
    s.scale = gpunn__nucleus_scale(step->attr->temperature);
    s.top_p = step->attr->top_p;
    s.row = (gpunn__nucleus_row *)step->workspace;
    const int64_t tile = GPUNN__NUCLEUS_DIGITS, tiles = (s.n + tile - 1) / tile,
                  fill = 4 * gpunn__parts_of_row(cuda, s.rows);
    const int64_t most = fill < tile ? fill : tile; /* parts: a digit counts them */
    s.part = (tiles + most - 1) / most * tile;
    s.parts = (s.n + s.part - 1) / s.part;
    return s;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_sample(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__nucleus s = gpunn__nucleus_of(cuda, step);
    const bool           few = s.n <= GPUNN__NUCLEUS_FEW;
    if (action == GPUNN__PREPARE) {
        if (s.n > UINT32_MAX)
            return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                    "sample from %lld classes is not possible; the limit is 2^32 - 1",
                                    (long long)s.n);
        step->workspace_bytes = few ? 0 : (size_t)s.rows * sizeof *s.row;
        return GPUNN_OK;
    }
    if (few) {
        const int size = gpunn__power_of_2(s.n, GPUNN__NUCLEUS_FEW);
        return GPUNN__LAUNCH(cuda, gpunn__nucleus_few_kernel, gpunn__blocks(cuda, s.rows * GPUNN__THREADS, 1),
                             (unsigned)(size < 32 ? 32 : size), s);
    }
    const unsigned blocks = (unsigned)(s.rows * s.parts);
    GPUNN__TRY(gpunn__cuda_fill(cuda, s.row, 0, (size_t)s.rows * sizeof *s.row));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__nucleus_most_kernel, blocks, GPUNN__NUCLEUS_DIGITS, s));
    for (int pass = 0; pass < GPUNN__NUCLEUS_PASSES; pass++)
        if (s.top_p < 1 || pass == 0 || pass >= GPUNN__NUCLEUS_LEVELS)
            GPUNN__TRY(
                GPUNN__LAUNCH(cuda, gpunn__nucleus_pass_kernel, blocks, GPUNN__NUCLEUS_DIGITS, s, pass));
    return GPUNN_OK;
}

/* ---- embedding ------------------------------------------------------------------------------------------ *
 * Forward: a thread copies packs of N columns. Backward: the tokens are radix-sorted together with their
 * positions. Then each row of the weight's gradient is written once. It is the sum of its tokens' gradients,
 * in an order that depends only on the tokens, or 0. Slices are treated the same way. They lie in
 * [outer][rows][width] and have outer * width columns. */

typedef struct gpunn__rows {
    const void *index; /* tokens */
    gpunn_dtype index_type, from_type, to_type;
    const void *from;            /* the weight, or the gradient of the result */
    void       *to;              /* the result, or the gradient of the weight */
    int64_t     count, n, width; /* tokens; rows and columns of the weight */
    int64_t     outer;           /* of slices; 1 for rows */
    int64_t     padding;         /* a row without a gradient; -1: none */
    bool        add, spoils;     /* spoils: a token out of range makes row 0 NaN */
    /* per token (row, position); (n, ..) has no gradient; (0, UINT32_MAX) spoils row 0 */
    const uint2 *sorted;
    /* Sparse gradient: `count` includes its earlier entries, which precede the tokens. `to` has the sums and
     * `rows` their rows. A row's entry is the place of its first element in `sorted`. */
    int64_t       *rows;
    const float   *kept;
    const int64_t *kept_rows;
    int64_t        kept_count;
} gpunn__rows;

/* Where a column of a row stands among `rows` rows. */
__device__ __forceinline__ int64_t gpunn__rows_place(const gpunn__rows &r, int64_t rows, int64_t row,
                                                     int64_t column)
{
    const int64_t o = r.outer == 1 ? 0 : gpunn__quotient(column, r.width);
    return (o * rows + row) * r.width + column - o * r.width;
}

template <int N>
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__rows_kernel(const gpunn__rows r)
{
    GPUNN__FOLLOW();
    int64_t packs = r.width / N, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < r.count * packs; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t at = gpunn__quotient(i, packs), column = (i - at * packs) * N,
                row = gpunn__integer(r.index, r.index_type, at);
        bool  there = row >= 0 && row < r.n;
        float v[N];
        gpunn__strided_load<N>(r.from, r.from_type, (there ? row : 0) * r.width + column, 1, v);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = there ? v[j] : NAN;
        gpunn__strided_store<N>(r.to, r.to_type, at * r.width + column, 1, v, false);
    }
}

typedef struct gpunn__row_keys {
    gpunn__rows      r;
    __device__ uint2 operator()(const gpunn__sorting &, int64_t, int64_t i) const
    {
        const int64_t row = gpunn__integer(r.index, r.index_type, i);
        const bool    there = row >= 0 && row < r.n;
        if (r.spoils && !there) return make_uint2(0, UINT32_MAX);
        return make_uint2((unsigned)(there && row != r.padding ? row : r.n), (unsigned)i);
    }
} gpunn__row_keys;

/* The same for a sparse gradient, with its earlier entries first. */
typedef struct gpunn__entry_keys {
    gpunn__rows      r;
    __device__ uint2 operator()(const gpunn__sorting &s, int64_t, int64_t i) const
    {
        if (i < r.kept_count)
            return make_uint2((unsigned)(r.kept_rows[i] < 0 ? r.n : r.kept_rows[i]), (unsigned)i);
        const gpunn__row_keys tokens = {r};
        const uint2           key = tokens(s, 0, i - r.kept_count);
        return make_uint2(key.x, key.y + (unsigned)r.kept_count);
    }
} gpunn__entry_keys;

/* Zeroes the rows that no token refers to. A warp searches for each row. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__rows_zero_kernel(const gpunn__rows r)
{
    GPUNN__FOLLOW();
    unsigned lane = threadIdx.x & 31;
    int64_t  row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) >> 5,
            step = (int64_t)gridDim.x * blockDim.x >> 5;
    for (; row < r.n; row += step) {
        int64_t low = 0, high = r.count;
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if ((int64_t)r.sorted[middle].x < row)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < r.count && (int64_t)r.sorted[low].x == row) continue;
        for (int64_t column = lane; column < r.outer * r.width; column += 32)
            gpunn__store(r.to, r.to_type, gpunn__rows_place(r, r.n, row, column), 0);
    }
}

/* The end of the run of sorted elements that have the same key as element i. */
__device__ __forceinline__ int64_t gpunn__run_end(const uint2 *sorted, int64_t count, int64_t i)
{
    unsigned key = sorted[i].x;
    int64_t  step = 1;
    for (; i + step < count && sorted[i + step].x == key; step *= 2) i += step;
    while (step > 1) {
        step /= 2;
        if (i + step < count && sorted[i + step].x == key) i += step;
    }
    return i + 1;
}

/* v[j] = what element `at` adds to column + j of a sparse gradient. */
template <int N>
__device__ __forceinline__ void gpunn__entry_load(const gpunn__rows &r, int64_t at, int64_t column, float *v)
{
    if (at < r.kept_count)
        gpunn__strided_load<N>(r.kept, GPUNN_F32, at * r.width + column, 1, v);
    else
        gpunn__strided_load<N>(r.from, r.from_type, (at - r.kept_count) * r.width + column, 1, v);
}

/* sum[j] = the sum of the gradients of column + j over `count` tokens: first, first + step, .. */
template <int N, bool SPARSE>
__device__ __forceinline__ void gpunn__rows_add(const gpunn__rows &r, int64_t first, unsigned count,
                                                unsigned step, int64_t column, float *sum)
{
    const uint2 *token = r.sorted + first;
#pragma unroll
    for (int j = 0; j < N; j++) sum[j] = 0;
#pragma unroll(N > 1 ? 2 : 4)
    for (unsigned i = 0; i < count; i++, token += step) {
        float      v[N];
        const bool there = token->y != UINT32_MAX;
        if (SPARSE)
            gpunn__entry_load<N>(r, token->y, column, v);
        else
            gpunn__strided_load<N>(r.from, r.from_type,
                                   gpunn__rows_place(r, r.count, there ? token->y : 0, column), 1, v);
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] += there ? v[j] : NAN;
    }
}

/* A block of gpunn__ROWS_THREADS threads consists of groups of `across` threads, a power of 2, which share a
 * row's columns. It takes one token per group. The first token of a row handles all tokens of that row: with
 * its own group or, if they are many, with all groups together. */
enum { GPUNN__ROWS_THREADS = 512, GPUNN__ROWS_ALONE = 32 };
template <int N, bool SPARSE>
static __global__ void __launch_bounds__(GPUNN__ROWS_THREADS, 2)
    gpunn__rows_sum_kernel(const gpunn__rows r, unsigned across)
{
    GPUNN__FOLLOW();
    __shared__ float part[N][GPUNN__ROWS_THREADS];
    const int64_t    columns = r.outer * r.width;
    unsigned         groups = GPUNN__ROWS_THREADS / across, group = threadIdx.x / across;
    int64_t          start = (int64_t)(threadIdx.x & (across - 1)) * N;
    for (int64_t base = (int64_t)blockIdx.x * groups; base < r.count; base += (int64_t)gridDim.x * groups) {
        for (unsigned g = 0; g < groups && base + g < r.count; g++) {
            int64_t first = base + g, row = r.sorted[first].x;
            if (row == r.n || (first > 0 && r.sorted[first - 1].x == row)) continue;
            unsigned count = (unsigned)(gpunn__run_end(r.sorted, r.count, first) - first);
            float    sum[N];
            if (SPARSE && threadIdx.x == 0) r.rows[first] = row;
            if (count <= GPUNN__ROWS_ALONE) {
                for (int64_t column = start; g == group && column < columns; column += (int64_t)across * N) {
                    gpunn__rows_add<N, SPARSE>(r, first, count, 1, column, sum);
                    gpunn__strided_store<N>(r.to, r.to_type,
                                            gpunn__rows_place(r, r.n, SPARSE ? first : row, column), 1, sum,
                                            r.add);
                }
                continue;
            }
            unsigned own = count / groups + (group < count % groups);
            for (int64_t offset = 0; offset < columns; offset += (int64_t)across * N) {
                int64_t column = offset + start;
                if (column < columns) gpunn__rows_add<N, SPARSE>(r, first + group, own, groups, column, sum);
#pragma unroll
                for (int j = 0; j < N; j++) part[j][threadIdx.x] = column < columns ? sum[j] : 0;
                __syncthreads();
                if (group == 0 && column < columns) {
                    for (unsigned other = 1; other < groups; other++)
#pragma unroll
                        for (int j = 0; j < N; j++) sum[j] += part[j][threadIdx.x + other * across];
                    gpunn__strided_store<N>(r.to, r.to_type,
                                            gpunn__rows_place(r, r.n, SPARSE ? first : row, column), 1, sum,
                                            r.add);
                }
                __syncthreads();
            }
        }
    }
}

template <bool SPARSE> static gpunn_status gpunn__rows_sum(gpunn__cuda *cuda, const gpunn__rows *r)
{
    const int pack = r->width % GPUNN__PACK == 0 ? GPUNN__PACK : 1;
    unsigned  across = 1;
    while (across < GPUNN__ROWS_THREADS && (int64_t)across * pack < r->outer * r->width) across *= 2;
    const unsigned blocks = gpunn__blocks(cuda, r->count * across, 1);
    if (pack > 1)
        return GPUNN__LAUNCH(cuda, (gpunn__rows_sum_kernel<GPUNN__PACK, SPARSE>), blocks, GPUNN__ROWS_THREADS,
                             *r, across);
    return GPUNN__LAUNCH(cuda, (gpunn__rows_sum_kernel<1, SPARSE>), blocks, GPUNN__ROWS_THREADS, *r, across);
}

static gpunn_status gpunn__rows_backward(gpunn__cuda *cuda, gpunn__rows *r, gpunn__sorting *s,
                                         void *workspace)
{
    const gpunn__row_keys keys = {*r};
    GPUNN__TRY(gpunn__sort(cuda, s, workspace, keys, r->n));
    r->sorted = s->sorted;
    if (!r->add)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__rows_zero_kernel, gpunn__blocks(cuda, r->n * 32, 1),
                                 GPUNN__THREADS, *r));
    return gpunn__rows_sum<false>(cuda, r);
}

/* The sparse gradient of a table. Earlier entries that it adds to are first copied to the workspace. */
static gpunn_status gpunn__entries_backward(gpunn__cuda *cuda, gpunn_step *step, gpunn__rows *r,
                                            gpunn__arena *arena, bool prepares)
{
    const gpunn_value *gradient = &step->grad_in[1];
    const int64_t      capacity = gradient->dim[0];
    gpunn__sorting     s = gpunn__sorting_of(cuda, 1, r->count + capacity);
    void *const        sorts = gpunn__arena_take(arena, gpunn__sort_workspace(&s));
    float *const       kept = (float *)gpunn__arena_take(arena, gpunn__bytes(GPUNN_F32, gradient->count));
    int64_t *const     kept_rows = (int64_t *)gpunn__arena_take(arena, (size_t)capacity * sizeof *kept_rows);
    step->workspace_bytes = arena->bytes;
    if (r->count + capacity > UINT32_MAX)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "%lld rows are too many for a sparse gradient; the limit is 2^32 - 1 at once",
                                (long long)r->count);
    if (prepares) return GPUNN_OK;
    r->rows = gpunn__sparse_rows(gradient->data, gradient->count);
    if (r->add) {
        GPUNN__CUDA(cuda, cudaMemcpyAsync(kept, r->to, gpunn__bytes(GPUNN_F32, gradient->count),
                                          cudaMemcpyDeviceToDevice, cuda->stream));
        GPUNN__CUDA(cuda, cudaMemcpyAsync(kept_rows, r->rows, (size_t)capacity * sizeof *kept_rows,
                                          cudaMemcpyDeviceToDevice, cuda->stream));
        r->kept = kept;
        r->kept_rows = kept_rows;
        r->kept_count = capacity;
        r->count += capacity;
        r->add = false;
    }
    GPUNN__CUDA(cuda, cudaMemsetAsync(r->to, 0, gpunn__bytes(GPUNN_F32, gradient->count), cuda->stream));
    GPUNN__CUDA(cuda, cudaMemsetAsync(r->rows, 0xFF, (size_t)capacity * sizeof *r->rows, cuda->stream));
    s = gpunn__sorting_of(cuda, 1, r->count);
    const gpunn__entry_keys keys = {*r};
    GPUNN__TRY(gpunn__sort(cuda, &s, sorts, keys, r->n));
    r->sorted = s.sorted;
    return gpunn__rows_sum<true>(cuda, r);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_add_rows(gpunn__cuda *cuda, gpunn_step *step, const int64_t *rows,
                                                  const float *terms, int64_t count, gpunn__arena *arena,
                                                  bool prepares)
{
    gpunn__rows r;
    memset(&r, 0, sizeof r);
    r.index = rows;
    r.index_type = GPUNN_I64;
    r.from = terms;
    r.from_type = r.to_type = GPUNN_F32;
    r.to = step->grad_in[1].data;
    r.count = count;
    r.n = step->in[1].dim[0];
    r.width = step->in[1].dim[1];
    r.outer = 1;
    r.padding = -1;
    r.add = step->accumulate[1];
    return gpunn__entries_backward(cuda, step, &r, arena, prepares);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_embedding(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *tokens = &step->in[0], *weight = &step->in[1];
    const bool         sparse = step->backward && step->attr->sparse;
    gpunn__sorting     s = gpunn__sorting_of(cuda, 1, tokens->count);
    gpunn__arena       arena = {(char *)step->workspace, 0};
    gpunn__rows        r;
    memset(&r, 0, sizeof r);
    r.count = tokens->count;
    if (action == GPUNN__PREPARE) {
        if (tokens->count > UINT32_MAX)
            return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                    "%lld tokens are too many for the GPU; the limit is 2^32 - 1 at once",
                                    (long long)tokens->count);
        if (sparse) return gpunn__entries_backward(cuda, step, &r, &arena, true);
        if (step->backward) step->workspace_bytes = gpunn__sort_workspace(&s);
        return GPUNN_OK;
    }
    if (gpunn__is_blocks(weight->dtype)) {
        const gpunn__block_rows rows = {weight->data,   tokens->data,  tokens->dtype,  step->out.dtype,
                                        step->out.data, tokens->count, weight->dim[0], weight->dim[1]};
        return gpunn__cuda_block_rows(cuda, weight->dtype, &rows);
    }
    r.index = tokens->data;
    r.index_type = tokens->dtype;
    r.n = weight->dim[0];
    r.width = weight->dim[1];
    r.outer = 1;
    r.padding = step->attr->ignore_index;
    const gpunn_value *from = step->backward ? &step->grad_out : weight,
                      *to = step->backward ? &step->grad_in[1] : &step->out;
    r.from = from->data;
    r.from_type = from->dtype;
    r.to = to->data;
    r.to_type = to->dtype;
    if (step->backward) {
        r.add = step->accumulate[1];
        return sparse ? gpunn__entries_backward(cuda, step, &r, &arena, false)
                      : gpunn__rows_backward(cuda, &r, &s, step->workspace);
    }
    if (r.width % GPUNN__PACK == 0)
        return GPUNN__LAUNCH(cuda, (gpunn__rows_kernel<GPUNN__PACK>),
                             gpunn__blocks(cuda, r.count * r.width, GPUNN__PACK), GPUNN__THREADS, r);
    return GPUNN__LAUNCH(cuda, (gpunn__rows_kernel<1>), gpunn__blocks(cuda, r.count * r.width, 1),
                         GPUNN__THREADS, r);
}

/* ---- gather: y[o][j][i] = x[o][index[o][j][i]][i]; scatter_add is its transpose ------------------------- *
 * The backward pass has four ways. Indices that apply to all
 * rows are sorted once, as an embedding's tokens. If the indices of a row [o][..][i] are few, each element
 * of dx searches them. Otherwise they are sorted: each row by a block or, if longer, all rows together in
 * memory. Then each run of equal indices is summed. Sums follow the order of the indices. In memory, a block
 * sums runs longer than GPUNN__RUN_ALONE, in an order that depends only on the indices. An index out of range
 * yields NaN (0 for integers): in the result of gather, or in an element of the row to which it adds. */

enum { GPUNN__GATHER_FEW = 64, GPUNN__GATHER_ROW = 1024, GPUNN__RUN_ALONE = 32 };
typedef struct gpunn__gather {
    const void *x, *gradient, *index, *base; /* base: what dx adds to; NULL: nothing */
    void       *y, *dx;
    gpunn_dtype x_type, gradient_type, index_type, base_type, y_type, dx_type;
    int64_t     outer, m, n, inner;
    bool        add, whole; /* add: y accumulates; whole: integers */
    bool        slices;     /* index is [m] and applies to all rows */
} gpunn__gather;

/* Index number j of row [o][..][column]. */
__device__ __forceinline__ int64_t gpunn__gather_index(const gpunn__gather &g, int64_t o, int64_t j,
                                                       int64_t column)
{
    return gpunn__integer(g.index, g.index_type, g.slices ? j : (o * g.m + j) * g.inner + column);
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__gather_forward_kernel(const gpunn__gather g)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < g.outer * g.m * g.inner; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = gpunn__quotient(i, g.inner), o = gpunn__quotient(row, g.m), column = i - row * g.inner;
        int64_t at = gpunn__gather_index(g, o, row - o * g.m, column);
        bool    there = at >= 0 && at < g.n;
        int64_t from = (o * g.n + at) * g.inner + column;
        if (g.whole) {
            gpunn__put_integer(g.y, g.y_type, i, there ? gpunn__integer(g.x, g.x_type, from) : 0);
            continue;
        }
        float value = there ? gpunn__load(g.x, g.x_type, from) : NAN;
        gpunn__store(g.y, g.y_type, i, g.add ? gpunn__load(g.y, g.y_type, i) + value : value);
    }
}

/* The initial value of the sum of an element of dx. */
__device__ __forceinline__ float gpunn__gather_base(const gpunn__gather &g, int64_t i)
{
    return g.base ? gpunn__load(g.base, g.base_type, i) : 0;
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__gather_few_kernel(const gpunn__gather g)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < g.outer * g.n * g.inner; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = gpunn__quotient(i, g.inner), o = gpunn__quotient(row, g.n);
        int64_t from = o * g.m * g.inner + (i - row * g.inner);
        float   sum = gpunn__gather_base(g, i);
        for (int64_t j = 0; j < g.m; j++, from += g.inner) {
            int64_t k = gpunn__gather_index(g, o, j, i - row * g.inner);
            if (k < 0 || k >= g.n) sum = NAN;
            if (k == row - o * g.n) sum += gpunn__load(g.gradient, g.gradient_type, from);
        }
        gpunn__store(g.dx, g.dx_type, i, sum);
    }
}

/* The element that index i refers to, or its row's first element if it is out of range (*there is false).
 * *number receives the index's position in its row. */
__device__ __forceinline__ int64_t gpunn__gather_place(const gpunn__gather &g, int64_t i, int64_t *number,
                                                       bool *there)
{
    const int64_t row = gpunn__quotient(i, g.inner), o = gpunn__quotient(row, g.m),
                  at = gpunn__integer(g.index, g.index_type, i);
    *number = row - o * g.m;
    *there = at >= 0 && at < g.n;
    return (o * g.n + (*there ? at : 0)) * g.inner + (i - row * g.inner);
}

/* What index i adds. UINT32_MAX stands for an index out of range. */
__device__ __forceinline__ float gpunn__gather_term(const gpunn__gather &g, unsigned i, int64_t first,
                                                    int64_t stride)
{
    return i == UINT32_MAX ? NAN : gpunn__load(g.gradient, g.gradient_type, first + i * stride);
}

/* A block sorts the indices of a row by (place, number). It sorts complements in descending order. */
static __global__ void __launch_bounds__(GPUNN__GATHER_ROW / 2)
    gpunn__gather_row_kernel(const gpunn__gather g, unsigned size)
{
    GPUNN__FOLLOW();
    __shared__ unsigned long long code[GPUNN__GATHER_ROW];
    for (int64_t unit = blockIdx.x; unit < g.outer * g.inner; unit += gridDim.x) {
        const int64_t o = gpunn__quotient(unit, g.inner), column = unit - o * g.inner;
        const int64_t to = o * g.n * g.inner + column, from = o * g.m * g.inner + column;
        for (unsigned j = threadIdx.x; j < size; j += blockDim.x) {
            const int64_t at = j < g.m ? gpunn__integer(g.index, g.index_type, from + j * g.inner) : 0;
            const bool    there = at >= 0 && at < g.n;
            const unsigned long long key = there ? (unsigned long long)at << 32 | j : UINT32_MAX;
            code[j] = j < g.m ? ~key : 0;
        }
        gpunn__block_sort(code, size);
        for (unsigned j = threadIdx.x; j < g.m; j += blockDim.x) {
            const unsigned at = ~(unsigned)(code[j] >> 32);
            if (j > 0 && ~(unsigned)(code[j - 1] >> 32) == at) continue;
            float sum = gpunn__gather_base(g, to + at * g.inner);
            for (unsigned i = j; i < g.m && ~(unsigned)(code[i] >> 32) == at; i++)
                sum += gpunn__gather_term(g, ~(unsigned)code[i], from, g.inner);
            gpunn__store(g.dx, g.dx_type, to + at * g.inner, sum);
        }
        __syncthreads();
    }
}

/* The pairs of all rows: (element of dx, number of the index). */
typedef struct gpunn__gather_keys {
    gpunn__gather    g;
    __device__ uint2 operator()(const gpunn__sorting &, int64_t, int64_t i) const
    {
        int64_t        number;
        bool           there;
        const unsigned at = (unsigned)gpunn__gather_place(g, i, &number, &there);
        return make_uint2(at, there ? (unsigned)i : UINT32_MAX);
    }
} gpunn__gather_keys;

/* A thread sums the run that its element starts, or leaves a long run to the whole block. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__gather_runs_kernel(const gpunn__gather g, const uint2 *sorted, int64_t count)
{
    GPUNN__FOLLOW();
    __shared__ int64_t            run[GPUNN__THREADS / GPUNN__RUN_ALONE + 1];
    __shared__ unsigned long long runs;
    for (int64_t base = (int64_t)blockIdx.x * blockDim.x; base < count;
         base += (int64_t)gridDim.x * blockDim.x) {
        if (threadIdx.x == 0) runs = 0;
        __syncthreads();
        const int64_t first = base + threadIdx.x;
        const bool    begins = first < count && (first == 0 || sorted[first - 1].x != sorted[first].x);
        const int64_t end = begins ? gpunn__run_end(sorted, count, first) : first;
        if (end - first > GPUNN__RUN_ALONE)
            run[atomicAdd(&runs, 1ull)] = first;
        else if (begins) {
            float sum = gpunn__gather_base(g, sorted[first].x);
            for (int64_t i = first; i < end; i++) sum += gpunn__gather_term(g, sorted[i].y, 0, 1);
            gpunn__store(g.dx, g.dx_type, sorted[first].x, sum);
        }
        __syncthreads();
        for (unsigned r = 0; r < runs; r++) {
            const int64_t last = gpunn__run_end(sorted, count, run[r]), at = sorted[run[r]].x;
            float         sum = 0;
            for (int64_t i = run[r] + threadIdx.x; i < last; i += blockDim.x)
                sum += gpunn__gather_term(g, sorted[i].y, 0, 1);
            sum = gpunn__block_reduce(sum, gpunn__add());
            if (threadIdx.x == 0) gpunn__store(g.dx, g.dx_type, at, gpunn__gather_base(g, at) + sum);
        }
        __syncthreads();
    }
}

/* Describes the rows and indices. The shape is that of gather's result or of scatter_add's src. */
static gpunn__gather gpunn__gather_of(const gpunn_step *step, const gpunn__along *a, const gpunn_value *index)
{
    gpunn__gather g;
    memset(&g, 0, sizeof g);
    g.n = a->n;
    g.inner = a->inner;
    g.outer = a->rows / a->inner;
    g.m = index->dim[step->attr->axis];
    g.slices = index->count < a->rows * g.m;
    g.index = index->data;
    g.index_type = index->dtype;
    return g;
}

/* GPUNN__PREPARE for gpunn__gather_back. */
static gpunn_status gpunn__gather_prepare(gpunn__cuda *cuda, gpunn_step *step, const gpunn__gather *g)
{
    const int64_t count = g->slices ? g->m : g->outer * g->m * g->inner,
                  places = g->slices ? g->n : g->outer * g->n * g->inner;
    if (g->m <= (!g->slices && g->n <= UINT32_MAX ? GPUNN__GATHER_ROW : GPUNN__GATHER_FEW)) return GPUNN_OK;
    if (count > UINT32_MAX || places > UINT32_MAX)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "%lld indices into %lld elements are too many; the GPU can add 2^32 - 1 of "
                                "each at once, so split axis %d",
                                (long long)count, (long long)places, step->attr->axis);
    const gpunn__sorting s = gpunn__sorting_of(cuda, 1, count);
    step->workspace_bytes = gpunn__sort_workspace(&s);
    return GPUNN_OK;
}

/* Adds slices of the gradient to those of dx. */
static gpunn_status gpunn__gather_slices(gpunn__cuda *cuda, const gpunn__gather *g, void *workspace)
{
    gpunn__sorting s = gpunn__sorting_of(cuda, 1, g->m);
    gpunn__rows    r;
    memset(&r, 0, sizeof r);
    r.index = g->index;
    r.index_type = g->index_type;
    r.count = g->m;
    r.n = g->n;
    r.width = g->inner;
    r.outer = g->outer;
    r.padding = -1;
    r.from = g->gradient;
    r.from_type = g->gradient_type;
    r.to = g->dx;
    r.to_type = g->dx_type;
    r.add = g->base != NULL;
    r.spoils = true;
    return gpunn__rows_backward(cuda, &r, &s, workspace);
}

/* dx = base plus what the indices add to it. */
static gpunn_status gpunn__gather_back(gpunn__cuda *cuda, const gpunn__gather *g, void *workspace)
{
    const int64_t rows = g->outer * g->inner, count = rows * g->m;
    const bool    few = g->m <= GPUNN__GATHER_FEW;
    gpunn__gather start = *g;
    if (!few) start.m = 0; /* elements that no index refers to equal the base */
    if (few || (g->base != g->dx && !(g->slices && g->base == NULL)))
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__gather_few_kernel, gpunn__blocks(cuda, rows * g->n, 1),
                                 GPUNN__THREADS, start));
    if (few) return GPUNN_OK;
    if (g->slices) return gpunn__gather_slices(cuda, g, workspace);
    if (g->m <= GPUNN__GATHER_ROW) {
        const int size = gpunn__power_of_2(g->m, GPUNN__GATHER_ROW);
        return GPUNN__LAUNCH(cuda, gpunn__gather_row_kernel, gpunn__blocks(cuda, rows * GPUNN__THREADS, 1),
                             (unsigned)size / 2, *g, (unsigned)size);
    }
    gpunn__sorting           s = gpunn__sorting_of(cuda, 1, count);
    const gpunn__gather_keys keys = {*g};
    GPUNN__TRY(gpunn__sort(cuda, &s, workspace, keys, rows * g->n - 1));
    return GPUNN__LAUNCH(cuda, gpunn__gather_runs_kernel, gpunn__blocks(cuda, count, 1), GPUNN__THREADS, *g,
                         s.sorted, count);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_gather(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    gpunn__along  a = gpunn__along_axis(cuda, step, step->attr->axis);
    gpunn__gather g = gpunn__gather_of(step, &a, &step->in[1]);
    if (action == GPUNN__PREPARE) return step->backward ? gpunn__gather_prepare(cuda, step, &g) : GPUNN_OK;
    if (step->backward) {
        g.gradient = a.gradient;
        g.gradient_type = a.gradient_type;
        g.dx = a.out;
        g.dx_type = g.base_type = a.out_type;
        g.base = a.add ? a.out : NULL;
        return gpunn__gather_back(cuda, &g, step->workspace);
    }
    g.x = a.x;
    g.x_type = a.x_type;
    g.y = a.out;
    g.y_type = a.out_type;
    g.whole = !gpunn__is_float(g.x_type);
    return GPUNN__LAUNCH(cuda, gpunn__gather_forward_kernel, gpunn__blocks(cuda, step->out.count, 1),
                         GPUNN__THREADS, g);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_scatter_add(gpunn__cuda *cuda, gpunn_step *step,
                                                     gpunn__action action)
{
    if (step->backward && step->grad_in[0].data) {
        gpunn_status status = gpunn__cuda_expand(cuda, step, action);
        if (status != GPUNN_OK) return status;
    }
    gpunn__along  a = gpunn__along_axis(cuda, step, step->attr->axis);
    gpunn__gather g = gpunn__gather_of(step, &a, &step->in[1]);
    if (action == GPUNN__PREPARE) return step->backward ? GPUNN_OK : gpunn__gather_prepare(cuda, step, &g);
    if (step->backward) {
        if (!step->grad_in[2].data) return GPUNN_OK;
        g.x = a.gradient;
        g.x_type = a.gradient_type;
        g.y = step->grad_in[2].data;
        g.y_type = step->grad_in[2].dtype;
        g.add = step->accumulate[2];
        return GPUNN__LAUNCH(cuda, gpunn__gather_forward_kernel, gpunn__blocks(cuda, step->in[2].count, 1),
                             GPUNN__THREADS, g);
    }
    g.base = a.x;
    g.base_type = a.x_type;
    g.gradient = step->in[2].data;
    g.gradient_type = step->in[2].dtype;
    g.dx = a.out;
    g.dx_type = a.out_type;
    return gpunn__gather_back(cuda, &g, step->workspace);
}

/* ---- scatter: finds the last index that refers to each element, counted from 1; 0: none ----------------- *
 * An index out of range refers to its row's first element, as the largest
 * number, and makes it NaN (0 for integers). */

typedef unsigned long long gpunn__last;

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__scatter_last_kernel(const gpunn__gather g, gpunn__last *last)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, number;
    bool    there;
    for (; i < g.outer * g.m * g.inner; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t at = gpunn__gather_place(g, i, &number, &there);
        (void)atomicMax(&last[at], there ? (gpunn__last)number + 1 : ~(gpunn__last)0);
    }
}

/* Forward: the result from x and src, which is `gradient`. Backward: x's gradient from that of the result,
 * which is `x`. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__scatter_kernel(const gpunn__gather g, const gpunn__last *last, bool backward)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < g.outer * g.n * g.inner; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = gpunn__quotient(i, g.inner), o = gpunn__quotient(row, g.n),
                      number = (int64_t)last[i] - 1;
        const int64_t from = (o * g.m + number) * g.inner + (i - row * g.inner);
        const bool    bad = last[i] == ~(gpunn__last)0;
        if (g.whole) {
            const int64_t value = bad          ? 0
                                  : number < 0 ? gpunn__integer(g.x, g.x_type, i)
                                               : gpunn__integer(g.gradient, g.gradient_type, from);
            gpunn__put_integer(g.y, g.y_type, i, value);
            continue;
        }
        float value = 0;
        if (bad)
            value = NAN;
        else if (number < 0)
            value = gpunn__load(g.x, g.x_type, i);
        else if (!backward)
            value = gpunn__load(g.gradient, g.gradient_type, from);
        gpunn__store(g.y, g.y_type, i, g.add ? gpunn__load(g.y, g.y_type, i) + value : value);
    }
}

/* The gradient of src. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__scatter_back_kernel(const gpunn__gather g, const gpunn__last *last)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, number;
    bool    there;
    for (; i < g.outer * g.m * g.inner; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t at = gpunn__gather_place(g, i, &number, &there);
        const float value = there && last[at] == (gpunn__last)number + 1 ? gpunn__load(g.x, g.x_type, at) : 0;
        gpunn__store(g.y, g.y_type, i, g.add ? gpunn__load(g.y, g.y_type, i) + value : value);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_scatter(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *x = &step->in[0], *index = &step->in[1], *src = &step->in[2];
    gpunn__along       a = gpunn__along_axis(cuda, step, step->attr->axis);
    gpunn__gather      g = gpunn__gather_of(step, &a, index);
    gpunn__last       *last = (gpunn__last *)step->workspace;
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = (size_t)x->count * sizeof *last;
        return GPUNN_OK;
    }
    GPUNN__TRY(gpunn__cuda_fill(cuda, last, 0, (size_t)x->count * sizeof *last));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__scatter_last_kernel, gpunn__blocks(cuda, index->count, 1),
                             GPUNN__THREADS, g, last));
    g.x = step->backward ? a.gradient : a.x;
    g.x_type = step->backward ? a.gradient_type : a.x_type;
    g.gradient = src->data;
    g.gradient_type = src->dtype;
    g.whole = !gpunn__is_float(x->dtype);
    if (a.out) {
        g.y = a.out;
        g.y_type = a.out_type;
        g.add = a.add;
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__scatter_kernel, gpunn__blocks(cuda, x->count, 1),
                                 GPUNN__THREADS, g, last, step->backward));
    }
    if (!step->backward || !step->grad_in[2].data) return GPUNN_OK;
    g.y = step->grad_in[2].data;
    g.y_type = step->grad_in[2].dtype;
    g.add = step->accumulate[2];
    return GPUNN__LAUNCH(cuda, gpunn__scatter_back_kernel, gpunn__blocks(cuda, index->count, 1),
                         GPUNN__THREADS, g, last);
}

/* ---- searchsorted: places of values[rows][m] in sorted_sequence[rows][n] ------------------------------- */

typedef struct gpunn__sorted {
    gpunn_value sequence, values;
    int64_t    *places, n, m;
    bool        right, whole; /* whole: of integers */
} gpunn__sorted;

/* Whether an element comes before a value; every element comes before NaN. */
__device__ __forceinline__ bool gpunn__sorts_before(const gpunn__sorted &s, int64_t element, int64_t value)
{
    if (!s.whole) {
        const float a = gpunn__load(s.sequence.data, s.sequence.dtype, element);
        const float v = gpunn__load(s.values.data, s.values.dtype, value);
        return s.right ? !(a > v) : !(a >= v);
    }
    const int64_t a = gpunn__integer(s.sequence.data, s.sequence.dtype, element);
    const int64_t v = gpunn__integer(s.values.data, s.values.dtype, value);
    return s.right ? a <= v : a < v;
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__searchsorted_kernel(const gpunn__sorted s)
{
    GPUNN__FOLLOW();
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at < s.values.count; at += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = gpunn__quotient(at, s.m) * s.n;
        int64_t       low = 0, high = s.n;
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if (gpunn__sorts_before(s, row + middle, at))
                low = middle + 1;
            else
                high = middle;
        }
        s.places[at] = low;
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_searchsorted(gpunn__cuda *cuda, gpunn_step *step,
                                                      gpunn__action action)
{
    const gpunn_value *sequence = &step->in[0], *values = &step->in[1];
    gpunn__sorted      s = {*sequence,
                            *values,
                            (int64_t *)step->out.data,
                            sequence->dim[sequence->rank - 1],
                            values->dim[values->rank - 1],
                            step->attr->right,
                            !gpunn__is_float(values->dtype)};
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__searchsorted_kernel, gpunn__blocks(cuda, values->count, 1),
                         GPUNN__THREADS, s);
}
