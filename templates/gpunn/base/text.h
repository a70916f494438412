#ifndef GPUNN__BASE_TEXT_H
#define GPUNN__BASE_TEXT_H
#include "base/sizes.h"
#include "graph/arguments.h"

/* ==== >>base/text ======================================================================================== *
 * The canonical text of a model, which describes exactly what it computes. The generator produces the same
 * text. Its SHA-256 identifies the model a kernel file is for, and a node's line identifies the kernels that
 * fit it. */
enum { GPUNN__TEXT_SIZE = 512 + (GPUNN_MAX_RANK + 1) * GPUNN__SIZE_BUFFER }; /* of a node's line */
GPUNN__PRIVATE const char *const gpunn__precision_names[] = {"f32", "tf32", "bf16", "f16"};

/* A text buffer of limited size. What does not fit is dropped; the text is always zero-terminated. */
typedef struct gpunn__text_buffer {
    char  *at;
    size_t size, used;
} gpunn__text_buffer;

/* Appends formatted text. */
GPUNN__INTERNAL void gpunn__put(gpunn__text_buffer *text, const char *format, ...) GPUNN__PRINTF(2, 3);

/* Appends a float, with a decimal point in every locale. Nine digits identify every float. */
GPUNN__INTERNAL void gpunn__put_float(gpunn__text_buffer *text, float value, int digits);

/* Appends a float as JSON, with as few digits as identify it. JSON has no infinity, so that is in quotes. */
GPUNN__INTERNAL void gpunn__put_number(gpunn__text_buffer *text, float value);

/* Appends a dimension: 8, N, 4N or, with named sizes, T + 1. quote is put around texts. */
GPUNN__INTERNAL void gpunn__put_dim(gpunn__text_buffer *text, const gpunn_model *model, int64_t dim,
                                    const char *quote);

/* Whether all values are equal. */
GPUNN__INTERNAL bool gpunn__all_equal(const int *values, int count);

/* Value of an attribute that the canonical text omits because the shapes or operands imply it: a size, or 0
 * or 1. */
GPUNN__INTERNAL int64_t gpunn__attribute_size(const gpunn_tensor *t, const gpunn__attribute *a);

/* Appends an attribute's value: 1,2 in the canonical text, [1, 2] in JSON. */
GPUNN__INTERNAL void gpunn__put_attribute(gpunn__text_buffer *text, const gpunn_tensor *t,
                                          const gpunn__attribute *a, bool json);

/* Writes dtype and shape of a tensor: "f32 [N,3]". */
GPUNN__INTERNAL void gpunn__external_text(const gpunn_tensor *t, char *out, size_t size);

/* Writes a node's line: op, attributes, dtype and shape. */
GPUNN__INTERNAL void gpunn__node_text(const gpunn_tensor *t, char *out, size_t size);

/* SHA-256 of the canonical text of the first `count` tensors. */
GPUNN__INTERNAL void gpunn__model_sha256(const gpunn_model *model, int count, char hex[65]);

#endif /* GPUNN__BASE_TEXT_H */
