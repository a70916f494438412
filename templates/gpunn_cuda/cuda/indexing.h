#ifndef GPUNN__CUDA_CUDA_INDEXING_H
#define GPUNN__CUDA_CUDA_INDEXING_H
#include "base/shared.h"

/* The sparse gradient of a table, grad_in[1]: adds line i of `terms` to row rows[i]. The workspace is taken
 * from the arena. prepares: sets only its size. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_add_rows(gpunn__cuda *cuda, gpunn_step *step, const int64_t *rows,
                                                  const float *terms, int64_t count, gpunn__arena *arena,
                                                  bool prepares);

#endif /* GPUNN__CUDA_CUDA_INDEXING_H */
