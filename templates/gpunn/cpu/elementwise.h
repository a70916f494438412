#ifndef GPUNN__CPU_ELEMENTWISE_H
#define GPUNN__CPU_ELEMENTWISE_H
#include "base/math.h"
#include "cpu/context.h"
#include "cpu/levels.h"

/* ==== >>cpu/elementwise ================================================================================== *
 * Elementwise ops on the CPU. Each loop is generated from the tables of ops and works on contiguous memory
 * only. One driver feeds the loops chunks of the result. In each chunk, within the first-level cache, it
 * expands broadcast operands and sums the gradients of broadcast operands. */
/* elements per iteration of a loop: one cache line, a whole number of vectors at every level */
enum { GPUNN__LANES = 16 };

enum { GPUNN__DROP_PACKS = 16, GPUNN__DROP_BLOCK = 8 * GPUNN__DROP_PACKS };

/* Dropout of one step: y (=, or += if add) x * factor. An element is kept if its 16-bit draw is less than
 * keep. */
typedef struct gpunn__drop {
    uint64_t     seed, step;
    uint32_t     random_stream, keep;
    float        scale;
    int64_t      count;
    const float *x;
    float       *y;
    bool         add;
} gpunn__drop;

/* Random words of 16 Philox packs: philox4x32-10(key, counter + {j, 0, 0, 0}) for pack j. The first number of
 * `counter` is a multiple of 16. The packs run side by side, so that the compiler vectorizes the loops. */
GPUNN__VECTORIZED(gpunn__philox_packs,
                  (uint64_t key, const uint32_t counter[4], uint32_t words[GPUNN__DROP_PACKS][4]),
                  (key, counter, words))
{
    uint32_t c0[GPUNN__DROP_PACKS], c1[GPUNN__DROP_PACKS], c2[GPUNN__DROP_PACKS], c3[GPUNN__DROP_PACKS];
    uint32_t high0[GPUNN__DROP_PACKS], high2[GPUNN__DROP_PACKS];
    for (int j = 0; j < GPUNN__DROP_PACKS; j++) {
        c0[j] = counter[0] + (uint32_t)j;
        c1[j] = counter[1];
        c2[j] = counter[2];
        c3[j] = counter[3];
    }
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        for (int j = 0; j < GPUNN__DROP_PACKS; j++)
            high0[j] = (uint32_t)((uint64_t)0xD2511F53u * c0[j] >> 32);
        for (int j = 0; j < GPUNN__DROP_PACKS; j++)
            high2[j] = (uint32_t)((uint64_t)0xCD9E8D57u * c2[j] >> 32);
        for (int j = 0; j < GPUNN__DROP_PACKS; j++) {
            uint32_t low0 = 0xD2511F53u * c0[j], low2 = 0xCD9E8D57u * c2[j];
            c0[j] = high2[j] ^ c1[j] ^ k0;
            c1[j] = low2;
            c2[j] = high0[j] ^ c3[j] ^ k1;
            c3[j] = low0;
        }
    }
    for (int j = 0; j < GPUNN__DROP_PACKS; j++) {
        words[j][0] = c0[j];
        words[j][1] = c1[j];
        words[j][2] = c2[j];
        words[j][3] = c3[j];
    }
}

/* The packs of dropout and random numbers, from pack number `pack`, a multiple of 16. */
GPUNN__INLINE void gpunn__draw_packs(const gpunn__drop *d, uint64_t pack,
                                     uint32_t words[GPUNN__DROP_PACKS][4])
{
    const uint32_t counter[4] = {(uint32_t)pack, d->random_stream ^ (uint32_t)(pack >> 32) << 16,
                                 (uint32_t)d->step, (uint32_t)(d->step >> 32)};
    gpunn__philox_packs(d->seed, counter, words);
}

/* Dropout factors (0 or scale) of 16 packs: 8 elements per pack, one for each 16-bit draw. */
GPUNN__NOINLINE void gpunn__drop_factors(const gpunn__drop *d, uint64_t pack, float factor[GPUNN__DROP_BLOCK])
{
    uint32_t words[GPUNN__DROP_PACKS][4];
    uint16_t draw[GPUNN__DROP_BLOCK];
    gpunn__draw_packs(d, pack, words);
    memcpy(draw, words, sizeof words);
    uint32_t keep = d->keep;
    float    scale = d->scale;
    for (int j = 0; j < GPUNN__DROP_BLOCK; j++) factor[j] = gpunn__select(draw[j] < keep, scale, 0);
}

/* gpunn__cast_values on the device's threads. */
GPUNN__INTERNAL void gpunn__cpu_cast_values(gpunn__cpu *cpu, void *to, gpunn_dtype to_dtype, const void *from,
                                            gpunn_dtype from_dtype, int64_t count);

/* The dropout parameters of this step's draws; x, y and count are left 0. keep is 65536 if nothing is
 * dropped. */
GPUNN__INTERNAL gpunn__drop gpunn__drop_of(const gpunn_step *step);

#endif /* GPUNN__CPU_ELEMENTWISE_H */
