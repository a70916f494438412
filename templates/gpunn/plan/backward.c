#include "plan/backward.h"
#include "base/errors.h"
#include "base/tables.h"
#include "base/shapes.h"
#include "graph/nodes.h"
#include "plan/sparse.h"

/* Adds the place of t to the lists of the gradients to which its backward step, including the nodes merged
 * into it, contributes. */
static void gpunn__list_step(gpunn__builder *b, const gpunn_tensor *t, bool counts)
{
    int  head = b->tensors[t->id].head;
    bool normed = b->model->tensors[head]->op == GPUNN_OP_BATCH_NORM;
    for (int id = normed ? head : t->id; id >= 0; id = id == t->id ? -1 : b->tensors[id].next) {
        const gpunn_tensor *member = b->model->tensors[id];
        for (int i = 0; i < member->input_count; i++)
            if (gpunn__passes_gradient(b, member, i))
                gpunn__list_add(&b->contributions, b->plan->tensors[member->inputs[i]->id].gradient_root,
                                b->tensors[t->id].place, counts);
    }
}

/* gpunn__list_step for a fused group. */
static void gpunn__list_fused(gpunn__builder *b, int index, int place, bool counts)
{
    const gpunn__fused *fused = &b->fused[index];
    for (int i = 0; i < fused->kernel->external_count; i++) {
        const gpunn_tensor *external = gpunn__member(b, fused, i);
        if (gpunn__fused_passes(b, fused, external))
            gpunn__list_add(&b->contributions, b->plan->tensors[external->id].gradient_root, place, counts);
    }
}

GPUNN__INTERNAL void gpunn__list_contributions(gpunn__builder *b)
{
    memset(b->contributions.end, 0, (size_t)b->plan->tensor_count * sizeof(int));
    for (int pass = 0; pass < 2; pass++) {
        for (int place = 0; place < b->place_count; place++) {
            const gpunn_tensor          *t = b->model->tensors[b->order[place]];
            const gpunn__builder_tensor *own = &b->tensors[t->id];
            if (own->fused >= 0)
                gpunn__list_fused(b, own->fused, place, pass == 0);
            else if (own->feeds_loss && own->wants && !own->normed && !gpunn__is_alias(b->plan, t))
                gpunn__list_step(b, t, pass == 0);
        }
        if (pass == 0) gpunn__open_lists(&b->contributions, b->plan->tensor_count);
    }
}

/* The last place before `before` where a step adds to the gradient of root, or where a fused group
 * overwrites it while reading it. -1: none. */
static int gpunn__next_contribution(const gpunn__builder *b, int root, int before)
{
    const int *places = b->contributions.items;
    const int  begin = gpunn__list_begin(&b->contributions, root);
    int        low = begin, high = b->contributions.end[root];
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (places[middle] < before)
            low = middle + 1;
        else
            high = middle;
    }
    if (low > begin && places[low - 1] > b->tensors[root].place) return places[low - 1];
    int  own = b->tensors[root].fused;
    bool changes = own >= 0 && gpunn__gradient_operand(b, &b->fused[own], root, true) != NULL;
    return changes ? b->tensors[root].place : -1;
}

enum { GPUNN__MOST_SHARING = 8 };

/* Lists the gradient roots before `place` whose gradients have the memory of from's, at most
 * GPUNN__MOST_SHARING + 1. Those behind `place` have been read, so they leave the ring. Returns their
 * number. */
static int gpunn__list_sharing(gpunn__builder *b, int from, int place, int *members)
{
    int count = 0, kept = from, id = from;
    do {
        if (b->tensors[id].place < place) members[count++] = id;
        if (id == from || b->tensors[id].place <= place)
            kept = id;
        else
            b->tensors[kept].sharing = b->tensors[id].sharing;
        id = b->tensors[id].sharing;
    } while (id != from && count <= GPUNN__MOST_SHARING);
    return count;
}

/* Lets the gradient of `root` begin as that of `from`, in the same memory. */
static void gpunn__share_gradient(gpunn__builder *b, int root, int from)
{
    b->plan->tensors[root].gradient_slot = b->plan->tensors[from].gradient_slot;
    b->tensors[root].sharing = b->tensors[from].sharing;
    b->tensors[from].sharing = root;
    b->tensors[root].writes++;
}

/* Whether the target's gradient, which equals the node's gradient, can share its memory. Every tensor that
 * shares the memory must have read it, in its own node's step, before any of them is added to. other: a
 * tensor that may share it too, or NULL. */
static bool gpunn__shares_memory(gpunn__builder *b, const gpunn_tensor *node, const gpunn_tensor *target,
                                 const gpunn_tensor *other)
{
    const gpunn__plan *plan = b->plan;
    const int          place = b->tensors[node->id].place, from = plan->tensors[node->id].gradient_root;
    const int          root = plan->tensors[target->id].gradient_root;
    const int more = other && b->tensors[other->id].wants ? plan->tensors[other->id].gradient_root : root;
    int       member[GPUNN__MOST_SHARING + 3];
    if (!gpunn__same_shape(node, target) || plan->tensors[from].gradient_slot < 0 ||
        plan->tensors[root].storage != plan->tensors[from].storage ||
        plan->tensors[root].channels_last != plan->tensors[from].channels_last ||
        b->model->tensors[root]->kind != GPUNN__VALUE || b->tensors[root].retained ||
        b->tensors[from].retained || b->tensors[root].writes > 0)
        return false;
    int count = gpunn__list_sharing(b, from, place, member);
    if (b->tensors[root].place < place) member[count++] = root;
    if (more != root && b->tensors[more].place < place &&
        plan->tensors[more].gradient_slot != plan->tensors[from].gradient_slot)
        member[count++] = more;
    if (count > GPUNN__MOST_SHARING) return false;
    for (int i = 0; i < count; i++) {
        int contribution = gpunn__next_contribution(b, member[i], place);
        for (int j = 0; j < count; j++)
            if (i != j && contribution >= b->tensors[member[j]].place) return false;
    }
    return true;
}

/* gpunn__shares_memory for an operand of an addition. */
static bool gpunn__shares_gradient(gpunn__builder *b, const gpunn_tensor *add, int operand)
{
    return add->inputs[0] != add->inputs[1] &&
           gpunn__shares_memory(b, add, add->inputs[operand], add->inputs[1 - operand]);
}

/* The residual of the batch norm chain that ends at `end`, or NULL. */
static const gpunn_tensor *gpunn__residual_of(const gpunn__builder *b, const gpunn_tensor *end)
{
    const gpunn_tensor *residual = NULL;
    for (int id = b->tensors[end->id].head; id != end->id; id = b->tensors[id].next) {
        const gpunn_tensor *member = b->model->tensors[b->tensors[id].next];
        if (member->op == GPUNN_OP_ADD) residual = member->inputs[member->inputs[0]->id == id];
    }
    return residual;
}

static bool gpunn__ends_norm(const gpunn__builder *b, const gpunn_tensor *t)
{
    return b->tensors[t->id].head != t->id &&
           b->model->tensors[b->tensors[t->id].head]->op == GPUNN_OP_BATCH_NORM;
}

/* Whether a convolution's contribution needs a slot of its own. cuDNN cannot accumulate into a gradient. If a
 * batch norm with a residual reads the gradient next, it adds the second part itself. */
static bool gpunn__is_second_part(const gpunn__builder *b, const gpunn_step *step, int i, int root)
{
    const gpunn_tensor *t = b->model->tensors[root];
    return gpunn__op_is(step->op, GPUNN__CONVOLUTION) && i == 0 && b->tensors[root].writes > 0 &&
           gpunn__ends_norm(b, t) && !b->tensors[root].retained && gpunn__residual_of(b, t);
}

static bool gpunn__write_gradient(gpunn__builder *b, gpunn_step *step, const gpunn_tensor *input, int i,
                                  int at)
{
    gpunn__plan *plan = b->plan;
    int          root = plan->tensors[input->id].gradient_root;
    bool         second = gpunn__is_second_part(b, step, i, root);
    int         *slot = second ? &b->tensors[root].more : &plan->tensors[root].gradient_slot;
    step->accumulate[i] = second ? b->tensors[root].more >= 0 : b->tensors[root].writes++ > 0;
    step->grad_in[i].dtype = plan->tensors[root].storage;
    step->grad_in[i].channels_last = plan->tensors[root].channels_last && gpunn__has_layouts(input);
    b->tensors[root].writer = i == 0 || step->op == GPUNN_OP_FUSION ? at : -1;
    if (b->model->tensors[root]->kind == GPUNN__PARAMETER) {
        if (b->model->tensors[root]->sparse && !gpunn__sparse_gradient(b, step, i, root)) return false;
        for (int id = root; !step->accumulate[i] && id >= 0; id = plan->tensors[id].beside) {
            plan->reached[plan->reached_count] = id;
            plan->first_write[plan->reached_count++] = &step->accumulate[i];
        }
        return gpunn__bind(b, &step->grad_in[i].data, GPUNN__IN_GRADIENT, root);
    }
    if (!step->accumulate[i]) {
        *slot = gpunn__new_slot(b, (size_t)step->grad_in[i].count * gpunn_dtype_size(step->grad_in[i].dtype),
                                at);
        if (*slot < 0) return false;
        if (b->tensors[root].retained) plan->slots[*slot].last = INT32_MAX;
    }
    return gpunn__use_slot(b, &step->grad_in[i].data, *slot, at);
}

/* The index of the gradient with this root that the step can also write in 16 bits, or -1. */
static int gpunn__half_gradient(const gpunn__builder *b, const gpunn_step *step, int root)
{
    if (gpunn__op_is(step->op, GPUNN__ROW_NORM)) return step->fused->half.data == NULL ? 0 : -1;
    if (step->op != GPUNN_OP_FUSION) return -1;
    const gpunn__fused *fused = &b->fused[b->tensors[gpunn__node_of(b, step)->id].fused];
    for (int i = 0; i < step->input_count; i++) {
        const gpunn_kernel_operand *operand = &fused->kernel->program[step->fusion->direction].operands[i];
        if (operand->role == GPUNN_KERNEL_GRADIENT && step->grad_in[i].data &&
            step->fusion->half[i] == NULL && operand->half == (unsigned char)gpunn__half_of(b->model) &&
            b->plan->tensors[gpunn__member(b, fused, operand->index)->id].gradient_root == root)
            return i;
    }
    return -1;
}

/* Lets the step that last wrote the gradient of an addition in F32 write it in 16 bits too, as an operand
 * stores it. Sets *slot, or -1 if that step cannot. Returns false if out of memory. */
static bool gpunn__write_half_gradient(gpunn__builder *b, const gpunn_tensor *add, int operand, int *slot)
{
    const gpunn__plan  *plan = b->plan;
    const gpunn_tensor *target = add->inputs[operand];
    int from = plan->tensors[add->id].gradient_root, to = plan->tensors[target->id].gradient_root,
        writer = b->tensors[from].writer;
    *slot = -1;
    if (add->op != GPUNN_OP_ADD || writer < 0 || b->tensors[to].writes > 0 ||
        plan->tensors[from].storage != GPUNN_F32 || plan->tensors[to].storage != gpunn__half_of(b->model) ||
        !gpunn__same_shape(add, target) || plan->tensors[from].channels_last ||
        plan->tensors[to].channels_last)
        return true;
    gpunn_step *step = &plan->steps[writer];
    int         i = gpunn__half_gradient(b, step, from);
    return i < 0 || (*slot = gpunn__write_half(b, step, i, &step->grad_in[i], writer)) >= 0;
}

/* Makes a slot for the gradient of a misplaced operand, in the step's channel order. -1: out of memory. */
static int gpunn__relaid_gradient(gpunn__builder *b, gpunn_step *step, const gpunn_tensor *t, int operand,
                                  int at)
{
    gpunn_value *value = &step->grad_in[operand];
    value->dtype = b->plan->tensors[b->plan->tensors[t->inputs[operand]->id].gradient_root].storage;
    value->channels_last = gpunn__wants_channels_last(b, t, operand);
    int slot = gpunn__new_slot(b, (size_t)value->count * gpunn_dtype_size(value->dtype), at);
    return slot >= 0 && gpunn__bind(b, &value->data, GPUNN__IN_SLOT, slot) ? slot : -1;
}

/* Makes a slot for a filter gradient that the last step copies to the parameter's gradient. */
static bool gpunn__wait_gradient(gpunn__builder *b, gpunn_step *step, const gpunn_tensor *t, int at)
{
    gpunn_value *value = &step->grad_in[1];
    if (b->plan->half) value->dtype = gpunn__half_of(b->model);
    value->channels_last = gpunn__has_layouts(t->inputs[1]);
    int slot = b->tensors[t->inputs[1]->id].gathered = gpunn__new_slot(
        b, (size_t)value->count * gpunn_dtype_size(value->dtype), at);
    return slot >= 0 && gpunn__bind(b, &value->data, GPUNN__IN_SLOT, slot);
}

/* Appends the last step, which copies filter gradients from their slots to the parameters' gradients. */
static bool gpunn__gather_filters(gpunn__builder *b)
{
    int         count = 0, i = 0, at = b->plan->step_count;
    gpunn_step *step = NULL;
    const int   tensors = b->plan->filters_last ? b->plan->tensor_count : 0;
    for (int id = 0; id < tensors; id++) count += b->tensors[id].gathered >= 0;
    for (int id = 0; id < tensors; id++) {
        const gpunn_tensor *w = b->model->tensors[id];
        if (b->tensors[id].gathered < 0) continue;
        if (step == NULL && (step = gpunn__filter_step(b, w, true, count)) == NULL) return false;
        gpunn__describe(b->plan, &step->in[i], w);
        step->grad_in[i] = step->in[i];
        if (b->plan->half) step->in[i].dtype = gpunn__half_of(b->model);
        step->in[i].channels_last = gpunn__has_layouts(w);
        if (!gpunn__use_slot(b, &step->in[i].data, b->tensors[id].gathered, at) ||
            !gpunn__write_gradient(b, step, w, i, at))
            return false;
        i++;
    }
    return true;
}

/* Appends the step that copies a gradient from `slot` to the gradient of an image. last: whether the one in
 * the slot has its channels last. */
static bool gpunn__relayout_back(gpunn__builder *b, const gpunn_tensor *image, int slot, bool last)
{
    int         at = b->plan->step_count;
    gpunn_step *step = gpunn__relayout_step(b, image, last, true);
    if (step == NULL) return false;
    gpunn__describe(b->plan, &step->grad_in[0], image);
    if (!gpunn__write_gradient(b, step, image, 0, at)) return false;
    step->grad_out = step->grad_in[0];
    gpunn__as_stored(&step->grad_in[0], !last);
    gpunn__as_stored(&step->grad_out, last);
    step->in[0] = step->grad_in[0];
    step->out = step->grad_out;
    step->in[0].data = step->out.data = NULL;
    return gpunn__use_slot(b, &step->grad_out.data, slot, at);
}

/* ---- the steps of a fused group, forward and backward -------------------------------------------------- */

/* Binds the gradient of a node, which its readers have written. */
static bool gpunn__read_gradient(gpunn__builder *b, const gpunn__fused *fused, gpunn_step *step, int i,
                                 int at)
{
    gpunn__plan                *plan = b->plan;
    const gpunn_kernel_operand *operand = &fused->kernel->program[step->fusion->direction].operands[i];
    const gpunn_tensor         *t = gpunn__member(b, fused, operand->index);
    int root = plan->tensors[t->id].gradient_root, slot = plan->tensors[root].gradient_slot;
    gpunn__describe(plan, &step->in[i], t);
    step->in[i].dtype = plan->tensors[root].storage;
    if (operand->written) b->tensors[root].writer = -1;
    if (slot < 0)
        return operand->written ? gpunn__reject_fused(b, fused)
                                : gpunn__bind(b, &step->in[i].data, GPUNN__IN_ONE, 0);
    return gpunn__use_slot(b, &step->in[i].data, slot, at);
}

/* The batch size that the fused group's kernel is called with. */
static int64_t gpunn__fused_batch(const gpunn__builder *b, const gpunn__fused *fused)
{
    const gpunn_kernel *kernel = fused->kernel;
    if (kernel->each == 0) return b->plan->batch;
    return gpunn__count(gpunn__member(b, fused, kernel->measured), b->plan->batch) / kernel->each;
}

static gpunn_dtype gpunn__kept_dtype(const gpunn__plan *plan, const gpunn_kernel_kept *kept)
{
    return plan->half || gpunn_dtype_size(kept->dtype) != 2 ? kept->dtype : GPUNN_F32;
}

static bool gpunn__fused_operand(gpunn__builder *b, gpunn__fused *fused, gpunn_step *step, int i, int at)
{
    gpunn__plan                *plan = b->plan;
    const gpunn_kernel         *kernel = fused->kernel;
    const gpunn_kernel_program *program = &kernel->program[step->fusion->direction];
    const gpunn_kernel_operand *operand = &program->operands[i];
    gpunn_value                *value = &step->in[i];
    if (operand->role == GPUNN_KERNEL_KEPT) {
        const gpunn_kernel_kept *kept = &kernel->kept[operand->index];
        value->dtype = gpunn__kept_dtype(plan, kept);
        value->rank = 1;
        value->count = value->dim[0] = kept->fixed + kept->batch * gpunn__fused_batch(b, fused);
        if (operand->read) return gpunn__use_slot(b, &value->data, fused->slot + operand->index, at);
        return gpunn__bind(b, &value->data, GPUNN__IN_SLOT, fused->slot + operand->index);
    }
    const gpunn_tensor *t = gpunn__member(b, fused, operand->index);
    bool                relays = gpunn__fused_relayouts(b, fused, t);
    if (operand->role == GPUNN_KERNEL_VALUE) {
        int root = plan->tensors[t->id].root;
        if (relays) {
            gpunn__describe(plan, value, t);
            value->dtype = plan->tensors[root].storage;
            value->channels_last = gpunn__fused_wants_channels_last(b, fused);
            return gpunn__use_slot(b, &value->data, b->tensors[t->id].transposed, at);
        }
        if (!operand->written || b->model->tensors[root]->kind != GPUNN__VALUE)
            return gpunn__read_value(b, value, t, at);
        gpunn__describe(plan, value, t);
        value->dtype = plan->tensors[root].storage;
        int slot = plan->tensors[root].value_slot = gpunn__new_slot(
            b, (size_t)value->count * gpunn_dtype_size(value->dtype), at);
        if (slot < 0 || !gpunn__bind(b, &value->data, GPUNN__IN_SLOT, slot)) return false;
        if (operand->half != (unsigned char)gpunn__half_of(b->model) ||
            !gpunn__wants_half(b, b->model->tensors[root]))
            return true;
        return (b->tensors[root].cast = gpunn__write_half(b, step, i, value, at)) >= 0;
    }
    if (operand->index < 0) return gpunn__read_gradient(b, fused, step, i, at);
    if (!gpunn__fused_passes(b, fused, t)) return true;
    gpunn__describe(plan, &step->grad_in[i], t);
    if (relays) {
        step->grad_in[i].dtype = plan->tensors[plan->tensors[t->id].gradient_root].storage;
        step->grad_in[i].channels_last = gpunn__fused_wants_channels_last(b, fused);
        int slot = gpunn__new_slot(
            b, (size_t)step->grad_in[i].count * gpunn_dtype_size(step->grad_in[i].dtype), at);
        return slot >= 0 && gpunn__bind(b, &step->grad_in[i].data, GPUNN__IN_SLOT, slot) &&
               gpunn__relayout_back(b, t, slot, gpunn__fused_wants_channels_last(b, fused));
    }
    if (operand->shares >= 0) {
        const gpunn_tensor *node = gpunn__member(b, fused, program->operands[operand->shares].index);
        int                 root = plan->tensors[t->id].gradient_root;
        if (gpunn__shares_memory(b, node, t, NULL)) {
            gpunn__share_gradient(b, root, plan->tensors[node->id].gradient_root);
            step->grad_in[i].dtype = plan->tensors[root].storage;
            return true;
        }
    }
    return gpunn__write_gradient(b, step, t, i, at);
}

/* Appends copies of the images that the fused group cannot read as they are stored. */
static bool gpunn__fused_copies(gpunn__builder *b, const gpunn__fused *fused)
{
    for (int k = 0; k < fused->kernel->node_count; k++) {
        const gpunn_tensor *t = b->model->tensors[fused->tensors[k]];
        for (int i = 0; i < t->input_count; i++)
            if (t->inputs[i] && gpunn__fused_relayouts(b, fused, t->inputs[i]) &&
                !gpunn__relayout_operand(b, t, i, gpunn__fused_wants_channels_last(b, fused)))
                return false;
    }
    return true;
}

GPUNN__INTERNAL bool gpunn__fused_step(gpunn__builder *b, int index, bool backward)
{
    gpunn__fused               *fused = &b->fused[index];
    const gpunn_kernel         *kernel = fused->kernel;
    const gpunn_kernel_program *program = gpunn__program(b, fused, backward);
    const gpunn_kernel_cuda    *cuda = b->model->kernels->cuda;
    if (!backward && !gpunn__fused_copies(b, fused)) return false;
    int         at = b->plan->step_count, random_streams = 0;
    gpunn_step *step = gpunn__new_step(b, gpunn__member(b, fused, -kernel->node_count), backward,
                                       program->operand_count);
    if (step == NULL) return false;
    gpunn__set_operation(step, &gpunn__operation_fusion);
    step->name = kernel->name;
    step->fusion = (gpunn_step_fusion *)gpunn__plan_take(b, sizeof *step->fusion);
    if (step->fusion == NULL) return false;
    step->fusion->kernel = kernel;
    step->fusion->direction = (int)(program - kernel->program);
    step->fusion->launch = cuda ? &cuda->launch[kernel - b->model->kernels->kernels][step->fusion->direction]
                                : NULL;
    step->fusion->batch = gpunn__fused_batch(b, fused);
    for (int k = 0; k < kernel->node_count && random_streams < GPUNN_KERNEL_RANDOM_STREAMS; k++) {
        const gpunn_tensor *t = b->model->tensors[fused->tensors[k]];
        if (t->op == GPUNN_OP_DROPOUT && t->attr.dropout_p > 0)
            step->fusion->random_streams[random_streams++] = t->attr.random_stream;
    }
    for (int k = 0; !backward && b->plan->training && k < kernel->kept_count; k++) {
        const gpunn_kernel_kept *kept = &kernel->kept[k];
        size_t                   width = gpunn_dtype_size(gpunn__kept_dtype(b->plan, kept));
        int slot = gpunn__new_slot(b, (size_t)(kept->fixed + kept->batch * step->fusion->batch) * width, at);
        if (slot < 0) return false;
        if (k == 0) fused->slot = slot;
    }
    for (int i = 0; i < program->operand_count; i++)
        if (!gpunn__fused_operand(b, fused, step, i, at)) return false;
    return true;
}

/* ---- recomputing ---------------------------------------------------------------------------------------- *
 * *
 * gpunn_recompute defines checkpoint segments of the model. Steps of a segment whose results the backward
 * pass reads run a second time, with new memory, when the first of these results is needed. Their first
 * results live only as long as the forward pass reads them. A step that is not recomputed only has its
 * results held longer. In every pass but the first, recurrent layers form a segment of their own, since their
 * backward steps overwrite what the forward steps saved. */

static bool gpunn__recomputes(const gpunn__builder *b)
{
    return b->model->parts > 0 || b->pass > 0;
}

/* The id of the node whose step computes t. */
static int gpunn__maker(const gpunn__builder *b, const gpunn_tensor *t)
{
    int id = b->plan->tensors[t->id].root;
    if (b->tensors[id].fused >= 0) {
        const gpunn__fused *fused = &b->fused[b->tensors[id].fused];
        return fused->tensors[fused->kernel->node_count - 1];
    }
    while (b->tensors[id].next >= 0) id = b->tensors[id].next;
    return id;
}

/* Iterates over the nodes of a step from the last to the first: returns the one before `id`, or -1. */
static int gpunn__member_before(const gpunn__builder *b, int maker, int id)
{
    if (b->tensors[maker].fused < 0) {
        int before = b->tensors[maker].head;
        if (before == id) return -1;
        while (b->tensors[before].next != id) before = b->tensors[before].next;
        return before;
    }
    const int *nodes = b->fused[b->tensors[maker].fused].tensors;
    int        k = 0;
    while (nodes[k] != id) k++;
    return k > 0 ? nodes[k - 1] : -1;
}

/* Whether a node's step can run twice. It must not write what the program, a later run or the backward pass
 * sees. It must not communicate with other ranks, since their plans may differ. */
static bool gpunn__is_repeatable(const gpunn__builder *b, int maker)
{
    const int fused = b->tensors[maker].fused;
    bool      can = fused < 0 || !b->fused[fused].kernel->loss;
    for (int id = maker; id >= 0 && can; id = gpunn__member_before(b, maker, id)) {
        const gpunn_tensor *t = b->model->tensors[id];
        can = t->kind == GPUNN__VALUE && t->op != GPUNN_OP_ASSIGN && !gpunn__is_visible(b->plan, t) &&
              !gpunn__reads_state(b, t) && !(fused >= 0 && t->op == GPUNN_OP_BATCH_NORM) &&
              !gpunn__communicates(b->plan, t);
    }
    return can;
}

/* Notes that the backward pass, or a recomputed step, reads t. The step of t is then recomputed if it belongs
 * to a checkpoint segment and can run twice. */
static void gpunn__mark_again(gpunn__builder *b, const gpunn_tensor *t)
{
    const int maker = gpunn__maker(b, t), part = b->model->tensors[maker]->part;
    if (part && b->model->tensors[maker]->kind == GPUNN__VALUE && gpunn__is_repeatable(b, maker))
        b->tensors[maker].again = part;
}

/* Fills b->segments and b->recomputed. */
static void gpunn__list_segments(gpunn__builder *b)
{
    const size_t bytes = (size_t)gpunn__segment_count(b) * sizeof(int);
    memset(b->segments.end, 0, bytes);
    memset(b->recomputed.end, 0, bytes);
    for (int pass = 0; pass < 2; pass++) {
        for (int place = 0; place < b->place_count; place++) {
            const int maker = b->order[place], part = b->tensors[maker].again;
            if (part) gpunn__list_add(&b->segments, part, maker, pass == 0);
        }
        for (int id = 0; id < b->plan->tensor_count; id++) {
            const int part = b->tensors[gpunn__maker(b, b->model->tensors[id])].again;
            if (part) gpunn__list_add(&b->recomputed, part, id, pass == 0);
        }
        if (pass == 0) gpunn__open_lists(&b->segments, gpunn__segment_count(b));
        if (pass == 0) gpunn__open_lists(&b->recomputed, gpunn__segment_count(b));
    }
}

static void gpunn__mark_recomputed(gpunn__builder *b)
{
    for (int id = 0; id < b->plan->tensor_count && gpunn__recomputes(b); id++) {
        const gpunn_tensor *t = b->model->tensors[id];
        if (!b->tensors[id].feeds_loss || !b->tensors[id].wants || t->kind != GPUNN__VALUE) continue;
        if (b->pass > 0 && gpunn__op_is(t->op, GPUNN__RECURRENT)) b->tensors[id].again = b->model->parts + 1;
        const bool grouped = b->tensors[id].fused >= 0;
        for (int i = 0; i < t->input_count; i++)
            if (t->inputs[i] && (grouped || gpunn__op_reads_input(t->op, i)))
                gpunn__mark_again(b, gpunn__source(t, i));
        if (grouped || gpunn__op_reads_output(t->op) || gpunn__op_is(t->op, GPUNN__SAVES))
            gpunn__mark_again(b, t);
    }
    for (int place = b->place_count - 1; place >= 0 && b->model->parts; place--) {
        const int maker = b->order[place], part = b->tensors[maker].again;
        for (int id = part ? maker : -1; id >= 0; id = gpunn__member_before(b, maker, id))
            for (int i = 0; i < b->model->tensors[id]->input_count; i++) {
                const gpunn_tensor *input = gpunn__source(b->model->tensors[id], i);
                if (input && b->model->tensors[gpunn__maker(b, input)]->part == part)
                    gpunn__mark_again(b, input);
            }
    }
    if (gpunn__recomputes(b)) gpunn__list_segments(b);
}

/* Appends the steps of a checkpoint segment again. */
static bool gpunn__repeat_part(gpunn__builder *b, int part)
{
    bool ok = true;
    for (int i = gpunn__list_begin(&b->recomputed, part); i < b->recomputed.end[part]; i++) {
        gpunn__builder_tensor *t = &b->tensors[b->recomputed.items[i]];
        t->cast = t->transposed = -1;
    }
    b->repeats = true;
    for (int i = gpunn__list_begin(&b->segments, part); i < b->segments.end[part] && ok; i++) {
        const int id = b->segments.items[i];
        b->tensors[id].again = 0;
        ok = b->tensors[id].fused >= 0 ? gpunn__fused_step(b, b->tensors[id].fused, false)
                                       : gpunn__forward_step(b, b->model->tensors[id]);
        if (ok && gpunn__is_visible(b->plan, b->model->tensors[id])) /* a recurrent layer */
            b->plan->slots[b->plan->tensors[id].value_slot].last = INT32_MAX;
    }
    b->repeats = false;
    return ok;
}

/* Before the backward step of a node, recomputes what that step and those that share it read. Also copies
 * operands as the step wants them. */
static bool gpunn__repeat_for(gpunn__builder *b, int maker)
{
    const int fused = b->tensors[maker].fused;
    for (int id = maker; id >= 0 && gpunn__recomputes(b); id = gpunn__member_before(b, maker, id)) {
        const gpunn_tensor *t = b->model->tensors[id];
        for (int i = -1; i < t->input_count; i++) {
            const gpunn_tensor *read = i < 0 ? t : gpunn__source(t, i);
            const int           part = read ? b->tensors[gpunn__maker(b, read)].again : 0;
            if (part && !gpunn__repeat_part(b, part)) return false;
        }
        if (fused < 0 && !gpunn__copy_operands(b, t)) return false;
    }
    return fused < 0 || !gpunn__recomputes(b) || gpunn__fused_copies(b, &b->fused[fused]);
}

/* ---- backward steps ------------------------------------------------------------------------------------ */

/* Whether the backward step of linear t can apply the derivative of the activation that made its x. */
static bool gpunn__takes_activation(const gpunn__builder *b, const gpunn_tensor *t)
{
    const gpunn_tensor *x = t->inputs[0];
    if (t->op != GPUNN_OP_LINEAR || (x->op != GPUNN_OP_RELU && x->op != GPUNN_OP_GELU_TANH)) return false;
    const gpunn_tensor *before = x->inputs[0];
    return before->kind == GPUNN__VALUE && !gpunn__is_output(b->plan, x) && b->tensors[x->id].head != x->id &&
           b->model->tensors[b->tensors[x->id].head]->op == GPUNN_OP_LINEAR && b->tensors[x->id].uses == 1 &&
           b->tensors[before->id].uses == 1 && b->tensors[x->id].wants && !b->tensors[x->id].retained &&
           !b->tensors[before->id].retained;
}

/* Finds the operands whose gradients the backward step of t computes. The others share the gradient of t, or
 * are written in 16 bits here. */
static bool gpunn__choose_gradients(gpunn__builder *b, const gpunn_tensor *t,
                                    bool computed[GPUNN_MAX_OPERANDS])
{
    gpunn__plan *plan = b->plan;
    for (int i = 0; i < t->input_count; i++) {
        if (!gpunn__passes_gradient(b, t, i)) continue;
        int operand = plan->tensors[t->inputs[i]->id].gradient_root, half;
        if (!gpunn__write_half_gradient(b, t, i, &half)) return false;
        computed[i] = half < 0 && (t->op != GPUNN_OP_ADD || !gpunn__shares_gradient(b, t, i));
        if (computed[i]) continue;
        if (half < 0) {
            gpunn__share_gradient(b, operand, plan->tensors[t->id].gradient_root);
            continue;
        }
        if (b->tensors[operand].retained) plan->slots[half].last = INT32_MAX;
        plan->tensors[operand].gradient_slot = half;
        b->tensors[operand].writes++;
    }
    return true;
}

static bool gpunn__backward_step(gpunn__builder *b, const gpunn_tensor *t)
{
    gpunn__plan *plan = b->plan;
    int          root = plan->tensors[t->id].gradient_root, wanted = 0;
    bool         computed[GPUNN_MAX_OPERANDS] = {false};
    /* slots of gradients still to be copied to another channel order; -1: none */
    int relaid[GPUNN_MAX_OPERANDS];
    if (t->op == GPUNN_OP_RESHAPE)
        return gpunn__relayout_back(b, t->inputs[0], plan->tensors[root].gradient_slot, false);
    if (!gpunn__choose_gradients(b, t, computed)) return false;
    for (int i = 0; i < t->input_count; i++) {
        relaid[i] = -1;
        wanted += computed[i];
    }
    if (wanted == 0) return true;
    int         at = plan->step_count;
    gpunn_step *step = gpunn__node_step(b, t, true, 0);
    if (step == NULL) return false;
    /* the gradient of the loss itself is the constant 1 */
    bool from_loss = plan->tensors[root].gradient_slot < 0;
    step->grad_out.dtype = plan->tensors[root].storage;
    step->grad_out.channels_last = plan->tensors[root].channels_last && gpunn__has_layouts(t);
    if (from_loss ? !gpunn__bind(b, &step->grad_out.data, GPUNN__IN_ONE, 0)
                  : !gpunn__use_slot(b, &step->grad_out.data, plan->tensors[root].gradient_slot, at))
        return false;
    for (int i = 0; i < t->input_count; i++) {
        const gpunn_tensor *target = gpunn__operand_of(plan, t, i);
        if (target && gpunn__op_reads_input(t->op, i) && !gpunn__read_operand(b, &step->in[i], t, i, at))
            return false;
        if (!computed[i]) continue;
        if (i == 0 && b->tensors[target->id].activates) {
            if (gpunn__fuse(b, step) == NULL) return false;
            step->fused->activated = target->op;
            target = target->inputs[0];
            if (step->fused->activated == GPUNN_OP_GELU_TANH &&
                !gpunn__read_value(b, &step->fused->before, target, at))
                return false;
        }
        if (i == 1 && gpunn__gathers_filter(b, t)) {
            if (!gpunn__wait_gradient(b, step, t, at)) return false;
            continue;
        }
        bool relays = target == t->inputs[i] && gpunn__is_misplaced(b, t, i);
        if (relays ? (relaid[i] = gpunn__relaid_gradient(b, step, t, i, at)) < 0
                   : !gpunn__write_gradient(b, step, target, i, at))
            return false;
    }
    if (gpunn__op_reads_output(t->op) && !gpunn__read_value(b, &step->out, t, at)) return false;
    for (int i = 0; i < t->input_count; i++)
        if (relaid[i] >= 0 &&
            !gpunn__relayout_back(b, t->inputs[i], relaid[i], gpunn__wants_channels_last(b, t, i)))
            return false;
    return true;
}

/* Appends the backward step of a batch norm with the nodes merged into it. Without a relu the residual's
 * gradient equals that of the chain's end, so it may share its memory. */
static bool gpunn__norm_backward_step(gpunn__builder *b, const gpunn_tensor *end)
{
    gpunn__plan        *plan = b->plan;
    const gpunn_tensor *t = b->model->tensors[b->tensors[end->id].head],
                       *residual = gpunn__residual_of(b, end);
    int  root = plan->tensors[end->id].gradient_root;
    bool relu = end->op == GPUNN_OP_RELU, adds = residual && b->tensors[residual->id].wants, wanted = false,
         more = b->tensors[root].more >= 0;
    if (adds && !relu && !more && gpunn__shares_memory(b, end, residual, NULL)) {
        gpunn__share_gradient(b, plan->tensors[residual->id].gradient_root, root);
        adds = false;
    }
    for (int i = 0; i < t->input_count; i++) wanted = wanted || gpunn__passes_gradient(b, t, i);
    if (!wanted && !adds) return true;
    int         at = plan->step_count, count = t->input_count;
    gpunn_step *step = gpunn__node_step(b, t, true, residual != NULL);
    if (step == NULL || gpunn__fuse(b, step) == NULL) return false;
    step->fused->relu = relu;
    step->grad_out.dtype = plan->tensors[root].storage;
    step->grad_out.channels_last = plan->tensors[root].channels_last && gpunn__has_layouts(end);
    if (!gpunn__use_slot(b, &step->grad_out.data, plan->tensors[root].gradient_slot, at)) return false;
    step->fused->more = step->grad_out;
    step->fused->more.data = NULL;
    if (more && !gpunn__use_slot(b, &step->fused->more.data, b->tensors[root].more, at)) return false;
    if (adds) {
        gpunn__describe(plan, &step->grad_in[count], residual);
        if (!gpunn__write_gradient(b, step, residual, count, at)) return false;
    }
    if (relu && residual && !gpunn__read_value(b, &step->out, end, at)) return false;
    for (int i = 0; i < count; i++) {
        bool reads = t->inputs[i] &&
                     (gpunn__op_reads_input(t->op, i) || (i == 2 && relu && residual == NULL));
        if (reads && !gpunn__read_operand(b, &step->in[i], t, i, at)) return false;
        if (gpunn__passes_gradient(b, t, i) && !gpunn__write_gradient(b, step, t->inputs[i], i, at))
            return false;
    }
    return true;
}

/* Marks the parameters that should have gradients if they are trainable. */
static void gpunn__mark_trained(gpunn__builder *b)
{
    const gpunn_optimizer *opt = b->request->opt;
    for (int id = 0; id < b->plan->tensor_count; id++)
        b->tensors[id].wants = b->plan->scope == 0 && b->model->tensors[id]->kind == GPUNN__PARAMETER;
    for (int i = 0; opt && b->plan->scope == opt->scope && i < opt->parameter_count; i++)
        b->tensors[opt->parameters[i]->id].wants = true;
}

/* Marks the tensors that `count` outputs from `first` on depend on. */
static void gpunn__mark_feeding(gpunn__builder *b, int first, int count)
{
    for (int id = 0; id < b->plan->tensor_count; id++) b->tensors[id].feeds_loss = false;
    for (int i = first; i < first + count; i++) b->tensors[b->plan->outputs[i]->id].feeds_loss = true;
    for (int id = b->plan->tensor_count - 1; id >= 0; id--) {
        const gpunn_tensor *t = b->model->tensors[id];
        for (int i = 0; b->tensors[id].feeds_loss && i < t->input_count; i++)
            if (t->inputs[i] && gpunn__has_derivative(t, i)) b->tensors[t->inputs[i]->id].feeds_loss = true;
    }
}

GPUNN__INTERNAL void gpunn__mark_gradients(gpunn__builder *b)
{
    gpunn_model *model = b->model;
    gpunn__plan *plan = b->plan;
    gpunn__mark_trained(b);
    for (int id = 0; id < plan->tensor_count && (b->has.retains || plan->seeded); id++)
        if (b->needed[id] &&
            (model->tensors[id]->retain_grad || (plan->seeded && gpunn__is_output(plan, model->tensors[id]))))
            b->tensors[plan->tensors[id].gradient_root].retained = true;
    for (int id = 0; id < plan->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        bool                wants = b->tensors[id].retained || (b->tensors[id].wants && t->trainable);
        for (int i = 0; !wants && i < t->input_count; i++) wants = gpunn__passes_gradient(b, t, i);
        b->tensors[id].wants = wants && b->needed[id];
    }
    if (!plan->seeded) b->tensors[plan->tensors[plan->outputs[0]->id].gradient_root].writes = 1;
    gpunn__mark_feeding(b, 0, plan->output_count);
}

GPUNN__INTERNAL void gpunn__mark_activated(gpunn__builder *b)
{
    for (int id = 0; id < b->plan->tensor_count; id++) {
        const gpunn_tensor *t = b->model->tensors[id];
        if (b->tensors[id].feeds_loss && t->kind == GPUNN__VALUE && gpunn__takes_activation(b, t))
            b->tensors[t->inputs[0]->id].activates = true;
    }
}

static bool gpunn__fused_backward(gpunn__builder *b, int index)
{
    const gpunn__fused *fused = &b->fused[index];
    return fused->kernel->loss || !gpunn__fused_has_backward(b, fused) || gpunn__fused_step(b, index, true);
}

/* Appends the step that writes the gradient given by the program to the output's gradient, or adds it. */
static bool gpunn__seed_step(gpunn__builder *b, int output)
{
    gpunn__plan        *plan = b->plan;
    const gpunn_tensor *t = plan->outputs[output];
    const int           at = plan->step_count,
              slot = gpunn__new_slot(b, (size_t)gpunn__count(t, plan->batch) * sizeof(float), at);
    if (slot < 0) return false;
    plan->slots[slot].user_memory = &plan->seed[output];
    if (!gpunn__relayout_back(b, t, slot, false)) return false;
    gpunn_step *step = &plan->steps[at];
    step->grad_out.dtype = step->out.dtype = GPUNN_F32;
    if (plan->tensors[plan->tensors[t->id].gradient_root].channels_last && gpunn__has_layouts(t)) return true;
    step->attr = &plan->attr[2];
    memcpy(step->grad_in[0].dim, step->out.dim, sizeof step->out.dim);
    memcpy(step->in[0].dim, step->out.dim, sizeof step->out.dim);
    return true;
}

GPUNN__INTERNAL void gpunn__begin_pass(gpunn__builder *b, int pass)
{
    gpunn__plan *plan = b->plan;
    b->pass = pass;
    plan->passes[pass].begin = pass ? plan->passes[pass - 1].end : 0;
    plan->passes[pass].reached_begin = pass ? plan->reached_count
                                            /* a loss's kernel writes gradients before the first pass
                                             * begins */
                                            : 0;
    if (plan->pass_count > 1) {
        gpunn__mark_feeding(b, pass, 1);
        gpunn__list_contributions(b);
    }
    for (int id = 0; id < plan->tensor_count && pass > 0; id++) {
        b->tensors[id].writes = id == plan->tensors[plan->outputs[pass]->id].gradient_root;
        b->tensors[id].sharing = id;
        b->tensors[id].writer = b->tensors[id].more = b->tensors[id].gathered =
            plan->tensors[id].gradient_slot = -1;
    }
    gpunn__mark_recomputed(b);
}

GPUNN__INTERNAL void gpunn__end_pass(gpunn__builder *b)
{
    gpunn__plan     *plan = b->plan;
    gpunn__backpass *pass = &plan->passes[b->pass];
    pass->end = plan->step_count;
    pass->reached_end = plan->reached_count;
    for (int id = 0; id < plan->tensor_count && pass->gradients; id++)
        pass->gradients[id] = plan->tensors[id].gradient_slot;
}

GPUNN__INTERNAL bool gpunn__backward_steps(gpunn__builder *b)
{
    const int before = b->plan->step_count;
    for (int i = 0; i < b->plan->output_count && b->plan->seeded; i++)
        if (!gpunn__seed_step(b, i)) return false;
    for (int place = b->place_count - 1; place >= 0; place--) {
        const gpunn_tensor *t = b->model->tensors[b->order[place]];
        if (t->op == GPUNN_OP_ATTENTION && b->tensors[t->id].feeds_loss && t->inputs[3] &&
            b->tensors[t->inputs[3]->id].wants) {
            (void)gpunn__fail(b->model->dev, GPUNN_ERR_UNSUPPORTED,
                              "scaled_dot_product_attention: its mask needs a gradient, which this op does "
                              "not compute; use gpunn_matmul, gpunn_add and gpunn_softmax instead");
            return false;
        }
        bool own = b->tensors[t->id].feeds_loss && b->tensors[t->id].wants && t->kind == GPUNN__VALUE &&
                   !b->tensors[t->id].activates && !b->tensors[t->id].normed &&
                   b->plan->tensors[t->id].part != 2;
        if ((own || b->tensors[t->id].fused >= 0) && !gpunn__repeat_for(b, t->id)) return false;
        if (b->tensors[t->id].fused >= 0 ? !gpunn__fused_backward(b, b->tensors[t->id].fused)
            : gpunn__ends_norm(b, t)     ? own && !gpunn__norm_backward_step(b, t)
                                         : own && !gpunn__is_alias(b->plan, t) && !gpunn__backward_step(b, t))
            return false;
    }
    b->plan->passes[b->pass].differentiates = b->plan->step_count > before;
    return gpunn__gather_filters(b);
}
