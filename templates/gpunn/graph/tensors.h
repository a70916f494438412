#ifndef GPUNN__GRAPH_TENSORS_H
#define GPUNN__GRAPH_TENSORS_H
#include "base/sizes.h"

/* ==== >>graph/tensors ==================================================================================== *
 * Appends tensors to models and checks operands. Every builder is a gpunn__call. It checks its operands and
 * appends parameters and nodes. After a failure it removes whatever it has appended, also if a builder inside
 * it failed. */
typedef struct gpunn__call {
    gpunn_model *model;
    const char  *op, *layer; /* for messages: op and layer; layer NULL: none */
    int          mark;       /* tensor count at its start, for undo */
} gpunn__call;

GPUNN__PRIVATE const char *const gpunn__x_name[] = {"x"};
GPUNN__PRIVATE const char *const gpunn__abc_names[] = {"a", "b", "c"};

/* Removes the tensors appended since the call began. Returns NULL. */
GPUNN__INTERNAL gpunn_tensor *gpunn__undo(const gpunn__call *call);

/* Ends a builder that is made of others: names it in result->built_by and returns result. If result is NULL,
 * because one of them failed, it undoes the call. */
GPUNN__INTERNAL gpunn_tensor *gpunn__call_finish(const gpunn__call *call, gpunn_tensor *result);

/* Records an error of the call and undoes it. Returns NULL. */
GPUNN__INTERNAL gpunn_tensor *gpunn__call_fail(const gpunn__call *call, gpunn_status status,
                                               const char *format, ...) GPUNN__PRINTF(3, 4);

/* A call on model, without checks. */
GPUNN__INTERNAL gpunn__call gpunn__call_of(gpunn_model *model, const char *op, const char *layer);

/* Whether ptr is non-NULL. NULL is recorded as an error only if no error has been recorded yet, since it may
 * come from a call that failed. */
GPUNN__INTERNAL bool gpunn__is_non_null(const gpunn__call *call, const void *ptr, const char *name);

/* Opens a call on a model; false if it is NULL. */
GPUNN__INTERNAL bool gpunn__begin_model(gpunn__call *call, gpunn_model *model, const char *op,
                                        const char *layer);

/* Checks one operand; f32: its dtype must be F32. */
GPUNN__INTERNAL bool gpunn__operand(const gpunn__call *call, const gpunn_tensor *t, const char *name,
                                    bool f32);

/* Opens a call on the model of its operands and checks these. The first f32_count must be F32. names NULL:
 * "tensors[i]". */
GPUNN__INTERNAL bool gpunn__begin(gpunn__call *call, const char *op, const char *layer,
                                  const char *const *names, gpunn_tensor *const *operands, int count,
                                  int f32_count);

/* The same for one operand x. */
GPUNN__INTERNAL bool gpunn__begin_x(gpunn__call *call, const char *op, const char *layer, gpunn_tensor *x,
                                    bool f32);

/* The same for the operands of an op in GPUNN_OTHER_OPS, with the names in its row. f32 bit i: operand i must
 * be F32. */
GPUNN__INTERNAL bool gpunn__begin_op(gpunn__call *call, const char *function, gpunn_op op,
                                     gpunn_tensor *const *operands, int count, int f32);

/* Appends a tensor; undoes the call and returns NULL on an error. */
GPUNN__INTERNAL gpunn_tensor *gpunn__append(const gpunn__call *call, gpunn__kind kind, gpunn_dtype dtype,
                                            int rank, const int64_t *dim);

/* Gives t the call's layer name for messages; on an error undoes the call and returns NULL. */
GPUNN__INTERNAL gpunn_tensor *gpunn__set_layer(const gpunn__call *call, gpunn_tensor *t);

enum { GPUNN__NAME_SIZE = 256 }; /* of any name, with the terminating zero */

/* Rank of a shape from the program; -1 after an error. batches 0: nothing in it may vary; 1: GPUNN_BATCH
 * once; 2: multiples too. */
GPUNN__INTERNAL int gpunn__rank_of(const gpunn__call *call, const gpunn_shape *shape, int batches);

/* Parses a formula to a dimension. 0 on a fault, which formula->fault describes at formula->at. */
GPUNN__INTERNAL int64_t gpunn__parse_size(gpunn__size_formula *formula);

/* Appends an F32 parameter or buffer with a name and its initial values; NULL on an error. */
GPUNN__INTERNAL gpunn_tensor *gpunn__weight(const gpunn__call *call, gpunn__kind kind, const char *name,
                                            int rank, const int64_t *dim, gpunn_init init);

/* Number of elements of an input as last written. */
GPUNN__INTERNAL int64_t gpunn__held_count(const gpunn_tensor *t);

/* Whether gpunn_save writes t. */
GPUNN__INTERNAL bool gpunn__is_saved(const gpunn_tensor *t);

/* Number of inputs summed for one output of a linear or convolution weight [out, ...]. */
GPUNN__INTERNAL int64_t gpunn__fan_in(const gpunn_tensor *t);

/* The scales of the rows of a weight that ops of 8-bit numbers alone read. NULL: it is no such weight. */
GPUNN__INTERNAL gpunn_tensor *gpunn__row_scale(const gpunn_tensor *weight);

/* Draws `count` initial values of a tensor, from element `first` on, a multiple of 4. */
GPUNN__INTERNAL void gpunn__draw_tensor(const gpunn_tensor *t, const gpunn_init *init, int64_t first,
                                        int64_t count, float *values);

/* Writes the initial values of a tensor with 32-bit storage to device memory, for backends with `draw`. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__draw_on_device(const gpunn_tensor *t, float *to);

#endif /* GPUNN__GRAPH_TENSORS_H */
