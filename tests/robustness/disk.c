/* A disk that fails, for LD_PRELOAD. */
#define _GNU_SOURCE
#include "disk.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static long        left; /* calls until one fails */
static int         how;
static unsigned    one_in, random_state;
static const char *failed = "";
static bool        written, unsynced; /* since the last sync; renamed like that */

#define REAL(name, ...) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))(__VA_ARGS__)

/* ---- what no sync has made last ---- */
typedef struct change {
    char  path[256];
    bool  is_file; /* a new file; false: a name that a rename has given to another file */
    int   fd;      /* of the file while it is open; -1 */
    bool  dirty;   /* written since its last sync */
    bool  named;   /* its folder was synced since it was created */
    void *old;     /* what the name had before; NULL: no file */
    off_t size;    /* of that; of the file when it was synced */
} change;
static change changes[64];
static int    changed;

static void forget(change *c)
{
    free(c->old);
    memmove(c, c + 1, (size_t)(&changes[--changed] - c) * sizeof *c);
}
static change *add(const char *path, bool is_file, int fd)
{
    if (changed == sizeof changes / sizeof *changes) forget(&changes[0]);
    change *c = &changes[changed++];
    memset(c, 0, sizeof *c);
    (void)snprintf(c->path, sizeof c->path, "%s", path);
    c->is_file = is_file;
    c->fd = fd;
    return c;
}
static void forget_file(const char *path)
{
    for (change *c = changes + changed; c-- > changes;)
        if (c->is_file && strcmp(c->path, path) == 0) forget(c);
}
static change *file_of(int fd)
{
    for (change *c = changes; c < changes + changed; c++)
        if (c->is_file && c->fd == fd) return c;
    return NULL;
}

/* Remembers a name's file before a rename replaces it. */
static void keep_old(const char *name)
{
    change   *c = add(name, false, -1);
    const int fd = REAL(open, name, O_RDONLY);
    if (fd < 0) return;
    c->size = lseek(fd, 0, SEEK_END);
    c->old = malloc((size_t)c->size + 1);
    if (pread(fd, c->old, (size_t)c->size, 0) != c->size) abort();
    (void)REAL(close, fd);
}
static void move_file(const char *old, const char *new)
{
    forget_file(new);
    for (change *c = changes; c < changes + changed; c++)
        if (c->is_file && strcmp(c->path, old) == 0) (void)snprintf(c->path, sizeof c->path, "%s", new);
}

static bool is_in(const change *c, const struct stat *folder)
{
    struct stat there;
    char        path[sizeof c->path];
    memcpy(path, c->path, sizeof path);
    char *slash = strrchr(path, '/');
    if (slash) *slash = 0;
    return stat(slash ? path : ".", &there) == 0 && there.st_dev == folder->st_dev &&
           there.st_ino == folder->st_ino;
}
static void folder_synced(const struct stat *folder)
{
    for (change *c = changes + changed; c-- > changes;) {
        if (!is_in(c, folder)) continue;
        c->named = true;
        if (!c->is_file || (c->fd < 0 && !c->dirty)) forget(c);
    }
}
static void file_synced(int fd, const struct stat *there)
{
    change *c = file_of(fd);
    if (c == NULL) return;
    c->dirty = false;
    c->size = there->st_size;
}

static void undo_name(const change *c)
{
    (void)REAL(unlink, c->path);
    if (c->old == NULL) return;
    const int fd = REAL(open, c->path, O_WRONLY | O_CREAT, 0666);
    if (fd < 0 || REAL(write, fd, c->old, (size_t)c->size) != c->size) abort();
    (void)REAL(close, fd);
}
static void undo_file(const change *c, bool names)
{
    if (names && !c->named)
        (void)REAL(unlink, c->path);
    else if (truncate(c->path, c->size) != 0)
        abort();
}
static void lose(int how_)
{
    const bool names = how_ == DISK_LOSE_NAMES;
    for (change *c = changes; c < changes + changed; c++)
        if (c->is_file) undo_file(c, names);
    for (change *c = changes + changed; names && c-- > changes;)
        if (!c->is_file) undo_name(c);
}

static void break_call(long call, int how_)
{
    left = call;
    how = how_;
    one_in = 0;
    failed = "";
    written = unsynced = false;
    while (changed > 0) forget(&changes[changed - 1]);
}
static void chance(unsigned chance_, unsigned seed)
{
    break_call(0, 0);
    one_in = chance_;
    random_state = seed;
}
static const char *get_failed(void)
{
    return failed;
}
static bool get_unsynced(void)
{
    return unsynced;
}
const disk the_disk = {break_call, lose, chance, get_failed, get_unsynced};

static unsigned drawn(unsigned below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % below;
}

/* Whether this call fails; of one that may be SHORT it is for the caller. */
static bool fails(const char *call)
{
    static const int ways[] = {EIO, ENOSPC, EINTR, DISK_SHORT};
    bool             now = left > 0 && --left == 0;
    if (one_in && drawn(one_in) == 0) now = true, how = ways[drawn(4)];
    if (!now) return false;
    failed = call;
    if (how <= DISK_LOSE_DATA) lose(how);
    if (how <= DISK_LOSE_DATA || (how == DISK_KILL && strcmp(call, "write") != 0))
        (void)kill(getpid(), SIGKILL);
    if (how > 0) errno = how;
    return true;
}
static void behind(bool now)
{
    if (now && how < DISK_SHORT) (void)kill(getpid(), SIGKILL);
}

/* A call that is made, or fails. */
#define CALL(name, ...)                         \
    const bool now = fails(#name);              \
    if (now && how > 0) return -1;              \
    const int result = REAL(name, __VA_ARGS__); \
    behind(now)

int open(const char *file, int oflag, ...)
{
    int     mode = 0;
    va_list list;
    va_start(list, oflag);
    if (oflag & O_CREAT) mode = va_arg(list, int);
    va_end(list);
    const bool now = fails(oflag & O_CREAT ? "create" : "open");
    if (now && how > 0) return -1;
    const int result = REAL(open, file, oflag, mode);
    behind(now);
    if (result >= 0 && oflag & O_CREAT) (void)add(file, true, result);
    return result;
}
ssize_t read(int fd, void *buf, size_t nbytes)
{
    const bool now = fails("read");
    if (now && how > 0) return -1;
    const ssize_t result = REAL(read, fd, buf, now && nbytes > 1 ? nbytes / 2 : nbytes);
    behind(now);
    return result;
}
ssize_t write(int fd, const void *buf, size_t n)
{
    const bool now = fails("write");
    if (now && how > 0) return -1;
    change *c = file_of(fd);
    written = true;
    if (c) c->dirty = true;
    const ssize_t result = REAL(write, fd, buf, now && how != DISK_KILL_BEHIND && n > 1 ? n / 2 : n);
    behind(now);
    return result;
}
int fsync(int fd)
{
    struct stat there;
    const bool  now = fails(fstat(fd, &there) == 0 && S_ISDIR(there.st_mode) ? "fsync of a folder" : "fsync");
    if (now && how > 0) return -1;
    const int result = REAL(fsync, fd);
    behind(now);
    if (result != 0) return result;
    written = false;
    if (S_ISDIR(there.st_mode))
        folder_synced(&there);
    else
        file_synced(fd, &there);
    return 0;
}
int close(int fd)
{
    const bool now = fails("close");
    change    *c = file_of(fd);
    if (c) c->fd = -1;
    const int result = REAL(close, fd);
    behind(now);
    return now && how > 0 ? (errno = how, -1) : result; /* closed all the same */
}
int rename(const char *old, const char *new)
{
    unsynced |= written;
    keep_old(new);
    CALL(rename, old, new);
    if (result == 0) move_file(old, new);
    return result;
}
int unlink(const char *name)
{
    CALL(unlink, name);
    if (result == 0) written = false, forget_file(name); /* a file that is given up */
    return result;
}
int flock(int fd, int operation);
int flock(int fd, int operation)
{
    CALL(flock, fd, operation);
    return result;
}
int chmod(const char *file, mode_t mode)
{
    CALL(chmod, file, mode);
    return result;
}
int chown(const char *file, uid_t owner, gid_t group)
{
    CALL(chown, file, owner, group);
    return result;
}

/* ---- a stream, whose calls from within the C library go through those above ---- */
static ssize_t stream_read(void *fd, char *buf, size_t n)
{
    return read((int)(intptr_t)fd, buf, n);
}
static ssize_t stream_write(void *fd, const char *buf, size_t n)
{
    size_t done = 0;
    while (done < n) { /* a short write is continued */
        const ssize_t wrote = write((int)(intptr_t)fd, buf + done, n - done);
        if (wrote < 0) break;
        done += (size_t)wrote;
    }
    return (ssize_t)done;
}
static int stream_seek(void *fd, off_t *offset, int whence)
{
    *offset = lseek((int)(intptr_t)fd, *offset, whence);
    return *offset < 0 ? -1 : 0;
}
static int stream_close(void *fd)
{
    return close((int)(intptr_t)fd);
}
/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): the C library's names are reserved */
FILE *fopen(const char *restrict file, const char *restrict mode)
{
    static const cookie_io_functions_t calls = {stream_read, stream_write, stream_seek, stream_close};
    const int                          makes = O_WRONLY | O_CREAT | (strchr(mode, 'x') ? O_EXCL : O_TRUNC);
    const int                          fd = *mode == 'r' ? open(file, O_RDONLY) : open(file, makes, 0666);
    void *const                        cookie = (void *)(intptr_t)fd; /* NOLINT(performance-no-int-to-ptr) */
    return fd < 0 ? NULL : fopencookie(cookie, mode, calls);
}
