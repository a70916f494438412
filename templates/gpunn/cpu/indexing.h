#ifndef GPUNN__CPU_INDEXING_H
#define GPUNN__CPU_INDEXING_H
#include "base/forward_declarations.h"

/* ==== >>cpu/indexing =============================================================================================== *
 * Elements that integers pick, and the integers that pick the largest. */
enum { GPUNN__PICK_PARTS = 64, GPUNN__PICK_BLOCK = 64 };
typedef struct gpunn__pick {
    const gpunn_value *index;
    int64_t            outer, m, n, inner;
    int64_t            padding;                           /* a row whose gradient stays as it is; -1: none */
    const float       *from;                              /* x, or the gradient of out */
    gpunn_dtype        dtype;                             /* of x: integers, or of which rows may be in 16 bits */
    float             *to;                                /* out, or the gradient of x */
    bool               rows, add;                         /* rows: of an embedding */
    int64_t            part_size, bad[GPUNN__PICK_PARTS]; /* the first index out of range of each part; -1: none */
} gpunn__pick;

GPUNN__INLINE int64_t gpunn__picked(const gpunn__pick *p, int64_t at)
{
    return gpunn__integer(p->index->data, p->index->dtype, at);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__pick_fail(gpunn__cpu *cpu, const gpunn__pick *p, int64_t at);

#endif /* GPUNN__CPU_INDEXING_H */
