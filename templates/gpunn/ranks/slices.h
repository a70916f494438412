#ifndef GPUNN__RANKS_SLICES_H
#define GPUNN__RANKS_SLICES_H
#include "base/structs.h"

/* ==== >>ranks/slices =============================================================================================== *
 * How values are divided among ranks. What ranks do together is in >>train/ranks, >>train/loader, >>io/safetensors and
 * >>train/fit. */
enum { GPUNN__GROUP_PIECE = 1 << 22, GPUNN__BF16_MOST = GPUNN__GROUP_PIECE / 4 }; /* bytes; values of one exchange */

/* Values of which GPUNN__GROUP_PIECE bytes hold a part of each rank; but one at least. */
GPUNN__INTERNAL int64_t gpunn__bf16_part(int size);

/* Of `count` values behind `at` others, those of a rank's part: [*from, *to) of them. counts: as of reduce_scatter; NULL: all
 * are. */
GPUNN__INTERNAL void gpunn__part_within(const int64_t *counts, int rank, int64_t at, int64_t count, int64_t *from, int64_t *to);

/* Of all ranks' parts. */
GPUNN__INTERNAL int64_t gpunn__sum_counts(const int64_t *counts, int size);

#endif /* GPUNN__RANKS_SLICES_H */
