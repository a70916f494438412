#ifndef GPUNN__IO_SPEC_WRITER_H
#define GPUNN__IO_SPEC_WRITER_H
#include "base/structs.h"

/* ==== >>io/spec_writer ============================================================================================= *
 * A model as JSON: what gpunn_spec_save writes and gpunn_spec_load reads. */
/* "adam" */
GPUNN__INTERNAL const char *gpunn__kind_name(gpunn_update_kind kind);

/* Every value that no op reads, but for assignments, which runs make by themselves, into room for all tensors; their number. */
GPUNN__INTERNAL int gpunn__unread(const gpunn_model *model, gpunn_tensor **out);

#endif /* GPUNN__IO_SPEC_WRITER_H */
