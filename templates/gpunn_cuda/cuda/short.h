#ifndef GPUNN__CUDA_CUDA_SHORT_H
#define GPUNN__CUDA_CUDA_SHORT_H
#include "base/shared.h"
#include "cuda/formulas.h"
#include "cuda/loss.h"

/* ==== >>cuda/short ================================================================================================= *
 * Short steps in a row take longer to launch than to compute. One block does them one after another: products of a tile or two,
 * or of few multiplications for each thread, elementwise ops, sums to one number and class losses, forward and backward. Each
 * eight multiplications of a thread take about 150 clocks, a launch 4000. */
enum { GPUNN__SHORT_STEPS = 16, GPUNN__SHORT_TILES = 2, GPUNN__SHORT_EIGHTS = 24 };

typedef struct gpunn__short_map { /* as gpunn__map_job, its operands as large as the result or one number */
    gpunn_op    op;
    bool        single[GPUNN__FROM_COUNT], add[3];
    int         count;
    const void *from[GPUNN__FROM_COUNT];
    void       *to[3];
    gpunn_dtype from_dtype[GPUNN__FROM_COUNT], to_dtype[3];
    float       attr[2];
} gpunn__short_map;

typedef struct gpunn__short_sum { /* y = the sum of x / divisor; backward x = or += y / divisor */
    void       *x, *y;
    gpunn_dtype x_type, y_type;
    int         count;
    float       divisor;
    bool        add;
} gpunn__short_sum;

typedef struct gpunn__short {
    gpunn_op op;
    bool     backward, tiled; /* tiled: a product, by tiles */
    union {
        gpunn__short_map  map;
        gpunn__short_sum  sum;
        gpunn__product    product;
        gpunn__class_loss loss;
    };
} gpunn__short;

typedef struct gpunn__short_steps {
    gpunn__short step[GPUNN__SHORT_STEPS];
    int          count;
} gpunn__short_steps;
static_assert(sizeof(gpunn__short_steps) <= 4096, "a kernel's arguments");

/* Whether each node of a generated kernel's group would be a short step by itself: then it shares a launch with what stands
 * before and after the group, too. */
GPUNN__INTERNAL bool gpunn__short_group(const gpunn_step *step);

/* Takes the short steps with which the run goes on, if there are at least two. */
GPUNN__INTERNAL gpunn_status gpunn__short_run(gpunn__cuda *cuda);

#endif /* GPUNN__CUDA_CUDA_SHORT_H */
