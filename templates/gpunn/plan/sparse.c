#include "plan/sparse.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/model.h"
#include "base/shapes.h"
#include "base/device.h"

/* Whether node t gives its table a sparse gradient in this plan. */
static bool gpunn__adds_rows(const gpunn__builder *b, const gpunn_tensor *t)
{
    return t->kind == GPUNN__VALUE && t->attr.sparse && b->needed[t->id] && gpunn__passes_gradient(b, t, 1);
}

/* The rows that node t refers to in a run, with repetitions: one for each token, or for each corner of the
 * cells of each point. */
static int64_t gpunn__referred_rows(const gpunn__plan *plan, const gpunn_tensor *t)
{
    const int64_t count = gpunn__count(t->inputs[0], plan->batch),
                  axes = t->inputs[0]->dim[t->inputs[0]->rank - 1];
    return t->op == GPUNN_OP_EMBEDDING ? count : count / axes * t->attr.n_levels << axes;
}

/* The most entries of a gradient after a run of the request, which adds `rows` to those that earlier runs
 * have left. An update then collects as many from each rank. */
static int64_t gpunn__needed_rows(const gpunn__sparse_use *use, const gpunn__request *request)
{
    const gpunn_tensor *table = use->table;
    const int64_t       ranks = table->model->ranks.size;
    const int64_t       kept = table->grad_reached && !request->renews ? table->compact.used : 0;
    return (use->rows + kept) * (ranks > 1 ? ranks : 1);
}

/* The index in plan->sparse; plan->sparse_count if the table is not there. */
static int gpunn__sparse_use_of(const gpunn__plan *plan, const gpunn_tensor *table)
{
    int i = 0;
    while (i < plan->sparse_count && plan->sparse[i].table != table) i++;
    return i;
}

GPUNN__INTERNAL bool gpunn__list_sparse(gpunn__builder *b)
{
    gpunn__plan *plan = b->plan;
    size_t       count = 0;
    for (int id = 0; id < plan->tensor_count; id++) count += gpunn__adds_rows(b, b->model->tensors[id]);
    plan->sparse = (gpunn__sparse_use *)gpunn__plan_take(b, count * sizeof *plan->sparse);
    if (plan->sparse == NULL) return false;
    for (int id = 0; id < plan->tensor_count; id++) {
        const gpunn_tensor *t = b->model->tensors[id];
        if (!gpunn__adds_rows(b, t)) continue;
        gpunn__sparse_use *use = &plan->sparse[gpunn__sparse_use_of(plan, t->inputs[1])];
        plan->sparse_count += use->table == NULL;
        use->table = t->inputs[1];
        use->rows += gpunn__referred_rows(plan, t) * plan->pass_count;
    }
    for (int i = 0; i < plan->sparse_count; i++) {
        gpunn__sparse_use *use = &plan->sparse[i];
        use->capacity = gpunn__needed_rows(use, b->request);
        if (use->capacity < use->table->compact.capacity) use->capacity = use->table->compact.capacity;
    }
    return true;
}

GPUNN__INTERNAL bool gpunn__sparse_gradient(gpunn__builder *b, gpunn_step *step, int i, int root)
{
    const gpunn_tensor *table = b->model->tensors[root];
    gpunn_value        *value = &step->grad_in[i];
    if (step->op == GPUNN_OP_FUSION)
        return gpunn__reject_fused(b, &b->fused[b->tensors[gpunn__node_of(b, step)->id].fused]);
    if (!step->attr->sparse) {
        char layer[GPUNN__ERROR_SIZE];
        (void)gpunn__fail(
            b->model->dev, GPUNN_ERR_UNSUPPORTED,
            "%s%s gives '%s' a dense gradient, but the table's layer has .sparse; leave .sparse out",
            gpunn_op_name(step->op), gpunn__quoted(step->name, layer), table->name);
        return false;
    }
    value->dim[0] = b->plan->sparse[gpunn__sparse_use_of(b->plan, table)].capacity;
    value->count = value->dim[0] * value->dim[1];
    return true;
}

/* Makes room for more entries. The present ones stay. */
static GPUNN__STATUS gpunn__compact_grow(gpunn_tensor *t, int64_t capacity)
{
    gpunn_device        *dev = t->model->dev;
    const gpunn_backend *backend = dev->backend;
    const int64_t        floats = capacity * t->dim[1], old = gpunn__gradient_count(t);
    gpunn__compact       grown = {NULL, capacity, t->compact.used, NULL, 0};
    grown.values = (float *)gpunn__device_alloc(dev, gpunn__compact_bytes(t, capacity));
    if (grown.values == NULL) return dev->error.status;
    int64_t     *rows = gpunn__sparse_rows(grown.values, floats);
    gpunn_status status = backend->fill(dev->context, grown.values, 0, (size_t)floats * sizeof(float));
    if (status == GPUNN_OK) status = backend->fill(dev->context, rows, 0xFF, (size_t)capacity * sizeof *rows);
    if (status == GPUNN_OK && old > 0)
        status = backend->convert(dev->context, grown.values, GPUNN_F32, t->compact.values, GPUNN_F32, old);
    if (status == GPUNN_OK && old > 0)
        status = backend->convert(dev->context, rows, GPUNN_F32, gpunn__sparse_rows(t->compact.values, old),
                                  GPUNN_F32, 2 * t->compact.capacity); /* moves their bits */
    if (status != GPUNN_OK) {
        gpunn__device_free(dev, grown.values, gpunn__compact_bytes(t, capacity));
        return gpunn__backend_fail(dev, "allocating a sparse gradient", status);
    }
    gpunn__compact_free(dev, t);
    t->compact = grown;
    return GPUNN_OK;
}

/* Drops all plans but one, which need not be in the model's list. */
static void gpunn__drop_others(gpunn_model *model, const gpunn__plan *stays)
{
    gpunn__plan **link = &model->plans;
    while (*link) {
        gpunn__plan *plan = *link;
        if (plan == stays) {
            link = &plan->next;
            continue;
        }
        *link = plan->next;
        if (model->last == plan) model->last = NULL;
        gpunn__plan_free(model->dev, plan);
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__commit_sparse(gpunn_model *model, const gpunn__plan *plan)
{
    for (int i = 0; i < plan->sparse_count; i++) {
        const gpunn__sparse_use *use = &plan->sparse[i];
        if (use->capacity <= use->table->compact.capacity) continue;
        gpunn_status status = gpunn__compact_grow(use->table, use->capacity);
        if (status != GPUNN_OK) return status;
        gpunn__drop_others(model, plan);
        model->generation++;
        model->written_gradients++;
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL size_t gpunn__sparse_bytes(const gpunn_model *model, const gpunn__plan *plan)
{
    size_t bytes = 0;
    for (int id = 0; id < model->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        if (!t->sparse) continue;
        const int     use = gpunn__sparse_use_of(plan, t);
        const int64_t capacity = use < plan->sparse_count ? plan->sparse[use].capacity : t->compact.capacity;
        bytes += gpunn__compact_bytes(t, capacity);
        if (model->ranks.size > 1) bytes += gpunn__gathered_bytes(t, capacity);
    }
    return bytes;
}

GPUNN__INTERNAL bool gpunn__fits_sparse(const gpunn__plan *plan, const gpunn__request *request)
{
    bool fits = true;
    for (int i = 0; i < plan->sparse_count; i++)
        fits = fits && gpunn__needed_rows(&plan->sparse[i], request) <= plan->sparse[i].capacity;
    return fits;
}

GPUNN__INTERNAL void gpunn__count_sparse(const gpunn__plan *plan)
{
    for (int i = 0; i < plan->sparse_count; i++) {
        gpunn_tensor *table = plan->sparse[i].table;
        table->compact.used = plan->sparse[i].rows + (table->grad_reached ? table->compact.used : 0);
    }
}
