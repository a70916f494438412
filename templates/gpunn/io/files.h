#ifndef GPUNN__IO_FILES_H
#define GPUNN__IO_FILES_H
#include "base/json.h"

/* ==== >>io/files ========================================================================================= *
 * File access: one layer over POSIX and Windows, used by everything that reads or writes a file. */
#ifdef _WIN32
typedef struct _stat64 gpunn__stat_result;
#endif
/* Moves the file position forward. Returns false on failure. */
GPUNN__INTERNAL bool gpunn__seek(int fd, int64_t bytes);

#ifndef _WIN32
typedef struct stat gpunn__stat_result;
#endif

/* The end of a path, for messages that cannot hold a longer one. */
GPUNN__INTERNAL const char *gpunn__tail(const char *path);

/* The last component of a path. */
GPUNN__INTERNAL const char *gpunn__file_name(const char *path);

/* Makes a folder. If it cannot, writing a file in it will tell. */
GPUNN__INTERNAL void gpunn__make_folder(const char *path);

/* -- writing: into a new file next to the target, which replaces the target when complete. The first failure
 * is kept, so callers may go on writing and check only the status of the commit. Anything but a regular file
 * (/dev/null, a pipe) is written directly. A symbolic link is kept: the file that it points to is replaced.
 * Mode, owner and group are preserved as far as this user may set them. Of several hard links only the named
 * one becomes the new file, because no system call replaces a file under all its names at once. -- */
typedef struct gpunn__file {
    gpunn_device      *dev;
    const char        *path;      /* the caller's memory; must live until commit or discard */
    char              *target;    /* path with symbolic links resolved */
    char              *temporary; /* NULL: the file is written directly */
    size_t             target_size, temporary_size;
    gpunn__stat_result there; /* status of the old file */
    bool               exists;
    int                fd;     /* -1: closed */
    unsigned char     *memory; /* address of the next byte when writing into memory; NULL: a file */
    gpunn_status       status;
    size_t             used;
    unsigned char      buffer[8192];
} gpunn__file;

/* Closes and removes the temporary file and leaves the target unchanged. Harmless after a commit. */
GPUNN__INTERNAL void gpunn__file_discard(gpunn__file *f);

/* Writes into the caller's memory, which must be large enough for everything that will be written. */
GPUNN__INTERNAL void gpunn__file_to_memory(gpunn_device *dev, void *memory, gpunn__file *f);

/* On failure there is nothing to discard. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__file_open(gpunn_device *dev, const char *path, gpunn__file *f);

/* Returns the first failure so far. */
GPUNN__INTERNAL gpunn_status gpunn__file_write(gpunn__file *f, const void *data, size_t bytes);

/* Completes the file. Afterwards the target is either the new file, synced to the disk, or unchanged. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__file_commit(gpunn__file *f);

/* -- reading: forward only. With gz, a file that was compressed by gzip is decompressed on the way -- */
typedef struct gpunn__reader {
    gpunn_device   *dev;
    const char     *path; /* the caller's memory; must live until the reader is closed */
    const gpunn_io *io;   /* the program's file access; NULL: the file system */
    void           *file; /* the handle that io has opened; NULL: none */
    int             fd;
    uint64_t        limit;   /* upper bound of the bytes to come; limits the sizes that a header may claim */
    size_t          at, end; /* unread bytes of the buffer, as stored in the file */
#ifdef GPUNN_ZLIB
    bool     compressed, member; /* member: currently inside one of the gzip members of the file */
    z_stream zlib;
#endif
    unsigned char buffer[16384];
} gpunn__reader;

GPUNN__INTERNAL void gpunn__reader_close(gpunn__reader *r);

/* On failure there is nothing to close. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__reader_open(gpunn_device *dev, const gpunn_io *io, const char *path,
                                                 bool gz, gpunn__reader *r);

/* The whole file as memory that is only read; NULL: the system cannot map it. */
GPUNN__INTERNAL void *gpunn__reader_map(const gpunn__reader *r);
GPUNN__INTERNAL void  gpunn__unmap(void *memory, size_t bytes);

/* -- a file in memory -- */
typedef struct gpunn__memory {
    const char *at;
    size_t      left;
} gpunn__memory;

/* A gpunn_io that reads from memory. memory must outlive it. */
GPUNN__INTERNAL gpunn_io gpunn__memory_io(gpunn__memory *memory);

/* Reads up to `bytes` bytes. *got is smaller than bytes only at the end of the file. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__reader_some(gpunn__reader *r, void *to, size_t bytes, size_t *got);

/* Reads exactly `bytes` bytes; fails if there are fewer. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__reader_read(gpunn__reader *r, void *to, size_t bytes);

/* Fails if any data follows. For compressed files this also checks the last checksum. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__reader_end(gpunn__reader *r);

typedef struct gpunn__document {
    gpunn__items items; /* point into the text */
    char        *text;
    size_t       size;
} gpunn__document;

GPUNN__INTERNAL void gpunn__document_free(gpunn_device *dev, gpunn__document *document);

/* Reads and parses a JSON file. The document must be freed even on failure. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__document_read(gpunn_device *dev, const gpunn_io *io, const char *path,
                                                   gpunn__document *document);

/* Index of the item that is the value of a key; 0 if there is none or `object` is not an object. */
GPUNN__INTERNAL int gpunn__document_find(const gpunn__document *document, int object, const char *key);

#endif /* GPUNN__IO_FILES_H */
