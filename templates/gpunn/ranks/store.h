#ifndef GPUNN__RANKS_STORE_H
#define GPUNN__RANKS_STORE_H
#include "base/structs.h"

/* ==== >>ranks/store ===================================================================================== */
/* The communication engine over a shared folder, and the environment variables of rank launchers. */
/* In each call a rank writes its data to a file of its own. The file is complete once the call's number is at
 * its beginning and its end. Every call reads the files of all ranks. So a rank that makes the next but one
 * call knows that its file of the last but one has been read: two files per rank suffice. */
typedef struct gpunn__store {
    const char   *folder;
    int           rank, size;
    double        timeout;
    uint64_t      call;
    char         *piece; /* [GPUNN__GROUP_PIECE] */
    gpunn_device *dev;
    char          text[256];
} gpunn__store;

/* Writes "rank R has not come within S seconds ..." to text. Returns GPUNN_ERR_DEVICE. */
GPUNN__INTERNAL gpunn_status gpunn__fail_timeout(char text[256], int rank, double seconds);

/* gpunn_group_args.all_reduce; also identifies this engine. */
GPUNN__INTERNAL gpunn_status gpunn__store_all_reduce(void *user, float *values, int64_t count);

/* Frees the engine. leaves: says so to the others; rank 0 deletes the files once all have said so. */
GPUNN__INTERNAL void gpunn__store_close(gpunn__store *store, bool leaves);

/* Value of an environment variable that is a number; else `otherwise`. */
GPUNN__INTERNAL int gpunn__number_of(const char *name, int otherwise);

/* Launchers of ranks, and their environment variables for the rank, the number of ranks, and the index among
 * the ranks on this machine. One may start another: torchrun may run inside srun. The innermost comes
 * first. */
typedef struct gpunn__launcher {
    const char *rank, *size, *local;
} gpunn__launcher;
GPUNN__PRIVATE const gpunn__launcher gpunn__launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},                                           /* torchrun */
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"}, /* Open MPI's mpirun */
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"},    /* MVAPICH2 */
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},                                    /* MPICH and Intel MPI */
    /* srun; SLURM_NTASKS is set in sbatch's script too */
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
};
enum { GPUNN__LAUNCHERS = sizeof gpunn__launchers / sizeof *gpunn__launchers };

/* The innermost launcher; NULL: none. */
GPUNN__INTERNAL const gpunn__launcher *gpunn__find_launcher(void);

/* Fails unless 0 <= rank < size. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__check_rank(const gpunn_group *group);

/* Sets group->args.rank and size from the launcher's variables, unless the program set them. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__find_rank(gpunn_group *group);

/* Sets group->args to the engine. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__store_open(gpunn_group *group);

#endif /* GPUNN__RANKS_STORE_H */
