/* csv.h - comma-separated values (RFC 4180), record by record: fields in quotes may hold commas, lines' ends and, doubled, quotes.
 *
 *     csv       c = csv_begin(text);                    ends at its first 0 and is changed
 *     csv_field field[2];
 *     for (int n; (n = csv_next(&c, field, 2)) != 0;)   how many fields the record has, of which two are kept; -1: it is broken
 *         if (n == 2) use(field[0].text, field[0].bytes, c.line);                    c.line: where it begins */
#ifndef CSV_H
#define CSV_H

#include <stdbool.h>
#include <string.h>

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

/* A field, whose quotes are removed in place, and what follows: a comma, a line's end or the 0 at the end of all. NULL: a quote has
 * no end, or something stands behind it; then nothing has changed. */
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

/* The next record that is not an empty line; 0: there is none. Behind a broken one it goes on with the next line. */
static inline int csv_next(csv *c, csv_field *fields, int most)
{
    for (int count = 1; *c->at; count = 1) {
        csv_field spare;
        c->line = c->next_line;
        char *start = c->at, *next = csv__field(c, start, most > 0 ? &fields[0] : &spare);
        for (; next && *next == ','; count++) next = csv__field(c, start = next + 1, count < most ? &fields[count] : &spare);
        bool broken = next == NULL, empty = next == c->at;
        if (broken) next = start + strcspn(start, "\n");
        c->at = next + strspn(next, "\r");
        if (*c->at == '\n') c->at++, c->next_line++;
        if (!empty) return broken ? -1 : count;
    }
    return 0;
}

#endif
