#include "layers/recurrent.h"
#include "base/shapes.h"
#include "base/text.h"
#include "graph/nodes.h"
#include "layers/basic.h"

GPUNN__INTERNAL gpunn_tensor *gpunn__unsqueeze(gpunn_tensor *x, int axis)
{
    gpunn_shape shape = gpunn_tensor_shape(x);
    memmove(shape.dim + axis + 1, shape.dim + axis, (size_t)(x->rank - axis) * sizeof *shape.dim);
    shape.dim[axis] = 1;
    return gpunn_reshape(x, shape);
}

/* Index of weight_hr in a layer's parts. Layers with proj_size have it, but it is no operand of their
 * node. */
enum { GPUNN__WEIGHT_HR = 4 };

/* Makes a parameter of layer k, such as name.weight_ih_l0_reverse. k < 0: a
 * parameter of a cell, such as name.weight_ih. */
static gpunn_tensor *gpunn__recurrent_weight(const gpunn__call *call, int k, int part, bool reverse,
                                             int64_t rows, int64_t columns, float bound)
{
    char          name[GPUNN__NAME_SIZE + 32], layer[24] = "";
    const int64_t dim[] = {rows, columns};
    const bool    projects = part == GPUNN__WEIGHT_HR;
    gpunn_init    init = {GPUNN_INIT_UNIFORM, -bound, bound};
    if (k >= 0) (void)snprintf(layer, sizeof layer, "_l%d%s", k, reverse ? "_reverse" : "");
    (void)snprintf(name, sizeof name, "%s.%s%s", call->layer,
                   projects ? "weight_hr" : gpunn__recurrent_names[GPUNN__WEIGHTS + part], layer);
    return gpunn__weight(call, GPUNN__PARAMETER, name, part < 2 || projects ? 2 : 1, dim, init);
}

static bool gpunn__has_hidden_size(const gpunn__call *call, int hidden_size)
{
    if (hidden_size >= 1 && hidden_size <= INT32_MAX / 8) return true;
    (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "hidden_size is %d; set .hidden_size to 1 or more",
                           hidden_size);
    return false;
}

/* A setting that does not fit the op or the other settings, or NULL. */
static const char *gpunn__recurrent_stray(gpunn_op op, const gpunn_rnn_args *args, int layers)
{
    if (args->relu && op != GPUNN_OP_RNN) return "relu is not used by this layer";
    if (args->reset && args->bidirectional) return "reset of steps is not used with bidirectional";
    if (args->c_0 && op != GPUNN_OP_LSTM) return "c_0 is not used by this layer";
    if (args->c_n && op != GPUNN_OP_LSTM) return "c_n is not used by this layer";
    if (args->proj_size && op != GPUNN_OP_LSTM) return "proj_size is not used by this layer";
    if (args->states && args->proj_size) return "states is not used with proj_size; h_n and c_n are";
    if (args->dropout != 0 && layers == 1)
        return "dropout is not used with one layer, since it acts between layers";
    if (args->states && (layers > 1 || args->batch_first || args->h_n || args->c_n))
        return "states is not used with several layers, batch_first, h_n or c_n";
    return NULL;
}

/* Checks the settings that need no look at weights. */
static bool gpunn__recurrent_is_sound(const gpunn__call *call, gpunn_op op, const gpunn_tensor *x,
                                      const gpunn_rnn_args *args, int layers)
{
    const int   axis = args->batch_first ? 1 : 0;
    const char *stray = gpunn__recurrent_stray(op, args, layers);
    char        text[128];
    if (!gpunn__has_rank(call, gpunn__meta_of(x), 3, 3,
                         args->batch_first ? "[n, length, features]" : "[length, n, features]"))
        return false;
    if (x->dim[axis] < 0 && !gpunn__is_sized(x->dim[axis]))
        (void)gpunn__call_fail(
            call, GPUNN_ERR_SHAPE, "axis %d of x %s is the batch, but should be the length; %s", axis,
            gpunn__shape_text(x, text), args->batch_first ? "leave out .batch_first" : "set .batch_first");
    else if (stray)
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, ".%s; leave it out", stray);
    else if (layers < 1 || layers > GPUNN_MAX_OPERANDS)
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "num_layers is %d; use 1 to %d", layers,
                               GPUNN_MAX_OPERANDS);
    else if (!(args->dropout >= 0 && args->dropout <= 1))
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT, "dropout is %g; use a probability from 0 to 1",
                               (double)args->dropout);
    else if (args->proj_size < 0 || (args->proj_size && args->proj_size >= args->hidden_size))
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               "proj_size is %d and hidden_size %d; use 1 to hidden_size - 1, or 0 for none",
                               args->proj_size, args->hidden_size);
    else if (args->lengths && args->lengths->dtype != GPUNN_I64 && args->lengths->dtype != GPUNN_I32)
        (void)gpunn__call_fail(call, GPUNN_ERR_DTYPE, "lengths is %s; use i64 or i32",
                               gpunn_dtype_name(args->lengths->dtype));
    else
        return gpunn__has_hidden_size(call, args->hidden_size) &&
               gpunn__axes_fit(call, gpunn__meta_of(x), axis, axis, true) &&
               gpunn__axes_are_fixed(call, gpunn__meta_of(x), 2, 2);
    return false;
}

/* Whether t is a parameter, or computed from parameters and constants in at most `steps` ops. Values derived
 * from a weight are cached and renewed when it changes. */
static bool gpunn__is_weight(const gpunn_tensor *t, int steps)
{
    if (t->kind == GPUNN__PARAMETER) return true;
    if (t->kind != GPUNN__VALUE || steps == 0 || t->op == GPUNN_OP_RAND_LIKE || t->op == GPUNN_OP_RANDN_LIKE)
        return false;
    bool all = true, any = false;
    for (int i = 0; i < t->input_count && all; i++) {
        if (t->inputs[i] == NULL || t->inputs[i]->kind == GPUNN__CONSTANT) continue;
        any = true;
        all = gpunn__is_weight(t->inputs[i], steps - 1);
    }
    return all && any;
}

/* Number of weights per direction in gpunn_rnn_args: the operands of a node without NULL, and weight_hr. */
static int gpunn__recurrent_parts(const gpunn_rnn_args *args)
{
    return (args->no_bias ? 2 : 4) + (args->proj_size > 0);
}

static bool gpunn__is_weight_hr(const gpunn__call *call, gpunn_tensor *t, const char *name,
                                const gpunn_rnn_args *args)
{
    const int64_t dim[] = {args->proj_size, args->hidden_size};
    char          one[128], other[128];
    if (t->rank == 2 && memcmp(t->dim, dim, sizeof dim) == 0) return true;
    (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                           "%s is %s, but weight_hr, [proj_size, hidden_size], %s, is needed", name,
                           gpunn__shape_text(t, one), gpunn__dims_text(call->model, 2, dim, other));
    return false;
}

/* Checks the operands given by the program, for all layers. */
static bool gpunn__recurrent_takes(const gpunn__call *call, const gpunn_tensor *x, const gpunn_rnn_args *args,
                                   int layers)
{
    const int           directions = args->bidirectional ? 2 : 1, parts = gpunn__recurrent_parts(args);
    int64_t             state[] = {layers * directions, x->dim[args->batch_first ? 0 : 1], 0};
    gpunn_tensor *const given[] = {args->h_0, args->c_0};
    if (args->lengths && !gpunn__operand(call, args->lengths, ".lengths", false)) return false;
    if (args->reset && !gpunn__operand(call, args->reset, ".reset", true)) return false;
    for (int i = 0; i < 2; i++) {
        char one[128], other[128];
        if (given[i] == NULL) continue;
        if (!gpunn__operand(call, given[i], i ? ".c_0" : ".h_0", true)) return false;
        state[2] = i == 0 && args->proj_size ? args->proj_size : args->hidden_size;
        if (given[i]->rank == 3 && memcmp(given[i]->dim, state, sizeof state) == 0) continue;
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               ".%s is %s, but [num_layers * directions, n, %s], %s, is needed",
                               i ? "c_0" : "h_0", gpunn__shape_text(given[i], one),
                               i == 0 && args->proj_size ? "proj_size" : "hidden_size",
                               gpunn__dims_text(call->model, 3, state, other));
        return false;
    }
    for (int i = 0; args->weights && i < layers * directions * parts; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, ".weights[%d]", i);
        if (!gpunn__operand(call, args->weights[i], name, true)) return false;
        if (!gpunn__is_weight(args->weights[i], 16))
            (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                                   "%s is not a parameter; pass another layer's parameters", name);
        else if (i % parts < GPUNN__WEIGHT_HR - 2 * args->no_bias ||
                 gpunn__is_weight_hr(call, args->weights[i], name, args))
            continue; /* inference checks the shapes of all others */
        return false;
    }
    return true;
}

/* Row `length` + i of a recurrent node, where its final states are stored. */
static gpunn_tensor *gpunn__state_row(gpunn_tensor *node, int64_t length, int i)
{
    if (!gpunn__is_sized(length)) return gpunn_slice(node, 0, length + i, length + i + 1, 1);
    const int64_t first = gpunn__dim_plus(node->model, length, 0, 1, i),
                  last = gpunn__dim_plus(node->model, length, 0, 1, i + 1);
    return first && last ? gpunn_slice(node, 0, first, last, 1) : NULL;
}

/* ---- proj_size: h = W_hr r, where r = o tanh(c) is the result of a layer without it ----
 * The gates use W_hh h = (W_hh W_hr) r. A layer without proj_size that has this product as its weight_hh
 * makes r. All of r is then projected at once. The first step gets W_hh h_0 from extra features of x. They
 * are h_0 where a direction starts and 0 elsewhere. */

static gpunn_tensor *gpunn__times_hr(gpunn_tensor *r, gpunn_tensor *weight_hr)
{
    const gpunn_matmul_args turned = {0, false, true};
    return gpunn_matmul_(r, weight_hr, turned);
}

/* Projects r, whose directions share one axis. */
static gpunn_tensor *gpunn__projected(gpunn_tensor *r, gpunn_tensor *const *weight_hr, int directions,
                                      int axis)
{
    gpunn_tensor *h[2] = {NULL, NULL};
    if (r == NULL || directions == 1) return r ? gpunn__times_hr(r, weight_hr[0]) : NULL;
    const int64_t size = r->dim[axis] / 2;
    for (int d = 0; d < 2; d++)
        h[d] = gpunn__times_hr(gpunn_slice(r, axis, d * size, (d + 1) * size, 1), weight_hr[d]);
    return gpunn_concat(h, 2, axis);
}

/* Appends features to x [length, n, in] that carry h_0 [directions, n,
 * proj_size]: h_0 where a direction starts, else 0. */
static gpunn_tensor *gpunn__with_start(gpunn_tensor *x, gpunn_tensor *h_0, gpunn_tensor *lengths,
                                       int directions)
{
    static const float one = 1;
    const gpunn_shape  scalar = {{0}};
    const gpunn_shape  column = GPUNN_SHAPE(x->dim[0], 1, 1), row = GPUNN_SHAPE(1, x->dim[1], 1);
    gpunn_tensor      *parts[3] = {x, NULL, NULL},
                 *place = gpunn_reshape(gpunn__ordinals(x->model, x->dim[0]), column);
    for (int d = 0; d < directions; d++) {
        gpunn_tensor *first = d == 0    ? gpunn_constant(x->model, scalar, &one)
                              : lengths ? gpunn_reshape(gpunn_cast(lengths, GPUNN_F32), row)
                                        : gpunn_max(place, GPUNN_ALL, false);
        parts[1 + d] = gpunn_mul(gpunn_eq(place, first), gpunn_slice(h_0, 0, d, d + 1, 1));
    }
    return gpunn_concat(parts, 1 + directions, 2);
}

/* The state of each sequence, or 0 for those that reset [n] starts anew. */
static gpunn_tensor *gpunn__state_kept(gpunn_tensor *state, gpunn_tensor *reset)
{
    gpunn_tensor *in[2] = {state, gpunn_cast(reset, GPUNN_F32)};
    if (in[1]) in[1] = gpunn_reshape(in[1], GPUNN_SHAPE(state->dim[1], 1));
    return in[1] ? gpunn_expr("where(y == 0, x, 0)", in, 2) : NULL;
}

/* Turns the operands of a layer with proj_size into those of a layer without. Returns false on failure. */
static bool gpunn__project_operands(gpunn_tensor **in, gpunn_tensor *const *weight_hr, int directions)
{
    const gpunn_matmul_args plain = {0, false, false};
    gpunn_tensor           *h_0 = in[GPUNN__H_0];
    if (h_0 && in[GPUNN__RESET]) h_0 = gpunn__state_kept(h_0, gpunn_slice(in[GPUNN__RESET], 0, 0, 1, 1));
    if (h_0 == NULL && in[GPUNN__H_0]) return false;
    for (int d = 0; d < directions; d++) {
        gpunn_tensor **const weight = &in[GPUNN__WEIGHTS + 4 * d], *weight_hh = weight[1],
                             *both[2] = {weight[0], weight_hh};
        const int64_t  size = weight_hh->dim[1];
        gpunn_pad_args among;
        memset(&among, 0, sizeof among);
        among.before[1] = d * size, among.after[1] = (directions - 1 - d) * size;
        if (h_0 && directions == 2) both[1] = gpunn_pad_(weight_hh, among);
        if (h_0) weight[0] = gpunn_concat(both, 2, 1);
        /* A sum over one element. It keeps the product F32 in 16-bit models, as the layer reads its
         * weights. */
        gpunn_tensor *product = gpunn_matmul_(weight_hh, weight_hr[d], plain);
        weight[1] = product ? gpunn_sum(gpunn__unsqueeze(product, 0), GPUNN_AXES(0), false) : NULL;
        if (weight[0] == NULL || weight[1] == NULL) return false;
    }
    if (h_0) in[0] = gpunn__with_start(in[0], h_0, in[GPUNN__LENGTHS], directions);
    in[GPUNN__H_0] = NULL;
    return in[0] != NULL;
}

/* A layer that is not made has no final states. */
static void gpunn__no_states(const gpunn_rnn_args *args)
{
    if (args->h_n) *args->h_n = NULL;
    if (args->c_n) *args->c_n = NULL;
}

/* Finds or creates the weights of layer k, which reads x. They become operands of `in`, those of
 * projections stand in weight_hr. */
static bool gpunn__recurrent_operands(const gpunn__call *call, const gpunn_rnn_args *args, gpunn_op op, int k,
                                      const gpunn_tensor *x, gpunn_tensor **in, gpunn_tensor *weight_hr[2])
{
    const int     directions = args->bidirectional ? 2 : 1, parts = gpunn__recurrent_parts(args);
    const int64_t hidden = args->hidden_size, width = args->proj_size ? args->proj_size : hidden;
    const float   bound = 1 / sqrtf((float)hidden);
    for (int i = 0; i < directions * parts; i++) {
        const int     reverse = i / parts, last = args->proj_size && i % parts == parts - 1;
        const int     part = last ? GPUNN__WEIGHT_HR : i % parts;
        const int64_t after = last ? hidden : width, columns = part == 0 ? x->dim[2] : after;
        const int64_t rows = last ? width : gpunn__gates_of(op) * hidden;
        gpunn_tensor *weight = args->weights ? args->weights[k * directions * parts + i]
                                             : gpunn__recurrent_weight(call, k, part, reverse != 0, rows,
                                                                       columns, bound);
        if (weight == NULL) return false;
        *(last ? &weight_hr[reverse] : &in[GPUNN__WEIGHTS + 4 * reverse + part]) = weight;
    }
    return true;
}

GPUNN__INTERNAL gpunn_tensor *gpunn__recurrent(const gpunn__operation *operation, gpunn_tensor *x,
                                               const char *name, const gpunn_rnn_args *args)
{
    const int     directions = args->bidirectional ? 2 : 1, layers = gpunn__default_int(args->num_layers, 1);
    gpunn_tensor *weight_hr[2] = {NULL, NULL}, *h[GPUNN_MAX_OPERANDS], *c[GPUNN_MAX_OPERANDS];
    gpunn_tensor **const state[] = {h, c}, **const wanted[] = {args->h_n, args->c_n};
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    gpunn_axes       swap = GPUNN_AXES(1, 0, 2);
    gpunn__no_states(args);
    if (!(args->weights ? gpunn__begin_x(&call, gpunn_op_name(operation->op), name, x, true)
                        : gpunn__begin_layer(&call, gpunn_op_name(operation->op), name, x)) ||
        !gpunn__recurrent_is_sound(&call, operation->op, x, args, layers) ||
        !gpunn__recurrent_takes(&call, x, args, layers))
        return NULL;
    attr.relu = args->relu;
    attr.hidden_size = args->hidden_size;
    attr.bidirectional = args->bidirectional;
    attr.states = args->states || args->h_n || args->c_n;
    gpunn_tensor *y = args->batch_first ? gpunn_permute(x, swap) : x;
    for (int k = 0; k < layers && y; k++) {
        gpunn_tensor *in[GPUNN__RECURRENT_OPERANDS] = {y, args->lengths, args->h_0, args->c_0, args->reset};
        for (int i = GPUNN__H_0; i <= GPUNN__C_0 && layers > 1; i++)
            if (in[i] && (in[i] = gpunn_slice(in[i], 0, k * directions, (k + 1) * directions, 1)) == NULL)
                return gpunn__undo(&call);
        if (!gpunn__recurrent_operands(&call, args, operation->op, k, y, in, weight_hr)) return NULL;
        if (args->proj_size && !gpunn__project_operands(in, weight_hr, directions)) return gpunn__undo(&call);
        gpunn_tensor *node = gpunn__node(&call, operation, &attr, in, GPUNN__WEIGHTS + 4 * directions);
        if (node == NULL) return NULL;
        const int64_t     length = y->dim[0];
        const gpunn_shape shape = GPUNN_SHAPE(directions, y->dim[1], args->hidden_size);
        y = args->h_n || args->c_n ? gpunn_slice(node, 0, 0, length, 1) : node;
        for (int i = 0; i < 2 && y; i++) {
            gpunn_tensor *row = wanted[i] ? gpunn__state_row(node, length, i) : NULL;
            state[i][k] = row ? gpunn_reshape(row, shape) : NULL;
            if (i == 0 && args->proj_size)
                state[i][k] = gpunn__projected(state[i][k], weight_hr, directions, 0);
            if (wanted[i] && state[i][k] == NULL) return gpunn__undo(&call);
        }
        if (args->proj_size) y = gpunn__projected(y, weight_hr, directions, 2);
        if (y && args->dropout > 0 && k + 1 < layers) y = gpunn_dropout(y, args->dropout);
    }
    if (y && args->batch_first) y = gpunn_permute(y, swap);
    for (int i = 0; i < 2 && y; i++) {
        if (wanted[i] && layers > 1) state[i][0] = gpunn_concat(state[i], layers, 0);
        if (wanted[i] && state[i][0] == NULL) return gpunn__undo(&call);
    }
    for (int i = 0; i < 2 && y; i++)
        if (wanted[i]) *wanted[i] = state[i][0];
    return gpunn__call_finish(&call, y);
}

/* Turns a state [n, hidden_size] of a cell into that of a layer. Returns false on failure. */
static bool gpunn__cell_takes(const gpunn__call *call, const gpunn_tensor *x, int hidden_size,
                              const char *name, gpunn_tensor *state, gpunn_tensor **result)
{
    const int64_t dim[] = {x->dim[0], hidden_size};
    char          one[128], other[128];
    *result = NULL;
    if (state == NULL) return true;
    if (!gpunn__operand(call, state, name, true)) return false;
    if (state->rank == 2 && memcmp(state->dim, dim, sizeof dim) == 0)
        return (*result = gpunn__unsqueeze(state, 0)) != NULL;
    (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE, "%s is %s, but [n, hidden_size], %s, is needed", name,
                           gpunn__shape_text(state, one), gpunn__dims_text(call->model, 2, dim, other));
    return false;
}

/* Makes a cell as a layer of one step. */
static gpunn_tensor *gpunn__cell(const gpunn__operation *operation, gpunn_tensor *x, const char *name,
                                 const gpunn_cell_args *args)
{
    const int      parts = args->no_bias ? 2 : 4, hidden = args->hidden_size;
    gpunn_tensor  *own[4], *c_n = NULL;
    gpunn_rnn_args step;
    gpunn__call    call;
    memset(&step, 0, sizeof step);
    step.hidden_size = hidden, step.relu = args->relu, step.no_bias = args->no_bias;
    step.weights = args->weights ? args->weights : own;
    step.c_n = args->c_n ? &c_n : NULL;
    if (args->c_n) *args->c_n = NULL;
    if (!(args->weights ? gpunn__begin_x(&call, gpunn_op_name(operation->op), name, x, true)
                        : gpunn__begin_layer(&call, gpunn_op_name(operation->op), name, x)) ||
        !gpunn__has_rank(&call, gpunn__meta_of(x), 2, 2, "[n, features]") ||
        !gpunn__has_hidden_size(&call, hidden) || !gpunn__axes_are_fixed(&call, gpunn__meta_of(x), 1, 1) ||
        !gpunn__cell_takes(&call, x, hidden, ".h", args->h, &step.h_0) ||
        !gpunn__cell_takes(&call, x, hidden, ".c", args->c, &step.c_0))
        return NULL;
    for (int i = 0; i < parts && args->weights == NULL; i++) {
        own[i] = gpunn__recurrent_weight(&call, -1, i, false,
                                         (int64_t)gpunn__gates_of(operation->op) * hidden,
                                         i ? hidden : x->dim[1], 1 / sqrtf((float)hidden));
        if (own[i] == NULL) return NULL;
    }
    const gpunn_shape shape = GPUNN_SHAPE(x->dim[0], hidden);
    gpunn_tensor     *y = gpunn__recurrent(operation, gpunn__unsqueeze(x, 0), name, &step);
    if (y) y = gpunn_reshape(y, shape);
    if (y && c_n) *args->c_n = gpunn_reshape(c_n, shape);
    return gpunn__call_finish(&call, y);
}

GPUNN_API gpunn_tensor *gpunn_rnn_cell_(gpunn_tensor *x, const char *name, gpunn_cell_args args)
{
    return gpunn__cell(&gpunn__operation_rnn, x, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_lstm_cell_(gpunn_tensor *x, const char *name, gpunn_cell_args args)
{
    return gpunn__cell(&gpunn__operation_lstm, x, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_gru_cell_(gpunn_tensor *x, const char *name, gpunn_cell_args args)
{
    return gpunn__cell(&gpunn__operation_gru, x, name, &args);
}

/* Makes a layer that continues from the final state of the previous run. */
static gpunn_tensor *gpunn__stateful(const gpunn__operation *operation, gpunn_tensor *x, const char *name,
                                     gpunn_rnn_args args)
{
    const int        count = operation->op == GPUNN_OP_LSTM ? 2 : 1, n = args.batch_first ? 0 : 1;
    const gpunn_init zeros = {GPUNN_INIT_ZEROS, 0, 0};
    gpunn_tensor    *state[2] = {NULL, NULL}, *first[2] = {NULL, NULL}, *own[2], *places,
                 **last[] = {args.h_n ? args.h_n : &own[0], args.c_n ? args.c_n : &own[1]};
    gpunn__call call;
    char        text[128], other[128];
    if (!gpunn__begin_x(&call, gpunn_op_name(operation->op), name, x, true)) return NULL;
    if (name == NULL || args.h_0 || args.c_0)
        return gpunn__call_fail(
            &call, GPUNN_ERR_ARGUMENT, "with .stateful the layer creates h_0 and c_0 itself; %s",
            name ? "leave them out" : "give the layer a name, since their names begin with it");
    const int64_t held = gpunn__held_sequences(&call, x, x->dim[n], args.capacity);
    if (held == 0) return NULL;
    gpunn_tensor *const reset = args.reset && args.reset->rank != 2 ? args.reset : NULL;
    if (reset && (reset->model != x->model || reset->rank != 1 || reset->dim[0] != x->dim[n]))
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE, "reset is %s; give %s, a value for each sequence",
                                gpunn__shape_text(reset, text),
                                gpunn__dims_text(x->model, 1, &x->dim[n], other));
    /* A single step masks the state as it reads it. */
    const bool    steps = reset && x->dim[1 - n] == 1 && !args.bidirectional;
    const int64_t rows = (int64_t)gpunn__default_int(args.num_layers, 1) * (args.bidirectional ? 2 : 1);
    if (reset)
        args.reset = steps ? gpunn_reshape(gpunn_cast(reset, GPUNN_F32), GPUNN_SHAPE(1, x->dim[n])) : NULL;
    if ((steps && args.reset == NULL) || !gpunn__held_places(x->model, rows, x->dim[n], held, &places))
        return gpunn__call_finish(&call, NULL);
    for (int i = 0; i < count; i++) {
        char own_name[GPUNN__TEXT_SIZE];
        (void)snprintf(own_name, sizeof own_name, "%s.%s", name, i ? "c" : "h");
        const int width = i == 0 && args.proj_size > 0 ? args.proj_size : args.hidden_size;
        state[i] = gpunn_state(x->model, own_name, GPUNN_SHAPE(rows, held, width), zeros);
        if (state[i]) first[i] = gpunn__held_rows(state[i], 1, places);
        if (first[i] && reset && !steps) first[i] = gpunn__state_kept(first[i], reset);
        if (first[i] == NULL) return gpunn__call_finish(&call, NULL);
    }
    args.h_0 = first[0], args.c_0 = first[1];
    args.h_n = last[0];
    if (count == 2) args.c_n = last[1];
    gpunn_tensor *y = gpunn__recurrent(operation, x, name, &args);
    for (int i = 0; i < count && y; i++)
        if (!gpunn__hold_rows(state[i], 1, *last[i])) y = NULL;
    return gpunn__call_finish(&call, y);
}

/* Turns a mask of steps, which has the first two axes of x, into [length, n] of F32. */
static bool gpunn__reset_of_steps(const gpunn__call *call, const gpunn_tensor *x, gpunn_rnn_args *args)
{
    const gpunn_axes swap = GPUNN_AXES(1, 0);
    char             text[128], other[128];
    if (!gpunn__operand(call, args->reset, ".reset", false)) return false;
    if (x->rank != 3 || memcmp(args->reset->dim, x->dim, 2 * sizeof *x->dim) != 0) {
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               "reset is %s and x %s; give a value for each step of each sequence",
                               gpunn__shape_text(args->reset, text), gpunn__shape_text(x, other));
        return false;
    }
    args->reset = gpunn_cast(args->reset, GPUNN_F32);
    if (args->reset && args->batch_first) args->reset = gpunn_permute(args->reset, swap);
    return args->reset != NULL;
}

static gpunn_tensor *gpunn__recurrent_layer(const gpunn__operation *operation, gpunn_tensor *x,
                                            const char *name, gpunn_rnn_args args)
{
    gpunn__call call;
    const bool  steps = args.reset && args.reset->rank == 2;
    if (!args.stateful && args.reset == NULL && args.capacity == 0)
        return gpunn__recurrent(operation, x, name, &args);
    gpunn__no_states(&args);
    if (!gpunn__begin_x(&call, gpunn_op_name(operation->op), name, x, true)) return NULL;
    if (!args.stateful && (args.capacity || (args.reset && !steps)))
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "%s is for layers with .stateful; set both%s",
                                args.capacity ? "capacity" : "reset of sequences",
                                args.capacity ? "" : ", or give it a value for each step");
    if (steps && !gpunn__reset_of_steps(&call, x, &args)) return gpunn__call_finish(&call, NULL);
    gpunn_tensor *y = args.stateful ? gpunn__stateful(operation, x, name, args)
                                    : gpunn__recurrent(operation, x, name, &args);
    y = gpunn__call_finish(&call, y);
    if (y == NULL) gpunn__no_states(&args);
    return y;
}

GPUNN_API gpunn_tensor *gpunn_rnn_(gpunn_tensor *x, const char *name, gpunn_rnn_args args)
{
    return gpunn__recurrent_layer(&gpunn__operation_rnn, x, name, args);
}

GPUNN_API gpunn_tensor *gpunn_lstm_(gpunn_tensor *x, const char *name, gpunn_rnn_args args)
{
    return gpunn__recurrent_layer(&gpunn__operation_lstm, x, name, args);
}

GPUNN_API gpunn_tensor *gpunn_gru_(gpunn_tensor *x, const char *name, gpunn_rnn_args args)
{
    return gpunn__recurrent_layer(&gpunn__operation_gru, x, name, args);
}
