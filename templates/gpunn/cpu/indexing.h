#ifndef GPUNN__CPU_INDEXING_H
#define GPUNN__CPU_INDEXING_H
#include "base/forward_declarations.h"

/* ==== >>cpu/indexing ===================================================================================== *
 * Ops that read elements at integer indices, and ops that return the indices of the largest elements. */
enum { GPUNN__PICK_PARTS = 64, GPUNN__PICK_BLOCK = 64, GPUNN__PICK_AHEAD = 16 };
typedef struct gpunn__pick {
    const gpunn_value *index;
    int64_t            outer, m, n, inner;
    int64_t            padding; /* a row whose gradient stays unchanged; -1: none */
    const float       *from;    /* x, or the gradient of out */
    /* of x; rows of an embedding may be in 16-bit storage */
    gpunn_dtype dtype;
    float      *to; /* out, or the gradient of x */
    /* rows: rows of an embedding; add: += instead of = */
    bool rows, slices, add;
    /* bad: first position out of range per part; -1: none */
    int64_t part_size, bad[GPUNN__PICK_PARTS];
} gpunn__pick;

/* The index at position `at`. */
GPUNN__INLINE int64_t gpunn__picked(const gpunn__pick *p, int64_t at)
{
    return gpunn__integer(p->index->data, p->index->dtype, at);
}

/* The sparse gradient of a table, grad_in[1]: adds line j of p->from to row p->index[j], in the order of the
 * lines. The caller sets index, from, m, inner and padding. The workspace is taken from the arena. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__sparse_back(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action,
                                                 gpunn__pick *p, gpunn__arena *arena);

/* Reports the out-of-range index at position `at`. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__pick_fail(gpunn__cpu *cpu, const gpunn__pick *p, int64_t at);

#endif /* GPUNN__CPU_INDEXING_H */
