#ifndef GPUNN__IO_SAVE_H
#define GPUNN__IO_SAVE_H
#include "io/checkpoint.h"

/* ==== >>io/save ========================================================================================== *
 * Writes safetensors files. One walk over everything to save runs three times: to measure the header, to
 * write it, and to write the tensors. */
typedef enum gpunn__pass { GPUNN__MEASURE, GPUNN__HEADER, GPUNN__TENSORS } gpunn__pass;

typedef struct gpunn__writer {
    gpunn_device *dev;
    gpunn__file  *file;
    gpunn__pass   pass;
    uint64_t      length; /* bytes of the header so far */
    uint64_t      offset; /* offset of the next tensor */
    bool          quoted; /* what is emitted is inside a JSON string, so it is escaped */
    bool          blocks; /* blocks, and weights of ops of 8-bit numbers, are not written as floats */
    char         *chunk;
    gpunn_status  status;
} gpunn__writer;

/* Adds text to the header: counts its bytes, and in pass GPUNN__HEADER writes it. */
GPUNN__INTERNAL void gpunn__emit(gpunn__writer *w, const char *text, size_t length);

/* The same for formatted text of less than 256 characters. */
GPUNN__INTERNAL void gpunn__emitf(gpunn__writer *w, const char *format, ...) GPUNN__PRINTF(2, 3);

/* Emits a text without its quotes, escaped for JSON. Each byte that is no UTF-8 becomes U+FFFD. Returns
 * whether there was none. */
GPUNN__INTERNAL bool gpunn__emit_escaped(gpunn__writer *w, const char *text, size_t length);

/* Emits separator and a number, with as few digits as identify it. */
GPUNN__INTERNAL void gpunn__emit_number(gpunn__writer *w, const char *separator, float value);

/* Emits prefix + name as a JSON string. A name that is not UTF-8 sets w->status. */
GPUNN__INTERNAL void gpunn__emit_name(gpunn__writer *w, const char *prefix, const char *name);

/* Emits the header's entry of a tensor. dtype: GPUNN__INT8, too. */
enum { GPUNN__INT8 = GPUNN_DTYPE_COUNT }; /* of files alone */
GPUNN__INTERNAL void gpunn__emit_entry(gpunn__writer *w, const char *prefix, const char *name,
                                       gpunn_dtype dtype, int rank, const int64_t *dim, size_t bytes);

/* Starts a pass and, except in GPUNN__TENSORS, emits the metadata, whose end "}" the caller emits. count:
 * number of optimizers in resume; 0: no checkpoint. */
GPUNN__INTERNAL void gpunn__emit_begin(gpunn__writer *w, gpunn__pass pass, const gpunn__resume *resume,
                                       int count);

/* Emits the parameters, buffers and saved states of a model. */
GPUNN__INTERNAL void gpunn__emit_values(gpunn__writer *w, const gpunn_model *model);

/* Allocates out for a file of that many bytes. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__array_of_bytes(gpunn_device *dev, uint64_t bytes, gpunn_array *out);

/* Writes a text into newly allocated memory. emit emits it, once to measure it and once to write it. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__text_write(gpunn_device *dev, gpunn_array *out,
                                                void (*emit)(gpunn__writer *w, const void *what),
                                                const void *what);

/* Writes a file by calling emit for each pass over `what`. memory: receives the bytes in newly allocated
 * memory; NULL: they go to path. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__archive_write(gpunn_device *dev, const char *path, gpunn_array *memory,
                                                   void (*emit)(gpunn__writer *w, gpunn__pass pass,
                                                                const void *what),
                                                   const void *what);

#endif /* GPUNN__IO_SAVE_H */
