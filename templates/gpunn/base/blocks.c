#include "base/blocks.h"
#include "base/math.h"

/* ---- rounding to blocks of 32 ---------------------------------------------------------------------- */

/* A block holds d, m if `minimum`, the highest bits of 5, then two numbers a byte or, of 8 bits, one. */
typedef struct gpunn__block32 {
    int  bits;
    bool minimum;
} gpunn__block32;

static gpunn__block32 gpunn__block32_of(gpunn_dtype format)
{
    gpunn__block32 layout;
    layout.bits = format == GPUNN_Q8_0 ? 8 : format == GPUNN_Q4_0 || format == GPUNN_Q4_1 ? 4 : 5;
    layout.minimum = format == GPUNN_Q4_1 || format == GPUNN_Q5_1;
    return layout;
}

static float gpunn__block_half(const uint8_t *at)
{
    float value;
    gpunn__widen_floats(GPUNN_F16, at, 1, &value);
    return value;
}

/* The first value of the largest size, or NaN if there is one. */
static float gpunn__block_farthest(const float *values)
{
    float farthest = 0;
    for (int i = 0; i < 32; i++)
        if (fabsf(values[i]) > fabsf(farthest) || values[i] != values[i]) farthest = values[i];
    return farthest;
}

/* The difference of the largest and the smallest value, or NaN. */
static float gpunn__block_range(const float *values, float *least)
{
    float most = *least = values[0];
    for (int i = 0; i < 32; i++) {
        *least = gpunn__min(*least, values[i]);
        most = gpunn__max(most, values[i]);
    }
    return most - *least;
}

/* x * scale + half, rounded down to 0 .. most, and 0 for NaN. The product is rounded before the sum. */
static uint8_t gpunn__block_round(float x, float scale, float half, int most)
{
    const float y = (float)((double)x * (double)scale) + half;
    if (!(y > 0)) return 0;
    return (uint8_t)(y < (float)most ? (int)y : most);
}

/* Half away from zero, and 0 for NaN. */
static uint8_t gpunn__block_round8(float x, float scale)
{
    const float y = roundf(x * scale);
    return y == y ? (uint8_t)(int8_t)(y > 127 ? 127 : y < -127 ? -127 : y) : 0;
}

static void gpunn__quantize32(gpunn__block32 layout, const float *values, uint8_t *block)
{
    const int levels = 1 << layout.bits;
    float     least = 0, d;
    uint8_t  *packed = block + (layout.minimum ? 4 : 2), number[32];
    if (layout.minimum)
        d = gpunn__block_range(values, &least) / (float)(levels - 1);
    else if (layout.bits == 8)
        d = fabsf(gpunn__block_farthest(values)) / 127;
    else
        d = gpunn__block_farthest(values) / (float)(-levels / 2);
    const float scale = d != 0 ? 1 / d : 0, half = layout.minimum ? 0.5f : (float)(levels / 2) + 0.5f;
    for (int i = 0; i < 32; i++)
        number[i] = layout.bits == 8 ? gpunn__block_round8(values[i], scale)
                                     : gpunn__block_round(values[i] - least, scale, half, levels - 1);
    gpunn__round_floats(GPUNN_F16, &d, 1, block);
    if (layout.minimum) gpunn__round_floats(GPUNN_F16, &least, 1, block + 2);
    if (layout.bits == 5) {
        memset(packed, 0, 4);
        for (int i = 0; i < 32; i++) packed[i / 8] = (uint8_t)(packed[i / 8] | number[i] >> 4 << i % 8);
        packed += 4;
    }
    if (layout.bits == 8)
        memcpy(packed, number, sizeof number);
    else
        for (int i = 0; i < 16; i++) packed[i] = (uint8_t)((number[i] & 15) | number[i + 16] << 4);
}

/* ---- rounding with a search for scales ----------------------------------------------------------------- */

/* The search of ggml's make_qkx2_quants and make_qx_quants, in doubles. generator/exchange/blocks.py computes
 * the same numbers in the same order. Products are exact or pass through gpunn__apart, so that a compiler
 * which joins a product and a sum gives the same bits. */
static double gpunn__apart(double product)
{
    const volatile double rounded = product;
    return rounded;
}

/* The integer nearest to y, from 0 to most. 0 for NaN. */
static int gpunn__nearest_level(double y, int most)
{
    return y > 0 ? y < most ? (int)(y + 0.5) : most : 0;
}

/* The nearest F16. */
static double gpunn__as_half(double value)
{
    const float narrow = (float)value;
    uint8_t     half[2];
    gpunn__round_floats(GPUNN_F16, &narrow, 1, half);
    return (double)gpunn__block_half(half);
}

/* The levels q of x = start + step q, from 0 to most. 0 if step is 0 or not finite. */
static void gpunn__find_levels(const float *x, int n, double step, double start, int most, uint8_t *q)
{
    const bool good = step != 0 && fabs(step) <= FLT_MAX && fabs(start) <= FLT_MAX;
    for (int i = 0; i < n; i++)
        q[i] = good ? (uint8_t)gpunn__nearest_level(((double)x[i] - start) / step, most) : 0;
}

/* A group is near scale q + least. */
typedef struct gpunn__line {
    double scale, least;
} gpunn__line;

/* Sums over a group of w, w x, w q, w q q and w x q, for weights w and levels q. */
typedef struct gpunn__line_sums {
    double w, x, q, qq, xq;
} gpunn__line_sums;

/* The weights: larger numbers have larger ones. */
static void gpunn__weigh(const float *x, float *w, gpunn__line_sums *sum)
{
    double squares = 0;
    for (int i = 0; i < GPUNN__GROUP; i++) squares += (double)x[i] * (double)x[i];
    const double size = sqrt(squares / (double)GPUNN__GROUP);
    sum->w = sum->x = 0;
    for (int i = 0; i < GPUNN__GROUP; i++) {
        w[i] = (float)(size + fabs((double)x[i]));
        sum->w += (double)w[i];
        sum->x += (double)w[i] * (double)x[i];
    }
}

/* The sums over the levels that are nearest to step (x - least). All products but one are exact. */
static void gpunn__add_levels(const float *x, const float *w, double least, double step, int most,
                              gpunn__line_sums *sum)
{
    sum->q = sum->qq = sum->xq = 0;
    for (int i = 0; i < GPUNN__GROUP; i++) {
        const double q = gpunn__nearest_level(step * ((double)x[i] - least), most), wq = (double)w[i] * q;
        sum->q += wq;
        sum->qq += wq * q;
        sum->xq += wq * (double)x[i];
    }
}

/* The line with the least weighted squares for given levels. Its `least` is at most 0. */
static gpunn__line gpunn__best_line(const gpunn__line_sums *s, double determinant)
{
    gpunn__line line;
    line.scale = (gpunn__apart(s->w * s->xq) - gpunn__apart(s->x * s->q)) / determinant;
    line.least = (gpunn__apart(s->qq * s->x) - gpunn__apart(s->q * s->xq)) / determinant;
    if (line.least > 0) {
        line.scale = s->xq / s->qq;
        line.least = 0;
    }
    return line;
}

/* The weighted squares of the differences, without those of x. */
static double gpunn__line_error(const gpunn__line_sums *s, gpunn__line line)
{
    const double by_scale = gpunn__apart(line.scale * s->qq) + gpunn__apart(2 * line.least * s->q),
                 by_least = gpunn__apart(line.least * s->w);
    return gpunn__apart(line.scale * (by_scale - 2 * s->xq)) +
           gpunn__apart(line.least * (by_least - 2 * s->x));
}

/* Tries ranges of a tenth of a level more or less, each from the least number found so far. */
static gpunn__line gpunn__find_line(const float *x, int most)
{
    gpunn__line_sums sum;
    gpunn__line      found = {0, 0};
    float            w[GPUNN__GROUP];
    double           far = (double)x[0];
    for (int i = 0; i < GPUNN__GROUP; i++) {
        found.least = (double)x[i] < found.least ? (double)x[i] : found.least;
        far = (double)x[i] > far ? (double)x[i] : far;
    }
    if (far == found.least) return found;
    found.scale = (far - found.least) / most;
    gpunn__weigh(x, w, &sum);
    gpunn__add_levels(x, w, found.least, 1 / found.scale, most, &sum);
    double best = gpunn__line_error(&sum, found);
    for (int i = -10; i <= 10; i++) {
        const double step = (10 * most + i) / (10 * (far - found.least));
        gpunn__add_levels(x, w, found.least, step, most, &sum);
        const double determinant = gpunn__apart(sum.w * sum.qq) - gpunn__apart(sum.q * sum.q);
        if (!(determinant > 0)) continue;
        const gpunn__line line = gpunn__best_line(&sum, determinant);
        const double      error = gpunn__line_error(&sum, line);
        if (error < best) best = error, found = line;
    }
    return found;
}

/* Stores 8 scales s and minimums m of 6 bits in 12 bytes, as gpunn__group_scales reads them. */
static void gpunn__pack_scales(const int *s, const int *m, uint8_t *packed)
{
    for (int j = 0; j < 4; j++) {
        packed[j] = (uint8_t)(s[j] | s[j + 4] >> 4 << 6);
        packed[j + 4] = (uint8_t)(m[j] | m[j + 4] >> 4 << 6);
        packed[j + 8] = (uint8_t)((s[j + 4] & 15) | (m[j + 4] & 15) << 4);
    }
}

/* Levels of 4 or 5 bits: the highest ones of 5, then two levels a byte. */
static void gpunn__pack_levels(int bits, const uint8_t *q, uint8_t *to)
{
    memset(to, 0, 32);
    for (int i = 0; i < 256 && bits == 5; i++) to[i % 32] = (uint8_t)(to[i % 32] | q[i] >> 4 << i / 32);
    to += bits == 5 ? 32 : 0;
    for (int i = 0; i < 128; i++) {
        const uint8_t *low = q + i / 32 * 64 + i % 32;
        to[i] = (uint8_t)((low[0] & 15) | (low[32] & 15) << 4);
    }
}

/* Q4_K or Q5_K. */
static void gpunn__quantize_lines(int bits, const float *x, uint8_t *block)
{
    const int   most = (1 << bits) - 1;
    gpunn__line line[8];
    uint8_t     q[256];
    int         s[8], m[8];
    double      top = 0, low = 0;
    for (int j = 0; j < 8; j++) {
        line[j] = gpunn__find_line(x + 32 * j, most);
        top = line[j].scale > top ? line[j].scale : top;
        low = -line[j].least > low ? -line[j].least : low;
    }
    const double d = gpunn__as_half(top / 63), minimum = gpunn__as_half(low / 63);
    for (int j = 0; j < 8; j++) {
        s[j] = top > 0 ? gpunn__nearest_level(63 * line[j].scale / top, 63) : 0;
        m[j] = low > 0 ? gpunn__nearest_level(-63 * line[j].least / low, 63) : 0;
        gpunn__find_levels(x + 32 * j, 32, d * s[j], -minimum * m[j], most, q + 32 * j);
    }
    const float halves[2] = {(float)d, (float)minimum};
    gpunn__round_floats(GPUNN_F16, halves, 2, block);
    gpunn__pack_scales(s, m, block + 4);
    gpunn__pack_levels(bits, q, block + 16);
}

/* The index of IQ4_NL whose number is nearest to y, the lower one of two, and 0 for NaN. */
GPUNN__INLINE int gpunn__nearest_index(double y)
{
    /* twice the middles between two numbers */
    static const double sums[] = {-231, -187, -148, -114, -84, -57, -32, -9, 14, 38, 63, 91, 122, 158, 202};
    int                 found = 0;
    for (int half = 8; half > 0; half /= 2) found += half * (2 * y > sums[found + half - 1]);
    return found;
}

/* The integer of Q6_K or IQ4_NL that is nearest to y. */
GPUNN__INLINE int gpunn__nearest_number(gpunn_dtype format, double y)
{
    if (format == GPUNN_Q6_K) return gpunn__nearest_level(y + 32, 63) - 32;
    return (int)gpunn__iq4_nl_byte((uint32_t)gpunn__nearest_index(y)) - 128;
}

/* The scale for 16 numbers of Q6_K or 32 of IQ4_NL so that scale q is near x. Squares of x are weights. In
 * IQ4_NL the largest number of x is tried at both ends of the table. */
GPUNN__INLINE double gpunn__find_scale(gpunn_dtype format, const float *x)
{
    const bool six = format == GPUNN_Q6_K;
    const int  n = six ? 16 : 32;
    double     far = 0, best = 0, found = 0;
    for (int i = 0; i < n; i++)
        if (fabs((double)x[i]) > fabs(far)) far = (double)x[i];
    if (fabs(far) < 1e-15) return 0;
    for (int k = 0; k < 19; k++) {
        const int    part = (k % 2 ? -1 : 1) * ((k + 1) / 2); /* 0, -1, 1, -2, 2 ... parts of a level */
        const int    most = six ? 320 : part % 2 ? 127 : 113, parts = six ? -10 : part % 2 ? -1 : 1;
        const double step = (most + part) / (parts * far);
        double       sum_xq = 0, sum_qq = 0;
        for (int i = 0; i < n; i++) {
            const double r = (double)x[i] / far, w = (double)(float)(r * r),
                         q = gpunn__nearest_number(format, step * (double)x[i]), wq = w * q;
            sum_xq += six ? wq * (double)x[i] : gpunn__apart(wq * (double)x[i]);
            sum_qq += wq * q;
        }
        if (sum_xq * sum_xq > best * sum_qq) {
            found = sum_xq / sum_qq;
            best = found * sum_xq;
        }
    }
    return found;
}

/* Levels of 6 bits: the low four, two a byte, then the high two, four a byte. */
static void gpunn__pack_levels6(const uint8_t *q, uint8_t *to)
{
    for (int i = 0; i < 128; i++) {
        const uint8_t *low = q + i / 64 * 128 + i % 64;
        to[i] = (uint8_t)((low[0] & 15) | (low[64] & 15) << 4);
    }
    for (int i = 0; i < 64; i++) {
        const uint8_t *high = q + i / 32 * 128 + i % 32;
        to[128 + i] = (uint8_t)(high[0] >> 4 | high[32] >> 4 << 2 | high[64] >> 4 << 4 | high[96] >> 4 << 6);
    }
}

static void gpunn__quantize_q6_k(const float *x, uint8_t *block)
{
    double  scale[16], top = 0;
    uint8_t q[256];
    for (int j = 0; j < 16; j++) {
        scale[j] = gpunn__find_scale(GPUNN_Q6_K, x + 16 * j);
        if (fabs(scale[j]) > fabs(top)) top = scale[j];
    }
    const double d = gpunn__as_half(top / -128);
    const float  half = (float)d;
    for (int j = 0; j < 16; j++) {
        const int s = top != 0 ? gpunn__nearest_level(-128 * scale[j] / top + 128, 255) - 128 : 0;
        block[192 + j] = (uint8_t)s;
        gpunn__find_levels(x + 16 * j, 16, d * s, -32 * d * s, 63, q + 16 * j);
    }
    gpunn__pack_levels6(q, block);
    gpunn__round_floats(GPUNN_F16, &half, 1, block + 208);
}

static void gpunn__quantize_iq4_nl(const float *x, uint8_t *block)
{
    const double d = gpunn__as_half(gpunn__find_scale(GPUNN_IQ4_NL, x));
    const float  half = (float)d;
    uint8_t      q[32];
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)(d != 0 ? gpunn__nearest_index((double)x[i] / d) : 0);
    gpunn__round_floats(GPUNN_F16, &half, 1, block);
    for (int i = 0; i < 16; i++) block[2 + i] = (uint8_t)(q[i] | q[i + 16] << 4);
}

/* Formats whose scales are searched for. In a block with a number that is not finite, the scale is the sum of
 * the sizes. */
static void gpunn__quantize_searched(gpunn_dtype format, const float *values, uint8_t *block)
{
    const int n = (int)gpunn__block_length(format);
    float     x[256];
    double    total = 0;
    for (int i = 0; i < n; i++) total += fabs((double)values[i]);
    const float scale = (float)total;
    const bool  finite = total < INFINITY;
    for (int i = 0; i < n; i++) x[i] = finite ? values[i] : 0;
    if (format == GPUNN_Q6_K)
        gpunn__quantize_q6_k(x, block);
    else if (format == GPUNN_IQ4_NL)
        gpunn__quantize_iq4_nl(x, block);
    else
        gpunn__quantize_lines(format == GPUNN_Q4_K ? 4 : 5, x, block);
    if (!finite) gpunn__round_floats(GPUNN_F16, &scale, 1, block + gpunn__block_scale_at(format));
}

/* ---- rounding to NF4 ----------------------------------------------------------------------------------- */

/* The index of the number that is nearest to y, the lower one of two, and 15 for NaN. */
static int gpunn__nearest_nf4(float y)
{
    const float *number = gpunn__nf4_numbers();
    int          found = 0;
    for (int half = 8; half > 0; half /= 2) {
        const float middle = (number[found + half - 1] + number[found + half]) / 2;
        found += half * !(y <= middle);
    }
    return found;
}

/* The largest size of a number is the scale. Sizes below 1e-38 are as 1e-38 to the indices. The scale is
 * written last, because block may be the memory of x. */
static void gpunn__quantize_nf4(const float *x, uint8_t *block)
{
    float most = 0;
    for (int i = 0; i < 64; i++) most = gpunn__max(most, fabsf(x[i]));
    const float inverse = 1 / gpunn__max(most, 1e-38f);
    for (int i = 0; i < 32; i++) {
        const int first = gpunn__nearest_nf4(x[2 * i] * inverse),
                  second = gpunn__nearest_nf4(x[2 * i + 1] * inverse);
        block[4 + i] = (uint8_t)(first << 4 | second);
    }
    memcpy(block, &most, sizeof most);
}

/* ---- all formats --------------------------------------------------------------------------------------- */

GPUNN__INTERNAL gpunn__group gpunn__unpack_group(gpunn_dtype format, const void *blocks, int64_t index)
{
    const int64_t  groups = gpunn__block_length(format) / GPUNN__GROUP;
    const uint8_t *block = (const uint8_t *)blocks + index / groups * gpunn__block_size(format),
                  *scale = block + gpunn__block_scale_at(format);
    const float d = format == GPUNN_NF4 ? gpunn__nf4_scale(block) : gpunn__block_half(scale),
                m = gpunn__block_has_minimums(format) ? gpunn__block_half(scale + 2) : 0;
    const int    j = (int)(index % groups);
    gpunn__group group = {{0}, {d, d}, m};
    for (int half = 0; half < 2; half++) {
        group.minimum = m;
        gpunn__group_factors(format, block, j, half, &group.scale[half], &group.minimum);
    }
    for (int i = 0; i < GPUNN__GROUP; i += 4) {
        const uint32_t four = gpunn__unpack4(format, block, j, i / 4);
        for (int k = 0; k < 4; k++)
            group.q[i + k] = (int8_t)((int)(four >> 8 * k & 255) - gpunn__block_bias(format));
    }
    return group;
}

GPUNN__INTERNAL void gpunn__dequantize_from(gpunn_dtype format, const void *blocks, int64_t at, float *values,
                                            int64_t n)
{
    for (int64_t i = 0; i < n; i += GPUNN__GROUP) {
        const gpunn__group group = gpunn__unpack_group(format, blocks, (at + i) / GPUNN__GROUP);
        for (int k = 0; k < GPUNN__GROUP; k++)
            values[i + k] = group.scale[k / 16] * gpunn__block_number(format, group.q[k]) + group.minimum;
    }
}

GPUNN__INTERNAL void gpunn__dequantize(gpunn_dtype format, const void *blocks, float *values, int64_t n)
{
    gpunn__dequantize_from(format, blocks, 0, values, n);
}

GPUNN__INTERNAL void gpunn__quantize(gpunn_dtype format, const float *values, void *blocks, int64_t n)
{
    const int64_t length = gpunn__block_length(format);
    for (int64_t i = 0; i < n; i += length) {
        uint8_t *block = (uint8_t *)blocks + gpunn__block_bytes(format, i);
        if (format == GPUNN_NF4)
            gpunn__quantize_nf4(values + i, block);
        else if (length == 32 && format != GPUNN_IQ4_NL)
            gpunn__quantize32(gpunn__block32_of(format), values + i, block);
        else
            gpunn__quantize_searched(format, values + i, block);
    }
}

GPUNN__INTERNAL void gpunn__convert_values(gpunn_dtype dtype, const float *values, void *to, int64_t n)
{
    if (gpunn__is_blocks(dtype))
        gpunn__quantize(dtype, values, to, n);
    else
        gpunn__round_floats(dtype, values, n, to);
}

GPUNN__INTERNAL void gpunn__widen_values(gpunn_dtype dtype, const void *from, float *values, int64_t n)
{
    if (gpunn__is_blocks(dtype))
        gpunn__dequantize(dtype, from, values, n);
    else
        gpunn__widen_floats(dtype, from, n, values);
}
