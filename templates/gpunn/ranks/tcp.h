#ifndef GPUNN__RANKS_TCP_H
#define GPUNN__RANKS_TCP_H
#include "base/structs.h"

/* ==== >>ranks/tcp ================================================================================================== */
/* Ranks that no MPI has started, through rank 0, which listens. In each call it hears the others in turn, then tells them what
 * came of it, behind the number of a rank that it misses, or -1. They wait twice as long as it does, to hear whom it misses. */
#define GPUNN__TCP "tcp://"

#ifdef AI_PASSIVE /* not hidden by -std=c99 */
typedef struct gpunn__tcp {
    int           rank, size;
    double        timeout;
    int          *lines; /* [size] sockets, or -1: of rank 0 to all others, of these to rank 0 */
    char         *piece; /* [GPUNN__GROUP_PIECE] */
    gpunn_device *dev;
    char          text[256];
} gpunn__tcp;

GPUNN__INTERNAL gpunn_status gpunn__tcp_all_reduce(void *user, float *values, int64_t count);

GPUNN__INTERNAL void gpunn__tcp_close(gpunn__tcp *tcp);
#endif

GPUNN__INTERNAL GPUNN__STATUS gpunn__tcp_open(gpunn_group *group);

/* Where torch's ranks meet; beside it where torchrun itself listens there. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__master_open(gpunn_group *group);

#endif /* GPUNN__RANKS_TCP_H */
