${weight}
/* y[8] = w[8][n] x[n]. What is left of a row behind whole vectors is in its last vector, beside elements that
 * are taken with 0. */
${NAME}_INLINE void ${name}_eight${suffix}(float *y, const float *x, const ${type} *w, int n)
{
    ${name}_vector sum[8];
    float          last[${NAME}_WIDTH];
    int            i = 0;
    ${NAME}_FLAT for (int row = 0; row < 8; ++row) sum[row] = ${name}_splat(0);
    for (; i + ${NAME}_WIDTH <= n; i += ${NAME}_WIDTH) {
        const ${name}_vector own = ${name}_load(x + i);
        ${NAME}_FLAT for (int row = 0; row < 8; ++row)
            sum[row] += own * ${name}_load${suffix}(w + row * n + i);
    }
    const int from = n - ${NAME}_WIDTH;
    if (i < n && from >= 0) {
        for (int j = 0; j < ${NAME}_WIDTH; ++j) last[j] = from + j < i ? 0 : x[from + j];
        ${NAME}_FLAT for (int row = 0; row < 8; ++row)
            sum[row] += ${name}_load(last) * ${name}_load${suffix}(w + row * n + from);
    }
    ${name}_totals(y, sum);
    for (; i < n && from < 0; ++i)
        for (int row = 0; row < 8; ++row) y[row] += x[i] * (float)w[row * n + i];
}

/* The sum of a[i] * b[i]: four vectors of partial sums, plus the rest. */
${fn} float ${name}_dot${suffix}(const float *a, const ${type} *b, int n)
{
    ${name}_vector sum[4];
    float          total = 0, lane[${NAME}_WIDTH];
    int            i = 0;
    ${NAME}_FLAT for (int j = 0; j < 4; ++j) sum[j] = ${name}_splat(0);
    for (; i + 4 * ${NAME}_WIDTH <= n; i += 4 * ${NAME}_WIDTH)
        ${NAME}_FLAT for (int j = 0; j < 4; ++j)
            sum[j] += ${name}_load(a + i + j * ${NAME}_WIDTH) *
                      ${name}_load${suffix}(b + i + j * ${NAME}_WIDTH);
    for (; i + ${NAME}_WIDTH <= n; i += ${NAME}_WIDTH)
        sum[0] += ${name}_load(a + i) * ${name}_load${suffix}(b + i);
    ${name}_store(lane, (sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < n; ++i) total += a[i] * (float)b[i];
    for (int j = 0; j < ${NAME}_WIDTH; ++j) total += lane[j];
    return total;
}

/* y[rows][out] = x[rows][in] w[out][in]^T + b[out]; b may be NULL.${about} */
${NAME}_INLINE void ${name}_linear${suffix}(float *y, const float *x, const ${type} *w, ${scale}
${space}                        const float *b, int rows, int in, int out)
{
    for (int i = 0; i < rows; ++i, x += in, y += out) {
        const ${type} *row = w;
        int j = 0;
        for (; j + 8 <= out; j += 8, row += 8 * in) ${name}_eight${suffix}(y + j, x, row, in);
        for (; j < out; ++j, row += in) y[j] = ${name}_dot${suffix}(x, row, in);
        ${scale_rows}
        if (b) ${name}_accumulate(y, b, out);
    }
}

/* The convolution's output (z, row, o) of one channel, without bias. */
${fn} float ${name}_conv_one${suffix}(const float *x, const ${type} *w, int in, const ${name}_window *g,
${space}                       int z, int row, int o)
{
    int       z0, z1, y0, y1, x0, x1;
    const int from_z = ${name}_seen(g, 0, z, &z0, &z1), from_y = ${name}_seen(g, 1, row, &y0, &y1);
    const int from_x = ${name}_seen(g, 2, o, &x0, &x1), dilation = g->dilation[2];
    float     sum = 0;
    for (int c = 0; c < in; ++c)
        for (int i = z0; i < z1; ++i)
            for (int j = y0; j < y1; ++j) {
                const ${type} *kernel = w + ((c * g->kernel[0] + i) * g->kernel[1] + j) * g->kernel[2];
                const int line =
                    (c * g->in[0] + from_z + i * g->dilation[0]) * g->in[1] + from_y + j * g->dilation[1];
                for (int k = x0; k < x1; ++k)
                    sum += (float)kernel[k] * x[line * g->in[2] + from_x + k * dilation];
            }
    return sum;
}

/* The eight outputs from (z, row, o) on of `channels` channels, 4 at most, without bias. to: floats from one
 * channel to the next. Requires a stride of 1, and whole rows of the kernel inside x. */
${NAME}_INLINE void ${name}_conv_eight${suffix}(float *y, int to, const float *x, const ${type} *w, int in,
${space}                            const ${name}_window *g, int z, int row, int o, int channels)
{
    int       z0, z1, y0, y1;
    const int from_z = ${name}_seen(g, 0, z, &z0, &z1), from_y = ${name}_seen(g, 1, row, &y0, &y1),
              width = g->kernel[2], cells = in * g->kernel[0] * g->kernel[1] * width;
    ${name}_vector sum[4][8 / ${NAME}_WIDTH];
    ${NAME}_FLAT for (int channel = 0; channel < channels; ++channel)
        ${NAME}_FLAT for (int v = 0; v < 8 / ${NAME}_WIDTH; ++v) sum[channel][v] = ${name}_splat(0);
    for (int c = 0; c < in; ++c)
        for (int i = z0; i < z1; ++i)
            for (int j = y0; j < y1; ++j) {
                const ${type} *kernel = w + ((c * g->kernel[0] + i) * g->kernel[1] + j) * width;
                const int line =
                    (c * g->in[0] + from_z + i * g->dilation[0]) * g->in[1] + from_y + j * g->dilation[1];
                const float *first = x + line * g->in[2] + o - g->padding[2];
                for (int k = 0; k < width; ++k, first += g->dilation[2])
                    ${NAME}_FLAT for (int v = 0; v < 8 / ${NAME}_WIDTH; ++v) {
                        const ${name}_vector own = ${name}_load(first + v * ${NAME}_WIDTH);
                        ${NAME}_FLAT for (int channel = 0; channel < channels; ++channel)
                            sum[channel][v] += (float)kernel[channel * cells + k] * own;
                    }
            }
    ${NAME}_FLAT for (int channel = 0; channel < channels; ++channel)
        ${NAME}_FLAT for (int v = 0; v < 8 / ${NAME}_WIDTH; ++v)
            ${name}_store(y + channel * to + v * ${NAME}_WIDTH, sum[channel][v]);
}

/* Convolution: x [n][groups * in][...], w [groups * out][in][kernel], b [groups * out] or NULL,
 * y [n][groups * out][...]. */
${fn} void ${name}_conv${suffix}(float *y, const float *x, const ${type} *w, ${scale}const float *b, int n,
${space}                  int groups, int in, int out, const ${name}_window *g)
{
    const int from = g->in[0] * g->in[1] * g->in[2], to = g->out[0] * g->out[1] * g->out[2];
    const int cells = in * g->kernel[0] * g->kernel[1] * g->kernel[2];
    const int most = ${NAME}_WIDTH > 1 ? 4 : 1; /* channels at once: their sums fit into vector registers */
    int       left, right, end, count;
    (void)${name}_inside(g, 2, 0, &left, &end);
    (void)${name}_inside(g, 2, g->kernel[2] - 1, &end, &right);
    const bool wide = g->stride[2] == 1 && right - left >= 8;
    for (int i = 0; i < n * groups; ++i, x += in * from)
        for (int first = i % groups * out, last = first + out; first < last; first += count) {
            const ${type} *kernel = w + first * cells;
            float         *own = y;
            count = last - first < most ? 1 : most;
            for (int z = 0; z < g->out[0]; ++z)
                for (int row = 0; row < g->out[1]; ++row, own += g->out[2])
                    for (int o = 0; o < g->out[2];) {
                        const bool eight = wide && o >= left && o < right;
                        if (eight && o > right - 8) o = right - 8; /* recomputes some outputs */
                        if (eight && count == 4)
                            ${name}_conv_eight${suffix}(own + o, to, x, kernel, in, g, z, row, o, 4);
                        else if (eight)
                            ${name}_conv_eight${suffix}(own + o, to, x, kernel, in, g, z, row, o, 1);
                        for (int c = 0; !eight && c < count; ++c)
                            own[c * to + o] =
                                ${name}_conv_one${suffix}(x, kernel + c * cells, in, g, z, row, o);
                        o += eight ? 8 : 1;
                    }
            for (int j = first; j < first + count; ++j, y += to)
                for (int o = 0; o < to; ++o) y[o] = y[o]${row_scale} + (b ? b[j] : 0);
        }
}

/* Transposed convolution: x [n][groups * in][...], w [groups * in][out][kernel], b [groups * out] or NULL,
 * y [n][groups * out][...]. x has the shape of g's outputs, y that of g's inputs. */
${fn} void ${name}_conv_transpose${suffix}(float *y, const float *x, const ${type} *w, ${scale}const float *b,
${space}                            int n, int groups, int in, int out, const ${name}_window *g)
{
    const int from = g->out[0] * g->out[1] * g->out[2], to = g->in[0] * g->in[1] * g->in[2];
    for (int i = 0; i < n * groups; ++i, y += out * to) {
        const ${type} *kernel = w + i % groups * in * out * g->kernel[0] * g->kernel[1] * g->kernel[2];
        for (int c = 0; c < out; ++c) ${name}_fill(y + c * to, b ? b[i % groups * out + c] : 0, to);
        for (int j = i % groups * in; j < (i % groups + 1) * in; ++j, x += from)
            for (int c = 0; c < out; ++c)
                for (int z = 0; z < g->kernel[0]; ++z)
                    for (int row = 0; row < g->kernel[1]; ++row)
                        for (int column = 0; column < g->kernel[2]; ++column)
                            ${name}_spread(y + c * to, x, (float)*kernel++${row_scale}, g, z, row, column);
    }
}

/* A recurrent layer of one sample in one direction. room: scratch of (2 * gates + 2) * hidden floats. h_0,
 * c_0: initial states (NULL: zeros). h_n, c_n: final states (NULL: not stored). x_step, y_step: floats from
 * one step to the next. y = 0 from step `length` on. */
typedef struct ${name}_recurrent${suffix} {
    const ${type} *w_ih, *w_hh;
    ${scales}
    const float *b_ih, *b_hh, *h_0, *c_0;
    float       *room, *h_n, *c_n;
    int          length, steps, in, hidden, x_step, y_step;
    bool         reverse;
} ${name}_recurrent${suffix};

/* Runs the layer over its steps; `cell` updates the states from `gates` gates. */
${NAME}_INLINE void ${name}_run${suffix}(
    float *y, const float *x, const ${name}_recurrent${suffix} *r, int gates,
    void (*cell)(const float *g, const float *q, float *h, float *c, int hidden))
{
    const int n = r->hidden;
    float    *g = r->room, *q = g + gates * n, *h = q + gates * n, *c = h + n;
    ${name}_fill(h, 0, 2 * n);
    if (r->h_0) ${name}_copy(h, r->h_0, n);
    if (r->c_0) ${name}_copy(c, r->c_0, n);
    for (int s = 0; s < r->steps; ++s) {
        const int t = r->reverse ? r->steps - 1 - s : s;
        if (t < r->length) {
            ${name}_linear${suffix}(g, x + t * r->x_step, r->w_ih, ${scale_ih}r->b_ih, 1, r->in, gates * n);
            ${name}_linear${suffix}(q, h, r->w_hh, ${scale_hh}r->b_hh, 1, n, gates * n);
            cell(g, q, h, c, n);
        }
        if (t < r->length) ${name}_copy(y + t * r->y_step, h, n);
        else ${name}_fill(y + t * r->y_step, 0, n);
    }
    if (r->h_n) ${name}_copy(r->h_n, h, n);
    if (r->c_n) ${name}_copy(r->c_n, c, n);
}
