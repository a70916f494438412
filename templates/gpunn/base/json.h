#ifndef GPUNN__BASE_JSON_H
#define GPUNN__BASE_JSON_H
#include "base/structs.h"

/* ==== >>base/json ======================================================================================== *
 * Parses a JSON text in place, either token by token or as a whole into a list of items. */
typedef struct gpunn__slice {
    char  *at; /* zero-terminated; may also contain zeros */
    size_t length;
} gpunn__slice;

typedef struct gpunn__json {
    char       *at, *end; /* strings are unescaped in place */
    bool        python;   /* also accepts strings in ' ' */
    const char *problem;  /* message of the first error; NULL: none so far */
    int         line;     /* line ends passed so far */
    const char *line_start;
} gpunn__json;

/* Starts parsing `length` bytes at text. */
GPUNN__INTERNAL gpunn__json gpunn__json_of(char *text, size_t length, bool python);

/* Records the first problem and stops parsing: nothing matches afterwards. Returns false. */
GPUNN__INTERNAL bool gpunn__json_fail(gpunn__json *j, const char *problem);

/* Skips white space; true if the next character is c. */
GPUNN__INTERNAL bool gpunn__json_peek(gpunn__json *j, char c);

/* The same, and consumes c if it is there. */
GPUNN__INTERNAL bool gpunn__json_take(gpunn__json *j, char c);

/* The same, and fails with `problem` if it is not there. */
GPUNN__INTERNAL bool gpunn__json_expect(gpunn__json *j, char c, const char *problem);

/* Number of bytes of the UTF-8 character at s; 0: malformed. */
GPUNN__INTERNAL size_t gpunn__utf8_size(const char *s, size_t left);

/* Parses a string and unescapes it in place; fails if there is none. */
GPUNN__INTERNAL bool gpunn__json_string(gpunn__json *j, gpunn__slice *text);

/* Parses an integer; fails on a fraction, an exponent, a leading 0 or overflow. */
GPUNN__INTERNAL bool gpunn__json_integer(gpunn__json *j, int64_t *value);

/* Converts a text that consists of one integer. */
GPUNN__INTERNAL bool gpunn__slice_integer(const gpunn__slice *text, int64_t *value);

/* Converts a number's text to the nearest double, in every locale: the decimal point is removed and moved
 * into the exponent. Returns false if the text is too long. */
GPUNN__INTERNAL bool gpunn__json_double(const gpunn__slice *text, double *value);

/* A whole text as items in their order of appearance. A list is followed by its elements, an object by its
 * keys and values. */
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
    int              next; /* index of the item after this one and its contents */
    int              line, column;
    bool             read; /* the reader has used it */
} gpunn__item;

typedef struct gpunn__items {
    gpunn__item *at;
    int          count, capacity;
} gpunn__items;

/* Appends the next value and its contents to items. Returns false on failure; j->problem is NULL if memory
 * ran out. */
GPUNN__INTERNAL bool gpunn__json_item(gpunn_device *dev, gpunn__json *j, gpunn__items *items, int depth);

/* Whether text equals word. */
GPUNN__INTERNAL bool gpunn__slice_is(const gpunn__slice *text, const char *word);

/* Makes a name from a file fit for messages: limited in length, without control characters. */
GPUNN__INTERNAL const char *gpunn__printable(const gpunn__slice *text, char out[128]);

#endif /* GPUNN__BASE_JSON_H */
