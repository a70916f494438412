#ifndef GPUNN__CUDA_CUDA_POOL_H
#define GPUNN__CUDA_CUDA_POOL_H
#include "base/config.h"

/* ==== >>cuda/pool ================================================================================================== *
 * Volumes [d, h, w] -> [od, oh, ow], one per image and channel; a plane is a volume of depth 1, for which the kernels that are
 * not `deep` are made. Forward: a thread for each result, or a block where windows are large. Backward gathers: a thread has
 * eight cells side by side and adds up what the windows over them hand back, in their order. With channels last a thread has
 * eight channels of one result or cell. */
typedef struct gpunn__pool {
    int64_t          results, cells; /* of all volumes */
    gpunn__pool_axis z, y, x;
    int              channels, packs; /* channels last: packs of eight channels that a cell has */
    int64_t          images;          /* channels last */
    bool             average, count_exclude_pad, accumulate;
    int              at_bytes; /* of one position of a maximum: its index in the largest window; 0: positions are not wanted */
    void            *at;
    const void      *from; /* x, or the gradient of y */
    void            *to;   /* y, or the gradient of x */
    gpunn_dtype      from_dtype, to_dtype;
} gpunn__pool;

GPUNN__INTERNAL gpunn__pool gpunn__pool_of(const gpunn_step *step);

/* Whether a maximum's windows lie side by side and cover every cell, each small enough for one thread. */
GPUNN__INTERNAL bool gpunn__pool_tiles(const gpunn_step *step, const gpunn__pool *p);

#endif /* GPUNN__CUDA_CUDA_POOL_H */
