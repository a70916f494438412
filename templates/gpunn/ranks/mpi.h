#ifndef GPUNN__RANKS_MPI_H
#define GPUNN__RANKS_MPI_H
#include "base/structs.h"

/* ==== >>ranks/mpi ======================================================================================= */
/* The communication engine over MPI (-DGPUNN_MPI). */
#ifdef GPUNN_MPI
typedef struct gpunn__mpi {
    MPI_Comm comm;
    bool     begun; /* this group initialised MPI */
    int      rank, size;
    double   timeout;
    /* call: number of this call; announced: number of the last call in which the others were told that this
     * rank waits */
    int64_t       call, announced;
    int64_t      *waits;    /* [size]: the same of each rank, as far as received */
    int          *counts;   /* [4][size] */
    float        *received; /* buffer for received floats, with .shard; NULL: without */
    uint16_t     *bf16;     /* with .bf16_gradients; NULL: without */
    gpunn_device *dev;
    char          text[256];
} gpunn__mpi;

/* gpunn_group_args.all_reduce; also identifies this engine. */
GPUNN__INTERNAL gpunn_status gpunn__mpi_all_reduce(void *user, float *values, int64_t count);

/* Frees the engine. ends: all ranks are here, so it also frees the communicator and finalises MPI if it
 * initialised it. */
GPUNN__INTERNAL void gpunn__mpi_close(gpunn__mpi *mpi, bool ends);

/* Sets group->args to the engine, rank and size of MPI_COMM_WORLD. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__mpi_open(gpunn_group *group);
#endif

#endif /* GPUNN__RANKS_MPI_H */
