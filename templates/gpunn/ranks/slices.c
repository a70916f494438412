#include "ranks/slices.h"

/* ---- BF16 ---------------------------------------------------------------------------------------------- */

GPUNN__INTERNAL int64_t gpunn__bf16_part(int size)
{
    const int64_t part = GPUNN__GROUP_PIECE / ((int64_t)sizeof(uint16_t) * size);
    return part > 0 ? part : 1;
}

/* ---- parts --------------------------------------------------------------------------------------------- */

GPUNN__INTERNAL void gpunn__part_within(const int64_t *counts, int rank, int64_t at, int64_t count,
                                        int64_t *from, int64_t *to)
{
    int64_t begin = 0, end = at + count;
    for (int other = 0; other < rank && counts; other++) begin += counts[other];
    if (counts) end = begin + counts[rank];
    *from = begin > at ? begin - at : 0;
    *to = end < at + count ? end - at : count;
    if (*from > count) *from = count;
    if (*to < *from) *to = *from;
}

GPUNN__INTERNAL int64_t gpunn__sum_counts(const int64_t *counts, int size)
{
    int64_t sum = 0;
    for (int rank = 0; rank < size; rank++) sum += counts[rank];
    return sum;
}
