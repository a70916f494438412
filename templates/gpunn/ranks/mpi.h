#ifndef GPUNN__RANKS_MPI_H
#define GPUNN__RANKS_MPI_H
#include "base/structs.h"

/* ==== >>ranks/mpi ================================================================================================== */
#ifdef GPUNN_MPI
typedef struct gpunn__mpi {
    MPI_Comm      comm;
    bool          begun; /* MPI, by us */
    int           rank, size;
    double        timeout;
    int64_t       call, told; /* number of this call; of the last one of which the others have been told that we wait in it */
    int64_t      *waits;      /* [size]: the same of each rank, as far as heard */
    int          *counts;     /* [4][size] */
    float        *heard;      /* with .shard; NULL: without */
    uint16_t     *bf16;       /* with .bf16_gradients; NULL: without */
    gpunn_device *dev;
    char          text[256];
} gpunn__mpi;

GPUNN__INTERNAL gpunn_status gpunn__mpi_all_reduce(void *user, float *values, int64_t count);

/* ends: as all ranks are there. */
GPUNN__INTERNAL void gpunn__mpi_close(gpunn__mpi *mpi, bool ends);

GPUNN__INTERNAL GPUNN__STATUS gpunn__mpi_open(gpunn_group *group);
#endif

#endif /* GPUNN__RANKS_MPI_H */
