#ifndef GPUNN__IO_SPEC_WRITER_H
#define GPUNN__IO_SPEC_WRITER_H
#include "io/save.h"

/* ==== >>io/spec_writer =================================================================================== *
 * Writes a model as JSON. gpunn_spec_save writes it and gpunn_spec_load reads it. */
/* The name of an optimizer's kind, such as "adam". */
GPUNN__INTERNAL const char *gpunn__kind_name(gpunn_update_kind kind);

/* Settings of an optimizer that a spec writes as one list. */
typedef struct gpunn__setting_list {
    const char *first, *name, *length; /* first: of its settings; length: in words, for messages */
    int         count;
} gpunn__setting_list;

/* The list that begins with this setting; NULL: none. */
GPUNN__INTERNAL const gpunn__setting_list *gpunn__setting_list_of(const char *first);

/* Stores all values that no op reads to out, which must have room for all tensors, and returns their number.
 * Assignments are omitted, since runs compute them anyway. */
GPUNN__INTERNAL int gpunn__unread(const gpunn_model *model, gpunn_tensor **out);

/* Emits a model as a spec. path: names it if neither args nor its spec does. */
GPUNN__INTERNAL void gpunn__emit_spec(gpunn__writer *w, const gpunn_model *model, const char *path,
                                      const gpunn_spec_args *args);

/* Fails if the model is NULL, or args name tensors of another one. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__check_spec(const gpunn_model *model, const char *caller,
                                                const gpunn_spec_args *args);

#endif /* GPUNN__IO_SPEC_WRITER_H */
