#ifndef GPUNN__IO_SAFETENSORS_H
#define GPUNN__IO_SAFETENSORS_H
#include "base/forward_declarations.h"
#include "io/elements.h"

/* ==== >>io/safetensors =================================================================================== *
 * A safetensors file is the length of the header (8 bytes, little-endian), the header, and the tensors. The
 * header is JSON:
 * {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
 * An optional "__metadata__" maps names to strings. The tensors fill the rest without gaps. */
typedef struct gpunn__entry {
    gpunn__slice           name;
    gpunn__slice           text;     /* metadata: the value; tensors: the dtype */
    int                    type;     /* GGUF's number of the type of a value or a tensor */
    const gpunn__encoding *encoding; /* NULL: unknown dtype */
    int                    rank;
    int64_t                dim[GPUNN_MAX_RANK]; /* the first dimensions if there are more */
    uint64_t               begin, end;
    gpunn__archive        *file;    /* the file that contains it */
    bool                   matched; /* a tensor of the model or an optimizer has this name */
    bool                   kept;    /* a parameter is bound to its blocks */
    const gpunn_tensor    *rounded; /* the weight whose integers it has; NULL: it has numbers themselves */
    void                  *to;      /* destination of the data; NULL: skip it */
    gpunn_dtype            as;      /* dtype at the destination */
} gpunn__entry;

typedef struct gpunn__table {
    gpunn__entry *items; /* sorted by name once complete */
    int           count, capacity;
} gpunn__table;

/* An open file, or all files that an index names, with their tensors in one table. */
struct gpunn__archive {
    gpunn__reader    reader;         /* of a single file */
    uint64_t         at, bytes;      /* position of the reader behind the header, and bytes that follow it */
    bool             gguf;           /* a GGUF file, not safetensors */
    char            *header, *names; /* names: memory of renamed tensors' names */
    size_t           header_bytes, names_bytes;
    gpunn__table     tensors, notes;
    gpunn__archive **shards; /* of an index, or the parts of a GGUF file */
    int              shard_count, shard_capacity;
    int              number; /* index among the shards */
    char            *path;   /* of a shard; NULL: the caller owns it */
};

/* Appends an entry of that name. NULL: no memory. */
GPUNN__INTERNAL gpunn__entry *gpunn__table_add(gpunn_device *dev, gpunn__table *table,
                                               const gpunn__slice *name);

/* Sorts the tensors by their place in the file. */
GPUNN__INTERNAL void gpunn__sort_by_offset(gpunn__table *table);

/* Sorts both tables by name. Fails if a name occurs twice. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__sort_by_name(gpunn__archive *a);

/* The entry with the name prefix + name, or NULL. */
GPUNN__INTERNAL gpunn__entry *gpunn__table_find(const gpunn__table *table, const char *prefix,
                                                const char *name);

/* Also closes the shards and frees all memory of the archive. */
GPUNN__INTERNAL void gpunn__archive_close(gpunn__archive *a);

/* Opens a file, or an index (.json) and its shards, and checks the headers. On failure there is nothing to
 * close. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__archive_open(gpunn_device *dev, const gpunn_io *io, const char *path,
                                                  gpunn__archive *a);

/* Renames the tensors that match the map, in two passes: measure all new names, then write them. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__archive_rename(gpunn__archive *a, const gpunn_rename *map);

enum { GPUNN__CHUNK = 1 << 20 }; /* bytes copied at a time between a device and a file */

/* Reads every tensor that has a destination: in host memory, or, with a non-NULL chunk of GPUNN__CHUNK bytes,
 * in device memory. Afterwards the table of tensors is no longer sorted by name. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__archive_read(gpunn__archive *a, void *chunk);

/* In a safetensors file the blocks of a parameter are U8 [..., bytes of a row]. The metadata names their
 * format under this prefix and the parameter's name. */
GPUNN__PRIVATE const char gpunn__blocks_key[] = "gpunn_blocks:";

/* In the file of a model, a weight that ops of 8-bit numbers alone read is I8, under this prefix and its
 * name: the integers that its rows are, times their scales, which are another tensor of the file. */
GPUNN__PRIVATE const char gpunn__int8_prefix[] = "int8:";

#endif /* GPUNN__IO_SAFETENSORS_H */
