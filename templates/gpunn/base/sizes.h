#ifndef GPUNN__BASE_SIZES_H
#define GPUNN__BASE_SIZES_H
#include "base/structs.h"

/* ==== >>base/sizes ================================================================================================= *
 * Dimensions that vary between runs. A dimension is a number from 1 on; or -k, k times the batch; or the handle of a place in the
 * model's table, where a named size is, a quotient, or a sum of products of these and the batch. Sums have one canonical form and
 * stand there once, so that dimensions are equal where they are the same number. A size that is a multiple of m is m times an
 * atom: its m-th part is whole. */
#define GPUNN__MAX_COUNT ((int64_t)1 << 59) /* elements of one tensor: their bytes fit 62 bits */
#define GPUNN__FIRST_SIZE (-12 * GPUNN__MAX_COUNT)
enum { GPUNN__BATCH_ATOM = 1, GPUNN__MOST_SIZES = 1 << 16, GPUNN__SIZE_TEXT = 128 /* of a formula */ };

GPUNN__INTERNAL bool gpunn__is_sized(int64_t dim);

/* The place of a handle; 0: it is none. */
GPUNN__INTERNAL int gpunn__size_place(const gpunn_model *model, int64_t dim);

/* a + factor * b. */
GPUNN__INTERNAL gpunn__sum gpunn__sum_plus(gpunn__sum a, const gpunn__sum *b, int64_t factor);

GPUNN__INTERNAL gpunn__sum gpunn__sum_number(int64_t number);

GPUNN__INTERNAL gpunn__sum gpunn__sum_plus_number(gpunn__sum a, int64_t number);

GPUNN__INTERNAL gpunn__sum gpunn__sum_atom(int place, int64_t factor);

GPUNN__INTERNAL gpunn__sum gpunn__sum_times(const gpunn__sum *a, const gpunn__sum *b);

GPUNN__INTERNAL gpunn__sum gpunn__sum_of(const gpunn_model *model, int64_t dim);

GPUNN__INTERNAL void gpunn__size_put(char *text, size_t size, const char *format, ...) GPUNN__PRINTF(3, 4);

/* A size that stands alone in a shape; of one with a name that is it by its multiple: "H / 4". */
enum { GPUNN__SIZE_ROOM = GPUNN__SIZE_TEXT + 32 };
GPUNN__INTERNAL const char *gpunn__size_text(const gpunn_model *model, int64_t dim, char text[GPUNN__SIZE_ROOM]);

/* A place for a size; 0 after an error. */
GPUNN__INTERNAL int gpunn__size_append(gpunn_model *model, const gpunn__size *size);

/* The dimension that a sum is; 0: it is none, as it is less than 1 or too large, or after an error. */
GPUNN__INTERNAL int64_t gpunn__dim_of_sum(gpunn_model *model, const gpunn__sum *sum);

/* sum / k, rounded down. What k divides leaves the quotient, and a quotient of a quotient is one. */
GPUNN__INTERNAL gpunn__sum gpunn__sum_quotient(gpunn_model *model, gpunn__sum sum, int64_t k);

GPUNN__INTERNAL int64_t gpunn__sum_value(const gpunn_model *model, const gpunn__sum *sum, int64_t batch, bool found);

/* A dimension in the run whose values can be read, with that batch; below 1 where it cannot be. */
GPUNN__INTERNAL int64_t gpunn__dim(const gpunn_model *model, int64_t dim, int64_t batch);

typedef struct gpunn__size_formula {
    gpunn_model *model;
    const char  *at, *fault; /* NULL: none */
    int          depth;
} gpunn__size_formula;

GPUNN__INTERNAL gpunn__sum gpunn__parse_sum(gpunn__size_formula *f);

GPUNN__INTERNAL char gpunn__formula_next(gpunn__size_formula *f);

/* Bytes of the name that begins there. */
GPUNN__INTERNAL size_t gpunn__size_name(const char *text);

/* The place of a name; 0: there is none. */
GPUNN__INTERNAL int gpunn__size_find(const gpunn_model *model, const char *name, size_t length);

#endif /* GPUNN__BASE_SIZES_H */
