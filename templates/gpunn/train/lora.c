#include "train/lora.h"
#include "base/blocks.h"
#include "base/forward_declarations.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/model.h"
#include "base/shapes.h"
#include "graph/arguments.h"
#include "plan/plan.h"
#include "plan/storage.h"

/* ---- patterns ------------------------------------------------------------------------------------------ */

static bool gpunn__glob(const char *pattern, const char *text);

/* Whether one of the alternatives in the braces at `pattern`, with what follows them, matches text. */
static bool gpunn__glob_choice(const char *pattern, const char *text)
{
    const char *end = strchr(pattern, '}');
    for (const char *at = pattern + 1; at <= end;) {
        char         whole[GPUNN__NAME_SIZE];
        const size_t length = strcspn(at, ",}");
        (void)snprintf(whole, sizeof whole, "%.*s%s", (int)length, at, end + 1);
        if (gpunn__glob(whole, text)) return true;
        at += length + 1;
    }
    return false;
}

/* Whether the pattern matches all of text: * is any text, {a,b} is a or b. */
static bool gpunn__glob(const char *pattern, const char *text)
{
    for (; *pattern && *pattern != '*' && *pattern != '{'; pattern++, text++)
        if (*pattern != *text) return false;
    if (*pattern == '{') return gpunn__glob_choice(pattern, text);
    if (*pattern == 0) return *text == 0;
    bool found = false;
    for (bool more = true; more && !found; text++) {
        found = gpunn__glob(pattern + 1, text);
        more = *text != 0;
    }
    return found;
}

GPUNN__INTERNAL bool gpunn__pattern_wants(const void *pattern, const char *layer)
{
    const char *at = layer, *dot;
    while (!gpunn__glob((const char *)pattern, at)) {
        if ((dot = strchr(at, '.')) == NULL) return false;
        at = dot + 1;
    }
    return true;
}

GPUNN__INTERNAL const char *gpunn__pattern_fault(const char *pattern)
{
    const char *open = NULL;
    if (*pattern == 0) return "it is empty";
    if (strlen(pattern) >= GPUNN__NAME_SIZE) return "it is longer than 255 bytes";
    for (const char *c = pattern; *c; c++) {
        if (*c == (open ? '{' : '}')) return "its braces do not come in pairs";
        if (*c == '{') open = c;
        if (*c == '}') open = NULL;
    }
    return open ? "its braces do not come in pairs" : NULL;
}

/* ---- adding -------------------------------------------------------------------------------------------- */

GPUNN__INTERNAL gpunn_tensor *gpunn__lora_next(const gpunn_model *model, const gpunn__lora_wanted *wanted,
                                               int id)
{
    for (; id < model->tensor_count; id++) {
        gpunn_tensor *t = model->tensors[id];
        if ((t->op == GPUNN_OP_LINEAR || t->op == GPUNN_OP_EMBEDDING) && t->adapter == 0 && t->layer &&
            t->inputs[1]->kind == GPUNN__PARAMETER && wanted->wants(wanted->what, t->layer))
            return t;
    }
    return NULL;
}

GPUNN__INTERNAL gpunn__adapter *gpunn__adapter_called(const gpunn_model *model, const char *name)
{
    for (int i = 0; i < model->adapter_count; i++)
        if (strcmp(model->adapters[i].name, name) == 0) return &model->adapters[i];
    return NULL;
}

GPUNN__INTERNAL gpunn_tensor *gpunn__lora_b(const gpunn__branch *branch)
{
    return branch->scaled->inputs[0]->inputs[1];
}

GPUNN__INTERNAL gpunn_tensor *gpunn__lora_a(const gpunn__branch *branch)
{
    return branch->scaled->inputs[0]->inputs[0]->inputs[1];
}

/* An op other than a linear layer or an embedding that reads the weight; NULL: there is none. */
static const gpunn_tensor *gpunn__other_reader(const gpunn_tensor *weight)
{
    const gpunn_model *model = weight->model;
    for (int id = weight->id; id < model->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        for (int i = 0; i < t->input_count; i++)
            if (t->inputs[i] == weight &&
                (i != 1 || (t->op != GPUNN_OP_LINEAR && t->op != GPUNN_OP_EMBEDDING)))
                return t;
    }
    return NULL;
}

/* B A dropout(x) of a layer, with peft's names and initial values. */
static gpunn_tensor *gpunn__low_rank(const gpunn_tensor *layer, const gpunn__adapter *adapter)
{
    const bool           table = layer->op == GPUNN_OP_EMBEDDING;
    const gpunn_init     zeros = {GPUNN_INIT_ZEROS, 0, 0}, normal = {GPUNN_INIT_NORMAL, 0, 1};
    const gpunn_tensor  *weight = layer->inputs[1];
    const char          *part = table ? "lora_embedding" : "lora";
    char                 name[2 * GPUNN__NAME_SIZE];
    gpunn_tensor        *x = layer->inputs[0], *a, *b;
    gpunn_linear_args    linear;
    gpunn_embedding_args embedding;
    memset(&linear, 0, sizeof linear);
    memset(&embedding, 0, sizeof embedding);
    (void)snprintf(name, sizeof name, "%s.%s_A.%s", layer->layer, part, adapter->name);
    linear.no_bias = true;
    linear.out_features = embedding.embedding_dim = adapter->rank;
    embedding.num_embeddings = (int)weight->dim[0];
    if (!table && adapter->dropout > 0) x = gpunn_dropout(x, adapter->dropout);
    a = table ? gpunn_embedding_(x, name, embedding) : gpunn_linear_(x, name, linear);
    (void)snprintf(name, sizeof name, "%s.%s_B.%s", layer->layer, part, adapter->name);
    linear.out_features = (int)weight->dim[table ? 1 : 0];
    b = gpunn_linear_(a, name, linear);
    if (b == NULL) return NULL;
    (table ? a : b)->inputs[1]->init = zeros;
    if (table) {
        b->inputs[1]->init = normal;
        a->attr.ignore_index = layer->attr.ignore_index;
    }
    return gpunn_mul_scalar(b, adapter->alpha / (float)adapter->rank);
}

/* The sum that a layer with other adapters has; NULL: it has none. */
static gpunn_tensor *gpunn__adapted_sum(const gpunn_tensor *product)
{
    const gpunn_model *model = product->model;
    for (int i = 0; i < model->adapter_count; i++)
        for (int k = 0; k < model->adapters[i].branch_count; k++)
            if (model->adapters[i].branches[k].product == product) return model->adapters[i].branches[k].sum;
    return NULL;
}

/* Appends the nodes of a layer's adapter. On a layer without adapters `sum` is the layer itself so far and
 * `product` will be it: gpunn__swap_nodes. */
static bool gpunn__branch_make(const gpunn__call *call, gpunn_tensor *layer, gpunn__adapter *adapter)
{
    const gpunn_tensor *other = gpunn__other_reader(layer->inputs[1]);
    if (other) {
        (void)gpunn__call_fail(call, GPUNN_ERR_UNSUPPORTED,
                               "'%s' is also read by %s, which an adapter would not change; adapt it before "
                               "such ops are added, or leave '%s' out",
                               layer->inputs[1]->name, gpunn_op_name(other->op), layer->layer);
        return false;
    }
    gpunn__branch *grown = (gpunn__branch *)gpunn__grow(
        call->model->dev, adapter->branches, adapter->branch_count, &adapter->capacity, sizeof *grown);
    if (grown == NULL) return false;
    adapter->branches = grown;
    gpunn__branch *branch = &grown[adapter->branch_count];
    branch->sum = gpunn__adapted_sum(layer);
    branch->product = layer;
    branch->scaled = gpunn__low_rank(layer, adapter);
    if (branch->scaled && branch->sum == NULL) {
        branch->sum = layer;
        branch->product = gpunn_add(layer, branch->scaled);
    }
    if (branch->scaled == NULL || branch->product == NULL) return false;
    adapter->branch_count++;
    return true;
}

/* Exchanges what two nodes compute, but not who reads them, nor their names. */
static void gpunn__swap_nodes(gpunn_tensor *a, gpunn_tensor *b)
{
    const gpunn_tensor was = *a;
    gpunn__index_remove(a, GPUNN__BY_LAYER);
    gpunn__index_remove(b, GPUNN__BY_LAYER);
#define GPUNN__SWAP(field) a->field = b->field, b->field = was.field
    GPUNN__SWAP(op);
    GPUNN__SWAP(operation);
    GPUNN__SWAP(attr);
    GPUNN__SWAP(inputs);
    GPUNN__SWAP(input_count);
    GPUNN__SWAP(layer);
    GPUNN__SWAP(built_by);
#undef GPUNN__SWAP
    if (a->layer) gpunn__index_add(a, GPUNN__BY_LAYER);
    if (b->layer) gpunn__index_add(b, GPUNN__BY_LAYER);
}

/* Makes the sum of a layer product + scaled or, with scaled NULL, another name of product. */
static void gpunn__set_sum(const gpunn__branch *branch, gpunn_tensor *scaled)
{
    gpunn_tensor *sum = branch->sum;
    sum->op = scaled ? GPUNN_OP_ADD : GPUNN_OP_RESHAPE;
    sum->operation = scaled ? &gpunn__operation_add : &gpunn__operation_reshape;
    memset(&sum->attr, 0, sizeof sum->attr);
    if (scaled == NULL) memcpy(sum->attr.shape.dim, sum->dim, sizeof sum->dim);
    sum->inputs[0] = branch->product;
    sum->inputs[1] = scaled;
}

/* Lists all tensors in `order`, with the nodes from `mark` on, which are those of the adapter's branches,
 * before the layers' sums. A product stays next to its weights. Returns the first id that has changed. */
static int gpunn__insert(const gpunn_model *model, const gpunn__adapter *adapter, int mark,
                         gpunn_tensor **order)
{
    int from = mark, to = 0, first = mark;
    for (int id = 0, k = 0; id < mark; id++) {
        const gpunn__branch *branch = &adapter->branches[k];
        if (k < adapter->branch_count && model->tensors[id] == branch->sum) {
            if (k++ == 0) first = to;
            if (branch->product->id >= mark) order[to++] = branch->product;
            while (from <= branch->scaled->id) order[to++] = model->tensors[from++];
            from += branch->product->id >= mark;
        }
        order[to++] = model->tensors[id];
    }
    return first;
}

/* Gives every tensor its place in the list as its id. */
static void gpunn__renumber(gpunn_model *model)
{
    for (int id = 0; id < model->tensor_count; id++) model->tensors[id]->id = id;
}

/* Freezes everything but adapters. */
static void gpunn__freeze_base(gpunn_model *model)
{
    for (int id = 0; id < model->tensor_count; id++) {
        gpunn_tensor *t = model->tensors[id];
        if (t->kind == GPUNN__PARAMETER && t->adapter == 0) gpunn__freeze(t);
    }
}

static void gpunn__enable(gpunn_model *model, int enabled)
{
    for (int i = 0; i < model->adapter_count; i++)
        for (int k = 0; k < model->adapters[i].branch_count; k++)
            gpunn__set_sum(&model->adapters[i].branches[k], NULL);
    const gpunn__adapter *chosen = enabled ? &model->adapters[enabled - 1] : NULL;
    for (int k = 0; chosen && k < chosen->branch_count; k++)
        gpunn__set_sum(&chosen->branches[k], chosen->branches[k].scaled);
    model->enabled = enabled;
    gpunn__invalidate(model);
}

/* Takes the nodes from `mark` on into the graph. order: memory for another list of tensors. */
static void gpunn__lora_commit(gpunn_model *model, const gpunn__adapter *adapter, int mark,
                               gpunn_tensor **order)
{
    gpunn_tensor **old = model->tensors;
    const int      first = gpunn__insert(model, adapter, mark, order);
    const bool     freezes = model->adapter_count == 0;
    for (int id = mark; id < model->tensor_count; id++) old[id]->adapter = model->adapter_count + 1;
    for (int k = 0; k < adapter->branch_count; k++) {
        gpunn__branch *branch = &adapter->branches[k];
        if (branch->product->id < mark) continue;
        gpunn__swap_nodes(branch->sum, branch->product);
        branch->product->adapter = 0;
    }
    model->tensors = order;
    gpunn__renumber(model);
    if (model->laid_out > first) model->laid_out = first;
    model->adapters[model->adapter_count++] = *adapter;
    if (freezes) {
        gpunn__freeze_base(model);
        gpunn__place_gradients(model, old);
    }
    model->kernels_exact = false;
    gpunn__enable(model, model->adapter_count);
}

/* Fails if an optimizer has taken up the model's parameters. */
static GPUNN__STATUS gpunn__check_no_optimizer(const gpunn_model *model, const char *function)
{
    if (model->optimizers == NULL) return GPUNN_OK;
    return gpunn__fail(model->dev, GPUNN_ERR_STATE,
                       "%s: the model has an optimizer; destroy it first, and create one afterwards",
                       function);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__lora_settle(gpunn_model *model, const char *function,
                                                 gpunn_lora_args *args)
{
    gpunn_device *dev = model->dev;
    args->rank = gpunn__default_int(args->rank, 8);
    args->alpha = gpunn__default_float(args->alpha, 8);
    args->dropout = gpunn__default_float(args->dropout, 0);
    if (args->name == NULL) args->name = "default";
    if (args->rank < 1 || !isfinite(args->alpha) || !(args->dropout >= 0 && args->dropout < 1))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: rank %d, alpha %g and dropout %g are not possible; use a rank from 1 on, a "
                           "finite alpha, and a dropout from 0 to below 1",
                           function, args->rank, (double)args->alpha, (double)args->dropout);
    if (args->name[0] == 0 || strchr(args->name, '.'))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: '%.64s' cannot name an adapter; use a name without dots", function,
                           args->name);
    if (gpunn__adapter_called(model, args->name))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: the model has an adapter '%.64s'; choose another name with .name", function,
                           args->name);
    if (gpunn__is_blocks(model->storage) && !model->inference && !model->has_base && model->weight_count)
        return gpunn__fail(dev, GPUNN_ERR_STATE,
                           "%s: the weights have values already, so they cannot be stored as %s; call it "
                           "before weights are written, loaded or run",
                           function, gpunn_dtype_name(model->storage));
    if (model->parts)
        return gpunn__fail(dev, GPUNN_ERR_STATE,
                           "%s: gpunn_recompute has named segments of the graph; call it afterwards",
                           function);
    return gpunn__check_no_optimizer(model, function);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__lora_add(gpunn_model *model, const char *function,
                                              const gpunn_lora_args *args, const gpunn__lora_wanted *wanted)
{
    gpunn_device     *dev = model->dev;
    const gpunn__call call = gpunn__call_of(model, function, NULL);
    const uint32_t    random_streams = model->random_streams;
    gpunn__adapter    adapter, *adapters;
    gpunn_tensor    **order = NULL, *layer;
    memset(&adapter, 0, sizeof adapter);
    adapter.rank = args->rank;
    adapter.alpha = args->alpha;
    adapter.dropout = args->dropout;
    adapter.name = gpunn__strdup(dev, args->name);
    adapters = (gpunn__adapter *)gpunn__grow(dev, model->adapters, model->adapter_count,
                                             &model->adapter_capacity, sizeof *adapters);
    if (adapters) model->adapters = adapters;
    bool ok = adapter.name && adapters;
    for (int id = 0; ok && (layer = gpunn__lora_next(model, wanted, id)) != NULL && layer->id < call.mark;
         id = layer->id + 1)
        ok = gpunn__branch_make(&call, layer, &adapter);
    const size_t bytes = (size_t)model->tensor_capacity * sizeof *order;
    if (ok) order = (gpunn_tensor **)gpunn__realloc(dev, NULL, 0, bytes);
    if (order == NULL) {
        (void)gpunn__undo(&call);
        gpunn__adapter_free(dev, &adapter);
        model->random_streams = random_streams;
        return dev->error.status;
    }
    gpunn_tensor **old = model->tensors;
    gpunn__lora_commit(model, &adapter, call.mark, order);
    gpunn__free(dev, old, bytes);
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_lora_(gpunn_model *model, const char *pattern, gpunn_lora_args args)
{
    static const char        function[] = "gpunn_lora";
    const gpunn__lora_wanted wanted = {gpunn__pattern_wants, pattern};
    if (model == NULL || pattern == NULL) return gpunn__fail_null_model(model, function, "pattern");
    const char *fault = gpunn__pattern_fault(pattern);
    if (fault)
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT, "%s: the pattern '%.64s' is not possible: %s",
                           function, pattern, fault);
    const gpunn_status status = gpunn__lora_settle(model, function, &args);
    if (status != GPUNN_OK) return status;
    if (gpunn__lora_next(model, &wanted, 0) == NULL)
        return gpunn__fail(
            model->dev, GPUNN_ERR_ARGUMENT,
            "%s: no linear layer or embedding has a name that matches '%.120s'; names are such "
            "as \"layers.0.self_attn.q_proj\"",
            function, pattern);
    return gpunn__lora_add(model, function, &args, &wanted);
}

/* ---- switching and removing ---------------------------------------------------------------------------- */

GPUNN_API gpunn_status gpunn_lora_enable(gpunn_model *model, const char *name)
{
    if (model == NULL) return gpunn__fail_null(NULL, "gpunn_lora_enable", "model");
    const gpunn__adapter *adapter = name ? gpunn__adapter_called(model, name) : NULL;
    if (name && adapter == NULL)
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_lora_enable: the model has no adapter '%.64s'; add it with gpunn_lora or "
                           "gpunn_lora_load",
                           name);
    const int enabled = adapter ? (int)(adapter - model->adapters) + 1 : 0;
    if (enabled != model->enabled) gpunn__enable(model, enabled);
    return GPUNN_OK;
}

/* Removes and frees the tensors of adapter number `index`, counted from 1. */
static void gpunn__sweep(gpunn_model *model, int index)
{
    int kept = 0, laid_out = model->laid_out;
    for (int id = 0; id < model->tensor_count; id++) {
        gpunn_tensor *t = model->tensors[id];
        if (t->adapter != index) {
            model->tensors[kept++] = t;
            continue;
        }
        model->laid_out -= id < laid_out;
        model->user_weights -= t->kind == GPUNN__PARAMETER && t->user_memory[0].data;
        gpunn__index_remove(t, GPUNN__BY_NAME);
        gpunn__index_remove(t, GPUNN__BY_LAYER);
        gpunn__tensor_free(model->dev, t);
    }
    model->tensor_count = kept;
    gpunn__renumber(model);
}

GPUNN__INTERNAL void gpunn__lora_pop(gpunn_model *model)
{
    gpunn__enable(model, 0);
    const int       index = model->adapter_count--;
    gpunn__adapter *last = &model->adapters[index - 1];
    for (int k = 0; k < last->branch_count; k++) {
        const gpunn__branch *branch = &last->branches[k];
        if (gpunn__adapted_sum(branch->product)) continue; /* another adapter needs it */
        gpunn__swap_nodes(branch->sum, branch->product);
        branch->product->adapter = index;
    }
    gpunn__sweep(model, index);
    gpunn__adapter_free(model->dev, last);
}

/* Floats that merging a branch needs in host memory. */
static size_t gpunn__merge_floats(const gpunn__branch *branch)
{
    const gpunn_tensor *weight = branch->product->inputs[1];
    return (size_t)(gpunn__count(weight, 1) + gpunn__count(gpunn__lora_a(branch), 1) +
                    gpunn__count(gpunn__lora_b(branch), 1) + weight->dim[1]);
}

/* weight[rows][columns] += scale left[rows][rank] right[rank][columns]. delta: one row. */
static void gpunn__add_low_rank(float *weight, int64_t rows, int64_t columns, int64_t rank, float scale,
                                const float *left, const float *right, bool transposed, float *delta)
{
    const int64_t down = transposed ? 1 : columns, across = transposed ? rank : 1;
    for (int64_t i = 0; i < rows; i++, weight += columns) {
        memset(delta, 0, (size_t)columns * sizeof *delta);
        for (int64_t k = 0; k < rank; k++)
            for (int64_t j = 0; j < columns; j++)
                delta[j] += left[i * rank + k] * right[k * down + j * across];
        for (int64_t j = 0; j < columns; j++) weight[j] += scale * delta[j];
    }
}

static GPUNN__STATUS gpunn__merge_branch(const gpunn__branch *branch, float *memory)
{
    gpunn_tensor *weight = branch->product->inputs[1], *a = gpunn__lora_a(branch), *b = gpunn__lora_b(branch);
    const bool    table = branch->product->op == GPUNN_OP_EMBEDDING;
    float        *to[] = {memory, memory + gpunn__count(weight, 1), NULL};
    to[2] = to[1] + gpunn__count(a, 1);
    gpunn_tensor *const from[] = {weight, a, b};
    gpunn_status        status = GPUNN_OK;
    for (int i = 0; i < 3 && status == GPUNN_OK; i++)
        status = gpunn_read(from[i], to[i], gpunn_tensor_bytes(from[i]));
    if (status != GPUNN_OK) return status;
    gpunn__add_low_rank(memory, weight->dim[0], weight->dim[1], b->dim[1], branch->scaled->attr.value[0],
                        table ? to[1] : to[2], table ? to[2] : to[1], table, to[2] + gpunn__count(b, 1));
    return gpunn_write(weight, memory, gpunn_tensor_bytes(weight));
}

/* Fails if a weight cannot be merged: its blocks are only read, or another layer reads it. */
static GPUNN__STATUS gpunn__check_bases(const gpunn__adapter *adapter)
{
    for (int k = 0; k < adapter->branch_count; k++) {
        const gpunn_tensor *product = adapter->branches[k].product, *weight = product->inputs[1];
        if (gpunn__has_bound_blocks(weight))
            return gpunn__fail(weight->model->dev, GPUNN_ERR_UNSUPPORTED,
                               "gpunn_lora_merge: '%.80s' is bound to blocks, which are only read; keep the "
                               "adapter apart, or load the weights without .keep_blocks",
                               weight->name);
        for (int id = weight->id; id < weight->model->tensor_count; id++) {
            const gpunn_tensor *t = weight->model->tensors[id];
            for (int i = 0; i < t->input_count; i++)
                if (t != product && t->inputs[i] == weight)
                    return gpunn__fail(weight->model->dev, GPUNN_ERR_UNSUPPORTED,
                                       "gpunn_lora_merge: '%.80s' is read by '%.80s' and '%.80s', but the "
                                       "adapter is that of the first alone; keep the adapter apart",
                                       weight->name, product->layer, t->layer ? t->layer : "another op");
        }
    }
    return GPUNN_OK;
}

/* Whether t is the sum of a layer with an adapter. */
static bool gpunn__is_sum(const gpunn_tensor *t)
{
    for (int i = 0; i < t->model->adapter_count; i++)
        for (int k = 0; k < t->model->adapters[i].branch_count; k++)
            if (t->model->adapters[i].branches[k].sum == t) return true;
    return false;
}

/* Fails if an op of the program reads a tensor that would be removed with the adapters. */
static GPUNN__STATUS gpunn__check_unread(const gpunn_model *model)
{
    for (int id = 0; id < model->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        for (int i = 0; t->adapter == 0 && i < t->input_count; i++)
            if (t->inputs[i] && t->inputs[i]->adapter && !gpunn__is_sum(t))
                return gpunn__fail(model->dev, GPUNN_ERR_UNSUPPORTED,
                                   "gpunn_lora_merge: %s reads a tensor of an adapter, which would be "
                                   "removed; build such ops, or derivatives, in another model",
                                   gpunn_op_name(t->op));
    }
    return GPUNN_OK;
}

/* Adds an adapter to the weights. No weight has changed if memory runs out. */
static GPUNN__STATUS gpunn__merge(gpunn_model *model, const gpunn__adapter *adapter)
{
    size_t       most = 0;
    gpunn_status status = gpunn__check_bases(adapter);
    if (status == GPUNN_OK) status = gpunn__check_unread(model);
    for (int k = 0; k < adapter->branch_count; k++)
        if (gpunn__merge_floats(&adapter->branches[k]) > most)
            most = gpunn__merge_floats(&adapter->branches[k]);
    if (status == GPUNN_OK) status = gpunn__commit(model);
    float *memory = status == GPUNN_OK ? (float *)gpunn__realloc(model->dev, NULL, 0, most * sizeof *memory)
                                       : NULL;
    if (status == GPUNN_OK && memory == NULL) status = GPUNN_ERR_MEMORY;
    for (int k = 0; k < adapter->branch_count && status == GPUNN_OK; k++)
        status = gpunn__merge_branch(&adapter->branches[k], memory);
    gpunn__free(model->dev, memory, most * sizeof *memory);
    return status;
}

GPUNN_API gpunn_status gpunn_lora_merge(gpunn_model *model)
{
    static const char function[] = "gpunn_lora_merge";
    if (model == NULL) return gpunn__fail_null(NULL, function, "model");
    if (model->enabled == 0)
        return gpunn__fail(model->dev, GPUNN_ERR_STATE,
                           "%s: no adapter is enabled; choose one with gpunn_lora_enable", function);
    gpunn_status status = gpunn__check_no_optimizer(model, function);
    if (status == GPUNN_OK) status = gpunn__merge(model, &model->adapters[model->enabled - 1]);
    while (status == GPUNN_OK && model->adapter_count) gpunn__lora_pop(model);
    return status;
}
