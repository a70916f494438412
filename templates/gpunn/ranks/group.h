#ifndef GPUNN__RANKS_GROUP_H
#define GPUNN__RANKS_GROUP_H
#include "base/structs.h"

/* ==== >>ranks/group ================================================================================================ */
GPUNN__INTERNAL void gpunn__group_join(gpunn_group *group);

GPUNN__INTERNAL void gpunn__group_leave(gpunn_group *group);

typedef enum gpunn__exchange {
    GPUNN__ALL_REDUCE,
    GPUNN__ALL_GATHER,
    GPUNN__BROADCAST,
    GPUNN__REDUCE_SCATTER, /* in parts of group->counts */
    GPUNN__ALL_REDUCE_BF16
} gpunn__exchange;

/* Memory of the host's: `bytes` in all, of a gathering those of one rank. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_host(gpunn_group *group, gpunn__exchange kind, void *memory, size_t bytes,
                                                   int root);

GPUNN__INTERNAL bool gpunn__in_ranks(const gpunn_group *group, const gpunn_device *dev);

/* What of gradients becomes GPUNN_MEAN everywhere, or the mean at rank `owner`. */
GPUNN__INTERNAL gpunn_exchange gpunn__gradients_exchange(const gpunn_group *group, float *values, int64_t count, int owner,
                                                         int after);

GPUNN__INTERNAL bool gpunn__has_piece(gpunn_group *group);

GPUNN__INTERNAL gpunn_status gpunn__agree(gpunn_group *group, gpunn_status status, float *loss, const char *format, ...)
    GPUNN__PRINTF(4, 5);
/* What a rank votes for whose run has failed behind the vote on it, where GPUs exchange by themselves: the others' wait for its
 * part, hear of it as they vote on their next run, and the group ends. */
#define GPUNN__LATE "a run that the other ranks have begun"

/* What a device has done with its part of an exchange; a failure that any rank has is one of all. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__copies_end(gpunn_group *group, gpunn_device *dev, gpunn_status copied);

/* As one that has joined does it by itself. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_joined(gpunn_group *group, gpunn_device *dev, const gpunn_exchange *exchange);

/* Floats of a device become what that rank has. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_memory(gpunn_group *group, gpunn_device *dev, float *values, int64_t count,
                                                     int root);

/* Gradients on a device become their means. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_gradients(gpunn_group *group, gpunn_device *dev, float *values, int64_t count);

/* Gradients on a device, at `place` of what the ranks share, `each` of them: this rank's become their means. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__scatter_gradients(gpunn_group *group, gpunn_device *dev, float *values, int64_t count,
                                                       int64_t place, int64_t each);

/* Whether all ranks know how what this one does has ended, if they had voted so many times when it began. */
GPUNN__INTERNAL bool gpunn__has_told(const gpunn_group *group, int64_t agreed);

/* gather of gpunn_ranks. Each time the ranks vote, so that one that has failed on its way here ends the wait of all. */
GPUNN__INTERNAL gpunn_status gpunn__gather_sums(void *user, void *parts, size_t bytes);

/* Adds to what the next run makes common to all ranks, after so many steps; in the same order on all. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_add(gpunn_group *group, gpunn_exchange exchange);

GPUNN__INTERNAL void gpunn__exchanges_put(const gpunn_group *group, gpunn_run *run);

#endif /* GPUNN__RANKS_GROUP_H */
