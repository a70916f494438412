#ifndef GPUNN__BASE_TEXT_H
#define GPUNN__BASE_TEXT_H
#include "base/sizes.h"
#include "graph/arguments.h"

/* ==== >>base/text ================================================================================================== *
 * The canonical text says what a model computes and nothing else; the generator makes the same one, so its SHA-256 tells a kernel
 * file whose model it is for, and a node's line which kernel fits it. */
enum { GPUNN__TEXT_SIZE = 512 + (GPUNN_MAX_RANK + 1) * GPUNN__SIZE_ROOM }; /* of a node's line */
GPUNN__PRIVATE const char *const gpunn__precision_names[] = {"f32", "tf32", "bf16", "f16"};

/* A text of limited size: what does not fit is left out, and the end is always there. */
typedef struct gpunn__line {
    char  *at;
    size_t size, used;
} gpunn__line;

GPUNN__INTERNAL void gpunn__put(gpunn__line *text, const char *format, ...) GPUNN__PRINTF(2, 3);

/* With a point in every locale. Nine digits tell every float. */
GPUNN__INTERNAL void gpunn__put_float(gpunn__line *text, float value, int digits);

/* A float as JSON has it, in as few digits as tell it; JSON knows no infinity. */
GPUNN__INTERNAL void gpunn__put_number(gpunn__line *text, float value);

/* 8, N, 4N or, of named sizes, T + 1; quote: what stands around texts. */
GPUNN__INTERNAL void gpunn__put_dim(gpunn__line *text, const gpunn_model *model, int64_t dim, const char *quote);

GPUNN__INTERNAL bool gpunn__all_equal(const int *values, int count);

/* A size, or 0 or 1, of what the canonical text leaves out. */
GPUNN__INTERNAL int64_t gpunn__told_size(const gpunn_tensor *t, const gpunn__told *a);

/* An attribute's value: 1,2 in the canonical text, [1, 2] in JSON. */
GPUNN__INTERNAL void gpunn__put_attribute(gpunn__line *text, const gpunn_tensor *t, const gpunn__told *a, bool json);

GPUNN__INTERNAL void gpunn__external_text(const gpunn_tensor *t, char *out, size_t size);

GPUNN__INTERNAL void gpunn__node_text(const gpunn_tensor *t, char *out, size_t size);

GPUNN__INTERNAL void gpunn__model_sha256(const gpunn_model *model, int count, char hex[65]);

#endif /* GPUNN__BASE_TEXT_H */
