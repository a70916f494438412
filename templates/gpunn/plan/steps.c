#include "plan/storage.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/tables.h"
#include "base/shapes.h"
#include "base/model.h"
#include "base/text.h"
#include "graph/nodes.h"
#include "layers/states.h"

#define GPUNN__NO_PARAMETERS UINT64_MAX /* scope of a plan without parameter gradients */

GPUNN__INTERNAL uint64_t gpunn__scope(const gpunn__request *request)
{
    if (request->inputs_only) return GPUNN__NO_PARAMETERS;
    return request->opt ? request->opt->scope : 0;
}

/* ---- lists --------------------------------------------------------------------------------------------- */

GPUNN__INTERNAL int gpunn__list_begin(const gpunn__lists *lists, int id)
{
    return id > 0 ? lists->end[id - 1] : 0;
}

GPUNN__INTERNAL void gpunn__list_add(gpunn__lists *lists, int id, int item, bool counts)
{
    const int at = lists->end[id]++;
    if (!counts) lists->items[at] = item;
}

GPUNN__INTERNAL void gpunn__open_lists(gpunn__lists *lists, int count)
{
    for (int id = 0, at = 0, size; id < count; id++, at += size) {
        size = lists->end[id];
        lists->end[id] = at;
    }
}

GPUNN__INTERNAL int gpunn__segment_count(const gpunn__builder *b)
{
    return b->model->parts + 2;
}

GPUNN__INTERNAL void gpunn__list_readers(gpunn__builder *b)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int id = 0; id < b->plan->tensor_count; id++) {
            const gpunn_tensor *t = b->model->tensors[id];
            for (int i = 0; i < t->input_count; i++)
                if (t->inputs[i]) gpunn__list_add(&b->readers, t->inputs[i]->id, id, pass == 0);
        }
        if (pass == 0) gpunn__open_lists(&b->readers, b->plan->tensor_count);
    }
}

/* ---- tables -------------------------------------------------------------------------------------------- */

GPUNN__INTERNAL int gpunn__new_slot(gpunn__builder *b, size_t bytes, int first)
{
    gpunn__plan *plan = b->plan;
    gpunn__slot *slots = (gpunn__slot *)gpunn__grow(b->model->dev, plan->slots, plan->slot_count,
                                                    &plan->slot_capacity, sizeof *slots);
    if (slots == NULL) return -1;
    plan->slots = slots;
    gpunn__slot *slot = &slots[plan->slot_count];
    slot->bytes = bytes;
    slot->first = slot->last = first;
    slot->offset = 0;
    slot->parent = plan->slot_count;
    slot->user_memory = NULL;
    return plan->slot_count++;
}

GPUNN__INTERNAL gpunn__slot *gpunn__slot_of(gpunn__plan *plan, int slot)
{
    while (plan->slots[slot].parent != slot) slot = plan->slots[slot].parent;
    return &plan->slots[slot];
}

GPUNN__INTERNAL bool gpunn__bind(gpunn__builder *b, void **pointer, gpunn__place place, int index)
{
    gpunn__plan    *plan = b->plan;
    gpunn__binding *bindings = (gpunn__binding *)gpunn__grow(
        b->model->dev, plan->bindings, plan->binding_count, &plan->binding_capacity, sizeof *bindings);
    if (bindings == NULL) return false;
    plan->bindings = bindings;
    bindings[plan->binding_count].pointer = pointer;
    bindings[plan->binding_count].place = place;
    bindings[plan->binding_count++].index = index;
    *pointer = plan; /* a placeholder until there is memory: prepare only checks pointers for NULL */
    return true;
}

GPUNN__INTERNAL void *gpunn__plan_take(gpunn__builder *b, size_t bytes)
{
    enum {
        UNIT = 16,
        HEAD = (sizeof(gpunn__chunk) + UNIT - 1) / UNIT * UNIT,
        FIRST = 1 << 12,
        MOST = 1 << 18
    };
    gpunn__chunk *chunk = b->plan->chunks;
    bytes = (bytes + UNIT - 1) / UNIT * UNIT;
    if (chunk == NULL || chunk->bytes - chunk->used < bytes) {
        size_t whole = FIRST;
        if (chunk) whole = 2 * chunk->bytes;
        if (whole > MOST) whole = MOST;
        if (whole < HEAD + bytes) whole = HEAD + bytes;
        chunk = (gpunn__chunk *)gpunn__calloc(b->model->dev, whole);
        if (chunk == NULL) return NULL;
        chunk->next = b->plan->chunks;
        chunk->bytes = whole;
        chunk->used = HEAD;
        b->plan->chunks = chunk;
    }
    chunk->used += bytes;
    return (char *)chunk + (chunk->used - bytes);
}

GPUNN__INTERNAL gpunn_step_fused *gpunn__fuse(gpunn__builder *b, gpunn_step *step)
{
    if (step->fused != &b->plan->unfused) return step->fused;
    gpunn_step_fused *own = (gpunn_step_fused *)gpunn__plan_take(b, sizeof *own);
    if (own) step->fused = own;
    return own;
}

GPUNN__INTERNAL void gpunn__plan_forget(gpunn_device *dev, gpunn__plan *plan)
{
    for (int i = 0; plan->passes && i < plan->pass_count; i++) {
        if (plan->passes[i].captured) dev->backend->forget(dev->context, plan->passes[i].captured);
        plan->passes[i].captured = NULL;
    }
}

GPUNN__INTERNAL void gpunn__plan_free(gpunn_device *dev, gpunn__plan *plan)
{
    gpunn__plan_forget(dev, plan);
    gpunn__device_free(dev, plan->seed_memory, plan->seed_bytes);
    gpunn__device_free(dev, plan->kept_memory, plan->kept_bytes);
    gpunn__free(dev, plan->kept, plan->kept ? (size_t)plan->kept_count * sizeof *plan->kept : 0);
    for (int i = 0; i < plan->step_count; i++)
        gpunn__device_free(dev, plan->steps[i].cache, plan->steps[i].cache_bytes);
    for (gpunn__chunk *chunk = plan->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        gpunn__free(dev, chunk, chunk->bytes);
    }
    gpunn__free(dev, plan->steps, (size_t)plan->step_capacity * sizeof *plan->steps);
    gpunn__free(dev, plan->slots, (size_t)plan->slot_capacity * sizeof *plan->slots);
    gpunn__free(dev, plan->bindings, (size_t)plan->binding_capacity * sizeof *plan->bindings);
    gpunn__free(dev, plan->sized, (size_t)plan->sized_count * sizeof *plan->sized);
    gpunn__free(dev, plan->outputs, plan->table_bytes);
    gpunn__free(dev, plan, sizeof *plan);
}

/* Bytes that a plan holds: host memory, backend caches, seeds and kept copies. The arena does not count. */
static size_t gpunn__plan_held(const gpunn__plan *plan)
{
    size_t bytes = sizeof *plan + plan->table_bytes + plan->cache_bytes + plan->seed_bytes + plan->kept_bytes;
    for (const gpunn__chunk *chunk = plan->chunks; chunk; chunk = chunk->next) bytes += chunk->bytes;
    bytes += (size_t)plan->step_capacity * sizeof *plan->steps +
             (size_t)plan->slot_capacity * sizeof *plan->slots;
    return bytes + (size_t)plan->binding_capacity * sizeof *plan->bindings +
           (size_t)plan->sized_count * sizeof *plan->sized;
}

GPUNN__INTERNAL void gpunn__limit_plans(gpunn_model *model)
{
    int           count = 1;
    size_t        held = gpunn__plan_held(model->plans);
    gpunn__plan **link = &model->plans->next;
    for (; *link && count < model->max_plans; link = &(*link)->next, count++)
        if ((held += gpunn__plan_held(*link)) > model->plan_bytes && model->plan_bytes) break;
    while (*link) {
        gpunn__plan *plan = *link;
        *link = plan->next;
        if (model->last == plan) model->last = NULL;
        gpunn__plan_free(model->dev, plan);
    }
}

GPUNN_API gpunn_status gpunn_set_plan_limit(gpunn_model *model, int count, size_t bytes)
{
    if (model == NULL) return gpunn__fail_null(NULL, "gpunn_set_plan_limit", "model");
    if (count < 0)
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_set_plan_limit: count is negative; use 1 or more, or 0 for 32");
    model->max_plans = count ? count : GPUNN__MAX_PLANS;
    model->plan_bytes = bytes;
    if (model->plans) gpunn__limit_plans(model);
    return GPUNN_OK;
}

GPUNN__INTERNAL void gpunn__invalidate(gpunn_model *model)
{
    model->written_gradients++;
    while (model->plans) {
        gpunn__plan *next = model->plans->next;
        gpunn__plan_free(model->dev, model->plans);
        model->plans = next;
    }
    model->last = NULL;
}

GPUNN__INTERNAL const char *gpunn__called(const gpunn_tensor *t)
{
    if (t->name) return t->name;
    if (t->layer) return t->layer;
    return t->built_by ? t->built_by : gpunn_op_name(t->op);
}

/* ---- which tensors are needed -------------------------------------------------------------------------- */

GPUNN__INTERNAL void gpunn__mark_operands(const gpunn_model *model, bool *needed)
{
    for (int id = model->tensor_count - 1; id >= 0; id--) {
        const gpunn_tensor *t = model->tensors[id];
        for (int i = 0; needed[id] && i < t->input_count; i++)
            if (t->inputs[i]) needed[t->inputs[i]->id] = true;
    }
}

/* Marks in `lacking` every tensor that needs an input which is not in `needed`. */
static void gpunn__mark_lacking(const gpunn_model *model, const bool *needed, bool *lacking)
{
    for (int id = 0; id < model->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        lacking[id] = t->kind == GPUNN__INPUT && !needed[id];
        for (int i = 0; i < t->input_count; i++)
            lacking[id] = lacking[id] || (t->inputs[i] && lacking[t->inputs[i]->id]);
    }
}

GPUNN__INTERNAL void gpunn__mark_kept(const gpunn_model *model, bool *needed, bool *scratch)
{
    gpunn__mark_lacking(model, needed, scratch);
    for (int id = 0; id < model->tensor_count; id++)
        needed[id] = needed[id] || (model->tensors[id]->keep && !scratch[id]);
    gpunn__mark_operands(model, needed);
}

GPUNN__INTERNAL void gpunn__mark_assigns(const gpunn_model *model, bool training, bool *needed, bool *scratch)
{
    bool found = true;
    gpunn__mark_lacking(model, needed, scratch);
    while (found) { /* an assignment may read another state, so repeat until nothing is added */
        found = false;
        for (int id = 0; id < model->tensor_count; id++) {
            gpunn_tensor *t = model->tensors[id];
            if (t->op == GPUNN_OP_ASSIGN && !needed[id] && !scratch[id] &&
                (!training || t->attr.in_training) && needed[gpunn__state_of(t)->id])
                found = needed[id] = true;
        }
        if (found) gpunn__mark_operands(model, needed);
    }
}

GPUNN__INTERNAL gpunn_tensor *gpunn__source(const gpunn_tensor *t, int i)
{
    gpunn_tensor *input = t->inputs[i];
    if (i != 1 || (t->op != GPUNN_OP_GATHER && t->op != GPUNN_OP_SCATTER_ADD)) return input;
    gpunn_tensor *line = input->op == GPUNN_OP_EXPAND ? input->inputs[0] : NULL;
    bool          serves = line && line->rank == t->rank;
    for (int axis = 0; serves && axis < t->rank; axis++)
        serves = line->dim[axis] == (axis == t->attr.axis ? input->dim[axis] : 1);
    return serves ? line : input;
}

GPUNN__INTERNAL bool gpunn__has_layouts(const gpunn_tensor *t)
{
    bool fixed = t->rank == 4 && t->dim[1] > 0 && t->dim[2] > 0 && t->dim[3] > 0;
    return fixed && t->dim[1] > 1 && t->dim[2] * t->dim[3] > 1;
}

GPUNN__INTERNAL bool gpunn__is_alias(const gpunn__plan *plan, const gpunn_tensor *t)
{
    if (t->kind != GPUNN__VALUE) return false;
    if (t->op == GPUNN_OP_ASSIGN) return true; /* its step is made by gpunn__assign_step */
    if (t->op == GPUNN_OP_RESHAPE)
        return !(plan->tensors[t->inputs[0]->id].channels_last && gpunn__has_layouts(t->inputs[0]));
    return t->op == GPUNN_OP_DROPOUT && (!plan->training || plan->evaluates || t->attr.dropout_p == 0);
}

/* Whether a node in a training plan runs as in evaluation although its op differs between the modes. */
static bool gpunn__evaluates(const gpunn__plan *plan, const gpunn_tensor *t)
{
    if (gpunn__has_statistics(t->op)) return plan->training && (plan->evaluates || t->inputs[3]->frozen);
    return plan->evaluates && (t->op == GPUNN_OP_DROPOUT || t->op == GPUNN_OP_ATTENTION) &&
           t->attr.dropout_p > 0;
}

GPUNN__INTERNAL bool gpunn__communicates(const gpunn__plan *plan, const gpunn_tensor *t)
{
    return t->model->ranks.size > 1 && t->attr.sync && plan->training && !gpunn__evaluates(plan, t);
}

GPUNN__INTERNAL bool gpunn__is_output(const gpunn__plan *plan, const gpunn_tensor *t)
{
    return plan->tensors[t->id].is_output;
}

GPUNN__INTERNAL bool gpunn__is_visible(const gpunn__plan *plan, const gpunn_tensor *t)
{
    return t->keep || t->retain_grad || t->user_memory[0].data || gpunn__is_output(plan, t);
}

GPUNN__INTERNAL bool gpunn__reads_state(const gpunn__builder *b, const gpunn_tensor *t)
{
    bool reads = false;
    for (int i = 0; i < t->input_count; i++)
        reads = reads || (t->inputs[i] && b->model->tensors[b->plan->tensors[t->inputs[i]->id].root]->state);
    return reads;
}

/* Whether other nodes can be merged into the step of t. */
static bool gpunn__begins_chain(const gpunn__builder *b, const gpunn_tensor *t)
{
    if (gpunn__reads_state(b, t)) return false;
    if (t->op == GPUNN_OP_BATCH_NORM)
        return b->plan->training && !gpunn__evaluates(b->plan, t) && b->model->dev->info.merged_norm &&
               b->tensors[t->id].fused < 0;
    return gpunn__op_is(t->op, GPUNN__CONVOLUTION) || t->op == GPUNN_OP_LINEAR;
}

/* Whether a merged batch norm can add the residual and return its gradient. The residual must be stored like
 * the norm's result and must not be the norm's own input. */
static bool gpunn__suits_norm(const gpunn__plan *plan, const gpunn_tensor *norm, const gpunn_tensor *residual)
{
    return plan->tensors[residual->id].storage == plan->tensors[norm->id].storage &&
           plan->tensors[residual->id].channels_last == plan->tensors[norm->id].channels_last &&
           plan->tensors[residual->id].gradient_root != plan->tensors[norm->inputs[0]->id].gradient_root;
}

/* Whether t, a function of the last result of the chain, can be merged into the convolution before it. */
static bool gpunn__merges_activation(const gpunn__builder *b, const gpunn_tensor *head, const gpunn_tensor *t)
{
    return !b->plan->training && b->model->dev->info.merged_activations && gpunn__op_elementwise(t->op) &&
           t->input_count == 1 && gpunn__op_is(head->op, GPUNN__CONVOLUTION) &&
           b->plan->tensors[head->id].channels_last && gpunn__has_layouts(head);
}

/* Returns the node after `end` if it can be merged, or NULL. Into a linear or convolution, in
 * this order: a batch norm by running statistics (evaluation only), the sum with a residual, a
 * relu, (linear only) gelu_tanh or (gpunn__merges_activation) any unary op. Into a batch norm: the sum and
 * the relu. *stage is the stage reached; the next node must be of a later one. */
static gpunn_tensor *gpunn__next_merge(const gpunn__builder *b, const gpunn_tensor *head,
                                       const gpunn_tensor *end, int *stage)
{
    if (b->tensors[end->id].uses != 1 || gpunn__is_visible(b->plan, end)) return NULL;
    for (int k = gpunn__list_begin(&b->readers, end->id); k < b->readers.end[end->id]; k++) {
        const int     id = b->readers.items[k];
        gpunn_tensor *t = b->model->tensors[id];
        int           operand = 0, then = 0;
        if (!b->needed[id]) continue;
        while (t->inputs[operand] != end) operand++;
        if (b->tensors[id].head != id || b->tensors[id].next >= 0 || b->plan->tensors[id].root != id ||
            b->tensors[id].fused >= 0)
            return NULL; /* it already belongs to another step */
        if (gpunn__has_statistics(t->op) && operand == 0 && !b->plan->training &&
            (t->rank == 2 || head->op != GPUNN_OP_LINEAR))
            then = 1;
        else if (t->op == GPUNN_OP_ADD && t->inputs[0] != t->inputs[1] &&
                 gpunn__same_shape(t->inputs[0], t->inputs[1]) &&
                 (head->op != GPUNN_OP_BATCH_NORM ||
                  gpunn__suits_norm(b->plan, head, t->inputs[1 - operand])))
            then = 2;
        else if (t->op == GPUNN_OP_RELU || (t->op == GPUNN_OP_GELU_TANH && head->op == GPUNN_OP_LINEAR) ||
                 gpunn__merges_activation(b, head, t))
            then = 3;
        if (then <= *stage || b->plan->tensors[id].channels_last != b->plan->tensors[end->id].channels_last)
            return NULL;
        *stage = then;
        return t;
    }
    return NULL;
}

/* Whether training keeps the value of t, a member of a chain, beside the
 * chain's result. This is the input of gelu_tanh. */
static bool gpunn__is_before(const gpunn__builder *b, const gpunn_tensor *t)
{
    int next = b->tensors[t->id].next;
    return b->plan->training && next >= 0 && b->model->tensors[next]->op == GPUNN_OP_GELU_TANH;
}

GPUNN__INTERNAL void gpunn__mark_roots(gpunn__builder *b)
{
    gpunn__plan *plan = b->plan;
    for (int id = 0; id < plan->tensor_count; id++) {
        const gpunn_tensor *t = b->model->tensors[id];
        bool                alias = gpunn__is_alias(plan, t);
        plan->tensors[id].gradient_root = plan->tensors[id].root = alias
                                                                       ? plan->tensors[t->inputs[0]->id].root
                                                                       : id;
        b->tensors[id].head = id;
        b->tensors[id].next = b->tensors[id].cast = b->tensors[id].transposed = b->tensors[id].filter =
            b->tensors[id].gathered = b->tensors[id].more = b->tensors[id].fused = b->tensors[id].saved = -1;
        b->tensors[id].sharing = id;
        plan->tensors[id].beside = b->tensors[id].writer = plan->tensors[id].value_slot =
            plan->tensors[id].gradient_slot = -1;
        for (int i = 0; b->needed[id] && i < t->input_count; i++)
            if (t->inputs[i]) b->tensors[t->inputs[i]->id].uses++;
    }
}

GPUNN__INTERNAL void gpunn__mark_chains(gpunn__builder *b)
{
    gpunn__plan *plan = b->plan;
    for (int id = 0; id < plan->tensor_count; id++) {
        gpunn_tensor *t = b->model->tensors[id], *end = t, *next;
        if (!b->needed[id] || !gpunn__begins_chain(b, t)) continue;
        for (int stage = 0; (next = gpunn__next_merge(b, t, end, &stage)) != NULL; end = next) {
            b->tensors[end->id].next = next->id;
            b->tensors[end->id].normed = t->op == GPUNN_OP_BATCH_NORM;
        }
        b->tensors[end->id].head = id;
        for (int member = id; member != end->id; member = b->tensors[member].next)
            if (!gpunn__is_before(b, b->model->tensors[member])) plan->tensors[member].root = end->id;
    }
    for (int id = 0; id < plan->tensor_count; id++)
        plan->tensors[id].root = plan->tensors[plan->tensors[id].root].root; /* reshapes of a chain's end */
}

GPUNN__INTERNAL const gpunn_tensor *gpunn__operand_of(const gpunn__plan *plan, const gpunn_tensor *t, int i)
{
    const gpunn_tensor *input = gpunn__source(t, i);
    return input && plan->tensors[input->id].part != 2 ? input : NULL;
}

GPUNN__INTERNAL bool gpunn__has_derivative(const gpunn_tensor *t, int i)
{
    if (t->op != GPUNN_OP_CUSTOM) return gpunn__op_has_gradient(t->op, i);
    return t->attr.custom->backward && !(t->attr.custom->no_gradient >> i & 1);
}

GPUNN__INTERNAL bool gpunn__passes_gradient(const gpunn__builder *b, const gpunn_tensor *node, int operand)
{
    const gpunn_tensor *input = gpunn__operand_of(b->plan, node, operand);
    return input && b->tensors[input->id].wants && gpunn__has_derivative(node, operand);
}

/* ---- fused groups --------------------------------------------------------------------------------------- *
 * A
 * fused group is a set of nodes computed by one fused kernel of gpunn_use_kernels. Groups are chosen before
 * nodes are merged and memory is planned. Nodes of kernels that do not fit this plan are planned as single
 * ops. */

GPUNN__INTERNAL gpunn_tensor *gpunn__member(const gpunn__builder *b, const gpunn__fused *fused, int number)
{
    return b->model->tensors[fused->tensors[number < 0 ? -number - 1 : fused->kernel->node_count + number]];
}

GPUNN__INTERNAL const gpunn_kernel_program *gpunn__program(const gpunn__builder *b, const gpunn__fused *fused,
                                                           bool backward)
{
    int direction = b->plan->training ? GPUNN_KERNEL_FORWARD : GPUNN_KERNEL_EVALUATION;
    if (backward) direction = GPUNN_KERNEL_BACKWARD;
    return &fused->kernel->program[direction];
}

/* The program of the kernel that computes gradients. A loss's kernel does so in its forward program. */
static const gpunn_kernel_program *gpunn__gradient_program(const gpunn__builder *b, const gpunn__fused *fused)
{
    return gpunn__program(b, fused, !fused->kernel->loss);
}

GPUNN__INTERNAL const gpunn_kernel_operand *gpunn__gradient_operand(const gpunn__builder *b,
                                                                    const gpunn__fused *fused, int root,
                                                                    bool changes)
{
    const gpunn_kernel_program *program = gpunn__gradient_program(b, fused);
    for (int i = 0; i < program->operand_count; i++) {
        const gpunn_kernel_operand *operand = &program->operands[i];
        if (operand->role == GPUNN_KERNEL_GRADIENT && operand->index < 0 && (!changes || operand->written) &&
            b->plan->tensors[gpunn__member(b, fused, operand->index)->id].gradient_root == root)
            return operand;
    }
    return NULL;
}

static bool gpunn__fused_writes(const gpunn__builder *b, const gpunn__fused *fused, int root)
{
    const gpunn_kernel_program *program = gpunn__program(b, fused, false);
    bool                        writes = false;
    for (int i = 0; i < program->operand_count; i++) {
        const gpunn_kernel_operand *operand = &program->operands[i];
        writes = writes || (operand->role == GPUNN_KERNEL_VALUE && operand->written &&
                            b->plan->tensors[gpunn__member(b, fused, operand->index)->id].root == root);
    }
    return writes;
}

GPUNN__INTERNAL bool gpunn__fused_passes(const gpunn__builder *b, const gpunn__fused *fused,
                                         const gpunn_tensor *external)
{
    bool passes = false;
    for (int k = 0; k < fused->kernel->node_count; k++) {
        const gpunn_tensor *t = b->model->tensors[fused->tensors[k]];
        for (int i = 0; b->tensors[t->id].feeds_loss && i < t->input_count; i++)
            passes = passes || (t->inputs[i] == external && gpunn__passes_gradient(b, t, i));
    }
    return passes;
}

GPUNN__INTERNAL bool gpunn__fused_has_backward(const gpunn__builder *b, const gpunn__fused *fused)
{
    bool has = false;
    for (int i = 0; i < fused->kernel->external_count; i++)
        has = has || gpunn__fused_passes(b, fused, gpunn__member(b, fused, i));
    return has && b->plan->training;
}

/* Whether a node outside fused group `index` reads node t. For gradients only
 * readers count that pass a gradient to t. */
static bool gpunn__read_outside(const gpunn__builder *b, int index, const gpunn_tensor *t, bool gradient)
{
    for (int k = gpunn__list_begin(&b->readers, t->id); k < b->readers.end[t->id]; k++) {
        const int           id = b->readers.items[k];
        const gpunn_tensor *reader = b->model->tensors[id];
        if (!b->needed[id] || b->tensors[id].fused == index ||
            (gradient && !(b->tensors[id].feeds_loss && b->tensors[id].wants)))
            continue;
        for (int i = 0; i < reader->input_count; i++)
            if (reader->inputs[i] == t && (!gradient || gpunn__passes_gradient(b, reader, i))) return true;
    }
    return false;
}

GPUNN__INTERNAL bool gpunn__fused_wants_channels_last(const gpunn__builder *b, const gpunn__fused *fused)
{
    const gpunn_kernel *kernel = fused->kernel;
    if (kernel->layout != GPUNN_KERNEL_ANY) return kernel->layout == GPUNN_KERNEL_CHANNELS_LAST;
    for (int i = 0; i < kernel->node_count + kernel->external_count; i++)
        if (gpunn__has_layouts(b->model->tensors[fused->tensors[i]]))
            return b->plan->tensors[b->plan->tensors[fused->tensors[i]].root].channels_last;
    return false;
}

GPUNN__INTERNAL bool gpunn__fused_relayouts(const gpunn__builder *b, const gpunn__fused *fused,
                                            const gpunn_tensor *t)
{
    return gpunn__has_layouts(t) && b->plan->tensors[b->plan->tensors[t->id].root].channels_last !=
                                        gpunn__fused_wants_channels_last(b, fused);
}

/* Whether the kernel can take all images of the fused group: its nodes as they are stored, its externals as
 * they are or as a copy. In training the loss's kernel cannot use copies. It writes gradients in the forward
 * pass, where no step could copy them back. */
static bool gpunn__fused_layout_fits(const gpunn__builder *b, const gpunn__fused *fused)
{
    const gpunn_kernel *kernel = fused->kernel;
    for (int i = 0; i < kernel->node_count + kernel->external_count; i++) {
        const gpunn_tensor *t = b->model->tensors[fused->tensors[i]];
        bool                movable = i >= kernel->node_count && t->dtype == GPUNN_F32 &&
                       !(kernel->loss && b->plan->training);
        if (gpunn__fused_relayouts(b, fused, t) && !movable) return false;
    }
    return true;
}

/* Whether a batch norm has a single value per channel in training, which is an error. The node
 * then stays a single op, which reports it. */
static bool gpunn__lacks_variance(const gpunn__builder *b, const gpunn_tensor *t)
{
    return t->op == GPUNN_OP_BATCH_NORM && b->plan->training && !gpunn__evaluates(b->plan, t) &&
           gpunn__count(t, b->plan->batch) == gpunn__dim(t->model, t->dim[1], 1);
}

static bool gpunn__fused_values_fit(const gpunn__builder *b, int index)
{
    const gpunn__fused *fused = &b->fused[index];
    for (int k = 0; k < fused->kernel->node_count; k++) {
        const gpunn_tensor *t = b->model->tensors[fused->tensors[k]];
        int                 root = b->plan->tensors[t->id].root;
        bool                seen = gpunn__is_visible(b->plan, t) || gpunn__read_outside(b, index, t, false);
        if (seen && b->tensors[root].fused == index && !gpunn__fused_writes(b, fused, root)) return false;
        if (gpunn__lacks_variance(b, t)) return false;
    }
    return true;
}

/* Whether nodes of the fused group contribute to this gradient. It then never exists as a whole in memory. */
static bool gpunn__adds_inside(const gpunn__builder *b, const gpunn__fused *fused, int root)
{
    bool adds = false;
    for (int k = 0; k < fused->kernel->node_count; k++) {
        const gpunn_tensor *t = b->model->tensors[fused->tensors[k]];
        for (int i = 0; b->tensors[t->id].feeds_loss && i < t->input_count; i++)
            adds = adds || (gpunn__passes_gradient(b, t, i) &&
                            b->plan->tensors[t->inputs[i]->id].gradient_root == root &&
                            b->plan->tensors[t->id].gradient_root != root);
    }
    return adds;
}

static bool gpunn__fused_gradients_fit(const gpunn__builder *b, int index)
{
    const gpunn__fused         *fused = &b->fused[index];
    const gpunn_kernel         *kernel = fused->kernel;
    const gpunn__plan          *plan = b->plan;
    const gpunn_kernel_program *program = gpunn__gradient_program(b, fused);
    if (!gpunn__fused_has_backward(b, fused)) return !kernel->loss;
    if (program->operands == NULL) return false;
    int last = plan->tensors[fused->tensors[kernel->node_count - 1]].root;
    if (kernel->loss && (plan->seeded || last != plan->tensors[plan->outputs[0]->id].root)) return false;
    /* the kernel reads all gradients that come from outside, and no others */
    for (int k = 0; k < kernel->node_count; k++) {
        const gpunn_tensor *t = b->model->tensors[fused->tensors[k]];
        int                 root = plan->tensors[t->id].gradient_root;
        bool                comes = gpunn__is_output(plan, t) || gpunn__read_outside(b, index, t, true);
        if (comes && gpunn__gradient_operand(b, fused, root, false) == NULL) return false;
        if (b->tensors[root].retained &&
            (!comes || gpunn__gradient_operand(b, fused, root, true) || gpunn__adds_inside(b, fused, root)))
            return false;
    }
    for (int i = 0; i < program->operand_count; i++) {
        const gpunn_kernel_operand *operand = &program->operands[i];
        if (operand->role != GPUNN_KERNEL_GRADIENT || operand->index >= 0) continue;
        bool comes = false;
        for (int k = 0; k < kernel->node_count; k++) {
            const gpunn_tensor *t = b->model->tensors[fused->tensors[k]];
            if (plan->tensors[t->id].gradient_root ==
                plan->tensors[gpunn__member(b, fused, operand->index)->id].gradient_root)
                comes = comes || gpunn__is_output(plan, t) || gpunn__read_outside(b, index, t, true);
        }
        if (!comes) return false;
    }
    /* each wanted gradient is written, and to memory of its own */
    for (int i = 0; i < kernel->external_count; i++) {
        const gpunn_tensor *external = gpunn__member(b, fused, i);
        bool                written = false;
        if (!gpunn__fused_passes(b, fused, external)) continue;
        for (int k = 0; k < program->operand_count; k++)
            written = written ||
                      (program->operands[k].role == GPUNN_KERNEL_GRADIENT && program->operands[k].index == i);
        if (!written) return false;
        for (int k = 0; k < i; k++)
            if (plan->tensors[gpunn__member(b, fused, k)->id].gradient_root ==
                plan->tensors[external->id].gradient_root)
                return false;
    }
    return true;
}

/* Whether the fused group is a batch norm with a sum and relu after it. The backend does this
 * in one merged step, with fewer launches. */
static bool gpunn__is_norm_step(const gpunn__builder *b, const gpunn_kernel *kernel, const int *tensors)
{
    const gpunn_tensor *t = b->model->tensors[tensors[0]];
    bool                is = t->op == GPUNN_OP_BATCH_NORM && kernel->node_count > 1 && b->plan->training &&
              b->model->dev->info.merged_norm;
    for (int k = 1; k < kernel->node_count; k++) {
        const gpunn_tensor *before = t;
        t = b->model->tensors[tensors[k]];
        bool adds = t->op == GPUNN_OP_ADD && k == 1;
        is = is && (adds || (t->op == GPUNN_OP_RELU && k + 1 == kernel->node_count)) &&
             (t->inputs[0] == before || (adds && t->inputs[1] == before));
    }
    return is;
}

/* Whether a kernel with products on a GPU rounds their operands as the model's precision requires. */
static bool gpunn__precision_fits(const gpunn__builder *b, const gpunn_kernel *kernel, const int *tensors)
{
    bool fits = true;
    if (b->model->dev->info.type == GPUNN_DEVICE_CPU) return true;
    for (int k = 0; k < kernel->node_count; k++)
        fits = fits && (kernel->precision == gpunn__precision_of(b->model) ||
                        !gpunn__op_is(b->model->tensors[tensors[k]]->op, GPUNN__PRODUCT));
    return fits;
}

/* Tries to give a fused group of tensors to a kernel. Returns false if a node is taken already or
 * the kernel cannot compute it in this plan. */
static bool gpunn__claim(gpunn__builder *b, const gpunn_kernel *kernel, const int *tensors)
{
    int           index = b->fused_count, last = tensors[kernel->node_count - 1];
    gpunn__fused *fused = &b->fused[index];
    fused->kernel = kernel;
    fused->tensors = tensors;
    fused->slot = -1;
    bool rejected = b->rejected[last] && kernel->node_count >= b->rejected[last];
    rejected = rejected ||
               (b->model->dev->info.type == GPUNN_DEVICE_CPU && gpunn__program(b, fused, false)->cpu == NULL);
    if (gpunn__program(b, fused, false)->operands == NULL || rejected ||
        gpunn__is_norm_step(b, kernel, tensors) || !gpunn__precision_fits(b, kernel, tensors))
        return false;
    for (int k = 0; k < kernel->node_count; k++)
        if (!b->needed[tensors[k]] || b->tensors[tensors[k]].fused >= 0 ||
            gpunn__reads_state(b, b->model->tensors[tensors[k]]) ||
            gpunn__evaluates(b->plan, b->model->tensors[tensors[k]]) ||
            gpunn__communicates(b->plan, b->model->tensors[tensors[k]]))
            return false;
    for (int i = 0; i < kernel->external_count; i++)
        if (gpunn__member(b, fused, i)->storage) return false;
    for (int k = 0; k < kernel->node_count; k++) b->tensors[tensors[k]].fused = index;
    bool fits = gpunn__fused_layout_fits(b, fused) && gpunn__fused_values_fit(b, index) &&
                (!b->plan->training || gpunn__fused_gradients_fit(b, index));
    for (int k = 0; k < kernel->node_count && !fits; k++) b->tensors[tensors[k]].fused = -1;
    b->fused_count += fits;
    return fits;
}

/* ---- matching by text ---- */

/* Matches tensor t with number `number` of a kernel's pattern, and its operands recursively. assigned holds
 * tensor ids by number, nodes first; -1: not matched yet. */
static bool gpunn__unify(const gpunn_model *model, const gpunn_kernel *kernel, int number,
                         const gpunn_tensor *t, int *assigned)
{
    char text[GPUNN__TEXT_SIZE];
    int  at = number < 0 ? -number - 1 : kernel->node_count + number;
    if (t == NULL || assigned[at] >= 0) return t && assigned[at] == t->id;
    if (number >= 0)
        gpunn__external_text(t, text, sizeof text);
    else
        gpunn__node_text(t, text, sizeof text);
    if (strcmp(text, number < 0 ? kernel->nodes[at].text : kernel->externals[number]) != 0) return false;
    for (int i = 0; i < kernel->node_count + kernel->external_count; i++)
        if (assigned[i] == t->id) return false;
    assigned[at] = t->id;
    if (number >= 0) return true;
    const gpunn_kernel_node *node = &kernel->nodes[at];
    if (t->kind != GPUNN__VALUE || t->input_count != node->operand_count) return false;
    for (int i = 0; i < t->input_count; i++) {
        if (node->operands[i] == GPUNN__LEFT_OUT
                ? t->inputs[i] != NULL
                : !gpunn__unify(model, kernel, node->operands[i], t->inputs[i], assigned))
            return false;
    }
    return true;
}

GPUNN__INTERNAL bool gpunn__find_pattern(const gpunn_model *model, const gpunn_kernel *kernel,
                                         const gpunn_tensor *t, int *assigned)
{
    int count = kernel->node_count + kernel->external_count;
    for (int i = 0; i < count; i++) assigned[i] = -1;
    if (!gpunn__unify(model, kernel, -kernel->node_count, t, assigned)) return false;
    for (int k = kernel->node_count - 1; k >= 0; k--) {
        int before[2 * GPUNN__LEFT_OUT];
        for (int id = 0; assigned[k] < 0 && id < model->tensor_count; id++) {
            memcpy(before, assigned, (size_t)count * sizeof *before);
            if (!gpunn__unify(model, kernel, -k - 1, model->tensors[id], assigned))
                memcpy(assigned, before, (size_t)count * sizeof *before);
        }
        if (assigned[k] < 0) return false;
    }
    return true;
}

GPUNN__INTERNAL void gpunn__mark_fused(gpunn__builder *b)
{
    const gpunn_model      *model = b->model;
    const gpunn_kernel_set *set = model->kernels;
    bool                    training = b->plan->training;
    if (set == NULL) return;
    if (model->kernels_exact) {
        const gpunn_kernel_instance *instances = training ? set->training : set->evaluation;
        int                          count = training ? set->training_count : set->evaluation_count;
        for (int i = 0; i < count; i++)
            (void)gpunn__claim(b, &set->kernels[instances[i].kernel], instances[i].tensors);
        return;
    }
    for (int i = 0; i < set->kernel_count; i++) {
        const gpunn_kernel *kernel = &set->kernels[i];
        for (int id = 0; id < b->plan->tensor_count; id++) {
            int *tensors = b->ids + b->id_count;
            if (!b->needed[id] || b->tensors[id].fused >= 0 ||
                !gpunn__find_pattern(model, kernel, model->tensors[id], tensors))
                continue;
            if (gpunn__claim(b, kernel, tensors)) b->id_count += kernel->node_count + kernel->external_count;
        }
    }
}

GPUNN__INTERNAL bool gpunn__reject_fused(gpunn__builder *b, const gpunn__fused *fused)
{
    b->rejected[fused->tensors[fused->kernel->node_count - 1]] = fused->kernel->node_count;
    b->again = true;
    return false;
}

/* ---- order ---- */

/* Places a node, with its fused group, after its operands. Returns false if fused groups wait for
 * each other; one of them is then rejected. */
static bool gpunn__put_in_order(gpunn__builder *b, int id)
{
    enum { OPEN = -1, BEGUN = -2 };
    int                 index = b->tensors[id].fused;
    const gpunn__fused *fused = index >= 0 ? &b->fused[index] : NULL;
    const int          *nodes = fused ? fused->tensors : &id;
    int                 count = fused ? fused->kernel->node_count : 1;
    if (b->tensors[id].place != OPEN) return b->tensors[id].place != BEGUN;
    for (int k = 0; k < count; k++) b->tensors[nodes[k]].place = BEGUN;
    for (int k = 0; k < count; k++) {
        const gpunn_tensor *t = b->model->tensors[nodes[k]];
        for (int i = 0; i < t->input_count; i++) {
            bool inside = t->inputs[i] == NULL || (index >= 0 && b->tensors[t->inputs[i]->id].fused == index);
            if (inside || gpunn__put_in_order(b, t->inputs[i]->id)) continue;
            return fused && !b->again ? gpunn__reject_fused(b, fused) : false;
        }
    }
    for (int k = 0; k < count; k++) b->tensors[nodes[k]].place = b->place_count;
    b->order[b->place_count++] = nodes[count - 1];
    return true;
}

GPUNN__INTERNAL bool gpunn__mark_order(gpunn__builder *b)
{
    for (int id = 0; id < b->plan->tensor_count; id++) b->tensors[id].place = -1;
    for (int id = 0; id < b->plan->tensor_count; id++)
        if (!gpunn__put_in_order(b, id)) return false;
    return true;
}

/* ---- q, k and v of one product -------------------------------------------------------------------------- *
 * Attention with
 * heads side by side can read q, k and v from one tensor. Suppose linear layers compute all three from one
 * value, and their weights and biases are adjacent in memory. This is so if they have the same size and were
 * created in that order. Then one product replaces the three, forward and backward. */

GPUNN__INTERNAL int64_t gpunn__aligned(int64_t count)
{
    return (count + GPUNN__WEIGHT_ALIGN - 1) / GPUNN__WEIGHT_ALIGN * GPUNN__WEIGHT_ALIGN;
}

GPUNN__INTERNAL int gpunn__weight_range(const gpunn_tensor *t)
{
    if (t->storage) return GPUNN__STORAGE_RANGE;
    if (t->kind == GPUNN__PARAMETER) return t->rank >= 2 ? 0 : 1;
    return t->kind == GPUNN__BUFFER || t->kind == GPUNN__CONSTANT ? 2 : -1;
}

GPUNN__INTERNAL int64_t gpunn__floats_of(const gpunn_tensor *t)
{
    const size_t size = sizeof(float);
    return gpunn__has_bound_blocks(t) ? 0 : (int64_t)((gpunn__weight_bytes(t) + size - 1) / size);
}

GPUNN__INTERNAL bool gpunn__is_user_owned(const gpunn_tensor *t)
{
    return t->user_memory[0].data || t->user_memory[1].data;
}

/* Whether parameter z has the shape of y and lies directly behind it
 * in memory, or will when both are laid out. */
static bool gpunn__is_beside(const gpunn_model *model, const gpunn_tensor *y, const gpunn_tensor *z)
{
    if (gpunn__is_user_owned(y) || gpunn__is_user_owned(z)) return false;
    if (y->kind != GPUNN__PARAMETER || z->kind != GPUNN__PARAMETER || !gpunn__same_shape(y, z) ||
        y->id >= z->id || y->storage != z->storage ||
        gpunn__weight_bytes(y) % (GPUNN__WEIGHT_ALIGN * sizeof(float)) != 0)
        return false;
    if (y->offset >= 0 || z->offset >= 0)
        return y->offset >= 0 && z->offset == y->offset + gpunn__floats_of(y);
    for (int id = y->id + 1; id < z->id; id++)
        if (gpunn__weight_range(model->tensors[id]) == gpunn__weight_range(y)) return false;
    return true;
}

/* The linear layer that makes operand i of attention t, if its product may be joined with others. Else
 * NULL. */
static const gpunn_tensor *gpunn__part_of(const gpunn__builder *b, const gpunn_tensor *t, int i)
{
    const gpunn_tensor *heads = t->inputs[i],
                       *part = heads && heads->op == GPUNN_OP_RESHAPE ? heads->inputs[0] : NULL;
    if (part == NULL || part->op != GPUNN_OP_LINEAR || heads->rank != 4 || !gpunn__is_alias(b->plan, heads) ||
        b->tensors[heads->id].uses != 1 || b->tensors[part->id].uses != 1 ||
        b->tensors[heads->id].fused >= 0 || b->tensors[part->id].fused >= 0 ||
        gpunn__is_visible(b->plan, heads) || gpunn__is_visible(b->plan, part) ||
        !gpunn__same_shape(heads, t->inputs[0]))
        return NULL;
    for (int k = 1; k < 3; k++)
        if (part->inputs[k] && (b->tensors[part->inputs[k]->id].uses != 1 || part->inputs[k]->retain_grad))
            return NULL;
    return part;
}

static bool gpunn__can_join(const gpunn__builder *b, const gpunn_tensor *y, const gpunn_tensor *z)
{
    if (y->inputs[0] != z->inputs[0] || y->id == z->id || b->tensors[y->id].place > b->tensors[z->id].place)
        return false;
    for (int k = 1; k < 3; k++) {
        const gpunn_tensor *own = y->inputs[k], *other = z->inputs[k];
        if ((own == NULL) != (other == NULL)) return false;
        if (own && (!gpunn__is_beside(b->model, own, other) ||
                    b->tensors[own->id].wants != b->tensors[other->id].wants))
            return false;
    }
    return true;
}

GPUNN__INTERNAL void gpunn__mark_parts(gpunn__builder *b)
{
    gpunn__plan *plan = b->plan;
    for (int id = 0; id < plan->tensor_count; id++) {
        const gpunn_tensor *t = b->model->tensors[id], *part[3];
        if (t->op != GPUNN_OP_ATTENTION || !b->needed[id] || !t->attr.heads_last) continue;
        for (int i = 0; i < 3; i++) part[i] = gpunn__part_of(b, t, i);
        if (part[0] == NULL || part[1] == NULL || part[2] == NULL || !gpunn__can_join(b, part[0], part[1]) ||
            !gpunn__can_join(b, part[1], part[2]))
            continue;
        for (int i = 0; i < 3; i++) {
            const gpunn_tensor *members[4] = {part[i], t->inputs[i], part[i]->inputs[1], part[i]->inputs[2]};
            for (int k = 0; k < 4 && members[k]; k++) {
                int member = members[k]->id;
                plan->tensors[member].part = i == 0 ? 1 : 2;
                if (k >= 2 && i < 2) plan->tensors[member].beside = part[i + 1]->inputs[k - 1]->id;
                if (k < 2) plan->tensors[member].root = plan->tensors[member].gradient_root = part[0]->id;
            }
        }
    }
}

/* ---- steps --------------------------------------------------------------------------------------------- */

/* Turns the description of q into one of q, k and v together. */
static void gpunn__describe_all(gpunn_value *value, const gpunn_tensor *t)
{
    if (t->op != GPUNN_OP_RESHAPE) { /* rows of a weight or bias, or the result of a linear layer */
        value->dim[t->kind == GPUNN__VALUE ? t->rank - 1 : 0] *= 3;
        return;
    }
    memmove(value->dim + 3, value->dim + 2, 2 * sizeof *value->dim);
    value->dim[2] = 3;
    value->rank = 5;
}

GPUNN__INTERNAL void gpunn__describe(const gpunn__plan *plan, gpunn_value *value, const gpunn_tensor *t)
{
    int64_t batch = plan->batch;
    value->data = NULL;
    value->dtype = plan->tensors[t->id].storage;
    value->channels_last = plan->tensors[t->id].channels_last && gpunn__has_layouts(t);
    value->rank = t->rank;
    value->count = 1;
    for (int i = 0; i < t->rank; i++) value->dim[i] = gpunn__dim(t->model, t->dim[i], batch);
    if (plan->tensors[t->id].part == 1) gpunn__describe_all(value, t);
    for (int i = 0; i < value->rank; i++) value->count *= value->dim[i];
}

GPUNN__INTERNAL void gpunn__set_operation(gpunn_step *step, const gpunn__operation *operation)
{
    step->op = operation->op;
    step->operation = operation;
}

GPUNN__INTERNAL const gpunn_attributes *gpunn__attr_of(const gpunn__plan *plan, const gpunn_tensor *t)
{
    return plan->tensors[t->id].attr ? plan->tensors[t->id].attr : &t->attr;
}

GPUNN__INTERNAL gpunn_step *gpunn__new_step(gpunn__builder *b, const gpunn_tensor *t, bool backward,
                                            int input_count)
{
    gpunn__plan *plan = b->plan;
    gpunn_step  *step = &plan->steps[plan->step_count];
    memset(step, 0, sizeof *step);
    step->in = (gpunn_value *)gpunn__plan_take(b, (size_t)input_count *
                                                      (2 * sizeof(gpunn_value) + sizeof(bool)));
    if (step->in == NULL) return NULL;
    step->grad_in = step->in + input_count;
    step->accumulate = (bool *)(void *)(step->grad_in + input_count);
    step->input_count = input_count;
    step->fused = &plan->unfused;
    step->op = t->op;
    step->operation = t->operation;
    step->backward = backward;
    step->inference = b->model->inference;
    step->training = plan->training;
    step->evaluates = gpunn__evaluates(plan, t);
    step->precision = gpunn__precision_of(b->model);
    step->name = t->layer ? t->layer : t->name;
    if (step->name == NULL) step->name = "";
    step->attr = gpunn__attr_of(plan, t);
    step->state = &b->model->state;
    if (gpunn__communicates(plan, t)) step->ranks = &b->model->ranks;
    plan->communicates = plan->communicates || step->ranks;
    b->nodes[plan->step_count++] = t->id;
    return step;
}

GPUNN__INTERNAL gpunn_tensor *gpunn__node_of(const gpunn__builder *b, const gpunn_step *step)
{
    return b->model->tensors[b->nodes[step - b->plan->steps]];
}

GPUNN__INTERNAL gpunn_step *gpunn__node_step(gpunn__builder *b, const gpunn_tensor *t, bool backward,
                                             int more)
{
    gpunn_step *step = gpunn__new_step(b, t, backward, t->input_count + more);
    for (int i = 0; step && i < t->input_count; i++) {
        if (gpunn__operand_of(b->plan, t, i) == NULL) continue;
        gpunn__describe(b->plan, &step->in[i], t->inputs[i]);
        step->grad_in[i] = step->in[i];
    }
    if (step == NULL) return NULL;
    gpunn__describe(b->plan, &step->out, t);
    step->grad_out = step->out;
    return step;
}

GPUNN__INTERNAL bool gpunn__use_slot(gpunn__builder *b, void **pointer, int index, int at)
{
    gpunn__slot *slot = gpunn__slot_of(b->plan, index);
    if (slot->last < at) slot->last = at;
    return gpunn__bind(b, pointer, GPUNN__IN_SLOT, index);
}

/* Whether the state at the root of t still has the value that t stands for: that from before the run, or that
 * of one assignment. Fails if not. */
static bool gpunn__is_current(gpunn__builder *b, const gpunn_tensor *t, int root)
{
    const gpunn_tensor *state = b->model->tensors[root], *seen = t;
    while (seen->id != root && seen->op != GPUNN_OP_ASSIGN) seen = seen->inputs[0];
    if (!state->state || b->tensors[root].version == (seen->id == root ? 0 : seen->id + 1)) return true;
    (void)gpunn__fail(b->model->dev, GPUNN_ERR_STATE,
                      "state '%s' is read after an assignment to it; read the result of gpunn_assign "
                      "instead, or copy the state with an op first",
                      state->name);
    return false;
}

GPUNN__INTERNAL bool gpunn__read_value(gpunn__builder *b, gpunn_value *value, const gpunn_tensor *t, int at)
{
    int root = b->plan->tensors[t->id].root;
    if (b->model->tensors[root]->state && !gpunn__is_current(b, t, root)) return false;
    gpunn__describe(b->plan, value, t);
    value->dtype = b->plan->tensors[root].storage;
    value->channels_last = b->plan->tensors[root].channels_last && gpunn__has_layouts(t);
    if (b->model->tensors[root]->kind != GPUNN__VALUE)
        return gpunn__bind(b, &value->data, GPUNN__IN_TENSOR, root);
    return gpunn__use_slot(b, &value->data, b->plan->tensors[root].value_slot, at);
}

/* Whether an operand is the bias of a chain with an F32 result. Such a bias is added in F32. */
static bool gpunn__is_wide_bias(const gpunn__builder *b, const gpunn_tensor *t, int operand)
{
    int end = t->id;
    while (b->tensors[end].next >= 0) end = b->tensors[end].next;
    return operand == 2 && t->op != GPUNN_OP_ATTENTION && b->plan->tensors[end].storage == GPUNN_F32;
}

/* Whether an operand of a product, or its bias, must be read as a 16-bit copy in a half plan. Weights have
 * such a copy in model->half; other F32 values get one from a cast step. */
static bool gpunn__is_factor(const gpunn__builder *b, const gpunn_tensor *t, int operand)
{
    return b->plan->half && operand < 3 && gpunn__op_is(t->op, GPUNN__PRODUCT) && t->inputs[operand] &&
           !gpunn__is_wide_bias(b, t, operand) &&
           b->plan->tensors[b->plan->tensors[t->inputs[operand]->id].root].storage == GPUNN_F32;
}

static bool gpunn__has_mirror(const gpunn_tensor *t)
{
    return t->kind == GPUNN__PARAMETER || (t->kind == GPUNN__BUFFER && !t->state) ||
           t->kind == GPUNN__CONSTANT;
}

GPUNN__INTERNAL bool gpunn__wants_channels_last(const gpunn__builder *b, const gpunn_tensor *t, int operand)
{
    if (!gpunn__has_layouts(t->inputs[operand])) return false;
    if (gpunn__reads_any_layout(b->plan, t))
        return b->plan->tensors[b->plan->tensors[t->inputs[operand]->id].root].channels_last;
    if (t->op == GPUNN_OP_QUANTIZED_CONV2D) return operand == 0;
    if (gpunn__op_is(t->op, GPUNN__CONVOLUTION))
        return b->plan->channels_last && operand == 0 && !gpunn__reads_few_planes(b->plan, t);
    if (!b->plan->tensors[t->id].channels_last) return false;
    return gpunn__op_elementwise(t->op) || t->op == GPUNN_OP_QUANTIZED_ADD
               ? gpunn__same_shape(t->inputs[operand], t)
               : operand == 0;
}

GPUNN__INTERNAL bool gpunn__is_misplaced(const gpunn__builder *b, const gpunn_tensor *t, int operand)
{
    const gpunn_tensor *input = t->inputs[operand];
    return gpunn__has_layouts(input) && b->plan->tensors[b->plan->tensors[input->id].root].channels_last !=
                                            gpunn__wants_channels_last(b, t, operand);
}

static bool gpunn__read_stored(gpunn__builder *b, gpunn_value *value, const gpunn_tensor *t, int operand,
                               int at)
{
    if (!gpunn__is_factor(b, t, operand)) return gpunn__read_value(b, value, gpunn__source(t, operand), at);
    int root = b->plan->tensors[t->inputs[operand]->id].root;
    gpunn__describe(b->plan, value, t->inputs[operand]);
    value->dtype = gpunn__half_of(b->model);
    value->channels_last = b->plan->tensors[root].channels_last && gpunn__has_layouts(t->inputs[operand]);
    if (gpunn__has_mirror(b->model->tensors[root])) return gpunn__bind(b, &value->data, GPUNN__IN_HALF, root);
    return gpunn__use_slot(b, &value->data, b->tensors[root].cast, at);
}

GPUNN__INTERNAL bool gpunn__read_operand(gpunn__builder *b, gpunn_value *value, const gpunn_tensor *t,
                                         int operand, int at)
{
    if (gpunn__op_is(t->op, GPUNN__CONVOLUTION) && operand == 1 && b->tensors[t->inputs[1]->id].filter >= 0) {
        gpunn__describe(b->plan, value, t->inputs[1]);
        if (b->plan->half) value->dtype = gpunn__half_of(b->model);
        value->channels_last = true;
        return gpunn__use_slot(b, &value->data, b->tensors[t->inputs[1]->id].filter, at);
    }
    if (!gpunn__is_misplaced(b, t, operand)) return gpunn__read_stored(b, value, t, operand, at);
    gpunn__describe(b->plan, value, t->inputs[operand]);
    value->dtype = gpunn__is_factor(b, t, operand)
                       ? gpunn__half_of(b->model)
                       : b->plan->tensors[b->plan->tensors[t->inputs[operand]->id].root].storage;
    value->channels_last = gpunn__wants_channels_last(b, t, operand);
    return gpunn__use_slot(b, &value->data, b->tensors[t->inputs[operand]->id].transposed, at);
}

GPUNN__INTERNAL void gpunn__as_stored(gpunn_value *value, bool last)
{
    int64_t channels = value->dim[1];
    value->channels_last = false;
    if (!last) return;
    value->dim[1] = value->dim[2];
    value->dim[2] = value->dim[3];
    value->dim[3] = channels;
}

GPUNN__INTERNAL gpunn_step *gpunn__relayout_step(gpunn__builder *b, const gpunn_tensor *image, bool to_last,
                                                 bool backward)
{
    gpunn_attributes *attr = &b->plan->attr[to_last];
    gpunn_step       *step = gpunn__new_step(b, image, backward, 1);
    if (step == NULL) return NULL;
    memcpy(attr->order, to_last ? gpunn__to_channels_last : gpunn__to_first, sizeof gpunn__to_channels_last);
    gpunn__set_operation(step, &gpunn__operation_permute);
    step->attr = attr;
    return step;
}

GPUNN__INTERNAL bool gpunn__relayout_operand(gpunn__builder *b, const gpunn_tensor *t, int operand,
                                             bool to_last)
{
    const gpunn_tensor *image = t->inputs[operand];
    int                 at = b->plan->step_count;
    if (b->tensors[image->id].transposed >= 0) return true;
    gpunn_step *step = gpunn__relayout_step(b, image, to_last, false);
    bool rounds = gpunn__is_factor(b, t, operand) && b->tensors[b->plan->tensors[image->id].root].cast < 0;
    if (step == NULL || !(rounds ? gpunn__read_value(b, &step->in[0], image, at)
                                 : gpunn__read_stored(b, &step->in[0], t, operand, at)))
        return false;
    step->out = step->in[0];
    if (rounds) step->out.dtype = gpunn__half_of(b->model);
    gpunn__as_stored(&step->in[0], !to_last);
    gpunn__as_stored(&step->out, to_last);
    int slot = b->tensors[image->id].transposed = gpunn__new_slot(
        b, (size_t)step->out.count * gpunn_dtype_size(step->out.dtype), at);
    return slot >= 0 && gpunn__bind(b, &step->out.data, GPUNN__IN_SLOT, slot);
}

GPUNN__INTERNAL bool gpunn__copy_operands(gpunn__builder *b, const gpunn_tensor *t)
{
    for (int i = 0; i < t->input_count; i++) {
        const gpunn_tensor *input = t->inputs[i];
        if (input == NULL) continue;
        int                 root = b->plan->tensors[input->id].root;
        const gpunn_tensor *source = b->model->tensors[root];
        if (gpunn__is_factor(b, t, i) && !gpunn__has_mirror(source) && b->tensors[root].cast < 0 &&
            !gpunn__is_misplaced(b, t, i)) {
            int         at = b->plan->step_count;
            gpunn_step *step = gpunn__new_step(b, t, false, 1);
            if (step == NULL) return false;
            gpunn__set_operation(step, &gpunn__operation_cast);
            step->attr = &b->plan->attr[2];
            if (!gpunn__read_value(b, &step->in[0], source->state ? input : source, at)) return false;
            gpunn__describe(b->plan, &step->out, source);
            step->out.dtype = gpunn__half_of(b->model);
            b->tensors[root].cast = gpunn__new_slot(b, (size_t)step->out.count * 2, at);
            if (b->tensors[root].cast < 0 ||
                !gpunn__bind(b, &step->out.data, GPUNN__IN_SLOT, b->tensors[root].cast))
                return false;
        }
        if (gpunn__is_misplaced(b, t, i) &&
            !gpunn__relayout_operand(b, t, i, gpunn__wants_channels_last(b, t, i)))
            return false;
    }
    return true;
}

/* Reads the residual that a product adds to its result. With a 16-bit sum, an F32 residual that an earlier
 * step has rounded is read from its 16-bit copy. */
static bool gpunn__read_residual(gpunn__builder *b, gpunn_value *value, const gpunn_tensor *add, int operand,
                                 int at)
{
    const gpunn_tensor *input = add->inputs[operand];
    const int           root = b->plan->tensors[input->id].root, rounded = b->tensors[root].cast;
    if (b->plan->tensors[add->id].storage == GPUNN_F32 || b->plan->tensors[root].storage != GPUNN_F32 ||
        rounded < 0 || gpunn__is_misplaced(b, add, operand))
        return gpunn__read_operand(b, value, add, operand, at);
    gpunn__describe(b->plan, value, input);
    value->dtype = gpunn__half_of(b->model);
    return gpunn__use_slot(b, &value->data, rounded, at);
}

GPUNN__INTERNAL int gpunn__write_half(gpunn__builder *b, gpunn_step *step, int i, const gpunn_value *value,
                                      int at)
{
    const int         slot = gpunn__new_slot(b, (size_t)value->count * 2, at);
    gpunn_step_fused *fused = step->op == GPUNN_OP_FUSION ? NULL : gpunn__fuse(b, step);
    if (slot < 0 || (fused == NULL && step->op != GPUNN_OP_FUSION)) return -1;
    if (fused == NULL) return gpunn__bind(b, &step->fusion->half[i], GPUNN__IN_SLOT, slot) ? slot : -1;
    fused->half = *value;
    fused->half.data = NULL;
    fused->half.dtype = gpunn__half_of(b->model);
    return gpunn__bind(b, &fused->half.data, GPUNN__IN_SLOT, slot) ? slot : -1;
}

GPUNN__INTERNAL bool gpunn__wants_half(const gpunn__builder *b, const gpunn_tensor *t)
{
    int products = 0, others = 0;
    if (!b->plan->half || b->plan->tensors[t->id].storage != GPUNN_F32) return false;
    gpunn__count_readers(b, t, &products, &others);
    return products > 0;
}

/* Adds a member of t's chain, which reads `previous`, to the step of t. */
static bool gpunn__fuse_member(gpunn__builder *b, gpunn_step *step, const gpunn_tensor *t,
                               const gpunn_tensor *previous, const gpunn_tensor *member, int at)
{
    gpunn_step_fused *fused = step->fused;
    if (gpunn__has_statistics(member->op)) {
        gpunn_value *parts[4] = {&fused->scale, &fused->shift, &fused->mean, &fused->variance};
        for (int i = 0; i < 4; i++)
            if (member->inputs[i + 1] && !gpunn__read_value(b, parts[i], member->inputs[i + 1], at))
                return false;
        fused->norm = true;
        fused->eps = member->attr.eps;
    } else if (member->op == GPUNN_OP_ADD) {
        return gpunn__read_residual(b, &fused->residual, member, member->inputs[0] == previous, at);
    } else if (member->op == GPUNN_OP_RELU) {
        fused->relu = true;
    } else if (gpunn__merges_activation(b, t, member)) {
        fused->activation = member->operation;
        fused->activation_attr = &member->attr;
    } else {
        fused->gelu_tanh = true;
        if (!gpunn__is_before(b, previous)) return true;
        gpunn__describe(b->plan, &fused->before, previous);
        int kept = gpunn__new_slot(b, (size_t)step->out.count * gpunn_dtype_size(fused->before.dtype), at);
        b->plan->tensors[previous->id].value_slot = kept;
        return kept >= 0 && gpunn__bind(b, &fused->before.data, GPUNN__IN_SLOT, kept);
    }
    return true;
}

GPUNN__INTERNAL bool gpunn__forward_step(gpunn__builder *b, const gpunn_tensor *end)
{
    gpunn_tensor **tensors = b->model->tensors;
    gpunn_tensor  *t = tensors[b->tensors[end->id].head];
    if (!gpunn__copy_operands(b, t)) return false;
    for (const gpunn_tensor *member = t; member != end;) {
        member = tensors[b->tensors[member->id].next];
        if (!gpunn__copy_operands(b, member)) return false;
    }
    if (t->op == GPUNN_OP_RESHAPE) { /* a reshape of an image with channels last is just the copy */
        b->plan->tensors[t->id].value_slot = b->tensors[t->inputs[0]->id].transposed;
        return true;
    }
    int         at = b->plan->step_count;
    gpunn_step *step = gpunn__node_step(b, t, false, 0);
    if (step == NULL) return false;
    for (int i = 0; i < t->input_count; i++) {
        /* running statistics: updated once */
        const bool updated = gpunn__has_statistics(t->op) && i > 2 && !step->evaluates;
        if (gpunn__operand_of(b->plan, t, i) && !(updated && b->repeats) &&
            !gpunn__read_operand(b, &step->in[i], t, i, at))
            return false;
    }
    if (t != end && gpunn__fuse(b, step) == NULL) return false;
    for (const gpunn_tensor *member = t; member != end;) {
        const gpunn_tensor *previous = member;
        member = tensors[b->tensors[member->id].next];
        if (!gpunn__fuse_member(b, step, t, previous, member, at)) return false;
    }
    if (step->out.channels_last && gpunn__broadcasts_channels(t)) {
        for (int i = 0; i < t->input_count; i++)
            if (t->inputs[i]->rank == 4) gpunn__as_stored(&step->in[i], true);
        gpunn__as_stored(&step->out, true);
    }
    step->out.dtype = b->plan->tensors[end->id].storage;
    int slot = gpunn__new_slot(b, (size_t)step->out.count * gpunn_dtype_size(step->out.dtype), at);
    if (slot < 0) return false;
    b->plan->tensors[end->id].value_slot = slot;
    if (!gpunn__bind(b, &step->out.data, GPUNN__IN_SLOT, slot)) return false;
    if (!gpunn__op_is(t->op, GPUNN__ROW_NORM) || !gpunn__wants_half(b, t)) return true;
    return (b->tensors[t->id].cast = gpunn__write_half(b, step, 0, &step->out, at)) >= 0;
}

GPUNN__INTERNAL bool gpunn__assign_step(gpunn__builder *b, const gpunn_tensor *t)
{
    const int root = b->plan->tensors[t->id].root;
    if (!gpunn__copy_operands(b, t)) return false;
    int         at = b->plan->step_count;
    gpunn_step *step = gpunn__node_step(b, t, false, 0);
    for (int i = 0; step && i < t->input_count; i++)
        if (t->inputs[i] && !gpunn__read_operand(b, &step->in[i], t, i, at)) return false;
    b->tensors[root].version = t->id + 1;
    b->tensors[root].cast = -1;
    return step && gpunn__bind(b, &step->out.data, GPUNN__IN_TENSOR, root);
}

GPUNN__INTERNAL bool gpunn__is_late(const gpunn__builder *b, const gpunn_tensor *t)
{
    return b->needed[t->id] && t->op == GPUNN_OP_ASSIGN && b->tensors[t->id].uses == 0 &&
           t->user_memory[0].data == NULL;
}

GPUNN__INTERNAL bool gpunn__late_steps(gpunn__builder *b)
{
    for (int id = 0; id < b->plan->tensor_count; id++)
        if (gpunn__is_late(b, b->model->tensors[id]) && !gpunn__assign_step(b, b->model->tensors[id]))
            return false;
    return true;
}

/* ---- filters ---- *
 * Weights are stored in the layout of state dicts. Where convolutions want channels last, one step at the
 * start of a run copies all filters to that layout. One step at the end copies their gradients back. */

GPUNN__INTERNAL gpunn_step *gpunn__filter_step(gpunn__builder *b, const gpunn_tensor *convolution,
                                               bool backward, int count)
{
    gpunn_step *step = gpunn__new_step(b, convolution, backward, count);
    if (step == NULL) return NULL;
    gpunn__set_operation(step, &gpunn__operation_relayout);
    step->name = "";
    step->attr = &b->plan->attr[2];
    return step;
}

GPUNN__INTERNAL bool gpunn__relayout_filters(gpunn__builder *b)
{
    gpunn__plan *plan = b->plan;
    int          count = 0, i = 0;
    gpunn_step  *step = NULL;
    for (int pass = 0; pass < 2; pass++)
        for (int id = 0; id < plan->tensor_count && plan->filters_last; id++) {
            const gpunn_tensor *t = b->model->tensors[id],
                               *w = gpunn__op_is(t->op, GPUNN__CONVOLUTION) ? t->inputs[1] : NULL;
            if (!b->needed[id] || w == NULL || !gpunn__has_mirror(w) || !gpunn__has_layouts(w)) continue;
            if (pass == 0) {
                count++; /* a shared weight counts more than once, which only reserves more operands */
                continue;
            }
            if (b->tensors[w->id].filter >= 0) continue;
            if (step == NULL && (step = gpunn__filter_step(b, t, false, count)) == NULL) return false;
            int at = plan->step_count - 1;
            if (!gpunn__read_stored(b, &step->in[i], t, 1, at)) return false;
            step->grad_in[i] = step->in[i];
            step->grad_in[i].channels_last = true;
            b->tensors[w->id].filter = gpunn__new_slot(
                b, (size_t)step->in[i].count * gpunn_dtype_size(step->in[i].dtype), at);
            if (b->tensors[w->id].filter < 0 ||
                !gpunn__bind(b, &step->grad_in[i].data, GPUNN__IN_SLOT, b->tensors[w->id].filter))
                return false;
            i++;
        }
    return true;
}

GPUNN__INTERNAL bool gpunn__gathers_filter(const gpunn__builder *b, const gpunn_tensor *t)
{
    const gpunn_tensor *w = gpunn__op_is(t->op, GPUNN__CONVOLUTION) ? t->inputs[1] : NULL;
    return w && t->rank == 4 && b->plan->filters_last && w->kind == GPUNN__PARAMETER &&
           b->tensors[w->id].uses == 1 && (b->plan->half || gpunn__has_layouts(w));
}
