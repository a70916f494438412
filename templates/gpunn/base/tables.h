#ifndef GPUNN__BASE_TABLES_H
#define GPUNN__BASE_TABLES_H
#include "base/structs.h"

/* ==== >>base/tables ================================================================================================ *
 * What the tables of ops say. */
typedef struct gpunn__op_info {
    const char *name;
    int         arity, attribute_count; /* of elementwise ops; arity 0: another op */
    const char *attribute[2];
    float       attribute_default[2];
    const char *derivative[3];               /* elementwise: its text, NULL beyond the operands */
    int         reads, reads_out, gradients; /* other ops */
    const char *operands;                    /* their names, "(x, weight, bias)"; NULL: other ops' alone */
} gpunn__op_info;

/* clang-format off */
GPUNN__DECLARE(const gpunn__op_info gpunn__op_infos[GPUNN_OP_COUNT])
/* clang-format on */

GPUNN__PRIVATE const struct {
    int  operands;
    bool is_bool; /* its result */
} gpunn__integer_infos[] = {
#define GPUNN__X(ENUM, name, operands, is_bool, value) {operands, is_bool},
    GPUNN_INTEGER_OPS(GPUNN__X)
#undef GPUNN__X
};

GPUNN__INTERNAL bool gpunn__op_elementwise(gpunn_op op);

/* What the row of an op that is not elementwise calls operand i, in text[GPUNN__OPERAND_SIZE]. */
enum { GPUNN__OPERAND_SIZE = 32 };
GPUNN__INTERNAL const char *gpunn__operand_name(gpunn_op op, int i, char *text);

/* The convolutions stand side by side in GPUNN_OTHER_OPS: of 1, 2 and 3 axes, then the transposed ones. */
GPUNN__INLINE int gpunn__conv_axes(gpunn_op op)
{
    return (int)(op - GPUNN_OP_CONV1D) % 3 + 1;
}

/* Operands of an elementwise op. */
GPUNN__INTERNAL int gpunn__op_arity(gpunn_op op);

GPUNN__INTERNAL int gpunn__op_attribute_count(gpunn_op op);

GPUNN__INTERNAL float gpunn__op_attribute_default(gpunn_op op, int i);

/* Whether the backward pass can give operand i a gradient (if it is F32). */
GPUNN__INTERNAL bool gpunn__op_has_gradient(gpunn_op op, int i);

/* Whether the backward pass reads operand i, and the result. */
GPUNN__INTERNAL bool gpunn__op_reads_input(gpunn_op op, int i);

GPUNN__INTERNAL bool gpunn__op_reads_output(gpunn_op op);

#endif /* GPUNN__BASE_TABLES_H */
