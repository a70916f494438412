#include "train/optimizer.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/shapes.h"
#include "base/device.h"
#include "base/model.h"
#include "ranks/group.h"
#include "graph/tensors.h"
#include "plan/plan.h"
#include "run/run.h"
#include "cpu/optimizers.h"

GPUNN__INTERNAL bool gpunn__check_range(gpunn_device *dev, const char *function, const char *field,
                                        float value, float low, float high)
{
    if (value >= low && value < high) return true;
    if (isinf(high))
        (void)gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: %s is %g; use a finite number of at least %g",
                          function, field, (double)value, (double)low);
    else
        (void)gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: %s is %g; use a number of at least %g and below %g",
                          function, field, (double)value, (double)low, (double)high);
    return false;
}

/* ---- creating ------------------------------------------------------------------------------------------ */

GPUNN__INTERNAL bool gpunn__has_state(gpunn_update_kind kind, const float *setting, int k)
{
    const char *needed = gpunn__rules[kind].state[k];
    return needed && (strcmp(needed, "ALWAYS") == 0 || gpunn__setting_of(kind, setting, needed) != 0);
}

GPUNN__INTERNAL bool gpunn__takes_whole(gpunn_update_kind kind)
{
    return gpunn__rules[kind].move || kind == GPUNN_UPDATE_MUON;
}

/* Derives fields from settings, whenever these are new. */
static void gpunn__optimizer_update_fields(gpunn_optimizer *opt)
{
    const gpunn_update_kind kind = opt->rule.kind;
    for (int k = 0; k < GPUNN__AVERAGE; k++) opt->uses[k] = gpunn__has_state(kind, opt->rule.setting, k);
    opt->state_start = gpunn__setting_of(kind, opt->rule.setting, "initial_accumulator_value");
    opt->decay = gpunn__setting_at(kind, "weight_decay");
    opt->keeps_zeros = gpunn__setting_at(kind, "eps") < 0 ||
                       gpunn__setting_of(kind, opt->rule.setting, "eps") != 0;
}

/* Fails if another optimizer trains one of the parameters from tensor `from` on,
 * when either of the two selects parameters. */
static GPUNN__STATUS gpunn__check_unshared(const gpunn_optimizer *opt, int from, gpunn_status status)
{
    const gpunn_model *model = opt->model;
    for (const gpunn_optimizer *other = model->optimizers; other; other = other->next)
        for (int id = from; other != opt && (opt->scope || other->scope) && id < model->tensor_count; id++) {
            const gpunn_tensor *t = model->tensors[id];
            if (gpunn__is_chosen(opt, t) && gpunn__is_chosen(other, t))
                return gpunn__fail(model->dev, status,
                                   "%s: another optimizer, %s, trains '%s' too; give each its own with "
                                   ".parameters or .prefix, or destroy one",
                                   opt->name, other->name, t->name);
        }
    return GPUNN_OK;
}

/* What is wrong with a tensor that is listed to be trained, or NULL. */
static const char *gpunn__untrainable(const gpunn_model *model, const gpunn_tensor *t)
{
    if (t == NULL) return "NULL; an earlier builder failed, or gpunn_find found no such name";
    if (t->model != model) return "from another model";
    if (t->kind != GPUNN__PARAMETER) return "not a parameter; inputs, buffers and values are not trained";
    return NULL;
}

/* Copies a list and a prefix to `chosen`. where: start of error messages, as in "gpunn_adam: ". */
static GPUNN__STATUS gpunn__choose(gpunn_model *model, const char *where, gpunn_tensor *const *list,
                                   int count, const char *prefix, gpunn__chosen *chosen)
{
    gpunn_device *dev = model->dev;
    if (count < 0 || (count > 0) != (list != NULL))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%sparameter_count is %d and parameters is %s; give both or neither", where, count,
                           list ? "there" : "NULL");
    for (int i = 0; i < count; i++) {
        const char *fault = gpunn__untrainable(model, list[i]);
        if (fault) return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%sparameters[%d] is %s", where, i, fault);
    }
    if (prefix && (chosen->prefix = gpunn__strdup(dev, prefix)) == NULL) return GPUNN_ERR_MEMORY;
    if (count == 0) return GPUNN_OK;
    chosen->list = (gpunn_tensor **)gpunn__realloc(dev, NULL, 0, (size_t)count * sizeof *list);
    if (chosen->list == NULL) return GPUNN_ERR_MEMORY;
    chosen->count = count;
    memcpy(chosen->list, list, (size_t)count * sizeof *list);
    return GPUNN_OK;
}

/* Resolves one setting of a parameter group, which must be below `high`. *number is -1 if it is left out
 * (0). */
static GPUNN__STATUS gpunn__param_group_number(const gpunn_optimizer *opt, int index, const char *key,
                                               float given, float high, float *number)
{
    char name[48];
    *number = given == 0 ? -1 : gpunn__default_float(given, 0);
    (void)snprintf(name, sizeof name, "groups[%d].%s", index, key);
    return given == 0 || gpunn__check_range(opt->model->dev, opt->name, name, *number, 0, high)
               ? GPUNN_OK
               : GPUNN_ERR_ARGUMENT;
}

static GPUNN__STATUS gpunn__param_group_make(gpunn_optimizer *opt, const gpunn_optimizer_group *given,
                                             int index, gpunn__param_group *param_group)
{
    const gpunn__setting *row = gpunn__rules[opt->rule.kind].setting;
    gpunn_device         *dev = opt->model->dev;
    char                  where[96];
    (void)snprintf(where, sizeof where, "%s: groups[%d].", opt->name, index);
    const struct {
        const char *key;
        float       given;
    } own[] = {{"lr", given->lr},
               {"weight_decay", given->weight_decay},
               {"beta1", given->beta1},
               {"beta2", given->beta2}};
    if (given->parameters == NULL && given->prefix == NULL)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%sprefix and parameters are both NULL; set one of them",
                           where);
    for (int i = 0; i < GPUNN_SETTINGS; i++) param_group->setting[i] = -1;
    gpunn_status status = gpunn__param_group_number(opt, index, "clip_norm", given->clip_norm, INFINITY,
                                                    &param_group->clip_norm);
    if (status == GPUNN_OK)
        status = gpunn__param_group_number(opt, index, "clip_value", given->clip_value, INFINITY,
                                           &param_group->clip_value);
    for (int i = 0; i < (int)(sizeof own / sizeof *own) && status == GPUNN_OK; i++) {
        const int at = gpunn__setting_at(opt->rule.kind, own[i].key);
        if (at < 0 && own[i].given != 0)
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                               "%s%s is set, but this optimizer does not have it; leave it out", where,
                               own[i].key);
        if (at >= 0)
            status = gpunn__param_group_number(opt, index, own[i].key, own[i].given, row[at].high,
                                               &param_group->setting[at]);
    }
    if (status != GPUNN_OK) return status;
    status = gpunn__choose(opt->model, where, given->parameters, given->parameter_count, given->prefix,
                           &param_group->chosen);
    for (int i = 0; status == GPUNN_OK && i < param_group->chosen.count; i++)
        if (!gpunn__is_chosen(opt, param_group->chosen.list[i]))
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                               "%sparameters[%d] is '%s', which the optimizer does not train", where, i,
                               param_group->chosen.list[i]->name);
    return status;
}

/* Copies the selection of parameters and the parameter groups. */
static GPUNN__STATUS gpunn__optimizer_select(gpunn_optimizer *opt, const gpunn__selection *s)
{
    gpunn_device *dev = opt->model->dev;
    char          where[64];
    (void)snprintf(where, sizeof where, "%s: ", opt->name);
    gpunn_status status = gpunn__choose(opt->model, where, s->parameters, s->parameter_count, s->prefix,
                                        &opt->chosen);
    if (status == GPUNN_OK && (s->parameters || s->prefix)) opt->scope = ++opt->model->scopes;
    if (status == GPUNN_OK && (s->group_count < 0 || (s->group_count > 0) != (s->groups != NULL)))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%sgroup_count is %d and groups is %s; give both or neither", where,
                           s->group_count, s->groups ? "there" : "NULL");
    if (status != GPUNN_OK || s->group_count == 0) return status;
    opt->param_groups = (gpunn__param_group *)gpunn__calloc(dev, (size_t)s->group_count *
                                                                     sizeof *opt->param_groups);
    if (opt->param_groups == NULL) return GPUNN_ERR_MEMORY;
    opt->param_group_count = s->group_count;
    for (int i = 0; i < s->group_count && status == GPUNN_OK; i++)
        status = gpunn__param_group_make(opt, &s->groups[i], i, &opt->param_groups[i]);
    return status;
}

static void gpunn__chosen_free(gpunn_device *dev, gpunn__chosen *chosen)
{
    gpunn__free(dev, chosen->list, (size_t)chosen->count * sizeof *chosen->list);
    if (chosen->prefix) gpunn__free(dev, chosen->prefix, strlen(chosen->prefix) + 1);
}

static void gpunn__optimizer_free(gpunn_optimizer *opt)
{
    gpunn_device *dev = opt->model->dev;
    gpunn__chosen_free(dev, &opt->chosen);
    for (int i = 0; i < opt->param_group_count; i++) gpunn__chosen_free(dev, &opt->param_groups[i].chosen);
    gpunn__free(dev, opt->param_groups, (size_t)opt->param_group_count * sizeof *opt->param_groups);
    gpunn__free(dev, opt, sizeof *opt);
}

GPUNN__INTERNAL gpunn_optimizer *gpunn__optimizer_create(gpunn_model *model, gpunn_update_kind kind,
                                                         const float            *setting,
                                                         const gpunn__selection *selection)
{
    gpunn_device      *dev = model->dev;
    const gpunn__rule *rule = &gpunn__rules[kind];
    const float        momentum = gpunn__setting_of(kind, setting, "momentum"),
                dampening = gpunn__setting_of(kind, setting, "dampening");
    if (!gpunn__may_train(model, rule->function)) return NULL;
    for (int i = 0; rule->setting[i].key; i++)
        if (!gpunn__check_range(dev, rule->function, rule->setting[i].key, setting[i], rule->setting[i].low,
                                rule->setting[i].high))
            return NULL;
    if (gpunn__setting_of(kind, setting, "nesterov") != 0 && (!(momentum > 0) || dampening != 0))
        return (gpunn_optimizer *)GPUNN__FAIL_NULL(dev, GPUNN_ERR_ARGUMENT,
                                                   "%s: nesterov needs a momentum above 0 and no dampening, "
                                                   "here they are %g and %g; set .momentum = 0.9f",
                                                   rule->function, (double)momentum, (double)dampening);
    gpunn_optimizer *opt = (gpunn_optimizer *)gpunn__calloc(dev, sizeof *opt);
    if (opt == NULL) return NULL;
    opt->model = model;
    opt->name = rule->function;
    opt->rule.kind = kind;
    memcpy(opt->rule.setting, setting, sizeof opt->rule.setting);
    gpunn__optimizer_update_fields(opt);
    opt->lr = setting[0];
    opt->plateau_scale = 1;
    opt->kept_scale[0] = 65536;
    if ((selection && gpunn__optimizer_select(opt, selection) != GPUNN_OK) ||
        gpunn__check_unshared(opt, 0, GPUNN_ERR_ARGUMENT) != GPUNN_OK) {
        gpunn__optimizer_free(opt);
        return NULL;
    }
    opt->next = model->optimizers;
    model->optimizers = opt;
    return opt;
}

/* Creates an optimizer from argument fields, where 0 stands for the default. */
static gpunn_optimizer *gpunn__optimizer_build(gpunn_model *model, gpunn_update_kind kind, const float *given,
                                               gpunn__selection selection)
{
    float setting[GPUNN_SETTINGS];
    if (model == NULL) return NULL;
    for (int i = 0; i < GPUNN_SETTINGS; i++)
        setting[i] = gpunn__default_float(given[i], gpunn__rules[kind].setting[i].usual);
    return gpunn__optimizer_create(model, kind, setting, &selection);
}

/* clang-format off */
#define GPUNN__NUMBER(kind, key, usual) (float)args.key,
#define GPUNN__FLAG(key) (float)args.key,
#define GPUNN__X(ENUM, name, settings, ...)                                                                  \
    GPUNN_API gpunn_optimizer *gpunn_##name##_(gpunn_model *model, gpunn_##name##_args args)                 \
    {                                                                                                        \
        const float         given[GPUNN_SETTINGS] = {settings};                                              \
        const gpunn__selection selection = {args.parameters, args.parameter_count, args.prefix, args.groups, \
        args.group_count};                                                                                   \
        return gpunn__optimizer_build(model, GPUNN_UPDATE_##ENUM, given, selection);                         \
    }
GPUNN_OPTIMIZERS(GPUNN__X, GPUNN__NUMBER, GPUNN__FLAG, , )
GPUNN_TRUST_OPTIMIZERS(GPUNN__X, GPUNN__NUMBER, GPUNN__FLAG, , )
GPUNN_MATRIX_OPTIMIZERS(GPUNN__X, GPUNN__NUMBER, GPUNN__FLAG, , )
#undef GPUNN__NUMBER
#undef GPUNN__FLAG
#undef GPUNN__X
/* clang-format on */

/* Bytes of one state. An empty share takes one float. */
static size_t gpunn__states_bytes(const gpunn__states *states)
{
    return (size_t)(states->count > 0 ? states->count : 1) * sizeof(float);
}

GPUNN__INTERNAL void gpunn__states_free(gpunn_device *dev, gpunn__states *states)
{
    for (int k = 0; k < GPUNN__STATES; k++) {
        gpunn__device_free(dev, states->data[k], gpunn__states_bytes(states));
        states->data[k] = NULL;
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__states_alloc(const gpunn_optimizer *opt, gpunn__states *states)
{
    gpunn_device *dev = opt->model->dev;
    for (int k = 0; k < GPUNN__STATES; k++) {
        states->data[k] = opt->uses[k] ? (float *)gpunn__device_alloc(dev, gpunn__states_bytes(states))
                                       : NULL;
        if (states->data[k] || !opt->uses[k]) continue;
        gpunn__states_free(dev, states);
        return dev->error.status;
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL bool gpunn__states_overlap(const gpunn__states *states, int64_t place, int64_t count,
                                           int64_t *from, int64_t *to)
{
    *from = states->begin > place ? states->begin - place : 0;
    *to = states->begin + states->count < place + count ? states->begin + states->count - place : count;
    return *from < *to;
}

GPUNN__INTERNAL float *gpunn__state_at(const gpunn_optimizer *opt, int k, int64_t place)
{
    return opt->states.data[k] ? opt->states.data[k] + (place - opt->states.begin) : NULL;
}

/* Most updates in a step: one for each parameter and each average. Each end of a share can
 * split one update of both kinds, which adds 4. */
static size_t gpunn__updates_capacity(size_t parameters)
{
    return 2 * parameters + 4;
}

GPUNN__INTERNAL int64_t gpunn__share_of(const gpunn_optimizer *opt)
{
    const int size = gpunn_group_size(opt->group);
    return gpunn__aligned((opt->state_count + size - 1) / size);
}

GPUNN__INTERNAL gpunn__states gpunn__own_share(const gpunn_optimizer *opt)
{
    const int64_t each = gpunn__share_of(opt), begin = each * gpunn_group_rank(opt->group),
                  left = opt->state_count - begin;
    const gpunn__states own = {{NULL}, begin, gpunn__clamp(left, 0, each)};
    return own;
}

/* Bytes of opt->rejected, and of gpunn_run's doubt behind it. */
static size_t gpunn__rejected_bytes(const gpunn_optimizer *opt)
{
    return (2 + (size_t)opt->parameter_count) * sizeof *opt->rejected;
}

/* Frees what gpunn__optimizer_prepare allocated. */
static void gpunn__optimizer_release(gpunn_optimizer *opt)
{
    gpunn_device *dev = opt->model->dev;
    size_t        count = (size_t)opt->parameter_count;
    gpunn__states_free(dev, &opt->states);
    gpunn__states_free(dev, &opt->share);
    gpunn__device_free(dev, opt->workspace, opt->workspace_bytes);
    gpunn__free(dev, opt->parameters, count * sizeof *opt->parameters);
    gpunn__free(dev, opt->steps, count * sizeof *opt->steps);
    gpunn__free(dev, opt->places, count * sizeof *opt->places);
    gpunn__free(dev, opt->param_group_of, count * sizeof *opt->param_group_of);
    gpunn__free(dev, opt->updates, gpunn__updates_capacity(count) * sizeof *opt->updates);
    gpunn__device_free(dev, opt->counts, (1 + count) * sizeof *opt->counts);
    gpunn__device_free(dev, opt->rejected, gpunn__rejected_bytes(opt));
}

GPUNN__INTERNAL void gpunn__optimizer_forget(gpunn_optimizer *opt)
{
    gpunn__optimizer_release(opt);
    opt->parameters = NULL;
    opt->steps = opt->places = NULL;
    opt->param_group_of = NULL;
    opt->updates = NULL;
    opt->counts = NULL;
    opt->rejected = NULL;
    opt->workspace = NULL;
    opt->parameter_count = opt->considered = 0;
    opt->state_count = 0;
    memset(&opt->states, 0, sizeof opt->states);
    opt->shares = false;
}

GPUNN__INTERNAL void gpunn__forget_runs(gpunn_optimizer *opt, const gpunn_group *leaves)
{
    gpunn_device *dev = opt->model->dev;
    if (opt->captured) dev->backend->forget(dev->context, opt->captured);
    opt->captured = NULL;
    for (gpunn__plan *plan = gpunn__in_ranks(leaves, dev) ? opt->model->plans : NULL; plan; plan = plan->next)
        gpunn__plan_forget(dev, plan);
}

/* Drops plans that only this optimizer used. The last run's plan stays, since its values may still be
 * read. */
static void gpunn__drop_plans(gpunn_model *model, uint64_t scope)
{
    gpunn__plan **link = &model->plans;
    while (scope && *link) {
        gpunn__plan *plan = *link;
        if (plan->scope != scope || plan == model->last) {
            link = &plan->next;
            continue;
        }
        *link = plan->next;
        gpunn__plan_free(model->dev, plan);
    }
}

GPUNN__INTERNAL void gpunn__update_ranks(gpunn_model *model)
{
    const gpunn_optimizer *opt = model->optimizers;
    while (opt && opt->group == NULL) opt = opt->next;
    gpunn_group *group = opt ? opt->group : NULL;
    if (model->ranks.user == group) return;
    gpunn_ranks ranks = {gpunn_group_rank(group), gpunn_group_size(group), gpunn__in_ranks(group, model->dev),
                         gpunn__gather_sums, group};
    const bool  communicated = gpunn__communicating_group(model) != NULL;
    model->ranks = ranks;
    if (communicated || gpunn__communicating_group(model)) gpunn__invalidate(model);
}

GPUNN_API void gpunn_optimizer_destroy(gpunn_optimizer *opt)
{
    if (opt == NULL) return;
    gpunn_model      *model = opt->model;
    gpunn_device     *dev = model->dev;
    gpunn_optimizer **link = &opt->model->optimizers;
    while (*link != opt) link = &(*link)->next;
    *link = opt->next;
    if (opt->model->swapped == opt) opt->model->swapped = NULL;
    gpunn__forget_runs(opt, opt->group);
    gpunn__update_ranks(model);
    gpunn__group_leave(opt->group);
    gpunn__drop_plans(model, opt->scope);
    gpunn__device_free(dev, opt->loss_scale, sizeof opt->kept_scale);
    gpunn__optimizer_release(opt);
    gpunn__free(dev, opt->fit.history, (size_t)opt->fit.capacity * sizeof *opt->fit.history);
    gpunn_array_free(dev, &opt->fit.kept);
    gpunn__optimizer_free(opt);
    gpunn__model_release(model);
}

/* ---- state --------------------------------------------------------------------------------------------- */

/* Sets count floats on the device to one value. */
static GPUNN__STATUS gpunn__upload_value(const gpunn_device *dev, float *to, int64_t count, float value)
{
    float         piece[2048];
    const int64_t most = (int64_t)(sizeof piece / sizeof *piece);
    gpunn_status  status = GPUNN_OK;
    for (int i = 0; i < (int)most; i++) piece[i] = value;
    for (int64_t at = 0, n; at < count && status == GPUNN_OK; at += n) {
        n = count - at < most ? count - at : most;
        status = dev->backend->upload(dev->context, to + at, piece, (size_t)n * sizeof *piece);
    }
    return status;
}

/* Fills a newly allocated state. The first `known` parameters keep their values from `old`. Of the others
 * averages start as the parameters, state 0 as state_start, and the rest as 0. */
static GPUNN__STATUS gpunn__state_fill(const gpunn_optimizer *opt, int k, const float *old, int known)
{
    const float          start = k == 0 ? opt->state_start : 0;
    gpunn_device        *dev = opt->model->dev;
    const gpunn_backend *backend = dev->backend;
    gpunn_status         status = backend->fill(dev->context, opt->states.data[k], 0,
                                                gpunn__states_bytes(&opt->states));
    for (int i = 0; i < opt->parameter_count && status == GPUNN_OK; i++) {
        const gpunn_tensor *t = opt->parameters[i];
        const float        *source = k == GPUNN__AVERAGE ? gpunn__weights(t) : NULL;
        if (i < known) source = old + opt->places[i];
        int64_t from, to;
        if (!gpunn__states_overlap(&opt->states, opt->places[i], gpunn__count(t, 1), &from, &to)) continue;
        float *place = gpunn__state_at(opt, k, opt->places[i] + from);
        if (source)
            status = backend->convert(dev->context, place, GPUNN_F32, source + from, GPUNN_F32, to - from);
        else if (start != 0)
            status = gpunn__upload_value(dev, place, to - from, start);
    }
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, opt->name, status);
}

GPUNN__INTERNAL bool gpunn__scales_loss(const gpunn_optimizer *opt)
{
    return opt->model->precision == GPUNN_PRECISION_F16 && opt->model->dev->info.half;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__scale_sync(gpunn_optimizer *opt, bool of_device)
{
    gpunn_device        *dev = opt->model->dev;
    const gpunn_backend *backend = dev->backend;
    float                scale[3] = {1, opt->kept_scale[1], opt->kept_scale[2]};
    if (opt->loss_scale == NULL) return GPUNN_OK;
    if (gpunn__scales_loss(opt)) scale[0] = opt->kept_scale[0];
    gpunn_status status = of_device ? backend->download(dev->context, scale, opt->loss_scale, sizeof scale)
                                    : backend->upload(dev->context, opt->loss_scale, scale, sizeof scale);
    if (gpunn__scales_loss(opt)) opt->kept_scale[0] = scale[0];
    opt->kept_scale[1] = scale[1];
    opt->kept_scale[2] = scale[2];
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, opt->name, status);
}

/* Allocates the loss scale if it is used, or if the GPU has skipped updates or
 * may skip some. Without F16 the scale is 1. */
static GPUNN__STATUS gpunn__scale_prepare(gpunn_optimizer *opt)
{
    gpunn_device *dev = opt->model->dev;
    const bool    counts = dev->backend->execute && (opt->skips || opt->kept_scale[2] > 0);
    if (!(counts || gpunn__scales_loss(opt)) || opt->loss_scale) return GPUNN_OK;
    opt->loss_scale = (float *)gpunn__device_alloc(dev, sizeof opt->kept_scale);
    if (opt->loss_scale == NULL) return dev->error.status;
    return gpunn__scale_sync(opt, false);
}

/* Applies gpunn__counts_sync to the count of updates and that of each parameter. */
static GPUNN__STATUS gpunn__steps_sync(gpunn_optimizer *opt, bool with_replays)
{
    const int    count = 1 + opt->parameter_count;
    const size_t bytes = (size_t)count * sizeof(uint64_t);
    if (opt->counts == NULL) return GPUNN_OK;
    uint64_t *host = (uint64_t *)gpunn__calloc(opt->model->dev, bytes);
    if (host == NULL) return GPUNN_ERR_MEMORY;
    host[0] = (uint64_t)opt->step_count;
    for (int i = 1; i < count; i++) host[i] = (uint64_t)opt->steps[i - 1];
    gpunn_status status = gpunn__counts_sync(opt->model->dev, opt->counts, host, count, with_replays);
    if (opt->states.data[GPUNN__AVERAGE]) opt->averaged += (int64_t)host[0] - opt->step_count;
    opt->step_count = (int64_t)host[0];
    for (int i = 1; i < count; i++) opt->steps[i - 1] = (int64_t)host[i];
    gpunn__free(opt->model->dev, host, bytes);
    return status;
}

/* Subtracts from the host's counts the updates that a device has rejected since. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__rejected_sync(gpunn_optimizer *opt)
{
    gpunn_device        *dev = opt->model->dev;
    const gpunn_backend *backend = dev->backend;
    const size_t         bytes = gpunn__rejected_bytes(opt) - sizeof *opt->rejected;
    if (opt->rejected == NULL) return GPUNN_OK;
    int64_t *host = (int64_t *)gpunn__calloc(dev, bytes);
    if (host == NULL) return GPUNN_ERR_MEMORY;
    gpunn_status status = backend->download(dev->context, host, opt->rejected, bytes);
    if (status == GPUNN_OK) status = backend->fill(dev->context, opt->rejected, 0, bytes);
    if (status == GPUNN_OK) {
        opt->step_count -= host[0];
        opt->rejected_count += host[0];
        if (opt->states.data[GPUNN__AVERAGE]) opt->averaged -= host[0];
        for (int i = 0; i < opt->parameter_count; i++) opt->steps[i] -= host[1 + i];
    }
    gpunn__free(dev, host, bytes);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, opt->name, status);
}

/* Zeroed memory for the updates that a device rejects, and for doubts, of which there is one at first. */
static GPUNN__STATUS gpunn__rejected_prepare(gpunn_optimizer *opt)
{
    gpunn_device *dev = opt->model->dev;
    const size_t  bytes = gpunn__rejected_bytes(opt);
    if (opt->rejected || dev->backend->execute == NULL) return GPUNN_OK;
    opt->rejected = (int64_t *)gpunn__device_alloc(dev, bytes);
    if (opt->rejected == NULL) return dev->error.status;
    gpunn_status status = dev->backend->fill(dev->context, opt->rejected, 0, bytes);
    if (status == GPUNN_OK)
        status = dev->backend->fill(dev->context, opt->rejected + 1 + opt->parameter_count, 0xFF,
                                    sizeof *opt->rejected);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, opt->name, status);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__counted_sync(gpunn_optimizer *opt, bool with_replays)
{
    gpunn_status status = gpunn__scale_sync(opt, with_replays);
    if (status == GPUNN_OK) status = gpunn__rejected_sync(opt);
    return status == GPUNN_OK ? gpunn__steps_sync(opt, with_replays) : status;
}

/* Allocates the loss scale and the counts on the device, where they are used. */
static GPUNN__STATUS gpunn__counted_prepare(gpunn_optimizer *opt)
{
    gpunn_status status = gpunn__scale_prepare(opt);
    if (status == GPUNN_OK) status = gpunn__rejected_prepare(opt);
    return status == GPUNN_OK ? gpunn__counts_prepare(opt->model->dev, &opt->counts, 1 + opt->parameter_count)
                              : status;
}

/* Keeps the loss scale and the counts on the host only. The next step allocates them again. */
static GPUNN__STATUS gpunn__counted_keep(gpunn_optimizer *opt)
{
    gpunn_device *dev = opt->model->dev;
    gpunn_status  status = gpunn__counted_sync(opt, true);
    gpunn__device_free(dev, opt->loss_scale, sizeof opt->kept_scale);
    gpunn__device_free(dev, opt->counts, (1 + (size_t)opt->parameter_count) * sizeof *opt->counts);
    gpunn__device_free(dev, opt->rejected, gpunn__rejected_bytes(opt));
    opt->loss_scale = NULL;
    opt->counts = NULL;
    opt->rejected = NULL;
    return status;
}

static int gpunn__param_group_of(const gpunn_optimizer *opt, const gpunn_tensor *t)
{
    int i = 0;
    while (i < opt->param_group_count && !gpunn__is_among(&opt->param_groups[i].chosen, t)) i++;
    return i < opt->param_group_count ? i : -1;
}

/* Extends the optimizer by `fresh` parameters of new layers. */
static GPUNN__STATUS gpunn__optimizer_grow(gpunn_optimizer *opt, int fresh)
{
    gpunn_model    *model = opt->model;
    gpunn_device   *dev = model->dev;
    gpunn_optimizer grown = *opt;
    const int       known = opt->parameter_count, all = known + fresh;
    gpunn_status    status = GPUNN_OK;
    grown.parameter_count = all;
    grown.considered = model->tensor_count;
    grown.parameters = (gpunn_tensor **)gpunn__calloc(dev, (size_t)all * sizeof *grown.parameters);
    grown.steps = (int64_t *)gpunn__calloc(dev, (size_t)all * sizeof *grown.steps);
    grown.places = (int64_t *)gpunn__calloc(dev, (size_t)all * sizeof *grown.places);
    grown.param_group_of = (int *)gpunn__calloc(dev, (size_t)all * sizeof *grown.param_group_of);
    grown.updates = (gpunn_update *)gpunn__calloc(dev, gpunn__updates_capacity((size_t)all) *
                                                           sizeof *grown.updates);
    memset(&grown.states, 0, sizeof grown.states);
    grown.workspace = NULL;
    if (grown.parameters && grown.steps && grown.places && grown.param_group_of && grown.updates) {
        int count = known;
        if (known) {
            memcpy(grown.parameters, opt->parameters, (size_t)known * sizeof *grown.parameters);
            memcpy(grown.steps, opt->steps, (size_t)known * sizeof *grown.steps);
            memcpy(grown.places, opt->places, (size_t)known * sizeof *grown.places);
            memcpy(grown.param_group_of, opt->param_group_of, (size_t)known * sizeof *grown.param_group_of);
        }
        for (int id = opt->considered; id < model->tensor_count; id++)
            if (gpunn__is_chosen(opt, model->tensors[id])) grown.parameters[count++] = model->tensors[id];
        qsort(grown.parameters + known, (size_t)fresh, sizeof *grown.parameters, gpunn__by_offset);
        for (int i = known; i < all; i++) {
            grown.places[i] = grown.state_count;
            grown.param_group_of[i] = gpunn__param_group_of(opt, grown.parameters[i]);
            grown.state_count += gpunn__aligned(gpunn__count(grown.parameters[i], 1));
        }
    } else
        status = GPUNN_ERR_MEMORY;
    grown.states.count = grown.state_count;
    if (opt->shares) grown.states = gpunn__own_share(&grown);
    if (status == GPUNN_OK) status = gpunn__states_alloc(&grown, &grown.states);
    for (int i = 0; i < GPUNN__STATES && status == GPUNN_OK; i++)
        if (opt->uses[i]) status = gpunn__state_fill(&grown, i, opt->states.data[i], known);
    gpunn__optimizer_release(status == GPUNN_OK ? opt : &grown);
    if (status == GPUNN_OK) *opt = grown;
    return status;
}

/* Allocates the workspace of Muon's largest matrix. */
static GPUNN__STATUS gpunn__workspace_prepare(gpunn_optimizer *opt)
{
    gpunn_device *dev = opt->model->dev;
    size_t        bytes = 0;
    if (opt->rule.kind != GPUNN_UPDATE_MUON || opt->workspace) return GPUNN_OK;
    for (int i = 0; i < opt->parameter_count; i++) {
        const gpunn_tensor *t = opt->parameters[i];
        const size_t needed = t->rank == 2 ? gpunn__muon_bytes(t->dim[0], t->dim[1], dev->info.threads) : 0;
        if (needed > bytes) bytes = needed;
    }
    if (bytes == 0) return GPUNN_OK;
    opt->workspace = gpunn__device_alloc(dev, bytes);
    opt->workspace_bytes = bytes;
    return opt->workspace ? GPUNN_OK : dev->error.status;
}

/* The end of gpunn__optimizer_prepare, once all parameters are known. */
static GPUNN__STATUS gpunn__optimizer_ready(gpunn_optimizer *opt)
{
    gpunn_status status = opt->model->has_sparse ? gpunn__check_sparse(opt) : GPUNN_OK;
    if (status == GPUNN_OK) status = gpunn__workspace_prepare(opt);
    return status == GPUNN_OK ? gpunn__counted_prepare(opt) : status;
}

/* Lays out new weights and extends parameters, steps and states to cover them. Existing contents stay.
 * Checkpoints call this before they read or write them. Allocates nothing unless the model has grown. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__optimizer_prepare(gpunn_optimizer *opt)
{
    gpunn_model *model = opt->model;
    int          fresh = 0;
    if (model->swapped)
        return gpunn__fail(model->dev, GPUNN_ERR_STATE,
                           "%s: the model holds the averages of its weights, which cannot be trained or "
                           "saved; exchange them back with gpunn_ema_swap",
                           opt->name);
    gpunn_status status = gpunn__commit(model);
    if (status != GPUNN_OK) return status;
    if (opt->considered == model->tensor_count) return gpunn__optimizer_ready(opt);
    status = gpunn__check_unshared(opt, opt->considered, GPUNN_ERR_STATE);
    if (status != GPUNN_OK) return status;
    for (int id = opt->considered; id < model->tensor_count; id++)
        fresh += gpunn__is_chosen(opt, model->tensors[id]);
    if (fresh && opt->shares && opt->parameter_count > 0)
        return gpunn__fail(model->dev, GPUNN_ERR_STATE,
                           "%s: layers have been added whose optimizer states are not distributed; call "
                           "gpunn_distribute again",
                           opt->name);
    if (fresh) {
        status = gpunn__counted_keep(opt);
        if (status == GPUNN_OK) status = gpunn__optimizer_grow(opt, fresh);
        if (status != GPUNN_OK) return status;
    }
    opt->considered = model->tensor_count;
    return gpunn__optimizer_ready(opt);
}

/* ---- averages ------------------------------------------------------------------------------------------ */

GPUNN__INTERNAL void gpunn__average_start(gpunn_optimizer *opt)
{
    opt->averaged = (int64_t)opt->kept_scale[2];
}

GPUNN_API gpunn_status gpunn_set_ema(gpunn_optimizer *opt, float decay)
{
    static const char function[] = "gpunn_set_ema";
    if (opt == NULL) return gpunn__fail_null(NULL, function, "optimizer");
    gpunn_model  *model = opt->model;
    gpunn_device *dev = model->dev;
    const size_t  bytes = gpunn__states_bytes(&opt->states);
    float       **average = &opt->states.data[GPUNN__AVERAGE];
    if (!gpunn__check_range(dev, function, "decay", decay, 0, 1)) return GPUNN_ERR_ARGUMENT;
    if (model->swapped)
        return gpunn__fail(dev, GPUNN_ERR_STATE,
                           "%s: the model holds the averages; exchange them back with gpunn_ema_swap",
                           function);
    gpunn_status status = GPUNN_OK;
    if (decay == 0) {
        gpunn__device_free(dev, *average, bytes);
        *average = NULL;
    } else if (!opt->uses[GPUNN__AVERAGE]) {
        status = gpunn__counted_sync(opt, true);
        if (status == GPUNN_OK && opt->state_count > 0) { /* later than the first step */
            *average = (float *)gpunn__device_alloc(dev, bytes);
            status = *average ? gpunn__state_fill(opt, GPUNN__AVERAGE, NULL, 0) : dev->error.status;
        }
        if (status != GPUNN_OK) {
            gpunn__device_free(dev, *average, bytes);
            *average = NULL;
            return status;
        }
        gpunn__average_start(opt);
    }
    opt->uses[GPUNN__AVERAGE] = decay != 0;
    opt->average_decay = decay;
    return status;
}

GPUNN_API gpunn_status gpunn_ema_swap(gpunn_optimizer *opt)
{
    enum { PIECE = 1 << 18 }; /* floats per transfer */
    static const char function[] = "gpunn_ema_swap";
    if (opt == NULL) return gpunn__fail_null(NULL, function, "optimizer");
    gpunn_model         *model = opt->model;
    gpunn_device        *dev = model->dev;
    const gpunn_backend *backend = dev->backend;
    if (!opt->uses[GPUNN__AVERAGE])
        return gpunn__fail(dev, GPUNN_ERR_STATE, "%s: %s keeps no averages; enable them with gpunn_set_ema",
                           function, opt->name);
    gpunn_status status = model->swapped == opt ? GPUNN_OK : gpunn__optimizer_prepare(opt);
    float       *piece = status == GPUNN_OK ? (float *)gpunn__device_alloc(dev, PIECE * sizeof *piece) : NULL;
    if (status == GPUNN_OK && piece == NULL) status = dev->error.status;
    if (opt->shares) status = gpunn__all_reduce_status(opt->group, status, NULL, "%s", function);
    for (int i = 0; i < opt->parameter_count && piece; i++) {
        int64_t at, end;
        if (!gpunn__states_overlap(&opt->states, opt->places[i], gpunn__count(opt->parameters[i], 1), &at,
                                   &end))
            continue;
        for (int64_t n; at < end && status == GPUNN_OK; at += n) {
            float *weights = gpunn__weights(opt->parameters[i]) + at;
            float *averages = gpunn__state_at(opt, GPUNN__AVERAGE, opt->places[i] + at);
            n = end - at < PIECE ? end - at : (int64_t)PIECE;
            status = backend->convert(dev->context, piece, GPUNN_F32, weights, GPUNN_F32, n);
            if (status == GPUNN_OK)
                status = backend->convert(dev->context, weights, GPUNN_F32, averages, GPUNN_F32, n);
            if (status == GPUNN_OK)
                status = backend->convert(dev->context, averages, GPUNN_F32, piece, GPUNN_F32, n);
            if (status != GPUNN_OK) status = gpunn__backend_fail(dev, function, status);
        }
    }
    gpunn__device_free(dev, piece, PIECE * sizeof *piece);
    GPUNN__WEIGHTS_CHANGED(model);
    if (status == GPUNN_OK && opt->shares) status = gpunn__spread_shares(opt);
    if (status != GPUNN_OK) return status;
    model->swapped = model->swapped ? NULL : opt;
    return GPUNN_OK;
}

/* ---- moving to another device -------------------------------------------------------------------------- */

typedef struct gpunn__moving { /* a block that moves to another device */
    void  *memory, *moved;
    size_t capacity, used; /* bytes allocated, and bytes in use */
} gpunn__moving;

/* Adds a block to the list, if list is non-NULL, and counts it. With `arrived`
 * returns its new address, else the old one. */
static void *gpunn__list_block(gpunn__moving *list, int *count, void *memory, size_t capacity, size_t used,
                               bool arrived)
{
    if (memory == NULL) return NULL;
    gpunn__moving *block = list ? &list[*count] : NULL;
    ++*count;
    if (arrived) return block->moved;
    if (block) {
        block->memory = memory;
        block->moved = NULL;
        block->capacity = capacity;
        block->used = used;
    }
    return memory;
}

/* Lists every block of a model that moves. With `arrived` it takes over the new
 * addresses instead. Returns their number. */
static int gpunn__list_blocks(gpunn_model *model, gpunn__moving *list, bool arrived)
{
    int    count = 0;
    size_t bytes = (size_t)model->weight_capacity * sizeof(float);
    model->weights = (float *)gpunn__list_block(list, &count, model->weights, bytes, bytes, arrived);
    for (int id = 0; id < model->tensor_count; id++) {
        gpunn_tensor *t = model->tensors[id];
        size_t        used = t->data ? (size_t)gpunn__held_count(t) * gpunn_dtype_size(t->dtype) : 0;
        t->data = gpunn__list_block(list, &count, t->data, t->capacity, used, arrived);
    }
    for (gpunn_optimizer *opt = model->optimizers; opt; opt = opt->next)
        for (int i = 0; i < GPUNN__STATES; i++) {
            bytes = gpunn__states_bytes(&opt->states);
            opt->states.data[i] = (float *)gpunn__list_block(list, &count, opt->states.data[i], bytes, bytes,
                                                             arrived);
        }
    return count;
}

static GPUNN__STATUS gpunn__move_block(gpunn_device *from, gpunn_device *to, gpunn__moving *move, void *piece,
                                       size_t piece_bytes)
{
    static const char function[] = "gpunn_model_to";
    move->moved = gpunn__device_alloc(to, move->capacity);
    if (move->moved == NULL) return to->error.status;
    for (size_t at = 0, n; at < move->used; at += n) {
        n = move->used - at < piece_bytes ? move->used - at : piece_bytes;
        gpunn_status status = from->backend->download(from->context, piece, (const char *)move->memory + at,
                                                      n);
        if (status != GPUNN_OK) return gpunn__backend_fail(from, function, status);
        status = to->backend->upload(to->context, (char *)move->moved + at, piece, n);
        if (status != GPUNN_OK) return gpunn__backend_fail(to, function, status);
    }
    return GPUNN_OK;
}

/* Frees what stays behind on the device that the model leaves: plans, arena,
 * gradients, counts, 16-bit weights, captured runs. */
static void gpunn__leave(gpunn_model *model)
{
    gpunn_device *dev = model->dev;
    gpunn_model **link = &dev->models;
    while (*link != model) link = &(*link)->next;
    *link = model->next;
    gpunn__invalidate(model);
    gpunn__device_free(dev, model->arena, model->arena_bytes);
    gpunn__device_free(dev, model->gradients, (size_t)model->gradient_capacity * sizeof(float));
    gpunn__device_free(dev, model->state.counts, GPUNN_RUN_COUNTS * sizeof(gpunn_count));
    model->state.counts = NULL;
    gpunn__device_free(dev, model->half, (size_t)model->half_capacity * 2);
    model->arena = NULL;
    model->arena_bytes = 0;
    model->gradients = NULL;
    model->gradient_capacity = 0;
    model->half = NULL;
    model->half_capacity = 0;
    model->generation++;
    for (int id = 0; id < model->tensor_count; id++) {
        model->tensors[id]->grad_reached = false;
        gpunn__compact_free(dev, model->tensors[id]);
    }
    for (gpunn_optimizer *opt = model->optimizers; opt; opt = opt->next) {
        if (opt->captured) dev->backend->forget(dev->context, opt->captured);
        gpunn__device_free(dev, opt->workspace, opt->workspace_bytes);
        opt->workspace = NULL;
        opt->parts = 0;
        opt->captured = NULL;
    }
}

GPUNN_API gpunn_status gpunn_model_to(gpunn_model *model, gpunn_device *dev)
{
    enum { PIECE = 1 << 20 };
    if (model == NULL || dev == NULL) return gpunn__fail_null_model(model, "gpunn_model_to", "device");
    gpunn_device *from = model->dev;
    if (from == dev) return GPUNN_OK;
    if (from->args.realloc_fn != dev->args.realloc_fn || from->args.user != dev->args.user)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_model_to: the devices were opened with different realloc_fn or user; open "
                           "both with the same");
    if (model->own)
        return gpunn__fail(dev, GPUNN_ERR_STATE,
                           "gpunn_model_to: the model has sessions, which cannot be moved; move the model "
                           "before a session is used");
    for (int id = 0; id < model->tensor_count; id++)
        if (gpunn__is_user_owned(model->tensors[id]))
            return gpunn__fail(
                dev, GPUNN_ERR_STATE,
                "gpunn_model_to: '%s' is bound to memory of the model's present device; unbind it first",
                gpunn__called(model->tensors[id]));
    for (gpunn_optimizer *opt = model->optimizers; opt; opt = opt->next) {
        gpunn_status kept = gpunn__counted_keep(opt);
        if (kept != GPUNN_OK) return kept;
    }
    gpunn_status status = gpunn__keys_sync(model, true);
    if (status != GPUNN_OK) return status;
    int            count = gpunn__list_blocks(model, NULL, false);
    size_t         bytes = (size_t)count * sizeof(gpunn__moving) + PIECE;
    gpunn__moving *list = (gpunn__moving *)gpunn__realloc(dev, NULL, 0, bytes);
    if (list == NULL) return GPUNN_ERR_MEMORY;
    (void)gpunn__list_blocks(model, list, false);
    for (int i = 0; i < count && status == GPUNN_OK; i++)
        status = gpunn__move_block(from, dev, &list[i], list + count, PIECE);
    bool moved = status == GPUNN_OK;
    if (moved) {
        gpunn__leave(model);
        (void)gpunn__list_blocks(model, list, true);
        model->next = dev->models;
        dev->models = model;
        model->dev = dev;
        model->ranks.joined = gpunn__in_ranks((gpunn_group *)model->ranks.user, dev);
        gpunn__log_precision(model);
    }
    for (int i = 0; i < count; i++)
        gpunn__device_free(moved ? from : dev, moved ? list[i].memory : list[i].moved, list[i].capacity);
    gpunn__free(dev, list, bytes);
    if (moved) gpunn__device_release(from);
    return status;
}
