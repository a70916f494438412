/* A level of a hash grid. scale: of a coordinate, to cells. resolution: corners along an axis; 0: there are more in all than
 * rows, so that a hash picks these. first: its first row in the table. */
typedef struct ${name}_hash_level {
    float    scale;
    uint32_t resolution, rows, first;
} ${name}_hash_level;

/* The cell of x along each axis, and how much of the way to the next one it has gone. */
${fn} void ${name}_hash_find(uint32_t *cell, float *part, const float *x, float scale, int axes)
{
    for (int i = 0; i < axes; ++i) {
        const float at = x[i] * scale + 0.5f, whole = ${name}_floor(at);
        const float low = whole > -1e9f ? whole : -1e9f; /* NaN goes low */
        cell[i] = (uint32_t)(int32_t)(low < 1e9f ? low : 1e9f);
        part[i] = at - whole;
    }
}

/* The row of one of the cell's corners: bit i is set where it is the next one along axis i. */
${fn} uint32_t ${name}_hash_row(const ${name}_hash_level *level, const uint32_t *cell, int corner, int axes)
{
    uint32_t index = 0, stride = 1;
    for (int i = 0; i < axes; ++i) {
        const uint32_t own = cell[i] + (uint32_t)(corner >> i & 1);
        if (level->resolution)
            index += own * stride;
        else
            index ^= own * (i == 0 ? 1u : i == 1 ? 2654435761u : 805459861u);
        stride *= level->resolution;
    }
    return level->first + index % level->rows;
}

/* How much of it x has; without axis `but`, -1: with all. */
${fn} float ${name}_hash_weight(const float *part, int corner, int axes, int but)
{
    float weight = 1;
    for (int i = 0; i < axes; ++i)
        if (i != but) weight *= corner >> i & 1 ? part[i] : 1 - part[i];
    return weight;
}

/* What a level tells of a point x of 2 or 3 axes: up to 8 features, from table[rows][features]. */
${fn} void ${name}_hash_features(float *y, const float *x, const float *table, const ${name}_hash_level *level, int axes,
${space}                           int features)
{
    uint32_t cell[3];
    float    part[3], sum[8] = {0};
    ${name}_hash_find(cell, part, x, level->scale, axes);
    for (int corner = 0; corner < 1 << axes; ++corner) {
        const float  weight = ${name}_hash_weight(part, corner, axes, -1);
        const float *row = table + (size_t)${name}_hash_row(level, cell, corner, axes) * (size_t)features;
        for (int f = 0; f < 8; ++f)
            if (f < features) sum[f] += weight * row[f];
    }
    for (int f = 0; f < 8; ++f)
        if (f < features) y[f] = sum[f];
}

/* dx += what the gradient dy of these features tells of x. */
${fn} void ${name}_hash_gradient(float *dx, const float *dy, const float *x, const float *table, const ${name}_hash_level *level,
${space}                           int axes, int features)
{
    uint32_t cell[3];
    float    part[3];
    ${name}_hash_find(cell, part, x, level->scale, axes);
    for (int corner = 0; corner < 1 << axes; ++corner) {
        const float *row = table + (size_t)${name}_hash_row(level, cell, corner, axes) * (size_t)features;
        float        sum = 0;
        for (int f = 0; f < features; ++f) sum += dy[f] * row[f];
        sum *= level->scale;
        for (int i = 0; i < axes; ++i)
            dx[i] += (corner >> i & 1 ? sum : -sum) * ${name}_hash_weight(part, corner, axes, i);
    }
}
