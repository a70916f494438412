#include "train/step.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/shapes.h"
#include "base/device.h"
#include "plan/plan.h"
#include "cpu/optimizers.h"
#include "train/optimizer.h"

GPUNN__INTERNAL bool gpunn__has_gradient(const gpunn_tensor *t)
{
    return t->kind == GPUNN__PARAMETER && t->trainable && t->grad_reached;
}

GPUNN__INTERNAL bool gpunn__goes_on(const gpunn__range *range, gpunn_tensor *const *list, int i,
                                    const gpunn_optimizer *opt)
{
    const gpunn_tensor *t = list[i], *first = list[range->first];
    int64_t             padded = gpunn__aligned(range->end);
    if (!gpunn__has_gradient(t) || t->offset != padded || gpunn__is_user_owned(t) ||
        gpunn__is_user_owned(first) || t->sparse || first->sparse)
        return false;
    if (opt == NULL) return true;
    if (gpunn__takes_whole(opt->rule.kind)) return false;
    bool same_decay = t->decay == first->decay || opt->rule.setting[opt->decay] == 0;
    return t->lr_scale == first->lr_scale && same_decay && opt->steps[i] == opt->steps[range->first] &&
           opt->param_group_of[i] == opt->param_group_of[range->first] &&
           (opt->keeps_zeros || range->end == padded);
}

GPUNN__INTERNAL bool gpunn__next_range(gpunn__range *range, gpunn_tensor *const *list, int count,
                                       const gpunn_optimizer *opt)
{
    int i = range->next;
    while (i < count && !gpunn__has_gradient(list[i])) i++;
    range->first = range->next = i;
    if (i == count) return false;
    range->begin = list[i]->offset;
    do range->end = list[i]->offset + gpunn__gradient_count(list[i]);
    while (++i < count && gpunn__goes_on(range, list, i, opt));
    range->next = i;
    return true;
}

/* Adds the sum of the squares of `count` gradients to *sum. */
static GPUNN__STATUS gpunn__add_squares(gpunn_device *dev, const char *function, const float *gradient,
                                        int64_t count, double *sum)
{
    double       part = 0;
    gpunn_status status = dev->backend->sum_of_squares(dev->context, gradient, count, &part);
    *sum += part;
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, function, status);
}

/* *norm becomes the square root of sum. Fails if that is NaN or infinite. */
static GPUNN__STATUS gpunn__norm_of(gpunn_device *dev, const char *function, double sum, double *norm)
{
    const char *fault = gpunn__not_finite(&sum, sizeof sum);
    *norm = sqrt(sum);
    if (fault == NULL) return GPUNN_OK;
    return gpunn__fail(dev, GPUNN_ERR_NUMERIC,
                       "%s: the norm of the gradients is %s; lower the learning rate, or look for a division "
                       "by 0 or a log of 0 in the model",
                       function, fault);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__gradient_norm(gpunn_model *model, const char *function, double *norm)
{
    double       sum = 0;
    gpunn_status status = GPUNN_OK;
    gpunn__range range = {0, 0, 0, 0};
    while (status == GPUNN_OK && gpunn__next_range(&range, model->tensors, model->tensor_count, NULL))
        status = gpunn__add_squares(model->dev, function, gpunn__gradient_of(model->tensors[range.first]),
                                    range.end - range.begin, &sum);
    return status == GPUNN_OK ? gpunn__norm_of(model->dev, function, sum, norm) : status;
}

GPUNN__INTERNAL float gpunn__clip_scale(float max_norm, double norm)
{
    double scale = max_norm / (norm + 1e-6);
    return scale < 1 ? (float)scale : 1;
}

/* Whether a generated kernel reads this setting from the update. All
 * other settings are constants in its text. */
static bool gpunn__is_free(const char *key)
{
    static const char *const keys[] = {"lr", "weight_decay", "maximize", "initial_accumulator_value"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
}

/* Gives an update the generated kernel for its kind and settings, if there is one. */
static void gpunn__find_fused(gpunn_update *update, const gpunn_kernel_set *set)
{
    const gpunn__setting *setting = gpunn__rules[update->kind].setting;
    for (int i = 0; set && i < set->update_count; i++) {
        const gpunn_kernel_update *fused = &set->updates[i];
        bool                       fits = fused->kind == update->kind &&
                    (update->half == NULL || fused->half_dtype == update->half_dtype);
        for (int k = 0; fits && setting[k].key; k++)
            fits = fused->setting[k] == update->setting[k] || gpunn__is_free(setting[k].key);
        if (!fits) continue;
        update->fused = fused;
        update->fused_launch = set->cuda ? set->cuda->update[i] : NULL;
    }
}

GPUNN__INTERNAL bool gpunn__follows_in_memory(const gpunn_optimizer *opt, int i, int64_t end)
{
    return opt->parameters[i]->offset == gpunn__aligned(end) && !gpunn__is_user_owned(opt->parameters[i]) &&
           !gpunn__is_user_owned(opt->parameters[i - 1]);
}

/* The number of the next update. On a CPU it excludes skipped updates; a GPU subtracts them by itself. */
static int64_t gpunn__step_number(const gpunn_optimizer *opt, int64_t done)
{
    const int64_t number = done + 1 - (opt->model->dev->backend->execute ? 0 : (int64_t)opt->kept_scale[2]);
    return number < 1 ? 1 : number;
}

/* Makes the update of the averages at a place from the weights there. */
static void gpunn__average_update(const gpunn_optimizer *opt, gpunn_update *update, int64_t place,
                                  const float *weights, int64_t count)
{
    memset(update, 0, sizeof *update);
    update->kind = GPUNN_UPDATE_AVERAGE;
    update->setting[0] = (float)(1 - gpunn__as_written(opt->average_decay));
    update->gradient_scale = 1;
    update->count = count;
    update->parameter = gpunn__state_at(opt, GPUNN__AVERAGE, place);
    update->gradient = weights;
    update->step = gpunn__step_number(opt, opt->averaged);
}

/* The learning rate of a parameter without a group's own. */
static float gpunn__base_lr(const gpunn_optimizer *opt, const gpunn_tensor *t)
{
    return opt->rule.kind == GPUNN_UPDATE_MUON && t->rank != 2
               ? gpunn__setting_of(GPUNN_UPDATE_MUON, opt->rule.setting, "adamw_lr")
               : opt->lr;
}

/* Sets the learning rate and other settings of an update from its first parameter's group, or from the
 * optimizer. clips: sets the clipping limits too. */
static void gpunn__update_settings(const gpunn_optimizer *opt, int first, bool clips, gpunn_update *update)
{
    const gpunn_tensor       *t = opt->parameters[first];
    const int                 group = opt->param_group_of[first];
    const gpunn__param_group *own = group < 0 ? NULL : &opt->param_groups[group];
    float                     lr = own && own->setting[0] >= 0 ? own->setting[0] : gpunn__base_lr(opt, t);
    for (int i = 1; own && i < GPUNN_SETTINGS; i++)
        if (own->setting[i] >= 0) update->setting[i] = own->setting[i];
    update->setting[0] = (float)(gpunn__scheduled_lr(opt, lr) * (double)t->lr_scale);
    if (!t->decay) update->setting[opt->decay] = 0;
    if (!clips) return;
    update->gradient_limit = own && own->clip_value >= 0 ? own->clip_value : opt->clip_value;
    update->clip_group = own && own->clip_norm >= 0 ? group + 1 : 0;
    update->clip_norm = update->clip_group ? own->clip_norm : opt->clip_norm;
}

/* Completes Muon's update of a parameter. One that is no matrix is updated as by ADAMW. */
static void gpunn__update_matrix(const gpunn_optimizer *opt, const gpunn_tensor *t, gpunn_update *update)
{
    float adamw[GPUNN_SETTINGS] = {update->setting[0]};
    if (t->rank == 2) {
        update->columns = t->dim[1];
        update->workspace = opt->workspace;
        return;
    }
    for (int i = 1; gpunn__rules[GPUNN_UPDATE_ADAMW].setting[i].key; i++) {
        const gpunn__setting *own = &gpunn__rules[GPUNN_UPDATE_ADAMW].setting[i];
        adamw[i] = strcmp(own->key, "eps") == 0 ? own->usual
                                                : gpunn__setting_of(update->kind, update->setting, own->key);
    }
    update->kind = GPUNN_UPDATE_ADAMW;
    memcpy(update->setting, adamw, sizeof adamw);
}

/* Makes an update that of a sparse table. */
static void gpunn__update_rows(const gpunn_tensor *table, gpunn_update *update)
{
    update->columns = table->dim[1];
    update->rows = gpunn__sparse_rows(table->compact.values, update->count);
    if (update->kind == GPUNN_UPDATE_ADAM) update->kind = GPUNN_UPDATE_SPARSE_ADAM;
}

/* The setting by which an update changes rows that are not in its gradient; NULL: there is none. */
static const char *gpunn__moving_setting(const gpunn_optimizer *opt, const gpunn_update *update)
{
    if (update->setting[opt->decay] != 0) return "weight_decay";
    for (int k = 0; k < GPUNN__AVERAGE; k++)
        if (opt->uses[k] && strcmp(gpunn__rules[update->kind].state[k], "ALWAYS") != 0)
            return gpunn__rules[update->kind].state[k];
    return NULL;
}

/* gpunn__check_sparse for parameter i. */
static GPUNN__STATUS gpunn__check_table(const gpunn_optimizer *opt, int i)
{
    gpunn_device *dev = opt->model->dev;
    const char   *name = opt->parameters[i]->name, *setting;
    gpunn_update  update = opt->rule;
    gpunn__update_settings(opt, i, false, &update);
    if (update.kind != GPUNN_UPDATE_SGD && update.kind != GPUNN_UPDATE_ADAGRAD &&
        update.kind != GPUNN_UPDATE_ADAM)
        return gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                           "%s cannot train '%s', whose layer has .sparse; use gpunn_adam, gpunn_adagrad "
                           "or gpunn_sgd for it, or leave .sparse out",
                           opt->name, name);
    if ((setting = gpunn__moving_setting(opt, &update)) != NULL)
        return gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                           "%s cannot train '%s' with %s, since its layer has .sparse; set it to 0 for "
                           "the table, or leave .sparse out",
                           opt->name, name, setting);
    if (gpunn_group_size(opt->group) > 1 && opt->group->args.shard)
        return gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                           "%s cannot train '%s' in a group with .shard, since its layer has .sparse; "
                           "open the group without .shard",
                           opt->name, name);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__check_sparse(const gpunn_optimizer *opt)
{
    gpunn_status status = GPUNN_OK;
    for (int i = 0; i < opt->parameter_count && status == GPUNN_OK; i++)
        if (opt->parameters[i]->sparse && opt->parameters[i]->trainable) status = gpunn__check_table(opt, i);
    return status;
}

/* Adds an update of the states from `place` on. It splits off the parts that other
 * ranks update; these only contribute to norms. */
static void gpunn__add_update(const gpunn_optimizer *opt, const gpunn_update *update, int64_t place,
                              int *count)
{
    int64_t from, to, at = 0;
    if (update->rows) {
        opt->updates[(*count)++] = *update;
        return;
    }
    if (!gpunn__states_overlap(&opt->states, place, update->count, &from, &to)) from = to = update->count;
    const int64_t ends[] = {from, to, update->count};
    for (int i = 0; i < 3; at = ends[i++]) {
        gpunn_update *part = &opt->updates[*count];
        if (at == ends[i] || (i != 1 && update->kind == GPUNN_UPDATE_AVERAGE)) continue;
        *part = *update;
        part->count = ends[i] - at;
        part->gradient += at;
        part->parameter = i == 1 ? part->parameter + at : NULL;
        if (part->half) part->half = (char *)part->half + 2 * at;
        for (int k = 0; k < 3; k++) part->state[k] = i == 1 && part->state[k] ? part->state[k] + at : NULL;
        ++*count;
    }
}

GPUNN__INTERNAL int gpunn__optimizer_updates(gpunn_optimizer *opt, int parts, bool clips)
{
    gpunn_model *model = opt->model;
    const bool   maximize = gpunn__setting_of(opt->rule.kind, opt->rule.setting, "maximize") != 0;
    gpunn__range range = {0, 0, 0, 0};
    int          count = 0;
    while (gpunn__next_range(&range, opt->parameters, opt->parameter_count, opt)) {
        const gpunn_tensor *first = opt->parameters[range.first];
        const int64_t       place = opt->places[range.first];
        gpunn_update        update = opt->rule;
        update.gradient_scale = (maximize ? -1.0f : 1.0f) / (float)parts;
        update.count = range.end - range.begin;
        update.parameter = gpunn__weights(first);
        update.half = model->half ? (char *)model->half + range.begin * 2 : NULL;
        update.half_dtype = gpunn__half_of(model);
        update.gradient = gpunn__gradient_of(first);
        for (int i = 0; i < 3; i++) update.state[i] = gpunn__state_at(opt, i, place);
        update.step = gpunn__step_number(opt, opt->steps[range.first]);
        update.first = 1 + range.first;
        update.last = 1 + range.next;
        gpunn__update_settings(opt, range.first, clips, &update);
        if (update.kind == GPUNN_UPDATE_MUON) gpunn__update_matrix(opt, first, &update);
        if (first->sparse)
            gpunn__update_rows(first, &update);
        else
            gpunn__find_fused(&update, model->kernels);
        gpunn__add_update(opt, &update, place, &count);
    }
    for (int i = 0, next; opt->states.data[GPUNN__AVERAGE] && i < opt->parameter_count; i = next) {
        const gpunn_tensor *first = opt->parameters[i];
        int64_t             end = first->offset + gpunn__count(first, 1);
        for (next = i + 1; next < opt->parameter_count && gpunn__follows_in_memory(opt, next, end); next++)
            end = opt->parameters[next]->offset + gpunn__count(opt->parameters[next], 1);
        gpunn_update update;
        gpunn__average_update(opt, &update, opt->places[i], gpunn__weights(first), end - first->offset);
        gpunn__add_update(opt, &update, opt->places[i], &count);
    }
    return count;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__skip_step(gpunn_optimizer *opt, bool first)
{
    gpunn_status status = gpunn__scale_sync(opt, true);
    if (status != GPUNN_OK) return status;
    if (first) gpunn_clear_error(opt->model->dev);
    opt->kept_scale[2]++;
    for (int i = 0; i < opt->parameter_count; i++) opt->steps[i]++;
    opt->step_count++;
    opt->averaged += opt->states.data[GPUNN__AVERAGE] != NULL;
    return gpunn__scale_sync(opt, false);
}

/* run: the run that contained the updates; NULL: none. */
GPUNN__INTERNAL void gpunn__optimizer_advance(gpunn_optimizer *opt, const gpunn_run *run)
{
    const bool done = !(run && run->captured_only);
    for (int i = 0; i < opt->parameter_count; i++)
        opt->steps[i] += done && gpunn__has_gradient(opt->parameters[i]);
    opt->step_count += done;
    opt->parts = 0;
    opt->averaged += done && opt->states.data[GPUNN__AVERAGE] != NULL;
    opt->model->state.weights_version++;            /* the updates have renewed model->half ... */
    if (opt->shares) opt->model->half_stale = true; /* ... but only this rank's share of it */
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__optimizer_apply(gpunn_optimizer *opt, int count)
{
    gpunn_device *dev = opt->model->dev;
    for (int i = 0; i < count; i++) {
        gpunn_status status = opt->updates[i].parameter ? dev->backend->update(dev->context, &opt->updates[i])
                                                        : GPUNN_OK;
        if (status != GPUNN_OK) return gpunn__backend_fail(dev, opt->name, status);
    }
    gpunn__optimizer_advance(opt, NULL);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__clip_updates(gpunn_optimizer *opt, int count)
{
    static const char function[] = "gpunn_train_step";
    for (int group = 0; group <= opt->param_group_count; group++) {
        double       sum = 0, norm = 0;
        float        limit = 0;
        gpunn_status status = GPUNN_OK;
        for (int i = 0; i < count && status == GPUNN_OK; i++) {
            const gpunn_update *u = &opt->updates[i];
            if (u->clip_group != group || !(u->clip_norm > 0)) continue;
            limit = u->clip_norm;
            status = gpunn__add_squares(opt->model->dev, function, u->gradient, u->count, &sum);
        }
        if (status == GPUNN_OK) status = gpunn__norm_of(opt->model->dev, function, sum, &norm);
        if (status != GPUNN_OK) return status;
        for (int i = 0; i < count; i++) { /* excludes averages */
            gpunn_update *u = &opt->updates[i];
            if (u->clip_group == group && u->clip_norm > 0)
                u->gradient_scale *= gpunn__clip_scale(limit, norm * fabs((double)u->gradient_scale));
        }
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__check_gradients(gpunn_optimizer *opt)
{
    static const char function[] = "gpunn_train_step";
    gpunn_model      *model = opt->model;
    bool              user_owned = false;
    char              text[256];
    for (int i = 0; i < opt->parameter_count; i++) {
        const gpunn_tensor *t = opt->parameters[i];
        int64_t             from = 0, to = gpunn__gradient_count(t);
        double              sum = 0;
        user_owned = user_owned || t->user_memory[1].data;
        if (!gpunn__has_gradient(t) ||
            (!t->sparse && !gpunn__states_overlap(&opt->states, opt->places[i], to, &from, &to)))
            continue;
        gpunn_status status = gpunn__add_squares(model->dev, function, gpunn__gradient_of(t) + from,
                                                 to - from, &sum);
        const char  *fault = gpunn__not_finite(&sum, sizeof sum);
        if (status != GPUNN_OK) return status;
        if (fault == NULL) continue;
        gpunn__gradient_text(t, text, sizeof text);
        return gpunn__fail(model->dev, GPUNN_ERR_NUMERIC, GPUNN__BAD_VALUE, text, fault,
                           (unsigned long long)model->state.step);
    }
    if (opt->scope == 0 && !user_owned) model->doubtful = false;
    return GPUNN_OK;
}
