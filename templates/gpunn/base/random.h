#ifndef GPUNN__BASE_RANDOM_H
#define GPUNN__BASE_RANDOM_H
#include "base/structs.h"

/* ==== >>base/random ================================================================================================ *
 * Initial values, drawn by Philox (>>common). */
/* Initial values of count elements from `first` on, a multiple of 4: element i of tensor `id` is drawn from word i % 4 of counter
 * (i / 4 low, id, i / 4 high, 2^31), a range of counters that dropout, whose fourth word is the high half of the step, never
 * reaches. */
GPUNN__INTERNAL void gpunn__draw(const gpunn_init *init, uint64_t seed, uint32_t id, int64_t fan_in, int64_t first, int64_t count,
                                 float *out);

#endif /* GPUNN__BASE_RANDOM_H */
