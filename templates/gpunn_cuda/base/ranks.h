#ifndef GPUNN__CUDA_BASE_RANKS_H
#define GPUNN__CUDA_BASE_RANKS_H
#include "base/context.h"

/* ==== >>base/ranks ================================================================================================= *
 * NCCL, opened when the first group asks for it. The few functions are declared here, in words of our own, so that no header of
 * its is needed (tests/compile/nccl.cpp compares them with it). The communicator is one whose calls do not block, so that
 * whatever waits for other ranks can end. */
typedef struct gpunn__nccl_id {
    char bytes[GPUNN_RANKS_ID];
} gpunn__nccl_id;
typedef struct gpunn__nccl_config { /* as of 2.14, which `version` says; later ones have more members behind */
    size_t   size;
    unsigned magic, version;
    int      blocking;
} gpunn__nccl_config;

/* clang-format off */
#define GPUNN__NCCL_FUNCTIONS(X)                                                                                               \
    X(int, ncclGetVersion, (int *version))                                                                                     \
    X(int, ncclGetUniqueId, (gpunn__nccl_id *id))                                                                              \
    X(int, ncclCommInitRankConfig, (void **comm, int size, gpunn__nccl_id id, int rank, gpunn__nccl_config *config))           \
    X(int, ncclCommGetAsyncError, (void *comm, int *state))                                                                    \
    X(int, ncclCommAbort, (void *comm))                                                                                        \
    X(int, ncclCommFinalize, (void *comm))                                                                                     \
    X(int, ncclCommDestroy, (void *comm))                                                                                      \
    X(const char *, ncclGetErrorString, (int result))                                                                          \
    X(int, ncclGroupStart, (void))                                                                                             \
    X(int, ncclGroupEnd, (void))                                                                                               \
    X(int, ncclAllReduce, (const void *from, void *to, size_t count, int type, int operation, void *comm, cudaStream_t stream))\
    X(int, ncclReduce,                                                                                                         \
      (const void *from, void *to, size_t count, int type, int operation, int root, void *comm, cudaStream_t stream))          \
    X(int, ncclAllGather, (const void *from, void *to, size_t count, int type, void *comm, cudaStream_t stream))               \
    X(int, ncclBroadcast, (const void *from, void *to, size_t count, int type, int root, void *comm, cudaStream_t stream))
/* clang-format on */

struct gpunn__nccl {
    gpunn_status found;                                   /* of the search */
    char         text[sizeof((gpunn__cuda *)NULL)->text]; /* why not */
    void        *comm;                                    /* NULL: none, or given up */
    double       timeout;
    int          rank, size;
    cudaStream_t stream; /* of all exchanges */
    cudaEvent_t  now, begun, done;
#define GPUNN__X(result, name, arguments) result(*name) arguments;
    GPUNN__NCCL_FUNCTIONS(GPUNN__X)
#undef GPUNN__X
};
GPUNN__INTERNAL bool gpunn__nccl_find(gpunn__nccl *nccl);

GPUNN__INTERNAL gpunn_status gpunn__cuda_ranks_id(void *context, char id[GPUNN_RANKS_ID]);

GPUNN__INTERNAL void gpunn__cuda_ranks_leave(void *context, bool waits);

GPUNN__INTERNAL gpunn_status gpunn__cuda_ranks_join(void *context, const char id[GPUNN_RANKS_ID], int rank, int size,
                                                    double timeout);

/* Whether so many exchanges could be. */
GPUNN__INTERNAL gpunn_status gpunn__ranks_there(gpunn__cuda *cuda, int count);

/* The stream goes on behind those that have begun. */
GPUNN__INTERNAL gpunn_status gpunn__exchanges_end(gpunn__cuda *cuda, int count);

/* Parts of `count` floats each, [ranks->size], of which this rank has its own: all have all of them when the stream goes on. */
GPUNN__INTERNAL gpunn_status gpunn__ranks_gather(gpunn__cuda *cuda, const gpunn_ranks *ranks, float *parts, int64_t count);

/* The same through the host's memory, where the ranks' parts are doubles: those of CPUs are among them. */
GPUNN__INTERNAL gpunn_status gpunn__ranks_gather_host(gpunn__cuda *cuda, const gpunn_ranks *ranks, float *parts, int64_t count);

/* Those of the run, from the first on that has not begun, that need no more than so many steps. */
GPUNN__INTERNAL gpunn_status gpunn__exchanges_after(gpunn__cuda *cuda, const gpunn_run *run, int steps, int *begun);

GPUNN__INTERNAL gpunn_status gpunn__cuda_exchange(void *context, const gpunn_exchange *exchanges, int count);

#endif /* GPUNN__CUDA_BASE_RANKS_H */
