#include "base/device.h"
#include "base/forward_declarations.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/shapes.h"

/* The only symbol of gpunn_cuda.cu. The reference is weak: it is NULL if that file is not linked. Linkers of
 * Windows and macOS have no such weak references. */
#if defined(GPUNN_CUDA)
extern const gpunn_backend gpunn_cuda_backend;
#define GPUNN__CUDA_BACKEND (&gpunn_cuda_backend)
#elif defined(__GNUC__) && defined(__ELF__)
extern const gpunn_backend gpunn_cuda_backend __attribute__((weak));
#define GPUNN__CUDA_BACKEND (&gpunn_cuda_backend)
#else
#define GPUNN__CUDA_BACKEND ((const gpunn_backend *)NULL)
#endif

#if defined(__GNUC__) && !defined(_WIN32)
#define GPUNN__HOW_TO_LINK                                                                                 \
    "if it is in an archive or a shared library, link with -Wl,-u,gpunn_cuda_backend or compile the file " \
    "that defines GPUNN_IMPLEMENTATION with -DGPUNN_CUDA"
#else
#define GPUNN__HOW_TO_LINK "compile the file that defines GPUNN_IMPLEMENTATION with -DGPUNN_CUDA"
#endif

/* One of these exists where NVIDIA's driver is installed: on a computer, in WSL, on a Jetson. */
#ifndef GPUNN__DRIVER_FILES
#define GPUNN__DRIVER_FILES "/dev/nvidia0", "/usr/lib/wsl/lib/libcuda.so.1", "/dev/nvhost-gpu"
#endif

/* Whether the driver is installed and CUDA_VISIBLE_DEVICES leaves a GPU visible. It opens and loads nothing,
 * since that may take a second. */
static bool gpunn__driver_is_there(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible && (visible[0] == 0 || visible[0] == '-')) return false;
#ifdef _WIN32
    return SearchPathA(NULL, "nvcuda.dll", NULL, 0, NULL, NULL) != 0;
#else
    static const char *const files[] = {GPUNN__DRIVER_FILES};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (access(files[i], F_OK) == 0) return true;
    return false;
#endif
}

GPUNN_API int gpunn_cuda_device_count(void)
{
    const gpunn_backend *cuda = GPUNN__CUDA_BACKEND;
    return cuda && cuda->abi == GPUNN_BACKEND_ABI ? cuda->device_count() : 0;
}

static int gpunn__local_index(int devices)
{
    return devices > 0 ? gpunn_local_rank() % devices : 0;
}

/* Opens a device on that backend. On failure it returns NULL and writes the reason to message. */
static gpunn_device *gpunn__device_on(const gpunn_backend *backend, const gpunn_device_args *args,
                                      char *message, size_t size)
{
    if (backend->abi != GPUNN_BACKEND_ABI) {
        (void)snprintf(message, size,
                       "the backend has ABI %d, but this gpunn.h has %d; use both files from one version",
                       backend->abi, GPUNN_BACKEND_ABI);
        return NULL;
    }
    gpunn_device *dev = (gpunn_device *)args->realloc_fn(args->user, NULL, 0, sizeof *dev);
    if (dev == NULL) {
        (void)snprintf(message, size, "out of host memory");
        return NULL;
    }
    memset(dev, 0, sizeof *dev);
    dev->args = *args;
    if (args->index == GPUNN_LOCAL_RANK) dev->args.index = gpunn__local_index(backend->device_count());
    dev->backend = backend;
    dev->context = backend->open(&dev->args, message, size);
    if (dev->context == NULL) {
        gpunn__free(dev, dev, sizeof *dev);
        return NULL;
    }
    backend->info(dev->context, &dev->info);
    return dev;
}

/* Tells log_fn why the CPU computes. A program linked without gpunn_cuda.cu otherwise differs from one on a
 * GPU only in speed. */
static void gpunn__log_cpu(const gpunn_device_args *args, const char *why)
{
    const gpunn_backend *cuda = GPUNN__CUDA_BACKEND;
    const bool           unlinked = cuda == NULL;
    char                 text[GPUNN__ERROR_SIZE];
    if (args->log_fn == NULL || args->type != GPUNN_DEVICE_AUTO || (unlinked && !gpunn__driver_is_there()))
        return;
    (void)snprintf(text, sizeof text, "gpunn computes on the CPU: %s",
                   unlinked ? "there is an NVIDIA driver, but gpunn_cuda.cu is not linked: add it to the "
                              "compile line; " GPUNN__HOW_TO_LINK
                            : why);
    args->log_fn(args->user, unlinked ? GPUNN_LOG_WARNING : GPUNN_LOG_INFO, text);
}

/* Opens the device that the arguments select. Returns NULL on failure, recorded for gpunn_error(NULL). */
static gpunn_device *gpunn__device_of(gpunn_device_args args)
{
    const gpunn_backend *cuda = GPUNN__CUDA_BACKEND;
    char                 message[GPUNN__ERROR_SIZE - 32] = "out of host memory";
    if (args.args_ != 0 && args.args_ != GPUNN_VERSION_NUMBER)
        return GPUNN__FAIL_NULL(NULL, GPUNN_ERR_ARGUMENT,
                                "gpunn_device_open: the program was compiled with version %d of gpunn.h, but "
                                "the linked library has version %d; compile both with the same header",
                                args.args_, GPUNN_VERSION_NUMBER);
    if (args.threads < 0 || args.index < GPUNN_LOCAL_RANK)
        return GPUNN__FAIL_NULL(NULL, GPUNN_ERR_ARGUMENT,
                                "gpunn_device_open: threads is %d and index %d; neither may be negative, "
                                "except index = GPUNN_LOCAL_RANK",
                                args.threads, args.index);
    if ((int)args.type < GPUNN_DEVICE_AUTO || args.type > GPUNN_DEVICE_CUDA)
        return GPUNN__FAIL_NULL(NULL, GPUNN_ERR_ARGUMENT,
                                "gpunn_device_open: type %d is unknown; use GPUNN_DEVICE_AUTO, _CPU or _CUDA",
                                (int)args.type);
    if ((args.cuda_malloc_fn == NULL) != (args.cuda_free_fn == NULL))
        return GPUNN__FAIL_NULL(NULL, GPUNN_ERR_ARGUMENT,
                                "gpunn_device_open: only one of cuda_malloc_fn and cuda_free_fn is set; set "
                                "both, or neither to use the built-in pool");
    if (args.stream && args.type == GPUNN_DEVICE_AUTO) args.type = GPUNN_DEVICE_CUDA;
    if (args.type == GPUNN_DEVICE_CUDA && cuda == NULL && args.backend == NULL)
        return GPUNN__FAIL_NULL(NULL, GPUNN_ERR_DEVICE,
                                "gpunn_device_open: this program was linked without gpunn_cuda.cu: add it to "
                                "the compile line; " GPUNN__HOW_TO_LINK
                                "; or use GPUNN_DEVICE_AUTO, which falls back to the CPU");
    if (args.realloc_fn == NULL) args.realloc_fn = gpunn__system_realloc;
    gpunn_device *dev = NULL;
    if (args.backend)
        dev = gpunn__device_on(args.backend, &args, message, sizeof message);
    else if (cuda && args.type != GPUNN_DEVICE_CPU)
        dev = gpunn__device_on(cuda, &args, message, sizeof message);
    if (dev == NULL && args.backend == NULL && args.type != GPUNN_DEVICE_CUDA) {
        gpunn__log_cpu(&args, message);
        dev = gpunn__device_on(gpunn__cpu_backend(), &args, message, sizeof message);
    }
    if (dev == NULL) (void)gpunn__fail(NULL, GPUNN_ERR_DEVICE, "gpunn_device_open: %s", message);
    return dev;
}

GPUNN_API gpunn_device *gpunn_device_open_(gpunn_device_args args)
{
    gpunn_device *dev = gpunn__device_of(args);
    if (dev == NULL && args.log_fn) args.log_fn(args.user, GPUNN_LOG_ERROR, gpunn_error(NULL));
    return dev;
}

GPUNN_API void gpunn_device_report(void (*write)(void *user, const char *text), void *user)
{
    const gpunn_backend *cuda = GPUNN__CUDA_BACKEND;
    if (write == NULL) return;
    if (cuda && cuda->abi == GPUNN_BACKEND_ABI)
        cuda->report(write, user);
    else
        write(user,
              cuda ? "gpunn_cuda.cu and gpunn.h have different versions; use both files from one version\n"
                   : "this program was linked without gpunn_cuda.cu; to use a GPU: "
                     "nvcc -O3 -arch=native app.c gpunn_cuda.cu -o app\n" GPUNN__HOW_TO_LINK "\n");
}

GPUNN__INTERNAL void gpunn__warn(gpunn_device *dev, const char *text)
{
    if (dev->args.log_fn) dev->args.log_fn(dev->args.user, GPUNN_LOG_WARNING, text);
}

GPUNN__INTERNAL void gpunn__device_release(gpunn_device *dev)
{
    if (!dev->closed || dev->models || dev->groups) return;
    dev->backend->close(dev->context);
    gpunn__free(dev, dev->customs, (size_t)dev->custom_count * sizeof *dev->customs);
    gpunn__free(dev, dev, sizeof *dev);
}

GPUNN_API void gpunn_device_close(gpunn_device *dev)
{
    if (dev == NULL || dev->closed) return;
    dev->closed = true;
    if (dev->models)
        gpunn__warn(dev,
                    "gpunn_device_close: the device still has models; it is freed with the last of them");
    gpunn__device_release(dev);
}

GPUNN_API gpunn_device_type gpunn_device_get_type(const gpunn_device *dev)
{
    return dev ? dev->info.type : GPUNN_DEVICE_AUTO;
}

GPUNN_API const char *gpunn_device_name(const gpunn_device *dev)
{
    return dev ? dev->info.name : "";
}

GPUNN_API int gpunn_device_threads(const gpunn_device *dev)
{
    return dev ? dev->info.threads : 0;
}

GPUNN_API size_t gpunn_memory_allocated(const gpunn_device *dev)
{
    return dev ? dev->allocated : 0;
}

GPUNN_API size_t gpunn_memory_peak(const gpunn_device *dev)
{
    return dev ? dev->peak : 0;
}

GPUNN_API size_t gpunn_memory_reserved(const gpunn_device *dev)
{
    size_t now = gpunn_memory_allocated(dev), peak;
    if (dev && dev->backend->reserved) dev->backend->reserved(dev->context, &now, &peak);
    return now;
}

GPUNN_API size_t gpunn_memory_reserved_peak(const gpunn_device *dev)
{
    size_t now, peak = gpunn_memory_peak(dev);
    if (dev && dev->backend->reserved) dev->backend->reserved(dev->context, &now, &peak);
    return peak;
}

GPUNN_API void gpunn_empty_cache(gpunn_device *dev)
{
    if (dev == NULL) return;
    for (gpunn_model *model = dev->models; model; model = model->next) {
        gpunn__invalidate(model);
        gpunn__device_free(dev, model->arena, model->arena_bytes);
        model->arena = NULL;
        model->arena_bytes = 0;
    }
    if (dev->backend->trim) dev->backend->trim(dev->context);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__earlier_runs(gpunn_device *dev, const char *what)
{
    gpunn_run run; /* without work */
    memset(&run, 0, sizeof run);
    return gpunn__execute(dev, &run, what);
}

GPUNN_API gpunn_status gpunn_synchronize(gpunn_device *dev)
{
    if (dev == NULL) return gpunn__fail_null(NULL, "gpunn_synchronize", "device");
    gpunn_status status = dev->backend->synchronize(dev->context);
    if (status != GPUNN_OK) return gpunn__backend_fail(dev, "gpunn_synchronize", status);
    return dev->backend->execute ? gpunn__earlier_runs(dev, "gpunn_synchronize") : GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__step_fail(gpunn_device *dev, const gpunn_step *step, gpunn_status status)
{
    char   shapes[256] = "", layer[GPUNN__ERROR_SIZE];
    size_t used = 0;
    for (int i = 0; i < step->input_count && used + 1 < sizeof shapes; i++) {
        const gpunn_value *in = &step->in[i];
        if (in->dtype == GPUNN_DTYPE_DEFAULT) continue;
        for (int axis = -1; axis <= in->rank && used + 1 < sizeof shapes; axis++) {
            int n;
            if (axis < 0)
                n = snprintf(shapes + used, sizeof shapes - used, "%s%s [", used ? ", " : "",
                             gpunn_dtype_name(in->dtype));
            else if (axis == in->rank)
                n = snprintf(shapes + used, sizeof shapes - used, "]");
            else
                n = snprintf(shapes + used, sizeof shapes - used, "%s%lld", axis ? ", " : "",
                             (long long)in->dim[axis]);
            used += n > 0 ? (size_t)n : 0;
        }
    }
    return gpunn__fail(dev, status, "%s%s: %s (operands %s)", gpunn_op_name(step->op),
                       gpunn__quoted(step->name, layer), dev->backend->error(dev->context), shapes);
}

GPUNN__INTERNAL const char *gpunn__not_finite(const void *value, size_t size)
{
    uint64_t bits, infinite = size == sizeof(double) ? UINT64_C(0x7ff) << 52 : UINT64_C(0xff) << 23;
    uint32_t narrow;
    if (size == sizeof(double)) {
        memcpy(&bits, value, sizeof bits);
        bits &= UINT64_MAX >> 1;
    } else {
        memcpy(&narrow, value, sizeof narrow);
        bits = narrow & UINT32_MAX >> 1;
    }
    if (bits < infinite) return NULL;
    return bits == infinite ? "infinite" : "NaN";
}

GPUNN__INTERNAL float *gpunn__gradient_of(const gpunn_tensor *parameter)
{
    if (parameter->sparse) return parameter->compact.values;
    return parameter->user_memory[1].data ? (float *)parameter->user_memory[1].data
                                          : parameter->model->gradients + parameter->gradient_offset;
}

GPUNN__INTERNAL int64_t gpunn__gradient_count(const gpunn_tensor *parameter)
{
    return parameter->sparse ? parameter->compact.capacity * parameter->dim[1] : gpunn__count(parameter, 1);
}

/* Parameter that owns this element of a gradient; NULL: none exists any more. */
static const gpunn_tensor *gpunn__owner_of(const gpunn_device *dev, const float *gradient)
{
    for (const gpunn_model *model = dev->models; model && gradient; model = model->next)
        for (int id = 0; id < model->tensor_count; id++) {
            const gpunn_tensor *t = model->tensors[id];
            if (t->kind != GPUNN__PARAMETER || t->offset < 0 || t->base ||
                (model->gradients == NULL && t->user_memory[1].data == NULL && !t->sparse))
                continue;
            const float *own = gpunn__gradient_of(t);
            if (gradient >= own && gradient < own + gpunn__gradient_count(t)) return t;
        }
    return NULL;
}

GPUNN__INTERNAL void gpunn__gradient_text(const gpunn_tensor *t, char *text, size_t size)
{
    const gpunn_tensor *node = NULL;
    for (int id = 0; t && id < t->model->tensor_count && node == NULL; id++)
        for (int i = 0; i < t->model->tensors[id]->input_count && node == NULL; i++)
            if (t->model->tensors[id]->inputs[i] == t) node = t->model->tensors[id];
    if (node == NULL)
        (void)snprintf(text, size, "gradient of a parameter");
    else if (node->layer)
        (void)snprintf(text, size, "gradient of '%.80s', by %s '%.80s',", t->name, gpunn_op_name(node->op),
                       node->layer);
    else
        (void)snprintf(text, size, "gradient of '%.80s', by %s,", t->name, gpunn_op_name(node->op));
}

/* After a rejection has been told: it counts nowhere. Counts that may hold replays wait for the next
 * checkpoint. */
static void gpunn__subtract_rejected(gpunn_device *dev)
{
    for (gpunn_model *model = dev->models; model; model = model->next)
        for (gpunn_optimizer *opt = model->optimizers; opt; opt = opt->next)
            if (opt->counts == NULL) (void)!gpunn__rejected_sync(opt);
}

GPUNN__INTERNAL gpunn_status gpunn__run_fail(gpunn_device *dev, const gpunn_run *run, const char *what,
                                             gpunn_status status)
{
    return run->failed ? gpunn__step_fail(dev, run->failed, status) : gpunn__backend_fail(dev, what, status);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__execute(gpunn_device *dev, gpunn_run *run, const char *what)
{
    gpunn_status status = dev->timing ? dev->backend->time(dev->context, run, dev->timing)
                                      : dev->backend->execute(dev->context, run);
    if (status != GPUNN_OK) return gpunn__run_fail(dev, run, what, status);
    if (!run->is_bad) return GPUNN_OK;
    char text[256] = "loss";
    if (run->bad_norm) gpunn__gradient_text(gpunn__owner_of(dev, run->bad_gradient), text, sizeof text);
    gpunn__subtract_rejected(dev);
    return gpunn__fail(dev, GPUNN_ERR_NUMERIC, GPUNN__BAD_VALUE, text,
                       gpunn__not_finite(&run->bad_value, sizeof run->bad_value),
                       (unsigned long long)run->bad_step);
}

/* ---- the machine --------------------------------------------------------------------------------------- */

GPUNN__INTERNAL void gpunn__line_of(const char *path, const char *words, char *text, size_t size)
{
    FILE *file = fopen(path, "r");
    char  line[1024];
    text[0] = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, words, strlen(words)) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        (void)snprintf(text, size, "%s", line + strlen(words));
        break;
    }
    if (file) (void)fclose(file);
}

GPUNN__INTERNAL void gpunn__machine(char *text, size_t size)
{
#ifdef _WIN32
    DWORD length = (DWORD)size;
    if (!GetComputerNameA(text, &length)) text[0] = 0;
#else
    struct utsname own;
    gpunn__line_of("/proc/sys/kernel/random/boot_id", "", text, size);
    if (text[0] == 0 && uname(&own) >= 0) (void)snprintf(text, size, "%s", own.nodename);
#endif
}

GPUNN__INTERNAL int gpunn__processors(char set[1024])
{
    long count = 0;
    set[0] = 0;
#ifdef _WIN32
    DWORD_PTR mine = 0, all = 0;
    if (GetProcessAffinityMask(GetCurrentProcess(), &mine, &all)) {
        (void)snprintf(set, 1024, "%llx", (unsigned long long)mine);
        for (; mine; mine &= mine - 1) count++;
    }
#else
    gpunn__line_of("/proc/self/status", "Cpus_allowed:", set, 1024); /* Linux: 32-bit words in hexadecimal */
    for (const char *c = set; *c; c++)
        if (isxdigit((unsigned char)*c))
            for (int bits = *c >= 'a' ? *c - 'a' + 10 : *c - '0'; bits; bits &= bits - 1) count++;
    if (count == 0) count = sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return (int)gpunn__clamp(count, 1, GPUNN__MOST_THREADS);
}

GPUNN__INTERNAL int gpunn__omp_threads(void)
{
    const char *said = getenv("OMP_NUM_THREADS");
    const long  count = said ? strtol(said, NULL, 10) : 0;
    return (int)gpunn__clamp(count, 0, GPUNN__MOST_THREADS);
}
