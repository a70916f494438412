/* The sum of a[i] * b[i]: eight interleaved partial sums, added pairwise, plus the rest. */
${fn} float ${name}_dot${suffix}(const float *a, const ${type} *b, int n)
{
    float lane[${NAME}_LANES] = {0}, rest = 0;
    int   i = 0;
    for (; i + ${NAME}_LANES <= n; i += ${NAME}_LANES)
        for (int j = 0; j < ${NAME}_LANES; ++j) lane[j] += a[i + j] * (float)b[i + j];
    for (; i < n; ++i) rest += a[i] * (float)b[i];
    for (int width = ${NAME}_LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    return lane[0] + rest;
}

/* y[rows][out] = x[rows][in] w[out][in]^T + b[out]; b may be NULL.${about} */
${fn} void ${name}_linear${suffix}(float *y, const float *x, const ${type} *w, ${scale}const float *b,
${space}                    int rows, int in, int out)
{
    for (int i = 0; i < rows; ++i, x += in, y += out)
        for (int j = 0; j < out; ++j)
            y[j] = (b ? b[j] : 0) + ${name}_dot${suffix}(x, w + j * in, in)${row_scale};
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

/* The eight outputs from (z, row, o) on, without bias. Requires a stride of 1, and whole rows of the kernel
 * inside x. */
${fn} void ${name}_conv_eight${suffix}(float *y, const float *x, const ${type} *w, int in,
${space}                        const ${name}_window *g, int z, int row, int o)
{
    int       z0, z1, y0, y1;
    const int from_z = ${name}_seen(g, 0, z, &z0, &z1), from_y = ${name}_seen(g, 1, row, &y0, &y1),
              width = g->kernel[2];
    ${name}_four left = {0}, right = {0};
    for (int c = 0; c < in; ++c)
        for (int i = z0; i < z1; ++i)
            for (int j = y0; j < y1; ++j) {
                const ${type} *kernel = w + ((c * g->kernel[0] + i) * g->kernel[1] + j) * width;
                const int line =
                    (c * g->in[0] + from_z + i * g->dilation[0]) * g->in[1] + from_y + j * g->dilation[1];
                const float *first = x + line * g->in[2] + o - g->padding[2];
                for (int k = 0; k < width; ++k, first += g->dilation[2]) {
                    ${name}_add(&left, (float)kernel[k], first);
                    ${name}_add(&right, (float)kernel[k], first + 4);
                }
            }
    *(${name}_four *)y = left;
    *(${name}_four *)(y + 4) = right;
}

/* Convolution: x [n][groups * in][...], w [groups * out][in][kernel], b [groups * out] or NULL,
 * y [n][groups * out][...]. */
${fn} void ${name}_conv${suffix}(float *y, const float *x, const ${type} *w, ${scale}const float *b, int n,
${space}                  int groups, int in, int out, const ${name}_window *g)
{
    const int from = g->in[0] * g->in[1] * g->in[2], to = g->out[0] * g->out[1] * g->out[2];
    int       left, right, end;
    (void)${name}_inside(g, 2, 0, &left, &end);
    (void)${name}_inside(g, 2, g->kernel[2] - 1, &end, &right);
    const bool wide = g->stride[2] == 1 && right - left >= 8;
    for (int i = 0; i < n * groups; ++i, x += in * from)
        for (int j = i % groups * out; j < (i % groups + 1) * out; ++j, y += to) {
            const ${type} *kernel = w + j * in * g->kernel[0] * g->kernel[1] * g->kernel[2];
            float         *own = y;
            for (int z = 0; z < g->out[0]; ++z)
                for (int row = 0; row < g->out[1]; ++row, own += g->out[2])
                    for (int o = 0; o < g->out[2];) {
                        if (wide && o >= left && o < right) {
                            if (o > right - 8) o = right - 8; /* recomputes some outputs */
                            ${name}_conv_eight${suffix}(own + o, x, kernel, in, g, z, row, o);
                            o += 8;
                        } else {
                            own[o] = ${name}_conv_one${suffix}(x, kernel, in, g, z, row, o);
                            ++o;
                        }
                    }
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
${fn} void ${name}_run${suffix}(float *y, const float *x, const ${name}_recurrent${suffix} *r, int gates,
${space}                 void (*cell)(float *g, const float *q, float *h, float *c, int hidden))
{
    const int n = r->hidden;
    float    *g = r->room, *q = g + gates * n, *h = q + gates * n, *c = h + n;
    for (int k = 0; k < n; ++k) {
        h[k] = r->h_0 ? r->h_0[k] : 0;
        c[k] = r->c_0 ? r->c_0[k] : 0;
    }
    for (int s = 0; s < r->steps; ++s) {
        const int t = r->reverse ? r->steps - 1 - s : s;
        if (t < r->length) {
            ${name}_linear${suffix}(g, x + t * r->x_step, r->w_ih, ${scale_ih}r->b_ih, 1, r->in, gates * n);
            ${name}_linear${suffix}(q, h, r->w_hh, ${scale_hh}r->b_hh, 1, n, gates * n);
            cell(g, q, h, c, n);
        }
        for (int k = 0; k < n; ++k) y[t * r->y_step + k] = t < r->length ? h[k] : 0;
    }
    if (r->h_n) ${name}_copy(r->h_n, h, n);
    if (r->c_n) ${name}_copy(r->c_n, c, n);
}
