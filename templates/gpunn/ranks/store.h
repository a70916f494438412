#ifndef GPUNN__RANKS_STORE_H
#define GPUNN__RANKS_STORE_H
#include "base/structs.h"

/* ==== >>ranks/store ================================================================================================ */
/* Ranks that no MPI has started, through a folder. What a rank says in a call is a file of its own, complete once the call's
 * number stands at both ends. Every call hears all ranks, so who says the next but one knows that its last but one has been read:
 * two files each are enough. */
typedef struct gpunn__store {
    const char   *folder;
    int           rank, size;
    double        timeout;
    uint64_t      call;
    char         *piece; /* [GPUNN__GROUP_PIECE] */
    gpunn_device *dev;
    char          text[256];
} gpunn__store;

GPUNN__INTERNAL gpunn_status gpunn__say_late(char text[256], int rank, double seconds);

GPUNN__INTERNAL gpunn_status gpunn__store_all_reduce(void *user, float *values, int64_t count);

/* Rank 0 clears away once all have said that they leave. */
GPUNN__INTERNAL void gpunn__store_close(gpunn__store *store, bool leaves);

/* What the environment says under this name, if that is a number; or `otherwise`. */
GPUNN__INTERNAL int gpunn__number_of(const char *name, int otherwise);

/* Who starts ranks, and what tells them which they are, of how many, and which of those on their machine. One may start another:
 * torchrun stands in what srun began. */
typedef struct gpunn__launcher {
    const char *rank, *size, *local;
} gpunn__launcher;
GPUNN__PRIVATE const gpunn__launcher gpunn__launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},                                           /* torchrun */
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"}, /* Open MPI's mpirun */
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"},    /* MVAPICH2's */
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},                                    /* MPICH's and Intel's */
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"}, /* srun; SLURM_NTASKS is there in sbatch's script too */
};
enum { GPUNN__LAUNCHERS = sizeof gpunn__launchers / sizeof *gpunn__launchers };

/* The innermost one; NULL: none. */
GPUNN__INTERNAL const gpunn__launcher *gpunn__find_launcher(void);

GPUNN__INTERNAL GPUNN__STATUS gpunn__check_rank(const gpunn_group *group);

/* Of ranks that no MPI has started. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__find_rank(gpunn_group *group);

GPUNN__INTERNAL GPUNN__STATUS gpunn__store_open(gpunn_group *group);

#endif /* GPUNN__RANKS_STORE_H */
