#include "base/memory.h"
#include "base/shapes.h"
#include "layers/shapes.h"

/* ==== >>layers/einsum =================================================================================== */
/* Implements gpunn_einsum by permutations, reductions and matrix products, and real Fourier transforms
 * (gpunn_rfft, gpunn_irfft) by products with constant matrices. */

/* labels of a tensor's axes, and their sizes; "..." has digits, the last of which is 7 */
typedef struct gpunn__labels {
    gpunn_tensor *x;
    int           count;
    char          at[GPUNN_MAX_RANK];
    int64_t       dim[GPUNN_MAX_RANK];
} gpunn__labels;

static int gpunn__label_place(const gpunn__labels *l, char label)
{
    for (int i = 0; i < l->count; i++)
        if (l->at[i] == label) return i;
    return -1;
}

/* Appends a label. Returns false if there is no room or it exists already. */
static bool gpunn__label_add(gpunn__labels *l, char label, int64_t dim)
{
    if (l->count == GPUNN_MAX_RANK || gpunn__label_place(l, label) >= 0) return false;
    l->at[l->count] = label;
    l->dim[l->count++] = dim;
    return true;
}

/* Appends the labels of `from` whose presence in a equals in_a and whose presence in b equals in_b. */
static void gpunn__label_choose(gpunn__labels *l, const gpunn__labels *from, const gpunn__labels *a,
                                bool in_a, const gpunn__labels *b, bool in_b)
{
    for (int i = 0; i < from->count; i++)
        if ((gpunn__label_place(a, from->at[i]) >= 0) == in_a &&
            (gpunn__label_place(b, from->at[i]) >= 0) == in_b)
            (void)gpunn__label_add(l, from->at[i], from->dim[i]);
}

static int gpunn__label_count(const gpunn__labels *l, char label)
{
    int count = 0;
    for (int i = 0; i < l->count; i++) count += l->at[i] == label;
    return count;
}

/* Appends labels for the `axes` axes of "...". */
static bool gpunn__labels_dots(gpunn__labels *l, int axes)
{
    bool fine = true;
    for (int k = axes; k > 0 && fine; k--) fine = gpunn__label_add(l, (char)('0' + GPUNN_MAX_RANK - k), 0);
    return fine;
}

static bool gpunn__label_is_dot(char label)
{
    return label < '0' + GPUNN_MAX_RANK;
}

/* Reads the labels of one tensor up to ',', '-' or the end, and returns that position. With rank 0, for the
 * result, "..." has `dots` axes and letters are unique. Otherwise "..." has the axes that the letters leave
 * of rank, and a letter may occur twice. */
static const char *gpunn__labels_read(const char *c, gpunn__labels *l, int rank, int dots, bool *fine)
{
    const char *end = c;
    int         letters = 0;
    bool        dotted = false;
    for (; *end && *end != ',' && *end != '-'; end++) letters += isalpha((unsigned char)*end) != 0;
    for (*fine = true; c < end && *fine; c++) {
        if (*c == ' ') continue;
        bool dot = strncmp(c, "...", 3) == 0,
             again = rank && gpunn__label_place(l, *c) >= 0 && l->count < rank;
        if (dot)
            *fine = !dotted && gpunn__labels_dots(l, rank ? rank - letters : dots);
        else
            *fine = isalpha((unsigned char)*c) && (again || gpunn__label_add(l, *c, 0));
        if (again && !dot) l->at[l->count++] = *c;
        dotted = dotted || dot;
        c += dot ? 2 : 0;
    }
    return end;
}

/* Replaces each pair of axes with the same letter by their diagonal, as
 * the last axis. Returns false on failure. */
static bool gpunn__labels_diagonal(const gpunn__call *call, gpunn__labels *l)
{
    char one[32], other[32];
    for (int i = 0; i < l->count && l->x; i++) {
        gpunn__labels rest = *l;
        gpunn_axes    order = {{0}};
        int           j = i + 1, count = 0;
        while (j < l->count && l->at[j] != l->at[i]) j++;
        if (j == l->count) continue;
        if (l->dim[i] != l->dim[j] || l->dim[i] < 0) {
            (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                                   "%c is %s and %s in one tensor; a diagonal needs two equal, fixed sizes",
                                   l->at[i], gpunn__dim_text(call->model, l->dim[i], one),
                                   gpunn__dim_text(call->model, l->dim[j], other));
            return false;
        }
        rest.count = 0;
        for (int k = 0; k < l->count; k++) {
            if (k == i || k == j) continue;
            order.axis[count++] = k;
            rest.at[rest.count] = l->at[k];
            rest.dim[rest.count++] = l->dim[k];
        }
        order.axis[count++] = i, order.axis[count++] = j, order.axis[count] = GPUNN_END;
        rest.at[rest.count] = l->at[i];
        rest.dim[rest.count++] = l->dim[i];
        rest.x = gpunn_diagonal(gpunn_permute(l->x, order), 0);
        *l = rest;
        i = -1;
    }
    return l->x != NULL;
}

/* Removes axes of 1 that "..." broadcasts to another size. Returns false on failure. */
static bool gpunn__labels_squeeze(gpunn__labels *l, const gpunn__labels *other)
{
    gpunn__labels kept;
    memset(&kept, 0, sizeof kept);
    for (int i = 0; i < l->count; i++) {
        int at = gpunn__label_place(other, l->at[i]);
        if (!gpunn__label_is_dot(l->at[i]) || l->dim[i] != 1 || at < 0 || other->dim[at] == 1)
            (void)gpunn__label_add(&kept, l->at[i], l->dim[i]);
    }
    kept.x = kept.count < l->count ? gpunn__reshape_to(l->x, kept.count, kept.dim) : l->x;
    *l = kept;
    return l->x != NULL;
}

static gpunn_tensor *gpunn__labels_permute(const gpunn__labels *l, const gpunn__labels *wanted)
{
    gpunn_axes order = {{0}};
    bool       same = true;
    for (int i = 0; i < wanted->count; i++) {
        order.axis[i] = gpunn__label_place(l, wanted->at[i]);
        same = same && order.axis[i] == i;
    }
    order.axis[wanted->count] = GPUNN_END;
    return same ? l->x : gpunn_permute(l->x, order);
}

/* Sums over labels that occur neither in the other operand nor in the result. Returns false on failure. */
static bool gpunn__labels_reduce(gpunn__labels *l, const gpunn__labels *other, const gpunn__labels *result)
{
    gpunn_axes    axes = {{0}};
    gpunn__labels kept;
    int           count = 0;
    memset(&kept, 0, sizeof kept);
    for (int i = 0; i < l->count; i++)
        if (gpunn__label_place(other, l->at[i]) < 0 && gpunn__label_place(result, l->at[i]) < 0)
            axes.axis[count++] = i;
        else
            (void)gpunn__label_add(&kept, l->at[i], l->dim[i]);
    axes.axis[count] = GPUNN_END;
    kept.x = count ? gpunn_sum(l->x, axes, false) : l->x;
    *l = kept;
    return l->x != NULL;
}

/* Reshapes l to [batch, product of rows, product of columns]. If its axes already lie transposed, it keeps
 * them and sets *transposed. Returns NULL on failure. */
static gpunn_tensor *gpunn__labels_matrix(const gpunn__call *call, const gpunn__labels *l,
                                          const gpunn__labels *batch, const gpunn__labels *rows,
                                          const gpunn__labels *columns, bool *transposed)
{
    gpunn__labels order[2] = {*batch, *batch}; /* plain, transposed */
    for (int i = 0; i < 2; i++) {
        const gpunn__labels *groups[2] = {i == 0 ? rows : columns, i == 0 ? columns : rows};
        for (int k = 0; k < 2; k++)
            for (int j = 0; j < groups[k]->count; j++)
                (void)gpunn__label_add(&order[i], groups[k]->at[j], groups[k]->dim[j]);
    }
    *transposed = memcmp(l->at, order[1].at, (size_t)l->count) == 0;
    int64_t dim[GPUNN_MAX_RANK + 2];
    memcpy(dim, batch->dim, (size_t)batch->count * sizeof *dim);
    if (batch->count + 2 > GPUNN_MAX_RANK ||
        !gpunn__joined(call->model, rows->count, rows->dim, &dim[batch->count + *transposed]) ||
        !gpunn__joined(call->model, columns->count, columns->dim, &dim[batch->count + !*transposed]))
        return gpunn__call_fail(call, GPUNN_ERR_UNSUPPORTED,
                                "the product shares more than %d axes, or joins axes that are the batch; "
                                "gpunn_reshape the tensors",
                                GPUNN_MAX_RANK - 2);
    gpunn_tensor *x = gpunn__labels_permute(l, &order[*transposed]);
    return x ? gpunn__reshape_to(x, batch->count + 2, dim) : NULL;
}

/* Permutes l to the order of the result, with axes of 1 for missing labels. */
static gpunn_tensor *gpunn__labels_spread(const gpunn__labels *l, const gpunn__labels *result)
{
    gpunn__labels order;
    int64_t       dim[GPUNN_MAX_RANK];
    memset(&order, 0, sizeof order);
    for (int i = 0; i < result->count; i++) {
        int at = gpunn__label_place(l, result->at[i]);
        if (at >= 0) (void)gpunn__label_add(&order, l->at[at], l->dim[at]);
        dim[i] = at >= 0 ? l->dim[at] : 1;
    }
    gpunn_tensor *x = gpunn__labels_permute(l, &order);
    return x && order.count < result->count ? gpunn__reshape_to(x, result->count, dim) : x;
}

/* The product of two operands: elementwise if no label is summed, else a matrix product. */
static gpunn_tensor *gpunn__einsum_product(const gpunn__call *call, const gpunn__labels *a,
                                           const gpunn__labels *b, const gpunn__labels *result)
{
    gpunn__labels batch, rows, columns, found, summed;
    memset(&summed, 0, sizeof summed);
    batch = rows = columns = summed;
    gpunn__label_choose(&summed, a, b, true, result, false);
    if (summed.count == 0) {
        gpunn_tensor *x = gpunn__labels_spread(a, result), *y = x ? gpunn__labels_spread(b, result) : NULL;
        return y ? gpunn_mul(x, y) : NULL;
    }
    gpunn__label_choose(&batch, a, b, true, result, true);
    gpunn__label_choose(&rows, a, b, false, result, true);
    gpunn__label_choose(&columns, b, a, false, result, true);
    found = batch;
    gpunn__label_choose(&found, a, b, false, result, true);
    gpunn__label_choose(&found, b, a, false, result, true);
    gpunn_matmul_args args = {0, false, false};
    gpunn_tensor     *x = gpunn__labels_matrix(call, a, &batch, &rows, &summed, &args.transpose_a);
    gpunn_tensor *y = x ? gpunn__labels_matrix(call, b, &batch, &summed, &columns, &args.transpose_b) : NULL;
    found.x = gpunn_matmul_(x, y, args);
    if (found.x) found.x = gpunn__reshape_to(found.x, found.count, found.dim);
    return found.x ? gpunn__labels_permute(&found, result) : NULL;
}

/* Reads the labels of the tensors up to "->" or the end, and returns that position; NULL if they are not
 * valid. dots: the most axes that "..." has. */
static const char *gpunn__labels_of_operands(const char *c, gpunn_tensor *const *tensors, int count,
                                             gpunn__labels *l, int *dots)
{
    bool fine = true;
    for (int i = 0; i < count && fine; i++) {
        c = gpunn__labels_read(c, &l[i], tensors[i]->rank, 0, &fine);
        l[i].x = tensors[i];
        for (int k = 0; k < l[i].count; k++)
            if (gpunn__label_is_dot(l[i].at[k]) && *dots < '0' + GPUNN_MAX_RANK - l[i].at[k])
                *dots = '0' + GPUNN_MAX_RANK - l[i].at[k];
        fine = fine && (i + 1 < count ? *c++ == ',' : *c == 0 || (c[0] == '-' && c[1] == '>'));
    }
    return fine ? c : NULL;
}

/* Checks that labels of both tensors have the same size. Axes of "..." may also have size 1. */
static bool gpunn__labels_agree(const gpunn__call *call, const char *equation, const gpunn__labels *a,
                                const gpunn__labels *b)
{
    for (int i = 0; i < a->count; i++) {
        int  at = gpunn__label_place(b, a->at[i]);
        char one[32], other[32], label[4] = {a->at[i]};
        bool dot = gpunn__label_is_dot(a->at[i]);
        if (at < 0 || b->dim[at] == a->dim[i] || (dot && (a->dim[i] == 1 || b->dim[at] == 1))) continue;
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               "\"%.64s\": %s is %s in tensors[0] and %s in tensors[1]", equation,
                               dot ? "..." : label, gpunn__dim_text(call->model, a->dim[i], one),
                               gpunn__dim_text(call->model, b->dim[at], other));
        return false;
    }
    return true;
}

GPUNN_API gpunn_tensor *gpunn_einsum(const char *equation, gpunn_tensor *const *tensors, int count)
{
    gpunn__call   call = gpunn__call_of(NULL, "einsum", NULL);
    gpunn__labels l[3]; /* the last is that of the result */
    int           dots = 0;
    memset(l, 0, sizeof l);
    if (!gpunn__is_non_null(&call, equation, "equation") || !gpunn__is_non_null(&call, tensors, "tensors"))
        return NULL;
    if (count < 1 || count > 2)
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                "got %d tensors, but one or two are possible; multiply two at a time", count);
    if (!gpunn__begin(&call, "einsum", NULL, NULL, tensors, count, count)) return NULL;
    const char *c = gpunn__labels_of_operands(equation, tensors, count, l, &dots);
    bool        fine = c != NULL, given = fine && *c == '-';
    if (given) fine = *gpunn__labels_read(c + 2, &l[2], 0, dots, &fine) == 0 && fine;
    for (int i = 0; i < count && fine; i++) {
        char text[128];
        if (l[i].count != tensors[i]->rank)
            return gpunn__call_fail(&call, GPUNN_ERR_SHAPE,
                                    "\"%.64s\" has %d letters for tensors[%d], which is %s", equation,
                                    l[i].count, i, gpunn__shape_text(tensors[i], text));
        memcpy(l[i].dim, tensors[i]->dim, sizeof l[i].dim);
    }
    if (!given && fine) fine = gpunn__labels_dots(&l[2], dots);
    for (char label = 'A'; !given && fine && label <= 'z'; label++)
        if (gpunn__label_count(&l[0], label) + gpunn__label_count(&l[1], label) == 1)
            fine = gpunn__label_add(&l[2], label, 0);
    for (int i = 0; i < l[2].count && fine; i++)
        fine = gpunn__label_place(&l[0], l[2].at[i]) >= 0 || gpunn__label_place(&l[1], l[2].at[i]) >= 0;
    if (!fine)
        return gpunn__call_fail(
            &call, GPUNN_ERR_ARGUMENT,
            "\"%.64s\" is not a valid equation, such as \"...ij,jk->...ik\"; name each tensor's axes by "
            "letters, its other axes by \"...\", and then the result's axes, each once",
            equation);
    for (int i = 0; i < count; i++)
        if (!gpunn__labels_diagonal(&call, &l[i])) return gpunn__undo(&call);
    if (!gpunn__labels_agree(&call, equation, &l[0], &l[1])) return NULL;
    if (!gpunn__labels_squeeze(&l[0], &l[1]) || (count == 2 && !gpunn__labels_squeeze(&l[1], &l[0])))
        return gpunn__undo(&call);
    gpunn__labels a = l[0], b = l[1];
    bool          reduced = gpunn__labels_reduce(&a, &l[1], &l[2]) &&
                   (count == 1 || gpunn__labels_reduce(&b, &l[0], &l[2]));
    if (!reduced) return gpunn__call_finish(&call, NULL);
    return gpunn__call_finish(&call, count == 1 ? gpunn__labels_permute(&a, &l[2])
                                                : gpunn__einsum_product(&call, &a, &b, &l[2]));
}

/* ---- Fourier transforms --------------------------------------------------------------------------------- *
 * Complex
 * numbers are pairs along a last axis. A transform of n1 numbers is a product with a matrix [2 n1, 2 n1]. A
 * transform of n = n1 n2 numbers follows Cooley and Tukey (1965). It transforms n2 sets of n1 numbers that
 * lie n2 apart, rotates each result, and transforms n1 sets of n2. Let j = j1 n2 + j2 and k = k1 + n1 k2.
 * Then jk / n = j1 k1 / n1 + j2 k1 / n + j2 k2 / n2, up to whole turns. */

typedef struct gpunn__fourier {
    const gpunn__call *call;
    int                sign; /* sign of the exponent: -1 forward, 1 backward */
    double             scale;
} gpunn__fourier;

/* Makes a constant [turns = n / from, from * in, to * out] with a matrix for each j2. Its factors are e^(sign
 * 2 pi i (j1 k1 (n / from) + j2 k1) / n) for j1 < from and k1 < to. in and out are 2, or 1 for real parts
 * alone. half: every input counts twice except the first and the one opposite it. */
static gpunn_tensor *gpunn__fourier_matrix(const gpunn__fourier *f, int64_t n, int64_t turns, int64_t from,
                                           int64_t to, int in, int out, bool half)
{
    const int64_t     rows = from * in, columns = to * out;
    const gpunn_shape shape = {{turns, rows, columns}};
    gpunn_device     *dev = f->call->model->dev;
    size_t            bytes = 0;
    int64_t           count = 0;
    int               power = 0;
    if (!gpunn__measure(3, shape.dim, &count, &power) || !gpunn__mul((size_t)count, sizeof(float), &bytes))
        return NULL;
    float *matrix = (float *)gpunn__realloc(dev, NULL, 0, bytes);
    if (matrix == NULL) return NULL;
    for (int64_t t = 0; t < turns; t++)
        for (int64_t j = 0; j < from; j++)
            for (int64_t k = 0; k < to; k++) {
                const double part = (double)((j * turns + t) * k % n) / (double)n,
                             angle = 6.283185307179586 * part;
                const double scale = f->scale * (half && j > 0 && 2 * j < n ? 2 : 1);
                const double real = scale * cos(angle),
                             imaginary = part == 0.5 ? 0 : scale * f->sign * sin(angle);
                float *const at = matrix + (t * rows + j * in) * columns + k * out;
                at[0] = (float)real;
                if (out == 2) at[1] = (float)imaginary;
                if (in == 2) at[columns] = (float)-imaginary;
                if (in == 2 && out == 2) at[columns + 1] = (float)real;
            }
    gpunn_tensor *y = gpunn_constant(f->call->model, shape, matrix);
    gpunn__free(dev, matrix, bytes);
    return y;
}

/* The factor of n to split off first, or n if it is not split. */
static int64_t gpunn__fourier_factor(int64_t n)
{
    int64_t factor = 16;
    if (n <= 64) return n;
    while (factor > 1 && n % factor != 0) factor--;
    for (int64_t p = 17; factor == 1 && p * p <= n; p += 2)
        if (n % p == 0) factor = p;
    return factor == 1 ? n : factor;
}

/* Transforms x [rows, n, in], where in is 2, or 1 for real parts alone. Returns [rows, n, 2]. */
static gpunn_tensor *gpunn__fourier_of(const gpunn__fourier *f, gpunn_tensor *x, int64_t n, int in)
{
    const int64_t  n1 = gpunn__fourier_factor(n), n2 = n / n1;
    gpunn__fourier rest = {f->call, f->sign, 1};
    if (x == NULL) return NULL;
    int64_t       rows = x->dim[0], lines[2] = {rows, n1}, joined = 0;
    gpunn_tensor *factor = gpunn__fourier_matrix(f, n, n2, n1, n1, in, 2, false);
    if (factor == NULL || !gpunn__joined(f->call->model, 2, lines, &joined)) return NULL;
    if (n2 == 1) {
        x = gpunn_matmul(gpunn_reshape(x, GPUNN_SHAPE(rows, n * in)),
                         gpunn_reshape(factor, GPUNN_SHAPE(n * in, 2 * n)));
        return gpunn_reshape(x, GPUNN_SHAPE(rows, n, 2));
    }
    x = gpunn_permute(gpunn_reshape(x, GPUNN_SHAPE(rows, n1, n2, in)), GPUNN_AXES(2, 0, 1, 3));
    x = gpunn_matmul(gpunn_reshape(x, GPUNN_SHAPE(n2, rows, n1 * in)), factor);
    x = gpunn_permute(gpunn_reshape(x, GPUNN_SHAPE(n2, rows, n1, 2)), GPUNN_AXES(1, 2, 0, 3));
    x = gpunn__fourier_of(&rest, gpunn_reshape(x, GPUNN_SHAPE(joined, n2, 2)), n2, 2);
    x = gpunn_permute(gpunn_reshape(x, GPUNN_SHAPE(rows, n1, n2, 2)), GPUNN_AXES(0, 2, 1, 3));
    return gpunn_reshape(x, GPUNN_SHAPE(rows, n, 2));
}

/* Starts a builder call on x. If pairs is 1, its last axis holds pairs. Returns x with the
 * transformed axis last (before the pairs) and all others joined to one. *others: their
 * sizes. *axis is resolved. NULL on failure. */
static gpunn_tensor *gpunn__fourier_begin(gpunn__call *call, const char *name, gpunn_tensor *x, int pairs,
                                          int *axis, gpunn_fft_norm norm, gpunn_shape *others)
{
    gpunn_axes  order = {{0}};
    char        text[128];
    int         count = 0;
    int64_t     rows = 0;
    gpunn_shape lines = {{0}};
    if (!gpunn__begin_x(call, name, NULL, x, true)) return NULL;
    const int rank = x->rank - pairs;
    const int at = *axis < 0 ? *axis + rank : *axis;
    if (at < 0 || at >= rank || (pairs ? x->dim[rank] != 2 : rank == GPUNN_MAX_RANK) || x->dim[at] < 1 ||
        x->dim[at] > INT32_MAX / 4)
        return gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                                "x is %s and axis is %d; %s, and axis must be another axis with a fixed size",
                                gpunn__shape_text(x, text), *axis,
                                pairs ? "the last axis must have size 2, for real and imaginary parts"
                                      : "1 to 7 axes are possible");
    if ((int)norm < 0 || norm > GPUNN_FFT_FORWARD)
        return gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "norm is %d; use one of gpunn_fft_norm", (int)norm);
    *axis = at;
    memset(others, 0, sizeof *others);
    for (int i = 0; i < rank; i++) {
        if (i == *axis) continue;
        others->dim[count] = x->dim[i];
        order.axis[count++] = i;
    }
    if (!gpunn__joined(call->model, count, others->dim, &rows))
        return gpunn__call_fail(
            call, GPUNN_ERR_SHAPE,
            "the axes of x %s other than axis %d hold the batch more than once; gpunn_reshape it",
            gpunn__shape_text(x, text), *axis);
    order.axis[count++] = *axis;
    if (pairs) order.axis[count++] = rank;
    order.axis[count] = GPUNN_END;
    lines = GPUNN_SHAPE(rows, x->dim[*axis], 2);
    if (!pairs) lines.dim[2] = 0;
    return gpunn_reshape(gpunn_permute(x, order), lines);
}

/* Reverses gpunn__fourier_begin: from [rows, size, 2], or [rows, size] without pairs, to
 * the original axes around that of `size`. */
static gpunn_tensor *gpunn__fourier_end(gpunn_tensor *x, const gpunn_shape *others, int axis, int64_t size,
                                        bool pairs)
{
    gpunn_shape shape = *others;
    gpunn_axes  order = {{0}};
    int         count = 0;
    while (count < GPUNN_MAX_RANK && others->dim[count] != 0) count++;
    for (int i = 0, from = 0; i <= count; i++) order.axis[i] = i == axis ? count : from++;
    shape.dim[count] = size;
    if (pairs) {
        shape.dim[count + 1] = 2;
        order.axis[count + 1] = count + 1;
    }
    order.axis[count + 1 + pairs] = GPUNN_END;
    return gpunn_permute(gpunn_reshape(x, shape), order);
}

static double gpunn__fourier_scale(int64_t n, gpunn_fft_norm norm, gpunn_fft_norm whole)
{
    if (norm == GPUNN_FFT_ORTHO) return 1 / sqrt((double)n);
    return norm == whole ? 1 / (double)n : 1;
}

GPUNN_API gpunn_tensor *gpunn_rfft(gpunn_tensor *x, int axis, gpunn_fft_norm norm)
{
    gpunn__call   call;
    gpunn_shape   others;
    gpunn_tensor *y = gpunn__fourier_begin(&call, "rfft", x, 0, &axis, norm, &others);
    if (y == NULL) return gpunn__undo(&call);
    const int64_t        n = y->dim[1], kept = n / 2 + 1;
    const gpunn__fourier f = {&call, -1, gpunn__fourier_scale(n, norm, GPUNN_FFT_FORWARD)};
    if (gpunn__fourier_factor(n) == n) /* computes only the results that are kept */
        y = gpunn_matmul(y, gpunn_reshape(gpunn__fourier_matrix(&f, n, 1, n, kept, 1, 2, false),
                                          GPUNN_SHAPE(n, 2 * kept)));
    else
        y = gpunn_slice(gpunn__fourier_of(&f, y, n, 1), 1, 0, kept, 1);
    return gpunn__call_finish(&call, gpunn__fourier_end(y, &others, axis, kept, true));
}

GPUNN_API gpunn_tensor *gpunn_irfft(gpunn_tensor *x, int64_t n, int axis, gpunn_fft_norm norm)
{
    static const float opposite[] = {1, -1}, real[] = {1, 0};
    gpunn__call        call;
    gpunn_shape        others;
    char               text[128];
    gpunn_tensor      *y = gpunn__fourier_begin(&call, "irfft", x, 1, &axis, norm, &others);
    if (y == NULL) return gpunn__undo(&call);
    const int64_t        rows = y->dim[0], kept = y->dim[1];
    const gpunn__fourier f = {&call, 1, gpunn__fourier_scale(n, norm, GPUNN_FFT_BACKWARD)};
    if (n < 1 || n / 2 + 1 != kept)
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE,
                                "n is %lld and x %s; n / 2 + 1 must be the size of axis %d", (long long)n,
                                gpunn__shape_text(x, text), axis);
    if (gpunn__fourier_factor(n) == n) {
        y = gpunn_reshape(y, GPUNN_SHAPE(rows, 2 * kept));
        y = gpunn_matmul(
            y, gpunn_reshape(gpunn__fourier_matrix(&f, n, 1, kept, n, 2, 1, true), GPUNN_SHAPE(2 * kept, n)));
        return gpunn__call_finish(&call, gpunn__fourier_end(y, &others, axis, n, false));
    }
    /* Completes all n numbers: those after the middle are conjugates of those
     * before. The first and the middle one are real. */
    gpunn_tensor *pair = gpunn_constant(call.model, GPUNN_SHAPE(2), opposite),
                 *first = gpunn_slice(y, 1, 0, 1, 1);
    gpunn_tensor *parts[4] = {gpunn_mul(first, gpunn_constant(call.model, GPUNN_SHAPE(2), real)),
                              gpunn_slice(y, 1, 1, (n + 1) / 2, 1), NULL, NULL};
    parts[2] = gpunn_mul(gpunn_flip(parts[1], GPUNN_AXES(1)), pair);
    if (n % 2 == 0) {
        parts[3] = parts[2];
        parts[2] = gpunn_mul(gpunn_slice(y, 1, n / 2, kept, 1),
                             gpunn_constant(call.model, GPUNN_SHAPE(2), real));
    }
    y = gpunn__fourier_of(&f, gpunn_concat(parts, n % 2 == 0 ? 4 : 3, 1), n, 2);
    return gpunn__call_finish(&call, gpunn__fourier_end(gpunn_slice(y, 2, 0, 1, 1), &others, axis, n, false));
}
