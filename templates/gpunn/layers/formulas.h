#ifndef GPUNN__LAYERS_FORMULAS_H
#define GPUNN__LAYERS_FORMULAS_H
#include "base/forward_declarations.h"
#include "graph/arguments.h"
#include "graph/tensors.h"

/* ==== >>layers/formulas ================================================================================= */
/* Builders that follow from a row: from a formula in GPUNN__FORMULAS (>>graph/expr), such as most losses and
 * many activations, or from a signature in GPUNN_SIGNATURE_OPS (>>graph/infer). */

/* A builder's name and formula. `fits` checks operands and arguments; `operands` are names for messages. */
typedef struct gpunn__formula_row {
    const char *name, *formula;
    int         count; /* number of operands */
    bool (*fits)(const gpunn__call *call, gpunn_tensor *const *in, int count, const void *args);
    const char *operands[3];
} gpunn__formula_row;

#define GPUNN__X(X, row, ...) GPUNN__DECLARE(const gpunn__formula_row gpunn__formula_of_##row)
GPUNN__FORMULAS(GPUNN__X, )
#undef GPUNN__X

/* Makes the node of an op of GPUNN_SIGNATURE_OPS. Returns NULL on failure. */
GPUNN__INTERNAL gpunn_tensor *gpunn__signature_node(const gpunn__operation *operation,
                                                    gpunn_tensor *const *in, void *args);

/* Evaluates a row's formula on its operands and arguments as nodes. Returns NULL on failure. */
GPUNN__INTERNAL gpunn_tensor *gpunn__composite(const gpunn__formula_row *row, gpunn_tensor *const *in,
                                               void *args);

#endif /* GPUNN__LAYERS_FORMULAS_H */
