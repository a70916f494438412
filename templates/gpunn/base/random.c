#include "base/random.h"

GPUNN__INTERNAL void gpunn__draw(const gpunn_init *init, uint64_t seed, uint32_t id, int64_t fan_in,
                                 int64_t first, int64_t count, float *out)
{
    double a = (double)init->a, b = (double)init->b;
    if (init->kind == GPUNN_INIT_KAIMING_UNIFORM) {
        const double fan = fan_in > 0 ? (double)fan_in : 1;
        b = 1.0 / sqrt(a > 0 ? a : fan);
        a = -b;
    }
    for (int64_t i = 0; i < count; i += 4) {
        uint64_t pack = (uint64_t)(first + i) / 4;
        uint32_t counter[4], word[4];
        counter[0] = (uint32_t)pack;
        counter[1] = id;
        counter[2] = (uint32_t)(pack >> 32);
        counter[3] = 0x80000000u;
        gpunn__philox(seed, counter, word);
        for (int j = 0; j < 4 && i + j < count; j++) {
            double value = 0;
            if (init->kind == GPUNN_INIT_CONSTANT)
                value = a;
            else if (init->kind == GPUNN_INIT_NORMAL) { /* Box-Muller: words 2j and 2j + 1 give two values */
                double radius = sqrt(-2 * log(((double)word[j & 2] + 1) / 4294967296.0));
                double angle = (double)word[(j & 2) + 1] * (6.283185307179586 / 4294967296.0);
                value = a + b * radius * (j & 1 ? sin(angle) : cos(angle));
            } else if (init->kind == GPUNN_INIT_UNIFORM || init->kind == GPUNN_INIT_KAIMING_UNIFORM)
                value = a + (b - a) * ((double)(word[j] >> 8) / 16777216.0);
            out[i + j] = (float)value;
        }
    }
}
