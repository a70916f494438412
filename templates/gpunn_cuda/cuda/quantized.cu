#include "cuda/gemm.h"

/* ==== >>cuda/quantized =================================================================================== *
 * Ops of 8-bit numbers, with the CPU's results bit for bit. Linear layers and convolutions are products of
 * integers, A B^T. A row of A is what one result reads of x. B is the rounded weight, with a row for each
 * column of the result. Tensor cores multiply x without its zero point. The sums start at the bias minus the
 * zero point times the sum of the column instead. So padding is bytes of the zero point. */

/* ---- rounding ------------------------------------------------------------------------------------------ */

/* x rounded, plus zero, from low to high. A NaN gives low. */
__device__ __forceinline__ int gpunn__byte_of(float x, int zero, int low, int high)
{
    return min(max((int)rintf(fminf(fmaxf(x, -1000), 1000)) + zero, low), high);
}

/* sum times factor, rounded, for results of 8 bits. The product of floats has an error below 0.0002. Only
 * where that matters, doubles are needed, which are slow on many GPUs. */
__device__ __forceinline__ int gpunn__near_product(int sum, float factor)
{
    const float x = fminf(fmaxf((float)sum * factor, -1000), 1000), near = rintf(x);
    if (fabsf(x - near) < 0.4995f) return (int)near;
    return (int)rint((double)sum * (double)factor);
}

/* w / scale, rounded and saturated. */
__device__ __forceinline__ int gpunn__rounded_weight(float w, float scale)
{
    const float quotient = scale != 0 ? __fdiv_rn(w, scale) : 0;
    return quotient == quotient ? min(max((int)rintf(fminf(fmaxf(quotient, -256), 256)), -128), 127) : 0;
}

/* ---- elementwise --------------------------------------------------------------------------------------- */

typedef struct gpunn__rescale {
    const void    *x; /* floats, or bytes */
    const uint8_t *b;
    void          *y;
    gpunn_dtype    dtype; /* of the floats */
    int64_t        count;
    float          x_scale, b_scale, scale;
    int            x_zero, b_zero, zero, low, high;
} gpunn__rescale;

/* Elements i .. i + 3 of count, for i a multiple of 4. What lies beyond reads as 0. */
__device__ __forceinline__ uint32_t gpunn__load_word(const void *data, int64_t i, int64_t count)
{
    const uint8_t *x = (const uint8_t *)data + i;
    uint32_t       word = 0;
    if (i + 4 <= count) return *(const uint32_t *)x;
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (i + j < count) word |= (uint32_t)x[j] << 8 * j;
    return word;
}

__device__ __forceinline__ void gpunn__store_word(void *data, int64_t i, int64_t count, uint32_t word)
{
    uint8_t *y = (uint8_t *)data + i;
    if (i + 4 <= count) {
        *(uint32_t *)y = word;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (i + j < count) y[j] = (uint8_t)(word >> 8 * j);
}

__device__ __forceinline__ void gpunn__load_four(const gpunn__rescale &m, int64_t i, float v[4])
{
    if (i + 4 <= m.count) {
        gpunn__load4(m.x, m.dtype, i, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = i + j < m.count ? gpunn__load(m.x, m.dtype, i + j) : 0;
}

/* Rounds the floats of a block's share. */
__device__ __forceinline__ void gpunn__quantize_share(const gpunn__rescale &m)
{
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    for (; i < m.count; i += (int64_t)gridDim.x * blockDim.x * 4) {
        float    v[4];
        uint32_t word = 0;
        gpunn__load_four(m, i, v);
#pragma unroll
        for (int j = 0; j < 4; j++)
            word |= (uint32_t)gpunn__byte_of(__fdiv_rn(v[j], m.scale), m.zero, 0, 255) << 8 * j;
        gpunn__store_word(m.y, i, m.count, word);
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__quantize_kernel(const gpunn__rescale m)
{
    GPUNN__FOLLOW();
    gpunn__quantize_share(m);
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__dequantize_kernel(const gpunn__rescale m)
{
    GPUNN__FOLLOW();
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    for (; i < m.count; i += (int64_t)gridDim.x * blockDim.x * 4) {
        const uint32_t word = gpunn__load_word(m.x, i, m.count);
        float          v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = __fmul_rn((float)(gpunn__byte_at(word, j) - m.zero), m.scale);
        if (i + 4 <= m.count) gpunn__store4(m.y, m.dtype, i, v);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + 4 > m.count && i + j < m.count) gpunn__store(m.y, m.dtype, i + j, v[j]);
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__quantized_add_kernel(const gpunn__rescale m)
{
    GPUNN__FOLLOW();
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    for (; i < m.count; i += (int64_t)gridDim.x * blockDim.x * 4) {
        const uint32_t a = gpunn__load_word(m.x, i, m.count), b = gpunn__load_word(m.b, i, m.count);
        uint32_t       word = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float sum = __fadd_rn(__fmul_rn((float)(gpunn__byte_at(a, j) - m.x_zero), m.x_scale),
                                        __fmul_rn((float)(gpunn__byte_at(b, j) - m.b_zero), m.b_scale));
            word |= (uint32_t)gpunn__byte_of(__fdiv_rn(sum, m.scale), m.zero, m.low, m.high) << 8 * j;
        }
        gpunn__store_word(m.y, i, m.count, word);
    }
}

static gpunn__rescale gpunn__rescale_of(const gpunn_step *step)
{
    const gpunn_attributes *attr = step->attr;
    gpunn__rescale          m;
    memset(&m, 0, sizeof m);
    m.x = step->in[0].data;
    m.b = step->input_count > 1 ? (const uint8_t *)step->in[1].data : NULL;
    m.y = step->out.data;
    m.dtype = step->out.dtype == GPUNN_U8 ? step->in[0].dtype : step->out.dtype;
    m.count = step->out.count;
    m.x_scale = attr->x_scale, m.b_scale = attr->b_scale, m.scale = attr->scale;
    m.x_zero = attr->x_zero_point, m.b_zero = attr->b_zero_point, m.zero = attr->zero_point;
    m.low = attr->quant_min, m.high = attr->quant_max;
    return m;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_quantize_per_tensor(gpunn__cuda *cuda, gpunn_step *step,
                                                             gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__quantize_kernel, gpunn__blocks(cuda, step->out.count, 4),
                         GPUNN__THREADS, gpunn__rescale_of(step));
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_dequantize(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__dequantize_kernel, gpunn__blocks(cuda, step->out.count, 4),
                         GPUNN__THREADS, gpunn__rescale_of(step));
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_quantized_add(gpunn__cuda *cuda, gpunn_step *step,
                                                       gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__quantized_add_kernel, gpunn__blocks(cuda, step->out.count, 4),
                         GPUNN__THREADS, gpunn__rescale_of(step));
}

/* ---- linear layers and convolutions -------------------------------------------------------------------- */

/* A block computes tiles of 64 rows and 64 columns, over 64 numbers at a time. PITCH: words from a row of a
 * tile to the next in shared memory, such that eight rows lie in different banks. */
enum { GPUNN__BYTE_TILE = 64, GPUNN__BYTE_PITCH = 20, GPUNN__BYTE_THREADS = 128, GPUNN__BYTE_ROWS = 16 };

/* A linear layer is a convolution of images with one cell. */
typedef struct gpunn__int8 {
    int64_t n, rows;              /* rows: n oh ow */
    int     h, w, c, oh, ow, out; /* x [n][h][w][c] -> y [n][oh][ow][out] */
    int     groups, in, columns;  /* in, columns: of a group */
    int     kernel[2], stride[2], padding[2], dilation[2];
    int     k, pitch;  /* numbers of a row of A; bytes from a row of B to the next */
    bool    depthwise; /* B is transposed, [k][pitch] */
    bool    whole;     /* A is x itself */
    int8_t *packed;    /* B */
    /* by column: sum of its weights; where its sums start; what they are multiplied by */
    int           *total, *start;
    float         *factor;
    const uint8_t *x;
    void          *y;    /* U8, or F32 with bias */
    const void    *bias; /* F32 results: is added to them */
    gpunn_dtype    bias_dtype;
    int            x_zero, zero, low, high;
} gpunn__int8;

static int gpunn__whole_tiles(int64_t count)
{
    return (int)((count + GPUNN__BYTE_TILE - 1) / GPUNN__BYTE_TILE);
}

/* The part of g that does not depend on whether it is a convolution. */
static void gpunn__int8_finish(gpunn__int8 *g)
{
    g->in = g->c / g->groups;
    g->columns = g->out / g->groups;
    g->k = g->kernel[0] * g->kernel[1] * g->in;
    g->rows = g->n * g->oh * g->ow;
    g->depthwise = g->in == 1 && g->columns == 1 && g->groups > 1;
    g->pitch = gpunn__whole_tiles(g->depthwise ? g->out : g->k) * GPUNN__BYTE_TILE;
    g->whole = g->k == g->c && g->stride[0] == 1 && g->stride[1] == 1 && g->padding[0] == 0 &&
               g->padding[1] == 0; /* a kernel of one cell, and one group */
}

/* A linear layer of weight [out, in]. */
static gpunn__int8 gpunn__int8_linear(const gpunn_step *step)
{
    const gpunn_value *weight = &step->in[1];
    gpunn__int8        g;
    memset(&g, 0, sizeof g);
    g.h = g.w = g.oh = g.ow = g.groups = 1;
    g.c = (int)weight->dim[1];
    g.out = (int)weight->dim[0];
    g.n = step->in[0].count / g.c;
    for (int i = 0; i < 2; i++) g.kernel[i] = g.stride[i] = g.dilation[i] = 1;
    gpunn__int8_finish(&g);
    return g;
}

static gpunn__int8 gpunn__int8_conv2d(const gpunn_step *step)
{
    const int64_t *x = step->in[0].dim, *y = step->out.dim;
    gpunn__int8    g;
    memset(&g, 0, sizeof g);
    g.n = x[0], g.c = (int)x[1], g.h = (int)x[2], g.w = (int)x[3];
    g.out = (int)y[1], g.oh = (int)y[2], g.ow = (int)y[3];
    g.groups = step->attr->groups;
    memcpy(g.kernel, step->attr->kernel, sizeof g.kernel);
    memcpy(g.stride, step->attr->stride, sizeof g.stride);
    memcpy(g.padding, step->attr->padding, sizeof g.padding);
    memcpy(g.dilation, step->attr->dilation, sizeof g.dilation);
    gpunn__int8_finish(&g);
    return g;
}

/* ---- columns: packed weights, starts and factors ---- */

/* The floats of a layer, of which its columns are made. */
typedef struct gpunn__columns {
    const void  *weight, *scale, *bias; /* weight [out][in][kh][kw], scale [out], bias [out] or NULL */
    gpunn_dtype  weight_dtype, scale_dtype, bias_dtype;
    float        x_scale, y_scale;
    const float *range; /* [ranges][2], of x and 0, both upwards: -least and most; NULL: x_scale is known */
    int          ranges;
} gpunn__columns;

/* Sets start and factor of column o. */
__device__ __forceinline__ void gpunn__set_column(const gpunn__int8 &g, const gpunn__columns &from, int o,
                                                  float x_scale, int x_zero)
{
    const float  unit = __fmul_rn(x_scale, gpunn__load(from.scale, from.scale_dtype, o));
    const float  bias = from.bias && unit != 0 ? __fdiv_rn(gpunn__load(from.bias, from.bias_dtype, o), unit)
                                               : 0;
    const double most = 1 << 30;
    g.start[o] = (int)rint(fmin(fmax((double)bias, -most), most)) - x_zero * g.total[o];
    g.factor[o] = __fdiv_rn(unit, from.y_scale);
}

/* Number k of a column of scale `scale`. k runs over kh, kw, in. */
__device__ __forceinline__ int gpunn__weight_at(const gpunn__int8 &g, const gpunn__columns &from, int o,
                                                int k, float scale)
{
    const int     cells = g.kernel[0] * g.kernel[1], cell = k / g.in;
    const int64_t at = (int64_t)o * g.k + (int64_t)(k - cell * g.in) * cells + cell;
    return gpunn__rounded_weight(gpunn__load(from.weight, from.weight_dtype, at), scale);
}

/* Rounds and packs the weight. A block packs a column after another. */
static __global__ void __launch_bounds__(GPUNN__THREADS, 4)
    gpunn__int8_pack_kernel(const gpunn__int8 g, const gpunn__columns from)
{
    GPUNN__FOLLOW();
    for (int o = (int)blockIdx.x; o < g.out; o += (int)gridDim.x) {
        const float scale = gpunn__load(from.scale, from.scale_dtype, o);
        int         sum = 0;
        for (int k = (int)threadIdx.x; k < (g.depthwise ? g.k : g.pitch); k += (int)blockDim.x) {
            const int q = k < g.k ? gpunn__weight_at(g, from, o, k, scale) : 0;
            g.packed[g.depthwise ? (int64_t)k * g.pitch + o : (int64_t)o * g.pitch + k] = (int8_t)q;
            sum += q;
        }
        sum = gpunn__block_reduce(sum, gpunn__add());
        if (threadIdx.x > 0) continue;
        g.total[o] = sum;
        if (from.range == NULL) gpunn__set_column(g, from, o, from.x_scale, g.x_zero);
    }
}

/* ---- results ---- */

/* Numbers as they are added by 32-bit registers, which wrap around. */
__device__ __forceinline__ int gpunn__wrapped_sum(int a, int b)
{
    return (int)((unsigned)a + (unsigned)b);
}

/* The byte of a sum of column o. */
__device__ __forceinline__ uint32_t gpunn__byte_of_sum(const gpunn__int8 &g, int o, int sum)
{
    const int near = gpunn__near_product(gpunn__wrapped_sum(sum, g.start[o]), g.factor[o]);
    return (uint32_t)min(max(near + g.zero, g.low), g.high);
}

__device__ __forceinline__ void gpunn__store_sum(const gpunn__int8 &g, int64_t row, int o, int sum)
{
    const int64_t at = row * g.out + o;
    if (g.bias)
        ((float *)g.y)[at] = __fadd_rn(__fmul_rn((float)gpunn__wrapped_sum(sum, g.start[o]), g.factor[o]),
                                       gpunn__load(g.bias, g.bias_dtype, o));
    else
        ((uint8_t *)g.y)[at] = (uint8_t)gpunn__byte_of_sum(g, o, sum);
}

/* ---- tiles on tensor cores ---- */

#ifndef GPUNN__MMA_BYTES
/* sum += a b for 16 rows by 8 columns and 32 numbers. Those of a have no sign. Lane l holds words l % 4 and
 * l % 4 + 4 of row l / 4 of a, in a[0] and a[2], and of row l / 4 + 8, in a[1] and a[3]. It holds the same
 * words of column l / 4 of b. Of the sums it holds columns l % 4 * 2 and l % 4 * 2 + 1 of both rows. Source:
 * PTX ISA, matrix fragments for mma.m16n8k32 and mma.m8n8k16. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 750
#define GPUNN__MMA_BYTES(sum, a, b) __trap() /* never launched: such a GPU is refused */
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define GPUNN__MMA_BYTES_HALF(sum, first, a, b)                                                   \
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" \
                 : "+r"(sum[first]), "+r"(sum[first + 1])                                         \
                 : "r"(a), "r"(b))
#define GPUNN__MMA_BYTES(sum, a, b)                \
    do {                                           \
        GPUNN__MMA_BYTES_HALF(sum, 0, a[0], b[0]); \
        GPUNN__MMA_BYTES_HALF(sum, 0, a[2], b[1]); \
        GPUNN__MMA_BYTES_HALF(sum, 2, a[1], b[0]); \
        GPUNN__MMA_BYTES_HALF(sum, 2, a[3], b[1]); \
    } while (0)
#else
#define GPUNN__MMA_BYTES(sum, a, b)                                                                     \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
                 "{%8, %9}, {%0, %1, %2, %3};"                                                          \
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#endif
#endif

/* What a row of A reads of its group. A row outside A has no cell inside the image. */
typedef struct gpunn__image_place {
    const uint8_t *image;
    int            top, left; /* of the kernel's first cell */
} gpunn__image_place;

__device__ __forceinline__ gpunn__image_place gpunn__image_place_of(const gpunn__int8 &g, int64_t row,
                                                                    int group)
{
    const int64_t      line = gpunn__quotient(row, g.ow), image = gpunn__quotient(line, g.oh);
    gpunn__image_place at;
    at.image = g.x + image * g.h * g.w * g.c + group * g.in;
    at.top = row < g.rows ? (int)(line - image * g.oh) * g.stride[0] - g.padding[0] : -(1 << 30);
    at.left = (int)(row - line * g.ow) * g.stride[1] - g.padding[1];
    return at;
}

/* 16 numbers of a row of A from k on. A load takes WIDTH numbers, which lie in one cell. */
template <int WIDTH>
__device__ __forceinline__ uint4 gpunn__load_numbers(const gpunn__int8 &g, const gpunn__image_place &at,
                                                     int k)
{
    const uint32_t outside = (uint32_t)g.x_zero * 0x01010101u;
    int            cell = k / g.in, channel = k - cell * g.in;
    int            ky = cell / g.kernel[1], kx = cell - ky * g.kernel[1];
    uint32_t       word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 16; j += WIDTH) {
        const int     y = at.top + ky * g.dilation[0], x = at.left + kx * g.dilation[1];
        const bool    inside = k + j < g.k && y >= 0 && y < g.h && x >= 0 && x < g.w;
        const int64_t from = ((int64_t)y * g.w + x) * g.c + channel;
        if (WIDTH == 16)
            return inside ? *(const uint4 *)(at.image + from)
                          : make_uint4(outside, outside, outside, outside);
        if (WIDTH == 4)
            word[j / 4] = inside ? *(const uint32_t *)(at.image + from) : outside;
        else
            word[j / 4] |= (inside ? at.image[from] : (uint32_t)g.x_zero) << 8 * (j % 4);
        if ((channel += WIDTH) < g.in) continue;
        channel = 0;
        if (++kx == g.kernel[1]) kx = 0, ky++;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

typedef uint32_t gpunn__byte_tile[GPUNN__BYTE_TILE][GPUNN__BYTE_PITCH];

/* Adds the products of two tiles to a warp's sums, of 32 rows by 32 columns from (i, j) on. */
__device__ __forceinline__ void gpunn__multiply_tiles(const gpunn__byte_tile &a, const gpunn__byte_tile &b,
                                                      int i, int j, int (&sum)[2][4][4])
{
    const int row = (int)threadIdx.x % 32 / 4, word = (int)threadIdx.x % 4;
#pragma unroll
    for (int k = word; k < GPUNN__BYTE_TILE / 4; k += 8) {
        unsigned own[2][4], other[4][2];
#pragma unroll
        for (int m = 0; m < 8; m++)
            own[m / 4][m % 4] = a[i + m / 4 * 16 + m % 2 * 8 + row][k + m % 4 / 2 * 4];
#pragma unroll
        for (int n = 0; n < 8; n++) other[n / 2][n % 2] = b[j + n / 2 * 8 + row][k + n % 2 * 4];
#pragma unroll
        for (int m = 0; m < 8; m++) GPUNN__MMA_BYTES(sum[m / 4][m % 4], own[m / 4], other[m % 4]);
    }
}

/* Calls store(row, column, sum) for each of a warp's sums. */
template <class Store>
__device__ __forceinline__ void gpunn__each_sum(int i, int j, const int (&sum)[2][4][4], Store store)
{
    const int row = (int)threadIdx.x % 32 / 4, column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int e = 0; e < 32; e++)
        store(i + e / 16 * 16 + e % 4 / 2 * 8 + row, j + e / 4 % 4 * 8 + e % 2 + column,
              sum[e / 16][e / 4 % 4][e % 4]);
}

/* Stores the bytes of a tile, which `bytes` holds, from (row, column of the group) on. */
__device__ __forceinline__ void gpunn__store_tile(const gpunn__int8 &g, const gpunn__byte_tile &bytes,
                                                  int64_t row, int group, int column)
{
#pragma unroll
    for (int part = (int)threadIdx.x; part < GPUNN__BYTE_TILE * 4; part += GPUNN__BYTE_THREADS) {
        const int      i = part / 4, j = column + part % 4 * 16, left = g.columns - j;
        const uint8_t *from = (const uint8_t *)&bytes[i][part % 4 * 4];
        uint8_t       *to = (uint8_t *)g.y + (row + i) * g.out + group * g.columns + j;
        if (row + i >= g.rows || left <= 0) continue;
        if (g.columns % 16 == 0)
            *(uint4 *)to = *(const uint4 *)from;
        else
            for (int e = 0; e < 16 && e < left; e++) to[e] = from[e];
    }
}

/* Computes the tile from (first, column of the group) on. */
template <int WIDTH>
__device__ __forceinline__ void gpunn__int8_tile(const gpunn__int8 &g, int64_t first, int group, int column)
{
    __shared__ __align__(16) gpunn__byte_tile a, b;
    const int                                 thread = (int)threadIdx.x, part = thread % 4 * 16;
    const int          i = thread / 64 * 32, j = thread / 32 % 2 * 32; /* of the warp */
    const int8_t      *packed = g.packed + (int64_t)(group * g.columns + column) * g.pitch + part;
    gpunn__image_place place[2];
    uint4              own[2], other[2];
    int                sum[2][4][4] = {};
#pragma unroll
    for (int r = 0; r < 2; r++) place[r] = gpunn__image_place_of(g, first + thread / 4 + r * 32, group);
    const auto load = [&](int k) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int o = thread / 4 + r * 32;
            own[r] = gpunn__load_numbers<WIDTH>(g, place[r], k + part);
            other[r] = column + o < g.columns ? *(const uint4 *)(packed + (int64_t)o * g.pitch + k)
                                              : make_uint4(0, 0, 0, 0);
        }
    };
    load(0);
    for (int k = 0; k < g.pitch; k += GPUNN__BYTE_TILE) {
        __syncthreads(); /* the previous tiles have been read */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            *(uint4 *)&a[thread / 4 + r * 32][part / 4] = own[r];
            *(uint4 *)&b[thread / 4 + r * 32][part / 4] = other[r];
        }
        __syncthreads();
        if (k + GPUNN__BYTE_TILE < g.pitch) load(k + GPUNN__BYTE_TILE);
        gpunn__multiply_tiles(a, b, i, j, sum);
    }
    const int o = group * g.columns + column;
    if (g.bias) {
        gpunn__each_sum(i, j, sum, [&](int r, int q, int value) {
            if (first + r < g.rows && column + q < g.columns) gpunn__store_sum(g, first + r, o + q, value);
        });
        return;
    }
    __syncthreads();
    gpunn__each_sum(i, j, sum, [&](int r, int q, int value) {
        if (column + q < g.columns) ((uint8_t *)a[r])[q] = (uint8_t)gpunn__byte_of_sum(g, o + q, value);
    });
    __syncthreads();
    gpunn__store_tile(g, a, first, group, column);
}

template <int WIDTH>
static __global__ void __launch_bounds__(GPUNN__BYTE_THREADS, WIDTH == 1 ? 2 : 3)
    gpunn__int8_kernel(const gpunn__int8 g, int64_t tiles, int across)
{
    GPUNN__FOLLOW();
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int64_t row = tile / across;
        const int     column = (int)(tile - row * across), each = across / g.groups;
        gpunn__int8_tile<WIDTH>(g, row * GPUNN__BYTE_TILE, column / each, column % each * GPUNN__BYTE_TILE);
    }
}

static gpunn_status gpunn__int8_tiled(gpunn__cuda *cuda, const gpunn__int8 *g)
{
    const int      across = gpunn__whole_tiles(g->columns) * g->groups;
    const int64_t  tiles = (g->rows + GPUNN__BYTE_TILE - 1) / GPUNN__BYTE_TILE * across;
    const unsigned blocks = (unsigned)(tiles < INT32_MAX ? tiles : INT32_MAX);
    if (g->in % 16 == 0)
        return GPUNN__LAUNCH(cuda, (gpunn__int8_kernel<16>), blocks, GPUNN__BYTE_THREADS, *g, tiles, across);
    if (g->in % 4 == 0)
        return GPUNN__LAUNCH(cuda, (gpunn__int8_kernel<4>), blocks, GPUNN__BYTE_THREADS, *g, tiles, across);
    return GPUNN__LAUNCH(cuda, (gpunn__int8_kernel<1>), blocks, GPUNN__BYTE_THREADS, *g, tiles, across);
}

/* ---- few rows: a warp computes a column and reads its weight once ---- */

/* sum + the products of four numbers; those of a have no sign. */
__device__ __forceinline__ int gpunn__dot4(uint32_t a, uint32_t b, int sum)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
#else
    for (int j = 0; j < 4; j++)
        sum = gpunn__wrapped_sum(sum, gpunn__byte_at(a, j) * (int8_t)gpunn__byte_at(b, j));
#endif
    return sum;
}

template <int ROWS>
static __global__ void __launch_bounds__(GPUNN__THREADS, 2) gpunn__int8_few_kernel(const gpunn__int8 g)
{
    GPUNN__FOLLOW();
    const int lane = (int)threadIdx.x % 32, warps = (int)(gridDim.x * blockDim.x / 32);
    for (int o = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32; o < g.out; o += warps) {
        int sum[ROWS] = {}, mine = 0;
#pragma unroll 2
        for (int k = lane * 4; k < g.k; k += 128) {
            const uint32_t w = *(const uint32_t *)(g.packed + (int64_t)o * g.pitch + k);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (i < g.rows) sum[i] = gpunn__dot4(*(const uint32_t *)(g.x + i * g.c + k), w, sum[i]);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2)
                sum[i] = gpunn__wrapped_sum(sum[i], __shfl_xor_sync(0xFFFFFFFFu, sum[i], distance));
            mine = lane == i ? sum[i] : mine;
        }
        if (lane < g.rows) gpunn__store_sum(g, lane, o, mine);
    }
}

static gpunn_status gpunn__int8_few(gpunn__cuda *cuda, const gpunn__int8 *g)
{
    const unsigned blocks = gpunn__blocks(cuda, (int64_t)g->out * 32, 1);
    if (g->rows == 1) return GPUNN__LAUNCH(cuda, (gpunn__int8_few_kernel<1>), blocks, GPUNN__THREADS, *g);
    if (g->rows <= 4) return GPUNN__LAUNCH(cuda, (gpunn__int8_few_kernel<4>), blocks, GPUNN__THREADS, *g);
    return GPUNN__LAUNCH(cuda, (gpunn__int8_few_kernel<GPUNN__BYTE_ROWS>), blocks, GPUNN__THREADS, *g);
}

/* ---- depthwise: a thread computes four channels of one result ---- */

static __global__ void __launch_bounds__(GPUNN__THREADS, 4) gpunn__int8_depthwise_kernel(const gpunn__int8 g)
{
    GPUNN__FOLLOW();
    const int      quads = (g.c + 3) / 4;
    const uint32_t outside = (uint32_t)g.x_zero * 0x01010101u;
    int64_t        i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < g.rows * quads; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t            row = gpunn__quotient(i, quads);
        const int                first = (int)(i - row * quads) * 4;
        const gpunn__image_place at = gpunn__image_place_of(g, row, 0);
        const int8_t            *packed = g.packed + first;
        int                      sum[4] = {0, 0, 0, 0};
        for (int ky = 0; ky < g.kernel[0]; ky++)
            for (int kx = 0; kx < g.kernel[1]; kx++, packed += g.pitch) {
                const int      y = at.top + ky * g.dilation[0], x = at.left + kx * g.dilation[1];
                const bool     inside = y >= 0 && y < g.h && x >= 0 && x < g.w;
                const int64_t  cell = ((int64_t)y * g.w + x) * g.c;
                const uint32_t v = inside ? gpunn__load_channels(at.image, cell, first, g.c) : outside;
                const uint32_t w = *(const uint32_t *)packed;
#pragma unroll
                for (int j = 0; j < 4; j++) sum[j] += gpunn__byte_at(v, j) * (int8_t)gpunn__byte_at(w, j);
            }
        uint32_t word = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (first + j < g.c) word |= gpunn__byte_of_sum(g, first + j, sum[j]) << 8 * j;
        gpunn__store_channels(g.y, row * g.c, first, g.c, word);
    }
}

/* ---- large products: cuBLASLt ---- */

/* Sizes from which it is worth copying x and keeping the sums: an estimate. */
#ifndef GPUNN__LIBRARY_FROM
#define GPUNN__LIBRARY_FROM 512
#endif

/* The memory that such a product needs: x minus 128, which gives its bytes a sign, and the sums. */
typedef struct gpunn__int8_spare {
    int8_t  *x;    /* [rows][c]; NULL: the product is computed by tiles */
    int32_t *sums; /* [rows][out] */
} gpunn__int8_spare;

/* sums = x B^T. Their correction for the 128 follows with the columns' starts. */
static gpunn__product gpunn__int8_product(const gpunn__int8 *g, const gpunn__int8_spare *spare)
{
    gpunn__product p;
    memset(&p, 0, sizeof p);
    p.m = g->rows, p.n = g->out, p.k = g->k, p.batch = 1;
    p.transpose_b = true;
    p.lda = g->k, p.ldb = g->pitch, p.ldd = g->out;
    p.dtype = GPUNN_U8, p.d_dtype = GPUNN_I32;
    p.a = spare->x, p.b = g->packed, p.d = spare->sums;
    return p;
}

/* Whether cuBLASLt may compute it. Its rows have to be multiples of 16 bytes. */
static bool gpunn__int8_is_large(const gpunn__int8 *g)
{
    return g->whole && g->k % 16 == 0 && g->out % 16 == 0 && g->k >= GPUNN__LIBRARY_FROM &&
           g->out >= GPUNN__LIBRARY_FROM && g->rows >= GPUNN__LIBRARY_FROM;
}

static gpunn__int8_spare gpunn__int8_spare_of(const gpunn__int8 *g, gpunn__arena *arena)
{
    gpunn__int8_spare spare = {NULL, NULL};
    if (!gpunn__int8_is_large(g)) return spare;
    spare.x = (int8_t *)gpunn__arena_take(arena, (size_t)(g->rows * g->c));
    spare.sums = (int32_t *)gpunn__arena_take(arena, (size_t)(g->rows * g->out) * sizeof(int32_t));
    return spare;
}

/* count: bytes, a multiple of 16. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__int8_sign_kernel(const uint8_t *x, int8_t *to, int64_t count)
{
    GPUNN__FOLLOW();
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 16;
    for (; i < count; i += (int64_t)gridDim.x * blockDim.x * 16) {
        const uint4 v = *(const uint4 *)(x + i);
        *(uint4 *)(to + i) = make_uint4(v.x ^ 0x80808080u, v.y ^ 0x80808080u, v.z ^ 0x80808080u,
                                        v.w ^ 0x80808080u);
    }
}

/* A thread stores four results of a row. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__int8_finish_kernel(const gpunn__int8 g, const int32_t *sums)
{
    GPUNN__FOLLOW();
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    for (; i < g.rows * g.out; i += (int64_t)gridDim.x * blockDim.x * 4) {
        const int64_t row = gpunn__quotient(i, g.out);
        const int     o = (int)(i - row * g.out);
        const uint4   four = *(const uint4 *)(sums + i);
        const int     sum[4] = {(int)four.x, (int)four.y, (int)four.z, (int)four.w};
        uint32_t      word = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int whole = gpunn__wrapped_sum(sum[j], 128 * g.total[o + j]);
            if (g.bias)
                gpunn__store_sum(g, row, o + j, whole);
            else
                word |= gpunn__byte_of_sum(g, o + j, whole) << 8 * j;
        }
        if (g.bias == NULL) *(uint32_t *)((uint8_t *)g.y + i) = word;
    }
}

/* GPUNN_ERR_UNSUPPORTED if the library has no algorithm. */
static gpunn_status gpunn__int8_by_library(gpunn__cuda *cuda, const gpunn__int8 *g,
                                           const gpunn__int8_spare *spare)
{
    const gpunn__product p = gpunn__int8_product(g, spare);
    const int64_t        count = g->rows * g->c, results = g->rows * g->out;
    GPUNN__TRY(gpunn__cuda_product_prepare(cuda, &p));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__int8_sign_kernel, gpunn__blocks(cuda, count, 16), GPUNN__THREADS,
                             g->x, spare->x, count));
    GPUNN__TRY(gpunn__cuda_product(cuda, &p));
    return GPUNN__LAUNCH(cuda, gpunn__int8_finish_kernel, gpunn__blocks(cuda, results, 4), GPUNN__THREADS, *g,
                         spare->sums);
}

static gpunn_status gpunn__int8_run(gpunn__cuda *cuda, const gpunn__int8 *g, const gpunn__int8_spare *spare)
{
    if (g->depthwise)
        return GPUNN__LAUNCH(cuda, gpunn__int8_depthwise_kernel,
                             gpunn__blocks(cuda, g->rows * ((g->c + 3) / 4), 1), GPUNN__THREADS, *g);
    if (g->whole && g->c % 4 == 0 && g->rows <= GPUNN__BYTE_ROWS) return gpunn__int8_few(cuda, g);
    const gpunn_status status = spare->x ? gpunn__int8_by_library(cuda, g, spare) : GPUNN_ERR_UNSUPPORTED;
    return status == GPUNN_ERR_UNSUPPORTED ? gpunn__int8_tiled(cuda, g) : status;
}

/* ---- steps ---- */

static gpunn_status gpunn__int8_check(gpunn__cuda *cuda, const gpunn__int8 *g)
{
    if (cuda->architecture < 75)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "8-bit products need code for compute capability 7.5 or later, but this GPU "
                                "runs code for %d.%d; open a device of type GPUNN_DEVICE_CPU",
                                cuda->architecture / 10, cuda->architecture % 10);
    if (g->k <= GPUNN__MOST_PRODUCTS) return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                            "a sum of %d products may exceed 32 bits; %d products are possible", g->k,
                            GPUNN__MOST_PRODUCTS);
}

/* Takes what does not change between runs. */
static void gpunn__int8_keep(gpunn__int8 *g, gpunn__arena *arena)
{
    const size_t rows = (size_t)(g->depthwise ? g->k : g->out);
    g->packed = (int8_t *)gpunn__arena_take(arena, rows * (size_t)g->pitch);
    g->total = (int *)gpunn__arena_take(arena, (size_t)g->out * sizeof(int));
}

static void gpunn__int8_take(gpunn__int8 *g, gpunn__arena *arena)
{
    g->start = (int *)gpunn__arena_take(arena, (size_t)g->out * sizeof(int));
    g->factor = (float *)gpunn__arena_take(arena, (size_t)g->out * sizeof(float));
}

static gpunn__columns gpunn__columns_of(const gpunn_step *step)
{
    gpunn__columns from;
    memset(&from, 0, sizeof from);
    from.weight = step->in[1].data, from.weight_dtype = step->in[1].dtype;
    from.scale = step->in[2].data, from.scale_dtype = step->in[2].dtype;
    return from;
}

/* Packs the weight if it may have changed. A run that the program captures packs in each replay. */
static gpunn_status gpunn__int8_pack(gpunn__cuda *cuda, gpunn_step *step, const gpunn__int8 *g,
                                     const gpunn__columns *from)
{
    const unsigned blocks = gpunn__blocks(cuda, (int64_t)g->out * GPUNN__THREADS, 1);
    if (!gpunn__cuda_is_stale(cuda, step)) return GPUNN_OK;
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__int8_pack_kernel, blocks, GPUNN__THREADS, *g, *from));
    if (!cuda->replayed) step->cache_version = step->state->weights_version;
    return GPUNN_OK;
}

/* y of 8 bits. */
static gpunn_status gpunn__int8_step(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action, gpunn__int8 g)
{
    const bool              run = action != GPUNN__PREPARE;
    const gpunn_attributes *attr = step->attr;
    gpunn__arena            kept = {run ? (char *)step->cache : NULL, 0},
                 scratch = {run ? (char *)step->workspace : NULL, 0};
    GPUNN__TRY(gpunn__int8_check(cuda, &g));
    gpunn__int8_keep(&g, &kept);
    gpunn__int8_take(&g, &kept);
    const gpunn__int8_spare spare = gpunn__int8_spare_of(&g, &scratch);
    step->cache_bytes = kept.bytes;
    step->workspace_bytes = scratch.bytes;
    if (!run) return GPUNN_OK;
    gpunn__columns from = gpunn__columns_of(step);
    from.bias = step->in[3].data, from.bias_dtype = step->in[3].dtype;
    from.x_scale = attr->x_scale, from.y_scale = attr->scale;
    g.x = (const uint8_t *)step->in[0].data;
    g.y = step->out.data;
    g.x_zero = attr->x_zero_point;
    g.zero = attr->zero_point, g.low = attr->quant_min, g.high = attr->quant_max;
    GPUNN__TRY(gpunn__int8_pack(cuda, step, &g, &from));
    return gpunn__int8_run(cuda, &g, &spare);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_quantized_linear(gpunn__cuda *cuda, gpunn_step *step,
                                                          gpunn__action action)
{
    return gpunn__int8_step(cuda, step, action, gpunn__int8_linear(step));
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_quantized_conv2d(gpunn__cuda *cuda, gpunn_step *step,
                                                          gpunn__action action)
{
    return gpunn__int8_step(cuda, step, action, gpunn__int8_conv2d(step));
}

/* ---- linear layers of floats that each run rounds ------------------------------------------------------ */

/* The range of each block's share of x, and 0. A NaN makes both ends NaN. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__range_kernel(const gpunn__rescale m, float *range)
{
    GPUNN__FOLLOW();
    float   least = 0, most = 0;
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    for (; i < m.count; i += (int64_t)gridDim.x * blockDim.x * 4) {
        float v[4];
        gpunn__load_four(m, i, v);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            least = gpunn__larger()(least, -v[j]);
            most = gpunn__larger()(most, v[j]);
        }
    }
    least = gpunn__block_reduce(least, gpunn__larger());
    most = gpunn__block_reduce(most, gpunn__larger());
    if (threadIdx.x > 0) return;
    range[2 * blockIdx.x] = least;
    range[2 * blockIdx.x + 1] = most;
}

/* Rounds x to bytes, with scale and zero point as ONNX's DynamicQuantizeLinear, and sets the columns. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__dynamic_kernel(gpunn__rescale m, const gpunn__int8 g, const gpunn__columns from)
{
    GPUNN__FOLLOW();
    const bool  has = (int)threadIdx.x < from.ranges;
    const float least = -gpunn__block_reduce(has ? from.range[2 * threadIdx.x] : 0, gpunn__larger());
    const float most = gpunn__block_reduce(has ? from.range[2 * threadIdx.x + 1] : 0, gpunn__larger());
    m.scale = __fdiv_rn(most == least ? 1 : most - least, 255);
    m.zero = gpunn__byte_of(__fdiv_rn(-least, m.scale), 0, 0, 255);
    gpunn__quantize_share(m);
    for (int o = (int)(blockIdx.x * blockDim.x + threadIdx.x); o < g.out; o += (int)(gridDim.x * blockDim.x))
        gpunn__set_column(g, from, o, m.scale, m.zero);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_quantized_linear_dynamic(gpunn__cuda *cuda, gpunn_step *step,
                                                                  gpunn__action action)
{
    const bool   run = action != GPUNN__PREPARE;
    gpunn__arena kept = {run ? (char *)step->cache : NULL, 0},
                 scratch = {run ? (char *)step->workspace : NULL, 0};
    gpunn__int8    g = gpunn__int8_linear(step);
    gpunn__rescale m = gpunn__rescale_of(step);
    gpunn__columns from = gpunn__columns_of(step);
    m.count = step->in[0].count;
    m.dtype = step->in[0].dtype;
    const unsigned blocks = gpunn__blocks(cuda, m.count, 4);
    GPUNN__TRY(gpunn__int8_check(cuda, &g));
    gpunn__int8_keep(&g, &kept);
    gpunn__int8_take(&g, &scratch);
    m.y = gpunn__arena_take(&scratch, (size_t)m.count);
    from.ranges = (int)min(blocks, (unsigned)GPUNN__THREADS);
    float                  *range = (float *)gpunn__arena_take(&scratch, 2 * GPUNN__THREADS * sizeof *range);
    const gpunn__int8_spare spare = gpunn__int8_spare_of(&g, &scratch);
    step->cache_bytes = kept.bytes;
    step->workspace_bytes = scratch.bytes;
    if (!run) return GPUNN_OK;
    from.range = range;
    from.y_scale = 1;
    g.x = (const uint8_t *)m.y;
    g.y = step->out.data;
    g.bias = step->in[3].data, g.bias_dtype = step->in[3].dtype;
    GPUNN__TRY(gpunn__int8_pack(cuda, step, &g, &from));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__range_kernel, (unsigned)from.ranges, GPUNN__THREADS, m, range));
    GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__dynamic_kernel, blocks, GPUNN__THREADS, m, g, from));
    return gpunn__int8_run(cuda, &g, &spare);
}
