#ifndef GPUNN__RANKS_TCP_H
#define GPUNN__RANKS_TCP_H
#include "base/structs.h"

/* ==== >>ranks/tcp ======================================================================================= */
/* The communication engine over TCP. */
/* Rank 0 listens and all others connect to it. In each call it receives from the others in turn, then sends
 * the result. Each message of rank 0 is preceded by the number of a missing rank, or -1. The others wait
 * twice as long as rank 0, so that they learn which rank it misses. */
#define GPUNN__TCP "tcp://"

#ifdef AI_PASSIVE /* hidden by -std=c99 */
typedef struct gpunn__tcp {
    int           rank, size;
    double        timeout;
    int          *sockets; /* [size] sockets, or -1. Rank 0: to all others; others: [0] to rank 0 */
    char         *piece;   /* [GPUNN__GROUP_PIECE] */
    gpunn_device *dev;
    char          text[256];
} gpunn__tcp;

/* gpunn_group_args.all_reduce; also identifies this engine. */
GPUNN__INTERNAL gpunn_status gpunn__tcp_all_reduce(void *user, float *values, int64_t count);

/* Closes all sockets and frees the engine. */
GPUNN__INTERNAL void gpunn__tcp_close(gpunn__tcp *tcp);
#endif

/* Sets group->args to the engine; args.store is rank 0's tcp://host:port. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__tcp_open(gpunn_group *group);

/* The same at torch's MASTER_ADDR and MASTER_PORT, or at the port after it if torchrun itself listens
 * there. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__master_open(gpunn_group *group);

#endif /* GPUNN__RANKS_TCP_H */
