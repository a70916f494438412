#ifndef GPUNN__RANKS_SLICES_H
#define GPUNN__RANKS_SLICES_H
#include "base/structs.h"

/* ==== >>ranks/slices ===================================================================================== *
 * Division of values among ranks. What ranks do together is in >>train/ranks, >>train/loader,
 * >>io/safetensors and >>train/fit. */
/* GROUP_PIECE: bytes of one exchange through host memory; BF16_MOST: most values of one BF16 exchange */
enum { GPUNN__GROUP_PIECE = 1 << 22, GPUNN__BF16_MOST = GPUNN__GROUP_PIECE / 4 };

/* Number of BF16 values per rank such that all ranks' parts fit GPUNN__GROUP_PIECE bytes; at least 1. */
GPUNN__INTERNAL int64_t gpunn__bf16_part(int size);

/* Intersects the `count` values that follow `at` others with a rank's part: [*from, *to) of them. counts: as
 * in reduce_scatter; NULL: all values. */
GPUNN__INTERNAL void gpunn__part_within(const int64_t *counts, int rank, int64_t at, int64_t count,
                                        int64_t *from, int64_t *to);

/* Sum of counts[0 .. size - 1]. */
GPUNN__INTERNAL int64_t gpunn__sum_counts(const int64_t *counts, int size);

#endif /* GPUNN__RANKS_SLICES_H */
