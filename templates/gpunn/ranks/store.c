#include "ranks/store.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/time.h"
#include "ranks/slices.h"

static FILE *gpunn__store_file(const gpunn__store *store, int rank, const char *mode)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%.1000s/%d.%d", store->folder, rank, (int)(store->call % 2));
    return fopen(path, mode);
}

/* Writes the call's number, then the bytes. */
static bool gpunn__store_put(const gpunn__store *store, const char *mode, const void *memory, size_t bytes)
{
    FILE *file = gpunn__store_file(store, store->rank, mode);
    if (file == NULL) return false;
    bool good = fwrite(&store->call, sizeof store->call, 1, file) == 1;
    if (bytes > 0) good = good && fwrite(memory, bytes, 1, file) == 1;
    return fclose(file) == 0 && good;
}

static gpunn_status gpunn__store_write(gpunn__store *store, const void *memory, size_t bytes)
{
    store->call++;
    /* the file is closed in between, so other machines never see the end before the rest */
    if (gpunn__store_put(store, "wb", memory, bytes) && gpunn__store_put(store, "ab", NULL, 0))
        return GPUNN_OK;
    (void)snprintf(store->text, sizeof store->text, "cannot write rank %d's file in '%.150s': %s",
                   store->rank, store->folder, strerror(errno));
    return GPUNN_ERR_IO;
}

static bool gpunn__store_seek(FILE *file, size_t place)
{
#ifdef _WIN32
    return _fseeki64(file, (long long)place, SEEK_SET) == 0;
#else
    return fseek(file, (long)place, SEEK_SET) == 0;
#endif
}

/* Reads `bytes` bytes at `place` of a rank's `all` bytes, if its file is complete. False: it is not yet. */
static bool gpunn__store_try(const gpunn__store *store, int rank, size_t place, void *memory, size_t bytes,
                             size_t all)
{
    FILE    *file = gpunn__store_file(store, rank, "rb");
    uint64_t begin = 0, end = 0;
    if (file == NULL) return false;
    bool good = fread(&begin, sizeof begin, 1, file) == 1 && begin == store->call &&
                gpunn__store_seek(file, sizeof begin + all) && fread(&end, sizeof end, 1, file) == 1 &&
                end == store->call;
    if (bytes > 0)
        good = good && gpunn__store_seek(file, sizeof begin + place) && fread(memory, bytes, 1, file) == 1;
    (void)fclose(file);
    return good;
}

static void gpunn__pause(void) /* a tenth of a millisecond */
{
#ifdef _WIN32
    Sleep(1);
#else
    struct timeval time = {0, 100};
    (void)select(0, NULL, NULL, NULL, &time);
#endif
}

GPUNN__INTERNAL gpunn_status gpunn__fail_timeout(char text[256], int rank, double seconds)
{
    (void)snprintf(text, 256,
                   "rank %d has not arrived within %g seconds: check what it is doing, or why it ended", rank,
                   seconds);
    return GPUNN_ERR_DEVICE;
}

static gpunn_status gpunn__store_read_part(gpunn__store *store, int rank, size_t place, void *memory,
                                           size_t bytes, size_t all)
{
    const double began = gpunn__seconds();
    while (!gpunn__store_try(store, rank, place, memory, bytes, all)) {
        const double waited = gpunn__seconds() - began;
        if (waited > store->timeout) return gpunn__fail_timeout(store->text, rank, store->timeout);
        if (waited > 1e-3) gpunn__pause();
    }
    return GPUNN_OK;
}

static gpunn_status gpunn__store_read(gpunn__store *store, int rank, void *memory, size_t bytes)
{
    return gpunn__store_read_part(store, rank, 0, memory, bytes, bytes);
}

static gpunn_status gpunn__store_all_gather(void *user, void *parts, size_t bytes)
{
    gpunn__store *store = (gpunn__store *)user;
    gpunn_status  status = gpunn__store_write(store, (char *)parts + (size_t)store->rank * bytes, bytes);
    for (int rank = 0; rank < store->size && status == GPUNN_OK; rank++)
        if (rank != store->rank)
            status = gpunn__store_read(store, rank, (char *)parts + (size_t)rank * bytes, bytes);
    return status;
}

static gpunn_status gpunn__store_broadcast(void *user, void *memory, size_t bytes, int root)
{
    gpunn__store *store = (gpunn__store *)user;
    gpunn_status  status = gpunn__store_write(store, memory, store->rank == root ? bytes : 0);
    for (int rank = 0; rank < store->size && status == GPUNN_OK; rank++)
        if (rank != store->rank) status = gpunn__store_read(store, rank, memory, rank == root ? bytes : 0);
    return status;
}

/* Adds [from, to) of all ranks' values in the order of the ranks, so that all have the same bits. */
static gpunn_status gpunn__store_add(gpunn__store *store, float *values, int64_t count, int64_t from,
                                     int64_t to)
{
    const float *part = (const float *)store->piece;
    const size_t place = (size_t)from * sizeof *values, bytes = (size_t)(to - from) * sizeof *values,
                 all = (size_t)count * sizeof *values;
    gpunn_status status = gpunn__store_write(store, values, all);
    for (int rank = 0; rank < store->size && status == GPUNN_OK; rank++) {
        status = gpunn__store_read_part(store, rank, place, store->piece, bytes, all);
        for (int64_t i = from; i < to && status == GPUNN_OK; i++)
            values[i] = rank ? values[i] + part[i - from] : part[i - from];
    }
    return status;
}

/* counts: sizes of the ranks' parts, to read and add only this rank's; NULL: all values. */
static gpunn_status gpunn__store_reduce(gpunn__store *store, float *values, int64_t count,
                                        const int64_t *counts)
{
    const int64_t most = GPUNN__GROUP_PIECE / (int)sizeof *values;
    gpunn_status  status = GPUNN_OK;
    for (int64_t at = 0, n, from, to; at < count && status == GPUNN_OK; at += n) {
        n = count - at < most ? count - at : most;
        gpunn__part_within(counts, store->rank, at, n, &from, &to);
        status = gpunn__store_add(store, values + at, n, from, to);
    }
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__store_all_reduce(void *user, float *values, int64_t count)
{
    return gpunn__store_reduce((gpunn__store *)user, values, count, NULL);
}

static gpunn_status gpunn__store_reduce_scatter(void *user, float *values, const int64_t *counts)
{
    gpunn__store *store = (gpunn__store *)user;
    return gpunn__store_reduce(store, values, gpunn__sum_counts(counts, store->size), counts);
}

static const char *gpunn__store_error(void *user)
{
    return ((const gpunn__store *)user)->text;
}

GPUNN__INTERNAL void gpunn__store_close(gpunn__store *store, bool leaves)
{
    char         path[1024];
    gpunn_status status = leaves ? gpunn__store_write(store, NULL, 0) : GPUNN_ERR_DEVICE;
    for (int rank = 1; rank < store->size && status == GPUNN_OK && store->rank == 0; rank++)
        status = gpunn__store_read(store, rank, NULL, 0);
    for (int i = 0; i < 2 * store->size && status == GPUNN_OK && store->rank == 0; i++) {
        (void)snprintf(path, sizeof path, "%.1000s/%d.%d", store->folder, i / 2, i % 2);
        (void)remove(path);
    }
    gpunn__free(store->dev, store->piece, store->piece ? GPUNN__GROUP_PIECE : 0);
    gpunn__free(store->dev, store, sizeof *store);
}

GPUNN__INTERNAL int gpunn__number_of(const char *name, int otherwise)
{
    const char *value = getenv(name);
    return value && value[0] >= '0' && value[0] <= '9' ? atoi(value) : otherwise;
}

GPUNN__INTERNAL const gpunn__launcher *gpunn__find_launcher(void)
{
    for (int i = 0; i < GPUNN__LAUNCHERS; i++)
        if (gpunn__number_of(gpunn__launchers[i].size, 0) > 0) return &gpunn__launchers[i];
    return NULL;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__check_rank(const gpunn_group *group)
{
    const gpunn_group_args *args = &group->args;
    if (args->rank >= 0 && args->rank < args->size) return GPUNN_OK;
    return gpunn__fail(group->dev, GPUNN_ERR_ARGUMENT,
                       "gpunn_group_open: rank is %d and size %d; ranks are from 0 to size - 1", args->rank,
                       args->size);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__find_rank(gpunn_group *group)
{
    gpunn_group_args *args = &group->args;
    if (args->size == 0) {
        const gpunn__launcher *launcher = gpunn__find_launcher();
        args->rank = launcher ? gpunn__number_of(launcher->rank, 0) : 0;
        args->size = launcher ? gpunn__number_of(launcher->size, 1) : 1;
    }
    return gpunn__check_rank(group);
}

/* Fails if a file of this rank exists in the folder, since it is of another run. */
static GPUNN__STATUS gpunn__store_begin(gpunn__store *store)
{
    for (store->call = 2; store->call > 0; store->call--) {
        FILE *file = gpunn__store_file(store, store->rank, "rb");
        if (file == NULL) continue;
        (void)fclose(file);
        return gpunn__fail(store->dev, GPUNN_ERR_STATE,
                           "gpunn_group_open: '%.200s' has files of rank %d of another run; use a separate "
                           "folder for this run",
                           store->folder, store->rank);
    }
    store->piece = (char *)gpunn__realloc(store->dev, NULL, 0, GPUNN__GROUP_PIECE);
    return store->piece ? GPUNN_OK : GPUNN_ERR_MEMORY;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__store_open(gpunn_group *group)
{
    gpunn_group_args *args = &group->args;
    gpunn_status      status = gpunn__find_rank(group);
    gpunn__store     *store = status == GPUNN_OK ? (gpunn__store *)gpunn__calloc(group->dev, sizeof *store)
                                                 : NULL;
    if (store == NULL) return status == GPUNN_OK ? GPUNN_ERR_MEMORY : status;
    store->dev = group->dev;
    store->folder = args->store;
    store->rank = args->rank;
    store->size = args->size;
    store->timeout = args->timeout;
    status = gpunn__store_begin(store);
    if (status != GPUNN_OK) {
        gpunn__store_close(store, false);
        return status;
    }
    args->all_reduce = gpunn__store_all_reduce;
    args->reduce_scatter = gpunn__store_reduce_scatter;
    args->all_gather = gpunn__store_all_gather;
    args->broadcast = gpunn__store_broadcast;
    args->error = gpunn__store_error;
    args->user = store;
    return GPUNN_OK;
}
