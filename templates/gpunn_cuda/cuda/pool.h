#ifndef GPUNN__CUDA_CUDA_POOL_H
#define GPUNN__CUDA_CUDA_POOL_H
#include "base/config.h"

/* ==== >>cuda/pool ======================================================================================== *
 * Pooling of volumes [d, h, w] -> [od, oh, ow], one per image and channel. A plane is a volume of depth 1;
 * kernels that are not `deep` are specialized for it. The forward pass uses a thread per output, or a block
 * where windows are large. The backward pass gathers: a thread owns eight adjacent cells and adds the
 * contributions of the windows over them, in window order. With channels last, a thread owns eight channels
 * of one output or cell. */
typedef struct gpunn__pool {
    int64_t          results, cells; /* of all volumes */
    gpunn__pool_axis z, y, x;
    int              channels, packs; /* channels last only; packs: packs of eight channels per cell */
    int64_t          images;          /* channels last only */
    bool             average, count_exclude_pad, accumulate;
    /* bytes per saved position of a maximum, an index in the largest window; 0: not saved */
    int         at_bytes;
    void       *at;
    const void *from; /* x, or the gradient of y */
    void       *to;   /* y, or the gradient of x */
    gpunn_dtype from_dtype, to_dtype;
} gpunn__pool;

/* Describes a pooling step. images, channels and packs stay 0. */
GPUNN__INTERNAL gpunn__pool gpunn__pool_of(const gpunn_step *step);

/* Whether the windows of a max pooling lie side by side and cover every cell, each small enough for one
 * thread. */
GPUNN__INTERNAL bool gpunn__pool_tiles(const gpunn_step *step, const gpunn__pool *p);

#endif /* GPUNN__CUDA_CUDA_POOL_H */
