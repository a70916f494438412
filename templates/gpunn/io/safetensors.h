#ifndef GPUNN__IO_SAFETENSORS_H
#define GPUNN__IO_SAFETENSORS_H
#include "io/elements.h"

/* ==== >>io/safetensors ============================================================================================= *
 * A file is: bytes of the header (8 bytes, little-endian), the header, the tensors. The header is JSON: {"name": {"dtype": "F32",
 * "shape": [2, 3], "data_offsets": [begin, end]}, ...} and "__metadata__", strings by name. The tensors fill the rest, no
 * gaps. */
typedef struct gpunn__archive gpunn__archive;

typedef struct gpunn__entry {
    gpunn__slice           name;
    gpunn__slice           text;     /* metadata: the value; tensors: the dtype */
    const gpunn__encoding *encoding; /* NULL: a dtype unknown here */
    int                    rank;
    int64_t                dim[GPUNN_MAX_RANK]; /* the first of them where there are more */
    uint64_t               begin, end;
    gpunn__archive        *file;    /* in which it is */
    bool                   matched; /* somebody knows it */
    void                  *to;      /* where to read it; NULL: skip it */
    gpunn_dtype            as;      /* which it is there */
} gpunn__entry;

typedef struct gpunn__table {
    gpunn__entry *items; /* sorted by name once complete */
    int           count, capacity;
} gpunn__table;

/* A file, or all files that an index names, whose tensors stand in its table. */
struct gpunn__archive {
    gpunn__reader    reader;         /* of a file */
    char            *header, *names; /* names: those that have been renamed */
    size_t           header_bytes, names_bytes;
    gpunn__table     tensors, notes;
    gpunn__archive **shards; /* of an index */
    int              shard_count, shard_capacity;
    int              number; /* among the shards */
    char            *path;   /* of a shard; NULL: the caller has it */
};

/* The entry called prefix + name, or NULL. */
GPUNN__INTERNAL gpunn__entry *gpunn__table_find(const gpunn__table *table, const char *prefix, const char *name);

GPUNN__INTERNAL void gpunn__archive_close(gpunn__archive *a);

/* A failure here leaves nothing to close. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__archive_open(gpunn_device *dev, const gpunn_io *io, const char *path, gpunn__archive *a);

/* Renames the tensors: first the room for all new names, then these. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__archive_rename(gpunn__archive *a, const gpunn_rename *map);

enum { GPUNN__CHUNK = 1 << 20 }; /* bytes on their way between a device and a file */

/* Reads every tensor that has a place: in host memory or, with a chunk to come through, in the device's. The tables are out of
 * order afterwards. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__archive_read(gpunn__archive *a, void *chunk);

#endif /* GPUNN__IO_SAFETENSORS_H */
