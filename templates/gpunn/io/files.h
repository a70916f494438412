#ifndef GPUNN__IO_FILES_H
#define GPUNN__IO_FILES_H
#include "base/json.h"

/* ==== >>io/files =================================================================================================== *
 * One layer over POSIX and Windows, for everything that reads or writes a file. */
#ifdef _WIN32
typedef struct _stat64 gpunn__stat_result;
#endif
GPUNN__INTERNAL bool gpunn__seek(int fd, int64_t bytes);

#ifndef _WIN32
typedef struct stat gpunn__stat_result;
#endif

/* For messages: the end of a path that is too long for one. */
GPUNN__INTERNAL const char *gpunn__tail(const char *path);

/* Where the file's own name begins. */
GPUNN__INTERNAL const char *gpunn__file_name(const char *path);

/* -- writing: into a new file beside the target that replaces it when complete. The first failure stays, so callers may write on
 * and look at the status of the commit only. What is no regular file (/dev/null, a pipe) is written directly. A symbolic link
 * stays: the file that it leads to is replaced. Mode, owner and group stay as far as this user may set them; of hard links only
 * the one that is named becomes the new file, as nothing can exchange a file under all its names at once. -- */
typedef struct gpunn__file {
    gpunn_device      *dev;
    const char        *path;      /* the caller's; must live until commit or discard */
    char              *target;    /* what that leads to */
    char              *temporary; /* NULL: written directly */
    size_t             target_size, temporary_size;
    gpunn__stat_result there; /* the old file */
    bool               exists;
    int                fd;     /* -1: closed */
    unsigned char     *memory; /* where the next byte goes instead, with room for all of them; NULL: into a file */
    gpunn_status       status;
    size_t             used;
    unsigned char      buffer[8192];
} gpunn__file;

/* Forgets the file and leaves the target as it was. Harmless after a commit. */
GPUNN__INTERNAL void gpunn__file_discard(gpunn__file *f);

/* Writes into memory, which has room for all that will come. */
GPUNN__INTERNAL void gpunn__file_to_memory(gpunn_device *dev, void *memory, gpunn__file *f);

/* A failure here leaves nothing to discard. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__file_open(gpunn_device *dev, const char *path, gpunn__file *f);

GPUNN__INTERNAL gpunn_status gpunn__file_write(gpunn__file *f, const void *data, size_t bytes);

/* The target is the new file, safely on the disk, or what it was before. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__file_commit(gpunn__file *f);

/* -- reading: forward only; with gz, a file that gzip compressed is expanded on the way -- */
typedef struct gpunn__reader {
    gpunn_device   *dev;
    const char     *path; /* the caller's; must live until the reader is closed */
    const gpunn_io *io;   /* where the file is; NULL: the file system */
    void           *file; /* what io has opened; NULL: nothing */
    int             fd;
    uint64_t        limit;   /* no more bytes than this can come, which bounds what a header may claim */
    size_t          at, end; /* unread bytes of the buffer, as they are in the file */
#ifdef GPUNN_ZLIB
    bool     compressed, member; /* member: inside one of the gzip members that make up the file */
    z_stream zlib;
#endif
    unsigned char buffer[16384];
} gpunn__reader;

GPUNN__INTERNAL void gpunn__reader_close(gpunn__reader *r);

/* A failure here leaves nothing to close. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__reader_open(gpunn_device *dev, const gpunn_io *io, const char *path, bool gz,
                                                 gpunn__reader *r);

/* -- a file that lies in memory -- */
typedef struct gpunn__memory {
    const char *at;
    size_t      left;
} gpunn__memory;

GPUNN__INTERNAL gpunn_io gpunn__memory_io(gpunn__memory *memory);

/* *got is smaller than bytes only at the end. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__reader_some(gpunn__reader *r, void *to, size_t bytes, size_t *got);

/* Exactly that many bytes; fewer are an error. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__reader_read(gpunn__reader *r, void *to, size_t bytes);

/* Nothing may follow; for compressed files this checks the last checksum too. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__reader_end(gpunn__reader *r);

typedef struct gpunn__document {
    gpunn__items items; /* which point into the text */
    char        *text;
    size_t       size;
} gpunn__document;

GPUNN__INTERNAL void gpunn__document_free(gpunn_device *dev, gpunn__document *document);

/* To be freed after a failure, too. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__document_read(gpunn_device *dev, const gpunn_io *io, const char *path,
                                                   gpunn__document *document);

/* The place of what an object has for a key; 0: nothing, or it is no object. */
GPUNN__INTERNAL int gpunn__document_find(const gpunn__document *document, int object, const char *key);

#endif /* GPUNN__IO_FILES_H */
