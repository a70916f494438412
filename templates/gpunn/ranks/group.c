#include "ranks/group.h"
#include "base/forward_declarations.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/math.h"
#include "base/device.h"
#include "base/model.h"
#include "ranks/slices.h"
#include "ranks/mpi.h"
#include "ranks/store.h"
#include "ranks/tcp.h"

GPUNN__PRIVATE gpunn_status gpunn__gpus_connect(gpunn_group *group);

#define GPUNN__WHOLE_ENGINE \
    "a custom engine needs rank, size, all_reduce, all_gather and broadcast; set all of them, or none"
GPUNN__PRIVATE GPUNN__STATUS gpunn__engine_open(gpunn_group *group)
{
    gpunn_group_args *args = &group->args;
    const int given = (args->all_reduce != NULL) + (args->all_gather != NULL) + (args->broadcast != NULL);
    if ((int)args->type < GPUNN_GROUP_AUTO || args->type > GPUNN_GROUP_HOST)
        return gpunn__fail(group->dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_group_open: type %d is unknown; use GPUNN_GROUP_AUTO, _NCCL or _HOST",
                           (int)args->type);
    if (!(args->timeout >= 0 && args->timeout <= 1e9))
        return gpunn__fail(group->dev, GPUNN_ERR_ARGUMENT, "gpunn_group_open: timeout is %g; give seconds",
                           args->timeout);
    if (args->timeout == 0) args->timeout = 600;
    if (args->bucket_bytes == 0) args->bucket_bytes = (size_t)25 << 20;
    if (given == 3) return gpunn__check_rank(group);
    if (given || args->reduce_scatter || args->all_reduce_bf16)
        return gpunn__fail(group->dev, GPUNN_ERR_ARGUMENT, "gpunn_group_open: " GPUNN__WHOLE_ENGINE);
    if (args->store == NULL) args->store = getenv("GPUNN_STORE");
    if (args->store && strncmp(args->store, GPUNN__TCP, strlen(GPUNN__TCP)) == 0)
        return gpunn__tcp_open(group);
    if (args->store && args->store[0]) return gpunn__store_open(group);
    if (args->rank || args->size)
        return gpunn__fail(group->dev, GPUNN_ERR_ARGUMENT, "gpunn_group_open: " GPUNN__WHOLE_ENGINE);
    const gpunn__launcher *launcher = gpunn__find_launcher();
    const int              said = launcher ? gpunn__number_of(launcher->size, 1) : 1;
    if (said > 1 && getenv("TORCHELASTIC_RUN_ID") && getenv("MASTER_ADDR")) return gpunn__master_open(group);
    gpunn_status status = GPUNN_OK;
    args->size = 1;
#ifdef GPUNN_MPI
    status = gpunn__mpi_open(group);
#endif
    if (status != GPUNN_OK || args->size > 1 || said == 1) return status;
    if (getenv("MASTER_ADDR")) return gpunn__master_open(group);
    return gpunn__fail(group->dev, GPUNN_ERR_STATE,
                       "gpunn_group_open: %s is %d, but the ranks have no place to meet: compile with "
                       "-DGPUNN_MPI and the mpicc of the MPI that starts them, or set GPUNN_STORE to a "
                       "shared folder or to tcp://HOST:PORT of rank 0",
                       launcher->size, said);
}

/* Number of values in joined_bf16: a multiple of 16, since kernels read them from aligned places. */
static int64_t gpunn__joined_count(const gpunn_group *group)
{
    enum { ALIGN = 16 };
    return ((int64_t)(group->args.bucket_bytes / sizeof(float)) / ALIGN + 1) * ALIGN;
}

/* Bytes of group->bf16: for one part per rank, or for one whole exchange. */
static size_t gpunn__bf16_bytes(const gpunn_group *group)
{
    const size_t parts = (size_t)group->args.size * sizeof *group->bf16;
    return parts > GPUNN__GROUP_PIECE ? parts : (size_t)GPUNN__GROUP_PIECE;
}

static void gpunn__group_free(gpunn_group *group)
{
    gpunn_device *dev = group->dev;
    const size_t  size = (size_t)group->args.size;
    const bool    leaves = group->broken == GPUNN_OK && group->process == GPUNN__PROCESS();
    if (group->joined) dev->backend->ranks_leave(dev->context, leaves);
    if (group->args.all_reduce == gpunn__store_all_reduce)
        gpunn__store_close((gpunn__store *)group->args.user, leaves);
#ifdef AI_PASSIVE
    if (group->args.all_reduce == gpunn__tcp_all_reduce) gpunn__tcp_close((gpunn__tcp *)group->args.user);
#endif
#ifdef GPUNN_MPI
    if (group->args.all_reduce == gpunn__mpi_all_reduce)
        gpunn__mpi_close((gpunn__mpi *)group->args.user, leaves);
#endif
    gpunn__free(dev, group->statuses, group->statuses ? size * sizeof *group->statuses : 0);
    gpunn__free(dev, group->piece, group->piece ? GPUNN__GROUP_PIECE : 0);
    gpunn__free(dev, group->counts, group->counts ? size * sizeof *group->counts : 0);
    gpunn__free(dev, group->bf16, group->bf16 ? gpunn__bf16_bytes(group) : 0);
    gpunn__device_free(dev, group->joined_bf16, (size_t)gpunn__joined_count(group) * sizeof(uint16_t));
    gpunn__free(dev, group->exchanges, (size_t)group->exchange_capacity * sizeof *group->exchanges);
    gpunn__free(dev, group, sizeof *group);
    dev->groups--;
    gpunn__device_release(dev);
}

#ifndef GPUNN_NO_RANKS
GPUNN_API gpunn_group *gpunn_group_open_(gpunn_device *dev, gpunn_group_args args)
{
    if (dev == NULL) {
        (void)gpunn__fail_null(NULL, "gpunn_group_open", "device");
        return NULL;
    }
    gpunn_group *group = (gpunn_group *)gpunn__calloc(dev, sizeof *group);
    if (group == NULL) return NULL;
    group->dev = dev;
    group->args = args;
    group->process = GPUNN__PROCESS();
    dev->groups++;
    gpunn_status status = gpunn__engine_open(group);
    if (status == GPUNN_OK) {
        group->statuses = (gpunn__rank_status *)gpunn__calloc(dev, (size_t)group->args.size *
                                                                       sizeof *group->statuses);
        group->counts = (int64_t *)gpunn__calloc(dev, (size_t)group->args.size * sizeof *group->counts);
        status = group->statuses && group->counts ? gpunn__gpus_connect(group) : GPUNN_ERR_MEMORY;
    }
    if (status == GPUNN_OK) return group;
    gpunn__group_free(group);
    return NULL;
}
#endif

GPUNN__INTERNAL void gpunn__group_join(gpunn_group *group)
{
    if (group) group->users++;
}

GPUNN__INTERNAL void gpunn__group_leave(gpunn_group *group)
{
    if (group && --group->users == 0 && group->closed) gpunn__group_free(group);
}

GPUNN_API void gpunn_group_close(gpunn_group *group)
{
    if (group == NULL || group->closed) return;
    group->closed = true;
    if (group->users == 0) gpunn__group_free(group);
}

GPUNN_API int gpunn_group_rank(const gpunn_group *group)
{
    return group ? group->args.rank : 0;
}

GPUNN_API int gpunn_group_size(const gpunn_group *group)
{
    return group ? group->args.size : 1;
}

GPUNN_API int gpunn_local_rank(void)
{
    for (int i = 0; i < GPUNN__LAUNCHERS; i++) {
        const int local = gpunn__number_of(gpunn__launchers[i].local, -1);
        if (local >= 0) return local;
    }
    return 0;
}

/* ---- exchanges ----------------------------------------------------------------------------------------- */

static GPUNN__STATUS gpunn__group_works(gpunn_group *group)
{
    if (group->broken)
        return gpunn__fail(group->dev, group->broken,
                           "the group has failed before; restart from the last checkpoint");
    if (group->args.all_reduce && group->process != GPUNN__PROCESS())
        return gpunn__fail(group->dev, GPUNN_ERR_STATE,
                           "this process was forked from rank %d and does not belong to its group; train "
                           "without a group here",
                           group->args.rank);
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_host(gpunn_group *group, gpunn__exchange kind, void *memory,
                                                   size_t bytes, int root)
{
    static const char *const names[] = {"all_reduce", "all_gather", "broadcast", "reduce_scatter",
                                        "all_reduce_bf16"};
    const gpunn_group_args  *engine = &group->args;
    gpunn_status             status = gpunn__group_works(group);
    if (engine->all_reduce == NULL || status != GPUNN_OK) return status;
    switch (kind) {
    case GPUNN__ALL_REDUCE:
        status = engine->all_reduce(engine->user, (float *)memory, (int64_t)(bytes / sizeof(float)));
        break;
    case GPUNN__ALL_GATHER: status = engine->all_gather(engine->user, memory, bytes); break;
    case GPUNN__BROADCAST: status = engine->broadcast(engine->user, memory, bytes, root); break;
    case GPUNN__REDUCE_SCATTER:
        status = engine->reduce_scatter(engine->user, (float *)memory, group->counts);
        break;
    case GPUNN__ALL_REDUCE_BF16:
        status = engine->all_reduce_bf16(engine->user, (uint16_t *)memory,
                                         (int64_t)(bytes / sizeof(uint16_t)));
        break;
    }
    if (status == GPUNN_OK) return GPUNN_OK;
    group->broken = status;
    group->reported = true; /* the others can no longer be told */
    return gpunn__fail(group->dev, status, "the group has failed: %s",
                       engine->error ? engine->error(engine->user) : names[kind]);
}

GPUNN__INTERNAL bool gpunn__in_ranks(const gpunn_group *group, const gpunn_device *dev)
{
    return group && group->joined && group->dev == dev;
}

GPUNN__INTERNAL gpunn_exchange gpunn__gradients_exchange(const gpunn_group *group, float *values,
                                                         int64_t count, int owner, int after)
{
    const gpunn_exchange exchange = {
        values, count, owner, after, owner != GPUNN_MEAN, group->joined_bf16, gpunn__joined_count(group)};
    return exchange;
}

GPUNN__INTERNAL bool gpunn__has_piece(gpunn_group *group)
{
    if (group->piece == NULL) group->piece = (char *)gpunn__realloc(group->dev, NULL, 0, GPUNN__GROUP_PIECE);
    return group->piece != NULL;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__copies_end(gpunn_group *group, gpunn_device *dev, gpunn_status copied)
{
    if (copied != GPUNN_OK) copied = gpunn__backend_fail(dev, "a group's exchange", copied);
    return group->copies ? gpunn__all_reduce_status(group, copied, NULL, "the end of an exchange") : copied;
}

/* Copies device memory to host memory. If that fails or failed before, piece becomes zeros, so that no other
 * rank is kept waiting. */
static void gpunn__copy_piece(gpunn_device *dev, void *piece, const void *values, size_t bytes,
                              gpunn_status *copied)
{
    if (*copied == GPUNN_OK) *copied = dev->backend->download(dev->context, piece, values, bytes);
    if (*copied != GPUNN_OK) memset(piece, 0, bytes);
}

/* Exchanges floats in device memory through host memory, piece by piece. If group->copies, all ranks use the
 * same pieces. */
static GPUNN__STATUS gpunn__exchange_pieces(gpunn_group *group, gpunn_device *dev, gpunn__exchange kind,
                                            float *values, size_t bytes, int root, gpunn_status *copied)
{
    const bool   here = dev->backend == gpunn__cpu_backend();
    const size_t most = here && !group->copies ? bytes : (size_t)GPUNN__GROUP_PIECE;
    gpunn_status status = GPUNN_OK;
    if (!here && !gpunn__has_piece(group)) return GPUNN_ERR_MEMORY;
    for (size_t at = 0, n; at < bytes && status == GPUNN_OK; at += n) {
        char *const from = (char *)values + at, *const piece = here ? from : group->piece;
        n = bytes - at < most ? bytes - at : most;
        if (!here) gpunn__copy_piece(dev, piece, from, n, copied);
        status = gpunn__exchange_host(group, kind, piece, n, root);
        if (status == GPUNN_OK && *copied == GPUNN_OK && !here)
            *copied = dev->backend->upload(dev->context, from, piece, n);
    }
    return status;
}

/* Sums floats in host memory over all ranks, rounded to BF16 on their way there and back. count fits one
 * exchange. */
static GPUNN__STATUS gpunn__sum_bf16(gpunn_group *group, float *values, int64_t count)
{
    const bool   whole = group->args.all_reduce_bf16 != NULL;
    uint16_t    *sums = group->bf16, *own = whole ? sums : sums + group->args.rank * count;
    const size_t bytes = (size_t)count * sizeof *sums;
    gpunn__bf16_round(own, values, count);
    const gpunn_status status = gpunn__exchange_host(
        group, whole ? GPUNN__ALL_REDUCE_BF16 : GPUNN__ALL_GATHER, sums, bytes, 0);
    if (status != GPUNN_OK) return status;
    if (!whole) gpunn__bf16_add(sums, sums, group->args.size, (size_t)count);
    gpunn__bf16_widen(values, sums, count);
    return GPUNN_OK;
}

/* The same for any number of floats on a device. */
static GPUNN__STATUS gpunn__exchange_bf16(gpunn_group *group, gpunn_device *dev, float *values, int64_t count,
                                          gpunn_status *copied)
{
    const bool    here = dev->backend == gpunn__cpu_backend();
    const int64_t most = group->args.all_reduce_bf16 ? (int64_t)GPUNN__BF16_MOST
                                                     : gpunn__bf16_part(group->args.size);
    gpunn_status  status = GPUNN_OK;
    if (!here && !gpunn__has_piece(group)) return GPUNN_ERR_MEMORY;
    for (int64_t at = 0, n; at < count && status == GPUNN_OK; at += n) {
        n = count - at < most ? count - at : most;
        float       *piece = here ? values + at : (float *)(void *)group->piece;
        const size_t bytes = (size_t)n * sizeof *piece;
        if (!here) gpunn__copy_piece(dev, piece, values + at, bytes, copied);
        status = gpunn__sum_bf16(group, piece, n);
        if (status == GPUNN_OK && *copied == GPUNN_OK && !here)
            *copied = dev->backend->upload(dev->context, values + at, piece, bytes);
    }
    return status;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_joined(gpunn_group *group, gpunn_device *dev,
                                                     const gpunn_exchange *exchange)
{
    const gpunn_status works = gpunn__group_works(group);
    if (works != GPUNN_OK) return works;
    group->broken = dev->backend->exchange(dev->context, exchange, 1);
    return group->broken == GPUNN_OK ? GPUNN_OK
                                     : gpunn__backend_fail(dev, "the group has failed", group->broken);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_memory(gpunn_group *group, gpunn_device *dev, float *values,
                                                     int64_t count, int root)
{
    const gpunn_exchange exchange = {values, count, root, 0, false, NULL, 0};
    if (gpunn__in_ranks(group, dev)) return gpunn__exchange_joined(group, dev, &exchange);
    if (group->args.size == 1) return GPUNN_OK;
    const size_t bytes = (size_t)count * sizeof *values;
    gpunn_status copied = GPUNN_OK,
                 status = gpunn__exchange_pieces(group, dev, GPUNN__BROADCAST, values, bytes, root, &copied);
    return status == GPUNN_OK ? gpunn__copies_end(group, dev, copied) : status;
}

static gpunn_status gpunn__divide_by_ranks(const gpunn_group *group, gpunn_device *dev, float *values,
                                           int64_t count)
{
    return dev->backend->scale(dev->context, values, count, 1 / (float)group->args.size, 0);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_gradients(gpunn_group *group, gpunn_device *dev, float *values,
                                                        int64_t count)
{
    const gpunn_exchange exchange = gpunn__gradients_exchange(group, values, count, GPUNN_MEAN, 0);
    if (gpunn__in_ranks(group, dev)) return gpunn__exchange_joined(group, dev, &exchange);
    if (group->args.size == 1) return GPUNN_OK;
    const size_t bytes = (size_t)count * sizeof *values;
    gpunn_status copied = GPUNN_OK, status;
    if (group->args.bf16_gradients)
        status = gpunn__exchange_bf16(group, dev, values, count, &copied);
    else
        status = gpunn__exchange_pieces(group, dev, GPUNN__ALL_REDUCE, values, bytes, 0, &copied);
    if (status != GPUNN_OK) return status;
    if (copied == GPUNN_OK) copied = gpunn__divide_by_ranks(group, dev, values, count);
    return gpunn__copies_end(group, dev, copied);
}

/* Sets group->counts to the parts of [begin, end) that belong to each rank. Each rank's share has `each`
 * values, except the last non-empty one. */
static void gpunn__count_parts(gpunn_group *group, int64_t begin, int64_t end, int64_t each)
{
    for (int rank = 0; rank < group->args.size; rank++) {
        const int64_t first = rank * each, last = first + each;
        const int64_t from = begin > first ? begin : first, to = end < last ? end : last;
        group->counts[rank] = to > from ? to - from : 0;
    }
}

/* Copies this rank's part of the sums in host memory, by group->counts, to the device and turns them into
 * means. */
static gpunn_status gpunn__keep_own_part(const gpunn_group *group, gpunn_device *dev, float *values,
                                         const float *piece)
{
    const int64_t count = group->counts[group->args.rank];
    int64_t       before = 0;
    gpunn_status  status = GPUNN_OK;
    for (int other = 0; other < group->args.rank; other++) before += group->counts[other];
    if (count > 0 && values != piece)
        status = dev->backend->upload(dev->context, values + before, piece + before,
                                      (size_t)count * sizeof *piece);
    return status == GPUNN_OK && count > 0 ? gpunn__divide_by_ranks(group, dev, values + before, count)
                                           : status;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__scatter_gradients(gpunn_group *group, gpunn_device *dev, float *values,
                                                       int64_t count, int64_t place, int64_t each)
{
    const bool    here = dev->backend == gpunn__cpu_backend();
    const int64_t most = here && !group->copies ? count : GPUNN__GROUP_PIECE / (int)sizeof *values;
    gpunn_status  status = GPUNN_OK, copied = GPUNN_OK;
    if (!here && !gpunn__has_piece(group)) return GPUNN_ERR_MEMORY;
    for (int64_t at = 0, n; at < count && status == GPUNN_OK; at += n) {
        n = count - at < most ? count - at : most;
        float *piece = here ? values + at : (float *)(void *)group->piece;
        gpunn__count_parts(group, place + at, place + at + n, each);
        if (!here) gpunn__copy_piece(dev, piece, values + at, (size_t)n * sizeof *piece, &copied);
        status = gpunn__exchange_host(group, GPUNN__REDUCE_SCATTER, piece, (size_t)n * sizeof *piece, 0);
        if (status == GPUNN_OK && copied == GPUNN_OK)
            copied = gpunn__keep_own_part(group, dev, values + at, piece);
    }
    return status == GPUNN_OK ? gpunn__copies_end(group, dev, copied) : status;
}

/* Broadcasts a sentence from rank `root`. */
static GPUNN__STATUS gpunn__broadcast_text(gpunn_group *group, int root, const char *said,
                                           char text[GPUNN__ERROR_SIZE])
{
    memset(text, 0, GPUNN__ERROR_SIZE);
    if (group->args.rank == root) (void)snprintf(text, GPUNN__ERROR_SIZE, "%s", said);
    gpunn_status status = gpunn__exchange_host(group, GPUNN__BROADCAST, text, GPUNN__ERROR_SIZE, root);
    text[GPUNN__ERROR_SIZE - 1] = 0;
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__all_reduce_status(gpunn_group *group, gpunn_status status, float *loss,
                                                      const char *format, ...)
{
    char                what[256], other[GPUNN__ERROR_SIZE], first[GPUNN__ERROR_SIZE];
    const int           rank = group->args.rank, size = group->args.size;
    gpunn_device       *dev = group->dev;
    gpunn__rank_status *statuses = group->statuses;
    double              sum = 0;
    va_list             list;
    va_start(list, format);
    (void)vsnprintf(what, sizeof what, format, list);
    va_end(list);
    statuses[rank].status = (int32_t)status;
    statuses[rank].loss = loss ? *loss : 0;
    statuses[rank].what = gpunn__hash(what);
    gpunn_status exchanged = gpunn__exchange_host(group, GPUNN__ALL_GATHER, statuses, sizeof *statuses, 0);
    group->reductions++;
    if (exchanged != GPUNN_OK) return exchanged;
    group->reported = true;
    for (int r = 0; r < size; r++) {
        if (statuses[r].status == GPUNN_OK) continue;
        const gpunn_status theirs = (gpunn_status)statuses[r].status;
        exchanged = gpunn__broadcast_text(group, r, gpunn_error(dev), other);
        if (group->joined && (statuses[r].what == gpunn__hash(GPUNN__LATE) || theirs == GPUNN_ERR_DEVICE))
            group->broken = theirs;
        if (exchanged != GPUNN_OK || status != GPUNN_OK) return status == GPUNN_OK ? exchanged : status;
        return gpunn__fail(dev, theirs, "rank %d: %s", r, other);
    }
    for (int r = 1; r < size; r++) {
        if (statuses[r].what == statuses[0].what) continue;
        exchanged = gpunn__broadcast_text(group, 0, what, first);
        if (exchanged == GPUNN_OK) exchanged = gpunn__broadcast_text(group, r, what, other);
        if (exchanged != GPUNN_OK) return exchanged;
        return gpunn__fail(dev, GPUNN_ERR_STATE, "the ranks differ: rank 0 has %s; rank %d has %s", first, r,
                           other);
    }
    group->reported = false;
    for (int r = 0; r < size; r++) sum += (double)statuses[r].loss;
    if (loss) *loss = (float)(sum / size);
    return GPUNN_OK;
}

GPUNN__INTERNAL bool gpunn__has_reported(const gpunn_group *group, int64_t reductions)
{
    return group->reductions != reductions && group->reported;
}

GPUNN__INTERNAL gpunn_status gpunn__gather_sums(void *user, void *parts, size_t bytes)
{
    gpunn_group       *group = (gpunn_group *)user;
    const gpunn_status status = gpunn__all_reduce_status(group, GPUNN_OK, NULL, "%zu bytes of a layer's sums",
                                                         bytes);
    return status == GPUNN_OK ? gpunn__exchange_host(group, GPUNN__ALL_GATHER, parts, bytes, 0) : status;
}

/* ---- machines and their GPUs --------------------------------------------------------------------------- */

typedef struct gpunn__hardware { /* where a rank runs */
    uint64_t identity;           /* of its GPU */
    int64_t  can;                /* whether it can exchange between GPUs: a status */
    int64_t  copies;
    uint64_t processors; /* equal for ranks on the same processors */
    uint64_t rounding;   /* equal for ranks whose updates have the same bits */
} gpunn__hardware;

static gpunn__hardware gpunn__own_hardware(const gpunn_device *dev, gpunn_status can)
{
    const bool      copies = dev->backend != gpunn__cpu_backend();
    const char     *vectors = copies ? NULL : strrchr(dev->info.name, ',');
    char            machine[128], set[1024], words[1280];
    gpunn__hardware hardware = {dev->info.identity, can, copies, 0, vectors ? gpunn__hash(vectors) : 0};
    gpunn__machine(machine, sizeof machine);
    (void)gpunn__processors(set);
    (void)snprintf(words, sizeof words, "%s %s", machine, set);
    hardware.processors = gpunn__hash(words);
    return hardware;
}

/* Reduces the threads of a CPU device to its share of the processors, unless the program or OMP_NUM_THREADS
 * sets their number. */
static void gpunn__share_processors(gpunn_device *dev, int ranks)
{
    char      set[1024], text[128];
    const int all = gpunn__processors(set), own = all > ranks ? all / ranks : 1;
    if (dev->backend->limit == NULL || dev->args.threads || gpunn__omp_threads() || own >= dev->info.threads)
        return;
    for (gpunn_model *model = dev->models; model; model = model->next) gpunn__invalidate(model);
    dev->backend->limit(dev->context, own);
    dev->backend->info(dev->context, &dev->info);
    (void)snprintf(text, sizeof text, "threads of this rank: %d; processors: %d, ranks on these: %d", own,
                   all, ranks);
    if (dev->args.log_fn) dev->args.log_fn(dev->args.user, GPUNN_LOG_INFO, text);
}

/* Compares the ranks' hardware. *all: all can exchange between GPUs, each on its own. Two ranks on one GPU
 * without .share_gpu are an error. */
static GPUNN__STATUS gpunn__hardware_compare(gpunn_group *group, gpunn__hardware *hardware, bool *all)
{
    gpunn_status status = gpunn__exchange_host(group, GPUNN__ALL_GATHER, hardware, sizeof *hardware, 0);
    int          sharing = 0;
    for (int r = 0; r < group->args.size && status == GPUNN_OK; r++) {
        *all = *all && hardware[r].can == GPUNN_OK;
        group->copies = group->copies || hardware[r].copies;
        group->unlike = group->unlike || hardware[r].rounding != hardware[0].rounding;
        sharing += hardware[r].processors == hardware[group->args.rank].processors;
        for (int other = 0; other < r; other++) {
            if (hardware[r].identity == 0 || hardware[r].identity != hardware[other].identity) continue;
            *all = false;
            if (!group->args.share_gpu)
                return gpunn__fail(
                    group->dev, GPUNN_ERR_STATE,
                    "gpunn_group_open: ranks %d and %d are on the same GPU; give gpunn_device_open .index = "
                    "GPUNN_LOCAL_RANK, or the group .share_gpu = true",
                    other, r);
        }
    }
    if (group->args.size > 1 && status == GPUNN_OK) gpunn__share_processors(group->dev, sharing);
    return status;
}

static void gpunn__log_host(const gpunn_group *group, gpunn_status can)
{
    const gpunn_device *dev = group->dev;
    char                text[GPUNN__ERROR_SIZE];
    if (dev->args.log_fn == NULL || dev->info.type != GPUNN_DEVICE_CUDA || group->args.share_gpu) return;
    (void)snprintf(text, sizeof text, "gradients go through host memory: %s",
                   can == GPUNN_OK ? "other ranks have no NCCL" : dev->backend->error(dev->context));
    dev->args.log_fn(dev->args.user, GPUNN_LOG_WARNING, text);
}

static GPUNN__STATUS gpunn__gpus_join(gpunn_group *group)
{
    gpunn_device        *dev = group->dev;
    const gpunn_backend *backend = dev->backend;
    char                 id[GPUNN_RANKS_ID] = {0};
    gpunn_status         status = group->args.rank == 0 ? backend->ranks_id(dev->context, id) : GPUNN_OK;
    if (status != GPUNN_OK) status = gpunn__backend_fail(dev, "gpunn_group_open", status);
    status = gpunn__all_reduce_status(group, status, NULL, "NCCL's beginning");
    if (status == GPUNN_OK) status = gpunn__exchange_host(group, GPUNN__BROADCAST, id, sizeof id, 0);
    if (status != GPUNN_OK) return status;
    status = backend->ranks_join(dev->context, id, group->args.rank, group->args.size, group->args.timeout);
    group->joined = status == GPUNN_OK;
    if (status != GPUNN_OK) status = gpunn__backend_fail(dev, "gpunn_group_open", status);
    if (status == GPUNN_OK && group->bf16) {
        group->joined_bf16 = gpunn__device_alloc(dev, (size_t)gpunn__joined_count(group) * sizeof(uint16_t));
        if (group->joined_bf16 == NULL) status = dev->error.status;
    }
    return gpunn__all_reduce_status(group, status, NULL, "NCCL");
}

/* Joins the GPUs of the ranks for direct exchange, if they can and the group's type allows it. */
static gpunn_status gpunn__gpus_connect(gpunn_group *group)
{
    gpunn_device        *dev = group->dev;
    const gpunn_backend *backend = dev->backend;
    const int            size = group->args.size;
    const bool           must = group->args.type == GPUNN_GROUP_NCCL;
    bool                 all = must || (group->args.type == GPUNN_GROUP_AUTO && size > 1);
    gpunn_status         can = all && backend->ranks_id ? backend->ranks_id(dev->context, NULL)
                                                        : GPUNN_ERR_UNSUPPORTED;
    const bool           tells = all && !must;
    gpunn_status         status = GPUNN_OK;
    if (group->args.bf16_gradients && size > 1) {
        group->bf16 = (uint16_t *)gpunn__realloc(dev, NULL, 0, gpunn__bf16_bytes(group));
        if (group->bf16 == NULL) status = GPUNN_ERR_MEMORY;
    }
    status = gpunn__all_reduce_status(group, status, NULL, "a group of type %d, buckets of %zu bytes%s%s",
                                      (int)group->args.type, group->args.bucket_bytes,
                                      group->args.shard ? ", shares of states" : "",
                                      group->args.bf16_gradients ? ", gradients as BF16" : "");
    gpunn__hardware *hardware = (gpunn__hardware *)gpunn__calloc(dev, (size_t)size * sizeof *hardware);
    status = gpunn__all_reduce_status(
        group, status == GPUNN_OK && hardware == NULL ? GPUNN_ERR_MEMORY : status, NULL, "machines");
    if (status == GPUNN_OK) {
        hardware[group->args.rank] = gpunn__own_hardware(dev, can);
        status = gpunn__hardware_compare(group, hardware, &all);
    }
    gpunn__free(dev, hardware, hardware ? (size_t)size * sizeof *hardware : 0);
    if (status != GPUNN_OK) return status;
    if (all) return gpunn__gpus_join(group);
    if (tells) gpunn__log_host(group, can);
    if (!must && group->copies && size > 1)
        return gpunn__all_reduce_status(group, gpunn__has_piece(group) ? GPUNN_OK : GPUNN_ERR_MEMORY, NULL,
                                        "copies");
    if (!must) return GPUNN_OK;
    if (can == GPUNN_OK) can = GPUNN_ERR_UNSUPPORTED;
    const char *why = backend->error(dev->context);
    if (dev->info.type != GPUNN_DEVICE_CUDA)
        why = "NCCL works between GPUs, but the device is a CPU";
    else if (group->args.share_gpu)
        why = "NCCL does not allow two ranks on one GPU, and all ranks need it";
    return gpunn__fail(dev, can, "gpunn_group_open: %s", why);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__exchange_add(gpunn_group *group, gpunn_exchange exchange)
{
    const int before = group->exchange_count > 0 ? group->exchanges[group->exchange_count - 1].after : 0;
    gpunn_exchange *exchanges = (gpunn_exchange *)gpunn__grow(
        group->dev, group->exchanges, group->exchange_count, &group->exchange_capacity, sizeof exchange);
    if (exchanges == NULL) return GPUNN_ERR_MEMORY;
    if (exchange.after < before) exchange.after = before;
    group->exchanges = exchanges;
    exchanges[group->exchange_count++] = exchange;
    return GPUNN_OK;
}

GPUNN__INTERNAL void gpunn__exchanges_put(const gpunn_group *group, gpunn_run *run)
{
    run->exchanges = group->exchanges;
    run->exchange_count = group->exchange_count;
    for (int i = 0; i < run->exchange_count; i++) /* FNV-1a */
        run->signature = (run->signature ^ (uint64_t)(uintptr_t)run->exchanges[i].values ^
                          (uint64_t)run->exchanges[i].count << 48 ^
                          (uint64_t)run->exchanges[i].collects << 47) *
                         UINT64_C(0x100000001B3);
}
