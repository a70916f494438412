#include "ranks/tcp.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/math.h"
#include "base/time.h"
#include "ranks/slices.h"
#include "ranks/mpi.h"
#include "ranks/store.h"

#ifdef AI_PASSIVE /* hidden by -std=c99 */
#ifdef MSG_NOSIGNAL
#define GPUNN__NO_SIGNAL MSG_NOSIGNAL
#else
#define GPUNN__NO_SIGNAL 0 /* SO_NOSIGPIPE is set instead */
#endif
typedef struct gpunn__hello { /* first message in both directions */
    char    magic[16];
    int32_t rank, size;
} gpunn__hello;

/* Waits until the socket is ready for `what`. False: not before `until`, or failed, with errno. */
static bool gpunn__tcp_ready(int fd, short what, double until)
{
    struct pollfd wanted = {fd, what, 0};
    double        left;
    do {
        left = until - gpunn__seconds();
        const double seconds = left < 1 ? left : 1;
        const int    ready = poll(&wanted, 1, seconds > 0 ? (int)(seconds * 1e3) + 1 : 0);
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) return false;
    } while (left > 0);
    errno = ETIMEDOUT;
    return false;
}

/* Transfers all bytes. what: POLLIN receives, POLLOUT sends. Both together send until something arrives;
 * errno is then EINTR. False: failed, with errno. */
static bool gpunn__tcp_move(int fd, void *memory, size_t bytes, short what, double until)
{
    for (size_t at = 0; at < bytes;) {
        char *rest = (char *)memory + at;
        if (!gpunn__tcp_ready(fd, what, until)) return false;
        const bool readable = what == (POLLOUT | POLLIN) && gpunn__tcp_ready(fd, POLLIN, 0);
        if (readable) errno = EINTR;
        if (readable) return false;
        const ssize_t moved = what == POLLIN ? recv(fd, rest, bytes - at, 0)
                                             : send(fd, rest, bytes - at, GPUNN__NO_SIGNAL);
        if (moved > 0) at += (size_t)moved;
        if (moved == 0) errno = ECONNRESET;
        if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR)) return false;
    }
    return true;
}

/* Notice that precedes each message of rank 0: the number of a late rank, LEFT minus the number of a rank
 * that has left, or WELL. */
enum { GPUNN__TCP_WELL = -1, GPUNN__TCP_LEFT = -2 }; /* minus its number */

static gpunn_status gpunn__tcp_left(gpunn__tcp *tcp, int rank, const char *why)
{
    (void)snprintf(tcp->text, sizeof tcp->text, "rank %d has left: %.100s; check why it ended", rank, why);
    return GPUNN_ERR_DEVICE;
}

static gpunn_status gpunn__tcp_notice(gpunn__tcp *tcp, int32_t notice)
{
    if (notice >= 0) return gpunn__fail_timeout(tcp->text, notice, tcp->timeout);
    return gpunn__tcp_left(tcp, GPUNN__TCP_LEFT - notice, "rank 0 has lost the connection to it");
}

/* Handles a failure with a rank, described by errno. Rank 0 tells all others. */
static gpunn_status gpunn__tcp_lost(gpunn__tcp *tcp, int rank)
{
    int32_t notice = GPUNN__TCP_WELL;
    if (errno == EINTR &&
        gpunn__tcp_move(tcp->sockets[0], &notice, sizeof notice, POLLIN, gpunn__seconds() + 1))
        return gpunn__tcp_notice(tcp, notice); /* arrived while this rank was sending */
    const bool         late = errno == ETIMEDOUT;
    const double       timeout = rank ? tcp->timeout : 2 * tcp->timeout;
    const gpunn_status status = late ? gpunn__fail_timeout(tcp->text, rank, timeout)
                                     : gpunn__tcp_left(tcp, rank, strerror(errno));
    notice = late ? rank : GPUNN__TCP_LEFT - rank;
    for (int other = 1; other < tcp->size && tcp->rank == 0; other++)
        if (other != rank && tcp->sockets[other] >= 0)
            (void)gpunn__tcp_move(tcp->sockets[other], &notice, sizeof notice, POLLOUT, 0);
    return status;
}

static gpunn_status gpunn__tcp_transfer(gpunn__tcp *tcp, int rank, void *memory, size_t bytes, bool sends)
{
    const double until = gpunn__seconds() + tcp->timeout * (rank ? 1 : 2);
    /* rank 0 answers; it does so earlier only if it misses a rank */
    const short out = rank ? POLLOUT : POLLOUT | POLLIN, what = sends ? out : POLLIN;
    return gpunn__tcp_move(tcp->sockets[rank], memory, bytes, what, until) ? GPUNN_OK
                                                                           : gpunn__tcp_lost(tcp, rank);
}

/* Receives a notice and a message from rank 0. */
static gpunn_status gpunn__tcp_receive(gpunn__tcp *tcp, void *memory, size_t bytes)
{
    int32_t      notice = GPUNN__TCP_WELL;
    gpunn_status status = gpunn__tcp_transfer(tcp, 0, &notice, sizeof notice, false);
    if (status == GPUNN_OK && notice != GPUNN__TCP_WELL) return gpunn__tcp_notice(tcp, notice);
    return status == GPUNN_OK ? gpunn__tcp_transfer(tcp, 0, memory, bytes, false) : status;
}

/* Rank 0 sends to one rank. */
static gpunn_status gpunn__tcp_send_one(gpunn__tcp *tcp, int rank, void *memory, size_t bytes)
{
    int32_t            well = GPUNN__TCP_WELL;
    const gpunn_status status = gpunn__tcp_transfer(tcp, rank, &well, sizeof well, true);
    return status == GPUNN_OK ? gpunn__tcp_transfer(tcp, rank, memory, bytes, true) : status;
}

/* Rank 0 sends to all ranks but one. */
static gpunn_status gpunn__tcp_send_all(gpunn__tcp *tcp, void *memory, size_t bytes, int but)
{
    gpunn_status status = GPUNN_OK;
    for (int rank = 1; rank < tcp->size && status == GPUNN_OK; rank++)
        if (rank != but) status = gpunn__tcp_send_one(tcp, rank, memory, bytes);
    return status;
}

static gpunn_status gpunn__tcp_all_gather(void *user, void *parts, size_t bytes)
{
    gpunn__tcp  *tcp = (gpunn__tcp *)user;
    gpunn_status status = GPUNN_OK;
    if (tcp->rank > 0) {
        status = gpunn__tcp_transfer(tcp, 0, (char *)parts + (size_t)tcp->rank * bytes, bytes, true);
        return status == GPUNN_OK ? gpunn__tcp_receive(tcp, parts, (size_t)tcp->size * bytes) : status;
    }
    for (int rank = 1; rank < tcp->size && status == GPUNN_OK; rank++)
        status = gpunn__tcp_transfer(tcp, rank, (char *)parts + (size_t)rank * bytes, bytes, false);
    return status == GPUNN_OK ? gpunn__tcp_send_all(tcp, parts, (size_t)tcp->size * bytes, 0) : status;
}

static gpunn_status gpunn__tcp_broadcast(void *user, void *memory, size_t bytes, int root)
{
    gpunn__tcp *tcp = (gpunn__tcp *)user;
    if (tcp->rank > 0)
        return tcp->rank == root ? gpunn__tcp_transfer(tcp, 0, memory, bytes, true)
                                 : gpunn__tcp_receive(tcp, memory, bytes);
    gpunn_status status = root ? gpunn__tcp_transfer(tcp, root, memory, bytes, false) : GPUNN_OK;
    return status == GPUNN_OK ? gpunn__tcp_send_all(tcp, memory, bytes, root) : status;
}

/* Sums the values that follow `at` others: each rank receives its part or, if counts is NULL, all. */
static gpunn_status gpunn__tcp_add(gpunn__tcp *tcp, float *values, int64_t count, const int64_t *counts,
                                   int64_t at)
{
    const float *part = (const float *)tcp->piece;
    const size_t bytes = (size_t)count * sizeof *values;
    int64_t      from, to;
    gpunn_status status = GPUNN_OK;
    if (tcp->rank > 0) {
        status = gpunn__tcp_transfer(tcp, 0, values, bytes, true);
        gpunn__part_within(counts, tcp->rank, at, count, &from, &to);
        return status == GPUNN_OK
                   ? gpunn__tcp_receive(tcp, values + from, (size_t)(to - from) * sizeof *values)
                   : status;
    }
    for (int rank = 1; rank < tcp->size && status == GPUNN_OK; rank++) {
        status = gpunn__tcp_transfer(tcp, rank, tcp->piece, bytes, false);
        for (int64_t i = 0; i < count && status == GPUNN_OK; i++) values[i] += part[i];
    }
    for (int rank = 1; rank < tcp->size && status == GPUNN_OK; rank++) {
        gpunn__part_within(counts, rank, at, count, &from, &to);
        status = gpunn__tcp_send_one(tcp, rank, values + from, (size_t)(to - from) * sizeof *values);
    }
    return status;
}

/* Like gpunn__tcp_add; rank 0 receives all parts before it adds them. */
static gpunn_status gpunn__tcp_add_bf16(gpunn__tcp *tcp, uint16_t *values, size_t count)
{
    uint16_t    *parts = (uint16_t *)(void *)tcp->piece;
    const size_t bytes = count * sizeof *values;
    gpunn_status status = GPUNN_OK;
    if (tcp->rank > 0) {
        status = gpunn__tcp_transfer(tcp, 0, values, bytes, true);
        return status == GPUNN_OK ? gpunn__tcp_receive(tcp, values, bytes) : status;
    }
    memcpy(parts, values, bytes);
    for (int rank = 1; rank < tcp->size && status == GPUNN_OK; rank++)
        status = gpunn__tcp_transfer(tcp, rank, parts + (size_t)rank * count, bytes, false);
    if (status != GPUNN_OK) return status;
    gpunn__bf16_add(values, parts, tcp->size, count);
    return gpunn__tcp_send_all(tcp, values, bytes, 0);
}

static gpunn_status gpunn__tcp_all_reduce_bf16(void *user, uint16_t *values, int64_t count)
{
    gpunn__tcp   *tcp = (gpunn__tcp *)user;
    const int64_t most = gpunn__bf16_part(tcp->size);
    gpunn_status  status = GPUNN_OK;
    for (int64_t at = 0; at < count && status == GPUNN_OK; at += most)
        status = gpunn__tcp_add_bf16(tcp, values + at, (size_t)(count - at < most ? count - at : most));
    return status;
}

static gpunn_status gpunn__tcp_reduce(gpunn__tcp *tcp, float *values, int64_t count, const int64_t *counts)
{
    const int64_t most = GPUNN__GROUP_PIECE / (int)sizeof *values;
    gpunn_status  status = GPUNN_OK;
    for (int64_t at = 0; at < count && status == GPUNN_OK; at += most)
        status = gpunn__tcp_add(tcp, values + at, count - at < most ? count - at : most, counts, at);
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__tcp_all_reduce(void *user, float *values, int64_t count)
{
    return gpunn__tcp_reduce((gpunn__tcp *)user, values, count, NULL);
}

static gpunn_status gpunn__tcp_reduce_scatter(void *user, float *values, const int64_t *counts)
{
    gpunn__tcp *tcp = (gpunn__tcp *)user;
    return gpunn__tcp_reduce(tcp, values, gpunn__sum_counts(counts, tcp->size), counts);
}

static const char *gpunn__tcp_error(void *user)
{
    return ((const gpunn__tcp *)user)->text;
}

GPUNN__INTERNAL void gpunn__tcp_close(gpunn__tcp *tcp)
{
    const size_t size = (size_t)tcp->size;
    for (size_t i = 0; i < size && tcp->sockets; i++)
        if (tcp->sockets[i] >= 0) (void)close(tcp->sockets[i]);
    gpunn__free(tcp->dev, tcp->sockets, tcp->sockets ? size * sizeof *tcp->sockets : 0);
    gpunn__free(tcp->dev, tcp->piece, tcp->piece ? GPUNN__GROUP_PIECE : 0);
    gpunn__free(tcp->dev, tcp, sizeof *tcp);
}

static void gpunn__tcp_set(int fd)
{
    const int one = 1, none = 0;
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &none, sizeof none);
#ifdef SO_NOSIGPIPE
    (void)setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one);
#endif
}

/* A socket that listens at the address or is connecting to it; -1: failed, with errno. */
static int gpunn__tcp_socket(const struct addrinfo *address, bool listens)
{
    const int fd = socket(address->ai_family, address->ai_socktype, address->ai_protocol);
    bool      good = fd >= 0;
    if (good) gpunn__tcp_set(fd);
    if (listens)
        good = good && bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
    else
        good = good && (connect(fd, address->ai_addr, address->ai_addrlen) == 0 || errno == EINPROGRESS);
    if (good) return fd;
    const int error = errno;
    if (fd >= 0) (void)close(fd);
    errno = error;
    return -1;
}

static struct addrinfo *gpunn__tcp_find(const char *host, const char *port, int family)
{
    struct addrinfo hints, *found = NULL;
    memset(&hints, 0, sizeof hints);
    hints.ai_family = family;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = host ? 0 : AI_PASSIVE;
    return getaddrinfo(host, port, &hints, &found) == 0 ? found : NULL;
}

/* Listens at all addresses of this machine, for IPv6 and IPv4 if there is IPv6. */
static int gpunn__tcp_listen(const char *port)
{
    static const int families[] = {AF_INET6, AF_INET};
    int              fd = -1;
    for (int i = 0; i < 2 && fd < 0; i++) {
        struct addrinfo *own = gpunn__tcp_find(NULL, port, families[i]);
        if (own == NULL) continue;
        fd = gpunn__tcp_socket(own, true);
        freeaddrinfo(own);
    }
    return fd;
}

static gpunn__hello gpunn__tcp_hello(const gpunn__tcp *tcp)
{
    gpunn__hello hello = {"gpunn ranks 1", tcp->rank, tcp->size};
    return hello;
}

/* Whether errno means that this process has no sockets left; then writes that to tcp->text. */
static bool gpunn__tcp_starved(gpunn__tcp *tcp)
{
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return false;
    (void)snprintf(tcp->text, sizeof tcp->text,
                   "rank %d has no more sockets: %.60s; raise ulimit -n, on rank 0 by more than the %d ranks",
                   tcp->rank, strerror(errno), tcp->size);
    return true;
}

/* Rank 0 accepts a connection if it is from a rank of this run that is not connected yet. False: no sockets
 * left. */
static bool gpunn__tcp_accept(gpunn__tcp *tcp, int listener)
{
    gpunn__hello theirs, own = gpunn__tcp_hello(tcp);
    const int    fd = accept(listener, NULL, NULL);
    if (fd < 0) return !gpunn__tcp_starved(tcp);
    gpunn__tcp_set(fd);
    const double until = gpunn__seconds() + 1;
    if (gpunn__tcp_move(fd, &theirs, sizeof theirs, POLLIN, until) &&
        memcmp(theirs.magic, own.magic, sizeof own.magic) == 0 && theirs.size == own.size &&
        theirs.rank > 0 && theirs.rank < own.size && tcp->sockets[theirs.rank] < 0 &&
        gpunn__tcp_move(fd, &own, sizeof own, POLLOUT, until))
        tcp->sockets[theirs.rank] = fd;
    else
        (void)close(fd);
    return true;
}

static GPUNN__STATUS gpunn__tcp_wait(gpunn__tcp *tcp, const char *port, double until)
{
    const int listener = gpunn__tcp_listen(port);
    if (listener < 0 && gpunn__tcp_starved(tcp))
        return gpunn__fail(tcp->dev, GPUNN_ERR_IO, "gpunn_group_open: %s", tcp->text);
    if (listener < 0)
        return gpunn__fail(tcp->dev, GPUNN_ERR_IO,
                           "gpunn_group_open: rank 0 cannot listen at port %s: %s; choose another port", port,
                           strerror(errno));
    gpunn_status status = GPUNN_OK;
    for (int rank = 1; rank < tcp->size && status == GPUNN_OK;)
        if (tcp->sockets[rank] >= 0)
            rank++;
        else if (!gpunn__tcp_ready(listener, POLLIN, until))
            status = gpunn__tcp_lost(tcp, rank);
        else if (!gpunn__tcp_accept(tcp, listener))
            status = GPUNN_ERR_IO;
    (void)close(listener);
    return status == GPUNN_OK ? status : gpunn__fail(tcp->dev, status, "gpunn_group_open: %s", tcp->text);
}

/* Tries to reach rank 0 of this run at an address. errno is of the socket, if there is none. */
static bool gpunn__tcp_try(gpunn__tcp *tcp, const struct addrinfo *address, double until)
{
    gpunn__hello theirs, own = gpunn__tcp_hello(tcp);
    const double soon = gpunn__seconds() + 5;
    const int    fd = gpunn__tcp_socket(address, false);
    if (fd < 0) return false;
    if (gpunn__tcp_ready(fd, POLLOUT, soon < until ? soon : until) &&
        gpunn__tcp_move(fd, &own, sizeof own, POLLOUT, until) &&
        gpunn__tcp_move(fd, &theirs, sizeof theirs, POLLIN, until) && theirs.rank == 0 &&
        theirs.size == own.size && memcmp(theirs.magic, own.magic, sizeof own.magic) == 0)
        tcp->sockets[0] = fd;
    else
        (void)close(fd);
    return tcp->sockets[0] >= 0;
}

static GPUNN__STATUS gpunn__tcp_reach(gpunn__tcp *tcp, const char *host, const char *port, double until)
{
    do {
        errno = 0;
        struct addrinfo *found = gpunn__tcp_find(host, port, AF_UNSPEC);
        for (const struct addrinfo *a = found; a && tcp->sockets[0] < 0; a = a->ai_next)
            (void)gpunn__tcp_try(tcp, a, until);
        if (found) freeaddrinfo(found);
        if (tcp->sockets[0] >= 0) return GPUNN_OK;
        if (gpunn__tcp_starved(tcp))
            return gpunn__fail(tcp->dev, GPUNN_ERR_IO, "gpunn_group_open: %s", tcp->text);
        (void)poll(NULL, 0, 20);
    } while (gpunn__seconds() < until);
    return gpunn__fail(tcp->dev, GPUNN_ERR_DEVICE,
                       "gpunn_group_open: no rank 0 of %d ranks has answered at '%s', port %s, within %g "
                       "seconds: check that it runs there and that no firewall is between",
                       tcp->size, host, port, tcp->timeout);
}

/* Splits "tcp://host:port" or "tcp://[::1]:port". */
static bool gpunn__tcp_parse(const char *store, char host[256], char port[8])
{
    const char  *begin = store + strlen(GPUNN__TCP), *colon = strrchr(begin, ':');
    const bool   quoted = begin[0] == '[' && colon && colon[-1] == ']';
    const size_t length = colon ? (size_t)(colon - begin) - 2 * quoted : 0;
    if (colon == NULL || length == 0 || length > 255 || strlen(colon + 1) > 5 || atoi(colon + 1) < 1 ||
        atoi(colon + 1) > 65535)
        return false;
    (void)snprintf(host, 256, "%.*s", (int)length, begin + quoted);
    (void)snprintf(port, 8, "%d", atoi(colon + 1));
    return true;
}

static GPUNN__STATUS gpunn__tcp_begin(gpunn__tcp *tcp, const char *store)
{
    char         host[256], port[8];
    const double until = gpunn__seconds() + tcp->timeout;
    if (!gpunn__tcp_parse(store, host, port))
        return gpunn__fail(tcp->dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_group_open: '%.100s' is not tcp://HOST:PORT with a port to 65535", store);
    tcp->sockets = (int *)gpunn__realloc(tcp->dev, NULL, 0, (size_t)tcp->size * sizeof *tcp->sockets);
    tcp->piece = (char *)gpunn__realloc(tcp->dev, NULL, 0, GPUNN__GROUP_PIECE);
    for (int i = 0; i < tcp->size && tcp->sockets; i++) tcp->sockets[i] = -1;
    if (tcp->sockets == NULL || tcp->piece == NULL) return GPUNN_ERR_MEMORY;
    return tcp->rank ? gpunn__tcp_reach(tcp, host, port, until) : gpunn__tcp_wait(tcp, port, until);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__tcp_open(gpunn_group *group)
{
    gpunn_group_args *args = &group->args;
    gpunn_status      status = gpunn__find_rank(group);
    gpunn__tcp       *tcp = status == GPUNN_OK ? (gpunn__tcp *)gpunn__calloc(group->dev, sizeof *tcp) : NULL;
    if (tcp == NULL) return status == GPUNN_OK ? GPUNN_ERR_MEMORY : status;
    tcp->dev = group->dev;
    tcp->rank = args->rank;
    tcp->size = args->size;
    tcp->timeout = args->timeout;
    status = gpunn__tcp_begin(tcp, args->store);
    if (status != GPUNN_OK) {
        gpunn__tcp_close(tcp);
        return status;
    }
    args->all_reduce = gpunn__tcp_all_reduce;
    args->reduce_scatter = gpunn__tcp_reduce_scatter;
    args->all_gather = gpunn__tcp_all_gather;
    args->broadcast = gpunn__tcp_broadcast;
    args->all_reduce_bf16 = gpunn__tcp_all_reduce_bf16;
    args->error = gpunn__tcp_error;
    args->user = tcp;
    return GPUNN_OK;
}
#else
GPUNN__INTERNAL GPUNN__STATUS gpunn__tcp_open(gpunn_group *group)
{
    return gpunn__fail(group->dev, GPUNN_ERR_UNSUPPORTED,
                       "gpunn_group_open: TCP needs a POSIX system and -std=gnu99, not -std=c99; set "
                       "GPUNN_STORE to a folder, or use mpirun and -DGPUNN_MPI");
}
#endif

GPUNN__INTERNAL GPUNN__STATUS gpunn__master_open(gpunn_group *group)
{
    char        store[300];
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    const int   port = gpunn__number_of("MASTER_PORT", 29500) + (agent && strcmp(agent, "True") == 0);
#ifdef GPUNN_MPI /* MPI may have found this process alone */
    if (group->args.all_reduce) gpunn__mpi_close((gpunn__mpi *)group->args.user, true);
    group->args.all_reduce = NULL;
    group->args.reduce_scatter = NULL;
    group->args.all_reduce_bf16 = NULL;
#endif
    (void)snprintf(store, sizeof store, GPUNN__TCP "%.255s:%d", getenv("MASTER_ADDR"), port);
    group->args.rank = group->args.size = 0;
    group->args.store = store;
    const gpunn_status status = gpunn__tcp_open(group);
    group->args.store = NULL;
    return status;
}
