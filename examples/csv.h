/* csv.h - comma-separated values (RFC 4180), record by record: fields in quotes may hold commas, lines' ends
 * and, doubled, quotes.
 *
 *     csv       c = csv_begin(text);                    ends at its first 0 and is changed
 *     csv_field field[2];
 *     for (int n; (n = csv_next(&c, field, 2)) != 0;)   how many fields the record has, of which two are
 *     kept; -1: it is broken
 *         if (n == 2) use(field[0].text, field[0].bytes, c.line);                    c.line: where it begins
 *
 * Numbers, by the names that the header row gives their columns, in any order, such as the samples of a
 * gpunn_loader:
 *
 *     const char *names[] = {"length", "width"};
 *     float      *table = csv_floats(text, names, 2, &rows, &error);                 [rows][2]; NULL:
 *     error.text says why */
#ifndef CSV_H
#define CSV_H

#include "json.h"

#include <math.h>

enum { CSV_MAX_COLUMNS = 1024 };
#define CSV_BROKEN "a quote is not closed, or text follows it"

typedef struct csv {
    char *at;
    int   line, next_line;
} csv;

typedef struct csv_field {
    char  *text; /* no 0 behind it */
    size_t bytes;
} csv_field;

static inline csv csv_begin(char *text)
{
    return (csv){text + (strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0), 1, 1};
}

/* A field, whose quotes are removed in place, and what follows: a comma, a line's end or the 0 at the end of
 * all. NULL: a quote has no end, or something stands behind it; then nothing has changed. */
static inline char *csv__field(csv *c, char *at, csv_field *field)
{
    char *to = at, *end = at + 1;
    field->text = at;
    if (*at != '"') {
        at += strcspn(at, ",\r\n");
        field->bytes = (size_t)(at - field->text);
        return at;
    }
    while (*end && (*end != '"' || end[1] == '"')) end += *end == '"' ? 2 : 1;
    if (*end == 0 || strchr(",\r\n", end[1]) == NULL) return NULL;
    for (at++; at < end; at += *at == '"' ? 2 : 1) {
        c->next_line += *at == '\n';
        *to++ = *at;
    }
    field->bytes = (size_t)(to - field->text);
    return end + 1;
}

/* The next record that is not an empty line; 0: there is none. Behind a broken one it goes on with the next
 * line. */
static inline int csv_next(csv *c, csv_field *fields, int most)
{
    for (int count = 1; *c->at; count = 1) {
        csv_field spare;
        c->line = c->next_line;
        char *start = c->at, *next = csv__field(c, start, most > 0 ? &fields[0] : &spare);
        for (; next && *next == ','; count++)
            next = csv__field(c, start = next + 1, count < most ? &fields[count] : &spare);
        bool broken = next == NULL, empty = next == c->at;
        if (broken) next = start + strcspn(start, "\n");
        c->at = next + strspn(next, "\r");
        if (*c->at == '\n') c->at++, c->next_line++;
        if (!empty) return broken ? -1 : count;
    }
    return 0;
}

/* The column that a header row names, -1: none. */
static inline int csv_column(const csv_field *header, int columns, const char *name)
{
    for (int i = 0; i < columns; i++)
        if (header[i].bytes == strlen(name) && memcmp(header[i].text, name, header[i].bytes) == 0) return i;
    return -1;
}

/* A finite number with blanks around it or none; an empty field is NaN, as is "nan". */
static inline bool csv_number(const csv_field *field, float *value)
{
    char text[64], *end;
    if (field->bytes >= sizeof text) return false;
    memcpy(text, field->text, field->bytes);
    text[field->bytes] = 0;
    *value = (float)gpunn_strtod(text, &end);
    if (text[strspn(text, " \t")] == 0) {
        *value = NAN;
        return true;
    }
    return end > text && end[strspn(end, " \t")] == 0 && !isinf(*value);
}

/* A field without the blanks around it. */
static inline csv_field csv_trimmed(csv_field field)
{
    for (; field.bytes > 0 && (*field.text == ' ' || *field.text == '\t'); field.bytes--) field.text++;
    while (field.bytes > 0 && (field.text[field.bytes - 1] == ' ' || field.text[field.bytes - 1] == '\t'))
        field.bytes--;
    return field;
}

/* Whether a record of one field has another separator than commas; then error says so. */
static inline bool csv_other_separator(int line, const csv_field *field, text_error *error)
{
    size_t semicolons = 0, tabs = 0;
    for (size_t i = 0; i < field->bytes; i++) {
        semicolons += field->text[i] == ';';
        tabs += field->text[i] == '\t';
    }
    if (semicolons || tabs)
        text_fail(error, "line %d has no ',' but %zu %s; separate its fields by ','", line,
                  semicolons ? semicolons : tabs,
                  semicolons  ? "';'"
                  : tabs == 1 ? "tab"
                              : "tabs");
    return semicolons || tabs;
}

/* Says why the header row lacks a name: by the separator, blanks around the name, or the names it has. */
static inline bool csv__no_column(int line, const csv_field *header, int width, const char *name,
                                  text_error *error)
{
    enum { SHOWN = 8, LONGEST = 30 };
    char   names[SHOWN * (LONGEST + 4) + 1];
    size_t used = 0;
    if (width == 1 && csv_other_separator(line, header, error)) return false;
    for (int i = 0; i < width; i++) {
        const csv_field field = csv_trimmed(header[i]);
        if (csv_column(&field, 1, name) == 0)
            return text_fail(
                error, "the header names no column '%s'; it has blanks around that name, remove them", name);
    }
    for (int i = 0; i < width && i < SHOWN; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s'%.*s'", i ? ", " : "",
                                 header[i].bytes > LONGEST ? LONGEST : (int)header[i].bytes, header[i].text);
    return text_fail(error, "the header names no column '%s'; its columns are %s%s", name, names,
                     width > SHOWN ? ", ..." : "");
}

/* Where the header row has each of the names. */
static inline bool csv__places(int line, const csv_field *header, int width, const char *const *names,
                               int columns, int *place, text_error *error)
{
    for (int i = 0; i < columns; i++) {
        place[i] = csv_column(header, width, names[i]);
        if (place[i] < 0) return csv__no_column(line, header, width, names[i], error);
        if (csv_column(header + place[i] + 1, width - place[i] - 1, names[i]) >= 0)
            return text_fail(error, "the header names two columns '%s'", names[i]);
    }
    return true;
}

static inline bool csv__row(const csv *c, const csv_field *field, const char *const *names, int columns,
                            const int *place, float *row, text_error *error)
{
    for (int i = 0; i < columns; i++)
        if (!csv_number(&field[place[i]], &row[i]))
            return text_fail(error, "line %d: '%.*s' in column '%s' is not a finite number", c->line,
                             field[place[i]].bytes > 30 ? 30 : (int)field[place[i]].bytes,
                             field[place[i]].text, names[i]);
    return true;
}

/* The next record as a row of the table, which grows. */
static inline bool csv__add(const csv *c, const csv_field *field, const char *const *names, int columns,
                            const int *place, float **table, size_t *rows, size_t *capacity,
                            text_error *error)
{
    const size_t bytes = (size_t)columns * sizeof **table;
    if (*rows == *capacity) {
        const size_t more = *capacity ? 2 * *capacity : 64;
        float       *grown = more <= SIZE_MAX / bytes ? realloc(*table, more * bytes) : NULL;
        if (grown == NULL)
            return text_fail(error, "line %d: out of memory for %zu rows of %d columns", c->line, more,
                             columns);
        *table = grown;
        *capacity = more;
    }
    return csv__row(c, field, names, columns, place, *table + (*rows)++ * (size_t)columns, error);
}

/* The named columns of a table whose first record is its header: rows x columns numbers, row by row, to be
 * freed; NaN where a field is empty. The text is changed. NULL: error says which name the header lacks and
 * which it has, which line has another separator than commas, is broken, has other fields than the header or
 * holds no number where one belongs, that there is no row or no memory. */
static inline float *csv_floats(char *text, const char *const *names, int columns, size_t *rows,
                                text_error *error)
{
    csv       c = csv_begin(text);
    csv_field field[CSV_MAX_COLUMNS];
    int       place[CSV_MAX_COLUMNS], width = csv_next(&c, field, CSV_MAX_COLUMNS), n = 0;
    float    *table = NULL;
    size_t    capacity = 0;
    bool      good = width > 0 && width <= CSV_MAX_COLUMNS && columns > 0 && columns <= CSV_MAX_COLUMNS;
    *rows = 0;
    if (!good)
        text_fail(error, "the header is missing or broken, or the number of columns is not 1 to %d",
                  CSV_MAX_COLUMNS);
    good = good && csv__places(c.line, field, width, names, columns, place, error);
    while (good && (n = csv_next(&c, field, CSV_MAX_COLUMNS)) != 0)
        if (n < 0)
            good = text_fail(error, "line %d: %s", c.line, CSV_BROKEN);
        else if (n == 1 && width != 1 && csv_other_separator(c.line, field, error))
            good = false;
        else if (n != width)
            good = text_fail(error, "line %d has %d field%s, but the header has %d", c.line, n,
                             n == 1 ? "" : "s", width);
        else
            good = csv__add(&c, field, names, columns, place, &table, rows, &capacity, error);
    if (good && *rows == 0) good = text_fail(error, "there is no row below the header");
    if (good) return table;
    free(table);
    *rows = 0;
    return NULL;
}

#endif
