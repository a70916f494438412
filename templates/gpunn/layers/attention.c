#include "base/memory.h"
#include "base/shapes.h"
#include "graph/nodes.h"
#include "layers/basic.h"
#include "layers/shapes.h"

/* ==== >>layers/attention ================================================================================ */
/* Attention: scaled dot product attention, rotary embeddings, multi-head attention and transformer layers. */

GPUNN_API gpunn_tensor *gpunn_scaled_dot_product_attention_(gpunn_tensor *q, gpunn_tensor *k, gpunn_tensor *v,
                                                            gpunn_attention_args args)
{
    gpunn_tensor *operands[5] = {q, k, v, args.mask, args.lengths};
    const int     count = args.lengths ? 5 : 4;
    const bool    packed = q && q->rank == 5 && k == NULL && v == NULL;
    gpunn__call   call;
    gpunn__meta   out;
    if (!gpunn__begin_op(&call, "scaled_dot_product_attention", GPUNN_OP_ATTENTION, operands, packed ? 1 : 3,
                         7) ||
        (args.mask && !gpunn__operand(&call, args.mask, ".mask", false)) ||
        (args.lengths && !gpunn__operand(&call, args.lengths, ".lengths", false)))
        return NULL;
    gpunn_attributes attr = gpunn__no_attributes();
    attr.is_causal = args.is_causal;
    attr.heads_last = args.heads_last && !packed;
    attr.enable_gqa = args.enable_gqa;
    if (!gpunn__infer_node(&call, &gpunn__operation_scaled_dot_product_attention, &attr, operands, count,
                           &out) ||
        !gpunn__apply_defaults(&call, &args))
        return NULL;
    attr.dropout_p = args.dropout_p;
    attr.scale = gpunn__default_float(args.scale, (float)(1 / sqrt((double)q->dim[q->rank - 1])));
    if (!isfinite(attr.scale))
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "scale is %g; use a finite number",
                                (double)attr.scale);
    attr.random_stream = q->model->random_streams;
    gpunn_tensor *y = gpunn__node(&call, &gpunn__operation_scaled_dot_product_attention, &attr, operands,
                                  count);
    if (y && attr.dropout_p > 0) q->model->random_streams++;
    return y;
}

/* A constant with the frequencies theta^(-i / pairs) of all pairs. */
static gpunn_tensor *gpunn__rotary_frequencies(gpunn_model *model, int64_t pairs, double theta)
{
    const size_t bytes = (size_t)pairs * sizeof(float);
    float       *values = (float *)gpunn__realloc(model->dev, NULL, 0, bytes);
    gpunn_shape  shape;
    if (values == NULL) return NULL;
    memset(&shape, 0, sizeof shape);
    shape.dim[0] = pairs;
    for (int64_t i = 0; i < pairs; i++) values[i] = (float)pow(theta, -(double)i / (double)pairs);
    gpunn_tensor *frequencies = gpunn_constant(model, shape, values);
    gpunn__free(model->dev, values, bytes);
    return frequencies;
}

/* The rotation angles of x's feature pairs. Its shape broadcasts with that of the pairs' first features. */
static gpunn_tensor *gpunn__rotary_angles(const gpunn_tensor *x, gpunn_tensor *positions, int64_t pairs,
                                          const gpunn_rotary_args *args)
{
    const int     rows = args->heads_last ? 1 : 2;
    const int64_t last[2] = {args->interleaved ? pairs : 1, args->interleaved ? 1 : pairs};
    int64_t       at[5] = {positions->rank == 2 ? positions->dim[0] : 1, 1, 1, 1, 1};
    at[rows] = x->dim[rows];
    gpunn_tensor *f = args->frequencies;
    if (f == NULL) f = gpunn__rotary_frequencies(x->model, pairs, (double)args->theta);
    f = gpunn__reshape_to(f, 2, last);
    gpunn_tensor *place = gpunn_cast(positions, GPUNN_F32);
    return gpunn_mul(gpunn__reshape_to(place, 5, at), f);
}

/* Checks shapes and settings. dims: number of rotated features per head. */
static bool gpunn__rotary_fits(const gpunn__call *call, const gpunn_tensor *x, const gpunn_tensor *positions,
                               int64_t dims, const gpunn_rotary_args *args)
{
    const gpunn_tensor *f = args->frequencies;
    const int64_t       rows = x->dim[args->heads_last ? 1 : 2];
    char                one[128], other[128];
    if (dims < 2 || dims % 2 || dims > x->dim[3])
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               ".dims rotates %lld of a head's %lld features, in pairs; use an even number, "
                               "at most that of the features",
                               (long long)dims, (long long)x->dim[3]);
    else if (f && (f->rank != 1 || f->dim[0] != dims / 2))
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               ".frequencies is %s, but [%lld], one for each pair of features, is needed",
                               gpunn__shape_text(f, one), (long long)(dims / 2));
    else if (positions->rank < 1 || positions->rank > 2 || positions->dim[positions->rank - 1] != rows ||
             (positions->rank == 2 && positions->dim[0] != 1 && positions->dim[0] != x->dim[0]))
        (void)gpunn__call_fail(
            call, GPUNN_ERR_SHAPE,
            "positions is %s and x is %s; positions must be [l] or [n, l] with the n and l of x",
            gpunn__shape_text(positions, one), gpunn__shape_text(x, other));
    else
        return true;
    return false;
}

GPUNN_API gpunn_tensor *gpunn_rotary_embedding_(gpunn_tensor *x, gpunn_tensor *positions,
                                                gpunn_rotary_args args)
{
    static const char *const names[] = {"x", "positions"};
    gpunn__call              call;
    gpunn_tensor            *operands[] = {x, positions};
    if (!gpunn__begin(&call, "rotary_embedding", NULL, names, operands, 2, 1) ||
        !gpunn__are_indices(&call, positions, "positions") ||
        !gpunn__has_rank(&call, gpunn__meta_of(x), 4, 4,
                         "[n, heads, l, e] or, with .heads_last, [n, l, heads, e]") ||
        !gpunn__axes_are_fixed(&call, gpunn__meta_of(x), 3, 3) || !gpunn__apply_defaults(&call, &args) ||
        (args.frequencies && !gpunn__operand(&call, args.frequencies, ".frequencies", true)))
        return NULL;
    const int64_t dims = args.dims ? args.dims : x->dim[3], pairs = dims / 2;
    if (!gpunn__rotary_fits(&call, x, positions, dims, &args)) return NULL;
    int64_t       split[5] = {x->dim[0], x->dim[1], x->dim[2], args.interleaved ? pairs : 2,
                        args.interleaved ? 2 : pairs};
    const int     pair = args.interleaved ? 4 : 3; /* the axis of a pair's two features */
    gpunn_tensor *angle = gpunn__rotary_angles(x, positions, pairs, &args);
    gpunn_tensor *turned = dims < x->dim[3] ? gpunn_slice(x, 3, 0, dims, 1) : x;
    turned = gpunn__reshape_to(turned, 5, split);
    gpunn_tensor *in[4], *both[2]; /* first features, second features, cosines, sines */
    in[0] = gpunn_slice(turned, pair, 0, 1, 1);
    in[1] = gpunn_slice(turned, pair, 1, 2, 1);
    in[2] = gpunn_cos(angle);
    in[3] = gpunn_sin(angle);
    both[0] = gpunn_expr("x0 * x2 - x1 * x3", in, 4);
    both[1] = gpunn_expr("x1 * x2 + x0 * x3", in, 4);
    split[3] = dims;
    turned = gpunn__reshape_to(gpunn_concat(both, 2, pair), 4, split);
    if (dims < x->dim[3]) {
        gpunn_tensor *whole[2] = {turned, gpunn_slice(x, 3, dims, x->dim[3], 1)};
        turned = gpunn_concat(whole, 2, 3);
    }
    return gpunn__call_finish(&call, turned);
}

/* ---- ---- attention layers: built from other nodes, parameters named as in torch.nn -------------------- */

/* Writes name.part to text, which has GPUNN__NAME_SIZE bytes. */
static const char *gpunn__part(char *text, const char *name, const char *part)
{
    (void)snprintf(text, GPUNN__NAME_SIZE, "%s.%s", name, part);
    return text;
}

static gpunn_tensor *gpunn__named_parameter(gpunn_model *model, const char *name, const char *part,
                                            int64_t rows, int64_t columns, float bound)
{
    char        text[GPUNN__NAME_SIZE];
    gpunn_shape shape = {{rows, columns}};
    gpunn_init  init = {bound > 0 ? GPUNN_INIT_UNIFORM : GPUNN_INIT_CONSTANT, -bound, bound};
    return gpunn_parameter(model, gpunn__part(text, name, part), shape, init);
}

/* Converts a torch.nn mask to F32. A bool mask becomes 1 where attention takes
 * part, else 0; a mask to add stays as it is. */
static gpunn_tensor *gpunn__mask_part(const gpunn__call *call, gpunn_tensor *mask, const char *name, int rank,
                                      const int64_t *dim, const int64_t *to)
{
    char        given[128], needed[128];
    gpunn_shape shape = {{to[0], to[1], to[2], to[3]}};
    if (!gpunn__operand(call, mask, name, false)) return NULL;
    if (mask->dtype != GPUNN_BOOL && mask->dtype != GPUNN_F32)
        return gpunn__call_fail(call, GPUNN_ERR_DTYPE,
                                "%s is %s, but must be bool (true: ignored) or f32 (added); gpunn_cast it",
                                name, gpunn_dtype_name(mask->dtype));
    if (mask->rank != rank || memcmp(mask->dim, dim, (size_t)rank * sizeof *dim) != 0)
        return gpunn__call_fail(call, GPUNN_ERR_SHAPE, "%s is %s, but %s is needed", name,
                                gpunn__shape_text(mask, given),
                                gpunn__dims_text(call->model, rank, dim, needed));
    bool          choice = mask->dtype == GPUNN_BOOL;
    gpunn_tensor *part = gpunn_reshape(mask, shape);
    if (choice && part) part = gpunn_cast(part, GPUNN_F32);
    return choice && part ? gpunn_expr("1 - x", &part, 1) : part;
}

/* Combines torch.nn's masks, where true means ignored, into one for gpunn_scaled_dot_product_attention.
 * Returns NULL if there is none, or on failure. */
static gpunn_tensor *gpunn__joined_mask(const gpunn__call *call, const gpunn_multi_head_attention_args *args,
                                        int64_t n, int64_t l, int64_t s)
{
    const int64_t heads = args->num_heads, square[4] = {1, 1, l, s}, each[4] = {n, heads, l, s},
                  padding[4] = {n, 1, 1, s};
    const int64_t flat[3] = {n * heads, l, s}, rows[2] = {n, s};
    gpunn_tensor *part[2] = {NULL, NULL};
    bool          choice[2] = {false, false};
    int           count = 0;
    if (args->attn_mask) {
        const bool two = args->attn_mask->rank == 2;
        choice[count] = args->attn_mask->dtype == GPUNN_BOOL;
        part[count] = gpunn__mask_part(call, args->attn_mask, ".attn_mask", two ? 2 : 3,
                                       two ? square + 2 : flat, two ? square : each);
        if (part[count++] == NULL) return NULL;
    }
    if (args->key_padding_mask) {
        choice[count] = args->key_padding_mask->dtype == GPUNN_BOOL;
        part[count] = gpunn__mask_part(call, args->key_padding_mask, ".key_padding_mask", 2, rows, padding);
        if (part[count++] == NULL) return NULL;
    }
    if (count == 0) return NULL;
    if (choice[0] && (count == 1 || choice[1])) {
        gpunn_tensor *both = count == 1 ? part[0] : gpunn_mul(part[0], part[1]);
        return both ? gpunn_cast(both, GPUNN_BOOL) : NULL;
    }
    for (int i = 0; i < count; i++) {
        static const float value[2] = {0, -INFINITY};
        if (!choice[i]) continue;
        gpunn_tensor *zero = gpunn_constant(call->model, GPUNN_SHAPE(0), &value[0]);
        gpunn_tensor *least = zero ? gpunn_constant(call->model, GPUNN_SHAPE(0), &value[1]) : NULL;
        part[i] = gpunn_where(part[i], zero, least);
        if (part[i] == NULL) return NULL;
    }
    return count == 1 ? part[0] : gpunn_add(part[0], part[1]);
}

static gpunn_tensor *gpunn__plain_linear(gpunn_tensor *x, const char *name, int out_features)
{
    const gpunn_linear_args args = {0, out_features, false, NULL, NULL};
    return gpunn_linear_(x, name, args);
}

static gpunn_tensor *gpunn__plain_norm(gpunn_tensor *x, const char *name, float eps)
{
    const gpunn_layer_norm_args args = {0, 1, eps, false, false};
    return gpunn_layer_norm_(x, name, args);
}

/* Multiplies x [n, rows, e] by e rows of in_proj_weight [3 e, e] from `first` on and adds their bias. A
 * weight with e rows is used whole. */
static gpunn_tensor *gpunn__in_proj(gpunn_tensor *x, gpunn_tensor *weight, gpunn_tensor *bias, int64_t first,
                                    int64_t e)
{
    if (weight->dim[0] != e) weight = gpunn_slice(weight, 0, first, first + e, 1);
    gpunn_tensor           *part = weight ? gpunn_slice(bias, 0, first, first + e, 1) : NULL;
    const gpunn_matmul_args args = {0, false, true};
    gpunn_tensor           *y = part ? gpunn_matmul_(x, weight, args) : NULL;
    return y ? gpunn_add(y, part) : NULL;
}

static gpunn_tensor *gpunn__swap_rows(gpunn_tensor *x)
{
    const gpunn_axes order = {{1, 0, 2, GPUNN_END}};
    return x ? gpunn_permute(x, order) : NULL;
}

/* The attention probabilities [n, heads, l, s] of q [n, l, heads, e] and k [n, s, heads, e]. */
static gpunn_tensor *gpunn__attention_weights(gpunn_tensor *q, gpunn_tensor *k, gpunn_tensor *mask,
                                              bool is_causal)
{
    static const float      least = -INFINITY;
    const gpunn_matmul_args turned = {0, false, true};
    if (q == NULL || k == NULL) return NULL;
    gpunn_model *const  model = q->model;
    const float         scale = 1 / sqrtf((float)q->dim[3]);
    gpunn_tensor *const none = gpunn_constant(model, GPUNN_SHAPE(0), &least);
    gpunn_tensor       *scores = gpunn_matmul_(gpunn_permute(q, GPUNN_AXES(0, 2, 1, 3)),
                                               gpunn_permute(k, GPUNN_AXES(0, 2, 1, 3)), turned);
    scores = gpunn_mul_scalar(scores, scale);
    if (mask)
        scores = mask->dtype == GPUNN_BOOL ? gpunn_where(gpunn_cast(mask, GPUNN_F32), scores, none)
                                           : gpunn_add(scores, mask);
    if (is_causal) {
        gpunn_tensor *row = gpunn_reshape(gpunn__ordinals(model, q->dim[1]), GPUNN_SHAPE(q->dim[1], 1));
        scores = gpunn_where(gpunn_ge(row, gpunn__ordinals(model, k->dim[1])), scores, none);
    }
    return gpunn_softmax(scores, 3);
}

static const char *const gpunn__attention_names[] = {"query", "key", "value"};

/* Checks query, key and value against each other and the arguments, whose defaults it applies. */
static bool gpunn__check_multi_head(const gpunn__call *call, gpunn_tensor *const x[3],
                                    gpunn_multi_head_attention_args *args)
{
    char shapes[3][128];
    for (int i = 0; i < 3; i++) {
        (void)gpunn__shape_text(x[i], shapes[i]);
        if (x[i]->rank == 3 && x[i]->dim[2] >= 1 && x[i]->dim[2] <= INT32_MAX / 3) continue;
        (void)gpunn__call_fail(call, GPUNN_ERR_SHAPE,
                               "%s is %s, but [n, rows, size] (.batch_first) or [rows, n, size] is needed",
                               gpunn__attention_names[i], shapes[i]);
        return false;
    }
    if (!gpunn__apply_defaults(call, args)) return false;
    const int  batch = args->batch_first ? 0 : 1;
    const bool one_shape = x[1]->dim[0] == x[2]->dim[0] && x[1]->dim[1] == x[2]->dim[1];
    if (args->head_weights && args->weights == NULL)
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               "head_weights is not used without .weights; leave it out");
    else if (x[0]->dim[2] % args->num_heads != 0)
        (void)gpunn__call_fail(call, GPUNN_ERR_ARGUMENT,
                               "num_heads is %d, but must divide the size of query %s", args->num_heads,
                               shapes[0]);
    else if (!one_shape || x[1]->dim[batch] != x[0]->dim[batch])
        (void)gpunn__call_fail(
            call, GPUNN_ERR_SHAPE,
            "query is %s, key %s and value %s: all need the same n, key and value the same rows", shapes[0],
            shapes[1], shapes[2]);
    else
        return true;
    return false;
}

GPUNN_API gpunn_tensor *gpunn_multi_head_attention_(gpunn_tensor *query, gpunn_tensor *key,
                                                    gpunn_tensor *value, const char *name,
                                                    gpunn_multi_head_attention_args args)
{
    if (args.weights) *args.weights = NULL;
    static const char *const weights[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    gpunn_tensor            *x[3] = {query, key, value}, *weight[3] = {NULL, NULL, NULL}, *y = NULL;
    gpunn__call              call;
    char                     text[GPUNN__NAME_SIZE];
    if (!gpunn__begin(&call, "multi_head_attention", name, gpunn__attention_names, x, 3, 3) ||
        !gpunn__layer_is_new(&call, name) || !gpunn__check_multi_head(&call, x, &args))
        return NULL;
    const int64_t e = query->dim[2], heads = args.num_heads, n = query->dim[args.batch_first ? 0 : 1];
    const int64_t l = query->dim[args.batch_first ? 1 : 0], s = key->dim[args.batch_first ? 1 : 0];
    const bool    same = query == key && key == value, one = key->dim[2] == e && value->dim[2] == e;
    for (int i = 0; i < (one ? 1 : 3); i++) {
        const int64_t rows = one ? 3 * e : e, columns = x[i]->dim[2];
        weight[i] = gpunn__named_parameter(call.model, name, one ? "in_proj_weight" : weights[i], rows,
                                           columns, (float)sqrt(6.0 / (double)(rows + columns)));
        if (weight[i] == NULL) return gpunn__undo(&call);
    }
    gpunn_tensor *bias = gpunn__named_parameter(call.model, name, "in_proj_bias", 3 * e, 0, 0);
    if (bias == NULL) return gpunn__undo(&call);
    gpunn_tensor *mask = gpunn__joined_mask(&call, &args, n, l, s);
    if (mask == NULL && (args.attn_mask || args.key_padding_mask)) return gpunn__undo(&call);
    for (int i = 0; i < 3 && !args.batch_first; i++)
        if ((x[i] = i > 0 && same ? x[0] : gpunn__swap_rows(x[i])) == NULL) return gpunn__undo(&call);
    gpunn_attention_args how = {0, mask, args.is_causal, args.dropout, 0, false, true, NULL};
    if (same && one) {
        const gpunn_shape       split = {{n, l, 3, heads, e / heads}};
        const gpunn_linear_args in_proj = {0, 0, false, weight[0], bias};
        y = gpunn_linear_(x[0], gpunn__part(text, name, "in_proj"), in_proj);
        y = gpunn_reshape(y, split);
        for (int i = 0; i < 2 && args.weights; i++) /* q and k */
            x[i] = gpunn_reshape(gpunn_slice(y, 2, i, i + 1, 1), GPUNN_SHAPE(n, l, heads, e / heads));
        y = gpunn_scaled_dot_product_attention_(y, NULL, NULL, how);
    } else {
        for (int i = 0; i < 3; i++) {
            const gpunn_shape split = {{n, i == 0 ? l : s, heads, e / heads}};
            x[i] = gpunn__in_proj(x[i], weight[one ? 0 : i], bias, i * e, e);
            if (x[i] == NULL || (x[i] = gpunn_reshape(x[i], split)) == NULL) return gpunn__undo(&call);
        }
        y = gpunn_scaled_dot_product_attention_(x[0], x[1], x[2], how);
    }
    const gpunn_shape flat = {{n, l, e}};
    const gpunn_init  zeros = {GPUNN_INIT_CONSTANT, 0, 0};
    y = gpunn_reshape(y, flat);
    y = y ? gpunn__plain_linear(y, gpunn__part(text, name, "out_proj"), (int)e) : NULL;
    if (y) y->inputs[2]->init = zeros;
    if (!args.batch_first) y = gpunn__swap_rows(y);
    gpunn_tensor *p = y && args.weights ? gpunn__attention_weights(x[0], x[1], mask, args.is_causal) : NULL;
    if (p && !args.head_weights) p = gpunn_mean(p, GPUNN_AXES(1), false);
    if (args.weights && p == NULL) return gpunn__undo(&call);
    if (args.weights) *args.weights = p;
    return gpunn__call_finish(&call, y);
}

/* A transformer layer. Its parts are made in torch.nn's order. */
typedef struct gpunn__transformer {
    const char                   *name;
    const gpunn_transformer_args *args;
    float                         dropout, eps;
    int                           norms; /* number of norms made so far */
} gpunn__transformer;

static gpunn_tensor *gpunn__transformer_norm(gpunn__transformer *t, gpunn_tensor *x)
{
    char part[16], text[GPUNN__NAME_SIZE];
    (void)snprintf(part, sizeof part, "norm%d", ++t->norms);
    return x ? gpunn__plain_norm(x, gpunn__part(text, t->name, part), t->eps) : NULL;
}

static gpunn_tensor *gpunn__transformer_dropout(const gpunn__transformer *t, gpunn_tensor *x)
{
    return x && t->dropout > 0 ? gpunn_dropout(x, t->dropout) : x;
}

/* With `part`: attention of x to memory, or to itself if memory is NULL. With
 * part NULL: linear1, activation, linear2. */
static gpunn_tensor *gpunn__transformer_block(const gpunn__transformer *t, gpunn_tensor *x,
                                              gpunn_tensor *memory, const char *part)
{
    const gpunn_transformer_args *args = t->args;
    char                          text[GPUNN__NAME_SIZE];
    if (x == NULL) return NULL;
    if (part) {
        gpunn_multi_head_attention_args how = {0,
                                               args->nhead,
                                               t->dropout,
                                               args->batch_first,
                                               args->key_padding_mask,
                                               args->mask,
                                               args->is_causal,
                                               NULL,
                                               false};
        if (memory)
            how.key_padding_mask = args->memory_key_padding_mask, how.attn_mask = args->memory_mask,
            how.is_causal = false;
        x = gpunn_multi_head_attention_(x, memory ? memory : x, memory ? memory : x,
                                        gpunn__part(text, t->name, part), how);
    } else {
        const int width = (int)x->dim[x->rank - 1];
        x = gpunn__plain_linear(x, gpunn__part(text, t->name, "linear1"), args->dim_feedforward);
        if (x) x = args->gelu ? gpunn_gelu(x) : gpunn_relu(x);
        x = gpunn__transformer_dropout(t, x);
        x = x ? gpunn__plain_linear(x, gpunn__part(text, t->name, "linear2"), width) : NULL;
    }
    return gpunn__transformer_dropout(t, x);
}

/* Computes x + block(norm(x)) with norm_first, else norm(x + block(x)). */
static gpunn_tensor *gpunn__transformer_residual(gpunn__transformer *t, gpunn_tensor *x, gpunn_tensor *memory,
                                                 const char *part)
{
    if (x == NULL) return NULL;
    gpunn_tensor *inner = t->args->norm_first ? gpunn__transformer_norm(t, x) : x;
    inner = gpunn__transformer_block(t, inner, memory, part);
    gpunn_tensor *y = gpunn_add(x, inner);
    return t->args->norm_first ? y : gpunn__transformer_norm(t, y);
}

/* Makes an encoder layer if memory is NULL, else a decoder layer. args: after gpunn__apply_defaults. */
static gpunn_tensor *gpunn__transformer_layer(const char *op, gpunn_tensor *x, gpunn_tensor *memory,
                                              const char *name, const gpunn_transformer_args *args)
{
    gpunn__transformer t = {name, args, args->dropout, args->layer_norm_eps, 0};
    gpunn__call        call;
    if (!gpunn__begin_x(&call, op, name, x, true) || !gpunn__layer_is_new(&call, name)) return NULL;
    x = gpunn__transformer_residual(&t, x, NULL, "self_attn");
    if (memory) x = gpunn__transformer_residual(&t, x, memory, "multihead_attn");
    x = gpunn__transformer_residual(&t, x, NULL, NULL);
    return gpunn__call_finish(&call, x);
}

/* Makes a single layer. */
static gpunn_tensor *gpunn__transformer_single(const char *op, gpunn_tensor *x, gpunn_tensor *memory,
                                               const char *name, gpunn_transformer_args *args)
{
    gpunn__call call;
    return gpunn__begin_x(&call, op, name, x, true) && gpunn__apply_defaults(&call, args)
               ? gpunn__transformer_layer(op, x, memory, name, args)
               : NULL;
}

static gpunn_tensor *gpunn__transformer_stack(const char *op, gpunn_tensor *x, gpunn_tensor *memory,
                                              const char *name, gpunn_transformer_args *args)
{
    char        part[32], text[GPUNN__NAME_SIZE];
    gpunn__call call;
    if (!gpunn__begin_x(&call, op, name, x, true) || !gpunn__layer_is_new(&call, name) ||
        !gpunn__apply_defaults(&call, args))
        return NULL;
    const int layers = args->num_layers;
    for (int i = 0; i < layers && x; i++) {
        (void)snprintf(part, sizeof part, "layers.%d", i);
        x = gpunn__transformer_layer(op, x, memory, gpunn__part(text, name, part), args);
        int per_layer = call.model->tensor_count - call.mark, limit = call.model->tensor_limit - call.mark;
        if (x && i == 0 && layers > limit / per_layer)
            return gpunn__call_fail(
                &call, GPUNN_ERR_ARGUMENT,
                "num_layers is %d; with %d tensors each, the model has room for %d layers more", layers,
                per_layer, limit / per_layer);
    }
    if (x && args->norm) x = gpunn__plain_norm(x, gpunn__part(text, name, "norm"), args->layer_norm_eps);
    return gpunn__call_finish(&call, x);
}

GPUNN_API gpunn_tensor *gpunn_transformer_encoder_layer_(gpunn_tensor *src, const char *name,
                                                         gpunn_transformer_args args)
{
    return gpunn__transformer_single("transformer_encoder_layer", src, NULL, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_transformer_decoder_layer_(gpunn_tensor *tgt, gpunn_tensor *memory,
                                                         const char *name, gpunn_transformer_args args)
{
    gpunn__call call = gpunn__call_of(tgt ? tgt->model : NULL, "transformer_decoder_layer", name);
    if (!gpunn__operand(&call, memory, "memory", true)) return NULL;
    return gpunn__transformer_single("transformer_decoder_layer", tgt, memory, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_transformer_encoder_(gpunn_tensor *src, const char *name,
                                                   gpunn_transformer_args args)
{
    return gpunn__transformer_stack("transformer_encoder", src, NULL, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_transformer_decoder_(gpunn_tensor *tgt, gpunn_tensor *memory, const char *name,
                                                   gpunn_transformer_args args)
{
    gpunn__call call = gpunn__call_of(tgt ? tgt->model : NULL, "transformer_decoder", name);
    if (!gpunn__operand(&call, memory, "memory", true)) return NULL;
    return gpunn__transformer_stack("transformer_decoder", tgt, memory, name, &args);
}
