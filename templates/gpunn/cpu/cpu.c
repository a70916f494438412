#include "base/memory.h"
#include "base/device.h"
#include "base/time.h"
#include "cpu/elementwise.h"
#include "cpu/indexing.h"
#include "cpu/conv.h"
#include "cpu/optimizers.h"

/* ==== >>cpu/cpu ========================================================================================= */
/* The CPU backend: the device, its memory, and the functions that the core calls through gpunn_backend. */

static int gpunn__cpu_device_count(void)
{
    return 1;
}

static size_t gpunn__cpu_bytes(int threads)
{
    return sizeof(gpunn__cpu) + (size_t)(threads - 1) * sizeof(gpunn__worker);
}

static void *gpunn__cpu_open(const gpunn_device_args *args, char *message, size_t message_size)
{
    const int   threads = gpunn__thread_count(args->threads);
    gpunn__cpu *cpu = (gpunn__cpu *)args->realloc_fn(args->user, NULL, 0, gpunn__cpu_bytes(threads));
    if (cpu == NULL) {
        (void)snprintf(message, message_size, "out of host memory");
        return NULL;
    }
    memset(cpu, 0, sizeof *cpu);
    cpu->realloc_fn = args->realloc_fn;
    cpu->user = args->user;
    cpu->threads = cpu->capacity = threads;
    gpunn__thread_pool_open(&cpu->pool, (gpunn__worker *)(cpu + 1), threads, args);
    return cpu;
}

static void gpunn__cpu_close(void *context)
{
    gpunn__cpu *cpu = (gpunn__cpu *)context;
    gpunn__thread_pool_close(&cpu->pool);
    (void)cpu->realloc_fn(cpu->user, cpu, gpunn__cpu_bytes(cpu->capacity), 0);
}

static void gpunn__cpu_limit(void *context, int threads)
{
    gpunn__cpu *cpu = (gpunn__cpu *)context;
    gpunn__thread_pool_stop(&cpu->pool);
    cpu->threads = cpu->pool.threads = threads;
}

/* The processor's name if the system provides it, else "CPU". */
static void gpunn__cpu_model(char *name, size_t size)
{
#ifdef __linux__
    gpunn__line_of("/proc/cpuinfo", "model name\t: ", name, size);
    if (name[0]) return;
#endif
    (void)snprintf(name, size, "CPU");
}

static void gpunn__cpu_info(void *context, gpunn_backend_info *info)
{
    const gpunn__cpu *cpu = (const gpunn__cpu *)context;
    char              model[96];
    gpunn__cpu_model(model, sizeof model);
    info->type = GPUNN_DEVICE_CPU;
    info->threads = cpu->threads;
    info->merged_activations = info->any_layout = info->blocks = true;
    (void)snprintf(info->name, sizeof info->name, "%s, %d thread%s, %s", model, cpu->threads,
                   cpu->threads == 1 ? "" : "s", gpunn__gemm_name());
}

/* Large blocks start at different offsets within a page and take one extra page for that. A load waits for an
 * earlier store whose address has the same low 12 bits. A loop over blocks that all start at a page boundary
 * would wait at each step. */
enum { GPUNN__PAGE = 4096, GPUNN__STAGGER = 256 };

static size_t gpunn__cpu_padding(size_t bytes)
{
    return bytes < 16 * GPUNN__PAGE ? 0 : GPUNN__PAGE;
}

/* Aligned blocks from the host's allocator, which only aligns like malloc. The offset from the allocation to
 * the block is stored in front of the block. */
static void *gpunn__cpu_alloc(void *context, size_t bytes)
{
    gpunn__cpu  *cpu = (gpunn__cpu *)context;
    const size_t padding = gpunn__cpu_padding(bytes);
    size_t       whole;
    if (!gpunn__add(bytes, 2 * GPUNN__ALIGN + padding, &whole)) return NULL;
    char *block = (char *)cpu->realloc_fn(cpu->user, NULL, 0, whole);
    if (block == NULL) return NULL;
    size_t shift = GPUNN__ALIGN + (GPUNN__ALIGN - (uintptr_t)block % GPUNN__ALIGN) % GPUNN__ALIGN;
    if (padding) shift += cpu->blocks++ * GPUNN__STAGGER % padding;
    memcpy(block + shift - sizeof shift, &shift, sizeof shift);
    return block + shift;
}

static void gpunn__cpu_free(void *context, void *ptr, size_t bytes)
{
    gpunn__cpu *cpu = (gpunn__cpu *)context;
    size_t      shift;
    memcpy(&shift, (char *)ptr - sizeof shift, sizeof shift);
    (void)cpu->realloc_fn(cpu->user, (char *)ptr - shift,
                          bytes + 2 * GPUNN__ALIGN + gpunn__cpu_padding(bytes), 0);
}

static GPUNN__STATUS gpunn__cpu_copy(void *context, void *to, const void *from, size_t bytes)
{
    (void)context;
    memcpy(to, from, bytes);
    return GPUNN_OK;
}

static GPUNN__STATUS gpunn__cpu_fill(void *context, void *ptr, int byte, size_t bytes)
{
    (void)context;
    memset(ptr, byte, bytes);
    return GPUNN_OK;
}

static GPUNN__STATUS gpunn__cpu_synchronize(void *context)
{
    (void)context;
    return GPUNN_OK;
}

static void gpunn__cpu_trim(void *context)
{
    gpunn__thread_pool_stop(&((gpunn__cpu *)context)->pool);
}

/* The value that a node of the step's fusion reads: an operand from outside it, perhaps with another
 * shape. */
static const gpunn_value *gpunn__fused_reads(const gpunn_step *step, const gpunn_kernel_node *node,
                                             int operand)
{
    const gpunn_kernel         *kernel = step->fusion->kernel;
    const gpunn_kernel_program *program = &kernel->program[step->fusion->direction];
    signed char                 number = node->operands[operand];
    int                         i = 0;
    while (number < 0) number = kernel->nodes[-1 - number].operands[0];
    while (program->operands[i].role != GPUNN_KERNEL_VALUE || program->operands[i].index != number) i++;
    return &step->in[i];
}

/* Reports why the fusion's kernel failed: a token that is out of range of its embedding, or else an invalid
 * label. */
static GPUNN__STATUS gpunn__fused_fail(gpunn__cpu *cpu, const gpunn_step *step)
{
    const gpunn_kernel *kernel = step->fusion->kernel;
    gpunn__pick         p;
    p.rows = true;
    for (const gpunn_kernel_node *node = kernel->nodes; node < kernel->nodes + kernel->node_count; node++) {
        if (strncmp(node->text, "embedding ", 10) != 0) continue;
        p.index = gpunn__fused_reads(step, node, 0);
        p.n = gpunn__fused_reads(step, node, 1)->dim[0];
        for (int64_t at = 0; at < p.index->count; at++)
            if (gpunn__picked(&p, at) < 0 || gpunn__picked(&p, at) >= p.n)
                return gpunn__pick_fail(cpu, &p, at);
    }
    return gpunn__cpu_fail(cpu, GPUNN_ERR_ARGUMENT,
                           "a label is neither a class nor ignore_index; check the labels");
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_fusion(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_kernel_program *program = &step->fusion->kernel->program[step->fusion->direction];
    void                       *data[GPUNN_MAX_OPERANDS];
    gpunn_kernel_call           call;
    memset(&call, 0, sizeof call);
    if (program->cpu == NULL || program->operand_count > GPUNN_MAX_OPERANDS)
        return gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED, "it has no C kernel that this gpunn.h can call");
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = program->cpu_workspace(step->fusion->batch, cpu->threads);
        step->cache_bytes = program->cpu_cache;
        return step->workspace_bytes == SIZE_MAX
                   ? gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED, "the kernel does not support that size")
                   : GPUNN_OK;
    }
    for (int i = 0; i < step->input_count; i++)
        data[i] = step->grad_in[i].data ? step->grad_in[i].data : step->in[i].data;
    call.data = data;
    call.accumulate = (const unsigned char *)(const void *)step->accumulate;
    call.batch = step->fusion->batch;
    call.random_streams = step->fusion->random_streams;
    call.random = &step->state->seed;
    call.workspace = step->workspace;
    call.cache = step->cache;
    call.stale = step->cache_version != step->state->weights_version;
    call.threads = cpu->threads;
    call.lanes = gpunn__widest_vector();
    step->cache_version = step->state->weights_version;
    return program->cpu(&call) == 0 ? GPUNN_OK : gpunn__fused_fail(cpu, step);
}

/* Runs a custom op of the program. Its function only overwrites gradients. Gradients that must accumulate go
 * to the workspace first and are added from there. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_custom(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_custom_op *op = step->attr->custom;
    gpunn_value            grad_in[GPUNN_CUSTOM_INPUTS];
    gpunn_custom_call      call;
    memset(&call, 0, sizeof call);
    call.in = step->in;
    call.out = &step->out;
    call.grad_out = step->backward ? &step->grad_out : NULL;
    call.grad_in = step->backward ? grad_in : NULL;
    call.input_count = step->input_count;
    call.numbers = step->attr->numbers;
    call.user = op->user;
    call.threads = cpu->threads;
    for (int i = 0; i < step->input_count && step->backward; i++) grad_in[i] = step->grad_in[i];
    gpunn__arena arena = {(char *)step->workspace, 0};
    void *const  own = gpunn__arena_take(&arena, op->workspace ? op->workspace(&call, step->backward) : 0);
    call.workspace = arena.bytes ? own : NULL;
    for (int i = 0; i < step->input_count && step->backward; i++) {
        if (grad_in[i].data == NULL) continue;
        void *aside = gpunn__arena_take(&arena, (size_t)grad_in[i].count * sizeof(float));
        if (action != GPUNN__PREPARE && step->accumulate[i]) grad_in[i].data = aside;
    }
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = arena.bytes;
        return GPUNN_OK;
    }
    int code = (step->backward ? op->backward : op->forward)(&call);
    if (code != 0)
        return gpunn__cpu_fail(cpu, GPUNN_ERR_DEVICE, "the function of op '%s' failed with %d", op->name,
                               code);
    for (int i = 0; i < step->input_count && step->backward; i++) {
        const float *from = (const float *)grad_in[i].data;
        float       *to = (float *)step->grad_in[i].data;
        for (int64_t k = 0; from != to && k < grad_in[i].count; k++) to[k] += from[k];
    }
    return GPUNN_OK;
}

static GPUNN__STATUS gpunn__cpu_prepare(void *context, gpunn_step *step)
{
    return step->operation->cpu((gpunn__cpu *)context, step, GPUNN__PREPARE);
}

static GPUNN__STATUS gpunn__cpu_run(void *context, gpunn_step *steps, int count, const gpunn_step **failed)
{
    gpunn__cpu_before before = gpunn__cpu_begin(context);
    gpunn_status      status = GPUNN_OK;
    for (int i = 0; i < count && status == GPUNN_OK; i++) {
        *failed = &steps[i];
        status = steps[i].operation->cpu((gpunn__cpu *)context, &steps[i],
                                         steps[i].backward ? GPUNN__BACKWARD : GPUNN__FORWARD);
    }
    gpunn__cpu_end(before);
    return status;
}

static GPUNN__STATUS gpunn__cpu_time(void *context, gpunn_run *run, double *seconds)
{
    double begin = gpunn__seconds();
    for (int i = 0; i < run->step_count; i++) {
        gpunn_status status = gpunn__cpu_run(context, &run->steps[i], 1, &run->failed);
        if (status != GPUNN_OK) return status;
        const double end = gpunn__seconds();
        seconds[i] = end - begin;
        begin = end;
    }
    run->failed = NULL;
    return GPUNN_OK;
}

/* The CPU backend has no 16-bit storage. */
static GPUNN__STATUS gpunn__cpu_convert(void *context, void *to, gpunn_dtype to_dtype, const void *from,
                                        gpunn_dtype from_dtype, int64_t count)
{
    if (to_dtype == from_dtype)
        memcpy(to, from, (size_t)count * gpunn_dtype_size(to_dtype));
    else
        gpunn__cpu_cast_values((gpunn__cpu *)context, to, to_dtype, from, from_dtype, count);
    return GPUNN_OK;
}

static const char *gpunn__cpu_error(void *context)
{
    return ((gpunn__cpu *)context)->error.text;
}

/* Whether images should be stored channels last: vectors run over channels, so most of the work must be on
 * many of them. */
static bool gpunn__cpu_channels_last(void *context, gpunn_images *images)
{
    (void)context;
    return !images->training && images->wide >= 0.8 * images->products;
}

/* The fields of the CPU's gpunn_backend; the others are NULL. */
#define GPUNN__CPU_BACKEND(X)                    \
    X(abi, GPUNN_BACKEND_ABI)                    \
    X(device_count, gpunn__cpu_device_count)     \
    X(open, gpunn__cpu_open)                     \
    X(close, gpunn__cpu_close)                   \
    X(info, gpunn__cpu_info)                     \
    X(limit, gpunn__cpu_limit)                   \
    X(alloc, gpunn__cpu_alloc)                   \
    X(free, gpunn__cpu_free)                     \
    X(upload, gpunn__cpu_copy)                   \
    X(download, gpunn__cpu_copy)                 \
    X(fill, gpunn__cpu_fill)                     \
    X(synchronize, gpunn__cpu_synchronize)       \
    X(prepare, gpunn__cpu_prepare)               \
    X(run, gpunn__cpu_run)                       \
    X(update, gpunn__cpu_update)                 \
    X(sum_of_squares, gpunn__cpu_sum_of_squares) \
    X(value_sums, gpunn__cpu_value_sums)         \
    X(scale, gpunn__cpu_scale)                   \
    X(convert, gpunn__cpu_convert)               \
    X(channels_last, gpunn__cpu_channels_last)   \
    X(time, gpunn__cpu_time)                     \
    X(trim, gpunn__cpu_trim)                     \
    X(error, gpunn__cpu_error)                   \
    X(finite, gpunn__cpu_finite)                 \
    X(strips, gpunn__cpu_strips)                 \
    X(draw, gpunn__cpu_draw)

GPUNN__INTERNAL const gpunn_backend *gpunn__cpu_backend(void)
{
#ifdef __cplusplus /* it has no designated initializers before C++20 */
#define GPUNN__X(field, value) backend.field = value;
    static const gpunn_backend backend = [] {
        gpunn_backend backend = {};
        GPUNN__CPU_BACKEND(GPUNN__X)
        return backend;
    }();
#else
#define GPUNN__X(field, value) .field = value,
    static const gpunn_backend backend = {GPUNN__CPU_BACKEND(GPUNN__X)};
#endif
#undef GPUNN__X
    return &backend;
}
