#include "train/ranks.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/model.h"
#include "base/shapes.h"
#include "base/device.h"
#include "ranks/slices.h"
#include "ranks/group.h"
#include "base/text.h"
#include "plan/plan.h"
#include "run/run.h"
#include "cpu/optimizers.h"
#include "train/optimizer.h"
#include "train/step.h"

/* Finds the next parameters or buffers, from tensor *id on, that are adjacent in memory. *count: their floats
 * from the first one's start. Returns the first, or NULL. */
static const gpunn_tensor *gpunn__next_weights(const gpunn_model *model, gpunn__kind kind, int *id,
                                               int64_t *count)
{
    while (*id < model->tensor_count && model->tensors[*id]->kind != kind) ++*id;
    if (*id == model->tensor_count) return NULL;
    const gpunn_tensor *first = model->tensors[(*id)++];
    int64_t             end = first->offset + gpunn__floats_of(first);
    for (; *id < model->tensor_count && !gpunn__is_user_owned(first); ++*id) {
        const gpunn_tensor *t = model->tensors[*id];
        if (t->kind != kind) continue;
        if (t->offset != gpunn__aligned(end) || gpunn__is_user_owned(t)) break;
        end = t->offset + gpunn__floats_of(t);
    }
    *count = end - first->offset;
    return first;
}

/* Broadcasts rank 0's parameters or buffers to all ranks. */
static GPUNN__STATUS gpunn__spread_weights(gpunn_optimizer *opt, gpunn__kind kind)
{
    gpunn_model        *model = opt->model;
    const gpunn_tensor *first;
    gpunn_status        status = GPUNN_OK;
    int64_t             count;
    for (int id = 0; status == GPUNN_OK && (first = gpunn__next_weights(model, kind, &id, &count)) != NULL;)
        status = gpunn__exchange_memory(opt->group, model->dev, gpunn__weights(first), count, 0);
    GPUNN__WEIGHTS_CHANGED(model);
    return status;
}

/* Finds the rank whose share contains `place`, and how many of the `count` floats there belong to it. */
static void gpunn__cut_share(const gpunn_optimizer *opt, int64_t place, int64_t count, gpunn_exchange *share)
{
    const int64_t each = gpunn__share_of(opt);
    share->root = (int)(place / each);
    share->count = (share->root + 1) * each - place;
    if (share->count > count) share->count = count;
}

/* Finds the next adjacent parameters that a single rank updates. run
 * starts as zeros. Returns false at the end. */
static bool gpunn__next_share(const gpunn_optimizer *opt, gpunn__range *run, gpunn_exchange *share)
{
    if (run->begin == run->end) {
        if (run->next == opt->parameter_count) return false;
        run->first = run->next;
        do run->end = opt->parameters[run->next]->offset + gpunn__count(opt->parameters[run->next], 1);
        while (++run->next < opt->parameter_count && gpunn__follows_in_memory(opt, run->next, run->end));
        run->begin = opt->parameters[run->first]->offset;
    }
    const int64_t before = run->begin - opt->parameters[run->first]->offset;
    gpunn__cut_share(opt, opt->places[run->first] + before, run->end - run->begin, share);
    share->values = gpunn__weights(opt->parameters[run->first]) + before;
    run->begin += share->count;
    return true;
}

/* Broadcasts each rank's updated parameters to all ranks. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__spread_shares(gpunn_optimizer *opt)
{
    gpunn__range   run = {0, 0, 0, 0};
    gpunn_exchange share;
    gpunn_status   status = GPUNN_OK;
    while (status == GPUNN_OK && gpunn__next_share(opt, &run, &share))
        status = gpunn__exchange_memory(opt->group, opt->model->dev, share.values, share.count, share.root);
    return status;
}

/* Adds the broadcasts of gpunn__spread_shares to a run. */
static GPUNN__STATUS gpunn__add_shares(gpunn_optimizer *opt)
{
    gpunn__range   run = {0, 0, 0, 0};
    gpunn_exchange share = {NULL, 0, 0, GPUNN_AFTER_UPDATES, false, NULL, 0};
    gpunn_status   status = GPUNN_OK;
    while (status == GPUNN_OK && gpunn__next_share(opt, &run, &share))
        status = gpunn__exchange_add(opt->group, share);
    return status;
}

/* Replaces all states by this rank's share of them. */
static GPUNN__STATUS gpunn__states_cut(gpunn_optimizer *opt)
{
    gpunn_device *dev = opt->model->dev;
    gpunn__states own = gpunn__own_share(opt);
    gpunn_status  status = gpunn__states_alloc(opt, &own);
    for (int k = 0; k < GPUNN__STATES && status == GPUNN_OK && own.count > 0; k++) {
        if (own.data[k] == NULL) continue;
        status = dev->backend->convert(dev->context, own.data[k], GPUNN_F32, opt->states.data[k] + own.begin,
                                       GPUNN_F32, own.count);
        if (status != GPUNN_OK) status = gpunn__backend_fail(dev, "gpunn_distribute", status);
    }
    status = gpunn__all_reduce_status(opt->group, status, NULL, "shares of %lld floats",
                                      (long long)gpunn__share_of(opt));
    gpunn__states_free(dev, status == GPUNN_OK ? &opt->states : &own);
    if (status != GPUNN_OK) return status;
    opt->states = own;
    opt->shares = true;
    return GPUNN_OK;
}

/* Broadcasts n floats of rank `root` to all ranks that have memory for them. own: the floats on that rank,
 * NULL elsewhere. all: where to store them, or NULL. aside: buffer for joined GPUs that receive without
 * storing. A failed copy goes to *copied, so that no other rank waits. */
static GPUNN__STATUS gpunn__collect_piece(gpunn_optimizer *opt, float *own, float *all, float *aside,
                                          int64_t n, int root, gpunn_status *copied)
{
    gpunn_group         *group = opt->group;
    gpunn_device        *dev = opt->model->dev;
    const gpunn_backend *backend = dev->backend;
    const size_t         bytes = (size_t)n * sizeof *own;
    gpunn_status         exchanged;
    if (gpunn__in_ranks(group, dev)) {
        float *const         to = all ? all : aside;
        const gpunn_exchange exchange = {own ? own : to, n, root, 0, false, NULL, 0};
        exchanged = gpunn__exchange_joined(group, dev, &exchange);
        if (exchanged == GPUNN_OK && own && all)
            *copied = backend->convert(dev->context, all, GPUNN_F32, own, GPUNN_F32, n);
        return exchanged;
    }
    if (own && *copied == GPUNN_OK) *copied = backend->download(dev->context, group->piece, own, bytes);
    exchanged = gpunn__exchange_host(group, GPUNN__BROADCAST, group->piece, bytes, root);
    if (exchanged == GPUNN_OK && *copied == GPUNN_OK && all)
        *copied = backend->upload(dev->context, all, group->piece, bytes);
    return exchanged;
}

/* Collects rank root's share of state k; see gpunn__collect_piece. */
static gpunn_status gpunn__state_collect(gpunn_optimizer *opt, int k, int root, float *all, float *aside)
{
    const bool    here = root == gpunn_group_rank(opt->group);
    const int64_t each = gpunn__share_of(opt), most = GPUNN__GROUP_PIECE / (int)sizeof *all;
    const int64_t end = (root + 1) * each < opt->state_count ? (root + 1) * each : opt->state_count;
    gpunn_status  exchanged = GPUNN_OK, copied = GPUNN_OK;
    for (int64_t at = root * each, n; at < end && exchanged == GPUNN_OK; at += n) {
        n = end - at < most ? end - at : most;
        exchanged = gpunn__collect_piece(opt, here ? gpunn__state_at(opt, k, at) : NULL,
                                         all ? all + at : NULL, aside, n, root, &copied);
    }
    if (copied != GPUNN_OK) copied = gpunn__backend_fail(opt->model->dev, "collecting states", copied);
    return exchanged == GPUNN_OK ? copied : exchanged;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__states_collect(gpunn_optimizer *opt, bool everywhere, const char *caller)
{
    gpunn_device *dev = opt->model->dev;
    const bool    here = everywhere || gpunn_group_rank(opt->group) == 0;
    const bool    joined = gpunn__in_ranks(opt->group, dev);
    gpunn__states all = {{NULL}, 0, opt->state_count};
    gpunn_status  status = here ? gpunn__states_alloc(opt, &all) : GPUNN_OK, part = GPUNN_OK;
    float        *aside = joined && !here ? (float *)gpunn__device_alloc(dev, GPUNN__GROUP_PIECE) : NULL;
    if (joined && !here && aside == NULL) status = dev->error.status;
    if (!joined && status == GPUNN_OK && !gpunn__has_piece(opt->group)) status = GPUNN_ERR_MEMORY;
    status = gpunn__all_reduce_status(opt->group, status, NULL, "%s of %s's states", caller, opt->name);
    for (int k = 0; k < GPUNN__STATES && status == GPUNN_OK; k++)
        for (int root = 0; opt->uses[k] && root < gpunn_group_size(opt->group); root++) {
            const gpunn_status done = gpunn__state_collect(opt, k, root, all.data[k], aside);
            if (part == GPUNN_OK) part = done;
        }
    if (status == GPUNN_OK)
        status = gpunn__all_reduce_status(opt->group, part, NULL, "%s of all states", caller);
    gpunn__device_free(dev, aside, GPUNN__GROUP_PIECE);
    if (status != GPUNN_OK)
        gpunn__states_free(dev, &all);
    else if (here) {
        opt->share = opt->states;
        opt->states = all;
        opt->collected = true;
    }
    return status;
}

/* Ends sharing: every rank has all states again. */
static GPUNN__STATUS gpunn__states_rejoin(gpunn_optimizer *opt)
{
    gpunn_status status = gpunn__states_collect(opt, true, "gpunn_distribute");
    if (status != GPUNN_OK) return status;
    gpunn__states_free(opt->model->dev, &opt->share);
    opt->shares = opt->collected = false;
    return GPUNN_OK;
}

GPUNN__INTERNAL void gpunn__states_return(gpunn_optimizer *opt)
{
    if (!opt->collected) return;
    gpunn__states_free(opt->model->dev, &opt->states);
    opt->states = opt->share;
    memset(&opt->share, 0, sizeof opt->share);
    opt->collected = false;
}

/* Whether the first `count` updates need only the own share of the averaged gradients. */
static bool gpunn__needs_share(const gpunn_optimizer *opt, int count)
{
    bool needs = opt->shares && opt->loss_scale == NULL;
    for (int i = 0; i < count && needs; i++) needs = !(opt->updates[i].clip_norm > 0);
    return needs;
}

/* ---- rows of sparse tables ------------------------------------------------------------------------------ *
 * The ranks' entries are gathered in the order of the ranks. A backward step of an embedding adds them up, so
 * that the sums have the same bits on all ranks. */

typedef struct gpunn__rows_sum {
    gpunn_step       step;
    gpunn_value      in[2], grad_in[2];
    bool             accumulate[2];
    gpunn_attributes attr;
} gpunn__rows_sum;

/* Whether the gradient of parameter i has rows to exchange. */
static bool gpunn__gathers(const gpunn_optimizer *opt, int i)
{
    return gpunn_group_size(opt->group) > 1 && opt->parameters[i]->sparse && opt->parameters[i]->trainable;
}

/* Whether the optimizer trains a table whose gradient has rows to exchange. */
static bool gpunn__gathers_any(const gpunn_optimizer *opt)
{
    bool gathers = false;
    for (int i = 0; i < opt->parameter_count && !gathers; i++) gathers = gpunn__gathers(opt, i);
    return gathers;
}

static gpunn_value gpunn__matrix_of(gpunn_dtype dtype, int64_t rows, int64_t columns, void *data)
{
    gpunn_value value;
    memset(&value, 0, sizeof value);
    value.data = data;
    value.dtype = dtype;
    value.rank = 2;
    value.dim[0] = rows;
    value.dim[1] = columns;
    value.count = rows * columns;
    return value;
}

/* Describes the step that adds up entries of a table, which have the layout of its gradient. */
static void gpunn__rows_sum_of(const gpunn_tensor *table, float *values, int64_t entries,
                               gpunn__rows_sum *sum)
{
    const int64_t columns = table->dim[1];
    gpunn_step   *step = &sum->step;
    memset(sum, 0, sizeof *sum);
    gpunn__set_operation(step, &gpunn__operation_embedding);
    sum->in[0] = gpunn__matrix_of(GPUNN_I64, entries, 1, gpunn__sparse_rows(values, entries * columns));
    sum->in[1] = gpunn__matrix_of(GPUNN_F32, table->dim[0], columns, gpunn__weights(table));
    sum->grad_in[1] = gpunn__matrix_of(GPUNN_F32, table->compact.capacity, columns, table->compact.values);
    sum->attr.sparse = true;
    sum->attr.ignore_index = -1; /* entries without a row */
    step->backward = true;
    step->name = "";
    step->attr = &sum->attr;
    step->input_count = 2;
    step->in = sum->in;
    step->grad_in = sum->grad_in;
    step->accumulate = sum->accumulate;
    step->state = &table->model->state;
    step->grad_out = gpunn__matrix_of(GPUNN_F32, entries, columns, values);
    step->out = step->grad_out;
}

/* Makes room for all ranks' entries of a table's gradient. */
static GPUNN__STATUS gpunn__table_room(const gpunn_optimizer *opt, gpunn_tensor *table)
{
    gpunn_device   *dev = opt->model->dev;
    gpunn__compact *compact = &table->compact;
    const int64_t   entries = compact->used * gpunn_group_size(opt->group);
    gpunn__rows_sum sum;
    if (entries > compact->capacity)
        return gpunn__fail(dev, GPUNN_ERR_STATE,
                           "%s: the gradient of '%s' has no room for the rows of %d ranks; compute it after "
                           "gpunn_distribute",
                           opt->name, table->name, gpunn_group_size(opt->group));
    gpunn__rows_sum_of(table, compact->values, entries, &sum);
    const gpunn_status status = dev->backend->prepare(dev->context, &sum.step);
    if (status != GPUNN_OK) return gpunn__backend_fail(dev, opt->name, status);
    const size_t bytes = gpunn__gathered_bytes(table, entries) + sum.step.workspace_bytes;
    if (bytes <= compact->gathered_bytes) return GPUNN_OK;
    gpunn__device_free(dev, compact->gathered, compact->gathered_bytes);
    compact->gathered = (float *)gpunn__device_alloc(dev, bytes);
    compact->gathered_bytes = compact->gathered ? bytes : 0;
    return compact->gathered ? GPUNN_OK : dev->error.status;
}

/* Makes room for an update's exchange of rows. It precedes the agreement on the update, where a rank without
 * memory can still be heard. */
static GPUNN__STATUS gpunn__rows_room(const gpunn_optimizer *opt)
{
    gpunn_status status = GPUNN_OK;
    for (int i = 0; i < opt->parameter_count && status == GPUNN_OK; i++)
        if (gpunn__gathers(opt, i) && gpunn__has_gradient(opt->parameters[i]))
            status = gpunn__table_room(opt, opt->parameters[i]);
    return status;
}

/* Gathers the entries of all ranks. A failed copy goes to *copied, so that no other rank waits. */
static GPUNN__STATUS gpunn__rows_gather(gpunn_group *group, gpunn_tensor *table, gpunn_status *copied)
{
    gpunn_device        *dev = table->model->dev;
    const gpunn_backend *backend = dev->backend;
    const int64_t        used = table->compact.used, floats = used * table->dim[1];
    float *const         values = table->compact.gathered;
    int64_t *const       rows = gpunn__sparse_rows(values, floats * group->args.size);
    const int64_t       *own = gpunn__sparse_rows(table->compact.values, gpunn__gradient_count(table));
    gpunn_status         status = GPUNN_OK;
    *copied = backend->convert(dev->context, values + group->args.rank * floats, GPUNN_F32,
                               table->compact.values, GPUNN_F32, floats);
    if (*copied == GPUNN_OK)
        *copied = backend->convert(dev->context, rows + group->args.rank * used, GPUNN_I64, own, GPUNN_I64,
                                   used);
    for (int root = 0; root < group->args.size && status == GPUNN_OK; root++) {
        status = gpunn__exchange_memory(group, dev, values + root * floats, floats, root);
        if (status == GPUNN_OK)
            status = gpunn__exchange_memory(group, dev, (float *)(void *)(rows + root * used), 2 * used,
                                            root); /* moves their bits */
    }
    return status;
}

/* Replaces a table's gradient by its mean over all ranks. */
static GPUNN__STATUS gpunn__average_rows(gpunn_group *group, gpunn_tensor *table)
{
    gpunn_device     *dev = table->model->dev;
    const int64_t     entries = table->compact.used * group->args.size;
    gpunn__rows_sum   sum;
    const gpunn_step *failed;
    gpunn_status      copied, status = gpunn__rows_gather(group, table, &copied);
    if (status != GPUNN_OK) return status;
    gpunn__rows_sum_of(table, table->compact.gathered, entries, &sum);
    sum.step.workspace = (char *)table->compact.gathered + gpunn__gathered_bytes(table, entries);
    if (copied == GPUNN_OK) copied = dev->backend->run(dev->context, &sum.step, 1, &failed);
    if (copied == GPUNN_OK)
        copied = dev->backend->scale(dev->context, table->compact.values, gpunn__gradient_count(table),
                                     1 / (float)group->args.size, 0);
    table->compact.used = entries;
    return gpunn__copies_end(group, dev, copied);
}

/* Averages the gradients over all ranks. With scatters, and an engine
 * that can, each rank receives only its share. */
static GPUNN__STATUS gpunn__average_gradients(gpunn_optimizer *opt, bool scatters)
{
    const gpunn_group_args *args = &opt->group->args;
    gpunn_device           *dev = opt->model->dev;
    gpunn__range            range = {0, 0, 0, 0};
    gpunn_status            status = GPUNN_OK;
    scatters = scatters && args->reduce_scatter && !args->bf16_gradients && !gpunn__in_ranks(opt->group, dev);
    while (status == GPUNN_OK && gpunn__next_range(&range, opt->parameters, opt->parameter_count, NULL)) {
        gpunn_tensor *const first = opt->parameters[range.first];
        float *const        values = gpunn__gradient_of(first);
        const int64_t       count = range.end - range.begin;
        if (gpunn__gathers(opt, range.first))
            status = gpunn__average_rows(opt->group, first);
        else
            status = scatters ? gpunn__scatter_gradients(opt->group, dev, values, count,
                                                         opt->places[range.first], gpunn__share_of(opt))
                              : gpunn__exchange_gradients(opt->group, dev, values, count);
    }
    opt->model->doubtful = true; /* finite gradients may add up to infinity */
    opt->model->written_gradients++;
    return status == GPUNN_OK ? gpunn__spread_weights(opt, GPUNN__BUFFER) : status;
}

/* The number of the next update, the same on all ranks whatever each knows of rejections. */
static long long gpunn__common_number(const gpunn_optimizer *opt)
{
    return (long long)(opt->step_count + opt->rejected_count) + 1;
}

/* Checks by an all-reduce of statuses that all ranks are about to make
 * the same update. loss: see gpunn__all_reduce_status. */
static GPUNN__STATUS gpunn__all_reduce_update(gpunn_optimizer *opt, gpunn_status status, float *loss)
{
    int      count = 0;
    int64_t  rows = 0;
    uint32_t which = 0;
    char     text[32] = "";
    for (int i = 0; i < opt->parameter_count; i++) {
        const gpunn_tensor *t = opt->parameters[i];
        if (!gpunn__has_gradient(t)) continue;
        which = which * 31 + (uint32_t)t->id;
        count++;
        if (!gpunn__gathers(opt, i)) continue;
        which = which * 31 + (uint32_t)t->compact.used;
        rows += t->compact.used;
    }
    if (rows > 0) (void)snprintf(text, sizeof text, ", %lld rows", (long long)rows);
    return gpunn__all_reduce_status(opt->group, status, loss,
                                    "update %lld of %s, lr %.9g, clip norm %g and value %g%s, part %d, "
                                    "gradients of %d parameters (%08x)%s",
                                    gpunn__common_number(opt), opt->name, (double)gpunn_get_lr(opt),
                                    (double)opt->clip_norm, (double)opt->clip_value,
                                    opt->skips ? ", skipping NaN" : "", opt->parts + 1, count,
                                    (unsigned)which, text);
}

/* The number of steps after which no step changes gradients in these floats. */
static int gpunn__complete_after(const gpunn_run *run, const float *values, int64_t count)
{
    for (int s = run->step_count - 1; s >= 0; s--) {
        const gpunn_step *step = &run->steps[s];
        for (int i = 0; i < step->input_count && gpunn__writes_gradients(step); i++) {
            const float *written = (const float *)step->grad_in[i].data;
            if (written && step->grad_in[i].dtype == GPUNN_F32 && written < values + count &&
                values < written + step->grad_in[i].count)
                return s + 1;
        }
    }
    return 0;
}

/* The first parameter of the bucket that ends with parameter `last`. A bucket consists of gradients that are
 * adjacent in memory. *id: lowest tensor id in it; -1: no gradient, or rows, which buckets do not hold. */
static int gpunn__bucket_first(const gpunn_optimizer *opt, int last, int *id)
{
    gpunn_tensor *const *list = opt->parameters;
    const int64_t        end = list[last]->offset + gpunn__count(list[last], 1);
    int                  first = last;
    *id = gpunn__has_gradient(list[last]) && !list[last]->sparse ? list[last]->id : -1;
    for (; first > 0 && *id >= 0; first--) {
        const gpunn_tensor *t = list[first - 1];
        const gpunn__range  range = {first - 1, first, t->offset, t->offset + gpunn__count(t, 1)};
        if (!gpunn__has_gradient(t) || !gpunn__goes_on(&range, list, first, NULL) ||
            (size_t)(end - t->offset) * sizeof(float) > opt->group->args.bucket_bytes)
            break;
        if (t->id < *id) *id = t->id;
    }
    return first;
}

/* Adds the exchange of a bucket to the run: whole, or split by the ranks that update its parts. */
static GPUNN__STATUS gpunn__add_bucket(gpunn_optimizer *opt, float *values, int64_t count, int64_t place,
                                       bool scatters, int after)
{
    gpunn_status   status = GPUNN_OK;
    gpunn_exchange part = {NULL, count, GPUNN_MEAN, 0, false, NULL, 0};
    for (int64_t at = 0; at < count && status == GPUNN_OK; at += part.count) {
        if (scatters) gpunn__cut_share(opt, place + at, count - at, &part);
        status = gpunn__exchange_add(
            opt->group, gpunn__gradients_exchange(opt->group, values + at, part.count, part.root, after));
    }
    return status;
}

/* Adds the exchanges of all gradients in buckets. Layers that were made last come first, since the backward
 * pass begins with them. The order is the same on all ranks. */
static GPUNN__STATUS gpunn__add_buckets(gpunn_optimizer *opt, const gpunn_run *run)
{
    const bool   scatters = gpunn__needs_share(opt, run->update_count);
    gpunn_status status = GPUNN_OK;
    for (int next = INT32_MAX; status == GPUNN_OK;) {
        int first, id, most = -1, from = 0, to = 0;
        for (int last = opt->parameter_count - 1; last >= 0; last = first - 1) {
            first = gpunn__bucket_first(opt, last, &id);
            if (id <= most || id >= next) continue;
            most = id, from = first, to = last;
        }
        if (most < 0) break;
        float *const  values = gpunn__gradient_of(opt->parameters[from]);
        const int64_t count = opt->parameters[to]->offset + gpunn__count(opt->parameters[to], 1) -
                              opt->parameters[from]->offset;
        status = gpunn__add_bucket(opt, values, count, opt->places[from], scatters,
                                   gpunn__complete_after(run, values, count));
        next = most;
    }
    return status;
}

/* Lists what the GPUs of joined ranks exchange in a training step. */
static GPUNN__STATUS gpunn__exchanges_of(gpunn_optimizer *opt, const gpunn_run *run, gpunn_tensor *loss,
                                         bool updates)
{
    gpunn_model         *model = opt->model;
    const gpunn_tensor  *first;
    size_t               bytes;
    const bool           apart = updates && gpunn__needs_share(opt, run->update_count);
    const int            after = apart ? GPUNN_AFTER_CHECK : run->step_count;
    const gpunn_exchange mean = {
        (float *)gpunn__memory_of(loss, false, &bytes), 1, GPUNN_MEAN, after, false, NULL, 0};
    gpunn_exchange spread = {NULL, 0, 0, run->step_count, false, NULL, 0};
    opt->group->exchange_count = 0;
    gpunn_status status = updates ? gpunn__add_buckets(opt, run) : GPUNN_OK;
    for (int id = 0; updates && status == GPUNN_OK;) {
        first = gpunn__next_weights(model, GPUNN__BUFFER, &id, &spread.count);
        if (first == NULL) break;
        spread.values = gpunn__weights(first);
        status = gpunn__exchange_add(opt->group, spread);
    }
    if (status == GPUNN_OK) status = gpunn__exchange_add(opt->group, mean);
    return status == GPUNN_OK && updates && opt->shares ? gpunn__add_shares(opt) : status;
}

/* Adds the updates to a run. In a group of joined devices also adds the
 * exchanges, after all ranks agreed to do the same. */
GPUNN__INTERNAL gpunn_status gpunn__optimizer_collect(gpunn_optimizer *opt, gpunn_run *run,
                                                      gpunn_tensor *loss, bool updates)
{
    run->updates = opt->updates;
    run->update_count = updates ? gpunn__optimizer_updates(opt, opt->parts + 1, true) : 0;
    run->loss_scale = opt->loss_scale;
    run->scales = gpunn__scales_loss(opt);
    run->skips = opt->skips;
    run->counts = updates ? opt->counts : NULL;
    run->rejected = updates ? opt->rejected : NULL;
    run->update = opt->step_count + 1;
    if (!gpunn__in_ranks(opt->group, opt->model->dev)) return GPUNN_OK;
    gpunn_status status = gpunn__all_reduce_update(opt, gpunn__exchanges_of(opt, run, loss, updates), NULL);
    if (status == GPUNN_OK) gpunn__exchanges_put(opt->group, run);
    return status;
}

#ifndef GPUNN__MANY_GRADIENTS
#define GPUNN__MANY_GRADIENTS \
    (1 << 21) /* a kernel before the update looks at fewer in less time than it takes to launch */
#endif

/* Where it stands whether a gradient that an optimizer reads is not finite. NULL: gradients may change
 * without a call, by the program, a replay or other ranks, or are sparse. */
static uint64_t *gpunn__doubt_of(const gpunn_optimizer *opt)
{
    if (opt->rejected == NULL || opt->counts || opt->group) return NULL;
    for (int i = 0; i < opt->parameter_count; i++)
        if (opt->parameters[i]->user_memory[1].data || opt->parameters[i]->sparse) return NULL;
    return (uint64_t *)(opt->rejected + 1 + opt->parameter_count);
}

/* The same for gradients that a run without updates makes, all of them anew, and the model's one
 * optimizer. */
GPUNN__INTERNAL uint64_t *gpunn__doubt_before(gpunn_model *model)
{
    const gpunn_optimizer *opt = model->optimizers;
    if (opt == NULL || opt->next || model->gradient_capacity < GPUNN__MANY_GRADIENTS) return NULL;
    for (int id = 0; id < model->tensor_count; id++)
        if (model->tensors[id]->kind == GPUNN__PARAMETER && model->tensors[id]->grad_reached) return NULL;
    return gpunn__doubt_of(opt);
}

static GPUNN__STATUS gpunn__update_alone(gpunn_optimizer *opt, int count, bool clips)
{
    gpunn_device *dev = opt->model->dev;
    gpunn_status  status = GPUNN_OK;
    if (dev->backend->execute == NULL) {
        if (clips) status = gpunn__clip_updates(opt, count);
        return status == GPUNN_OK ? gpunn__optimizer_apply(opt, count) : status;
    }
    gpunn_run run;
    memset(&run, 0, sizeof run);
    run.state = &opt->model->state;
    run.captured = opt->captured;
    run.updates = opt->updates;
    run.update_count = count;
    run.scales = clips && gpunn__scales_loss(opt);
    run.loss_scale = run.scales || !gpunn__scales_loss(opt) ? opt->loss_scale : NULL;
    run.skips = opt->skips && run.loss_scale;
    run.counts = opt->counts;
    run.rejected = opt->rejected;
    run.update = opt->step_count + 1;
    run.doubt = gpunn__doubt_of(opt);
    run.is_checked = run.doubt && opt->checked == opt->model->written_gradients;
    status = gpunn__execute(dev, &run, opt->name);
    opt->captured = run.captured;
    opt->checked = run.doubt && status == GPUNN_OK ? opt->model->written_gradients : 0;
    if (status == GPUNN_OK) gpunn__optimizer_advance(opt, &run);
    return status;
}

/* Makes all ranks have the same parameters after an update, or reports its failure. No all-reduce of statuses
 * is needed if nothing is copied through the host and all ranks have all states. Then an update fails on no
 * rank, or, with joined GPUs, the next agreement reports it. */
static GPUNN__STATUS gpunn__spread_update(gpunn_optimizer *opt, gpunn_status status)
{
    gpunn_group *group = opt->group;
    const bool   copies = group->copies && !gpunn__in_ranks(group, opt->model->dev);
    if (opt->shares || copies || group->unlike)
        status = gpunn__all_reduce_status(group, status, NULL, "the end of update %lld",
                                          gpunn__common_number(opt) - 1);
    if (status != GPUNN_OK) return status;
    if (opt->shares) return gpunn__spread_shares(opt);
    return group->unlike ? gpunn__spread_weights(opt, GPUNN__PARAMETER) : GPUNN_OK;
}

/* trains: the gradients come from a training step and are not read after it. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__optimizer_update(gpunn_optimizer *opt, int parts, bool clips,
                                                      bool trains)
{
    const int    count = gpunn__optimizer_updates(opt, parts, clips);
    const bool   joined = gpunn__in_ranks(opt->group, opt->model->dev);
    gpunn_status status = opt->group ? gpunn__average_gradients(opt, trains && gpunn__needs_share(opt, count))
                                     : GPUNN_OK;
    if (status != GPUNN_OK) return status;
    if (opt->model->doubtful && (opt->model->dev->backend->execute == NULL || (opt->group && !joined)))
        status = gpunn__check_gradients(opt);
    if (opt->shares && !joined)
        status = gpunn__all_reduce_status(opt->group, status, NULL, "the gradients of update %lld",
                                          gpunn__common_number(opt));
    if (status != GPUNN_OK) return status;
    status = gpunn__update_alone(opt, count, clips);
    return opt->group ? gpunn__spread_update(opt, status) : status;
}

/* Continues a training step after this rank's gradients, or after its failure. */
static GPUNN__STATUS gpunn__train_together(gpunn_optimizer *opt, gpunn_tensor *loss, bool updates,
                                           int64_t reductions, gpunn_status status)
{
    gpunn_device *dev = opt->model->dev;
    float         value = 0;
    size_t        bytes;
    if (status != GPUNN_OK && gpunn__has_reported(opt->group, reductions)) return status;
    if (status == GPUNN_OK) status = gpunn__read_loss(loss, &value);
    if (status == GPUNN_OK && updates) status = gpunn__rows_room(opt);
    status = gpunn__all_reduce_update(opt, status, &value);
    if (status != GPUNN_OK) return status;
    status = dev->backend->upload(dev->context, gpunn__memory_of(loss, false, &bytes), &value, sizeof value);
    status = gpunn__copies_end(opt->group, dev, status);
    return status == GPUNN_OK && updates ? gpunn__optimizer_update(opt, opt->parts + 1, true, true) : status;
}

/* Agrees with the other ranks on an update of gradients that are ready, and makes it. */
static GPUNN__STATUS gpunn__update_apart(gpunn_optimizer *opt, int parts, bool clips, gpunn_status status)
{
    if (opt->group && status == GPUNN_OK) status = gpunn__rows_room(opt);
    if (opt->group) status = gpunn__all_reduce_update(opt, status, NULL);
    return status == GPUNN_OK ? gpunn__optimizer_update(opt, parts, clips, false) : status;
}

/* A training step of joined GPUs, which exchange within the run, but for rows of tables, which they exchange
 * after it. The ranks agree before it. All GPUs note a loss that is not finite; each host learns of it at
 * some later time. The first to report it tells all. */
static GPUNN__STATUS gpunn__train_joined(gpunn_optimizer *opt, gpunn_tensor *loss,
                                         const gpunn_backward_args *backward, bool updates,
                                         gpunn_status status)
{
    static const char function[] = "gpunn_train_step";
    gpunn_device     *dev = opt->model->dev;
    const int64_t     reductions = opt->group->reductions;
    const bool        apart = updates && gpunn__gathers_any(opt);
    if (status == GPUNN_OK) status = gpunn__earlier_runs(dev, function);
    if (status == GPUNN_OK) status = gpunn__gradients(loss, backward, opt, updates && !apart);
    status = gpunn__report_to_ranks(opt->group, reductions, status);
    if (status == GPUNN_OK && apart) status = gpunn__update_apart(opt, opt->parts + 1, true, status);
    if (status != GPUNN_ERR_NUMERIC) return status;
    gpunn_run run; /* clears this rank's own note */
    memset(&run, 0, sizeof run);
    if (dev->backend->synchronize(dev->context) == GPUNN_OK) (void)dev->backend->execute(dev->context, &run);
    return status;
}

GPUNN_API gpunn_status gpunn_train_step_(gpunn_optimizer *opt, gpunn_tensor *loss, gpunn_train_step_args args)
{
    static const char function[] = "gpunn_train_step";
    gpunn_device     *dev = loss ? loss->model->dev : NULL;
    if (opt) dev = opt->model->dev;
    if (opt == NULL || loss == NULL) return gpunn__fail_null(dev, function, opt ? "loss" : "optimizer");
    if (loss->model != opt->model)
        return gpunn__fail(opt->model->dev, GPUNN_ERR_ARGUMENT,
                           "%s: the loss is of another model than the optimizer", function);
    if (args.accumulate < 0)
        return gpunn__fail(opt->model->dev, GPUNN_ERR_ARGUMENT,
                           "%s: accumulate is %d; use the number of calls for one update, or 0", function,
                           args.accumulate);
    gpunn_backward_args backward;
    memset(&backward, 0, sizeof backward);
    backward.optimizer = opt;
    const bool    first = opt->model->dev->error.status == GPUNN_OK;
    gpunn_status  status = gpunn__optimizer_prepare(opt);
    const bool    updates = opt->parts + 1 >= args.accumulate;
    const int64_t reductions = opt->group ? opt->group->reductions : 0;
    if (gpunn__in_ranks(opt->group, opt->model->dev))
        status = gpunn__train_joined(opt, loss, &backward, updates, status);
    else {
        if (status == GPUNN_OK)
            status = gpunn__gradients(loss, &backward, opt, updates && opt->group == NULL);
        if (opt->group) status = gpunn__train_together(opt, loss, updates, reductions, status);
    }
    status = gpunn__put_back(opt->model, status);
    if (status == GPUNN_ERR_NUMERIC)
        opt->parts = 0;
    else if (status == GPUNN_OK)
        opt->parts = updates ? 0 : opt->parts + 1;
    return status == GPUNN_ERR_NUMERIC && opt->skips ? gpunn__skip_step(opt, first) : status;
}

GPUNN_API gpunn_status gpunn_optimizer_step(gpunn_optimizer *opt)
{
    if (opt == NULL) return gpunn__fail_null(NULL, "gpunn_optimizer_step", "optimizer");
    gpunn_status status = gpunn__optimizer_prepare(opt);
    const bool   ends = opt->parts > 0, first = opt->model->dev->error.status == GPUNN_OK;
    if (status == GPUNN_OK && gpunn__in_ranks(opt->group, opt->model->dev))
        status = gpunn__earlier_runs(opt->model->dev, "gpunn_optimizer_step");
    status = gpunn__update_apart(opt, ends ? opt->parts : 1, ends, status);
    return status == GPUNN_ERR_NUMERIC && opt->skips ? gpunn__skip_step(opt, first) : status;
}

/* Describes the settings of a parameter or of running statistics that affect training. */
static void gpunn__treatment_text(const gpunn_tensor *t, char *text, size_t size)
{
    text[0] = 0;
    if (t->kind == GPUNN__PARAMETER)
        (void)snprintf(text, size, "%s, lr_scale %g%s", t->trainable ? "" : ", frozen", (double)t->lr_scale,
                       t->decay ? "" : ", no decay");
    else if (t->frozen)
        (void)snprintf(text, size, ", frozen");
}

static GPUNN__STATUS gpunn__compare_settings(const gpunn_optimizer *opt, const float *setting,
                                             float clip_norm, float clip_value, int group)
{
    char     text[256] = "";
    int      count = 0, length = 0;
    uint32_t which = 0;
    for (int i = 0;
         i < GPUNN_SETTINGS && gpunn__rules[opt->rule.kind].setting[i].key && length < (int)sizeof text; i++)
        length += snprintf(text + length, sizeof text - (size_t)length, ", %s %.9g",
                           gpunn__rules[opt->rule.kind].setting[i].key, (double)setting[i]);
    for (int i = 0; i < opt->parameter_count; i++) {
        if (opt->param_group_of[i] != group) continue;
        which = which * 31 + (uint32_t)opt->parameters[i]->id;
        count++;
    }
    return gpunn__all_reduce_status(opt->group, GPUNN_OK, NULL,
                                    "settings of %d parameters (%08x), clip norm %g and value %g%s", count,
                                    (unsigned)which, (double)clip_norm, (double)clip_value, text);
}

/* Fails if the ranks have different tensors, optimizers or counts. The message names the first difference. */
static GPUNN__STATUS gpunn__compare_ranks(gpunn_optimizer *opt, gpunn_status status)
{
    gpunn_model *model = opt->model;
    gpunn_group *group = opt->group;
    char         text[512], shape[128], treatment[64];
    if (status == GPUNN_OK && group->args.shard && gpunn__takes_whole(opt->rule.kind))
        status = gpunn__fail(model->dev, GPUNN_ERR_UNSUPPORTED,
                             "gpunn_distribute: %s has %s, for which a rank needs whole "
                             "parameters; open the group without .shard",
                             opt->name,
                             gpunn__rules[opt->rule.kind].move ? "a trust ratio" : "matrix updates");
    status = gpunn__all_reduce_status(
        group, status, NULL, "gpunn %s, precision %d, seed %llu and %d tensors", GPUNN_VERSION,
        (int)model->precision, (unsigned long long)(model->state.seed - model->salt), model->tensor_count);
    for (int id = 0; id < model->tensor_count && status == GPUNN_OK; id++) {
        const gpunn_tensor *t = model->tensors[id];
        gpunn__node_text(t, text, sizeof text);
        gpunn__treatment_text(t, treatment, sizeof treatment);
        status = gpunn__all_reduce_status(group, status, NULL, "'%.60s' %.60s%s, %.100s", gpunn__called(t),
                                          gpunn__shape_text(t, shape), treatment,
                                          t->kind == GPUNN__VALUE ? text : gpunn_dtype_name(t->dtype));
    }
    if (status == GPUNN_OK)
        status = gpunn__all_reduce_status(
            group, status, NULL,
            "%s of %d parameters, groups of settings %d, average %g, after %lld updates and %d epochs%s",
            opt->name, opt->parameter_count, opt->param_group_count, (double)opt->average_decay,
            (long long)opt->step_count, opt->fit.epochs, gpunn__scales_loss(opt) ? ", a loss scale" : "");
    if (status == GPUNN_OK)
        status = gpunn__compare_settings(opt, opt->rule.setting, opt->clip_norm, opt->clip_value, -1);
    for (int i = 0; i < opt->param_group_count && status == GPUNN_OK; i++)
        status = gpunn__compare_settings(opt, opt->param_groups[i].setting, opt->param_groups[i].clip_norm,
                                         opt->param_groups[i].clip_value, i);
    return status;
}

GPUNN_API gpunn_status gpunn_distribute(gpunn_optimizer *opt, gpunn_group *group)
{
    if (opt == NULL) return gpunn__fail_null(NULL, "gpunn_distribute", "optimizer");
    gpunn_model *model = opt->model;
    gpunn_group *before = opt->group;
    gpunn_status status = opt->shares ? gpunn__states_rejoin(opt) : GPUNN_OK;
    if (status != GPUNN_OK) return status;
    const bool shards = group && group->args.shard && group->args.size > 1, first = opt->parameter_count == 0;
    gpunn__group_join(group);
    opt->group = group;
    opt->shares = shards && first; /* no rank ever holds all states */
    status = group ? gpunn__compare_ranks(opt, gpunn__optimizer_prepare(opt)) : GPUNN_OK;
    if (group && status == GPUNN_OK) status = gpunn__spread_weights(opt, GPUNN__PARAMETER);
    if (group && status == GPUNN_OK) status = gpunn__spread_weights(opt, GPUNN__BUFFER);
    for (int i = 0; i < GPUNN__STATES && group && status == GPUNN_OK; i++)
        if (opt->states.data[i] && !opt->shares)
            status = gpunn__exchange_memory(group, model->dev, opt->states.data[i], opt->state_count, 0);
    if (shards && !opt->shares && status == GPUNN_OK) status = gpunn__states_cut(opt);
    const bool done = status == GPUNN_OK;
    if (!done && opt->shares) gpunn__optimizer_forget(opt);
    if (done) gpunn__forget_runs(opt, before);
    if (done) {
        const uint64_t salt = (uint64_t)gpunn_group_rank(group) * UINT64_C(0x9E3779B97F4A7C15);
        model->state.seed += salt - model->salt;
        model->salt = salt;
    }
    opt->group = done ? group : before;
    gpunn__update_ranks(model);
    gpunn__group_leave(done ? before : group);
    return status;
}

/* Every gradient becomes clamp(gradient * scale, -limit, limit). */
static GPUNN__STATUS gpunn__scale_gradients(gpunn_model *model, const char *function, float scale,
                                            float limit)
{
    gpunn_device *dev = model->dev;
    gpunn_status  status = GPUNN_OK;
    gpunn__range  range = {0, 0, 0, 0};
    model->written_gradients++;
    while (status == GPUNN_OK && gpunn__next_range(&range, model->tensors, model->tensor_count, NULL))
        status = dev->backend->scale(dev->context, gpunn__gradient_of(model->tensors[range.first]),
                                     range.end - range.begin, scale, limit);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, function, status);
}

GPUNN_API gpunn_status gpunn_clip_grad_norm(gpunn_model *model, float max_norm, float *total_norm)
{
    static const char function[] = "gpunn_clip_grad_norm";
    if (model == NULL) return gpunn__fail_null(NULL, function, "model");
    if (!(max_norm > 0))
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT, "%s: max_norm is %g; use a number above 0",
                           function, (double)max_norm);
    double       norm = 0;
    gpunn_status status = gpunn__gradient_norm(model, function, &norm);
    if (total_norm) *total_norm = (float)norm;
    float scale = gpunn__clip_scale(max_norm, norm);
    return status == GPUNN_OK && scale < 1 ? gpunn__scale_gradients(model, function, scale, 0) : status;
}

GPUNN_API gpunn_status gpunn_clip_grad_value(gpunn_model *model, float clip_value)
{
    static const char function[] = "gpunn_clip_grad_value";
    if (model == NULL) return gpunn__fail_null(NULL, function, "model");
    if (!(clip_value > 0))
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT, "%s: clip_value is %g; use a number above 0",
                           function, (double)clip_value);
    return gpunn__scale_gradients(model, function, 1, clip_value);
}

/* Sets one of the optimizer's numbers. Fails if the value is NaN or negative. */
static void gpunn__optimizer_set(gpunn_optimizer *opt, const char *function, const char *what, float *field,
                                 float value)
{
    if (opt == NULL)
        (void)gpunn__fail_null(NULL, function, "optimizer");
    else if (gpunn__check_range(opt->model->dev, function, what, value, 0, INFINITY))
        *field = value;
}

GPUNN_API void gpunn_set_lr(gpunn_optimizer *opt, float lr)
{
    gpunn__optimizer_set(opt, "gpunn_set_lr", "lr", opt ? &opt->lr : NULL, lr);
}

GPUNN_API void gpunn_set_clip_norm(gpunn_optimizer *opt, float max_norm)
{
    gpunn__optimizer_set(opt, "gpunn_set_clip_norm", "max_norm", opt ? &opt->clip_norm : NULL, max_norm);
}

GPUNN_API void gpunn_set_clip_value(gpunn_optimizer *opt, float clip_value)
{
    gpunn__optimizer_set(opt, "gpunn_set_clip_value", "clip_value", opt ? &opt->clip_value : NULL,
                         clip_value);
}

GPUNN_API float gpunn_get_lr(const gpunn_optimizer *opt)
{
    return opt ? (float)gpunn__scheduled_lr(opt, opt->lr) : 0;
}

GPUNN_API float gpunn_loss_scale(gpunn_optimizer *opt, int64_t *skipped)
{
    const bool known = opt && gpunn__scale_sync(opt, true) == GPUNN_OK;
    if (skipped) *skipped = known ? (int64_t)opt->kept_scale[2] : 0;
    return known && gpunn__scales_loss(opt) ? opt->kept_scale[0] : 1;
}

GPUNN_API void gpunn_set_skip_nan(gpunn_optimizer *opt, bool skip)
{
    if (opt)
        opt->skips = skip;
    else
        (void)gpunn__fail_null(NULL, "gpunn_set_skip_nan", "optimizer");
}

GPUNN_API int64_t gpunn_step_count(const gpunn_optimizer *opt)
{
    return opt ? opt->step_count : 0;
}
