#include "base/tables.h"

/* clang-format off */
GPUNN__INTERNAL const gpunn__op_info gpunn__op_infos[GPUNN_OP_COUNT] = {
    {"none", 0, 0, {NULL, NULL}, {0, 0}, {NULL, NULL, NULL}, 0, 0, 0, NULL},
#define K(number) number##f
#define GPUNN__X(ENUM, name, f, dx) {#name, 1, 0, {NULL, NULL}, {0, 0}, {#dx, NULL, NULL}, 0, 0, 0, NULL},
    GPUNN_UNARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr, value, f, dx) \
    {#name, 1, 1, {#attr, NULL}, {value, 0}, {#dx, NULL, NULL}, 0, 0, 0, NULL},
    GPUNN_UNARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, attr2, value2, f, dx) \
    {#name, 1, 2, {#attr1, #attr2}, {value1, value2}, {#dx, NULL, NULL}, 0, 0, 0, NULL},
    GPUNN_UNARY2_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, f, da, db) {#name, 2, 0, {NULL, NULL}, {0, 0}, {#da, #db, NULL}, 0, 0, 0, NULL},
    GPUNN_BINARY_OPS(GPUNN__X) GPUNN_LOSS_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr, value, f, da, db) \
    {#name, 2, 1, {#attr, NULL}, {value, 0}, {#da, #db, NULL}, 0, 0, 0, NULL},
    GPUNN_LOSS1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, f, da, db, dc) \
    {#name, 3, 0, {NULL, NULL}, {0, 0}, {#da, #db, #dc}, 0, 0, 0, NULL},
    GPUNN_TERNARY_OPS(GPUNN__X)
#undef GPUNN__X
#undef K
#define GPUNN__X(ENUM, name, operands, reads, reads_out, backward, traits, rule) \
    {#name, 0, 0, {NULL, NULL}, {0, 0}, {NULL, NULL, NULL}, reads, reads_out, backward, #operands},
    GPUNN_OTHER_OPS(GPUNN__X) GPUNN_ALIAS_OPS(GPUNN__X)
#undef GPUNN__X
};
/* clang-format on */

GPUNN_API const char *gpunn_op_name(gpunn_op op)
{
    return gpunn__op_infos[(unsigned)op < GPUNN_OP_COUNT ? op : GPUNN_OP_NONE].name;
}

GPUNN__INTERNAL bool gpunn__op_elementwise(gpunn_op op)
{
    return gpunn__op_infos[op].arity > 0;
}

GPUNN__INTERNAL const char *gpunn__operand_name(gpunn_op op, int i, char *text)
{
    const char *name = gpunn__op_infos[op].operands + 1;
    for (; i > 0; i--) name += strcspn(name, ",") + 2;
    (void)snprintf(text, GPUNN__OPERAND_SIZE, "%.*s", (int)strcspn(name, ",)"), name);
    return text;
}

GPUNN__INTERNAL int gpunn__op_arity(gpunn_op op)
{
    return gpunn__op_infos[op].arity;
}

GPUNN__INTERNAL int gpunn__op_attribute_count(gpunn_op op)
{
    return gpunn__op_infos[op].attribute_count;
}

GPUNN__INTERNAL float gpunn__op_attribute_default(gpunn_op op, int i)
{
    return gpunn__op_infos[op].attribute_default[i];
}

GPUNN__INTERNAL bool gpunn__op_has_gradient(gpunn_op op, int i)
{
    const gpunn__op_info *info = &gpunn__op_infos[op];
    if (info->arity == 0) return info->gradients < 0 || (i < 31 && (info->gradients >> i & 1) != 0);
    return i < info->arity && (info->derivative[i][0] != '0' || info->derivative[i][1]);
}

/* Whether a derivative of an elementwise op mentions the one-letter name. */
static bool gpunn__op_mentions(const gpunn__op_info *info, char name)
{
    for (int i = 0; i < info->arity; ++i) {
        char before = ' ';
        for (const char *s = info->derivative[i]; *s; before = *s++)
            if (*s == name && !isalnum((unsigned char)before) && before != '_' &&
                !isalnum((unsigned char)s[1]) && s[1] != '_')
                return true;
    }
    return false;
}

GPUNN__INTERNAL bool gpunn__op_reads_input(gpunn_op op, int i)
{
    const gpunn__op_info *info = &gpunn__op_infos[op];
    if (info->arity == 0) return (info->reads >> (i < 31 ? i : 31) & 1) != 0;
    return i < info->arity && gpunn__op_mentions(info, info->arity == 1 ? 'x' : "abc"[i]);
}

GPUNN__INTERNAL bool gpunn__op_reads_output(gpunn_op op)
{
    const gpunn__op_info *info = &gpunn__op_infos[op];
    return info->arity == 0 ? info->reads_out != 0 : gpunn__op_mentions(info, 'y');
}
