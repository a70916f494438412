#include "ranks/mpi.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/math.h"
#include "ranks/slices.h"

#ifdef GPUNN_MPI
/* Every call is non-blocking and polled, so that a missing rank ends the wait. Ranks that have waited long
 * tell all others. At the timeout, the ranks that have not said so are the missing ones. */
/* Floats that each rank adds in one all_reduce. So its buffers stay in the cache and need not be allocated
 * each time; tests define a small number. */
#ifndef GPUNN__MPI_PIECE
#define GPUNN__MPI_PIECE (1 << 17)
#endif
enum { GPUNN__MPI_WAITING = 1, GPUNN__MPI_MOST = 1 << 30 }; /* tag; elements of one call */

static gpunn_status gpunn__mpi_fail(gpunn__mpi *mpi, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int  length;
    (void)MPI_Error_string(code, text, &length);
    (void)snprintf(mpi->text, sizeof mpi->text, "%s: MPI says %.180s", what, text);
    return GPUNN_ERR_DEVICE;
}

static void gpunn__mpi_announce(gpunn__mpi *mpi)
{
    mpi->announced = mpi->call;
    for (int rank = 0; rank < mpi->size; rank++) {
        MPI_Request sent;
        if (rank == mpi->rank || MPI_Isend(&mpi->announced, 1, MPI_INT64_T, rank, GPUNN__MPI_WAITING,
                                           mpi->comm, &sent) != MPI_SUCCESS)
            continue;
        (void)MPI_Request_free(&sent); /* so small that it is already sent */
    }
}

/* Receives the notices of waiting ranks. Whether one of them waits in this call. */
static bool gpunn__mpi_receive_notices(gpunn__mpi *mpi)
{
    MPI_Status status;
    int        there = 0;
    bool       waits = false;
    while (MPI_Iprobe(MPI_ANY_SOURCE, GPUNN__MPI_WAITING, mpi->comm, &there, &status) == MPI_SUCCESS &&
           there) {
        int64_t *call = &mpi->waits[status.MPI_SOURCE];
        if (MPI_Recv(call, 1, MPI_INT64_T, status.MPI_SOURCE, GPUNN__MPI_WAITING, mpi->comm,
                     MPI_STATUS_IGNORE) != MPI_SUCCESS)
            break;
        waits = waits || *call >= mpi->call;
    }
    return waits;
}

static gpunn_status gpunn__mpi_missing(gpunn__mpi *mpi, const char *what)
{
    char more[32];
    int  missing = 0, first = -1;
    (void)gpunn__mpi_receive_notices(mpi);
    for (int rank = mpi->size - 1; rank >= 0; rank--)
        if (rank != mpi->rank && mpi->waits[rank] < mpi->call) {
            first = rank;
            missing++;
        }
    (void)snprintf(more, sizeof more, " and %d more have", missing - 1);
    if (missing)
        (void)snprintf(mpi->text, sizeof mpi->text,
                       "%s: rank %d%s not arrived within %g seconds: check what it is doing, or why it ended",
                       what, first, missing == 1 ? " has" : more, mpi->timeout);
    else
        (void)snprintf(mpi->text, sizeof mpi->text,
                       "%s: all ranks have waited for %g seconds; is the network down?", what, mpi->timeout);
    return GPUNN_ERR_DEVICE;
}

/* Waits for a request. code: result of the call that made it. */
static gpunn_status gpunn__mpi_wait(gpunn__mpi *mpi, const char *what, int code, MPI_Request *request)
{
    const double began = MPI_Wtime();
    int          done = 0;
    mpi->call++;
    while (code == MPI_SUCCESS && (code = MPI_Test(request, &done, MPI_STATUS_IGNORE)) == MPI_SUCCESS &&
           !done) {
        const double waited = MPI_Wtime() - began;
        if (mpi->announced < mpi->call && (waited > mpi->timeout / 10 || gpunn__mpi_receive_notices(mpi)))
            gpunn__mpi_announce(mpi);
        if (waited > mpi->timeout) return gpunn__mpi_missing(mpi, what);
#ifdef _WIN32
        (void)SwitchToThread();
#else
        (void)sched_yield();
#endif
    }
    return code == MPI_SUCCESS ? GPUNN_OK : gpunn__mpi_fail(mpi, what, code);
}

/* Floats in mpi->received: equally many from each rank. */
static int64_t gpunn__mpi_received_count(const gpunn__mpi *mpi)
{
    return 8 * GPUNN__MPI_PIECE + mpi->size;
}

/* Length of the part of [0, count) that begins at `at`, at most `most`. */
static int64_t gpunn__part_from(int64_t count, int64_t at, int64_t most)
{
    return gpunn__clamp(count - at, 0, most);
}

GPUNN__INTERNAL gpunn_status gpunn__mpi_all_reduce(void *user, float *values, int64_t count)
{
    gpunn__mpi   *mpi = (gpunn__mpi *)user;
    gpunn_status  status = GPUNN_OK;
    const int64_t most = mpi->size < GPUNN__MPI_MOST / GPUNN__MPI_PIECE ? mpi->size * GPUNN__MPI_PIECE
                                                                        : GPUNN__MPI_MOST;
    for (int64_t at = 0; at < count && status == GPUNN_OK; at += most) {
        MPI_Request request;
        const int   n = (int)gpunn__part_from(count, at, most);
        const int   code = MPI_Iallreduce(MPI_IN_PLACE, values + at, n, MPI_FLOAT, MPI_SUM, mpi->comm,
                                          &request);
        status = gpunn__mpi_wait(mpi, "all_reduce", code, &request);
    }
    return status;
}

/* Each rank receives a piece of its part from all others at a time and adds them. MPI_Ireduce_scatter would
 * allow parts of different lengths, but Open MPI computes the sum on one rank. */
static gpunn_status gpunn__mpi_reduce_scatter(void *user, float *values, const int64_t *counts)
{
    gpunn__mpi   *mpi = (gpunn__mpi *)user;
    const int64_t most = gpunn__mpi_received_count(mpi) / mpi->size,
                  all = gpunn__sum_counts(counts, mpi->size);
    const int64_t own = gpunn__sum_counts(counts, mpi->rank);
    int64_t       longest = 0;
    int *const said = mpi->counts, *const from = said + mpi->size, *const received = from + mpi->size,
               *const to = received + mpi->size;
    gpunn_status      status = GPUNN_OK;
    if (all > GPUNN__MPI_MOST) return gpunn__mpi_all_reduce(user, values, all);
    for (int rank = 0; rank < mpi->size; rank++) longest = counts[rank] > longest ? counts[rank] : longest;
    for (int64_t at = 0, begin = 0; at < longest && status == GPUNN_OK; at += most, begin = 0) {
        MPI_Request   request;
        const int64_t mine = gpunn__part_from(counts[mpi->rank], at, most);
        for (int rank = 0; rank < mpi->size; begin += counts[rank++]) {
            const int64_t count = gpunn__part_from(counts[rank], at, most);
            said[rank] = rank == mpi->rank ? 0 : (int)count;
            from[rank] = (int)(count > 0 ? begin + at : 0);
            received[rank] = rank == mpi->rank ? 0 : (int)mine;
            to[rank] = (int)(rank * most);
        }
        const int code = MPI_Ialltoallv(values, said, from, MPI_FLOAT, mpi->received, received, to, MPI_FLOAT,
                                        mpi->comm, &request);
        status = gpunn__mpi_wait(mpi, "reduce_scatter", code, &request);
        for (int rank = 0; rank < mpi->size && status == GPUNN_OK; rank++) {
            float *GPUNN__RESTRICT       sums = values + own + at;
            const float *GPUNN__RESTRICT part = mpi->received + rank * most;
            for (int64_t i = 0; i < received[rank]; i++) sums[i] += part[i];
        }
    }
    return status;
}

/* Each rank adds one part, then sends it to all. count is at most GPUNN__BF16_MOST. */
static gpunn_status gpunn__mpi_all_reduce_bf16(void *user, uint16_t *values, int64_t count)
{
    gpunn__mpi  *mpi = (gpunn__mpi *)user;
    MPI_Request  request;
    const int    each = (int)((count + mpi->size - 1) / mpi->size);
    const size_t all = (size_t)each * (size_t)mpi->size, bytes = (size_t)count * sizeof *values;
    uint16_t    *sent = mpi->bf16, *received = sent + all;
    memcpy(sent, values, bytes);
    memset(sent + count, 0, all * sizeof *sent - bytes);
    int code = MPI_Ialltoall(sent, 2 * each, MPI_BYTE, received, 2 * each, MPI_BYTE, mpi->comm, &request);
    gpunn_status status = gpunn__mpi_wait(mpi, "all_reduce_bf16", code, &request);
    if (status != GPUNN_OK) return status;
    gpunn__bf16_add(sent + (size_t)mpi->rank * (size_t)each, received, mpi->size, (size_t)each);
    code = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, sent, 2 * each, MPI_BYTE, mpi->comm, &request);
    status = gpunn__mpi_wait(mpi, "all_reduce_bf16", code, &request);
    if (status == GPUNN_OK) memcpy(values, sent, bytes);
    return status;
}

static gpunn_status gpunn__mpi_all_gather(void *user, void *parts, size_t bytes)
{
    gpunn__mpi *mpi = (gpunn__mpi *)user;
    MPI_Request request;
    const int   code = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, parts, (int)bytes, MPI_BYTE,
                                      mpi->comm, &request);
    return gpunn__mpi_wait(mpi, "all_gather", code, &request);
}

static gpunn_status gpunn__mpi_broadcast(void *user, void *memory, size_t bytes, int root)
{
    gpunn__mpi  *mpi = (gpunn__mpi *)user;
    gpunn_status status = GPUNN_OK;
    for (size_t at = 0; at < bytes && status == GPUNN_OK; at += GPUNN__MPI_MOST) {
        MPI_Request request;
        const int   n = bytes - at < GPUNN__MPI_MOST ? (int)(bytes - at) : (int)GPUNN__MPI_MOST;
        const int   code = MPI_Ibcast((char *)memory + at, n, MPI_BYTE, root, mpi->comm, &request);
        status = gpunn__mpi_wait(mpi, "broadcast", code, &request);
    }
    return status;
}

static const char *gpunn__mpi_error(void *user)
{
    return ((const gpunn__mpi *)user)->text;
}

/* Bytes of the buffers for sending and receiving, with the last part padded. */
static size_t gpunn__mpi_bf16_bytes(const gpunn__mpi *mpi)
{
    return 2 * sizeof *mpi->bf16 * ((size_t)GPUNN__BF16_MOST + (size_t)mpi->size);
}

GPUNN__INTERNAL void gpunn__mpi_close(gpunn__mpi *mpi, bool ends)
{
    if (ends && mpi->comm != MPI_COMM_NULL) (void)MPI_Comm_free(&mpi->comm);
    if (ends && mpi->begun) (void)MPI_Finalize();
    gpunn__free(mpi->dev, mpi->waits, mpi->waits ? (size_t)mpi->size * sizeof *mpi->waits : 0);
    gpunn__free(mpi->dev, mpi->counts, mpi->counts ? 4 * (size_t)mpi->size * sizeof *mpi->counts : 0);
    gpunn__free(mpi->dev, mpi->received,
                mpi->received ? (size_t)gpunn__mpi_received_count(mpi) * sizeof *mpi->received : 0);
    gpunn__free(mpi->dev, mpi->bf16, mpi->bf16 ? gpunn__mpi_bf16_bytes(mpi) : 0);
    gpunn__free(mpi->dev, mpi, sizeof *mpi);
}

static GPUNN__STATUS gpunn__mpi_begin(gpunn__mpi *mpi)
{
    int begun = 0, ended = 0, level;
    if (MPI_Initialized(&begun) != MPI_SUCCESS || MPI_Finalized(&ended) != MPI_SUCCESS || ended)
        return gpunn__fail(
            mpi->dev, GPUNN_ERR_STATE,
            "gpunn_group_open: MPI has been finalized, and starts only once in a process; keep one group");
    if (!begun && MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
        return gpunn__fail(mpi->dev, GPUNN_ERR_DEVICE,
                           "gpunn_group_open: MPI does not start; start the program with mpirun");
    mpi->begun = !begun;
    if (MPI_Comm_dup(MPI_COMM_WORLD, &mpi->comm) != MPI_SUCCESS ||
        MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN) != MPI_SUCCESS ||
        MPI_Comm_rank(mpi->comm, &mpi->rank) != MPI_SUCCESS ||
        MPI_Comm_size(mpi->comm, &mpi->size) != MPI_SUCCESS)
        return gpunn__fail(mpi->dev, GPUNN_ERR_DEVICE,
                           "gpunn_group_open: MPI failed to create a communicator");
    mpi->waits = (int64_t *)gpunn__calloc(mpi->dev, (size_t)mpi->size * sizeof *mpi->waits);
    mpi->counts = (int *)gpunn__calloc(mpi->dev, 4 * (size_t)mpi->size * sizeof *mpi->counts);
    return mpi->waits && mpi->counts ? GPUNN_OK : GPUNN_ERR_MEMORY;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__mpi_open(gpunn_group *group)
{
    gpunn__mpi *mpi = (gpunn__mpi *)gpunn__calloc(group->dev, sizeof *mpi);
    if (mpi == NULL) return GPUNN_ERR_MEMORY;
    mpi->dev = group->dev;
    mpi->comm = MPI_COMM_NULL;
    mpi->timeout = group->args.timeout;
    gpunn_status status = gpunn__mpi_begin(mpi);
    if (status == GPUNN_OK && group->args.bf16_gradients) {
        mpi->bf16 = (uint16_t *)gpunn__realloc(mpi->dev, NULL, 0, gpunn__mpi_bf16_bytes(mpi));
        if (mpi->bf16 == NULL) status = GPUNN_ERR_MEMORY;
    }
    if (status == GPUNN_OK && group->args.shard) {
        mpi->received = (float *)gpunn__realloc(
            mpi->dev, NULL, 0, (size_t)gpunn__mpi_received_count(mpi) * sizeof *mpi->received);
        if (mpi->received == NULL) status = GPUNN_ERR_MEMORY;
    }
    if (status != GPUNN_OK) {
        gpunn__mpi_close(mpi, false);
        return status;
    }
    group->args.rank = mpi->rank;
    group->args.size = mpi->size;
    group->args.all_reduce = gpunn__mpi_all_reduce;
    group->args.all_gather = gpunn__mpi_all_gather;
    group->args.broadcast = gpunn__mpi_broadcast;
    group->args.reduce_scatter = gpunn__mpi_reduce_scatter;
    group->args.all_reduce_bf16 = gpunn__mpi_all_reduce_bf16;
    group->args.error = gpunn__mpi_error;
    group->args.user = mpi;
    return GPUNN_OK;
}
#endif
