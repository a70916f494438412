#ifndef GPUNN__RUN_INSPECT_H
#define GPUNN__RUN_INSPECT_H
#include "base/structs.h"

/* ==== >>run/inspect ===================================================================================== */
/* Reports on models: gpunn_inspect runs a plan step by step with statistics of every value, gpunn_check_nan
 * finds the first non-finite value, and gpunn_model_summary lists layers and memory. */

typedef struct gpunn__text {
    void (*write)(void *user, const char *text);
    void *user;
} gpunn__text;

/* Formats a line and passes it to out->write, if non-NULL. Cuts lines to 255 bytes. */
GPUNN__INTERNAL void gpunn__text_line(const gpunn__text *out, const char *format, ...) GPUNN__PRINTF(2, 3);

/* Bytes of device memory that running a plan takes. */
typedef struct gpunn__footprint {
    size_t weights, gradients, inputs, arena, cache, together;
} gpunn__footprint;

/* least_arena: bytes of the arena that exists already. */
GPUNN__INTERNAL gpunn__footprint gpunn__footprint_of(gpunn_model *model, const gpunn__plan *plan,
                                                     bool gradients, size_t least_arena);

/* Sets sizes to their maxima, to report memory before a run. gpunn__take_found restores them. */
GPUNN__INTERNAL void gpunn__take_largest(gpunn_model *model);

#endif /* GPUNN__RUN_INSPECT_H */
