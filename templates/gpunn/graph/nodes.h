#ifndef GPUNN__GRAPH_NODES_H
#define GPUNN__GRAPH_NODES_H
#include "base/forward_declarations.h"
#include "graph/infer.h"

/* ==== >>graph/nodes ====================================================================================== *
 * Creates the node of an op, and defines the builders of the elementwise ops. */
/* Attributes that are all zero. */
GPUNN__INTERNAL gpunn_attributes gpunn__no_attributes(void);
/* Infers what the node of an op would be; false on an error. Optional operands may be NULL. */
GPUNN__INTERNAL bool gpunn__infer_node(const gpunn__call *call, const gpunn__operation *operation,
                                       const gpunn_attributes *attr, gpunn_tensor *const *operands, int count,
                                       gpunn__meta *out);

/* Appends a node with these operands; undoes the call and returns NULL on an error. */
GPUNN__INTERNAL gpunn_tensor *gpunn__node(const gpunn__call *call, const gpunn__operation *operation,
                                          const gpunn_attributes *attr, gpunn_tensor *const *operands,
                                          int count);

GPUNN__INTERNAL bool gpunn__same_shape(const gpunn_tensor *a, const gpunn_tensor *b);

/* Appends an integer op. count may be one less than its operands; `number` is then the last one. */
GPUNN__INTERNAL gpunn_tensor *gpunn__integer_node(gpunn_integer_op op, gpunn_tensor *const *operands,
                                                  int count, int64_t number);

/* The integer op with that name, if all operands are integers (except the condition of where); else -1. */
GPUNN__INTERNAL int gpunn__integer_meant(const char *name, gpunn_tensor *const *operands, int count);

/* Elementwise ops by number, for callers that look them up by name. */
#define GPUNN__X(ENUM, name, ...) &gpunn__operation_##name,
static const gpunn__operation *const gpunn__elementwise[] = {NULL, GPUNN__ELEMENTWISE_OPS(GPUNN__X)};
#undef GPUNN__X

/* Appends an elementwise op, or the integer op of that name if the operands are integers. NULL on an
 * error. */
GPUNN__INTERNAL gpunn_tensor *gpunn__map_node(const gpunn__operation *operation,
                                              gpunn_tensor *const *operands, float attribute1,
                                              float attribute2);

#endif /* GPUNN__GRAPH_NODES_H */
