#include "base/ranks.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/libraries.h"

enum {
    GPUNN__NCCL_IN_PROGRESS = 7,
    GPUNN__NCCL_FLOAT = 7,
    GPUNN__NCCL_BFLOAT16 = 9,
    GPUNN__NCCL_SUM = 0,
    GPUNN__NCCL_AVERAGE = 4
};
#define GPUNN__NCCL_CONFIG                               \
    {                                                    \
        sizeof(gpunn__nccl_config), 0xcafebeef, 21400, 0 \
    }

/* ---- opening NCCL -------------------------------------------------------------------------------------- */

#ifdef GPUNN__EMULATOR /* tests/emulator/nccl.cpp */

#define GPUNN__X(result, name, arguments) extern "C" result name arguments;
GPUNN__NCCL_FUNCTIONS(GPUNN__X)
#undef GPUNN__X

GPUNN__INTERNAL bool gpunn__nccl_find(gpunn__nccl *nccl)
{
#define GPUNN__X(result, name, arguments) nccl->name = ::name;
    GPUNN__NCCL_FUNCTIONS(GPUNN__X)
#undef GPUNN__X
    (void)snprintf(nccl->text, sizeof nccl->text, "NCCL is turned off in the emulator");
    return emulator_nccl() != 0;
}
#else
#define GPUNN__NCCL_FILE "libnccl.so.2" /* NCCL does not exist for Windows */
GPUNN__INTERNAL bool gpunn__nccl_find(gpunn__nccl *nccl)
{
    gpunn__module module;
    const char   *missing = NULL;
    int           version = 0;
    memset(&module, 0, sizeof module);
    if (!gpunn__module_find(&module, GPUNN__NCCL_FILE, "GPUNN_NCCL_PATH")) {
        if (module.failure[0])
            (void)snprintf(nccl->text, sizeof nccl->text, "NCCL does not load: %s; reinstall it",
                           module.failure);
        else
            (void)snprintf(nccl->text, sizeof nccl->text,
                           "NCCL is missing: " GPUNN__NCCL_FILE " was not found in " GPUNN__PLACES
                           "; install it, or set GPUNN_NCCL_PATH to its folder",
                           "GPUNN_NCCL_PATH");
        return false;
    }
#define GPUNN__X(result, name, arguments)                                    \
    nccl->name = (decltype(nccl->name))gpunn__module_symbol(&module, #name); \
    if (nccl->name == NULL && missing == NULL) missing = #name;
    GPUNN__NCCL_FUNCTIONS(GPUNN__X)
#undef GPUNN__X
    gpunn__module_locate(&module, "ncclGetVersion");
    if (missing == NULL) (void)nccl->ncclGetVersion(&version);
    if (missing)
        (void)snprintf(nccl->text, sizeof nccl->text, "%.200s lacks %s; install NCCL 2.14 or later",
                       module.path, missing);
    else
        (void)snprintf(nccl->text, sizeof nccl->text, "%d.%d.%d, %.200s", version / 10000,
                       version / 100 % 100, version % 100, module.path);
    return missing == NULL;
}
#endif

/* Each rank decides by itself whether a run is captured: its memory may have moved, or its capture may have
 * failed. For captured calls, NCCL registers the buffers, for which all ranks of a node synchronize on the
 * host (ncclNvlsGraphRegisterBuffer). It also gives these calls other channels. Without registration,
 * captured and uncaptured calls match. Memory of our pool has no handle that NVLink's registration accepts
 * anyway. */
static void gpunn__nccl_uniform(void)
{
#ifndef _WIN32
    (void)setenv("NCCL_GRAPH_REGISTER", "0", 0);
#endif
}

/* Opens NCCL on the first call; later calls return the first one's result. */
static gpunn_status gpunn__nccl_open(gpunn__cuda *cuda)
{
    if (cuda->nccl == NULL) {
        cuda->nccl = (gpunn__nccl *)gpunn__host_alloc(cuda, sizeof *cuda->nccl);
        if (cuda->nccl == NULL) return GPUNN_ERR_MEMORY;
        gpunn__nccl_uniform();
        cuda->nccl->found = gpunn__nccl_find(cuda->nccl) ? GPUNN_OK : GPUNN_ERR_UNSUPPORTED;
    }
    return cuda->nccl->found == GPUNN_OK ? GPUNN_OK
                                         : gpunn__cuda_fail(cuda, cuda->nccl->found, "%s", cuda->nccl->text);
}

/* ---- waiting ------------------------------------------------------------------------------------------- */

typedef std::chrono::steady_clock::time_point gpunn__instant;

static double gpunn__seconds_since(gpunn__instant began)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/* Aborts the communicator, which ends its kernels. ncclCommAbort returns only when no graph holds an exchange
 * any more, neither one of ours nor one that the program has captured. So it is called by a detached
 * thread. */
static void gpunn__nccl_abort(gpunn__cuda *cuda)
{
    const auto give_up = [end = cuda->nccl->ncclCommAbort, comm = cuda->nccl->comm, device = cuda->device] {
        (void)cudaSetDevice(device);
        (void)end(comm);
    };
    cuda->nccl->comm = NULL;
    try {
        std::thread(give_up).detach();
    } catch (const std::system_error &) { /* no more threads available */
        give_up();
    }
}

/* result: NCCL's error, or GPUNN__NCCL_IN_PROGRESS after a timeout. */
static gpunn_status gpunn__nccl_fail(gpunn__cuda *cuda, const char *what, int result)
{
    gpunn__nccl *nccl = cuda->nccl;
    if (nccl->comm) gpunn__nccl_abort(cuda);
    if (result == GPUNN__NCCL_IN_PROGRESS)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                                "%s: a rank has not arrived within %g seconds: look for one that has ended, "
                                "or whose GPU or network hangs",
                                what, nccl->timeout);
    return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                            "%s: NCCL reports %s; set NCCL_DEBUG=WARN in the environment for details", what,
                            nccl->ncclGetErrorString(result));
}

/* Waits until NCCL has finished the host's part of a call that returned `result`. */
static gpunn_status gpunn__nccl_done(gpunn__cuda *cuda, const char *what, int result)
{
    gpunn__nccl         *nccl = cuda->nccl;
    const gpunn__instant began = std::chrono::steady_clock::now();
    while (result == GPUNN__NCCL_IN_PROGRESS && gpunn__seconds_since(began) <= nccl->timeout) {
        const int asked = nccl->ncclCommGetAsyncError(nccl->comm, &result);
        if (asked != 0) result = asked;
        std::this_thread::yield();
    }
    return result == 0 ? GPUNN_OK : gpunn__nccl_fail(cuda, what, result);
}

GPUNN__INTERNAL gpunn_status gpunn__event_wait(gpunn__cuda *cuda, cudaEvent_t event)
{
    gpunn__nccl         *nccl = cuda->nccl;
    const gpunn__instant began = std::chrono::steady_clock::now();
    cudaError_t          error;
    if (nccl == NULL || nccl->comm == NULL)
        return gpunn__cuda_check(cuda, cudaEventSynchronize(event), "cudaEventSynchronize");
    while ((error = cudaEventQuery(event)) == cudaErrorNotReady) {
        int result = 0;
        gpunn__cuda_clear();
        (void)nccl->ncclCommGetAsyncError(nccl->comm, &result);
        if (result == 0 && gpunn__seconds_since(began) > nccl->timeout) result = GPUNN__NCCL_IN_PROGRESS;
        if (result != 0) return gpunn__nccl_fail(cuda, "waiting for the GPU", result);
        std::this_thread::yield();
    }
    return gpunn__cuda_check(cuda, error, "cudaEventQuery");
}

GPUNN__INTERNAL gpunn_status gpunn__stream_wait(gpunn__cuda *cuda)
{
    gpunn__nccl *nccl = cuda->nccl;
    if (nccl && nccl->comm) {
        GPUNN__CUDA(cuda, cudaEventRecord(nccl->now, cuda->stream));
        GPUNN__TRY(gpunn__event_wait(cuda, nccl->now));
    }
    return gpunn__cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "cudaStreamSynchronize");
}

/* ---- functions of the backend -------------------------------------------------------------------------- */

GPUNN__INTERNAL gpunn_status gpunn__cuda_ranks_id(void *context, char id[GPUNN_RANKS_ID])
{
    gpunn__cuda   *cuda = (gpunn__cuda *)context;
    gpunn__nccl_id unique;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__nccl_open(cuda));
    if (cuda->nccl->comm)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "the device already belongs to another NCCL group");
    if (id == NULL) return GPUNN_OK;
    const int result = cuda->nccl->ncclGetUniqueId(&unique);
    memcpy(id, unique.bytes, sizeof unique.bytes);
    return result == 0 ? GPUNN_OK : gpunn__nccl_fail(cuda, "ncclGetUniqueId", result);
}

GPUNN__INTERNAL void gpunn__cuda_ranks_leave(void *context, bool waits)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    gpunn__nccl         *nccl = cuda->nccl;
    const gpunn__current current(cuda->context);
    if (current.is_forked) return;
    if (waits && nccl->comm && gpunn__stream_wait(cuda) == GPUNN_OK &&
        gpunn__nccl_done(cuda, "leaving the ranks", nccl->ncclCommFinalize(nccl->comm)) == GPUNN_OK)
        (void)nccl->ncclCommDestroy(nccl->comm);
    else if (nccl->comm)
        gpunn__nccl_abort(cuda);
    nccl->comm = NULL;
    for (cudaEvent_t *event : {&nccl->now, &nccl->begun, &nccl->done}) {
        if (*event) (void)cudaEventDestroy(*event);
        *event = NULL;
    }
    if (nccl->stream) (void)cudaStreamDestroy(nccl->stream);
    nccl->stream = NULL;
}

static gpunn_status gpunn__ranks_begin(gpunn__cuda *cuda, const char id[GPUNN_RANKS_ID])
{
    gpunn__nccl       *nccl = cuda->nccl;
    gpunn__nccl_config config = GPUNN__NCCL_CONFIG;
    gpunn__nccl_id     name;
    memcpy(name.bytes, id, sizeof name.bytes);
    for (cudaEvent_t *event : {&nccl->now, &nccl->begun, &nccl->done})
        GPUNN__CUDA(cuda, cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    GPUNN__CUDA(cuda, cudaStreamCreateWithFlags(&nccl->stream, cudaStreamNonBlocking));
    const int result = nccl->ncclCommInitRankConfig(&nccl->comm, nccl->size, name, nccl->rank, &config);
    return gpunn__nccl_done(cuda, "joining the ranks", result);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_ranks_join(void *context, const char id[GPUNN_RANKS_ID], int rank,
                                                    int size, double timeout)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    cuda->nccl->timeout = timeout;
    cuda->nccl->rank = rank;
    cuda->nccl->size = size;
    const gpunn_status status = gpunn__ranks_begin(cuda, id);
    if (status != GPUNN_OK) gpunn__cuda_ranks_leave(context, false);
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__ranks_there(gpunn__cuda *cuda, int count)
{
    if (count == 0 || cuda->nccl->comm) return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE,
                            "NCCL has failed before; restart from the last checkpoint");
}

/* Starts one exchange of `count` values of that type: the exchange's own values, or BF16 copies of them. */
static int gpunn__exchange_one(gpunn__nccl *nccl, const gpunn_exchange *exchange, void *values, size_t count,
                               int type, int operation)
{
    if (exchange->collects)
        return nccl->ncclReduce(values, values, count, type, operation, exchange->root, nccl->comm,
                                nccl->stream);
    if (exchange->root == GPUNN_MEAN)
        return nccl->ncclAllReduce(values, values, count, type, operation, nccl->comm, nccl->stream);
    return nccl->ncclBroadcast(values, values, count, type, exchange->root, nccl->comm, nccl->stream);
}

/* Exchanges values as BF16, in pieces. Each piece is rounded, exchanged, and, where the result is needed,
 * divided by the number of ranks. Meanwhile cuda->stream is the stream of the exchanges. */
static gpunn_status gpunn__exchange_bf16(gpunn__cuda *cuda, const gpunn_exchange *exchange)
{
    gpunn__nccl *nccl = cuda->nccl;
    const bool   hears = !exchange->collects || exchange->root == nccl->rank;
    for (int64_t at = 0, n; at < exchange->count; at += n) {
        float *const values = exchange->values + at;
        n = exchange->count - at < exchange->bf16_count ? exchange->count - at : exchange->bf16_count;
        GPUNN__TRY(gpunn__cuda_copy(cuda, exchange->bf16, GPUNN_BF16, values, GPUNN_F32, n, false));
        const int result = gpunn__exchange_one(nccl, exchange, exchange->bf16, (size_t)n,
                                               GPUNN__NCCL_BFLOAT16, GPUNN__NCCL_SUM);
        GPUNN__TRY(gpunn__nccl_done(cuda, "exchanging gradients", result));
        if (!hears) continue;
        GPUNN__TRY(gpunn__cuda_copy(cuda, values, GPUNN_F32, exchange->bf16, GPUNN_BF16, n, false));
        GPUNN__TRY(gpunn__cuda_scale(cuda, values, n, 1 / (float)nccl->size, 0));
    }
    return GPUNN_OK;
}

/* Begins exchanges on their own stream. They overlap what cuda->stream does from now on. */
static gpunn_status gpunn__exchanges_begin(gpunn__cuda *cuda, const gpunn_exchange *exchanges, int count)
{
    gpunn__nccl *nccl = cuda->nccl;
    if (count == 0) return GPUNN_OK;
    GPUNN__TRY(gpunn__ranks_there(cuda, count));
    GPUNN__CUDA(cuda, cudaEventRecord(nccl->begun, cuda->stream));
    GPUNN__CUDA(cuda, cudaStreamWaitEvent(nccl->stream, nccl->begun, 0));
    int result = nccl->ncclGroupStart(), narrow = 0;
    for (int i = 0; i < count && (result == 0 || result == GPUNN__NCCL_IN_PROGRESS); i++) {
        narrow += exchanges[i].bf16 != NULL;
        if (exchanges[i].bf16) continue;
        result = gpunn__exchange_one(nccl, &exchanges[i], exchanges[i].values, (size_t)exchanges[i].count,
                                     GPUNN__NCCL_FLOAT, GPUNN__NCCL_AVERAGE);
    }
    const int ended = nccl->ncclGroupEnd();
    GPUNN__TRY(gpunn__nccl_done(cuda, "exchanging gradients",
                                result == 0 || result == GPUNN__NCCL_IN_PROGRESS ? ended : result));
    const cudaStream_t stream = cuda->stream;
    gpunn_status       status = GPUNN_OK;
    cuda->stream = nccl->stream;
    for (int i = 0; i < count && narrow > 0 && status == GPUNN_OK; i++)
        if (exchanges[i].bf16) status = gpunn__exchange_bf16(cuda, &exchanges[i]);
    cuda->stream = stream;
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__exchanges_end(gpunn__cuda *cuda, int count)
{
    if (count == 0) return GPUNN_OK;
    GPUNN__CUDA(cuda, cudaEventRecord(cuda->nccl->done, cuda->nccl->stream));
    return gpunn__cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, cuda->nccl->done, 0),
                             "cudaStreamWaitEvent");
}

GPUNN__INTERNAL gpunn_status gpunn__ranks_gather(gpunn__cuda *cuda, const gpunn_ranks *ranks, float *parts,
                                                 int64_t count)
{
    gpunn__nccl *nccl = cuda->nccl;
    GPUNN__TRY(gpunn__ranks_there(cuda, 1));
    GPUNN__CUDA(cuda, cudaEventRecord(nccl->begun, cuda->stream));
    GPUNN__CUDA(cuda, cudaStreamWaitEvent(nccl->stream, nccl->begun, 0));
    const int result = nccl->ncclAllGather(parts + ranks->rank * count, parts, (size_t)count,
                                           GPUNN__NCCL_FLOAT, nccl->comm, nccl->stream);
    GPUNN__TRY(gpunn__nccl_done(cuda, "exchanging sums", result));
    return gpunn__exchanges_end(cuda, 1);
}

GPUNN__INTERNAL gpunn_status gpunn__ranks_gather_host(gpunn__cuda *cuda, const gpunn_ranks *ranks,
                                                      float *parts, int64_t count)
{
    const int64_t own = ranks->rank * count, all = ranks->size * count;
    const size_t  each = (size_t)count * sizeof(double),
                 bytes = (size_t)all * (sizeof(double) + sizeof(float));
    GPUNN__TRY(gpunn__outside_capture(cuda, "exchange between ranks through host memory"));
    double *host = (double *)gpunn__host_alloc(cuda, bytes);
    if (host == NULL) return GPUNN_ERR_MEMORY;
    float       *narrow = (float *)(host + all);
    gpunn_status status = gpunn__cuda_download(cuda, narrow, parts + own, (size_t)count * sizeof *parts);
    const bool   there = status == GPUNN_OK;
    for (int64_t i = 0; i < count && there; i++) host[own + i] = (double)narrow[i];
    if (there) status = ranks->gather(ranks->user, host, each);
    if (there && status != GPUNN_OK)
        status = gpunn__cuda_fail(cuda, status, "the exchange between the ranks failed");
    for (int64_t i = 0; i < all && status == GPUNN_OK; i++) narrow[i] = (float)host[i];
    if (status == GPUNN_OK) status = gpunn__cuda_upload(cuda, parts, narrow, (size_t)all * sizeof *parts);
    gpunn__host_free(cuda, host, bytes);
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__exchanges_after(gpunn__cuda *cuda, const gpunn_run *run, int steps,
                                                    int *begun)
{
    int end = *begun;
    while (end < run->exchange_count && run->exchanges[end].after <= steps) end++;
    GPUNN__TRY(gpunn__exchanges_begin(cuda, run->exchanges + *begun, end - *begun));
    *begun = end;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_exchange(void *context, const gpunn_exchange *exchanges, int count)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__exchanges_begin(cuda, exchanges, count));
    return gpunn__exchanges_end(cuda, count);
}
