#include "graph/infer.h"
#include "base/tables.h"
#include "base/shapes.h"
#include "graph/arguments.h"

GPUNN__INTERNAL gpunn__meta gpunn__meta_of(const gpunn_tensor *t)
{
    gpunn__meta meta = {t->dtype, t->rank, {0}, t->model};
    memcpy(meta.dim, t->dim, sizeof meta.dim);
    return meta;
}

GPUNN__INTERNAL const char *gpunn__meta_text(const gpunn__meta *meta, char text[128])
{
    return gpunn__dims_text(meta->model, meta->rank, meta->dim, text);
}

GPUNN__INTERNAL bool gpunn__same_dims(const gpunn__meta *a, const gpunn__meta *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) == 0;
}

/* ---- checks shared by rules and builders --------------------------------------------------------------- */

GPUNN__INTERNAL bool gpunn__axes_fit(const gpunn__call *call, gpunn__meta x, int first, int last, bool named)
{
    char text[128];
    for (int i = first; i <= last; i++) {
        const bool sized = gpunn__is_sized(x.dim[i]);
        if (sized ? named : x.dim[i] > 0 && x.dim[i] <= INT32_MAX) continue;
        const char *fault = "is larger than 2^31 - 1; use smaller sizes";
        if (x.dim[i] < 0)
            fault = "is the batch; use gpunn_permute or gpunn_reshape so that this axis has a fixed size";
        if (sized) fault = "varies between runs; this op needs a fixed size there";
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE, "axis %d of x %s %s", i, gpunn__meta_text(&x, text),
                               fault);
        return false;
    }
    return true;
}

GPUNN__INTERNAL bool gpunn__axes_are_fixed(const gpunn__call *call, gpunn__meta x, int first, int last)
{
    return gpunn__axes_fit(call, x, first, last, false);
}

GPUNN__INTERNAL bool gpunn__image_fits(const gpunn__call *call, gpunn__meta x)
{
    return gpunn__axes_are_fixed(call, x, 1, 1) && gpunn__axes_fit(call, x, 2, x.rank - 1, true);
}

GPUNN__INTERNAL bool gpunn__has_rank(const gpunn__call *call, gpunn__meta x, int lowest, int highest,
                                     const char *layout)
{
    char text[128];
    if (x.rank >= lowest && x.rank <= highest) return true;
    (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE, "x is %s, but %s is needed; gpunn_reshape it",
                           gpunn__meta_text(&x, text), layout);
    return false;
}

GPUNN__INTERNAL bool gpunn__has_axes(const gpunn__call *call, gpunn__meta x, int axes)
{
    static const char *const layouts[] = {"[n, channels, length]", "[n, channels, height, width]",
                                          "[n, channels, depth, height, width]"};
    return gpunn__has_rank(call, x, 2 + axes, 2 + axes, layouts[axes - 1]) && gpunn__image_fits(call, x);
}

/* Why sizes a and b do not broadcast, if one of them varies. */
static const char *gpunn__varying_hint(int64_t a, int64_t b)
{
    if (gpunn__is_sized(a) || gpunn__is_sized(b))
        return "; a size that varies broadcasts only with itself and 1";
    return a < 0 || b < 0 ? "; the batch broadcasts only with itself and 1" : "";
}

/* Broadcasts another shape into *rank and dim, aligned at the last axes. False on an error. */
static bool gpunn__broadcast_dims(const gpunn__call *call, const char *what, int *rank, int64_t *dim,
                                  int other_rank, const int64_t *other)
{
    int     result_rank = *rank > other_rank ? *rank : other_rank;
    int64_t result[GPUNN_MAX_RANK];
    for (int i = 0; i < result_rank; i++) {
        int     ia = i - (result_rank - *rank), ib = i - (result_rank - other_rank);
        int64_t a = ia < 0 ? 1 : dim[ia], b = ib < 0 ? 1 : other[ib];
        result[i] = a == 1 ? b : a;
        if (a == b || a == 1 || b == 1) continue;
        char all_a[128], all_b[128], one_a[32], one_b[32];
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               "%s %s and %s do not broadcast (axis %d: %s against %s)%s", what,
                               gpunn__dims_text(call->model, *rank, dim, all_a),
                               gpunn__dims_text(call->model, other_rank, other, all_b), i,
                               gpunn__dim_text(call->model, a, one_a), gpunn__dim_text(call->model, b, one_b),
                               gpunn__varying_hint(a, b));
        return false;
    }
    *rank = result_rank;
    memcpy(dim, result, (size_t)result_rank * sizeof *dim);
    return true;
}

GPUNN__INTERNAL bool gpunn__broadcasts_to(const gpunn__call *call, const gpunn_tensor *t, const char *name,
                                          const gpunn_tensor *x, const char *x_name)
{
    int     rank = x->rank;
    int64_t dim[GPUNN_MAX_RANK];
    char    one[128], other[128];
    memcpy(dim, x->dim, sizeof dim);
    char pair[64];
    (void)snprintf(pair, sizeof pair, "%s and %s", x_name, name);
    if (!gpunn__broadcast_dims(call, pair, &rank, dim, t->rank, t->dim)) return false;
    if (rank == x->rank && memcmp(dim, x->dim, (size_t)rank * sizeof *dim) == 0) return true;
    (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE, "%s %s is larger than %s %s; it must broadcast to that",
                           name, gpunn__shape_text(t, one), x_name, gpunn__shape_text(x, other));
    return false;
}

GPUNN__INTERNAL bool gpunn__classes_fit(const gpunn__call *call, gpunn__meta logits, gpunn__meta labels)
{
    char one[128], other[128];
    bool fits = logits.rank >= 2 && labels.rank == logits.rank - 1 && logits.dim[1] > 0;
    for (int i = 0; fits && i < labels.rank; i++) fits = labels.dim[i] == logits.dim[i ? i + 1 : 0];
    if (!fits)
        (void)gpunn__call_fail(
            call, GPUNN_ERR_SHAPE,
            "logits %s and labels %s do not fit; [n, classes, ...] and [n, ...] are needed",
            gpunn__meta_text(&logits, one), gpunn__meta_text(&labels, other));
    return fits;
}

/* Checks that x has this size along an axis, which its weight requires. */
static bool gpunn__fits_weight(const gpunn__inference *i, int axis, int64_t size)
{
    char one[128], other[128];
    if (i->in[0].dim[axis] == size) return true;
    (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE, "x is %s, but the weight %s needs %lld along axis %d",
                           gpunn__meta_text(&i->in[0], one), gpunn__meta_text(&i->in[1], other),
                           (long long)size, axis);
    return false;
}

/* Sets the result's shape to the one that the program passed. */
static void gpunn__take_shape(gpunn__meta *out, const gpunn_shape *shape)
{
    for (out->rank = 0; out->rank < GPUNN_MAX_RANK && shape->dim[out->rank] != 0; out->rank++)
        out->dim[out->rank] = shape->dim[out->rank];
}

/* ---- signatures ------------------------------------------------------------------------------------------
 * A signature is a rule as text: dtype and sizes of each operand, then of the result, such as
 * "f32 [n, classes], f32 [n] -> i64 [n]". A name stands for one size and "..." for any number of axes. If a
 * shape has two "...", the first stands for the axes before attr->axis. The dtype index is I64 or I32; any is
 * the dtype of the first operand; others are their own names. generator/signature.py reads the same texts. */

typedef struct gpunn__symbol {
    const char *text; /* in the signature */
    size_t      length;
    int         again; /* 1: the second "..." of a shape */
    int         rank;  /* number of axes that it stands for */
    int64_t     dim[GPUNN_MAX_RANK];
} gpunn__symbol;
typedef struct gpunn__symbols {
    int           axis;  /* attr->axis */
    bool          along; /* whether a shape has two "..." */
    int           count;
    gpunn__symbol known[8]; /* no signature has more */
} gpunn__symbols;

static bool gpunn__is_dots(const gpunn__symbol *size)
{
    return size->text[0] == '.';
}

static bool gpunn__is_number(const gpunn__symbol *size)
{
    return isdigit((unsigned char)size->text[0]) != 0;
}

/* Reads the next size of a shape at *at. False at its end. */
static bool gpunn__next_symbol(const char **at, gpunn__symbol *size)
{
    size->text = *at += strspn(*at, "[, ");
    size->length = strcspn(*at, ",]");
    *at += size->length;
    return size->length > 0;
}

static const gpunn__symbol *gpunn__known_symbol(const gpunn__symbols *names, const gpunn__symbol *size)
{
    for (int i = 0; i < names->count; i++) {
        const gpunn__symbol *known = &names->known[i];
        if (known->length == size->length && known->again == size->again &&
            memcmp(known->text, size->text, size->length) == 0)
            return known;
    }
    return NULL;
}

/* Whether a size can stand for these axes. If it stands for none so far, it stands for them from now on. */
static bool gpunn__symbol_fits(gpunn__symbols *names, gpunn__symbol *size, const int64_t *dim)
{
    const gpunn__symbol *known = gpunn__known_symbol(names, size);
    const size_t         bytes = (size_t)size->rank * sizeof *dim;
    if (gpunn__is_number(size)) return *dim == strtol(size->text, NULL, 10);
    if (known) return known->rank == size->rank && memcmp(known->dim, dim, bytes) == 0;
    memcpy(size->dim, dim, bytes);
    names->known[names->count++] = *size;
    return true;
}

/* Axes of a "...": all `rest` that have no symbol, or of two those before (again 0) and after the axis. */
static int gpunn__dots_rank(const gpunn__symbols *names, int again, int rest)
{
    if (!names->along) return rest;
    return again ? rest - names->axis : names->axis;
}

/* Whether t has the shape at `shape`. */
static bool gpunn__shape_fits(gpunn__symbols *names, const char *shape, const gpunn__meta *t)
{
    gpunn__symbol size;
    int           dots = 0, seen = 0, rest = t->rank, axis = 0;
    for (const char *at = shape; gpunn__next_symbol(&at, &size);)
        if (gpunn__is_dots(&size))
            dots++;
        else
            rest--;
    names->along = dots == 2;
    if (rest < 0 || (rest > 0 && dots == 0)) return false;
    for (; gpunn__next_symbol(&shape, &size); axis += size.rank) {
        const bool any = gpunn__is_dots(&size);
        size.again = any ? seen++ : 0;
        size.rank = any ? gpunn__dots_rank(names, size.again, rest) : 1;
        if (size.rank < 0 || !gpunn__symbol_fits(names, &size, t->dim + axis)) return false;
    }
    return true;
}

/* Sets out's shape to the one at `shape`. False if that has too many axes. */
static bool gpunn__result_shape(const gpunn__symbols *names, const char *shape, gpunn__meta *out)
{
    gpunn__symbol size;
    int           seen = 0;
    for (out->rank = 0; gpunn__next_symbol(&shape, &size); out->rank += size.rank) {
        size.again = gpunn__is_dots(&size) ? seen++ : 0;
        size.rank = 1;
        size.dim[0] = strtol(size.text, NULL, 10);
        if (!gpunn__is_number(&size)) size = *gpunn__known_symbol(names, &size);
        if (out->rank + size.rank > GPUNN_MAX_RANK) return false;
        memcpy(out->dim + out->rank, size.dim, (size_t)size.rank * sizeof *size.dim);
    }
    return true;
}

/* Whether an operand may have this dtype by the signature's word at `text`. first: operand 0's dtype. */
static bool gpunn__dtype_allowed(const char *text, gpunn_dtype dtype, gpunn_dtype first)
{
    if (strncmp(text, "any", 3) == 0) return dtype == first;
    if (strncmp(text, "index", 5) == 0) return dtype == GPUNN_I64 || dtype == GPUNN_I32;
    if (strncmp(text, "u8", 2) == 0) return dtype == GPUNN_U8;
    return dtype == GPUNN_F32;
}

/* What an operand must be, and the remedy, by the first letter of the signature's word. */
static const char *gpunn__dtype_remedy(char letter)
{
    if (letter == 'i') return "integers are needed; use i64 or i32";
    if (letter == 'u') return "u8 is needed; convert it with gpunn_quantize_per_tensor";
    return "f32 is needed; convert it with gpunn_cast";
}

/* Checks operand k against the dtype at `text`. */
static bool gpunn__dtype_fits(const gpunn__inference *i, int k, const char *text)
{
    const gpunn_dtype dtype = i->in[k].dtype, first = i->in[0].dtype;
    char              name[GPUNN__OPERAND_SIZE], first_name[GPUNN__OPERAND_SIZE];
    if (gpunn__dtype_allowed(text, dtype, first)) return true;
    (void)gpunn__operand_name(i->op, k, name);
    if (*text == 'a')
        (void)gpunn__call_fail(i->call, GPUNN_ERR_DTYPE, "%s is %s and %s %s; gpunn_cast one of them",
                               gpunn__operand_name(i->op, 0, first_name), gpunn_dtype_name(first), name,
                               gpunn_dtype_name(dtype));
    else
        (void)gpunn__call_fail(i->call, GPUNN_ERR_DTYPE, "%s is %s, but %s", name, gpunn_dtype_name(dtype),
                               gpunn__dtype_remedy(*text));
    return false;
}

/* Reports that the operands do not fit the signature. */
static void gpunn__signature_fail(const gpunn__inference *i, const gpunn__symbols *names)
{
    char   text[GPUNN__ERROR_SIZE / 2] = "", along[32] = "", one[128], name[GPUNN__OPERAND_SIZE];
    size_t used = 0;
    for (int k = 0; k < i->count && used + 170 < sizeof text; k++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s", k ? ", " : "",
                                 gpunn__operand_name(i->op, k, name), gpunn__meta_text(&i->in[k], one));
    if (names->along) (void)snprintf(along, sizeof along, " along axis %d", names->axis);
    (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE, "given: %s; needed: %.*s%s", text,
                           (int)(strstr(i->signature, " ->") - i->signature), i->signature, along);
}

GPUNN__INTERNAL bool gpunn__signature_rule(const gpunn__inference *i)
{
    gpunn__symbols names;
    const char    *part = i->signature;
    char           one[128], name[GPUNN__OPERAND_SIZE];
    memset(&names, 0, sizeof names);
    names.axis = i->attr->axis;
    for (int k = 0; k < i->count; k++) {
        if (!gpunn__dtype_fits(i, k, part)) return false;
        if (!gpunn__shape_fits(&names, strchr(part, '['), &i->in[k])) {
            gpunn__signature_fail(i, &names);
            return false;
        }
        part = strchr(part, ']') + 1;
        part += strspn(part, ", ->");
    }
    i->out->dtype = GPUNN_F32;
    if (*part == 'a') i->out->dtype = i->in[0].dtype;
    if (*part == 'i') i->out->dtype = GPUNN_I64;
    if (*part == 'u') i->out->dtype = GPUNN_U8;
    if (gpunn__result_shape(&names, strchr(part, '['), i->out)) return true;
    (void)gpunn__call_fail(
        i->call, GPUNN_ERR_SHAPE, "%s is %s; the result would have more than %d axes; gpunn_reshape it",
        gpunn__operand_name(i->op, 0, name), gpunn__meta_text(&i->in[0], one), GPUNN_MAX_RANK);
    return false;
}

/* ---- elementwise --------------------------------------------------------------------------------------- */

GPUNN__INTERNAL bool gpunn__broadcast_rule(const gpunn__inference *i)
{
    for (int k = 1; k < i->count; k++)
        if (!gpunn__broadcast_dims(i->call, "shapes", &i->out->rank, i->out->dim, i->in[k].rank,
                                   i->in[k].dim))
            return false;
    return true;
}

GPUNN__INTERNAL bool gpunn__integer_rule(const gpunn__inference *i)
{
    static const gpunn_dtype order[] = {GPUNN_BOOL, GPUNN_U8, GPUNN_I32, GPUNN_I64};
    const int                choice = i->attr->mode == GPUNN_INTEGER_WHERE;
    int                      largest = 0;
    for (int k = choice; k < i->count; k++)
        for (int rank = 1; rank < 4; rank++)
            if (i->in[k].dtype == order[rank] && rank > largest) largest = rank;
    const bool number = gpunn__integer_infos[i->attr->mode].operands > i->count;
    i->out->dtype = number && largest == 0 ? GPUNN_I64 : order[largest];
    if (gpunn__integer_infos[i->attr->mode].is_bool) i->out->dtype = GPUNN_BOOL;
    return gpunn__broadcast_rule(i);
}

GPUNN__INTERNAL bool gpunn__cast_rule(const gpunn__inference *i)
{
    i->out->dtype = i->attr->dtype;
    return true;
}

/* ---- products ------------------------------------------------------------------------------------------ */

GPUNN__INTERNAL bool gpunn__linear_rule(const gpunn__inference *i)
{
    const int last = i->out->rank - 1;
    i->out->dim[last] = i->in[1].dim[0];
    return gpunn__fits_weight(i, last, i->in[1].dim[1]);
}

GPUNN__INTERNAL bool gpunn__matmul_rule(const gpunn__inference *i)
{
    const gpunn__meta *a = &i->in[0], *b = &i->in[1];
    const bool         transpose_a = i->attr->transpose_a, transpose_b = i->attr->transpose_b;
    char               text_a[128], text_b[128], one[32], other[32];
    (void)gpunn__meta_text(a, text_a);
    (void)gpunn__meta_text(b, text_b);
    if (a->rank < 2 || b->rank < 2) {
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                               "a is %s and b %s, but both need two axes or more; gpunn_reshape them", text_a,
                               text_b);
        return false;
    }
    const int64_t m = a->dim[a->rank - 2 + transpose_a], k = a->dim[a->rank - 2 + !transpose_a];
    const int64_t b_k = b->dim[b->rank - 2 + transpose_b], n = b->dim[b->rank - 2 + !transpose_b];
    if (k != b_k) {
        (void)gpunn__call_fail(
            i->call, GPUNN_ERR_SHAPE, "a is %s%s and b %s%s: the sizes summed over, %s and %s, must be equal",
            text_a, transpose_a ? " transposed" : "", text_b, transpose_b ? " transposed" : "",
            gpunn__dim_text(i->call->model, k, one), gpunn__dim_text(i->call->model, b_k, other));
        return false;
    }
    i->out->rank -= 2;
    if (!gpunn__broadcast_dims(i->call, "leading axes", &i->out->rank, i->out->dim, b->rank - 2, b->dim))
        return false;
    i->out->dim[i->out->rank++] = m;
    i->out->dim[i->out->rank++] = n;
    return true;
}

/* ---- windows ------------------------------------------------------------------------------------------- */

GPUNN__INTERNAL bool gpunn__window_rule(const gpunn__inference *i)
{
    const gpunn__meta      *x = &i->in[0];
    const gpunn_attributes *attr = i->attr;
    if (!gpunn__image_fits(i->call, *x)) return false;
    i->out->dtype = x->dtype;
    for (int axis = 0; axis < x->rank - 2; axis++) {
        int64_t padding = attr->padding[axis], dilation = attr->dilation[axis], kernel = attr->kernel[axis];
        int64_t size = gpunn__windows_of(i->call->model, x->dim[2 + axis], kernel, attr->stride[axis],
                                         padding, dilation, attr->ceil_mode);
        i->out->dim[2 + axis] = size;
        if (size > 0 || gpunn__is_sized(size)) continue;
        char text[128];
        if (gpunn__is_sized(x->dim[2 + axis])) {
            (void)gpunn__call_fail(
                i->call, GPUNN_ERR_SHAPE,
                "the number of windows along axis %d of x %s cannot be computed from its varying size%s",
                2 + axis, gpunn__meta_text(x, text),
                attr->ceil_mode ? "; with .ceil_mode the kernel must span the stride and the padding" : "");
            return false;
        }
        (void)gpunn__call_fail(
            i->call, GPUNN_ERR_SHAPE,
            "the window spans %lld along axis %d, but the padded input only %lld (input %s, kernel %d, "
            "dilation %d, padding %d); use a smaller kernel or more padding",
            (long long)(dilation * (kernel - 1) + 1), 2 + axis, (long long)(x->dim[2 + axis] + 2 * padding),
            gpunn__meta_text(x, text), attr->kernel[axis], attr->dilation[axis], attr->padding[axis]);
        return false;
    }
    return true;
}

GPUNN__INTERNAL bool gpunn__conv_rule(const gpunn__inference *i)
{
    i->out->dim[1] = i->in[1].dim[0];
    return gpunn__window_rule(i) && gpunn__fits_weight(i, 1, i->in[1].dim[1] * i->attr->groups);
}

/* x and the result are stored with channels last, so their sizes must be fixed. */
GPUNN__INTERNAL bool gpunn__quantized_conv_rule(const gpunn__inference *i)
{
    const gpunn__meta *x = &i->in[0];
    const int64_t      out = i->in[1].dim[0];
    char               text[128];
    if (x->dtype != GPUNN_U8)
        (void)gpunn__call_fail(i->call, GPUNN_ERR_DTYPE,
                               "x is %s, but u8 is needed; convert it with gpunn_quantize_per_tensor",
                               gpunn_dtype_name(x->dtype));
    else if (out % i->attr->groups != 0)
        (void)gpunn__call_fail(i->call, GPUNN_ERR_ARGUMENT,
                               "groups is %d, but the weight has %lld output channels; it must divide them",
                               i->attr->groups, (long long)out);
    for (int k = 2; k < 4 && x->dtype == GPUNN_U8 && out % i->attr->groups == 0; k++) {
        if (i->in[k].rank == 1 && i->in[k].dim[0] == out) continue;
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE, "%s is %s, but [%lld] is needed",
                               k == 2 ? "weight_scale" : "bias", gpunn__meta_text(&i->in[k], text),
                               (long long)out);
        return false;
    }
    return x->dtype == GPUNN_U8 && out % i->attr->groups == 0 && gpunn__axes_are_fixed(i->call, *x, 1, 3) &&
           gpunn__conv_rule(i);
}

GPUNN__INTERNAL bool gpunn__conv_transpose_rule(const gpunn__inference *i)
{
    const gpunn__meta      *x = &i->in[0];
    const gpunn_attributes *attr = i->attr;
    if (!gpunn__image_fits(i->call, *x)) return false;
    i->out->dim[1] = i->in[1].dim[1] * attr->groups;
    for (int axis = 0; axis < x->rank - 2; axis++) {
        int64_t span = (int64_t)attr->dilation[axis] * (attr->kernel[axis] - 1) + 1,
                padding = attr->padding[axis];
        int64_t more = span - attr->stride[axis] - 2 * padding + attr->output_padding[axis];
        int64_t size = gpunn__is_sized(x->dim[2 + axis])
                           ? gpunn__dim_plus(i->call->model, 0, x->dim[2 + axis], attr->stride[axis], more)
                           : x->dim[2 + axis] * attr->stride[axis] + more;
        i->out->dim[2 + axis] = size;
        if (size > 0 || gpunn__is_sized(size)) continue;
        char text[128];
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                               "the padding, %d, leaves nothing along axis %d (input %s, kernel %d, dilation "
                               "%d, stride %d); use a smaller padding",
                               attr->padding[axis], 2 + axis, gpunn__meta_text(x, text), attr->kernel[axis],
                               attr->dilation[axis], attr->stride[axis]);
        return false;
    }
    return gpunn__fits_weight(i, 1, i->in[1].dim[0]);
}

GPUNN__INTERNAL float gpunn__resize_ratio(int64_t in, int64_t out, bool align_corners, double scale)
{
    if (align_corners) return out > 1 ? (float)(in - 1) / (float)(out - 1) : 0;
    return scale > 0 ? (float)(1 / scale) : (float)in / (float)out;
}

/* The spatial sizes are those that the program passed. */
GPUNN__INTERNAL bool gpunn__resize_rule(const gpunn__inference *i)
{
    const int last = i->out->rank - 1;
    for (int axis = 2; axis <= last; axis++)
        i->out->dim[axis] = i->attr->shape.dim[axis - 2] ? i->attr->shape.dim[axis - 2]
                                                         : i->attr->size[axis - 2];
    return gpunn__image_fits(i->call, i->in[0]);
}

GPUNN__INTERNAL bool gpunn__grid_sample_rule(const gpunn__inference *i)
{
    const gpunn__meta *x = &i->in[0], *grid = &i->in[1];
    char               one[128], other[128];
    int64_t            cells;
    int                batches;
    if (!gpunn__has_rank(i->call, *x, 4, 5,
                         "[n, channels, height, width] or [n, channels, depth, height, width]") ||
        !gpunn__image_fits(i->call, *x))
        return false;
    if (grid->rank != x->rank || grid->dim[0] != x->dim[0] || grid->dim[x->rank - 1] != x->rank - 2)
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                               "x is %s and grid %s; the grid of %s must have as many samples, [n, %s%d]",
                               gpunn__meta_text(x, one), gpunn__meta_text(grid, other),
                               x->rank == 4 ? "images" : "volumes",
                               x->rank == 4 ? "out_h, out_w, " : "out_d, out_h, out_w, ", x->rank - 2);
    else if (!gpunn__measure(x->rank - 2, x->dim + 2, &cells, &batches) || cells > 1 << 30)
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                               "a channel of x %s has more than 2^30 cells; use smaller sizes",
                               gpunn__meta_text(x, one));
    else {
        memcpy(i->out->dim + 2, grid->dim + 1, (size_t)(x->rank - 2) * sizeof *grid->dim);
        return true;
    }
    return false;
}

GPUNN__INTERNAL bool gpunn__hash_grid_rule(const gpunn__inference *i)
{
    i->out->dim[i->out->rank - 1] = i->attr->n_levels * i->in[1].dim[1];
    return true;
}

GPUNN__INTERNAL bool gpunn__roi_align_rule(const gpunn__inference *i)
{
    const gpunn__meta *x = &i->in[0], *boxes = &i->in[1];
    char               text[128];
    int64_t            cells;
    int                batches;
    if (!gpunn__has_axes(i->call, *x, 2)) return false;
    if (boxes->rank != 2 || boxes->dim[1] != 5)
        (void)gpunn__call_fail(
            i->call, GPUNN_ERR_SHAPE,
            "boxes is %s, but [k, 5] is needed: for each box the sample's number, x1, y1, x2 and y2",
            gpunn__meta_text(boxes, text));
    else if (!gpunn__measure(2, x->dim + 2, &cells, &batches) || cells > 1 << 30)
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                               "a channel of x %s has more than 2^30 cells; use smaller sizes",
                               gpunn__meta_text(x, text));
    else {
        i->out->dim[0] = boxes->dim[0];
        for (int axis = 0; axis < 2; axis++) i->out->dim[2 + axis] = i->attr->size[axis];
        return true;
    }
    return false;
}

GPUNN__INTERNAL bool gpunn__affine_grid_rule(const gpunn__inference *i)
{
    const gpunn__meta *theta = &i->in[0];
    char               one[128], other[128];
    gpunn__take_shape(i->out, &i->attr->shape);
    const int axes = i->out->rank;
    if ((axes != 2 && axes != 3) || theta->rank != 3 || theta->dim[1] != axes || theta->dim[2] != axes + 1) {
        (void)gpunn__call_fail(
            i->call, GPUNN_ERR_SHAPE,
            "theta is %s and size is %s; use [n, 2, 3] with two sizes, or [n, 3, 4] with three",
            gpunn__meta_text(theta, one), gpunn__meta_text(i->out, other));
        return false;
    }
    memmove(i->out->dim + 1, i->out->dim, (size_t)axes * sizeof *i->out->dim);
    i->out->dim[0] = theta->dim[0];
    i->out->dim[axes + 1] = axes;
    i->out->rank = axes + 2;
    return true;
}

/* ---- norms: the result has x's shape; only the weight is checked --------------------------------------- */

GPUNN__INTERNAL bool gpunn__norm_rule(const gpunn__inference *i)
{
    const gpunn__meta *weight = &i->in[1];
    const int          first = i->op == GPUNN_OP_LAYER_NORM || i->op == GPUNN_OP_RMS_NORM ? i->attr->axis : 1;
    for (int axis = 0; weight->dtype && axis < weight->rank; axis++)
        if (!gpunn__fits_weight(i, first + axis, weight->dim[axis])) return false;
    return true;
}

GPUNN__INTERNAL bool gpunn__group_norm_rule(const gpunn__inference *i)
{
    const gpunn__meta *x = &i->in[0];
    char               text[128];
    bool               fits = gpunn__axes_are_fixed(i->call, *x, 1, 1);
    for (int k = 2; k < x->rank && fits; k++) /* any of these may be the batch */
        fits = (x->dim[k] < 0 && !gpunn__is_sized(x->dim[k])) || gpunn__axes_fit(i->call, *x, k, k, true);
    if (!fits) return false;
    if (x->dim[1] % i->attr->groups == 0) return gpunn__norm_rule(i);
    (void)gpunn__call_fail(i->call, GPUNN_ERR_ARGUMENT,
                           "num_groups is %d, but x %s has %lld channels; it must divide them",
                           i->attr->groups, gpunn__meta_text(x, text), (long long)x->dim[1]);
    return false;
}

/* ---- recurrent layers ---------------------------------------------------------------------------------- */

/* x is [length, n, features]. */
GPUNN__INTERNAL bool gpunn__recurrent_rule(const gpunn__inference *i)
{
    const gpunn__meta *x = &i->in[0];
    const int64_t      hidden = i->attr->hidden_size, rows = gpunn__gates_of(i->op) * hidden;
    const int64_t      directions = i->attr->bidirectional ? 2 : 1;
    const gpunn_model *model = x->model;
    const gpunn__meta  lengths = {GPUNN_I64, 1, {x->dim[1]}, model},
                      reset = {GPUNN_F32, 2, {x->dim[0], x->dim[1]}, model},
                      state = {GPUNN_F32, 3, {directions, x->dim[1], hidden}, model};
    const gpunn__meta ih = {GPUNN_F32, 2, {rows, x->dim[2]}, model},
                      hh = {GPUNN_F32, 2, {rows, hidden}, model};
    const gpunn__meta bias = {GPUNN_F32, 1, {rows}, model}, *const of_direction[] = {&ih, &hh, &bias, &bias};
    for (int k = GPUNN__LENGTHS; k < i->count; k++) {
        const gpunn__meta *needed = k >= GPUNN__WEIGHTS   ? of_direction[(k - GPUNN__WEIGHTS) % 4]
                                    : k == GPUNN__LENGTHS ? &lengths
                                    : k == GPUNN__RESET   ? &reset
                                                          : &state;
        char               one[128], other[128];
        if (i->in[k].dtype == GPUNN_DTYPE_DEFAULT || gpunn__same_dims(&i->in[k], needed)) continue;
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE, "%s is %s, but %s is needed",
                               gpunn__recurrent_names[k], gpunn__meta_text(&i->in[k], one),
                               gpunn__meta_text(needed, other));
        return false;
    }
    const int behind = i->attr->states ? 1 + (i->op == GPUNN_OP_LSTM) : 0;
    i->out->dim[0] = gpunn__is_sized(x->dim[0]) ? gpunn__dim_plus(i->call->model, x->dim[0], 0, 1, behind)
                                                : x->dim[0] + behind;
    i->out->dim[2] = directions * hidden;
    return true;
}

/* ---- copies -------------------------------------------------------------------------------------------- */

static bool gpunn__same_count(gpunn_model *model, const gpunn__meta *a, const gpunn__meta *b)
{
    const int64_t count = gpunn__dim_product(model, a->rank, a->dim);
    return count != 0 && count == gpunn__dim_product(model, b->rank, b->dim);
}

GPUNN__INTERNAL bool gpunn__reshape_rule(const gpunn__inference *i)
{
    const gpunn__meta *x = &i->in[0];
    char               from[128], to[128];
    int                power = 0, wanted_power = 0;
    int64_t            factor = 0, wanted_factor = 0;
    gpunn__take_shape(i->out, &i->attr->shape);
    i->out->dtype = x->dtype;
    const bool varies = gpunn__any_sized(x->rank, x->dim) || gpunn__any_sized(i->out->rank, i->out->dim);
    if (varies ? gpunn__same_count(i->call->model, x, i->out)
               : gpunn__measure(x->rank, x->dim, &factor, &power) &&
                     gpunn__measure(i->out->rank, i->out->dim, &wanted_factor, &wanted_power) &&
                     factor == wanted_factor && power == wanted_power)
        return true;
    (void)gpunn__call_fail(
        i->call, GPUNN_ERR_SHAPE,
        "%s does not hold as many elements as %s; GPUNN_BATCH is the size of the batch, not an inferred size",
        gpunn__meta_text(i->out, to), gpunn__meta_text(x, from));
    return false;
}

GPUNN__INTERNAL bool gpunn__permute_rule(const gpunn__inference *i)
{
    i->out->dtype = i->in[0].dtype;
    for (int axis = 0; axis < i->out->rank; axis++) i->out->dim[axis] = i->in[0].dim[i->attr->order[axis]];
    return true;
}

GPUNN__INTERNAL bool gpunn__concat_rule(const gpunn__inference *i)
{
    const gpunn__meta *first = &i->in[0];
    const int          axis = i->attr->axis;
    i->out->dtype = first->dtype;
    for (int k = 1; k < i->count; k++) {
        const gpunn__meta *t = &i->in[k];
        bool               fits = t->rank == first->rank;
        if (t->dtype != first->dtype) {
            (void)gpunn__call_fail(i->call, GPUNN_ERR_DTYPE,
                                   "tensors[0] is %s and tensors[%d] %s; gpunn_cast one of them",
                                   gpunn_dtype_name(first->dtype), k, gpunn_dtype_name(t->dtype));
            return false;
        }
        const bool sized = fits && (gpunn__is_sized(t->dim[axis]) || gpunn__is_sized(i->out->dim[axis]));
        for (int j = 0; fits && j < t->rank; j++)
            fits = j == axis ? sized || (t->dim[j] < 0) == (first->dim[j] < 0) : t->dim[j] == first->dim[j];
        if (!fits) {
            char one[128], other[128];
            (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                                   "tensors[0] is %s and tensors[%d] %s; they may differ only along axis %d, "
                                   "where all or none must be the batch",
                                   gpunn__meta_text(first, one), k, gpunn__meta_text(t, other), axis);
            return false;
        }
        if (sized)
            i->out->dim[axis] = gpunn__dim_plus(i->call->model, i->out->dim[axis], t->dim[axis], 1, 0);
        else
            i->out->dim[axis] += t->dim[axis]; /* 64 times the limit does not overflow */
    }
    return true;
}

GPUNN__INTERNAL bool gpunn__slice_rule(const gpunn__inference *i)
{
    const int     axis = i->attr->axis;
    const int64_t start = i->attr->start, end = i->attr->end, step = i->attr->step, size = i->in[0].dim[axis];
    gpunn_model  *model = i->call->model;
    char          text[128], from[32], to[32];
    i->out->dtype = i->in[0].dtype;
    if (gpunn__is_sized(start) || gpunn__is_sized(end)) {
        const gpunn__sum from_sum = gpunn__sum_of(model, start);
        gpunn__sum sum = gpunn__sum_plus_number(gpunn__sum_plus(gpunn__sum_of(model, end), &from_sum, -1),
                                                -1);
        sum = gpunn__sum_plus_number(gpunn__sum_quotient(model, sum, step), 1);
        if ((i->out->dim[axis] = gpunn__dim_of_sum(model, &sum)) != 0) return true;
    } else if (start < 0) { /* of sizes that vary */
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                               "the range begins %lld elements before axis %d of %s; use other sizes",
                               -(long long)start, axis, gpunn__meta_text(&i->in[0], text));
        return false;
    } else {
        i->out->dim[axis] = (end - start - 1) / step + 1;
        if (start < end && (end <= size || size < 0)) return true;
    }
    (void)gpunn__call_fail(
        i->call, GPUNN_ERR_SHAPE, "%s:%s is empty or ends after axis %d of %s; use other bounds",
        start ? gpunn__dim_text(model, start, from) : "0",
        end > 0 || end < 0 ? gpunn__dim_text(model, end, to) : "0", axis, gpunn__meta_text(&i->in[0], text));
    return false;
}

GPUNN__INTERNAL bool gpunn__pad_rule(const gpunn__inference *i)
{
    i->out->dtype = i->in[0].dtype;
    const int  mode = i->attr->mode;
    const bool mirrored = mode == GPUNN_PAD_REFLECT || mode == GPUNN_PAD_CIRCULAR;
    for (int axis = 0; axis < GPUNN_MAX_RANK; axis++) {
        const int64_t before = i->attr->before[axis], after = i->attr->after[axis], size = i->in[0].dim[axis];
        const int64_t most = mode == GPUNN_PAD_REFLECT ? size - 1 : size;
        const bool    missing = axis >= i->in[0].rank, sized = !missing && gpunn__is_sized(size);
        const bool    outside = missing || (size < 0 && !sized);
        char          text[128];
        if (before == 0 && after == 0) continue;
        i->out->dim[axis] = sized ? gpunn__dim_plus(i->call->model, size, 0, 1, before + after)
                                  : size + before + after;
        if (sized) continue;
        if (!outside && !(mirrored && (before > most || after > most))) continue;
        (void)gpunn__meta_text(&i->in[0], text);
        if (outside)
            (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE, "axis %d of %s %s; leave its padding at 0", axis,
                                   text, missing ? "does not exist" : "is the batch");
        else
            (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                                   "padding is %lld before and %lld after axis %d of %s, but mode %s allows "
                                   "at most %lld on each side; use less",
                                   (long long)before, (long long)after, axis, text,
                                   gpunn__pad_mode_names[mode], (long long)most);
        return false;
    }
    return true;
}

GPUNN__INTERNAL bool gpunn__expand_rule(const gpunn__inference *i)
{
    i->out->dtype = i->in[0].dtype;
    const gpunn__meta *x = &i->in[0];
    char               from[128], to[128];
    gpunn__take_shape(i->out, &i->attr->shape);
    const int first = i->out->rank - x->rank;
    bool      fits = first >= 0;
    for (int axis = 0; fits && axis < x->rank; axis++)
        fits = x->dim[axis] == 1 || x->dim[axis] == i->out->dim[first + axis];
    if (!fits)
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                               "%s does not expand to %s; only axes of size 1 and new leading axes expand",
                               gpunn__meta_text(x, from), gpunn__meta_text(i->out, to));
    return fits;
}

/* index may be smaller than x along the other axes. */
GPUNN__INTERNAL bool gpunn__gather_rule(const gpunn__inference *i)
{
    const gpunn__meta *x = &i->in[0], *index = &i->in[1];
    bool               fits = index->rank == x->rank;
    char               one[128], other[128];
    for (int k = 0; fits && k < x->rank; k++)
        fits = k == i->attr->axis || index->dim[k] == x->dim[k] ||
               (index->dim[k] > 0 && index->dim[k] < x->dim[k]);
    if (!fits)
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                               "x is %s and index is %s; both need the same number of axes, and only axis %d "
                               "of index may be larger than x's",
                               gpunn__meta_text(x, one), gpunn__meta_text(index, other), i->attr->axis);
    memcpy(i->out->dim, index->dim, sizeof index->dim);
    i->out->dtype = x->dtype;
    return fits;
}

/* ---- reductions ---------------------------------------------------------------------------------------- */

static void gpunn__reduce_axes(const gpunn__inference *i, uint32_t axes)
{
    i->out->rank = 0;
    for (int axis = 0; axis < i->in[0].rank; axis++) {
        const bool reduced = (axes >> axis & 1) != 0;
        if (!reduced || i->attr->keepdim) i->out->dim[i->out->rank++] = reduced ? 1 : i->in[0].dim[axis];
    }
}

GPUNN__INTERNAL bool gpunn__reduce_rule(const gpunn__inference *i)
{
    if (i->in[0].dtype != GPUNN_F32) i->out->dtype = i->op == GPUNN_OP_SUM ? GPUNN_I64 : i->in[0].dtype;
    gpunn__reduce_axes(i, i->attr->axes);
    return true;
}

GPUNN__INTERNAL bool gpunn__argmax_rule(const gpunn__inference *i)
{
    i->out->dtype = GPUNN_I64;
    gpunn__reduce_axes(i, 1u << i->attr->axis);
    return true;
}

GPUNN__INTERNAL bool gpunn__topk_indices_rule(const gpunn__inference *i)
{
    const int     axis = i->attr->axis, k = i->attr->k;
    const int64_t size = i->in[0].dim[axis];
    char          text[128];
    i->out->dtype = GPUNN_I64;
    i->out->dim[axis] = k;
    if (k >= 1 && (k <= size || gpunn__is_sized(size))) return true;
    (void)gpunn__meta_text(&i->in[0], text);
    if (size < 0)
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE, "axis %d of %s is the batch; choose another axis",
                               axis, text);
    else
        (void)gpunn__call_fail(i->call, GPUNN_ERR_ARGUMENT,
                               "k is %d, but axis %d of %s has %lld elements; use 1 to that number", k, axis,
                               text, (long long)size);
    return false;
}

/* ---- attention ----------------------------------------------------------------------------------------- */

/* Checks that mask has a valid dtype and broadcasts to the scores [n, heads, l, s]. */
static bool gpunn__mask_fits(const gpunn__call *call, const gpunn__meta *mask, const gpunn__meta *scores)
{
    char        one[128], other[128];
    gpunn__meta whole = *scores;
    if (mask->dtype != GPUNN_BOOL && mask->dtype != GPUNN_F32) {
        (void)gpunn__call_fail(
            call, GPUNN_ERR_DTYPE,
            ".mask is %s, but must be bool (true: takes part) or f32 (added to the scores); gpunn_cast it",
            gpunn_dtype_name(mask->dtype));
        return false;
    }
    if (!gpunn__broadcast_dims(call, "[n, heads, l, s] and .mask", &whole.rank, whole.dim, mask->rank,
                               mask->dim))
        return false;
    if (gpunn__same_dims(&whole, scores)) return true;
    (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                           ".mask %s is larger than [n, heads, l, s], here %s; it must broadcast to that",
                           gpunn__meta_text(mask, one), gpunn__meta_text(scores, other));
    return false;
}

static bool gpunn__lengths_fit(const gpunn__call *call, const gpunn__meta *lengths, int64_t n)
{
    char text[128];
    if (lengths->dtype != GPUNN_I64 && lengths->dtype != GPUNN_I32)
        (void)gpunn__call_fail(call, GPUNN_ERR_DTYPE, ".lengths is %s; use i64 or i32",
                               gpunn_dtype_name(lengths->dtype));
    else if (lengths->rank > 1 || (lengths->rank == 1 && lengths->dim[0] != 1 && lengths->dim[0] != n))
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               ".lengths is %s; give one number, or one for each sample",
                               gpunn__meta_text(lengths, text));
    else
        return true;
    return false;
}

/* Operands q, k, v, mask and, if used, lengths; or q, k and v packed in the first, [n, rows, 3, heads, e]. */
GPUNN__INTERNAL bool gpunn__attention_rule(const gpunn__inference *i)
{
    const bool packed = i->in[0].rank == 5 && i->in[1].dtype == GPUNN_DTYPE_DEFAULT,
               last = packed || i->attr->heads_last;
    const int head = last ? 2 : 1, row = last ? 1 : 2;
    char      text[3][128], name[GPUNN__OPERAND_SIZE];
    int64_t   part[3][4]; /* without the axis of 3 */
    for (int k = 0; k < 3; k++) {
        const gpunn__meta *t = &i->in[packed ? 0 : k];
        (void)gpunn__meta_text(t, text[k]);
        if (t->rank != (packed ? 5 : 4) || (packed && t->dim[2] != 3)) {
            (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                                   "%s is %s, but [n, %s, e] is needed, or [n, rows, 3, heads, e] for q, k "
                                   "and v in one; gpunn_reshape it",
                                   gpunn__operand_name(GPUNN_OP_ATTENTION, k, name), text[k],
                                   last ? "rows, heads" : "heads, rows");
            return false;
        }
        for (int d = 0; d < 4; d++) part[k][d] = t->dim[packed && d > 1 ? d + 1 : d];
        if (part[k][head] < 1 || part[k][3] < 1 || part[k][head] > INT32_MAX || part[k][3] > INT32_MAX) {
            (void)gpunn__call_fail(
                i->call, GPUNN_ERR_SHAPE,
                "%s is %s: the number and the size of the heads must be fixed, and below 2^31",
                gpunn__operand_name(GPUNN_OP_ATTENTION, k, name), text[k]);
            return false;
        }
    }
    if (part[0][0] != part[1][0] || part[1][0] != part[2][0] || part[0][3] != part[1][3] ||
        part[1][row] != part[2][row] || part[1][head] != part[2][head]) {
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                               "q is %s, k %s and v %s: all need the same n, q and k the same head size, and "
                               "k and v the same rows and heads",
                               text[0], text[1], text[2]);
        return false;
    }
    if (part[0][head] != part[1][head] && (!i->attr->enable_gqa || part[0][head] % part[1][head] != 0)) {
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE, "q has %lld heads, but k and v have %lld; %s",
                               (long long)part[0][head], (long long)part[1][head],
                               i->attr->enable_gqa ? "the heads of k and v must divide those of q"
                                                   : "set .enable_gqa to share them");
        return false;
    }
    const gpunn__meta scores = {
        GPUNN_F32, 4, {part[0][0], part[0][head], part[0][row], part[1][row]}, i->in[0].model};
    i->out->rank = 4;
    memcpy(i->out->dim, part[0], sizeof part[0]);
    i->out->dim[3] = part[2][3];
    return (i->in[3].dtype == GPUNN_DTYPE_DEFAULT || gpunn__mask_fits(i->call, &i->in[3], &scores)) &&
           (i->count < 5 || gpunn__lengths_fit(i->call, &i->in[4], scores.dim[0]));
}

/* ---- losses -------------------------------------------------------------------------------------------- */

/* Operands logits, labels, weight. */
GPUNN__INTERNAL bool gpunn__class_loss_rule(const gpunn__inference *i)
{
    const gpunn__meta *labels = &i->in[1];
    i->out->rank = i->attr->reduction == GPUNN_REDUCE_NONE ? labels->rank : 0;
    memcpy(i->out->dim, labels->dim, sizeof labels->dim);
    return gpunn__classes_fit(i->call, i->in[0], *labels);
}

GPUNN__INTERNAL bool gpunn__ctc_loss_rule(const gpunn__inference *i)
{
    const gpunn__meta *x = &i->in[0], *targets = &i->in[1];
    const int          sample = i->attr->batch_first ? 0 : 1;
    char               text[4][128];
    bool               fits = x->rank == 3 && targets->rank == 2 && x->dim[2] > 0 &&
                (targets->dim[1] > 0 || gpunn__is_sized(targets->dim[1]));
    for (int k = 1; k < 4 && fits; k++)
        fits = i->in[k].dim[0] == x->dim[sample] && i->in[k].rank == (k == 1 ? 2 : 1);
    for (int k = 0; k < 4; k++) (void)gpunn__meta_text(&i->in[k], text[k]);
    if (!fits)
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                               "log_probabilities %s, targets %s and lengths %s, %s do not fit; %s, [n, "
                               "longest], [n] and [n] are needed",
                               text[0], text[1], text[2], text[3],
                               i->attr->batch_first ? "[n, t, classes]" : "[t, n, classes]");
    i->out->rank = i->attr->reduction == GPUNN_REDUCE_NONE;
    i->out->dim[0] = x->dim[sample];
    return fits;
}

/* ---- custom ops ---------------------------------------------------------------------------------------- */

GPUNN__INTERNAL bool gpunn__custom_rule(const gpunn__inference *i)
{
    const gpunn_custom_op *op = i->attr->custom;
    gpunn_shape            shapes[GPUNN_CUSTOM_INPUTS], result;
    memset(shapes, 0, sizeof shapes);
    for (int k = 0; k < i->count; k++)
        memcpy(shapes[k].dim, i->in[k].dim, (size_t)i->in[k].rank * sizeof(int64_t));
    result = shapes[0];
    if (op->shape && !op->shape(shapes, i->attr->numbers, &result)) {
        char   text[GPUNN__ERROR_SIZE / 2] = "", one[128];
        size_t used = 0;
        for (int k = 0; k < i->count && used + 130 < sizeof text; k++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", k ? ", " : "",
                                     gpunn__meta_text(&i->in[k], one));
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE, "its shape function does not accept %s", text);
        return false;
    }
    if (gpunn__rank_of(i->call, &result, 2) < 0) return false;
    gpunn__take_shape(i->out, &result);
    return true;
}

/* ---- states -------------------------------------------------------------------------------------------- */

/* Operands state, value, position. */
GPUNN__INTERNAL bool gpunn__assign_rule(const gpunn__inference *i)
{
    const gpunn__meta *state = &i->in[0], *value = &i->in[1], *position = &i->in[2];
    const int          axis = i->attr->axis;
    const bool         part = position->dtype != GPUNN_DTYPE_DEFAULT;
    char               one[128], other[128];
    gpunn__meta        whole = *value;
    if (part && value->rank == state->rank && value->dim[axis] <= state->dim[axis])
        whole.dim[axis] = state->dim[axis];
    *i->out = *state;
    if (!gpunn__same_dims(&whole, state)) {
        (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE, "the value is %s and the state %s; %s",
                               gpunn__meta_text(value, one), gpunn__meta_text(state, other),
                               part
                                   ? "they may differ only along the axis, where the value must not be larger"
                                   : "they must be equal");
        return false;
    }
    if (!part) return true;
    if (position->dtype != GPUNN_I64 && position->dtype != GPUNN_I32) {
        (void)gpunn__call_fail(i->call, GPUNN_ERR_DTYPE,
                               "the position is %s; use i64 or i32, and gpunn_cast for a state",
                               gpunn_dtype_name(position->dtype));
        return false;
    }
    if (position->rank == 0 ||
        (position->rank == 1 && (position->dim[0] == 1 || (axis && position->dim[0] == state->dim[0]))))
        return true;
    (void)gpunn__call_fail(i->call, GPUNN_ERR_SHAPE,
                           "the position is %s; give one number, or one for each of the state's %lld samples",
                           gpunn__meta_text(position, one), (long long)state->dim[0]);
    return false;
}

GPUNN__INTERNAL bool gpunn__infer(const gpunn__call *call, const gpunn__operation *operation,
                                  const gpunn_attributes *attr, const gpunn__meta *in, int count,
                                  gpunn__meta *out)
{
    const gpunn__inference i = {call, operation->op, attr, count, in, out, operation->signature};
    char                   text[128];
    *out = in[0];
    out->dtype = GPUNN_F32;
    if (!operation->rule(&i)) return false;
    for (int axis = 0; axis < out->rank; axis++) {
        if (out->dim[axis] != 0) continue;
        (void)gpunn__call_fail(
            call, GPUNN_ERR_SHAPE,
            "axis %d of its result cannot be computed from %s by a formula, or the formula is too long", axis,
            gpunn__meta_text(&in[0], text));
        return false;
    }
    return true;
}
