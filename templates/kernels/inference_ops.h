#define ${NAME}_LANES 8 /* independent partial sums, which compilers vectorize */

/* The sum of x[n]: eight interleaved partial sums, added pairwise, plus the rest. */
${fn} float ${name}_sum(const float *x, int n)
{
    float lane[${NAME}_LANES] = {0}, rest = 0;
    int   i = 0;
    for (; i + ${NAME}_LANES <= n; i += ${NAME}_LANES)
        for (int j = 0; j < ${NAME}_LANES; ++j) lane[j] += x[i + j];
    for (; i < n; ++i) rest += x[i];
    for (int width = ${NAME}_LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    return lane[0] + rest;
}

/* The sum of (x[i] - mean)^2, in the order of ${name}_sum. */
${fn} float ${name}_squares(const float *x, float mean, int n)
{
    float lane[${NAME}_LANES] = {0}, rest = 0;
    int   i = 0;
    for (; i + ${NAME}_LANES <= n; i += ${NAME}_LANES)
        for (int j = 0; j < ${NAME}_LANES; ++j) lane[j] += (x[i + j] - mean) * (x[i + j] - mean);
    for (; i < n; ++i) rest += (x[i] - mean) * (x[i] - mean);
    for (int width = ${NAME}_LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    return lane[0] + rest;
}

/* Vectors of ${NAME}_WIDTH floats, at any alignment. Without vector registers, WIDTH is 1 and a vector is a
 * float. */
#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 9)
#if defined(__AVX__)
#define ${NAME}_WIDTH 8
#elif defined(__SSE2__) || defined(__ARM_NEON) || defined(__ALTIVEC__) || defined(__wasm_simd128__)
#define ${NAME}_WIDTH 4
#endif
#endif
#ifdef ${NAME}_WIDTH
typedef float ${name}_vector __attribute__((vector_size(4 * ${NAME}_WIDTH), aligned(4), may_alias));
typedef int32_t ${name}_integers __attribute__((vector_size(4 * ${NAME}_WIDTH)));
#define ${NAME}_INLINE static inline __attribute__((always_inline)) /* with sizes that are constants */
${fn} ${name}_vector ${name}_splat(float x)
{
    const ${name}_vector zero = {0};
    return zero + x;
}
#else
#define ${NAME}_WIDTH 1
#define ${NAME}_INLINE ${fn}
typedef float ${name}_vector;
${fn} ${name}_vector ${name}_splat(float x)
{
    return x;
}
#endif

${fn} ${name}_vector ${name}_load(const float *x)
{
    return *(const ${name}_vector *)x;
}

${fn} void ${name}_store(float *y, ${name}_vector v)
{
    *(${name}_vector *)y = v;
}

/* The first n floats of x, or WIDTH if that is fewer, and zeros. */
${fn} ${name}_vector ${name}_load_part(const float *x, int n)
{
    float part[${NAME}_WIDTH] = {0};
    if (n >= ${NAME}_WIDTH) return ${name}_load(x);
    for (int i = 0; i < n; ++i) part[i] = x[i];
    return ${name}_load(part);
}

/* Stores the first n floats of v, or all if there are fewer. */
${fn} void ${name}_store_part(float *y, ${name}_vector v, int n)
{
    float part[${NAME}_WIDTH];
    ${name}_store(n < ${NAME}_WIDTH ? part : y, v);
    for (int i = 0; n < ${NAME}_WIDTH && i < n; ++i) y[i] = part[i];
}

/* Full unrolling keeps arrays of vectors in registers. */
#if defined(__clang__)
#define ${NAME}_FLAT _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define ${NAME}_FLAT _Pragma("GCC unroll 8")
#else
#define ${NAME}_FLAT
#endif

/* y[8]: the sums of the elements of eight vectors. pairs(a, b) adds neighbours: a0 + a1, ..., b0 + b1, ... */
#if ${NAME}_WIDTH > 1 && defined(__clang__)
#define ${NAME}_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#elif ${NAME}_WIDTH > 1
#define ${NAME}_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, __extension__(${name}_integers){__VA_ARGS__})
#endif
#if ${NAME}_WIDTH == 8
${fn} ${name}_vector ${name}_pairs(${name}_vector a, ${name}_vector b)
{
    return ${NAME}_SHUFFLE(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
           ${NAME}_SHUFFLE(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}
${fn} ${name}_vector ${name}_fours(const ${name}_vector *v)
{
    return ${name}_pairs(${name}_pairs(v[0], v[1]), ${name}_pairs(v[2], v[3]));
}
${fn} void ${name}_totals(float *y, const ${name}_vector *v)
{
    const ${name}_vector a = ${name}_fours(v), b = ${name}_fours(v + 4);
    ${name}_store(y, ${NAME}_SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
                         ${NAME}_SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15));
}
#elif ${NAME}_WIDTH == 4
${fn} ${name}_vector ${name}_pairs(${name}_vector a, ${name}_vector b)
{
    return ${NAME}_SHUFFLE(a, b, 0, 2, 4, 6) + ${NAME}_SHUFFLE(a, b, 1, 3, 5, 7);
}
${fn} ${name}_vector ${name}_fours(const ${name}_vector *v)
{
    return ${name}_pairs(${name}_pairs(v[0], v[1]), ${name}_pairs(v[2], v[3]));
}
${fn} void ${name}_totals(float *y, const ${name}_vector *v)
{
    ${name}_store(y, ${name}_fours(v));
    ${name}_store(y + 4, ${name}_fours(v + 4));
}
#else
${fn} void ${name}_totals(float *y, const ${name}_vector *v)
{
    for (int i = 0; i < 8; ++i) y[i] = v[i];
}
#endif

${fn} void ${name}_copy(float *to, const float *from, int n)
{
    int i = 0;
    for (; i + ${NAME}_WIDTH <= n; i += ${NAME}_WIDTH) ${name}_store(to + i, ${name}_load(from + i));
    for (; i < n; ++i) to[i] = from[i];
}

/* y[n] += x[n] */
${fn} void ${name}_accumulate(float *y, const float *x, int n)
{
    int i = 0;
    for (; i + ${NAME}_WIDTH <= n; i += ${NAME}_WIDTH)
        ${name}_store(y + i, ${name}_load(y + i) + ${name}_load(x + i));
    for (; i < n; ++i) y[i] += x[i];
}

${fn} void ${name}_fill(float *to, float value, int n)
{
    for (int i = 0; i < n; ++i) to[i] = value;
}

/* y[m][n] = a[m][k] b[k][n]. a_row, a_column, b_row, b_column: strides, in elements. Each sum adds in order
 * of k. */
${fn} void ${name}_matmul(float *${NAME}_RESTRICT y, const float *a, int a_row, int a_column, const float *b,
${space}                    int b_row, int b_column, int m, int k, int n)
{
    for (int i = 0; i < m; ++i, y += n) {
        ${name}_fill(y, 0, n);
        for (int p = 0; p < k; ++p) {
            const float factor = a[i * a_row + p * a_column];
            for (int j = 0; j < n; ++j) y[j] += factor * b[p * b_row + j * b_column];
        }
    }
}

/* A sliding window along depth, height and width. kernel[axis] = 0: the window of an adaptive pool. */
typedef struct ${name}_window {
    int in[3], out[3], kernel[3], stride[3], padding[3], dilation[3];
} ${name}_window;

/* Along an axis, the window of output o covers cells *begin to *end - 1 of x. Returns their number, including
 * cells in the padding. */
${fn} int ${name}_under(const ${name}_window *g, int axis, int o, int *begin, int *end)
{
    const int in = g->in[axis], out = g->out[axis], padding = g->padding[axis];
    int       first = o * g->stride[axis] - padding, last = first + g->kernel[axis];
    if (g->kernel[axis] == 0) {
        first = (int)((int64_t)o * in / out);
        last = (int)(((int64_t)(o + 1) * in + out - 1) / out);
    }
    if (last > in + padding) last = in + padding;
    *begin = first > 0 ? first : 0;
    *end = last < in ? last : in;
    return last - first;
}

/* Along an axis, kernel cell `at` lies inside x for outputs *begin to *end - 1. For output o its index in x
 * is o * stride + the number returned. */
${fn} int ${name}_inside(const ${name}_window *g, int axis, int at, int *begin, int *end)
{
    const int stride = g->stride[axis], shift = at * g->dilation[axis] - g->padding[axis],
              reach = g->in[axis] - 1 - shift;
    *begin = shift < 0 ? (stride - 1 - shift) / stride : 0;
    *end = reach < 0 ? 0 : reach / stride + 1;
    if (*end > g->out[axis]) *end = g->out[axis];
    return shift;
}

/* Along an axis, kernel cells *begin to *end - 1 of output o lie inside x. Cell k reads element k * dilation
 * + the number returned. */
${fn} int ${name}_seen(const ${name}_window *g, int axis, int o, int *begin, int *end)
{
    const int first = o * g->stride[axis] - g->padding[axis], dilation = g->dilation[axis];
    for (*begin = 0; first + *begin * dilation < 0;) ++*begin;
    for (*end = g->kernel[axis]; *end > *begin && first + (*end - 1) * dilation >= g->in[axis];) --*end;
    return first;
}

/* Transposed convolution with one kernel cell (kz, ky, kx): y += w x at every position where the cell lies
 * inside y. x has the shape of g's outputs, y that of g's inputs. */
${fn} void ${name}_spread(float *${NAME}_RESTRICT y, const float *x, float w, const ${name}_window *g, int kz,
${space}                    int ky, int kx)
{
    int       z, y0, x0, z_end, y_end, x_end;
    const int z_shift = ${name}_inside(g, 0, kz, &z, &z_end), y_shift = ${name}_inside(g, 1, ky, &y0, &y_end);
    const int x_shift = ${name}_inside(g, 2, kx, &x0, &x_end), stride = g->stride[2];
    for (; z < z_end; ++z)
        for (int i = y0; i < y_end; ++i) {
            const float *from = x + (z * g->out[1] + i) * g->out[2];
            const int    to = (z * g->stride[0] + z_shift) * g->in[1] + i * g->stride[1] + y_shift;
            for (int j = x0; j < x_end; ++j) y[to * g->in[2] + x_shift + j * stride] += w * from[j];
        }
}

/* Max pool, or average pool if `mean`, of x[volumes][depth][height][width]. volumes: images times channels.
 * padded: the mean counts cells of the padding. */
${fn} void ${name}_pool(float *y, const float *x, int volumes, const ${name}_window *g, bool mean,
${space}                  bool padded)
{
    const int volume = g->in[0] * g->in[1] * g->in[2];
    int       z0, z1, y0, y1, x0, x1;
    for (int v = 0; v < volumes; ++v, x += volume)
        for (int oz = 0; oz < g->out[0]; ++oz)
            for (int oy = 0; oy < g->out[1]; ++oy)
                for (int ox = 0; ox < g->out[2]; ++ox) {
                    int cells = ${name}_under(g, 0, oz, &z0, &z1) * ${name}_under(g, 1, oy, &y0, &y1);
                    cells *= ${name}_under(g, 2, ox, &x0, &x1);
                    if (!padded) cells = (z1 - z0) * (y1 - y0) * (x1 - x0);
                    float best = x[(z0 * g->in[1] + y0) * g->in[2] + x0], sum = 0;
                    for (int i = z0; i < z1; ++i)
                        for (int j = y0; j < y1; ++j)
                            for (int k = x0; k < x1; ++k) {
                                const float value = x[(i * g->in[1] + j) * g->in[2] + k];
                                sum += value;
                                best = ${name}_max(best, value);
                            }
                    *y++ = mean ? sum / (float)cells : best;
                }
}

/* Along an axis, the position of output o in x is the returned cell plus *share. The cell is -1 before the
 * first one. taps: cells per output: 1 nearest, 2 linear, 4 cubic. half: outputs are at the centres of their
 * cells. */
${fn} int ${name}_cell(int o, int in, int out, float ratio, int taps, bool half, float *share)
{
    float at = ratio * ((float)o + (half ? 0.5f : 0));
    if (taps == 2 && half) at = at > 0.5f ? at - 0.5f : 0;
    if (taps == 2 && in == out) at = (float)o;
    if (taps == 4 && half) at -= 0.5f;
    const int cell = at < 0 ? -1 : at < (float)(in - 1) ? (int)at : in - 1;
    *share = at - (float)cell < 1 ? at - (float)cell : 1;
    return cell;
}

/* The weight of a tap. Cubic: Keys' kernel with PyTorch's a = -0.75. */
${fn} float ${name}_tap(int tap, int taps, float share)
{
    const float a = -0.75f, d = share + 1 - (float)tap < 0 ? (float)tap - share - 1 : share + 1 - (float)tap;
    if (taps < 4) return taps == 1 ? 1 : tap ? share : 1 - share;
    return d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

/* PyTorch's interpolate of x[volumes][in] to y[volumes][out]. ratio: cells of x per output along each
 * axis. */
${fn} void ${name}_interpolate(float *y, const float *x, int volumes, const int in[3], const int out[3],
${space}                         const float ratio[3], int taps, bool half)
{
    const int n[3] = {in[0] == 1 ? 1 : taps, in[1] == 1 ? 1 : taps, in[2] == 1 ? 1 : taps};
    for (int i = 0; i < volumes * out[0] * out[1] * out[2]; ++i) {
        const float *cells = x + i / (out[0] * out[1] * out[2]) * in[0] * in[1] * in[2];
        const int    o[3] = {i / (out[1] * out[2]) % out[0], i / out[2] % out[1], i % out[2]};
        int          first[3];
        float        share[3], sum = 0;
        for (int k = 0; k < 3; ++k)
            first[k] = ${name}_cell(o[k], in[k], out[k], ratio[k], taps, half, &share[k]);
        for (int tap = 0; tap < n[0] * n[1] * n[2]; ++tap) {
            const int t[3] = {tap / (n[1] * n[2]), tap / n[2] % n[1], tap % n[2]};
            float     weight = 1;
            int       at = 0;
            for (int k = 0; k < 3; ++k) {
                const int cell = first[k] - (n[k] - 1) / 2 + t[k];
                weight *= ${name}_tap(t[k], n[k], share[k]);
                at = at * in[k] + (cell < 0 ? 0 : cell < in[k] ? cell : in[k] - 1);
            }
            if (weight != 0) sum += weight * cells[at];
        }
        y[i] = sum;
    }
}

/* The cells seen[rows][kernel] that a streaming convolution reads for one new element x[rows]. ring: the
 * elements before, [(kernel - 1) * dilation][rows]. x takes the place *next of the oldest ones. */
${fn} void ${name}_stream(float *seen, float *ring, int32_t *next, const float *x, int rows, int kernel,
${space}                    int dilation)
{
    const int past = (kernel - 1) * dilation;
    for (int k = 0; k < kernel - 1; ++k) {
        const int    ahead = *next + k * dilation;
        const float *from = ring + (ahead < past ? ahead : ahead - past) * rows;
        for (int i = 0; i < rows; ++i) seen[i * kernel + k] = from[i];
    }
    for (int i = 0; i < rows; ++i) seen[i * kernel + kernel - 1] = x[i];
    ${name}_copy(ring + *next * rows, x, rows);
    *next = *next + 1 < past ? *next + 1 : 0;
}

/* y = (x - mean) * scale * w + b. w[n / each] and b[n / each] apply to `each` elements per number; both may
 * be NULL. */
${fn} void ${name}_affine(float *y, const float *x, float mean, float scale, const float *w, const float *b,
${space}                    int n, int each)
{
    for (int i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale * (w ? w[i / each] : 1) + (b ? b[i / each] : 0);
}

/* y = layer_norm(x) of x[rows][n], or rms_norm(x) if `root`. w[n] and b[n] may be NULL. */
${fn} void ${name}_layer_norm(float *y, const float *x, const float *w, const float *b, int rows, int n,
${space}                        float eps, bool root)
{
    for (int i = 0; i < rows; ++i, x += n, y += n) {
        const float mean = root ? 0 : ${name}_sum(x, n) / (float)n;
        const float scale = ${name}_rsqrt(${name}_squares(x, mean, n) / (float)n + eps);
        ${name}_affine(y, x, mean, scale, w, b, n, 1);
    }
}

/* y = group_norm(x) of x[samples][channels][plane]. w[channels] and b[channels] may be NULL. */
${fn} void ${name}_group_norm(float *y, const float *x, const float *w, const float *b, int samples,
${space}                        int groups, int channels, int plane, float eps)
{
    const int each = channels / groups, n = each * plane;
    for (int i = 0; i < samples * groups; ++i, x += n, y += n) {
        const int   c = i % groups * each;
        const float mean = ${name}_sum(x, n) / (float)n;
        const float scale = ${name}_rsqrt(${name}_squares(x, mean, n) / (float)n + eps);
        ${name}_affine(y, x, mean, scale, w ? w + c : w, b ? b + c : b, n, plane);
    }
}

/* y = batch_norm(x) of x[samples][channels][plane] with the running mean and variance. w and b may be
 * NULL. */
${fn} void ${name}_batch_norm(float *y, const float *x, const float *w, const float *b, const float *mean,
${space}                        const float *var, int samples, int channels, int plane, float eps)
{
    for (int i = 0; i < samples * channels; ++i, x += plane, y += plane) {
        const int c = i % channels;
        ${name}_affine(y, x, mean[c], ${name}_rsqrt(var[c] + eps), w ? w + c : w, b ? b + c : b, plane,
                       plane);
    }
}

/* y = softmax(x) along the middle axis of x[outer][n][inner]. y may be x. */
${fn} void ${name}_softmax(float *y, const float *x, int outer, int n, int inner)
{
    for (int line = 0; line < outer * inner; ++line) {
        const int at = line / inner * n * inner + line % inner;
        float     top = x[at], sum = 0;
        for (int i = 1; i < n; ++i) top = ${name}_max(top, x[at + i * inner]);
        for (int i = 0; i < n; ++i) sum += y[at + i * inner] = ${name}_exp(x[at + i * inner] - top);
        for (int i = 0; i < n; ++i) y[at + i * inner] /= sum;
    }
}

/* y = log_softmax(x) along the middle axis of x[outer][n][inner]. */
${fn} void ${name}_log_softmax(float *y, const float *x, int outer, int n, int inner)
{
    for (int line = 0; line < outer * inner; ++line) {
        const int at = line / inner * n * inner + line % inner;
        float     top = x[at], sum = 0;
        for (int i = 1; i < n; ++i) top = ${name}_max(top, x[at + i * inner]);
        for (int i = 0; i < n; ++i) sum += ${name}_exp(x[at + i * inner] - top);
        sum = ${name}_log(sum);
        for (int i = 0; i < n; ++i) y[at + i * inner] = x[at + i * inner] - top - sum;
    }
}

/* y = cumulative sum along the middle axis of x[outer][n][inner]. */
${fn} void ${name}_cumsum(float *y, const float *x, int outer, int n, int inner)
{
    for (int line = 0; line < outer * inner; ++line) {
        const int at = line / inner * n * inner + line % inner;
        float     sum = 0;
        for (int i = 0; i < n; ++i) y[at + i * inner] = sum += x[at + i * inner];
    }
}

${fn} void ${name}_logcumsumexp(float *y, const float *x, int outer, int n, int inner)
{
    for (int line = 0; line < outer * inner; ++line) {
        const int at = line / inner * n * inner + line % inner;
        float     top = x[at], sum = 0;
        for (int i = 0; i < n; ++i) {
            const float t = x[at + i * inner], most = t > top ? t : top;
            sum = top == most ? sum : sum * ${name}_exp(top - most);
            sum += t == most ? 1 : ${name}_exp(t - most);
            top = most;
            y[at + i * inner] = top + ${name}_log(sum);
        }
    }
}

${fn} void ${name}_cross(float *y, const float *a, const float *b, int outer, int inner)
{
    for (int line = 0; line < outer * inner; ++line) {
        const int at = line / inner * 3 * inner + line % inner;
        for (int k = 0; k < 3; ++k) {
            const int p = at + (k + 1) % 3 * inner, q = at + (k + 2) % 3 * inner;
            y[at + k * inner] = a[p] * b[q] - a[q] * b[p];
        }
    }
}

/* y[rows][m] = where values[rows][m] belong in sorted[rows][n]; right: behind equal elements. */
${fn} void ${name}_searchsorted(int64_t *y, const float *sorted, const float *values, int rows, int n, int m,
${space}                         bool right)
{
    for (int i = 0; i < rows * m; ++i) {
        const float *row = sorted + i / m * n;
        int          low = 0, high = n;
        while (low < high) {
            const int middle = low + (high - low) / 2;
            if (right ? row[middle] > values[i] : row[middle] >= values[i])
                high = middle;
            else
                low = middle + 1;
        }
        y[i] = low;
    }
}

/* Whether element i ranks before element j: the larger first, or the smaller if `largest` is false. NaN
 * counts as the largest value. Among equal elements the lower index is first. */
${fn} bool ${name}_before(const float *x, int inner, int i, int j, bool largest)
{
    const float a = x[i * inner], b = x[j * inner];
    if (a == b || (a != a && b != b)) return i < j;
    return (a != a || a > b) == largest;
}

/* The index of the element that ranks next after element `last`, or of the first in rank if last < 0. */
${fn} int ${name}_next(const float *x, int inner, int n, int last, bool largest)
{
    int best = -1;
    for (int i = 0; i < n; ++i) {
        const bool left = last < 0 || ${name}_before(x, inner, last, i, largest);
        if (left && i != last && (best < 0 || ${name}_before(x, inner, i, best, largest))) best = i;
    }
    return best;
}

/* y[outer][k][inner] = the indices of the k first in rank along the middle axis of x[outer][n][inner]. */
${fn} void ${name}_topk(int64_t *y, const float *x, int outer, int n, int inner, int k, bool largest)
{
    for (int line = 0; line < outer * inner; ++line) {
        const float *own = x + line / inner * n * inner + line % inner;
        for (int rank = 0, last = -1; rank < k; ++rank) {
            last = ${name}_next(own, inner, n, last, largest);
            y[(line / inner * k + rank) * inner + line % inner] = last;
        }
    }
}

/* 2^(32 - fall * scale), rounded, as in gpunn.h. fall: the largest logit minus this one. */
${fn} uint32_t ${name}_weight(float fall, float scale)
{
    static const uint32_t factors[] = {468251,     5475002,     41142264,   238330987,
                                       1031755804, 2977043973u, 0xFFFFFFFFu};
    const float           power = fall * scale;
    if (fall == 0) return 0xFFFFFFFFu;
    if (!(power < 33)) return 0;
    const uint64_t fixed = (uint64_t)(power * 4294967296.0f), f = fixed & 0xFFFFFFFFu, whole = fixed >> 32;
    uint64_t       y = factors[0];
    for (int i = 1; i < 7; ++i) y = factors[i] - (y * f >> 32);
    return (uint32_t)((y + ((uint64_t)1 << whole >> 1)) >> whole);
}

/* floor(sum * share), with `share` clamped to [0, 1]. */
${fn} uint64_t ${name}_share(uint64_t sum, float share)
{
    const uint64_t part = share > 0 ? (uint64_t)((share < 1 ? share : 1) * 4294967296.0f) : 0;
    return (sum >> 32) * part + ((sum & 0xFFFFFFFFu) * part >> 32);
}

/* Adds the classes' weights in descending order until the total exceeds `sum`. Returns that class; *upto =
 * the total. */
${fn} int ${name}_passing(const float *logits, int n, float scale, uint64_t sum, uint64_t *upto)
{
    const int first = ${name}_next(logits, 1, n, -1, true);
    int       last = first;
    *upto = 0xFFFFFFFFu;
    while (*upto <= sum) {
        last = ${name}_next(logits, 1, n, last, true);
        *upto += ${name}_weight(logits[first] - logits[last], scale);
    }
    return last;
}

/* Draws a class per row of logits[rows][n], by the uniform number draw[row]. scale: log2(e) / temperature.
 * top_p: the share of the probability that may be drawn. An infinite or NaN largest logit is always drawn. */
${fn} void ${name}_sample(int64_t *y, const float *logits, const float *draw, int rows, int n, float scale,
${space}                    float top_p)
{
    for (int row = 0; row < rows; ++row, logits += n) {
        const int first = ${name}_next(logits, 1, n, -1, true);
        uint64_t  kept = 0, upto;
        y[row] = first;
        if (logits[first] - logits[first] != 0) continue;
        for (int i = 0; i < n; ++i) kept += ${name}_weight(logits[first] - logits[i], scale);
        const uint64_t end = ${name}_share(kept, top_p);
        if (top_p < 1) (void)${name}_passing(logits, n, scale, end > 0 ? end - 1 : 0, &kept);
        const uint64_t target = ${name}_share(kept, draw[row]);
        y[row] = ${name}_passing(logits, n, scale, target < kept ? target : kept - 1, &upto);
    }
}

${products}

/* Shapes of attention. q, k, v, y: strides along sample, head and row. mask: strides along sample, head, row
 * and key. */
typedef struct ${name}_heads {
    int   samples, heads, kv_heads, rows, keys, width, v_width, q[3], k[3], v[3], y[3], mask[4];
    bool  causal;
    float scale;
} ${name}_heads;

/* y = softmax(scale q k^T + add) v per head. choice: 0 excludes a key. add: added to the scores. Both may be
 * NULL. row: scratch for the h->keys scores of a row. */
${fn} void ${name}_attention(float *y, const float *q, const float *k, const float *v, const uint8_t *choice,
${space}                       const float *add, float *row, const ${name}_heads *h)
{
    for (int i = 0; i < h->samples * h->heads * h->rows; ++i) {
        const int sample = i / (h->heads * h->rows), head = i / h->rows % h->heads, at = i % h->rows;
        const int shared = head / (h->heads / h->kv_heads),
                  keys = h->causal && at + 1 < h->keys ? at + 1 : h->keys;
        const int m = sample * h->mask[0] + head * h->mask[1] + at * h->mask[2];
        const float *own_q = q + sample * h->q[0] + head * h->q[1] + at * h->q[2];
        const float *own_k = k + sample * h->k[0] + shared * h->k[1],
                    *own_v = v + sample * h->v[0] + shared * h->v[1];
        float *own_y = y + sample * h->y[0] + head * h->y[1] + at * h->y[2], top = -${NAME}_INFINITY, sum = 0;
        for (int j = 0; j < keys; ++j) {
            row[j] = h->scale * ${name}_dot(own_q, own_k + j * h->k[2], h->width);
            if (choice && !choice[m + j * h->mask[3]]) row[j] = -${NAME}_INFINITY;
            if (add) row[j] += add[m + j * h->mask[3]];
            top = ${name}_max(top, row[j]);
        }
        if (top == -${NAME}_INFINITY) top = 0; /* all keys are excluded: y = 0 */
        ${name}_fill(own_y, 0, h->v_width);
        for (int j = 0; j < keys; ++j) {
            const float part = ${name}_exp(row[j] - top);
            if (part == 0) continue;
            sum += part;
            for (int e = 0; e < h->v_width; ++e) own_y[e] += part * own_v[j * h->v[2] + e];
        }
        for (int e = 0; e < h->v_width && sum != 0; ++e) own_y[e] /= sum;
    }
}

/* sigmoid and tanh of a vector, by the formulas of gpunn.h: within 3 ulp. exp_near returns exp(r) - 1 for
 * x = n ln 2 + r with |r| <= ln 2 / 2; *half = 2^(n - 1). */
#if ${NAME}_WIDTH > 1
${fn} ${name}_vector ${name}_choose(${name}_integers which, ${name}_vector a, ${name}_vector b)
{
    return (${name}_vector)((which & (${name}_integers)a) | (~which & (${name}_integers)b));
}
${fn} ${name}_vector ${name}_exp_near(${name}_vector x, ${name}_vector *half)
{
    const float magic = 12582912.0f; /* 1.5 2^23: adding it rounds x to an integer in the low bits */
    const ${name}_integers n = (${name}_integers)(x * 1.44269504f + magic) - (int32_t)${name}_bits_of(magic);
    const ${name}_vector   k = __builtin_convertvector(n, ${name}_vector);
    const ${name}_vector   r = x - k * 0.693359375f + k * 2.12194440e-4f;
    const ${name}_vector   p =
        (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    *half = (${name}_vector)((n + 126) << 23);
    return r + r * r * (p * r + 0.5f);
}
${fn} ${name}_vector ${name}_sigmoids(${name}_vector x)
{
    ${name}_vector half, y = ${name}_choose(x < -89, ${name}_splat(89), -x);
    y = ${name}_choose(y < -87.3f, ${name}_splat(-87.3f), y);
    const ${name}_vector e = ${name}_exp_near(y, &half) + 1;
    return 1 / (1 + (e + e) * half);
}
${fn} ${name}_vector ${name}_tanhs(${name}_vector x)
{
    const ${name}_integers sign = (${name}_integers)x & INT32_MIN;
    const ${name}_vector   size = (${name}_vector)((${name}_integers)x ^ sign);
    ${name}_vector         half;
    const ${name}_vector   near = ${name}_choose(size > 10, ${name}_splat(10), size);
    const ${name}_vector   e = ${name}_exp_near(2 * near, &half);
    const ${name}_vector   q = half * e + (half - 0.5f); /* (exp(2 x) - 1) / 2 */
    return (${name}_vector)((${name}_integers)(q / (q + 1)) | sign);
}
#else
${fn} ${name}_vector ${name}_sigmoids(${name}_vector x)
{
    return ${name}_sigmoid(x);
}
${fn} ${name}_vector ${name}_tanhs(${name}_vector x)
{
    return ${name}_tanh(x);
}
#endif

/* g[k] + q[k] for the n elements from k on, or WIDTH if that is fewer. */
${fn} ${name}_vector ${name}_gate(const float *g, const float *q, int k, int n)
{
    return ${name}_load_part(g + k, n) + ${name}_load_part(q + k, n);
}

/* The cells of recurrent layers. g: gates from x; q: gates from h. The states h[hidden] and c[hidden] are
 * updated. */
${fn} void ${name}_rnn_cell(const float *g, const float *q, float *h, float *c, int hidden)
{
    (void)c;
    for (int k = 0; k < hidden; k += ${NAME}_WIDTH)
        ${name}_store_part(h + k, ${name}_tanhs(${name}_gate(g, q, k, hidden - k)), hidden - k);
}

${fn} void ${name}_rnn_relu_cell(const float *g, const float *q, float *h, float *c, int hidden)
{
    (void)c;
    for (int k = 0; k < hidden; ++k) h[k] = ${name}_max(g[k] + q[k], 0);
}

${fn} void ${name}_lstm_cell(const float *g, const float *q, float *h, float *c, int hidden)
{
    for (int k = 0; k < hidden; k += ${NAME}_WIDTH) {
        const int            n = hidden - k;
        const ${name}_vector add = ${name}_sigmoids(${name}_gate(g, q, k, n)),
                             keep = ${name}_sigmoids(${name}_gate(g, q, hidden + k, n)),
                             next = ${name}_tanhs(${name}_gate(g, q, 2 * hidden + k, n)),
                             show = ${name}_sigmoids(${name}_gate(g, q, 3 * hidden + k, n));
        const ${name}_vector cell = keep * ${name}_load_part(c + k, n) + add * next;
        ${name}_store_part(c + k, cell, n);
        ${name}_store_part(h + k, show * ${name}_tanhs(cell), n);
    }
}

${fn} void ${name}_gru_cell(const float *g, const float *q, float *h, float *c, int hidden)
{
    (void)c;
    for (int k = 0; k < hidden; k += ${NAME}_WIDTH) {
        const int            n = hidden - k;
        const ${name}_vector reset = ${name}_sigmoids(${name}_gate(g, q, k, n)),
                             keep = ${name}_sigmoids(${name}_gate(g, q, hidden + k, n));
        const ${name}_vector next = ${name}_tanhs(${name}_load_part(g + 2 * hidden + k, n) +
                                                  reset * ${name}_load_part(q + 2 * hidden + k, n));
        ${name}_store_part(h + k, next + keep * (${name}_load_part(h + k, n) - next), n);
    }
}
