#ifndef GPUNN__GRAPH_NODES_H
#define GPUNN__GRAPH_NODES_H
#include "base/forward_declarations.h"
#include "graph/infer.h"

/* ==== >>graph/nodes ================================================================================================ *
 * The node of an op, and the builders of the elementwise ones. */
GPUNN__INTERNAL gpunn_attributes gpunn__no_attributes(void);
/* What the node of an op would be; false after an error. An operand may be NULL where the op says so. */
GPUNN__INTERNAL bool gpunn__infer_node(const gpunn__call *call, gpunn_op op, const gpunn_attributes *attr,
                                       gpunn_tensor *const *operands, int count, gpunn__meta *out);

GPUNN__INTERNAL gpunn_tensor *gpunn__node(const gpunn__call *call, const gpunn__operation *operation,
                                          const gpunn_attributes *attr, gpunn_tensor *const *operands, int count);

GPUNN__INTERNAL bool gpunn__same_shape(const gpunn_tensor *a, const gpunn_tensor *b);

/* count: of operands, which may be one less than op has. */
GPUNN__INTERNAL gpunn_tensor *gpunn__integer_node(gpunn_integer_op op, gpunn_tensor *const *operands, int count, int64_t number);

/* Of operands that are all integers, but for a condition, the op of that name; else -1. */
GPUNN__INTERNAL int gpunn__integer_meant(const char *name, gpunn_tensor *const *operands, int count);

/* By their numbers, for those who find them by name. */
#define GPUNN__X(ENUM, name, ...) &gpunn__operation_##name,
static const gpunn__operation *const gpunn__elementwise[] = {NULL, GPUNN__ELEMENTWISE_OPS(GPUNN__X)};
#undef GPUNN__X

GPUNN__INTERNAL gpunn_tensor *gpunn__map_node(const gpunn__operation *operation, gpunn_tensor *const *operands, float attribute1,
                                              float attribute2);

#endif /* GPUNN__GRAPH_NODES_H */
