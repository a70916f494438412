#ifndef GPUNN__CUDA_CUDA_SHORT_H
#define GPUNN__CUDA_CUDA_SHORT_H
#include "base/shared.h"
#include "cuda/formulas.h"
#include "cuda/loss.h"

/* ==== >>cuda/short ================================================================================================= *
 * Runs several short steps in one launch, because they take longer to launch than to compute. One block does
 * them one after another, forward or backward: small products, elementwise ops, sums to one number and class
 * losses. A product is small if it has one or two tiles, or few multiplications per thread. Eight
 * multiplications of a thread take about 150 clocks, a launch about 4000. */
enum { GPUNN__SHORT_STEPS = 16, GPUNN__SHORT_TILES = 2, GPUNN__SHORT_EIGHTS = 24 };

typedef struct gpunn__short_map { /* like gpunn__map_job; each operand has the result's size or is one number */
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
    bool     backward, tiled; /* tiled: a product, computed by tiles */
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

/* Whether each node of a generated kernel's group would be a short step by itself. Such a group is run as
 * single steps, so that it shares a launch with its neighbours. */
GPUNN__INTERNAL bool gpunn__short_group(const gpunn_step *step);

/* Launches the short steps at cuda->next as one kernel and moves cuda->next past them. Does nothing if there
 * are fewer than two. */
GPUNN__INTERNAL gpunn_status gpunn__short_run(gpunn__cuda *cuda);

#endif /* GPUNN__CUDA_CUDA_SHORT_H */
