#if defined(${isa})
#if defined(__GNUC__)
typedef float ${name}_${level} __attribute__((vector_size(4 * ${floats})));
typedef float ${name}_${level}_memory __attribute__((vector_size(4 * ${floats}), aligned(4), may_alias));
#else
typedef float ${name}_${level}, ${name}_${level}_memory;
#endif

/* y[j] = value[j] for j < columns; the whole vector if `columns` is larger. */
${isa} ${NAME}_FN void ${name}_${level}_put(float *y, ${name}_${level} value, int columns)
{
    if (columns >= ${floats}) {
        *(${name}_${level}_memory *)y = value;
        return;
    }
    float part[${floats}];
    memcpy(part, &value, sizeof part);
    for (int j = 0; j < ${floats}; ++j)
        if (j < columns) y[j] = part[j];
}

/* y = x w + bias for R rows and V vectors of columns. Each element has U partial sums, so that about 8 sums
 * are independent of each other. Partial sum u adds inputs u, u + U, ...; the first starts with the bias. */
${isa} ${NAME}_FN void ${name}_${level}_tile(float *y, int64_t y_row, const float *x, int64_t x_row,
                                             const float *w, int in, int columns, const int R, const int V)
{
    const int U = R * V >= 6 ? 1 : R * V >= 3 ? 2 : 4;
    const ${name}_${level} none = {0};
    ${name}_${level} sum[6][8], factor[4];
    ${NAME}_UNROLL
    for (int i = 0; i < R; ++i) {
        ${NAME}_UNROLL
        for (int v = 0; v < V; ++v) sum[i][v] = *(const ${name}_${level}_memory *)(w + v * ${floats});
        ${NAME}_UNROLL
        for (int v = V; v < V * U; ++v) sum[i][v] = none;
    }
    w += V * ${floats};
    for (int k = 0; k < in; k += U) {
        ${NAME}_UNROLL
        for (int u = 0; u < U; ++u) {
            if (k + u >= in) break;
            ${NAME}_UNROLL
            for (int v = 0; v < V; ++v) {
                factor[v] = *(const ${name}_${level}_memory *)(w + (u * V + v) * ${floats});
                if (R > 1) ${NAME}_HOLD(factor[v]);
            }
            ${NAME}_UNROLL
            for (int i = 0; i < R; ++i) {
                ${NAME}_UNROLL
                for (int v = 0; v < V; ++v) sum[i][u * V + v] += x[i * x_row + k + u] * factor[v];
            }
        }
        w += U * V * ${floats};
    }
    ${NAME}_UNROLL
    for (int i = 0; i < R; ++i) {
        ${NAME}_UNROLL
        for (int v = 0; v < V; ++v) {
            ${NAME}_UNROLL
            for (int u = 1; u < U; ++u) sum[i][v] += sum[i][u * V + v];
            ${name}_${level}_put(y + i * y_row + v * ${floats}, sum[i][v], columns - v * ${floats});
        }
    }
}

/* All rows of V vectors of columns, in tiles whose sums fit into registers. */
${isa} ${NAME}_FN void ${name}_${level}_panel(float *y, int64_t y_row, const float *x, int64_t x_row,
                                              const float *w, int rows, int in, int columns, const int V)
{
    int i = 0;
    for (; 6 * V <= ${sums} && i + 6 <= rows; i += 6)
        ${name}_${level}_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 6, V);
    for (; 4 * V <= ${sums} && i + 4 <= rows; i += 4)
        ${name}_${level}_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 4, V);
    for (; i + 2 <= rows; i += 2)
        ${name}_${level}_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 2, V);
    if (i < rows) ${name}_${level}_tile(y + i * y_row, y_row, x + i * x_row, x_row, w, in, columns, 1, V);
}

/* y[rows][out] = x w^T + b with packed weights, panel by panel. */
${isa} ${NAME}_SELDOM void ${name}_${level}_product(float *y, const float *x, int64_t x_row,
                                                    const float *packed, int rows, int in, int out)
{
    for (int j = 0, width; j < out; j += ${panel} * ${floats}, packed += (in + 1) * width) {
        const int columns = ${name}_least(out - j, ${panel} * ${floats});
        width = (columns + ${floats} - 1) / ${floats} * ${floats};
        if (columns <= ${floats})
            ${name}_${level}_panel(y + j, out, x, x_row, packed, rows, in, columns, 1);
        //@if wide
        else if (columns <= 2 * ${floats})
            ${name}_${level}_panel(y + j, out, x, x_row, packed, rows, in, columns, 2);
        else if (columns <= 3 * ${floats})
            ${name}_${level}_panel(y + j, out, x, x_row, packed, rows, in, columns, 3);
        //@end
        else
            ${name}_${level}_panel(y + j, out, x, x_row, packed, rows, in, columns, ${panel});
    }
}
#endif
