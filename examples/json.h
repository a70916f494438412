/* json.h - small files for the examples: a text as a whole, JSON read from front to back, failures as
 * sentences.
 *
 *     text_error error;
 *     size_t     bytes;
 *     char      *text = text_read("config.json", 1 << 20, &bytes, &error), *key;
 *     json       j = json_begin("config.json", text, &error);
 *     if (json_object(&j))
 *         while ((key = json_key(&j, NULL)) != NULL)
 *             if (strcmp(key, "hidden_size") == 0) hidden = json_number(&j);
 *             else json_skip(&j);
 *     if (!json_end(&j)) fputs(error.text, stderr);
 *
 * After the first failure, which is named with its line, every call returns NULL, false or 0. Strings are
 * decoded where they stand, so that they live as long as the text and need no memory of their own. */
#ifndef JSON_H
#define JSON_H

#include "gpunn.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct text_error {
    char text[512];
} text_error;

/* Notes a sentence, without control characters that a hostile file may hold, and returns false. */
#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
static inline bool
text_fail(text_error *error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    for (char *c = error->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return false;
}

/* The whole file with a 0 behind it, to be freed; NULL when it cannot be read, holds more than limit bytes or
 * memory ran out. */
static inline char *text_read(const char *path, size_t limit, size_t *bytes, text_error *error)
{
    FILE  *file = fopen(path, "rb");
    char  *text = NULL;
    size_t capacity = 0, got = 1;
    *bytes = 0;
    if (file == NULL) {
        text_fail(error, "cannot open '%s': %s", path, strerror(errno));
        return NULL;
    }
    while (got > 0) {
        if (*bytes == capacity) {
            capacity = capacity ? capacity * 2 : 65536;
            char *more = *bytes <= limit ? (char *)realloc(text, capacity + 1) : NULL;
            if (more == NULL) break;
            text = more;
        }
        got = fread(text + *bytes, 1, capacity - *bytes, file);
        *bytes += got;
    }
    bool failed = ferror(file) != 0;
    (void)fclose(file);
    if (!failed && got == 0 && *bytes <= limit) {
        text[*bytes] = 0;
        return text;
    }
    if (failed)
        text_fail(error, "cannot read '%s': %s", path, strerror(errno));
    else if (*bytes > limit)
        text_fail(error, "'%s' holds more than %zu bytes", path, limit);
    else
        text_fail(error, "out of memory: '%s' is too large", path);
    free(text);
    return NULL;
}

typedef struct json {
    const char *name; /* of the file */
    char       *at;
    int         line;
    bool        first, failed; /* first: no key of the object has been read */
    text_error *error;
} json;

/* text: ends at its first 0, is changed, and may be NULL after a failure that stands in *error. */
static inline json json_begin(const char *name, char *text, text_error *error)
{
    json j = {name, text, 1, false, text == NULL, error};
    return j;
}

static inline bool json_fail(json *j, const char *what)
{
    if (j->failed) return false;
    j->failed = true;
    return text_fail(j->error, "%s:%d: %s", j->name, j->line, what);
}

static inline char json__peek(json *j)
{
    if (j->failed) return 0;
    for (; *j->at == ' ' || *j->at == '\t' || *j->at == '\r' || *j->at == '\n'; j->at++)
        j->line += *j->at == '\n';
    return *j->at;
}

static inline bool json__take(json *j, char c)
{
    if (json__peek(j) != c) return false;
    j->at++;
    return true;
}

static inline bool json_object(json *j)
{
    j->first = true;
    return json__take(j, '{') || json_fail(j, "an object, {...}, is expected here");
}

static inline bool json__hex4(const char *at, uint32_t *value)
{
    *value = 0;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char       *digit = at[i] ? strchr(digits, at[i]) : NULL;
        if (digit == NULL) return false;
        *value = *value * 16 + (uint32_t)(digit - digits) % 16;
    }
    return true;
}

/* Writes the character in UTF-8, 1 to 4 bytes, and returns what follows. */
static inline char *text_put(char *to, uint32_t c)
{
    if (c >= 0x80) {
        int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        *to++ = (char)((0xf0u << (3 - more) & 0xffu) | c >> 6 * more);
        while (--more > 0) *to++ = (char)(0x80 | (c >> 6 * more & 0x3f));
        c = 0x80 | (c & 0x3f);
    }
    *to++ = (char)c;
    return to;
}

/* A string with a 0 behind it; bytes may be NULL. Surrogates that stand alone become U+FFFD. */
static inline char *json_string(json *j, size_t *bytes)
{
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (!json__take(j, '"')) {
        json_fail(j, "a string is expected here");
        return NULL;
    }
    char *text = j->at, *to = text;
    while (*j->at != '"') {
        const char *found;
        uint32_t    c, low;
        if ((unsigned char)*j->at < 0x20) {
            json_fail(j, "a string does not end on its line");
            return NULL;
        }
        if (*j->at != '\\') {
            *to++ = *j->at++;
        } else if (j->at[1] && (found = strchr(escapes, j->at[1])) != NULL) {
            *to++ = meant[found - escapes];
            j->at += 2;
        } else if (j->at[1] == 'u' && json__hex4(j->at + 2, &c)) {
            j->at += 6;
            if (c >= 0xd800 && c < 0xdc00 && j->at[0] == '\\' && j->at[1] == 'u' &&
                json__hex4(j->at + 2, &low) && low >= 0xdc00 && low < 0xe000) {
                c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
                j->at += 6;
            }
            to = text_put(to, c >= 0xd800 && c < 0xe000 ? 0xfffd : c);
        } else {
            json_fail(j, "this escape is not valid in a string");
            return NULL;
        }
    }
    j->at++;
    if (bytes) *bytes = (size_t)(to - text);
    *to = 0;
    return text;
}

/* The object's next key, whose value must be read next; NULL at the end of the object, which is then
 * passed. */
static inline char *json_key(json *j, size_t *bytes)
{
    bool first = j->first;
    j->first = false;
    if (json__take(j, '}')) return NULL;
    if (!first && !json__take(j, ',')) {
        json_fail(j, "a comma or a } is expected here");
        return NULL;
    }
    char *key = json_string(j, bytes);
    if (key && !json__take(j, ':')) json_fail(j, "a colon is expected after a key");
    return j->failed ? NULL : key;
}

/* Whether the value is an array, whose items are read next. */
static inline bool json_array(json *j)
{
    return json__take(j, '[') && (j->first = true);
}

/* Whether there is another item, which must be read next; after the last one the array is passed. */
static inline bool json_item(json *j)
{
    bool first = j->first;
    j->first = false;
    if (json__take(j, ']')) return false;
    return first ? !j->failed : json__take(j, ',') || json_fail(j, "a comma or a ] is expected here");
}

static inline double json_number(json *j)
{
    char   c = json__peek(j), *end = j->at;
    double value = c == '-' || (c >= '0' && c <= '9') ? gpunn_strtod(j->at, &end) : 0;
    if (end == j->at) json_fail(j, "a number is expected here");
    if (!j->failed) j->at = end;
    return j->failed ? 0 : value;
}

/* An integer between lowest and highest; anything else is named with its key. */
static inline int json_int(json *j, const char *key, int lowest, int highest)
{
    double value = json_number(j);
    char   what[160];
    if (j->failed || (value >= lowest && value <= highest && value == (double)(int)value)) return (int)value;
    (void)snprintf(what, sizeof what, "'%.40s' is %g, not a whole number between %d and %d", key, value,
                   lowest, highest);
    json_fail(j, what);
    return 0;
}

static inline bool json__word(json *j, const char *word)
{
    size_t length = strlen(word);
    if (json__peek(j) != *word || strncmp(j->at, word, length) != 0) return false;
    j->at += length;
    return true;
}

static inline bool json_bool(json *j)
{
    bool yes = json__word(j, "true");
    if (!yes && !json__word(j, "false")) json_fail(j, "true or false is expected here");
    return yes;
}

/* Takes a null, if one stands here. */
static inline bool json_null(json *j)
{
    return json__word(j, "null");
}

/* Passes any value; whether commas and colons stand where they should is not its business. */
static inline void json_skip(json *j)
{
    long depth = 0;
    do {
        char c = json__peek(j);
        if (c == '{' || c == '[') {
            depth++, j->at++;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--, j->at++;
        } else if ((c == ',' || c == ':') && depth > 0) {
            j->at++;
        } else if (c == '"') {
            (void)json_string(j, NULL);
        } else if (c == 't' || c == 'f') {
            (void)json_bool(j);
        } else if (!json_null(j)) {
            (void)json_number(j);
        }
    } while (!j->failed && depth > 0);
    j->first = false;
}

/* Whether all went well and nothing follows. */
static inline bool json_end(json *j)
{
    return !j->failed && (json__peek(j) == 0 || json_fail(j, "there is extra text after the end"));
}

#endif
