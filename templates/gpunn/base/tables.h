#ifndef GPUNN__BASE_TABLES_H
#define GPUNN__BASE_TABLES_H
#include "base/structs.h"

/* ==== >>base/tables ====================================================================================== *
 * Queries about ops, answered from the tables in >>ops. */
typedef struct gpunn__op_info {
    const char *name;
    int         arity, attribute_count; /* elementwise ops; arity 0: another op */
    const char *attribute[2];
    float       attribute_default[2];
    /* elementwise ops: text of each derivative, NULL beyond the operands */
    const char *derivative[3];
    int         reads, reads_out, gradients; /* other ops: the columns of GPUNN_OTHER_OPS */
    const char *operands;                    /* other ops: operand names, "(x, weight, bias)"; else NULL */
} gpunn__op_info;

/* clang-format off */
GPUNN__DECLARE(const gpunn__op_info gpunn__op_infos[GPUNN_OP_COUNT])
/* clang-format on */

GPUNN__PRIVATE const struct {
    int  operands;
    bool is_bool; /* its result is BOOL */
} gpunn__integer_infos[] = {
#define GPUNN__X(ENUM, name, operands, is_bool, value) {operands, is_bool},
    GPUNN_INTEGER_OPS(GPUNN__X)
#undef GPUNN__X
};

GPUNN__INTERNAL bool gpunn__op_elementwise(gpunn_op op);

/* Name of operand i of an op that is not elementwise, written to text[GPUNN__OPERAND_SIZE]. */
enum { GPUNN__OPERAND_SIZE = 32 };
GPUNN__INTERNAL const char *gpunn__operand_name(gpunn_op op, int i, char *text);

/* Number of spatial axes. The convolutions are adjacent in GPUNN_OTHER_OPS: 1, 2 and 3 axes, then the
 * transposed ones. */
GPUNN__INLINE int gpunn__conv_axes(gpunn_op op)
{
    return (int)(op - GPUNN_OP_CONV1D) % 3 + 1;
}

/* Number of operands of an elementwise op; 0 for other ops. */
GPUNN__INTERNAL int gpunn__op_arity(gpunn_op op);

/* Number and defaults of the attributes of an elementwise op. */
GPUNN__INTERNAL int gpunn__op_attribute_count(gpunn_op op);

GPUNN__INTERNAL float gpunn__op_attribute_default(gpunn_op op, int i);

/* Whether the backward pass can compute a gradient for operand i (if it is F32). */
GPUNN__INTERNAL bool gpunn__op_has_gradient(gpunn_op op, int i);

/* Whether the backward pass reads operand i (the result). */
GPUNN__INTERNAL bool gpunn__op_reads_input(gpunn_op op, int i);

GPUNN__INTERNAL bool gpunn__op_reads_output(gpunn_op op);

#endif /* GPUNN__BASE_TABLES_H */
