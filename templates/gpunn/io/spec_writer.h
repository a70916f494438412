#ifndef GPUNN__IO_SPEC_WRITER_H
#define GPUNN__IO_SPEC_WRITER_H
#include "base/structs.h"

/* ==== >>io/spec_writer =================================================================================== *
 * Writes a model as JSON. gpunn_spec_save writes it and gpunn_spec_load reads it. */
/* The name of an optimizer's kind, such as "adam". */
GPUNN__INTERNAL const char *gpunn__kind_name(gpunn_update_kind kind);

/* Stores all values that no op reads to out, which must have room for all tensors, and returns their number.
 * Assignments are omitted, since runs compute them anyway. */
GPUNN__INTERNAL int gpunn__unread(const gpunn_model *model, gpunn_tensor **out);

#endif /* GPUNN__IO_SPEC_WRITER_H */
