#include "io/files.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/time.h"

#ifdef _WIN32

#define GPUNN__OS(name) _##name
#define GPUNN__O_FLAGS (_O_BINARY | _O_NOINHERIT)

/* Paths are UTF-8. A path that is not valid UTF-8 is read in the system's code page, which is that of main's
 * arguments. */
enum { GPUNN__WIDE_PATH = 4096 };

static bool gpunn__wide_path(const char *path, wchar_t wide[GPUNN__WIDE_PATH])
{
    int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, GPUNN__WIDE_PATH);
    if (length == 0 && GetLastError() == ERROR_NO_UNICODE_TRANSLATION)
        length = MultiByteToWideChar(CP_ACP, 0, path, -1, wide, GPUNN__WIDE_PATH);
    if (length == 0) errno = ENAMETOOLONG;
    return length > 0;
}
static int gpunn__stat(const char *path, gpunn__stat_result *result)
{
    wchar_t wide[GPUNN__WIDE_PATH];
    return gpunn__wide_path(path, wide) ? _wstat64(wide, result) : -1;
}
static int gpunn__open(const char *path, int flags, int mode)
{
    wchar_t wide[GPUNN__WIDE_PATH];
    return gpunn__wide_path(path, wide) ? _wopen(wide, flags, mode) : -1;
}
static int gpunn__unlink(const char *path)
{
    wchar_t wide[GPUNN__WIDE_PATH];
    return gpunn__wide_path(path, wide) ? _wunlink(wide) : -1;
}
static bool gpunn__replace(const char *from, const char *to)
{
    wchar_t wide[2][GPUNN__WIDE_PATH];
    return gpunn__wide_path(from, wide[0]) && gpunn__wide_path(to, wide[1]) &&
           MoveFileExW(wide[0], wide[1], MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH);
}

GPUNN__INTERNAL bool gpunn__seek(int fd, int64_t bytes) /* forward */
{
    return _lseeki64(fd, bytes, SEEK_CUR) >= 0;
}
GPUNN__INTERNAL void gpunn__make_folder(const char *path)
{
    wchar_t wide[GPUNN__WIDE_PATH];
    if (gpunn__wide_path(path, wide)) (void)CreateDirectoryW(wide, NULL);
}
static int gpunn__sync(int fd)
{
    return _commit(fd);
}
#define GPUNN__IS_DIRECTORY(mode) (((mode)&_S_IFMT) == _S_IFDIR)
#define GPUNN__IS_REGULAR(mode) (((mode)&_S_IFMT) == _S_IFREG)
#else
#define GPUNN__OS(name) name
#ifdef O_CLOEXEC
#define GPUNN__O_FLAGS O_CLOEXEC
#else
#define GPUNN__O_FLAGS 0
#endif

static int gpunn__stat(const char *path, gpunn__stat_result *result)
{
    return stat(path, result);
}
static int gpunn__open(const char *path, int flags, int mode)
{
    return open(path, flags, mode);
}
static int gpunn__unlink(const char *path)
{
    return unlink(path);
}
GPUNN__INTERNAL bool gpunn__seek(int fd, int64_t bytes) /* forward */
{
    return (int64_t)(off_t)bytes == bytes && lseek(fd, (off_t)bytes, SEEK_CUR) >= 0;
}
GPUNN__INTERNAL void gpunn__make_folder(const char *path)
{
    (void)mkdir(path, 0777);
}
static int gpunn__sync(int fd)
{
/* macOS: its fsync leaves data in the disk's cache. Not every file system supports F_FULLFSYNC. */
#ifdef F_FULLFSYNC
    if (fcntl(fd, F_FULLFSYNC) == 0) return 0;
#endif
    return fsync(fd);
}
#if defined(__GLIBC__) && defined(__STRICT_ANSI__) && !defined(__cplusplus)
ssize_t readlink(const char *path, char *to, size_t size); /* hidden by -std=c99 */
#endif
#define GPUNN__IS_DIRECTORY(mode) S_ISDIR(mode)
#define GPUNN__IS_REGULAR(mode) S_ISREG(mode)
#endif

GPUNN__INTERNAL const char *gpunn__tail(const char *path)
{
    size_t length = strlen(path);
    return length > 240 ? path + length - 240 : path;
}

GPUNN__INTERNAL const char *gpunn__file_name(const char *path)
{
    const char *name = path + strlen(path);
#ifdef _WIN32
    while (name > path && name[-1] != '/' && name[-1] != '\\' && name[-1] != ':') name--;
#else
    while (name > path && name[-1] != '/') name--;
#endif
    return name;
}

static GPUNN__STATUS gpunn__file_fail(gpunn_device *dev, bool writing, const char *path, int error)
{
    const char *remedy = "check the path and the disk";
    switch (error) {
    case ENOENT: remedy = writing ? "create its directory first" : "check the path"; break;
    case ENOTDIR: remedy = "part of the path is a file; check it"; break;
    case EISDIR: remedy = "name a file, not a directory"; break;
    case EACCES:
    case EPERM:
    case EROFS:
        remedy = writing ? "choose a place where this user may write" : "allow this user to read it";
        break;
    case ENOSPC:
    case EFBIG:
#ifdef EDQUOT
    case EDQUOT:
#endif
        remedy = "make room or choose another disk";
        break;
    default: break;
    }
    return gpunn__fail(dev, GPUNN_ERR_IO, "cannot %s '%s': %s; %s", writing ? "write" : "read",
                       gpunn__tail(path), strerror(error), remedy);
}

/* instead of an errno: out of memory, already recorded as the device's error */
enum { GPUNN__RECORDED = -1 };

/* The name of a temporary file. It is random, so leftovers of a killed process with the same process id do
 * not collide, and short. */
#define GPUNN__TEMPORARY ".gpunn-0123456789abcdef.tmp"
enum { GPUNN__TEMPORARY_SIZE = sizeof GPUNN__TEMPORARY };

static void gpunn__name_temporary(const gpunn__file *f, uint32_t attempt, char *to)
{
    uint64_t key, place = (uint64_t)(uintptr_t)f;
    double   now = gpunn__seconds();
    uint32_t counter[4] = {(uint32_t)GPUNN__OS(getpid)(), attempt, (uint32_t)place, (uint32_t)(place >> 32)},
             out[4];
    memcpy(&key, &now, sizeof key);
    gpunn__philox(key, counter, out);
    (void)snprintf(to, GPUNN__TEMPORARY_SIZE, ".gpunn-%08lx%08lx.tmp", (unsigned long)out[0],
                   (unsigned long)out[1]);
}

#ifdef _WIN32
static int gpunn__follow(gpunn__file *f)
{
    (void)f;
    return 0;
}
static bool gpunn__lock(int fd)
{
    (void)fd;
    return true;
}
static void gpunn__remove_stale(const gpunn__file *f)
{
    (void)f;
}
#else
/* Resolves symbolic links of the target, also to a file that does not exist yet. Returns 0, an errno, or
 * GPUNN__RECORDED. */
static int gpunn__follow(gpunn__file *f)
{
    char link[4096];
    for (int links = 0;; links++) {
        ssize_t length = readlink(f->target, link, sizeof link);
        if (length <= 0) return 0;
        if (links == 40) return ELOOP;
        if (length == (ssize_t)sizeof link) return ENAMETOOLONG;
        const char *slash = link[0] == '/' ? NULL : strrchr(f->target, '/');
        size_t      head = slash ? (size_t)(slash - f->target) + 1 : 0, size = head + (size_t)length + 1;
        char       *next = (char *)gpunn__realloc(f->dev, NULL, 0, size);
        if (next == NULL) return GPUNN__RECORDED;
        memcpy(next, f->target, head);
        memcpy(next + head, link, (size_t)length);
        next[size - 1] = 0;
        gpunn__free(f->dev, f->target, f->target_size);
        f->target = next;
        f->target_size = size;
    }
}

/* Locks a new file while it is open. Returns false if another process has just removed it as stale. */
static bool gpunn__lock(int fd)
{
    struct stat there;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK; /* a file system without locks */
    return fstat(fd, &there) != 0 || there.st_nlink > 0;
}

/* Removes temporary files that killed processes have left next to the target. It removes only files of this
 * user, with such a name, that no process has locked. */
static void gpunn__remove_stale(const gpunn__file *f)
{
    char own[GPUNN__TEMPORARY_SIZE], *name = f->temporary + f->temporary_size - GPUNN__TEMPORARY_SIZE;
    DIR *directory;
    memcpy(own, name, sizeof own);
    *name = 0;
    directory = opendir(*f->temporary ? f->temporary : ".");
    for (struct dirent *entry; directory && (entry = readdir(directory)) != NULL;) {
        struct stat there;
        if (strlen(entry->d_name) != sizeof own - 1 || strncmp(entry->d_name, own, 7) != 0 ||
            strspn(entry->d_name + 7, "0123456789abcdef") != 16 || strcmp(entry->d_name + 23, own + 23) != 0)
            continue;
        memcpy(name, entry->d_name, sizeof own);
        int fd = open(f->temporary, O_RDWR | O_NONBLOCK | GPUNN__O_FLAGS);
        if (fd < 0) continue;
        if (fstat(fd, &there) == 0 && GPUNN__IS_REGULAR(there.st_mode) && there.st_uid == geteuid() &&
            flock(fd, LOCK_EX | LOCK_NB) == 0)
            (void)unlink(f->temporary);
        (void)close(fd);
    }
    if (directory) (void)closedir(directory);
    memcpy(name, own, sizeof own);
}
#endif

GPUNN__INTERNAL void gpunn__file_discard(gpunn__file *f)
{
    if (f->fd >= 0) {
        (void)GPUNN__OS(close)(f->fd);
        if (f->temporary) (void)gpunn__unlink(f->temporary);
    }
    f->fd = -1;
    gpunn__free(f->dev, f->temporary, f->temporary_size);
    gpunn__free(f->dev, f->target, f->target_size);
    f->temporary = f->target = NULL;
}

/* Opens a new file next to the target. Returns 0, an errno, or GPUNN__RECORDED. */
static int gpunn__open_beside(gpunn__file *f, int flags)
{
    int mode = f->exists ? 0600 : 0666, error = gpunn__follow(f);
#ifdef _WIN32
    if (f->exists) mode = (int)(f->there.st_mode & 0777);
#endif
    if (error) return error;
    size_t head = (size_t)(gpunn__file_name(f->target) - f->target);
    f->temporary_size = head + GPUNN__TEMPORARY_SIZE;
    f->temporary = (char *)gpunn__realloc(f->dev, NULL, 0, f->temporary_size);
    if (f->temporary == NULL) return GPUNN__RECORDED;
    memcpy(f->temporary, f->target, head);
    for (uint32_t attempt = 0; attempt < 100 && f->fd < 0; attempt++) {
        gpunn__name_temporary(f, attempt, f->temporary + head);
        f->fd = gpunn__open(f->temporary, flags | O_CREAT | O_EXCL, mode);
        if (f->fd < 0 && errno != EEXIST) return errno;
        if (f->fd >= 0 && !gpunn__lock(f->fd)) {
            (void)GPUNN__OS(close)(f->fd);
            f->fd = -1;
        }
    }
    if (f->fd < 0) return EEXIST;
    gpunn__remove_stale(f);
    return 0;
}

GPUNN__INTERNAL void gpunn__file_to_memory(gpunn_device *dev, void *memory, gpunn__file *f)
{
    f->dev = dev;
    f->path = "memory";
    f->target = f->temporary = NULL;
    f->fd = -1;
    f->memory = (unsigned char *)memory;
    f->status = GPUNN_OK;
    f->used = 0;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__file_open(gpunn_device *dev, const char *path, gpunn__file *f)
{
    gpunn__file_to_memory(dev, NULL, f);
    f->path = path;
    f->status = GPUNN_ERR_ARGUMENT;
    if (path == NULL || *path == 0)
        return gpunn__fail(dev, f->status, "cannot write a file: its path is %s; name one",
                           path ? "\"\"" : "NULL");
    int flags = O_WRONLY | GPUNN__O_FLAGS, error = 0;
    f->exists = gpunn__stat(path, &f->there) == 0;
    if (f->exists && GPUNN__IS_DIRECTORY(f->there.st_mode)) {
        error = EISDIR;
    } else if (f->exists && !GPUNN__IS_REGULAR(f->there.st_mode)) {
        f->fd = gpunn__open(path, flags, 0);
        if (f->fd < 0) error = errno;
    } else {
        f->target_size = strlen(path) + 1;
        f->target = (char *)gpunn__realloc(dev, NULL, 0, f->target_size);
        if (f->target) memcpy(f->target, path, f->target_size);
        error = f->target ? gpunn__open_beside(f, flags) : GPUNN__RECORDED;
    }
    f->status = error == GPUNN__RECORDED ? GPUNN_ERR_MEMORY : GPUNN_OK;
    if (error && error != GPUNN__RECORDED) f->status = gpunn__file_fail(dev, true, path, error);
    if (f->status != GPUNN_OK) gpunn__file_discard(f);
    return f->status;
}

static void gpunn__file_put(gpunn__file *f, const unsigned char *data, size_t bytes)
{
    while (bytes > 0 && f->status == GPUNN_OK) {
        int64_t done = (int64_t)GPUNN__OS(write)(f->fd, data,
                                                 (unsigned)(bytes < (1u << 30) ? bytes : 1u << 30));
        if (done > 0) {
            data += done;
            bytes -= (size_t)done;
        } else if (done == 0 || errno != EINTR)
            f->status = gpunn__file_fail(f->dev, true, f->path, done == 0 ? ENOSPC : errno);
    }
}

GPUNN__INTERNAL gpunn_status gpunn__file_write(gpunn__file *f, const void *data, size_t bytes)
{
    if (f->memory) {
        if (bytes > 0) memcpy(f->memory, data, bytes);
        f->memory += bytes;
        return f->status;
    }
    if (bytes > sizeof f->buffer - f->used) {
        gpunn__file_put(f, f->buffer, f->used);
        f->used = 0;
    }
    if (bytes >= sizeof f->buffer)
        gpunn__file_put(f, (const unsigned char *)data, bytes);
    else if (bytes > 0) {
        memcpy(f->buffer + f->used, data, bytes);
        f->used += bytes;
    }
    return f->status;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__file_commit(gpunn__file *f)
{
    if (f->fd < 0) return f->status;
    gpunn__file_put(f, f->buffer, f->used);
    if (f->status == GPUNN_OK) {
        int error = f->temporary && gpunn__sync(f->fd) != 0 ? errno : 0;
#ifndef _WIN32
        /* no more readable than the old file, even if this user cannot set the group */
        if (f->temporary && f->exists) {
            bool same = chown(f->temporary, f->there.st_uid, f->there.st_gid) == 0 ||
                        chown(f->temporary, geteuid(), f->there.st_gid) == 0;
            (void)chmod(f->temporary, f->there.st_mode & (same ? 0777 : 0707));
        }
        /* while it is locked */
        if (f->temporary && error == 0 && rename(f->temporary, f->target) != 0) error = errno;
#endif
        /* a temporary file is already synced */
        if (GPUNN__OS(close)(f->fd) != 0 && f->temporary == NULL) error = errno;
        f->fd = -1;
#ifdef _WIN32
        if (f->temporary && error == 0 && !gpunn__replace(f->temporary, f->target)) error = EACCES;
#endif
        if (error) {
            if (f->temporary) (void)gpunn__unlink(f->temporary);
            f->status = gpunn__file_fail(f->dev, true, f->path, error);
        }
#ifndef _WIN32
        /* sync the directory with the new name too, if the file system supports that */
        else if (f->temporary) {
            f->temporary[f->temporary_size - GPUNN__TEMPORARY_SIZE] = 0;
            int directory = open(*f->temporary ? f->temporary : ".", O_RDONLY | GPUNN__O_FLAGS);
            if (directory >= 0) {
                (void)gpunn__sync(directory);
                (void)close(directory);
            }
        }
#endif
    }
    gpunn__file_discard(f);
    return f->status;
}

#ifdef GPUNN_ZLIB
/* zlib allocates through the program's realloc_fn, which needs the size on freeing. The size is stored in
 * front of the block. */
static void *gpunn__zlib_alloc(void *dev, unsigned count, unsigned size)
{
    size_t bytes = (size_t)count * size + 16;
    void  *block = gpunn__realloc((gpunn_device *)dev, NULL, 0, bytes);
    if (block == NULL) return NULL;
    memcpy(block, &bytes, sizeof bytes);
    return (char *)block + 16;
}

static void gpunn__zlib_free(void *dev, void *ptr)
{
    char  *block = (char *)ptr - 16;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    gpunn__free((gpunn_device *)dev, block, bytes);
}
#endif

GPUNN__INTERNAL void gpunn__reader_close(gpunn__reader *r)
{
    if (r->file) r->io->close(r->io->user, r->file);
    if (r->fd >= 0) (void)GPUNN__OS(close)(r->fd);
    r->file = NULL;
    r->fd = -1;
#ifdef GPUNN_ZLIB
    if (r->compressed) (void)inflateEnd(&r->zlib);
    r->compressed = false;
#endif
}

/* Reads the file's next bytes as stored. *got is smaller than bytes only at the end of the file. */
static GPUNN__STATUS gpunn__reader_raw(gpunn__reader *r, void *to, size_t bytes, size_t *got)
{
    *got = 0;
    while (*got < bytes) {
        size_t  want = bytes - *got < (1u << 30) ? bytes - *got : 1u << 30;
        char   *at = (char *)to + *got;
        int64_t done = r->io ? r->io->read(r->io->user, r->file, at, want)
                             : (int64_t)GPUNN__OS(read)(r->fd, at, (unsigned)want);
        if (done == 0) break;
        if (done > 0 && (uint64_t)done <= want)
            *got += (size_t)done;
        else if (r->io)
            return gpunn__fail(
                r->dev, GPUNN_ERR_IO,
                "cannot read '%s': .io's read returned %lld for %zu bytes; check that function",
                gpunn__tail(r->path), (long long)done, want);
        else if (errno != EINTR)
            return gpunn__file_fail(r->dev, false, r->path, errno);
    }
    return GPUNN_OK;
}

static GPUNN__STATUS gpunn__reader_fill(gpunn__reader *r)
{
    r->at = 0;
    return gpunn__reader_raw(r, r->buffer, sizeof r->buffer, &r->end);
}

static GPUNN__STATUS gpunn__reader_open_io(gpunn__reader *r)
{
    const gpunn_io *io = r->io;
    const char     *path = gpunn__tail(r->path);
    if (!io->open || !io->size || !io->read || !io->close)
        return gpunn__fail(r->dev, GPUNN_ERR_ARGUMENT,
                           "cannot read '%s': .io lacks a function; set open, size, read and close", path);
    r->file = io->open(io->user, r->path);
    if (r->file == NULL)
        return gpunn__fail(r->dev, GPUNN_ERR_IO,
                           "cannot read '%s': .io's open does not find it; check the path", path);
    int64_t size = io->size(io->user, r->file);
    r->limit = (uint64_t)size;
    if (size >= 0) return GPUNN_OK;
    gpunn__reader_close(r);
    return gpunn__fail(r->dev, GPUNN_ERR_IO,
                       "cannot read '%s': .io's size returned %lld; check that function", path,
                       (long long)size);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__reader_open(gpunn_device *dev, const gpunn_io *io, const char *path,
                                                 bool gz, gpunn__reader *r)
{
    r->dev = dev;
    r->path = path;
    r->io = io;
    r->file = NULL;
    r->fd = -1;
    r->at = r->end = 0;
#ifdef GPUNN_ZLIB
    r->compressed = false;
#endif
    if (path == NULL || *path == 0)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "cannot read a file: its path is %s; name one",
                           path ? "\"\"" : "NULL");
    if (io) return gpunn__reader_open_io(r);
    gpunn__stat_result there;
    if (gpunn__stat(path, &there) != 0) return gpunn__file_fail(dev, false, path, errno);
    if (GPUNN__IS_DIRECTORY(there.st_mode)) return gpunn__file_fail(dev, false, path, EISDIR);
    if (!GPUNN__IS_REGULAR(there.st_mode))
        return gpunn__fail(dev, GPUNN_ERR_IO,
                           "cannot read '%s': it is not a regular file; copy its contents into one",
                           gpunn__tail(path));
    r->limit = (uint64_t)there.st_size;
    r->fd = gpunn__open(path, O_RDONLY | GPUNN__O_FLAGS, 0);
    if (r->fd < 0) return gpunn__file_fail(dev, false, path, errno);
    if (!gz) return GPUNN_OK;
    gpunn_status status = gpunn__reader_fill(r);
    if (status == GPUNN_OK && r->end >= 2 && r->buffer[0] == 0x1f && r->buffer[1] == 0x8b) {
#ifdef GPUNN_ZLIB
        memset(&r->zlib, 0, sizeof r->zlib);
        r->zlib.zalloc = gpunn__zlib_alloc;
        r->zlib.zfree = gpunn__zlib_free;
        r->zlib.opaque = dev;
        /* 16: expect gzip's header and checksum */
        r->compressed = r->member = inflateInit2(&r->zlib, 15 + 16) == Z_OK;
        if (!r->compressed)
            status = gpunn__fail(dev, GPUNN_ERR_MEMORY, "cannot read '%s': zlib did not start; free memory",
                                 gpunn__tail(path));
        r->limit = r->limit < UINT64_MAX / 1032 ? r->limit * 1032 : UINT64_MAX; /* deflate's maximum ratio */
#else
        status = gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                             "'%s' is compressed: build with -DGPUNN_ZLIB and -lz, or gunzip it first",
                             gpunn__tail(path));
#endif
    }
    if (status != GPUNN_OK) gpunn__reader_close(r);
    return status;
}

#ifdef GPUNN_ZLIB
static const char *gpunn__inflate_fault(const z_stream *z, int result)
{
    if (result == Z_BUF_ERROR) return "the compressed data is cut short";
    return z->msg ? z->msg : "bad compressed data";
}

static GPUNN__STATUS gpunn__reader_inflate(gpunn__reader *r, unsigned char *to, size_t bytes, size_t *got)
{
    z_stream *z = &r->zlib;
    *got = 0;
    while (*got < bytes) {
        if (r->at == r->end) {
            gpunn_status status = gpunn__reader_fill(r);
            if (status != GPUNN_OK) return status;
        }
        if (!r->member) {
            if (r->at == r->end) break;
            (void)inflateReset(z);
            r->member = true;
        }
        unsigned available = (unsigned)(bytes - *got < (1u << 30) ? bytes - *got : 1u << 30);
        z->next_in = r->buffer + r->at;
        z->avail_in = (unsigned)(r->end - r->at);
        z->next_out = to + *got;
        z->avail_out = available;
        int result = inflate(z, Z_NO_FLUSH);
        *got += available - z->avail_out;
        r->at = r->end - z->avail_in;
        if (result == Z_STREAM_END)
            r->member = false;
        else if (result == Z_MEM_ERROR)
            return GPUNN_ERR_MEMORY; /* recorded by the allocation */
        else if (result != Z_OK)
            return gpunn__fail(r->dev, GPUNN_ERR_FORMAT, "'%s' is damaged: %s; download it again",
                               gpunn__tail(r->path), gpunn__inflate_fault(z, result));
    }
    return GPUNN_OK;
}
#endif

static void *gpunn__memory_open(void *memory, const char *path)
{
    (void)path;
    return memory;
}

static int64_t gpunn__memory_size(void *memory, void *file)
{
    (void)file;
    return (int64_t)((const gpunn__memory *)memory)->left;
}

static int64_t gpunn__memory_read(void *memory, void *file, void *to, size_t bytes)
{
    gpunn__memory *m = (gpunn__memory *)memory;
    size_t         part = bytes < m->left ? bytes : m->left;
    (void)file;
    if (part) memcpy(to, m->at, part);
    m->at += part;
    m->left -= part;
    return (int64_t)part;
}

static void gpunn__memory_close(void *memory, void *file)
{
    (void)memory;
    (void)file;
}

GPUNN__INTERNAL gpunn_io gpunn__memory_io(gpunn__memory *memory)
{
    gpunn_io io = {gpunn__memory_open, gpunn__memory_size, gpunn__memory_read, gpunn__memory_close, memory};
    return io;
}

#ifdef _WIN32
GPUNN__INTERNAL void *gpunn__reader_map(const gpunn__reader *r)
{
    (void)r;
    return NULL;
}

GPUNN__INTERNAL void gpunn__unmap(void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
}
#else
GPUNN__INTERNAL void *gpunn__reader_map(const gpunn__reader *r)
{
    gpunn__stat_result there;
    if (r->fd < 0 || r->limit > SIZE_MAX || fstat(r->fd, &there) != 0 || (uint64_t)there.st_size < r->limit)
        return NULL;
    void *memory = mmap(NULL, (size_t)r->limit, PROT_READ, MAP_PRIVATE, r->fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

GPUNN__INTERNAL void gpunn__unmap(void *memory, size_t bytes)
{
    (void)munmap(memory, bytes);
}
#endif

GPUNN__INTERNAL GPUNN__STATUS gpunn__reader_some(gpunn__reader *r, void *to, size_t bytes, size_t *got)
{
#ifdef GPUNN_ZLIB
    if (r->compressed) return gpunn__reader_inflate(r, (unsigned char *)to, bytes, got);
#endif
    *got = 0;
    gpunn_status status = GPUNN_OK;
    while (*got < bytes && status == GPUNN_OK) {
        size_t want = bytes - *got, have = r->end - r->at, more = 0;
        if (have == 0 && want >= sizeof r->buffer) {
            status = gpunn__reader_raw(r, (char *)to + *got, want, &more);
            *got += more;
            break;
        }
        if (have == 0) {
            status = gpunn__reader_fill(r);
            if (r->end == 0) break;
            continue;
        }
        more = have < want ? have : want;
        memcpy((char *)to + *got, r->buffer + r->at, more);
        r->at += more;
        *got += more;
    }
    return status;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__reader_read(gpunn__reader *r, void *to, size_t bytes)
{
    size_t       got;
    gpunn_status status = gpunn__reader_some(r, to, bytes, &got);
    if (status == GPUNN_OK && got < bytes)
        status = gpunn__fail(r->dev, GPUNN_ERR_FORMAT,
                             "'%s' is cut short: %zu more bytes should follow; write or download it again",
                             gpunn__tail(r->path), bytes - got);
    return status;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__reader_end(gpunn__reader *r)
{
    char         byte;
    size_t       got;
    gpunn_status status = gpunn__reader_some(r, &byte, 1, &got);
    if (status == GPUNN_OK && got)
        status = gpunn__fail(
            r->dev, GPUNN_ERR_FORMAT,
            "'%s' has more bytes after the end of its data; it is damaged or has another format",
            gpunn__tail(r->path));
    return status;
}
/* -- a whole JSON document -- */
enum { GPUNN__JSON_BYTES = 64 << 20 };

GPUNN__INTERNAL void gpunn__document_free(gpunn_device *dev, gpunn__document *document)
{
    gpunn__free(dev, document->items.at, (size_t)document->items.capacity * sizeof *document->items.at);
    gpunn__free(dev, document->text, document->size);
}

static GPUNN__STATUS gpunn__document_parse(gpunn__reader *r, gpunn__document *document)
{
    gpunn_device *dev = r->dev;
    if (r->limit > GPUNN__JSON_BYTES)
        return gpunn__fail(dev, GPUNN_ERR_FORMAT, "'%s' has %llu bytes; the limit for JSON is 64 MiB",
                           gpunn__tail(r->path), (unsigned long long)r->limit);
    document->size = (size_t)r->limit + 1;
    document->text = (char *)gpunn__realloc(dev, NULL, 0, document->size);
    if (document->text == NULL) return GPUNN_ERR_MEMORY;
    gpunn_status status = gpunn__reader_read(r, document->text, document->size - 1);
    if (status == GPUNN_OK) status = gpunn__reader_end(r);
    if (status != GPUNN_OK) return status;
    document->text[document->size - 1] = 0;
    gpunn__json json = gpunn__json_of(document->text, document->size - 1, false);
    bool        ok = gpunn__json_item(dev, &json, &document->items, 0);
    (void)gpunn__json_peek(&json, 0);
    if (ok && json.at != json.end) ok = gpunn__json_fail(&json, "has text after its end");
    if (ok) return GPUNN_OK;
    if (json.problem == NULL) return GPUNN_ERR_MEMORY;
    return gpunn__fail(dev, GPUNN_ERR_FORMAT, "%s:%d:%d: the JSON %s", gpunn__tail(r->path), json.line + 1,
                       (int)(json.at - json.line_start) + 1, json.problem);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__document_read(gpunn_device *dev, const gpunn_io *io, const char *path,
                                                   gpunn__document *document)
{
    gpunn__reader r;
    gpunn_status  status = gpunn__reader_open(dev, io, path, false, &r);
    memset(document, 0, sizeof *document);
    if (status != GPUNN_OK) return status;
    status = gpunn__document_parse(&r, document);
    gpunn__reader_close(&r);
    return status;
}

GPUNN__INTERNAL int gpunn__document_find(const gpunn__document *document, int object, const char *key)
{
    const gpunn__item *item = document->items.at;
    for (int i = object + 1; item[object].kind == GPUNN__J_OBJECT && i < item[object].next;
         i = item[i + 1].next)
        if (gpunn__slice_is(&item[i].text, key)) return i + 1;
    return 0;
}
