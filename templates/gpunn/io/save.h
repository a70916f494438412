#ifndef GPUNN__IO_SAVE_H
#define GPUNN__IO_SAVE_H
#include "io/checkpoint.h"

/* ==== >>io/save ==================================================================================================== *
 * One walk over everything that is saved, three times: to measure the header, to write it, to write the tensors. */
typedef enum gpunn__pass { GPUNN__MEASURE, GPUNN__HEADER, GPUNN__TENSORS } gpunn__pass;

typedef struct gpunn__writer {
    gpunn_device *dev;
    gpunn__file  *file;
    gpunn__pass   pass;
    uint64_t      length; /* of the header so far */
    uint64_t      offset; /* of the next tensor */
    char         *chunk;
    gpunn_status  status;
} gpunn__writer;

GPUNN__INTERNAL void gpunn__emit(gpunn__writer *w, const char *text, size_t length);

GPUNN__INTERNAL void gpunn__emitf(gpunn__writer *w, const char *format, ...) GPUNN__PRINTF(2, 3);

/* "prefix and name" */
GPUNN__INTERNAL void gpunn__emit_name(gpunn__writer *w, const char *prefix, const char *name);

/* A tensor in the header. */
GPUNN__INTERNAL void gpunn__emit_entry(gpunn__writer *w, const char *prefix, const char *name, gpunn_dtype dtype, int rank,
                                       const int64_t *dim, size_t bytes);

GPUNN__INTERNAL void gpunn__emit_begin(gpunn__writer *w, gpunn__pass pass, const gpunn__resume *resume, int count);

/* emit walks over `what`. memory: receives the bytes of the file; NULL: they go to path. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__archive_write(gpunn_device *dev, const char *path, gpunn_array *memory,
                                                   void (*emit)(gpunn__writer *w, gpunn__pass pass, const void *what),
                                                   const void *what);

#endif /* GPUNN__IO_SAVE_H */
