#include "graph/expr.h"
#include "base/errors.h"
#include "base/tables.h"
#include "graph/nodes.h"

static bool gpunn__expr_choice(gpunn__formula *f, gpunn__term *result);

GPUNN__INTERNAL void gpunn__expr_quote(char *out, size_t size, const char *text, size_t length)
{
    size_t n = 0;
    for (; n + 1 < size && n < length && text[n]; n++)
        out[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n];
    out[n] = 0;
}

/* Records an error at a place of the text; returns false. word is the text there, for the message. */
static bool gpunn__expr_fail(const gpunn__formula *f, const char *at, const char *what, const char *word,
                             size_t length)
{
    char text[200], shown[64], quoted[GPUNN__ERROR_SIZE];
    if (f->quiet) return false;
    gpunn__expr_quote(text, sizeof text, f->text, SIZE_MAX);
    gpunn__expr_quote(shown, sizeof shown, word, length);
    (void)gpunn__call_fail(&f->call, GPUNN_ERR_ARGUMENT, "%s%s at character %d of \"%s\"", what,
                           gpunn__quoted(shown, quoted), (int)(at - f->text) + 1, text);
    return false;
}

static char gpunn__expr_peek(gpunn__formula *f)
{
    while (*f->at == ' ' || *f->at == '\t' || *f->at == '\n' || *f->at == '\r') f->at++;
    return *f->at;
}

static bool gpunn__expr_take(gpunn__formula *f, char symbol)
{
    if (gpunn__expr_peek(f) != symbol) return false;
    f->at++;
    return true;
}

static bool gpunn__expr_expect(gpunn__formula *f, char symbol, const char *what)
{
    return gpunn__expr_take(f, symbol) || gpunn__expr_fail(f, f->at, what, f->at, 0);
}

static bool gpunn__expr_float(const gpunn__formula *f, double number, float *result)
{
    *result = (float)number;
    return fabs(number) < 3.4028235677973366e38 ||
           gpunn__expr_fail(f, f->at, "the number before this place is not finite as a float", "", 0);
}

/* The term as a tensor. A number becomes a scalar constant; equal numbers of one expression share it. */
static gpunn_tensor *gpunn__expr_tensor(gpunn__formula *f, const gpunn__term *term)
{
    float        value;
    gpunn_model *model = f->call.model;
    if (term->tensor) return term->tensor;
    if (!gpunn__expr_float(f, term->number, &value)) return NULL;
    for (int i = f->call.mark; i < model->tensor_count; i++)
        if (model->tensors[i]->kind == GPUNN__CONSTANT &&
            memcmp(model->tensors[i]->constant, &value, sizeof value) == 0)
            return model->tensors[i];
    gpunn_shape scalar = {{0}};
    return gpunn_constant(model, scalar, &value);
}

/* Stands for a node while no nodes are added. */
static bool gpunn__expr_pretend(const gpunn__formula *f, gpunn__term *result)
{
    result->tensor = f->call.model->tensors[0];
    return true;
}

/* Whether a node of this operand can be reused by other derivatives: not if it depends on g. */
static bool gpunn__expr_shares(const gpunn__formula *f, const gpunn_tensor *operand)
{
    return f->gradient && operand != f->gradient && (operand->id < f->call.mark || operand->shared);
}

/* An equal node of an earlier derivative; NULL: none. */
static gpunn_tensor *gpunn__expr_find(const gpunn__formula *f, gpunn_op op, gpunn_tensor *const *operands,
                                      float attribute1, float attribute2)
{
    const gpunn_model *model = f->call.model;
    const int          arity = gpunn__op_arity(op);
    for (int id = model->tensor_count - 1; id > operands[0]->id; id--) {
        gpunn_tensor *t = model->tensors[id];
        if (t->shared && t->op == op && memcmp(t->inputs, operands, (size_t)arity * sizeof *operands) == 0 &&
            t->attr.value[0] == attribute1 && t->attr.value[1] == attribute2)
            return t;
    }
    return NULL;
}

static bool gpunn__expr_apply(gpunn__formula *f, gpunn_op op, const gpunn__term *operands, float attribute1,
                              float attribute2, gpunn__term *result)
{
    gpunn_tensor *tensors[3];
    bool          shared = true;
    if (f->dry) return gpunn__expr_pretend(f, result);
    for (int i = 0; i < gpunn__op_arity(op); i++) {
        if ((tensors[i] = gpunn__expr_tensor(f, &operands[i])) == NULL) return false;
        shared = shared && gpunn__expr_shares(f, tensors[i]);
    }
    result->tensor = shared ? gpunn__expr_find(f, op, tensors, attribute1, attribute2) : NULL;
    if (result->tensor) return true;
    result->tensor = gpunn__map_node(gpunn__elementwise[op], tensors, attribute1, attribute2);
    if (result->tensor) result->tensor->shared = shared;
    return result->tensor != NULL;
}

/* Folds an op of two numbers; false if it must be a node. */
static bool gpunn__expr_fold2(gpunn_op op, double a, double b, double *result)
{
    switch ((int)op) {
    case GPUNN_OP_ADD: *result = a + b; break;
    case GPUNN_OP_SUB: *result = a - b; break;
    case GPUNN_OP_MUL: *result = a * b; break;
    case GPUNN_OP_DIV: *result = a / b; break;
    case GPUNN_OP_POW: *result = pow(a, b); break;
    case GPUNN_OP_MAXIMUM: *result = a > b ? a : b; break;
    case GPUNN_OP_MINIMUM: *result = a < b ? a : b; break;
    case GPUNN_OP_LT: *result = a < b; break;
    case GPUNN_OP_LE: *result = a <= b; break;
    case GPUNN_OP_GT: *result = a > b; break;
    case GPUNN_OP_GE: *result = a >= b; break;
    case GPUNN_OP_EQ: *result = a == b; break;
    case GPUNN_OP_NE: *result = a != b; break;
    default: return false;
    }
    return true;
}

static bool gpunn__expr_fold1(gpunn_op op, double x, double *result)
{
    switch ((int)op) {
    case GPUNN_OP_ABS: *result = fabs(x); break;
    case GPUNN_OP_EXP: *result = exp(x); break;
    case GPUNN_OP_LOG: *result = log(x); break;
    case GPUNN_OP_SQRT: *result = sqrt(x); break;
    case GPUNN_OP_TANH: *result = tanh(x); break;
    default: return false;
    }
    return true;
}

/* result = a op b. */
static bool gpunn__expr_binary(gpunn__formula *f, gpunn_op op, gpunn__term a, gpunn__term b,
                               gpunn__term *result)
{
    gpunn__term operands[2];
    operands[0] = a;
    operands[1] = b;
    result->tensor = NULL;
    if (a.tensor == NULL && b.tensor == NULL && gpunn__expr_fold2(op, a.number, b.number, &result->number))
        return true;
    if (f->gradient && op == GPUNN_OP_MUL && a.tensor == b.tensor) op = GPUNN_OP_SQUARE;
    if (f->dry || (a.tensor && b.tensor)) return gpunn__expr_apply(f, op, operands, 0, 0, result);
    float number, one_over;
    if (!gpunn__expr_float(f, a.tensor ? b.number : a.number, &number)) return false;
    one_over = 1 / number;
    int exponent;
    switch ((int)op) {
    case GPUNN_OP_SUB: /* a - 2 = a + -2; 2 - b = -b + 2 */
        if (b.tensor && !gpunn__expr_apply(f, GPUNN_OP_NEG, &b, 0, 0, &operands[1])) return false;
        if (a.tensor) number = -number;
        return gpunn__expr_apply(f, GPUNN_OP_ADD_SCALAR, &operands[b.tensor ? 1 : 0], number, 0, result);
    case GPUNN_OP_ADD:
        return gpunn__expr_apply(f, GPUNN_OP_ADD_SCALAR, a.tensor ? &a : &b, number, 0, result);
    case GPUNN_OP_MUL:
        return gpunn__expr_apply(f, GPUNN_OP_MUL_SCALAR, a.tensor ? &a : &b, number, 0, result);
    case GPUNN_OP_DIV: /* by a power of two whose reciprocal is exact too */
        if (a.tensor && fabsf(frexpf(number, &exponent)) == 0.5f && fabsf(one_over) >= FLT_MIN &&
            fabsf(one_over) <= FLT_MAX)
            return gpunn__expr_apply(f, GPUNN_OP_MUL_SCALAR, &a, one_over, 0, result);
        if (b.tensor && number == 1) return gpunn__expr_apply(f, GPUNN_OP_RECIPROCAL, &b, 0, 0, result);
        break;
    case GPUNN_OP_POW:
        if (a.tensor && number == 2) return gpunn__expr_apply(f, GPUNN_OP_SQUARE, &a, 0, 0, result);
        if (a.tensor) return gpunn__expr_apply(f, GPUNN_OP_POW_SCALAR, &a, number, 0, result);
        break;
    default: break;
    }
    return gpunn__expr_apply(f, op, operands, 0, 0, result);
}

/* Parses a decimal number, in every locale. */
static bool gpunn__expr_number(gpunn__formula *f, double *result)
{
    const char *start = f->at;
    double      mantissa = 0;
    int         digits = 0, scale = 0, exponent = 0;
    bool        point = false;
    for (; isdigit((unsigned char)*f->at) || (*f->at == '.' && !point); f->at++) {
        if (*f->at == '.') {
            point = true;
            continue;
        }
        digits++;
        mantissa = 10 * mantissa + (*f->at - '0');
        scale -= point;
    }
    if (digits && (*f->at == 'e' || *f->at == 'E')) {
        const char *mark = f->at++;
        bool        negative = *f->at == '-';
        if (*f->at == '-' || *f->at == '+') f->at++;
        if (!isdigit((unsigned char)*f->at))
            return gpunn__expr_fail(f, mark, "the exponent has no digits", "", 0);
        for (; isdigit((unsigned char)*f->at); f->at++)
            if (exponent < 10000) exponent = 10 * exponent + (*f->at - '0');
        scale += negative ? -exponent : exponent;
    }
    if (digits == 0 || digits > 300 || isalnum((unsigned char)*f->at) || *f->at == '_' || *f->at == '.')
        return gpunn__expr_fail(f, start, "no number", start, (size_t)(f->at - start) + (*f->at != 0));
    /* in two steps, since 10^-scale alone may be out of range */
    *result = scale < 0 ? mantissa / pow(10, -scale / 2) / pow(10, -scale - -scale / 2)
                        : mantissa * pow(10, scale);
    if (fabs(*result) < 3.4028235677973366e38) return true; /* rounds to a finite float */
    return gpunn__expr_fail(f, start, "too large a number", start, (size_t)(f->at - start));
}

/* Length of the name at a place; 0: none. */
static size_t gpunn__expr_name_length(const char *at)
{
    size_t length = 0;
    if (!isdigit((unsigned char)*at))
        while (isalnum((unsigned char)at[length]) || at[length] == '_') length++;
    return length;
}

/* Consumes a word if it is next. */
static bool gpunn__expr_take_word(gpunn__formula *f, const char *word)
{
    (void)gpunn__expr_peek(f);
    size_t length = gpunn__expr_name_length(f->at);
    if (length != strlen(word) || memcmp(f->at, word, length) != 0) return false;
    f->at += length;
    return true;
}

/* Parses the arguments of a function after its parenthesis: at least `arity`, at most `most`. Those from
 * index `arity` on must be numbers. */
static bool gpunn__expr_arguments(gpunn__formula *f, const char *name, size_t length, int arity, int most,
                                  gpunn__term *terms, int *count)
{
    *count = 0;
    if (gpunn__expr_peek(f) != ')') do {
            (void)gpunn__expr_peek(f);
            const char *at = f->at;
            if (*count == most) return gpunn__expr_fail(f, at, "too many arguments for", name, length);
            if (!gpunn__expr_choice(f, &terms[*count])) return false;
            if (*count >= arity && terms[*count].tensor)
                return gpunn__expr_fail(f, at, "a number is needed here, an attribute of", name, length);
            ++*count;
        } while (gpunn__expr_take(f, ','));
    if (!gpunn__expr_expect(f, ')', "')' or ',' is missing")) return false;
    return *count >= arity || gpunn__expr_fail(f, name, "too few arguments for", name, length);
}

/* The p-norm of x along axes, p > 0. */
static gpunn_tensor *gpunn__expr_norm(gpunn_tensor *x, double p, gpunn_axes axes, bool keepdim)
{
    if (p == 2) return gpunn_sqrt(gpunn_sum(gpunn_square(x), axes, keepdim));
    if (p == 1) return gpunn_sum(gpunn_abs(x), axes, keepdim);
    if (p > 3e38) return gpunn_max(gpunn_abs(x), axes, keepdim);
    return gpunn_pow_scalar(gpunn_sum(gpunn_pow_scalar(gpunn_abs(x), (float)p), axes, keepdim),
                            (float)(1 / p));
}

/* Mean over windows of `window` cells (odd) along each axis after the second. It pools one axis after
 * another, each reshaped to an axis of an image. */
static gpunn_tensor *gpunn__expr_window_mean(gpunn_tensor *x, int window)
{
    const gpunn_shape shape = gpunn_tensor_shape(x);
    const int         rank = x->rank;
    for (int axis = 2; axis < rank; axis++) {
        bool            last = axis == rank - 1;
        int64_t         before = 1, after = 1;
        gpunn_pool_args args;
        for (int i = 1; i < axis; i++) before *= shape.dim[i];
        for (int i = axis + 1; i < rank; i++) after *= shape.dim[i];
        memset(&args, 0, sizeof args);
        args.kernel_shape[last] = window;
        args.kernel_shape[!last] = args.stride = 1;
        args.paddings[last] = window / 2;
        gpunn_shape image = GPUNN_SHAPE(shape.dim[0], last ? 1 : before, last ? before : shape.dim[axis],
                                        last ? shape.dim[axis] : after);
        x = gpunn_avg_pool2d_(gpunn_reshape(x, image), args);
    }
    return gpunn_reshape(x, shape);
}

/* Functions of x that are no elementwise op: X(name, whether a number p follows, maximum number of axes,
 * whether keepdim is allowed, call). If several axes are allowed, none means all. */
#define GPUNN__EXPR_FUNCTIONS(X)                                               \
    X(sum, false, GPUNN_MAX_RANK, true, gpunn_sum(x, axes, keepdim))           \
    X(mean, false, GPUNN_MAX_RANK, true, gpunn_mean(x, axes, keepdim))         \
    X(amax, false, GPUNN_MAX_RANK, true, gpunn_max(x, axes, keepdim))          \
    X(norm, true, GPUNN_MAX_RANK, true, gpunn__expr_norm(x, p, axes, keepdim)) \
    X(argmax, false, 1, true, gpunn_argmax(x, axes.axis[0], keepdim))          \
    X(softmax, false, 1, false, gpunn_softmax(x, axes.axis[0]))                \
    X(log_softmax, false, 1, false, gpunn_log_softmax(x, axes.axis[0]))        \
    X(cumsum, false, 1, false, gpunn_cumsum(x, axes.axis[0]))                  \
    X(window_mean, true, 0, false, gpunn__expr_window_mean(x, (int)p))         \
    X(float, false, 0, false, gpunn_cast(x, GPUNN_F32))

typedef struct gpunn__expr_along {
    const char *name;
    bool        numbered;
    int         axes;
    bool        keeps;
} gpunn__expr_along;
#define GPUNN__X(name, numbered, most, keeps, call) {#name, numbered, most, keeps},
static const gpunn__expr_along gpunn__expr_alongs[] = {GPUNN__EXPR_FUNCTIONS(GPUNN__X)};
#undef GPUNN__X
#define GPUNN__X(name, ...) GPUNN__EXPR_##name,
enum { GPUNN__EXPR_FUNCTIONS(GPUNN__X) GPUNN__EXPR_ALONGS };
#undef GPUNN__X

static gpunn_tensor *gpunn__expr_call(int function, gpunn_tensor *x, double p, gpunn_axes axes, bool keepdim)
{
    switch (function) {
#define GPUNN__X(name, numbered, most, keeps, call) \
    case GPUNN__EXPR_##name: return call;
        GPUNN__EXPR_FUNCTIONS(GPUNN__X)
#undef GPUNN__X
    default: return NULL;
    }
}

/* Parses a number, which must be an integer. */
static bool gpunn__expr_whole(gpunn__formula *f, int *result)
{
    gpunn__term term;
    (void)gpunn__expr_peek(f);
    const char *at = f->at;
    if (!gpunn__expr_choice(f, &term)) return false;
    const bool whole = fabs(term.number) < 1000 && term.number == floor(term.number);
    if (term.tensor || (!f->dry && !whole))
        return gpunn__expr_fail(f, at, "an axis is needed here, a whole number", "", 0);
    *result = whole ? (int)term.number : 0;
    return true;
}

/* Parses keepdim=number. False if that is not next, or on an error. */
static bool gpunn__expr_keepdim(gpunn__formula *f, bool *ok, bool *keepdim)
{
    const char *at = f->at;
    int         number = 0;
    if (!gpunn__expr_take_word(f, "keepdim") || !gpunn__expr_take(f, '=')) {
        f->at = at;
        return false;
    }
    *ok = gpunn__expr_whole(f, &number);
    *keepdim = number != 0;
    return *ok;
}

/* Parses the axes after x, each after a comma: numbers, "2:" for the third axis and all after it, and at the
 * end optionally keepdim. */
static bool gpunn__expr_axes(gpunn__formula *f, const gpunn__expr_along *function, const char *name, int rank,
                             gpunn_axes *axes, bool *keepdim)
{
    const size_t length = strlen(function->name);
    int          count = 0, axis;
    bool         ok = true, given = false;
    while (gpunn__expr_take(f, ',')) {
        (void)gpunn__expr_peek(f);
        const char *at = f->at;
        if (function->keeps && gpunn__expr_keepdim(f, &ok, keepdim)) break;
        if (!ok || (count < function->axes && !gpunn__expr_whole(f, &axis))) return false;
        if (count >= function->axes) return gpunn__expr_fail(f, at, "too many arguments for", name, length);
        given = true;
        if (function->axes > 1 && gpunn__expr_take(f, ':')) {
            if (axis < 0) axis = axis < -rank ? 0 : axis + rank;
            for (; axis < rank && count < function->axes; axis++) axes->axis[count++] = axis;
        } else
            axes->axis[count++] = axis;
    }
    axes->axis[count] = GPUNN_END;
    if (!gpunn__expr_expect(f, ')', "')' or ',' is missing")) return false;
    if (function->axes == 1 && count == 0)
        return gpunn__expr_fail(f, name, "too few arguments for", name, length);
    return !given || count || f->dry || gpunn__expr_fail(f, name, "x has no such axes for", name, length);
}

/* Parses x, p and axes of a function in the table, and calls it. */
static bool gpunn__expr_function_along(gpunn__formula *f, int number, const char *name, gpunn__term *result)
{
    const gpunn__expr_along *function = &gpunn__expr_alongs[number];
    const size_t             length = strlen(function->name);
    gpunn__term              x, p = {NULL, 0};
    gpunn_axes               axes = {{GPUNN_END}};
    bool                     keepdim = false;
    if (gpunn__expr_peek(f) == ')') return gpunn__expr_fail(f, name, "too few arguments for", name, length);
    if (!gpunn__expr_choice(f, &x)) return false;
    gpunn_tensor *operand = f->dry ? f->call.model->tensors[0] : gpunn__expr_tensor(f, &x);
    if (operand == NULL) return false;
    if (function->numbered) {
        if (!gpunn__expr_take(f, ','))
            return gpunn__expr_fail(f, name, "too few arguments for", name, length);
        (void)gpunn__expr_peek(f);
        const char *at = f->at;
        if (!gpunn__expr_choice(f, &p)) return false;
        if (p.tensor || (!f->dry && !(p.number > 0)))
            return gpunn__expr_fail(f, at, "a number above 0 is needed here for", name, length);
        if (function->axes == 0 && !f->dry && (p.number > 1e6 || fmod(p.number, 2) != 1))
            return gpunn__expr_fail(f, at, "an odd number is needed here for", name, length);
    }
    if (!gpunn__expr_axes(f, function, name, operand->rank, &axes, &keepdim)) return false;
    if (f->dry) return gpunn__expr_pretend(f, result);
    result->tensor = gpunn__expr_call(number, operand, p.number, axes, keepdim);
    return result->tensor != NULL;
}

/* K(number) is that number; given(name) is whether an operand exists. */
static bool gpunn__expr_special(gpunn__formula *f, const char *name, size_t length, gpunn__term *result)
{
    const bool is_number = length == 1;
    int        count;
    if (!gpunn__expr_arguments(f, name, length, is_number ? 0 : 1, 1, result, &count)) return false;
    if (count == 0) return gpunn__expr_fail(f, name, "too few arguments for", name, length);
    if (!is_number) {
        result->number = result->tensor != NULL;
        result->tensor = NULL;
    }
    return true;
}

static bool gpunn__expr_is_word(const char *name, size_t length, const char *word)
{
    return strlen(word) == length && memcmp(name, word, length) == 0;
}

/* name ( ... ): the op's operands, then its optional attributes as numbers. */
static bool gpunn__expr_function(gpunn__formula *f, const char *name, size_t length, gpunn__term *result)
{
    gpunn__term terms[5];
    float       attribute[2];
    int         count = 0, op = GPUNN_OP_COUNT - 1;
    f->at++; /* the parenthesis */
    if (gpunn__expr_is_word(name, length, "K") || gpunn__expr_is_word(name, length, "given"))
        return gpunn__expr_special(f, name, length, result);
    for (int i = 0; i < GPUNN__EXPR_ALONGS; i++)
        if (gpunn__expr_is_word(name, length, gpunn__expr_alongs[i].name))
            return gpunn__expr_function_along(f, i, name, result);
    if (gpunn__expr_is_word(name, length, "max"))
        op = GPUNN_OP_MAXIMUM;
    else if (gpunn__expr_is_word(name, length, "min"))
        op = GPUNN_OP_MINIMUM;
    else if (gpunn__expr_is_word(name, length, "floordiv"))
        op = GPUNN_OP_FLOOR_DIVIDE;
    else
        while (op > 0 && !(gpunn__op_arity((gpunn_op)op) > 0 &&
                           gpunn__expr_is_word(name, length, gpunn_op_name((gpunn_op)op))))
            op--;
    if (op == GPUNN_OP_NONE) return gpunn__expr_fail(f, name, "unknown function", name, length);
    const int arity = gpunn__op_arity((gpunn_op)op), most = arity + gpunn__op_attribute_count((gpunn_op)op);
    if (!gpunn__expr_arguments(f, name, length, arity, most, terms, &count)) return false;
    if (most == 2 && arity == 2) return gpunn__expr_binary(f, (gpunn_op)op, terms[0], terms[1], result);
    result->tensor = NULL;
    if (most == 1 && terms[0].tensor == NULL &&
        gpunn__expr_fold1((gpunn_op)op, terms[0].number, &result->number))
        return true;
    if (f->dry) return gpunn__expr_pretend(f, result);
    for (int i = 0; i < 2; i++) {
        attribute[i] = gpunn__op_attribute_default((gpunn_op)op, i);
        if (arity + i < count && !gpunn__expr_float(f, terms[arity + i].number, &attribute[i])) return false;
    }
    return gpunn__expr_apply(f, (gpunn_op)op, terms, attribute[0], attribute[1], result);
}

static bool gpunn__expr_name(gpunn__formula *f, gpunn__term *result)
{
    const char *name = f->at;
    size_t      length = gpunn__expr_name_length(name);
    f->at += length;
    if (gpunn__expr_peek(f) == '(') return gpunn__expr_function(f, name, length, result);
    for (int i = f->name_count - 1; i >= 0; i--)
        if (f->names[i].length == length && memcmp(f->names[i].text, name, length) == 0) {
            *result = f->names[i].term;
            return true;
        }
    result->tensor = NULL;
    result->number = gpunn__expr_is_word(name, length, "True");
    return result->number != 0 || gpunn__expr_is_word(name, length, "False") ||
           gpunn__expr_fail(f, name, "unknown name", name, length);
}

static bool gpunn__expr_add_name(gpunn__formula *f, const char *name, size_t length, gpunn__term term)
{
    if (f->name_count == GPUNN__EXPR_NAMES) return gpunn__expr_fail(f, f->at, "more than 64 names", "", 0);
    f->names[f->name_count].text = name;
    f->names[f->name_count].length = length;
    f->names[f->name_count++].term = term;
    return true;
}

static bool gpunn__expr_deeper(gpunn__formula *f)
{
    if (f->depth == GPUNN__EXPR_DEPTH) return gpunn__expr_fail(f, f->at, "nesting deeper than 64", "", 0);
    f->depth++;
    return true;
}

static bool gpunn__expr_sign(gpunn__formula *f, gpunn__term *result)
{
    char        first = gpunn__expr_peek(f);
    gpunn__term operand;
    bool        ok;
    if (!gpunn__expr_deeper(f)) return false;
    if (first == '-') {
        f->at++;
        ok = gpunn__expr_sign(f, &operand);
        result->tensor = NULL;
        if (ok && operand.tensor)
            ok = gpunn__expr_apply(f, GPUNN_OP_NEG, &operand, 0, 0, result);
        else if (ok)
            result->number = -operand.number;
        f->depth--;
        return ok;
    }
    if (first == '(') {
        f->at++;
        ok = gpunn__expr_choice(f, result) && gpunn__expr_expect(f, ')', "')' is missing");
    } else if (isdigit((unsigned char)first) || first == '.') {
        result->tensor = NULL;
        ok = gpunn__expr_number(f, &result->number);
    } else if (isalpha((unsigned char)first) || first == '_')
        ok = gpunn__expr_name(f, result);
    else
        ok = gpunn__expr_fail(f, f->at, first ? "unexpected" : "an operand is missing", f->at, first != 0);
    if (ok && gpunn__expr_peek(f) == '*' && f->at[1] == '*') {
        f->at += 2;
        ok = gpunn__expr_sign(f, &operand) && gpunn__expr_binary(f, GPUNN_OP_POW, *result, operand, result);
    }
    f->depth--;
    return ok;
}

static bool gpunn__expr_product(gpunn__formula *f, gpunn__term *result)
{
    if (!gpunn__expr_sign(f, result)) return false;
    for (;;) {
        gpunn__term right;
        bool        times = gpunn__expr_take(f, '*');
        if (!times && !gpunn__expr_take(f, '/')) return true;
        if (!gpunn__expr_sign(f, &right) ||
            !gpunn__expr_binary(f, times ? GPUNN_OP_MUL : GPUNN_OP_DIV, *result, right, result))
            return false;
    }
}

static bool gpunn__expr_sum(gpunn__formula *f, gpunn__term *result)
{
    if (!gpunn__expr_product(f, result)) return false;
    for (;;) {
        gpunn__term right;
        bool        plus = gpunn__expr_take(f, '+');
        if (!plus && !gpunn__expr_take(f, '-')) return true;
        if (!gpunn__expr_product(f, &right) ||
            !gpunn__expr_binary(f, plus ? GPUNN_OP_ADD : GPUNN_OP_SUB, *result, right, result))
            return false;
    }
}

/* Consumes a comparison if it is next; else GPUNN_OP_NONE. */
static gpunn_op gpunn__expr_compares(gpunn__formula *f)
{
    char first = gpunn__expr_peek(f), second = first ? f->at[1] : (char)0;
    bool equal = second == '=';
    if (first != '<' && first != '>' && !(equal && (first == '=' || first == '!'))) return GPUNN_OP_NONE;
    f->at += equal ? 2 : 1;
    if (first == '<') return equal ? GPUNN_OP_LE : GPUNN_OP_LT;
    if (first == '>') return equal ? GPUNN_OP_GE : GPUNN_OP_GT;
    return first == '=' ? GPUNN_OP_EQ : GPUNN_OP_NE;
}

/* result = yes if the condition is not 0, else no. */
static bool gpunn__expr_where(gpunn__formula *f, gpunn__term condition, gpunn__term yes, gpunn__term no,
                              gpunn__term *result)
{
    gpunn__term operands[3];
    operands[0] = condition;
    operands[1] = yes;
    operands[2] = no;
    if (condition.tensor) return gpunn__expr_apply(f, GPUNN_OP_WHERE, operands, 0, 0, result);
    *result = condition.number != 0 ? yes : no;
    return true;
}

static bool gpunn__expr_comparison(gpunn__formula *f, gpunn__term *result)
{
    gpunn__term left, right, holds;
    gpunn_op    op;
    if (!gpunn__expr_sum(f, &left)) return false;
    *result = left;
    for (bool first = true; (op = gpunn__expr_compares(f)) != GPUNN_OP_NONE; left = right, first = false) {
        if (!gpunn__expr_sum(f, &right) || !gpunn__expr_binary(f, op, left, right, &holds)) return false;
        if (first)
            *result = holds;
        else if (!gpunn__expr_where(f, *result, holds, *result, result))
            return false;
    }
    return true;
}

static bool gpunn__expr_inverse(gpunn__formula *f, gpunn__term *result)
{
    if (!gpunn__expr_take_word(f, "not")) return gpunn__expr_comparison(f, result);
    gpunn__term operand, zero = {NULL, 0};
    if (!gpunn__expr_deeper(f) || !gpunn__expr_inverse(f, &operand)) return false;
    f->depth--;
    return gpunn__expr_binary(f, GPUNN_OP_EQ, operand, zero, result);
}

/* Whether a number has already decided, so that the rest adds no nodes. */
static bool gpunn__expr_decided(const gpunn__term *left, bool by)
{
    return left->tensor == NULL && (left->number != 0) == by;
}

/* As in Python: `a and b` is b if a is not 0, else a. */
static bool gpunn__expr_all(gpunn__formula *f, gpunn__term *result)
{
    gpunn__term right;
    if (!gpunn__expr_inverse(f, result)) return false;
    while (gpunn__expr_take_word(f, "and")) {
        const int out = gpunn__expr_decided(result, false);
        f->dry += out;
        if (!gpunn__expr_inverse(f, &right)) return false;
        f->dry -= out;
        if (!gpunn__expr_where(f, *result, right, *result, result)) return false;
    }
    return true;
}

static bool gpunn__expr_any(gpunn__formula *f, gpunn__term *result)
{
    gpunn__term right;
    if (!gpunn__expr_all(f, result)) return false;
    while (gpunn__expr_take_word(f, "or")) {
        const int out = gpunn__expr_decided(result, true);
        f->dry += out;
        if (!gpunn__expr_all(f, &right)) return false;
        f->dry -= out;
        if (!gpunn__expr_where(f, *result, *result, right, result)) return false;
    }
    return true;
}

/* Text after the "if" of the choice that begins here; NULL: there is none. */
static const char *gpunn__expr_find_if(const gpunn__formula *f)
{
    int    depth = 0;
    size_t length;
    for (const char *c = f->at; *c && depth >= 0; c += length ? length : 1) {
        length = gpunn__expr_name_length(c);
        if (depth == 0 && (*c == ',' || *c == ';')) return NULL;
        if (depth == 0 && gpunn__expr_is_word(c, length, "if")) return c + length;
        depth += (*c == '(') - (*c == ')');
    }
    return NULL;
}

/* Whether a number decides the choice that begins here; *yes: which way. */
static bool gpunn__expr_foresee(const gpunn__formula *f, bool *yes)
{
    const char *condition = f->dry ? NULL : gpunn__expr_find_if(f);
    if (condition == NULL) return false;
    gpunn__formula ahead = *f;
    gpunn__term    term;
    ahead.at = condition;
    ahead.dry = ahead.quiet = true;
    if (!gpunn__expr_any(&ahead, &term) || term.tensor) return false;
    *yes = term.number != 0;
    return true;
}

static bool gpunn__expr_choice(gpunn__formula *f, gpunn__term *result)
{
    gpunn__term condition, otherwise;
    bool        yes = true;
    const bool  known = gpunn__expr_foresee(f, &yes);
    f->dry += known && !yes;
    if (!gpunn__expr_any(f, result)) return false;
    f->dry -= known && !yes;
    if (!gpunn__expr_take_word(f, "if")) return true;
    f->dry += known;
    if (!gpunn__expr_deeper(f) || !gpunn__expr_any(f, &condition)) return false;
    f->dry -= known && !yes;
    if (!gpunn__expr_take_word(f, "else")) return gpunn__expr_fail(f, f->at, "'else' is missing", "", 0);
    if (!gpunn__expr_choice(f, &otherwise)) return false;
    f->dry -= known && yes;
    f->depth--;
    return gpunn__expr_where(f, condition, *result, otherwise, result);
}

static bool gpunn__expr_formula(gpunn__formula *f, gpunn__term *result)
{
    for (;;) {
        (void)gpunn__expr_peek(f);
        const char *name = f->at;
        size_t      length = gpunn__expr_name_length(name);
        f->at += length;
        bool named = length > 0 && gpunn__expr_peek(f) == '=' && f->at[1] != '=';
        if (!named) f->at = name;
        f->at += named;
        if (!gpunn__expr_choice(f, result)) return false;
        if (!named) return true;
        if (!gpunn__expr_expect(f, ';', "';' is missing") || !gpunn__expr_add_name(f, name, length, *result))
            return false;
    }
}

GPUNN__INTERNAL bool gpunn__expr_add_number(gpunn__formula *f, const char *name, double number)
{
    gpunn__term term;
    term.tensor = NULL;
    term.number = number;
    return gpunn__expr_add_name(f, name, strlen(name), term);
}

GPUNN__INTERNAL bool gpunn__expr_add_tensor(gpunn__formula *f, const char *name, gpunn_tensor *t)
{
    gpunn__term term;
    term.tensor = t;
    term.number = 0;
    return gpunn__expr_add_name(f, name, strlen(name), term);
}

GPUNN__INTERNAL bool gpunn__expr_open(gpunn__formula *f, const char *expression)
{
    f->text = f->at = expression;
    f->depth = f->name_count = f->dry = 0;
    f->quiet = false;
    f->gradient = NULL;
    return gpunn__expr_add_number(f, "pi", 3.14159265358979323846);
}

GPUNN__INTERNAL gpunn_tensor *gpunn__expr_value(gpunn__formula *f)
{
    gpunn__term result;
    bool        ok = gpunn__expr_formula(f, &result);
    if (ok && gpunn__expr_peek(f)) ok = gpunn__expr_fail(f, f->at, "unexpected", f->at, 1);
    return gpunn__call_finish(&f->call, ok ? gpunn__expr_tensor(f, &result) : NULL);
}

GPUNN__INTERNAL gpunn_tensor *gpunn__expr(const char *expression, const char *const *names,
                                          gpunn_tensor *const *args, int arg_count,
                                          const char *const *number_names, const double *numbers,
                                          int number_count, gpunn_tensor *g)
{
    static const char *const places[] = {"args[0]", "args[1]", "args[2]", "args[3]",
                                         "args[4]", "args[5]", "args[6]", "args[7]"};
    static const char *const numbered[] = {"x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"};
    static const char *const letters[] = {"x", "y", "z"};
    gpunn__formula           f;
    f.call = gpunn__call_of(NULL, "gpunn_expr", NULL);
    if (arg_count < 1 || arg_count > GPUNN__EXPR_ARGS)
        return gpunn__call_fail(&f.call, GPUNN_ERR_ARGUMENT, "got %d arguments; 1 to 8 are possible",
                                arg_count);
    if (!gpunn__is_non_null(&f.call, args, "args") ||
        !gpunn__begin(&f.call, "gpunn_expr", NULL, places, args, arg_count, 0))
        return NULL;
    if (!gpunn__is_non_null(&f.call, expression, "the expression")) return NULL;
    if (strlen(expression) > GPUNN__EXPR_LENGTH)
        return gpunn__call_fail(&f.call, GPUNN_ERR_ARGUMENT,
                                "the expression is longer than 4096 characters; split it");
    bool ok = gpunn__expr_open(&f, expression) && (g == NULL || gpunn__expr_add_tensor(&f, "g", g));
    f.gradient = g;
    for (int i = 0; ok && i < number_count; i++) ok = gpunn__expr_add_number(&f, number_names[i], numbers[i]);
    for (int i = 0; ok && i < arg_count; i++)
        ok = gpunn__expr_add_tensor(&f, names ? names[i] : numbered[i], args[i]) &&
             (names || i > 2 || gpunn__expr_add_tensor(&f, letters[i], args[i]));
    return ok ? gpunn__expr_value(&f) : gpunn__undo(&f.call);
}

GPUNN_API gpunn_tensor *gpunn_expr(const char *expression, gpunn_tensor *const *args, int arg_count)
{
    return gpunn__expr(expression, NULL, args, arg_count, NULL, NULL, 0, NULL);
}
