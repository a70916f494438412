#ifndef GPUNN__CUDA_BASE_MEMORY_H
#define GPUNN__CUDA_BASE_MEMORY_H
#include "base/context.h"

/* ==== >>base/memory ====================================================================================== *
 * Device memory comes from one stream-ordered pool per device, which returns memory to the system only on
 * request. Uploads go through pinned memory: the host's memory may be reused on return, and copies overlap
 * the step that is running. */
enum {
    GPUNN__PACKET = 4000,     /* bytes of the largest upload passed in a kernel's arguments */
    GPUNN__SMALL = 64 << 10,  /* bytes of the largest upload through the ring */
    GPUNN__RING = 16,         /* uploads in the ring */
    GPUNN__CHUNK = 1 << 20,   /* bytes copied to pinned memory before their transfer starts */
    GPUNN__STAGED = 64 << 20, /* bytes of the largest staged upload; larger ones are split */
    GPUNN__CUDA_ALIGN = 256,  /* bytes */
};

/* A staged upload: to pinned host memory, from there to device memory while a step runs, then to its target
 * after the step. */
typedef struct gpunn__slot {
    char       *host, *device;
    size_t      host_bytes, device_bytes;
    cudaEvent_t sent, used; /* sent: host may be overwritten; used: device may be overwritten */
} gpunn__slot;

struct gpunn__staging {
    char       *ring; /* pinned, [GPUNN__RING][GPUNN__SMALL], then GPUNN__SMALL for downloads */
    cudaEvent_t ring_sent[GPUNN__RING];
    unsigned    ring_next, slot_next;
    gpunn__slot slot[2];
    size_t      held, peak; /* bytes allocated outside the pool */
};

struct gpunn__cached {
    gpunn__cached *next;
    size_t         key_bytes, value_bytes;
    void (*destroy)(gpunn__cuda *cuda, void *value);
    /* followed by key and value, each aligned to 16 bytes */
};

#define GPUNN__UP(bytes, unit) (((bytes) + (unit)-1) / (unit) * (unit))

/* Before it fails, the pool's unused memory is returned to the system. */
GPUNN__INTERNAL void *gpunn__cuda_alloc(void *context, size_t bytes);

GPUNN__INTERNAL void gpunn__cuda_free(void *context, void *ptr, size_t bytes);

/* Pinned host memory, portable across GPUs. In front of the block is the context that must be current to free
 * it. */
GPUNN__INTERNAL void *gpunn__cuda_host_alloc(void *context, size_t bytes);

GPUNN__INTERNAL void gpunn__cuda_host_free(void *ptr);

/* Waits for the stream, then returns unused memory to the system, including buffers that only speed up
 * uploads. */
GPUNN__INTERNAL void gpunn__cuda_trim(void *context);

GPUNN__INTERNAL void gpunn__cuda_reserved(void *context, size_t *now, size_t *peak);

GPUNN__INTERNAL gpunn_status gpunn__cuda_reaches(void *context, const void *memory, size_t bytes);

GPUNN__INTERNAL bool gpunn__cuda_on_device(void *context, const void *memory);

GPUNN__INTERNAL gpunn_status gpunn__cuda_upload(void *context, void *to, const void *host, size_t bytes);

GPUNN__INTERNAL gpunn_status gpunn__cuda_download(void *context, void *host, const void *from, size_t bytes);

GPUNN__INTERNAL gpunn_status gpunn__cuda_fill(void *context, void *ptr, int byte, size_t bytes);

GPUNN__INTERNAL gpunn_status gpunn__cuda_synchronize(void *context);

/* Needs an open device with its streams. */
GPUNN__INTERNAL gpunn_status gpunn__memory_open(gpunn__cuda *cuda);

/* Called after everything else has been freed. */
GPUNN__INTERNAL void gpunn__memory_close(gpunn__cuda *cuda);

GPUNN__INTERNAL void gpunn__cached_close(gpunn__cuda *cuda);

#endif /* GPUNN__CUDA_BASE_MEMORY_H */
