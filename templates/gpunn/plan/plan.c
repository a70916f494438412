#include "plan/plan.h"
#include "base/blocks.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/math.h"
#include "base/tables.h"
#include "base/shapes.h"
#include "base/device.h"
#include "graph/infer.h"
#include "layers/states.h"
#include "plan/backward.h"
#include "plan/sparse.h"

/* ---- user-owned memory --------------------------------------------------------------------------------- */

/* Makes step->out of the last step a slot in user-owned memory. */
static bool gpunn__end_in_user_memory(gpunn__builder *b, gpunn_step *step, gpunn_tensor *t, bool gradient)
{
    gpunn__plan *plan = b->plan;
    const int    slot = gpunn__new_slot(b, (size_t)step->out.count * gpunn_dtype_size(step->out.dtype),
                                        plan->step_count - 1);
    if (slot < 0 || !gpunn__bind(b, &step->out.data, GPUNN__IN_SLOT, slot)) return false;
    plan->slots[slot].last = INT32_MAX;
    plan->slots[slot].user_memory = &t->user_memory[gradient];
    return true;
}

/* Appends a step that converts the floats in a slot to doubles in user-owned memory. */
static bool gpunn__widen_step(gpunn__builder *b, gpunn_tensor *t, bool gradient, const gpunn_value *floats,
                              int slot)
{
    const int   at = b->plan->step_count;
    gpunn_step *step = gpunn__new_step(b, t, false, 1);
    if (step == NULL) return false;
    gpunn__set_operation(step, &gpunn__operation_cast);
    step->attr = &b->plan->attr[2];
    step->in[0] = step->out = *floats;
    step->out.dtype = GPUNN_F64;
    return gpunn__use_slot(b, &step->in[0].data, slot, at) && gpunn__end_in_user_memory(b, step, t, gradient);
}

/* Appends steps that copy a value to user-owned memory in the tensor's own dtype and channel order. With
 * gradient_slot >= 0 they copy the gradient in that slot instead. */
static bool gpunn__copy_step(gpunn__builder *b, gpunn_tensor *t, int gradient_slot)
{
    gpunn__plan *plan = b->plan;
    const bool   gradient = gradient_slot >= 0;
    const int    at = plan->step_count,
              root = gradient ? plan->tensors[t->id].gradient_root : plan->tensors[t->id].root;
    gpunn_step *step = gpunn__relayout_step(b, t, false, false);
    if (step == NULL) return false;
    gpunn__describe(plan, &step->in[0], t);
    step->out = step->in[0];
    step->out.dtype = t->dtype;
    step->out.channels_last = false;
    const bool relays = plan->tensors[root].channels_last && gpunn__has_layouts(t);
    if (!relays) step->attr = &plan->attr[2];
    if (gradient ? !gpunn__use_slot(b, &step->in[0].data, gradient_slot, at)
                 : !gpunn__read_value(b, &step->in[0], t, at))
        return false;
    step->in[0].dtype = plan->tensors[root].storage;
    gpunn__as_stored(&step->in[0], relays);
    if (!t->doubles) return gpunn__end_in_user_memory(b, step, t, gradient);
    const int slot = gpunn__new_slot(b, (size_t)step->out.count * sizeof(float), at);
    return slot >= 0 && gpunn__bind(b, &step->out.data, GPUNN__IN_SLOT, slot) &&
           gpunn__widen_step(b, t, gradient, &step->out, slot);
}

/* Makes values or gradients that are bound to user-owned memory end up there. The step that computes them
 * writes there directly if it stores them in the same form. Otherwise a copy follows at the end. */
static bool gpunn__place_in_user_memory(gpunn__builder *b, bool gradient)
{
    gpunn__plan *plan = b->plan;
    for (int id = 0; id < plan->tensor_count && b->has.user_memory; id++) {
        gpunn_tensor *t = b->model->tensors[id];
        const int     root = gradient ? plan->tensors[id].gradient_root : plan->tensors[id].root;
        const int     slot = gradient ? plan->tensors[root].gradient_slot : plan->tensors[root].value_slot;
        const bool    written = gradient ? slot >= 0 && t->kind != GPUNN__PARAMETER : t->kind == GPUNN__VALUE;
        if (!b->needed[id] || t->user_memory[gradient].data == NULL || !written) continue;
        gpunn__slot *own = slot >= 0 ? gpunn__slot_of(plan, slot) : NULL;
        if (own && own->user_memory == NULL && plan->tensors[root].storage == gpunn_tensor_dtype(t) &&
            !(plan->tensors[root].channels_last && gpunn__has_layouts(t)))
            own->user_memory = &t->user_memory[gradient];
        else if (!gpunn__copy_step(b, t, gradient ? slot : -1))
            return false;
    }
    return true;
}

static bool gpunn__forward_steps(gpunn__builder *b)
{
    gpunn__plan *plan = b->plan;
    if (!gpunn__relayout_filters(b)) return false;
    for (int place = 0; place < b->place_count; place++) {
        int                 id = b->order[place];
        const gpunn_tensor *t = b->model->tensors[id];
        bool                own = b->needed[id] && t->kind == GPUNN__VALUE && plan->tensors[id].root == id &&
                   b->tensors[id].next < 0;
        if (b->needed[id] && t->op == GPUNN_OP_ASSIGN && !gpunn__is_late(b, t) && !gpunn__assign_step(b, t))
            return false;
        if (b->tensors[id].fused >= 0 ? !gpunn__fused_step(b, b->tensors[id].fused, false)
                                      : own && !gpunn__forward_step(b, t))
            return false;
    }
    for (int id = 0; id < plan->tensor_count; id++) {
        bool visible = b->needed[id] && gpunn__is_visible(plan, b->model->tensors[id]);
        if (visible && plan->tensors[plan->tensors[id].root].value_slot >= 0)
            gpunn__slot_of(plan, plan->tensors[plan->tensors[id].root].value_slot)->last = INT32_MAX;
    }
    if (!gpunn__place_in_user_memory(b, false)) return false;
    plan->forward_count = plan->step_count;
    return true;
}

/* The slot of a step's result if the next step is its only reader, as its first operand, or -1. */
static int gpunn__slot_between(const gpunn__builder *b, int at)
{
    const gpunn__plan  *plan = b->plan;
    const gpunn_tensor *next = b->model->tensors[b->nodes[at + 1]];
    const gpunn_tensor *read = next->input_count > 0 ? next->inputs[0] : NULL;
    const int           slot = read ? plan->tensors[read->id].value_slot : -1;
    if (slot < 0 || plan->tensors[read->id].root != read->id || b->tensors[read->id].uses != 1) return -1;
    const bool between = plan->slots[slot].first == at && plan->slots[slot].last == at + 1;
    return between && plan->slots[slot].parent == slot ? slot : -1;
}

/* Joins steps that the backend computes together, in strips. The results between them need no memory. What
 * such steps read is needed until the last of them. */
static bool gpunn__join_strips(gpunn__builder *b)
{
    gpunn__plan         *plan = b->plan;
    const gpunn_backend *backend = b->model->dev->backend;
    if (plan->training || backend->strips == NULL) return true;
    for (int at = 0; at + 1 < plan->step_count; at++) {
        gpunn_step *step = &plan->steps[at];
        const int   slot = gpunn__slot_between(b, at);
        if (slot < 0 || !backend->strips(b->model->dev->context, step)) continue;
        if (!gpunn__fuse(b, step) || !gpunn__fuse(b, step + 1)) return false;
        step[1].fused->strips = step->fused->strips + 1;
        step->fused->strips = -1;
        plan->slots[slot].bytes = 0;
    }
    for (int i = 0; i < plan->slot_count; i++) {
        gpunn__slot *slot = &plan->slots[i];
        while (slot->last < plan->step_count && plan->steps[slot->last].fused->strips < 0) slot->last++;
    }
    return true;
}

/* ---- memory of a plan ---------------------------------------------------------------------------------- */

/* Lets a result share the memory of an operand that no later step reads, so that the
 * step works in place. Used for elementwise steps, and for a batch norm's backward step,
 * which turns its gradient into the residual's. */
static void gpunn__overlay(gpunn__plan *plan, int from, int onto, int at)
{
    gpunn__slot *target = gpunn__slot_of(plan, onto), *slot = &plan->slots[from];
    if (slot->parent != from || slot->user_memory || target == slot || slot->first != at ||
        target->last != at || target->bytes != slot->bytes)
        return;
    slot->parent = target->parent;
    target->last = slot->last;
}

static void gpunn__overlay_steps(gpunn__plan *plan)
{
    for (int i = 0; i < plan->binding_count; i++) {
        const gpunn__binding *output = &plan->bindings[i];
        if (output->place != GPUNN__IN_SLOT) continue;
        int         at = plan->slots[output->index].first;
        gpunn_step *step = &plan->steps[at];
        bool        normed = step->op == GPUNN_OP_BATCH_NORM && step->backward;
        if (!gpunn__op_elementwise(step->op) && !normed) continue;
        bool is_result = !step->backward && output->pointer == &step->out.data, is_gradient = false;
        int  wanted = 0;
        for (int k = normed ? 5 : 0; step->backward && k < step->input_count; k++) {
            wanted += step->grad_in[k].data != NULL;
            is_gradient = is_gradient || (output->pointer == &step->grad_in[k].data && !step->accumulate[k]);
        }
        if (!is_result && !(is_gradient && wanted == 1)) continue;
        /* the bindings of a step are adjacent, with its result's last */
        for (int j = i; j >= 0 && j > i - 8; j--) {
            const gpunn__binding *input = &plan->bindings[j];
            bool                  operand = is_gradient ? input->pointer == &step->grad_out.data : false;
            for (int k = 0; is_result && k < step->input_count && k < 2; k++)
                operand = operand || input->pointer == &step->in[k].data;
            if (operand && input->place == GPUNN__IN_SLOT)
                gpunn__overlay(plan, output->index, input->index, at);
        }
    }
}

static size_t gpunn__whole_lines(size_t bytes)
{
    return (bytes + GPUNN__ALIGN - 1) / GPUNN__ALIGN * GPUNN__ALIGN;
}

static void gpunn__place_slot(gpunn__plan *plan, gpunn__slot *slot, size_t offset)
{
    slot->offset = offset;
    if (offset + slot->bytes > plan->arena_bytes) plan->arena_bytes = offset + slot->bytes;
}

/* Places slots by falling size, each in the lowest gap between slots with overlapping lifetimes. This packs
 * best and takes quadratic time. order: `count` slots. */
static void gpunn__place_by_size(gpunn__plan *plan, int *order, int count)
{
    for (int i = 1, at; i < count; i++) {
        const int index = order[i];
        for (at = i; at > 0 && plan->slots[order[at - 1]].bytes < plan->slots[index].bytes; at--)
            order[at] = order[at - 1];
        order[at] = index;
    }
    /* order[0, placed) is sorted by offset; the slots still to place follow by falling size. */
    for (int placed = 0; placed < count; placed++) {
        int          index = order[placed], at = placed;
        gpunn__slot *slot = &plan->slots[index];
        size_t       offset = 0;
        for (int i = 0; i < placed; i++) {
            const gpunn__slot *other = &plan->slots[order[i]];
            if (other->last < slot->first || other->first > slot->last) continue;
            if (other->offset >= offset && other->offset - offset >= slot->bytes) break;
            size_t end = gpunn__whole_lines(other->offset + other->bytes);
            if (end > offset) offset = end;
        }
        gpunn__place_slot(plan, slot, offset);
        for (; at > 0 && plan->slots[order[at - 1]].offset > offset; at--) order[at] = order[at - 1];
        order[at] = index;
    }
}

typedef struct gpunn__gap { /* free bytes of the arena */
    size_t begin, end;
} gpunn__gap;
typedef struct gpunn__gaps { /* sorted by address; the last one has no end */
    gpunn__gap *list;
    int         count;
} gpunn__gaps;

/* Takes bytes from the first gap that has as many, and returns their offset. */
static size_t gpunn__take_bytes(gpunn__gaps *gaps, size_t bytes)
{
    gpunn__gap *gap = gaps->list;
    while (gap->end - gap->begin < bytes) gap++;
    const size_t offset = gap->begin;
    gap->begin += bytes;
    if (gap->begin < gap->end) return offset;
    memmove(gap, gap + 1, (size_t)(gaps->list + --gaps->count - gap) * sizeof *gap);
    return offset;
}

/* Returns the bytes from begin to end, and joins them with the gaps beside them. */
static void gpunn__give_bytes(gpunn__gaps *gaps, size_t begin, size_t end)
{
    int low = 0, high = gaps->count - 1; /* around the first gap behind them */
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (gaps->list[middle].begin < begin)
            low = middle + 1;
        else
            high = middle;
    }
    gpunn__gap *after = &gaps->list[low];
    const bool  joins = low > 0 && after[-1].end == begin;
    if (after->begin == end) {
        after->begin = joins ? after[-1].begin : begin;
        if (joins) memmove(after - 1, after, (size_t)(gaps->count-- - low) * sizeof *after);
    } else if (joins) {
        after[-1].end = end;
    } else {
        memmove(after + 1, after, (size_t)(gaps->count++ - low) * sizeof *after);
        after->begin = begin;
        after->end = end;
    }
}

/* Places slots in the order of the steps, each in the first gap that is large enough. born, dead: the slots
 * that begin and end in each step. */
static void gpunn__place_by_step(gpunn__plan *plan, const gpunn__lists *born, const gpunn__lists *dead,
                                 gpunn__gaps *gaps)
{
    gaps->list[0].begin = 0;
    gaps->list[0].end = SIZE_MAX;
    gaps->count = 1;
    for (int at = 0; at < plan->step_count; at++) {
        for (int i = gpunn__list_begin(born, at); i < born->end[at]; i++) {
            gpunn__slot *slot = &plan->slots[born->items[i]];
            gpunn__place_slot(plan, slot, gpunn__take_bytes(gaps, gpunn__whole_lines(slot->bytes)));
        }
        for (int i = gpunn__list_begin(dead, at); i < dead->end[at]; i++) {
            const gpunn__slot *slot = &plan->slots[dead->items[i]];
            gpunn__give_bytes(gaps, slot->offset, slot->offset + gpunn__whole_lines(slot->bytes));
        }
    }
}

/* Places slots by step. */
static GPUNN__STATUS gpunn__place_many(gpunn_device *dev, gpunn__plan *plan, const int *slots, int count)
{
    const size_t gap_bytes = ((size_t)count + 1) * sizeof(gpunn__gap);
    const size_t bytes = gap_bytes + 2 * ((size_t)plan->step_count + (size_t)count) * sizeof(int);
    gpunn__gaps  gaps = {(gpunn__gap *)gpunn__calloc(dev, bytes), 0};
    if (gaps.list == NULL) return GPUNN_ERR_MEMORY;
    gpunn__lists born = {(int *)(void *)(gaps.list + count + 1), NULL},
                 dead = {born.end + plan->step_count, NULL};
    born.items = dead.end + plan->step_count;
    dead.items = born.items + count;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < count; i++) {
            const gpunn__slot *slot = &plan->slots[slots[i]];
            gpunn__list_add(&born, slot->first, slots[i], pass == 0);
            if (slot->last < plan->step_count) gpunn__list_add(&dead, slot->last, slots[i], pass == 0);
        }
        if (pass == 0) gpunn__open_lists(&born, plan->step_count);
        if (pass == 0) gpunn__open_lists(&dead, plan->step_count);
    }
    gpunn__place_by_step(plan, &born, &dead, &gaps);
    gpunn__free(dev, gaps.list, bytes);
    return GPUNN_OK;
}

#ifndef GPUNN__MOST_BY_SIZE /* the tests define it as 0 */
#define GPUNN__MOST_BY_SIZE 4096
#endif

/* Assigns arena offsets: by size, unless there are so many slots that this would take too long. */
static GPUNN__STATUS gpunn__assign_offsets(gpunn_device *dev, gpunn__plan *plan)
{
    int          count = 0;
    gpunn_status status = GPUNN_OK;
    const size_t bytes = ((size_t)plan->slot_count + 1) * sizeof(int);
    int         *slots = (int *)gpunn__realloc(dev, NULL, 0, bytes);
    if (slots == NULL) return GPUNN_ERR_MEMORY;
    for (int i = 0; i < plan->slot_count; i++)
        if (plan->slots[i].parent == i && plan->slots[i].bytes && !plan->slots[i].user_memory)
            slots[count++] = i;
    if (count > GPUNN__MOST_BY_SIZE)
        status = gpunn__place_many(dev, plan, slots, count);
    else
        gpunn__place_by_size(plan, slots, count);
    gpunn__free(dev, slots, bytes);
    return status;
}

/* Rejects a fused group whose kernel the backend cannot run here and logs why.
 * Its nodes are then planned as single ops. */
static GPUNN__STATUS gpunn__reject_unsupported(gpunn__builder *b, const gpunn_step *step)
{
    gpunn_device *dev = b->model->dev;
    char          text[GPUNN__ERROR_SIZE];
    (void)snprintf(text, sizeof text, "%s of %s_kernels.h is not used with a batch of %lld: %s", step->name,
                   b->model->kernels->name, (long long)b->plan->batch, dev->backend->error(dev->context));
    if (dev->args.log_fn) dev->args.log_fn(dev->args.user, GPUNN_LOG_INFO, text);
    (void)gpunn__reject_fused(b, &b->fused[b->tensors[gpunn__node_of(b, step)->id].fused]);
    return GPUNN_ERR_UNSUPPORTED;
}

/* Whether a step of a training run changes operand i in place. This applies to running
 * statistics of norms, also in generated kernels. */
static bool gpunn__changes_operand(const gpunn_step *step, int i)
{
    if (step->op != GPUNN_OP_FUSION)
        return gpunn__has_statistics(step->op) && step->input_count > 4 && !step->evaluates &&
               (i == 3 || i == 4);
    const gpunn_kernel_operand *operand = &step->fusion->kernel->program[step->fusion->direction].operands[i];
    return operand->role == GPUNN_KERNEL_VALUE && operand->index >= 0 && operand->written;
}

/* Whether a step's op is one of those that change values in place. */
static bool gpunn__may_change(const gpunn_step *step)
{
    return step->op == GPUNN_OP_FUSION || step->op == GPUNN_OP_ASSIGN || gpunn__has_statistics(step->op);
}

/* The value that a step of a training run changes in place: operand i, or with i
 * -1 the state of an assignment. NULL: none. */
static const gpunn_value *gpunn__changed_by(const gpunn_step *step, int i)
{
    if (step->backward) return NULL;
    if (i < 0) return step->op == GPUNN_OP_ASSIGN ? &step->out : NULL;
    return step->in[i].data && gpunn__changes_operand(step, i) ? &step->in[i] : NULL;
}

/* Splits a value into ranges that one GPU block copies and lists them. Returns their number. value NULL: no
 * range. list NULL: only counts. *floats: total size of the copies so far. */
static int gpunn__list_ranges(const gpunn_value *value, gpunn_kept *list, float *copies, int64_t *floats)
{
    enum { RANGE = 4096 };
    int count = 0;
    for (int64_t at = 0, n; value && at < value->count; at += n) {
        n = value->count - at < RANGE ? value->count - at : (int64_t)RANGE;
        if (list) {
            list[count].values = (float *)value->data + at;
            list[count].copy = copies + *floats;
            list[count].count = n;
        }
        *floats += gpunn__aligned(n);
        count++;
    }
    return count;
}

/* Lists everything that a plan's steps change in place; see gpunn__list_ranges. */
static int gpunn__list_changes(const gpunn__plan *plan, gpunn_kept *list, float *copies, int64_t *floats)
{
    int count = 0;
    *floats = 0;
    for (const gpunn_step *step = plan->steps; step < plan->steps + plan->step_count; step++)
        for (int i = -1; gpunn__may_change(step) && i < step->input_count; i++)
            count += gpunn__list_ranges(gpunn__changed_by(step, i), list ? list + count : NULL, copies,
                                        floats);
    return count;
}

/* Asks the backend what each step needs beyond its operands (saved values,
 * workspace, cache) and makes slots for it. */
static GPUNN__STATUS gpunn__prepare_steps(gpunn__builder *b)
{
    gpunn__plan  *plan = b->plan;
    gpunn_device *dev = b->model->dev;
    for (int at = 0; at < plan->step_count; at++) {
        gpunn_step *step = &plan->steps[at];
        int         none = -1; /* of a copy, which saves nothing */
        int        *saved = step->attr == gpunn__attr_of(plan, gpunn__node_of(b, step))
                                ? &b->tensors[b->nodes[at]].saved
                                : &none;
        if (step->backward && *saved >= 0) {
            step->saved_bytes = plan->slots[*saved].bytes;
            if (!gpunn__use_slot(b, &step->saved, *saved, at)) return GPUNN_ERR_MEMORY;
        }
        gpunn_status status = dev->backend->prepare(dev->context, step);
        if (status == GPUNN_ERR_UNSUPPORTED && step->op == GPUNN_OP_FUSION)
            return gpunn__reject_unsupported(b, step);
        if (status != GPUNN_OK) return gpunn__step_fail(dev, step, status);
        if (!step->backward && step->saved_bytes) {
            *saved = gpunn__new_slot(b, step->saved_bytes, at);
            if (*saved < 0 || !gpunn__bind(b, &step->saved, GPUNN__IN_SLOT, *saved)) return GPUNN_ERR_MEMORY;
        }
        if (step->workspace_bytes) {
            int slot = gpunn__new_slot(b, step->workspace_bytes, at);
            if (slot < 0 || !gpunn__bind(b, &step->workspace, GPUNN__IN_SLOT, slot)) return GPUNN_ERR_MEMORY;
        }
        plan->cache_bytes += step->cache_bytes;
    }
    int64_t floats;
    plan->kept_count = plan->training ? gpunn__list_changes(plan, NULL, NULL, &floats) : 0;
    plan->kept_bytes = plan->kept_count
                           ? (size_t)floats * sizeof(float) + (size_t)plan->kept_count * sizeof *plan->kept
                           : 0;
    return GPUNN_OK;
}

enum { GPUNN__BELOW = 1, GPUNN__ABOVE = 2, GPUNN__BETWEEN = 3 };

/* Marks which of tensors[0] to tensors[end] depend on the first one (below), and which ones the last one
 * depends on (above). They are neighbours in a model. Returns whether the last one depends on the first. */
static bool gpunn__mark_between(gpunn_tensor *const *tensors, int end, unsigned char *marks)
{
    const int begin = tensors[0]->id;
    marks[0] = GPUNN__BELOW;
    for (int i = 1; i <= end; i++)
        for (int k = 0; k < tensors[i]->input_count; k++) {
            const gpunn_tensor *input = tensors[i]->inputs[k];
            if (input && input->id >= begin) marks[i] |= marks[input->id - begin] & GPUNN__BELOW;
        }
    marks[end] |= GPUNN__ABOVE;
    for (int i = end; i > 0; i--)
        for (int k = 0; k < tensors[i]->input_count && marks[i] & GPUNN__ABOVE; k++) {
            const gpunn_tensor *input = tensors[i]->inputs[k];
            if (input && input->id >= begin) marks[input->id - begin] |= GPUNN__ABOVE;
        }
    return marks[end] & GPUNN__BELOW;
}

GPUNN_API gpunn_status gpunn_recompute(gpunn_tensor *first, gpunn_tensor *last)
{
    static const char   caller[] = "gpunn_recompute";
    const gpunn_tensor *known = first ? first : last;
    if (first == NULL || last == NULL)
        return gpunn__fail_null(known ? known->model->dev : NULL, caller,
                                first ? "last tensor" : "first tensor");
    gpunn_model   *model = first->model;
    gpunn_device  *dev = model->dev;
    gpunn_tensor **tensors = model->tensors + first->id;
    const int      end = last->id - first->id; /* index of last among those from first on */
    const size_t   bytes = end > 0 ? (size_t)end + 1 : 1;
    gpunn_status   status = GPUNN_OK;
    if (last->model != model)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: first and last belong to different models", caller);
    unsigned char *marks = (unsigned char *)gpunn__calloc(dev, bytes);
    if (marks == NULL) return GPUNN_ERR_MEMORY;
    if (end <= 0 || !gpunn__mark_between(tensors, end, marks))
        status = gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: '%s' is not computed from '%s'", caller,
                             gpunn__called(last), gpunn__called(first));
    for (int i = 1; i < end && status == GPUNN_OK; i++)
        if (marks[i] == GPUNN__BETWEEN && tensors[i]->part)
            status = gpunn__fail(
                dev, GPUNN_ERR_ARGUMENT,
                "%s: '%s' already belongs to another part that is recomputed; parts must not overlap", caller,
                gpunn__called(tensors[i]));
    if (status == GPUNN_OK) {
        gpunn__invalidate(model);
        model->parts++;
        for (int i = 1; i < end; i++)
            if (marks[i] == GPUNN__BETWEEN) tensors[i]->part = model->parts;
    }
    gpunn__free(dev, marks, bytes);
    return status;
}

/* ---- making a plan ------------------------------------------------------------------------------------- */

static size_t gpunn__plan_tables(gpunn__plan *plan, char *base)
{
    gpunn__arena arena = {base, 0};
    const size_t n = (size_t)plan->tensor_count, passes = (size_t)plan->pass_count;
    plan->outputs = (gpunn_tensor **)gpunn__arena_take(&arena,
                                                       (size_t)(plan->output_count) * sizeof *plan->outputs);
    plan->seed = (gpunn__user_memory *)gpunn__arena_take(
        &arena, (size_t)(plan->seeded ? plan->output_count : 0) * sizeof *plan->seed);
    plan->tensors = (gpunn__plan_tensor *)gpunn__arena_take(&arena, n * sizeof *plan->tensors);
    plan->inputs = (int *)gpunn__arena_take(&arena, n * sizeof(int));
    plan->reached = (int *)gpunn__arena_take(&arena, passes * n * sizeof(int));
    plan->first_write = (bool **)gpunn__arena_take(&arena, passes * n * sizeof *plan->first_write);
    plan->was_reached = (bool *)gpunn__arena_take(&arena, passes * n * sizeof *plan->was_reached);
    plan->passes = (gpunn__backpass *)gpunn__arena_take(&arena, passes * sizeof *plan->passes);
    for (size_t i = 0; i < passes && passes > 1; i++) {
        int *gradients = (int *)gpunn__arena_take(&arena, n * sizeof *gradients);
        if (base) plan->passes[i].gradients = gradients;
    }
    plan->sizes = (int64_t *)gpunn__arena_take(&arena, (size_t)(plan->size_count) * sizeof *plan->sizes);
    return arena.bytes;
}

static int gpunn__operand_count(const gpunn_model *model)
{
    int count = 0;
    for (int id = 0; id < model->tensor_count; id++) count += model->tensors[id]->input_count;
    return count;
}

static size_t gpunn__builder_tables(gpunn__builder *b, int n, char *base)
{
    gpunn__arena arena = {base, 0};
    const int    operands = gpunn__operand_count(b->model);
    /* fused groups have the ids of every node, its operands, and the pattern being tried */
    const int ids = b->model->kernels ? n + operands + 2 * GPUNN__LEFT_OUT : 0;
    b->needed = (bool *)gpunn__arena_take(&arena, (size_t)(n) * sizeof(bool));
    b->scratch = (bool *)gpunn__arena_take(&arena, (size_t)(n) * sizeof(bool));
    b->tensors = (gpunn__builder_tensor *)gpunn__arena_take(&arena, (size_t)(n) * sizeof *b->tensors);
    b->order = (int *)gpunn__arena_take(&arena, (size_t)(n) * sizeof(int));
    b->fused = (gpunn__fused *)gpunn__arena_take(&arena, (size_t)(n + 1) * sizeof *b->fused);
    b->ids = (int *)gpunn__arena_take(&arena, (size_t)ids * sizeof(int));
    b->readers.end = (int *)gpunn__arena_take(&arena, (size_t)n * sizeof(int));
    b->readers.items = (int *)gpunn__arena_take(&arena, (size_t)operands * sizeof(int));
    b->contributions.end = (int *)gpunn__arena_take(&arena, (size_t)n * sizeof(int));
    b->contributions.items = (int *)gpunn__arena_take(&arena, (size_t)operands * sizeof(int));
    b->segments.end = (int *)gpunn__arena_take(&arena, (size_t)gpunn__segment_count(b) * sizeof(int));
    b->segments.items = (int *)gpunn__arena_take(&arena, (size_t)n * sizeof(int));
    b->recomputed.end = (int *)gpunn__arena_take(&arena, (size_t)gpunn__segment_count(b) * sizeof(int));
    b->recomputed.items = (int *)gpunn__arena_take(&arena, (size_t)n * sizeof(int));
    return arena.bytes;
}

/* ---- sizes of a plan ---- */

/* Whether a node's attributes depend on variable sizes. */
static bool gpunn__attr_is_sized(const gpunn_tensor *t)
{
    const gpunn_attributes *attr = &t->attr;
    if (t->op == GPUNN_OP_INTERPOLATE && gpunn__any_sized(t->rank, t->inputs[0]->dim)) return true;
    return gpunn__any_sized(GPUNN_MAX_RANK, attr->shape.dim) || gpunn__is_sized(attr->start) ||
           gpunn__is_sized(attr->end);
}

/* Copies a node's attributes and replaces variable sizes by their values in this plan. */
static void gpunn__size_attr(const gpunn__builder *b, const gpunn_tensor *t, gpunn_attributes *attr)
{
    const int64_t batch = b->plan->batch;
    *attr = t->attr;
    for (int i = 0; i < GPUNN_MAX_RANK; i++)
        attr->shape.dim[i] = gpunn__dim(b->model, attr->shape.dim[i], batch);
    attr->start = gpunn__dim(b->model, attr->start, batch);
    attr->end = gpunn__dim(b->model, attr->end, batch);
    if (t->op != GPUNN_OP_INTERPOLATE) return;
    for (int i = 0; i < t->rank - 2; i++) {
        const int64_t in = gpunn__dim(b->model, t->inputs[0]->dim[2 + i], batch),
                      out = gpunn__dim(b->model, t->dim[2 + i], batch);
        if (attr->ratio[i] == 0) attr->ratio[i] = gpunn__resize_ratio(in, out, attr->align_corners, 0);
        attr->size[i] = (int)out;
    }
}

static gpunn__meta gpunn__sized_meta(const gpunn__builder *b, const gpunn_tensor *t)
{
    gpunn__meta meta = {GPUNN_DTYPE_DEFAULT, 0, {0}, NULL};
    if (t == NULL) return meta;
    meta = gpunn__meta_of(t);
    for (int i = 0; i < t->rank; i++) meta.dim[i] = gpunn__dim(b->model, t->dim[i], b->plan->batch);
    return meta;
}

/* Writes a message prefix such as "with T = 3, S = 4: conv2d" to `text` and returns it. */
static const char *gpunn__with_sizes(const gpunn_model *model, const char *what, char text[256])
{
    const char *sign = "with";
    text[0] = 0;
    for (int i = 0; i < model->size_count; i++) {
        const gpunn__size *size = &model->sizes[i];
        if (size->name == NULL) continue;
        gpunn__size_put(text, 200, "%s %s = %lld", sign, size->name,
                        (long long)(size->value * size->multiple));
        sign = ",";
    }
    gpunn__size_put(text, 256, ": %s", what);
    return text;
}

/* Repeats shape inference of a node with this plan's sizes. Fails if the result contradicts its formula. */
static GPUNN__STATUS gpunn__check_sizes(gpunn__builder *b, const gpunn_tensor *t,
                                        const gpunn_attributes *attr)
{
    gpunn_device     *dev = b->model->dev;
    const gpunn__meta expected = gpunn__sized_meta(b, t);
    gpunn__meta       in[GPUNN_MAX_OPERANDS], out;
    char              what[256], one[128], other[128];
    (void)gpunn__with_sizes(b->model, t->built_by ? t->built_by : gpunn_op_name(t->op), what);
    const gpunn__call call = gpunn__call_of(b->model, what, t->layer);
    for (int i = 0; i < t->input_count; i++) in[i] = gpunn__sized_meta(b, t->inputs[i]);
    if (!gpunn__infer(&call, t->operation, attr, in, t->input_count, &out)) return dev->error.status;
    for (int i = 0; i < out.rank; i++) out.dim[i] = gpunn__dim(b->model, out.dim[i], b->plan->batch);
    if (gpunn__same_dims(&out, &expected)) return GPUNN_OK;
    return gpunn__fail(dev, GPUNN_ERR_SHAPE,
                       "%s: the result is %s, but its formula gives %s; use other sizes", what,
                       gpunn__meta_text(&out, one), gpunn__meta_text(&expected, other));
}

/* Computes attributes with this plan's sizes where needed, and checks all nodes whose shapes vary. */
static GPUNN__STATUS gpunn__resolve_sizes(gpunn__builder *b)
{
    gpunn__plan *plan = b->plan;
    int          count = 0;
    for (int i = 0; i < plan->size_count; i++) plan->sizes[i] = b->model->sizes[i].value;
    for (int id = 0; id < plan->tensor_count; id++)
        count += b->needed[id] && b->model->tensors[id]->kind == GPUNN__VALUE &&
                 gpunn__attr_is_sized(b->model->tensors[id]);
    plan->sized = (gpunn_attributes *)gpunn__calloc(b->model->dev, (size_t)(count + 1) * sizeof *plan->sized);
    if (plan->sized == NULL) return GPUNN_ERR_MEMORY;
    plan->sized_count = count + 1;
    for (int id = 0, at = 0; id < plan->tensor_count; id++) {
        const gpunn_tensor *t = b->model->tensors[id];
        bool                varies = gpunn__any_sized(t->rank, t->dim);
        if (!b->needed[id] || t->kind != GPUNN__VALUE) continue;
        for (int i = 0; i < t->input_count; i++)
            varies = varies || (t->inputs[i] && gpunn__any_sized(t->inputs[i]->rank, t->inputs[i]->dim));
        if (gpunn__attr_is_sized(t)) {
            plan->tensors[id].attr = &plan->sized[at++];
            gpunn__size_attr(b, t, plan->tensors[id].attr);
        }
        if (!varies && plan->tensors[id].attr == NULL) continue;
        gpunn_status status = gpunn__check_sizes(b, t,
                                                 plan->tensors[id].attr ? plan->tensors[id].attr : &t->attr);
        if (status != GPUNN_OK) return status;
    }
    return GPUNN_OK;
}

/* Fails if a state is smaller than the part that this plan assigns to it, of a size that varies. */
static GPUNN__STATUS gpunn__check_states(const gpunn__builder *b)
{
    for (int id = 0; id < b->plan->tensor_count; id++) {
        const gpunn_tensor *t = b->model->tensors[id];
        const int           axis = t->attr.axis;
        if (!b->needed[id] || t->op != GPUNN_OP_ASSIGN || t->inputs[2] == NULL) continue;
        const int64_t rows = gpunn__dim(b->model, t->inputs[1]->dim[axis], b->plan->batch);
        if (rows > t->dim[axis])
            return gpunn__fail(b->model->dev, GPUNN_ERR_SHAPE,
                               "the state '%s' has %lld places along axis %d, but this run assigns %lld; "
                               "create it larger, or its layer with a larger .capacity",
                               gpunn__state_of(b->model->tensors[id])->name, (long long)t->dim[axis], axis,
                               (long long)rows);
    }
    return GPUNN_OK;
}

/* Copies of indices that no step reads are not made. */
static void gpunn__drop_expanded(gpunn__builder *b)
{
    bool *read = b->scratch;
    memset(read, 0, (size_t)b->plan->tensor_count * sizeof *read);
    for (int id = b->plan->tensor_count - 1; id >= 0; id--) {
        const gpunn_tensor *t = b->model->tensors[id];
        if (t->op == GPUNN_OP_EXPAND && t->dtype != GPUNN_F32 && !gpunn__is_visible(b->plan, t))
            b->needed[id] = b->needed[id] && read[id];
        for (int i = 0; b->needed[id] && i < t->input_count; i++)
            if (t->inputs[i] && (b->tensors[id].fused >= 0 || gpunn__source(t, i) == t->inputs[i]))
                read[t->inputs[i]->id] = true;
    }
}

static gpunn__contents gpunn__contents_of(const gpunn_model *model)
{
    gpunn__contents has;
    memset(&has, 0, sizeof has);
    for (int id = 0; id < model->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        has.keeps = has.keeps || t->keep;
        has.retains = has.retains || t->retain_grad;
        has.user_memory = has.user_memory || t->user_memory[0].data || t->user_memory[1].data;
        has.assigns = has.assigns || t->op == GPUNN_OP_ASSIGN;
        has.convolutions = has.convolutions || gpunn__op_is(t->op, GPUNN__CONVOLUTION) ||
                           t->op == GPUNN_OP_QUANTIZED_CONV2D;
        has.integers = has.integers || gpunn__op_is(t->op, GPUNN__INTEGER);
        has.attention = has.attention || t->op == GPUNN_OP_ATTENTION;
        has.expands = has.expands || t->op == GPUNN_OP_EXPAND;
    }
    return has;
}

/* Fails if a training plan contains an op of 8-bit numbers. */
static GPUNN__STATUS gpunn__check_integers(const gpunn__builder *b)
{
    for (int id = 0; id < b->plan->tensor_count; id++) {
        const gpunn_tensor *t = b->model->tensors[id];
        if (b->needed[id] && gpunn__op_is(t->op, GPUNN__INTEGER))
            return gpunn__fail(b->model->dev, GPUNN_ERR_UNSUPPORTED,
                               "%s '%s' computes with 8-bit numbers, which have no gradient; train the model "
                               "of floats and quantise it afterwards",
                               gpunn_op_name(t->op), gpunn__called(t));
    }
    return GPUNN_OK;
}

/* Operands of t, one bit each, that the backend packs once for all runs. */
static int gpunn__packed_operands(const gpunn_tensor *t)
{
    if (gpunn__op_is(t->op, GPUNN__CONVOLUTION)) return 2;
    return gpunn__op_is(t->op, GPUNN__INTEGER) && t->input_count == 4 ? 14 : 0;
}

/* Notes which values vary between runs, and whether one of them is a weight that the backend packs. */
static void gpunn__mark_varying(gpunn__builder *b)
{
    for (int id = 0; id < b->plan->tensor_count; id++) {
        const gpunn_tensor *t = b->model->tensors[id];
        const int           packed = gpunn__packed_operands(t);
        bool                varies = t->kind == GPUNN__INPUT || t->state || t->attr.random_stream ||
                      (t->kind == GPUNN__VALUE && t->input_count == 0);
        for (int i = 0; i < t->input_count; i++) {
            if (t->inputs[i] == NULL || !b->tensors[t->inputs[i]->id].varies) continue;
            varies = true;
            b->plan->packs_anew = b->plan->packs_anew || (b->needed[id] && i < 4 && packed >> i & 1);
        }
        b->tensors[id].varies = varies;
    }
}

/* Lists the inputs among the needed tensors, and reserves an upper bound of steps. */
static GPUNN__STATUS gpunn__reserve_steps(gpunn__builder *b)
{
    const gpunn_model *model = b->model;
    gpunn__plan       *plan = b->plan;
    int                values = 0, copies = 0; /* copies: of operands, and of gradients on their way back */
    for (int id = 0; id < plan->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        if (!b->needed[id]) continue;
        copies += model->precision == GPUNN_PRECISION_F32 ? gpunn__has_layouts(t) : 2 + t->input_count;
        copies += ((t->user_memory[0].data != NULL) + (t->user_memory[1].data != NULL)) << t->doubles;
        if (t->kind == GPUNN__INPUT) plan->inputs[plan->input_count++] = id;
        values += t->kind == GPUNN__VALUE;
        if (gpunn__count(t, plan->batch) < 0)
            return gpunn__fail(model->dev, GPUNN_ERR_SHAPE,
                               "batch %lld makes '%s' of op %s larger than any memory; use a smaller batch",
                               (long long)plan->batch, t->name ? t->name : "", gpunn_op_name(t->op));
    }
    const bool repeats = model->parts || plan->pass_count > 1;
    const int  forward = values + copies, again = repeats ? forward : 0,
              pass = plan->training ? values + again : 0;
    const int capacity = forward + plan->pass_count * (pass + 1) + (plan->seeded ? plan->output_count : 0);
    plan->steps = (gpunn_step *)gpunn__realloc(model->dev, NULL, 0, (size_t)capacity * sizeof *plan->steps);
    if (plan->steps == NULL) return GPUNN_ERR_MEMORY;
    plan->step_capacity = capacity;
    b->nodes = (int *)gpunn__realloc(model->dev, NULL, 0, (size_t)capacity * sizeof *b->nodes);
    return b->nodes ? GPUNN_OK : GPUNN_ERR_MEMORY;
}

static GPUNN__STATUS gpunn__plan_fill(gpunn__builder *b, gpunn_tensor *const *outputs)
{
    gpunn_model *model = b->model;
    gpunn__plan *plan = b->plan;
    for (int i = 0; i < plan->output_count; i++) {
        plan->outputs[i] = outputs[i];
        plan->tensors[outputs[i]->id].is_output = true;
        b->needed[outputs[i]->id] = true;
    }
    gpunn__mark_operands(model, b->needed);
    b->has = gpunn__contents_of(model);
    if (plan->training && b->has.keeps) gpunn__mark_kept(model, b->needed, b->scratch);
    if (b->has.assigns) gpunn__mark_assigns(model, plan->training, b->needed, b->scratch);
    gpunn_status status = plan->size_count ? gpunn__resolve_sizes(b) : GPUNN_OK;
    if (status == GPUNN_OK && b->has.assigns) status = gpunn__check_states(b);
    if (status == GPUNN_OK) status = gpunn__reserve_steps(b);
    if (status != GPUNN_OK) return status;
    for (int axis = 0; axis < GPUNN_MAX_RANK; axis++) plan->attr[2].order[axis] = axis;
    gpunn__find_storage(model);
    const gpunn_status storage = gpunn__check_storage(b);
    if (storage != GPUNN_OK) return storage;
    if (plan->training && b->has.integers && (status = gpunn__check_integers(b)) != GPUNN_OK) return status;
    gpunn__list_readers(b);
    gpunn__mark_storage(b);
    if (!plan->training && (b->has.convolutions || b->has.integers)) gpunn__mark_varying(b);
    gpunn__mark_roots(b);
    const bool gradients = plan->training && !plan->forward_only;
    if (gradients) gpunn__mark_gradients(b);
    if (gradients && model->has_sparse && !gpunn__list_sparse(b)) return GPUNN_ERR_MEMORY;
    if (plan->pass_count == 1) gpunn__mark_fused(b);
    if (b->has.expands) gpunn__drop_expanded(b);
    if (!gpunn__mark_order(b)) return GPUNN_ERR_MEMORY;
    gpunn__mark_chains(b);
    for (int id = 0; id < plan->tensor_count && gradients && !plan->seeded; id++) /* losses are F32 */
        for (int i = 0; i < plan->pass_count; i++)
            if (plan->tensors[id].root == plan->tensors[outputs[i]->id].root)
                plan->tensors[id].storage = model->tensors[id]->dtype;
    if (gradients) gpunn__mark_activated(b);
    if (b->has.attention) gpunn__mark_parts(b);
    if (gradients) gpunn__list_contributions(b);
    if (!gpunn__forward_steps(b)) return GPUNN_ERR_MEMORY;
    for (int i = 0; i < plan->pass_count; i++) {
        gpunn__begin_pass(b, i);
        if (gradients && (!gpunn__backward_steps(b) || !gpunn__place_in_user_memory(b, true)))
            return GPUNN_ERR_MEMORY;
        if (i == 0 && b->has.assigns && !gpunn__late_steps(b)) return GPUNN_ERR_MEMORY;
        gpunn__end_pass(b);
    }
    if (!gpunn__join_strips(b)) return GPUNN_ERR_MEMORY;
    gpunn__overlay_steps(plan);
    status = gpunn__prepare_steps(b);
    return status == GPUNN_OK ? gpunn__assign_offsets(model->dev, plan) : status;
}

/* Tries once to make a plan. Returns NULL on failure, or with *again set if a fused group was rejected. Frees
 * everything it made in both cases. */
static gpunn__plan *gpunn__plan_try(gpunn_model *model, const gpunn__request *request, int64_t batch,
                                    int *rejected, bool *again)
{
    gpunn_device *dev = model->dev;
    gpunn__plan  *plan = (gpunn__plan *)gpunn__calloc(dev, sizeof *plan);
    *again = false;
    if (plan == NULL) return NULL;
    plan->output_count = request->output_count;
    plan->training = request->training;
    plan->seeded = request->seeded;
    plan->forward_only = request->forward_only;
    plan->pass_count = request->training && !request->seeded && !request->forward_only ? request->output_count
                                                                                       : 1;
    plan->evaluates = request->evaluates;
    plan->scope = gpunn__scope(request);
    plan->batch = batch;
    plan->tensor_count = model->tensor_count;
    plan->size_count = model->size_count;
    gpunn__builder builder;
    memset(&builder, 0, sizeof builder);
    builder.model = model;
    builder.plan = plan;
    builder.request = request;
    builder.rejected = rejected;
    size_t scratch_bytes = gpunn__builder_tables(&builder, model->tensor_count, NULL);
    plan->table_bytes = gpunn__plan_tables(plan, NULL);
    char *tables = (char *)gpunn__calloc(dev, plan->table_bytes),
         *scratch = (char *)gpunn__calloc(dev, scratch_bytes);
    gpunn_status status = GPUNN_ERR_MEMORY;
    if (tables) (void)gpunn__plan_tables(plan, tables);
    if (tables && scratch) {
        (void)gpunn__builder_tables(&builder, model->tensor_count, scratch);
        status = gpunn__plan_fill(&builder, request->outputs);
    }
    gpunn__free(dev, scratch, scratch_bytes);
    gpunn__free(dev, builder.nodes, builder.nodes ? (size_t)plan->step_capacity * sizeof *builder.nodes : 0);
    *again = builder.again;
    if (status == GPUNN_OK) return plan;
    gpunn__plan_free(dev, plan);
    return NULL;
}

GPUNN__INTERNAL bool gpunn__may_train(const gpunn_model *model, const char *what)
{
    if (model->inference)
        (void)gpunn__fail(
            model->dev, GPUNN_ERR_STATE,
            "%s: the model was created with .inference = true, so it has no gradients; create it without",
            what);
    else if (gpunn__is_blocks(model->storage) && !model->has_base)
        (void)gpunn__fail(model->dev, GPUNN_ERR_STATE,
                          "%s: the model was created with .weights, but %s is not trained; add adapters with "
                          "gpunn_lora, or leave .weights out",
                          what, gpunn_dtype_name(model->storage));
    else
        return true;
    return false;
}

GPUNN__INTERNAL gpunn__plan *gpunn__plan_make(gpunn_model *model, const gpunn__request *request,
                                              int64_t batch)
{
    size_t bytes = (size_t)model->tensor_count * sizeof(int);
    if (request->training && !gpunn__may_train(model, "a training step")) return NULL;
    int         *rejected = (int *)gpunn__calloc(model->dev, bytes);
    bool         again = rejected != NULL;
    gpunn__plan *plan = NULL;
    while (again) plan = gpunn__plan_try(model, request, batch, rejected, &again);
    gpunn__free(model->dev, rejected, bytes);
    return plan;
}

/* ---- memory of a model --------------------------------------------------------------------------------- */

GPUNN__INTERNAL float *gpunn__loss_gradient(const gpunn_model *model)
{
    return model->weights + (model->precision == GPUNN_PRECISION_F16 && model->dev->info.half);
}

/* Whether t has a place among the model's gradients. */
static bool gpunn__has_place(const gpunn_tensor *t)
{
    return t->kind == GPUNN__PARAMETER && !t->sparse && !t->base;
}

GPUNN__INTERNAL gpunn__layout gpunn__lay_out(gpunn_model *model, bool apply)
{
    gpunn__layout at = {model->weight_count, model->wide_count, model->gradient_count, model->sparse_count};
    if (at.weight_count == 0) at.weight_count = at.wide_count = GPUNN__WEIGHT_ALIGN;
    gpunn__find_storage(model);
    for (int pass = 0; pass < GPUNN__WEIGHT_RANGES; pass++)
        for (int id = model->laid_out; id < model->tensor_count; id++) {
            gpunn_tensor *t = model->tensors[id];
            if (pass != gpunn__weight_range(t) || t->offset >= 0) continue;
            const int64_t floats = gpunn__aligned(gpunn__floats_of(t));
            if (apply) {
                t->offset = at.weight_count;
                t->gradient_offset = at.weight_count - at.sparse_count;
            }
            at.weight_count += floats;
            if (pass != GPUNN__STORAGE_RANGE) at.wide_count = at.weight_count;
            if (gpunn__has_place(t))
                at.gradient_count = at.weight_count - at.sparse_count;
            else
                at.sparse_count += floats;
        }
    return at;
}

GPUNN__INTERNAL int gpunn__by_offset(const void *a, const void *b)
{
    int64_t x = (*(gpunn_tensor *const *)a)->offset, y = (*(gpunn_tensor *const *)b)->offset;
    return (x > y) - (x < y);
}

GPUNN__INTERNAL void gpunn__place_gradients(gpunn_model *model, gpunn_tensor **sorted)
{
    memcpy(sorted, model->tensors, (size_t)model->tensor_count * sizeof *sorted);
    qsort(sorted, (size_t)model->tensor_count, sizeof *sorted, gpunn__by_offset);
    model->gradient_count = model->sparse_count = 0;
    for (int i = 0; i < model->tensor_count; i++) {
        gpunn_tensor *t = sorted[i];
        t->grad_reached = false;
        if (t->offset < 0) continue;
        const int64_t floats = gpunn__aligned(gpunn__floats_of(t));
        t->gradient_offset = t->offset - model->sparse_count;
        if (gpunn__has_place(t))
            model->gradient_count = t->gradient_offset + floats;
        else
            model->sparse_count += floats;
    }
    gpunn__device_free(model->dev, model->gradients, (size_t)model->gradient_capacity * sizeof(float));
    model->gradients = NULL;
    model->gradient_capacity = 0;
    gpunn__invalidate(model);
}

GPUNN__INTERNAL float *gpunn__weights(const gpunn_tensor *t)
{
    return t->user_memory[0].data ? (float *)t->user_memory[0].data : t->model->weights + t->offset;
}

static bool gpunn__is_user_owned_weight(const gpunn_tensor *t)
{
    return t->user_memory[0].data && !gpunn__has_bound_blocks(t) &&
           (t->kind == GPUNN__PARAMETER || t->kind == GPUNN__BUFFER);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__copy_user_weights(gpunn_model *model, bool back)
{
    gpunn_device *dev = model->dev;
    for (int id = 0; id < model->tensor_count && model->user_weights; id++) {
        const gpunn_tensor *t = model->tensors[id];
        if (!gpunn__is_user_owned_weight(t)) continue;
        float       *ours = model->weights + t->offset, *user_memory = (float *)t->user_memory[0].data;
        gpunn_status status = dev->backend->convert(dev->context, back ? user_memory : ours, GPUNN_F32,
                                                    back ? ours : user_memory, GPUNN_F32, gpunn__count(t, 1));
        if (status != GPUNN_OK) return gpunn__backend_fail(dev, "copying bound weights", status);
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__round_weights(gpunn_model *model)
{
    gpunn_device        *dev = model->dev;
    const gpunn_backend *backend = dev->backend;
    const gpunn_dtype    dtype = gpunn__half_of(model);
    gpunn_status         status = GPUNN_OK;
    if (model->half_stale)
        status = backend->convert(dev->context, model->half, dtype, model->weights, GPUNN_F32,
                                  model->wide_count);
    for (int id = 0; id < model->tensor_count && model->user_weights && status == GPUNN_OK; id++) {
        const gpunn_tensor *t = model->tensors[id];
        if (gpunn__is_user_owned_weight(t))
            status = backend->convert(dev->context, (char *)model->half + t->offset * 2, dtype,
                                      t->user_memory[0].data, GPUNN_F32, gpunn__count(t, 1));
    }
    if (status != GPUNN_OK) return gpunn__backend_fail(dev, "rounding weights to 16 bits", status);
    model->half_stale = false;
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__upload_weights(gpunn_model *model, void *to, const void *host,
                                                    size_t bytes)
{
    gpunn_status status = model->dev->backend->upload(model->dev->context, to, host, bytes);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(model->dev, "writing weights", status);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__upload_part(const gpunn_tensor *t, float *to, int64_t at, float *values,
                                                 int64_t count)
{
    const gpunn_dtype kept = gpunn__weight_dtype(t);
    if (t->storage) gpunn__convert_values(kept, values, values, count);
    return gpunn__upload_weights(t->model, (char *)to + gpunn__block_bytes(kept, at), values,
                                 gpunn__block_bytes(kept, count));
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__fill_tensor(const gpunn_tensor *t, float *to, float *staging)
{
    gpunn_status status = GPUNN_OK;
    int64_t      count = gpunn__count(t, 1);
    if (t->model->dev->backend->draw && !t->storage) {
        status = gpunn__draw_on_device(t, to);
        return status == GPUNN_OK ? status : gpunn__backend_fail(t->model->dev, "drawing weights", status);
    }
    for (int64_t at = 0, part; at < count && status == GPUNN_OK; at += part) {
        part = count - at < GPUNN__STAGING ? count - at : (int64_t)GPUNN__STAGING;
        gpunn__draw_tensor(t, &t->init, at, part, staging);
        status = gpunn__upload_part(t, to, at, staging, part);
    }
    return status;
}

/* Fills newly allocated weights: first with the old weights, then with the constants and, with draw, the
 * initial values of new tensors. */
static GPUNN__STATUS gpunn__fill_weights(gpunn_model *model, float *fresh, bool draw, float *staging)
{
    gpunn_device *dev = model->dev;
    gpunn_status  status = GPUNN_OK;
    for (int64_t done = 0; done < model->weight_count && status == GPUNN_OK; done += GPUNN__STAGING) {
        int64_t part = model->weight_count - done < GPUNN__STAGING ? model->weight_count - done
                                                                   : (int64_t)GPUNN__STAGING;
        status = dev->backend->download(dev->context, staging, model->weights + done,
                                        (size_t)part * sizeof(float));
        if (status != GPUNN_OK) return gpunn__backend_fail(dev, "reading weights", status);
        status = gpunn__upload_weights(model, fresh + done, staging, (size_t)part * sizeof(float));
    }
    if (status == GPUNN_OK && model->weight_count == 0) {
        staging[0] = 1;
        status = gpunn__upload_weights(model, fresh, staging, sizeof(float));
    }
    for (int id = model->laid_out; id < model->tensor_count && status == GPUNN_OK; id++) {
        const gpunn_tensor *t = model->tensors[id];
        if (t->offset < model->weight_count || gpunn__has_bound_blocks(t))
            continue; /* no weight, or not a new one */
        if (t->constant)
            status = gpunn__upload_weights(model, fresh + t->offset, t->constant, gpunn_tensor_bytes(t));
        else if (draw)
            status = gpunn__fill_tensor(t, fresh + t->offset, staging);
    }
    return status;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__commit_as(gpunn_model *model, bool draw)
{
    if (model->laid_out == model->tensor_count) return GPUNN_OK;
    gpunn_device *dev = model->dev;
    int64_t       count = gpunn__lay_out(model, false).weight_count;
    if (count == model->weight_count) {
        model->laid_out = model->tensor_count;
        return GPUNN_OK;
    }
    gpunn__layout layout = {0, 0, 0, 0};
    float        *staging = (float *)gpunn__realloc(dev, NULL, 0, GPUNN__STAGING * sizeof(float));
    if (staging == NULL) return GPUNN_ERR_MEMORY;
    float       *fresh = (float *)gpunn__device_alloc(dev, (size_t)count * sizeof(float));
    gpunn_status status = fresh ? dev->backend->fill(dev->context, fresh, 0, (size_t)count * sizeof(float))
                                : dev->error.status;
    if (fresh && status != GPUNN_OK) status = gpunn__backend_fail(dev, "clearing weights", status);
    if (status == GPUNN_OK) {
        layout = gpunn__lay_out(model, true);
        status = gpunn__fill_weights(model, fresh, draw, staging);
    }
    gpunn__free(dev, staging, GPUNN__STAGING * sizeof(float));
    if (status != GPUNN_OK) {
        for (int id = model->laid_out; id < model->tensor_count; id++)
            if (model->tensors[id]->offset >= model->weight_count) model->tensors[id]->offset = -1;
        gpunn__device_free(dev, fresh, (size_t)count * sizeof(float));
        return status;
    }
    gpunn__device_free(dev, model->weights, (size_t)model->weight_capacity * sizeof(float));
    model->weights = fresh;
    model->weight_count = model->weight_capacity = count;
    model->wide_count = layout.wide_count;
    model->gradient_count = layout.gradient_count;
    model->sparse_count = layout.sparse_count;
    model->laid_out = model->tensor_count;
    model->generation++;
    GPUNN__WEIGHTS_CHANGED(model);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__commit(gpunn_model *model)
{
    return gpunn__commit_as(model, true);
}

GPUNN__INTERNAL void gpunn__uncommit(gpunn_model *model)
{
    gpunn__device_free(model->dev, model->weights, (size_t)model->weight_capacity * sizeof(float));
    model->weights = NULL;
    model->weight_count = model->weight_capacity = model->wide_count = model->gradient_count = 0;
    model->sparse_count = 0;
    model->laid_out = 0;
    model->generation++;
    for (int id = 0; id < model->tensor_count; id++) model->tensors[id]->offset = -1;
}

/* ---- counts of runs replayed by the program ------------------------------------------------------------ */

GPUNN__INTERNAL GPUNN__STATUS gpunn__counts_sync(gpunn_device *dev, gpunn_count *counts, uint64_t *host,
                                                 int count, bool with_replays)
{
    const size_t bytes = (size_t)count * sizeof *counts;
    gpunn_count *list = (gpunn_count *)gpunn__calloc(dev, bytes);
    if (list == NULL) return GPUNN_ERR_MEMORY;
    gpunn_status status = with_replays ? dev->backend->download(dev->context, list, counts, bytes) : GPUNN_OK;
    for (int i = 0; i < count; i++) list[i].host = list[i].now = host[i] + (list[i].now - list[i].host);
    if (status == GPUNN_OK) status = dev->backend->upload(dev->context, counts, list, bytes);
    for (int i = 0; i < count && status == GPUNN_OK; i++) host[i] = list[i].now;
    gpunn__free(dev, list, bytes);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, "counting steps", status);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__counts_prepare(gpunn_device *dev, gpunn_count **counts, int count)
{
    const size_t bytes = (size_t)count * sizeof **counts;
    if (*counts || dev->args.stream == NULL || dev->backend->capturing == NULL) return GPUNN_OK;
    *counts = (gpunn_count *)gpunn__device_alloc(dev, bytes);
    if (*counts == NULL) return dev->error.status;
    gpunn_status status = dev->backend->fill(dev->context, *counts, 0, bytes);
    if (status == GPUNN_OK) return GPUNN_OK;
    gpunn__device_free(dev, *counts, bytes);
    *counts = NULL;
    return gpunn__backend_fail(dev, "counting steps", status);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__keys_sync(gpunn_model *model, bool with_replays)
{
    gpunn_run_state *state = &model->state;
    uint64_t         keys[GPUNN_RUN_COUNTS] = {state->seed, state->step, state->draw};
    if (state->counts == NULL) return GPUNN_OK;
    gpunn_status status = gpunn__counts_sync(model->dev, state->counts, keys, GPUNN_RUN_COUNTS, with_replays);
    state->step = keys[GPUNN_COUNT_STEP];
    state->draw = keys[GPUNN_COUNT_DRAW];
    return status;
}

/* Allocates gradients for all parameters and zeroes them. Previous gradients
 * are lost when parameters have been added. */
static GPUNN__STATUS gpunn__commit_gradients(gpunn_model *model)
{
    gpunn_device *dev = model->dev;
    if (model->gradient_capacity >= model->gradient_count) return GPUNN_OK;
    gpunn__device_free(dev, model->gradients, (size_t)model->gradient_capacity * sizeof(float));
    model->gradient_capacity = 0;
    model->generation++;
    size_t bytes = (size_t)model->gradient_count * sizeof(float);
    for (int id = 0; id < model->tensor_count; id++) model->tensors[id]->grad_reached = false;
    model->gradients = (float *)gpunn__device_alloc(dev, bytes);
    if (model->gradients == NULL) return dev->error.status;
    model->gradient_capacity = model->gradient_count;
    gpunn_status status = dev->backend->fill(dev->context, model->gradients, 0, bytes);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, "clearing gradients", status);
}

/* Allocates the 16-bit copy of the weights. */
static GPUNN__STATUS gpunn__commit_half(gpunn_model *model)
{
    gpunn_device *dev = model->dev;
    if (model->half_capacity >= model->wide_count) return GPUNN_OK;
    gpunn__device_free(dev, model->half, (size_t)model->half_capacity * 2);
    model->half_capacity = 0;
    model->generation++;
    model->half = gpunn__device_alloc(dev, (size_t)model->wide_count * 2);
    if (model->half == NULL) return dev->error.status;
    model->half_capacity = model->wide_count;
    model->half_stale = true;
    return GPUNN_OK;
}

GPUNN__INTERNAL void *gpunn__slot_memory(const gpunn_model *model, gpunn__plan *plan, int index)
{
    const gpunn__slot *slot = gpunn__slot_of(plan, index);
    return slot->user_memory ? slot->user_memory->data : (char *)model->arena + slot->offset;
}

/* Allocates memory for what a bound plan's training runs change in place, and uploads the list of it. */
static GPUNN__STATUS gpunn__plan_keep(gpunn_device *dev, gpunn__plan *plan)
{
    const size_t list_bytes = (size_t)plan->kept_count * sizeof *plan->kept;
    int64_t      floats;
    if (plan->kept_count == 0) return GPUNN_OK;
    if (plan->kept == NULL) plan->kept = (gpunn_kept *)gpunn__realloc(dev, NULL, 0, list_bytes);
    if (plan->kept == NULL) return GPUNN_ERR_MEMORY;
    if (plan->kept_memory == NULL) plan->kept_memory = (float *)gpunn__device_alloc(dev, plan->kept_bytes);
    if (plan->kept_memory == NULL) return dev->error.status;
    (void)gpunn__list_changes(plan, plan->kept, plan->kept_memory, &floats);
    gpunn_status status = dev->backend->upload(dev->context, plan->kept_memory + floats, plan->kept,
                                               list_bytes);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, "listing what a step changes", status);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__plan_bind(gpunn_model *model, gpunn__plan *plan)
{
    gpunn_device *dev = model->dev;
    gpunn_status  status = gpunn__commit(model);
    if (status == GPUNN_OK && plan->training && !plan->forward_only) status = gpunn__commit_gradients(model);
    if (status == GPUNN_OK && plan->half) status = gpunn__commit_half(model);
    if (status == GPUNN_OK) status = gpunn__commit_sparse(model, plan);
    if (status != GPUNN_OK) return status;
    if (model->arena_bytes < plan->arena_bytes) {
        gpunn__device_free(dev, model->arena, model->arena_bytes);
        model->arena_bytes = 0;
        model->last = NULL;
        model->generation++;
        model->arena = gpunn__device_alloc(dev, plan->arena_bytes);
        if (model->arena == NULL) return dev->error.status;
        model->arena_bytes = plan->arena_bytes;
    }
    for (int i = 0; i < plan->step_count; i++) {
        gpunn_step *step = &plan->steps[i];
        if (step->cache_bytes && step->cache == NULL &&
            (step->cache = gpunn__device_alloc(dev, step->cache_bytes)) == NULL)
            return dev->error.status;
    }
    for (int i = 0; i < plan->slot_count; i++) {
        const gpunn__user_memory *user_memory = plan->slots[i].user_memory;
        if (user_memory && user_memory->data && user_memory->bytes < plan->slots[i].bytes)
            return gpunn__fail(dev, GPUNN_ERR_SHAPE,
                               "the run writes %zu bytes, but a value or gradient is bound to memory of %zu; "
                               "bind it to as many",
                               plan->slots[i].bytes, user_memory->bytes);
    }
    plan->signature = model->generation;
    for (int i = 0; i < plan->binding_count; i++) {
        const gpunn__binding *binding = &plan->bindings[i];
        const gpunn_tensor   *t = model->tensors[binding->place == GPUNN__IN_SLOT ? 0 : binding->index];
        if (binding->place == GPUNN__IN_SLOT)
            *binding->pointer = gpunn__slot_memory(model, plan, binding->index);
        else if (binding->place == GPUNN__IN_HALF)
            *binding->pointer = (char *)model->half + t->offset * 2;
        else if (binding->place == GPUNN__IN_GRADIENT)
            *binding->pointer = gpunn__gradient_of(t);
        else if (binding->place == GPUNN__IN_ONE)
            *binding->pointer = gpunn__loss_gradient(model);
        else
            *binding->pointer = t->kind == GPUNN__INPUT ? t->data : (void *)gpunn__weights(t);
        /* FNV-1a */
        plan->signature = (plan->signature ^ (uint64_t)(uintptr_t)*binding->pointer) *
                          UINT64_C(0x100000001B3);
    }
    status = gpunn__plan_keep(dev, plan);
    if (status != GPUNN_OK) return status;
    plan->generation = model->generation;
    plan->user_memory_version = model->user_memory_version;
    return GPUNN_OK;
}
