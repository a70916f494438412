#ifndef GPUNN__RUN_INSPECT_H
#define GPUNN__RUN_INSPECT_H
#include "base/structs.h"

/* ==== >>run/inspect ================================================================================================ */
typedef struct gpunn__text {
    void (*write)(void *user, const char *text);
    void *user;
} gpunn__text;

GPUNN__INTERNAL void gpunn__text_line(const gpunn__text *out, const char *format, ...) GPUNN__PRINTF(2, 3);

/* Bytes of the device that a run of a plan holds. */
typedef struct gpunn__footprint {
    size_t weights, gradients, inputs, arena, cache, together;
} gpunn__footprint;

/* least_arena: what there is already. */
GPUNN__INTERNAL gpunn__footprint gpunn__footprint_of(gpunn_model *model, const gpunn__plan *plan, bool gradients,
                                                     size_t least_arena);

/* The largest sizes, for what is told before a run; gpunn__take_found gives them back. */
GPUNN__INTERNAL void gpunn__take_largest(gpunn_model *model);

#endif /* GPUNN__RUN_INSPECT_H */
