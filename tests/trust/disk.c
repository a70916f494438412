/* A disk that fails, for LD_PRELOAD. */
#define _GNU_SOURCE
#include "disk.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static long        left; /* calls until one fails */
static int         how;
static unsigned    one_in, random_state;
static const char *failed = "";
static bool        written, unsynced; /* since the last sync; renamed like that */

static void break_call(long call, int how_)
{
    left = call;
    how = how_;
    one_in = 0;
    failed = "";
    written = unsynced = false;
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
const disk the_disk = {break_call, chance, get_failed, get_unsynced};

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
    if (how == DISK_KILL && strcmp(call, "write") != 0) (void)kill(getpid(), SIGKILL);
    if (how > 0) errno = how;
    return true;
}
static void behind(bool now)
{
    if (now && how < DISK_SHORT) (void)kill(getpid(), SIGKILL);
}

#define REAL(name, ...) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))(__VA_ARGS__)
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
    written = true;
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
    if (result == 0) written = false;
    return result;
}
int close(int fd)
{
    const bool now = fails("close");
    const int  result = REAL(close, fd);
    behind(now);
    return now && how > 0 ? (errno = how, -1) : result; /* closed all the same */
}
int rename(const char *old, const char *new)
{
    unsynced |= written;
    CALL(rename, old, new);
    return result;
}
int unlink(const char *name)
{
    CALL(unlink, name);
    if (result == 0) written = false; /* a file that is given up */
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
