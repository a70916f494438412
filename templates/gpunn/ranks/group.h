#ifndef GPUNN__RANKS_GROUP_H
#define GPUNN__RANKS_GROUP_H
#include "base/structs.h"

/* ==== >>ranks/group ===================================================================================== */
/* A group of ranks: the exchanges between them through host memory or between devices, and the all-reduce of
 * statuses before each common call. */
/* An optimizer or loader begins to use the group; NULL is allowed. */
GPUNN__INTERNAL void gpunn__group_join(gpunn_group *group);

/* It ends its use. The last one frees a closed group. */
GPUNN__INTERNAL void gpunn__group_leave(gpunn_group *group);

typedef enum gpunn__exchange {
    GPUNN__ALL_REDUCE,
    GPUNN__ALL_GATHER,
    GPUNN__BROADCAST,
    GPUNN__REDUCE_SCATTER, /* in parts of group->counts */
    GPUNN__ALL_REDUCE_BF16
} gpunn__exchange;

/* Runs one exchange in host memory. bytes is the size of memory or, for ALL_GATHER, of one rank's part. A
 * failure breaks the group. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_host(gpunn_group *group, gpunn__exchange kind, void *memory,
                                                   size_t bytes, int root);

/* Whether dev has joined the group's ranks and communicates with them itself. */
GPUNN__INTERNAL bool gpunn__in_ranks(const gpunn_group *group, const gpunn_device *dev);

/* An exchange of gradients: they become the mean on all ranks (owner GPUNN_MEAN) or on rank `owner` alone. */
GPUNN__INTERNAL gpunn_exchange gpunn__gradients_exchange(const gpunn_group *group, float *values,
                                                         int64_t count, int owner, int after);

/* Allocates group->piece, if needed; false on an error. */
GPUNN__INTERNAL bool gpunn__has_piece(gpunn_group *group);

/* All-reduce of statuses. All ranks begin every common call with it: each contributes its status and, by
 * `format`, what it is about to do. It fails on all ranks if one has failed or if they differ. loss (may be
 * NULL) becomes the mean over all ranks. */
GPUNN__INTERNAL gpunn_status gpunn__all_reduce_status(gpunn_group *group, gpunn_status status, float *loss,
                                                      const char *format, ...) GPUNN__PRINTF(4, 5);
/* What a rank says if its run fails after the all-reduce of statuses for that run, when GPUs communicate
 * themselves. The others wait for its part, learn of the failure in the all-reduce for their next run, and
 * the group ends. */
#define GPUNN__LATE "a run that the other ranks have begun"

/* Ends an exchange with the status of this device's copies. If any rank's copies failed, it fails on all. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__copies_end(gpunn_group *group, gpunn_device *dev, gpunn_status copied);

/* One exchange by a device that has joined. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_joined(gpunn_group *group, gpunn_device *dev,
                                                     const gpunn_exchange *exchange);

/* Broadcast: floats on a device become those of rank `root`. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_memory(gpunn_group *group, gpunn_device *dev, float *values,
                                                     int64_t count, int root);

/* Gradients on a device become their means over all ranks. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_gradients(gpunn_group *group, gpunn_device *dev, float *values,
                                                        int64_t count);

/* Reduce-scatter of gradients on a device: this rank's share becomes the mean. The values are at `place` of
 * what the ranks share, and each rank's share has `each` values. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__scatter_gradients(gpunn_group *group, gpunn_device *dev, float *values,
                                                       int64_t count, int64_t place, int64_t each);

/* Whether all ranks know the outcome of a call that began when group->reductions was `reductions`. */
GPUNN__INTERNAL bool gpunn__has_reported(const gpunn_group *group, int64_t reductions);

/* gather of gpunn_ranks. It begins with an all-reduce of statuses, so a rank that has failed on its way here
 * ends the wait of all. */
GPUNN__INTERNAL gpunn_status gpunn__gather_sums(void *user, void *parts, size_t bytes);

/* Adds an exchange to the next run, after exchange.after steps. All ranks add the same exchanges in the same
 * order. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_add(gpunn_group *group, gpunn_exchange exchange);

/* Puts the added exchanges into a run and mixes them into its signature. */
GPUNN__INTERNAL void gpunn__exchanges_put(const gpunn_group *group, gpunn_run *run);

#endif /* GPUNN__RANKS_GROUP_H */
