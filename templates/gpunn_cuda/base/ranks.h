#ifndef GPUNN__CUDA_BASE_RANKS_H
#define GPUNN__CUDA_BASE_RANKS_H
#include "base/context.h"

/* ==== >>base/ranks ======================================================================================= *
 * NCCL is opened when the first group needs it. The few functions used are declared here, so NCCL's header is
 * not needed (tests/compile/nccl.cpp compares them with it). The communicator is nonblocking, so waiting for
 * other ranks can time out. */
typedef struct gpunn__nccl_id {
    char bytes[GPUNN_RANKS_ID];
} gpunn__nccl_id;
/* the layout of version 2.14, as `version` says; later versions append members */
typedef struct gpunn__nccl_config {
    size_t   size;
    unsigned magic, version;
    int      blocking;
} gpunn__nccl_config;

/* clang-format off */
#define GPUNN__NCCL_FUNCTIONS(X)                                                                          \
    X(int, ncclGetVersion, (int *version))                                                                \
    X(int, ncclGetUniqueId, (gpunn__nccl_id *id))                                                         \
    X(int, ncclCommInitRankConfig, (void **comm, int size, gpunn__nccl_id id, int rank,                   \
      gpunn__nccl_config *config))                                                                        \
    X(int, ncclCommGetAsyncError, (void *comm, int *state))                                               \
    X(int, ncclCommAbort, (void *comm))                                                                   \
    X(int, ncclCommFinalize, (void *comm))                                                                \
    X(int, ncclCommDestroy, (void *comm))                                                                 \
    X(const char *, ncclGetErrorString, (int result))                                                     \
    X(int, ncclGroupStart, (void))                                                                        \
    X(int, ncclGroupEnd, (void))                                                                          \
    X(int, ncclAllReduce, (const void *from, void *to, size_t count, int type, int operation, void *comm, \
      cudaStream_t stream))                                                                               \
    X(int, ncclReduce,                                                                                    \
      (const void *from, void *to, size_t count, int type, int operation, int root, void *comm,           \
      cudaStream_t stream))                                                                               \
    X(int, ncclAllGather, (const void *from, void *to, size_t count, int type, void *comm,                \
      cudaStream_t stream))                                                                               \
    X(int, ncclBroadcast, (const void *from, void *to, size_t count, int type, int root, void *comm,      \
      cudaStream_t stream))
/* clang-format on */

struct gpunn__nccl {
    gpunn_status found;                                   /* result of the search */
    char         text[sizeof((gpunn__cuda *)NULL)->text]; /* why it was not found, or its version and path */
    void        *comm;                                    /* NULL: none, or aborted */
    double       timeout;
    int          rank, size;
    cudaStream_t stream; /* for all exchanges */
    cudaEvent_t  now, begun, done;
#define GPUNN__X(result, name, arguments) result(*name) arguments;
    GPUNN__NCCL_FUNCTIONS(GPUNN__X)
#undef GPUNN__X
};
/* Opens NCCL and resolves its functions. nccl->text receives its version and path, or, if it returns
 * false, the reason. */
GPUNN__INTERNAL bool gpunn__nccl_find(gpunn__nccl *nccl);

/* The functions gpunn__cuda_* of this part are entries of gpunn_backend, which >>backend in gpunn.h
 * describes. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_ranks_id(void *context, char id[GPUNN_RANKS_ID]);

GPUNN__INTERNAL void gpunn__cuda_ranks_leave(void *context, bool waits);

GPUNN__INTERNAL gpunn_status gpunn__cuda_ranks_join(void *context, const char id[GPUNN_RANKS_ID], int rank,
                                                    int size, double timeout);

/* Fails if count > 0 and there is no communicator any more. */
GPUNN__INTERNAL gpunn_status gpunn__ranks_there(gpunn__cuda *cuda, int count);

/* Makes cuda->stream wait for the exchanges that have begun. */
GPUNN__INTERNAL gpunn_status gpunn__exchanges_end(gpunn__cuda *cuda, int count);

/* All-gather: parts [ranks->size] of `count` floats each, of which this rank has its own. All ranks have all
 * parts when the stream continues. */
GPUNN__INTERNAL gpunn_status gpunn__ranks_gather(gpunn__cuda *cuda, const gpunn_ranks *ranks, float *parts,
                                                 int64_t count);

/* The same through host memory, where the ranks' parts are doubles. Used if ranks on CPUs take part. */
GPUNN__INTERNAL gpunn_status gpunn__ranks_gather_host(gpunn__cuda *cuda, const gpunn_ranks *ranks,
                                                      float *parts, int64_t count);

/* Begins the exchanges of the run that are complete after `steps` steps, starting with the first that has not
 * begun. */
GPUNN__INTERNAL gpunn_status gpunn__exchanges_after(gpunn__cuda *cuda, const gpunn_run *run, int steps,
                                                    int *begun);

GPUNN__INTERNAL gpunn_status gpunn__cuda_exchange(void *context, const gpunn_exchange *exchanges, int count);

#endif /* GPUNN__CUDA_BASE_RANKS_H */
