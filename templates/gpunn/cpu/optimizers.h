#ifndef GPUNN__CPU_OPTIMIZERS_H
#define GPUNN__CPU_OPTIMIZERS_H
#include "base/structs.h"

/* ==== >>cpu/optimizers =================================================================================== *
 * Each row of the optimizer table becomes a function that makes one pass over parameter, gradient and
 * state. */
typedef struct gpunn__update_job {
    const gpunn_update  *u;
    gpunn_update_numbers n;
    float                limit; /* g = clamp(gradient * scale, -limit, limit) */
    struct gpunn__trust *trust; /* only for kinds with a trust ratio */
} gpunn__update_job;

/* Updates lines * GPUNN__LANES elements, at most GPUNN__PIECE. part: parameter, states s0, s1, s2, and the
 * output for `move`. */
typedef void gpunn__step(const gpunn__update_job *j, const float *gradient, float *const *part, int lines);

typedef struct gpunn__setting {
    const char *key;
    bool        flag;
    float       low, high, usual; /* low <= value < high */
} gpunn__setting;

typedef struct gpunn__rule {                    /* one row of the table */
    const char    *function;                    /* name of its builder */
    gpunn__setting setting[GPUNN_SETTINGS + 1]; /* ends at key NULL */
    /* the setting that needs this state, or "ALWAYS"; ends at NULL */
    const char  *state[4];
    gpunn__step *step, *move; /* move NULL: the kind has no trust ratio */
} gpunn__rule;

/* clang-format off */
GPUNN__DECLARE(const gpunn__rule gpunn__rules[GPUNN_UPDATE_COUNT])
/* clang-format on */

/* Index of the setting named key; -1 if the kind has no such setting. */
GPUNN__INTERNAL int gpunn__setting_at(gpunn_update_kind kind, const char *key);

/* Value of the setting named key. */
GPUNN__INTERNAL float gpunn__setting_of(gpunn_update_kind kind, const float *setting, const char *key);

/* A trust ratio takes two passes. The first updates states and sums both norms, in parts that depend only on
 * the count; the second applies the step. */
enum { GPUNN__TRUST_PARTS = 128 };
typedef struct gpunn__trust {
    int64_t part; /* elements per part */
    double  parameter[GPUNN__TRUST_PARTS], move[GPUNN__TRUST_PARTS];
    bool    last; /* true in the second pass */
    float   rate; /* lr * trust ratio */
} gpunn__trust;

/* Bytes of workspace for Muon's update of a matrix. */
GPUNN__INTERNAL size_t gpunn__muon_bytes(int64_t rows, int64_t columns, int threads);

/* The functions below are entries of gpunn_backend, which >>backend describes. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_update(void *context, const gpunn_update *u);

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_value_sums(void *context, const void *values, gpunn_dtype dtype,
                                                    int64_t count, gpunn_value_sums parts[GPUNN_SUM_PARTS]);

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_sum_of_squares(void *context, const float *values, int64_t count,
                                                        double *result);

GPUNN__INTERNAL bool gpunn__cpu_finite(void *context, const float *values, int64_t count);

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_scale(void *context, float *values, int64_t count, float scale,
                                               float limit);

#endif /* GPUNN__CPU_OPTIMIZERS_H */
