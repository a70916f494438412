/* sampling.h - the next token of a text, for gpt2.c and llama.c: drawn from logits by temperature, top-k and top-p. */
#ifndef SAMPLING_H
#define SAMPLING_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct sampling {
    float temperature; /* 0: always the likeliest token */
    float top_p;
    int   top_k;
} sampling;

typedef struct candidate {
    double weight; /* its probability, times that of the likeliest */
    int    token;
} candidate;

/* SplitMix64 */
static inline uint64_t sampling_mixed(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static inline int sampling__by_weight(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->weight != y->weight ? (x->weight < y->weight) - (x->weight > y->weight) : x->token - y->token;
}

/* By softmax(logits / temperature) of the top_k likeliest, and of these the fewest that together have top_p of it; draw: which
 * random number. list: room for all. */
static inline int sampling_choose(const float *logits, int count, sampling how, uint64_t draw, candidate *list)
{
    int    best = 0, kept = 0, used = 0;
    double sum = 0, share = 0;
    for (int i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    if (how.temperature <= 0) return best;
    for (int i = 0; i < count; i++) {
        list[kept].token = i;
        list[kept].weight = exp(((double)logits[i] - (double)logits[best]) / (double)how.temperature);
        kept += list[kept].weight > 1e-9; /* others are never drawn */
    }
    qsort(list, (size_t)kept, sizeof *list, sampling__by_weight);
    if (kept > how.top_k) kept = how.top_k;
    for (int i = 0; i < kept; i++) sum += list[i].weight;
    while (used < kept && (used == 0 || share < (double)how.top_p * sum)) share += list[used++].weight;
    double left = (double)(sampling_mixed(draw) >> 11) * 0x1p-53 * share;
    for (int i = 0; i < used; i++)
        if ((left -= list[i].weight) < 0) return list[i].token;
    return best;
}

#endif
