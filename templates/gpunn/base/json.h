#ifndef GPUNN__BASE_JSON_H
#define GPUNN__BASE_JSON_H
#include "base/structs.h"

/* ==== >>base/json ================================================================================================== *
 * Reads a JSON text in place: piece by piece, or all of it into a list of items. */
typedef struct gpunn__slice {
    char  *at; /* a zero follows it, and may occur inside */
    size_t length;
} gpunn__slice;

typedef struct gpunn__json {
    char       *at, *end; /* strings are unescaped where they stand */
    bool        python;   /* strings may stand in ' ' too */
    const char *problem;  /* NULL: none so far */
    int         line;     /* line ends passed */
    const char *line_start;
} gpunn__json;

GPUNN__INTERNAL gpunn__json gpunn__json_of(char *text, size_t length, bool python);

/* Keeps the first problem; nothing matches after it. */
GPUNN__INTERNAL bool gpunn__json_fail(gpunn__json *j, const char *problem);

GPUNN__INTERNAL bool gpunn__json_peek(gpunn__json *j, char c);

GPUNN__INTERNAL bool gpunn__json_take(gpunn__json *j, char c);

GPUNN__INTERNAL bool gpunn__json_expect(gpunn__json *j, char c, const char *problem);

/* Bytes of the UTF-8 character at s; 0: malformed. */
GPUNN__INTERNAL size_t gpunn__utf8_size(const char *s, size_t left);

GPUNN__INTERNAL bool gpunn__json_string(gpunn__json *j, gpunn__slice *text);

GPUNN__INTERNAL bool gpunn__json_integer(gpunn__json *j, int64_t *value);

/* The integer that is the whole text. */
GPUNN__INTERNAL bool gpunn__slice_integer(const gpunn__slice *text, int64_t *value);

/* The double nearest to a number's text, in every locale: without its point, which moves into the exponent. False: too long. */
GPUNN__INTERNAL bool gpunn__json_double(const gpunn__slice *text, double *value);

/* A whole text as items in the order in which they stand: a list is followed by what is in it, an object by keys and values. */
typedef enum gpunn__item_kind {
    GPUNN__J_NULL,
    GPUNN__J_FALSE,
    GPUNN__J_TRUE,
    GPUNN__J_NUMBER,
    GPUNN__J_STRING,
    GPUNN__J_LIST,
    GPUNN__J_OBJECT
} gpunn__item_kind;
typedef struct gpunn__item {
    gpunn__slice     text; /* of numbers and strings */
    gpunn__item_kind kind;
    int              next; /* the item behind it and all that is in it */
    int              line, column;
    bool             read; /* somebody knows it */
} gpunn__item;

typedef struct gpunn__items {
    gpunn__item *at;
    int          count, capacity;
} gpunn__items;

/* False with j->problem NULL: out of memory. */
GPUNN__INTERNAL bool gpunn__json_item(gpunn_device *dev, gpunn__json *j, gpunn__items *items, int depth);

GPUNN__INTERNAL bool gpunn__slice_is(const gpunn__slice *text, const char *word);

/* A name out of a file as messages can show it: not too long, no control characters. */
GPUNN__INTERNAL const char *gpunn__printable(const gpunn__slice *text, char out[128]);

#endif /* GPUNN__BASE_JSON_H */
