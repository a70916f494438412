#include "layers/shapes.h"
#include "base/memory.h"
#include "base/shapes.h"
#include "graph/arguments.h"
#include "graph/nodes.h"
#include "layers/basic.h"
#include "layers/recurrent.h"

GPUNN_API gpunn_tensor *gpunn_reshape(gpunn_tensor *x, gpunn_shape shape)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "reshape", NULL, x, false)) return NULL;
    gpunn_attributes attr = gpunn__no_attributes();
    attr.shape = shape;
    return gpunn__rank_of(&call, &shape, 2) < 0 ? NULL
                                                : gpunn__node(&call, &gpunn__operation_reshape, &attr, &x, 1);
}

GPUNN__INTERNAL bool gpunn__joined(gpunn_model *model, int rank, const int64_t *dim, int64_t *joined)
{
    int power = 0, batches = 0;
    for (int i = 0; i < rank; i++) batches += dim[i] < 0 && !gpunn__is_sized(dim[i]);
    if (batches > 1) return false;
    if (gpunn__any_sized(rank, dim)) return (*joined = gpunn__dim_product(model, rank, dim)) != 0;
    if (!gpunn__measure(rank, dim, joined, &power)) return false;
    if (power == 1) *joined = -*joined;
    return true;
}

GPUNN_API gpunn_tensor *gpunn_flatten(gpunn_tensor *x)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "flatten", NULL, x, false) ||
        !gpunn__has_rank(&call, gpunn__meta_of(x), 2, GPUNN_MAX_RANK, "[n, ...]"))
        return NULL;
    gpunn_attributes attr = gpunn__no_attributes();
    attr.shape.dim[0] = x->dim[0];
    if (!gpunn__joined(call.model, x->rank - 1, x->dim + 1, &attr.shape.dim[1])) {
        char text[128];
        return gpunn__call_fail(
            &call, GPUNN_ERR_SHAPE,
            "the axes after the first hold the batch more than once (x %s); use gpunn_reshape",
            gpunn__shape_text(x, text));
    }
    return gpunn__node(&call, &gpunn__operation_reshape, &attr, &x, 1);
}

GPUNN__INTERNAL int gpunn__axis_of(const gpunn__call *call, const gpunn_tensor *x, int axis)
{
    if (axis >= -x->rank && axis < x->rank) return axis < 0 ? axis + x->rank : axis;
    char text[128];
    if (x->rank == 0)
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "x is a scalar, which has no axes");
    else
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "axis %d is not one of %s; use %d to %d", axis,
                               gpunn__shape_text(x, text), -x->rank, x->rank - 1);
    return -1;
}

GPUNN__INTERNAL int gpunn__axis_list(const gpunn__call *call, const gpunn_tensor *x, const gpunn_axes *axes,
                                     int *order)
{
    int      count = 0;
    uint32_t seen = 0;
    for (; count <= GPUNN_MAX_RANK && axes->axis[count] != GPUNN_END; count++) {
        int axis = gpunn__axis_of(call, x, axes->axis[count]);
        if (axis < 0) return -1;
        if (seen >> axis & 1) {
            (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "axis %d is listed twice; name each axis once",
                                   axis);
            return -1;
        }
        seen |= 1u << axis;
        order[count] = axis;
    }
    return count;
}

GPUNN_API gpunn_tensor *gpunn_permute(gpunn_tensor *x, gpunn_axes order)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_x(&call, "permute", NULL, x, false)) return NULL;
    int count = gpunn__axis_list(&call, x, &order, attr.order);
    if (count < 0) return NULL;
    char text[128];
    if (count != x->rank)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                "%d axes are listed for %s; list each of its %d axes", count,
                                gpunn__shape_text(x, text), x->rank);
    return gpunn__node(&call, &gpunn__operation_permute, &attr, &x, 1);
}

GPUNN_API gpunn_tensor *gpunn_transpose(gpunn_tensor *x, int dim0, int dim1)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_x(&call, "transpose", NULL, x, false)) return NULL;
    const int first = gpunn__axis_of(&call, x, dim0), second = gpunn__axis_of(&call, x, dim1);
    if (first < 0 || second < 0) return NULL;
    for (int axis = 0; axis < x->rank; axis++) attr.order[axis] = axis;
    attr.order[first] = second;
    attr.order[second] = first;
    return gpunn__node(&call, &gpunn__operation_permute, &attr, &x, 1);
}

GPUNN_API gpunn_tensor *gpunn_concat(gpunn_tensor *const *tensors, int count, int axis)
{
    gpunn__call call = gpunn__call_of(NULL, "concat", NULL);
    if (count < 1 || count > GPUNN_MAX_OPERANDS)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                "got %d tensors, but 1 to %d can be joined at once", count,
                                GPUNN_MAX_OPERANDS);
    if (!gpunn__is_non_null(&call, tensors, "tensors") ||
        !gpunn__begin(&call, "concat", NULL, NULL, tensors, count, 0))
        return NULL;
    gpunn_attributes attr = gpunn__no_attributes();
    attr.axis = gpunn__axis_of(&call, tensors[0], axis);
    return attr.axis < 0 ? NULL : gpunn__node(&call, &gpunn__operation_concat, &attr, tensors, count);
}

/* Resolves an index of a Python slice. Negative indices count from the end, and all are clamped. If sizes
 * vary, only an index beyond any size is clamped. */
static int64_t gpunn__slice_index(gpunn_model *model, int64_t index, int64_t size)
{
    if (gpunn__size_place(model, index)) return index;
    if (gpunn__is_sized(size) && index >= 0) return index > GPUNN__MAX_COUNT ? size : index;
    if (gpunn__is_sized(size)) return gpunn__dim_plus(model, size, 0, 1, index);
    if (index < 0) index += size;
    return gpunn__clamp(index, 0, size);
}

GPUNN_API gpunn_tensor *gpunn_slice(gpunn_tensor *x, int axis, int64_t start, int64_t end, int64_t step)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    char             text[128];
    if (!gpunn__begin_x(&call, "slice", NULL, x, false) || (attr.axis = gpunn__axis_of(&call, x, axis)) < 0)
        return NULL;
    int64_t size = x->dim[attr.axis];
    if (size < 0 && !gpunn__is_sized(size))
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE,
                                "axis %d of %s is the batch, which cannot be cut; choose another axis",
                                attr.axis, gpunn__shape_text(x, text));
    if (step < 1)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "step is %lld; use 1 or more", (long long)step);
    attr.start = gpunn__slice_index(call.model, start, size);
    attr.end = gpunn__slice_index(call.model, end, size);
    attr.step = step;
    if (attr.end <= attr.start && !gpunn__is_sized(attr.start) && !gpunn__is_sized(attr.end))
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE,
                                "%lld:%lld along axis %d of %s is empty; at least one element must be left",
                                (long long)start, (long long)end, attr.axis, gpunn__shape_text(x, text));
    return gpunn__node(&call, &gpunn__operation_slice, &attr, &x, 1);
}

GPUNN_API gpunn_tensor *gpunn_pad_(gpunn_tensor *x, gpunn_pad_args args)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_x(&call, "pad", NULL, x, false) || !gpunn__apply_defaults(&call, &args)) return NULL;
    if (args.mode != GPUNN_PAD_CONSTANT && x->dtype != GPUNN_F32)
        return gpunn__call_fail(&call, GPUNN_ERR_DTYPE,
                                "x is %s, which mode %s does not pad; gpunn_cast it to f32",
                                gpunn_dtype_name(x->dtype), gpunn__pad_mode_names[args.mode]);
    if (args.mode != GPUNN_PAD_CONSTANT && args.value != 0)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, ".value is not used by mode %s; leave it out",
                                gpunn__pad_mode_names[args.mode]);
    for (int i = 0; i < GPUNN_MAX_RANK; i++) {
        int64_t before = args.before[i], after = args.after[i];
        if (before == GPUNN_ZERO) before = 0;
        if (after == GPUNN_ZERO) after = 0;
        if (before < 0 || after < 0 || before > GPUNN__MAX_COUNT || after > GPUNN__MAX_COUNT)
            return gpunn__call_fail(
                &call, GPUNN_ERR_ARGUMENT,
                "%lld before and %lld after axis %d are out of range; use 0 or more, gpunn_slice to cut",
                (long long)before, (long long)after, i);
        attr.before[i] = before;
        attr.after[i] = after;
    }
    attr.mode = (int)args.mode;
    attr.fill = args.value;
    return gpunn__node(&call, &gpunn__operation_pad, &attr, &x, 1);
}

GPUNN_API gpunn_tensor *gpunn_expand(gpunn_tensor *x, gpunn_shape shape)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "expand", NULL, x, false)) return NULL;
    gpunn_attributes attr = gpunn__no_attributes();
    const int        rank = gpunn__rank_of(&call, &shape, 2);
    if (rank < 0) return NULL;
    if (rank == x->rank && memcmp(shape.dim, x->dim, (size_t)rank * sizeof *x->dim) == 0) return x;
    attr.shape = shape;
    return gpunn__node(&call, &gpunn__operation_expand, &attr, &x, 1);
}

GPUNN__INTERNAL gpunn_tensor *gpunn__reshape_to(gpunn_tensor *x, int rank, const int64_t *dim)
{
    gpunn_shape shape;
    memset(&shape, 0, sizeof shape);
    memcpy(shape.dim, dim, (size_t)rank * sizeof *dim);
    return gpunn_reshape(x, shape);
}

GPUNN_API gpunn_tensor *gpunn_tile(gpunn_tensor *x, gpunn_shape repeats)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "tile", NULL, x, false)) return NULL;
    int     given = gpunn__rank_of(&call, &repeats, 0), rank = given > x->rank ? given : x->rank, inner = 0;
    int64_t one[2 * GPUNN_MAX_RANK], many[2 * GPUNN_MAX_RANK], dim[GPUNN_MAX_RANK];
    if (given < 0) return NULL;
    /* inserts an axis of 1 before each repeated axis, expands it and joins both */
    for (int i = 0; i < rank; i++) {
        int     from = i - (rank - x->rank), at = i - (rank - given);
        int64_t size = from < 0 ? 1 : x->dim[from], times = at < 0 ? 1 : repeats.dim[at];
        if (times > 1) {
            one[inner] = 1;
            many[inner++] = times;
        }
        one[inner] = many[inner] = size;
        inner++;
        const int64_t both[] = {size, times};
        if (!gpunn__joined(call.model, 2, both, &dim[i])) {
            char text[128];
            return gpunn__call_fail(&call, GPUNN_ERR_SHAPE,
                                    "axis %d of %s, repeated %lld times, has more than 2^59 elements", from,
                                    gpunn__shape_text(x, text), (long long)times);
        }
    }
    if (inner > GPUNN_MAX_RANK)
        return gpunn__call_fail(
            &call, GPUNN_ERR_SHAPE,
            "with one more axis for each repeated one, x would have %d axes; %d are possible", inner,
            GPUNN_MAX_RANK);
    gpunn_tensor *y = gpunn__reshape_to(x, inner, one);
    gpunn_shape   wide;
    memset(&wide, 0, sizeof wide);
    memcpy(wide.dim, many, (size_t)inner * sizeof *many);
    y = gpunn_expand(y, wide);
    y = y ? gpunn__reshape_to(y, rank, dim) : NULL;
    return gpunn__call_finish(&call, y);
}

GPUNN_API gpunn_tensor *gpunn_stack(gpunn_tensor *const *tensors, int count, int axis)
{
    gpunn__call   call = gpunn__call_of(NULL, "stack", NULL);
    gpunn_tensor *parts[GPUNN_MAX_OPERANDS];
    if (count < 1 || count > GPUNN_MAX_OPERANDS)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                "got %d tensors, but 1 to %d can be joined at once", count,
                                GPUNN_MAX_OPERANDS);
    if (!gpunn__is_non_null(&call, tensors, "tensors") ||
        !gpunn__begin(&call, "stack", NULL, NULL, tensors, count, 0))
        return NULL;
    int  rank = tensors[0]->rank + 1, at = axis < 0 ? axis + rank : axis;
    char one[128], other[128];
    if (rank > GPUNN_MAX_RANK || at < 0 || at >= rank)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                "axis %d is not an axis of the result; tensors of shape %s give %d axes, of "
                                "which at most %d are possible",
                                axis, gpunn__shape_text(tensors[0], one), rank, GPUNN_MAX_RANK);
    for (int i = 0; i < count; i++) {
        int64_t dim[GPUNN_MAX_RANK];
        if (!gpunn__same_shape(tensors[i], tensors[0]))
            return gpunn__call_fail(
                &call, GPUNN_ERR_SHAPE, "tensors[0] is %s and tensors[%d] %s; all must have one shape",
                gpunn__shape_text(tensors[0], one), i, gpunn__shape_text(tensors[i], other));
        for (int d = 0, from = 0; d < rank; d++) dim[d] = d == at ? 1 : tensors[i]->dim[from++];
        if ((parts[i] = gpunn__reshape_to(tensors[i], rank, dim)) == NULL) return gpunn__undo(&call);
    }
    gpunn_tensor *y = gpunn_concat(parts, count, at);
    return gpunn__call_finish(&call, y);
}

GPUNN_API gpunn_status gpunn_meshgrid(gpunn_tensor *const *coordinates, int count, gpunn_indexing indexing,
                                      gpunn_tensor **grids)
{
    gpunn__call call = gpunn__call_of(NULL, "meshgrid", NULL);
    gpunn_shape shape = {{0}};
    if (count < 1 || count > GPUNN_MAX_RANK || (int)indexing < 0 || indexing > GPUNN_INDEXING_XY) {
        (void)gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                               "count is %d and indexing %d; use 1 to %d and one of gpunn_indexing", count,
                               (int)indexing, GPUNN_MAX_RANK);
        return GPUNN_ERR_ARGUMENT;
    }
    if (!gpunn__is_non_null(&call, grids, "grids")) return GPUNN_ERR_ARGUMENT;
    memset(grids, 0, (size_t)count * sizeof *grids);
    if (!gpunn__is_non_null(&call, coordinates, "coordinates") ||
        !gpunn__begin(&call, "meshgrid", NULL, NULL, coordinates, count, 0))
        return gpunn_last_status(call.model ? call.model->dev : NULL);
    const int swap = indexing == GPUNN_INDEXING_XY && count > 1;
    for (int i = 0; i < count; i++) {
        char text[128];
        shape.dim[i < 2 ? i ^ swap : i] = coordinates[i]->dim[0];
        if (coordinates[i]->rank == 1) continue;
        (void)gpunn__call_fail(&call, GPUNN_ERR_SHAPE, "tensors[%d] is %s, but [n] is needed; flatten it", i,
                               gpunn__shape_text(coordinates[i], text));
        return GPUNN_ERR_SHAPE;
    }
    for (int i = 0; i < count; i++) {
        gpunn_shape line = {{0}};
        for (int k = 0; k < count; k++)
            line.dim[k] = k == (i < 2 ? i ^ swap : i) ? coordinates[i]->dim[0] : 1;
        grids[i] = gpunn__call_finish(&call, gpunn_expand(gpunn_reshape(coordinates[i], line), shape));
        if (grids[i]) continue;
        memset(grids, 0, (size_t)count * sizeof *grids);
        return gpunn_last_status(call.model->dev);
    }
    return GPUNN_OK;
}

static int gpunn__split_nodes(const gpunn__call *call, gpunn_tensor *x, int64_t size, int axis,
                              gpunn_tensor **parts, int capacity)
{
    if (size > x->dim[axis]) size = x->dim[axis];
    int64_t count = (x->dim[axis] + size - 1) / size;
    if (count > capacity)
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "there are %lld parts, but parts has room for %d",
                               (long long)count, capacity);
    for (int64_t i = 0; i < count && count <= capacity; i++)
        if ((parts[i] = gpunn_slice(x, axis, i * size, (i + 1) * size, 1)) == NULL) {
            (void)gpunn__undo(call);
            return 0;
        }
    return count <= capacity ? (int)count : 0;
}

/* Starts a builder call that splits a fixed axis of x by `amount`. Returns the axis, or -1 on failure. */
static int gpunn__begin_split(gpunn__call *call, const char *op, gpunn_tensor *x, int64_t amount, int axis,
                              gpunn_tensor **parts)
{
    char text[128];
    int  at;
    if (!gpunn__begin_x(call, op, NULL, x, false) || !gpunn__is_non_null(call, parts, "parts") ||
        (at = gpunn__axis_of(call, x, axis)) < 0)
        return -1;
    if (amount >= 1 && x->dim[at] > 0) return at;
    if (amount < 1)
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               "%lld is neither a number of parts nor a size; use 1 or more",
                               (long long)amount);
    else
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE, "axis %d of %s %s; choose another axis", at,
                               gpunn__shape_text(x, text),
                               gpunn__is_sized(x->dim[at]) ? "varies, and so would the number of parts"
                                                           : "is the batch, which cannot be cut");
    return -1;
}

GPUNN_API int gpunn_split(gpunn_tensor *x, int64_t size, int axis, gpunn_tensor **parts, int capacity)
{
    gpunn__call call;
    int         at = gpunn__begin_split(&call, "split", x, size, axis, parts);
    return at < 0 ? 0 : gpunn__split_nodes(&call, x, size, at, parts, capacity);
}

GPUNN_API int gpunn_chunk(gpunn_tensor *x, int chunks, int axis, gpunn_tensor **parts, int capacity)
{
    gpunn__call call;
    int         at = gpunn__begin_split(&call, "chunk", x, chunks, axis, parts);
    return at < 0 ? 0 : gpunn__split_nodes(&call, x, (x->dim[at] + chunks - 1) / chunks, at, parts, capacity);
}

GPUNN_API gpunn_tensor *gpunn_one_hot(gpunn_tensor *index, int classes)
{
    gpunn__call call;
    char        text[128];
    if (!gpunn__begin_x(&call, "one_hot", NULL, index, false)) return NULL;
    if (index->dtype != GPUNN_I64 && index->dtype != GPUNN_I32 && index->dtype != GPUNN_U8)
        return gpunn__call_fail(&call, GPUNN_ERR_DTYPE,
                                "index is %s, but class numbers are needed; use i64, i32 or u8",
                                gpunn_dtype_name(index->dtype));
    if (classes < 1 || classes > 1 << 24 || index->rank == GPUNN_MAX_RANK)
        return gpunn__call_fail(
            &call, GPUNN_ERR_ARGUMENT,
            "classes is %d and index is %s; use 1 to 2^24 classes, and at most %d axes in the result",
            classes, gpunn__shape_text(index, text), GPUNN_MAX_RANK);
    int64_t dim[GPUNN_MAX_RANK];
    memcpy(dim, index->dim, sizeof dim);
    dim[index->rank] = 1;
    gpunn_shape row = {{classes}};
    size_t      size = (size_t)classes * sizeof(float);
    float      *numbers = (float *)gpunn__realloc(call.model->dev, NULL, 0, size);
    if (numbers == NULL) return NULL;
    for (int i = 0; i < classes; i++) numbers[i] = (float)i;
    gpunn_tensor *x = gpunn_cast(index, GPUNN_F32), *all = NULL;
    if (x) x = gpunn__reshape_to(x, index->rank + 1, dim);
    if (x) all = gpunn_constant(call.model, row, numbers);
    gpunn__free(call.model->dev, numbers, size);
    x = gpunn_eq(x, all);
    return gpunn__call_finish(&call, x);
}

static gpunn_tensor *gpunn__fail_count(gpunn_tensor *x, const char *name, const char *what, int count,
                                       int most)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, name, NULL, x, true)) return NULL;
    return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "%s is %d; use 1 to %d", what, count, most);
}

/* Computes f(x * scale[i] + shift[i]) for each i < width, concatenated along the last axis. */
static gpunn_tensor *gpunn__encode(gpunn_tensor *x, const char *name, int width, const float *scale,
                                   const float *shift, gpunn_tensor *(*f)(gpunn_tensor *))
{
    gpunn__call call;
    char        text[128];
    int64_t     dim[GPUNN_MAX_RANK], last[2], joined;
    gpunn_shape each = {{width}};
    if (!gpunn__begin_x(&call, name, NULL, x, true)) return NULL;
    if (x->rank == 0 || x->rank == GPUNN_MAX_RANK)
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE, "x is %s, but 1 to %d axes are needed",
                                gpunn__shape_text(x, text), GPUNN_MAX_RANK - 1);
    memcpy(dim, x->dim, sizeof dim);
    last[0] = dim[x->rank - 1];
    last[1] = width;
    if (!gpunn__joined(call.model, 2, last, &joined))
        return gpunn__call_fail(
            &call, GPUNN_ERR_SHAPE,
            "the last axis of %s would be %d times as long and have more than 2^59 elements",
            gpunn__shape_text(x, text), width);
    dim[x->rank] = 1;
    gpunn_tensor *y = gpunn__reshape_to(x, x->rank + 1, dim);
    y = gpunn_mul(y, gpunn_constant(call.model, each, scale));
    y = f(gpunn_add(y, gpunn_constant(call.model, each, shift)));
    dim[x->rank - 1] = joined;
    if (y) y = gpunn__reshape_to(y, x->rank, dim);
    return gpunn__call_finish(&call, y);
}

GPUNN_API gpunn_tensor *gpunn_frequency_encoding(gpunn_tensor *x, int frequencies)
{
    enum { MOST = 32 };
    float scale[2 * MOST], shift[2 * MOST]; /* cos(t) = sin(t + pi / 2) */
    if (frequencies < 1 || frequencies > MOST)
        return gpunn__fail_count(x, "frequency_encoding", "frequencies", frequencies, MOST);
    for (int i = 0; i < 2 * frequencies; i++) {
        scale[i] = 3.14159265f * (float)(INT64_C(1) << i / 2);
        shift[i] = i % 2 ? 1.57079633f : 0;
    }
    return gpunn__encode(x, "frequency_encoding", 2 * frequencies, scale, shift, gpunn_sin);
}

static gpunn_tensor *gpunn__bump(gpunn_tensor *x)
{
    return gpunn_exp(gpunn_neg(gpunn_square(x)));
}

GPUNN_API gpunn_tensor *gpunn_one_blob_encoding(gpunn_tensor *x, int bins)
{
    enum { MOST = 256 };
    const float root_half = 0.707106781f;
    float       scale[MOST], shift[MOST];
    if (bins < 1 || bins > MOST) return gpunn__fail_count(x, "one_blob_encoding", "bins", bins, MOST);
    for (int i = 0; i < bins; i++) {
        scale[i] = root_half * (float)bins;
        shift[i] = -root_half * ((float)i + 0.5f);
    }
    return gpunn__encode(x, "one_blob_encoding", bins, scale, shift, gpunn__bump);
}

/* Each spherical harmonic is the product of three forms c[0] x + c[1] y + c[2] z + c[3]. */
enum { GPUNN__HARMONICS = 16, GPUNN__FORMS = 3 };
static const float gpunn__harmonic[GPUNN__HARMONICS][GPUNN__FORMS][4] = {
    {{0, 0, 0, 0.28209479f}, {0, 0, 0, 1}, {0, 0, 0, 1}},
    {{0, -0.48860251f, 0, 0}, {0, 0, 0, 1}, {0, 0, 0, 1}},
    {{0, 0, 0.48860251f, 0}, {0, 0, 0, 1}, {0, 0, 0, 1}},
    {{-0.48860251f, 0, 0, 0}, {0, 0, 0, 1}, {0, 0, 0, 1}},
    {{1.09254843f, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 0, 1}},
    {{0, -1.09254843f, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}},
    {{0, 0, 0.9461747f, -0.54627422f}, {0, 0, 1, 0.57735027f}, {0, 0, 0, 1}},
    {{-1.09254843f, 0, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}},
    {{0.54627422f, -0.54627422f, 0, 0}, {1, 1, 0, 0}, {0, 0, 0, 1}},
    {{0, 0.59004359f, 0, 0}, {-1.73205081f, 1, 0, 0}, {1.73205081f, 1, 0, 0}},
    {{2.89061144f, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}},
    {{0, 0.45704580f, 0, 0}, {0, 0, -2.23606798f, 1}, {0, 0, 2.23606798f, 1}},
    {{0, 0, 0.37317633f, 0}, {0, 0, 2.23606798f, -1.73205081f}, {0, 0, 2.23606798f, 1.73205081f}},
    {{0.45704580f, 0, 0, 0}, {0, 0, -2.23606798f, 1}, {0, 0, 2.23606798f, 1}},
    {{0, 0, 1.44530572f, 0}, {1, -1, 0, 0}, {1, 1, 0, 0}},
    {{0.59004359f, 0, 0, 0}, {-1, 1.73205081f, 0, 0}, {1, 1.73205081f, 0, 0}}};

/* Evaluates form `form` of the first `count` harmonics. */
static gpunn_tensor *gpunn__harmonic_form(gpunn_tensor *const *coordinate, int form, int count)
{
    const gpunn_shape each = {{count}};
    gpunn_tensor     *y = NULL;
    for (int k = 0; k < 4; k++) {
        float factor[GPUNN__HARMONICS];
        for (int i = 0; i < count; i++) factor[i] = gpunn__harmonic[i][form][k];
        gpunn_tensor *t = gpunn_constant(coordinate[0]->model, each, factor);
        if (k < 3) t = gpunn_mul(coordinate[k], t);
        y = k ? gpunn_add(y, t) : t;
    }
    return y;
}

GPUNN_API gpunn_tensor *gpunn_spherical_harmonics_encoding(gpunn_tensor *x, int degree)
{
    static const char name[] = "spherical_harmonics_encoding";
    gpunn__call       call;
    char              text[128];
    gpunn_tensor     *coordinate[3], *y = NULL;
    if (degree < 1 || degree > 4) return gpunn__fail_count(x, name, "degree", degree, 4);
    if (!gpunn__begin_x(&call, name, NULL, x, true)) return NULL;
    if (x->rank == 0 || x->dim[x->rank - 1] != 3)
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE, "x is %s, but its last axis must be x, y and z",
                                gpunn__shape_text(x, text));
    for (int i = 0; i < 3; i++)
        if ((coordinate[i] = gpunn_slice(x, -1, i, i + 1, 1)) == NULL) return gpunn__call_finish(&call, NULL);
    for (int form = 0; form == 0 || form < degree - 1; form++) {
        gpunn_tensor *factor = gpunn__harmonic_form(coordinate, form, degree * degree);
        y = form ? gpunn_mul(y, factor) : factor;
    }
    return gpunn__call_finish(&call, y);
}

GPUNN_API gpunn_tensor *gpunn_hash_grid_encoding_(gpunn_tensor *x, const char *name,
                                                  gpunn_hash_grid_args args)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    gpunn__hash_grid grid;
    gpunn_init       init = {GPUNN_INIT_UNIFORM, -1e-4f, 1e-4f};
    char             text[GPUNN__NAME_SIZE];
    if (!gpunn__begin_layer(&call, "hash_grid_encoding", name, x) || !gpunn__apply_defaults(&call, &args))
        return NULL;
    const int64_t axes = x->rank ? x->dim[x->rank - 1] : 0;
    if (axes != 2 && axes != 3)
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE,
                                "x is %s, but its last axis must be 2 or 3 coordinates",
                                gpunn__shape_text(x, text));
    attr.n_levels = args.n_levels;
    attr.log2_hashmap_size = args.log2_hashmap_size;
    attr.base_resolution = args.base_resolution;
    attr.per_level_scale = args.per_level_scale;
    if (args.n_levels > GPUNN__HASH_LEVELS || args.n_features_per_level > GPUNN__HASH_FEATURES ||
        args.log2_hashmap_size < 4 || args.log2_hashmap_size > 28 || !(args.per_level_scale >= 1))
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                "n_levels is %d, n_features_per_level %d, log2_hashmap_size %d and "
                                "per_level_scale %g; give 1 to 32, 1 to 8, 4 to 28, and 1 or more",
                                args.n_levels, args.n_features_per_level, args.log2_hashmap_size,
                                (double)args.per_level_scale);
    if (!gpunn__hash_grid_of(&attr, (int)axes, args.n_features_per_level, &grid))
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                "%d levels that begin with %d cells and grow by %g each would exceed 2^31 "
                                "cells; use fewer levels or a smaller scale",
                                args.n_levels, args.base_resolution, (double)args.per_level_scale);
    const int64_t dim[2] = {grid.rows, grid.features};
    (void)snprintf(text, sizeof text, "%s.weight", name);
    gpunn_tensor *operands[] = {
        x, gpunn__set_layer(&call, gpunn__weight(&call, GPUNN__PARAMETER, text, 2, dim, init))};
    gpunn__set_sparse(operands[1], args.sparse);
    attr.sparse = args.sparse;
    return operands[1] ? gpunn__node(&call, &gpunn__operation_hash_grid_encoding, &attr, operands, 2) : NULL;
}

GPUNN_API gpunn_tensor *gpunn_gather(gpunn_tensor *x, int axis, gpunn_tensor *index)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    gpunn_tensor    *operands[] = {x, index};
    if (!gpunn__begin_op(&call, "gather", GPUNN_OP_GATHER, operands, 2, 0) ||
        !gpunn__are_indices(&call, index, "index") || (attr.axis = gpunn__axis_of(&call, x, axis)) < 0)
        return NULL;
    gpunn__meta out;
    if (!gpunn__infer_node(&call, &gpunn__operation_gather, &attr, operands, 2, &out)) return NULL;
    for (int i = 0; operands[0] && i < x->rank; i++)
        if (i != attr.axis && index->dim[i] != x->dim[i])
            operands[0] = gpunn_slice(operands[0], i, 0, index->dim[i], 1);
    if (operands[0] == NULL) return gpunn__undo(&call);
    return gpunn__node(&call, &gpunn__operation_gather, &attr, operands, 2);
}

static gpunn_tensor *gpunn__scatter_node(const gpunn__operation *operation, gpunn_tensor *x, int axis,
                                         gpunn_tensor *index, gpunn_tensor *src)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    gpunn_tensor    *operands[] = {x, index, src};
    if (!gpunn__begin_op(&call, gpunn_op_name(operation->op), operation->op, operands, 3,
                         operation->op == GPUNN_OP_SCATTER ? 0 : 5) ||
        !gpunn__are_indices(&call, index, "index") || (attr.axis = gpunn__axis_of(&call, x, axis)) < 0)
        return NULL;
    return gpunn__node(&call, operation, &attr, operands, 3);
}

GPUNN_API gpunn_tensor *gpunn_scatter_add(gpunn_tensor *x, int axis, gpunn_tensor *index, gpunn_tensor *src)
{
    return gpunn__scatter_node(&gpunn__operation_scatter_add, x, axis, index, src);
}

GPUNN_API gpunn_tensor *gpunn_scatter(gpunn_tensor *x, int axis, gpunn_tensor *index, gpunn_tensor *src)
{
    return gpunn__scatter_node(&gpunn__operation_scatter, x, axis, index, src);
}

/* Expands index [count] to one index per element of the slices of x that it selects. */
static gpunn_tensor *gpunn__index_of_slices(const gpunn__call *call, const gpunn_tensor *x, int axis,
                                            gpunn_tensor *index)
{
    gpunn_shape one, all;
    char        text[128];
    if (!gpunn__are_indices(call, index, "index")) return NULL;
    if (index->rank != 1) {
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE, "index is %s, but [count] is needed; flatten it",
                               gpunn__shape_text(index, text));
        return NULL;
    }
    memset(&one, 0, sizeof one);
    memset(&all, 0, sizeof all);
    for (int i = 0; i < x->rank; i++) {
        one.dim[i] = i == axis ? index->dim[0] : 1;
        all.dim[i] = i == axis ? index->dim[0] : x->dim[i];
    }
    return gpunn_expand(gpunn_reshape(index, one), all);
}

GPUNN_API gpunn_tensor *gpunn_index_select(gpunn_tensor *x, int axis, gpunn_tensor *index)
{
    static const char *const names[] = {"x", "index"};
    gpunn__call              call;
    gpunn_tensor            *operands[] = {x, index};
    if (!gpunn__begin(&call, "index_select", NULL, names, operands, 2, 0) ||
        (axis = gpunn__axis_of(&call, x, axis)) < 0)
        return NULL;
    gpunn_tensor *each = gpunn__index_of_slices(&call, x, axis, index);
    return gpunn__call_finish(&call, gpunn_gather(x, axis, each));
}

GPUNN_API gpunn_tensor *gpunn_index_add(gpunn_tensor *x, int axis, gpunn_tensor *index, gpunn_tensor *src)
{
    static const char *const names[] = {"x", "src", "index"};
    gpunn__call              call;
    gpunn_tensor            *operands[] = {x, src, index};
    if (!gpunn__begin(&call, "index_add", NULL, names, operands, 3, 2) ||
        (axis = gpunn__axis_of(&call, x, axis)) < 0)
        return NULL;
    gpunn_tensor *each = gpunn__index_of_slices(&call, x, axis, index);
    return gpunn__call_finish(&call, gpunn_scatter_add(x, axis, each, src));
}

/* Converts index tuples over `depth` axes of x from `lead` on to indices of the single axis [lead, places,
 * rest] that joins them. Indices outside become -1. */
static gpunn_tensor *gpunn__joined_places(const gpunn_tensor *x, gpunn_tensor *index, int lead, int depth)
{
    gpunn_tensor *place = gpunn_slice(gpunn_cast(index, GPUNN_I64), -1, 0, 1, 1);
    for (int i = 1; i < depth && place; i++) {
        const int64_t size = x->dim[lead + i];
        gpunn_tensor *next = gpunn_slice(index, -1, i, i + 1, 1), *joined, *inside;
        joined = gpunn_add(gpunn_integer_scalar(GPUNN_INTEGER_MUL, place, size), next);
        inside = gpunn_logical_and(gpunn_integer_scalar(GPUNN_INTEGER_GE, gpunn_minimum(place, next), 0),
                                   gpunn_integer_scalar(GPUNN_INTEGER_LT, next, size));
        gpunn_tensor *if_inside[] = {inside, joined};
        place = gpunn__integer_node(GPUNN_INTEGER_WHERE, if_inside, 2, -1);
    }
    return place;
}

GPUNN_API gpunn_tensor *gpunn_gather_nd(gpunn_tensor *x, gpunn_tensor *index, int batch_dims)
{
    static const char *const names[] = {"x", "index"};
    gpunn_tensor            *operands[] = {x, index}, *rows;
    gpunn__call              call;
    gpunn_shape              flat = {{0}}, each = {{0}}, result = {{0}};
    char                     one[128], other[128];
    const int                lead = batch_dims;
    if (!gpunn__begin(&call, "gather_nd", NULL, names, operands, 2, 0) ||
        !gpunn__are_indices(&call, index, "index"))
        return NULL;
    const int     last = index->rank - 1;
    const int64_t depth = last < 0 ? 0 : index->dim[last];
    bool          fits = lead >= 0 && lead <= last && depth >= 1 && depth <= x->rank - lead;
    for (int i = 0; fits && i < lead; i++) fits = index->dim[i] == x->dim[i];
    for (int i = lead + 1; fits && i < lead + depth; i++) fits = x->dim[i] > 0 && !gpunn__is_sized(x->dim[i]);
    const int end = lead + (int)(fits ? depth : 0), rest = x->rank - end;
    if (!fits || last + rest > GPUNN_MAX_RANK || !gpunn__joined(call.model, lead, x->dim, &flat.dim[0]) ||
        !gpunn__joined(call.model, end - lead, x->dim + lead, &flat.dim[1]) ||
        !gpunn__joined(call.model, rest, x->dim + end, &flat.dim[2]) ||
        !gpunn__joined(call.model, last - lead, index->dim + lead, &each.dim[1]))
        return gpunn__call_fail(
            &call, GPUNN_ERR_SHAPE,
            "x is %s, index %s and batch_dims %d; use x [b ..., d1, ..., dk, rest ...] and index [b ..., "
            "places ..., k]; of d1 to dk only d1 may vary, and the result may have %d axes",
            gpunn__shape_text(x, one), gpunn__shape_text(index, other), lead, GPUNN_MAX_RANK);
    each.dim[0] = flat.dim[0];
    each.dim[2] = 1;
    rows = gpunn_reshape(gpunn__joined_places(x, index, lead, (int)depth), each);
    each.dim[2] = flat.dim[2];
    rows = gpunn_expand(rows, each);
    memcpy(result.dim, index->dim, (size_t)last * sizeof *index->dim);
    memcpy(result.dim + last, x->dim + end, (size_t)rest * sizeof *x->dim);
    rows = gpunn_gather(gpunn_reshape(x, flat), 1, rows);
    return gpunn__call_finish(&call, gpunn_reshape(rows, result));
}

GPUNN_API gpunn_tensor *gpunn_flip(gpunn_tensor *x, gpunn_axes axes)
{
    gpunn__call call;
    char        text[128];
    int         list[GPUNN_MAX_RANK + 1];
    if (!gpunn__begin_x(&call, "flip", NULL, x, false)) return NULL;
    int           count = gpunn__axis_list(&call, x, &axes, list);
    gpunn_tensor *y = count < 0 ? NULL : x;
    if (count == 0)
        for (; count < x->rank; count++) list[count] = count; /* no axis given: all axes */
    for (int i = 0; i < count; i++) {
        const int64_t size = x->dim[list[i]];
        if (size > 1 << 24)
            return gpunn__call_fail(&call, GPUNN_ERR_SHAPE, "axis %d of %s has more than 2^24 elements",
                                    list[i], gpunn__shape_text(x, text));
        gpunn_tensor *place = gpunn__ordinals(call.model, size), *last = gpunn_max(place, GPUNN_ALL, false);
        y = gpunn_index_select(y, list[i], gpunn_cast(gpunn_sub(last, place), GPUNN_I64));
    }
    return gpunn__call_finish(&call, y);
}

GPUNN__INTERNAL int gpunn__begin_along(gpunn__call *call, const char *op, gpunn_tensor *x, int axis, bool f32)
{
    char text[128];
    if (!gpunn__begin_x(call, op, NULL, x, f32) || (axis = gpunn__axis_of(call, x, axis)) < 0) return -1;
    if (x->dim[axis] > 0) return axis;
    (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE, "axis %d of %s varies between runs; choose another axis",
                           axis, gpunn__shape_text(x, text));
    return -1;
}

GPUNN_API gpunn_tensor *gpunn_roll(gpunn_tensor *x, int64_t shift, int axis)
{
    gpunn__call call;
    if ((axis = gpunn__begin_along(&call, "roll", x, axis, false)) < 0) return NULL;
    const int64_t cut = (x->dim[axis] - shift % x->dim[axis]) % x->dim[axis];
    if (cut == 0) return x;
    gpunn_tensor *parts[] = {gpunn_slice(x, axis, cut, GPUNN_END_OF_AXIS, 1),
                             gpunn_slice(x, axis, 0, cut, 1)};
    return gpunn__call_finish(&call, gpunn_concat(parts, 2, axis));
}

/* Reshapes x to six axes, permutes them and reshapes the result to an image. */
static gpunn_tensor *gpunn__regroup(gpunn_tensor *x, const int64_t *split, gpunn_axes order,
                                    const int64_t *image)
{
    gpunn_tensor *y = gpunn_permute(gpunn__reshape_to(x, 6, split), order);
    return y ? gpunn__reshape_to(y, 4, image) : NULL;
}

/* Makes a pixel shuffle or unshuffle. depth_first: the position in the square
 * comes before the channels, else after them. */
static gpunn_tensor *gpunn__pixel_call(gpunn__call *call, const char *op, gpunn_tensor *x, int factor,
                                       bool is_shuffle, bool depth_first)
{
    char text[128];
    if (!gpunn__begin_x(call, op, NULL, x, true) ||
        !gpunn__has_rank(call, gpunn__meta_of(x), 4, 4, "[n, c, h, w]"))
        return NULL;
    const int64_t r = factor, *dim = x->dim, channels = is_shuffle ? r * r : 1, pixels = is_shuffle ? 1 : r;
    if (r < 1 || r > 1 << 15 || dim[1] < 0 || dim[1] % channels ||
        (pixels > 1 && (dim[2] < 0 || dim[3] < 0)) || dim[2] % pixels || dim[3] % pixels)
        return gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                                "factor is %d and x is %s; %s must be a multiple of %s, and not vary", factor,
                                gpunn__shape_text(x, text), is_shuffle ? "the channels" : "height and width",
                                is_shuffle ? "its square" : "it");
    if (!is_shuffle) {
        const int64_t split[] = {dim[0], dim[1], dim[2] / r, r, dim[3] / r, r};
        const int64_t image[] = {dim[0], dim[1] * r * r, dim[2] / r, dim[3] / r};
        return gpunn__regroup(
            x, split, depth_first ? GPUNN_AXES(0, 3, 5, 1, 2, 4) : GPUNN_AXES(0, 1, 3, 5, 2, 4), image);
    }
    const int64_t each = dim[1] / channels, behind[] = {dim[0], each, r, r, dim[2], dim[3]};
    const int64_t before[] = {dim[0], r, r, each, dim[2], dim[3]}, height[] = {dim[2], r},
                  width[] = {dim[3], r};
    int64_t image[] = {dim[0], each, 0, 0};
    if (!gpunn__joined(call->model, 2, height, &image[2]) || !gpunn__joined(call->model, 2, width, &image[3]))
        return gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                                "%s, %d times as high and wide, has more than 2^59 elements",
                                gpunn__shape_text(x, text), factor);
    return depth_first ? gpunn__regroup(x, before, GPUNN_AXES(0, 3, 4, 1, 5, 2), image)
                       : gpunn__regroup(x, behind, GPUNN_AXES(0, 1, 4, 2, 5, 3), image);
}

#define GPUNN__X(name, is_shuffle, depth_first)                                                \
    GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *x, int factor)                          \
    {                                                                                          \
        gpunn__call   call;                                                                    \
        gpunn_tensor *y = gpunn__pixel_call(&call, #name, x, factor, is_shuffle, depth_first); \
        return gpunn__call_finish(&call, y);                                                   \
    }
GPUNN__X(pixel_shuffle, true, false)
GPUNN__X(pixel_unshuffle, false, false)
GPUNN__X(depth_to_space, true, true)
GPUNN__X(space_to_depth, false, true)
#undef GPUNN__X

GPUNN_API gpunn_tensor *gpunn_glu(gpunn_tensor *x, int axis)
{
    gpunn__call call;
    char        text[128];
    if (!gpunn__begin_x(&call, "glu", NULL, x, true) || (axis = gpunn__axis_of(&call, x, axis)) < 0)
        return NULL;
    const int64_t half = x->dim[axis] / 2;
    if (half < 1 || x->dim[axis] % 2)
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE,
                                "axis %d of x %s cannot be halved; its size must be even, and not vary", axis,
                                gpunn__shape_text(x, text));
    gpunn_tensor *in[] = {gpunn_slice(x, axis, 0, half, 1), gpunn_slice(x, axis, half, 2 * half, 1)};
    return gpunn__call_finish(&call, in[0] && in[1] ? gpunn_expr("x * sigmoid(y)", in, 2) : NULL);
}

GPUNN__INTERNAL gpunn_tensor *gpunn__unfold(gpunn_tensor *x, const gpunn_attributes *attr,
                                            const int64_t *sizes)
{
    const int      rank = x->rank;
    gpunn_pad_args args;
    memset(&args, 0, sizeof args);
    for (int i = 2; i < rank; i++) args.before[i] = args.after[i] = attr->padding[i - 2];
    x = gpunn_pad_(x, args);
    for (int i = rank - 1; x && i >= 2; i--) {
        gpunn_tensor *parts[GPUNN_MAX_OPERANDS];
        const int     kernel = attr->kernel[i - 2], stride = attr->stride[i - 2];
        int           count = 0;
        for (int k = 0; k < kernel; k++) {
            const int64_t start = (int64_t)k * attr->dilation[i - 2];
            if (count == GPUNN_MAX_OPERANDS) parts[0] = gpunn_concat(parts, count, 1), count = 1;
            const int64_t end = gpunn__dim_plus(x->model, 0, sizes[i - 2], stride, start + 1 - stride);
            parts[count++] = gpunn_slice(x, i, start, end, stride);
        }
        x = gpunn_concat(parts, count, 1);
    }
    return x;
}

/* Resolves settings of unfold and fold and computes the numbers of windows in an
 * image [n, c, h, w]. Returns false on failure. */
static bool gpunn__unfold_settings(const gpunn__call *call, const gpunn_unfold_args *args,
                                   const gpunn__meta *image, gpunn_attributes *attr, int64_t *sizes)
{
    gpunn__meta            out = *image;
    const gpunn__inference rule = {call, GPUNN_OP_NONE, attr, 1, image, &out, NULL};
    *attr = gpunn__no_attributes();
    if (!gpunn__window_setting(call, 2, "kernel_size", "kernel_shape", args->kernel_size, args->kernel_shape,
                               gpunn__zeros, 1, attr->kernel) ||
        !gpunn__window_setting(call, 2, "stride", "strides", args->stride, args->strides, gpunn__ones, 1,
                               attr->stride) ||
        !gpunn__window_setting(call, 2, "padding", "paddings", args->padding, args->paddings, gpunn__zeros, 0,
                               attr->padding) ||
        !gpunn__window_setting(call, 2, "dilation", "dilations", args->dilation, args->dilations, gpunn__ones,
                               1, attr->dilation) ||
        !gpunn__axes_are_fixed(call, *image, 1, 3) || !gpunn__window_rule(&rule))
        return false;
    memcpy(sizes, out.dim + 2, 2 * sizeof *sizes);
    return true;
}

GPUNN_API gpunn_tensor *gpunn_unfold_(gpunn_tensor *x, gpunn_unfold_args args)
{
    gpunn__call      call;
    gpunn_attributes attr;
    int64_t          sizes[2];
    if (!gpunn__begin_x(&call, "unfold", NULL, x, true) ||
        !gpunn__has_rank(&call, gpunn__meta_of(x), 4, 4, "[n, c, h, w]"))
        return NULL;
    if (args.output_size[0] || args.output_size[1])
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "output_size is not used by unfold; leave it out");
    const gpunn__meta image = gpunn__meta_of(x);
    if (!gpunn__unfold_settings(&call, &args, &image, &attr, sizes)) return NULL;
    const int64_t n = x->dim[0], c = x->dim[1], cells = (int64_t)attr.kernel[0] * attr.kernel[1],
                  count = sizes[0] * sizes[1];
    gpunn_tensor *y = gpunn_reshape(gpunn__unfold(x, &attr, sizes), GPUNN_SHAPE(n, cells, c, count));
    y = gpunn_permute(y, GPUNN_AXES(0, 2, 1, 3));
    return gpunn__call_finish(&call, gpunn_reshape(y, GPUNN_SHAPE(n, c * cells, count)));
}

/* Removes axis `kernel` of x by adding its slices. Along axis `places`, elements are spread `stride` apart.
 * Slice k is shifted by k * dilation, and the result has `size` elements. */
static gpunn_tensor *gpunn__fold_axis(gpunn_tensor *x, int kernel, int places, int64_t stride,
                                      int64_t dilation, int64_t size)
{
    gpunn_tensor  *sum = NULL;
    gpunn_shape    shape = gpunn_tensor_shape(x), apart;
    const int64_t  count = shape.dim[kernel], reach = (shape.dim[places] - 1) * stride + 1;
    gpunn_pad_args gap, around;
    memmove(shape.dim + kernel, shape.dim + kernel + 1, (size_t)(x->rank - kernel) * sizeof *shape.dim);
    shape.dim[x->rank - 1] = 0;
    places--;
    apart = shape;
    apart.dim[places] *= stride;
    memset(&gap, 0, sizeof gap);
    gap.after[places + 1] = stride - 1;
    for (int64_t k = 0; x && k < count; k++) {
        gpunn_tensor *part = gpunn_reshape(gpunn_slice(x, kernel, k, k + 1, 1), shape);
        if (part && stride > 1) {
            part = gpunn_reshape(gpunn_pad_(gpunn__unsqueeze(part, places + 1), gap), apart);
            part = gpunn_slice(part, places, 0, reach, 1);
        }
        memset(&around, 0, sizeof around);
        around.before[places] = k * dilation, around.after[places] = size - reach - k * dilation;
        part = gpunn_pad_(part, around);
        sum = k ? gpunn_add(sum, part) : part;
    }
    return sum;
}

GPUNN_API gpunn_tensor *gpunn_fold_(gpunn_tensor *x, gpunn_unfold_args args)
{
    gpunn__call      call;
    gpunn_attributes attr;
    int64_t          sizes[2], reach[2];
    char             text[128];
    if (!gpunn__begin_x(&call, "fold", NULL, x, true) ||
        !gpunn__has_rank(&call, gpunn__meta_of(x), 3, 3, "[n, c kh kw, windows]"))
        return NULL;
    if (args.output_size[0] < 1 || args.output_size[1] < 1 || args.output_size[0] > INT32_MAX ||
        args.output_size[1] > INT32_MAX)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                "output_size is %lld, %lld; set .output_size to h and w",
                                (long long)args.output_size[0], (long long)args.output_size[1]);
    const gpunn__meta image = {
        GPUNN_F32, 4, {x->dim[0], 1, args.output_size[0], args.output_size[1]}, call.model};
    if (!gpunn__axes_are_fixed(&call, gpunn__meta_of(x), 1, 2) ||
        !gpunn__unfold_settings(&call, &args, &image, &attr, sizes))
        return NULL;
    const int64_t cells = (int64_t)attr.kernel[0] * attr.kernel[1], c = x->dim[1] / cells;
    if (x->dim[1] % cells || x->dim[2] != sizes[0] * sizes[1])
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE,
                                "x is %s, but [n, a multiple of %lld, %lld] is needed for windows of %d x %d "
                                "at %lld x %lld places",
                                gpunn__shape_text(x, text), (long long)cells,
                                (long long)(sizes[0] * sizes[1]), attr.kernel[0], attr.kernel[1],
                                (long long)sizes[0], (long long)sizes[1]);
    for (int i = 0; i < 2; i++) reach[i] = args.output_size[i] + 2 * (int64_t)attr.padding[i];
    gpunn_tensor *y = gpunn_reshape(
        x, GPUNN_SHAPE(x->dim[0], c, attr.kernel[0], attr.kernel[1], sizes[0], sizes[1]));
    y = y ? gpunn__fold_axis(y, 3, 5, attr.stride[1], attr.dilation[1], reach[1]) : NULL;
    y = y ? gpunn__fold_axis(y, 2, 3, attr.stride[0], attr.dilation[0], reach[0]) : NULL;
    for (int i = 0; i < 2; i++)
        if (attr.padding[i])
            y = gpunn_slice(y, 2 + i, attr.padding[i], attr.padding[i] + args.output_size[i], 1);
    return gpunn__call_finish(&call, y);
}

static gpunn_tensor *gpunn__triangle(const char *name, gpunn_tensor *x, int diagonal, bool is_lower)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, name, NULL, x, true) ||
        !gpunn__has_rank(&call, gpunn__meta_of(x), 2, GPUNN_MAX_RANK, "[..., rows, columns]"))
        return NULL;
    gpunn_tensor *row = gpunn_reshape(gpunn__ordinals(call.model, x->dim[x->rank - 2]),
                                      GPUNN_SHAPE(x->dim[x->rank - 2], 1));
    gpunn_tensor *column = gpunn__ordinals(call.model, x->dim[x->rank - 1]);
    gpunn_tensor *in[] = {x, column, gpunn_add_scalar(row, (float)diagonal)};
    return gpunn__call_finish(&call,
                              gpunn_expr(is_lower ? "where(y <= z, x, 0)" : "where(y >= z, x, 0)", in, 3));
}

GPUNN_API gpunn_tensor *gpunn_tril(gpunn_tensor *x, int diagonal)
{
    return gpunn__triangle("tril", x, diagonal, true);
}

GPUNN_API gpunn_tensor *gpunn_triu(gpunn_tensor *x, int diagonal)
{
    return gpunn__triangle("triu", x, diagonal, false);
}

GPUNN_API gpunn_tensor *gpunn_diagonal(gpunn_tensor *x, int offset)
{
    gpunn__call call;
    char        text[128];
    gpunn_shape flat;
    if (!gpunn__begin_x(&call, "diagonal", NULL, x, false) ||
        !gpunn__has_rank(&call, gpunn__meta_of(x), 2, GPUNN_MAX_RANK, "[..., rows, columns]"))
        return NULL;
    const int     axis = x->rank - 2;
    const int64_t rows = x->dim[axis], columns = x->dim[axis + 1], right = offset > 0 ? offset : 0,
                  down = right - offset;
    const int64_t count = rows - down < columns - right ? rows - down : columns - right,
                  first = down * columns + right;
    if (rows < 0 || columns < 0 || count < 1)
        return gpunn__call_fail(
            &call, GPUNN_ERR_SHAPE,
            "offset is %d and x is %s; rows and columns must not vary, and the diagonal must be inside",
            offset, gpunn__shape_text(x, text));
    memset(&flat, 0, sizeof flat);
    memcpy(flat.dim, x->dim, (size_t)axis * sizeof *x->dim);
    /* there each diagonal element lies one row and one column after the last */
    flat.dim[axis] = rows * columns;
    return gpunn__call_finish(&call, gpunn_slice(gpunn_reshape(x, flat), axis, first,
                                                 first + (count - 1) * (columns + 1) + 1, columns + 1));
}

GPUNN_API gpunn_tensor *gpunn_masked_fill(gpunn_tensor *x, gpunn_tensor *mask, float value)
{
    static const char *const names[] = {"x", "mask"};
    gpunn__call              call;
    gpunn_tensor            *operands[] = {x, mask}, *fill;
    const gpunn_shape        scalar = {{0}};
    if (!gpunn__begin(&call, "masked_fill", NULL, names, operands, 2, 1) ||
        !gpunn__broadcasts_to(&call, mask, "mask", x, "x"))
        return NULL;
    fill = gpunn_constant(call.model, scalar, &value);
    return gpunn__call_finish(&call, gpunn_where(mask, fill, x));
}
