#ifndef GPUNN__BASE_RANDOM_H
#define GPUNN__BASE_RANDOM_H
#include "base/structs.h"

/* ==== >>base/random ====================================================================================== *
 * Draws initial values with Philox (>>common). */
/* Writes `count` initial values, starting at element `first`, a multiple of 4. Element i of tensor `id` uses
 * word i % 4 of counter (i / 4 low, id, i / 4 high, 2^31). Dropout never reaches these counters: its fourth
 * word is the high half of the step. */
GPUNN__INTERNAL void gpunn__draw(const gpunn_init *init, uint64_t seed, uint32_t id, int64_t fan_in,
                                 int64_t first, int64_t count, float *out);

#endif /* GPUNN__BASE_RANDOM_H */
