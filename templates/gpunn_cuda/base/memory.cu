#include "base/memory.h"
#include "base/errors.h"

static cudaError_t gpunn__hook_alloc(gpunn__cuda *cuda, void **ptr, size_t bytes, cudaStream_t stream)
{
    *ptr = cuda->args.cuda_malloc_fn(cuda->args.user, bytes, stream);
    return *ptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

static cudaError_t gpunn__pool_alloc(gpunn__cuda *cuda, void **ptr, size_t bytes, cudaStream_t stream)
{
    if (cuda->pool) return cudaMallocFromPoolAsync(ptr, bytes, cuda->pool, stream);
    cudaError_t error = cuda->args.cuda_malloc_fn ? gpunn__hook_alloc(cuda, ptr, bytes, stream)
                                                  : cudaMalloc(ptr, bytes);
    if (error != cudaSuccess) return error;
    gpunn__staging *staging = cuda->staging;
    staging->held += bytes;
    if (staging->peak < staging->held) staging->peak = staging->held;
    return cudaSuccess;
}

static cudaError_t gpunn__pool_free(gpunn__cuda *cuda, void *ptr, size_t bytes, cudaStream_t stream)
{
    if (ptr == NULL) return cudaSuccess;
    if (cuda->pool) return cudaFreeAsync(ptr, stream);
    cuda->staging->held -= bytes;
    if (cuda->args.cuda_free_fn == NULL) return cudaFree(ptr);
    cuda->args.cuda_free_fn(cuda->args.user, ptr, bytes, stream);
    return cudaSuccess;
}

GPUNN__INTERNAL void *gpunn__cuda_alloc(void *context, size_t bytes)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    void                *ptr = NULL;
    const gpunn__current current(cuda->context);
    if (gpunn__cuda_entered(cuda, &current) != GPUNN_OK ||
        gpunn__outside_capture(cuda, "allocation") != GPUNN_OK)
        return NULL;
    cudaError_t error = gpunn__pool_alloc(cuda, &ptr, bytes, cuda->stream);
    if (error == cudaErrorMemoryAllocation && cuda->pool) {
        (void)cudaGetLastError();
        (void)cudaStreamSynchronize(cuda->stream);
        (void)cudaMemPoolTrimTo(cuda->pool, 0);
        error = gpunn__pool_alloc(cuda, &ptr, bytes, cuda->stream);
    }
    if (gpunn__cuda_check(cuda, error, "cudaMallocFromPoolAsync") != GPUNN_OK) return NULL;
    if ((uintptr_t)ptr % GPUNN__CUDA_ALIGN == 0) return ptr;
    (void)gpunn__cuda_fail(cuda, GPUNN_ERR_ARGUMENT,
                           "cuda_malloc_fn returned memory that is not aligned to %d bytes",
                           (int)GPUNN__CUDA_ALIGN);
    (void)gpunn__pool_free(cuda, ptr, bytes, cuda->stream);
    return NULL;
}

GPUNN__INTERNAL void gpunn__cuda_free(void *context, void *ptr, size_t bytes)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    const gpunn__current current(cuda->context);
    if (current.is_forked) return;
    (void)gpunn__cuda_check(cuda, gpunn__pool_free(cuda, ptr, bytes, cuda->stream), "cudaFreeAsync");
}

GPUNN__INTERNAL void *gpunn__cuda_host_alloc(void *context, size_t bytes)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    void                *ptr = NULL;
    const gpunn__current current(cuda->context);
    if (gpunn__cuda_entered(cuda, &current) != GPUNN_OK || gpunn__cuda_capturing(cuda) ||
        bytes > SIZE_MAX - GPUNN__CUDA_ALIGN ||
        cudaHostAlloc(&ptr, bytes + GPUNN__CUDA_ALIGN, cudaHostAllocPortable) != cudaSuccess)
        return NULL;
    memcpy(ptr, &cuda->context, sizeof cuda->context);
    return (char *)ptr + GPUNN__CUDA_ALIGN;
}

GPUNN__INTERNAL void gpunn__cuda_host_free(void *ptr)
{
    gpunn__context context;
    char *const    start = (char *)ptr - GPUNN__CUDA_ALIGN;
    memcpy(&context, start, sizeof context);
    const gpunn__current current(context);
    (void)cudaFreeHost(start);
}

static void gpunn__slot_release(gpunn__cuda *cuda, gpunn__slot *slot)
{
    (void)gpunn__pool_free(cuda, slot->device, slot->device_bytes, cuda->copy_stream);
    if (slot->host) (void)cudaFreeHost(slot->host);
    slot->host = slot->device = NULL;
    slot->host_bytes = slot->device_bytes = 0;
}

GPUNN__INTERNAL void gpunn__cuda_trim(void *context)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    const gpunn__current current(cuda->context);
    if (gpunn__cuda_entered(cuda, &current) != GPUNN_OK || gpunn__cuda_capturing(cuda)) return;
    if (gpunn__stream_wait(cuda) != GPUNN_OK) return;
    for (int i = 0; i < 2; i++) gpunn__slot_release(cuda, &cuda->staging->slot[i]);
    (void)gpunn__cuda_check(cuda, cudaStreamSynchronize(cuda->copy_stream), "cudaStreamSynchronize");
    if (cuda->pool) (void)gpunn__cuda_check(cuda, cudaMemPoolTrimTo(cuda->pool, 0), "cudaMemPoolTrimTo");
    (void)gpunn__cuda_check(cuda, cudaDeviceGraphMemTrim(cuda->device), "cudaDeviceGraphMemTrim");
}

GPUNN__INTERNAL void gpunn__cuda_reserved(void *context, size_t *now, size_t *peak)
{
    gpunn__cuda         *cuda = (gpunn__cuda *)context;
    uint64_t             held = cuda->staging->held, high = cuda->staging->peak;
    const gpunn__current current(cuda->context);
    if (cuda->pool && !current.is_forked) {
        (void)cudaMemPoolGetAttribute(cuda->pool, cudaMemPoolAttrReservedMemCurrent, &held);
        (void)cudaMemPoolGetAttribute(cuda->pool, cudaMemPoolAttrReservedMemHigh, &high);
    }
    *now = (size_t)held;
    *peak = (size_t)high;
}

typedef struct gpunn__packet {
    unsigned word[GPUNN__PACKET / 4];
} gpunn__packet;
/* to[0 .. bytes) = packet; each block copies 128 words. */
static __global__ void gpunn__unpack_kernel(char *to, unsigned bytes, const gpunn__packet packet)
{
    GPUNN__FOLLOW();
    unsigned i = blockIdx.x * 128 + threadIdx.x;
    if (4 * i >= bytes) return;
    unsigned word = packet.word[i];
    if (4 * i + 4 <= bytes)
        ((unsigned *)to)[i] = word;
    else
        for (unsigned j = 4 * i; j < bytes; j++) to[j] = (char)(word >> 8 * (j % 4));
}

/* Waits until the host may write the slot, then grows it. */
static gpunn_status gpunn__slot_reserve(gpunn__cuda *cuda, gpunn__slot *slot, size_t on_host,
                                        size_t on_device)
{
    size_t whole = GPUNN__UP(on_host, GPUNN__CHUNK);
    GPUNN__TRY(gpunn__event_wait(cuda, slot->sent));
    if (slot->host_bytes < on_host) {
        if (slot->host) GPUNN__CUDA(cuda, cudaFreeHost(slot->host));
        slot->host = NULL;
        slot->host_bytes = 0;
        GPUNN__CUDA(cuda, cudaHostAlloc((void **)&slot->host, whole, cudaHostAllocDefault));
        slot->host_bytes = whole;
    }
    if (on_device == 0) return GPUNN_OK;
    whole = GPUNN__UP(on_device, GPUNN__CHUNK);
    GPUNN__CUDA(cuda, cudaStreamWaitEvent(cuda->copy_stream, slot->used, 0));
    if (slot->device_bytes < on_device) {
        GPUNN__CUDA(cuda, gpunn__pool_free(cuda, slot->device, slot->device_bytes, cuda->copy_stream));
        slot->device = NULL;
        slot->device_bytes = 0;
        GPUNN__CUDA(cuda, gpunn__pool_alloc(cuda, (void **)&slot->device, whole, cuda->copy_stream));
        slot->device_bytes = whole;
    }
    return GPUNN_OK;
}

/* Whether the stream has work. The query reports that as a CUDA error. If the program has an error pending,
 * *busy is left unchanged. */
static gpunn_status gpunn__cuda_busy(gpunn__cuda *cuda, bool *busy)
{
    if (cudaPeekAtLastError() != cudaSuccess) return GPUNN_OK;
    cudaError_t state = cudaStreamQuery(cuda->stream);
    *busy = state == cudaErrorNotReady;
    if (!*busy) return gpunn__cuda_check(cuda, state, "cudaStreamQuery");
    gpunn__cuda_clear();
    return GPUNN_OK;
}

/* Copies straight to the target if the device is idle, otherwise through the slot, overlapping the step that
 * is running. Memory that the program has pinned is transferred from where it is, and the call waits for
 * that. GPUNN_ERR_MEMORY: nothing was done, for lack of staging memory. */
static gpunn_status gpunn__cuda_stage(gpunn__cuda *cuda, char *to, const char *host, size_t bytes,
                                      bool pinned)
{
    gpunn__slot *slot = &cuda->staging->slot[cuda->staging->slot_next++ % 2];
    bool         busy = true;
    GPUNN__TRY(gpunn__cuda_busy(cuda, &busy));
    GPUNN__TRY(gpunn__slot_reserve(cuda, slot, pinned ? 0 : bytes, busy ? bytes : 0));
    cudaStream_t stream = busy ? cuda->copy_stream : cuda->stream;
    char        *first_stop = busy ? slot->device : to;
    if (pinned) GPUNN__CUDA(cuda, cudaMemcpyAsync(first_stop, host, bytes, cudaMemcpyHostToDevice, stream));
    for (size_t done = 0, part; done < bytes && !pinned; done += part) {
        part = bytes - done < GPUNN__CHUNK ? bytes - done : (size_t)GPUNN__CHUNK;
        memcpy(slot->host + done, host + done, part);
        GPUNN__CUDA(cuda, cudaMemcpyAsync(first_stop + done, slot->host + done, part, cudaMemcpyHostToDevice,
                                          stream));
    }
    GPUNN__CUDA(cuda, cudaEventRecord(slot->sent, stream));
    if (pinned) GPUNN__TRY(gpunn__event_wait(cuda, slot->sent));
    if (!busy) return GPUNN_OK;
    GPUNN__CUDA(cuda, cudaStreamWaitEvent(cuda->stream, slot->sent, 0));
    GPUNN__CUDA(cuda, cudaMemcpyAsync(to, slot->device, bytes, cudaMemcpyDeviceToDevice, cuda->stream));
    GPUNN__CUDA(cuda, cudaEventRecord(slot->used, cuda->stream));
    return GPUNN_OK;
}

static bool gpunn__is_on_device(const cudaPointerAttributes *where)
{
    return where->type == cudaMemoryTypeDevice || where->type == cudaMemoryTypeManaged;
}

/* Finds where the program's memory is, at its first and at its last byte. Memory of another GPU is an
 * error. */
static gpunn_status gpunn__cuda_locate(gpunn__cuda *cuda, const void *memory, size_t bytes,
                                       cudaPointerAttributes *where)
{
    cudaPointerAttributes last;
    GPUNN__CUDA(cuda, cudaPointerGetAttributes(where, memory));
    if (!gpunn__is_on_device(where)) return GPUNN_OK;
    if (where->type == cudaMemoryTypeDevice && where->device != cuda->device)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_ARGUMENT,
                                "the memory is on GPU %d, but the model is on GPU %d", where->device,
                                cuda->device);
    GPUNN__CUDA(cuda, cudaPointerGetAttributes(&last, (const char *)memory + (bytes ? bytes - 1 : 0)));
    if (gpunn__is_on_device(&last)) return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_SHAPE, "the memory has less than %llu bytes",
                            (unsigned long long)bytes);
}

/* Whether kernels access this host memory as fast as GPU memory. On a GPU without memory of its own, that
 * holds for pinned memory. If the hardware uses the host's page tables, it holds for any. */
static bool gpunn__reads_host(const gpunn__cuda *cuda, const void *memory, const cudaPointerAttributes *where)
{
    return cuda->pageable ||
           (cuda->integrated && where->type == cudaMemoryTypeHost && where->devicePointer == memory);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_reaches(void *context, const void *memory, size_t bytes)
{
    gpunn__cuda          *cuda = (gpunn__cuda *)context;
    cudaPointerAttributes where;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__cuda_locate(cuda, memory, bytes, &where));
    if (gpunn__is_on_device(&where) || gpunn__reads_host(cuda, memory, &where)) return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_ARGUMENT,
                            "the memory is on the host, but the model is on GPU %d; use memory from "
                            "cudaMalloc, or gpunn_write and gpunn_read",
                            cuda->device);
}

GPUNN__INTERNAL bool gpunn__cuda_on_device(void *context, const void *memory)
{
    gpunn__cuda          *cuda = (gpunn__cuda *)context;
    const gpunn__current  current(cuda->context);
    cudaPointerAttributes where;
    return !current.is_forked && cudaPointerGetAttributes(&where, memory) == cudaSuccess &&
           where.type == cudaMemoryTypeDevice;
}

/* Uploads any length in pieces. One piece is copied to pinned memory while the one before is transferred. If
 * staging memory runs out, the driver copies the rest, which waits for all work. */
static gpunn_status gpunn__cuda_send(gpunn__cuda *cuda, char *to, const char *host, size_t bytes, bool pinned)
{
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < GPUNN__STAGED ? bytes - done : (size_t)GPUNN__STAGED;
        gpunn_status status = gpunn__cuda_stage(cuda, to + done, host + done, part, pinned);
        if (status == GPUNN_OK) continue;
        if (status != GPUNN_ERR_MEMORY) return status;
        part = bytes - done;
        GPUNN__CUDA(cuda,
                    cudaMemcpyAsync(to + done, host + done, part, cudaMemcpyHostToDevice, cuda->stream));
        GPUNN__TRY(gpunn__stream_wait(cuda));
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_upload(void *context, void *to, const void *host, size_t bytes)
{
    gpunn__cuda          *cuda = (gpunn__cuda *)context;
    gpunn__staging       *staging = cuda->staging;
    cudaPointerAttributes where;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__cuda_locate(cuda, host, bytes, &where));
    if (where.type == cudaMemoryTypeDevice) {
        GPUNN__CUDA(cuda, cudaMemcpyAsync(to, host, bytes, cudaMemcpyDeviceToDevice, cuda->stream));
        return GPUNN_OK;
    }
    if (where.type == cudaMemoryTypeManaged) /* kernels may still write it */
        GPUNN__TRY(gpunn__stream_wait(cuda));
    if (bytes <= GPUNN__PACKET && (uintptr_t)to % 4 == 0) {
        gpunn__packet packet;
        memcpy(packet.word, host, bytes);
        return GPUNN__LAUNCH(cuda, gpunn__unpack_kernel, (unsigned)(bytes + 511) / 512, 128, (char *)to,
                             (unsigned)bytes, packet);
    }
    GPUNN__TRY(gpunn__outside_capture(cuda, "copy from the host"));
    if (bytes <= GPUNN__SMALL) {
        unsigned i = staging->ring_next++ % GPUNN__RING;
        char    *pinned = staging->ring + (size_t)i * GPUNN__SMALL;
        GPUNN__TRY(gpunn__event_wait(cuda, staging->ring_sent[i]));
        memcpy(pinned, host, bytes);
        GPUNN__CUDA(cuda, cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, cuda->stream));
        GPUNN__CUDA(cuda, cudaEventRecord(staging->ring_sent[i], cuda->stream));
        return GPUNN_OK;
    }
    return gpunn__cuda_send(cuda, (char *)to, (const char *)host, bytes, where.type == cudaMemoryTypeHost);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_download(void *context, void *host, const void *from, size_t bytes)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    char        *pinned = cuda->staging->ring + (size_t)GPUNN__RING * GPUNN__SMALL;
    bool         small = bytes <= GPUNN__SMALL;
    if (gpunn__cuda_on_device(cuda, host)) return gpunn__cuda_upload(cuda, host, from, bytes);
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__outside_capture(cuda, "copy to the host"));
    /* otherwise the driver would wait inside the copy, without a timeout */
    if (!small && cuda->nccl) GPUNN__TRY(gpunn__stream_wait(cuda));
    GPUNN__CUDA(cuda,
                cudaMemcpyAsync(small ? pinned : host, from, bytes, cudaMemcpyDeviceToHost, cuda->stream));
    GPUNN__TRY(gpunn__stream_wait(cuda));
    if (small) memcpy(host, pinned, bytes);
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_fill(void *context, void *ptr, int byte, size_t bytes)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    GPUNN__CUDA(cuda, cudaMemsetAsync(ptr, byte, bytes, cuda->stream));
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_synchronize(void *context)
{
    gpunn__cuda *cuda = (gpunn__cuda *)context;
    GPUNN__ENTER(cuda);
    GPUNN__TRY(gpunn__outside_capture(cuda, "waiting"));
    GPUNN__TRY(gpunn__stream_wait(cuda));
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__memory_open(gpunn__cuda *cuda)
{
    int pools = 0;
    cuda->staging = (gpunn__staging *)gpunn__host_alloc(cuda, sizeof *cuda->staging);
    if (cuda->staging == NULL) return GPUNN_ERR_MEMORY;
    GPUNN__CUDA(cuda, cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, cuda->device));
    if (pools && cuda->args.cuda_malloc_fn == NULL) {
        cudaMemPoolProps properties;
        uint64_t         keep = UINT64_MAX;
        memset(&properties, 0, sizeof properties);
        properties.allocType = cudaMemAllocationTypePinned;
        properties.location.type = cudaMemLocationTypeDevice;
        properties.location.id = cuda->device;
        GPUNN__CUDA(cuda, cudaMemPoolCreate(&cuda->pool, &properties));
        GPUNN__CUDA(cuda, cudaMemPoolSetAttribute(cuda->pool, cudaMemPoolAttrReleaseThreshold, &keep));
    }
    GPUNN__CUDA(cuda, cudaHostAlloc((void **)&cuda->staging->ring, (size_t)(GPUNN__RING + 1) * GPUNN__SMALL,
                                    cudaHostAllocDefault));
    for (int i = 0; i < GPUNN__RING; i++)
        GPUNN__CUDA(cuda, cudaEventCreateWithFlags(&cuda->staging->ring_sent[i], cudaEventDisableTiming));
    for (int i = 0; i < 2; i++) {
        GPUNN__CUDA(cuda, cudaEventCreateWithFlags(&cuda->staging->slot[i].sent, cudaEventDisableTiming));
        GPUNN__CUDA(cuda, cudaEventCreateWithFlags(&cuda->staging->slot[i].used, cudaEventDisableTiming));
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL void gpunn__memory_close(gpunn__cuda *cuda)
{
    gpunn__staging *staging = cuda->staging;
    if (staging == NULL) return;
    for (int i = 0; i < 2; i++) {
        gpunn__slot_release(cuda, &staging->slot[i]);
        if (staging->slot[i].sent) (void)cudaEventDestroy(staging->slot[i].sent);
        if (staging->slot[i].used) (void)cudaEventDestroy(staging->slot[i].used);
    }
    for (int i = 0; i < GPUNN__RING; i++)
        if (staging->ring_sent[i]) (void)cudaEventDestroy(staging->ring_sent[i]);
    if (staging->ring) (void)cudaFreeHost(staging->ring);
    (void)cudaStreamSynchronize(cuda->copy_stream);
    if (cuda->pool) (void)cudaMemPoolDestroy(cuda->pool);
}

/* ---- cache of descriptors and chosen algorithms -------------------------------------------------------- */

static char *gpunn__cached_key(gpunn__cached *entry)
{
    return (char *)entry + GPUNN__UP(sizeof *entry, 16);
}

static size_t gpunn__cached_bytes(size_t key_bytes, size_t value_bytes)
{
    return GPUNN__UP(sizeof(gpunn__cached), 16) + GPUNN__UP(key_bytes, 16) + value_bytes;
}

GPUNN__INTERNAL void *gpunn__cuda_cached(gpunn__cuda *cuda, const void *key, size_t key_bytes,
                                         size_t value_bytes, void (*destroy)(gpunn__cuda *cuda, void *value),
                                         bool  *fresh)
{
    gpunn__cached *entry = cuda->cached;
    while (entry && (entry->key_bytes != key_bytes || memcmp(gpunn__cached_key(entry), key, key_bytes) != 0))
        entry = entry->next;
    *fresh = entry == NULL;
    if (*fresh) {
        entry = (gpunn__cached *)gpunn__host_alloc(cuda, gpunn__cached_bytes(key_bytes, value_bytes));
        if (entry == NULL) return NULL;
        entry->key_bytes = key_bytes;
        entry->value_bytes = value_bytes;
        entry->destroy = destroy;
        memcpy(gpunn__cached_key(entry), key, key_bytes);
        entry->next = cuda->cached;
        cuda->cached = entry;
    }
    return gpunn__cached_key(entry) + GPUNN__UP(key_bytes, 16);
}

GPUNN__INTERNAL void gpunn__cached_close(gpunn__cuda *cuda)
{
    for (gpunn__cached *entry = cuda->cached, *next; entry; entry = next) {
        next = entry->next;
        if (entry->destroy && !gpunn__cuda_is_forked(cuda))
            entry->destroy(cuda, gpunn__cached_key(entry) + GPUNN__UP(entry->key_bytes, 16));
        gpunn__host_free(cuda, entry, gpunn__cached_bytes(entry->key_bytes, entry->value_bytes));
    }
    cuda->cached = NULL;
}
