#ifndef GPUNN__TRAIN_CALIBRATE_H
#define GPUNN__TRAIN_CALIBRATE_H
#include "base/structs.h"

/* ==== >>train/calibrate ================================================================================== *
 * Finds what of a network can be computed in 8 bits, and records the ranges of its values. */
enum { GPUNN__SIDE_BINS = 4096, GPUNN__BYTE_MAX = 255 }; /* GPUNN__SIDE_BINS: bins of one sign */

/* A histogram of a value over all runs so far. Zeros are not counted: every range represents them exactly. */
typedef struct gpunn__observed {
    gpunn_tensor *of;
    float         low, high;                  /* the least and the greatest number, and 0 */
    double        width;                      /* of a bin, a power of 2; 0: only zeros so far */
    int64_t       bins[2 * GPUNN__SIDE_BINS]; /* bin GPUNN__SIDE_BINS begins at 0 */
} gpunn__observed;

struct gpunn__calibration {
    uint64_t         version; /* of the weights */
    int              output_count, count;
    gpunn_tensor   **outputs;  /* [output_count] */
    gpunn__observed *observed; /* [count] */
};

/* A linear layer, a convolution or a sum, with the ops behind it that become part of it. */
typedef struct gpunn__node_unit {
    gpunn_tensor *first;
    gpunn_tensor *norm;      /* batch norm of a product; NULL: none */
    gpunn_tensor *end;       /* the last of its ops */
    float         low, high; /* bounds of its result: those of a relu, for example */
} gpunn__node_unit;

/* The part of a model that computes its outputs. */
typedef struct gpunn__network {
    gpunn_model *model;
    /* [tensor_count]; shown: the units read or compute it, so that its range counts */
    bool *needed, *shown;
    int  *reader; /* [tensor_count]: id of the only tensor that reads it; negative: none, or several */
    gpunn__node_unit *units; /* [unit_count], by rising ids of `first`; room for tensor_count */
    int               unit_count;
} gpunn__network;

/* Fails if gpunn_lora's adapters or ops of 8-bit numbers stand in the way. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__check_floats(const gpunn_model *model, const char *function);

/* Free it after a failure, too. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__network_find(gpunn_model *model, gpunn_tensor *const *outputs, int count,
                                                  gpunn__network *network);
GPUNN__INTERNAL void          gpunn__network_free(gpunn__network *network);

/* Number of operands of a unit that are values of 8 bits. */
GPUNN__INTERNAL int gpunn__unit_operands(const gpunn__node_unit *unit);

/* Whether the op moves elements of its first operand, so that bytes can be moved in their place. A max pool
 * moves the greatest. */
GPUNN__INTERNAL bool gpunn__moves_elements(const gpunn_tensor *t);

/* Whether it is a concat whose operands can be bytes of one range. */
GPUNN__INTERNAL bool gpunn__joins_elements(const gpunn_tensor *t);

/* The tensor whose range is that of t: t itself, or what t takes its elements from. */
GPUNN__INTERNAL const gpunn_tensor *gpunn__range_root(const gpunn_tensor *t);

/* Evaluates all values that are shown, so that they can be read. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__run_shown(const gpunn__network *network);

/* The floats of a tensor in host memory, to be freed with gpunn__free. NULL on failure. */
GPUNN__INTERNAL float *gpunn__read_floats(gpunn_tensor *t, int64_t *count);

/* The record of a tensor's range, in a model with a calibration; NULL: there is none. */
GPUNN__INTERNAL const gpunn__observed *gpunn__observed_of(const gpunn_model *model, const gpunn_tensor *t);

/* Whether there is a calibration of these weights. */
GPUNN__INTERNAL bool gpunn__is_calibrated(const gpunn_model *model);

/* The bound t for which rounding what is clipped to -t .. t loses the least information: the smallest
 * Kullback-Leibler divergence. */
GPUNN__INTERNAL double gpunn__entropy_bound(const gpunn__observed *o);

#endif /* GPUNN__TRAIN_CALIBRATE_H */
