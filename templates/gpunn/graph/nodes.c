#include "graph/nodes.h"
#include "base/memory.h"
#include "base/tables.h"
#include "graph/arguments.h"

GPUNN__INTERNAL gpunn_attributes gpunn__no_attributes(void)
{
    gpunn_attributes attr;
    memset(&attr, 0, sizeof attr);
    return attr;
}

GPUNN__INTERNAL bool gpunn__infer_node(const gpunn__call *call, const gpunn__operation *operation,
                                       const gpunn_attributes *attr, gpunn_tensor *const *operands, int count,
                                       gpunn__meta *out)
{
    gpunn__meta in[GPUNN_MAX_OPERANDS];
    for (int i = 0; i < count; i++)
        if (operands[i])
            in[i] = gpunn__meta_of(operands[i]);
        else
            memset(&in[i], 0, sizeof in[i]);
    return gpunn__infer(call, operation, attr, in, count, out);
}

GPUNN__INTERNAL gpunn_tensor *gpunn__node(const gpunn__call *call, const gpunn__operation *operation,
                                          const gpunn_attributes *attr, gpunn_tensor *const *operands,
                                          int count)
{
    gpunn__meta   out;
    gpunn_tensor *t = gpunn__infer_node(call, operation, attr, operands, count, &out)
                          ? gpunn__append(call, GPUNN__VALUE, out.dtype, out.rank, out.dim)
                          : NULL;
    if (t == NULL) return NULL;
    t->op = operation->op;
    t->operation = operation;
    t->attr = *attr;
    size_t size = (size_t)count * sizeof *t->inputs;
    t->inputs = (gpunn_tensor **)gpunn__realloc(call->model->dev, NULL, 0, size);
    if (t->inputs == NULL) return gpunn__undo(call);
    t->input_count = count;
    memcpy(t->inputs, operands, size);
    return gpunn__set_layer(call, t);
}

GPUNN__INTERNAL bool gpunn__same_shape(const gpunn_tensor *a, const gpunn_tensor *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) == 0;
}

GPUNN_API gpunn_tensor *gpunn_cast(gpunn_tensor *x, gpunn_dtype dtype)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "cast", NULL, x, false)) return NULL;
    if (dtype != GPUNN_F32 && dtype != GPUNN_I64 && dtype != GPUNN_I32 && dtype != GPUNN_U8 &&
        dtype != GPUNN_BOOL)
        return gpunn__call_fail(&call, GPUNN_ERR_DTYPE,
                                "a cast to %s is not possible; use f32, i64, i32, u8 or bool",
                                gpunn_dtype_name(dtype));
    if (dtype == x->dtype) return x;
    gpunn_attributes attr = gpunn__no_attributes();
    attr.dtype = dtype;
    return gpunn__node(&call, &gpunn__operation_cast, &attr, &x, 1);
}

/* ---- integer ops ---- */

GPUNN__INTERNAL gpunn_tensor *gpunn__integer_node(gpunn_integer_op op, gpunn_tensor *const *operands,
                                                  int count, int64_t number)
{
    const char        *name = (unsigned)op < GPUNN_INTEGER_COUNT ? gpunn__integer_names[op] : "integer";
    gpunn_attributes   attr = gpunn__no_attributes();
    gpunn_tensor      *in[3] = {NULL, NULL, NULL};
    gpunn__call        call;
    const char *const *names = count == 1 ? gpunn__x_name : gpunn__abc_names;
    if (count > 3 || !gpunn__begin(&call, name, NULL, names, operands, count, 0)) return NULL;
    if ((unsigned)op >= GPUNN_INTEGER_COUNT)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "op %d is unknown; use one of gpunn_integer_op",
                                (int)op);
    const int most = gpunn__integer_infos[op].operands, choice = op == GPUNN_INTEGER_WHERE;
    if (count > most || count < most - (most > 1))
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "got %d operands, but %d are needed%s", count,
                                most, most > 1 ? ", the last of which may be a number" : "");
    memcpy(in, operands, (size_t)count * sizeof *in);
    for (int i = choice; i < count; i++)
        if (in[i]->dtype == GPUNN_F32)
            return gpunn__call_fail(&call, GPUNN_ERR_DTYPE,
                                    "%s is f32, but integers are needed; convert it with gpunn_cast",
                                    names[i]);
    if (choice && (in[0] = gpunn_cast(in[0], GPUNN_BOOL)) == NULL) return NULL;
    attr.mode = (int)op;
    attr.number = count < most ? number : 0;
    return gpunn__call_finish(&call, gpunn__node(&call, &gpunn__operation_integer, &attr, in, count));
}

GPUNN__INTERNAL int gpunn__integer_meant(const char *name, gpunn_tensor *const *operands, int count)
{
    bool all = true;
    for (int i = strcmp(name, "where") == 0; i < count; i++)
        all = all && operands[i] && operands[i]->dtype != GPUNN_F32;
    for (int op = 0; all && op < GPUNN_INTEGER_COUNT; op++)
        if (strcmp(name, gpunn__integer_names[op]) == 0) return op;
    return -1;
}

GPUNN_API gpunn_tensor *gpunn_integer_scalar(gpunn_integer_op op, gpunn_tensor *x, int64_t value)
{
    return gpunn__integer_node(op, &x, 1, value);
}

GPUNN_API gpunn_tensor *gpunn_where_scalar(gpunn_tensor *condition, gpunn_tensor *x, int64_t value)
{
    gpunn_tensor *operands[] = {condition, x};
    return gpunn__integer_node(GPUNN_INTEGER_WHERE, operands, 2, value);
}

/* ---- float ops ---- */

GPUNN__INTERNAL gpunn_tensor *gpunn__map_node(const gpunn__operation *operation,
                                              gpunn_tensor *const *operands, float attribute1,
                                              float attribute2)
{
    const gpunn_op op = operation->op;
    const int arity = gpunn__op_arity(op), integer = gpunn__integer_meant(gpunn_op_name(op), operands, arity);
    gpunn__call call;
    if (integer >= 0) return gpunn__integer_node((gpunn_integer_op)integer, operands, arity, 0);
    /* a condition of another dtype */
    if (op == GPUNN_OP_WHERE && operands[0] && operands[0]->dtype != GPUNN_F32) {
        gpunn__call   whole = gpunn__call_of(operands[0]->model, "where", NULL);
        gpunn_tensor *with_floats[3] = {gpunn_cast(operands[0], GPUNN_F32), operands[1], operands[2]};
        gpunn_tensor *y = with_floats[0] ? gpunn__map_node(operation, with_floats, 0, 0) : NULL;
        return gpunn__call_finish(&whole, y);
    }
    if (!gpunn__begin(&call, gpunn_op_name(op), NULL, arity == 1 ? gpunn__x_name : gpunn__abc_names, operands,
                      arity, arity))
        return NULL;
    if (attribute1 != attribute1 || attribute2 != attribute2)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "an attribute is NaN; pass a number");
    gpunn_attributes attr = gpunn__no_attributes();
    attr.value[0] = attribute1;
    attr.value[1] = attribute2;
    return gpunn__node(&call, operation, &attr, operands, arity);
}

#define GPUNN__X(ENUM, name, ...)                                   \
    GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *x)           \
    {                                                               \
        return gpunn__map_node(&gpunn__operation_##name, &x, 0, 0); \
    }
GPUNN_UNARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr, ...)                                \
    GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *x, float attr)  \
    {                                                                  \
        return gpunn__map_node(&gpunn__operation_##name, &x, attr, 0); \
    }
GPUNN_UNARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, default1, attr2, ...)                           \
    GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *x, float attr1, float attr2) \
    {                                                                               \
        return gpunn__map_node(&gpunn__operation_##name, &x, attr1, attr2);         \
    }
GPUNN_UNARY2_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, ...)                                          \
    GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *a, gpunn_tensor *b) \
    {                                                                      \
        gpunn_tensor *operands[] = {a, b};                                 \
        return gpunn__map_node(&gpunn__operation_##name, operands, 0, 0);  \
    }
GPUNN_BINARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, ...)                                                           \
    GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *a, gpunn_tensor *b, gpunn_tensor *c) \
    {                                                                                       \
        gpunn_tensor *operands[] = {a, b, c};                                               \
        return gpunn__map_node(&gpunn__operation_##name, operands, 0, 0);                   \
    }
GPUNN_TERNARY_OPS(GPUNN__X)
#undef GPUNN__X
