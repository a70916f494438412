#ifndef GPUNN__GRAPH_TENSORS_H
#define GPUNN__GRAPH_TENSORS_H
#include "base/sizes.h"

/* ==== >>graph/tensors ============================================================================================== *
 * Every builder is a gpunn__call: it checks its operands, appends parameters and nodes, and after a failure takes away whatever
 * it has appended, also when another builder inside it failed. */
typedef struct gpunn__call {
    gpunn_model *model;
    const char  *op, *layer; /* how its sentences begin; layer NULL: none */
    int          mark;       /* tensors to go back to */
} gpunn__call;

GPUNN__PRIVATE const char *const gpunn__x_name[] = {"x"};
GPUNN__PRIVATE const char *const gpunn__abc_names[] = {"a", "b", "c"};

GPUNN__INTERNAL gpunn_tensor *gpunn__undo(const gpunn__call *call);

/* The result of a builder that is made of others; NULL: one of these failed. */
GPUNN__INTERNAL gpunn_tensor *gpunn__made(const gpunn__call *call, gpunn_tensor *result);

GPUNN__INTERNAL gpunn_tensor *gpunn__refuse(const gpunn__call *call, gpunn_status status, const char *format, ...)
    GPUNN__PRINTF(3, 4);

GPUNN__INTERNAL gpunn__call gpunn__call_of(gpunn_model *model, const char *op, const char *layer);

/* NULL is an error only where none has been recorded: it may come from a call that failed. */
GPUNN__INTERNAL bool gpunn__given(const gpunn__call *call, const void *ptr, const char *name);

GPUNN__INTERNAL bool gpunn__begin_model(gpunn__call *call, gpunn_model *model, const char *op, const char *layer);

/* Checks one operand; f32: it must be. */
GPUNN__INTERNAL bool gpunn__operand(const gpunn__call *call, const gpunn_tensor *t, const char *name, bool f32);

/* Opens a call on the model of its operands, the first f32_count of which must be F32. names NULL: "tensors[i]". */
GPUNN__INTERNAL bool gpunn__begin(gpunn__call *call, const char *op, const char *layer, const char *const *names,
                                  gpunn_tensor *const *operands, int count, int f32_count);

/* The same for one operand, x. */
GPUNN__INTERNAL bool gpunn__begin_x(gpunn__call *call, const char *op, const char *layer, gpunn_tensor *x, bool f32);

/* The same for operands of one of the other ops, by the names in its row; f32: bit i, operand i must be F32. */
GPUNN__INTERNAL bool gpunn__begin_op(gpunn__call *call, const char *function, gpunn_op op, gpunn_tensor *const *operands,
                                     int count, int f32);

GPUNN__INTERNAL gpunn_tensor *gpunn__append(const gpunn__call *call, gpunn__kind kind, gpunn_dtype dtype, int rank,
                                            const int64_t *dim);

GPUNN__INTERNAL gpunn_tensor *gpunn__set_layer(const gpunn__call *call, gpunn_tensor *t);

enum { GPUNN__NAME_SIZE = 256 }; /* of any name, with its end */

/* The rank of a shape from the program, or -1 after an error. batches 0: nothing in it varies; 1: GPUNN_BATCH once; 2:
 * multiples. */
GPUNN__INTERNAL int gpunn__rank_of(const gpunn__call *call, const gpunn_shape *shape, int batches);

/* The dimension that a formula is; 0: none, for the fault at the place that the formula is left with. */
GPUNN__INTERNAL int64_t gpunn__parse_size(gpunn__size_formula *formula);

GPUNN__INTERNAL gpunn_tensor *gpunn__weight(const gpunn__call *call, gpunn__kind kind, const char *name, int rank,
                                            const int64_t *dim, gpunn_init init);

/* Elements of an input as it was written last. */
GPUNN__INTERNAL int64_t gpunn__held_count(const gpunn_tensor *t);

GPUNN__INTERNAL bool gpunn__is_saved(const gpunn_tensor *t);

/* Inputs that one output of a linear or convolution weight [out, ...] sums. */
GPUNN__INTERNAL int64_t gpunn__fan_in(const gpunn_tensor *t);

/* Draws count of a tensor's initial values from `first` on, a multiple of 4. */
GPUNN__INTERNAL void gpunn__draw_tensor(const gpunn_tensor *t, const gpunn_init *init, int64_t first, int64_t count,
                                        float *values);

#endif /* GPUNN__GRAPH_TENSORS_H */
