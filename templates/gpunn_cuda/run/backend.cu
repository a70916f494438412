#include "base/errors.h"
#include "base/memory.h"
#include "base/ranks.h"
#include "run/run.h"

/* ==== >>run/backend ===================================================================================== */
/* The gpunn_backend table of CUDA, and opening, closing and describing devices. */

static int gpunn__cuda_device_count(void)
{
    int                  count = 0;
    const gpunn__current current;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

/* ---- opening a device ---------------------------------------------------------------------------------- */

/* Counts the GPUs. If there are none, the failure says why. */
static gpunn_status gpunn__cuda_count(gpunn__cuda *cuda, int *count)
{
    int driver = 0, runtime = 0;
    *count = 0;
    cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaSuccess && *count > 0) return GPUNN_OK;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (error == cudaErrorInsufficientDriver && driver == 0)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "there is no NVIDIA driver on this machine; install one to use its GPU");
    if (error == cudaErrorInsufficientDriver)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "the NVIDIA driver is too old: it supports CUDA %d.%d and this program was "
                                "built with CUDA %d.%d; update the driver, or build with CUDA %d",
                                driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
                                driver / 1000);
    if (error == cudaErrorNoDevice || error == cudaSuccess) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        return gpunn__cuda_fail(
            cuda, GPUNN_ERR_DEVICE, "there is an NVIDIA driver but no GPU that it can use%s%s%s",
            visible ? " (CUDA_VISIBLE_DEVICES is '" : "", visible ? visible : "", visible ? "')" : "");
    }
    if (error == cudaErrorInitializationError)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "CUDA does not start in this process; if it was forked from one that had "
                                "used CUDA, fork before that, or start it with exec");
    return gpunn__cuda_check(cuda, error, "cudaGetDeviceCount");
}

/* Retains the device's context. It is never released, because memory that outlives the device may belong to
 * it. */
static gpunn_status gpunn__cuda_reach(gpunn__cuda *cuda)
{
    const cudaError_t error = gpunn__context_retain(&cuda->context, cuda->device);
    if (error == cudaErrorDevicesUnavailable)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "GPU %d is busy: another process uses it exclusively, or it accepts no "
                                "processes; end that process, wait, or use another index",
                                cuda->device);
    return gpunn__cuda_check(cuda, error, "cuDevicePrimaryCtxRetain");
}

/* Queries the device's properties and checks that this binary contains code for it. */
static gpunn_status gpunn__cuda_acquire(gpunn__cuda *cuda)
{
    int index = cuda->device, major = 0, minor = 0, driver = 0;
    GPUNN__CUDA(cuda, cudaDriverGetVersion(&driver));
    GPUNN__CUDA(cuda, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
    GPUNN__CUDA(cuda, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
    GPUNN__CUDA(cuda, cudaDeviceGetAttribute(&cuda->multiprocessors, cudaDevAttrMultiProcessorCount, index));
    GPUNN__CUDA(cuda, cudaDeviceGetAttribute(&cuda->integrated, cudaDevAttrIntegrated, index));
    GPUNN__CUDA(cuda, cudaDeviceGetAttribute(&cuda->pageable,
                                             cudaDevAttrPageableMemoryAccessUsesHostPageTables, index));
    cuda->capability = 10 * major + minor;
    cudaFuncAttributes code;
    const cudaError_t  error = cudaFuncGetAttributes(&code, (const void *)gpunn__numbers_kernel);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
        error == cudaErrorUnsupportedPtxVersion)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "this program has no code for GPU %d, whose compute capability is %d.%d; "
                                "compile it with nvcc -arch=sm_%d, -arch=native or -arch=all-major",
                                index, major, minor, cuda->capability);
    GPUNN__TRY(gpunn__cuda_check(cuda, error, "cudaFuncGetAttributes"));
    cuda->architecture = code.ptxVersion;
    /* See GPUNN__FOLLOW. Drivers before CUDA 12.3 cannot capture such launches, and a failing launch ends the
     * program's own capture. */
    cuda->overlaps = cuda->architecture >= 90 && driver >= 12030 && !cuda->plain;
    return GPUNN_OK;
}

/* Writes "NVIDIA H200, 132 multiprocessors, 139 GiB, compute capability 9.0"; "139 GiB shared" for a GPU that
 * uses host memory. */
static cudaError_t gpunn__cuda_describe(int index, char *name, size_t size, int *capability,
                                        uint64_t *identity)
{
    cudaDeviceProp properties;
    cudaError_t    error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess) return error;
    *capability = 10 * properties.major + properties.minor;
    *identity = UINT64_C(0xCBF29CE484222325);
    for (size_t i = 0; i < sizeof properties.uuid.bytes; i++) /* FNV-1a */
        *identity = (*identity ^ (unsigned char)properties.uuid.bytes[i]) * UINT64_C(0x100000001B3);
    (void)snprintf(name, size, "%.60s, %d multiprocessors, %llu GiB%s, compute capability %d.%d",
                   properties.name, properties.multiProcessorCount,
                   (unsigned long long)(properties.totalGlobalMem >> 30),
                   properties.integrated ? " shared" : "", properties.major, properties.minor);
    return cudaSuccess;
}

/* Uses the program's stream, after checking that it belongs to this device. (Events of one device cannot be
 * recorded on another's stream.) */
static gpunn_status gpunn__cuda_adopt(gpunn__cuda *cuda, cudaStream_t stream)
{
    cudaStreamCaptureStatus capturing;
    cudaEvent_t             event;
    GPUNN__CUDA(cuda, cudaStreamIsCapturing(stream, &capturing));
    if (capturing != cudaStreamCaptureStatusNone)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_STATE,
                                "the stream is being captured; open the device before the capture begins");
    GPUNN__CUDA(cuda, cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    cudaError_t error = cudaEventRecord(event, stream);
    (void)cudaEventDestroy(event);
    if (error == cudaErrorInvalidResourceHandle)
        return gpunn__cuda_fail(
            cuda, GPUNN_ERR_DEVICE,
            "the stream does not belong to GPU %d; use the index of the GPU on which it was created",
            cuda->device);
    GPUNN__TRY(gpunn__cuda_check(cuda, error, "cudaEventRecord"));
    cuda->stream = stream;
    return GPUNN_OK;
}

/* Kernels on the second stream come before those of the first that wait beside them. */
static gpunn_status gpunn__side_open(gpunn__cuda *cuda)
{
    int lowest, highest;
    GPUNN__CUDA(cuda, cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    GPUNN__CUDA(cuda, cudaStreamCreateWithPriority(&cuda->side, cudaStreamNonBlocking, highest));
    for (cudaEvent_t *event : {&cuda->side_from, &cuda->side_to})
        GPUNN__CUDA(cuda, cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    return GPUNN_OK;
}

static gpunn_status gpunn__cuda_begin(gpunn__cuda *cuda)
{
    int count, capability;
    GPUNN__TRY(gpunn__cuda_count(cuda, &count));
    if (cuda->device >= count)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "index is %d, but this machine has %d GPU%s; the first has index 0",
                                cuda->device, count, count == 1 ? "" : "s");
    GPUNN__TRY(gpunn__cuda_reach(cuda));
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__cuda_acquire(cuda));
    GPUNN__CUDA(cuda, gpunn__cuda_describe(cuda->device, cuda->name, sizeof cuda->name, &capability,
                                           &cuda->identity));
    GPUNN__CUDA(cuda, cudaStreamCreateWithFlags(&cuda->own, cudaStreamNonBlocking));
    cuda->stream = cuda->own;
    if (cuda->args.stream) GPUNN__TRY(gpunn__cuda_adopt(cuda, (cudaStream_t)cuda->args.stream));
    GPUNN__CUDA(cuda, cudaStreamCreateWithFlags(&cuda->copy_stream, cudaStreamNonBlocking));
    GPUNN__TRY(gpunn__side_open(cuda));
    GPUNN__TRY(gpunn__memory_open(cuda));
    GPUNN__CUDA(cuda, cudaHostAlloc((void **)&cuda->bad, 3 * sizeof *cuda->bad, cudaHostAllocMapped));
    cuda->bad[0] = cuda->bad[1] = cuda->bad[2] = 0;
    GPUNN__CUDA(cuda, cudaHostGetDevicePointer((void **)&cuda->bad_device, (void *)cuda->bad, 0));
    cuda->state = (gpunn__device_state *)gpunn__cuda_alloc(cuda, sizeof *cuda->state);
    cuda->partials = (double *)gpunn__cuda_alloc(cuda, GPUNN__PARTIALS_BYTES);
    cuda->counters = (unsigned *)gpunn__cuda_alloc(cuda, gpunn__counters_bytes(cuda));
    if (cuda->state == NULL || cuda->partials == NULL || cuda->counters == NULL) return GPUNN_ERR_MEMORY;
    GPUNN__TRY(gpunn__cuda_fill(cuda, cuda->state, 0, sizeof *cuda->state));
    GPUNN__TRY(gpunn__cuda_fill(cuda, cuda->counters, 0, gpunn__counters_bytes(cuda)));
    return gpunn__libraries_open(cuda);
}

/* Frees the device's CUDA resources. */
static void gpunn__cuda_release(gpunn__cuda *cuda)
{
    if (cuda->state) gpunn__cuda_free(cuda, cuda->state, sizeof *cuda->state);
    if (cuda->partials) gpunn__cuda_free(cuda, cuda->partials, GPUNN__PARTIALS_BYTES);
    if (cuda->counters) gpunn__cuda_free(cuda, cuda->counters, gpunn__counters_bytes(cuda));
    if (cuda->bad) (void)cudaFreeHost((void *)cuda->bad);
    gpunn__memory_close(cuda);
    for (cudaEvent_t event : {cuda->side_from, cuda->side_to})
        if (event) (void)cudaEventDestroy(event);
    if (cuda->side) (void)cudaStreamDestroy(cuda->side);
    if (cuda->copy_stream) (void)cudaStreamDestroy(cuda->copy_stream);
    if (cuda->own) (void)cudaStreamDestroy(cuda->own);
}

/* Also closes a partly opened or dead device. In a forked process it frees only host memory. */
static void gpunn__cuda_close(void *context)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    const gpunn__current current(cuda->context);
    if (cuda->stream && !current.is_forked) (void)cudaStreamSynchronize(cuda->stream);
    gpunn__cached_close(cuda);
    gpunn__libraries_close(cuda);
    if (!current.is_forked) gpunn__cuda_release(cuda);
    gpunn__host_free(cuda, cuda->nccl, sizeof *cuda->nccl);
    gpunn__host_free(cuda, cuda->staging, sizeof *cuda->staging);
    gpunn__host_free(cuda, cuda->checks, (size_t)cuda->check_capacity * sizeof *cuda->checks);
    gpunn__host_free(cuda, cuda, sizeof *cuda);
}

static void *gpunn__cuda_open(const gpunn_device_args *args, char *message, size_t message_size)
{
    const gpunn__current current;
    gpunn__cuda         *cuda = (gpunn__cuda *)args->realloc_fn(args->user, NULL, 0, sizeof *cuda);
    if (cuda == NULL) {
        (void)snprintf(message, message_size, "out of host memory");
        return NULL;
    }
    memset(cuda, 0, sizeof *cuda);
    cuda->device = args->index;
    cuda->args = *args;
    if (cuda->args.workspace_limit == 0) cuda->args.workspace_limit = (size_t)256 << 20;
    const char *plain = getenv("GPUNN_PLAIN");
    cuda->plain = plain && *plain && strcmp(plain, "0") != 0;
    if (gpunn__cuda_begin(cuda) == GPUNN_OK) {
        if (cuda->plain)
            gpunn__cuda_log(cuda, GPUNN_LOG_INFO,
                            "GPUNN_PLAIN is set: the host waits for each step of a run, which is slow");
        return cuda;
    }
    (void)snprintf(message, message_size, "%s", cuda->text);
    gpunn__cuda_close(cuda);
    return NULL;
}

static void gpunn__cuda_info(void *context, gpunn_backend_info *info)
{
    const gpunn__cuda *cuda = (const gpunn__cuda *)context;
    info->type = GPUNN_DEVICE_CUDA;
    info->half = info->merged_norm = info->blocks = true;
    info->bf16 = cuda->capability >= 80;
    info->alignment = 64;
    info->identity = cuda->identity;
    (void)snprintf(info->name, sizeof info->name, "%s", cuda->name);
}

/* ---- single steps and updates -------------------------------------------------------------------------- */

static gpunn_status gpunn__cuda_prepare(void *context, gpunn_step *step)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    return gpunn__cuda_dispatch(cuda, step, GPUNN__PREPARE);
}

static gpunn_status gpunn__cuda_run(void *context, gpunn_step *steps, int count, const gpunn_step **failed)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    gpunn_run    run;
    memset(&run, 0, sizeof run);
    run.state = steps->state;
    run.steps = steps;
    run.step_count = count;
    *failed = NULL;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__run_numbers(cuda, &run, false));
    const gpunn_status status = gpunn__run_launch(cuda, &run);
    *failed = run.failed;
    return status;
}

static gpunn_status gpunn__cuda_update(void *context, const gpunn_update *update)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    gpunn_run    run;
    memset(&run, 0, sizeof run);
    run.updates = update;
    run.update_count = 1;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__run_numbers(cuda, &run, false));
    return gpunn__run_launch(cuda, &run);
}

/* Normalizes bytes to floats. This is many times faster than uploading the bytes, so the kernel is kept
 * simple. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__normalize_kernel(float *to, const uint8_t *from, int64_t count, const gpunn_pixels pixels)
{
    GPUNN__FOLLOW();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        int   c = (int)(gpunn__quotient(i, pixels.plane) % pixels.channels);
        float mean = pixels.mean[0], std = pixels.std[0];
#pragma unroll
        for (int k = 1; k < 4; k++) { /* indexing by c would put the arrays into local memory */
            mean = k == c ? pixels.mean[k] : mean;
            std = k == c ? pixels.std[k] : std;
        }
        to[i] = gpunn__normalized(from[i], mean, std);
    }
}

static gpunn_status gpunn__cuda_normalize(void *context, float *to, const uint8_t *from, int64_t count,
                                          const gpunn_pixels *pixels)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    return GPUNN__LAUNCH(cuda, gpunn__normalize_kernel, gpunn__blocks(cuda, count, 1), GPUNN__THREADS, to,
                         from, count, *pixels);
}

static gpunn_status gpunn__cuda_convert(void *context, void *to, gpunn_dtype to_dtype, const void *from,
                                        gpunn_dtype from_dtype, int64_t count)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    return gpunn__is_blocks(from_dtype)
               ? gpunn__cuda_block_values(cuda, to, to_dtype, from, from_dtype, count)
               : gpunn__cuda_cast_values(cuda, to, to_dtype, from, from_dtype, count);
}

/* Whether images should be stored channels last. Tensor cores need this layout, and only cuDNN has kernels
 * for it. For small images the extra launches do not pay off. */
#ifndef GPUNN__CHANNELS_LAST_FROM
#define GPUNN__CHANNELS_LAST_FROM (1 << 18)
#endif
static bool gpunn__cuda_channels_last(void *context, gpunn_images *images)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    const gpunn__current current(cuda->context);
    images->filters = true;
    return images->precision != GPUNN_PRECISION_F32 && images->largest >= GPUNN__CHANNELS_LAST_FROM &&
           gpunn__cuda_entered(cuda, &current) == GPUNN_OK && gpunn__dnn_available(cuda);
}

static const char *gpunn__cuda_text(void *context)
{
    return ((gpunn__cuda *)context)->text;
}

/* ---- report -------------------------------------------------------------------------------------------- */

static const char *gpunn__tensor_cores(int capability)
{
    return capability >= 100  ? "tensor cores of the 5th generation: F16, BF16, TF32, FP8, FP4"
           : capability >= 89 ? "tensor cores of the 4th generation: F16, BF16, TF32, FP8"
           : capability >= 80 ? "tensor cores of the 3rd generation: F16, BF16, TF32"
           : capability >= 75 ? "tensor cores of the 2nd generation: F16"
           : capability >= 70 ? "tensor cores of the 1st generation: F16"
                              : "no tensor cores";
}

static void gpunn__report_line(void (*write)(void *user, const char *text), void *user, const char *format,
                               ...)
{
    char    line[768];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(line, sizeof line, format, list);
    va_end(list);
    write(user, line);
}

/* Attributes of the kernels' code for a GPU. The context that this needs is released again. */
static cudaError_t gpunn__code_attributes(cudaFuncAttributes *code, int index)
{
    gpunn__context context = {};
    cudaError_t    error = gpunn__context_retain(&context, index);
    if (error == cudaSuccess) {
        const gpunn__current current(context);
        error = current.error;
        if (error == cudaSuccess) error = cudaFuncGetAttributes(code, (const void *)gpunn__numbers_kernel);
    }
    gpunn__context_release(&context, index);
    return error;
}

static void gpunn__report_device(void (*write)(void *user, const char *text), void *user, int index)
{
    char               name[160];
    int                capability = 0;
    cudaFuncAttributes code;
    uint64_t           identity;
    cudaError_t        error = gpunn__cuda_describe(index, name, sizeof name, &capability, &identity);
    if (error == cudaSuccess) {
        gpunn__report_line(write, user, "GPU %d         %s\n              %s\n", index, name,
                           gpunn__tensor_cores(capability));
        error = gpunn__code_attributes(&code, index);
        if (error == cudaSuccess)
            gpunn__report_line(write, user, "              runs the code for sm_%d of this program%s\n",
                               code.binaryVersion,
                               code.binaryVersion == code.ptxVersion && code.binaryVersion != capability
                                   ? ", compiled by the driver"
                                   : "");
    }
    if (error != cudaSuccess)
        gpunn__report_line(write, user, "GPU %d         cannot be used: %s, %s\n", index,
                           cudaGetErrorName(error), cudaGetErrorString(error));
}

static void gpunn__cuda_report(void (*write)(void *user, const char *text), void *user)
{
    const gpunn__current current;
    int                  driver = 0, runtime = 0, count = 0;
    gpunn__cuda          probe; /* only holds an error message */
    memset(&probe, 0, sizeof probe);
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (driver)
        gpunn__report_line(write, user, "driver        for CUDA %d.%d\n", driver / 1000, driver % 1000 / 10);
    else
        gpunn__report_line(write, user, "driver        none\n");
    gpunn__report_line(write, user, "CUDA runtime  %d.%d, built in\n", runtime / 1000, runtime % 1000 / 10);
#ifdef __CUDA_ARCH_LIST__
    static const int built[] = {__CUDA_ARCH_LIST__};
    char             text[256] = "";
    for (size_t i = 0, n = 0; i < sizeof built / sizeof *built && n + 8 < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, " sm_%d", built[i] / 10);
    gpunn__report_line(write, user, "built for    %s\n", text);
#endif
    if (gpunn__cuda_count(&probe, &count) != GPUNN_OK)
        gpunn__report_line(write, user, "GPU           none: %s\n", probe.text);
    for (int i = 0; i < count; i++) gpunn__report_device(write, user, i);
    gpunn__libraries_report(write, user);
    gpunn__nccl nccl;
    memset(&nccl, 0, sizeof nccl);
    (void)gpunn__nccl_find(&nccl);
    gpunn__report_line(write, user, "NCCL          %s\n", nccl.text);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

#ifndef GPUNN__BACKEND_NAME
#define GPUNN__BACKEND_NAME gpunn_cuda_backend
#endif
extern "C" const gpunn_backend GPUNN__BACKEND_NAME;

/* C++ has no designated initializers before C++20. */
static constexpr gpunn_backend gpunn__cuda_backend()
{
    gpunn_backend backend = {};
    backend.abi = GPUNN_BACKEND_ABI;
    backend.device_count = gpunn__cuda_device_count;
    backend.open = gpunn__cuda_open;
    backend.close = gpunn__cuda_close;
    backend.info = gpunn__cuda_info;
    backend.alloc = gpunn__cuda_alloc;
    backend.free = gpunn__cuda_free;
    backend.host_alloc = gpunn__cuda_host_alloc;
    backend.host_free = gpunn__cuda_host_free;
    backend.upload = gpunn__cuda_upload;
    backend.download = gpunn__cuda_download;
    backend.fill = gpunn__cuda_fill;
    backend.normalize = gpunn__cuda_normalize;
    backend.synchronize = gpunn__cuda_synchronize;
    backend.prepare = gpunn__cuda_prepare;
    backend.run = gpunn__cuda_run;
    backend.update = gpunn__cuda_update;
    backend.sum_of_squares = gpunn__cuda_sum_of_squares;
    backend.value_sums = gpunn__cuda_value_sums;
    backend.scale = gpunn__cuda_scale;
    backend.convert = gpunn__cuda_convert;
    backend.channels_last = gpunn__cuda_channels_last;
    backend.execute = gpunn__cuda_execute;
    backend.forget = gpunn__cuda_forget;
    backend.time = gpunn__cuda_time;
    backend.reserved = gpunn__cuda_reserved;
    backend.trim = gpunn__cuda_trim;
    backend.report = gpunn__cuda_report;
    backend.reaches = gpunn__cuda_reaches;
    backend.on_device = gpunn__cuda_on_device;
    backend.capturing = gpunn__cuda_capturing;
    backend.ranks_id = gpunn__cuda_ranks_id;
    backend.ranks_join = gpunn__cuda_ranks_join;
    backend.ranks_leave = gpunn__cuda_ranks_leave;
    backend.exchange = gpunn__cuda_exchange;
    backend.error = gpunn__cuda_text;
    return backend;
}

const gpunn_backend GPUNN__BACKEND_NAME = gpunn__cuda_backend();
