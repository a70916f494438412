#include "train/schedule.h"
#include "base/errors.h"
#include "train/optimizer.h"
#include "train/step.h"

/* Interpolates from `from` to `to` along half a cosine. */
static double gpunn__anneal(double from, double to, double share)
{
    return to + (from - to) * (1 + cos(3.14159265358979323846 * share)) / 2;
}

/* Computes the learning rate in closed form, so that t is the whole state. One-cycle and cosine
 * keep their last value after total_steps. */
GPUNN__INTERNAL double gpunn__scheduled_lr(const gpunn_optimizer *opt, float base)
{
    const gpunn_schedule_args *s = &opt->schedule;
    const int64_t              warmup = s->type == GPUNN_SCHEDULE_LINEAR ? 0 : s->warmup_steps,
                  step = opt->schedule_step - warmup;
    double lr = base, low = s->min_lr, t = (double)step, total = (double)(s->total_steps - warmup);
    if (step < 0) return lr * (double)opt->schedule_step / (double)warmup;
    switch (s->type) {
    case GPUNN_SCHEDULE_STEP: return lr * pow(gpunn__as_written(s->gamma), (double)(step / s->step_size));
    case GPUNN_SCHEDULE_MULTI_STEP: {
        int passed = 0;
        while (passed < 16 && s->milestones[passed] > 0 && s->milestones[passed] <= step) passed++;
        return lr * pow(gpunn__as_written(s->gamma), passed);
    }
    case GPUNN_SCHEDULE_EXPONENTIAL: return lr * pow(gpunn__as_written(s->gamma), t);
    case GPUNN_SCHEDULE_COSINE: return t < total ? gpunn__anneal(lr, low, t / total) : low;
    /* up from lr / div_factor until step `top`, then down to that over final_div_factor */
    case GPUNN_SCHEDULE_ONE_CYCLE: {
        double first = lr / s->div_factor, top = gpunn__as_written(s->pct_start) * total - 1,
               last = total - 1;
        if (t > last) t = last;
        if (t <= top) return gpunn__anneal(first, lr, top > 0 ? t / top : 1);
        return gpunn__anneal(lr, first / s->final_div_factor, (t - top) / (last - top));
    }
    case GPUNN_SCHEDULE_LINEAR: {
        double rise = (double)s->warmup_steps;
        if (t < rise) return lr * t / rise;
        return t < total ? lr + (low - lr) * (t - rise) / (total - rise) : low;
    }
    case GPUNN_SCHEDULE_PLATEAU: return lr * opt->plateau_scale;
    case GPUNN_SCHEDULE_CONSTANT: break;
    }
    return lr;
}

static GPUNN__STATUS gpunn__schedule_bad_count(gpunn_device *dev, const char *name, int64_t count,
                                               const char *most)
{
    return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "gpunn_set_schedule: %s is %lld; it must be from 0 to %s",
                       name, (long long)count, most);
}

static GPUNN__STATUS gpunn__schedule_check_counts(gpunn_device *dev, const gpunn_schedule_args *s)
{
    const struct {
        const char *name;
        int64_t     count;
    } steps[] = {{"total_steps", s->total_steps},
                 {"step_size", s->step_size},
                 {"warmup_steps", s->warmup_steps}},
      calls[] = {{"patience", s->patience}, {"cooldown", s->cooldown}};
    for (int i = 0; i < 3; i++)
        if (steps[i].count < 0 || steps[i].count > GPUNN__COUNTER)
            return gpunn__schedule_bad_count(dev, steps[i].name, steps[i].count, "2^62 - 1");
    for (int i = 0; i < 2; i++)
        if (calls[i].count < 0 || calls[i].count > INT32_MAX / 2)
            return gpunn__schedule_bad_count(dev, calls[i].name, calls[i].count, "2^30 - 1");
    for (int i = 0; i < 16; i++)
        if (s->milestones[i] < 0 || s->milestones[i] > GPUNN__COUNTER)
            return gpunn__schedule_bad_count(dev, "one of the milestones", s->milestones[i], "2^62 - 1");
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__schedule_check(gpunn_device *dev, gpunn_schedule_args *s)
{
    static const char   function[] = "gpunn_set_schedule";
    gpunn_schedule_type type = s->type;
    s->gamma = gpunn__default_float(s->gamma, type == GPUNN_SCHEDULE_EXPONENTIAL ? 0.95f : 0.1f);
    s->min_lr = gpunn__default_float(s->min_lr, 0);
    s->pct_start = gpunn__default_float(s->pct_start, 0.3f);
    s->div_factor = gpunn__default_float(s->div_factor, 25);
    s->final_div_factor = gpunn__default_float(s->final_div_factor, 1e4f);
    s->factor = gpunn__default_float(s->factor, 0.1f);
    s->threshold = gpunn__default_float(s->threshold, 1e-4f);
    s->patience = gpunn__default_int(s->patience, 10);
    s->cooldown = gpunn__default_int(s->cooldown, 0);
    if ((int)type < 0 || type > GPUNN_SCHEDULE_PLATEAU)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: type %d is unknown; use one of gpunn_schedule_type",
                           function, (int)type);
    if (!gpunn__check_range(dev, function, "gamma", s->gamma, 0, INFINITY) ||
        !gpunn__check_range(dev, function, "min_lr", s->min_lr, 0, INFINITY) ||
        !gpunn__check_range(dev, function, "factor", s->factor, 0, 1) ||
        !gpunn__check_range(dev, function, "threshold", s->threshold, 0, INFINITY))
        return GPUNN_ERR_ARGUMENT;
    if (!(s->pct_start >= 0 && s->pct_start <= 1 && s->div_factor > 0 && s->final_div_factor > 0))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: pct_start is %g, div_factor %g and final_div_factor %g; give a pct_start "
                           "from 0 to 1 and factors above 0",
                           function, (double)s->pct_start, (double)s->div_factor,
                           (double)s->final_div_factor);
    const gpunn_status status = gpunn__schedule_check_counts(dev, s);
    if (status != GPUNN_OK) return status;
    if (type == GPUNN_SCHEDULE_STEP && s->step_size < 1)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: step_size is %lld; give the steps between two reductions", function,
                           (long long)s->step_size);
    if ((type == GPUNN_SCHEDULE_COSINE || type == GPUNN_SCHEDULE_ONE_CYCLE ||
         type == GPUNN_SCHEDULE_LINEAR) &&
        s->total_steps < 1)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: total_steps is %lld; give the number of steps the schedule is to last",
                           function, (long long)s->total_steps);
    if (s->total_steps > 0 && s->warmup_steps >= s->total_steps)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: warmup_steps is %lld; it must be below total_steps, %lld", function,
                           (long long)s->warmup_steps, (long long)s->total_steps);
    for (int i = 0; type == GPUNN_SCHEDULE_MULTI_STEP && i < 16 && (i == 0 || s->milestones[i] != 0); i++)
        if (s->milestones[i] <= (i ? s->milestones[i - 1] : 0))
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                               "%s: milestones[%d] is %lld; milestones must be above 0 and rise", function, i,
                               (long long)s->milestones[i]);
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_set_schedule_(gpunn_optimizer *opt, gpunn_schedule_args args)
{
    if (opt == NULL) return gpunn__fail_null(NULL, "gpunn_set_schedule", "optimizer");
    gpunn_status status = gpunn__schedule_check(opt->model->dev, &args);
    if (status != GPUNN_OK) return status;
    opt->schedule = args;
    opt->schedule_step = 0;
    opt->plateau_scale = 1;
    opt->plateau_best = args.maximize ? -INFINITY : INFINITY;
    opt->plateau_bad = opt->plateau_cooldown = 0;
    return GPUNN_OK;
}

/* Follows torch's ReduceLROnPlateau.step with its relative threshold. As there,
 * reductions of 1e-8 or less are not made. */
static void gpunn__plateau_step(gpunn_optimizer *opt, double metric)
{
    const gpunn_schedule_args *s = &opt->schedule;
    double                     threshold = gpunn__as_written(s->threshold), best = opt->plateau_best;
    if (s->maximize ? metric > best * (1 + threshold) : metric < best * (1 - threshold)) {
        opt->plateau_best = metric;
        opt->plateau_bad = 0;
    } else
        opt->plateau_bad++;
    if (opt->plateau_cooldown > 0) {
        opt->plateau_cooldown--;
        opt->plateau_bad = 0;
    }
    if (opt->plateau_bad > s->patience) {
        double lr = gpunn__scheduled_lr(opt, opt->lr),
               reduced = fmax(lr * gpunn__as_written(s->factor), (double)s->min_lr);
        if (lr - reduced > 1e-8) opt->plateau_scale = reduced / opt->lr;
        opt->plateau_cooldown = s->cooldown;
        opt->plateau_bad = 0;
    }
}

GPUNN_API gpunn_status gpunn_schedule_step(gpunn_optimizer *opt, float metric)
{
    if (opt == NULL) return gpunn__fail_null(NULL, "gpunn_schedule_step", "optimizer");
    opt->schedule_step++;
    if (opt->schedule.type == GPUNN_SCHEDULE_PLATEAU) gpunn__plateau_step(opt, metric);
    return GPUNN_OK;
}
