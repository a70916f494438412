#include "base/errors.h"
#include "base/memory.h"
#include "base/blocks.h"
#include "base/shapes.h"
#include "base/device.h"
#include "base/time.h"
#include "base/text.h"
#include "run/run.h"
#include "run/inspect.h"
#include "io/save.h"

/* ==== >>train/profile ==================================================================================== *
 * Implements gpunn_profile. Runs are ordinary ones whose steps the backend times. */
typedef struct gpunn__profile {
    gpunn_device             *dev;
    gpunn_model              *model;
    const gpunn_profile_args *args;
    const gpunn__plan        *plan;
    gpunn_group              *group;                    /* group that its runs communicate with; NULL: none */
    int                       output_count, step_count; /* step_count + 1 are timed: the update is the last */
    /* [step_count + 1] for the sum of all runs, then as many for one run */
    double *seconds;
    double  peak_flops, peak_bytes;
} gpunn__profile;

/* Floating-point operations of the products in a step. 0: it has none. */
static double gpunn__product_flops(const gpunn_step *step)
{
    const gpunn_value *x = &step->in[0], *y = step->backward ? &step->grad_out : &step->out;
    const gpunn_value *w = step->input_count > 1 ? &step->in[1] : x;
    double             weights = 0;
    switch (step->op) {
    case GPUNN_OP_LINEAR: return 2.0 * (double)y->count * (double)w->dim[1];
    case GPUNN_OP_MATMUL:
        return 2.0 * (double)y->count * (double)x->dim[x->rank - (step->attr->transpose_a ? 2 : 1)];
    case GPUNN_OP_CONV1D:
    case GPUNN_OP_CONV2D:
    case GPUNN_OP_CONV3D: return 2.0 * (double)y->count * (double)w->count / (double)w->dim[0];
    case GPUNN_OP_CONV_TRANSPOSE1D:
    case GPUNN_OP_CONV_TRANSPOSE2D:
    case GPUNN_OP_CONV_TRANSPOSE3D: return 2.0 * (double)x->count * (double)w->count / (double)w->dim[0];
    case GPUNN_OP_ATTENTION: { /* q k' and p v; length of k */
        const int axis = step->attr->heads_last || x->rank == 5 ? 1 : 2;
        return 4.0 * (double)y->count *
               (double)(step->input_count > 2 && w->rank == 4 ? w->dim[axis] : x->dim[1]);
    }
    case GPUNN_OP_RNN:
    case GPUNN_OP_LSTM:
    case GPUNN_OP_GRU:
        for (int i = GPUNN__WEIGHTS; i < step->input_count; i++)
            weights += step->in[i].rank == 2 ? (double)step->in[i].count : 0;
        return 2.0 * (double)x->count / (double)x->dim[x->rank - 1] * weights;
    default: return 0;
    }
}

static double gpunn__step_flops(const gpunn_step *step)
{
    const gpunn_value *y = step->backward ? &step->grad_out : &step->out;
    const double       product = gpunn__product_flops(step);
    int                wanted = 0;
    if (product == 0)
        return (double)(step->input_count && step->in[0].count > y->count ? step->in[0].count : y->count);
    if (!step->backward) return product;
    if (step->op == GPUNN_OP_ATTENTION) return 2.5 * product; /* recomputes the scores, and four products */
    for (int i = 0; i < step->input_count && i < 2; i++) wanted += step->grad_in[i].data != NULL;
    return product * (gpunn__op_is(step->op, GPUNN__RECURRENT) ? 2 : wanted);
}

static double gpunn__value_bytes(const gpunn_value *value)
{
    return value->data ? (double)gpunn__block_bytes(value->dtype, value->count) : 0;
}

static double gpunn__step_bytes(const gpunn_step *step)
{
    /* they read only part of their table */
    const bool picks = step->op == GPUNN_OP_EMBEDDING || step->op == GPUNN_OP_GATHER;
    double     result = gpunn__value_bytes(&step->out);
    double     bytes = result + gpunn__value_bytes(&step->fused->residual);
    bytes += gpunn__value_bytes(&step->fused->half) + gpunn__value_bytes(&step->fused->before);
    if (step->backward) bytes += gpunn__value_bytes(&step->grad_out);
    for (int i = 0; i < step->input_count; i++) {
        const double in = gpunn__value_bytes(&step->in[i]);
        bytes += picks && !step->backward && in > result ? result : in;
        if (step->backward) bytes += gpunn__value_bytes(&step->grad_in[i]) * (step->accumulate[i] ? 2 : 1);
    }
    return bytes;
}

static double gpunn__updated(const gpunn_optimizer *opt)
{
    double count = 0;
    for (int i = 0; i < opt->parameter_count; i++) count += (double)gpunn__gradient_count(opt->parameters[i]);
    return count;
}

/* Bytes that an update moves. Weights and states are read and
 * written, gradients read, 16-bit weights written. */
static double gpunn__update_bytes(const gpunn__profile *p)
{
    double each = p->plan->half ? 3 * 4 + 2 : 3 * 4;
    for (int i = 0; i < GPUNN__STATES; i++) each += p->args->optimizer->uses[i] ? 2 * 4 : 0;
    return each * gpunn__updated(p->args->optimizer);
}

/* Operations of step i with those that it computes too, or of the update if i is step_count. */
static double gpunn__profile_flops(const gpunn__profile *p, int i)
{
    if (i == p->step_count) return gpunn__updated(p->args->optimizer);
    const gpunn_step *step = &p->plan->steps[i];
    double            flops = gpunn__step_flops(step);
    for (int before = 1; before <= step->fused->strips; before++) flops += gpunn__step_flops(step - before);
    return flops;
}

static double gpunn__profile_bytes(const gpunn__profile *p, int i)
{
    return i < p->step_count ? gpunn__step_bytes(&p->plan->steps[i]) : gpunn__update_bytes(p);
}

static GPUNN__STATUS gpunn__profile_run(const gpunn__profile *p)
{
    const gpunn_profile_args *args = p->args;
    if (args->loss == NULL) return gpunn_forward(args->outputs, p->output_count);
    if (args->optimizer) return gpunn_train_step(args->optimizer, args->loss);
    const int64_t      reductions = p->group ? p->group->reductions : 0;
    const gpunn_status status = gpunn_zero_grad(p->model);
    return status == GPUNN_OK ? gpunn_backward(args->loss)
                              : gpunn__report_to_ranks(p->group, reductions, status);
}

/* Runs once and adds the times. Where the backend does not time the
 * update, it gets the time not spent in steps. */
static GPUNN__STATUS gpunn__profile_add(gpunn__profile *p)
{
    double      *now = p->seconds + p->step_count + 1;
    const double begin = gpunn__seconds();
    memset(now, 0, (size_t)(p->step_count + 1) * sizeof *now);
    p->dev->timing = now;
    gpunn_status status = gpunn__profile_run(p);
    p->dev->timing = NULL;
    double rest = gpunn__seconds() - begin;
    for (int i = 0; i < p->step_count; i++) rest -= now[i];
    if (p->dev->backend->execute == NULL && p->args->optimizer) now[p->step_count] = rest > 0 ? rest : 0;
    for (int i = 0; i <= p->step_count; i++) p->seconds[i] += now[i];
    return status;
}

/* Measures the highest rate on this device: the best of four runs of one op on two square matrices. */
static GPUNN__STATUS gpunn__profile_peak(const gpunn__profile *p, bool product, double *rate)
{
    enum { STEPS = 8, TIMES = 4 }; /* room for casts beside the op */
    gpunn_device     *dev = p->dev;
    const int64_t     size = product && dev->info.type == GPUNN_DEVICE_CPU ? 1024 : 4096;
    const gpunn_init  init = {GPUNN_INIT_UNIFORM, -1, 1};
    const gpunn_shape shape = {{size, size}};
    double            seconds[STEPS];
    gpunn_model_args  args;
    memset(&args, 0, sizeof args);
    args.precision = p->model->precision;
    gpunn_model *model = gpunn_model_create_(dev, args);
    if (model == NULL) return dev->error.status;
    gpunn_tensor *a = gpunn_parameter(model, "a", shape, init), *b = gpunn_parameter(model, "b", shape, init);
    gpunn_tensor *y = product ? gpunn_matmul(a, b) : gpunn_add(a, b);
    gpunn_status  status = y ? gpunn_forward(&y, 1) : dev->error.status;
    for (int again = 0; again < TIMES && status == GPUNN_OK && model->last->step_count < STEPS; again++) {
        dev->timing = seconds;
        status = gpunn_forward(&y, 1);
        dev->timing = NULL;
        for (int i = 0; i < model->last->step_count && status == GPUNN_OK; i++) {
            const gpunn_step *step = &model->last->steps[i];
            const double      work = product ? gpunn__product_flops(step) : gpunn__step_bytes(step);
            if (step->op == y->op && seconds[i] > 0 && work / seconds[i] > *rate) *rate = work / seconds[i];
        }
    }
    gpunn_model_destroy(model);
    return status;
}

/* Writes a label such as "conv1 conv2d backward [8, 16, 32, 32]". */
static void gpunn__profile_label(const gpunn__profile *p, int i, char *text, size_t size)
{
    gpunn__text_buffer line = {text, size, 0};
    *text = 0;
    if (i == p->step_count) {
        gpunn__put(&line, "%s", p->args->optimizer->name);
        return;
    }
    const gpunn_step  *step = &p->plan->steps[i];
    const gpunn_value *y = step->backward ? &step->grad_out : &step->out;
    gpunn__put(&line, "%s%s%s%s [", step->name, step->name[0] ? " " : "", gpunn_op_name(step->op),
               step->backward ? " backward" : "");
    for (int axis = 0; axis < y->rank; axis++)
        gpunn__put(&line, "%s%lld", axis ? ", " : "", (long long)y->dim[axis]);
    gpunn__put(&line, "]");
}

static double gpunn__profile_share(double work, double seconds, double peak)
{
    return seconds > 0 && peak > 0 ? 100 * work / seconds / peak : 0;
}

static void gpunn__profile_row(const gpunn__profile *p, int i, double total, const gpunn__text *out)
{
    const double flops = gpunn__profile_flops(p, i), bytes = gpunn__profile_bytes(p, i), s = p->seconds[i];
    char         label[160];
    gpunn__profile_label(p, i, label, sizeof label);
    gpunn__text_line(out, "%11.2f %6.1f %11.3f %6.1f %11.3f %6.1f  %s\n", s * 1e6,
                     total > 0 ? 100 * s / total : 0, flops * 1e-6,
                     gpunn__profile_share(flops, s, p->peak_flops), bytes * 1e-6,
                     gpunn__profile_share(bytes, s, p->peak_bytes), label);
}

/* Prints steps by falling time. Steps of equal time stay in order. */
static void gpunn__profile_table(const gpunn__profile *p)
{
    gpunn__text out;
    double      total = 0, before = HUGE_VAL;
    const int   count = p->step_count + (p->args->optimizer != NULL);
    out.write = p->args->write;
    out.user = p->args->user;
    for (int i = 0; i < count; i++) total += p->seconds[i];
    gpunn__text_line(&out, "%s, batch %lld: %.2f us; peaks %.2f GFLOP/s, %.2f GB/s\n",
                     p->args->loss ? "training step" : "evaluation", (long long)p->plan->batch, total * 1e6,
                     p->peak_flops * 1e-9, p->peak_bytes * 1e-9);
    gpunn__text_line(&out, "%11s %6s %11s %6s %11s %6s  %s\n", "us", "%", "MFLOP", "% peak", "MB", "% peak",
                     "step");
    for (int printed = 0; printed < count;) {
        double next = -1;
        for (int i = 0; i < count; i++)
            if (p->seconds[i] < before && p->seconds[i] > next) next = p->seconds[i];
        for (int i = 0; i < count; i++)
            if (p->seconds[i] == next) gpunn__profile_row(p, i, total, &out), printed++;
        before = next;
    }
}

/* Writes microseconds with three decimals and a point in every locale. */
static void gpunn__emit_time(gpunn__writer *w, const char *key, double seconds)
{
    const long long nanoseconds = (long long)(seconds * 1e9 + 0.5);
    gpunn__emitf(w, ", \"%s\": %lld.%03lld", key, nanoseconds / 1000, nanoseconds % 1000);
}

/* Without a step: the optimizer's update. */
static const char *gpunn__phase_name(const gpunn_step *step)
{
    if (step == NULL) return "update";
    return step->backward ? "backward" : "forward";
}

static GPUNN__STATUS gpunn__profile_trace(const gpunn__profile *p)
{
    gpunn__file   file;
    gpunn__writer w;
    char          label[160];
    double        at = 0;
    const int     count = p->step_count + (p->args->optimizer != NULL);
    gpunn_status  status = gpunn__file_open(p->dev, p->args->trace, &file);
    if (status != GPUNN_OK) return status;
    memset(&w, 0, sizeof w);
    w.dev = p->dev;
    w.file = &file;
    w.pass = GPUNN__HEADER;
    gpunn__emitf(&w, "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [");
    for (int i = 0; i < count; i++) {
        const gpunn_step *step = i < p->step_count ? &p->plan->steps[i] : NULL;
        gpunn__profile_label(p, i, label, sizeof label);
        gpunn__emitf(&w,
                     "%s\n{\"ph\": \"X\", \"pid\": 1, \"tid\": 1, \"cat\": \"%s\", \"name\": ", i ? "," : "",
                     gpunn__phase_name(step));
        gpunn__emit_name(&w, "", label);
        gpunn__emit_time(&w, "ts", at);
        gpunn__emit_time(&w, "dur", p->seconds[i]);
        gpunn__emitf(&w, ", \"args\": {\"flops\": %.0f, \"bytes\": %.0f}}", gpunn__profile_flops(p, i),
                     gpunn__profile_bytes(p, i));
        at += p->seconds[i];
    }
    gpunn__emitf(&w, "\n]}\n");
    if (w.status == GPUNN_OK) return gpunn__file_commit(&file);
    gpunn__file_discard(&file);
    return w.status;
}

/* Runs the timed runs, averages them, measures peaks, and writes table and trace. */
static GPUNN__STATUS gpunn__profile_all(gpunn__profile *p, int runs)
{
    gpunn_status status = GPUNN_OK;
    for (int run = 0; run < runs && status == GPUNN_OK; run++) status = gpunn__profile_add(p);
    for (int i = 0; i <= p->step_count; i++) p->seconds[i] /= runs;
    if (status == GPUNN_OK && p->peak_flops == 0) status = gpunn__profile_peak(p, true, &p->peak_flops);
    if (status == GPUNN_OK && p->peak_bytes == 0) status = gpunn__profile_peak(p, false, &p->peak_bytes);
    if (status == GPUNN_OK && p->args->write) gpunn__profile_table(p);
    return status == GPUNN_OK && p->args->trace ? gpunn__profile_trace(p) : status;
}

/* What is wrong with the settings, or NULL. first: the loss or the first output. */
static const char *gpunn__profile_fault(const gpunn_profile_args *args, const gpunn_tensor *first)
{
    if (args->optimizer && args->loss == NULL) return "an optimizer needs a .loss";
    if (first == NULL) return ".loss and .outputs are both NULL; set one of them";
    const bool positive = args->runs >= 0 && args->peak_flops >= 0 && args->peak_bytes >= 0;
    return positive ? NULL : "runs and peaks may not be negative";
}

GPUNN_API gpunn_status gpunn_profile_(gpunn_model *model, gpunn_profile_args args)
{
    gpunn__profile p;
    if (model == NULL) return gpunn__fail_null(NULL, "gpunn_profile", "model");
    memset(&p, 0, sizeof p);
    p.dev = model->dev;
    p.model = model;
    p.args = &args;
    p.peak_flops = args.peak_flops;
    p.peak_bytes = args.peak_bytes;
    while (p.output_count < 8 && args.outputs[p.output_count]) p.output_count++;
    const gpunn_tensor *first = args.loss ? args.loss : args.outputs[0];
    const char         *fault = gpunn__profile_fault(&args, first);
    if (fault) return gpunn__fail(p.dev, GPUNN_ERR_ARGUMENT, "gpunn_profile: %s", fault);
    if (first->model != model || (args.optimizer && args.optimizer->model != model))
        return gpunn__fail(p.dev, GPUNN_ERR_ARGUMENT, "gpunn_profile: the %s belongs to another model",
                           first->model != model ? "tensor" : "optimizer");
    if (p.dev->backend->time == NULL)
        return gpunn__fail(p.dev, GPUNN_ERR_UNSUPPORTED,
                           "gpunn_profile: this device's backend cannot time steps; use the CPU's");
    if (args.loss) p.group = args.optimizer ? args.optimizer->group : gpunn__communicating_group(model);
    gpunn_status status = gpunn__profile_run(&p);
    if (status != GPUNN_OK) return status;
    const int64_t reductions = p.group ? p.group->reductions : 0;
    status = gpunn_synchronize(p.dev);
    if (status != GPUNN_OK) return gpunn__report_to_ranks(p.group, reductions, status);
    p.plan = model->last;
    p.step_count = p.plan->step_count;
    const size_t bytes = 2 * (size_t)(p.step_count + 1) * sizeof *p.seconds;
    p.seconds = (double *)gpunn__calloc(p.dev, bytes);
    /* the other ranks are starting the next run */
    if (p.seconds == NULL) return gpunn__report_to_ranks(p.group, reductions, GPUNN_ERR_MEMORY);
    status = gpunn__profile_all(&p, args.runs ? args.runs : 10);
    gpunn__free(p.dev, p.seconds, bytes);
    return status;
}
