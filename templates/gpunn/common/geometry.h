#ifndef GPUNN__COMMON_GEOMETRY_H
#define GPUNN__COMMON_GEOMETRY_H
#include "common/traits.h"

/* ==== >>common/geometry ================================================================================= */
/* Geometry that the CPU and the GPU compute with the same code: sampling points of roi_align, hash grids, and
 * sizes of scratch memory. */
/* ---- cubic interpolation ---- */
/* Weight of a cell at this distance from a point: Keys's cubic convolution kernel with torch's a = -0.75. */
GPUNN__SHARED float gpunn__cubic(float distance)
{
    const float a = -0.75f, d = distance < 0 ? -distance : distance;
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

/* ---- roi_align: the samples of a bin along one axis ---------------------------------------------------- */
enum { GPUNN__ROI_SAMPLES = 1 << 20 };
typedef struct gpunn__roi_shape {
    int     channels, size[2], bins[2]; /* size: height and width of x; bins: of the result */
    int64_t samples, boxes;             /* number of samples of x, and of boxes */
    float   scale;
    int     ratio; /* sampling_ratio; 0: derived from a bin's size */
    bool    aligned;
} gpunn__roi_shape;
typedef struct gpunn__roi_samples {
    float start, bin;    /* of the bin, in cells: start and length */
    int   size, samples; /* size: cells of x along the axis */
    int   begin, end;    /* samples outside [begin, end) are outside x */
} gpunn__roi_samples;

GPUNN__COMMON inline gpunn__roi_shape gpunn__roi_shape_of(const gpunn_attributes *attr, const gpunn_value *x,
                                                          const gpunn_value *boxes)
{
    gpunn__roi_shape s;
    s.samples = x->dim[0];
    s.channels = (int)x->dim[1];
    s.boxes = boxes->dim[0];
    s.scale = attr->scale;
    s.ratio = attr->k;
    s.aligned = attr->align_corners;
    for (int i = 0; i < 2; i++) {
        s.size[i] = (int)x->dim[2 + i];
        s.bins[i] = attr->size[i];
    }
    return s;
}

/* Converts to an integer clamped to 0 .. most; NaN becomes 0. */
GPUNN__SHARED int gpunn__roi_bound(float at, int most)
{
    return at > 0 ? at < (float)most ? (int)at : most : 0; /* as if statements, nvcc spills registers */
}

/* Bin `bin` along an axis of a box from low to high. */
GPUNN__SHARED gpunn__roi_samples gpunn__roi_samples_of(const gpunn__roi_shape *s, int axis, float low,
                                                       float high, int bin)
{
    const float first = low * s->scale - (s->aligned ? 0.5f : 0),
                length = high * s->scale - (s->aligned ? 0.5f : 0) - first;
    gpunn__roi_samples l;
    l.size = s->size[axis];
    l.bin = (s->aligned || length > 1 ? length : 1) / (float)s->bins[axis];
    l.start = first + (float)bin * l.bin;
    l.samples = s->ratio > 0 ? s->ratio : gpunn__roi_bound(ceilf(l.bin), GPUNN__ROI_SAMPLES);
    l.begin = 0;
    l.end = l.samples;
    if (s->ratio > 0 || l.samples == 0) return l;
    const float step = l.bin / (float)l.samples; /* > 0 */
    l.begin = gpunn__roi_bound(floorf((-1 - l.start) / step) - 1, l.samples);
    l.end = gpunn__roi_bound(ceilf(((float)l.size - l.start) / step) + 1, l.samples);
    return l;
}

/* Finds the two cells beside a sample, and their weights. False: the sample is outside x. */
GPUNN__SHARED bool gpunn__roi_find(const gpunn__roi_samples *l, int sample, int cell[2], float weight[2])
{
    const float at = l->start + ((float)sample + 0.5f) * l->bin / (float)l->samples, inside = at > 0 ? at : 0;
    const int   last = l->size - 1, near = gpunn__roi_bound(inside, last);
    if (!(at >= -1 && at <= (float)l->size)) return false;
    cell[0] = near;
    cell[1] = near < last ? near + 1 : last;
    weight[1] = near < last ? inside - (float)near : 0;
    weight[0] = 1 - weight[1];
    return true;
}

/* The divisor that turns the sum of a bin's samples into their mean. */
GPUNN__SHARED float gpunn__roi_count(const gpunn__roi_samples *y, const gpunn__roi_samples *x)
{
    const float count = (float)y->samples * (float)x->samples;
    return count > 1 ? count : 1;
}

/* Type of a size or place along an axis. It has 32 bits on a GPU, where 64-bit arithmetic is slow; GPU
 * functions reject larger values. */
#ifdef GPUNN__COMPANION
typedef int      gpunn__extent;
typedef unsigned gpunn__unsigned;
enum { GPUNN__ARENA_ALIGN = 256 }; /* bytes */
#else
typedef int64_t  gpunn__extent;
typedef uint64_t gpunn__unsigned;
enum { GPUNN__ARENA_ALIGN = 64 };
#endif

/* Products of 8-bit numbers in a sum: 255 * 128 times that, and a bias of 2^30, fit 32 bits. */
enum { GPUNN__MOST_PRODUCTS = 32768 };

/* A buffer handed out in aligned pieces. With base NULL it only adds up their sizes. */
typedef struct gpunn__arena {
    char  *base;
    size_t bytes;
} gpunn__arena;

/* Takes the next piece of the buffer; NULL without a base. */
GPUNN__COMMON void *gpunn__arena_take(gpunn__arena *arena, size_t bytes)
{
    void *at = arena->base ? arena->base + arena->bytes : NULL;
    arena->bytes += (bytes + GPUNN__ARENA_ALIGN - 1) / GPUNN__ARENA_ALIGN * GPUNN__ARENA_ALIGN;
    return at;
}

/* ---- hash grids: levels of cells; each corner of a cell has a row in one table ------------------------- */
enum { GPUNN__HASH_LEVELS = 32, GPUNN__HASH_AXES = 3, GPUNN__HASH_FEATURES = 8 };
typedef struct gpunn__hash_level {
    float    scale;      /* factor from coordinates to cells */
    uint32_t resolution; /* corners along an axis; 0: more corners than rows, so a hash selects the row */
    uint32_t rows;
    int64_t  first; /* first row of the level */
} gpunn__hash_level;
typedef struct gpunn__hash_grid {
    int               axes, levels, features;
    int64_t           rows;
    gpunn__hash_level level[GPUNN__HASH_LEVELS];
} gpunn__hash_grid;

/* The layout of tiny-cuda-nn's GridEncoding. False: a resolution does not fit 31 bits. */
GPUNN__COMMON inline bool gpunn__hash_grid_of(const gpunn_attributes *attr, int axes, int features,
                                              gpunn__hash_grid *grid)
{
    double cells = attr->base_resolution;
    memset(grid, 0, sizeof *grid);
    grid->axes = axes;
    grid->levels = attr->n_levels;
    grid->features = features;
    for (int l = 0; l < grid->levels; l++, cells *= (double)attr->per_level_scale) {
        gpunn__hash_level *level = &grid->level[l];
        if (!(cells < 2147483000.0)) return false;
        const uint32_t most = (uint32_t)1 << attr->log2_hashmap_size,
                       resolution = (uint32_t)ceil(cells - 1) + 1;
        double corners = 1;
        for (int i = 0; i < axes; i++) corners *= (double)resolution;
        const double rows = ceil(corners / 8) * 8;
        level->scale = (float)(cells - 1);
        level->resolution = corners <= (double)most ? resolution : 0;
        level->rows = rows < (double)most ? (uint32_t)rows : most;
        level->first = grid->rows;
        grid->rows += level->rows;
    }
    return true;
}

typedef struct gpunn__hash_place { /* place of a point in a level */
    uint32_t cell[GPUNN__HASH_AXES];
    float    part[GPUNN__HASH_AXES]; /* fraction of the way to the next cell */
} gpunn__hash_place;

/* axes is a parameter of its own because callers pass a constant. */
GPUNN__SHARED gpunn__hash_place gpunn__hash_find(int axes, const gpunn__hash_level *level, const float *x)
{
    gpunn__hash_place place = {{0, 0, 0}, {0, 0, 0}};
    for (int i = 0; i < axes; i++) {
        const float at = x[i] * level->scale + 0.5f, cell = floorf(at);
        const float low = cell > -1e9f ? cell : -1e9f; /* also replaces NaN */
        place.cell[i] = (uint32_t)(int32_t)(low < 1e9f ? low : 1e9f);
        place.part[i] = at - cell;
    }
    return place;
}

/* Row of one of the cell's corners. Bit i of corner: the next cell along axis i. */
/* Factor of an axis in the hash of a cell (Mueller et al., 2022). */
GPUNN__SHARED uint32_t gpunn__hash_factor(int axis)
{
    if (axis == 0) return 1;
    return axis == 1 ? 2654435761u : 805459861u;
}

GPUNN__SHARED int64_t gpunn__hash_row(int axes, const gpunn__hash_level *level,
                                      const gpunn__hash_place *place, int corner)
{
    uint32_t index = 0, stride = 1;
    for (int i = 0; i < axes; i++) {
        const uint32_t cell = place->cell[i] + (uint32_t)(corner >> i & 1);
        if (level->resolution)
            index += cell * stride;
        else
            index ^= cell * gpunn__hash_factor(i);
        stride *= level->resolution;
    }
    return level->first + index % level->rows;
}

/* Interpolation weight of a corner, without the factor of axis `but`; -1: with all factors. */
GPUNN__SHARED float gpunn__hash_weight(int axes, const gpunn__hash_place *place, int corner, int but)
{
    float weight = 1;
    for (int i = 0; i < axes; i++)
        if (i != but) weight *= corner >> i & 1 ? place->part[i] : 1 - place->part[i];
    return weight;
}

/* Writes a point's features of one level to `out`. */
GPUNN__SHARED void gpunn__hash_features(int axes, const gpunn__hash_level *level, const float *x,
                                        const float *table, int features, float *out)
{
    const gpunn__hash_place place = gpunn__hash_find(axes, level, x);
    float                   sum[GPUNN__HASH_FEATURES] = {0};
    for (int corner = 0; corner < 1 << axes; corner++) {
        const float  weight = gpunn__hash_weight(axes, &place, corner, -1);
        const float *row = table + gpunn__hash_row(axes, level, &place, corner) * features;
        for (int f = 0; f < GPUNN__HASH_FEATURES; f++)
            if (f < features) sum[f] += weight * row[f];
    }
    for (int f = 0; f < GPUNN__HASH_FEATURES; f++)
        if (f < features) out[f] = sum[f];
}

/* Adds the gradient with respect to each coordinate: dx[i] += sum over the features of dy times their
 * derivative by coordinate i. */
GPUNN__SHARED void gpunn__hash_dx(int axes, const gpunn__hash_level *level, const float *x,
                                  const float *table, int features, const float *dy, float *dx)
{
    const gpunn__hash_place place = gpunn__hash_find(axes, level, x);
    for (int corner = 0; corner < 1 << axes; corner++) {
        const float *row = table + gpunn__hash_row(axes, level, &place, corner) * features;
        float        sum = 0;
        for (int f = 0; f < features; f++) sum += dy[f] * row[f];
        sum *= level->scale;
        for (int i = 0; i < axes; i++)
            dx[i] += (corner >> i & 1 ? sum : -sum) * gpunn__hash_weight(axes, &place, corner, i);
    }
}

/* Normalises a pixel like torchvision's ToTensor and Normalize. */
GPUNN__SHARED float gpunn__normalized(uint8_t x, float mean, float std)
{
    return ((float)x / 255.0f - mean) / std;
}

/* Element i of I64, I32 or U8 storage. */
GPUNN__SHARED int64_t gpunn__integer(const void *data, gpunn_dtype dtype, int64_t i)
{
    return dtype == GPUNN_I64   ? ((const int64_t *)data)[i]
           : dtype == GPUNN_I32 ? ((const int32_t *)data)[i]
                                : ((const uint8_t *)data)[i];
}

/* The row numbers of a sparse gradient, behind its `count` floats. */
GPUNN__COMMON int64_t *gpunn__sparse_rows(void *values, int64_t count)
{
    return (int64_t *)(void *)((float *)values + (count + 15) / 16 * 16);
}

#endif /* GPUNN__COMMON_GEOMETRY_H */
