#ifndef GPUNN__BASE_SIZES_H
#define GPUNN__BASE_SIZES_H
#include "base/structs.h"

/* ==== >>base/sizes ======================================================================================= *
 * Dimensions that vary between runs. A dimension is one of three things: a number >= 1; -k, meaning k times
 * the batch; or a handle, the place of an entry in the model's table. An entry is a named size, a quotient,
 * or a sum of products of these and the batch. Sums have one canonical form and one entry, so dimensions are
 * equal exactly if they are the same number. A size that is a multiple of m is m times an atom, whose value
 * is the size / m. */
#define GPUNN__MAX_COUNT ((int64_t)1 << 59) /* most elements of one tensor: their bytes fit 62 bits */
#define GPUNN__FIRST_SIZE (-12 * GPUNN__MAX_COUNT)
enum { GPUNN__BATCH_ATOM = 1, GPUNN__MOST_SIZES = 1 << 16, GPUNN__SIZE_TEXT = 128 /* of a formula */ };

/* Whether dim is a handle. */
GPUNN__INTERNAL bool gpunn__is_sized(int64_t dim);

/* Place of a handle in the table; 0: it is none. */
GPUNN__INTERNAL int gpunn__size_place(const gpunn_model *model, int64_t dim);

/* a + factor * b. */
GPUNN__INTERNAL gpunn__sum gpunn__sum_plus(gpunn__sum a, const gpunn__sum *b, int64_t factor);

/* A sum that is one number. */
GPUNN__INTERNAL gpunn__sum gpunn__sum_number(int64_t number);

GPUNN__INTERNAL gpunn__sum gpunn__sum_plus_number(gpunn__sum a, int64_t number);

/* The sum factor * atom. */
GPUNN__INTERNAL gpunn__sum gpunn__sum_atom(int place, int64_t factor);

/* a * b; count -1 if it is too long or too large. */
GPUNN__INTERNAL gpunn__sum gpunn__sum_times(const gpunn__sum *a, const gpunn__sum *b);

/* The sum that a dimension stands for. */
GPUNN__INTERNAL gpunn__sum gpunn__sum_of(const gpunn_model *model, int64_t dim);

/* Appends formatted text to a zero-terminated text of `size` bytes. */
GPUNN__INTERNAL void gpunn__size_put(char *text, size_t size, const char *format, ...) GPUNN__PRINTF(3, 4);

/* Text of a size in a shape. A named size is shown by its multiple: "H / 4". */
enum { GPUNN__SIZE_BUFFER = GPUNN__SIZE_TEXT + 32 };
GPUNN__INTERNAL const char *gpunn__size_text(const gpunn_model *model, int64_t dim,
                                             char text[GPUNN__SIZE_BUFFER]);

/* Appends an entry to the table and returns its place; 0 on an error. */
GPUNN__INTERNAL int gpunn__size_append(gpunn_model *model, const gpunn__size *size);

/* The dimension that equals a sum. 0: none, since the sum is less than 1 or too large, or on an error. */
GPUNN__INTERNAL int64_t gpunn__dim_of_sum(gpunn_model *model, const gpunn__sum *sum);

/* sum / k, rounded down. Multiples of k move out of the quotient, and a quotient of a quotient becomes
 * one. */
GPUNN__INTERNAL gpunn__sum gpunn__sum_quotient(gpunn_model *model, gpunn__sum sum, int64_t k);

/* Value of a sum with that batch size; 0: too large or unknown. found: use the inputs as they are now;
 * otherwise the run whose values can be read. */
GPUNN__INTERNAL int64_t gpunn__sum_value(const gpunn_model *model, const gpunn__sum *sum, int64_t batch,
                                         bool found);

/* Value of a dimension with that batch size, in the run whose values can be read; below 1 if unknown. */
GPUNN__INTERNAL int64_t gpunn__dim(const gpunn_model *model, int64_t dim, int64_t batch);

typedef struct gpunn__size_formula {
    gpunn_model *model;
    const char  *at, *fault; /* NULL: none */
    int          depth;
} gpunn__size_formula;

/* Parses a formula; on failure sets f->fault. */
GPUNN__INTERNAL gpunn__sum gpunn__parse_sum(gpunn__size_formula *f);

/* Skips spaces and returns the next character. */
GPUNN__INTERNAL char gpunn__formula_next(gpunn__size_formula *f);

/* Length of the name that begins at text. */
GPUNN__INTERNAL size_t gpunn__size_name(const char *text);

/* Place of a named size in the table; 0: none. */
GPUNN__INTERNAL int gpunn__size_find(const gpunn_model *model, const char *name, size_t length);

#endif /* GPUNN__BASE_SIZES_H */
