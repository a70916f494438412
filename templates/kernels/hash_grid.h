/* A level of a hash grid (instant-ngp). scale: cells per unit of a coordinate. resolution: corners along an
 * axis, or 0 if the level has more corners than rows, in which case a hash picks the row. first: the level's
 * first row in the table. */
typedef struct ${name}_hash_level {
    float    scale;
    uint32_t resolution, rows, first;
} ${name}_hash_level;

/* cell[i] = the cell of x along axis i; part[i] = the position of x within that cell, 0 to 1. */
${fn} void ${name}_hash_find(uint32_t *cell, float *part, const float *x, float scale, int axes)
{
    for (int i = 0; i < axes; ++i) {
        const float at = x[i] * scale + 0.5f, whole = ${name}_floor(at);
        const float low = whole > -1e9f ? whole : -1e9f; /* NaN becomes -1e9 */
        cell[i] = (uint32_t)(int32_t)(low < 1e9f ? low : 1e9f);
        part[i] = at - whole;
    }
}

/* The table row of a corner of the cell. Bit i of `corner` selects the upper corner along axis i. */
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

/* The corner's interpolation weight: a product over all axes except `but` (-1: no exception). */
${fn} float ${name}_hash_weight(const float *part, int corner, int axes, int but)
{
    float weight = 1;
    for (int i = 0; i < axes; ++i)
        if (i != but) weight *= corner >> i & 1 ? part[i] : 1 - part[i];
    return weight;
}

/* y[features] = the features of one level at point x: multilinear interpolation of table[rows][features]. 2
 * or 3 axes, at most 8 features. */
${fn} void ${name}_hash_features(float *y, const float *x, const float *table,
${space}                           const ${name}_hash_level *level, int axes, int features)
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

/* dx[axes] += the gradient of x for the gradient dy[features] of the features. */
${fn} void ${name}_hash_gradient(float *dx, const float *dy, const float *x, const float *table,
${space}                           const ${name}_hash_level *level, int axes, int features)
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
