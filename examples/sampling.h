/* sampling.h - how gpt2.c and llama.c draw the next token of a text. Include it behind gpunn.h. */
#ifndef SAMPLING_H
#define SAMPLING_H

#include <stdint.h>

typedef struct sampling {
    float temperature; /* 0: always the likeliest token */
    float top_p;
    int   top_k;
} sampling;

/* SplitMix64 */
static inline uint64_t sampling_mixed(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* From 0 to below 1. */
static inline float sampling_draw(uint64_t number)
{
    return (float)(sampling_mixed(number) >> 40) * 0x1p-24f;
}

static inline gpunn_tensor *sampling_token(gpunn_tensor *logits, gpunn_tensor *draw, sampling how)
{
    const float temperature = how.temperature > 0 ? how.temperature : GPUNN_ZERO;
    return gpunn_sample(logits, draw, .temperature = temperature, .top_k = how.top_k, .top_p = how.top_p);
}

#endif
