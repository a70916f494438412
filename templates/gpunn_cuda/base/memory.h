#ifndef GPUNN__CUDA_BASE_MEMORY_H
#define GPUNN__CUDA_BASE_MEMORY_H
#include "base/context.h"

/* ==== >>base/memory ================================================================================================ *
 * One stream-ordered pool a device, from which nothing goes back to the system unless asked, and pinned memory through which
 * uploads travel: the host's memory is free again on return, and the copy runs beside the step that computes. */
enum {
    GPUNN__PACKET = 4000,     /* bytes that travel in a kernel's arguments */
    GPUNN__SMALL = 64 << 10,  /* bytes that travel through the ring */
    GPUNN__RING = 16,         /* uploads in the ring */
    GPUNN__CHUNK = 1 << 20,   /* bytes copied to pinned memory before they start to travel on */
    GPUNN__STAGED = 64 << 20, /* bytes of the largest upload, or piece of a larger one, that is staged */
    GPUNN__CUDA_ALIGN = 256,  /* bytes */
};

/* An upload on its way: host, to device beside the step, to its target behind it. */
typedef struct gpunn__slot {
    char       *host, *device;
    size_t      host_bytes, device_bytes;
    cudaEvent_t sent, used; /* host may be written again, device may be written again */
} gpunn__slot;

struct gpunn__staging {
    char       *ring; /* pinned, [GPUNN__RING][GPUNN__SMALL], then GPUNN__SMALL for downloads */
    cudaEvent_t ring_sent[GPUNN__RING];
    unsigned    ring_next, slot_next;
    gpunn__slot slot[2];
    size_t      held, peak; /* bytes taken from elsewhere than the pool */
};

struct gpunn__cached {
    gpunn__cached *next;
    size_t         key_bytes, value_bytes;
    void (*destroy)(gpunn__cuda *cuda, void *value);
    /* key, then value, each at a multiple of 16 bytes */
};

#define GPUNN__UP(bytes, unit) (((bytes) + (unit)-1) / (unit) * (unit))

/* What the pool keeps for later goes back to the system before the answer is no. */
GPUNN__INTERNAL void *gpunn__cuda_alloc(void *context, size_t bytes);

GPUNN__INTERNAL void gpunn__cuda_free(void *context, void *ptr, size_t bytes);

/* Pinned, for whatever GPU. Before it lies the context that is to be current when it is freed. */
GPUNN__INTERNAL void *gpunn__cuda_host_alloc(void *context, size_t bytes);

GPUNN__INTERNAL void gpunn__cuda_host_free(void *ptr);

/* After work of the streams has ended, what only speeds up later uploads is given back too. */
GPUNN__INTERNAL void gpunn__cuda_trim(void *context);

GPUNN__INTERNAL void gpunn__cuda_reserved(void *context, size_t *now, size_t *peak);

GPUNN__INTERNAL gpunn_status gpunn__cuda_reaches(void *context, const void *memory, size_t bytes);

GPUNN__INTERNAL bool gpunn__cuda_on_device(void *context, const void *memory);

GPUNN__INTERNAL gpunn_status gpunn__cuda_upload(void *context, void *to, const void *host, size_t bytes);

GPUNN__INTERNAL gpunn_status gpunn__cuda_download(void *context, void *host, const void *from, size_t bytes);

GPUNN__INTERNAL gpunn_status gpunn__cuda_fill(void *context, void *ptr, int byte, size_t bytes);

GPUNN__INTERNAL gpunn_status gpunn__cuda_synchronize(void *context);

/* On a device with its streams. */
GPUNN__INTERNAL gpunn_status gpunn__memory_open(gpunn__cuda *cuda);

/* After everything else has been freed. */
GPUNN__INTERNAL void gpunn__memory_close(gpunn__cuda *cuda);

GPUNN__INTERNAL void gpunn__cached_close(gpunn__cuda *cuda);

#endif /* GPUNN__CUDA_BASE_MEMORY_H */
