#include "run/run.h"
#include "base/errors.h"
#include "base/libraries.h"
#include "base/ranks.h"

/* Whether the run begins with rounding an F32 input to 16 bits for products. Then the kernel that stores the
 * run's numbers does that as well. */
static bool gpunn__rounds_first(const gpunn__cuda *cuda, const gpunn_run *run)
{
    const gpunn_step *step = run->steps;
    return !cuda->plain && run->step_count > 0 && step->op == GPUNN_OP_CAST && !step->backward &&
           step->in[0].dtype == GPUNN_F32 &&
           (step->out.dtype == GPUNN_F16 || step->out.dtype == GPUNN_BF16) &&
           step->in[0].channels_last == step->out.channels_last;
}

GPUNN__INTERNAL gpunn_status gpunn__run_numbers(gpunn__cuda *cuda, const gpunn_run *run, bool replayed)
{
    gpunn__numbers numbers;
    unsigned       keeping = (unsigned)(run->kept_count < 1024 ? run->kept_count : 1024); /* blocks */
    if (run->update_count > GPUNN__MAX_UPDATES)
        return gpunn__cuda_fail(
            cuda, GPUNN_ERR_UNSUPPORTED,
            "%d ranges of parameters have settings of their own, but a GPU supports %d; set fewer",
            run->update_count, GPUNN__MAX_UPDATES);
    numbers.seed = run->state ? run->state->seed : 0;
    numbers.step = run->state ? run->state->step : 0;
    numbers.draw = run->state ? run->state->draw : 0;
    numbers.run_counts = run->state ? run->state->counts : NULL;
    numbers.counts = run->counts;
    numbers.update = run->update;
    numbers.replayed = replayed;
    numbers.runs = run->step_count > 0;
    numbers.trains = run->trains;
    numbers.loss_scale = run->loss_scale;
    numbers.loss_gradient = run->loss_gradient;
    numbers.doubt = run->update_count == 0 ? run->doubt : NULL;
    numbers.wide = NULL;
    numbers.half = NULL;
    numbers.half_count = 0;
    numbers.rounding = 0;
    numbers.kept = run->kept;
    numbers.kept_count = run->kept_count;
    numbers.first = 0;
    do {
        int left = run->update_count - numbers.first;
        numbers.count = left < GPUNN__NUMBERS ? left : (int)GPUNN__NUMBERS;
        numbers.counted = 0;
        for (int i = 0; i < numbers.count; i++) {
            const gpunn_update *u = &run->updates[numbers.first + i];
            numbers.lr[i] = u->setting[0];
            numbers.update_step[i] = u->step;
            numbers.from[i] = u->parameter ? u->first : 0;
            numbers.to[i] = u->parameter ? u->last : 0;
            if (numbers.to[i] > numbers.counted) numbers.counted = numbers.to[i];
        }
        if (numbers.first == 0 && gpunn__rounds_first(cuda, run)) {
            numbers.wide = run->steps->in[0].data;
            numbers.half = run->steps->out.data;
            numbers.half_dtype = run->steps->out.dtype;
            numbers.half_count = run->steps->out.count;
            numbers.rounding = gpunn__blocks(cuda, numbers.half_count, GPUNN__PACK);
        }
        const unsigned blocks = 1 + numbers.rounding + keeping;
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__numbers_kernel, blocks, blocks > 1 ? GPUNN__THREADS : 32,
                                 cuda->state, numbers));
        numbers.rounding = keeping = 0;
        numbers.first += numbers.count;
    } while (numbers.first < run->update_count);
    return GPUNN_OK;
}

/* Reports a bad loss or gradient that kernels have recorded, once, instead of running; false: there is none.
 * If ranks have joined, the run executes anyway: others wait for it, and some may not know yet. Never
 * waits. */
static bool gpunn__takes_bad(gpunn__cuda *cuda, gpunn_run *run)
{
    uint64_t   noted = cuda->bad[0];
    uint32_t   bits = (uint32_t)cuda->bad[1];
    const bool ranks = cuda->nccl && cuda->nccl->comm && run->step_count + run->update_count > 0;
    if (noted == 0 || ranks) return false;
    run->is_bad = true;
    run->bad_step = (noted & ~GPUNN__BAD_GRADIENT) - 1;
    run->bad_norm = (noted & GPUNN__BAD_GRADIENT) != 0;
    run->bad_gradient = (const float *)(uintptr_t)cuda->bad[2];
    memcpy(&run->bad_value, &bits, sizeof bits);
    cuda->bad[0] = 0;
    return true;
}

/* Runs a fused kernel that the generator has written. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_fusion(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_kernel_operand *operands = step->fusion->kernel->program[step->fusion->direction].operands;
    const gpunn_kernel_launch  *launch = step->fusion->launch;
    void                       *data[GPUNN_KERNEL_OPERANDS];
    gpunn_kernel_call           call;
    memset(&call, 0, sizeof call);
    if (launch == NULL || launch->run == NULL || step->input_count > GPUNN_KERNEL_OPERANDS)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                launch ? "it is for CPUs" : "its CUDA file is not linked");
    if (action == GPUNN__PREPARE) {
        for (int i = 0; i < step->input_count; i++) {
            gpunn_dtype dtype = step->grad_in[i].dtype ? step->grad_in[i].dtype : step->in[i].dtype;
            if (dtype && dtype != (gpunn_dtype)operands[i].dtype)
                return gpunn__cuda_fail(
                    cuda, GPUNN_ERR_UNSUPPORTED,
                    "it was generated for a model of another precision: operand %d is %s here and %s there",
                    i, gpunn_dtype_name(dtype), gpunn_dtype_name((gpunn_dtype)operands[i].dtype));
        }
        if (gpunn__short_fused(step))
            return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                    "its steps are so short that they share a launch with others");
        step->workspace_bytes = launch->workspace(step->fusion->batch, cuda->multiprocessors);
        return step->workspace_bytes == SIZE_MAX
                   ? gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "the kernel does not support that size")
                   : GPUNN_OK;
    }
    for (int i = 0; i < step->input_count; i++)
        data[i] = step->grad_in[i].data ? step->grad_in[i].data : step->in[i].data;
    call.data = data;
    call.accumulate = (const unsigned char *)step->accumulate;
    call.half = step->fusion->half;
    call.batch = step->fusion->batch;
    call.random_streams = step->fusion->random_streams;
    call.random = &cuda->state->seed;
    call.workspace = step->workspace;
    call.multiprocessors = cuda->multiprocessors;
    call.counters = cuda->counters;
    call.stream = cuda->stream;
    gpunn__cuda_clear();
    return gpunn__cuda_check(cuda, (cudaError_t)-launch->run(&call), step->name);
}

/* Copies the results of a custom op that it wrote in F32 in the workspace. */
static gpunn_status gpunn__custom_results(gpunn__cuda *cuda, const gpunn_step *step, const gpunn_value *out,
                                          const gpunn_value *grad_in)
{
    if (!step->backward && out->data != step->out.data)
        return gpunn__cuda_copy(cuda, step->out.data, step->out.dtype, out->data, GPUNN_F32, out->count,
                                false);
    for (int i = 0; i < step->input_count && step->backward; i++)
        if (grad_in[i].data != step->grad_in[i].data)
            GPUNN__TRY(gpunn__cuda_copy(cuda, step->grad_in[i].data, step->grad_in[i].dtype, grad_in[i].data,
                                        GPUNN_F32, grad_in[i].count, step->accumulate[i]));
    return GPUNN_OK;
}

/* Runs a custom op of the program. Its values are F32. Values in 16-bit storage are converted in the
 * workspace before and after. Gradients to be accumulated are computed in the workspace too. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_custom(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn_custom_op *op = step->attr->custom;
    gpunn_custom_function  function = step->backward ? op->cuda_backward : op->cuda_forward;
    gpunn_value            in[GPUNN_CUSTOM_INPUTS], grad_in[GPUNN_CUSTOM_INPUTS], out = step->out,
                                                                       grad_out = step->grad_out;
    const bool        run = action != GPUNN__PREPARE;
    gpunn_custom_call call;
    gpunn_value      *values[2 * GPUNN_CUSTOM_INPUTS + 2];
    int               count = 0;
    if (function == NULL)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "op '%s' has no .cuda_%s function; add one, or open a CPU device", op->name,
                                step->backward ? "backward" : "forward");
    memset(&call, 0, sizeof call);
    call.in = in;
    call.out = &out;
    call.grad_out = step->backward ? &grad_out : NULL;
    call.grad_in = step->backward ? grad_in : NULL;
    call.input_count = step->input_count;
    call.numbers = step->attr->numbers;
    call.user = op->user;
    call.stream = cuda->stream;
    for (int i = 0; i < step->input_count; i++) {
        in[i] = step->in[i];
        values[count++] = &in[i];
        if (step->backward) grad_in[i] = step->grad_in[i];
    }
    values[count++] = &out;
    if (step->backward) values[count++] = &grad_out;
    gpunn__arena arena = {(char *)step->workspace, 0};
    void *const  own = gpunn__arena_take(&arena, op->workspace ? op->workspace(&call, step->backward) : 0);
    call.workspace = arena.bytes ? own : NULL;
    for (int i = 0; i < count; i++) {
        gpunn_value *value = values[i];
        if (value->data == NULL || (value->dtype != GPUNN_F16 && value->dtype != GPUNN_BF16)) continue;
        void *wide = gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, value->count));
        if (run && (value != &out || step->backward))
            GPUNN__TRY(
                gpunn__cuda_copy(cuda, wide, GPUNN_F32, value->data, value->dtype, value->count, false));
        if (run) value->data = wide;
        value->dtype = GPUNN_F32;
    }
    for (int i = 0; i < step->input_count && step->backward; i++) {
        if (grad_in[i].data == NULL) continue;
        void *wide = gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, grad_in[i].count));
        if (run && (step->accumulate[i] || grad_in[i].dtype != GPUNN_F32)) grad_in[i].data = wide;
        grad_in[i].dtype = GPUNN_F32;
    }
    if (!run) {
        step->workspace_bytes = arena.bytes;
        return GPUNN_OK;
    }
    gpunn__cuda_clear();
    GPUNN__TRY(gpunn__cuda_check(cuda, (cudaError_t)function(&call), op->name));
    GPUNN__TRY(gpunn__cuda_launched(cuda, cudaGetLastError(), op->name));
    return gpunn__custom_results(cuda, step, &out, grad_in);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_dispatch(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    switch (step->op) {
#define GPUNN__X(ENUM, name, ...) \
    case GPUNN_OP_##ENUM: return gpunn__cuda_##name(cuda, step, action);
        GPUNN_OTHER_OPS(GPUNN__X)
#undef GPUNN__X
    default: return gpunn__cuda_map(cuda, step, action);
    }
}

/* With GPUNN_PLAIN, waits, so that a fault of `what`, launched last, is reported here and not later. */
static gpunn_status gpunn__plain_wait(gpunn__cuda *cuda, const char *what)
{
    return cuda->plain ? gpunn__cuda_check(cuda, cudaStreamSynchronize(cuda->stream), what) : GPUNN_OK;
}

/* gpunn_profile: records the time at which this step, or what follows the last step, begins. */
static gpunn_status gpunn__mark(gpunn__cuda *cuda, int step)
{
    if (cuda->marks == NULL) return GPUNN_OK;
    cuda->marks[step].set = true;
    return gpunn__cuda_check(cuda, cudaEventRecord(cuda->marks[step].event, cuda->stream), "cudaEventRecord");
}

/* What follows the steps. Kernels that follow those of two streams overlap neither. */
static gpunn_status gpunn__run_updates(gpunn__cuda *cuda, const gpunn_run *run, gpunn__checks *checks,
                                       int *begun)
{
    const bool overlaps = cuda->overlaps;
    cuda->overlaps = overlaps && !checks->beside;
    const gpunn_status status = gpunn__cuda_updates(cuda, run, checks, begun);
    cuda->overlaps = overlaps;
    return status;
}

static gpunn_status gpunn__run_launch_checked(gpunn__cuda *cuda, gpunn_run *run, gpunn__checks *checks)
{
    cuda->next = run->steps + gpunn__rounds_first(cuda, run), cuda->end = run->steps + run->step_count;
    int begun = 0;
    cuda->summed = NULL;
    cuda->with_update = NULL;
    while (cuda->next < cuda->end) {
        gpunn_step *const step = cuda->next;
        const bool        backward = step->backward;
        GPUNN__TRY(gpunn__exchanges_after(cuda, run, (int)(step - run->steps), &begun));
        GPUNN__TRY(gpunn__checks_after(cuda, checks, (int)(step - run->steps)));
        run->failed = step;
        const gpunn__range range(step);
        GPUNN__TRY(gpunn__mark(cuda, (int)(step - run->steps)));
        if (!cuda->plain) GPUNN__TRY(gpunn__short_run(cuda, gpunn__joins_steps(cuda, run)));
        if (cuda->next > step) continue;
        cuda->next++;
        GPUNN__TRY(gpunn__cuda_dispatch(cuda, step, backward ? GPUNN__BACKWARD : GPUNN__FORWARD));
        GPUNN__TRY(gpunn__plain_wait(cuda, backward ? "its backward kernels" : "its forward kernels"));
    }
    run->failed = NULL;
    if (cuda->with_update == NULL) GPUNN__TRY(gpunn__mark(cuda, run->step_count));
    GPUNN__TRY(gpunn__exchanges_after(cuda, run, run->step_count, &begun));
    GPUNN__TRY(gpunn__exchanges_end(cuda, begun));
    GPUNN__TRY(gpunn__run_updates(cuda, run, checks, &begun));
    const int before = begun;
    GPUNN__TRY(gpunn__exchanges_after(cuda, run, GPUNN_AFTER_UPDATES, &begun));
    GPUNN__TRY(gpunn__exchanges_end(cuda, begun - before));
    GPUNN__TRY(gpunn__mark(cuda, run->step_count + 1));
    return gpunn__plain_wait(cuda, "the optimizer's kernels");
}

GPUNN__INTERNAL gpunn_status gpunn__run_launch(gpunn__cuda *cuda, gpunn_run *run)
{
    gpunn__checks checks;
    GPUNN__TRY(gpunn__checks_begin(cuda, run, &checks));
    const gpunn_status status = gpunn__run_launch_checked(cuda, run, &checks);
    if (status != GPUNN_OK && checks.beside && cudaEventRecord(cuda->side_to, cuda->side) == cudaSuccess)
        (void)cudaStreamWaitEvent(cuda->stream, cuda->side_to, 0);
    return status;
}

/* The time of each launch is attributed to the first of its steps. */
static gpunn_status gpunn__times(gpunn__cuda *cuda, int count, double *seconds)
{
    int last = -1;
    GPUNN__TRY(gpunn__event_wait(cuda, cuda->marks[count - 1].event));
    for (int i = 0; i < count; i++) {
        float milliseconds = 0;
        if (!cuda->marks[i].set) continue;
        if (last >= 0) {
            GPUNN__CUDA(cuda,
                        cudaEventElapsedTime(&milliseconds, cuda->marks[last].event, cuda->marks[i].event));
            seconds[last] = 1e-3 * (double)milliseconds;
        }
        last = i;
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_time(void *context, gpunn_run *run, double *seconds)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    const int    count = run->step_count + 2; /* before each step, before the updates, after them */
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__outside_capture(cuda, "timing"));
    if (gpunn__takes_bad(cuda, run)) return GPUNN_OK;
    gpunn__mark_at *marks = (gpunn__mark_at *)gpunn__host_alloc(cuda, (size_t)count * sizeof *marks);
    if (marks == NULL) return GPUNN_ERR_MEMORY;
    memset(marks, 0, (size_t)count * sizeof *marks);
    gpunn_status status = gpunn__run_numbers(cuda, run, false);
    for (int i = 0; i < count && status == GPUNN_OK; i++)
        status = gpunn__cuda_check(cuda, cudaEventCreate(&marks[i].event), "cudaEventCreate");
    cuda->marks = marks;
    if (status == GPUNN_OK) status = gpunn__run_launch(cuda, run);
    if (status == GPUNN_OK) status = gpunn__times(cuda, count, seconds);
    cuda->marks = NULL;
    for (int i = 0; i < count && marks[i].event; i++) (void)cudaEventDestroy(marks[i].event);
    gpunn__host_free(cuda, marks, (size_t)count * sizeof *marks);
    return status;
}

/* ---- capture and replay -------------------------------------------------------------------------------- */

/* graphs per plan: first and later gradients, or buffers that the program alternates */
enum { GPUNN__MAX_CAPTURED = 8 };

typedef struct gpunn__captured gpunn__captured;
struct gpunn__captured {
    gpunn__captured *next;  /* the one used before this */
    gpunn_run        run;   /* the run that this entry belongs to; its updates follow this struct */
    bool             warm;  /* has run once, kernel by kernel, which loads the kernels */
    bool             plain; /* cannot or must not be captured */
    bool             keeps; /* some step keeps packed weights, which a graph does not renew */
    cudaGraphExec_t  graph; /* NULL: not captured */
};

/* Whether all arguments of a captured update kernel are the same. */
static bool gpunn__update_same(const gpunn_update *a, const gpunn_update *b)
{
    return a->kind == b->kind && a->count == b->count && a->parameter == b->parameter &&
           a->state[0] == b->state[0] && a->state[1] == b->state[1] && a->state[2] == b->state[2] &&
           a->gradient == b->gradient && a->rows == b->rows && a->half == b->half &&
           a->columns == b->columns && a->workspace == b->workspace && a->half_dtype == b->half_dtype &&
           memcmp(a->setting + 1, b->setting + 1, sizeof a->setting - sizeof(float)) == 0 &&
           a->gradient_scale == b->gradient_scale && a->gradient_limit == b->gradient_limit &&
           a->clip_norm == b->clip_norm && a->clip_group == b->clip_group &&
           a->fused_launch == b->fused_launch;
}

static bool gpunn__run_same(const gpunn_run *a, const gpunn_run *b)
{
    bool same = a->signature == b->signature && a->steps == b->steps && a->step_count == b->step_count &&
                a->loss == b->loss && a->update_count == b->update_count && a->loss_scale == b->loss_scale &&
                a->skips == b->skips && a->rejected == b->rejected && a->doubt == b->doubt &&
                a->is_checked == b->is_checked && a->gradients == b->gradients;
    for (int i = 0; i < a->update_count && same; i++)
        same = gpunn__update_same(&a->updates[i], &b->updates[i]);
    return same;
}

static size_t gpunn__captured_bytes(const gpunn_run *run)
{
    return sizeof(gpunn__captured) + (size_t)run->update_count * sizeof *run->updates;
}

/* Frees an entry and returns the next. */
static gpunn__captured *gpunn__captured_free(gpunn__cuda *cuda, gpunn__captured *captured)
{
    gpunn__captured *next = captured->next;
    if (captured->graph && !gpunn__cuda_is_forked(cuda))
        (void)gpunn__cuda_check(cuda, cudaGraphExecDestroy(captured->graph), "cudaGraphExecDestroy");
    gpunn__host_free(cuda, captured, gpunn__captured_bytes(&captured->run));
    return next;
}

/* Whether the host takes part in the run while it executes. */
static bool gpunn__needs_host(const gpunn_run *run)
{
    bool waits = false;
    for (int i = 0; i < run->step_count && !waits; i++)
        waits = run->steps[i].ranks && !run->steps[i].ranks->joined;
    return waits;
}

static bool gpunn__keeps_weights(const gpunn_run *run)
{
    bool keeps = false;
    for (int i = 0; i < run->step_count && !keeps; i++) keeps = run->steps[i].cache_bytes > 0;
    return keeps;
}

static bool gpunn__has_stale(const gpunn__cuda *cuda, const gpunn_run *run)
{
    bool stale = false;
    for (int i = 0; i < run->step_count && !stale; i++)
        stale = run->steps[i].cache_bytes > 0 && gpunn__cuda_is_stale(cuda, &run->steps[i]);
    return stale;
}

/* Finds or creates the entry of this run and moves it to the front of the list. Returns NULL if memory runs
 * out. */
static gpunn__captured *gpunn__captured_of(gpunn__cuda *cuda, gpunn_run *run)
{
    gpunn__captured *first = (gpunn__captured *)run->captured, **link = &first, *captured;
    for (int count = 1; *link && !gpunn__run_same(&(*link)->run, run); count++)
        if (count < GPUNN__MAX_CAPTURED)
            link = &(*link)->next;
        else
            *link = gpunn__captured_free(cuda, *link);
    captured = *link;
    if (captured)
        *link = captured->next;
    else if ((captured = (gpunn__captured *)gpunn__host_alloc(cuda, gpunn__captured_bytes(run))) != NULL) {
        gpunn_update *updates = (gpunn_update *)(captured + 1);
        for (int i = 0; i < run->update_count; i++) updates[i] = run->updates[i];
        captured->run = *run;
        captured->run.updates = updates;
        captured->plain = cuda->plain || gpunn__needs_host(run);
        captured->keeps = gpunn__keeps_weights(run);
    }
    if (captured) {
        captured->next = first;
        first = captured;
    }
    run->captured = first;
    return captured;
}

static gpunn_status gpunn__use_stream(gpunn__cuda *cuda, cudaStream_t stream)
{
    if (cuda->stream == stream) return GPUNN_OK;
    cuda->stream = stream;
    return gpunn__libraries_stream(cuda);
}

static gpunn_status gpunn__run_capture(gpunn__cuda *cuda, gpunn__captured *captured, gpunn_run *run)
{
    cudaGraph_t graph = NULL;
    /* the program may use its stream meanwhile, or it may not support capture */
    cudaStream_t stream = cuda->stream;
    GPUNN__CUDA(cuda, cudaStreamBeginCapture(cuda->own, cudaStreamCaptureModeThreadLocal));
    gpunn_status status = gpunn__use_stream(cuda, cuda->own);
    if (status == GPUNN_OK) status = gpunn__run_launch(cuda, run);
    cudaError_t        ended = cudaStreamEndCapture(cuda->own, &graph);
    const gpunn_status back = gpunn__use_stream(cuda, stream);
    if (status == GPUNN_OK) status = back;
    if (status != GPUNN_OK)
        (void)cudaGetLastError(); /* the reason for the failure is already recorded */
    else
        status = gpunn__cuda_check(cuda, ended, "cudaStreamEndCapture");
    if (status == GPUNN_OK)
        status = gpunn__cuda_check(cuda, cudaGraphInstantiate(&captured->graph, graph, 0),
                                   "cudaGraphInstantiate");
    if (graph) (void)cudaGraphDestroy(graph);
    return status;
}

/* Captures the run. If a driver cannot capture overlapping kernels, captures it again without overlap. */
static gpunn_status gpunn__run_capture_overlapping(gpunn__cuda *cuda, gpunn__captured *captured,
                                                   gpunn_run *run)
{
    gpunn_status status = gpunn__run_capture(cuda, captured, run);
    if (status == GPUNN_OK || cuda->dead || !cuda->overlaps) return status;
    cuda->overlaps = false;
    return gpunn__run_capture(cuda, captured, run);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_execute(void *context, gpunn_run *run)
{
    gpunn__cuda       *cuda = (gpunn__cuda *)context;
    const gpunn__range range(run->step_count > 0 && run->steps->training ? "gpunn training"
                                                                         : "gpunn evaluation");
    GPUNN__ENTER(cuda);
    if (gpunn__takes_bad(cuda, run) || (run->step_count == 0 && run->update_count == 0)) return GPUNN_OK;
    if (gpunn__cuda_capturing(cuda)) {
        if (cuda->plain) return gpunn__outside_capture(cuda, "wait for each step (GPUNN_PLAIN)");
        run->captured_only = cuda->replayed = true;
        GPUNN__TRY(gpunn__run_numbers(cuda, run, true));
        return gpunn__run_launch(cuda, run);
    }
    GPUNN__TRY(gpunn__ranks_there(cuda, run->exchange_count)); /* a replayed graph would not notice */
    gpunn__captured *captured = gpunn__captured_of(cuda, run);
    if (captured == NULL) return GPUNN_ERR_MEMORY;
    GPUNN__TRY(gpunn__run_numbers(cuda, run, false));
    GPUNN__TRY(gpunn__plain_wait(cuda, "what ran before this"));
    const bool stale = captured->keeps && gpunn__has_stale(cuda, run);
    if (captured->warm && captured->graph == NULL && !captured->plain && !stale &&
        gpunn__run_capture_overlapping(cuda, captured, run) != GPUNN_OK) {
        char text[sizeof cuda->text + 128];
        if (cuda->dead) return cuda->dead;
        (void)snprintf(text, sizeof text,
                       "a run could not be captured and is launched kernel by kernel, which is slower: %s",
                       cuda->text);
        gpunn__cuda_log(cuda, GPUNN_LOG_WARNING, text);
        captured->plain = true;
        run->failed = NULL;
    }
    if (captured->graph && !stale)
        GPUNN__CUDA(cuda, cudaGraphLaunch(captured->graph, cuda->stream));
    else
        GPUNN__TRY(gpunn__run_launch(cuda, run));
    captured->warm = true;
    return GPUNN_OK;
}

GPUNN__INTERNAL void gpunn__cuda_forget(void *context, void *kept)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    const gpunn__current current(cuda->context);
    for (gpunn__captured *captured = (gpunn__captured *)kept; captured;
         captured = gpunn__captured_free(cuda, captured)) {}
}
