#ifndef GPUNN__COMMON_UPDATES_H
#define GPUNN__COMMON_UPDATES_H
#include "common/places.h"

/* ==== >>common/updates ================================================================================== */
/* Numbers of an optimizer's update that are the same for all its elements, computed in double on the CPU or
 * the GPU. */
/* base to a whole exponent. A GPU has no instruction for pow, and a whole block waits for the thread that
 * computes this. */
GPUNN__SHARED double gpunn__power(double base, double exponent)
{
#ifdef GPUNN__COMPANION
    double result = 1;
    for (int64_t n = (int64_t)exponent; n > 0; n /= 2, base *= base)
        if (n % 2) result *= base;
    return result;
#else
    return pow(base, exponent);
#endif
}

/* NAdam's product of beta1 (1 - 0.96^(i decay) / 2) for i = 1 to step, which torch stores as state; power is
 * beta1^step. Computed by the series of the logarithm: sum over k of -1 / (k 2^k) times r^k (1 - r^(k step))
 * / (1 - r^k), with r = 0.96^decay. */
GPUNN__SHARED double gpunn__nadam_product(double power, double decay, double step)
{
    double less = -expm1(decay * log(0.96)), all_less = -expm1(step * decay * log(0.96));
    double rest = 1, all_rest = 1, below = 0, all_below = 0, half = 1, sum = 0;
    for (int k = 1; k <= 48; k++) {
        below += rest * less; /* 1 - r^k; rest becomes r^k */
        all_below += all_rest * all_less;
        rest *= 1 - less;
        all_rest *= 1 - all_less;
        half /= 2;
        sum += half / k * rest * (less > 0 ? all_below / below : step);
    }
    return power * exp(-sum);
}

/* Recovers the decimal number that was written. 0.9999f is off by 3e-8, which powers amplify. If 7 decimal
 * places represent the float, they are used. */
GPUNN__COMMON double gpunn__as_written(float value)
{
    double rounded = floor((double)value * 1e7 + 0.5) / 1e7;
    return (float)rounded == value ? rounded : (double)value;
}

/* The columns ONCE and ratio of an optimizer's row, as functions. */
/* clang-format off */
#define K(number) number##f
#define where(condition, yes, no) ((condition) != 0 ? (double)(yes) : (double)(no))
#define power(base, exponent) gpunn__power(base, exponent)
#define nadam_product(power, decay, step) gpunn__nadam_product(power, decay, step)
#define min(p, q) fmin(p, q)
#define GPUNN__NUMBER(kind, key, usual) const double key = *setting++; (void)key;
#define GPUNN__FLAG(key) GPUNN__NUMBER(, key, )
#define GPUNN__ONCE(name, value) const double name = (value); *once++ = (float)name;
/* Computes the column ONCE of a kind's row into once. */
GPUNN__SHARED void gpunn__update_once(gpunn_update_kind kind, const double *setting, double step, float *once)
{
    switch (kind) {
#define GPUNN__X(ENUM, name, settings, states, numbers, ...) \
    case GPUNN_UPDATE_##ENUM: { settings numbers } break;
    GPUNN_UPDATES(GPUNN__X, GPUNN__X, GPUNN__NUMBER, GPUNN__FLAG, , GPUNN__ONCE)
#undef GPUNN__X
    default: break;
    }
}

/* Muon's iteration on a matrix. `least` is the smaller of its sizes. */
typedef struct gpunn__muon {
    int64_t rows, columns, least;
    bool    tall; /* more rows than columns: the products are those of the transposed matrix */
    int     steps;
    float   a, b, c;
    double  eps, ratio; /* ratio: the factor of lr */
} gpunn__muon;
GPUNN__SHARED gpunn__muon gpunn__muon_of(const double *setting, int64_t rows, int64_t columns)
{
#define GPUNN__X(ENUM, name, settings, ...) settings
    GPUNN_MATRIX_OPTIMIZERS(GPUNN__X, GPUNN__NUMBER, GPUNN__FLAG, , )
#undef GPUNN__X
    const double shape = (double)rows / (double)columns;
    gpunn__muon  m = {rows, columns, rows < columns ? rows : columns, rows > columns, (int)ns_steps,
                     (float)ns_a, (float)ns_b, (float)ns_c, eps, sqrt(shape)};
    if ((int)adjust_lr_fn == GPUNN_ADJUST_LR_ORIGINAL && shape < 1) m.ratio = 1;
    if ((int)adjust_lr_fn == GPUNN_ADJUST_LR_MATCH_RMS_ADAMW)
        m.ratio = 0.2 * sqrt((double)(rows + columns - m.least));
    return m;
}

/* The trust ratio. norms: norm of the parameter divided by that of the move. */
GPUNN__SHARED double gpunn__update_ratio(gpunn_update_kind kind, const double *setting, double norms)
{
    switch (kind) {
#define GPUNN__TRUST(ENUM, name, settings, states, numbers, step, move, trust) \
    case GPUNN_UPDATE_##ENUM: { settings return trust; }
    GPUNN_TRUST_OPTIMIZERS(GPUNN__TRUST, GPUNN__NUMBER, GPUNN__FLAG, , )
#undef GPUNN__TRUST
    default: return 1;
    }
}
#undef K
#undef where
#undef power
#undef nadam_product
#undef min
#undef GPUNN__NUMBER
#undef GPUNN__FLAG
#undef GPUNN__ONCE
/* clang-format on */

#endif /* GPUNN__COMMON_UPDATES_H */
